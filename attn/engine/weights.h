/* engine/weights.h owns weights that the caller changes. The first of two passes leaves the maximum and
 * the sum of each row; the second makes every weight what it is in the end, hands it over, and adds
 * values with what it gets back. */

/* The rows of a tile in the second pass: m and l of all keys, sinks included. */
ATTN_FUNC_ void attn_tile_sinks_(attn_tile_ *t);
ATTN_FUNC_ void attn_tile_known_(attn_tile_ *t) {
  attn_tile_sinks_(t);
  for (int r = 0; r < ATTN_TILE_; r++) {
    t->sum[r] = t->l[r];
    t->scale[r] = t->inverse[r] = 1.0f;
  }
  attn_on_(tile, t->a->table)->divide(t->inverse, t->sum, t->groups);
}

/* Before scores of keys at .. at + n become weights: which of them are there. */
ATTN_FUNC_ void attn_weights_note_(attn_tile_ *t, int at, int n, int r0, int r1) {
  for (int e = at; e < at + n; e++)
    for (int r = r0; r < r1; r++)
      t->w.bias[e * ATTN_TILE_ + r] = t->w.s[e * ATTN_TILE_ + r] == -INFINITY ? 0.0f : 1.0f;
}

/* Afterwards: key[0 .. n - 1], whose weights are there, pass through the caller's hands, and the map gets
 * what comes back. */
ATTN_FUNC_ void attn_weights_hand_(attn_tile_ *t, int at, const int64_t *key, int n, int r0,
                                   int r1) {
  const attn_softmax_ *a = t->a;
  float *s = t->w.s + at * ATTN_TILE_;
  const float *there = t->w.bias + at * ATTN_TILE_;
  attn_tile_modify_(t, s, key, n, r0, r1, 1);
  for (int r = r0; r < r1; r++) {
    float *row = NULL;
    if (a->map.data) row = (float *)(void *)attn_at_(&a->map, t->batch, t->head[r], t->row[r]);
    for (int e = 0; e < n; e++) {
      float *x = &s[e * ATTN_TILE_ + r];
      if (there[e * ATTN_TILE_ + r] == 0.0f) {
        *x = 0.0f;
        continue;
      }
      if (*x != *x) *x = attn_from_bits_(0x7fc00000u);
      if (row) row[key[e]] = *x;
    }
  }
}

/* The segments of a block, before and after the softmax. */
ATTN_FUNC_ void attn_block_note_(attn_tile_ *t, const attn_block_ *b) {
  for (int i = 0; i < b->count; i++)
    attn_weights_note_(t, (int)b->seg[i].at, (int)b->seg[i].n, b->seg[i].g0 * ATTN_GROUP_,
                       b->seg[i].g1 * ATTN_GROUP_);
}
ATTN_FUNC_ void attn_block_hand_(attn_tile_ *t, const attn_block_ *b) {
  int64_t key[ATTN_BLOCK_];
  for (int i = 0; i < b->count; i++) {
    const attn_segment_ *seg = &b->seg[i];
    const int r1 = seg->g1 * ATTN_GROUP_;
    for (int e = 0; e < seg->n; e++) key[e] = attn_block_key_(b, seg->at + e);
    attn_on_(tile, t->a->table)
        ->scale_block(t->w.s + seg->at * ATTN_TILE_, seg->n, seg->g0, seg->g1, t->inverse);
    attn_weights_hand_(t, (int)seg->at, key, (int)seg->n, seg->g0 * ATTN_GROUP_,
                       r1 < t->n ? r1 : t->n);
  }
}

/* The same of lists: runs of the keys that the modifier of scores has left in them. */
ATTN_FUNC_ void attn_list_hand_(attn_tile_ *t, int32_t *const *index, const int *count, int most) {
  int64_t key[ATTN_BLOCK_];
  attn_on_(tile, t->a->table)->scale_block(t->w.s, most, 0, t->groups, t->inverse);
  for (int r = 0; r < t->n; r++)
    for (int e = 0, n; e < count[r]; e += n) {
      for (n = 0; e + n < count[r] && index[r][e + n] >= 0; n++) key[n] = index[r][e + n];
      if (n > 0) attn_weights_hand_(t, e, key, n, r, r + 1);
      if (n == 0) n = 1;
    }
}
