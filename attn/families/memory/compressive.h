/* families/memory/compressive.h owns the Compressive Transformer's second memory: how rows that leave the
 * first one are compressed, and the update of both. The layer that reads them is attn_segment_layer. */

/* ---- compression ----------------------------------------------------------------------------*/

typedef struct attn_squeeze_ {
  const attn_table_ *table;
  attn_parts_ y, x;
  const attn_compress_params *p;
  int64_t batch, dim, skip; /* row i of y is block skip + i of x */
  int64_t rows, tiles;      /* of y */
  int64_t blocks, old;      /* blocks of x, and its rows that are in them */
  char *memory;
  int64_t each, at_sum, at_rows;
  attn_matrix_ w; /* a matrix for each tap */
} attn_squeeze_;

/* Row of x that tap t of block b reads; negative: none. */
ATTN_FUNC_ int64_t attn_squeeze_tap_(const attn_squeeze_ *a, int64_t b, int64_t t) {
  const attn_compress_params *p = a->p;
  if (p->kind == ATTN_COMPRESS_CONV) return b * p->rate + t;
  const int64_t back = attn_mul_(p->w.heads - 1 - t, p->dilation);
  return (b + 1) * p->rate - 1 - back;
}

/* Means and maxima of 64 blocks. */
ATTN_FUNC_ void attn_squeeze_pool_(const attn_squeeze_ *a, int64_t b, int64_t first, int n,
                                   char *memory) {
  double *sum = (double *)(void *)memory;
  float *row = (float *)(void *)(memory + a->at_rows);
  for (int r = 0; r < n; r++) {
    for (int64_t t = 0; t < a->p->rate; t++) {
      attn_parts_row_(a->table, row, &a->x, b, (a->skip + first + r) * a->p->rate + t);
      for (int64_t c = 0; c < a->dim; c++) {
        const double x = (double)row[c];
        if (t == 0)
          sum[c] = x;
        else if (a->p->kind == ATTN_COMPRESS_MEAN)
          sum[c] += x;
        else if (x > sum[c] || x != x)
          sum[c] = x;
      }
    }
    const double by = a->p->kind == ATTN_COMPRESS_MEAN ? (double)a->p->rate : 1.0;
    for (int64_t c = 0; c < a->dim; c++) row[c] = (float)(sum[c] / by);
    attn_parts_put_(a->table, &a->y, b, first + r, row);
  }
}

/* Convolutions of 64 blocks: bias, then the taps in order, each one chain over the columns. */
ATTN_FUNC_ void attn_squeeze_conv_(const attn_squeeze_ *a, int64_t b, int64_t first, int n,
                                   char *memory) {
  const attn_table_ *f = a->table;
  float *rows = (float *)(void *)memory, *sum = (float *)(void *)(memory + a->at_sum);
  for (int64_t c = 0; c < n * a->dim; c++) sum[c] = a->p->bias ? a->p->bias[c % a->dim] : 0.0f;
  for (int64_t t = 0; t < a->p->w.heads; t++) {
    const attn_matrix_part_ tap = {0, t, 0, a->dim, 0, a->dim};
    for (int r = 0; r < n; r++) {
      const int64_t i = attn_squeeze_tap_(a, a->skip + first + r, t);
      if (i < 0)
        memset(rows + r * a->dim, 0, (size_t)a->dim * sizeof(float));
      else
        attn_parts_row_(f, rows + r * a->dim, &a->x, b, i);
    }
    attn_matrix_times_(f, &a->w, &tap, sum, a->dim, attn_floats_at_(rows, a->dim, n), 0);
  }
  for (int r = 0; r < n; r++) attn_parts_put_(f, &a->y, b, first + r, sum + r * a->dim);
}

/* Whether row i is used less than row k: then it gives way. NaN is least, of equals the younger. */
ATTN_FUNC_ int attn_squeeze_less_(const float *usage, int32_t i, int32_t k) {
  const float x = usage[i], y = usage[k];
  if (x < y || (x != x && y == y)) return 1;
  if (x > y || (y != y && x == x)) return 0;
  return i > k;
}

/* Moves heap[at] to its place; the least used is on top. */
ATTN_FUNC_ void attn_squeeze_sift_(int32_t *heap, int64_t n, int64_t at, const float *usage) {
  const int32_t x = heap[at];
  for (int64_t child; (child = 2 * at + 1) < n; at = child) {
    if (child + 1 < n && attn_squeeze_less_(usage, heap[child + 1], heap[child])) child++;
    if (attn_squeeze_less_(usage, x, heap[child])) break;
    heap[at] = heap[child];
  }
  heap[at] = x;
}

/* The most used rows of a batch entry: a heap of as many as are wanted, then marks in their order. */
ATTN_FUNC_ void attn_squeeze_choose_(const attn_squeeze_ *a, int64_t b, char *memory) {
  const float *usage = (const float *)(const void *)attn_at_(&a->p->usage, b, 0, 0);
  const int64_t n = a->blocks;
  int32_t *heap = (int32_t *)(void *)memory;
  char *kept = memory + a->at_sum;
  float *row = (float *)(void *)(memory + a->at_rows);
  memset(kept, 0, (size_t)a->old);
  for (int64_t i = 0; i < n; i++) heap[i] = (int32_t)i;
  for (int64_t i = n / 2; i-- > 0;) attn_squeeze_sift_(heap, n, i, usage);
  for (int64_t i = n; i < a->old; i++) {
    if (!attn_squeeze_less_(usage, heap[0], (int32_t)i)) continue;
    heap[0] = (int32_t)i;
    attn_squeeze_sift_(heap, n, 0, usage);
  }
  for (int64_t i = 0; i < n; i++) kept[heap[i]] = 1;
  for (int64_t i = 0, to = -a->skip; i < a->old; i++) {
    if (!kept[i]) continue;
    if (to >= 0) {
      attn_parts_row_(a->table, row, &a->x, b, i);
      attn_parts_put_(a->table, &a->y, b, to, row);
    }
    to++;
  }
}

ATTN_FUNC_ void attn_squeeze_item_(void *job, int worker, int64_t index) {
  const attn_squeeze_ *a = (const attn_squeeze_ *)job;
  char *memory = a->memory + worker * a->each;
  if (a->p->kind == ATTN_COMPRESS_MOST_USED) {
    attn_squeeze_choose_(a, index, memory);
    return;
  }
  const int64_t first = index % a->tiles * ATTN_TILE_, left = a->rows - first;
  const int n = left < ATTN_TILE_ ? (int)left : ATTN_TILE_;
  if (a->p->kind == ATTN_COMPRESS_MEAN || a->p->kind == ATTN_COMPRESS_MAX)
    attn_squeeze_pool_(a, index / a->tiles, first, n, memory);
  else
    attn_squeeze_conv_(a, index / a->tiles, first, n, memory);
}

/* y = the last rows of x's first `old` ones compressed; p is checked and complete. */
ATTN_COLD_ int attn_stage_squeeze_(attn_stage_ *s, const attn_parts_ *y, const attn_parts_ *x,
                                   int64_t old, const attn_compress_params *p) {
  const int64_t f = sizeof(float);
  attn_squeeze_ a;
  memset(&a, 0, sizeof a);
  a.table = s->table, a.y = *y, a.x = *x, a.p = p;
  a.rows = attn_parts_len_(y), a.old = old, a.blocks = old / p->rate;
  if (a.rows == 0) return 1;
  a.skip = a.blocks - a.rows;
  a.batch = x->part[0].batch, a.dim = x->part[0].dim, a.tiles = attn_tiles_of_(a.rows);
  const int64_t tile = attn_piece_(attn_mul_(a.dim, ATTN_TILE_), f);
  const int most = p->kind == ATTN_COMPRESS_MOST_USED;
  int matrices = 0;
  if (most) {
    a.at_sum = attn_piece_(a.blocks, sizeof(int32_t));
    a.at_rows = attn_add_(a.at_sum, attn_piece_(old, 1));
    a.each = attn_add_(a.at_rows, attn_piece_(a.dim, f));
  } else if (p->kind == ATTN_COMPRESS_MEAN || p->kind == ATTN_COMPRESS_MAX) {
    a.at_rows = attn_piece_(a.dim, sizeof(double));
    a.each = attn_add_(a.at_rows, attn_piece_(a.dim, f));
  } else {
    a.w = attn_matrix_of_(p->w, 0, a.rows, a.batch);
    a.at_sum = tile, a.each = attn_add_(tile, tile);
    matrices = 1;
  }
  return attn_stage_products_(s, &a.w, matrices, attn_mul_(a.batch, most ? 1 : a.tiles),
                              attn_squeeze_item_, &a, a.each, &a.memory);
}

/* The rules of p for rows [batch,1,rows,dim]; what the kind does not read becomes absent. op[2] and
 * *bias: what is read. */
ATTN_COLD_ int attn_check_compress_(attn_error_ *e, attn_compress_params *p, int64_t batch,
                                    int64_t rows, int64_t dim, attn_operand_ *op,
                                    attn_span_ *bias) {
  static const char *const w[] = {ATTN_WORDS_("the compression's w"),
                                  ATTN_WORDS_("the compression's usage")};
  const int conv = p->kind == ATTN_COMPRESS_CONV || p->kind == ATTN_COMPRESS_DILATED;
  const int optional = ATTN_OPTIONAL_;
  if ((int)p->kind < 0 || p->kind >= ATTN_COMPRESS_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "the compression's kind must be an attn_compress_kind");
  if (p->rate < 1)
    return attn_reject_(e, ATTN_E_RANGE, "the compression's rate must be at least 1");
  if (p->dilation < 0)
    return attn_reject_(e, ATTN_E_RANGE, "the compression's dilation must be at least 1");
  if (p->dilation == 0) p->dilation = 1;
  if (conv && !p->w.data) return attn_reject_(e, ATTN_E_NULL, attn_says_(w[0], ATTN_SAYS_DATA_));
  if (p->kind == ATTN_COMPRESS_MOST_USED && !p->usage.data && rows > 0)
    return attn_reject_(e, ATTN_E_NULL, attn_says_(w[1], ATTN_SAYS_DATA_));
  if (!conv) p->w.data = NULL, p->bias = NULL;
  if (p->kind != ATTN_COMPRESS_MOST_USED) p->usage.data = NULL;
  const attn_operand_ of[2] = {
      ATTN_OPERAND_AS_(
          &p->w, w[0], conv ? 0 : optional, 1,
          p->kind == ATTN_COMPRESS_CONV ? p->rate : (int64_t)ATTN_ANY_, dim, dim,
          "the compression's w must be [1, taps, dm, dm], of ATTN_COMPRESS_CONV rate taps"),
      ATTN_OPERAND_AS_(&p->usage, w[1],
                       (p->kind == ATTN_COMPRESS_MOST_USED ? 0 : optional) | ATTN_IS_F32_, batch, 1,
                       1, rows, "the compression's usage must be f32 [B, 1, 1, rows]")};
  for (int i = 0; i < 2; i++) {
    op[i] = of[i];
    /* no rows to compress: nothing is read, and a tensor has no width 0 */
    if (i == 1 && rows == 0) p->usage.data = NULL, op[i].role |= ATTN_OPTIONAL_;
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  }
  if (conv && p->w.heads < 1)
    return attn_reject_(e, ATTN_E_SHAPE, "the compression's w must have at least one tap");
  if (p->kind == ATTN_COMPRESS_MOST_USED && rows > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "rows with usage must be fewer than 2^31");
  return attn_check_array_(e, p->bias, dim, 4,
                           "the compression's bias must be aligned to its elements", bias);
}

typedef struct attn_compress_job_ {
  attn_tensor y, x;
  attn_compress_params p;
} attn_compress_job_;

ATTN_COLD_ int attn_compress_check_(attn_error_ *e, attn_compress_job_ *j,
                                    const attn_compress_params *params, const attn_ctx *ctx,
                                    const attn_table_ **table, int *workers) {
  static const char wx[] = ATTN_WORDS_("x"), wy[] = ATTN_WORDS_("y");
  attn_span_ bias;
  attn_operand_ op[4];
  const int64_t any = ATTN_ANY_;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has the rate");
  j->p = *params;
  const attn_operand_ x = ATTN_OPERAND_AS_(&j->x, wx, 0, any, 1, any, any, "x must have one head");
  op[0] = x;
  if (!attn_check_operand_(e, &op[0], 1) ||
      !attn_check_compress_(e, &j->p, j->x.batch, j->x.len, j->x.dim, &op[2], &bias))
    return 0;
  if (j->x.len % j->p.rate)
    return attn_reject_(e, ATTN_E_SHAPE, "x.len must be a multiple of params.rate");
  const attn_operand_ y =
      ATTN_OPERAND_AS_(&j->y, wy, ATTN_OUT_, j->x.batch, 1, j->x.len / j->p.rate, j->x.dim,
                       "y must be [x.batch, 1, x.len / rate, x.dim]");
  op[1] = y;
  return attn_check_operand_(e, &op[1], 1) && attn_check_apart_(e, ctx, op, 4, &bias, 1);
}

ATTN_COLD_ int attn_compress_steps_(attn_stage_ *s, void *job) {
  const attn_compress_job_ *j = (const attn_compress_job_ *)job;
  attn_parts_ x = attn_parts_none_(), y = x;
  attn_parts_add_(&x, j->x), attn_parts_add_(&y, j->y);
  return attn_stage_squeeze_(s, &y, &x, j->x.len, &j->p);
}

ATTN_COLD_ attn_status attn_compress_call_(attn_tensor y, attn_tensor x,
                                           const attn_compress_params *params, attn_ctx *ctx,
                                           size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_compress_job_ j;
  const attn_table_ *table;
  int workers;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x;
  if (attn_compress_check_(&e, &j, params, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    attn_stage_call_(&s, ctx, attn_compress_steps_, &j, "blocks of rows into rows", bytes);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_CALL_(attn_compress, (y, x, params), attn_tensor y, attn_tensor x,
           const attn_compress_params *params)

/* ---- update of both memories ----------------------------------------------------------------*/

ATTN_PUB_ int64_t attn_compressive_rows(const attn_memory *memory, int64_t L,
                                        const attn_compressive_params *params) {
  if (!memory || !params || memory->len < 0 || L < 0 || params->length < 0 ||
      params->compress.rate < 1)
    return -1;
  const int64_t e = attn_add_(memory->len, L) - params->length;
  return e > 0 ? e - e % params->compress.rate : 0;
}

typedef struct attn_compressive_job_ {
  attn_memory memory, compressed;
  attn_tensor h;
  attn_compressive_params p;
  int64_t old, made; /* rows compressed, rows that makes */
} attn_compressive_job_;

ATTN_COLD_ int attn_compressive_check_(attn_error_ *e, attn_compressive_job_ *j,
                                       const attn_memory *memory, const attn_memory *compressed,
                                       const attn_compressive_params *params, const attn_ctx *ctx,
                                       const attn_table_ **table, int *workers) {
  static const attn_memory_words_ wc = ATTN_MEMORY_WORDS_("compressed");
  attn_span_ bias;
  attn_operand_ op[5] = {ATTN_OPERAND_AS_(&j->h, attn_h_is_, 0, ATTN_ANY_, 1, ATTN_ANY_, ATTN_ANY_,
                                          "h must have one head")};
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!memory || !compressed || !params)
    return attn_reject_(e, ATTN_E_NULL, "memory, compressed and params must not be null");
  j->memory = *memory, j->compressed = *compressed, j->p = *params;
  if (j->p.length < 0) return attn_reject_(e, ATTN_E_RANGE, "params.length must not be negative");
  if (!attn_check_operand_(e, &op[0], 1)) return 0;
  const int64_t b = j->h.batch, dm = j->h.dim;
  if (!attn_check_memory_(e, &j->memory, &attn_memory_is_, b, dm, 1, &op[1]) ||
      !attn_check_memory_(e, &j->compressed, &wc, b, dm, 1, &op[2]) ||
      !attn_check_compress_(e, &j->p.compress, b, attn_add_(j->memory.len, j->h.len), dm, &op[3],
                            &bias))
    return 0;
  j->old = attn_compressive_rows(&j->memory, j->h.len, &j->p);
  j->made = j->old / j->p.compress.rate;
  if (attn_add_(j->p.length, j->p.compress.rate - 1) > j->memory.rows.len)
    return attn_reject_(e, ATTN_E_SHAPE,
                        "memory.rows.len must be at least params.length + rate - 1");
  return attn_check_apart_(e, ctx, op, 5, &bias, 1);
}

/* Compresses into the places of the oldest compressed rows, then lets the old rows go. */
ATTN_COLD_ int attn_compressive_steps_(attn_stage_ *s, void *job) {
  attn_compressive_job_ *j = (attn_compressive_job_ *)job;
  attn_memory *m = &j->memory, *c = &j->compressed;
  attn_parts_ x = attn_parts_none_(), y = x;
  const int64_t room = c->rows.len, made = j->made < room ? j->made : room;
  attn_memory_take_(&x, m, 0, m->len);
  attn_parts_add_(&x, j->h);
  attn_memory_take_(&y, c, c->len, made);
  if (!attn_stage_squeeze_(s, &y, &x, j->old, &j->p.compress)) return 0;
  if (!s->run) return 1;
  const int64_t over = made > room - c->len ? made - (room - c->len) : 0;
  if (over) c->first = (c->first + over) % room;
  c->len += made - over;
  const int64_t gone = j->old < m->len ? j->old : m->len;
  if (gone) m->first = (m->first + gone) % m->rows.len;
  m->len -= gone;
  if (m->len == 0) m->first = 0;
  attn_ring_append_(s->table, m, &j->h, j->old - gone);
  return 1;
}

ATTN_COLD_ attn_status attn_compressive_call_(attn_compressive_job_ *j, const attn_memory *memory,
                                              const attn_memory *compressed, attn_tensor h,
                                              const attn_compressive_params *params, attn_ctx *ctx,
                                              size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  memset(j, 0, sizeof *j);
  j->h = h;
  if (attn_compressive_check_(&e, j, memory, compressed, params, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    attn_stage_call_(&s, ctx, attn_compressive_steps_, j, "old rows compressed, rows into rings",
                     bytes);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_PUB_COLD_ attn_status attn_compressive_update(attn_memory *memory, attn_memory *compressed,
                                                   attn_tensor h,
                                                   const attn_compressive_params *params,
                                                   attn_ctx *ctx) {
  attn_compressive_job_ j;
  attn_status status = attn_compressive_call_(&j, memory, compressed, h, params, ctx, NULL);
  if (status != ATTN_OK) return status;
  memory->len = j.memory.len, memory->first = j.memory.first;
  compressed->len = j.compressed.len, compressed->first = j.compressed.first;
  return status;
}
ATTN_PUB_COLD_ size_t attn_compressive_update_workspace(const attn_memory *memory,
                                                        const attn_memory *compressed,
                                                        attn_tensor h,
                                                        const attn_compressive_params *params,
                                                        const attn_ctx *ctx) {
  attn_ctx plain = attn_before_workspace_(ctx);
  attn_compressive_job_ j;
  size_t bytes = 0;
  const attn_status status =
      attn_compressive_call_(&j, memory, compressed, h, params, &plain, &bytes);
  return attn_answer_(status, (int64_t)bytes);
}
