/* kernels/pass.h owns the pass: the kernels, written once in the vocabulary of isa/simd_*.h and
 * compiled once per tier inside that tier's region. It may use nothing but the vocabulary and our
 * own static functions, and never tests a compiler's ISA macros. */

#if ATTN_PASS_ != 100
#error "another version of attn.h was found in place of this one: set ATTN_SELF or the path"
#endif

#define ATTN_FN_(name) ATTN_CAT_(ATTN_CAT_(attn_##name##_, ATTN_T_), _)

#ifdef ATTN_USE_SLEEF
#include "math_sleef.h"
#else
#include "math.h"
#endif
#include "unroll.h"
#include "score.h"
#include "value.h"
#include "softmax.h"
#include "rows.h"
#include "lists.h"
#include "decode.h"
#include "topk.h"
#include "gemm.h"
#include "activate.h"
#include "gate.h"
#include "features.h"
#include "linear.h"
#include "norm.h"
#include "fourier.h"

static const attn_table_ ATTN_FN_(table) = {
    ATTN_ISA_ID_,      ATTN_FN_(pack),    ATTN_FN_(unpack), ATTN_FN_(widen),     ATTN_FN_(finite),
    ATTN_FN_(weights), ATTN_FN_(exp_row), ATTN_FN_(blend),  ATTN_FN_(scale_rows)};
ATTN_UNUSED_ static const attn_tile_table_ ATTN_FN_(tile_table) = {
    ATTN_FN_(score_block), ATTN_FN_(modify_block), ATTN_FN_(softmax_block),
    ATTN_FN_(relu_block),  ATTN_FN_(value_block),  ATTN_FN_(scale_block),
    ATTN_FN_(join),        ATTN_FN_(divide),       ATTN_FN_(exclude)};
ATTN_UNUSED_ static const attn_few_table_ ATTN_FN_(few_table) = {
    ATTN_FN_(pack_row), ATTN_FN_(score_rows), ATTN_FN_(softmax_rows), ATTN_FN_(value_rows)};
ATTN_UNUSED_ static const attn_list_table_ ATTN_FN_(list_table) = {ATTN_FN_(dots), ATTN_FN_(axpys)};
ATTN_UNUSED_ static const attn_select_table_ ATTN_FN_(select_table) = {ATTN_FN_(squares),
                                                                       ATTN_FN_(above)};
ATTN_UNUSED_ static const attn_dense_table_ ATTN_FN_(dense_table) = {
    ATTN_FN_(gemm), ATTN_FN_(activate), ATTN_FN_(act)};
ATTN_UNUSED_ static const attn_norm_table_ ATTN_FN_(norm_table) = {
    ATTN_FN_(moments), ATTN_FN_(normalise), ATTN_FN_(norm)};
ATTN_UNUSED_ static const attn_rope_table_ ATTN_FN_(rope_table) = {ATTN_FN_(rope)};
ATTN_UNUSED_ static const attn_gate_table_ ATTN_FN_(gate_table) = {ATTN_FN_(gate)};
ATTN_UNUSED_ static const attn_feature_table_ ATTN_FN_(feature_table) = {
    ATTN_FN_(top_rows), ATTN_FN_(power_rows), ATTN_FN_(wave_rows), ATTN_FN_(elu1)};
ATTN_UNUSED_ static const attn_state_table_ ATTN_FN_(state_table) = {ATTN_FN_(step),
                                                                     ATTN_FN_(step_z)};
ATTN_UNUSED_ static const attn_fourier_table_ ATTN_FN_(fourier_table) = {ATTN_FN_(butterflies),
                                                                         ATTN_FN_(mirror)};

#undef ATTN_MICRO_
#undef ATTN_MICRO_MOST_
#undef ATTN_MICRO_MOST_STEPS_
#undef ATTN_MICRO_NEXT_
#undef ATTN_MICRO_ROWS_
#undef ATTN_MICRO_STEPS_
#undef ATTN_MICRO_STEP_
#undef ATTN_MICRO_WIDE_
#undef ATTN_MICRO_VECS_
#undef ATTN_MICRO_RUNS_
#undef ATTN_MICRO_WIDE_STEPS_
#undef ATTN_ROWS_12_
#undef ATTN_ROWS_1_
#undef ATTN_ROWS_2_
#undef ATTN_ROWS_4_
#undef ATTN_ROWS_5_
#undef ATTN_ROWS_6_
#undef ATTN_ROWS_8_
#undef ATTN_VECS_1_
#undef ATTN_VECS_2_
#undef ATTN_VECS_3_
#undef ATTN_VECS_4_
#undef ATTN_FN_
#include "../isa/simd_undef.h"
