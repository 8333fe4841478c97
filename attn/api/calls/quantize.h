/* api/calls/quantize.h owns rows of 8 and 4 bits: quantised and back. */

#if ATTN_HAS_QUANTIZE
/* Quantises rows: y = round(x / scale) + zero, ties to even, clipped to the type's range. The
 * quotient is taken in double, so that a tie is one of the exact quotient.
 *
 * y.dtype: ATTN_I8, ATTN_I4 or ATTN_E4M3, of the shape of x (f32, f16, bf16). scales is written: a
 *   scale for each row and group, max |x| / 127 (7, 448) rounded up, 1 where all are 0; with
 *   scales.zero (max - min) / 255 (15) rounded up, 0 counted among the numbers, and zero a whole
 *   number of the type, -128 (-8) - round(min / scale). E4M3 has no zero, and without scales.scale
 *   takes x as it is and clips it to +-448. The unused half of an odd row's last byte of I4 is 0.
 * Error: |x - (y - zero) scale| <= scale / 2 (1 + 2^-20) for I8 and I4; for E4M3 |x| / 16 or
 *   scale 2^-10, the larger.
 * Aliasing: y and the scales share memory with nothing. Memory: none. Empty: nothing is written.
 * Errors: NULL, DTYPE, SHAPE (group not a multiple of 32), STRIDE (odd strides of I4 among them),
 *   OVERLAP, OVERFLOW, VALUE (x holds NaN or infinity), ISA, ENV, CTX, ALIGN; nothing written.
 * Determinism: the same bits on every tier. Cost: two passes over x. */
ATTN_DEF attn_status attn_quantize(attn_tensor y, attn_scales scales, attn_tensor x, attn_ctx *ctx);
ATTN_DEF size_t attn_quantize_workspace(attn_tensor y, attn_scales scales, attn_tensor x,
                                        const attn_ctx *ctx);

/* y = (x - zero) * scale for quantised x; y is f32, f16 or bf16, of the shape of x. Every scale is
 * checked (ATTN_E_SCALE). Otherwise as attn_quantize. */
ATTN_DEF attn_status attn_dequantize(attn_tensor y, attn_tensor x, attn_scales scales,
                                     attn_ctx *ctx);
ATTN_DEF size_t attn_dequantize_workspace(attn_tensor y, attn_tensor x, attn_scales scales,
                                          const attn_ctx *ctx);
#endif
