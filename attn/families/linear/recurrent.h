/* families/linear/recurrent.h owns the call of attention over a decaying state: its checks, and the division of
 * work. */

/* ---- checks -------------------------------------------------------------------------------------*/

/* What rules have a use for. */
enum {
  ATTN_RECURRENT_HAS_W_ = 1,
  ATTN_RECURRENT_HAS_AB_ = 2,
  ATTN_RECURRENT_HAS_BETA_ = 4,
  ATTN_RECURRENT_HAS_U_ = 8,
  ATTN_RECURRENT_HAS_N_ = 16,
  ATTN_RECURRENT_HAS_DT_ = 32
};
static const unsigned char attn_recurrent_has_[ATTN_RECURRENT_COUNT] = {
    ATTN_RECURRENT_HAS_W_ | ATTN_RECURRENT_HAS_AB_,   /* DPLR */
    ATTN_RECURRENT_HAS_W_,                            /* RETENTION */
    ATTN_RECURRENT_HAS_W_,                            /* LIGHTNING */
    ATTN_RECURRENT_HAS_W_,                            /* GLA */
    ATTN_RECURRENT_HAS_W_,                            /* HGRN2 */
    ATTN_RECURRENT_HAS_DT_,                           /* MAMBA2 */
    ATTN_RECURRENT_HAS_BETA_,                         /* DELTA */
    ATTN_RECURRENT_HAS_W_ | ATTN_RECURRENT_HAS_BETA_, /* GDN */
    ATTN_RECURRENT_HAS_W_ | ATTN_RECURRENT_HAS_BETA_, /* KDA */
    ATTN_RECURRENT_HAS_W_ | ATTN_RECURRENT_HAS_U_,    /* RWKV6 */
    ATTN_RECURRENT_HAS_W_ | ATTN_RECURRENT_HAS_AB_,   /* RWKV7 */
    ATTN_RECURRENT_HAS_W_ | ATTN_RECURRENT_HAS_N_};   /* MLSTM */

/* Sequences end to end: both fields or none. */
ATTN_FUNC_ int attn_recurrent_check_sequences_(attn_error_ *e, const int32_t *cu, int64_t n) {
  if (!cu && n > 0)
    return attn_reject_(e, ATTN_E_NULL, "params.cu_seqlens must not be null with params.sequences");
  return (cu ? n > 0 : n == 0) ||
         attn_reject_(e, ATTN_E_RANGE,
                      "params.sequences must be those of params.cu_seqlens, 0 without it");
}

/* What there must and must not be. */
ATTN_FUNC_ int attn_recurrent_check_rule_(attn_error_ *e, const attn_recurrent_ *a,
                                          const attn_tensor *k) {
  const attn_recurrent_params *p = a->p;
  const int has = attn_recurrent_has_[p->rule], mamba = has & ATTN_RECURRENT_HAS_DT_,
            counts = has & ATTN_RECURRENT_HAS_N_, hgrn = p->rule == ATTN_RECURRENT_HGRN2;
  const int some = a->q.len != 0; /* arrays of no tokens may be null */
  if (p->decay.data && !(has & ATTN_RECURRENT_HAS_W_))
    return attn_reject_(e, ATTN_E_RANGE, "params.decay must be absent for this rule");
  if (!p->decay.data && (hgrn || counts) && some)
    return attn_reject_(e, ATTN_E_NULL, "params.decay must not be absent for HGRN2 and MLSTM");
  if (p->form == ATTN_RECURRENT_LOGIT && !counts)
    return attn_reject_(e, ATTN_E_RANGE, "params.form must be LOGIT for MLSTM alone");
  if (p->form != ATTN_RECURRENT_LOG && !p->decay.data)
    return attn_reject_(e, has & ATTN_RECURRENT_HAS_W_ ? ATTN_E_NULL : ATTN_E_RANGE,
                        "params.decay must be there for params.form to be another than LOG");
  if (hgrn ? k->data != NULL : !k->data && !k->dim)
    return attn_reject_(e, hgrn ? ATTN_E_RANGE : ATTN_E_NULL,
                        "k must be absent for HGRN2, whose key is 1 - w, and for no other rule");
  if ((p->a.data || p->b.data) && !(has & ATTN_RECURRENT_HAS_AB_))
    return attn_reject_(e, ATTN_E_RANGE, "params.a and params.b must be absent for this rule");
  if (!p->a.data != !p->b.data && some)
    return attn_reject_(e, ATTN_E_NULL, "params.a and params.b must both be there, or none");
  if (!p->a.data && p->rule == ATTN_RECURRENT_RWKV7 && some)
    return attn_reject_(e, ATTN_E_NULL, "params.a and params.b must not be absent for RWKV7");
  if (p->beta.data && !(has & ATTN_RECURRENT_HAS_BETA_))
    return attn_reject_(e, ATTN_E_RANGE, "params.beta must be absent for this rule");
  if (!p->bonus.data != !(has & ATTN_RECURRENT_HAS_U_))
    return attn_reject_(e, p->bonus.data ? ATTN_E_RANGE : ATTN_E_NULL,
                        "params.bonus must be there for RWKV6, and for no other rule");
  if (!p->gate.data != !counts && (p->gate.data || some))
    return attn_reject_(e, p->gate.data ? ATTN_E_RANGE : ATTN_E_NULL,
                        "params.gate must be there for MLSTM, and for no other rule");
  if ((!p->dt.data != !mamba && (p->dt.data || some)) || !p->a_log != !mamba)
    return attn_reject_(
        e, mamba ? ATTN_E_NULL : ATTN_E_RANGE,
        "params.dt and params.a_log must be there for MAMBA2, and for no other rule");
  if (!mamba && (p->dt_bias || p->skip || p->dt_min != 0.0f || p->dt_max != 0.0f))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.dt_bias, skip, dt_min and dt_max must be absent but for MAMBA2");
  if (!(p->dt_min >= 0.0f) || !(p->dt_max >= 0.0f) || !attn_map_finite_(p->dt_min) ||
      (p->dt_max > 0.0f && p->dt_max < p->dt_min))
    return attn_reject_(
        e, ATTN_E_VALUE,
        "params.dt_min and params.dt_max must be bounds, not negative, in order, dt_min finite");
  if (p->rule == ATTN_RECURRENT_LIGHTNING
          ? p->layer < 0 || p->layers < 0 || p->layer >= (p->layers ? p->layers : 1)
          : p->layer != 0 || p->layers != 0)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.layer must lie in 0 .. layers - 1 for LIGHTNING, else both be 0");
  if (!counts && (p->initial_n.data || p->final_n.data || p->initial_m.data || p->final_m.data ||
                  p->eps != 0.0f))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.eps and states n and m must be absent but for MLSTM");
  if (counts &&
      (!p->initial_n.data != !p->initial_state.data ||
       !p->initial_m.data != !p->initial_state.data || !p->final_n.data != !p->final_state.data ||
       !p->final_m.data != !p->final_state.data))
    return attn_reject_(e, ATTN_E_NULL,
                        "params: a state of MLSTM must have its n and m, initial as final");
  if (p->chunk < 0 || p->chunk > ATTN_RECURRENT_CHUNK_)
    return attn_reject_(e, ATTN_E_RANGE, "params.chunk must lie in 1 .. 64, or be 0");
  if (!attn_recurrent_check_sequences_(e, p->cu_seqlens, p->sequences)) return 0;
  if (p->cu_seqlens && p->len)
    return attn_reject_(e, ATTN_E_RANGE, "params.len must be absent with params.cu_seqlens");
  if (!p->lambda.data && p->position)
    return attn_reject_(e, ATTN_E_RANGE, "params.position must be null without params.lambda");
  if (p->lambda.data && (counts || p->rule == ATTN_RECURRENT_RWKV6))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.lambda must be absent for RWKV6, which reads the state before its "
                        "token, and for MLSTM, whose sums divide each other");
  return !p->lambda.data || !p->initial_state.data || p->position ||
         attn_reject_(e, ATTN_E_NULL,
                      "params.position must be there with params.lambda and an initial state");
}

/* Every number of a decay is one of its form. */
ATTN_FUNC_ int attn_recurrent_check_decay_(attn_error_ *e, const attn_recurrent_ *a) {
  const attn_tensor *t = &a->more[ATTN_RECURRENT_W_];
  const int logs = a->p->form == ATTN_RECURRENT_LOG;
  if (!t->data || a->p->form == ATTN_RECURRENT_LOGIT) return 1;
  for (int64_t b = 0; b < t->batch; b++) {
    int64_t len = a->p->len ? 0 : t->len; /* tokens that do not exist have no decay either */
    for (int64_t i = 0; a->p->len && i < a->q.batch; i++)
      if ((t->batch == 1 || i == b) && a->p->len[i] > len) len = a->p->len[i];
    if (len > t->len) len = t->len;
    const int dense = t->stride_len == t->dim; /* rows are one */
    for (int64_t h = 0; h < t->heads; h++)
      if (!attn_on_(recurrent, a->table)
               ->bounded(attn_at_(t, b, h, 0), attn_bytes_(t->dtype, t->stride_len),
                         dense ? len > 0 : len, dense ? len * t->dim : t->dim, (int)t->dtype,
                         logs ? -INFINITY : 0.0f, logs ? 0.0f : 1.0f))
        return attn_reject_(e, ATTN_E_VALUE,
                            "params.decay: logs must not be above 0 or NaN, factors lie in 0 .. 1");
  }
  return 1;
}

/* cu_seqlens ascends from 0 to the number of tokens. */
ATTN_FUNC_ int attn_recurrent_check_marks_(attn_error_ *e, const int32_t *cu, int64_t n,
                                           int64_t len) {
  int fine = !cu || cu[0] == 0;
  for (int64_t i = 0; cu && fine && i < n; i++) fine = cu[i + 1] >= cu[i];
  return (fine && (!cu || cu[n] == len)) ||
         attn_reject_(e, ATTN_E_RANGE,
                      "params.cu_seqlens must ascend from 0 to the number of tokens");
}

/* Levels for every token of the call; data = 0: positions are not read. */
ATTN_COLD_ int attn_recurrent_check_levels_(attn_error_ *e, const attn_recurrent_ *a, int data) {
  const attn_recurrent_params *p = a->p;
  const int64_t *position = data ? p->position : NULL;
  const int apart = position || (data && (p->len || p->cu_seqlens));
  for (int64_t i = 0; i < (apart ? a->sequences : a->sequences > 0); i++) {
    const int64_t first = position ? position[i] : 0;
    const int64_t n = !data && (p->len || p->cu_seqlens) ? 0
                      : p->cu_seqlens ? (int64_t)p->cu_seqlens[i + 1] - p->cu_seqlens[i]
                      : p->len        ? (int64_t)p->len[i]
                                      : a->len;
    if (first < 0 || first > INT64_MAX / 2 || n > INT64_MAX / 2)
      return attn_reject_(e, ATTN_E_RANGE, "params.position must lie in 0 .. 2^62 - 1");
    if (first + n > 0 && attn_level_of_(first + n - 1) >= a->levels)
      return attn_reject_(
          e, ATTN_E_SHAPE,
          "params.lambda must have a level for every token: log2(position + len - 1) "
          "rounded down, plus 2");
  }
  return 1;
}

/* Whether the tensors' heads are those of a group. */
ATTN_FUNC_ int attn_recurrent_check_heads_(attn_error_ *e, const attn_tensor *t, int64_t heads,
                                           const char *rule) {
  return !t->data || (t->heads > 0 && heads % t->heads == 0) || attn_reject_(e, ATTN_E_HEADS, rule);
}

static const attn_recurrent_params attn_recurrent_plain_ ATTN_ZEROS_;

/* What the call was given. */
ATTN_FUNC_ void attn_recurrent_take_(attn_recurrent_ *a, const attn_tensor *o, const attn_tensor *q,
                                     const attn_tensor *k, const attn_tensor *v,
                                     const attn_recurrent_params *params) {
  const attn_recurrent_params *p = params ? params : &attn_recurrent_plain_;
  a->p = p;
  a->o = *o, a->q = *q, a->k = *k, a->v = *v;
  a->more[ATTN_RECURRENT_W_] = p->decay, a->more[ATTN_RECURRENT_A_] = p->a;
  a->more[ATTN_RECURRENT_B_] = p->b, a->more[ATTN_RECURRENT_BETA_] = p->beta;
  a->more[ATTN_RECURRENT_U_] = p->bonus, a->more[ATTN_RECURRENT_I_] = p->gate;
  a->more[ATTN_RECURRENT_DT_] = p->dt, a->more[ATTN_RECURRENT_LAMBDA_] = p->lambda;
  a->state[0] = p->initial_state, a->state[1] = p->final_state;
  a->n[0] = p->initial_n, a->n[1] = p->final_n, a->m[0] = p->initial_m, a->m[1] = p->final_m;
  attn_clear_(&a->decay, sizeof *a - offsetof(attn_recurrent_, decay));
}

/* What the rule and its numbers come to. */
ATTN_OUTLINE_ int attn_recurrent_numbers_of_(attn_error_ *e, attn_recurrent_ *a) {
  const attn_recurrent_params *p = a->p;
  const attn_tensor *w = &a->more[ATTN_RECURRENT_W_];
  const int plain = a->levels || p->rule == ATTN_RECURRENT_LIGHTNING ||
                    p->rule == ATTN_RECURRENT_MAMBA2 || p->rule == ATTN_RECURRENT_RWKV6 ||
                    p->rule == ATTN_RECURRENT_RWKV7;
  a->scale = attn_map_default_(p->scale, plain ? 1.0f : (float)(1.0 / sqrt((double)a->dk)));
  a->eps = attn_map_default_(p->eps, 1e-6f);
  if (!attn_check_scale_(e, p->scale)) return 0;
  if (!(p->eps >= 0.0f) || !attn_map_finite_(p->eps))
    return attn_reject_(e, ATTN_E_VALUE, "params.eps must be finite and not negative");
  a->delta = (attn_recurrent_has_[p->rule] & ATTN_RECURRENT_HAS_BETA_) != 0;
  a->low = p->a.data != NULL, a->before = p->rule == ATTN_RECURRENT_RWKV6;
  a->counts = p->rule == ATTN_RECURRENT_MLSTM;
  a->decay = w->data ? w->dim > 1 || p->rule == ATTN_RECURRENT_HGRN2 ? ATTN_RECURRENT_EACH_
                                                                     : ATTN_RECURRENT_TOKEN_
             : p->rule == ATTN_RECURRENT_RETENTION || p->rule == ATTN_RECURRENT_LIGHTNING ||
                     p->rule == ATTN_RECURRENT_MAMBA2
                 ? ATTN_RECURRENT_TOKEN_
                 : ATTN_RECURRENT_NONE_;
  return 1;
}

/* Every rule; data = 0: arrays are not read; -1: nor are addresses compared. */
ATTN_FUNC_ int attn_recurrent_plan_(attn_error_ *e, attn_recurrent_ *a, const attn_ctx *ctx,
                                    int *workers, int data) {
  enum { O, STATE1, N1, M1, Q, K, V, W, AT, BT, BETA, U, GATE, DT, LAMBDA, STATE0, N0, M0, COUNT };
  const int64_t any = ATTN_ANY_, f32 = ATTN_OPTIONAL_ | ATTN_IS_F32_;
  static const char heads_of[] = "the heads of every argument must divide the largest head count";
  attn_spans_ more;
  more.n = 0;
  const attn_recurrent_params *p = a->p;
  const attn_tensor *q = &a->q, *k = &a->k, *v = &a->v;
  if (!attn_check_ctx_(e, ctx, &a->table, workers)) return 0;
  if ((int)p->rule < 0 || p->rule >= ATTN_RECURRENT_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.rule must be an attn_recurrent_rule");
  if ((int)p->form < 0 || p->form >= ATTN_RECURRENT_FORMS)
    return attn_reject_(e, ATTN_E_RANGE, "params.form must be an attn_recurrent_form");
  if (!attn_recurrent_check_rule_(e, a, k)) return 0;
  a->heads = q->heads > v->heads ? q->heads : v->heads;
  const int keys = p->rule != ATTN_RECURRENT_HGRN2;
  if (keys && k->heads > a->heads) a->heads = k->heads;
  a->dk = q->dim, a->dv = v->dim, a->len = q->len;
  const int64_t n = p->cu_seqlens ? p->sequences : q->batch, t = q->len;
  a->levels = p->lambda.data ? p->lambda.dim : 0, a->slots = a->levels < 64 ? a->levels : 64;
  const int64_t each = a->levels > 0 ? a->levels : 1;
  const int64_t rows = attn_mul_(each, p->state_transposed ? v->dim : q->dim),
                cols = p->state_transposed ? q->dim : v->dim;
#define ATTN_RECURRENT_TOKENS_(i, name, dim, say)                              \
  ATTN_OPERAND_(&a->more[i], "params." name, ATTN_OPTIONAL_, any, any, t, dim, \
                "params." name " must be " say)
#define ATTN_RECURRENT_KEPT_(t, name, role, len, dim, say)                 \
  ATTN_OPERAND_(t, "params." name, (int)f32 | role, n, a->heads, len, dim, \
                "params." name " must be f32 " say)
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&a->o, "o", ATTN_OUT_, q->batch, a->heads, t, v->dim,
                    "o must be [q.batch, H, q.len, v.dim], H the largest head count of q, k and v"),
      ATTN_RECURRENT_KEPT_(&a->state[1], "final_state", ATTN_OUT_, rows, cols,
                           "[batch or sequences, H, dk, dv], or [.., dv, dk] if state_transposed"),
      ATTN_RECURRENT_KEPT_(&a->n[1], "final_n", ATTN_OUT_, 1, q->dim,
                           "[batch or sequences, H, 1, dk]"),
      ATTN_RECURRENT_KEPT_(&a->m[1], "final_m", ATTN_OUT_, 1, 1, "[batch or sequences, H, 1, 1]"),
      ATTN_OPERAND_(&a->q, "q", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&a->k, "k", keys ? 0 : (int)ATTN_OPTIONAL_, q->batch, any, t, q->dim,
                    "k must be [q.batch, heads, q.len, q.dim]"),
      ATTN_OPERAND_(&a->v, "v", 0, q->batch, any, t, any, "v must be [q.batch, heads, q.len, dv]"),
      ATTN_OPERAND_(&a->more[ATTN_RECURRENT_W_], "params.decay", ATTN_OPTIONAL_, any, any, any, any,
                    "params.decay must be [1 or batch, heads, 1 or q.len, 1 or dk]"),
      ATTN_RECURRENT_TOKENS_(ATTN_RECURRENT_A_, "a", q->dim, "[1 or batch, heads, q.len, dk]"),
      ATTN_RECURRENT_TOKENS_(ATTN_RECURRENT_B_, "b", q->dim, "[1 or batch, heads, q.len, dk]"),
      ATTN_RECURRENT_TOKENS_(ATTN_RECURRENT_BETA_, "beta", 1, "[1 or batch, heads, q.len, 1]"),
      ATTN_OPERAND_(&a->more[ATTN_RECURRENT_U_], "params.bonus", ATTN_OPTIONAL_, 1, any, 1, q->dim,
                    "params.bonus must be [1, heads, 1, dk]"),
      ATTN_RECURRENT_TOKENS_(ATTN_RECURRENT_I_, "gate", 1, "[1 or batch, heads, q.len, 1]"),
      ATTN_RECURRENT_TOKENS_(ATTN_RECURRENT_DT_, "dt", 1, "[1 or batch, heads, q.len, 1]"),
      ATTN_RECURRENT_TOKENS_(ATTN_RECURRENT_LAMBDA_, "lambda", any,
                             "[1 or batch, heads, q.len, levels]"),
      ATTN_RECURRENT_KEPT_(&a->state[0], "initial_state", 0, rows, cols,
                           "[batch or sequences, H, dk, dv], or [.., dv, dk] if state_transposed"),
      ATTN_RECURRENT_KEPT_(&a->n[0], "initial_n", 0, 1, q->dim, "[batch or sequences, H, 1, dk]"),
      ATTN_RECURRENT_KEPT_(&a->m[0], "initial_m", 0, 1, 1, "[batch or sequences, H, 1, 1]")};
#undef ATTN_RECURRENT_TOKENS_
#undef ATTN_RECURRENT_KEPT_
  if (!attn_check_given_(e, op, COUNT)) return 0;
  for (int i = Q; i <= V; i++)
    if (!attn_check_operand_(e, &op[i], a->heads)) return 0;
  for (int i = Q; i <= LAMBDA; i++) {
    if (!op[i].t->data && (op[i].role & ATTN_OPTIONAL_)) continue;
    if (i > V && !attn_check_operand_(e, &op[i], a->heads)) return 0;
    if (!attn_recurrent_check_heads_(e, op[i].t, a->heads, heads_of)) return 0;
    if (i > V && op[i].t->batch != 1 && op[i].t->batch != q->batch)
      return attn_reject_(e, ATTN_E_SHAPE, op[i].rule);
  }
  const attn_tensor *w = &a->more[ATTN_RECURRENT_W_];
  if (w->data && ((w->len != 1 && w->len != t) || (w->dim != 1 && w->dim != q->dim)))
    return attn_reject_(e, ATTN_E_SHAPE, op[W].rule);
  for (int i = 0; i < COUNT; i++)
    if ((i < Q || i > LAMBDA) && !attn_check_operand_(e, &op[i], a->heads)) return 0;
  if (p->cu_seqlens && q->batch != 1)
    return attn_reject_(e, ATTN_E_SHAPE, "q.batch must be 1 with params.cu_seqlens");
  if (p->rule == ATTN_RECURRENT_MLSTM && w->data && w->dim != 1)
    return attn_reject_(e, ATTN_E_SHAPE, "params.decay must be one number a token for MLSTM");
  if (p->rule == ATTN_RECURRENT_HGRN2 && w->data && w->dim != q->dim)
    return attn_reject_(e, ATTN_E_SHAPE, "params.decay must be one number a channel for HGRN2");
  if (!attn_take_array_(e, p->a_log, a->heads, 4, "params.a_log must be aligned to its elements",
                        &more) ||
      !attn_take_array_(e, p->dt_bias, a->heads, 4,
                        "params.dt_bias must be aligned to its elements", &more) ||
      !attn_take_array_(e, p->skip, a->heads, 4, "params.skip must be aligned to its elements",
                        &more) ||
      !attn_take_array_(e, p->len, q->batch, 4, "params.len must be aligned to its elements",
                        &more) ||
      !attn_take_array_(e, p->cu_seqlens, attn_add_(p->sequences, 1), 4,
                        "params.cu_seqlens must be aligned to its elements", &more) ||
      !attn_take_array_(e, p->reset, attn_mul_(q->batch, t), 1, "", &more) ||
      !attn_take_array_(e, p->position, n, 8, "params.position must be aligned to its elements",
                        &more))
    return 0;
  if (!attn_recurrent_numbers_of_(e, a)) return 0;
  if (v->dim > INT64_MAX / 1024 || q->dim > INT64_MAX / 1024)
    return attn_reject_(e, ATTN_E_OVERFLOW, "a state would not fit the address space");
  a->all = a->dv + a->counts, a->wide = attn_group_up_(a->all), a->sequences = n;
  a->chunk = p->chunk ? p->chunk : (int64_t)ATTN_RECURRENT_CHUNK_;
  if (data > 0 &&
      (!attn_check_lens_(e, p->len, q->batch, t, "params.len must lie in 0..q.len") ||
       !attn_recurrent_check_marks_(e, p->cu_seqlens, n, t) || !attn_recurrent_check_decay_(e, a)))
    return 0;
  if (a->levels && !attn_recurrent_check_levels_(e, a, data > 0)) return 0;
  if (data < 0) return 1;
  /* in place: a final array is the initial one */
  const int pairs[3][2] = {{STATE1, STATE0}, {N1, N0}, {M1, M0}};
  for (int i = 0; i < 3; i++)
    if (op[pairs[i][1]].t->data && attn_same_view_(op[pairs[i][0]].t, op[pairs[i][1]].t))
      op[pairs[i][1]].span.hi = op[pairs[i][1]].span.lo;
  int there = 0; /* field by field: a copy of a struct may be slow to begin */
  for (int i = 0; i < COUNT; i++)
    if (op[i].t->data) {
      attn_operand_ *to = &op[there++];
      to->t = op[i].t, to->w = op[i].w, to->role = op[i].role, to->span = op[i].span;
    }
  return attn_check_apart_(e, ctx, op, there, more.span, more.n);
}

/* ---- the call -----------------------------------------------------------------------------------*/

/* Whether all sequences go token by token. */
ATTN_FUNC_ int attn_recurrent_few_(const attn_recurrent_ *a) {
  const attn_recurrent_params *p = a->p;
  int few = !a->levels;
  if (!p->cu_seqlens && !p->len) return few && a->len <= ATTN_RECURRENT_FEW_;
  for (int64_t i = 0; few && i < a->sequences; i++)
    few = (p->cu_seqlens ? p->cu_seqlens[i + 1] - p->cu_seqlens[i] : p->len[i]) <=
          ATTN_RECURRENT_FEW_;
  return few;
}

/* How the work is cut, and the bytes that takes. Columns are apart where workers outnumber heads. */
ATTN_FUNC_ int64_t attn_recurrent_divide_(attn_recurrent_ *a, int workers, int *used) {
  const int64_t items = attn_mul_(a->sequences, a->heads);
  const int64_t most = a->counts || a->wide < 32 ? 1 : a->wide / 32;
  a->slices = 1;
  if (items > 0 && workers > items) a->slices = workers / items < most ? workers / items : most;
  *used = attn_pieces_(workers, attn_mul_(items, a->slices));
  a->own_bytes = attn_add_(a->levels_at = attn_recurrent_lay_(a), attn_levels_lay_(a));
  return attn_workspace_bytes_(attn_mul_(a->own_bytes, *used), 1);
}

ATTN_FUNC_ attn_status attn_recurrent_call_(attn_recurrent_ *a, attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_workspace_ memory = {NULL, NULL};
  int workers, used;
  if (!attn_recurrent_plan_(&e, a, ctx, &workers, bytes == NULL))
    return attn_end_(bytes ? NULL : ctx, &e);
  const int64_t items = attn_mul_(a->sequences, a->heads);
  const int nothing = items == 0 || (a->len == 0 && !a->state[1].data);
  if (bytes && ctx && ctx->workers > 1) workers = ctx->workers;
  const int64_t need = attn_recurrent_divide_(a, workers, &used);
  if (bytes) {
    if (attn_workspace_fits_(&e, need)) *bytes = nothing ? 0 : (size_t)need;
    return e.status;
  }
  if (!nothing) {
    if (!attn_workspace_get_(&e, &memory, ctx, need)) return attn_end_(ctx, &e);
    a->own = memory.base;
    attn_for_fading_(ctx, used, items * a->slices,
                     a->levels ? attn_levels_item_ : attn_recurrent_item_, a);
    attn_workspace_drop_(&memory);
  }
  attn_report_(ctx, a->table, used,
               nothing                  ? "no-op"
               : attn_recurrent_few_(a) ? "decaying state, tokens"
                                        : "decaying state, chunks",
               nothing ? "no tokens" : "the lengths of the sequences");
  return attn_end_(ctx, &e);
}

/* Not the words of ATTN_CALL_: what runs once a call is most of a token's. */
ATTN_PUB_ attn_status attn_recurrent(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const attn_recurrent_params *params, attn_ctx *ctx) {
  attn_recurrent_ a;
  attn_recurrent_take_(&a, &o, &q, &k, &v, params);
  return attn_recurrent_call_(&a, ctx, NULL);
}

ATTN_PUB_ size_t attn_recurrent_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, const attn_recurrent_params *params,
                                          const attn_ctx *ctx) {
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  attn_recurrent_ a;
  attn_recurrent_take_(&a, &o, &q, &k, &v, params);
  const attn_status status = attn_recurrent_call_(&a, &plain, &bytes);
  return attn_answer_(status, (int64_t)bytes);
}
