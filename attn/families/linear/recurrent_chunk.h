/* families/linear/recurrent_chunk.h owns a chunk of tokens of a decaying state as products. With D(m..t) what tokens m .. t
 * leave of a channel, S0 the state before the chunk, readers X (queries, and what a rule reads before it writes) and
 * writers Y with their values V:
 *
 *   G[t][m] = x_t . (D(m+1..t) o y_m),   what x_t reads = (x_t o D(0..t)) S0 + sum_m G[t][m] v_m
 *   afterwards S = D(0..end) o S0 + sum_m (y_m o D(m+1..end)) v_m^T
 *
 * With one number a token D multiplies the products; by channel readers fade to their sub-chunk's begin and writers to
 * its end, which are products of numbers below 1, and pairs within a sub-chunk meet one by one. What a rule reads is
 * solved row by row: values of later tokens depend on it. */

enum { ATTN_RECURRENT_ROWS_ = 12, ATTN_RECURRENT_E_ = ATTN_RECURRENT_CHUNK_ };

/* Rows of a turned matrix as those of a product. */
ATTN_FUNC_ attn_floats_ attn_recurrent_turned_(const float *x, int64_t i, int64_t n) {
  return attn_floats_at_(x + i, 1, n);
}

ATTN_FUNC_ void attn_recurrent_turn_(const attn_recurrent_ *a, float *to, const float *x,
                                     int64_t stride, int64_t i, int64_t n) {
  const void *rows[ATTN_RECURRENT_CHUNK_];
  for (int64_t j = 0; j < n; j++) rows[j] = x + (i + j) * stride;
  a->table->pack(to + i, rows, (int)n, a->dk, ATTN_F32, 1.0f, FLT_MIN);
}

/* d[t][m] = what tokens m + 1 .. t leave, and what is left of S at each token and of each token at the end. */
ATTN_FUNC_ void attn_recurrent_left_(attn_recurrent_chain_ *c) {
  const int n = c->n;
  double left = 1.0, last = 1.0;
  for (int t = 0; t < n; t++) {
    float *d = c->w.d + t * ATTN_RECURRENT_E_;
    const float by = (float)c->keep[t];
    left *= c->keep[t], c->left[t] = (float)left;
    for (int m = 0; m < t; m++) d[m] = by * d[m - ATTN_RECURRENT_E_];
    d[t] = 1.0f;
  }
  for (int t = n; t-- > 0; last *= c->keep[t]) c->last[t] = (float)last;
  c->w.keep[0] = last;
}

/* G of rows t0 .. t0 + rows - 1, complete: what does not exist is 0. late: a reader of the state before its token. */
ATTN_FUNC_ void attn_recurrent_triangle_(const attn_recurrent_chain_ *c, float *g, int64_t t0,
                                         int64_t rows, int late) {
  const int64_t e = ATTN_RECURRENT_E_;
  for (int64_t t = t0; t < t0 + rows; t++) {
    float *row = g + t * e;
    const float *d = c->w.d + (t - late) * e;
    const int64_t end = t + 1 - late;
    if (c->a->decay == ATTN_RECURRENT_TOKEN_)
      for (int64_t m = 0; m < end; m++) row[m] *= d[m];
    for (int64_t m = end; m < t0 + rows; m++) row[m] = 0.0f;
  }
}

ATTN_FUNC_ void attn_recurrent_products_(const attn_recurrent_chain_ *c, float *g, const float *x,
                                         const float *y, int late) {
  const attn_recurrent_ *a = c->a;
  for (int64_t t = 0, rows; t < c->n; t += rows) {
    rows = c->n - t < ATTN_RECURRENT_ROWS_ ? c->n - t : (int64_t)ATTN_RECURRENT_ROWS_;
    attn_linear_times_(a->table, c->w.ask, g + t * ATTN_RECURRENT_E_, ATTN_RECURRENT_E_,
                       attn_recurrent_turned_(x, t, rows), ATTN_RECURRENT_E_,
                       attn_floats_at_(y, ATTN_RECURRENT_E_, a->dk), t + rows, 1);
    attn_recurrent_triangle_(c, g, t, rows, late);
  }
}

/* All G where channels fade each by itself; readers and writers become those of S0 and of the end. */
ATTN_FUNC_ void attn_recurrent_fade_(attn_recurrent_chain_ *c) {
  const attn_recurrent_ *a = c->a;
  const attn_table_ *f = a->table;
  const attn_recurrent_own_ *w = &c->w;
  const int64_t e = ATTN_RECURRENT_E_, dk = a->dk;
  const int readers = a->delta || a->low ? 2 : 1, writers = a->low ? 2 : 1;
  float *x[2] = {w->qt, w->at}, *yt[2] = {w->kt, w->bt};
  float *g[2][2] = {{w->qk, w->qb}, {w->ak, w->ab}};
  const float *y[2] = {c->k, w->b};
  const int64_t stride[2] = {c->k_stride, dk};
  const int late[2] = {a->before, a->low};
  for (int64_t r = 0; r < dk; r++) w->left[r] = 1.0f;
  for (int64_t t0 = 0, n; t0 < c->n; t0 += n) {
    n = c->n - t0 < ATTN_RECURRENT_PART_ ? c->n - t0 : (int64_t)ATTN_RECURRENT_PART_;
    attn_fade_ p;
    memset(&p, 0, sizeof p);
    p.readers = readers, p.writers = writers, p.n = (int)n, p.dim = dk, p.w = w->w + t0 * dk;
    for (int i = 0; i < 2; i++) {
      p.x[i] = x[i] + t0, p.y[i] = y[i] + t0 * stride[i], p.late[i] = late[i],
      p.y_stride[i] = stride[i];
      for (int j = 0; j < 2; j++) p.g[i][j] = w->part + (2 * i + j) * 256;
    }
    attn_on_(recurrent, f)->fade_products(&p);
    for (int i = 0; i < readers; i++)
      for (int j = 0; j < writers; j++) {
        float *to = g[i][j] + t0 * e;
        for (int64_t t = 0; t < n; t++, to += e) {
          const int64_t end = t + 1 - late[i];
          for (int64_t m = 0; m < end; m++) to[t0 + m] = p.g[i][j][m * 16 + t];
          for (int64_t m = end; m < n + ATTN_RECURRENT_ROWS_ && t0 + m < e; m++) to[t0 + m] = 0.0f;
        }
        if (t0)
          attn_linear_times_(f, w->ask, g[i][j] + t0 * e, e, attn_recurrent_turned_(x[i], t0, n), e,
                             attn_floats_at_(yt[j], e, dk), t0, 1);
      }
    for (int i = 0; t0 && i < readers; i++)
      f->scale_rows(x[i] + t0, e, x[i] + t0, e, dk, n, w->left);
    for (int j = 0; j < writers; j++) {
      for (int64_t r = 0; r < dk; r++) w->over[r] = 1.0f;
      attn_on_(recurrent, f)
          ->fade_rows(w->fade, y[j] + t0 * stride[j], stride[j], p.w, n, dk, w->over);
      if (t0) f->scale_rows(yt[j], e, yt[j], e, dk, t0, w->over);
      attn_recurrent_turn_(a, yt[j] + t0, w->fade, dk, 0, n);
    }
    for (int64_t r = 0; r < dk; r++) w->left[r] *= w->over[r];
  }
  /* over the chunk in double: what is left of S is a product of chunks */
  const float *by = a->p.form == ATTN_RECURRENT_LOG ? w->near : w->w;
  const int logs = a->p.form == ATTN_RECURRENT_LOG;
  for (int64_t r = 0; r < dk; r++) w->keep[r] = (double)by[r];
  for (int64_t t = 1; t < c->n; t++)
    for (int64_t r = 0; r < dk; r++) {
      const double x1 = (double)by[t * dk + r];
      w->keep[r] = logs ? w->keep[r] + x1 : w->keep[r] * x1;
    }
  for (int64_t r = 0; logs && r < dk; r++) w->keep[r] = attn_exp_f64_(w->keep[r]);
}

/* y = X S0 for the readers x of the chunk. */
ATTN_FUNC_ void attn_recurrent_read_(const attn_recurrent_chain_ *c, float *y, const float *x,
                                     int late) {
  const attn_recurrent_ *a = c->a;
  const attn_table_ *f = a->table;
  y += c->col;
  if (c->clears && !a->low) {
    for (int j = 0; j < c->n; j++) memset(y + j * a->wide, 0, (size_t)c->cols * sizeof(float));
    return;
  }
  attn_linear_times_(f, c->w.ask, y, a->wide, attn_recurrent_turned_(x, 0, c->n), ATTN_RECURRENT_E_,
                     attn_floats_at_(c->w.s + c->col, a->wide, a->dk), c->cols, 1);
  if (a->decay != ATTN_RECURRENT_TOKEN_) return;
  if (!late) {
    f->scale_rows(y, a->wide, y, a->wide, c->n, c->cols, c->left);
  } else if (c->n > 1) {
    f->scale_rows(y + a->wide, a->wide, y + a->wide, a->wide, c->n - 1, c->cols, c->left);
  }
}

/* y += G v, rows and columns of the chunk. A value that is not finite must not meet the zeros of rows before it. */
ATTN_FUNC_ void attn_recurrent_add_(const attn_recurrent_chain_ *c, float *y, const float *g,
                                    const float *v) {
  const attn_recurrent_ *a = c->a;
  const int64_t step =
      a->table->finite(v + c->col, a->wide, c->n, c->cols) ? (int64_t)ATTN_RECURRENT_ROWS_ : 1;
  for (int64_t t = 0, rows; t < c->n; t += rows) {
    rows = c->n - t < step ? c->n - t : step;
    attn_linear_times_(a->table, c->w.ask, y + t * a->wide + c->col, a->wide,
                       attn_floats_at_(g + t * ATTN_RECURRENT_E_, ATTN_RECURRENT_E_, rows), 1,
                       attn_floats_at_(v + c->col, a->wide, t + rows), c->cols, 0);
  }
}

/* x_t = to_t + by_t (y_t + sum of G[t][m] x_m, m < t): forward substitution, in place of to; rows of earlier blocks
 * by gemm, those of the same block one by one. by null = 1, and to is y. */
ATTN_FUNC_ void attn_recurrent_solve_(const attn_recurrent_chain_ *c, float *to, const float *y,
                                      float *g, const float *by) {
  const attn_recurrent_ *a = c->a;
  const attn_table_ *f = a->table;
  const int64_t e = ATTN_RECURRENT_E_, wide = a->wide;
  to += c->col, y += c->col;
  for (int64_t t0 = 0, rows; t0 < c->n; t0 += rows) {
    rows = c->n - t0 < ATTN_RECURRENT_ROWS_ ? c->n - t0 : (int64_t)ATTN_RECURRENT_ROWS_;
    for (int64_t t = t0; by && t < t0 + rows; t++) {
      f->blend(to + t * wide, to + t * wide, y + t * wide, ATTN_F32, ATTN_F32, ATTN_F32, c->cols,
               1.0f, by[t]);
      for (int64_t m = 0; m < t; m++) g[t * e + m] *= by[t];
    }
    if (t0)
      attn_linear_times_(f, c->w.ask, to + t0 * wide, wide, attn_floats_at_(g + t0 * e, e, rows), 1,
                         attn_floats_at_(to, wide, t0), c->cols, 0);
    for (int64_t t = t0 + 1; t < t0 + rows; t++)
      attn_on_(sum, f)->axpys(to + t * wide, g + t * e + t0, to + t0 * wide, wide,
                              attn_linear_index_, t - t0, c->cols, ATTN_F32, 1.0f, 0);
  }
}

/* S behind the chunk, from values v and, of a and b, u. */
ATTN_FUNC_ void attn_recurrent_update_(attn_recurrent_chain_ *c) {
  const attn_recurrent_ *a = c->a;
  const attn_table_ *f = a->table;
  const attn_recurrent_own_ *w = &c->w;
  const int64_t wide = a->wide, n = c->n, e = ATTN_RECURRENT_E_;
  float *v = w->v + c->col, *u = w->u + c->col, *sum = w->sum + c->col;
  if (a->decay == ATTN_RECURRENT_TOKEN_) {
    f->scale_rows(v, wide, v, wide, n, c->cols, c->last);
    if (a->low) f->scale_rows(u, wide, u, wide, n, c->cols, c->last);
  }
  attn_linear_times_(f, w->ask, sum, wide, attn_floats_at_(w->kt, e, a->dk), 1,
                     attn_floats_at_(v, wide, n), c->cols, 1);
  if (a->low)
    attn_linear_times_(f, w->ask, sum, wide, attn_floats_at_(w->bt, e, a->dk), 1,
                       attn_floats_at_(u, wide, n), c->cols, 0);
  if (c->clears && !a->low) {
    for (int64_t r = 0; r < a->dk; r++) {
      memcpy(w->s + r * wide + c->col, sum + r * wide, (size_t)c->cols * sizeof(float));
      memset(w->rest + r * wide + c->col, 0, (size_t)c->cols * sizeof(float));
    }
    return;
  }
  for (int64_t r = 0; r < a->dk; r++) {
    const double keep =
        a->decay == ATTN_RECURRENT_NONE_ ? 1.0 : w->keep[a->decay == ATTN_RECURRENT_EACH_ ? r : 0];
    attn_on_(state, f)->accrue(w->s + r * wide + c->col, w->rest + r * wide + c->col,
                               sum + r * wide, c->cols, keep, 1.0f);
  }
}

/* Tokens i .., at most n: those up to the next reset. Returns how many. */
ATTN_FUNC_ int attn_recurrent_chunk_(attn_recurrent_chain_ *c, int64_t i, int n) {
  const attn_recurrent_ *a = c->a;
  const attn_recurrent_own_ *w = &c->w;
  attn_recurrent_decays_(c, i, n);
  attn_recurrent_load_(c, i);
  n = c->n;
  if (c->clears && a->low) { /* of a rule that reads before it writes: nothing is there to read */
    for (int64_t r = 0; r < a->dk; r++) {
      memset(w->s + r * a->wide + c->col, 0, (size_t)c->cols * sizeof(float));
      memset(w->rest + r * a->wide + c->col, 0, (size_t)c->cols * sizeof(float));
    }
  }
  attn_recurrent_turn_(a, w->qt, w->q, a->dk, 0, n);
  if (a->delta) attn_recurrent_turn_(a, w->at, c->k, c->k_stride, 0, n);
  if (a->low) attn_recurrent_turn_(a, w->at, w->a, a->dk, 0, n);
  float own[ATTN_RECURRENT_CHUNK_];
  if (a->before) {
    float *u = w->over;
    const attn_tensor *t = &a->more[ATTN_RECURRENT_U_];
    a->table->widen(u, attn_at_(t, 0, attn_recurrent_head_(a, t, c->h), 0), 0, NULL, 1, a->dk,
                    t->dtype, NULL);
    for (int j = 0; j < n; j++)
      own[j] = attn_recurrent_meet_(w->q + j * a->dk, c->k + j * c->k_stride, u, a->dk);
  }
  if (a->decay == ATTN_RECURRENT_EACH_) {
    attn_recurrent_fade_(c);
  } else {
    attn_recurrent_turn_(a, w->kt, c->k, c->k_stride, 0, n);
    if (a->low) attn_recurrent_turn_(a, w->bt, w->b, a->dk, 0, n);
    if (a->decay == ATTN_RECURRENT_TOKEN_) attn_recurrent_left_(c);
    attn_recurrent_products_(c, w->qk, w->qt, w->kt, a->before);
    if (a->low) attn_recurrent_products_(c, w->qb, w->qt, w->bt, 0);
    if (a->delta || a->low) attn_recurrent_products_(c, w->ak, w->at, w->kt, a->low);
    if (a->low) attn_recurrent_products_(c, w->ab, w->at, w->bt, 1);
  }
  for (int j = 0; a->before && j < n; j++) w->qk[j * ATTN_RECURRENT_E_ + j] = own[j];
  if (a->delta) {
    float by[ATTN_RECURRENT_CHUNK_];
    attn_recurrent_read_(c, w->y, w->at, 0);
    for (int j = 0; j < n; j++) by[j] = -c->beta[j];
    a->table->scale_rows(w->v + c->col, a->wide, w->v + c->col, a->wide, n, c->cols, c->beta);
    attn_recurrent_solve_(c, w->v, w->y, w->ak, by);
  } else if (a->low) {
    attn_recurrent_read_(c, w->u, w->at, 1);
    attn_recurrent_add_(c, w->u, w->ak, w->v);
    attn_recurrent_solve_(c, w->u, w->u, w->ab, NULL);
  }
  attn_recurrent_read_(c, w->y, w->qt, a->before);
  attn_recurrent_add_(c, w->y, w->qk, w->v);
  if (a->low) attn_recurrent_add_(c, w->y, w->qb, w->u);
  attn_recurrent_store_(c, i, w->y, n);
  attn_recurrent_update_(c);
  return n;
}
