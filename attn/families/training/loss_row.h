/* families/training/loss_row.h owns the loss of one row of logits, which come in runs of columns: what is kept of them,
 * the loss, and the gradient of a run. */

/* What all rows have in common. */
typedef struct attn_loss_rule_ {
  double smoothing, z;
  double grad; /* of each counted row */
  int64_t classes;
} attn_loss_rule_;

/* A row so far. The target is apart: 1 - p of it is then no difference of numbers near 1. */
typedef struct attn_logits_row_ {
  double top, rest; /* the largest of the other logits, and sum exp(x - top) over them */
  double all;       /* the sum of all logits, where there is smoothing */
  double target;    /* its logit */
} attn_logits_row_;

/* What a row's gradient is made of: by exp(x - top) - less, and that of the target. */
typedef struct attn_loss_slope_ {
  float top, by, less, target;
} attn_loss_slope_;

ATTN_FUNC_ attn_logits_row_ attn_loss_begin_(void) {
  attn_logits_row_ row;
  row.top = -(double)INFINITY, row.rest = row.all = row.target = 0.0;
  return row;
}

/* Logarithms of 1 <= x < FLT_MAX and of 1 + y, y >= 0; NaN stays. */
ATTN_FUNC_ double attn_log_f64_(double x) {
  const float f = (float)x;
  return x == x ? attn_log2_(f) * ATTN_LN2_ + (x - (double)f) / (double)f : x;
}
ATTN_FUNC_ double attn_log1p_f64_(double y) {
  const double z = y / (2.0 + y), t = z * z;
  double p = 1.0 / 31;
  if (y > 1.0) return attn_log_f64_(1.0 + y);
  for (int i = 29; i > 0; i -= 2) p = p * t + 1.0 / i;
  return 2.0 * z * p;
}

/* A run as the kernels take it: x itself, or a copy up to a whole step, where what is added has no weight. */
ATTN_FUNC_ const float *attn_loss_whole_(float *copy, const float *x, int64_t n, int64_t *whole) {
  *whole = (n + ATTN_LOSS_STEP_ - 1) / ATTN_LOSS_STEP_ * ATTN_LOSS_STEP_;
  if (*whole == n) return x;
  if (copy != x) memcpy(copy, x, (size_t)n * sizeof(float));
  for (int64_t c = n; c < *whole; c++) copy[c] = -INFINITY;
  return copy;
}

/* Takes up the n columns from c0 on, at most a run. */
ATTN_FUNC_ void attn_loss_take_(const attn_table_ *f, const attn_loss_rule_ *rule,
                                attn_logits_row_ *row, const float *x, int64_t c0, int64_t n,
                                int64_t target) {
  float copy[ATTN_LOSS_RUN_], sum;
  int64_t whole;
  if (rule->smoothing > 0.0) {
    float both[2];
    attn_on_(norm, f)->moments(both, x, n, 0.0f);
    row->all += (double)both[0];
  }
  if (target >= c0 && target < c0 + n) {
    row->target = (double)x[target - c0];
    memcpy(copy, x, (size_t)n * sizeof(float));
    copy[target - c0] = -INFINITY, x = copy;
  }
  x = attn_loss_whole_(copy, x, n, &whole);
  const double top = (double)attn_on_(loss, f)->loss_run(&sum, x, whole);
  if (sum == 0.0f) return;
  if (top > row->top) {
    row->rest = row->rest * attn_exp_f64_(row->top - top) + (double)sum;
    row->top = top;
  } else {
    row->rest += (double)sum * (top == row->top ? 1.0 : attn_exp_f64_(top - row->top));
  }
}

/* The loss of a row that is complete; slope: what its gradient is made of. */
ATTN_FUNC_ double attn_loss_close_(const attn_loss_rule_ *rule, const attn_logits_row_ *row,
                                   attn_loss_slope_ *slope) {
  const double e = rule->smoothing, z = rule->z, g = rule->grad, x = row->target;
  const double classes = (double)rule->classes, none = -(double)INFINITY;
  const double top = x > row->top ? x : row->top;
  const double rest = row->top == top ? row->rest : row->rest * attn_exp_f64_(row->top - top);
  const double own = x == none ? 0.0 : x == (double)INFINITY ? x - x : attn_exp_f64_(x - top);
  const double total = rest + own; /* 0 where all are -inf, else 1 or more */
  const double lse = total == 0.0 ? none : top + attn_log_f64_(total);
  double near = top - x + attn_log_f64_(total), loss = 0.0; /* lse - x */
  if (x == top) near = attn_log1p_f64_(rest);
  if (x == none) near = -none;
  if (total != total) near = total;
  if (e < 1.0) loss = (1.0 - e) * near;
  if (e > 0.0) loss += row->all == none && total == total ? -none : e * (lse - row->all / classes);
  if (z > 0.0) loss += z * (lse * lse);
  const double share = total == 0.0 ? 0.0 : 2.0 * z * lse; /* what the z-loss adds to 1 */
  const double p = total == 0.0 ? 0.0 : own / total, others = total == 0.0 ? 1.0 : rest / total;
  slope->top = total == 0.0 ? 0.0f : (float)top;
  slope->by = total == 0.0 ? 0.0f : attn_narrow_f64_(g * (1.0 + share) / total);
  slope->less = attn_narrow_f64_(g * e / classes);
  slope->target = attn_one_nan_(attn_narrow_f64_(g * (share * p - others + e - e / classes)));
  return attn_one_nan_f64_(loss);
}

/* The gradient of a run, in y [at least a whole step]; y may be x. */
ATTN_FUNC_ void attn_loss_slopes_(const attn_table_ *f, const attn_loss_slope_ *slope, float *y,
                                  const float *x, int64_t c0, int64_t n, int64_t target) {
  float copy[ATTN_LOSS_RUN_];
  int64_t whole;
  x = attn_loss_whole_(copy, x, n, &whole);
  float *to = whole == n ? y : copy;
  attn_on_(loss, f)->loss_slope(to, x, whole, slope->top, slope->by, slope->less);
  if (to != y) memcpy(y, to, (size_t)n * sizeof(float));
  if (target >= c0 && target < c0 + n) y[target - c0] = slope->target;
}
