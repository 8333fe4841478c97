/* --- dense products ------------------------------------------------------------------------------
 * What layers around attention are made of. */

/* y = f(x), element by element. 0 is what a call's paper has, which the call says: NONE where nothing is
 * said. Errors are of the vector tiers, beside those of x. */
typedef enum attn_activation {
  ATTN_ACT_DEFAULT = 0,
  ATTN_ACT_RELU,  /* max(x, 0) */
  ATTN_ACT_RELU2, /* max(x, 0)^2 */
  ATTN_ACT_GELU, /* x Phi(x) = x erfc(-x / sqrt 2) / 2; Hendrycks and Gimpel 2016, arXiv 1606.08415 */
  ATTN_ACT_GELU_TANH, /* x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, same source */
  ATTN_ACT_SILU,      /* x sigmoid(x) */
  ATTN_ACT_SIGMOID,   /* 1 / (1 + e^-x) */
  ATTN_ACT_TANH,
  ATTN_ACT_EXP,
  ATTN_ACT_ELU1, /* elu(x) + 1: x + 1 where x > 0, else e^x */
  ATTN_ACT_NONE, /* x */
  ATTN_ACT_COUNT
} attn_activation;

typedef struct attn_gemm_params {
  int w_transposed; /* w is [n, k], as linear layers store it: y = x w^T */
  float scale;      /* 0 = 1, ATTN_ZERO = 0 */
  attn_tensor bias; /* [1 or B, 1 or H, 1, n], any float type; absent = 0 */
  attn_activation activation;
  attn_compute compute; /* of the product: ATTN_COMPUTE_F32 or BF16 */
  int compute_prefer;   /* 1: ATTN_COMPUTE_F32 where the processor has no instructions for it */
} attn_gemm_params;

#if ATTN_HAS_DENSE
/* Dense product of rows: y = act(scale x w + bias).
 *
 *   y[b,h,i,j] = act(scale sum_c x[b,h,i,c] w[b,h,c,j] + bias[b,h,j])
 *
 * y [B, H, m, n], x [1 or B, 1 or H, m, k], w [1 or B, 1 or H, k, n] (w_transposed: [.., n, k]), each
 * f32, f16 or bf16 and of any strides: a projection with one w for all heads, a product a head, Q K^T.
 *
 * Aliasing: y shares no memory with x, w and bias; these may overlap.
 * Memory: attn_gemm_workspace bytes: w as f32 in panels, 4 k n' bytes for each of its matrices, n'
 *   being n in whole 64s; nothing like it for less than 192 rows when w is f32 or transposed, which reads w
 *   in place (of a transposed w all rows that share a matrix count). f16 and bf16 x or y add up to 300 KB a worker.
 * Errors: ATTN_E_NULL, _DTYPE, _SHAPE, _STRIDE, _OVERLAP, _OVERFLOW, _VALUE (scale NaN or infinite), _RANGE
 *   (activation), _WORKSPACE, _MEMORY, and those of ctx.
 * Compute: params.compute = ATTN_COMPUTE_BF16 rounds x and w to bf16 (nothing is lost where they are bf16) and
 *   sums products of pairs in f32, 256 elements of k at a time; scale, bias and activation are f32. Error:
 *   2^-7 sum_c |scale x w| where x or w had to be rounded, else as below. w lies in panels then, 2 k n' bytes
 *   a matrix, and a worker takes up to 350 KB. What runs, is refused or preferred: as for attn_sdpa. On one machine
 *   the same bits for any workers and any cut of rows and columns.
 * Empty: m = 0, B = 0 or H = 0 does nothing; k and n are at least 1.
 * NaN and infinity: as IEEE arithmetic has it; a NaN is stored as the one default NaN.
 * Determinism: each sum is one chain of fused multiply-adds in the order of c. The same bits on avx2,
 *   avx512 and neon, for any number of workers, and for any cut of the rows or columns.
 * Error: (k + 1) 2^-24 sum_c |scale x w|, beside the roundings of bias and output, and of the
 *   activation 1.2e-6 |y|; 1e-5 |y| for ATTN_ACT_GELU on the scalar tier, and where ATTN_ACT_SILU and
 *   ATTN_ACT_GELU_TANH vanish. 32-bit ARM takes subnormal factors for 0.
 * Cost: 2 B H m n k flops. */
ATTN_DEF attn_status attn_gemm(attn_tensor y, attn_tensor x, attn_tensor w,
                               const attn_gemm_params *params, attn_ctx *ctx);

/* Bytes of workspace that attn_gemm wants, or ATTN_WORKSPACE_REJECTED. */
ATTN_DEF size_t attn_gemm_workspace(attn_tensor y, attn_tensor x, attn_tensor w,
                                    const attn_gemm_params *params, const attn_ctx *ctx);
#endif
