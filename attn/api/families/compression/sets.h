/* api/families/compression/sets.h owns attention through a few learned rows: the blocks of the Set Transformer (F4) and
 * Luna (F5), whose cost grows with the number of rows and not with its square. */

/* ---- Set Transformer ----------------------------------------------------------------------------*/

typedef enum attn_set_form {
  ATTN_SET_PAPER = 0, /* the paper: residual of the input, product with w_o */
  ATTN_SET_REFERENCE, /* its authors' code: residual of the projected input, no w_o, no w_2 */
  ATTN_SET_COUNT
} attn_set_form;

/* The weights of one block; dm is the width of its output. */
typedef struct attn_mab_params {
  int64_t heads; /* H, a divisor of dm; 0 = 1 */
  attn_set_form form;
  attn_tensor w_q, w_k, w_v;      /* [1,1,x.dim,dm], [1,1,y.dim,dm], [1,1,y.dim,dm] */
  attn_tensor w_o;                /* [1,1,dm,dm]; PAPER only */
  int w_transposed;               /* 1: these four are [1,1,out,in], as in PyTorch checkpoints */
  attn_tensor b_q, b_k, b_v, b_o; /* [1,1,1,dm], optional */
  attn_feed_forward ff;           /* dm to dm; has a w_transposed of its own */
  int no_norm;                    /* 1: LN_0 and LN_1 are dropped */
  attn_norm norm_0, norm_1;
  float scale; /* 0 = 1/sqrt(dm), the width of the model also inside heads; ATTN_ZERO = 0 */
  const int32_t *y_len; /* [B], 0..y.len: rows of y from y_len[b] on do not exist */
} attn_mab_params;

/* Multi-head attention block of a set X that reads a set Y:
 *
 *   A = the heads softmax(s Q_h K_h^T) V_h side by side,  Q = X w_q + b_q, K = Y w_k + b_k, V = Y w_v + b_v
 *   PAPER:      H = LN_0(X + A w_o + b_o),  o = LN_1(H + ff(H))
 *   REFERENCE:  H = LN_0(Q + A),            o = LN_1(H + ff(H))
 *
 * The self-attention block SAB(X) is this call with y = x.
 * Shapes: o [B,1,n,dm]; x [1 or B,1,n,.], of width dm in PAPER form; y [B,1,m,.]. Storage types are
 *   free, y and x may be the same rows; o shares memory with nothing.
 * Lengths: y_len cuts Y alone. All n rows of x are rows of o, also where y = x.
 * Empty: B = 0 or n = 0 is a no-op; y_len = 0 or m = 0 makes A zero, the rest of the formula stays.
 * NaN: in a row of x its row of o, in a row of y within y_len all rows of its batch entry.
 * Memory: attn_mab_workspace bytes, f32: what lies between the steps of 1024 rows of X (2 dm a row, with
 *   w_2 dff more); K and V, 2 B m dm, but where n <= 1024 those of 1024 rows of Y, whose parts are joined
 *   by their LSE; a weight in panels. No n x m array.
 * Errors: NULL, DTYPE, SHAPE, HEADS (heads does not divide dm), STRIDE, RANGE (form, y_len,
 *   activation), VALUE (scale, eps), OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ALIGN, ISA, ENV, CTX; o untouched.
 * Determinism: the same bits on avx2, avx512 and neon, any number of workers; the norms' sums are f64.
 * Cost: 2 (2 n + 2 m) dm^2 flops of projections, 4 n m dm, and the feed-forward's.
 * Source: Lee et al. 2018, arXiv 1810.00825, and its authors' code. */
ATTN_DEF attn_status attn_mab(attn_tensor o, attn_tensor x, attn_tensor y,
                              const attn_mab_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_mab_workspace(attn_tensor o, attn_tensor x, attn_tensor y,
                                   const attn_mab_params *params, const attn_ctx *ctx);

typedef struct attn_isab_params {
  attn_mab_params induce;  /* MAB_0; its y_len cuts X */
  attn_mab_params restore; /* MAB_1, with weights of its own; its y_len must be null */
} attn_isab_params;

/* Induced set attention block: o = MAB_1(X, MAB_0(I, X)) with inducing points I.
 *
 * Shapes: o [B,1,n,dm]; x [B,1,n,.]; points [1 or B,1,m,dm], the learned I for all entries or one for
 *   each; m >= 1. dm is one for both blocks.
 * Memory: that of two attn_mab calls: it does not grow with n where m <= 1024. Cost: 8 n m dm flops of attention beside
 *   the products with weights: linear in n.
 * Anything else as attn_mab: y_len keeps rows of x from being read by others, each keeps its own row
 *   of o. One inducing point: all rows get the same A. */
ATTN_DEF attn_status attn_isab(attn_tensor o, attn_tensor x, attn_tensor points,
                               const attn_isab_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_isab_workspace(attn_tensor o, attn_tensor x, attn_tensor points,
                                    const attn_isab_params *params, const attn_ctx *ctx);

typedef struct attn_pma_params {
  attn_mab_params block;    /* its y_len cuts Z */
  attn_feed_forward before; /* rFF_0; all of it absent: Z as it is, which the authors' code does */
} attn_pma_params;

/* Pooling by multi-head attention: o = MAB(S, rFF_0(Z)) with seeds S, a row of o each.
 *
 * Shapes: o [B,1,k,dm]; z [B,1,n,.]; seeds [1 or B,1,k,dm]. k may exceed n.
 * Memory: that of attn_mab, and with rFF_0 B n of its output width. Anything else as attn_mab. */
ATTN_DEF attn_status attn_pma(attn_tensor o, attn_tensor z, attn_tensor seeds,
                              const attn_pma_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_pma_workspace(attn_tensor o, attn_tensor z, attn_tensor seeds,
                                   const attn_pma_params *params, const attn_ctx *ctx);

/* ---- Luna ---------------------------------------------------------------------------------------*/

/* Keys and values of one projection (the authors' default) are told by the same w_k and w_v, and no or
 * the same b_k and b_v: they are computed once. Likewise w_pk and w_pv. */
typedef struct attn_luna_params {
  int64_t heads;                  /* H of unpacking, a divisor of dm; 0 = 1 */
  int64_t pack_heads;             /* of packing, likewise; 0 = heads */
  attn_tensor w_pq, w_pk, w_pv;   /* pack: [1,1,dm,dm], [1,1,c.dim,dm] twice */
  attn_tensor b_pq, b_pk, b_pv;   /* [1,1,1,dm], optional */
  attn_tensor w_q, w_k, w_v, w_o; /* unpack: [1,1,dm,dm] */
  attn_tensor b_q, b_k, b_v, b_o; /* [1,1,1,dm], optional */
  int w_transposed;               /* 1: all w are [1,1,out,in], as in PyTorch checkpoints */
  const int32_t *c_len;           /* [B], 0..c.len: rows of c from c_len[b] on do not exist */
} attn_luna_params;

/* Luna: a short learned sequence P packs the context C, the input X unpacks it.
 *
 *   Y_P = MHA_pack(P, C)              pack_heads heads, scale sqrt(pack_heads / dm), no output product
 *   Y_X = MHA_unpack(X, Y_P) w_o + b_o,  H heads, scale sqrt(H / dm)
 *
 * Shapes: x, y_x [B,1,n,dm]; p [1 or B,1,l,dm], l >= 1; y_p [B,1,l,dm], data null: not wanted; c
 *   [B,1,m,.], absent, which is data null and dim 0: c = x, self-attention. Storage types are free;
 *   outputs share memory with nothing.
 * Lengths: c_len cuts C alone; all n rows of x are rows of y_x. There is no causal form of this call:
 *   Y_P reads all of C (attn_luna_causal).
 * Empty: B = 0 is a no-op; c_len = 0 or m = 0 makes Y_P zero, before the unpacking projections.
 * NaN: in a row of x its row of y_x; in c within c_len (which may be x), or in p, all of the batch
 *   entry; in a p of batch 1, all entries.
 * Memory: attn_luna_workspace bytes, f32: what lies between the steps of 1024 rows of X and of C, whose
 *   parts are joined by their LSE, and rows of l. It grows neither with n nor with m.
 * Errors, determinism: as attn_mab, SHAPE also for l = 0.
 * Cost: 4 l m dm + 4 n l dm flops of attention and the products with weights: linear in n and m.
 * Source: Ma et al. 2021, arXiv 2106.01540, and its authors' code. */
ATTN_DEF attn_status attn_luna(attn_tensor y_x, attn_tensor y_p, attn_tensor x, attn_tensor p,
                               attn_tensor c, const attn_luna_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_luna_workspace(attn_tensor y_x, attn_tensor y_p, attn_tensor x, attn_tensor p,
                                    attn_tensor c, const attn_luna_params *params,
                                    const attn_ctx *ctx);

typedef struct attn_luna_layer_params {
  attn_luna_params attention;
  attn_feed_forward ff;              /* dm to dm */
  int pre;                           /* 1: norms before attention and ff, plain residuals */
  attn_norm norm_x, norm_p, norm_ff; /* LN_0, LN_1, LN_2 */
} attn_luna_layer_params;

/* A Luna layer: two streams, X and P.
 *
 *   after (default):  (Y_X, Y_P) = Luna(X, P, C),  X_A = LN_0(X + Y_X),  P' = LN_1(P + Y_P)
 *                     X' = LN_2(X_A + ff(X_A))
 *   pre:  (Y_X, Y_P) = Luna(LN_0(X), LN_1(P), C),  X_A = X + Y_X,  P' = P + Y_P
 *         X' = X_A + ff(LN_2(X_A))
 *
 * P' is the p of the next layer. C absent is what Luna gets as X, normalised or not; a C that is there
 * is taken as it is. x_next has the shape of x, p_next [B,1,l,dm] is optional. Memory: that of
 * attn_luna, and of 1024 rows the middle of ff. Anything else as attn_luna. */
ATTN_DEF attn_status attn_luna_layer(attn_tensor x_next, attn_tensor p_next, attn_tensor x,
                                     attn_tensor p, attn_tensor c,
                                     const attn_luna_layer_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_luna_layer_workspace(attn_tensor x_next, attn_tensor p_next, attn_tensor x,
                                          attn_tensor p, attn_tensor c,
                                          const attn_luna_layer_params *params,
                                          const attn_ctx *ctx);

/* What takes the softmax's place where a sequence is packed before its end is known. */
typedef enum attn_luna_omega {
  ATTN_LUNA_SOFTPLUS2 = 0, /* log2(1 + 2^x) = max(x, 0) + log2(1 + 2^-|x|): the authors' */
  ATTN_LUNA_ELU1,          /* elu(x) + 1 */
  ATTN_LUNA_COUNT
} attn_luna_omega;

typedef struct attn_luna_causal_params {
  attn_luna_omega omega;
  float scale;          /* s: 0 = 1/sqrt(dk), ATTN_ZERO = 0 */
  attn_tensor k_pack;   /* Kp [B,Hp,T,dk], Hp a divisor of H; absent: k */
  const int32_t *q_len; /* [B], 0..T: tokens from len[b] on do not exist, their rows of o are 0 */
  void *state;          /* in and out, optional: made by attn_luna_begin; aligned to 8 */
  size_t state_bytes;   /* attn_luna_state_bytes or more */
} attn_luna_causal_params;

/* Causal Luna after its projections; t counts the tokens from 1, those before the state's included:
 *
 *   alpha_j = omega(s p kp_j) in R^l
 *   a_t = softmax_l((s / t) sum_{j<=t} (q_t . k_j) alpha_j),   o_t = (1 / t) sum_{j<=t} (a_t . alpha_j) v_j
 *
 * computed from KA = sum_j k_j alpha_j^T and VA = sum_j alpha_j v_j^T, 64 tokens at a time. With a
 * state the call goes on after the tokens of earlier ones and leaves it behind its last: calls of any
 * lengths one after another, a token each in decoding, give what one call gives, up to rounding.
 *
 * Shapes: o [B,H,T,dv]; q [B,H,T,dk]; k [B,Hk,T,dk], v [B,Hv,T,dv], Hk and Hv divisors of H; p [1 or B,
 *   H,l,dk], the packed queries P w_pq, l >= 1. One sequence: k.len = v.len = q.len. Storage types are
 *   free. o and the state share memory with nothing.
 * Empty: B = 0 or T = 0 is a no-op.
 * NaN and infinity in a row of k, v or kp reach o from that token on, in q its own row; never earlier
 *   rows. A state keeps them.
 * Memory: attn_luna_causal_workspace bytes, 2 l (dk + dv) floats and some tiles a worker; no T x T
 *   array, no KA for each token. The state: 2 B H l (dk + dv) floats, dv and l in whole 16s: the sums, and
 *   what is not yet in them.
 * Errors: those of attn_mab; HEADS; SHAPE: a state of other sizes, state_bytes too few; VALUE: a state
 *   that was not begun, is damaged, or has another omega or scale.
 * Determinism: the same bits on avx2, avx512 and neon and for any number of workers; 4 tokens or less
 *   at the end of a call or of 64 of it are added one by one. Work is divided by batch entries and
 *   heads.
 * Error: sums over the tokens are f32, joined 64 at a time, or 32 where tokens come one by one, with what
 *   the joining loses beside them: their errors do not grow with T.
 * Cost: 4 T l (dk + dv) flops a head, 2 T l dk for alpha, and within chunks about 80 T (dk + dv + 2 l).
 * Source: Ma et al. 2021, arXiv 2106.01540, and its authors' code (base 2). */
ATTN_DEF attn_status attn_luna_causal(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                      attn_tensor p, const attn_luna_causal_params *params,
                                      attn_ctx *ctx);
ATTN_DEF size_t attn_luna_causal_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                           attn_tensor v, attn_tensor p,
                                           const attn_luna_causal_params *params,
                                           const attn_ctx *ctx);

/* A state is a block of bytes without pointers: saving, copying and rolling back are memcpy. p, which
 * it does not hold, must be the same in all calls. Bytes for H = heads; 0: sizes that cannot be. */
ATTN_DEF size_t attn_luna_state_bytes(int64_t batch, int64_t heads, int64_t l, int64_t dk,
                                      int64_t dv);
/* A state of no tokens. params null: defaults. Errors: NULL, ALIGN, SHAPE (an extent below 1, bytes
 * too few), OVERFLOW, RANGE (omega), VALUE (scale), ISA, ENV, CTX; the state untouched. */
ATTN_DEF attn_status attn_luna_begin(void *state, size_t bytes,
                                     const attn_luna_causal_params *params, int64_t batch,
                                     int64_t heads, int64_t l, int64_t dk, int64_t dv,
                                     attn_ctx *ctx);
