/* families/selection/key_blocks.h owns the vectors that stand for blocks of keys: means, and bounds by channel. */

/* Items of a head, each of the pages of a residue class: no two write the same. */
enum { ATTN_KEY_SHARES_ = 16 };

typedef struct attn_key_blocks_job_ {
  const attn_table_ *table;
  attn_tensor y;
  attn_paged_ k;
  attn_key_blocks_params p;
  char *memory;
  int64_t batch, each, first, blocks; /* the first that is written, and how many are */
} attn_key_blocks_job_;

/* y = what stands for keys from .. to - 1. */
ATTN_FUNC_ void attn_key_block_(const attn_key_blocks_job_ *a, int worker, float *y, int64_t b,
                                int64_t h, int64_t from, int64_t to) {
  const int64_t dk = a->k.x.dim;
  double *sum = (double *)(void *)(a->memory + worker * a->each);
  float *row = (float *)(void *)(a->memory + worker * a->each + attn_piece_(dk, 8));
  memset(y, 0, (size_t)a->y.dim * sizeof *y);
  for (int64_t c = 0; c < dk; c++) sum[c] = 0.0;
  for (int64_t i = from; i < to; i++) {
    attn_paged_widen_(a->table, &a->k, row, NULL, b, h, i, 1);
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

ATTN_FUNC_ void attn_key_blocks_item_(void *job, int worker, int64_t item) {
  const attn_key_blocks_job_ *a = (const attn_key_blocks_job_ *)job;
  const int64_t unit = item / a->blocks, b = unit / a->k.x.heads, h = unit % a->k.x.heads;
  const int64_t keys = a->p.kv_len ? a->p.kv_len[b] : a->k.held ? a->k.held[b].len : a->k.x.len;
  const int64_t j = a->first + item % a->blocks, from = j * a->p.size;
  attn_key_block_(a, worker, (float *)(void *)attn_at_(&a->y, b, h, j), b, h, from,
                  keys - from < a->p.size ? keys : from + a->p.size);
}

/* Full pages of all sequences. */
ATTN_FUNC_ void attn_key_blocks_pages_(void *job, int worker, int64_t item) {
  const attn_key_blocks_job_ *a = (const attn_key_blocks_job_ *)job;
  const int64_t h = item / ATTN_KEY_SHARES_, size = a->k.x.len;
  for (int64_t b = 0; b < a->batch; b++) {
    const attn_sequence *s = &a->k.held[b];
    const int64_t from = a->p.fresh ? attn_max64_(s->len - a->p.fresh, 0) : 0;
    for (int64_t t = from / size; t < s->len / size; t++)
      if (s->table[t] % ATTN_KEY_SHARES_ == item % ATTN_KEY_SHARES_)
        attn_key_block_(a, worker, (float *)(void *)attn_at_(&a->y, s->table[t], h, 0), b, h,
                        t * size, (t + 1) * size);
  }
}

/* Blocks of keys keys, of every entry. */
ATTN_COLD_ int attn_stage_key_blocks_(attn_stage_ *s, attn_key_blocks_job_ *a, int64_t keys) {
  a->table = s->table;
  a->first = a->p.first / a->p.size;
  a->blocks = attn_pick_blocks_(keys, a->p.size) - a->first;
  a->each = attn_add_(attn_piece_(a->k.x.dim, 8), attn_piece_(a->k.x.dim, 4));
  if (a->blocks <= 0) return 1;
  return attn_stage_for_(s, attn_mul_(attn_mul_(a->batch, a->k.x.heads), a->blocks),
                         attn_key_blocks_item_, a, a->each, &a->memory);
}

ATTN_COLD_ int attn_key_blocks_steps_(attn_stage_ *s, void *job) {
  attn_key_blocks_job_ *a = (attn_key_blocks_job_ *)job;
  if (!a->k.held) return attn_stage_key_blocks_(s, a, a->k.x.len);
  a->table = s->table;
  a->each = attn_add_(attn_piece_(a->k.x.dim, 8), attn_piece_(a->k.x.dim, 4));
  return attn_stage_for_(s, attn_mul_(a->k.x.heads, ATTN_KEY_SHARES_), attn_key_blocks_pages_, a,
                         a->each, &a->memory);
}

/* Rows of the vectors that may be given for blocks of `size` keys; -2: none fit. */
ATTN_COLD_ int64_t attn_stands_len_(const attn_softmax_ *f, int64_t size) {
  return !f->seq ? attn_pick_blocks_(f->k.len, size) : f->seq->page == size ? 1 : -2;
}

/* Those that are given, or made in the call, of keys that have been judged. */
ATTN_COLD_ int attn_stage_stands_(attn_stage_ *s, attn_stands_ *x, const attn_tensor *given,
                                  attn_key_blocks_job_ *a, const attn_softmax_ *f, int64_t size,
                                  attn_key_block_kind kind) {
  x->y = *given, x->held = given->data && f->seq ? f->seq->cached : NULL;
  if (given->data) return 1;
  a->k = attn_paged_keys_(f), a->batch = f->q.batch;
  a->p.kind = kind, a->p.size = size, a->p.kv_len = f->kv_len;
  x->y = a->y = attn_stage_tensor_(s, f->q.batch, f->k.heads, attn_pick_blocks_(f->k.len, size),
                                   kind == ATTN_KEY_BLOCK_MEAN ? f->k.dim : attn_mul_(2, f->k.dim));
  return attn_stage_key_blocks_(s, a, f->k.len);
}

/* The pages of a cache in place of k. */
ATTN_COLD_ int attn_key_blocks_cached_(attn_error_ *e, attn_key_blocks_job_ *a, const attn_ctx *ctx,
                                       int query) {
  const attn_key_blocks_params *p = &a->p;
  attn_operand_ op =
      ATTN_OPERAND_(&a->y, "y", ATTN_OUT_ | ATTN_IS_F32_, ATTN_ANY_, ATTN_ANY_, 1, ATTN_ANY_,
                    "y must be f32 [pages, Hk, 1, dk], of bounds 2 dk, with params.cache");
  attn_span_ out[2];
  if (a->k.x.data) return attn_reject_(e, ATTN_E_SHAPE, "k.data must be null with params.cache");
  if (p->size || p->first || p->kv_len || p->k_scales.scale || p->k_scales.zero || p->fresh < 0)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.size, .first, .kv_len and .k_scales must be 0 with params.cache, "
                        "and .fresh not negative");
  if (!attn_check_operand_(e, &op, 1) || !attn_check_workspace_(e, ctx, &out[1])) return 0;
  out[0] = op.span;
  if (!attn_paged_check_(e, &a->k, p->cache, p->sequences, p->n, out, 2, !query)) return 0;
  op.batch = a->k.x.batch, op.heads = a->k.x.heads;
  op.dim = p->kind == ATTN_KEY_BLOCK_MEAN ? a->k.x.dim : attn_mul_(2, a->k.x.dim);
  a->batch = p->n;
  return attn_check_operand_(e, &op, a->k.x.heads) && attn_check_apart_(e, ctx, &op, 1, NULL, 0);
}

ATTN_COLD_ int attn_key_blocks_check_(attn_error_ *e, attn_key_blocks_job_ *a,
                                      const attn_key_blocks_params *p, const attn_ctx *ctx,
                                      int query) {
  static const char wk[] = ATTN_WORDS_("k");
  static const attn_scales_words_ wks = ATTN_SCALES_WORDS_("params.k_scales", "k");
  attn_tensor *k = &a->k.x;
  attn_spans_ all;
  all.n = 0;
  attn_span_ *key = attn_spans_more_(&all, 1);
  if (!p) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it says what a block is");
  a->p = *p;
  if ((int)p->kind < 0 || p->kind >= ATTN_KEY_BLOCK_KINDS)
    return attn_reject_(e, ATTN_E_RANGE, "params.kind must be an attn_key_block_kind");
  if (p->cache || p->sequences) return attn_key_blocks_cached_(e, a, ctx, query);
  if (p->size < 1) return attn_reject_(e, ATTN_E_RANGE, "params.size must be at least 1");
  if (p->n || p->fresh)
    return attn_reject_(e, ATTN_E_RANGE, "params.n and .fresh go with params.cache");
  if (!attn_check_stored_(e, k, wk, key)) return 0;
  if (p->first < 0 || p->first > k->len)
    return attn_reject_(e, ATTN_E_RANGE, "params.first must lie in 0..k.len");
  attn_operand_ op[] = {ATTN_OPERAND_(
      &a->y, "y", ATTN_OUT_ | ATTN_IS_F32_, k->batch, k->heads, attn_pick_blocks_(k->len, p->size),
      p->kind == ATTN_KEY_BLOCK_MEAN ? k->dim : attn_mul_(2, k->dim),
      "y must be f32 [B, Hk, ceil(Tk / size), dk], of bounds 2 dk")};
  a->batch = k->batch;
  return attn_check_operand_(e, &op[0], k->heads) &&
         attn_take_scales_(e, &a->k.scales, &p->k_scales, k, &wks, &all) &&
         attn_take_array_(e, p->kv_len, k->batch, 4,
                          "params.kv_len must be aligned to its elements", &all) &&
         attn_check_apart_(e, ctx, op, 1, all.span, all.n) &&
         (query ||
          attn_check_lens_(e, p->kv_len, k->batch, k->len, "params.kv_len must lie in 0..k.len"));
}

ATTN_COLD_ attn_status attn_key_blocks_call_(attn_tensor y, attn_tensor k,
                                             const attn_key_blocks_params *params, attn_ctx *ctx,
                                             size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_key_blocks_job_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  a.y = y, a.k.x = k;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    (void)attn_key_blocks_check_(&e, &a, params, ctx, bytes != NULL);
  return attn_step_call_(&e, table, workers, ctx, attn_key_blocks_steps_, &a, "blocks of keys",
                         bytes);
}
ATTN_CALL_(attn_key_blocks, (y, k, params), attn_tensor y, attn_tensor k,
           const attn_key_blocks_params *params)
