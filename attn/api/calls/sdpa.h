/* api/calls/sdpa.h owns family A: exact softmax attention and the merging of partial results. */

/* Which keys causal leaves to query i, which sits at key position p_i = i + q_off: those j <= p_i. The
 * value says what q_off is where no field gives it. */
typedef enum attn_causal {
  ATTN_CAUSAL_NONE = 0, /* all; q_off = Tk - Tq */
  ATTN_CAUSAL_END,      /* ends aligned, q_off = Tk - Tq: FlashAttention, FlashInfer, a cache */
  ATTN_CAUSAL_START,    /* starts aligned, q_off = 0: PyTorch's is_causal, ONNX */
  ATTN_CAUSALS
} attn_causal;

/* Sequences of unequal length, rows end to end. With sequences = n > 0, B is n, q, o and lse have
 * batch 1 and sequence b is their rows q[b] .. q[b+1]-1; rows that no sequence has are not
 * written. With kv likewise, k and v have batch 1 and b's keys are rows kv[b] .. kv[b+1]-1; kv null:
 * k and v have batch n. A sequence is a call of its own: positions, causal, windows and q_off count
 * within it (q_off by default: ends aligned; q_offs has one each), and it has the bits of that call. A mask or bias
 * has the extents of the padded call: [n, H, most queries, most keys], each that or 1; labels and modify get
 * the sequence as the batch. Absent then: q_len, kv_len (with kv null it is allowed), schedule, map,
 * relative, xl, gaussian and span (ATTN_E_RANGE). Memory: 16 bytes a sequence. */
typedef struct attn_ragged {
  int64_t sequences;
  const int64_t *q_indptr;  /* [n + 1], from 0, not decreasing, at most q.len */
  const int64_t *kv_indptr; /* [n + 1], likewise, or null */
} attn_ragged;

/* Which scores params.softcap caps, c tanh(x / c). */
typedef enum attn_softcap_at {
  ATTN_SOFTCAP_SCORES =
      0, /* s q_i . k_j and what stands inside the scale, before any added term: Gemma 2,
                            * FlashAttention, ONNX */
  ATTN_SOFTCAP_BIASED, /* with all that is added, from toeplitz to bias; what -inf in a bias forbids stays
                        * forbidden, and a modifier or span comes after */
  ATTN_SOFTCAP_COUNT
} attn_softcap_at;

/* What the cells of a map hold: a stage of each pair. In ONNX's terms, qk_matmul_output_mode. */
typedef enum attn_map_stage {
  ATTN_MAP_WEIGHTS = 0, /* after the softmax: P_ij, 0 where a pair is not allowed; ONNX 3 */
  ATTN_MAP_RAW,    /* s q_i . k_j, no term, mask or window; -inf from kv_len and q_len on; ONNX 0 */
  ATTN_MAP_CAPPED, /* after the soft-cap. cap(s q_i . k_j), likewise, no term inside the cap but that;
                    * with ATTN_SOFTCAP_BIASED as SCORES, without modify and span */
  ATTN_MAP_SCORES, /* x_ij, what enters the softmax; -inf where a pair is not allowed; ONNX 1, and 2
                         * where a call has either a softcap or no mask and bias */
  ATTN_MAP_DROPPED, /* weights after dropout, which multiply the values */
  ATTN_MAP_STAGES
} attn_map_stage;

/* Everything attn_sdpa can be told; {0} is plain attention. */
typedef struct attn_sdpa_params {
  float scale;           /* 0 = 1/sqrt(dk); ATTN_ZERO = 0; any finite value */
  int causal;            /* attn_causal: 1 = ends aligned, ATTN_CAUSAL_START = starts aligned */
  int has_q_off;         /* 1: q_off below holds; 0: as causal says, ends aligned unless START */
  int64_t q_off;         /* query i sits at key position i + q_off; |q_off| < 2^40; else 0 */
  const int64_t *q_offs; /* or one each: [B], with ragged [sequences]; without has_q_off */
  int align_lengths;     /* 1: or q_off = kv_len[b] - q_len[b], null = Tk, Tq; without those two */
  attn_window window;    /* attn_window_of(left, right); {0} = none */
  int64_t keep;          /* >= 0: window.left does not forbid the first `keep` keys; no schedule */
  const int32_t *kv_len; /* [B], 0..Tk: keys from kv_len[b] on are forbidden and never read */
  const int32_t *q_len;  /* [B], 0..Tq: rows from q_len[b] on are empty */
  attn_ragged ragged;    /* sequences of unequal length, end to end */
  attn_scales k_scales;  /* of quantised k; all zero for the other types */
  attn_scales v_scales;
  attn_compute compute; /* of products: see Compute */
  int compute_prefer;   /* 1: ATTN_COMPUTE_F32 where the processor has no instructions for it */
  int one_order;        /* 1: few queries are computed in the order of many, see Determinism */
  attn_mask mask;       /* ATTN_MASK_BOOL or ATTN_MASK_BITS */
  attn_mask bias;       /* ATTN_MASK_ADD; not multiplied by the scale */
  const float *alibi;   /* [H] slopes m_h: adds -m_h |j - i - q_off| (attn_alibi_slopes) */
  float softcap;        /* c > 0: scores become c tanh(score / c); 0 = off */
  attn_softcap_at softcap_at;    /* before any bias, or ATTN_SOFTCAP_BIASED */
  const float *sinks;            /* [H] logits that join each row's denominator, without a value */
  int softmax_one;               /* 1: one more exp(0) in each denominator (softmax off by one) */
  const attn_schedule *schedule; /* which pairs exist; null = all. Built for these lengths */
  /* Terms of the score, in the order in which they apply (api/calls/score.h). softcap follows factor
   * (ATTN_SOFTCAP_BIASED: gaussian and bias), bias and alibi stand among the additive ones; modify is
   * last before the allowed set. */
  attn_relative relative;
  attn_xl xl;
  attn_labels labels;
  attn_distance_factor factor;
  attn_toeplitz toeplitz;
  attn_t5 t5;
  attn_parabola parabola;
  attn_gaussian gaussian;
  attn_span span;
  attn_score_fn modify;
  void *modify_user;
  attn_score_fn modify_weights; /* changes P after the softmax (FlexAttention's prob_mod) */
  void *modify_weights_user;
  attn_drop dropout;        /* of P, after the softmax: see Dropout */
  attn_tensor lse;          /* out, optional: [B,H,Tq,1] f32, log of each row's denominator */
  attn_tensor map;          /* out, optional: [B,H,Tq,Tk] f32, the weights P */
  attn_map_stage map_stage; /* or what else map holds, in natural units */
  int mask_new; /* 1: mask says of the new tokens alone which of them see each other: its
                             * extents are [B,H,Tq,Tq], the first three that or 1, and column c is key q_off + c (with
                             * sequences of unequal length Tq is the most queries). Keys before and after it does
                             * not forbid. The bits are those of a mask of all keys: see attn_draft_mask */
} attn_sdpa_params;

#if ATTN_HAS_SDPA
/* Scaled dot-product attention: self or cross, multi-head, multi-query and grouped-query.
 *
 *   x_ij = cap(s q_i . k_j) + bias_ij - m_h |j - p_i|   for allowed j,  p_i = i + q_off
 *          (ATTN_SOFTCAP_BIASED: cap of the sum)
 *   LSE_i = log(sum_j exp(x_ij) + exp(sink_h) + [softmax_one])
 *   P_ij  = exp(x_ij - LSE_i),   O_i = sum_j P_ij v_j
 *
 * Shapes: q [B,H,Tq,dk], k [B,Hk,Tk,dk], v [B,Hv,Tk,dv], o [B,H,Tq,dv]. Hk and Hv each divide
 *   H; query head h reads key head h*Hk/H and value head h*Hv/H (integer division). Any dk, dv
 *   >= 1. B, Tq, Tk may be 0. Storage types of q, k, v, o are independent.
 * Allowed keys: causal, window, mask, bias > -inf and kv_len combine by AND.
 * Positions: causal, windows, keep, ALiBi and all terms by distance count from p_i. With q_offs or
 *   align_lengths each batch entry has the bits of a call of its own with has_q_off = 1; then without
 *   schedule (RANGE). A table of distances grows by how far q_offs differ.
 * Aliasing: inputs may share memory with each other; outputs with nothing. Rows of one output
 *   must not share memory with one another.
 * Memory: attn_sdpa_workspace bytes, O(tile * (dk + dv)) per worker whatever Tq and Tk, and more
 *   for terms: 256 bytes a label and a relative distance (min(2c + 1, Tq + Tk) of them, twice for
 *   values), per worker; 4 (Tq + Tk) bytes a head for terms by distance; 12 bytes a row for a
 *   schedule of several phases, and the row in f32 if o is not. No Tq x Tk array unless map is
 *   given. Few queries: see Few queries.
 * Few queries: with Tq <= 16 and at most 64 rows in a group of query heads that share keys, the keys
 *   are split at fixed marks, each split is computed by itself, with up to 16 rows a group a key row at
 *   a time, and the parts are merged by their LSE; ctx->report says so. Memory then also
 *   holds the parts: 4 (dv + 2) bytes a query head, row and split.
 * Compute: params.compute = ATTN_COMPUTE_BF16 rounds q, k and v to bf16 (nothing is lost where they are bf16),
 *   sums products of pairs in f32, multiplies the scale into the scores, rounds the weights to bf16 and
 *   sums the rounded ones, so that weights add to 1; everything else is f32. Bounds: a score errs by 2^-7
 *   s sum_c |q_c k_c| where q or k had to be rounded, (dk + 1) 2^-24 of that where not (with xl, q + u is
 *   rounded); a row of O by 2^-7 max |v|, usually 2^-9; LSE by 2^-7. Subnormal numbers, of products too, may
 *   count as 0, and f32 beyond 3.39e38 as infinity. Products are those of ATTN_FEATURE_AVX512_BF16 or
 *   ATTN_FEATURE_NEON_BF16 where it runs, else emulated in f32, slower than ATTN_COMPUTE_F32; with compute_prefer
 *   that runs instead. report.compute and report.feature say what did. All options serve; key lists of a schedule
 *   stay f32; few queries are computed in the order of many, so a cache is read no faster. Calls that do not say
 *   otherwise refuse any but F32 (VALUE; with compute_prefer it is F32).
 * Compute = ATTN_COMPUTE_F16: the same with f16, whose rounding is 8 times as fine: a score errs by 2^-10 s sum_c
 *   |q_c k_c| where q or k had to be rounded, a row of O by 2^-10 max |v|, usually 2^-13, LSE by 2^-10. f16 ends at
 *   65504 and soon below 1: a row of q, k or v whose largest number is not in 2^-8 .. 2^15 is divided by a power of
 *   two, which the product gets back, so that any size serves (f16 that is stored stays as it is): slower where it is a
 *   row of v. A number may also lose 2^-17 of the largest of its row; weights below 2^-40 may count as 0. Products are
 *   rounded once into their sums in f32, by ATTN_FEATURE_NEON_FP16FML where it runs (as many at once as f32 has),
 *   else emulated, on x86 always, slower than F32.
 * Compute = ATTN_COMPUTE_I8: each query and each key becomes whole numbers up to 127 times a scale; their products
 *   are summed exactly and scaled in f32. Subtracted from keys beforehand, and added to the scores, is the product
 *   with what the first keys have in common: key 0 (for keys 1 to 15), the mean of the first 16 (to 127), of 128;
 *   only in calls without mask, bias, window.left, schedule and modify, where each row that sees a key sees the
 *   first. So LSE and maps are whole, a vector that all keys share does no harm, and a row hangs on no key that it
 *   does not see. int8 keys (scale per row) are the codes that they are, (n - zero) scale. Queries and keys
 *   outside 1e-12 < max |x| < 1e12, or not finite, have their products in f32. Values are multiplied as in
 *   ATTN_COMPUTE_BF16 where its feature runs, else in f32. A row of O errs by 1e-2 max |v| at most
 *   where q and k are standard normal (d = 64, 128), usually by 1e-3. Scores are the same bits on avx2, avx512
 *   and neon. q.dim up to 1024 (VALUE; with compute_prefer F32). Products are those of
 *   ATTN_FEATURE_AVX512_VNNI, ATTN_FEATURE_AVX_VNNI or ATTN_FEATURE_NEON_DOTPROD where it runs, else emulated,
 *   slower than F32; with compute_prefer that runs instead. After SageAttention 2 (arXiv 2411.10958).
 * Quantised k and v: k or v may be ATTN_I8, ATTN_I4 or ATTN_E4M3, each by itself, with its scales;
 *   rows are converted on the way, never as a whole. A scale that is not finite makes NaN in the rows
 *   that read it; ctx->validate rejects it (ATTN_E_SCALE).
 * Empty: B = 0, H = 0 (then Hk and Hv may be anything) and Tq = 0 do nothing; Tk = 0 makes empty rows.
 * Empty rows (no allowed key, or i >= q_len): O = 0, P = 0, LSE = -inf. A sink counts as a key
 *   that is always allowed and has value 0, so it makes the LSE of a row before q_len finite:
 *   when partial results are merged, give sinks and softmax_one to one part only.
 * NaN: a forbidden key never reaches an output, whatever k and v hold there. NaN in a query row
 *   or in k or v of an allowed key makes NaN in exactly the rows that read it. A score of +inf
 *   gives NaN; an allowed score of -inf has weight 0.
 * Errors: NULL, DTYPE, SHAPE, HEADS, STRIDE, RANGE, VALUE, MASK, OVERLAP, OVERFLOW, WORKSPACE,
 *   MEMORY, ISA, ENV, CTX, ALIGN, SCALE, INDEX (ragged); outputs untouched.
 * Determinism: (with compute, on one machine and for any division of the queries; without:)
 *   the same bits on avx2, avx512 and neon, for any number of workers, batch
 *   composition and division of the queries (at the same key positions) into calls of one class: with
 *   rows = gcd(H/Hk, H/Hv) Tq, up to 16 rows; 17 to 64 with Tq <= 16; more. With one_order = 1, into any
 *   parts. Terms and outputs that few queries are not served with (a map, relative, xl, labels, span,
 *   modify_weights, schedule) make a call one of the last class.
 * Dropout: with params.dropout.p > 0, and nothing else changes: LSE, P and a map of weights are those without it, and
 *
 *   O_i = sum_j P_ij M_ij v_j,  M_ij = 1/(1 - p) for pairs that stay, 0 for the others; see attn_drop
 *
 *   b of a ragged call is the sequence, i and j count within it. Schedules and key lists drop what a mask of the same
 *   pairs drops. A dropped pair is an allowed one: NaN in its value shows. It makes a call one of the last class. p = 0
 *   has the bits of a call without. attn_sdpa_backward has its gradients.
 * Map: WEIGHTS, DROPPED and SCORES are what the call computes; RAW and CAPPED are another pass over all keys,
 *   and o has the bits that it has with a map of weights. An adaptive span, which multiplies weights,
 *   is a score of log m in SCORES. A stored NaN is the default NaN.
 * Cost: 2 (dk + dv) flops a pair over the tiles that causal, window and lengths leave; 2 dk a pair of
 *   all for a map of RAW or CAPPED.
 * Source: Vaswani et al. 2017, arXiv 1706.03762; grouped heads: Shazeer 2019, arXiv 1911.02150,
 *   Ainslie et al. 2023, arXiv 2305.13245; free head width: Bhojanapalli et al. 2020, arXiv
 *   2002.07028; ALiBi: Press et al. 2021, arXiv 2108.12409; sinks: Xiao et al. 2023, arXiv
 *   2309.17453; streaming softmax: Milakov and Gimelshein 2018, arXiv 1805.02867. */
ATTN_DEF attn_status attn_sdpa(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                               const attn_sdpa_params *params, attn_ctx *ctx);

/* Bytes attn_sdpa wants in ctx->workspace for these arguments and ctx->workers; reads no data but
 * the offsets of params->ragged, q_offs and, with align_lengths, the lengths.
 * 0 when there is nothing to do, ATTN_WORKSPACE_REJECTED when the call would be rejected. */
ATTN_DEF size_t attn_sdpa_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                    const attn_sdpa_params *params, const attn_ctx *ctx);

/* Merges the results of one set of queries over two disjoint sets of keys:
 *
 *   L = log(exp(L1) + exp(L2)),  O = exp(L1 - L) O1 + exp(L2 - L) O2
 *
 * Shapes: o, o1, o2 [B,H,T,dv], any storage types; lse, lse1, lse2 [B,H,T,1] f32; lse may be
 *   absent. Row by row; outputs may be the same memory as o1/lse1 or o2/lse2 with equal
 *   strides and types, otherwise they share memory with nothing.
 * Empty: a part with L = -inf contributes nothing, whatever its O holds, and the other part is
 *   copied bit for bit (exact identity, for equal storage types); both -inf give O = 0, L = -inf.
 * Parts: the one over keys from j0 on wants has_q_off = 1 and q_off - j0 (q_offs likewise), kv_len counted from j0,
 *   and masks cut likewise.
 * NaN: a NaN or +inf in L1 or L2 makes the row NaN. A part with finite L is read even when its
 *   weight underflows, so a NaN in it shows. Memory: none. Cost: one pass over O1, O2, O.
 * Errors: NULL, DTYPE, SHAPE, STRIDE, OVERLAP, OVERFLOW, ISA, ENV, CTX, ALIGN; outputs
 *   untouched.
 * Determinism: as attn_sdpa. Source: Rabe and Staats 2021, arXiv 2112.05682. */
ATTN_DEF attn_status attn_merge(attn_tensor o, attn_tensor lse, attn_tensor o1, attn_tensor lse1,
                                attn_tensor o2, attn_tensor lse2, attn_ctx *ctx);

/* Bytes attn_merge wants: 0. */
ATTN_DEF size_t attn_merge_workspace(attn_tensor o, attn_tensor lse, attn_tensor o1,
                                     attn_tensor lse1, attn_tensor o2, attn_tensor lse2,
                                     const attn_ctx *ctx);
#endif
