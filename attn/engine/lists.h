/* engine/lists.h owns tiles whose rows have key lists of their own: scattered keys, of which no two
 * rows share many. Scores are computed row by row from the picked keys; then they are transposed,
 * entry e of every row in one vector, and the softmax is the one of all tiles. */

/* The list of a row: its keys, of which those before `next` are done, or runs with those that its lane
 * sees. A caller's list also has its place in the set it belongs to, and that set's place among the
 * others. */
typedef struct attn_list_ {
  const int32_t *key;
  int64_t count, next, offset, set;
  const attn_plan_run_ *run; /* when key is null; `used` keys of the first are done */
  int64_t used, step;
  uint64_t lane;
} attn_list_;

/* The next key; there is one. */
ATTN_FUNC_ int32_t attn_list_next_(attn_list_ *x) {
  const int64_t at = x->next++;
  if (x->key) return x->key[at];
  while (!(x->run->lanes & x->lane) || x->used == x->run->n) x->run++, x->used = 0;
  return (int32_t)(x->run->key + x->used++ * x->step);
}

ATTN_FUNC_ void attn_list_runs_(const attn_tile_ *t, int r, attn_list_ *x) {
  const attn_plan_ *p = t->a->plan;
  x->run = (const attn_plan_run_ *)attn_plan_at_(p, p->at_run) + t->plan->at;
  x->key = NULL, x->used = 0, x->step = -(int64_t)t->plan->step, x->lane = (uint64_t)1 << r;
  for (int64_t k = 0; k < t->plan->count; k++)
    if (x->run[k].lanes & x->lane) x->count += x->run[k].n;
}

ATTN_FUNC_ void attn_list_of_(const attn_tile_ *t, int r, attn_list_ *x) {
  const attn_softmax_ *a = t->a;
  x->next = x->offset = x->set = x->count = 0;
  if (ATTN_PART_(PATTERN, a->plan) && t->plan->step < 0) {
    attn_list_runs_(t, r, x);
  } else if (ATTN_PART_(EDGES, a->edges)) {
    const attn_edges_params *p = a->edges;
    const int64_t heads = p->per_head ? a->q.heads : 1;
    const int64_t set = (p->per_batch ? t->batch * heads : 0) + (p->per_head ? t->head[r] : 0);
    const int64_t *ptr = p->indptr + set * (a->q.len + 1) + t->row[r];
    x->offset = ptr[0], x->count = ptr[1] - ptr[0], x->set = set * p->edges;
    x->key = p->col ? p->col + x->set + x->offset : NULL;
  } else {
    const int32_t *key = (const int32_t *)attn_plan_at_(a->plan, a->plan->at_key) + t->plan->at;
    x->count = key[r + 1] - key[r];
    x->key = key + t->n + 1 + key[r];
  }
}

/* Where the weights of row r's list go. */
ATTN_FUNC_ float *attn_list_weights_(const attn_tile_ *t, int r, const attn_list_ *x) {
  const attn_softmax_ *a = t->a;
  const int64_t head = t->batch * a->q.heads + t->head[r];
  return a->edges->weights + head * a->edges->edges + x->offset;
}

/* The additive terms of a pair that depend on its distance, score units. */
ATTN_FUNC_ float attn_pair_bias_(const attn_tile_ *t, int r, int64_t key) {
  const attn_softmax_ *a = t->a;
  const int64_t at = (a->distance_heads > 1 ? t->head[r] : 0) * a->distances;
  float x = 0.0f;
  if (ATTN_PART_(TERMS, a->distance)) x += a->distance[at + t->pos[r] - key + a->distance_zero];
  if (a->alibi) x += t->slope[r] * (float)attn_abs64_(key - t->pos[r]);
  if (ATTN_PART_(TERMS, a->gaussian.center)) {
    const float c = a->gaussian.center[attn_row_number_(a, t->batch, t->head[r], t->row[r])];
    const float d = (float)((double)key - (double)c);
    x -= d * d * t->precision[r];
  }
  return x;
}

/* An adaptive span's factor of a pair: 0 < m <= 1 within reach. */
ATTN_FUNC_ float attn_pair_ramp_(const attn_tile_ *t, int r, int64_t key) {
  const double back = (double)(t->last[r] - (t->pos[r] - key)), ramp = attn_span_ramp_(&t->a->span);
  const double m = back * (ATTN_RAMP_UP_ / ramp) + (double)t->edge[r];
  return m < 1.0 ? m > 0.0 ? (float)m : 0.0f : 1.0f;
}

/* Whether pairs of lists have additive terms, or masks. */
ATTN_FUNC_ int attn_list_plain_(const attn_softmax_ *a) {
  return !(a->terms & attn_terms_with_(ATTN_TERM_PAIR_)) &&
         !(ATTN_PART_(EDGES, a->edges) && a->edges->bias);
}

/* The next allowed keys of row r, up to a block of them, with their biases; edge[] says which
 * entries of the list they are. */
ATTN_FUNC_ int attn_list_take_(attn_tile_ *t, attn_list_ *x, int r, int32_t *index, int32_t *edge) {
  const attn_softmax_ *a = t->a;
  float bias[2]; /* one number of the mask */
  int n = 0;
  if (attn_list_plain_(a) && t->lo[r] == 0 && t->hi[r] == a->k.len) {
    const int64_t left = x->count - x->next;
    n = left < ATTN_BLOCK_ ? (int)left : ATTN_BLOCK_;
    for (int e = 0; (ATTN_PART_(EDGES, a->edges) && a->edges->weights) && e < n; e++)
      edge[e] = (int32_t)(x->next + e);
    if (x->key)
      memcpy(index, x->key + x->next, (size_t)n * sizeof *index), x->next += n;
    else
      for (int e = 0; e < n; e++) index[e] = attn_list_next_(x);
    return n;
  }
  while (x->next < x->count && n < ATTN_BLOCK_) {
    const int64_t at = x->next, key = attn_list_next_(x);
    float *cell = t->w.bias + n * ATTN_TILE_ + r;
    if (key < t->lo[r] || key >= t->hi[r]) continue;
    if (a->mask.kind && !attn_tile_sees_(t, r, key)) continue;
    *cell = attn_pair_bias_(t, r, key);
    if (ATTN_PART_(TERMS, a->span.z) && attn_pair_ramp_(t, r, key) == 0.0f) continue;
    if (a->bias.kind) {
      const int64_t from = a->bias.k_len > 1 ? key : 0;
      a->table->widen(bias, t->bias[r] + from * attn_size_(a->bias.dtype), 0, NULL, 1, 1,
                      a->bias.dtype, NULL);
      if (bias[0] == -INFINITY) continue;
      *cell += attn_to_unit_(a, bias[0]);
    }
    if (ATTN_PART_(EDGES, a->edges) && a->edges->bias) {
      const float z = a->edges->bias[x->set + x->offset + at];
      if (z == -INFINITY) continue;
      *cell += attn_to_unit_(a, z);
    }
    if (ATTN_PART_(TERMS, a->factor))
      t->w.dot[n * ATTN_TILE_ + r] =
          a->factor[(a->distance_heads > 1 ? t->head[r] : 0) * a->distances + t->pos[r] - key +
                    a->distance_zero];
    edge[n] = (int32_t)at;
    index[n++] = (int32_t)key;
  }
  return n;
}

/* Picked rows: where they lie, or converted if they are quantised. */
typedef struct attn_picked_ {
  const void *rows;
  const int32_t *index;
  int64_t stride;
  attn_dtype dtype;
  int ahead;
  int32_t order[ATTN_BLOCK_];
} attn_picked_;

/* E2 of a row's scores, while they still are a row. */
ATTN_FUNC_ void attn_list_terms_(attn_tile_ *t, float *s, const float *xl_q, int r,
                                 const int32_t *key, int n, const attn_picked_ *from) {
  const attn_softmax_ *a = t->a;
  float xl[ATTN_BLOCK_];
  if (ATTN_PART_(TERMS, a->xl.table.data)) {
    attn_xl_row_(t, xl, xl_q, r, key, n);
    for (int e = 0; e < n; e++) s[e] += xl[e];
  }
  if (ATTN_PART_(TERMS, a->relative.keys.data)) {
    const int64_t c = attn_relative_clip_(a);
    for (int e = 0; e < n; e++) {
      const int64_t d = attn_clamp_(key[e] - t->pos[r], -c, c) - t->rel_first;
      s[e] += t->w.rel_keys[d * ATTN_TILE_ + r];
    }
  }
  if (ATTN_PART_(TERMS, a->relative.queries.data)) {
    const attn_tensor *x = &a->relative.queries;
    const int64_t c = attn_relative_clip_(a);
    const float by = t->w.rel_queries[r] * (float)(a->scale * a->unit);
    for (int e = 0; e < n; e++) {
      float y;
      attn_on_(list, a->table)
          ->dots(&y, attn_table_row_(x, t->head[r], attn_clamp_(key[e] - t->pos[r], -c, c) + c),
                 from->rows, from->stride, from->index + e, 1, a->q.dim, from->dtype, 0);
      s[e] += y * by;
    }
  }
  for (int e = 0; ATTN_PART_(TERMS, a->labels.label) && e < n; e++) {
    const int64_t x = a->labels.label(a->labels.user, t->batch, t->head[r], t->row[r], key[e]);
    if (x >= 0 && x < a->labels.table.len) s[e] += t->w.labels[x * ATTN_TILE_ + r];
  }
}

/* The score map, or the scores of the edges, leave as they are and become weights at the end. */
ATTN_FUNC_ void attn_list_emit_(attn_tile_ *t, const attn_list_ *x, int r, const int32_t *index,
                                const int32_t *edge, int n) {
  const attn_softmax_ *a = t->a;
  for (int e = 0; e < n; e++) {
    const float s = t->w.s[e * ATTN_TILE_ + r];
    if (index[e] < 0) continue;
    if (a->map.data)
      ((float *)(void *)attn_at_(&a->map, t->batch, t->head[r], t->row[r]))[index[e]] = s;
    if (ATTN_PART_(EDGES, a->edges) && a->edges->weights) attn_list_weights_(t, r, x)[edge[e]] = s;
  }
}

/* The user's modifier, a row at a time; then what it forbids leaves the lists. */
ATTN_FUNC_ void attn_list_modify_(attn_tile_ *t, int32_t *const *index, const int *count,
                                  int most) {
  int64_t key[ATTN_BLOCK_];
  attn_tile_natural_(t, t->w.s, most, 0, t->groups, 1);
  for (int r = 0; r < t->n; r++) {
    for (int e = 0; e < count[r]; e++) key[e] = index[r][e];
    if (count[r]) attn_tile_modify_(t, t->w.s, key, count[r], r, r + 1, 0);
  }
  attn_tile_natural_(t, t->w.s, most, 0, t->groups, 0);
  for (int r = 0; r < t->n; r++)
    for (int e = 0; e < count[r]; e++)
      if (t->w.s[e * ATTN_TILE_ + r] == -INFINITY) index[r][e] = -1;
}

/* Rows that are close anyway need not be asked for. */
ATTN_FUNC_ int attn_list_ahead_(const attn_softmax_ *a, const attn_tensor *x) {
  return a->k.len > ((int64_t)1 << 18) / attn_bytes_(x->dtype, x->dim) ? ATTN_AHEAD_ : 0;
}

ATTN_FUNC_ void attn_list_pick_(const attn_tile_ *t, attn_picked_ *p, const attn_tensor *x,
                                const attn_scales *scales, int64_t head, float *copy,
                                const int32_t *index, int n) {
  const attn_listed_calls_ *listed = ATTN_PART_(SELECTION, t->a->listed);
  const int paged = ATTN_PART_(CACHE, listed) && t->a->seq && t->a->seq->cached;
  p->rows = paged ? NULL : attn_at_(x, t->batch, head, 0);
  p->index = index, p->stride = x->stride_len, p->dtype = x->dtype;
  p->ahead = attn_list_ahead_(t->a, x);
  if (!attn_quantized_(x->dtype) && !paged) return;
  if (paged) {
    listed->pages(t, x, scales, head, copy, index, n);
  } else {
    const attn_rows_scale_ s = attn_scales_at_(scales, t->batch, head, 0);
    t->a->table->widen(copy, p->rows, x->stride_len, index, n, x->dim, x->dtype, &s);
  }
  for (int e = 0; e < n; e++) p->order[e] = e;
  p->rows = copy, p->index = p->order, p->stride = x->dim, p->dtype = ATTN_F32, p->ahead = 0;
  t->w.held->n = 0;
}

/* Scores of the next keys of every row: row by row, then transposed. */
ATTN_FUNC_ void attn_list_scores_(attn_tile_ *t, int32_t *const *index, const int *count,
                                  int most) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const int64_t dk = a->q.dim;
  attn_picked_ p;
  const void *row[ATTN_TILE_];
  uint64_t lanes[ATTN_BLOCK_ + 1] = {0}, done = 0;
  attn_modifiers_ mod, set;
  for (int r = 0; r < t->n; r++) {
    float *s = t->w.rows + r * ATTN_ROOM_;
    const float *q = t->w.q_rows + r * dk;
    attn_list_pick_(t, &p, &a->k, &a->k_scales, t->head_k, t->w.k, index[r], count[r]);
    attn_on_(list, f)->dots(s, q, p.rows, p.stride, p.index, count[r], dk, p.dtype, p.ahead);
    attn_list_terms_(t, s, q + ATTN_TILE_ * dk, r, index[r], count[r], &p);
    for (int e = count[r]; e < most; e++) s[e] = 0.0f;
    row[r] = s;
    lanes[count[r]] |= (uint64_t)1 << r;
  }
  for (int e = 0; e < most; e++) done |= lanes[e], lanes[e] = attn_tile_all_(t) & ~done;
  f->pack(t->w.s, row, t->n, most, ATTN_F32, 1.0f, attn_least_(1.0f));
  memset(&mod, 0, sizeof mod);
  set = mod;
  mod.softcap = attn_caps_last_(a) ? 0.0f : a->softcap;
  if (!attn_list_plain_(a)) mod.bias = t->w.bias;
  if (ATTN_PART_(TERMS, a->factor)) mod.factor = t->w.dot;
  set.lanes = lanes;
  for (int r = 0; r < ATTN_TILE_; r++) t->top[r] = -INFINITY;
  if (attn_goes_on_(a) || ATTN_PART_(TERMS, a->span.z)) {
    attn_on_(tile, f)->modify_block(t->w.s, most, 0, t->groups, &mod, t->spare);
    if (attn_caps_last_(a)) attn_tile_cap_(t, t->w.s, most, 0, t->groups);
    if (attn_modifies_(a)) attn_list_modify_(t, index, count, most);
    for (int r = 0; ATTN_PART_(TERMS, a->span.z) && r < t->n; r++)
      for (int e = 0; e < count[r]; e++)
        if (index[r][e] >= 0)
          t->w.s[e * ATTN_TILE_ + r] += (float)attn_log2_(attn_pair_ramp_(t, r, index[r][e]));
    attn_on_(tile, f)->modify_block(t->w.s, most, 0, t->groups, &set, t->top);
  } else {
    mod.lanes = lanes;
    attn_on_(tile, f)->modify_block(t->w.s, most, 0, t->groups, &mod, t->top);
  }
  if (attn_late_(a)) a->reshape->late_list(t, index, count);
}

/* Adds what the lists of a tile hold to its state; o_rows has the accumulator by rows. */
ATTN_FUNC_ void attn_list_values_(attn_tile_ *t, int32_t *const *index, const int *count,
                                  int most) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const int64_t dv = a->v.dim;
  attn_picked_ picked;
  void *row[ATTN_TILE_];
  int kept[ATTN_TILE_];
  if (attn_tile_weigh_(t, t->w.s, most, 0, t->groups)) {
    for (int r = 0; attn_shiftless_(a) && r < ATTN_TILE_; r++) t->alpha[r] = 1.0f;
  } else {
    if (attn_reweighs_(a)) attn_weights_note_(t, 0, most, 0, t->n);
    attn_on_(tile, f)->softmax_block(t->w.s, most, 0, t->groups, t->m, t->l, t->alpha, t->top,
                                     NULL);
    if (attn_reweighs_(a)) attn_list_hand_(t, index, count, most);
  }
  if (a->counting) return;
  for (int r = 0; r < t->n; r++) row[r] = t->w.rows + r * ATTN_ROOM_;
  f->unpack(row, t->w.s, t->n, most, ATTN_F32, NULL);
  for (int r = 0; r < t->n; r++) {
    float *p = (float *)row[r];
    int n = count[r];
    if (attn_modifies_(a) ||
        ATTN_PART_(CONTENT, a->choice)) { /* what the modifier forbids is not read */
      n = 0;
      for (int e = 0; e < count[r]; e++)
        if (index[r][e] >= 0) p[n] = p[e], index[r][n++] = index[r][e];
    }
    if (attn_sparse_(a)) { /* nor what has no weight */
      const int all = n;
      n = 0;
      for (int e = 0; e < all; e++)
        if (p[e] != 0.0f) p[n] = p[e], index[r][n++] = index[r][e];
    }
    if (attn_drops_(a)) attn_row_drop_(t, r, p, index[r], n);
    attn_list_pick_(t, &picked, &a->v, &a->v_scales, t->head_v, t->w.v, index[r], n);
    attn_on_(sum, f)->axpys(t->w.o_rows + r * dv, p, picked.rows, picked.stride, picked.index, n,
                            dv, picked.dtype, t->alpha[r], picked.ahead);
    kept[r] = n;
  }
  if (!ATTN_PART_(TERMS, a->relative.values.data)) return;
  const int64_t c = attn_relative_clip_(a);
  attn_on_(tile, f)->scale_block(t->w.rel_values, t->rel_rows, 0, t->groups, t->alpha);
  for (int r = 0; r < t->n; r++) {
    attn_beyond_ x = {{{0}, {0}}, c};
    for (int e = 0; e < kept[r]; e++) {
      const int64_t d = attn_clamp_(index[r][e] - t->pos[r], -c, c) - t->rel_first;
      attn_relative_add_(t, &x, r, index[r][e], ((const float *)row[r])[e]);
      t->w.rel_hit[d * ATTN_TILE_ + r] = 1;
    }
    attn_relative_meet_(t, &x, r, r + 1);
  }
}

/* Walks the lists of a tile. started = the accumulator holds something; the result too. */
ATTN_FUNC_ int attn_tile_lists_(attn_tile_ *t, int started) {
  const attn_softmax_ *a = t->a;
  const int64_t dk = a->q.dim, dv = a->v.dim;
  attn_list_ list[ATTN_TILE_];
  int32_t *index[ATTN_TILE_];
  int count[ATTN_TILE_], any = 0;
  void *to[ATTN_TILE_];
  const void *from[ATTN_TILE_];
  for (int r = 0; r < t->n; r++) {
    attn_list_of_(t, r, &list[r]);
    index[r] = t->w.index + r * ATTN_BLOCK_;
    if (ATTN_PART_(EDGES, a->edges) && a->edges->weights && !a->counting)
      for (int64_t e = 0; e < list[r].count; e++) attn_list_weights_(t, r, &list[r])[e] = -INFINITY;
    to[r] = t->w.q_rows + r * dk;
  }
  a->table->unpack(to, t->w.qt, t->n, dk, ATTN_F32, NULL);
  if (ATTN_PART_(TERMS, a->xl.table.data)) {
    for (int r = 0; r < t->n; r++) to[r] = t->w.q_rows + (ATTN_TILE_ + r) * dk;
    a->table->unpack(to, t->w.xl_qt, t->n, dk, ATTN_F32, NULL);
  }
  for (int r = 0; r < t->n; r++) from[r] = to[r] = t->w.o_rows + r * dv;
  if (started)
    a->table->unpack(to, t->w.ot, t->n, dv, ATTN_F32, NULL);
  else
    memset(t->w.o_rows, 0, (size_t)(ATTN_TILE_ * dv) * sizeof(float));
  for (int64_t block = 0;; block++) {
    int most = 0;
    if (block && block % (ATTN_STRETCH_ / ATTN_BLOCK_) == 0 && any) {
      a->table->pack(t->w.ot, from, t->n, dv, ATTN_F32, 1.0f, attn_least_(1.0f));
      attn_tile_fold_(t, 0);
      memset(t->w.o_rows, 0, (size_t)(ATTN_TILE_ * dv) * sizeof(float));
    }
    for (int r = 0; r < t->n; r++) {
      int32_t *edges = t->w.index + (ATTN_TILE_ + r) * ATTN_BLOCK_;
      count[r] = attn_list_take_(t, &list[r], r, index[r], edges);
      if (count[r] > most) most = count[r];
      *t->w.pairs += count[r];
    }
    if (most == 0) break;
    attn_list_scores_(t, index, count, most);
    if (ATTN_PART_(CONTENT, a->choice) && !a->choice->on->lists(t, index, count, most)) continue;
    any = 1;
    if (!a->counting && !attn_weighs_(a))
      for (int r = 0; r < t->n && (a->map.data || ATTN_PART_(EDGES, a->edges)); r++)
        attn_list_emit_(t, &list[r], r, index[r], t->w.index + (ATTN_TILE_ + r) * ATTN_BLOCK_,
                        count[r]);
    attn_list_values_(t, index, count, most);
  }
  if (any) a->table->pack(t->w.ot, from, t->n, dv, ATTN_F32, 1.0f, attn_least_(1.0f));
  return started || any;
}
