/* families/linear/features.h owns feature maps as calls: the random matrices they need, and the features
 * of whole tensors. */

/* ---- random directions ----------------------------------------------------------------------*/

typedef struct attn_random_job_ {
  attn_tensor w;
  attn_random_params p;
  int64_t blocks, rows; /* of a head; of a block */
  char *own;            /* of the workers: a block of rows in double */
  int64_t each;
  int failed;
} attn_random_job_;

/* Numbers from a row of one head on: which = 0 directions, 1 lengths. */
ATTN_FUNC_ void attn_random_row_(double *row, const attn_random_job_ *j, int64_t head, int which,
                                 int64_t at) {
  const uint64_t stream = ATTN_STREAM(j->p.draw, head, which);
  for (int64_t c = 0; c < j->w.dim; c++)
    row[c] = attn_random_normal(j->p.seed, stream, (uint64_t)at * (uint64_t)j->w.dim + (uint64_t)c);
}

/* A block of rows of one head: dk of them are orthogonal to one another. */
ATTN_FUNC_ void attn_random_item_(void *job, int worker, int64_t index) {
  attn_random_job_ *j = (attn_random_job_ *)job;
  const int64_t head = index / j->blocks, from = index % j->blocks * j->rows, dim = j->w.dim;
  const int64_t n = j->w.len - from < j->rows ? j->w.len - from : j->rows;
  double *rows = (double *)(void *)(j->own + worker * j->each), *lengths = rows + j->rows * dim;
  for (int64_t r = 0; r < n; r++) {
    float *to = (float *)(void *)attn_at_(&j->w, 0, head, from + r);
    double *row = j->p.gaussian ? rows : rows + r * dim, by = 1.0;
    attn_random_row_(row, j, head, 0, from + r);
    if (!j->p.gaussian) {
      if (!attn_orthogonal_row_(rows, r, dim)) {
        ATTN_ATOMIC_STORE_(&j->failed, 1);
        return;
      }
      by = (double)dim;
      if (!j->p.unit_scale) {
        attn_random_row_(lengths, j, head, 1, from + r);
        by = attn_dot_f64_(lengths, lengths, dim);
      }
      by = ATTN_F64_(sqrt(by));
    }
    for (int64_t c = 0; c < dim; c++) to[c] = (float)ATTN_F64_(by * row[c]);
  }
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_random_features_call_(attn_tensor w, const attn_random_params *params,
                                                  attn_ctx *ctx, size_t *bytes) {
  static const char words[] = ATTN_WORDS_("w");
  attn_error_ e = {ATTN_OK, NULL};
  attn_workspace_ memory = {NULL, NULL};
  attn_random_job_ j;
  const attn_table_ *table;
  attn_span_ span, work;
  int workers;
  memset(&j, 0, sizeof j);
  if (params) j.p = *params;
  j.w = w;
  if (!attn_check_ctx_(&e, ctx, &table, &workers)) return attn_end_(ctx, &e);
  if (!attn_check_tensor_(&e, &j.w, words, &span)) return attn_end_(ctx, &e);
  if (w.dtype != ATTN_F32)
    attn_reject_(&e, ATTN_E_DTYPE, "w.dtype must be ATTN_F32");
  else if (w.batch != 1 || w.len < 1)
    attn_reject_(&e, ATTN_E_SHAPE, "w must be [1, H, m, dk] with m of 1 or more");
  else if (w.heads > (int64_t)1 << 24)
    attn_reject_(&e, ATTN_E_RANGE, "w.heads must be at most 2^24");
  else if (j.p.draw < 0 || j.p.draw > (int64_t)0xffffffff)
    attn_reject_(&e, ATTN_E_RANGE, "params.draw must lie in 0 .. 2^32 - 1");
  if (e.status != ATTN_OK || !attn_check_rows_(&e, &j.w, words) ||
      !attn_check_workspace_(&e, ctx, &work))
    return attn_end_(ctx, &e);
  if (attn_overlap_(span, work)) {
    attn_reject_(&e, ATTN_E_OVERLAP, "ctx.workspace shares memory with w");
    return attn_end_(ctx, &e);
  }
  if (bytes && ctx->workers > 1) workers = ctx->workers;
  j.rows = j.p.gaussian ? 64 : w.dim < w.len ? w.dim : w.len;
  j.blocks = (w.len - 1) / j.rows + 1;
  const int64_t items = attn_mul_(w.heads, j.blocks);
  workers = attn_pieces_(workers, items);
  /* normals need one row, orthogonal ones those of the block and one more */
  const int64_t held = j.p.gaussian ? 1 : j.rows + 1;
  j.each = attn_piece_(attn_mul_(held, w.dim), sizeof(double));
  const int64_t need = items ? attn_workspace_bytes_(j.each, workers) : 0;
  if (bytes) {
    if (attn_workspace_fits_(&e, need)) *bytes = (size_t)need;
    return e.status;
  }
  if (items) {
    if (!attn_workspace_get_(&e, &memory, ctx, need)) return attn_end_(ctx, &e);
    j.own = memory.base;
    attn_for_(ctx, workers, items, attn_random_item_, &j);
    attn_workspace_drop_(&memory);
  }
  if (j.failed)
    attn_reject_(&e, ATTN_E_NUMERIC, "rows of w are not independent: use another params.seed");
  else
    attn_report_(ctx, table, workers, j.p.gaussian ? "normal rows" : "orthogonal rows", "as asked");
  return attn_end_(ctx, &e);
}

ATTN_CALL_(attn_random_features, (w, params), attn_tensor w, const attn_random_params *params)
#undef ATTN_F64_

/* ---- feature maps ---------------------------------------------------------------------------*/

ATTN_PUB_ int64_t attn_random_feature_count(int64_t dk) {
  if (dk < 1 || dk > (int64_t)1 << 48) return 0;
  const int64_t m = (int64_t)((double)dk * log((double)dk));
  return m > 1 ? m : 1;
}

ATTN_PUB_ int64_t attn_feature_count(const attn_feature_map *map, int64_t dk) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_map_ a;
  if (!map || dk < 1) return 0;
  return attn_map_check_(&e, &a, map, dk, map->w.heads, 0, 0) ? a.m : 0;
}

typedef struct attn_features_job_ {
  attn_map_ map;
  attn_tensor y, x;
  int is_key;
  int64_t tiles; /* of a (batch, head) */
  float *c;      /* stabilisers of tiles, then of each (batch, head) in its first */
  char *own;
  int64_t each, at_x, at_y; /* of a worker: the map's part, rows of x, rows of y */
} attn_features_job_;

/* The rows of a tile as f32, one after the other. */
ATTN_FUNC_ const float *attn_features_rows_(const attn_features_job_ *j, char *own, int64_t index,
                                            int64_t *n) {
  const attn_tensor *x = &j->x;
  const int64_t unit = index / j->tiles, i = index % j->tiles * ATTN_TILE_;
  const char *from = attn_at_(x, unit / x->heads, unit % x->heads, i);
  *n = x->len - i < ATTN_TILE_ ? x->len - i : ATTN_TILE_;
  if (x->dtype == ATTN_F32 && (x->stride_len == x->dim || *n == 1))
    return (const float *)(const void *)from;
  float *to = (float *)(void *)(own + j->at_x);
  j->map.table->widen(to, from, x->stride_len, NULL, *n, x->dim, x->dtype, NULL);
  return to;
}

ATTN_FUNC_ void attn_features_top_(void *job, int worker, int64_t index) {
  const attn_features_job_ *j = (const attn_features_job_ *)job;
  char *own = j->own + worker * j->each;
  int64_t n;
  const float *x = attn_features_rows_(j, own, index, &n);
  j->c[index] = attn_map_top_(&j->map, own, x, n, index / j->tiles % j->x.heads);
}

/* Of each (batch, head), in the place of its first tile. */
ATTN_FUNC_ void attn_features_tops_(attn_features_job_ *j, attn_ctx *ctx, int workers, float *c) {
  const int64_t units = attn_mul_(j->x.batch, j->x.heads);
  j->c = c;
  attn_for_(ctx, workers, attn_mul_(units, j->tiles), attn_features_top_, j);
  for (int64_t u = 0; u < units; u++, c += j->tiles)
    for (int64_t t = 1; t < j->tiles; t++)
      if (c[t] > c[0]) c[0] = c[t];
}

ATTN_FUNC_ void attn_features_item_(void *job, int worker, int64_t index) {
  const attn_features_job_ *j = (const attn_features_job_ *)job;
  const int64_t unit = index / j->tiles, h = unit % j->x.heads, i = index % j->tiles * ATTN_TILE_;
  char *own = j->own + worker * j->each;
  float *y = (float *)(void *)(own + j->at_y);
  int64_t n;
  const float *x = attn_features_rows_(j, own, index, &n);
  float c[ATTN_TILE_];
  if (j->is_key) /* behind the largest of all keys there is no larger one */
    attn_map_keys_(&j->map, own, y, x, n, h, j->c ? j->c[unit * j->tiles] : -INFINITY, c);
  else
    attn_map_queries_(&j->map, own, y, x, n, h);
  for (int64_t r = 0; r < n; r++)
    j->map.table->blend(attn_at_(&j->y, unit / j->x.heads, h, i + r), y + r * j->map.m, NULL,
                        j->y.dtype, ATTN_F32, ATTN_F32, j->map.m, 1.0f, 0.0f);
}

ATTN_COLD_ int attn_features_check_(attn_error_ *e, attn_features_job_ *j,
                                    const attn_feature_map *map, const attn_ctx *ctx,
                                    int *workers) {
  static const char wy[] = ATTN_WORDS_("y"), wx[] = ATTN_WORDS_("x");
  attn_span_ sy, sx, work;
  const attn_table_ *table;
  if (!attn_check_ctx_(e, ctx, &table, workers) || !attn_check_tensor_(e, &j->y, wy, &sy) ||
      !attn_check_tensor_(e, &j->x, wx, &sx))
    return 0;
  j->map.table = table;
  if (!attn_map_check_(e, &j->map, map, j->x.dim, j->x.heads, 0, 0)) return 0;
  if (j->y.batch != j->x.batch || j->y.heads != j->x.heads || j->y.len != j->x.len)
    return attn_reject_(e, ATTN_E_SHAPE, "y must have the batch, heads and len of x");
  if (j->y.dim != j->map.m)
    return attn_reject_(e, ATTN_E_SHAPE, "y.dim must be attn_feature_count(map, x.dim)");
  if (!attn_check_rows_(e, &j->y, wy) || !attn_check_workspace_(e, ctx, &work)) return 0;
  if (attn_overlap_(sy, sx) || attn_overlap_(sy, j->map.w_span) ||
      attn_overlap_(sy, j->map.sigmas_span))
    return attn_reject_(e, ATTN_E_OVERLAP, attn_says_(wy, ATTN_SAYS_OVERLAP_));
  if (attn_overlap_(work, sy) || attn_overlap_(work, sx) || attn_overlap_(work, j->map.w_span) ||
      attn_overlap_(work, j->map.sigmas_span))
    return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace shares memory with an argument");
  return 1;
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_features_job_call_(attn_features_job_ *j, const attn_feature_map *map,
                                               attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_workspace_ memory = {NULL, NULL};
  int workers;
  if (!attn_features_check_(&e, j, map, ctx, &workers)) return attn_end_(ctx, &e);
  if (bytes && ctx->workers > 1) workers = ctx->workers;
  j->tiles = j->x.len / ATTN_TILE_ + (j->x.len % ATTN_TILE_ != 0);
  const int64_t items = attn_mul_(attn_mul_(j->x.batch, j->x.heads), j->tiles);
  const int stabilised = j->is_key && j->map.running;
  workers = attn_pieces_(workers, items);
  j->at_x = attn_map_own_(&j->map);
  j->at_y = attn_add_(j->at_x, attn_piece_(attn_mul_(ATTN_TILE_, j->x.dim), sizeof(float)));
  j->each = attn_add_(j->at_y, attn_piece_(attn_mul_(ATTN_TILE_, j->map.m), sizeof(float)));
  const int64_t shared = attn_map_shared_(&j->map);
  const int64_t tops = stabilised ? attn_piece_(items, sizeof(float)) : 0;
  const int64_t fixed = attn_add_(shared, tops);
  const int64_t need =
      items ? attn_workspace_bytes_(attn_add_(fixed, attn_mul_(j->each, workers)), 1) : 0;
  if (bytes) {
    if (attn_workspace_fits_(&e, need)) *bytes = (size_t)need;
    return e.status;
  }
  if (items) {
    if (!attn_workspace_get_(&e, &memory, ctx, need)) return attn_end_(ctx, &e);
    attn_map_prepare_(&j->map, memory.base);
    j->map.key_eps += j->map.late_eps; /* c is known before the first feature is made */
    j->own = memory.base + fixed;
    if (stabilised) attn_features_tops_(j, ctx, workers, (float *)(void *)(memory.base + shared));
    attn_for_(ctx, workers, items, attn_features_item_, j);
    attn_workspace_drop_(&memory);
  }
  attn_report_(ctx, j->map.table, workers, stabilised ? "feature map in two passes" : "feature map",
               stabilised ? "all keys share a stabiliser" : "the only path");
  return attn_end_(ctx, &e);
}

ATTN_COLD_ attn_status attn_features_call_(attn_tensor y, attn_tensor x,
                                           const attn_feature_map *map, int is_key, attn_ctx *ctx,
                                           size_t *bytes) {
  attn_features_job_ j;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x, j.is_key = is_key;
  return attn_features_job_call_(&j, map, ctx, bytes);
}
ATTN_CALL_(attn_features, (y, x, map, is_key), attn_tensor y, attn_tensor x,
           const attn_feature_map *map, int is_key)
