/* engine/rows.h owns rows of any float type: copied, moved by a constant, and with one NaN. */

/* y = x + c, a row */
ATTN_FUNC_ void attn_row_add_(const attn_table_ *f, char *y, attn_dtype ty, const char *x,
                              attn_dtype tx, int64_t n, float c) {
  float ones[ATTN_BLOCK_];
  for (int i = 0; i < ATTN_BLOCK_; i++) ones[i] = 1.0f;
  for (int64_t i = 0; i < n; i += ATTN_BLOCK_)
    f->blend(y + attn_bytes_(ty, i), x + attn_bytes_(tx, i), ones, ty, tx, ATTN_F32,
             n - i < ATTN_BLOCK_ ? n - i : ATTN_BLOCK_, 1.0f, c);
}

ATTN_FUNC_ void attn_row_copy_(const attn_table_ *f, char *y, attn_dtype ty, const char *x,
                               attn_dtype tx, int64_t n) {
  if (ty != tx)
    f->blend(y, x, NULL, ty, tx, tx, n, 1.0f, 0.0f);
  else if (y != x)
    memmove(y, x, (size_t)attn_bytes_(ty, n));
}

/* Numbers that a caller keeps: the NaNs among them become the one default NaN. */
ATTN_FUNC_ void attn_row_one_nan_(const attn_table_ *f, float *x, int64_t n) {
  if (f->finite(x, n, 1, n)) return;
  for (int64_t i = 0; i < n; i++) x[i] = attn_one_nan_(x[i]);
}
