/* api/families/training/global_norm.h owns the norm of all gradients and the factor that clips them. */

/* n floats. */
typedef struct attn_flat_array {
  const float *data;
  int64_t n;
} attn_flat_array;

/* The norm of the gradients of a model, which lie in the flat arrays x[0 .. arrays - 1]:
 *
 *   *norm = sqrt(sum over all arrays of x^2),   *clip = min(1, most / (*norm + 1e-6))
 *
 * *clip is for the field of this name in the optimisers' parameters, so that no pass is spent on it; 0 is ATTN_ZERO, as
 * they want it, and most = INFINITY gives 1. norm or clip may be null.
 * Aliasing: norm and clip share memory with nothing; arrays may with each other, and count each time. An array without
 *   elements may be null. Empty: without elements the norm is 0.
 * NaN: a norm that is not finite, as one NaN or infinity makes it, is VALUE, and nothing is written: skip the step.
 * Memory: attn_global_norm_workspace bytes, 8 for each 4096 elements and array.
 * Errors: SHAPE: arrays or an n below 0; NULL; VALUE: most negative or NaN, a norm that is not finite; OVERFLOW;
 *   ALIGN; OVERLAP.
 * Determinism: squares are exact in double; they are summed in blocks of 4096 elements of an array, each 16 running
 *   sums, blocks ascending, arrays in order: the same bits on every tier, for any number of workers.
 * Workers: each takes runs of blocks. Cost: 4 bytes of memory an element.
 * Source: Pascanu et al. 2012, arXiv 1211.5063. */
ATTN_DEF attn_status attn_global_norm(double *norm, double *clip, const attn_flat_array *x,
                                      int64_t arrays, double most, attn_ctx *ctx);
ATTN_DEF size_t attn_global_norm_workspace(double *norm, double *clip, const attn_flat_array *x,
                                           int64_t arrays, double most, const attn_ctx *ctx);
