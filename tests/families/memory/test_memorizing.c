/* tests/families/memory/test_memorizing.c owns the Memorizing Transformer: its memory over several segments, against
 * lists of rows in float64. */

#include <stdlib.h>

#include "compound.h"

typedef struct scene {
  attn_tensor o, q, k, v;
  attn_kv_memory mem;
  attn_memorizing_params p;
  promise does;
} scene;

/* Every call begins with the same memory, so that calls can be repeated. */
static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  attn_kv_memory m = s->mem;
  return attn_memorizing(s->o, s->q, s->k, s->v, &m, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_memorizing_workspace(s->o, s->q, s->k, s->v, &s->mem, &s->p, ctx);
}

typedef struct shape {
  int64_t batch, heads, k_heads, v_heads, len, dk, dv, cap, xl;
  attn_dtype type;
  int whole; /* whole numbers: exact dots, many ties */
} shape;

static double whole(test_rng *rng) { return (double)test_range(rng, -2, 2); }

static attn_tensor fresh(const shape *x, attn_dtype type, test_layout layout, int64_t heads,
                         int64_t len, int64_t dim, test_rng *rng) {
  attn_tensor t = test_tensor(type, layout, x->batch, heads, len, dim);
  test_fill(t, rng, x->whole ? whole : test_normal);
  return t;
}

/* A new segment for a memory that stays. */
static void segment(scene *s, const shape *x, int64_t len, test_rng *rng) {
  s->q = fresh(x, x->type, TEST_BTHD, x->heads, len, x->dk, rng);
  s->k = fresh(x, ATTN_F32, TEST_PADDED, x->k_heads, len, x->dk, rng);
  s->v = fresh(x, x->type, TEST_NEGATIVE, x->v_heads, len, x->dv, rng);
  s->o = output(x->type, TEST_BTHD, x->batch, x->heads, len, x->dv, &s->does.block[0]);
}

static scene *build(const shape *x, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  segment(s, x, x->len, rng);
  s->mem.k = output(x->type, TEST_PADDED, x->batch, x->k_heads, x->cap, x->dk, &s->does.block[1]);
  s->mem.v = output(ATTN_F32, TEST_BTHD, x->batch, x->v_heads, x->cap, x->dv, &s->does.block[2]);
  if (x->xl) {
    s->p.xl_k = fresh(x, x->type, TEST_BHTD, x->k_heads, x->xl, x->dk, rng);
    s->p.xl_v = fresh(x, x->type, TEST_BHTD, x->v_heads, x->xl, x->dv, rng);
  }
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o, s->does.out[1] = &s->mem.k, s->does.out[2] = &s->mem.v;
  return s;
}

/* ---- the oracle -----------------------------------------------------------------------------*/

/* Everything appended so far, oldest first, of each batch entry and head, as it stands in storage. */
typedef struct past {
  cube k, v;
  int64_t n; /* rows in use */
} past;

static past past_of(const shape *x, int64_t room) {
  past a = {cube_of(x->batch, x->k_heads, room, x->dk), cube_of(x->batch, x->v_heads, room, x->dv),
            0};
  return a;
}

/* Rounded to a storage type. */
static double stored(double x, attn_dtype type) {
  if (type == ATTN_F16) return oracle_from_f16(oracle_to_f16((double)(float)x));
  if (type == ATTN_BF16) return oracle_from_bf16(oracle_to_bf16((double)(float)x));
  return (double)(float)x;
}

/* Row (b, h, i), normalised. */
static void unit_row(double *to, const attn_tensor *t, int64_t b, int64_t h, int64_t i, int unit) {
  double sum = 1e-6;
  for (int64_t c = 0; c < t->dim; c++) to[c] = oracle_get(t, b, h, i, c), sum += to[c] * to[c];
  for (int64_t c = 0; unit && c < t->dim; c++) to[c] /= sqrt(sum);
}

static void remember(past *a, const scene *s) {
  for (int64_t r = 0; r < s->k.len; r++, a->n++) {
    for (int64_t b = 0; b < s->k.batch; b++) {
      for (int64_t h = 0; h < s->k.heads; h++) {
        double *row = cube_at(&a->k, b, h, a->n);
        unit_row(row, &s->k, b, h, r, !s->p.raw);
        for (int64_t c = 0; c < s->k.dim; c++) row[c] = stored(row[c], s->mem.k.dtype);
      }
      for (int64_t h = 0; h < s->v.heads; h++) {
        double *row = cube_at(&a->v, b, h, a->n);
        unit_row(row, &s->v, b, h, r, s->p.normalize_v);
      }
    }
  }
}

typedef struct pair {
  double x;
  int64_t j;
} pair;

static int larger(const void *a, const void *b) {
  const pair *x = a, *y = b;
  return x->x != y->x ? (x->x > y->x ? -1 : 1) : x->j < y->j ? -1 : 1;
}

/* sum_j softmax(x)_j v_j over n keys; returns the LSE */
static double attend(double *o, const double *x, double *const *v, int64_t n, int64_t dv) {
  double top = -(double)INFINITY, sum = 0;
  for (int64_t j = 0; j < n; j++) top = fmax(top, x[j]);
  for (int64_t j = 0; j < n; j++) sum += exp(x[j] - top);
  for (int64_t c = 0; c < dv; c++) {
    o[c] = 0;
    for (int64_t j = 0; j < n; j++) o[c] += exp(x[j] - top) / sum * v[j][c];
  }
  return top + log(sum);
}

static void check(const scene *s, const past *a, double tolerance, const char *what) {
  int64_t dk = s->q.dim, dv = s->v.dim, m = s->p.xl_k.data ? s->p.xl_k.len : 0, len = s->q.len;
  int64_t size = a->n < s->mem.k.len ? a->n : s->mem.k.len, old = a->n - size;
  int64_t topk = s->p.k ? s->p.k : 32, room = size + m + len + 1;
  int unit = !s->p.raw;
  double *q = test_mem((size_t)dk * 8), *row = test_mem((size_t)dk * 8);
  double *x = test_mem((size_t)room * 8), *near = test_mem((size_t)dv * 8),
         *far = test_mem((size_t)dv * 8);
  double **v = test_mem((size_t)room * sizeof *v);
  pair *all = test_mem((size_t)room * sizeof *all);
  for (int64_t j = 0; j < room; j++) v[j] = test_mem((size_t)dv * 8);
  for (int64_t r = 0; r < s->q.batch * s->q.heads * len; r++) {
    int64_t b = r / len / s->q.heads, h = r / len % s->q.heads, i = r % len, n = 0;
    int64_t hk = h * s->k.heads / s->q.heads, hv = h * s->v.heads / s->q.heads;
    double scale = !unit ? 1 / sqrt((double)dk) : s->p.tau ? fabs((double)s->p.tau[h]) : 1;
    unit_row(q, &s->q, b, h, i, unit);
    /* the memory: the best by the dot products themselves */
    for (int64_t j = 0; j < size; j++) {
      double *k = cube_at(&a->k, b, hk, old + j);
      all[j].x = 0, all[j].j = j;
      for (int64_t c = 0; c < dk; c++) all[j].x += q[c] * k[c];
      if (scale == 0) all[j].x = 0;
    }
    qsort(all, (size_t)size, sizeof *all, larger);
    for (; n < topk && n < size; n++) {
      x[n] = scale * all[n].x;
      memcpy(v[n], cube_at(&a->v, b, hv, old + all[n].j), (size_t)dv * 8);
    }
    int64_t picked = n;
    for (int64_t j = 0; j < m + i + 1; j++, n++) {
      const attn_tensor *kt = j < m ? &s->p.xl_k : &s->k, *vt = j < m ? &s->p.xl_v : &s->v;
      int64_t at = j < m ? j : j - m;
      unit_row(row, kt, b, hk, at, unit);
      unit_row(v[n], vt, b, hv, at, s->p.normalize_v);
      x[n] = 0;
      for (int64_t c = 0; c < dk; c++) x[n] += scale * q[c] * row[c];
    }
    for (int64_t c = 0; c < dv; c++) far[c] = 0;
    double g = s->p.b_g ? 1 / (1 + exp(-(double)s->p.b_g[h])) : 0.5;
    if (s->p.bypass_empty && size == 0) g = 0;
    if (s->p.joint) {
      attend(near, x, v, n, dv), g = 0;
    } else {
      attend(near, x + picked, v + picked, n - picked, dv);
      if (picked) attend(far, x, v, picked, dv);
    }
    for (int64_t c = 0; c < dv; c++)
      value_check(oracle_get(&s->o, b, h, i, c), g * far[c] + (1 - g) * near[c], tolerance,
                  s->o.dtype, what, b, h, i, c);
  }
}

/* The memory holds the last rows in order. */
static void check_memory(const scene *s, const past *a, const char *what) {
  int64_t cap = s->mem.k.len, size = a->n < cap ? a->n : cap;
  assert_int_equal(s->mem.len, size);
  assert_in_range(s->mem.first, 0, cap - 1);
  for (int64_t j = 0; j < size; j++) {
    int64_t row = (s->mem.first + j) % cap, at = a->n - size + j;
    for (int64_t b = 0; b < s->k.batch; b++) {
      for (int64_t h = 0; h < s->k.heads; h++)
        for (int64_t c = 0; c < s->k.dim; c++)
          value_check(oracle_get(&s->mem.k, b, h, row, c), cube_at(&a->k, b, h, at)[c], 1e-6,
                      s->mem.k.dtype, what, b, h, j, c);
      for (int64_t h = 0; h < s->v.heads; h++)
        for (int64_t c = 0; c < s->v.dim; c++)
          value_check(oracle_get(&s->mem.v, b, h, row, c), cube_at(&a->v, b, h, at)[c], 1e-6,
                      s->mem.v.dtype, what, b, h, j, c);
    }
  }
}

/* Attends and appends. */
static void step(scene *s, past *a, double tolerance, const char *what) {
  attn_ctx ctx = test_ctx();
  attn_status status = attn_memorizing(s->o, s->q, s->k, s->v, &s->mem, &s->p, &ctx);
  if (status != ATTN_OK) fail_msg("%s: %s", attn_status_string(status), ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
  check(s, a, tolerance, what);
  remember(a, s);
  check_memory(s, a, what);
}

/* ---- tests ----------------------------------------------------------------------------------*/

/* Segments of different lengths, some longer than the memory. Selection is exact: whole numbers are
 * not normalised; or all entries are read. */
void J5_segments(void **state) {
  (void)state;
  test_rng rng = test_seed(501);
  for (int64_t n = test_count(30, 8); n > 0; n--) {
    int64_t k_heads = test_range(&rng, 1, 2), group = test_range(&rng, 1, 3);
    shape x = {test_range(&rng, 1, 2),
               k_heads * group,
               k_heads,
               n % 2 ? k_heads : 1,
               test_range(&rng, 1, 12),
               test_range(&rng, 1, 20),
               test_range(&rng, 1, 20),
               test_range(&rng, 1, 40),
               n % 3 ? 0 : test_range(&rng, 1, 9),
               ATTN_F32,
               n % 2 == 0};
    scene *s = build(&x, &rng);
    float tau[6] = {1.5f, -4, 0.25f, 1, 7, 0}, *gates = test_floats(6, 2, &rng);
    if (x.whole)
      s->p.raw = 1, s->p.k = test_range(&rng, 1, 6);
    else
      s->p.k = 40, s->p.tau = n % 4 == 1 ? tau : NULL, s->p.normalize_v = n % 6 == 1;
    if (n % 5 == 0) s->p.joint = 1;
    if (n % 5 == 1) s->p.b_g = gates;
    if (n % 5 == 2) s->p.bypass_empty = 1;
    past a = past_of(&x, 5 * 60);
    for (int t = 0; t < 5; t++) {
      if (t) segment(s, &x, t == 3 ? x.cap + 3 : test_range(&rng, 1, 12), &rng);
      step(s, &a, 2e-5, "segment");
    }
  }
}

/* 16-bit storage; scores of stored rows that are far enough apart. */
void J5_types(void **state) {
  (void)state;
  test_rng rng = test_seed(502);
  for (int t = 0; t < 4; t++) {
    shape x = {1, 4, 2, 2, 9, 16, 12, 30, t % 2 ? 5 : 0, t < 2 ? ATTN_F16 : ATTN_BF16, t % 2};
    scene *s = build(&x, &rng);
    s->p.k = t % 2 ? 3 : 64, s->p.raw = t % 2, s->p.joint = t == 3;
    past a = past_of(&x, 60);
    for (int i = 0; i < 4; i++) {
      if (i) segment(s, &x, 9, &rng);
      attn_ctx ctx = test_ctx();
      assert_int_equal(attn_memorizing(s->o, s->q, s->k, s->v, &s->mem, &s->p, &ctx), ATTN_OK);
      check(s, &a, 2e-3, "16 bits");
      remember(&a, s);
    }
  }
}

/* Long enough for several blocks of keys and tiles of queries, and for the ring to turn. */
void J5_large(void **state) {
  (void)state;
  test_rng rng = test_seed(503);
  shape x = {1, 2, 1, 1, 70, 6, 5, 300, 0, ATTN_F32, 1};
  scene *s = build(&x, &rng);
  s->p.raw = 1, s->p.k = 9;
  past a = past_of(&x, 900);
  for (int t = 0; t < 6; t++) {
    if (t) segment(s, &x, 70, &rng);
    if (test_fast && t < 5) {
      attn_ctx ctx = test_ctx();
      assert_int_equal(attn_recall_append(&s->mem, s->k, s->v, &s->p, &ctx), ATTN_OK);
      remember(&a, s);
    } else {
      step(s, &a, 2e-5, "large");
    }
  }
}

/* topk >= size: with g = 1 full attention over the memory, with g = 0 local attention, jointly causal
 * attention over [memory; segment]. */
void J5_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(504);
  shape x = {1, 2, 2, 2, 20, 8, 8, 128, 0, ATTN_F32, 0};
  scene *s = build(&x, &rng);
  float open[2] = {200, 200}, shut[2] = {-200, -200};
  attn_ctx ctx = test_ctx();
  s->p.raw = 1, s->p.k = 64;
  attn_tensor before_k = fresh(&x, ATTN_F32, TEST_BHTD, 2, 50, 8, &rng);
  attn_tensor before_v = fresh(&x, ATTN_F32, TEST_BHTD, 2, 50, 8, &rng);
  assert_int_equal(attn_recall_append(&s->mem, before_k, before_v, &s->p, &ctx), ATTN_OK);
  assert_int_equal(s->mem.len, 50);
  attn_tensor want = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 20, 8);
  attn_sdpa_params local;
  memset(&local, 0, sizeof local);

  attn_kv_memory m = s->mem;
  s->p.b_g = open;
  assert_int_equal(attn_memorizing(s->o, s->q, s->k, s->v, &m, &s->p, &ctx), ATTN_OK);
  assert_int_equal(attn_sdpa(want, s->q, before_k, before_v, &local, &ctx), ATTN_OK);
  test_assert_near(s->o, want, 1e-5, "the memory alone");
  m = s->mem, s->p.b_g = shut, local.causal = 1;
  assert_int_equal(attn_memorizing(s->o, s->q, s->k, s->v, &m, &s->p, &ctx), ATTN_OK);
  assert_int_equal(attn_sdpa(want, s->q, s->k, s->v, &local, &ctx), ATTN_OK);
  test_assert_near(s->o, want, 1e-6, "the segment alone");
  m = s->mem, s->p.b_g = NULL, s->p.joint = 1;
  assert_int_equal(attn_memorizing(s->o, s->q, s->k, s->v, &m, &s->p, &ctx), ATTN_OK);
  attn_tensor all_k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 70, 8),
              all_v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 70, 8);
  test_copy(test_rows(all_k, 0, 50), before_k), test_copy(test_rows(all_k, 50, 20), s->k);
  test_copy(test_rows(all_v, 0, 50), before_v), test_copy(test_rows(all_v, 50, 20), s->v);
  assert_int_equal(attn_sdpa(want, s->q, all_k, all_v, &local, &ctx), ATTN_OK);
  test_assert_near(s->o, want, 1e-5, "jointly");
}

/* Rows that are not in use are never read; a key of zeros is an entry like others. */
void J5_unused_rows(void **state) {
  (void)state;
  test_rng rng = test_seed(505);
  shape x = {1, 1, 1, 1, 4, 8, 8, 20, 0, ATTN_F32, 0};
  scene *s = build(&x, &rng);
  test_fill_value(s->mem.k, (double)NAN), test_fill_value(s->mem.v, (double)NAN);
  past a = past_of(&x, 40);
  test_fill_row(s->k, 0, 0, 2, 0);
  for (int t = 0; t < 4; t++) {
    if (t) segment(s, &x, 4, &rng);
    step(s, &a, 1e-5, "unused rows");
  }
}

void J5_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(506);
  for (int t = 0; t < 4; t++) {
    shape x = {2, 4, 2, 2, 40, 8, 8, 90, t == 1 ? 6 : 0, t == 2 ? ATTN_F16 : ATTN_F32, 0};
    scene *s = build(&x, &rng);
    s->p.joint = t == 1, s->p.bypass_empty = t == 3, s->p.k = 5;
    attn_ctx ctx = test_ctx();
    if (t != 3) assert_int_equal(attn_recall_append(&s->mem, s->k, s->v, &s->p, &ctx), ATTN_OK);
    /* the memory is an output, but what is read of it must not be spoiled */
    s->does.out[1] = s->does.out[2] = NULL;
    promise_keep(&s->does);
  }
}

/* Appending by itself stores what attending stores. */
void J5_append(void **state) {
  (void)state;
  test_rng rng = test_seed(507);
  shape x = {2, 4, 2, 1, 15, 7, 9, 40, 0, ATTN_BF16, 0};
  scene *s = build(&x, &rng), *t = build(&x, &rng);
  s->p.normalize_v = t->p.normalize_v = 1;
  attn_ctx ctx = test_ctx();
  for (int n = 0; n < 4; n++) {
    if (n) segment(s, &x, 15, &rng);
    ctx.workers = n, ctx.parallel_for = test_parallel_threads;
    size_t size = attn_recall_append_workspace(&t->mem, s->k, s->v, &t->p, &ctx);
    ctx.workspace = test_mem(size), ctx.workspace_size = size;
    assert_int_equal(attn_recall_append(&t->mem, s->k, s->v, &t->p, &ctx), ATTN_OK);
    ctx = test_ctx();
    assert_int_equal(attn_memorizing(s->o, s->q, s->k, s->v, &s->mem, &s->p, &ctx), ATTN_OK);
    assert_int_equal(s->mem.len, t->mem.len);
    assert_int_equal(s->mem.first, t->mem.first);
    int64_t rows = s->mem.len;
    test_assert_same(test_rows(s->mem.k, 0, rows), test_rows(t->mem.k, 0, rows), "keys");
    test_assert_same(test_rows(s->mem.v, 0, rows), test_rows(t->mem.v, 0, rows), "values");
  }
  /* no rows: nothing happens */
  segment(s, &x, 0, &rng);
  attn_kv_memory was = s->mem;
  assert_int_equal(attn_memorizing(s->o, s->q, s->k, s->v, &s->mem, &s->p, &ctx), ATTN_OK);
  assert_int_equal(attn_recall_append(&s->mem, s->k, s->v, NULL, &ctx), ATTN_OK);
  assert_int_equal(s->mem.len, was.len);
}

void J5_reject(void **state) {
  (void)state;
  test_rng rng = test_seed(508);
  shape x = {1, 4, 2, 2, 5, 8, 6, 12, 3, ATTN_F32, 0};
  scene *s = build(&x, &rng), was = *s;
  float bad[4] = {0, NAN, 0, 0}, good[4] = {0};
#define REJECTED(change, status, word)      \
  do {                                      \
    change;                                 \
    promise_reject(&s->does, status, word); \
    *s = was;                               \
  } while (0)
  REJECTED(s->p.k = -1, ATTN_E_SHAPE, "params.k");
  REJECTED((s->mem.k.len = 0, s->mem.v.len = 0), ATTN_E_SHAPE, "memory.k.len");
  REJECTED(s->mem.v.len = 11, ATTN_E_SHAPE, "memory.v");
  REJECTED(s->mem.k.heads = 1, ATTN_E_SHAPE, "memory.k");
  REJECTED(s->mem.k.dim = 7, ATTN_E_SHAPE, "memory.k");
  REJECTED(s->mem.k.dtype = ATTN_I8, ATTN_E_DTYPE, "memory.k");
  REJECTED(s->mem.len = 13, ATTN_E_RANGE, "memory.len");
  REJECTED(s->mem.len = -1, ATTN_E_RANGE, "memory.len");
  REJECTED(s->mem.first = 12, ATTN_E_RANGE, "memory.first");
  REJECTED(s->mem.k.stride_len = 3, ATTN_E_STRIDE, "memory.k");
  REJECTED(s->p.xl_v = absent(), ATTN_E_NULL, "xl_v");
  REJECTED(s->p.xl_k = absent(), ATTN_E_NULL, "xl_k");
  REJECTED(s->p.xl_v.len = 2, ATTN_E_SHAPE, "xl_v");
  REJECTED(s->p.xl_k.heads = 1, ATTN_E_SHAPE, "xl_k");
  REJECTED(s->k.heads = 3, ATTN_E_HEADS, "k");
  REJECTED(s->k.len = 4, ATTN_E_SHAPE, "k");
  REJECTED(s->v.dim = 5, ATTN_E_SHAPE, "");
  REJECTED(s->o.dim = 5, ATTN_E_SHAPE, "o");
  REJECTED(s->q.data = NULL, ATTN_E_NULL, "q");
  REJECTED(s->p.b_g = bad, ATTN_E_VALUE, "b_g");
  REJECTED(s->p.tau = bad, ATTN_E_VALUE, "tau");
  REJECTED((s->p.joint = 1, s->p.b_g = good), ATTN_E_RANGE, "joint");
  REJECTED((s->p.joint = 1, s->p.bypass_empty = 1), ATTN_E_RANGE, "joint");
  REJECTED((s->p.raw = 1, s->p.tau = good), ATTN_E_RANGE, "tau");
  REJECTED(s->o.data = s->q.data, ATTN_E_OVERLAP, "o");
  REJECTED(s->k.data = s->mem.k.data, ATTN_E_OVERLAP, "memory.k");
  REJECTED(s->mem.v.data = s->mem.k.data, ATTN_E_OVERLAP, "memory.k");
#undef REJECTED
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_memorizing(s->o, s->q, s->k, s->v, NULL, &s->p, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_recall_append(NULL, s->k, s->v, &s->p, &ctx), ATTN_E_NULL);
}
