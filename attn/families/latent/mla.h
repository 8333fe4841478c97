/* families/latent/mla.h owns what multi-head latent attention demands of its arguments. Its steps are in
 * families/latent/mla_steps.h. */

typedef struct attn_mla_job_ {
  attn_tensor y, x;
  attn_mla_params p; /* resolved */
  attn_latent_ at;
  attn_rope_ turn[2]; /* of queries, of keys */
  int64_t dn, dr, dc, dv;
  int expand;
} attn_mla_job_;

enum { ATTN_MLA_OPERANDS_ = 9 };

/* Widths, from the weights. */
ATTN_COLD_ int attn_mla_widths_(attn_error_ *e, attn_mla_job_ *j) {
  attn_mla_params *p = &j->p;
  attn_tensor *const w[] = {&p->w_dq, &p->w_uq, &p->w_dkv, &p->w_ukv, &p->w_o};
  if (p->heads == 0) p->heads = 1;
  if (p->heads < 1 || p->heads > ATTN_LATENT_MOST_ || p->rope_dim < 0)
    return attn_reject_(e, ATTN_E_SHAPE,
                        "params.heads must lie in 0..65536, and rope_dim must not be negative");
  for (int i = 0; i < 5; i++)
    if (w[i]->data || i > 0) attn_turn_(w[i], p->w_transposed);
  if (p->w_uq.dim % p->heads || p->w_ukv.dim % p->heads)
    return attn_reject_(e, ATTN_E_HEADS,
                        "params.heads must divide the widths of w_uq and of w_ukv");
  j->dr = p->rope_dim;
  j->dn = attn_sub_(p->w_uq.dim / p->heads, j->dr), j->dc = attn_sub_(p->w_dkv.dim, j->dr);
  j->dv = attn_sub_(p->w_ukv.dim / p->heads, j->dn);
  return (j->dn >= 1 && j->dc >= 1 && j->dv >= 1) ||
         attn_reject_(e, ATTN_E_SHAPE,
                      "w_uq must be wider than heads * rope_dim, w_dkv than rope_dim, and w_ukv "
                      "heads * (dn + dv) wide, dn what w_uq leaves");
}

ATTN_COLD_ int attn_mla_operands_(attn_error_ *e, attn_mla_job_ *j, attn_operand_ *op) {
  const int matrix = ATTN_MATRIX_, either = ATTN_OUT_ | ATTN_OPTIONAL_;
  attn_mla_params *p = &j->p;
  const int64_t any = ATTN_ANY_, b = j->x.batch, t = j->x.len, dm = j->x.dim;
  attn_operand_ all[ATTN_MLA_OPERANDS_] = {
      ATTN_OPERAND_(&j->x, "x", 0, any, 1, any, any, "x must have one head"),
      ATTN_OPERAND_(&p->w_dq, "params.w_dq", matrix | ATTN_OPTIONAL_, 1, 1, dm, any,
                    ATTN_IN_OUT_("params.w_dq", "x.dim", "dq")),
      ATTN_OPERAND_(&p->w_uq, "params.w_uq", matrix, 1, 1, any, any,
                    ATTN_IN_OUT_("params.w_uq", "dq, without w_dq x.dim", "heads * (dn + dr)")),
      ATTN_OPERAND_(&p->w_dkv, "params.w_dkv", matrix, 1, 1, dm, any,
                    ATTN_IN_OUT_("params.w_dkv", "x.dim", "dc + dr")),
      ATTN_OPERAND_(&p->w_ukv, "params.w_ukv", matrix, 1, 1, any, any,
                    ATTN_IN_OUT_("params.w_ukv", "dc", "heads * (dn + dv)")),
      ATTN_OPERAND_(&p->w_o, "params.w_o", matrix, 1, 1, any, any,
                    ATTN_IN_OUT_("params.w_o", "heads * dv", "y.dim")),
      ATTN_OPERAND_(&j->y, "y", ATTN_OUT_, b, 1, t, any,
                    "y must be [x.batch, 1, x.len, the width of w_o]"),
      ATTN_OPERAND_(&p->lse, "params.lse", either | ATTN_IS_F32_, b, any, t, 1,
                    "params.lse must be f32 [x.batch, heads, x.len, 1]"),
      ATTN_OPERAND_(&j->at.is.k, "cache.k", either, any, 1, any, any,
                    "cache.k must have one head, of dc + dr columns")};
  memcpy(op, all, sizeof all);
  if (!attn_check_given_(e, op, ATTN_MLA_OPERANDS_) || !attn_mla_widths_(e, j)) return 0;
  if (!p->w_dq.data && p->w_uq.len != dm)
    return attn_reject_(e, ATTN_E_NULL, "params.w_dq must be given where w_uq does not read x");
  op[2].len = p->w_dq.data ? p->w_dq.dim : dm, op[4].len = j->dc;
  op[5].len = attn_mul_(p->heads, j->dv), op[6].dim = p->w_o.dim;
  op[7].heads = p->heads, op[8].dim = attn_add_(j->dc, j->dr);
  for (int i = 0; i < ATTN_MLA_OPERANDS_; i++)
    if (!attn_check_operand_(e, &op[i], p->heads)) return 0;
  return 1;
}

/* The factor of scores. */
ATTN_COLD_ float attn_mla_scale_(const attn_mla_job_ *j) {
  const attn_rope_params *r = &j->turn[0].p;
  double by = 1.0 / sqrt((double)j->dn + (double)j->dr);
  if (j->p.scale != 0.0f || signbit(j->p.scale)) return j->p.scale;
  if (r->type == ATTN_ROPE_YARN && r->mscale_all_dim != 0.0) {
    const double more = attn_rope_ms_(r->factor, r->mscale_all_dim);
    by *= more * more;
  }
  return (float)by;
}

/* Whether making keys and values of every head takes fewer multiply-adds than leaving them latent. */
ATTN_COLD_ int attn_mla_choose_(const attn_mla_job_ *j) {
  const attn_latent_ *l = &j->at;
  const double each = (double)j->dc * ((double)j->dn + (double)j->dv);
  double latent = 0.0, wide = 0.0;
  if (j->p.form != ATTN_MLA_AUTO || l->is.window) return j->p.form == ATTN_MLA_EXPANDED;
  const int64_t n = l->indptr || l->cache || l->n < 1 ? l->n : 1; /* else all are alike */
  for (int64_t b = 0; b < n; b++) {
    const double fresh = (double)attn_latent_new_(l, b), all = (double)attn_latent_all_(l, b);
    const double pairs = fresh * (all - (j->p.bidirectional ? 0.0 : 0.5 * fresh));
    latent += pairs * (2.0 * (double)j->dc + (double)j->dr) + fresh * each;
    wide +=
        fresh > 0.0 ? pairs * ((double)j->dn + (double)j->dr + (double)j->dv) + all * each : 0.0;
  }
  return wide < latent;
}

/* Every rule; query: for the workspace, which reads no more than indptr and lengths. */
ATTN_COLD_ int attn_mla_check_(attn_error_ *e, attn_mla_job_ *j, const attn_ctx *ctx, int *workers,
                               int query) {
  attn_operand_ op[ATTN_MLA_OPERANDS_];
  attn_mla_params *p = &j->p;
  attn_latent_ *l = &j->at;
  attn_latent_more_ more, own;
  memset(&more, 0, sizeof more), memset(&own, 0, sizeof own);
  if (!attn_check_ctx_(e, ctx, &l->table, workers)) return 0;
  l->indptr = p->indptr, l->cache = p->cache, l->held = p->held;
  if (!attn_latent_open_(e, l) || !attn_mla_operands_(e, j, op) ||
      !attn_latent_sequences_(e, l, &j->x, p->sequences, &more, &own))
    return 0;
  if (l->cache && (!attn_cache_latent_(&l->is) || l->is.v.dim != j->dc))
    return attn_reject_(e, ATTN_E_SHAPE, "params.cache must be latent, with v.dim = dc");
  if (l->cache && l->is.window && (p->bidirectional || p->form == ATTN_MLA_EXPANDED))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.bidirectional and ATTN_MLA_EXPANDED go without cache.window");
  if (p->q_gain && !p->w_dq.data)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_gain goes with w_dq");
  if ((int)p->form < 0 || p->form >= ATTN_MLA_FORMS)
    return attn_reject_(e, ATTN_E_RANGE, "params.form must be an attn_mla_form");
  if (!(p->eps >= 0.0f && p->eps < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.eps must be finite and not negative");
  const char *align = "params.q_gain and .kv_gain must be aligned to their elements";
  if (!attn_check_scale_(e, p->scale) || !attn_check_window_(e, &p->window) ||
      !attn_latent_array_(e, &more, p->q_gain, p->w_dq.dim, 4, align) ||
      !attn_latent_array_(e, &more, p->kv_gain, j->dc, 4, align))
    return 0;
  for (int k = 0; k < 2; k++) {
    if (!attn_latent_rope_(e, &j->turn[k], p->rope, l, j->dr, k, !query)) return 0;
    for (int i = 0; i < ATTN_ROPE_SPANS_; i++) attn_latent_note_(&more, j->turn[k].span[i]);
  }
  if (!attn_check_apart_(e, ctx, op, ATTN_MLA_OPERANDS_, more.span, more.n) ||
      (l->cache && !attn_latent_room_(e, l, attn_add_(j->dc, j->dr), 0, op, ATTN_MLA_OPERANDS_,
                                      &more, &own, ctx, !query)))
    return 0;
  p->scale = attn_mla_scale_(j);
  if (p->scale == 0.0f) p->scale = ATTN_ZERO;
  j->expand = attn_mla_choose_(j);
  return 1;
}
