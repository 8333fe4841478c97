/* families/linear/recurrent_backward.h owns the call for the gradients of attention over a decaying state. */

typedef struct attn_unfade_job_ {
  attn_unfade_ x;                   /* to: the caller's */
  attn_tensor of[ATTN_UNFADE_OUT_]; /* what they are the gradients of */
} attn_unfade_job_;

/* Heads that read the same row of something belong together. */
ATTN_COLD_ int64_t attn_unfade_groups_(const attn_unfade_job_ *j) {
  int64_t n = j->x.f.heads;
  for (int i = 0; i < (int)ATTN_UNFADE_OUT_; i++)
    if (j->of[i].data && j->of[i].heads > 0) n = attn_gcd_(n, j->of[i].heads);
  return n;
}

/* Whether sequences add to the same numbers. */
ATTN_COLD_ int attn_unfade_meet_(const attn_unfade_job_ *j) {
  const attn_recurrent_ *f = &j->x.f;
  int meet = j->x.a_log || j->x.dt_bias || j->x.skip;
  for (int i = 0; i < (int)ATTN_UNFADE_OUT_; i++)
    if (j->x.to[i].data)
      meet |= i == ATTN_UNFADE_U_ || (j->of[i].batch == 1 && f->q.batch > 1) ||
              (i == ATTN_UNFADE_W_ && j->of[i].len == 1 && f->p->cu_seqlens);
  return meet;
}

ATTN_COLD_ int attn_unfade_steps_(attn_stage_ *s, void *job) {
  const attn_unfade_job_ *j = (const attn_unfade_job_ *)job;
  attn_unfade_ x = j->x;
  attn_recurrent_ *f = &x.f;
  f->table = s->table;
  for (int i = 0; i < (int)ATTN_UNFADE_OUT_; i++) {
    const attn_tensor *out = &j->x.to[i], *of = &j->of[i];
    if (!out->data) continue;
    if (x.accumulate || out->dtype != ATTN_F32 || !attn_gradient_whole_(out, of))
      x.to[i] = attn_stage_tensor_(s, of->batch, of->heads, of->len, of->dim);
    for (int64_t b = 0; s->run && b < of->batch; b++) attn_zero_rows_(&x.to[i], b, 0, of->heads, 0);
  }
  x.dk = attn_group_up_(f->dk), x.wide = attn_group_up_(f->dv);
  /* the states of a chunk stay in the second cache */
  x.part = attn_max64_(1, attn_min64_(x.wide, ATTN_UNFADE_CACHE_ / x.dk));
  x.chunks = attn_runs_of_(f->len, ATTN_RECURRENT_CHUNK_);
  x.groups = attn_unfade_groups_(j), x.heads = x.groups ? f->heads / x.groups : 0;
  x.units = attn_unfade_meet_(j) ? 1 : f->sequences;
  x.at = attn_recurrent_lay_(f);
  f->own_bytes = attn_add_(x.at, attn_unfade_cut_(&x, NULL, NULL));
  const int64_t items = f->sequences ? attn_mul_(x.groups, x.units) : 0;
  const int pieces = items > 0 ? attn_pieces_(s->workers, items) : 0;
  f->own = attn_stage_spare_(s, attn_mul_(f->own_bytes, pieces));
  float *const arrays[] = {x.a_log, x.dt_bias, x.skip};
  for (int i = 0; s->run && !pieces && !x.accumulate && i < 3; i++)
    for (int64_t h = 0; arrays[i] && h < f->heads; h++) arrays[i][h] = 0.0f;
  if (s->run && pieces) attn_for_(&s->ctx, pieces, items, attn_unfade_item_, &x);
  for (int i = 0; i < (int)ATTN_UNFADE_OUT_; i++)
    if (j->x.to[i].data && !attn_stage_made_(s, &j->x.to[i], x.to[i], x.accumulate)) return 0;
  return 1;
}

/* Forward's rules of a dense o, and those of gradients. */
ATTN_COLD_ int attn_unfade_check_(attn_error_ *e, attn_unfade_job_ *j,
                                  const attn_recurrent_params *params, const attn_ctx *ctx,
                                  int *workers, int query) {
  static const char shape[] =
      "a gradient must have the shape of what it is of, or 1 where that has a "
      "stride of 0";
  static const char absent[] = "a gradient must be absent where what it is of is";
  const int64_t any = ATTN_ANY_;
  const int out = (int)ATTN_OUT_ | (int)ATTN_OPTIONAL_, in = ATTN_OPTIONAL_;
  attn_unfade_ *x = &j->x;
  attn_recurrent_ *f = &x->f;
  const attn_ctx plain = attn_before_workspace_(ctx);
  const attn_tensor q = f->q, k = f->k, v = f->v;
  const int64_t heads = attn_max64_(attn_max64_(q.heads, v.heads), k.data ? k.heads : 0);
  const attn_tensor o =
      attn_bhtd((void *)(uintptr_t)ATTN_ALIGN_, ATTN_F32, q.batch, heads, q.len, v.dim);
  attn_recurrent_take_(f, &o, &q, &k, &v, params);
  attn_tensor *const ends[] = {&f->state[1], &f->n[1], &f->m[1]};
  for (int i = 0; i < 3; i++) memset(ends[i], 0, sizeof *ends[i]);
  const attn_recurrent_params *p = f->p;
  if (!attn_recurrent_plan_(e, f, &plain, workers, -1)) return 0;
  if (!query &&
      (!attn_check_lens_(e, p->len, q.batch, q.len, "params.len must lie in 0..q.len") ||
       !attn_recurrent_check_marks_(e, p->cu_seqlens, f->sequences, q.len) ||
       (f->levels && !attn_recurrent_check_levels_(e, f, 1)) || !attn_recurrent_check_decay_(e, f)))
    return 0;
  const int64_t rows = attn_mul_(f->levels ? f->levels : 1, p->state_transposed ? v.dim : q.dim);
  const int64_t cols = p->state_transposed ? q.dim : v.dim;
  const attn_tensor of[ATTN_UNFADE_OUT_] = {q,       k,        v,     p->decay, p->a,     p->b,
                                            p->beta, p->bonus, p->dt, p->gate,  p->lambda};
  memcpy(j->of, of, sizeof of);
#define ATTN_UNFADE_COUNT_(t, role, name, dim)                                                    \
  ATTN_OPERAND_(t, "gradients.d_" name, role | (int)ATTN_IS_F32_, f->sequences, f->heads, 1, dim, \
                "gradients.d_" name " must be f32 with the shape of params." name)
  attn_operand_ op[] = {
      ATTN_OPERAND_(&x->to[ATTN_UNFADE_Q_], "d_q", out, any, any, any, any, shape),
      ATTN_OPERAND_(&x->to[ATTN_UNFADE_K_], "d_k", out, any, any, any, any, shape),
      ATTN_OPERAND_(&x->to[ATTN_UNFADE_V_], "d_v", out, any, any, any, any, shape),
      ATTN_OPERAND_(&x->to[ATTN_UNFADE_W_], "gradients.d_decay", out, any, any, any, any, shape),
      ATTN_OPERAND_(&x->to[ATTN_UNFADE_A_], "gradients.d_a", out, any, any, any, any, shape),
      ATTN_OPERAND_(&x->to[ATTN_UNFADE_B_], "gradients.d_b", out, any, any, any, any, shape),
      ATTN_OPERAND_(&x->to[ATTN_UNFADE_BETA_], "gradients.d_beta", out, any, any, any, any, shape),
      ATTN_OPERAND_(&x->to[ATTN_UNFADE_U_], "gradients.d_bonus", out, any, any, any, any, shape),
      ATTN_OPERAND_(&x->to[ATTN_UNFADE_DT_], "gradients.d_dt", out, any, any, any, any, shape),
      ATTN_OPERAND_(&x->to[ATTN_UNFADE_I_], "gradients.d_gate", out, any, any, any, any, shape),
      ATTN_OPERAND_(&x->to[ATTN_UNFADE_LAMBDA_], "gradients.d_lambda", out, any, any, any, any,
                    shape),
      ATTN_OPERAND_(&x->d_begin, "gradients.d_initial_state", out | (int)ATTN_IS_F32_, f->sequences,
                    f->heads, rows, cols,
                    "gradients.d_initial_state must be f32 with the shape of a state"),
      ATTN_UNFADE_COUNT_(&x->d_n[0], out, "initial_n", q.dim),
      ATTN_UNFADE_COUNT_(&x->d_m[0], out, "initial_m", 1),
      ATTN_UNFADE_COUNT_(&x->d_n[1], in, "final_n", q.dim),
      ATTN_UNFADE_COUNT_(&x->d_m[1], in, "final_m", 1),
      ATTN_OPERAND_(&x->d_end, "gradients.d_final_state", in | (int)ATTN_IS_F32_, f->sequences,
                    f->heads, rows, cols,
                    "gradients.d_final_state must be f32 with the shape of a state"),
      ATTN_OPERAND_(&x->d_o, "d_o", 0, q.batch, f->heads, q.len, v.dim,
                    "d_o must be [q.batch, H, q.len, v.dim], H the largest head count"),
      ATTN_OPERAND_(&f->q, "q", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&f->k, "k", in, any, any, any, any, ""),
      ATTN_OPERAND_(&f->v, "v", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&f->more[ATTN_RECURRENT_W_], "params.decay", in, any, any, any, any, ""),
      ATTN_OPERAND_(&f->more[ATTN_RECURRENT_A_], "params.a", in, any, any, any, any, ""),
      ATTN_OPERAND_(&f->more[ATTN_RECURRENT_B_], "params.b", in, any, any, any, any, ""),
      ATTN_OPERAND_(&f->more[ATTN_RECURRENT_BETA_], "params.beta", in, any, any, any, any, ""),
      ATTN_OPERAND_(&f->more[ATTN_RECURRENT_U_], "params.bonus", in, any, any, any, any, ""),
      ATTN_OPERAND_(&f->more[ATTN_RECURRENT_DT_], "params.dt", in, any, any, any, any, ""),
      ATTN_OPERAND_(&f->more[ATTN_RECURRENT_I_], "params.gate", in, any, any, any, any, ""),
      ATTN_OPERAND_(&f->more[ATTN_RECURRENT_LAMBDA_], "params.lambda", in, any, any, any, any, ""),
      ATTN_OPERAND_(&f->n[0], "params.initial_n", in, any, any, any, any, ""),
      ATTN_OPERAND_(&f->m[0], "params.initial_m", in, any, any, any, any, ""),
      ATTN_OPERAND_(&f->state[0], "params.initial_state", in, any, any, any, any, "")};
#undef ATTN_UNFADE_COUNT_
  enum { N = sizeof op / sizeof *op };
  for (int i = 0; i < (int)N; i++)
    if (!attn_check_operand_(e, &op[i], f->heads)) return 0;
  for (int i = 0; i < (int)ATTN_UNFADE_OUT_; i++) {
    const int there = j->of[i].data || (i < ATTN_UNFADE_W_ && j->of[i].dim > 0 && q.len == 0);
    if (x->to[i].data && !there) return attn_reject_(e, ATTN_E_NULL, absent);
    if (x->to[i].data && !attn_gradient_fits_(&x->to[i], &j->of[i]))
      return attn_reject_(e, ATTN_E_SHAPE, shape);
  }
  if (x->d_begin.data && !f->state[0].data)
    return attn_reject_(e, ATTN_E_NULL, "gradients.d_initial_state wants params.initial_state");
  if ((x->d_n[0].data && !f->n[0].data) || (x->d_m[0].data && !f->m[0].data) ||
      ((x->d_n[1].data || x->d_m[1].data) && !f->counts))
    return attn_reject_(e, ATTN_E_NULL, absent);
  const int mamba = p->rule == ATTN_RECURRENT_MAMBA2;
  if ((x->a_log && !mamba) || (x->dt_bias && !p->dt_bias) || (x->skip && !p->skip))
    return attn_reject_(e, ATTN_E_NULL, absent);
  if (x->accumulate != 0 && x->accumulate != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.accumulate must be 0 or 1");
  attn_spans_ more;
  more.n = 0;
  const void *const array[] = {x->a_log,   x->dt_bias, x->skip, p->a_log,
                               p->dt_bias, p->skip,    p->len,  p->cu_seqlens};
  const int64_t count[] = {f->heads, f->heads, f->heads, f->heads,
                           f->heads, f->heads, q.batch,  attn_add_(f->sequences, 1)};
  for (int i = 0; i < 8; i++)
    if (!attn_take_array_(e, array[i], count[i], 4, "an array must be aligned to its elements",
                          &more))
      return 0;
  if (!attn_take_array_(e, p->reset, attn_mul_(q.batch, q.len), 1, "", &more) ||
      !attn_take_array_(e, p->position, f->sequences, 8,
                        "params.position must be aligned to its elements", &more))
    return 0;
  if (!attn_check_apart_(e, ctx, op, N, more.span, more.n)) return 0;
  for (int i = 0; i < 3; i++) /* the arrays that are written */
    if (array[i] && !attn_span_alone_(&more.span[i], op, N, more.span + i + 1, more.n - i - 1))
      return attn_reject_(e, ATTN_E_OVERLAP,
                          "a gradient must not share memory with another argument");
  return 1;
}

ATTN_COLD_ attn_status attn_recurrent_backward_call_(attn_tensor d_q, attn_tensor d_k,
                                                     attn_tensor d_v, attn_tensor d_o,
                                                     attn_tensor q, attn_tensor k, attn_tensor v,
                                                     const attn_recurrent_params *params,
                                                     const attn_recurrent_gradients *gradients,
                                                     attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_unfade_job_ j;
  attn_recurrent_gradients g;
  const attn_table_ *table = NULL;
  int workers = 1, some;
  attn_clear_(&j, sizeof j), attn_clear_(&g, sizeof g);
  if (gradients) g = *gradients;
  attn_unfade_ *x = &j.x;
  x->f.q = q, x->f.k = k, x->f.v = v, x->d_o = d_o;
  x->to[ATTN_UNFADE_Q_] = d_q, x->to[ATTN_UNFADE_K_] = d_k, x->to[ATTN_UNFADE_V_] = d_v;
  x->to[ATTN_UNFADE_W_] = g.d_decay, x->to[ATTN_UNFADE_A_] = g.d_a, x->to[ATTN_UNFADE_B_] = g.d_b;
  x->to[ATTN_UNFADE_BETA_] = g.d_beta, x->to[ATTN_UNFADE_U_] = g.d_bonus;
  x->to[ATTN_UNFADE_DT_] = g.d_dt, x->to[ATTN_UNFADE_I_] = g.d_gate;
  x->to[ATTN_UNFADE_LAMBDA_] = g.d_lambda;
  x->d_n[0] = g.d_initial_n, x->d_n[1] = g.d_final_n;
  x->d_m[0] = g.d_initial_m, x->d_m[1] = g.d_final_m;
  x->d_begin = g.d_initial_state, x->d_end = g.d_final_state;
  x->a_log = g.d_a_log, x->dt_bias = g.d_dt_bias, x->skip = g.d_skip, x->accumulate = g.accumulate;
  some = g.d_a_log || g.d_dt_bias || g.d_skip || g.d_initial_state.data || g.d_initial_n.data ||
         g.d_initial_m.data;
  for (int i = 0; i < (int)ATTN_UNFADE_OUT_; i++) some |= x->to[i].data != NULL;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    (void)attn_unfade_check_(&e, &j, params, ctx, &workers, bytes != NULL);
  return attn_step_call_or_(&e, table, workers, ctx, attn_unfade_steps_, &j,
                            "decaying state, tokens back", some ? NULL : "no output is asked for",
                            bytes);
}
ATTN_CALL_(attn_recurrent_backward, (d_q, d_k, d_v, d_o, q, k, v, params, gradients),
           attn_tensor d_q, attn_tensor d_k, attn_tensor d_v, attn_tensor d_o, attn_tensor q,
           attn_tensor k, attn_tensor v, const attn_recurrent_params *params,
           const attn_recurrent_gradients *gradients)
