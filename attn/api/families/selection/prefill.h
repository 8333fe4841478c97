/* api/families/selection/prefill.h owns what a prompt need not attend to: estimates, from queries and keys, of the
 * blocks of pairs that hold the weight of a causal softmax. What they write is a block mask, from which a schedule is
 * made that attn_sdpa runs:
 *
 *   attn_xattention(mask, q, k, NULL, NULL);                       // [1, H, blocks, blocks] bytes
 *   attn_pattern chosen = attn_pattern_block_mask(mask, 128, 128);
 *   chosen.bits_heads = H, chosen.causal = 1;
 *   attn_schedule_build(&schedule, &chosen, H, T, T, NULL, NULL);
 *   attn_sdpa(o, q, k, v, &(attn_sdpa_params){.schedule = &schedule}, NULL);
 *
 * A schedule is of one batch entry: with B > 1 each has its own. */

typedef struct attn_xattention_params {
  float scale;           /* of the scores, as in attn_sdpa */
  int64_t block;         /* queries and keys of a block; 0 = 128 */
  int64_t stride;        /* rows of a cell, a divisor of block; 0 = 16 */
  float norm;            /* cell scores are divided by it; 0 = 1 */
  float gamma;           /* 0..1, the share of the weight that is kept; 0 = 0.9, ATTN_ZERO = 0 */
  int has_q_off;         /* 1: q_off below holds; 0: k.len - q.len */
  int64_t q_off;         /* query i sits at key position i + q_off; -q.len .. k.len - q.len */
  const int32_t *q_len;  /* [B], 0..Tq: rows from q_len[b] on choose nothing */
  const int32_t *kv_len; /* [B], 0..Tk: keys from kv_len[b] on are not chosen and never read */
  attn_tensor
      mass; /* out, optional: [B,H,query blocks,key blocks] f32, what the choice is made from */
} attn_xattention_params;

typedef struct attn_vertical_slash_params {
  float scale;           /* of the scores, as in attn_sdpa */
  int64_t block;         /* queries and keys of a block; 0 = 64 */
  int64_t queries;       /* the last rows, whose weights are looked at; 0 = 64 */
  float gamma;           /* 0..1, the share of the weight that is kept; 0 = 0.9, ATTN_ZERO = 0 */
  int has_sink;          /* 1: sink below holds; 0: 30 */
  int64_t sink;          /* columns 0 .. sink-1 are always chosen */
  int has_near_by;       /* 1: near_by below holds; 0: 100 */
  int64_t near_by;       /* offsets 0 .. near_by-1 are always chosen */
  int has_q_off;         /* 1: q_off below holds; 0: k.len - q.len */
  int64_t q_off;         /* query i sits at key position i + q_off; -q.len .. k.len - q.len */
  const int32_t *q_len;  /* [B], 0..Tq: the rows that are there */
  const int32_t *kv_len; /* [B], 0..Tk: keys from kv_len[b] on are not chosen and never read */
  attn_tensor columns;   /* out, optional: [B,H,1,Tk] f32, sums of weights by key */
  attn_tensor offsets;   /* out, optional: [B,H,1,Tk] f32, sums of weights by offset p_i - j */
} attn_vertical_slash_params;

#if ATTN_HAS_SELECTION
/* XAttention: blocks of a causal map by sums along antidiagonals.
 *
 *   z_ab = s / (S norm) sum_{t<S} q_{aS+S-1-t} . k_{bS+t}   for cells b of S keys that begin no later than the last
 *          query of cell a; rows that are not there count as zero
 *   mass_IJ = sum of softmax_b(z_ab) over the cells a of query block I and b of key block J
 *   mask_IJ = 1 for key block 0 and those of the block's own positions; then by descending mass, equal ones the lower J
 *          first, while the sum of the chosen is less than gamma of the row's total
 *
 * Shapes: q [B,H,Tq,dk], k [B,Hk,Tk,dk], Hk divides H, f32, f16 or bf16; mask [B,H,ceil(Tq/block),ceil(Tk/block)]
 *   bytes, dense, for attn_pattern_block_mask. Query blocks go by index; blocks no query of theirs may see are 0.
 *   gamma = 1 chooses every other block, so that attention over the mask is causal attention; gamma = 0 leaves the
 *   forced ones. With block = stride = 1 mass is attn_sdpa's map.
 * Aliasing: inputs may share memory with each other, outputs with nothing. B, Tq, Tk may be 0.
 * Memory: attn_xattention_workspace bytes, for each worker: 256 Tk / S of cell scores, 532 + 8 ceil(64 S / block) a key
 *   block, 460 dk, 13 KB. No array of pairs or of pairs of cells.
 * NaN: a block of rows whose mass is not a number keeps all blocks it may see, so that attention shows what it is.
 *   A choice is made of the whole of its rows' cells: of keys up to S - 1 behind a query, and of all queries of the
 *   block.
 * Errors: NULL, DTYPE, SHAPE (block, stride), HEADS, STRIDE, RANGE (q_off, lengths), VALUE (scale, norm, gamma outside
 *   0..1), OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ALIGN, CTX, ISA, ENV; outputs untouched.
 * Determinism: the same bytes on avx2, avx512 and neon, for any number of workers. report.pairs: pairs of cells.
 * Cost: 2 T^2 dk / S flops, half of it for T = Tq = Tk (causal); T / S exponentials a row of cells.
 * Source: Xu et al. 2025, arXiv 2503.16428. */
ATTN_DEF attn_status attn_xattention(uint8_t *mask, attn_tensor q, attn_tensor k,
                                     const attn_xattention_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_xattention_workspace(uint8_t *mask, attn_tensor q, attn_tensor k,
                                          const attn_xattention_params *params,
                                          const attn_ctx *ctx);

/* Vertical-slash: columns and diagonals of a causal map by the weights of its last rows.
 *
 *   P = causal softmax of the last `queries` rows,  columns_j = sum_i P_ij,  offsets_d = sum over p_i - j = d of P_ij
 *   chosen: of each, the forced first ones (sink columns, near_by offsets); then by descending sum, equal ones the
 *          lower first, while the sum of the chosen is less than gamma of the total
 *   mask_IJ = 1 where blocks I and J hold a pair j <= p_i < kv_len whose column or offset is chosen
 *
 * Shapes, aliasing, NaN (a head whose sums are not numbers keeps all), errors, determinism: as attn_xattention, with
 *   block 64; SHAPE: queries, sink or near_by negative. gamma = 1 is causal attention. The choice is per query head.
 * Memory: attn_vertical_slash_workspace bytes: for each worker 282 Tk of weights, sums and
 *   candidates, 460 dk and 1 KB.
 * Cost: 2 queries Tk dk flops a head, sorting of 2 Tk sums. report.pairs: the pairs of those rows.
 * Source: Jiang et al. 2024, arXiv 2407.02490; the rule by gamma: Lai et al. 2025, arXiv 2502.20766. */
ATTN_DEF attn_status attn_vertical_slash(uint8_t *mask, attn_tensor q, attn_tensor k,
                                         const attn_vertical_slash_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_vertical_slash_workspace(uint8_t *mask, attn_tensor q, attn_tensor k,
                                              const attn_vertical_slash_params *params,
                                              const attn_ctx *ctx);
#endif
