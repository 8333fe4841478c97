/* families/training/depthwise_backward.h owns the gradients of convolution of each column by itself: of x row by row, of
 * the weights column by column. */

/* Taps of an item of weights: rows are read once for them. */
enum { ATTN_TAPS_ = 4 };

typedef struct attn_depthwise_back_ {
  const attn_table_ *table;
  attn_tensor d_x, d_w;  /* d_x of any type and as large as x, d_w f32; data null: not made */
  attn_tensor d_y, x, w; /* f32 */
  const int32_t *len;
  attn_taps_ taps;
  int accumulate; /* of d_x */
  int64_t tiles, slices;
  char *own;
  int64_t each;
} attn_depthwise_back_;

/* 64 rows of d_x: taps, ascending, add the rows of d_y that read it by them. */
ATTN_FUNC_ void attn_depthwise_back_x_(void *job, int worker, int64_t index) {
  const attn_depthwise_back_ *a = (const attn_depthwise_back_ *)job;
  const int64_t unit = index / a->tiles, b = unit / a->x.heads, h = unit % a->x.heads;
  const int64_t n = attn_len_of_(a->len, b, a->x.len), len = attn_taps_len_(&a->taps, n);
  const int64_t i0 = index % a->tiles * ATTN_TILE_, i1 = attn_min64_(i0 + ATTN_TILE_, a->x.len);
  const int64_t wide = ATTN_DEPTHWISE_COLUMNS_, step = a->taps.stride, end = attn_min64_(i1, n);
  const attn_dtype type = a->d_x.dtype;
  const int own = a->w.dim > 1;
  float *sum = (float *)(void *)(a->own + worker * a->each);
  for (int64_t c = 0; c < a->x.dim; c += wide) {
    const int cols = (int)attn_min64_(a->x.dim - c, wide);
    memset(sum, 0, (size_t)((i1 - i0) * wide) * sizeof *sum);
    for (int64_t r = 0; r < a->taps.kernel; r++) {
      const int64_t at = attn_taps_start_(&a->taps, 0, len, n) + r * a->taps.dilation;
      const int64_t m0 = at >= i0 ? 0 : (i0 - at + step - 1) / step;
      const int64_t m1 = at >= end ? 0 : attn_min64_((end - at + step - 1) / step, len);
      const float *w = (const float *)(const void *)attn_at_(&a->w, 0, a->w.heads > 1 ? h : 0, r);
      if (m0 < m1)
        attn_depthwise_tap_(a->table, sum + (at + m0 * step - i0) * wide, step * wide,
                            (const float *)(const void *)attn_at_(&a->d_y, b, h, m0) + c,
                            a->d_y.stride_len, w + (own ? c : 0), own, m1 - m0, cols);
    }
    for (int64_t i = i0; i < i1; i++) {
      char *to = attn_at_(&a->d_x, b, h, i) + attn_bytes_(type, c);
      a->table->blend(to, sum + (i - i0) * wide, a->accumulate ? to : NULL, type, ATTN_F32, type,
                      cols, 1.0f, 1.0f);
    }
  }
}

/* Row i of x under tap r of output row m, or null. */
ATTN_FUNC_ const float *attn_depthwise_under_(const attn_depthwise_back_ *a, int64_t b, int64_t h,
                                              int64_t m, int64_t r, int64_t len, int64_t n) {
  const int64_t i = attn_taps_start_(&a->taps, m, len, n) + r * a->taps.dilation;
  return i < 0 || i >= n ? NULL : (const float *)(const void *)attn_at_(&a->x, b, h, i);
}

/* Sums over batch entries, heads and rows, in runs of 512 that are joined, of some taps and columns. */
typedef struct attn_depthwise_sums_ {
  float near[ATTN_TAPS_][ATTN_DEPTHWISE_COLUMNS_], far[ATTN_TAPS_][ATTN_DEPTHWISE_COLUMNS_];
  int64_t rows[ATTN_TAPS_];
} attn_depthwise_sums_;

/* near += x o y of tap t. */
ATTN_FUNC_ void attn_depthwise_meet_(attn_depthwise_sums_ *s, int t, const float *x, const float *y,
                                     int some) {
  float *near = s->near[t];
  if (s->rows[t] == ATTN_SHARES_RUN_) {
    for (int k = 0; k < some; k++) s->far[t][k] += near[k], near[k] = 0.0f;
    s->rows[t] = 0;
  }
  s->rows[t]++;
  if (some == ATTN_DEPTHWISE_COLUMNS_)
    for (int k = 0; k < ATTN_DEPTHWISE_COLUMNS_; k++) near[k] += x[k] * y[k];
  else
    for (int k = 0; k < some; k++) near[k] += x[k] * y[k];
}

/* Taps r0 .. r1 - 1, columns c .. of one head's weights: a row of d_y meets those of x under all of them. */
ATTN_FUNC_ void attn_depthwise_back_taps_(const attn_depthwise_back_ *a, int64_t head, int64_t r0,
                                          int64_t r1, int64_t c, int some) {
  const int64_t h1 = a->w.heads > 1 ? head + 1 : a->x.heads;
  const float one = 1.0f; /* times the product of a row, where a tap has one weight */
  attn_depthwise_sums_ s;
  attn_clear_(&s, sizeof s);
  for (int64_t b = 0; b < a->x.batch; b++) {
    const int64_t n = attn_len_of_(a->len, b, a->x.len), len = attn_taps_len_(&a->taps, n);
    for (int64_t h = a->w.heads > 1 ? head : 0; h < h1; h++)
      for (int64_t m = 0; m < len; m++) {
        const float *y = (const float *)(const void *)attn_at_(&a->d_y, b, h, m);
        for (int64_t r = r0; r < r1; r++) {
          const float *x = attn_depthwise_under_(a, b, h, m, r, len, n);
          float dot;
          if (!x) continue;
          if (a->w.dim > 1) {
            attn_depthwise_meet_(&s, (int)(r - r0), x + c, y + c, some);
            continue;
          }
          attn_on_(gradient, a->table)->row_dots(&dot, x, y, 1, a->x.dim);
          attn_depthwise_meet_(&s, (int)(r - r0), &dot, &one, 1);
        }
      }
  }
  for (int64_t r = r0; r < r1; r++) {
    float *out = (float *)(void *)attn_at_(&a->d_w, 0, head, r) + c;
    for (int k = 0; k < some; k++) out[k] = s.far[r - r0][k] + s.near[r - r0][k];
    attn_row_one_nan_(a->table, out, some);
  }
}

/* Some taps, and some columns, of a head's weights. */
ATTN_FUNC_ void attn_depthwise_back_w_(void *job, int worker, int64_t index) {
  const attn_depthwise_back_ *a = (const attn_depthwise_back_ *)job;
  const int64_t groups = attn_runs_of_(a->taps.kernel, ATTN_TAPS_);
  const int64_t c = index % a->slices * ATTN_DEPTHWISE_COLUMNS_, at = index / a->slices;
  const int64_t r0 = at % groups * ATTN_TAPS_;
  (void)worker;
  attn_depthwise_back_taps_(a, at / groups, r0, attn_min64_(r0 + ATTN_TAPS_, a->taps.kernel), c,
                            (int)attn_min64_(a->w.dim - c, ATTN_DEPTHWISE_COLUMNS_));
}

/* t, or its rows as f32. */
ATTN_COLD_ attn_tensor attn_stage_f32_(attn_stage_ *s, const attn_tensor *t) {
  if (t->dtype == ATTN_F32) return *t;
  const attn_tensor y = attn_stage_tensor_(s, t->batch, t->heads, t->len, t->dim);
  (void)attn_stage_shares_(s, y, *t, 0);
  return y;
}

ATTN_COLD_ int attn_depthwise_back_steps_(attn_stage_ *s, void *job) {
  const attn_convolve_back_ *j = (const attn_convolve_back_ *)job;
  attn_depthwise_back_ a;
  attn_clear_(&a, sizeof a);
  a.table = s->table, a.len = j->p.x_len, a.taps = j->taps, a.accumulate = j->accumulate;
  a.d_y = attn_stage_f32_(s, &j->d_y), a.w = attn_stage_f32_(s, &j->w);
  a.x = j->d_w.data ? attn_stage_f32_(s, &j->x) : j->x;
  a.tiles = attn_tiles_of_(j->x.len), a.slices = attn_runs_of_(j->w.dim, ATTN_DEPTHWISE_COLUMNS_);
  if (j->d_x.data) {
    const int whole = attn_gradient_whole_(&j->d_x, &j->x);
    a.d_x = whole ? j->d_x : attn_stage_make_(s, &j->d_x, &j->x, j->accumulate);
    if (!whole) a.accumulate = 0;
    a.each = attn_piece_(ATTN_TILE_ * ATTN_DEPTHWISE_COLUMNS_, sizeof(float));
    if (!attn_stage_for_(s, attn_mul_(attn_mul_(j->x.batch, j->x.heads), a.tiles),
                         attn_depthwise_back_x_, &a, a.each, &a.own) ||
        !attn_stage_made_(s, &j->d_x, a.d_x, j->accumulate))
      return 0;
  }
  if (!j->d_w.data) return 1;
  a.d_w = j->d_w.dtype == ATTN_F32 ? attn_stage_make_(s, &j->d_w, &j->w, j->accumulate)
                                   : attn_stage_tensor_(s, 1, j->w.heads, j->w.len, j->w.dim);
  const int64_t groups = attn_runs_of_(j->w.len, ATTN_TAPS_);
  return attn_stage_for_(s, attn_mul_(attn_mul_(j->w.heads, groups), a.slices),
                         attn_depthwise_back_w_, &a, 0, NULL) &&
         attn_stage_made_(s, &j->d_w, a.d_w, j->accumulate);
}

ATTN_COLD_ attn_status attn_convolve_depthwise_backward_call_(
    attn_tensor d_x, attn_tensor d_w, attn_tensor d_y, attn_tensor x, attn_tensor w,
    const attn_convolve_params *params, const attn_convolve_gradients *gradients, attn_ctx *ctx,
    size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_convolve_back_ a;
  int workers = 1;
  attn_clear_(&a, sizeof a);
  a.d_x = d_x, a.d_w = d_w, a.d_y = d_y, a.x = x, a.w = w;
  if (params) a.p = *params;
  if (gradients) a.d_bias = gradients->d_bias, a.accumulate = gradients->accumulate;
  if (attn_check_ctx_(&e, ctx, &a.table, &workers))
    (void)attn_convolve_back_check_(&e, &a, ctx, bytes != NULL, 1);
  return attn_step_call_or_(
      &e, a.table, workers, ctx, attn_depthwise_back_steps_, &a, "columns by themselves",
      d_x.data || d_w.data || a.d_bias.data ? NULL : "no output is asked for", bytes);
}
ATTN_CALL_(attn_convolve_depthwise_backward, (d_x, d_w, d_y, x, w, params, gradients),
           attn_tensor d_x, attn_tensor d_w, attn_tensor d_y, attn_tensor x, attn_tensor w,
           const attn_convolve_params *params, const attn_convolve_gradients *gradients)
