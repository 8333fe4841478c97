/* compose/columns.h owns sums of attention weights over the queries of each key: a second pass over
 * the scores of attn_sdpa, with the LSE that the first has left. A work item is a block of keys; it
 * meets the tiles of queries that see it in order, so that no sum depends on the workers. */

typedef struct attn_columns_ {
  attn_softmax_ a;        /* the problem; its o is the LSE, its v one column of k */
  attn_tensor usage, lse; /* usage [B,1,1,n] */
  int64_t blocks, block0; /* of ATTN_BLOCK_ keys, the first that has a wanted key */
  int64_t units;          /* head groups of a batch entry */
  int64_t each, at_sum;   /* a worker's bytes; where [block][tile] sums are in them */
} attn_columns_;

/* Joins the weights of tile t on the keys j0 .. j1 to sum[key][lane]. */
ATTN_FUNC_ void attn_columns_tile_(const attn_columns_ *c, attn_tile_ *t, float *sum, int64_t j0,
                                   int64_t j1) {
  const attn_table_ *f = c->a.table;
  attn_block_ b;
  float m[ATTN_TILE_], l[ATTN_TILE_], alpha[ATTN_TILE_], top[ATTN_TILE_];
  attn_tile_lanes_(t);
  attn_tile_terms_(t);
  t->xl_next = -1;
  attn_block_terms_(t, &b);
  if (!attn_block_open_(t, &b, j0, j1)) return;
  attn_block_fetch_(t, &b);
  attn_block_modifiers_(t, &b);
  attn_block_scores_(t, &b);
  for (int r = 0; r < ATTN_TILE_; r++) {
    m[r] = INFINITY, l[r] = 0.0f, top[r] = -INFINITY; /* no row, no weight */
    if (r >= t->n) continue;
    memcpy(&m[r], attn_at_(&c->lse, t->batch, t->head[r], t->row[r]), sizeof(float));
    m[r] = attn_to_unit_(&c->a, m[r]);
  }
  for (int g = 0; g < ATTN_GROUPS_; g++) {
    const int n = g < t->groups ? b.end[g] - b.first[g] : 0;
    float *s = t->w.s + g * ATTN_GROUP_;
    for (int e = 0; e < b.n; e++)
      if (e < b.first[g] || e >= b.first[g] + n)
        memset(s + e * ATTN_TILE_, 0, ATTN_GROUP_ * sizeof(float));
    if (n > 0)
      attn_on_(tile, f)->softmax_block(t->w.s + b.first[g] * ATTN_TILE_, n, g, g + 1, m, l, alpha,
                                       top, NULL);
  }
  sum += (b.j0 - j0) * ATTN_TILE_;
  f->blend(sum, sum, t->w.s, ATTN_F32, ATTN_F32, ATTN_F32, (int64_t)b.n * ATTN_TILE_, 1.0f, 1.0f);
}

/* Whether some row of the tile may see a key of j0 .. j1. */
ATTN_FUNC_ int attn_columns_near_(const attn_softmax_ *a, const attn_tile_ *t, int64_t j0,
                                  int64_t j1) {
  return t->row[0] + a->q_off - a->left < j1 && t->row[t->n - 1] + a->q_off + a->right >= j0;
}

ATTN_FUNC_ void attn_columns_item_(void *job, int worker, int64_t index) {
  const attn_columns_ *c = (const attn_columns_ *)job;
  const attn_softmax_ *a = &c->a;
  const int64_t batch = index / c->blocks, block = c->block0 + index % c->blocks;
  const int64_t j0 = block * ATTN_BLOCK_, left = a->k.len - j0;
  const int n = left < ATTN_BLOCK_ ? (int)left : ATTN_BLOCK_;
  const int64_t queries = a->q_len ? a->q_len[batch] : a->q.len;
  float *sum = (float *)(void *)(a->workspace + worker * c->each + c->at_sum);
  double total[ATTN_BLOCK_] = {0};
  attn_tile_ t;
  memset(&t, 0, sizeof t);
  t.a = a, t.key0 = j0, t.key1 = j0 + n;
  attn_scratch_cut_(a, worker, &t.w);
  t.w.held->n = 0;
  for (int64_t unit = 0; unit < c->units; unit++) {
    memset(sum, 0, ATTN_BLOCK_ * ATTN_TILE_ * sizeof(float));
    for (int64_t tile = 0; tile < a->tiles; tile++) {
      attn_tile_group_rows_(&t, batch * c->units + unit, tile);
      if (attn_columns_near_(a, &t, j0, j0 + n)) attn_columns_tile_(c, &t, sum, j0, j0 + n);
    }
    for (int e = 0; e < n; e++)
      for (int r = 0; r < ATTN_TILE_; r++) total[e] += (double)sum[e * ATTN_TILE_ + r];
  }
  float *out = (float *)(void *)attn_at_(&c->usage, batch, 0, 0);
  const int64_t from = a->k.len - c->usage.dim;
  for (int e = 0; e < n; e++) {
    const double u = queries ? total[e] / ((double)a->q.heads * (double)queries) : 0.0;
    if (j0 + e >= from) out[j0 + e - from] = attn_one_nan_((float)u);
  }
}

/* What is left to fill in when a, usage and lse are there; the bytes of the call. */
ATTN_COLD_ int64_t attn_columns_plan_(attn_columns_ *c, int *workers) {
  attn_shared_ x;
  attn_shared_plan_(&c->a, &x);
  c->units = c->a.q.heads / c->a.group;
  c->block0 = (c->a.k.len - c->usage.dim) / ATTN_BLOCK_;
  c->blocks = (c->a.k.len + ATTN_BLOCK_ - 1) / ATTN_BLOCK_ - c->block0;
  c->at_sum = c->a.bytes = attn_scratch_plan_(&c->a);
  c->each = attn_add_(c->at_sum, attn_piece_(ATTN_BLOCK_ * ATTN_TILE_, sizeof(float)));
  *workers = attn_pieces_(*workers, attn_mul_(c->a.q.batch, c->blocks));
  return attn_workspace_bytes_(attn_add_(x.bytes, attn_mul_(c->each, *workers)), 1);
}

ATTN_COLD_ int attn_columns_run_(attn_error_ *e, attn_columns_ *c, attn_ctx *ctx, int workers) {
  attn_softmax_ *a = &c->a;
  attn_workspace_ w;
  attn_shared_ x;
  const int64_t bytes = attn_columns_plan_(c, &workers);
  if (!attn_workspace_get_(e, &w, ctx, bytes)) return 0;
  attn_shared_plan_(a, &x);
  a->bytes = c->each; /* attn_scratch_cut_ steps by it */
  a->workspace = w.base + x.bytes;
  float *distance = (float *)(void *)(w.base + x.distance);
  float *factor = (float *)(void *)(w.base + x.factor);
  a->distance = attn_has_distance_(&a->by_distance) ? distance : NULL;
  a->factor = a->by_distance.factor.alpha ? factor : NULL;
  if (a->distance || a->factor)
    attn_distance_fill_(a, a->distance ? distance : NULL, a->factor ? factor : NULL);
  attn_scratch_open_(a, workers);
  attn_for_(ctx, workers, a->q.batch * c->blocks, attn_columns_item_, c);
  attn_report_(ctx, a->table, workers, "column sums of weights, keys in blocks", "the only path");
  if (ctx) ctx->report.pairs = attn_scratch_pairs_(a, workers);
  attn_workspace_drop_(&w);
  return 1;
}
