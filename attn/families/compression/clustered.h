/* families/compression/clustered.h owns attention by the centroids of clusters. Plain: the centroids are the
 * queries of one exact softmax. Improved: a tile of 64 centroids meets all keys, noting the best few of
 * each; then the members of a cluster are queries in lanes over those, which are gathered once. Causal: the
 * members of a cluster and its best keys are a few tiles of a schedule that exists only while they run. */

/* ---- clusters -------------------------------------------------------------------------------*/

/* Rows from i on become zeros. */
ATTN_FUNC_ void attn_rows_zero_(const attn_table_ *f, const attn_tensor *o, int64_t b, int64_t h,
                                int64_t i, int64_t end) {
  for (; i < end; i++)
    f->blend(attn_at_(o, b, h, i), NULL, NULL, o->dtype, ATTN_F32, ATTN_F32, o->dim, 0.0f, 0.0f);
}

/* Queries of one head in the order of their clusters, of which those without any drop out. */
ATTN_FUNC_ void attn_cluster_sort_(void *job, int worker, int64_t unit) {
  const attn_cluster_job_ *a = (const attn_cluster_job_ *)job;
  const int64_t b = unit / a->q.heads, t = a->q.len, n = attn_cluster_len_(a->p.q_len, b, t);
  const int32_t *place = a->place + unit * t;
  int32_t *at = (int32_t *)(void *)(a->memory + worker * a->each);
  int32_t *start = a->start + unit * (a->p.clusters + 1), used = 0, sum = 0;
  memset(at, 0, (size_t)a->p.clusters * sizeof *at);
  for (int64_t i = 0; i < n; i++) at[place[i]]++;
  for (int64_t c = 0; c < a->p.clusters; c++) {
    if (at[c] == 0) continue;
    start[used++] = sum;
    sum += at[c], at[c] = sum - at[c];
  }
  start[used] = sum;
  a->used[unit] = used;
  for (int64_t i = 0; i < n; i++) a->order[unit * t + at[place[i]]++] = (int32_t)i;
  attn_rows_zero_(a->table, &a->o, b, unit % a->q.heads, n, t);
}

/* The members of cluster c of a head; their number. */
ATTN_FUNC_ int64_t attn_cluster_members_(const attn_cluster_job_ *a, int64_t unit, int64_t c,
                                         const int32_t **member) {
  const int32_t *start = a->start + unit * (a->p.clusters + 1);
  *member = a->order + unit * a->q.len + start[c];
  return start[c + 1] - start[c];
}

/* Their mean query; sum and row have room for one. Sixteen are added in f32, these in double. */
ATTN_FUNC_ void attn_cluster_mean_(const attn_cluster_job_ *a, int64_t unit, int64_t c, float *mean,
                                   double *sum, float *row) {
  enum { SOME = 16 };
  const int32_t *member;
  const int64_t n = attn_cluster_members_(a, unit, c, &member), dk = a->q.dim;
  const char *q = attn_at_(&a->q, unit / a->q.heads, unit % a->q.heads, 0);
  float one[SOME];
  for (int r = 0; r < SOME; r++) one[r] = 1.0f;
  memset(sum, 0, (size_t)dk * sizeof *sum);
  for (int64_t r = 0; r < n; r += SOME) {
    const int64_t some = n - r < SOME ? n - r : (int64_t)SOME;
    for (int64_t i = r + SOME; i < n && i < r + 2 * SOME; i++)
      attn_row_ahead_(&a->q, unit / a->q.heads, unit % a->q.heads, member[i]);
    memset(row, 0, (size_t)dk * sizeof *row);
    attn_on_(sum, a->table)
        ->axpys(row, one, q, a->q.stride_len, member + r, some, dk, a->q.dtype, 1.0f, 0);
    for (int64_t d = 0; d < dk; d++) sum[d] += (double)row[d];
  }
  for (int64_t d = 0; d < dk; d++) mean[d] = (float)(sum[d] / (double)n);
}

/* ---- plain ----------------------------------------------------------------------------------*/

/* The queries of 64 centroids. */
ATTN_FUNC_ void attn_cluster_means_(void *job, int worker, int64_t index) {
  const attn_cluster_job_ *a = (const attn_cluster_job_ *)job;
  const int64_t tiles = (a->p.clusters + ATTN_TILE_ - 1) / ATTN_TILE_, unit = index / tiles;
  const int64_t b = unit / a->q.heads, h = unit % a->q.heads, dk = a->q.dim;
  double *sum = (double *)(void *)(a->memory + worker * a->each);
  for (int64_t r = 0, c = index % tiles * ATTN_TILE_; r < ATTN_TILE_; r++, c++) {
    if (c >= a->used[unit]) return;
    attn_cluster_mean_(a, unit, c, (float *)(void *)attn_at_(&a->mean, b, h, c), sum,
                       (float *)(void *)(sum + dk));
  }
}

/* Outputs of 64 centroids go to their members. */
ATTN_FUNC_ void attn_cluster_share_(void *job, int worker, int64_t index) {
  const attn_cluster_job_ *a = (const attn_cluster_job_ *)job;
  const int64_t tiles = (a->p.clusters + ATTN_TILE_ - 1) / ATTN_TILE_, unit = index / tiles;
  const int64_t b = unit / a->q.heads, h = unit % a->q.heads;
  const int32_t *member;
  (void)worker;
  for (int64_t r = 0, c = index % tiles * ATTN_TILE_; r < ATTN_TILE_; r++, c++) {
    if (c >= a->used[unit]) return;
    const int64_t n = attn_cluster_members_(a, unit, c, &member);
    for (int64_t i = 0; i < n; i++) {
      if (i + ATTN_AHEAD_ < n) attn_row_ahead_(&a->o, b, h, member[i + ATTN_AHEAD_]);
      attn_row_copy_(a->table, attn_at_(&a->o, b, h, member[i]), a->o.dtype,
                     attn_at_(&a->shared, b, h, c), ATTN_F32, a->o.dim);
    }
  }
}

ATTN_COLD_ int attn_clustered_plain_(attn_stage_ *s, attn_cluster_job_ *a) {
  const int64_t b = a->q.batch, h = a->q.heads, c = a->p.clusters;
  const int64_t items = attn_mul_(attn_mul_(b, h), (c + ATTN_TILE_ - 1) / ATTN_TILE_);
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  a->mean = attn_stage_tensor_(s, b, h, c, a->q.dim);
  a->shared = attn_stage_tensor_(s, b, h, c, a->v.dim);
  a->most = (int32_t *)attn_stage_take_(s, b, 4);
  a->each = attn_piece_(attn_mul_(a->q.dim, 12), 1);
  if (!attn_stage_for_(s, items, attn_cluster_means_, a, a->each, &a->memory)) return 0;
  if (s->run)
    for (int64_t unit = 0; unit < b * h; unit++) {
      int32_t *most = &a->most[unit / h];
      if (unit % h == 0 || *most < a->used[unit]) *most = a->used[unit];
    }
  if (s->run)
    for (int64_t unit = 0; unit < b * h; unit++) /* heads with fewer clusters: zeros */
      for (int64_t r = a->used[unit]; r < a->most[unit / h]; r++)
        memset(attn_at_(&a->mean, unit / h, unit % h, r), 0, (size_t)a->q.dim * sizeof(float));
  p.scale = a->p.scale, p.q_len = a->most, p.kv_len = a->p.kv_len;
  return attn_stage_sdpa_(s, a->shared, a->mean, a->k, a->v, &p) &&
         attn_stage_for_(s, items, attn_cluster_share_, a, 0, NULL);
}

/* ---- improved -------------------------------------------------------------------------------*/

/* What one worker works in. */
typedef struct attn_centroid_ {
  int64_t b, h, hk, hv, keys;
  char *topk;                         /* memory of the selection, which has its own queries */
  float *qt, *s, *ot;                 /* [dk][tile], [block][tile], [dv][tile] */
  float *k, *v;                       /* [block][dk], [block][dv] */
  float *mean, *row, *rest;           /* [tile][dk], [dk], [tile][dv] */
  double *sum;                        /* [dk] */
  float *x;                           /* [topk] weights of the best keys */
  int32_t *pick;                      /* [topk] */
  float m[ATTN_TILE_], l[ATTN_TILE_]; /* of the tile that was swept last */
  float top[ATTN_TILE_], alpha[ATTN_TILE_];
} attn_centroid_;

/* Cuts it from memory; bytes of it. */
ATTN_FUNC_ int64_t attn_centroid_cut_(attn_centroid_ *x, char *memory, const attn_cluster_job_ *a) {
  const int64_t dk = a->q.dim, dv = a->v.dim, tile = ATTN_TILE_, block = ATTN_BLOCK_;
  const int64_t n[] = {a->plan.bytes,           attn_mul_(dk, 4 * tile),  4 * block * tile,
                       attn_mul_(dv, 4 * tile), attn_mul_(dk, 4 * block), attn_mul_(dv, 4 * block),
                       attn_mul_(dk, 4 * tile), attn_mul_(dk, 4),         attn_mul_(dv, 4 * tile),
                       attn_mul_(dk, 8),        attn_mul_(a->plan.k, 4),  attn_mul_(a->plan.k, 4)};
  int64_t at[12], bytes = 0;
  for (int i = 0; i < 12; i++) at[i] = bytes, bytes = attn_add_(bytes, attn_piece_(n[i], 1));
  if (!memory) return bytes;
  float **part[] = {&x->qt, &x->s, &x->ot, &x->k, &x->v, &x->mean, &x->row, &x->rest};
  x->topk = memory;
  for (int i = 0; i < 8; i++) *part[i] = (float *)(void *)(memory + at[i + 1]);
  x->sum = (double *)(void *)(memory + at[9]);
  x->x = (float *)(void *)(memory + at[10]);
  x->pick = (int32_t *)(void *)(memory + at[11]);
  return bytes;
}

/* Rows j .. j + n of keys or values, or those of a list, as f32. */
ATTN_FUNC_ const float *attn_centroid_rows_(const attn_cluster_job_ *a, const attn_tensor *x,
                                            int64_t b, int64_t h, const int32_t *index, int64_t j,
                                            int64_t n, int held, float *copy, int64_t *stride) {
  const char *at = attn_at_(x, b, h, index ? 0 : j);
  *stride = x->dim;
  if (!index && x->dtype == ATTN_F32) {
    *stride = x->stride_len;
    return (const float *)(const void *)at;
  }
  if (!held)
    a->table->widen(copy, at, x->stride_len, index ? index + j : NULL, n, x->dim, x->dtype, NULL);
  return copy;
}

/* Softmax sums of packed queries qt over n keys, all or a list, in blocks as everywhere: m, l and ot.
 * held: the rows of a short list are there already. best: the selection that sees the scores. */
ATTN_FUNC_ void attn_centroid_sweep_(const attn_cluster_job_ *a, attn_centroid_ *x, const float *qt,
                                     int groups, const int32_t *index, int64_t n, int held,
                                     attn_topk_ *best) {
  const attn_table_ *f = a->table;
  int64_t stride;
  for (int r = 0; r < ATTN_TILE_; r++) x->m[r] = -INFINITY, x->l[r] = 0.0f;
  for (int64_t j = 0; j < n; j += ATTN_BLOCK_) {
    const int64_t some = n - j < ATTN_BLOCK_ ? n - j : (int64_t)ATTN_BLOCK_;
    const int here = held && n <= ATTN_BLOCK_;
    const float *rows =
        attn_centroid_rows_(a, &a->k, x->b, x->hk, index, j, some, here, x->k, &stride);
    for (int r = 0; r < ATTN_TILE_; r++) x->top[r] = -INFINITY;
    attn_on_(tile, f)->score_block(x->s, qt, rows, stride, some, a->q.dim, 0, groups, x->top);
    for (int64_t i = 0; best && i < some; i += ATTN_PICK_) {
      best->s = x->s + i * ATTN_TILE_;
      attn_topk_take_(best, NULL, 0, some - i < ATTN_PICK_ ? some - i : (int64_t)ATTN_PICK_, j + i);
    }
    attn_on_(tile, f)->softmax_block(x->s, some, 0, groups, x->m, x->l, x->alpha, x->top, NULL);
    rows = attn_centroid_rows_(a, &a->v, x->b, x->hv, index, j, some, here, x->v, &stride);
    attn_on_(tile, f)->value_block(x->ot, x->s, rows, stride, some, a->v.dim, 0, groups,
                                   j > 0 ? x->alpha : NULL, j == 0);
  }
}

/* Outputs of a cluster: attention of its members over the keys of a list, times mass, plus rest. */
ATTN_FUNC_ void attn_centroid_members_(const attn_cluster_job_ *a, attn_centroid_ *x, int64_t unit,
                                       int64_t c, const int32_t *index, int64_t n, float mass,
                                       const float *rest) {
  const attn_table_ *f = a->table;
  const int64_t dv = a->v.dim;
  const int32_t *member;
  const int64_t count = attn_cluster_members_(a, unit, c, &member);
  const int32_t *start = a->start + unit * (a->p.clusters + 1);
  const int64_t ahead =
      start[a->used[unit]] - start[c]; /* members of this cluster and later ones */
  float one[ATTN_TILE_];
  for (int r = 0; r < ATTN_TILE_; r++) one[r] = 1.0f;
  for (int64_t i = 0; i < count; i += ATTN_TILE_) {
    const int rows = count - i < ATTN_TILE_ ? (int)(count - i) : (int)ATTN_TILE_;
    const int groups = (rows + ATTN_GROUP_ - 1) / ATTN_GROUP_;
    const void *from[ATTN_TILE_];
    void *to[ATTN_TILE_];
    for (int r = 0; r < rows; r++) {
      from[r] = attn_at_(&a->q, x->b, x->h, member[i + r]);
      to[r] = attn_at_(&a->o, x->b, x->h, member[i + r]);
    }
    f->pack(x->qt, from, rows, a->q.dim, (int)a->q.dtype, a->scale_hi, a->scale_lo);
    /* rows that are written now, and read next: the order of queries follows the clusters */
    for (int r = 0; r < rows; r++) attn_row_ahead_(&a->o, x->b, x->h, member[i + r]);
    for (int64_t r = i + rows; r < ahead && r < i + rows + ATTN_TILE_; r++)
      attn_row_ahead_(&a->q, x->b, x->h, member[r]);
    attn_centroid_sweep_(a, x, x->qt, groups, index, n, i > 0, NULL);
    for (int r = 0; r < ATTN_TILE_; r++) x->alpha[r] = mass / x->l[r];
    if (rest) attn_on_(tile, f)->value_block(x->ot, one, rest, dv, 1, dv, 0, groups, x->alpha, 0);
    f->unpack(to, x->ot, rows, dv, a->o.dtype, rest ? NULL : x->alpha);
  }
}

/* The best keys of centroid r of a tile: their mass, and what is left of the centroid's output. */
ATTN_FUNC_ float attn_centroid_split_(const attn_cluster_job_ *a, attn_centroid_ *x,
                                      attn_topk_ *best, int r, float m, float l, int64_t *count) {
  const attn_tensor *v = &a->v;
  const uint64_t *list = attn_topk_list_(best, r, count);
  double mass = 0.0;
  for (int64_t e = 0; e < *count; e++) {
    x->x[e] = attn_candidate_score_(list[e]);
    x->pick[e] = (int32_t)attn_candidate_index_(list[e]);
  }
  a->table->weights(x->x, x->x, *count, m, 1.0f / l);
  for (int64_t e = 0; e < *count; e++) mass += (double)x->x[e], x->x[e] = -x->x[e];
  attn_on_(sum, a->table)
      ->axpys(x->rest + r * v->dim, x->x, attn_at_(v, x->b, x->hv, 0), v->stride_len, x->pick,
              *count, v->dim, v->dtype, 1.0f / l, ATTN_AHEAD_);
  return (float)mass;
}

/* 64 clusters of one head. */
ATTN_FUNC_ void attn_centroid_item_(void *job, int worker, int64_t index) {
  const attn_cluster_job_ *a = (const attn_cluster_job_ *)job;
  const attn_table_ *f = a->table;
  const int64_t tiles = (a->p.clusters + ATTN_TILE_ - 1) / ATTN_TILE_, unit = index / tiles;
  const int64_t first = index % tiles * ATTN_TILE_, left = a->used[unit] - first, dk = a->q.dim;
  const int n = left < ATTN_TILE_ ? (int)left : (int)ATTN_TILE_;
  const int groups = (n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  const void *from[ATTN_TILE_];
  void *to[ATTN_TILE_];
  float m[ATTN_TILE_], l[ATTN_TILE_];
  attn_topk_ best = a->plan;
  attn_centroid_ x;
  if (n <= 0) return;
  attn_centroid_cut_(&x, a->memory + worker * a->each, a);
  x.b = unit / a->q.heads, x.h = unit % a->q.heads;
  x.hk = x.h / (a->q.heads / a->k.heads), x.hv = x.h / (a->q.heads / a->v.heads);
  x.keys = attn_cluster_len_(a->p.kv_len, x.b, a->k.len);
  if (x.keys <= a->p.k) { /* all keys are among the best: attention as it is */
    const int32_t *member;
    for (int r = 0; r < n; r++) {
      if (x.keys > 0) {
        attn_centroid_members_(a, &x, unit, first + r, NULL, x.keys, 1.0f, NULL);
        continue;
      }
      const int64_t count = attn_cluster_members_(a, unit, first + r, &member);
      for (int64_t i = 0; i < count; i++)
        attn_rows_zero_(f, &a->o, x.b, x.h, member[i], (int64_t)member[i] + 1);
    }
    return;
  }
  for (int r = 0; r < n; r++) {
    from[r] = x.mean + r * dk, to[r] = x.rest + r * a->v.dim;
    attn_cluster_mean_(a, unit, first + r, x.mean + r * dk, x.sum, x.row);
  }
  attn_topk_open_(&best, x.topk, from, n, ATTN_F32, 1.0f);
  f->pack(best.qt, from, n, dk, ATTN_F32, a->scale_hi, a->scale_lo);
  best.first = 0;
  attn_centroid_sweep_(a, &x, best.qt, groups, NULL, x.keys, 0, &best);
  f->unpack(to, x.ot, n, a->v.dim, ATTN_F32, NULL);
  memcpy(m, x.m, sizeof m);
  memcpy(l, x.l, sizeof l);
  for (int r = 0; r < n; r++) {
    int64_t count;
    const float mass = attn_centroid_split_(a, &x, &best, r, m[r], l[r], &count);
    attn_centroid_members_(a, &x, unit, first + r, x.pick, count, mass, x.rest + r * a->v.dim);
  }
}

ATTN_COLD_ int attn_clustered_improved_(attn_stage_ *s, attn_cluster_job_ *a) {
  const int64_t units = attn_mul_(a->q.batch, a->q.heads), c = a->p.clusters;
  const int64_t most = a->p.k < a->k.len ? a->p.k : 1; /* else nothing is ever selected */
  attn_topk_plan_(&a->plan, s->table, a->q.dim, most, ATTN_F32, 0);
  a->each = attn_centroid_cut_(NULL, NULL, a);
  if (!attn_stage_for_(s, attn_mul_(units, (c + ATTN_TILE_ - 1) / ATTN_TILE_), attn_centroid_item_,
                       a, a->each, &a->memory))
    return 0;
  for (int64_t u = 0; s->run && u < units; u++) {
    const int64_t keys = attn_cluster_len_(a->p.kv_len, u / a->q.heads, a->k.len);
    const int64_t n = attn_cluster_len_(a->p.q_len, u / a->q.heads, a->q.len);
    s->pairs += keys <= a->p.k ? n * keys : a->used[u] * keys + n * a->p.k;
  }
  return 1;
}

/* ---- causal ---------------------------------------------------------------------------------*/

typedef struct attn_clustered_causal_ {
  attn_cluster_job_ *job;
  attn_softmax_ engine;
  attn_plan_ blank; /* stands for a schedule until an item makes its own */
  int64_t most;     /* keys that a cluster picks */
  int32_t *pick;    /* [B,H,C][most] ascending */
  char *memory;     /* of the workers: a schedule */
  int64_t each, at_rows, at_runs;
} attn_clustered_causal_;

/* The best keys of 64 centroids. */
ATTN_FUNC_ void attn_clustered_pick_(void *job, int worker, int64_t index) {
  const attn_clustered_causal_ *j = (const attn_clustered_causal_ *)job;
  const attn_cluster_job_ *a = j->job;
  const int64_t c = a->p.clusters, tiles = (c + ATTN_TILE_ - 1) / ATTN_TILE_, unit = index / tiles;
  const int64_t first = index % tiles * ATTN_TILE_, left = a->used[unit] - first, dk = a->q.dim;
  const int64_t b = unit / a->q.heads, h = unit % a->q.heads;
  const int64_t keys = attn_cluster_len_(a->p.kv_len, b, a->k.len);
  const int n = left < ATTN_TILE_ ? (int)left : (int)ATTN_TILE_;
  const void *from[ATTN_TILE_];
  attn_topk_ best = a->plan;
  attn_centroid_ x;
  if (n <= 0 || keys <= a->p.k) return; /* all keys are among the best */
  attn_centroid_cut_(&x, a->memory + worker * a->each, a);
  for (int r = 0; r < n; r++) {
    from[r] = x.mean + r * dk;
    attn_cluster_mean_(a, unit, first + r, x.mean + r * dk, x.sum, x.row);
  }
  attn_topk_open_(&best, x.topk, from, n, ATTN_F32, 1.0f);
  a->table->pack(best.qt, from, n, dk, ATTN_F32, a->scale_hi, a->scale_lo);
  attn_topk_scan_(&best, attn_at_(&a->k, b, h / (a->q.heads / a->k.heads), 0), a->k.stride_len,
                  a->k.dtype, keys, 0);
  for (int r = 0; r < n; r++) {
    int64_t count;
    const uint64_t *list = attn_topk_list_(&best, r, &count);
    int32_t *pick = j->pick + (unit * c + first + r) * j->most;
    for (int64_t e = 0; e < count; e++) pick[e] = (int32_t)attn_candidate_index_(list[e]);
    attn_sort_keys_(pick, count);
  }
}

/* A cluster of a head: its members, 64 at a time, over its keys. */
ATTN_FUNC_ void attn_clustered_causal_item_(void *job, int worker, int64_t index) {
  const attn_clustered_causal_ *j = (const attn_clustered_causal_ *)job;
  const attn_cluster_job_ *a = j->job;
  const int64_t unit = index / a->p.clusters, c = index % a->p.clusters;
  const int64_t b = unit / a->q.heads, keys = attn_cluster_len_(a->p.kv_len, b, a->k.len);
  const int32_t *pick = j->pick + index * j->most, *member;
  char *memory = j->memory + worker * j->each;
  attn_plan_ *plan = (attn_plan_ *)(void *)memory;
  attn_plan_run_ *run = (attn_plan_run_ *)(void *)(memory + j->at_runs);
  attn_softmax_ own = j->engine;
  attn_plan_tile_ tile = {0, 1, 0, 0, 0};
  if (c >= a->used[unit]) return;
  const int64_t n = attn_cluster_members_(a, unit, c, &member);
  own.q_off = keys - attn_cluster_len_(a->p.q_len, b, a->q.len);
  plan->at_row = j->at_rows, plan->at_run = j->at_runs, own.plan = plan;
  if (keys <= a->p.k && keys > 0) run[0].key = 0, run[0].n = (int32_t)keys, tile.count = 1;
  for (int64_t e = 0; keys > a->p.k && e < a->p.k; e++) {
    if (tile.count > 0 && run[tile.count - 1].key + run[tile.count - 1].n == pick[e])
      run[tile.count - 1].n++;
    else
      run[tile.count].key = pick[e], run[tile.count++].n = 1;
  }
  for (int64_t i = 0; i < n; i += ATTN_TILE_) {
    attn_tile_ t;
    tile.n = n - i < ATTN_TILE_ ? (int32_t)(n - i) : ATTN_TILE_;
    memcpy(memory + j->at_rows, member + i, (size_t)tile.n * sizeof *member);
    for (int64_t e = 0; e < tile.count; e++) run[e].lanes = attn_low_bits_(tile.n);
    attn_tile_open_(&t, &own, worker);
    attn_tile_plan_rows_(&t, b, unit % a->q.heads, &tile);
    attn_tile_run_(&t, 1);
  }
}

ATTN_COLD_ int attn_clustered_causal_steps_(attn_stage_ *s, attn_cluster_job_ *a) {
  const int64_t units = attn_mul_(a->q.batch, a->q.heads), items = attn_mul_(units, a->p.clusters);
  const int64_t tiles = attn_mul_(units, attn_tiles_of_(a->p.clusters));
  attn_clustered_causal_ j;
  attn_softmax_ *f = &j.engine;
  attn_sdpa_params plain;
  int workers;
  memset(&j, 0, sizeof j);
  memset(&plain, 0, sizeof plain);
  j.job = a, j.most = a->p.k < a->k.len ? a->p.k : 1;
  j.pick = (int32_t *)attn_stage_take_(s, attn_mul_(items, j.most), 4);
  attn_topk_plan_(&a->plan, s->table, a->q.dim, j.most, a->k.dtype, 0);
  a->each = attn_centroid_cut_(NULL, NULL, a);
  if (!attn_stage_for_(s, tiles, attn_clustered_pick_, &j, a->each, &a->memory)) return 0;
  j.at_rows = attn_piece_(1, sizeof(attn_plan_));
  j.at_runs = attn_add_(j.at_rows, attn_piece_(ATTN_TILE_, 4));
  j.each = attn_add_(j.at_runs, attn_piece_(j.most, sizeof(attn_plan_run_)));
  plain.scale = a->p.scale, plain.causal = 1, plain.one_order = 1;
  f->o = a->o, f->q = a->q, f->k = a->k, f->v = a->v;
  if (!attn_sdpa_plan_(s->e, f, &plain, &s->ctx, &workers, -1)) return 0;
  f->plan = &j.blank;
  f->bytes = attn_scratch_plan_(f);
  workers = attn_pieces_(s->workers, items);
  const int64_t own = attn_mul_(j.each, workers);
  char *spare = attn_stage_spare_(s, attn_add_(own, attn_mul_(f->bytes, workers)));
  if (!s->run) return 1;
  j.memory = spare, f->workspace = spare + own;
  attn_scratch_open_(f, workers);
  attn_for_(&s->ctx, workers, items, attn_clustered_causal_item_, &j);
  s->pairs += attn_scratch_pairs_(f, workers);
  for (int64_t u = 0; u < units; u++) {
    const int64_t keys = attn_cluster_len_(a->p.kv_len, u / a->q.heads, a->k.len);
    if (keys > a->p.k) s->pairs += a->used[u] * keys;
  }
  return 1;
}

/* ---- the call -------------------------------------------------------------------------------*/

ATTN_COLD_ int attn_clustered_steps_(attn_stage_ *s, void *job) {
  attn_cluster_job_ *a = (attn_cluster_job_ *)job;
  const int64_t b = a->q.batch, h = a->q.heads, units = attn_mul_(b, h);
  void *made = NULL;
  const double scale = a->p.scale != 0.0f || attn_to_bits_(a->p.scale)
                           ? (double)a->p.scale
                           : 1.0 / sqrt((double)a->q.dim);
  const double unit = attn_clamp_f64_(scale * ATTN_LOG2E_);
  a->scale_hi = (float)unit, a->scale_lo = (float)(unit - (double)a->scale_hi);
  a->table = s->table;
  if (!a->assignment.data) {
    attn_cluster_job_ own = *a;
    made = attn_stage_take_(s, attn_mul_(units, a->q.len), 4);
    own.assignment = attn_bhtd(made, ATTN_F32, b, h, a->q.len, 1);
    if (!attn_cluster_steps_(s, &own)) return 0;
  }
  a->place = (const int32_t *)(made ? made : a->assignment.data);
  a->order = (int32_t *)attn_stage_take_(s, attn_mul_(units, a->q.len), 4);
  a->start = (int32_t *)attn_stage_take_(s, attn_mul_(units, a->p.clusters + 1), 4);
  a->used = (int32_t *)attn_stage_take_(s, units, 4);
  a->each = attn_piece_(a->p.clusters, 4);
  return attn_stage_for_(s, units, attn_cluster_sort_, a, a->each, &a->memory) &&
         (a->p.causal  ? attn_clustered_causal_steps_(s, a)
          : a->p.k > 0 ? attn_clustered_improved_(s, a)
                       : attn_clustered_plain_(s, a));
}

ATTN_COLD_ attn_cluster_job_ attn_clustered_job_of_(attn_tensor o, attn_tensor q, attn_tensor k,
                                                    attn_tensor v, const int32_t *assignment) {
  attn_cluster_job_ a = attn_cluster_job_of_(assignment, q);
  a.o = o, a.k = k, a.v = v, a.attend = 1;
  return a;
}

ATTN_COLD_ attn_status attn_clustered_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                            attn_tensor v, const int32_t *assignment,
                                            const attn_cluster_params *params, attn_ctx *ctx,
                                            size_t *bytes) {
  attn_cluster_job_ a = attn_clustered_job_of_(o, q, k, v, assignment);
  return attn_cluster_call_(&a, params, attn_clustered_steps_, "attention of centroids", ctx,
                            bytes);
}
ATTN_CALL_(attn_clustered, (o, q, k, v, assignment, params), attn_tensor o, attn_tensor q,
           attn_tensor k, attn_tensor v, const int32_t *assignment,
           const attn_cluster_params *params)
