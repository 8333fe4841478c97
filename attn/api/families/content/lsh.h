/* api/families/content/lsh.h owns LSH attention (the Reformer): tokens are hashed by random rotations and attend to
 * tokens of their bucket, in several rounds. */

/* What a token does about itself. */
typedef enum attn_lsh_self {
  ATTN_LSH_SELF_ALONE,  /* attends to itself only when it sees no other token */
  ATTN_LSH_SELF_PENALTY /* always, with a score lowered by params.penalty */
} attn_lsh_self;

typedef struct attn_lsh_params {
  int64_t rounds; /* n_r, 1 .. 2^20; 0 = 8 */
  const int32_t
      *factors; /* [factor_count] b_1 .. b_F, even and >= 2, or a single 1; null: one factor,
                             2 max(1, floor(T / 64)) */
  int64_t factor_count;  /* F */
  attn_tensor rotations; /* f32 [1 or H, rounds, dk, sum b / 2]; data null: drawn from seed */
  uint64_t seed;
  int64_t heads;  /* H of attn_lsh_hash; 0 = x.heads. The attending calls take their own */
  int64_t chunk;  /* m; 0 = max(1, ceil(2 T / n_b)) */
  int has_chunk;  /* 1: chunk holds, 0 included: no chunks, whole buckets */
  int64_t before; /* chunks before the own one; 0 = 1 */
  int has_before; /* 1: before holds, 0 included */
  int64_t after;  /* and after */
  int across;     /* 1: chunks see all of their window, not only their bucket */
  int wrap;       /* 1, with across: chunks stand in a ring, so the first looks back to the last */
  int causal;     /* j <= i; attn_lsh_qk: j <= i + Tk - Tq */
  int keep_duplicates; /* 1: a pair counts once for each round that finds it, not once */
  attn_lsh_self self;
  float penalty;         /* P of ATTN_LSH_SELF_PENALTY, >= 0; 0 = 1e5, ATTN_ZERO = 0 */
  float scale;           /* s; 0 = 1/sqrt(dk), ATTN_ZERO = 0 */
  const uint8_t *valid;  /* [B,T] or null: tokens (attn_lsh_qk: keys) with 0 do not exist */
  const int32_t *kv_len; /* [B] or null: nor do those from here on */
  const int32_t *q_len;  /* [B] or null, of attn_lsh_qk */
  attn_tensor lse;       /* out, optional: [B,H,T,1] f32 */
} attn_lsh_params;

/* n_b = b_1 .. b_F of so many tokens; 0 when the factors are not legal. */
ATTN_DEF int64_t attn_lsh_buckets(int64_t len, const attn_lsh_params *params);

/* The bucket of every row in every round. With the rows' columns of factor f in R(h, r), factors
 * one after another:
 *
 *   z = x_i R[:, columns of f];  a_f = argmax over [z ; -z], the lowest index on ties
 *   bucket = a_1 + b_1 a_2 + b_1 b_2 a_3 + ..
 *
 * R is params.rotations or, for each (h, r), sums of 12 uniform numbers less 6, last index fastest, as
 *   float: seed, tag 4, head, round in the generator of random patterns. All batch entries share it.
 * Factors save work: 16, 32 stand for 512 buckets with 24 columns in place of 256.
 * Shapes: x [B,Hx,T,dk] f32, f16 or bf16, any strides; buckets [B,H,rounds,T] dense, 0 .. n_b - 1 with
 *   n_b < 2^31; Hx divides H = params.heads, and head h hashes the rows of head h Hx / H. T < 2^31.
 *   Fields that only attention reads have to be legal; all rows are hashed, whatever the lengths.
 * Aliasing: buckets shares memory with nothing. Memory: attn_lsh_hash_workspace bytes, the rotations
 *   and per worker 64 rows of products; not a function of T but through n_b.
 * Errors: NULL, DTYPE, SHAPE (extents; rotations that do not fit), HEADS, RANGE (rounds, factors, heads,
 *   chunk, before, after, self, lengths), VALUE (penalty, scale), OVERLAP, OVERFLOW, ALIGN, WORKSPACE,
 *   MEMORY, those of ctx; buckets untouched. B = 0 and T = 0 do nothing.
 * NaN: the bucket of such a row is some number below n_b.
 * Determinism: the same buckets on avx2, avx512 and neon, for any number of workers. A positive factor
 *   in front of x or R changes nothing, rounding aside.
 * Cost: T rounds dk sum b flops a head. Source: Kitaev et al. 2020, arXiv 2001.04451; hashing: Andoni
 *   et al. 2015, arXiv 1509.02897. */
ATTN_DEF attn_status attn_lsh_hash(int32_t *buckets, attn_tensor x, const attn_lsh_params *params,
                                   attn_ctx *ctx);
ATTN_DEF size_t attn_lsh_hash_workspace(int32_t *buckets, attn_tensor x,
                                        const attn_lsh_params *params, const attn_ctx *ctx);

/* LSH attention with shared queries and keys: queries x_i, keys k_j = x_j / max(|x_j|, 1e-6).
 *
 *   s_r(i): the rank of a token that exists in round r, by (bucket, position); c = floor(s_r / m)
 *   allowed in round r: j <= i if causal, the same bucket unless across, and, with chunks,
 *                       -before <= c(j) - c(i) <= after, with wrap modulo the number of chunks
 *   N_ij = rounds in which j is allowed, U_i = { j : N_ij >= 1 } without i unless it is alone
 *   o_i = softmax over j in U_i of (s x_i . k_j) v_j      (keep_duplicates: + ln N_ij for j != i)
 *
 * causal hides the keys after i, but chunks are cut from all tokens in the order of their buckets, as the
 * paper does: which earlier keys a row meets depends on later tokens. With whole buckets it does not (sums
 * may round otherwise).
 *
 * ATTN_LSH_SELF_PENALTY: i stays in U_i, with s x_i . k_i - P (and ln N_ii with keep_duplicates; P = 0:
 *   an ordinary key).
 * LSE is that of the final scores; of a token alone s x_i . k_i.
 * Shapes: x [B,H,T,dk], v [B,Hv,T,dv], o [B,H,T,dv]; Hv divides H; storage types are independent,
 *   strides any. T < 2^31. buckets [B,H,rounds,T] dense: any numbers >= 0 (those of tokens that do not
 *   exist are not read); null: what attn_lsh_hash makes, with params.heads = H. The array has no length
 *   of its own: rounds says it.
 * Aliasing: o and lse share memory with nothing. Memory: attn_lsh_workspace bytes, linear in T: 16 rounds
 *   + 12 a token (4 rounds more with buckets null, 4 dv more when o is not f32), of one head and as
 *   many more as workers need; per worker 4 T or O(rounds + 64 (dk + dv)). With buckets null the
 *   rotations as well, 4 rounds dk sum b / 2 a head: with the default of n_b that is rounds dk / 16 a
 *   token. No sorted copies of x or v.
 * Empty: tokens that do not exist are zeros, LSE -inf. A token alone gets v_i. B = 0 and T = 0 do
 *   nothing.
 * Errors: those of attn_lsh_hash, STRIDE, INDEX (a negative bucket), RANGE (across without chunks, wrap without
 *   across; q_len); outputs untouched.
 * NaN: in a token reaches exactly the rows that see it, infinite values too; a bucket made of it is some
 *   bucket.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers.
 * Precision: attn_sdpa's. A pair that several rounds find is computed in the first and skipped in the
 *   others, which is exact.
 * Cost: the hash; sorting, O(T) a round; attention over rounds T m (1 + before + after) pairs a head at
 *   most, and a comparison per pair and earlier round: that part is the square of rounds. Without chunks it is the
 *   sum of the squared sizes of buckets: quadratic when all tokens fall into one. That is the meaning of whole buckets.
 * Causality: the mask is exact, but with chunks the ranks, so which earlier tokens are in reach, depend
 *   on later tokens, as in the paper. Without chunks outputs depend on earlier tokens alone.
 * The authors' program and ports of it: keys of unit length with s = 1 (scale = 1), across = 1 and
 *   keep_duplicates = 1 by default, wrap = 1 and a finite self penalty, which this call
 *   replaces by the rule above. Source: Kitaev et al. 2020, arXiv 2001.04451, section 2, appendix A. */
ATTN_DEF attn_status attn_lsh(attn_tensor o, attn_tensor x, attn_tensor v, const int32_t *buckets,
                              const attn_lsh_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_lsh_workspace(attn_tensor o, attn_tensor x, attn_tensor v,
                                   const int32_t *buckets, const attn_lsh_params *params,
                                   const attn_ctx *ctx);

/* The same with queries and keys of their own: j is allowed in round r when its bucket is that of i.
 * Keys are not normalised, there is no rule for the self, and no chunks: ranks of queries and keys do
 * not correspond, so that chunk must be 0, across 0, self ATTN_LSH_SELF_ALONE.
 *
 * Shapes: q [B,H,Tq,dk], k [B,Hk,Tk,dk], v [B,Hv,Tk,dv], o [B,H,Tq,dv]; Hk and Hv divide H. q_buckets
 *   [B,H,rounds,Tq], k_buckets [B,H,rounds,Tk]; both null: made here, with the default n_b that of Tk
 *   keys.
 * Empty: rows whose buckets have no key are zeros, LSE -inf. Else as attn_lsh. */
ATTN_DEF attn_status attn_lsh_qk(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                 const int32_t *q_buckets, const int32_t *k_buckets,
                                 const attn_lsh_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_lsh_qk_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                      const int32_t *q_buckets, const int32_t *k_buckets,
                                      const attn_lsh_params *params, const attn_ctx *ctx);
