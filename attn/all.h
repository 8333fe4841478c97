#include "manual.h"

/* all.h is the spine: the parts of attn.h in order. It compiles as it is; attn/amalgamate writes
 * the same text as one file. */
#if defined(ATTN_PASS_)
#include "kernels/pass.h"
#else

#ifndef ATTN_H
#define ATTN_H
#include "api/types.h"
#include "api/isa.h"
#include "api/math.h"
#include "api/score.h"
#include "api/pattern.h"
#include "api/dense.h"
#include "api/core.h"
#include "api/cache.h"
#include "api/position.h"
#include "api/prior.h"
#include "api/heads.h"
#include "api/compound.h"
#include "api/segment.h"
#include "api/recursive.h"
#include "api/recall.h"
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
#include "isa/tiers.h"
#include "isa/detect.h"
ATTN_BEGIN_STRICT_
#include "engine/check.h"
#include "engine/workspace.h"
#include "engine/parallel.h"
#include "engine/scalar_math.h"
#include "engine/plan.h"
#include "engine/marks.h"
#include "engine/random.h"
#include "engine/pattern.h"
#include "engine/atoms.h"
#include "engine/schedule.h"
#include "engine/bytes.h"
#include "engine/t5.h"
#include "engine/quantize.h"
#include "engine/tile.h"
#include "engine/storage.h"
#include "engine/distance.h"
#include "engine/mask.h"
#include "engine/block.h"
#include "engine/terms.h"
#include "engine/lists.h"
#include "engine/softmax.h"
#include "engine/decode.h"
#include "engine/run.h"
#include "engine/topk.h"
#include "mechanisms/common.h"
#include "mechanisms/gemm.h"
#include "mechanisms/scales.h"
#include "mechanisms/quantize.h"
#include "mechanisms/cache_check.h"
#include "mechanisms/cache.h"
#include "mechanisms/cache_append.h"
#include "mechanisms/pattern_check.h"
#include "mechanisms/pattern_lower.h"
#include "mechanisms/pattern_make.h"
#include "mechanisms/pattern.h"
#include "mechanisms/terms.h"
#include "mechanisms/sequences.h"
#include "mechanisms/core.h"
#include "mechanisms/cache_sdpa.h"
#include "mechanisms/relu.h"
#include "mechanisms/edges.h"
#include "mechanisms/position.h"
#include "mechanisms/position_tables.h"
#include "mechanisms/prior.h"
#include "mechanisms/hard_gaussian.h"
#include "mechanisms/heads.h"
#include "engine/stage.h"
#include "engine/project.h"
#include "mechanisms/compound.h"
#include "mechanisms/longformer.h"
#include "mechanisms/etc.h"
#include "mechanisms/segmented.h"
#include "mechanisms/hierarchy.h"
#include "mechanisms/xl_layer.h"
#include "engine/lift.h"
#include "engine/columns.h"
#include "mechanisms/segment_memory.h"
#include "mechanisms/segment_layer.h"
#include "mechanisms/compressive.h"
#include "mechanisms/compressive_loss.h"
#include "mechanisms/recursive.h"
#include "mechanisms/knn_lm.h"
#include "mechanisms/spalm.h"
#include "mechanisms/memorizing.h"
ATTN_END_STRICT_
#ifdef __cplusplus
}
#endif
#include "isa/undef.h"
#endif

#endif
