/* api/families/compression/shortened.h owns exact attention over fewer keys than there are rows: memory compressed
 * attention with its local partner, Linformer, Poolingformer.
 *
 * What holds for all of them. q [B,H,Tq,dk], k [B,Hk,Tk,dk], v [B,Hv,Tk,dv], o [B,H,Tq,dv] are f32, f16
 * or bf16, each by itself, and of any strides; Hk and Hv divide H, query head h reads heads h Hk/H and
 * h Hv/H. Weights are [1, 1 or heads of k (of v), ..]: one for all heads, or one each. Query i sits at
 * position p_i = i + q_off, q_off = Tk - Tq unless it is given.
 * kv_len and q_len: a batch entry gives what the call on tensors cut to its lengths gives, with the same
 *   q_off; rows from q_len[b] on are empty. Empty rows (no key): O = 0, LSE = -inf.
 * Aliasing: inputs may share memory with each other, outputs with nothing.
 * NaN: reaches what is made of it, and of that exactly the rows that see it.
 * Errors: those of attn_sdpa; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, any number of workers and any batch. */

/* ---- memory compressed attention -----------------------------------------------------------------*/

/* A key and value in front of the list. */
typedef enum attn_slot {
  ATTN_SLOT_NULL = 0, /* null_k and null_v: every row sees them */
  ATTN_SLOT_FIRST,    /* the first key and value as they are: rows with p_i >= 0 see them */
  ATTN_SLOT_NONE,
  ATTN_SLOT_COUNT
} attn_slot;

typedef struct attn_memory_compressed_params {
  int64_t kernel;  /* c, rows that make one; 0 = 3 */
  attn_tensor w_k; /* [1, 1 or Hk, c dk, dk], W[r] [in,out] in rows r dk .. */
  attn_tensor w_v; /* [1, 1 or Hv, c dv, dv]; may be w_k */
  attn_tensor b_k; /* [1, 1 or Hk, 1, dk], optional */
  attn_tensor b_v; /* [1, 1 or Hv, 1, dv], optional */
  attn_pad pad;    /* 0 = ATTN_PAD_LEFT; or _RIGHT, _DROP */
  attn_slot slot;
  attn_tensor null_k; /* [1, 1 or Hk, 1, dk]; absent = 0 */
  attn_tensor null_v; /* [1, 1 or Hv, 1, dv]; absent = 0 */
  int causal;
  int strict;  /* causal: a row does not see the block that ends with it */
  float scale; /* 0 = 1/sqrt(dk), ATTN_ZERO = 0 */
  int has_q_off;
  int64_t q_off;
  const int32_t *kv_len, *q_len; /* [B], optional */
  attn_tensor lse;               /* out, optional: [B,H,Tq,1] f32 */
} attn_memory_compressed_params;

/* Exact attention over blocks of c keys, each made one by a convolution:
 *
 *   k'_m = b_k + sum_r k[start_m + r] W_k[r],  v'_m likewise;  rows before 0 and from Tk on are 0
 *   LEFT: M = ceil(Tk / c), start_m = c m - (M c - Tk);  RIGHT: start_m = c m;  DROP: M = floor(Tk / c)
 *   o_i = softmax over the slot and the blocks m that row i sees: all, or if causal those whose last
 *         row min(start_m + c - 1, Tk - 1) is <= p_i (strict: < p_i)
 *
 * The default is the public form: left padding, a learned pair in front. The convolution of the layer's
 *   input before the projection is attn_convolve.
 * Blocks without a row do not exist; rows before the first whole block see the slot alone.
 * Memory: attn_memory_compressed_workspace bytes: k' and v' as f32, 4 B (Tk / c + 2)(Hk dk + Hv dv), and
 *   what attn_convolve and attn_sdpa want.
 * Errors: SHAPE: kernel < 0, w_k not of c dk rows, w_v of another kernel; RANGE: pad, slot.
 * Cost: 2 Tk (dk^2 + dv^2) flops a key head and 2 (dk + dv) a pair of row and block.
 * Source: Liu et al. 2018, arXiv 1801.10198 (kernel and stride 3). */
ATTN_DEF attn_status attn_memory_compressed(attn_tensor o, attn_tensor q, attn_tensor k,
                                            attn_tensor v,
                                            const attn_memory_compressed_params *params,
                                            attn_ctx *ctx);
ATTN_DEF size_t attn_memory_compressed_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                                 attn_tensor v,
                                                 const attn_memory_compressed_params *params,
                                                 const attn_ctx *ctx);

typedef struct attn_local_params {
  int64_t block; /* n; 0 = 256 */
  int causal;
  float scale;                   /* 0 = 1/sqrt(dk), ATTN_ZERO = 0 */
  const int32_t *kv_len, *q_len; /* [B], optional */
  attn_tensor lse;               /* out, optional: [B,H,T,1] f32 */
} attn_local_params;

/* The local layers between compressed ones: row i sees the keys j of its own block, floor(j / n) =
 * floor(i / n), if causal those with j <= i. Tq = Tk; the last block may be shorter. Without a schedule
 * of attn_pattern_blocks, which sees the same.
 * Memory: attn_local_workspace bytes, as attn_sdpa. Errors: SHAPE: Tq != Tk; RANGE: block < 0.
 * Cost: 2 (dk + dv) flops a pair. Source: Liu et al. 2018, arXiv 1801.10198. */
ATTN_DEF attn_status attn_local(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                const attn_local_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_local_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const attn_local_params *params, const attn_ctx *ctx);

/* ---- Linformer -----------------------------------------------------------------------------------*/

/* How n keys become r. */
typedef enum attn_linformer_kind {
  ATTN_LINFORMER_MATRIX = 0, /* k' = E k, v' = F v */
  ATTN_LINFORMER_MEAN, /* of min(r, n) segments, segment i of m being rows floor(i n / m) .. */
  ATTN_LINFORMER_MAX,  /* likewise, the maximum of each column */
  ATTN_LINFORMER_CONV, /* of blocks of w rows, padded on the right: r = ceil(n / w) */
  ATTN_LINFORMER_COUNT
} attn_linformer_kind;

typedef struct attn_linformer_params {
  attn_linformer_kind kind;
  attn_tensor e;   /* MATRIX: [1, 1 or Hk, r, N], N >= Tk: columns 0 .. Tk - 1 are used */
  attn_tensor f;   /* MATRIX: [1, 1 or Hv, r, N]; absent = e */
  int64_t rank;    /* MEAN, MAX: r; 0 = 256 */
  attn_tensor w_k; /* CONV: [1, 1 or Hk, w dk, dk], W[r] [in,out] in rows r dk .. */
  attn_tensor w_v; /* CONV: [1, 1 or Hv, w dv, dv] */
  attn_tensor b_k; /* CONV: [1, 1 or Hk, 1, dk], optional */
  attn_tensor b_v; /* CONV: [1, 1 or Hv, 1, dv], optional */
  float scale;     /* 0 = 1/sqrt(dk), ATTN_ZERO = 0 */
  const int32_t *kv_len, *q_len; /* [B], optional */
  attn_tensor lse;               /* out, optional: [B,H,Tq,1] f32 */
} attn_linformer_params;

/* Exact attention over keys and values that a projection along the sequence has made few:
 *
 *   o_i = softmax_m(s q_i . k'_m) v'_m,  m = 0 .. r - 1
 *
 * There is no causal form: each k'_m holds all keys. Sharing is said by views: between heads by one head
 *   of e and f, between keys and values by f absent, between layers by the same array. r may exceed Tk.
 * Memory: attn_linformer_workspace bytes: k' and v' as f32, 4 B r (Hk dk + Hv dv), and what attn_sdpa
 *   wants; MATRIX reads e, k and v in place, or 128 columns of e and 100 rows of k and v at once where they are not
 *   f32.
 * Errors: NULL: e, w_k or w_v of the kind in use; SHAPE: e or f with fewer columns than Tk, or of
 *   different r, w_k not of w dk rows, w_v of another w; RANGE: kind, rank < 0.
 * Cost: 2 r (Tk + Tq)(dk + dv) flops, pooling Tk (dk + dv), convolution 2 Tk (dk^2 + dv^2).
 * Source: Wang et al. 2020, arXiv 2006.04768. */
ATTN_DEF attn_status attn_linformer(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                    const attn_linformer_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_linformer_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                         const attn_linformer_params *params, const attn_ctx *ctx);

/* ---- Poolingformer -------------------------------------------------------------------------------*/

/* Where the blocks of the second level begin. */
typedef enum attn_poolingformer_align {
  ATTN_POOLINGFORMER_GRID = 0, /* at 0, xi, 2 xi ..: one pooled list for all rows */
  ATTN_POOLINGFORMER_WINDOW,   /* at the first row of each query's own window */
  ATTN_POOLINGFORMER_COUNT
} attn_poolingformer_align;

typedef struct attn_poolingformer_params {
  attn_window window_1; /* attn_window_of(w1, w1), keys on each side; {0}: w1 = 128 */
  attn_window window_2; /* attn_window_of(w2, w2); {0}: w2 = 512 */
  int64_t kernel;       /* kappa, rows that make one; 0 = 5 */
  int64_t stride; /* xi, from a block to the next, at most kappa; 0 = the lesser of 4 and kappa */
  attn_pool_kind pool;
  attn_poolingformer_align align;
  int causal;
  attn_tensor pool_k; /* DYNAMIC: [1, 1 or heads, width, kappa], of the keys that are pooled */
  attn_tensor pool_v; /* DYNAMIC: likewise, of the values */
  attn_tensor pool_b_k, pool_b_v; /* DYNAMIC: [1, 1 or heads, 1, kappa], optional */
  /* The second level, side by side with the first: its own tensors; absent = those of the first. */
  attn_tensor q2, k2, v2; /* [B,H,Tq,d2], [B,Hk2,Tk,d2], [B,Hv2,Tk,dv] */
  /* Or behind the first, of whose output y [B,Tq,H dv] it is made: */
  attn_tensor w_q;           /* [1,1,H dv,H d2]; present = this form */
  attn_tensor w_k;           /* [1,1,H dv,Hk2 d2] */
  attn_tensor w_v;           /* [1,1,H dv,Hv2 dv] */
  int w_transposed;          /* 1: these three are [1,1,out,in], as in PyTorch checkpoints */
  attn_tensor b_q, b_k, b_v; /* [1,1,1,columns], optional */
  float scale;               /* of both levels; 0 = 1/sqrt(width), ATTN_ZERO = 0 */
  int has_q_off;
  int64_t q_off;
  const int32_t *kv_len, *q_len; /* [B], optional */
} attn_poolingformer_params;

/* Attention to a window and, in a softmax of its own, to the pooled keys of a wider one; the sum of both:
 *
 *   O1_i = attention over |j - p_i| <= w1 (causal: and j <= p_i)
 *   O2_i = attention over blocks of pooled k and v, those that lie within p_i - w2 .. p_i + w2 (causal: p_i)
 *   o = O1 + O2
 *
 *   blocks of n rows: M = 1 + ceil(max(0, n - kappa) / xi), block m is rows [m xi, min(m xi + kappa, n))
 *   GRID:   of all keys; row i sees the blocks that are whole in its window
 *   WINDOW: of the rows max(0, p_i - w2) .. min(Tk - 1, p_i + w2 (causal: p_i)), counted from there
 *
 * MEAN and MAX are over the rows that exist; DYNAMIC (attn_pool) weighs them by a softmax of what the
 *   block's centre row makes with pool_k for keys, pool_v for values.
 * Behind the first level: y = O1 with its heads side by side, q2 = y w_q + bias_q, k2 and v2 likewise, of
 *   Hk2 = w_k.dim / d2 and Hv2 = w_v.dim / dv heads. Query and key of the second level then sit at the
 *   same positions 0 .. Tq - 1, and q_len is its kv_len.
 * A row that sees no block, or no key, gets 0 from that level.
 * Memory: attn_poolingformer_workspace bytes, all O(T): pooled k2 and v2 as f32, and what the second level
 *   gives; WINDOW pools with stride 1, beside one value row a query; behind the first level y, q2, k2, v2.
 * Errors: SHAPE: pool_k, pool_v not of kappa columns; NULL: without them; RANGE: kappa < xi, xi < 1,
 *   windows below -1 or of unequal sides, pool, align.
 * Cost: 2 (dk + dv) flops a pair, about T (2 w1 + 2 w2 / xi) of them; pooling kappa / xi (WINDOW: 2 kappa)
 *   sums a number of k2 and v2.
 * Source: Zhang et al. 2021, arXiv 2105.04371; dynamic kernels after Wu et al. 2019, arXiv 1901.10430. */
ATTN_DEF attn_status attn_poolingformer(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                        const attn_poolingformer_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_poolingformer_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                             attn_tensor v, const attn_poolingformer_params *params,
                                             const attn_ctx *ctx);
