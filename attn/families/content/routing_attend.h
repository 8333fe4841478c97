/* families/content/routing_attend.h owns attention inside clusters: each cluster is a few tiles of a schedule
 * that exists only while they run; rows that are in several clusters are put together afterwards. */

typedef struct attn_inside_ {
  const attn_routing_job_ *job;
  const attn_routed_ *q, *k;
  attn_softmax_ engine;
  attn_plan_ blank;        /* stands for a schedule until an item makes its own */
  int64_t clusters, heads; /* C, H */
  int64_t learned;         /* rows of mem_k, which stand before the keys in engine.k */
  /* Which entries of the members each query, and key, is: of row i those of at[first[i]] ..
   * at[first[i + 1] - 1], ascending, hence by cluster. */
  int32_t *first[2], *at[2]; /* [B][H][n + 1], [B][H][entries] */
  /* Results of clusters, for rows in several: of one round, clusters c0 .. c1 - 1 of a head. */
  int64_t room;     /* of a head */
  int64_t *c0, *c1; /* [B][H] */
  attn_tensor part; /* f32 [B,H,room,dv] */
  float *part_lse;  /* [B][H][room] */
  attn_tensor sum;  /* f32 [B,H,Tq,dv]: of the rounds so far; o itself if it is f32 */
  float *lse;       /* [B][H][Tq] of the rounds so far, UNION */
  int begins, ends; /* the first round, the last */
  int64_t most;     /* keys of a cluster */
  char *memory;     /* of the workers: a schedule, the lanes of clusters */
  int64_t each, at_rows, at_runs, at_lanes;
} attn_inside_;

/* Entries by row. */
ATTN_FUNC_ void attn_inside_turn_(void *job, int worker, int64_t index) {
  const attn_inside_ *a = (const attn_inside_ *)job;
  const int side = (int)(index % 2);
  const int64_t unit = index / 2;
  if (!a->first[side]) return;
  const attn_routed_ *s = side ? a->k : a->q;
  const int64_t n = s->x.len, all = s->m.indptr[unit * (a->clusters + 1) + a->clusters];
  const int32_t *of = attn_routed_members_(s, unit, 0);
  int32_t *first = a->first[side] + unit * (n + 1), *at = a->at[side] + unit * s->m.entries;
  (void)worker;
  for (int64_t i = 0; i <= n; i++) first[i] = 0;
  for (int64_t e = 0; e < all; e++) first[of[e] + 1]++;
  for (int64_t i = 0; i < n; i++) first[i + 1] += first[i];
  for (int64_t e = 0; e < all; e++) at[first[of[e]]++] = (int32_t)e;
  for (int64_t i = n; i > 0; i--) first[i] = first[i - 1];
  first[0] = 0;
}

/* The cluster of an entry: the last that begins at or before it. */
ATTN_FUNC_ int64_t attn_inside_cluster_(const int32_t *start, int64_t clusters, int32_t entry) {
  int64_t lo = 0, hi = clusters; /* start[lo] <= entry < start[hi] */
  while (hi - lo > 1) {
    const int64_t mid = lo + (hi - lo) / 2;
    if (start[mid] <= entry)
      lo = mid;
    else
      hi = mid;
  }
  return lo;
}

/* How many keys of a cluster row i may see by position, itself included. */
ATTN_FUNC_ int64_t attn_inside_seen_(const attn_inside_ *a, const int32_t *key, int64_t n,
                                     int64_t i) {
  const int64_t p = i + a->engine.q_off - a->learned;
  int64_t lo = 0;
  if (!a->job->p.causal) return n;
  while (lo < n) {
    const int64_t mid = lo + (n - lo) / 2;
    if (key[mid] <= p)
      lo = mid + 1;
    else
      n = mid;
  }
  return lo;
}

/* Whether row i may see a key other than itself: in cluster c, or with UNION in any of its own. */
ATTN_FUNC_ int attn_inside_others_(const attn_inside_ *a, int64_t unit, int64_t c, int64_t i) {
  const int32_t *start = a->k->m.indptr + unit * (a->clusters + 1);
  const int32_t *first = a->first[0] + unit * (a->q->x.len + 1) + i;
  const int32_t *at = a->at[0] + unit * a->q->m.entries;
  const int one = a->job->p.combine == ATTN_ROUTING_MEAN;
  if (a->learned) return 1;
  const int32_t *begin = a->q->m.indptr + unit * (a->clusters + 1);
  for (int32_t e = one ? 0 : first[0]; e < (one ? 1 : first[1]); e++) {
    if (!one) c = attn_inside_cluster_(begin, a->clusters, at[e]);
    const int32_t *key = attn_routed_members_(a->k, unit, start[c]);
    const int64_t n = attn_inside_seen_(a, key, start[c + 1] - start[c], i);
    if (n > 1 || (n == 1 && *key != i)) return 1;
  }
  return 0;
}

/* The lanes whose row is in an earlier cluster, by cluster; on = 0 takes them out again. */
ATTN_FUNC_ void attn_inside_earlier_(const attn_inside_ *a, const int32_t *row, int n,
                                     uint64_t *lanes, int64_t unit, int64_t c, int on) {
  const int32_t *begin = a->q->m.indptr + unit * (a->clusters + 1);
  const int32_t *at = a->at[0] + unit * a->q->m.entries;
  for (int r = 0; r < n; r++) {
    const int32_t *first = a->first[0] + unit * (a->q->x.len + 1) + row[r];
    for (int32_t e = first[0]; e < first[1] && at[e] < begin[c]; e++) {
      const int64_t x = attn_inside_cluster_(begin, a->clusters, at[e]);
      lanes[x] = on ? lanes[x] | attn_bit_(r) : 0;
    }
  }
}

/* The keys of cluster c that each of some rows sees but for bounds, as runs; how many. */
ATTN_FUNC_ int64_t attn_inside_runs_(const attn_inside_ *a, const int32_t *row, int rows,
                                     attn_plan_run_ *run, uint64_t *earlier, int64_t unit,
                                     int64_t c) {
  const int32_t *start = a->k->m.indptr + unit * (a->clusters + 1);
  const int32_t *key = attn_routed_members_(a->k, unit, 0);
  const attn_routing_params *p = &a->job->p;
  const uint64_t all = attn_low_bits_(rows);
  const int apart = p->combine == ATTN_ROUTING_UNION && c > 0;
  const int64_t own = a->learned / a->clusters;
  int64_t n = 0;
  int r = 0;
  if (own) run[n].key = (int32_t)(c * own), run[n].n = (int32_t)own, run[n++].lanes = all;
  if (apart) attn_inside_earlier_(a, row, rows, earlier, unit, c, 1);
  for (int64_t e = start[c]; e < start[c + 1]; e++) {
    uint64_t lanes = all;
    if (apart) { /* pairs that an earlier cluster has */
      const int32_t *first = a->first[1] + unit * (a->k->x.len + 1) + key[e];
      const int32_t *at = a->at[1] + unit * a->k->m.entries;
      for (int32_t x = first[0]; x < first[1] && at[x] < start[c]; x++)
        lanes &= ~earlier[attn_inside_cluster_(start, a->clusters, at[x])];
    }
    if (p->exclude_self) {
      while (r < rows && row[r] < key[e]) r++;
      if (r < rows && row[r] == key[e] && attn_inside_others_(a, unit, c, key[e]))
        lanes &= ~attn_bit_(r);
    }
    if (!lanes) continue;
    const int32_t at = (int32_t)(a->learned + key[e]);
    if (n > 0 && run[n - 1].lanes == lanes && run[n - 1].key + run[n - 1].n == at) {
      run[n - 1].n++;
      continue;
    }
    run[n].key = at, run[n].n = 1, run[n].lanes = lanes;
    n++;
  }
  if (apart) attn_inside_earlier_(a, row, rows, earlier, unit, c, 0);
  return n;
}

/* The tile of cluster c that begins with entry e, in one of two places of a worker's schedule: one tile is
 * made while the one before still waits, so that its rows are on their way. */
ATTN_FUNC_ void attn_inside_tile_(const attn_inside_ *a, char *memory, int64_t unit, int64_t c,
                                  int64_t e, int place, attn_plan_tile_ *tile) {
  const int32_t *start = a->q->m.indptr + unit * (a->clusters + 1);
  const int32_t *row = attn_routed_members_(a->q, unit, e);
  const int64_t left = start[c + 1] - e;
  tile->n = left < ATTN_TILE_ ? (int32_t)left : ATTN_TILE_, tile->step = 1;
  tile->row = place * ATTN_TILE_, tile->at = place * a->most;
  memcpy((int32_t *)(void *)(memory + a->at_rows) + tile->row, row, (size_t)tile->n * sizeof *row);
  tile->count =
      attn_inside_runs_(a, row, tile->n, (attn_plan_run_ *)(void *)(memory + a->at_runs) + tile->at,
                        (uint64_t *)(void *)(memory + a->at_lanes), unit, c);
}

/* Whether row i's only result goes to o as it is. */
ATTN_FUNC_ int attn_inside_direct_(const attn_inside_ *a, int64_t unit, int64_t i) {
  const int32_t *first = a->first[0] + unit * (a->q->x.len + 1) + i;
  return first[1] - first[0] == 1 && a->job->o.dtype == ATTN_F32;
}

ATTN_FUNC_ void attn_inside_lse_(const attn_inside_ *a, int64_t b, int64_t h, int64_t i, float x) {
  const attn_tensor *lse = &a->job->p.lse;
  if (lse->data) memcpy(attn_at_(lse, b, h, i), &x, sizeof x);
}

/* A cluster of a head: its queries, 64 at a time. */
ATTN_FUNC_ void attn_inside_item_(void *job, int worker, int64_t index) {
  const attn_inside_ *a = (const attn_inside_ *)job;
  const int64_t unit = index / a->clusters, c = index % a->clusters;
  const int64_t b = unit / a->heads, h = unit % a->heads;
  const int32_t *start = a->q->m.indptr + unit * (a->clusters + 1);
  if (c < a->c0[unit] || c >= a->c1[unit] || start[c] == start[c + 1]) return;
  char *memory = a->memory + worker * a->each;
  attn_plan_ *plan = (attn_plan_ *)(void *)memory;
  attn_plan_tile_ tile[2];
  attn_softmax_ own = a->engine;
  plan->at_row = a->at_rows, plan->at_run = a->at_runs;
  own.plan = plan;
  attn_inside_tile_(a, memory, unit, c, start[c], 0, &tile[0]);
  int place = 0;
  for (int64_t e = start[c]; e < start[c + 1]; e += ATTN_TILE_, place = !place) {
    const int64_t part = e - start[a->c0[unit]];
    const int more = e + ATTN_TILE_ < start[c + 1];
    attn_tile_ t;
    attn_tile_open_(&t, &own, worker);
    attn_tile_plan_rows_(&t, b, h, &tile[place]);
    if (more || (c + 1 < a->c1[unit] && start[c + 1] < start[c + 2])) {
      attn_inside_tile_(a, memory, unit, more ? c : c + 1, more ? e + ATTN_TILE_ : start[c + 1],
                        !place, &tile[!place]);
      t.next = &tile[!place], t.asked = 0;
    }
    attn_tile_lanes_(&t);
    for (int r = 0; r < t.n; r++) {
      if (attn_inside_direct_(a, unit, t.row[r])) continue;
      t.out[r] = attn_at_(&a->part, b, h, part + r);
      attn_row_ahead_(&a->part, b, h, part + r);
    }
    attn_tile_placed_(&t, 1);
    for (int r = 0; a->part_lse && r < t.n; r++) {
      const float l = t.l[r], lse = l == 0.0f ? -INFINITY
                                    : l > 0.0f && l < INFINITY
                                        ? (float)(((double)t.m[r] + attn_log2_(l)) * ATTN_LN2_)
                                        : attn_from_bits_(0x7fc00000u);
      if (attn_inside_direct_(a, unit, t.row[r]))
        attn_inside_lse_(a, b, h, t.row[r], lse);
      else
        a->part_lse[unit * a->room + part + r] = lse;
    }
  }
}

/* The number of clusters in which row i has a key. Shared, it has itself. */
ATTN_FUNC_ int64_t attn_inside_count_(const attn_inside_ *a, int64_t unit, int64_t i) {
  const int32_t *start = a->k->m.indptr + unit * (a->clusters + 1);
  const int32_t *first = a->first[0] + unit * (a->q->x.len + 1) + i;
  const int32_t *begin = a->q->m.indptr + unit * (a->clusters + 1);
  const int32_t *at = a->at[0] + unit * a->q->m.entries;
  int64_t n = 0;
  if (a->k == a->q || a->learned) return first[1] - first[0];
  for (int32_t e = first[0]; e < first[1]; e++) {
    const int64_t c = attn_inside_cluster_(begin, a->clusters, at[e]);
    const int32_t *key = attn_routed_members_(a->k, unit, start[c]);
    n += attn_inside_seen_(a, key, start[c + 1] - start[c], i) > 0;
  }
  return n;
}

/* The results of a round join those before, in the order of the clusters; 64 rows. */
ATTN_FUNC_ void attn_inside_join_(void *job, int worker, int64_t index) {
  const attn_inside_ *a = (const attn_inside_ *)job;
  const attn_table_ *f = a->engine.table;
  const int64_t tq = a->q->x.len, tiles = attn_tiles_of_(tq), unit = index / tiles;
  const int64_t b = unit / a->heads, h = unit % a->heads, dv = a->job->o.dim;
  const int64_t i0 = index % tiles * ATTN_TILE_, i1 = tq - i0 < ATTN_TILE_ ? tq : i0 + ATTN_TILE_;
  const int32_t *start = a->q->m.indptr + unit * (a->clusters + 1);
  const int32_t *first = a->first[0] + unit * (tq + 1), *at = a->at[0] + unit * a->q->m.entries;
  const int64_t from = start[a->c0[unit]], to = start[a->c1[unit]];
  attn_merge_job_ m;
  int32_t asked = first[i0];
  memset(&m, 0, sizeof m);
  m.table = f, m.o = m.o1 = m.o2 = a->sum;
  (void)worker;
  for (int64_t i = i0; i < i1; i++) {
    float *sum = (float *)(void *)attn_at_(&a->sum, b, h, i);
    float *lse = a->lse ? a->lse + unit * tq + i : NULL, by = 1.0f;
    if (attn_inside_direct_(a, unit, i)) continue;
    if (a->begins) {
      memset(sum, 0, (size_t)dv * sizeof *sum);
      if (lse) *lse = -INFINITY;
    }
    if (!lse) {
      const int64_t n = attn_inside_count_(a, unit, i);
      by = n > 1 ? 1.0f / (float)n : 1.0f;
    }
    for (; asked < first[i1] && asked < first[i] + ATTN_AHEAD_; asked++)
      if (at[asked] >= from && at[asked] < to) attn_row_ahead_(&a->part, b, h, at[asked] - from);
    for (int32_t x = first[i]; x < first[i + 1]; x++) {
      if (at[x] < from || at[x] >= to) continue;
      const float *part = (const float *)(const void *)attn_at_(&a->part, b, h, at[x] - from);
      if (!lse) { /* without a key it is 0 */
        f->blend(sum, x > first[i] ? sum : NULL, part, ATTN_F32, ATTN_F32, ATTN_F32, dv, 1.0f, by);
        continue;
      }
      const float l[2] = {*lse, a->part_lse[unit * a->room + at[x] - from]};
      const float top = l[0] > l[1] ? l[0] : l[1];
      float e[2] = {l[0] - top, l[1] - top};
      f->exp(e, e, 2);
      *lse = attn_merge_row_(&m, sum, sum, part, l, e);
    }
    if (!a->ends) continue;
    if (a->job->o.dtype != ATTN_F32)
      f->blend(attn_at_(&a->job->o, b, h, i), sum, NULL, a->job->o.dtype, ATTN_F32, ATTN_F32, dv,
               1.0f, 0.0f);
    if (lse) attn_inside_lse_(a, b, h, i, *lse);
  }
}

/* Rows of mem_k or mem_v and, after them, those of x, as f32 for each head. */
ATTN_COLD_ int attn_inside_keys_(attn_stage_ *s, attn_tensor *y, attn_tensor learned,
                                 const attn_tensor *x, int64_t heads, const int32_t *len) {
  const int64_t n = learned.len;
  *y = attn_stage_tensor_(s, x->batch, heads, attn_add_(n, x->len), x->dim);
  learned.batch = x->batch, learned.stride_batch = 0;
  return attn_routing_rows_of_(s, attn_stage_rows_(*y, 0, n), learned, ATTN_ROUTING_NONE, NULL) &&
         attn_routing_rows_of_(s, attn_stage_rows_(*y, n, x->len), *x, ATTN_ROUTING_NONE, len);
}

/* Behind learned keys, which every row sees, those up to its own. */
ATTN_FUNC_ void attn_inside_range_(const void *user, int64_t b, int64_t i, int64_t *lo,
                                   int64_t *hi) {
  const attn_inside_ *a = (const attn_inside_ *)user;
  const int64_t end = i + a->engine.q_off + 1;
  (void)b;
  *lo = 0, *hi = end < a->learned ? a->learned : end;
}

/* The clusters of the next round. 0 = there are none. */
ATTN_COLD_ int attn_inside_round_(attn_inside_ *a, int64_t units) {
  int some = a->begins;
  a->ends = 1;
  for (int64_t u = 0; u < units; u++) {
    const int32_t *start = a->q->m.indptr + u * (a->clusters + 1);
    int64_t c = a->c0[u] = a->begins ? 0 : a->c1[u];
    some |= c < a->clusters;
    while (c < a->clusters && start[c + 1] - start[a->c0[u]] <= a->room) c++;
    a->c1[u] = c;
    a->ends &= c == a->clusters;
  }
  return some;
}

/* Rows are normalised, members are known when this runs. */
ATTN_COLD_ int attn_routing_inside_(attn_stage_ *s, const attn_routing_job_ *job) {
  const attn_routing_params *p = &job->p;
  const attn_routed_ *q = &job->side[0], *k = &job->side[p->shared ? 0 : 1];
  const int64_t b = q->x.batch, h = q->x.heads, tq = q->x.len, units = attn_mul_(b, h);
  const int64_t tk = k->x.len, items = attn_mul_(units, q->m.clusters);
  attn_inside_ a;
  attn_softmax_ *f = &a.engine;
  attn_sdpa_params plain;
  int workers;
  memset(&a, 0, sizeof a);
  memset(&plain, 0, sizeof plain);
  a.job = job, a.q = q, a.k = k, a.clusters = q->m.clusters, a.heads = h;
  for (int i = 0; i < (p->combine == ATTN_ROUTING_UNION ? 2 : 1); i++) {
    const attn_routed_ *x = i ? k : q;
    a.first[i] = (int32_t *)attn_stage_take_(s, attn_mul_(units, x->x.len + 1), 4);
    a.at[i] = (int32_t *)attn_stage_take_(s, attn_mul_(units, x->m.entries), 4);
  }
  a.room = attn_add_(tq, a.clusters) < q->m.entries ? tq + a.clusters : q->m.entries;
  a.c0 = (int64_t *)attn_stage_take_(s, units, 8);
  a.c1 = (int64_t *)attn_stage_take_(s, units, 8);
  a.part = attn_stage_tensor_(s, b, h, a.room, job->o.dim);
  a.sum = attn_stage_part_(s, &job->o);
  if (p->combine == ATTN_ROUTING_UNION) {
    a.part_lse = (float *)attn_stage_take_(s, attn_mul_(units, a.room), 4);
    a.lse = (float *)attn_stage_take_(s, attn_mul_(units, tq), 4);
  }
  a.learned = job->learned;
  a.most = attn_add_(k->m.entries < tk ? k->m.entries : tk, a.learned > 0);
  a.at_rows = attn_piece_(1, sizeof(attn_plan_));
  a.at_runs = attn_add_(a.at_rows, attn_piece_(2 * ATTN_TILE_, 4));
  a.at_lanes = attn_add_(a.at_runs, attn_piece_(attn_mul_(2, a.most), sizeof(attn_plan_run_)));
  a.each = attn_add_(a.at_lanes, p->combine == ATTN_ROUTING_UNION ? attn_piece_(a.clusters, 8) : 0);
  plain.scale = p->scale, plain.causal = p->causal && !a.learned, plain.one_order = 1;
  f->o = a.sum, f->q = q->x, f->k = k->x, f->v = job->v;
  if (a.learned && (!attn_inside_keys_(s, &f->k, p->mem_k, &k->x, h, k->len) ||
                    !attn_inside_keys_(s, &f->v, p->mem_v, &job->v, h, k->len)))
    return 0;
  if (!attn_sdpa_plan_(s->e, f, &plain, &s->ctx, &workers, -1)) return 0;
  if (p->causal && a.learned) f->range = attn_inside_range_, f->range_user = &a;
  f->plan = &a.blank;
  f->bytes = attn_scratch_plan_(f);
  workers = attn_pieces_(s->workers, items);
  const int64_t own = attn_mul_(a.each, workers);
  char *spare = attn_stage_spare_(s, attn_add_(own, attn_mul_(f->bytes, workers)));
  if (!s->run) return 1;
  a.memory = spare, f->workspace = spare + own;
  attn_scratch_open_(f, workers);
  for (int i = 0; i < workers; i++)
    memset(a.memory + i * a.each + a.at_lanes, 0, (size_t)(a.each - a.at_lanes));
  attn_for_(&s->ctx, attn_pieces_(s->workers, 2 * units), 2 * units, attn_inside_turn_, &a);
  for (a.begins = 1; attn_inside_round_(&a, units); a.begins = 0) {
    const int64_t joins = units * attn_tiles_of_(tq);
    attn_for_(&s->ctx, workers, items, attn_inside_item_, &a);
    if (joins) attn_for_(&s->ctx, attn_pieces_(s->workers, joins), joins, attn_inside_join_, &a);
  }
  s->pairs += attn_scratch_pairs_(f, workers);
  return 1;
}

/* ---- the calls ------------------------------------------------------------------------------*/

ATTN_COLD_ int attn_routing_attend_steps_(attn_stage_ *s, void *job) {
  attn_routing_job_ a = *(const attn_routing_job_ *)job;
  a.table = s->table;
  return attn_routing_normalise_(s, &a) && attn_routing_inside_(s, &a);
}

ATTN_COLD_ int attn_routing_steps_(attn_stage_ *s, void *job) {
  attn_routing_job_ a = *(const attn_routing_job_ *)job;
  const int64_t units = attn_mul_(a.side[0].x.batch, a.side[0].x.heads);
  a.table = s->table;
  for (int i = 0; i < a.sides; i++) {
    attn_members *m = &a.side[i].m;
    m->index = (int32_t *)attn_stage_take_(s, attn_mul_(units, m->entries), 4);
    m->indptr = (int32_t *)attn_stage_take_(s, attn_mul_(units, m->clusters + 1), 4);
  }
  return attn_routing_normalise_(s, &a) && attn_routing_members_(s, &a) &&
         attn_routing_inside_(s, &a);
}

ATTN_COLD_ attn_status attn_routing_attend_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                                 attn_tensor v, attn_members queries,
                                                 attn_members keys,
                                                 const attn_routing_params *params, attn_ctx *ctx,
                                                 size_t *bytes) {
  attn_routing_job_ a = attn_routing_job_of_(q, k);
  a.o = o, a.v = v, a.side[0].m = queries, a.side[1].m = keys;
  return attn_routing_job_call_(&a, ATTN_RT_ATTEND_, params, attn_routing_attend_steps_,
                                "attention in clusters", ctx, bytes);
}
ATTN_CALL_(attn_routing_attend, (o, q, k, v, queries, keys, params), attn_tensor o, attn_tensor q,
           attn_tensor k, attn_tensor v, attn_members queries, attn_members keys,
           const attn_routing_params *params)

ATTN_COLD_ attn_status attn_routing_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, attn_tensor centroids,
                                          const attn_routing_params *params, attn_ctx *ctx,
                                          size_t *bytes) {
  attn_routing_job_ a = attn_routing_job_of_(q, k);
  a.o = o, a.v = v, a.centroids = centroids;
  return attn_routing_job_call_(&a, ATTN_RT_BOTH_, params, attn_routing_steps_,
                                "clusters, attention in them", ctx, bytes);
}
ATTN_CALL_(attn_routing, (o, q, k, v, centroids, params), attn_tensor o, attn_tensor q,
           attn_tensor k, attn_tensor v, attn_tensor centroids, const attn_routing_params *params)
