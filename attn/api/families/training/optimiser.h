/* api/families/training/optimiser.h owns steps of optimisers on flat arrays. */

/* A step of attn_adamw. What belongs to the step is made in double, and rounded where elements meet it. */
typedef struct attn_adamw_params {
  int64_t step; /* t = 1, 2, ..: which step this is; required */
  double lr;    /* this step's; 0 = 0.001, ATTN_ZERO = 0 */
  double beta1; /* 0 = 0.9, ATTN_ZERO = 0 */
  double beta2; /* 0 = 0.999, ATTN_ZERO = 0 */
  double eps;   /* 0 = 1e-8, ATTN_ZERO = 0 */
  double decay; /* decoupled weight decay, times lr; 0 = none */
  double clip;  /* what g is multiplied by, as attn_global_norm finds it; 0 = 1, ATTN_ZERO = 0 */
} attn_adamw_params;

/* One step of AdamW on n weights, in place:
 *
 *   g' = clip g
 *   m = beta1 m + (1 - beta1) g',  v = beta2 v + ((1 - beta2) g') g'
 *   w = (1 - lr decay) w - (lr / (1 - beta1^t) m) / (sqrt(v / (1 - beta2^t)) + eps)
 *
 * each product that is added to is one FMA, the rest in the order written. What hangs on the step alone (1 - beta,
 * lr / (1 - beta1^t), 1 / (1 - beta2^t), 1 - lr decay) is found in double and rounded once. m and v are 0 before step
 * 1. Schedules of lr are the caller's.
 * Shapes: flat arrays of n floats. Aliasing: none. Memory: none.
 * Empty: n = 0 does nothing. NaN: stays in its element; where m, v and eps are 0 the quotient is NaN.
 * Errors: NULL: an array with n > 0; SHAPE: n below 0; OVERFLOW; ALIGN; OVERLAP; RANGE: step below 1, beta1 or beta2
 *   not in [0, 1); VALUE: lr, eps or decay negative or not finite, clip not finite. Arrays untouched.
 * Determinism: the same bits on avx2, avx512 and neon and for any number of workers; an element's hang on nothing but
 *   itself.
 * Workers: each takes runs of the arrays. Cost: 28 bytes of memory an element.
 * Source: Loshchilov and Hutter 2017, arXiv 1711.05101; Kingma and Ba 2014, arXiv 1412.6980. */
ATTN_DEF attn_status attn_adamw(float *w, const float *g, float *m, float *v, int64_t n,
                                const attn_adamw_params *params, attn_ctx *ctx);

/* A step of attn_sgd. */
typedef struct attn_sgd_params {
  double lr;       /* 0 = 0.001, ATTN_ZERO = 0 */
  double momentum; /* in [0, 1); 0 = none */
  double decay;    /* weight decay, added to the gradient; 0 = none */
  double clip;     /* what g is multiplied by; 0 = 1, ATTN_ZERO = 0 */
  int first;       /* 1: the first step, which does not read b */
  int nesterov;    /* 1: looks ahead by the momentum */
} attn_sgd_params;

/* One step of stochastic gradient descent on n weights, in place:
 *
 *   g' = clip g + decay w;   b = momentum b + g' (first: b = g')
 *   w = w - lr b,   with nesterov w - lr (momentum b + g')
 *
 * each sum with a product is one FMA. b may be null where momentum is 0.
 * Shapes: flat arrays of n floats. Aliasing: none. Memory: none. Empty: n = 0 does nothing. NaN: stays in its element.
 * Errors: NULL: an array with n > 0, b but for momentum 0; SHAPE: n below 0; OVERFLOW; ALIGN; OVERLAP; RANGE:
 *   momentum not in [0, 1), first or nesterov neither 0 nor 1; VALUE: lr or decay negative or not finite, clip not
 *   finite. Arrays untouched.
 * Determinism, workers: as attn_adamw. Cost: 20 bytes of memory an element, 12 without b.
 * Source: Polyak 1964, doi 10.1016/0041-5553(64)90137-5; Sutskever et al. 2013 (ICML), the form that training code
 *   has. */
ATTN_DEF attn_status attn_sgd(float *w, const float *g, float *b, int64_t n,
                              const attn_sgd_params *params, attn_ctx *ctx);
