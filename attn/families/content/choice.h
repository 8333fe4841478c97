/* families/content/choice.h owns the choice of each row's keys by their scores: the scores of a block are
 * computed as for a softmax; then the best are remembered (engine/topk.h), or those below the row's
 * bound are forbidden. */

/* A candidate with its index above its score: so lists are sorted by index. */
ATTN_FUNC_ uint64_t attn_candidate_turned_(uint64_t c) { return c << 32 | c >> 32; }

ATTN_FUNC_ int64_t attn_choice_row_(const attn_tile_ *t, int r) {
  return attn_row_number_(t->a, t->batch, t->head[r], t->row[r]);
}

/* Finds the rows that are done: their outputs go astray. 1 = the tile has nothing to do. */
ATTN_FUNC_ int attn_choice_skips_(attn_tile_ *t) {
  const attn_choice_ *c = t->a->choice;
  t->done = 0;
  if (!c->done || attn_choice_collects_(c)) return 0;
  for (int r = 0; r < t->n; r++) {
    if (!c->done[attn_choice_row_(t, r)]) continue;
    t->done |= (uint64_t)1 << r;
    if (c->stage == ATTN_STAGE_APPLY_) t->out[r] = t->w.o_rows + r * t->a->v.dim;
  }
  return t->done == attn_tile_all_(t) && (c->stage == ATTN_STAGE_COUNT_ || !c->col);
}

/* What is known of the best keys before those of a tile pass: nothing, or what the phase before has
 * left. */
ATTN_FUNC_ void attn_choice_collect_(attn_tile_ *t) {
  const attn_choice_ *c = t->a->choice;
  const int first = t->a->phase == 0;
  attn_topk_ *best = t->w.best;
  if (c->mode == ATTN_TOPK_REL) {
    for (int r = 0; r < ATTN_TILE_; r++)
      t->m[r] = first || r >= t->n ? -INFINITY : c->least[attn_choice_row_(t, r)];
    return;
  }
  memset(best, 0, sizeof *best);
  best->table = t->a->table, best->k = c->k, best->room = 2 * c->k + ATTN_CHUNK_;
  best->list = t->w.best_list, best->spare = t->w.best_spare;
  best->unordered = t->a->phases > 1;
  for (int r = 0; r < ATTN_TILE_; r++) {
    best->floor[r] = -FLT_MAX;
    if (first || r >= t->n) continue;
    const int64_t row = attn_choice_row_(t, r);
    best->count[r] = c->kept_count[row];
    memcpy(best->list + r * best->room, c->kept + row * c->k, (size_t)best->count[r] * 8);
  }
}

/* The rows that a pass chooses for: not those that are done, unless their lists are to be written. */
ATTN_FUNC_ uint64_t attn_choice_lanes_(const attn_tile_ *t) {
  const attn_choice_ *c = t->a->choice;
  const int again = c->stage != ATTN_STAGE_COUNT_ && c->col;
  return attn_tile_all_(t) & ~(again ? 0 : t->done);
}

/* Before the keys of a tile pass: the rows' bounds, above what is forbidden anyway. */
ATTN_FUNC_ void attn_choice_open_(attn_tile_ *t) {
  const attn_choice_ *c = t->a->choice;
  if (attn_choice_collects_(c)) {
    attn_choice_collect_(t);
    return;
  }
  for (int r = 0; r < ATTN_TILE_; r++) {
    float x = c->bound;
    if (c->mode == ATTN_TOPK_REL && r < t->n) x = c->least[attn_choice_row_(t, r)] - c->bound;
    if (c->mode == ATTN_TOPK_TIES && r < t->n) x = c->least[attn_choice_row_(t, r)];
    t->floor[r] = x > -FLT_MAX ? x : -FLT_MAX;
  }
}

/* Remembers the keys of `lanes`: entry e of a block, or of the rows' lists. */
ATTN_FUNC_ void attn_choice_take_(attn_tile_ *t, const attn_block_ *b, int32_t *const *index,
                                  int e0, const uint64_t *lanes, int n) {
  attn_topk_ *best = t->w.best;
  uint64_t some = 0;
  for (int e = 0; e < n; e++) {
    const float *s = t->w.s + (e0 + e) * ATTN_TILE_;
    const int64_t key = b ? attn_block_key_(b, e0 + e) : 0;
    some |= lanes[e];
    for (uint64_t left = lanes[e]; left; left &= left - 1) {
      const int r = attn_lowest_(left);
      best->list[r * best->room + best->count[r]++] =
          attn_candidate_(s[r], b ? key : index[r][e0 + e]);
    }
  }
  for (; some; some &= some - 1) {
    const int r = attn_lowest_(some);
    if (best->count[r] < 2 * best->k) continue;
    attn_topk_keep_(best, r);
    if (best->floor[r] < -FLT_MAX) best->floor[r] = -FLT_MAX;
  }
}

/* Counts the keys of `lanes`, or writes them down. */
ATTN_FUNC_ void attn_choice_note_(attn_tile_ *t, const attn_block_ *b, int32_t *const *index,
                                  int e0, const uint64_t *lanes, int n) {
  const attn_choice_ *c = t->a->choice;
  const int fill = c->stage != ATTN_STAGE_COUNT_;
  if (t->careful || (fill && !c->col)) return; /* once is enough */
  for (int e = 0; e < n; e++) {
    const int64_t key = b ? attn_block_key_(b, e0 + e) : 0;
    for (uint64_t left = lanes[e]; left; left &= left - 1) {
      const int r = attn_lowest_(left);
      int64_t *count = &c->count[attn_choice_row_(t, r)];
      const int64_t set = (t->batch * t->a->q.heads + t->head[r]) * c->edges;
      if (fill) c->col[set + *count] = (int32_t)(b ? key : index[r][e0 + e]);
      *count += 1;
    }
  }
}

/* TIES: NaN comes after every number, so that it does not tie with one. */
ATTN_FUNC_ uint64_t attn_choice_ties_(const attn_tile_ *t, const float *s, uint64_t lanes) {
  uint64_t kept = lanes;
  for (uint64_t left = lanes; left; left &= left - 1) {
    const int r = attn_lowest_(left);
    if (s[r] != s[r] && t->floor[r] > -FLT_MAX) kept &= ~attn_bit_(r);
  }
  return kept;
}

/* A part of the tile's scores: entries e0 .. e0 + n - 1 of lane groups g0 .. g1 - 1. 1 = something of
 * it has a weight; t->top gets its maximum. */
ATTN_FUNC_ int attn_choose_part_(attn_tile_ *t, const attn_block_ *b, int32_t *const *index, int e0,
                                 int n, int g0, int g1) {
  const attn_choice_ *c = t->a->choice;
  const attn_table_ *f = t->a->table;
  const uint64_t all = attn_choice_lanes_(t);
  uint64_t lanes[ATTN_CHUNK_], some = 0;
  attn_modifiers_ only;
  float *s = t->w.s + e0 * ATTN_TILE_;
  const int collect = attn_choice_collects_(c);
  attn_on_(select, f)->above(lanes, s, NULL, n, g0, g1, collect ? t->w.best->floor : t->floor);
  for (int e = 0; e < n; e++) {
    lanes[e] &= all;
    if (c->mode == ATTN_TOPK_TIES && !collect)
      lanes[e] = attn_choice_ties_(t, s + e * ATTN_TILE_, lanes[e]);
    some |= lanes[e];
  }
  if (collect) {
    if (some) attn_choice_take_(t, b, index, e0, lanes, n);
    return 0;
  }
  if (some) attn_choice_note_(t, b, index, e0, lanes, n);
  if (c->stage != ATTN_STAGE_APPLY_) return 0;
  memset(&only, 0, sizeof only);
  only.lanes = lanes;
  attn_on_(tile, f)->modify_block(s, n, g0, g1, &only, t->top);
  return some != 0;
}

/* The first `to` entries from `from` on, a chunk at a time. */
ATTN_FUNC_ int attn_choose_run_(attn_tile_ *t, const attn_block_ *b, int32_t *const *index,
                                int from, int to, int g0, int g1) {
  int any = 0;
  for (int e = from, n; e < to; e += n) {
    n = to - e < ATTN_CHUNK_ ? to - e : (int)ATTN_CHUNK_;
    any |= attn_choose_part_(t, b, index, e, n, g0, g1);
  }
  return any;
}

/* Multiplies scores that are products still: entries from .. to of some groups. */
ATTN_FUNC_ void attn_choose_scale_(attn_tile_ *t, int from, int to, int g0, int g1) {
  const float factor = t->a->choice->factor;
  float by[ATTN_TILE_];
  if (factor == 0.0f || from >= to) return;
  for (int r = 0; r < ATTN_TILE_; r++) by[r] = factor;
  attn_on_(tile, t->a->table)->scale_block(t->w.s + from * ATTN_TILE_, to - from, g0, g1, by);
}

/* The maximum of each row so far, and none of this block. */
ATTN_FUNC_ int attn_choose_most_(attn_tile_ *t) {
  const attn_choice_ *c = t->a->choice;
  const int most = c->mode == ATTN_TOPK_REL && attn_choice_collects_(c);
  const float by = c->factor == 0.0f ? 1.0f : c->factor;
  for (int r = 0; r < ATTN_TILE_; r++) {
    if (most && t->top[r] * by > t->m[r]) t->m[r] = t->top[r] * by;
    t->top[r] = -INFINITY;
  }
  return most;
}

/* Chooses from the scores of a block. 1 = values are to be added. */
ATTN_FUNC_ int attn_choose_block_(attn_tile_ *t, attn_block_ *b) {
  int any = 0;
  if (attn_choose_most_(t)) return 0;
  for (int g = 0; !b->whole && g < t->groups; g++) {
    attn_choose_scale_(t, b->first[g], b->end[g], g, g + 1);
    any |= attn_choose_run_(t, b, NULL, b->first[g], b->end[g], g, g + 1);
  }
  if (!b->whole) return any;
  attn_choose_scale_(t, 0, b->n, 0, t->groups);
  return attn_choose_run_(t, b, NULL, 0, b->n, 0, t->groups);
}

/* The same of lists of keys; those that are left out become -1. */
ATTN_FUNC_ int attn_choose_lists_(attn_tile_ *t, int32_t *const *index, const int *count,
                                  int most) {
  if (attn_choose_most_(t)) return 0;
  attn_choose_scale_(t, 0, most, 0, t->groups);
  if (!attn_choose_run_(t, NULL, index, 0, most, 0, t->groups)) return 0;
  for (int r = 0; r < t->n; r++)
    for (int e = 0; e < count[r]; e++)
      if (t->w.s[e * ATTN_TILE_ + r] == -INFINITY) index[r][e] = -1;
  return 1;
}

/* The best keys of row r, by index, or their number alone: at the row's place in col, and for
 * attention. */
ATTN_FUNC_ void attn_choice_list_(attn_tile_ *t, int r) {
  const attn_choice_ *c = t->a->choice;
  attn_topk_ *best = t->w.best;
  const int64_t n = best->count[r], set = t->batch * t->a->q.heads + t->head[r];
  const int place = c->col && c->mode == ATTN_TOPK_EXACT;
  uint64_t *list = best->list + r * best->room;
  if (!place && !c->at_once) return;
  for (int64_t e = 0; e < n; e++) list[e] = attn_candidate_turned_(list[e]);
  attn_sort_(list, n, best->spare);
  int32_t *col = place ? c->col + set * c->edges + t->row[r] * c->k : NULL;
  for (int64_t e = 0; col && e < n; e++)
    col[e] = (int32_t)attn_candidate_index_(attn_candidate_turned_(list[e]));
}

/* TIES: the bound of row r, from k + 1 candidates. If the last of them is below it they tell all. */
ATTN_FUNC_ void attn_choice_bound_(attn_tile_ *t, int r, int64_t row) {
  const attn_choice_ *c = t->a->choice;
  attn_topk_ *best = t->w.best;
  const uint64_t *list = best->list + r * best->room;
  const int64_t n = best->count[r], k = c->k - 1;
  uint64_t least = UINT64_MAX;
  for (int64_t e = 0; e < n && e < k; e++) least = list[e] < least ? list[e] : least;
  c->least[row] = n < k ? -INFINITY : attn_candidate_score_(least);
  if (!c->done) return;
  c->done[row] = n <= k || list[k] >> 32 < least >> 32;
  best->count[r] = !c->done[row] ? 0 : n < k ? n : k;
}

/* After all keys of a tile have passed: the rows' bounds, or their best keys by index. last: no other
 * phase follows. 1 = there are lists to be attended to. */
ATTN_FUNC_ int attn_choice_close_(attn_tile_ *t, int last) {
  const attn_choice_ *c = t->a->choice;
  attn_topk_ *best = t->w.best;
  for (int r = 0; r < t->n; r++) {
    const int64_t row = attn_choice_row_(t, r);
    if (c->mode == ATTN_TOPK_REL) {
      c->least[row] = t->m[r];
      continue;
    }
    attn_topk_keep_(best, r);
    if (!last) {
      c->kept_count[row] = best->count[r];
      memcpy(c->kept + row * c->k, best->list + r * best->room, (size_t)best->count[r] * 8);
      continue;
    }
    if (c->mode == ATTN_TOPK_TIES) attn_choice_bound_(t, r, row);
    if (c->indptr && c->stage == ATTN_STAGE_COLLECT_) c->count[row] = best->count[r];
    attn_choice_list_(t, r);
  }
  return last && c->at_once && c->mode != ATTN_TOPK_REL;
}

/* The best keys of a tile's rows are lists too, whose scores are known: t->w.best holds them by
 * index. Adds their values to the accumulator. 0 = there are none. */
ATTN_FUNC_ int attn_tile_best_(attn_tile_ *t) {
  const attn_topk_ *best = t->w.best;
  const int64_t dv = t->a->v.dim;
  int32_t *index[ATTN_TILE_];
  int count[ATTN_TILE_];
  const void *from[ATTN_TILE_];
  int64_t done = 0;
  memset(t->w.o_rows, 0, (size_t)(ATTN_TILE_ * dv) * sizeof(float));
  for (int r = 0; r < t->n; r++)
    from[r] = t->w.o_rows + r * dv, index[r] = t->w.index + r * ATTN_BLOCK_;
  for (int most = 1;; done += ATTN_BLOCK_) {
    most = 0;
    for (int r = 0; r < t->n; r++) {
      const int64_t left = best->count[r] - done;
      count[r] = left > ATTN_BLOCK_ ? ATTN_BLOCK_ : left > 0 ? (int)left : 0;
      if (count[r] > most) most = count[r];
    }
    if (most == 0) break;
    for (int r = 0; r < ATTN_TILE_; r++) {
      const uint64_t *list = best->list + r * best->room + done;
      const int n = r < t->n ? count[r] : 0;
      t->top[r] = -INFINITY;
      for (int e = 0; e < n; e++) {
        const float x = attn_candidate_score_(attn_candidate_turned_(list[e]));
        index[r][e] = (int32_t)attn_candidate_index_(attn_candidate_turned_(list[e]));
        t->w.s[e * ATTN_TILE_ + r] = x;
        if (x > t->top[r]) t->top[r] = x;
      }
      for (int e = n; e < most; e++) t->w.s[e * ATTN_TILE_ + r] = -INFINITY;
    }
    attn_list_values_(t, index, count, most);
  }
  if (done) t->a->table->pack(t->w.ot, from, t->n, dv, ATTN_F32, 1.0f, attn_least_(1.0f));
  return done > 0;
}

/* A pass that chooses keys. The best ones are attended to when all phases have had their say. */
ATTN_FUNC_ void attn_tile_choose_(attn_tile_ *t, int last) {
  attn_tile_sweep_(t);
  if (!attn_choice_collects_(t->a->choice) || !attn_choice_close_(t, last)) return;
  for (int r = 0; r < ATTN_TILE_; r++) {
    t->m[r] = -INFINITY, t->l[r] = 0.0f, t->alpha[r] = t->scale[r] = 1.0f;
  }
  if (!attn_tile_best_(t)) memset(t->w.ot, 0, (size_t)(t->a->v.dim * ATTN_TILE_) * sizeof(float));
  attn_tile_finish_(t);
}

/* ---- passes ---------------------------------------------------------------------------------*/

/* The lists of one (batch, head), when all rows have their keys: indptr, and the lists end to end if
 * each stands at its own place (EXACT), or in order if phases have written them one after another. */
ATTN_FUNC_ void attn_choice_lists_(void *job, int worker, int64_t set) {
  const attn_softmax_ *a = (const attn_softmax_ *)job;
  const attn_choice_ *c = a->choice;
  const int64_t n = a->q.len;
  int64_t *ptr = c->indptr + set * (n + 1), *count = c->count + set * n;
  int32_t *col = c->col ? c->col + set * c->edges : NULL;
  (void)worker;
  ptr[0] = 0;
  for (int64_t i = 0; i < n; i++) {
    const int64_t many = count[i];
    if (c->mode == ATTN_TOPK_EXACT && col)
      memmove(col + ptr[i], col + i * c->k, (size_t)many * sizeof *col);
    ptr[i + 1] = ptr[i] + many;
    count[i] = ptr[i];
  }
}

ATTN_FUNC_ void attn_choice_order_(void *job, int worker, int64_t set) {
  const attn_softmax_ *a = (const attn_softmax_ *)job;
  const attn_choice_ *c = a->choice;
  const int64_t *ptr = c->indptr + set * (a->q.len + 1);
  (void)worker;
  for (int64_t i = 0; i < a->q.len; i++)
    attn_sort_keys_(c->col + set * c->edges + ptr[i], ptr[i + 1] - ptr[i]);
}

/* Whether the sets that have been counted fit where they go. */
ATTN_FUNC_ int attn_choice_fits_(attn_error_ *e, const attn_softmax_ *a) {
  const attn_choice_ *c = a->choice;
  const int64_t sets = a->q.batch * a->q.heads, n = a->q.len;
  if (c->col)
    for (int64_t set = 0; set < sets; set++) {
      int64_t sum = 0;
      for (int64_t i = 0; i < n; i++) sum += c->count[set * n + i];
      if (sum > c->edges)
        return attn_reject_(e, ATTN_E_FULL,
                            "params.edges is less than a set has: with col null, indptr tells");
    }
  return 1;
}

ATTN_FUNC_ void attn_choice_pass_(attn_softmax_ *a, attn_ctx *ctx, int workers, int stage) {
  attn_scratch_ s;
  a->choice->stage = stage;
  for (int i = 0; i < workers; i++) { /* a pass before may have gathered keys without values */
    attn_scratch_cut_(a, i, &s);
    s.held->n = 0;
  }
  attn_softmax_pass_(a, ctx, workers);
}

/* The passes of a choice of keys. Nothing is written before the lists are known to fit. */
ATTN_FUNC_ int attn_choice_passes_(attn_error_ *e, attn_softmax_ *a, attn_ctx *ctx, int workers) {
  attn_choice_ *c = a->choice;
  const int64_t sets = a->q.batch * a->q.heads, rows = sets * a->q.len;
  const int pieces = attn_pieces_(workers, sets), exact = c->mode == ATTN_TOPK_EXACT;
  const int lists = exact || (c->mode == ATTN_TOPK_TIES && a->phases == 1);
  for (int64_t i = 0; c->indptr && i < rows; i++) c->count[i] = 0;
  c->at_once = c->values && lists && (exact || !c->col);
  if (c->mode != ATTN_TOPK_ABS) attn_choice_pass_(a, ctx, workers, ATTN_STAGE_COLLECT_);
  if (c->indptr) {
    if (!exact) {
      if (!lists)
        for (int64_t i = 0; i < rows; i++) c->count[i] = 0;
      attn_choice_pass_(a, ctx, workers, ATTN_STAGE_COUNT_);
      if (!attn_choice_fits_(e, a)) return 0;
    }
    attn_for_(ctx, pieces, sets, attn_choice_lists_, a);
  }
  if (exact || (!c->col && !c->values)) return 1;
  if (lists && c->values && !c->at_once) {
    c->at_once = 1;
    attn_choice_pass_(a, ctx, workers, ATTN_STAGE_AGAIN_);
  }
  attn_choice_pass_(a, ctx, workers, c->values ? ATTN_STAGE_APPLY_ : ATTN_STAGE_FILL_);
  if (c->col && a->phases > 1) attn_for_(ctx, pieces, sets, attn_choice_order_, a);
  return 1;
}

/* What the engine calls. */
static const attn_choice_calls_ attn_choice_on_ = {attn_choice_passes_, attn_choice_skips_,
                                                   attn_choice_open_,   attn_choose_block_,
                                                   attn_choose_lists_,  attn_tile_choose_};
