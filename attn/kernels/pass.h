/* kernels/pass.h owns the pass: the kernels, written once in the vocabulary of isa/simd_*.h and
 * compiled once per tier inside that tier's region, low.h, codes.h and code_product.h also once per feature that
 * has their words, low.h once more for f16. It may use nothing but the vocabulary and our
 * own static functions, and never tests a compiler's ISA macros. */

#if ATTN_PASS_ != 200
#error "another version of attn.h was found in place of this one: set ATTN_SELF or the path"
#endif

#define ATTN_FN_(name) ATTN_CAT_(ATTN_CAT_(attn_##name##_, ATTN_T_), _)

#include "unroll.h"
#if !defined(ATTN_PASS_LOW_) && !defined(ATTN_PASS_CODES_)
#ifdef ATTN_USE_SLEEF
#include "math_sleef.h"
#else
#include "math.h"
#endif
#include "log2.h"
#include "score.h"
#include "value.h"
#include "softmax.h"
#include "reshape.h"
#include "entmax.h"
#include "rows.h"
#include "lists.h"
#include "decode.h"
#include "topk.h"
#include "collide.h"
#include "gemm.h"
#include "turned.h"
#ifdef ATTN_PAIR_TAKE_
#include "stored.h"
#endif
#include "activate.h"
#include "gate.h"
#include "factor.h"
#include "features.h"
#include "linear.h"
#include "recurrent.h"
#include "ema.h"
#include "norm.h"
#include "fourier.h"
#include "gradient.h"
#include "recurrent_back.h"
#include "drop.h"
#include "optimiser.h"
#include "loss.h"
#include "gradient_rows.h"
#endif
#if defined(ATTN_NO_EMULATION) || defined(ATTN_PASS_BARE_)
#define ATTN_PASS_EMULATES_ 0
#else
#define ATTN_PASS_EMULATES_ 1
#endif
#if defined(ATTN_PASS_HALF_) && !defined(ATTN_PASS_BARE_)
#include "../isa/simd_f16.h"
#endif
#if ATTN_HAS_LOW && !defined(ATTN_PASS_CODES_) && \
    ((defined(ATTN_PASS_LOW_) && !defined(ATTN_PASS_HALF_)) || ATTN_PASS_EMULATES_)
#include "low.h"
#endif
#if ATTN_HAS_LOW && !defined(ATTN_PASS_LOW_) && (defined(ATTN_PASS_CODES_) || ATTN_PASS_EMULATES_)
#include "codes.h"
#include "code_product.h"
#endif
#undef ATTN_PASS_EMULATES_

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
#ifndef ATTN_KEEP_WORDS_
#include "../isa/simd_undef.h"
#endif
