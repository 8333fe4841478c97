/* families/depth/calm.h owns confidences after a layer, thresholds for them, and their calibration. */

/* ---- confidences ----------------------------------------------------------------------------*/

/* Columns of a row that one worker reads; part of the bits of a result. Columns at a time, and numbers
 * whose largest is found at once. */
enum { ATTN_CLASSES_ = 8192, ATTN_CLASSES_AT_ONCE_ = 1024, ATTN_CLASSES_GROUP_ = 64 };

/* The two largest of some logits, and the sum of e^(x - top). */
typedef struct attn_two_ {
  float top, second, sum, unused;
} attn_two_;

typedef struct attn_confidence_ {
  attn_tensor y, x;
  attn_confidence_params p;
  const attn_table_ *table;
  int64_t splits, tiles;
  attn_two_ *part; /* [rows][splits] */
  char *memory;    /* of the workers */
  int64_t each;
} attn_confidence_;

/* The two largest of n numbers beside those of t. Groups whose largest is no news, nearly all, are not
 * looked at one by one. */
ATTN_FUNC_ void attn_two_largest_(const attn_table_ *f, attn_two_ *t, const float *x, int64_t n) {
  float top[ATTN_CLASSES_AT_ONCE_ / ATTN_CLASSES_GROUP_ + 1];
  const int64_t whole = n / ATTN_CLASSES_GROUP_, rest = n % ATTN_CLASSES_GROUP_;
  attn_on_(feature, f)->top_rows(top, x, ATTN_CLASSES_GROUP_, whole, ATTN_CLASSES_GROUP_, 0);
  if (rest) attn_on_(feature, f)->top_rows(top + whole, x + n - rest, 0, 1, rest, 0);
  for (int64_t g = 0; g < whole + (rest != 0); g++) {
    const float *at = x + g * ATTN_CLASSES_GROUP_;
    const int64_t end = g < whole ? (int64_t)ATTN_CLASSES_GROUP_ : rest;
    for (int64_t c = 0; top[g] > t->second && c < end; c++) {
      if (at[c] > t->top)
        t->second = t->top, t->top = at[c];
      else if (at[c] > t->second)
        t->second = at[c];
    }
  }
}

/* by e^(from - to), for to >= from. Differences are scaled, never logits: what all logits have in common is
 * of no account. */
ATTN_FUNC_ float attn_two_power_(const attn_table_ *f, float by, float from, float to) {
  float x = (float)(((double)from - (double)to) * ATTN_LOG2E_);
  if (from == to || by == 0.0f) return by;
  f->weights(&x, &x, 1, 0.0f, by);
  return x;
}

/* A split of one row. */
ATTN_FUNC_ void attn_two_item_(void *job, int worker, int64_t index) {
  const attn_confidence_ *a = (const attn_confidence_ *)job;
  const attn_table_ *f = a->table;
  const int64_t row = index / a->splits, unit = row / a->x.len;
  const int64_t c0 = index % a->splits * ATTN_CLASSES_, left = a->x.dim - c0;
  const int64_t end = left < ATTN_CLASSES_ ? left : (int64_t)ATTN_CLASSES_;
  const char *x = attn_at_(&a->x, unit / a->x.heads, unit % a->x.heads, row % a->x.len) +
                  attn_bytes_(a->x.dtype, c0);
  float *part = (float *)(void *)(a->memory + worker * a->each), sums[2];
  attn_two_ t = {-INFINITY, -INFINITY, 0.0f, 0.0f};
  for (int64_t c = 0, n; c < end; c += n) {
    const float before = t.top;
    n = end - c < ATTN_CLASSES_AT_ONCE_ ? end - c : (int64_t)ATTN_CLASSES_AT_ONCE_;
    f->widen(part, x + attn_bytes_(a->x.dtype, c), 0, NULL, 1, n, a->x.dtype, NULL);
    attn_two_largest_(f, &t, part, n);
    if (t.top == -INFINITY) continue;
    attn_on_(norm, f)->normalise(part, n, t.top, (float)ATTN_LOG2E_, 0.0f, NULL, NULL);
    f->weights(part, part, n, 0.0f, 1.0f);
    attn_on_(norm, f)->moments(sums, part, n, 0.0f);
    t.sum = attn_two_power_(f, t.sum, before, t.top) + sums[0];
  }
  a->part[index] = t;
}

/* 64 rows of a head, from their parts. */
ATTN_FUNC_ void attn_two_join_(void *job, int worker, int64_t index) {
  const attn_confidence_ *a = (const attn_confidence_ *)job;
  const int64_t unit = index / a->tiles, first = index % a->tiles * ATTN_TILE_;
  const int64_t end = a->x.len - first < ATTN_TILE_ ? a->x.len : first + ATTN_TILE_;
  (void)worker;
  for (int64_t i = first; i < end; i++) {
    const attn_two_ *part = a->part + (unit * a->x.len + i) * a->splits;
    attn_two_ t = part[0];
    for (int64_t k = 1; k < a->splits; k++) {
      const float top = t.top > part[k].top ? t.top : part[k].top;
      const float less = t.top > part[k].top ? part[k].top : t.top;
      const float next = t.second > part[k].second ? t.second : part[k].second;
      t.sum = attn_two_power_(a->table, t.sum, t.top, top) +
              attn_two_power_(a->table, part[k].sum, part[k].top, top);
      t.top = top, t.second = less > next ? less : next;
    }
    const float y = (1.0f - attn_two_power_(a->table, 1.0f, t.second, t.top)) / t.sum;
    a->table->blend(attn_at_(&a->y, unit / a->x.heads, unit % a->x.heads, i), &y, NULL, a->y.dtype,
                    ATTN_F32, ATTN_F32, 1, 1.0f, 0.0f);
  }
}

/* The cosine of two rows; in double where floats cannot square their elements. */
ATTN_FUNC_ float attn_cosine_(const attn_table_ *f, const float *x, const float *z, int64_t n) {
  const int32_t one = 0;
  float dot, xx, zz;
  attn_on_(list, f)->dots(&dot, x, z, 0, &one, 1, n, ATTN_F32, 0);
  attn_on_(select, f)->squares(&xx, NULL, x, 0, NULL, 1, n);
  attn_on_(select, f)->squares(&zz, NULL, z, 0, NULL, 1, n);
  double top = (double)dot, a = (double)xx, b = (double)zz;
  if (!(a > 1e-25 && a < 1e37 && b > 1e-25 && b < 1e37)) {
    top = a = b = 0.0;
    for (int64_t c = 0; c < n; c++) {
      top += (double)x[c] * (double)z[c];
      a += (double)x[c] * (double)x[c], b += (double)z[c] * (double)z[c];
    }
    if (a == 0.0 || b == 0.0) return 0.0f;
  }
  const double y = top / (sqrt(a) * sqrt(b));
  return (float)(y > 1.0 ? 1.0 : y < -1.0 ? -1.0 : y);
}

/* 64 rows of a head. */
ATTN_FUNC_ void attn_cosine_item_(void *job, int worker, int64_t index) {
  const attn_confidence_ *a = (const attn_confidence_ *)job;
  const attn_tensor *x = &a->x, *z = &a->p.before;
  const int64_t unit = index / a->tiles, first = index % a->tiles * ATTN_TILE_;
  const int64_t end = x->len - first < ATTN_TILE_ ? x->len : first + ATTN_TILE_;
  const int64_t b = unit / x->heads, h = unit % x->heads;
  float *row = (float *)(void *)(a->memory + worker * a->each), *other = row + x->dim;
  for (int64_t i = first; i < end; i++) {
    a->table->widen(row, attn_at_(x, b, h, i), 0, NULL, 1, x->dim, x->dtype, NULL);
    a->table->widen(other, attn_at_(z, b, h, i), 0, NULL, 1, x->dim, z->dtype, NULL);
    const float y = attn_cosine_(a->table, row, other, x->dim);
    a->table->blend(attn_at_(&a->y, b, h, i), &y, NULL, a->y.dtype, ATTN_F32, ATTN_F32, 1, 1.0f,
                    0.0f);
  }
}

ATTN_COLD_ int attn_confidence_steps_(attn_stage_ *s, void *job) {
  attn_confidence_ *a = (attn_confidence_ *)job;
  const int64_t units = attn_mul_(a->x.batch, a->x.heads), tiles = attn_tiles_of_(a->x.len);
  a->table = s->table, a->tiles = tiles;
  if (a->p.kind == ATTN_CONFIDENCE_CLASSIFIER)
    return attn_stage_row_dots_(s, a->y, a->x, a->p.w, a->p.bias, ATTN_ACT_SIGMOID);
  if (a->p.kind == ATTN_CONFIDENCE_COSINE) {
    a->each = attn_piece_(attn_mul_(2, a->x.dim), sizeof(float));
    return attn_stage_for_(s, attn_mul_(units, tiles), attn_cosine_item_, a, a->each, &a->memory);
  }
  a->splits = (a->x.dim + ATTN_CLASSES_ - 1) / ATTN_CLASSES_;
  const int64_t parts = attn_mul_(attn_mul_(units, a->x.len), a->splits);
  a->part = (attn_two_ *)attn_stage_take_(s, parts, sizeof(attn_two_));
  a->each = (ATTN_CLASSES_AT_ONCE_ + ATTN_GROUP_) * (int64_t)sizeof(float);
  return attn_stage_for_(s, parts, attn_two_item_, a, a->each, &a->memory) &&
         attn_stage_for_(s, attn_mul_(units, tiles), attn_two_join_, a, 0, NULL);
}

ATTN_COLD_ int attn_confidence_check_(attn_error_ *e, attn_confidence_ *a, attn_operand_ op[5]) {
  static const attn_said_ rule[] = {ATTN_SAID_("params.w", "[1, 1 or x.heads, 1, x.dim]"),
                                    ATTN_SAID_("params.bias", "[1, 1 or x.heads, 1, 1]")};
  attn_confidence_params *p = &a->p;
  const int64_t any = ATTN_ANY_;
  if ((int)p->kind < 0 || p->kind >= ATTN_CONFIDENCE_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.kind must be an attn_confidence_kind");
  const int cosine = p->kind == ATTN_CONFIDENCE_COSINE;
  const int classify = p->kind == ATTN_CONFIDENCE_CLASSIFIER;
  const attn_operand_ x = ATTN_OPERAND_(&a->x, "x", 0, any, any, any, any, "");
  op[0] = x;
  if (!attn_check_operand_(e, &op[0], 1)) return 0;
  const attn_operand_ y = ATTN_OPERAND_(&a->y, "y", ATTN_OUT_, a->x.batch, a->x.heads, a->x.len, 1,
                                        "y must be [x.batch, x.heads, x.len, 1]");
  const attn_operand_ before =
      ATTN_OPERAND_(&p->before, "params.before", cosine ? 0 : (int)ATTN_OPTIONAL_, a->x.batch,
                    a->x.heads, a->x.len, a->x.dim, "params.before must have the shape of x");
  op[1] = y, op[2] = before;
  op[3] = attn_bias_(&p->w, &rule[0], classify ? 0 : (int)ATTN_OPTIONAL_, a->x.dim);
  op[4] = attn_bias_(&p->bias, &rule[1], ATTN_OPTIONAL_, 1);
  op[3].heads = op[4].heads = ATTN_ONE_OR_ALL_;
  for (int i = 1; i < 5; i++)
    if (!attn_check_operand_(e, &op[i], a->x.heads)) return 0;
  return 1;
}

ATTN_COLD_ attn_status attn_confidence_call_(attn_tensor y, attn_tensor x,
                                             const attn_confidence_params *params, attn_ctx *ctx,
                                             size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_operand_ op[5];
  attn_confidence_ a;
  int workers;
  memset(&a, 0, sizeof a);
  a.y = y, a.x = x;
  if (params) a.p = *params;
  if (attn_check_ctx_(&e, ctx, &table, &workers) && attn_confidence_check_(&e, &a, op) &&
      attn_check_apart_(&e, ctx, op, 5, NULL, 0)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (x.batch > 0 && x.heads > 0 && x.len > 0)
      attn_stage_call_(&s, ctx, attn_confidence_steps_, &a, "confidence of rows", bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no rows");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_CALL_(attn_confidence, (y, x, params), attn_tensor y, attn_tensor x,
           const attn_confidence_params *params)

/* ---- thresholds -----------------------------------------------------------------------------*/

ATTN_PUB_COLD_ attn_status attn_calm_threshold(float *threshold, int64_t count, float lambda,
                                               const attn_calm_threshold_params *params,
                                               attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_calm_threshold_params p;
  attn_span_ span;
  int workers;
  memset(&p, 0, sizeof p);
  if (params) p = *params;
  if (!attn_check_ctx_(&e, ctx, &table, &workers)) return attn_end_(ctx, &e);
  const int flat = p.kind == ATTN_CALM_FLAT;
  if (p.tau == 0.0f && !attn_to_bits_(p.tau)) p.tau = 4.0f;
  if (count < 0)
    attn_reject_(&e, ATTN_E_SHAPE, "count must not be negative");
  else if (!threshold && count > 0)
    attn_reject_(&e, ATTN_E_NULL, "threshold must not be null");
  else if (!(lambda >= 0.0f && lambda <= 1.0f))
    attn_reject_(&e, ATTN_E_RANGE, "lambda must lie in 0..1");
  else if ((int)p.kind < 0 || p.kind >= ATTN_CALM_COUNT)
    attn_reject_(&e, ATTN_E_RANGE, "params.kind must be an attn_calm_threshold_kind");
  else if (!flat && p.outputs < 1)
    attn_reject_(&e, ATTN_E_RANGE, "params.outputs must be at least 1");
  else if (p.first < 0 || (!flat && count > attn_sub_(p.outputs, p.first)))
    attn_reject_(&e, ATTN_E_RANGE, "params.first + count must lie in 0..outputs");
  else if (!(p.tau >= 0.0f && p.tau < INFINITY))
    attn_reject_(&e, ATTN_E_VALUE, "params.tau must be finite and not negative");
  else if (attn_check_array_(&e, threshold, count, 4, "threshold must be aligned to its elements",
                             &span)) {
    for (int64_t i = 0; i < count; i++) {
      float decay = lambda;
      if (!flat) {
        decay = (float)(-(double)p.tau * (double)(p.first + i) / (double)p.outputs);
        table->exp(&decay, &decay, 1);
        const double more = 0.1 * (double)decay, l = (double)lambda;
        const double y = p.kind == ATTN_CALM_PAPER ? 0.9 * l + more : l * (0.9 + more);
        decay = (float)(y > 1.0 ? 1.0 : y);
      }
      threshold[i] = decay;
    }
    attn_report_(ctx, table, 1, "thresholds", "the only path");
  }
  return attn_end_(ctx, &e);
}

typedef struct attn_calm_exit_ {
  int32_t *exits;
  attn_tensor x;
  const float *threshold;
  const attn_table_ *table;
  int64_t first; /* the first row of x that counts */
} attn_calm_exit_;

/* A batch entry: tokens are taken 64 at a time, from the last layer to the first. */
ATTN_FUNC_ void attn_calm_exit_item_(void *job, int worker, int64_t b) {
  const attn_calm_exit_ *a = (const attn_calm_exit_ *)job;
  const int64_t t = a->x.dim, rows = a->x.len;
  float x[ATTN_TILE_];
  (void)worker;
  for (int64_t i = 0; i < t; i += ATTN_TILE_) {
    const int64_t n = t - i < ATTN_TILE_ ? t - i : ATTN_TILE_;
    int32_t *to = a->exits + b * t + i;
    for (int64_t c = 0; c < n; c++) to[c] = (int32_t)(rows + 1);
    for (int64_t k = rows; k-- > a->first;) {
      a->table->widen(x, attn_at_(&a->x, b, 0, k) + attn_bytes_(a->x.dtype, i), 0, NULL, 1, n,
                      a->x.dtype, NULL);
      for (int64_t c = 0; c < n; c++)
        if (x[c] >= a->threshold[i + c]) to[c] = (int32_t)(k + 1);
    }
  }
}

ATTN_COLD_ attn_status attn_calm_exit_call_(int32_t *exits, attn_tensor x, const float *threshold,
                                            int64_t min_exit, attn_ctx *ctx, size_t *bytes) {
  static const char *const word[] = {ATTN_WORDS_("x"), ATTN_WORDS_("exits")};
  attn_error_ e = {ATTN_OK, NULL};
  const int64_t any = ATTN_ANY_;
  attn_calm_exit_ a = {exits, x, threshold, NULL, min_exit > 0 ? min_exit - 1 : 0};
  attn_operand_ op[2] = {
      ATTN_OPERAND_AS_(&a.x, word[0], 0, any, 1, any, any, "x must have one head")};
  attn_span_ more;
  int workers;
  if (!attn_check_ctx_(&e, ctx, &a.table, &workers) || !attn_check_operand_(&e, &op[0], 1))
    return attn_end_(bytes ? NULL : ctx, &e);
  if (x.len >= INT32_MAX)
    attn_reject_(&e, ATTN_E_SHAPE, "x.len must be below 2^31 - 1");
  else if (min_exit < 0 || min_exit > x.len + 1)
    attn_reject_(&e, ATTN_E_RANGE, "min_exit must lie in 1..x.len + 1, or be 0 for 1");
  else if (!exits && x.batch > 0)
    attn_reject_(&e, ATTN_E_NULL, "exits must not be null");
  else if (!threshold)
    attn_reject_(&e, ATTN_E_NULL, "threshold must not be null");
  else if (attn_check_written_(&e, &op[1], exits, attn_mul_(x.batch, x.dim), 4, word[1],
                               "exits must be aligned to its elements") &&
           attn_check_array_(&e, threshold, x.dim, 4, "threshold must be aligned to its elements",
                             &more) &&
           attn_check_apart_(&e, ctx, op, 2, &more, 1) && !bytes) {
    workers = attn_pieces_(workers, x.batch);
    if (x.batch > 0) attn_for_(ctx, workers, x.batch, attn_calm_exit_item_, &a);
    attn_report_(ctx, a.table, workers, x.batch ? "rows" : "no-op", "the only path");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_CALL_(attn_calm_exit, (exits, x, threshold, min_exit), int32_t *exits, attn_tensor x,
           const float *threshold, int64_t min_exit)

/* ---- calibration ----------------------------------------------------------------------------*/

/* The sum of the losses of candidate j; -1 when one is outside 0..1. */
ATTN_COLD_ double attn_calibrate_sum_(const attn_table_ *f, const attn_tensor *losses, int64_t j) {
  float x[ATTN_TILE_];
  double sum = 0.0;
  for (int64_t i = 0; i < losses->dim; i += ATTN_TILE_) {
    const int64_t n = losses->dim - i < ATTN_TILE_ ? losses->dim - i : ATTN_TILE_;
    f->widen(x, attn_at_(losses, 0, 0, j) + attn_bytes_(losses->dtype, i), 0, NULL, 1, n,
             losses->dtype, NULL);
    for (int64_t c = 0; c < n; c++) {
      if (!(x[c] >= 0.0f && x[c] <= 1.0f)) return -1.0;
      sum += (double)x[c];
    }
  }
  return sum;
}

ATTN_COLD_ int attn_calibrate_check_(attn_error_ *e, const attn_table_ *f,
                                     const attn_tensor *losses, const float *lambdas) {
  for (int64_t j = 0; j < losses->len; j++) {
    if (!(lambdas[j] >= 0.0f && lambdas[j] <= 1.0f) || (j > 0 && !(lambdas[j] < lambdas[j - 1])))
      return attn_reject_(e, ATTN_E_RANGE, "lambdas must lie in 0..1 and strictly decrease");
    if (attn_calibrate_sum_(f, losses, j) < 0.0)
      return attn_reject_(e, ATTN_E_RANGE, "losses must lie in 0..1");
  }
  return 1;
}

ATTN_COLD_ attn_status attn_calm_calibrate_call_(float *best, int64_t *accepted, attn_tensor losses,
                                                 const float *lambdas, float delta, float eps,
                                                 attn_ctx *ctx, size_t *bytes) {
  static const char *const word[] = {ATTN_WORDS_("losses"), ATTN_WORDS_("best"),
                                     ATTN_WORDS_("accepted")};
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  const int64_t any = ATTN_ANY_;
  attn_operand_ op[3] = {
      ATTN_OPERAND_AS_(&losses, word[0], 0, 1, 1, any, any, "losses must be [1, 1, J, n]")};
  attn_span_ more;
  int workers;
  if (!attn_check_ctx_(&e, ctx, &table, &workers) || !attn_check_operand_(&e, &op[0], 1))
    return attn_end_(bytes ? NULL : ctx, &e);
  if (!best)
    attn_reject_(&e, ATTN_E_NULL, "best must not be null");
  else if (!lambdas && losses.len > 0)
    attn_reject_(&e, ATTN_E_NULL, "lambdas must not be null");
  else if (!(delta > 0.0f && delta < 1.0f))
    attn_reject_(&e, ATTN_E_RANGE, "delta must lie between 0 and 1");
  else if (!(eps > 0.0f && eps < 1.0f))
    attn_reject_(&e, ATTN_E_RANGE, "eps must lie between 0 and 1");
  else if (attn_check_written_(&e, &op[1], best, 1, 4, word[1], "best must be aligned") &&
           attn_check_written_(&e, &op[2], accepted, 1, 8, word[2], "accepted must be aligned") &&
           attn_check_array_(&e, lambdas, losses.len, 4, "lambdas must be aligned to its elements",
                             &more) &&
           attn_check_apart_(&e, ctx, op, 3, &more, 1) && !bytes &&
           attn_calibrate_check_(&e, table, &losses, lambdas)) {
    const double n = (double)losses.dim, bound = attn_log2_(eps) * ATTN_LN2_;
    int64_t j = 0;
    for (; j < losses.len; j++) { /* p > eps, in logarithms */
      const double gap = (double)delta - attn_calibrate_sum_(table, &losses, j) / n;
      if (-2.0 * n * (gap > 0.0 ? gap * gap : 0.0) > bound) break;
    }
    *best = j > 0 ? lambdas[j - 1] : 1.0f;
    if (accepted) *accepted = j;
    attn_report_(ctx, table, 1, "fixed sequence of tests", "the only path");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_CALL_(attn_calm_calibrate, (best, accepted, losses, lambdas, delta, eps), float *best,
           int64_t *accepted, attn_tensor losses, const float *lambdas, float delta, float eps)
