/* api/families/heads/capsules.h owns the aggregation of heads by routing: a token's head outputs are input
 * capsules, which vote for output capsules and are heard as far as they agree. */

typedef enum attn_capsules_kind {
  ATTN_CAPSULES_SQUASH =
      0,              /* s = sum_h c_hn u_hn, v_n = |s|^2 / (1 + |s|^2) s / |s|, 0 for s = 0 */
  ATTN_CAPSULES_MEAN, /* v_n = sum_h c_hn u_hn / sum_h c_hn */
  ATTN_CAPSULES_COUNT
} attn_capsules_kind;

typedef struct attn_capsules_params {
  attn_tensor w; /* [H,N,dv,dc] vote matrices (batch = H, heads = N); absent: x holds the votes */
  int64_t capsules;   /* N, for votes; 0 with w */
  int64_t iterations; /* r; 0 = 3 */
  attn_capsules_kind kind;
  int over_heads; /* 1: a softmax over h for each n in place of one over n for each h */
} attn_capsules_params;

/* Dynamic routing, each token (b, t) by itself:
 *
 *   u_hn = x_h w_hn,  l_hn = 0
 *   r iterations:  c_h. = softmax over n of l_h.,  v_n = kind's sum,  l_hn += u_hn . v_n
 *   y = [v_0 ; .. ; v_{N-1}]
 *
 * Shapes: x [B,H,T,dv] head outputs (attn_multihead's `each`), or with w absent votes [B,H,T,N dc]
 *   (attn_bthd of an array [B][T][H][N][dc]); y [B,1,T,N dc]. A projection after it is attn_gemm.
 *   Storage types are free.
 * Aliasing: y shares memory with nothing.
 * Memory: attn_capsules_workspace bytes: w in f32, and per worker some tokens' votes, at most 400 KB
 *   or six tokens (one with votes given). The votes of all tokens are never stored.
 * Empty: B or T of 0 is a no-op, H = 0 is rejected. Any logits are stable.
 * NaN, and votes beyond 1e18: reach their token alone. Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE
 *   (iterations, kind), OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; y untouched.
 * Determinism: the same bits on avx2, avx512 and neon, any number of workers, any division of the
 *   tokens. Cost: votes 2 B T H N dv dc flops, routing 4 B T H N dc a round.
 * Source: Sabour et al. 2017, arXiv 1710.09829; for heads: Gu and Feng 2019, arXiv 1909.00188, Li et
 *   al. 2019, arXiv 1904.03100. */
ATTN_DEF attn_status attn_capsules(attn_tensor y, attn_tensor x, const attn_capsules_params *params,
                                   attn_ctx *ctx);
ATTN_DEF size_t attn_capsules_workspace(attn_tensor y, attn_tensor x,
                                        const attn_capsules_params *params, const attn_ctx *ctx);

typedef struct attn_capsules_em_params {
  attn_tensor w;                /* as in attn_capsules_params */
  int64_t capsules;             /* likewise */
  int64_t iterations;           /* r; 0 = 3 */
  attn_tensor activation;       /* a [B,H,T,1] in (0, 1]; absent = 1 */
  const float *beta_u, *beta_a; /* [betas]; null = 0 */
  int64_t betas;                /* 0 or 1: one number for all capsules; N: one each */
  const float *lambda; /* [r] inverse temperatures; null: 1 + (min(r,3) - 1) k / max(r - 1, 1) */
  float eps;           /* at least FLT_MIN; 0 = 1e-9 */
  int no_act;          /* 1: without output activations, as the released code of Li et al. */
} attn_capsules_em_params;

/* EM routing, each token by itself; sums over h, products and squares by component:
 *
 *   R_hn = 1/N;  for k = 0 .. r-1:
 *     w_hn = R_hn a_h,  S_n = sum w_hn,  mu_n = sum w_hn u_hn / S_n
 *     var_n = sum w_hn (u_hn - mu_n)^2 / S_n + eps
 *     cost_n = S_n (dc beta_u,n + sum_d log(var_n[d]) / 2)
 *     log act_n = -log(1 + exp(-lambda_k (beta_a,n - cost_n)))
 *     lp_hn = -sum_d ((u_hn - mu_n)^2 / (2 var_n) + log(2 pi var_n) / 2)
 *     R_h. = softmax over n of (lp_h. + log act) + eps
 *   y = [act_n mu_n]_n; with no_act: y = [mu_n]_n, and the softmax is that of lp alone
 *
 * Shapes, aliasing, empty, determinism as attn_capsules. Memory likewise, and 4 H N dc bytes more per
 *   worker. NaN and votes beyond 1e18 make NaN in their token alone.
 * Errors: as attn_capsules, RANGE: betas, VALUE: an activation outside (0, 1], eps, a beta or lambda
 *   that is not finite.
 * Conditioning: a capsule that captures one head has a variance near eps, and exponents of 1e9 with
 *   the default: results are then those of the formula for votes that differ by a few roundings. Distances to
 *   a mean are right to a few roundings of themselves, however close votes lie and however far from 0.
 * Cost: votes as attn_capsules; about 14 B T H N dc flops a round, an exponential per (h, n).
 * Source: Hinton et al. 2018, Matrix capsules with EM routing, ICLR; for heads: Gu and Feng 2019, arXiv
 *   1909.00188, Li et al. 2019, arXiv 1904.03100. */
ATTN_DEF attn_status attn_capsules_em(attn_tensor y, attn_tensor x,
                                      const attn_capsules_em_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_capsules_em_workspace(attn_tensor y, attn_tensor x,
                                           const attn_capsules_em_params *params,
                                           const attn_ctx *ctx);
