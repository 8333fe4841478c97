/* api/families/content/routing.h owns attention whose pairs are chosen by content through clusters or gates: the
 * Routing Transformer (D2), and mixtures of attention experts (D6). What chooses and what attends are calls of
 * their own; one call chains both. */

/* ---- clusters of queries and keys ------------------------------------------------------------------*/

/* What rows are divided by before they are routed and scored. */
typedef enum attn_routing_norm {
  ATTN_ROUTING_LAYERNORM = 0, /* (x - mean) / sqrt(var + 1e-6) */
  ATTN_ROUTING_L2,            /* x / max(|x|, 1e-12) */
  ATTN_ROUTING_NONE,          /* x itself */
  ATTN_ROUTING_NORM_COUNT
} attn_routing_norm;

typedef enum attn_routing_membership {
  ATTN_ROUTING_TOPW =
      0,               /* a cluster has the w rows of largest <mu_c, x>, the lowest row of equals */
  ATTN_ROUTING_ARGMAX, /* a row is in the cluster of largest <mu_c, x>, the lowest of equals */
  ATTN_ROUTING_MEMBERSHIP_COUNT
} attn_routing_membership;

/* What becomes of a row that is in several clusters. */
typedef enum attn_routing_combine {
  ATTN_ROUTING_MEAN = 0, /* the average of its results, over the clusters in which it has a key */
  ATTN_ROUTING_UNION,    /* one softmax over all keys of its clusters, each key once */
  ATTN_ROUTING_COMBINE_COUNT
} attn_routing_combine;

typedef struct attn_routing_params {
  attn_routing_norm norm;
  attn_routing_membership membership;
  attn_routing_combine combine;
  int64_t w;        /* queries of a cluster with TOPW; 0 = ceil(Tq / C) */
  int64_t wk;       /* keys of a cluster; 0 = ceil(Tk / C) */
  int causal;       /* query i sees keys up to i + Tk - Tq */
  int shared;       /* keys are the queries: Tq = Tk, k and the keys' members are absent */
  int exclude_self; /* shared only: a row does not see itself, unless it sees nothing else */
  float scale;      /* 0 = 1/sqrt(dk), ATTN_ZERO = 0 */
  attn_tensor lse;  /* out, optional, UNION only: [B,H,Tq,1] f32 */
  const int32_t *q_len, *kv_len; /* [B] rows from there on are in no cluster, and q and k never read
                                  * there; shared: q_len alone */
  /* optional, together, any float types: n = len / C learned keys and values a cluster, those of cluster c
   * are rows c n .. c n + n - 1; every query in the cluster sees them, causal or not. No norm of theirs */
  attn_tensor mem_k, mem_v; /* [1,H,C n,dk], [1,H,C n,dv] */
} attn_routing_params;

/* The members of each head's clusters, ascending in each: those of cluster c are index[indptr[c]] ..
 * index[indptr[c + 1] - 1]. A row may be in several clusters or in none. */
typedef struct attn_members {
  int32_t *index;  /* [B][H][entries] */
  int32_t *indptr; /* [B][H][clusters + 1]; the first is 0 */
  int64_t entries, clusters;
} attn_members;

/* Entries that attn_routing_select needs for n rows: TOPW clusters * min(w, n), w = 0 as above; ARGMAX n.
 * -1 for numbers that are no good. */
ATTN_DEF int64_t attn_routing_entries(int64_t n, int64_t clusters, int64_t w,
                                      attn_routing_membership membership);

/* Puts queries and keys into clusters by centroids mu (SELECT):
 *
 *   x = norm(row);  TOPW: the w rows of largest <mu_c, x> for each c;  ARGMAX: argmax_c <mu_c, x>
 *
 * Shapes: q [B,H,Tq,dk], k [B,Hk,Tk,dk] (Hk divides H; head h routes its key head by its own centroids),
 *   f32, f16 or bf16, any strides; centroids f32 [1,H,C,dk], C >= 1. queries and keys: entries at least
 *   attn_routing_entries, clusters = C; Tq, Tk and entries below 2^31. shared: k.data null and
 *   keys.index null. combine, causal, exclude_self, scale and lse only have to be legal,
 *   mem_k and mem_v are not looked at.
 * TOPW looks at all rows: who is in a cluster depends on later ones, though no pair does. ARGMAX depends
 *   on the row alone.
 * Aliasing: outputs share memory with nothing.
 * Memory: attn_routing_select_workspace bytes: 4 dk a normalised row, 4 a row with ARGMAX, and a worker
 *   O(64 (dk + w)) with TOPW.
 * Errors: ATTN_E_NULL, _DTYPE, _SHAPE (extents, C, clusters, entries; shared with Tq != Tk), _HEADS,
 *   _RANGE (w, lengths, enums, exclude_self without shared, lse with MEAN), _VALUE, _OVERLAP, _OVERFLOW, _ALIGN,
 *   _WORKSPACE, _MEMORY and those of ctx; outputs untouched.
 * Empty: B = 0 or H = 0 does nothing; rows of 0 make empty clusters.
 * NaN: a row with NaN comes after all others with TOPW and has some cluster with ARGMAX.
 * Determinism: scores are chains of fused multiply-adds in the order of c, after the norm. The same members
 *   on avx2, avx512 and neon, for any number of workers. Cost: 2 B H C (Tq + Tk) dk flops.
 * Source: Roy et al. 2020, arXiv 2003.05997. */
ATTN_DEF attn_status attn_routing_select(attn_members queries, attn_members keys, attn_tensor q,
                                         attn_tensor k, attn_tensor centroids,
                                         const attn_routing_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_routing_select_workspace(attn_members queries, attn_members keys,
                                              attn_tensor q, attn_tensor k, attn_tensor centroids,
                                              const attn_routing_params *params,
                                              const attn_ctx *ctx);

/* Attention inside clusters (ATTEND):
 *
 *   in cluster c, row i of its queries sees the keys j of its keys with j <= i + Tk - Tq if causal;
 *   scores scale <norm(q_i), norm(k_j)>, values v_j;  and mem_k and mem_v of the cluster;  then combine
 *
 * Shapes: o [B,H,Tq,dv], q, k as above, v [B,Hv,Tk,dv]. queries and keys have the same number of clusters;
 *   membership, w and wk are not looked at. Members of batch entry b are below q_len[b] and kv_len[b].
 * causal hides the keys after i; but a cluster takes the w nearest of all tokens, as the paper does, so which
 * earlier keys a row meets depends on later tokens.
 * A row in no cluster, or without a key, is 0 and its lse -infinity; exclude_self counts mem_k as other keys.
 *   With one cluster for each row MEAN and UNION agree.
 * Aliasing: o and lse share memory with nothing.
 * Memory: attn_routing_attend_workspace bytes: normalised rows; 4 dv a member of the queries, of at most
 *   Tq + C of them at a time; 4 dv a row unless o is f32; 4 a row and a member; UNION 8 a row more, and the
 *   same of the keys; a worker that of attn_sdpa with a schedule, and 32 for each key a cluster may have;
 *   with mem_k 4 (dk + dv) a row of them and of the keys, for each head.
 *   No array of C w rows of keys, or of Tq Tk.
 * Errors: as above, ATTN_E_INDEX for members out of range, out of order or doubled in a cluster; ATTN_E_NULL
 *   for mem_k without mem_v, ATTN_E_SHAPE for theirs.
 * NaN: in q_i, k_j or v_j it reaches the rows that read it, as in attn_sdpa.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers.
 * Cost: 2 (dk + dv) flops for each pair of a query and a key of a cluster.
 * Source: Roy et al. 2020, arXiv 2003.05997 (MEAN without the 0.01 in the divisor of their program); mem_k
 *   and mem_v as in the program routing-transformer by Phil Wang. */
ATTN_DEF attn_status attn_routing_attend(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                         attn_members queries, attn_members keys,
                                         const attn_routing_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_routing_attend_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                              attn_tensor v, attn_members queries,
                                              attn_members keys, const attn_routing_params *params,
                                              const attn_ctx *ctx);

/* Both: attn_routing_select, then attn_routing_attend with its members, rows being normalised once. The
 * same bits as the two calls. */
ATTN_DEF attn_status attn_routing(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                  attn_tensor centroids, const attn_routing_params *params,
                                  attn_ctx *ctx);
ATTN_DEF size_t attn_routing_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                       attn_tensor centroids, const attn_routing_params *params,
                                       const attn_ctx *ctx);

/* How centroids follow the rows that are nearest to them. */
typedef enum attn_routing_rule {
  ATTN_ROUTING_SUM =
      0, /* mu_c = lam mu_c + (1 - lam) (S_c of queries + S_c of keys) / 2; shared: S_c */
  ATTN_ROUTING_DIRECTION, /* mu_c = lam mu_c + (1 - lam) S_c / |S_c|; S_c = 0: mu_c stays */
  ATTN_ROUTING_RUNNING, /* n_c = lam n_c + (1 - lam) N_c, m_c = lam m_c + (1 - lam) S_c, n = sum n_c,
                         * mu_c = m_c / ((n_c + 1e-5) / (n + 1e-5 C) n); n = 0: mu_c stays */
  ATTN_ROUTING_RULE_COUNT
} attn_routing_rule;

typedef struct attn_routing_update_params {
  attn_routing_rule rule;
  float decay;      /* lam in [0, 1]; 0 = 0.999, ATTN_ZERO = 0 */
  int renormalize;  /* 1: every centroid is scaled to length 1 afterwards, those of length 0 stay */
  float *counts;    /* RUNNING, in and out: n_c [H][C] */
  attn_tensor sums; /* RUNNING, in and out: m_c f32 [1,H,C,dk] */
} attn_routing_update_params;

/* Moves centroids towards their rows. With a(x) = argmax_c <mu_c, x> over the centroids as they were, S_c
 * is the sum and N_c the number of normalised queries and keys with a(x) = c, all batch entries together,
 * each head for itself; shared: queries alone.
 * Shapes: next [1,H,C,dk] f32, may be centroids itself; the others as in attn_routing_select. Of routing,
 *   norm, shared, q_len and kv_len count; the rest only has to be legal.
 * Aliasing: outputs share memory with nothing else. Memory: attn_routing_update_workspace bytes: 4 (dk + 1)
 *   a row, 8 (dk + 1) a centroid, O(64 dk) a worker.
 * Errors: as above; ATTN_E_VALUE for a decay outside [0, 1], ATTN_E_NULL for RUNNING without its state.
 * Empty: B = 0 counts as no rows. NaN: in a row, spoils the centroid it is assigned to.
 * Determinism: sums go on in double in the order of the batch, queries before keys. The same bits on avx2, avx512
 *   and neon. Cost: 2 B H C (Tq + Tk) dk flops.
 * Source: Roy et al. 2020, arXiv 2003.05997; RUNNING as in van den Oord et al. 2017, arXiv 1711.00937. */
ATTN_DEF attn_status attn_routing_update(attn_tensor next, attn_tensor q, attn_tensor k,
                                         attn_tensor centroids, const attn_routing_params *routing,
                                         const attn_routing_update_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_routing_update_workspace(attn_tensor next, attn_tensor q, attn_tensor k,
                                              attn_tensor centroids,
                                              const attn_routing_params *routing,
                                              const attn_routing_update_params *params,
                                              const attn_ctx *ctx);

/* Centroids to begin with: C different rows of the first batch entry of q, normalised, in ascending order.
 * Those of head h are a function of (seed, h, Tq, C): Floyd's sample.
 * Shapes: centroids f32 [1,H,C,dk], q [B,H,Tq,dk]; 1 <= C <= Tq < 2^31; B = 0 does nothing.
 * Aliasing: they share no memory. Memory: attn_routing_start_workspace bytes, Tq / 8 a worker. Errors: as above. */
ATTN_DEF attn_status attn_routing_start(attn_tensor centroids, attn_tensor q,
                                        attn_routing_norm norm, uint64_t seed, attn_ctx *ctx);
ATTN_DEF size_t attn_routing_start_workspace(attn_tensor centroids, attn_tensor q,
                                             attn_routing_norm norm, uint64_t seed,
                                             const attn_ctx *ctx);

/* ---- mixtures of attention experts (MoE) -------------------------------------------------------------------*/

/* A way of attending: attn_sdpa of its own queries, keys and values, with a pattern and scale of its own. */
typedef struct attn_expert {
  attn_tensor q, k, v; /* [B,H,Tq,dk], [B,Hk,Tk,dk], [B,Hv,Tk,dv]; Tq and dv are those of o */
  const attn_sdpa_params *
      params; /* null = defaults; map, ragged, q_offs and align_lengths absent. lse is an output here too:
                                   * of rows that are not sent to the expert it is -infinity */
} attn_expert;

typedef struct attn_mixture_params {
  float temperature;  /* of the gate, above 0; 0 = 1 */
  attn_tensor bias;   /* [1, 1 or Hg, 1, P], any float type; absent = 0 */
  int w_transposed;   /* 1: the gate's w is [1, 1 or Hg, P, dx], as in PyTorch checkpoints */
  int64_t k;          /* experts a row is sent to, 1..P */
  int no_renormalize; /* 1: weights of the k experts are not made to sum to 1 */
  int64_t capacity;   /* rows that a expert serves in each (batch, head), the first ones; 0 = all */
} attn_mixture_params;

/* The gate: how much of each expert a row gets.
 *
 *   pi[b,h,i,.] = softmax((x[b,h,i,.] w[h] + bias[h]) / temperature)
 *
 * pi f32 [B,Hg,Tq,P], Hg = 1 for all heads alike; x [B, 1 or Hg, Tq, dx], w [1, 1 or Hg, dx, P], each f32,
 * f16 or bf16. Of params temperature, bias and w_transposed count. A expert of logit -infinity has pi = 0, and so has
 * every expert of a row that has no other logits.
 * What holds for all calls here. Aliasing: outputs share memory with nothing. Errors: ATTN_E_NULL, _DTYPE,
 *   _SHAPE, _STRIDE, _RANGE (k, capacity), _VALUE (temperature), _INDEX, _OVERLAP, _OVERFLOW, _ALIGN,
 *   _WORKSPACE, _MEMORY, those of attn_sdpa and of ctx; outputs untouched. Determinism: the same bits on avx2,
 *   avx512 and neon, for any number of workers. Extents B, H or Tq of 0 do nothing.
 * Memory: attn_gate_workspace bytes, that of attn_gemm. NaN: in the rows that read it. Cost: 2 B Hg Tq dx P flops.
 * Source: gates as in Shazeer et al. 2017, arXiv 1701.06538. */
ATTN_DEF attn_status attn_gate(attn_tensor pi, attn_tensor x, attn_tensor w,
                               const attn_mixture_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_gate_workspace(attn_tensor pi, attn_tensor x, attn_tensor w,
                                    const attn_mixture_params *params, const attn_ctx *ctx);

/* All experts at once: o_i = sum_p pi_ip O^p_i, in the order of p.
 *
 * o [B,H,Tq,dv], pi [B, 1 or H, Tq, P], any float type; experts [P], P >= 1. A expert in which a row has no
 * key adds 0 to it, with its weight.
 * Memory: attn_mixture_workspace bytes: 4 dv a row, as much again unless o is f32, and that of attn_sdpa for
 *   the hungriest expert. Cost: that of all experts. NaN: as in attn_sdpa; weights of 0 do not hide it.
 * Source: form defined here. */
ATTN_DEF attn_status attn_mixture(attn_tensor o, const attn_expert *experts, int64_t count,
                                  attn_tensor pi, attn_ctx *ctx);
ATTN_DEF size_t attn_mixture_workspace(attn_tensor o, const attn_expert *experts, int64_t count,
                                       attn_tensor pi, const attn_ctx *ctx);

/* Which experts a row is sent to (SELECT): the k largest pi, the lowest expert of equals, NaN last.
 *
 *   expert[b,h,i,.]   their numbers, the largest pi first; -1: not served for want of capacity
 *   weight[b,h,i,.] pi, or pi over the sum of the k, 0 if that is not positive; 0 where expert is -1. What
 *                   is lost is not made up for
 *
 * expert [B][Hg][Tq][k], weight f32 [B,Hg,Tq,k], pi [B,Hg,Tq,P]. params is required.
 * Memory: attn_dispatch_select_workspace bytes: 4 k a row, O(P) a worker.
 * Source: Shazeer et al. 2017, arXiv 1701.06538; k = 1 and capacity Fedus et al. 2021, arXiv 2101.03961;
 *   attention Zhang et al. 2022, arXiv 2210.05144. */
ATTN_DEF attn_status attn_dispatch_select(int32_t *expert, attn_tensor weight, attn_tensor pi,
                                          const attn_mixture_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_dispatch_select_workspace(int32_t *expert, attn_tensor weight, attn_tensor pi,
                                               const attn_mixture_params *params,
                                               const attn_ctx *ctx);

/* Rows through the experts they are sent to (ATTEND): o_i = sum of weight_ie O^(path_ie)_i, in the order of
 * the experts. Nothing is computed for the other rows of a expert; its keys are all of its keys.
 *
 * expert [B][Hg][Tq][k], weight f32 [B,Hg,Tq,k], Hg = 1 or H; numbers lie in -1..P-1, and no expert comes twice
 * in a row (ATTN_E_INDEX). A weight of 0 sends nothing. A row sent nowhere is 0.
 * Memory: attn_dispatch_workspace bytes: as attn_mixture, and 8 P a row of expert.
 * Cost: 2 (dk + dv) flops for each pair of a row that is sent. */
ATTN_DEF attn_status attn_dispatch(attn_tensor o, const attn_expert *experts, int64_t count,
                                   const int32_t *expert, attn_tensor weight, attn_ctx *ctx);
ATTN_DEF size_t attn_dispatch_workspace(attn_tensor o, const attn_expert *experts, int64_t count,
                                        const int32_t *expert, attn_tensor weight,
                                        const attn_ctx *ctx);

/* Gate and experts in one: with params.k = 0 attn_gate and attn_mixture; else attn_gate,
 * attn_dispatch_select and attn_dispatch. The same bits as those calls. Hg is the larger of x.heads and
 * w.heads, 1 or H. */
ATTN_DEF attn_status attn_gated(attn_tensor o, const attn_expert *experts, int64_t count,
                                attn_tensor x, attn_tensor w, const attn_mixture_params *params,
                                attn_ctx *ctx);
ATTN_DEF size_t attn_gated_workspace(attn_tensor o, const attn_expert *experts, int64_t count,
                                     attn_tensor x, attn_tensor w,
                                     const attn_mixture_params *params, const attn_ctx *ctx);
