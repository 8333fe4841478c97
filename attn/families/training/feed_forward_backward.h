/* families/training/feed_forward_backward.h owns the gradients of a feed-forward: runs of 512 rows, whose hidden rows are
 * made again, so that there are never those of all. */

typedef struct attn_feed_back_ {
  attn_tensor d_x, d_y, x; /* one head; d_x.data null: not made */
  attn_feed_forward ff;    /* judged */
  attn_feed_forward_gradients g;
  int fresh; /* d_x is overwritten, whatever is learned */
} attn_feed_back_;

/* What is learned, in the order of its fields. */
enum {
  ATTN_FEED_W_1_,
  ATTN_FEED_W_2_,
  ATTN_FEED_W_3_,
  ATTN_FEED_B_1_,
  ATTN_FEED_B_2_,
  ATTN_FEED_B_3_,
  ATTN_FEED_LEARNED_
};

/* One run of rows: all of d_x, d_y and x. */
ATTN_COLD_ int attn_feed_back_run_(attn_stage_ *s, const attn_feed_back_ *j, attn_tensor d_x,
                                   attn_tensor d_y, attn_tensor x, attn_learned_ *l) {
  const attn_feed_forward *ff = &j->ff;
  const int two = ff->w_2.data != NULL, gated = ff->w_3.data != NULL;
  const int64_t mark = s->used, b = x.batch, n = x.len, dff = ff->w_1.dim;
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  const attn_tensor z = attn_stage_tensor_(s, b, 1, n, dff);
  const attn_tensor up = gated ? attn_stage_tensor_(s, b, 1, n, dff) : none;
  const attn_tensor d_h = two ? attn_stage_tensor_(s, b, 1, n, dff) : d_y;
  const attn_tensor d_z = attn_stage_tensor_(s, b, 1, n, dff);
  const attn_tensor d_up = gated ? attn_stage_tensor_(s, b, 1, n, dff) : none;
  attn_slopes_ slopes;
  attn_clear_(&slopes, sizeof slopes);
  slopes.d_x = d_z, slopes.d_gate = d_up, slopes.d_y = d_h, slopes.x = z, slopes.gate = up;
  slopes.act = ff->activation, slopes.form = ff->form;
  if (!attn_stage_dense_(s, z, x, ff->w_1, ff->b_1, ATTN_ACT_NONE) ||
      (gated && !attn_stage_dense_(s, up, x, ff->w_3, ff->b_3, ATTN_ACT_NONE)))
    return 0;
  if (two && l[ATTN_FEED_W_2_].out.data) {
    const attn_tensor h = d_z; /* until that is made */
    if (!attn_stage_activate_(s, h, z, up, ff->activation, &ff->form) ||
        !attn_stage_learn_(s, &l[ATTN_FEED_W_2_], ff->w_2, h, d_y))
      return 0;
  }
  if (!attn_stage_learn_bias_(s, &l[ATTN_FEED_B_2_], d_y) ||
      (two && !attn_stage_back_product_(s, d_h, d_y, ff->w_2, 0)) ||
      !attn_stage_slopes_(s, &slopes) ||
      !attn_stage_learn_(s, &l[ATTN_FEED_W_1_], ff->w_1, x, d_z) ||
      !attn_stage_learn_bias_(s, &l[ATTN_FEED_B_1_], d_z) ||
      !attn_stage_learn_(s, &l[ATTN_FEED_W_3_], ff->w_3, x, d_up) ||
      !attn_stage_learn_bias_(s, &l[ATTN_FEED_B_3_], d_up))
    return 0;
  if (d_x.data) {
    const int more = j->g.accumulate && !j->fresh, aside = more || d_x.dtype != ATTN_F32;
    const attn_tensor made = aside ? attn_stage_tensor_(s, b, 1, n, d_x.dim) : d_x;
    if (!attn_stage_back_product_(s, made, d_z, ff->w_1, 0) ||
        (gated && !attn_stage_back_product_(s, made, d_up, ff->w_3, 1)) ||
        (aside && !attn_stage_shares_(s, d_x, made, more)))
      return 0;
  }
  attn_stage_back_(s, mark);
  return 1;
}

/* Batch entries b0 .. b0 + n - 1 of t, which may be absent. */
ATTN_COLD_ attn_tensor attn_feed_back_entries_(attn_tensor t, int64_t b0, int64_t n) {
  if (b0 > 0) t = attn_stage_shift_(t, b0 * t.stride_batch);
  t.batch = n;
  return t;
}

ATTN_COLD_ int attn_feed_back_steps_(attn_stage_ *s, void *job) {
  const attn_feed_back_ *j = (const attn_feed_back_ *)job;
  const attn_feed_forward_gradients *g = &j->g;
  const attn_tensor out[ATTN_FEED_LEARNED_] = {g->d_w_1, g->d_w_2, g->d_w_3,
                                               g->d_b_1, g->d_b_2, g->d_b_3};
  const int64_t len = j->x.len, most = ATTN_SHARES_RUN_;
  const int64_t entries = len >= most || len == 0 ? 1 : most / len; /* of a run */
  attn_learned_ l[ATTN_FEED_LEARNED_];
  for (int i = 0; i < ATTN_FEED_LEARNED_; i++) l[i] = attn_learned_open_(s, out[i], g->accumulate);
  int64_t b = 0;
  do { /* without rows gradients become 0 all the same */
    const int64_t n = attn_min64_(entries, j->x.batch - b);
    int64_t i = 0;
    do {
      const int64_t rows = attn_min64_(most, len - i);
      attn_tensor t[3] = {j->d_x, j->d_y, j->x};
      for (int k = 0; k < 3; k++)
        t[k] = attn_stage_rows_(attn_feed_back_entries_(t[k], b, n), i, rows);
      if (!attn_feed_back_run_(s, j, t[0], t[1], t[2], l)) return 0;
      i += rows;
    } while (s->run && i < len); /* the first run is the largest */
    b += n;
  } while (s->run && b < j->x.batch);
  for (int k = 0; k < ATTN_FEED_LEARNED_; k++)
    if (!attn_learned_close_(s, &l[k])) return 0;
  return 1;
}

/* ---- checks ---------------------------------------------------------------------------------*/

/* A gradient of what is learned lies in memory as that does; op: its operand. */
ATTN_COLD_ int attn_check_learned_(attn_error_ *e, attn_operand_ *op, attn_tensor of,
                                   const char *absent, const char *shape) {
  const attn_tensor *y = op->t;
  op->span.lo = op->span.hi = 0;
  if (!y->data) return 1;
  if (!of.data) return attn_reject_(e, ATTN_E_NULL, absent);
  attn_turn_back_(&of);
  op->rule = shape, op->batch = op->heads = 1, op->len = of.len, op->dim = of.dim;
  return attn_check_operand_(e, op, 1);
}

/* What forward takes and gradients do not. */
ATTN_COLD_ int attn_feed_back_ff_(attn_error_ *e, const attn_feed_forward *ff) {
  const attn_tensor *const w[] = {&ff->w_1, &ff->w_2, &ff->w_3};
  for (int i = 0; i < 3; i++)
    if (w[i]->data && attn_quantized_(w[i]->dtype))
      return attn_reject_(e, ATTN_E_DTYPE, "weights of ff must be of a float type");
  return 1;
}

/* Its gradients; op: six operands. */
ATTN_COLD_ int attn_feed_back_learned_(attn_error_ *e, attn_feed_forward_gradients *g,
                                       const attn_feed_forward *ff, attn_operand_ *op) {
#define ATTN_LEARNED_(field, of)                                                               \
  {                                                                                            \
    ATTN_OPERAND_(&g->field, "gradients." #field, ATTN_OUT_ | ATTN_OPTIONAL_, 1, 1, 0, 0, ""), \
        ff->of, "gradients." #field " wants ff." #of,                                          \
        "gradients." #field " must have the shape of ff." #of                                  \
  }
  const struct {
    attn_operand_ op;
    attn_tensor of;
    const char *absent, *shape;
  } list[ATTN_FEED_LEARNED_] = {ATTN_LEARNED_(d_w_1, w_1), ATTN_LEARNED_(d_w_2, w_2),
                                ATTN_LEARNED_(d_w_3, w_3), ATTN_LEARNED_(d_b_1, b_1),
                                ATTN_LEARNED_(d_b_2, b_2), ATTN_LEARNED_(d_b_3, b_3)};
#undef ATTN_LEARNED_
  for (int i = 0; i < ATTN_FEED_LEARNED_; i++) {
    op[i] = list[i].op;
    if (!attn_check_learned_(e, &op[i], list[i].of, list[i].absent, list[i].shape)) return 0;
  }
  return 1;
}

ATTN_COLD_ int attn_feed_back_check_(attn_error_ *e, attn_feed_back_ *j, const attn_ctx *ctx,
                                     const attn_table_ **table, int *workers) {
  enum { DX, DY, X, LEARNED, FF = LEARNED + ATTN_FEED_LEARNED_, N = FF + ATTN_FEED_OPERANDS_ };
  const int64_t any = ATTN_ANY_;
  attn_operand_ op[N];
  const attn_operand_ rows[] = {
      ATTN_OPERAND_(&j->d_x, "d_x", ATTN_OUT_ | ATTN_OPTIONAL_, j->x.batch, 1, j->x.len, j->x.dim,
                    "d_x must have the shape of x"),
      ATTN_OPERAND_(&j->d_y, "d_y", 0, any, 1, any, any, "d_y must have one head"),
      ATTN_OPERAND_(&j->x, "x", 0, j->d_y.batch, 1, j->d_y.len, any,
                    "x must be [d_y.batch, 1, d_y.len, .]")};
  attn_clear_(op, sizeof op);
  memcpy(op, rows, sizeof rows);
  if (!attn_check_ctx_(e, ctx, table, workers) || !attn_check_given_(e, op, 3)) return 0;
  for (int i = DY; i <= X; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (!attn_check_operand_(e, &op[DX], 1) || !attn_feed_back_ff_(e, &j->ff) ||
      !attn_check_feed_(e, &j->ff, *table, ATTN_PLACE_, 1, j->x.dim, j->d_y.dim, op + FF) ||
      !attn_feed_back_learned_(e, &j->g, &j->ff, op + LEARNED))
    return 0;
  if (j->g.accumulate != 0 && j->g.accumulate != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.accumulate must be 0 or 1");
  return attn_check_apart_(e, ctx, op, N, NULL, 0);
}

/* ---- the call -------------------------------------------------------------------------------*/

ATTN_COLD_ int attn_feed_back_asked_(const attn_tensor *d_x, const attn_feed_forward_gradients *g) {
  return d_x->data || g->d_w_1.data || g->d_w_2.data || g->d_w_3.data || g->d_b_1.data ||
         g->d_b_2.data || g->d_b_3.data;
}

ATTN_COLD_ attn_status attn_feed_forward_rows_backward_call_(
    attn_tensor d_x, attn_tensor d_y, attn_tensor x, const attn_feed_forward *ff,
    const attn_feed_forward_gradients *gradients, attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_feed_back_ j;
  int workers = 1;
  attn_clear_(&j, sizeof j);
  j.d_x = d_x, j.d_y = d_y, j.x = x;
  if (gradients) j.g = *gradients;
  if (!ff) {
    attn_reject_(&e, ATTN_E_NULL, "ff must not be null: it has the weights");
  } else {
    j.ff = *ff;
    (void)attn_feed_back_check_(&e, &j, ctx, &table, &workers);
  }
  return attn_step_call_or_(
      &e, table, workers, ctx, attn_feed_back_steps_, &j, "feed-forward, runs of rows",
      attn_feed_back_asked_(&j.d_x, &j.g) ? NULL : "no output is asked for", bytes);
}
ATTN_CALL_(attn_feed_forward_rows_backward, (d_x, d_y, x, ff, gradients), attn_tensor d_x,
           attn_tensor d_y, attn_tensor x, const attn_feed_forward *ff,
           const attn_feed_forward_gradients *gradients)
