/* families/blocks/feed_forward.h owns the feed-forward as a call. */

typedef struct attn_feed_job_ {
  attn_tensor y, x;
  attn_feed_forward ff;
  int64_t chunks;
} attn_feed_job_;

ATTN_COLD_ int attn_feed_check_(attn_error_ *e, attn_feed_job_ *j, const attn_ctx *ctx,
                                const attn_table_ **table, int *workers) {
  static const char wx[] = ATTN_WORDS_("x"), wy[] = ATTN_WORDS_("y");
  attn_operand_ op[2 + ATTN_FEED_OPERANDS_] = {
      ATTN_OPERAND_AS_(&j->y, wy, ATTN_OUT_, ATTN_ANY_, 1, ATTN_ANY_, ATTN_ANY_,
                       "y must have one head"),
      ATTN_OPERAND_AS_(&j->x, wx, 0, j->y.batch, 1, j->y.len, ATTN_ANY_,
                       "x must be [y.batch, 1, y.len, .]")};
  if (!attn_check_ctx_(e, ctx, table, workers) || !attn_check_operand_(e, &op[0], 1) ||
      !attn_check_operand_(e, &op[1], 1) ||
      !attn_check_feed_(e, &j->ff, *table, ATTN_PLACE_, 1, j->x.dim, j->y.dim, op + 2))
    return 0;
  if (j->chunks < 0) return attn_reject_(e, ATTN_E_RANGE, "chunks must not be negative");
  if (attn_same_view_(&j->y, &j->x) && j->y.dim == j->x.dim) op[1].span.hi = op[1].span.lo;
  return attn_check_apart_(e, ctx, op, 2 + ATTN_FEED_OPERANDS_, NULL, 0);
}

ATTN_COLD_ int attn_feed_steps_(attn_stage_ *s, void *job) {
  const attn_feed_job_ *j = (const attn_feed_job_ *)job;
  const attn_surround_ plain = attn_surround_of_(ATTN_SUBLAYER_PLAIN, NULL);
  return attn_stage_feed_forward_(s, j->y, j->x, &j->ff, j->chunks, &plain);
}

ATTN_COLD_ attn_status attn_feed_forward_rows_call_(attn_tensor y, attn_tensor x,
                                                    const attn_feed_forward *ff, int64_t chunks,
                                                    attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_feed_job_ j;
  const attn_table_ *table;
  int workers;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x, j.chunks = chunks;
  if (ff) j.ff = *ff;
  if (!ff) {
    attn_reject_(&e, ATTN_E_NULL, "ff must not be null: it has the weights");
  } else if (attn_feed_check_(&e, &j, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    attn_stage_call_(&s, ctx, attn_feed_steps_, &j, "feed-forward, runs of rows", bytes);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_CALL_(attn_feed_forward_rows, (y, x, ff, chunks), attn_tensor y, attn_tensor x,
           const attn_feed_forward *ff, int64_t chunks)
