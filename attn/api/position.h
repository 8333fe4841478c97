/* api/position.h owns family B: positions. */

/* Which columns form a rotated pair. */
typedef enum attn_rope_layout {
  ATTN_ROPE_INTERLEAVED = 0, /* (2m, 2m+1), the paper */
  ATTN_ROPE_HALF             /* (m, m + rot/2), GPT-NeoX, Llama weights of many engines */
} attn_rope_layout;

typedef struct attn_rope_params {
  int64_t rot; /* columns that rotate, even; 0 = dim; ATTN_ROPE_NONE = none */
  double base; /* 0 = 10000 */
  attn_rope_layout layout;
  int inverse;              /* 1: rotate back */
  int64_t start;            /* position of row 0, if positions is null; may be negative */
  const int64_t *positions; /* [T], or [B,T] when positions_per_batch */
  int positions_per_batch;
} attn_rope_params;

#define ATTN_ROPE_NONE (-1)

/* Rotary position embedding of queries or keys.
 *
 *   phi = position * base^(-2m/rot),  m = 0..rot/2-1
 *   y_a = x_a cos phi - x_b sin phi,  y_b = x_a sin phi + x_b cos phi
 *
 * Shapes: x, y [B,H,T,d], any storage types; columns rot..d-1 are copied. rot = d needs d even.
 * Aliasing: y may be x with the same strides and type (in place), else they share no memory.
 * Queries behind a cache have start = Tk - Tq. Angles are formed and reduced in double, so that
 *   positions up to 10^6 and beyond keep an error below 1e-6.
 * Memory: attn_rope_workspace bytes, O(rot) per worker. Empty: B, H or T of 0 is a no-op.
 * NaN: stays in its pair; columns from rot on keep their bits when the types are equal. Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE (rot, layout, start
 *   beyond 2^61), VALUE (base),
 *   OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; outputs untouched.
 * Determinism: the same bits for every tier but scalar and any worker count; a row's rotation
 *   depends on its position alone. Cost: 6 flops a pair, and 6 multiplications per position and m,
 *   shared by all heads (and by all batch entries unless positions_per_batch).
 * Source: Su et al. 2021, arXiv 2104.09864. */
ATTN_DEF attn_status attn_rope(attn_tensor y, attn_tensor x, const attn_rope_params *params,
                               attn_ctx *ctx);
ATTN_DEF size_t attn_rope_workspace(attn_tensor y, attn_tensor x, const attn_rope_params *params,
                                    const attn_ctx *ctx);

/* The ALiBi slopes of the paper for n heads into slopes[n]: with c the largest power of two <= n,
 * 2^(-8(h+1)/c) for h < c, then 2^(-4(2r+1)/c) for r = 0..n-c-1. Pass them as
 * attn_sdpa_params.alibi. ATTN_E_NULL without slopes, ATTN_E_SHAPE for n < 1.
 * Source: Press et al. 2021, arXiv 2108.12409. */
ATTN_DEF attn_status attn_alibi_slopes(float *slopes, int64_t n);
