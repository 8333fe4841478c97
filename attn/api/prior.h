/* api/prior.h owns family H: attention with a prior over positions. */

/* What decides the width of the window of attn_gaussian_window. */
typedef enum attn_gaussian_mode {
  ATTN_GAUSSIAN_QUERY = 0, /* each query */
  ATTN_GAUSSIAN_LAYER,     /* the mean key: one window per batch entry and head */
  ATTN_GAUSSIAN_FIXED      /* a constant */
} attn_gaussian_mode;

typedef struct attn_gaussian_params {
  const float *w_p, *u_p; /* [H, dk, hidden], [H, hidden]: the center, always needed */
  const float *u_d;       /* [H, hidden]: the window, QUERY and LAYER */
  const float *w_d;       /* [H, dk, hidden]: LAYER */
  int64_t hidden;         /* a; 0 = dk */
  attn_gaussian_mode mode;
  float width;           /* D of FIXED; 0 = 10 */
  float sigma_min;       /* 0 = 1e-6 */
  int64_t index_base;    /* the number of the first key, 0 or 1 */
  const int32_t *kv_len; /* [B], 0..Tk */
} attn_gaussian_params;

/* The predicted window of a Gaussian bias, for attn_sdpa_params.gaussian:
 *
 *   P_i = I sig(u_p . tanh(q_i w_p)),  I = kv_len[b] or Tk,  sig(x) = 1 / (1 + exp(-x))
 *   D_i = I sig(u_d . tanh(q_i w_p)), or I sig(u_d . tanh(kbar w_d)), or width
 *   sigma_i = max(D_i / 2, sigma_min)
 *   center = P_i - index_base,  precision = 1 / (2 sigma_i^2)
 *
 * kbar is the mean of keys 0..I-1; query head h reads key head h*Hk/H. q is taken as it is, not
 * scaled; the bias it leads to is not multiplied by the scale either.
 * Shapes: q [B,H,Tq,dk], k [B,Hk,Tk,dk] any storage types; center, precision [B,H,Tq] dense. k is
 *   read in LAYER mode only, up to kv_len. Aliasing: outputs share no memory with anything.
 * Memory: attn_gaussian_window_workspace bytes, O(64 (dk + hidden)) per worker.
 * Empty: B or Tq of 0 is a no-op. No keys: center = -index_base, sigma = sigma_min (and kbar = 0).
 * NaN: in a query row makes its center (and in QUERY mode its precision) NaN; in a key, the
 *   precision of the heads that read it. precision is at most FLT_MAX.
 * Errors: NULL (a parameter the mode needs), DTYPE, SHAPE, HEADS, RANGE (mode, hidden, index_base,
 *   kv_len), VALUE (width, sigma_min negative or not finite), OVERLAP, OVERFLOW, WORKSPACE,
 *   MEMORY, ISA, ENV, CTX, ALIGN; outputs untouched.
 * Determinism: the same bits for every tier but scalar, any worker count and division of the
 *   queries. Cost: 2 dk a + 4 a flops a query. Source: Yang et al. 2018, arXiv 1810.10182. */
ATTN_DEF attn_status attn_gaussian_window(float *center, float *precision, attn_tensor q,
                                          attn_tensor k, const attn_gaussian_params *params,
                                          attn_ctx *ctx);
ATTN_DEF size_t attn_gaussian_window_workspace(float *center, float *precision, attn_tensor q,
                                               attn_tensor k, const attn_gaussian_params *params,
                                               const attn_ctx *ctx);

typedef struct attn_hard_gaussian_params {
  const float *offset; /* [H]; null = 0. The paper uses -1, 0, +1 */
  const float *sigma;  /* [H] > 0; null = 1 */
  float ratio;         /* r; 0 = 1, ATTN_ZERO = 0 */
  float threshold;     /* smaller weights become 0; density form */
  int renorm;          /* 1: weights of a row sum to 1 */
  int causal;          /* key j only for queries with j <= p_i */
  int has_q_off;       /* 1: q_off below holds; 0: q_off = Tk - Tq. Cross attention: 1 and 0 */
  int64_t q_off;       /* p_i = i + q_off; |q_off| < 2^40; else 0 */
  const int32_t *kv_len, *q_len; /* [B] */
  attn_mask mask;                /* ATTN_MASK_BOOL or ATTN_MASK_BITS */
} attn_hard_gaussian_params;

/* Hard-coded Gaussian attention: no queries, no keys, one Gaussian per head.
 *
 *   c = r p_i + offset_h,  g_ij = -(j - c)^2 / (2 sigma_h^2)
 *   density: w_ij = exp(g_ij) / (sigma_h sqrt(2 pi)), 0 below threshold;  not renormalised
 *   renorm:  w_ij = softmax of g_ij over the allowed keys
 *   o_i = sum over allowed j of w_ij v_j
 *
 * Shapes: v [B,Hv,Tk,dv], o [B,H,Tq,dv], any storage types; Hv divides H, head h reads value head
 *   h*Hv/H. Keys farther than 8 sigma from c count as weight 0; with renorm the 8 sigma count from
 *   the nearest allowed key, so that a row with an allowed key never divides 0 by 0.
 * Aliasing: o shares no memory with anything. Memory: attn_hard_gaussian_workspace bytes, O(64 dv +
 *   128 dv) per worker.
 * Empty: rows without an allowed key, or from q_len on, are 0. B or Tq of 0 is a no-op.
 * NaN: a key that is forbidden, or of weight 0, never reaches an output; any other NaN or infinity
 *   shows in exactly the rows that read it.
 * Errors: NULL, DTYPE, SHAPE, HEADS, STRIDE, RANGE (q_off, lengths), VALUE (sigma not positive;
 *   sigma, offset, ratio or threshold not finite; threshold < 0), MASK, OVERLAP, OVERFLOW,
 *   WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; outputs untouched.
 * Determinism: the same bits for every tier but scalar, any worker count, batch composition and
 *   division of the queries (at the same positions). Cost: 2 dv flops a pair over the keys within 8
 *   sigma of some query of 16 neighbours. With r = 1 a weight is computed once for 16 queries.
 * Source: You et al. 2020, arXiv 2005.00742. */
ATTN_DEF attn_status attn_hard_gaussian(attn_tensor o, attn_tensor v,
                                        const attn_hard_gaussian_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_hard_gaussian_workspace(attn_tensor o, attn_tensor v,
                                             const attn_hard_gaussian_params *params,
                                             const attn_ctx *ctx);
