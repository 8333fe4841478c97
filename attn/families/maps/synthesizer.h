/* families/maps/synthesizer.h owns synthesizer attention: sources that are dot products become queries and
 * keys, side by side, the others addends of the scores. */

typedef struct attn_synthesizer_job_ {
  attn_tensor o, v;
  attn_synthesizer_params p;
  attn_synthesizer_source source[ATTN_SYNTHESIZER_MOST];
  double weight[ATTN_SYNTHESIZER_MOST];
  int64_t q_off;
} attn_synthesizer_job_;

/* ---- checks ---------------------------------------------------------------------------------*/

enum { ATTN_SYNTHESIZER_TENSORS_ = 9 }; /* of a source, at most */

typedef struct attn_operands_ {
  attn_operand_ at[4 + ATTN_SYNTHESIZER_MOST * ATTN_SYNTHESIZER_TENSORS_];
  int n;
  int64_t heads; /* of the queries */
} attn_operands_;

ATTN_COLD_ int attn_operands_add_(attn_error_ *e, attn_operands_ *all, attn_tensor *t,
                                  const char *w, int role, int64_t batch, int64_t heads,
                                  int64_t len, int64_t dim, const char *rule) {
  const attn_operand_ one = ATTN_OPERAND_AS_(t, w, role, batch, heads, len, dim, rule);
  all->at[all->n] = one;
  return attn_check_operand_(e, &all->at[all->n++], all->heads);
}

ATTN_COLD_ int attn_synthesizer_net_check_(attn_error_ *e, attn_operands_ *all,
                                           attn_synthesizer_net *net, int64_t din) {
  static const char *const w[] = {
      ATTN_WORDS_("a source's net w_1"), ATTN_WORDS_("a source's net b_1"),
      ATTN_WORDS_("a source's net w_2"), ATTN_WORDS_("a source's net b_2")};
  attn_turn_(&net->w_1, net->w_transposed), attn_turn_(&net->w_2, net->w_transposed);
  const int64_t some = ATTN_ONE_OR_ALL_, any = ATTN_ANY_, wide = net->w_1.dim;
  if (!attn_operands_add_(e, all, &net->w_1, w[0], ATTN_MATRIX_, 1, some, din, any,
                          ATTN_HEADS_IN_OUT_("a source's net w_1", "1 or o.heads", "x.dim", "e")) ||
      !attn_operands_add_(e, all, &net->b_1, w[1], ATTN_OPTIONAL_, 1, some, 1, wide,
                          "a source's net b_1 must be [1, 1 or o.heads, 1, e], e of w_1") ||
      !attn_operands_add_(
          e, all, &net->w_2, w[2], ATTN_MATRIX_, 1, some, wide, any,
          ATTN_HEADS_IN_OUT_("a source's net w_2", "1 or o.heads", "e (of w_1)", "n")))
    return 0;
  return attn_operands_add_(e, all, &net->b_2, w[3], ATTN_OPTIONAL_, 1, some, 1, net->w_2.dim,
                            "a source's net b_2 must be [1, 1 or o.heads, 1, n], n of w_2");
}

ATTN_COLD_ int attn_synthesizer_source_check_(attn_error_ *e, attn_operands_ *all,
                                              const attn_synthesizer_job_ *j,
                                              attn_synthesizer_source *s) {
  static const char *const w[] = {ATTN_WORDS_("a source's r"),  ATTN_WORDS_("a source's r1"),
                                  ATTN_WORDS_("a source's r2"), ATTN_WORDS_("a source's x"),
                                  ATTN_WORDS_("a source's q"),  ATTN_WORDS_("a source's k")};
  const int64_t some = ATTN_ONE_OR_ALL_, any = ATTN_ANY_, b = j->o.batch, h = j->o.heads;
  const int64_t tq = j->o.len, tk = j->v.len;
  const attn_tensor *rows = NULL;
  int64_t n = tk;
  if ((int)s->kind < 0 || s->kind >= ATTN_SYNTHESIZER_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "a source's kind must be an attn_synthesizer_kind");
  if (s->kind == ATTN_SYNTHESIZER_RANDOM) {
    if (!attn_operands_add_(e, all, &s->r, w[0], 0, 1, some, any, any,
                            "a source's r must be [1, 1 or o.heads, positions, n]"))
      return 0;
    rows = &s->r, n = s->r.dim;
  } else if (s->kind == ATTN_SYNTHESIZER_RANDOM_FACTORED) {
    if (!attn_operands_add_(e, all, &s->r1, w[1], 0, 1, some, any, any,
                            "a source's r1 must be [1, 1 or o.heads, positions, k]") ||
        !attn_operands_add_(e, all, &s->r2, w[2], 0, 1, some, any, s->r1.dim,
                            "a source's r2 must be [1, 1 or o.heads, n, r1.dim]"))
      return 0;
    rows = &s->r1, n = s->r2.len;
  } else if (s->kind == ATTN_SYNTHESIZER_DOT) {
    if (!attn_operands_add_(e, all, &s->q, w[4], 0, b, h, tq, any,
                            "a source's q must have the batch, heads and len of o") ||
        !attn_operands_add_(e, all, &s->k, w[5], 0, b, ATTN_DIVIDES_, tk, s->q.dim,
                            "a source's k must be [o.batch, a divisor of o.heads, v.len, q.dim]"))
      return 0;
    if (!(s->scale - s->scale == 0.0f))
      return attn_reject_(e, ATTN_E_VALUE, "a source's scale must be finite");
  } else {
    const int factored = s->kind == ATTN_SYNTHESIZER_DENSE_FACTORED;
    if (!attn_operands_add_(e, all, &s->x, w[3], 0, b, some, tq, any,
                            "a source's x must be [o.batch, 1 or o.heads, o.len, din]") ||
        !attn_synthesizer_net_check_(e, all, &s->net, s->x.dim) ||
        (factored && !attn_synthesizer_net_check_(e, all, &s->net_b, s->x.dim)))
      return 0;
    n = s->net.w_2.dim;
    if (factored) n = attn_mul_(n, s->net_b.w_2.dim);
    if (factored && ((int)s->tiling < 0 || s->tiling >= ATTN_SYNTHESIZER_TILING_COUNT))
      return attn_reject_(e, ATTN_E_RANGE, "a source's tiling must be an attn_synthesizer_tiling");
  }
  if (n < tk) return attn_reject_(e, ATTN_E_SHAPE, "a source has scores for fewer keys than v.len");
  if (rows && b > 0 && tq > 0 && tk > 0 &&
      (j->q_off < 0 || j->q_off > rows->len || tq > rows->len - j->q_off))
    return attn_reject_(e, ATTN_E_RANGE, "a source has no row for the position of some query");
  return 1;
}

/* j->weight from alpha or logits. */
ATTN_COLD_ int attn_synthesizer_weigh_(attn_error_ *e, attn_synthesizer_job_ *j,
                                       const attn_table_ *table) {
  const float *x = j->p.alpha ? j->p.alpha : j->p.logits;
  const int n = (int)j->p.count;
  float y[ATTN_SYNTHESIZER_MOST] = {1.0f}, top = -INFINITY;
  double sum = 0.0;
  if (x)
    for (int i = 0; i < n; i++) {
      if (!(x[i] - x[i] == 0.0f))
        return attn_reject_(e, ATTN_E_VALUE, "params.alpha and .logits must be finite");
      y[i] = x[i];
      if (y[i] > top) top = y[i];
    }
  if (j->p.logits) {
    for (int i = 0; i < n; i++) y[i] -= top;
    table->exp(y, y, n);
  }
  for (int i = 0; i < n; i++) sum += (double)y[i];
  for (int i = 0; i < n; i++) {
    if (y[i] < 0.0f) return attn_reject_(e, ATTN_E_VALUE, "params.alpha must not be negative");
    j->weight[i] = j->p.logits ? (double)y[i] / sum : (double)y[i];
  }
  if (j->p.alpha && !(sum >= 1.0 - 1e-6 && sum <= 1.0 + 1e-6))
    return attn_reject_(e, ATTN_E_VALUE, "params.alpha must sum to 1 within 1e-6");
  return 1;
}

/* Every rule but those that attn_sdpa_plan_ knows; data = 0: without those that read lengths. */
ATTN_COLD_ int attn_synthesizer_check_(attn_error_ *e, attn_synthesizer_job_ *j,
                                       const attn_synthesizer_params *params, const attn_ctx *ctx,
                                       const attn_table_ **table, int *workers, int data) {
  static const char *const w[] = {ATTN_WORDS_("o"), ATTN_WORDS_("v"), ATTN_WORDS_("params.lse"),
                                  ATTN_WORDS_("params.map")};
  enum { MASK, BIAS, KV_LEN, Q_LEN, ALPHA, LOGITS, ARRAYS };
  const int64_t any = ATTN_ANY_;
  attn_synthesizer_params *p = &j->p;
  attn_span_ span[ARRAYS];
  attn_operands_ all;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has the sources");
  *p = *params;
  all.n = 0, all.heads = j->o.heads;
  if (!attn_operands_add_(e, &all, &j->o, w[0], ATTN_OUT_, any, any, any, any, NULL)) return 0;
  if (j->o.heads < 1) return attn_reject_(e, ATTN_E_SHAPE, "o.heads must be at least 1");
  const int64_t b = j->o.batch, h = j->o.heads, tq = j->o.len, tk = j->v.len;
  if (!attn_operands_add_(e, &all, &j->v, w[1], 0, b, ATTN_DIVIDES_, any, j->o.dim,
                          "v must be [o.batch, a divisor of o.heads, Tk, o.dim]"))
    return 0;
  if (tq >= (int64_t)1 << 40 || tk >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_OVERFLOW, "o.len and v.len must be below 2^40");
  if (!p->has_q_off && p->q_off)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off needs params.has_q_off = 1");
  if (attn_abs64_(p->q_off) >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off must lie within 2^40 of 0");
  j->q_off = p->has_q_off ? p->q_off : tk - tq;
  if (tk == 0) p->map.data = NULL;
  if (!attn_operands_add_(e, &all, &p->lse, w[2], ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b, h,
                          tq, 1, "params.lse must be f32 [o.batch, o.heads, o.len, 1]") ||
      !attn_operands_add_(e, &all, &p->map, w[3], ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b, h,
                          tq, tk, "params.map must be f32 [o.batch, o.heads, o.len, v.len]"))
    return 0;
  if (!p->sources) return attn_reject_(e, ATTN_E_NULL, "params.sources must not be null");
  if (p->count < 1 || p->count > ATTN_SYNTHESIZER_MOST)
    return attn_reject_(e, ATTN_E_RANGE, "params.count must lie in 1..ATTN_SYNTHESIZER_MOST");
  for (int64_t i = 0; i < p->count; i++) {
    j->source[i] = p->sources[i];
    if (!attn_synthesizer_source_check_(e, &all, j, &j->source[i])) return 0;
  }
  if (p->alpha && p->logits)
    return attn_reject_(e, ATTN_E_VALUE, "params.alpha and .logits exclude one another");
  if (!p->alpha && !p->logits && p->count > 1)
    return attn_reject_(e, ATTN_E_NULL, "params.alpha or .logits must be there for two sources");
  if ((p->alpha || p->logits) && p->weights != p->count)
    return attn_reject_(e, ATTN_E_SHAPE, "params.weights must be params.count");
  const int64_t full[4] = {b, h, tq, tk};
  if (!attn_check_masks_(e, &p->mask, &p->bias, full, 0, &span[MASK], &span[BIAS]) ||
      !attn_check_array_(e, p->kv_len, b, 4, "params.kv_len must be aligned to its elements",
                         &span[KV_LEN]) ||
      !attn_check_array_(e, p->q_len, b, 4, "params.q_len must be aligned to its elements",
                         &span[Q_LEN]) ||
      !attn_check_array_(e, p->alpha, p->count, 4, "params.alpha must be aligned to its elements",
                         &span[ALPHA]) ||
      !attn_check_array_(e, p->logits, p->count, 4, "params.logits must be aligned to its elements",
                         &span[LOGITS]) ||
      !attn_check_apart_(e, ctx, all.at, all.n, span, ARRAYS) ||
      !attn_synthesizer_weigh_(e, j, *table))
    return 0;
  if (!data) return 1;
  if (!attn_check_lens_(e, p->kv_len, b, tk, "params.kv_len must lie in 0..v.len") ||
      !attn_check_lens_(e, p->q_len, b, tq, "params.q_len must lie in 0..o.len"))
    return 0;
  const int read = ctx && ctx->validate && p->bias.kind && b && tq && tk;
  return !read || attn_check_bias_(e, *table, &p->bias);
}

/* ---- networks -------------------------------------------------------------------------------*/

/* t for all batch entries and heads. */
ATTN_COLD_ attn_tensor attn_synthesizer_spread_(attn_tensor t, int64_t batch, int64_t heads) {
  if (t.batch == 1) t.batch = batch, t.stride_batch = 0;
  if (t.heads == 1) t.heads = heads, t.stride_head = 0;
  return t;
}

ATTN_COLD_ int64_t attn_synthesizer_heads_(int64_t heads, const attn_tensor *t) {
  return t->data && t->heads > heads ? t->heads : heads;
}

/* y = relu(x w_1 + b_1); y.data null: a new tensor with as few heads as there are different ones. */
ATTN_COLD_ int attn_synthesizer_hidden_(attn_stage_ *s, const attn_synthesizer_net *net,
                                        attn_tensor x, attn_tensor *y) {
  attn_gemm_params g;
  int64_t heads = attn_synthesizer_heads_(x.heads, &net->w_1);
  heads = attn_synthesizer_heads_(heads, &net->b_1);
  memset(&g, 0, sizeof g);
  g.bias = net->b_1, g.activation = ATTN_ACT_RELU;
  if (!y->data) *y = attn_stage_tensor_(s, x.batch, heads, x.len, net->w_1.dim);
  return attn_stage_gemm_(s, *y, x, net->w_1, &g);
}

/* Numbers of queries as factors of addends: y[tile n + c][lane] = by x[row][c]. */
typedef struct attn_factors_ {
  const attn_table_ *table;
  attn_tensor y, x;
  int64_t tiles;
  float by;
} attn_factors_;

ATTN_FUNC_ void attn_factors_item_(void *job, int worker, int64_t index) {
  const attn_factors_ *a = (const attn_factors_ *)job;
  const int64_t tile = index % a->tiles, unit = index / a->tiles, first = tile * ATTN_TILE_;
  const int64_t b = unit / a->x.heads, h = unit % a->x.heads;
  const int n = a->x.len - first < ATTN_TILE_ ? (int)(a->x.len - first) : ATTN_TILE_;
  const void *rows[ATTN_TILE_];
  (void)worker;
  for (int r = 0; r < n; r++) rows[r] = attn_at_(&a->x, b, h, first + r);
  a->table->pack((float *)(void *)attn_at_(&a->y, b, h, tile * a->x.dim), rows, n, a->x.dim,
                 ATTN_F32, a->by, attn_least_(a->by));
}

/* *y = the factors by F(x), for all heads. */
ATTN_COLD_ int attn_synthesizer_factors_(attn_stage_ *s, const attn_synthesizer_net *net,
                                         attn_tensor x, int64_t all, double by, attn_tensor *y) {
  attn_tensor hidden;
  attn_gemm_params g;
  memset(&hidden, 0, sizeof hidden);
  memset(&g, 0, sizeof g);
  if (!attn_synthesizer_hidden_(s, net, x, &hidden)) return 0;
  int64_t heads = attn_synthesizer_heads_(hidden.heads, &net->w_2);
  heads = attn_synthesizer_heads_(heads, &net->b_2);
  attn_factors_ a;
  a.table = s->table, a.by = (float)by, a.tiles = x.len / ATTN_TILE_ + (x.len % ATTN_TILE_ != 0);
  a.x = attn_stage_tensor_(s, x.batch, heads, x.len, net->w_2.dim);
  a.y = attn_stage_tensor_(s, x.batch, heads, attn_mul_(a.tiles, a.x.dim), ATTN_TILE_);
  g.bias = net->b_2;
  if (!attn_stage_gemm_(s, a.x, hidden, net->w_2, &g)) return 0;
  *y = attn_synthesizer_spread_(a.y, x.batch, all);
  return attn_stage_for_(s, attn_mul_(attn_mul_(x.batch, heads), a.tiles), attn_factors_item_, &a,
                         0, NULL);
}

/* ---- queries and keys -----------------------------------------------------------------------*/

/* Rows of y from those of x, or from its columns, times a number. */
typedef struct attn_synthesizer_rows_ {
  const attn_table_ *table;
  attn_tensor y, x;
  const int32_t *len; /* rows that are copied, by batch entry; null: all */
  double by;
  int64_t pieces; /* columns: of 64 of them in y */
  char *memory;
} attn_synthesizer_rows_;

ATTN_FUNC_ void attn_synthesizer_rows_item_(void *job, int worker, int64_t index) {
  const attn_synthesizer_rows_ *a = (const attn_synthesizer_rows_ *)job;
  const int64_t b = index / a->y.heads, h = index % a->y.heads;
  const int64_t n = a->len ? a->len[b] : a->y.len;
  (void)worker;
  for (int64_t i = 0; i < n; i++)
    a->table->blend(attn_at_(&a->y, b, h, i), attn_at_(&a->x, b, h / (a->y.heads / a->x.heads), i),
                    NULL, a->y.dtype, a->x.dtype, ATTN_F32, a->y.dim, (float)a->by, 0.0f);
}

enum { ATTN_TURN_BYTES_ = ATTN_BLOCK_ * ATTN_TILE_ * 4 };

/* 64 columns of y of one matrix: as many rows of x. */
ATTN_FUNC_ void attn_synthesizer_turn_item_(void *job, int worker, int64_t index) {
  const attn_synthesizer_rows_ *a = (const attn_synthesizer_rows_ *)job;
  const int64_t unit = index / a->pieces, c = index % a->pieces * ATTN_TILE_;
  const int64_t b = unit / a->y.heads, h = unit % a->y.heads;
  const int n = a->y.dim - c < ATTN_TILE_ ? (int)(a->y.dim - c) : ATTN_TILE_;
  float *block = (float *)(void *)(a->memory + worker * (int64_t)ATTN_TURN_BYTES_);
  const void *rows[ATTN_TILE_];
  for (int64_t j = 0, m; j < a->y.len; j += m) {
    m = a->y.len - j < ATTN_BLOCK_ ? a->y.len - j : ATTN_BLOCK_;
    for (int r = 0; r < n; r++)
      rows[r] = attn_at_(&a->x, 0, a->x.heads > 1 ? h : 0, c + r) + attn_bytes_(a->x.dtype, j);
    a->table->pack(block, rows, n, m, (int)a->x.dtype, (float)a->by, attn_least_((float)a->by));
    for (int64_t i = 0; i < m; i++)
      memcpy((float *)(void *)attn_at_(&a->y, b, h, j + i) + c, block + i * ATTN_TILE_,
             (size_t)n * sizeof(float));
  }
}

ATTN_COLD_ int attn_synthesizer_copy_(attn_stage_ *s, attn_tensor y, attn_tensor x,
                                      const int32_t *len, double by) {
  attn_synthesizer_rows_ a = {s->table, y, x, len, by, 0, NULL};
  return attn_stage_for_(s, attn_mul_(y.batch, y.heads), attn_synthesizer_rows_item_, &a, 0, NULL);
}

ATTN_COLD_ int attn_synthesizer_turn_(attn_stage_ *s, attn_tensor y, attn_tensor x, double by) {
  attn_synthesizer_rows_ a = {s->table, y, x, NULL, by, (y.dim + ATTN_TILE_ - 1) / ATTN_TILE_,
                              NULL};
  return attn_stage_for_(s, attn_mul_(attn_mul_(y.batch, y.heads), a.pieces),
                         attn_synthesizer_turn_item_, &a, ATTN_TURN_BYTES_, &a.memory);
}

/* The width of a source as a dot product; 0 = it is none. */
ATTN_COLD_ int64_t attn_synthesizer_dot_(const attn_synthesizer_source *c) {
  return c->kind == ATTN_SYNTHESIZER_DOT               ? c->q.dim
         : c->kind == ATTN_SYNTHESIZER_RANDOM_FACTORED ? c->r1.dim
         : c->kind == ATTN_SYNTHESIZER_DENSE           ? c->net.w_1.dim
                                                       : 0;
}

/* What it is multiplied by, beside its weight. */
ATTN_COLD_ double attn_synthesizer_scale_(const attn_synthesizer_source *c) {
  if (c->kind != ATTN_SYNTHESIZER_DOT) return 1.0;
  if (c->scale == 0.0f && !attn_to_bits_(c->scale)) return 1.0 / sqrt((double)c->q.dim);
  return (double)c->scale;
}

/* Columns c .. c + dim - 1. */
ATTN_COLD_ attn_tensor attn_synthesizer_columns_(attn_tensor t, int64_t c, int64_t dim) {
  t = attn_stage_shift_(t, c);
  t.dim = dim;
  return t;
}

/* Queries and keys of the only source of that kind, in place where they can be. */
ATTN_COLD_ int attn_synthesizer_alone_(attn_stage_ *s, const attn_synthesizer_job_ *j,
                                       const attn_synthesizer_source *c, attn_tensor *q,
                                       attn_tensor *k) {
  const int64_t b = j->o.batch, h = j->o.heads, tk = j->v.len;
  if (c->kind == ATTN_SYNTHESIZER_DOT) {
    *q = c->q, *k = c->k;
  } else if (c->kind == ATTN_SYNTHESIZER_RANDOM_FACTORED) {
    *q = attn_stage_rows_(c->r1, j->q_off, j->o.len), *k = attn_stage_rows_(c->r2, 0, tk);
  } else {
    if (!attn_synthesizer_hidden_(s, &c->net, c->x, q)) return 0;
    *k = c->net.w_2;
    if (attn_turn_back_(k)) {
      *k = attn_stage_rows_(*k, 0, tk);
    } else {
      *k = attn_stage_tensor_(s, 1, c->net.w_2.heads, tk, c->net.w_1.dim);
      if (!attn_synthesizer_turn_(s, *k, c->net.w_2, 1.0)) return 0;
    }
  }
  *q = attn_synthesizer_spread_(*q, b, h), *k = attn_synthesizer_spread_(*k, b, k->heads);
  return 1;
}

/* Queries and keys of all such sources, side by side; the keys have the weights. */
ATTN_COLD_ int attn_synthesizer_join_(attn_stage_ *s, const attn_synthesizer_job_ *j, int64_t wide,
                                      attn_tensor *q, attn_tensor *k) {
  const int64_t b = j->o.batch, h = j->o.heads, tk = j->v.len;
  int64_t at = 0;
  *q = attn_stage_tensor_(s, b, h, j->o.len, wide), *k = attn_stage_tensor_(s, b, h, tk, wide);
  for (int64_t i = 0; i < j->p.count; i++) {
    const attn_synthesizer_source *c = &j->source[i];
    const int64_t n = attn_synthesizer_dot_(c);
    const double by = j->weight[i] * attn_synthesizer_scale_(c);
    if (n == 0 || j->weight[i] == 0.0) continue;
    attn_tensor qc = attn_synthesizer_columns_(*q, at, n);
    const attn_tensor kc = attn_synthesizer_columns_(*k, at, n);
    int done;
    at += n;
    if (c->kind == ATTN_SYNTHESIZER_DENSE) {
      attn_tensor w_2 = c->net.w_2;
      const int turned = attn_turn_back_(&w_2);
      done = attn_synthesizer_hidden_(s, &c->net, c->x, &qc) &&
             (turned ? attn_synthesizer_copy_(s, kc, w_2, j->p.kv_len, by)
                     : attn_synthesizer_turn_(s, kc, w_2, by));
    } else {
      const int dot = c->kind == ATTN_SYNTHESIZER_DOT;
      const attn_tensor from = dot ? c->q : attn_stage_rows_(c->r1, j->q_off, j->o.len);
      done = attn_synthesizer_copy_(s, qc, from, NULL, 1.0) &&
             attn_synthesizer_copy_(s, kc, dot ? c->k : c->r2, j->p.kv_len, by);
    }
    if (!done) return 0;
  }
  return 1;
}

/* ---- the call -------------------------------------------------------------------------------*/

/* The addends of source i. */
ATTN_COLD_ int attn_synthesizer_addends_(attn_stage_ *s, const attn_synthesizer_job_ *j, int64_t i,
                                         attn_addend_ *to, int *n) {
  const attn_synthesizer_source *c = &j->source[i];
  const int64_t b = j->o.batch, h = j->o.heads;
  attn_addend_ a;
  memset(&a, 0, sizeof a);
  a.weight = j->weight[i] * ATTN_LOG2E_;
  if (c->kind == ATTN_SYNTHESIZER_RANDOM) {
    a.kind = ATTN_ADD_ROWS_, a.row0 = j->q_off;
    a.x = attn_synthesizer_spread_(c->r, b, h);
  } else if (c->kind == ATTN_SYNTHESIZER_DENSE_FACTORED) {
    a.kind = c->tiling == ATTN_SYNTHESIZER_OUTER ? ATTN_ADD_OUTER_ : ATTN_ADD_TILE_;
    a.na = c->net.w_2.dim, a.nb = c->net_b.w_2.dim;
    if (!attn_synthesizer_factors_(s, &c->net, c->x, h, a.weight, &a.x) ||
        !attn_synthesizer_factors_(s, &c->net_b, c->x, h, 1.0, &a.y))
      return 0;
  } else if (c->kind == ATTN_SYNTHESIZER_DENSE && c->net.b_2.data) {
    a.kind = ATTN_ADD_KEYS_, a.x = attn_synthesizer_spread_(c->net.b_2, b, h);
  } else {
    return 1;
  }
  to[(*n)++] = a;
  return 1;
}

/* Columns of values and outputs that are computed with one map. */
enum { ATTN_SYNTHESIZER_COLUMNS_ = 256 };

/* Batch entries whose values go side by side: 1 = each by itself. Their maps must be equal, and they are
 * wanted as such by no one. */
ATTN_COLD_ int64_t attn_synthesizer_shared_(const attn_synthesizer_job_ *j) {
  const attn_synthesizer_params *p = &j->p;
  const int64_t most = ATTN_SYNTHESIZER_COLUMNS_ / j->o.dim;
  if (p->kv_len || p->q_len || p->map.data || j->v.len == 0 || most < 2) return 1;
  if ((p->mask.kind && p->mask.batch != 1) || (p->bias.kind && p->bias.batch != 1)) return 1;
  for (int64_t i = 0; i < p->count; i++)
    if (j->weight[i] > 0.0 && j->source[i].kind != ATTN_SYNTHESIZER_RANDOM &&
        j->source[i].kind != ATTN_SYNTHESIZER_RANDOM_FACTORED)
      return 1;
  return j->o.batch < most ? j->o.batch : most;
}

/* Entries b0 .. b0 + n - 1. */
ATTN_COLD_ attn_tensor attn_synthesizer_entries_(attn_tensor t, int64_t b0, int64_t n) {
  t = attn_stage_shift_(t, b0 * t.stride_batch);
  t.batch = n;
  return t;
}

/* The problem with the values of n batch entries side by side, as often as it takes. */
ATTN_COLD_ int attn_synthesizer_attend_(attn_stage_ *s, const attn_synthesizer_job_ *j,
                                        attn_softmax_ *problem, attn_sdpa_params *p, int64_t n) {
  const int64_t b = j->o.batch, dv = j->o.dim;
  problem->o = j->o, problem->v = j->v;
  if (n == 1) return attn_stage_problem_(s, problem, p);
  const attn_tensor v = attn_stage_tensor_(s, 1, j->v.heads, j->v.len, n * dv);
  const attn_tensor o = attn_stage_tensor_(s, 1, j->o.heads, j->o.len, n * dv);
  problem->q.batch = problem->k.batch = 1;
  p->lse = attn_stage_entry_(p->lse, 0);
  for (int64_t b0 = 0; b0 < b; b0 += n) {
    attn_softmax_ a = *problem;
    attn_tensor from = v, to = o;
    if (n > b - b0) n = b - b0;
    from.stride_batch = to.stride_batch = dv, from.dim = to.dim = dv, from.batch = to.batch = n;
    a.v = v, a.o = o, a.v.dim = a.o.dim = n * dv;
    if (!attn_synthesizer_copy_(s, from, attn_synthesizer_entries_(j->v, b0, n), NULL, 1.0) ||
        !attn_stage_problem_(s, &a, p) ||
        !attn_synthesizer_copy_(s, attn_synthesizer_entries_(j->o, b0, n), to, NULL, 1.0))
      return 0;
    if (!s->run) break; /* the first is the largest */
  }
  if (!p->lse.data) return 1;
  attn_tensor same = p->lse;
  same.batch = b - 1, same.stride_batch = 0;
  return attn_synthesizer_copy_(s, attn_synthesizer_entries_(j->p.lse, 1, b - 1), same, NULL, 1.0);
}

ATTN_COLD_ int attn_synthesizer_steps_(attn_stage_ *s, void *job) {
  static const float nought = 0.0f;
  const attn_synthesizer_job_ *j = (const attn_synthesizer_job_ *)job;
  const int64_t b = j->o.batch, h = j->o.heads, tq = j->o.len, tk = j->v.len;
  attn_addend_ addends[ATTN_SYNTHESIZER_MOST];
  int added = 0, dots = 0;
  int64_t wide = 0, last = 0;
  attn_softmax_ a;
  attn_sdpa_params p;
  memset(&a, 0, sizeof a);
  memset(&p, 0, sizeof p);
  p.causal = j->p.causal != 0, p.has_q_off = 1, p.q_off = j->q_off, p.kv_len = j->p.kv_len;
  p.window = j->p.window, p.q_len = j->p.q_len;
  p.mask = j->p.mask, p.bias = j->p.bias, p.lse = j->p.lse, p.map = j->p.map, p.scale = 1.0f;
  if (tk > 0)
    for (int64_t i = 0; i < j->p.count; i++) {
      if (j->weight[i] == 0.0) continue;
      if (!attn_synthesizer_addends_(s, j, i, addends, &added)) return 0;
      const int64_t n = attn_synthesizer_dot_(&j->source[i]);
      if (n > 0) wide = attn_add_(wide, n), last = i, dots++;
    }
  if (dots == 0) { /* scores of zero, which cost next to nothing */
    a.q = attn_synthesizer_spread_(attn_bhtd(&nought, ATTN_F32, 1, 1, tq, 1), b, h);
    a.k = attn_synthesizer_spread_(attn_bhtd(&nought, ATTN_F32, 1, 1, tk, 1), b, 1);
    a.q.stride_len = a.k.stride_len = 0;
  } else if (dots == 1) {
    const double by = j->weight[last] * attn_synthesizer_scale_(&j->source[last]);
    p.scale = (float)attn_clamp_f64_(by);
    if (p.scale == 0.0f) p.scale = ATTN_ZERO;
    if (!attn_synthesizer_alone_(s, j, &j->source[last], &a.q, &a.k)) return 0;
  } else if (!attn_synthesizer_join_(s, j, wide, &a.q, &a.k)) {
    return 0;
  }
  a.addend_count = added;
  if (added) a.addends = addends;
  return attn_synthesizer_attend_(s, j, &a, &p, attn_synthesizer_shared_(j));
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_synthesizer_call_(attn_tensor o, attn_tensor v,
                                              const attn_synthesizer_params *params, attn_ctx *ctx,
                                              size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_synthesizer_job_ j;
  const attn_table_ *table;
  int workers;
  memset(&j, 0, sizeof j);
  j.o = o, j.v = v;
  if (attn_synthesizer_check_(&e, &j, params, ctx, &table, &workers, bytes == NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (j.o.batch == 0 || j.o.len == 0) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no queries");
    } else {
      attn_stage_call_(&s, ctx, attn_synthesizer_steps_, &j, "synthesized scores", bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_CALL_(attn_synthesizer, (o, v, params), attn_tensor o, attn_tensor v,
           const attn_synthesizer_params *params)
