/* causal_fewer.c owns the causal calls of fewer keys than rows, and of linear and decaying states. */

#include "causal.h"
#include "golden_calls.h"

/* ---- fewer keys ---------------------------------------------------------------------------------*/

static attn_status memory_compressed_call(play *s, attn_ctx *ctx) {
  return attn_memory_compressed(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int memory_compressed(play *s) {
  if (s->n >= 4) return 0;
  attn_memory_compressed_params *p = play_params(s, sizeof *p);
  (void)play_trio(s, N, 1, ATTN_F32);
  p->kernel = 3, p->causal = 1, p->strict = s->n & 1;
  p->w_k = play_fixed(s, 1, 3 * D, D), p->w_v = play_fixed(s, 1, 3 * E, E);
  if (s->n & 2) p->has_q_off = 1;
  s->call = memory_compressed_call;
  return 1;
}

static attn_status local_call(play *s, attn_ctx *ctx) {
  return attn_local(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int local(play *s) {
  if (s->n) return 0;
  attn_local_params *p = play_params(s, sizeof *p);
  (void)play_trio(s, N, 1, ATTN_F32);
  p->block = 33, p->causal = 1;
  s->call = local_call;
  return 1;
}

static attn_status poolingformer_call(play *s, attn_ctx *ctx) {
  return attn_poolingformer(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int poolingformer(play *s) {
  if (s->n >= 4) return 0;
  attn_poolingformer_params *p = play_params(s, sizeof *p);
  s->in[0] = play_token(s, ATTN_F32, 1, N, E), (void)play_token(s, ATTN_F32, 1, N, E);
  (void)play_token(s, ATTN_F32, 1, N, E), (void)play_out(s, ATTN_F32, 1, N, E);
  p->window_1 = attn_window_of(9, 9), p->window_2 = attn_window_of(40, 40), p->kernel = 5,
  p->stride = 4, p->causal = 1;
  p->pool = s->n & 1 ? ATTN_POOL_MAX : ATTN_POOL_MEAN;
  p->align = (attn_poolingformer_align)(s->n >> 1);
  s->call = poolingformer_call;
  return 1;
}

static attn_status low_rank_band_call(play *s, attn_ctx *ctx) {
  return attn_low_rank_band(s->out[0], s->in[0], s->in[1], s->in[2], s->in[3], s->in[4], s->p, ctx);
}
static int low_rank_band(play *s) {
  if (s->n >= 2) return 0;
  attn_low_rank_band_params *p = play_params(s, sizeof *p);
  for (int i = 0; i < 4; i++) (void)play_token(s, ATTN_F32, 1, N, D);
  (void)play_token(s, ATTN_F32, 1, N, E), (void)play_out(s, ATTN_F32, 1, N, (s->n ? 2 : 1) * E);
  p->half_width = 11, p->causal = 1, p->concat = s->n;
  s->call = low_rank_band_call;
  return 1;
}

static attn_status luna_call(play *s, attn_ctx *ctx) {
  return attn_luna_causal(s->out[0], s->in[0], s->in[1], s->in[2], s->w[0], s->p, ctx);
}
static int luna(play *s) {
  if (s->n >= 2) return 0;
  attn_luna_causal_params *p = play_params(s, sizeof *p);
  (void)play_trio(s, N, 1, ATTN_F32);
  s->w[0] = play_fixed(s, 1, 7, D), p->omega = (attn_luna_omega)s->n;
  s->call = luna_call;
  return 1;
}

/* ---- the linear state ---------------------------------------------------------------------------*/

static attn_status linear_call(play *s, attn_ctx *ctx) {
  return attn_linear(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int linear(play *s) {
  static const int64_t chunks[] = {0, 1, 13, 64}, lens[] = {N, 100, 6, 4};
  enum { FORMS = 5 * 5 * 4 };
  if (s->n >= FORMS) return 0;
  attn_linear_params *p = play_params(s, sizeof *p);
  attn_feature_map *f = &p->map;
  const int kind = s->n / 4 % 5, rule = s->n / 20;
  (void)play_trio(s, lens[s->n % 4], 1 + s->n % 2, s->n % 3 ? ATTN_F32 : ATTN_F16);
  if (s->n % 4 == 3) { /* key by key */
    for (int i = 1; i < 3; i++) s->in[i] = test_rows(s->in[i], N - 4, 4), s->in_first[i] = N - 4;
  }
  static const attn_feature_kind kinds[] = {ATTN_FEATURES_ELU1, ATTN_FEATURES_SOFTMAX,
                                            ATTN_FEATURES_HYPERBOLIC, ATTN_FEATURES_RFA,
                                            ATTN_FEATURES_ACT};
  f->kind = kinds[kind];
  if (kind) f->w = play_fixed(s, 1, 9, D);
  p->causal = 1, p->rule = (attn_linear_rule)rule, p->chunk = chunks[(s->n + s->n / 4) % 4];
  const int delta = rule >= ATTN_LINEAR_DELTA;
  f->keep_norm = kind == 3 && !delta && s->n % 3 != 1;
  if (kind == 1 || kind == 2) {
    p->eps = s->n % 3 ? 1e-3f : 0;
    if (s->n % 5 == 2) f->key_stab = ATTN_STAB_CONST, f->eps = 1e-3f, f->key_const = 2;
    if (s->n % 5 == 3) f->norm = ATTN_FEATURE_NORM_SUM;
  }
  if (kind == 4 && delta)
    f->activation = ATTN_ACT_RELU; /* or sums of features near 0 let S grow without end */
  if (rule) p->rate_const = 0.9f;
  s->call = linear_call;
  return 1;
}

/* ---- decaying states ----------------------------------------------------------------------------*/

static attn_status recurrent_call(play *s, attn_ctx *ctx) {
  attn_recurrent_params *p = s->p;
  const int hgrn = p->rule == ATTN_RECURRENT_HGRN2;
  if (p->rule == ATTN_RECURRENT_MLSTM) p->gate = s->in[3], p->decay = s->in[4];
  if (p->rule == ATTN_RECURRENT_MAMBA2) p->dt = s->in[3];
  if (p->beta.data) p->beta = s->in[3];
  if (p->a.data) p->a = s->in[3], p->b = s->in[4];
  if (p->lambda.data) p->lambda = s->in[3 + (p->a.data ? 2 : p->beta.data || p->dt.data)];
  return attn_recurrent(s->out[0], s->in[0], hgrn ? absent() : s->in[1], s->in[2], p, ctx);
}
static int recurrent(play *s) {
  static const int64_t chunks[] = {0, 1, 13, 64}, lens[] = {N, 100, 19, 6};
  static const float rates[] = {-1.5f, 0.25f};
  static const attn_recurrent_rule by_levels[] = {ATTN_RECURRENT_RETENTION, ATTN_RECURRENT_KDA,
                                                  ATTN_RECURRENT_DPLR};
  const int levels = s->n >= 4 * ATTN_RECURRENT_COUNT;
  if (s->n >= 4 * ATTN_RECURRENT_COUNT + 12) return 0;
  attn_recurrent_params *p = play_params(s, sizeof *p);
  const int64_t len = lens[s->n % 4], heads = s->n % 3 ? 2 : 1;
  const attn_dtype type = s->n % 5 ? ATTN_F32 : ATTN_F16;
  p->rule = levels ? by_levels[s->n / 4 - ATTN_RECURRENT_COUNT] : (attn_recurrent_rule)(s->n / 4);
  p->chunk = chunks[(s->n + s->n / 4) % 4];
  p->l2norm_qk = 1;
  (void)play_token(s, type, heads, len, D), (void)play_token(s, type, 1, len, D);
  (void)play_token(s, type, heads, len, E), (void)play_out(s, type, heads, len, E);
  const int per_token = p->rule == ATTN_RECURRENT_GATED_DELTA, each = !per_token;
  if (p->rule != ATTN_RECURRENT_DELTA && p->rule != ATTN_RECURRENT_MAMBA2 &&
      p->rule != ATTN_RECURRENT_MLSTM) {
    p->decay = play_fixed(s, 1, len, each ? D : 1);
    for (int64_t i = 0; i < len; i++)
      for (int64_t c = 0; c < p->decay.dim; c++)
        oracle_set(&p->decay, 0, 0, i, c, -0.1 * fabs(oracle_get(&p->decay, 0, 0, i, c)));
  }
  if (p->rule == ATTN_RECURRENT_MAMBA2) p->a_log = rates;
  if (p->rule == ATTN_RECURRENT_RWKV6) p->bonus = play_fixed(s, 1, 1, D);
  if (p->rule == ATTN_RECURRENT_MLSTM) p->form = ATTN_RECURRENT_LOGIT;
  if (p->rule == ATTN_RECURRENT_RWKV7 || p->rule == ATTN_RECURRENT_DPLR) {
    p->a = play_token(s, ATTN_F32, 1, len, D), p->b = play_token(s, ATTN_F32, 1, len, D);
    for (int64_t i = 0; i < len * D; i++)
      ((float *)p->a.data)[i] *= 0.1f, ((float *)p->b.data)[i] *= 0.1f;
  } else if (p->rule == ATTN_RECURRENT_MLSTM) {
    (void)play_token(s, ATTN_F32, 1, len, 1), (void)play_token(s, ATTN_F32, 1, len, 1);
  } else if (p->rule == ATTN_RECURRENT_MAMBA2) {
    (void)play_token(s, ATTN_F32, 1, len, 1);
  } else if (p->rule == ATTN_RECURRENT_DELTA || per_token || p->rule == ATTN_RECURRENT_KDA) {
    p->beta = play_token(s, ATTN_F32, 1, len, 1);
    for (int64_t i = 0; i < len; i++) oracle_set(&p->beta, 0, 0, i, 0, 0.5);
  }
  if (levels) p->lambda = play_token(s, ATTN_F32, 1, len, 12);
  s->call = recurrent_call;
  return 1;
}

/* d_q of a row reads the state behind it alone. */
static attn_status recurrent_backward_call(play *s, attn_ctx *ctx) {
  attn_recurrent_params *p = s->p;
  const int hgrn = p->rule == ATTN_RECURRENT_HGRN2;
  if (p->rule == ATTN_RECURRENT_MLSTM) p->gate = s->in[3], p->decay = s->in[4];
  if (p->rule == ATTN_RECURRENT_MAMBA2) p->dt = s->in[3];
  if (p->beta.data) p->beta = s->in[3];
  if (p->a.data) p->a = s->in[3], p->b = s->in[4];
  if (p->lambda.data) p->lambda = s->in[3 + (p->a.data ? 2 : p->beta.data || p->dt.data)];
  return attn_recurrent_backward(s->out[0], absent(), absent(), s->in[s->ins - 1], s->in[0],
                                 hgrn ? absent() : s->in[1], s->in[2], p, NULL, ctx);
}
static int recurrent_backward(play *s) {
  if (!recurrent(s)) return 0;
  const int64_t heads = s->in[0].heads, len = s->in[0].len;
  (void)play_token(s, ATTN_F32, heads, len, E);
  s->outs = 0;
  (void)play_out(s, ATTN_F32, heads, len, D);
  s->call = recurrent_backward_call;
  return 1;
}

static attn_status short_convolve_call(play *s, attn_ctx *ctx) {
  return attn_short_convolve(s->out[0], s->in[0], s->w[0], s->p, ctx);
}
static int short_convolve(play *s) {
  if (s->n >= 2) return 0;
  (void)play_params(s, sizeof(attn_short_convolve_params));
  (void)play_token(s, ATTN_F32, 2, N, D), (void)play_out(s, ATTN_F32, 2, N, D);
  s->w[0] = play_fixed(s, 1, s->n ? 4 : 33, D), s->call = short_convolve_call;
  return 1;
}

static attn_status damped_ema_call(play *s, attn_ctx *ctx) {
  return attn_damped_ema(s->out[0], s->in[0], s->p, ctx);
}
static int damped_ema(play *s) {
  static float unit[2][D * 5], weight[D * 5];
  if (s->n >= 2) return 0;
  attn_damped_ema_params *p = play_params(s, sizeof *p);
  for (int i = 0; i < D * 5; i++)
    unit[0][i] = (float)(i % 17) / 16, unit[1][i] = (float)(i % 9) / 8,
    weight[i] = 1 - 0.03f * (float)i;
  p->dims = s->n ? 1 : 5, p->forward.alpha = unit[0], p->forward.delta = unit[1];
  p->forward.beta = p->forward.eta = p->omega = weight;
  (void)play_token(s, ATTN_F32, 1, N, D), (void)play_out(s, ATTN_F32, 1, N, D);
  s->call = damped_ema_call;
  return 1;
}

/* d_q of a row: no later token's row, nor what reaches it. */
static attn_status linear_backward_call(play *s, attn_ctx *ctx) {
  attn_tensor none;
  memset(&none, 0, sizeof none);
  return attn_linear_backward(s->out[0], none, none, s->in[3], s->in[0], s->in[1], s->in[2], s->p,
                              NULL, ctx);
}
static int linear_backward(play *s) {
  enum { FORMS = 5 * 3 * 2 };
  if (s->n >= FORMS) return 0;
  attn_linear_params *p = play_params(s, sizeof *p);
  const int kind = s->n / 5 % 3;
  const int64_t group = 1 + s->n % 2, len = s->n / 15 ? 100 : N;
  static const attn_feature_kind kinds[] = {ATTN_FEATURES_ELU1, ATTN_FEATURES_SOFTMAX,
                                            ATTN_FEATURES_RFA};
  (void)play_token(s, ATTN_F32, group, len, D), (void)play_token(s, ATTN_F32, 1, len, D);
  (void)play_token(s, ATTN_F32, 1, len, E), (void)play_token(s, ATTN_F32, group, len, E);
  (void)play_out(s, ATTN_F32, group, len, D);
  p->map.kind = kinds[kind], p->causal = 1, p->rule = (attn_linear_rule)(s->n % 5);
  if (kind) p->map.w = play_fixed(s, 1, 9, D);
  if (kind == 2 && p->rule >= ATTN_LINEAR_DELTA) p->map.norm = ATTN_FEATURE_NORM_L2;
  if (p->rule != ATTN_LINEAR_SUM) p->rate_const = 0.75f;
  s->call = linear_backward_call;
  return 1;
}

const causal_entry causal_fewer[] = {{"attn_memory_compressed ", memory_compressed, NULL},
                                     {"attn_local ", local, NULL},
                                     {"attn_poolingformer ", poolingformer, NULL},
                                     {"attn_low_rank_band ", low_rank_band, NULL},
                                     {"attn_luna_causal ", luna, NULL},
                                     {"attn_linear ", linear, NULL},
                                     {"attn_linear_backward ", linear_backward, NULL},
                                     {"attn_recurrent ", recurrent, NULL},
                                     {"attn_recurrent_backward ", recurrent_backward, NULL},
                                     {"attn_short_convolve ", short_convolve, NULL},
                                     {"attn_damped_ema ", damped_ema, NULL},
                                     {NULL, NULL, NULL}};
