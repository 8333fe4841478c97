/* families/latent/mla_steps.h owns the steps of multi-head latent attention, in both forms. */

/* Heads that are made at once; of ABSORBED where rows are too many for few-query paths, which want all of
 * them. */
enum { ATTN_MLA_HEADS_ = 8, ATTN_MLA_FEW_ = 64 };

typedef struct attn_latent_norm_ {
  const attn_table_ *table;
  attn_tensor x;
  int64_t dim, tiles; /* columns that are normalised */
  attn_norm norm;
} attn_latent_norm_;

/* RMS norm of a row by its mean square alone, in double; what is all 0 stays so. */
ATTN_FUNC_ void attn_latent_norm_bare_(float *x, int64_t n, const float *gain) {
  const double sum = attn_row_sum_(x, n, 0.0, 1);
  const double by = sum == 0.0 ? 0.0 : 1.0 / sqrt(sum / (double)n);
  for (int64_t c = 0; c < n; c++)
    x[c] = (float)((double)x[c] * by * (gain ? (double)gain[c] : 1.0));
}

ATTN_FUNC_ void attn_latent_norm_item_(void *job, int worker, int64_t index) {
  const attn_latent_norm_ *a = (const attn_latent_norm_ *)job;
  const int64_t b = index / a->tiles, first = index % a->tiles * ATTN_ROPE_RUN_;
  const int64_t left = a->x.len - first;
  const int64_t end = left < ATTN_ROPE_RUN_ ? a->x.len : first + ATTN_ROPE_RUN_;
  (void)worker;
  for (int64_t i = first; i < end; i++) {
    float *row = (float *)(void *)attn_at_(&a->x, b, 0, i);
    if (a->norm.eps == 0.0f && signbit(a->norm.eps))
      attn_latent_norm_bare_(row, a->dim, a->norm.gain);
    else
      attn_row_norm_(a->table, row, a->dim, &a->norm);
    attn_row_one_nan_(a->table, row, a->x.dim);
  }
}

/* RMS norm of the first dim columns of rows of floats, in place. */
ATTN_COLD_ int attn_stage_latent_norm_(attn_stage_ *s, attn_tensor x, int64_t dim,
                                       const float *gain, float eps) {
  attn_latent_norm_ a;
  memset(&a, 0, sizeof a);
  a.table = s->table, a.x = x, a.dim = dim, a.tiles = attn_runs_of_(x.len, ATTN_ROPE_RUN_);
  a.norm.kind = ATTN_NORM_RMS, a.norm.gain = gain, a.norm.eps = eps;
  return attn_stage_for_(s, attn_mul_(x.batch, a.tiles), attn_latent_norm_item_, &a, 0, NULL);
}

/* What heads h0 .. see. */
ATTN_COLD_ attn_sdpa_params attn_mla_attention_(const attn_mla_job_ *j, int64_t h0, int64_t heads) {
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.scale = j->p.scale, p.window = j->p.window;
  p.causal = j->p.bidirectional ? ATTN_CAUSAL_NONE : ATTN_CAUSAL_END;
  if (j->p.lse.data) p.lse = attn_stage_heads_(j->p.lse, h0, heads);
  return p;
}

/* Queries in the latent space against the rows of the cache. */
ATTN_COLD_ int attn_mla_cached_(attn_stage_ *s, const attn_mla_job_ *j, attn_tensor o,
                                attn_tensor q, const attn_sdpa_params *p) {
  const attn_latent_ *l = &j->at;
  attn_cached_ x;
  int workers;
  if (s->run) {
    s->ctx.workspace = attn_stage_spare_(s, 0), s->ctx.workspace_size = (size_t)s->spare;
    return attn_stage_done_(s, attn_cache_sdpa(o, q, l->cache, l->held, l->n, p, &s->ctx));
  }
  const attn_ctx plain = attn_before_workspace_(&s->ctx);
  if (!attn_cached_open_(s->e, &x, o, q, l->cache, l->held, l->n, p)) return 0;
  x.a.sequences.coming = 1;
  if (!attn_sdpa_plan_(s->e, &x.a, &x.params, &plain, &workers, -1)) return 0;
  if (!attn_nothing_(&x.a)) attn_stage_spare_(s, attn_softmax_bytes_(&x.a, s->workers));
  return 1;
}

ATTN_COLD_ int attn_mla_absorbed_(attn_stage_ *s, const attn_mla_job_ *j, attn_tensor o,
                                  attn_tensor q, attn_tensor rows) {
  const attn_latent_ *l = &j->at;
  const int64_t h = j->p.heads, used = s->used, wide = attn_add_(j->dc, j->dr);
  const int64_t most = l->len > ATTN_MLA_FEW_ && h > ATTN_MLA_HEADS_ ? (int64_t)ATTN_MLA_HEADS_ : h;
  const attn_tensor w = attn_weight_heads_(j->p.w_ukv, h);
  for (int64_t h0 = 0; h0 < h; h0 += most, attn_stage_back_(s, used)) {
    const int64_t n = h - h0 < most ? h - h0 : most;
    const attn_tensor qa = attn_latent_rows_(s, l->batch, l->len, n, wide);
    const attn_tensor oa = attn_latent_rows_(s, l->batch, l->len, n, j->dc);
    const attn_tensor qh = attn_stage_heads_(q, h0, n), oh = attn_stage_heads_(o, h0, n);
    const attn_tensor wh = attn_stage_heads_(w, h0, n);
    attn_sdpa_params p = attn_mla_attention_(j, h0, n);
    if (l->indptr) p.ragged.sequences = l->n, p.ragged.q_indptr = l->indptr;
    if (l->indptr && !l->cache) p.ragged.kv_indptr = l->indptr;
    if (!attn_stage_gemm_(s, attn_latent_flat_(attn_latent_columns_(qa, 0, j->dc)),
                          attn_latent_flat_(attn_latent_columns_(qh, 0, j->dn)),
                          attn_weight_flip_(attn_weight_columns_(wh, 0, j->dn)), NULL) ||
        (j->dr && !attn_stage_copy_(s, attn_latent_columns_(qa, j->dc, j->dr),
                                    attn_latent_columns_(qh, j->dn, j->dr))) ||
        !(l->cache ? attn_mla_cached_(s, j, oa, qa, &p)
                   : attn_stage_sdpa_(s, oa, qa, rows, attn_latent_columns_(rows, 0, j->dc), &p)) ||
        !attn_stage_gemm_(s, attn_latent_flat_(oh), attn_latent_flat_(oa),
                          attn_weight_columns_(wh, j->dn, j->dv), NULL))
      return 0;
  }
  return 1;
}

/* One sequence: o and q its rows, c those of all its tokens. */
ATTN_COLD_ int attn_mla_heads_(attn_stage_ *s, const attn_mla_job_ *j, int64_t b, attn_tensor o,
                               attn_tensor q, attn_tensor c) {
  const int64_t h = j->p.heads, used = s->used;
  const attn_tensor w = attn_weight_heads_(j->p.w_ukv, h);
  const attn_tensor latent = attn_latent_columns_(c, 0, j->dc);
  attn_tensor turned = attn_latent_columns_(c, j->dc, j->dr);
  turned.stride_head = 0;
  for (int64_t h0 = 0; h0 < h; h0 += ATTN_MLA_HEADS_, attn_stage_back_(s, used)) {
    const int64_t n = h - h0 < ATTN_MLA_HEADS_ ? h - h0 : (int64_t)ATTN_MLA_HEADS_;
    const attn_tensor k = attn_latent_heads_(s, n, c.len, attn_add_(j->dn, j->dr));
    const attn_tensor v = attn_latent_heads_(s, n, c.len, j->dv);
    const attn_tensor wh = attn_stage_heads_(w, h0, n);
    attn_sdpa_params p = attn_mla_attention_(j, h0, n);
    if (p.lse.data) p.lse = attn_latent_part_(&j->at, p.lse, b);
    if (!attn_stage_gemm_(s, attn_latent_columns_(k, 0, j->dn), latent,
                          attn_weight_columns_(wh, 0, j->dn), NULL) ||
        (j->dr && !attn_stage_copy_(s, attn_latent_columns_(k, j->dn, j->dr), turned)) ||
        !attn_stage_gemm_(s, v, latent, attn_weight_columns_(wh, j->dn, j->dv), NULL) ||
        !attn_stage_sdpa_(s, attn_stage_heads_(o, h0, n), attn_stage_heads_(q, h0, n), k, v, &p))
      return 0;
  }
  return 1;
}

ATTN_COLD_ int attn_mla_expanded_(attn_stage_ *s, const attn_mla_job_ *j, attn_tensor o,
                                  attn_tensor q, attn_tensor rows) {
  const attn_latent_ *l = &j->at;
  const int64_t used = s->used;
  for (int64_t b = 0, n = attn_latent_walked_(s, l); b < n; b++, attn_stage_back_(s, used)) {
    attn_tensor c = attn_latent_part_(l, rows, b);
    if (attn_latent_new_(l, b) == 0) continue;
    if (l->cache && !attn_stage_latent_rows_(s, l, l->is.k, b, &c)) return 0;
    if (!attn_mla_heads_(s, j, b, attn_latent_part_(l, o, b), attn_latent_part_(l, q, b), c))
      return 0;
  }
  return 1;
}

ATTN_COLD_ int attn_mla_steps_(attn_stage_ *s, void *job) {
  attn_mla_job_ *j = (attn_mla_job_ *)job;
  const attn_mla_params *p = &j->p;
  const int64_t b = j->x.batch, t = j->x.len, h = p->heads, dn = j->dn;
  const attn_tensor q = attn_latent_rows_(s, b, t, h, attn_add_(dn, j->dr));
  const attn_tensor o = attn_latent_rows_(s, b, t, h, j->dv);
  const attn_tensor rows = attn_stage_tensor_(s, b, 1, t, attn_add_(j->dc, j->dr));
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  attn_tensor low = j->x;
  if (p->w_dq.data) {
    low = attn_stage_tensor_(s, b, 1, t, p->w_dq.dim);
    if (!attn_stage_gemm_(s, low, j->x, p->w_dq, NULL) ||
        !attn_stage_latent_norm_(s, low, low.dim, p->q_gain, p->eps))
      return 0;
  }
  if (!attn_stage_gemm_(s, attn_latent_wide_(q), low, p->w_uq, NULL) ||
      !attn_stage_gemm_(s, rows, j->x, p->w_dkv, NULL) ||
      !attn_stage_latent_turn_(s, &j->at, &j->turn[0], attn_latent_columns_(q, dn, j->dr)) ||
      !attn_stage_latent_turn_(s, &j->at, &j->turn[1], attn_latent_columns_(rows, j->dc, j->dr)) ||
      !attn_stage_latent_norm_(s, rows, j->dc, p->kv_gain, p->eps) ||
      (j->at.cache && !attn_stage_latent_append_(s, &j->at, rows, none)) ||
      !(j->expand ? attn_mla_expanded_(s, j, o, q, rows) : attn_mla_absorbed_(s, j, o, q, rows)))
    return 0;
  if (s->run) attn_latent_clear_(&j->at, &o);
  return attn_stage_gemm_(s, j->y, attn_latent_wide_(o), p->w_o, NULL);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_mla_call_(attn_tensor y, attn_tensor x, const attn_mla_params *params,
                                      attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_mla_job_ j;
  int workers = 1;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x;
  if (!params) {
    attn_reject_(&e, ATTN_E_NULL, "params must not be null: it has the weights");
    return attn_end_(bytes ? NULL : ctx, &e);
  }
  j.p = *params;
  const int fine = attn_mla_check_(&e, &j, ctx, &workers, bytes != NULL);
  const attn_status status =
      attn_step_call_or_(&e, j.at.table, workers, ctx, attn_mla_steps_, &j,
                         j.expand ? "latent rows, heads expanded" : "latent rows, queries absorbed",
                         fine && (x.batch == 0 || x.len == 0) ? "no queries" : NULL, bytes);
  if (status == ATTN_OK && ctx && !bytes && x.batch && x.len)
    ctx->report.why = params->form ? "params.form" : "its cost";
  return status;
}
ATTN_CALL_(attn_mla, (y, x, params), attn_tensor y, attn_tensor x, const attn_mla_params *params)
