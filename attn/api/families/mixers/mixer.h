/* --- mixing of tokens by learned matrices -------------------------------------------------------
 * Blocks in which a matrix over positions stands where attention stood: gMLP and aMLP (L2), MLP-Mixer
 * (L3).
 *
 * Rules they share. x and o are [B,1,T,dm], f32, f16 or bf16, each tensor by itself and of any strides;
 * weights are [1,1,in,out], with w_transposed [1,1,out,in], biases [1,1,1,out] and optional, absent = 0. Aliasing: o
 * may be x (the same
 * view: in place), else it shares memory with nothing. Memory: attn_<name>_workspace bytes, f32, for
 * entries of the batch that have 2048 rows together, or for one; rows lie apart by up to 47 numbers more
 * than a call says, each kind of them. Errors: NULL, DTYPE, SHAPE, HEADS, STRIDE,
 * RANGE, VALUE, OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ALIGN, ISA, ENV, CTX; o untouched. Determinism: the
 * same bits on avx2, avx512 and neon and for any number of workers; each sum over positions is one chain of
 * multiply-adds in their order. */

typedef struct attn_gmlp_params {
  attn_norm norm;       /* LN_0, of the block's input */
  attn_tensor w_1, b_1; /* U [1,1,dm,2e]: its first half is gated, its second makes the gate */
  attn_activation activation; /* f; 0 = ATTN_ACT_GELU */
  attn_norm norm_gate;        /* LN_s, over the e channels of the second half */
  attn_tensor w_s;            /* W [1,S,N,N], N >= T: row i of head s makes position i */
  attn_tensor b_s;            /* b [1, 1 or S, 1, N], a number a position; optional */
  int causal;                 /* 1: position i reads positions 0..i */
  attn_tensor w_qkv, b_qkv;   /* [1,1,dm,3a], optional: the tiny attention of aMLP */
  attn_tensor w_o, b_o;       /* [1,1,a,e], with w_qkv only */
  attn_tensor w_2, b_2;       /* V [1,1,e,dm] */
  int w_transposed; /* 1: w_1, w_2, w_qkv and w_o are [1,1,out,in], as in PyTorch checkpoints; w_s stays */
  const int32_t *x_len; /* [B], 0..T, optional: rows from x_len[b] on do not exist, their o is 0 */
} attn_gmlp_params;

/* gMLP block, and with w_qkv aMLP:
 *
 *   n = LN_0(x),  Z = f(n U + b_1),  Z1 = Z[:, :e],  Z2 = LN_s(Z[:, e:])
 *   G[i,c] = sum_j W_s[i,j] Z2[j,c] + b_s[i],  s = c S / e (integer division), j <= i if causal
 *   aMLP:  G += softmax(Q K^T / sqrt(a)) V' w_o + b_o,  [Q K V'] = n w_qkv + b_qkv, causal likewise
 *   o = x + (Z1 * G) V + b_2
 *
 * Shapes: the top left T x T of each W and the first T numbers of b are used. S divides e.
 * Causal: row i does not depend on later rows, not even on NaN in them, nor on W beyond its diagonal. A
 *   call for the first rows alone gives the bits of the first rows of this one, and so does one for an
 *   entry that x_len cuts; with w_qkv up to rounding (attn_sdpa has a way of its own for few queries).
 * Empty: B = 0 or T = 0 is a no-op. NaN in a row of x reaches all rows that read it.
 * Memory: a row dm + 3e numbers, with w_qkv 4a more, one e rounded up to 64 a head; weights as attn_gemm
 *   lays them out, 150 KB a worker.
 *   W is read where it lies: no masked copy, no T x T array.
 * Errors also: SHAPE: w_1 not 2e wide, w_qkv not 3a, N < T. HEADS: S does not divide e. NULL: only one
 *   of w_qkv and w_o, or their biases alone. RANGE: x_len.
 * Cost: 6 T dm e + 2 T^2 e flops an entry, causal half of the last; aMLP 6 T dm a + 2 T a e + 4 T^2 a more.
 * Source: Liu et al. 2021, arXiv 2105.08050. Its training starts from W near 0 and b = 1. */
ATTN_DEF attn_status attn_gmlp(attn_tensor o, attn_tensor x, const attn_gmlp_params *params,
                               attn_ctx *ctx);
ATTN_DEF size_t attn_gmlp_workspace(attn_tensor o, attn_tensor x, const attn_gmlp_params *params,
                                    const attn_ctx *ctx);

/* An activation of 0 is ATTN_ACT_GELU here; the authors' code has ATTN_ACT_GELU_TANH. */
typedef struct attn_mixer_params {
  attn_norm norm_token;      /* LN_1, over the channels of a token, as LN_2 */
  attn_feed_forward token;   /* w_1 [1,1,T,ds], w_2 [1,1,ds,T] */
  attn_norm norm_channel;    /* LN_2 */
  attn_feed_forward channel; /* w_1 [1,1,dm,dc], w_2 [1,1,dc,dm] */
} attn_mixer_params;

/* MLP-Mixer block: a network over the tokens of each channel, then one over the channels of each token.
 *
 *   y = x + w_2^T f(w_1^T LN_1(x) + b_1) + b_2   of `token`: b_1 a number a hidden unit, b_2 a token
 *   o = y + f(LN_2(y) w_1 + b_1) w_2 + b_2       of `channel`
 *
 * Shapes: T is fixed by the weights, and all tokens mix: there are no lengths.
 * Empty: B = 0 is a no-op. NaN in a row of x reaches all rows of its entry.
 * Memory: a row dm numbers (2 dm where o is not f32), ds dm an entry, dm + dc a row of at most 2048, the
 *   first dm of a row and that of an entry rounded up to 64;
 *   weights of `channel` as attn_gemm lays them out, 150 KB a worker. Neither x nor a weight is transposed.
 * Errors also: NULL: a w_1 or w_2 is absent; VALUE: a compute other than F32, without compute_prefer.
 * Cost: 4 T dm (ds + dc) flops an entry.
 * Source: Tolstikhin et al. 2021, arXiv 2105.01601, and its authors' code. */
ATTN_DEF attn_status attn_mixer(attn_tensor o, attn_tensor x, const attn_mixer_params *params,
                                attn_ctx *ctx);
ATTN_DEF size_t attn_mixer_workspace(attn_tensor o, attn_tensor x, const attn_mixer_params *params,
                                     const attn_ctx *ctx);
