/* api/families/latent/tpa.h owns tensor product attention (M5): heads that are sums of products of short vectors. */

/* The rank-R factors of the heads of some rows. */
typedef struct attn_factors {
  attn_tensor a; /* [B,R,T,H]: how much each head has of */
  attn_tensor b; /* [B,R,T,d]: vectors that all heads share */
} attn_factors;

typedef struct attn_tpa_params {
  const attn_rope_params *rope; /* null = none: b of q and of k are rotated */
  float scale;                  /* 0 = 1/sqrt(dk), ATTN_ZERO = 0 */
  int bidirectional;            /* 1: a token sees those after it in its sequence too */
  attn_window window;           /* attn_window_of(left, right); {0} = none */
  const int64_t
      *indptr;         /* [sequences + 1]: rows have batch 1, sequence b those from indptr[b] on */
  int64_t sequences;   /* with indptr */
  attn_cache *cache;   /* optional, of one head: rows [a_1 .. a_R | b_1 .. b_R] of k and of v */
  attn_sequence *held; /* [B, or sequences] of the cache */
  attn_tensor lse;     /* out, optional: [B,H,T,1] f32 */
} attn_tpa_params;

/* Tensor product attention: attn_sdpa on heads that are made from factors,
 *
 *   q_h = 1/Rq sum_r a_q,r[h] b_q,r,  k_h = 1/Rk sum_r a_k,r[h] b_k,r,  v_h = 1/Rv sum_r a_v,r[h] b_v,r
 *
 * Shapes: o [B,H,T,dv]; q, k, v of rows [B,.,T,.], each with a rank of its own (6, 2, 2 in the paper), H columns of
 *   a, dk columns of b of q and k, dv of v. Rows [B,T,R,.] in memory are attn_bthd. Storage types are free.
 * Rotation: position of a token as in attn_mla, on b before anything else; it is linear, so the heads are rotated.
 * Cache: the factors, rotated, are appended, (Rk + Rv) H + Rk dk + Rv dv numbers a token (k of Rk (H + dk) columns,
 *   v of Rv (H + dv)), rounded once to f32, f16 or bf16; then the rows see all of their sequence. No ring (RANGE).
 * One token: a sequence that has a cache and one token in the call reads the factors where they lie, all heads in
 *   lanes: q_h . b_r, weighted by a_r[h] / Rk, and values likewise; no heads of keys or values are made. More tokens
 *   make them.
 * Aliasing: o and lse share memory with nothing, the cache, its sequences and tables with no argument.
 * Memory: attn_tpa_workspace bytes: the factors as f32, q of all heads, and, but for single tokens, for each token
 *   of the longest sequence its factors and k and v of 16 heads; each of these rows up to 47 numbers wider. No T x T
 *   array.
 * Empty: B = 0 or T = 0 is a no-op; H and ranks are 1 .. 65536. Rows beyond the last sequence: o = 0, lse is not
 *   written.
 * NaN: in a token's factors reaches the rows that see it, and nothing else.
 * Errors: those of attn_sdpa, attn_rope and attn_cache_append; RANGE: rope->norm; SHAPE; o, the cache and its
 *   sequences untouched.
 * Determinism: the same bits on avx2, avx512 and neon and for any number of workers; a row's for any division into
 *   calls of more than one token as attn_sdpa says of a group of one head; single tokens sum in another order.
 * Cost: 2 (Rk dk + Rv dv) flops a key and head for all keys of a sequence, beside attn_sdpa; in place of it for one
 *   token.
 * Source: Zhang et al. 2025, arXiv 2501.06425. */
ATTN_DEF attn_status attn_tpa(attn_tensor o, const attn_factors *q, const attn_factors *k,
                              const attn_factors *v, const attn_tpa_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_tpa_workspace(attn_tensor o, const attn_factors *q, const attn_factors *k,
                                   const attn_factors *v, const attn_tpa_params *params,
                                   const attn_ctx *ctx);
