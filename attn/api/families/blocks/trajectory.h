/* api/families/blocks/trajectory.h owns trajectories as sequences of tokens (Decision Transformer, K6): returns to go,
 * three tokens a step, which of them exist, and what is read from them. Attention over them is that of
 * any layer, causal, with the mask from here.
 *
 * Rules the calls share. Steps are B sequences of T, oldest first; token 3t is the return to go, 3t + 1
 * the state, 3t + 2 the action of step t. Storage types and strides are free. Extents of 0 do nothing.
 * NaN in a row reaches the rows made from it. Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE, VALUE, OVERLAP,
 * OVERFLOW, WORKSPACE, MEMORY, ALIGN, ISA, ENV, CTX; outputs untouched. Determinism: the same bits on
 * avx2, avx512 and neon, any number of workers. Source: Chen et al. 2021, arXiv 2106.01345. */

/* What a token of a step is. */
typedef enum attn_trajectory_token {
  ATTN_TRAJECTORY_RETURN = 0,
  ATTN_TRAJECTORY_STATE,
  ATTN_TRAJECTORY_ACTION,
  ATTN_TRAJECTORY_TOKENS
} attn_trajectory_token;

typedef struct attn_returns_params {
  float gamma;         /* discount, finite; 0 = 1, ATTN_ZERO = 0 */
  const float *target; /* [B], optional: the return wanted from step 0 on */
} attn_returns_params;

/* Returns to go of rewards r [B,1,T,1], in y [B,1,T,1]:
 *
 *   y_t = r_t + gamma y_{t+1},  y_T = 0;   with target:  y_0 = target,  y_{t+1} = (y_t - r_t) / gamma
 *
 * The second form is that of a rollout: the last reward is not read.
 * Aliasing: y may be r, with the same strides and type. Memory: 0. Sums are f64, rounded once an output.
 * Errors also: VALUE: gamma, a target; gamma 0 with target. Cost: O(B T). */
ATTN_DEF attn_status attn_returns(attn_tensor y, attn_tensor r, const attn_returns_params *params,
                                  attn_ctx *ctx);
ATTN_DEF size_t attn_returns_workspace(attn_tensor y, attn_tensor r,
                                       const attn_returns_params *params, const attn_ctx *ctx);

typedef struct attn_trajectory_params {
  attn_tensor w_return, b_return; /* [1,1,1,dm], [1,1,1,dm]; biases are optional */
  attn_tensor w_state, b_state;   /* [1,1,ds,dm], [1,1,1,dm] */
  attn_tensor w_action, b_action; /* [1,1,da,dm], [1,1,1,dm] */
  int w_transposed;               /* 1: these three w are [1,1,out,in], as in PyTorch checkpoints */
  attn_tensor times;              /* [1,1,E,dm], a row for each time of an episode */
  const int32_t *timesteps;       /* [B,T], 0 .. E-1; any of them for steps of padding */
  attn_norm norm;                 /* LN, one for the three kinds of tokens */
} attn_trajectory_params;

/* The tokens of trajectories: row 3t + i of y, with x_0 = returns, x_1 = states, x_2 = actions,
 *
 *   y = LN(x_i[t] w_i + b_i + times[timesteps[t]])
 *
 * Shapes: y [B,1,3T,dm]; returns [B,1,T,1], states [B,1,T,ds], actions [B,1,T,da]. An action that is not
 *   known yet may hold any numbers: its own state token does not see it.
 * Aliasing: y shares memory with nothing.
 * Memory: attn_trajectory_tokens_workspace bytes: the weights as attn_gemm lays them out, 4 rows per
 *   worker, and 96 of y if that is not f32, 32 of states or actions if these are not.
 * Errors also: RANGE: timesteps. Cost: 2 B T (1 + ds + da) dm flops. */
ATTN_DEF attn_status attn_trajectory_tokens(attn_tensor y, attn_tensor returns, attn_tensor states,
                                            attn_tensor actions,
                                            const attn_trajectory_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_trajectory_tokens_workspace(attn_tensor y, attn_tensor returns,
                                                 attn_tensor states, attn_tensor actions,
                                                 const attn_trajectory_params *params,
                                                 const attn_ctx *ctx);

/* Which tokens exist, as attn_sdpa_params.mask beside causal = 1: those of steps with valid != 0, valid
 * [batch,steps]. keys [batch,3 steps] is the mask's memory and is written; there is no 3T x 3T array. A
 * token without one to see gets 0 from attention. No mask (ATTN_MASK_NONE, all tokens exist) and nothing
 * written if valid or keys is null, an extent is not positive or 3 batch steps are beyond int64_t. Cost:
 * O(batch steps). */
ATTN_DEF attn_mask attn_trajectory_mask(uint8_t *keys, const uint8_t *valid, int64_t batch,
                                        int64_t steps);

/* Rows 3t + token of [B,H,3T,d], as a view [B,H,T,d] of the same memory; nothing is checked or read. Cost:
 * O(1). */
ATTN_DEF attn_tensor attn_trajectory_rows(attn_tensor tokens, attn_trajectory_token token);

typedef enum attn_trajectory_head {
  ATTN_TRAJECTORY_NEXT_ACTION = 0, /* tanh(y[3t + 1] w + bias): before the action is seen */
  ATTN_TRAJECTORY_NEXT_STATE,      /* y[3t + 2] w + bias */
  ATTN_TRAJECTORY_NEXT_RETURN,     /* y[3t + 2] w + bias */
  ATTN_TRAJECTORY_HEADS
} attn_trajectory_head;

typedef struct attn_trajectory_predict_params {
  attn_trajectory_head head;
  attn_tensor w, bias; /* [1,1,dm,d], optional [1,1,1,d] */
  int w_transposed;    /* 1: w is [1,1,d,dm], as in PyTorch checkpoints */
  int linear;          /* 1: actions without the tanh */
} attn_trajectory_predict_params;

/* What the model says of each step: o [B,1,T,d] from the rows y [B,1,3T,dm] that it made of the tokens.
 *
 * Aliasing: o shares memory with nothing. Memory: attn_gemm's. Cost: 2 B T dm d flops. */
ATTN_DEF attn_status attn_trajectory_predict(attn_tensor o, attn_tensor y,
                                             const attn_trajectory_predict_params *params,
                                             attn_ctx *ctx);
ATTN_DEF size_t attn_trajectory_predict_workspace(attn_tensor o, attn_tensor y,
                                                  const attn_trajectory_predict_params *params,
                                                  const attn_ctx *ctx);
