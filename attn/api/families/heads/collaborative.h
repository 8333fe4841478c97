/* api/families/heads/collaborative.h owns heads that share their projections (I4). */

typedef struct attn_collaborative_params {
  int64_t heads;              /* H; 0 = 1 */
  attn_tensor w_q, w_k;       /* [1,1,dm,Dk], [1,1,dmk,Dk], shared by the heads */
  attn_tensor mix;            /* [1,1,H,Dk], the channels of each head, any sign */
  attn_tensor w_c;            /* [1,1,dmk,H], the content bias, optional */
  attn_tensor w_v, w_o;       /* [1,1,dmk,H dv], [1,1,H dv,dmo] */
  int w_transposed;           /* 1: these five w are [1,1,out,in], as in PyTorch checkpoints */
  attn_tensor b_v, b_o;       /* [1,1,1,H dv], [1,1,1,dmo], optional */
  attn_sdpa_params attention; /* as in attn_multihead, but a scale of 0 is 1/sqrt(Dk/H). With w_c no
                            * relative.keys, relative.queries, xl and labels */
  attn_tensor each;           /* out, optional: [B,H,Tq,dv] */
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
