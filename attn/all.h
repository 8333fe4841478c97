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
#include "api/core.h"
#include "api/position.h"
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
#include "engine/tile.h"
#include "engine/mask.h"
#include "engine/softmax.h"
#include "mechanisms/common.h"
#include "mechanisms/core.h"
#include "mechanisms/position.h"
ATTN_END_STRICT_
#ifdef __cplusplus
}
#endif
#include "isa/undef.h"
#endif

#endif
