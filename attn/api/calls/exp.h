/* api/calls/exp.h owns the elementary functions of the kernels, offered by themselves. */

/* y[i] = exp(x[i]), the polynomial all softmaxes here use: at most 2 ULP (docs/numerics.md has
 * the measured worst) for every float, subnormal results included; overflow gives +inf, exp(-inf)
 * = 0, NaN stays NaN. The same bits whatever n and i (body and tail alike) on avx2, avx512, neon.
 * y may be x. n = 0 is a no-op. Errors: NULL, SHAPE (n < 0), OVERLAP, ISA, ENV, CTX. */
ATTN_DEF attn_status attn_exp(float *y, const float *x, int64_t n, attn_ctx *ctx);
