/* families/priors/camtl.h owns the block-diagonal prior of CAMTL (H6): blocks modulated by a task vector,
 * and attention with them, as a modifier of attn_sdpa's scores. */

/* ---- the blocks -----------------------------------------------------------------------------*/

typedef struct attn_film_job_ {
  attn_tensor y, a;
  attn_film_params p;
  int64_t width; /* F */
  const attn_table_ *table;
  char *memory; /* of the workers: gamma and beta, a row */
  int64_t each, at_row;
} attn_film_job_;

/* gamma and beta of a batch entry, side by side. Sums of products in double. */
ATTN_FUNC_ void attn_film_vectors_(const attn_film_job_ *a, int64_t b, float *to) {
  const attn_film_params *p = &a->p;
  const int64_t n = a->width;
  if (p->gamma.data) {
    const attn_tensor *t[2] = {&p->gamma, &p->beta};
    for (int i = 0; i < 2; i++)
      a->table->widen(to + i * n, attn_at_(t[i], t[i]->batch > 1 ? b : 0, 0, 0), 0, NULL, 1, n,
                      t[i]->dtype, NULL);
    return;
  }
  const char *z = attn_at_(&p->z, b, 0, 0);
  attn_tensor w = p->w_f;
  const int turned = attn_turn_back_(&w);
  for (int64_t c = 0; c < 2 * n; c++) {
    double sum = 0.0;
    if (p->b_f.data) sum = (double)attn_number_(attn_at_(&p->b_f, 0, 0, 0), c, p->b_f.dtype, NULL);
    for (int64_t i = 0; i < p->z.dim; i++)
      sum +=
          (double)attn_number_(z, i, p->z.dtype, NULL) *
          (double)attn_number_(attn_at_(&w, 0, 0, turned ? c : i), turned ? i : c, w.dtype, NULL);
    to[c] = (float)(c < n && !p->plain ? sum + 1.0 : sum);
  }
}

/* The blocks of one batch entry. */
ATTN_FUNC_ void attn_film_item_(void *job, int worker, int64_t b) {
  const attn_film_job_ *a = (const attn_film_job_ *)job;
  const int64_t m = a->y.heads, w = a->y.dim, n = a->width;
  float *gamma = (float *)(void *)(a->memory + worker * a->each), *beta = gamma + n;
  float *row = (float *)(void *)(a->memory + worker * a->each + a->at_row);
  attn_film_vectors_(a, b, gamma);
  for (int64_t k = 0; k < m; k++)
    for (int64_t r = 0; r < w; r++) {
      const int64_t at = n == w ? 0 : n == m * w ? k * w : (k * w + r) * w;
      a->table->widen(row, attn_at_(&a->a, 0, k, r), 0, NULL, 1, w, a->a.dtype, NULL);
      for (int64_t c = 0; c < w; c++)
        row[c] = (float)((double)row[c] * (double)gamma[at + c] + (double)beta[at + c]);
      a->table->blend(attn_at_(&a->y, b, k, r), row, NULL, a->y.dtype, ATTN_F32, ATTN_F32, w, 1.0f,
                      0.0f);
    }
}

ATTN_COLD_ int attn_film_check_(attn_error_ *e, attn_film_job_ *a, const attn_film_params *params,
                                const attn_ctx *ctx, int *workers) {
  static const char *const w[] = {ATTN_WORDS_("y"),          ATTN_WORDS_("a"),
                                  ATTN_WORDS_("params.z"),   ATTN_WORDS_("params.w_f"),
                                  ATTN_WORDS_("params.b_f"), ATTN_WORDS_("params.gamma"),
                                  ATTN_WORDS_("params.beta")};
  attn_film_params *p = &a->p;
  const int64_t any = ATTN_ANY_, b = a->y.batch, m = a->a.heads, side = a->a.dim;
  if (!attn_check_ctx_(e, ctx, &a->table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has the vectors");
  *p = *params;
  const int direct = p->gamma.data != NULL || p->beta.data != NULL;
  if (direct && (p->z.data || p->w_f.data || p->b_f.data))
    return attn_reject_(e, ATTN_E_RANGE, "params: z, w_f and b_f, or gamma and beta");
  attn_turn_(&p->w_f, p->w_transposed);
  attn_operand_ op[7] = {
      ATTN_OPERAND_AS_(&a->y, w[0], ATTN_OUT_, any, m, side, side,
                       "y must be [., m, w, w] as a is"),
      ATTN_OPERAND_AS_(&a->a, w[1], 0, 1, any, side, any, "a must be [1, m, w, w]"),
      ATTN_OPERAND_AS_(&p->z, w[2], 0, b, 1, 1, any, "params.z must be [y.batch, 1, 1, Dz]"),
      ATTN_OPERAND_AS_(&p->w_f, w[3], ATTN_MATRIX_, 1, 1, p->z.dim, any,
                       ATTN_IN_OUT_("params.w_f", "Dz", "2F")),
      ATTN_OPERAND_AS_(&p->b_f, w[4], ATTN_OPTIONAL_, 1, 1, 1, p->w_f.dim,
                       "params.b_f must be [1, 1, 1, 2F]"),
      ATTN_OPERAND_AS_(&p->gamma, w[5], 0, any, 1, 1, any,
                       "params.gamma must be [1 or y.batch, 1, 1, F]"),
      ATTN_OPERAND_AS_(&p->beta, w[6], 0, any, 1, 1, p->gamma.dim,
                       "params.beta must be [1 or y.batch, 1, 1, F]")};
  if (!attn_check_given_(e, op, 2)) return 0;
  for (int i = 0; i < 7; i++) {
    if (direct ? i >= 2 && i < 5 : i >= 5) continue;
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
    if (i >= 5 && op[i].t->batch != 1 && op[i].t->batch != b)
      return attn_reject_(e, ATTN_E_SHAPE, op[i].rule);
  }
  const int64_t width = direct ? p->gamma.dim : p->w_f.dim / 2;
  if (!direct && p->w_f.dim % 2) return attn_reject_(e, ATTN_E_SHAPE, op[3].rule);
  if (width != side && width != attn_mul_(m, side) && width != attn_mul_(m, attn_mul_(side, side)))
    return attn_reject_(e, ATTN_E_SHAPE, "F must be w, m w or m w w");
  a->width = width;
  return attn_check_apart_(e, ctx, op, 7, NULL, 0);
}

ATTN_COLD_ int attn_film_steps_(attn_stage_ *s, void *job) {
  attn_film_job_ *a = (attn_film_job_ *)job;
  a->at_row = attn_piece_(attn_mul_(2, a->width), sizeof(float));
  a->each = attn_add_(a->at_row, attn_piece_(a->y.dim, sizeof(float)));
  return attn_stage_for_(s, a->y.batch, attn_film_item_, a, a->each, &a->memory);
}

ATTN_COLD_ attn_status attn_film_blocks_job_call_(attn_tensor y, attn_tensor a,
                                                  const attn_film_params *params, attn_ctx *ctx,
                                                  size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_film_job_ job;
  int workers;
  memset(&job, 0, sizeof job);
  job.y = y, job.a = a;
  if (attn_film_check_(&e, &job, params, ctx, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, job.table, workers, ctx, bytes != NULL);
    if (y.batch == 0 || y.heads == 0) {
      if (!bytes) attn_report_(ctx, job.table, 1, "no-op", "no blocks");
    } else {
      attn_stage_call_(&s, ctx, attn_film_steps_, &job, "rows of blocks", bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_film_blocks_call_(attn_tensor y, attn_tensor a,
                                              const attn_film_params *params, attn_ctx *ctx,
                                              size_t *bytes) {
  return attn_film_blocks_job_call_(y, a, params, ctx, bytes);
}
ATTN_CALL_(attn_film_blocks, (y, a, params), attn_tensor y, attn_tensor a,
           const attn_film_params *params)

/* ---- attention with them --------------------------------------------------------------------*/

ATTN_PUB_ void attn_block_prior_add(void *prior, const attn_score_tile *tile) {
  const attn_block_prior *a = (const attn_block_prior *)prior;
  const attn_tensor *x = &a->blocks;
  const int64_t w = x->dim, n = x->heads * w, keys = tile->keys;
  const int64_t first = keys > 0 ? tile->key[0] : 0, last = keys > 0 ? tile->key[keys - 1] : -1;
  const int in_row = last - first == keys - 1; /* keys ascend */
  for (int64_t r = 0; r < tile->queries; r++) {
    const int64_t p = tile->position[r], k = p / w, lo = k * w, hi = lo + w;
    if (p < 0 || p >= n || last < lo || first >= hi) continue;
    const float *row =
        (const float *)(const void *)attn_at_(x, x->batch > 1 ? tile->batch : 0, k, p - lo);
    float *s = tile->score + r * tile->query_stride;
    int64_t c = in_row && lo > first ? lo - first : 0;
    for (; c < keys && tile->key[c] < hi; c++)
      if (tile->key[c] >= lo) s[c * tile->key_stride] += row[tile->key[c] - lo];
  }
  if (a->then) a->then(a->then_user, tile);
}

ATTN_COLD_ int attn_camtl_check_(attn_error_ *e, attn_block_prior *prior, attn_tensor o,
                                 attn_tensor q, attn_tensor k, const attn_sdpa_params *p,
                                 const attn_ctx *ctx, int data) {
  static const char *const w[] = {ATTN_WORDS_("o"), ATTN_WORDS_("params.attention.lse"),
                                  ATTN_WORDS_("params.attention.map"),
                                  ATTN_WORDS_("params.blocks")};
  attn_tensor lse = p->lse, map = p->map, *x = &prior->blocks;
  const int64_t any = ATTN_ANY_, off = attn_q_off_(p, q.len, k.len);
  const char *square = "params.blocks must be f32 [1 or q.batch, m, w, w]";
  attn_operand_ op[4] = {
      ATTN_OPERAND_AS_(&o, w[0], ATTN_OUT_, any, any, any, any, ""),
      ATTN_OPERAND_AS_(&lse, w[1], ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_AS_(&map, w[2], ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      {x, w[3], ATTN_IS_F32_, any, any, x->dim, any, square, {0, 0, 0, 0}}};
  if (attn_unlike_(p))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.attention.ragged, q_offs and align_lengths must be absent");
  if (k.len == 0) op[2].t->data = NULL;
  for (int i = 0; i < 4; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (x->batch != 1 && x->batch != q.batch) return attn_reject_(e, ATTN_E_SHAPE, square);
  const int64_t n = attn_mul_(x->heads, x->dim);
  if (attn_mul_(x->batch, n) == INT64_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "params.blocks has more rows than can be counted");
  if (off < 0) return attn_reject_(e, ATTN_E_RANGE, "params.attention.q_off must not be negative");
  if (k.len > n || (q.len > 0 && attn_add_(q.len, off) > n))
    return attn_reject_(e, ATTN_E_RANGE, "positions and k.len must lie within the blocks");
  if (!attn_check_apart_(e, ctx, op, 4, NULL, 0)) return 0;
  if (data && ctx && ctx->validate)
    for (int64_t r = 0; r < x->batch * n; r++)
      for (int64_t c = 0; c < x->dim; c++) {
        const float v =
            ((const float *)(const void *)attn_at_(x, r / n, r % n / x->dim, r % x->dim))[c];
        if (v - v != 0.0f) return attn_reject_(e, ATTN_E_VALUE, "params.blocks must be finite");
      }
  return 1;
}

ATTN_COLD_ attn_status attn_camtl_job_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                            attn_tensor v, const attn_camtl_params *params,
                                            attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_ctx plain = attn_before_workspace_(ctx);
  attn_sdpa_params p;
  attn_block_prior prior;
  memset(&p, 0, sizeof p);
  memset(&prior, 0, sizeof prior);
  if (params) p = params->attention, prior.blocks = params->blocks;
  /* attn_sdpa judges the rest: first, since these rules build on its own */
  if (attn_sdpa_need_(&e, o, q, k, v, &p, NULL, &plain, bytes ? 0 : 1) >= 0 &&
      attn_camtl_check_(&e, &prior, o, q, k, &p, bytes ? &plain : ctx, bytes == NULL)) {
    prior.then = p.modify, prior.then_user = p.modify_user;
    p.modify = attn_block_prior_add, p.modify_user = &prior;
    if (!bytes) return attn_sdpa(o, q, k, v, &p, ctx);
    *bytes = attn_sdpa_workspace(o, q, k, v, &p, ctx);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_camtl_call_(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                        const attn_camtl_params *params, attn_ctx *ctx,
                                        size_t *bytes) {
  return attn_camtl_job_call_(o, q, k, v, params, ctx, bytes);
}
ATTN_CALL_(attn_camtl, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_camtl_params *params)
