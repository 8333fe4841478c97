/* api/families/priors/camtl.h owns a block-diagonal prior on scores that a task makes (H6). */

/* Where gamma and beta of attn_film_blocks come from: a task vector, or the caller. F, their width,
 * is w: one for each column of a block; m w: for each block and column; m w w: for each entry. */
typedef struct attn_film_params {
  attn_tensor z;           /* [B, 1, 1, Dz], the task vectors */
  attn_tensor w_f, b_f;    /* [1, 1, Dz, 2F], [1, 1, 1, 2F]; b_f absent = 0 */
  int w_transposed;        /* 1: w_f is [1, 1, 2F, Dz], as in PyTorch checkpoints */
  attn_tensor gamma, beta; /* in place of z, w_f, b_f: [1 or B, 1, 1, F]; taken as they are */
  int plain;               /* 1: gamma of z is not raised by 1 */
} attn_film_params;

/* Blocks modulated by a task vector (FiLM).
 *
 *   [gamma | beta] = z w_f + b_f,  gamma += 1 unless plain
 *   y[b,k,r,c] = a[k,r,c] gamma[b](k,r,c) + beta[b](k,r,c)
 *
 * Shapes: a [1,m,w,w], y [B,m,w,w], any storage types and strides. Aliasing: y shares no memory
 *   with anything.
 * Memory: attn_film_blocks_workspace bytes, 2F + w floats per worker. Empty: B or m of 0 is a
 *   no-op.
 * NaN: as arithmetic has it. Errors: NULL, DTYPE, SHAPE (blocks not square, widths), STRIDE,
 *   OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, any number of workers. Cost: 4 F Dz + 2 m w
 *   w flops a batch entry. Sources: Pilault et al. 2020, arXiv 2009.09139; Perez et al. 2017, arXiv
 *   1709.07871. */
ATTN_DEF attn_status attn_film_blocks(attn_tensor y, attn_tensor a, const attn_film_params *params,
                                      attn_ctx *ctx);
ATTN_DEF size_t attn_film_blocks_workspace(attn_tensor y, attn_tensor a,
                                           const attn_film_params *params, const attn_ctx *ctx);

/* A block-diagonal prior as a modifier of scores: x_ij += blocks[b, k, p_i - k w, j - k w] where
 * p_i and j lie in the same block k, for every head; other pairs stay, p_i and j beyond the blocks
 * too. For calls with an attn_sdpa_params: modify = attn_block_prior_add, modify_user = an
 * attn_block_prior. `then` follows if it is set. */
typedef struct attn_block_prior {
  attn_tensor blocks; /* [1 or B, m, w, w] f32 */
  attn_score_fn then;
  void *then_user;
} attn_block_prior;
ATTN_DEF void attn_block_prior_add(void *prior, const attn_score_tile *tile);

typedef struct attn_camtl_params {
  attn_tensor blocks; /* [1 or B, m, w, w] f32, of attn_film_blocks */
  attn_sdpa_params attention;
} attn_camtl_params;

/* CAMTL: attention with a block-diagonal prior, the same for every head.
 *
 *   x_ij = s q_i . k_j + M[p_i, j],  M block-diagonal with blocks[b, 0 .. m-1],  n = m w
 *
 * The prior is added last of all terms, after a soft-cap wherever that stands and before
 * attention.modify; outside the blocks nothing is masked.
 * Shapes, aliasing, memory, empty, NaN and determinism as attn_sdpa; no Tq x Tk array. ragged,
 *   q_offs and align_lengths must be absent.
 * Errors: those of attn_sdpa; SHAPE (blocks not square, batch neither 1 nor B), RANGE (a position
 *   p_i or Tk beyond n, a negative q_off), VALUE (blocks not finite, with ctx->validate).
 * Cost: that of attn_sdpa and an addition a pair inside blocks. Source: Pilault et al. 2020, arXiv
 *   2009.09139. */
ATTN_DEF attn_status attn_camtl(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                const attn_camtl_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_camtl_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const attn_camtl_params *params, const attn_ctx *ctx);
