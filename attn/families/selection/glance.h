/* families/selection/glance.h owns a glance: the weights of up to 64 queries on all keys that they see, side by
 * side, so that a selection can sum them by key, by offset or by block. A query and a key may be a cell of
 * neighbouring rows. */

enum { ATTN_GLANCE_ = 48 }; /* keys that are multiplied at a time, as many as topk.h takes */

typedef struct attn_glance_ {
  const attn_table_ *table;
  attn_tensor q, k;
  int64_t cell; /* rows of one; 1: rows themselves */
  float hi, lo; /* what a query is multiplied by, log2 units in two parts */
  int64_t q_off;
  int aligned; /* 1: the last row sits at the last key, in place of q_off */
  attn_scales k_scales;
  attn_paged_ pages; /* held: keys are those of a cache, and k says how many there may be */
  const int32_t *q_len, *kv_len;
  int64_t at_qt, at_part, at_wide, at_zero, at_sums,
      bytes; /* a worker's pieces, behind the weights */
} attn_glance_;

/* One tile of queries. */
typedef struct attn_glanced_ {
  float *s;                               /* [keys][tile] scores, then weights of a sum l */
  float *list;                            /* [block] room for what is said of keys */
  int n, groups;                          /* queries, and their groups of lanes */
  int64_t keys;                           /* that the last of them sees */
  int64_t limit[ATTN_TILE_];              /* keys that each sees */
  float m[ATTN_TILE_], share[ATTN_TILE_]; /* maximum; 1 / l, 0 where a row sees nothing */
  double l[ATTN_TILE_];
} attn_glanced_;

ATTN_FUNC_ int64_t attn_glance_rows_(const attn_glance_ *g, int64_t b) {
  return attn_len_of_(g->q_len, b, g->q.len);
}
ATTN_FUNC_ int64_t attn_glance_keys_(const attn_glance_ *g, int64_t b) {
  return g->pages.held ? g->pages.held[b].len : attn_len_of_(g->kv_len, b, g->k.len);
}

/* The position of row 0. */
ATTN_FUNC_ int64_t attn_glance_off_(const attn_glance_ *g, int64_t b) {
  return g->aligned ? attn_glance_keys_(g, b) - attn_glance_rows_(g, b) : g->q_off;
}

/* Keys that query `at` sees, both in cells: those that begin no later than its last row. */
ATTN_FUNC_ int64_t attn_glance_limit_(const attn_glance_ *g, int64_t b, int64_t at) {
  const int64_t rows = attn_glance_rows_(g, b), keys = attn_glance_keys_(g, b);
  const int64_t last = attn_min64_((at + 1) * g->cell, rows) - 1 + attn_glance_off_(g, b);
  return last < 0 ? 0 : attn_min64_(last / g->cell + 1, attn_runs_of_(keys, g->cell));
}

/* The pieces of a worker's memory; scale is that of products of rows of q and k. */
ATTN_COLD_ void attn_glance_plan_(attn_glance_ *g, const attn_table_ *table, float scale,
                                  double over) {
  const double by =
      (scale == 0.0f ? attn_to_bits_(scale) ? 0.0 : 1.0 / sqrt((double)g->q.dim) : (double)scale) /
      over;
  const double s = attn_clamp_f64_(by * ATTN_LOG2E_);
  const int64_t cells = attn_runs_of_(g->k.len, g->cell), dk = g->q.dim;
  g->table = table, g->hi = (float)s, g->lo = (float)(s - (double)g->hi);
  g->at_qt = attn_piece_(attn_mul_(cells, ATTN_TILE_), 4);
  g->at_part = attn_add_(g->at_qt, attn_piece_(attn_mul_(dk, ATTN_TILE_), 4));
  g->at_wide = attn_add_(g->at_part, attn_piece_(g->cell > 1 ? ATTN_GLANCE_ * ATTN_TILE_ : 0, 4));
  g->at_zero = attn_add_(
      g->at_wide,
      attn_piece_(g->k.dtype == ATTN_F32 && !g->pages.held ? 0 : attn_mul_(dk, ATTN_GLANCE_), 4));
  g->at_sums = attn_add_(g->at_zero, attn_piece_(dk, 4));
  g->bytes = attn_add_(g->at_sums, attn_piece_(ATTN_BLOCK_, 4));
}

/* s = products of the tile with row `row` of each cell, or joins them to s. */
ATTN_FUNC_ void attn_glance_products_(const attn_glance_ *g, attn_glanced_ *t, char *own, int64_t b,
                                      int64_t h, int64_t row, const float *qt, float *top) {
  const int64_t keys = attn_glance_keys_(g, b), dk = g->q.dim, step = g->k.stride_len * g->cell;
  const int64_t n = attn_min64_(t->keys, keys > row ? (keys - 1 - row) / g->cell + 1 : 0);
  const int64_t bytes = attn_bytes_(g->k.dtype, dk);
  float *part = (float *)(void *)(own + g->at_part), *wide = (float *)(void *)(own + g->at_wide);
  for (int64_t j = 0; j < n; j += ATTN_GLANCE_) {
    const int64_t m = attn_min64_(n - j, ATTN_GLANCE_);
    const char *at = g->pages.held ? NULL : attn_at_(&g->k, b, h, j * g->cell + row);
    float *s = t->s + j * ATTN_TILE_;
    const float *k = (const float *)(const void *)at;
    int64_t stride = step;
    for (int64_t r = g->pages.held ? n : j + ATTN_GLANCE_; r < attn_min64_(n, j + 2 * ATTN_GLANCE_);
         r++)
      for (int64_t c = 0; c < bytes; c += 64)
        ATTN_PREFETCH_(attn_at_(&g->k, b, h, r * g->cell + row) + c);
    if (g->pages.held) {
      attn_paged_widen_(g->table, &g->pages, wide, NULL, b, h, j, m);
      k = wide, stride = dk;
    } else if (g->k.dtype != ATTN_F32) {
      attn_rows_scale_ scale = attn_scales_at_(&g->k_scales, b, h, j * g->cell + row);
      scale.stride *= g->cell;
      g->table->widen(wide, at, step, NULL, m, dk, g->k.dtype, &scale);
      k = wide, stride = dk;
    }
    attn_on_(tile, g->table)->score_block(row ? part : s, qt, k, stride, m, dk, 0, t->groups, top);
    if (row && t->groups == ATTN_TILE_ / ATTN_GROUP_)
      g->table->blend(s, s, part, ATTN_F32, ATTN_F32, ATTN_F32, m * ATTN_TILE_, 1.0f, 1.0f);
    else if (row)
      for (int64_t r = 0; r < m; r++, s += ATTN_TILE_)
        g->table->blend(s, s, part + r * ATTN_TILE_, ATTN_F32, ATTN_F32, ATTN_F32,
                        t->groups * ATTN_GROUP_, 1.0f, 1.0f);
  }
}

/* Scores of queries first .. first + n - 1 (cells) of query head h, and their maxima; own: the worker's memory. */
ATTN_FUNC_ void attn_glance_open_(const attn_glance_ *g, attn_glanced_ *t, char *own, int64_t b,
                                  int64_t h, int64_t first, int64_t n) {
  const int64_t rows = attn_glance_rows_(g, b), hk = h / (g->q.heads / g->k.heads);
  float *qt = (float *)(void *)(own + g->at_qt), *zero = (float *)(void *)(own + g->at_zero);
  float lo[ATTN_TILE_], hi[ATTN_TILE_], top[ATTN_TILE_];
  const void *row[ATTN_TILE_];
  attn_modifiers_ mod;
  attn_clear_(&mod, sizeof mod);
  t->s = (float *)(void *)own, t->list = (float *)(void *)(own + g->at_sums);
  t->n = (int)n, t->groups = (int)attn_runs_of_(n, ATTN_GROUP_), t->keys = 0;
  for (int r = 0; r < ATTN_TILE_; r++) {
    t->limit[r] = r < n ? attn_glance_limit_(g, b, first + r) : 0;
    t->keys = attn_max64_(t->keys, t->limit[r]);
    t->m[r] = -INFINITY, t->l[r] = 0.0, lo[r] = 0.0f;
  }
  memset(zero, 0, (size_t)g->q.dim * sizeof *zero);
  for (int64_t c = 0; c < g->cell && t->keys > 0; c++) {
    for (int64_t r = 0; r < n; r++) {
      const int64_t i = (first + r) * g->cell + g->cell - 1 - c;
      row[r] = i < rows ? (const void *)attn_at_(&g->q, b, h, i) : zero;
    }
    g->table->pack(qt, row, (int)n, g->q.dim, (int)g->q.dtype, g->hi, g->lo);
    attn_glance_products_(g, t, own, b, hk, c, qt, top);
  }
  for (int e = 0; e < ATTN_BLOCK_; e++) t->list[e] = (float)e;
  mod.at = t->list, mod.lo = lo, mod.hi = hi;
  for (int64_t j = 0; j < t->keys; j += ATTN_BLOCK_) {
    for (int r = 0; r < ATTN_TILE_; r++)
      hi[r] = (float)attn_max64_(attn_min64_(t->limit[r] - j, ATTN_BLOCK_), 0);
    attn_on_(tile, g->table)
        ->modify_block(t->s + j * ATTN_TILE_, attn_min64_(t->keys - j, ATTN_BLOCK_), 0, t->groups,
                       &mod, t->m);
  }
}

/* Scores of keys j .. j + n - 1 become weights; sum[lane]: theirs, which joins l. */
ATTN_FUNC_ void attn_glance_weigh_(const attn_glance_ *g, attn_glanced_ *t, int64_t j, int64_t n,
                                   double *sum) {
  float l[ATTN_TILE_], alpha[ATTN_TILE_], top[ATTN_TILE_];
  const int lanes = t->groups * ATTN_GROUP_;
  for (int r = 0; r < ATTN_TILE_; r++) top[r] = -INFINITY, sum[r] = 0.0;
  for (int64_t e = 0; e < n; e += ATTN_BLOCK_) {
    for (int r = 0; r < ATTN_TILE_; r++) l[r] = 0.0f;
    attn_on_(tile, g->table)
        ->softmax_block(t->s + (j + e) * ATTN_TILE_, attn_min64_(n - e, ATTN_BLOCK_), 0, t->groups,
                        t->m, l, alpha, top, NULL);
    for (int r = 0; r < lanes; r++) sum[r] += (double)l[r];
  }
  for (int r = 0; r < lanes; r++) t->l[r] += sum[r];
}

/* All keys have been weighed. */
ATTN_FUNC_ void attn_glance_close_(attn_glanced_ *t) {
  for (int r = 0; r < ATTN_TILE_; r++)
    t->share[r] = r >= t->n || t->l[r] == 0.0 ? 0.0f : (float)(1.0 / t->l[r]);
}

/* A row whose sum is not a number gives that to the keys that it sees, and nothing to those behind them. */
ATTN_FUNC_ void attn_glance_spoilt_(attn_glanced_ *t) {
  for (int r = 0; r < t->n; r++) {
    if (t->share[r] == t->share[r]) continue;
    for (int64_t j = 0; j < t->keys; j++)
      t->s[j * ATTN_TILE_ + r] = j < t->limit[r] ? t->share[r] : 0.0f;
    t->share[r] = 1.0f;
  }
}

/* to[j] = what the tile's rows give to key j. */
ATTN_FUNC_ void attn_glance_columns_(const attn_glance_ *g, attn_glanced_ *t, int64_t j, int64_t n,
                                     float *to) {
  int32_t index[ATTN_BLOCK_];
  for (int64_t e = 0; e < n; e++) index[e] = (int32_t)e;
  attn_on_(list, g->table)
      ->dots(to, t->share, t->s + j * ATTN_TILE_, ATTN_TILE_, index, n, t->groups * ATTN_GROUP_,
             ATTN_F32, 0);
}

/* Products of a query and a key, or of cells, that a batch entry's rows `from` .. of each head take. */
ATTN_COLD_ int64_t attn_glance_pairs_(const attn_glance_ *g, int64_t b, int64_t from) {
  const int64_t cells = attn_runs_of_(attn_glance_rows_(g, b), g->cell);
  int64_t pairs = 0;
  for (int64_t i = from; i < cells; i += ATTN_TILE_) {
    const int64_t n = attn_min64_(cells - i, ATTN_TILE_);
    pairs = attn_add_(pairs, attn_mul_(n, attn_glance_limit_(g, b, i + n - 1)));
  }
  return attn_mul_(pairs, g->q.heads);
}

/* ---- checks ---------------------------------------------------------------------------------*/

/* q and k, their lengths; those are read when all else is legal (attn_glance_lens_). */
ATTN_COLD_ int attn_glance_check_(attn_error_ *e, attn_glance_ *g, attn_arguments_ *l,
                                  attn_span_ lens[2], float scale) {
  const int64_t any = ATTN_ANY_;
  attn_operand_ *k;
  if (!attn_check_argument_(e, l, &g->q, ATTN_WORDS_IN_("q"), 0, any, any, any, any, "")) return 0;
  if (g->q.heads < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
  l->batch = g->q.batch, l->heads = g->q.heads;
  k = &l->op[l->n++], k->t = &g->k, k->w = ATTN_WORDS_("k");
  if (!g->pages.held && !(g->aligned ? attn_check_stored_(e, &g->k, k->w, &k->span)
                                     : attn_check_tensor_(e, &g->k, k->w, &k->span)))
    return 0;
  if (g->k.batch != l->batch || g->k.dim != g->q.dim)
    return attn_reject_(e, ATTN_E_SHAPE, "k must be [q.batch, ., ., q.dim]");
  if (g->k.heads < 1 || l->heads % g->k.heads)
    return attn_reject_(e, ATTN_E_HEADS, "k.heads must divide q.heads");
  if (g->q.len > INT32_MAX || g->k.len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "q.len and k.len must be below 2^31");
  return attn_check_scale_(e, scale) &&
         attn_check_array_(e, g->q_len, l->batch, 4, "params.q_len must be aligned to its elements",
                           &lens[0]) &&
         attn_check_array_(e, g->kv_len, l->batch, 4,
                           "params.kv_len must be aligned to its elements", &lens[1]);
}

/* Where row 0 sits, if the caller may say so. */
ATTN_COLD_ int attn_glance_check_off_(attn_error_ *e, attn_glance_ *g, int has_q_off) {
  if (!has_q_off) g->q_off = g->k.len - g->q.len;
  return (g->q_off >= -g->q.len && g->q_off <= g->k.len - g->q.len) ||
         attn_reject_(e, ATTN_E_RANGE, "params.q_off must lie in -q.len..k.len - q.len");
}

ATTN_COLD_ int attn_glance_lens_(attn_error_ *e, const attn_glance_ *g) {
  return attn_check_lens_(e, g->q_len, g->q.batch, g->q.len, "params.q_len must lie in 0..q.len") &&
         attn_check_lens_(e, g->kv_len, g->q.batch, g->k.len, "params.kv_len must lie in 0..k.len");
}

/* Two numbers of the caller that have the same rules wherever they are. */
ATTN_COLD_ int attn_cover_gamma_(attn_error_ *e, float *gamma) {
  if (*gamma == 0.0f) *gamma = attn_to_bits_(*gamma) ? 0.0f : 0.9f;
  return (*gamma >= 0.0f && *gamma <= 1.0f) ||
         attn_reject_(e, ATTN_E_VALUE, "params.gamma must lie in 0..1");
}

/* chosen[j] = 1 for the best of n masses, until those chosen, the ones that are so already among them, are gamma of
 * all; list: room for 2 n candidates. Masses that are no numbers choose all. */
ATTN_FUNC_ void attn_cover_(uint8_t *chosen, const float *mass, int64_t n, float gamma,
                            uint64_t *list) {
  double all = 0.0, sum = 0.0;
  int64_t count = 0;
  for (int64_t j = 0; j < n; j++) {
    all += (double)mass[j];
    if (chosen[j])
      sum += (double)mass[j];
    else
      list[count++] = attn_candidate_(mass[j], j);
  }
  if (gamma >= 1.0f || !(all - all == 0.0)) { /* sums that round must not leave out what is due */
    memset(chosen, 1, (size_t)n);
    return;
  }
  attn_sort_(list, count, list + n);
  for (int64_t x = 0; x < count && sum < (double)gamma * all; x++) {
    const int64_t j = attn_candidate_index_(list[x]);
    chosen[j] = 1, sum += (double)mass[j];
  }
}
