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

enum { ATTN_MLA_OPERANDS_ = 9, ATTN_MLA_CACHE_ = 8 };

/* What the call reads or writes beside its operands. */
typedef struct attn_mla_more_ {
  int n;
  attn_span_ span[5 + 2 * ATTN_ROPE_SPANS_];
} attn_mla_more_;

ATTN_COLD_ void attn_mla_note_(attn_mla_more_ *more, attn_span_ span) {
  more->span[more->n++] = span;
}

ATTN_COLD_ int attn_mla_array_(attn_error_ *e, attn_mla_more_ *more, const void *data, int64_t n,
                               int64_t size, const char *align) {
  attn_span_ span;
  if (!attn_check_array_(e, data, n, size, align, &span)) return 0;
  attn_mla_note_(more, span);
  return 1;
}

/* Widths, from the weights. */
ATTN_COLD_ int attn_mla_widths_(attn_error_ *e, attn_mla_job_ *j) {
  attn_mla_params *p = &j->p;
  attn_tensor *const w[] = {&p->w_dq, &p->w_uq, &p->w_dkv, &p->w_ukv, &p->w_o};
  if (p->heads == 0) p->heads = 1;
  if (p->heads < 1 || p->rope_dim < 0)
    return attn_reject_(e, ATTN_E_SHAPE, "params.heads and .rope_dim must not be negative");
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
  op[2].len = p->w_dq.data ? p->w_dq.dim : dm, op[4].len = j->dc;
  op[5].len = attn_mul_(p->heads, j->dv), op[6].dim = p->w_o.dim;
  op[7].heads = p->heads, op[8].dim = attn_add_(j->dc, j->dr);
  for (int i = 0; i < ATTN_MLA_OPERANDS_; i++)
    if (!attn_check_operand_(e, &op[i], p->heads)) return 0;
  return 1;
}

/* Which rows belong together, and what is kept of them; own: what describes the cache. */
ATTN_COLD_ int attn_mla_sequences_(attn_error_ *e, attn_mla_job_ *j, attn_mla_more_ *more,
                                   attn_mla_more_ *own) {
  attn_mla_params *p = &j->p;
  attn_latent_ *l = &j->at;
  attn_span_ span[ATTN_CACHE_SPANS_], table;
  l->batch = j->x.batch, l->len = j->x.len, l->indptr = p->indptr;
  l->n = p->indptr ? p->sequences : j->x.batch;
  if (p->sequences < 0 || p->sequences >= (int64_t)1 << 40 || (!p->indptr && p->sequences))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.sequences must lie in 0..2^40, and be 0 without params.indptr");
  if (p->indptr && l->batch != 1)
    return attn_reject_(e, ATTN_E_SHAPE, "x.batch must be 1 with params.indptr");
  if (p->indptr && (!attn_mla_array_(e, more, p->indptr, l->n + 1, 8,
                                     "params.indptr must be aligned to its elements") ||
                    !attn_check_indptr_(e, p->indptr, l->n, l->len,
                                        "params.indptr must rise from 0 to at most x.len")))
    return 0;
  if (!l->cache) return 1;
  if (!attn_check_cache_(e, &l->is, 1, span)) return 0;
  if (!attn_cache_latent_(&l->is) || l->is.v.dim != j->dc)
    return attn_reject_(e, ATTN_E_SHAPE, "params.cache must be latent, with v.dim = dc");
  if (l->is.window && (p->bidirectional || p->form == ATTN_MLA_EXPANDED))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.bidirectional and ATTN_MLA_EXPANDED go without cache.window");
  if ((uintptr_t)l->held % sizeof(void *))
    return attn_reject_(e, ATTN_E_ALIGN, "params.held must be aligned to its elements");
  for (int64_t b = 0; b < l->n; b++)
    if (!attn_check_sequence_(e, &l->is, &l->held[b], &table)) return 0;
  attn_mla_note_(own, span[ATTN_CACHE_HOLDERS_]);
  return attn_mla_array_(e, own, l->cache, (int64_t)sizeof *l->cache, 1, "") &&
         attn_mla_array_(e, own, l->held, attn_mul_(l->n, (int64_t)sizeof *l->held), 1, "");
}

/* What appending will be given, before there is any of it. */
ATTN_COLD_ void attn_mla_append_(attn_append_ *a, const attn_mla_job_ *j, attn_append_params *p) {
  const void *there = (const void *)(uintptr_t)ATTN_ALIGN_;
  memset(a, 0, sizeof *a), memset(p, 0, sizeof *p);
  a->sequences = j->at.held, a->n = j->at.n;
  a->k = attn_view_(there, ATTN_F32, j->x.batch, 1, j->x.len, attn_add_(j->dc, j->dr));
  p->indptr = j->p.indptr;
}

/* Room for the rows, and that what appending writes is nobody else's; data: tables may be read. */
ATTN_COLD_ int attn_mla_room_(attn_error_ *e, attn_mla_job_ *j, attn_operand_ *op,
                              attn_mla_more_ *more, attn_mla_more_ *own, const attn_ctx *ctx,
                              int data) {
  attn_latent_ *l = &j->at;
  attn_append_ a;
  attn_append_params p;
  attn_span_ table;
  attn_mla_append_(&a, j, &p);
  if (!(data ? attn_append_judge_(e, &a, l->cache, &p, ctx)
             : attn_append_plan_(e, &a, l->cache, &p, ctx, 0)) ||
      !attn_check_workspace_(e, ctx, &more->span[more->n++]))
    return 0;
  for (int64_t b = -own->n; b < l->n; b++) {
    if (b >= 0 && (!attn_check_sequence_(e, &l->is, &l->held[b], &table) ||
                   (data && !attn_check_pages_(e, &l->is, &l->held[b]))))
      return 0;
    if (b < 0) table = own->span[b + own->n];
    if (!attn_span_alone_(&table, op, ATTN_MLA_OPERANDS_, more->span, more->n))
      return attn_reject_(e, ATTN_E_OVERLAP,
                          "the cache, its sequences and tables must not share memory with another "
                          "argument or ctx.workspace");
  }
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
  for (int64_t b = 0; b < l->n; b++) {
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
  attn_mla_more_ more, own;
  memset(&more, 0, sizeof more), memset(&own, 0, sizeof own);
  if (!attn_check_ctx_(e, ctx, &l->table, workers)) return 0;
  l->cache = p->cache, l->held = p->held;
  if (!p->cache != !p->held)
    return attn_reject_(e, ATTN_E_NULL, "params.cache and params.held go together");
  if (l->cache) {
    l->is = *l->cache;
    if (!l->is.k.data) return attn_reject_(e, ATTN_E_NULL, "cache.k.data must not be null");
  }
  if (!attn_mla_operands_(e, j, op) || !attn_mla_sequences_(e, j, &more, &own)) return 0;
  if (p->q_gain && !p->w_dq.data)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_gain goes with w_dq");
  if ((int)p->form < 0 || p->form >= ATTN_MLA_FORMS)
    return attn_reject_(e, ATTN_E_RANGE, "params.form must be an attn_mla_form");
  if (!(p->eps >= 0.0f && p->eps < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.eps must be finite and not negative");
  if (p->eps == 0.0f && !signbit(p->eps)) p->eps = 1e-6f;
  const char *align = "params.q_gain and .kv_gain must be aligned to their elements";
  if (!attn_check_scale_(e, p->scale) || !attn_check_window_(e, &p->window) ||
      !attn_mla_array_(e, &more, p->q_gain, p->w_dq.dim, 4, align) ||
      !attn_mla_array_(e, &more, p->kv_gain, j->dc, 4, align))
    return 0;
  for (int k = 0; k < 2; k++) {
    if (!attn_latent_rope_(e, &j->turn[k], p->rope, l, j->dr, k, !query)) return 0;
    for (int i = 0; i < ATTN_ROPE_SPANS_; i++) attn_mla_note_(&more, j->turn[k].span[i]);
  }
  if (!attn_check_apart_(e, ctx, op, ATTN_MLA_OPERANDS_, more.span, more.n) ||
      (l->cache && !attn_mla_room_(e, j, op, &more, &own, ctx, !query)))
    return 0;
  p->scale = attn_mla_scale_(j);
  if (p->scale == 0.0f) p->scale = ATTN_ZERO;
  j->expand = attn_mla_choose_(j);
  return 1;
}
