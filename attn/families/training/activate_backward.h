/* families/training/activate_backward.h owns gradients through activations and gates, element by element. */

typedef struct attn_slopes_ {
  const attn_table_ *table;
  attn_tensor d_x, d_gate; /* out, data null: not made */
  attn_tensor d_y, x, gate;
  attn_activation act;
  attn_act_form form;
  float softcap; /* > 0: of x as attn_capped_row_ makes it */
  int accumulate;
  int64_t tiles, slices; /* 64 rows; columns */
  char *memory;
  int64_t each;
} attn_slopes_;

/* Whether rows of an output are made beside it. */
ATTN_FUNC_ int attn_slopes_aside_(const attn_slopes_ *a, const attn_tensor *y) {
  return y->data && (y->dtype != ATTN_F32 || a->accumulate);
}

/* An output of n numbers begins: where they are made. */
ATTN_FUNC_ float *attn_slopes_open_(const attn_slopes_ *a, const attn_tensor *y, char *at,
                                    float *room) {
  return attn_slopes_aside_(a, y) ? room : (float *)(void *)at;
}
ATTN_FUNC_ void attn_slopes_close_(const attn_slopes_ *a, const attn_tensor *y, char *at,
                                   const float *made, int64_t n) {
  if (attn_slopes_aside_(a, y))
    a->table->blend(at, made, a->accumulate ? at : NULL, y->dtype, ATTN_F32, y->dtype, n, 1.0f,
                    1.0f);
}

/* Gradients y by n numbers of x or a gate as a form has them become those by what stands there: 0 from a limit on. */
ATTN_FUNC_ void attn_slopes_formed_(const attn_slopes_ *a, float *y, const float *x, int64_t n,
                                    int gate) {
  const float slope = attn_form_slope_(&a->form), most = a->form.limit;
  const float by = gate ? 1.0f / slope : a->gate.data ? slope : 1.0f;
  for (int64_t i = 0; i < n; i++)
    y[i] = most > 0.0f && (x[i] >= most || (gate && x[i] <= -most)) ? 0.0f : y[i] * by;
}

/* 64 rows of one head, some columns; rows that lie end to end are one. */
ATTN_FUNC_ void attn_slopes_item_(void *job, int worker, int64_t index) {
  const attn_slopes_ *a = (const attn_slopes_ *)job;
  const attn_table_ *f = a->table;
  const attn_tensor *const t[5] = {&a->d_x, &a->d_gate, &a->d_y, &a->x, &a->gate};
  const int64_t tile = index / a->slices % a->tiles, unit = index / a->slices / a->tiles;
  const int64_t b = unit / a->d_y.heads, h = unit % a->d_y.heads, dim = a->d_y.dim;
  const int64_t first = tile * ATTN_TILE_, c0 = index % a->slices * ATTN_SLICE_;
  const int64_t left = a->d_y.len - first, rows = left < ATTN_TILE_ ? left : (int64_t)ATTN_TILE_;
  int whole = a->slices == 1;
  for (int k = 0; k < 5; k++) whole &= !t[k]->data || t[k]->stride_len == dim;
  const int64_t cols = whole                    ? rows * dim
                       : dim - c0 < ATTN_SLICE_ ? dim - c0
                                                : (int64_t)ATTN_SLICE_;
  float *room = (float *)(void *)(a->memory + worker * a->each);
  const int formed = attn_formed_(&a->form);
  for (int64_t i = 0; i < (whole ? 1 : rows); i++)
    for (int64_t c = 0, n; c < cols; c += n) {
      char *at[5];
      const float *in[5] = {NULL, NULL, NULL, NULL, NULL};
      int64_t stride;
      n = cols - c < ATTN_SLICE_ ? cols - c : (int64_t)ATTN_SLICE_;
      for (int k = 0; k < 5; k++) {
        at[k] =
            t[k]->data ? attn_at_(t[k], b, h, first + i) + attn_bytes_(t[k]->dtype, c0 + c) : NULL;
        if (k > 1 && at[k])
          in[k] = attn_rows_in_(f, t[k], at[k], 1, n, room + k * ATTN_SLICE_, &stride);
      }
      if (a->softcap > 0.0f) { /* x / c stays for the cap's own slope */
        const float by[2] = {1.0f / attn_cap_(a->softcap), 0.0f};
        float *capped = room + 7 * ATTN_SLICE_;
        attn_on_(dense, f)->clip(capped + ATTN_SLICE_, in[3], n, -INFINITY, INFINITY, by);
        in[3] = (const float *)memcpy(capped, in[3], (size_t)n * sizeof(float));
        attn_capped_row_(f, capped, n, a->softcap);
      }
      const float *x = in[3], *gate = in[4];
      if (formed) {
        if (in[3] == (const float *)(const void *)at[0]) /* which is read once more, behind d_x */
          in[3] = (const float *)memcpy(room + 3 * ATTN_SLICE_, in[3], (size_t)n * sizeof(float));
        float *made = room + 5 * ATTN_SLICE_;
        attn_form_cut_(f, made, x, made + ATTN_SLICE_, gate, n, &a->form);
        x = made, gate = gate ? made + ATTN_SLICE_ : NULL;
      }
      if (at[1]) { /* first: d_x may lie where d_y does */
        float *y = attn_slopes_open_(a, t[1], at[1], room + ATTN_SLICE_);
        attn_on_(dense, f)->act(y, x, in[2], n, NULL, 1.0f, (int)a->act);
        if (formed) attn_slopes_formed_(a, y, in[4], n, 1);
        attn_slopes_close_(a, t[1], at[1], y, n);
      }
      if (at[0]) {
        float *y = attn_slopes_open_(a, t[0], at[0], room);
        attn_on_(gradient, f)->slope(y, in[2], x, gate, n, (int)a->act);
        if (formed) attn_slopes_formed_(a, y, in[3], n, 0);
        if (a->softcap > 0.0f)
          attn_on_(gradient, f)->slope(y, y, room + 8 * ATTN_SLICE_, NULL, n, (int)ATTN_ACT_TANH);
        attn_slopes_close_(a, t[0], at[0], y, n);
      }
    }
}

/* d_x = d_y gate act'(x) and d_gate = d_y act(x), or what these are is added to; all have the extents of d_y. */
ATTN_COLD_ int attn_stage_slopes_(attn_stage_ *s, const attn_slopes_ *all) {
  attn_slopes_ a = *all;
  const attn_tensor *const in[3] = {&a.d_y, &a.x, &a.gate};
  int aside = attn_slopes_aside_(&a, &a.d_x) || attn_slopes_aside_(&a, &a.d_gate);
  for (int i = 0; i < 3; i++) aside |= in[i]->data && in[i]->dtype != ATTN_F32;
  a.table = s->table;
  a.tiles = attn_tiles_of_(a.d_y.len), a.slices = attn_runs_of_(a.d_y.dim, ATTN_SLICE_);
  const int64_t slices = a.softcap > 0.0f ? 9 : attn_formed_(&a.form) ? 7 : aside ? 5 : 0;
  a.each = attn_piece_(slices * ATTN_SLICE_, sizeof(float));
  return attn_stage_for_(
      s, attn_mul_(attn_mul_(a.d_y.batch, a.d_y.heads), attn_mul_(a.tiles, a.slices)),
      attn_slopes_item_, &a, a.each, &a.memory);
}

/* ---- the call -------------------------------------------------------------------------------*/

/* What is a sum is made whole first, and then what is added to beside it as well. */
ATTN_COLD_ int attn_activate_back_steps_(attn_stage_ *s, void *job) {
  const attn_slopes_ *all = (const attn_slopes_ *)job;
  attn_slopes_ a = *all;
  attn_tensor *const out[2] = {&a.d_x, &a.d_gate};
  const attn_tensor *const to[2] = {&all->d_x, &all->d_gate};
  int sums = 0;
  a.x = attn_spread_to_(&a.x, &a.d_y);
  if (a.gate.data) a.gate = attn_spread_to_(&a.gate, &a.d_y);
  for (int i = 0; i < 2; i++) sums |= to[i]->data && !attn_gradient_whole_(to[i], &a.d_y);
  if (sums) a.accumulate = 0;
  for (int i = 0; sums && i < 2; i++)
    if (to[i]->data) *out[i] = attn_stage_make_(s, to[i], &a.d_y, all->accumulate);
  if (!attn_stage_slopes_(s, &a)) return 0;
  for (int i = 0; sums && i < 2; i++)
    if (to[i]->data && !attn_stage_made_(s, to[i], *out[i], all->accumulate)) return 0;
  return 1;
}

ATTN_COLD_ int attn_activate_back_check_(attn_error_ *e, attn_slopes_ *a, const attn_ctx *ctx) {
  const int64_t any = ATTN_ANY_, len = a->d_y.len, dim = a->d_y.dim;
  attn_operand_ op[] = {
      ATTN_OPERAND_(&a->d_x, "d_x", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->d_y, "d_y", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&a->x, "x", 0, any, any, len, dim, "x must be [1 or B, 1 or H, T, n] like d_y"),
      ATTN_OPERAND_(&a->gate, "params.gate", ATTN_OPTIONAL_, any, any, len, dim,
                    "params.gate must be [1 or B, 1 or H, T, n] like d_y"),
      ATTN_OPERAND_(&a->d_gate, "gradients.d_gate", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any,
                    "")};
  enum { DX, DY, X, GATE, DG, N };
  if (!attn_check_given_(e, op, N)) return 0;
  for (int i = 0; i < N; i++) {
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
    if ((i == X || i == GATE) && op[i].t->data && !attn_gemm_fits_(op[i].t, &a->d_y))
      return attn_reject_(e, ATTN_E_SHAPE, op[i].rule);
  }
  if (!attn_check_activation_(e, &a->act, ATTN_ACT_NONE,
                              "params.activation must be an attn_activation"))
    return 0;
  if (!attn_check_form_(e, &a->form, a->gate.data != NULL)) return 0;
  if (a->d_x.data && !attn_gradient_fits_(&a->d_x, &a->x))
    return attn_reject_(e, ATTN_E_SHAPE,
                        "d_x must have the shape of x, or 1 where x has a stride of 0");
  if (a->d_gate.data && !a->gate.data)
    return attn_reject_(e, ATTN_E_NULL, "gradients.d_gate wants params.gate");
  if (a->d_gate.data && !attn_gradient_fits_(&a->d_gate, &a->gate))
    return attn_reject_(
        e, ATTN_E_SHAPE,
        "gradients.d_gate must have the shape of params.gate, or 1 where that has a stride of 0");
  if (a->accumulate != 0 && a->accumulate != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.accumulate must be 0 or 1");
  if (!a->accumulate && attn_in_place_(&a->d_x, &a->d_y)) op[DY].span.lo = op[DY].span.hi = 0;
  return attn_check_apart_(e, ctx, op, N, NULL, 0);
}

ATTN_COLD_ attn_status attn_activate_backward_call_(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                                    const attn_activate_params *params,
                                                    const attn_activate_gradients *gradients,
                                                    attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_activate_params p;
  attn_slopes_ a;
  int workers = 1;
  attn_clear_(&a, sizeof a), attn_clear_(&p, sizeof p);
  a.d_x = d_x, a.d_y = d_y, a.x = x;
  if (params) p = *params;
  a.act = p.activation, a.gate = p.gate, a.form = p.form;
  if (gradients) a.d_gate = gradients->d_gate, a.accumulate = gradients->accumulate;
  if (attn_check_ctx_(&e, ctx, &a.table, &workers)) (void)attn_activate_back_check_(&e, &a, ctx);
  return attn_step_call_or_(&e, a.table, workers, ctx, attn_activate_back_steps_, &a,
                            "element by element",
                            a.d_x.data || a.d_gate.data ? NULL : "no output is asked for", bytes);
}
ATTN_CALL_(attn_activate_backward, (d_x, d_y, x, params, gradients), attn_tensor d_x,
           attn_tensor d_y, attn_tensor x, const attn_activate_params *params,
           const attn_activate_gradients *gradients)
