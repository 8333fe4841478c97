/* api/families/content/sinkhorn.h owns attention over sorted blocks: blocks of keys are put into another order by a
 * soft permutation, and a block of queries reads the block that has come to its place.
 *
 *   x -> attn_sinkhorn_blocks -> attn_sinkhorn_logits -> attn_sinkhorn_balance -> P -> attn_sinkhorn
 *
 * b = params->block, NB = T / b blocks, T a multiple of b. P_ij, R_ij say how much of block j comes to
 * place i. Every call reads the fields of its group and ignores the others. */

/* How logits become the matrix P. */
typedef enum attn_sinkhorn_balancing {
  ATTN_BALANCE_DEFAULT = 0, /* SINKHORN; ROWS with causal */
  ATTN_BALANCE_SINKHORN,    /* rows and columns in turn; a later block moves earlier rows of P */
  ATTN_BALANCE_ROWS,        /* a softmax of each row */
  ATTN_BALANCE_CUMULATIVE,  /* SINKHORN, a column's sum up to row i only: nothing leaks back */
  ATTN_BALANCE_COUNT
} attn_sinkhorn_balancing;

/* What a query block does with the sorted block K', V' and its own. */
typedef enum attn_sinkhorn_combine {
  ATTN_SINKHORN_CONCAT = 0, /* one softmax over both */
  ATTN_SINKHORN_SORTED,     /* a softmax over the sorted block */
  ATTN_SINKHORN_SUM,        /* b scores s q (k'_t + k_t), values v'_t */
  ATTN_SINKHORN_MIXTURE,    /* two softmaxes, added with weights */
  ATTN_SINKHORN_COUNT
} attn_sinkhorn_combine;

typedef struct attn_sinkhorn_params {
  int64_t block; /* b >= 1; there is no default */
  int causal;    /* blocks come from earlier places only, own keys up to the query */
  int diag; /* 1, with causal: P has its diagonal too; sorted keys then end with the query's offset */
  int hard; /* 1: each row of P becomes a 1 at its largest entry, and blocks are read in place */
  /* the sorting network */
  attn_tensor x; /* chained: [B, a divisor of H, T, dx]; absent: k */
  attn_tensor w_1, b_1, w_2,
      b_2;          /* [1, 1 or H, dx, m], [.., 1, m] or absent, [.., m, NB], [.., 1, NB] */
  int w_transposed; /* 1: w_1 and w_2 are [.., out, in], as in PyTorch checkpoints */
  /* balancing */
  attn_tensor logits; /* chained: R, in place of the network */
  attn_sinkhorn_balancing balance;
  int64_t iterations; /* 0 = 8 */
  int has_iterations; /* 1: iterations holds, 0 included */
  float tau;          /* > 0; 0 = 0.75 */
  attn_tensor noise;  /* [1 or B, 1 or H, NB, NB] f32, added to R; or */
  int gumbel;         /* 1: Gumbel noise drawn from seed, the same for all of a batch */
  uint64_t seed;
  /* attention */
  attn_sinkhorn_combine combine;
  float alpha_sorted; /* of MIXTURE; 0 = 1, ATTN_ZERO = 0 */
  float alpha_local;
  const int32_t *choice; /* with hard: the source block of each place, in place of P */
  int64_t cut;           /* attn_sortcut: n in 1..NB */
  int local;             /* attn_sortcut: 1: and the query's own block */
  attn_tensor
      null_k; /* [1, 1 or H, 1, dk], optional: every row of the null block; not in attn_sortcut */
  attn_tensor null_v; /* [1, 1 or H, 1, dv]; together with null_k */
  float scale;        /* 0 = 1/sqrt(dk), ATTN_ZERO = 0 */
  attn_tensor lse;    /* out, optional: [B,H,Tq,1] f32; not with MIXTURE */
} attn_sinkhorn_params;

/* Block descriptors: y_i = sum of the rows of block i; causal: of rows 0 .. i b, the last of which is
 * the block's first.
 *
 * Shapes: x [B,H,T,dx], y [B,H,NB,dx], any storage types and strides. Reads block and causal.
 * Memory: attn_sinkhorn_blocks_workspace bytes, 12 dx a worker. Cost: T dx additions a head, in double
 *   and in order. NaN: as it is added.
 * Common to the calls of this file:
 * Aliasing: outputs share memory with nothing. Empty: B = 0, H = 0 or T = 0 does nothing.
 * Errors: NULL, DTYPE, SHAPE (block < 1, T no multiple of it, matrices not NB x NB, iterations < 0), HEADS,
 *   STRIDE, RANGE (enums, cut, fields that exclude each other), VALUE (tau, scale, weights), INDEX
 *   (choice), OVERLAP, OVERFLOW, ALIGN, WORKSPACE, MEMORY and those of ctx; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers.
 * Source: Tay et al. 2020, arXiv 2002.11296; Gumbel noise: Mena et al. 2018, arXiv 1802.08665. */
ATTN_DEF attn_status attn_sinkhorn_blocks(attn_tensor y, attn_tensor x,
                                          const attn_sinkhorn_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_sinkhorn_blocks_workspace(attn_tensor y, attn_tensor x,
                                               const attn_sinkhorn_params *params,
                                               const attn_ctx *ctx);

/* The sorting network: r_i = relu(relu(y_i w_1 + b_1) w_2 + b_2).
 *
 * Shapes: r [B,H,NB,NB], y [B, a divisor of H, NB, dx], any float types. Reads w_1, b_1, w_2, b_2.
 * Memory: attn_sinkhorn_logits_workspace bytes: 4 NB m a head, and attn_gemm's. NaN: as attn_gemm.
 * Cost: 2 NB m (dx + NB) flops a head. */
ATTN_DEF attn_status attn_sinkhorn_logits(attn_tensor r, attn_tensor y,
                                          const attn_sinkhorn_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_sinkhorn_logits_workspace(attn_tensor r, attn_tensor y,
                                               const attn_sinkhorn_params *params,
                                               const attn_ctx *ctx);

/* Balances logits, in logarithms:
 *
 *   L = (R + noise) / tau,  -inf where causal forbids: j > i, without diag j >= i
 *   SINKHORN: iterations times  L_ij -= log sum_j' e^L_ij',  then  L_ij -= log sum_i' e^L_i'j
 *   CUMULATIVE: the second sum over i' <= i.   ROWS: the first sum, once.        P = e^L
 *
 * A row or column that is -inf everywhere stays as it is: zeros in P. iterations = 0: P = e^L.
 * Shapes: p [B,H,NB,NB], r [1 or B, 1 or H, NB, NB], both f32; r may hold -inf, never +inf.
 * Noise: -log(-log u), u the j-th uniform number of the stream (seed, 5, h, i).
 * Memory: attn_sinkhorn_balance_workspace bytes: 8 NB (NB + 3) a worker.
 * NaN: reaches what is summed with it, or all of P. Precision: L is kept in double; each sum is exact to
 *   some 1e-7, so columns of P sum to 1 within 1e-6. Cost: 2 iterations NB^2 exponentials a head, CUMULATIVE
 *   half as many logarithms more. */
ATTN_DEF attn_status attn_sinkhorn_balance(attn_tensor p, attn_tensor r,
                                           const attn_sinkhorn_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_sinkhorn_balance_workspace(attn_tensor p, attn_tensor r,
                                                const attn_sinkhorn_params *params,
                                                const attn_ctx *ctx);

/* The source of each place for hard sorting: choice[b,h,i] = the j of the largest P_ij, the lowest of
 * equal ones, -1 when none is above 0. Causal: of j < i, with diag j <= i. NaN is never chosen.
 *
 * Shapes: choice [B,H,NB] dense, p [B,H,NB,NB] f32. Reads causal and diag. Memory: none (the workspace is
 *   0). Cost: NB^2 comparisons a head. The same on every tier. */
ATTN_DEF attn_status attn_sinkhorn_choose(int32_t *choice, attn_tensor p,
                                          const attn_sinkhorn_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_sinkhorn_choose_workspace(int32_t *choice, attn_tensor p,
                                               const attn_sinkhorn_params *params,
                                               const attn_ctx *ctx);

/* Attention over sorted blocks.
 *
 *   k'_it = sum_j P_ij k_jb+t,  v'_it likewise;  hard: the rows of block choice[i] themselves
 *   CONCAT   softmax over the b keys k'_i and the b own keys; hard: an own block chosen counts once
 *   SORTED   softmax over k'_i
 *   SUM      softmax of s q (k'_it + k_ib+t), values v'_it
 *   MIXTURE  alpha_sorted O_sorted + alpha_local O_own, each a softmax by itself
 *   causal   own keys t <= offset of the query; sorted ones likewise with diag or SUM, else all b
 *
 * A place whose row of P is 0 (choice -1; causal without diag: place 0) has no sorted keys; with null_k its
 * sorted block is the null block, k'_it = null_k and v'_it = null_v for all b rows t, under the rules above.
 * Shapes: q [B,H,T,dk], k [B,Hk,T,dk], v [B,Hv,T,dv], o [B,H,T,dv]; Hk and Hv divide H; storage types are
 *   independent, strides any. sort: P [1 or B, 1 or H, NB, NB] f32, of which entries that causal forbids
 *   count as 0. sort.data null: P is made here, from params->logits or by the network, with the calls
 *   above. With hard params->choice [B,H,NB] dense may stand for P: -1 or a block that causal allows.
 * Memory: attn_sinkhorn_workspace bytes: per worker O(64 (dk + dv)) and, soft, up to six mixed blocks in
 *   at most 256 KB, or one: 4 b (dk + dv); hard copies no block (16-bit rows are converted, 128 at a
 *   time; SUM adds two). P made here: 4 NB^2 a head, with the network 4 NB (NB + dx + m) more, and what
 *   the calls above want.
 * Errors also: NULL: null_k without null_v, or null_v without null_k.
 * Empty rows: zeros, LSE -inf. A soft P = 1 on the diagonal counts each own pair twice: LSE + ln 2.
 * NaN: in a query reaches its row, in a key or value every row that reads it or, soft, a row it is mixed
 *   into (a P of 0 does not hide it, causal does); so do infinite values.
 * Precision: attn_sdpa's, over K' and V' rounded to f32 after sums in f32.
 * Source: Tay et al. 2020; the null block as in the program sinkhorn-transformer by Phil Wang.
 * Cost: soft 2 NB T (dk + dv) flops a head for the mixing (causal half), 4 b T (dk + dv) for attention. */
ATTN_DEF attn_status attn_sinkhorn(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                   attn_tensor sort, const attn_sinkhorn_params *params,
                                   attn_ctx *ctx);
ATTN_DEF size_t attn_sinkhorn_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                        attn_tensor sort, const attn_sinkhorn_params *params,
                                        const attn_ctx *ctx);

/* SortCut: all queries read the first n = params->cut sorted blocks, with local the query's own block in
 * the same softmax. Hard: the set of the blocks chosen for places 0 .. n - 1, each once, own or not.
 *
 * Shapes, errors and the making of P as attn_sinkhorn, but Tq is free unless local; NB = Tk / b. Not causal,
 *   no combine. Memory: soft 4 n b (dk + dv) bytes a head for the mixed blocks; 4 n a head.
 * Cost: soft 2 n Tk (dk + dv) flops a head for the mixing, 2 n b Tq (dk + dv) for attention. */
ATTN_DEF attn_status attn_sortcut(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                  attn_tensor sort, const attn_sinkhorn_params *params,
                                  attn_ctx *ctx);
ATTN_DEF size_t attn_sortcut_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                       attn_tensor sort, const attn_sinkhorn_params *params,
                                       const attn_ctx *ctx);
