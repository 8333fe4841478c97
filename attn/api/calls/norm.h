/* --- rows between dense products -----------------------------------------------------------------
 * Layer norm and RMS norm with the residual sum before them, activations and gates: one pass over rows each.
 *
 * Rules the calls share. Tensors are [B,H,T,n], each f32, f16 or bf16 by itself and of any strides;
 * inputs may have batch 1 and heads 1, which stand for all. Aliasing: an output may be one of the inputs
 * (the same view, type and extents: in place), else it shares memory with nothing. Empty: B, H or T = 0 is
 * a no-op; n is at least 1. Memory: attn_<name>_workspace bytes, a few rows a worker where a tensor is not
 * f32, else none. Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE, VALUE, OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ISA,
 * ENV, CTX, ALIGN; outputs untouched. NaN is stored as the one default NaN. Determinism: the same bits on
 * avx2, avx512 and neon and for any number of workers; a row's bits depend on nothing but the row. */

/* What the rows of a norm are divided by, and what is taken off before. */
typedef enum attn_norm_kind {
  ATTN_NORM_LAYER = 0, /* (x - mean) / sqrt(variance + eps) gain + bias over the columns of a row */
  ATTN_NORM_RMS,       /* x / sqrt(mean of x^2 + eps) gain + bias */
  ATTN_NORM_NONE, /* x; in blocks (attn_block_params), which may leave out one of their norms */
  ATTN_NORM_COUNT
} attn_norm_kind;

/* A norm of rows, wherever a call has one; {0} is layer norm without gain and bias. */
typedef struct attn_norm {
  const float *gain, *bias; /* [n]; null = 1, 0 */
  float eps;                /* > 0; 0 = 1e-5, of RMS 1e-6 */
  attn_norm_kind kind;
  int gain_less_one; /* 1: gain holds what is to be added to 1, as checkpoints of Gemma have it */
} attn_norm;

/* What the rows of queries and of keys are divided by before they meet; d columns a head.
 *   RMS      x / sqrt(mean of x^2 + eps) gain, each head by itself: Dehghani et al. 2023, arXiv 2302.05442, whose
 *            norms do not centre; Qwen3, Gemma 3 (gain_less_one), Llama 4 (after, without gain)
 *   RMS_ALL  the same, the mean being that of all heads of a token: OLMo 2
 *   LAYER    (x - mean) / sqrt(variance + eps) gain, each head by itself: Command R (gain_by_head)
 *   L2       x / sqrt(sum of x^2 + eps) gain, and queries times the temperature of their head; scores are then cosines,
 *            which want the scale 1: Henry et al. 2020, arXiv 2010.04245; Swin V2 */
typedef enum attn_qk_norm_kind {
  ATTN_QK_NORM_RMS = 0,
  ATTN_QK_NORM_RMS_ALL,
  ATTN_QK_NORM_LAYER,
  ATTN_QK_NORM_L2,
  ATTN_QK_NORM_KINDS
} attn_qk_norm_kind;

/* The norm of queries and keys, wherever a call has one: {0} is RMS without gains. A row of zeros stays one, with LAYER
 * a row of equal numbers becomes one, eps = 0 included; NaN and infinity as attn_rms_norm and attn_layer_norm have
 * them. */
typedef struct attn_qk_norm {
  attn_qk_norm_kind kind;
  float
      eps; /* >= 0; 0 = 1e-6; ATTN_ZERO = 0, in place of which 2^-149 is added to the mean of squares */
  const float *q_gain, *k_gain; /* [d], of queries and of keys; null = 1 */
  int gain_by_head;  /* 1: they are [H,d] and [Hkv,d], a row a head; of RMS_ALL they always are */
  int gain_less_one; /* 1: gains hold what is to be added to 1 */
  const float *temperature; /* L2: [H], finite; null = 1 */
  int after;                /* 1: behind the rotation, else before it */
} attn_qk_norm;

#if ATTN_HAS_DENSE
typedef struct attn_layer_norm_params {
  attn_norm norm;
  attn_tensor residual; /* optional */
  attn_tensor sum;      /* out, optional: x + residual */
} attn_layer_norm_params;

/* y = LN(x + residual), the mean and the variance being those of the n columns (by n, not n - 1); params.norm.kind is
 * not read:
 *
 *   s = x + residual,  m = sum_c s_c / n,  v = sum_c (s_c - m)^2 / n
 *   y_c = (s_c - m) / sqrt(v + eps) gain_c + bias_c,  sum_c = s_c
 *
 * Residual after a block (post-norm): y may be x. Before one (pre-norm): sum may be residual, the stream
 * itself, so that "x += f; n = LN(x)" is one pass. y is made of s before s is rounded to the type of sum.
 * NaN or infinity in a row of x or residual makes that row of y NaN. A row of equal numbers gives bias.
 * Error: below 8 2^-24 (1 + |s_c - m| / sqrt(v + eps)) |gain_c|, whatever the mean, beside the roundings of s
 *   and y. Rows whose squares floats do not hold (beyond 1e15 in size) are done in f64.
 * Cost: each number of x is read once from memory and each of y written once.
 * Source: Ba et al. 2016, arXiv 1607.06450. params null: defaults. */
ATTN_DEF attn_status attn_layer_norm(attn_tensor y, attn_tensor x,
                                     const attn_layer_norm_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_layer_norm_workspace(attn_tensor y, attn_tensor x,
                                          const attn_layer_norm_params *params,
                                          const attn_ctx *ctx);

/* y = RMS(x + residual), layer norm without the mean; params.norm.kind is not read, and all else is as above:
 *
 *   s = x + residual,  y_c = s_c / sqrt(sum_k s_k^2 / n + eps) gain_c + bias_c,  sum_c = s_c
 *
 * A row of zeros gives bias. NaN in a row makes all of it NaN; beside an infinite number, itself NaN, the others are
 * bias.
 * Error: below 8 2^-24 |s_c| / sqrt(mean of s^2 + eps) |gain_c|, beside the roundings of s
 *   and y.
 * Source: Zhang and Sennrich 2019, arXiv 1910.07467. params null: defaults. */
ATTN_DEF attn_status attn_rms_norm(attn_tensor y, attn_tensor x,
                                   const attn_layer_norm_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_rms_norm_workspace(attn_tensor y, attn_tensor x,
                                        const attn_layer_norm_params *params, const attn_ctx *ctx);

typedef struct attn_activate_params {
  attn_activation activation;
  attn_tensor gate; /* optional */
  attn_act_form form;
} attn_activate_params;

/* y = act(x), with a gate y = act(x) gate, element by element: GLU, SwiGLU and the like, cut and moved as form says;
 * with ATTN_ACT_DEFAULT or _NONE the product of x and gate. Errors of the functions are those of attn_gemm. params null: y =
 * x. Source of gated products: Dauphin et al. 2016, arXiv 1612.08083; Shazeer 2020, arXiv 2002.05202. */
ATTN_DEF attn_status attn_activate(attn_tensor y, attn_tensor x, const attn_activate_params *params,
                                   attn_ctx *ctx);
ATTN_DEF size_t attn_activate_workspace(attn_tensor y, attn_tensor x,
                                        const attn_activate_params *params, const attn_ctx *ctx);
#endif
