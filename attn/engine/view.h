/* engine/view.h owns views of tensors and masks, and the sentences of the statuses. */

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

ATTN_PUB_ attn_window attn_window_of(int64_t left, int64_t right) {
  attn_window w;
  memset(&w, 0, sizeof w);
  w.on = 1, w.left = left, w.right = right;
  return w;
}

/* Rows of batch entry b that exist. */
ATTN_FUNC_ int64_t attn_len_of_(const int32_t *len, int64_t b, int64_t n) {
  return len ? len[b] : n;
}

/* Numbers of one row. */
ATTN_FUNC_ int64_t attn_scale_groups_(const attn_scales *s, int64_t dim) {
  return s->group > 0 ? dim / s->group + (dim % s->group != 0) : 1;
}

ATTN_PUB_ attn_scales attn_scales_dense(float *scale, float *zero, int64_t group,
                                        const attn_tensor *x) {
  attn_scales s;
  memset(&s, 0, sizeof s);
  s.scale = scale, s.zero = zero, s.group = group;
  if (!x) return s;
  s.stride_len = attn_scale_groups_(&s, x->dim);
  s.stride_head = attn_stride_(x->len, s.stride_len);
  s.stride_batch = attn_stride_(x->heads, s.stride_head);
  return s;
}

/* One entry, or one head, for all of those of y. */
ATTN_FUNC_ attn_tensor attn_spread_(attn_tensor t, int64_t batch) {
  if (t.batch != batch) t.batch = batch, t.stride_batch = 0;
  return t;
}
ATTN_FUNC_ attn_tensor attn_spread_heads_(attn_tensor t, int64_t heads) {
  if (t.heads != heads) t.heads = heads, t.stride_head = 0;
  return t;
}
