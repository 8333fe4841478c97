/* attn.h - v0.2 - attention in one C header, at the speed of the machine. MIT-0, see the end.
 *
 *   #define ATTN_IMPLEMENTATION      // in exactly one C or C++ file, before
 *   #include "attn.h"                // anywhere else: include it plainly
 *   attn_sdpa(o, q, k, v, NULL, NULL);
 *
 * CONTENTS OF THIS MANUAL
 *   1 start   2 tensors   3 options   4 patterns   5 score terms   6 memory   7 threads
 *   8 errors   9 tiers   10 numbers and determinism   11 cost   12 macros   13 licence
 *
 * 1. START
 *   attn_tensor q = attn_bhtd(q_data, ATTN_F32, batch, heads,    q_len,  head_dim);
 *   attn_tensor k = attn_bhtd(k_data, ATTN_F32, batch, kv_heads, kv_len, head_dim);
 *   attn_tensor v = attn_bhtd(v_data, ATTN_F32, batch, kv_heads, kv_len, v_dim);
 *   attn_tensor o = attn_bhtd(o_data, ATTN_F32, batch, heads,    q_len,  v_dim);
 *   attn_sdpa_params params = {0};
 *   params.causal = ATTN_CAUSAL_END;
 *   attn_status st = attn_sdpa(o, q, k, v, &params, NULL);
 *   if (st != ATTN_OK) puts(attn_status_string(st));
 *
 *   causal = ATTN_CAUSAL_END (1) lets the last query see the last key, as FlashAttention does;
 *   ATTN_CAUSAL_START lets query i see the keys j <= i, as PyTorch's is_causal and ONNX do. They
 *   differ where q_len and kv_len do. A window is params.window = attn_window_of(left, right),
 *   FlashAttention's window_size: -1 = unlimited, 0 = the own position only; {0} is no window.
 *
 *   Words of others: scaled_dot_product_attention and FlashAttention are attn_sdpa; GQA and MQA are
 *   k and v of fewer heads; varlen, cu_seqlens and indptr are params.ragged; sliding window
 *   attention is params.window, StreamingLLM's first tokens params.keep; a speculative tree is
 *   params.mask. KV cache, paged KV cache and block table are attn_cache and attn_sequence.table;
 *   nn.MultiheadAttention is attn_multihead, nn.Linear attn_gemm, a mixture of experts (MoE) of
 *   attention attn_gated. docs/porting.md
 *   maps every argument of PyTorch, FlashAttention, FlashInfer, FlexAttention, ONNX and ggml.
 *
 *   Build with  cc app.c -lm . No flag asks for vector instructions: each kernel is compiled for
 *   every tier inside this header, and the fastest one that processor and operating system
 *   support is chosen at run time. Compile with -O2: kernels built at -O0 are correct and slow.
 *
 *   Functions: attn_sdpa (attention), attn_cache_* (a cache of pages, and attention over it),
 *   attn_merge (partial results), attn_relu (rectified weights), attn_reshaped (sigmoid weights,
 *   softpick, stick-breaking, entmax, sparsemax, scalable softmax, forgetting, contextual positions, selective
 *   attention, transitions between queries and keys, QK-norm, output gates), attn_path_turn (keys turned for decoding
 *   with transitions),
 *   attn_differential (the difference of two softmaxes), attn_edges (key lists);
 *   attn_multihead, attn_mla (latent rows, DeepSeek), attn_tpa (heads from factors), attn_collaborative (with
 *   projections), attn_capsules* (routing of heads); attn_pattern_*, attn_block_permutations, attn_schedule_*
 *   (sparse patterns), attn_xattention, attn_vertical_slash (blocks of a prompt that matter), attn_snapkv, attn_h2o,
 *   attn_evict*, attn_cache_evict (keys that a cache forgets); attn_star_*, attn_longformer*, attn_etc*, attn_tree*,
 *   attn_segmented, attn_hierarchy, attn_long_t5, attn_global_rows, attn_ngram, attn_recursive (whole mechanisms);
 *   attn_segment*, attn_memory_*, attn_usage, attn_compress*, attn_attention_loss, attn_rebuild_loss, attn_infini
 *   (memories of earlier segments); attn_knn_search, attn_knn_lm, attn_spalm, attn_memorizing, attn_recall_append
 *   (memories that are searched); attn_topk_* (best keys), attn_moba, attn_key_blocks, attn_quest, attn_dsa, attn_nsa,
 *   attn_nsa_compress (learned selections of keys), attn_lsh, attn_lsh_* (buckets of hashed tokens), attn_yoso,
 *   attn_yoso_sample (weights by the chance that hashes meet), attn_mra (two resolutions), attn_routing* (clusters
 *   of queries and keys), attn_sinkhorn*, attn_sortcut (sorted blocks), attn_sac*, attn_lstm_step,
 *   attn_pointer_logits, attn_choose (edges that a network draws), attn_gate, attn_dispatch*, attn_mixture,
 *   attn_gated (mixture of experts, MoE); attn_linear, attn_linear_*, attn_recurrent (linear and decaying states,
 *   log-linear), attn_log_decay, attn_short_convolve, attn_gated_norm (what stands around those), attn_damped_ema
 *   (moving averages), attn_features,
 *   attn_feature_count, attn_random_* (feature maps, random directions); attn_cluster_queries, attn_clustered,
 *   attn_probsparse* (few queries for many); attn_memory_compressed, attn_local, attn_linformer, attn_poolingformer
 *   (fewer keys than rows); attn_low_rank_band, attn_nystrom, attn_csalr (low rank); attn_mab, attn_isab, attn_pma,
 *   attn_luna* (attention through a few learned rows); attn_synthesizer (scores without pairs of
 *   tokens); attn_score_mix, attn_realformer, attn_predictive, attn_map_apply, attn_lazyformer
 *   (score maps from layer to layer); attn_camtl, attn_film_blocks, attn_block_prior_add (a prior
 *   of blocks); attn_talking (heads mixed around the softmax), attn_disagreement, attn_guided_loss
 *   (losses over heads); attn_rope*, attn_sinusoid, attn_universal_signal, attn_learned_position,
 *   attn_alibi_slopes, attn_t5_bucket, attn_deberta_bucket (positions); attn_gaussian_window, attn_hard_gaussian,
 *   attn_average*, attn_span_* (priors and spans); attn_encoder, attn_decoder*,
 *   attn_feed_forward_rows, attn_expert_rows, attn_reversible*, attn_stream_mean (blocks of a Transformer);
 *   attn_universal, attn_exit*, attn_confidence, attn_calm_* (depth by token); attn_gtrxl* (gates
 *   for residual sums), attn_returns, attn_trajectory_* (trajectories as sequences); attn_fourier,
 *   attn_fnet (Fourier mixing), attn_gmlp, attn_mixer (learned matrices over positions in place of
 *   attention); attn_layer_norm, attn_rms_norm, attn_activate (rows between products); attn_gemm, attn_pool*,
 *   attn_convolve*, attn_top_k, attn_kmeans_step, attn_pinv, attn_solve, attn_exp (parts of the
 *   above, by themselves); attn_*_backward (gradients); attn_cross_entropy*, attn_adamw, attn_sgd, attn_global_norm
 *   (steps of training); attn_quantize, attn_dequantize (int8, int4 and e4m3 rows); attn_bhtd, attn_bthd, attn_mask_*,
 *   attn_window_of, attn_scales_dense (views); attn_isa_* (tiers), attn_feature_* (features beside them),
 *   attn_status_string (errors), attn_parallel_openmp (threads); attn_<name>_workspace (memory). Each is
 *   documented where it is declared, below.
 *
 * 2. TENSORS
 *   attn_tensor is a view: pointer, storage type, four extents, three strides in elements. The
 *   last extent (dim) is contiguous. Any other stride is legal: [B,T,H,D] as well as [B,H,T,D],
 *   packed QKV, 0 to broadcast an input, negative to walk backwards. Pointers are aligned to
 *   their elements and no more. f32, f16 and bf16 mix freely between q, k, v and o; arithmetic is
 *   f32 unless params.compute says otherwise (9). k and v of attn_sdpa, attn_relu, attn_reshaped and
 *   attn_differential may also be quantised: I8, I4 (two numbers to a byte), E4M3, with a scale for each row, or
 *   each group of columns, and zero points, as attn_quantize makes them. Inputs may overlap each other (V a slice of
 *   K). Outputs overlap nothing. Views that are other columns of the same rows (q, k, v, o and their gradients side by
 *   side in one buffer) share none; else overlap is judged by the range of addresses from a view's first to its last
 *   element, so that views interleaved in another way are rejected. A plain cache is a view of the whole
 *   buffer whose .len is then lowered to the keys it holds; a slice also moves .data.
 *   Weights are [in, out], y = x w; where the struct that has them says w_transposed = 1 they are
 *   [out, in], as nn.Linear and checkpoints of PyTorch have them (nn.MultiheadAttention's
 *   in_proj_weight: its rows are those of w_q, w_k and w_v). Results have the same bits.
 *
 * 3. OPTIONS
 *   Every call takes a params struct; NULL or {0} means the paper's defaults. Where 0 itself is
 *   wanted and means "default", write ATTN_ZERO; for whole numbers set has_<field> beside it. Clear the struct (=
 *   {0}, in C++ = {}) before setting fields: later versions may append some. All options of attn_sdpa combine.
 *
 * 4. PATTERNS
 *   A pattern (attn_pattern_*) says from positions alone which (query, key) pairs exist: bands,
 *   dilated and strided keys, blocks, global tokens, random draws, the patterns of Longformer, ETC,
 *   BigBird, Sparse Transformer, Image Transformer and others, and your own as a function, bits,
 *   lists or blocks. It is a plain value whose fields may be changed: causal = 1 cuts any of them.
 *   Patterns are sets and compose: union, intersect, diff, complement, transpose, per_head.
 *   A schedule is a pattern made ready for given lengths; any number of calls may use it at once.
 *     attn_pattern part[] = {attn_pattern_band(256, 0), attn_pattern_strided(256)};
 *     attn_pattern pattern = attn_pattern_union(part, 2);
 *     pattern.causal = 1;
 *     attn_schedule schedule;
 *     attn_schedule_build(&schedule, &pattern, heads, q_len, k_len, NULL, NULL);
 *     params.schedule = &schedule;          // combines with causal, window, masks and lengths
 *     ... attn_sdpa, layer after layer ...
 *     attn_schedule_free(&schedule);
 *   Work and memory follow the pairs; no Tq x Tk array exists. attn_schedule_describe counts pairs,
 *   attn_pattern_render draws them (docs/gallery has a picture of each), attn_schedule_csr lists
 *   them, attn_schedule_open reads the bytes of one built elsewhere.
 *
 * 5. SCORE TERMS
 *   Terms beyond the scaled dot product are fields of attn_sdpa_params, absent when zero: vectors
 *   by clipped distance (relative; DeBERTa), Transformer-XL (xl), labels of pairs, a factor or a table by
 *   distance (factor, toeplitz, t5, alibi), a parabola, a Gaussian bump per query, an adaptive
 *   span, dense biases, a soft-cap. A signed distance is j - p_i in all of them, key minus query:
 *   negative for the past. (T5's models have no scale: t5 with scale = 1.) softcap_at puts the cap
 *   before or behind what is added. All may be combined with each other, with masks and with
 *   schedules; api/calls/score.h has their formulas, attn_sdpa_params their order. modify is yours: a
 *   function that changes a tile of scores in place, after all other terms (FlexAttention's score_mod);
 *   modify_weights changes a tile of weights after the softmax (its prob_mod); dropout drops weights, for
 *   training, by a random number of each pair that is the same everywhere. params.map gives the
 *   weights or, by map_stage, raw, capped or final scores (ONNX: qk_matmul_output_mode).
 *
 * 6. MEMORY
 *   A call without a workspace takes one block from ATTN_MALLOC and gives it back. With
 *   ctx.workspace nothing is allocated: ask attn_<name>_workspace with the same arguments for
 *   the bytes; 0 is none, ATTN_WORKSPACE_REJECTED (the largest size_t) a call that would be
 *   rejected. attn_sdpa works in O(64 dk + 64 dv + 128 dv + 8192) floats per worker, whatever
 *   the sequence lengths: T = 65536 needs what T = 64 needs; a schedule about triples that, one
 *   of several phases keeps three numbers a row (and a row of output that is not f32), a term by
 *   distance T numbers a head. A schedule itself is 0.3 to 3 KB per 64 queries, or a list of
 *   keys where they are scattered. There is no global state but four integers that cache the
 *   choice of tier and features. Inputs are read in place: nothing is packed or copied, except that K
 *   and V of other types than f32 are widened a block at a time.
 *   Across calls, an attn_cache keeps keys and values in pages that any number of sequences share, in
 *   memory of yours (attn_cache_open), in any storage type:
 *     attn_cache_append(&cache, &sequence, 1, k, v, NULL, NULL);      // a prompt, or one token
 *     attn_cache_sdpa(o, q, &cache, &sequence, 1, &causal, NULL);     // queries at its end
 *     attn_cache_fork(&cache, &other, &sequence, NULL);               // shares all pages
 *     attn_cache_rollback(&cache, &other, other.len - 3, NULL);       // as if never appended
 *     attn_cache_accept(&cache, &sequence, parent, n, leaf, NULL);    // a tree of drafts: one path of it
 *   Appending costs O(rows), whatever is stored; with window and keep the pages are a ring.
 *   docs/examples/cache.c is a whole program.
 *
 * 7. THREADS
 *   Calls are serial unless ctx.parallel_for and ctx.workers are set. The callback runs
 *   task(arg, i) for i in 0..count-1, count <= workers, on whatever threads it likes, and
 *   returns when all are done. attn_parallel_openmp is ready-made when the file with
 *   ATTN_IMPLEMENTATION is compiled with OpenMP; docs/examples/pool.h is a pool of POSIX threads
 *   to copy, which sleeps between calls. attn.h itself creates no thread and does not spin. Any
 *   number of calls may run at once with different contexts.
 *
 * 8. ERRORS
 *   Every function that can fail returns attn_status; attn_status_string names it, ctx.reason says
 *   which argument broke which rule. All checks come before the first write: a rejected call
 *   leaves outputs as they were. Nothing aborts or prints. Only contents of memory are not
 *   checked, except lengths, slopes and sinks always, and additive masks when ctx.validate is set.
 *
 * 9. TIERS
 *   scalar   portable C, any processor, any byte order
 *   avx2     x86 with AVX2, FMA, F16C
 *   avx512   x86 with AVX-512 F, BW, DQ, VL, CD
 *   neon     aarch64; 32-bit ARM when compiled with -mfpu=neon-vfpv4
 *   ctx.isa forces one, ctx.report.isa tells which ran, attn_isa_why tells why one is off. The
 *   environment variable ATTN_ISA=<tier> and attn_isa_limit() cap the choice for the process. An
 *   ATTN_ISA that names no tier of this machine makes every call fail with ATTN_E_ENV.
 *   Beside tiers there are features, which params.compute uses: AVX512-BF16, and BF16 of 64-bit ARM, for
 *   ATTN_COMPUTE_BF16, at about twice the speed of f32; AVX512-VNNI, AVX-VNNI beside avx2, and DotProd of 64-bit ARM,
 *   for the codes of ATTN_COMPUTE_I8; FP16FML of 64-bit ARM for ATTN_COMPUTE_F16. ATTN_ISA=avx512-bf16 (or -bf16,
 *   -vnni, -dotprod, -fp16fml, -bf16-vnni) and attn_feature_off() switch one off, ATTN_ISA=avx512+bf16 demands it,
 *   attn_feature_why tells why it is, ctx.report.feature whether it was used. Without it the mode is
 *   emulated, slower than f32; params.compute_prefer = 1 takes f32 then.
 *
 * 10. NUMBERS AND DETERMINISM
 *   Empty rows (no allowed key) give O = 0, LSE = -inf. A forbidden key never reaches an output,
 *   even if it holds NaN; keys from kv_len on are not read. NaN in an allowed key or in a query
 *   appears in exactly the rows that read it. LSE is a natural logarithm. Positions: query i
 *   sits at key i + q_off, by default k.len - q.len, whatever kv_len says (ends aligned), with
 *   ATTN_CAUSAL_START 0; q_off gives one for the batch, q_offs one an entry, align_lengths takes
 *   kv_len[b] - q_len[b].
 *   avx2, avx512 and neon give the same bits, for any number of workers, any batch around a row
 *   and any division of the queries over calls: each score is one chain of fused multiply-adds
 *   in the order of the head dimension, each output a sum of sums over blocks of 128 keys, in
 *   order, and the running maximum moves at multiples of 128 keys. Errors do not grow with the
 *   number of keys: within 1e-6 of sum_j P_ij |v_j| up to 65536 of them, with q and k of
 *   deviation 1. (A schedule puts rows and keys together in
 *   its own way: one schedule, the same bits everywhere; another of the same pairs, the same
 *   bounds.) scalar rounds differently in the last bits; 32-bit ARM flushes subnormal numbers.
 *   Compile without -ffast-math.
 *   Measured errors are in docs/numerics.md.
 *
 * 11. COST
 *   2 (dk + dv) flops per query-key pair, over the pairs that causal, windows, lengths and all-zero
 *   mask blocks leave (in tiles of 64 queries). Measured speed is in the README.
 *
 * 12. MACROS YOU MAY DEFINE (before the implementation)
 *   ATTN_IMPLEMENTATION      compile the implementation here
 *   ATTN_STATIC              make every function static: the header then serves one file, and what that
 *                            file does not call is not compiled
 *   ATTN_MALLOC(size), ATTN_FREE(ptr)   both or none; malloc and free
 *   ATTN_NO_AVX2, ATTN_NO_AVX512, ATTN_NO_NEON   leave a tier out
 *   ATTN_NO_AVX512BF16, ATTN_NO_AVX512VNNI, ATTN_NO_AVXVNNI, ATTN_NO_NEONBF16, ATTN_NO_NEONDOTPROD,
 *   ATTN_NO_NEONFP16FML, ATTN_NO_EMULATION   leave out a feature, and what stands in for features: a compute that has
 *                            neither is refused (ATTN_E_ISA)
 *   ATTN_ONLY                families the program wants, (ATTN_FAMILY_SDPA | ATTN_FAMILY_CACHE | ..), the same
 *                            in all its files: the others are neither declared nor compiled, and a
 *                            call of theirs is a compiler's error that names the family (api/only.h)
 *   ATTN_SMALL               one copy of each loop for all storage types: less code, slower 16-bit rows
 *   ATTN_NO_GETENV           do not read ATTN_ISA from the environment
 *   ATTN_USE_SLEEF           take exp and tanh from SLEEF (link with -lsleef): its 1.0 ULP bounds,
 *                            other bits than without
 *   ATTN_SELF                the name of this header, if you rename it (it includes itself)
 *   ATTN_DEF                 how functions are declared (extern; e.g. a dllexport attribute)
 *   ATTN_FORCE_X86           compile the x86 tiers with gcc for Windows, see isa/config.h
 *
 * 13. LICENCE
 *   MIT No Attribution. Permission is hereby granted, free of charge, to any person obtaining a
 *   copy of this software and associated documentation files (the "Software"), to deal in the
 *   Software without restriction, including without limitation the rights to use, copy, modify,
 *   merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
 *   persons to whom the Software is furnished to do so.
 *   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING
 *   BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
 *   NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
 *   DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 *   OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
 */
