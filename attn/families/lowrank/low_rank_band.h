/* families/lowrank/low_rank_band.h owns attention through a map of low rank beside one over a band. */

typedef struct attn_low_rank_band_job_ {
  attn_tensor o, q_low, k_low, q_band, k_band, v;
  attn_low_rank_band_params p; /* weights and v_band resolved */
} attn_low_rank_band_job_;

/* A weight of the sum: finite numbers, 0 = 1. */
ATTN_COLD_ int attn_check_weight_(attn_error_ *e, float *weight, const float *all, int64_t heads,
                                  const char *reason) {
  if (*weight == 0.0f && !attn_to_bits_(*weight)) *weight = 1.0f;
  if (!(*weight - *weight == 0.0f)) return attn_reject_(e, ATTN_E_VALUE, reason);
  return attn_check_finite_(e, all, heads, reason);
}

/* Every rule; data = 0: without those that read arrays. */
ATTN_COLD_ int attn_low_rank_band_check_(attn_error_ *e, attn_low_rank_band_job_ *j,
                                         const attn_low_rank_band_params *params,
                                         const attn_ctx *ctx, const attn_table_ **table,
                                         int *workers, int data) {
  enum { QL, KL, QB, KB, V, VB, O, COUNT };
  enum { KV_LEN, Q_LEN, BIAS, LOW, BAND, ARRAYS };
  attn_low_rank_band_params *p = &j->p;
  attn_span_ span[ARRAYS];
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (params) *p = *params;
  if (!p->v_band.data) p->v_band = j->v;
  const int64_t b = j->q_low.batch, h = j->q_low.heads, tq = j->q_low.len, tk = j->k_low.len;
  const int64_t in = ATTN_DIVIDES_, any = ATTN_ANY_, dv = j->v.dim;
  const int64_t dim = p->concat ? attn_add_(dv, p->v_band.dim) : dv;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&j->q_low, "q_low", 0, any, any, any, any, NULL),
      ATTN_OPERAND_(&j->k_low, "k_low", 0, b, in, any, j->q_low.dim,
                    "k_low must be [q_low.batch, a divisor of q_low.heads, Tk, q_low.dim]"),
      ATTN_OPERAND_(&j->q_band, "q_band", 0, b, h, tq, any,
                    "q_band must have the batch, heads and len of q_low"),
      ATTN_OPERAND_(
          &j->k_band, "k_band", 0, b, in, tk, j->q_band.dim,
          "k_band must be [q_low.batch, a divisor of q_low.heads, k_low.len, q_band.dim]"),
      ATTN_OPERAND_(&j->v, "v", 0, b, in, tk, any,
                    "v must be [q_low.batch, a divisor of q_low.heads, k_low.len, dv]"),
      ATTN_OPERAND_(&p->v_band, "params.v_band", 0, b, in, tk, p->concat ? any : dv,
                    "params.v_band must be as v, with params.concat of any width"),
      ATTN_OPERAND_(
          &j->o, "o", ATTN_OUT_, b, h, tq, dim,
          "o must be [q_low.batch, q_low.heads, q_low.len, v.dim], with params.concat v.dim + "
          "v_band.dim wide")};
  for (int i = 0; i < COUNT; i++) {
    if (!attn_check_operand_(e, &op[i], h)) return 0;
    if (h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q_low.heads must be at least 1");
  }
  if (tq >= (int64_t)1 << 40 || tk >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_OVERFLOW, "q_low.len and k_low.len must be below 2^40");
  if (p->half_width < 0 || p->half_width > (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_RANGE, "params.half_width must lie in 0..2^40");
  if (p->band_bias && p->bias_len != 2 * p->half_width + 1)
    return attn_reject_(e, ATTN_E_SHAPE, "params.bias_len must be 2 half_width + 1");
  if (p->band_bias && p->bias_heads != 0 && p->bias_heads != 1 && p->bias_heads != h)
    return attn_reject_(e, ATTN_E_SHAPE, "params.bias_heads must be 0, 1 or q_low.heads");
  if (!p->has_q_off && p->q_off)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off needs params.has_q_off = 1");
  if (attn_abs64_(p->q_off) >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off must lie within 2^40 of 0");
  if (p->concat &&
      (p->weight_low != 0.0f || p->weight_band != 0.0f || p->weights_low || p->weights_band ||
       attn_to_bits_(p->weight_low) || attn_to_bits_(p->weight_band)))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.weight_low and the other weights must be absent with concat");
  const float s1 = p->scale_low, s2 = p->scale_band;
  if (!(s1 - s1 == 0.0f) || !(s2 - s2 == 0.0f))
    return attn_reject_(e, ATTN_E_VALUE, "params.scale_low and .scale_band must be finite");
  const int64_t biases =
      p->band_bias ? attn_mul_(p->bias_heads > 1 ? p->bias_heads : 1, p->bias_len) : 0;
  if (!attn_check_array_(e, p->kv_len, b, 4, "params.kv_len must be aligned to its elements",
                         &span[KV_LEN]) ||
      !attn_check_array_(e, p->q_len, b, 4, "params.q_len must be aligned to its elements",
                         &span[Q_LEN]) ||
      !attn_check_array_(e, p->band_bias, biases, 4,
                         "params.band_bias must be aligned to its elements", &span[BIAS]) ||
      !attn_check_array_(e, p->weights_low, h, 4,
                         "params.weights_low must be aligned to its elements", &span[LOW]) ||
      !attn_check_array_(e, p->weights_band, h, 4,
                         "params.weights_band must be aligned to its elements", &span[BAND]) ||
      !attn_check_apart_(e, ctx, op, COUNT, span, ARRAYS))
    return 0;
  const int64_t heads = data ? h : 0;
  return attn_check_weight_(e, &p->weight_low, p->weights_low, heads,
                            "params.weight_low and weights_low must be finite") &&
         attn_check_weight_(e, &p->weight_band, p->weights_band, heads,
                            "params.weight_band and weights_band must be finite") &&
         (!data ||
          (attn_check_finite_(e, p->band_bias, biases, "params.band_bias must be finite") &&
           attn_check_lens_(e, p->kv_len, b, tk, "params.kv_len must lie in 0..k_low.len") &&
           attn_check_lens_(e, p->q_len, b, tq, "params.q_len must lie in 0..q_low.len")));
}

/* ---- the weighted sum -----------------------------------------------------------------------*/

/* An f32 tensor of the shape of the sum, and its weights. */
typedef struct attn_share_ {
  attn_tensor x;
  float weight;
  const float *weights; /* [H], in its place */
} attn_share_;

typedef struct attn_weigh_ {
  const attn_table_ *table;
  attn_tensor o;
  attn_share_ part[2];
  int64_t tiles;
} attn_weigh_;

ATTN_FUNC_ void attn_weigh_item_(void *job, int worker, int64_t index) {
  const attn_weigh_ *a = (const attn_weigh_ *)job;
  const int64_t unit = index / a->tiles, b = unit / a->o.heads, h = unit % a->o.heads;
  const int64_t i0 = index % a->tiles * ATTN_TILE_;
  const int64_t i1 = a->o.len - i0 < ATTN_TILE_ ? a->o.len : i0 + ATTN_TILE_;
  float w[2];
  (void)worker;
  for (int p = 0; p < 2; p++) w[p] = a->part[p].weights ? a->part[p].weights[h] : a->part[p].weight;
  for (int64_t i = i0; i < i1; i++)
    a->table->blend(attn_at_(&a->o, b, h, i),
                    w[0] != 0.0f ? attn_at_(&a->part[0].x, b, h, i) : NULL,
                    w[1] != 0.0f ? attn_at_(&a->part[1].x, b, h, i) : NULL, a->o.dtype, ATTN_F32,
                    ATTN_F32, a->o.dim, w[0], w[1]);
}

/* o = the weighted sum of two parts; a part of weight 0 is not read. o may be a part. */
ATTN_COLD_ int attn_stage_weigh_(attn_stage_ *s, attn_tensor o, attn_share_ x1, attn_share_ x2) {
  attn_weigh_ a = {s->table, o, {x1, x2}, o.len / ATTN_TILE_ + (o.len % ATTN_TILE_ != 0)};
  return attn_stage_for_(s, attn_mul_(attn_mul_(o.batch, o.heads), a.tiles), attn_weigh_item_, &a,
                         0, NULL);
}

ATTN_COLD_ int attn_low_rank_band_steps_(attn_stage_ *s, void *job) {
  const attn_low_rank_band_job_ *j = (const attn_low_rank_band_job_ *)job;
  const attn_low_rank_band_params *g = &j->p;
  attn_sdpa_params low, band;
  memset(&low, 0, sizeof low);
  low.causal = g->causal != 0, low.has_q_off = g->has_q_off, low.q_off = g->q_off;
  low.kv_len = g->kv_len, low.q_len = g->q_len;
  band = low;
  low.scale = g->scale_low, band.scale = g->scale_band;
  band.window = attn_window_of(g->half_width, g->half_width);
  band.toeplitz.table = g->band_bias, band.toeplitz.len = g->bias_len;
  band.toeplitz.first = -g->half_width, band.toeplitz.heads = g->bias_heads;
  if (g->concat) {
    attn_tensor left = j->o, right = attn_stage_shift_(j->o, j->v.dim);
    left.dim = j->v.dim, right.dim = g->v_band.dim;
    return attn_stage_sdpa_(s, left, j->q_low, j->k_low, j->v, &low) &&
           attn_stage_sdpa_(s, right, j->q_band, j->k_band, g->v_band, &band);
  }
  attn_share_ x1 = {j->o, g->weight_low, g->weights_low};
  attn_share_ x2 = {j->o, g->weight_band, g->weights_band};
  if (x1.weights || x1.weight != 0.0f) {
    x1.x = attn_stage_part_(s, &j->o);
    if (!attn_stage_sdpa_(s, x1.x, j->q_low, j->k_low, j->v, &low)) return 0;
  }
  if (x2.weights || x2.weight != 0.0f) {
    x2.x = attn_stage_tensor_(s, j->o.batch, j->o.heads, j->o.len, j->o.dim);
    if (!attn_stage_sdpa_(s, x2.x, j->q_band, j->k_band, g->v_band, &band)) return 0;
  }
  return attn_stage_weigh_(s, j->o, x1, x2);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_low_rank_band_job_call_(attn_low_rank_band_job_ *j,
                                                    const attn_low_rank_band_params *params,
                                                    attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_low_rank_band_check_(&e, j, params, ctx, &table, &workers, bytes == NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (j->o.batch == 0 || j->o.len == 0) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no queries");
    } else {
      attn_stage_call_(&s, ctx, attn_low_rank_band_steps_, j,
                       j->p.concat ? "low rank beside a band" : "low rank plus band", bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_low_rank_band_job_ attn_low_rank_band_job_of_(attn_tensor o, attn_tensor q_low,
                                                              attn_tensor k_low, attn_tensor q_band,
                                                              attn_tensor k_band, attn_tensor v) {
  attn_low_rank_band_job_ j;
  memset(&j, 0, sizeof j);
  j.o = o, j.q_low = q_low, j.k_low = k_low, j.q_band = q_band, j.k_band = k_band, j.v = v;
  return j;
}

ATTN_COLD_ attn_status attn_low_rank_band_call_(attn_tensor o, attn_tensor q_low, attn_tensor k_low,
                                                attn_tensor q_band, attn_tensor k_band,
                                                attn_tensor v,
                                                const attn_low_rank_band_params *params,
                                                attn_ctx *ctx, size_t *bytes) {
  attn_low_rank_band_job_ j = attn_low_rank_band_job_of_(o, q_low, k_low, q_band, k_band, v);
  return attn_low_rank_band_job_call_(&j, params, ctx, bytes);
}
ATTN_CALL_(attn_low_rank_band, (o, q_low, k_low, q_band, k_band, v, params), attn_tensor o,
           attn_tensor q_low, attn_tensor k_low, attn_tensor q_band, attn_tensor k_band,
           attn_tensor v, const attn_low_rank_band_params *params)
