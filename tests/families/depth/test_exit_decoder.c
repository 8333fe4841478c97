/* tests/families/depth/test_exit_decoder.c owns stacks of decoder blocks that tokens leave early, in chunks and token by
 * token, against the whole stack in float64. */

#include "depth.h"

enum { LAYERS = 5 };

typedef struct stack {
  attn_tensor y, x, e, shown; /* shown: the exits, as a tensor of their bits */
  int32_t *exits;
  attn_exit_cache cache;
  attn_block_params layers[LAYERS];
  attn_decoder_cache keys[LAYERS];
  attn_exit_decoder_params p;
  promise does;
} stack;

static attn_status stack_call(void *at, attn_ctx *ctx) {
  stack *s = at;
  attn_exit_cache cache = s->cache; /* the same step again and again */
  attn_decoder_cache keys[LAYERS];
  memcpy(keys, s->keys, sizeof keys);
  cache.layer = cache.layer ? keys : NULL;
  return attn_exit_decoder(s->y, s->exits, s->x, &cache, &s->p, ctx);
}
static size_t stack_ask(void *at, const attn_ctx *ctx) {
  stack *s = at;
  return attn_exit_decoder_workspace(s->y, s->exits, s->x, &s->cache, &s->p, ctx);
}

static stack *stack_of(const depth_shape *shape, int64_t batch, int64_t len, int64_t room,
                       int64_t from, attn_dtype cached, test_rng *rng) {
  stack *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const test_layout heads = shape->dm % 2 ? TEST_BHTD : TEST_BTHD;
  s->x = drawn(shape->type, TEST_PADDED, batch, 1, len, shape->dm, 1, rng);
  s->y = output(ATTN_F32, TEST_PADDED, batch, 1, len, shape->dm, &s->does.block[0]);
  if (shape->de) s->e = drawn(ATTN_F32, TEST_PADDED, batch, 1, from, shape->de, 1, rng);
  s->shown = output(ATTN_F32, TEST_BHTD, 1, 1, 1, batch * len + 1, &s->does.block[1]);
  s->exits = s->shown.data;
  s->cache.layer = s->keys;
  s->cache.last = test_tensor(ATTN_F32, TEST_PADDED, batch, 1, room, shape->dm);
  for (int m = 0; m < LAYERS; m++) {
    depth_shape one = *shape;
    one.pre = shape->pre == 2 ? m % 2 : shape->pre;
    s->layers[m] = depth_weights(&one, rng);
    s->keys[m].k = test_tensor(cached, heads, batch, shape->kv_heads, room, shape->dk);
    s->keys[m].v = test_tensor(cached, heads, batch, shape->kv_heads, room, shape->dv);
    if (shape->de) {
      s->keys[m].e_k = test_tensor(ATTN_F32, heads, batch, shape->kv_heads, from, shape->dk);
      s->keys[m].e_v = test_tensor(ATTN_F32, heads, batch, shape->kv_heads, from, shape->dv);
    }
  }
  s->p.layers = s->layers, s->p.count = LAYERS;
  s->does.call = stack_call, s->does.ask = stack_ask, s->does.scene = s, s->does.out[0] = &s->y;
  return s;
}

static void stack_start(stack *s) {
  s->cache.len = 0;
  for (int m = 0; m < LAYERS; m++) {
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_decoder_start(&s->keys[m], s->e, &s->layers[m], &ctx), ATTN_OK);
  }
}

/* The whole stack over all rows of x. */
static cube stack_oracle(const stack *s, const int32_t *exits) {
  const int64_t rows = s->x.batch * s->x.len;
  unsigned char *run = test_mem((size_t)rows + 1);
  cube state = cube_from(&s->x);
  for (int m = 0; m < s->p.count; m++) {
    for (int64_t i = 0; i < rows; i++) run[i] = exits[i] > m;
    const depth_case layer = {&s->layers[m],     1, NULL, run, s->e.data ? &s->e : NULL,
                              s->layers[m].e_len};
    state = depth_block(&layer, &state);
  }
  return state;
}

/* Tokens at .. at + n - 1 of x into those rows of y. */
static void stack_feed(stack *s, const int32_t *exits, int64_t at, int64_t n) {
  const int64_t len = s->x.len;
  int32_t *own = test_mem((size_t)(s->x.batch * n) * sizeof *own);
  for (int64_t i = 0; i < s->x.batch * n; i++) own[i] = exits[i / n * len + at + i % n];
  attn_ctx ctx = test_ctx();
  const attn_tensor x = test_rows(s->x, at, n), y = test_rows(s->y, at, n);
  const attn_status status = attn_exit_decoder(y, own, x, &s->cache, &s->p, &ctx);
  if (status != ATTN_OK) fail_msg("%s: %s", attn_status_string(status), ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
  assert_int_equal(s->cache.len, at + n);
}

static int32_t *drawn_exits(int64_t n, test_rng *rng) {
  int32_t *e = test_mem((size_t)(n + 1) * sizeof *e);
  for (int64_t i = 0; i < n; i++) e[i] = (int32_t)test_range(rng, 1, LAYERS);
  return e;
}

void K2_decode_random(void **state) {
  (void)state;
  for (int64_t n = test_count(36, 9); n-- > 0; test_mem_release()) {
    test_rng rng = test_seed(13000 + (uint64_t)n);
    depth_shape x = depth_plain(1, 1, 1);
    x.dm = test_range(&rng, 2, 14), x.kv_heads = test_range(&rng, 1, 2);
    x.heads = x.kv_heads * test_range(&rng, 1, 2);
    x.dk = test_range(&rng, 1, 5), x.dv = test_range(&rng, 1, 5), x.dff = test_range(&rng, 1, 20);
    x.pre = (int)(n % 3), x.biases = n % 5 != 1, x.plain_norm = n % 4 == 1;
    x.de = n % 2 ? test_range(&rng, 1, 9) : 0;
    const int64_t batch = test_range(&rng, 1, 3), len = test_range(&rng, 1, n % 9 == 8 ? 70 : 14);
    const int64_t room = len + test_range(&rng, 0, 3), from = test_range(&rng, 1, 7);
    stack *s = stack_of(&x, batch, len, room, from, n % 7 == 3 ? ATTN_F16 : ATTN_F32, &rng);
    for (int m = 0; x.de && n % 4 == 3 && m < LAYERS; m++)
      s->layers[m].e_len = test_lengths(batch, from, &rng);
    int32_t *exits = drawn_exits(batch * len, &rng);
    if (n % 6 == 5)
      for (int64_t i = 0; i < batch * len; i++) exits[i] = i % 7 == 6 ? LAYERS : 1;
    const cube want = stack_oracle(s, exits);
    stack_start(s);
    for (int64_t at = 0, some; at < len; at += some) {
      some = n % 3 == 0 ? 1 : n % 3 == 1 ? len : test_range(&rng, 1, 5);
      if (some > len - at) some = len - at;
      stack_feed(s, exits, at, some);
    }
    cube_check(&want, &s->y, n % 7 == 3 ? 2e-2 : 1e-4, "exits");
  }
}

/* All exits alike: a stack of so many blocks. */
void K2_decode_plain(void **state) {
  (void)state;
  test_rng rng = test_seed(13100);
  depth_shape x = depth_plain(12, 2, 6);
  x.pre = 1;
  stack *s = stack_of(&x, 2, 11, 11, 0, ATTN_F32, &rng);
  for (int e = 1; e <= LAYERS; e++) {
    int32_t exits[22];
    attn_tensor h = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 11, 12);
    for (int i = 0; i < 22; i++) exits[i] = e;
    stack_start(s);
    stack_feed(s, exits, 0, 11);
    test_copy(h, s->x);
    for (int m = 0; m < e; m++) {
      attn_ctx ctx = test_ctx();
      attn_block_params p = s->layers[m];
      p.self.attention.one_order = 1;
      assert_int_equal(attn_decoder(h, h, absent(), &p, &ctx), ATTN_OK);
      assert_int_equal(s->keys[m].len, 11);
    }
    test_assert_same(s->y, h, "plain stack");
    for (int m = e; m < LAYERS; m++) assert_int_equal(s->keys[m].len, 0); /* not run */
  }
}

/* The exit of a token changes no earlier one, and later ones only through its states. */
void K2_decode_causal(void **state) {
  (void)state;
  test_rng rng = test_seed(13200);
  depth_shape x = depth_plain(10, 2, 5);
  stack *s = stack_of(&x, 1, 20, 20, 0, ATTN_F32, &rng);
  int32_t *exits = drawn_exits(20, &rng);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 20, 10);
  stack_start(s), stack_feed(s, exits, 0, 20);
  test_copy(y, s->y);
  for (int32_t e = 1; e <= LAYERS; e++) {
    if (e == exits[12]) continue;
    int32_t *other = test_mem(20 * sizeof *other);
    memcpy(other, exits, 20 * sizeof *other);
    other[12] = e;
    stack_start(s), stack_feed(s, other, 0, 20);
    test_assert_same(test_rows(s->y, 0, 12), test_rows(y, 0, 12), "earlier tokens");
    assert_false(test_same(test_rows(s->y, 12, 1), test_rows(y, 12, 1)));
  }
  /* back to token 12 and on again */
  s->cache.len = 12;
  for (int m = 0; m < LAYERS; m++)
    if (s->keys[m].len > 12) s->keys[m].len = 12;
  stack_feed(s, exits, 12, 8);
  test_assert_near(s->y, y, 2e-5, "after going back");
}

/* ---- exits that are decided on the way ------------------------------------------------------*/

typedef struct judge {
  int64_t len, at; /* tokens in all, and those before the call */
  const int32_t *exits;
  float *sure; /* [LAYERS - 1][batch len] */
  int64_t asked, rows, fails;
} judge;

/* Stops where a table says so. */
static attn_status by_table(void *user, const attn_exit_rows *r, attn_ctx *ctx) {
  judge *j = user;
  assert_int_equal(ctx->isa, test_isa);
  j->asked++, j->rows += r->h.len;
  if (j->fails == r->layer) return ATTN_E_NUMERIC;
  for (int64_t i = 0; i < r->h.len; i++) {
    assert_int_equal(r->stop[i], 0);
    r->stop[i] = j->exits[r->token[i]] == r->layer;
  }
  return ATTN_OK;
}

void K2_decode_decide(void **state) {
  (void)state;
  test_rng rng = test_seed(13300);
  depth_shape x = depth_plain(9, 1, 4);
  stack *s = stack_of(&x, 3, 13, 13, 0, ATTN_F32, &rng);
  int32_t *exits = drawn_exits(39, &rng), got[39];
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 3, 1, 13, 9);
  judge j = {13, 0, exits, NULL, 0, 0, 0};
  stack_start(s), stack_feed(s, exits, 0, 13);
  test_copy(y, s->y);
  s->p.decide = by_table, s->p.user = &j;
  stack_start(s);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_exit_decoder(s->y, got, s->x, &s->cache, &s->p, &ctx), ATTN_OK);
  test_assert_same(s->y, y, "decided on the way");
  int64_t rows = 0;
  for (int i = 0; i < 39; i++) {
    assert_int_equal(got[i], exits[i]);
    rows += exits[i] < LAYERS ? exits[i] : LAYERS - 1;
  }
  assert_int_equal(j.rows, rows);
  assert_int_equal(j.asked, LAYERS - 1);
  /* one that fails ends the call, and nothing has happened */
  stack_start(s);
  j.fails = 2;
  test_fill_value(s->y, 7), test_fill_value(y, 7);
  assert_int_equal(attn_exit_decoder(s->y, NULL, s->x, &s->cache, &s->p, &ctx), ATTN_E_NUMERIC);
  assert_non_null(strstr(ctx.reason, "decide"));
  test_assert_same(s->y, y, "untouched");
  for (int m = 0; m < LAYERS; m++) assert_int_equal(s->keys[m].len, 0);
  assert_int_equal(s->cache.len, 0);
  j.fails = 0;
  assert_int_equal(attn_exit_decoder(s->y, NULL, s->x, &s->cache, &s->p, &ctx), ATTN_OK);
}

/* CALM: the cosine of a state with the one before it, against a threshold for each token. */
static attn_status by_cosine(void *user, const attn_exit_rows *r, attn_ctx *ctx) {
  judge *j = user;
  float c[64] = {0}, threshold;
  attn_confidence_params p;
  memset(&p, 0, sizeof p);
  p.kind = ATTN_CONFIDENCE_COSINE, p.before = r->before;
  const attn_tensor y = attn_bhtd(c, ATTN_F32, 1, 1, r->h.len, 1);
  attn_status status = attn_confidence(y, r->h, &p, ctx);
  for (int64_t i = 0; status == ATTN_OK && i < r->h.len; i++) {
    const int64_t t = j->at + r->token[i];
    attn_calm_threshold_params at = {ATTN_CALM_PAPER, j->len, t, 0};
    status = attn_calm_threshold(&threshold, 1, 1, &at, ctx);
    j->sure[(r->layer - 1) * j->len + t] = c[i];
    r->stop[i] = r->layer >= 2 && c[i] >= threshold;
  }
  return status;
}

void K3_decode(void **state) {
  (void)state;
  test_rng rng = test_seed(13400);
  depth_shape x = depth_plain(8, 2, 4);
  x.pre = 1;
  stack *s = stack_of(&x, 1, 24, 24, 0, ATTN_F32, &rng);
  for (int m = 0; m < LAYERS; m++) { /* later layers change less */
    attn_tensor *w[2] = {&s->layers[m].self.w_o, &s->layers[m].ff.w_2};
    for (int k = 0; k < 2; k++)
      for (int64_t e = 0; e < w[k]->len * 8; e++)
        oracle_set(w[k], 0, 0, e / 8, e % 8, oracle_get(w[k], 0, 0, e / 8, e % 8) / (1 + m) / 2);
  }
  float *sure = test_floats((LAYERS - 1) * 24, 0, &rng), threshold[24];
  judge j = {24, 0, NULL, sure, 0, 0, 0};
  int32_t exits[24], want[24];
  s->p.decide = by_cosine, s->p.user = &j;
  stack_start(s);
  for (int64_t t = 0; t < 24; t++) {
    attn_ctx ctx = test_ctx();
    j.at = t;
    assert_int_equal(attn_exit_decoder(test_rows(s->y, t, 1), exits + t, test_rows(s->x, t, 1),
                                       &s->cache, &s->p, &ctx),
                     ATTN_OK);
  }
  attn_calm_threshold_params at = {ATTN_CALM_PAPER, 24, 0, 0};
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_calm_threshold(threshold, 24, 1, &at, &ctx), ATTN_OK);
  assert_int_equal(
      attn_calm_exit(want, attn_bhtd(sure, ATTN_F32, 1, 1, LAYERS - 1, 24), threshold, 2, &ctx),
      ATTN_OK);
  int early = 0, late = 0;
  for (int t = 0; t < 24; t++) {
    assert_int_equal(exits[t], want[t]);
    early += exits[t] == 2, late += exits[t] > 2;
  }
  assert_true(early > 2 && late > 2);
  const cube oracle = stack_oracle(s, exits);
  cube_check(&oracle, &s->y, 1e-4, "CALM");
}

void K2_decode_promises(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++, test_mem_release()) {
    test_rng rng = test_seed(13500 + (uint64_t)n);
    depth_shape x = depth_plain(24, 4, 6);
    x.de = n % 2 ? 10 : 0, x.pre = 2, x.type = n == 3 ? ATTN_F16 : ATTN_F32;
    const int64_t len = n == 0 ? 1 : n == 1 ? 1 : 70;
    stack *s = stack_of(&x, n == 1 ? 3 : 2, 90, 90, 12, ATTN_F32, &rng);
    int32_t *exits = drawn_exits(3 * 90, &rng);
    stack_start(s), stack_feed(s, exits, 0, 9);
    s->x = test_rows(s->x, 9, len), s->y = test_rows(s->y, 9, len);
    memcpy(s->exits, exits, (size_t)(s->x.batch * len) * sizeof *exits);
    promise_keep(&s->does);
  }
}

void K2_decode_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(13600);
  depth_shape x = depth_plain(8, 2, 4);
  x.de = 6;
  stack *s = stack_of(&x, 2, 5, 9, 4, ATTN_F32, &rng), keep;
  int32_t *exits = drawn_exits(10, &rng);
  stack_start(s);
  memcpy(s->exits, exits, 10 * sizeof *exits);
  s->cache.len = 4;
  keep = *s;
#define REJECT(change, status, word)        \
  do {                                      \
    *s = keep;                              \
    change;                                 \
    promise_reject(&s->does, status, word); \
  } while (0)
  promise_run(&s->does);
  REJECT(s->p.count = 0, ATTN_E_SHAPE, "count");
  REJECT(s->p.layers = NULL, ATTN_E_NULL, "layers");
  REJECT(s->cache.layer = NULL, ATTN_E_NULL, "layer");
  REJECT(s->exits = NULL, ATTN_E_NULL, "exits");
  REJECT(s->cache.len = 5, ATTN_E_FULL, "room");
  REJECT(s->cache.len = -1, ATTN_E_RANGE, "cache.len");
  REJECT(s->keys[3].len = 5, ATTN_E_RANGE, "layer[m].len");
  REJECT(s->keys[2].k.len = s->keys[2].v.len = 8, ATTN_E_FULL, "room");
  REJECT(s->keys[2].k.dim = 3, ATTN_E_SHAPE, "cache.k");
  REJECT(s->keys[1].e_k.data = NULL, ATTN_E_NULL, "cross");
  REJECT(s->cache.last.dim = 7, ATTN_E_SHAPE, "last");
  REJECT(s->cache.last.batch = 1, ATTN_E_SHAPE, "last");
  REJECT(s->cache.last.data = s->y.data, ATTN_E_OVERLAP, "");
  REJECT(s->keys[2].k = s->keys[3].k, ATTN_E_OVERLAP, "cache");
  REJECT(s->keys[4].e_k = test_rows(s->keys[2].k, 0, 4);
         s->keys[4].e_v = s->keys[4].e_k, ATTN_E_OVERLAP, "cache");
  REJECT(s->y.len = 4, ATTN_E_SHAPE, "y must");
  REJECT(s->y.data = s->layers[2].ff.w_1.data, ATTN_E_OVERLAP, "y ");
  REJECT(s->layers[1].self.attention.window = attn_window_of(1, -1), ATTN_E_RANGE, "attend");
  REJECT(s->layers[1].cross.attention.map = s->y, ATTN_E_RANGE, "attend");
  REJECT(s->layers[1].cross.attention.causal = 1, ATTN_E_RANGE, "causal");
  REJECT(s->layers[1].self.attention.sinks = s->cache.last.data, ATTN_E_OVERLAP, "");
  REJECT(s->layers[1].cross.attention.sinks = s->keys[3].k.data, ATTN_E_OVERLAP, "cache");
  REJECT(s->layers[1].e_len = s->keys[3].v.data;
         memset(s->keys[3].v.data, 0, 8), ATTN_E_OVERLAP, "cache");
  REJECT(s->layers[4].sublayer = ATTN_SUBLAYER_PLAIN, ATTN_E_RANGE, "sublayer");
  REJECT(s->layers[4].self.w_q.data = NULL, ATTN_E_NULL, "w_q");
  *s = keep;
  s->exits[3] = LAYERS + 1;
  promise_reject(&s->does, ATTN_E_RANGE, "exits");
  s->exits[3] = 0;
  promise_reject(&s->does, ATTN_E_RANGE, "exits");
  s->exits[3] = 1;
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_exit_decoder(s->y, s->exits, s->x, NULL, &s->p, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_exit_decoder(s->y, s->exits, s->x, &s->cache, NULL, &ctx), ATTN_E_NULL);
  s->x.len = s->y.len = 0;
  promise_run(&s->does);
}
