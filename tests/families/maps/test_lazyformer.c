/* tests/families/maps/test_lazyformer.c owns maps that serve several layers: a map times values, and a stack of
 * layers with all values at once. */

#include "compound.h"

typedef struct apply_scene {
  attn_tensor o, map, v;
  attn_map_apply_params p;
  promise does;
} apply_scene;

static attn_status apply_call(void *at, attn_ctx *ctx) {
  apply_scene *s = at;
  return attn_map_apply(s->o, s->map, s->v, &s->p, ctx);
}
static size_t apply_ask(void *at, const attn_ctx *ctx) {
  apply_scene *s = at;
  return attn_map_apply_workspace(s->o, s->map, s->v, &s->p, ctx);
}

static apply_scene *apply_of(attn_tensor map, attn_tensor v, attn_dtype type, test_layout layout) {
  apply_scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->map = map, s->v = v;
  s->o = output(type, layout, map.batch, map.heads, map.len, v.dim, &s->does.block[0]);
  s->does.call = apply_call, s->does.ask = apply_ask, s->does.scene = s, s->does.out[0] = &s->o;
  return s;
}

static void apply_check(apply_scene *s, const char *what) {
  promise_run(&s->does);
  cube want = cube_of(s->o.batch, s->o.heads, s->o.len, s->o.dim);
  for (int64_t n = 0; n < want.batch * want.heads * want.len; n++) {
    int64_t b = n / want.len / want.heads, h = n / want.len % want.heads, i = n % want.len;
    int64_t hv = h * s->v.heads / want.heads,
            p = i + (s->p.has_q_off ? s->p.q_off : s->v.len - want.len);
    for (int64_t c = 0; c < want.dim; c++) {
      double sum = 0;
      for (int64_t j = 0; j < s->v.len && (!s->p.causal || j <= p); j++)
        sum += oracle_get(&s->map, b, h, i, j) * oracle_get(&s->v, b, hv, j, c);
      cube_at(&want, b, h, i)[c] = sum;
    }
  }
  cube_check(&want, &s->o, 1e-5, what);
}

void H5_apply_random(void **state) {
  (void)state;
  for (int64_t n = test_count(40, 12); n-- > 0; test_mem_release()) {
    test_rng rng = test_seed(7800 + (uint64_t)n);
    int64_t kv = test_range(&rng, 1, 2), h = kv * test_range(&rng, 1, 3),
            b = test_range(&rng, 1, 2);
    int64_t tq = test_range(&rng, 1, n % 4 ? 20 : 140), tk = test_range(&rng, 1, n % 5 ? 30 : 300);
    int64_t dv = test_range(&rng, 1, n % 3 ? 12 : 70);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    attn_tensor map = drawn((attn_dtype)(n % 4 ? 0 : n / 4 % 3), (test_layout)(n % TEST_SHARED), b,
                            h, tq, tk, 0.3, &rng);
    attn_tensor v =
        drawn((attn_dtype)(n % 5 % 3), (test_layout)(n % 3 % TEST_SHARED), b, kv, tk, dv, 1, &rng);
    apply_scene *s = apply_of(map, v, (attn_dtype)(n % 7 % 3), (test_layout)(n % 5 % TEST_SHARED));
    test_where = TEST_HEAP;
    s->p.causal = n % 2 != 0;
    if (n % 3 == 2) s->p.has_q_off = 1, s->p.q_off = test_range(&rng, -20, 20);
    apply_check(s, "apply");
  }
}

/* The map of attn_sdpa times its values is its output, NaN in forbidden keys and all; [P V | P V']
 * is P [V | V'] bit for bit; rows that sum to 1 keep constants; zero rows are zero. */
void H5_apply_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(7850);
  test_spec spec = test_plain(4, 70, 140, 8, 24);
  spec.v_heads = 2, spec.map = 1;
  test_call c = test_build(&spec, &rng);
  static const int32_t keys[] = {130}, rows[] = {69};
  c.params.causal = 1, c.params.kv_len = keys, c.params.q_len = rows;
  test_fill_row(c.v, 0, 1, 135, (double)NAN);
  test_fill_row(c.v, 0, 0, 100, (double)INFINITY); /* rows from 30 on see it */
  test_run(&c);
  apply_scene *s = apply_of(c.params.map, c.v, ATTN_F32, TEST_PADDED);
  promise_run(&s->does);
  for (int64_t i = 0; i < 70; i++)
    for (int64_t h = 0; h < 4; h++)
      for (int64_t x = 0; x < 24; x++) {
        double got = oracle_get(&s->o, 0, h, i, x), want = oracle_get(&c.o, 0, h, i, x);
        if (!isfinite(want) ? isfinite(got) : !(fabs(got - want) <= 1e-5))
          fail_msg("[%d,%d,%d] is %g, not %g", (int)h, (int)i, (int)x, got, want);
      }
  attn_tensor v = drawn(ATTN_F32, TEST_BHTD, 1, 2, 140, 24, 1, &rng), part = v, o;
  s = apply_of(c.params.map, v, ATTN_F32, TEST_BHTD);
  promise_run(&s->does);
  for (int n = 0; n < 2; n++) {
    part.dim = n ? 17 : 7, part.data = (float *)v.data + 7 * n;
    apply_scene *t = apply_of(c.params.map, part, ATTN_F32, TEST_BHTD);
    promise_run(&t->does);
    o = s->o, o.dim = part.dim, o.data = (float *)s->o.data + 7 * n;
    test_assert_same(t->o, o, "side by side");
  }
  test_fill_value(v, 0.75);
  promise_run(&s->does);
  for (int64_t i = 0; i < 70; i++) {
    double got = oracle_get(&s->o, 0, 2, i, 5);
    if (!(fabs(got - (i == 69 ? 0 : 0.75)) <= 1e-6)) fail_msg("row %d is %g", (int)i, got);
  }
}

void H5_apply_limits(void **state) {
  (void)state;
  test_rng rng = test_seed(7860);
  attn_tensor map = drawn(ATTN_F32, TEST_BHTD, 1, 4, 70, 9, 1, &rng);
  attn_tensor v = drawn(ATTN_F32, TEST_BHTD, 1, 2, 9, 5, 1, &rng);
  apply_scene *s = apply_of(map, v, ATTN_F32, TEST_BHTD), keep = *s;
  promise_keep(&s->does);
#define REJECT(change, status, word) \
  *s = keep;                         \
  change;                            \
  promise_reject(&s->does, status, word);
  REJECT(s->map.dim = 8, ATTN_E_SHAPE, "map")
  REJECT(s->map.len = 69, ATTN_E_SHAPE, "map")
  REJECT(s->map.heads = 1, ATTN_E_SHAPE, "map")
  REJECT(s->v.dim = 4, ATTN_E_SHAPE, "v must")
  REJECT(s->v.heads = 3, ATTN_E_HEADS, "v.heads")
  REJECT(s->v.heads = 0, ATTN_E_HEADS, "v.heads")
  REJECT(s->v.batch = 2, ATTN_E_SHAPE, "v must")
  REJECT(s->map.data = NULL, ATTN_E_NULL, "map")
  REJECT(s->v.dtype = ATTN_I8, ATTN_E_DTYPE, "v.dtype")
  REJECT(s->o.stride_len = 2, ATTN_E_STRIDE, "o is an output")
  REJECT(s->p.q_off = 1, ATTN_E_RANGE, "q_off")
  REJECT(s->p.q_off = (int64_t)1 << 41; s->p.has_q_off = 1, ATTN_E_RANGE, "q_off")
  REJECT(s->o = s->v; s->o.heads = 4; s->o.len = 70; s->o.stride_head = 350, ATTN_E_OVERLAP, "o is")
#undef REJECT
  *s = keep;
  s->v.len = s->map.dim = 0;
  promise_run(&s->does);
  for (int64_t c = 0; c < 5; c++) assert_true(oracle_get(&s->o, 0, 3, 69, c) == 0);
  *s = keep;
  s->o.len = s->map.len = 0;
  promise_run(&s->does);
}

/* ---- the stack ------------------------------------------------------------------------------*/

enum { LAYERS = 7 };

typedef struct stack {
  attn_tensor o[LAYERS], q[LAYERS], k[LAYERS], v[LAYERS];
  int64_t layers;
  attn_lazyformer_params p;
  promise does;
} stack;

static attn_status stack_call(void *at, attn_ctx *ctx) {
  stack *s = at;
  return attn_lazyformer(s->o, s->q, s->k, s->v, s->layers, &s->p, ctx);
}
static size_t stack_ask(void *at, const attn_ctx *ctx) {
  stack *s = at;
  return attn_lazyformer_workspace(s->o, s->q, s->k, s->v, s->layers, &s->p, ctx);
}

static stack *stack_of(int64_t layers, int64_t period, int64_t n, test_rng *rng) {
  stack *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->layers = layers, s->p.period = period;
  int64_t r = period ? period : 2, tk = 0, dk = 0;
  for (int64_t l = 0; l < layers; l++) {
    attn_dtype type = (attn_dtype)(n && l % 2 ? test_range(rng, 0, 2) : 0);
    if (l % r == 0) {
      tk = test_range(rng, 1, 40), dk = test_range(rng, 1, 9);
      s->q[l / r] = drawn(type, TEST_PADDED, 2, 4, 19, dk, 1, rng);
      s->k[l / r] = drawn(type, TEST_BHTD, 2, 2, tk, dk, 1, rng);
    }
    int64_t heads = n > 2 && l % 3 == 2 ? 4 : 2, dv = test_range(rng, 1, 9);
    s->v[l] = drawn(type, (test_layout)(n % TEST_SHARED), 2, heads, tk, dv, 1, rng);
    s->o[l] = test_tensor((attn_dtype)(n % 3), TEST_PADDED, 2, 4, 19, dv);
    if (l < 4) s->does.block[l] = test_last_block, s->does.out[l] = &s->o[l];
  }
  s->does.call = stack_call, s->does.ask = stack_ask, s->does.scene = s;
  return s;
}

static void stack_check(stack *s, const char *what) {
  int64_t r = s->p.period ? s->p.period : 2;
  promise_run(&s->does);
  for (int64_t l = 0; l < s->layers; l++) {
    const attn_tensor *q = &s->q[l / r], *k = &s->k[l / r], *v = &s->v[l];
    for (int64_t n = 0; n < 2 * 4 * 19; n++) {
      int64_t b = n / 76, h = n / 19 % 4, i = n % 19;
      bag row = bag_of(k->len, v->dim);
      for (int64_t j = 0; j < k->len; j++)
        if (!s->p.attention.causal || j <= i + k->len - 19)
          bag_add(&row, dot_rows(q, k, b, h, i, j) / sqrt((double)q->dim), v, b, head_of(v, h, 4),
                  j);
      bag_close(&row);
      bag_check(&row, &s->o[l], NULL, b, h, i, 2e-5, what);
    }
  }
}

void H5_stack_random(void **state) {
  (void)state;
  static const int64_t shape[][2] = {{1, 1}, {4, 0}, {3, 2}, {5, 3},
                                     {7, 4}, {4, 9}, {6, 1}, {0, 2}};
  for (int64_t n = 0; n < test_count(8, 4); n++, test_mem_release()) {
    test_rng rng = test_seed(7900 + (uint64_t)n);
    stack *s = stack_of(shape[n][0], shape[n][1], n, &rng);
    s->p.attention.causal = n % 2 != 0;
    stack_check(s, "stack");
  }
}

/* The same values in all layers of a period: the same outputs, and those of a period of 1. */
void H5_stack_agrees(void **state) {
  (void)state;
  test_rng rng = test_seed(7950);
  stack *s = stack_of(3, 3, 0, &rng);
  s->v[1] = s->v[2] = s->v[0];
  for (int l = 0; l < 3; l++) s->o[l] = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, 19, s->v[0].dim);
  promise_run(&s->does);
  test_assert_same(s->o[1], s->o[0], "one map");
  test_assert_same(s->o[2], s->o[0], "one map");
  stack *t = test_mem(sizeof *t);
  *t = *s;
  t->layers = 1, t->p.period = 1, t->does.scene = t;
  t->o[0] = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, 19, s->v[0].dim);
  promise_run(&t->does);
  test_assert_same(t->o[0], s->o[0], "by itself");
}

/* Relative values belong to each layer's own. */
void H5_stack_relative(void **state) {
  (void)state;
  test_rng rng = test_seed(7955);
  stack *s = stack_of(3, 3, 0, &rng);
  for (int l = 0; l < 3; l++) {
    s->v[l] = drawn(ATTN_F32, TEST_BHTD, 2, 2, s->k[0].len, 6, 1, &rng);
    s->o[l] = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, 19, 6);
  }
  s->p.attention.relative.values = drawn(ATTN_F32, TEST_BHTD, 1, 4, 7, 6, 1, &rng);
  promise_run(&s->does);
  attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, 19, 6);
  for (int l = 0; l < 3; l++) {
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_sdpa(o, s->q[0], s->k[0], s->v[l], &s->p.attention, &ctx), ATTN_OK);
    test_assert_same(s->o[l], o, "by itself");
  }
}

void H5_stack_limits(void **state) {
  (void)state;
  test_rng rng = test_seed(7960);
  stack *s = stack_of(4, 2, 1, &rng), keep = *s;
  promise_keep(&s->does);
#define REJECT(change, status, word) \
  *s = keep;                         \
  change;                            \
  promise_reject(&s->does, status, word);
  REJECT(s->p.period = -1, ATTN_E_RANGE, "period")
  REJECT(s->layers = -1, ATTN_E_RANGE, "layers")
  REJECT(s->v[3].heads = 3, ATTN_E_HEADS, "v.heads")
  REJECT(s->v[1].len = 0, ATTN_E_SHAPE, "v.len")
  REJECT(s->o[2].dim++, ATTN_E_SHAPE, "o")
  REJECT(s->q[1].heads = 2; s->o[2].heads = s->o[3].heads = 2, ATTN_E_SHAPE, "q[0]")
  REJECT(s->p.attention.lse = s->q[0], ATTN_E_RANGE, "lse")
  REJECT(s->p.attention.map = s->q[0], ATTN_E_RANGE, "map")
  REJECT(s->p.attention.ragged.sequences = 1, ATTN_E_RANGE, "ragged")
  REJECT(s->o[1].data = s->o[0].data; s->o[1].dtype = s->o[0].dtype, ATTN_E_OVERLAP, "o is")
#undef REJECT
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_lazyformer(NULL, s->q, s->k, s->v, 1, NULL, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_lazyformer(NULL, NULL, NULL, NULL, 0, NULL, &ctx), ATTN_OK);
}
