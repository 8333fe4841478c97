/* api/families/maps/synthesizer.h owns attention whose scores need no pairs of tokens: learned by position, predicted
 * by each query for itself, and mixtures of these with dot products. */

/* Where scores come from. */
typedef enum attn_synthesizer_kind {
  ATTN_SYNTHESIZER_RANDOM = 0,      /* S_ij = r[p_i][j] */
  ATTN_SYNTHESIZER_RANDOM_FACTORED, /* S_ij = r1[p_i] . r2[j] */
  ATTN_SYNTHESIZER_DENSE,           /* S_ij = F(x_i)[j],  F of net */
  ATTN_SYNTHESIZER_DENSE_FACTORED,  /* S_ij = A(x_i)[j mod a] B(x_i)[floor(j / a) or j mod b] */
  ATTN_SYNTHESIZER_DOT,             /* S_ij = scale q_i . k_j */
  ATTN_SYNTHESIZER_COUNT
} attn_synthesizer_kind;

/* How the two vectors of DENSE_FACTORED are spread over the keys. */
typedef enum attn_synthesizer_tiling {
  ATTN_SYNTHESIZER_OUTER = 0, /* B of floor(j / a): every pair once */
  ATTN_SYNTHESIZER_TILE,      /* B of j mod b: every pair once only if a and b are coprime */
  ATTN_SYNTHESIZER_TILING_COUNT
} attn_synthesizer_tiling;

/* F(x) = relu(x w_1 + b_1) w_2 + b_2, a vector of n numbers. */
typedef struct attn_synthesizer_net {
  attn_tensor w_1; /* [1, 1 or H, din, e] */
  attn_tensor b_1; /* [1, 1 or H, 1, e]; absent = 0 */
  attn_tensor w_2; /* [1, 1 or H, e, n] */
  attn_tensor b_2; /* [1, 1 or H, 1, n]; absent = 0 */
  /* 1: w_1 is [.., e, din] and w_2 [.., n, e], as in PyTorch checkpoints; such a w_2 is read in place, not copied */
  int w_transposed;
} attn_synthesizer_net;

/* One source of scores: the fields of its kind, the others are not looked at. */
typedef struct attn_synthesizer_source {
  attn_synthesizer_kind kind;
  attn_tensor r;      /* RANDOM: [1, 1 or H, positions, n], n >= Tk */
  attn_tensor r1, r2; /* RANDOM_FACTORED: [1, 1 or H, positions, k], [1, 1 or H, n, k] */
  attn_tensor x;      /* DENSE, DENSE_FACTORED: [B, 1 or H, Tq, din], what queries are made of */
  attn_synthesizer_net net;   /* F, n >= Tk; or A, n = a */
  attn_synthesizer_net net_b; /* B, n = b; OUTER wants a b >= Tk */
  attn_synthesizer_tiling tiling;
  attn_tensor q, k; /* DOT: [B, H, Tq, dk], [B, Hk, Tk, dk] */
  float scale;      /* DOT: 0 = 1/sqrt(dk); ATTN_ZERO = 0 */
} attn_synthesizer_source;

/* Sources that one call can mix. */
#define ATTN_SYNTHESIZER_MOST 8

typedef struct attn_synthesizer_params {
  const attn_synthesizer_source *sources;
  int64_t count;       /* of sources, 1..ATTN_SYNTHESIZER_MOST */
  const float *alpha;  /* [count] weights of the mixture, >= 0 with sum 1; */
  const float *logits; /* or [count] finite numbers whose softmax they are */
  int64_t weights;     /* numbers that alpha or logits has: count. One source needs neither */
  int causal;          /* 0 or 1; these as in attn_sdpa_params */
  int has_q_off;
  int64_t q_off; /* p_i = i + q_off; default Tk - Tq: the last query is the last key's */
  attn_window window;
  const int32_t *kv_len, *q_len;
  attn_mask mask, bias; /* bias: added to the mixed scores */
  attn_tensor lse, map; /* out, optional: [B,H,Tq,1], [B,H,Tq,Tk], f32 */
} attn_synthesizer_params;

/* Synthesizer attention: random, dense, factorised, and mixtures of any sources.
 *
 *   x_ij = sum_n alpha_n S^n_ij + bias_ij for allowed j,  P_i = softmax(x_i),  O_i = sum_j P_ij v_j
 *
 * alpha = 1 for a single source, softmax(logits) or as given. Of a learned matrix longer than Tk the
 * first Tk columns count; no source but DOT has a scale. A source of weight 0 is not read.
 * Shapes: v [B,Hv,Tk,dv], o [B,H,Tq,dv], Hv divides H; storage types f32, f16, bf16, any strides.
 * Aliasing: o, lse and map share no memory with anything; inputs may overlap.
 * Memory: attn_synthesizer_workspace bytes, O(T), no Tq x Tk array: 4 B H Tq e bytes for DENSE, 4 B H Tq
 *   (2 e + 2 a + 2 b) for DENSE_FACTORED, its last terms in whole tiles of 64 queries; 4 H Tk e bytes for a
 *   w_2 that is not transposed; with several of RANDOM_FACTORED, DENSE and DOT 4 B H (Tq + Tk) D bytes, D
 *   the sum of their widths; for several batch entries with equal maps 1024 (Hv Tk + H Tq) bytes; and what
 *   attn_sdpa and attn_gemm have.
 * Empty rows: O = 0, P = 0, LSE = -inf. B or Tq of 0 is a no-op.
 * NaN: a forbidden key never reaches an output, keys from kv_len on are not read. NaN in x_i or q_i makes
 *   row i NaN, NaN in a parameter of an allowed pair the rows that read it; -inf in r or b_2 forbids.
 * Errors: NULL, DTYPE, SHAPE (also fewer columns than keys), HEADS, STRIDE, RANGE (count, kind, tiling,
 *   lengths, windows, a p_i for which there is no row), VALUE (alpha negative or not summing to 1 within
 *   1e-6, both alpha and logits, a number that is not finite), MASK, OVERLAP, OVERFLOW, WORKSPACE, MEMORY,
 *   ISA, ENV, CTX, ALIGN; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers and batch composition.
 * Cost: 2 dv flops a pair, beside it RANDOM 1, RANDOM_FACTORED 2 k, DENSE 2 e, DENSE_FACTORED 2, DOT 2 dk;
 *   the networks 2 B H Tq e (din + n). Maps that are equal in all batch entries (RANDOM and RANDOM_FACTORED
 *   without lengths, masks of their own and params.map) are computed once for 256 / dv of them.
 * Source: Tay et al. 2020, arXiv 2005.00743. */
ATTN_DEF attn_status attn_synthesizer(attn_tensor o, attn_tensor v,
                                      const attn_synthesizer_params *params, attn_ctx *ctx);

/* Bytes that it wants in ctx->workspace; reads no data but alpha and logits. */
ATTN_DEF size_t attn_synthesizer_workspace(attn_tensor o, attn_tensor v,
                                           const attn_synthesizer_params *params,
                                           const attn_ctx *ctx);
