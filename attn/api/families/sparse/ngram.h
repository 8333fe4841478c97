/* api/families/sparse/ngram.h owns ProphetNet's n-gram attention: streams that predict tokens further ahead, each over
 * the keys of the main stream and its own row's key. What sparse.h says of all its calls holds here too. */

typedef struct attn_ngram_params {
  float scale;  /* 0 = 1/sqrt(q.dim); ATTN_ZERO = 0 */
  int together; /* 1: no stream lags behind the first, lag = 0 */
  attn_tensor
      relative; /* [B n,H,T,buckets] f32: what each bucket adds to a row's scores; absent = 0 */
  int64_t max_distance; /* of the buckets; 0 = 128 */
  const int32_t *len;   /* [B], 0 .. S: tokens that exist; null = S */
  attn_tensor lse;      /* out, optional: [B n,H,T,1] */
} attn_ngram_params;

/* N-gram (multi-stream) attention: row i of stream g sees keys of the main stream and one of its own, in one softmax:
 *
 *   x_ij = s q_i . k_j + relative_i[bucket(p_i + 1 - j)]      j <= max(p_i - lag, 0),   lag = g
 *   y_i  = s q_i . own_k_i + relative_i[0]                    p_i = i + S - T < len[b]
 *   O_i  = sum of softmax weights times v_j and own_v_i
 *
 * bucket(t) is attn_t5_bucket(-t, 0, buckets, max_distance), the first half of the buckets for one distance each.
 * relative is q's input times a matrix (attn_gemm), not multiplied by s; it and its distances are alike in all streams.
 * Without own_k and own_v there is no y_i and the bucket is that of p_i - j: with n = 1 the main stream itself.
 * Lag: as the code that published weights run on has it where whole sequences are computed: row i of all streams is
 *   about one token, and stream g does not see the g keys before it; key 0 it always does. together = 1 is the paper's
 *   rule, j <= p_i for all, where stream g at i is about g tokens further ahead, and what that code does where it
 *   decodes with a cache. Which one a row of stream 0 has is the same.
 * Shapes: o, q [B n,H,T,.], own_k, own_v [B n,Hk,T,.], k, v [B,Hk,S,.], heads of each a divisor of H, T <= S.
 *   Streams of a sequence follow one another: stream g of sequence b is entry b n + g, n = q.batch / k.batch. With T
 *   < S queries are the last of S tokens: a cache. Rows with p_i >= len[b] are empty; keys that no row sees reach
 *   nothing.
 * Memory: attn_ngram_workspace bytes; 8 a row of o, the row in f32 if o is not, 4 a distance below max_distance, 4 B.
 * Precision: as attn_sdpa's; own keys join by the LSE as floats, which costs 6e-8 |LSE| of a weight.
 * Errors: as attn_sdpa; NULL (own_k without own_v or the reverse), SHAPE (q.batch, k.len), RANGE (buckets,
 *   max_distance, len). NaN: in the rows that read it; numbers of relative that belong to no key of the row are not
 *   read by it.
 * Determinism: as attn_sdpa, the rows of a call alike. Cost: the pairs of n causal attn_sdpa, and a merge of rows.
 * Source: Qi et al. 2020, arXiv 2001.04063; lag and distances: the decoder's published code. */
ATTN_DEF attn_status attn_ngram(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                attn_tensor own_k, attn_tensor own_v,
                                const attn_ngram_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_ngram_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     attn_tensor own_k, attn_tensor own_v,
                                     const attn_ngram_params *params, const attn_ctx *ctx);
