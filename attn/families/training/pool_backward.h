/* families/training/pool_backward.h owns the gradients of pooling along the sequence: a head's blocks in order, since they
 * may share rows. */

typedef struct attn_pool_back_ {
  const attn_table_ *table;
  attn_tensor d_x, d_w, d_bias; /* out; data null: not made */
  attn_tensor d_y, x;
  attn_pool_params p;
  int accumulate;
} attn_pool_back_;

typedef struct attn_pool_back_item_ {
  const attn_pool_back_ *a;
  attn_pooled_ f;  /* forward's blocks, and its weights */
  attn_tensor d_x; /* f32, [B,H,n,d], added to; data null: not made */
  attn_tensor d_z,
      centre; /* DYNAMIC, f32: of the weights' logarithms [B,H,M,kernel]; the rows they come from [B,H,M,d] */
  char *own;
  int64_t each, at_x, at_top, at_arg, at_a, at_d;
} attn_pool_back_item_;

ATTN_FUNC_ float *attn_pool_back_row_(const attn_tensor *t, int64_t b, int64_t h, int64_t i) {
  return (float *)(void *)attn_at_(t, b, h, i);
}

/* Columns go to the first row that has the maximum; NaN is one. -0 and 0 are the same. */
ATTN_FUNC_ void attn_pool_back_max_(const attn_pool_back_item_ *j, char *own, const float *d_y,
                                    int64_t b, int64_t h, int64_t start, int64_t n) {
  const attn_tensor *x = &j->a->x;
  float *row = (float *)(void *)(own + j->at_x), *top = (float *)(void *)(own + j->at_top);
  int64_t *arg = (int64_t *)(void *)(own + j->at_arg);
  for (int64_t r = 0; r < n; r++) {
    j->a->table->widen(row, attn_at_(x, b, h, start + r), 0, NULL, 1, x->dim, x->dtype, NULL);
    for (int64_t c = 0; c < x->dim; c++)
      if (r == 0 || !(top[c] >= row[c] || top[c] != top[c])) top[c] = row[c], arg[c] = start + r;
  }
  for (int64_t c = 0; c < x->dim; c++) attn_pool_back_row_(&j->d_x, b, h, arg[c])[c] += d_y[c];
}

/* d_x += weight d_y, and what reaches the logarithms of the weights. */
ATTN_FUNC_ void attn_pool_back_weighted_(const attn_pool_back_item_ *j, char *own, const float *d_y,
                                         int64_t b, int64_t h, int64_t m, int64_t start,
                                         int64_t n) {
  const attn_table_ *f = j->a->table;
  const attn_tensor *x = &j->a->x;
  const int64_t d = x->dim;
  float *row = (float *)(void *)(own + j->at_x), *a = (float *)(void *)(own + j->at_a);
  float *d_a = (float *)(void *)(own + j->at_d);
  float *d_z = attn_pool_back_row_(&j->d_z, b, h, m);
  double sum = 0.0, all = 0.0;
  attn_pooled_weights_(&j->f, own, a, attn_pool_back_row_(&j->centre, b, h, m), b, h, start, n);
  for (int64_t r = 0; r < n; r++) sum += (double)a[r];
  for (int64_t r = 0; r < n; r++) {
    a[r] = (float)((double)a[r] / sum);
    f->widen(row, attn_at_(x, b, h, start + r), 0, NULL, 1, d, x->dtype, NULL);
    attn_on_(gradient, f)->row_dots(d_a + r, d_y, row, 1, d);
    all += (double)a[r] * (double)d_a[r];
    if (!j->d_x.data) continue;
    float *to = attn_pool_back_row_(&j->d_x, b, h, start + r);
    f->blend(to, d_y, to, ATTN_F32, ATTN_F32, ATTN_F32, d, a[r], 1.0f);
  }
  for (int64_t r = 0; r < j->d_z.dim; r++)
    d_z[r] = r < n ? (float)((double)a[r] * ((double)d_a[r] - all)) : 0.0f;
}

/* All blocks of a head. */
ATTN_FUNC_ void attn_pool_back_blocks_(void *job, int worker, int64_t unit) {
  const attn_pool_back_item_ *j = (const attn_pool_back_item_ *)job;
  const attn_pool_back_ *a = j->a;
  const attn_tensor *bias = &j->f.p.bias, *y = &a->d_y;
  const int64_t b = unit / y->heads, h = unit % y->heads, d = y->dim;
  const int64_t n = attn_len_of_(a->p.x_len, b, a->x.len);
  const int64_t blocks = attn_pooled_blocks_(&j->f, b, n);
  char *own = j->own + worker * j->each;
  float *d_y = (float *)(void *)own;
  if (bias->data)
    a->table->widen((float *)(void *)(own + j->f.at_bias),
                    attn_at_(bias, 0, bias->heads > 1 ? h : 0, 0), 0, NULL, 1, a->p.kernel,
                    bias->dtype, NULL);
  for (int64_t m = 0; m < y->len; m++) {
    int64_t start, end;
    if (m >= blocks) {
      if (!j->d_z.data) break;
      memset(attn_pool_back_row_(&j->d_z, b, h, m), 0, (size_t)j->d_z.dim * sizeof(float));
      memset(attn_pool_back_row_(&j->centre, b, h, m), 0, (size_t)d * sizeof(float));
      continue;
    }
    attn_pooled_range_(&j->f, m, blocks, n, &start, &end);
    a->table->widen(d_y, attn_at_(y, b, h, m), 0, NULL, 1, d, y->dtype, NULL);
    if (a->p.kind == ATTN_POOL_DYNAMIC) {
      attn_pool_back_weighted_(j, own, d_y, b, h, m, start, end - start);
      continue;
    }
    if (a->p.kind == ATTN_POOL_MAX) {
      attn_pool_back_max_(j, own, d_y, b, h, start, end - start);
      continue;
    }
    for (int64_t i = start; i < end; i++) {
      float *to = attn_pool_back_row_(&j->d_x, b, h, i);
      a->table->blend(to, d_y, to, ATTN_F32, ATTN_F32, ATTN_F32, d, 1.0f / (float)(end - start),
                      1.0f);
    }
  }
}

/* What the weights give the rows they come from; made = d_z w^T. */
typedef struct attn_pool_centres_ {
  const attn_pool_back_item_ *j;
  attn_tensor made;
} attn_pool_centres_;

ATTN_FUNC_ void attn_pool_back_centres_(void *job, int worker, int64_t unit) {
  const attn_pool_centres_ *c = (const attn_pool_centres_ *)job;
  const attn_pool_back_ *a = c->j->a;
  const int64_t b = unit / a->d_y.heads, h = unit % a->d_y.heads;
  const int64_t n = attn_len_of_(a->p.x_len, b, a->x.len);
  const int64_t blocks = attn_pooled_blocks_(&c->j->f, b, n), middle = (a->p.kernel - 1) / 2;
  (void)worker;
  for (int64_t m = 0; m < blocks; m++) {
    int64_t start, end;
    attn_pooled_range_(&c->j->f, m, blocks, n, &start, &end);
    float *to =
        attn_pool_back_row_(&c->j->d_x, b, h, start + middle < end ? start + middle : end - 1);
    a->table->blend(to, attn_pool_back_row_(&c->made, b, h, m), to, ATTN_F32, ATTN_F32, ATTN_F32,
                    a->x.dim, 1.0f, 1.0f);
  }
}

ATTN_COLD_ int attn_pool_back_weights_(attn_stage_ *s, const attn_pool_back_item_ *j) {
  const attn_pool_back_ *a = j->a;
  attn_gemm_params turned;
  attn_pool_centres_ c;
  attn_clear_(&turned, sizeof turned);
  turned.w_transposed = 1;
  if (a->d_w.data && !attn_stage_outer_(s, a->d_w, j->centre, j->d_z, 1.0f, a->accumulate))
    return 0;
  if (a->d_bias.data && !attn_stage_shares_(s, a->d_bias, j->d_z, a->accumulate)) return 0;
  if (!j->d_x.data) return 1;
  c.j = j, c.made = j->centre; /* which has been read */
  return attn_stage_gemm_as_(s, c.made, j->d_z, a->p.w, &turned) &&
         attn_stage_for_(s, attn_mul_(a->d_y.batch, a->d_y.heads), attn_pool_back_centres_, &c, 0,
                         NULL);
}

ATTN_COLD_ int attn_pool_back_steps_(attn_stage_ *s, void *job) {
  const attn_pool_back_ *a = (const attn_pool_back_ *)job;
  const attn_tensor *x = &a->x, *y = &a->d_y;
  const int dynamic = a->p.kind == ATTN_POOL_DYNAMIC;
  attn_pool_back_item_ j;
  attn_clear_(&j, sizeof j);
  j.a = a, j.f.table = s->table, j.f.y = *y, j.f.x = *x, j.f.p = a->p, j.d_x = a->d_x;
  if (j.f.p.stride == 0) j.f.p.stride = j.f.p.kernel;
  if (a->d_x.data) {
    if (a->accumulate || a->d_x.dtype != ATTN_F32 || !attn_gradient_whole_(&a->d_x, x))
      j.d_x = attn_stage_tensor_(s, x->batch, x->heads, x->len, x->dim);
    for (int64_t b = 0; s->run && b < x->batch; b++) attn_zero_rows_(&j.d_x, b, 0, x->heads, 0);
  }
  if (dynamic) {
    j.d_z = attn_stage_tensor_(s, y->batch, y->heads, y->len, a->p.kernel);
    j.centre = attn_stage_tensor_(s, y->batch, y->heads, y->len, x->dim);
    j.f.columns = attn_round_up_(a->p.kernel, 16), j.f.one = attn_mul_(x->dim, j.f.columns);
  }
  const int64_t row = attn_piece_(x->dim, sizeof(float));
  const int64_t columns = attn_piece_(j.f.columns, sizeof(float));
  j.at_x = row, j.at_top = attn_add_(j.at_x, row), j.at_arg = attn_add_(j.at_top, row);
  j.at_a = attn_add_(j.at_arg, attn_piece_(x->dim, sizeof(int64_t)));
  j.at_d = attn_add_(j.at_a, columns), j.f.at_bias = attn_add_(j.at_d, columns);
  j.each = attn_add_(j.f.at_bias, columns);
  const int64_t units = y->len ? attn_mul_(y->batch, y->heads) : 0;
  const int pieces = units ? attn_pieces_(s->workers, units) : 0;
  const int64_t packed = attn_piece_(attn_mul_(dynamic ? a->p.w.heads : 0, j.f.one), 4);
  char *memory = attn_stage_spare_(s, pieces ? attn_add_(packed, attn_mul_(j.each, pieces)) : 0);
  if (s->run && pieces) {
    j.f.packed = (float *)(void *)memory, j.own = memory + packed;
    if (dynamic) attn_pooled_pack_(&j.f);
    attn_for_(&s->ctx, pieces, units, attn_pool_back_blocks_, &j);
  }
  return (!dynamic || attn_pool_back_weights_(s, &j)) &&
         (!a->d_x.data || attn_stage_made_(s, &a->d_x, j.d_x, a->accumulate));
}

ATTN_COLD_ int attn_pool_back_check_(attn_error_ *e, attn_pool_back_ *a, const attn_ctx *ctx,
                                     int query) {
  const int64_t any = ATTN_ANY_;
  attn_operand_ op[] = {
      ATTN_OPERAND_(&a->d_x, "d_x", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->d_w, "gradients.d_w", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->d_bias, "gradients.d_bias", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any,
                    ""),
      ATTN_OPERAND_(&a->d_y, "d_y", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&a->x, "x", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&a->p.w, "params.w", ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->p.bias, "params.bias", ATTN_OPTIONAL_, any, any, any, any, "")};
  enum { N = sizeof op / sizeof *op, W = N - 2 };
  attn_span_ arrays[2];
  attn_pooled_job_ forward;
  const attn_ctx plain = attn_before_workspace_(ctx);
  if (!attn_check_given_(e, op, W)) return 0;
  for (int i = 0; i < (int)W; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  /* forward's own rules, of a dense y of these extents */
  forward.y = attn_bhtd((void *)(uintptr_t)ATTN_ALIGN_, ATTN_F32, a->d_y.batch, a->d_y.heads,
                        a->d_y.len, a->d_y.dim);
  forward.x = a->x, forward.p = a->p;
  if (!attn_pooled_check_(e, &forward, &plain, query)) return 0;
  a->p = forward.p; /* w and bias of DYNAMIC alone */
  for (int i = W; i < (int)N; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (a->d_x.data && !attn_gradient_fits_(&a->d_x, &a->x))
    return attn_reject_(e, ATTN_E_SHAPE,
                        "d_x must have the shape of x, or 1 where x has a stride of 0");
  if ((a->d_w.data && !a->p.w.data) || (a->d_bias.data && !a->p.bias.data))
    return attn_reject_(e, ATTN_E_NULL,
                        "gradients.d_w and d_bias want ATTN_POOL_DYNAMIC and what they are of");
  if (a->d_w.data && (a->d_w.len != a->p.w.len || !attn_gradient_fits_(&a->d_w, &a->p.w)))
    return attn_reject_(e, ATTN_E_SHAPE,
                        "gradients.d_w must have the shape of params.w, or heads of 1 where that "
                        "has a stride of 0");
  if (a->d_bias.data && !attn_gradient_fits_(&a->d_bias, &a->p.bias))
    return attn_reject_(e, ATTN_E_SHAPE, "gradients.d_bias must have the shape of params.bias");
  if (a->accumulate != 0 && a->accumulate != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.accumulate must be 0 or 1");
  return attn_check_array_(e, a->p.x_len, a->x.batch, 4, "", &arrays[0]) &&
         attn_check_array_(e, a->p.segments, a->x.batch, 4, "", &arrays[1]) &&
         attn_check_apart_(e, ctx, op, N, arrays, 2);
}

ATTN_COLD_ attn_status attn_pool_backward_call_(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                                const attn_pool_params *params,
                                                const attn_pool_gradients *gradients, attn_ctx *ctx,
                                                size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_pool_back_ a;
  int workers = 1;
  attn_clear_(&a, sizeof a);
  a.d_x = d_x, a.d_y = d_y, a.x = x;
  if (params) a.p = *params;
  if (gradients)
    a.d_w = gradients->d_w, a.d_bias = gradients->d_bias, a.accumulate = gradients->accumulate;
  const int none = !d_x.data && !a.d_w.data && !a.d_bias.data;
  if (attn_check_ctx_(&e, ctx, &a.table, &workers))
    (void)attn_pool_back_check_(&e, &a, ctx, bytes != NULL);
  return attn_step_call_or_(&e, a.table, workers, ctx, attn_pool_back_steps_, &a, "blocks of rows",
                            none ? "no output is asked for" : NULL, bytes);
}
ATTN_CALL_(attn_pool_backward, (d_x, d_y, x, params, gradients), attn_tensor d_x, attn_tensor d_y,
           attn_tensor x, const attn_pool_params *params, const attn_pool_gradients *gradients)
