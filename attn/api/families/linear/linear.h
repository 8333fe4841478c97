/* api/families/linear/linear.h owns linearised attention (family E, and G4): feature maps, the random matrices some
 * of them need, and attention over a state that does not grow with the keys. */

/* ---- random matrices ---------------------------------------------------------------------------*/

typedef struct attn_random_params {
  uint64_t seed;
  int64_t draw;   /* 0 .. 2^32 - 1: the redraw counter */
  int gaussian;   /* 1: independent normals; 0: orthogonal rows in blocks of dk */
  int unit_scale; /* of orthogonal rows: 0 = lengths of normal rows (chi), 1 = sqrt(dk) */
} attn_random_params;

/* max(1, floor(dk ln dk)), the usual number of directions of FAVOR+ for rows of width dk: 266 for 64.
 * 0 for dk < 1 or above 2^48. */
ATTN_DEF int64_t attn_random_feature_count(int64_t dk);

/* Random directions w [1, H, m, dk], f32, a matrix of its own for each head h (stream: draw, h).
 *
 *   gaussian: w[R][c] = normal number R dk + c of which = 0
 *   else, for rows R in order, v = that row; twice: for the earlier rows P of the same block, the rows
 *     with the same floor(R / dk), v -= (v . e_P) e_P; e_R = v / |v|; w[R] = l e_R with l = sqrt(dk), or
 *     the length of row R of the normals of which = 1. Sums in order, in double; stored as float.
 *
 * Rows of a matrix are those of a larger one: m may grow. Another seed, draw or head changes every
 *   number. RFA wants gaussian = 1, SOFTMAX and HYPERBOLIC orthogonal rows; params null = zeros.
 * A usual m for SOFTMAX is attn_random_feature_count(dk).
 * Aliasing: w shares no memory with the workspace. Memory: attn_random_features_workspace bytes,
 *   8 dk (min(m, dk) + 1) a worker, not a function of T. Empty: H = 0 does nothing; m is at least 1.
 * Errors: ATTN_E_NULL, _DTYPE, _SHAPE, _STRIDE, _RANGE (draw, H above 2^24), _OVERLAP, _OVERFLOW,
 *   _WORKSPACE, _MEMORY, those of ctx; ATTN_E_NUMERIC, never seen, when a row lies in the span of those
 *   before it: only then w has been written.
 * Determinism: the same numbers on every machine and tier for any number of workers, up to the last
 *   place of one float in 10^8 where registers are wider than a double (x87).
 * Cost: 4 H m dk^2 flops in double, none of them vectors: for set-up, not for each call.
 * Source: Choromanski et al. 2020, arXiv 2009.14794; Yu et al. 2016, arXiv 1610.09072. */
ATTN_DEF attn_status attn_random_features(attn_tensor w, const attn_random_params *params,
                                          attn_ctx *ctx);
ATTN_DEF size_t attn_random_features_workspace(attn_tensor w, const attn_random_params *params,
                                               const attn_ctx *ctx);

/* ---- feature maps --------------------------------------------------------------------------------
 * A map takes a row x of dk numbers to m features phi(x). With x' = sqrt(scale) x, so that x' . y' = scale
 * x . y, and directions w_r, u_r = w_r . x':
 *
 *   ELU1        x'_c + 1 where x'_c > 0, else exp(x'_c); m = dk. Of queries x' is times query_scale
 *   ACT         f(u_r) + kernel_eps, m = D; without w: f(x'_c) + kernel_eps, m = dk
 *   DPFP        with y = [relu(x'), relu(-x')]: feature (r - 1) 2 dk + j is y_j y_{(j - r) mod 2 dk},
 *               r = 1 .. order; m = 2 dk order
 *   RFA         D^-1/2 [sin u_0 .. sin u_{D-1}, cos u_0 .. cos u_{D-1}], m = 2 D, u of x' / sigma,
 *               divided column by column, x' first put on the unit sphere: x' / max(|x'|, 1e-6).
 *               keep_norm: it is not, and keys are multiplied by exp(|x'|^2 / (2 sigma^2) - c)
 *   SOFTMAX     m^-1/2 (exp(u_r - |x'|^2 / 2 - c) + eps), m = D
 *   HYPERBOLIC  the same of u, then of -u; m = 2 D
 *   USER        the callback's, of x'
 *
 * and then norm: divided by their sum (SUM) or length (L2); rows whose sum or length is 0 become 0.
 * phi(q) . phi(k) stands for exp(-|q - k|^2 / (2 sigma^2)) on the sphere (RFA), for exp(scale q . k)
 * (SOFTMAX and HYPERBOLIC, times factors that attention divides out).
 *
 * The stabiliser c keeps exponentials within range. For a query it is the largest u_r (HYPERBOLIC: |u_r|)
 * of the row itself. For keys all of a head share it, or their weights would change:
 *   ATTN_STAB_GLOBAL   the largest of all keys that exist (RFA with keep_norm: of |x'|^2 / (2 sigma^2))
 *   ATTN_STAB_CONST    key_const; a key that has a feature beyond 3.4e38 is not finite in any of them
 *   ATTN_STAB_RUNNING  the largest so far; what has been summed is scaled when it grows. Needs eps = 0.
 * With eps = 0 no c changes a result, and attn_linear, where its eps is 0 too, takes the largest of u_r -
 * |x'|^2 / 2 and leaves exp(-|x'|^2 / 2) of queries out: no size of a query makes its weights vanish,
 * and a larger key takes no more from those before it than their share. GLOBAL would let a causal row see
 * the keys after it: causal calls reject it. A norm other than NONE cancels c, row by row; it leaves eps > 0
 * to CONST.
 * The delta rules need a norm or CONST, since they are not linear in phi(k). */

typedef enum attn_feature_kind {
  ATTN_FEATURES_ELU1 = 0,   /* elu(x) + 1; Katharopoulos et al. 2020, arXiv 2006.16236 */
  ATTN_FEATURES_ACT,        /* any attn_activation, of x or of projections; arXiv 2009.14794 */
  ATTN_FEATURES_DPFP,       /* Schlag et al. 2021, arXiv 2102.11174 */
  ATTN_FEATURES_RFA,        /* Peng et al. 2021, arXiv 2103.02143; Rahimi and Recht 2007 */
  ATTN_FEATURES_SOFTMAX,    /* FAVOR+, Choromanski et al. 2020, arXiv 2009.14794 */
  ATTN_FEATURES_HYPERBOLIC, /* same source: less variance, 2 m features */
  ATTN_FEATURES_USER,       /* a callback on a tile of rows */
  ATTN_FEATURES_COUNT
} attn_feature_kind;

typedef enum attn_key_stab {
  ATTN_STAB_DEFAULT = 0, /* GLOBAL; RUNNING if causal or with a norm; CONST for delta without one */
  ATTN_STAB_GLOBAL,
  ATTN_STAB_CONST,
  ATTN_STAB_RUNNING,
  ATTN_STAB_COUNT
} attn_key_stab;

typedef enum attn_feature_norm {
  ATTN_FEATURE_NORM_DEFAULT = 0, /* NONE; SUM for the delta rules */
  ATTN_FEATURE_NORM_NONE,
  ATTN_FEATURE_NORM_SUM,
  ATTN_FEATURE_NORM_L2,
  ATTN_FEATURE_NORM_COUNT
} attn_feature_norm;

/* y[n][m] = phi of n <= 64 rows x[n][dk], both dense; x is scaled already, head is that of the rows (of
 * keys: the kv head, unless w differs from head to head), is_key 1 for keys. May be called from several
 * threads at once; must write all of y and not call attn functions with the same ctx. */
typedef void (*attn_feature_fn)(void *user, float *y, const float *x, int64_t n, int64_t m,
                                int64_t dk, int64_t head, int is_key);

/* The gradient by x of n rows of such a map: d_x[n][dk] from d_y[n][m], the gradient by y, and y itself, before map.norm.
 * On the same terms; called by gradients alone. */
typedef void (*attn_feature_back_fn)(void *user, float *d_x, const float *d_y, const float *y,
                                     const float *x, int64_t n, int64_t m, int64_t dk, int64_t head,
                                     int is_key);

typedef struct attn_feature_map {
  attn_feature_kind kind;
  attn_feature_norm norm;
  attn_tensor
      w; /* [1, 1 or H, D, dk] directions, any float type: RFA, SOFTMAX, HYPERBOLIC; ACT may */
  uint64_t seed; /* w came from (kept in a state, which rejects others) */
  int64_t draw;
  float
      scale; /* of the score q . k, as in attn_sdpa: 0 = 1, of SOFTMAX and HYPERBOLIC 1/sqrt(dk); not
                * negative, of these two positive; ATTN_ZERO = 0 */
  float query_scale;          /* ELU1: of queries beside it; 0 = 1, ATTN_ZERO = 0 */
  attn_activation activation; /* ACT; 0 = ATTN_ACT_NONE */
  float kernel_eps;           /* ACT with w: 0 = 1e-3, ATTN_ZERO = 0; without w: 0 = 0 */
  int64_t order;              /* DPFP: 1 .. 2 dk - 1, 0 = 1 */
  float sigma;                /* RFA: 0 = 1 */
  const float *sigmas;        /* RFA: [dk], in place of sigma; not with keep_norm */
  int keep_norm;              /* RFA: 1 = x is not put on the unit sphere */
  attn_key_stab key_stab;     /* SOFTMAX, HYPERBOLIC */
  float key_const;
  float eps; /* of those: 0 = 1e-4 with GLOBAL and CONST, 0 with RUNNING or a norm; ATTN_ZERO = 0 */
  int64_t features; /* USER: m */
  attn_feature_fn fn;
  void *user;
  attn_feature_back_fn back; /* USER: wanted by gradients */
} attn_feature_map;

/* m of a map for rows of width dk; 0 when the map is not valid. */
ATTN_DEF int64_t attn_feature_count(const attn_feature_map *map, int64_t dk);

/* y [B,H,T,m] = phi(x), x [B,H,T,dk], f32, f16 or bf16 with any strides. is_key 1: the form of keys,
 * where RUNNING is GLOBAL with eps = 0, c being the largest of the T rows of a (batch, head).
 *
 * Aliasing: y shares no memory with x, w and sigmas. Memory: attn_features_workspace bytes: w as f32,
 *   256 (dk + m) and some KB a worker, and with a stabiliser of keys 4 bytes for 64 rows, O(T).
 * Empty: B, H or T of 0 does nothing. NaN: stays in its row. It is stored as the one default NaN.
 * Errors: ATTN_E_NULL, _DTYPE, _SHAPE, _STRIDE, _RANGE (an enumeration, order), _VALUE (a number that
 *   is NaN, infinite or of the wrong sign, or excluded above), _OVERLAP, _OVERFLOW, _WORKSPACE,
 *   _MEMORY, _ALIGN, those of ctx; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon and for any number of workers; rows without a
 *   common stabiliser do not depend on each other.
 * Error: of u, that of attn_gemm. Beside it ELU1 1.5e-7 + 1e-7 |x'|, SOFTMAX and HYPERBOLIC 2e-6 + 3e-7
 *   (|u| + |x'|^2 + |c|), both relative, exponentials below 2^-126 of the largest being 0; RFA 2e-7 D^-1/2
 *   absolute for any u (|u| above 8192 is slow); ACT that of attn_gemm's activation; sums 1e-6.
 * Cost: 2 B H T D dk flops, and an exponential or a sine and cosine a feature. */
ATTN_DEF attn_status attn_features(attn_tensor y, attn_tensor x, const attn_feature_map *map,
                                   int is_key, attn_ctx *ctx);
ATTN_DEF size_t attn_features_workspace(attn_tensor y, attn_tensor x, const attn_feature_map *map,
                                        int is_key, const attn_ctx *ctx);

/* ---- attention over a linear state ---------------------------------------------------------------*/

/* What a key does to the state: p = phi(k_t), S [m, dv], z [m]. */
typedef enum attn_linear_rule {
  ATTN_LINEAR_SUM = 0,    /* S += p^T v, z += p; Katharopoulos et al. 2020, arXiv 2006.16236 */
  ATTN_LINEAR_DECAY,      /* S = a_t S + p^T v, z = a_t z + p */
  ATTN_LINEAR_GATED,      /* S = a_t S + (1 - a_t) p^T v, z likewise; arXiv 2103.02143 */
  ATTN_LINEAR_DELTA,      /* S += b_t p^T (v - p S), z += p; Schlag et al. 2021, arXiv 2102.11174 */
  ATTN_LINEAR_DELTA_ATTN, /* kappa = z p (1 for the first key), S += b_t p^T (v - p S / kappa),
                           * z += p; same source */
  ATTN_LINEAR_COUNT
} attn_linear_rule;

/* What a row reads of the keys of its call. */
typedef enum attn_linear_causal {
  ATTN_LINEAR_CAUSAL_DEFAULT = 0, /* as the rule's paper: SUM all, the other rules causal */
  ATTN_LINEAR_CAUSAL,             /* row i the state after key min(i + q_off, Tk - 1) */
  ATTN_LINEAR_BIDIRECTIONAL,      /* the state after the last key */
  ATTN_LINEAR_CAUSALS
} attn_linear_causal;

/* What a row p = phi(q_i) divides by. */
typedef enum attn_linear_den {
  ATTN_LINEAR_DEN_DEFAULT = 0, /* DELTA: NONE; RFA: CLAMP; else ADD */
  ATTN_LINEAR_DEN_NONE,        /* o = p S */
  ATTN_LINEAR_DEN_ADD,         /* o = p S / (p z + eps) */
  ATTN_LINEAR_DEN_CLAMP,       /* o = p S / max(p z, eps) */
  ATTN_LINEAR_DEN_COUNT
} attn_linear_den;

typedef struct attn_linear_params {
  attn_feature_map map; /* 0 = elu(x) + 1; given factors (o = U W^T V): ATTN_FEATURES_ACT alone */
  attn_linear_rule rule;
  int causal;    /* attn_linear_causal; 1 = causal whatever the rule */
  int has_q_off; /* as in attn_sdpa_params: 0 = q_off is k.len - q.len */
  int64_t q_off;
  const int32_t *kv_len, *q_len; /* [B], optional: keys and rows that exist */
  attn_tensor rate;              /* a_t or b_t: [1 or B, 1 or Hkv, Tk, 1], any float type */
  const float *rate_head;        /* [Hkv], where rate is absent */
  float rate_const;              /* where both are: 0 = 1, ATTN_ZERO = 0; GATED wants one of them */
  attn_linear_den den;
  float eps; /* 0 = 1e-4 for CLAMP, 1e-6 for ADD with ELU1, else 0; ATTN_ZERO = 0. In units of the
                    * features: with a running c, of the largest of the keys that the row sees */
  float out_scale; /* 0 = 1, ATTN_ZERO = 0 */
  int64_t chunk;   /* keys that join the state at once: 1 .. 64, 0 = 64 */
  void *state;     /* in and out, optional: made by attn_linear_begin */
  size_t state_bytes;
} attn_linear_params;

/* Attention over a state of fixed size (Katharopoulos et al. 2020, arXiv 2006.16236, and the sources of
 * the rules): keys and values are summed up in S and z, key after key by `rule`, and
 *
 *   o[b,h,i] = out_scale phi(q_i) S / den,   den by `den` from phi(q_i) . z
 *
 * with S and z after the keys that row i sees: after key min(i + q_off, Tk - 1) if causal, else after
 * the last. With ATTN_LINEAR_SUM that is sum_j (phi(q_i) . phi(k_j)) v_j over the sum of the weights.
 * o [B,H,Tq,dv], q [B,H,Tq,dk], k [B,Hkv,Tk,dk], v [B,Hkv,Tk,dv]; f32, f16 or bf16, any strides; Hkv
 * divides H. Neither the weights nor a state a key exist anywhere.
 *
 * Rates a_t of DECAY and GATED lie in 0 .. 1; b_t is any finite number. Without any, a_t and b_t are 1.
 * The delta rules want features of
 * sum or length 1, and norm them by their sum unless map.norm says otherwise.
 * With a state the call goes on from the keys before, and leaves the state after its own: a token a
 * call, or any number. A call without rows only absorbs; one without keys, not causal, only reads. A
 * state is for one map.key_stab, and the default differs with causal: to read a state of a causal stream
 * of SOFTMAX or HYPERBOLIC by a call that is not causal, name ATTN_STAB_RUNNING in both.
 *
 * Aliasing: o and state share no memory with each other and the inputs; inputs may overlap.
 * Memory: attn_linear_workspace bytes: w as f32, and a worker has 12 m dv + 512 dv + 256 dk + 768 m and
 *   18 KB (16 KB more with rates and with a running c, and of SOFTMAX and HYPERBOLIC), dv in whole 16s;
 *   without order each state head 8 m dv more. Where workers outnumber heads and keys are many each head has two
 *   more of these, and one for each 1024 keys (4096 without order): the only part that grows with T.
 * Errors: ATTN_E_NULL, _DTYPE, _SHAPE, _HEADS, _STRIDE, _ALIGN, _OVERLAP, _OVERFLOW, _WORKSPACE,
 *   _MEMORY, those of ctx and of the map; _RANGE for rule, causal, den, chunk, q_off, kv_len, q_len, a rate with
 *   ATTN_LINEAR_SUM, and a gate over random features that is not causal; _VALUE for eps, out_scale or a
 *   rate (arrays of b_t are not searched for NaN), for ATTN_LINEAR_DEN_NONE with a map whose features
 *   carry a factor of their own (SOFTMAX, HYPERBOLIC, RFA with keep_norm, without a norm), and for a
 *   state made for another rule, map, seed or draw. A state that waits for a last key (ATTN_STAB_GLOBAL with eps) is
 *   none.
 * Empty: rows that see no key (i + q_off < 0; no keys and no state), rows beyond q_len, and rows whose
 *   denominator is 0 (or subnormal) are 0.
 * NaN and infinity reach the rows that see them, and no row before; a state keeps them, infinity as itself
 *   or as NaN, NaN as the one default NaN. A running c does not follow them.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers and any batch; chunk,
 *   and how a stream is cut into calls, change the rounding. No bit of a causal row depends on a later
 *   token of the call, as long as 5 keys or more, or 5 rows, make it a call of chunks.
 * Error: about 1e-6 of the same sums taken over magnitudes, whatever T and however a stream is cut into
 *   calls: sums are joined by 32 to 256 keys, with what the joining loses beside them.
 * Cost: 4 T m dv flops and the features; causal also T chunk (m + dv), DELTA T chunk (2 m + 2 dv + ..)
 *   + 2 T m dv more. Up to 4 keys and rows a call are done key by key: S is read once, what is not yet in it
 *   read and written once, and every 32 keys both join. */
ATTN_DEF attn_status attn_linear(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                 const attn_linear_params *params, attn_ctx *ctx);

/* Bytes of workspace that attn_linear wants, or ATTN_WORKSPACE_REJECTED. */
ATTN_DEF size_t attn_linear_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                      const attn_linear_params *params, const attn_ctx *ctx);

/* A state is a block of bytes without pointers, aligned to 8: saving, copying and rolling back are
 * memcpy, between machines of one byte order. For each batch entry and state head it has S [m, dv],
 * z [m], for each of them what is not yet in it (of single tokens, and of roundings), and the running
 * stabiliser as f32, behind a header that names sizes, rule and map with seed and draw; a call with others
 * is rejected (w and sigmas themselves are not kept: seed and draw stand for them). State heads: kv_heads,
 * or heads where map.w differs from head to head. Memory of the state: about 8 B heads m (dv + 1) bytes, dv
 * in whole 16s. 0 when attn_linear_begin would reject. */
ATTN_DEF size_t attn_linear_state_bytes(const attn_linear_params *params, int64_t batch,
                                        int64_t heads, int64_t kv_heads, int64_t dk, int64_t dv);

/* Makes an empty state in `bytes` bytes for calls with these params (rule, map and causal are read) and
 * sizes. Errors: ATTN_E_NULL, _ALIGN, _SHAPE (sizes, or too few bytes), _HEADS, _RANGE, _OVERFLOW, those
 * of the map and of ctx. Cost: as memset. */
ATTN_DEF attn_status attn_linear_begin(void *state, size_t bytes, const attn_linear_params *params,
                                       int64_t batch, int64_t heads, int64_t kv_heads, int64_t dk,
                                       int64_t dv, attn_ctx *ctx);

/* Views of S [B, heads, m, dv] and z [B, heads, 1, m] inside a state, which brings S up to date: a call of
 * few tokens leaves some of them beside it, so view again after such a call (later results may round
 * differently for it). Either may be null. Features of maps with a running stabiliser are in units of their
 * own. Errors: ATTN_E_NULL, _ALIGN, _SHAPE, _VALUE (the bytes are no state), those of ctx. */
ATTN_DEF attn_status attn_linear_view(void *state, size_t bytes, attn_tensor *s, attn_tensor *z,
                                      attn_ctx *ctx);
