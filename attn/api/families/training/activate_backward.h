/* api/families/training/activate_backward.h owns the gradients of attn_activate. */

/* What a gradient of attn_activate has beside that of x; {0} is none of it. */
typedef struct attn_activate_gradients {
  attn_tensor d_gate; /* out, optional: that of params.gate */
  int accumulate;     /* 1: is added to what the outputs hold; 0: they are overwritten */
} attn_activate_gradients;

/* Gradients of attn_activate, element by element: of a loss L whose gradient by y = act(x) gate is d_y.
 *
 *   d_x = d_y gate act'(x),  d_gate = d_y act(x);  act' as attn_gemm_backward has it
 *
 * in a form {s, limit, add}: d_x = d_y (min(max(gate, -limit), limit) + add) act'(s x) where x < limit, else 0; d_gate = d_y
 *   act(s min(x, limit)) / s where |gate| < limit, else 0; without a gate d_x = d_y act'(s x).
 *
 * Shapes: d_y [B,H,T,n] as y; d_x as x, d_gate as params.gate, each f32, f16 or bf16 and of any strides. An output whose
 *   data is null is not made. What forward read with batch 1 or heads 1 for all gets the sum; where an input has a
 *   stride of 0 its gradient may have the full extent, each share by itself, or 1, the sum.
 * params: as forward had them, x and gate as they were before it. Null: act is NONE.
 * Aliasing: d_x may be d_y, the same view, without accumulate; else outputs share memory with nothing, nor their rows
 *   with one another. Inputs may share memory with each other.
 * Empty: B, H or T = 0: what is a sum becomes 0, unless accumulate is 1.
 * NaN and infinity: as IEEE arithmetic has it, in their element alone, but that RELU and RELU2 pass 0 where x <= 0, and a
 *   form's limits at and beyond them, whatever d_y and gate are there. No finite x makes act' infinite but EXP's and
 *   RELU2's.
 * Memory: attn_activate_backward_workspace bytes: 40 KB a worker where a tensor is not f32 or accumulate is 1, 56 KB in a
 *   form; B H T n numbers for each output that is a sum.
 * Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE, VALUE, OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; outputs
 *   untouched. NULL also for d_gate without a gate.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers, and whichever outputs are asked for;
 *   sums by batch entry, head and position, in runs of 512 that are joined.
 * Error: d_x within 5e-7 |d_y gate| (1 + |act'(x)|), d_gate as attn_gemm's activations; outputs of 16 bits are rounded
 *   once.
 * Cost: each number is read once from memory and each of the outputs written once.
 * Source: Hendrycks and Gimpel 2016, arXiv 1606.08415; Shazeer 2020, arXiv 2002.05202; the chain rule. */
ATTN_DEF attn_status attn_activate_backward(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                            const attn_activate_params *params,
                                            const attn_activate_gradients *gradients,
                                            attn_ctx *ctx);
ATTN_DEF size_t attn_activate_backward_workspace(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                                 const attn_activate_params *params,
                                                 const attn_activate_gradients *gradients,
                                                 const attn_ctx *ctx);
