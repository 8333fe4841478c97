/* api/families/blocks/coder.h owns what a Transformer is stacked of: the feed-forward, the encoder and decoder
 * block, a decoder's step behind a cache (K7).
 *
 * Rules the calls share. Rows are [B,1,n,dm], each tensor f32, f16 or bf16 by itself and of any strides;
 * what lies between two steps is f32. Aliasing: outputs share memory with nothing unless a call says
 * otherwise. Memory: attn_<name>_workspace bytes. Empty: B = 0 or no rows is a no-op. NaN in a row
 * reaches its own row and those of rows that see it. Errors: NULL, DTYPE, SHAPE, HEADS, STRIDE, RANGE,
 * VALUE, MASK, OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN, INDEX; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon and for any number of workers. */

/* y = f(x w_1 + b_1) w_2 + b_2, gated where ff has a w_3, row by row, in runs of ceil(T / chunks) rows.
 *
 * Shapes: x [B,1,T,din], y [B,1,T,dout], as ff says. chunks >= 1, 0 = 1; more chunks than rows are one row
 *   each. The hidden rows f(x w_1 + b_1) exist for one run at a time, and for at most 192 rows, 96 a
 *   worker, whatever chunks is: no T x dff array. The bits are the same for any chunks.
 * Aliasing: y may be x, the same view: in place.
 * Memory: the weights as attn_gemm lays them out, hidden (twice with w_3) and output rows of a run in f32.
 * Cost: 2 B T (din dff + dff dout) flops, with w_3 2 B T din dff more. Errors also: RANGE: chunks < 0; NULL: b_2 or b_3
 *   without its matrix.
 * Source: Vaswani et al. 2017, arXiv 1706.03762; gated: Shazeer 2020, arXiv 2002.05202; in runs: Kitaev et al. 2020,
 *   arXiv 2001.04451. */
ATTN_DEF attn_status attn_feed_forward_rows(attn_tensor y, attn_tensor x,
                                            const attn_feed_forward *ff, int64_t chunks,
                                            attn_ctx *ctx);
ATTN_DEF size_t attn_feed_forward_rows_workspace(attn_tensor y, attn_tensor x,
                                                 const attn_feed_forward *ff, int64_t chunks,
                                                 const attn_ctx *ctx);

/* The encoder block.
 *
 *   POST:      X1 = LN_self(x + MHA(x, x)),           y = LN_ff(X1 + FFN(X1))
 *   PRE:       n = LN_self(x), X1 = x + MHA(n, n),    y = X1 + FFN(LN_ff(X1))
 *   SANDWICH:  X1 = x + LN'_self(MHA(n, n)),          y = X1 + LN'_ff(FFN(LN_ff(X1)))
 *   PARALLEL:  y = x + MHA(n, n) + FFN(LN_ff(x))
 *
 * LN is the norm of its name, LN'_self and LN'_ff are after_self and after_ff; one of kind ATTN_NORM_NONE leaves
 * its rows as they are. PRE with RMS is the block of Llama and Qwen, SANDWICH that of Gemma 2 and 3 and, without the
 * norms before, of OLMo 2; PARALLEL with the same norm twice that of GPT-J and Command R, with two that of GPT-NeoX.
 * MHA is attn_multihead of params->self, FFN attn_feed_forward_rows of params->ff. With
 * params->self.attention.causal it is the block of a model that has decoders without cross attention.
 * A stack of PRE blocks ends with one more attn_layer_norm, the caller's; tables of sines are attn_sinusoid's.
 * Shapes: x, y [B,1,T,dm]. Aliasing: y may be x, the same view: in place.
 * Memory: the larger of f32 q, k, v and heads of B T rows and of what attn_feed_forward_rows wants with 2 dm
 *   numbers more for each of its rows; the larger of what attn_gemm and attn_sdpa want; B T dm numbers if y is
 *   x or not f32. No T x T array, no T x dff array.
 * Cost: 8 B T dm^2 + 4 B T^2 dm + 4 B T dm dff flops (H dk = dm).
 * Errors also: HEADS, RANGE: x_len out of range, or beside attention.kv_len or .q_len; sublayer PLAIN.
 * Source: Vaswani et al. 2017, arXiv 1706.03762; PRE: Xiong et al. 2020, arXiv 2002.04745; SANDWICH: Ding et al. 2021,
 *   arXiv 2105.13290; PARALLEL: Wang and Komatsuzaki 2021 (GPT-J), Black et al. 2022, arXiv 2204.06745. */
ATTN_DEF attn_status attn_encoder(attn_tensor y, attn_tensor x, const attn_block_params *params,
                                  attn_ctx *ctx);
ATTN_DEF size_t attn_encoder_workspace(attn_tensor y, attn_tensor x,
                                       const attn_block_params *params, const attn_ctx *ctx);

/* The decoder block; e is the encoder's output, which is not normalised here.
 *
 *   POST:  X1 = LN_self(x + MHA(x, x)),         X2 = LN_cross(X1 + MHA(X1, e)),  y = LN_ff(X2 + FFN(X2))
 *   PRE:   n = LN_self(x), X1 = x + MHA(n, n),  X2 = X1 + MHA(LN_cross(X1), e),  y = X2 + FFN(LN_ff(X2))
 *
 * and SANDWICH, PARALLEL (without e, else RANGE) likewise.
 * Self attention is causal (self.attention.causal is set for you), cross attention sees all of e up to e_len.
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
 * params: as attn_decoder for T = len + n; without x_len, self.attention.kv_len, .q_len, .has_q_off and
 *   .schedule (RANGE). A mask or bias has len + n keys. With self.rope keys are
 *   stored rotated; its positions, if given, are those of all len + n tokens. cross.rope may norm, but rotate no
 *   column (RANGE), here and in attn_decoder and attn_decoder_start, which stores normed keys.
 * Bits: rows of y are those of attn_decoder on all tokens with self.attention.one_order = 1 (and cross's), a
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
