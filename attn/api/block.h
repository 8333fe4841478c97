/* --- blocks --------------------------------------------------------------------------------------
 * api/block.h owns what a Transformer is stacked of: the feed-forward, the encoder and decoder block, a
 * decoder's step behind a cache (K7), and the reversible residual (K4).
 *
 * Rules the calls share. Rows are [B,1,n,dm], each tensor f32, f16 or bf16 by itself and of any strides;
 * what lies between two steps is f32. Aliasing: outputs share memory with nothing unless a call says
 * otherwise. Memory: attn_<name>_workspace bytes. Empty: B = 0 or no rows is a no-op. NaN in a row
 * reaches its own row and those of rows that see it. Errors: NULL, DTYPE, SHAPE, HEADS, STRIDE, RANGE,
 * VALUE, MASK, OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN, INDEX; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon and for any number of workers. */

/* y = f(x w_1 + b_1) w_2 + b_2, row by row, in runs of ceil(T / chunks) rows.
 *
 * Shapes: x [B,1,T,din], y [B,1,T,dout], as ff says. chunks >= 1, 0 = 1; more chunks than rows are one row
 *   each. The hidden rows f(x w_1 + b_1) exist for one run at a time, and for at most 192 rows, 96 a
 *   worker, whatever chunks is: no T x dff array. The bits are the same for any chunks.
 * Aliasing: y may be x, the same view: in place.
 * Memory: the weights as attn_gemm lays them out, hidden and output rows of a run in f32.
 * Cost: 2 B T (din dff + dff dout) flops. Errors also: RANGE: chunks < 0.
 * Source: Vaswani et al. 2017, arXiv 1706.03762; in runs: Kitaev et al. 2020, arXiv 2001.04451. */
ATTN_DEF attn_status attn_feed_forward_rows(attn_tensor y, attn_tensor x,
                                            const attn_feed_forward *ff, int64_t chunks,
                                            attn_ctx *ctx);
ATTN_DEF size_t attn_feed_forward_rows_workspace(attn_tensor y, attn_tensor x,
                                                 const attn_feed_forward *ff, int64_t chunks,
                                                 const attn_ctx *ctx);

/* The weights of one block, {0} beside them is the paper's. In self and cross: heads, kv_heads, w_q .. w_o
 * (w_o.dim = dm), biases, and `attend` with everything attn_sdpa takes but quantised rows (map and lse are
 * outputs of the call, `each` too; with ragged x and e have batch 1, each sequence is a call of its own,
 * rows that none has attend to nothing, x_len and e_len are absent). Messages call a weight of either params.w_q
 * and so on, one of the feed-forward ff.w_1 and so on. */
typedef struct attn_block_params {
  attn_multihead_params self;
  attn_multihead_params cross; /* decoder only; all zero: no cross attention */
  attn_feed_forward ff;        /* dm to dm */
  int64_t chunks;              /* of the feed-forward, as in attn_feed_forward_rows */
  attn_sublayer sublayer;      /* ATTN_SUBLAYER_POST or _PRE */
  attn_norm norm_self, norm_cross, norm_ff;
  /* [B], 0..T: rows of x from there on do not exist; no one sees them, their rows of y are 0 */
  const int32_t *x_len;
  const int32_t *e_len; /* [B], 0..Te: rows of e from there on do not exist; decoder only */
} attn_block_params;

/* The encoder block.
 *
 *   POST:  X1 = LN_self(x + MHA(x, x)),         y = LN_ff(X1 + FFN(X1))
 *   PRE:   n = LN_self(x), X1 = x + MHA(n, n),  y = X1 + FFN(LN_ff(X1))
 *
 * MHA is attn_multihead of params->self, FFN attn_feed_forward_rows of params->ff. With
 * params->self.attend.causal it is the block of a model that has decoders without cross attention.
 * A stack of PRE blocks ends with one more attn_layer_norm, the caller's; tables of sines are attn_sinusoid's.
 * Shapes: x, y [B,1,T,dm]. Aliasing: y may be x, the same view: in place.
 * Memory: the larger of f32 q, k, v and heads of B T rows and of what attn_feed_forward_rows wants with 2 dm
 *   numbers more for each of its rows; the larger of what attn_gemm and attn_sdpa want; B T dm numbers if y is
 *   x or not f32. No T x T array, no T x dff array.
 * Cost: 8 B T dm^2 + 4 B T^2 dm + 4 B T dm dff flops (H dk = dm).
 * Errors also: HEADS, RANGE: x_len out of range, or beside attend.kv_len or .q_len; sublayer PLAIN.
 * Source: Vaswani et al. 2017, arXiv 1706.03762; PRE: Xiong et al. 2020, arXiv 2002.04745. */
ATTN_DEF attn_status attn_encoder(attn_tensor y, attn_tensor x, const attn_block_params *params,
                                  attn_ctx *ctx);
ATTN_DEF size_t attn_encoder_workspace(attn_tensor y, attn_tensor x,
                                       const attn_block_params *params, const attn_ctx *ctx);

/* The decoder block; e is the encoder's output, which is not normalised here.
 *
 *   POST:  X1 = LN_self(x + MHA(x, x)),         X2 = LN_cross(X1 + MHA(X1, e)),  y = LN_ff(X2 + FFN(X2))
 *   PRE:   n = LN_self(x), X1 = x + MHA(n, n),  X2 = X1 + MHA(LN_cross(X1), e),  y = X2 + FFN(LN_ff(X2))
 *
 * Self attention is causal (self.attend.causal is set for you), cross attention sees all of e up to e_len.
 * e.data null and cross all zero: X2 = X1; one without the other is NULL. Te = 0 (e.data any address):
 *   MHA(., e) is the bias b_o.
 * Shapes: x, y [B,1,T,dm], e [B,1,Te,de]. Aliasing: y may be x, the same view.
 * Memory: as attn_encoder, k and v of cross attention having B Te rows; with e B T dm numbers, and as many
 *   more if y is not f32. Otherwise as attn_encoder.
 * Cost: that of the encoder and 4 B T dm^2 + 4 B Te de dm + 4 B T Te dm. Source: as attn_encoder. */
ATTN_DEF attn_status attn_decoder(attn_tensor y, attn_tensor x, attn_tensor e,
                                  const attn_block_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_decoder_workspace(attn_tensor y, attn_tensor x, attn_tensor e,
                                       const attn_block_params *params, const attn_ctx *ctx);

/* What one decoder block keeps between steps, a plain struct over the caller's memory. Types are f32, f16
 * or bf16, strides free; heads side by side (attn_bthd) are written by one product, heads apart
 * (attn_bhtd) read fastest. */
typedef struct attn_decoder_cache {
  attn_tensor k, v;     /* [B,Hkv,room,dk], [B,Hkv,room,dv]: of self attention */
  attn_tensor e_k, e_v; /* [B,Hkv,Te,dk], [B,Hkv,Te,dv]: of cross attention, absent without it */
  int64_t len;          /* tokens held, 0 .. room */
} attn_decoder_cache;

/* Begins a sequence: len = 0, and e_k = e w_k + b_k, e_v = e w_v + b_v of params->cross, which all steps
 * read. e.data null: no cross attention, only len is set.
 * Shapes: e [B,1,Te,de]. Memory: as attn_gemm. Cost: 4 B Te de dm flops. */
ATTN_DEF attn_status attn_decoder_start(attn_decoder_cache *cache, attn_tensor e,
                                        const attn_block_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_decoder_start_workspace(const attn_decoder_cache *cache, attn_tensor e,
                                             const attn_block_params *params, const attn_ctx *ctx);

/* The block for the next n tokens, n >= 1: a prompt at once, then one by one. Their keys and values are
 * put behind the cache's len rows, which they see too; afterwards len is n more. To go back, lower len.
 *
 * Shapes: x, y [B,1,n,dm]; len + n <= room (FULL). All entries of the batch have len tokens.
 * params: as attn_decoder for T = len + n; without x_len, self.attend.kv_len, .q_len, .has_q_off and
 *   .schedule (RANGE). A mask or bias has len + n keys. Keys are stored as they come: encodings of
 *   positions that turn q and k are not here.
 * Bits: rows of y are those of attn_decoder on all tokens with self.attend.one_order = 1 (and cross's), a
 *   cache of f32 and e_len the same; otherwise they differ in rounding.
 * Aliasing: y may be x; the cache shares memory with nothing. On an error neither it nor y is touched.
 * Memory: f32 q and heads of n rows and what attn_gemm and attn_sdpa want: nothing grows with T.
 * Cost: 8 B n dm^2 + 4 B n dm dff flops, cross 4 B n dm^2, and attention over len + n and Te keys; for
 *   small n the reading of the weights and of the cache. */
ATTN_DEF attn_status attn_decoder_step(attn_tensor y, attn_tensor x, attn_decoder_cache *cache,
                                       const attn_block_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_decoder_step_workspace(attn_tensor y, attn_tensor x,
                                            const attn_decoder_cache *cache,
                                            const attn_block_params *params, const attn_ctx *ctx);

/* ---- reversible residual ------------------------------------------------------------------------*/

/* y = a function of the rows x, both [B,1,n,d]; y is dense f32 of the same extents and shares no memory with
 * x, which must be left as it is. The same x must give the same bits. ctx has the tier and the workers of
 * the outer call, and no workspace. A status other than ATTN_OK ends the outer call, which returns it. */
typedef attn_status (*attn_rows_fn)(void *user, attn_tensor y, attn_tensor x, attn_ctx *ctx);

typedef struct attn_reversible_params {
  attn_rows_fn f, g; /* usually attention and feed-forward, each with its own norm before it */
  void *f_user, *g_user;
} attn_reversible_params;

/* A residual block of two streams whose inputs can be had back from its outputs:
 *
 *   y1 = x1 + F(x2),  y2 = x2 + G(y1)
 *
 * Shapes: all four [B,1,n,d]. Entering streams are usually two copies of the rows, leaving ones are
 *   averaged (attn_stream_mean) or put side by side.
 * Aliasing: y1 may be x1 and y2 may be x2, the same views: in place; nothing else is shared.
 * Rounding: F and G see the streams as they are stored, so that the inverse computes the same F and G.
 * Memory: 2 B n d numbers, beside what F and G allocate. Cost: two sums, F and G.
 * Errors also: those of F and G, outputs untouched.
 * Source: Gomez et al. 2017, arXiv 1707.04585; Kitaev et al. 2020, arXiv 2001.04451. */
ATTN_DEF attn_status attn_reversible(attn_tensor y1, attn_tensor y2, attn_tensor x1, attn_tensor x2,
                                     const attn_reversible_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_reversible_workspace(attn_tensor y1, attn_tensor y2, attn_tensor x1,
                                          attn_tensor x2, const attn_reversible_params *params,
                                          const attn_ctx *ctx);

/* The way back: x2 = y2 - G(y1), x1 = y1 - F(x2), each within a few units of the last place of the sums.
 * Aliasing: x1 may be y1 and x2 may be y2. Otherwise as attn_reversible. */
ATTN_DEF attn_status attn_reversible_inverse(attn_tensor x1, attn_tensor x2, attn_tensor y1,
                                             attn_tensor y2, const attn_reversible_params *params,
                                             attn_ctx *ctx);
ATTN_DEF size_t attn_reversible_inverse_workspace(attn_tensor x1, attn_tensor x2, attn_tensor y1,
                                                  attn_tensor y2,
                                                  const attn_reversible_params *params,
                                                  const attn_ctx *ctx);

/* y = (x1 + x2) / 2, where two streams become one. Shapes: all [B,H,n,d]. Aliasing: y may be x1 or x2.
 * Memory: none. */
ATTN_DEF attn_status attn_stream_mean(attn_tensor y, attn_tensor x1, attn_tensor x2, attn_ctx *ctx);
ATTN_DEF size_t attn_stream_mean_workspace(attn_tensor y, attn_tensor x1, attn_tensor x2,
                                           const attn_ctx *ctx);
