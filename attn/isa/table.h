/* isa/table.h owns the thin waist: the type of the table of primitives that each tier fills. What
 * each primitive computes is said here once; kernels/ holds the one text that computes it.
 *
 * Queries sit in vector lanes. A tile is ATTN_TILE_ query rows, in groups of ATTN_GROUP_ lanes,
 * the same on every tier; arrays over a tile are [n][ATTN_TILE_], "lane" runs along a row of
 * queries. g0..g1 selects lane groups. Scores are in log2 units. */

#define ATTN_TILE_ 64
#define ATTN_GROUP_ 16
/* Keys between two updates of the running maximum; part of the bits of every result. */
#define ATTN_BLOCK_ 128

/* Rows between asking for one and reading it. */
#define ATTN_AHEAD_ 12

/* The largest radix of a Fourier transform. */
#define ATTN_RADIX_ 31

/* An activation beside attn_activation: log2(1 + 2^x). */
#define ATTN_ACT_SOFTPLUS2_ 64

/* What pack reads: an attn_dtype, plus BIAS for numbers that must stay finite. */
#define ATTN_KIND_BIAS_ 16

#define ATTN_LOG2E_ 1.4426950408889634074
#define ATTN_LN2_ 0.69314718055994530942

/* What is done to a score, in this order whatever the mechanism:
 *   E0  transforms of q, k, v rows     attn_rope, before the call
 *   E1  dot product                    score_block, dots
 *   E2  dot with a table               dot; by label and clipped distance in the driver
 *   E3  scale                          folded into the packed queries
 *   E4  multiplicative                 factor (with a rectifier), softcap
 *   E5  additive                       a table by distance; b slope; c center, precision; d bias;
 *                                      e key; f ramp, in softmax_block
 *   E6  maps                           softcap, if it comes last; a user's modifier; the driver
 *                                      emits the scores
 *   E7  allowed set                    lanes, lo and hi; -inf in bias and key
 *   E8  softmax                        softmax_block, relu_block
 *   E9  value sum                      value_block, axpys
 *   E10 outputs                        the driver
 * A null or zero field is an absent stage. Arrays over keys start at the same key as the scores.
 * Distances count from a key near the block, its base, so that they are exact in float. */
typedef struct attn_modifiers_ {
  const float *dot;       /* E2: [key][lane], added */
  const float *factor;    /* E4: x = max(x, 0) factor, found as table is */
  float softcap;          /* E4: cap, in score units */
  const float *table;     /* E5a: table - back[key] + index[lane], added */
  const int32_t *back;    /* [key], null: [key][lane] arrays in table's place */
  const int32_t *index;   /* [lane]; null: the lanes themselves */
  const float *at;        /* [key], its distance from the base */
  const float *slope;     /* E5b: [lane], -m_h in score units */
  const float *rel;       /* E5b: [lane], base minus the query's position */
  const float *center;    /* E5c: [lane], counted from the base */
  const float *precision; /* E5c: [lane], subtracts precision (at - center)^2 */
  const float *bias;      /* E5d: [key][lane], score units, -inf forbids */
  const float *key;       /* E5e: [key], score units, -inf forbids */
  const uint64_t *lanes;  /* E7: [key], a bit for each lane that sees it */
  const float *lo;        /* E7: [lane], keys lo <= at < hi are allowed */
  const float *hi;
} attn_modifiers_;

/* The factor of a tile whose accumulator keeps its scale. */
static const float attn_alpha_one_[ATTN_TILE_] = {
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

/* Which modifiers are present. */
enum {
  ATTN_USE_CAP_ = 1,
  ATTN_USE_SLOPE_ = 2,
  ATTN_USE_BIAS_ = 4,
  ATTN_USE_KEY_ = 8,
  ATTN_USE_LANES_ = 16,
  ATTN_USE_BOUND_ = 32,
  ATTN_USE_DOT_ = 64,
  ATTN_USE_FACTOR_ = 128,
  ATTN_USE_TABLE_ = 256,
  ATTN_USE_QUAD_ = 512,
  /* what there is without ATTN_FAMILY_TERMS */
  ATTN_USE_PLAIN_ =
      ATTN_USE_SLOPE_ | ATTN_USE_BIAS_ | ATTN_USE_KEY_ | ATTN_USE_LANES_ | ATTN_USE_BOUND_
};

/* E5f: weights times clip((start[lane] + at[key]) rate + edge[lane], 0, 1); start and at are whole */
typedef struct attn_ramp_ {
  const float *start, *edge, *at;
  float rate;
} attn_ramp_;

/* The last change of scores: [lane] factors, or null; [lane] and [key] numbers whose difference is added, each
 * in two parts, or key_hi null; [key][lane] numbers that are subtracted, or null. */
typedef struct attn_late_terms_ {
  const float *by, *hi, *lo, *key_hi, *key_lo, *less;
} attn_late_terms_;

/* Scales of quantised rows, from the one that row 0 has: x = (n - zero) * scale, in that order.
 * Null pointers are 1 and 0. */
typedef struct attn_rows_scale_ {
  const float *scale, *zero;
  int64_t stride, group; /* group = 0: one a row */
} attn_rows_scale_;

/* Rows of keys or values that the few-query kernels read where they lie. */
typedef struct attn_kv_rows_ {
  const char *row;
  int64_t step;  /* bytes from one row to the next */
  int64_t n;     /* rows, at most ATTN_BLOCK_ */
  int64_t dim;   /* elements */
  int64_t bytes; /* of a row */
  attn_dtype dtype;
  const float *scale; /* of row j: scale[j * scale_step]; null = 1 */
  int64_t scale_step;
  const char *next; /* the rows that are read after these, which are asked for in time */
  int64_t next_step, next_n;
  int64_t ahead; /* rows between asking for one and reading it */
} attn_kv_rows_;

/* Lines of memory to ask for, in the order of their addresses: what prefetchers of the hardware follow
 * too. Rows that lie end to end are one long row. */
typedef struct attn_ask_ {
  const char *at;
  int64_t left, step, bytes; /* to the end of the row; from a row to the next; of a row */
  int due;                   /* bytes to ask for that are less than a line */
} attn_ask_;

/* Room for the scores of a row: a block, and what the last keys of a kernel write past it. */
#define ATTN_ROWS_ROOM_ (ATTN_BLOCK_ + ATTN_GROUP_)
/* Query rows that the few-query kernels take; rows beside those in use are scratch. */
#define ATTN_ROWS_ 16
/* Bytes of value rows that are summed column by column while they are in the first cache. */
#define ATTN_ROW_STRIP_ 8192

/* Keys that rows do not see, by ranges of integers: test t takes key j from a lane where
 * x[t][j] - lo[t][lane] < len[t][lane] modulo 2^32; arrays [tests][block], [tests][tile]. */
typedef struct attn_exclude_ {
  const uint32_t *x, *lo, *len;
  int64_t tests;
} attn_exclude_;

/* Rows of floats: y = LN(x + more), sum = x + more; more null = 0, sum null: not kept. y and sum may be x or
 * more, row by row. */
typedef struct attn_norm_rows_ {
  float *y, *sum;
  const float *x, *more;
  int64_t y_stride, sum_stride, x_stride, more_stride, n;
} attn_norm_rows_;

/* The primitives, by family: what one kind of call needs. Each tier has one constant table a family
 * (isa/tables.h). The first is how a tier is passed on, and attn_on_ finds the others by it. */
typedef struct
    attn_table_ { /* rows of any storage, and single rows of floats: what every call needs */
  attn_isa isa;
  /* dst[c][lane] = row[lane][c] * (hi + lo), lanes n.. up to a whole group = 0 */
  void (*pack)(float *dst, const void *const *rows, int n, int64_t dim, int kind, float hi,
               float lo);
  /* row[lane][c] = src[c][lane] * scale[lane] (null = 1); a NaN is stored as the one default NaN */
  void (*unpack)(void *const *rows, const float *src, int n, int64_t dim, attn_dtype dtype,
                 const float *scale);
  /* dst[r][c] = src row r, or row index[r], any type to f32; scales are of those rows, null = 1 */
  void (*widen)(float *dst, const void *src, int64_t stride, const int32_t *index, int64_t n,
                int64_t dim, attn_dtype dtype, const attn_rows_scale_ *scales);
  /* 1 when every number of n rows is finite */
  int (*finite)(const float *x, int64_t stride, int64_t n, int64_t dim);
  /* p[j] = 2^(x[j] - m) * scale */
  void (*weights)(float *p, const float *x, int64_t n, float m, float scale);
  /* y[i] = exp(x[i]) */
  void (*exp)(float *y, const float *x, int64_t n);
  /* y = a x1 + b x2, a row; a part may be null */
  void (*blend)(void *y, const void *x1, const void *x2, attn_dtype ty, attn_dtype t1,
                attn_dtype t2, int64_t n, float a, float b);
  /* y[r][c] = x[r][c] by[r] of n rows; y may be x */
  void (*scale_rows)(float *y, int64_t y_stride, const float *x, int64_t x_stride, int64_t n,
                     int64_t dim, const float *by);
} attn_table_;

typedef struct attn_tile_table_ { /* a tile of scores */
  /* s[j][lane] = sum_c k[j][c] qt[c][lane] in the order of c; top[lane] = max(top, s) */
  void (*score_block)(float *s, const float *qt, const float *k, int64_t stride, int64_t n,
                      int64_t dk, int g0, int g1, float *top);
  /* applies the modifiers to n keys of s and sets top[lane] = max(top, s) */
  void (*modify_block)(float *s, int64_t n, int g0, int g1, const attn_modifiers_ *mod, float *top);
  /* joins the scores to the running softmax: m' = max(m, top), alpha = 2^(m - m'),
   * s = 2^(s - m') times the ramp (null = 1), l = l alpha + sum_j s */
  void (*softmax_block)(float *s, int64_t n, int g0, int g1, float *m, float *l, float *alpha,
                        const float *top, const attn_ramp_ *ramp);
  /* ot[c][lane] = ot[c][lane] alpha[lane] + (sum_j v[j][c] p[j][lane] in the order of j, from 0).
   * alpha null = 1; start = the sum alone */
  void (*value_block)(float *ot, const float *p, const float *v, int64_t stride, int64_t n,
                      int64_t dv, int g0, int g1, const float *alpha, int start);
  /* x[r][lane] *= alpha[lane] */
  void (*scale_block)(float *x, int64_t n, int g0, int g1, const float *alpha);
  /* x + low = (x + low) keep[lane] + y, where low[r][lane] holds what is lost of x[r][lane]; close: low is
   * added to x after that */
  void (*fold_block)(float *x, float *low, const float *y, int64_t n, int groups, const float *keep,
                     int close);
  /* joins one logit without a value to the softmax: scale[lane] *= what the old part keeps */
  void (*join)(float *m, float *l, float *scale, const float *logit, int groups);
  /* x[lane] = x / y, 0 where y = 0 */
  void (*divide)(float *x, const float *y, int groups);
  /* s[j][lane] = -inf where a test says so; top[lane] = max(top, s) */
  void (*exclude)(float *s, int64_t n, int g0, int g1, const attn_exclude_ *not_seen, float *top);
} attn_tile_table_;

/* Sums of products of pairs of bf16 or of f16: y[r][lane] = sum_i x[i][lane] . b[r][i] for lanes of groups g0..g1,
 * where pair i of row r of b is row * r + step * i bytes behind b. Of f16, unit not null: times unit[lane]
 * and unit[tile + lane], powers of two. top not null: times scale, and top[lane] = max(top, y); else added to
 * y alpha[lane] (null = 1), start: to 0. */
typedef struct attn_pair_dots_ {
  float *y;
  const uint32_t *x; /* [n][tile] */
  const void *b;
  int64_t ys, row, step; /* from a row of y to the next; of b; from a pair to the next */
  int64_t rows, n;
  int g0, g1, start;
  float scale, *top;
  const float *alpha, *unit;
} attn_pair_dots_;

/* The running softmax of a tile's lanes; ramp: null = 1. in_place: weights also replace the scores. */
typedef struct attn_running_softmax_ {
  float *m, *l, *alpha;
  const float *top;
  const attn_ramp_ *ramp;
  int in_place;
} attn_running_softmax_;

/* n rows of f32 or of halves, step bytes apart; lead: the first of them is the odd one of its pair. by: of f16,
 * rows of f32 times by[row]; null = 1. */
typedef struct attn_pair_rows_ {
  const void *x;
  int64_t step, n, dim;
  int kind, lead;
  const float *by;
} attn_pair_rows_;

/* A pair in memory, which its halves need not align to; its even one lies first. */
ATTN_INLINE_ uint32_t attn_pair_at_(const void *p) {
  uint32_t x;
  memcpy(&x, p, sizeof x);
  return x;
}

typedef struct attn_low_table_ { /* products of bf16 or f16; rounding is to nearest even */
  void (*pair_dots)(const attn_pair_dots_ *d);
  /* to[i][lane] = the pair of rows 2i and 2i+1 of n; with lead = 1 of 2i-1 and 2i. Rows that are not there
   * are 0. The order of the halves of a group of lanes is the tier's */
  void (*pair_tile)(uint32_t *to, const float *x, int64_t n, int lead, int g0, int g1);
  /* the same of rows in memory: to[i][c], rows width apart, which hold whole groups of 16 */
  void (*pair_rows)(uint32_t *to, int64_t width, const attn_pair_rows_ *rows);
  /* to[i][c] = x[i][c] of n rows, of f16 times by[i] (null = 1); 0 up to a whole group of 16 */
  void (*narrow)(uint16_t *to, int64_t width, const float *x, int64_t stride, int64_t n,
                 int64_t dim, const float *by);
  /* softmax_block whose weights go to p as pair_tile has them; l sums them as they are there */
  void (*pair_softmax)(uint32_t *p, float *s, int64_t n, int lead, int g0, int g1,
                       const attn_running_softmax_ *run);
  /* to[i] = max |x[i][c]| of numbers, infinities among them; null: of bf16, which takes them all */
  void (*peaks)(float *to, const float *x, int64_t stride, int64_t n, int64_t dim);
} attn_low_table_;

/* Codes of 8 bits (kernels/codes.h): n rows of f32 or bf16, step bytes apart, less center go to rows
 * width bytes apart; scale[j]: what the codes of row j are times, 0 = it has none. */
typedef struct attn_code_rows_ {
  void *to;
  const void *x;
  const float *center;
  int64_t width, step, n, dim;
  int kind;
  float *scale;
} attn_code_rows_;

/* Queries of a tile, x[n][tile]: codes, scale[lane], sums[lane] of what the codes stand for, and in raised[lane]
 * what cancels that codes of keys are raised. */
typedef struct attn_code_tile_ {
  void *to;
  const float *x;
  int64_t n;
  int groups;
  float *scale, *sums;
  int32_t *raised;
} attn_code_tile_;

/* y[r][lane] = x_scale[lane] scale[r] (sum of products of codes) + some[r] more[lane]; top[lane] = max(top, y). */
typedef struct attn_code_dots_ {
  float *y;
  const void *x, *b;
  int64_t row, rows, n; /* bytes from a row of b to the next; rows; codes of each */
  int g0, g1;
  const int32_t *raised;
  const float *x_scale, *more, *scale, *some;
  float *top;
} attn_code_dots_;

/* The scale of codes of numbers up to top, and what numbers are multiplied by. 0: they are beyond what codes and
 * their products can hold; numbers: all of them are. */
ATTN_INLINE_ float attn_code_scale_(float top, int numbers, float *inverse) {
  *inverse = 0.0f;
  if (!numbers) return 0.0f;
  if (top == 0.0f) return 1.0f;
  if (!(top > 1.0e-12f && top < 1.0e12f)) return 0.0f;
  *inverse = 127.0f / top;
  return top * (1.0f / 127.0f);
}
/* Sums of sizes below that: no NaN is among them. */
#define ATTN_CODE_NUMBERS_ 2.0e15f

typedef struct attn_code_table_ {
  void (*code_rows)(const attn_code_rows_ *r);
  /* codes that are stored */
  void (*code_bytes)(void *to, const signed char *row, int64_t dim);
  void (*code_tile)(const attn_code_tile_ *q);
  void (*code_dots)(const attn_code_dots_ *d);
} attn_code_table_;

/* Products of codes with a matrix of codes, beside attn_code_table_ (kernels/code_product.h). */
typedef struct attn_code_panel_table_ {
  /* sums[j] = sum of n codes of row j of rows that code_rows made, width bytes apart */
  void (*code_sums)(float *sums, const void *codes, int64_t width, int64_t rows, int64_t n);
  /* n rows of a tile of whole codes as code_tile has them, and its raised */
  void (*code_panel)(void *to, const float *x, int64_t n, int32_t *raised);
} attn_code_panel_table_;

/* A row of codes times a matrix of codes that is read where it lies, run by run: y[c] = (start ? 0 : y[c]) +
 * x_scale[g] scale[g][c] (sum of run g of x (w - zero[g][c])). sums[g]: of codes of x, signed; 4-bit rows of k have
 * those of each 8 elements with the even ones first. */
typedef struct attn_code_line_ {
  float *y;
  const signed char *x;
  const char *w; /* step bytes from a row to the next */
  int64_t step, n, cols, run;
  const float *x_scale, *sums; /* [runs], x_step apart */
  int64_t x_step;
  const float *scale, *zero; /* [runs][cols], scale_step apart; zero null = 0 */
  int64_t scale_step;
  int kind, start;
  int each; /* code_along: runs have scales of their own, side by side */
} attn_code_line_;
enum { ATTN_CODE_RUNS_ = 64 };

typedef struct attn_code_line_table_ { /* of some features */
  /* of w[k][c]: columns in whole 64s, of 4 bits 128s, 4096 of all; runs */
  void (*code_columns)(const attn_code_line_ *p);
  /* of w[c][k]: columns in whole 64s, n in whole 128s */
  void (*code_words)(const attn_code_line_ *p);
  /* the same of runs of whole 64 bytes, 64 of them at most; scales are [cols][runs], scale_step from a column to
   * the next */
  void (*code_along)(const attn_code_line_ *p);
  int flip; /* what codes of x were raised by */
} attn_code_line_table_;

typedef struct attn_relu_table_ { /* rectified weights */
  /* in place of the softmax: s = max(s, 0), squared if square; l += (sum_j s, from 0), count += the scores
   * above -inf */
  void (*relu_block)(float *s, int64_t n, int g0, int g1, int square, float *l, float *count);
} attn_relu_table_;

typedef struct attn_reshape_table_ { /* other weights than those of a softmax; -inf becomes 0 */
  /* s = 1 / (1 + 2^-(s + shift[lane])), l += (sum_j s, from 0) */
  void (*sigmoid_block)(float *s, int64_t n, int g0, int g1, const float *shift, float *l);
  /* m' = max(m, top, 0), alpha = 2^(m - m'); e = 2^(s - m') - 2^-m', l = l alpha + sum_j |e|, s = max(e, 0) */
  void (*softpick_block)(float *s, int64_t n, int g0, int g1, float *m, float *l, float *alpha,
                         const float *top);
  /* keys from the last to the first: s = sigmoid(s) 2^-R, R = high + low the sum of log2(1 + 2^s) over the keys
   * after this one, of which those of earlier calls come in (low = -inf is 0) and all go out; l as above */
  void (*stick_block)(float *s, int64_t n, int g0, int g1, float *high, float *low, float *l);
  /* s = s by + ((hi - key_hi) + (lo - key_lo)) - less, -inf stays; top = max(top, s) */
  void (*late_block)(float *s, int64_t n, int g0, int g1, const attn_late_terms_ *p, float *top);
  /* a group's scores x [n][group]: w = max(0, (x - m) by - tau)^power; to [n][tile], or null, = w; sum, slope, count
   * = the sums of w, of w / u and of w > 0, over blocks of 128 from 0. power 1, 2, or any above 1 */
  void (*entmax_group)(float *to, const float *x, int64_t n, const float *m, const float *tau,
                       float by, float power, float *sum, float *slope, float *count);
  /* keys from the last to the first: P = min(high + low + the sum of 1 / (1 + 2^-s) so far, this key's own
   * included, last); s += z[lane * stride + P], between the whole P's linearly; -inf stays; top = max(top, s). high
   * + low go out with these keys' own, last where that is reached */
  void (*cope_block)(float *s, int64_t n, int g0, int g1, const float *z, int64_t stride,
                     int64_t last, float *high, float *low, float *top);
  /* a block of keys: x = sum in log2 units, sum += max(x, 0) in natural ones; sum is at most 1e38 */
  void (*fade_row)(double *sum, float *x);
} attn_reshape_table_;

typedef struct attn_few_table_ { /* few queries */
  /* dst[c] = row[c] * (hi + lo), to the end of a vector */
  void (*pack_row)(float *dst, const void *row, int64_t dim, attn_dtype dtype, float hi, float lo);
  /* s[r][j] = scale[j] sum_c q[r][c] k[j][c], over 16 running sums joined by halves; q rows `width`
   * apart, s rows ATTN_ROWS_ROOM_ */
  void (*score_rows)(float *s, const float *q, int64_t width, int rows, const attn_kv_rows_ *k);
  /* joins the scores from .. to - 1 of a block, groups of 16, to the running softmax of each row: m' = max(m, s),
   * alpha = 2^(m - m'), s = 2^(s - m'), l = l alpha + sum_j s, over 16 running sums joined by halves */
  void (*softmax_rows)(float *s, int rows, int from, int to, float *m, float *l, float *alpha);
  /* p[r][j] *= scale[j]; b[r][c] += p[r][j] v[j][c] in the order of j, where b, the sum of a block,
   * lies ATTN_ROWS_ rows behind o. alpha not null: another block begins, o = (o + b) alpha[r] and b = 0
   * come first */
  void (*value_rows)(float *o, int64_t width, float *p, int rows, const attn_kv_rows_ *v,
                     const float *alpha);
} attn_few_table_;

typedef struct attn_list_table_ { /* lists of keys */
  /* out[e] = sum_c q[c] k[index[e]][c], over 16 running sums joined by halves; q and k rows are
   * as they are, any float type for k; ahead = rows between asking for one and reading it, 0 = not asked for */
  void (*dots)(float *out, const float *q, const void *k, int64_t stride, const int32_t *index,
               int64_t n, int64_t dk, attn_dtype dtype, int ahead);
} attn_list_table_;

typedef struct attn_sum_table_ { /* weighted sums of picked rows */
  /* o[c] = o[c] alpha + (sum_e p[e] v[index[e]][c] in the order of e, from 0) */
  void (*axpys)(float *o, const float *p, const void *v, int64_t stride, const int32_t *index,
                int64_t n, int64_t dv, attn_dtype dtype, float alpha, int ahead);
} attn_sum_table_;

typedef struct attn_select_table_ { /* selection */
  /* out[e] = sum_c (q[c] - k[index[e]][c])^2, over 16 running sums joined by halves; q null = 0,
   * index null = 0, 1, .. */
  void (*squares)(float *out, const float *q, const float *k, int64_t stride, const int32_t *index,
                  int64_t n, int64_t dim);
  /* lanes[j] = the lanes where s[j][lane] + key[j] is not below floor[lane] (NaN is not); key null =
   * 0; bits of other groups are 0 */
  void (*above)(uint64_t *lanes, const float *s, const float *key, int64_t n, int g0, int g1,
                const float *floor);
} attn_select_table_;

/* Few rows of x times the columns of w, which lie in memory as rows. */
typedef struct attn_turned_product_ {
  float *y;       /* [rows][cols] */
  const float *x; /* [rows][n] */
  int64_t y_stride, x_stride, rows, n;
  const void *const *w; /* [cols], rows of n elements of type kind */
  int kind, cols, start;
} attn_turned_product_;

typedef struct attn_dense_table_ { /* dense products */
  /* y[r][c] = (start ? 0 : y[r][c]) + sum_k x[r x_stride + k x_step] w[k][c] for c < cols: a chain in
   * the order of k; start = 2: y[r][c] + (the sum from 0). Rows of w are w_stride apart and readable to the end of
   * a vector */
  void (*gemm)(float *y, int64_t y_stride, int64_t rows, const float *x, int64_t x_stride,
               int64_t x_step, const float *w, int64_t w_stride, int64_t n, int64_t cols,
               int start);
  /* y[r][c] = by[c] s[r][c] + (start ? 0 : y[r][c]); rows of s and by have whole vectors */
  void (*join_runs)(float *y, int64_t y_stride, const float *s, int64_t s_stride, const float *by,
                    int64_t rows, int cols, int start);
  /* y[r][c] = (start ? 0 : y[r][c]) + sum_k x[r][k] w[c][k], the same chain */
  void (*gemm_turned)(const attn_turned_product_ *p);
  /* to[k][c] = w[c][k] for c < cols, rows of n elements; rows of `to` have whole vectors, stride apart */
  void (*turn)(float *to, int64_t stride, const void *const *w, int kind, int64_t n, int cols);
  int strip; /* columns of w that gemm holds at once, at least 16 */
  /* y[i] = act(y[i] scale + bias[i]); bias null = 0; act: an attn_activation or
   * ATTN_ACT_SOFTPLUS2_ */
  void (*activate)(float *y, int64_t n, const float *bias, float scale, int act);
  /* y[i] = act(x[i] scale + bias[i]) gate[i]; gate null = 1; y may be x or gate */
  void (*act)(float *y, const float *x, const float *gate, int64_t n, const float *bias,
              float scale, int act);
  /* y[i] = by[0] max(low, min(high, x[i])) + by[1], NaN where x is; y may be x */
  void (*clip)(float *y, const float *x, int64_t n, float low, float high, const float by[2]);
} attn_dense_table_;

/* Few rows of x times a matrix that is read where it lies. Codes have a scale for each column and run of k. */
/* FEW: rows that take them, AHEAD: bytes between asking for a line and reading it; measured. */
enum {
  ATTN_STORED_COLS_ = 8192,
  ATTN_STORED_ROWS_ = 4,
  ATTN_STORED_DEEP_ = 8,
  ATTN_STORED_FEW_ = 8,
  ATTN_STORED_AHEAD_ = 256
};
typedef struct attn_stored_product_ {
  float *y;       /* [rows][cols] */
  const float *x; /* [rows][n] */
  const char *w;  /* step bytes from a row to the next */
  int64_t y_stride, x_stride, step, n, cols, run;
  const float *scale, *zero; /* [runs][cols]; zero null = 0 */
  int64_t scale_stride;      /* from a run to the next */
  int kind, rows, start;
} attn_stored_product_;

typedef struct attn_stored_table_ { /* matrices read as they are stored; none on the scalar tier */
  /* y[r][c] = (start ? 0 : y[r][c]) + sum_k x[r][k] w[k][c], gemm's chain; of codes + sum_g scale[g][c] (sum of
   * run g of x[r][k] (w[k][c] - zero[g][c])). At most 4 rows (1 of f32 and f16), and 4096
   * columns of all; columns in whole 32s, runs and n in whole 8s */
  void (*rows)(const attn_stored_product_ *p);
  /* the same of w[c][k] of bf16 and codes and one row; columns in whole 64s, n in whole 128s */
  void (*words)(const attn_stored_product_ *p);
} attn_stored_table_;

typedef struct attn_norm_table_ { /* moments of rows */
  /* out = sum_c x[c] - shift, sum_c (x[c] - shift)^2, over 16 running sums joined by halves */
  void (*moments)(float *out, const float *x, int64_t n, float shift);
  /* x[c] = ((x[c] - shift) by + plus) gain[c] + bias[c]; gain null = 1, bias null = 0 */
  void (*normalise)(float *x, int64_t n, float shift, float by, float plus, const float *gain,
                    const float *bias);
  /* at most 64 rows; moments over 16 running sums joined by halves. Returns the rows that floats cannot
   * do, a bit each: of these only the sum is made, in y where it is not kept */
  uint64_t (*norm)(const attn_norm_rows_ *a, int rows, const attn_norm *norm);
  /* its halves: mean, by and plus of each of at most 64 rows x, and the rows that floats cannot do; and
   * y = ((x - mean) by + plus) (gain + lift), gain null = 1 */
  uint64_t (*sizes)(float *size, const attn_norm_rows_ *a, int rows, float eps, int rms);
  void (*resize)(const attn_norm_rows_ *a, int rows, const float *size, const float *gain,
                 float lift);
} attn_norm_table_;

typedef struct attn_rope_table_ { /* rotation */
  /* rotates one row: y[c] = x[c] cos[c] + x[pair of c] sin[c] for c < rot, y[c] = x[c] after */
  void (*rope)(void *y, const void *x, attn_dtype ty, attn_dtype tx, int64_t dim, int64_t rot,
               int half, const float *cos_row, const float *sin_row);
} attn_rope_table_;

typedef struct attn_gate_table_ { /* gates */
  /* y[i] = s t + (keep ? 1 - s : 1) x[i], x null = 0: s = 1 / (1 + e^-(a[i] scale - less[i])), less
   * null = 0; t = squash ? tanh v[i] : v[i]. y may be any of them */
  void (*gate)(float *y, const float *a, float scale, const float *less, const float *x,
               const float *v, int64_t n, int squash, int keep);
} attn_gate_table_;

typedef struct attn_factor_table_ { /* numbers that heads have of vectors they share */
  /* y[i] = (add ? y[i] : 0) + x[i] by a[i], rows of lanes 0 .. lanes - 1 of n keys; rows of a are stride
   * apart, lanes that have none stand for 0. top, or null: the larger of it and y */
  void (*factor_block)(float *y, const float *x, const float *a, int64_t stride, int64_t n,
                       int lanes, float by, int add, float *top);
} attn_factor_table_;

typedef struct attn_feature_table_ { /* feature maps */
  /* top[r] = the largest of m numbers of row r, of their magnitudes if both */
  void (*top_rows)(float *top, const float *x, int64_t stride, int64_t n, int64_t m, int both);
  /* y[r][c] = 2^(y[r][c] - shift[r]) scale[r] + add for y <= shift; both: y[r][m + c] with -y */
  void (*power_rows)(float *y, int64_t stride, int64_t n, int64_t m, const float *shift,
                     const float *scale, float add, int both);
  /* y[r][c], y[r][m + c] = sin and cos of y[r][c] in[r], times out[r]; |y in| <= 8192 */
  void (*wave_rows)(float *y, int64_t stride, int64_t n, int64_t m, const float *in,
                    const float *out);
  /* y[i] = elu(x[i] scale) + 1 */
  void (*elu1)(float *y, const float *x, int64_t n, float scale);
} attn_feature_table_;

/* Sums left s + rest, rows of them `stride` apart: steps add to the rest, s is only read. */
typedef struct attn_sums_ {
  const float *s;
  float *rest;
  int64_t stride;
  float left;
} attn_sums_;

typedef struct attn_state_table_ { /* the linear state */
  /* rest[r] = alpha rest[r] + p[r] v, then o = sum_r q[r] (left s[r] + rest[r]) over two running sums, r
   * even and odd; p null: the rest stays; q null: no o. Rows, v and o are whole groups of 16 */
  void (*step)(float *o, const float *q, const attn_sums_ *sums, int64_t m, int64_t cols,
               float alpha, const float *p, const float *v);
  /* z + rest = alpha (z + rest) + p, z rounded, then q . z over 16 running sums joined by halves; p null:
   * z stays; q null: 0 */
  float (*step_z)(const float *q, float *z, float *rest, int64_t m, float alpha, const float *p);
  /* n sums: s + rest = alpha (s + rest) + by x, s rounded; x null: s + rest = alpha s + rest */
  void (*accrue)(float *s, float *rest, const float *x, int64_t n, double alpha, float by);
  /* n rows of cols sums, s and rest `stride` apart: each with its alpha, by 1 */
  void (*accrue_rows)(float *s, float *rest, int64_t stride, const float *x, int64_t x_stride,
                      int64_t n, int64_t cols, const double *alpha, int64_t alpha_step);
} attn_state_table_;

/* Products of n <= 16 tokens whose channels fade: readers x[][t][c], writers y[][m][c], w[m][c] what token m leaves.
 * g[i][j][t][m] = sum_c x_i[t][c] (product of w over m + 1 .. t) y_j[m][c] for m <= t; late[i]: the product over
 * m + 1 .. t - 1, m < t. Others of its 16 columns are 0. Then x_i is what reads a state before the tokens: times the
 * product over 0 .. t, or t - 1. Sums are 16, joined by halves. */
typedef struct attn_fade_ {
  float *x[2], *g[2][2];
  const float *y[2], *w; /* rows y_stride[] apart; x and w dense */
  int64_t y_stride[2], g_stride, dim;
  int late[2], readers, writers, n;
} attn_fade_;

/* One token into S [dk][cols], from `from` (null = 0) to `to`, which may be the same: u = a S (a null: none),
 * v += minus u where there is no b, S = w S + b u + k v, and o = q S; before: q of the old S, and own v. near[r] not 0:
 * w[r] is less by 1 (of a decay near 1); nearly: all are. w null = 1; its numbers are w_step apart, 0 of one for
 * all. Sums over rows are two, of even and of odd ones. */
typedef struct attn_token_ {
  float *to, *o;
  const float *from, *w, *near, *a, *b, *k, *q, *v;
  int64_t to_stride, from_stride, w_step, dk, cols;
  float minus, own;
  int before, nearly;
} attn_token_;

typedef struct attn_recurrent_table_ { /* states with decays */
  void (*fade_products)(const attn_fade_ *p);
  /* g[t][m] times keep over m + 1 .. t, late: over m + 1 .. t - 1; 0 beyond m = t, or t - 1. n <= 64 rows of 64; keep
   * null = 1 */
  void (*fade_square)(float *g, const double *keep, int64_t n, int late);
  /* y[m] = x[m] r, r = r w[m], column by column, m from n - 1 down; y and w dense */
  void (*fade_rows)(float *y, const float *x, int64_t x_stride, const float *w, int64_t n,
                    int64_t dim, float *r);
  /* y[m] = x[m] r[m], element by element; y dense */
  void (*fade_by)(float *y, const float *x, int64_t x_stride, const float *r, int64_t r_stride,
                  int64_t n, int64_t dim);
  /* own[m] = q[m] . (u o k[m]), over 16 sums; rows of q and u dense */
  void (*meets)(float *own, const float *q, const float *k, int64_t k_stride, const float *u,
                int64_t n, int64_t dim);
  /* high + low = sums (logs) or products of n rows, column by column */
  void (*fade_whole)(float *high, float *low, const float *x, int64_t n, int64_t dim, int logs);
  /* whether n rows of numbers, `bytes` apart, lie in lo .. hi: a NaN does not */
  int (*bounded)(const char *x, int64_t bytes, int64_t n, int64_t dim, int kind, float lo,
                 float hi);
  /* w and near of a token from logs (null: none) and factors; reads = w k; 1 when all are near */
  int (*nearly)(float *w, float *near, float *reads, const float *g, const float *rate,
                const float *k, int64_t dim);
  void (*token)(const attn_token_ *p);
} attn_recurrent_table_;

/* n rows of `cols` columns through `dims` states of each, arrays [dims][width], rows of x and y step apart:
 * h = keep h + (fade h + (write x + low)), low = what that sum rounds off, y += read h in the order of dims; without
 * add y begins as by x (null = 0). Whole vectors are read and written: width is a multiple of 16. */
typedef struct attn_ema_ {
  float *y, *h, *low;
  const float *x, *write, *fade, *keep, *read, *by;
  int64_t width, step, n, dims, cols;
  int add;
} attn_ema_;

typedef struct attn_ema_table_ { /* moving averages */
  void (*ema)(const attn_ema_ *p);
} attn_ema_table_;

typedef struct attn_fourier_table_ { /* Fourier transforms */
  /* the first step of `count` transforms of r m rows each: rows j, j + m, .. become their Fourier
   * transform, output k times w[k j n / (r m)], of n roots of unity; r = 1: row j times w[j]. A row has
   * `half` real parts and as many imaginary ones, `lanes` of them in use */
  void (*butterflies)(float *x, int64_t half, int lanes, int64_t count, int64_t m, int r,
                      const float *w, int64_t n);
  /* y[c] = a[c] + b[-c] */
  void (*mirror)(float *y, const float *a, const float *b, int64_t n);
} attn_fourier_table_;

/* Rows `width` apart, whole groups, are added to others: row from[i] of x to row to[i] of sum, null = i, for n of
 * them in order. What a sum has too much lies `rest` floats behind it. */
typedef struct attn_bucket_rows_ {
  float *sum;
  int64_t rest, width, n;
  const float *x;
  const uint16_t *to, *from;
} attn_bucket_rows_;

typedef struct attn_collide_table_ { /* hashes that meet */
  /* s = (1 - acos(s) / pi)^tau, tau 1 .. 16, l += (sum_j s, from 0); -inf becomes 0 */
  void (*angle_block)(float *s, int64_t n, int g0, int g1, int tau, float *l);
  void (*bucket_rows)(const attn_bucket_rows_ *p);
} attn_collide_table_;

#define attn_on_(family, t) attn_##family##_on_((t)->isa)
