/* api/families/maps/maps.h owns score maps that pass from layer to layer, maps that layers share, and the
 * block-diagonal prior of CAMTL.
 *
 * Scores are meant before the softmax, before every mask and before params.attention.bias, which is
 * a mask here: A = s q k^T and the terms of attn_sdpa_params (alibi, relative, toeplitz, t5,
 * modify, ..). A map of them is finite everywhere: forbidden pairs have their scores too, though
 * keys from kv_len on, which are not read, count as A = 0. Masks, windows, lengths, sinks and
 * relative.values act afterwards.
 *
 * In all these calls:
 * Shapes: o, q, k, v as in attn_sdpa; previous and scores [B, H, Tq, Tk], f32, f16 or bf16, any
 *   strides. The softmax goes on from the f32 scores, whatever they are stored as.
 * params.attention: as in attn_sdpa, lse and map included; ragged, q_offs, align_lengths, schedule
 *   and span must be absent, and a bias with ATTN_SOFTCAP_BIASED. With scores or a convolution the terms apply to
 *   every pair: a table by distance must reach that far.
 *   modify may see a pair more than once.
 * Aliasing: outputs share memory with nothing, except that scores may be previous itself where it
 *   says so.
 * Empty: rows without an allowed key give 0, LSE -inf, and scores like any other row. B or Tq of 0
 *   is a no-op.
 * NaN: in q, k or previous shows in the scores made of it and, where those are allowed, in the row
 *   of o; in v as in attn_sdpa. A score of -inf, by modify or previous, forbids its pair; a
 *   convolution of it is NaN. ctx->validate rejects a previous that is not finite (ATTN_E_VALUE).
 * Errors: those of attn_sdpa, and RANGE for the fields that must be absent; outputs untouched.
 * Determinism: as attn_sdpa, but no promise for other divisions of the queries. */

typedef struct attn_score_mix_params {
  attn_tensor previous;  /* what the layer below has emitted; absent: none */
  attn_tensor scores;    /* out, optional; may be previous itself: the same view */
  float fresh_weight;    /* w1: 0 = 1; ATTN_ZERO = 0: q and k are not read */
  float previous_weight; /* w2: 0 = 1; ATTN_ZERO = 0: previous is not read */
  attn_sdpa_params attention;
} attn_score_mix_params;

/* Attention over scores mixed with those of the layer below.
 *
 *   scores = w1 A + w2 previous,  o = softmax(scores + masks) v
 *
 * w2 alone (w1 = 0) attends once more by the map of the layer below.
 * Memory: attn_score_mix_workspace bytes, O(64 (Tk + dk + dv)) per worker; no Tq x Tk array beside
 *   the caller's.
 * Cost: that of attn_sdpa over all pairs where scores are wanted (else the allowed ones), and a
 *   read and a write of the maps. Source: the survey's general form of priors from lower layers,
 *   Lin et al. 2021, arXiv 2106.04554. */
ATTN_DEF attn_status attn_score_mix(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                    const attn_score_mix_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_score_mix_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                         const attn_score_mix_params *params, const attn_ctx *ctx);

typedef struct attn_realformer_params {
  attn_tensor previous; /* the sum that the layer below has emitted; absent: the first layer */
  attn_tensor scores;   /* out, optional: the sum; may be previous itself: the same view */
  int64_t layers_below; /* n: the layers in previous's sum, >= 0; for mean */
  int mean;             /* 1: the softmax is of the mean over the n + 1 layers */
  attn_sdpa_params attention;
} attn_realformer_params;

/* RealFormer: attention with residual scores.
 *
 *   scores = A + previous,  o = softmax(scores + masks) v
 *   mean: o = softmax(scores / (n + 1) + masks) v
 *
 * What is emitted is the sum, before the division. Memory and cost as attn_score_mix. Source: He et
 *   al. 2020, arXiv 2012.11747. */
ATTN_DEF attn_status attn_realformer(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const attn_realformer_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_realformer_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, const attn_realformer_params *params,
                                          const attn_ctx *ctx);

/* Which entries of a map a convolution reads. */
typedef enum attn_predictive_rule {
  ATTN_PREDICTIVE_SAME = 0, /* centred: rows i - (kh-1)/2 .. i + (kh-1)/2; kh and kw odd */
  ATTN_PREDICTIVE_CAUSAL    /* rows i - (kh-1) .. i, and forbidden entries as 0 */
} attn_predictive_rule;

typedef struct attn_predictive_params {
  attn_tensor previous; /* what the layer below has emitted; absent: the first layer */
  attn_tensor scores;   /* out, optional */
  attn_tensor
      kernel; /* [H, H, kh, kw] as [batch, heads, len, dim]: out, in, row, column; any type */
  const float *bias;          /* [H]; null = 0 */
  float alpha;                /* share of A, 0..1; 0 = 0.5, ATTN_ZERO = 0 */
  attn_activation activation; /* after the convolution: ATTN_ACT_RELU, or ATTN_ACT_NONE = 0's */
  attn_predictive_rule rule;
  int evolving;          /* 1: the residual form below, in place of alpha */
  float previous_share;  /* evolving: mp, 0..1; 0 = 0.5, ATTN_ZERO = 0 */
  float convolved_share; /* evolving: mc, 0..1; 0 = 0.5, ATTN_ZERO = 0 */
  attn_sdpa_params attention;
} attn_predictive_params;

/* Predictive attention: score maps pass through a convolution whose channels are the heads.
 *
 *   conv(Y)[o,i,j] = bias[o] + sum_c,a,e kernel[o,c,a,e] Y[c, i+a-pt, j+e-pl]   0 outside the map
 *   pt = (kh-1)/2, causal: kh-1;  pl = (kw-1)/2
 *   scores = alpha A + (1-alpha) act(conv(previous));  without previous: A
 *   evolving: M = mp previous + (1-mp) A, without previous A;  scores = mc act(conv(M)) + (1-mc) M
 *   o = softmax(scores + masks) v
 *
 * A share of 0 means that the part is not read; without previous and evolving the kernel is not
 *   used, but checked if given. With the causal rule, "forbidden" is by params.attention (causal,
 *   window, masks, bias of -inf, lengths), and row i depends on nothing after its own position if
 *   attention.causal is set. The last of kh rows (of q and previous) is what a decoder needs to go
 *   on by one row under that rule.
 * Memory: attn_predictive_workspace bytes, O(H (32 + kh) Tk) floats per worker (as much again
 *   without scores or with 16-bit ones), and the kernel as f32.
 * Errors: also SHAPE (kernel, previous, even kh or kw under SAME), RANGE (rule, activation), VALUE
 *   (shares).
 * Cost: 2 H H kh kw flops a pair for all heads beside those of attn_sdpa, forbidden ones included.
 *   Sources: Wang et al. 2020, openreview YQVjbJPnPc9; evolving: Wang et al. 2021, arXiv
 *   2102.12895. */
ATTN_DEF attn_status attn_predictive(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const attn_predictive_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_predictive_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, const attn_predictive_params *params,
                                          const attn_ctx *ctx);

typedef struct attn_map_apply_params {
  int causal;    /* entries with j > i + q_off count as 0; blocks of them are not read */
  int has_q_off; /* 1: q_off below holds; 0: q_off = Tk - Tq */
  int64_t q_off; /* |q_off| < 2^40; else 0 */
} attn_map_apply_params;

/* A map applied to values: o = map v, nothing renormalised, no mask applied again.
 *
 * Shapes: map [B,H,Tq,Tk], v [B,Hv,Tk,dv], o [B,H,Tq,dv], each f32, f16 or bf16 of any strides; Hv
 *   divides H, head h reads value head h*Hv/H. Aliasing: o shares no memory with map and v.
 * Memory: attn_map_apply_workspace bytes, O(320 dv) floats per worker, O(64 256) more for a map
 *   that is not f32 or causal. Empty: Tk = 0 gives 0. B or Tq of 0 is a no-op.
 * NaN: a weight of 0 takes nothing from its value, NaN neither: a forbidden key does not reach o.
 *   Any other NaN or infinity shows in the rows that read it.
 * Errors: NULL, DTYPE, SHAPE, HEADS, STRIDE, RANGE (q_off), OVERLAP, OVERFLOW, WORKSPACE, MEMORY,
 *   ISA, ENV, CTX, ALIGN; outputs untouched. Determinism: the same bits on avx2, avx512 and neon,
 *   any number of workers, any cut of the queries or of dv. Cost: 2 dv flops a pair. Source: Ying
 *   et al. 2021, arXiv 2102.12702. */
ATTN_DEF attn_status attn_map_apply(attn_tensor o, attn_tensor map, attn_tensor v,
                                    const attn_map_apply_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_map_apply_workspace(attn_tensor o, attn_tensor map, attn_tensor v,
                                         const attn_map_apply_params *params, const attn_ctx *ctx);

typedef struct attn_lazyformer_params {
  int64_t period;             /* r >= 1: layers that share a map; 0 = 2 */
  attn_sdpa_params attention; /* of every map; lse and map must be absent */
} attn_lazyformer_params;

/* LazyFormer: one map for r layers in a row, each with values of its own, all known at once.
 *
 *   o[l] = softmax(scores of q[l / r], k[l / r]) v[l]
 *
 * Neighbouring layers of a period whose values have the same number of heads are one pass over
 *   concatenated values (without relative.values): no map exists. o, v: arrays of `layers` tensors; q, k: of
 *   ceil(layers / r). All maps have the same B, H, Tq; Tk, dk, dv and Hv may differ. Where values come one after
 *   another, take attn_sdpa's map and attn_map_apply.
 * Aliasing: no o shares memory with anything. Memory: attn_lazyformer_workspace bytes: what
 *   attn_sdpa wants, and values and outputs of a period in f32, B (Hv Tk + H Tq) times their dv, if
 *   it has more than one layer.
 * Errors: those of attn_sdpa, RANGE (period or layers negative; lse, map, ragged, q_offs,
 *   align_lengths given). Empty,
 *   NaN, determinism: as attn_sdpa. Cost: 2 (dk + sum of dv) flops a pair and period. Source: Ying
 *   et al. 2021, arXiv 2102.12702. */
ATTN_DEF attn_status attn_lazyformer(const attn_tensor *o, const attn_tensor *q,
                                     const attn_tensor *k, const attn_tensor *v, int64_t layers,
                                     const attn_lazyformer_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_lazyformer_workspace(const attn_tensor *o, const attn_tensor *q,
                                          const attn_tensor *k, const attn_tensor *v,
                                          int64_t layers, const attn_lazyformer_params *params,
                                          const attn_ctx *ctx);
