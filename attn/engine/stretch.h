/* engine/stretch.h owns the sums of long rows. Blocks of keys are joined to the accumulator of a stretch
 * of ATTN_STRETCH_ keys, and stretches to that of the row, which also keeps what such a sum loses: no chain
 * of additions is longer than a block, or a stretch's blocks. For a row without keys in a stretch nothing of
 * this changes a bit. */

/* Adds the accumulator to w.far, and empties it; close: for the last time. */
ATTN_FUNC_ void attn_tile_fold_(attn_tile_ *t, int close) {
  const attn_softmax_ *a = t->a;
  const attn_tile_table_ *f = attn_on_(tile, a->table);
  const int64_t dv = a->counting ? 0 : a->v.dim;
  float keep[ATTN_TILE_], none[ATTN_TILE_] = {0};
  memcpy(keep, attn_alpha_one_, sizeof keep);
  if (!t->folded) {
    memset(t->w.far, 0, (size_t)(2 * dv * ATTN_TILE_) * sizeof(float));
    if (ATTN_PART_(TERMS, a->relative.values.data))
      memset(t->w.rel_far, 0, (size_t)(2 * t->rel_rows * ATTN_TILE_) * sizeof(float));
    for (int r = 0; r < ATTN_TILE_; r++)
      t->far_m[r] = -INFINITY, t->far_l[r] = t->far_low[r] = 0.0f;
  }
  if (!attn_shiftless_(a)) f->join(t->far_m, none, keep, t->m, t->groups);
  f->fold_block(t->w.far, t->w.far + dv * ATTN_TILE_, t->w.ot, dv, t->groups, keep, close);
  f->fold_block(t->far_l, t->far_low, t->l, 1, t->groups, keep, close);
  memset(t->l, 0, sizeof t->l);
  if (ATTN_PART_(TERMS, a->relative.values.data)) {
    f->fold_block(t->w.rel_far, t->w.rel_far + t->rel_rows * ATTN_TILE_, t->w.rel_values,
                  t->rel_rows, t->groups, keep, close);
    memset(t->w.rel_values, 0, (size_t)(t->rel_rows * ATTN_TILE_) * sizeof(float));
  }
  t->folded = 1;
}

/* After the last key: the accumulator holds all stretches. */
ATTN_FUNC_ void attn_tile_unfold_(attn_tile_ *t) {
  if (!t->folded) return;
  attn_tile_fold_(t, 1);
  memcpy(t->l, t->far_l, sizeof t->l);
  memcpy(t->w.ot, t->w.far,
         (size_t)((t->a->counting ? 0 : t->a->v.dim) * ATTN_TILE_) * sizeof(float));
  if (ATTN_PART_(TERMS, t->a->relative.values.data))
    memcpy(t->w.rel_values, t->w.rel_far, (size_t)(t->rel_rows * ATTN_TILE_) * sizeof(float));
}

/* Before keys of a stretch: the one before is complete. The result is `started`, whether the
 * accumulator holds something. */
ATTN_FUNC_ int attn_tile_stretch_(attn_tile_ *t, int64_t stretch, int started) {
  const int turns = t->stretch >= 0 && t->stretch != stretch && started;
  t->stretch = stretch;
  if (turns) attn_tile_fold_(t, 0);
  return started && !turns;
}
