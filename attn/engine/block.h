/* engine/block.h owns a block of keys as one tile sees it: which keys, which lane groups see which
 * of them, the rows of K and V, and what is to be done to its scores.
 *
 * Blocks of consecutive keys start at multiples of ATTN_BLOCK_, whatever the tile, so that a row's
 * result never depends on the rows beside it. A schedule's runs are put together to blocks between
 * the same marks; sparse ones are joined as long as they fit. Keys that are not consecutive are
 * copied together. */

enum { ATTN_GROUPS_ = ATTN_TILE_ / ATTN_GROUP_ };

/* Keys at .. at+n of a block, which lane groups g0..g1 see; some rows of groups m0..m1 see only a
 * part of them. */
typedef struct attn_segment_ {
  int at, n, g0, g1, m0, m1;
} attn_segment_;

typedef struct attn_block_ {
  int64_t base, j0; /* what distances count from; the first key */
  int n;            /* keys */
  int gathered;     /* the keys are index[0..n), else j0 .. */
  int32_t index[ATTN_BLOCK_];
  int by_lane; /* lanes[] holds something */
  uint64_t lanes[ATTN_BLOCK_];
  attn_segment_ seg[ATTN_BLOCK_];
  int count;
  int bounded;                  /* the rows' own lo and hi are tested */
  int whole;                    /* one segment for all rows */
  int partial;                  /* some pair may be forbidden */
  const attn_mask *mask, *bias; /* null when they say nothing here */
  const float *k, *v;
  int64_t k_stride, v_stride;
  const void *k_low, *v_low; /* products of bf16: rows of keys; of values, or null: v */
  int64_t k_step, v_step;    /* bytes from a row to the next */
  attn_modifiers_ mod;       /* terms; the allowed set apart, since it need not touch all groups */
  attn_modifiers_ set;
  float key[ATTN_BLOCK_];                     /* what mod.key points at */
  const float *at;                            /* keys, counted from base */
  float at_keys[ATTN_BLOCK_];                 /* what it points at when they are gathered */
  int32_t back[ATTN_BLOCK_];                  /* what mod.back points at */
  int first[ATTN_GROUPS_], end[ATTN_GROUPS_]; /* keys each lane group has scores for */
  int gaps;                                   /* bit g: some of them are in no segment */
} attn_block_;

ATTN_FUNC_ int64_t attn_block_key_(const attn_block_ *b, int64_t e) {
  return b->gathered ? b->index[e] : b->j0 + e;
}

/* The consecutive keys that begin with entry e. */
ATTN_FUNC_ int attn_block_run_(const attn_block_ *b, int e) {
  int n = 1;
  if (!b->gathered) return b->n - e;
  while (e + n < b->n && b->index[e + n] == b->index[e] + n) n++;
  return n;
}

/* Rows of the block that lie in pages, as f32: in place when one page has them all. */
ATTN_FUNC_ const float *attn_block_pages_(const attn_softmax_ *a, const attn_block_ *b,
                                          const attn_tensor *x, const attn_scales *scales,
                                          int64_t batch, int64_t head, float *copy,
                                          int64_t *stride) {
  int64_t page, row;
  *stride = x->dim;
  for (int64_t e = 0, n; e < b->n; e += n) {
    n = attn_storage_(a, batch, attn_block_key_(b, e), &page, &row);
    n = attn_min64_(n, attn_block_run_(b, (int)e));
    const char *p = attn_at_(x, page, head, row);
    if (n == b->n && !b->gathered && x->dtype == ATTN_F32) {
      *stride = x->stride_len;
      return (const float *)(const void *)p;
    }
    const attn_rows_scale_ s = attn_scales_at_(scales, page, head, row);
    a->table->widen(copy + e * x->dim, p, x->stride_len, NULL, n, x->dim, x->dtype, &s);
  }
  return copy;
}

/* Key rows as f32: the tensor itself, or a converted copy. */
ATTN_FUNC_ const float *attn_block_rows_(const attn_softmax_ *a, const attn_block_ *b,
                                         const attn_tensor *x, const attn_scales *scales,
                                         int64_t batch, int64_t head, float *copy,
                                         int64_t *stride) {
  if (ATTN_HAS_CACHE && a->seq && a->seq->cached)
    return attn_block_pages_(a, b, x, scales, batch, head, copy, stride);
  const char *p = attn_at_(x, batch, head, b->gathered ? 0 : b->j0);
  if (x->dtype == ATTN_F32 && !b->gathered) {
    *stride = x->stride_len;
    return (const float *)(const void *)p;
  }
  const attn_rows_scale_ s = attn_scales_at_(scales, batch, head, b->gathered ? 0 : b->j0);
  a->table->widen(copy, p, x->stride_len, b->gathered ? b->index : NULL, b->n, x->dim, x->dtype,
                  &s);
  *stride = x->dim;
  return copy;
}

/* Cuts block j0..j1 where the set of groups that see a key by lo and hi changes. */
ATTN_FUNC_ void attn_block_cut_bounds_(const attn_tile_ *t, attn_block_ *b, int64_t j0,
                                       int64_t j1) {
  int64_t edge[2 * ATTN_GROUPS_ + 2];
  int edges = 0;
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
  b->count = 0;
  for (int i = 0; i + 1 < edges; i++) {
    attn_segment_ s = {(int)(edge[i] - j0), (int)(edge[i + 1] - edge[i]), ATTN_GROUPS_, 0, 0, 0};
    for (int g = 0; g < t->groups; g++) {
      if (t->g[g].lo_min > edge[i] || t->g[g].hi_max < edge[i + 1]) continue;
      if (g < s.g0) s.g0 = g;
      s.g1 = g + 1;
    }
    s.m0 = s.g1;
    for (int g = s.g0; g < s.g1; g++)
      if (t->g[g].ragged || t->g[g].lo_max > edge[i] || t->g[g].hi_min < edge[i + 1]) {
        if (s.m0 == s.g1) s.m0 = g;
        s.m1 = g + 1;
      }
    if (s.m1 == 0) s.m0 = 0;
    if (s.g0 >= s.g1) continue;
    attn_segment_ *last = b->count ? b->seg + b->count - 1 : NULL;
    if (last && last->at + last->n == s.at && last->g0 == s.g0 && last->g1 == s.g1 &&
        last->m0 == s.m0 && last->m1 == s.m1)
      last->n += s.n;
    else
      b->seg[b->count++] = s;
  }
}

/* What a segment costs, a key for a lane group being 16; the constant is measured. */
ATTN_FUNC_ int attn_segment_cost_(const attn_segment_ *s) {
  return s->g0 == s->g1 ? 0 : s->n * (16 * (s->g1 - s->g0) + (s->m1 - s->m0)) + 40;
}

ATTN_FUNC_ attn_segment_ attn_segment_join_(attn_segment_ x, attn_segment_ y) {
  attn_segment_ s = x;
  s.n = y.at + y.n - x.at;
  if (x.g0 == x.g1) { /* nobody sees x: join it as forbidden */
    s.g0 = s.m0 = y.g0, s.g1 = s.m1 = y.g1;
  } else if (y.g0 == y.g1) {
    s.m0 = s.g0, s.m1 = s.g1;
  } else if (x.g0 != y.g0 || x.g1 != y.g1) {
    s.m0 = s.g0 = x.g0 < y.g0 ? x.g0 : y.g0;
    s.m1 = s.g1 = x.g1 > y.g1 ? x.g1 : y.g1;
  } else if (x.m0 == x.m1) {
    s.m0 = y.m0, s.m1 = y.m1;
  } else if (y.m0 != y.m1) {
    s.m0 = x.m0 < y.m0 ? x.m0 : y.m0;
    s.m1 = x.m1 > y.m1 ? x.m1 : y.m1;
  }
  return s;
}

/* The segment of one key that the lanes x of `all` see. */
ATTN_FUNC_ attn_segment_ attn_segment_seen_(uint64_t x, uint64_t all, int groups) {
  const uint64_t group = ((uint64_t)1 << ATTN_GROUP_) - 1;
  attn_segment_ s = {0, 1, 0, groups, 0, 0};
  if (x == all) return s;
  if (!x) s.g1 = 0;
  if (!x) return s;
  while (!(x >> (s.g0 * ATTN_GROUP_) & group)) s.g0++;
  while (!(x >> ((s.g1 - 1) * ATTN_GROUP_) & group)) s.g1--;
  x ^= all;
  for (int g = s.g0; g < s.g1; g++)
    if (x >> (g * ATTN_GROUP_) & group) {
      if (s.m0 == s.m1) s.m0 = g;
      s.m1 = g + 1;
    }
  return s;
}

/* Cuts the block by b->lanes; neighbours are joined where that is cheaper. */
ATTN_FUNC_ void attn_block_cut_lanes_(const attn_tile_ *t, attn_block_ *b) {
  const uint64_t all = attn_tile_all_(t);
  attn_segment_ now = {0, b->n, 0, t->groups, 0, 0};
  b->count = 0;
  for (int e = 0; b->by_lane && e <= b->n; e++) {
    attn_segment_ s = {0, 0, 0, 0, 0, 0};
    if (e < b->n) {
      if (e > 0 && b->lanes[e] == b->lanes[e - 1]) {
        now.n++;
        continue;
      }
      s = attn_segment_seen_(b->lanes[e], all, t->groups);
      s.at = e;
      if (e > 0 && s.g0 == now.g0 && s.g1 == now.g1 && s.m0 == now.m0 && s.m1 == now.m1) {
        now.n++;
        continue;
      }
    }
    if (e > 0) { /* `now` is complete */
      attn_segment_ *last = b->count ? b->seg + b->count - 1 : NULL;
      const attn_segment_ both = last ? attn_segment_join_(*last, now) : now;
      if (last && attn_segment_cost_(&both) <= attn_segment_cost_(last) + attn_segment_cost_(&now))
        *last = both;
      else
        b->seg[b->count++] = now;
    }
    now = s;
  }
  if (!b->by_lane) b->seg[b->count++] = now;
  int kept = 0;
  for (int i = 0; i < b->count; i++)
    if (b->seg[i].g0 < b->seg[i].g1) b->seg[kept++] = b->seg[i];
  b->count = kept;
}

/* Where a tile's runs are read. */
typedef struct attn_cursor_ {
  const attn_plan_run_ *run;
  int64_t runs, used; /* runs left, keys of the first that are done */
  const int32_t *key; /* in place of runs: `runs` keys that all rows see */
} attn_cursor_;

/* The ordinal of a key in its residue class; most steps are 1, and divisions are slow. */
ATTN_FUNC_ int64_t attn_ordinal_(int32_t key, int64_t step) {
  return step == 1 ? key : key / (int32_t)step;
}

/* How many keys from the cursor on lie before ordinal `end`, up to `most`. */
ATTN_FUNC_ int attn_cursor_keys_(attn_cursor_ c, int64_t step, int64_t end, int most) {
  int64_t n = 0;
  for (; c.runs > 0 && n <= most; c.run++, c.runs--, c.used = 0) {
    const int64_t u = attn_ordinal_(c.run->key, step) + c.used;
    if (u >= end) break;
    n += c.run->n - c.used < end - u ? c.run->n - c.used : end - u;
  }
  return n > most ? most + 1 : (int)n;
}

/* The next keys of a tile's runs. 0 = there are none. */
ATTN_FUNC_ int attn_block_take_(const attn_tile_ *t, attn_block_ *b, attn_cursor_ *c) {
  const int64_t step = t->plan->step;
  const uint64_t all = attn_tile_all_(t);
  int64_t mark = 0;
  if (ATTN_PART_(SELECTION, c->key)) return t->a->listed->take(b, c);
  b->n = 0, b->by_lane = 0;
  if (c->runs > 0 && step == 1 && c->run->lanes == all) { /* most blocks of most patterns */
    const int64_t from = c->run->key + c->used;
    if (from % ATTN_BLOCK_ == 0 && c->run->n - c->used >= ATTN_BLOCK_) {
      b->n = ATTN_BLOCK_, b->j0 = from, b->gathered = 0;
      c->used += ATTN_BLOCK_;
      if (c->used == c->run->n) c->run++, c->runs--, c->used = 0;
      return 1;
    }
  }
  while (c->runs > 0 && b->n < ATTN_BLOCK_) {
    const int64_t u = attn_ordinal_(c->run->key, step) + c->used,
                  end = (u / ATTN_BLOCK_ + 1) * ATTN_BLOCK_;
    if (b->n && end != mark &&
        attn_cursor_keys_(*c, step, end, ATTN_BLOCK_ - b->n) > ATTN_BLOCK_ - b->n)
      break;
    mark = end;
    const int64_t left = c->run->n - c->used, n = left < end - u ? left : end - u;
    const int32_t key = (int32_t)(c->run->key + c->used * step);
    for (int64_t e = 0; e < n; e++) {
      b->index[b->n + e] = key + (int32_t)(e * step);
      b->lanes[b->n + e] = c->run->lanes;
    }
    if (c->run->lanes != all) b->by_lane = 1;
    b->n += (int)n;
    c->used += n;
    if (c->used == c->run->n) c->run++, c->runs--, c->used = 0;
  }
  if (b->n == 0) return 0;
  b->j0 = b->index[0];
  b->gathered = b->index[b->n - 1] - b->index[0] != b->n - 1;
  return 1;
}

/* Pairs of a segment; lanes without a row are none. */
ATTN_FUNC_ int64_t attn_segment_pairs_(const attn_tile_ *t, const attn_segment_ *s) {
  const int lanes = (s->g1 - s->g0) * ATTN_GROUP_, left = t->n - s->g0 * ATTN_GROUP_;
  return s->n * (int64_t)(lanes < left ? lanes : left);
}

/* The cuts of a sweep without the sweep; whole blocks of a run are all alike. */
ATTN_FUNC_ int64_t attn_runs_computed_(const attn_plan_tile_ *tile, const attn_plan_run_ *run) {
  attn_cursor_ c = {run, tile->count, 0, NULL};
  attn_tile_ t;
  attn_block_ b;
  int64_t sum = 0;
  memset(&t, 0, sizeof t);
  t.plan = tile, t.n = tile->n, t.groups = (t.n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  for (;;) {
    const int64_t left = c.runs > 0 ? c.run->n - c.used : 0;
    if (left >= ATTN_BLOCK_ &&
        (attn_ordinal_(c.run->key, tile->step) + c.used) % ATTN_BLOCK_ == 0) {
      attn_segment_ s = attn_segment_seen_(c.run->lanes, attn_tile_all_(&t), t.groups);
      s.n = (int)(left / ATTN_BLOCK_ * ATTN_BLOCK_);
      sum += attn_segment_pairs_(&t, &s);
      c.used += s.n;
      if (c.used == c.run->n) c.run++, c.runs--, c.used = 0;
      continue;
    }
    if (!attn_block_take_(&t, &b, &c)) return sum;
    attn_block_cut_lanes_(&t, &b);
    for (int i = 0; i < b.count; i++) sum += attn_segment_pairs_(&t, &b.seg[i]);
  }
}

/* Entry of the first key >= j. */
ATTN_FUNC_ int attn_block_find_(const attn_block_ *b, int64_t j) {
  int lo = 0, hi = b->n;
  while (lo < hi) {
    const int mid = (lo + hi) / 2;
    if (attn_block_key_(b, mid) < j)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

/* b->lanes holds something from here on. */
ATTN_FUNC_ void attn_block_lanes_(const attn_tile_ *t, attn_block_ *b) {
  for (int e = 0; !b->by_lane && e < b->n; e++) b->lanes[e] = attn_tile_all_(t);
  b->by_lane = 1;
}

/* Takes the rows' own lo and hi into b->lanes. */
ATTN_FUNC_ void attn_block_bound_lanes_(const attn_tile_ *t, attn_block_ *b) {
  const int64_t first = b->j0, last = attn_block_key_(b, b->n - 1);
  int bites = 0;
  for (int g = 0; g < t->groups; g++)
    bites |= t->g[g].ragged || t->g[g].lo_max > first || t->g[g].hi_min <= last;
  if (!bites) return;
  uint64_t turn[ATTN_BLOCK_ + 1] = {0}, now = 0;
  for (int r = 0; r < t->n; r++) {
    turn[attn_block_find_(b, t->lo[r])] ^= (uint64_t)1 << r;
    turn[attn_block_find_(b, t->hi[r])] ^= (uint64_t)1 << r;
  }
  attn_block_lanes_(t, b);
  for (int e = 0; e < b->n; e++) now ^= turn[e], b->lanes[e] &= now;
}

/* Whether the rows of the block have been gathered already; if not, they will be. */
ATTN_FUNC_ int attn_block_held_(const attn_tile_ *t, const attn_block_ *b) {
  attn_held_ *x = t->w.held;
  if (b->gathered && x->n == b->n && x->batch == t->batch && x->head_k == t->head_k &&
      x->head_v == t->head_v && memcmp(x->index, b->index, (size_t)b->n * sizeof *b->index) == 0)
    return 1;
  x->n = b->gathered ? b->n : 0; /* 16-bit rows are copied to the same place */
  x->batch = t->batch, x->head_k = t->head_k, x->head_v = t->head_v;
  if (b->gathered) memcpy(x->index, b->index, (size_t)b->n * sizeof *b->index);
  return 0;
}

/* What the boolean mask says of a block of consecutive keys. 0 = it forbids all of them. */
ATTN_FUNC_ int attn_block_mask_(const attn_tile_ *t, attn_block_ *b) {
  const uint64_t rows = attn_tile_all_(t);
  const int per_key = attn_mask_per_key_(t->a, b->mask);
  uint64_t some = 0, all = rows;
  for (int e = 0; e < b->n; e++) b->lanes[e] = rows;
  if (per_key) {
    for (int e = 0; e < b->n; e++)
      if (!attn_tile_sees_(t, 0, b->j0 + e)) b->lanes[e] = 0;
  } else {
    attn_tile_mask_(t, b->lanes, b->j0, b->n);
  }
  for (int e = 0; e < b->n; e++) some |= b->lanes[e], all &= b->lanes[e];
  if (all == rows) b->mask = NULL;
  if (all == rows || per_key) return some != 0;
  for (int i = 0; i < b->count; i++) b->seg[i].m0 = b->seg[i].g0, b->seg[i].m1 = b->seg[i].g1;
  b->mask = NULL, b->by_lane = 1;
  return some != 0;
}

/* Whether the additive mask forbids all of its keys to all rows. */
ATTN_FUNC_ int attn_block_bias_forbids_(const attn_tile_ *t, const attn_block_ *b) {
  for (int e = 0, n; e < b->n; e += n) {
    n = attn_block_run_(b, e);
    if (!attn_tile_bias_forbids_(t, attn_block_key_(b, e), n)) return 0;
  }
  return 1;
}

/* Opens a block: for keys j0..j1, or with j0 = j1 for those that attn_block_take_ has taken. 0 = no
 * row sees any of them. */
ATTN_FUNC_ int attn_block_open_(const attn_tile_ *t, attn_block_ *b, int64_t j0, int64_t j1) {
  const attn_softmax_ *a = t->a;
  const int runs = j0 == j1;
  b->bias = a->bias.kind ? &a->bias : NULL;
  b->mask = a->mask.kind && (runs || !a->mask_new || j1 > a->q_off) ? &a->mask : NULL;
  b->bounded = 0;
  if (runs) {
    attn_block_bound_lanes_(t, b);
    if (b->mask && !attn_mask_per_key_(a, b->mask)) {
      attn_block_lanes_(t, b);
      for (int e = 0, n; e < b->n; e += n) {
        n = attn_block_run_(b, e);
        attn_tile_mask_(t, b->lanes + e, attn_block_key_(b, e), n);
      }
      b->mask = NULL;
    }
    attn_block_cut_lanes_(t, b);
    if (b->count == 0) return 0;
    b->n = b->seg[b->count - 1].at + b->seg[b->count - 1].n; /* keys past kv_len are not read */
  } else {
    b->gathered = b->by_lane = 0, b->j0 = j0;
    attn_block_cut_bounds_(t, b, j0, j1);
    if (b->count == 0) return 0;
    const int skip = b->seg[0].at;
    b->j0 += skip;
    for (int i = 0; i < b->count; i++) {
      b->seg[i].at -= skip;
      if (b->seg[i].m0 < b->seg[i].m1) b->bounded = 1;
    }
    b->n = b->seg[b->count - 1].at + b->seg[b->count - 1].n;
    if (b->mask && !attn_block_mask_(t, b)) return 0;
  }
  if (b->bias && attn_block_bias_forbids_(t, b)) return 0;
  b->base = b->j0 / ATTN_BLOCK_ * ATTN_BLOCK_;
  b->gaps = 0;
  for (int g = 0; g < ATTN_GROUPS_; g++) b->first[g] = b->end[g] = 0;
  for (int i = 0; i < b->count; i++)
    for (int g = b->seg[i].g0; g < b->seg[i].g1; g++) {
      if (b->end[g] == 0)
        b->first[g] = b->seg[i].at;
      else if (b->end[g] != b->seg[i].at)
        b->gaps |= 1 << g;
      b->end[g] = b->seg[i].at + b->seg[i].n;
    }
  b->whole = b->count == 1 && b->seg[0].g0 == 0 && b->seg[0].g1 == t->groups && b->seg[0].at == 0 &&
             b->seg[0].n == b->n;
  b->partial = b->bounded || b->by_lane || !b->whole || b->mask || b->bias ||
               ATTN_PART_(COMPOSED, a->addends) || attn_modifies_(a) || t->given != NULL;
  return 1;
}

/* Whether a value is the beginning of its key's row (latent attention): one copy serves both. */
ATTN_FUNC_ int attn_block_latent_(const attn_softmax_ *a) {
  const attn_tensor *k = &a->k, *v = &a->v;
  const attn_scales *x = &a->k_scales, *y = &a->v_scales;
  return k->data == v->data && k->dtype == v->dtype && k->dim >= v->dim &&
         k->stride_batch == v->stride_batch && k->stride_head == v->stride_head &&
         k->stride_len == v->stride_len && x->scale == y->scale && x->zero == y->zero &&
         x->group == y->group && x->stride_batch == y->stride_batch &&
         x->stride_head == y->stride_head && x->stride_len == y->stride_len;
}

/* Its rows of K and V. */
ATTN_FUNC_ void attn_block_fetch_(const attn_tile_ *t, attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  const attn_reshape_ *reshape = ATTN_PART_(WEIGHTS_, a->reshape);
  const int turned = reshape && reshape->keys;
  const int latent = !turned && t->head_k == t->head_v && attn_block_latent_(a);
  if (attn_block_held_(t, b)) {
    b->k = t->w.k, b->k_stride = a->k.dim, b->v = t->w.v, b->v_stride = a->v.dim;
  } else {
    b->k = attn_block_rows_(a, b, attn_rows_of_(a, &a->k), &a->k_scales, t->batch, t->head_k,
                            t->w.k, &b->k_stride);
    if (turned) reshape->keys(t, b);
    b->v = b->k, b->v_stride = 0; /* not read by a pass that is blind to values */
    if (!attn_choice_blind_(a) && (!latent || b->k != t->w.k))
      b->v = attn_block_rows_(a, b, attn_rows_of_(a, &a->v), &a->v_scales, t->batch, t->head_v,
                              t->w.v, &b->v_stride);
  }
  if (latent && b->k == t->w.k) b->v = b->k, b->v_stride = b->k_stride;
}

/* Before a tile's first block. */
ATTN_FUNC_ void attn_block_terms_(const attn_tile_ *t, attn_block_ *b) {
  attn_clear_(&b->mod, sizeof b->mod);
  attn_clear_(&b->set, sizeof b->set);
  b->mod.softcap = attn_caps_last_(t->a) ? 0.0f : t->a->softcap;
}

/* Fills in what is done to the scores. Distances and bounds count from the block's fixed base, so
 * that they round alike whatever part of it is visited. */
ATTN_FUNC_ void attn_block_modifiers_(attn_tile_ *t, attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  const int key_mask = b->mask != NULL;
  const int key_bias = b->bias && attn_mask_per_key_(a, b->bias);
  if (b->gathered) {
    for (int e = 0; e < b->n; e++) b->at_keys[e] = (float)(b->index[e] - b->base);
    b->at = b->at_keys;
  } else {
    b->at = attn_count_ + (b->j0 - b->base);
  }
  b->mod.at = b->set.at = b->at;
  if (a->alibi) {
    for (int r = 0; r < t->n; r++) t->rel[r] = (float)(b->base - t->pos[r]);
    b->mod.slope = t->slope, b->mod.rel = t->rel;
  }
  if (ATTN_PART_(TERMS, a->gaussian.center)) {
    for (int r = 0; r < t->n; r++) {
      const float c = a->gaussian.center[attn_row_number_(a, t->batch, t->head[r], t->row[r])];
      t->center[r] = (float)((double)c - (double)b->base);
    }
    b->mod.center = t->center, b->mod.precision = t->precision;
  }
  if (ATTN_PART_(TERMS, a->distance) || ATTN_PART_(TERMS, a->factor)) {
    const int64_t head = a->distance_heads > 1 ? t->head[0] : 0;
    const int64_t at =
        head * a->distances + a->distance_zero + a->q_off - b->base + (t->lined ? t->row[0] : 0);
    for (int e = 0; e < b->n; e++) b->back[e] = (int32_t)(attn_block_key_(b, e) - b->base);
    if (!t->lined)
      for (int r = 0; r < t->n; r++) t->index[r] = (int32_t)t->row[r];
    b->mod.table = ATTN_PART_(TERMS, a->distance) ? a->distance + at : NULL;
    b->mod.factor = ATTN_PART_(TERMS, a->factor) ? a->factor + at : NULL;
    b->mod.back = b->back, b->mod.index = t->lined ? NULL : t->index;
  }
  const int added = ATTN_HAS_COMPOSED ? attn_addends_in_(a) : 0,
            by_key = key_mask || key_bias || (added & 1);
  if (by_key) memset(b->key, 0, sizeof b->key);
  for (int e = 0, n; (b->bias || key_mask || added) && e < b->n; e += n) {
    n = attn_block_run_(b, e);
    const int64_t from = attn_block_key_(b, e);
    if (key_bias) attn_tile_key_bias_(t, b->key + e, from, n);
    if (b->bias && !key_bias) attn_tile_bias_(t, t->w.bias + e * ATTN_TILE_, from, n);
    if (added)
      attn_tile_addends_(t, t->w.bias + e * ATTN_TILE_, b->key + e, b->bias && !key_bias, from, n);
    if (key_mask) attn_tile_key_mask_(t, b->key + e, from, n);
  }
  b->mod.key = by_key ? b->key : NULL;
  if ((b->bias && !key_bias) || added > 1) b->mod.bias = t->w.bias;
  if (attn_goes_on_(a) &&
      (b->mod.key || b->mod.bias)) { /* what they forbid stays so, whatever comes */
    attn_block_lanes_(t, b);
    for (int e = 0; e < b->n; e++) {
      if (b->mod.key && b->key[e] == -INFINITY) b->lanes[e] = 0;
      for (int r = 0; b->mod.bias && r < t->n; r++)
        if (b->mod.bias[e * ATTN_TILE_ + r] == -INFINITY) b->lanes[e] &= ~((uint64_t)1 << r);
    }
  }
  b->set.lanes = b->by_lane ? b->lanes : NULL;
  b->set.lo = b->bounded ? t->from : NULL, b->set.hi = t->to;
  if (b->bounded) {
    for (int r = 0; r < t->groups * ATTN_GROUP_; r++) {
      t->from[r] = (float)attn_clamp_(t->lo[r] - b->base, 0, ATTN_BLOCK_);
      t->to[r] = (float)attn_clamp_(t->hi[r] - b->base, 0, ATTN_BLOCK_);
    }
  }
}

/* The first lane group after g that has other keys. */
ATTN_FUNC_ int attn_block_alike_(const attn_tile_ *t, const attn_block_ *b, int g) {
  int to = g + 1;
  while (to < t->groups && b->first[to] == b->first[g] && b->end[to] == b->end[g]) to++;
  return to;
}

/* Scores become other weights than those of a softmax, or are counted. 0: neither. */
ATTN_INLINE_ int attn_tile_weigh_(attn_tile_ *t, float *s, int64_t n, int g0, int g1) {
  const attn_reshape_ *r = ATTN_PART_(WEIGHTS_, t->a->reshape);
  const attn_weigh_fn_ weigh = !r ? NULL : t->a->counting ? r->tally : r->weigh;
  if (!weigh) return 0;
  weigh(t, s, n, g0, g1);
  return 1;
}
