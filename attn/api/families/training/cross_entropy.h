/* api/families/training/cross_entropy.h owns the loss over classes and its gradient. */

/* What a loss over classes is; {0}: the mean over all rows, nothing else. */
typedef struct attn_cross_entropy_params {
  float smoothing; /* e in [0, 1]: the share of the target that is spread over all classes */
  float z_loss;    /* the weight of L_t^2; 0 = none */
  float grad;      /* g, what reaches the loss; 0 = 1, ATTN_ZERO = 0 */
  int sum;         /* 1: the sum over rows in place of their mean */
  int64_t
      count; /* what the mean divides by, rows of other calls included; 0 = the rows counted here */
  int has_ignore_index; /* 1: rows whose target is ignore_index are not there */
  int32_t ignore_index;
  int accumulate; /* 1: gradients are added to what the outputs hold */
} attn_cross_entropy_params;

/* Cross-entropy of rows of logits x_t over V classes with targets y_t, and its gradient:
 *
 *   L_t = log sum_c exp(x_(t,c)),  p_(t,c) = exp(x_(t,c) - L_t)
 *   loss_t = L_t - (1-e) x_(t,y) - e mean_c x_(t,c) + z L_t^2,   *loss = sum_t loss_t / count
 *   d_logits_(t,c) = g / count ((1 + 2 z L_t) p_(t,c) - (1-e) [c = y] - e / V)
 *
 * 1 - p of the target is found from the other classes, so that loss and gradient of rows that are learned by heart keep
 * their digits.
 * Shapes: logits [B,H,T,V], d_logits likewise, each f32, f16 or bf16; targets [B*H*T], end to end, in 0 .. V-1 or
 *   ignore_index. *loss is a double. loss or d_logits.data may be null.
 * Aliasing: d_logits may be logits, the same view, unless accumulate is 1; outputs else share memory with nothing.
 * Empty: rows that are ignored are not read, count nothing and have gradient 0. Without counted rows the loss is 0.
 * Infinities: a logit of -inf has p = 0; where it is the target, or there is smoothing, the row's loss is +inf; so it
 *   is where all logits are -inf, which have p = 0 then. Gradients are finite all the same.
 * NaN: a NaN or +inf in a row that counts makes its gradient and the loss NaN, and no other row's gradient.
 * Memory: attn_cross_entropy_workspace bytes, 8 a row where the loss is asked for. The query judges targets too.
 * Error: p is within 3e-7 + 2e-7 (max x - x) of itself, and 0 where it would be below 2^-126 of the largest.
 * Errors: NULL, DTYPE, SHAPE, STRIDE, ALIGN, OVERLAP, OVERFLOW; INDEX: a target; RANGE: smoothing, count, a flag;
 *   VALUE: z_loss negative or not finite, grad not finite. Outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers, and for a row in any company but for
 *   the count. Columns are summed in runs of 512, which are joined in double; rows in double, ascending.
 * Workers: each takes runs of rows. Cost: two exponentials a logit; it is read twice and written once.
 * Source: Szegedy et al. 2015, arXiv 1512.00567 (smoothing); Chowdhery et al. 2022, arXiv 2204.02311 (z-loss). */
ATTN_DEF attn_status attn_cross_entropy(double *loss, attn_tensor d_logits, attn_tensor logits,
                                        const int32_t *targets,
                                        const attn_cross_entropy_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_cross_entropy_workspace(double *loss, attn_tensor d_logits, attn_tensor logits,
                                             const int32_t *targets,
                                             const attn_cross_entropy_params *params,
                                             const attn_ctx *ctx);
