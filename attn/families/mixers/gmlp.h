/* families/mixers/gmlp.h owns gMLP and aMLP: products with the channel weights around a gate that a product
 * along the sequence makes. */

typedef struct attn_gmlp_job_ {
  attn_tensor o, x;
  attn_gmlp_params p;
} attn_gmlp_job_;

/* Entries of a batch that go through a block together: weights are laid out once for them. */
enum { ATTN_MIXED_ROWS_ = 2048 };
ATTN_COLD_ int64_t attn_mixed_entries_(int64_t batch, int64_t len) {
  const int64_t most = len < ATTN_MIXED_ROWS_ ? ATTN_MIXED_ROWS_ / len : 1;
  return batch < most ? batch : most;
}
ATTN_COLD_ attn_tensor attn_mixed_some_(attn_tensor t, int64_t b, int64_t entries) {
  if (b > 0) t = attn_stage_shift_(t, b * t.stride_batch);
  t.batch = entries;
  return t;
}

/* Columns c .. c + n - 1. */
ATTN_COLD_ attn_tensor attn_mixed_columns_(attn_tensor t, int64_t c, int64_t n) {
  t = attn_stage_shift_(t, c);
  t.dim = n;
  return t;
}

/* y = x + rows w + bias; y may be x. */
ATTN_COLD_ int attn_stage_mixed_(attn_stage_ *s, attn_tensor y, attn_tensor x, attn_tensor rows,
                                 attn_tensor w, attn_tensor bias) {
  attn_spatial_ a;
  memset(&a, 0, sizeof a);
  a.w = rows, a.heads = 1, a.rows = y.len, a.k = rows.dim, a.n = y.dim;
  a.m[0] = attn_spatial_matrix_(w);
  a.add = x, a.col_bias = bias, a.y = y;
  return attn_stage_spatial_(s, &a, y.batch, 0, 1);
}

/* o may be x itself: then the output speaks for both. */
ATTN_COLD_ int attn_mixed_apart_(attn_error_ *e, const attn_ctx *ctx, attn_arguments_ *l,
                                 const attn_arrays_ *more) {
  const attn_tensor *o = l->op[0].t, *x = l->op[1].t;
  if (attn_same_view_(o, x)) l->op[1].span.lo = l->op[1].span.hi = 0;
  return attn_check_apart_(e, ctx, l->op, l->n, more->span, more->n);
}

ATTN_COLD_ int attn_gmlp_check_(attn_error_ *e, attn_gmlp_job_ *j, const attn_ctx *ctx,
                                const attn_table_ **table, int *workers) {
  enum { O, X, W1, B1, WS, BS, W2, B2, WQKV, BQKV, WO, BO };
  attn_gmlp_params *p = &j->p;
  const int64_t any = ATTN_ANY_;
  const int out = ATTN_OUT_, optional = ATTN_OPTIONAL_, matrix = ATTN_MATRIX_;
  attn_arguments_ l;
  attn_arrays_ more = {0, {{0, 0, 0, 0}}};
  memset(&l, 0, sizeof l);
  attn_tensor *const w[] = {&p->w_1, &p->w_2, &p->w_qkv, &p->w_o};
  for (int i = 0; i < 4; i++) attn_turn_(w[i], p->w_transposed);
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!attn_check_argument_(e, &l, &j->o, ATTN_WORDS_("o"), out, any, 1, any, any,
                            "o must have one head"))
    return 0;
  const int64_t b = j->o.batch, t = j->o.len, dm = j->o.dim, hidden = p->w_2.len;
  if (!attn_check_argument_(e, &l, &j->x, ATTN_WORDS_("x"), 0, b, 1, t, dm,
                            "x must have the shape of o") ||
      !attn_check_argument_(e, &l, &p->w_2, ATTN_WORDS_("params.w_2"), matrix, 1, 1, any, dm,
                            ATTN_IN_OUT_("params.w_2", "e", "o.dim")))
    return 0;
  if (hidden < 1)
    return attn_reject_(e, ATTN_E_SHAPE,
                        "e, the columns that params.w_2 reads, must be at least 1");
  if (!attn_check_argument_(e, &l, &p->b_2, ATTN_WORDS_("params.b_2"), optional, 1, 1, 1, dm,
                            "params.b_2 must be [1, 1, 1, o.dim]") ||
      !attn_check_argument_(e, &l, &p->w_1, ATTN_WORDS_("params.w_1"), matrix, 1, 1, dm,
                            attn_mul_(2, hidden),
                            ATTN_IN_OUT_("params.w_1", "x.dim", "2 e (e of w_2)")) ||
      !attn_check_argument_(e, &l, &p->b_1, ATTN_WORDS_("params.b_1"), optional, 1, 1, 1,
                            attn_mul_(2, hidden), "params.b_1 must be [1, 1, 1, 2 e]") ||
      !attn_check_argument_(e, &l, &p->w_s, ATTN_WORDS_("params.w_s"), 0, 1, any, any, any,
                            "params.w_s must have batch 1"))
    return 0;
  if (p->w_s.len != p->w_s.dim || p->w_s.len < t)
    return attn_reject_(e, ATTN_E_SHAPE, "params.w_s must be [1, S, N, N] with N >= x.len");
  if (p->w_s.heads < 1 || hidden % p->w_s.heads)
    return attn_reject_(e, ATTN_E_HEADS, "params.w_s.heads must divide e");
  l.heads = p->w_s.heads;
  if (p->b_s.data && p->b_s.heads != 1 && p->b_s.heads != l.heads)
    return attn_reject_(e, ATTN_E_SHAPE, "params.b_s.heads must be 1 or those of w_s");
  if (!attn_check_argument_(e, &l, &p->b_s, ATTN_WORDS_("params.b_s"), optional, 1, any, 1,
                            p->w_s.len, "params.b_s must be [1, 1 or w_s.heads, 1, w_s.len]"))
    return 0;
  if (!p->w_qkv.data && (p->w_o.data || p->b_qkv.data || p->b_o.data))
    return attn_reject_(e, ATTN_E_NULL,
                        "params.w_qkv must not be null where w_o, b_qkv or b_o is there");
  if (p->w_qkv.data) {
    const int64_t a = p->w_o.len, wide = attn_mul_(3, a);
    if (!attn_check_argument_(e, &l, &p->w_o, ATTN_WORDS_("params.w_o"), matrix, 1, 1, any, hidden,
                              ATTN_IN_OUT_("params.w_o", "a", "e")))
      return 0;
    if (a < 1)
      return attn_reject_(e, ATTN_E_SHAPE,
                          "a, the columns that params.w_o reads, must be at least 1");
    if (!attn_check_argument_(e, &l, &p->w_qkv, ATTN_WORDS_("params.w_qkv"), matrix, 1, 1, dm, wide,
                              ATTN_IN_OUT_("params.w_qkv", "x.dim", "3 a (a of w_o)")) ||
        !attn_check_argument_(e, &l, &p->b_qkv, ATTN_WORDS_("params.b_qkv"), optional, 1, 1, 1,
                              wide, "params.b_qkv must be [1, 1, 1, 3 a]") ||
        !attn_check_argument_(e, &l, &p->b_o, ATTN_WORDS_("params.b_o"), optional, 1, 1, 1, hidden,
                              "params.b_o must be [1, 1, 1, e]"))
      return 0;
  }
  return attn_check_activation_(e, &p->activation, ATTN_ACT_GELU,
                                "params.activation must be an attn_activation") &&
         attn_check_norm_(e, &p->norm, dm, &more) &&
         attn_check_norm_(e, &p->norm_gate, hidden, &more) &&
         attn_check_cut_(e, p->x_len, b, t, "params.x_len must be aligned to its elements",
                         "params.x_len must lie in 0..x.len", &more) &&
         attn_mixed_apart_(e, ctx, &l, &more);
}

/* Z1 *= W LN_s(Z2) + b, with w_qkv + the attention's part: each, its heads' outputs. */
ATTN_COLD_ int attn_gmlp_gate_(attn_stage_ *s, const attn_gmlp_params *p, attn_tensor z,
                               attn_tensor each, const int32_t *len, float *panels) {
  const int64_t e = p->w_2.len, heads = p->w_s.heads;
  attn_spatial_ a;
  memset(&a, 0, sizeof a);
  a.w = p->w_s, a.causal = p->causal, a.row_bias = p->b_s, a.len = len;
  a.heads = heads, a.rows = a.k = z.len, a.n = e / heads;
  a.gate = attn_mixed_columns_(z, 0, e);
  if (each.data) {
    a.more = each, a.col_bias = p->b_o;
    a.m[1] = attn_spatial_matrix_(attn_weight_heads_(p->w_o, heads));
  }
  return attn_stage_norm_panels_(s, &a.m[0], attn_mixed_columns_(z, e, e), heads, &p->norm_gate,
                                 panels) &&
         attn_stage_spatial_(s, &a, z.batch, 1, each.data ? 2 : 1);
}

ATTN_COLD_ int attn_gmlp_steps_(attn_stage_ *s, void *job) {
  const attn_gmlp_job_ *j = (const attn_gmlp_job_ *)job;
  const attn_gmlp_params *p = &j->p;
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  const int64_t batch = j->x.batch, t = j->x.len, e = p->w_2.len, a = p->w_o.len;
  const int64_t most = attn_mixed_entries_(batch, t);
  attn_tensor n = attn_multihead_rows_(s, most, t, j->x.dim);
  attn_tensor z = attn_multihead_rows_(s, most, t, 2 * e), qkv = none, each = none;
  float *panels = attn_stage_panels_(s, most, p->w_s.heads, t, e);
  if (p->w_qkv.data) {
    qkv = attn_multihead_rows_(s, most, t, 3 * a);
    each = attn_multihead_rows_(s, most, t, a);
  }
  for (int64_t b = 0, some; b < batch; b += some) {
    some = batch - b < most ? batch - b : most;
    const attn_tensor x = attn_mixed_some_(j->x, b, some), o = attn_mixed_some_(j->o, b, some);
    const int32_t *len = p->x_len ? p->x_len + b : NULL;
    n.batch = z.batch = qkv.batch = each.batch = some;
    if (!attn_stage_norm_(s, n, x, none, &p->norm) ||
        !attn_stage_dense_(s, z, n, p->w_1, p->b_1, p->activation))
      return 0;
    if (p->w_qkv.data) {
      attn_sdpa_params attend;
      memset(&attend, 0, sizeof attend);
      attend.causal = p->causal != 0, attend.q_len = attend.kv_len = len;
      if (!attn_stage_dense_(s, qkv, n, p->w_qkv, p->b_qkv, ATTN_ACT_NONE) ||
          !attn_stage_sdpa_(s, each, attn_mixed_columns_(qkv, 0, a), attn_mixed_columns_(qkv, a, a),
                            attn_mixed_columns_(qkv, 2 * a, a), &attend))
        return 0;
    }
    if (!attn_gmlp_gate_(s, p, z, each, len, panels) ||
        !attn_stage_mixed_(s, o, x, attn_mixed_columns_(z, 0, e), p->w_2, p->b_2))
      return 0;
    if (s->run && len)
      for (int64_t i = 0; i < some * t; i++)
        if (i % t >= len[i / t])
          memset(attn_at_(&o, i / t, 0, i % t), 0, (size_t)attn_bytes_(o.dtype, o.dim));
  }
  return 1;
}

ATTN_COLD_ attn_status attn_gmlp_call_(attn_tensor o, attn_tensor x, const attn_gmlp_params *params,
                                       attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_gmlp_job_ j;
  int workers = 1;
  memset(&j, 0, sizeof j);
  j.o = o, j.x = x;
  if (params) j.p = *params;
  if (!params)
    attn_reject_(&e, ATTN_E_NULL, "params must not be null: it has the weights");
  else
    (void)attn_gmlp_check_(&e, &j, ctx, &table, &workers);
  return attn_step_call_or_(&e, table, workers, ctx, attn_gmlp_steps_, &j,
                            "products, a gate along the sequence",
                            o.batch == 0 || o.len == 0 ? "no rows" : NULL, bytes);
}

ATTN_CALL_(attn_gmlp, (o, x, params), attn_tensor o, attn_tensor x, const attn_gmlp_params *params)
