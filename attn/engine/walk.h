/* engine/walk.h owns the walk over the key blocks that a tile of queries may see: one after another, or those of a
 * schedule's runs. */

/* The runs of a tile of a schedule. */
ATTN_FUNC_ attn_cursor_ attn_tile_runs_(const attn_softmax_ *a, const attn_plan_tile_ *tile) {
  attn_cursor_ c = {NULL, 0, 0, NULL};
  if (!tile || tile->step <= 0) return c;
  c.run = (const attn_plan_run_ *)attn_plan_at_(a->plan, a->plan->at_run) + tile->at;
  c.runs = tile->count;
  return c;
}

/* A walk over the key blocks of a tile, or of a part of it. */
typedef struct attn_walk_ {
  attn_block_ block;
  attn_cursor_ cursor;
  int64_t j, end;
  int back, few; /* from the last block to the first; few keys without a schedule */
} attn_walk_;

ATTN_FUNC_ void attn_walk_open_(attn_tile_ *t, attn_walk_ *w) {
  const attn_softmax_ *a = t->a;
  const attn_cursor_ none = {NULL, 0, 0, NULL};
  w->cursor = none, w->j = INT64_MAX, w->end = 0;
  if (ATTN_PART_(SELECTION, t->keys))
    w->cursor.key = t->keys, w->cursor.runs = t->keys_n;
  else if (ATTN_PART_(PATTERN, a->plan))
    w->cursor = attn_tile_runs_(a, t->plan);
  for (int g = 0; g < t->groups; g++) {
    if (t->g[g].hi_max > w->end) w->end = t->g[g].hi_max;
    if (t->g[g].hi_max > 0 && t->g[g].lo_min < w->j) w->j = t->g[g].lo_min;
  }
  attn_block_terms_(t, &w->block);
  const attn_reshape_ *reshape = ATTN_PART_(WEIGHTS_, a->reshape);
  w->back = reshape && reshape->backwards;
  w->few = !ATTN_PART_(PATTERN, a->plan) && w->j < w->end && w->end - w->j <= 4 * ATTN_BLOCK_;
}

/* The next block of which some row sees a key. 0 = there is none. */
ATTN_FUNC_ int attn_walk_next_(const attn_tile_ *t, attn_walk_ *w) {
  for (;;) {
    int64_t from = w->j, next = from;
    if (ATTN_PART_(PATTERN, t->a->plan)) {
      if (!attn_block_take_(t, &w->block, &w->cursor)) return 0;
    } else {
      if (w->j >= w->end) return 0;
      next = (w->j / ATTN_BLOCK_ + 1) * ATTN_BLOCK_;
      if (next > w->end) next = w->end;
      if (w->back) {
        from = (w->end - 1) / ATTN_BLOCK_ * ATTN_BLOCK_;
        if (from < w->j) from = w->j;
        next = w->end, w->end = from;
      } else {
        w->j = next;
      }
    }
    if (attn_block_open_(t, &w->block, from, next)) return 1;
  }
}

/* The stretch of keys that the block belongs to. */
ATTN_FUNC_ int64_t attn_walk_stretch_(const attn_tile_ *t, const attn_walk_ *w) {
  const int64_t j0 = w->block.j0;
  return (ATTN_PART_(PATTERN, t->a->plan) ? attn_ordinal_((int32_t)j0, t->plan->step) : j0) /
         ATTN_STRETCH_;
}
