/* tests/families/linear/test_performer.c owns attention over random features: RFA and Performer, as sums over pairs of
 * a query and a key in float64, and what the papers promise of them. */

#include "maps.h"

typedef struct scene {
  attn_tensor o, q, k, v;
  attn_linear_params p;
  void *start; /* with p.state: what it is before the call */
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  if (s->p.state) memcpy(s->p.state, s->start, s->p.state_bytes);
  return attn_linear(s->o, s->q, s->k, s->v, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_linear_workspace(s->o, s->q, s->k, s->v, &s->p, ctx);
}

typedef struct shape {
  int64_t batch, heads, kv_heads, rows, keys, dk, dv;
  attn_dtype type;
  test_layout layout;
} shape;

static scene *build(const shape *z, const attn_feature_map *f, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->q = drawn(z->type, z->layout, z->batch, z->heads, z->rows, z->dk, 1, rng);
  s->k = drawn(z->type, z->layout, z->batch, z->kv_heads, z->keys, z->dk, 1, rng);
  s->v = drawn(z->type, z->layout, z->batch, z->kv_heads, z->keys, z->dv, 1, rng);
  s->o = output(z->type, z->layout, z->batch, z->heads, z->rows, z->dv, &s->does.block[0]);
  s->p.map = *f;
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.out[0] = &s->o;
  return s;
}

static shape plain(int64_t heads, int64_t rows, int64_t keys, int64_t dk, int64_t dv) {
  shape z = {1, heads, heads, rows, keys, dk, dv, ATTN_F32, TEST_BHTD};
  return z;
}

/* w_ij of key j for a row at position p: 1, or with gates (1 - g_j) g_{j+1} .. g_p */
static double weight(const scene *s, int64_t b, int64_t kv, int64_t j, int64_t p) {
  if (s->p.rule != ATTN_LINEAR_GATED) return 1;
  const attn_tensor *g = &s->p.rate;
  double w = 1 - oracle_get(g, b, kv, j, 0);
  for (int64_t t = j + 1; t <= p; t++) w *= oracle_get(g, b, kv, t, 0);
  return w;
}

/* Every row as a sum over the keys it sees. */
static void check(const scene *s, double tolerance, const char *what) {
  const attn_feature_map *f = &s->p.map;
  const int64_t dk = s->k.dim, dv = s->v.dim, m = map_count(f, dk), group = s->q.heads / s->k.heads;
  const int64_t off = s->p.has_q_off ? s->p.q_off : s->k.len - s->q.len;
  const attn_key_stab stab = f->key_stab != ATTN_STAB_DEFAULT ? f->key_stab
                             : linear_causal(&s->p)           ? ATTN_STAB_RUNNING
                                                              : ATTN_STAB_GLOBAL;
  const double eps = map_eps(f, stab);
  const size_t keys_of = (size_t)(s->k.len * m + 1);
  double *phi = test_mem(keys_of * sizeof *phi), *loose = test_mem(keys_of * sizeof *loose);
  double *p = test_mem((size_t)m * sizeof *p), *wrong = test_mem((size_t)m * sizeof *wrong);
  double *num = test_mem((size_t)dv * sizeof *num), *size = test_mem((size_t)dv * sizeof *size);
  for (int64_t n = 0; n < s->q.batch * s->q.heads; n++) {
    const int64_t b = n / s->q.heads, h = n % s->q.heads, kv = h / group;
    const int64_t keys = s->p.kv_len ? s->p.kv_len[b] : s->k.len;
    double c = stab == ATTN_STAB_CONST ? (double)f->key_const : -(double)INFINITY;
    for (int64_t j = 0; j < keys && stab != ATTN_STAB_CONST && map_stabilised(f); j++)
      c = fmax(c, map_top(f, map_x(&s->k, b, kv, j), dk, h));
    for (int64_t j = 0; j < keys; j++)
      map_row(phi + j * m, loose + j * m, f, map_x(&s->k, b, kv, j), dk, h, 1, c, eps);
    for (int64_t i = 0; i < s->q.len; i++) {
      const int64_t at = linear_causal(&s->p) ? (i + off < keys ? i + off : keys - 1) : keys - 1;
      const int64_t exists = !s->p.q_len || i < s->p.q_len[b];
      double den = 0, total = 0;
      map_row(p, wrong, f, map_x(&s->q, b, h, i), dk, h, 0, 0, eps);
      /* params.eps is in units of the largest key that the row sees, features here of the last row's */
      double row_c = map_stabilised(f) && stab != ATTN_STAB_CONST ? -(double)INFINITY : c;
      for (int64_t j = 0; j <= at && map_stabilised(f) && stab != ATTN_STAB_CONST; j++)
        row_c = fmax(row_c, map_top(f, map_x(&s->k, b, kv, j), dk, h));
      const double unit = row_c == c ? 1 : exp(row_c - c);
      for (int64_t x = 0; x < dv; x++) num[x] = size[x] = 0;
      for (int64_t j = 0; j <= at && exists; j++) {
        const double w = weight(s, b, kv, j, at);
        double a = 0, slack = 0;
        for (int64_t r = 0; r < m; r++) {
          const double y = phi[j * m + r];
          a += p[r] * y;
          slack += tolerance * fabs(p[r] * y) + wrong[r] * fabs(y) + fabs(p[r]) * loose[j * m + r];
        }
        den += w * a, total += w * slack;
        for (int64_t x = 0; x < dv; x++) {
          const double value = oracle_get(&s->v, b, kv, j, x);
          num[x] += w * a * value, size[x] += w * slack * fabs(value);
        }
      }
      if (f->kind == ATTN_FEATURES_RFA)
        den = fmax(den, unit * (s->p.eps != 0 ? (double)s->p.eps : 1e-4));
      else
        den += unit * (double)s->p.eps;
      for (int64_t x = 0; x < dv; x++) {
        const double want = den == 0 || at < 0 || !exists ? 0 : num[x] / den;
        const double most = den == 0 ? 0 : (size[x] + total * fabs(want)) / fabs(den);
        value_check(oracle_get(&s->o, b, h, i, x), want, 2 * most + 1e-37, s->o.dtype, what, b, h,
                    i, x);
      }
    }
  }
}

static attn_tensor gates(const scene *s, test_rng *rng, double least) {
  attn_tensor g = test_tensor(ATTN_F32, TEST_PADDED, s->k.batch, s->k.heads, s->k.len, 1);
  for (int64_t b = 0; b < g.batch; b++)
    for (int64_t h = 0; h < g.heads; h++)
      for (int64_t j = 0; j < g.len; j++)
        oracle_set(&g, b, h, j, 0, least + (1 - least) * (double)test_range(rng, 0, 256) / 256);
  return g;
}

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

static scene *any(attn_feature_kind kind, int64_t n, test_rng *rng) {
  const int64_t kv = test_range(rng, 1, 2);
  const int64_t group = test_range(rng, 1, 3), rows = test_range(rng, 0, 15);
  const int64_t keys = test_range(rng, 0, 30), dk = n % 7 == 0 ? 1 : test_range(rng, 1, 12);
  shape z = plain(kv * group, rows, keys, dk, test_range(rng, 1, 20));
  z.kv_heads = kv, z.batch = test_range(rng, 1, 2);
  if (n % 10 == 4 || n % 10 == 9) { /* several chunks */
    z.rows = test_range(rng, 60, 80), z.keys = test_range(rng, 60, 150);
    z.heads = z.kv_heads = z.batch = 1;
  }
  z.type = floats[n % 4 % 3], z.layout = (test_layout)(n / 2 % 4);
  const int64_t directions = test_range(rng, 1, 20);
  const attn_feature_map f = map_of(kind, n % 3 == 0 ? z.heads : 1, directions, z.dk, test_u64(rng),
                                    floats[n / 3 % 5 % 3]);
  scene *s = build(&z, &f, rng);
  s->p.causal = linear_order(n % 2 != 0);
  if (n % 4 == 1) s->p.has_q_off = 1, s->p.q_off = test_range(rng, -10, z.keys + 5);
  if (n % 4 > 1) s->p.kv_len = test_lengths(z.batch, z.keys, rng);
  if (n % 5 == 2) s->p.q_len = test_lengths(z.batch, z.rows, rng);
  if (n % 3 == 1) s->p.chunk = test_range(rng, 1, 64);
  return s;
}

/* ---- random feature attention ---------------------------------------------------------------*/

void E2_random(void **state) {
  (void)state;
  test_rng rng = test_seed(4300);
  for (int64_t n = test_count(50, 20); n-- > 0; test_mem_release()) {
    scene *s = any(ATTN_FEATURES_RFA, n, &rng);
    attn_feature_map *f = &s->p.map;
    f->keep_norm = n % 4 == 3;
    if (n % 5 == 1) f->sigma = 1.4f;
    if (n % 4 == 2) {
      f->sigmas = test_floats(s->k.dim, 0, &rng);
      for (int64_t c = 0; c < s->k.dim; c++)
        ((float *)(uintptr_t)f->sigmas)[c] = 0.75f + 0.5f * (float)(c % 3);
    }
    if (linear_causal(&s->p) && n % 3 != 1 && !f->keep_norm)
      s->p.rule = ATTN_LINEAR_GATED, s->p.rate = gates(s, &rng, n % 2 ? 0.5 : 0);
    if (n % 6 == 0) s->p.eps = 0.05f;
    promise_run(&s->does);
    check(s, 1e-6, "random features");
  }
}

/* The recurrence at the ends of a gate: 1 keeps the state as it is, 0 forgets all before; a first key
 * with gate 1 leaves nothing. All gates equal: weights (1 - g) g^(i - j). */
void E2_gates(void **state) {
  (void)state;
  test_rng rng = test_seed(4301);
  const shape z = plain(1, 20, 20, 6, 5);
  const attn_feature_map f = map_of(ATTN_FEATURES_RFA, 1, 24, 6, 9, ATTN_F32);
  scene *s = build(&z, &f, &rng);
  s->p.causal = ATTN_LINEAR_CAUSAL, s->p.rule = ATTN_LINEAR_GATED, s->p.rate = gates(s, &rng, 1);
  s->p.eps = 1e-30f;
  oracle_set(&s->p.rate, 0, 0, 4, 0, 0.5), oracle_set(&s->p.rate, 0, 0, 9, 0, 0);
  promise_run(&s->does);
  check(s, 1e-6, "gates of 0 and 1");
  for (int64_t x = 0; x < 5; x++) {
    for (int64_t i = 0; i < 4; i++) assert_true(oracle_get(&s->o, 0, 0, i, x) == 0);
    for (int64_t i = 9; i < 20;
         i++) { /* only key 9 is left: its value, where the sum is positive */
      const double got = oracle_get(&s->o, 0, 0, i, x), v = oracle_get(&s->v, 0, 0, 9, x);
      double a = 0, y[48], p[48], slack[48];
      map_row(y, slack, &f, map_x(&s->k, 0, 0, 9), 6, 0, 1, 0, 0);
      map_row(p, slack, &f, map_x(&s->q, 0, 0, i), 6, 0, 0, 0, 0);
      for (int r = 0; r < 48; r++) a += y[r] * p[r];
      if (a > 0.05) assert_true(fabs(got - v) <= 1e-5 * fabs(v));
    }
  }
  scene *t = build(&z, &f, &rng);
  test_copy(t->q, s->q), test_copy(t->k, s->k), test_copy(t->v, s->v);
  t->p = s->p, t->p.rate = absent(), t->p.rate_const = 0.75f, t->p.rule = ATTN_LINEAR_GATED;
  test_fill_value(s->p.rate, 0.75);
  promise_run(&s->does), promise_run(&t->does);
  check(s, 1e-6, "equal gates");
  test_assert_near(s->o, t->o, 1e-5, "one gate for all keys");
}

/* No result depends on how long q and k are; with many directions it is softmax attention of unit
 * vectors with scale 1 / sigma^2. */
void E2_softmax_of_unit_vectors(void **state) {
  (void)state;
  test_rng rng = test_seed(4302);
  const int64_t d = test_count(6000, 1500);
  const shape z = plain(1, 5, 12, 4, 3);
  attn_feature_map f = map_of(ATTN_FEATURES_RFA, 1, d, 4, 10, ATTN_F32);
  f.sigma = 0.9f;
  scene *s = build(&z, &f, &rng), *t = build(&z, &f, &rng);
  test_copy(t->v, s->v);
  for (int64_t c = 0; c < 4; c++) {
    for (int64_t i = 0; i < 5; i++)
      oracle_set(&t->q, 0, 0, i, c, oracle_get(&s->q, 0, 0, i, c) * (double)(i + 1) * 0.25);
    for (int64_t i = 0; i < 12; i++)
      oracle_set(&t->k, 0, 0, i, c, oracle_get(&s->k, 0, 0, i, c) * (double)(i + 1) * 3);
  }
  promise_run(&s->does), promise_run(&t->does);
  test_assert_near(s->o, t->o, 2e-5, "length of rows");
  for (int64_t i = 0; i < 5; i++) {
    bag a = bag_of(12, 3);
    const double *q = map_x(&s->q, 0, 0, i);
    for (int64_t j = 0; j < 12; j++) {
      const double *k = map_x(&s->k, 0, 0, j);
      double dot = 0, qq = 0, kk = 0;
      for (int c = 0; c < 4; c++) dot += q[c] * k[c], qq += q[c] * q[c], kk += k[c] * k[c];
      bag_add(&a, dot / sqrt(qq * kk) / 0.81, &s->v, 0, 0, j);
    }
    bag_close(&a);
    bag_check(&a, &s->o, NULL, 0, 0, i, 6 / sqrt((double)d), "softmax");
  }
}

void E2_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(4303);
  static float bad[4] = {1, -1, 1, 1};
  for (int n = 0; n < 9; n++, test_mem_release()) {
    const shape z = plain(2, 6, 6, 4, 3);
    const attn_feature_map f = map_of(ATTN_FEATURES_RFA, 1, 8, 4, 1, ATTN_F32);
    scene *s = build(&z, &f, &rng);
    attn_status want = ATTN_E_VALUE;
    const char *word = "map.sigma";
    s->p.causal = ATTN_LINEAR_CAUSAL, s->p.rule = ATTN_LINEAR_GATED, s->p.rate = gates(s, &rng, 0);
    switch (n) {
      case 0: s->p.map.sigma = -2; break;
      case 1: s->p.map.sigmas = bad; break;
      case 2: s->p.map.sigmas = bad, s->p.map.keep_norm = 1; break;
      case 3: s->p.map.w.len = 0, want = ATTN_E_SHAPE, word = "map.w"; break;
      case 4: oracle_set(&s->p.rate, 0, 1, 3, 0, 1.5), word = "params.rate"; break;
      case 5: oracle_set(&s->p.rate, 0, 1, 3, 0, -0.5), word = "params.rate"; break;
      case 6: s->p.causal = ATTN_LINEAR_BIDIRECTIONAL, want = ATTN_E_RANGE, word = "causal"; break;
      case 7: s->p.map.w.data = NULL, want = ATTN_E_NULL, word = "map.w"; break;
      default:
        s->p.rule = ATTN_LINEAR_DELTA, s->p.map.keep_norm = 1, word = "map.keep_norm";
        s->p.map.norm = ATTN_FEATURE_NORM_NONE;
    }
    promise_reject(&s->does, want, word);
  }
}

void E2_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(4304);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    shape z = plain(2, 150, 150, 10, 7);
    const attn_feature_map f = map_of(ATTN_FEATURES_RFA, n ? 2 : 1, 20, 10, 1, ATTN_F32);
    scene *s = build(&z, &f, &rng);
    s->p.causal = linear_order(n != 1), s->p.map.keep_norm = n == 2;
    if (n == 0) s->p.rule = ATTN_LINEAR_GATED, s->p.rate = gates(s, &rng, 0.5);
    promise_keep(&s->does);
  }
}

/* ---- Performer ------------------------------------------------------------------------------*/

void E3_random(void **state) {
  (void)state;
  test_rng rng = test_seed(4310);
  static const attn_activation some[] = {ATTN_ACT_RELU, ATTN_ACT_RELU2, ATTN_ACT_EXP,
                                         ATTN_ACT_SIGMOID};
  static const attn_feature_kind kinds[] = {ATTN_FEATURES_SOFTMAX, ATTN_FEATURES_HYPERBOLIC,
                                            ATTN_FEATURES_ACT};
  for (int64_t n = test_count(60, 20); n-- > 0; test_mem_release()) {
    scene *s = any(kinds[n / 2 % 3], n, &rng);
    attn_feature_map *f = &s->p.map;
    f->activation = some[n % 4];
    if (n % 4 == 1) f->scale = 0.5f;
    if (n % 7 == 3) s->p.eps = 0.01f;
    const int stab = (int)(n / 6 % 4);
    f->key_const = 1;
    f->key_stab = (attn_key_stab)stab;
    if (stab == ATTN_STAB_GLOBAL && linear_causal(&s->p)) f->key_stab = ATTN_STAB_RUNNING;
    if (stab != ATTN_STAB_RUNNING && !linear_causal(&s->p) && n % 3 == 0) f->eps = 0.02f;
    promise_run(&s->does);
    check(s, 1e-6, "performer");
  }
}

/* Without eps no constant in c changes the result, nor does the rule for c; with eps it does. */
void E3_stabilisers(void **state) {
  (void)state;
  test_rng rng = test_seed(4311);
  for (int causal = 0; causal < 2; causal++)
    for (int hyperbolic = 0; hyperbolic < 2; hyperbolic++, test_mem_release()) {
      const shape z = plain(1, 70, 130, 8, 5);
      attn_feature_map f = map_of(hyperbolic ? ATTN_FEATURES_HYPERBOLIC : ATTN_FEATURES_SOFTMAX, 1,
                                  21, 8, 3, ATTN_F32);
      f.eps = ATTN_ZERO;
      scene *s = build(&z, &f, &rng);
      s->p.causal = linear_order(causal);
      promise_run(&s->does);
      check(s, 1e-6, "eps = 0");
      scene *t = build(&z, &f, &rng);
      t->q = s->q, t->k = s->k, t->v = s->v, t->p = s->p;
      for (int stab = causal ? ATTN_STAB_CONST : ATTN_STAB_GLOBAL; stab < ATTN_STAB_COUNT; stab++) {
        t->p.map.key_stab = (attn_key_stab)stab, t->p.map.key_const = 7;
        promise_run(&t->does);
        test_assert_near(t->o, s->o, 2e-5, "another c");
      }
      t->p.map.key_stab = ATTN_STAB_CONST, t->p.map.eps = 0.01f;
      promise_run(&t->does);
      assert_false(test_same(t->o, s->o));
    }
}

/* Values that are one constant give it; the last causal row is the row that sees all. */
void E3_constant_and_last_row(void **state) {
  (void)state;
  test_rng rng = test_seed(4312);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    const shape z = plain(1, 90, 90, 7, 4);
    attn_feature_map f =
        map_of(n % 2 ? ATTN_FEATURES_HYPERBOLIC : ATTN_FEATURES_SOFTMAX, 1, 19, 7, 4, ATTN_F32);
    f.key_stab = n < 2 ? ATTN_STAB_RUNNING : ATTN_STAB_CONST;
    scene *s = build(&z, &f, &rng);
    s->p.causal = ATTN_LINEAR_CAUSAL;
    scene *t = build(&z, &f, &rng);
    t->q = s->q, t->k = s->k, t->v = s->v;
    promise_run(&s->does), promise_run(&t->does);
    test_assert_near(test_rows(s->o, 89, 1), test_rows(t->o, 89, 1), 1e-5, "last row");
    test_fill_value(s->v, 2.5);
    promise_run(&s->does), promise_run(&t->does);
    for (int64_t i = 0; i < 90; i++)
      for (int64_t x = 0; x < 4; x++) {
        assert_true(fabs(oracle_get(&s->o, 0, 0, i, x) - 2.5) < 1e-5);
        assert_true(fabs(oracle_get(&t->o, 0, 0, i, x) - 2.5) < 1e-5);
      }
  }
}

/* Token by token over a state, in pieces, and at once: the same. A larger key after smaller ones, and
 * far larger ones, rescale the state. */
void E3_steps(void **state) {
  (void)state;
  test_rng rng = test_seed(4313);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    const shape z = plain(2, 75, 75, 6, 5);
    const attn_feature_map f = map_of(n % 2 ? ATTN_FEATURES_HYPERBOLIC : ATTN_FEATURES_SOFTMAX,
                                      n < 2 ? 1 : 2, 17, 6, 4, ATTN_F32);
    scene *all = build(&z, &f, &rng), *part = build(&z, &f, &rng);
    all->p.causal = part->p.causal = ATTN_LINEAR_CAUSAL;
    test_fill_row(all->k, 0, 0, 30, 3), test_fill_row(all->k, 0, 1, 50, -4);
    test_fill_row(all->k, 0, 1, 0, 5);
    promise_run(&all->does);
    check(all, 1e-6, "at once");
    attn_ctx ctx = test_ctx();
    attn_linear_params p = part->p;
    p.state_bytes = attn_linear_state_bytes(&p, 1, 2, 2, 6, 5);
    assert_true(p.state_bytes > 0);
    p.state = test_mem(p.state_bytes);
    assert_int_equal(attn_linear_begin(p.state, p.state_bytes, &p, 1, 2, 2, 6, 5, &ctx), ATTN_OK);
    static const int64_t cut[] = {0, 1, 2, 3, 5, 9, 40, 41, 42, 74, 75};
    for (int i = 0; i + 1 < (int)(sizeof cut / sizeof *cut); i++) {
      const int64_t from = cut[i], len = cut[i + 1] - from;
      assert_int_equal(
          attn_linear(test_rows(part->o, from, len), test_rows(all->q, from, len),
                      test_rows(all->k, from, len), test_rows(all->v, from, len), &p, &ctx),
          ATTN_OK);
      assert_int_equal(ctx.report.isa, test_isa);
    }
    test_assert_near(part->o, all->o, 2e-5, "in pieces");
    p.map.draw = 1; /* the state was made under another */
    const attn_status got = attn_linear(test_rows(part->o, 0, 1), test_rows(all->q, 0, 1),
                                        test_rows(all->k, 0, 1), test_rows(all->v, 0, 1), &p, &ctx);
    assert_int_equal(got, ATTN_E_VALUE);
    assert_non_null(strstr(ctx.reason, "draw"));
  }
}

/* Row i, far out, has one feature only, that of the largest u: o is the sum of the values by it. */
static void far_query(const scene *s, int64_t i) {
  const attn_feature_map *f = &s->p.map;
  const double *q = map_x(&s->q, 0, 0, i), scale = pow((double)s->k.dim, -0.25);
  const int64_t n = linear_causal(&s->p) ? i + s->k.len - s->q.len + 1 : s->k.len;
  double top = -(double)INFINITY, den = 0, num[8] = {0};
  int64_t best = 0;
  for (int64_t r = 0; r < f->w.len; r++) {
    double u = 0;
    for (int64_t c = 0; c < s->k.dim; c++) u += q[c] * oracle_get(&f->w, 0, 0, r, c);
    if (u > top) top = u, best = r;
  }
  for (int64_t j = 0; j < n; j++) {
    const double *k = map_x(&s->k, 0, 0, j);
    double u = 0;
    for (int64_t c = 0; c < s->k.dim; c++)
      u += scale * k[c] * (oracle_get(&f->w, 0, 0, best, c) - scale * k[c] / 2);
    den += exp(u);
    for (int64_t x = 0; x < s->v.dim; x++) num[x] += exp(u) * oracle_get(&s->v, 0, 0, j, x);
  }
  for (int64_t x = 0; x < s->v.dim; x++)
    value_check(oracle_get(&s->o, 0, 0, i, x), num[x] / den, 1e-5, ATTN_F32, "far", 0, 0, i, x);
}

/* Keys beyond kv_len do not exist, although eps would make features of them; rows that see no key are 0.
 * Without eps no length of a query or of all keys makes the weights vanish. */
void E3_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(4314);
  static int32_t len[1] = {40};
  for (int causal = 0; causal < 2; causal++, test_mem_release()) {
    const shape z = plain(1, 20, 70, 6, 5), cut = plain(1, 20, 40, 6, 5);
    const attn_feature_map f = map_of(ATTN_FEATURES_SOFTMAX, 1, 17, 6, 4, ATTN_F32);
    scene *s = build(&z, &f, &rng), *t = build(&cut, &f, &rng);
    s->p.kv_len = len, s->p.causal = t->p.causal = linear_order(causal);
    s->p.has_q_off = t->p.has_q_off = 1, s->p.q_off = t->p.q_off = 22;
    test_copy(t->q, s->q), test_copy(t->k, test_rows(s->k, 0, 40));
    test_copy(t->v, test_rows(s->v, 0, 40));
    for (int64_t j = 40; j < 70; j++)
      test_fill_row(s->k, 0, 0, j, NAN), test_fill_row(s->v, 0, 0, j, NAN);
    promise_run(&s->does), promise_run(&t->does);
    test_assert_same(s->o, t->o, "padded keys");
    len[0] = 0;
    promise_run(&s->does);
    for (int64_t i = 0; i < 20; i++) assert_true(oracle_get(&s->o, 0, 0, i, 2) == 0);
    len[0] = 40;
    scene *u = build(&cut, &f, &rng);
    u->p.causal = linear_order(causal), u->p.map.eps = ATTN_ZERO;
    test_fill_row(u->q, 0, 0, 3, 500);
    promise_run(&u->does);
    far_query(u, 3);
    for (int64_t j = 0; j < 40; j++) test_fill_row(u->k, 0, 0, j, 500);
    promise_run(&u->does);
    for (int64_t i = 0; i < 20; i++)
      for (int64_t x = 0; x < 5; x++) { /* keys that are all alike: the mean of the values */
        const int64_t n = causal ? i + 21 : 40;
        double mean = 0;
        for (int64_t j = 0; j < n; j++) mean += oracle_get(&u->v, 0, 0, j, x) / (double)n;
        assert_true(fabs(oracle_get(&u->o, 0, 0, i, x) - mean) < 1e-5);
      }
  }
}

/* More directions, less error against softmax attention. */
void E3_error_falls(void **state) {
  (void)state;
  test_rng rng = test_seed(4315);
  const shape z = plain(1, 40, 60, 8, 6);
  double error[2] = {0, 0};
  scene *s = NULL;
  for (int n = 0; n < 8; n++) { /* four draws of each */
    const int many = n % 2;
    const attn_feature_map f =
        map_of(ATTN_FEATURES_SOFTMAX, 1, many ? 1600 : 64, 8, (uint64_t)n, ATTN_F32);
    scene *t = build(&z, &f, &rng);
    if (s) t->q = s->q, t->k = s->k, t->v = s->v;
    s = t;
    s->p.map.eps = ATTN_ZERO;
    promise_run(&s->does);
    for (int64_t i = 0; i < 40; i++) {
      bag a = bag_of(60, 6);
      for (int64_t j = 0; j < 60; j++)
        bag_add(&a, dot_rows(&s->q, &s->k, 0, 0, i, j) / sqrt(8), &s->v, 0, 0, j);
      bag_close(&a);
      for (int64_t x = 0; x < 6; x++) error[many] += pow(oracle_get(&s->o, 0, 0, i, x) - a.o[x], 2);
    }
  }
  if (!(error[1] < error[0] / 3)) /* 25 times the directions */
    fail_msg("errors %g, %g", error[0], error[1]);
}

void E3_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(4316);
  for (int n = 0; n < 9; n++, test_mem_release()) {
    const shape z = plain(2, 6, 6, 4, 3);
    const attn_feature_map f = map_of(ATTN_FEATURES_SOFTMAX, 1, 8, 4, 1, ATTN_F32);
    scene *s = build(&z, &f, &rng);
    attn_status want = ATTN_E_VALUE;
    const char *word = "map.eps";
    s->p.causal = ATTN_LINEAR_CAUSAL;
    switch (n) {
      case 0: s->p.map.w.len = 0, want = ATTN_E_SHAPE, word = "map.w"; break;
      case 1: s->p.map.scale = -1, word = "map.scale"; break;
      case 2: s->p.map.eps = -1; break;
      case 3: s->p.map.eps = 1e-3f; break; /* causal: running */
      case 4: s->p.map.key_stab = ATTN_STAB_GLOBAL, word = "map.key_stab"; break;
      case 5:
        s->p.causal = ATTN_LINEAR_BIDIRECTIONAL, s->p.map.eps = 1e-3f,
        s->p.map.key_stab = ATTN_STAB_RUNNING;
        break;
      case 6: s->p.eps = -1, word = "params.eps"; break;
      case 7: s->p.map.key_const = NAN, word = "map.key_const"; break;
      default:
        s->p.rule = ATTN_LINEAR_DELTA, s->p.map.norm = ATTN_FEATURE_NORM_NONE;
        s->p.map.key_stab = ATTN_STAB_RUNNING, word = "map.key_stab";
    }
    promise_reject(&s->does, want, word);
  }
}

void E3_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(4317);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    shape z = plain(4, 70, 130, 10, 7);
    z.kv_heads = 2;
    const attn_feature_map f = map_of(n % 2 ? ATTN_FEATURES_HYPERBOLIC : ATTN_FEATURES_SOFTMAX,
                                      n ? 1 : 4, 24, 10, 1, ATTN_F32);
    scene *s = build(&z, &f, &rng);
    s->p.causal = linear_order(n < 2);
    promise_keep(&s->does);
  }
}
