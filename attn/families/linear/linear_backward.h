/* families/linear/linear_backward.h owns the gradients of attention over a linear state: a head's keys are walked to the
 * end, states kept on the way, then back, chunk by chunk. */

/* Where the pieces of a worker's memory begin, in the order of attn_linear_back_cut_; its bytes. */
ATTN_COLD_ int64_t attn_linear_back_lay_(attn_linear_back_ *a) {
  const int64_t n = ATTN_LINEAR_CHUNK_, m = a->f.m, x = attn_mul_(n, a->f.k.dim);
  const int64_t features = attn_add_(attn_mul_(n, m), 16), values = attn_mul_(n, a->wide);
  const int64_t state = attn_mul_(m, a->wide), square = ATTN_LINEAR_SQUARE_;
  const int64_t marks = attn_mul_(attn_runs_of_(a->chunks, ATTN_LINEAR_MARK_), state);
  const int64_t floats[ATTN_LINEAR_BACK_PIECES_] = {x,
                                                    x,
                                                    x,
                                                    features,
                                                    features,
                                                    attn_mul_(m, n),
                                                    features,
                                                    features,
                                                    features,
                                                    state,
                                                    state,
                                                    state,
                                                    attn_mul_(a->turned, a->wide),
                                                    values,
                                                    values,
                                                    attn_add_(values, a->wide),
                                                    values,
                                                    values,
                                                    a->f.delta ? values : 0,
                                                    square,
                                                    square,
                                                    square,
                                                    square,
                                                    square,
                                                    a->f.delta ? square : 0,
                                                    attn_mul_(ATTN_LINEAR_MARK_, state),
                                                    marks,
                                                    attn_add_(a->chunks, 1)};
  int64_t at = attn_piece_(attn_map_own_(&a->f.map), 1);
  for (int i = 0; i < ATTN_LINEAR_BACK_PIECES_; i++) {
    a->at[i] = at / (int64_t)sizeof(float);
    at = attn_add_(at, attn_piece_(floats[i], sizeof(float)));
  }
  return at;
}

ATTN_FUNC_ void attn_linear_back_cut_(const attn_linear_back_ *a, int worker,
                                      attn_linear_back_chain_ *c) {
  c->map = a->own + worker * a->each;
  float *const base = (float *)(void *)c->map;
  float **const piece[ATTN_LINEAR_BACK_PIECES_] = {
      &c->x,   &c->y_x,   &c->d_x, &c->c,    &c->p,      &c->ct,    &c->d_c,
      &c->d_p, &c->room,  &c->s,   &c->d_s,  &c->next,   &c->turn,  &c->v,
      &c->vt,  &c->d_v,   &c->out, &c->part, &c->read,   &c->w,     &c->t,
      &c->g,   &c->plain, &c->sum, &c->like, &c->states, &c->marks, &c->tops};
  for (int i = 0; i < ATTN_LINEAR_BACK_PIECES_; i++) *piece[i] = base + a->at[i];
}

/* Which rows read what of a batch entry; whether any does. */
ATTN_FUNC_ int attn_linear_back_range_(attn_linear_back_chain_ *c) {
  const attn_linear_ *f = &c->a->f;
  c->keys = attn_len_of_(f->kv_len, c->b, f->k.len);
  c->rows = attn_len_of_(f->q_len, c->b, f->q.len);
  c->row0 = c->met = 0;
  if (f->causal) {
    const int64_t last = c->keys - 1 - f->q_off; /* the row that reads behind the last key */
    c->row0 = f->q_off >= 0 ? 0 : -f->q_off < c->rows ? -f->q_off : c->rows;
    c->met = last < c->row0 ? c->row0 : last < c->rows ? last : c->rows;
  }
  c->end = c->met < c->rows || c->a->d_s_end.data || c->a->d_z_end.data ? c->keys
           : c->met > c->row0                                           ? c->met + f->q_off
                                                                        : 0;
  return c->end > 0 || f->kept;
}

/* The stabiliser of all keys, where none of them may see another. */
ATTN_FUNC_ float attn_linear_back_top_(attn_linear_back_chain_ *c) {
  const attn_linear_ *f = &c->a->f;
  float top = -INFINITY;
  for (int64_t j = 0, n; f->late && j < c->keys; j += n) {
    n = c->keys - j < ATTN_TILE_ ? c->keys - j : (int64_t)ATTN_TILE_;
    const float *x = attn_linear_rows_(f->table, c->x, &f->k, c->b, c->kv, j, n);
    const float here = attn_map_top_(&f->map, c->map, x, n, c->head);
    if (here > top) top = here;
  }
  return top;
}

/* The state before the first key, and the gradient of that behind the last. */
ATTN_FUNC_ void attn_linear_back_begin_(attn_linear_back_chain_ *c) {
  const attn_linear_back_ *a = c->a;
  const attn_linear_ *f = &a->f;
  const size_t bytes = (size_t)(f->m * a->wide) * sizeof(float);
  memset(c->s, 0, bytes), memset(c->d_s, 0, bytes);
  c->top = attn_linear_back_top_(c);
  if (!f->kept) return;
  const attn_linear_slot_ slot = attn_linear_slot_at_(f, attn_linear_slot_of_(f, c->b, c->head));
  const double left = attn_linear_pair_(slot.tail + ATTN_LINEAR_LEFT_);
  c->top = slot.tail[ATTN_LINEAR_TOP_];
  for (int64_t r = 0; r < f->m; r++) {
    float *s = c->s + r * a->wide, *d_s = c->d_s + r * a->wide;
    for (int64_t k = 0, at = r * f->wide; k < f->dv; k++, at++)
      s[k] = (float)(left * (double)slot.s[at] + (double)slot.s_rest[at]);
    s[f->dv] = slot.z[r] + slot.z_rest[r];
    if (a->d_s_end.data)
      f->table->widen(d_s, attn_at_(&a->d_s_end, c->b, c->head, r), 0, NULL, 1, f->dv,
                      a->d_s_end.dtype, NULL);
    if (a->d_z_end.data)
      f->table->widen(d_s + f->dv,
                      attn_at_(&a->d_z_end, c->b, c->head, 0) + attn_bytes_(a->d_z_end.dtype, r), 0,
                      NULL, 1, 1, a->d_z_end.dtype, NULL);
  }
}

/* The gradient of the state before the first key. */
ATTN_FUNC_ void attn_linear_back_end_(const attn_linear_back_chain_ *c) {
  const attn_linear_back_ *a = c->a;
  const attn_tensor *s = &a->d_s, *z = &a->d_z;
  for (int64_t r = 0; r < a->f.m; r++) {
    const float *from = c->d_s + r * a->wide;
    char *to;
    if (s->data) {
      to = attn_at_(s, c->b, c->head, r);
      a->f.table->blend(to, from, a->accumulate ? to : NULL, s->dtype, ATTN_F32, s->dtype, a->f.dv,
                        1.0f, 1.0f);
    }
    if (z->data) {
      to = attn_at_(z, c->b, c->head, 0) + attn_bytes_(z->dtype, r);
      a->f.table->blend(to, from + a->f.dv, a->accumulate ? to : NULL, z->dtype, ATTN_F32, z->dtype,
                        1, 1.0f, 1.0f);
    }
  }
}

ATTN_FUNC_ int attn_linear_back_keys_of_(const attn_linear_back_chain_ *c, int64_t chunk) {
  const int64_t left = c->end - chunk * ATTN_LINEAR_CHUNK_;
  return left < ATTN_LINEAR_CHUNK_ ? (int)left : (int)ATTN_LINEAR_CHUNK_;
}

/* Chunks from `chunk`, whose state c->s is, to the one before `to` join it; those before each are kept. */
ATTN_FUNC_ void attn_linear_back_walk_(attn_linear_back_chain_ *c, int64_t chunk, int64_t to) {
  const int64_t state = c->a->f.m * c->a->wide;
  const size_t bytes = (size_t)state * sizeof(float);
  for (; chunk < to; chunk++) {
    c->tops[chunk] = c->top;
    memcpy(c->states + chunk % ATTN_LINEAR_MARK_ * state, c->s, bytes);
    if (chunk % ATTN_LINEAR_MARK_ == 0)
      memcpy(c->marks + chunk / ATTN_LINEAR_MARK_ * state, c->s, bytes);
    attn_linear_back_keys_(c, chunk * ATTN_LINEAR_CHUNK_, attn_linear_back_keys_of_(c, chunk));
    attn_linear_back_absorb_(c);
  }
}

ATTN_FUNC_ void attn_linear_back_take_(attn_linear_back_chain_ *c, int64_t chunk) {
  const int64_t state = c->a->f.m * c->a->wide;
  memcpy(c->s, c->states + chunk % ATTN_LINEAR_MARK_ * state, (size_t)state * sizeof(float));
  c->top = c->tops[chunk];
}

/* Where something is not finite rows and keys go one by one, so that it reaches none but those that see it. */
ATTN_FUNC_ void attn_linear_back_apart_(attn_linear_back_chain_ *c, int64_t chunk) {
  const attn_linear_ *f = &c->a->f;
  const int64_t j0 = chunk * ATTN_LINEAR_CHUNK_, lo = j0 - f->q_off;
  const int n = attn_linear_back_keys_of_(c, chunk);
  c->apart = 1;
  for (int64_t h = c->head * f->group; c->a->d_q.data && h < (c->head + 1) * f->group; h++)
    for (int64_t i = attn_max64_(lo, c->row0); i < c->met && i < lo + n; i++) {
      attn_linear_back_take_(c, chunk);
      attn_linear_back_row_(c, j0, h, i, i - lo);
    }
  c->apart = 2;
  for (int t = n; t-- > 0;) {
    attn_linear_back_take_(c, chunk);
    for (int j = 0; j < t; j++) {
      attn_linear_back_keys_(c, j0 + j, 1);
      attn_linear_back_absorb_(c);
    }
    (void)attn_linear_back_chunk_(c, j0 + t, 1);
  }
  c->apart = 0;
}

/* A chunk backwards. */
ATTN_FUNC_ void attn_linear_back_step_(attn_linear_back_chain_ *c, int64_t chunk) {
  attn_linear_back_take_(c, chunk);
  if (!attn_linear_back_chunk_(c, chunk * ATTN_LINEAR_CHUNK_, attn_linear_back_keys_of_(c, chunk)))
    attn_linear_back_apart_(c, chunk);
}

/* One state head. */
ATTN_FUNC_ void attn_linear_back_state_(attn_linear_back_chain_ *c) {
  const attn_linear_back_ *a = c->a;
  const attn_linear_ *f = &a->f;
  const int64_t state = f->m * a->wide;
  if (!attn_linear_back_range_(c)) return;
  const int64_t chunks = attn_runs_of_(c->end, ATTN_LINEAR_CHUNK_);
  attn_linear_back_begin_(c);
  attn_linear_back_walk_(c, 0, chunks);
  if (c->met < c->rows) attn_linear_back_turn_(c, c->turn, a->turned, c->s, a->wide, f->m, a->wide);
  for (int64_t h = c->head * f->group; h < (c->head + 1) * f->group; h++)
    for (int64_t i = c->met; i < c->rows; i += ATTN_LINEAR_CHUNK_)
      attn_linear_back_rest_(
          c, h, i, c->rows - i < ATTN_LINEAR_CHUNK_ ? c->rows - i : (int64_t)ATTN_LINEAR_CHUNK_);
  for (int64_t chunk = chunks; chunk-- > 0;) {
    if ((chunk + 1) % ATTN_LINEAR_MARK_ == 0 && chunk + 1 < chunks) {
      const int64_t from = chunk / ATTN_LINEAR_MARK_;
      memcpy(c->s, c->marks + from * state, (size_t)state * sizeof(float));
      c->top = c->tops[from * ATTN_LINEAR_MARK_];
      attn_linear_back_walk_(c, from * ATTN_LINEAR_MARK_, chunk + 1);
    }
    attn_linear_back_step_(c, chunk);
  }
  attn_linear_back_end_(c);
}

ATTN_FUNC_ void attn_linear_back_item_(void *job, int worker, int64_t unit) {
  const attn_linear_back_ *a = (const attn_linear_back_ *)job;
  attn_linear_back_chain_ c;
  attn_clear_(&c, sizeof c);
  c.a = a, c.b = unit / a->f.k.heads, c.kv = unit % a->f.k.heads;
  attn_linear_back_cut_(a, worker, &c);
  for (int64_t i = 0; i < a->f.per_kv; i++) {
    c.first = i == 0, c.head = c.kv * a->f.per_kv + i;
    attn_linear_back_state_(&c);
  }
}

/* ---- the call -------------------------------------------------------------------------------*/

typedef struct attn_linear_back_job_ {
  attn_linear_back_ a; /* its outputs are the caller's */
  int accumulate;
} attn_linear_back_job_;

ATTN_COLD_ int attn_linear_back_steps_(attn_stage_ *s, void *job) {
  const attn_linear_back_job_ *j = (const attn_linear_back_job_ *)job;
  attn_linear_back_ a = j->a;
  attn_linear_ *f = &a.f;
  const attn_tensor *const out[4] = {&j->a.d_q, &j->a.d_k, &j->a.d_v, &j->a.d_rate};
  attn_tensor *const made[4] = {&a.d_q, &a.d_k, &a.d_v, &a.d_rate};
  for (int i = 0; i < 4; i++) {
    const attn_tensor *like = i ? &f->k : &f->q;
    if (!out[i]->data) continue;
    if (j->accumulate || out[i]->dtype != ATTN_F32 || !attn_gradient_whole_(out[i], like))
      *made[i] = attn_stage_tensor_(s, like->batch, like->heads, like->len, out[i]->dim);
    for (int64_t b = 0; s->run && b < like->batch; b++)
      attn_zero_rows_(made[i], b, 0, like->heads, 0);
  }
  f->table = f->map.table = s->table;
  a.accumulate = j->accumulate;
  a.wide = attn_group_up_(attn_add_(f->dv, 1)), a.turned = attn_group_up_(f->m);
  a.chunks = attn_runs_of_(f->k.len, ATTN_LINEAR_CHUNK_);
  a.map.map = f->map, a.each = attn_linear_back_lay_(&a);
  const int64_t units = attn_mul_(f->k.batch, f->k.heads);
  const int pieces =
      units > 0 && (f->kept || (f->q.len && f->k.len)) ? attn_pieces_(s->workers, units) : 0;
  const int64_t packed = attn_map_shared_(&f->map), turned = attn_map_back_shared_(&a.map);
  char *memory = attn_stage_spare_(
      s, pieces ? attn_add_(attn_add_(packed, turned), attn_mul_(a.each, pieces)) : 0);
  if (s->run && pieces) {
    attn_map_prepare_(&f->map, memory);
    f->map.key_eps += f->map.late_eps;
    a.map.map = f->map;
    attn_map_back_prepare_(&a.map, memory + packed);
    a.own = memory + packed + turned;
    attn_for_(&s->ctx, pieces, units, attn_linear_back_item_, &a);
  }
  for (int i = 0; i < 4; i++)
    if (out[i]->data && !attn_stage_made_(s, out[i], *made[i], j->accumulate)) return 0;
  return 1;
}

/* What the gradient of the rates looks like. */
ATTN_COLD_ int attn_linear_back_check_rate_(attn_error_ *e, const attn_linear_back_ *a) {
  const attn_tensor *d = &a->d_rate, *rate = &a->f.rate;
  if (!d->data) return 1;
  if (a->f.rule == ATTN_LINEAR_SUM)
    return attn_reject_(e, ATTN_E_NULL, "gradients.d_rate wants a rule with rates");
  if (rate->data ? !attn_gradient_fits_(d, rate)
                 : d->batch != 1 || d->heads != (a->f.rate_head ? a->f.k.heads : 1) ||
                       d->len != 1 || d->dim != 1)
    return attn_reject_(e, ATTN_E_SHAPE,
                        "gradients.d_rate must have the shape of params.rate, or be [1, kv_heads, "
                        "1, 1] with rate_head, [1, 1, 1, 1] with rate_const");
  return 1;
}

/* What the gradients of a state look like, and whether there is one. */
ATTN_COLD_ int attn_linear_back_check_state_(attn_error_ *e, const attn_linear_back_ *a) {
  const attn_tensor *const t[4] = {&a->d_s, &a->d_s_end, &a->d_z, &a->d_z_end};
  for (int i = 0; i < 4; i++) {
    const int z = i > 1;
    if (!t[i]->data) continue;
    if (!a->f.kept) return attn_reject_(e, ATTN_E_NULL, "gradients of a state want params.state");
    if (t[i]->batch != a->f.q.batch || t[i]->heads != a->f.heads || t[i]->len != (z ? 1 : a->f.m) ||
        t[i]->dim != (z ? a->f.m : a->f.dv))
      return attn_reject_(e, ATTN_E_SHAPE,
                          "gradients.d_s and d_s_end must be [B, state heads, m, dv], d_z and "
                          "d_z_end [B, state heads, 1, m]");
  }
  return 1;
}

ATTN_COLD_ int attn_linear_back_check_(attn_error_ *e, attn_linear_back_job_ *j,
                                       const attn_linear_params *params, attn_ctx *ctx,
                                       int *workers, int query) {
  attn_linear_back_ *a = &j->a;
  attn_linear_ *f = &a->f;
  const attn_tensor q = f->q, k = f->k, v = f->v;
  const int64_t any = ATTN_ANY_;
  attn_operand_ op[] = {
      ATTN_OPERAND_(&a->d_q, "d_q", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->d_k, "d_k", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->d_v, "d_v", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->d_rate, "gradients.d_rate", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any,
                    ""),
      ATTN_OPERAND_(&a->d_s, "gradients.d_s", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->d_z, "gradients.d_z", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->d_s_end, "gradients.d_s_end", ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->d_z_end, "gradients.d_z_end", ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->d_o, "d_o", 0, q.batch, q.heads, q.len, v.dim,
                    "d_o must be [q.batch, q.heads, q.len, v.dim]"),
      ATTN_OPERAND_(&f->q, "q", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&f->k, "k", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&f->v, "v", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&f->rate, "params.rate", ATTN_OPTIONAL_, any, any, any, any, "")};
  enum { N = sizeof op / sizeof *op, RATE = N - 1 };
  const attn_ctx plain = attn_before_workspace_(ctx);
  attn_spans_ more;
  if (!attn_check_given_(e, op, RATE)) return 0;
  for (int i = 0; i < RATE; i++)
    if (!attn_check_operand_(e, &op[i], q.heads)) return 0;
  /* forward's own rules, of a dense o */
  const attn_tensor o =
      attn_bhtd((void *)(uintptr_t)ATTN_ALIGN_, ATTN_F32, q.batch, q.heads, q.len, v.dim);
  if (!attn_linear_plan_(e, f, o, q, k, v, params, &plain, workers, query ? 0 : 1) ||
      !attn_check_operand_(e, &op[RATE], 1))
    return 0;
  if (f->map.kind == ATTN_FEATURES_USER && !f->map.p.back)
    return attn_reject_(e, ATTN_E_NULL, "params.map.back must not be null");
  if (a->d_q.data && !attn_gradient_fits_(&a->d_q, &q))
    return attn_reject_(e, ATTN_E_SHAPE,
                        "d_q must have the shape of q, or 1 where q has a stride of 0");
  if (a->d_k.data && !attn_gradient_fits_(&a->d_k, &k))
    return attn_reject_(e, ATTN_E_SHAPE,
                        "d_k must have the shape of k, or 1 where k has a stride of 0");
  if (a->d_v.data && !attn_gradient_fits_(&a->d_v, &v))
    return attn_reject_(e, ATTN_E_SHAPE,
                        "d_v must have the shape of v, or 1 where v has a stride of 0");
  if (!attn_linear_back_check_rate_(e, a) || !attn_linear_back_check_state_(e, a)) return 0;
  if (j->accumulate != 0 && j->accumulate != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.accumulate must be 0 or 1");
  more.n = 0;
  if (!attn_take_array_(e, f->kv_len, q.batch, 4, "", &more) ||
      !attn_take_array_(e, f->q_len, q.batch, 4, "", &more) ||
      !attn_take_array_(e, f->rate_head, k.heads, 4, "", &more))
    return 0;
  if (f->kept && !attn_take_array_(e, params->state, (int64_t)params->state_bytes, 1, "", &more))
    return 0;
  if (f->map.directions) *attn_spans_more_(&more, 1) = f->map.w_span;
  if (f->map.p.sigmas) *attn_spans_more_(&more, 1) = f->map.sigmas_span;
  return attn_check_apart_(e, ctx, op, N, more.span, more.n);
}

ATTN_COLD_ attn_status attn_linear_backward_call_(attn_tensor d_q, attn_tensor d_k, attn_tensor d_v,
                                                  attn_tensor d_o, attn_tensor q, attn_tensor k,
                                                  attn_tensor v, const attn_linear_params *params,
                                                  const attn_linear_gradients *gradients,
                                                  attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_linear_back_job_ j;
  const attn_table_ *table = NULL;
  int workers = 1;
  attn_clear_(&j, sizeof j);
  j.a.d_q = d_q, j.a.d_k = d_k, j.a.d_v = d_v, j.a.d_o = d_o, j.a.f.q = q, j.a.f.k = k, j.a.f.v = v;
  if (gradients) {
    j.a.d_rate = gradients->d_rate, j.a.d_s = gradients->d_s, j.a.d_z = gradients->d_z;
    j.a.d_s_end = gradients->d_s_end, j.a.d_z_end = gradients->d_z_end;
    j.accumulate = gradients->accumulate;
  }
  const int none =
      !d_q.data && !d_k.data && !d_v.data && !j.a.d_rate.data && !j.a.d_s.data && !j.a.d_z.data;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    (void)attn_linear_back_check_(&e, &j, params, ctx, &workers, bytes != NULL);
  return attn_step_call_or_(&e, table, workers, ctx, attn_linear_back_steps_, &j,
                            "linear state, chunks back", none ? "no output is asked for" : NULL,
                            bytes);
}
ATTN_CALL_(attn_linear_backward, (d_q, d_k, d_v, d_o, q, k, v, params, gradients), attn_tensor d_q,
           attn_tensor d_k, attn_tensor d_v, attn_tensor d_o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_linear_params *params, const attn_linear_gradients *gradients)
