/* families/selection/listed.h owns exact attention to chosen keys one by one: as lists of a row (engine/lists.h), or,
 * where heads share keys and choice, as tiles of these heads whose keys are gathered once. */

/* Heads that are worth a tile: fewer are rows of their own. */
enum { ATTN_LISTED_HEADS_ = 4 };

typedef struct attn_listed_ {
  const attn_edges_params *lists; /* indptr and col are written by now */
  int64_t most;                   /* keys of a list */
  int64_t tiles;                  /* of the heads of a group */
  char *memory;
  int64_t each;
} attn_listed_;

/* One (batch, group of heads, query, 64 of the heads): the runs of its list are those of a tile. */
ATTN_FUNC_ void attn_listed_item_(void *job, int worker, int64_t item) {
  const attn_softmax_ *f = (const attn_softmax_ *)job;
  const attn_listed_ *x = (const attn_listed_ *)f->own_job;
  const int64_t tile = item % x->tiles, i = item / x->tiles % f->q.len,
                unit = item / x->tiles / f->q.len;
  const int64_t groups = f->q.heads / f->group, b = unit / groups,
                left = f->group - tile * ATTN_TILE_;
  const int64_t *ptr = x->lists->indptr + b * (f->q.len + 1) + i;
  const int32_t *key = x->lists->col + b * x->lists->edges + ptr[0];
  attn_plan_ *plan = (attn_plan_ *)(void *)(x->memory + worker * x->each);
  attn_plan_run_ *run = (attn_plan_run_ *)(void *)((char *)plan + attn_piece_(1, sizeof *plan));
  attn_softmax_ own = *f;
  attn_plan_tile_ runs;
  attn_tile_ t;
  memset(plan, 0, sizeof *plan);
  memset(&runs, 0, sizeof runs);
  plan->at_run = attn_piece_(1, sizeof *plan);
  own.plan = plan, own.edges = NULL;
  attn_tile_open_(&t, &own, worker);
  t.plan = &runs, t.batch = b, t.n = left < ATTN_TILE_ ? (int)left : (int)ATTN_TILE_;
  for (int r = 0; r < t.n; r++)
    t.row[r] = i, t.head[r] = unit % groups * f->group + tile * ATTN_TILE_ + r;
  runs.n = t.n, runs.step = 1;
  for (int64_t e = 0; e < ptr[1] - ptr[0]; e++) {
    if (e && key[e] == key[e - 1] + 1) {
      run[runs.count - 1].n++;
      continue;
    }
    run[runs.count].key = key[e], run[runs.count].n = 1,
    run[runs.count++].lanes = attn_tile_all_(&t);
  }
  attn_tile_run_(&t, 1);
}

/* Attention to the lists of p, none longer than most; f holds the tensors. */
ATTN_COLD_ int attn_stage_listed_(attn_stage_ *s, attn_softmax_ *f, const attn_selected *p,
                                  attn_listed_ *x) {
  int workers;
  if (!attn_selected_plan_(s->e, f, p, &s->ctx, &workers, -1)) return 0;
  const int shared = !x->lists->per_head && f->group >= ATTN_LISTED_HEADS_;
  f->edges = x->lists;
  x->each = x->tiles = 0;
  if (shared) {
    x->tiles = attn_tiles_of_(f->group);
    x->each =
        attn_add_(attn_piece_(1, sizeof(attn_plan_)), attn_piece_(x->most, sizeof(attn_plan_run_)));
    f->own = attn_listed_item_, f->own_job = x;
    f->own_items =
        attn_mul_(attn_mul_(f->q.batch, f->q.heads / f->group), attn_mul_(f->q.len, x->tiles));
  } else {
    f->group = 1, f->tiles = attn_tiles_of_(f->q.len);
  }
  const int64_t bytes = attn_softmax_bytes_(f, s->workers);
  const int64_t own = attn_mul_(x->each, attn_softmax_workers_(f, s->workers));
  char *spare = attn_stage_spare_(s, attn_add_(own, bytes));
  if (!s->run) return 1;
  x->memory = spare;
  s->ctx.workspace = spare + own, s->ctx.workspace_size = (size_t)(s->spare - own);
  if (!attn_softmax_run_(s->e, f, &s->ctx, s->workers)) return 0;
  attn_stage_count_(s);
  return 1;
}
