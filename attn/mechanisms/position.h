/* mechanisms/position.h owns family B: rotary embedding and the ALiBi slopes. */

typedef struct attn_rope_job_ {
  const attn_table_ *table;
  attn_tensor y, x;
  attn_rope_params p; /* rot and base resolved */
  int64_t bytes;      /* workspace of one worker: rot cosines, rot sines */
  char *workspace;
  const double *theta; /* [rot/2] */
} attn_rope_job_;

ATTN_FUNC_ int attn_rope_plan_(attn_error_ *e, attn_rope_job_ *j, const attn_rope_params *params,
                               const attn_ctx *ctx, int *workers) {
  static const attn_words_ wy = ATTN_WORDS_("y"), wx = ATTN_WORDS_("x");
  attn_span_ sy, sx, sp = {0, 0}, sw = {0, 0};
  memset(&j->p, 0, sizeof j->p);
  if (params) j->p = *params;
  attn_rope_params *p = &j->p;
  if (!attn_check_ctx_(e, ctx, &j->table, workers)) return 0;
  if (!attn_check_tensor_(e, &j->x, &wx, &sx) || !attn_check_tensor_(e, &j->y, &wy, &sy)) return 0;
  if (j->y.batch != j->x.batch || j->y.heads != j->x.heads || j->y.len != j->x.len ||
      j->y.dim != j->x.dim)
    return attn_reject_(e, ATTN_E_SHAPE, "y must have the shape of x");
  if (!attn_check_rows_(e, &j->y, &wy)) return 0;
  p->rot = p->rot == 0 ? j->x.dim : p->rot == ATTN_ROPE_NONE ? 0 : p->rot;
  if (p->rot < 0 || p->rot > j->x.dim || p->rot % 2)
    return attn_reject_(e, ATTN_E_RANGE, "params.rot must be even and lie in 0..x.dim");
  if (p->base == 0.0) p->base = 10000.0;
  if (!(p->base > 0.0 && p->base < HUGE_VAL))
    return attn_reject_(e, ATTN_E_VALUE, "params.base must be positive and finite");
  if (p->layout != ATTN_ROPE_INTERLEAVED && p->layout != ATTN_ROPE_HALF)
    return attn_reject_(e, ATTN_E_RANGE, "params.layout must be one of attn_rope_layout");
  if (attn_abs64_(p->start) > INT64_MAX / 4)
    return attn_reject_(e, ATTN_E_RANGE, "params.start must lie within 2^61 of 0");
  int64_t count = attn_mul_(p->positions_per_batch ? j->x.batch : 1, j->x.len);
  if (count > INT64_MAX / 8)
    return attn_reject_(e, ATTN_E_OVERFLOW, "params.positions spans more than the address space");
  if (!attn_check_array_(e, p->positions, count, 8,
                         "params.positions must be aligned to its elements", &sp))
    return 0;
  if ((attn_overlap_(sy, sx) && !attn_same_view_(&j->y, &j->x)) || attn_overlap_(sy, sp))
    return attn_reject_(e, ATTN_E_OVERLAP, wy.overlap);
  if (!attn_check_workspace_(e, ctx, &sw)) return 0;
  if (attn_overlap_(sw, sx) || attn_overlap_(sw, sy) || attn_overlap_(sw, sp))
    return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with a tensor");
  j->bytes = attn_mul_(2, attn_piece_(p->rot, sizeof(float)));
  return 1;
}

/* Pieces: one row position of one batch entry, all heads, so that sines are made once. */
ATTN_FUNC_ int64_t attn_rope_bytes_(const attn_rope_job_ *j, int workers) {
  return attn_workspace_bytes_(
      attn_add_(attn_piece_(j->p.rot / 2, sizeof(double)), attn_mul_(j->bytes, workers)), 1);
}

ATTN_FUNC_ void attn_rope_item_(void *job, int worker, int64_t index) {
  const attn_rope_job_ *j = (const attn_rope_job_ *)job;
  const attn_rope_params *p = &j->p;
  const int64_t b = index / j->x.len, i = index % j->x.len;
  float *cosine = (float *)(void *)(j->workspace + worker * j->bytes);
  float *sine = cosine + j->bytes / 2 / (int64_t)sizeof(float);
  double position = (double)(p->start + i);
  if (p->positions)
    position = (double)p->positions[(p->positions_per_batch ? b * j->x.len : 0) + i];
  for (int64_t m = 0; m < p->rot / 2; m++) {
    /* in double: a float angle is wrong by 0.03 at position 10^6 */
    double phi = position * j->theta[m];
    float c, s;
    attn_sincos_(phi, &s, &c);
    if (p->inverse) s = -s;
    int64_t x = p->layout == ATTN_ROPE_HALF ? m : 2 * m;
    int64_t y = p->layout == ATTN_ROPE_HALF ? m + p->rot / 2 : x + 1;
    cosine[x] = cosine[y] = c, sine[x] = -s, sine[y] = s;
  }
  for (int64_t h = 0; h < j->x.heads; h++)
    j->table->rope(attn_at_(&j->y, b, h, i), attn_at_(&j->x, b, h, i), j->y.dtype, j->x.dtype,
                   j->x.dim, p->rot, p->layout == ATTN_ROPE_HALF, cosine, sine);
}

ATTN_PUB_ attn_status attn_rope(attn_tensor y, attn_tensor x, const attn_rope_params *params,
                                attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_rope_job_ j;
  attn_workspace_ w;
  int workers;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x;
  if (attn_rope_plan_(&e, &j, params, ctx, &workers)) {
    int64_t items = x.heads ? x.batch * x.len : 0;
    workers = attn_pieces_(workers, items);
    if (items == 0) {
      attn_report_(ctx, j.table, 1, "no-op", "no rows");
    } else if (attn_workspace_get_(&e, &w, ctx, attn_rope_bytes_(&j, workers))) {
      double *theta = (double *)(void *)w.base;
      for (int64_t m = 0; m < j.p.rot / 2; m++)
        theta[m] = pow(j.p.base, -2.0 * (double)m / (double)j.p.rot);
      j.theta = theta;
      j.workspace = w.base + attn_piece_(j.p.rot / 2, sizeof(double));
      attn_for_(ctx, workers, items, attn_rope_item_, &j);
      attn_workspace_drop_(&w);
      attn_report_(ctx, j.table, workers, "row rotation", "the only path");
    }
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_ size_t attn_rope_workspace(attn_tensor y, attn_tensor x, const attn_rope_params *params,
                                     const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_rope_job_ j;
  const attn_ctx plain = attn_before_workspace_(ctx);
  int workers;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x;
  if (!attn_rope_plan_(&e, &j, params, &plain, &workers)) return 0;
  int64_t items = x.heads ? x.batch * x.len : 0;
  if (items == 0) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  int64_t bytes = attn_rope_bytes_(&j, attn_pieces_(workers, items));
  return bytes == INT64_MAX ? 0 : (size_t)bytes;
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
