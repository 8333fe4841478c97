/* families/linear/recurrent_chunk.h owns a chunk of tokens of a decaying state as products. With D(m..t) what tokens
 * m .. t leave of a channel, S0 the state before the chunk, readers X (queries, and what a rule reads before it
 * writes) and writers Y with their values V:
 *
 *   G[t][m] = x_t . (D(m+1..t) o y_m),   what x_t reads = (x_t o D(0..t)) S0 + sum_m G[t][m] v_m
 *   afterwards S = D(0..end) o S0 + sum_m (y_m o D(m+1..end)) v_m^T
 *
 * With one number a token D multiplies the products; by channel readers fade to their sub-chunk's begin and writers to
 * its end, which are products of numbers below 1, and pairs within a sub-chunk meet one by one. What a rule reads is
 * solved row by row: values of later tokens depend on it. */

enum { ATTN_RECURRENT_ROWS_ = 12, ATTN_RECURRENT_E_ = ATTN_RECURRENT_CHUNK_ };

ATTN_FUNC_ void attn_recurrent_turn_(const attn_recurrent_ *a, float *to, const float *x,
                                     int64_t stride, int64_t i, int64_t n) {
  const void *rows[ATTN_RECURRENT_CHUNK_];
  for (int64_t j = 0; j < n; j++) rows[j] = x + (i + j) * stride;
  a->table->pack(to + i, rows, (int)n, a->dk, ATTN_F32, 1.0f, attn_least_(1.0f));
}

/* What is left of S at each token, and of each token at the end. */
ATTN_FUNC_ void attn_recurrent_left_(attn_recurrent_chain_ *c) {
  const int n = c->n;
  double left = 1.0, last = 1.0;
  for (int t = 0; t < n; t++) left *= c->keep[t], c->left[t] = (float)left;
  for (int t = n; t-- > 0; last *= c->keep[t]) c->last[t] = (float)last;
  c->w.keep[0] = last;
}

/* All G where a token fades as a whole: what does not exist is 0. late: a reader of the state before its token. */
ATTN_FUNC_ void attn_recurrent_products_(const attn_recurrent_chain_ *c, float *g, attn_floats_ x,
                                         const float *y, int late) {
  const attn_recurrent_ *a = c->a;
  for (int64_t t = 0, rows; t < c->n; t += rows) {
    rows = c->n - t < ATTN_RECURRENT_ROWS_ ? c->n - t : (int64_t)ATTN_RECURRENT_ROWS_;
    attn_linear_times_(a->table, c->w.ask, g + t * ATTN_RECURRENT_E_, ATTN_RECURRENT_E_,
                       attn_floats_at_(x.p + t * x.stride, x.stride, rows), 1,
                       attn_floats_at_(y, ATTN_RECURRENT_E_, a->dk), t + rows, 1);
  }
  attn_on_(recurrent, a->table)
      ->fade_square(g, a->decay == ATTN_RECURRENT_TOKEN_ ? c->keep : NULL, c->n, late);
}

/* All G where channels fade each by itself; readers and writers become those of S0 and of the end. */
ATTN_FUNC_ void attn_recurrent_fade_(attn_recurrent_chain_ *c) {
  const attn_recurrent_ *a = c->a;
  const attn_table_ *f = a->table;
  const attn_recurrent_own_ *w = &c->w;
  const int64_t e = ATTN_RECURRENT_E_, dk = a->dk;
  const int readers = a->delta || a->low ? 2 : 1, writers = a->low ? 2 : 1;
  float *x[2] = {w->q, w->a}, *yt[2] = {w->kt, w->bt};
  float *g[2][2] = {{w->qk, w->qb}, {w->ak, w->ab}};
  const float *y[2] = {c->k, a->low ? c->b_rows : NULL};
  const int64_t stride[2] = {c->k_stride, a->low ? c->b_stride : 0};
  const int late[2] = {a->before, a->low};
  for (int64_t r = 0; r < dk; r++) w->left[r] = 1.0f;
  for (int64_t t0 = 0, n; t0 < c->n; t0 += n) {
    n = c->n - t0 < ATTN_RECURRENT_PART_ ? c->n - t0 : (int64_t)ATTN_RECURRENT_PART_;
    attn_fade_ p;
    memset(&p, 0, sizeof p);
    p.readers = readers, p.writers = writers, p.n = (int)n, p.dim = dk, p.w = c->rates + t0 * dk;
    p.g_stride = e;
    for (int i = 0; i < 2; i++) {
      p.x[i] = x[i] + t0 * dk, p.y[i] = y[i] ? y[i] + t0 * stride[i] : NULL;
      p.late[i] = late[i], p.y_stride[i] = stride[i];
      for (int j = 0; j < 2; j++) p.g[i][j] = g[i][j] + t0 * e + t0;
    }
    attn_on_(recurrent, f)->fade_products(&p);
    const int64_t next =
        t0 + ATTN_RECURRENT_PART_; /* what rows of a block beyond these do not see */
    for (int i = 0; i < readers; i++)
      for (int j = 0; j < writers; j++) {
        for (int64_t t = t0; next < e && t < t0 + n; t++)
          memset(g[i][j] + t * e + next, 0, ATTN_RECURRENT_ROWS_ * sizeof(float));
        if (t0)
          attn_linear_times_(f, w->ask, g[i][j] + t0 * e, e, attn_floats_at_(p.x[i], dk, n), 1,
                             attn_floats_at_(yt[j], e, dk), t0, 1);
      }
    for (int i = 0; t0 && i < readers; i++)
      attn_on_(recurrent, f)->fade_by(p.x[i], p.x[i], dk, w->left, 0, n, dk);
    for (int j = 0; j < writers; j++) {
      for (int64_t r = 0; r < dk; r++) w->over[r] = 1.0f;
      attn_on_(recurrent, f)
          ->fade_rows(w->fade, y[j] + t0 * stride[j], stride[j], p.w, n, dk, w->over);
      if (t0) f->scale_rows(yt[j], e, yt[j], e, dk, t0, w->over);
      attn_recurrent_turn_(a, yt[j] + t0, w->fade, dk, 0, n);
    }
    for (int64_t r = 0; r < dk; r++) w->left[r] *= w->over[r];
  }
  /* over the chunk in two floats: what is left of S is a product of chunks */
  const int logs = a->p->form == ATTN_RECURRENT_LOG;
  attn_on_(recurrent, f)->fade_whole(w->left, w->over, logs ? c->logs : c->rates, c->n, dk, logs);
  if (logs) f->exp(w->fade, w->left, dk);
  for (int64_t r = 0; r < dk; r++) {
    const double rest = (double)w->over[r];
    w->keep[r] = !logs ? (double)w->left[r] + rest
                 : w->fade[r] > 0.0f /* else the rest is NaN */
                     ? attn_recurrent_exp_(w->left[r], w->fade[r]) * (1.0 + rest)
                     : 0.0;
  }
}

/* y = (start ? 0 : y) + X w over the chunk's columns, 64 of them at a time: they stay in the first cache for all
 * rows. */
ATTN_FUNC_ void attn_recurrent_times_(const attn_recurrent_chain_ *c, float *y, int64_t y_stride,
                                      attn_floats_ x, int64_t x_step, attn_floats_ w, int start) {
  for (int64_t i = 0, cols; i < c->cols; i += cols) {
    cols = c->cols - i < 64 ? c->cols - i : 64;
    attn_linear_times_(c->a->table, c->w.ask, y + i, y_stride, x, x_step,
                       attn_floats_at_(w.p + i, w.stride, w.rows), cols, start);
  }
}

/* y = X S0 for the readers x of the chunk. */
ATTN_FUNC_ void attn_recurrent_read_(const attn_recurrent_chain_ *c, float *y, int64_t y_stride,
                                     attn_floats_ x, int late) {
  const attn_recurrent_ *a = c->a;
  const attn_table_ *f = a->table;
  y += c->col;
  if (c->clears && !a->low) {
    for (int j = 0; j < c->n; j++) memset(y + j * y_stride, 0, (size_t)c->cols * sizeof(float));
    return;
  }
  attn_recurrent_times_(c, y, y_stride, x, 1, attn_floats_at_(c->w.s + c->col, a->wide, a->dk), 1);
  if (a->decay != ATTN_RECURRENT_TOKEN_) return;
  if (!late) {
    f->scale_rows(y, y_stride, y, y_stride, c->n, c->cols, c->left);
  } else if (c->n > 1) {
    f->scale_rows(y + y_stride, y_stride, y + y_stride, y_stride, c->n - 1, c->cols, c->left);
  }
}

/* y += G v, cols columns. A value that is not finite must not meet the zeros of rows before it. */
ATTN_FUNC_ void attn_recurrent_spread_(const attn_recurrent_chain_ *c, float *y, int64_t y_stride,
                                       const float *g, const float *v, int64_t v_stride,
                                       int64_t cols) {
  const attn_recurrent_ *a = c->a;
  const int64_t step =
      a->table->finite(v, v_stride, c->n, cols) ? (int64_t)ATTN_RECURRENT_ROWS_ : 1;
  for (int64_t t = 0, rows; t < c->n; t += rows) {
    rows = c->n - t < step ? c->n - t : step;
    attn_linear_times_(a->table, c->w.ask, y + t * y_stride, y_stride,
                       attn_floats_at_(g + t * ATTN_RECURRENT_E_, ATTN_RECURRENT_E_, rows), 1,
                       attn_floats_at_(v, v_stride, t + rows), cols, 0);
  }
}

/* The same of the chunk's columns. */
ATTN_FUNC_ void attn_recurrent_add_(const attn_recurrent_chain_ *c, float *y, int64_t y_stride,
                                    const float *g, const float *v, int64_t v_stride) {
  attn_recurrent_spread_(c, y + c->col, y_stride, g, v + c->col, v_stride, c->cols);
}

/* x_t = to_t + sum of G[t][m] x_m, m < t, in place of to: rows of earlier blocks by gemm, those of the same block
 * one by one. */
ATTN_FUNC_ void attn_recurrent_forward_(const attn_recurrent_chain_ *c, float *to, int64_t stride,
                                        const float *g, int64_t cols) {
  const attn_table_ *f = c->a->table;
  const int64_t e = ATTN_RECURRENT_E_;
  for (int64_t t0 = 0, rows; t0 < c->n; t0 += rows) {
    rows = c->n - t0 < ATTN_RECURRENT_ROWS_ ? c->n - t0 : (int64_t)ATTN_RECURRENT_ROWS_;
    if (t0)
      attn_linear_times_(f, c->w.ask, to + t0 * stride, stride,
                         attn_floats_at_(g + t0 * e, e, rows), 1, attn_floats_at_(to, stride, t0),
                         cols, 0);
    for (int64_t t = t0 + 1; t < t0 + rows; t++)
      attn_on_(sum, f)->axpys(to + t * stride, g + t * e + t0, to + t0 * stride, stride,
                              attn_linear_index_, t - t0, cols, ATTN_F32, 1.0f, 0);
  }
}

/* x_t = to_t + by_t (y_t + sum of G[t][m] x_m, m < t), in place of to. by null = 1, and to is y. */
ATTN_FUNC_ void attn_recurrent_solve_(const attn_recurrent_chain_ *c, float *to, const float *y,
                                      float *g, const float *by) {
  const attn_recurrent_ *a = c->a;
  const attn_table_ *f = a->table;
  const int64_t e = ATTN_RECURRENT_E_, wide = a->wide;
  to += c->col, y += c->col;
  for (int64_t t = 0; by && t < c->n; t++) {
    f->blend(to + t * wide, to + t * wide, y + t * wide, ATTN_F32, ATTN_F32, ATTN_F32, c->cols,
             1.0f, by[t]);
    for (int64_t m = 0; m < t; m++) g[t * e + m] *= by[t];
  }
  attn_recurrent_forward_(c, to, wide, g, c->cols);
}

/* S behind the chunk, from values v and, of a and b, u: rows that fit a tile, 64 columns at a time, joined at once. */
ATTN_FUNC_ void attn_recurrent_update_(attn_recurrent_chain_ *c) {
  static const double whole = 1.0;
  const attn_recurrent_ *a = c->a;
  const attn_table_ *f = a->table;
  const attn_recurrent_own_ *w = &c->w;
  const int64_t wide = a->wide, n = c->n, e = ATTN_RECURRENT_E_, most = ATTN_RECURRENT_ROWS_;
  const int fresh = (c->clears && !a->low) || c->ends;
  const double *keep = a->decay == ATTN_RECURRENT_NONE_ ? &whole : w->keep;
  const int64_t each = a->decay == ATTN_RECURRENT_EACH_;
  float *u = w->u + c->col;
  attn_floats_ v = attn_floats_at_(c->v + c->col, c->v_stride, n);
  if (a->decay == ATTN_RECURRENT_TOKEN_) {
    f->scale_rows(w->v + c->col, wide, v.p, v.stride, n, c->cols, c->last);
    v = attn_floats_at_(w->v + c->col, wide, n);
    if (a->low) f->scale_rows(u, wide, u, wide, n, c->cols, c->last);
  }
  for (int64_t i = 0, cols; i < c->cols; i += cols) {
    cols = c->cols - i < e ? c->cols - i : e;
    for (int64_t r = 0, rows; r < a->dk; r += rows) {
      rows = a->dk - r < most ? a->dk - r : most;
      float *s = w->s + r * wide + c->col + i, *rest = w->rest + r * wide + c->col + i;
      float *to = fresh ? s : w->sum;
      const int64_t to_stride = fresh ? wide : e;
      attn_linear_times_(f, w->ask, to, to_stride, attn_floats_at_(w->kt + r * e, e, rows), 1,
                         attn_floats_at_(v.p + i, v.stride, n), cols, 1);
      if (a->low)
        attn_linear_times_(f, w->ask, to, to_stride, attn_floats_at_(w->bt + r * e, e, rows), 1,
                           attn_floats_at_(u + i, wide, n), cols, 0);
      if (!fresh)
        attn_on_(state, f)->accrue_rows(s, rest, wide, to, to_stride, rows, cols, keep + r * each,
                                        each);
      for (int64_t j = 0; fresh && j < rows; j++)
        memset(rest + j * wide, 0, (size_t)cols * sizeof(float));
    }
  }
}

/* Rows behind the chunk's, asked for while its products go on. */
ATTN_FUNC_ void attn_recurrent_ask_(const attn_recurrent_chain_ *c, int64_t i) {
  const attn_recurrent_ *a = c->a;
  attn_linear_ask_ *ask = c->w.ask;
  const attn_tensor *reads[] = {&a->q,
                                &a->k,
                                &a->v,
                                &a->o,
                                &a->more[ATTN_RECURRENT_W_],
                                &a->more[ATTN_RECURRENT_A_],
                                &a->more[ATTN_RECURRENT_B_]};
  attn_linear_ask_all_(ask, i, c->t1, a->delta || a->low ? 60 : 40);
  for (int j = 0; j < 7; j++)
    if (reads[j]->data && reads[j]->dim > 1 && reads[j]->len > 1)
      attn_linear_ask_for_(ask, reads[j], reads[j]->batch > 1 ? c->b : 0,
                           attn_recurrent_head_(a, reads[j], c->h), i);
}

/* What reads before a chunk's writes, where rows do not fade. */
ATTN_FUNC_ attn_floats_ attn_recurrent_first_(const attn_recurrent_chain_ *c) {
  if (c->a->delta && c->a->decay != ATTN_RECURRENT_EACH_)
    return attn_floats_at_(c->k, c->k_stride, c->n);
  return attn_floats_at_(c->w.a, c->a->dk, c->n);
}

/* Tokens i .., at most n: those up to the next reset, and all their products with each other. Returns how many. */
ATTN_FUNC_ int attn_recurrent_meet_(attn_recurrent_chain_ *c, int64_t i, int n) {
  const attn_recurrent_ *a = c->a;
  const attn_recurrent_own_ *w = &c->w;
  attn_recurrent_decays_(c, i, n);
  attn_recurrent_load_(c, i);
  n = c->n;
  attn_recurrent_ask_(c, i + n);
  if (c->clears && a->low) { /* of a rule that reads before it writes: nothing is there to read */
    for (int64_t r = 0; r < a->dk; r++) {
      memset(w->s + r * a->wide + c->col, 0, (size_t)c->cols * sizeof(float));
      memset(w->rest + r * a->wide + c->col, 0, (size_t)c->cols * sizeof(float));
    }
  }
  const int each = a->decay == ATTN_RECURRENT_EACH_;
  const attn_floats_ reads = attn_floats_at_(w->q, a->dk, n);
  const attn_floats_ first = attn_recurrent_first_(c);
  if (a->delta && each) /* they fade, and keys do not */
    for (int j = 0; j < n; j++)
      memcpy(w->a + j * a->dk, c->k + j * c->k_stride, (size_t)a->dk * sizeof(float));
  float own[ATTN_RECURRENT_CHUNK_];
  if (a->before) {
    float *u = w->over;
    const attn_tensor *t = &a->more[ATTN_RECURRENT_U_];
    a->table->widen(u, attn_at_(t, 0, attn_recurrent_head_(a, t, c->h), 0), 0, NULL, 1, a->dk,
                    t->dtype, NULL);
    attn_on_(recurrent, a->table)->meets(own, w->q, c->k, c->k_stride, u, n, a->dk);
  }
  if (each) {
    attn_recurrent_fade_(c);
  } else {
    attn_recurrent_turn_(a, w->kt, c->k, c->k_stride, 0, n);
    if (a->low) attn_recurrent_turn_(a, w->bt, c->b_rows, c->b_stride, 0, n);
    if (a->decay == ATTN_RECURRENT_TOKEN_) attn_recurrent_left_(c);
    attn_recurrent_products_(c, w->qk, reads, w->kt, a->before);
    if (a->low) attn_recurrent_products_(c, w->qb, reads, w->bt, 0);
    if (a->delta || a->low) attn_recurrent_products_(c, w->ak, first, w->kt, a->low);
    if (a->low) attn_recurrent_products_(c, w->ab, first, w->bt, 1);
  }
  for (int j = 0; a->before && j < n; j++) w->qk[j * ATTN_RECURRENT_E_ + j] = own[j];
  return n;
}

/* The same tokens into S, and what their queries read. */
ATTN_FUNC_ int attn_recurrent_chunk_(attn_recurrent_chain_ *c, int64_t i, int n) {
  const attn_recurrent_ *a = c->a;
  const attn_recurrent_own_ *w = &c->w;
  n = attn_recurrent_meet_(c, i, n);
  const attn_floats_ reads = attn_floats_at_(w->q, a->dk, n), first = attn_recurrent_first_(c);
  if (a->delta) {
    float by[ATTN_RECURRENT_CHUNK_];
    attn_recurrent_read_(c, w->y, a->wide, first, 0);
    for (int j = 0; j < n; j++) by[j] = -c->beta[j];
    attn_recurrent_solve_(c, w->v, w->y, w->ak, by);
  } else if (a->low) {
    attn_recurrent_read_(c, w->u, a->wide, first, 1);
    attn_recurrent_add_(c, w->u, a->wide, w->ak, c->v, c->v_stride);
    attn_recurrent_solve_(c, w->u, w->u, w->ab, NULL);
  }
  attn_recurrent_into_(c, i);
  attn_recurrent_read_(c, c->y, c->y_stride, reads, a->before);
  attn_recurrent_add_(c, c->y, c->y_stride, w->qk, c->v, c->v_stride);
  if (a->low) attn_recurrent_add_(c, c->y, c->y_stride, w->qb, w->u, a->wide);
  attn_recurrent_store_(c, i, n);
  attn_recurrent_update_(c);
  return n;
}
