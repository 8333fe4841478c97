/* calls/position.h owns rotary embedding and the ALiBi slopes. Its angles are those of engine/rope.h, T5 buckets
 * are in engine/t5.h. */

typedef struct attn_rope_job_ {
  const attn_table_ *table;
  attn_tensor y, x;
  int64_t len, first; /* x is rows first .. of so many that may have positions */
  attn_rope_ g;
} attn_rope_job_;

ATTN_FUNC_ void attn_rope_job_of_(attn_rope_job_ *j, attn_tensor y, attn_tensor x, int64_t len,
                                  int64_t first) {
  j->y = y, j->x = x, j->len = len, j->first = first;
}

ATTN_FUNC_ int attn_rope_plan_(attn_error_ *e, attn_rope_job_ *j, const attn_rope_params *params,
                               const attn_ctx *ctx, int *workers, int data) {
  static const char wy[] = ATTN_WORDS_("y"), wx[] = ATTN_WORDS_("x");
  attn_span_ sy, sx, sw = {0, 0, 0, 0};
  if (!attn_check_ctx_(e, ctx, &j->table, workers)) return 0;
  if (!attn_check_tensor_(e, &j->x, wx, &sx) || !attn_check_tensor_(e, &j->y, wy, &sy)) return 0;
  if (j->y.batch != j->x.batch || j->y.heads != j->x.heads || j->y.len != j->x.len ||
      j->y.dim != j->x.dim)
    return attn_reject_(e, ATTN_E_SHAPE, "y must have the shape of x");
  if (!attn_check_rows_(e, &j->y, wy) ||
      !attn_rope_open_(e, &j->g, params, j->x.batch, j->x.heads, j->len, j->first, j->x.len,
                       j->x.dim, data))
    return 0;
  if ((attn_overlap_(sy, sx) && !attn_same_view_(&j->y, &j->x)) || attn_rope_shares_(&j->g, sy))
    return attn_reject_(e, ATTN_E_OVERLAP, attn_says_(wy, ATTN_SAYS_OVERLAP_));
  if (!attn_check_workspace_(e, ctx, &sw)) return 0;
  if (attn_overlap_(sw, sx) || attn_overlap_(sw, sy) || attn_rope_shares_(&j->g, sw))
    return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with a tensor");
  return 1;
}

ATTN_FUNC_ int64_t attn_rope_runs_(const attn_rope_job_ *j) {
  return j->x.len / ATTN_ROPE_RUN_ + (j->x.len % ATTN_ROPE_RUN_ != 0);
}

/* Runs of rows; with positions per batch entry each entry has its own. */
ATTN_FUNC_ int64_t attn_rope_items_(const attn_rope_job_ *j) {
  if (j->x.batch == 0 || j->x.heads == 0 || j->x.len == 0) return 0;
  return j->g.at.each ? attn_mul_(attn_rope_runs_(j), j->x.batch) : attn_rope_runs_(j);
}

ATTN_FUNC_ void attn_rope_item_(void *job, int worker, int64_t index) {
  const attn_rope_job_ *j = (const attn_rope_job_ *)job;
  const attn_rope_ *g = &j->g;
  const int64_t runs = attn_rope_runs_(j);
  const int64_t first = index % runs * ATTN_ROPE_RUN_;
  const int64_t end = j->x.len - first < ATTN_ROPE_RUN_ ? j->x.len : first + ATTN_ROPE_RUN_;
  const int64_t b0 = index / runs, b1 = g->at.each ? b0 + 1 : j->x.batch;
  attn_rope_row_ r;
  attn_rope_cut_(g, worker, &r);
  for (int64_t i = first; i < end; i++) {
    attn_rope_fill_(g, &g->at, &r, b0, i);
    for (int64_t b = b0; b < b1; b++)
      attn_rope_rows_(g, j->table, &r, attn_at_(&j->y, b, 0, i), j->y.stride_head, j->y.dtype,
                      attn_at_(&j->x, b, 0, i), j->x.stride_head, j->x.dtype, j->x.heads, j->x.dim);
  }
}

ATTN_FUNC_ attn_status attn_rope_run_(attn_rope_job_ *j, const attn_rope_params *params,
                                      attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_workspace_ w;
  int workers;
  if (attn_rope_plan_(&e, j, params, ctx, &workers, 1)) {
    int64_t items = attn_rope_items_(j);
    workers = attn_pieces_(workers, items);
    if (items == 0) {
      attn_report_(ctx, j->table, 1, "no-op", "no rows");
    } else if (attn_workspace_get_(&e, &w, ctx,
                                   attn_workspace_bytes_(attn_rope_bytes_(&j->g, workers), 1))) {
      attn_rope_lay_(&j->g, w.base, workers), attn_rope_see_(&j->g, &j->g.at);
      attn_for_(ctx, workers, items, attn_rope_item_, j);
      attn_workspace_drop_(&w);
      attn_report_(ctx, j->table, workers, "row rotation", "the only path");
    }
  }
  return attn_end_(ctx, &e);
}

/* Bytes of the same; -1 = rejected. */
ATTN_FUNC_ int64_t attn_rope_need_(attn_error_ *e, attn_rope_job_ *j,
                                   const attn_rope_params *params, const attn_ctx *ctx) {
  const attn_ctx plain = attn_before_workspace_(ctx);
  int workers;
  if (!attn_rope_plan_(e, j, params, &plain, &workers, 0)) return -1;
  const int64_t items = attn_rope_items_(j);
  if (items == 0) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  return attn_workspace_bytes_(attn_rope_bytes_(&j->g, attn_pieces_(workers, items)), 1);
}

ATTN_PUB_ attn_status attn_rope(attn_tensor y, attn_tensor x, const attn_rope_params *params,
                                attn_ctx *ctx) {
  attn_rope_job_ j;
  attn_rope_job_of_(&j, y, x, x.len, 0);
  return attn_rope_run_(&j, params, ctx);
}

ATTN_PUB_ size_t attn_rope_workspace(attn_tensor y, attn_tensor x, const attn_rope_params *params,
                                     const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_rope_job_ j;
  attn_rope_job_of_(&j, y, x, x.len, 0);
  const int64_t bytes = attn_rope_need_(&e, &j, params, ctx);
  return attn_answer_(e.status, bytes);
}

ATTN_PUB_COLD_ attn_status attn_rope_frequencies(double *frequencies, double *attention_factor,
                                                 const attn_rope_params *params, int64_t dim) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_rope_params p;
  attn_span_ span[2];
  memset(&p, 0, sizeof p);
  if (params) p = *params;
  if (dim < 1) return ATTN_E_SHAPE;
  if (p.cos.data || p.sin.data) return ATTN_E_RANGE;
  if (!attn_check_rope_(&e, &p, dim, 1, span)) return e.status;
  if (frequencies) attn_rope_frequencies_(&p, frequencies);
  if (attention_factor) *attention_factor = attn_rope_factor_(&p);
  return ATTN_OK;
}

ATTN_PUB_COLD_ double attn_rope_mscale(double factor, double mscale) {
  return attn_rope_ms_(factor, mscale);
}

ATTN_PUB_COLD_ attn_rope_type attn_rope_type_of(const char *word) {
  static const struct {
    const char *word;
    attn_rope_type type;
  } known[] = {{"default", ATTN_ROPE_DEFAULT}, {"mrope", ATTN_ROPE_DEFAULT},
               {"linear", ATTN_ROPE_LINEAR},   {"ntk", ATTN_ROPE_NTK},
               {"dynamic", ATTN_ROPE_DYNAMIC}, {"llama3", ATTN_ROPE_LLAMA3},
               {"yarn", ATTN_ROPE_YARN},       {"longrope", ATTN_ROPE_LONGROPE},
               {"su", ATTN_ROPE_LONGROPE}};
  for (size_t i = 0; word && i < sizeof known / sizeof *known; i++)
    if (strcmp(word, known[i].word) == 0) return known[i].type;
  return ATTN_ROPE_TYPES;
}

ATTN_PUB_ attn_status attn_alibi_slopes(float *slopes, int64_t n) {
  if (!slopes) return ATTN_E_NULL;
  if (n < 1) return ATTN_E_SHAPE;
  int64_t c = 1;
  while (c <= n / 2) c *= 2;
  for (int64_t h = 0; h < n; h++)
    slopes[h] = (float)pow(2.0, h < c ? -8.0 * (double)(h + 1) / (double)c
                                      : -4.0 * (double)(2 * (h - c) + 1) / (double)c);
  return ATTN_OK;
}
