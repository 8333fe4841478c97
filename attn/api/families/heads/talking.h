/* api/families/heads/talking.h owns what couples the heads of one attention: talking heads, and losses that compare
 * heads with each other or with given patterns. No score map is stored for any of them. */

typedef struct attn_talking_params {
  attn_tensor w_l; /* [1,1,hk,H]: P_l, mixes scores before the softmax */
  attn_tensor w_w; /* [1,1,H,hv]: P_w, mixes weights after it */
  /* Of the H softmax heads: scale, causal, q_off, windows, lengths, mask, mask_new, bias, alibi,
   * toeplitz, t5, parabola, gaussian and lse [B,H,Tq,1]; arrays a head are [H]. The rest must be absent. */
  attn_sdpa_params attention;
  int w_transposed; /* 1: w_l is [1,1,H,hk] and w_w [1,1,hv,H], as in PyTorch checkpoints */
} attn_talking_params;

/* Talking heads: linear maps across heads before and after the softmax.
 *
 *   J_kij = s q_ki . k_kj,   L_hij = sum_k J_kij P_l[k,h] + terms_hij
 *   W_hi. = softmax of L_hi. over the allowed j,   U_vij = sum_h W_hij P_w[h,v]
 *   O_vi = sum_j U_vij v_vj,   LSE_hi = log sum_j exp(L_hij)
 *
 * Masks and terms apply to L, after P_l. Rows of U need not sum to 1 and may be negative.
 * Shapes: q [B,hk,Tq,dk], k [B,Hk,Tk,dk], v [B,Hv,Tk,dv], o [B,hv,Tq,dv]; Hk divides hk, Hv divides
 *   hv. hk, H and hv are free of each other. f32, f16 or bf16, any strides.
 * Aliasing: o and lse share memory with nothing, inputs may overlap.
 * Memory: attn_talking_workspace bytes, O(64 (hk (dk + 128) + H 128 + hv (dv + 128))) floats a worker
 *   and about 2 MiB of weights, or a block of 128 keys if that is more, whatever Tq and Tk; 8 bytes for 64
 *   rows, and tables of terms as attn_sdpa.
 * Empty rows: O = 0 for every value head, LSE = -inf; a row may be empty for some softmax heads only,
 *   which then add nothing. B, Tq of 0: no-op.
 * NaN: in a query, or in a key or value row that some softmax head allows it to see, makes NaN in all
 *   value heads of that row, or of the values' head; what all of them forbid never reaches it.
 * Errors: those of attn_sdpa; SHAPE: w_l, w_w; RANGE: fields of scores that must be absent.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers.
 * Cost: 2 (hk dk + hk H + H hv + hv dv) flops a pair in blocks of 64 x 128 that causal, windows and
 *   lengths leave; beyond the keys whose weights fit the memory above, 2 (hk dk + hk H) more.
 * Source: Shazeer et al. 2020, arXiv 2003.02436. */
ATTN_DEF attn_status attn_talking(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                  const attn_talking_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_talking_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                       const attn_talking_params *params, const attn_ctx *ctx);

/* What heads are compared by. */
typedef struct attn_disagreement_params {
  attn_tensor v; /* [B,Hv,Tk,dv]: their value rows; data null: no D_sub */
  attn_tensor o; /* [B,H,Tq,dv]: their outputs; data null: no D_out */
  /* Their maps, for D_pos: computed again from q [B,H,Tq,dk] and k [B,Hk,Tk,dk], Hk a divisor of H, as
   * scores says, or read from map [B,H,Tq,Tk], of any float type. All absent: no D_pos. */
  attn_tensor q, k, map;
  /* As in attn_talking, without lse. Of the values kv_len counts, of the outputs q_len; with a map
   * nothing else does. */
  attn_sdpa_params attention;
  int flat;   /* 1: one cosine a batch entry, between all its rows end to end */
  int by_row; /* 1: D_pos of a batch entry is divided by the number of its query rows */
} attn_disagreement_params;

/* How much heads differ; to be maximised, so that a loss adds -lambda d[n].
 *
 *   d[0] = D_sub = -(1/H^2) sum over heads h, g (h = g too) of mean over b, j of cos(V_hj, V_gj)
 *   d[1] = D_out = the same of the outputs O
 *   d[2] = D_pos = -(1/(B H^2)) sum over b, h, g, i, j of |P_hij P_gij|
 *
 * The means run over the rows before kv_len, q_len of the whole batch; with flat over the B entries. A
 * cosine with a vector of norm <= 1e-12 is 0. Absent terms, and those without a row, are 0.
 * Shapes: d [3], doubles. Groups of heads that share V count as one head: the mean is the same.
 * Aliasing: d shares memory with nothing. Memory: attn_disagreement_workspace bytes: per worker as
 *   attn_talking without value heads; for 64 rows of a term 8 bytes, 16 for D_pos, with flat 8 more a
 *   head.
 * NaN: in a row that counts makes its term NaN.
 * Errors: those of attn_sdpa, HEADS: o and the maps differ in heads; d untouched.
 * Determinism: as attn_talking. Sums of more than a head's width are in f64.
 * Cost: O(B T H dv) for cosines; for D_pos 2 B H N dk flops and the softmax, and as much again for keys
 *   whose weights do not fit the memory (1024 keys of 8 heads do); no factor H^2, by
 *   sum_{h,g} u_h . u_g = |sum_h u_h|^2. Source: Li et al. 2018, arXiv 1810.10183. */
ATTN_DEF attn_status attn_disagreement(double *d, const attn_disagreement_params *params,
                                       attn_ctx *ctx);
ATTN_DEF size_t attn_disagreement_workspace(double *d, const attn_disagreement_params *params,
                                            const attn_ctx *ctx);

/* Where a target pattern has its weight in row i, with p_i = i + q_off; 0 elsewhere. */
typedef enum attn_target_kind {
  ATTN_TARGET_OFFSET =
      0,               /* 1 at j = p_i + offset: 0 self, 1 next, -1 previous; outside: a zero row */
  ATTN_TARGET_FIRST,   /* 1 at j = 0 */
  ATTN_TARGET_TOKENS,  /* 1 / count at the marked keys, or 1 if raw; none marked: 0 */
  ATTN_TARGET_BLOCK,   /* 1 / count at the keys of p_i's segment; p_i outside: a zero row */
  ATTN_TARGET_UNIFORM, /* 1 / Tk */
  ATTN_TARGET_COUNT
} attn_target_kind;

typedef struct attn_target {
  attn_target_kind kind;
  float weight;           /* in a mixture; of all targets of a group >= 0, sum 1; alone: 0 or 1 */
  int64_t offset;         /* OFFSET */
  const uint8_t *marked;  /* TOKENS: [Tk], not 0 = marked */
  const int32_t *segment; /* BLOCK: [Tk], the segment of each key, any numbers */
  int64_t len;            /* TOKENS, BLOCK: entries a batch entry, Tk */
  int per_batch;          /* TOKENS, BLOCK: the array is [B, Tk] */
  int raw;                /* TOKENS */
} attn_target;

/* Heads that are to have one pattern. */
typedef struct attn_target_group {
  const attn_target *target; /* [targets], a mixture of them */
  int64_t targets;           /* >= 1 */
  const int32_t *head;       /* [heads], each 0 .. H-1 */
  int64_t heads;
} attn_target_group;

typedef enum attn_guided_reduction {
  ATTN_GUIDED_FRO2 = 0, /* (1/B) sum over b, groups and their heads of |P - T|_F^2 */
  ATTN_GUIDED_FRO,      /* the same of |P - T|_F */
  ATTN_GUIDED_MSE,      /* sum over groups of the mean of (P - T)^2 over b, heads, i and j */
  ATTN_GUIDED_COUNT
} attn_guided_reduction;

typedef struct attn_guided_params {
  const attn_target_group *group; /* [groups] */
  int64_t groups;
  attn_guided_reduction reduction;
  attn_tensor q, k, map;      /* as in attn_disagreement */
  attn_sdpa_params attention; /* likewise; q_off also places the targets, of a map too */
} attn_guided_params;

/* The distance of heads' maps from given patterns, *loss.
 *
 *   |P - T|_F^2 = sum P^2 - 2 sum P T + sum T^2
 *
 * so that neither P nor T is stored. Rows and keys that masks or lengths leave out are zero in P and are
 * compared all the same. Layers add up, scales are the caller's.
 * Shapes: as attn_disagreement. Empty: groups without heads and empty maps add 0.
 * Memory: attn_guided_loss_workspace bytes: per worker as attn_disagreement, 64 KB and 512 bytes a target;
 *   8 bytes for 64 rows and entry of a list of heads.
 * Errors: those of attn_sdpa, NULL, RANGE: kind, reduction, raw; INDEX: a head outside 0..H-1; SHAPE:
 *   len; VALUE: weights that are no distribution. Cost: that of D_pos, and O(B Tq Tk) a group.
 * NaN, aliasing, determinism: as attn_disagreement.
 * Source: Deshpande and Narasimhan 2020, arXiv 2010.02399; the patterns: Kovaleva et al. 2019, arXiv
 *   1908.08593. */
ATTN_DEF attn_status attn_guided_loss(double *loss, const attn_guided_params *params,
                                      attn_ctx *ctx);
ATTN_DEF size_t attn_guided_loss_workspace(double *loss, const attn_guided_params *params,
                                           const attn_ctx *ctx);
