/* causal_exact.c owns the causal calls of the exact softmax and what reshapes its scores. */

#include "causal.h"
#include "golden_calls.h"

static attn_status sdpa_call(play *s, attn_ctx *ctx) {
  return attn_sdpa(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int sdpa(play *s) {
  static const int64_t rows[] = {N, 3, 12, 40};
  static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
  if (s->n >= 23) return 0;
  const int64_t r = rows[s->n % 4], group = 1 + s->n / 4 % 2;
  play_trio_of x = play_trio(s, r, group, types[s->n % 3]);
  attn_sdpa_params *p = play_params(s, sizeof *p);
  play_scores(s, p, s->n / 4 % 4, group);
  p->lse = play_out(s, ATTN_F32, group, r, 1);
  if (s->n % 3 == 2) p->map = play_out(s, ATTN_F32, group, r, N);
  if (s->n >= 20) p->mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, 1, 1, r, N, &s->rng);
  (void)x;
  s->call = sdpa_call;
  return 1;
}

static attn_status scheduled_call(play *s, attn_ctx *ctx) {
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.schedule = s->p, p.causal = s->n & 1;
  return attn_sdpa(s->out[0], s->in[0], s->in[1], s->in[2], &p, ctx);
}
static int scheduled(play *s) {
  attn_pattern p;
  static attn_schedule made;
  if (s->n > 0) attn_schedule_free(&made);
  if (s->n >= 8) return 0;
  memset(&p, 0, sizeof p);
  (void)play_trio(s, N, 1, ATTN_F32);
  p.kind = s->n < 4 ? ATTN_PATTERN_BAND : ATTN_PATTERN_DILATED;
  p.left = 20, p.right = 20, p.step = 3, p.causal = !(s->n & 1);
  if (s->n / 2 == 1) p.kind = ATTN_PATTERN_RANDOM, p.count = 9;
  if (s->n / 2 == 3) p.kind = ATTN_PATTERN_BLOCKS, p.block = 24, p.before = 1;
  attn_ctx ctx = test_ctx();
  if (attn_schedule_build(&made, &p, 1, N, N, NULL, &ctx) != ATTN_OK)
    fail_msg("schedule %d: %s", s->n, ctx.reason);
  s->p = &made, s->call = scheduled_call;
  return 1;
}

/* d_q of a row: no later token's row, nor what reaches it. */
static attn_status backward_call(play *s, attn_ctx *ctx) {
  attn_sdpa_params p = *(attn_sdpa_params *)s->p;
  attn_tensor none;
  memset(&none, 0, sizeof none);
  p.lse = s->w[1];
  attn_status status = attn_sdpa(s->w[0], s->in[0], s->in[1], s->in[2], &p, ctx);
  if (status != ATTN_OK) return status;
  return attn_sdpa_backward(s->out[0], none, none, s->in[3], s->in[0], s->in[1], s->in[2], s->w[0],
                            s->w[1], &p, NULL, ctx);
}
static int backward(play *s) {
  static const int64_t rows[] = {N, 3, 40};
  if (s->n >= 12) return 0;
  const int64_t r = rows[s->n % 3], group = 1 + s->n / 3 % 2;
  (void)play_token(s, ATTN_F32, group, r, D), (void)play_token(s, ATTN_F32, 1, N, D);
  (void)play_token(s, ATTN_F32, 1, N, E), (void)play_token(s, ATTN_F32, group, r, E);
  (void)play_out(s, ATTN_F32, group, r, D);
  attn_sdpa_params *p = play_params(s, sizeof *p);
  p->causal = 1, p->softcap = s->n > 5 ? 2 : 0;
  if (s->n > 8) { /* rows of tables that pairs share */
    p->relative.keys = play_fixed(s, 1, 9, D), p->relative.queries = play_fixed(s, 1, 9, D);
    p->relative.values = play_fixed(s, 1, 9, E), p->xl.table = play_fixed(s, 1, N + 1, D);
    p->xl.first = -N;
  }
  s->w[0] = test_tensor(ATTN_F32, TEST_BHTD, 1, group, r, E);
  s->w[1] = test_tensor(ATTN_F32, TEST_BHTD, 1, group, r, 1);
  s->call = backward_call;
  return 1;
}

static attn_status relu_call(play *s, attn_ctx *ctx) {
  return attn_relu(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int relu(play *s) {
  if (s->n >= 6) return 0;
  attn_relu_params *p = play_params(s, sizeof *p);
  (void)play_trio(s, s->n % 2 ? 5 : N, 1, ATTN_F32);
  p->kind = (attn_relu_kind)(s->n / 2 % 3);
  p->attention.causal = 1;
  s->call = relu_call;
  return 1;
}

/* Gates of any size, as the call has them: log f is never above 0. */
static attn_status reshaped_call(play *s, attn_ctx *ctx) {
  for (int64_t i = 0; i < s->w[0].len; i++) {
    const double x = oracle_get(&s->in[3], 0, 0, i, 0);
    oracle_set(&s->w[0], 0, 0, i, 0, isnan(x) ? -(double)INFINITY : -fabs(x));
  }
  for (int64_t i = 0; s->ins > 5 && i < N; i++) { /* unit vectors, most of them, of any strength */
    double size = 0, to = oracle_get(&s->in[6], 0, 0, i, 0);
    for (int64_t x = 0; x < D; x++) size += pow(oracle_get(&s->in[5], 0, 0, i, x), 2);
    for (int64_t x = 0; x < D; x++)
      oracle_set(&s->w[1], 0, 0, i, x,
                 oracle_get(&s->in[5], 0, 0, i, x) / (size < 1e50 ? sqrt(size) : 1));
    oracle_set(&s->w[2], 0, 0, i, 0, isnan(to) ? 2 : 1 + sin(isinf(to) ? 3 : to));
  }
  double *sums =
      ((attn_reshaped_params *)s->p)->selective.sums; /* what comes in is not the last call's */
  if (sums) memset(sums, 0, N * sizeof *sums);
  return attn_reshaped(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int reshaped(play *s) {
  static const attn_qk_norm norms[2] = {{.kind = ATTN_QK_NORM_LAYER}, {.kind = ATTN_QK_NORM_L2}};
  if (s->n >= 46) return 0;
  attn_reshaped_params *p = play_params(s, sizeof *p);
  const int64_t rows = s->n % 2 ? 5 : N;
  (void)play_trio(s, rows, 1, ATTN_F32);
  (void)play_token(s, ATTN_F32, 1, N, 1);
  const attn_tensor gate = play_token(s, ATTN_F32, 1, rows, s->n % 4 < 2 ? 1 : E);
  s->w[0] = play_fixed(s, 1, N, 1);
  p->kind = (attn_reshape_kind)(s->n / 2 % 5), p->by_row = p->kind == ATTN_RESHAPE_SIGMOID;
  p->gate = gate, p->temperature.on = 1, p->temperature.interval = 20;
  if (s->n < 8 || s->n % 2) p->forget.log_f = s->w[0];
  if (s->n >= 8) p->ssmax.scale = test_floats(1, 0.4, &s->rng);
  if (s->n >= 10) p->attention.alibi = test_floats(1, 0.1, &s->rng);
  if (p->kind == ATTN_RESHAPE_STICK) p->include_self = p->remainder = s->n < 8;
  if (s->n >= 20)
    p->kind = (attn_reshape_kind)(s->n / 2 % 3), p->by_row = p->kind == ATTN_RESHAPE_SIGMOID;
  if (s->n >= 20 && s->n < 26) p->cope.table = play_fixed(s, 1, 12, s->in[0].dim);
  if (s->n >= 32 && s->n < 42) {
    (void)play_token(s, ATTN_F32, 1, N, D), (void)play_token(s, ATTN_F32, 1, N, 1);
    p->path.w = s->w[1] = play_fixed(s, 1, N, D), p->path.beta = s->w[2] = play_fixed(s, 1, N, 1);
    p->kind = (attn_reshape_kind)(s->n / 2 % 5), p->by_row = p->kind == ATTN_RESHAPE_SIGMOID;
  }
  if (s->n >= 42) p->norm = &norms[s->n / 2 % 2];
  if (s->n >= 26 && s->n < 32)
    p->selective.on = 1, p->selective.sums = test_mem(N * sizeof(double));
  p->attention.causal = 1;
  s->call = reshaped_call;
  return 1;
}

static attn_status differential_call(play *s, attn_ctx *ctx) {
  return attn_differential(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int differential(play *s) {
  if (s->n >= 4) return 0;
  attn_differential_params *p = play_params(s, sizeof *p);
  const int64_t rows = s->n % 2 ? 5 : N;
  (void)play_token(s, ATTN_F32, 4, rows, D), (void)play_token(s, ATTN_F32, 2, N, D);
  (void)play_token(s, ATTN_F32, 1, N, E), (void)play_out(s, ATTN_F32, 2, rows, E);
  if (s->n > 1) p->lambdas = play_token(s, ATTN_F32, 2, rows, 1);
  p->attention.causal = 1;
  s->call = differential_call;
  return 1;
}

static attn_status topk_call(play *s, attn_ctx *ctx) {
  return attn_topk_sdpa(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int topk(play *s) {
  if (s->n >= 4) return 0;
  attn_topk_params *p = play_params(s, sizeof *p);
  (void)play_trio(s, s->n % 2 ? 9 : N, 1, ATTN_F32);
  p->k = 5, p->attention.causal = 1;
  if (s->n > 1) p->mode = ATTN_TOPK_REL, p->bound = 1;
  s->call = topk_call;
  return 1;
}

static attn_status edges_call(play *s, attn_ctx *ctx) {
  return attn_edges(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int edges(play *s) {
  if (s->n) return 0;
  attn_edges_params *p = play_params(s, sizeof *p);
  int64_t *row = test_mem((N + 1) * sizeof *row);
  int32_t *col = test_mem(N * 8 * sizeof *col);
  for (int i = 0; i <= N; i++) row[i] = 8 * i;
  for (int i = 0; i < N * 8; i++) col[i] = i % 8 * 17 + i / 8 % 17; /* many of them later ones */
  (void)play_trio(s, N, 1, ATTN_F32);
  p->indptr = row, p->col = col, p->edges = N * 8, p->causal = 1;
  s->call = edges_call;
  return 1;
}
/* d_q of a row over its edges. */
static attn_status edges_backward_call(play *s, attn_ctx *ctx) {
  attn_edges_params p = *(attn_edges_params *)s->p;
  attn_tensor none;
  memset(&none, 0, sizeof none);
  p.lse = s->w[1];
  attn_status status = attn_edges(s->w[0], s->in[0], s->in[1], s->in[2], &p, ctx);
  if (status != ATTN_OK) return status;
  return attn_edges_backward(s->out[0], none, none, s->in[3], s->in[0], s->in[1], s->in[2], s->w[0],
                             s->w[1], &p, NULL, ctx);
}
static int edges_backward(play *s) {
  if (!edges(s)) return 0;
  (void)play_token(s, ATTN_F32, 1, N, E);
  s->outs = 0;
  (void)play_out(s, ATTN_F32, 1, N, D);
  s->w[0] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, N, E);
  s->w[1] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, N, 1);
  s->call = edges_backward_call;
  return 1;
}

/* d_q of a row, its weights made again. */
static attn_status relu_backward_call(play *s, attn_ctx *ctx) {
  attn_tensor none;
  memset(&none, 0, sizeof none);
  return attn_relu_backward(s->out[0], none, none, s->in[3], s->in[0], s->in[1], s->in[2], s->p,
                            NULL, ctx);
}
static int relu_backward(play *s) {
  if (s->n >= 12) return 0;
  for (int i = 0; i < 2; i++) (void)play_token(s, ATTN_F32, 2, N, D);
  for (int i = 0; i < 2; i++) (void)play_token(s, ATTN_F32, 2, N, E);
  (void)play_out(s, ATTN_F32, 2, N, D);
  attn_relu_params *p = play_params(s, sizeof *p);
  p->kind = (attn_relu_kind)(s->n % 6), p->attention.causal = 1;
  if (s->n > 5) p->power = p->kind == ATTN_RELU_VAR || p->kind == ATTN_RELU_RELA ? 1 : 2;
  p->gain = play_fixed(s, 1, 2, E).data, p->gate = play_fixed(s, 1, 2, E).data;
  s->call = relu_backward_call;
  return 1;
}

static attn_status talking_call(play *s, attn_ctx *ctx) {
  return attn_talking(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int talking(play *s) {
  if (s->n >= 2) return 0;
  attn_talking_params *p = play_params(s, sizeof *p);
  s->in[0] = play_token(s, ATTN_F32, 2, N, D), (void)play_token(s, ATTN_F32, 2, N, D);
  (void)play_token(s, ATTN_F32, 2, N, E), (void)play_out(s, ATTN_F32, 2, N, E);
  p->attention.causal = 1;
  p->w_l = play_fixed(s, 1, 2, 2), p->w_w = play_fixed(s, 1, 2, 2);
  if (s->n) p->attention.alibi = test_floats(2, 0.1, &s->rng);
  s->call = talking_call;
  return 1;
}

/* d_q of a row reads the keys that the row sees alone. */
static attn_status talking_backward_call(play *s, attn_ctx *ctx) {
  return attn_talking_backward(s->out[0], absent(), absent(), s->in[3], s->in[0], s->in[1],
                               s->in[2], s->p, NULL, ctx);
}
static int talking_backward(play *s) {
  if (!talking(s)) return 0;
  (void)play_token(s, ATTN_F32, 2, N, E);
  s->outs = 0;
  (void)play_out(s, ATTN_F32, 2, N, D);
  s->call = talking_backward_call;
  return 1;
}

static attn_status score_mix_call(play *s, attn_ctx *ctx) {
  return s->n ? attn_realformer(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx)
              : attn_score_mix(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int score_mix(play *s) { /* previous: rows of tokens; what stands behind them is forbidden */
  if (s->n >= 2) return 0;
  (void)play_trio(s, N, 1, ATTN_F32);
  const attn_tensor before = play_token(s, ATTN_F32, 1, N, N);
  if (s->n) {
    attn_realformer_params *p = play_params(s, sizeof *p);
    p->previous = before, p->attention.causal = 1;
  } else {
    attn_score_mix_params *p = play_params(s, sizeof *p);
    p->previous = before, p->fresh_weight = p->previous_weight = 0.5f, p->attention.causal = 1;
  }
  s->call = score_mix_call;
  return 1;
}

static attn_status predictive_call(play *s, attn_ctx *ctx) {
  return attn_predictive(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int predictive(play *s) {
  if (s->n >= 2) return 0;
  attn_predictive_params *p = play_params(s, sizeof *p);
  (void)play_trio(s, N, 1, ATTN_F32);
  p->previous = play_token(s, ATTN_F32, 1, N, N);
  p->kernel = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 3, 3);
  test_fill(p->kernel, &s->rng, test_normal);
  p->alpha = 0.75f, p->rule = ATTN_PREDICTIVE_CAUSAL, p->attention.causal = 1;
  p->evolving = s->n;
  s->call = predictive_call;
  return 1;
}

static attn_status map_apply_call(play *s, attn_ctx *ctx) {
  return attn_map_apply(s->out[0], s->in[0], s->in[1], s->p, ctx);
}
static int map_apply(play *s) {
  if (s->n) return 0;
  attn_map_apply_params *p = play_params(s, sizeof *p);
  (void)play_token(s, ATTN_F32, 1, N, N), (void)play_token(s, ATTN_F32, 1, N, E);
  (void)play_out(s, ATTN_F32, 1, N, E);
  p->causal = 1;
  s->call = map_apply_call;
  return 1;
}

static attn_status lazyformer_call(play *s, attn_ctx *ctx) {
  return attn_lazyformer(s->out, s->in, s->in + 1, s->in + 2, 1, s->p, ctx);
}
static int lazyformer(play *s) {
  if (s->n) return 0;
  attn_lazyformer_params *p = play_params(s, sizeof *p);
  (void)play_trio(s, N, 1, ATTN_F32);
  p->attention.causal = 1;
  s->call = lazyformer_call;
  return 1;
}

static attn_status synthesizer_call(play *s, attn_ctx *ctx) {
  return attn_synthesizer(s->out[0], s->in[0], s->p, ctx);
}
static int synthesizer(play *s) {
  if (s->n >= 3) return 0;
  attn_synthesizer_params *p = play_params(s, sizeof *p);
  attn_synthesizer_source *of = test_mem(sizeof *of);
  memset(of, 0, sizeof *of);
  (void)play_token(s, ATTN_F32, 1, N, E), (void)play_out(s, ATTN_F32, 1, N, E);
  of->kind = s->n == 0   ? ATTN_SYNTHESIZER_DENSE
             : s->n == 1 ? ATTN_SYNTHESIZER_DOT
                         : ATTN_SYNTHESIZER_RANDOM;
  if (s->n == 0) of->x = play_token(s, ATTN_F32, 1, N, 9);
  of->net.w_1 = play_fixed(s, 1, 9, 5), of->net.w_2 = play_fixed(s, 1, 5, N);
  if (s->n == 1) of->q = play_token(s, ATTN_F32, 1, N, D), of->k = play_token(s, ATTN_F32, 1, N, D);
  if (s->n == 2) of->r = play_fixed(s, 1, N, N);
  p->sources = of, p->count = 1, p->causal = 1;
  s->call = synthesizer_call;
  return 1;
}

static attn_status hard_gaussian_call(play *s, attn_ctx *ctx) {
  return attn_hard_gaussian(s->out[0], s->in[0], s->p, ctx);
}
static int hard_gaussian(play *s) {
  if (s->n >= 2) return 0;
  attn_hard_gaussian_params *p = play_params(s, sizeof *p);
  static const float sigma[1] = {30}, offset[1] = {-1};
  (void)play_token(s, ATTN_F32, 1, N, E), (void)play_out(s, ATTN_F32, 1, N, E);
  p->causal = 1, p->sigma = sigma, p->offset = offset, p->renormalize = s->n;
  s->call = hard_gaussian_call;
  return 1;
}

static attn_status camtl_call(play *s, attn_ctx *ctx) {
  return attn_camtl(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int camtl(play *s) {
  if (s->n) return 0;
  attn_camtl_params *p = play_params(s, sizeof *p);
  (void)play_trio(s, N, 1, ATTN_F32);
  p->blocks = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, 47, 47); /* three blocks of the diagonal */
  test_fill(p->blocks, &s->rng, test_normal);
  p->attention.causal = 1;
  s->call = camtl_call;
  return 1;
}

const causal_entry causal_exact[] = {{"attn_sdpa ", sdpa, NULL},
                                     {"attn_schedule_build attn_sdpa ", scheduled, NULL},
                                     {"attn_sdpa_backward ", backward, NULL},
                                     {"attn_relu ", relu, NULL},
                                     {"attn_reshaped ", reshaped, NULL},
                                     {"attn_differential ", differential, NULL},
                                     {"attn_topk_sdpa ", topk, NULL},
                                     {"attn_edges ", edges, NULL},
                                     {"attn_edges_backward ", edges_backward, NULL},
                                     {"attn_relu_backward ", relu_backward, NULL},
                                     {"attn_talking ", talking, NULL},
                                     {"attn_talking_backward ", talking_backward, NULL},
                                     {"attn_score_mix attn_realformer ", score_mix, NULL},
                                     {"attn_predictive ", predictive, NULL},
                                     {"attn_map_apply ", map_apply, NULL},
                                     {"attn_lazyformer ", lazyformer, NULL},
                                     {"attn_synthesizer ", synthesizer, NULL},
                                     {"attn_hard_gaussian ", hard_gaussian, NULL},
                                     {"attn_camtl ", camtl, NULL},
                                     {NULL, NULL, NULL}};
