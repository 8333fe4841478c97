/* families/selection/nsa_compress.h owns keys and values compressed along the sequence (M3): means, or products of
 * what stands in a window with a learned matrix. */

typedef struct attn_nsa_compress_job_ {
  const attn_table_ *table;
  attn_tensor y, x, flat; /* flat: the rows of a product */
  attn_nsa_compress_params p;
  int64_t first, rows; /* of y, which are made */
  char *memory;
  int64_t each;
} attn_nsa_compress_job_;

/* Compressed rows that end within so many. */
ATTN_FUNC_ int64_t attn_nsa_rows_(int64_t len, int64_t block, int64_t stride) {
  return len < block ? 0 : (len - block) / stride + 1;
}

ATTN_FUNC_ void attn_nsa_compress_item_(void *job, int worker, int64_t item) {
  const attn_nsa_compress_job_ *a = (const attn_nsa_compress_job_ *)job;
  const int64_t unit = item / a->rows, b = unit / a->x.heads, h = unit % a->x.heads,
                c = a->first + item % a->rows;
  const int64_t n = a->p.block, dim = a->x.dim, from = c * a->p.stride,
                rows = a->p.kv_len ? a->p.kv_len[b] : a->x.len;
  double *sum = (double *)(void *)(a->memory + worker * a->each);
  float *row = (float *)(void *)(a->memory + worker * a->each + attn_piece_(dim, 8));
  const int learned = a->p.w.data != NULL;
  float *to = (float *)(void *)(learned ? attn_at_(&a->flat, b, h, item % a->rows)
                                        : attn_at_(&a->y, b, h, c));
  memset(to, 0, (size_t)(learned ? n * dim : dim) * sizeof *to);
  if (from + n > rows) return;
  for (int64_t x = 0; x < dim; x++) sum[x] = 0.0;
  for (int64_t i = 0; i < n; i++) {
    float *at = learned ? to + i * dim : row;
    a->table->widen(at, attn_at_(&a->x, b, h, from + i), 0, NULL, 1, dim, a->x.dtype, NULL);
    if (learned && a->p.e.data)
      for (int64_t x = 0; x < dim; x++)
        at[x] +=
            attn_number_(attn_at_(&a->p.e, 0, a->p.e.heads > 1 ? h : 0, i), x, a->p.e.dtype, NULL);
    for (int64_t x = 0; !learned && x < dim; x++) sum[x] += (double)at[x];
  }
  for (int64_t x = 0; !learned && x < dim; x++) to[x] = (float)(sum[x] / (double)n);
}

ATTN_COLD_ int attn_nsa_compress_steps_(attn_stage_ *s, void *job) {
  attn_nsa_compress_job_ *a = (attn_nsa_compress_job_ *)job;
  const int64_t all = attn_nsa_rows_(a->x.len, a->p.block, a->p.stride), dim = a->x.dim;
  a->table = s->table;
  /* the first that ends behind what has not changed */
  a->first = attn_nsa_rows_(a->p.first, a->p.block, a->p.stride);
  a->rows = all - a->first;
  a->each = attn_add_(attn_piece_(dim, 8), attn_piece_(dim, 4));
  if (a->rows <= 0) return 1;
  const int64_t units = attn_mul_(a->x.batch, a->x.heads);
  if (a->p.w.data)
    a->flat = attn_stage_tensor_(s, a->x.batch, a->x.heads, a->rows, attn_mul_(a->p.block, dim));
  return attn_stage_for_(s, attn_mul_(units, a->rows), attn_nsa_compress_item_, a, a->each,
                         &a->memory) &&
         (!a->p.w.data ||
          attn_stage_gemm_(s, attn_stage_rows_(a->y, a->first, a->rows), a->flat, a->p.w, NULL));
}

/* Sizes that are 0 become the paper's. */
ATTN_COLD_ int attn_nsa_sizes_(attn_error_ *e, int64_t *block, int64_t *stride) {
  if (*block == 0) *block = 32;
  if (*stride == 0) *stride = 16;
  if (*block < 1 || *stride < 1 || *block % *stride != 0)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.block and stride must be positive, and stride divide block");
  return 1;
}

ATTN_COLD_ int attn_nsa_compress_check_(attn_error_ *e, attn_nsa_compress_job_ *a,
                                        const attn_nsa_compress_params *p, const attn_ctx *ctx,
                                        int query) {
  const int64_t any = ATTN_ANY_, all = ATTN_ONE_OR_ALL_;
  attn_spans_ spans;
  if (p) a->p = *p;
  p = &a->p;
  spans.n = 0;
  if (!attn_nsa_sizes_(e, &a->p.block, &a->p.stride)) return 0;
  attn_operand_ op[] = {
      ATTN_OPERAND_(&a->x, "x", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&a->p.w, "params.w", ATTN_OPTIONAL_, 1, all, attn_mul_(p->block, a->x.dim), any,
                    "params.w must be [1, 1 or H, block * dim, dim']"),
      ATTN_OPERAND_(&a->p.e, "params.e", ATTN_OPTIONAL_, 1, all, p->block, a->x.dim,
                    "params.e must be [1, 1 or H, block, dim]"),
      ATTN_OPERAND_(&a->y, "y", ATTN_OUT_ | ATTN_IS_F32_, a->x.batch, a->x.heads,
                    attn_nsa_rows_(a->x.len, p->block, p->stride), p->w.data ? p->w.dim : a->x.dim,
                    "y must be f32 [B, H, (T - block) / stride + 1, dim or that of params.w]")};
  for (int i = 0; i < 4; i++)
    if (!attn_check_operand_(e, &op[i], a->x.heads)) return 0;
  if (p->e.data && !p->w.data) return attn_reject_(e, ATTN_E_NULL, "params.e needs params.w");
  if (p->first < 0 || p->first > a->x.len)
    return attn_reject_(e, ATTN_E_RANGE, "params.first must lie in 0..x.len");
  return attn_take_array_(e, p->kv_len, a->x.batch, 4,
                          "params.kv_len must be aligned to its elements", &spans) &&
         attn_check_apart_(e, ctx, op, 4, spans.span, spans.n) &&
         (query || attn_check_lens_(e, p->kv_len, a->x.batch, a->x.len,
                                    "params.kv_len must lie in 0..x.len"));
}

ATTN_COLD_ attn_status attn_nsa_compress_call_(attn_tensor y, attn_tensor x,
                                               const attn_nsa_compress_params *params,
                                               attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_nsa_compress_job_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  a.y = y, a.x = x;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    (void)attn_nsa_compress_check_(&e, &a, params, ctx, bytes != NULL);
  return attn_step_call_(&e, table, workers, ctx, attn_nsa_compress_steps_, &a, "compressed rows",
                         bytes);
}
ATTN_CALL_(attn_nsa_compress, (y, x, params), attn_tensor y, attn_tensor x,
           const attn_nsa_compress_params *params)
