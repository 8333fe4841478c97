/* tests/families/maps/test_score_maps.c owns attention over scores that are mixed with those of the layer below:
 * the general form, RealFormer and Predictive Attention against float64, and what follows from
 * their formulas. */

#include "compound.h"
#include "terms.h"

enum { MIX, REAL, PREDICT };

typedef struct scene {
  int kind;
  test_call at; /* o, q, k, v; its params are those of the attention */
  attn_tensor previous, scores;
  attn_score_mix_params mix;
  attn_realformer_params real;
  attn_predictive_params predict;
  promise does;
} scene;

/* The params of a kind, complete. */
static void fill(scene *s) {
  s->mix.previous = s->real.previous = s->predict.previous = s->previous;
  s->mix.scores = s->real.scores = s->predict.scores = s->scores;
  s->mix.attention = s->real.attention = s->predict.attention = s->at.params;
}

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  fill(s);
  if (s->kind == MIX) return attn_score_mix(s->at.o, s->at.q, s->at.k, s->at.v, &s->mix, ctx);
  if (s->kind == REAL) return attn_realformer(s->at.o, s->at.q, s->at.k, s->at.v, &s->real, ctx);
  return attn_predictive(s->at.o, s->at.q, s->at.k, s->at.v, &s->predict, ctx);
}

static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  const test_call *c = &s->at;
  fill(s);
  if (s->kind == MIX) return attn_score_mix_workspace(c->o, c->q, c->k, c->v, &s->mix, ctx);
  if (s->kind == REAL) return attn_realformer_workspace(c->o, c->q, c->k, c->v, &s->real, ctx);
  return attn_predictive_workspace(c->o, c->q, c->k, c->v, &s->predict, ctx);
}

static void promises(scene *s) {
  memset(&s->does, 0, sizeof s->does);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->at.o, s->does.out[1] = &s->scores;
  s->does.out[2] = &s->at.params.lse, s->does.out[3] = &s->at.params.map;
}

/* A scene around a call. */
static scene *around(int kind, test_call c) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->kind = kind, s->at = c;
  promises(s);
  return s;
}

static attn_tensor map_tensor(const scene *s, attn_dtype type, test_layout layout) {
  return test_tensor(type, layout, s->at.q.batch, s->at.q.heads, s->at.q.len, s->at.k.len);
}

static void give_previous(scene *s, attn_dtype type, test_layout layout, test_rng *rng) {
  s->previous = map_tensor(s, type, layout);
  test_fill(s->previous, rng, test_normal);
}

static scene *simple(int kind, int64_t heads, int64_t q_len, int64_t k_len, uint64_t seed) {
  test_rng rng = test_seed(seed);
  test_spec spec = test_plain(heads, q_len, k_len, 6, 5);
  scene *s = around(kind, test_build(&spec, &rng));
  give_previous(s, ATTN_F32, TEST_BHTD, &rng);
  s->scores = map_tensor(s, ATTN_F32, TEST_BHTD);
  s->does.block[1] = test_last_block;
  s->predict.kernel = drawn(ATTN_F32, TEST_BHTD, heads, heads, 3, 3, 0.4, &rng);
  return s;
}

/* ---- the oracle -----------------------------------------------------------------------------*/

static double or_default(float x, double otherwise) {
  return x != 0 ? (double)x : signbit(x) ? 0 : otherwise;
}

/* A: the scores of this layer alone; keys that are not read have 0. */
static cube fresh(const scene *s) {
  const test_call *c = &s->at;
  attn_sdpa_params p = c->params;
  memset(&p.bias, 0, sizeof p.bias);
  cube a = cube_of(c->q.batch, c->q.heads, c->q.len, c->k.len);
  for (int64_t n = 0; n < a.batch * a.heads * a.len; n++) {
    int64_t b = n / a.len / a.heads, h = n / a.len % a.heads, i = n % a.len;
    for (int64_t j = 0; j < a.dim; j++)
      cube_at(&a, b, h, i)[j] =
          p.kv_len && j >= p.kv_len[b] ? 0 : oracle_score(&c->q, &c->k, &p, b, h, i, j).x;
  }
  return a;
}

/* act(conv(y)), every tap by itself. */
static cube convolved(const scene *s, const cube *y) {
  const attn_predictive_params *p = &s->predict;
  const test_call *c = &s->at;
  int causal = p->rule == ATTN_PREDICTIVE_CAUSAL;
  int64_t kh = p->kernel.len, kw = p->kernel.dim;
  cube z = cube_of(y->batch, y->heads, y->len, y->dim);
  for (int64_t n = 0; n < z.batch * z.heads * z.len; n++) {
    int64_t b = n / z.len / z.heads, o = n / z.len % z.heads, i = n % z.len;
    for (int64_t j = 0; j < z.dim; j++) {
      double sum = p->bias ? (double)p->bias[o] : 0;
      for (int64_t t = 0; t < z.heads * kh * kw; t++) {
        int64_t in = t / kw / kh, row = i + t / kw % kh - (causal ? kh - 1 : (kh - 1) / 2);
        int64_t key = j + t % kw - (kw - 1) / 2;
        if (row < 0 || row >= z.len || key < 0 || key >= z.dim) continue;
        if (causal && !oracle_allowed(&c->q, &c->k, &c->params, b, in, row, key)) continue;
        sum += oracle_get(&p->kernel, o, in, t / kw % kh, t % kw) * cube_at(y, b, in, row)[key];
      }
      cube_at(&z, b, o, i)[j] = p->activation == ATTN_ACT_RELU && sum < 0 ? 0 : sum;
    }
  }
  return z;
}

/* x a + y b, element by element. */
static cube sum_of(double x, const cube *a, double y, const cube *b) {
  cube z = cube_of(a->batch, a->heads, a->len, a->dim);
  for (int64_t n = 0; n < z.batch * z.heads * z.len * z.dim; n++)
    z.data[n] = (x == 0 ? 0 : x * a->data[n]) + (y == 0 ? 0 : y * b->data[n]);
  return z;
}

static cube mixed(const scene *s, const cube *previous) {
  const attn_predictive_params *p = &s->predict;
  cube a = fresh(s);
  int first = !s->previous.data;
  if (s->kind == MIX)
    return sum_of(or_default(s->mix.fresh_weight, 1), &a,
                  first ? 0 : or_default(s->mix.previous_weight, 1), first ? &a : previous);
  if (s->kind == REAL) return sum_of(1, &a, first ? 0 : 1, first ? &a : previous);
  if (!p->evolving) {
    double alpha = or_default(p->alpha, 0.5);
    if (first || alpha == 1) return a;
    cube y = convolved(s, previous);
    return sum_of(alpha, &a, 1 - alpha, &y);
  }
  double mp = first ? 0 : or_default(p->previous_share, 0.5);
  double mc = or_default(p->convolved_share, 0.5);
  cube m = sum_of(1 - mp, &a, mp, first ? &a : previous);
  if (mc == 0) return m;
  cube y = convolved(s, &m);
  return sum_of(mc, &y, 1 - mc, &m);
}

/* The softmax of row (b, h, i) of the scores x, its outputs compared. */
static void check_row(const scene *s, const double *x, int64_t b, int64_t h, int64_t i,
                      double tolerance, const char *what) {
  const test_call *c = &s->at;
  const attn_sdpa_params *p = &c->params;
  int64_t tk = c->k.len, hv = h * c->v.heads / c->q.heads,
          position = oracle_position(&c->q, &c->k, p, b, i);
  double by = s->kind == REAL && s->real.mean ? 1.0 / (double)(s->real.layers_below + 1) : 1;
  double top = -(double)INFINITY, sum = 0, value = 0, spread = 1;
  double *w = test_mem((size_t)(tk + 1) * sizeof *w);
  int live = !p->q_len || i < p->q_len[b];
  for (int64_t j = 0; j < tk; j++) {
    w[j] = -(double)INFINITY;
    if (!oracle_allowed(&c->q, &c->k, p, b, h, i, j)) continue;
    w[j] = x[j] * by + oracle_mask(&p->bias, b, h, i, j);
    spread = fmax(spread, fabs(x[j]));
    top = fmax(top, w[j]);
  }
  if (live && p->sinks) top = fmax(top, (double)p->sinks[h]);
  if (live && p->softmax_one) top = fmax(top, 0);
  if (top > -(double)INFINITY) {
    for (int64_t j = 0; j < tk; j++) sum += exp(w[j] - top);
    if (live && p->sinks) sum += exp((double)p->sinks[h] - top);
    if (live && p->softmax_one) sum += exp(0 - top);
  }
  for (int64_t j = 0; j < tk; j++) w[j] = sum > 0 ? exp(w[j] - top) / sum : 0;
  tolerance *= spread;
  for (int64_t n = 0; n < c->v.dim; n++) {
    double o = 0;
    for (int64_t j = 0; j < tk; j++) {
      double v = w[j] > 0 ? oracle_get(&c->v, b, hv, j, n) : 0;
      if (w[j] > 0 && p->relative.values.data) v += oracle_relative_value(p, h, j - position, n);
      o += w[j] * v, value = fmax(value, fabs(v));
    }
    value_check(oracle_get(&c->o, b, h, i, n), o, tolerance * fmax(1, value), c->o.dtype, what, b,
                h, i, n);
  }
  for (int64_t j = 0; p->map.data && j < tk; j++)
    value_check(oracle_get(&p->map, b, h, i, j), w[j], tolerance, ATTN_F32, "map", b, h, i, j);
  if (!p->lse.data) return;
  double lse = sum > 0 ? top + log(sum) : -(double)INFINITY;
  value_check(oracle_get(&p->lse, b, h, i, 0), lse, tolerance, ATTN_F32, "lse", b, h, i, 0);
}

static void check(const scene *s, const cube *previous, double tolerance, const char *what) {
  cube x = mixed(s, previous);
  if (s->scores.data) cube_check(&x, &s->scores, tolerance, what);
  for (int64_t n = 0; n < x.batch * x.heads * x.len; n++) {
    int64_t b = n / x.len / x.heads, h = n / x.len % x.heads, i = n % x.len;
    check_row(s, cube_at(&x, b, h, i), b, h, i, tolerance, what);
  }
}

static cube before(const scene *s) {
  return s->previous.data ? cube_from(&s->previous)
                          : cube_of(s->at.q.batch, s->at.q.heads, s->at.q.len, s->at.k.len);
}

static void run(scene *s, double tolerance, const char *what) {
  cube previous = before(s);
  promise_run(&s->does);
  check(s, &previous, tolerance, what);
}

/* A scene of random extents, storage types, layouts, masks, lengths and terms. */
static scene *random_scene(int kind, int64_t n, int64_t most, test_rng *rng) {
  static const int terms[] = {0,
                              TERM_KEYS | TERM_VALUES,
                              TERM_T5,
                              0,
                              TERM_PARABOLA | TERM_GAUSSIAN,
                              TERM_LABELS,
                              0,
                              TERM_FACTOR};
  test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
  scene *s = around(kind, test_terms_call(terms[n % 8], most, rng));
  if (s->at.params.bias.kind) s->at.params.softcap_at = ATTN_SOFTCAP_SCORES; /* or it is refused */
  test_layout layout = (test_layout)(test_u64(rng) % TEST_SHARED);
  if (n % 5) give_previous(s, (attn_dtype)(test_u64(rng) % 3), layout, rng);
  if (n % 4)
    s->scores = map_tensor(s, n % 4 == 3 ? (attn_dtype)(1 + n / 4 % 2) : ATTN_F32,
                           (test_layout)(test_u64(rng) % TEST_SHARED));
  test_where = TEST_HEAP;
  return s;
}

/* ---- tests ----------------------------------------------------------------------------------*/

void SM_random(void **state) {
  (void)state;
  static const float weight[] = {0, 1, -0.5f, ATTN_ZERO, 1.25f};
  for (int64_t n = test_count(40, 16); n-- > 0; test_mem_release()) {
    test_rng rng = test_seed(7000 + (uint64_t)n);
    scene *s = random_scene(MIX, n, n % 6 ? 40 : 140, &rng);
    s->mix.fresh_weight = weight[test_u64(&rng) % 5];
    s->mix.previous_weight = weight[test_u64(&rng) % 5];
    run(s, 3e-5, "mixed scores");
  }
}

void H4_random(void **state) {
  (void)state;
  for (int64_t n = test_count(40, 16); n-- > 0; test_mem_release()) {
    test_rng rng = test_seed(7200 + (uint64_t)n);
    scene *s = random_scene(REAL, n, n % 6 ? 40 : 140, &rng);
    s->real.layers_below = test_range(&rng, 0, 5);
    s->real.mean = n % 2 != 0;
    run(s, 3e-5, "residual scores");
  }
}

void H3_random(void **state) {
  (void)state;
  static const float share[] = {0, 1, 0.25f, ATTN_ZERO, 0.8f};
  for (int64_t n = test_count(60, 20); n-- > 0; test_mem_release()) {
    test_rng rng = test_seed(7400 + (uint64_t)n);
    scene *s = random_scene(PREDICT, n, n % 10 ? 30 : 90, &rng);
    attn_predictive_params *p = &s->predict;
    int64_t h = s->at.q.heads;
    p->rule = (attn_predictive_rule)(n % 2);
    int64_t kh = test_range(&rng, 1, 5), kw = test_range(&rng, 1, 5);
    if (p->rule == ATTN_PREDICTIVE_SAME) kh |= 1, kw |= 1;
    p->kernel = drawn((attn_dtype)(test_u64(&rng) % 3), TEST_PADDED, h, h, kh, kw,
                      0.7 / sqrt((double)(h * kh * kw)), &rng);
    if (test_u64(&rng) % 2) p->bias = test_floats(h, 0.5, &rng);
    p->evolving = n % 4 > 1;
    p->alpha = share[test_u64(&rng) % 5];
    p->previous_share = share[test_u64(&rng) % 5];
    p->convolved_share = share[test_u64(&rng) % 5];
    if (test_u64(&rng) % 2) p->activation = ATTN_ACT_RELU;
    if (n % 4 == 0) p->activation = ATTN_ACT_NONE;
    run(s, 3e-5, "predictive");
  }
}

/* Another call of the same tensors, with an o and scores of its own. */
static scene *twin(const scene *s, int kind) {
  scene *t = around(kind, s->at);
  t->previous = s->previous, t->predict = s->predict;
  t->at.o =
      test_tensor(s->at.o.dtype, TEST_BHTD, s->at.o.batch, s->at.o.heads, s->at.o.len, s->at.o.dim);
  t->at.params.lse = test_tensor(ATTN_F32, TEST_BHTD, s->at.q.batch, s->at.q.heads, s->at.q.len, 1);
  t->scores = map_tensor(t, ATTN_F32, TEST_BHTD);
  return t;
}

/* Scores may take the place of previous: the same bits, with few and many rows, in any storage. */
void SM_in_place(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++, test_mem_release()) {
    test_rng rng = test_seed(7600 + (uint64_t)n);
    scene *s = simple(n % 2 ? REAL : MIX, 3, n < 3 ? 5 : 150, 70, 7600 + (uint64_t)n);
    give_previous(s, (attn_dtype)(n % 3), n % 2 ? TEST_PADDED : TEST_NEGATIVE, &rng);
    s->scores = map_tensor(s, (attn_dtype)(n % 3), TEST_BHTD);
    s->at.params.causal = 1;
    promise_run(&s->does);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, s->at.q.len, 5);
    attn_tensor scores = map_tensor(s, (attn_dtype)(n % 3), TEST_BHTD);
    test_copy(o, s->at.o);
    test_copy(scores, s->scores);
    s->scores = s->previous;
    promise_run(&s->does);
    test_assert_same(s->at.o, o, "in place");
    test_assert_same(s->scores, scores, "in place");
  }
}

/* (1, 0) is attn_sdpa; (0, 1) attends by the map below, whatever q holds; the scores are linear in
 * the weights. */
void SM_weights(void **state) {
  (void)state;
  scene *s = simple(MIX, 2, 70, 90, 7610), *t = twin(s, MIX);
  s->at.params.causal = t->at.params.causal = 1;
  s->mix.previous_weight = ATTN_ZERO;
  promise_run(&s->does);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_sdpa(t->at.o, s->at.q, s->at.k, s->at.v, &t->at.params, &ctx), ATTN_OK);
  test_assert_near(s->at.o, t->at.o, 2e-6, "fresh scores alone");
  test_assert_near(s->at.params.lse, t->at.params.lse, 2e-6, "fresh scores alone");
  t->previous = s->scores;
  t->mix.fresh_weight = ATTN_ZERO;
  test_fill_value(s->at.q, (double)NAN);
  promise_run(&t->does);
  test_assert_same(t->scores, s->scores, "the map below");
  test_assert_near(t->at.o, s->at.o, 2e-6, "the map below");
}

/* Prev = s q k^T: the sum is attn_sdpa with twice the scale, the mean attn_sdpa itself. A third
 * layer is three times the scores. */
void H4_layers(void **state) {
  (void)state;
  scene *s = simple(REAL, 2, 65, 40, 7620);
  s->at.params.scale = 0.4f;
  s->previous = absent();
  promise_run(&s->does);
  for (int mean = 0; mean < 2; mean++) {
    scene *t = twin(s, REAL), *u = twin(s, REAL), *w = twin(s, REAL);
    t->previous = s->scores, t->real.mean = mean, t->real.layers_below = 1;
    promise_run(&t->does);
    u->at.params.scale = mean ? 0.4f : 0.8f;
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_sdpa(u->at.o, u->at.q, u->at.k, u->at.v, &u->at.params, &ctx), ATTN_OK);
    test_assert_near(t->at.o, u->at.o, 2e-6, "two layers");
    test_assert_near(t->at.params.lse, u->at.params.lse, 2e-6, "two layers");
    w->previous = t->scores, w->real.mean = mean, w->real.layers_below = 2;
    promise_run(&w->does);
    for (int64_t i = 0; i < 65; i++)
      for (int64_t j = 0; j < 40; j++)
        value_check(oracle_get(&w->scores, 0, 1, i, j), 3 * oracle_get(&s->scores, 0, 1, i, j),
                    1e-5, ATTN_F32, "three layers", 0, 1, i, j);
  }
}

/* Sums of many layers: logits far beyond exp's range. */
void H4_large(void **state) {
  (void)state;
  scene *s = simple(REAL, 1, 9, 30, 7630);
  for (int64_t i = 0; i < 9; i++)
    for (int64_t j = 0; j < 30; j++)
      oracle_set(&s->previous, 0, 0, i, j, (i % 2 ? -1e4 : 1e4) + 4 * (double)(j % 5));
  run(s, 3e-5, "large logits");
  oracle_set(&s->previous, 0, 0, 3, 7, 2e38);
  promise_run(&s->does);
  for (int64_t c = 0; c < 5; c++)
    assert_true(oracle_get(&s->at.o, 0, 0, 3, c) == oracle_get(&s->at.v, 0, 0, 7, c));
}

/* -inf forbids a pair, in previous or by a modifier, whatever its value holds and the sum is divided
 * by. */
static void forbid_diagonal(void *user, const attn_score_tile *t) {
  (void)user;
  for (int64_t r = 0; r < t->queries; r++)
    for (int64_t c = 0; c < t->keys; c++)
      if (t->key[c] == t->query[r])
        t->score[c * t->key_stride + r * t->query_stride] = -(float)INFINITY;
}

void H4_minus_infinity(void **state) {
  (void)state;
  for (int64_t n = 0; n < 24; n++, test_mem_release()) {
    scene *s = simple(REAL, 2, 9, 30, 7635);
    s->real.mean = 1, s->real.layers_below = n / 2;
    s->at.params.map = map_tensor(s, ATTN_F32, TEST_BHTD);
    if (n % 4 > 1) s->scores = absent();
    for (int64_t h = 0; h < 2; h++) test_fill_row(s->at.v, 0, h, 5, (double)NAN);
    for (int64_t i = 0; n % 2 && i < 9; i++)
      for (int64_t h = 0; h < 2; h++) oracle_set(&s->previous, 0, h, i, i, -(double)INFINITY);
    if (n % 2 == 0) s->at.params.modify = forbid_diagonal;
    promise_run(&s->does);
    for (int64_t i = 0; i < 9; i++) {
      assert_true(oracle_get(&s->at.params.map, 0, i % 2, i, i) == 0);
      assert_true(isfinite(oracle_get(&s->at.o, 0, i % 2, i, 0)) == (i == 5));
    }
  }
}

/* alpha = 1 and evolving with both shares 0 are attn_sdpa; a kernel of 1 at the centre of its own
 * channel is the general form. */
void H3_identities(void **state) {
  (void)state;
  attn_ctx ctx = test_ctx();
  scene *s = simple(PREDICT, 3, 70, 66, 7640), *t = twin(s, MIX);
  s->at.params.causal = t->at.params.causal = 1;
  assert_int_equal(attn_sdpa(t->at.o, s->at.q, s->at.k, s->at.v, &t->at.params, &ctx), ATTN_OK);
  s->predict.alpha = 1;
  promise_run(&s->does);
  test_assert_near(s->at.o, t->at.o, 2e-6, "alpha 1");
  s->predict.evolving = 1;
  s->predict.previous_share = s->predict.convolved_share = ATTN_ZERO;
  promise_run(&s->does);
  test_assert_near(s->at.o, t->at.o, 2e-6, "shares of 0");
  s->predict.evolving = 0, s->predict.alpha = 0.25f;
  for (int64_t n = 0; n < 3 * 3; n++)
    for (int64_t e = 0; e < 9; e++)
      oracle_set(&s->predict.kernel, n / 3, n % 3, e / 3, e % 3, n / 3 == n % 3 && e == 4);
  promise_run(&s->does);
  t->mix.fresh_weight = 0.25f, t->mix.previous_weight = 0.75f;
  promise_run(&t->does);
  test_assert_near(s->scores, t->scores, 1e-6, "identity kernel");
  test_assert_near(s->at.o, t->at.o, 2e-6, "identity kernel");
  /* a zero kernel: a constant per head, which no output sees */
  static const float bias[] = {3, -1, 0.5f};
  test_fill_value(s->predict.kernel, 0);
  s->predict.bias = bias;
  promise_run(&s->does);
  t->mix.previous_weight = ATTN_ZERO;
  promise_run(&t->does);
  test_assert_near(s->at.o, t->at.o, 3e-6, "zero kernel");
}

/* Kernels that are larger than the map, or one tap; one token; a map of one row. */
void H3_edges(void **state) {
  (void)state;
  static const int64_t side[][4] = {{1, 1, 1, 1},   {1, 1, 3, 3},   {2, 3, 9, 7},  {70, 3, 67, 5},
                                    {5, 260, 1, 1}, {3, 300, 3, 9}, {1, 20, 5, 41}};
  for (int n = 0; n < 14; n++, test_mem_release()) {
    const int64_t *x = side[n / 2];
    test_rng rng = test_seed(7650 + (uint64_t)n);
    scene *s = simple(PREDICT, 2, x[0], x[1], 7650 + (uint64_t)n);
    s->predict.kernel = drawn(ATTN_F32, TEST_NEGATIVE, 2, 2, x[2], x[3], 0.2, &rng);
    s->predict.rule = (attn_predictive_rule)(n % 2);
    s->predict.evolving = n % 4 > 1, s->at.params.causal = n % 2;
    run(s, 3e-5, "edges");
  }
}

/* The causal rule: nothing after row i, and nothing forbidden, changes row i; the last rows by
 * themselves give what all rows give. */
void H3_causal(void **state) {
  (void)state;
  for (int evolving = 0; evolving < 2; evolving++) {
    test_rng rng = test_seed(7660);
    scene *s = simple(PREDICT, 2, 80, 80, 7660);
    s->predict.rule = ATTN_PREDICTIVE_CAUSAL, s->predict.evolving = evolving;
    s->at.params.causal = 1;
    promise_run(&s->does);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 80, 5),
                scores = map_tensor(s, ATTN_F32, TEST_BHTD);
    test_copy(o, s->at.o);
    test_copy(scores, s->scores);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < 80; i++)
        for (int64_t j = 0; j < 80; j++)
          if (j > i || i >= 67) oracle_set(&s->previous, 0, h, i, j, 9 * test_normal(&rng));
    test_fill_row(s->at.q, 0, 1, 67, 5.0);
    promise_run(&s->does);
    test_assert_same(test_rows(s->at.o, 0, 67), test_rows(o, 0, 67), "later rows");
    for (int64_t i = 0; i < 67; i++)
      for (int64_t j = 0; j <= i && !evolving; j++)
        assert_true(oracle_get(&s->scores, 0, 1, i, j) == oracle_get(&scores, 0, 1, i, j));
    promise_run(&s->does);
    test_copy(o, s->at.o);
    scene *t = twin(s, PREDICT);
    t->at.q = test_rows(s->at.q, 77, 3), t->previous = test_rows(s->previous, 77, 3);
    t->at.o = test_rows(t->at.o, 0, 3), t->at.params.lse = absent(), t->scores = absent();
    promise_run(&t->does);
    test_assert_near(test_rows(t->at.o, 2, 1), test_rows(o, 79, 1), 2e-6, "the last row");
  }
}

/* NaN in v of a forbidden key reaches nothing; in k it stays in its column of the scores; keys from
 * kv_len on are not read. */
void SM_reads(void **state) {
  (void)state;
  for (int kind = 0; kind < 3; kind++) {
    scene *s = simple(kind, 2, 40, 150, 7670);
    static const int32_t keys[] = {131};
    s->at.params.kv_len = keys;
    s->at.params.causal = 1, s->at.params.has_q_off = 1, s->at.params.q_off = 60;
    s->predict.rule = ATTN_PREDICTIVE_CAUSAL;
    promise_run(&s->does);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 40, 5),
                scores = map_tensor(s, ATTN_F32, TEST_BHTD);
    test_copy(o, s->at.o);
    test_copy(scores, s->scores);
    for (int64_t j = 131; j < 150; j++) {
      test_fill_row(s->at.k, 0, 1, j, (double)NAN);
      test_fill_row(s->at.v, 0, 1, j, (double)NAN);
    }
    test_fill_row(s->at.v, 0, 0, 70, (double)INFINITY); /* rows from 10 on see it */
    test_fill_row(s->at.k, 0, 0, 125, (double)NAN);     /* nobody */
    promise_run(&s->does);
    test_assert_same(test_rows(s->at.o, 0, 10), test_rows(o, 0, 10), "forbidden");
    test_assert_same(test_one(s->at.o, 0, 1, 1, 1), test_one(o, 0, 1, 1, 1), "other heads");
    for (int64_t i = 10; i < 40; i++)
      if (isfinite(oracle_get(&s->at.o, 0, 0, i, 0))) fail_msg("row %d", (int)i);
    for (int64_t i = 0; i < 40; i++)
      for (int64_t j = 0; j < 150; j++)
        assert_true(j == 125
                        ? isnan(oracle_get(&s->scores, 0, 0, i, j))
                        : oracle_get(&s->scores, 0, 0, i, j) == oracle_get(&scores, 0, 0, i, j));
  }
}

/* No query, no key, no batch entry; rows that see nothing. */
void SM_empty(void **state) {
  (void)state;
  for (int kind = 0; kind < 3; kind++) {
    scene *s = simple(kind, 2, 3, 4, 7680);
    s->at.params.causal = 1, s->at.params.has_q_off = 1, s->at.params.q_off = -2;
    s->at.params.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 3, 1);
    run(s, 3e-5, "empty rows");
    for (int64_t c = 0; c < 5; c++) assert_true(oracle_get(&s->at.o, 0, 1, 1, c) == 0);
    s->at.k.len = s->at.v.len = 0;
    s->previous = s->scores = absent();
    promise_run(&s->does);
    for (int64_t c = 0; c < 5; c++) assert_true(oracle_get(&s->at.o, 0, 1, 2, c) == 0);
    assert_true(oracle_get(&s->at.params.lse, 0, 1, 2, 0) == -(double)INFINITY);
    s->at.params.lse = absent();
    s->at.o.len = s->at.q.len = 0;
    promise_run(&s->does);
    s->at.o.batch = s->at.q.batch = s->at.k.batch = s->at.v.batch = 0;
    promise_run(&s->does);
  }
}

/* Transformer-XL terms and a modifier, with every pair and with those of a window; a table that does
 * not reach the forbidden pairs is rejected when they are wanted. */
void SM_terms(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++, test_mem_release()) {
    test_rng rng = test_seed(7710 + (uint64_t)n);
    scene *s = simple(n % 3, 2, 90, 200, 7710 + (uint64_t)n);
    test_add_terms(&s->at, TERM_XL | TERM_MODIFY, &rng);
    ((test_term_user *)s->at.params.modify_user)->kind = n % 2 ? MODIFY_ADD : MODIFY_DOUBLE;
    s->at.params.causal = 1, test_left(&s->at.params, 37);
    if (n < 3) s->scores = absent();
    run(s, 3e-5, "terms");
    s->scores = map_tensor(s, ATTN_F32, TEST_BHTD);
    s->at.params.xl.table.len = 38, s->at.params.xl.first = -37;
    promise_reject(&s->does, ATTN_E_RANGE, "xl");
  }
}

void SM_promises(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++, test_mem_release()) {
    scene *s = simple(n % 4 < 2 ? n % 4 : PREDICT, 3, 150, 70, 7690);
    s->predict.evolving = n % 4 == 3;
    s->at.params.causal = 1;
    s->at.params.alibi = test_constant(3, 0.1);
    if (n > 3) s->scores = absent();
    static const float table[] = {0.5f, 1, -1};
    s->at.params.toeplitz.table = table, s->at.params.toeplitz.len = 3;
    promise_keep(&s->does);
  }
}

void SM_rejects(void **state) {
  (void)state;
  scene *s = simple(MIX, 2, 6, 7, 7700);
  scene keep = *s;
#define AGAIN() (*s = keep, promises(s), s->does.block[1] = keep.does.block[1])
#define REJECT(change, status, word)        \
  for (int kind = 0; kind < 3; kind++) {    \
    AGAIN();                                \
    s->kind = kind;                         \
    change;                                 \
    promise_reject(&s->does, status, word); \
  }
  static const int64_t row[] = {0, 6};
  REJECT(s->at.params.ragged.sequences = 1;
         s->at.params.ragged.q_indptr = row, ATTN_E_RANGE, "ragged")
  REJECT(s->at.params.span.z = test_constant(2, 3), ATTN_E_RANGE, "span")
  REJECT(s->previous.len = 5, ATTN_E_SHAPE, "params.previous")
  REJECT(s->previous.heads = 1, ATTN_E_SHAPE, "params.previous")
  REJECT(s->previous.dtype = ATTN_I8, ATTN_E_DTYPE, "params.previous")
  REJECT(s->scores.dim = 6, ATTN_E_SHAPE, "params.scores")
  REJECT(s->scores.stride_head = 3, ATTN_E_STRIDE, "params.scores")
  REJECT(s->scores = s->at.q; s->scores.dim = 7; s->scores.stride_len = 7;
         s->scores.stride_head = 42, ATTN_E_OVERLAP, "params.scores")
  REJECT(s->at.params.alibi = s->scores.data, ATTN_E_OVERLAP, "params.scores")
  REJECT(s->at.params.toeplitz.table = s->scores.data;
         s->at.params.toeplitz.len = 3, ATTN_E_OVERLAP, "params.scores")
  REJECT(s->at.params.relative.values = s->scores; s->at.params.relative.values.heads = 1;
         s->at.params.relative.values.len = 3;
         s->at.params.relative.values.dim = 5, ATTN_E_OVERLAP, "params.scores")
  REJECT(s->at.params.sinks = s->scores.data, ATTN_E_OVERLAP, "params.scores")
  REJECT(s->at.v.len = 6, ATTN_E_SHAPE, "v.len")
  REJECT(s->at.params.scale = (float)NAN, ATTN_E_VALUE, "scale")
  REJECT(s->scores = s->previous; s->scores.stride_len++;
         s->scores.stride_head += 7, ATTN_E_OVERLAP, "params.scores")
#undef REJECT
#define REJECT(which, change, status, word) \
  AGAIN();                                  \
  s->kind = which;                          \
  change;                                   \
  promise_reject(&s->does, status, word);
  REJECT(MIX, s->mix.fresh_weight = (float)INFINITY, ATTN_E_VALUE, "fresh_weight")
  REJECT(MIX, s->mix.previous_weight = (float)NAN, ATTN_E_VALUE, "previous_weight")
  REJECT(REAL, s->real.layers_below = -1, ATTN_E_RANGE, "layers_below")
  REJECT(REAL, s->at.params.softcap = 1; s->at.params.softcap_at = ATTN_SOFTCAP_BIASED;
         s->at.params.bias.kind = ATTN_MASK_ADD, ATTN_E_RANGE, "softcap_at")
  REJECT(PREDICT, s->predict.alpha = 1.5f, ATTN_E_VALUE, "alpha")
  REJECT(PREDICT, s->predict.alpha = (float)NAN, ATTN_E_VALUE, "alpha")
  REJECT(PREDICT, s->predict.previous_share = -0.5f, ATTN_E_VALUE, "previous_share")
  REJECT(PREDICT, s->predict.convolved_share = 2, ATTN_E_VALUE, "convolved_share")
  REJECT(PREDICT, s->predict.activation = ATTN_ACT_TANH, ATTN_E_RANGE, "activation")
  REJECT(PREDICT, s->predict.rule = (attn_predictive_rule)7, ATTN_E_RANGE, "rule")
  REJECT(PREDICT, s->predict.kernel = absent(), ATTN_E_NULL, "kernel")
  REJECT(PREDICT, s->predict.kernel.heads = 1, ATTN_E_SHAPE, "kernel")
  REJECT(PREDICT, s->predict.kernel.batch = 1, ATTN_E_SHAPE, "kernel")
  REJECT(PREDICT, s->predict.kernel.len = 2, ATTN_E_SHAPE, "odd")
  REJECT(PREDICT, s->predict.kernel.dim = 2, ATTN_E_SHAPE, "odd")
  REJECT(PREDICT, s->scores = s->previous, ATTN_E_OVERLAP, "params.scores")
#undef REJECT
  /* an even kernel is legal for the causal rule; a previous that is not finite only without
   * validate */
  AGAIN();
  s->kind = PREDICT, s->predict.rule = ATTN_PREDICTIVE_CAUSAL, s->predict.kernel.len = 2;
  promise_run(&s->does);
  for (int kind = 0; kind < 3; kind++) {
    attn_ctx ctx = test_ctx();
    AGAIN();
    s->kind = kind;
    oracle_set(&s->previous, 0, 1, 5, 6, (double)NAN);
    promise_run(&s->does);
    ctx.validate = 1;
    assert_int_equal(call(s, &ctx), ATTN_E_VALUE);
    assert_non_null(strstr(ctx.reason, "params.previous"));
    oracle_set(&s->previous, 0, 1, 5, 6, 1);
    assert_int_equal(call(s, &ctx), ATTN_OK);
  }
#undef AGAIN
}
