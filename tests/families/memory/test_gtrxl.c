/* tests/families/memory/test_gtrxl.c owns gates in place of residual sums and the block with two of them (K5): both in
 * float64 from the formulas. */

#include "computes.h"
#include "layers.h"
#include "segment.h"

static double logistic(double x) { return 1 / (1 + exp(-x)); }

/* Element (b, i, c) of rows times a weight. */
static double times(const cube *x, const attn_tensor *w, int64_t b, int64_t i, int64_t c) {
  double sum = 0;
  for (int64_t d = 0; d < x->dim; d++) sum += cube_at(x, b, 0, i)[d] * oracle_get(w, 0, 0, d, c);
  return sum;
}

static cube gate_wanted(const cube *x, const cube *y, const attn_gtrxl_gate_params *p) {
  cube o = cube_of(x->batch, 1, x->len, x->dim), rx = cube_of(x->batch, 1, x->len, x->dim);
  for (int64_t b = 0; b < x->batch; b++)
    for (int64_t i = 0; i < x->len; i++) {
      const double *u = cube_at(x, b, 0, i), *v = cube_at(y, b, 0, i);
      for (int64_t c = 0; c < x->dim && p->kind == ATTN_GTRXL_GRU; c++)
        cube_at(&rx, b, 0, i)[c] =
            u[c] * logistic(times(y, &p->w_r, b, i, c) + times(x, &p->u_r, b, i, c));
      for (int64_t c = 0; c < x->dim; c++) {
        double bias = p->b_g.data                   ? oracle_get(&p->b_g, 0, 0, 0, c)
                      : p->b == 0 && !signbit(p->b) ? 2
                                                    : (double)p->b;
        double *to = cube_at(&o, b, 0, i) + c, z;
        switch (p->kind) {
          case ATTN_GTRXL_GRU:
            z = logistic(times(y, &p->w_z, b, i, c) + times(x, &p->u_z, b, i, c) - bias);
            *to = (1 - z) * u[c] +
                  z * tanh(times(y, &p->w_g, b, i, c) + times(&rx, &p->u_g, b, i, c));
            break;
          case ATTN_GTRXL_INPUT: *to = logistic(times(x, &p->w_g, b, i, c)) * u[c] + v[c]; break;
          case ATTN_GTRXL_OUTPUT:
            *to = u[c] + logistic(times(x, &p->w_g, b, i, c) - bias) * v[c];
            break;
          case ATTN_GTRXL_HIGHWAY:
            z = logistic(times(x, &p->w_g, b, i, c) + bias);
            *to = z * u[c] + (1 - z) * v[c];
            break;
          case ATTN_GTRXL_SIGTANH:
            *to = u[c] +
                  logistic(times(y, &p->w_g, b, i, c) - bias) * tanh(times(y, &p->u_g, b, i, c));
            break;
          default: *to = u[c] + v[c];
        }
      }
    }
  return o;
}

/* ---- the gate -------------------------------------------------------------------------------*/

typedef struct gate_scene {
  attn_tensor o, x, y;
  attn_gtrxl_gate_params p;
  promise does;
} gate_scene;

static attn_status gate_call(void *at, attn_ctx *ctx) {
  gate_scene *s = at;
  return attn_gtrxl_gate(s->o, s->x, s->y, &s->p, ctx);
}
static size_t gate_ask(void *at, const attn_ctx *ctx) {
  gate_scene *s = at;
  return attn_gtrxl_gate_workspace(s->o, s->x, s->y, &s->p, ctx);
}

static attn_dtype some_type(test_rng *rng) {
  return test_range(rng, 0, 2) ? ATTN_F32 : (attn_dtype)test_range(rng, 1, 2);
}

static attn_gtrxl_gate_params drawn_gate(attn_gtrxl_kind kind, int64_t dm, double size, int bias,
                                         attn_dtype type, test_rng *rng) {
  attn_gtrxl_gate_params p;
  memset(&p, 0, sizeof p);
  attn_tensor *w[6] = {&p.w_r, &p.u_r, &p.w_z, &p.u_z, &p.w_g, &p.u_g};
  p.kind = kind;
  for (int i = 0; i < 6; i++)
    *w[i] = drawn(i % 2 ? type : ATTN_F32, i % 3 ? TEST_BHTD : TEST_PADDED, 1, 1, dm, dm,
                  size / sqrt((double)dm), rng);
  if (bias) p.b_g = drawn(type, TEST_BHTD, 1, 1, 1, dm, 1, rng);
  return p;
}

static gate_scene *gate_build(attn_gtrxl_kind kind, int64_t batch, int64_t len, int64_t dm,
                              double size, int bias, test_rng *rng) {
  gate_scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const attn_dtype tx = some_type(rng), ty = some_type(rng), to = some_type(rng),
                   tw = some_type(rng);
  s->x = drawn(tx, (test_layout)test_range(rng, 0, TEST_ONE_ROW), batch, 1, len, dm, 1.5, rng);
  s->y = drawn(ty, (test_layout)test_range(rng, 0, TEST_ONE_ROW), batch, 1, len, dm, 1.5, rng);
  s->p = drawn_gate(kind, dm, size, bias, tw, rng);
  s->o = output(to, (test_layout)test_range(rng, 0, TEST_NEGATIVE), batch, 1, len, dm,
                &s->does.block[0]);
  s->does.call = gate_call, s->does.ask = gate_ask, s->does.scene = s, s->does.out[0] = &s->o;
  return s;
}

static void gate_check(const gate_scene *s, double tolerance, const char *what) {
  const cube x = cube_from(&s->x), y = cube_from(&s->y), want = gate_wanted(&x, &y, &s->p);
  cube_check(&want, &s->o, tolerance, what);
}

void K5_gate_random(void **state) {
  (void)state;
  test_rng rng = test_seed(5001);
  static const float b[] = {0, ATTN_ZERO, 1.25f, -3};
  for (int64_t n = test_count(72, 18); n-- > 0;) {
    const int64_t batch = test_range(&rng, 1, 3), len = test_range(&rng, 1,
                                                                   n % 6 == 5   ? 110
                                                                   : n % 6 == 0 ? 230
                                                                                : 20);
    const int64_t dm = test_range(&rng, 1, 40);
    gate_scene *s = gate_build((attn_gtrxl_kind)(n % ATTN_GTRXL_COUNT), batch, len, dm, 1,
                               test_range(&rng, 0, 2) == 0, &rng);
    s->p.b = b[n / 6 % 4];
    promise_run(&s->does);
    gate_check(s, 1e-5, "gate");
  }
}

/* Columns beyond a block of the item, sums beyond one run. */
void K5_gate_wide(void **state) {
  (void)state;
  test_rng rng = test_seed(5002);
  for (int n = 0; n < 3; n++) {
    const attn_gtrxl_kind kind = n == 2 ? ATTN_GTRXL_SIGTANH : ATTN_GTRXL_GRU;
    gate_scene *s = gate_build(kind, 1, 7 - n, 261 - n, 1, 1, &rng);
    promise_run(&s->does);
    gate_check(s, 1e-5, "wide gate");
  }
}

/* A bias that leaves nothing of y: x, bit for bit. */
void K5_gate_closed(void **state) {
  (void)state;
  test_rng rng = test_seed(5003);
  static const attn_gtrxl_kind kinds[] = {ATTN_GTRXL_GRU, ATTN_GTRXL_HIGHWAY, ATTN_GTRXL_OUTPUT,
                                          ATTN_GTRXL_SIGTANH};
  for (int n = 0; n < 8; n++) {
    gate_scene *s = gate_build(kinds[n % 4], 2, 9, 21, 1, 0, &rng);
    s->o = test_tensor(s->x.dtype, TEST_BHTD, 2, 1, 9, 21);
    s->p.b = n < 4 ? 300 : 1e38f;
    promise_run(&s->does);
    test_assert_same(s->o, s->x, "closed gate");
    s->p.b = -s->p.b; /* and one that leaves nothing of x */
    promise_run(&s->does);
    gate_check(s, 1e-5, "open gate");
  }
}

/* Between x and the candidate; saturated candidates are -1 and 1. */
void K5_gate_bounds(void **state) {
  (void)state;
  test_rng rng = test_seed(5004);
  for (int n = 0; n < 6; n++) {
    gate_scene *s = gate_build(ATTN_GTRXL_GRU, 1, 30, 17, n % 2 ? 200 : 2, 0, &rng);
    s->o = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 30, 17);
    promise_run(&s->does);
    for (int64_t i = 0; i < 30 * 17; i++) {
      const double x = oracle_get(&s->x, 0, 0, i / 17, i % 17);
      assert_true(fabs(oracle_get(&s->o, 0, 0, i / 17, i % 17)) <= fmax(fabs(x), 1) * (1 + 1e-6));
    }
    gate_check(s, n % 2 ? 2e-3 : 1e-5, "bounds");
  }
}

/* The same bits by rows, by batch entries, and where these follow one another or not. */
void K5_gate_cuts(void **state) {
  (void)state;
  test_rng rng = test_seed(5005);
  for (int kind = 0; kind < ATTN_GTRXL_COUNT; kind++) {
    gate_scene *s = gate_build((attn_gtrxl_kind)kind, 3, 50, 19, 1, 1, &rng);
    s->x = drawn(ATTN_F32, TEST_BHTD, 3, 1, 50, 19, 1, &rng);
    s->y = drawn(ATTN_F32, TEST_BHTD, 3, 1, 50, 19, 1, &rng);
    s->o = test_tensor(ATTN_F32, TEST_BHTD, 3, 1, 50, 19);
    promise_run(&s->does);
    const attn_tensor x = s->x, y = s->y, o = s->o;
    s->o = test_tensor(ATTN_F32, TEST_PADDED, 3, 1, 50, 19);
    promise_run(&s->does);
    test_assert_same(s->o, o, "apart");
    for (int64_t i = 0; i < 50; i += 17) {
      const int64_t m = 50 - i < 17 ? 50 - i : 17;
      s->x = test_rows(x, i, m), s->y = test_rows(y, i, m);
      s->o = test_tensor(ATTN_F32, TEST_NEGATIVE, 3, 1, m, 19);
      promise_run(&s->does);
      test_assert_same(s->o, test_rows(o, i, m), "rows");
    }
    s->x = test_rows(x, 7, 1), s->y = test_rows(y, 7, 1);
    s->o = test_tensor(ATTN_F32, TEST_BHTD, 3, 1, 1, 19);
    promise_run(&s->does);
    test_assert_same(s->o, test_rows(o, 7, 1), "one row of each entry");
  }
}

void K5_gate_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(5006);
  for (int n = 0; n < 2 * ATTN_GTRXL_COUNT; n++) {
    gate_scene *s = gate_build((attn_gtrxl_kind)(n / 2), 1, 8, 12, 1, 0, &rng);
    s->x = drawn(ATTN_F32, TEST_BHTD, 1, 1, 8, 12, 1, &rng);
    s->y = drawn(ATTN_F32, TEST_BHTD, 1, 1, 8, 12, 1, &rng);
    oracle_set(n % 2 ? &s->x : &s->y, 0, 0, 3, 5, NAN);
    promise_run(&s->does);
    for (int64_t i = 0; i < 8; i++) {
      int found = 0;
      for (int64_t c = 0; c < 12; c++) found |= isnan(oracle_get(&s->o, 0, 0, i, c));
      assert_int_equal(found, i == 3);
    }
  }
}

void K5_gate_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(5007);
  for (int kind = 0; kind < ATTN_GTRXL_RESIDUAL; kind++) {
    gate_scene *s = gate_build((attn_gtrxl_kind)kind, 2, 120, 20, 1, kind % 2, &rng);
    promise_keep(&s->does);
  }
  /* a sum wants no memory */
  gate_scene *s = gate_build(ATTN_GTRXL_RESIDUAL, 2, 3, 5, 1, 0, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(gate_ask(s, &ctx), 0);
  for (int n = 0; n < 2; n++) { /* nothing to do */
    s = gate_build(ATTN_GTRXL_GRU, n ? 0 : 2, n ? 4 : 0, 5, 1, 0, &rng);
    promise_run(&s->does);
    assert_int_equal(gate_ask(s, &ctx), 0);
  }
}

void K5_gate_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(5008);
  for (int n = 0; n < 20; n++) {
    gate_scene *s = gate_build(ATTN_GTRXL_GRU, 2, 4, 6, 1, 1, &rng);
    attn_gtrxl_gate_params *p = &s->p;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->x.len = 3, word = "x must"; break;
      case 1: s->y.dim = 5, word = "y must"; break;
      case 2: s->y.batch = 1, word = "y must"; break;
      case 3: s->o.heads = 2, word = "o must"; break;
      case 4: p->w_r.len = 5, word = "params.w_r must"; break;
      case 5: p->u_r.dim = 5, word = "params.u_r must"; break;
      case 6: p->w_z.data = NULL, want = ATTN_E_NULL, word = "params.w_z.data"; break;
      case 7: p->u_z.heads = 2, word = "params.u_z must"; break;
      case 8: p->w_g.batch = 2, word = "params.w_g must"; break;
      case 9: p->u_g.data = NULL, want = ATTN_E_NULL, word = "params.u_g.data"; break;
      case 10: p->b_g.dim = 5, word = "params.b_g must"; break;
      case 11: p->b_g.len = 2, word = "params.b_g must"; break;
      case 12: p->kind = ATTN_GTRXL_COUNT, want = ATTN_E_RANGE, word = "params.kind"; break;
      case 13: p->kind = (attn_gtrxl_kind)-1, want = ATTN_E_RANGE, word = "params.kind"; break;
      case 14: p->b = (float)NAN, want = ATTN_E_VALUE, word = "params.b must"; break;
      case 15: p->b = (float)INFINITY, want = ATTN_E_VALUE, word = "params.b must"; break;
      case 16: s->x = s->o, want = ATTN_E_OVERLAP, word = "o is"; break;
      case 17:
        p->w_z.data = s->o.data, p->w_z.dtype = s->o.dtype;
        want = ATTN_E_OVERLAP, word = "o is";
        break;
      case 18: s->y.dtype = (attn_dtype)99, want = ATTN_E_DTYPE, word = "y.dtype"; break;
      default: s->o.stride_len = 1, want = ATTN_E_STRIDE, word = "o is"; break;
    }
    promise_reject(&s->does, want, word);
  }
  gate_scene *s = gate_build(ATTN_GTRXL_GRU, 2, 4, 6, 1, 1, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_gtrxl_gate(s->o, s->x, s->y, NULL, &ctx), ATTN_E_NULL);
  assert_non_null(strstr(ctx.reason, "params"));
  assert_int_equal(attn_gtrxl_gate_workspace(s->o, s->x, s->y, NULL, &ctx),
                   ATTN_WORKSPACE_REJECTED);
  /* what a kind does not read may be anything */
  s->p.kind = ATTN_GTRXL_INPUT;
  s->p.w_r.data = s->p.u_r.data = s->p.w_z.data = s->p.u_z.data = s->p.u_g.data = NULL;
  s->p.b_g.dim = 99;
  promise_run(&s->does);
}

/* ---- the block ------------------------------------------------------------------------------*/

typedef struct block_scene {
  attn_tensor o, h;
  attn_gtrxl_params p;
  promise does;
} block_scene;

static attn_status block_call(void *at, attn_ctx *ctx) {
  block_scene *s = at;
  return attn_gtrxl(s->o, s->h, &s->p, ctx);
}
static size_t block_ask(void *at, const attn_ctx *ctx) {
  block_scene *s = at;
  return attn_gtrxl_workspace(s->o, s->h, &s->p, ctx);
}

typedef struct block_shape {
  int64_t batch, tokens, memory, dm, heads, kv_heads, width, dff;
  attn_gtrxl_kind kind;
  int relative;
  attn_dtype type;
} block_shape;

static block_scene *block_build(const block_shape *x, test_rng *rng) {
  const segment_shape part = {
      x->batch, x->tokens,         x->memory, 0, x->dm,       x->heads, x->kv_heads, x->width,
      x->width, ATTN_SUBLAYER_PRE, 0,         0, x->relative, 3,        x->type,     0,
      0};
  segment_scene *layer = segment_build(&part, rng);
  block_scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->h = layer->h, s->p.attention = layer->p;
  s->p.attention.sublayer = ATTN_SUBLAYER_POST; /* which is not read */
  s->p.attention.attention.usage = absent();
  s->p.gate_1 = drawn_gate(x->kind, x->dm, 1, 0, x->type, rng);
  s->p.gate_2 = drawn_gate(ATTN_GTRXL_GRU, x->dm, 1, 1, ATTN_F32, rng);
  s->p.norm_ff = drawn_norm(x->dm, rng);
  s->p.ff = drawn_feed(x->dm, x->dff, x->dm, 1, x->type, rng);
  if (x->dm % 4 == 2) s->p.attention.b_o = drawn(x->type, TEST_BHTD, 1, 1, 1, x->dm, 0.7, rng);
  s->o = output(x->type, TEST_PADDED, x->batch, 1, x->tokens, x->dm, &s->does.block[0]);
  s->does.call = block_call, s->does.ask = block_ask, s->does.scene = s;
  s->does.out[0] = &s->o, s->does.out[1] = &s->p.attention.attention.lse;
  return s;
}

static double distance_row(const attn_segment_layer_params *p, int64_t distance, int64_t h,
                           int64_t c, int64_t dk) {
  const attn_tensor *r = &p->attention.r;
  const int64_t dm = p->w_q.len, half = dm / 2;
  if (r->data) return oracle_get(r, 0, r->heads > 1 ? h : 0, distance, c);
  double sum = 0;
  for (int64_t e = 0; e < dm; e++) {
    const double phi = (double)distance * pow(10000, -2.0 * (double)(e % half) / (double)dm);
    sum += (e < half ? sin(phi) : cos(phi)) * oracle_get(&p->w_r, 0, 0, e, h * dk + c);
  }
  return sum;
}

static void block_check(const block_scene *s, double tolerance, const char *what) {
  const attn_segment_layer_params *p = &s->p.attention;
  const int64_t b_all = s->h.batch, t = s->h.len, m = p->memory.len, dm = s->h.dim;
  const int64_t heads = p->heads, dk = p->w_q.dim / heads, dv = p->w_v.dim / p->kv_heads;
  const int relative = p->w_r.data || p->attention.r.data;
  const attn_tensor none = absent();
  const cube h = cube_from(&s->h);
  cube all = cube_of(b_all, 1, m + t, dm), a = cube_of(b_all, 1, t, heads * dv);
  for (int64_t b = 0; b < b_all; b++)
    for (int64_t j = 0; j < m + t; j++)
      for (int64_t c = 0; c < dm; c++)
        cube_at(&all, b, 0, j)[c] =
            j < m ? ring_get(&p->memory, b, j, c) : cube_at(&h, b, 0, j - m)[c];
  const cube n = rows_norm(&all, NULL, &p->norm);
  const cube q = rows_dense(&n, &p->w_q, &none), k = rows_dense(&n, &p->w_k, &none);
  const cube v = rows_dense(&n, &p->w_v, &none);
  cube r = cube_of(1, heads, m + t, dk);
  for (int64_t j = 0; relative && j < heads * (m + t); j++)
    for (int64_t c = 0; c < dk; c++)
      cube_at(&r, 0, j / (m + t), j % (m + t))[c] =
          distance_row(p, j % (m + t), j / (m + t), c, dk);
  double *x = test_mem((size_t)(m + t + 1) * sizeof *x);
  for (int64_t e = 0; e < b_all * heads * t; e++) {
    const int64_t b = e / t / heads, g = e / t % heads, i = e % t, kv = g * p->kv_heads / heads;
    const double *query = cube_at(&q, b, 0, m + i) + g * dk;
    double sum = 0, *o = cube_at(&a, b, 0, i) + g * dv;
    for (int64_t j = 0; j <= m + i; j++) {
      x[j] = 0;
      for (int64_t c = 0; c < dk; c++) {
        const double content = relative ? (double)p->attention.u[g * dk + c] : 0;
        x[j] += (query[c] + content) * cube_at(&k, b, 0, j)[kv * dk + c];
        if (relative)
          x[j] += (query[c] + (double)p->attention.v[g * dk + c]) * cube_at(&r, 0, g, m + i - j)[c];
      }
      x[j] = exp(x[j] / sqrt((double)dk)), sum += x[j];
    }
    for (int64_t c = 0; c < dv; c++) {
      o[c] = 0;
      for (int64_t j = 0; j <= m + i; j++) o[c] += x[j] / sum * cube_at(&v, b, 0, j)[kv * dv + c];
    }
  }
  cube y = rows_dense(&a, &p->w_o, &p->b_o);
  for (int64_t i = 0; i < b_all * t * dm; i++) y.data[i] = fmax(y.data[i], 0);
  const cube skip = gate_wanted(&h, &y, &s->p.gate_1);
  const cube inner = rows_norm(&skip, NULL, &s->p.norm_ff);
  y = rows_feed(&inner, &s->p.ff);
  for (int64_t i = 0; i < b_all * t * dm; i++) y.data[i] = fmax(y.data[i], 0);
  const cube want = gate_wanted(&skip, &y, &s->p.gate_2);
  cube_check(&want, &s->o, tolerance, what);
}

void K5_block_random(void **state) {
  (void)state;
  test_rng rng = test_seed(5010);
  for (int64_t n = test_count(24, 6); n-- > 0;) {
    block_shape x;
    x.batch = test_range(&rng, 1, 2), x.tokens = test_range(&rng, 1, 30);
    x.memory = n % 3 ? test_range(&rng, 0, 30) : 0;
    x.dm = 2 * test_range(&rng, 1, 12);
    x.kv_heads = test_range(&rng, 1, 2), x.heads = x.kv_heads * test_range(&rng, 1, 2);
    x.width = test_range(&rng, 1, 9), x.dff = test_range(&rng, 1, 40);
    x.kind = (attn_gtrxl_kind)(n % ATTN_GTRXL_COUNT), x.relative = (int)(n / 2 % 3);
    x.type = n % 4 == 3 ? ATTN_BF16 : ATTN_F32;
    block_scene *s = block_build(&x, &rng);
    promise_run(&s->does);
    block_check(s, 6e-5, "block");
  }
}

/* More rows than go through the second half together. */
void K5_block_many_rows(void **state) {
  (void)state;
  test_rng rng = test_seed(5011);
  const block_shape x = {2, test_count(530, 20), 7, 6, 2, 1, 3, 5, ATTN_GTRXL_GRU, 0, ATTN_F32};
  block_scene *s = block_build(&x, &rng);
  promise_run(&s->does);
  if (!test_fast) block_check(s, 6e-5, "many rows");
  /* entries that follow one another go as one: the same bits */
  attn_tensor apart = s->o, h = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, x.tokens, 6);
  test_copy(h, s->h);
  s->h = h, s->o = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, x.tokens, 6);
  promise_run(&s->does);
  test_assert_same(s->o, apart, "flat");
}

/* Gates that are shut make the block the identity, whatever is inside. */
void K5_block_identity(void **state) {
  (void)state;
  test_rng rng = test_seed(5012);
  for (int n = 0; n < 2; n++) {
    const block_shape x = {2, 11,      5, 8, 2, 2, 4, 9, n ? ATTN_GTRXL_HIGHWAY : ATTN_GTRXL_GRU,
                           n, ATTN_F32};
    block_scene *s = block_build(&x, &rng);
    s->p.gate_1.b = 1e30f, s->p.gate_2.b = 1e30f, s->p.gate_2.b_g = absent();
    promise_run(&s->does);
    test_assert_same(s->o, s->h, "identity");
  }
}

/* A later row changes no earlier one; the memory is seen by all. */
void K5_block_causal(void **state) {
  (void)state;
  test_rng rng = test_seed(5013);
  const block_shape x = {1, 20, 6, 8, 2, 2, 4, 9, ATTN_GTRXL_GRU, 1, ATTN_F32};
  block_scene *s = block_build(&x, &rng);
  attn_tensor before = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 20, 8);
  promise_run(&s->does);
  test_copy(before, s->o);
  oracle_set(&s->h, 0, 0, 12, 3, 9);
  promise_run(&s->does);
  test_assert_same(test_rows(s->o, 0, 12), test_rows(before, 0, 12), "rows before");
  for (int64_t i = 12; i < 20; i++)
    assert_false(test_same(test_rows(s->o, i, 1), test_rows(before, i, 1)));
  test_copy(before, s->o);
  oracle_set(&s->p.attention.memory.rows, 0, 0, s->p.attention.memory.first, 2, 9);
  promise_run(&s->does);
  for (int64_t i = 0; i < 20; i++)
    assert_false(test_same(test_rows(s->o, i, 1), test_rows(before, i, 1)));
}

/* Two segments, the second behind the inputs of the first, are one. */
void K5_block_memory(void **state) {
  (void)state;
  test_rng rng = test_seed(5014);
  for (int relative = 0; relative < 2; relative++) {
    const block_shape x = {2, 40, 0, 12, 2, 1, 5, 9, ATTN_GTRXL_GRU, relative, ATTN_F32};
    block_scene *s = block_build(&x, &rng);
    s->p.attention.attention.lse = absent();
    promise_run(&s->does);
    const attn_tensor whole = s->o, h = s->h;
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 40, 12);
    attn_memory *m = &s->p.attention.memory;
    memset(m, 0, sizeof *m);
    m->rows = test_tensor(ATTN_F32, TEST_PADDED, 2, 1, 25, 12);
    s->h = test_rows(h, 0, 23), s->o = test_rows(o, 0, 23);
    promise_run(&s->does);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_memory_append(m, s->h, &ctx), ATTN_OK);
    s->h = test_rows(h, 23, 17), s->o = test_rows(o, 23, 17);
    promise_run(&s->does);
    test_assert_near(o, whole, 2e-5, "two segments");
  }
}

void K5_block_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(5015);
  for (int n = 0; n < 3; n++) {
    const block_shape x = {n == 0 ? 0 : 2, n == 1 ? 0 : 3, 4, 6, 2, 2, 3, 5, ATTN_GTRXL_GRU, 0,
                           ATTN_F32};
    block_scene *s = block_build(&x, &rng);
    if (n == 1) s->p.attention.attention.usage = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 1, 3);
    promise_run(&s->does);
    if (n == 1) assert_true(oracle_get(&s->p.attention.attention.usage, 1, 0, 0, 2) == 0);
  }
}

void K5_block_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(5016);
  for (int n = 0; n < 2; n++) {
    const block_shape x = {2,
                           70,
                           40,
                           20,
                           4,
                           2,
                           5,
                           30,
                           n ? ATTN_GTRXL_SIGTANH : ATTN_GTRXL_GRU,
                           n,
                           n ? ATTN_F16 : ATTN_F32};
    block_scene *s = block_build(&x, &rng);
    promise_keep(&s->does);
  }
}

void K5_block_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(5017);
  for (int n = 0; n < 20; n++) {
    const block_shape x = {2, 7, 4, 8, 4, 2, 3, 5, ATTN_GTRXL_GRU, 1, ATTN_F32};
    block_scene *s = block_build(&x, &rng);
    attn_gtrxl_params *p = &s->p;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->h.heads = 2, word = "h must"; break;
      case 1: s->o.dim = 7, word = "o must"; break;
      case 2: p->attention.w_q.len = 7, word = "w_q"; break;
      case 3: p->attention.w_o.data = NULL, want = ATTN_E_NULL, word = "w_o"; break;
      case 4: p->attention.memory.rows.dim = 7, word = "memory"; break;
      case 5: p->gate_1.w_r.len = 7, word = "params.gate_1.w_r"; break;
      case 6: p->gate_2.u_g.dim = 7, word = "params.gate_2.u_g"; break;
      case 7: p->gate_2.kind = ATTN_GTRXL_COUNT, want = ATTN_E_RANGE, word = "gate_2.kind"; break;
      case 8: p->gate_1.b = (float)NAN, want = ATTN_E_VALUE, word = "params.gate_1.b"; break;
      case 9: p->norm_ff.eps = -1, want = ATTN_E_VALUE, word = "eps"; break;
      case 10: p->ff.w_1.len = 7, word = "ff.w_1"; break;
      case 11: p->ff.w_2.dim = 7, word = "ff.w_2"; break;
      case 12: p->ff.w_2.data = NULL, want = ATTN_E_NULL, word = "ff.w_2"; break;
      case 13: p->ff.activation = ATTN_ACT_COUNT, want = ATTN_E_RANGE, word = "activation"; break;
      case 14: p->gate_1.w_g.data = s->o.data, want = ATTN_E_OVERLAP, word = "o is"; break;
      case 15:
        p->ff.w_1.data = p->attention.attention.lse.data, want = ATTN_E_OVERLAP, word = "lse is";
        break;
      case 16: p->norm_ff.gain = s->o.data, want = ATTN_E_OVERLAP, word = "o is"; break;
      case 17: s->h = s->o, want = ATTN_E_OVERLAP, word = "o is"; break;
      case 18: p->attention.heads = 5, want = ATTN_E_HEADS, word = "heads"; break;
      default: p->attention.w_r.data = NULL, want = ATTN_E_NULL, word = "u and .v need"; break;
    }
    promise_reject(&s->does, want, word);
  }
  const block_shape x = {1, 2, 0, 4, 1, 1, 2, 3, ATTN_GTRXL_GRU, 0, ATTN_F32};
  block_scene *s = block_build(&x, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_gtrxl(s->o, s->h, NULL, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_gtrxl_workspace(s->o, s->h, NULL, &ctx), ATTN_WORKSPACE_REJECTED);
}

/* No call reads or writes beyond its operands. */
void K5_guards(void **state) {
  (void)state;
  test_rng rng = test_seed(5009);
  for (int n = 0; n < 2 * ATTN_GTRXL_COUNT; n++) {
    const block_shape x = {
        1, 9, 5, 6, 2, 1, 3, 7, (attn_gtrxl_kind)(n / 2), n % 3, (attn_dtype)(n % 3)};
    test_where = n % 2 ? TEST_BEFORE_GUARD : TEST_AFTER_GUARD;
    gate_scene *s = gate_build(x.kind, 2, 5, 13 + n, 1, n % 2, &rng);
    block_scene *t = block_build(&x, &rng);
    promise_run(&s->does);
    promise_run(&t->does);
    test_where = TEST_HEAP;
  }
}

/* Its feed-forward in products below f32. */
void O1_gtrxl(void **state) {
  (void)state;
  test_rng rng = test_seed(5030);
  const block_shape x = {2, 70, 40, 20, 4, 2, 5, 30, ATTN_GTRXL_GRU, 0, ATTN_F32};
  block_scene *s = block_build(&x, &rng);
  attn_feed_forward *ff = &s->p.ff;
  test_layer(&s->does, &ff->compute, &ff->compute_prefer, 0, 0.03, "ff.compute");
}
