/* families/selection/moba.h owns mixtures of block attention (M3): the choice of blocks by the means of their keys. */

typedef struct attn_moba_job_ {
  attn_softmax_ f; /* the call as attn_sdpa would see it */
  attn_moba_params p;
  attn_key_blocks_job_ blocks;
  attn_stands_ means;
  attn_topk_ search;
  attn_visits_ visit;
  int32_t *index;
  char *memory;
} attn_moba_job_;

/* The blocks of 64 rows of one head. */
ATTN_FUNC_ void attn_moba_item_(void *job, int worker, int64_t item) {
  attn_moba_job_ *a = (attn_moba_job_ *)job;
  const attn_softmax_ *f = &a->f;
  const int64_t tiles = attn_tiles_of_(f->q.len), unit = item / tiles,
                i0 = item % tiles * ATTN_TILE_;
  const int64_t b = unit / f->q.heads, h = unit % f->q.heads, size = a->p.block, k = a->visit.k;
  const int64_t left = f->q.len - i0, blocks = attn_pick_blocks_(attn_pick_keys_(f, b), size);
  const int n = left < ATTN_TILE_ ? (int)left : (int)ATTN_TILE_;
  int64_t own[ATTN_TILE_], lo[ATTN_TILE_] = {0}, hi[ATTN_TILE_] = {0}, end = 0;
  const void *row[ATTN_TILE_] = {NULL};
  attn_topk_ t = a->search;
  for (int r = 0; r < n; r++) {
    own[r] = attn_pick_block_(i0 + r + attn_pick_off_(f, b), size);
    hi[r] = attn_clamp_(own[r], 0, blocks);
    if (hi[r] > end) end = hi[r];
    row[r] = attn_at_(&f->q, b, h, i0 + r);
  }
  if (k > 1) {
    const int64_t hk = h / (f->q.heads / f->k.heads);
    attn_topk_open_(&t, a->memory + worker * t.bytes, row, n, f->q.dtype, 1.0f);
    attn_pick_open_(&t);
    for (int64_t j = 0; j < end; j += ATTN_PICK_) {
      const int64_t m = attn_min64_(end - j, ATTN_PICK_);
      attn_pick_scores_(&t, &a->means, b, hk, j, m);
      attn_pick_take_(&t, m, j, lo, hi);
    }
  }
  for (int r = 0; r < n; r++) {
    int32_t *to = a->index + (unit * f->q.len + i0 + r) * k;
    const int some = own[r] >= 0 && own[r] < blocks;
    if (some) to[0] = (int32_t)own[r];
    /* the own block has its place, there or not: k - 1 others */
    attn_pick_write_(k > 1 ? &t : NULL, r, to, some, k);
  }
}

ATTN_COLD_ int attn_moba_steps_(attn_stage_ *s, void *job) {
  attn_moba_job_ *a = (attn_moba_job_ *)job;
  const attn_softmax_ *f = &a->f;
  attn_softmax_ attend;
  attn_visits_ *x = &a->visit;
  const int64_t units = attn_mul_(f->q.batch, f->q.heads),
                blocks = attn_pick_blocks_(f->k.len, a->p.block);
  memset(x, 0, sizeof *x);
  x->size = a->p.block, x->heads = f->q.heads;
  x->k = a->p.index || a->p.k < blocks ? a->p.k : blocks > 0 ? blocks : 1;
  a->index = a->p.index
                 ? a->p.index
                 : (int32_t *)attn_stage_take_(s, attn_mul_(units, attn_mul_(f->q.len, x->k)), 4);
  x->index = a->index;
  if ((x->k > 1 || a->p.means.data) && !attn_stage_stands_(s, &a->means, &a->p.means, &a->blocks, f,
                                                           a->p.block, ATTN_KEY_BLOCK_MEAN))
    return 0;
  attn_pick_plan_(&a->search, s->table, &a->means, f->q.dim, attn_min64_(x->k - 1, blocks));
  if (!attn_stage_for_(s, attn_mul_(units, attn_tiles_of_(f->q.len)), attn_moba_item_, a,
                       a->search.bytes, &a->memory))
    return 0;
  attn_problem_clear_(&attend);
  attend.o = f->o, attend.q = f->q, attend.k = f->k, attend.v = f->v;
  return attn_stage_visit_(s, &attend, &a->p.attention, x);
}

ATTN_COLD_ int attn_moba_check_(attn_error_ *e, attn_moba_job_ *a, const attn_moba_params *p,
                                const attn_ctx *ctx, int *workers, int query) {
  if (!p) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it says what a block is");
  a->p = *p;
  if (p->block < 1) return attn_reject_(e, ATTN_E_RANGE, "params.block must be at least 1");
  if (p->k < 1) return attn_reject_(e, ATTN_E_RANGE, "params.k must be at least 1");
  if (!attn_selected_plan_(e, &a->f, &p->attention, ctx, workers, !query)) return 0;
  attn_softmax_ *f = &a->f;
  attn_operand_ op = ATTN_OPERAND_(
      &a->p.means, "params.means", ATTN_OPTIONAL_ | ATTN_IS_F32_, f->k.batch, f->k.heads,
      attn_stands_len_(f, p->block), f->k.dim,
      "params.means must be f32 [B, Hk, ceil(Tk / block), dk], of a cache [pages, Hk, 1, dk], and "
      "block then the rows of a page");
  const int64_t count = attn_mul_(attn_mul_(f->q.batch, f->q.heads), attn_mul_(f->q.len, p->k));
  return attn_check_operand_(e, &op, f->q.heads) &&
         attn_selected_apart_(e, ctx, f, &p->attention, p->index, count, &op.span, 1);
}

ATTN_COLD_ attn_status attn_moba_call_(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                       const attn_moba_params *params, attn_ctx *ctx,
                                       size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_moba_job_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  a.f.o = o, a.f.q = q, a.f.k = k, a.f.v = v;
  (void)attn_moba_check_(&e, &a, params, ctx, &workers, bytes != NULL);
  return attn_step_call_or_(
      &e, a.f.table, workers, ctx, attn_moba_steps_, &a, "chosen blocks, rows gathered by block",
      e.status == ATTN_OK && attn_nothing_(&a.f) ? "no queries" : NULL, bytes);
}
ATTN_CALL_(attn_moba, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_moba_params *params)
