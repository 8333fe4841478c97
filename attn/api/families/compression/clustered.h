/* api/families/compression/clustered.h owns attention that computes fewer queries than there are (family F): groups of
 * queries that share one (clustered attention), and a chosen few beside an average (ProbSparse).
 *
 * Lengths, here: q_len and kv_len [B] cut an item, 0 <= len <= T; the item's result is that of the same
 * call on tensors cut to them, with the same q_off. Cut query rows are zeros. Every random number is a
 * function of the seed (attn_random_u64). No call forms an array of queries x keys. */

/* ---- clustered attention ------------------------------------------------------------------------*/

typedef struct attn_cluster_params {
  int64_t clusters;   /* C, 1 .. the fewest queries of an item; there is no default */
  int64_t bits;       /* of a hash, 1..63; 0 = 32 */
  int64_t iterations; /* of k-means; 0 = 10 */
  int no_hash_bias;   /* 1: codes depend on the directions of queries alone */
  uint64_t seed;
  int64_t k;            /* keys that each query reads by itself: 0 = none, 32 in the paper */
  int causal;           /* 1: of those, the ones up to the query, and no others; needs k */
  float scale;          /* 0 = 1/sqrt(dk), ATTN_ZERO = 0; any finite value */
  const int32_t *q_len; /* [B] or null */
  const int32_t *kv_len;
} attn_cluster_params;

/* Puts similar queries into clusters: assignment[b,h,i] in 0..C-1.
 *
 *   bit r of the code of q_i:  sum_c q_ic P_rc > P_r,dk (no_hash_bias: > 0),  P [bits, dk + 1] normal
 *   k-means over the codes by Hamming distance, each (b, h) by itself: C distinct queries to begin
 *   with; iterations times the nearest centroid, lowest index on ties, and between them the majority of the
 *   members' bits, ties to 0. A cluster without members gets a random code.
 *
 * Shapes: q [B,H,Tq,dk] f32, f16 or bf16, any strides; assignment [B,H,Tq] dense, -1 for cut rows.
 *   Tq < 2^31. params is required; k, causal, scale and kv_len only have to be legal.
 * Aliasing: assignment shares memory with nothing.
 * Memory: attn_cluster_queries_workspace bytes: 8 a query, and per worker 4 a query and some 460 a
 *   cluster (590 with more than 32 bits), or 16 KB and for 16-bit q 256 dk; 256 dk once.
 * Errors: NULL, DTYPE, SHAPE (dk < 1, clusters < 1, iterations < 0, k < 0), RANGE (bits; clusters above
 *   the queries of an item; lengths), VALUE (scale), OVERLAP, OVERFLOW, ALIGN, WORKSPACE, MEMORY and
 *   those of ctx; assignment untouched. B = 0 and Tq = 0 do nothing.
 * NaN: a comparison with NaN is false: the bit is 0.
 * Determinism: the sums are those of binary64 in the order of c, so that codes and clusters are the
 *   same on every tier and machine, for any number of workers. Equal queries share a cluster.
 * Cost: 2 Tq bits dk flops a head, and iterations Tq C Hamming distances.
 * Source: Vyas et al. 2020, arXiv 2007.04825, and its reference library, which draws unseeded numbers
 *   and starts from padding too. */
ATTN_DEF attn_status attn_cluster_queries(int32_t *assignment, attn_tensor q,
                                          const attn_cluster_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_cluster_queries_workspace(int32_t *assignment, attn_tensor q,
                                               const attn_cluster_params *params,
                                               const attn_ctx *ctx);

/* Attention by the centroids of clusters. For each cluster with members G and their mean qc:
 *
 *   A = softmax_j(s qc . k_j),   o_i = sum_j A_j v_j for i in G                       (k = 0)
 *   T = the min(k, Tk) keys of largest s qc . k_j, equal ones by index, m = sum of A over T:
 *   o_i = m sum_{l in T} softmax_{l in T}(s q_i . k_l) v_l + sum_{l not in T} A_l v_l   (k > 0)
 *   o_i = sum_{l in T, l <= p_i} softmax_{l in T, l <= p_i}(s q_i . k_l) v_l,  p_i = i + Tk - Tq  (causal)
 *
 * Shapes: q [B,H,Tq,dk], k [B,Hk,Tk,dk], v [B,Hv,Tk,dv], o [B,H,Tq,dv]; Hk and Hv divide H; storage
 *   types are independent, strides any. Tq, Tk < 2^31. assignment [B,H,Tq] of entries 0..C-1 (those of
 *   cut rows are not read); null: the one that attn_cluster_queries makes.
 * causal is that of the reference library: no later key is in a row's softmax, nor any number of its value.
 *   But clusters, their means and T are those of all queries and keys of an item, so that which earlier keys
 *   a row meets depends on later tokens: it is no form for generating text token by token.
 * Aliasing: o shares memory with nothing. Memory: attn_clustered_workspace bytes: 4 (Tq + C + 1) a
 *   head; with k = 0 4 C (dk + dv) a head and attn_sdpa's, else per worker O(64 (dk + dv + k)), causal
 *   also 4 C k a head and attn_sdpa's with a schedule;
 *   with assignment null 4 Tq a head and attn_cluster_queries's.
 * Empty: clusters without members cost nothing; Tk = 0 gives zeros, and so does causal where all of T comes
 *   later; B = 0 and Tq = 0 do nothing.
 * Errors: those of attn_cluster_queries, HEADS, STRIDE, INDEX (an entry outside 0..C-1), RANGE (causal
 *   without k); o untouched.
 * NaN: in a query reaches its cluster, its own row alone where k takes in all keys or causal; in a key or
 *   value, all rows of the heads that read it. Causal: a NaN score of a centroid is the least of all.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers. Equal queries of a
 *   cluster get equal outputs; with k = 0 all members do.
 * Precision: m is summed over T in double; the rest is the centroid's sum less T's part, with an error
 *   of some 2^-23 of sum A |v|, and exactly 0 when k >= Tk, where every row is full attention.
 * Cost: 2 C Tk (dk + dv) flops a head, with k 2 Tq k (dk + dv) more; causal 2 C Tk dk and at most
 *   that. Source: Vyas et al. 2020, arXiv 2007.04825; causal its reference library, fast-transformers. */
ATTN_DEF attn_status attn_clustered(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                    const int32_t *assignment, const attn_cluster_params *params,
                                    attn_ctx *ctx);
ATTN_DEF size_t attn_clustered_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                         const int32_t *assignment,
                                         const attn_cluster_params *params, const attn_ctx *ctx);

/* ---- ProbSparse attention (Informer) ------------------------------------------------------------*/

typedef struct attn_probsparse_params {
  int64_t factor; /* f; 0 = 5 */
  int has_rows;   /* 1: rows below holds; 0: f ceil(ln Tq) */
  int64_t rows;   /* u, queries with attention of their own; 0: none. More than there are: all */
  int causal;     /* query i sees the keys j <= i + q_off */
  int has_q_off;  /* as in attn_sdpa_params */
  int64_t q_off;
  int fill_sum; /* 1, with causal: other rows get the sum of values (the authors' code), not the mean */
  int by_samples; /* 1: the mean in M divides by the samples, not by the keys */
  uint64_t seed;
  float scale;          /* 0 = 1/sqrt(dk), ATTN_ZERO = 0; any finite value */
  const int32_t *q_len; /* [B] or null */
  const int32_t *kv_len;
  const int32_t
      *samples; /* [Tq, U] keys x(i,t), U = attn_probsparse_samples(Tk); null: drawn from seed */
} attn_probsparse_params;

/* u of an item with this many queries: min(n, max(1, f ceil(ln n))), or min(n, params->rows). */
ATTN_DEF int64_t attn_probsparse_rows(int64_t queries, const attn_probsparse_params *params);
/* U, the keys that M looks at, of an item with this many: min(n, max(1, f ceil(ln n))). */
ATTN_DEF int64_t attn_probsparse_samples(int64_t keys, const attn_probsparse_params *params);

/* How far a query is from attending to all keys alike, from U sampled keys x(i,t):
 *
 *   M_i = max_t q_i . k_x(i,t) - (sum_t q_i . k_x(i,t)) / Tk        (by_samples: / U)
 *
 * params->samples says them, for items that all have Tk keys. Else, U >= Tk: each key once; U < Tk: with
 * replacement, the same keys for all heads and for all items of as many keys. Unscaled, whatever params->scale;
 * causal does not matter: M looks at all keys.
 * Shapes: m [B,H,Tq,1] f32, q [B,H,Tq,dk], k [B,Hk,Tk,dk], Hk divides H; any storage types and strides.
 *   Cut rows and items without keys: 0. Tq, Tk < 2^31.
 * Aliasing: m shares memory with nothing. Memory: attn_probsparse_measure_workspace bytes, 4 U + 4 dk
 *   and a little per worker.
 * Errors: NULL, DTYPE, SHAPE (factor < 0, rows < 0), HEADS, STRIDE, RANGE (lengths, q_off; samples with
 *   kv_len), INDEX (a sample that is no key), VALUE, OVERLAP, OVERFLOW, ALIGN, WORKSPACE, MEMORY and those of ctx; m
 *   untouched.
 * NaN: in a query or a sampled key makes M unspecified there; elsewhere it does nothing.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers.
 * Cost: 2 Tq U dk flops a head, on key rows read from anywhere. Source: Zhou et al. 2020, arXiv
 *   2012.07436, and the authors' code. */
ATTN_DEF attn_status attn_probsparse_measure(attn_tensor m, attn_tensor q, attn_tensor k,
                                             const attn_probsparse_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_probsparse_measure_workspace(attn_tensor m, attn_tensor q, attn_tensor k,
                                                  const attn_probsparse_params *params,
                                                  const attn_ctx *ctx);

/* The u queries of largest M, the largest first, equal ones by index, NaN last.
 *
 * Shapes: selection [B,H,u] dense, u = attn_probsparse_rows(Tq, params); m [B,H,Tq,1] f32. An item with
 *   fewer queries has attn_probsparse_rows of those, then -1. Aliasing: selection shares memory with
 *   nothing. Memory: attn_probsparse_select_workspace bytes, 16 Tq per worker. Errors as above;
 *   selection untouched. The same on every tier. Cost: O(Tq). */
ATTN_DEF attn_status attn_probsparse_select(int32_t *selection, attn_tensor m,
                                            const attn_probsparse_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_probsparse_select_workspace(int32_t *selection, attn_tensor m,
                                                 const attn_probsparse_params *params,
                                                 const attn_ctx *ctx);

/* ProbSparse attention: exact attention for the selected rows, what uniform weights give for others.
 *
 *   selected:  o_i = softmax_j(s q_i . k_j) v_j over all keys, causal: over j <= p_i = i + q_off
 *   other:     o_i = mean of all v_j;  causal: mean of v_j over j <= p_i, with fill_sum their sum
 *
 * Shapes: q [B,H,Tq,dk], k [B,Hk,Tk,dk], v [B,Hv,Tk,dv], o [B,H,Tq,dv]; Hk and Hv divide H; storage
 *   types are independent, strides any. Tq, Tk < 2^31. selection [B,H,u] as attn_probsparse_select
 *   makes it, in any order (-1 only where that has it); null: measured and selected here.
 * Aliasing: o shares memory with nothing. Memory: attn_probsparse_workspace bytes: 8 dv for each 1024
 *   keys and kv head, 4 u a head, attn_sdpa's; with selection null 4 Tq a head and what the other two
 *   calls want.
 * Empty: rows that see no key are zeros, selected or not. B = 0 and Tq = 0 do nothing.
 * Errors: those of the two calls above, INDEX (a selected row outside the item, or one twice); o
 *   untouched.
 * NaN: as in attn_sdpa for selected rows; other rows are NaN from the first NaN value that they see.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers; means and sums are
 *   formed in double. Precision: attn_sdpa's, 2^-23 for the others.
 * Cost: 2 u Tk (dk + dv) flops a head, causal about half; Tk dv additions a kv head. It does not stream,
 *   even when causal: M looks at all keys and the selection at all queries.
 * Source: Zhou et al. 2020, arXiv 2012.07436; its authors' code sums where the paper averages. */
ATTN_DEF attn_status attn_probsparse(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const int32_t *selection, const attn_probsparse_params *params,
                                     attn_ctx *ctx);
ATTN_DEF size_t attn_probsparse_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, const int32_t *selection,
                                          const attn_probsparse_params *params,
                                          const attn_ctx *ctx);
