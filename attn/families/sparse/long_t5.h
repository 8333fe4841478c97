/* families/sparse/long_t5.h owns LongT5's transient global attention: rows that are normed sums of blocks of tokens,
 * and a softmax over a window and those rows. */

/* Whole blocks of n tokens, what a sequence has of global rows. */
ATTN_FUNC_ int64_t attn_whole_blocks_(const int32_t *len, int64_t b, int64_t tokens,
                                      int64_t block) {
  return (len ? len[b] : tokens) / block;
}

ATTN_COLD_ int attn_check_blocks_(attn_error_ *e, int64_t *block) {
  if (*block < 0) return attn_reject_(e, ATTN_E_RANGE, "params.block must not be negative");
  if (*block == 0) *block = 16;
  return 1;
}

/* ---- global rows ----------------------------------------------------------------------------*/

typedef struct attn_global_job_ {
  const attn_table_ *table;
  attn_tensor y, x;
  attn_global_rows_params p;
  char *memory;
  int64_t each;
} attn_global_job_;

ATTN_FUNC_ void attn_global_item_(void *job, int worker, int64_t index) {
  const attn_global_job_ *a = (const attn_global_job_ *)job;
  const int64_t g = index % a->y.len, h = index / a->y.len % a->y.heads,
                b = index / a->y.len / a->y.heads, d = a->x.dim, block = a->p.block;
  const int64_t n = a->p.len ? a->p.len[b] : a->x.len;
  const int64_t whole = attn_whole_blocks_(a->p.len, b, a->x.len, block);
  double *sum = (double *)(void *)(a->memory + worker * a->each), squares = 0.0;
  float *row = (float *)(void *)(sum + d);
  for (int64_t c = 0; c < d; c++) sum[c] = 0.0;
  for (int64_t i = g * block; g < whole && i < (g + 1 < whole ? (g + 1) * block : n); i++) {
    a->table->widen(row, attn_at_(&a->x, b, h, i), 0, NULL, 1, d, a->x.dtype, NULL);
    for (int64_t c = 0; c < d; c++) sum[c] += (double)row[c];
  }
  for (int64_t c = 0; c < d; c++) squares += sum[c] * sum[c];
  const double root = sqrt(squares / (double)d + (double)a->p.eps);
  for (int64_t c = 0; c < d; c++) {
    const double x = root > 0.0 || root != root ? sum[c] / root : 0.0;
    row[c] = (float)(a->p.gain && g < whole ? x * (double)a->p.gain[c] : x);
  }
  attn_row_one_nan_(a->table, row, d);
  a->table->blend(attn_at_(&a->y, b, h, g), row, NULL, a->y.dtype, ATTN_F32, ATTN_F32, d, 1.0f,
                  0.0f);
}

ATTN_COLD_ int attn_global_steps_(attn_stage_ *s, void *job) {
  attn_global_job_ *a = (attn_global_job_ *)job;
  a->table = s->table, a->each = attn_piece_(attn_mul_(3, a->x.dim), sizeof(float));
  return attn_stage_for_(s, attn_mul_(attn_mul_(a->y.batch, a->y.heads), a->y.len),
                         attn_global_item_, a, a->each, &a->memory);
}

ATTN_COLD_ int attn_global_check_(attn_error_ *e, attn_global_job_ *j, const attn_ctx *ctx,
                                  int query) {
  enum { X, Y, COUNT };
  const attn_tensor *x = &j->x;
  attn_global_rows_params *p = &j->p;
  attn_span_ arrays[2];
  if (!attn_check_blocks_(e, &p->block)) return 0;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&j->x, "x", 0, ATTN_ANY_, ATTN_ANY_, ATTN_ANY_, ATTN_ANY_, "x"),
      ATTN_OPERAND_(&j->y, "y", ATTN_OUT_, x->batch, x->heads, x->len / p->block, x->dim,
                    "y must be [x.batch, x.heads, x.len / params.block, x.dim]")};
  if (!attn_check_given_(e, op, COUNT)) return 0;
  for (int i = 0; i < COUNT; i++)
    if (!attn_check_operand_(e, &op[i], x->heads)) return 0;
  if (!(p->eps >= 0.0f && p->eps < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.eps must be finite and not negative");
  if (p->eps == 0.0f && !attn_to_bits_(p->eps)) p->eps = 1e-6f;
  return attn_check_array_(e, p->len, x->batch, 4, "params.len must be aligned to its elements",
                           &arrays[0]) &&
         attn_check_array_(e, p->gain, x->dim, 4, "params.gain must be aligned to its elements",
                           &arrays[1]) &&
         attn_check_apart_(e, ctx, op, COUNT, arrays, 2) &&
         (query ||
          (attn_check_lens_(e, p->len, x->batch, x->len, "params.len must lie in 0..x.len") &&
           attn_check_finite_(e, p->gain, x->dim, "params.gain must be finite")));
}

ATTN_COLD_ attn_status attn_global_rows_call_(attn_tensor y, attn_tensor x,
                                              const attn_global_rows_params *params, attn_ctx *ctx,
                                              size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_global_job_ j;
  int workers = 1;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x;
  if (params) j.p = *params;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    (void)attn_global_check_(&e, &j, ctx, bytes != NULL);
  return attn_step_call_(&e, table, workers, ctx, attn_global_steps_, &j, "global rows", bytes);
}
ATTN_CALL_(attn_global_rows, (y, x, params), attn_tensor y, attn_tensor x,
           const attn_global_rows_params *params)

/* ---- attention ------------------------------------------------------------------------------*/

typedef struct attn_long_t5_job_ {
  attn_tensor o, q, k, v, side_k, side_v;
  attn_long_t5_params p;
  const float *
      by; /* [H][2 G - 1]: the bias of global row g for a token of block c is by[h][G - 1 + g - c] */
} attn_long_t5_job_;

/* Adds the bias of global rows. Tokens of a block share it and lie side by side. */
ATTN_FUNC_ void attn_long_t5_bias_(void *user, const attn_score_tile *t) {
  const attn_long_t5_job_ *j = (const attn_long_t5_job_ *)user;
  const int64_t globals = j->side_k.len;
  const int64_t whole = attn_whole_blocks_(j->p.len, t->batch, j->q.len, j->p.block);
  for (int64_t r = 0, end; r < t->queries; r = end) {
    const int64_t own = attn_clamp_(t->query[r] / j->p.block, 0, whole > 0 ? whole - 1 : 0);
    const float *by = j->by + t->head[r] * (2 * globals - 1) + globals - 1 - own;
    for (end = r + 1; end < t->queries && t->head[end] == t->head[r]; end++)
      if (attn_clamp_(t->query[end] / j->p.block, 0, whole > 0 ? whole - 1 : 0) != own) break;
    for (int64_t c = 0; c < t->keys; c++) {
      const float add = by[t->key[c]];
      float *x = t->score + c * t->key_stride + r * t->query_stride;
      for (int64_t n = 0; n < end - r; n++) x[n * t->query_stride] += add;
    }
  }
}

/* The table of global rows, by distances of blocks in place of buckets. */
ATTN_COLD_ void attn_long_t5_fill_(const attn_long_t5_job_ *j, float *by) {
  const int64_t globals = j->side_k.len, heads = j->q.heads;
  int64_t edge[ATTN_T5_MOST_];
  attn_t5_rule_ rule;
  attn_t5_rule_of_(&rule, j->p.buckets, j->p.max_distance, 1);
  attn_t5_edges_(edge, &rule);
  for (int64_t away = 0, side = 0; away < globals; away++) {
    while (side + 1 < rule.side && edge[side + 1] <= away) side++;
    for (int64_t h = 0; h < heads; h++) {
      float *zero = by + h * (2 * globals - 1) + globals - 1;
      zero[-away] = j->p.side_table[side * heads + h];
      if (away) zero[away] = j->p.side_table[(rule.side + side) * heads + h];
    }
  }
}

ATTN_COLD_ int attn_long_t5_steps_(attn_stage_ *s, void *job) {
  attn_long_t5_job_ *j = (attn_long_t5_job_ *)job;
  const attn_tensor *o = &j->o;
  const int64_t globals = j->side_k.len;
  attn_tensor part = *o, lse = j->p.lse;
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  if (globals) {
    part = attn_stage_part_(s, o);
    if (!lse.data) lse = attn_stage_tensor_(s, o->batch, o->heads, o->len, 1);
  }
  p.scale = j->p.scale, p.lse = lse, p.q_len = j->p.len, p.kv_len = j->p.len;
  p.window = attn_window_of(j->p.radius, j->p.radius);
  p.t5.table = j->p.table, p.t5.buckets = j->p.buckets, p.t5.max_distance = j->p.max_distance;
  p.t5.bidirectional = 1, p.has_q_off = 1;
  if (!attn_stage_sdpa_(s, part, j->q, j->k, j->v, &p)) return 0;
  if (!globals) return 1;
  const attn_tensor side = attn_stage_tensor_(s, o->batch, o->heads, o->len, o->dim);
  memset(&p, 0, sizeof p);
  p.scale = j->p.scale, p.q_len = j->p.len;
  p.lse = attn_stage_tensor_(s, o->batch, o->heads, o->len, 1);
  if (j->p.side_table) {
    float *by = (float *)attn_stage_take_(
        s, attn_mul_(o->heads, attn_sub_(attn_mul_(2, globals), 1)), sizeof *by);
    if (s->run) attn_long_t5_fill_(j, by);
    j->by = by, p.modify = attn_long_t5_bias_, p.modify_user = j;
  }
  if (j->p.len) {
    int32_t *whole = (int32_t *)attn_stage_take_(s, o->batch, sizeof *whole);
    for (int64_t b = 0; s->run && b < o->batch; b++)
      whole[b] = (int32_t)attn_whole_blocks_(j->p.len, b, o->len, j->p.block);
    p.kv_len = whole;
  }
  return attn_stage_sdpa_(s, side, j->q, j->side_k, j->side_v, &p) &&
         attn_stage_merge_(s, *o, part, lse, side, p.lse);
}

ATTN_COLD_ int attn_long_t5_check_(attn_error_ *e, attn_long_t5_job_ *j, const attn_ctx *ctx,
                                   int query) {
  enum { Q, K, V, SK, SV, O, LSE, COUNT };
  attn_long_t5_params *p = &j->p;
  const int64_t any = ATTN_ANY_, in = ATTN_DIVIDES_;
  const int64_t b = j->q.batch, h = j->q.heads, t = j->q.len, dk = j->q.dim, dv = j->v.dim;
  const char *align = "params.table and params.side_table must be aligned to their elements";
  attn_t5_rule_ rule;
  attn_span_ more[3];
  if (!attn_check_blocks_(e, &p->block)) return 0;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&j->q, "q", 0, any, any, any, any, "q"),
      ATTN_OPERAND_(&j->k, "k", 0, b, in, t, dk,
                    "k must be [q.batch, a divisor of q.heads, q.len, q.dim]"),
      ATTN_OPERAND_(&j->v, "v", 0, b, in, t, any,
                    "v must be [q.batch, a divisor of q.heads, q.len, dv]"),
      ATTN_OPERAND_(&j->side_k, "side_k", 0, b, in, t / p->block, dk,
                    "side_k must be [q.batch, a divisor of q.heads, q.len / params.block, q.dim]"),
      ATTN_OPERAND_(&j->side_v, "side_v", 0, b, in, t / p->block, dv,
                    "side_v must be [q.batch, a divisor of q.heads, q.len / params.block, v.dim]"),
      ATTN_OPERAND_(&j->o, "o", ATTN_OUT_, b, h, t, dv,
                    "o must be [q.batch, q.heads, q.len, v.dim]"),
      ATTN_OPERAND_(&p->lse, "params.lse", ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b, h, t, 1,
                    "params.lse must be f32 [q.batch, q.heads, q.len, 1]")};
  if (!attn_check_given_(e, op, COUNT)) return 0;
  for (int i = 0; i < COUNT; i++) {
    if (i == K && h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  }
  if (p->radius < 0) return attn_reject_(e, ATTN_E_RANGE, "params.radius must not be negative");
  p->radius = attn_given_or_(p->has_radius, p->radius, 127);
  if (p->buckets < 0 || p->max_distance < 0 ||
      !attn_t5_rule_of_(&rule, p->buckets, p->max_distance, 1))
    return attn_reject_(
        e, ATTN_E_RANGE,
        "params: buckets must be 4 to 1024, max_distance above a quarter of them and "
        "below 2^31");
  if (!attn_check_scale_(e, p->scale)) return 0;
  if (p->scale == 0.0f && !attn_to_bits_(p->scale)) p->scale = 1.0f;
  const int64_t cells = attn_mul_(p->buckets ? p->buckets : 32, h);
  return attn_check_array_(e, p->table, cells, 4, align, &more[0]) &&
         attn_check_array_(e, p->side_table, cells, 4, align, &more[1]) &&
         attn_check_array_(e, p->len, b, 4, "params.len must be aligned to its elements",
                           &more[2]) &&
         attn_check_apart_(e, ctx, op, COUNT, more, 3) &&
         (query ||
          (attn_check_lens_(e, p->len, b, t, "params.len must lie in 0..q.len") &&
           attn_check_finite_(e, p->table, cells, "params.table must be finite") &&
           attn_check_finite_(e, p->side_table, cells, "params.side_table must be finite")));
}

ATTN_COLD_ attn_status attn_long_t5_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, attn_tensor side_k, attn_tensor side_v,
                                          const attn_long_t5_params *params, attn_ctx *ctx,
                                          size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_long_t5_job_ j;
  int workers = 1;
  memset(&j, 0, sizeof j);
  j.o = o, j.q = q, j.k = k, j.v = v, j.side_k = side_k, j.side_v = side_v;
  if (params) j.p = *params;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    (void)attn_long_t5_check_(&e, &j, ctx, bytes != NULL);
  return attn_step_call_(&e, table, workers, ctx, attn_long_t5_steps_, &j,
                         "transient global: window, global rows", bytes);
}
ATTN_CALL_(attn_long_t5, (o, q, k, v, side_k, side_v, params), attn_tensor o, attn_tensor q,
           attn_tensor k, attn_tensor v, attn_tensor side_k, attn_tensor side_v,
           const attn_long_t5_params *params)
