#include "manual.h"

/* all.h is the spine: the parts of attn.h in order. It compiles as it is; attn/amalgamate writes
 * the same text as one file. */
#if defined(ATTN_PASS_)
#include "kernels/pass.h"
#else

#ifndef ATTN_H
#define ATTN_H
#include "api/types.h"
#include "api/only.h"
#include "api/isa.h"
#include "api/random.h"
#include "api/calls/exp.h"
#include "api/calls/score.h"
#include "api/calls/pattern.h"
#include "api/calls/gemm.h"
#include "api/calls/norm.h"
#include "api/calls/sdpa.h"
#include "api/calls/relu.h"
#include "api/calls/reshaped.h"
#include "api/calls/differential.h"
#include "api/calls/edges.h"
#include "api/calls/quantize.h"
#include "api/calls/position.h"
#include "api/calls/cache.h"
#include "api/calls/sequence.h"
#if ATTN_HAS_COMPOSED
#include "api/compose/multihead.h"
#include "api/compose/block.h"
#endif
#if ATTN_HAS_SPARSE
#include "api/families/sparse/sparse.h"
#include "api/families/sparse/long_t5.h"
#include "api/families/sparse/ngram.h"
#endif
#if ATTN_HAS_CONTENT
#include "api/families/content/topk.h"
#include "api/families/content/lsh.h"
#include "api/families/content/yoso.h"
#include "api/families/content/mra.h"
#include "api/families/content/routing.h"
#include "api/families/content/sinkhorn.h"
#include "api/families/content/sac.h"
#endif
#if ATTN_HAS_LINEAR
#include "api/families/linear/linear.h"
#include "api/families/linear/recurrent.h"
#include "api/families/linear/recurrent_parts.h"
#include "api/families/linear/damped_ema.h"
#endif
#if ATTN_HAS_COMPRESSION
#include "api/families/compression/clustered.h"
#include "api/families/compression/shortened.h"
#include "api/families/compression/sets.h"
#endif
#if ATTN_HAS_LOWRANK
#include "api/families/lowrank/lowrank.h"
#endif
#if ATTN_HAS_PRIORS
#include "api/families/priors/gaussian.h"
#include "api/families/priors/camtl.h"
#endif
#if ATTN_HAS_MAPS
#include "api/families/maps/maps.h"
#include "api/families/maps/synthesizer.h"
#endif
#if ATTN_HAS_HEADS
#include "api/families/heads/span.h"
#include "api/families/heads/talking.h"
#include "api/families/heads/talking_backward.h"
#include "api/families/heads/collaborative.h"
#include "api/families/heads/capsules.h"
#endif
#if ATTN_HAS_MEMORY
#include "api/families/memory/segment.h"
#include "api/families/memory/recursive.h"
#include "api/families/memory/recall.h"
#include "api/families/memory/gtrxl.h"
#include "api/families/memory/infini.h"
#endif
#if ATTN_HAS_BLOCKS
#include "api/families/blocks/coder.h"
#include "api/families/blocks/experts.h"
#include "api/families/blocks/reversible.h"
#include "api/families/blocks/trajectory.h"
#endif
#if ATTN_HAS_DEPTH
#include "api/families/depth/exits.h"
#include "api/families/depth/universal.h"
#endif
#if ATTN_HAS_MIXERS
#include "api/families/mixers/fourier.h"
#include "api/families/mixers/mixer.h"
#endif
#if ATTN_HAS_LATENT
#include "api/families/latent/mla.h"
#include "api/families/latent/tpa.h"
#endif
#if ATTN_HAS_SELECTION
#include "api/families/selection/selected.h"
#include "api/families/selection/moba.h"
#include "api/families/selection/quest.h"
#include "api/families/selection/dsa.h"
#include "api/families/selection/nsa.h"
#include "api/families/selection/prefill.h"
#include "api/families/selection/eviction.h"
#endif
#if ATTN_HAS_TRAINING
#include "api/calls/sdpa_backward.h"
#include "api/families/training/merge_backward.h"
#include "api/families/training/optimiser.h"
#include "api/families/training/global_norm.h"
#include "api/families/training/cross_entropy.h"
#include "api/families/training/cross_entropy_head.h"
#include "api/families/training/gemm_backward.h"
#include "api/families/training/norm_backward.h"
#include "api/families/training/activate_backward.h"
#include "api/families/training/learned_backward.h"
#include "api/families/training/convolve_backward.h"
#include "api/families/training/pool_backward.h"
#include "api/families/training/pinv_backward.h"
#include "api/families/linear/features_backward.h"
#include "api/families/linear/linear_backward.h"
#include "api/families/linear/recurrent_backward.h"
#include "api/families/training/dropout.h"
#include "api/families/training/edges_backward.h"
#include "api/families/training/relu_backward.h"
#include "api/families/training/feed_forward_backward.h"
#include "api/families/training/multihead_backward.h"
#include "api/families/training/block_backward.h"
#include "api/families/blocks/reversible_backward.h"
#include "api/families/sparse/longformer_backward.h"
#endif
#include "api/left_out.h"
#include "api/end.h"
#endif

#if defined(ATTN_IMPLEMENTATION) && !defined(ATTN_IMPLEMENTED)
#define ATTN_IMPLEMENTED
#include "isa/config.h"
#ifdef __cplusplus
extern "C" {
#endif
#include "isa/half.h"
#include "isa/table.h"
#include "isa/table_training.h"
#include "isa/tiers.h"
#include "isa/detect.h"
#include "isa/features.h"
#include "isa/tables.h"
#include "isa/subnormal.h"
ATTN_BEGIN_STRICT_
#include "engine/check.h"
#include "engine/compute.h"
#include "engine/powers.h"
#include "engine/workspace.h"
#include "engine/parallel.h"
#include "engine/scalar_math.h"
#include "engine/plan.h"
#include "engine/marks.h"
#include "engine/random.h"
#include "engine/draw.h"
#include "engine/normal.h"
#include "engine/pattern.h"
#include "engine/atoms.h"
#include "engine/schedule.h"
#include "engine/bytes.h"
#include "engine/t5.h"
#include "engine/quantize.h"
#include "engine/topk.h"
#include "engine/reshape.h"
#include "engine/problem.h"
#include "engine/tile.h"
#include "engine/score_terms.h"
#include "engine/lanes.h"
#include "engine/storage.h"
#include "engine/rows.h"
#include "engine/distance.h"
#include "engine/mask.h"
#include "engine/addend.h"
#include "engine/block.h"
#include "engine/terms.h"
#include "engine/stretch.h"
#include "engine/drop.h"
#include "engine/weights.h"
#include "engine/low.h"
#include "engine/codes.h"
#include "engine/lists.h"
#include "engine/factored.h"
#include "engine/walk.h"
#include "engine/softmax.h"
#include "engine/raw.h"
#include "engine/decode.h"
#include "engine/run.h"
#include "engine/norm.h"
#include "engine/form.h"
#include "engine/view.h"
#include "engine/turned.h"
#include "engine/matrix.h"
#include "engine/stored.h"
#include "engine/product.h"
#include "engine/code_product.h"
#include "engine/stage.h"
#include "engine/rope_rule.h"
#include "engine/qk_norm.h"
#include "engine/rope.h"
#include "calls/exp.h"
#if ATTN_HAS_SDPA || ATTN_HAS_DENSE
#include "calls/scales.h"
#endif
#if ATTN_HAS_DENSE
#include "calls/gemm.h"
#include "calls/norm.h"
#endif
#if ATTN_HAS_QUANTIZE
#include "calls/quantize.h"
#endif
#if ATTN_HAS_CACHE
#include "calls/cache_check.h"
#include "calls/cache.h"
#include "calls/cache_append.h"
#include "calls/cache_accept.h"
#endif
#if ATTN_HAS_PATTERN
#include "calls/pattern_check.h"
#include "calls/pattern_identity.h"
#include "calls/pattern_lower.h"
#include "calls/pattern_make.h"
#include "calls/pattern.h"
#endif
#if ATTN_HAS_SDPA
#include "calls/terms.h"
#include "calls/sequences.h"
#include "calls/sdpa.h"
#endif
#if ATTN_HAS_CACHE
#include "calls/cache_sdpa.h"
#endif
#if ATTN_HAS_RELU
#include "calls/relu.h"
#endif
#if ATTN_HAS_RESHAPED
#include "calls/reshaped_rows.h"
#include "calls/entmax.h"
#include "calls/selective.h"
#include "calls/path.h"
#include "calls/reshaped.h"
#include "calls/path_turn.h"
#include "calls/differential.h"
#endif
#if ATTN_HAS_EDGES
#include "calls/edges.h"
#endif
#if ATTN_HAS_POSITION
#include "calls/position.h"
#include "calls/position_tables.h"
#endif
#if ATTN_HAS_SEQUENCE
#include "calls/pool.h"
#include "calls/convolve.h"
#include "calls/depthwise.h"
#include "calls/select.h"
#include "calls/inverse.h"
#endif
#if ATTN_HAS_COMPOSED
#include "compose/steps.h"
#include "compose/arguments.h"
#include "compose/joint.h"
#include "compose/columns.h"
#include "compose/lift.h"
#endif
#if ATTN_HAS_MULTIHEAD
#include "compose/multihead.h"
#include "compose/dense.h"
#include "compose/feed_forward.h"
#include "compose/coder.h"
#endif
#if ATTN_HAS_SPARSE
#include "families/sparse/star_tree.h"
#include "families/sparse/longformer.h"
#include "families/sparse/etc.h"
#include "families/sparse/segmented.h"
#include "families/sparse/hierarchy.h"
#include "families/sparse/long_t5.h"
#include "families/sparse/ngram.h"
#endif
#if ATTN_HAS_CONTENT
#include "families/content/choice.h"
#include "families/content/topk.h"
#include "families/content/lsh_hash.h"
#include "families/content/lsh_sort.h"
#include "families/content/lsh.h"
#include "families/content/yoso.h"
#include "families/content/yoso_sample.h"
#include "families/content/mra.h"
#include "families/content/sinkhorn_sort.h"
#include "families/content/sinkhorn.h"
#include "families/content/pointer.h"
#include "families/content/sac_edges.h"
#include "families/content/sac.h"
#include "families/content/routing.h"
#include "families/content/routing_attend.h"
#include "families/content/routing_update.h"
#include "families/content/mixture.h"
#include "families/content/mixture_calls.h"
#endif
#if ATTN_HAS_LINEAR
#include "families/linear/feature_map.h"
#include "families/linear/features.h"
#include "families/linear/recurrence.h"
#include "families/linear/steps.h"
#include "families/linear/linear_state.h"
#include "families/linear/linear.h"
#include "families/linear/recurrent_rows.h"
#include "families/linear/recurrent_chunk.h"
#include "families/linear/recurrent_state.h"
#include "families/linear/recurrent_levels.h"
#include "families/linear/recurrent.h"
#include "families/linear/gated_norm.h"
#include "families/linear/short_convolve.h"
#include "families/linear/damped_ema.h"
#endif
#if ATTN_HAS_COMPRESSION
#include "families/compression/cluster_queries.h"
#include "families/compression/clustered.h"
#include "families/compression/probsparse.h"
#include "families/compression/shortened.h"
#include "families/compression/memory_compressed.h"
#include "families/compression/linformer.h"
#include "families/compression/poolingformer.h"
#include "families/compression/sets.h"
#include "families/compression/luna.h"
#include "families/compression/luna_causal.h"
#endif
#if ATTN_HAS_LOWRANK
#include "families/lowrank/low_rank_band.h"
#include "families/lowrank/nystrom.h"
#endif
#if ATTN_HAS_PRIORS
#include "families/priors/gaussian.h"
#include "families/priors/hard_gaussian.h"
#include "families/priors/average.h"
#include "families/priors/camtl.h"
#endif
#if ATTN_HAS_MAPS
#include "families/maps/maps.h"
#include "families/maps/mixed.h"
#include "families/maps/lazyformer.h"
#include "families/maps/synthesizer.h"
#endif
#if ATTN_HAS_HEADS
#include "families/heads/span.h"
#include "families/heads/talking.h"
#include "families/heads/head_losses.h"
#include "families/heads/guided.h"
#include "families/heads/collaborative.h"
#include "families/heads/votes.h"
#include "families/heads/capsules.h"
#include "families/heads/capsules_em.h"
#endif
#if ATTN_HAS_MEMORY
#include "families/memory/segment_memory.h"
#include "families/memory/segment_layer.h"
#include "families/memory/compressive.h"
#include "families/memory/compressive_loss.h"
#include "families/memory/recursive.h"
#include "families/memory/knn_lm.h"
#include "families/memory/spalm.h"
#include "families/memory/memorizing.h"
#include "families/memory/gtrxl.h"
#include "families/memory/infini.h"
#endif
#if ATTN_HAS_BLOCKS
#include "families/blocks/feed_forward.h"
#include "families/blocks/experts_gate.h"
#include "families/blocks/experts.h"
#include "families/blocks/experts_call.h"
#include "families/blocks/encoder.h"
#include "families/blocks/decoder.h"
#include "families/blocks/reversible.h"
#include "families/blocks/trajectory.h"
#endif
#if ATTN_HAS_DEPTH
#include "families/depth/exits.h"
#include "families/depth/calm.h"
#include "families/depth/running.h"
#include "families/depth/universal.h"
#include "families/depth/exit_decoder.h"
#endif
#if ATTN_HAS_MIXERS
#include "families/mixers/fft.h"
#include "families/mixers/fourier.h"
#include "families/mixers/spatial.h"
#include "families/mixers/gmlp.h"
#include "families/mixers/mixer.h"
#endif
#if ATTN_HAS_LATENT
#include "families/latent/rows.h"
#include "families/latent/kept.h"
#include "families/latent/mla.h"
#include "families/latent/mla_steps.h"
#include "families/latent/tpa.h"
#endif
#if ATTN_HAS_SELECTION
#include "families/selection/paged.h"
#include "families/selection/choose.h"
#include "families/selection/visit.h"
#include "families/selection/listed.h"
#include "families/selection/key_blocks.h"
#include "families/selection/moba.h"
#include "families/selection/quest.h"
#include "families/selection/dsa.h"
#include "families/selection/nsa_compress.h"
#include "families/selection/nsa.h"
#include "families/selection/glance.h"
#include "families/selection/xattention.h"
#include "families/selection/vertical_slash.h"
#include "families/selection/eviction_scores.h"
#include "families/selection/evict.h"
#include "families/selection/cache_evict.h"
#endif
#if ATTN_HAS_TRAINING
#include "engine/shares.h"
#include "calls/backward/job.h"
#include "calls/backward/terms.h"
#include "calls/backward/tables.h"
#include "calls/backward/chain.h"
#include "calls/backward/tile.h"
#include "calls/backward/units.h"
#include "calls/backward/check.h"
#include "calls/backward/sdpa.h"
#include "families/training/optimiser.h"
#include "families/training/global_norm.h"
#include "families/training/loss_row.h"
#include "families/training/cross_entropy.h"
#include "families/training/cross_entropy_head.h"
#include "families/training/outer.h"
#include "families/training/activate_backward.h"
#include "families/training/gemm_backward.h"
#include "families/training/norm_backward.h"
#include "families/training/learned_backward.h"
#include "families/training/convolve_backward.h"
#include "families/training/depthwise_backward.h"
#include "families/training/pool_backward.h"
#include "families/training/pinv_backward.h"
#include "families/training/dropout.h"
#include "families/training/merge_backward.h"
#endif
#if ATTN_HAS_EDGES_AND_TRAINING
#include "families/training/edges_backward.h"
#endif
#if ATTN_HAS_RELU_AND_TRAINING
#include "families/training/rectified.h"
#include "families/training/relu_backward.h"
#endif
#if ATTN_HAS_MULTIHEAD_AND_TRAINING
#include "families/training/project_backward.h"
#include "families/training/feed_forward_backward.h"
#include "families/training/qk_norm_backward.h"
#include "families/training/multihead_backward.h"
#endif
#if ATTN_HAS_BLOCKS_AND_TRAINING
#include "families/training/block_backward.h"
#include "families/blocks/reversible_backward.h"
#endif
#if ATTN_HAS_HEADS_AND_TRAINING
#include "families/heads/talking_backward.h"
#endif
#if ATTN_HAS_SPARSE_AND_TRAINING
#include "families/sparse/longformer_backward.h"
#endif
#if ATTN_HAS_LINEAR_AND_TRAINING
#include "families/linear/features_backward.h"
#include "families/linear/linear_backward_chunk.h"
#include "families/linear/linear_backward.h"
#include "families/linear/recurrent_back_rows.h"
#include "families/linear/recurrent_backward.h"
#endif
ATTN_END_STRICT_
#ifdef __cplusplus
}
#endif
#include "undef.h"
#endif

#endif
