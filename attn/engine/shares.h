/* engine/shares.h owns gradients of what was read more than once: which extents they have, and the sum over
 * batch entries, heads and rows, in this order, in runs of 512 that are joined. */

enum { ATTN_SHARES_RUN_ = 512, ATTN_SHARES_COLS_ = 512 };

/* Whether d has the extents of x, or 1 where x has the same numbers all along. */
ATTN_FUNC_ int attn_gradient_axis_(int64_t d, int64_t n, int64_t stride) {
  return d == n || (d == 1 && stride == 0);
}
ATTN_FUNC_ int attn_gradient_fits_(const attn_tensor *d, const attn_tensor *x) {
  return d->dim == x->dim && attn_gradient_axis_(d->batch, x->batch, x->stride_batch) &&
         attn_gradient_axis_(d->heads, x->heads, x->stride_head) &&
         attn_gradient_axis_(d->len, x->len, x->stride_len);
}

/* 0 in rows from .. of heads h0 .. of a batch entry. */
ATTN_FUNC_ void attn_zero_rows_(const attn_tensor *y, int64_t b, int64_t h0, int64_t heads,
                                int64_t from) {
  for (int64_t h = h0; y->data && h < h0 + heads; h++)
    for (int64_t i = from; i < y->len; i++)
      memset(attn_at_(y, b, h, i), 0, (size_t)attn_bytes_(y->dtype, y->dim));
}

/* Whether each row of d is that of one row of y, and no sum. */
ATTN_FUNC_ int attn_gradient_whole_(const attn_tensor *d, const attn_tensor *y) {
  return d->batch == y->batch && d->heads == y->heads && d->len == y->len;
}

/* One entry, or one head, for all of those of y. */
ATTN_FUNC_ attn_tensor attn_spread_to_(const attn_tensor *t, const attn_tensor *y) {
  return attn_spread_heads_(attn_spread_(*t, y->batch), y->heads);
}

/* Whether an output lies where an input does. */
ATTN_FUNC_ int attn_in_place_(const attn_tensor *y, const attn_tensor *x) {
  return y->data && attn_same_view_(y, x) && attn_gradient_whole_(y, x) && y->dim == x->dim;
}

/* Whether the rows of all heads, or of all batch entries of one head, lie at equal steps in n tensors; they become
 * those of one. */
ATTN_FUNC_ void attn_merge_heads_(attn_tensor *const *t, int n) {
  for (int i = 0; i < n; i++) {
    const int64_t step = t[i]->len > 1 ? attn_mul_(t[i]->len, t[i]->stride_len) : t[i]->stride_head;
    if (t[i]->heads < 2 || t[i]->stride_head != step) return;
  }
  for (int i = 0; i < n; i++) {
    if (t[i]->len <= 1) t[i]->stride_len = t[i]->stride_head;
    t[i]->len = attn_mul_(t[i]->len, t[i]->heads), t[i]->heads = 1, t[i]->stride_head = 0;
  }
}
ATTN_FUNC_ void attn_merge_batch_(attn_tensor *const *t, int n) {
  for (int i = 0; i < n; i++) {
    const int64_t step =
        t[i]->len > 1 ? attn_mul_(t[i]->len, t[i]->stride_len) : t[i]->stride_batch;
    if (t[i]->heads != 1 || t[i]->batch < 2 || t[i]->stride_batch != step) return;
  }
  for (int i = 0; i < n; i++) {
    if (t[i]->len <= 1) t[i]->stride_len = t[i]->stride_batch;
    t[i]->len = attn_mul_(t[i]->len, t[i]->batch), t[i]->batch = 1, t[i]->stride_batch = 0;
  }
}

typedef struct attn_shares_ {
  const attn_table_ *table;
  attn_tensor y, x; /* y: extents of x or 1 */
  int accumulate;
  int64_t tiles, slices; /* 64 rows of y, 512 columns */
} attn_shares_;

/* Columns c .. c + n - 1 of row (b, h, i) of y. */
ATTN_FUNC_ void attn_shares_row_(const attn_shares_ *a, int64_t b, int64_t h, int64_t i, int64_t c,
                                 int64_t n) {
  const attn_tensor *x = &a->x, *y = &a->y;
  const attn_table_ *f = a->table;
  const attn_dtype out = y->dtype;
  const int64_t b1 = y->batch == x->batch ? b + 1 : x->batch;
  const int64_t h1 = y->heads == x->heads ? h + 1 : x->heads;
  const int64_t i1 = y->len == x->len ? i + 1 : x->len;
  float near[ATTN_SHARES_COLS_], far[ATTN_SHARES_COLS_];
  int64_t some = 0, runs = 0;
  const float *sum = near;
  for (int64_t e = y->batch == x->batch ? b : 0; e < b1; e++)
    for (int64_t g = y->heads == x->heads ? h : 0; g < h1; g++)
      for (int64_t r = y->len == x->len ? i : 0; r < i1; r++) {
        const char *from = attn_at_(x, e, g, r) + attn_bytes_(x->dtype, c);
        if (some == ATTN_SHARES_RUN_) {
          f->blend(far, near, runs ? far : NULL, ATTN_F32, ATTN_F32, ATTN_F32, n, 1.0f, 1.0f);
          runs = 1, some = 0;
        }
        f->blend(near, from, some ? near : NULL, ATTN_F32, x->dtype, ATTN_F32, n, 1.0f, 1.0f);
        some++;
      }
  if (runs) {
    f->blend(far, near, far, ATTN_F32, ATTN_F32, ATTN_F32, n, 1.0f, 1.0f);
    sum = far;
  } else if (!some) {
    memset(near, 0, sizeof near);
  }
  char *to = attn_at_(y, b, h, i) + attn_bytes_(out, c);
  f->blend(to, sum, a->accumulate ? to : NULL, out, ATTN_F32, out, n, 1.0f, 1.0f);
}

ATTN_FUNC_ void attn_shares_item_(void *job, int worker, int64_t index) {
  const attn_shares_ *a = (const attn_shares_ *)job;
  const int64_t slice = index % a->slices, tile = index / a->slices % a->tiles;
  const int64_t unit = index / a->slices / a->tiles, c = slice * ATTN_SHARES_COLS_;
  const int64_t n = a->y.dim - c < ATTN_SHARES_COLS_ ? a->y.dim - c : (int64_t)ATTN_SHARES_COLS_;
  const int64_t end = (tile + 1) * ATTN_TILE_ < a->y.len ? (tile + 1) * ATTN_TILE_ : a->y.len;
  (void)worker;
  for (int64_t i = tile * ATTN_TILE_; i < end; i++)
    attn_shares_row_(a, unit / a->y.heads, unit % a->y.heads, i, c, n);
}

/* y = sums of x, or is added to them. */
ATTN_COLD_ int attn_stage_shares_(attn_stage_ *s, attn_tensor y, attn_tensor x, int accumulate) {
  attn_shares_ a;
  attn_clear_(&a, sizeof a);
  a.table = s->table, a.y = y, a.x = x, a.accumulate = accumulate;
  a.tiles = attn_tiles_of_(y.len), a.slices = attn_runs_of_(y.dim, ATTN_SHARES_COLS_);
  return attn_stage_for_(s, attn_mul_(attn_mul_(y.batch, y.heads), attn_mul_(a.tiles, a.slices)),
                         attn_shares_item_, &a, 0, NULL);
}

/* Where a step leaves the gradient that becomes d by attn_stage_made_: in d itself, or in a tensor of y's extents. */
ATTN_COLD_ attn_tensor attn_stage_make_(attn_stage_ *s, const attn_tensor *d, const attn_tensor *y,
                                        int accumulate) {
  if (!accumulate && attn_gradient_whole_(d, y)) return *d;
  return attn_stage_tensor_(s, y->batch, y->heads, y->len, d->dim);
}
ATTN_COLD_ int attn_stage_made_(attn_stage_ *s, const attn_tensor *d, attn_tensor made,
                                int accumulate) {
  return made.data == d->data || attn_stage_shares_(s, *d, made, accumulate);
}
