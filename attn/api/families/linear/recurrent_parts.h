/* api/families/linear/recurrent_parts.h owns what stands around a decaying state in a layer: logs of decays, a short
 * causal convolution before it, a gated norm behind it.
 *
 * Rules the calls share. Tensors are [B,H,T,n], each f32, f16 or bf16 by itself and of any strides. Empty: B, H or T
 * = 0 writes no row; n is at least 1. Memory: attn_<name>_workspace bytes, a few rows a worker. Errors: NULL, DTYPE,
 * SHAPE, STRIDE, RANGE, VALUE, OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; outputs untouched. A NaN
 * reaches what is made of it, and no other bit: of a convolution the K rows of its column that read it, of a norm its
 * row or group of rows, of a log its number. It is stored as the one default NaN. Determinism: the same bits on avx2,
 * avx512 and neon and for any number of workers; a row's bits depend on nothing but what it is made of. */

typedef struct attn_log_decay_params {
  const float *a_log;   /* [H], of channels [H, n]; null = 0 */
  const float *dt_bias; /* the same; null = 0 */
  int channels;         /* 1: those are [H, n] */
  int bounded;
  float lower; /* bounded: 0 = -5, negative */
} attn_log_decay_params;

/* Logs of decays from what a layer projects: y = -exp(a_log) softplus(x + dt_bias), or bounded
 * y = lower sigmoid(exp(a_log) (x + dt_bias)), each below 0, for ATTN_RECURRENT_LOG. y, x [B,H,T,n]; y may be x.
 * Error: 2e-6 |y|, and what x + dt_bias rounds. Cost: an exponential and a logarithm an element. Source: Yang et al.
 * 2024, arXiv 2412.06464 (by head), Kimi Team 2025, arXiv 2510.26692 (by channel, bounded). params null: a_log 0. */
ATTN_DEF attn_status attn_log_decay(attn_tensor y, attn_tensor x,
                                    const attn_log_decay_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_log_decay_workspace(attn_tensor y, attn_tensor x,
                                         const attn_log_decay_params *params, const attn_ctx *ctx);

typedef struct attn_short_convolve_params {
  attn_tensor bias;           /* [1, 1 or H, 1, n], optional */
  attn_activation activation; /* 0 = ATTN_ACT_SILU; ATTN_ACT_NONE */
  /* [B or N, H, K - 1, n] rows before the first, and the last ones, optional: absent = 0, not kept. They may be one */
  attn_tensor initial, final_rows;
  const int32_t *len;        /* [B], optional: rows that exist */
  const int32_t *cu_seqlens; /* [N + 1], optional: sequences end to end in T, with B = 1 */
  int64_t sequences;         /* N */
} attn_short_convolve_params;

/* Causal convolution of each column by itself, with the rows before it kept from call to call:
 *
 *   y_t = act(sum_{r < K} w[r] x_{t - K + 1 + r} + bias),  rows before the first from initial
 *
 * y, x [B,H,T,n], w [1, 1 or H, K, n], K = w.len of 1 to 64; final_rows become the last K - 1 rows of initial and x
 * together, NaN among them. Row by row, in any pieces and in one call are the same bits (where initial holds x's type
 * or f32). Rows beyond len are 0. y shares no memory with the inputs, final_rows none but with initial. Error: 2^-23 K
 * of the sum of sizes, then the activation's of attn_gemm. Cost: 2 K flops an element. Source: Dao, Gu 2024, arXiv
 * 2405.21060; Yang et al. 2024, arXiv 2412.06464. */
ATTN_DEF attn_status attn_short_convolve(attn_tensor y, attn_tensor x, attn_tensor w,
                                         const attn_short_convolve_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_short_convolve_workspace(attn_tensor y, attn_tensor x, attn_tensor w,
                                              const attn_short_convolve_params *params,
                                              const attn_ctx *ctx);

typedef enum attn_gated_norm_kind {
  ATTN_GATED_NORM_SILU = 0, /* rms(x) gain SiLU(z): gated delta; arXiv 2412.06464 */
  ATTN_GATED_NORM_SIGMOID,  /* rms(x) gain sigmoid(z): KDA; arXiv 2510.26692 */
  ATTN_GATED_NORM_BEFORE, /* rms(x SiLU(z)) gain, over groups of heads: Mamba-2; arXiv 2405.21060 */
  ATTN_GATED_NORM_COUNT
} attn_gated_norm_kind;

typedef struct attn_gated_norm_params {
  attn_gated_norm_kind kind;
  const float *gain; /* [n], of BEFORE [H, n]; null = 1 */
  float eps;         /* 0 = 1e-6 of SILU, else 1e-5; ATTN_ZERO = 0 */
  int64_t groups;    /* BEFORE: the heads of a token are divided into so many; 0 = 1 */
} attn_gated_norm_params;

/* A norm with a gate behind a state: rms(u) = u / sqrt(mean u^2 + eps) over the n columns of a row, or of BEFORE over
 * those of H / groups heads of a token together. y, x, z [B,H,T,n]; y may be x or z. A row of zeros gives zeros. A
 * NaN of z is one of y, of BEFORE all of its group. Error: 4e-6 |y|. Cost: each number is read and written once.
 * params null: SILU. */
ATTN_DEF attn_status attn_gated_norm(attn_tensor y, attn_tensor x, attn_tensor z,
                                     const attn_gated_norm_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_gated_norm_workspace(attn_tensor y, attn_tensor x, attn_tensor z,
                                          const attn_gated_norm_params *params,
                                          const attn_ctx *ctx);
