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

/* One key block of one tile. *started: the accumulator holds earlier blocks. */
ATTN_FUNC_ void attn_tile_block_(attn_tile_ *t, int64_t j0, int64_t j1, int *started) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  attn_segment_ seg[ATTN_SEGMENTS_];
  const int64_t base = j0 / ATTN_BLOCK_ * ATTN_BLOCK_, dk = a->q.dim, dv = a->v.dim;
  int count = attn_tile_cut_(t, j0, j1, seg), bounded = 0;
  const int allows = count == 0 ? ATTN_FORBIDS_ALL_ : attn_tile_allows_(t, j0, j1);
  if (allows == ATTN_FORBIDS_ALL_) return;
  const attn_mask *mask = allows == ATTN_MIXED_ ? &a->mask : NULL;
  const attn_mask *bias = a->bias.kind ? &a->bias : NULL;
  for (int i = 0; i < count; i++) bounded |= seg[i].bounded;
  j0 = seg[0].j0, j1 = seg[count - 1].j1;
  const int whole = count == 1 && seg[0].g0 == 0 && seg[0].g1 == t->groups;
  const int partial = bounded || !whole || mask || bias;
  t->partial |= partial;
  float *s = t->w.s;
  int64_t k_stride, v_stride;
  const float *k = attn_rows_f32_(a, &a->k, t->batch, t->head_k, j0, j1 - j0, t->w.k, &k_stride);
  const float *v = attn_rows_f32_(a, &a->v, t->batch, t->head_v, j0, j1 - j0, t->w.v, &v_stride);

  /* E4, E5, E7 of this block. Distances count from the fixed start of the block, so that they
   * round alike whatever part of it is visited. */
  attn_modifiers_ mod;
  memset(&mod, 0, sizeof mod);
  mod.softcap = a->softcap;
  if (a->alibi) {
    for (int r = 0; r < t->n; r++) t->rel[r] = (float)(base - t->pos[r]);
    mod.slope = t->slope, mod.rel = t->rel;
  }
  float key[ATTN_BLOCK_];
  const int key_mask = mask && attn_mask_per_key_(a, mask);
  const int key_bias = bias && attn_mask_per_key_(a, bias);
  if (key_mask || key_bias) memset(key, 0, sizeof key);
  if (key_bias) attn_tile_key_(t, bias, t->bias[0], key, j0, j1 - j0);
  if (key_mask) attn_tile_key_(t, mask, t->mask[0], key, j0, j1 - j0);
  if (bias && !key_bias) attn_tile_mask_(t, bias, t->bias, t->w.bias, j0, j1 - j0);
  if (mask && !key_mask) attn_tile_mask_(t, mask, t->mask, t->w.allow, j0, j1 - j0);
  if (key_mask || key_bias) mod.key = key;
  if (bias && !key_bias) mod.bias = t->w.bias;
  if (mask && !key_mask) mod.allow = t->w.allow;
  if (bounded)
    for (int r = 0; r < ATTN_TILE_; r++) {
      t->from[r] = (float)attn_clamp_(t->lo[r] - base, 0, ATTN_BLOCK_);
      t->to[r] = (float)attn_clamp_(t->hi[r] - base, 0, ATTN_BLOCK_);
    }
  const int modified = a->softcap > 0.0f || a->alibi || mask || bias;
  for (int r = 0; r < ATTN_TILE_; r++) t->top[r] = -INFINITY;

  /* a map wants every cell of the block */
  if (a->map.data && !whole)
    for (int64_t c = 0; c < (j1 - j0) * ATTN_TILE_; c++) s[c] = -INFINITY;
  int64_t first[ATTN_GROUPS_], last[ATTN_GROUPS_];
  for (int g = 0; g < ATTN_GROUPS_; g++) first[g] = INT64_MAX, last[g] = 0;
  for (int i = 0; i < count; i++) {
    const int64_t j = seg[i].j0, n = seg[i].j1 - j;
    const int g0 = seg[i].g0, g1 = seg[i].g1, change = modified || seg[i].bounded;
    f->score_block(s + (j - j0) * ATTN_TILE_, t->w.qt, k + (j - j0) * k_stride, k_stride, n, dk,
                   g0, g1, change ? t->spare : t->top);
    if (change) {
      attn_modifiers_ part = mod;
      if (part.key) part.key += j - j0;
      if (part.bias) part.bias += (j - j0) * ATTN_TILE_;
      if (part.allow) part.allow += (j - j0) * ATTN_TILE_;
      if (seg[i].bounded) part.lo = t->from, part.hi = t->to;
      f->modify_block(s + (j - j0) * ATTN_TILE_, j - base, n, g0, g1, &part, t->top);
    }
    for (int g = g0; g < g1; g++) {
      /* groups that see the keys before and after, but not these */
      for (int64_t x = last[g]; first[g] != INT64_MAX && x < j; x++)
        for (int c = 0; c < ATTN_GROUP_; c++)
          s[(x - j0) * ATTN_TILE_ + g * ATTN_GROUP_ + c] = -INFINITY;
      if (first[g] == INT64_MAX) first[g] = j;
      last[g] = seg[i].j1;
    }
    int lanes = t->n - g0 * ATTN_GROUP_;
    if (lanes > (g1 - g0) * ATTN_GROUP_) lanes = (g1 - g0) * ATTN_GROUP_;
    *t->w.pairs += n * lanes;
  }
  if (a->map.data) attn_tile_emit_(t, j0, j1 - j0);

  /* E8, E9. One segment for all rows, the usual case, rescales the accumulator in registers. */
  int patch = 0;
  if (t->careful && partial && !f->finite(v, v_stride, j1 - j0, dv)) {
    attn_tile_clean_(t, &mod, j0, j1 - j0, v, v_stride);
    v = t->w.v, v_stride = dv, patch = 1;
  }
  if (whole) {
    f->softmax_block(s, j1 - j0, 0, t->groups, t->m, t->l, t->alpha, t->top);
    f->value_block(t->w.ot, s, v, v_stride, j1 - j0, dv, 0, t->groups, *started ? t->alpha : NULL,
                   !*started);
  } else {
    if (!*started) memset(t->w.ot, 0, (size_t)(dv * ATTN_TILE_) * sizeof(float));
    for (int g = 0; g < t->groups; g++) {
      if (first[g] == INT64_MAX) continue;
      f->softmax_block(s + (first[g] - j0) * ATTN_TILE_, last[g] - first[g], g, g + 1, t->m, t->l,
                       t->alpha, t->top);
      if (*started) f->scale_block(t->w.ot, dv, g, g + 1, t->alpha);
    }
    for (int i = 0; i < count; i++)
      f->value_block(t->w.ot, s + (seg[i].j0 - j0) * ATTN_TILE_, v + (seg[i].j0 - j0) * v_stride,
                     v_stride, seg[i].j1 - seg[i].j0, dv, seg[i].g0, seg[i].g1, NULL, 0);
  }
  if (patch) attn_tile_patch_(t, j0, j1 - j0);
  *started = 1;
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
  int started = 0;
  t->partial = 0;
  for (int r = 0; r < ATTN_TILE_; r++)
    t->m[r] = -INFINITY, t->l[r] = 0.0f, t->alpha[r] = 1.0f, t->scale[r] = 1.0f;
  for (int64_t j = first, next; j < end; j = next) {
    next = (j / ATTN_BLOCK_ + 1) * ATTN_BLOCK_;
    if (next > end) next = end;
    attn_tile_block_(t, j, next, &started);
  }
  return started;
}

/* One work item: a tile of one (batch, head group). Late tiles first, since causal ones cost more. */
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
