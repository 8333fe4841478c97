/* api/families/linear/recurrent.h owns attention over a state that fades and corrects itself: the rules of retention,
 * gated linear attention, state spaces and delta rules. */

/* What a token does to the state S [dk, dv] of its head. w: what it leaves of each channel (decay), 1 where absent. */
typedef enum attn_recurrent_rule {
  ATTN_RECURRENT_DPLR = 0,  /* S = diag(w) S + b (a^T S) + k v^T, a and b as given, absent = 0 */
  ATTN_RECURRENT_RETENTION, /* S = w S + k v^T; decay absent: w_h = 1 - 2^(-5-h); arXiv 2307.08621 */
  ATTN_RECURRENT_LIGHTNING, /* the same, absent: log w_h = -2^(-8(h+1)/H) (1 - l/(L-1+1e-5) + 1e-5) of layer l of L;
                         * 2401.04658 */
  ATTN_RECURRENT_GLA,   /* S = diag(w) S + k v^T; 2312.06635 */
  ATTN_RECURRENT_HGRN2, /* the same with k = 1 - w: k must be absent; 2404.07904 */
  ATTN_RECURRENT_MAMBA2, /* S = exp(-exp(a_log) D) S + k (D v)^T, D = clip(softplus(dt + dt_bias)); o += skip v;
                         * 2405.21060 */
  ATTN_RECURRENT_DELTA, /* S = S + beta k (v - k^T S)^T; 2102.11174, 2406.06484 */
  ATTN_RECURRENT_GATED_DELTA, /* gated delta, scalar or vector w: S = diag(w) S, then DELTA's step; 2412.06464 */
  ATTN_RECURRENT_KDA,   /* the same; 2510.26692 */
  ATTN_RECURRENT_RWKV6, /* S as GLA; o = s (q^T S_old + (q . (bonus o k)) v); 2404.05892 */
  ATTN_RECURRENT_RWKV7, /* DPLR with a = -r, b = r o e: r in `a`, a unit vector, its rate e in `b`; 2503.14456 */
  ATTN_RECURRENT_MLSTM, /* S = f S + i k v^T, n = f n + i k under a running maximum m; 2405.04517 */
  ATTN_RECURRENT_COUNT
} attn_recurrent_rule;

/* What the numbers of a decay are. */
typedef enum attn_recurrent_form {
  ATTN_RECURRENT_LOG = 0, /* log w <= 0, -inf is 0 */
  ATTN_RECURRENT_FACTOR,  /* w in 0 .. 1 */
  ATTN_RECURRENT_LOGIT,   /* MLSTM, one number a token: w = sigmoid(x), any x */
  ATTN_RECURRENT_FORMS
} attn_recurrent_form;

typedef struct attn_recurrent_params {
  attn_recurrent_rule rule;
  float scale; /* s: 0 = dk^-1/2; of LIGHTNING, MAMBA2, RWKV6, RWKV7 1; ATTN_ZERO = 0 */
  /* [1 or B, Hx, 1 or T, 1 or dk]: a head's, a token's, a channel's. Optional but for HGRN2, whose dim is dk, and
   * MLSTM; absent for DELTA and MAMBA2 */
  attn_tensor decay;
  attn_recurrent_form form;
  attn_tensor a, b;  /* [1 or B, Hx, T, dk]: DPLR both or none, RWKV7 both */
  attn_tensor beta;  /* [1 or B, Hx, T, 1]: DELTA, GATED_DELTA, KDA; absent = 1; any number */
  attn_tensor bonus; /* [1, Hx, 1, dk]: RWKV6 */
  attn_tensor gate;  /* [1 or B, Hx, T, 1]: MLSTM's log i, any number */
  float eps;         /* MLSTM: 0 = 1e-6, ATTN_ZERO = 0 */
  attn_tensor dt;    /* [1 or B, Hx, T, 1]: MAMBA2 */
  const float *a_log, *dt_bias, *skip; /* [H]: MAMBA2; dt_bias and skip optional */
  float dt_min, dt_max;                /* bounds of D: 0 = none above */
  int64_t layer, layers;               /* LIGHTNING: layer l from 0 of L; layers 0 = 1 */
  int l2norm_qk; /* 1: q and k are divided by sqrt(sum x^2 + 1e-6) of their row first */
  /* f32 [B or N, H, dk, dv], optional; absent = 0, not kept. They may be one: in place */
  attn_tensor initial_state, final_state;
  int state_transposed;           /* 1: these are [.., dv, dk] */
  attn_tensor initial_n, final_n; /* MLSTM: f32 [B or N, H, 1, dk], there with the states */
  attn_tensor initial_m, final_m; /* MLSTM: f32 [B or N, H, 1, 1]; without a state m begins at 0 */
  const int32_t *len;             /* [B], optional: tokens that exist */
  const int32_t *cu_seqlens;      /* [N + 1], optional: sequences end to end in T, with B = 1 */
  int64_t sequences;              /* N */
  const uint8_t *reset; /* [B, T], optional: not 0 = the state is cleared before that token */
  int64_t chunk;        /* tokens that join the state at once: 1 .. 64, 0 = 64 */
  attn_tensor
      lambda; /* log-linear: [1 or B, Hx, T, L], weights of the levels of the past (below) */
  const int64_t *position; /* [B or N], with lambda: tokens before the call; null = 0 */
} attn_recurrent_params;

/* Attention over a state that fades and corrects itself: token after token the state of a head goes on by `rule`, and
 *
 *   o[b,h,t] = s q_t^T S_t       S_t after token t; RWKV6: before it, with a bonus for its own key
 *
 * o [B,H,T,dv], q, k [B,Hx,T,dk], v [B,Hx,T,dv], f32, f16 or bf16, any strides. H is the largest head count of q, k
 * and v; every head count Hx divides it, and head h reads head floor(h Hx / H). No T x T array and no state a token
 * exists anywhere. In words: DELTA's step reads what the decayed state holds for its key, and writes the difference to
 * the value; beta beyond 0 .. 1 is not rejected. With MLSTM log f is the decay, and
 *
 *   m_t = max(log f_t + m, i_t), f = exp(log f_t + m - m_t), i = exp(i_t - m_t)
 *   o   = s q^T S / (max(|s q . n|, exp(-m_t)) + eps), with exp(0) where m_t is -inf
 *
 * A decay whose logs are -inf in all channels of a token is a reset there (but for a and b, whose b (a^T S) survives,
 * and RWKV6, whose token reads the state before it fades): nothing before it, NaN and MLSTM's m included, reaches
 * that token (of RWKV6 the next one) or a later one. The caller's are: SiLU of LIGHTNING, log w = -exp(x) of RWKV6
 * and -exp(-0.5) sigmoid(x) of RWKV7, unit keys of the delta rules (l2norm_qk, or not).
 *
 * lambda makes it log-linear: token j of a sequence, counted from 0, is at token t in the level that counts the bits of
 * t ^ j, so level 0 is t itself and level l > 0 holds 2^(l-1) tokens or none. Each level is a state S^l that goes on by
 * the rule, the newest token alone is written to level 0, and
 *
 *   o[b,h,t] = s sum_l lambda[b,h,t,l] q_t^T S_t^l       s = 1 unless given, whatever the rule
 *
 * All lambda = 1 is the plain rule. L is at least floor(log2(t)) + 2 of the last token t (1 of t = 0); the states
 * are [B or N, H, L dk, dv], level after level ([.., L dv, dk] transposed), as the last token left them, and
 * `position` says how many tokens of a sequence they stand for; it must be there with an initial state, which is not
 * read where it is 0 (but for a sequence without tokens, whose state passes through). Levels without tokens are not
 * read; behind the call they are 0 (in place: as they were, where they had none before). A reset, or a decay of
 * nothing, clears all levels, and positions go on. Rules that have it: all but RWKV6, which reads the state before
 * its token, and MLSTM, whose output is a quotient.
 *
 * Aliasing: o and the final arrays share no memory with each other and the inputs, but that final_state (and _n, _m)
 *   may be initial_state, with the same strides.
 * Memory: attn_recurrent_workspace bytes: a worker has at most 8 dk dv + 2600 dk + 800 dv + 70 KB, whatever T; with
 *   lambda (8 L + 4) dk dv + 256 dv + 50 KB more; dv stands for itself rounded up to a multiple of 16.
 * Errors: ATTN_E_NULL, _DTYPE, _SHAPE, _HEADS, _STRIDE, _ALIGN, _OVERLAP, _OVERFLOW, _WORKSPACE, _MEMORY, those of
 *   ctx; _RANGE for rule, form, chunk, layer, len, cu_seqlens, position, and what another rule has no use for;
 *   _VALUE for w outside 0 .. 1, log w above 0 or NaN, scale, eps, dt_min, dt_max. Outputs are untouched then.
 * Empty: T = 0, or a sequence without tokens, writes no row and leaves the initial state as the final one. Rows beyond
 *   len are 0. A zero key, beta = 0 and w = 0 make no NaN.
 * NaN and infinity reach the rows that read them, and no row before; states keep NaN as the one default NaN.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers and any batch; chunk and how a
 *   stream is cut into calls change the rounding. No bit of a row depends on a later token of the call, as long as
 *   its sequence stays longer than 4.
 * Error: within 1e-5 of the row's size at T = 4096 for contractive transitions (beta k . k <= 2), the same from one
 *   token a call as from chunks to 2e-5. Within a call sums carry what rounding takes; a state between calls is one
 *   f32.
 *   Decays meet as products, never as quotients: e^-80 in a chunk is as exact as 1. What is subnormal counts as 0
 *   (x86-64, 64-bit ARM), inputs included.
 * Cost: 2 T (2 dk dv + C (dk + dv)) flops a head with C = 64, delta rules and DPLR about twice, and with decays by
 *   channel 26 dk more for each token and reader; up to 4 tokens a call are done one by one: S is read and written
 *   once. With lambda 2 dk dv more for each token and level that holds tokens before its chunk, of which log2(T /
 *   64) / 2 are there on average, delta rules and DPLR three times that: T log T in all; all calls are chunks.
 * Source of lambda: Guo et al. 2025, arXiv 2506.04761. */
ATTN_DEF attn_status attn_recurrent(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                    const attn_recurrent_params *params, attn_ctx *ctx);

/* Bytes of workspace that attn_recurrent wants, or ATTN_WORKSPACE_REJECTED. */
ATTN_DEF size_t attn_recurrent_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                         const attn_recurrent_params *params, const attn_ctx *ctx);
