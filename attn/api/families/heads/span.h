/* api/families/heads/span.h owns family I: what differs between heads. Windows per head are patterns
 * (attn_pattern_multiscale), the adaptive span is a term of the score (attn_span). */

/* The dynamic span of each query: z[b,h,i] = S sig(v_h . x_bi + b_h), sig(x) = 1 / (1 + exp(-x)).
 *
 * Shapes: x [B,1,T,dm] token vectors, any storage type; v [H,dm], b [H] (null = 0); z [B,H,T]
 *   dense, for attn_span.z with per_query = 1. S = max_span >= 1; 0 <= z <= max_span.
 * Aliasing: z shares no memory with anything. Memory: attn_span_predict_workspace bytes, O(64 dm)
 *   per worker. Empty: B, T or H of 0 is a no-op. NaN in a token makes its spans NaN (attn_sdpa
 *   rejects those).
 * Errors: NULL, DTYPE, SHAPE (x.heads not 1, heads < 0), RANGE (max_span < 1), OVERLAP, OVERFLOW,
 *   WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; z untouched.
 * Determinism: the same bits for every tier but scalar, any worker count and division of the
 *   tokens. Cost: 2 dm flops a span. Source: Sukhbaatar et al. 2019, arXiv 1905.07799. */
ATTN_DEF attn_status attn_span_predict(float *z, attn_tensor x, const float *v, const float *b,
                                       int64_t heads, int64_t max_span, attn_ctx *ctx);
ATTN_DEF size_t attn_span_predict_workspace(float *z, attn_tensor x, const float *v, const float *b,
                                            int64_t heads, int64_t max_span, const attn_ctx *ctx);

/* lambda times the mean of the n spans z ([H], or [B,H,T] of dynamic ones), summed in double. 0 for
 * n < 1 or z null. A NaN in z makes the result NaN. */
ATTN_DEF double attn_span_penalty(const float *z, int64_t n, double lambda);

/* The largest distance t >= 0 whose weight m(t) = clip((ramp + z - t - shift) / ramp, 0, 1) is
 * positive: ceil(z + ramp) - 1 - shift, exactly, and at max_span `max_span`. Keys further back may leave a
 * cache. ramp 0 = 32, max_span 0 = none; shift as in attn_span. -1 when no distance has weight, or z or
 * ramp is negative, infinite or NaN, or max_span negative. */
ATTN_DEF int64_t attn_span_reach(float z, float ramp, int64_t shift, int64_t max_span);
