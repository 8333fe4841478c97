/* api/families/content/topk.h owns attention to the best keys of each query: the k highest scores, or all above a
 * threshold. Selecting and attending are calls of their own; attn_topk_sdpa does both. */

typedef struct attn_topk_params {
  attn_topk_mode mode;
  int64_t k;                  /* EXACT, TIES: at least 1 */
  float bound;                /* ABS: not NaN; REL: >= 0, not NaN */
  attn_sdpa_params attention; /* scale, allowed set (schedule included), terms and sinks, lse as in
                            * attn_sdpa; without ragged, q_offs, align_lengths, span,
                            * relative.values and map */
  int64_t *indptr; /* out, optional: [B,H,Tq+1], the selection as key lists: those of row i */
  int32_t *col;    /* are col[indptr[i]] .. col[indptr[i+1]-1] of its set, ascending; out, */
  int64_t edges;   /* optional: [B,H,edges], so that a set has room for so many */
} attn_topk_params;

/* Attention of each query to its best keys, from scores that stream past.
 *
 *   S_i = the keys that mode selects,  P_ij = exp(x_ij - LSE_i) on S_i,  O_i = sum_{S_i} P_ij v_j
 *
 * Shapes, aliasing, empty rows, quantised k and v as attn_sdpa. Selection is made within the allowed
 *   set. Where nothing is added to the scores but a mask, EXACT, TIES and REL with bound 0 compare the
 *   products q.k before the scale (one of 7e-7 to 7e5; a key's score is then rounded once more): equal
 *   products tie, so with integers ties are exact. Else scores are compared as the softmax gets them,
 *   where equal products may differ by rounding. A score of -inf is not selected.
 * Lists: indptr alone says how many keys there are. With col and EXACT, edges must be at least
 *   Tq min(k, Tk) (ATTN_E_SHAPE); in the other modes at least the longest set (ATTN_E_FULL).
 *   Entries of col behind the end of a set may be written. attn_edges takes the lists, with
 *   per_batch, per_head and slack = 1.
 * Memory: attn_topk_sdpa_workspace bytes: that of attn_sdpa with one_order; EXACT, TIES: for each worker
 *   65 lists of 2 k + 66 candidates of 8 bytes, and about 256 (dv + 410) bytes more; TIES: 5 bytes a
 *   row, REL: 4; indptr: 8 bytes a row; with a schedule of several phases 8 (k + 2) bytes a row.
 *   k >= Tk needs no candidates.
 * NaN: a NaN score comes after all others with k, ties with no number, and is above every bound of
 *   ABS and REL. It makes its row NaN if it is selected. What is not selected never reaches an output.
 * Errors: those of attn_sdpa; RANGE: mode, k, what scores may not have; VALUE: bound; SHAPE, FULL:
 *   edges; NULL: col without indptr; outputs untouched.
 * Determinism: the same bits and lists on avx2, avx512 and neon, any number of workers, batch
 *   composition and division of the queries. k >= Tk has the bits of attn_sdpa with one_order = 1.
 *   bound is rounded to float after conversion to log2.
 * Cost: 2 dk flops a pair for the scores, and a comparison; EXACT then reads k value rows a query, and
 *   so does TIES for rows whose k-th score is not met again. ABS is one pass like attn_sdpa, which
 *   leaves out the values of blocks without a selected key; REL, and TIES for the other rows, compute
 *   scores twice; all but EXACT once or twice more for lists. The first k keys of a row all are
 *   candidates, later ones as they pass the k-th so far: about k ln(Tk / k) in random order, all of
 *   them when scores rise.
 * Source: above, and Lin et al. 2021, arXiv 2106.04554. */
ATTN_DEF attn_status attn_topk_sdpa(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                    const attn_topk_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_topk_sdpa_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                         const attn_topk_params *params, const attn_ctx *ctx);

/* The selection alone: indptr, and col unless it is null. attention.lse must be absent; sinks,
 * softmax_one and v_scales are not looked at. Everything else as attn_topk_sdpa. */
ATTN_DEF attn_status attn_topk_select(attn_tensor q, attn_tensor k, const attn_topk_params *params,
                                      attn_ctx *ctx);
ATTN_DEF size_t attn_topk_select_workspace(attn_tensor q, attn_tensor k,
                                           const attn_topk_params *params, const attn_ctx *ctx);
