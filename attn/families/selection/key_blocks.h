/* families/selection/key_blocks.h owns the vectors that stand for blocks of keys: means, and bounds by channel. */

typedef struct attn_key_blocks_job_ {
  const attn_table_ *table;
  attn_tensor y, k;
  attn_key_blocks_params p;
  char *memory;
  int64_t each, first, blocks; /* the first that is written, and how many are */
} attn_key_blocks_job_;

ATTN_FUNC_ void attn_key_blocks_item_(void *job, int worker, int64_t item) {
  const attn_key_blocks_job_ *a = (const attn_key_blocks_job_ *)job;
  const int64_t unit = item / a->blocks, b = unit / a->k.heads, h = unit % a->k.heads,
                dk = a->k.dim;
  const int64_t j = a->first + item % a->blocks, keys = a->p.kv_len ? a->p.kv_len[b] : a->k.len;
  const int64_t from = j * a->p.size, to = keys - from < a->p.size ? keys : from + a->p.size;
  float *y = (float *)(void *)attn_at_(&a->y, b, h, j);
  double *sum = (double *)(void *)(a->memory + worker * a->each);
  float *row = (float *)(void *)(a->memory + worker * a->each + attn_piece_(dk, 8));
  memset(y, 0, (size_t)a->y.dim * sizeof *y);
  for (int64_t c = 0; c < dk; c++) sum[c] = 0.0;
  for (int64_t i = from; i < to; i++) {
    const attn_rows_scale_ s = attn_scales_at_(&a->p.k_scales, b, h, i);
    a->table->widen(row, attn_at_(&a->k, b, h, i), 0, NULL, 1, dk, a->k.dtype, &s);
    if (a->p.kind == ATTN_KEY_BLOCK_MEAN) {
      for (int64_t c = 0; c < dk; c++) sum[c] += (double)row[c];
      continue;
    }
    for (int64_t c = 0; c < dk; c++) { /* a NaN stays */
      if (i == from || row[c] < y[c] || row[c] != row[c]) y[c] = row[c];
      if (i == from || row[c] > y[dk + c] || row[c] != row[c]) y[dk + c] = row[c];
    }
  }
  for (int64_t c = 0; a->p.kind == ATTN_KEY_BLOCK_MEAN && from < to && c < dk; c++)
    y[c] = (float)(sum[c] / (double)(to - from));
}

ATTN_COLD_ int attn_key_blocks_steps_(attn_stage_ *s, void *job) {
  attn_key_blocks_job_ *a = (attn_key_blocks_job_ *)job;
  a->table = s->table;
  a->first = a->p.first / a->p.size;
  a->blocks = a->k.len / a->p.size + (a->k.len % a->p.size != 0) - a->first;
  a->each = attn_add_(attn_piece_(a->k.dim, 8), attn_piece_(a->k.dim, 4));
  if (a->blocks <= 0) return 1;
  return attn_stage_for_(s, attn_mul_(attn_mul_(a->k.batch, a->k.heads), a->blocks),
                         attn_key_blocks_item_, a, a->each, &a->memory);
}

/* The same inside of a call, of keys that have been judged. */
ATTN_COLD_ int attn_stage_key_blocks_(attn_stage_ *s, attn_key_blocks_job_ *a,
                                      const attn_softmax_ *f, int64_t size,
                                      attn_key_block_kind kind) {
  a->k = f->k;
  a->p.kind = kind, a->p.size = size, a->p.kv_len = f->kv_len, a->p.k_scales = f->k_scales;
  a->y = attn_stage_tensor_(s, f->k.batch, f->k.heads, f->k.len / size + (f->k.len % size != 0),
                            kind == ATTN_KEY_BLOCK_MEAN ? f->k.dim : attn_mul_(2, f->k.dim));
  return attn_key_blocks_steps_(s, a);
}

ATTN_COLD_ int attn_key_blocks_check_(attn_error_ *e, attn_key_blocks_job_ *a,
                                      const attn_key_blocks_params *p, const attn_ctx *ctx,
                                      int query) {
  static const char wk[] = ATTN_WORDS_("k");
  static const attn_scales_words_ wks = ATTN_SCALES_WORDS_("params.k_scales", "k");
  const int64_t any = ATTN_ANY_;
  attn_spans_ all;
  all.n = 0;
  attn_span_ *key = attn_spans_more_(&all, 1);
  if (!p) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it says what a block is");
  a->p = *p;
  memset(&a->p.k_scales, 0, sizeof a->p.k_scales);
  if ((int)p->kind < 0 || p->kind >= ATTN_KEY_BLOCK_KINDS)
    return attn_reject_(e, ATTN_E_RANGE, "params.kind must be an attn_key_block_kind");
  if (p->size < 1) return attn_reject_(e, ATTN_E_RANGE, "params.size must be at least 1");
  if (!attn_check_stored_(e, &a->k, wk, key)) return 0;
  if (p->first < 0 || p->first > a->k.len)
    return attn_reject_(e, ATTN_E_RANGE, "params.first must lie in 0..k.len");
  const int64_t blocks = a->k.len / p->size + (a->k.len % p->size != 0);
  attn_operand_ op[] = {
      ATTN_OPERAND_(&a->y, "y", ATTN_OUT_ | ATTN_IS_F32_, a->k.batch, a->k.heads, blocks,
                    p->kind == ATTN_KEY_BLOCK_MEAN ? a->k.dim : attn_mul_(2, a->k.dim),
                    "y must be f32 [B, Hk, ceil(Tk / size), dk], of bounds 2 dk")};
  (void)any;
  return attn_check_operand_(e, &op[0], a->k.heads) &&
         attn_take_scales_(e, &a->p.k_scales, &p->k_scales, &a->k, &wks, &all) &&
         attn_take_array_(e, p->kv_len, a->k.batch, 4,
                          "params.kv_len must be aligned to its elements", &all) &&
         attn_check_apart_(e, ctx, op, 1, all.span, all.n) &&
         (query || attn_check_lens_(e, p->kv_len, a->k.batch, a->k.len,
                                    "params.kv_len must lie in 0..k.len"));
}

ATTN_COLD_ attn_status attn_key_blocks_call_(attn_tensor y, attn_tensor k,
                                             const attn_key_blocks_params *params, attn_ctx *ctx,
                                             size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_key_blocks_job_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  a.y = y, a.k = k;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    (void)attn_key_blocks_check_(&e, &a, params, ctx, bytes != NULL);
  return attn_step_call_(&e, table, workers, ctx, attn_key_blocks_steps_, &a, "blocks of keys",
                         bytes);
}
ATTN_CALL_(attn_key_blocks, (y, k, params), attn_tensor y, attn_tensor k,
           const attn_key_blocks_params *params)
