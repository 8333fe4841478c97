/* api/families/depth/exits.h owns models that may stop after any of their N layers (numbered from 1): predictors of
 * the exit, their training targets (depth-adaptive Transformer, K2), confidences, thresholds and
 * their calibration (CALM, K3). The stack that is run with exits stands in api/families/depth/universal.h.
 *
 * Rules they share. Tensors have any strides and are f32, f16 or bf16, each by itself; outputs share
 * memory with nothing. Memory of a call: attn_<name>_workspace bytes. No rows is a no-op unless a call
 * says otherwise; the last extent is at least 1. NaN gives unspecified values in the rows that hold it,
 * and exits that are still in 1..N. Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE, VALUE, OVERLAP, OVERFLOW,
 * WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; outputs untouched. Determinism: the same bits on avx2, avx512
 * and neon and for any number of workers. */

/* ---- predictors ---------------------------------------------------------------------------------*/

typedef enum attn_exit_kind {
  ATTN_EXIT_SEQUENCE = 0, /* one exit for a sequence, from the states of the encoder */
  ATTN_EXIT_MULTINOMIAL,  /* one for each token, from its state after layer 1 */
  ATTN_EXIT_GEOMETRIC,    /* one for each token, layer by layer: stop, or go on */
  ATTN_EXIT_COUNT
} attn_exit_kind;

typedef struct attn_exits_params {
  attn_exit_kind kind;
  int64_t layers;       /* N >= 1 */
  attn_tensor w;        /* [1,1,dm,N]; GEOMETRIC: [1, 1 or N-1, 1, dm] */
  int w_transposed;     /* 1: w is [1,1,N,dm], as in PyTorch checkpoints; GEOMETRIC: not read */
  attn_tensor bias;     /* [1,1,1,N]; GEOMETRIC: [1, 1 or N-1, 1, 1]; optional */
  const int32_t *x_len; /* SEQUENCE: [B], 1..Ts: later rows do not exist; or null */
  float tau;            /* GEOMETRIC: 0..1; 0 = 0.5, ATTN_ZERO = 0 */
  const float *taus;    /* GEOMETRIC: [N-1], in place of tau */
} attn_exits_params;

/* Where to stop, and how probable each layer is.
 *
 *   SEQUENCE:     q = softmax(mean_t(x_t) w + bias)
 *   MULTINOMIAL:  q_t = softmax(x_t w + bias)
 *     exit = argmax of q, the lower layer of equal ones
 *   GEOMETRIC:    chi^n_t = sigmoid(w_n . x^n_t + bias_n), n = 1..N-1
 *                 q_t(n) = chi^n prod_{m<n} (1 - chi^m) for n < N,  q_t(N) = prod_{m<N} (1 - chi^m)
 *     exit = the first n with chi^n > tau_n, else N
 *
 * Shapes: SEQUENCE: x [B,1,Ts,dm], q [B,1,1,N], exits [B]. MULTINOMIAL: x [B,1,T,dm], the states after
 *   layer 1, q [B,1,T,N], exits [B,T]. GEOMETRIC: x [B,N-1,T,dm], head n - 1 being the states after layer
 *   n (any strides: [N-1,B,T,dm] too), q and exits as MULTINOMIAL. q or exits may be absent, not both.
 * Errors also: SHAPE: N < 1, Ts = 0 for SEQUENCE. RANGE: x_len, tau outside 0..1.
 * Saturated chi (0 or 1) are exact, and so are products of them.
 * Memory: SEQUENCE: 4 B (dm ceil(Ts / 256) + N) bytes, MULTINOMIAL: 4 B T N, both beside that of
 *   attn_gemm for these rows; GEOMETRIC: 4 B N T, and 4 dm a worker.
 * Cost: 2 dm N flops a row (GEOMETRIC: 2 dm a row of x), one pass over x.
 * Source: Elbayad et al. 2019, arXiv 1910.10073. */
ATTN_DEF attn_status attn_exits(int32_t *exits, attn_tensor q, attn_tensor x,
                                const attn_exits_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_exits_workspace(int32_t *exits, attn_tensor q, attn_tensor x,
                                     const attn_exits_params *params, const attn_ctx *ctx);

typedef struct attn_exit_smooth_params {
  float sigma;          /* > 0; it has no default */
  const int32_t *x_len; /* [B], 0..T: later tokens do not exist; or null */
} attn_exit_smooth_params;

/* Scores of layers, spread over neighbouring tokens:
 *
 *   y[n,t] = sum_{t'} exp(-(t - t')^2 / sigma) x[n,t'],  over all tokens of the sequence; not normalised
 *
 * Shapes: y, x [B,1,N,T], row n - 1 being the log-likelihoods, or the correctness as 0 and 1, of
 *   layer n; finite. y from x_len[b] on is 0, x there is not read. Weights below 1e-12 are left out.
 * Memory: 4 (2 T + 128) bytes a worker, and 8 for each of min(2 T, 10.6 sqrt sigma) weights. Cost: 2 N T
 *   min(T, 10.6 sqrt sigma) flops. Source: Elbayad et al. 2019, arXiv 1910.10073. */
ATTN_DEF attn_status attn_exit_smooth(attn_tensor y, attn_tensor x,
                                      const attn_exit_smooth_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_exit_smooth_workspace(attn_tensor y, attn_tensor x,
                                           const attn_exit_smooth_params *params,
                                           const attn_ctx *ctx);

typedef struct attn_exit_target_params {
  int tokens;           /* 1: a target for each token; 0: one for the sequence */
  float lambda;         /* >= 0, the price of a layer */
  const int32_t *x_len; /* [B], 0..T, or null */
} attn_exit_target_params;

/* The layer an exit predictor should learn: argmax over n of L^n - lambda n, the lower of equal ones.
 *
 * Shapes: x [B,1,N,T] as in attn_exit_smooth, target [B]: L^n is the sum over the tokens, in f64; with
 *   tokens = 1 target [B,T], L^n being x itself (smoothed by the caller, if at all); 0 from x_len[b] on.
 * Memory: none. Cost: one pass over x. Source: Elbayad et al. 2019, arXiv 1910.10073. */
ATTN_DEF attn_status attn_exit_target(int32_t *target, attn_tensor x,
                                      const attn_exit_target_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_exit_target_workspace(int32_t *target, attn_tensor x,
                                           const attn_exit_target_params *params,
                                           const attn_ctx *ctx);

/* ---- confidences --------------------------------------------------------------------------------*/

typedef enum attn_confidence_kind {
  /* x are logits: the largest probability minus the second, 1 for one class */
  ATTN_CONFIDENCE_SOFTMAX = 0,
  ATTN_CONFIDENCE_COSINE,     /* of a state with the one before it, in -1..1; 0 if either is zero */
  ATTN_CONFIDENCE_CLASSIFIER, /* sigmoid(w . x + bias) */
  ATTN_CONFIDENCE_COUNT
} attn_confidence_kind;

typedef struct attn_confidence_params {
  attn_confidence_kind kind;
  attn_tensor before; /* COSINE: [B,H,n,dm] */
  attn_tensor w;      /* CLASSIFIER: [1, 1 or H, 1, dm] */
  attn_tensor bias;   /* CLASSIFIER: [1, 1 or H, 1, 1], optional */
} attn_confidence_params;

/* How sure a model is after a layer, by rows.
 *
 * Shapes: y [B,H,n,1], x [B,H,n,V or dm]; H layers at once, or 1.
 * Each row by itself, whatever the batch. Logits are read once: largest, second and sum together, nothing
 * is sorted; logits of -inf count as absent, a row of them, or one with +inf, has NaN.
 * Memory: SOFTMAX: 4 KB a worker and 16 bytes for each 8192 columns of a row; else a few rows a worker.
 * Cost: one pass over x (and before). Source: Schuster et al. 2022, arXiv 2207.07061. */
ATTN_DEF attn_status attn_confidence(attn_tensor y, attn_tensor x,
                                     const attn_confidence_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_confidence_workspace(attn_tensor y, attn_tensor x,
                                          const attn_confidence_params *params,
                                          const attn_ctx *ctx);

typedef enum attn_calm_threshold_kind {
  ATTN_CALM_PAPER = 0, /* clip(0.9 lambda + 0.1 exp(-tau t / N), 0, 1) */
  ATTN_CALM_SCALED,    /* lambda (0.9 + 0.1 exp(-tau t / N)), the authors' code */
  ATTN_CALM_FLAT,      /* lambda */
  ATTN_CALM_COUNT
} attn_calm_threshold_kind;

typedef struct attn_calm_threshold_params {
  attn_calm_threshold_kind kind;
  int64_t outputs; /* N >= 1, the most tokens that are generated; FLAT does not read it */
  int64_t first;   /* t of threshold[0], >= 0 */
  float tau;       /* >= 0; 0 = 4, ATTN_ZERO = 0 */
} attn_calm_threshold_params;

/* Thresholds of the steps t = first .. first + count - 1, which decay as the output grows: early errors
 * do more harm. lambda in 0..1. Null params is {0}. Errors also: RANGE: lambda, N < 1, a step not below
 * N. Memory: none. Source: Schuster et al. 2022, arXiv 2207.07061. */
ATTN_DEF attn_status attn_calm_threshold(float *threshold, int64_t count, float lambda,
                                         const attn_calm_threshold_params *params, attn_ctx *ctx);

/* exit[b,t] = the first layer n >= min_exit whose confidence is at least threshold[t], else N.
 *
 * Shapes: x [B,1,N-1,T], row n - 1 being the confidences after layer n (for N = 1 no rows): what
 *   attn_confidence gives as [B,N-1,T,1] is this in memory. threshold [T]; exits [B,T].
 * min_exit: 1..N; 0 = 1. The cosine after layer 1 wants 2, or the layer's input as `before`.
 * Errors also: RANGE: min_exit. A NaN is no confidence. Memory: none. Source: as attn_confidence. */
ATTN_DEF attn_status attn_calm_exit(int32_t *exits, attn_tensor x, const float *threshold,
                                    int64_t min_exit, attn_ctx *ctx);
ATTN_DEF size_t attn_calm_exit_workspace(int32_t *exits, attn_tensor x, const float *threshold,
                                         int64_t min_exit, const attn_ctx *ctx);

/* The lowest threshold whose expected loss is at most delta with probability 1 - eps: tests in a fixed
 * sequence (Learn then Test).
 *
 *   best = 1, accepted = 0
 *   for j = 0, 1, ..:  p_j = exp(-2 n max(0, delta - mean_i losses[j][i])^2)
 *     p_j > eps: stop;  else best = lambdas[j], accepted = j + 1
 *
 * Shapes: losses [1,1,J,n] in 0..1, of n >= 1 calibration items; lambdas [J], strictly decreasing, in
 *   0..1. *best and *accepted are written; accepted may be null. J = 0: best = 1.
 * delta and eps lie in (0, 1). Errors also: RANGE: delta, eps, losses, lambdas.
 * Memory: none. Cost: one pass over losses, means in f64. Sources: Angelopoulos et al. 2021, arXiv
 *   2110.01052; Schuster et al. 2022, arXiv 2207.07061. */
ATTN_DEF attn_status attn_calm_calibrate(float *best, int64_t *accepted, attn_tensor losses,
                                         const float *lambdas, float delta, float eps,
                                         attn_ctx *ctx);
ATTN_DEF size_t attn_calm_calibrate_workspace(float *best, int64_t *accepted, attn_tensor losses,
                                              const float *lambdas, float delta, float eps,
                                              const attn_ctx *ctx);
