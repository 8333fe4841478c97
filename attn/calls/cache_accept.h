/* calls/cache_accept.h owns trees of drafts: what their nodes see, where they stand, and what is left of them
 * in a cache when some are accepted. */

/* n parents, each an earlier node or -1. */
ATTN_COLD_ int attn_check_parents_(attn_error_ *e, const int32_t *parent, int64_t n,
                                   attn_span_ *span) {
  if (n < 0) return attn_reject_(e, ATTN_E_SHAPE, "n must not be negative");
  if (n > 0 && !parent) return attn_reject_(e, ATTN_E_NULL, "parent must not be null");
  if (!attn_check_array_(e, parent, n, 4, "parent must be aligned to its elements", span)) return 0;
  for (int64_t i = 0; i < n; i++)
    if (parent[i] < -1 || parent[i] >= i)
      return attn_reject_(e, ATTN_E_INDEX, "parent[i] must lie in -1..i-1");
  return 1;
}

ATTN_PUB_COLD_ attn_status attn_draft_mask(uint8_t *bits, int64_t stride, const int32_t *parent,
                                           int64_t n) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_span_ in, out;
  if (!attn_check_parents_(&e, parent, n, &in)) return e.status;
  if (n == 0) return ATTN_OK;
  const int64_t bytes = attn_ceil_(n, 8);
  if (!bits) return ATTN_E_NULL;
  if (stride < bytes) return ATTN_E_SHAPE;
  if (!attn_check_array_(&e, bits, attn_add_(attn_mul_(n - 1, stride), bytes), 1, "", &out))
    return e.status;
  if (attn_overlap_(in, out)) return ATTN_E_OVERLAP;
  for (int64_t i = 0; i < n; i++) {
    uint8_t *row = bits + i * stride;
    if (parent[i] < 0)
      memset(row, 0, (size_t)bytes);
    else
      memcpy(row, bits + parent[i] * stride, (size_t)bytes);
    row[i >> 3] = (uint8_t)(row[i >> 3] | 1 << (i & 7));
  }
  return ATTN_OK;
}

ATTN_PUB_COLD_ attn_status attn_draft_positions(int64_t *positions, const int32_t *parent,
                                                int64_t n, int64_t start) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_span_ in, out;
  if (!attn_check_parents_(&e, parent, n, &in)) return e.status;
  if (n > 0 && !positions) return ATTN_E_NULL;
  if (start > (int64_t)1 << 62 || start < -((int64_t)1 << 62)) return ATTN_E_RANGE;
  if (!attn_check_array_(&e, positions, n, 8, "", &out)) return e.status;
  if (attn_overlap_(in, out)) return ATTN_E_OVERLAP;
  for (int64_t i = 0; i < n; i++) positions[i] = parent[i] < 0 ? start : positions[parent[i]] + 1;
  return ATTN_OK;
}

/* Nodes between a root and this one. */
ATTN_COLD_ int64_t attn_draft_depth_(const int32_t *parent, int64_t node) {
  int64_t depth = -1;
  for (; node >= 0; node = parent[node]) depth++;
  return depth;
}

/* One row of a head of one of the two tensors, with its scales. */
ATTN_FUNC_ void attn_cache_move_(const attn_tensor *t, const attn_scales *s, int64_t h,
                                 const int64_t from[2], const int64_t to[2]) {
  const int64_t groups = attn_scale_groups_(s, t->dim);
  float *const arrays[2] = {(float *)(uintptr_t)s->scale, (float *)(uintptr_t)s->zero};
  const int64_t x = from[0] * s->stride_batch + h * s->stride_head + from[1] * s->stride_len;
  const int64_t y = to[0] * s->stride_batch + h * s->stride_head + to[1] * s->stride_len;
  if (!t->data) return; /* latent */
  memcpy(attn_at_(t, to[0], h, to[1]), attn_at_(t, from[0], h, from[1]),
         (size_t)attn_bytes_(t->dtype, t->dim));
  for (int k = 0; k < 2; k++)
    if (arrays[k]) memcpy(arrays[k] + y, arrays[k] + x, (size_t)groups * sizeof **arrays);
}

/* Token `from` becomes token `to`, an earlier one. */
ATTN_COLD_ void attn_accept_token_(const attn_cache *c, const attn_sequence *s, int64_t from,
                                   int64_t to) {
  const int64_t page = c->k.len;
  const int64_t x[2] = {s->table[from / page], from % page};
  const int64_t y[2] = {s->table[to / page], to % page};
  for (int64_t h = 0; h < c->k.heads; h++) attn_cache_move_(&c->k, &c->k_scales, h, x, y);
  for (int64_t h = 0; h < c->v.heads; h++) attn_cache_move_(&c->v, &c->v_scales, h, x, y);
}

/* Every rule of the call; what is kept, and how many nodes of it stay where they are. */
ATTN_COLD_ int attn_accept_plan_(attn_error_ *e, attn_append_ *a, const attn_cache *cache,
                                 const attn_sequence *s, const int32_t *parent, int64_t n,
                                 int64_t leaf, const attn_ctx *ctx, int64_t *kept, int64_t *still) {
  attn_span_ span[ATTN_CACHE_SPANS_], in, table;
  int64_t need = 0;
  if (!attn_check_held_(e, &a->c, cache, s, "sequence must not be null", ctx, &a->table)) return 0;
  const attn_cache *c = &a->c;
  attn_cache judged = *cache;
  if (!attn_check_cache_(e, &judged, 1, span) || !attn_check_parents_(e, parent, n, &in) ||
      !attn_check_sequence_(e, c, s, &table))
    return 0;
  for (int i = 0; i < ATTN_CACHE_SPANS_; i++)
    if (attn_overlap_(in, span[i]) || attn_overlap_(in, table))
      return attn_reject_(e, ATTN_E_OVERLAP, "parent must lie apart from the cache and the table");
  if (c->window > 0)
    return attn_reject_(e, ATTN_E_RANGE,
                        "cache.window must be 0: a window counts tokens, not depths");
  if (n > s->len) return attn_reject_(e, ATTN_E_RANGE, "n must not exceed the sequence's tokens");
  if (leaf < -1 || leaf >= n) return attn_reject_(e, ATTN_E_RANGE, "leaf must lie in -1..n-1");
  if (!attn_check_pages_(e, c, s)) return 0;
  *kept = attn_draft_depth_(parent, leaf) + 1, *still = *kept;
  for (int64_t node = leaf, d = *kept - 1; d >= 0; node = parent[node], d--)
    if (node != d) *still = d;
  const int64_t page = c->k.len, first = s->len - n;
  for (int64_t t = (first + *still) / page; *still < *kept && t <= (first + *kept - 1) / page; t++)
    need += c->holders[s->table[t]] > 1;
  return attn_pages_free_(c, need) ||
         attn_reject_(e, ATTN_E_FULL,
                      "the cache has not enough free pages for copies of shared ones");
}

ATTN_PUB_COLD_ attn_status attn_cache_accept(attn_cache *cache, attn_sequence *sequence,
                                             const int32_t *parent, int64_t n, int64_t leaf,
                                             attn_ctx *ctx) {
  enum { PART = 64 };
  attn_error_ e = {ATTN_OK, NULL};
  attn_append_ a;
  attn_append_run_ run;
  int64_t kept = 0, still = 0, path[PART];
  memset(&a, 0, sizeof a), memset(&run, 0, sizeof run);
  attn_sequence *const s = sequence;
  if (!attn_accept_plan_(&e, &a, cache, s, parent, n, leaf, ctx, &kept, &still))
    return attn_end_(ctx, &e);
  const int64_t first = s->len - n, page = a.c.k.len, held = attn_seq_held_(&a.c, s);
  for (int64_t t = (first + still) / page; still < kept && t <= (first + kept - 1) / page; t++)
    run.entry = t, attn_append_page_(&a, s, &run, held);
  for (int64_t d0 = still; d0 < kept;
       d0 += PART) { /* upwards: no row is written before it is read */
    for (int64_t node = leaf, d = kept - 1; d >= d0; node = parent[node], d--)
      if (d < d0 + PART) path[d - d0] = node;
    for (int64_t d = d0; d < attn_min64_(d0 + PART, kept); d++)
      attn_accept_token_(&a.c, s, first + path[d - d0], first + d);
  }
  attn_pages_drop_(&e, &a.c, s->table, attn_pages_of_(&a.c, first + kept), held);
  cache->next_free = a.c.next_free;
  s->len = s->high = first + kept;
  attn_report_(ctx, a.table, 1, "cache pages", "the only path");
  return attn_end_(ctx, &e);
}
