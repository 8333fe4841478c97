/* api/families/memory/recall.h owns memories that are searched: nearest stored contexts (kNN-LM), attention over
 * retrieved token vectors (SPALM), and a long memory of keys and values of which each query reads
 * its best few (Memorizing Transformer).
 *
 * Selection, here and everywhere: the k best keys of a query, equal ones by the lower index (the
 * older entry), NaN after everything else. What is selected does not depend on the tier (scalar
 * aside, which rounds differently), the workers or the other queries. No call forms an array of
 * queries x keys. */

/* Which distance between q and a key. */
typedef enum attn_knn_metric {
  ATTN_KNN_SQ_L2 = 0, /* sum_c (q_c - key_c)^2 */
  ATTN_KNN_L2,        /* its square root; the order is that of the squares */
  ATTN_KNN_IP         /* minus the dot product */
} attn_knn_metric;

typedef struct attn_knn_params {
  int64_t k; /* neighbours of a query; 0 = 1024 */
  attn_knn_metric metric;
} attn_knn_params;

/* The min(k, N) nearest keys of each query, nearest first: index [n, k] and distance [n, k], where
 * entries that there are no keys for get -1 and +inf. Exact: every key is compared.
 *
 * Shapes: q [1,1,n,d], keys [1,1,N,d], any storage types; n, N >= 0, d >= 1, N < 2^31. index or
 *   distance may be null.
 * Distances are sums of squared differences in f32, over 16 running sums; candidates are found by
 *   |q|^2 + |key|^2 - 2 q.key and a bound of its rounding, so that what is selected is what these
 *   sums select, ties included. Dot products are one chain of FMAs in the order of c.
 * Aliasing: outputs share memory with nothing. Memory: attn_knn_search_workspace bytes, O(n k) and
 *   O(64 (d + k)) per worker. Empty: n = 0 is a no-op.
 * Errors: NULL, DTYPE, SHAPE (k < 0 among them), RANGE (metric), OVERLAP, OVERFLOW, WORKSPACE,
 *   MEMORY, ISA, ENV, CTX, ALIGN; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, any number of workers.
 * Cost: 2 n N d flops and the selection, about k log2(N / k) candidates a query. Source: Khandelwal
 *   et al. 2019, arXiv 1911.00172. */
ATTN_DEF attn_status attn_knn_search(int32_t *index, float *distance, attn_tensor q,
                                     attn_tensor keys, const attn_knn_params *params,
                                     attn_ctx *ctx);
ATTN_DEF size_t attn_knn_search_workspace(int32_t *index, float *distance, attn_tensor q,
                                          attn_tensor keys, const attn_knn_params *params,
                                          const attn_ctx *ctx);

typedef struct attn_knn_lm_params {
  attn_knn_params knn;
  float lambda;          /* 0..1; 0 = 0.25, ATTN_ZERO = 0 */
  float temperature;     /* > 0; 0 = 1 */
  const int32_t *target; /* optional [n]: only the probability of one token a row is wanted */
  int64_t vocabulary;    /* V, with target; else 0 or the width of log_lm */
} attn_knn_lm_params;

/* kNN-LM: next-token probabilities mixed with a distribution over the nearest stored contexts.
 *
 *   w = softmax over the neighbours of -distance / T,  p_knn(y) = sum of w_i with values_i = y
 *   log_p(y) = log(lambda p_knn(y) + (1 - lambda) exp(log_lm(y)))
 *
 * Shapes: q [1,1,n,d], keys [1,1,N,d] as attn_knn_search; values [N] tokens 0..V-1; log_lm and
 *   log_p [1,1,n,V], with target [1,1,n,1]; storage types are independent. -inf is a legal
 *   logarithm. Equal tokens are summed in the log domain from their nearest one on, so that no mass
 *   is lost however far they are; no array of V numbers is kept beside log_p.
 * lambda = 0 and N = 0 give log_lm, bit for bit where the types are equal.
 * Aliasing: log_p may be log_lm, with equal strides and type; otherwise it shares memory with
 *   nothing. Memory: attn_knn_lm_workspace bytes, O(n k).
 * Errors: those of attn_knn_search, NULL (values), VALUE (lambda, temperature), INDEX (a token or
 *   target out of range), RANGE (vocabulary), STRIDE.
 * Determinism: as attn_knn_search. Cost: the search, k log k a row, and a pass over log_lm. Source:
 *   Khandelwal et al. 2019, arXiv 1911.00172 (which says L2 and computes its square). */
ATTN_DEF attn_status attn_knn_lm(attn_tensor log_p, attn_tensor log_lm, attn_tensor q,
                                 attn_tensor keys, const int32_t *values,
                                 const attn_knn_lm_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_knn_lm_workspace(attn_tensor log_p, attn_tensor log_lm, attn_tensor q,
                                      attn_tensor keys, const int32_t *values,
                                      const attn_knn_lm_params *params, const attn_ctx *ctx);

typedef struct attn_spalm_params {
  int64_t k;            /* retrieved vectors of a position, with index: 0 = 4; else 0 or y.len */
  const int32_t *index; /* optional [n, k]: rows of y [1,1,R,d], -1 = none there */
  const uint8_t *valid; /* optional [n, k]: 0 = this entry is not there */
  const float *w_g;     /* [d]; null = 0 */
  float b_g;
  float scale;       /* 0 = 1, ATTN_ZERO = 0 */
  attn_tensor gate;  /* out, optional: [1,1,n,1] f32, g */
  attn_tensor emb;   /* optional [1,1,V,d]: output embeddings, */
  attn_tensor log_p; /* out, with emb: [1,1,n,V] f32, log softmax(z emb^T) */
} attn_spalm_params;

/* SPALM: retrieved token vectors are attended with the hidden state and mixed in by a gate.
 *
 *   m_t = sum_i softmax_i(scale y_ti.h_t) y_ti,  g_t = sigmoid(w_g.h_t + b_g)
 *   z_t = (1 - g_t) m_t + g_t h_t
 *
 * Shapes: z, h [1,1,n,d]; y [1,n,k,d], or with index [1,1,R,d], whose rows are picked; any storage
 *   types, V, R, n, k >= 0. Without a valid entry z = h and g = 1.
 * Aliasing: outputs share memory with nothing. Memory: attn_spalm_workspace bytes, O(64 d + k) per
 *   worker. NaN in an entry that is not valid is not read; elsewhere it makes NaN in its row.
 * Errors: NULL, DTYPE, SHAPE (k < 0, widths; log_p without emb or the reverse), VALUE (b_g, scale not
 *   finite), INDEX (an index below -1 or not below R), STRIDE, OVERLAP, OVERFLOW, WORKSPACE, MEMORY,
 *   ISA, ENV, CTX, ALIGN; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, any number of workers. Cost: 4 n k d flops, with
 *   emb 2 n V d more. Source: Yogatama et al. 2021, arXiv 2102.02557. */
ATTN_DEF attn_status attn_spalm(attn_tensor z, attn_tensor h, attn_tensor y,
                                const attn_spalm_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_spalm_workspace(attn_tensor z, attn_tensor h, attn_tensor y,
                                     const attn_spalm_params *params, const attn_ctx *ctx);

/* A memory of keys and values, first in, first out: a ring over the caller's tensors. Fill in k and v
 * and zeros; setting len to 0 empties it. Entry j, the oldest first, is row (first + j) % k.len. */
typedef struct attn_kv_memory {
  attn_tensor k; /* [B, Hk, capacity, dk], of a float type */
  attn_tensor v; /* [B, Hv, capacity, dv] */
  int64_t len;   /* entries */
  int64_t first; /* row of the oldest */
} attn_kv_memory;

typedef struct attn_memorizing_params {
  int64_t k;        /* entries a query reads; 0 = 32 */
  int raw;          /* 1: queries and keys are not normalised, the scale is 1/sqrt(dk) */
  int normalize_v;  /* 1: values are normalised like keys: in the memory, the segment and xl_v */
  int joint;        /* 1: one softmax over memory and segment, without a gate */
  int bypass_empty; /* 1: with an empty memory o is the local attention */
  const float *b_g; /* [H] gate logits; null = 0 */
  const float *tau; /* [H] scale |tau| of normalised scores; null = 1; absent with raw */
  attn_tensor xl_k, xl_v; /* optional [B,Hk,M,dk], [B,Hv,M,dv]: keys and values in front of k, v */
} attn_memorizing_params;

/* Memorizing Transformer: attention to the best entries of a long memory beside the local one, mixed
 * by a gate per head; then the segment joins the memory.
 *
 *   x = x / sqrt(sum x^2 + 1e-6) for rows of q, k and xl_k, s = |tau_h|    (raw: s = 1/sqrt(dk))
 *   local = softmax attention of q_i over [xl_k; k_0 .. k_i]
 *   far   = softmax over T_i of s q_i.mem_j, T_i = the k entries with the largest q_i.mem_j
 *   o = g far + (1 - g) local,  g = sigmoid(b_g[h])
 *   joint: one softmax over T_i and the local keys
 *   memory: k (normalised) and v are appended, the oldest entries beyond the capacity dropped
 *
 * Shapes: q [B,H,L,dk], k [B,Hk,L,dk], v [B,Hv,L,dv], o [B,H,L,dv]; the memory has the heads of k
 *   and v. Storage types are independent. Every head and query selects for itself; entries are
 *   equal when their dot products are, then the older one wins. With s = 0 the oldest are taken.
 *   With an empty memory far is 0, and o = (1 - g) local unless bypass_empty or joint.
 * xl_k holds keys as k had them when they were new; the memory holds them normalised.
 * Aliasing: o and the memory share memory with nothing. Memory: attn_memorizing_workspace bytes,
 *   O(64 (dk + dv + k)) per worker and f32 copies of the segment: q, k (and v with xl_v or
 *   normalize_v), local.
 * Errors: those of attn_sdpa; SHAPE (capacity < 1, k < 0, heads or widths that differ), NULL
 *   (memory, xl_k without xl_v), RANGE (len or first outside the memory; joint with b_g or
 *   bypass_empty; raw with tau), VALUE (b_g or tau not finite); o and the memory untouched.
 * Determinism: the same bits on avx2, avx512 and neon, any number of workers. Cost: 2 H L len dk flops
 *   for the search, 2 H L k dv, and the local attention. Source: Wu et al. 2022, arXiv 2203.08913;
 *   the joint softmax is that of a known port. */
ATTN_DEF attn_status attn_memorizing(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     attn_kv_memory *memory, const attn_memorizing_params *params,
                                     attn_ctx *ctx);
ATTN_DEF size_t attn_memorizing_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, const attn_kv_memory *memory,
                                          const attn_memorizing_params *params,
                                          const attn_ctx *ctx);

/* Appends rows to a memory, without attention: k [B,Hk,L,dk] and v [B,Hv,L,dv] as in attn_memorizing,
 * of whose params raw and normalize_v are read. Cost: one pass over the last rows that fit. */
ATTN_DEF attn_status attn_recall_append(attn_kv_memory *memory, attn_tensor k, attn_tensor v,
                                        const attn_memorizing_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_recall_append_workspace(const attn_kv_memory *memory, attn_tensor k,
                                             attn_tensor v, const attn_memorizing_params *params,
                                             const attn_ctx *ctx);
