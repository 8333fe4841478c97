/* calls/scales.h owns the scales of quantised rows as arguments: their view and checks. */

/* The sentences about scales called `name` of a tensor called `of`. */
typedef struct attn_scales_words_ {
  const char *scale, *zero;
  const char *type, *no_scale, *no_zero, *group, *value;
} attn_scales_words_;
#define ATTN_SCALES_WORDS_(name, of)                                                        \
  {                                                                                         \
    ATTN_WORDS_(name ".scale"), ATTN_WORDS_(name ".zero"),                                  \
        name " must be all zero unless " of " is quantised",                                \
        name ".scale must not be null for ATTN_I8 and ATTN_I4",                             \
        name ".zero must be null for ATTN_E4M3",                                            \
        name ".group must be 0 or a positive multiple of 32",                               \
        name " holds a scale that is not positive and finite, or a zero that is not finite" \
  }

/* The numbers of one array as a tensor with so many for a row of x. */
ATTN_FUNC_ attn_tensor attn_scales_view_(const attn_scales *s, const float *data,
                                         const attn_tensor *x, int64_t numbers) {
  attn_tensor t = attn_view_(data, ATTN_F32, x->batch, x->heads, x->len, numbers);
  t.stride_batch = s->stride_batch, t.stride_head = s->stride_head, t.stride_len = s->stride_len;
  return t;
}

/* Scales of x, which has been checked, with so many numbers a row; span[0] and span[1] are those of scale and
 * zero. Strides that are never used become 0. */
ATTN_FUNC_ int attn_check_scale_rows_(attn_error_ *e, attn_scales *s, const attn_tensor *x,
                                      int64_t numbers, const attn_scales_words_ *w, int output,
                                      attn_span_ span[2]) {
  span[0].lo = span[0].hi = span[1].lo = span[1].hi = 0;
  if (!attn_quantized_(x->dtype)) {
    if (s->scale || s->zero) return attn_reject_(e, ATTN_E_DTYPE, w->type);
    memset(s, 0, sizeof *s);
    return 1;
  }
  const int empty = x->batch == 0 || x->heads == 0 || x->len == 0;
  if (s->group < 0 || s->group % 32) return attn_reject_(e, ATTN_E_SHAPE, w->group);
  if (x->dtype == ATTN_E4M3 && s->zero) return attn_reject_(e, ATTN_E_DTYPE, w->no_zero);
  if (x->dtype != ATTN_E4M3 && !s->scale && !empty)
    return attn_reject_(e, ATTN_E_NULL, w->no_scale);
  for (int i = 0; i < 2; i++) {
    const char *words = i ? w->zero : w->scale;
    attn_tensor t = attn_scales_view_(s, i ? s->zero : s->scale, x, numbers);
    if (!t.data) continue;
    if (!attn_check_tensor_(e, &t, words, &span[i])) return 0;
    if (output && !attn_check_rows_(e, &t, words)) return 0;
  }
  if (x->batch <= 1) s->stride_batch = 0;
  if (x->heads <= 1) s->stride_head = 0;
  if (x->len <= 1) s->stride_len = 0;
  return 1;
}

/* Scales of the columns of x; a group that holds the whole row becomes 0. */
ATTN_FUNC_ int attn_check_scales_(attn_error_ *e, attn_scales *s, const attn_tensor *x,
                                  const attn_scales_words_ *w, int output, attn_span_ span[2]) {
  if (!attn_check_scale_rows_(e, s, x, attn_scale_groups_(s, x->dim), w, output, span)) return 0;
  if (s->group >= x->dim) s->group = 0;
  return 1;
}

/* 1 when rows i0 .. i0 + n - 1 of (b, h) have scales that are positive and finite and zeros that
 * are finite. */
ATTN_FUNC_ int attn_scales_legal_(const attn_scales *s, int64_t dim, int64_t b, int64_t h,
                                  int64_t i0, int64_t n) {
  const int64_t groups = attn_scale_groups_(s, dim);
  if (!s->scale) return 1;
  if (s->stride_len == 0 && n > 1) n = 1;
  for (int64_t i = i0; i < i0 + n; i++) {
    const attn_rows_scale_ row = attn_scales_at_(s, b, h, i);
    for (int64_t g = 0; g < groups; g++)
      if (!(row.scale[g] > 0.0f && row.scale[g] < INFINITY) ||
          (row.zero && !(row.zero[g] - row.zero[g] == 0.0f)))
        return 0;
  }
  return 1;
}

/* All of them, or those of the first len[b] rows. */
ATTN_FUNC_ int attn_check_scale_values_(attn_error_ *e, const attn_scales *s, const attn_tensor *x,
                                        const int32_t *len, const attn_scales_words_ *w) {
  for (int64_t b = 0; attn_quantized_(x->dtype) && b < x->batch; b++)
    for (int64_t h = 0; h < x->heads; h++)
      if (!attn_scales_legal_(s, x->dim, b, h, 0, len ? len[b] : x->len))
        return attn_reject_(e, ATTN_E_SCALE, w->value);
  return 1;
}
