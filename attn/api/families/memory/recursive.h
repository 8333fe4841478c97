/* api/families/memory/recursive.h owns recursive memory: a state that each segment reads and writes anew. */

/* How a segment's outputs O change the memory M. */
typedef enum attn_recursive_rule {
  ATTN_RECURSIVE_EMA = 0, /* M' = alpha M + (1 - alpha) P, row s of P the mean of segment s of O */
  ATTN_RECURSIVE_REPLACE, /* M' = the last rows of [M ; O] */
  ATTN_RECURSIVE_ATTEND,  /* M' = attention of M over [M ; x], same weights, no mask */
  ATTN_RECURSIVE_COUNT
} attn_recursive_rule;

typedef struct attn_recursive_params {
  int64_t heads;    /* H; 0 = 1 */
  int64_t kv_heads; /* heads of keys and values, a divisor of H; 0 = H */
  attn_tensor w_q;  /* [1,1,dm,H dk] */
  attn_tensor w_k;  /* [1,1,dm,kv_heads dk] */
  attn_tensor w_v;  /* [1,1,dm,kv_heads dv] */
  attn_tensor w_o;  /* [1,1,H dv,dm] */
  int w_transposed; /* 1: these four are [1,1,out,in], as in PyTorch checkpoints */
  attn_recursive_rule rule;
  float alpha;     /* of EMA, 0..1; 0 = 0.5, ATTN_ZERO = 0 */
  float scale;     /* 0 = 1/sqrt(dk), ATTN_ZERO = 0 */
  attn_tensor lse; /* out, optional: [B,H,L,1] f32, of the rows of x */
} attn_recursive_params;

/* One segment of a layer with recursive memory; c = [memory ; x] along time:
 *
 *   q = x w_q,  k = c w_k,  v = c w_v;  row i of x sees all of the memory and x up to itself
 *   o = [O_0 .. O_{H-1}] w_o
 *   next = the rule's M'
 *
 * Segment s of O for EMA: rows floor(s L / n) .. floor((s + 1) L / n) - 1 of the L, n = memory.len.
 * Shapes: x, o [B,1,L,dm]; memory [B,1,n,dm], data null: n = 0; next [B,1,n,dm], with REPLACE any
 *   number of rows up to n + L; data null: not wanted, the memory stays as it is. The first segment
 *   has no memory with REPLACE, and one the caller makes up (zeros, learned rows) with the others,
 *   whose n never changes. Storage types are free; M' is made of o before that is rounded to its type.
 * Aliasing: next may be the memory itself, with the same strides and type (the update in place); else
 *   outputs share memory with nothing.
 * Weights of 0 drop their part: alpha = 1 leaves the memory as it is, with ATTN_ZERO next is P alone.
 * Empty: B = 0 is a no-op; L = 0 changes the memory only by ATTEND; n = 0 is plain causal attention.
 * NaN: in a row of x reaches o from that row on, in the memory all of o, and M' as it reads them.
 * Memory: attn_recursive_workspace bytes: f32 q, k, v, the heads' outputs, o unless it is f32, and the
 *   weights as attn_gemm lays them out.
 * Errors: those of attn_sdpa, SHAPE: EMA with n > L; VALUE: alpha; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, any number of workers. Cost: the projections, 2
 *   (dk + dv) flops a pair, L (n + (L + 1) / 2) pairs a head and n (n + L) more with ATTEND.
 * Source: form defined here, after Dai et al. 2019, arXiv 1901.02860 (memory of hidden states). */
ATTN_DEF attn_status attn_recursive(attn_tensor o, attn_tensor next, attn_tensor x,
                                    attn_tensor memory, const attn_recursive_params *params,
                                    attn_ctx *ctx);
ATTN_DEF size_t attn_recursive_workspace(attn_tensor o, attn_tensor next, attn_tensor x,
                                         attn_tensor memory, const attn_recursive_params *params,
                                         const attn_ctx *ctx);
