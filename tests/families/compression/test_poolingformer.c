/* tests/families/compression/test_poolingformer.c owns Poolingformer: both levels in float64 by the definition of each row's
 * blocks, side by side and one behind the other, on a grid and on each row's window. */

#include "shortened.h"

typedef struct scene {
  trio x;
  attn_poolingformer_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_poolingformer(s->x.o, s->x.q, s->x.k, s->x.v, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_poolingformer_workspace(s->x.o, s->x.q, s->x.k, s->x.v, &s->p, ctx);
}

typedef struct form {
  int64_t w1, w2, kernel, stride; /* w as keys on a side */
  attn_pool_kind pool;
  attn_poolingformer_align align;
  int causal, second; /* second: 1 = q2, k2, v2, 2 = w_q, w_k, w_v */
} form;

static form form_of(int64_t w1, int64_t w2, int64_t kernel, int64_t stride, int64_t n) {
  form f = {w1,
            w2,
            kernel,
            stride,
            (attn_pool_kind)(n % 3),
            (attn_poolingformer_align)(n / 3 % 2),
            n / 6 % 2 != 0,
            0};
  return f;
}

static attn_window field(int64_t w) { return attn_window_of(w, w); }

static scene *build(const trio_shape *x, const form *f, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  attn_poolingformer_params *p = &s->p;
  s->x = trio_of(x, rng);
  s->x.lse = absent();
  p->window_1 = field(f->w1), p->window_2 = field(f->w2);
  p->kernel = f->kernel, p->stride = f->stride;
  p->pool = f->pool, p->align = f->align, p->causal = f->causal;
  const int64_t wide = x->heads * x->dv, d2 = f->second ? 1 + x->dk % 7 : x->dk;
  const int64_t hk = f->second ? 1 : x->k_heads, hv = f->second ? x->heads : x->v_heads;
  if (f->second == 1) {
    p->q2 = drawn(x->k_type, TEST_PADDED, x->batch, x->heads, x->q_len, d2, 1, rng);
    p->k2 = drawn(x->q_type, TEST_PADDED, x->batch, hk, x->k_len, d2, 1, rng);
    p->v2 = drawn(ATTN_F32, TEST_NEGATIVE, x->batch, hv, x->k_len, x->dv, 1, rng);
  }
  if (f->second == 2) {
    const double size = 1.5 / sqrt((double)wide);
    p->w_q = drawn(ATTN_F32, TEST_PADDED, 1, 1, wide, x->heads * d2, size, rng);
    p->w_k = drawn(x->q_type, TEST_PADDED, 1, 1, wide, hk * d2, size, rng);
    p->w_v = drawn(ATTN_F32, TEST_BHTD, 1, 1, wide, hv * x->dv, size, rng);
    p->b_q = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, x->heads * d2, 0.3, rng);
    if (x->dk % 2) p->b_k = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, hk * d2, 0.3, rng);
    if (x->dk % 3) p->b_v = drawn(x->k_type, TEST_BHTD, 1, 1, 1, hv * x->dv, 0.3, rng);
  }
  if (f->pool == ATTN_POOL_DYNAMIC) {
    const int64_t kernel = f->kernel ? f->kernel : 5;
    p->pool_k = drawn(x->q_type, TEST_PADDED, 1, x->dv % 2 ? 1 : hk, d2, kernel, 0.7, rng);
    p->pool_v = drawn(ATTN_F32, TEST_NEGATIVE, 1, x->dv % 3 ? 1 : hv, x->dv, kernel, 0.7, rng);
    if (x->dv % 2) p->pool_b_k = drawn(x->k_type, TEST_BHTD, 1, 1, 1, kernel, 1, rng);
    if (x->dk % 2) p->pool_b_v = drawn(ATTN_F32, TEST_PADDED, 1, hv, 1, kernel, 1, rng);
  }
  p->kv_len = s->x.kv_len, p->q_len = s->x.q_len;
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->x.o, s->does.block[0] = s->x.o_block;
  return s;
}

/* ---- the oracle -----------------------------------------------------------------------------*/

/* q, k, v of a level as doubles, and where its rows stand. */
typedef struct level {
  cube q, k, v;
  const int32_t *kv_len;
  int64_t off;
} level;

static int64_t len_of(const int32_t *len, int64_t b, int64_t n) { return len ? len[b] : n; }

/* Rows start .. end - 1 of x as one. */
static double *pooled(const scene *s, const cube *x, int value, int64_t b, int64_t h, int64_t start,
                      int64_t end) {
  const attn_tensor *w = value ? &s->p.pool_v : &s->p.pool_k;
  const attn_tensor *bias = value ? &s->p.pool_b_v : &s->p.pool_b_k;
  double *y = test_mem((size_t)x->dim * sizeof *y), z[64], top = -(double)INFINITY, total = 0;
  const int64_t n = end - start, kernel = s->p.kernel ? s->p.kernel : 5;
  for (int64_t r = 0; r < n && s->p.pool != ATTN_POOL_DYNAMIC; r++) z[r] = 1.0 / (double)n;
  if (s->p.pool == ATTN_POOL_DYNAMIC) {
    int64_t centre = start + (kernel - 1) / 2;
    if (centre > end - 1) centre = end - 1;
    for (int64_t r = 0; r < n; r++) {
      z[r] = bias->data ? oracle_get(bias, 0, bias->heads > 1 ? h : 0, 0, r) : 0;
      for (int64_t c = 0; c < x->dim; c++)
        z[r] += cube_at(x, b, h, centre)[c] * oracle_get(w, 0, w->heads > 1 ? h : 0, c, r);
      top = fmax(top, z[r]);
    }
    for (int64_t r = 0; r < n; r++) z[r] = exp(z[r] - top), total += z[r];
    for (int64_t r = 0; r < n; r++) z[r] /= total;
  }
  for (int64_t c = 0; c < x->dim; c++) {
    y[c] = s->p.pool == ATTN_POOL_MAX ? -(double)INFINITY : 0;
    for (int64_t r = 0; r < n; r++) {
      const double a = cube_at(x, b, h, start + r)[c];
      y[c] = s->p.pool == ATTN_POOL_MAX ? fmax(y[c], a) : y[c] + z[r] * a;
    }
  }
  return y;
}

/* What row i sees of the second level. */
static void second_keys(const scene *s, const level *l, keys *list, int64_t b, int64_t hk,
                        int64_t hv, int64_t i, int64_t w2) {
  const int64_t n = len_of(l->kv_len, b, l->k.len), p = i + l->off;
  const int64_t kappa = s->p.kernel ? s->p.kernel : 5;
  const int64_t xi = s->p.stride ? s->p.stride : kappa < 4 ? kappa : 4;
  const int64_t far = s->p.causal ? p : p + w2;
  int64_t lo = 0, rows = n;
  if (s->p.align == ATTN_POOLINGFORMER_WINDOW) {
    lo = p - w2 > 0 ? p - w2 : 0;
    rows = (far < n - 1 ? far : n - 1) - lo + 1;
  }
  for (int64_t m = 0; rows > 0; m++) {
    if (m > 0 && (m - 1) * xi + kappa >= rows) break; /* block m - 1 reached the end */
    const int64_t start = lo + m * xi;
    const int64_t end = m * xi + kappa < rows ? start + kappa : lo + rows;
    if (s->p.align == ATTN_POOLINGFORMER_GRID && (start < p - w2 || end - 1 > far)) continue;
    keys_add(list, pooled(s, &l->k, 0, b, hk, start, end), pooled(s, &l->v, 1, b, hv, start, end));
  }
}

/* One level into y [B,H,Tq,dv], added to what it holds. */
static void attend(const scene *s, const level *l, cube *y, int second) {
  const int64_t heads = l->q.heads;
  const int64_t w1 = s->p.window_1.on ? s->p.window_1.left : 128;
  const int64_t w2 = s->p.window_2.on ? s->p.window_2.left : 512;
  double *o = test_mem((size_t)y->dim * sizeof *o), size;
  keys list = keys_of(l->k.len + 1);
  for (int64_t r = 0; r < l->q.batch * heads * l->q.len; r++) {
    const int64_t b = r / l->q.len / heads, h = r / l->q.len % heads, i = r % l->q.len;
    const int64_t hk = h * l->k.heads / heads, hv = h * l->v.heads / heads, p = i + l->off;
    if (i >= len_of(s->x.q_len, b, l->q.len)) continue;
    list.n = 0;
    if (second)
      second_keys(s, l, &list, b, hk, hv, i, w2);
    else
      for (int64_t j = 0; j < len_of(l->kv_len, b, l->k.len); j++) {
        if (j >= p - w1 && j <= (s->p.causal ? p : p + w1))
          keys_add(&list, cube_at(&l->k, b, hk, j), cube_at(&l->v, b, hv, j));
      }
    keys_row(&list, cube_at(&l->q, b, h, i), l->q.dim, scale_of(s->p.scale, l->q.dim), o, y->dim,
             &size);
    for (int64_t c = 0; c < y->dim; c++) cube_at(y, b, h, i)[c] += o[c];
  }
}

/* Columns of y's heads side by side times w, as heads of width d. */
static cube projected(const cube *y, const attn_tensor *w, const attn_tensor *bias, int64_t d) {
  cube z = cube_of(y->batch, w->dim / d, y->len, d);
  for (int64_t r = 0; r < z.batch * z.heads * z.len; r++) {
    const int64_t b = r / z.len / z.heads, h = r / z.len % z.heads, i = r % z.len;
    for (int64_t c = 0; c < d; c++) {
      double sum = bias->data ? oracle_get(bias, 0, 0, 0, h * d + c) : 0;
      for (int64_t e = 0; e < w->len; e++)
        sum += cube_at(y, b, e / y->dim, i)[e % y->dim] * oracle_get(w, 0, 0, e, h * d + c);
      cube_at(&z, b, h, i)[c] = sum;
    }
  }
  return z;
}

static cube answer(const scene *s) {
  const attn_poolingformer_params *p = &s->p;
  const int64_t off = p->has_q_off ? p->q_off : s->x.k.len - s->x.q.len;
  level l = {cube_from(&s->x.q), cube_from(&s->x.k), cube_from(&s->x.v), p->kv_len, off};
  cube y = cube_of(s->x.o.batch, s->x.o.heads, s->x.o.len, s->x.o.dim);
  for (int64_t n = 0; n < y.batch * y.heads * y.len * y.dim; n++) y.data[n] = 0;
  attend(s, &l, &y, 0);
  if (p->w_q.data) {
    level next = {projected(&y, &p->w_q, &p->b_q, p->w_q.dim / y.heads), y, y, p->q_len, 0};
    next.k = projected(&y, &p->w_k, &p->b_k, next.q.dim);
    next.v = projected(&y, &p->w_v, &p->b_v, y.dim);
    attend(s, &next, &y, 1);
  } else {
    if (p->q2.data) l.q = cube_from(&p->q2);
    if (p->k2.data) l.k = cube_from(&p->k2);
    if (p->v2.data) l.v = cube_from(&p->v2);
    attend(s, &l, &y, 1);
  }
  return y;
}

static void run(scene *s, double tolerance, const char *what) {
  cube y = answer(s);
  promise_run(&s->does);
  cube_check(&y, &s->x.o, tolerance, what);
}

/* ---- tests ----------------------------------------------------------------------------------*/

void F7_random(void **state) {
  (void)state;
  test_rng rng = test_seed(7700);
  for (int64_t n = test_count(96, 24); n-- > 0; test_mem_release()) {
    trio_shape x = trio_random(&rng, n / 2, n % 9 ? 20 : 80);
    const int64_t kernel = test_range(&rng, 1, 7), w1 = test_range(&rng, 0, 5);
    form f = form_of(w1, test_range(&rng, 0, 15), kernel, test_range(&rng, 1, kernel), n);
    f.second = (int)(n / 12 % 3);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&x, &f, &rng);
    test_where = TEST_HEAP;
    if (n % 7 == 5) s->p.scale = 0.4f;
    if (n % 5 == 2) s->p.has_q_off = 1, s->p.q_off = test_range(&rng, -20, 20);
    run(s, 4e-5, "poolingformer");
  }
}

/* Zero in every field: windows of 128 and 512, blocks of 5 every 4 rows, means. */
void F7_defaults(void **state) {
  (void)state;
  test_rng rng = test_seed(7701);
  trio_shape x = trio_plain(test_fast ? 150 : 700, test_fast ? 150 : 700);
  x.heads = x.k_heads = x.v_heads = 1, x.dk = 4, x.dv = 3;
  form f = form_of(0, 0, 0, 0, 0);
  scene *s = build(&x, &f, &rng);
  memset(&s->p, 0, sizeof s->p);
  run(s, 4e-5, "defaults");
  attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, x.q_len, 3);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_poolingformer(o, s->x.q, s->x.k, s->x.v, NULL, &ctx), ATTN_OK);
  test_assert_same(o, s->x.o, "params null");
}

/* Blocks of one row and equal windows: twice the windowed attention; endless ones: twice the full. */
void F7_twice(void **state) {
  (void)state;
  test_rng rng = test_seed(7702);
  for (int n = 0; n < 24; n++) {
    const int whole = n >= 12;
    trio_shape x = trio_plain(70, 70);
    form f = form_of(whole ? INT64_MAX : 9, whole ? INT64_MAX : 9, 1, 1, n);
    scene *s = build(&x, &f, &rng);
    promise_run(&s->does);
    attn_sdpa_params p;
    memset(&p, 0, sizeof p);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 70, x.dv);
    p.causal = f.causal;
    if (!whole) p.window = attn_window_of(9, 9);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_sdpa(o, s->x.q, s->x.k, s->x.v, &p, &ctx), ATTN_OK);
    for (int64_t i = 0; i < 70; i++) {
      for (int64_t c = 0; c < x.dv; c++)
        value_check(oracle_get(&s->x.o, 0, 1, i, c), 2 * oracle_get(&o, 0, 1, i, c), 2e-5, ATTN_F32,
                    "twice", 0, 1, i, c);
    }
  }
}

/* Values of 1: 1 from each level that sees a key. */
void F7_ones(void **state) {
  (void)state;
  test_rng rng = test_seed(7703);
  for (int n = 0; n < 12; n++) {
    trio_shape x = trio_plain(40, 40);
    form f = form_of(2, 3, 5, 2, n); /* on a grid too wide for any row's window but some */
    scene *s = build(&x, &f, &rng);
    test_fill_value(s->x.v, 1);
    promise_run(&s->does);
    cube want = answer(s);
    for (int64_t i = 0; i < 40; i++) {
      const double w = floor(cube_at(&want, 0, 0, i)[0] + 0.5);
      assert_true(w == 1 || w == 2);
      if (f.align == ATTN_POOLINGFORMER_WINDOW) assert_true(w == 2);
      value_check(oracle_get(&s->x.o, 0, 0, i, 0), w, 2e-6, ATTN_F32, "ones", 0, 0, i, 0);
    }
  }
}

/* Dynamic with weights of 0: means. */
void F7_dynamic_zero(void **state) {
  (void)state;
  test_rng rng = test_seed(7704);
  for (int n = 0; n < 2; n++) {
    trio_shape x = trio_plain(50, 50);
    form f = form_of(3, 12, 6, 4, 2 + 3 * n);
    scene *s = build(&x, &f, &rng);
    test_fill_value(s->p.pool_k, 0), test_fill_value(s->p.pool_v, 0);
    s->p.pool_b_k = s->p.pool_b_v = absent();
    promise_run(&s->does);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 50, x.dv);
    test_copy(o, s->x.o);
    s->p.pool = ATTN_POOL_MEAN;
    promise_run(&s->does);
    test_assert_near(s->x.o, o, 1e-5, "dynamic of zeros");
  }
}

/* Later tokens change no bit of earlier rows: both alignments, all pools, both forms. */
void F7_causal_reads(void **state) {
  (void)state;
  test_rng rng = test_seed(7705);
  for (int n = 0; n < 24; n++) {
    const int64_t from = test_range(&rng, 1, 38);
    trio_shape x = trio_plain(39, 39);
    form f = form_of(3, 11, 4, 3, n % 6 + 6);
    f.second = n >= 12 ? 2 : 0;
    scene *s = build(&x, &f, &rng);
    assert_int_equal(s->p.causal, 1);
    promise_run(&s->does);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 39, x.dv);
    test_copy(o, s->x.o);
    for (int64_t i = from; i < 39; i++) {
      for (int64_t h = 0; h < 2; h++) {
        test_fill_row(s->x.k, 0, h, i, 5), test_fill_row(s->x.v, 0, h, i, (double)NAN);
        test_fill_row(s->x.q, 0, h, i, -3);
      }
    }
    promise_run(&s->does);
    test_assert_same(test_rows(s->x.o, 0, from), test_rows(o, 0, from), "rows before a change");
    assert_true(isnan(oracle_get(&s->x.o, 0, 0, from, 0)));
  }
}

/* Lengths give what the call on tensors cut to them gives; what lies behind is not read. */
void F7_lengths(void **state) {
  (void)state;
  test_rng rng = test_seed(7706);
  for (int n = 0; n < 24; n++) {
    trio_shape x = trio_plain(40, 40);
    x.batch = 3, x.lens = 1;
    form f = form_of(4, 10, 5, 3, n % 12);
    f.second = n >= 12 ? 2 : 0;
    scene *s = build(&x, &f, &rng);
    for (int64_t b = 0; b < 3; b++) {
      for (int64_t j = s->x.kv_len[b]; j < 40; j++)
        test_fill_row(s->x.k, b, 1, j, (double)NAN), test_fill_row(s->x.v, b, 0, j, (double)NAN);
    }
    promise_run(&s->does);
    for (int64_t b = 0; b < 3; b++) {
      scene one = *s;
      one.x = trio_cut(&s->x, b);
      one.p.kv_len = one.p.q_len = NULL, one.p.has_q_off = 1, one.p.q_off = 0;
      attn_ctx ctx = test_ctx();
      assert_int_equal(call(&one, &ctx), ATTN_OK);
      const int64_t rows = trio_rows(&s->x, b);
      attn_tensor o = test_one(s->x.o, b, 1, 0, 2);
      test_assert_near(test_rows(o, 0, rows), one.x.o, 1e-5, "cut");
      for (int64_t i = rows; i < 40; i++) assert_true(oracle_get(&o, 0, 1, i, 0) == 0);
    }
  }
}

/* Windows too small for a block, sequences shorter than one, positions off the keys, nothing at all. */
void F7_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(7707);
  for (int n = 0; n < 48; n++) {
    trio_shape x = trio_plain(n % 7, n % 5);
    form f = form_of(n % 3, n % 4, 4, 1 + n % 4, n % 12);
    f.second = n % 5 == 1 && n % 7 ? 2 : 0;
    scene *s = build(&x, &f, &rng);
    if (n % 3 == 1) s->p.has_q_off = 1, s->p.q_off = n % 2 ? -4 : 6;
    run(s, 4e-5, "edges");
    if (s->p.pool == ATTN_POOL_DYNAMIC) continue;
    s->p.kernel = s->p.stride = INT64_MAX; /* one block, of all rows that there are */
    cube want = cube_of(1, 2, x.q_len, x.dv);
    scene wide = *s;
    wide.p.kernel = wide.p.stride = 50;
    want = answer(&wide);
    promise_run(&s->does);
    cube_check(&want, &s->x.o, 4e-5, "endless kernel");
  }
  trio_shape x = trio_plain(3, 3);
  x.batch = 0;
  form f = form_of(1, 2, 2, 1, 0);
  promise_run(&build(&x, &f, &rng)->does);
}

/* A NaN reaches the rows whose windows hold it, by either level, and no others. */
void F7_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(7708);
  for (int n = 0; n < 6; n++) {
    trio_shape x = trio_plain(60, 60);
    const int grid = n < 3; /* else the last block of a window is shorter */
    form f = form_of(2, 8, grid ? 3 : 4, grid ? 2 : 3, n);
    f.causal = 1;
    scene *s = build(&x, &f, &rng);
    oracle_set(&s->x.v, 0, 1, 30, 1, (double)NAN);
    promise_run(&s->does);
    for (int64_t i = 0; i < 60; i++) {
      assert_true(!isnan(oracle_get(&s->x.o, 0, 0, i, 1)));
      const int in = isnan(oracle_get(&s->x.o, 0, 1, i, 1)) != 0;
      /* on the grid blocks 28..30 and 30..32 have it, rows 30..36 and 32..38 see them */
      const int last = f.align == ATTN_POOLINGFORMER_GRID ? 38 : 38;
      if (i < 30 || i > last) assert_false(in);
      if (i >= 30 && i <= 38) assert_true(in);
    }
  }
}

void F7_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(7709);
  for (int n = 0; n < 6; n++) {
    trio_shape x = trio_plain(90, 90);
    x.batch = 2, x.lens = n % 2, x.k_heads = 1, x.o_type = n % 3 ? ATTN_F16 : ATTN_F32;
    form f = form_of(5, 20, 5, 3, n % 2 ? 5 : n);
    f.second = n % 3;
    promise_keep(&build(&x, &f, &rng)->does);
  }
}

void F7_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(7710);
  int32_t lens[1] = {10};
  for (int n = 0; n < 44; n++) {
    trio_shape x = trio_plain(9, 9);
    form f = form_of(2, 4, 3, 2, 2); /* dynamic */
    f.second = n < 22 ? 0 : n < 32 ? 1 : 2;
    scene *s = build(&x, &f, &rng);
    attn_poolingformer_params *p = &s->p;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: p->window_1 = field(-2), want = ATTN_E_RANGE, word = "window_1"; break;
      case 1: p->window_2 = attn_window_of(2, 3), want = ATTN_E_RANGE, word = "window_2"; break;
      case 2: p->stride = 4, want = ATTN_E_RANGE, word = "stride"; break;
      case 3: p->stride = -1, want = ATTN_E_RANGE, word = "stride"; break;
      case 4: p->kernel = -1, want = ATTN_E_RANGE, word = "params.kernel must"; break;
      case 5: p->pool = ATTN_POOL_COUNT, want = ATTN_E_RANGE, word = "pool"; break;
      case 6: p->align = ATTN_POOLINGFORMER_COUNT, want = ATTN_E_RANGE, word = "align"; break;
      case 7: p->pool_k = absent(), want = ATTN_E_NULL, word = "pool_k"; break;
      case 8: p->pool_v = absent(), want = ATTN_E_NULL, word = "pool_v"; break;
      case 9: p->pool_k.dim = 2, word = "pool_k"; break;
      case 10: p->pool_v.len--, word = "pool_v"; break;
      case 11: p->pool_k.heads = 3, word = "pool_k"; break;
      case 12: p->pool_b_k.dim = 2, word = "pool_b_k"; break;
      case 13: p->scale = (float)NAN, want = ATTN_E_VALUE, word = "scale"; break;
      case 14: p->q_off = 1, want = ATTN_E_RANGE, word = "q_off"; break;
      case 15: p->kv_len = lens, want = ATTN_E_RANGE, word = "kv_len"; break;
      case 16: p->q_len = lens, want = ATTN_E_RANGE, word = "q_len"; break;
      case 17: s->x.k.dim--, word = "k must"; break;
      case 18: s->x.o.dim++, word = "o must"; break;
      case 19:
        s->x.q = s->x.o, s->x.k.dim = 5, p->pool_k.len = 5, want = ATTN_E_OVERLAP, word = "o ";
        break;
      case 20: s->x.q.data = NULL, want = ATTN_E_NULL, word = "q.data"; break;
      case 21: s->x.o.stride_len = 0, want = ATTN_E_STRIDE, word = "o "; break;
      case 22: p->q2.dim++, p->q2.stride_len = 0, word = "k2"; break;
      case 23: p->q2.len--, word = "q2"; break;
      case 24: p->q2.heads = 1, word = "q2"; break;
      case 25: p->k2.len--, word = "k2"; break;
      case 26: p->k2.heads = 0, want = ATTN_E_HEADS, word = "k2"; break;
      case 27: p->v2.dim--, word = "v2"; break;
      case 28: p->v2.len--, word = "v2"; break;
      case 29: p->v2.heads = 3, want = ATTN_E_HEADS, word = "v2"; break;
      case 30: p->q2.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "q2"; break;
      case 31: p->v2 = s->x.o, want = ATTN_E_OVERLAP, word = "o "; break;
      case 32: p->q2 = s->x.q, want = ATTN_E_RANGE, word = "q2"; break;
      case 33: p->w_q.dim--, word = "w_q"; break;
      case 34: p->w_q.len--, word = "w_q"; break;
      case 35: p->w_k.dim--, word = "w_k"; break;
      case 36: p->w_v.dim--, word = "w_v"; break;
      case 37: p->w_k = absent(), want = ATTN_E_NULL, word = "w_k"; break;
      case 38: p->w_v = absent(), want = ATTN_E_NULL, word = "w_v"; break;
      case 39: p->b_q.dim--, word = "b_q"; break;
      case 40: p->b_q.len = 2, word = "b_q"; break;
      case 41: p->w_k.heads = 2, word = "w_k"; break;
      case 42: p->w_q = absent(), want = ATTN_E_NULL, word = "params.w_q must be there"; break;
      default: p->w_q.batch = 2, p->w_q.stride_batch = 0, word = "w_q"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
