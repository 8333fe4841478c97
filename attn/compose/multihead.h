/* compose/multihead.h owns multi-head attention with projections: products into heads, one
 * attn_sdpa, and the product that joins the heads. */

typedef struct attn_multihead_job_ {
  attn_tensor y, x, x_k, x_v;
  attn_multihead_params p; /* heads and kv_heads resolved */
  attn_tensor mix, w_c;    /* collaborative heads: q and k have one head */
  int64_t dk, dv;
} attn_multihead_job_;

ATTN_COLD_ void attn_multihead_turn_(attn_multihead_params *p) {
  attn_tensor *const w[] = {&p->w_q, &p->w_k, &p->w_v, &p->w_o};
  for (int i = 0; i < 4; i++) attn_turn_(w[i], p->w_transposed);
}

/* The rotation of queries or keys, which comes after their projection: key j stands at row j of those that have
 * positions, query i where attn_sdpa sees it. */
ATTN_COLD_ attn_rope_params attn_multihead_rope_(const attn_multihead_params *p, int keys) {
  attn_rope_params rope = *p->rope;
  rope.keys = keys;
  return rope;
}

ATTN_COLD_ int attn_multihead_rope_ok_(attn_error_ *e, const attn_multihead_job_ *j,
                                       const attn_span_ outer[2], const attn_ctx *ctx) {
  const int64_t queries = j->x.len, keys = j->x_k.len;
  attn_span_ work;
  if (!j->p.rope) return 1;
  if (!attn_check_workspace_(e, ctx, &work)) return 0;
  for (int k = 0; k < 2; k++) {
    const attn_rope_params rope = attn_multihead_rope_(&j->p, k);
    const int64_t first = k ? 0 : attn_q_off_(&j->p.attention, queries, keys);
    attn_rope_ g;
    if (!attn_rope_open_(e, &g, &rope, j->x.batch, k ? j->p.kv_heads : j->p.heads, keys, first,
                         k ? keys : queries, j->dk, 1))
      return 0;
    if (attn_rope_shares_(&g, work) || attn_rope_shares_(&g, outer[0]) ||
        attn_rope_shares_(&g, outer[1]))
      return attn_reject_(
          e, ATTN_E_OVERLAP,
          "arrays and tables of params.rope must not share memory with an output or "
          "ctx.workspace");
  }
  return 1;
}

/* What attn_sdpa will see, before there is any of it: outer = y and each. */
ATTN_COLD_ int attn_multihead_attend_ok_(attn_error_ *e, const attn_multihead_job_ *j,
                                         const attn_span_ outer[2], const attn_ctx *ctx) {
  const attn_multihead_params *p = &j->p;
  const void *there = (const void *)(uintptr_t)ATTN_ALIGN_;
  const int64_t b = j->x.batch, t = j->x.len, h = p->heads;
  attn_softmax_ a;
  int workers;
  memset(&a, 0, sizeof a);
  a.q = attn_bhtd(there, ATTN_F32, b, h, t, j->dk);
  a.k = attn_bhtd(there, ATTN_F32, j->x_k.batch, j->mix.data ? 1 : p->kv_heads, j->x_k.len, j->dk);
  a.v = attn_bhtd(there, ATTN_F32, j->x_v.batch, p->kv_heads, j->x_v.len, j->dv);
  a.o = attn_bhtd(there, ATTN_F32, b, h, t, j->dv);
  a.outer = outer, a.takes_low = a.takes_drop = !j->mix.data;
  return attn_multihead_rope_ok_(e, j, outer, ctx) &&
         attn_sdpa_plan_(e, &a, &p->attention, ctx, &workers, 1);
}

/* The tensors of a job, in the order of their checks. */
enum {
  ATTN_MULTIHEAD_X_,
  ATTN_MULTIHEAD_XK_,
  ATTN_MULTIHEAD_XV_,
  ATTN_MULTIHEAD_Y_ = 13,
  ATTN_MULTIHEAD_EACH_,
  ATTN_MULTIHEAD_TENSORS_ = 19, /* and the arrays of scales */
  ATTN_MULTIHEAD_OPERANDS_ = ATTN_MULTIHEAD_TENSORS_ + 8
};

/* The projections of multi-head attention. */
typedef enum attn_projection_ { ATTN_W_Q_, ATTN_W_K_, ATTN_W_V_, ATTN_W_O_ } attn_projection_;

typedef struct attn_projected_ {
  const attn_tensor *w, *bias;
  attn_scales *scales;
} attn_projected_;

ATTN_COLD_ attn_projected_ attn_projection_of_(attn_multihead_params *p, attn_projection_ which) {
  const attn_projected_ all[] = {{&p->w_q, &p->b_q, &p->w_q_scales},
                                 {&p->w_k, &p->b_k, &p->w_k_scales},
                                 {&p->w_v, &p->b_v, &p->w_v_scales},
                                 {&p->w_o, &p->b_o, &p->w_o_scales}};
  return all[which];
}

/* The scales of one; op: two, of which the spans are set. */
ATTN_COLD_ int attn_multihead_scales_(attn_error_ *e, attn_multihead_params *p,
                                      attn_projection_ which, attn_operand_ *op) {
  static const attn_scales_words_ words[] = {ATTN_SCALES_WORDS_("params.w_q_scales", "params.w_q"),
                                             ATTN_SCALES_WORDS_("params.w_k_scales", "params.w_k"),
                                             ATTN_SCALES_WORDS_("params.w_v_scales", "params.w_v"),
                                             ATTN_SCALES_WORDS_("params.w_o_scales", "params.w_o")};
  const attn_projected_ one = attn_projection_of_(p, which);
  return attn_check_weight_scales_(e, one.scales, one.w, &words[which], op);
}

/* Every rule about one of them; heads and widths are resolved. */
ATTN_COLD_ int attn_multihead_operands_(attn_error_ *e, attn_multihead_job_ *j, attn_operand_ *op) {
  enum { X, XK, XV, WQ, WK, WV, WO, BQ, BK, BV, BO, MIX, WC, Y, EACH, LSE, MAP, MORE_K, MORE_V };
  const int optional = ATTN_OPTIONAL_, output = ATTN_OUT_, either = ATTN_OUT_ | ATTN_OPTIONAL_;
  const int codes = j->mix.data ? 0 : ATTN_CODES_;
  const int matrix = ATTN_MATRIX_ | codes, maybe = matrix | ATTN_OPTIONAL_;
  attn_multihead_params *p = &j->p;
  const int64_t any = ATTN_ANY_;
  if (p->heads == 0) p->heads = 1;
  if (p->kv_heads == 0) p->kv_heads = p->heads;
  if (p->heads < 1 || p->kv_heads < 1)
    return attn_reject_(e, ATTN_E_SHAPE,
                        j->mix.data ? "params.heads must not be negative"
                                    : "params.heads and .kv_heads must not be negative");
  if (p->heads % p->kv_heads)
    return attn_reject_(e, ATTN_E_HEADS, "params.kv_heads must divide params.heads");
  attn_multihead_turn_(p), attn_turn_(&j->w_c, p->w_transposed);
  if (!j->x_k.data) j->x_k = j->x;
  if (!j->x_v.data) j->x_v = j->x_k;
  const int shared = j->mix.data != NULL;
  const int64_t h = p->heads, kv = p->kv_heads, b = j->x.batch, t = j->x.len, dm = j->x.dim;
  const int64_t qh = shared ? 1 : h, kh = shared ? 1 : kv;
  if (p->w_q.dim % qh || p->w_v.dim % kv)
    return attn_reject_(
        e, ATTN_E_HEADS,
        shared ? "params.heads must divide the width of w_v"
               : "params.heads must divide the width of w_q, and params.kv_heads that of w_v");
  j->dk = p->w_q.dim / qh, j->dv = p->w_v.dim / kv;
  const int64_t bk = p->attention.ragged.sequences ? any : b, wide = attn_mul_(j->dv, h);
  const int64_t dmk = j->x_k.dim, dmv = j->x_v.dim, dmo = p->w_o.data ? p->w_o.dim : any;
  const attn_operand_ all[ATTN_MULTIHEAD_TENSORS_] = {
      ATTN_OPERAND_(&j->x, "x", 0, any, 1, any, any, "x must have one head"),
      ATTN_OPERAND_(&j->x_k, "x_k", 0, bk, 1, any, any, "x_k must be [x.batch, 1, Tk, .]"),
      ATTN_OPERAND_(&j->x_v, "x_v", 0, j->x_k.batch, 1, j->x_k.len, any,
                    "x_v must be [x.batch, 1, x_k.len, .]"),
      ATTN_OPERAND_(&p->w_q, "params.w_q", matrix, 1, 1, dm, any,
                    ATTN_IN_OUT_("params.w_q", "x.dim", "heads * dk")),
      ATTN_OPERAND_(&p->w_k, "params.w_k", matrix, 1, 1, dmk, attn_mul_(j->dk, kh),
                    shared ? ATTN_IN_OUT_("params.w_k", "x_k.dim", "the width of w_q")
                           : ATTN_IN_OUT_("params.w_k", "x_k.dim", "kv_heads * dk (dk of w_q)")),
      ATTN_OPERAND_(&p->w_v, "params.w_v", matrix, 1, 1, dmv, any,
                    shared ? ATTN_IN_OUT_("params.w_v", "x_k.dim", "heads * dv")
                           : ATTN_IN_OUT_("params.w_v", "x_v.dim", "kv_heads * dv")),
      ATTN_OPERAND_(&p->w_o, "params.w_o", j->y.data ? matrix : maybe, 1, 1, wide, any,
                    ATTN_IN_OUT_("params.w_o", "heads * dv (dv of w_v)", "y.dim")),
      ATTN_OPERAND_(&p->b_q, "params.b_q", optional, 1, 1, 1, p->w_q.dim,
                    "params.b_q must be [1, 1, 1, the width of w_q]"),
      ATTN_OPERAND_(&p->b_k, "params.b_k", optional, 1, 1, 1, p->w_k.dim,
                    "params.b_k must be [1, 1, 1, the width of w_k]"),
      ATTN_OPERAND_(&p->b_v, "params.b_v", optional, 1, 1, 1, p->w_v.dim,
                    "params.b_v must be [1, 1, 1, the width of w_v]"),
      ATTN_OPERAND_(&p->b_o, "params.b_o", optional, 1, 1, 1, dmo,
                    "params.b_o must be [1, 1, 1, the width of w_o]"),
      ATTN_OPERAND_(&j->mix, "params.mix", optional, 1, 1, h, j->dk,
                    "params.mix must be [1, 1, heads, the width of w_q]"),
      ATTN_OPERAND_(&j->w_c, "params.w_c", maybe, 1, 1, dmk, h,
                    ATTN_IN_OUT_("params.w_c", "x_k.dim", "heads")),
      ATTN_OPERAND_(&j->y, "y", p->w_o.data ? output : either, b, 1, t, dmo,
                    "y must be [x.batch, 1, x.len, the width of w_o]"),
      ATTN_OPERAND_(&p->each, "params.each", j->y.data ? either : output, b, h, t, j->dv,
                    "params.each must be [x.batch, heads, x.len, dv]"),
      ATTN_OPERAND_(&p->attention.lse, "params.lse", either | ATTN_IS_F32_, b, h, t, 1,
                    "params.lse must be f32 [x.batch, heads, x.len, 1]"),
      ATTN_OPERAND_(&p->attention.map, "params.map", either | ATTN_IS_F32_, b, h, t, any,
                    "params.map must be f32 [x.batch, heads, x.len, x_k.len]"),
      ATTN_OPERAND_(&p->bias_k, "params.bias_k", optional, 1, 1, 1, p->w_k.dim,
                    "params.bias_k must be [1, 1, 1, the width of w_k]"),
      ATTN_OPERAND_(&p->bias_v, "params.bias_v", optional, 1, 1, 1, p->w_v.dim,
                    "params.bias_v must be [1, 1, 1, the width of w_v]")};
  if (!p->bias_k.data != !p->bias_v.data)
    return attn_reject_(e, ATTN_E_NULL, "params.bias_k and params.bias_v go together");
  if (p->bias_k.data && (p->attention.ragged.sequences || p->attention.modify_weights ||
                         p->attention.dropout.p != 0.0))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.bias_k goes without attention.ragged, attention.modify_weights and "
                        "attention.dropout");
  if (p->rope && (p->bias_k.data || (attn_rope_turns_(p->rope) && attn_unlike_(&p->attention))))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.rope goes without bias_k and without attention.ragged, q_offs and "
                        "align_lengths");
  if (p->rope && p->rope->norm && p->rope->norm->kind == ATTN_QK_NORM_L2 &&
      p->attention.scale == 0.0f && !attn_to_bits_(p->attention.scale))
    p->attention.scale = 1.0f;
  if (j->x_k.len == 0) p->attention.map.data = NULL;
  memcpy(op, all, sizeof all);
  for (int i = 0; i < ATTN_MULTIHEAD_TENSORS_; i++)
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  memset(op + ATTN_MULTIHEAD_TENSORS_, 0,
         (ATTN_MULTIHEAD_OPERANDS_ - ATTN_MULTIHEAD_TENSORS_) * sizeof *op);
  for (int i = 0; i < 4; i++)
    if (!attn_multihead_scales_(e, p, (attn_projection_)i, op + ATTN_MULTIHEAD_TENSORS_ + 2 * i))
      return 0;
  return 1;
}

/* Every rule; query: for the workspace, which reads no data. */
ATTN_COLD_ int attn_multihead_check_(attn_error_ *e, attn_multihead_job_ *j, const attn_ctx *ctx,
                                     const attn_table_ **table, int *workers, int query) {
  attn_operand_ op[ATTN_MULTIHEAD_OPERANDS_];
  if (!attn_check_ctx_(e, ctx, table, workers) || !attn_multihead_operands_(e, j, op) ||
      !attn_check_apart_(e, ctx, op, ATTN_MULTIHEAD_OPERANDS_, NULL, 0))
    return 0;
  const attn_span_ outer[2] = {op[ATTN_MULTIHEAD_Y_].span, op[ATTN_MULTIHEAD_EACH_].span};
  return query || attn_multihead_attend_ok_(e, j, outer, ctx);
}

/* Rows of all heads side by side, as one product makes them. Row starts are not a power of 2 apart:
 * those of a head would share few sets of the caches. */
ATTN_COLD_ attn_tensor attn_multihead_rows_(attn_stage_ *s, int64_t batch, int64_t len,
                                            int64_t dim) {
  const int64_t stride = attn_add_(dim, 31) / 16 * 16 | 16;
  attn_tensor t = attn_stage_tensor_(s, batch, 1, len, stride);
  t.dim = dim;
  return t;
}

/* The same as heads. */
ATTN_COLD_ attn_tensor attn_multihead_split_(attn_tensor t, int64_t heads) {
  t.dim /= heads, t.heads = heads, t.stride_head = t.dim;
  return t;
}

/* y = x w + bias, w and bias of p; heads > 0: y has so many, and the columns of w are cut into them. */
ATTN_COLD_ int attn_multihead_project_(attn_stage_ *s, const attn_multihead_params *p,
                                       attn_projection_ which, int64_t heads, attn_tensor y,
                                       attn_tensor x) {
  attn_multihead_params own = *p;
  const attn_projected_ one = attn_projection_of_(&own, which);
  attn_tensor matrix = *one.w;
  attn_gemm_params g;
  memset(&g, 0, sizeof g);
  g.bias = *one.bias, g.compute = p->compute, g.compute_prefer = p->compute_prefer;
  g.w_scales = *one.scales;
  if (heads > 0) {
    matrix = attn_weight_heads_(matrix, heads);
    if (g.bias.data) g.bias = attn_multihead_split_(g.bias, heads);
    g.w_scales.stride_head =
        attn_is_turned_(&matrix) ? matrix.dim * g.w_scales.stride_len : matrix.dim;
  }
  return attn_stage_gemm_(s, y, x, matrix, &g);
}

/* y = x, rows first .. of len, rotated; y may be x. */
ATTN_COLD_ int attn_multihead_turn_rows_(attn_stage_ *s, const attn_multihead_job_ *j,
                                         attn_tensor y, attn_tensor x, int64_t len, int64_t first,
                                         int keys) {
  attn_rope_job_ r;
  if (!j->p.rope) return 1;
  const attn_rope_params rope = attn_multihead_rope_(&j->p, keys);
  attn_rope_job_of_(&r, y, x, len, first);
  if (!s->run) {
    const int64_t bytes = attn_rope_need_(s->e, &r, &rope, &s->ctx);
    if (bytes >= 0) attn_stage_spare_(s, bytes);
    return bytes >= 0;
  }
  s->ctx.workspace = attn_stage_spare_(s, 0), s->ctx.workspace_size = (size_t)s->spare;
  return attn_stage_done_(s, attn_rope_run_(&r, &rope, &s->ctx));
}

/* The queries' rows of heads, in place. */
ATTN_COLD_ int attn_multihead_turn_queries_(attn_stage_ *s, const attn_multihead_job_ *j,
                                            attn_tensor q, int64_t keys) {
  return attn_multihead_turn_rows_(s, j, q, q, keys, attn_q_off_(&j->p.attention, q.len, keys), 0);
}

/* Rows of `to` = rows of `from`, which is f32. */
typedef struct attn_round_ {
  const attn_table_ *table;
  attn_tensor to, from;
} attn_round_;

ATTN_FUNC_ void attn_round_item_(void *job, int worker, int64_t index) {
  const attn_round_ *a = (const attn_round_ *)job;
  const int64_t b = index / a->to.heads, h = index % a->to.heads;
  (void)worker;
  for (int64_t i = 0; i < a->to.len; i++)
    a->table->blend(attn_at_(&a->to, b, h, i), attn_at_(&a->from, b, h, i), NULL, a->to.dtype,
                    ATTN_F32, ATTN_F32, a->to.dim, 1.0f, 0.0f);
}

/* Which rows of a part of one key are there, and the maps of the others with it. */
typedef struct attn_more_key_ {
  const attn_table_ *table;
  attn_tensor one, was, lse, map; /* its LSE, that of the others, of all */
  const int32_t *q_len;
} attn_more_key_;

/* Rows from q_len on see nothing, this key neither. */
ATTN_FUNC_ void attn_more_key_cut_(void *job, int worker, int64_t index) {
  const attn_more_key_ *a = (const attn_more_key_ *)job;
  const int64_t b = index / a->one.heads, h = index % a->one.heads;
  const float none = -INFINITY;
  (void)worker;
  for (int64_t i = 0; i < a->one.len; i++) {
    if (a->q_len && i >= a->q_len[b]) memcpy(attn_at_(&a->one, b, h, i), &none, sizeof none);
    if (a->map.data) memcpy(attn_at_(&a->was, b, h, i), attn_at_(&a->lse, b, h, i), 4);
  }
}

/* P = exp(x - LSE) of the others is exp(LSE of them - LSE of all) times what it was. */
ATTN_FUNC_ void attn_more_key_map_(void *job, int worker, int64_t index) {
  const attn_more_key_ *a = (const attn_more_key_ *)job;
  const int64_t b = index / a->one.heads, h = index % a->one.heads;
  (void)worker;
  for (int64_t i = 0; i < a->one.len; i++) {
    float was, lse;
    float *row = (float *)(void *)attn_at_(&a->map, b, h, i);
    memcpy(&was, attn_at_(&a->was, b, h, i), sizeof was);
    memcpy(&lse, attn_at_(&a->lse, b, h, i), sizeof lse);
    if (was == -INFINITY) continue;
    float by = was - lse;
    a->table->exp(&by, &by, 1);
    a->table->blend(row, row, NULL, ATTN_F32, ATTN_F32, ATTN_F32, a->map.dim, by, 0.0f);
  }
}

/* bias_k and bias_v join the heads' outputs o and their lse. */
ATTN_COLD_ int attn_multihead_more_(attn_stage_ *s, const attn_multihead_job_ *j, attn_tensor o,
                                    attn_tensor q, const attn_sdpa_params *attend) {
  const attn_multihead_params *p = &j->p;
  const int64_t b = j->x.batch, h = p->heads, rows = attn_mul_(b, h);
  attn_more_key_ a;
  attn_tensor k = attn_multihead_split_(p->bias_k, p->kv_heads);
  attn_tensor v = attn_multihead_split_(p->bias_v, p->kv_heads);
  memset(&a, 0, sizeof a);
  a.table = s->table, a.q_len = attend->q_len, a.lse = attend->lse;
  a.one = attn_stage_tensor_(s, b, h, j->x.len, 1);
  if (attend->map.data && attend->map_stage == ATTN_MAP_WEIGHTS) {
    a.map = attend->map;
    a.was = attn_stage_tensor_(s, b, h, j->x.len, 1);
  }
  k.batch = v.batch = b, k.stride_batch = v.stride_batch = 0;
  return attn_stage_own_(s, a.one, q, k, attend->scale) &&
         attn_stage_for_(s, rows, attn_more_key_cut_, &a, 0, NULL) &&
         attn_stage_merge_(s, o, o, a.lse, v, a.one) &&
         (!a.map.data || attn_stage_for_(s, rows, attn_more_key_map_, &a, 0, NULL));
}

/* The heads' attention and the way back. mix: null, or the factors of each head's queries. */
ATTN_COLD_ int attn_multihead_join_(attn_stage_ *s, const attn_multihead_job_ *j, attn_tensor q,
                                    attn_tensor k, attn_tensor v, const attn_sdpa_params *attend,
                                    const float *mix) {
  const attn_multihead_params *p = &j->p;
  const int64_t b = j->x.batch, t = j->x.len, h = p->heads, wide = attn_mul_(h, j->dv);
  const attn_tensor *each = &p->each;
  attn_tensor all = *each, o = *each; /* the heads side by side, so that one product joins them */
  attn_sdpa_params own = *attend;
  int copy = 0;
  if (p->bias_k.data && !own.lse.data) own.lse = attn_stage_tensor_(s, b, h, t, 1);
  if (j->y.data || (p->bias_k.data && each->dtype != ATTN_F32)) {
    const int there =
        each->data && each->dtype == ATTN_F32 && (h == 1 || each->stride_head == j->dv);
    copy = each->data && !there;
    if (!there) {
      all = attn_multihead_rows_(s, b, t, wide);
      o = attn_multihead_split_(all, h);
    }
    all.heads = 1, all.dim = wide;
  }
  /* rows that no sequence has are the last ones */
  if (s->run && attend->ragged.sequences)
    for (int64_t i = attend->ragged.q_indptr[attend->ragged.sequences]; i < t; i++)
      for (int64_t n = 0; n < h; n++)
        memset(attn_at_(&o, 0, n, i), 0, (size_t)attn_bytes_(o.dtype, j->dv));
  attn_softmax_ a;
  memset(&a, 0, sizeof a);
  a.o = o, a.q = q, a.k = k, a.v = v, a.mix = mix;
  if (mix ? !attn_stage_problem_(s, &a, &own) : !attn_stage_sdpa_whole_(s, o, q, k, v, &own))
    return 0;
  if (p->bias_k.data && !attn_multihead_more_(s, j, o, q, &own)) return 0;
  attn_round_ round = {s->table, *each, o};
  if (copy && !attn_stage_for_(s, attn_mul_(b, h), attn_round_item_, &round, 0, NULL)) return 0;
  return !j->y.data || attn_multihead_project_(s, p, ATTN_W_O_, 0, j->y, all);
}

ATTN_COLD_ int attn_multihead_steps_(attn_stage_ *s, void *job) {
  const attn_multihead_job_ *j = (const attn_multihead_job_ *)job;
  const attn_multihead_params *p = &j->p;
  const int64_t h = p->heads, kv = p->kv_heads;
  const attn_tensor q = attn_multihead_rows_(s, j->x.batch, j->x.len, p->w_q.dim);
  const attn_tensor k = attn_multihead_rows_(s, j->x_k.batch, j->x_k.len, p->w_k.dim);
  const attn_tensor v = attn_multihead_rows_(s, j->x_v.batch, j->x_v.len, p->w_v.dim);
  const attn_tensor qh = attn_multihead_split_(q, h), kh = attn_multihead_split_(k, kv);
  return attn_multihead_project_(s, p, ATTN_W_Q_, 0, q, j->x) &&
         attn_multihead_project_(s, p, ATTN_W_K_, 0, k, j->x_k) &&
         attn_multihead_project_(s, p, ATTN_W_V_, 0, v, j->x_v) &&
         attn_multihead_turn_queries_(s, j, qh, k.len) &&
         attn_multihead_turn_rows_(s, j, kh, kh, k.len, 0, 1) &&
         attn_multihead_join_(s, j, qh, kh, attn_multihead_split_(v, kv), &p->attention, NULL);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_multihead_job_call_(attn_multihead_job_ *j, int params,
                                                attn_steps_fn_ steps, const char *path,
                                                attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (!params) {
    attn_reject_(&e, ATTN_E_NULL, "params must not be null: it has the weights");
  } else if (attn_multihead_check_(&e, j, ctx, &table, &workers, bytes != NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (j->x.len == 0 || j->x.batch == 0) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no queries");
    } else {
      attn_stage_call_(&s, ctx, steps, j, path, bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_multihead_call_(attn_tensor y, attn_tensor x, attn_tensor x_k,
                                            attn_tensor x_v, const attn_multihead_params *params,
                                            attn_ctx *ctx, size_t *bytes) {
  attn_multihead_job_ j;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x, j.x_k = x_k, j.x_v = x_v;
  if (params) j.p = *params;
  return attn_multihead_job_call_(&j, params != NULL, attn_multihead_steps_, "projections, heads",
                                  ctx, bytes);
}

ATTN_CALL_(attn_multihead, (y, x, x_k, x_v, params), attn_tensor y, attn_tensor x, attn_tensor x_k,
           attn_tensor x_v, const attn_multihead_params *params)
