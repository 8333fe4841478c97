/* tests/families/compression/test_probsparse.c owns ProbSparse attention: counts, samples, the measure, the selection, and
 * attention of selected rows beside averages, against float64. */

#include <stdlib.h>

#include "subset.h"

typedef struct scene {
  attn_tensor o, q, k, v;
  const int32_t *pick;
  attn_probsparse_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_probsparse(s->o, s->q, s->k, s->v, s->pick, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_probsparse_workspace(s->o, s->q, s->k, s->v, s->pick, &s->p, ctx);
}

static scene *build(const subset_shape *x, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const subset_tensors t = subset_draw(x, &s->does.block[0], rng);
  s->o = t.o, s->q = t.q, s->k = t.k, s->v = t.v;
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.out[0] = &s->o;
  return s;
}

static void lengths(scene *s, test_rng *rng) {
  int32_t *len = test_mem(4 * sizeof *len);
  for (int64_t b = 0; b < s->q.batch; b++) {
    len[b] = (int32_t)test_range(rng, 0, s->q.len);
    len[2 + b] = (int32_t)test_range(rng, 0, s->k.len);
  }
  s->p.q_len = len, s->p.kv_len = len + 2;
}

/* ---- counts and samples ---------------------------------------------------------------------*/

static int64_t count_of(int64_t n, int64_t factor) {
  if (n < 1) return 0;
  double c = fmax(1, (double)(factor ? factor : 5) * ceil(log((double)n)));
  return c < (double)n ? (int64_t)c : n;
}
static int64_t rows_of(int64_t n, const attn_probsparse_params *p) {
  if (p->has_rows) return p->rows < n ? p->rows : n;
  return count_of(n, p->factor);
}

void F2_counts(void **state) {
  (void)state;
  attn_probsparse_params p;
  memset(&p, 0, sizeof p);
  for (int64_t f = 0; f < 4; f++)
    for (int64_t n = 0; n < 5000; n += n < 200 ? 1 : 61) {
      p.factor = f;
      assert_int_equal(attn_probsparse_rows(n, &p), count_of(n, f));
      assert_int_equal(attn_probsparse_samples(n, &p), count_of(n, f));
    }
  assert_int_equal(attn_probsparse_rows(16384, NULL), 50);
  assert_int_equal(attn_probsparse_rows(1, NULL), 1);
  assert_int_equal(attn_probsparse_samples(INT32_MAX, NULL), 110);
  p.factor = INT64_MAX;
  assert_int_equal(attn_probsparse_samples(100, &p), 100);
  p.factor = 1, p.has_rows = 1, p.rows = 7;
  assert_int_equal(attn_probsparse_rows(100, &p), 7);
  assert_int_equal(attn_probsparse_rows(5, &p), 5);
  assert_int_equal(attn_probsparse_samples(100, &p), 5);
  p.rows = -1;
  assert_int_equal(attn_probsparse_rows(5, &p), 0);
  p.factor = -1;
  assert_int_equal(attn_probsparse_samples(5, &p), 0);
}

static int64_t drawn_key(uint64_t seed, int64_t n, int64_t keys) {
  return subset_below(subset_number(seed, 5, (uint64_t)n), keys);
}

/* M of a query, and how large its dot products are. */
static double measure_of(const scene *s, int64_t b, int64_t h, int64_t i, double *size) {
  int64_t nk = subset_length(s->p.kv_len, b, s->k.len), samples = count_of(nk, s->p.factor);
  double top = -(double)INFINITY, sum = 0;
  *size = 0;
  if (i >= subset_length(s->p.q_len, b, s->q.len) || nk == 0) return 0;
  for (int64_t t = 0; t < samples; t++) {
    int64_t j = s->p.samples   ? s->p.samples[i * samples + t]
                : samples < nk ? drawn_key(s->p.seed, i * samples + t, nk)
                               : t;
    double x = dot_rows(&s->q, &s->k, b, h, i, j);
    top = fmax(top, x), sum += x, *size = fmax(*size, fabs(x));
  }
  return top - sum / (double)(s->p.by_samples ? samples : nk);
}

/* Samples of the caller's. */
static int32_t *give(scene *s, test_rng *rng) {
  const int64_t n = s->q.len * count_of(s->k.len, s->p.factor);
  int32_t *x = test_mem((size_t)(n + 1) * sizeof *x);
  for (int64_t i = 0; i < n; i++) x[i] = (int32_t)test_range(rng, 0, s->k.len - 1);
  s->p.samples = x, s->p.kv_len = NULL;
  return x;
}

/* Given samples decide the selection of the whole call; what is wrong with them is told before a write. */
void F2_given_samples(void **state) {
  (void)state;
  test_rng rng = test_seed(881);
  for (int n = 0; n < 8; n++, test_mem_release()) {
    subset_shape x = subset_any(60, 90, &rng);
    scene *s = build(&x, &rng);
    attn_ctx ctx = test_ctx();
    s->p.factor = 2;
    int32_t *given = give(s, &rng), keys[8];
    const int64_t rows = attn_probsparse_rows(x.q_len, &s->p);
    const int64_t samples = attn_probsparse_samples(x.k_len, &s->p);
    attn_tensor m = test_tensor(ATTN_F32, TEST_BHTD, x.batch, x.heads, x.q_len, 1);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, x.batch, x.heads, x.q_len, s->v.dim);
    attn_tensor other = test_tensor(ATTN_F32, TEST_BHTD, x.batch, x.heads, x.q_len, s->v.dim);
    int32_t *pick = test_mem((size_t)(x.batch * x.heads * rows + 1) * sizeof *pick);
    assert_int_equal(attn_probsparse_measure(m, s->q, s->k, &s->p, &ctx), ATTN_OK);
    assert_int_equal(attn_probsparse_select(pick, m, &s->p, &ctx), ATTN_OK);
    assert_int_equal(attn_probsparse(o, s->q, s->k, s->v, NULL, &s->p, &ctx), ATTN_OK);
    assert_int_equal(attn_probsparse(other, s->q, s->k, s->v, pick, &s->p, &ctx), ATTN_OK);
    test_assert_same(o, other, "in two steps");
    test_fill_value(m, 7);
    for (int i = 0; i < 8; i++) keys[i] = 1;
    const int64_t at = test_range(&rng, 0, x.q_len * samples - 1);
    const int32_t was = given[at];
    for (int bad = 0; bad < 5; bad++) {
      const attn_probsparse_params good = s->p;
      attn_status want = ATTN_E_INDEX;
      given[at] = bad == 0 ? (int32_t)x.k_len : bad == 1 ? INT32_MIN : was;
      if (bad == 2) s->p.kv_len = keys, want = ATTN_E_RANGE;
      if (bad == 3) s->p.samples = (int32_t *)(void *)((char *)given + 1), want = ATTN_E_ALIGN;
      if (bad == 4) s->p.samples = (int32_t *)m.data, want = ATTN_E_OVERLAP;
      assert_int_equal(attn_probsparse_measure(m, s->q, s->k, &s->p, &ctx), want);
      if (bad < 4) assert_non_null(strstr(ctx.reason, "samples"));
      for (int64_t i = 0; i < x.q_len; i++) assert_true(oracle_get(&m, 0, 0, i, 0) == 7);
      s->p = good, given[at] = was;
    }
  }
}

void F2_measure(void **state) {
  (void)state;
  test_rng rng = test_seed(801);
  int64_t count = test_count(40, 6);
  for (int64_t t = 0; t < count; t++) {
    subset_shape x = subset_any(90, 120, &rng);
    scene *s = build(&x, &rng);
    double size;
    s->p.factor = test_range(&rng, 0, 8), s->p.seed = test_u64(&rng);
    s->p.by_samples = (int)test_range(&rng, 0, 1), s->p.causal = (int)test_range(&rng, 0, 1);
    if (t % 9 == 0) s->p.factor = 70; /* all keys, in several blocks */
    if (t % 3 == 0) lengths(s, &rng);
    if (t % 4 == 1) give(s, &rng);
    attn_tensor m = test_tensor(ATTN_F32, TEST_PADDED, x.batch, x.heads, x.q_len, 1);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_probsparse_measure(m, s->q, s->k, &s->p, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.isa, test_isa);
    for (int64_t r = 0; r < x.batch * x.heads * x.q_len; r++) {
      int64_t b = r / x.q_len / x.heads, h = r / x.q_len % x.heads, i = r % x.q_len;
      double want = measure_of(s, b, h, i, &size);
      value_check(oracle_get(&m, b, h, i, 0), want, 4e-6 * (size + 1), ATTN_F32, "M", b, h, i, 0);
    }
  }
}

/* ---- selection ------------------------------------------------------------------------------*/

void F2_select(void **state) {
  (void)state;
  test_rng rng = test_seed(802);
  for (int t = 0; t < 24; t++) {
    int64_t len = test_range(&rng, 1, t % 3 ? 60 : 500), rows;
    attn_tensor m = test_tensor(ATTN_F32, (test_layout)(t % 4), 2, 2, len, 1);
    attn_probsparse_params p;
    memset(&p, 0, sizeof p);
    int32_t q_len[2] = {(int32_t)test_range(&rng, 0, len), (int32_t)len};
    for (int64_t r = 0; r < 4 * len; r++) {
      double x = t % 2 ? test_normal(&rng) : (double)test_range(&rng, -2, 2); /* ties */
      if (t % 5 == 0 && r % 3 == 0) x = r % 2 ? (double)NAN : -(double)INFINITY;
      oracle_set(&m, r / len / 2, r / len % 2, r % len, 0, x);
    }
    p.has_rows = t % 4 == 3, p.rows = p.has_rows ? test_range(&rng, 0, len + 3) : 0;
    if (t % 3 == 1) p.q_len = q_len;
    rows = attn_probsparse_rows(len, &p);
    int32_t *got = test_mem((size_t)(4 * rows + 1) * sizeof *got);
    got[4 * rows] = 99;
    attn_ctx ctx = test_ctx();
    size_t size = attn_probsparse_select_workspace(got, m, &p, &ctx);
    assert_int_equal(size == 0, rows == 0);
    ctx.workspace = test_mem(size + 1), ctx.workspace_size = size;
    assert_int_equal(attn_probsparse_select(got, m, &p, &ctx), ATTN_OK);
    assert_int_equal(got[4 * rows], 99);
    for (int64_t u = 0; u < 4; u++) {
      int64_t n = subset_length(p.q_len, u / 2, len), own = rows_of(n, &p);
      for (int64_t r = 0; r < rows; r++) {
        int64_t i = got[u * rows + r], better = 0;
        if (r >= own) {
          assert_int_equal(i, -1);
          continue;
        }
        assert_in_range(i, 0, n - 1);
        double x = oracle_get(&m, u / 2, u % 2, i, 0);
        for (int64_t j = 0; j < n; j++) { /* it comes after r others */
          double y = oracle_get(&m, u / 2, u % 2, j, 0);
          int tie = y == x || (isnan(x) && isnan(y));
          better += tie ? j < i : y > x || (isnan(x) && !isnan(y));
        }
        assert_int_equal(better, r);
      }
    }
  }
}

/* ---- attention ------------------------------------------------------------------------------*/

/* A random selection in random order. */
static void any_pick(scene *s, test_rng *rng) {
  int64_t rows = rows_of(s->q.len, &s->p), len = s->q.len;
  int32_t *pick = test_mem((size_t)(s->q.batch * s->q.heads * rows + 1) * sizeof *pick);
  int32_t *order = test_mem((size_t)(len + 1) * sizeof *order);
  for (int64_t u = 0; u < s->q.batch * s->q.heads; u++) {
    int64_t n = subset_length(s->p.q_len, u / s->q.heads, len), own = rows_of(n, &s->p);
    for (int64_t i = 0; i < n; i++) order[i] = (int32_t)i;
    for (int64_t r = 0; r < rows; r++) {
      pick[u * rows + r] = -1;
      if (r >= own) continue;
      int64_t j = test_range(rng, r, n - 1);
      int32_t one = order[j];
      order[j] = order[r], order[r] = one;
      pick[u * rows + r] = one;
    }
  }
  s->pick = pick;
}

static void check(const scene *s, double tolerance, const char *what) {
  const attn_probsparse_params *p = &s->p;
  int64_t heads = s->q.heads, rows = rows_of(s->q.len, p), dv = s->v.dim;
  int64_t off = p->has_q_off ? p->q_off : s->k.len - s->q.len;
  bag a = bag_of(s->k.len, dv);
  for (int64_t r = 0; r < s->q.batch * heads * s->q.len; r++) {
    int64_t i = r % s->q.len, h = r / s->q.len % heads, b = r / s->q.len / heads;
    int64_t n = subset_length(p->q_len, b, s->q.len), nk = subset_length(p->kv_len, b, s->k.len);
    int64_t sees = p->causal && i + off + 1 < nk ? i + off + 1 : nk;
    int selected = 0;
    for (int64_t e = 0; e < rows_of(n, p); e++)
      selected |= s->pick[(b * heads + h) * rows + e] == i;
    bag_empty(&a);
    for (int64_t j = 0; j < sees && i < n; j++)
      bag_add(&a, selected ? scale_of(p->scale, s->q.dim) * dot_rows(&s->q, &s->k, b, h, i, j) : 0,
              &s->v, b, head_of(&s->v, h, heads), j);
    bag_close(&a);
    for (int64_t c = 0; c < dv && !selected && p->causal && p->fill_sum; c++)
      a.o[c] *= (double)a.n, a.value *= c ? 1 : (double)a.n;
    bag_check(&a, &s->o, NULL, b, h, i, tolerance, what);
  }
}

void F2_random(void **state) {
  (void)state;
  test_rng rng = test_seed(803);
  static const float scale[] = {0, 0, 1.5f, -0.7f, ATTN_ZERO};
  int64_t count = test_count(70, 8);
  for (int64_t t = 0; t < count; t++) {
    subset_shape x = subset_any(90, 120, &rng);
    scene *s = build(&x, &rng);
    s->p.causal = (int)(t % 2), s->p.fill_sum = (int)test_range(&rng, 0, 1);
    s->p.factor = test_range(&rng, 0, 2), s->p.scale = scale[test_range(&rng, 0, 4)];
    s->p.has_rows = t % 3 == 0;
    if (s->p.has_rows) s->p.rows = test_range(&rng, 0, x.q_len + 2);
    s->p.has_q_off = t % 5 == 0;
    if (s->p.has_q_off) s->p.q_off = test_range(&rng, -x.q_len - 2, x.k_len + 2);
    if (t % 4 == 1) lengths(s, &rng);
    any_pick(s, &rng);
    promise_run(&s->does);
    check(s, 2e-6, "probsparse");
  }
}

/* Averages over several chunks of values, and rows of several. */
void F2_long(void **state) {
  (void)state;
  test_rng rng = test_seed(804);
  for (int t = 0; t < 4; t++) {
    int64_t n = test_fast ? 1100 : 2100;
    subset_shape x = subset_plain(1, t == 3 ? 40 : n, n, 3, 2);
    if (t == 2) x.type = ATTN_F16;
    scene *s = build(&x, &rng);
    s->p.causal = t != 0, s->p.has_rows = 1, s->p.rows = 3;
    if (t == 2) s->p.has_q_off = 1, s->p.q_off = -700;
    any_pick(s, &rng);
    promise_run(&s->does);
    /* a sample of the rows */
    bag a = bag_of(n, 2);
    for (int64_t i = 0; i < s->q.len; i += test_range(&rng, 1, 60)) {
      int64_t off = s->p.has_q_off ? s->p.q_off : n - s->q.len,
              sees = s->p.causal ? i + off + 1 : n;
      int selected = s->pick[0] == i || s->pick[1] == i || s->pick[2] == i;
      bag_empty(&a);
      for (int64_t j = 0; j < sees; j++)
        bag_add(&a, selected ? dot_rows(&s->q, &s->k, 0, 0, i, j) / sqrt(3.0) : 0, &s->v, 0, 0, j);
      bag_close(&a);
      bag_check(&a, &s->o, NULL, 0, 0, i, 2e-6, "long");
    }
  }
}

void F2_chain(void **state) {
  (void)state;
  test_rng rng = test_seed(805);
  for (int t = 0; t < 6; t++) {
    subset_shape x = subset_plain(4, 80, 60, 7, 8);
    x.batch = 2, x.k_heads = 2, x.v_heads = 1;
    if (t == 5) x.type = ATTN_BF16;
    scene *s = build(&x, &rng);
    s->p.factor = 2, s->p.seed = 5, s->p.causal = t % 2;
    if (t / 2 == 1) lengths(s, &rng);
    int64_t rows = attn_probsparse_rows(80, &s->p);
    int32_t *pick = test_mem((size_t)(8 * rows) * sizeof *pick);
    attn_tensor m = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, 80, 1);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_probsparse_measure(m, s->q, s->k, &s->p, &ctx), ATTN_OK);
    assert_int_equal(attn_probsparse_select(pick, m, &s->p, &ctx), ATTN_OK);
    s->pick = pick;
    promise_run(&s->does);
    check(s, 2e-6, "chain");
    attn_tensor two = test_tensor(s->o.dtype, TEST_BHTD, 2, 4, 80, 8);
    test_copy(two, s->o);
    s->pick = NULL;
    promise_run(&s->does);
    test_assert_same(s->o, two, "chain");
    if (t % 2) promise_keep(&s->does);
  }
}

/* Without keys k and v may be null, whatever their strides: zeros (offsets from null are for UBSan). */
void F2_no_keys(void **state) {
  (void)state;
  test_rng rng = test_seed(807);
  subset_shape x = subset_plain(2, 20, 1, 6, 7);
  scene *s = build(&x, &rng);
  attn_ctx ctx = test_ctx();
  attn_tensor m = test_tensor(ATTN_F32, TEST_BHTD, s->q.batch, 2, 20, 1);
  s->k.len = s->v.len = 0, s->k.data = s->v.data = NULL;
  s->k.stride_head = s->v.stride_head = 64;
  assert_int_equal(attn_probsparse_measure(m, s->q, s->k, &s->p, &ctx), ATTN_OK);
  promise_run(&s->does);
  for (int64_t i = 0; i < 20; i++) {
    assert_true(oracle_get(&m, 0, 1, i, 0) == 0);
    assert_true(oracle_get(&s->o, 0, 1, i, 6) == 0);
  }
}

/* An item is what it is when its tensors end where it does. */
void F2_lengths(void **state) {
  (void)state;
  test_rng rng = test_seed(806);
  for (int t = 0; t < 4; t++) {
    subset_shape x = subset_plain(2, 50, 70, 6, 7);
    x.batch = 2;
    scene *s = build(&x, &rng);
    lengths(s, &rng);
    s->p.factor = 1, s->p.causal = t % 2;
    s->p.has_q_off = t / 2, s->p.q_off = t / 2 ? 13 : 0;
    promise_run(&s->does);
    for (int64_t b = 0; b < 2; b++) {
      int64_t n = s->p.q_len[b], nk = s->p.kv_len[b];
      scene one = *s;
      one.p.q_len = one.p.kv_len = NULL;
      one.p.has_q_off = 1, one.p.q_off = t / 2 ? 13 : 20;
      one.q = test_rows(test_one(s->q, b, 1, 0, 2), 0, n);
      one.k = test_rows(test_one(s->k, b, 1, 0, 2), 0, nk);
      one.v = test_rows(test_one(s->v, b, 1, 0, 2), 0, nk);
      one.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, n, 7);
      one.does.scene = &one;
      promise_run(&one.does);
      test_assert_same(test_rows(test_one(s->o, b, 1, 0, 2), 0, n), one.o, "cut tensors");
      for (int64_t i = n; i < 50; i++) assert_true(oracle_get(&s->o, b, 1, i, 3) == 0);
    }
  }
}

void F2_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(807);
  for (int causal = 0; causal < 2; causal++) {
    subset_shape x = subset_plain(4, 83, 90, 8, 9);
    x.k_heads = 2, x.v_heads = 2;
    scene *s = build(&x, &rng);
    attn_ctx ctx = test_ctx();
    attn_tensor want = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, 83, 9);
    attn_sdpa_params p;
    memset(&p, 0, sizeof p);
    p.causal = s->p.causal = causal, p.one_order = 1;
    /* all rows selected: attention as it is, bit for bit */
    s->p.has_rows = 1, s->p.rows = 1000;
    promise_run(&s->does);
    assert_int_equal(attn_sdpa(want, s->q, s->k, s->v, &p, &ctx), ATTN_OK);
    test_assert_same(s->o, want, "all rows");
    /* the selection does not change with the size of queries */
    s->p.has_rows = 0, s->p.rows = 0;
    int64_t rows = attn_probsparse_rows(83, &s->p);
    attn_tensor m = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, 83, 1);
    int32_t *a = test_mem((size_t)(4 * rows) * sizeof *a);
    int32_t *b = test_mem((size_t)(4 * rows) * sizeof *b);
    assert_int_equal(attn_probsparse_measure(m, s->q, s->k, &s->p, &ctx), ATTN_OK);
    assert_int_equal(attn_probsparse_select(a, m, &s->p, &ctx), ATTN_OK);
    attn_tensor large = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, 83, 8);
    for (int64_t r = 0; r < 4 * 83; r++)
      for (int64_t c = 0; c < 8; c++)
        oracle_set(&large, 0, r / 83, r % 83, c, 16 * oracle_get(&s->q, 0, r / 83, r % 83, c));
    assert_int_equal(attn_probsparse_measure(m, large, s->k, &s->p, &ctx), ATTN_OK);
    assert_int_equal(attn_probsparse_select(b, m, &s->p, &ctx), ATTN_OK);
    assert_memory_equal(a, b, (size_t)(4 * rows) * sizeof *a);
    /* other rows are alike without a mask */
    promise_run(&s->does);
    for (int64_t h = 0; h < 4 && !causal; h++) {
      int64_t first = -1;
      for (int64_t i = 0; i < 83; i++) {
        int selected = 0;
        for (int64_t r = 0; r < rows; r++) selected |= a[h * rows + r] == i;
        if (selected) continue;
        if (first < 0) first = i;
        attn_tensor one = test_one(s->o, 0, 1, h, 1);
        assert_true(test_same(test_rows(one, i, 1), test_rows(one, first, 1)));
      }
      assert_true(first >= 0);
    }
    test_fill_value(s->v, -1.75), test_fill_value(want, -1.75);
    promise_run(&s->does);
    test_assert_near(s->o, want, 1e-6, "constant values");
  }
}

void F2_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(808);
  attn_ctx ctx = test_ctx();
  for (int causal = 0; causal < 2; causal++) {
    subset_shape x = subset_plain(2, 7, 0, 4, 5);
    scene *s = build(&x, &rng);
    s->p.causal = causal;
    promise_run(&s->does); /* no keys */
    for (int64_t r = 0; r < 14; r++) assert_true(oracle_get(&s->o, 0, r / 7, r % 7, 4) == 0);
    attn_tensor m = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 7, 1);
    assert_int_equal(attn_probsparse_measure(m, s->q, s->k, &s->p, &ctx), ATTN_OK);
    for (int64_t r = 0; r < 14; r++) assert_true(oracle_get(&m, 0, r / 7, r % 7, 0) == 0);
    s->q.len = s->o.len = 0;
    promise_run(&s->does);
    assert_int_equal(ask(s, &ctx), 0);
    s = build(&x, &rng);
    s->q.batch = s->k.batch = s->v.batch = s->o.batch = 0;
    promise_run(&s->does);
    x = subset_plain(1, 1, 1, 1, 1);
    s = build(&x, &rng);
    s->p.causal = causal;
    promise_run(&s->does);
    test_assert_near(s->o, s->v, 1e-6, "one key");
    /* no row selected */
    x = subset_plain(2, 30, 40, 4, 5);
    s = build(&x, &rng);
    s->p.causal = causal, s->p.has_rows = 1;
    promise_run(&s->does);
    any_pick(s, &rng);
    check(s, 2e-6, "none selected");
    promise_run(&s->does);
    check(s, 2e-6, "none selected, given");
    assert_int_equal(attn_probsparse_select(NULL, m, &s->p, &ctx), ATTN_OK);
    /* selected rows that see nothing */
    s->p.has_q_off = 1, s->p.q_off = -10, s->p.rows = 30;
    any_pick(s, &rng);
    promise_run(&s->does);
    check(s, 2e-6, "rows before the keys");
  }
}

/* NaN anywhere: no access out of bounds; what a row must not see does not reach it. */
void F2_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(809);
  for (int t = 0; t < 4; t++) {
    subset_shape x = subset_plain(2, 40, 40, 6, 5);
    scene *s = build(&x, &rng);
    s->p.causal = 1, s->p.factor = 2;
    any_pick(s, &rng);
    test_fill_row(t == 0 ? s->q : t == 1 ? s->k : s->v, 0, 1, 12, (double)NAN);
    promise_run(&s->does);
    int64_t rows = attn_probsparse_rows(40, &s->p);
    for (int64_t i = 0; i < 40; i++) {
      int selected = 0;
      for (int64_t r = 0; r < rows; r++) selected |= s->pick[rows + r] == i;
      int want = t == 0 ? selected && i == 12 : t == 1 ? selected && i >= 12 : i >= 12;
      assert_int_equal(isnan(oracle_get(&s->o, 0, 1, i, 2)), want);
      assert_int_equal(isnan(oracle_get(&s->o, 0, 0, i, 2)), 0);
    }
    s->pick = NULL;
    promise_run(&s->does);
  }
}

/* ---- promises -------------------------------------------------------------------------------*/

typedef struct measured {
  attn_tensor m, q, k, pick; /* pick: numbers seen as floats */
  int select;
  attn_probsparse_params p;
  promise does;
} measured;

static attn_status call_part(void *at, attn_ctx *ctx) {
  measured *s = at;
  return s->select ? attn_probsparse_select(s->pick.data, s->m, &s->p, ctx)
                   : attn_probsparse_measure(s->m, s->q, s->k, &s->p, ctx);
}
static size_t ask_part(void *at, const attn_ctx *ctx) {
  measured *s = at;
  return s->select ? attn_probsparse_select_workspace(s->pick.data, s->m, &s->p, ctx)
                   : attn_probsparse_measure_workspace(s->m, s->q, s->k, &s->p, ctx);
}

static measured *build_part(int select, test_rng *rng) {
  measured *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->select = select, s->p.factor = 2;
  s->q = drawn(ATTN_F16, TEST_BTHD, 2, 4, 90, 7, 1, rng);
  s->k = drawn(ATTN_F32, TEST_PADDED, 2, 2, 130, 7, 1, rng);
  if (select) {
    s->m = drawn(ATTN_F32, TEST_PADDED, 2, 4, 90, 1, 1, rng);
    s->pick =
        output(ATTN_F32, TEST_BHTD, 2, 4, attn_probsparse_rows(90, &s->p), 1, &s->does.block[0]);
  } else {
    s->m = output(ATTN_F32, TEST_PADDED, 2, 4, 90, 1, &s->does.block[0]);
  }
  s->does.call = call_part, s->does.ask = ask_part, s->does.scene = s;
  s->does.out[0] = select ? &s->pick : &s->m;
  return s;
}

void F2_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(810);
  promise_keep(&build_part(0, &rng)->does);
  promise_keep(&build_part(1, &rng)->does);
  for (int t = 0; t < 4; t++) {
    subset_shape x = subset_plain(4, 200, 140, 8, 6);
    x.k_heads = x.v_heads = 2, x.type = t / 2 ? ATTN_F16 : ATTN_F32;
    scene *s = build(&x, &rng);
    s->p.causal = t % 2;
    any_pick(s, &rng);
    promise_keep(&s->does);
  }
}

void F2_reject(void **state) {
  (void)state;
  test_rng rng = test_seed(811);
  subset_shape x = subset_plain(4, 16, 9, 5, 7);
  x.batch = 2;
  scene *s = build(&x, &rng), was;
  s->p.has_rows = 1, s->p.rows = 4;
  any_pick(s, &rng);
  was = *s;
  int32_t bad[32], less[2] = {-1, 6}, more[2] = {6, 17}, cut[2] = {16, 10};
#define REJECTED(change, status, word)      \
  do {                                      \
    memcpy(bad, was.pick, sizeof bad);      \
    change;                                 \
    promise_reject(&s->does, status, word); \
    *s = was;                               \
  } while (0)
  REJECTED(s->p.factor = -1, ATTN_E_SHAPE, "factor");
  REJECTED(s->p.rows = -1, ATTN_E_SHAPE, "rows");
  REJECTED(s->p.has_rows = 0, ATTN_E_RANGE, "has_rows");
  REJECTED(s->p.q_off = 1, ATTN_E_RANGE, "has_q_off");
  REJECTED((s->p.has_q_off = 1, s->p.q_off = INT64_MIN), ATTN_E_RANGE, "q_off");
  REJECTED(s->p.scale = (float)NAN, ATTN_E_VALUE, "scale");
  REJECTED(s->p.q_len = less, ATTN_E_RANGE, "q_len");
  REJECTED(s->p.q_len = more, ATTN_E_RANGE, "q_len");
  REJECTED(s->p.kv_len = less, ATTN_E_RANGE, "kv_len");
  REJECTED(s->p.kv_len = more, ATTN_E_RANGE, "kv_len");
  REJECTED((bad[31] = 16, s->pick = bad), ATTN_E_INDEX, "selection");
  REJECTED((bad[0] = -1, s->pick = bad), ATTN_E_INDEX, "selection");
  REJECTED((bad[17] = INT32_MIN, s->pick = bad), ATTN_E_INDEX, "selection");
  REJECTED((bad[7] = bad[4], s->pick = bad), ATTN_E_INDEX, "selection");
  REJECTED((bad[20] = 12, bad[21] = 0, bad[22] = 1, bad[23] = 2, s->p.q_len = cut, s->pick = bad),
           ATTN_E_INDEX, "selection");
  REJECTED(s->k.heads = 3, ATTN_E_HEADS, "k must");
  REJECTED(s->v.heads = 3, ATTN_E_HEADS, "v must");
  REJECTED(s->k.batch = 1, ATTN_E_SHAPE, "k must");
  REJECTED(s->k.dim = 4, ATTN_E_SHAPE, "k must");
  REJECTED(s->v.len = 8, ATTN_E_SHAPE, "v must");
  REJECTED(s->o.dim = 6, ATTN_E_SHAPE, "o must");
  REJECTED(s->o.len = 5, ATTN_E_SHAPE, "o must");
  REJECTED(s->q.heads = 0, ATTN_E_SHAPE, "heads");
  REJECTED(s->q.data = NULL, ATTN_E_NULL, "q.data");
  REJECTED(s->k.data = NULL, ATTN_E_NULL, "k.data");
  REJECTED(s->v.data = NULL, ATTN_E_NULL, "v.data");
  REJECTED(s->o.data = NULL, ATTN_E_NULL, "o.data");
  REJECTED(s->v.dtype = ATTN_E4M3, ATTN_E_DTYPE, "v.dtype");
  REJECTED(s->o.stride_len = 2, ATTN_E_STRIDE, "o ");
  REJECTED(s->v.data = s->o.data, ATTN_E_OVERLAP, "o ");
  REJECTED(s->pick = s->o.data, ATTN_E_OVERLAP, "o ");
  REJECTED(s->p.kv_len = s->o.data, ATTN_E_OVERLAP, "o ");
  REJECTED(s->pick = (const int32_t *)(const void *)((const char *)s->pick + 2), ATTN_E_ALIGN,
           "selection");
#undef REJECTED
  for (int select = 0; select < 2; select++) {
    measured *t = build_part(select, &rng), then = *t;
#define REJECTED(change, status, word)      \
  do {                                      \
    change;                                 \
    promise_reject(&t->does, status, word); \
    *t = then;                              \
  } while (0)
    REJECTED(t->p.factor = -3, ATTN_E_SHAPE, "factor");
    REJECTED(t->p.q_len = less, ATTN_E_RANGE, "q_len");
    REJECTED(t->m.dim = 2, ATTN_E_SHAPE, "m must");
    REJECTED(t->m.dtype = ATTN_F16, ATTN_E_DTYPE, "m ");
    REJECTED(t->m.data = NULL, ATTN_E_NULL, "m.data");
    if (select) {
      REJECTED(t->pick.data = NULL, ATTN_E_NULL, "selection");
      REJECTED(t->m.data = t->pick.data, ATTN_E_OVERLAP, "selection");
      REJECTED(t->m.heads = 0, ATTN_E_SHAPE, "heads");
    } else {
      REJECTED(t->m.len = 89, ATTN_E_SHAPE, "m must");
      REJECTED(t->k.heads = 3, ATTN_E_HEADS, "k must");
      REJECTED(t->k.data = t->m.data, ATTN_E_OVERLAP, "m ");
      REJECTED(t->p.q_len = t->m.data, ATTN_E_OVERLAP, "m ");
      REJECTED(t->p.kv_len = less, ATTN_E_RANGE, "kv_len");
    }
#undef REJECTED
  }
}
