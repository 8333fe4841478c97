/* families/memory/recursive.h owns recursive memory: one attention of a segment over [memory ; segment],
 * and the three rules that make the next memory of it. */

typedef struct attn_recursive_job_ {
  attn_tensor o, next, x, memory;
  attn_recursive_params p; /* heads, kv_heads and alpha resolved */
  int64_t dk, dv;
} attn_recursive_job_;

ATTN_COLD_ int attn_recursive_check_(attn_error_ *e, attn_recursive_job_ *j,
                                     const attn_recursive_params *params, const attn_ctx *ctx,
                                     const attn_table_ **table, int *workers) {
  enum { X, MEMORY, WQ, WK, WV, WO, O, NEXT, LSE, COUNT };
  attn_recursive_params *p = &j->p;
  const int64_t any = ATTN_ANY_;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has the weights");
  *p = *params;
  if (p->heads == 0) p->heads = 1;
  if (p->kv_heads == 0) p->kv_heads = p->heads;
  if (p->heads < 1 || p->kv_heads < 1)
    return attn_reject_(e, ATTN_E_SHAPE, "params.heads and .kv_heads must not be negative");
  const int64_t b = j->x.batch, t = j->x.len, dm = j->x.dim, h = p->heads, kv = p->kv_heads;
  if (h % kv) return attn_reject_(e, ATTN_E_HEADS, "params.kv_heads must divide params.heads");
  attn_tensor *const w[] = {&p->w_q, &p->w_k, &p->w_v, &p->w_o};
  for (int i = 0; i < 4; i++) attn_turn_(w[i], p->w_transposed);
  if (p->w_q.dim % h || p->w_v.dim % kv)
    return attn_reject_(
        e, ATTN_E_HEADS,
        "params.heads must divide the width of w_q, and params.kv_heads that of w_v");
  j->dk = p->w_q.dim / h, j->dv = p->w_v.dim / kv;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&j->x, "x", 0, any, 1, any, any, "x must have one head"),
      ATTN_OPERAND_(&j->memory, "memory", ATTN_OPTIONAL_, b, 1, any, dm,
                    "memory must be [x.batch, 1, n, x.dim]"),
      ATTN_OPERAND_(&p->w_q, "params.w_q", ATTN_MATRIX_, 1, 1, dm, any,
                    ATTN_IN_OUT_("params.w_q", "x.dim", "heads * dk")),
      ATTN_OPERAND_(&p->w_k, "params.w_k", ATTN_MATRIX_, 1, 1, dm, attn_mul_(j->dk, kv),
                    ATTN_IN_OUT_("params.w_k", "x.dim", "kv_heads * dk")),
      ATTN_OPERAND_(&p->w_v, "params.w_v", ATTN_MATRIX_, 1, 1, dm, any,
                    ATTN_IN_OUT_("params.w_v", "x.dim", "kv_heads * dv")),
      ATTN_OPERAND_(&p->w_o, "params.w_o", ATTN_MATRIX_, 1, 1, attn_mul_(j->dv, h), dm,
                    ATTN_IN_OUT_("params.w_o", "heads * dv", "x.dim")),
      ATTN_OPERAND_(&j->o, "o", ATTN_OUT_, b, 1, t, dm, "o must have the shape of x"),
      ATTN_OPERAND_(&j->next, "next", ATTN_OUT_ | ATTN_OPTIONAL_, b, 1, any, dm,
                    "next must be [x.batch, 1, ., x.dim]"),
      ATTN_OPERAND_(&p->lse, "params.lse", ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b, h, t, 1,
                    "params.lse must be f32 [x.batch, heads, x.len, 1]")};
  for (int i = 0; i < COUNT; i++)
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  if (!j->memory.data) j->memory.len = 0;
  const int64_t n = j->memory.len, rows = j->next.len;
  if (t > INT32_MAX || n > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "x.len and memory.len must be below 2^31");
  if ((int)p->rule < 0 || p->rule >= ATTN_RECURSIVE_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.rule must be an attn_recursive_rule");
  if (p->rule == ATTN_RECURSIVE_EMA && n > t)
    return attn_reject_(e, ATTN_E_SHAPE,
                        "memory.len must be at most x.len with ATTN_RECURSIVE_EMA");
  if (j->next.data && (p->rule == ATTN_RECURSIVE_REPLACE ? rows > n + t : rows != n))
    return attn_reject_(e, ATTN_E_SHAPE,
                        "next.len must be memory.len, with ATTN_RECURSIVE_REPLACE at most "
                        "memory.len + x.len");
  if (p->alpha == 0.0f) p->alpha = attn_to_bits_(p->alpha) ? 0.0f : 0.5f;
  if (!(p->alpha >= 0.0f && p->alpha <= 1.0f))
    return attn_reject_(e, ATTN_E_VALUE, "params.alpha must lie in 0..1");
  if (j->next.data && j->memory.data && attn_same_view_(&j->next, &j->memory) && rows == n)
    op[MEMORY].span.lo = op[MEMORY].span.hi = 0; /* in place: next speaks for both */
  return attn_check_scale_(e, p->scale) && attn_check_apart_(e, ctx, op, COUNT, NULL, 0);
}

/* ---- the rules ------------------------------------------------------------------------------*/

typedef struct attn_renew_ {
  const attn_table_ *table;
  attn_tensor next, old, o; /* o: f32 */
  float alpha;
  char *memory; /* of the workers: a row each */
  int64_t each;
} attn_renew_;

/* EMA, one row. In place a row reads no other row of the memory. */
ATTN_FUNC_ void attn_renew_row_(void *job, int worker, int64_t index) {
  const attn_renew_ *a = (const attn_renew_ *)job;
  const int64_t n = a->next.len, b = index / n, r = index % n, t = a->o.len, dm = a->o.dim;
  const int64_t i0 = r * t / n, i1 = (r + 1) * t / n;
  float *mean = (float *)(void *)(a->memory + worker * a->each);
  for (int64_t c = 0; c < dm; c++) {
    double sum = 0.0;
    for (int64_t i = i0; i < i1; i++)
      sum += (double)((const float *)(const void *)attn_at_(&a->o, b, 0, i))[c];
    mean[c] = (float)(sum / (double)(i1 - i0));
  }
  a->table->blend(attn_at_(&a->next, b, 0, r), a->alpha == 0.0f ? NULL : attn_at_(&a->old, b, 0, r),
                  a->alpha == 1.0f ? NULL : mean, a->next.dtype, a->old.dtype, ATTN_F32, dm,
                  a->alpha, 1.0f - a->alpha);
}

/* The last rows of [memory ; o], one batch entry. In ascending order, so that in place no row is
 * written before it is read. */
ATTN_FUNC_ void attn_renew_last_(void *job, int worker, int64_t b) {
  const attn_renew_ *a = (const attn_renew_ *)job;
  const int64_t n = a->old.len, from = n + a->o.len - a->next.len;
  (void)worker;
  for (int64_t r = 0; r < a->next.len; r++) {
    const int64_t i = from + r;
    const attn_tensor *t = i < n ? &a->old : &a->o;
    a->table->blend(attn_at_(&a->next, b, 0, r), attn_at_(t, b, 0, i < n ? i : i - n), NULL,
                    a->next.dtype, t->dtype, ATTN_F32, a->o.dim, 1.0f, 0.0f);
  }
}

/* y = attention of the rows of x over k and v, times w_o. */
ATTN_COLD_ int attn_recursive_attend_(attn_stage_ *s, const attn_recursive_job_ *j, attn_tensor y,
                                      attn_tensor x, attn_tensor k, attn_tensor v,
                                      const attn_sdpa_params *p) {
  const int64_t b = x.batch, h = j->p.heads, t = x.len;
  const attn_tensor q = attn_stage_tensor_(s, b, h, t, j->dk);
  /* the heads side by side, so that one product joins them */
  const attn_tensor all = attn_stage_tensor_(s, b, 1, t, attn_mul_(h, j->dv));
  const attn_tensor o = attn_bthd(all.data, ATTN_F32, b, t, h, j->dv);
  return attn_stage_gemm_(s, q, x, attn_weight_heads_(j->p.w_q, h), NULL) &&
         attn_stage_sdpa_(s, o, q, k, v, p) && attn_stage_gemm_(s, y, all, j->p.w_o, NULL);
}

ATTN_COLD_ int attn_recursive_steps_(attn_stage_ *s, void *job) {
  const attn_recursive_job_ *j = (const attn_recursive_job_ *)job;
  const attn_recursive_params *g = &j->p;
  const int64_t b = j->x.batch, t = j->x.len, n = j->memory.len, kv = g->kv_heads;
  const int by_attention = g->rule == ATTN_RECURSIVE_ATTEND, renew = j->next.data != NULL;
  const attn_tensor w_k = attn_weight_heads_(g->w_k, kv);
  const attn_tensor w_v = attn_weight_heads_(g->w_v, kv);
  const attn_tensor k = attn_stage_tensor_(s, b, kv, n + t, j->dk);
  const attn_tensor v = attn_stage_tensor_(s, b, kv, n + t, j->dv);
  attn_renew_ a = {s->table, j->next, j->memory, j->o, g->alpha, NULL, 0};
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.scale = g->scale, p.lse = g->lse, p.causal = 1;
  if (renew && !by_attention) a.o = attn_stage_part_(s, &j->o);
  if (!attn_stage_gemm_(s, attn_stage_rows_(k, n, t), j->x, w_k, NULL) ||
      !attn_stage_gemm_(s, attn_stage_rows_(v, n, t), j->x, w_v, NULL))
    return 0;
  if (n > 0 && (!attn_stage_gemm_(s, attn_stage_rows_(k, 0, n), j->memory, w_k, NULL) ||
                !attn_stage_gemm_(s, attn_stage_rows_(v, 0, n), j->memory, w_v, NULL)))
    return 0;
  if (!attn_recursive_attend_(s, j, a.o, j->x, k, v, &p)) return 0;
  if (!renew) return 1;
  if (by_attention) {
    p.causal = 0, p.lse.data = NULL;
    return n == 0 || attn_recursive_attend_(s, j, j->next, j->memory, k, v, &p);
  }
  if (j->o.dtype != ATTN_F32) {
    attn_renew_ round = a;
    round.next = j->o, round.old.len = 0;
    if (!attn_stage_for_(s, b, attn_renew_last_, &round, 0, NULL)) return 0;
  }
  if (g->rule == ATTN_RECURSIVE_REPLACE)
    return attn_stage_for_(s, b, attn_renew_last_, &a, 0, NULL);
  a.each = attn_piece_(j->x.dim, sizeof(float));
  return attn_stage_for_(s, attn_mul_(b, n), attn_renew_row_, &a, a.each, &a.memory);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_recursive_job_call_(attn_recursive_job_ *j,
                                                const attn_recursive_params *params, attn_ctx *ctx,
                                                size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_recursive_check_(&e, j, params, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (j->x.batch == 0) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no batch entries");
    } else {
      attn_stage_call_(&s, ctx, attn_recursive_steps_, j, "attention over memory and segment",
                       bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_recursive_call_(attn_tensor o, attn_tensor next, attn_tensor x,
                                            attn_tensor memory, const attn_recursive_params *params,
                                            attn_ctx *ctx, size_t *bytes) {
  attn_recursive_job_ j;
  memset(&j, 0, sizeof j);
  j.o = o, j.next = next, j.x = x, j.memory = memory;
  return attn_recursive_job_call_(&j, params, ctx, bytes);
}
ATTN_CALL_(attn_recursive, (o, next, x, memory, params), attn_tensor o, attn_tensor next,
           attn_tensor x, attn_tensor memory, const attn_recursive_params *params)
