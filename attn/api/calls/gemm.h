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

/* What an activation f, and the gate beside it, are cut and moved by: f(slope min(x, limit)) / slope, times (max(-limit,
 * min(gate, limit)) + gate_add) where there is a gate. {0}: f(x), times the gate. Models: gpt-oss has SILU with {1.702,
 * 7, 1}; x sigmoid(1.702 x), the "quick GELU" of CLIP, is SILU with {1.702}. */
typedef struct attn_act_form {
  float slope;    /* > 0; 0 = 1 */
  float limit;    /* > 0; 0 = none */
  float gate_add; /* finite; needs a gate */
} attn_act_form;

typedef struct attn_gemm_params {
  int w_transposed; /* w is [n, k], as linear layers store it: y = x w^T */
  float scale;      /* 0 = 1, ATTN_ZERO = 0 */
  attn_tensor bias; /* [1 or B, 1 or H, 1, n], any float type; absent = 0 */
  attn_activation activation;
  attn_compute compute; /* of the product: ATTN_COMPUTE_F32, BF16, F16 or, of w of codes, I8 */
  int compute_prefer;   /* 1: ATTN_COMPUTE_F32 where the processor has no instructions for it */
  attn_scales w_scales; /* of w of ATTN_I8 or ATTN_I4, see below; else all 0 */
  attn_act_form form;   /* of the activation; without gate_add */
  float
      softcap; /* c > 0: c tanh(z / c) in place of z = scale x w + bias, before the activation; 0 = off */
} attn_gemm_params;

#if ATTN_HAS_DENSE
/* Dense product of rows: y = act(cap(scale x w + bias)), cap as params.softcap has it: logits of Gemma 2 are made so.
 *
 *   y[b,h,i,j] = act(scale sum_c x[b,h,i,c] w[b,h,c,j] + bias[b,h,j])
 *
 * y [B, H, m, n], x [1 or B, 1 or H, m, k], w [1 or B, 1 or H, k, n] (w_transposed: [.., n, k]), each
 * f32, f16 or bf16 and of any strides: a projection with one w for all heads, a product a head, Q K^T.
 * w may also be of ATTN_I8 or ATTN_I4: code q of row c and column j stands for (q - zero) scale, with numbers that
 *   column j and group g of rows of k share; g = c / group, group = w_scales.group, a multiple of 32, or 0: k rows.
 *   The last group may be short. They are scale[g stride_len + j] (and zero[..]: null = 0), of w_transposed
 *   scale[j stride_len + g], ceil(k / group) numbers a row as attn_quantize writes them; stride_batch and
 *   stride_head lead to those of w's batch and head. Codes lie as attn_dtype says: of w [k, n] two 4-bit columns j,
 *   j + 1 share a byte, of w_transposed two elements c, c + 1 of a row do, as in files of models whose groups run
 *   along k (theirs may be unsigned: subtract 8 from code and zero). Scales and zeros are any floats and are not
 *   looked at: one that is NaN reaches its column.
 *
 * Aliasing: y shares no memory with x, w and bias; these may overlap.
 * Memory: attn_gemm_workspace bytes: w as f32 in panels, 4 k n' bytes for each of its matrices, n'
 *   being n in whole 64s; nothing like it for less than 192 rows when w is f32 or transposed, which reads w
 *   in place (of a transposed w all rows that share a matrix count), and for at most 8 rows when w is f16 or bf16, but
 *   for its last n % 32 columns; nothing for codes, but with ATTN_COMPUTE_I8. f16 and bf16 x or y add up to 300 KB a
 *   worker. Up to 90 KB of a thread's stack.
 * Errors: ATTN_E_NULL, _DTYPE, _SHAPE, _STRIDE, _OVERLAP, _OVERFLOW, _ALIGN, _VALUE (scale NaN or infinite; softcap,
 *   form), _RANGE (activation; form.gate_add), _WORKSPACE, _MEMORY, and those of ctx.
 * Compute: params.compute = ATTN_COMPUTE_BF16 rounds x and w to bf16 (nothing is lost where they are bf16) and
 *   sums products of pairs in f32, 256 elements of k at a time; scale, bias and activation are f32. Error:
 *   2^-7 sum_c |scale x w| where x or w had to be rounded, else as below. w lies in panels then, 2 k n' bytes
 *   a matrix, and a worker takes up to 350 KB. ATTN_COMPUTE_F16: the same with f16 and an error of 2^-10 sum_c
 *   |scale x w|; rows of x (256 elements of k) and columns of w are divided by powers of two as attn_sdpa's rows are,
 *   and a number of theirs may lose 2^-17 of the largest beside it. What runs, is refused or preferred: as for
 *   attn_sdpa. On one machine the same bits for any workers and any cut of rows and columns.
 *   params.compute = ATTN_COMPUTE_I8, of w of ATTN_I8 and ATTN_I4 alone: each run of r elements of a row of x (see
 *   Determinism) becomes whole numbers up to 127 times t = max |x| / 127. Their products with w's codes are summed
 *   exactly; a run joins y as t scale sum - t zero scale (sum of x's codes). Error: sum over runs of t / 2 sum_c
 *   |w[c]|, and 2^-24 (k / r + 6) sum_c |x[c]| (|q| + |zero|) scale; 0.7 % of y's size for normal x. Rows of x with
 *   a NaN, an infinity or a run whose largest size is not 0 and not in 1e-12 .. 1e12 have the product of f32. All
 *   vector tiers and features have the same bits. Memory: m k bytes (4 m k emulated) and 2 numbers a run of x, and
 *   80 KB a worker. It pays where a feature has it (attn_feature): one row of codes goes nearer to the speed of memory,
 *   many rows twice as fast as f32; emulated it is no faster.
 * Empty: m = 0, B = 0 or H = 0 does nothing; k and n are at least 1.
 * NaN and infinity: as IEEE arithmetic has it; a NaN is stored as the one default NaN.
 * Determinism: each sum is one chain of fused multiply-adds in the order of c; of codes it is a chain of scale s,
 *   where s is such a chain, from 0, of x (q - zero) over a run of r rows from a multiple of r on: r = 128 if that
 *   divides the group or there is one, else 64, else 32. The same bits on avx2,
 *   avx512 and neon, for any number of workers, and for any cut of the rows or columns.
 * Error: (k + 1) 2^-24 sum_c |scale x w|, of codes (r + k / r + 2) 2^-24, where q - zero is exact for whole zeros;
 *   a run overflows where its sum of x (q - zero) does, whatever its scale; beside the roundings of bias and output,
 *   and of the activation 1.2e-6 |y|; 1e-5 |y| for ATTN_ACT_GELU on the scalar tier, and where ATTN_ACT_SILU and
 *   ATTN_ACT_GELU_TANH vanish. 32-bit ARM takes subnormal factors for 0.
 * Cost: 2 B H m n k flops; up to 8 rows read w once, as it is stored.
 * Source: groups of rows with a scale: Frantar et al. 2022 (GPTQ), arXiv 2210.17323; Lin et al. 2023 (AWQ), arXiv
 *   2306.00978. */
ATTN_DEF attn_status attn_gemm(attn_tensor y, attn_tensor x, attn_tensor w,
                               const attn_gemm_params *params, attn_ctx *ctx);

/* Bytes of workspace that attn_gemm wants, or ATTN_WORKSPACE_REJECTED. */
ATTN_DEF size_t attn_gemm_workspace(attn_tensor y, attn_tensor x, attn_tensor w,
                                    const attn_gemm_params *params, const attn_ctx *ctx);
#endif
