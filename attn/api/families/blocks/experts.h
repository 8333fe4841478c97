/* api/families/blocks/experts.h owns the feed-forward of mixtures of experts (K8): a gate sends each row to k of E
 * feed-forwards. */

/* What logits are turned into before weights are made of them. */
typedef enum attn_experts_score {
  ATTN_EXPERTS_SOFTMAX = 0, /* s_e = e^l_e / sum over all E experts */
  ATTN_EXPERTS_SIGMOID,     /* s_e = 1 / (1 + e^-l_e) */
  ATTN_EXPERTS_SCORE_COUNT
} attn_experts_score;

/* What groups of experts are chosen by. */
typedef enum attn_experts_group {
  ATTN_EXPERTS_GROUP_MAX = 0, /* the best of its experts: DeepSeek-V2's group_limited_greedy */
  ATTN_EXPERTS_GROUP_SUM,     /* the sum of its two best: DeepSeek-V3's noaux_tc */
  ATTN_EXPERTS_GROUP_COUNT
} attn_experts_group;

/* {0} but for k and the weights is Mixtral's; {0} of each further field is what models without it do. */
typedef struct attn_expert_rows_params {
  attn_tensor w_gate, b_gate; /* [1,1,din,E]; optional [1,1,1,E]: the router, and its bias */
  int w_transposed;         /* 1: w_gate and w_shared are [1,1,out,in], as in PyTorch checkpoints */
  int64_t k;                /* experts of a row, 1..E: num_experts_per_tok */
  attn_experts_score score; /* scoring_func */
  attn_tensor
      choice_bias; /* optional: [1,1,1,E] counts in the choice alone: e_score_correction_bias */
  int64_t groups;  /* n_group, a divisor of E: experts g E / groups .. are group g; 0 = 1 */
  int64_t group_k; /* topk_group, 1..groups; 0 = all */
  attn_experts_group group_by;
  int no_renormalize; /* 1: the weights of the k are not made to sum to 1: norm_topk_prob = false */
  float scale;        /* of the weights, after that: routed_scaling_factor; 0 = 1, ATTN_ZERO = 0 */
  int weigh_input; /* 1: rows are multiplied on their way into an expert, not out of it: Llama 4 */
  attn_feed_forward
      experts; /* its tensors and scales have E heads: w_1 [1,E,din,dff], b_1 [1,E,1,dff], .. */
  attn_feed_forward shared; /* optional: every row goes through it too */
  attn_tensor w_shared;     /* optional: [1,1,din,1], the gate of shared (Qwen2-MoE, Qwen3-Next) */
  int32_t *expert;          /* out, optional: [B][T][k], the best first */
  attn_tensor weight;       /* out, optional: f32 [B,1,T,k], g of those experts */
  attn_tensor logits;       /* out, optional: f32 [B,1,T,E], for losses of balance and size */
} attn_expert_rows_params;

/* Rows through the experts that they are sent to.
 *
 *   l = x w_gate + b_gate,  s = softmax(l) or sigmoid(l),  c = s + choice_bias
 *   A: the k experts of largest c, with groups among those of the group_k best groups; of equals the lowest
 *   g_e = scale s_e / sum over A of s  (no_renormalize: scale s_e),  e in A
 *   y = sum over A of g_e f_e(x)  (weigh_input: f_e(g_e x)),  then + sigmoid(x w_shared) shared(x)
 *
 * f_e is attn_feed_forward_rows with the heads e of experts; without w_shared shared(x) is added as it is. Softmax over
 *   the k chosen logits (Mixtral, gpt-oss) is the softmax renormalised. Where c is not needed as a number (no
 *   choice_bias, no GROUP_SUM) l stands for it: the same order, and no ties by rounding. Experts of groups that are not
 *   chosen are never in A, however small the others are (some programs let them compete with a score of 0).
 * Models: Mixtral, Qwen3-MoE: {0}; Qwen2-MoE: no_renormalize, shared, w_shared; Qwen3-Next: shared, w_shared;
 *   DeepSeek-V2: no_renormalize, scale, groups, shared; DeepSeek-V3: SIGMOID, choice_bias, groups, GROUP_SUM, scale,
 *   shared; gpt-oss: b_gate, biases and form of experts; Llama 4: SIGMOID, no_renormalize, weigh_input, shared.
 * Shapes: x [B,1,T,din], y [B,1,T,dout], each f32, f16 or bf16, any strides; so may be all weights and biases, E < 2^31.
 *   w_1, w_2 and w_3 of experts may also be of ATTN_I8 or ATTN_I4, each with scales, as w of attn_gemm.
 *   Experts with gate and up projection in one array are two views of it: with w_transposed also where they alternate
 *   row by row.
 * Aliasing: y may be x, the same view: in place. Outputs share memory with nothing else.
 * Memory: attn_expert_rows_workspace bytes. Rows go through in runs of at most 128 E / k: for each 4 E bytes, with
 *   shared 4 dout, and k (4 dff + 4 max(din, dout) + 300); a worker the largest of 400 KB (with experts.compute 300 KB and
 *   512 max(din, dff) bytes more), 20 E and 4 dout; and what w_gate and shared want in attn_gemm and
 *   attn_feed_forward_rows. No matrix of an expert is laid out or converted as a whole.
 * Errors: ATTN_E_NULL (params, w_gate, a weight of experts; b_2, b_3 without its matrix; parts of shared or w_shared
 *   without shared.w_1), _DTYPE, _SHAPE, _STRIDE, _RANGE (k: 1..E, or more than the chosen groups have; groups, group_k,
 *   enums, activation, GROUP_SUM with groups of one), _VALUE (scale NaN or infinite), _OVERLAP, _OVERFLOW, _ALIGN,
 *   _WORKSPACE, _MEMORY, those of experts.compute and of ctx; outputs untouched.
 * Empty: B = 0 or T = 0 does nothing.
 * NaN: in a row of x reaches that row alone. A logit or c that is NaN comes last, a softmax with a NaN is NaN, and weights of
 *   0 do not hide what an expert makes. What sums to 0 is not divided by: the weights are 0. Weights of experts to
 *   which no row is sent are not read.
 * Determinism: products as in attn_gemm; the sum over A goes in the order of e. A row has the same bits whatever other
 *   rows are there and wherever they are cut, for any number of workers, on avx2, avx512 and neon.
 * Compute: experts.compute and shared.compute are those of their products, as attn_gemm has it (not I8), the gate is f32.
 * Cost: 2 B T (din E + k (din dff + dff dout)) flops, with w_3 2 B T k din dff more: k / E of what all experts would
 *   take. Rows of one expert go through its weights together; few rows read each chosen expert once, as it is
 *   stored. report.pairs is B T k.
 * Source: Shazeer et al. 2017, arXiv 1701.06538; Jiang et al. 2024 (Mixtral), arXiv 2401.04088; shared experts: Dai et al.
 *   2024 (DeepSeekMoE), arXiv 2401.06066; groups: DeepSeek-AI 2024 (V2), arXiv 2405.04434; choice_bias, sums of
 *   two: DeepSeek-AI 2024 (V3), arXiv 2412.19437. */
ATTN_DEF attn_status attn_expert_rows(attn_tensor y, attn_tensor x,
                                      const attn_expert_rows_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_expert_rows_workspace(attn_tensor y, attn_tensor x,
                                           const attn_expert_rows_params *params,
                                           const attn_ctx *ctx);
