/* calls/exp.h owns the exponential of every softmax, as a call. */

ATTN_PUB_ attn_status attn_exp(float *y, const float *x, int64_t n, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_span_ sy, sx;
  int workers;
  if (!attn_check_ctx_(&e, ctx, &table, &workers)) return attn_end_(ctx, &e);
  if (n < 0 || n > INT64_MAX / 16) {
    attn_reject_(&e, n < 0 ? ATTN_E_SHAPE : ATTN_E_OVERFLOW, "n must not be negative or huge");
  } else if (n > 0 && (!y || !x)) {
    attn_reject_(&e, ATTN_E_NULL, y ? "x must not be null" : "y must not be null");
  } else if (attn_check_array_(&e, y, n, 4, "y must be aligned to its elements", &sy) &&
             attn_check_array_(&e, x, n, 4, "x must be aligned to its elements", &sx)) {
    if (y != x && attn_overlap_(sy, sx)) {
      attn_reject_(&e, ATTN_E_OVERLAP, "y must be x or share no memory with it");
    } else {
      table->exp(y, x, n);
      attn_report_(ctx, table, 1, "exp row", "the only path");
    }
  }
  return attn_end_(ctx, &e);
}
