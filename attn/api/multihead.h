/* api/multihead.h owns multi-head attention from model rows to model rows: projections, heads, and
 * the way back. */

/* {0} but for the weights is one head of plain attention. */
typedef struct attn_multihead_params {
  int64_t heads;                  /* H; 0 = 1 */
  int64_t kv_heads;               /* Hkv, a divisor of H; 0 = H */
  attn_tensor w_q;                /* [1,1,dm,H dk] */
  attn_tensor w_k;                /* [1,1,dmk,Hkv dk] */
  attn_tensor w_v;                /* [1,1,dmv,Hkv dv] */
  attn_tensor w_o;                /* [1,1,H dv,dmo]; absent with y: `each` alone is wanted */
  attn_tensor b_q, b_k, b_v, b_o; /* [1,1,1,width of the weight], optional */
  attn_sdpa_params attend; /* scale, allowed set, terms, lse and map, as in attn_sdpa for q, k and v
                            * below; its messages call this params. No scales of quantised rows */
  attn_tensor each;        /* out, optional: [B,H,Tq,dv], the heads' outputs O_h */
} attn_multihead_params;

/* Multi-head attention with projections, self or cross; column h d + c of a projected row is
 * component c of head h.
 *
 *   q = x w_q + b_q,  k = x_k w_k + b_k,  v = x_v w_v + b_v
 *   O_h = attn_sdpa of q_h, k_g, v_g,  g = h Hkv / H (integer division)
 *   y = [O_0 ; .. ; O_{H-1}] w_o + b_o
 *
 * Shapes: x [B,1,Tq,dm], x_k [B,1,Tk,dmk], x_v [B,1,Tk,dmv], y [B,1,Tq,dmo]. x_k absent (data
 *   null; with Tk = 0 any address will do): x itself; x_v absent: x_k. H dk need not be dm. Storage
 *   types are free; weights are [in, out]. With attend.ragged the rows of x and x_k lie as those of q
 *   and k; rows of x that no sequence has attend to nothing: O_h = 0, y = b_o, lse is not written.
 * Aliasing: y, each, lse and map share memory with nothing; inputs may overlap.
 * Memory: attn_multihead_workspace bytes: f32 q, k and v, the heads' outputs unless `each` is f32
 *   with heads side by side (stride_head = dv), the weights as attn_gemm lays them out, and that of
 *   attn_sdpa. No Tq x Tk array but the map.
 * Empty: B = 0 or Tq = 0 is a no-op; a row without keys has O_h = 0 and y = b_o.
 * NaN: in a row of x reaches that row of y, in rows of x_k and x_v the rows that may see them.
 * Errors: those of attn_gemm and attn_sdpa; HEADS: Hkv does not divide H, or H and Hkv the widths.
 * Determinism: the same bits on avx2, avx512 and neon, any number of workers, and each row of y
 *   wherever attn_sdpa says so of a row.
 * Cost: 2 B (Tq dm H dk + Tk Hkv (dmk dk + dmv dv) + Tq H dv dmo) flops beside attn_sdpa.
 * Source: Vaswani et al. 2017, arXiv 1706.03762; Hkv < H: Ainslie et al. 2023, arXiv 2305.13245. */
ATTN_DEF attn_status attn_multihead(attn_tensor y, attn_tensor x, attn_tensor x_k, attn_tensor x_v,
                                    const attn_multihead_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_multihead_workspace(attn_tensor y, attn_tensor x, attn_tensor x_k,
                                         attn_tensor x_v, const attn_multihead_params *params,
                                         const attn_ctx *ctx);

typedef struct attn_collaborative_params {
  int64_t heads;           /* H; 0 = 1 */
  attn_tensor w_q, w_k;    /* [1,1,dm,Dk], [1,1,dmk,Dk], shared by the heads */
  attn_tensor mix;         /* [1,1,H,Dk], the channels of each head, any sign */
  attn_tensor w_c;         /* [1,1,dmk,H], the content bias, optional */
  attn_tensor w_v, w_o;    /* [1,1,dmk,H dv], [1,1,H dv,dmo] */
  attn_tensor b_v, b_o;    /* [1,1,1,H dv], [1,1,1,dmo], optional */
  attn_sdpa_params attend; /* as in attn_multihead, but a scale of 0 is 1/sqrt(Dk/H). With w_c no
                            * relative.keys, xl and labels */
  attn_tensor each;        /* out, optional: [B,H,Tq,dv] */
} attn_collaborative_params;

/* Collaborative multi-head attention: one query and one key projection, whose channels each head
 * weighs anew.
 *
 *   q = x w_q,  k = x_k w_k,  v = x_k w_v + b_v
 *   x_hij = s sum_c q_i[c] mix_h[c] k_j[c] + s (x_k w_c)_j[h]
 *   y = [O_0 ; .. ; O_{H-1}] w_o + b_o,  O_h = softmax of x_h over j, times v_h
 *
 * The content bias is part of the score: softcap, factor and modify see the sum.
 * Shapes: as attn_multihead; Dk need not be a multiple of H. A pretrained layer that was compressed
 *   wants its own scale, 1/sqrt(dk).
 * Aliasing, empty, NaN, determinism as attn_multihead, but a content bias that is infinite reaches all
 *   heads. Queries are mixed tile by tile: no [B,H,Tq,Dk] array exists.
 * Memory: attn_collaborative_workspace bytes: f32 q, k, v, mix and heads' outputs, else as
 *   attn_multihead.
 * Errors: those of attn_multihead, and RANGE: relative.keys, xl or labels with w_c.
 * Cost: 2 (Dk + dv) flops a pair and head, with w_c 2 (Dk + H + dv); the projections.
 * Source: Cordonnier et al. 2020, arXiv 2006.16362. */
ATTN_DEF attn_status attn_collaborative(attn_tensor y, attn_tensor x, attn_tensor x_k,
                                        const attn_collaborative_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_collaborative_workspace(attn_tensor y, attn_tensor x, attn_tensor x_k,
                                             const attn_collaborative_params *params,
                                             const attn_ctx *ctx);
