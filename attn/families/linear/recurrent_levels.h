/* families/linear/recurrent_levels.h owns log-linear attention: a decaying state that is a state for each level, tokens
 * from p0 on in chunks. A token j is in the level of t that counts the bits of t ^ j; of levels l before the chunk
 * those up to that of t ^ p0 are read as that one. With E the inverse of what tokens of a chunk read of each other,
 *
 *   M = G E,  R = x o D(0..t) + G E F,  o_t = sum_m lambda_t^l(t,m) M[t][m] v_m + sum_l lambda_t^l R_t S0^l
 *
 * F what reads before the writes, E = I and R = x o D without it; each S0^l goes on by itself, as a rule's S without
 * values. A chunk that ends where its length divides the next position joins one level only. */

typedef struct attn_levels_ {
  attn_recurrent_chain_ c;
  float *lambda;           /* [64][slots] */
  float *e, *m;            /* square: E of values, and M */
  float *u;                /* values: what is written to a level */
  float *zero;             /* [wide] */
  float *sum;              /* [dk][wide], what tokens write */
  float *store;            /* [slots][2][dk][wide] */
  uint64_t held;           /* levels that have tokens */
  unsigned char place[64]; /* of a level in store */
  int64_t at;              /* position of the chunk's first token */
} attn_levels_;

/* Bytes behind those of attn_recurrent_lay_. */
ATTN_FUNC_ int64_t attn_levels_lay_(const attn_recurrent_ *a) {
  const int64_t square = ATTN_RECURRENT_CHUNK_ * ATTN_RECURRENT_CHUNK_;
  const int64_t half = attn_mul_(a->dk, a->wide);
  const int64_t n = attn_add_(attn_add_(64 * a->slots + 2 * square, attn_mul_(65, a->wide)),
                              attn_mul_(attn_add_(2 * a->slots, 1), half));
  return a->levels ? attn_piece_(n, sizeof(float)) : 0;
}

ATTN_FUNC_ void attn_levels_cut_(attn_levels_ *l, int worker) {
  const attn_recurrent_ *a = l->c.a;
  const int64_t square = ATTN_RECURRENT_CHUNK_ * ATTN_RECURRENT_CHUNK_;
  float *p = (float *)(void *)(a->own + worker * a->own_bytes + a->levels_at);
  l->e = p, l->m = p + square, l->u = l->m + square, l->zero = l->u + 64 * a->wide;
  l->store = l->zero + a->wide, l->sum = l->store + 2 * a->slots * a->dk * a->wide;
  l->lambda = l->sum + a->dk * a->wide;
  memset(l->zero, 0, (size_t)a->wide * sizeof(float));
  for (int i = 0; i < 64; i++) l->place[i] = (unsigned char)i;
  l->held = 0;
}

ATTN_FUNC_ float *attn_levels_state_(const attn_levels_ *l, int level) {
  const attn_recurrent_ *a = l->c.a;
  return l->store + l->place[level] * 2 * a->dk * a->wide;
}
ATTN_FUNC_ int attn_levels_has_(const attn_levels_ *l, int level) {
  return (int)(l->held >> level & 1);
}

/* The n tokens of the chunk that are in a level of position p: the first, counted from the chunk's. */
ATTN_FUNC_ int64_t attn_levels_span_(const attn_levels_ *l, int64_t p, int level, int64_t *n) {
  const int64_t size = level ? (int64_t)1 << (level - 1) : 1, low = p & (size - 1);
  int64_t first = level ? p - low - size : p, end = level ? p - low : p + 1;
  if (level && !(p & size)) end = first;
  if (first < l->at) first = l->at;
  if (end > l->at + l->c.n) end = l->at + l->c.n;
  *n = end > first ? end - first : 0;
  return first - l->at;
}

/* Levels up to `top` become one. */
ATTN_FUNC_ void attn_levels_join_(attn_levels_ *l, int top) {
  const attn_recurrent_chain_ *c = &l->c;
  const int64_t wide = c->a->wide, state = c->a->dk * wide;
  for (int level = 0; level < top; level++) {
    if (!attn_levels_has_(l, level)) continue;
    l->held &= ~((uint64_t)1 << level);
    if (!attn_levels_has_(l, top)) {
      const unsigned char was = l->place[top];
      l->place[top] = l->place[level], l->place[level] = was;
      l->held |= (uint64_t)1 << top;
      continue;
    }
    float *to = attn_levels_state_(l, top) + c->col;
    const float *from = attn_levels_state_(l, level) + c->col;
    for (int64_t i = 0; i < state; i += wide)
      for (int rest = 0; rest < 2; rest++)
        attn_on_(state, c->a->table)
            ->accrue(to + i, to + state + i, from + rest * state + i, c->cols, 1.0, 1.0f);
  }
}

/* ---- the caller's states ------------------------------------------------------------------------*/

/* A level into, or out of, what the worker has. */
ATTN_FUNC_ void attn_levels_pass_(attn_levels_ *l, int64_t level, int slot, int out) {
  attn_recurrent_chain_ *c = &l->c;
  const attn_recurrent_ *a = c->a;
  c->row = level * (a->p->state_transposed ? a->dv : a->dk);
  c->w.s = attn_levels_state_(l, slot), c->w.rest = c->w.s + a->dk * a->wide;
  if (out)
    attn_recurrent_end_(c);
  else
    attn_recurrent_begin_(c);
}

/* Levels without tokens are 0 behind the call; in place only those are written that had some, or whose tokens a reset
 * took. */
ATTN_FUNC_ void attn_levels_end_(attn_levels_ *l, uint64_t begun) {
  attn_recurrent_chain_ *c = &l->c;
  const attn_recurrent_ *a = c->a;
  const int64_t cols = c->cols < a->dv - c->col ? c->cols : a->dv - c->col;
  const int turned = a->p->state_transposed, same = attn_same_view_(&a->state[0], &a->state[1]);
  const uint64_t last =
      ((uint64_t)(l->at - 1) << 1) | 1; /* the levels of the last token's position */
  for (int64_t level = 0; a->state[1].data && level < a->levels; level++) {
    if (level < 64 && attn_levels_has_(l, (int)level)) {
      attn_levels_pass_(l, level, (int)level, 1);
      continue;
    }
    if (same && (level >= 64 || !((begun | last) >> level & 1))) continue;
    c->row = level * (turned ? a->dv : a->dk);
    for (int64_t r = turned ? c->col : 0; r < (turned ? c->col + cols : a->dk); r++)
      memset(attn_recurrent_row_(c, &a->state[1], r) + (turned ? 0 : c->col), 0,
             (size_t)(turned ? a->dk : cols) * sizeof(float));
  }
}

/* ---- a chunk ------------------------------------------------------------------------------------*/

/* m times the weight of each pair's level. */
ATTN_FUNC_ void attn_levels_weigh_(const attn_levels_ *l, float *m) {
  const int64_t slots = l->c.a->slots;
  for (int64_t t = 0; t < l->c.n; t++, m += ATTN_RECURRENT_E_) {
    const int64_t p = l->at + t;
    const int top = attn_level_of_(p ^ l->at);
    for (int level = 0; level <= top; level++) {
      const float by = l->lambda[t * slots + level];
      int64_t n, first = attn_levels_span_(l, p, level, &n);
      for (n += first; first < n; first++) m[first] *= by;
    }
  }
}

/* What tokens read of each other: E, M, and R in the place of the queries. */
ATTN_FUNC_ float *attn_levels_solve_(attn_levels_ *l) {
  attn_recurrent_chain_ *c = &l->c;
  const attn_recurrent_ *a = c->a;
  const attn_table_ *f = a->table;
  const attn_recurrent_own_ *w = &c->w;
  const int64_t e = ATTN_RECURRENT_E_, dk = a->dk, n = c->n;
  const int token = a->decay == ATTN_RECURRENT_TOKEN_;
  float *g = a->low ? w->ab : w->ak, by[ATTN_RECURRENT_CHUNK_];
  if (token) f->scale_rows(w->q, dk, w->q, dk, n, dk, c->left);
  memset(l->e, 0, (size_t)(n * e) * sizeof(float));
  for (int64_t t = 0; t < n; t++) {
    if (a->low)
      memcpy(l->e + t * e, w->ak + t * e, (size_t)t * sizeof(float));
    else
      l->e[t * e + t] = 1.0f;
    by[t] = !token ? 1.0f : !a->low ? c->left[t] : t ? c->left[t - 1] : 1.0f;
    if (a->low) continue;
    by[t] *= -c->beta[t];
    for (int64_t m = 0; m < t; m++) g[t * e + m] *= -c->beta[t];
  }
  const attn_floats_ first = attn_recurrent_first_(c);
  f->scale_rows(w->a, dk, first.p, first.stride, n, dk, by);
  attn_recurrent_forward_(c, l->e, e, g, n);
  attn_recurrent_forward_(c, w->a, dk, g, dk);
  float *m = a->low ? w->qk : l->m;
  const float *x = a->low ? w->qb : w->qk;
  const int64_t step = f->finite(l->e, e, n, n) ? (int64_t)ATTN_RECURRENT_ROWS_ : 1;
  for (int64_t t = 0, rows; t < n; t += rows) {
    rows = n - t < step ? n - t : step;
    attn_linear_times_(f, w->ask, m + t * e, e, attn_floats_at_(x + t * e, e, rows), 1,
                       attn_floats_at_(l->e, e, t + rows), t + rows, !a->low);
  }
  attn_recurrent_spread_(c, w->q, dk, x, w->a, dk, dk);
  return m;
}

/* y = the levels before the chunk, as its rows read them. */
ATTN_FUNC_ void attn_levels_read_(attn_levels_ *l) {
  const attn_recurrent_chain_ *c = &l->c;
  const attn_recurrent_ *a = c->a;
  const int fades = a->decay == ATTN_RECURRENT_TOKEN_ && !a->delta && !a->low;
  float by[ATTN_RECURRENT_CHUNK_], *x = c->w.near;
  int start = 1;
  for (int level = 0; level < 64; level++) {
    if (!attn_levels_has_(l, level)) continue;
    for (int64_t t = 0; t < c->n; t++) {
      const int as = attn_level_of_(l->at ^ (l->at + t));
      by[t] = l->lambda[t * a->slots + (as > level ? as : level)] * (fades ? c->left[t] : 1.0f);
    }
    a->table->scale_rows(x, a->dk, c->w.q, a->dk, c->n, a->dk, by);
    attn_recurrent_times_(c, c->y + c->col, c->y_stride, attn_floats_at_(x, a->dk, c->n), 1,
                          attn_floats_at_(attn_levels_state_(l, level) + c->col, a->wide, a->dk),
                          start);
    start = 0;
  }
  for (int j = 0; start && j < c->n; j++)
    memset(c->y + j * c->y_stride + c->col, 0, (size_t)c->cols * sizeof(float));
}

/* The sum that tokens i .. of the chunk write with what is in u, where `turned` are the writers. */
ATTN_FUNC_ void attn_levels_write_(const attn_levels_ *l, const float *turned, int64_t i, int64_t n,
                                   const float *u, int64_t stride, int start) {
  const attn_recurrent_chain_ *c = &l->c;
  attn_floats_ x = attn_floats_at_(u + c->col, stride, n);
  if (c->a->decay == ATTN_RECURRENT_TOKEN_) {
    float *to = l->u + i * c->a->wide + c->col;
    c->a->table->scale_rows(to, c->a->wide, x.p, stride, n, c->cols, c->last + i);
    x = attn_floats_at_(to, c->a->wide, n);
  }
  attn_recurrent_times_(c, l->sum + c->col, c->a->wide,
                        attn_floats_at_(turned + i, ATTN_RECURRENT_E_, c->a->dk), 1, x, start);
}

/* A level goes on over the chunk, without what its tokens write. */
ATTN_FUNC_ void attn_levels_fade_(attn_levels_ *l, int level) {
  const attn_recurrent_chain_ *c = &l->c;
  const attn_recurrent_ *a = c->a;
  const int solves = a->delta || a->low;
  float *s = attn_levels_state_(l, level) + c->col, *rest = s + a->dk * a->wide;
  if (!solves && a->decay == ATTN_RECURRENT_NONE_) return;
  if (solves) {
    attn_recurrent_times_(c, l->u + c->col, a->wide, attn_floats_at_(c->w.a, a->dk, c->n), 1,
                          attn_floats_at_(s, a->wide, a->dk), 1);
    attn_levels_write_(l, a->low ? c->w.bt : c->w.kt, 0, c->n, l->u, a->wide, 1);
  }
  for (int64_t r = 0; r < a->dk; r++) {
    const double keep = a->decay == ATTN_RECURRENT_NONE_
                            ? 1.0
                            : c->w.keep[a->decay == ATTN_RECURRENT_EACH_ ? r : 0];
    attn_on_(state, a->table)
        ->accrue(s + r * a->wide, rest + r * a->wide,
                 solves ? l->sum + r * a->wide + c->col : l->zero, c->cols, keep, 1.0f);
  }
}

/* Tokens i .. i + n - 1 of the chunk join a level. */
ATTN_FUNC_ void attn_levels_add_(attn_levels_ *l, int level, int64_t i, int64_t n) {
  const attn_recurrent_chain_ *c = &l->c;
  const attn_recurrent_ *a = c->a;
  const attn_recurrent_own_ *w = &c->w;
  const int64_t e = ATTN_RECURRENT_E_, end = i + n;
  const float *v = c->v + i * c->v_stride;
  if (a->delta || a->low) { /* what they write, and what later ones write for that */
    const int64_t step =
        a->table->finite(v + c->col, c->v_stride, n, c->cols) ? (int64_t)ATTN_RECURRENT_ROWS_ : 1;
    for (int64_t t = i, rows; t < c->n; t += rows) {
      rows = c->n - t < step ? c->n - t : step;
      attn_linear_times_(
          a->table, w->ask, l->u + t * a->wide + c->col, a->wide,
          attn_floats_at_(l->e + t * e + i, e, rows), 1,
          attn_floats_at_(v + c->col, c->v_stride, (t + rows < end ? t + rows : end) - i), c->cols,
          1);
    }
    attn_levels_write_(l, a->low ? w->bt : w->kt, i, c->n - i, l->u + i * a->wide, a->wide, 1);
  }
  if (a->low)
    attn_levels_write_(l, w->kt, i, n, v, c->v_stride, 0);
  else if (!a->delta)
    attn_levels_write_(l, w->kt, i, n, v, c->v_stride, 1);
  float *s = attn_levels_state_(l, level) + c->col, *rest = s + a->dk * a->wide;
  const float *sum = l->sum + c->col;
  for (int64_t r = 0; r < a->dk; r++, s += a->wide, rest += a->wide, sum += a->wide) {
    if (attn_levels_has_(l, level)) {
      attn_on_(state, a->table)->accrue(s, rest, sum, c->cols, 1.0, 1.0f);
      continue;
    }
    memcpy(s, sum, (size_t)c->cols * sizeof(float));
    memset(rest, 0, (size_t)c->cols * sizeof(float));
  }
  l->held |= (uint64_t)1 << level;
}

/* Tokens i .., at most n. Levels are those of the next token, behind the last one its own. Returns how many. */
ATTN_FUNC_ int attn_levels_chunk_(attn_levels_ *l, int64_t i, int n) {
  attn_recurrent_chain_ *c = &l->c;
  const attn_recurrent_ *a = c->a;
  const attn_tensor *lambda = &a->more[ATTN_RECURRENT_LAMBDA_];
  n = attn_recurrent_meet_(c, i, n);
  if (c->clears) l->held = 0;
  a->table->widen(l->lambda, attn_recurrent_at_(c, lambda, i), lambda->stride_len, NULL, n,
                  a->slots, lambda->dtype, NULL);
  float *m = a->delta || a->low ? attn_levels_solve_(l) : c->w.qk;
  attn_levels_weigh_(l, m);
  attn_recurrent_into_(c, i);
  attn_levels_read_(l);
  attn_recurrent_add_(c, c->y, c->y_stride, m, c->v, c->v_stride);
  attn_recurrent_store_(c, i, n);
  const int64_t next = l->at + n - (i + n == c->t1);
  const int top = attn_level_of_(next ^ l->at);
  for (int level = 0; level < 64; level++)
    if (attn_levels_has_(l, level)) attn_levels_fade_(l, level);
  attn_levels_join_(l, top);
  for (int level = 0; level <= top; level++) {
    int64_t some;
    const int64_t first = attn_levels_span_(l, next, level, &some);
    if (some) attn_levels_add_(l, level, first, some);
  }
  l->at += n;
  return n;
}

/* All tokens of a sequence and head, or columns of them. */
ATTN_FUNC_ void attn_levels_item_(void *job, int worker, int64_t index) {
  const attn_recurrent_ *a = (const attn_recurrent_ *)job;
  attn_levels_ l;
  attn_recurrent_chain_ *c = &l.c;
  attn_recurrent_open_(c, a, worker, index);
  attn_levels_cut_(&l, worker);
  for (int64_t level = 0; c->t1 == c->t0 && level < a->levels; level++)
    attn_levels_pass_(&l, level, 0, 0), attn_levels_pass_(&l, level, 0, 1);
  if (c->t1 == c->t0) return;
  l.at = a->p->position ? a->p->position[c->unit] : 0;
  for (int level = 0; l.at > 0 && level < 64; level++) { /* as the last token left them */
    if (level && !(((l.at - 1) >> (level - 1)) & 1)) continue;
    l.held |= (uint64_t)1 << level;
    attn_levels_pass_(&l, level, level, 0);
  }
  const uint64_t begun = l.held;
  if (begun) attn_levels_join_(&l, attn_level_of_(l.at ^ (l.at - 1)));
  for (int64_t i = c->t0; i < c->t1;) {
    const int64_t most = a->chunk - l.at % a->chunk;
    i += attn_levels_chunk_(&l, i, (int)(c->t1 - i < most ? c->t1 - i : most));
  }
  attn_levels_end_(&l, begun);
}
