/* engine/stretch.h owns the sums of long rows. Blocks of keys are joined to the accumulator of a stretch
 * of ATTN_STRETCH_ keys, and stretches to that of the row, so that no chain of additions is longer than
 * a block, a stretch's blocks, or the row's stretches. For a row without keys in a stretch nothing of
 * this changes a bit. */

/* Adds the accumulator to w.far, and empties it. */
ATTN_FUNC_ void attn_tile_fold_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const attn_tile_table_ *f = attn_on_(tile, a->table);
  const int64_t dv = a->counting ? 0 : a->v.dim;
  float keep[ATTN_TILE_], none[ATTN_TILE_] = {0};
  memcpy(keep, attn_alpha_one_, sizeof keep);
  if (!t->folded) {
    memset(t->w.far, 0, (size_t)(dv * ATTN_TILE_) * sizeof(float));
    if (ATTN_PART_(TERMS, a->relative.values.data))
      memset(t->w.rel_far, 0, (size_t)(t->rel_rows * ATTN_TILE_) * sizeof(float));
    for (int r = 0; r < ATTN_TILE_; r++) t->far_m[r] = -INFINITY, t->far_l[r] = 0.0f;
  }
  if (!ATTN_PART_(WEIGHTS_, a->relu)) f->join(t->far_m, none, keep, t->m);
  f->join_block(t->w.far, t->w.ot, dv, 0, t->groups, keep);
  f->join_block(t->far_l, t->l, 1, 0, t->groups, keep);
  memset(t->l, 0, sizeof t->l);
  if (ATTN_PART_(TERMS, a->relative.values.data)) {
    f->join_block(t->w.rel_far, t->w.rel_values, t->rel_rows, 0, t->groups, keep);
    memset(t->w.rel_values, 0, (size_t)(t->rel_rows * ATTN_TILE_) * sizeof(float));
  }
  t->folded = 1;
}

/* After the last key: the accumulator holds all stretches. */
ATTN_FUNC_ void attn_tile_unfold_(attn_tile_ *t) {
  if (!t->folded) return;
  attn_tile_fold_(t);
  memcpy(t->l, t->far_l, sizeof t->l);
  float *const far = t->w.far, *const rel = t->w.rel_far;
  t->w.far = t->w.ot, t->w.ot = far, t->w.rel_far = t->w.rel_values, t->w.rel_values = rel;
}

/* Before keys of a stretch: the one before is complete. The result is `started`, whether the
 * accumulator holds something. */
ATTN_FUNC_ int attn_tile_stretch_(attn_tile_ *t, int64_t stretch, int started) {
  const int turns = t->stretch >= 0 && t->stretch != stretch && started;
  t->stretch = stretch;
  if (turns) attn_tile_fold_(t);
  return started && !turns;
}
