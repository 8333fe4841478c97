/* api/compose/multihead.h owns multi-head attention from model rows to model rows: projections, heads, and
 * the way back. */

/* {0} but for the weights is one head of plain attention. */
typedef struct attn_multihead_params {
  int64_t heads;                  /* H; 0 = 1 */
  int64_t kv_heads;               /* Hkv, a divisor of H; 0 = H */
  attn_tensor w_q;                /* [1,1,dm,H dk] */
  attn_tensor w_k;                /* [1,1,dmk,Hkv dk] */
  attn_tensor w_v;                /* [1,1,dmv,Hkv dv] */
  attn_tensor w_o;                /* [1,1,H dv,dmo]; absent with y: `each` alone is wanted */
  int w_transposed;               /* 1: these four are [1,1,out,in], as in PyTorch checkpoints */
  attn_tensor b_q, b_k, b_v, b_o; /* [1,1,1,width of the weight], optional */
  attn_tensor bias_k,
      bias_v; /* both or none: [1,1,1,Hkv dk] and [1,1,1,Hkv dv], one more key and its
                               * value, which every row sees (nn.MultiheadAttention's add_bias_kv; its
                               * add_zero_attn is attention.softmax_one) */
  attn_sdpa_params
      attention;        /* scale, allowed set, terms, lse and map, as in attn_sdpa for q, k and v
                            * below; its messages call this params. No scales of quantised rows */
  attn_tensor each;     /* out, optional: [B,H,Tq,dv], the heads' outputs O_h */
  attn_compute compute; /* of the products with weights, as in attn_gemm; attention has its own */
  int compute_prefer;
  const attn_rope_params
      *rope; /* null = none: q_h and k_g are rotated, normed, as attn_rope does it */
  /* of weights of ATTN_I8 or ATTN_I4, as attn_gemm_params.w_scales */
  attn_scales w_q_scales, w_k_scales, w_v_scales, w_o_scales;
} attn_multihead_params;

#if ATTN_HAS_MULTIHEAD
/* Multi-head attention with projections, self or cross; column h d + c of a projected row is
 * component c of head h.
 *
 *   q = x w_q + b_q,  k = x_k w_k + b_k,  v = x_v w_v + b_v
 *   O_h = attn_sdpa of q_h, k_g, v_g,  g = h Hkv / H (integer division)
 *   y = [O_0 ; .. ; O_{H-1}] w_o + b_o
 *
 * rope: key j has position start + j, query i start + q_off + i; with positions (of Tk keys) key j has its own,
 *   query i that of key q_off + i, which must be there. keys is not read. Its messages call it params. With rope->norm
 *   queries and keys are normed too, or alone (has_rotary_dim = 1, rotary_dim = 0): its gains by head are [H,dk] and
 *   [Hkv,dk]; with L2 attention.scale 0 is 1.
 * bias_k and bias_v add a key of score s q_h . bias_k,g, which has no term and no place: no mask, window or
 *   length forbids it to a row before q_len. The LSE and the map, of Tk columns, count it in.
 *
 * Shapes: x [B,1,Tq,dm], x_k [B,1,Tk,dmk], x_v [B,1,Tk,dmv], y [B,1,Tq,dmo]. x_k absent (data
 *   null; with Tk = 0 any address will do): x itself; x_v absent: x_k. H dk need not be dm. Storage
 *   types are free; weights are [in, out], with w_transposed [out, in]: the same bits; they may also be codes of 8 or
 *   4 bits with scales, but in calls whose rows stop early and with shared heads. With attention.ragged the
 *   rows of x and x_k lie as those of q and k; rows of x that no sequence has attend to nothing: O_h = 0, y = b_o,
 *   lse is not written.
 * Aliasing: y, each, lse and map share memory with nothing; inputs may overlap.
 * Memory: attn_multihead_workspace bytes: f32 q, k and v, the heads' outputs unless `each` is f32
 *   with heads side by side (stride_head = dv), the weights as attn_gemm lays them out, and that of
 *   attn_sdpa. No Tq x Tk array but the map.
 * Empty: B = 0 or Tq = 0 is a no-op; a row without keys has O_h = 0 and y = b_o.
 * NaN: in a row of x reaches that row of y, in rows of x_k and x_v the rows that may see them.
 * Errors: those of attn_gemm and attn_sdpa; NULL, RANGE: bias_k without bias_v, or with ragged or
 *   modify_weights; those of attn_rope, RANGE: rope with bias_k, or one that rotates with ragged, q_offs or
 *   align_lengths; HEADS: Hkv does not divide H, or H and Hkv the widths.
 * Determinism: the same bits on avx2, avx512 and neon, any number of workers, and each row of y
 *   wherever attn_sdpa says so of a row.
 * Compute: params.compute is that of the four products as attn_gemm has it (not I8), attention.compute that of the
 *   attention: the bits of these calls one after another, with f32 between them. report.compute and report.feature
 *   are those of the last step that had any but F32.
 * Cost: 2 B (Tq dm H dk + Tk Hkv (dmk dk + dmv dv) + Tq H dv dmo) flops beside attn_sdpa.
 * Source: Vaswani et al. 2017, arXiv 1706.03762; Hkv < H: Ainslie et al. 2023, arXiv 2305.13245. */
ATTN_DEF attn_status attn_multihead(attn_tensor y, attn_tensor x, attn_tensor x_k, attn_tensor x_v,
                                    const attn_multihead_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_multihead_workspace(attn_tensor y, attn_tensor x, attn_tensor x_k,
                                         attn_tensor x_v, const attn_multihead_params *params,
                                         const attn_ctx *ctx);
#endif
