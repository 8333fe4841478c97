/* engine/drop.h owns dropout (attn_drop): with which counters the numbers of a call, of a tile and of a row begin, and
 * which weights of a block stay. Nothing is stored: whoever asks again has the same answer. */

ATTN_FUNC_ int attn_drops_(const attn_softmax_ *a) {
  return ATTN_HAS_TRAINING && (a->terms & ATTN_TERM_DROP_) != 0;
}

/* Of a tensor of rows and columns, or of what has as many queries and keys. */
ATTN_FUNC_ int attn_check_drop_(attn_error_ *e, const attn_drop *p, int64_t batch, int64_t heads,
                                int64_t rows, int64_t columns) {
  const int64_t end = (int64_t)1 << 32;
  if (!(p->p >= 0.0 && p->p < 1.0))
    return attn_reject_(e, ATTN_E_VALUE, "dropout.p must lie in [0, 1)");
  if (p->batch0 < 0 || p->batch0 > end - 1 || batch > end - p->batch0 || p->head0 < 0 ||
      p->head0 > end - 1 || heads > end - p->head0)
    return attn_reject_(e, ATTN_E_RANGE,
                        "dropout: batch0, head0 and what is counted from them must be below 2^32");
  return (rows < end && columns < end) ||
         attn_reject_(e, ATTN_E_OVERFLOW, "dropout: rows and columns must be fewer than 2^32");
}

/* What stays is multiplied by it. */
ATTN_INLINE_ float attn_drop_by_(const attn_drop *p) { return (float)(1.0 / (1.0 - p->p)); }

ATTN_FUNC_ void attn_drop_key_of_(const attn_drop *p, attn_drop_key_ *x) {
  const uint64_t key = p->seed + p->offset;
  for (uint32_t r = 0; r < 10; r++) {
    x->key[r][0] = (uint32_t)key + r * 0x9E3779B9u;
    x->key[r][1] = (uint32_t)(key >> 32) + r * 0xBB67AE85u;
  }
  x->least = (uint32_t)ceil(p->p * 16777216.0);
  x->by = attn_drop_by_(p);
}

/* What the first two rounds make of the rows in lanes; what they make of keys is in kernels/drop.h. */
ATTN_FUNC_ void attn_tile_drop_(const attn_tile_ *t, attn_drop_lanes_ *x) {
  const attn_drop *p = &t->a->drop;
  attn_drop_key_of_(p, &x->by);
  x->batch = (uint32_t)(t->batch + p->batch0);
  for (int r = 0; r < ATTN_TILE_; r++) {
    const uint32_t row = r < t->n ? (uint32_t)t->row[r] : 0;
    const uint64_t head = r < t->n ? (uint64_t)(uint32_t)(t->head[r] + p->head0) : 0;
    const uint64_t first = head * 0xCD9E8D57u;
    const uint32_t mixed = (uint32_t)(first >> 32) ^ row ^ x->by.key[0][0];
    const uint64_t second = (uint64_t)mixed * 0xD2511F53u;
    x->word0[r] = (uint32_t)first;
    x->word2[r] = (uint32_t)(second >> 32) ^ x->by.key[1][1];
    x->word3[r] = (uint32_t)second;
  }
}

/* Of each key of a block the lanes that stay. */
ATTN_FUNC_ void attn_block_kept_(const attn_tile_ *t, const attn_block_ *b, uint64_t *kept) {
  attn_drop_lanes_ lanes;
  attn_tile_drop_(t, &lanes);
  memset(kept, 0, (size_t)b->n * sizeof *kept);
  for (int i = 0; i < b->count; i++) {
    const attn_segment_ *seg = &b->seg[i];
    for (int e = seg->at, n; e < seg->at + seg->n; e += n) {
      n = (int)attn_min64_(attn_block_run_(b, e), seg->at + seg->n - e);
      attn_on_(drop, t->a->table)
          ->drop_bits(kept + e, attn_block_key_(b, e), n, seg->g0, seg->g1, &lanes);
    }
  }
}

/* Numbers of a block, [key][lane], times what dropout makes of 1. */
ATTN_FUNC_ void attn_block_drop_(const attn_tile_ *t, const attn_block_ *b, const uint64_t *kept,
                                 float *s) {
  const float by = attn_drop_by_(&t->a->drop);
  for (int i = 0; i < b->count; i++) {
    const attn_segment_ *seg = &b->seg[i];
    attn_on_(drop, t->a->table)
        ->drop_block(s + seg->at * ATTN_TILE_, kept + seg->at, seg->n, seg->g0, seg->g1, by);
  }
}

/* Weights of a block. */
ATTN_FUNC_ void attn_block_drop_weights_(attn_tile_ *t, const attn_block_ *b) {
  uint64_t kept[ATTN_BLOCK_];
  attn_block_kept_(t, b, kept);
  attn_block_drop_(t, b, kept, t->w.s);
}

/* Weights of lane r in a row: those of n keys. */
ATTN_FUNC_ void attn_row_drop_(const attn_tile_ *t, int r, float *row, const int32_t *keys,
                               int64_t n) {
  const attn_drop *p = &t->a->drop;
  attn_drop_key_ key;
  const uint32_t at[3] = {(uint32_t)t->row[r], (uint32_t)(t->head[r] + p->head0),
                          (uint32_t)(t->batch + p->batch0)};
  attn_drop_key_of_(p, &key);
  attn_on_(drop, t->a->table)->drop_list(row, keys, n, at, &key);
}

/* The same of all keys, of a map. */
ATTN_FUNC_ void attn_map_drop_(const attn_tile_ *t, int r, float *row, int64_t n) {
  int32_t keys[ATTN_BLOCK_];
  for (int64_t j = 0; j < n; j += ATTN_BLOCK_) {
    const int64_t some = attn_min64_(n - j, ATTN_BLOCK_);
    for (int64_t e = 0; e < some; e++) keys[e] = (int32_t)(j + e);
    attn_row_drop_(t, r, row + j, keys, some);
  }
}
