/* mechanisms/common.h owns the public functions that belong to no family: views, masks, status
 * sentences, elementary functions. */

ATTN_PUB_ const char *attn_status_string(attn_status status) {
  static const char *const text[] = {
      "success",
      "a required pointer is null",
      "a storage type is unknown or not allowed for this argument",
      "an extent is out of range or does not match",
      "a head count does not divide the number of query heads",
      "rows of an output share memory with one another",
      "a length, offset or window lies outside its range",
      "a value is NaN, infinite or of the wrong sign",
      "a mask does not broadcast to the scores or has a wrong kind",
      "an output shares memory with another argument",
      "sizes do not fit the address space",
      "the workspace is too small",
      "memory could not be allocated",
      "the tier asked for cannot run here",
      "the environment variable ATTN_ISA names no tier of this machine",
      "a field of attn_ctx is inconsistent",
      "a pointer is not aligned to its elements",
      "an index list has an entry out of range, out of order or doubled",
      "a pattern is of an unknown kind, too deep or too large",
      "a schedule is damaged or was built for other lengths",
      "a page table names a page that is not held",
      "a cache or sequence has no room",
      "a sequence cannot go back to that length",
      "a scale is not positive and finite, or a zero point not finite",
      "a matrix is singular, or nearly"};
  return (int)status >= 0 && status < ATTN_STATUS_COUNT ? text[status] : "unknown status";
}

ATTN_FUNC_ attn_tensor attn_view_(const void *data, attn_dtype dtype, int64_t batch, int64_t heads,
                                  int64_t len, int64_t dim) {
  attn_tensor t;
  memset(&t, 0, sizeof t);
  t.data = (void *)(uintptr_t)data; /* only outputs are written */
  t.dtype = dtype;
  t.batch = batch, t.heads = heads, t.len = len, t.dim = dim;
  return t;
}

/* Products of extents that pass the range saturate: the call then rejects the view. */
ATTN_FUNC_ int64_t attn_stride_(int64_t a, int64_t b) {
  return a < 0 || b < 0 ? 0 : attn_mul_(a, b);
}

ATTN_PUB_ attn_tensor attn_bhtd(const void *data, attn_dtype dtype, int64_t batch, int64_t heads,
                                int64_t len, int64_t dim) {
  attn_tensor t = attn_view_(data, dtype, batch, heads, len, dim);
  t.stride_len = dim;
  t.stride_head = attn_stride_(len, dim);
  t.stride_batch = attn_stride_(heads, t.stride_head);
  return t;
}

ATTN_PUB_ attn_tensor attn_bthd(const void *data, attn_dtype dtype, int64_t batch, int64_t len,
                                int64_t heads, int64_t dim) {
  attn_tensor t = attn_view_(data, dtype, batch, heads, len, dim);
  t.stride_head = dim;
  t.stride_len = attn_stride_(heads, dim);
  t.stride_batch = attn_stride_(len, t.stride_len);
  return t;
}

ATTN_FUNC_ attn_mask attn_mask_view_(const void *data, attn_mask_kind kind, attn_dtype dtype,
                                     int64_t batch, int64_t heads, int64_t q_len, int64_t k_len) {
  attn_mask m;
  memset(&m, 0, sizeof m);
  m.data = data, m.kind = kind, m.dtype = dtype;
  m.batch = batch, m.heads = heads, m.q_len = q_len, m.k_len = k_len;
  m.stride_q = kind == ATTN_MASK_BITS ? k_len / 8 + (k_len % 8 != 0) : k_len;
  m.stride_head = attn_stride_(q_len, m.stride_q);
  m.stride_batch = attn_stride_(heads, m.stride_head);
  return m;
}

ATTN_PUB_ attn_mask attn_mask_bool(const uint8_t *data, int64_t batch, int64_t heads, int64_t q_len,
                                   int64_t k_len) {
  return attn_mask_view_(data, ATTN_MASK_BOOL, ATTN_F32, batch, heads, q_len, k_len);
}
ATTN_PUB_ attn_mask attn_mask_bits(const uint8_t *data, int64_t batch, int64_t heads, int64_t q_len,
                                   int64_t k_len) {
  return attn_mask_view_(data, ATTN_MASK_BITS, ATTN_F32, batch, heads, q_len, k_len);
}
ATTN_PUB_ attn_mask attn_mask_add(const void *data, attn_dtype dtype, int64_t batch, int64_t heads,
                                  int64_t q_len, int64_t k_len) {
  return attn_mask_view_(data, ATTN_MASK_ADD, dtype, batch, heads, q_len, k_len);
}

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
