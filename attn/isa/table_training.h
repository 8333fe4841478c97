/* isa/table_training.h owns what training adds to the tables of functions: gradients, steps of optimisers, losses. */

/* Of the rows in lanes: their LSE in score units, in two parts, infinite where a row sees nothing, and what is taken
 * off the gradient of each weight. */
typedef struct attn_grad_lanes_ {
  float hi[ATTN_TILE_], lo[ATTN_TILE_], less[ATTN_TILE_];
} attn_grad_lanes_;

/* What scores were before the terms that are added to a soft-cap, [key][lane], null: the scores themselves;
 * uncap = 1 / cap, 0 = there is none. */
typedef struct attn_grad_cap_ {
  const float *capped;
  float uncap;
} attn_grad_cap_;

/* Rows of a norm, y = h gain: what the gradient by y and that of the sum in it (null = 0) become. */
typedef struct attn_norm_slopes_ {
  float *d_x;
  const float *x, *d_y, *sum;
  int64_t d_x_stride, x_stride, d_y_stride, sum_stride, n;
  const float *gain; /* null = 1; lift is added to it */
  float lift;
  float *d_gain, *d_bias; /* [n], added to; null, as d_x may be: not made */
  int rms;
  uint64_t skip; /* rows that are left out, a bit each */
} attn_norm_slopes_;

/* Counters of attn_drop's random numbers after the first rounds of some, and what they are held against. */
typedef struct attn_drop_key_ {
  uint32_t key[10][2]; /* of each round */
  uint32_t least;      /* a number of 24 bits from here on stays */
  float by;            /* what stays is multiplied by it */
} attn_drop_key_;

/* Pairs of a tile: rows in lanes. Of a lane the second round left the words 0, 2 and 3, but for what a key's number
 * adds; batch is that of all. */
typedef struct attn_drop_lanes_ {
  attn_drop_key_ by;
  uint32_t batch, word0[ATTN_TILE_], word2[ATTN_TILE_], word3[ATTN_TILE_];
} attn_drop_lanes_;

typedef struct attn_gradient_table_ { /* gradients */
  /* s = P = 2^(s - hi - lo), at most 1, d = P (d - less) (1 - (capped uncap)^2); both are 0 where s is -inf */
  void (*grad_block)(float *s, float *d, int64_t n, int g0, int g1, const attn_grad_lanes_ *lanes,
                     const attn_grad_cap_ *cap);
  /* out[r] = sum_c x[r][c] y[r][c] of n rows, over 16 running sums joined by halves */
  void (*row_dots)(float *out, const float *x, const float *y, int64_t n, int64_t dim);
  /* to[index[e]][c] += p[e] row[c], rows of dim, one e after the other; ahead = rows between asking for one and adding */
  void (*scatter)(float *to, const float *p, const float *row, const int32_t *index, int64_t n,
                  int64_t dim, int ahead);
  /* y[i] = d[i] gate[i] act'(z[i]); gate null = 1; y may be any of them */
  void (*slope)(float *y, const float *d, const float *z, const float *gate, int64_t n, int act);
  /* at most 64 rows, size as `sizes` has it: h = (x - mean) by + plus, g = d_y (gain + lift), d_x = by (g - mean of g -
   * h mean of g h) + sum, d_gain += d_y h, d_bias += d_y, row by row; rms: the mean of g counts as 0. d_x may be d_y */
  void (*norm_slopes)(const attn_norm_slopes_ *a, int rows, const float *size);
} attn_gradient_table_;

/* A token of a state that fades: [cols][dk], a row a column of the values, dk in whole 16s. The rows q, k, left, near, a, b
 * are [dk], v and d_o [cols]: S = left S + near S + b (a . S) + k v, o = q . S, or with before of the state before it. a
 * null: there is neither. */
typedef struct attn_fade_token_ {
  const float *from; /* the state before it */
  float *to, *d;     /* behind it; what reaches that */
  const float *q, *k, *left, *near, *a, *b, *v, *d_o;
  float *y, *d_y, *d_v;               /* [cols]: a . S before it, what reaches that, of values */
  float *d_q, *d_k, *d_w, *d_a, *d_b; /* [dk], added to; d_w by left + near */
  int64_t dk, cols;
  int before;
} attn_fade_token_;

typedef struct attn_fading_table_ { /* gradients of states with decays */
  void (*fade_on)(const attn_fade_token_ *p);
  /* d becomes what reaches the state before it */
  void (*fade_off)(const attn_fade_token_ *p);
} attn_fading_table_;

typedef struct attn_rectified_table_ { /* gradients of rectified weights */
  /* r = max(s, 0): s = lo r^power, d = lo (d - less) (1 - (capped uncap)^2) power r^(power - 1), 0 where r is; power 2 if
   * square. Lanes where hi is infinite see nothing */
  void (*relu_grad_block)(float *s, float *d, int64_t n, int g0, int g1, int square,
                          const attn_grad_lanes_ *lanes, const attn_grad_cap_ *cap);
  /* sum[lane] += sum_j r d, but for pairs whose r is 0 */
  void (*relu_dots)(const float *r, const float *d, int64_t n, int g0, int g1, float *sum);
} attn_rectified_table_;

typedef struct attn_drop_table_ { /* dropout of weights: attn_sdpa carries these */
  /* kept[i] |= the lanes of groups g0..g1 whose pair with key j0 + i stays */
  void (*drop_bits)(uint64_t *kept, int64_t j0, int64_t n, int g0, int g1,
                    const attn_drop_lanes_ *a);
  /* s[i][lane] is multiplied by `by` where the lane is in kept[i], else by 0 */
  void (*drop_block)(float *s, const uint64_t *kept, int64_t n, int g0, int g1, float by);
  /* the same of x[e], which stands in column key[e] of row `at` = {row, head, batch} */
  void (*drop_list)(float *x, const int32_t *key, int64_t n, const uint32_t at[3],
                    const attn_drop_key_ *a);
} attn_drop_table_;

typedef struct attn_dropout_table_ { /* dropout of elements */
  /* x[c], which stands in column c0 + c of row `at`, as above; c0 is a multiple of 4 */
  void (*drop_row)(float *x, int64_t c0, int64_t n, const uint32_t at[3], const attn_drop_key_ *a);
} attn_dropout_table_;

/* A step of AdamW as its elements see it: g' = clip g, m = beta1 m + rest1 g', v = beta2 v + (rest2 g') g',
 * w = keep w - (rate m) / (sqrt(root v) + eps). */
typedef struct attn_adam_ {
  float clip, beta1, rest1, beta2, rest2, keep, rate, root, eps;
} attn_adam_;

/* A step of SGD: g' = clip g + decay w, b = momentum b + g' (first: g'), w = w - rate b, nesterov:
 * rate (momentum b + g'). */
typedef struct attn_descent_ {
  float clip, decay, momentum, rate;
  int first, nesterov;
} attn_descent_;

typedef struct attn_optimiser_table_ { /* steps of optimisers */
  void (*adam)(float *w, const float *g, float *m, float *v, int64_t n, const attn_adam_ *rule);
  /* b null: momentum is 0 */
  void (*descend)(float *w, const float *g, float *b, int64_t n, const attn_descent_ *rule);
  /* the sum of x[i]^2 in double: 16 running sums, joined by halves */
  double (*square_sum)(const float *x, int64_t n);
} attn_optimiser_table_;

/* Columns of logits that are one sum, and what kernels take them by. */
enum { ATTN_LOSS_RUN_ = 512, ATTN_LOSS_STEP_ = 64 };

typedef struct attn_loss_table_ { /* losses over classes; n is a multiple of ATTN_LOSS_STEP_ */
  /* the largest of x, NaN apart, and *sum = sum exp(x - it), at most 32 running sums of a run; all -inf: 0 */
  float (*loss_run)(float *sum, const float *x, int64_t n);
  /* y = by exp(x - top) - less for x <= top; y may be x */
  void (*loss_slope)(float *y, const float *x, int64_t n, float top, float by, float less);
} attn_loss_table_;
