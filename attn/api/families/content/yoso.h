/* api/families/content/yoso.h owns attention by the chance that hashes meet (YOSO): its expectation, and samples of
 * it. */

/* {0} is the expectation of 9 planes, rows of any length, outputs of length 1.
 * attention: the allowed set of attn_sdpa (causal, has_q_off, q_off, window, keep, kv_len, q_len, mask, mask_new,
 *   schedule), one_order and, with unit, k_scales and v_scales; all else must be absent. attn_yoso_sample has of it
 *   causal, has_q_off, q_off, kv_len and q_len. */
typedef struct attn_yoso_params {
  int64_t code_len; /* tau, planes of a hash: 1 .. 16; 0 = 9 */
  int unit;         /* 1: rows of q and k have length 1 as they are (attn_yoso) */
  int raw;          /* 1: O is the sum itself, else it is divided by its length */
  attn_sdpa_params attention;
  /* attn_yoso_sample */
  int64_t draws; /* m, 1 .. 2^20; 0 = 64 */
  attn_tensor
      planes; /* f32 [1 or H, draws, dk, tau], column t is the normal of plane t; data null: drawn from seed */
  uint64_t seed;
} attn_yoso_params;

/* Attention whose weight is the chance that query and key lie on the same side of tau random planes.
 *
 *   c_ij = q_i . k_j / (|q_i| |k_j|), cut to -1 .. 1      lengths below 1e-12 count as that
 *   w_ij = (1 - acos(c_ij) / pi)^tau,   S_i = sum over the allowed keys j of w_ij v_j
 *   O_i  = S_i / max(|S_i|, 1e-12), or S_i with raw
 *
 * Weights are not divided by their sum: with raw, what stands for a softmax's average grows with the keys.
 * Shapes: q [B,H,Tq,dk], k [B,Hk,Tk,dk], v [B,Hv,Tk,dv], o [B,H,Tq,dv]; Hk and Hv divide H; storage types are
 *   independent, strides any. Rows of 8 and 4 bits: k with unit, v always.
 * Aliasing: as attn_sdpa. Memory: attn_yoso_workspace bytes, that of attn_sdpa in the order of many queries; without
 *   unit rows of length 1 as well, 4 dk a row of q and k. Decoding should keep unit keys in its cache and say unit.
 * Empty: a row without keys is 0. NaN: as attn_sdpa; a forbidden pair has weight 0 whatever is stored there.
 * Precision: 1 - acos / pi of a float c is wrong by 2e-7 of itself, and tau times as much w. c is a float, of a
 *   chain over dk: what it loses, e, is sqrt(2 e) / pi of the angle where c is near 1 (1.6e-4 for e = 1.2e-7) and e
 *   / pi near 0.
 * Errors: those of attn_sdpa; RANGE (code_len, fields of attention that must be absent), DTYPE (rows of 8 and 4 bits);
 *   outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers and batch composition. No bit of a
 *   causal row depends on a later token. Cost: 2 (dk + dv) flops a pair; a square root and some ten operations in
 *   place of the softmax's.
 * The authors' layer adds a convolution of v along the sequence to O: attn_convolve_depthwise is one. It hashes with the
 *   lengths taken off q and k, and its masked keys are kv_len or mask here.
 * Source: Zeng et al. 2021, arXiv 2111.09714, sections 3 and 4. */
ATTN_DEF attn_status attn_yoso(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                               const attn_yoso_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_yoso_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                    const attn_yoso_params *params, const attn_ctx *ctx);

/* The same by sampling: the work of a key does not grow with the number of queries.
 *
 *   code_r(x) = sum_t 2^t [x . plane_rt > 0],  t < tau                    of the planes of draw r and the row's head
 *   B_r[n]    = sum of v_j over the keys j that row i sees with code_r(k_j) = n
 *   S_i       = (1 / m) sum_r B_r[code_r(q_i)],   O_i as above
 *
 * S is a mean of m independent estimates of the expectation, without bias for normal planes; its standard error falls
 * as 1 / sqrt(m). Planes that are drawn have in row c, column t of (h, r) the number attn_random_normal(seed,
 * ATTN_STREAM(r, h, 2), c tau + t), as float; all batch entries share them. Lengths of q and k change nothing, so
 * unit is not looked at.
 * Shapes: as attn_yoso, all f32, f16 or bf16. Memory: attn_yoso_sample_workspace bytes: 2 m a row of q and of a
 *   query head's keys, 4 tau dk m a head (one head where planes has one), a worker 256 2^tau + 128 Tk + 256 Tq; 4 dv
 *   a row more when o is not f32.
 * Causal: keys join their buckets as rows come by, at the same cost.
 * Empty: a row without keys is 0. NaN: in a row of q or k its products count as not above 0, so that its code is
 *   some code; in v, infinite values too, it reaches the rows that read its bucket in some draw after it. Keys that
 *   a row may not see never do.
 * Precision: buckets and means are compensated sums: a few ulp of mean_r sum_j |v_j| whatever Tk and m. A product
 *   within its own rounding of 0 may fall on either side.
 * Errors: NULL, DTYPE, SHAPE, HEADS, STRIDE, RANGE (code_len, draws, lengths, fields of attention that must be
 *   absent), OVERLAP, OVERFLOW, ALIGN, WORKSPACE, MEMORY, those of ctx; outputs untouched. B = 0, H = 0, Tq = 0 do
 *   nothing.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers; the same planes on every tier. No
 *   bit of a causal row depends on a later token.
 * Cost: m tau dk flops twice a row of q and of a query head's keys, 4 m dv each for the sums, whatever Tq times Tk.
 *   pairs of the report: 0.
 * Source: as above; the authors' program has 32 draws of 9 planes by default, and others made by Hadamard products. */
ATTN_DEF attn_status attn_yoso_sample(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                      const attn_yoso_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_yoso_sample_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                           attn_tensor v, const attn_yoso_params *params,
                                           const attn_ctx *ctx);
