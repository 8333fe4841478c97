/* families/memory/knn_lm.h owns the exact search for nearest stored contexts, and kNN-LM, which mixes
 * their tokens into the probabilities of a language model. */

typedef struct attn_knn_job_ {
  attn_tensor q, keys, log_p, log_lm;
  const int32_t *values, *target;
  int32_t *index; /* [n, k] results of the search, either may be null */
  float *distance;
  int64_t k, most; /* asked for; min(k, N) */
  attn_knn_metric metric;
  float lambda, temperature;
  int64_t vocabulary;
  /* the search: items are (tile of queries, range of keys) */
  attn_topk_ plan;
  int64_t tiles, splits, range;
  uint64_t *found; /* [n, splits, most] candidates, 0 = none */
  char *memory;
  int64_t each;
} attn_knn_job_;

/* ---- search ---------------------------------------------------------------------------------*/

ATTN_FUNC_ void attn_knn_scan_(void *job, int worker, int64_t item) {
  const attn_knn_job_ *a = (const attn_knn_job_ *)job;
  const int64_t tile = item / a->splits, split = item % a->splits;
  const int64_t first = tile * ATTN_TILE_, from = split * a->range;
  const int64_t left = a->q.len - first, keys = a->keys.len - from;
  const int n = left < ATTN_TILE_ ? (int)left : ATTN_TILE_;
  const void *rows[ATTN_TILE_] = {NULL};
  attn_topk_ t = a->plan;
  for (int r = 0; r < n; r++) rows[r] = attn_at_(&a->q, 0, 0, first + r);
  attn_topk_open_(&t, a->memory + worker * a->each, rows, n, a->q.dtype, 1.0f);
  if (keys > 0)
    attn_topk_scan_(&t, attn_at_(&a->keys, 0, 0, from), a->keys.stride_len, a->keys.dtype,
                    keys < a->range ? keys : a->range, from);
  for (int r = 0; r < n; r++) {
    uint64_t *to = a->found + ((first + r) * a->splits + split) * a->most;
    attn_topk_keep_(&t, r);
    memset(to, 0, (size_t)a->most * sizeof *to);
    memcpy(to, t.list + r * t.room, (size_t)t.count[r] * sizeof *to);
  }
}

/* Joins the ranges of one query and writes its neighbours. */
ATTN_FUNC_ void attn_knn_join_(void *job, int worker, int64_t row) {
  const attn_knn_job_ *a = (const attn_knn_job_ *)job;
  uint64_t *c = a->found + row * a->splits * a->most;
  uint64_t *room = (uint64_t *)(void *)(a->memory + worker * a->each);
  if (a->most > 0) {
    attn_select_(c, a->splits * a->most, a->most, room);
    attn_sort_(c, a->most, room);
  }
  for (int64_t i = 0; i < a->k; i++) {
    int32_t index = -1;
    float d = INFINITY;
    if (i < a->most) {
      index = (int32_t)attn_candidate_index_(c[i]);
      d = -attn_candidate_score_(c[i]);
      if (d != d) d = attn_from_bits_(0x7fc00000u);
      if (a->metric == ATTN_KNN_L2) d = (float)sqrt((double)d);
    }
    if (a->index) a->index[row * a->k + i] = index;
    if (a->distance) a->distance[row * a->k + i] = d;
  }
}

/* Fills a->index and a->distance. Few queries are cut by keys as well, so that all workers have
 * some; what is found does not depend on it. */
ATTN_COLD_ int attn_knn_find_(attn_stage_ *s, attn_knn_job_ *a) {
  const int64_t n = a->q.len, keys = a->keys.len;
  const int64_t enough = keys / 4096 + 1;
  a->tiles = n / ATTN_TILE_ + (n % ATTN_TILE_ != 0);
  a->splits = (s->workers + a->tiles - 1) / a->tiles;
  if (a->splits > enough) a->splits = enough;
  a->range = (keys / a->splits / ATTN_BLOCK_ + 1) * ATTN_BLOCK_;
  attn_topk_plan_(&a->plan, s->table, a->q.dim, a->most > 0 ? a->most : 1, a->keys.dtype,
                  a->metric != ATTN_KNN_IP);
  const int64_t row = attn_mul_(a->splits, a->most);
  a->found = (uint64_t *)attn_stage_take_(s, attn_mul_(n, row), sizeof(uint64_t));
  if (s->run) s->pairs += n * keys;
  a->each = a->plan.bytes;
  if (!attn_stage_for_(s, attn_mul_(a->tiles, a->splits), attn_knn_scan_, a, a->each, &a->memory))
    return 0;
  a->each = attn_piece_(row, sizeof(uint64_t));
  return attn_stage_for_(s, n, attn_knn_join_, a, a->each, &a->memory);
}

/* ---- the mixture ----------------------------------------------------------------------------*/

/* a - b, where equal infinities are equal */
ATTN_FUNC_ double attn_apart_(float a, float b) { return a == b ? 0.0 : (double)a - (double)b; }

/* log(exp(a) + exp(b)); e = exp(-|a - b|) */
ATTN_FUNC_ double attn_log_join_(double a, double b, float e) {
  const double top = a > b ? a : b;
  return e > 0.0f ? top + attn_log2_(1.0f + e) * ATTN_LN2_ : top;
}

/* What one worker mixes in: tokens of the neighbours with their ranks, and two rows. */
typedef struct attn_mix_ {
  uint64_t *token, *room;
  float *x, *y;
} attn_mix_;

ATTN_FUNC_ int64_t attn_mix_cut_(attn_mix_ *m, char *memory, int64_t k) {
  const int64_t pairs = attn_piece_(attn_mul_(2, k), 8), row = attn_piece_(k, 4);
  if (m) {
    m->token = (uint64_t *)(void *)memory, m->room = m->token + k;
    m->x = (float *)(void *)(memory + pairs), m->y = (float *)(void *)(memory + pairs + row);
  }
  return attn_add_(pairs, attn_mul_(2, row));
}

/* One row. Neighbours of one token are a group; x becomes exp of what each lies behind the nearest
 * of its group, then y of the group: its log-probability under the neighbours. */
ATTN_FUNC_ void attn_knn_mix_(void *job, int worker, int64_t row) {
  const attn_knn_job_ *a = (const attn_knn_job_ *)job;
  const attn_table_ *f = a->plan.table;
  const int64_t n = a->most;
  const float *d = a->distance + row * a->k;
  const int32_t *index = a->index + row * a->k;
  const double t = (double)a->temperature;
  char *y = attn_at_(&a->log_p, 0, 0, row);
  const char *lm = attn_at_(&a->log_lm, 0, 0, row);
  const attn_dtype ty = a->log_p.dtype, tx = a->log_lm.dtype;
  const double near = (attn_log2_(a->lambda * 18446744073709551616.0f) - 64.0) * ATTN_LN2_;
  const double far = a->lambda < 1.0f ? attn_log2_(1.0f - a->lambda) * ATTN_LN2_ : -HUGE_VAL;
  attn_mix_ m;
  int64_t groups = 0;
  attn_mix_cut_(&m, a->memory + worker * a->each, n);

  /* the sum over all neighbours, as a logarithm beside the nearest */
  double sum = 0.0;
  for (int64_t i = 0; i < n; i++) m.x[i] = (float)(-attn_apart_(d[i], d[0]) / t);
  f->exp(m.x, m.x, n);
  for (int64_t i = 0; i < n; i++) sum += (double)m.x[i];
  const double all = attn_log2_((float)sum) * ATTN_LN2_;

  /* groups, nearest first within each */
  for (int64_t i = 0; i < n; i++)
    m.token[i] = (uint64_t)(uint32_t)a->values[index[i]] << 32 | (uint32_t) ~(uint32_t)i;
  attn_sort_(m.token, n, m.room);
  for (int64_t i = 0, best = 0; i < n; i++) {
    const int64_t rank = attn_candidate_index_(m.token[i]);
    if (i == 0 || m.token[i] >> 32 != m.token[i - 1] >> 32) best = rank;
    m.x[i] = (float)(-attn_apart_(d[rank], d[best]) / t);
  }
  f->exp(m.x, m.x, n);
  for (int64_t i = 0; i < n;) {
    const uint64_t token = m.token[i] >> 32;
    const int64_t best = attn_candidate_index_(m.token[i]);
    double part = 0.0;
    for (; i < n && m.token[i] >> 32 == token; i++) part += (double)m.x[i];
    if (a->target && token != (uint32_t)a->target[row]) continue;
    m.y[groups] =
        (float)(attn_log2_((float)part) * ATTN_LN2_ - attn_apart_(d[best], d[0]) / t - all);
    m.room[groups++] = token;
  }
  /* joined with the model's own */
  for (int64_t g = 0; g < groups; g++) {
    const double p = near + (double)m.y[g];
    const double own = (double)attn_number_(lm, a->target ? 0 : (int64_t)m.room[g], tx, NULL) + far;
    m.x[g] = p == own ? 0.0f : (float)(p < own ? p - own : own - p);
  }
  f->exp(m.x, m.x, groups);
  for (int64_t g = 0; g < groups; g++) {
    const double own = (double)attn_number_(lm, a->target ? 0 : (int64_t)m.room[g], tx, NULL) + far;
    m.y[g] = attn_one_nan_((float)attn_log_join_(near + (double)m.y[g], own, m.x[g]));
  }
  attn_row_add_(f, y, ty, lm, tx, a->log_p.dim, (float)far);
  for (int64_t g = 0; g < groups; g++)
    attn_row_copy_(f, y + attn_bytes_(ty, a->target ? 0 : (int64_t)m.room[g]), ty,
                   (const char *)&m.y[g], ATTN_F32, 1);
}

ATTN_FUNC_ void attn_knn_same_(void *job, int worker, int64_t row) {
  const attn_knn_job_ *a = (const attn_knn_job_ *)job;
  (void)worker;
  attn_row_copy_(a->plan.table, attn_at_(&a->log_p, 0, 0, row), a->log_p.dtype,
                 attn_at_(&a->log_lm, 0, 0, row), a->log_lm.dtype, a->log_p.dim);
}

/* ---- the calls ------------------------------------------------------------------------------*/

/* The rules of a search. */
ATTN_COLD_ int attn_knn_check_(attn_error_ *e, attn_knn_job_ *a, const attn_knn_params *p,
                               attn_operand_ op[2]) {
  const int64_t any = ATTN_ANY_;
  const attn_operand_ all[2] = {
      ATTN_OPERAND_(&a->q, "q", 0, 1, 1, any, any, "q must have batch 1 and one head"),
      ATTN_OPERAND_(&a->keys, "keys", 0, 1, 1, any, a->q.dim, "keys must be [1, 1, N, q.dim]")};
  a->k = p ? p->k : 0, a->metric = p ? p->metric : ATTN_KNN_SQ_L2;
  if (a->k == 0) a->k = 1024;
  for (int i = 0; i < 2; i++) {
    op[i] = all[i];
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  }
  if (a->k < 1) return attn_reject_(e, ATTN_E_SHAPE, "params.k must not be negative");
  if ((int)a->metric < 0 || (int)a->metric > (int)ATTN_KNN_IP)
    return attn_reject_(e, ATTN_E_RANGE, "params.metric must be an attn_knn_metric");
  if (a->keys.len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "keys.len must be below 2^31");
  if (a->q.len > INT64_MAX / 64 || a->k > INT64_MAX / 64)
    return attn_reject_(e, ATTN_E_OVERFLOW, "q.len or params.k is too large");
  a->most = a->k < a->keys.len ? a->k : a->keys.len;
  return 1;
}

ATTN_COLD_ int attn_knn_search_steps_(attn_stage_ *s, void *job) {
  return attn_knn_find_(s, (attn_knn_job_ *)job);
}

ATTN_COLD_ attn_status attn_knn_search_job_call_(attn_knn_job_ *a, const attn_knn_params *params,
                                                 attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_operand_ op[2];
  attn_span_ out[2], work;
  int workers;
  if (!attn_check_ctx_(&e, ctx, &table, &workers) || !attn_knn_check_(&e, a, params, op) ||
      !attn_check_array_(&e, a->index, attn_mul_(a->q.len, a->k), 4,
                         "index must be aligned to its elements", &out[0]) ||
      !attn_check_array_(&e, a->distance, attn_mul_(a->q.len, a->k), 4,
                         "distance must be aligned to its elements", &out[1]) ||
      !attn_check_workspace_(&e, ctx, &work))
    return attn_end_(bytes ? NULL : ctx, &e);
  for (int x = 0; x < 2; x++)
    if (attn_overlap_(out[x], op[0].span) || attn_overlap_(out[x], op[1].span) ||
        attn_overlap_(out[0], out[1]))
      attn_reject_(&e, ATTN_E_OVERLAP,
                   "index and distance must share memory with nothing, nor with each other");
  if (attn_overlap_(work, out[0]) || attn_overlap_(work, out[1]) ||
      attn_overlap_(work, op[0].span) || attn_overlap_(work, op[1].span))
    attn_reject_(&e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with an argument");
  if (e.status == ATTN_OK && a->q.len == 0) {
    if (!bytes) attn_report_(ctx, table, 1, "no-op", "no queries");
  } else if (e.status == ATTN_OK) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    attn_stage_call_(&s, ctx, attn_knn_search_steps_, a, "exact search", bytes);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_knn_search_call_(int32_t *index, float *distance, attn_tensor q,
                                             attn_tensor keys, const attn_knn_params *params,
                                             attn_ctx *ctx, size_t *bytes) {
  attn_knn_job_ a;
  memset(&a, 0, sizeof a);
  a.index = index, a.distance = distance, a.q = q, a.keys = keys;
  return attn_knn_search_job_call_(&a, params, ctx, bytes);
}
ATTN_CALL_(attn_knn_search, (index, distance, q, keys, params), int32_t *index, float *distance,
           attn_tensor q, attn_tensor keys, const attn_knn_params *params)

/* Every rule of attn_knn_lm; data = 0: without those that read arrays. */
ATTN_COLD_ int attn_knn_lm_check_(attn_error_ *e, attn_knn_job_ *a, const attn_knn_lm_params *p,
                                  const attn_ctx *ctx, int data) {
  attn_operand_ op[4];
  attn_span_ more[2];
  const int64_t any = ATTN_ANY_;
  attn_knn_lm_params zero;
  memset(&zero, 0, sizeof zero);
  if (!p) p = &zero;
  if (!attn_knn_check_(e, a, &p->knn, op)) return 0;
  a->lambda = p->lambda, a->temperature = p->temperature, a->target = p->target;
  if (a->lambda == 0.0f) a->lambda = attn_to_bits_(p->lambda) ? 0.0f : 0.25f;
  if (a->temperature == 0.0f) a->temperature = 1.0f;
  if (!(a->lambda >= 0.0f && a->lambda <= 1.0f))
    return attn_reject_(e, ATTN_E_VALUE, "params.lambda must lie in 0..1");
  if (!(a->temperature > 0.0f && a->temperature < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.temperature must be positive and finite");
  const int64_t v = a->target ? 1 : any;
  const attn_operand_ lm = ATTN_OPERAND_(&a->log_lm, "log_lm", 0, 1, 1, a->q.len, v,
                                         "log_lm must be [1, 1, q.len, V], with target 1");
  op[3] = lm;
  if (!attn_check_operand_(e, &op[3], 1)) return 0;
  const attn_operand_ out = ATTN_OPERAND_(&a->log_p, "log_p", ATTN_OUT_, 1, 1, a->q.len,
                                          a->log_lm.dim, "log_p must have the shape of log_lm");
  op[2] = out;
  if (!attn_check_operand_(e, &op[2], 1)) return 0;
  a->vocabulary = a->target ? p->vocabulary : a->log_lm.dim;
  if (a->target && p->vocabulary < 1)
    return attn_reject_(e, ATTN_E_RANGE, "params.vocabulary must be positive with params.target");
  if (!a->target && p->vocabulary != 0 && p->vocabulary != a->log_lm.dim)
    return attn_reject_(e, ATTN_E_RANGE, "params.vocabulary must be 0 or log_lm.dim");
  if (!a->values && a->keys.len > 0) return attn_reject_(e, ATTN_E_NULL, "values must not be null");
  if (!attn_check_array_(e, a->values, a->keys.len, 4, "values must be aligned to its elements",
                         &more[0]) ||
      !attn_check_array_(e, a->target, a->q.len, 4, "params.target must be aligned to its elements",
                         &more[1]))
    return 0;
  const attn_span_ own = op[3].span;
  if (attn_same_view_(&a->log_p, &a->log_lm)) op[3].span.hi = op[3].span.lo;
  if (!attn_check_apart_(e, ctx, op, 4, more, 2)) return 0;
  op[3].span = own;
  if (data)
    for (int64_t i = 0; i < a->keys.len; i++)
      if (a->values[i] < 0 || a->values[i] >= a->vocabulary)
        return attn_reject_(e, ATTN_E_INDEX, "values must lie in 0..V-1");
  if (data && a->target)
    for (int64_t i = 0; i < a->q.len; i++)
      if (a->target[i] < 0 || a->target[i] >= a->vocabulary)
        return attn_reject_(e, ATTN_E_INDEX, "params.target must lie in 0..V-1");
  return 1;
}

ATTN_COLD_ int attn_knn_lm_steps_(attn_stage_ *s, void *job) {
  attn_knn_job_ *a = (attn_knn_job_ *)job;
  a->plan.table = s->table;
  if (a->lambda == 0.0f || a->most == 0)
    return attn_stage_for_(s, a->q.len, attn_knn_same_, a, 0, NULL);
  a->index = (int32_t *)attn_stage_take_(s, attn_mul_(a->q.len, a->k), 4);
  a->distance = (float *)attn_stage_take_(s, attn_mul_(a->q.len, a->k), 4);
  if (!attn_knn_find_(s, a)) return 0;
  a->each = attn_mix_cut_(NULL, NULL, a->most);
  return attn_stage_for_(s, a->q.len, attn_knn_mix_, a, a->each, &a->memory);
}

ATTN_COLD_ attn_status attn_knn_lm_job_call_(attn_knn_job_ *a, const attn_knn_lm_params *params,
                                             attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_check_ctx_(&e, ctx, &table, &workers) &&
      attn_knn_lm_check_(&e, a, params, ctx, bytes == NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (a->q.len > 0)
      attn_stage_call_(&s, ctx, attn_knn_lm_steps_, a, "exact search, mixture", bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no queries");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_knn_job_ attn_knn_lm_job_(attn_tensor log_p, attn_tensor log_lm, attn_tensor q,
                                          attn_tensor keys, const int32_t *values) {
  attn_knn_job_ a;
  memset(&a, 0, sizeof a);
  a.log_p = log_p, a.log_lm = log_lm, a.q = q, a.keys = keys, a.values = values;
  return a;
}

ATTN_COLD_ attn_status attn_knn_lm_call_(attn_tensor log_p, attn_tensor log_lm, attn_tensor q,
                                         attn_tensor keys, const int32_t *values,
                                         const attn_knn_lm_params *params, attn_ctx *ctx,
                                         size_t *bytes) {
  attn_knn_job_ a = attn_knn_lm_job_(log_p, log_lm, q, keys, values);
  return attn_knn_lm_job_call_(&a, params, ctx, bytes);
}
ATTN_CALL_(attn_knn_lm, (log_p, log_lm, q, keys, values, params), attn_tensor log_p,
           attn_tensor log_lm, attn_tensor q, attn_tensor keys, const int32_t *values,
           const attn_knn_lm_params *params)
