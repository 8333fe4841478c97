/* families/latent/tpa.h owns tensor product attention: factors as rows that a cache can hold, and heads made from
 * such rows. */

enum { ATTN_TPA_Q_, ATTN_TPA_K_, ATTN_TPA_V_, ATTN_TPA_OPERANDS_ = 10, ATTN_TPA_HEADS_ = 16 };

typedef struct attn_tpa_job_ {
  attn_tensor o;
  attn_factors x[3];
  attn_tpa_params p;
  attn_latent_ at;
  attn_rope_ turn[2];
} attn_tpa_job_;

/* ---- rows of factors ----------------------------------------------------------------------------*/

ATTN_COLD_ int64_t attn_factors_width_(const attn_factors *x) {
  return attn_mul_(x->a.heads, attn_add_(x->a.dim, x->b.dim));
}

/* The vectors of rows of factors, a head each. */
ATTN_COLD_ attn_tensor attn_factors_b_(attn_tensor rows, const attn_factors *x) {
  attn_tensor t = attn_latent_columns_(rows, x->a.heads * x->a.dim, x->b.dim);
  t.heads = x->a.heads, t.stride_head = x->b.dim;
  return t;
}

typedef struct attn_factors_copy_ {
  const attn_table_ *table;
  attn_tensor y;         /* rows of factors; or, of heads, [rows][heads][R] */
  const attn_factors *x; /* what rows are made of */
  attn_tensor rows;
  int64_t tiles, h0;
} attn_factors_copy_;

/* Factors become rows of floats. */
ATTN_FUNC_ void attn_factors_row_item_(void *job, int worker, int64_t index) {
  const attn_factors_copy_ *c = (const attn_factors_copy_ *)job;
  const int64_t b = index / c->tiles, first = index % c->tiles * ATTN_TILE_;
  const int64_t left = c->y.len - first, rank = c->x->a.heads;
  const int64_t end = left < ATTN_TILE_ ? c->y.len : first + ATTN_TILE_;
  (void)worker;
  for (int64_t i = first; i < end; i++) {
    float *row = (float *)(void *)attn_at_(&c->y, b, 0, i);
    for (int part = 0; part < 2; part++) {
      const attn_tensor *x = part ? &c->x->b : &c->x->a;
      for (int64_t r = 0; r < rank; r++, row += x->dim)
        c->table->widen(row, attn_at_(x, b, r, i), 0, NULL, 1, x->dim, x->dtype, NULL);
    }
  }
}

/* a / R of some heads, the numbers of a head side by side. */
ATTN_FUNC_ void attn_factors_turn_item_(void *job, int worker, int64_t index) {
  const attn_factors_copy_ *c = (const attn_factors_copy_ *)job;
  const int64_t first = index * ATTN_TILE_, left = c->y.len - first, rank = c->x->a.heads;
  const int64_t end = left < ATTN_TILE_ ? c->y.len : first + ATTN_TILE_, heads = c->y.dim / rank;
  (void)worker;
  for (int64_t i = first; i < end; i++) {
    float *y = (float *)(void *)attn_at_(&c->y, 0, 0, i);
    const float *a = (const float *)(const void *)attn_at_(&c->rows, 0, 0, i) + c->h0;
    for (int64_t h = 0; h < heads; h++)
      for (int64_t r = 0; r < rank; r++) *y++ = a[r * c->x->a.dim + h] / (float)rank;
  }
}

/* y [1,n,rows,d], the heads of a token side by side, = heads h0 .. of rows of factors. */
ATTN_COLD_ int attn_stage_factors_(attn_stage_ *s, attn_tensor y, attn_tensor rows,
                                   const attn_factors *x, int64_t h0) {
  const int64_t rank = x->a.heads, n = y.heads, used = s->used;
  attn_factors_copy_ c;
  memset(&c, 0, sizeof c);
  c.table = s->table, c.x = x, c.rows = rows, c.h0 = h0;
  c.y = attn_stage_tensor_(s, 1, 1, rows.len, attn_mul_(n, rank));
  if (!attn_stage_for_(s, attn_tiles_of_(rows.len), attn_factors_turn_item_, &c, 0, NULL)) return 0;
  /* a token is a product: what is a head of it, is a row */
  attn_tensor w = attn_factors_b_(rows, x), a = c.y, to = y;
  w.len = rank, w.heads = rows.len, w.stride_len = w.stride_head, w.stride_head = rows.stride_len;
  a.heads = rows.len, a.stride_head = a.stride_len, a.len = n, a.dim = a.stride_len = rank;
  to.heads = y.len, to.stride_head = y.stride_len, to.len = n, to.stride_len = y.stride_head;
  if (!attn_stage_gemm_(s, to, a, w, NULL)) return 0;
  attn_stage_back_(s, used);
  return 1;
}

/* ---- steps --------------------------------------------------------------------------------------*/

/* Sequences b .. b + n - 1, of which none has more than one token: o and q are theirs. Their queries read the
 * factors that the cache has; else heads of all keys are made. */
ATTN_COLD_ int attn_tpa_token_(attn_stage_ *s, const attn_tpa_job_ *j, int64_t b, int64_t n,
                               attn_tensor o, attn_tensor q, attn_tensor lse) {
  const attn_latent_ *l = &j->at;
  const attn_ctx plain = attn_before_workspace_(&s->ctx);
  const int64_t h = j->o.heads;
  attn_factored_ f = {l->is.k,
                      l->is.v,
                      j->x[ATTN_TPA_K_].a.heads,
                      j->x[ATTN_TPA_V_].a.heads,
                      h,
                      attn_factored_scores_,
                      attn_factored_values_};
  attn_cache vectors = l->is;
  attn_cached_ x;
  attn_sdpa_params p;
  int workers;
  memset(&p, 0, sizeof p);
  p.scale = j->p.scale, p.window = j->p.window, p.lse = lse;
  p.causal = j->p.bidirectional ? ATTN_CAUSAL_NONE : ATTN_CAUSAL_END;
  if (l->indptr && n == l->n) p.ragged.sequences = n, p.ragged.q_indptr = l->indptr;
  vectors.k = attn_latent_columns_(f.k, attn_mul_(f.k_rank, h), q.dim);
  vectors.v = attn_latent_columns_(f.v, attn_mul_(f.v_rank, h), o.dim);
  if (!attn_cached_open_(s->e, &x, o, q, &vectors, l->held + b, n, &p)) return 0;
  x.a.factored = &f, x.a.sequences.coming = !s->run;
  if (s->run) s->ctx.workspace = attn_stage_spare_(s, 0), s->ctx.workspace_size = (size_t)s->spare;
  if (!attn_sdpa_plan_(s->e, &x.a, &x.params, s->run ? &s->ctx : &plain, &workers, s->run ? 1 : -1))
    return 0;
  if (attn_nothing_(&x.a)) return 1;
  if (!s->run) {
    attn_stage_spare_(s, attn_softmax_bytes_(&x.a, s->workers));
    return 1;
  }
  if (!attn_softmax_run_(s->e, &x.a, &s->ctx, workers)) return 0;
  attn_stage_count_(s);
  return 1;
}

/* One sequence: its rows of o and q, the factors of all its tokens. */
ATTN_COLD_ int attn_tpa_heads_(attn_stage_ *s, const attn_tpa_job_ *j, int64_t b, attn_tensor o,
                               attn_tensor q, attn_tensor k, attn_tensor v) {
  const int64_t h = j->o.heads, used = s->used;
  for (int64_t h0 = 0; h0 < h; h0 += ATTN_TPA_HEADS_, attn_stage_back_(s, used)) {
    const int64_t n = h - h0 < ATTN_TPA_HEADS_ ? h - h0 : (int64_t)ATTN_TPA_HEADS_;
    const attn_tensor kh = attn_latent_rows_(s, 1, k.len, n, q.dim);
    const attn_tensor vh = attn_latent_rows_(s, 1, v.len, n, o.dim);
    attn_sdpa_params p;
    memset(&p, 0, sizeof p);
    p.scale = j->p.scale, p.window = j->p.window;
    p.causal = j->p.bidirectional ? ATTN_CAUSAL_NONE : ATTN_CAUSAL_END;
    if (j->p.lse.data) p.lse = attn_latent_part_(&j->at, attn_stage_heads_(j->p.lse, h0, n), b);
    if (!attn_stage_factors_(s, kh, k, &j->x[ATTN_TPA_K_], h0) ||
        !attn_stage_factors_(s, vh, v, &j->x[ATTN_TPA_V_], h0) ||
        !attn_stage_sdpa_(s, attn_stage_heads_(o, h0, n), attn_stage_heads_(q, h0, n), kh, vh, &p))
      return 0;
  }
  return 1;
}

ATTN_COLD_ int attn_tpa_steps_(attn_stage_ *s, void *job) {
  attn_tpa_job_ *j = (attn_tpa_job_ *)job;
  attn_latent_ *l = &j->at;
  attn_tensor rows[3];
  for (int i = 0; i < 3; i++) {
    rows[i] = attn_stage_tensor_(s, l->batch, 1, l->len, attn_factors_width_(&j->x[i]));
    attn_factors_copy_ c;
    memset(&c, 0, sizeof c);
    c.table = s->table, c.y = rows[i], c.x = &j->x[i], c.tiles = attn_tiles_of_(l->len);
    if (!attn_stage_for_(s, attn_mul_(l->batch, c.tiles), attn_factors_row_item_, &c, 0, NULL) ||
        (j->p.rope && i < ATTN_TPA_V_ &&
         !attn_stage_latent_turn_(s, l, &j->turn[i], attn_factors_b_(rows[i], &j->x[i]))))
      return 0;
  }
  if (l->cache && !attn_stage_latent_append_(s, l, rows[ATTN_TPA_K_], rows[ATTN_TPA_V_])) return 0;
  const attn_tensor q = attn_latent_rows_(s, l->batch, l->len, j->o.heads, j->x[0].b.dim);
  if (!attn_stage_factors_(s, attn_latent_flat_(q), attn_latent_flat_(rows[0]), &j->x[0], 0))
    return 0;
  int64_t used = s->used, longest = 0;
  for (int64_t b = 0; l->cache && b < l->n; b++)
    longest = attn_max64_(longest, attn_latent_new_(l, b));
  if (longest == 1) {
    if (!attn_tpa_token_(s, j, 0, l->n, j->o, q, j->p.lse)) return 0;
    if (s->run) attn_latent_clear_(l, &j->o);
    return 1;
  }
  for (int64_t b = 0, n = attn_latent_walked_(s, l); b < n; b++, attn_stage_back_(s, used)) {
    attn_tensor k = attn_latent_part_(l, rows[ATTN_TPA_K_], b);
    attn_tensor v = attn_latent_part_(l, rows[ATTN_TPA_V_], b);
    if (attn_latent_new_(l, b) == 0) continue;
    if (l->cache && attn_latent_new_(l, b) == 1) {
      if (!attn_tpa_token_(s, j, b, 1, attn_latent_part_(l, j->o, b), attn_latent_part_(l, q, b),
                           attn_latent_part_(l, j->p.lse, b)))
        return 0;
      continue;
    }
    if (l->cache && (!attn_stage_latent_rows_(s, l, l->is.k, b, &k) ||
                     !attn_stage_latent_rows_(s, l, l->is.v, b, &v)))
      return 0;
    if (!attn_tpa_heads_(s, j, b, attn_latent_part_(l, j->o, b), attn_latent_part_(l, q, b), k, v))
      return 0;
  }
  if (s->run) attn_latent_clear_(l, &j->o);
  return 1;
}

/* ---- checks -------------------------------------------------------------------------------------*/

ATTN_COLD_ int attn_tpa_operands_(attn_error_ *e, attn_tpa_job_ *j, attn_operand_ *op) {
  const int either = ATTN_OUT_ | ATTN_OPTIONAL_;
  const int64_t any = ATTN_ANY_;
  const attn_tensor *o = &j->o;
  attn_factors *q = &j->x[0], *k = &j->x[1], *v = &j->x[2];
  static const char shape_a[] = "a of q, k and v must be [o.batch, R, o.len, o.heads]";
  static const char shape_b[] =
      "b of q, k and v must be [o.batch, R of a, o.len, d], d of q and k alike, of v o.dim";
  attn_operand_ all[ATTN_TPA_OPERANDS_] = {
      ATTN_OPERAND_(&j->o, "o", ATTN_OUT_, any, any, any, any, ""),
      ATTN_OPERAND_(&q->a, "q.a", 0, o->batch, any, o->len, o->heads, shape_a),
      ATTN_OPERAND_(&q->b, "q.b", 0, o->batch, q->a.heads, o->len, any, shape_b),
      ATTN_OPERAND_(&k->a, "k.a", 0, o->batch, any, o->len, o->heads, shape_a),
      ATTN_OPERAND_(&k->b, "k.b", 0, o->batch, k->a.heads, o->len, q->b.dim, shape_b),
      ATTN_OPERAND_(&v->a, "v.a", 0, o->batch, any, o->len, o->heads, shape_a),
      ATTN_OPERAND_(&v->b, "v.b", 0, o->batch, v->a.heads, o->len, o->dim, shape_b),
      ATTN_OPERAND_(&j->p.lse, "params.lse", either | ATTN_IS_F32_, o->batch, o->heads, o->len, 1,
                    "params.lse must be f32 [o.batch, o.heads, o.len, 1]"),
      ATTN_OPERAND_(&j->at.is.k, "cache.k", either, any, 1, any, attn_factors_width_(k),
                    "cache.k must have one head, of Rk (H + dk) columns"),
      ATTN_OPERAND_(&j->at.is.v, "cache.v", either, any, 1, any, attn_factors_width_(v),
                    "cache.v must have one head, of Rv (H + dv) columns")};
  memcpy(op, all, sizeof all);
  if (!attn_check_given_(e, op, ATTN_TPA_OPERANDS_)) return 0;
  for (int i = 0; i < ATTN_TPA_OPERANDS_; i++)
    if (!attn_check_operand_(e, &op[i], o->heads)) return 0;
  const int64_t most = ATTN_LATENT_MOST_;
  for (int i = 0; i < 3; i++)
    if (j->x[i].a.heads < 1 || j->x[i].a.heads > most || o->heads > most)
      return attn_reject_(e, ATTN_E_SHAPE,
                          "the ranks of q, k and v must lie in 1..65536, as o.heads");
  return 1;
}

/* Every rule; query: for the workspace, which reads no more than indptr and lengths. */
ATTN_COLD_ int attn_tpa_check_(attn_error_ *e, attn_tpa_job_ *j, const attn_ctx *ctx, int *workers,
                               int query) {
  attn_operand_ op[ATTN_TPA_OPERANDS_];
  attn_tpa_params *p = &j->p;
  attn_latent_ *l = &j->at;
  attn_latent_more_ more, own;
  memset(&more, 0, sizeof more), memset(&own, 0, sizeof own);
  l->indptr = p->indptr, l->cache = p->cache, l->held = p->held;
  if (!attn_check_ctx_(e, ctx, &l->table, workers) || !attn_latent_open_(e, l)) return 0;
  if (l->cache && attn_cache_latent_(&l->is))
    return attn_reject_(e, ATTN_E_NULL, "cache.v.data must not be null");
  if (!attn_tpa_operands_(e, j, op) ||
      !attn_latent_sequences_(e, l, &j->o, p->sequences, &more, &own) ||
      !attn_check_scale_(e, p->scale) || !attn_check_window_(e, &p->window))
    return 0;
  if (l->cache && l->is.window)
    return attn_reject_(e, ATTN_E_RANGE, "params.cache must not be a ring");
  for (int k = 0; p->rope && k < 2; k++) {
    if (!attn_latent_rope_(e, &j->turn[k], p->rope, l, j->x[k].b.dim, k, !query)) return 0;
    for (int i = 0; i < ATTN_ROPE_SPANS_; i++) attn_latent_note_(&more, j->turn[k].span[i]);
  }
  return attn_check_apart_(e, ctx, op, ATTN_TPA_OPERANDS_, more.span, more.n) &&
         (!l->cache || attn_latent_room_(e, l, attn_factors_width_(&j->x[ATTN_TPA_K_]),
                                         attn_factors_width_(&j->x[ATTN_TPA_V_]), op,
                                         ATTN_TPA_OPERANDS_, &more, &own, ctx, !query));
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_tpa_call_(attn_tensor o, const attn_factors *q, const attn_factors *k,
                                      const attn_factors *v, const attn_tpa_params *params,
                                      attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_tpa_job_ j;
  int workers = 1, fine = 0;
  memset(&j, 0, sizeof j);
  j.o = o;
  if (params) j.p = *params;
  if (!q || !k || !v) {
    attn_reject_(&e, ATTN_E_NULL, "q, k and v must not be null");
    return attn_end_(bytes ? NULL : ctx, &e);
  }
  j.x[0] = *q, j.x[1] = *k, j.x[2] = *v;
  fine = attn_tpa_check_(&e, &j, ctx, &workers, bytes != NULL);
  return attn_step_call_or_(&e, j.at.table, workers, ctx, attn_tpa_steps_, &j,
                            "heads made from factors",
                            fine && (!o.batch || !o.len || !o.heads) ? "no queries" : NULL, bytes);
}
ATTN_CALL_(attn_tpa, (o, q, k, v, params), attn_tensor o, const attn_factors *q,
           const attn_factors *k, const attn_factors *v, const attn_tpa_params *params)
