/* engine/run.h owns the run of a problem from end to end: the memory of a call, its work items, what
 * they leave for each other, and the report. */

/* A copy of the problem a becomes that of sequence b, with its way of computing. */
ATTN_FUNC_ void attn_sequence_problem_(const attn_softmax_ *a, int64_t b, attn_softmax_ *own) {
  const attn_sequences_ *s = a->seq;
  attn_problem_turn_(a, b, own);
  attn_few_plan_(own, a->one_order);
  own->part0 = 0;
  if (s->part) own->part0 = s->part[b] - attn_part_(own, b * (a->q.heads / a->group), 0);
}

/* Counts the work items and the parts of all sequences. Which ways of computing occur decides what a
 * worker's memory holds. */
ATTN_FUNC_ void attn_sequences_count_(attn_softmax_ *a) {
  attn_sequences_ *s = &a->sequences;
  attn_softmax_ own = *a;
  s->items = s->parts = 0;
  int few = 0, by_row = 0;
  int64_t splits = 1;
  for (int64_t b = 0; b <= s->n; b++) {
    if (s->first) s->first[b] = s->items, s->part[b] = s->parts;
    if (b == s->n) break;
    attn_sequence_problem_(a, b, &own);
    const int64_t groups = own.q.heads / own.group;
    s->items = attn_add_(s->items, attn_mul_(groups, own.few ? own.splits : own.tiles));
    if (own.splits > 1)
      s->parts = attn_add_(s->parts, attn_mul_(own.q.heads * own.q.len, own.splits));
    few |= own.few, by_row |= own.by_row;
    if (own.splits > splits) splits = own.splits;
  }
  a->few = few, a->by_row = by_row, a->splits = splits;
}

/* What is before each, now that there is memory for it. */
ATTN_FUNC_ void attn_sequences_mark_(attn_softmax_ *a) {
  attn_sequences_ *s = &a->sequences;
  if (s->n != 1) {
    attn_sequences_count_(a);
    return;
  }
  s->first[0] = s->part[0] = 0;
  s->first[1] = s->items, s->part[1] = s->parts;
}

/* A work item: a tile or a split of some sequence. */
ATTN_FUNC_ void attn_sequence_item_(void *job, int worker, int64_t index) {
  const attn_softmax_ *a = (const attn_softmax_ *)job;
  const attn_sequences_ *s = a->seq;
  attn_softmax_ own = *a;
  int64_t b = 0, end = s->n; /* first[b] <= index < first[end] */
  while (end - b > 1) {
    const int64_t mid = b + (end - b) / 2;
    if (s->first[mid] <= index)
      b = mid;
    else
      end = mid;
  }
  attn_sequence_problem_(a, b, &own);
  const int64_t each = own.few ? own.splits : own.tiles, n = index - s->first[b];
  const int64_t unit = b * (own.q.heads / own.group) + n / each;
  if (own.few)
    attn_few_split_(&own, worker, unit, n % each);
  else
    attn_softmax_tile_(&own, worker, unit, n % each);
}

ATTN_FUNC_ void attn_sequence_merge_(void *job, int worker, int64_t unit) {
  const attn_softmax_ *a = (const attn_softmax_ *)job;
  attn_softmax_ own = *a;
  attn_sequence_problem_(a, unit / (a->q.heads / a->group), &own);
  if (own.splits > 1) attn_few_join_(&own, worker, unit);
}

/* What is shared by the workers, in front of their own memory. */
typedef struct attn_shared_ {
  int64_t distance, factor, m, l, n, o, part_m, part_l, part_o, first, part;
  int64_t least, count, done, kept, kept_count, reshape, bytes;
} attn_shared_;

/* A piece behind those that are there. */
ATTN_FUNC_ int64_t attn_shared_put_(attn_shared_ *x, int64_t bytes) {
  const int64_t at = x->bytes;
  x->bytes = attn_add_(at, bytes);
  return at;
}

/* Only what is wanted has a place. */
ATTN_FUNC_ void attn_shared_plan_(const attn_softmax_ *a, attn_shared_ *x) {
  const int64_t f = sizeof(float), rows = attn_mul_(attn_mul_(a->q.batch, a->q.heads), a->q.len);
  attn_clear_(x, sizeof *x);
  if (ATTN_HAS_TERMS && a->distances) {
    const int64_t table = attn_piece_(attn_mul_(a->distance_heads, a->distances), f);
    if (attn_has_distance_(&a->by_distance)) x->distance = attn_shared_put_(x, table);
    if (a->by_distance.factor.alpha) x->factor = attn_shared_put_(x, table);
  }
  if (a->phases > 1 || attn_weighs_(a) || attn_tallies_(a)) {
    const int64_t numbered = a->seq && a->seq->q ? attn_mul_(a->q.heads, a->seq->rows) : rows;
    const int64_t row = attn_piece_(numbered, f); /* see attn_row_number_ */
    x->m = attn_shared_put_(x, row);
    x->l = attn_shared_put_(x, row);
    x->n = attn_shared_put_(x, row);
  }
  if (a->phases > 1 && a->o.dtype != ATTN_F32)
    x->o = attn_shared_put_(x, attn_piece_(attn_mul_(rows, a->v.dim), f));
  const int64_t parts = a->seq                    ? a->seq->parts
                        : a->few && a->splits > 1 ? attn_mul_(rows, a->splits)
                                                  : 0;
  if (parts) {
    x->part_m = attn_shared_put_(x, attn_piece_(parts, f));
    x->part_l = attn_shared_put_(x, attn_piece_(parts, f));
    x->part_o = attn_shared_put_(x, attn_piece_(attn_mul_(parts, a->v.dim), f));
  }
  if (a->seq) {
    const int64_t marks = attn_piece_(a->seq->n + 1, sizeof(int64_t));
    x->first = attn_shared_put_(x, marks);
    x->part = attn_shared_put_(x, marks);
  }
  const attn_reshape_ *reshape = ATTN_PART_(WEIGHTS_, a->reshape);
  if (reshape) x->reshape = attn_shared_put_(x, reshape->bytes);
  const attn_choice_ *c = ATTN_PART_(CONTENT, a->choice);
  if (!c) return;
  const int bounds = c->mode == ATTN_TOPK_TIES || c->mode == ATTN_TOPK_REL;
  const int64_t kept = a->phases > 1 ? c->k : 0;
  x->least = attn_shared_put_(x, bounds ? attn_piece_(rows, f) : 0);
  x->count = attn_shared_put_(x, c->indptr ? attn_piece_(rows, 8) : 0);
  const int done = c->mode == ATTN_TOPK_TIES && a->phases == 1;
  x->done = attn_shared_put_(x, done ? attn_piece_(rows, 1) : 0);
  x->kept = attn_shared_put_(x, attn_piece_(attn_mul_(rows, kept), 8));
  x->kept_count = attn_shared_put_(x, kept ? attn_piece_(rows, 8) : 0);
}

/* Work items of a pass: tiles, or splits. */
ATTN_FUNC_ int64_t attn_softmax_items_(const attn_softmax_ *a, int phase) {
  int64_t n = 0, first;
  if (a->seq && !ATTN_PART_(COMPOSED, a->own)) return a->seq->items;
  if (a->few) return a->q.batch * (a->q.heads / a->group) * a->splits;
  if (ATTN_PART_(COMPOSED, a->own) && (a->own_whole || !ATTN_PART_(PATTERN, a->plan)))
    return a->own_items;
  if (!ATTN_PART_(PATTERN, a->plan)) return a->q.batch * (a->q.heads / a->group) * a->tiles;
  for (int64_t h = 0; h < a->q.heads; h++) n += attn_plan_tiles_(a->plan, h, phase, &first);
  return n * a->q.batch;
}

/* The most workers that have something to do. */
ATTN_FUNC_ int attn_softmax_workers_(const attn_softmax_ *a, int workers) {
  int64_t most = 0;
  for (int i = 0; i < a->phases; i++)
    if (attn_softmax_items_(a, i) > most) most = attn_softmax_items_(a, i);
  return attn_pieces_(workers, most);
}

/* Bytes of the whole call for so many workers, all of which have something to do; INT64_MAX when they cannot be. A
 * worker's own go to a->bytes, what they share to x. */
ATTN_FUNC_ int64_t attn_softmax_measure_(attn_softmax_ *a, int workers, attn_shared_ *x) {
  attn_shared_plan_(a, x);
  const int64_t own = attn_mul_(attn_scratch_plan_(a), workers);
  return attn_workspace_bytes_(attn_add_(x->bytes, own), 1);
}
ATTN_FUNC_ int64_t attn_softmax_bytes_(attn_softmax_ *a, int workers) {
  attn_shared_ x;
  return attn_softmax_measure_(a, attn_softmax_workers_(a, workers), &x);
}

ATTN_FUNC_ void attn_softmax_pass_(attn_softmax_ *a, attn_ctx *ctx, int workers) {
  if (a->seq && !ATTN_PART_(COMPOSED, a->own)) {
    const int64_t items = a->seq->items, units = a->seq->n * (a->q.heads / a->group);
    attn_for_(ctx, attn_pieces_(workers, items), items, attn_sequence_item_, a);
    if (a->seq->parts) attn_for_(ctx, attn_pieces_(workers, units), units, attn_sequence_merge_, a);
    return;
  }
  if (a->few) {
    const int64_t items = attn_softmax_items_(a, 0), units = items / a->splits;
    attn_for_(ctx, attn_pieces_(workers, items), items, attn_few_item_, a);
    if (a->splits > 1) attn_for_(ctx, attn_pieces_(workers, units), units, attn_few_merge_, a);
    return;
  }
  const int phases = a->own_whole ? 1 : a->phases;
  for (a->phase = 0; a->phase < phases; a->phase++) {
    const int64_t items = attn_softmax_items_(a, a->phase);
    if (ATTN_PART_(PATTERN, a->plan) && !a->own_whole) a->tiles = items / a->q.batch;
    const attn_item_fn_ item = ATTN_PART_(COMPOSED, a->own) ? a->own : attn_softmax_item_;
    if (items) attn_for_(ctx, attn_pieces_(workers, items), items, item, a);
  }
}

/* Runs the whole problem; a is complete but for its memory. */
ATTN_FUNC_ int attn_softmax_run_(attn_error_ *e, attn_softmax_ *a, attn_ctx *ctx, int workers) {
  attn_workspace_ w;
  attn_shared_ x;
  workers = attn_softmax_workers_(a, workers);
  if (!attn_workspace_get_(e, &w, ctx, attn_softmax_measure_(a, workers, &x))) return 0;
  a->workspace = w.base + x.bytes;
  float *distance = (float *)(void *)(w.base + x.distance);
  float *factor = (float *)(void *)(w.base + x.factor);
  a->distance = attn_has_distance_(&a->by_distance) ? distance : NULL;
  a->factor = a->by_distance.factor.alpha ? factor : NULL;
  a->state_m = (float *)(void *)(w.base + x.m);
  a->state_l = (float *)(void *)(w.base + x.l);
  a->state_n = (float *)(void *)(w.base + x.n);
  a->state_o = a->o.dtype == ATTN_F32 ? NULL : (float *)(void *)(w.base + x.o);
  a->part_m = (float *)(void *)(w.base + x.part_m);
  a->part_l = (float *)(void *)(w.base + x.part_l);
  a->part_o = (float *)(void *)(w.base + x.part_o);
  if (a->seq) {
    a->sequences.first = (int64_t *)(void *)(w.base + x.first);
    a->sequences.part = (int64_t *)(void *)(w.base + x.part);
    attn_sequences_mark_(a);
  }
  if (ATTN_PART_(TERMS, a->distance) || ATTN_PART_(TERMS, a->factor))
    attn_distance_fill_(a, ATTN_PART_(TERMS, a->distance) ? distance : NULL,
                        ATTN_PART_(TERMS, a->factor) ? factor : NULL);
  attn_scratch_open_(a, workers);
  const attn_reshape_ *reshape = ATTN_PART_(WEIGHTS_, a->reshape);
  if (reshape && reshape->prepare) reshape->prepare(a, w.base + x.reshape, ctx, workers);
  if (attn_tallies_(a) || attn_weighs_(a)) {
    a->counting = 1;
    attn_softmax_pass_(a, ctx, workers);
    a->counting = 0;
    attn_scratch_open_(a, workers);
  }
  if (ATTN_PART_(CONTENT, a->choice)) {
    a->choice->least = (float *)(void *)(w.base + x.least);
    a->choice->count = (int64_t *)(void *)(w.base + x.count);
    a->choice->done = x.kept > x.done ? (unsigned char *)(w.base + x.done) : NULL;
    a->choice->kept = (uint64_t *)(void *)(w.base + x.kept);
    a->choice->kept_count = (int64_t *)(void *)(w.base + x.kept_count);
    if (!a->choice->on->passes(e, a, ctx, workers)) {
      attn_workspace_drop_(&w);
      return 0;
    }
  } else if (reshape && reshape->pass) {
    reshape->pass(a, ctx, workers);
  } else {
    attn_softmax_pass_(a, ctx, workers);
  }
  if (a->raw.data) attn_raw_pass_(a, ctx, workers);
  if (ATTN_PART_(CONTENT, a->choice))
    attn_report_(ctx, a->table, workers,
                 a->choice->mode == ATTN_TOPK_EXACT ? "best keys of streamed scores"
                                                    : "streaming softmax, keys above a bound",
                 a->choice->mode == ATTN_TOPK_EXACT ? "params.mode and k" : "params.mode");
  else if (ATTN_PART_(EDGES, a->edges))
    attn_report_(ctx, a->table, workers, "streaming softmax, key lists", "the call gives lists");
  else if (ATTN_PART_(PATTERN, a->plan))
    attn_report_(ctx, a->table, workers, "streaming softmax, scheduled tiles",
                 "the call has a schedule");
  else if (a->seq)
    attn_report_(ctx, a->table, workers,
                 a->seq->cached ? "sequences of a cache"
                 : a->seq->q    ? "sequences end to end"
                                : "entries at their own positions",
                 "each sequence as in a call of its own");
  else if (a->few)
    attn_report_(ctx, a->table, workers,
                 a->by_row       ? a->splits > 1 ? "few queries, keys by row, keys split"
                                                 : "few queries, keys by row"
                 : a->splits > 1 ? "few queries, queries in lanes, keys split"
                                 : "few queries, queries in lanes",
                 a->by_row ? "at most 16 rows to a key" : "at most 64 rows to a key");
  else
    attn_report_(ctx, a->table, workers, "streaming softmax, queries in lanes", a->why);
  attn_compute_report_(ctx, a->low, a->feature);
  if (ctx && ATTN_PART_(LOW, a->codes)) ctx->report.compute = ATTN_COMPUTE_I8;
  if (ctx && ATTN_PART_(LOW, a->codes)) ctx->report.feature = a->feature;
  if (ctx) ctx->report.pairs = attn_scratch_pairs_(a, workers);
  attn_workspace_drop_(&w);
  return 1;
}
