/* families/training/gemm_backward.h owns the gradients of dense products. */

typedef struct attn_gemm_back_ {
  const attn_table_ *table;
  attn_tensor d_x, d_w, d_bias; /* out; data null: not made */
  attn_tensor d_y, x, w, z;
  attn_gemm_params params; /* forward's */
  attn_activation act;
  float scale;
  int accumulate;
} attn_gemm_back_;

ATTN_COLD_ int attn_gemm_back_steps_(attn_stage_ *s, void *job) {
  const attn_gemm_back_ *a = (const attn_gemm_back_ *)job;
  const int turned = a->params.w_transposed;
  attn_gemm_params p;
  attn_tensor d_z = a->d_y;
  attn_clear_(&p, sizeof p);
  p.w_transposed = turned, p.scale = a->params.scale;
  if (a->act != ATTN_ACT_NONE || a->params.softcap > 0.0f || attn_formed_(&a->params.form)) {
    attn_slopes_ slopes;
    attn_clear_(&slopes, sizeof slopes);
    slopes.d_x = d_z = attn_stage_tensor_(s, a->d_y.batch, a->d_y.heads, a->d_y.len, a->d_y.dim);
    slopes.d_y = a->d_y, slopes.act = a->act, slopes.x = a->z;
    slopes.form = a->params.form, slopes.softcap = a->params.softcap;
    if (!a->z.data) {
      p.bias = a->params.bias, slopes.x = d_z;
      if (!attn_stage_gemm_as_(s, d_z, a->x, a->w, &p)) return 0;
      p.bias.data = NULL;
    }
    if (!attn_stage_slopes_(s, &slopes)) return 0;
  }
  if (a->d_w.data) {
    const attn_tensor x = attn_spread_to_(&a->x, &a->d_y);
    if (!attn_stage_outer_(s, a->d_w, turned ? d_z : x, turned ? x : d_z, a->scale, a->accumulate))
      return 0;
  }
  if (a->d_bias.data && !attn_stage_shares_(s, a->d_bias, d_z, a->accumulate)) return 0;
  if (a->d_x.data) {
    const attn_tensor made = attn_stage_make_(s, &a->d_x, &a->d_y, a->accumulate);
    p.w_transposed = !turned;
    if (!attn_stage_gemm_as_(s, made, d_z, a->w, &p) ||
        !attn_stage_made_(s, &a->d_x, made, a->accumulate))
      return 0;
  }
  return 1;
}

ATTN_COLD_ int attn_gemm_back_check_(attn_error_ *e, attn_gemm_back_ *a, const attn_ctx *ctx) {
  const int64_t any = ATTN_ANY_;
  attn_operand_ op[] = {
      ATTN_OPERAND_(&a->d_x, "d_x", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->d_w, "d_w", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->d_y, "d_y", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&a->x, "x", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&a->w, "w", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&a->params.bias, "params.bias", ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->d_bias, "gradients.d_bias", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any,
                    ""),
      ATTN_OPERAND_(&a->z, "gradients.z", ATTN_OPTIONAL_, any, any, any, any, "")};
  enum { N = sizeof op / sizeof *op };
  attn_gemm_ forward;
  int workers;
  if (!attn_check_given_(e, op, N)) return 0;
  for (int i = 0; i < N; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  /* forward's own rules, of a dense y of these extents */
  const attn_tensor y = attn_bhtd((void *)(uintptr_t)ATTN_ALIGN_, ATTN_F32, a->d_y.batch,
                                  a->d_y.heads, a->d_y.len, a->d_y.dim);
  const attn_ctx plain = attn_before_workspace_(ctx);
  a->params.compute = ATTN_COMPUTE_F32, a->params.compute_prefer = 0;
  attn_clear_(&forward, sizeof forward);
  attn_gemm_open_(&forward, &y, &a->x, &a->w);
  if (!attn_gemm_plan_(e, &forward, &a->params, &plain, &workers, 0)) return 0;
  a->act = (attn_activation)forward.act, a->scale = forward.scale;
  if (a->d_x.data && !attn_gradient_fits_(&a->d_x, &a->x))
    return attn_reject_(e, ATTN_E_SHAPE,
                        "d_x must have the shape of x, or 1 where x has a stride of 0");
  if (a->d_w.data && (a->d_w.len != a->w.len || !attn_gradient_fits_(&a->d_w, &a->w)))
    return attn_reject_(
        e, ATTN_E_SHAPE,
        "d_w must have the shape of w, or batch and heads of 1 where w has a stride of 0");
  if (a->d_bias.data && !a->params.bias.data)
    return attn_reject_(e, ATTN_E_NULL, "gradients.d_bias wants params.bias");
  if (a->d_bias.data && !attn_gradient_fits_(&a->d_bias, &a->params.bias))
    return attn_reject_(
        e, ATTN_E_SHAPE,
        "gradients.d_bias must have the shape of params.bias, or 1 where that has a stride of 0");
  if (a->z.data && (!attn_gradient_whole_(&a->z, &a->d_y) || a->z.dim != a->d_y.dim))
    return attn_reject_(e, ATTN_E_SHAPE, "gradients.z must have the shape of d_y");
  if (a->accumulate != 0 && a->accumulate != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.accumulate must be 0 or 1");
  return attn_check_apart_(e, ctx, op, N, NULL, 0);
}

ATTN_COLD_ attn_status attn_gemm_backward_call_(attn_tensor d_x, attn_tensor d_w, attn_tensor d_y,
                                                attn_tensor x, attn_tensor w,
                                                const attn_gemm_params *params,
                                                const attn_gemm_gradients *gradients, attn_ctx *ctx,
                                                size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_gemm_back_ a;
  int workers = 1;
  attn_clear_(&a, sizeof a);
  a.d_x = d_x, a.d_w = d_w, a.d_y = d_y, a.x = x, a.w = w;
  if (params) a.params = *params;
  if (gradients)
    a.d_bias = gradients->d_bias, a.z = gradients->z, a.accumulate = gradients->accumulate;
  if (attn_check_ctx_(&e, ctx, &a.table, &workers)) (void)attn_gemm_back_check_(&e, &a, ctx);
  return attn_step_call_or_(
      &e, a.table, workers, ctx, attn_gemm_back_steps_, &a, "dense products",
      a.d_x.data || a.d_w.data || a.d_bias.data ? NULL : "no output is asked for", bytes);
}
ATTN_CALL_(attn_gemm_backward, (d_x, d_w, d_y, x, w, params, gradients), attn_tensor d_x,
           attn_tensor d_w, attn_tensor d_y, attn_tensor x, attn_tensor w,
           const attn_gemm_params *params, const attn_gemm_gradients *gradients)
