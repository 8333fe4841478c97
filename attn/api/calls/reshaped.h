/* api/calls/reshaped.h owns attention whose softmax is replaced, sharpened, given a forgetting factor or a
 * gate. */

/* What turns the scores x_ij of a row into weights; A_i are its allowed keys, n_i their number.
 *   SOFTMAX   as attn_sdpa
 *   SIGMOID   sigmoid(x_ij + bias), each key by itself. Ramapuram et al. 2024, arXiv 2409.04431
 *   SOFTPICK  relu(e_j) / (sum_l |e_l| + 1e-8), e_j = exp(x_ij - m) - exp(-m), m = max(0, max_l x_il): keys with
 *             x_ij <= 0 have no weight. Zuhri et al. 2025, arXiv 2504.20966
 *   STICK     sigmoid(x_ij) prod_{j < l < p_i} (1 - sigmoid(x_il)), j < p_i: each key takes its share of what the
 *             later ones have left. Tan et al. 2024, arXiv 2410.17980
 *   ENTMAX    max(0, (alpha - 1) x_ij - tau_i)^(1/(alpha - 1)), tau_i such that they sum to 1: keys far below the
 *             best one have weight 0. alpha 2 is sparsemax; 1 would be the softmax. Peters et al. 2019, arXiv
 *             1905.05702; Correia et al. 2019, arXiv 1909.00015 */
typedef enum attn_reshape_kind {
  ATTN_RESHAPE_SOFTMAX = 0,
  ATTN_RESHAPE_SIGMOID,
  ATTN_RESHAPE_SOFTPICK,
  ATTN_RESHAPE_STICK,
  ATTN_RESHAPE_ENTMAX
} attn_reshape_kind;

/* Scalable softmax: x_ij becomes (scale_h log n_i + bias_h) x_ij, biases of the score included. scale [H], null
 * = absent; bias [H], null = 0. Source: Nakanishi 2025, arXiv 2501.19399. */
typedef struct attn_ssmax {
  const float *scale, *bias;
} attn_ssmax;

/* Temperature by position: q_i (1 + beta log(floor((p_i + shift) / interval) + 1)), p_i + shift below 0 counting as
 * 0. As the layers of Llama 4 without rotary embeddings have it (attn_temperature_tuning, attn_scale,
 * floor_scale). */
typedef struct attn_temperature {
  int on;
  float beta;     /* 0 = 0.1, ATTN_ZERO = 0 */
  float interval; /* > 0; 0 = 8192 */
  float shift;    /* 0 = 1; ATTN_ZERO = 0, for models that take p_i itself */
} attn_temperature;

/* The sum of log f up to a key, counted from `since`: the last key so far with log f = -inf, or 0. */
typedef struct attn_forget_sum {
  double sum;
  int64_t since;
} attn_forget_sum;

/* A forgetting gate: x_ij gets sum_{l = j+1 .. p_i} log f_l, after everything else. f of the key itself does not
 * count, f of the query's position does. log_f [B,Hf,Tk,1], Hf divides H (head h reads h Hf / H), f32, f16 or
 * bf16, <= 0; -inf: the past is cut off there, so row p_i sees no key before it. Wants causal = ATTN_CAUSAL_END or
 * ATTN_CAUSAL_START, and every p_i within the keys. Positions from kv_len on are not read and count as f = 1.
 * sums [B,Hf,Tk], or null: the sums kept beside a cache, which are otherwise in the workspace (16 Hf Tk bytes a
 * batch entry). Those of the first `known` keys are read, the others up to kv_len are written, so that a step of
 * decoding adds what is new.
 * Source: Lin et al. 2025, arXiv 2503.02130. */
typedef struct attn_forget {
  attn_tensor log_f;     /* data null = absent */
  attn_forget_sum *sums; /* in and out, optional */
  int64_t known;         /* 0..Tk; with sums */
} attn_forget;

/* Contextual positions: key j of row i is at P_ij = min(sum_{l = j .. p_i} sigmoid(x_il), npos - 1), the keys of the
 * row alone, and x_ij gets what lies there between two rows of a table: (1 - t) q_i . e_n + t q_i . e_n+1, n + t =
 * P_ij, after everything else. The key at p_i has its own gate as position. q_i is as given, without scale or
 * temperature. table [1, 1 or H, npos, dk] f32, 1 <= npos <= 2^22: rows e_0 .. e_npos-1. Wants causal = ATTN_CAUSAL_END or
 * ATTN_CAUSAL_START; not for STICK and ENTMAX, and without schedule, keep, xl and span.
 * Source: Golovneva et al. 2024, arXiv 2405.18719. */
typedef struct attn_cope {
  attn_tensor table; /* data null = absent */
} attn_cope;

/* Selective attention: what row l of head 0 looks at is taken from the scores of the rows after it, in every head:
 * x_ij becomes x_ij - sum_{l < i} R_lj, R_lj = max(x0_lj, 0) of head 0's score after everything else; 0 for a key that
 * row l may not see there, for the key at p_l and, unless first = 1, for key 0. A query so decides what later ones
 * need no more.
 * sums [B,Tk], in and out, or null: what the rows before this call have taken from each key, and then with those of
 * this call, natural. Keys from q_off on have lost nothing: what stands there is not read. Needed where q_off > 0,
 * by decoding and chunks of rows. Wants causal = ATTN_CAUSAL_END or ATTN_CAUSAL_START; not for ENTMAX and not with cope,
 * and without schedule, keep, xl and span.
 * Source: Leviathan et al. 2024, arXiv 2410.02703. */
typedef struct attn_selective {
  int on;
  int first;
  double *sums;
} attn_selective;

/* Transitions between a query and the keys before it, PaTH: in place of s q_i^T k_j stands
 *   s q_i^T H_p_i H_(p_i - 1) .. H_(j + 1) k_j,   H_t = I - beta_t w_t w_t^T
 * and what attn_sdpa and the fields here add comes after that. The key at p_i meets no transition. w [B,Hk,Tk,dk]
 * are unit vectors, beta [B,Hk,Tk,1] lies in 0..2, both by head of k and position, f32, f16 or bf16; neither without
 * the other. beta_t = 0 or w_t = 0 leaves token t out. Every token behind key j up to row i counts, also one whose
 * key the row may not see: masks and windows take keys away, no transitions. Tokens from kv_len on are not read and
 * count as none. A w_t that is not finite, or longer than 1.25, makes the scores of all j < t <= p_i NaN, whatever
 * beta_t, and no others.
 * Wants causal = ATTN_CAUSAL_END or ATTN_CAUSAL_START, and every p_i within the keys; not with selective, and without
 * schedule, keep, xl and span. Other terms that keys and queries have (relative, labels, cope) take them as given.
 * attn_path_turn keeps a cache for which decoding is plain attention.
 * Source: Yang et al. 2025, arXiv 2505.16381. */
typedef struct attn_path {
  attn_tensor w, beta; /* data null = absent */
} attn_path;

/* {0} is attn_sdpa.
 * bias: of SIGMOID, added to every score; without has_bias it is -log n, n = Tk (kv_len where that is given), or n_i
 *   with by_row.
 * include_self: of STICK, 1: the key at p_i takes part (j <= p_i). remainder, 1: O_i gets what is left of the stick
 *   times the value at p_i, if it is one of the kv_len.
 * norm: q and k are normed, as attn_rope does it without a rotation, where queries are packed and keys are read:
 *   nothing of the normed rows is stored. `after` is not read (q and k are as they come, rotated or not); with L2
 *   attention.scale 0 is 1. Not RMS_ALL; without cope and path, and schedule, xl, relative.keys, relative.queries
 *   and labels of attention.
 * gate [B,H,Tq,1] or [B,H,Tq,dv], f32, f16 or bf16: O becomes O sigmoid(gate). Qiu et al. 2025, arXiv 2505.06708.
 * alpha: of ENTMAX, above 1 and at most 2; 0 = 1.5; or alphas [H], not null. support [B,H,Tq,1] f32, out: the number
 *   of keys that have a weight, up to 2^24; ENTMAX.
 * sum [B,H,Tq,1] f32, out: the sums of the rows' weights, without the remainder; SIGMOID and STICK.
 * attention: scale, allowed set, terms and storage as in attn_sdpa; lse, map of WEIGHTS or SCORES, sinks,
 *   softmax_one, span and relative.values for SOFTMAX alone; without ragged, q_offs, align_lengths, modify_weights and
 *   compute. STICK wants causal, and no schedule, keep or xl; ENTMAX no
 *   schedule of several phases. */
typedef struct attn_reshaped_params {
  attn_reshape_kind kind;
  int has_bias, by_row;
  float bias;
  int include_self, remainder;
  attn_ssmax ssmax;
  attn_temperature temperature;
  attn_forget forget;
  attn_cope cope;
  attn_selective selective;
  attn_path path;
  const attn_qk_norm *norm; /* null = none: q and k as they are */
  attn_tensor gate;         /* data null = absent */
  attn_tensor sum;          /* out, optional */
  float alpha;
  const float *alphas;
  attn_tensor support; /* out, optional */
  attn_sdpa_params attention;
} attn_reshaped_params;

#if ATTN_HAS_RESHAPED
/* Attention with other weights than those of a softmax, or with what goes around one; all of it combines.
 *
 *   x_ij = (ssmax_i) score_ij + sum_{l=j+1..p_i} log f_l,   score_ij as attn_sdpa's with q_i temperature_i
 *   x_ij + q_i . e(P_ij)                                    with params.cope, whose gates are those of x_ij
 *   x_ij - sum_{l < i} max(x0_lj, 0)                        with params.selective
 *   score_ij of k_j and H_(j+1) .. H_p_i q_i                with params.path
 *   O_i  = sigmoid(gate_i) sum_{j in A_i} w_ij v_j,         w as params.kind says
 *
 * Shapes, aliasing, NaN: as attn_sdpa; gate, log_f, sums and the arrays share no memory with an output. A forbidden
 *   pair has weight 0 whatever is stored there. With SOFTMAX, lse and map are those of x. NaN in gate reaches its
 *   numbers of rows that have a weight. With ENTMAX a value without weight reaches nothing either.
 * n_i (SSMAX, by_row): keys that lengths, windows, masks and schedules allow and whose score is not -inf, up to 2^24;
 *   where more than lengths and windows say so, a first pass counts them. A row with one key has its value with
 *   SSMAX.
 * Memory: attn_reshaped_workspace bytes: as attn_sdpa, for counting 12 bytes a row, for log_f without sums 16 bytes
 *   a key and head of log_f, for norm 12 bytes a key and head of k (none for up to 64 rows that share keys), and 768
 *   dk a worker, for ENTMAX 256 bytes a key and worker (512 with keep), for cope 256 (dk + npos + 31) bytes a
 *   worker, for path 4 (dk^2 + 128 dk + 16400) bytes a block of 128 keys that rows may see and head of k, and 1536
 *   dk + 65664 a worker, for selective 264 bytes a key and batch entry and 32 KB a worker. No Tq x Tk array.
 * Few queries: as attn_sdpa with SOFTMAX where no pass counts, without cope, selective, path and norm; else a call
 *   of up to 64 rows is one tile, all keys of it one after another. Heads that share keys share their reading unless
 *   log_f has more heads than k and v.
 * Empty: as attn_sdpa; a row without keys: O = 0, sum = 0, LSE = -inf.
 * Precision: with path a query errs by about 2^-22 of its length for each 128 keys that it passes; heads of fewer than
 *   64 columns by more where beta is near 2, so that transitions only turn: 2^-17 with 12 columns, 2^-14 with 2. An
 *   infinite number in k makes its scores NaN. Gates of cope are summed as sticks are. SIGMOID: weights to a few ulp,
 *   however small. STICK: sums of log(1 - sigmoid) are compensated over blocks. SOFTPICK: e_j to a few ulp, near x = 0 too.
 *   ENTMAX: tau to an ulp or two of 1, and the weights, which are divided by their sum, to 2^-21 / (alpha - 1) of
 *   the largest. Sums of log f are doubles; a difference of two errs by (p - j) 2^-53 of the sum itself, far below
 *   an ulp of a score.
 *   norm: as attn_rms_norm and attn_layer_norm, to f32.
 * Errors: those of attn_sdpa; of norm as attn_rope; NULL (path.w without beta, beta without w, sums or known without
 *   log_f, selective.first or sums without on, q_off > 0 of selective without sums), RANGE (kind, flags, fields that
 *   must be absent, known, a position past the keys, log_f cope, selective or path without causal, npos), VALUE
 *   (numbers that are not finite, log_f above 0 or NaN, path.beta outside 0..2 or NaN), SHAPE, HEADS, DTYPE, ALIGN,
 *   OVERLAP, SCHEDULE (of several phases, with ENTMAX); outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers and batch composition; classes of
 *   calls as attn_sdpa. No bit of a row depends on a later token. Cost: as attn_sdpa; SIGMOID a division a pair
 *   more, STICK an exponential and a logarithm,
 *   SOFTPICK and log_f a few operations, SSMAX behind biases one; ENTMAX some passes over a tile's scores; cope a
 *   division, an exponential and two gathers a pair as long as P_ij < npos - 1, then an addition, and 2 npos dk a
 *   row; selective the scores of one head more and a few operations for each of them, and workers meet twice for 64
 *   rows. Times of the call with {0} (2048 rows, causal, d = 64, avx512): cope 1.3 with npos = 64, 3.1 with 4096;
 *   selective 2.3 of one head, 1.6 of four; path 2.0, and 1.6 with 4096 rows (1.9 with d = 128), less where heads
 *   share keys. What it makes of keys costs as much for one row as for all: attn_path_turn is for decoding. norm:
 *   1.02 to 1.1 with d = 64 and 128 (avx2, avx512), up to 1.2 with 128 rows. */
ATTN_DEF attn_status attn_reshaped(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                   const attn_reshaped_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_reshaped_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                        const attn_reshaped_params *params, const attn_ctx *ctx);

/* {0}: w and beta are of tokens that come after all keys, as one of a step of decoding does before its own key is
 * there. kv_len [B], or null: the keys of each batch entry; the others are not touched.
 * stored = 1: they are of the last w.len keys, each of which meets the tokens after it, as after the rows of a
 * prompt. */
typedef struct attn_path_turn_params {
  const int32_t *kv_len;
  int stored;
} attn_path_turn_params;

/* Turns the keys of a cache of attention with params.path: k_j becomes H_t .. H_(t') k_j with H_t = I - beta_t w_t
 * w_t^T of the tokens t' .. t of w that come after key j. With every key turned up to its own token, a row's
 * attention is plain: attn_sdpa over these keys, and whatever that has. A step of decoding: attn_path_turn with the
 * token's w and beta, then its key and value are stored behind the others, then attn_sdpa.
 *
 * Shapes: k [B,Hk,Tk,dk], in place, f32, f16 or bf16; w [B,Hk,n,dk] unit vectors, beta [B,Hk,n,1] in 0..2, the first
 *   token first.
 * Aliasing: k shares no memory with another argument. Memory: attn_path_turn_workspace bytes, 260 dk a worker.
 * Empty: no key or no token is a no-op.
 * NaN: a w_t that is not finite, or longer than 1.25, makes the keys before it NaN. Infinities in a key make it NaN.
 * Precision: a key errs by about 2^-23 of its length a token; f16 and bf16 are rounded to once a call, whatever n
 *   is: keep a cache of long texts in f32.
 * Errors: NULL, SHAPE, DTYPE, STRIDE, RANGE (kv_len, w.len above the keys with stored), VALUE (beta outside 0..2 or
 *   NaN), OVERLAP, ALIGN, ISA, ENV, CTX, OVERFLOW, WORKSPACE, MEMORY; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers and batch composition; of f32 also
 *   token by token and at once, but for the sign of a zero. Cost: 4 dk flops a key and token, and each key read and
 *   written once a call: a step of decoding costs 3 to 4.5 times one without it (4096 keys in the caches, f32).
 * Source: Yang et al. 2025, arXiv 2505.16381. */
ATTN_DEF attn_status attn_path_turn(attn_tensor k, attn_tensor w, attn_tensor beta,
                                    const attn_path_turn_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_path_turn_workspace(attn_tensor k, attn_tensor w, attn_tensor beta,
                                         const attn_path_turn_params *params, const attn_ctx *ctx);
#endif
