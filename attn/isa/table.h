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

/* What pack reads: an attn_dtype, plus BIAS for numbers that must stay finite, or bytes that stand
 * for 0 and -inf. */
#define ATTN_KIND_BIAS_ 16
#define ATTN_KIND_BOOL_ 32

#define ATTN_LOG2E_ 1.4426950408889634074
#define ATTN_LN2_ 0.69314718055994530942

/* What is done to a score, in this order whatever the mechanism:
 *   E0  transforms of q, k, v rows     attn_rope, before the call
 *   E1  dot product                    score_block
 *   E2  dot with a table by distance   here, none yet
 *   E3  scale                          folded into the packed queries
 *   E4  multiplicative                 softcap; a rectifier and a factor by distance, none yet
 *   E5  additive                       a table by distance, none yet; b slope; c quadratic, none
 *                                      yet; d bias; e key; f log multiplier, none yet
 *   E6  maps                           the driver emits the scores
 *   E7  allowed set                    allow, lo and hi; -inf in bias and key
 *   E8  softmax                        softmax_block
 *   E9  value sum                      value_block
 *   E10 outputs                        the driver
 * A null or zero field is an absent stage. Arrays over keys start at the same key as the scores. */
typedef struct attn_modifiers_ {
  float softcap;      /* E4: cap, in log2 units */
  const float *slope; /* E5b: [lane], -m_h in log2 units */
  const float *rel;   /* E5b: [lane], first key of the block minus the query's position */
  const float *bias;  /* E5d: [key][lane], log2 units, -inf forbids */
  const float *key;   /* E5e: [key], log2 units, -inf forbids */
  const float *allow; /* E7: [key][lane], 0 or -inf */
  const float *lo;    /* E7: [lane], keys lo <= j < hi of the block are allowed */
  const float *hi;
} attn_modifiers_;

/* Which modifiers are present. */
enum {
  ATTN_USE_CAP_ = 1,
  ATTN_USE_SLOPE_ = 2,
  ATTN_USE_BIAS_ = 4,
  ATTN_USE_KEY_ = 8,
  ATTN_USE_ALLOW_ = 16,
  ATTN_USE_BOUND_ = 32
};

typedef struct attn_table_ {
  attn_isa isa;
  /* dst[c][lane] = row[lane][c] * (hi + lo), lanes n.. up to a whole group = 0 */
  void (*pack)(float *dst, const void *const *rows, int n, int64_t dim, int kind, float hi,
               float lo);
  /* row[lane][c] = src[c][lane] * scale[lane] (null = 1); a NaN is stored as the one default NaN */
  void (*unpack)(void *const *rows, const float *src, int n, int64_t dim, attn_dtype dtype,
                 const float *scale);
  /* dst[r][c] = src row r, any type to f32 */
  void (*widen)(float *dst, const void *src, int64_t stride, int64_t n, int64_t dim,
                attn_dtype dtype);
  /* s[j][lane] = sum_c k[j][c] qt[c][lane] in the order of c; top[lane] = max(top, s) */
  void (*score_block)(float *s, const float *qt, const float *k, int64_t stride, int64_t n,
                      int64_t dk, int g0, int g1, float *top);
  /* applies the modifiers to n keys of s, the first of which is number key of its block, and sets
   * top[lane] = max(top, s) */
  void (*modify_block)(float *s, int64_t key, int64_t n, int g0, int g1, const attn_modifiers_ *mod,
                       float *top);
  /* joins the scores to the running softmax: m' = max(m, top), alpha = 2^(m - m'),
   * s = 2^(s - m'), l = l alpha + sum_j s */
  void (*softmax_block)(float *s, int64_t n, int g0, int g1, float *m, float *l, float *alpha,
                        const float *top);
  /* ot[c][lane] = ot[c][lane] alpha[lane] + sum_j v[j][c] p[j][lane] in the order of j. alpha
   * null = 1; start = ot is taken as 0 */
  void (*value_block)(float *ot, const float *p, const float *v, int64_t stride, int64_t n,
                      int64_t dv, int g0, int g1, const float *alpha, int start);
  /* x[r][lane] *= alpha[lane] */
  void (*scale_block)(float *x, int64_t n, int g0, int g1, const float *alpha);
  /* 1 when every number of n rows is finite */
  int (*finite)(const float *x, int64_t stride, int64_t n, int64_t dim);
  /* joins one logit without a value to the softmax: scale[lane] *= what the old part keeps */
  void (*join)(float *m, float *l, float *scale, const float *logit);
  /* x[lane] = x / y, 0 where y = 0 */
  void (*divide)(float *x, const float *y);
  /* p[j] = 2^(x[j] - m) * scale */
  void (*weights)(float *p, const float *x, int64_t n, float m, float scale);
  /* y[i] = exp(x[i]) */
  void (*exp)(float *y, const float *x, int64_t n);
  /* y = a x1 + b x2, a row; a part may be null */
  void (*blend)(void *y, const void *x1, const void *x2, attn_dtype ty, attn_dtype t1,
                attn_dtype t2, int64_t n, float a, float b);
  /* rotates one row: y[c] = x[c] cos[c] + x[pair of c] sin[c] for c < rot, y[c] = x[c] after */
  void (*rope)(void *y, const void *x, attn_dtype ty, attn_dtype tx, int64_t dim, int64_t rot,
               int half, const float *cos_row, const float *sin_row);
} attn_table_;
