/* families/content/lsh.h owns LSH attention: in each round tiles of rows that follow one another by rank meet
 * the keys of their ranks, gathered; the softmax of a row goes on from round to round. A pair that
 * several rounds find is skipped in all but the first: it is one comparison of integers to tell. */

enum { ATTN_LSH_TILES_ = 16 }; /* of a work item; tiles that follow one another share keys */

/* What one worker works in. */
typedef struct attn_lsh_tile_ {
  const attn_lsh_job_ *a;
  int64_t u, b, h, hk, hv;    /* place in the wave, batch entry, heads */
  const int32_t *order, *key; /* rows and keys by rank */
  const uint32_t *rank, *bound;
  int64_t rows, keys; /* that exist */
  int64_t from, n;    /* rows of this tile */
  int groups, careful;
  int64_t held0, held1; /* ranks whose keys are in k and v */
  int64_t pairs;
  float *qt, *s, *ot, *k, *v;  /* [dk][tile], [block][tile], [dv][tile], [block][dk], [block][dv] */
  uint32_t *x, *lo, *len;      /* [tests][block], [tests][tile] twice */
  uint64_t reads[ATTN_BLOCK_]; /* the rows that see a key, when careful */
  float m[ATTN_TILE_], l[ATTN_TILE_], alpha[ATTN_TILE_], top[ATTN_TILE_], spare[ATTN_TILE_];
} attn_lsh_tile_;

/* Cuts it from memory; bytes of it. */
ATTN_FUNC_ int64_t attn_lsh_cut_(attn_lsh_tile_ *t, char *memory, const attn_lsh_job_ *a) {
  const int64_t tile = ATTN_TILE_, block = ATTN_BLOCK_, tests = attn_add_(a->p.rounds, 1);
  const int64_t n[] = {attn_mul_(a->q.dim, tile),  block * tile,
                       attn_mul_(a->v.dim, tile),  attn_mul_(a->q.dim, block),
                       attn_mul_(a->v.dim, block), attn_mul_(tests, block),
                       attn_mul_(tests, tile),     attn_mul_(tests, tile)};
  int64_t at[8], bytes = 0;
  for (int i = 0; i < 8; i++) at[i] = bytes, bytes = attn_add_(bytes, attn_piece_(n[i], 4));
  if (!memory) return bytes;
  float **part[] = {&t->qt, &t->s, &t->ot, &t->k, &t->v};
  uint32_t **whole[] = {&t->x, &t->lo, &t->len};
  for (int i = 0; i < 5; i++) *part[i] = (float *)(void *)(memory + at[i]);
  for (int i = 0; i < 3; i++) *whole[i] = (uint32_t *)(void *)(memory + at[5 + i]);
  return bytes;
}

/* Keys and values of ranks j0 .. j1 - 1, at most a block; those of the block before are kept. */
ATTN_FUNC_ void attn_lsh_gather_(attn_lsh_tile_ *t, int64_t j0, int64_t j1) {
  const attn_lsh_job_ *a = t->a;
  const attn_table_ *f = a->table;
  const int64_t dk = a->k.dim, dv = a->v.dim;
  int64_t have = 0;
  if (t->held0 <= j0 && j0 < t->held1) {
    const int64_t skip = j0 - t->held0;
    have = attn_min64_(t->held1, j1) - j0;
    if (skip > 0) {
      memmove(t->k, t->k + skip * dk, (size_t)(have * dk) * sizeof *t->k);
      memmove(t->v, t->v + skip * dv, (size_t)(have * dv) * sizeof *t->v);
    }
  }
  t->held0 = j0, t->held1 = attn_max64_(j1, j0 + have);
  const int64_t n = j1 - j0 - have;
  if (n <= 0) return;
  const int32_t *index = t->key + j0 + have;
  float *k = t->k + have * dk, by[ATTN_BLOCK_];
  f->widen(k, attn_at_(&a->k, t->b, t->hk, 0), a->k.stride_len, index, n, dk, a->k.dtype, NULL);
  f->widen(t->v + have * dv, attn_at_(&a->v, t->b, t->hv, 0), a->v.stride_len, index, n, dv,
           a->v.dtype, NULL);
  if (a->kind == ATTN_LSH_APART_) return;
  for (int64_t e = 0; e < n; e++) by[e] = a->inverse[t->u * a->k.len + index[e]];
  f->scale_rows(k, dk, k, dk, n, dk, by);
}

/* Who does not see whom, as ranges that lanes exclude: ranks of this round outside of their own, ranks
 * of earlier rounds inside of it, later positions. Lanes without a row see anything. The ranks that
 * the tile sees become j[0] .. j[1] - 1 and, where the ring of chunks closes, j[2] .. j[3] - 1. */
ATTN_FUNC_ void attn_lsh_tests_(attn_lsh_tile_ *t, int64_t j[4]) {
  const attn_lsh_job_ *a = t->a;
  const int64_t rounds = a->p.rounds, earlier = a->p.keep_duplicates ? 0 : a->round;
  const int64_t shift = a->kind == ATTN_LSH_APART_ ? a->k.len - a->q.len : 0;
  uint32_t *last_lo = t->lo + (earlier + 1) * ATTN_TILE_,
           *last = t->len + (earlier + 1) * ATTN_TILE_;
  j[0] = j[2] = t->keys, j[1] = j[3] = 0;
  for (int64_t r = 0; r < ATTN_TILE_; r++) {
    if (r >= t->n) {
      for (int64_t e = 0; e < earlier + 2; e++) t->lo[e * ATTN_TILE_ + r] = 0;
      for (int64_t e = 0; e < earlier + 2; e++) t->len[e * ATTN_TILE_ + r] = 0;
      continue;
    }
    const int64_t i = t->order[t->from + r], p = i + shift;
    const uint32_t *bound = t->bound + i * rounds * 2, *own = bound + a->round * 2;
    t->lo[r] = own[1] ? own[0] + own[1] : 0; /* all numbers but the own */
    t->len[r] = own[1] ? 0u - own[1] : 0xffffffffu;
    if (own[1]) {
      const int64_t from = own[0], to = (int64_t)(own[0] + own[1]); /* modulo 2^32 */
      const int round = to < from, late = a->p.wrap && from > t->keys / 2;
      int64_t *part = late ? j + 2 : j;
      part[0] = attn_min64_(part[0], from), part[1] = attn_max64_(part[1], round ? t->keys : to);
      if (round) j[0] = 0, j[1] = attn_max64_(j[1], late ? to : t->keys);
    }
    for (int64_t e = 0; e < earlier; e++)
      t->lo[(e + 1) * ATTN_TILE_ + r] = bound[2 * e],
                                   t->len[(e + 1) * ATTN_TILE_ + r] = bound[2 * e + 1];
    last_lo[r] = (uint32_t)(p < 0 ? 0 : p + 1), last[r] = 0x80000000u;
  }
  if (j[1] > j[0] && j[3] > j[2] && j[2] <= j[1]) /* they meet */
    j[1] = attn_max64_(j[1], j[3]), j[2] = t->keys, j[3] = 0;
  if (j[1] <= j[0]) j[0] = j[2], j[1] = j[3], j[2] = t->keys, j[3] = 0;
}

/* Scores that the tests take out, of keys j0 .. j0 + n - 1; t->top becomes the maxima. */
ATTN_FUNC_ void attn_lsh_mask_(attn_lsh_tile_ *t, int64_t j0, int64_t n) {
  const attn_lsh_job_ *a = t->a;
  const int64_t rounds = a->p.rounds, earlier = a->p.keep_duplicates ? 0 : a->round;
  const int by_position = a->p.causal && (a->p.across || a->kind == ATTN_LSH_APART_);
  const int32_t *key = t->key + j0;
  attn_exclude_ no;
  for (int64_t e = 0; e < n; e++) t->x[e] = (uint32_t)(j0 + e);
  if (earlier)
    for (int64_t e = 0; e < n; e++) {
      const uint32_t *rank = t->rank + key[e] * rounds;
      for (int64_t r = 0; r < earlier; r++) t->x[(r + 1) * ATTN_BLOCK_ + e] = rank[r];
    }
  if (by_position)
    for (int64_t e = 0; e < n; e++) t->x[(earlier + 1) * ATTN_BLOCK_ + e] = (uint32_t)key[e];
  if (a->kind == ATTN_LSH_SHARED_) /* rows and keys have the same ranks */
    for (int64_t e = attn_max64_(t->from - j0, 0); e < attn_min64_(t->from + t->n - j0, n); e++) {
      float *own = t->s + e * ATTN_TILE_ + (j0 + e - t->from);
      *own = a->p.self == ATTN_LSH_SELF_ALONE ? -INFINITY : *own - a->penalty;
    }
  no.x = t->x, no.lo = t->lo, no.len = t->len, no.tests = 1 + earlier + by_position;
  for (int r = 0; r < ATTN_TILE_; r++) t->top[r] = -INFINITY;
  attn_on_(tile, a->table)->exclude(t->s, n, 0, t->groups, &no, t->top);
}

/* The row of o, or where its sum waits between rounds. */
ATTN_FUNC_ void *attn_lsh_row_(const attn_lsh_tile_ *t, int64_t i, int last) {
  const attn_lsh_job_ *a = t->a;
  if (last || !a->state_o) return attn_at_(&a->o, t->b, t->h, i);
  return a->state_o + (t->u * a->q.len + i) * a->v.dim;
}

/* What rounds before have left. 1 = the accumulator holds something. */
ATTN_FUNC_ int attn_lsh_load_(attn_lsh_tile_ *t) {
  const attn_lsh_job_ *a = t->a;
  for (int r = 0; r < ATTN_TILE_; r++) t->m[r] = -INFINITY, t->l[r] = 0.0f;
  if (a->round == 0) return 0;
  for (int64_t r = 0; r < t->n; r++) {
    const float *state = a->state + 2 * (t->u * a->q.len + t->order[t->from + r]);
    t->m[r] = state[0], t->l[r] = state[1];
  }
  return 1;
}

/* The sums that belong to it. */
ATTN_FUNC_ void attn_lsh_load_rows_(attn_lsh_tile_ *t) {
  const attn_lsh_job_ *a = t->a;
  const void *row[ATTN_TILE_];
  for (int64_t r = 0; r < t->n; r++) row[r] = attn_lsh_row_(t, t->order[t->from + r], 0);
  a->table->pack(t->ot, row, (int)t->n, a->v.dim, ATTN_F32, 1.0f, attn_least_(1.0f));
}

/* Rows lie anywhere, so they are asked for while something else is computed: the sums of this tile, */
ATTN_INLINE_ void attn_lsh_ask_sums_(const attn_lsh_tile_ *t, int64_t r0, int64_t r1) {
  for (int64_t r = r0; r < r1 && r < t->n; r++) {
    const char *p = (const char *)attn_lsh_row_(t, t->order[t->from + r], 0);
    for (int64_t c = 0; c < 4 * t->a->v.dim; c += 64) ATTN_PREFETCH_(p + c);
  }
}

/* and of the next one ranges, states, and the keys after those that are here. */
ATTN_INLINE_ void attn_lsh_ask_next_(const attn_lsh_tile_ *t, int64_t r0, int64_t r1) {
  const attn_lsh_job_ *a = t->a;
  for (int64_t s = t->from + t->n + r0; s < t->from + t->n + r1 && s < t->rows; s++) {
    const int64_t i = t->order[s];
    ATTN_PREFETCH_(t->bound + 2 * a->p.rounds * i);
    if (a->round > 0) ATTN_PREFETCH_(a->state + 2 * (t->u * a->q.len + i));
  }
  for (int64_t s = t->held1 + r0; s < t->held1 + r1 && s < t->keys; s++) {
    const int64_t j = t->key[s];
    attn_row_ahead_(&a->k, t->b, t->hk, j);
    attn_row_ahead_(&a->v, t->b, t->hv, j);
    ATTN_PREFETCH_(t->rank + a->p.rounds * j);
  }
}

/* The result of a row that saw nothing but itself. */
ATTN_FUNC_ void attn_lsh_alone_(attn_lsh_tile_ *t, int64_t i, float *lse) {
  const attn_lsh_job_ *a = t->a;
  const attn_table_ *f = a->table;
  const float inverse = a->inverse[t->u * a->k.len + i];
  double sum = 0.0;
  f->widen(t->k, attn_at_(&a->q, t->b, t->h, i), 0, NULL, 1, a->q.dim, a->q.dtype, NULL);
  for (int64_t c = 0; c < a->q.dim; c++) sum += (double)t->k[c] * (double)t->k[c];
  sum *= (double)inverse * a->scale;
  *lse = sum == sum ? (float)attn_clamp_f64_(sum) : attn_from_bits_(0x7fc00000u);
  f->blend(attn_at_(&a->o, t->b, t->h, i), attn_at_(&a->v, t->b, t->hv, i), NULL, a->o.dtype,
           a->v.dtype, a->v.dtype, a->v.dim, 1.0f, 0.0f);
  t->held0 = t->held1 = 0;
}

/* Leaves the state for the next round, or the result. */
ATTN_FUNC_ void attn_lsh_store_(attn_lsh_tile_ *t) {
  const attn_lsh_job_ *a = t->a;
  const int last = a->round == a->p.rounds - 1;
  const int alone = a->kind == ATTN_LSH_SHARED_ && a->p.self == ATTN_LSH_SELF_ALONE;
  void *row[ATTN_TILE_];
  for (int64_t r = 0; r < t->n; r++) row[r] = attn_lsh_row_(t, t->order[t->from + r], last);
  if (!last) {
    for (int64_t r = 0; r < t->n; r++) {
      float *state = a->state + 2 * (t->u * a->q.len + t->order[t->from + r]);
      state[0] = t->m[r], state[1] = t->l[r];
    }
    a->table->unpack(row, t->ot, (int)t->n, a->v.dim, ATTN_F32, NULL);
    return;
  }
  for (int r = 0; r < ATTN_TILE_; r++) t->alpha[r] = 1.0f;
  attn_on_(tile, a->table)->divide(t->alpha, t->l, t->groups);
  a->table->unpack(row, t->ot, (int)t->n, a->v.dim, a->o.dtype, t->alpha);
  for (int64_t r = 0; r < t->n; r++) {
    const int64_t i = t->order[t->from + r];
    float lse = -INFINITY;
    if (t->l[r] > 0.0f && t->l[r] < INFINITY)
      lse = (float)(((double)t->m[r] + attn_log2_(t->l[r])) * ATTN_LN2_);
    else if (t->l[r] != 0.0f)
      lse = attn_from_bits_(0x7fc00000u);
    else if (alone)
      attn_lsh_alone_(t, i, &lse);
    if (a->p.lse.data) memcpy(attn_at_(&a->p.lse, t->b, t->h, i), &lse, sizeof lse);
  }
}

/* Values that are not finite must reach the rows that see them and no others, though 0 * NaN is NaN. When
 * a tile has such a result it is done again carefully: they are taken out of the block before scores become
 * weights, */
ATTN_FUNC_ void attn_lsh_clean_(attn_lsh_tile_ *t, int64_t n) {
  for (int64_t e = 0; e < n; e++) {
    t->reads[e] = 0;
    for (int r = 0; r < (int)t->n; r++)
      if (t->s[e * ATTN_TILE_ + r] != -INFINITY) t->reads[e] |= attn_bit_(r);
  }
  for (int64_t c = 0; c < n * t->a->v.dim; c++)
    if (!(t->v[c] - t->v[c] == 0.0f)) t->v[c] = 0.0f;
  t->held0 = t->held1 = 0;
}

/* and added to the sums of those rows. */
ATTN_FUNC_ void attn_lsh_patch_(attn_lsh_tile_ *t, int64_t j0, int64_t n) {
  const attn_lsh_job_ *a = t->a;
  for (int64_t e = 0; e < n; e++) {
    const char *row = attn_at_(&a->v, t->b, t->hv, t->key[j0 + e]);
    for (int64_t c = 0; c < a->v.dim; c++) {
      const float x = attn_number_(row, c, a->v.dtype, NULL);
      if (x - x == 0.0f) continue;
      for (int r = 0; r < (int)t->n; r++)
        if (t->reads[e] >> r & 1) t->ot[c * ATTN_TILE_ + r] += t->s[e * ATTN_TILE_ + r] * x;
    }
  }
}

/* The sums of one tile after one round. */
ATTN_FUNC_ void attn_lsh_sweep_(attn_lsh_tile_ *t) {
  const attn_lsh_job_ *a = t->a;
  const attn_table_ *f = a->table;
  const int64_t dk = a->k.dim, dv = a->v.dim;
  const void *row[ATTN_TILE_];
  int64_t range[4];
  t->groups = (int)attn_ceil_(t->n, ATTN_GROUP_);
  attn_lsh_tests_(t, range);
  const int64_t j0 = range[0], last = range[3] > range[2] ? range[3] : range[1];
  int started = attn_lsh_load_(t);
  const int waits = started; /* sums that are not here yet */
  for (int64_t j = j0, j1 = range[1], n; j < j1; j += n) {
    n = attn_min64_(j1 - j, ATTN_BLOCK_);
    const int first = j == j0;
    attn_lsh_gather_(t, j, j + n);
    if (first) { /* the rows are among the keys, mostly */
      for (int64_t r = 0; r < t->n; r++)
        row[r] = attn_at_(&a->q, t->b, t->h, t->order[t->from + r]);
      f->pack(t->qt, row, (int)t->n, dk, (int)a->q.dtype, a->scale_hi, a->scale_lo);
      if (waits) attn_lsh_ask_sums_(t, 0, ATTN_TILE_);
    }
    for (int r = 0; r < ATTN_TILE_; r++) t->spare[r] = -INFINITY;
    attn_on_(tile, f)->score_block(t->s, t->qt, t->k, dk, n, dk, 0, t->groups, t->spare);
    if (j + n == last) attn_lsh_ask_next_(t, 0, ATTN_TILE_ / 2);
    attn_lsh_mask_(t, j, n);
    if (t->careful) attn_lsh_clean_(t, n);
    attn_on_(tile, f)->softmax_block(t->s, n, 0, t->groups, t->m, t->l, t->alpha, t->top, NULL);
    if (j + n == last) attn_lsh_ask_next_(t, ATTN_TILE_ / 2, ATTN_TILE_);
    if (first && waits) attn_lsh_load_rows_(t);
    attn_on_(tile, f)->value_block(t->ot, t->s, t->v, dv, n, dv, 0, t->groups,
                                   started ? t->alpha : NULL, !started);
    if (t->careful) attn_lsh_patch_(t, j, n);
    started = 1;
    t->pairs += t->careful ? 0 : n * t->n;
    if (j + n == range[1] && last != j1) j = range[2] - n, j1 = last; /* the other part */
  }
  if (waits && j0 >= range[1]) attn_lsh_load_rows_(t);
  if (!started) memset(t->ot, 0, (size_t)(dv * ATTN_TILE_) * sizeof *t->ot);
}

/* One tile in one round. */
ATTN_FUNC_ void attn_lsh_run_tile_(attn_lsh_tile_ *t) {
  const attn_lsh_job_ *a = t->a;
  t->careful = 0;
  attn_lsh_sweep_(t);
  t->careful = !a->table->finite(t->ot, ATTN_TILE_, a->v.dim, t->n);
  if (t->careful) attn_lsh_sweep_(t);
  attn_lsh_store_(t);
}

/* Some tiles of a unit of the wave. */
ATTN_FUNC_ void attn_lsh_item_(void *job, int worker, int64_t index) {
  const attn_lsh_job_ *a = (const attn_lsh_job_ *)job;
  const int64_t rounds = a->p.rounds, u = index / a->items, unit = a->first + u;
  attn_lsh_tile_ t;
  t.a = a, t.u = u, t.b = unit / a->heads, t.h = unit % a->heads;
  t.hk = t.h / (a->heads / a->k.heads), t.hv = t.h / (a->heads / a->v.heads);
  t.order = a->q_order + (u * rounds + a->round) * a->q.len;
  t.key = a->k_order + (u * rounds + a->round) * a->k.len;
  t.rank = a->rank + u * a->k.len * rounds, t.bound = a->bound + u * a->q.len * rounds * 2;
  t.rows = a->count[2 * u], t.keys = a->count[2 * u + 1];
  t.held0 = t.held1 = t.pairs = 0;
  attn_lsh_cut_(&t, a->memory + worker * a->each, a);
  const int64_t each = ATTN_LSH_TILES_ * ATTN_TILE_, first = index % a->items * each;
  for (t.from = first; t.from < attn_min64_(first + each, t.rows); t.from += t.n) {
    t.n = attn_min64_(t.rows - t.from, ATTN_TILE_);
    attn_lsh_run_tile_(&t);
  }
  a->pairs[index] = t.pairs + (a->round > 0 ? a->pairs[index] : 0);
}

/* ---- the calls ------------------------------------------------------------------------------*/

/* All rounds of n units from a->first on. */
ATTN_COLD_ int attn_lsh_wave_(attn_stage_ *s, attn_lsh_job_ *a, int64_t n) {
  const int64_t most = attn_max64_(attn_max64_(a->q.len, a->k.len), a->k.dim);
  const int apart = a->kind == ATTN_LSH_APART_;
  if (!a->has_k && !attn_lsh_buckets_(s, a, &a->k, a->k_place, n)) return 0;
  if (!a->has_k && apart && !attn_lsh_buckets_(s, a, &a->q, a->q_place, n)) return 0;
  a->each = attn_piece_(attn_add_(most, (int64_t)1 << ATTN_LSH_DIGIT_), 4);
  if (!attn_stage_for_(s, attn_mul_(n, a->p.rounds), attn_lsh_sort_, a, a->each, &a->memory))
    return 0;
  a->each = attn_lsh_cut_(NULL, NULL, a);
  for (a->round = 0; a->round < a->p.rounds; a->round++)
    if (!attn_stage_for_(s, attn_mul_(n, a->items), attn_lsh_item_, a, a->each, &a->memory))
      return 0;
  for (int64_t i = 0; s->run && i < n * a->items; i++) s->pairs += a->pairs[i];
  return 1;
}

ATTN_COLD_ int attn_lsh_steps_(attn_stage_ *s, void *job) {
  attn_lsh_job_ *a = (attn_lsh_job_ *)job;
  const int64_t units = attn_mul_(a->q.batch, a->heads), rounds = a->p.rounds;
  const int64_t tq = a->q.len, tk = a->k.len;
  const int apart = a->kind == ATTN_LSH_APART_;
  const float scale = a->p.scale;
  a->scale = scale != 0.0f || attn_to_bits_(scale) ? (double)scale : 1.0 / sqrt((double)a->q.dim);
  const double unit = attn_clamp_f64_(a->scale * ATTN_LOG2E_);
  a->scale_hi = (float)unit, a->scale_lo = (float)(unit - (double)a->scale_hi);
  a->penalty = (float)attn_clamp_f64_((double)a->p.penalty * ATTN_LOG2E_);
  a->items = attn_ceil_(tq, ATTN_LSH_TILES_ * ATTN_TILE_);
  a->wave = s->workers > 1 ? attn_min64_(attn_ceil_(4 * (int64_t)s->workers, a->items), units) : 1;
  const int64_t q_all = attn_mul_(attn_mul_(a->wave, rounds), tq);
  const int64_t k_all = attn_mul_(attn_mul_(a->wave, rounds), tk), rows = attn_mul_(a->wave, tq);
  a->table = s->table;
  if (!a->has_k && !attn_lsh_rotations_(s, a)) return 0;
  if (!a->has_k) a->k_place = (int32_t *)attn_stage_take_(s, k_all, 4);
  if (!a->has_k && apart) a->q_place = (int32_t *)attn_stage_take_(s, q_all, 4);
  a->k_order = (int32_t *)attn_stage_take_(s, k_all, 4);
  a->q_order = apart ? (int32_t *)attn_stage_take_(s, q_all, 4) : a->k_order;
  a->rank = (uint32_t *)attn_stage_take_(s, k_all, 4);
  a->bound = (uint32_t *)attn_stage_take_(s, q_all, 8);
  a->count = (int32_t *)attn_stage_take_(s, a->wave, 8);
  a->pairs = (int64_t *)attn_stage_take_(s, attn_mul_(a->wave, a->items), 8);
  if (!apart) a->inverse = (float *)attn_stage_take_(s, attn_mul_(a->wave, tk), 4);
  if (rounds > 1) a->state = (float *)attn_stage_take_(s, rows, 8);
  if (rounds > 1 && a->o.dtype != ATTN_F32)
    a->state_o = (float *)attn_stage_take_(s, attn_mul_(rows, a->v.dim), 4);
  for (a->first = 0; a->first < units; a->first += a->wave) {
    if (!attn_lsh_wave_(s, a, attn_min64_(a->wave, units - a->first))) return 0;
    if (!s->run) break; /* the first wave is as large as any */
  }
  return 1;
}

ATTN_COLD_ attn_lsh_job_ attn_lsh_job_of_(attn_lsh_kind_ kind, attn_tensor o, attn_tensor q,
                                          attn_tensor k, attn_tensor v, const int32_t *q_buckets,
                                          const int32_t *k_buckets) {
  attn_lsh_job_ a;
  memset(&a, 0, sizeof a);
  a.kind = kind, a.o = o, a.q = q, a.k = k, a.v = v;
  a.q_place = (int32_t *)(uintptr_t)q_buckets, a.k_place = (int32_t *)(uintptr_t)k_buckets;
  a.has_q = q_buckets != NULL, a.has_k = k_buckets != NULL;
  return a;
}
ATTN_COLD_ attn_status attn_lsh_call_(attn_tensor o, attn_tensor x, attn_tensor v,
                                      const int32_t *buckets, const attn_lsh_params *params,
                                      attn_ctx *ctx, size_t *bytes) {
  attn_lsh_job_ a = attn_lsh_job_of_(ATTN_LSH_SHARED_, o, x, x, v, NULL, buckets);
  return attn_lsh_job_call_(&a, params, attn_lsh_steps_, "rounds of gathered tiles", ctx, bytes);
}
ATTN_CALL_(attn_lsh, (o, x, v, buckets, params), attn_tensor o, attn_tensor x, attn_tensor v,
           const int32_t *buckets, const attn_lsh_params *params)
ATTN_COLD_ attn_status attn_lsh_qk_call_(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                         const int32_t *q_buckets, const int32_t *k_buckets,
                                         const attn_lsh_params *params, attn_ctx *ctx,
                                         size_t *bytes) {
  attn_lsh_job_ a = attn_lsh_job_of_(ATTN_LSH_APART_, o, q, k, v, q_buckets, k_buckets);
  return attn_lsh_job_call_(&a, params, attn_lsh_steps_, "rounds of gathered tiles", ctx, bytes);
}
ATTN_CALL_(attn_lsh_qk, (o, q, k, v, q_buckets, k_buckets, params), attn_tensor o, attn_tensor q,
           attn_tensor k, attn_tensor v, const int32_t *q_buckets, const int32_t *k_buckets,
           const attn_lsh_params *params)
