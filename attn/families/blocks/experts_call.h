/* families/blocks/experts_call.h owns the checks of the feed-forward of mixtures of experts, and the call. */

/* The router: how many experts, and how they are chosen. */
ATTN_COLD_ int attn_experts_check_gate_(attn_error_ *e, attn_experts_job_ *j, attn_operand_ *op) {
  static const attn_said_ said[] = {ATTN_SAID_IN_OUT_("params.w_gate", "x.dim", "E"),
                                    ATTN_SAID_("params.b_gate", "[1, 1, 1, E]"),
                                    ATTN_SAID_("params.choice_bias", "[1, 1, 1, E]")};
  attn_expert_rows_params *p = &j->p;
  attn_turn_(&p->w_gate, p->w_transposed), attn_turn_(&p->w_shared, p->w_transposed);
  op[0] = attn_weight_(&p->w_gate, &said[0], 0, j->x.dim, ATTN_ANY_);
  if (!attn_check_operand_(e, &op[0], 1)) return 0;
  j->count = p->w_gate.dim, j->k = p->k;
  op[1] = attn_bias_(&p->b_gate, &said[1], ATTN_OPTIONAL_, j->count);
  op[2] = attn_bias_(&p->choice_bias, &said[2], ATTN_OPTIONAL_, j->count);
  if (!attn_check_operand_(e, &op[1], 1) || !attn_check_operand_(e, &op[2], 1)) return 0;
  const int64_t groups = p->groups > 0 ? p->groups : 1;
  const int64_t group_k = p->group_k > 0 ? p->group_k : groups;
  if (j->count > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "params.w_gate must be of fewer than 2^31 experts");
  if (p->k < 1 || p->k > j->count)
    return attn_reject_(e, ATTN_E_RANGE, "params.k must lie in 1..E");
  if (p->groups < 0 || j->count % groups != 0)
    return attn_reject_(e, ATTN_E_RANGE, "params.groups must be 0 or a divisor of E");
  if (p->group_k < 0 || group_k > groups)
    return attn_reject_(e, ATTN_E_RANGE, "params.group_k must lie in 0..params.groups");
  if (p->k > attn_mul_(group_k, j->count / groups))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.k must not be more than params.group_k groups have experts");
  if ((int)p->score < 0 || p->score >= ATTN_EXPERTS_SCORE_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.score must be an attn_experts_score");
  if ((int)p->group_by < 0 || p->group_by >= ATTN_EXPERTS_GROUP_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.group_by must be an attn_experts_group");
  if (p->group_by == ATTN_EXPERTS_GROUP_SUM && groups > 1 && j->count == groups)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.group_by must not be ATTN_EXPERTS_GROUP_SUM for groups of one");
  return p->scale - p->scale == 0.0f ||
         attn_reject_(e, ATTN_E_VALUE, "params.scale must be finite");
}

/* The feed-forward of all rows, where there is one. */
ATTN_COLD_ int attn_experts_check_shared_(attn_error_ *e, attn_experts_job_ *j,
                                          const attn_table_ *table, attn_operand_ *op) {
  static const attn_said_ said = ATTN_SAID_IN_OUT_("params.w_shared", "x.dim", "1");
  attn_feed_forward *ff = &j->p.shared;
  if (ff->w_1.data)
    return attn_check_feed_(e, ff, table, ATTN_PLACE_SHARED_, 1, j->x.dim, j->y.dim, op) &&
           (op[ATTN_FEED_OPERANDS_] =
                attn_weight_(&j->p.w_shared, &said, ATTN_OPTIONAL_, j->x.dim, 1),
            attn_check_operand_(e, &op[ATTN_FEED_OPERANDS_], 1));
  if (ff->b_1.data || ff->w_2.data || ff->b_2.data || ff->w_3.data || ff->b_3.data ||
      j->p.w_shared.data)
    return attn_reject_(e, ATTN_E_NULL,
                        "params.shared.w_1 must not be null where another part of it or "
                        "params.w_shared is there");
  return 1;
}

ATTN_COLD_ int attn_experts_check_(attn_error_ *e, attn_experts_job_ *j, const attn_ctx *ctx,
                                   const attn_table_ **table, int *workers) {
  static const char wy[] = ATTN_WORDS_("y"), wx[] = ATTN_WORDS_("x");
  static const char we[] = ATTN_WORDS_("params.expert"), ww[] = ATTN_WORDS_("params.weight");
  static const char wl[] = ATTN_WORDS_("params.logits");
  enum {
    Y,
    X,
    EXPERT,
    WEIGHT,
    LOGITS,
    GATE,
    EXPERTS = GATE + 3,
    SHARED = EXPERTS + (int)ATTN_FEED_OPERANDS_,
    COUNT = SHARED + (int)ATTN_FEED_OPERANDS_ + 1
  };
  attn_expert_rows_params *p = &j->p;
  attn_tensor expert;
  attn_operand_ op[COUNT];
  const attn_operand_ lead[] = {ATTN_OPERAND_AS_(&j->y, wy, ATTN_OUT_, ATTN_ANY_, 1, ATTN_ANY_,
                                                 ATTN_ANY_, "y must have one head"),
                                ATTN_OPERAND_AS_(&j->x, wx, 0, j->y.batch, 1, j->y.len, ATTN_ANY_,
                                                 "x must be [y.batch, 1, y.len, .]")};
  memset(op, 0, sizeof op);
  op[Y] = lead[0], op[X] = lead[1];
  const attn_tensor *const w[] = {&p->experts.w_1, &p->experts.w_2, &p->experts.w_3};
  for (int i = 0; i < 3; i++)
    if (w[i]->data && w[i]->dtype > ATTN_I4)
      return attn_reject_(e, ATTN_E_DTYPE,
                          "params.experts.w_1, w_2 and w_3 must be of a float type, ATTN_I8 or "
                          "ATTN_I4");
  if (!attn_check_ctx_(e, ctx, table, workers) || !attn_check_operand_(e, &op[Y], 1) ||
      !attn_check_operand_(e, &op[X], 1) || !attn_experts_check_gate_(e, j, op + GATE) ||
      !attn_check_feed_(e, &p->experts, *table, ATTN_PLACE_EXPERTS_, j->count, j->x.dim, j->y.dim,
                        op + EXPERTS) ||
      !attn_experts_check_shared_(e, j, *table, op + SHARED))
    return 0;
  const int64_t b = j->y.batch, t = j->y.len;
  j->dff = p->experts.w_1.dim;
  expert = attn_bhtd(p->expert, ATTN_F32, b, 1, t, j->k); /* of 4 bytes, too */
  const attn_operand_ more[] = {
      ATTN_OPERAND_AS_(&expert, we, ATTN_OUT_ | ATTN_OPTIONAL_, b, 1, t, j->k, ""),
      ATTN_OPERAND_AS_(&p->weight, ww, ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b, 1, t, j->k,
                       "params.weight must be f32 [B, 1, T, k]"),
      ATTN_OPERAND_AS_(&p->logits, wl, ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b, 1, t, j->count,
                       "params.logits must be f32 [B, 1, T, E]")};
  for (int i = 0; i < 3; i++) {
    op[EXPERT + i] = more[i];
    if (!attn_check_operand_(e, &op[EXPERT + i], 1)) return 0;
  }
  if (attn_same_view_(&j->y, &j->x) && j->y.dim == j->x.dim) op[X].span.hi = op[X].span.lo;
  if (!attn_compute_take_(e, *table, p->experts.compute, p->experts.compute_prefer, 1,
                          ATTN_COMPUTE_WORDS_("params.experts.compute"), &j->low, &j->feature))
    return 0;
  return attn_check_apart_(e, ctx, op, COUNT, NULL, 0);
}

ATTN_COLD_ attn_status attn_expert_rows_call_(attn_tensor y, attn_tensor x,
                                              const attn_expert_rows_params *params, attn_ctx *ctx,
                                              size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_experts_job_ j;
  const attn_table_ *table = NULL;
  int workers = 1;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x;
  if (params) j.p = *params;
  if (!params)
    attn_reject_(&e, ATTN_E_NULL, "params must not be null: it has the weights");
  else
    (void)attn_experts_check_(&e, &j, ctx, &table, &workers);
  return attn_step_call_or_(&e, table, workers, ctx, attn_experts_steps_, &j,
                            "experts, rows by expert", y.batch > 0 && y.len > 0 ? NULL : "no rows",
                            bytes);
}

ATTN_CALL_(attn_expert_rows, (y, x, params), attn_tensor y, attn_tensor x,
           const attn_expert_rows_params *params)
