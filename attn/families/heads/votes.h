/* families/heads/votes.h owns the votes of heads for capsules: some tokens' at a time, and what both kinds
 * of routing do with those of one token. Numbers of (h, n) pairs are rows of heads, [H][N]. */

/* Floats of votes that a worker holds; they stay in the second cache. Shorter capsules are taken side
 * by side, a head at a time. */
enum { ATTN_VOTES_ = 98304, ATTN_VOTE_TOKENS_ = 48, ATTN_CAPSULE_WIDE_ = 8 };

typedef struct attn_votes_ {
  const attn_table_ *table;
  attn_tensor y, x, w;     /* w absent: x are the votes */
  int64_t heads, n, dc, m; /* m = n dc */
  int64_t tokens;          /* of an item */
  int64_t wide;            /* floats of a row of the packed weights */
  const float *packed;     /* [H][dv][wide] */
  const int32_t *index;    /* 0 .. H-1 */
  const float *ones;       /* [H] */
  int64_t rounds;
  char *memory; /* of the workers: votes, rows of x, then what a token needs */
  int64_t each, at_rows, at_token;
} attn_votes_;

/* What a token needs for the steps below. */
typedef struct attn_votes_room_ {
  float *row, *gain;      /* [N dc] */
  float *column;          /* [H] */
  float *top, *sum, *inv; /* of a softmax, [H] or [N] */
} attn_votes_room_;

/* Floats of it; at = null: only that. */
ATTN_FUNC_ int64_t attn_votes_cut_(const attn_votes_ *a, attn_votes_room_ *r, float *at) {
  const int64_t most = a->heads > a->n ? a->heads : a->n;
  if (at) {
    r->row = at, r->gain = r->row + a->m, r->column = r->gain + a->m;
    r->top = r->column + a->heads, r->sum = r->top + most, r->inv = r->sum + most;
  }
  return attn_add_(attn_mul_(2, a->m), attn_add_(a->heads, attn_mul_(3, most)));
}

/* row = x by gain + plus, element by element; plus null = 0 */
ATTN_FUNC_ void attn_votes_times_(const attn_votes_ *a, float *row, const float *x,
                                  const float *gain, const float *plus) {
  memcpy(row, x, (size_t)a->m * sizeof(float));
  attn_on_(norm, a->table)->normalise(row, a->m, 0.0f, 1.0f, 0.0f, gain, plus);
}

/* y_n = sum_h p[h][n] u_hn */
ATTN_FUNC_ void attn_votes_sum_(const attn_votes_ *a, const attn_votes_room_ *r, float *y,
                                const float *p, const float *u, int64_t stride) {
  const int64_t dc = a->dc;
  memset(y, 0, (size_t)a->m * sizeof(float));
  if (dc >= ATTN_CAPSULE_WIDE_)
    for (int64_t n = 0; n < a->n; n++) {
      for (int64_t h = 0; h < a->heads; h++) r->column[h] = p[h * a->n + n];
      attn_on_(sum, a->table)
          ->axpys(y + n * dc, r->column, u + n * dc, stride, a->index, a->heads, dc, ATTN_F32, 1.0f,
                  0);
    }
  if (dc < ATTN_CAPSULE_WIDE_)
    for (int64_t h = 0; h < a->heads; h++) {
      const float *by = p + h * a->n;
      if (dc > 1)
        for (int64_t n = 0; n < a->n; n++)
          for (int64_t c = 0; c < dc; c++) r->gain[n * dc + c] = by[n];
      attn_votes_times_(a, r->row, u + h * stride, dc > 1 ? r->gain : by, y);
      memcpy(y, r->row, (size_t)a->m * sizeof(float));
    }
}

/* l[h][n] = base + u_hn . v_n; base: shift[n], or what l holds */
ATTN_FUNC_ void attn_votes_dots_(const attn_votes_ *a, const attn_votes_room_ *r, float *l,
                                 const float *v, const float *u, int64_t stride,
                                 const float *shift) {
  const int64_t dc = a->dc;
  if (dc >= ATTN_CAPSULE_WIDE_)
    for (int64_t n = 0; n < a->n; n++) {
      attn_on_(list, a->table)
          ->dots(r->column, v + n * dc, u + n * dc, stride, a->index, a->heads, dc, ATTN_F32, 0);
      for (int64_t h = 0; h < a->heads; h++)
        l[h * a->n + n] = (shift ? shift[n] : l[h * a->n + n]) + r->column[h];
    }
  if (dc < ATTN_CAPSULE_WIDE_)
    for (int64_t h = 0; h < a->heads; h++) {
      float *to = l + h * a->n;
      const float *base = shift ? shift : to;
      attn_votes_times_(a, r->row, u + h * stride, v, dc > 1 ? NULL : base);
      if (dc == 1) memcpy(to, r->row, (size_t)a->m * sizeof(float));
      if (dc > 1)
        for (int64_t n = 0; n < a->n; n++) {
          float sum = r->row[n * dc];
          for (int64_t c = 1; c < dc; c++) sum += r->row[n * dc + c];
          to[n] = base[n] + sum;
        }
    }
}

/* c = softmax over n for each h of l in log2 units; r keeps the largest l and the sum. */
ATTN_FUNC_ void attn_votes_softmax_(const attn_votes_ *a, const attn_votes_room_ *r, float *c,
                                    const float *l) {
  const int64_t heads = a->heads, n = a->n;
  memcpy(c, l, (size_t)(heads * n) * sizeof(float));
  attn_on_(feature, a->table)->top_rows(r->top, c, n, heads, n, 0);
  attn_on_(feature, a->table)->power_rows(c, n, heads, n, r->top, a->ones, 0.0f, 0);
  for (int64_t h = 0; h < heads; h++) {
    float sums[2];
    attn_on_(norm, a->table)->moments(sums, c + h * n, n, 0.0f);
    r->sum[h] = sums[0], r->inv[h] = 1.0f / sums[0];
  }
  a->table->scale_rows(c, n, c, n, heads, n, r->inv);
}

/* The same over h for each n. */
ATTN_FUNC_ void attn_votes_softmax_heads_(const attn_votes_ *a, const attn_votes_room_ *r, float *c,
                                          const float *l) {
  const int64_t heads = a->heads, count = a->n;
  for (int64_t n = 0; n < count; n++) r->top[n] = -INFINITY, r->sum[n] = 0.0f;
  for (int64_t h = 0; h < heads; h++)
    for (int64_t n = 0; n < count; n++)
      if (l[h * count + n] > r->top[n]) r->top[n] = l[h * count + n];
  for (int64_t h = 0; h < heads; h++)
    for (int64_t n = 0; n < count; n++) c[h * count + n] = l[h * count + n] - r->top[n];
  a->table->weights(c, c, heads * count, 0.0f, 1.0f);
  for (int64_t h = 0; h < heads; h++)
    for (int64_t n = 0; n < count; n++) r->sum[n] += c[h * count + n];
  for (int64_t n = 0; n < count; n++) r->inv[n] = 1.0f / r->sum[n];
  for (int64_t h = 0; h < heads; h++)
    for (int64_t n = 0; n < count; n++) c[h * count + n] *= r->inv[n];
}

/* ---- the votes of some tokens ---------------------------------------------------------------*/

/* Rules that both kinds of routing share. */
ATTN_COLD_ int attn_votes_check_(attn_error_ *e, attn_votes_ *a, int64_t capsules, int64_t rounds) {
  const int64_t h = a->x.heads;
  if (h < 1) return attn_reject_(e, ATTN_E_SHAPE, "x.heads must be at least 1");
  if (capsules < 0) return attn_reject_(e, ATTN_E_SHAPE, "params.capsules must not be negative");
  if (a->w.data) {
    a->n = a->w.heads, a->dc = a->w.dim;
    if (a->n < 1 || (capsules && capsules != a->n))
      return attn_reject_(e, ATTN_E_SHAPE, "params.capsules must be 0 or w.heads, at least 1");
  } else {
    a->n = capsules;
    if (capsules < 1 || a->x.dim % capsules)
      return attn_reject_(e, ATTN_E_SHAPE,
                          "params.capsules must divide x.dim when x holds the votes");
    a->dc = a->x.dim / capsules;
  }
  a->heads = h, a->m = attn_mul_(a->n, a->dc);
  if (a->y.dim != a->m)
    return attn_reject_(e, ATTN_E_SHAPE, "y.dim must be the number of capsules times their width");
  if (rounds < 0 || rounds > INT32_MAX)
    return attn_reject_(e, ATTN_E_RANGE, "params.iterations must be at least 1, or 0 for 3");
  a->rounds = rounds ? rounds : 3;
  if (h > INT32_MAX || attn_mul_(attn_mul_(h, a->m), 64) > INT64_MAX / 64)
    return attn_reject_(e, ATTN_E_OVERFLOW, "the votes of a token are too many");
  return 1;
}

/* Rows of one matrix, capsules side by side. */
ATTN_FUNC_ void attn_votes_pack_(void *job, int worker, int64_t h) {
  const attn_votes_ *a = (const attn_votes_ *)job;
  const int64_t dv = a->w.len;
  float *to = (float *)(uintptr_t)a->packed + h * dv * a->wide;
  (void)worker;
  memset(to, 0, (size_t)(dv * a->wide) * sizeof(float));
  for (int64_t i = 0; i < dv; i++)
    for (int64_t n = 0; n < a->n; n++)
      a->table->widen(to + i * a->wide + n * a->dc, attn_at_(&a->w, h, n, i), 0, NULL, 1, a->dc,
                      a->w.dtype, NULL);
}

/* The first token of an item, its batch entry, and how many there are. */
ATTN_FUNC_ int64_t attn_votes_first_(const attn_votes_ *a, int64_t index, int64_t *b, int64_t *t) {
  const int64_t runs = (a->x.len + a->tokens - 1) / a->tokens;
  *b = index / runs, *t = index % runs * a->tokens;
  return a->x.len - *t < a->tokens ? a->x.len - *t : a->tokens;
}

/* Votes of head h are `stride` floats behind those of head h - 1, those of a token `*next`. */
ATTN_FUNC_ const float *attn_votes_of_(const attn_votes_ *a, int worker, int64_t b, int64_t t,
                                       int64_t tokens, int64_t *stride, int64_t *next) {
  const attn_table_ *f = a->table;
  char *memory = a->memory + worker * a->each;
  float *u = (float *)(void *)memory, *rows = (float *)(void *)(memory + a->at_rows);
  const int plain = a->x.dtype == ATTN_F32;
  if (!a->w.data && plain) {
    *stride = a->x.stride_head, *next = a->x.stride_len;
    return (const float *)(const void *)attn_at_(&a->x, b, 0, t);
  }
  *stride = a->m, *next = a->heads * a->m;
  for (int64_t h = 0; h < a->heads; h++) {
    const float *x = (const float *)(const void *)attn_at_(&a->x, b, h, t);
    int64_t x_stride = a->x.stride_len;
    if (!a->w.data)
      for (int64_t i = 0; i < tokens; i++)
        f->widen(u + i * *next + h * a->m, attn_at_(&a->x, b, h, t + i), 0, NULL, 1, a->m,
                 a->x.dtype, NULL);
    if (!a->w.data) continue;
    if (!plain) {
      f->widen(rows, x, x_stride, NULL, tokens, a->x.dim, a->x.dtype, NULL);
      x = rows, x_stride = a->x.dim;
    }
    for (int64_t k = 0; k < a->x.dim; k += ATTN_DEEP_) {
      const int64_t deep = a->x.dim - k < ATTN_DEEP_ ? a->x.dim - k : (int64_t)ATTN_DEEP_;
      attn_on_(dense, f)->gemm(u + h * a->m, *next, tokens, x + k, x_stride, 1,
                               a->packed + (h * a->x.dim + k) * a->wide, a->wide, deep, a->m,
                               k == 0);
    }
  }
  return u;
}

/* Packs the weights and runs items; own: floats of a token beside its votes, as whole pieces. */
ATTN_COLD_ int attn_votes_run_(attn_stage_ *s, attn_votes_ *a, attn_item_fn_ item, int64_t own) {
  const int64_t f = sizeof(float), one = attn_mul_(a->heads, a->m);
  const int made = a->w.data || a->x.dtype != ATTN_F32; /* votes have no memory yet */
  a->table = s->table;
  a->tokens = a->w.data ? ATTN_VOTES_ / one / 6 * 6 : 1;
  if (a->tokens > ATTN_VOTE_TOKENS_) a->tokens = ATTN_VOTE_TOKENS_;
  if (a->w.data && a->tokens < 6) a->tokens = 6;
  a->wide = (a->m + 15) / 16 * 16;
  int32_t *index = (int32_t *)attn_stage_take_(s, a->heads, sizeof *index);
  float *ones = (float *)attn_stage_take_(s, a->heads, f);
  a->index = index, a->ones = ones;
  if (a->w.data) {
    const int64_t all = attn_mul_(attn_mul_(a->heads, a->w.len), a->wide);
    a->packed = (const float *)attn_stage_take_(s, all, f);
    if (!attn_stage_for_(s, a->heads, attn_votes_pack_, a, 0, NULL)) return 0;
  }
  if (s->run)
    for (int64_t h = 0; h < a->heads; h++) index[h] = (int32_t)h, ones[h] = 1.0f;
  a->at_rows = made ? attn_piece_(attn_mul_(one, a->tokens), f) : 0;
  a->at_token = attn_add_(a->at_rows, a->w.data && a->x.dtype != ATTN_F32
                                          ? attn_piece_(attn_mul_(a->x.dim, a->tokens), f)
                                          : 0);
  a->each = attn_add_(a->at_token, own);
  const int64_t runs = (a->x.len + a->tokens - 1) / a->tokens;
  return attn_stage_for_(s, attn_mul_(a->x.batch, runs), item, a, a->each, &a->memory);
}

ATTN_FUNC_ void attn_votes_put_(const attn_votes_ *a, int64_t b, int64_t t, const float *v) {
  a->table->blend(attn_at_(&a->y, b, 0, t), v, NULL, a->y.dtype, ATTN_F32, ATTN_F32, a->m, 1.0f,
                  0.0f);
}
