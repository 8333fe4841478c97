/* api/families/linear/damped_ema.h owns moving averages of channels. */

/* What a direction has, each [D,N]: what is taken and how much of it fades, in 0 .. 1; weights in and out. */
typedef struct attn_damped_ema_set {
  const float *alpha, *delta, *beta, *eta;
} attn_damped_ema_set;

typedef struct attn_damped_ema_params {
  int64_t dims; /* N, at least 1 */
  attn_damped_ema_set forward;
  attn_damped_ema_set backward; /* all null: none */
  const float *omega;           /* [D], what y has of x itself; null = 0 */
  float scale;                  /* 0 = 1 / sqrt(N); ATTN_ZERO = 0 */
  /* [B,1,D,N] f32, optional: h before the first token and behind the last, absent = 0, not kept. They may be one. Of
   * dim 2 N: then behind N of a channel lies what rounding left of them. Not with backward */
  attn_tensor initial_state, final_state;
  const int32_t *len; /* [B], optional: tokens that exist */
} attn_damped_ema_params;

/* The multi-dimensional damped moving average (EMA) of Mega, by channel d with N states of its own:
 *
 *   h_t,n = alpha_n beta_n x_t + (1 - alpha_n delta_n) h_t-1,n
 *   y_t   = scale sum_n eta_n h_t,n + omega x_t,   h = initial_state (0) before the first
 *
 * backward: plus the same sum with its own numbers from the last token to the first, omega once. alpha and delta are
 * numbers as they are: sigmoids of what is learned are the caller's.
 *
 * Shapes: y, x [B,1,T,D], each f32, f16 or bf16 by itself and of any strides. Rows beyond len are 0 and change no
 * state; without tokens final_state is initial_state. Empty: B or T = 0 writes no row. params must be there.
 * Aliasing: y may be x; final_state may be initial_state; outputs share no other memory.
 * Memory: attn_damped_ema_workspace bytes, a worker 16 KB + 1.5 N KB, with backward 8 KB + 256 T bytes + 1.5 N KB.
 * Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE, VALUE (alpha or delta not in 0 .. 1, scale not finite), OVERLAP, OVERFLOW,
 *   WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; outputs untouched.
 * NaN: what is not finite in x_t, or grows beyond a float, leaves no finite number in rows from t on of its channel
 *   and in its states, and reaches no other row or channel; with backward all rows of the channel.
 * Error: (N + 8) 2^-24 of the sum of the sizes of the terms of a row, whatever T is.
 * Determinism: the same bits on avx2, avx512 and neon and for any number of workers. In pieces and in one call are the
 *   same bits if states are of dim 2 N; of dim N what a piece rounds off, 2^-24 h, is lost.
 * Cost: 14 N flops an element and direction; workers share the batch and runs of 64 channels.
 * Source: Ma et al. 2022, arXiv 2209.10655. */
ATTN_DEF attn_status attn_damped_ema(attn_tensor y, attn_tensor x,
                                     const attn_damped_ema_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_damped_ema_workspace(attn_tensor y, attn_tensor x,
                                          const attn_damped_ema_params *params,
                                          const attn_ctx *ctx);
