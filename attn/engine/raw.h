/* engine/raw.h owns a map of scores as they are before any term: a pass of its own over all keys,
 * since the softmax visits only pairs that are allowed. */

/* The scores of a tile of rows, block by block. */
ATTN_FUNC_ void attn_raw_item_(void *job, int worker, int64_t index) {
  const attn_softmax_ *a = (const attn_softmax_ *)job;
  attn_tile_ t;
  attn_block_ b;
  attn_tile_open_(&t, a, worker);
  attn_tile_group_rows_(&t, index / a->tiles, index % a->tiles);
  attn_tile_lanes_(&t);
  attn_tile_no_map_(&t, -INFINITY);
  const int64_t end = a->kv_len ? a->kv_len[t.batch] : a->k.len;
  attn_block_terms_(&t, &b);
  if (ATTN_PART_(LOW, a->codes)) attn_codes_tile_(&t);
  for (int64_t j = 0, next; j < end; j = next) {
    next = end - j < ATTN_BLOCK_ ? end : j + ATTN_BLOCK_;
    if (!attn_block_open_(&t, &b, j, next)) continue;
    b.k = attn_block_rows_(a, &b, &a->k, &a->k_scales, t.batch, t.head_k, t.w.k, &b.k_stride);
    if (ATTN_PART_(LOW, a->codes))
      attn_codes_keys_(&t, &b);
    else if (ATTN_PART_(LOW, a->low))
      attn_low_keys_(&t, &b);
    attn_block_modifiers_(&t, &b);
    attn_block_scores_(&t, &b);
    attn_block_emit_(&t, &b, NULL);
  }
  for (int r = 0; r < t.n; r++)
    attn_map_natural_(a, (float *)(void *)attn_at_(&a->map, t.batch, t.head[r], t.row[r]));
}

/* The map of a whole problem, whose memory serves this one too: many rows, no terms, natural units. */
ATTN_FUNC_ void attn_raw_pass_(const attn_softmax_ *a, attn_ctx *ctx, int workers) {
  attn_softmax_ raw = *a;
  raw.map = a->raw, raw.lse.data = NULL, raw.phase = 0;
  raw.terms = a->raw_cap > 0.0f ? (int)ATTN_TERM_SOFTCAP_ : 0, raw.alibi = NULL, raw.reshape = NULL;
  raw.addends = NULL, raw.addend_count = 0;
  memset(&raw.mask, 0, sizeof raw.mask);
  memset(&raw.bias, 0, sizeof raw.bias);
  memset(&raw.relative, 0, sizeof raw.relative);
  memset(&raw.xl, 0, sizeof raw.xl);
  memset(&raw.labels, 0, sizeof raw.labels);
  memset(&raw.gaussian, 0, sizeof raw.gaussian);
  memset(&raw.span, 0, sizeof raw.span);
  raw.factor = raw.distance = NULL, raw.plan = NULL;
  raw.softcap = a->raw_cap, raw.cap_last = 0, raw.unit = 1.0;
  const double s = attn_clamp_f64_(a->scale);
  raw.scale_hi = (float)s, raw.scale_lo = (float)(s - (double)raw.scale_hi);
  raw.left = raw.right = INT64_MAX / 4, raw.keep = 0;
  raw.tiles = attn_tiles_of_(raw.group * raw.q.len);
  const int64_t items = raw.q.batch * (raw.q.heads / raw.group) * raw.tiles;
  attn_for_(ctx, attn_pieces_(workers, items), items, attn_raw_item_, &raw);
}
