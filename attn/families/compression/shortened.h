/* families/compression/shortened.h owns what attention over fewer keys than rows shares: the judging of q, k, v and
 * o, the products that make a few rows of many, and small steps on rows. */

/* The arguments that all of these calls have. */
typedef struct attn_short_ {
  attn_tensor o, q, k, v, lse;
  const int32_t *kv_len, *q_len;
  int64_t q_off;
  float scale;
} attn_short_;

/* Their places among the operands of a call; its own come after. */
enum { ATTN_SHORT_Q_, ATTN_SHORT_K_, ATTN_SHORT_V_, ATTN_SHORT_O_, ATTN_SHORT_LSE_, ATTN_SHORT_N_ };

ATTN_FUNC_ int64_t attn_short_keys_(const attn_short_ *x, int64_t b) {
  return x->kv_len ? x->kv_len[b] : x->k.len;
}

/* One more operand; heads is what its number of heads divides, or may be beside 1. */
ATTN_COLD_ int attn_short_operand_(attn_error_ *e, attn_operand_ *op, attn_tensor *t, const char *w,
                                   int role, int64_t heads, int64_t len, int64_t dim,
                                   const char *rule) {
  op->t = t, op->w = w, op->role = role, op->rule = rule;
  op->batch = 1, op->heads = ATTN_ONE_OR_ALL_, op->len = len, op->dim = dim;
  if (!t->data && !(role & ATTN_OPTIONAL_))
    return attn_reject_(e, ATTN_E_NULL, attn_says_(w, ATTN_SAYS_DATA_));
  return attn_check_operand_(e, op, heads);
}

/* Judges x; has_q_off and q_off are the caller's, data = 0 leaves the lengths unread. */
ATTN_COLD_ int attn_short_check_(attn_error_ *e, attn_short_ *x, attn_operand_ *op,
                                 attn_span_ *lens, int has_q_off, int64_t q_off, int data) {
  static const char *const w[] = {ATTN_WORDS_("q"), ATTN_WORDS_("k"), ATTN_WORDS_("v"),
                                  ATTN_WORDS_("o"), ATTN_WORDS_("params.lse")};
  static const char *const rule[] = {
      "q must be [batch, heads, q_len, dk]",
      "k must be [q.batch, a divisor of q.heads, k_len, q.dim]",
      "v must be [q.batch, a divisor of q.heads, k.len, dv]",
      "o must be [q.batch, q.heads, q.len, v.dim]",
      "params.lse must be f32 [q.batch, q.heads, q.len, 1]",
  };
  attn_tensor *const t[] = {&x->q, &x->k, &x->v, &x->o, &x->lse};
  for (int i = 0; i < ATTN_SHORT_N_; i++) {
    const int of_q = i == ATTN_SHORT_Q_, out = i >= ATTN_SHORT_O_;
    op[i].t = t[i], op[i].w = w[i], op[i].rule = rule[i];
    op[i].role = i == ATTN_SHORT_LSE_ ? ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_
                 : out                ? ATTN_OUT_
                                      : 0;
    op[i].batch = of_q ? (int64_t)ATTN_ANY_ : x->q.batch;
    op[i].heads = of_q ? (int64_t)ATTN_ANY_ : out ? x->q.heads : (int64_t)ATTN_DIVIDES_;
    op[i].len = out ? x->q.len : i == ATTN_SHORT_V_ ? x->k.len : (int64_t)ATTN_ANY_;
    op[i].dim = i == ATTN_SHORT_K_     ? x->q.dim
                : i == ATTN_SHORT_O_   ? x->v.dim
                : i == ATTN_SHORT_LSE_ ? 1
                                       : (int64_t)ATTN_ANY_;
    if (!attn_check_operand_(e, &op[i], x->q.heads)) return 0;
    if (of_q && x->q.heads < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
  }
  if (x->q.len > INT32_MAX || x->k.len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "q.len and k.len must be below 2^31");
  if (!has_q_off && q_off)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off needs params.has_q_off = 1");
  if (attn_abs64_(q_off) >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off must lie within 2^40 of 0");
  x->q_off = has_q_off ? q_off : x->k.len - x->q.len;
  if (!attn_check_array_(e, x->kv_len, x->q.batch, 4,
                         "params.kv_len must be aligned to its elements", &lens[0]) ||
      !attn_check_array_(e, x->q_len, x->q.batch, 4, "params.q_len must be aligned to its elements",
                         &lens[1]))
    return 0;
  if (data &&
      (!attn_check_lens_(e, x->kv_len, x->q.batch, x->k.len,
                         "params.kv_len must lie in 0..k.len") ||
       !attn_check_lens_(e, x->q_len, x->q.batch, x->q.len, "params.q_len must lie in 0..q.len")))
    return 0;
  return attn_check_scale_(e, x->scale);
}

/* Weights w_k, w_v, bias_k, bias_v of convolutions; *kernel = 0: it becomes that of w_k. */
ATTN_COLD_ int attn_short_convolution_(attn_error_ *e, const attn_short_ *x, attn_operand_ *op,
                                       attn_tensor *const t[4], int64_t *kernel) {
  static const char *const w[] = {ATTN_WORDS_("params.w_k"), ATTN_WORDS_("params.w_v"),
                                  ATTN_WORDS_("params.b_k"), ATTN_WORDS_("params.b_v")};
  static const char *const rule[] = {
      "params.w_k must be [1, 1 or k.heads, kernel * k.dim, k.dim]",
      "params.w_v must be [1, 1 or v.heads, kernel * v.dim, v.dim], of the kernel of w_k",
      "params.b_k must be [1, 1 or k.heads, 1, k.dim]",
      "params.b_v must be [1, 1 or v.heads, 1, v.dim]"};
  if (*kernel == 0) {
    if (t[0]->data && (t[0]->len < 1 || t[0]->len % x->k.dim))
      return attn_reject_(e, ATTN_E_SHAPE, rule[0]);
    *kernel = t[0]->data ? t[0]->len / x->k.dim : 1;
  }
  for (int i = 0; i < 4; i++) {
    const attn_tensor *of = i % 2 ? &x->v : &x->k;
    if (!attn_short_operand_(e, &op[i], t[i], w[i], i < 2 ? 0 : ATTN_OPTIONAL_, of->heads,
                             i < 2 ? attn_mul_(*kernel, of->dim) : 1, of->dim, rule[i]))
      return 0;
  }
  return 1;
}

ATTN_COLD_ int attn_short_empty_(const attn_short_ *x) { return x->q.batch == 0 || x->q.len == 0; }

/* What is left for exact attention. */
ATTN_COLD_ attn_sdpa_params attn_short_params_(const attn_short_ *x) {
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.scale = x->scale, p.q_len = x->q_len, p.lse = x->lse;
  return p;
}

/* ---- few rows of many -----------------------------------------------------------------------*/

enum {
  ATTN_SHRINK_ROWS_ = 96,
  ATTN_SHRINK_DEEP_ = 128,
  ATTN_SHRINK_COLS_ = 64,
  ATTN_SHRINK_STEP_ = 6 /* rows of e between asking for some and reading them */
};

/* y = e x: a row of y is made of all rows of x. */
typedef struct attn_shrink_ {
  const attn_table_ *table;
  attn_tensor y, e, x; /* y: f32 */
  const int32_t *len;  /* rows of x that exist; null: all */
  int64_t run, runs;
  char *memory;
  int64_t each, at_e;
} attn_shrink_;

/* Rows of y of one head, 128 rows of x at a time: these stay in the first cache while e passes once. */
ATTN_FUNC_ void attn_shrink_item_(void *job, int worker, int64_t index) {
  const attn_shrink_ *a = (const attn_shrink_ *)job;
  const attn_table_ *f = a->table;
  const int64_t unit = index / a->runs, b = unit / a->x.heads, h = unit % a->x.heads;
  const int64_t r0 = index % a->runs * a->run, d = a->x.dim;
  const int64_t rows = attn_min64_(a->y.len - r0, a->run);
  const int64_t keys = a->len ? a->len[b] : a->x.len;
  float *y = (float *)(void *)attn_at_(&a->y, b, h, r0);
  float *wide = (float *)(void *)(a->memory + worker * a->each);
  float *wide_e = (float *)(void *)(a->memory + worker * a->each + a->at_e);
  for (int64_t j = 0; j < keys; j += ATTN_SHRINK_DEEP_) {
    const int64_t n = attn_min64_(keys - j, ATTN_SHRINK_DEEP_);
    const char *from = attn_at_(&a->x, b, h, j);
    const char *by = attn_at_(&a->e, 0, a->e.heads > 1 ? h : 0, r0) + attn_bytes_(a->e.dtype, j);
    const float *x = (const float *)(const void *)from, *e = (const float *)(const void *)by;
    int64_t x_stride = a->x.stride_len, e_stride = a->e.stride_len;
    if (a->at_e) { /* else rows are f32 and whole vectors, and are read in place */
      f->widen(wide, from, x_stride, NULL, n, d, a->x.dtype, NULL);
      x = wide, x_stride = d;
    }
    if (a->e.dtype != ATTN_F32) {
      f->widen(wide_e, by, e_stride, NULL, rows, n, a->e.dtype, NULL);
      e = wide_e, e_stride = n;
    }
    /* rows of e are as long as the sequence: no prefetcher follows from one to the next */
    for (int64_t r = 0; r < rows; r += ATTN_SHRINK_STEP_) {
      const int64_t some = attn_min64_(rows - r, ATTN_SHRINK_STEP_);
      for (int64_t i = r + some; i < rows && i < r + 2 * some; i++)
        for (int64_t at = 0; at < attn_bytes_(a->e.dtype, n); at += 64)
          ATTN_PREFETCH_(by + attn_bytes_(a->e.dtype, i * a->e.stride_len) + at);
      for (int64_t c = 0; c < d; c += ATTN_SHRINK_COLS_) {
        const int64_t cols = attn_min64_(d - c, ATTN_SHRINK_COLS_), stride = a->y.stride_len;
        float part[ATTN_SHRINK_STEP_ * ATTN_SHRINK_COLS_], *to = y + r * stride + c;
        attn_on_(dense, f)->gemm(j ? part : to, j ? (int64_t)ATTN_SHRINK_COLS_ : stride, some,
                                 e + r * e_stride, e_stride, 1, x + c, x_stride, n, cols, 1);
        for (int64_t i = 0; j && i < some; i++, to += stride)
          f->blend(to, to, part + i * ATTN_SHRINK_COLS_, ATTN_F32, ATTN_F32, ATTN_F32, cols, 1.0f,
                   1.0f);
      }
    }
  }
}

/* y [B,Hk,r,d] f32 = e [1, 1 or Hk, r, >= n] times x [B,Hk,n,d]; nothing is written where n = 0. An
 * element is the sum of chains of FMAs over 128 rows of x each, in order. */
ATTN_COLD_ int attn_stage_shrink_(attn_stage_ *s, attn_tensor y, attn_tensor e, attn_tensor x,
                                  const int32_t *len) {
  attn_shrink_ a = {s->table, y, e, x, len, 0, 0, NULL, 0, 0};
  a.run = s->workers > 1 ? (int64_t)ATTN_SHRINK_ROWS_ : y.len;
  a.runs = (y.len + a.run - 1) / a.run;
  if (x.dtype != ATTN_F32 || x.dim % ATTN_GROUP_) /* vectors may read on behind the last row */
    a.at_e = attn_piece_(attn_add_(attn_mul_(x.dim, ATTN_SHRINK_DEEP_), ATTN_GROUP_), 4);
  a.each = a.at_e;
  if (e.dtype != ATTN_F32) a.each = attn_add_(a.each, attn_mul_(a.run, ATTN_SHRINK_DEEP_ * 4));
  return attn_stage_for_(s, attn_mul_(attn_mul_(x.batch, x.heads), a.runs), attn_shrink_item_, &a,
                         a.each, &a.memory);
}

/* ---- rows -----------------------------------------------------------------------------------*/

/* y = x1 + x2, row by row; x1 null or x2 null: the other alone, both: 0. */
typedef struct attn_add_rows_ {
  const attn_table_ *table;
  attn_tensor y, x1, x2;
} attn_add_rows_;

ATTN_FUNC_ void attn_add_rows_item_(void *job, int worker, int64_t index) {
  const attn_add_rows_ *a = (const attn_add_rows_ *)job;
  const int64_t b = index / a->y.heads, h = index % a->y.heads;
  const attn_tensor *x1 = &a->x1, *x2 = &a->x2;
  (void)worker;
  for (int64_t i = 0; i < a->y.len; i++)
    a->table->blend(attn_at_(&a->y, b, h, i), x1->data ? attn_at_(x1, b, h, i) : NULL,
                    x2->data ? attn_at_(x2, b, h, i) : NULL, a->y.dtype, x1->dtype, x2->dtype,
                    a->y.dim, 1.0f, 1.0f);
}

ATTN_COLD_ int attn_stage_add_rows_(attn_stage_ *s, attn_tensor y, attn_tensor x1, attn_tensor x2) {
  attn_add_rows_ a = {s->table, y, x1, x2};
  return attn_stage_for_(s, attn_mul_(y.batch, y.heads), attn_add_rows_item_, &a, 0, NULL);
}
