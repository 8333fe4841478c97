/* api/families/selection/nsa.h owns native sparse attention: compressed keys, chosen blocks, a window, and gates. */

typedef struct attn_nsa_compress_params {
  int64_t block,
      stride;    /* rows of a compressed one, and between two: 0 = 32, 16; stride divides block */
  int64_t first; /* rows before it have not changed: what is made of them alone is not written */
  const int32_t *kv_len; /* [B] rows of an entry, or null: x.len */
  attn_tensor e,
      w; /* [1, 1 or H, block, dim], optional; [1, 1 or H, block dim, dim']; without w the mean */
} attn_nsa_compress_params;

/* Keys, or values, compressed along the sequence, beside a cache.
 *
 *   y_c = mean of x_cd .. x_cd+l-1,  or flatten(x_cd .. x_cd+l-1 + e) w,  with l = block, d = stride
 *
 * Shapes: x [B,H,T,dim], y f32 [B,H,n,dim'], n = (T - l) / d + 1 rounded down, 0 where T < l; no memory is shared.
 * Memory: attn_nsa_compress_workspace bytes: with w 4 n l dim bytes a (batch, head). Rows past kv_len are not read;
 *   what would need them is made of zeros. NaN: a row's NaN reaches what is made of it.
 * Errors: RANGE: block, stride, first outside 0 .. T, kv_len; SHAPE: y, e, w; NULL: e without w; y untouched.
 * Determinism: the same bits on avx2, avx512 and neon, any number of workers. Cost: 2 l dim dim' flops a row of y.
 * Source: Yuan et al. 2025, arXiv 2502.11089. */
ATTN_DEF attn_status attn_nsa_compress(attn_tensor y, attn_tensor x,
                                       const attn_nsa_compress_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_nsa_compress_workspace(attn_tensor y, attn_tensor x,
                                            const attn_nsa_compress_params *params,
                                            const attn_ctx *ctx);

typedef struct attn_nsa_params {
  int64_t block, stride; /* of compressed keys: 0 = 32, 16 */
  int64_t select;        /* keys of a block that is chosen: 0 = 64; stride divides it */
  int64_t blocks;        /* of these a row has: 0 = 16 */
  int64_t window;        /* keys of the window: 0 = 512 */
  float scale;           /* 0 = dk^-1/2 */
  int has_q_off;
  int64_t q_off;            /* row i is at position i + q_off; without has_q_off Tk - Tq */
  const int32_t *kv_len;    /* [B] keys of an entry, or null: k.len */
  attn_tensor gate;         /* [B,H,Tq,3]: of the compressed, the chosen, the window */
  attn_tensor k_cmp, v_cmp; /* f32, of attn_nsa_compress; absent: means of k and v */
  attn_tensor k_sel, v_sel, k_win, v_win; /* of the other branches; absent: k and v */
  int32_t *index; /* out, optional: [B,Hk,Tq,blocks] the blocks of a row, ascending, then -1 */
} attn_nsa_params;

/* Native sparse attention: three softmaxes of each query, weighed by gates.
 *
 *   o_i = g_i0 o_cmp + g_i1 o_sel + g_i2 o_win,  p_i = i + q_off, l = block, d = stride, l' = select
 *   o_cmp = softmax over the compressed keys c with c d + l - 1 <= p_i; 0 where there is none; its weights are P_cmp
 *   score_j = sum over the query heads of a group, m < l'/d and n < l/d of P_cmp[j l'/d + m - n], out of range = 0
 *   o_sel = softmax over keys up to p_i of: block floor(p_i / l'), the one before, block 0, and the best others of
 *           block 0 .. floor(p_i / l'), `blocks` in all; the same for all heads that share keys
 *   o_win = softmax over keys p_i - window < j <= p_i
 *
 * Shapes, aliasing: as attn_sdpa, causal; k.heads = v.heads; a gate of 0 leaves its branch out.
 * Forced blocks count in `blocks`, in the order above. Equal scores go to the lower block. A NaN score comes last.
 *   Blocks past kv_len are none.
 * Memory: attn_nsa_workspace bytes: three outputs in f32, 4 blocks bytes a row and key head, the compressed keys and
 *   values, for each worker 4 * 64 Tk / d bytes and what attn_moba has.
 * Empty rows are 0. NaN: what a row does not see or choose never reaches it; no later key does.
 * Errors: those of attn_sdpa; NULL: params, gate; RANGE: sizes; SHAPE: tensors of params; HEADS; outputs untouched.
 * Determinism: the same bits and blocks on avx2, avx512 and neon, any number of workers, batch composition and
 *   division of the queries.
 * Cost: 2 (2 dk + dv) flops a visible compressed key, 2 (dk + dv) a key of `blocks` blocks and of the window.
 * Source: Yuan et al. 2025, arXiv 2502.11089. */
ATTN_DEF attn_status attn_nsa(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                              const attn_nsa_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_nsa_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                   const attn_nsa_params *params, const attn_ctx *ctx);
