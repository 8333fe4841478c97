/* api/families/memory/gtrxl.h owns gates in place of residual sums (Gated Transformer-XL, K5), and the block that has
 * two of them. */

/* How the output y of a sub-layer joins the skip stream x. sigma is the logistic function, b the bias
 * of the gate. */
typedef enum attn_gtrxl_kind {
  ATTN_GTRXL_GRU = 0,  /* (1 - z) x + z tanh(y w_g + (r x) u_g), where r = sigma(y w_r + x u_r) and
                        * z = sigma(y w_z + x u_z - b) */
  ATTN_GTRXL_INPUT,    /* sigma(x w_g) x + y */
  ATTN_GTRXL_OUTPUT,   /* x + sigma(x w_g - b) y */
  ATTN_GTRXL_HIGHWAY,  /* a x + (1 - a) y, where a = sigma(x w_g + b) */
  ATTN_GTRXL_SIGTANH,  /* x + sigma(y w_g - b) tanh(y u_g) */
  ATTN_GTRXL_RESIDUAL, /* x + y */
  ATTN_GTRXL_COUNT
} attn_gtrxl_kind;

/* Weights are [1,1,dm,dm]; those that the kind does not name are not read. */
typedef struct attn_gtrxl_gate_params {
  attn_gtrxl_kind kind;
  attn_tensor w_r, u_r, w_z, u_z, w_g, u_g;
  int w_transposed; /* 1: they are [1,1,out,in], as in PyTorch checkpoints */
  float b;          /* finite; 0 = 2, ATTN_ZERO = 0. The larger, the more of x passes */
  attn_tensor b_g;  /* optional: [1,1,1,dm], the bias in place of b */
} attn_gtrxl_gate_params;

/* o = gate(x, y), row by row.
 *
 * Shapes: o, x, y [B,1,T,dm], any types and strides.
 * Aliasing: o shares memory with nothing.
 * Memory: attn_gtrxl_gate_workspace bytes: the weights as attn_gemm lays them out, and per worker the
 *   values between the products of 192 rows, 4 (dm + 256) bytes each, with 16-bit x or y these as f32.
 *   r, z and c never exist for all rows.
 * Empty: B = 0 or T = 0 does nothing.
 * NaN: in a row of x or y reaches that row of o. Bounds: each element of a GRU's or HIGHWAY's row lies,
 *   up to rounding, between x and tanh's or y's; where the bias leaves no weight for the other side o is
 *   exactly x.
 * Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE (kind), VALUE (b not finite), OVERLAP, OVERFLOW, WORKSPACE,
 *   MEMORY, ALIGN, ISA, ENV, CTX; o untouched.
 * Determinism: each sum is one chain of fused multiply-adds, y's products before x's: the same bits on
 *   avx2, avx512 and neon, for any number of workers and any cut of the rows.
 * Cost: 12 B T dm^2 flops for a GRU, 4 for SIGTANH, 2 for a kind with one weight.
 * Source: Parisotto et al. 2019, arXiv 1910.06764. */
ATTN_DEF attn_status attn_gtrxl_gate(attn_tensor o, attn_tensor x, attn_tensor y,
                                     const attn_gtrxl_gate_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_gtrxl_gate_workspace(attn_tensor o, attn_tensor x, attn_tensor y,
                                          const attn_gtrxl_gate_params *params,
                                          const attn_ctx *ctx);

typedef struct attn_gtrxl_params {
  /* Heads, memories, weights (w_o is required), LN1 = norm; sublayer is not read. Its messages call this
   * params. */
  attn_segment_layer_params attention;
  attn_gtrxl_gate_params gate_1, gate_2;
  attn_norm norm_ff;    /* LN2 */
  attn_feed_forward ff; /* dm to dm; w_2 is required */
} attn_gtrxl_params;

/* A block of the Gated Transformer-XL behind a memory of earlier inputs. With c = [memory ; h]:
 *
 *   a = attention of LN1(h) over LN1(c) (attn_segment_layer, ATTN_SUBLAYER_PLAIN) w_o + b_o
 *   Y = gate_1(h, relu(a)),   o = gate_2(Y, relu(ff(LN2(Y))))
 *
 * The skip stream is never normalised. The memory is neither copied nor changed: attn_memory_append of
 * h, the block's input, comes next.
 * Shapes: h, o [B,1,L,dm]. attention.w_r, or attention.attention.r, gives relative positions
 *   (Transformer-XL), with attention.attention.u and .v.
 * Aliasing: outputs share memory with nothing.
 * Memory: attn_gtrxl_workspace bytes: the heads in f32; q, k and v and attn_segment's, or after them
 *   what lies between the steps of 1024 rows, 4 (2 dm + dff) bytes each; the weights as attn_gemm lays
 *   them out.
 * Empty, NaN, determinism: as attn_segment_layer. Errors: those of attn_segment_layer and
 *   attn_gtrxl_gate; NULL: ff.w_2.
 * Cost: attn_segment_layer's, the gates' and 4 B L dm dff.
 * Source: Parisotto et al. 2019, arXiv 1910.06764. */
ATTN_DEF attn_status attn_gtrxl(attn_tensor o, attn_tensor h, const attn_gtrxl_params *params,
                                attn_ctx *ctx);
ATTN_DEF size_t attn_gtrxl_workspace(attn_tensor o, attn_tensor h, const attn_gtrxl_params *params,
                                     const attn_ctx *ctx);
