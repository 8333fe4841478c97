/* api/families/content/mra.h owns attention at two resolutions (MRA-2): exact pairs where blocks of rows matter to
 * each other, one score for a pair of blocks elsewhere. */

typedef struct attn_mra_params {
  int64_t block; /* B, rows of a block; 0 = 32 */
  int64_t
      exact; /* block pairs of a head whose scores are exact; 0 = 4 ceil(Tq / B). More than there are: all */
  int has_exact; /* 1: exact holds, 0 included */
  int sparse;    /* 1: the other pairs are left out (MRA-2-s) */
  int by_score; /* 1: pairs are chosen by their own score, else by how far they are below the best of their row */
  int64_t
      first; /* pairs of the first so many blocks of queries or of keys are chosen before others */
  int64_t diagonal; /* n > 0: and those whose numbers of blocks differ by n / 2 at most; 0 = none */
  float scale;      /* s; 0 = 1/sqrt(dk), ATTN_ZERO = 0 */
  const int32_t *kv_len; /* [B] or null: keys from here on do not exist */
  const int32_t *q_len;  /* [B] or null: nor do rows */
  attn_tensor lse;       /* out, optional: [B,H,Tq,1] f32, log of each row's denominator */
} attn_mra_params;

/* Attention over blocks X of B queries and Y of B keys, the last ones shorter, q_X, k_Y, v_Y the means of the rows that
 * exist, n_Y the number of keys:
 *
 *   mu_XY = s q_X . k_Y
 *   J     = the `exact` pairs of a head with the largest mu_XY - max_Y' mu_XY' (by_score: mu_XY), those of `first` and
 *           `diagonal` before others; of equals the one that comes first, X before Y
 *   O_i   = (sum over (X,Y) in J, j in Y, of exp(s q_i . k_j) v_j
 *            + sum over the other Y of n_Y exp(mu_XY) v_Y) / Z_i,   i in X
 *   Z_i   = the same without values;  LSE_i = log Z_i;  sparse: without the second sums
 *
 * One maximum a row serves both sums, so that any of them may be the larger. All pairs in J: attn_sdpa. B = 1: exact
 * whatever J. Not causal: a mean and the choice see all rows.
 * Shapes: q [B,H,Tq,dk], k [B,Hk,Tk,dk], v [B,Hv,Tk,dv], o [B,H,Tq,dv], f32, f16 or bf16, any strides; Hk and Hv
 *   divide H. Tq, Tk < 2^31, the pairs of blocks of a head too.
 * Aliasing: o and lse share memory with nothing. Memory: attn_mra_workspace bytes, with N = ceil(T / B) blocks: 4 N
 *   (dk + dv) + 4 N^2 + 4 N (dv + 1) a head, and what attn_sdpa and attn_gemm want; a worker 16 N^2 for the choice,
 *   and O(64 (dk + dv) + 16 N).
 * Empty: rows that do not exist, and with sparse those without a chosen block that has keys: 0, LSE -inf.
 * NaN: in a query reaches its row and, by the mean, its block's approximations; in a key or value every row that
 *   reads it or its block's means. A pair whose mu is NaN is chosen last. Keys that do not exist are not read,
 *   queries that do not reach nothing.
 * Precision: sums over J as attn_sdpa's; means are summed in double, mu and the approximated sums are attn_sdpa's of
 *   rounded means; both are joined by their LSE as floats, which costs 6e-8 |LSE|.
 * Errors: NULL, DTYPE, SHAPE, HEADS, STRIDE, RANGE (block, exact, first, diagonal, lengths), VALUE (scale), OVERLAP,
 *   OVERFLOW, ALIGN, WORKSPACE, MEMORY, those of ctx; outputs untouched. B = 0, H = 0, Tq = 0 do nothing.
 * Determinism: the same bits and choices on avx2, avx512 and neon, for any number of workers and batch composition.
 * Cost: 2 (dk + dv) flops for each pair of rows in J, 2 (2 dk + dv) for each pair of blocks, which ctx->report.pairs
 *   counts once each. Blocks of 16, 32 and 64 rows fill the lanes of a tile best.
 * Source: Zeng et al. 2022, arXiv 2207.10284; the row's best score, first and diagonal as in the authors' program. */
ATTN_DEF attn_status attn_mra(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                              const attn_mra_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_mra_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                   const attn_mra_params *params, const attn_ctx *ctx);
