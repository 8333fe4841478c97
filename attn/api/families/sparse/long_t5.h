/* api/families/sparse/long_t5.h owns LongT5's transient global attention: a window, and rows that are sums of blocks
 * of tokens, under one softmax. What sparse.h says of all its calls holds here too. */

typedef struct attn_global_rows_params {
  int64_t block;      /* tokens of a row; 0 = 16 */
  const int32_t *len; /* [B], 0 .. x.len: tokens that exist; null = x.len */
  const float *gain;  /* [x.dim]; null = 1 */
  float eps;          /* 0 = 1e-6; ATTN_ZERO = 0 */
} attn_global_rows_params;

/* The global rows of blocks of tokens, sums with an RMS norm (T5's: no mean is subtracted, no bias):
 *
 *   z_g = sum of x_i over the tokens i < n of block g,   block of i = min(i / block, G_b - 1)
 *   y_g = gain z_g / sqrt(mean over columns of z_g^2 + eps),   G_b = n / block (integers)
 *
 * n is len[b] or x.len. Tokens behind the last whole block join it, and where there is none there are no rows.
 * Shapes: y [B,H,G,d], x [B,H,T,d], G = T / block; rows from G_b on are 0. Each head has a norm of its own; x and
 *   gain of a model's width are H = 1. Projected by the matrices that make k and v of tokens, rows are side_k and
 *   side_v of attn_long_t5.
 * Aliasing: y shares memory with nothing. Memory: attn_global_rows_workspace bytes, 12 d and padding a worker.
 * NaN: in the rows that read it; tokens from len[b] on are not read. Errors: as attn_sdpa; RANGE (block, len), VALUE
 *   (eps, gain that is not finite). Determinism: sums and norm in double in the order of tokens, rounded once; the same
 *   bits on every tier for any number of workers. Cost: one pass over x.
 * Source: Guo et al. 2021, arXiv 2112.07916; which block takes the last tokens: the encoder's published code. */
ATTN_DEF attn_status attn_global_rows(attn_tensor y, attn_tensor x,
                                      const attn_global_rows_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_global_rows_workspace(attn_tensor y, attn_tensor x,
                                           const attn_global_rows_params *params,
                                           const attn_ctx *ctx);

typedef struct attn_long_t5_params {
  float scale;             /* 0 = 1, as T5; ATTN_ZERO = 0 */
  int64_t radius;          /* tokens seen to each side; 0 = 127 */
  int has_radius;          /* 1: radius holds, 0 included: itself only */
  int64_t block;           /* tokens of a global row; 0 = 16 */
  const float *table;      /* [buckets, H] bias by the bucket of j - i; null = 0 */
  const float *side_table; /* [buckets, H] bias by the bucket of g - block of i; null = 0 */
  int64_t buckets;         /* 0 = 32 */
  int64_t max_distance;    /* 0 = 128 */
  const int32_t *len;      /* [B], 0 .. T: tokens that exist; null = T */
  attn_tensor lse;         /* out, optional: [B,H,T,1] */
} attn_long_t5_params;

/* Transient global attention (LongT5, TGlobal): a token sees its neighbours and every global row of its sequence, in
 * one softmax:
 *
 *   x_ij = s q_i . k_j + table[bucket(j - i), h]                          |i - j| <= radius, i, j < n
 *   x_ig = s q_i . side_k_g + side_table[bucket(g - block of i), h]       g < G_b
 *   O_i  = sum of softmax weights times v_j and side_v_g
 *
 * n, G_b and the block of a token are those of attn_global_rows; bucket is attn_t5_bucket in both directions. A window
 * of released code's blocks of b tokens is radius b - 1.
 * Shapes: o, q [B,H,T,.], k, v [B,Hk,T,.], side_k, side_v [B,Hk,G,.], G = T / block, heads of each a divisor of H. Rows
 *   from len[b] on are empty; keys and global rows beyond are not read.
 * Local attention alone is attn_sdpa with window = attn_window_of(radius, radius), scale = 1 and t5 = {table, 0, 0, 1}.
 * Memory: attn_long_t5_workspace bytes; attn_sdpa's, 4 (dv + 2) a row of o, the row in f32 if o is not, 8 T a head for
 *   table, 8 G for side_table.
 * Precision: each part as attn_sdpa's; they are joined by their LSE as floats, which costs 6e-8 |LSE| of a weight.
 * Errors: as attn_sdpa; SHAPE (side_k.len), RANGE (radius, block, buckets, max_distance, len), VALUE (a table that
 *   is not finite). Determinism: as attn_sdpa for calls of all rows of a sequence.
 * Cost: T (2 radius + 1 + G) pairs a head. Source: Guo et al. 2021, arXiv 2112.07916. */
ATTN_DEF attn_status attn_long_t5(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                  attn_tensor side_k, attn_tensor side_v,
                                  const attn_long_t5_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_long_t5_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                       attn_tensor side_k, attn_tensor side_v,
                                       const attn_long_t5_params *params, const attn_ctx *ctx);
