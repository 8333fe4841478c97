/* tests/families/content/test_mixture.c owns mixtures of attention experts (D6): gate, choice, mixture and dispatch against
 * their definitions in float64. */

#include <stdlib.h>

#include "compound.h"
#include "terms.h"

enum { MOST = 6 };

/* Which keys a expert's rows see. */
typedef enum sight {
  ALL,
  CAUSAL,
  WINDOW,
  LENGTHS,
  TWO_PHASES, /* a schedule: a band and a stride */
  LISTS,      /* a schedule: scattered pairs */
  SIGHTS
} sight;

typedef struct scene {
  attn_tensor o, pi, x, w, weight;
  attn_expert expert[MOST];
  attn_sdpa_params params[MOST];
  sight sees[MOST];
  uint8_t *bits[MOST];
  int32_t *list; /* experts of rows */
  int64_t count;
  attn_mixture_params p;
  promise does;
} scene;

#define CALL(name, arguments, query)                        \
  static attn_status name##_call(void *at, attn_ctx *ctx) { \
    scene *s = at;                                          \
    return attn_##name arguments;                           \
  }                                                         \
  static size_t name##_ask(void *at, const attn_ctx *ctx) { \
    scene *s = at;                                          \
    return attn_##name##_workspace query;                   \
  }
CALL(gate, (s->pi, s->x, s->w, &s->p, ctx), (s->pi, s->x, s->w, &s->p, ctx))
CALL(mixture, (s->o, s->expert, s->count, s->pi, ctx), (s->o, s->expert, s->count, s->pi, ctx))
CALL(dispatch_select, (s->list, s->weight, s->pi, &s->p, ctx),
     (s->list, s->weight, s->pi, &s->p, ctx))
CALL(dispatch, (s->o, s->expert, s->count, s->list, s->weight, ctx),
     (s->o, s->expert, s->count, s->list, s->weight, ctx))
CALL(gated, (s->o, s->expert, s->count, s->x, s->w, &s->p, ctx),
     (s->o, s->expert, s->count, s->x, s->w, &s->p, ctx))

typedef struct shape {
  int64_t batch, heads, gate_heads, len, dv, count, k;
  attn_dtype type;
  test_layout layout;
} shape;

static shape plain(int64_t heads, int64_t len, int64_t dv, int64_t count, int64_t k) {
  shape x = {1, heads, heads, len, dv, count, k, ATTN_F32, TEST_BHTD};
  return x;
}

static shape any_shape(test_rng *rng) {
  static const attn_dtype type[] = {ATTN_F32, ATTN_F32, ATTN_F16, ATTN_BF16};
  shape x;
  x.batch = test_range(rng, 1, 2), x.heads = test_range(rng, 1, 3);
  x.gate_heads = test_range(rng, 0, 1) ? x.heads : 1;
  x.len = test_range(rng, 1, 50), x.dv = test_range(rng, 1, 18);
  x.count = test_range(rng, 1, 4), x.k = test_range(rng, 1, x.count);
  x.type = type[test_range(rng, 0, 3)];
  x.layout = (test_layout)test_range(rng, 0, 3);
  return x;
}

/* A expert that sees in some way; lse: its LSE is asked for. */
static void make_path(scene *s, int64_t n, const shape *x, sight sees, int lse, test_rng *rng) {
  attn_expert *p = &s->expert[n];
  attn_sdpa_params *a = &s->params[n];
  int64_t kh = test_range(rng, 0, 1) ? x->heads : 1, vh = test_range(rng, 0, 1) ? x->heads : 1;
  int64_t dk = test_range(rng, 1, 12), tk = test_range(rng, 1, 60);
  attn_pattern part[2], all;
  attn_schedule *made = test_mem(sizeof *made);
  if (sees >= TWO_PHASES) tk = x->len;
  p->q = drawn(x->type, x->layout, x->batch, x->heads, x->len, dk, 1, rng);
  p->k = drawn(x->type, TEST_PADDED, x->batch, kh, tk, dk, 1, rng);
  p->v = drawn(x->type, x->layout, x->batch, vh, tk, x->dv, 1, rng);
  p->params = a;
  s->sees[n] = sees;
  if (test_range(rng, 0, 1)) a->scale = 0.7f;
  if (sees == CAUSAL) a->causal = 1;
  if (sees == WINDOW) a->window = attn_window_of(5, 3);
  if (sees == LENGTHS)
    a->kv_len = test_lengths(x->batch, tk, rng), a->q_len = test_lengths(x->batch, x->len, rng);
  if (lse) a->lse = test_tensor(ATTN_F32, TEST_BHTD, x->batch, x->heads, x->len, 1);
  if (sees < TWO_PHASES) return;
  if (sees == TWO_PHASES) {
    part[0] = attn_pattern_band(4, 4), part[1] = attn_pattern_strided(7);
    all = attn_pattern_union(part, 2);
  } else {
    int64_t stride = (tk + 7) / 8;
    s->bits[n] = test_mem((size_t)(stride * x->len));
    for (int64_t i = 0; i < stride * x->len; i++)
      s->bits[n][i] = (uint8_t)(test_range(rng, 0, 255) & test_range(rng, 0, 255));
    all = attn_pattern_bitmap(s->bits[n], stride);
  }
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_schedule_build(made, &all, x->heads, x->len, tk, NULL, &ctx), ATTN_OK);
  void *copy = test_mem(made->size + 8); /* freed with the test */
  char *to = (char *)copy + (8 - (uintptr_t)copy % 8) % 8;
  const size_t size = made->size;
  memcpy(to, made->data, size);
  attn_schedule_free(made);
  assert_int_equal(attn_schedule_open(made, to, size, &ctx), ATTN_OK);
  a->schedule = made;
}

static int sees(const scene *s, int64_t n, int64_t b, int64_t i, int64_t j) {
  const attn_expert *p = &s->expert[n];
  int64_t pos = i + p->k.len - p->q.len, d = j - pos;
  switch (s->sees[n]) {
    case CAUSAL: return d <= 0;
    case WINDOW: return d >= -5 && d <= 3;
    case LENGTHS: return j < s->params[n].kv_len[b] && i < s->params[n].q_len[b];
    case TWO_PHASES: return (d >= -4 && d <= 4) || d % 7 == 0;
    case LISTS: return s->bits[n][i * ((p->k.len + 7) / 8) + j / 8] >> (j % 8) & 1;
    default: return 1;
  }
}

static scene *build(const shape *x, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->count = x->count, s->p.k = x->k;
  for (int64_t n = 0; n < x->count; n++) {
    sight how = (sight)test_range(rng, 0, SIGHTS - 1);
    int lse = test_range(rng, 0, 2) == 0;
    make_path(s, n, x, how, lse, rng);
  }
  s->o = output(x->type, TEST_PADDED, x->batch, x->heads, x->len, x->dv, &s->does.block[0]);
  s->does.scene = s, s->does.out[0] = &s->o;
  return s;
}

/* Random shares of the experts. */
static void shares(scene *s, const shape *x, test_rng *rng) {
  s->pi = test_tensor(ATTN_F32, x->layout, x->batch, x->gate_heads, x->len, x->count);
  for (int64_t r = 0; r < x->batch * x->gate_heads * x->len; r++) {
    double e[MOST], sum = 0;
    for (int64_t n = 0; n < x->count; n++) sum += e[n] = exp(test_normal(rng));
    for (int64_t n = 0; n < x->count; n++)
      oracle_set(&s->pi, r / x->len / x->gate_heads, r / x->len % x->gate_heads, r % x->len, n,
                 e[n] / sum);
  }
  s->does.call = mixture_call, s->does.ask = mixture_ask;
}

/* Where the chosen experts go. */
static void room(scene *s, const shape *x) {
  int64_t n = x->batch * x->gate_heads * x->len * x->k;
  s->list = test_mem((size_t)(n + 1) * sizeof *s->list);
  s->weight = test_tensor(ATTN_F32, TEST_PADDED, x->batch, x->gate_heads, x->len, x->k);
}

static void gate_of(scene *s, const shape *x, test_rng *rng) {
  int64_t dx = test_range(rng, 1, 20), wide = test_range(rng, 0, 1) ? x->gate_heads : 1;
  s->x = drawn(x->type, x->layout, x->batch, x->gate_heads, x->len, dx, 1, rng);
  s->w = drawn(x->type, TEST_PADDED, 1, wide, dx, x->count, 0.5, rng);
  if (test_range(rng, 0, 1)) s->p.bias = drawn(ATTN_F32, TEST_BHTD, 1, wide, 1, x->count, 1, rng);
  if (test_range(rng, 0, 1)) s->p.temperature = 0.6f;
}

/* ---- the definitions ------------------------------------------------------------------------*/

/* Row (b, h, i) of expert n. */
static void path_row(const scene *s, int64_t n, int64_t b, int64_t h, int64_t i, bag *a) {
  const attn_expert *p = &s->expert[n];
  double scale = scale_of(s->params[n].scale, p->q.dim);
  bag_empty(a);
  for (int64_t j = 0; j < p->k.len; j++)
    if (sees(s, n, b, i, j))
      bag_add(a, scale * dot_rows(&p->q, &p->k, b, h, i, j), &p->v, b,
              head_of(&p->v, h, s->o.heads), j);
  bag_close(a);
}

/* weights [B][Hg][Tq][P]; sent: only experts with a weight have an LSE. */
static void check(const scene *s, const cube *weight, int sent, double tolerance,
                  const char *what) {
  int64_t dv = s->o.dim, most = 0;
  for (int64_t n = 0; n < s->count; n++)
    if (s->expert[n].k.len > most) most = s->expert[n].k.len;
  bag a = bag_of(most, dv);
  double *sum = test_mem((size_t)dv * sizeof *sum);
  for (int64_t r = 0; r < s->o.batch * s->o.heads * s->o.len; r++) {
    int64_t i = r % s->o.len, h = r / s->o.len % s->o.heads, b = r / s->o.len / s->o.heads;
    double size = 0;
    for (int64_t c = 0; c < dv; c++) sum[c] = 0;
    for (int64_t n = 0; n < s->count; n++) {
      double share = cube_at(weight, b, weight->heads > 1 ? h : 0, i)[n];
      const attn_tensor *lse = &s->params[n].lse;
      if (share != 0 || !sent) {
        path_row(s, n, b, h, i, &a);
        for (int64_t c = 0; c < dv; c++) sum[c] += share * a.o[c];
        size += fabs(share) * a.value;
      } else {
        a.lse = -(double)INFINITY;
      }
      if (lse->data)
        value_check(oracle_get(lse, b, h, i, 0), a.lse, 1e-5 * fmax(1, fabs(a.lse)), ATTN_F32, what,
                    b, h, i, -1 - n);
    }
    for (int64_t c = 0; c < dv; c++)
      value_check(oracle_get(&s->o, b, h, i, c), sum[c], tolerance * size, s->o.dtype, what, b, h,
                  i, c);
  }
}

/* The weights that lists of experts stand for. */
static cube sent_weights(const scene *s) {
  int64_t k = s->weight.dim;
  cube all = cube_of(s->weight.batch, s->weight.heads, s->weight.len, s->count);
  for (int64_t r = 0; r < all.batch * all.heads * all.len; r++) {
    int64_t i = r % all.len, h = r / all.len % all.heads, b = r / all.len / all.heads;
    for (int64_t n = 0; n < s->count; n++) all.data[r * s->count + n] = 0;
    for (int64_t e = 0; e < k; e++)
      if (s->list[r * k + e] >= 0)
        all.data[r * s->count + s->list[r * k + e]] = oracle_get(&s->weight, b, h, i, e);
  }
  return all;
}

/* ---- tests ----------------------------------------------------------------------------------*/

void D6_gate(void **state) {
  (void)state;
  test_rng rng = test_seed(940);
  for (int t = 0; t < 30; t++) {
    shape x = any_shape(&rng);
    if (t == 3) x.len = 200, x.count = 6;
    scene s;
    memset(&s, 0, sizeof s);
    gate_of(&s, &x, &rng);
    s.pi = output(ATTN_F32, TEST_PADDED, x.batch, x.gate_heads, x.len, x.count, &s.does.block[0]);
    s.does.call = gate_call, s.does.ask = gate_ask, s.does.scene = &s, s.does.out[0] = &s.pi;
    promise_run(&s.does);
    cube cx = cube_from(&s.x), y = cube_times(&cx, &s.w);
    for (int64_t r = 0; r < x.batch * x.gate_heads * x.len; r++) {
      int64_t i = r % x.len, h = r / x.len % x.gate_heads, b = r / x.len / x.gate_heads;
      double *z = cube_at(&y, b, h, i), sum = 0, top = -1e300;
      for (int64_t n = 0; n < x.count; n++) {
        if (s.p.bias.data) z[n] += oracle_get(&s.p.bias, 0, s.p.bias.heads > 1 ? h : 0, 0, n);
        z[n] /= s.p.temperature == 0.0f ? 1 : (double)s.p.temperature;
        top = fmax(top, z[n]);
      }
      for (int64_t n = 0; n < x.count; n++) sum += z[n] = exp(z[n] - top);
      for (int64_t n = 0; n < x.count; n++)
        value_check(oracle_get(&s.pi, b, h, i, n), z[n] / sum, 5e-6, ATTN_F32, "gate", b, h, i, n);
    }
    promise_keep(&s.does);
  }
}

/* Logits and temperatures that no float holds the quotient of; experts that are forbidden. */
void D6_gate_far(void **state) {
  (void)state;
  static const float row[5][4] = {
      {10, 20, -5, 20}, {3e38f, 2e38f, -3e38f, 0}, {-INFINITY, 1, 1, -INFINITY}, {0, 0, 0, 0}, {0}};
  static const float want[5][4] = {
      {0, 0.5f, 0, 0.5f}, {1, 0, 0, 0}, {0, 0.5f, 0.5f, 0}, {0.25f, 0.25f, 0.25f, 0.25f}, {0}};
  static const float heat[] = {1e-38f, 0, 1e-45f, 1e-38f, 1};
  test_rng rng = test_seed(950);
  shape x = plain(1, 2, 3, 4, 1);
  for (int t = 0; t < 5; t++) {
    scene s;
    memset(&s, 0, sizeof s);
    gate_of(&s, &x, &rng);
    test_fill_value(s.x, 0);
    s.p.temperature = heat[t];
    s.p.bias = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, 4);
    s.pi = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 2, 4);
    for (int64_t n = 0; n < 4; n++)
      oracle_set(&s.p.bias, 0, 0, 0, n, t < 4 ? (double)row[t][n] : -(double)INFINITY);
    attn_ctx ctx = test_ctx();
    assert_int_equal(gate_call(&s, &ctx), ATTN_OK);
    for (int64_t n = 0; n < 4; n++)
      assert_true(oracle_get(&s.pi, 0, 0, 1, n) == (double)want[t][n]);
  }
}

/* The choice, exactly: the k largest, the lowest expert of equals, the first rows. */
void D6_choice(void **state) {
  (void)state;
  test_rng rng = test_seed(941);
  for (int t = 0; t < 30; t++) {
    shape x = any_shape(&rng);
    scene s;
    memset(&s, 0, sizeof s);
    s.count = x.count, s.p.k = x.k, s.p.no_renormalize = t % 2;
    s.p.capacity = t % 3 ? 0 : test_range(&rng, 1, 20);
    shares(&s, &x, &rng);
    for (int64_t r = 0; t % 4 == 0 && r < x.batch * x.gate_heads * x.len; r++) /* many ties */
      for (int64_t n = 0; n < x.count; n++)
        oracle_set(&s.pi, r / x.len / x.gate_heads, r / x.len % x.gate_heads, r % x.len, n,
                   (double)test_range(&rng, 1, 2) / 8);
    int64_t rows = x.batch * x.gate_heads * x.len;
    attn_tensor list = output(ATTN_F32, TEST_BHTD, 1, 1, rows * x.k, 1, &s.does.block[1]);
    s.list = list.data;
    s.weight = output(ATTN_F32, TEST_PADDED, x.batch, x.gate_heads, x.len, x.k, &s.does.block[0]);
    s.does.call = dispatch_select_call, s.does.ask = dispatch_select_ask, s.does.scene = &s;
    s.does.out[0] = &s.weight, s.does.out[1] = &list;
    promise_run(&s.does);
    for (int64_t u = 0; u < x.batch * x.gate_heads; u++) {
      int64_t load[MOST] = {0}, b = u / x.gate_heads, h = u % x.gate_heads;
      for (int64_t i = 0; i < x.len; i++) {
        int taken[MOST] = {0};
        int64_t best[MOST];
        double sum = 0;
        for (int64_t e = 0; e < x.k; e++) {
          best[e] = -1;
          for (int64_t n = 0; n < x.count; n++)
            if (!taken[n] && (best[e] < 0 ||
                              oracle_get(&s.pi, b, h, i, n) > oracle_get(&s.pi, b, h, i, best[e])))
              best[e] = n;
          taken[best[e]] = 1, sum += oracle_get(&s.pi, b, h, i, best[e]);
        }
        for (int64_t e = 0; e < x.k; e++) {
          int served = s.p.capacity == 0 || load[best[e]] < s.p.capacity;
          double want = oracle_get(&s.pi, b, h, i, best[e]) / (s.p.no_renormalize ? 1 : sum);
          load[best[e]] += served;
          assert_int_equal(s.list[(u * x.len + i) * x.k + e], served ? best[e] : -1);
          value_check(oracle_get(&s.weight, b, h, i, e), served ? want : 0, 1e-6, ATTN_F32,
                      "weight", b, h, i, e);
        }
      }
    }
    promise_keep(&s.does);
  }
}

void D6_mixture(void **state) {
  (void)state;
  test_rng rng = test_seed(942);
  int64_t count = test_count(30, 5);
  for (int64_t t = 0; t < count; t++) {
    shape x = any_shape(&rng);
    scene *s = build(&x, &rng);
    shares(s, &x, &rng);
    promise_run(&s->does);
    cube pi = cube_from(&s->pi);
    check(s, &pi, 0, 4e-6, "mixture");
  }
}

void D6_dispatch(void **state) {
  (void)state;
  test_rng rng = test_seed(943);
  int64_t count = test_count(50, 8);
  for (int64_t t = 0; t < count; t++) {
    shape x = any_shape(&rng);
    if (t % 10 == 9) x.len = 150;
    scene *s = build(&x, &rng);
    shares(s, &x, &rng);
    room(s, &x);
    s->p.no_renormalize = (int)(t % 2), s->p.capacity = t % 3 ? 0 : test_range(&rng, 1, 20);
    attn_ctx ctx = test_ctx();
    assert_int_equal(dispatch_select_call(s, &ctx), ATTN_OK);
    s->does.call = dispatch_call, s->does.ask = dispatch_ask;
    promise_run(&s->does);
    cube weight = sent_weights(s);
    check(s, &weight, 1, 4e-6, "dispatch");
  }
}

/* Paths with every score term: rows that are sent have what the whole expert has. */
void D6_dispatch_terms(void **state) {
  (void)state;
  test_rng rng = test_seed(951);
  for (int64_t t = test_count(44, 11); t-- > 0;) {
    int terms = 1 << (t % TERM_SCORES);
    test_call base = test_terms_call(terms, t % 3 ? 40 : 150, &rng);
    base.params.map = absent(), base.params.one_order = 1;
    test_call whole = test_again(&base);
    int64_t b = base.o.batch, h = base.o.heads, n = base.o.len, heads = t % 2 ? h : 1;
    attn_expert expert = {base.q, base.k, base.v, &base.params};
    attn_tensor weight = test_tensor(ATTN_F32, TEST_BHTD, b, heads, n, 1);
    int32_t *list = test_mem((size_t)(b * heads * n + 1) * sizeof *list);
    for (int64_t i = 0; i < b * heads * n; i++) list[i] = -(int32_t)(test_range(&rng, 0, 2) == 0);
    test_fill_value(weight, 1);
    test_run(&whole);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_dispatch(base.o, &expert, 1, list, weight, &ctx), ATTN_OK);
    for (int64_t r = 0; r < b * h * n; r++) {
      int64_t i = r % n, e = r / n % h, u = r / n / h;
      if (list[(u * heads + (heads > 1 ? e : 0)) * n + i] == 0) continue;
      test_fill_row(whole.o, u, e, i, 0);
      if (whole.params.lse.data) test_fill_row(whole.params.lse, u, e, i, -(double)INFINITY);
    }
    /* consecutive rows take another way to the distances of XL */
    double near = terms != TERM_XL ? 0 : base.o.dtype == ATTN_F32 ? 1e-5 : 1e-2;
    test_assert_near(base.o, whole.o, near, "terms");
    if (base.params.lse.data)
      test_assert_near(base.params.lse, whole.params.lse, near, "terms, lse");
    test_mem_release();
  }
}

/* One call is the others, bit for bit. */
void D6_chain(void **state) {
  (void)state;
  test_rng rng = test_seed(944);
  int64_t count = test_count(20, 4);
  for (int64_t t = 0; t < count; t++) {
    shape x = any_shape(&rng);
    scene *s = build(&x, &rng);
    gate_of(s, &x, &rng);
    s->p.no_renormalize = t % 4 == 1, s->p.capacity = t % 5 ? 0 : 7;
    if (t % 2) s->p.k = 0;
    s->does.call = gated_call, s->does.ask = gated_ask;
    promise_run(&s->does);
    scene two = *s;
    attn_ctx ctx = test_ctx();
    two.o = test_tensor(x.type, TEST_BHTD, x.batch, x.heads, x.len, x.dv);
    two.pi = test_tensor(ATTN_F32, TEST_BHTD, x.batch, x.gate_heads, x.len, x.count);
    assert_int_equal(gate_call(&two, &ctx), ATTN_OK);
    if (s->p.k) {
      room(&two, &x);
      assert_int_equal(dispatch_select_call(&two, &ctx), ATTN_OK);
      assert_int_equal(dispatch_call(&two, &ctx), ATTN_OK);
    } else {
      assert_int_equal(mixture_call(&two, &ctx), ATTN_OK);
    }
    test_assert_same(two.o, s->o, "chain");
  }
}

void D6_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(945);
  for (int t = 0; t < 6; t++) {
    shape x = plain(2, 90, 7, 3, 3);
    scene *s = build(&x, &rng);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 90, 7);
    attn_ctx ctx = test_ctx();
    shares(s, &x, &rng); /* k = P is the mixture */
    room(s, &x);
    promise_run(&s->does);
    test_copy(o, s->o);
    assert_int_equal(dispatch_select_call(s, &ctx), ATTN_OK);
    assert_int_equal(dispatch_call(s, &ctx), ATTN_OK);
    test_assert_near(s->o, o, 2e-6, "all experts");
    for (int64_t r = 0; r < 180; r++) /* all of one expert: that expert, and only its work */
      for (int64_t n = 0; n < 3; n++) oracle_set(&s->pi, 0, r / 90, r % 90, n, n == t % 3 ? 1 : 0);
    s->weight.dim = 1, s->p.k = 1;
    assert_int_equal(dispatch_select_call(s, &ctx), ATTN_OK);
    assert_int_equal(dispatch_call(s, &ctx), ATTN_OK);
    int64_t pairs = ctx.report.pairs;
    attn_sdpa_params one = s->params[t % 3];
    one.one_order = 1;
    assert_int_equal(
        attn_sdpa(o, s->expert[t % 3].q, s->expert[t % 3].k, s->expert[t % 3].v, &one, &ctx),
        ATTN_OK);
    test_assert_same(s->o, o, "one expert");
    assert_true(pairs <= 2 * ctx.report.pairs); /* heads are tiles of their own */
  }
}

/* Work follows the rows that are sent. */
void D6_work(void **state) {
  (void)state;
  test_rng rng = test_seed(946);
  for (int t = 0; t < 3; t++) {
    shape x = plain(1, 512, 4, 4, 1);
    scene *s = test_mem(sizeof *s);
    memset(s, 0, sizeof *s);
    s->count = 4, s->p.k = 1, s->does.scene = s, s->does.out[0] = &s->o;
    for (int64_t n = 0; n < 4; n++)
      make_path(s, n, &x, t == 0 ? ALL : t == 1 ? TWO_PHASES : LISTS, 0, &rng);
    int64_t keys = 0;
    s->o = output(ATTN_F32, TEST_BHTD, 1, 1, 512, 4, &s->does.block[0]);
    shares(s, &x, &rng);
    room(s, &x);
    attn_ctx ctx = test_ctx();
    assert_int_equal(mixture_call(s, &ctx), ATTN_OK);
    keys = ctx.report.pairs;
    assert_int_equal(dispatch_select_call(s, &ctx), ATTN_OK);
    assert_int_equal(dispatch_call(s, &ctx), ATTN_OK);
    assert_true(ctx.report.pairs > 0);
    if (t == 0) assert_true(ctx.report.pairs * 10 < keys * 4); /* a quarter, and tiles' ends */
    assert_true(ctx.report.pairs * 10 < keys * 6);
  }
}

void D6_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(947);
  shape x = plain(2, 70, 5, 2, 1);
  scene *s = build(&x, &rng);
  shares(s, &x, &rng);
  room(s, &x);
  attn_ctx ctx = test_ctx();
  for (int64_t i = 0; i < 140; i++) s->list[i] = -1; /* sent nowhere */
  assert_int_equal(dispatch_call(s, &ctx), ATTN_OK);
  for (int64_t r = 0; r < 140; r++)
    for (int64_t c = 0; c < 5; c++) assert_true(oracle_get(&s->o, 0, r / 70, r % 70, c) == 0);
  test_fill_value(s->pi, 0.5); /* equal: the lowest expert */
  assert_int_equal(dispatch_select_call(s, &ctx), ATTN_OK);
  for (int64_t i = 0; i < 140; i++) assert_int_equal(s->list[i], 0);
  test_fill_value(s->pi, (double)NAN); /* legal experts */
  assert_int_equal(dispatch_select_call(s, &ctx), ATTN_OK);
  for (int64_t i = 0; i < 140; i++) assert_true(s->list[i] >= 0 && s->list[i] < 2);
  assert_int_equal(dispatch_call(s, &ctx), ATTN_OK);
  for (int t = 0; t < 2; t++) { /* nothing to do */
    shape empty = plain(1, t ? 0 : 4, 5, 2, 1);
    empty.batch = t;
    scene *none = test_mem(sizeof *none);
    memset(none, 0, sizeof *none);
    none->count = 1;
    make_path(none, 0, &empty, ALL, 0, &rng);
    none->o = test_tensor(ATTN_F32, TEST_BHTD, empty.batch, 1, empty.len, 5);
    none->pi = test_tensor(ATTN_F32, TEST_BHTD, empty.batch, 1, empty.len, 1);
    assert_int_equal(mixture_call(none, &ctx), ATTN_OK);
    none->weight = none->pi;
    assert_int_equal(dispatch_call(none, &ctx), ATTN_OK);
  }
}

void D6_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(948);
  for (int t = 0; t < 9; t++) {
    shape x = plain(2, 100, 5, 3, 2);
    x.batch = 2;
    if (t == 4) x.type = ATTN_F16;
    scene *s = build(&x, &rng);
    for (int64_t n = 0; n < 3; n++) s->params[n].lse.data = NULL;
    shares(s, &x, &rng);
    if (t % 3 == 1) {
      room(s, &x);
      attn_ctx ctx = test_ctx();
      assert_int_equal(dispatch_select_call(s, &ctx), ATTN_OK);
      s->does.call = dispatch_call, s->does.ask = dispatch_ask;
    }
    if (t % 3 == 2) {
      gate_of(s, &x, &rng);
      s->does.call = gated_call, s->does.ask = gated_ask;
    }
    promise_keep(&s->does);
  }
}

static scene *fresh(int which, test_rng *rng) {
  static const promise calls[] = {{.call = mixture_call, .ask = mixture_ask},
                                  {.call = dispatch_call, .ask = dispatch_ask},
                                  {.call = gated_call, .ask = gated_ask}};
  shape x = plain(2, 9, 5, 3, 2);
  x.batch = 2;
  scene *s = build(&x, rng);
  shares(s, &x, rng);
  room(s, &x);
  attn_ctx ctx = test_ctx();
  assert_int_equal(dispatch_select_call(s, &ctx), ATTN_OK);
  gate_of(s, &x, rng);
  s->does.call = calls[which].call, s->does.ask = calls[which].ask;
  return s;
}

void D6_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(949);
  scene *s;
#define BAD(which, change, status, word) \
  s = fresh(which, &rng);                \
  change;                                \
  promise_reject(&s->does, status, word)
  for (int c = 0; c < 3; c++) {
    BAD(c, s->count = 0, ATTN_E_SHAPE, "expert");
    BAD(c, s->expert[1].q.len = 8, ATTN_E_SHAPE, "experts must have");
    BAD(c, s->expert[2].v.dim = 4, ATTN_E_SHAPE, "experts must have");
    BAD(c, s->expert[0].k.dim += 1, ATTN_E_SHAPE, "k.dim");
    BAD(c, s->expert[0].q.data = NULL, ATTN_E_NULL, "q.data");
    BAD(c, s->params[1].scale = NAN, ATTN_E_VALUE, "scale");
    BAD(c, s->params[2].ragged.sequences = 1, ATTN_E_RANGE, "ragged");
    BAD(c, s->expert[2].k.data = s->o.data, ATTN_E_OVERLAP, "o");
  }
  for (int c = 0; c < 3; c++) { /* an LSE shares memory with what another expert reads */
    BAD(c, s->params[2].lse = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, 9, 1);
        s->params[0].sinks = s->params[2].lse.data, ATTN_E_OVERLAP, "params.lse");
    BAD(c, s->params[0].lse = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, 9, 1);
        s->params[2].bias = attn_mask_add(s->params[0].lse.data, ATTN_F32, 1, 1, 9, 1),
        ATTN_E_OVERLAP, "params.lse");
    BAD(c, s->params[0].lse = s->params[1].lse = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, 9, 1),
        ATTN_E_OVERLAP, "params.lse");
  }
  BAD(0, s->pi.dim = 2, ATTN_E_SHAPE, "pi must be");
  BAD(0, s->pi.batch = 1, ATTN_E_SHAPE, "pi must be");
  BAD(1, s->list[0] = 3, ATTN_E_INDEX, "expert must hold");
  BAD(1, s->list[3] = -2, ATTN_E_INDEX, "expert must hold");
  BAD(1, s->list[2] = s->list[3], ATTN_E_INDEX, "twice");
  BAD(1, s->list = NULL, ATTN_E_NULL, "expert.data");
  BAD(1, s->weight.len = 4, ATTN_E_SHAPE, "weight must be");
  BAD(1, s->weight.dtype = ATTN_F16, ATTN_E_DTYPE, "weight must be");
  BAD(2, s->p.temperature = -1, ATTN_E_VALUE, "temperature");
  BAD(2, s->p.temperature = ATTN_ZERO, ATTN_E_VALUE, "temperature");
  BAD(2, s->p.capacity = -1, ATTN_E_RANGE, "capacity");
  BAD(2, s->p.k = 4, ATTN_E_RANGE, "params.k");
  BAD(2, s->p.k = -1, ATTN_E_RANGE, "params.k");
  BAD(2, s->w.len += 1, ATTN_E_SHAPE, "w must be");
  BAD(2, s->x.len = 4, ATTN_E_SHAPE, "x must be");
#undef BAD
  s = fresh(0, &rng);
  attn_ctx ctx = test_ctx();
  s->p.k = 0;
  assert_int_equal(dispatch_select_call(s, &ctx), ATTN_E_RANGE);
  assert_non_null(strstr(ctx.reason, "params.k"));
  assert_int_equal(attn_dispatch_select(s->list, s->weight, s->pi, NULL, &ctx), ATTN_E_NULL);
  assert_non_null(strstr(ctx.reason, "params"));
  assert_int_equal(attn_mixture(s->o, NULL, 2, s->pi, &ctx), ATTN_E_NULL);
  assert_non_null(strstr(ctx.reason, "experts"));
}
