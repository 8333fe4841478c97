/* compose/steps.h owns steps that are calls: attention, products, merges and schedules inside a
 * call that is made of them (engine/stage.h). */

/* Attention whose rows, heads and keys are those of the call: weights may be dropped. */
ATTN_COLD_ int attn_stage_sdpa_whole_(attn_stage_ *s, attn_tensor o, attn_tensor q, attn_tensor k,
                                      attn_tensor v, const attn_sdpa_params *params) {
  if (!s->run) {
    int64_t bytes = attn_sdpa_need_(s->e, o, q, k, v, params, NULL, &s->ctx, -1);
    if (bytes >= 0) attn_stage_spare_(s, bytes);
    return bytes >= 0;
  }
  s->ctx.workspace = attn_stage_spare_(s, 0), s->ctx.workspace_size = (size_t)s->spare;
  return attn_stage_done_(s, attn_sdpa(o, q, k, v, params, &s->ctx));
}

ATTN_COLD_ int attn_stage_sdpa_(attn_stage_ *s, attn_tensor o, attn_tensor q, attn_tensor k,
                                attn_tensor v, const attn_sdpa_params *params) {
  if (params && params->dropout.p != 0.0)
    return attn_reject_(s->e, ATTN_E_RANGE, "params.dropout must be absent in this call");
  return attn_stage_sdpa_whole_(s, o, q, k, v, params);
}

/* The same of a problem that also has what no parameter says: a range of keys for each row, addends,
 * a mix of the queries' channels. */
ATTN_COLD_ int attn_stage_problem_(attn_stage_ *s, attn_softmax_ *a,
                                   const attn_sdpa_params *params) {
  int workers;
  if (!s->run) {
    const int64_t bytes = attn_problem_need_(s->e, a, params, &s->ctx, -1);
    if (bytes >= 0) attn_stage_spare_(s, bytes);
    return bytes >= 0;
  }
  s->ctx.workspace = attn_stage_spare_(s, 0), s->ctx.workspace_size = (size_t)s->spare;
  if (!attn_sdpa_plan_(s->e, a, params, &s->ctx, &workers, 1)) return 0;
  if (!attn_nothing_(a)) {
    if (!attn_softmax_run_(s->e, a, &s->ctx, workers)) return 0;
    attn_stage_count_(s);
  }
  return 1;
}

ATTN_COLD_ int attn_stage_ranged_(attn_stage_ *s, attn_tensor o, attn_tensor q, attn_tensor k,
                                  attn_tensor v, const attn_sdpa_params *params,
                                  attn_range_fn_ range, const void *user) {
  attn_softmax_ a;
  memset(&a, 0, sizeof a);
  a.o = o, a.q = q, a.k = k, a.v = v, a.range = range, a.range_user = user;
  return attn_stage_problem_(s, &a, params);
}

/* y = act(scale x w + bias): attn_gemm. */
ATTN_COLD_ int attn_stage_gemm_as_(attn_stage_ *s, attn_tensor y, attn_tensor x, attn_tensor w,
                                   const attn_gemm_params *params) {
  if (!s->run) {
    const int64_t bytes = attn_gemm_need_(s->e, y, x, w, params, &s->ctx, 0);
    if (bytes >= 0) attn_stage_spare_(s, bytes);
    return bytes >= 0;
  }
  s->ctx.workspace = attn_stage_spare_(s, 0), s->ctx.workspace_size = (size_t)s->spare;
  return attn_stage_done_(s, attn_gemm(y, x, w, params, &s->ctx));
}

/* The same where w says itself whether it is transposed. */
ATTN_COLD_ int attn_stage_gemm_(attn_stage_ *s, attn_tensor y, attn_tensor x, attn_tensor w,
                                const attn_gemm_params *params) {
  attn_gemm_params p;
  memset(&p, 0, sizeof p);
  if (params) p = *params;
  p.w_transposed = attn_turn_back_(&w);
  return attn_stage_gemm_as_(s, y, x, w, &p);
}

/* Joins a second part (v2, lse2) to (part, lse) into o, which is part or another tensor. v2 may
 * have fewer heads than o and one row for all queries: a key seen by all rows is a part whose
 * output is its value and whose LSE is its score. */
ATTN_COLD_ int attn_stage_merge_(attn_stage_ *s, attn_tensor o, attn_tensor part, attn_tensor lse,
                                 attn_tensor v2, attn_tensor lse2) {
  const int64_t group = o.heads / v2.heads;
  if (!s->run) return 1;
  if (v2.len == 1) v2.stride_len = 0;
  v2.len = o.len;
  for (int64_t h = 0; h < v2.heads; h++) {
    attn_tensor x[4] = {
        attn_stage_heads_(o, h * group, group), attn_stage_heads_(part, h * group, group),
        attn_stage_heads_(lse, h * group, group), attn_stage_heads_(lse2, h * group, group)};
    attn_tensor v = attn_stage_heads_(v2, h, 1);
    v.heads = group, v.stride_head = 0;
    if (v2.heads == o.heads) v = v2, x[0] = o, x[1] = part, x[2] = lse, x[3] = lse2;
    attn_status status = attn_merge(x[0], x[2], x[1], x[2], v, x[3], &s->ctx);
    s->ctx.report.pairs = 0;
    if (!attn_stage_done_(s, status)) return 0;
    if (v2.heads == o.heads) break;
  }
  return 1;
}

/* Builds the schedule of a pattern into own, for *use, unless the caller's is there, which must be of
 * that pattern. */
ATTN_COLD_ int attn_stage_schedule_(attn_stage_ *s, const attn_schedule **use, attn_schedule *own,
                                    const attn_pattern *pattern, int64_t heads, int64_t len,
                                    const char *reason) {
  if (*use) {
    attn_identity_ c = attn_identity_open_(heads, len, len, 0);
    attn_identity_pattern_(&c, pattern);
    return attn_schedule_check_(s->e, *use, &c, reason);
  }
  attn_status status = attn_schedule_build(own, pattern, heads, len, len, NULL, &s->ctx);
  if (status != ATTN_OK) return attn_reject_(s->e, status, s->ctx.reason);
  *use = own;
  return 1;
}

/* lse2[i] = s q_i . k_i, or k_0 for every i: a part of one key of its own. */
typedef struct attn_own_ {
  const attn_table_ *table;
  attn_tensor lse, q, k;
  double scale;
  char *memory;
  int64_t each;
} attn_own_;

ATTN_FUNC_ void attn_own_item_(void *job, int worker, int64_t index) {
  const attn_own_ *a = (const attn_own_ *)job;
  const int64_t b = index / a->q.heads, h = index % a->q.heads, dk = a->q.dim;
  const int64_t hk = h / (a->q.heads / a->k.heads);
  float *q = (float *)(void *)(a->memory + worker * a->each), *k = q + dk;
  for (int64_t i = 0; i < a->q.len; i++) {
    double sum = 0.0; /* products of floats are exact in double */
    a->table->widen(q, attn_at_(&a->q, b, h, i), 0, NULL, 1, dk, a->q.dtype, NULL);
    if (i == 0 || a->k.len > 1)
      a->table->widen(k, attn_at_(&a->k, b, hk, i), 0, NULL, 1, dk, a->k.dtype, NULL);
    for (int64_t c = 0; c < dk; c++) sum += (double)q[c] * (double)k[c];
    const float x = (float)(sum * a->scale);
    memcpy(attn_at_(&a->lse, b, h, i), &x, sizeof x);
  }
}

ATTN_COLD_ int attn_stage_own_(attn_stage_ *s, attn_tensor lse, attn_tensor q, attn_tensor k,
                               float scale) {
  attn_own_ a = {s->table, lse, q, k, (double)scale, NULL, attn_piece_(attn_mul_(2, q.dim), 4)};
  if (scale == 0.0f) a.scale = attn_to_bits_(scale) ? 0.0 : 1.0 / sqrt((double)q.dim);
  return attn_stage_for_(s, attn_mul_(q.batch, q.heads), attn_own_item_, &a, a.each, &a.memory);
}
