/* families/content/lsh_hash.h owns the hash of LSH attention, and what a call of that family is: parameters
 * and checks. */

typedef enum attn_lsh_kind_ { ATTN_LSH_HASH_, ATTN_LSH_SHARED_, ATTN_LSH_APART_ } attn_lsh_kind_;

typedef struct attn_lsh_job_ {
  attn_lsh_kind_ kind;
  attn_tensor o, q, k, v;     /* SHARED: k is q; HASH: q alone */
  int32_t *q_place, *k_place; /* the caller's buckets; null: made here */
  int has_q, has_k;
  attn_lsh_params p; /* resolved: chunk, before and after as numbers, 0 = none */
  int64_t heads, buckets, width;
  const attn_table_ *table;
  float *rot; /* [1 or H][rounds][width][dk] */
  int64_t rot_heads;
  /* The hash at work. */
  attn_tensor x;
  int32_t *to;         /* [units][rounds][T], from unit `first` on */
  int64_t first, each; /* bytes of a worker */
  char *memory;
  /* Attention, see lsh_sort.h and lsh.h: a wave of units (batch entries and heads) at a time. */
  int64_t wave, round, items;
  int32_t *q_order, *k_order; /* [wave][rounds][T] rows and keys by rank */
  int32_t *count;             /* [wave][2] rows and keys that exist */
  uint32_t *rank;             /* [wave][Tk][rounds] */
  uint32_t *bound;            /* [wave][Tq][rounds][2] first rank that a row sees, how many */
  float *inverse;             /* [wave][Tk] 1 / max(|x|, 1e-6) */
  float *state, *state_o;     /* [wave][Tq][2] maximum and sum, [wave][Tq][dv] or null: o itself */
  int64_t *pairs;             /* [wave][items] */
  float scale_hi, scale_lo, penalty; /* of scores in log2 units */
  double scale;
} attn_lsh_job_;

/* ---- parameters -----------------------------------------------------------------------------*/

/* n_b and the columns of a round; 0 = the factors are not legal. */
ATTN_COLD_ int64_t attn_lsh_factors_(const attn_lsh_params *p, int64_t len, int64_t *width) {
  int64_t n = 1;
  *width = 0;
  if (!p->factors) {
    *width = len >= 64 ? len / 64 : 1;
    return p->factor_count == 0 ? 2 * *width : 0;
  }
  if (p->factor_count < 1) return 0;
  if (p->factor_count == 1 && p->factors[0] == 1) return 1;
  for (int64_t f = 0; f < p->factor_count; f++) {
    if (p->factors[f] < 2 || p->factors[f] % 2) return 0;
    n *= p->factors[f], *width += p->factors[f] / 2;
    if (n > INT32_MAX) return 0;
  }
  return n;
}

ATTN_PUB_ int64_t attn_lsh_buckets(int64_t len, const attn_lsh_params *params) {
  int64_t width;
  attn_lsh_params p;
  memset(&p, 0, sizeof p);
  if (params) p = *params;
  if (len < 0 || len > INT32_MAX || (uintptr_t)p.factors % 4) return 0;
  return attn_lsh_factors_(&p, len, &width);
}

/* Numbers of the parameters; len: what the default of n_b counts. */
ATTN_COLD_ int attn_lsh_params_(attn_error_ *e, attn_lsh_job_ *a, int64_t len) {
  attn_lsh_params *p = &a->p;
  const int whole = p->has_chunk && p->chunk == 0;
  if (p->rounds < 0 || p->rounds > 1 << 20)
    return attn_reject_(e, ATTN_E_RANGE, "params.rounds must lie in 1..2^20, or be 0");
  if ((uintptr_t)p->factors % 4)
    return attn_reject_(e, ATTN_E_ALIGN, "params.factors must be aligned to its elements");
  a->buckets = attn_lsh_factors_(p, len, &a->width);
  if (a->buckets == 0)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.factors must be params.factor_count even numbers >= 2 of a product "
                        "below 2^31, or a single 1");
  if (p->heads < 0) return attn_reject_(e, ATTN_E_RANGE, "params.heads must not be negative");
  if (p->chunk < 0 || p->before < 0 || p->after < 0)
    return attn_reject_(e, ATTN_E_RANGE, "params.chunk, .before and .after must not be negative");
  if ((int)p->self != ATTN_LSH_SELF_ALONE && (int)p->self != ATTN_LSH_SELF_PENALTY)
    return attn_reject_(e, ATTN_E_RANGE, "params.self must be an attn_lsh_self");
  if (!(p->penalty >= 0.0f && p->penalty <= FLT_MAX))
    return attn_reject_(e, ATTN_E_VALUE, "params.penalty must be finite and >= 0");
  if (p->wrap && !p->across)
    return attn_reject_(e, ATTN_E_RANGE, "params.wrap needs params.across");
  if (p->across && whole) return attn_reject_(e, ATTN_E_RANGE, "params.across needs chunks");
  if (a->kind == ATTN_LSH_APART_ && p->chunk > 0)
    return attn_reject_(e, ATTN_E_RANGE, "params.chunk must be 0 in attn_lsh_qk");
  if (a->kind == ATTN_LSH_APART_ && (p->across || p->self != ATTN_LSH_SELF_ALONE))
    return attn_reject_(e, ATTN_E_RANGE, "params.across and .self must be 0 in attn_lsh_qk");
  if (a->kind != ATTN_LSH_APART_ && p->q_len)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_len must be null but in attn_lsh_qk");
  if (p->rounds == 0) p->rounds = 8;
  p->chunk =
      attn_given_or_(p->has_chunk, p->chunk, attn_max64_(attn_ceil_(2 * len, a->buckets), 1));
  if (a->kind == ATTN_LSH_APART_) p->chunk = 0;
  p->before = attn_given_or_(p->has_before, p->before, 1);
  p->chunk = attn_min64_(p->chunk, attn_max64_(len, 1)); /* no more tokens, no more chunks */
  p->before = attn_min64_(p->before, len), p->after = attn_min64_(p->after, len);
  if (p->penalty == 0.0f && !attn_to_bits_(p->penalty)) p->penalty = 1e5f;
  return attn_check_scale_(e, p->scale);
}

/* ---- checks ---------------------------------------------------------------------------------*/

ATTN_FUNC_ int64_t attn_lsh_len_(const int32_t *len, int64_t b, int64_t all) {
  return len ? len[b] : all;
}

/* Whether key j of entry b exists. */
ATTN_INLINE_ int attn_lsh_exists_(const attn_lsh_job_ *a, int64_t b, int64_t j) {
  return !a->p.valid || a->p.valid[b * a->k.len + j];
}

/* Rules that read arrays. */
ATTN_COLD_ int attn_lsh_data_(attn_error_ *e, const attn_lsh_job_ *a) {
  const attn_lsh_params *p = &a->p;
  const int64_t r = p->rounds;
  if (!attn_check_lens_(e, p->q_len, a->q.batch, a->q.len, "params.q_len must lie in 0..q.len") ||
      !attn_check_lens_(e, p->kv_len, a->k.batch, a->k.len, "params.kv_len must lie in 0..T"))
    return 0;
  if (a->kind != ATTN_LSH_HASH_)
    for (int64_t b = 0; b < a->q.batch; b++) {
      const int64_t nk = attn_lsh_len_(p->kv_len, b, a->k.len);
      const int64_t nq = attn_lsh_len_(p->q_len, b, a->q.len);
      for (int64_t u = b * a->heads * r; u < (b + 1) * a->heads * r; u++) {
        int bad = 0;
        if (a->has_k)
          for (int64_t j = 0; j < nk; j++)
            bad |= a->k_place[u * a->k.len + j] < 0 && attn_lsh_exists_(a, b, j);
        if (a->kind == ATTN_LSH_APART_ && a->has_q)
          for (int64_t i = 0; i < nq; i++) bad |= a->q_place[u * a->q.len + i] < 0;
        if (bad) return attn_reject_(e, ATTN_E_INDEX, "buckets must not be negative");
      }
    }
  return 1;
}

/* Every rule; data = 0: without those that read arrays, the factors apart. */
ATTN_COLD_ int attn_lsh_check_(attn_error_ *e, attn_lsh_job_ *a, const attn_lsh_params *params,
                               const attn_ctx *ctx, const attn_table_ **table, int *workers,
                               int data) {
  static const char *const w[] = {
      ATTN_WORDS_("x"),         ATTN_WORDS_("q"),       ATTN_WORDS_("k"),
      ATTN_WORDS_("v"),         ATTN_WORDS_("o"),       ATTN_WORDS_("params.lse"),
      ATTN_WORDS_("q_buckets"), ATTN_WORDS_("buckets"), ATTN_WORDS_("params.rotations")};
  enum { Q, K, V, O, LSE, QP, KP, ROT, COUNT };
  const int64_t any = ATTN_ANY_, in = ATTN_DIVIDES_;
  const int hash = a->kind == ATTN_LSH_HASH_, apart = a->kind == ATTN_LSH_APART_;
  attn_lsh_params *p = &a->p;
  attn_span_ more[4];
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (params) *p = *params;
  if (!apart) a->k = a->q;
  const int64_t b = a->q.batch, t = a->q.len;
  attn_operand_ q = ATTN_OPERAND_AS_(&a->q, w[apart ? 1 : 0], 0, any, any, any, any, "");
  if (!attn_check_operand_(e, &q, 0)) return 0;
  if (a->q.heads < 1) return attn_reject_(e, ATTN_E_SHAPE, "x.heads, q.heads must be at least 1");
  if (t > INT32_MAX || (apart && a->k.len > INT32_MAX))
    return attn_reject_(e, ATTN_E_OVERFLOW, "x.len, q.len and k.len must be below 2^31");
  a->heads = hash && p->heads > 0 ? p->heads : a->q.heads;
  if (hash && a->heads % a->q.heads)
    return attn_reject_(e, ATTN_E_HEADS, "params.heads must be a multiple of x.heads");
  attn_operand_ k = ATTN_OPERAND_AS_(&a->k, w[2], 0, b, in, any, a->q.dim,
                                     "k must be [q.batch, a divisor of q.heads, ., q.dim]");
  if (apart && !attn_check_operand_(e, &k, a->heads)) return 0;
  if (!apart) a->k = a->q;
  if (!attn_lsh_params_(e, a, a->k.len)) return 0;
  if (a->width == 0 && p->rotations.data)
    return attn_reject_(e, ATTN_E_SHAPE, "params.rotations must be absent for one bucket");
  /* the buckets as views: their heads are rounds of heads */
  const int64_t rows = attn_mul_(a->heads, p->rounds);
  attn_tensor q_place = attn_bhtd(a->q_place, ATTN_F32, b, rows, t, 1);
  attn_tensor k_place = attn_bhtd(a->k_place, ATTN_F32, b, rows, a->k.len, 1);
  const int role = ATTN_IS_F32_ | (hash ? ATTN_OUT_ : ATTN_OPTIONAL_);
  attn_operand_ op[COUNT] = {
      q,
      k,
      ATTN_OPERAND_AS_(&a->v, w[3], 0, b, in, a->k.len, any,
                       "v must be [batch, a divisor of heads, T, .]"),
      ATTN_OPERAND_AS_(&a->o, w[4], ATTN_OUT_, b, a->heads, t, a->v.dim,
                       "o must be [batch, heads, rows, v.dim]"),
      ATTN_OPERAND_AS_(&p->lse, w[5], ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b, a->heads, t, 1,
                       "params.lse must be f32 [batch, heads, rows, 1]"),
      ATTN_OPERAND_AS_(&q_place, w[6], role, any, any, any, any, ""),
      ATTN_OPERAND_AS_(&k_place, w[7], role, any, any, any, any, ""),
      ATTN_OPERAND_AS_(
          &p->rotations, w[8], ATTN_OPTIONAL_ | ATTN_IS_F32_, any, p->rounds, a->q.dim, a->width,
          "params.rotations must be f32 [1 or heads, rounds, dk, sum of factors / 2]")};
  if (hash) p->lse.data = NULL;
  for (int i = V; i < COUNT; i++) {
    if ((hash && i <= O) || (!apart && i == QP)) {
      op[i].role = 0;
      continue;
    }
    if (!attn_check_operand_(e, &op[i], a->heads)) return 0;
  }
  if (p->rotations.data && p->rotations.batch != 1 && p->rotations.batch != a->heads)
    return attn_reject_(e, ATTN_E_SHAPE, op[ROT].rule);
  if (apart && a->has_q != a->has_k)
    return attn_reject_(e, ATTN_E_NULL, "q_buckets and k_buckets go together");
  return attn_check_array_(e, p->valid, attn_mul_(b, a->k.len), 1, "", &more[0]) &&
         attn_check_array_(e, p->kv_len, b, 4, "params.kv_len must be aligned to its elements",
                           &more[1]) &&
         attn_check_array_(e, p->q_len, b, 4, "params.q_len must be aligned to its elements",
                           &more[2]) &&
         attn_check_array_(e, p->factors, p->factor_count, 4, "", &more[3]) &&
         attn_check_apart_(e, ctx, op, COUNT, more, 4) && (!data || attn_lsh_data_(e, a));
}

/* ---- the hash -------------------------------------------------------------------------------*/

/* The rotation of one head and round, a row for each column. */
ATTN_FUNC_ void attn_lsh_rotation_(void *job, int worker, int64_t index) {
  const attn_lsh_job_ *a = (const attn_lsh_job_ *)job;
  const int64_t h = index / a->p.rounds, r = index % a->p.rounds, dk = a->q.dim;
  uint64_t s = attn_stream_(a->p.seed, ATTN_DRAW_ROTATIONS_, h, r);
  float *to = a->rot + index * a->width * dk;
  (void)worker;
  for (int64_t c = 0; c < dk; c++, to++) {
    const float *given = NULL;
    if (a->p.rotations.data)
      given = (const float *)(const void *)attn_at_(&a->p.rotations, h, r, c);
    for (int64_t x = 0; x < a->width; x++) {
      uint64_t sum = 0;
      if (!given)
        for (int n = 0; n < 12; n++) sum += attn_next64_(&s) >> 32;
      to[x * dk] = given ? given[x] : (float)((double)(int64_t)sum / 4294967296.0 - 6.0);
    }
  }
}

/* The largest and the least product of each row so far, and the first columns that had them. */
typedef struct attn_lsh_best_ {
  float high[ATTN_TILE_], low[ATTN_TILE_];
  int32_t high_at[ATTN_TILE_], low_at[ATTN_TILE_];
} attn_lsh_best_;

/* Columns at .. at + n - 1 join those before. Selections by masks, in copies that nothing aliases: so
 * compilers see vectors. */
ATTN_FUNC_ void attn_lsh_join_(attn_lsh_best_ *best, const float *z, int64_t at, int64_t n) {
  attn_lsh_best_ b;
  if (at > 0) memcpy(&b, best, sizeof b);
  if (at == 0)
    for (int r = 0; r < ATTN_TILE_; r++)
      b.high[r] = -INFINITY, b.low[r] = INFINITY, b.high_at[r] = b.low_at[r] = 0;
  for (int64_t c = at; c < at + n; c++, z += ATTN_TILE_)
    for (int r = 0; r < ATTN_TILE_; r++) {
      const float x = z[r];
      const int32_t up = -(x > b.high[r]), down = -(x < b.low[r]), here = (int32_t)c;
      b.high_at[r] = (b.high_at[r] & ~up) | (here & up);
      b.low_at[r] = (b.low_at[r] & ~down) | (here & down);
      b.high[r] = x > b.high[r] ? x : b.high[r];
      b.low[r] = x < b.low[r] ? x : b.low[r];
    }
  memcpy(best, &b, sizeof b);
}

/* The index in [z ; -z] of the largest, times unit, joins the buckets; first: it is the first part. */
ATTN_FUNC_ void attn_lsh_put_(const attn_lsh_best_ *best, int32_t *to, int n, int64_t half,
                              int64_t unit, int first) {
  for (int r = 0; r < n; r++) {
    const int32_t down = -(-best->low[r] > best->high[r]);
    const int32_t at = (best->high_at[r] & ~down) | ((best->low_at[r] + (int32_t)half) & down);
    to[r] = (first ? 0 : to[r]) + at * (int32_t)unit;
  }
}

/* Buckets of a tile of rows of one unit in all rounds. */
ATTN_FUNC_ void attn_lsh_hash_item_(void *job, int worker, int64_t index) {
  const attn_lsh_job_ *a = (const attn_lsh_job_ *)job;
  const attn_tensor *x = &a->x;
  const int64_t tiles = attn_ceil_(x->len, ATTN_TILE_), unit = a->first + index / tiles;
  const int64_t b = unit / a->heads, h = unit % a->heads, i0 = index % tiles * ATTN_TILE_;
  const int64_t rounds = a->p.rounds, columns = rounds * a->width, dk = x->dim;
  const int n = (int)attn_min64_(x->len - i0, ATTN_TILE_);
  const float *rot = a->rot + (a->rot_heads > 1 ? h : 0) * columns * dk;
  int32_t *to = a->to + index / tiles * rounds * x->len + i0;
  float *s = (float *)(void *)(a->memory + worker * a->each), *qt = s + ATTN_BLOCK_ * ATTN_TILE_;
  float top[ATTN_TILE_];
  const void *row[ATTN_TILE_];
  attn_lsh_best_ best;
  int64_t at = 0, factor = 0, unit_of = 1; /* the column of a factor; what its number counts */
  if (a->width == 0)
    for (int64_t r = 0; r < rounds; r++) memset(to + r * x->len, 0, (size_t)n * sizeof *to);
  for (int r = 0; r < n; r++) row[r] = attn_at_(x, b, h / (a->heads / x->heads), i0 + r);
  if (columns) a->table->pack(qt, row, n, dk, (int)x->dtype, 1.0f, attn_least_(1.0f));
  for (int64_t c = 0; c < columns; c += ATTN_BLOCK_) {
    const int64_t some = attn_min64_(columns - c, ATTN_BLOCK_);
    for (int r = 0; r < ATTN_TILE_; r++) top[r] = -INFINITY;
    attn_on_(tile, a->table)
        ->score_block(s, qt, rot + c * dk, dk, some, dk, 0, (int)attn_ceil_(n, ATTN_GROUP_), top);
    for (int64_t e = 0, these; e < some; e += these) {
      const int64_t half = (a->p.factors ? a->p.factors[factor] : a->buckets) / 2;
      these = attn_min64_(some - e, half - at);
      attn_lsh_join_(&best, s + e * ATTN_TILE_, at, these);
      at += these;
      if (at < half) continue;
      attn_lsh_put_(&best, to, n, half, unit_of, factor == 0);
      at = 0, unit_of *= 2 * half;
      if (++factor < a->p.factor_count) continue;
      factor = 0, unit_of = 1, to += x->len;
    }
  }
}

/* Rotations, once a call. */
ATTN_COLD_ int attn_lsh_rotations_(attn_stage_ *s, attn_lsh_job_ *a) {
  a->rot_heads = a->p.rotations.data ? a->p.rotations.batch : a->heads;
  const int64_t all = attn_mul_(a->rot_heads, a->p.rounds);
  a->rot = (float *)attn_stage_take_(s, attn_mul_(attn_mul_(all, a->width), a->q.dim), 4);
  return a->width == 0 || attn_stage_for_(s, all, attn_lsh_rotation_, a, 0, NULL);
}

/* The buckets of x for n units. */
ATTN_COLD_ int attn_lsh_buckets_(attn_stage_ *s, attn_lsh_job_ *a, const attn_tensor *x,
                                 int32_t *to, int64_t n) {
  a->x = *x, a->to = to;
  a->each = attn_piece_(attn_mul_(attn_add_(ATTN_BLOCK_, x->dim), ATTN_TILE_), 4);
  return attn_stage_for_(s, attn_mul_(n, attn_ceil_(x->len, ATTN_TILE_)), attn_lsh_hash_item_, a,
                         a->each, &a->memory);
}

/* ---- the call -------------------------------------------------------------------------------*/

/* Any call of the family, or with bytes its workspace query. */
ATTN_COLD_ attn_status attn_lsh_job_call_(attn_lsh_job_ *a, const attn_lsh_params *params,
                                          attn_steps_fn_ steps, const char *path, attn_ctx *ctx,
                                          size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_lsh_check_(&e, a, params, ctx, &table, &workers, bytes == NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (a->q.batch > 0 && a->q.len > 0)
      attn_stage_call_(&s, ctx, steps, a, path, bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no rows");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ int attn_lsh_hash_steps_(attn_stage_ *s, void *job) {
  attn_lsh_job_ *a = (attn_lsh_job_ *)job;
  a->table = s->table;
  return attn_lsh_rotations_(s, a) &&
         attn_lsh_buckets_(s, a, &a->q, a->k_place, attn_mul_(a->q.batch, a->heads));
}

ATTN_COLD_ attn_lsh_job_ attn_lsh_hash_job_(const int32_t *buckets, attn_tensor x) {
  attn_lsh_job_ a;
  memset(&a, 0, sizeof a);
  a.q = x, a.k_place = (int32_t *)(uintptr_t)buckets, a.has_k = 1;
  return a;
}
ATTN_COLD_ attn_status attn_lsh_hash_call_(int32_t *buckets, attn_tensor x,
                                           const attn_lsh_params *params, attn_ctx *ctx,
                                           size_t *bytes) {
  attn_lsh_job_ a = attn_lsh_hash_job_(buckets, x);
  return attn_lsh_job_call_(&a, params, attn_lsh_hash_steps_, "rotations and argmax", ctx, bytes);
}
ATTN_CALL_(attn_lsh_hash, (buckets, x, params), int32_t *buckets, attn_tensor x,
           const attn_lsh_params *params)
