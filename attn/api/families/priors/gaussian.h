/* api/families/priors/gaussian.h owns family H: attention with a prior over positions. */

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
  int renormalize;     /* 1: weights of a row sum to 1 */
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
 *   renormalize:  w_ij = softmax of g_ij over the allowed keys
 *   o_i = sum over allowed j of w_ij v_j
 *
 * Shapes: v [B,Hv,Tk,dv], o [B,H,Tq,dv], any storage types; Hv divides H, head h reads value head
 *   h*Hv/H. Keys farther than 8 sigma from c count as weight 0; with renormalize the 8 sigma count from
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

/* What attn_average gives out. */
typedef enum attn_average_out {
  ATTN_AVERAGE_PLAIN = 0, /* h */
  ATTN_AVERAGE_RESIDUAL,  /* y + h */
  ATTN_AVERAGE_NORM,      /* LN(y + h) */
  ATTN_AVERAGE_COUNT
} attn_average_out;

typedef struct attn_average_params {
  attn_tensor w_g, b_g; /* [1,1,2d,2d], [1,1,1,2d]; w_g absent: no gate, b_g absent: 0 */
  attn_tensor w_1, b_1, w_2,
      b_2;              /* [1,1,d,f], [1,1,1,f], [1,1,f,d], [1,1,1,d]; w_1 and w_2 or neither */
  int w_transposed;     /* 1: w_g, w_1 and w_2 are [1,1,out,in], as in PyTorch checkpoints */
  const uint8_t *valid; /* [B, T] dense: 0 = padding; null: every token is real */
  attn_average_out out;
  const float *gain, *bias; /* NORM: [d]; null = 1, 0 */
  float eps;                /* NORM: 0 = 1e-6 */
  void *state;              /* in and out, optional: what attn_average_begin made */
  size_t state_bytes;
} attn_average_params;

/* The average attention network: a running mean of the rows in the place of attention, and a gate.
 *
 *   c_t = max(1, real tokens among 0..t),  avg_t = (1 / c_t) sum of the real y_u, u <= t
 *   g_t = avg_t, or relu(avg_t w_1 + b_1) w_2 + b_2
 *   [i ; f] = sigmoid([y_t ; g_t] w_g + b_g),  h_t = i y_t + f g_t;  without w_g h_t = g_t
 *
 * With a state the sums go on from the tokens it has seen, and it has seen these afterwards: a token a
 * call, segments, or all at once give the same bits.
 * Shapes: y, o [B,1,T,d], all tensors f32, f16 or bf16 of any strides. Aliasing: o and the state share no
 *   memory with anything. Memory: attn_average_workspace bytes, O(B 256 (5 d + f)) floats whatever T is,
 *   and the weights as f32; a state B (d + 1) + 4 numbers of 8 bytes.
 * Empty: B or T of 0 is a no-op. NaN: in column c of a real y_t spoils that column of o from row t on, and
 *   every column of these rows where a product (w_g, w_1) or a norm reads it; a state keeps it. In padding it
 *   spoils no mean, only row t of o where y_t itself is read: with w_g, RESIDUAL or NORM.
 * Errors: NULL, DTYPE, SHAPE (also state_bytes too few), STRIDE, RANGE (out), VALUE (eps; a state that
 *   attn_average_begin has not made for this B and d, or with counts outside 0..2^48), OVERLAP, OVERFLOW,
 *   WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; outputs and state untouched.
 * Determinism: sums are double, in the order of the tokens; the same bits for every tier but scalar, any
 *   worker count, and any division of the tokens over calls. Cost: 8 d^2 flops a token for the gate, 4 d f
 *   for the feed-forward part.
 * Source: Zhang et al. 2018, arXiv 1805.00631. */
ATTN_DEF attn_status attn_average(attn_tensor o, attn_tensor y, const attn_average_params *params,
                                  attn_ctx *ctx);
ATTN_DEF size_t attn_average_workspace(attn_tensor o, attn_tensor y,
                                       const attn_average_params *params, const attn_ctx *ctx);

/* A state without tokens, in memory aligned to 8 bytes. It has no pointers: memcpy saves and restores it.
 * attn_average_state_bytes is 0 where it does not fit the address space. Errors: NULL, SHAPE (B, d, bytes
 * too few), ALIGN, OVERFLOW, ISA, ENV, CTX; the state untouched. */
ATTN_DEF size_t attn_average_state_bytes(int64_t batch, int64_t dim);
ATTN_DEF attn_status attn_average_begin(void *state, size_t bytes, int64_t batch, int64_t dim,
                                        attn_ctx *ctx);
