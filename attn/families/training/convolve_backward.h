/* families/training/convolve_backward.h owns the gradients of convolution along the sequence: of each tap those of a
 * dense product, whose rows are every so manieth of x. */

typedef struct attn_convolve_back_ {
  const attn_table_ *table;
  attn_tensor d_x, d_w, d_bias; /* out; data null: not made */
  attn_tensor d_y, x, w;
  attn_convolve_params p;
  attn_taps_ taps;
  int accumulate;
} attn_convolve_back_;

/* Batch entries of one length. */
typedef struct attn_convolve_part_ {
  int64_t n, len;          /* rows of x and of y */
  attn_tensor d_x, d_y, x; /* d_x: in f32, added to */
  int add_w, add_bias;     /* d_w, d_bias hold something */
} attn_convolve_part_;

/* The output rows m0 .. m1 - 1 that tap r gives a row of x; first: that of m0. Returns how many. */
ATTN_COLD_ int64_t attn_convolve_reach_(const attn_taps_ *t, const attn_convolve_part_ *part,
                                        int64_t r, int64_t *m0, int64_t *first) {
  const int64_t step = t->stride;
  const int64_t i = attn_taps_start_(t, 0, part->len, part->n) + r * t->dilation;
  const int64_t lo = i >= 0 ? 0 : (step - 1 - i) / step;
  const int64_t hi = i >= part->n ? 0 : (part->n - 1 - i) / step + 1;
  *m0 = lo, *first = i + lo * step;
  return attn_max64_((hi < part->len ? hi : part->len) - lo, 0);
}

/* Every so manieth row from `first` on. */
ATTN_COLD_ attn_tensor attn_stage_every_(attn_tensor t, int64_t first, int64_t n, int64_t step) {
  t = attn_stage_rows_(t, n ? first : 0, n);
  t.stride_len = n > 1 ? attn_mul_(t.stride_len, step) : t.stride_len;
  return t;
}

/* What tap r of these entries adds to d_x, by way of made, and to d_w. */
ATTN_COLD_ int attn_convolve_back_tap_(attn_stage_ *s, const attn_convolve_back_ *a,
                                       const attn_convolve_part_ *part, int64_t r, attn_tensor made,
                                       attn_tensor d_w) {
  const int64_t d = a->x.dim, step = a->taps.stride;
  attn_gemm_params turned;
  int64_t m0, first;
  const int64_t rows = attn_convolve_reach_(&a->taps, part, r, &m0, &first);
  const attn_tensor d_y = attn_stage_rows_(part->d_y, m0, rows);
  attn_clear_(&turned, sizeof turned);
  turned.w_transposed = 1;
  if (d_w.data &&
      !attn_stage_outer_(s, attn_stage_rows_(d_w, r * d, d),
                         attn_stage_every_(part->x, first, rows, step), d_y, 1.0f, part->add_w))
    return 0;
  if (!part->d_x.data || rows == 0) return 1;
  made = attn_stage_rows_(made, 0, rows), made.batch = d_y.batch;
  return attn_stage_gemm_as_(s, made, d_y, attn_stage_rows_(a->w, r * d, d), &turned) &&
         attn_stage_shares_(s, attn_stage_every_(part->d_x, first, rows, step), made, 1);
}

/* Of entries of one length. */
ATTN_COLD_ int attn_convolve_back_part_(attn_stage_ *s, const attn_convolve_back_ *a,
                                        const attn_convolve_part_ *part, attn_tensor made,
                                        attn_tensor d_w, attn_tensor d_bias) {
  if (d_bias.data &&
      !attn_stage_shares_(s, d_bias, attn_stage_rows_(part->d_y, 0, part->len), part->add_bias))
    return 0;
  for (int64_t r = 0; r < a->taps.kernel && (d_w.data || part->d_x.data); r++)
    if (!attn_convolve_back_tap_(s, a, part, r, made, d_w)) return 0;
  return 1;
}

/* Sums over batch entries of several lengths are made in f32, one after the other. */
ATTN_COLD_ attn_tensor attn_convolve_aside_(attn_stage_ *s, const attn_tensor *d, int parts) {
  return !d->data || !parts || d->dtype == ATTN_F32
             ? *d
             : attn_stage_tensor_(s, d->batch, d->heads, d->len, d->dim);
}

ATTN_COLD_ int attn_convolve_back_steps_(attn_stage_ *s, void *job) {
  const attn_convolve_back_ *a = (const attn_convolve_back_ *)job;
  const int64_t batch = a->d_y.batch, heads = a->d_y.heads, n = a->x.len;
  const int parts = a->p.x_len != NULL;
  const attn_tensor d_w = attn_convolve_aside_(s, &a->d_w, parts);
  const attn_tensor d_bias = attn_convolve_aside_(s, &a->d_bias, parts);
  const int w_aside = d_w.data != a->d_w.data, bias_aside = d_bias.data != a->d_bias.data;
  attn_tensor d_x = a->d_x, made;
  attn_clear_(&made, sizeof made);
  if (d_x.data) {
    made = attn_stage_tensor_(s, parts ? 1 : batch, heads, a->d_y.len, a->x.dim);
    if (a->accumulate || d_x.dtype != ATTN_F32 || d_x.batch != batch || d_x.heads != heads ||
        d_x.len != n)
      d_x = attn_stage_tensor_(s, batch, heads, n, a->x.dim);
    for (int64_t b = 0; s->run && b < batch; b++) attn_zero_rows_(&d_x, b, 0, heads, 0);
  }
  for (int64_t b = 0; b < (parts ? batch : 1); b++) {
    attn_convolve_part_ part;
    part.n = s->run ? attn_len_of_(a->p.x_len, b, n) : n;
    part.len = attn_taps_len_(&a->taps, part.n);
    part.d_x = parts ? attn_stage_entry_(d_x, b) : d_x;
    part.d_y = parts ? attn_stage_entry_(a->d_y, b) : a->d_y;
    part.add_w = b > 0 || (a->accumulate && !w_aside);
    part.add_bias = b > 0 || (a->accumulate && !bias_aside);
    part.x = parts ? attn_stage_entry_(a->x, b) : a->x;
    if (!attn_convolve_back_part_(s, a, &part, made, d_w, d_bias)) return 0;
  }
  return (!w_aside || attn_stage_shares_(s, a->d_w, d_w, a->accumulate)) &&
         (!bias_aside || attn_stage_shares_(s, a->d_bias, d_bias, a->accumulate)) &&
         (!d_x.data || attn_stage_made_(s, &a->d_x, d_x, a->accumulate));
}

ATTN_COLD_ int attn_convolve_back_check_(attn_error_ *e, attn_convolve_back_ *a,
                                         const attn_ctx *ctx, int query, int depthwise) {
  const int64_t any = ATTN_ANY_;
  attn_operand_ op[] = {
      ATTN_OPERAND_(&a->d_x, "d_x", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->d_w, "d_w", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->d_bias, "gradients.d_bias", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any,
                    ""),
      ATTN_OPERAND_(&a->d_y, "d_y", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&a->x, "x", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&a->w, "w", 0, any, any, any, any, "")};
  enum { N = sizeof op / sizeof *op };
  attn_span_ len;
  if (!attn_check_given_(e, op, N)) return 0;
  for (int i = 0; i < (int)N; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  /* forward's own rules, of a dense y of these extents */
  attn_convolve_job_ forward;
  const attn_ctx plain = attn_before_workspace_(ctx);
  forward.y = attn_bhtd((void *)(uintptr_t)ATTN_ALIGN_, ATTN_F32, a->d_y.batch, a->d_y.heads,
                        a->d_y.len, a->d_y.dim);
  forward.x = a->x, forward.w = a->w, forward.p = a->p;
  if (!attn_convolve_check_(e, &forward, &plain, query, depthwise)) return 0;
  (void)attn_taps_of_(&a->taps, depthwise ? a->w.len : a->w.len / a->x.dim, &a->p);
  if (a->d_x.data && !attn_gradient_fits_(&a->d_x, &a->x))
    return attn_reject_(e, ATTN_E_SHAPE,
                        "d_x must have the shape of x, or 1 where x has a stride of 0");
  if (a->d_w.data && (a->d_w.len != a->w.len || !attn_gradient_fits_(&a->d_w, &a->w)))
    return attn_reject_(e, ATTN_E_SHAPE,
                        "d_w must have the shape of w, or heads of 1 where w has a stride of 0");
  if (a->d_bias.data && !a->p.bias.data)
    return attn_reject_(e, ATTN_E_NULL, "gradients.d_bias wants params.bias");
  if (a->d_bias.data && !attn_gradient_fits_(&a->d_bias, &a->p.bias))
    return attn_reject_(e, ATTN_E_SHAPE, "gradients.d_bias must have the shape of params.bias");
  if (a->accumulate != 0 && a->accumulate != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.accumulate must be 0 or 1");
  return attn_check_array_(e, a->p.x_len, a->x.batch, 4,
                           "params.x_len must be aligned to its elements", &len) &&
         attn_check_apart_(e, ctx, op, N, &len, 1);
}

ATTN_COLD_ attn_status attn_convolve_backward_call_(attn_tensor d_x, attn_tensor d_w,
                                                    attn_tensor d_y, attn_tensor x, attn_tensor w,
                                                    const attn_convolve_params *params,
                                                    const attn_convolve_gradients *gradients,
                                                    attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_convolve_back_ a;
  int workers = 1;
  attn_clear_(&a, sizeof a);
  a.d_x = d_x, a.d_w = d_w, a.d_y = d_y, a.x = x, a.w = w;
  if (params) a.p = *params;
  if (gradients) a.d_bias = gradients->d_bias, a.accumulate = gradients->accumulate;
  if (attn_check_ctx_(&e, ctx, &a.table, &workers))
    (void)attn_convolve_back_check_(&e, &a, ctx, bytes != NULL, 0);
  return attn_step_call_or_(
      &e, a.table, workers, ctx, attn_convolve_back_steps_, &a, "a dense product a tap",
      d_x.data || d_w.data || a.d_bias.data ? NULL : "no output is asked for", bytes);
}
ATTN_CALL_(attn_convolve_backward, (d_x, d_w, d_y, x, w, params, gradients), attn_tensor d_x,
           attn_tensor d_w, attn_tensor d_y, attn_tensor x, attn_tensor w,
           const attn_convolve_params *params, const attn_convolve_gradients *gradients)
