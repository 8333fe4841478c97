/* tests/families/selection/test_eviction.c owns what a cache forgets: scores and sums against float64, choices by their
 * definition, rows that move in every storage type, and decoding behind it. */

#include <math.h>
#include <stdlib.h>

#include "compound.h"

/* c_j: the weights of rows from .. of all heads of key head hk, ends aligned. */
static void column_sums(double *c, attn_tensor q, attn_tensor k, int64_t b, int64_t hk,
                        int64_t from, int64_t rows, int64_t keys, double scale) {
  const int64_t group = q.heads / k.heads;
  double *w = calloc((size_t)keys + 1, sizeof *w);
  for (int64_t j = 0; j < keys; j++) c[j] = 0;
  for (int64_t h = hk * group; h < (hk + 1) * group; h++)
    for (int64_t i = from < 0 ? 0 : from; i < rows; i++) {
      double most = -INFINITY, sum = 0;
      const int64_t n = i + keys - rows + 1;
      for (int64_t j = 0; j < n; j++) {
        w[j] = 0;
        for (int64_t x = 0; x < q.dim; x++)
          w[j] += oracle_get(&q, b, h, i, x) * oracle_get(&k, b, hk, j, x) * scale;
        most = w[j] > most ? w[j] : most;
      }
      for (int64_t j = 0; j < n; j++) sum += exp(w[j] - most);
      for (int64_t j = 0; j < n; j++) c[j] += exp(w[j] - most) / sum;
    }
  free(w);
}

static void snapkv_case(test_rng *rng, int64_t n) {
  const int64_t hk = test_range(rng, 1, 2), h = hk * test_range(rng, 1, 3),
                b = test_range(rng, 1, 2);
  const int64_t tk = test_range(rng, 1, n % 4 == 0 ? 300 : 90), dk = test_range(rng, 1, 17);
  const int64_t tq = n % 3 ? tk : test_range(rng, 1, tk < 70 ? tk : 70);
  const int64_t window = n % 4 == 0 ? 64 : test_range(rng, 1, 40);
  const int64_t kernel = n % 4 == 0 ? 5 : 2 * test_range(rng, 0, 4) + 1;
  const attn_dtype type = (attn_dtype)(n % 3);
  attn_tensor q = test_tensor(type, (test_layout)(n % 4), b, h, tq, dk);
  attn_tensor k = test_tensor((attn_dtype)(n / 3 % 3), (test_layout)(n / 2 % 4), b, hk, tk, dk);
  attn_tensor scores = test_tensor(ATTN_F32, TEST_PADDED, b, hk, tk, 1);
  attn_tensor again = test_tensor(ATTN_F32, TEST_PADDED, b, hk, tk, 1);
  int32_t q_len[2], kv_len[2];
  double *c = test_mem((size_t)tk * sizeof *c);
  attn_snapkv_params p = {0};
  attn_ctx ctx = test_ctx();
  test_fill(q, rng, test_normal), test_fill(k, rng, test_normal);
  if (n % 4) p.window = window, p.kernel = kernel;
  p.maximum = n % 2 == 1, p.scale = n % 5 == 0 ? 0.4f : 0;
  for (int x = 0; x < 2; x++) {
    kv_len[x] = (int32_t)(n % 5 == 2 ? test_range(rng, 0, tk) : tk);
    q_len[x] = (int32_t)(n % 5 == 2 ? (kv_len[x] < tq ? kv_len[x] : tq) : tq);
    for (int64_t e = 0; x < b && e < hk; e++)
      for (int64_t j = kv_len[x]; j < tk; j++) test_fill_row(k, x, e, j, (double)NAN);
  }
  if (n % 5 == 2) p.q_len = q_len, p.kv_len = kv_len;
  if (attn_snapkv(scores, q, k, &p, &ctx)) fail_msg("%s", ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
  for (int64_t unit = 0; unit < b * hk; unit++) {
    const int64_t e = unit / hk, g = unit % hk, judged = kv_len[e] - window;
    column_sums(c, q, k, e, g, q_len[e] - window, q_len[e], kv_len[e],
                n % 5 == 0 ? (double)0.4f : 1 / sqrt((double)dk));
    for (int64_t j = 0; j < tk; j++) {
      double want = 0, have = oracle_get(&scores, e, g, j, 0);
      for (int64_t i = j - kernel / 2; j < judged && i <= j + kernel / 2; i++)
        if (i >= 0 && i < judged) want = n % 2 ? fmax(want, c[i]) : want + c[i] / (double)kernel;
      if (!(fabs(have - want) <= 2e-5 * want))
        fail_msg("case %d: score %d is %g, want %g", (int)n, (int)j, have, want);
    }
  }
  ctx = test_ctx(), ctx.workers = 3, ctx.parallel_for = test_parallel_threads;
  ctx.workspace_size = attn_snapkv_workspace(again, q, k, &p, &ctx);
  ctx.workspace = test_mem(ctx.workspace_size);
  assert_int_equal(attn_snapkv(again, q, k, &p, &ctx), ATTN_OK);
  assert_true(test_same(again, scores));
}

void M3_snapkv(void **state) {
  (void)state;
  test_rng rng = test_seed(30200);
  for (int64_t n = 0; n < test_count(60, 20); n++, test_mem_release()) snapkv_case(&rng, n);
}

/* At once, in chunks, token by token: sums are those of the map; they grow with their calls, not with the error. */
void M3_h2o(void **state) {
  (void)state;
  test_rng rng = test_seed(30201);
  for (int64_t n = 0; n < test_count(12, 6); n++, test_mem_release()) {
    const int64_t hk = test_range(&rng, 1, 2), h = hk * test_range(&rng, 1, 3),
                  dk = test_range(&rng, 1, 17);
    const int64_t t = n % 3 == 0 ? 190 : test_range(&rng, 1, 70);
    attn_tensor q = test_tensor((attn_dtype)(n % 3), TEST_BTHD, 1, h, t, dk);
    attn_tensor k = test_tensor((attn_dtype)(n / 2 % 3), TEST_BHTD, 1, hk, t, dk);
    attn_tensor sums = test_tensor(ATTN_F32, TEST_PADDED, 1, hk, t, 2);
    double *c = test_mem((size_t)t * sizeof *c);
    test_fill(q, &rng, test_normal), test_fill(k, &rng, test_normal), test_fill_value(sums, 0);
    for (int64_t i = 0, m; i < t; i += m) {
      attn_ctx ctx = test_ctx();
      m = n % 4 == 0 ? t : n % 4 == 1 ? 1 : test_range(&rng, 1, 67);
      m = i + m > t ? t - i : m;
      attn_tensor to = sums;
      to.len = i + m;
      if (attn_h2o(to, test_rows(q, i, m), test_rows(k, 0, i + m), NULL, &ctx))
        fail_msg("%s", ctx.reason);
      assert_int_equal(ctx.report.isa, test_isa);
    }
    for (int64_t g = 0; g < hk; g++) {
      column_sums(c, q, k, 0, g, 0, t, t, 1 / sqrt((double)dk));
      for (int64_t j = 0; j < t; j++)
        if (!(fabs(oracle_get(&sums, 0, g, j, 0) + oracle_get(&sums, 0, g, j, 1) - c[j]) <
              5e-6 * (c[j] + 1e-3)))
          fail_msg("case %d: sum %d", (int)n, (int)j);
    }
  }
  /* small weights beside a large sum */
  const int t = 40, calls = 300;
  attn_tensor q = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, 8),
              k = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, t, 8);
  attn_tensor sums = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, t, 2);
  double c[40];
  attn_ctx ctx = test_ctx();
  test_fill(q, &rng, test_normal), test_fill(k, &rng, test_normal), test_fill_value(sums, 0);
  for (int64_t j = 0; j < t; j++) oracle_set(&sums, 0, 0, j, 0, 65536);
  for (int64_t i = 0; i < calls; i++) assert_int_equal(attn_h2o(sums, q, k, NULL, &ctx), ATTN_OK);
  column_sums(c, q, k, 0, 0, 0, 1, t, 1 / sqrt(8.0));
  for (int64_t j = 0; j < t; j++)
    assert_true(fabs(oracle_get(&sums, 0, 0, j, 0) - 65536 + oracle_get(&sums, 0, 0, j, 1) -
                     calls * c[j]) < 1e-5 * calls * c[j] + 1e-6);
}

typedef struct sums_scene {
  attn_tensor q, k, was, live, got; /* sums before a call, its own, and what it has made of them */
  int32_t q_len[2], kv_len[2];
  attn_h2o_params p;
} sums_scene;

static sums_scene sums_of(test_rng *rng, int64_t n) {
  sums_scene s;
  const int64_t hk = test_range(rng, 1, 2), h = hk * test_range(rng, 1, 3);
  const int64_t tk = test_range(rng, 1, n % 4 == 0 ? 300 : 90), dk = test_range(rng, 1, 17);
  const int64_t tq = n % 3 ? test_range(rng, 1, tk) : tk;
  memset(&s, 0, sizeof s);
  s.q = drawn((attn_dtype)(n % 3), (test_layout)(n % 4), 2, h, tq, dk, 1, rng);
  s.k = drawn((attn_dtype)(n / 3 % 3), (test_layout)(n / 2 % 4), 2, hk, tk, dk, 1, rng);
  s.was = drawn(ATTN_F32, TEST_BHTD, 2, hk, tk, 2, 0, rng);
  s.live = test_tensor(ATTN_F32, TEST_PADDED, 2, hk, tk, 2);
  s.got = test_tensor(ATTN_F32, TEST_BHTD, 2, hk, tk, 2);
  for (int64_t x = 0; x < 2 * hk * tk; x++) /* sums and what they have rounded off */
    oracle_set(&s.was, x / tk / hk, x / tk % hk, x % tk, 0, (double)(float)test_range(rng, 0, 9)),
        oracle_set(&s.was, x / tk / hk, x / tk % hk, x % tk, 1, 1e-8 * (double)(x % 7));
  for (int b = 0; b < 2; b++) {
    s.kv_len[b] = (int32_t)test_range(rng, 0, tk), s.q_len[b] = (int32_t)test_range(rng, 0, tq);
    for (int64_t g = 0; g < hk; g++)
      for (int64_t j = s.kv_len[b]; j < tk; j++) {
        test_fill_row(s.k, b, g, j, (double)NAN), oracle_set(&s.was, b, g, j, 0, (double)-0.0f);
        oracle_set(&s.was, b, g, j, 1, 3e-3);
      }
    for (int64_t g = 0; g < h; g++)
      for (int64_t i = s.q_len[b]; i < tq; i++) test_fill_row(s.q, b, g, i, (double)NAN);
  }
  s.p.scale = n % 5 == 0 ? 0.4f : n % 5 == 1 ? ATTN_ZERO : 0;
  return s;
}

static attn_status sums_call(void *scene, attn_ctx *ctx) {
  sums_scene *s = scene;
  s->p.q_len = s->q_len, s->p.kv_len = s->kv_len;
  test_copy(s->live, s->was);
  const attn_status status = attn_h2o(s->live, s->q, s->k, &s->p, ctx);
  if (status == ATTN_OK)
    test_copy(s->got, s->live);
  else
    test_assert_same(s->live, s->was, "sums of a rejected call");
  return status;
}
static size_t sums_ask(void *scene, const attn_ctx *ctx) {
  sums_scene *s = scene;
  s->p.q_len = s->q_len, s->p.kv_len = s->kv_len;
  return attn_h2o_workspace(s->live, s->q, s->k, &s->p, ctx);
}

/* Lengths, also of more rows than keys, and a scale; sums behind the keys keep their bits, and NaN there is not read. */
void M3_h2o_lengths(void **state) {
  (void)state;
  test_rng rng = test_seed(30207);
  for (int64_t n = 0; n < test_count(60, 20); n++, test_mem_release()) {
    sums_scene s = sums_of(&rng, n);
    const int64_t hk = s.k.heads, tk = s.k.len;
    const double scale = n % 5 == 0 ? (double)0.4f : n % 5 == 1 ? 0 : 1 / sqrt((double)s.q.dim);
    double *c = test_mem((size_t)tk * sizeof *c);
    attn_ctx ctx = test_ctx();
    if (sums_call(&s, &ctx)) fail_msg("%s", ctx.reason);
    assert_int_equal(ctx.report.isa, test_isa);
    int64_t pairs = 0;
    for (int64_t unit = 0; unit < 2 * hk; unit++) {
      const int64_t b = unit / hk, g = unit % hk, keys = s.kv_len[b], rows = s.q_len[b];
      for (int64_t i = 0; i < rows; i++)
        if (i + keys - rows >= 0) pairs += s.q.heads / hk * (i + keys - rows + 1);
      column_sums(c, s.q, s.k, b, g, 0, rows, keys, scale);
      for (int64_t j = 0; j < tk; j++) {
        const double was = oracle_get(&s.was, b, g, j, 0), rest = oracle_get(&s.was, b, g, j, 1);
        const double sum = oracle_get(&s.got, b, g, j, 0), off = oracle_get(&s.got, b, g, j, 1);
        if (j >= keys)
          assert_true(sum == was && signbit(sum) && off == rest);
        else if (!(fabs(sum + off - was - rest - c[j]) <= 5e-6 * c[j] + 1e-13 * (1 + was)))
          fail_msg("case %d: sum %d is %.9g, want %.9g", (int)n, (int)j, sum + off,
                   was + rest + c[j]);
      }
    }
    assert_true(ctx.report.pairs >= pairs); /* beside the corners of tiles */
    assert_true(ctx.report.pairs <= pairs + 63 * s.q.heads * (s.q_len[0] + s.q_len[1]));
  }
}

/* NaN in a row is in the sums of the keys that it sees, in a key in those of all keys of the rows that see it; in no
 * other head or entry. */
void M3_h2o_nan(void **state) {
  (void)state;
  enum { TQ = 70, T = 100 };
  test_rng rng = test_seed(30208);
  for (int n = 0; n < 8; n++, test_mem_release()) {
    static const int64_t at[] = {0, 33, 69, 5, 0, 40, 98, 99};
    attn_tensor q = drawn(ATTN_F32, TEST_BTHD, 2, 4, TQ, 9, 1, &rng),
                k = drawn(ATTN_F32, TEST_PADDED, 2, 2, T, 9, 1, &rng);
    attn_tensor clean = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, T, 2),
                got = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, T, 2);
    attn_ctx ctx = test_ctx();
    test_fill_value(clean, 0), test_fill_value(got, 0);
    assert_int_equal(attn_h2o(clean, q, k, NULL, &ctx), ATTN_OK);
    test_fill_row(n < 4 ? q : k, 1, n < 4 ? 2 : 1, at[n], (double)NAN);
    assert_int_equal(attn_h2o(got, q, k, NULL, &ctx), ATTN_OK);
    for (int64_t x = 0; x < 4 * T; x++) {
      const double y = oracle_get(&got, x / T / 2, x / T % 2, x % T, 0);
      if (x / T == 3 && (n > 3 || x % T <= at[n] + T - TQ))
        assert_true(isnan(y));
      else
        assert_true(y == oracle_get(&clean, x / T / 2, x / T % 2, x % T, 0));
    }
  }
}

/* The same bits for any workers, in the memory asked for. */
void M3_h2o_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(30209);
  for (int64_t n = 0; n < 4; n++, test_mem_release()) {
    sums_scene s = sums_of(&rng, n);
    s.kv_len[0] = (int32_t)s.k.len, s.q_len[0] = (int32_t)s.q.len;
    promise p = {sums_call, sums_ask, &s, {&s.got}, {{0}}, 0};
    promise_keep(&p);
  }
}

/* The last, and of the others the best, equal ones from below; -1 behind. */
void M3_evict_choose(void **state) {
  (void)state;
  test_rng rng = test_seed(30202);
  for (int64_t n = 0; n < test_count(80, 30); n++, test_mem_release()) {
    const int64_t b = test_range(&rng, 1, 2), h = test_range(&rng, 1, 3);
    const int64_t t = test_range(&rng, 0, n % 4 == 0 ? 900 : 60), width = test_range(&rng, 1, 2);
    attn_evict_choose_params p = {0};
    if (n % 4) p.capacity = test_range(&rng, 1, 40), p.has_recent = 1;
    if (n % 4) p.recent = test_range(&rng, 0, p.capacity - 1);
    const int64_t capacity = n % 4 ? p.capacity : 320, recent = n % 4 ? p.recent : 64;
    int32_t len[2] = {(int32_t)test_range(&rng, 0, t), (int32_t)t};
    attn_tensor scores = test_tensor(ATTN_F32, (test_layout)(n % 4), b, h, t, width);
    int32_t *kept = test_mem((size_t)(b * h * capacity) * 4);
    attn_ctx ctx = test_ctx();
    for (int64_t x = 0; x < b * h * t; x++) /* many ties; NaN is the worst */
      oracle_set(&scores, x / t / h, x / t % h, x % t, 0,
                 test_range(&rng, 0, 20) ? (double)test_range(&rng, -3, 9) : (double)NAN);
    p.kv_len = n % 3 ? NULL : len;
    if (n % 2) ctx.workers = 3, ctx.parallel_for = test_parallel_threads;
    ctx.workspace_size = attn_evict_choose_workspace(kept, scores, &p, &ctx);
    ctx.workspace = test_mem(ctx.workspace_size + 1);
    if (attn_evict_choose(kept, scores, &p, &ctx)) fail_msg("%s", ctx.reason);
    assert_int_equal(ctx.report.isa, test_isa);
    for (int64_t unit = 0; unit < b * h; unit++) {
      const int64_t keys = p.kv_len ? len[unit / h] : t, stay = keys < capacity ? keys : capacity;
      int64_t at = 0;
      for (int64_t j = 0; j < keys; j++) {
        const double x = oracle_get(&scores, unit / h, unit % h, j, 0);
        int64_t better = 0;
        for (int64_t i = 0; i < keys - recent; i++) {
          const double y = oracle_get(&scores, unit / h, unit % h, i, 0);
          better += y > x || (y == x && i < j) || (x != x && (y == y || i < j));
        }
        if (keys <= capacity || j >= keys - recent || better < capacity - recent)
          assert_int_equal(kept[unit * capacity + at++], j);
      }
      assert_int_equal(at, stay);
      for (; at < capacity; at++) assert_int_equal(kept[unit * capacity + at], -1);
    }
  }
}

/* Rows of every storage type, with scales, zeros, sums and positions, are those that were chosen, bit for bit, and what is
 * behind them stays. */
void M3_evict_moves(void **state) {
  (void)state;
  test_rng rng = test_seed(30203);
  static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_I8, ATTN_I4, ATTN_E4M3};
  for (int64_t n = 0; n < test_count(48, 24); n++, test_mem_release()) {
    const int64_t b = 2, h = 3, t = test_range(&rng, 1, 50), capacity = test_range(&rng, 1, 30);
    const int64_t dk = n % 2 ? 33 : 64, dv = 8;
    attn_evict_params p = {0};
    attn_tensor k, v = test_tensor(types[n % 3], TEST_BTHD, b, h, t, dv);
    attn_ctx ctx = test_ctx();
    int32_t *kept = test_mem((size_t)(b * h * capacity) * 4),
            *places = test_mem((size_t)(b * h * t) * 4);
    k = attn_bhtd(NULL, types[n % 6], b, h, t, dk + dk % 2);
    k.data = test_mem((size_t)(b * h * t * 68) * 4), k.dim = dk;
    for (int64_t x = 0; x < b * h * t * 68 * 4; x++)
      ((unsigned char *)k.data)[x] = (unsigned char)test_u64(&rng);
    if (k.dtype >= ATTN_I8) {
      p.k_scales =
          attn_scales_dense(test_mem((size_t)(b * h * t * 2) * 4), NULL, n % 4 ? 32 : 0, &k);
      if (k.dtype != ATTN_E4M3) p.k_scales.zero = test_mem((size_t)(b * h * t * 2) * 4);
      for (int64_t x = 0; x < b * h * t * p.k_scales.stride_len; x++) {
        p.k_scales.scale[x] = (float)x + 1;
        if (p.k_scales.zero) p.k_scales.zero[x] = (float)-x;
      }
    }
    test_fill(v, &rng, test_normal);
    p.more = test_tensor(ATTN_F32, TEST_NEGATIVE, b, h, t, 2), test_fill(p.more, &rng, test_normal);
    for (int64_t x = 0; x < b * h * t; x++) places[x] = (int32_t)(x % t * 3);
    p.positions = places;
    for (int64_t unit = 0; unit < b * h; unit++) {
      int64_t at = 0;
      for (int64_t j = 0; j < t && at < capacity; j++)
        if (test_range(&rng, 0, 2)) kept[unit * capacity + at++] = (int32_t)j;
      for (; at < capacity; at++) kept[unit * capacity + at] = -1;
    }
    const size_t row = (size_t)(k.dtype == ATTN_F32  ? 4 * dk
                                : k.dtype < ATTN_I8  ? 2 * dk
                                : k.dtype == ATTN_I4 ? (dk + 1) / 2
                                                     : dk);
    const int64_t step = (k.dtype == ATTN_F32 ? 4
                          : k.dtype < ATTN_I8 ? 2
                                              : 1) *
                         k.stride_len / (k.dtype == ATTN_I4 ? 2 : 1);
    unsigned char *was = test_mem((size_t)(b * h * t * step));
    memcpy(was, k.data, (size_t)(b * h * t * step));
    attn_tensor v_was = test_tensor(v.dtype, TEST_BHTD, b, h, t, dv),
                more = test_tensor(ATTN_F32, TEST_BHTD, b, h, t, 2);
    test_copy(v_was, v), test_copy(more, p.more);
    if (n % 2) ctx.workers = 3, ctx.parallel_for = test_parallel_threads;
    if (attn_evict(k, v, kept, capacity, &p, &ctx)) fail_msg("%s", ctx.reason);
    for (int64_t x = 0; x < b * h * t; x++) {
      const int64_t unit = x / t, r = x % t;
      const int32_t from = r < capacity ? kept[unit * capacity + r] : -1;
      const int64_t j = from < 0 ? r : from, y = unit * t + j;
      assert_memory_equal((unsigned char *)k.data + x * step, was + y * step, row);
      assert_int_equal(places[x], j * 3);
      for (int64_t c = 0; c < dv; c++)
        assert_true(oracle_get(&v, unit / h, unit % h, r, c) ==
                    oracle_get(&v_was, unit / h, unit % h, j, c));
      assert_true(oracle_get(&p.more, unit / h, unit % h, r, 1) ==
                  oracle_get(&more, unit / h, unit % h, j, 1));
      for (int64_t g = 0; g < p.k_scales.stride_len; g++) {
        assert_true(p.k_scales.scale[x * p.k_scales.stride_len + g] ==
                    (float)(y * p.k_scales.stride_len + g) + 1);
        if (p.k_scales.zero)
          assert_true(p.k_scales.zero[x * p.k_scales.stride_len + g] ==
                      (float)-(y * p.k_scales.stride_len + g));
      }
    }
  }
}

/* Keys of codes have the scores, and the sums, of what they stand for. */
void M3_snapkv_codes(void **state) {
  (void)state;
  static const attn_dtype types[] = {ATTN_I8, ATTN_I4, ATTN_E4M3};
  test_rng rng = test_seed(30204);
  const int64_t t = 150, d = 40;
  for (int n = 0; n < 6; n++, test_mem_release()) {
    attn_tensor q = drawn(ATTN_F32, TEST_BHTD, 1, 2, t, d, 1, &rng),
                k = drawn(ATTN_F32, TEST_BHTD, 1, 1, t, d, 1, &rng);
    attn_tensor codes = attn_bhtd(test_mem((size_t)(t * d)), types[n % 3], 1, 1, t, d);
    attn_tensor s[2][2];
    attn_h2o_params p = {0};
    attn_snapkv_params snap = {0};
    attn_ctx ctx = test_ctx();
    for (int x = 0; x < 4; x++) {
      s[x / 2][x % 2] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, t, 1 + x / 2);
      test_fill_value(s[x / 2][x % 2], 0);
    }
    p.k_scales = attn_scales_dense(test_mem((size_t)t * 8), NULL, n < 3 ? 32 : 0, &codes);
    snap.k_scales = p.k_scales, snap.window = 30;
    assert_int_equal(attn_quantize(codes, p.k_scales, k, &ctx), ATTN_OK);
    assert_int_equal(attn_dequantize(k, codes, p.k_scales, &ctx), ATTN_OK);
    assert_int_equal(attn_snapkv(s[0][0], q, codes, &snap, &ctx), ATTN_OK);
    assert_int_equal(attn_h2o(s[1][0], q, codes, &p, &ctx), ATTN_OK);
    snap.k_scales.scale = p.k_scales.scale = NULL;
    if (types[n % 3] != ATTN_E4M3) {
      assert_int_equal(attn_snapkv(s[0][1], q, codes, &snap, &ctx), ATTN_E_NULL);
      assert_int_equal(attn_h2o(s[1][1], q, codes, &p, &ctx), ATTN_E_NULL);
    }
    memset(&snap.k_scales, 0, sizeof snap.k_scales);
    assert_int_equal(attn_snapkv(s[0][1], q, k, &snap, &ctx), ATTN_OK);
    assert_int_equal(attn_h2o(s[1][1], q, k, NULL, &ctx), ATTN_OK);
    for (int x = 0; x < 2; x++) assert_true(test_same(s[x][0], s[x][1]));
    assert_true(oracle_get(&s[0][0], 0, 0, 9, 0) > 0 && oracle_get(&s[1][0], 0, 0, 9, 0) > 0);
  }
}

/* NaN in a query of the window, or in any key, is in all scores of its key head; one in an earlier query, or behind the
 * lengths, is nowhere. */
void M3_snapkv_nan(void **state) {
  (void)state;
  enum { T = 140, WINDOW = 20 };
  test_rng rng = test_seed(30206);
  for (int n = 0; n < 14; n++, test_mem_release()) {
    static const int64_t rows[] = {119, 120, 139, 130, 0, 119, 139};
    attn_tensor q = drawn(ATTN_F32, TEST_BTHD, 2, 4, T, 9, 1, &rng),
                k = drawn(ATTN_F32, TEST_PADDED, 2, 2, T, 9, 1, &rng);
    attn_tensor clean = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, T, 1),
                got = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, T, 1);
    attn_snapkv_params p = {0};
    attn_ctx ctx = test_ctx();
    const int which = n % 7, of_key = which > 2;
    p.window = WINDOW, p.maximum = n / 7;
    assert_int_equal(attn_snapkv(clean, q, k, &p, &ctx), ATTN_OK);
    test_fill_row(of_key ? k : q, 1, of_key ? 1 : 2, rows[which], (double)NAN);
    assert_int_equal(attn_snapkv(got, q, k, &p, &ctx), ATTN_OK);
    for (int64_t x = 0; x < 4 * T; x++) {
      const double y = oracle_get(&got, x / T / 2, x / T % 2, x % T, 0);
      if (which && x / T == 3 && x % T < T - WINDOW)
        assert_true(isnan(y));
      else
        assert_true(y == oracle_get(&clean, x / T / 2, x / T % 2, x % T, 0));
    }
  }
}

/* A prompt, rotated; what SnapKV leaves of it; then tokens that are decoded behind it, each at the position that it has in
 * the whole text. Attention over the rows left is attention over those keys where they stood; positions counted from the
 * rows left would give other results. Meanwhile H2O's sums and places move along. */
void M3_evict_then_decode(void **state) {
  (void)state;
  test_rng rng = test_seed(30205);
  enum { T = 150, MORE = 3, D = 16, KEEP = 40, ALL = T + MORE };
  attn_tensor q = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, ALL, D),
              k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, ALL, D);
  attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, ALL, D),
              o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 1, D);
  attn_tensor qr = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, ALL, D),
              kr = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, ALL, D);
  attn_tensor vc = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, ALL, D),
              masked = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 1, D);
  attn_tensor scores = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, 1),
              off = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 1, D);
  int32_t kept[2 * KEEP], places[2 * ALL];
  uint8_t seen[2 * ALL];
  attn_snapkv_params snap = {0};
  attn_evict_choose_params choose = {0};
  attn_evict_params move = {0};
  attn_rope_params rope = {0}, late = {0};
  attn_ctx ctx = test_ctx();
  test_fill(q, &rng, test_normal), test_fill(k, &rng, test_normal), test_fill(v, &rng, test_normal);
  assert_int_equal(attn_rope(qr, q, &rope, &ctx), ATTN_OK);
  assert_int_equal(attn_rope(kr, k, &rope, &ctx), ATTN_OK);
  attn_tensor whole =
      test_tensor(ATTN_F32, TEST_BHTD, 1, 2, ALL, D); /* what a full cache would hold */
  test_copy(whole, kr), test_copy(vc, v);
  for (int x = 0; x < 2 * ALL; x++) places[x] = x % ALL;
  snap.window = 8, choose.capacity = KEEP, choose.has_recent = 1, choose.recent = 8,
  move.positions = places;
  assert_int_equal(attn_snapkv(scores, test_rows(qr, 0, T), test_rows(kr, 0, T), &snap, &ctx),
                   ATTN_OK);
  assert_int_equal(attn_evict_choose(kept, scores, &choose, &ctx), ATTN_OK);
  assert_int_equal(attn_evict(kr, vc, kept, KEEP, &move, &ctx),
                   ATTN_OK); /* rows from T on are not there yet */
  memset(seen, 0, sizeof seen);
  for (int h = 0; h < 2; h++)
    for (int r = 0; r < KEEP; r++)
      seen[h * ALL + kept[h * KEEP + r]] = 1,
                                     assert_int_equal(places[h * ALL + r], kept[h * KEEP + r]);
  for (int64_t i = T; i < ALL; i++) {
    const int64_t row = KEEP + i - T; /* where the token's key goes; its position stays i */
    attn_sdpa_params dense = {0}, cut = {0};
    for (int64_t h = 0; h < 2; h++) {
      for (int64_t c = 0; c < D; c++) {
        oracle_set(&kr, 0, h, row, c, oracle_get(&whole, 0, h, i, c));
        oracle_set(&vc, 0, h, row, c, oracle_get(&v, 0, h, i, c));
      }
      seen[h * ALL + i] = 1;
    }
    cut.mask = attn_mask_bool(seen, 1, 2, 1, i + 1), cut.mask.stride_head = ALL;
    assert_int_equal(attn_sdpa(o, test_rows(qr, i, 1), test_rows(kr, 0, row + 1),
                               test_rows(vc, 0, row + 1), &dense, &ctx),
                     ATTN_OK);
    assert_int_equal(attn_sdpa(masked, test_rows(qr, i, 1), test_rows(whole, 0, i + 1),
                               test_rows(v, 0, i + 1), &cut, &ctx),
                     ATTN_OK);
    late.start = row; /* the trap */
    attn_tensor turned = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 1, D);
    assert_int_equal(attn_rope(turned, test_rows(q, i, 1), &late, &ctx), ATTN_OK);
    assert_int_equal(
        attn_sdpa(off, turned, test_rows(kr, 0, row + 1), test_rows(vc, 0, row + 1), &dense, &ctx),
        ATTN_OK);
    double near = 0, far = 0;
    for (int64_t x = 0; x < 2 * D; x++) {
      near = fmax(
          near, fabs(oracle_get(&o, 0, x / D, 0, x % D) - oracle_get(&masked, 0, x / D, 0, x % D)));
      far = fmax(far,
                 fabs(oracle_get(&o, 0, x / D, 0, x % D) - oracle_get(&off, 0, x / D, 0, x % D)));
    }
    assert_true(near < 2e-6 && far > 1e-2);
  }
}

typedef struct spoiled {
  attn_tensor s, q, k, v, more;
  int32_t *kept;
  attn_snapkv_params snap;
  attn_h2o_params h;
  attn_evict_choose_params c;
  attn_evict_params e;
  int64_t capacity;
  attn_ctx ctx;
} spoiled;

#define REJECTS(call, want, word, body)                                                        \
  {                                                                                            \
    spoiled s = good;                                                                          \
    body const attn_status status = call;                                                      \
    if (status != (want)) fail_msg("%s: status %d", #body, (int)status);                       \
    if (!s.ctx.reason || !strstr(s.ctx.reason, word)) fail_msg("%s: %s", #body, s.ctx.reason); \
    assert_memory_equal(bytes, copy, sizeof copy);                                             \
  }
#define SNAP(want, word, body) \
  REJECTS(attn_snapkv(s.s, s.q, s.k, &s.snap, &s.ctx), want, word, body)
#define H2O(want, word, body) REJECTS(attn_h2o(s.more, s.q, s.k, &s.h, &s.ctx), want, word, body)
#define CHOOSE(want, word, body) \
  REJECTS(attn_evict_choose(s.kept, s.s, &s.c, &s.ctx), want, word, body)
#define EVICT(want, word, body) \
  REJECTS(attn_evict(s.k, s.v, s.kept, s.capacity, &s.e, &s.ctx), want, word, body)

void M3_evict_rejects(void **state) {
  (void)state;
  enum { T = 12, D = 4 };
  float bytes[2 * T * D * 2 + 2 * T + 4 * T], copy[2 * T * D * 2 + 2 * T + 4 * T], q[4 * T * D];
  int32_t kept[2 * 5], len[1] = {13}, wrong[2 * 5] = {0, 1, 2, 3, 4, 0, 2, 2, 3, 4};
  spoiled good;
  memset(&good, 0, sizeof good);
  for (size_t x = 0; x < sizeof bytes / 4; x++) bytes[x] = copy[x] = (float)(x % 7);
  for (int x = 0; x < 4 * T * D; x++) q[x] = 1;
  for (int x = 0; x < 10; x++) kept[x] = x % 5 + 2;
  good.k = attn_bhtd(bytes, ATTN_F32, 1, 2, T, D),
  good.v = attn_bhtd(bytes + 2 * T * D, ATTN_F32, 1, 2, T, D);
  good.s = attn_bhtd(bytes + 4 * T * D, ATTN_F32, 1, 2, T, 1),
  good.q = attn_bhtd(q, ATTN_F32, 1, 4, T, D);
  good.e.more = attn_bhtd(bytes + 4 * T * D + 2 * T, ATTN_F32, 1, 2, T, 2);
  good.kept = kept, good.capacity = 5, good.c.capacity = 5, good.c.has_recent = 1,
  good.ctx = test_ctx();
  SNAP(ATTN_E_NULL, "scores", s.s.data = NULL;)
  SNAP(ATTN_E_SHAPE, "scores", s.s.dim = 2;)
  SNAP(ATTN_E_SHAPE, "scores", s.s.heads = 1;)
  SNAP(ATTN_E_HEADS, "k.heads", s.q.heads = 3;)
  SNAP(ATTN_E_SHAPE, "k must", s.k.dim = 3;)
  SNAP(ATTN_E_SHAPE, "kernel", s.snap.kernel = 4;)
  SNAP(ATTN_E_SHAPE, "kernel", s.snap.kernel = -1;)
  SNAP(ATTN_E_SHAPE, "window", s.snap.window = -1;)
  SNAP(ATTN_E_VALUE, "scale", s.snap.scale = INFINITY;)
  SNAP(ATTN_E_RANGE, "kv_len", s.snap.kv_len = len;)
  SNAP(ATTN_E_RANGE, "q_len", s.snap.q_len = len;)
  SNAP(ATTN_E_OVERLAP, "scores", s.s.data = s.k.data;)
  SNAP(ATTN_E_DTYPE, "k_scales", s.snap.k_scales.scale = q;)
  CHOOSE(ATTN_E_NULL, "kept", s.kept = NULL;)
  CHOOSE(ATTN_E_RANGE, "capacity", s.c.recent = 5;)
  CHOOSE(ATTN_E_RANGE, "capacity", s.c.recent = -1;)
  CHOOSE(ATTN_E_RANGE, "capacity", s.c.capacity = -3;)
  CHOOSE(ATTN_E_RANGE, "kv_len", s.c.kv_len = len;)
  CHOOSE(ATTN_E_DTYPE, "scores", s.s.dtype = ATTN_F16;)
  CHOOSE(ATTN_E_OVERLAP, "kept", s.kept = s.s.data;)
  EVICT(ATTN_E_NULL, "kept", s.kept = NULL;)
  EVICT(ATTN_E_INDEX, "kept", s.kept = wrong;)
  EVICT(ATTN_E_INDEX, "kept", s.kept = wrong; wrong[6] = 1; wrong[8] = -1;)
  EVICT(ATTN_E_INDEX, "kept", s.kept = wrong; wrong[8] = 3; wrong[9] = 12;)
  EVICT(ATTN_E_INDEX, "kept", s.kept = wrong; wrong[9] = -2;)
  EVICT(ATTN_E_RANGE, "capacity", s.capacity = 0;)
  EVICT(ATTN_E_SHAPE, "v must", s.v.len = 11;)
  EVICT(ATTN_E_SHAPE, "more", s.e.more.heads = 1;)
  EVICT(ATTN_E_OVERLAP, "k is", s.v.data = s.k.data;)
  EVICT(ATTN_E_STRIDE, "k is", s.k.stride_len = 1;)
  EVICT(ATTN_E_DTYPE, "k_scales", s.e.k_scales.scale = q;)
  EVICT(ATTN_E_OVERLAP, "more", s.e.positions = (int32_t *)s.e.more.data;)
  attn_ctx ctx = test_ctx();
  good.k.len = good.v.len = good.s.len = 0, good.e.more.len = 0;
  assert_int_equal(attn_snapkv(good.s, good.q, good.k, NULL, &ctx), ATTN_OK);
  assert_int_equal(attn_evict_choose(kept, good.s, &good.c, &ctx), ATTN_OK);
  for (int x = 0; x < 10; x++) assert_int_equal(kept[x], -1);
  assert_int_equal(attn_evict(good.k, good.v, kept, 5, &good.e, &ctx), ATTN_OK);
}

void M3_h2o_rejects(void **state) {
  (void)state;
  enum { T = 12, D = 4 };
  float bytes[2 * T * D + 4 * T], copy[2 * T * D + 4 * T], q[4 * T * D];
  int32_t more[1] = {13}, less[1] = {-1};
  char work[64];
  attn_cache cache;
  spoiled good;
  memset(&cache, 0, sizeof cache);
  memset(&good, 0, sizeof good);
  for (size_t x = 0; x < sizeof bytes / 4; x++) bytes[x] = copy[x] = (float)(x % 7);
  for (int x = 0; x < 4 * T * D; x++) q[x] = 1;
  good.k = attn_bhtd(bytes, ATTN_F32, 1, 2, T, D);
  good.more = attn_bhtd(bytes + 2 * T * D, ATTN_F32, 1, 2, T, 2);
  good.q = attn_bhtd(q, ATTN_F32, 1, 4, T, D), good.ctx = test_ctx();
  H2O(ATTN_E_NULL, "sums", s.more.data = NULL;)
  H2O(ATTN_E_NULL, "q", s.q.data = NULL;)
  H2O(ATTN_E_NULL, "k", s.k.data = NULL;)
  H2O(ATTN_E_DTYPE, "sums", s.more.dtype = ATTN_F16;)
  H2O(ATTN_E_DTYPE, "q", s.q.dtype = ATTN_I8;)
  H2O(ATTN_E_DTYPE, "k_scales", s.h.k_scales.scale = q;)
  H2O(ATTN_E_NULL, "k_scales", s.k.dtype = ATTN_I8;)
  H2O(ATTN_E_SHAPE, "sums", s.more.dim = 1;)
  H2O(ATTN_E_SHAPE, "sums", s.more.heads = 1;)
  H2O(ATTN_E_SHAPE, "sums", s.more.len = 11;)
  H2O(ATTN_E_SHAPE, "sums", s.more.batch = 2;)
  H2O(ATTN_E_SHAPE, "k must", s.k.dim = 3;)
  H2O(ATTN_E_HEADS, "k.heads", s.q.heads = 3;)
  H2O(ATTN_E_STRIDE, "sums", s.more.stride_len = 1;)
  H2O(ATTN_E_VALUE, "scale", s.h.scale = INFINITY;)
  H2O(ATTN_E_VALUE, "scale", s.h.scale = NAN;)
  H2O(ATTN_E_RANGE, "kv_len", s.h.kv_len = more;)
  H2O(ATTN_E_RANGE, "kv_len", s.h.kv_len = less;)
  H2O(ATTN_E_RANGE, "q_len", s.h.q_len = more;)
  H2O(ATTN_E_RANGE, "q_len", s.h.q_len = less;)
  H2O(ATTN_E_OVERLAP, "sums", s.more.data = s.k.data;)
  H2O(ATTN_E_OVERLAP, "sums", s.q.data = s.more.data; s.q.heads = 2; s.q.len = 2;)
  H2O(ATTN_E_OVERLAP, "sums", s.h.kv_len = (const int32_t *)s.more.data;)
  H2O(ATTN_E_OVERLAP, "workspace", s.ctx.workspace = q; s.ctx.workspace_size = sizeof q;)
  H2O(ATTN_E_WORKSPACE, "", s.ctx.workspace = work; s.ctx.workspace_size = sizeof work;)
  H2O(ATTN_E_ALIGN, "sums", s.more.data = (char *)s.more.data + 2;)
  H2O(ATTN_E_CTX, "workers", s.ctx.workers = -1;)
  H2O(ATTN_E_ISA, "", s.ctx.isa = ATTN_ISA_COUNT;)
  H2O(ATTN_E_NULL, "sequences", s.k.data = NULL; s.h.cache = &cache;)
  test_malloc_fails = 1;
  H2O(ATTN_E_MEMORY, "", ;)
  test_malloc_fails = 0;
  good.k.len = good.more.len = 0;
  assert_int_equal(attn_h2o(good.more, good.q, good.k, NULL, &good.ctx), ATTN_OK);
  assert_string_equal(good.ctx.report.path, "no-op");
}
