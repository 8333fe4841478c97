/* engine/check.h owns argument checks: what makes a tensor, a mask or a context legal, and the
 * memory each one spans. Every check runs before the first write; the first failure wins. */

/* How a constant of zeros begins. */
#ifdef __cplusplus
#define ATTN_ZEROS_ = {}
#else
#define ATTN_ZEROS_
#endif

/* Clears a struct of a call. Not in line: rep stos, which gcc has for it, takes ten times as long to begin; so does
 * memset above 2 KB. */
ATTN_OUTLINE_ void attn_clear_(void *p, size_t bytes) { memset(p, 0, bytes); }

typedef struct attn_error_ {
  attn_status status;
  const char *reason;
} attn_error_;

/* 0, so that checks read: if (bad) return attn_reject_(e, status, "..."); */
ATTN_FUNC_ int attn_reject_(attn_error_ *e, attn_status status, const char *reason) {
  e->status = status;
  e->reason = reason;
  return 0;
}

/* A number with a field has_..: 0 without that is the usual one. */
ATTN_FUNC_ int64_t attn_given_or_(int has, int64_t x, int64_t usual) {
  return has || x ? x : usual;
}

/* An activation; 0 becomes the one that is usual there. */
ATTN_FUNC_ int attn_check_activation_(attn_error_ *e, attn_activation *act, attn_activation usual,
                                      const char *reason) {
  if (*act == ATTN_ACT_DEFAULT) *act = usual;
  return ((int)*act > 0 && *act < ATTN_ACT_COUNT) || attn_reject_(e, ATTN_E_RANGE, reason);
}

/* The sentences about one argument, made at compile time from its name and laid end to end: a pointer
 * to each would take more than many of them. */
#define ATTN_WORDS_(name)                                                         \
  ATTN_WORDS_IN_(name)                                                            \
  name " is an output, so its rows must not share memory with one another\0" name \
       " is an output and must not share memory with another argument\0" name     \
       ".dtype is no storage type\0" name "'s strides must be even for ATTN_I4"
#define ATTN_WORDS_IN_(name) /* of an input of a float type */                                \
  name ".data must not be null\0" name ".data must be aligned to its elements\0" name         \
       ".dtype must be ATTN_F32, ATTN_F16 or ATTN_BF16\0" name                                \
       ".batch, .heads and .len must not be negative\0" name ".dim must be at least 1\0" name \
       " spans more bytes than the address space holds\0"
enum { /* in that order */
       ATTN_SAYS_DATA_,
       ATTN_SAYS_ALIGN_,
       ATTN_SAYS_DTYPE_,
       ATTN_SAYS_EXTENT_,
       ATTN_SAYS_DIM_,
       ATTN_SAYS_SIZE_,
       ATTN_SAYS_ROWS_,
       ATTN_SAYS_OVERLAP_,
       ATTN_SAYS_STORED_,
       ATTN_SAYS_EVEN_
};
ATTN_COLD_ const char *attn_says_(const char *w, int n) {
  const char *s = w;
  for (; n > 0; n--) s += strlen(s) + 1;
  return s;
}

/* The bytes lo..hi that a view may touch; empty when lo == hi. With a period these are the first `reach` of every
 * `period` bytes from lo on: rows of a view that is part of wider ones, as queries are where q, k and v are one
 * product. */
typedef struct attn_span_ {
  uintptr_t lo, hi, period, reach;
} attn_span_;

/* Whether two spans lie in other columns of the same rows. */
ATTN_OUTLINE_ int attn_interleave_(const attn_span_ *a, const attn_span_ *b) {
  if (a->period != b->period || !a->period) return 0;
  const uintptr_t ahead = b->lo >= a->lo ? (b->lo - a->lo) % a->period
                                         : a->period - 1 - (a->lo - b->lo - 1) % a->period;
  return ahead >= a->reach && ahead + b->reach <= a->period;
}

ATTN_FUNC_ int attn_overlap_(attn_span_ a, attn_span_ b) {
  return a.lo < a.hi && b.lo < b.hi && a.lo < b.hi && b.lo < a.hi && !attn_interleave_(&a, &b);
}

/* Those of a call's arguments that are there, one after the other. */
enum { ATTN_SPANS_ = 40 };
typedef struct attn_spans_ {
  int n;
  attn_span_ span[ATTN_SPANS_];
} attn_spans_;

/* Room for n more, empty so far. */
ATTN_FUNC_ attn_span_ *attn_spans_more_(attn_spans_ *s, int n) {
  attn_span_ *first = s->span + s->n;
  for (; n > 0; n--) s->span[s->n].lo = s->span[s->n].hi = 0, s->n++;
  return first;
}

ATTN_FUNC_ int64_t attn_abs64_(int64_t x) { return x < 0 ? (x == INT64_MIN ? INT64_MAX : -x) : x; }

/* a * b, a + b and a - b of any two numbers: what does not fit becomes the end of the range on its side.
 * Extents, lengths and strides of the caller meet only here, so that no check overflows. */
ATTN_OUTLINE_ int64_t attn_mul_(int64_t a, int64_t b) {
#if (defined(ATTN_CLANG_) || (defined(ATTN_GCC_) && __GNUC__ >= 5)) && \
    (defined(__x86_64__) || defined(__aarch64__))
  int64_t x; /* elsewhere the builtin may be a function of a library that is not linked */
  if (!__builtin_mul_overflow(a, b, &x)) return x;
#else
  const uint64_t half = 0x80000000u;
  if (((uint64_t)a + half) >> 32 == 0 && ((uint64_t)b + half) >> 32 == 0)
    return a * b; /* a division is slow */
  if (a == 0 || b == 0) return 0;
  if ((a < 0) == (b < 0) ? (a > 0 ? a <= INT64_MAX / b : a >= INT64_MAX / b)
                         : (a > 0 ? b >= INT64_MIN / a : a >= INT64_MIN / b))
    return a * b;
#endif
  return (a < 0) == (b < 0) ? INT64_MAX : INT64_MIN;
}
ATTN_FUNC_ int64_t attn_add_(int64_t a, int64_t b) {
  if (b > 0) return a > INT64_MAX - b ? INT64_MAX : a + b;
  return a < INT64_MIN - b ? INT64_MIN : a + b;
}
ATTN_FUNC_ int64_t attn_sub_(int64_t a, int64_t b) {
  if (b < 0) return a > INT64_MAX + b ? INT64_MAX : a - b;
  return a < INT64_MIN + b ? INT64_MIN : a - b;
}

/* a / b of extents, where b is most often 1: a division is slow. */
ATTN_INLINE_ int64_t attn_over_(int64_t a, int64_t b) { return b == 1 ? a : a / b; }

/* Runs of `each` that n things make. */
ATTN_INLINE_ int64_t attn_runs_of_(int64_t n, int64_t each) {
  return n <= each ? n > 0 : n / each + (n % each != 0);
}

/* Numbers in whole groups of 16. */
ATTN_FUNC_ int64_t attn_group_up_(int64_t n) { return (n + 15) / 16 * 16; }

/* What an element is aligned to; its size, but for ATTN_I4 (attn_bytes_). */
ATTN_FUNC_ int64_t attn_size_(attn_dtype dtype) {
  return dtype == ATTN_F32 ? 4 : attn_quantized_(dtype) ? 1 : 2;
}

/* The span from `below` bytes under data to `above` over it, either INT64_MAX where it is too long. 0 = does not
 * fit. */
ATTN_FUNC_ int attn_span_set_(attn_span_ *span, const void *data, int64_t below, int64_t above) {
  const int64_t limit = sizeof(void *) == 4 ? (int64_t)0x7fffffff : INT64_MAX / 4;
  const uintptr_t at = (uintptr_t)data;
  if (below > limit || above > limit || (uintptr_t)below > at ||
      (uintptr_t)above > UINTPTR_MAX - at)
    return 0;
  span->lo = at - (uintptr_t)below, span->hi = at + (uintptr_t)above;
  span->period = span->reach = 0;
  return 1;
}

/* The span of n0 x n1 x n2 rows of row_bytes at the given byte strides. 0 = does not fit. */
ATTN_FUNC_ int attn_span_of_(attn_span_ *span, const void *data, int64_t row_bytes,
                             const int64_t n[3], const int64_t stride[3]) {
  int64_t below = 0, above = row_bytes;
  span->lo = span->hi = (uintptr_t)data;
  if (n[0] == 0 || n[1] == 0 || n[2] == 0 || row_bytes == 0) return 1;
  for (int d = 0; d < 3; d++) {
    const int64_t reach = attn_mul_(n[d] - 1, attn_abs64_(stride[d]));
    if (stride[d] < 0)
      below = attn_add_(below, reach);
    else
      above = attn_add_(above, reach);
  }
  return attn_span_set_(span, data, below, above);
}

/* A required tensor that was never set is null before it is of a wrong shape. */
ATTN_FUNC_ int attn_check_set_(attn_error_ *e, const attn_tensor *t, const char *w) {
  return t->data || t->dim ? 1 : attn_reject_(e, ATTN_E_NULL, attn_says_(w, ATTN_SAYS_DATA_));
}

/* What n rows, or more, this stride apart add to the bytes of a view; a stride that is never used becomes 0: it may
 * hold anything. The result is the sentence about it, 0 = it is legal. */
ATTN_INLINE_ int attn_check_stride_(int64_t n, int64_t *stride, attn_dtype dtype, int64_t *below,
                                    int64_t *above) {
  if (n <= 1) *stride = 0;
  const int64_t step = attn_abs64_(*stride);
  if (step == 0) return 0;
  if (step > INT64_MAX / 4) return ATTN_SAYS_SIZE_;
  if (dtype == ATTN_I4 && step % 2) return ATTN_SAYS_EVEN_;
  int64_t *side = *stride < 0 ? below : above;
  *side = attn_add_(*side, attn_mul_(n - 1, attn_bytes_(dtype, step)));
  return 0;
}

/* The period of a view whose bounds are legal: its stride from row to row, or between batch entries of one row, if every
 * other stride is a multiple of it, or positive and within it. Dense views, which have none, pay no division. */
ATTN_INLINE_ void attn_span_period_(attn_span_ *span, const attn_tensor *t) {
  const int64_t period = attn_abs64_(t->stride_len ? t->stride_len : t->stride_batch);
  const int64_t n[2] = {t->heads, t->batch}, stride[2] = {t->stride_head, t->stride_batch};
  int64_t reach = t->dim;
  for (int i = 0; i < 2 && reach < period; i++) {
    if (stride[i] < 0 ? stride[i] > -period : stride[i] < period) {
      if (stride[i] < 0) return;
      reach = attn_add_(reach, attn_mul_(n[i] - 1, stride[i]));
    } else if (stride[i] % period) {
      return;
    }
  }
  if (reach >= period) return;
  span->period = (uintptr_t)attn_bytes_(t->dtype, period);
  span->reach = (uintptr_t)attn_bytes_(t->dtype, reach);
}

/* A tensor of any storage type. */
ATTN_FUNC_ int attn_check_stored_(attn_error_ *e, attn_tensor *t, const char *w, attn_span_ *span) {
  if ((int)t->dtype < 0 || t->dtype >= ATTN_DTYPE_COUNT)
    return attn_reject_(e, ATTN_E_DTYPE, attn_says_(w, ATTN_SAYS_STORED_));
  if (!ATTN_HAS_QUANTIZE && t->dtype >= ATTN_I8)
    return attn_reject_(e, ATTN_E_DTYPE,
                        "k.dtype and v.dtype: ATTN_ONLY leaves out ATTN_FAMILY_QUANTIZE");
  if ((t->batch | t->heads | t->len) < 0)
    return attn_reject_(e, ATTN_E_SHAPE, attn_says_(w, ATTN_SAYS_EXTENT_));
  if (!attn_check_set_(e, t, w)) return 0;
  if (t->dim < 1) return attn_reject_(e, ATTN_E_SHAPE, attn_says_(w, ATTN_SAYS_DIM_));
  const int empty = t->batch == 0 || t->heads == 0 || t->len == 0;
  int64_t below = 0, above = 0;
  if (!t->data && !empty) return attn_reject_(e, ATTN_E_NULL, attn_says_(w, ATTN_SAYS_DATA_));
  if ((uintptr_t)t->data & (uintptr_t)(attn_size_(t->dtype) - 1))
    return attn_reject_(e, ATTN_E_ALIGN, attn_says_(w, ATTN_SAYS_ALIGN_));
  int says = attn_check_stride_(t->batch, &t->stride_batch, t->dtype, &below, &above);
  if (!says) says = attn_check_stride_(t->heads, &t->stride_head, t->dtype, &below, &above);
  if (!says) says = attn_check_stride_(t->len, &t->stride_len, t->dtype, &below, &above);
  if (says)
    return attn_reject_(e, says == ATTN_SAYS_EVEN_ ? ATTN_E_STRIDE : ATTN_E_OVERFLOW,
                        attn_says_(w, says));
  span->lo = span->hi = (uintptr_t)t->data;
  if (t->dim > INT64_MAX / 4 ||
      (!empty &&
       !attn_span_set_(span, t->data, below, attn_add_(above, attn_bytes_(t->dtype, t->dim)))))
    return attn_reject_(e, ATTN_E_OVERFLOW, attn_says_(w, ATTN_SAYS_SIZE_));
  if (!empty) attn_span_period_(span, t);
  return 1;
}

/* A tensor in its own right, of a float type. */
ATTN_FUNC_ int attn_check_tensor_(attn_error_ *e, attn_tensor *t, const char *w, attn_span_ *span) {
  if ((int)t->dtype < 0 || t->dtype >= ATTN_I8)
    return attn_reject_(e, ATTN_E_DTYPE, attn_says_(w, ATTN_SAYS_DTYPE_));
  return attn_check_stored_(e, t, w, span);
}

/* An output's rows lie apart when its strides nest: each is at least the reach of the smaller. */
ATTN_FUNC_ int attn_check_rows_(attn_error_ *e, const attn_tensor *t, const char *w) {
  const int64_t extent[3] = {t->len, t->heads, t->batch},
                stride[3] = {t->stride_len, t->stride_head, t->stride_batch};
  int64_t n[3], s[3], reach = t->dim; /* of rows and more that differ, the smallest stride first */
  int many = 0;
  if (t->batch == 0 || t->heads == 0 || t->len == 0) return 1;
  for (int d = 0; d < 3; d++) {
    if (extent[d] == 1) continue;
    const int64_t step = attn_abs64_(stride[d]);
    int at = many++;
    for (; at > 0 && s[at - 1] > step; at--) s[at] = s[at - 1], n[at] = n[at - 1];
    s[at] = step, n[at] = extent[d];
  }
  for (int d = 0; d < many; d++) {
    if (s[d] < reach) return attn_reject_(e, ATTN_E_STRIDE, attn_says_(w, ATTN_SAYS_ROWS_));
    reach = attn_add_(attn_mul_(n[d] - 1, s[d]), reach);
  }
  return 1;
}

ATTN_FUNC_ int attn_same_view_(const attn_tensor *a, const attn_tensor *b) {
  return a->data == b->data && a->dtype == b->dtype && a->stride_batch == b->stride_batch &&
         a->stride_head == b->stride_head && a->stride_len == b->stride_len;
}

/* A plain array of n elements of the given size that may be read: none when it is null, or n is below 1. */
ATTN_FUNC_ int attn_check_array_(attn_error_ *e, const void *data, int64_t n, int64_t size,
                                 const char *align, attn_span_ *span) {
  const int64_t bytes = n > 0 ? attn_mul_(n, size) : 0;
  span->lo = span->hi = (uintptr_t)data;
  span->period = span->reach = 0;
  if (!data) return 1;
  if (((uintptr_t)data & (uintptr_t)(size - 1)) != 0) return attn_reject_(e, ATTN_E_ALIGN, align);
  if (bytes > INT64_MAX / 4 || (uint64_t)bytes > UINTPTR_MAX - span->lo)
    return attn_reject_(e, ATTN_E_OVERFLOW,
                        "an array spans more bytes than the address space holds");
  span->hi += (uintptr_t)bytes;
  return 1;
}

/* An array that params may name. */
ATTN_FUNC_ int attn_take_array_(attn_error_ *e, const void *data, int64_t n, int64_t size,
                                const char *align, attn_spans_ *all) {
  return !data || attn_check_array_(e, data, n, size, align, attn_spans_more_(all, 1));
}

/* A mask against the extents it must broadcast to; kinds is a bit set of attn_mask_kind. */
typedef struct attn_mask_words_ {
  const char *kind, *data, *dtype, *extent, *size, *align;
} attn_mask_words_;

ATTN_FUNC_ int attn_check_mask_(attn_error_ *e, const attn_mask *m, const attn_mask_words_ *w,
                                unsigned kinds, const int64_t full[4], attn_span_ *span) {
  span->lo = span->hi = 0;
  if (m->kind == ATTN_MASK_NONE) return 1;
  if ((unsigned)m->kind > 31u || !(kinds >> (unsigned)m->kind & 1u))
    return attn_reject_(e, ATTN_E_MASK, w->kind);
  if (m->kind == ATTN_MASK_ADD && ((int)m->dtype < 0 || attn_quantized_(m->dtype)))
    return attn_reject_(e, ATTN_E_DTYPE, w->dtype);
  const int64_t have[4] = {m->batch, m->heads, m->q_len, m->k_len};
  int empty = 0;
  for (int d = 0; d < 4; d++) {
    if (have[d] != 1 && have[d] != full[d]) return attn_reject_(e, ATTN_E_MASK, w->extent);
    empty |= full[d] == 0;
  }
  if (empty) return 1;
  if (!m->data) return attn_reject_(e, ATTN_E_NULL, w->data);
  const int64_t size = m->kind == ATTN_MASK_ADD ? attn_size_(m->dtype) : 1;
  if (((uintptr_t)m->data & (uintptr_t)(size - 1)) != 0)
    return attn_reject_(e, ATTN_E_ALIGN, w->align);
  int64_t stride[3] = {m->stride_batch, m->stride_head, m->stride_q};
  for (int d = 0; d < 3; d++) {
    if (have[d] <= 1) stride[d] = 0;
    if (attn_abs64_(stride[d]) > INT64_MAX / 4) return attn_reject_(e, ATTN_E_OVERFLOW, w->size);
    stride[d] *= size;
  }
  int64_t row = m->kind == ATTN_MASK_BITS ? (m->k_len + 7) / 8 : m->k_len * size;
  if (!attn_span_of_(span, m->data, row, have, stride))
    return attn_reject_(e, ATTN_E_OVERFLOW, w->size);
  return 1;
}

/* The context: the tier that will run and the number of pieces. */
ATTN_FUNC_ int attn_check_ctx_(attn_error_ *e, const attn_ctx *ctx, const attn_table_ **table,
                               int *workers) {
  if (attn_env_bad_())
    return attn_reject_(e, ATTN_E_ENV,
                        "the environment variable ATTN_ISA must be auto, scalar, avx2 or avx512 on "
                        "x86, auto, scalar or neon on ARM");
  attn_isa isa = ctx ? ctx->isa : ATTN_ISA_AUTO;
  if (isa == ATTN_ISA_AUTO)
    isa = attn_isa_best();
  else if (attn_isa_status(isa) != ATTN_ISA_OK)
    return attn_reject_(e, ATTN_E_ISA,
                        "ctx.isa asks for a tier that cannot run here: attn_isa_why says why");
  *table = attn_table_of_(isa);
  *workers = 1;
  if (ctx && ctx->workers < 0)
    return attn_reject_(e, ATTN_E_CTX, "ctx.workers must not be negative");
  if (ctx && ctx->workspace_size && !ctx->workspace)
    return attn_reject_(e, ATTN_E_CTX,
                        "ctx.workspace is null although ctx.workspace_size is not 0");
  if (ctx && ctx->parallel_for && ctx->workers > 1) *workers = ctx->workers;
  return 1;
}

/* How every call ends: the status and the reason reach the caller. */
ATTN_FUNC_ attn_status attn_end_(attn_ctx *ctx, const attn_error_ *e) {
  if (ctx) ctx->reason = e->status == ATTN_OK ? NULL : e->reason;
  return e->status;
}

/* What a successful call did. */
ATTN_FUNC_ void attn_report_(attn_ctx *ctx, const attn_table_ *table, int workers, const char *path,
                             const char *why) {
  if (!ctx) return;
  ctx->report.isa = table->isa;
  ctx->report.workers = workers;
  ctx->report.path = path;
  ctx->report.why = why;
  ctx->report.pairs = 0;
  ctx->report.compute = ATTN_COMPUTE_F32;
  ctx->report.feature = ATTN_FEATURE_NONE;
}

ATTN_COLD_ int64_t attn_round_up_(int64_t n, int64_t to) {
  return attn_mul_(attn_add_(n, to - 1) / to, to);
}
