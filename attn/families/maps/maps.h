/* families/maps/maps.h owns tiles of scores that are mixed with those of the layer below: fresh ones
 * by the engine, the convolution of a map, the mixture in rows, and the engine once more for the
 * softmax over what is then there. The calls are in families/maps/mixed.h. */

enum { ATTN_MAPS_STRIP_ = 256 }; /* columns that are convolved while they are in the first cache */

/* scores = fresh A + carried previous + convolved act(conv(A source[0] + previous source[1])) */
typedef struct attn_maps_job_ {
  attn_softmax_ fresh, after; /* A in natural units; the softmax of what is given, and its masks */
  attn_tensor previous, scores, kernel;
  const float *bias; /* of the convolution */
  float by_fresh, by_previous, by_convolved, source[2];
  int convolve, relu, causal;
  double mean;    /* what scores are divided by */
  int64_t kh, kw; /* 1, 1 without a convolution */
  int64_t above;  /* rows of the source above the first row of a tile */
  int64_t heads;  /* of an item: all, or 1 */
  int64_t rows;   /* of a tile of outputs */
  int64_t tiles;  /* per head */
  int64_t width;  /* floats of a row of the source */
  int whole;      /* every pair has a fresh score, not only those that may be seen */
  float *weights; /* [kw][H][kh H] */
  char *memory;   /* of the workers */
  int64_t each, at_after, at_fresh, at_scores, at_source, at_sum;
} attn_maps_job_;

/* The engine in natural units: nothing else of it is used for fresh scores. */
static const attn_reshape_ attn_maps_natural_ = {NULL, 1,    0,    0,    NULL, 0,    0,    NULL,
                                                 0,    0,    0,    NULL, NULL, NULL, NULL, NULL,
                                                 NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL};

/* ---- fresh scores ---------------------------------------------------------------------------*/

/* Keys that rows i0 .. i0 + n - 1 may see, some more with `whole`. */
ATTN_FUNC_ void attn_maps_keys_(const attn_maps_job_ *a, int64_t b, int64_t i0, int64_t n,
                                int64_t *j0, int64_t *j1) {
  const attn_softmax_ *f = &a->after;
  *j0 = 0, *j1 = f->k.len;
  if (a->whole) return;
  const int64_t keys = f->kv_len ? f->kv_len[b] : f->k.len;
  *j0 = f->keep ? 0 : attn_clamp_(i0 + f->q_off - f->left, 0, keys);
  *j1 = attn_clamp_(i0 + n - 1 + f->q_off + f->right + 1, *j0, keys);
}

/* x[r][j] of rows i0 + r, at most a tile of them, for j0 <= j < j1; keys that are not read have
 * 0. */
ATTN_FUNC_ void attn_maps_fresh_(const attn_maps_job_ *job, int worker, int64_t b, int64_t h,
                                 int64_t i0, int64_t n, float *x, int64_t j0, int64_t j1) {
  const attn_softmax_ *a = &job->fresh;
  const int64_t keys = a->kv_len ? a->kv_len[b] : a->k.len, end = j1 < keys ? j1 : keys;
  attn_tile_ t;
  attn_block_ block;
  void *rows[ATTN_TILE_];
  attn_tile_open_(&t, a, worker);
  t.batch = b, t.n = (int)n, t.xl_next = -1, t.careful = t.rel_careful = 0;
  t.w.held->n = 0, *t.w.pairs = 0;
  for (int r = 0; r < t.n; r++) {
    t.row[r] = i0 + r, t.head[r] = h;
    for (int64_t j = end > j0 ? end : j0; j < j1; j++) x[r * a->k.len + j] = 0.0f;
  }
  attn_tile_lanes_(&t);
  attn_tile_terms_(&t);
  attn_block_terms_(&t, &block);
  for (int64_t j = j0, next; j < end; j = next) {
    next = (j / ATTN_BLOCK_ + 1) * ATTN_BLOCK_;
    if (next > end) next = end;
    attn_block_open_(&t, &block, j, next); /* all rows see all of it */
    attn_block_fetch_(&t, &block);
    attn_block_modifiers_(&t, &block);
    attn_block_scores_(&t, &block);
    for (int r = 0; r < t.n; r++) rows[r] = x + r * a->k.len + j;
    a->table->unpack(rows, t.w.s, t.n, next - j, ATTN_F32, NULL);
  }
}

/* ---- rows of mixed scores ---------------------------------------------------------------------*/

/* Row r of the mixed scores of a head while they are f32: the caller's, or the worker's. */
ATTN_FUNC_ float *attn_maps_row_(const attn_maps_job_ *a, int worker, int64_t b, int64_t h,
                                 int64_t i0, int64_t r) {
  if (a->scores.data && a->scores.dtype == ATTN_F32)
    return (float *)(void *)attn_at_(&a->scores, b, h, i0 + r);
  float *own = (float *)(void *)(a->memory + worker * a->each + a->at_scores);
  return own + ((a->heads > 1 ? h : 0) * a->rows + r) * a->after.k.len;
}

/* y = by[0] x + by[1] p for columns j0 .. j1; parts with a factor of 0 are not read. */
ATTN_FUNC_ void attn_maps_blend_(const attn_maps_job_ *a, float *y, const float *x, const char *p,
                                 float by_x, float by_p, int64_t j0, int64_t j1) {
  if (p) p += attn_bytes_(a->previous.dtype, j0);
  a->after.table->blend(y + j0, by_x == 0.0f ? NULL : x + j0, by_p == 0.0f ? NULL : p, ATTN_F32,
                        ATTN_F32, a->previous.dtype, j1 - j0, by_x, by_p);
}

/* The softmax of rows i0 .. of a head over scores that are there, and its values. */
ATTN_FUNC_ void attn_maps_attend_(const attn_maps_job_ *a, int worker, int64_t b, int64_t h,
                                  int64_t i0, int64_t n) {
  attn_tile_ t;
  attn_tile_open_(&t, &a->after, worker);
  t.batch = b, t.n = (int)n;
  for (int r = 0; r < t.n; r++) t.row[r] = i0 + r, t.head[r] = h;
  t.given = attn_maps_row_(a, worker, b, h, i0, 0);
  t.given_stride =
      a->scores.data && a->scores.dtype == ATTN_F32 ? a->scores.stride_len : a->after.k.len;
  attn_tile_run_(&t, 1);
}

/* ---- the convolution ------------------------------------------------------------------------*/

/* Row i of a map as this layer sees it: 0 at what is forbidden. */
ATTN_FUNC_ void attn_maps_forbid_(const attn_maps_job_ *a, int64_t b, int64_t h, int64_t i,
                                  float *x) {
  const attn_softmax_ *f = &a->after;
  const int64_t tk = f->k.len, p = i + f->q_off, keys = f->kv_len ? f->kv_len[b] : tk;
  const int64_t near = attn_clamp_(p - f->left, 0, keys);
  const int64_t hi = !f->q_len || i < f->q_len[b] ? attn_clamp_(p + f->right + 1, 0, keys) : 0;
  const char *mask = f->mask.kind ? attn_mask_at_(&f->mask, b, h, i) : NULL;
  const char *bias = f->bias.kind ? attn_mask_at_(&f->bias, b, h, i) : NULL;
  for (int64_t j = f->keep < hi ? f->keep : hi; j < near; j++) x[j] = 0.0f;
  memset(x + hi, 0, (size_t)(tk - hi) * sizeof(float));
  for (int64_t j = 0; (mask || bias) && j < hi; j++) {
    const int64_t at = attn_mask_column_(f, j);
    if (mask && at >= 0 && at < f->mask.k_len &&
        !(f->mask.kind == ATTN_MASK_BITS ? attn_mask_bit_(mask, at) : mask[at] != 0))
      x[j] = 0.0f;
    if (bias && attn_number_(bias, f->bias.k_len > 1 ? j : 0, f->bias.dtype, NULL) == -INFINITY)
      x[j] = 0.0f;
  }
}

/* Row r of the convolution's source of channel h, which is row i of the map, i < 0: outside it. */
ATTN_FUNC_ void attn_maps_source_(const attn_maps_job_ *a, int worker, int64_t b, int64_t h,
                                  int64_t i, int64_t r, const float *x) {
  const int64_t tk = a->after.k.len, left = (a->kw - 1) / 2;
  float *all = (float *)(void *)(a->memory + worker * a->each + a->at_source);
  float *y = all + (r * a->after.q.heads + h) * a->width;
  memset(y, 0, (size_t)(i < 0 ? a->width : left) * sizeof(float));
  if (i < 0) return;
  memset(y + left + tk, 0, (size_t)(a->width - left - tk) * sizeof(float));
  attn_maps_blend_(a, y + left, x, a->previous.data ? attn_at_(&a->previous, b, h, i) : NULL,
                   a->source[0], a->source[1], 0, tk);
  if (a->causal) attn_maps_forbid_(a, b, h, i, y + left);
}

/* weights[e][o][a, c] = kernel[o, c, a, e]: rows of the source follow one another by a, then c. */
ATTN_COLD_ void attn_maps_weights_(const attn_maps_job_ *a) {
  const int64_t heads = a->after.q.heads;
  float *to = a->weights;
  for (int64_t e = 0; e < a->kw; e++)
    for (int64_t o = 0; o < heads; o++)
      for (int64_t r = 0; r < a->kh; r++)
        for (int64_t c = 0; c < heads; c++)
          *to++ = attn_number_(attn_at_(&a->kernel, o, c, r), e, a->kernel.dtype, NULL);
}

/* Adds the convolution to the scores of n rows of all heads: for each column of the kernel one
 * product, heads x (rows and heads of the source) x columns of the map. */
ATTN_FUNC_ void attn_maps_convolve_(const attn_maps_job_ *a, int worker, int64_t b, int64_t i0,
                                    int64_t n) {
  const attn_table_ *f = a->after.table;
  const int64_t heads = a->after.q.heads, tk = a->after.k.len, deep = a->kh * heads;
  char *memory = a->memory + worker * a->each;
  const float *source = (const float *)(const void *)(memory + a->at_source);
  float *sum = (float *)(void *)(memory + a->at_sum);
  for (int64_t j = 0; j < tk; j += ATTN_MAPS_STRIP_) {
    const int64_t cols = tk - j < ATTN_MAPS_STRIP_ ? tk - j : (int64_t)ATTN_MAPS_STRIP_;
    for (int64_t r = 0; r < n; r++) {
      if (a->bias)
        for (int64_t o = 0; o < heads; o++)
          for (int64_t c = 0; c < cols; c++) sum[o * ATTN_MAPS_STRIP_ + c] = a->bias[o];
      for (int64_t e = 0; e < a->kw; e++)
        attn_on_(dense, f)->gemm(sum, ATTN_MAPS_STRIP_, heads, a->weights + e * heads * deep, deep,
                                 1, source + r * heads * a->width + j + e, a->width, deep, cols,
                                 e == 0 && !a->bias);
      for (int64_t o = 0; o < heads; o++) {
        float *y = attn_maps_row_(a, worker, b, o, i0, r) + j, *x = sum + o * ATTN_MAPS_STRIP_;
        if (a->relu) attn_on_(dense, f)->activate(x, cols, NULL, 1.0f, ATTN_ACT_RELU);
        f->blend(y, y, x, ATTN_F32, ATTN_F32, ATTN_F32, cols, 1.0f, a->by_convolved);
      }
    }
  }
}

/* ---- a tile of mixed scores -----------------------------------------------------------------*/

/* Mixed scores of one head, but for the convolution, whose source is laid out. */
ATTN_FUNC_ void attn_maps_head_(const attn_maps_job_ *a, int worker, int64_t b, int64_t h,
                                int64_t i0, int64_t n) {
  const attn_softmax_ *f = &a->after;
  const int64_t tq = f->q.len, tk = f->k.len;
  float *x = (float *)(void *)(a->memory + worker * a->each + a->at_fresh);
  int64_t j0, j1, from = i0, to = i0 + n;
  attn_maps_keys_(a, b, i0, n, &j0, &j1);
  if (a->convolve) from = i0 - a->above, to = from + n + a->kh - 1;
  for (int64_t i = from, some; i < to; i += some) { /* rows outside the map one by one */
    const int inside = i >= 0 && i < tq;
    some = 1;
    if (inside) {
      int64_t end = to < tq ? to : tq;
      if (a->source[0] == 0.0f)
        end = i < i0 ? i0 : i < i0 + n ? i0 + n : end; /* others have no A */
      some = end - i < ATTN_TILE_ ? end - i : (int64_t)ATTN_TILE_;
      const int wanted = a->by_fresh != 0.0f || (a->convolve && a->source[0] != 0.0f);
      if (wanted && (a->source[0] != 0.0f || (i >= i0 && i < i0 + n)))
        attn_maps_fresh_(a, worker, b, h, i, some, x, j0, j1);
    }
    for (int64_t r = i; r < i + some; r++) {
      const float *row = x + (r - i) * tk;
      const char *p = inside && a->previous.data ? attn_at_(&a->previous, b, h, r) : NULL;
      if (a->convolve) attn_maps_source_(a, worker, b, h, inside ? r : -1, r - from, row);
      if (r >= i0 && r < i0 + n)
        attn_maps_blend_(a, attn_maps_row_(a, worker, b, h, i0, r - i0), row, p, a->by_fresh,
                         a->by_previous, j0, j1);
    }
  }
}

/* A tile of rows of one head, or of all. */
ATTN_FUNC_ void attn_maps_item_(void *job, int worker, int64_t index) {
  const attn_maps_job_ *a = (const attn_maps_job_ *)job;
  const attn_softmax_ *f = &a->after;
  const int64_t parts = f->q.heads / a->heads;
  const int64_t tile = a->tiles - 1 - index % a->tiles, unit = index / a->tiles;
  const int64_t b = unit / parts, h0 = unit % parts * a->heads, i0 = tile * a->rows;
  const int64_t n = f->q.len - i0 < a->rows ? f->q.len - i0 : a->rows;
  if (f->k.len > 0)
    for (int64_t h = h0; h < h0 + a->heads; h++) attn_maps_head_(a, worker, b, h, i0, n);
  if (a->convolve && f->k.len > 0) attn_maps_convolve_(a, worker, b, i0, n);
  for (int64_t h = h0; h < h0 + a->heads; h++) {
    if (a->scores.data && a->scores.dtype != ATTN_F32)
      for (int64_t r = 0; r < n; r++)
        f->table->blend(attn_at_(&a->scores, b, h, i0 + r), attn_maps_row_(a, worker, b, h, i0, r),
                        NULL, a->scores.dtype, ATTN_F32, ATTN_F32, f->k.len, 1.0f, 0.0f);
    attn_maps_attend_(a, worker, b, h, i0, n);
  }
}
