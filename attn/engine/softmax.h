/* engine/softmax.h owns the exact-softmax driver: it walks the key blocks that a tile of queries
 * may see and calls the primitives on them. Which keys and modifiers a mechanism has is data in
 * attn_softmax_; argument checks belong to the mechanisms.
 *
 * Blocks of ATTN_BLOCK_ keys start at multiples of it, whatever the tile, so a row's result never
 * depends on the rows beside it. */

/* Key rows j0.. as f32: the tensor itself, or a converted copy. */
ATTN_FUNC_ const float *attn_rows_f32_(const attn_softmax_ *a, const attn_tensor *x, int64_t b,
                                       int64_t h, int64_t j0, int64_t n, float *copy,
                                       int64_t *stride) {
  const char *p = attn_at_(x, b, h, j0);
  if (x->dtype == ATTN_F32) {
    *stride = x->stride_len;
    return (const float *)(const void *)p;
  }
  a->table->widen(copy, p, x->stride_len, n, x->dim, x->dtype);
  *stride = x->dim;
  return copy;
}

/* A run of keys j0..j1 that lane groups g0..g1 see; bounded: some of these rows see only a part. */
typedef struct attn_segment_ {
  int64_t j0, j1;
  int g0, g1, bounded;
} attn_segment_;

enum { ATTN_GROUPS_ = ATTN_TILE_ / ATTN_GROUP_, ATTN_SEGMENTS_ = 2 * ATTN_GROUPS_ + 1 };

/* Cuts block j0..j1 where the set of groups that see a key changes. */
ATTN_FUNC_ int attn_tile_cut_(const attn_tile_ *t, int64_t j0, int64_t j1, attn_segment_ *seg) {
  int64_t edge[ATTN_SEGMENTS_ + 1];
  int edges = 0, count = 0;
  edge[edges++] = j0;
  edge[edges++] = j1;
  for (int g = 0; g < t->groups; g++) {
    const int64_t e[2] = {t->g[g].lo_min, t->g[g].hi_max};
    for (int i = 0; i < 2; i++) {
      if (e[i] <= j0 || e[i] >= j1) continue;
      int at = edges;
      while (edge[at - 1] > e[i]) at--;
      if (edge[at - 1] == e[i]) continue;
      memmove(edge + at + 1, edge + at, (size_t)(edges - at) * sizeof *edge);
      edge[at] = e[i];
      edges++;
    }
  }
  for (int i = 0; i + 1 < edges; i++) {
    attn_segment_ s = {edge[i], edge[i + 1], ATTN_GROUPS_, 0, 0};
    for (int g = 0; g < t->groups; g++) {
      if (t->g[g].lo_min > s.j0 || t->g[g].hi_max < s.j1) continue;
      if (g < s.g0) s.g0 = g;
      s.g1 = g + 1;
    }
    for (int g = s.g0; g < s.g1; g++)
      s.bounded |= t->g[g].ragged || t->g[g].lo_max > s.j0 || t->g[g].hi_min < s.j1;
    if (s.g0 >= s.g1) continue;
    attn_segment_ *last = count ? seg + count - 1 : NULL;
    if (last && last->j1 == s.j0 && last->g0 == s.g0 && last->g1 == s.g1 &&
        last->bounded == s.bounded)
      last->j1 = s.j1;
    else
      seg[count++] = s;
  }
  return count;
}

/* Values that are not finite must reach the rows that may read them and no others, though a
 * forbidden pair has weight 0 and 0 * NaN is NaN. A tile in which that may have happened is swept
 * again carefully: such values are taken out of a copy of the block here, before the scores become
 * weights, with the lanes that read them, and put back by attn_tile_patch_. */
ATTN_FUNC_ void attn_tile_clean_(attn_tile_ *t, const attn_modifiers_ *mod, int64_t j0, int64_t n,
                                 const float *v, int64_t stride) {
  const int64_t dv = t->a->v.dim;
  /* by the masks, not by the score: an allowed score may be -inf, and its value is read */
  for (int64_t j = 0; j < n; j++)
    for (int lane = 0; lane < t->n; lane++) {
      const int64_t cell = j * ATTN_TILE_ + lane;
      t->w.hit[cell] = (unsigned char)(t->lo[lane] <= j0 + j && j0 + j < t->hi[lane] &&
                                       !(mod->key && mod->key[j] == -INFINITY) &&
                                       !(mod->bias && mod->bias[cell] == -INFINITY) &&
                                       !(mod->allow && mod->allow[cell] != 0.0f));
    }
  for (int64_t j = 0; j < n; j++)
    for (int64_t c = 0; c < dv; c++) {
      float x = v[j * stride + c];
      t->w.v[j * dv + c] = x - x == 0.0f ? x : 0.0f;
    }
}

/* Adds what attn_tile_clean_ took out, read from the tensor itself. */
ATTN_FUNC_ void attn_tile_patch_(attn_tile_ *t, int64_t j0, int64_t n) {
  const attn_softmax_ *a = t->a;
  const int64_t dv = a->v.dim;
  float x;
  for (int64_t j = 0; j < n; j++)
    for (int64_t c = 0; c < dv; c++) {
      const char *p = attn_at_(&a->v, t->batch, t->head_v, j0 + j) + c * attn_size_(a->v.dtype);
      if (a->v.dtype == ATTN_F32)
        memcpy(&x, p, 4);
      else
        a->table->widen(&x, p, 0, 1, 1, a->v.dtype);
      if (x - x == 0.0f) continue;
      for (int lane = 0; lane < t->n; lane++)
        if (t->w.hit[j * ATTN_TILE_ + lane])
          t->w.ot[c * ATTN_TILE_ + lane] += t->w.s[j * ATTN_TILE_ + lane] * x;
    }
}

/* The score map leaves in log2 units here and becomes weights when the row's sum is known. */
ATTN_FUNC_ void attn_tile_emit_(attn_tile_ *t, int64_t j0, int64_t n) {
  void *rows[ATTN_TILE_];
  for (int r = 0; r < t->n; r++)
    rows[r] = (float *)(void *)attn_at_(&t->a->map, t->batch, t->head[r], t->row[r]) + j0;
  t->a->table->unpack(rows, t->w.s, t->n, n, ATTN_F32, NULL);
}

/* One block of keys as one tile sees it. */
typedef struct attn_block_ {
  int64_t base, j0, j1; /* where the block starts; the keys of it that are visited */
  attn_segment_ seg[ATTN_SEGMENTS_];
  int count, bounded;
  int whole;                    /* one segment for all rows */
  int partial;                  /* some pair may be forbidden */
  const attn_mask *mask, *bias; /* null when they say nothing here */
  const float *k, *v;
  int64_t k_stride, v_stride;
  attn_modifiers_ mod;    /* arrays over keys start at j0; lo and hi go to bounded segments only */
  float key[ATTN_BLOCK_]; /* what mod.key points at */
  int64_t first[ATTN_GROUPS_], end[ATTN_GROUPS_]; /* keys each lane group has scores for */
} attn_block_;

/* Finds what keys j0..j1 need. 0 = no row sees any of them. */
ATTN_FUNC_ int attn_block_open_(const attn_tile_ *t, attn_block_ *b, int64_t j0, int64_t j1) {
  const attn_softmax_ *a = t->a;
  b->count = attn_tile_cut_(t, j0, j1, b->seg);
  const int allows = b->count == 0 ? ATTN_FORBIDS_ALL_ : attn_tile_allows_(t, j0, j1);
  if (allows == ATTN_FORBIDS_ALL_) return 0;
  b->base = j0 / ATTN_BLOCK_ * ATTN_BLOCK_;
  b->j0 = b->seg[0].j0, b->j1 = b->seg[b->count - 1].j1;
  b->mask = allows == ATTN_MIXED_ ? &a->mask : NULL;
  b->bias = a->bias.kind ? &a->bias : NULL;
  b->bounded = 0;
  for (int g = 0; g < ATTN_GROUPS_; g++) b->first[g] = b->end[g] = 0;
  for (int i = 0; i < b->count; i++) {
    b->bounded |= b->seg[i].bounded;
    /* positions grow with the lanes, so the segments of a group follow one another */
    for (int g = b->seg[i].g0; g < b->seg[i].g1; g++) {
      if (b->end[g] == 0) b->first[g] = b->seg[i].j0;
      b->end[g] = b->seg[i].j1;
    }
  }
  b->whole = b->count == 1 && b->seg[0].g0 == 0 && b->seg[0].g1 == t->groups;
  b->partial = b->bounded || !b->whole || b->mask || b->bias;
  const int64_t n = b->j1 - b->j0;
  b->k = attn_rows_f32_(a, &a->k, t->batch, t->head_k, b->j0, n, t->w.k, &b->k_stride);
  b->v = attn_rows_f32_(a, &a->v, t->batch, t->head_v, b->j0, n, t->w.v, &b->v_stride);
  return 1;
}

/* Fills in the modifiers of the block. Distances and bounds count from its fixed start, so that
 * they round alike whatever part of it is visited. */
ATTN_FUNC_ void attn_block_modifiers_(attn_tile_ *t, attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  const int64_t n = b->j1 - b->j0;
  const int key_mask = b->mask && attn_mask_per_key_(a, b->mask);
  const int key_bias = b->bias && attn_mask_per_key_(a, b->bias);
  memset(&b->mod, 0, sizeof b->mod);
  b->mod.softcap = a->softcap;
  if (a->alibi) {
    for (int r = 0; r < t->n; r++) t->rel[r] = (float)(b->base - t->pos[r]);
    b->mod.slope = t->slope, b->mod.rel = t->rel;
  }
  if (key_mask || key_bias) memset(b->key, 0, sizeof b->key), b->mod.key = b->key;
  if (key_bias) attn_tile_key_(t, b->bias, t->bias[0], b->key, b->j0, n);
  if (key_mask) attn_tile_key_(t, b->mask, t->mask[0], b->key, b->j0, n);
  if (b->bias && !key_bias) {
    attn_tile_mask_(t, b->bias, t->bias, t->w.bias, b->j0, n);
    b->mod.bias = t->w.bias;
  }
  if (b->mask && !key_mask) {
    attn_tile_mask_(t, b->mask, t->mask, t->w.allow, b->j0, n);
    b->mod.allow = t->w.allow;
  }
  if (b->bounded)
    for (int r = 0; r < ATTN_TILE_; r++) {
      t->from[r] = (float)attn_clamp_(t->lo[r] - b->base, 0, ATTN_BLOCK_);
      t->to[r] = (float)attn_clamp_(t->hi[r] - b->base, 0, ATTN_BLOCK_);
    }
}

/* E1 to E7: the scores of the block, and the maximum of each row in t->top. */
ATTN_FUNC_ void attn_block_scores_(attn_tile_ *t, const attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const int modified = a->softcap > 0.0f || a->alibi || b->mask || b->bias;
  for (int r = 0; r < ATTN_TILE_; r++) t->top[r] = -INFINITY;
  if (a->map.data && !b->whole) /* a map wants every cell */
    for (int64_t c = 0; c < (b->j1 - b->j0) * ATTN_TILE_; c++) t->w.s[c] = -INFINITY;
  for (int i = 0; i < b->count; i++) {
    const attn_segment_ *seg = &b->seg[i];
    const int64_t at = seg->j0 - b->j0, n = seg->j1 - seg->j0;
    const int change = modified || seg->bounded;
    float *s = t->w.s + at * ATTN_TILE_;
    /* scores that will change have no maximum yet */
    f->score_block(s, t->w.qt, b->k + at * b->k_stride, b->k_stride, n, a->q.dim, seg->g0, seg->g1,
                   change ? t->spare : t->top);
    if (change) {
      attn_modifiers_ mod = b->mod;
      if (mod.key) mod.key += at;
      if (mod.bias) mod.bias += at * ATTN_TILE_;
      if (mod.allow) mod.allow += at * ATTN_TILE_;
      if (seg->bounded) mod.lo = t->from, mod.hi = t->to;
      f->modify_block(s, seg->j0 - b->base, n, seg->g0, seg->g1, &mod, t->top);
    }
    const int lanes = (seg->g1 - seg->g0) * ATTN_GROUP_, left = t->n - seg->g0 * ATTN_GROUP_;
    *t->w.pairs += n * (lanes < left ? lanes : left);
  }
  if (a->map.data) attn_tile_emit_(t, b->j0, b->j1 - b->j0);
}

/* E8 and E9: scores become weights and values are added to the accumulator; started = it holds
 * earlier blocks. One segment for all rows, the usual case, rescales it in registers. */
ATTN_FUNC_ void attn_block_values_(attn_tile_ *t, attn_block_ *b, int started) {
  const attn_table_ *f = t->a->table;
  const int64_t n = b->j1 - b->j0, dv = t->a->v.dim;
  float *s = t->w.s;
  int patch = 0;
  if (t->careful && b->partial && !f->finite(b->v, b->v_stride, n, dv)) {
    attn_tile_clean_(t, &b->mod, b->j0, n, b->v, b->v_stride);
    b->v = t->w.v, b->v_stride = dv, patch = 1;
  }
  if (b->whole) {
    f->softmax_block(s, n, 0, t->groups, t->m, t->l, t->alpha, t->top);
    f->value_block(t->w.ot, s, b->v, b->v_stride, n, dv, 0, t->groups, started ? t->alpha : NULL,
                   !started);
  } else {
    if (!started) memset(t->w.ot, 0, (size_t)(dv * ATTN_TILE_) * sizeof(float));
    for (int g = 0; g < t->groups; g++) {
      if (b->end[g] == 0) continue;
      f->softmax_block(s + (b->first[g] - b->j0) * ATTN_TILE_, b->end[g] - b->first[g], g, g + 1,
                       t->m, t->l, t->alpha, t->top);
      if (started) f->scale_block(t->w.ot, dv, g, g + 1, t->alpha);
    }
    for (int i = 0; i < b->count; i++) {
      const attn_segment_ *seg = &b->seg[i];
      const int64_t at = seg->j0 - b->j0;
      f->value_block(t->w.ot, s + at * ATTN_TILE_, b->v + at * b->v_stride, b->v_stride,
                     seg->j1 - seg->j0, dv, seg->g0, seg->g1, NULL, 0);
    }
  }
  if (patch) attn_tile_patch_(t, b->j0, n);
}

/* Sinks, the last division, and what leaves the tile (E10). */
ATTN_FUNC_ void attn_tile_finish_(attn_tile_ *t, int started) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const int64_t queries = a->q_len ? a->q_len[t->batch] : a->q.len;
  float logit[ATTN_TILE_];
  for (int pass = 0; pass < 2; pass++) {
    if (pass == 0 ? !a->sinks : !a->softmax_one) continue;
    for (int r = 0; r < ATTN_TILE_; r++) {
      logit[r] = -INFINITY;
      if (r < t->n && t->row[r] < queries)
        logit[r] = pass == 0 ? attn_to_log2_(a->sinks[t->head[r]]) : 0.0f;
    }
    f->join(t->m, t->l, t->scale, logit);
  }
  if (!started) memset(t->w.ot, 0, (size_t)(a->v.dim * ATTN_TILE_) * sizeof(float));
  f->divide(t->scale, t->l);
  if (a->lse.data)
    for (int r = 0; r < t->n; r++) {
      float lse = -INFINITY;
      if (t->l[r] > 0.0f && t->l[r] < INFINITY)
        lse = (float)(((double)t->m[r] + attn_log2_(t->l[r])) * ATTN_LN2_);
      else if (t->l[r] != 0.0f)
        lse = attn_from_bits_(0x7fc00000u);
      memcpy(attn_at_(&a->lse, t->batch, t->head[r], t->row[r]), &lse, sizeof lse);
    }
  f->unpack(t->out, t->w.ot, t->n, a->v.dim, a->o.dtype, t->scale);
  if (!a->map.data) return;
  for (int r = 0; r < t->n; r++) {
    float *row = (float *)(void *)attn_at_(&a->map, t->batch, t->head[r], t->row[r]);
    /* m includes the sinks here: exp2(x - m) / l with what scale already holds */
    float inv = t->l[r] == 0.0f ? 0.0f : 1.0f / t->l[r];
    f->weights(row, row, a->map.dim, t->m[r] == -INFINITY ? 0.0f : t->m[r], inv);
  }
}

/* Walks the key blocks from first to end. 0 when there was nothing to see. */
ATTN_FUNC_ int attn_tile_sweep_(attn_tile_ *t, int64_t first, int64_t end) {
  attn_block_ block;
  int started = 0;
  t->partial = 0;
  for (int r = 0; r < ATTN_TILE_; r++)
    t->m[r] = -INFINITY, t->l[r] = 0.0f, t->alpha[r] = 1.0f, t->scale[r] = 1.0f;
  for (int64_t j = first, next; j < end; j = next) {
    next = (j / ATTN_BLOCK_ + 1) * ATTN_BLOCK_;
    if (next > end) next = end;
    if (!attn_block_open_(t, &block, j, next)) continue;
    t->partial |= block.partial;
    attn_block_modifiers_(t, &block);
    attn_block_scores_(t, &block);
    attn_block_values_(t, &block, started);
    started = 1;
  }
  return started;
}

/* One work item: a tile of one (batch, head group). Late tiles first, since causal ones cost more.
 */
ATTN_FUNC_ void attn_softmax_item_(void *job, int worker, int64_t index) {
  const attn_softmax_ *a = (const attn_softmax_ *)job;
  attn_tile_ t;
  t.a = a;
  attn_scratch_cut_(a, worker, &t.w);
  attn_tile_lanes_(&t, index / a->tiles, a->tiles - 1 - index % a->tiles);
  int64_t first = INT64_MAX, end = 0;
  const int64_t pairs = *t.w.pairs;
  for (int g = 0; g < t.groups; g++) {
    if (t.g[g].hi_max > end) end = t.g[g].hi_max;
    if (t.g[g].hi_max > 0 && t.g[g].lo_min < first) first = t.g[g].lo_min;
  }
  if (a->map.data)
    for (int r = 0; r < t.n; r++) {
      float *row = (float *)(void *)attn_at_(&a->map, t.batch, t.head[r], t.row[r]);
      for (int64_t c = 0; c < a->map.dim; c++) row[c] = -INFINITY;
    }
  t.careful = 0;
  int started = attn_tile_sweep_(&t, first, end);
  if (t.partial && started && !a->table->finite(t.w.ot, ATTN_TILE_, a->v.dim, t.n)) {
    t.careful = 1, *t.w.pairs = pairs;
    attn_tile_sweep_(&t, first, end);
  }
  attn_tile_finish_(&t, started);
}

/* Runs the whole problem; a is complete but for its workspace. */
ATTN_FUNC_ int attn_softmax_run_(attn_error_ *e, attn_softmax_ *a, attn_ctx *ctx, int workers) {
  attn_workspace_ w;
  const int64_t items = a->q.batch * (a->q.heads / a->group) * a->tiles;
  workers = attn_pieces_(workers, items);
  a->bytes = attn_scratch_plan_(a);
  if (!attn_workspace_get_(e, &w, ctx, attn_workspace_bytes_(a->bytes, workers))) return 0;
  a->workspace = w.base;
  attn_scratch_ s;
  for (int i = 0; i < workers; i++) {
    attn_scratch_cut_(a, i, &s);
    *s.pairs = 0;
  }
  attn_for_(ctx, workers, items, attn_softmax_item_, a);
  attn_report_(ctx, a->table, workers, "streaming softmax, queries in lanes",
               "the only exact-softmax path");
  for (int i = 0; ctx && i < workers; i++) {
    attn_scratch_cut_(a, i, &s);
    ctx->report.pairs += *s.pairs;
  }
  attn_workspace_drop_(&w);
  return 1;
}
