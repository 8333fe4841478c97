/* tests/test_nan.c owns the promise that a NaN which a call computes and stores is the one default NaN, whatever
 * the processor, the compiler, and the NaNs and infinities it came from. */

#include "compound.h"

static int poisoned; /* NaNs that were seen */

static void one_nan(const void *data, int64_t n, int64_t size, const char *what) {
  for (int64_t i = 0; i < n; i++) {
    uint64_t bits = 0, want = size == 8 ? 0x7ff8000000000000u : 0x7fc00000u;
    uint32_t half;
    double x = 0;
    if (size == 8) memcpy(&bits, (const double *)data + i, 8), memcpy(&x, &bits, 8);
    if (size == 4) {
      float f;
      memcpy(&half, (const float *)data + i, 4), memcpy(&f, &half, 4), x = (double)f, bits = half;
    }
    if (!isnan(x)) continue;
    poisoned++;
    if (bits != want)
      fail_msg("%s: number %d is the NaN %llx", what, (int)i, (unsigned long long)bits);
  }
}

static void one_nan_in(attn_tensor t, const char *what) {
  for (int64_t r = 0; r < t.batch * t.heads * t.len; r++) {
    const int64_t b = r / t.len / t.heads, h = r / t.len % t.heads, i = r % t.len;
    one_nan((const float *)t.data + b * t.stride_batch + h * t.stride_head + i * t.stride_len,
            t.dim, 4, what);
  }
}

static attn_tensor exact(int64_t heads, int64_t len, int64_t dim, test_rng *rng) {
  attn_tensor t = test_tensor(ATTN_F32, TEST_BHTD, 1, heads, len, dim);
  test_fill(t, rng, test_exact);
  return t;
}

static attn_tensor room(int64_t heads, int64_t len, int64_t dim) {
  attn_tensor t = test_tensor(ATTN_F32, TEST_BHTD, 1, heads, len, dim);
  test_fill_value(t, 0);
  return t;
}

enum { T = 70, D = 12 };

static void measure(test_rng *rng) {
  attn_probsparse_params p = {.by_samples = 1};
  attn_ctx ctx = test_ctx();
  attn_tensor m = room(2, T, 1);
  attn_status status =
      attn_probsparse_measure(m, exact(2, T, D, rng), exact(2, T, D, rng), &p, &ctx);
  if (status != ATTN_OK) fail_msg("measure: %s", ctx.reason);
  one_nan_in(m, "probsparse measure");
}

static void losses(test_rng *rng) {
  static const int32_t head[2] = {0, 1};
  const attn_target target = {.kind = ATTN_TARGET_UNIFORM};
  const attn_target_group group = {&target, 1, head, 2};
  double loss = 0, d[3];
  attn_guided_params g = {.group = &group, .groups = 1};
  attn_disagreement_params p;
  memset(&p, 0, sizeof p);
  g.q = p.q = exact(2, T, D, rng), g.k = p.k = exact(2, T, D, rng);
  p.v = exact(2, T, D, rng), p.o = exact(2, T, D, rng);
  for (int n = 0; n < 3; n++) {
    attn_ctx ctx = test_ctx();
    g.reduction = (attn_guided_reduction)n, p.flat = n & 1;
    if (attn_guided_loss(&loss, &g, &ctx) != ATTN_OK) fail_msg("%s", ctx.reason);
    one_nan(&loss, 1, 8, "guided loss");
    if (attn_disagreement(d, &p, &ctx) != ATTN_OK) fail_msg("%s", ctx.reason);
    one_nan(d, 3, 8, "disagreement");
  }
}

static void average(test_rng *rng) {
  attn_ctx ctx = test_ctx();
  const size_t size = attn_average_state_bytes(1, D);
  double *state = test_mem(size);
  attn_average_params p;
  memset(&p, 0, sizeof p);
  attn_tensor o = room(1, 3, D);
  assert_int_equal(attn_average_begin(state, size, 1, D, &ctx), ATTN_OK);
  p.state = state, p.state_bytes = size;
  for (int n = 0; n < 4; n++) {
    if (attn_average(o, exact(1, 3, D, rng), &p, &ctx) != ATTN_OK) fail_msg("%s", ctx.reason);
    one_nan_in(o, "average");
    one_nan(state, (int64_t)(size / 8), 8, "state of the average");
  }
}

/* Of attn_linear and attn_luna_causal: in one call and token by token. */
static void states(test_rng *rng) {
  attn_ctx ctx = test_ctx();
  attn_tensor o = room(2, T, D), q = exact(2, T, D, rng), k = exact(2, T, D, rng);
  attn_tensor v = exact(2, T, D, rng), slots = exact(2, 5, D, rng);
  static const attn_feature_kind kinds[] = {ATTN_FEATURES_ACT, ATTN_FEATURES_SOFTMAX};
  for (int n = 0; n < 8; n++) {
    attn_linear_params p;
    memset(&p, 0, sizeof p);
    p.causal = n < 6, p.map.kind = kinds[n & 1];
    if (n >= 4 && n < 6) p.rule = ATTN_LINEAR_DELTA, p.map.kind = ATTN_FEATURES_ACT;
    const size_t size = attn_linear_state_bytes(&p, 1, 2, 2, D, D);
    void *state = test_mem(size);
    if (attn_linear_begin(state, size, &p, 1, 2, 2, D, D, &ctx) != ATTN_OK) continue;
    attn_tensor s, z;
    p.state = state, p.state_bytes = size;
    for (int64_t i = 0, m; i < T; i += m) {
      m = n & 2 ? T : i < 20 ? 1 : T - i;
      if (attn_linear(test_rows(o, i, m), test_rows(q, i, m), test_rows(k, i, m),
                      test_rows(v, i, m), &p, &ctx) != ATTN_OK)
        break;
      const float *end = (const float *)(const void *)((const char *)state + size);
      assert_int_equal(attn_linear_view(state, size, &s, &z, &ctx), ATTN_OK);
      one_nan(s.data, end - (const float *)s.data, 4, "linear state");
    }
  }
  for (int n = 0; n < 2; n++) {
    attn_luna_causal_params p;
    memset(&p, 0, sizeof p);
    const size_t size = attn_luna_state_bytes(1, 2, 5, D, D);
    void *state = test_mem(size);
    p.state = state, p.state_bytes = size;
    assert_int_equal(attn_luna_begin(state, size, &p, 1, 2, 5, D, D, &ctx), ATTN_OK);
    for (int64_t i = 0, m; i < T; i += m) {
      m = n ? T : i < 20 ? 1 : T - i;
      if (attn_luna_causal(test_rows(o, i, m), test_rows(q, i, m), test_rows(k, i, m),
                           test_rows(v, i, m), slots, &p, &ctx) != ATTN_OK)
        fail_msg("luna: %s", ctx.reason);
      one_nan((char *)state + 64, (int64_t)(size - 64) / 4, 4, "luna state");
    }
  }
}

/* Of attn_recurrent, in one call and token by token. */
static void recurrent(test_rng *rng) {
  attn_ctx ctx = test_ctx();
  attn_tensor o = room(2, T, D), q = exact(2, T, D, rng), k = exact(2, T, D, rng);
  attn_tensor v = exact(2, T, D, rng), gate = exact(2, T, 1, rng);
  for (int n = 0; n < 14; n++) { /* from 8 on by levels */
    static const attn_recurrent_rule rules[] = {ATTN_RECURRENT_DPLR, ATTN_RECURRENT_DELTA,
                                                ATTN_RECURRENT_MLSTM, ATTN_RECURRENT_RETENTION};
    attn_recurrent_params p;
    memset(&p, 0, sizeof p);
    p.rule = n < 8 ? rules[n / 2] : n < 10 ? ATTN_RECURRENT_KDA : rules[n / 2 % 2 * 3];
    p.l2norm_qk = p.rule == ATTN_RECURRENT_DELTA;
    attn_tensor s = room(2, n < 8 ? D : 10 * D, D), less = room(2, 1, D), m = room(2, 1, 1);
    const attn_tensor lambda = exact(2, T, 10, rng);
    test_fill_value(s, 0), test_fill_value(less, 0), test_fill_value(m, 0);
    p.initial_state = p.final_state = s;
    if (p.rule == ATTN_RECURRENT_MLSTM)
      p.initial_n = p.final_n = less, p.initial_m = p.final_m = m, p.form = ATTN_RECURRENT_LOGIT;
    for (int64_t i = 0, some; i < T; i += some) {
      some = n & 1 ? T : i < 20 ? 1 : T - i;
      if (p.rule == ATTN_RECURRENT_MLSTM) p.gate = p.decay = test_rows(gate, i, some);
      if (n >= 8) p.lambda = test_rows(lambda, i, some), p.position = &i;
      if (attn_recurrent(test_rows(o, i, some), test_rows(q, i, some), test_rows(k, i, some),
                         test_rows(v, i, some), &p, &ctx) != ATTN_OK)
        fail_msg("%s", ctx.reason);
      one_nan_in(s, "decaying state"), one_nan_in(less, "its n"), one_nan_in(m, "its m");
    }
    one_nan_in(o, "recurrent");
  }
}

/* What stands around such a state. */
static void around(test_rng *rng) {
  attn_ctx ctx = test_ctx();
  attn_tensor y = room(2, T, D), rows = room(2, 3, D);
  attn_short_convolve_params p;
  memset(&p, 0, sizeof p);
  p.final_rows = rows;
  if (attn_log_decay(y, exact(2, T, D, rng), NULL, &ctx)) fail_msg("%s", ctx.reason);
  one_nan_in(y, "log decay");
  if (attn_gated_norm(y, exact(2, T, D, rng), exact(2, T, D, rng), NULL, &ctx))
    fail_msg("%s", ctx.reason);
  one_nan_in(y, "gated norm");
  if (attn_short_convolve(y, exact(2, T, D, rng), exact(1, 4, D, rng), &p, &ctx))
    fail_msg("%s", ctx.reason);
  one_nan_in(y, "short convolution"), one_nan_in(rows, "its rows");
  static const float half[D * 3] = {0.5f};
  attn_tensor z = room(1, T, D), state = room(1, D, 6);
  attn_damped_ema_params q;
  memset(&q, 0, sizeof q);
  q.dims = 3, q.final_state = state, q.forward.alpha = q.forward.delta = half;
  q.forward.beta = q.forward.eta = half;
  if (attn_damped_ema(z, exact(1, T, D, rng), &q, &ctx)) fail_msg("%s", ctx.reason);
  one_nan_in(z, "damped average"), one_nan_in(state, "its state");
}

/* Rows through experts: what comes out, and what they were sent by. */
static void experts(test_rng *rng) {
  for (int n = 0; n < 4; n++) {
    attn_expert_rows_params p;
    attn_ctx ctx = test_ctx();
    attn_tensor y = room(1, T, D);
    memset(&p, 0, sizeof p);
    p.k = 2, p.score = (attn_experts_score)(n % 2), p.no_renormalize = n / 2;
    p.w_gate = exact(1, D, 5, rng), p.choice_bias = exact(1, 1, 5, rng);
    p.experts.w_1 = exact(5, D, 9, rng), p.experts.w_2 = exact(5, 9, D, rng);
    p.weight = room(1, T, 2), p.logits = room(1, T, 5);
    if (attn_expert_rows(y, exact(1, T, D, rng), &p, &ctx) != ATTN_OK) fail_msg("%s", ctx.reason);
    one_nan_in(y, "experts"), one_nan_in(p.weight, "their weights"), one_nan_in(p.logits, "logits");
  }
}

/* Rows of a latent cache. */
static void latent(test_rng *rng) {
  attn_cache cache;
  attn_sequence held;
  attn_mla_params p;
  const attn_cache_params c = {.k_heads = 1, .dk = 10, .dv = 6, .latent = 1, .pages = 1, .page = T};
  const size_t size = attn_cache_size(&c);
  int32_t table[1];
  attn_ctx ctx = test_ctx();
  memset(&p, 0, sizeof p);
  p.heads = 2, p.rope_dim = 4, p.cache = &cache, p.held = &held;
  p.w_uq = exact(1, D, 14, rng), p.w_dkv = exact(1, D, 10, rng), p.w_ukv = exact(1, 6, 16, rng);
  p.w_o = exact(1, 10, D, rng);
  assert_int_equal(attn_cache_open(&cache, test_mem(size), size, &c, &ctx), ATTN_OK);
  assert_int_equal(attn_sequence_init(&held, table, 1, &ctx), ATTN_OK);
  attn_tensor y = room(1, T, D);
  if (attn_mla(y, exact(1, T, D, rng), &p, &ctx) != ATTN_OK) fail_msg("%s", ctx.reason);
  one_nan_in(y, "latent layer"), one_nan_in(cache.k, "latent rows");
  attn_infini_params segments;
  memset(&segments, 0, sizeof segments);
  segments.segment = 16, segments.memory = room(1, D, D), segments.z = room(1, 1, D);
  for (int n = 0; n < 4; n++) {
    attn_tensor o = room(2, T, D);
    segments.delta = n & 1;
    if (n < 3) test_fill_value(segments.memory, 0), test_fill_value(segments.z, 0);
    if (attn_infini(o, exact(2, T, D, rng), exact(1, T, D, rng), exact(1, T, D, rng), &segments,
                    &ctx) != ATTN_OK)
      fail_msg("%s", ctx.reason);
    one_nan_in(o, "infini"), one_nan_in(segments.memory, "its memory");
    one_nan_in(segments.z, "its z");
  }
}

static void centroids(test_rng *rng) {
  attn_routing_params r = {.w = 20, .wk = 20};
  for (int n = 0; n < 6; n++) {
    attn_ctx ctx = test_ctx();
    attn_routing_update_params u;
    float counts[10];
    memset(&u, 0, sizeof u);
    attn_tensor next = room(2, 5, D);
    u.rule = (attn_routing_rule)(n % 3), u.renormalize = n / 3, u.counts = NULL;
    for (int i = 0; i < 10; i++) counts[i] = (float)test_exact(rng);
    if (n % 3 == 2) u.counts = counts, u.sums = exact(2, 5, D, rng);
    attn_tensor q = exact(2, T, D, rng), k = exact(2, T, D, rng);
    if (attn_routing_update(next, q, k, exact(2, 5, D, rng), &r, &u, &ctx) != ATTN_OK)
      fail_msg("%s", ctx.reason);
    one_nan_in(next, "centroids");
    if (u.counts)
      one_nan(counts, 10, 4, "counts of centroids"), one_nan_in(u.sums, "sums of centroids");
  }
}

static void rows(test_rng *rng) {
  attn_ctx ctx = test_ctx();
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  attn_tensor o = room(2, T, D), z = room(2, T, 1), q = exact(2, T, D, rng);
  attn_tensor k = exact(2, T, D, rng), v = exact(2, T, D, rng);
  p.lse = z, p.map = room(2, T, T);
  for (int n = 0; n < 2; n++) { /* many queries, few */
    if (n) p.map.data = NULL, q.len = o.len = z.len = p.lse.len = 3;
    if (attn_sdpa(o, q, k, v, &p, &ctx) != ATTN_OK) fail_msg("%s", ctx.reason);
    one_nan_in(o, "sdpa"), one_nan_in(z, "lse");
    if (!n) one_nan_in(p.map, "map");
    if (attn_linear(o, q, k, v, NULL, &ctx) != ATTN_OK && n == 0) fail_msg("%s", ctx.reason);
    one_nan_in(o, "linear");
  }
  float *at = test_mem(T * sizeof *at);
  if (attn_span_predict(at, exact(1, T, D, rng), exact(1, 1, D, rng).data, NULL, 1, 50, &ctx))
    fail_msg("%s", ctx.reason);
  one_nan(at, T, 4, "spans");
}

/* Every golden call, and the calls whose outputs are no rows. */
void api_nan_is_the_one(void **state) {
  (void)state;
  static void (*const more[])(test_rng *) = {measure, losses,    average, states, recurrent,
                                             around,  centroids, latent,  rows,   experts};
  const char *name;
  poisoned = 0;
  for (int round = 0; round < test_count(12, 3); round++) {
    test_rng rng = test_seed(5200 + (uint64_t)round);
    for (int n = 0; (name = golden_compound(n, NULL, NULL)); n++, test_mem_release()) {
      attn_tensor o, lse;
      if (test_fast > 1 && (n + round) % 3) continue;
      test_poison = round % 3 == 0 ? 997 : round % 3 == 1 ? 211 : 2003, test_drawn = 170 * round;
      golden_compound(n, &o, &lse);
      test_poison = 0;
      if (strcmp(name, "losses") == 0) continue;            /* the bits of doubles; see below */
      if (strcmp(name, "snapkv") != 0) one_nan_in(o, name); /* rows that move keep their bits */
      one_nan_in(lse, name);
    }
    for (size_t n = 0; n < sizeof more / sizeof *more; n++, test_mem_release()) {
      test_poison = 41, test_drawn = round;
      more[n](&rng);
      test_poison = 0;
    }
  }
  test_poison = 0;
  assert_true(poisoned > 1000);
}
