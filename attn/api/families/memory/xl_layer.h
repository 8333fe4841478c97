/* api/families/memory/xl_layer.h owns one attention layer of Transformer-XL, whole (B4). */

typedef struct attn_xl_layer_params {
  int64_t heads;      /* H; 0 = 1 */
  attn_tensor mem;    /* optional [B,1,M,dm]: earlier hidden states */
  attn_tensor w_q;    /* [1,1,dm,H dk] */
  attn_tensor w_k;    /* [1,1,dm,H dk], of the content */
  attn_tensor w_r;    /* [1,1,dm,H dk], of the distances */
  attn_tensor w_v;    /* [1,1,dm,H dv] */
  attn_tensor w_o;    /* optional [1,1,H dv,dm] */
  const float *u, *v; /* [H, dk] content and distance bias; null = 0 */
  int bidirectional;  /* 1: not causal */
  double base;        /* of the sinusoids; 0 = 10000 */
  int interleaved;    /* 1: (sin, cos) pairs; 0: sines first, then cosines, as the source's code */
  float scale;
  attn_tensor lse; /* out, optional: [B,H,L,1] */
} attn_xl_layer_params;

/* One attention layer of Transformer-XL, with c = [mem ; x] along time:
 *
 *   q = x w_q,  k = c w_k,  v = c w_v,  r_t = PE(t) w_r   (attn_sinusoid)
 *   x_ij = s ((q_i + u_h) . k_j + (q_i + v_h) . r_{p_i - j}),  p_i = M + i,  causal
 *   o = [O_0 .. O_{H-1}] w_o, or the O_h themselves
 *
 * Shapes: x [B,1,L,dm]; o [B,1,L,dm] with w_o, else [B,H,L,dv]. Cost: the projections, and 2 (2 dk
 *   + dv) flops a pair. Source: Dai et al. 2019, arXiv 1901.02860. */
ATTN_DEF attn_status attn_xl_layer(attn_tensor o, attn_tensor x, const attn_xl_layer_params *params,
                                   attn_ctx *ctx);
ATTN_DEF size_t attn_xl_layer_workspace(attn_tensor o, attn_tensor x,
                                        const attn_xl_layer_params *params, const attn_ctx *ctx);
