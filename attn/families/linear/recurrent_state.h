/* families/linear/recurrent_state.h owns the caller's states of decaying rules: how they begin and end, and tokens
 * that go into them one by one. */

/* Element 0 of a row of a state's matrix, or of n; of columns where it is transposed. */
ATTN_FUNC_ float *attn_recurrent_row_(const attn_recurrent_chain_ *c, const attn_tensor *t,
                                      int64_t r) {
  return (float *)(void *)attn_at_(t, c->unit, c->h, c->row + r);
}

/* S, n and m as they begin, into what the worker has. */
ATTN_FUNC_ void attn_recurrent_begin_(attn_recurrent_chain_ *c) {
  const attn_recurrent_ *a = c->a;
  const attn_tensor *from = &a->state[0];
  const int64_t cols = c->cols < a->dv - c->col ? c->cols : a->dv - c->col, wide = a->wide;
  for (int64_t r = 0; r < a->dk; r++) {
    float *s = c->w.s + r * wide;
    memset(s + c->col, 0, (size_t)(wide - c->col) * sizeof(float));
    memset(c->w.rest + r * wide + c->col, 0, (size_t)(wide - c->col) * sizeof(float));
    if (!from->data) continue;
    if (!a->p->state_transposed)
      memcpy(s + c->col, attn_recurrent_row_(c, from, r) + c->col, (size_t)cols * sizeof(float));
    if (a->counts) s[a->dv] = attn_recurrent_row_(c, &a->n[0], 0)[r];
  }
  for (int64_t j = c->col; from->data && a->p->state_transposed && j < c->col + cols; j++) {
    const float *row = attn_recurrent_row_(c, from, j);
    for (int64_t r = 0; r < a->dk; r++) c->w.s[r * wide + j] = row[r];
  }
}

/* What is left of them, back to the caller. */
ATTN_FUNC_ void attn_recurrent_end_(const attn_recurrent_chain_ *c) {
  const attn_recurrent_ *a = c->a;
  const attn_tensor *to = &a->state[1];
  const int64_t cols = c->cols < a->dv - c->col ? c->cols : a->dv - c->col, wide = a->wide;
  if (!to->data) return;
  for (int64_t r = 0; r < a->dk; r++) {
    const float *s = c->w.s + r * wide, *rest = c->w.rest + r * wide;
    float *row = a->p->state_transposed ? NULL : attn_recurrent_row_(c, to, r);
    for (int64_t j = c->col; row && j < c->col + cols; j++) row[j] = attn_one_nan_(s[j] + rest[j]);
    if (a->counts) attn_recurrent_row_(c, &a->n[1], 0)[r] = attn_one_nan_(s[a->dv] + rest[a->dv]);
  }
  for (int64_t j = c->col; a->p->state_transposed && j < c->col + cols; j++) {
    float *row = attn_recurrent_row_(c, to, j);
    for (int64_t r = 0; r < a->dk; r++)
      row[r] = attn_one_nan_(c->w.s[r * wide + j] + c->w.rest[r * wide + j]);
  }
}

/* w of token j as the kernel has it, and what a delta rule reads: k behind w, or k itself whose sum is behind w. */
ATTN_FUNC_ void attn_recurrent_near_(const attn_recurrent_chain_ *c, int j, attn_token_ *p) {
  const attn_recurrent_ *a = c->a;
  const attn_recurrent_own_ *w = &c->w;
  if (a->delta) p->a = p->k, p->minus = -c->beta[j];
  if (a->decay == ATTN_RECURRENT_TOKEN_) {
    p->nearly = c->keep[j] > 0.75, p->w_step = 0, p->w = w->left, p->near = w->near;
    w->left[0] = (float)(p->nearly ? c->keep[j] - 1.0 : c->keep[j]);
    w->near[0] = p->nearly ? 1.0f : 0.0f;
    p->minus = (float)((double)p->minus * c->keep[j]);
  } else if (a->decay == ATTN_RECURRENT_EACH_) {
    const int logs = a->p->form == ATTN_RECURRENT_LOG;
    const int64_t at = j * a->dk;
    p->nearly = attn_on_(recurrent, a->table)
                    ->nearly(w->left, w->fade, w->over, logs ? c->logs + at : NULL, c->rates + at,
                             a->delta ? p->k : NULL, a->dk);
    p->w_step = 1, p->w = w->left, p->near = w->fade;
    if (a->delta) p->a = w->over;
  }
}

/* Tokens t0 .. t1 - 1 one after another, from the caller's state to the caller's where that can be. */
ATTN_FUNC_ void attn_recurrent_tokens_(attn_recurrent_chain_ *c) {
  const attn_recurrent_ *a = c->a;
  const attn_recurrent_own_ *w = &c->w;
  const int64_t dk = a->dk, wide = a->wide;
  const int direct = !a->p->state_transposed;
  const attn_tensor *s0 = &a->state[0], *s1 = &a->state[1];
  /* MLSTM's n by itself: in the caller's memory it is no column of S */
  const int apart = direct && a->counts;
  const float *n_from = apart && s0->data ? attn_recurrent_row_(c, &a->n[0], 0) : NULL;
  float *n_to = apart && s1->data ? attn_recurrent_row_(c, &a->n[1], 0) : w->s + a->dv;
  const int64_t n_to_stride = apart && s1->data ? 1 : wide;
  int64_t n_from_stride = 1;
  attn_token_ p;
  memset(&p, 0, sizeof p);
  p.dk = dk, p.cols = apart ? a->dv : c->cols, p.before = a->before;
  if (direct && s0->data) {
    p.from = attn_recurrent_row_(c, s0, 0) + c->col, p.from_stride = s0->stride_len;
  } else if (s0->data) {
    attn_recurrent_begin_(c);
    p.from = w->s + c->col, p.from_stride = wide;
  }
  if (direct && s1->data)
    p.to = attn_recurrent_row_(c, s1, 0) + c->col, p.to_stride = s1->stride_len;
  else
    p.to = w->s + c->col, p.to_stride = wide;
  for (int64_t i = c->t0; i < c->t1; i += c->n) {
    attn_recurrent_decays_(c, i, (int)(c->t1 - i));
    attn_recurrent_load_(c, i);
    attn_recurrent_into_(c, i);
    for (int j = 0; j < c->n; j++) {
      const float *k = c->k + j * c->k_stride;
      if (j == 0 && c->clears) p.from = n_from = NULL;
      p.k = k, p.q = w->q + j * dk;
      p.v = c->v + j * c->v_stride + c->col, p.o = c->y + j * c->y_stride + c->col;
      attn_recurrent_near_(c, j, &p);
      if (a->low) p.a = w->a + j * dk, p.b = c->b_rows + j * c->b_stride;
      if (a->before) {
        float *u = w->over;
        const attn_tensor *t = &a->more[ATTN_RECURRENT_U_];
        a->table->widen(u, attn_at_(t, 0, attn_recurrent_head_(a, t, c->h), 0), 0, NULL, 1, dk,
                        t->dtype, NULL);
        attn_on_(recurrent, a->table)->meets(&p.own, p.q, k, 0, u, 1, dk);
      }
      attn_on_(recurrent, a->table)->token(&p);
      if (c->ends) { /* a product by 0 would leave NaN; what this one reads goes nowhere */
        p.from = NULL, p.o = w->y + (ATTN_RECURRENT_CHUNK_ - 1) * wide + c->col;
        attn_on_(recurrent, a->table)->token(&p);
      }
      p.from = p.to, p.from_stride = p.to_stride;
      if (!apart) continue;
      attn_token_ n = p;
      n.from = n_from, n.from_stride = n_from_stride, n.to = n_to, n.to_stride = n_to_stride;
      n.v = p.v + a->dv, n.o = p.o + a->dv, n.cols = 1;
      attn_on_(recurrent, a->table)->token(&n);
      n_from = n_to, n_from_stride = n_to_stride;
    }
    attn_recurrent_store_(c, i, c->n);
  }
  if (!direct) {
    for (int64_t r = 0; r < dk; r++)
      memset(w->rest + r * wide + c->col, 0, (size_t)c->cols * sizeof(float));
    attn_recurrent_end_(c);
  }
}

/* A sequence and head, or columns of them; rows of o that do not exist are 0. */
ATTN_FUNC_ void attn_recurrent_open_(attn_recurrent_chain_ *c, const attn_recurrent_ *a, int worker,
                                     int64_t index) {
  const int64_t slice = index % a->slices, item = index / a->slices, groups = a->wide / 16;
  c->a = a, c->unit = item / a->heads, c->h = item % a->heads;
  c->b = a->p->cu_seqlens ? 0 : c->unit;
  c->t0 = a->p->cu_seqlens ? a->p->cu_seqlens[c->unit] : 0;
  c->t1 = a->p->cu_seqlens ? a->p->cu_seqlens[c->unit + 1] : a->p->len ? a->p->len[c->b] : a->len;
  c->row = 0;
  c->col = slice * groups / a->slices * 16;
  const int64_t end = (slice + 1) * groups / a->slices * 16;
  c->cols = (end < a->all ? end : a->all) - c->col;
  c->m = a->counts && a->m[0].data ? (double)*attn_recurrent_row_(c, &a->m[0], 0) : 0.0;
  attn_recurrent_cut_(a, worker, &c->w);
  for (int64_t i = c->t1; !a->p->cu_seqlens && slice == 0 && i < a->len; i++)
    memset(attn_at_(&a->o, c->b, c->h, i), 0, (size_t)attn_bytes_(a->o.dtype, a->dv));
}

/* All their tokens. */
ATTN_FUNC_ void attn_recurrent_item_(void *job, int worker, int64_t index) {
  const attn_recurrent_ *a = (const attn_recurrent_ *)job;
  attn_recurrent_chain_ c;
  attn_recurrent_open_(&c, a, worker, index);
  if (c.t1 > c.t0 && c.t1 - c.t0 <= ATTN_RECURRENT_FEW_) {
    attn_recurrent_tokens_(&c);
  } else {
    attn_recurrent_begin_(&c);
    for (int64_t i = c.t0; i < c.t1;)
      i += attn_recurrent_chunk_(&c, i, (int)(c.t1 - i < a->chunk ? c.t1 - i : a->chunk));
    attn_recurrent_end_(&c);
  }
  if (a->counts && a->m[1].data) *attn_recurrent_row_(&c, &a->m[1], 0) = attn_one_nan_((float)c.m);
}
