/* api/calls/edges.h owns attention over an explicit set of keys for each query (A7). */

/* Key lists of attn_edges: row i of a set sees col[indptr[i]] .. col[indptr[i+1] - 1], in any
 * order, each key at most once. */
typedef struct attn_edges_params {
  const int64_t *indptr;   /* [Tq + 1], from 0, not decreasing */
  const int32_t *col;      /* [edges], 0 .. Tk-1 */
  int64_t edges;           /* entries of a set: what its indptr ends with */
  int slack;               /* 1: a set may end before, so that sets of a head need not be alike */
  int per_head, per_batch; /* 1: a set for each head, each batch entry: indptr [B or 1, H or 1,
                            * Tq + 1] and col likewise, all sets with `edges` entries */
  const float *bias;       /* added to the scaled score, laid out as col; -inf forbids; or null */
  float scale;             /* as in attn_sdpa */
  int causal, has_q_off;
  int64_t q_off;
  const int32_t *kv_len; /* [B] */
  attn_drop dropout;     /* as in attn_sdpa; `weights` are those without it */
  attn_tensor lse;       /* out, optional: [B,H,Tq,1] f32 */
  float *weights;        /* out, optional: [B,H,edges], the weight of each edge */
} attn_edges_params;

#if ATTN_HAS_EDGES
/* Attention over an explicit set of keys for each query.
 *
 *   x_e = s q_i . k_col[e] + bias_e,  P = softmax over row i's edges,  O_i = sum_e P_e v_col[e]
 *
 * Shapes of o, q, k, v, aliasing, empty rows, NaN as attn_sdpa. No dense array is formed, nothing
 *   is built beforehand; for sets used many times or with dense parts attn_pattern_csr is faster.
 * Memory: attn_edges_workspace bytes, O(tile * (dk + dv)) per worker.
 * Errors: those of attn_sdpa and INDEX: indptr not from 0, decreasing or not ending with edges, a
 *   column out of range and, with ctx->validate, a key twice in one set.
 * Determinism: the same bits on avx2, avx512 and neon, any number of workers. Cost: 2 (dk + dv)
 *   flops an edge, and reading its two rows. Source: Child et al. 2019, arXiv 1904.10509. */
ATTN_DEF attn_status attn_edges(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                const attn_edges_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_edges_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const attn_edges_params *params, const attn_ctx *ctx);
#endif
