/* api/families/lowrank/lowrank.h owns low-rank attention (family G, but G4, which is attn_linear): a map of small key
 * width beside a band, and maps through landmarks. */

typedef struct attn_low_rank_band_params {
  int64_t half_width;            /* w: the band has the keys with |j - p_i| <= w; 0..2^40 */
  int concat;                    /* 1: the two results side by side; 0: their sum */
  float weight_low, weight_band; /* of the sum; 0 = 1, ATTN_ZERO = 0 */
  const float *weights_low, *weights_band; /* [H], in place of the above */
  float scale_low, scale_band;             /* 0 = 1/sqrt(r), 1/sqrt(dk); ATTN_ZERO = 0 */
  const float *band_bias;                  /* [bias_heads, bias_len], by (j - p_i) + w; or null */
  int64_t bias_len, bias_heads;            /* 2w + 1; 0 or 1: shared, H: one row each */
  int causal, has_q_off;                   /* as in attn_sdpa_params, of both maps */
  int64_t q_off;                           /* p_i = i + q_off */
  const int32_t *kv_len, *q_len;           /* [B], optional */
  attn_tensor v_band;                      /* values of the band; absent = v */
} attn_low_rank_band_params;

/* Two attention maps of the same tokens: one over all keys with key width r, for what is far, and one
 * over a band of neighbours, for what is near. Each is a softmax of its own.
 *
 *   A_low  = softmax over the keys that i sees of scale_low q_low_i . k_low_j
 *   A_band = softmax over those with |j - p_i| <= w of scale_band q_band_i . k_band_j + band_bias
 *   o = weight_low A_low v + weight_band A_band v_band,  or with concat  o = [A_low v, A_band v_band]
 *
 * Shapes: q_low [B,H,Tq,r], k_low [B,.,Tk,r], q_band [B,H,Tq,dk], k_band [B,.,Tk,dk], v [B,.,Tk,dv],
 *   v_band likewise, with concat of any width; the heads of each divide H. o [B,H,Tq,dv], with concat
 *   dv + v_band.dim columns. r may exceed dk. Storage types are independent.
 * Weights of 1 make rows that sum to 2; 1/2 and 1/2 give an average. They are of the sum: with concat
 *   they must be absent. A weight of 0 drops its part with whatever NaN is in it.
 * Aliasing: inputs may share memory with each other; o with nothing.
 * Memory: attn_low_rank_band_workspace bytes: those of attn_sdpa; for a sum also 4 B H Tq dv, and as
 *   much again if o is not f32.
 * Empty: B = 0 or Tq = 0 is a no-op; a row that sees no key, or none in its band, has zeros there.
 * NaN: as attn_sdpa, in each part.
 * Errors: those of attn_sdpa; RANGE: half_width, q_off, lengths, weights with concat; SHAPE: bias_len;
 *   VALUE: a weight, scale or bias is not finite; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, any number of workers.
 * Cost: 2 Tq Tk (r + dv) + 2 Tq (2w + 1) (dk + dv) flops a head.
 * Source: Guo et al. 2019, doi 10.1109/TASLP.2019.2944078. */
ATTN_DEF attn_status attn_low_rank_band(attn_tensor o, attn_tensor q_low, attn_tensor k_low,
                                        attn_tensor q_band, attn_tensor k_band, attn_tensor v,
                                        const attn_low_rank_band_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_low_rank_band_workspace(attn_tensor o, attn_tensor q_low, attn_tensor k_low,
                                             attn_tensor q_band, attn_tensor k_band, attn_tensor v,
                                             const attn_low_rank_band_params *params,
                                             const attn_ctx *ctx);

/* What the two calls through landmarks share. A batch entry has n_q = q_len[b] queries and n_k =
 * kv_len[b] keys, else all of them, and gives what the same call on tensors cut to them gives; rows of o
 * beyond are 0. Its landmarks are the means of m' = min(m, n_q, n_k) segments of the queries and of the
 * keys: segment a of n rows is floor(a n / m') .. floor((a + 1) n / m') - 1, so that any n will do.
 *
 *   F = softmax(s Q Kt^T) [n_q, m'],  A = softmax(s Qt Kt^T) [m', m'],  B = softmax(s Qt K^T) [m', n_k]
 *
 * Shapes: q, o [B,H,Tq,.], k [B,Hk,Tk,dk], v [B,Hv,Tk,dv]; Hk and Hv divide H. No causal form: every
 *   landmark has seen all of the sequence.
 * Aliasing: inputs may share memory with each other; o with nothing.
 * Memory: attn_<name>_workspace bytes; the query reads q_len and kv_len. 4 B H m (m + dk + 2 dv) + 4 B Hk
 *   m dk beside what attn_sdpa wants: nothing that grows with T. F and B are never there as a whole.
 * Empty: B = 0 or Tq = 0 is a no-op; n_q = 0 or n_k = 0 gives zeros.
 * NaN: in v spoils a column of the heads that read it. In a row of q or k all rows of the heads that read
 *   it; attn_csalr cannot solve for such a head and fails as a whole, NUMERIC. Other heads and entries of
 *   attn_nystrom are safe, with either in v.
 * Determinism: the same bits on avx2, avx512 and neon, any number of workers, whatever else the batch has. */

typedef struct attn_nystrom_params {
  int64_t landmarks;  /* m; 0 = 64 */
  int64_t iterations; /* of attn_pinv; 0 = 6; beyond 10 see Accuracy */
  int has_iterations; /* 1: iterations holds, 0 included */
  int always;         /* 0: entries with n_q, n_k <= m take exact attention; 1: no such shortcut */
  float scale;        /* s; 0 = 1/sqrt(dk), ATTN_ZERO = 0 */
  int by_batch;       /* 1: attn_pinv starts from the largest sums of all matrices of the call (the
                       * published code), 0: of each matrix */
  attn_tensor conv; /* [1, 1 or H, kernel, 1], odd kernel; absent = none. The paper's has 33 rows */
  const int32_t *kv_len, *q_len; /* [B], optional */
  const uint8_t
      *valid; /* [B,T] or null, Tq = Tk = T: tokens with 0 do not exist, as keys or as queries */
} attn_nystrom_params;

/* Nystromformer: softmax attention through landmarks,
 *
 *   o = F (Z (B v)),  Z = attn_pinv(A, iterations),  with conv  o_t += sum_r conv[r] v_(t + r - floor(kernel / 2))
 *
 * where rows of v outside 0 .. n_k - 1 are zeros; conv wants n_q = n_k.
 * valid: segments are cut as without it; their means are over the tokens that exist, and a segment of none
 *   is no landmark (its rows and columns of F, A and B are 0). Other tokens are in no softmax, are zeros
 *   to conv, and have zeros in o. No number of theirs is used.
 * Memory: with conv and an o that is not f32 also 4 B H Tq dv; with valid B m (m + 1), with conv beside it 4
 *   B Hv T dv.
 * Errors: those of attn_sdpa; RANGE: landmarks, iterations, lengths; SHAPE: conv, valid with Tq != Tk;
 *   outputs untouched.
 * Accuracy, against float64 at T = 1024, m = d = 64, each of its largest number: means 3e-7, A and B v
 *   1e-6 (2e-6 with scores of 100), Z 1e-5, o 1e-6 (6e-6). The iteration is f32: it stops before it has
 *   inverted small singular values of A, so that they magnify little. More iterations magnify more: take
 *   10 at most. With T = 1024, d = 8, m = 64, whose A is nearly singular, 24 are off by 0.54 of max |o|.
 *   How far the method itself is from exact attention is another matter: docs/approximations.md.
 * Cost: 2 (n_q + n_k) m (dk + dv) flops, 8 iterations m^3 and 2 n kernel dv a head.
 * Source: Xiong et al. 2021, arXiv 2102.03902; norms are of each matrix unless by_batch is set, as in its
 *   code: an output then depends, within the accuracy of the iteration, on what else the batch has, and NaN
 *   in one head's map spoils all. Segments adapt in place of padding. valid as in the program nystrom-attention
 *   by Phil Wang; the published code divides by the whole segment. */
ATTN_DEF attn_status attn_nystrom(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                  const attn_nystrom_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_nystrom_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                       const attn_nystrom_params *params, const attn_ctx *ctx);

typedef struct attn_csalr_params {
  int64_t landmarks;             /* m; 0 = 64 */
  float lambda;                  /* >= 0; 0 = 1, ATTN_ZERO = 0 */
  int renormalize;               /* 1: times 1 + lambda, so that rows sum to 1 */
  float scale;                   /* s; 0 = 1/sqrt(dk), ATTN_ZERO = 0 */
  const int32_t *kv_len, *q_len; /* [B], optional */
} attn_csalr_params;

/* Compressed self-attention with low-rank approximation: o = F (A + lambda I)^-1 (B v). Rows of the map
 * sum to 1 / (1 + lambda), 1/2 by default, unless renormalize is set.
 * Errors: those of attn_sdpa; RANGE: landmarks, lengths; VALUE: lambda; NUMERIC: A + lambda I is singular
 *   (attn_solve: a saturated A with eigenvalue -lambda, A not finite); outputs untouched.
 * Accuracy: A and B v as attn_nystrom, times the condition of A + lambda I; the elimination is in double.
 * Cost: 2 (n_q + n_k) m (dk + dv) flops and 2/3 m^3 + 2 m^2 dv in double a head.
 * Source: Chen et al. 2020, Compressed Self-Attention for Deep Metric Learning with Low-Rank
 *   Approximation, IJCAI. */
ATTN_DEF attn_status attn_csalr(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                const attn_csalr_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_csalr_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const attn_csalr_params *params, const attn_ctx *ctx);
