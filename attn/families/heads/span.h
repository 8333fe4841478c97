/* families/heads/span.h owns family I: the functions around the adaptive span. */

typedef struct attn_span_job_ {
  const attn_table_ *table;
  attn_tensor x;
  const float *v, *b;
  float *z;
  int64_t heads, max_span, tiles; /* tiles per batch entry */
  char *workspace;                /* of the workers, each of this many bytes: */
  int64_t bytes;                  /* packed tokens [dm][tile], spans [block][tile] */
} attn_span_job_;

ATTN_COLD_ int attn_span_plan_(attn_error_ *e, attn_span_job_ *j, const attn_ctx *ctx,
                               int *workers) {
  static const char wx[] = ATTN_WORDS_("x");
  attn_span_ sx, sz, sv, sb, sw;
  if (!attn_check_ctx_(e, ctx, &j->table, workers)) return 0;
  if (!attn_check_tensor_(e, &j->x, wx, &sx)) return 0;
  if (j->x.heads != 1) return attn_reject_(e, ATTN_E_SHAPE, "x.heads must be 1");
  if (j->heads < 0) return attn_reject_(e, ATTN_E_SHAPE, "heads must not be negative");
  if (j->max_span < 1) return attn_reject_(e, ATTN_E_RANGE, "max_span must be at least 1");
  const int64_t count = attn_mul_(attn_mul_(j->x.batch, j->heads), j->x.len);
  if (!j->z && count > 0) return attn_reject_(e, ATTN_E_NULL, "z must not be null");
  if (!j->v && j->heads > 0) return attn_reject_(e, ATTN_E_NULL, "v must not be null");
  if (!attn_check_array_(e, j->z, count, 4, "z must be aligned to its elements", &sz) ||
      !attn_check_array_(e, j->v, attn_mul_(j->heads, j->x.dim), 4,
                         "v must be aligned to its elements", &sv) ||
      !attn_check_array_(e, j->b, j->heads, 4, "b must be aligned to its elements", &sb))
    return 0;
  if (attn_overlap_(sz, sx) || attn_overlap_(sz, sv) || attn_overlap_(sz, sb))
    return attn_reject_(e, ATTN_E_OVERLAP,
                        "z is an output and must not share memory with another argument");
  if (!attn_check_workspace_(e, ctx, &sw)) return 0;
  if (attn_overlap_(sw, sx) || attn_overlap_(sw, sz) || attn_overlap_(sw, sv) ||
      attn_overlap_(sw, sb))
    return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with an argument");
  j->tiles = j->x.len / ATTN_TILE_ + (j->x.len % ATTN_TILE_ != 0);
  j->bytes = attn_add_(attn_piece_(attn_mul_(j->x.dim, ATTN_TILE_), sizeof(float)),
                       attn_piece_(ATTN_BLOCK_ * ATTN_TILE_, sizeof(float)));
  return 1;
}

ATTN_COLD_ int64_t attn_span_items_(const attn_span_job_ *j) {
  return j->heads == 0 ? 0 : attn_mul_(j->x.batch, j->tiles);
}

/* max_span / (1 + e), rounded to a float that does not pass max_span */
ATTN_FUNC_ float attn_span_of_most_(int64_t max_span, float e) {
  const float z = (float)((double)max_span / (1.0 + (double)e));
  return (double)z > (double)max_span ? attn_from_bits_(attn_to_bits_(z) - 1) : z;
}

/* The tokens of a tile in lanes, heads as keys: a score block is H spans of 64 tokens. */
ATTN_FUNC_ void attn_span_item_(void *job, int worker, int64_t index) {
  const attn_span_job_ *j = (const attn_span_job_ *)job;
  const int64_t b = index / j->tiles, first = index % j->tiles * ATTN_TILE_, t = j->x.len;
  const int n = t - first < ATTN_TILE_ ? (int)(t - first) : ATTN_TILE_;
  const int groups = (n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  char *at = j->workspace + worker * j->bytes;
  float *qt = (float *)(void *)at, top[ATTN_TILE_];
  float *s = (float *)(void *)(at + attn_piece_(attn_mul_(j->x.dim, ATTN_TILE_), sizeof(float)));
  const void *rows[ATTN_TILE_];
  for (int r = 0; r < ATTN_TILE_; r++) top[r] = 0.0f;
  for (int r = 0; r < n; r++) rows[r] = attn_at_(&j->x, b, 0, first + r);
  /* not 0: inf * 0 is NaN */
  j->table->pack(qt, rows, n, j->x.dim, (int)j->x.dtype, 1.0f, attn_least_(1.0f));
  for (int64_t h0 = 0; h0 < j->heads; h0 += ATTN_BLOCK_) {
    const int64_t heads = j->heads - h0 < ATTN_BLOCK_ ? j->heads - h0 : ATTN_BLOCK_;
    attn_on_(tile, j->table)
        ->score_block(s, qt, j->v + h0 * j->x.dim, j->x.dim, heads, j->x.dim, 0, groups, top);
    for (int64_t h = 0; h < heads; h++) {
      float *row = s + h * ATTN_TILE_;
      const float bias = j->b ? j->b[h0 + h] : 0.0f;
      for (int r = 0; r < n; r++) row[r] = -(row[r] + bias);
      j->table->exp(row, row, n);
      for (int r = 0; r < n; r++) row[r] = attn_span_of_most_(j->max_span, row[r]);
      memcpy(j->z + (b * j->heads + h0 + h) * t + first, row, (size_t)n * sizeof(float));
    }
  }
}

ATTN_COLD_ void attn_span_job_of_(attn_span_job_ *j, float *z, attn_tensor x, const float *v,
                                  const float *b, int64_t heads, int64_t max_span) {
  memset(j, 0, sizeof *j);
  j->z = z, j->x = x, j->v = v, j->b = b, j->heads = heads, j->max_span = max_span;
}

ATTN_PUB_COLD_ attn_status attn_span_predict(float *z, attn_tensor x, const float *v,
                                             const float *b, int64_t heads, int64_t max_span,
                                             attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_span_job_ j;
  attn_workspace_ w;
  int workers;
  attn_span_job_of_(&j, z, x, v, b, heads, max_span);
  if (attn_span_plan_(&e, &j, ctx, &workers)) {
    const int64_t items = attn_span_items_(&j);
    workers = attn_pieces_(workers, items);
    if (items == 0) {
      attn_report_(ctx, j.table, 1, "no-op", "no tokens");
    } else if (attn_workspace_get_(&e, &w, ctx, attn_workspace_bytes_(j.bytes, workers))) {
      j.workspace = w.base;
      attn_for_(ctx, workers, items, attn_span_item_, &j);
      attn_workspace_drop_(&w);
      attn_report_(ctx, j.table, workers, "score block of heads", "the only path");
    }
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_COLD_ size_t attn_span_predict_workspace(float *z, attn_tensor x, const float *v,
                                                  const float *b, int64_t heads, int64_t max_span,
                                                  const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_span_job_ j;
  const attn_ctx plain = attn_before_workspace_(ctx);
  int workers;
  attn_span_job_of_(&j, z, x, v, b, heads, max_span);
  if (!attn_span_plan_(&e, &j, &plain, &workers)) return ATTN_WORKSPACE_REJECTED;
  const int64_t items = attn_span_items_(&j);
  if (items == 0) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  const int64_t bytes = attn_workspace_bytes_(j.bytes, attn_pieces_(workers, items));
  return attn_answer_(e.status, bytes);
}

ATTN_PUB_ double attn_span_penalty(const float *z, int64_t n, double lambda) {
  double sum = 0.0;
  if (!z || n < 1) return 0.0;
  for (int64_t i = 0; i < n; i++) sum += (double)z[i];
  return attn_one_nan_f64_(lambda * (sum / (double)n));
}

ATTN_PUB_ int64_t attn_span_reach(float z, float ramp, int64_t shift, int64_t max_span) {
  double rest;
  if (ramp == 0.0f) ramp = 32.0f;
  if (!(z >= 0.0f && z < INFINITY && ramp > 0.0f && ramp < INFINITY) || max_span < 0) return -1;
  shift = attn_clamp_(shift, -(INT64_MAX / 4), INT64_MAX / 4);
  const int64_t t =
      attn_span_last_((double)z, (double)ramp, shift, max_span > 0 ? max_span : INT64_MAX, &rest);
  return t < 0 ? -1 : t;
}
