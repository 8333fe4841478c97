/* >>> attn/all.h */
/* >>> attn/manual.h */
/* attn.h - v0.1 - attention in one C header, at the speed of the machine. MIT-0, see the end.
 *
 *   #define ATTN_IMPLEMENTATION      // in exactly one C or C++ file, before
 *   #include "attn.h"                // anywhere else: include it plainly
 *   attn_sdpa(o, q, k, v, NULL, NULL);
 *
 * CONTENTS OF THIS MANUAL
 *   1 start   2 tensors   3 options   4 memory   5 threads   6 errors   7 tiers
 *   8 numbers and determinism   9 cost   10 macros   11 licence
 *
 * 1. START
 *   attn_tensor q = attn_bhtd(q_data, ATTN_F32, batch, heads,    q_len,  head_dim);
 *   attn_tensor k = attn_bhtd(k_data, ATTN_F32, batch, kv_heads, kv_len, head_dim);
 *   attn_tensor v = attn_bhtd(v_data, ATTN_F32, batch, kv_heads, kv_len, v_dim);
 *   attn_tensor o = attn_bhtd(o_data, ATTN_F32, batch, heads,    q_len,  v_dim);
 *   attn_sdpa_params params = {0};
 *   params.causal = 1;
 *   attn_status st = attn_sdpa(o, q, k, v, &params, NULL);
 *   if (st != ATTN_OK) puts(attn_status_string(st));
 *
 *   Build with  cc app.c -lm . No flag asks for vector instructions: each kernel is compiled for
 *   every tier inside this header, and the fastest one that processor and operating system
 *   support is chosen at run time. Compile with -O2: kernels built at -O0 are correct and slow.
 *
 *   Functions: attn_sdpa (attention), attn_merge (partial results), attn_rope (rotary positions),
 *   attn_alibi_slopes, attn_exp; attn_bhtd, attn_bthd, attn_mask_* (views); attn_isa_* (tiers);
 *   attn_<name>_workspace (memory). Each is documented where it is declared, below.
 *
 * 2. TENSORS
 *   attn_tensor is a view: pointer, storage type, four extents, three strides in elements. The
 *   last extent (dim) is contiguous. Any other stride is legal: [B,T,H,D] as well as [B,H,T,D],
 *   packed QKV, 0 to broadcast an input, negative to walk backwards. Pointers are aligned to
 *   their elements and no more. f32, f16 and bf16 mix freely between q, k, v and o; arithmetic is
 *   f32. Inputs may overlap each other (V a slice of K). Outputs overlap nothing; overlap is
 *   judged by the range of addresses from a view's first to its last element, so an output
 *   interleaved with an input in one buffer is rejected too. A cache is a view of the whole buffer
 *   whose .len is then lowered to the keys it holds; a slice also moves .data.
 *
 * 3. OPTIONS
 *   Every call takes a params struct; NULL or {0} means the paper's defaults. Where 0 itself is
 *   wanted and means "default", write ATTN_ZERO. Clear the struct (= {0}, in C++ = {}) before
 *   setting fields: later versions may append some. All options of attn_sdpa combine.
 *
 * 4. MEMORY
 *   A call without a workspace takes one block from ATTN_MALLOC and gives it back. With
 *   ctx.workspace nothing is allocated: ask attn_<name>_workspace with the same arguments for the
 *   bytes. attn_sdpa works in O(64 dk + 64 dv + 128 dv + 8192) floats per worker, whatever the
 *   sequence lengths: T = 65536 needs what T = 64 needs. There is no global state but two integers
 *   that cache the choice of tier. Inputs are read in place: nothing is packed or copied, except
 *   that 16-bit K and V are widened a block at a time.
 *
 * 5. THREADS
 *   Calls are serial unless ctx.parallel_for and ctx.workers are set. The callback runs
 *   task(arg, i) for i in 0..count-1, count <= workers, on whatever threads it likes, and returns
 *   when all are done. attn_parallel_openmp is ready-made when the file
 *   with ATTN_IMPLEMENTATION is compiled with OpenMP. Nothing
 *   spins, no thread is created. Any number of calls may run at once with different contexts.
 *
 * 6. ERRORS
 *   Every function that can fail returns attn_status; attn_status_string names it, ctx.reason says
 *   which argument broke which rule. All checks come before the first write: a rejected call
 *   leaves outputs as they were. Nothing aborts or prints. Only contents of memory are not
 *   checked, except lengths, slopes and sinks always, and additive masks when ctx.validate is set.
 *
 * 7. TIERS
 *   scalar   portable C, any processor, any byte order
 *   avx2     x86 with AVX2, FMA, F16C
 *   avx512   x86 with AVX-512 F, BW, DQ, VL, CD
 *   neon     aarch64; 32-bit ARM when compiled with -mfpu=neon-vfpv4
 *   ctx.isa forces one, ctx.report.isa tells which ran, attn_isa_why tells why one is off. The
 *   environment variable ATTN_ISA=<tier> and attn_isa_limit() cap the choice for the process. An
 *   ATTN_ISA that names no tier of this machine makes every call fail with ATTN_E_ENV.
 *
 * 8. NUMBERS AND DETERMINISM
 *   Empty rows (no allowed key) give O = 0, LSE = -inf. A forbidden key never reaches an output,
 *   even if it holds NaN; keys from kv_len on are not read. NaN in an allowed key or in a query
 *   appears in exactly the rows that read it. LSE is a natural logarithm. Causal masks align the
 *   last query with key k.len - 1, whatever kv_len says, unless q_off (one number for the batch)
 *   says otherwise.
 *   avx2, avx512 and neon give the same bits, for any number of workers, any batch around a row
 *   and any division of the queries over calls: each score is one chain of fused multiply-adds in
 *   the order of the head dimension, each output one in the order of the keys, and the running
 *   maximum moves at multiples of 128 keys. scalar rounds differently in the last bits; 32-bit
 *   ARM flushes subnormal numbers. Compile without -ffast-math.
 *   Measured errors are in docs/numerics.md.
 *
 * 9. COST
 *   2 (dk + dv) flops per query-key pair, over the pairs that causal, windows, lengths and all-zero
 *   mask blocks leave (in tiles of 64 queries). Measured speed is in the README.
 *
 * 10. MACROS YOU MAY DEFINE (before the implementation)
 *   ATTN_IMPLEMENTATION      compile the implementation here
 *   ATTN_STATIC              make every function static (the header then serves one file)
 *   ATTN_MALLOC(size), ATTN_FREE(ptr)   both or none; malloc and free
 *   ATTN_NO_AVX2, ATTN_NO_AVX512, ATTN_NO_NEON   leave a tier out
 *   ATTN_NO_GETENV           do not read ATTN_ISA from the environment
 *   ATTN_USE_SLEEF           take exp and tanh from SLEEF (link with -lsleef): its 1.0 ULP bounds,
 *                            other bits than without
 *   ATTN_SELF                the name of this header, if you rename it (it includes itself)
 *   ATTN_DEF                 how functions are declared (extern; e.g. a dllexport attribute)
 *   ATTN_FORCE_X86           compile the x86 tiers with gcc for Windows, see isa/config.h
 *
 * 11. LICENCE
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
/* <<< attn/manual.h */

/* all.h is the spine: the parts of attn.h in order. It compiles as it is; attn/amalgamate writes
 * the same text as one file. */
#if defined(ATTN_PASS_)
/* >>> attn/kernels/pass.h */
/* kernels/pass.h owns the pass: the kernels, written once in the vocabulary of isa/simd_*.h and
 * compiled once per tier inside that tier's region. It may use nothing but the vocabulary and our
 * own static functions, and never tests a compiler's ISA macros. */

#if ATTN_PASS_ != 100
#error "another version of attn.h was found in place of this one: set ATTN_SELF or the path"
#endif

#define ATTN_FN_(name) ATTN_CAT_(ATTN_CAT_(attn_##name##_, ATTN_T_), _)

#ifdef ATTN_USE_SLEEF
/* >>> attn/kernels/math_sleef.h */
/* kernels/math_sleef.h owns the functions of kernels/math.h on top of SLEEF, for users who define
 * ATTN_USE_SLEEF and link with -lsleef: 1.0 ULP each, at about SLEEF's cost. Results then have
 * other bits than the built-in ones, and may differ between tiers. */

ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp2_full)(ATTN_VF_ y) { return ATTN_V_SLEEF_(exp2)(y); }
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp2_neg)(ATTN_VF_ y) { return ATTN_V_SLEEF_(exp2)(y); }
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp)(ATTN_VF_ x) { return ATTN_V_SLEEF_(exp)(x); }
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(tanh)(ATTN_VF_ x) { return ATTN_V_SLEEF_(tanh)(x); }

ATTN_INLINE_ void ATTN_FN_(exp2_neg4)(ATTN_VF_ *y) {
  for (int i = 0; i < 4; i++) y[i] = ATTN_V_SLEEF_(exp2)(y[i]);
}
ATTN_INLINE_ void ATTN_FN_(tanh4)(ATTN_VF_ *x) {
  for (int i = 0; i < 4; i++) x[i] = ATTN_V_SLEEF_(tanh)(x[i]);
}
/* <<< attn/kernels/math_sleef.h */
#else
/* >>> attn/kernels/math.h */
/* kernels/math.h owns elementary functions on vectors. Every exponential of the library ends in
 * the same polynomial, in loop bodies and tails alike. */

/* 2^f for |f| <= 1/2: 1 + f (c1 + ... c6 f^5), weighted minimax in ULP of the result; times
 * ATTN_EXP_UNIT_, a power of 2, which changes no rounding. One step of it for each of the chains
 * that `each` names, so that they run side by side. */
#define ATTN_POLY_0_(i)                                                 \
  p##i = ATTN_V_FMA_(ATTN_V_SET1_(ATTN_EXP_UNIT_ * ATTN_EXP_C6_), f##i, \
                     ATTN_V_SET1_(ATTN_EXP_UNIT_ * ATTN_EXP_C5_));
#define ATTN_POLY_1_(i) p##i = ATTN_V_FMA_(p##i, f##i, ATTN_V_SET1_(ATTN_EXP_UNIT_ * ATTN_EXP_C4_));
#define ATTN_POLY_2_(i) p##i = ATTN_V_FMA_(p##i, f##i, ATTN_V_SET1_(ATTN_EXP_UNIT_ * ATTN_EXP_C3_));
#define ATTN_POLY_3_(i) p##i = ATTN_V_FMA_(p##i, f##i, ATTN_V_SET1_(ATTN_EXP_UNIT_ * ATTN_EXP_C2_));
#define ATTN_POLY_4_(i) p##i = ATTN_V_FMA_(p##i, f##i, ATTN_V_SET1_(ATTN_EXP_UNIT_ * ATTN_EXP_C1_));
#define ATTN_POLY_5_(i) p##i = ATTN_V_FMA_(p##i, f##i, ATTN_V_SET1_(ATTN_EXP_UNIT_));
#define ATTN_POLY_(each)                                                                         \
  each(ATTN_POLY_0_) each(ATTN_POLY_1_) each(ATTN_POLY_2_) each(ATTN_POLY_3_) each(ATTN_POLY_4_) \
      each(ATTN_POLY_5_)

/* 2^y for y <= 0 or NaN, 0 where it would be subnormal: a weight beside one of 1. y - round(y) is
 * exact, so the error is the polynomial's. */
#define ATTN_EXP2_CLAMP_(i) f##i = ATTN_V_EXP_FLOOR_(f##i);
#define ATTN_EXP2_ROUND_(i) ATTN_V_ROUND_(f##i, t##i, n##i);
#define ATTN_EXP2_REDUCE_(i) f##i = ATTN_V_SUB_(f##i, n##i);
#define ATTN_EXP2_SCALE_(i) p##i = ATTN_V_LDEXP_SMALL_(p##i, t##i, n##i);
#define ATTN_EXP2_(each)                                                                 \
  each(ATTN_EXP2_CLAMP_) each(ATTN_EXP2_ROUND_) each(ATTN_EXP2_REDUCE_) ATTN_POLY_(each) \
  each(ATTN_EXP2_SCALE_)

#define ATTN_EACH1_(step) step(0)
#define ATTN_EACH4_(step) step(0) step(1) step(2) step(3)

ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp2_neg)(ATTN_VF_ f0) {
  ATTN_VF_ t0, n0, p0;
  ATTN_EXP2_(ATTN_EACH1_)
  return p0;
}

/* four at once, side by side: one chain alone fills the scheduler of a core before its ports
 * (measured on Zen 5: 5.2 -> 4.0 cycles a vector) */
ATTN_INLINE_ void ATTN_FN_(exp2_neg4)(ATTN_VF_ *y) {
  ATTN_VF_ f0 = y[0], f1 = y[1], f2 = y[2], f3 = y[3];
  ATTN_VF_ t0, t1, t2, t3, n0, n1, n2, n3, p0, p1, p2, p3;
  ATTN_EXP2_(ATTN_EACH4_)
  y[0] = p0, y[1] = p1, y[2] = p2, y[3] = p3;
}

/* 2^y for y <= 0 or NaN, subnormal results included: for weights that leave the library */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp2_full)(ATTN_VF_ y) {
  ATTN_VF_ f0 = ATTN_V_MAX_(ATTN_V_SET1_(-150.0f), y), t0, n0, p0;
  ATTN_EXP2_ROUND_(0) ATTN_EXP2_REDUCE_(0) ATTN_POLY_(ATTN_EACH1_)
  return ATTN_V_LDEXP_(p0, t0, n0);
}

/* e^x for every x. ln 2 is split so that n * hi is exact for |n| <= 2^9 with or without FMA */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(exp)(ATTN_VF_ x) {
  ATTN_VF_ y = ATTN_V_MAX_(ATTN_V_SET1_(-104.0f), x);
  y = ATTN_V_SELECT_(ATTN_V_LT_(ATTN_V_SET1_(88.8f), y), ATTN_V_SET1_(88.8f), y);
  ATTN_VF_ t = ATTN_V_FMA_(y, ATTN_V_SET1_((float)ATTN_LOG2E_), ATTN_V_SET1_(ATTN_EXP_BIAS_));
  ATTN_VF_ n = ATTN_V_SUB_(t, ATTN_V_SET1_(ATTN_EXP_BIAS_));
  ATTN_VF_ r = ATTN_V_FMA_(n, ATTN_V_SET1_(-0.693145751953125f), y);
  r = ATTN_V_FMA_(n, ATTN_V_SET1_(-1.42860677e-6f), r);
  ATTN_VF_ f0 = ATTN_V_MUL_(r, ATTN_V_SET1_((float)ATTN_LOG2E_)), p0;
  ATTN_POLY_(ATTN_EACH1_)
  return ATTN_V_LDEXP_(p0, t, n);
}

/* tanh x = (1 - e)/(1 + e) with e = 2^y, y = -2 |x| log2 e. With y = n + f and 2^f = 1 + f q(f),
 * 1 - e = (1 - 2^n) - 2^n f q(f) loses nothing near 0. Here w = 2^n / ATTN_EXP_UNIT_, u = 1 - e. */
#define ATTN_TANH_ARG_(i) \
  f##i = ATTN_V_MUL_(ATTN_V_ABS_(x##i), ATTN_V_SET1_((float)(-2.0 * ATTN_LOG2E_)));
#define ATTN_TANH_CLAMP_(i) f##i = ATTN_V_MAX_(ATTN_V_SET1_(-30.0f), f##i);
#define ATTN_TANH_POWER_(i) w##i = ATTN_V_LDEXP_SMALL_(one, t##i, n##i);
#define ATTN_TANH_TOP_(i) \
  u##i = ATTN_V_SUB_(ATTN_V_FMA_(w##i, unit, one), ATTN_V_MUL_(ATTN_V_MUL_(p##i, f##i), w##i));
#define ATTN_TANH_DIVIDE_(i) u##i = ATTN_V_DIV_(u##i, ATTN_V_SUB_(two, u##i));
#define ATTN_TANH_SIGN_(i) \
  x##i = ATTN_V_SELECT_(ATTN_V_LT_(x##i, zero), ATTN_V_SUB_(zero, u##i), u##i);
#define ATTN_TANH_(each)                                                                     \
  each(ATTN_TANH_ARG_) each(ATTN_TANH_CLAMP_) each(ATTN_EXP2_ROUND_) each(ATTN_EXP2_REDUCE_) \
      each(ATTN_TANH_POWER_) each(ATTN_POLY_0_) each(ATTN_POLY_1_) each(ATTN_POLY_2_)        \
          each(ATTN_POLY_3_) each(ATTN_POLY_4_) each(ATTN_TANH_TOP_) each(ATTN_TANH_DIVIDE_) \
              each(ATTN_TANH_SIGN_)

ATTN_INLINE_ ATTN_VF_ ATTN_FN_(tanh)(ATTN_VF_ x0) {
  const ATTN_VF_ zero = ATTN_V_ZERO_(), one = ATTN_V_SET1_(1.0f), two = ATTN_V_SET1_(2.0f);
  const ATTN_VF_ unit = ATTN_V_SET1_(-ATTN_EXP_UNIT_);
  ATTN_VF_ f0, t0, n0, p0, w0, u0;
  ATTN_TANH_(ATTN_EACH1_)
  return x0;
}

ATTN_INLINE_ void ATTN_FN_(tanh4)(ATTN_VF_ *x) {
  const ATTN_VF_ zero = ATTN_V_ZERO_(), one = ATTN_V_SET1_(1.0f), two = ATTN_V_SET1_(2.0f);
  const ATTN_VF_ unit = ATTN_V_SET1_(-ATTN_EXP_UNIT_);
  ATTN_VF_ x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3];
  ATTN_VF_ f0, f1, f2, f3, t0, t1, t2, t3, n0, n1, n2, n3, p0, p1, p2, p3;
  ATTN_VF_ w0, w1, w2, w3, u0, u1, u2, u3;
  ATTN_TANH_(ATTN_EACH4_)
  x[0] = x0, x[1] = x1, x[2] = x2, x[3] = x3;
}

#undef ATTN_POLY_0_
#undef ATTN_POLY_1_
#undef ATTN_POLY_2_
#undef ATTN_POLY_3_
#undef ATTN_POLY_4_
#undef ATTN_POLY_5_
#undef ATTN_POLY_
#undef ATTN_EXP2_CLAMP_
#undef ATTN_EXP2_ROUND_
#undef ATTN_EXP2_REDUCE_
#undef ATTN_EXP2_SCALE_
#undef ATTN_EXP2_
#undef ATTN_EACH1_
#undef ATTN_EACH4_
#undef ATTN_TANH_ARG_
#undef ATTN_TANH_CLAMP_
#undef ATTN_TANH_POWER_
#undef ATTN_TANH_TOP_
#undef ATTN_TANH_DIVIDE_
#undef ATTN_TANH_SIGN_
#undef ATTN_TANH_
/* <<< attn/kernels/math.h */
#endif
/* >>> attn/kernels/score.h */
/* kernels/score.h owns the score block: keys times packed queries. The micro-kernel holds mr keys
 * by nv vectors of queries in registers; each score is one chain of multiply-adds over c. */

/* Macros, not loops over arrays: compilers keep arrays in memory at -O2. mr and nv are constants
 * at every call, so unused rows vanish. */
#define ATTN_ROW_INIT_(r)                                                                     \
  ATTN_VF_ a##r##0 = ATTN_V_ZERO_(), a##r##1 = a##r##0, a##r##2 = a##r##0, a##r##3 = a##r##0; \
  const float *k##r = k + (mr > r ? r : 0) * stride;
#define ATTN_ROW_STEP_(r)                              \
  if (mr > r) {                                        \
    ATTN_VF_ b = ATTN_V_SET1_(k##r[c]);                \
    a##r##0 = ATTN_V_FMA_(q0, b, a##r##0);             \
    if (nv > 1) a##r##1 = ATTN_V_FMA_(q1, b, a##r##1); \
    if (nv > 2) a##r##2 = ATTN_V_FMA_(q2, b, a##r##2); \
    if (nv > 3) a##r##3 = ATTN_V_FMA_(q3, b, a##r##3); \
  }
#define ATTN_ROW_STORE_(r)                                                                \
  if (mr > r) {                                                                           \
    float *row = s + r * ATTN_TILE_;                                                      \
    ATTN_V_STORE_(row, a##r##0);                                                          \
    t0 = ATTN_V_MAX_(a##r##0, t0);                                                        \
    if (nv > 1) ATTN_V_STORE_(row + ATTN_W_, a##r##1), t1 = ATTN_V_MAX_(a##r##1, t1);     \
    if (nv > 2) ATTN_V_STORE_(row + 2 * ATTN_W_, a##r##2), t2 = ATTN_V_MAX_(a##r##2, t2); \
    if (nv > 3) ATTN_V_STORE_(row + 3 * ATTN_W_, a##r##3), t3 = ATTN_V_MAX_(a##r##3, t3); \
  }

ATTN_INLINE_ void ATTN_FN_(score_micro)(const int mr, const int nv, float *s, const float *qt,
                                        const float *k, int64_t stride, int64_t dk, float *top) {
  ATTN_ROW_INIT_(0)
  ATTN_ROW_INIT_(1)
  ATTN_ROW_INIT_(2)
  ATTN_ROW_INIT_(3)
  ATTN_ROW_INIT_(4)
  ATTN_ROW_INIT_(5)
  ATTN_ROW_INIT_(6)
  ATTN_ROW_INIT_(7)
  ATTN_ROW_INIT_(8)
  ATTN_ROW_INIT_(9)
  ATTN_ROW_INIT_(10)
  ATTN_ROW_INIT_(11)
  for (ptrdiff_t c = 0; c < (ptrdiff_t)dk; c++) {
    ATTN_VF_ q0 = ATTN_V_LOAD_(qt), q1 = q0, q2 = q0, q3 = q0;
    if (nv > 1) q1 = ATTN_V_LOAD_(qt + ATTN_W_);
    if (nv > 2) q2 = ATTN_V_LOAD_(qt + 2 * ATTN_W_);
    if (nv > 3) q3 = ATTN_V_LOAD_(qt + 3 * ATTN_W_);
    ATTN_ROW_STEP_(0)
    ATTN_ROW_STEP_(1)
    ATTN_ROW_STEP_(2)
    ATTN_ROW_STEP_(3)
    ATTN_ROW_STEP_(4)
    ATTN_ROW_STEP_(5)
    ATTN_ROW_STEP_(6)
    ATTN_ROW_STEP_(7)
    ATTN_ROW_STEP_(8)
    ATTN_ROW_STEP_(9)
    ATTN_ROW_STEP_(10)
    ATTN_ROW_STEP_(11)
    qt += ATTN_TILE_;
  }
  ATTN_VF_ t0 = ATTN_V_LOAD_(top), t1 = t0, t2 = t0, t3 = t0;
  if (nv > 1) t1 = ATTN_V_LOAD_(top + ATTN_W_);
  if (nv > 2) t2 = ATTN_V_LOAD_(top + 2 * ATTN_W_);
  if (nv > 3) t3 = ATTN_V_LOAD_(top + 3 * ATTN_W_);
  ATTN_ROW_STORE_(0)
  ATTN_ROW_STORE_(1)
  ATTN_ROW_STORE_(2)
  ATTN_ROW_STORE_(3)
  ATTN_ROW_STORE_(4)
  ATTN_ROW_STORE_(5)
  ATTN_ROW_STORE_(6)
  ATTN_ROW_STORE_(7)
  ATTN_ROW_STORE_(8)
  ATTN_ROW_STORE_(9)
  ATTN_ROW_STORE_(10)
  ATTN_ROW_STORE_(11)
  ATTN_V_STORE_(top, t0);
  if (nv > 1) ATTN_V_STORE_(top + ATTN_W_, t1);
  if (nv > 2) ATTN_V_STORE_(top + 2 * ATTN_W_, t2);
  if (nv > 3) ATTN_V_STORE_(top + 3 * ATTN_W_, t3);
}
#undef ATTN_ROW_INIT_
#undef ATTN_ROW_STEP_
#undef ATTN_ROW_STORE_

/* one strip of mr keys against ng groups of lanes */
ATTN_INLINE_ void ATTN_FN_(score_strip)(const int mr, int ng, float *s, const float *qt,
                                        const float *k, int64_t stride, int64_t dk, float *top) {
#if ATTN_NG_ > 1
  switch (ng) {
    case 1: ATTN_FN_(score_micro)(mr, 1, s, qt, k, stride, dk, top); break;
    case 2: ATTN_FN_(score_micro)(mr, 2, s, qt, k, stride, dk, top); break;
    case 3: ATTN_FN_(score_micro)(mr, 3, s, qt, k, stride, dk, top); break;
    default: ATTN_FN_(score_micro)(mr, 4, s, qt, k, stride, dk, top);
  }
#else
  for (int g = 0; g < ng; g++)
    ATTN_FN_(score_micro)(mr, ATTN_GROUP_ / ATTN_W_, s + g * ATTN_GROUP_, qt + g * ATTN_GROUP_, k,
                          stride, dk, top + g * ATTN_GROUP_);
#endif
}

ATTN_FUNC_ void ATTN_FN_(score_block)(float *s, const float *qt, const float *k, int64_t stride,
                                      int64_t n, int64_t dk, int g0, int g1, float *top) {
  int ng = g1 - g0;
  s += g0 * ATTN_GROUP_, qt += g0 * ATTN_GROUP_, top += g0 * ATTN_GROUP_;
#if ATTN_NG_ > 1
  /* one vector of queries: fewer than 8 sums would wait for each other (sdpa T:16: +7 %) */
  for (int rows = 0; ng == 1 && n >= 8; n -= rows, s += rows * ATTN_TILE_, k += rows * stride) {
    rows = n == 12 || n >= 20 ? 12 : 8;
    if (rows == 12) {
      ATTN_FN_(score_micro)(12, 1, s, qt, k, stride, dk, top);
    } else {
      ATTN_FN_(score_micro)(8, 1, s, qt, k, stride, dk, top);
    }
  }
#endif
  for (; n > 0; n -= ATTN_MR_) {
    switch (n < ATTN_MR_ ? n : ATTN_MR_) {
#if ATTN_MR_ > 5
      case 6: ATTN_FN_(score_strip)(6, ng, s, qt, k, stride, dk, top); break;
#endif
#if ATTN_MR_ > 2
      case 5: ATTN_FN_(score_strip)(5, ng, s, qt, k, stride, dk, top); break;
      case 4: ATTN_FN_(score_strip)(4, ng, s, qt, k, stride, dk, top); break;
      case 3: ATTN_FN_(score_strip)(3, ng, s, qt, k, stride, dk, top); break;
#endif
#if ATTN_MR_ > 1
      case 2: ATTN_FN_(score_strip)(2, ng, s, qt, k, stride, dk, top); break;
#endif
      default: ATTN_FN_(score_strip)(1, ng, s, qt, k, stride, dk, top);
    }
    s += ATTN_MR_ * ATTN_TILE_, k += ATTN_MR_ * stride;
  }
}
/* <<< attn/kernels/score.h */
/* >>> attn/kernels/value.h */
/* kernels/value.h owns the value block: weights times value rows into the transposed output
 * accumulator. The micro-kernel holds mr columns of V by nv vectors of queries in registers; keys
 * are added in index order. */

#define ATTN_ROW_INIT_(r)                                                                     \
  ATTN_VF_ a##r##0 = ATTN_V_ZERO_(), a##r##1 = a##r##0, a##r##2 = a##r##0, a##r##3 = a##r##0; \
  if (mr > r && !start) {                                                                     \
    const float *row = ot + r * ATTN_TILE_;                                                   \
    a##r##0 = ATTN_V_LOAD_(row);                                                              \
    if (nv > 1) a##r##1 = ATTN_V_LOAD_(row + ATTN_W_);                                        \
    if (nv > 2) a##r##2 = ATTN_V_LOAD_(row + 2 * ATTN_W_);                                    \
    if (nv > 3) a##r##3 = ATTN_V_LOAD_(row + 3 * ATTN_W_);                                    \
    if (alpha) {                                                                              \
      a##r##0 = ATTN_V_MUL_(a##r##0, ATTN_V_LOAD_(alpha));                                    \
      if (nv > 1) a##r##1 = ATTN_V_MUL_(a##r##1, ATTN_V_LOAD_(alpha + ATTN_W_));              \
      if (nv > 2) a##r##2 = ATTN_V_MUL_(a##r##2, ATTN_V_LOAD_(alpha + 2 * ATTN_W_));          \
      if (nv > 3) a##r##3 = ATTN_V_MUL_(a##r##3, ATTN_V_LOAD_(alpha + 3 * ATTN_W_));          \
    }                                                                                         \
  }
#define ATTN_ROW_STEP_(r)                              \
  if (mr > r) {                                        \
    ATTN_VF_ b = ATTN_V_SET1_(v[r]);                   \
    a##r##0 = ATTN_V_FMA_(p0, b, a##r##0);             \
    if (nv > 1) a##r##1 = ATTN_V_FMA_(p1, b, a##r##1); \
    if (nv > 2) a##r##2 = ATTN_V_FMA_(p2, b, a##r##2); \
    if (nv > 3) a##r##3 = ATTN_V_FMA_(p3, b, a##r##3); \
  }
#define ATTN_ROW_STORE_(r)                                 \
  if (mr > r) {                                            \
    float *row = ot + r * ATTN_TILE_;                      \
    ATTN_V_STORE_(row, a##r##0);                           \
    if (nv > 1) ATTN_V_STORE_(row + ATTN_W_, a##r##1);     \
    if (nv > 2) ATTN_V_STORE_(row + 2 * ATTN_W_, a##r##2); \
    if (nv > 3) ATTN_V_STORE_(row + 3 * ATTN_W_, a##r##3); \
  }

ATTN_INLINE_ void ATTN_FN_(value_micro)(const int mr, const int nv, float *ot, const float *p,
                                        const float *v, int64_t stride, int64_t n,
                                        const float *alpha, int start) {
  ATTN_ROW_INIT_(0)
  ATTN_ROW_INIT_(1)
  ATTN_ROW_INIT_(2)
  ATTN_ROW_INIT_(3)
  ATTN_ROW_INIT_(4)
  ATTN_ROW_INIT_(5)
  ATTN_ROW_INIT_(6)
  ATTN_ROW_INIT_(7)
  ATTN_ROW_INIT_(8)
  ATTN_ROW_INIT_(9)
  ATTN_ROW_INIT_(10)
  ATTN_ROW_INIT_(11)
  for (ptrdiff_t j = 0; j < (ptrdiff_t)n; j++) {
    ATTN_VF_ p0 = ATTN_V_LOAD_(p), p1 = p0, p2 = p0, p3 = p0;
    if (nv > 1) p1 = ATTN_V_LOAD_(p + ATTN_W_);
    if (nv > 2) p2 = ATTN_V_LOAD_(p + 2 * ATTN_W_);
    if (nv > 3) p3 = ATTN_V_LOAD_(p + 3 * ATTN_W_);
    ATTN_ROW_STEP_(0)
    ATTN_ROW_STEP_(1)
    ATTN_ROW_STEP_(2)
    ATTN_ROW_STEP_(3)
    ATTN_ROW_STEP_(4)
    ATTN_ROW_STEP_(5)
    ATTN_ROW_STEP_(6)
    ATTN_ROW_STEP_(7)
    ATTN_ROW_STEP_(8)
    ATTN_ROW_STEP_(9)
    ATTN_ROW_STEP_(10)
    ATTN_ROW_STEP_(11)
    p += ATTN_TILE_, v += stride;
  }
  ATTN_ROW_STORE_(0)
  ATTN_ROW_STORE_(1)
  ATTN_ROW_STORE_(2)
  ATTN_ROW_STORE_(3)
  ATTN_ROW_STORE_(4)
  ATTN_ROW_STORE_(5)
  ATTN_ROW_STORE_(6)
  ATTN_ROW_STORE_(7)
  ATTN_ROW_STORE_(8)
  ATTN_ROW_STORE_(9)
  ATTN_ROW_STORE_(10)
  ATTN_ROW_STORE_(11)
}
#undef ATTN_ROW_INIT_
#undef ATTN_ROW_STEP_
#undef ATTN_ROW_STORE_

/* one strip of mr columns for ng groups of lanes */
ATTN_INLINE_ void ATTN_FN_(value_strip)(const int mr, int ng, float *ot, const float *p,
                                        const float *v, int64_t stride, int64_t n,
                                        const float *alpha, int start) {
#if ATTN_NG_ > 1
  switch (ng) {
    case 1: ATTN_FN_(value_micro)(mr, 1, ot, p, v, stride, n, alpha, start); break;
    case 2: ATTN_FN_(value_micro)(mr, 2, ot, p, v, stride, n, alpha, start); break;
    case 3: ATTN_FN_(value_micro)(mr, 3, ot, p, v, stride, n, alpha, start); break;
    default: ATTN_FN_(value_micro)(mr, 4, ot, p, v, stride, n, alpha, start);
  }
#else
  for (int g = 0; g < ng; g++)
    ATTN_FN_(value_micro)(mr, ATTN_GROUP_ / ATTN_W_, ot + g * ATTN_GROUP_, p + g * ATTN_GROUP_, v,
                          stride, n, alpha ? alpha + g * ATTN_GROUP_ : alpha, start);
#endif
}

ATTN_FUNC_ void ATTN_FN_(value_block)(float *ot, const float *p, const float *v, int64_t stride,
                                      int64_t n, int64_t dv, int g0, int g1, const float *alpha,
                                      int start) {
  int ng = g1 - g0;
  ot += g0 * ATTN_GROUP_, p += g0 * ATTN_GROUP_;
  if (alpha) alpha += g0 * ATTN_GROUP_;
#if ATTN_NG_ > 1
  /* one vector of queries: fewer than 8 sums would wait for each other (sdpa T:16: +7 %) */
  for (int rows = 0; ng == 1 && dv >= 8; dv -= rows, ot += rows * ATTN_TILE_, v += rows) {
    rows = dv == 12 || dv >= 20 ? 12 : 8;
    if (rows == 12) {
      ATTN_FN_(value_micro)(12, 1, ot, p, v, stride, n, alpha, start);
    } else {
      ATTN_FN_(value_micro)(8, 1, ot, p, v, stride, n, alpha, start);
    }
  }
#endif
  for (; dv > 0; dv -= ATTN_MR_) {
    switch (dv < ATTN_MR_ ? dv : ATTN_MR_) {
#if ATTN_MR_ > 5
      case 6: ATTN_FN_(value_strip)(6, ng, ot, p, v, stride, n, alpha, start); break;
#endif
#if ATTN_MR_ > 2
      case 5: ATTN_FN_(value_strip)(5, ng, ot, p, v, stride, n, alpha, start); break;
      case 4: ATTN_FN_(value_strip)(4, ng, ot, p, v, stride, n, alpha, start); break;
      case 3: ATTN_FN_(value_strip)(3, ng, ot, p, v, stride, n, alpha, start); break;
#endif
#if ATTN_MR_ > 1
      case 2: ATTN_FN_(value_strip)(2, ng, ot, p, v, stride, n, alpha, start); break;
#endif
      default: ATTN_FN_(value_strip)(1, ng, ot, p, v, stride, n, alpha, start);
    }
    ot += ATTN_MR_ * ATTN_TILE_, v += ATTN_MR_;
  }
}
/* <<< attn/kernels/value.h */
/* >>> attn/kernels/softmax.h */
/* kernels/softmax.h owns the passes over a score block: modifiers, the running softmax, sinks. */

/* E4: x = cap tanh(x / cap), four keys side by side */
ATTN_INLINE_ void ATTN_FN_(cap_lanes)(float *cell, int64_t n, float softcap) {
  const ATTN_VF_ cap = ATTN_V_SET1_(softcap), uncap = ATTN_V_SET1_(1.0f / softcap);
  for (; n >= 4; n -= 4, cell += 4 * ATTN_TILE_) {
    ATTN_VF_ x[4];
    ATTN_UNROLL_
    for (int i = 0; i < 4; i++) x[i] = ATTN_V_MUL_(ATTN_V_LOAD_(cell + i * ATTN_TILE_), uncap);
    ATTN_FN_(tanh4)(x);
    ATTN_UNROLL_
    for (int i = 0; i < 4; i++) ATTN_V_STORE_(cell + i * ATTN_TILE_, ATTN_V_MUL_(cap, x[i]));
  }
  for (; n > 0; n--, cell += ATTN_TILE_) {
    ATTN_VF_ x = ATTN_FN_(tanh)(ATTN_V_MUL_(ATTN_V_LOAD_(cell), uncap));
    ATTN_V_STORE_(cell, ATTN_V_MUL_(cap, x));
  }
}

/* The stages of a score tile, in the engine's order. Each is a vector operation or two on a score
 * in L1, so a stage that is absent must not cost a test: `use` is a constant for the usual sets. */
ATTN_INLINE_ void ATTN_FN_(modify_lanes)(const int use, float *s, int64_t key, int64_t n, int g0,
                                         int g1, const attn_modifiers_ *mod, float *top) {
  const ATTN_VF_ inf = ATTN_V_SET1_(-INFINITY), zero = ATTN_V_ZERO_(), one = ATTN_V_SET1_(1.0f);
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ slope = zero, rel = zero, lo = zero, hi = zero, t = ATTN_V_LOAD_(top + lane);
    ATTN_VF_ at = ATTN_V_SET1_((float)key);
    if (use & ATTN_USE_SLOPE_) slope = ATTN_V_LOAD_(mod->slope + lane);
    if (use & ATTN_USE_SLOPE_) rel = ATTN_V_LOAD_(mod->rel + lane);
    if (use & ATTN_USE_BOUND_) lo = ATTN_V_LOAD_(mod->lo + lane), hi = ATTN_V_LOAD_(mod->hi + lane);
    const float *bias = use & ATTN_USE_BIAS_ ? mod->bias + lane : NULL;
    const float *allow = use & ATTN_USE_ALLOW_ ? mod->allow + lane : NULL, *per_key = mod->key;
    float *cell = s + lane;
    if (use & ATTN_USE_CAP_) ATTN_FN_(cap_lanes)(cell, n, mod->softcap);
    for (int64_t r = 0; r < n; r++, cell += ATTN_TILE_) {
      ATTN_VF_ x = ATTN_V_LOAD_(cell);
      if (use & ATTN_USE_SLOPE_) x = ATTN_V_FMA_(slope, ATTN_V_ABS_(ATTN_V_ADD_(rel, at)), x);
      if (use & ATTN_USE_BIAS_) {
        ATTN_VF_ b = ATTN_V_LOAD_(bias);
        x = ATTN_V_SELECT_(ATTN_V_EQ_(b, inf), inf, ATTN_V_ADD_(x, b));
        bias += ATTN_TILE_;
      }
      if (use & ATTN_USE_KEY_) {
        ATTN_VF_ b = ATTN_V_SET1_(per_key[r]);
        x = ATTN_V_SELECT_(ATTN_V_EQ_(b, inf), inf, ATTN_V_ADD_(x, b));
      }
      if (use & ATTN_USE_ALLOW_) {
        x = ATTN_V_SELECT_(ATTN_V_EQ_(ATTN_V_LOAD_(allow), zero), x, inf);
        allow += ATTN_TILE_;
      }
      if (use & ATTN_USE_BOUND_)
        x = ATTN_V_SELECT_(ATTN_V_LT_(at, lo), inf, ATTN_V_SELECT_(ATTN_V_LT_(at, hi), x, inf));
      if (use & (ATTN_USE_SLOPE_ | ATTN_USE_BOUND_)) at = ATTN_V_ADD_(at, one);
      ATTN_V_STORE_(cell, x);
      t = ATTN_V_MAX_(x, t);
    }
    ATTN_V_STORE_(top + lane, t);
  }
}

ATTN_FUNC_ void ATTN_FN_(modify_block)(float *s, int64_t key, int64_t n, int g0, int g1,
                                       const attn_modifiers_ *mod, float *top) {
  const int use = (mod->softcap > 0.0f ? ATTN_USE_CAP_ : 0) | (mod->slope ? ATTN_USE_SLOPE_ : 0) |
                  (mod->bias ? ATTN_USE_BIAS_ : 0) | (mod->key ? ATTN_USE_KEY_ : 0) |
                  (mod->allow ? ATTN_USE_ALLOW_ : 0) | (mod->lo ? ATTN_USE_BOUND_ : 0);
  switch (use) {
#if ATTN_SPECIALISE_
#define ATTN_CASE_(set) \
  case set: ATTN_FN_(modify_lanes)(set, s, key, n, g0, g1, mod, top); break;
    ATTN_CASE_(ATTN_USE_CAP_)
    ATTN_CASE_(ATTN_USE_SLOPE_)
    ATTN_CASE_(ATTN_USE_SLOPE_ | ATTN_USE_BOUND_)
    ATTN_CASE_(ATTN_USE_BIAS_)
    ATTN_CASE_(ATTN_USE_KEY_)
    ATTN_CASE_(ATTN_USE_ALLOW_)
    ATTN_CASE_(ATTN_USE_BOUND_)
#undef ATTN_CASE_
#endif
    default: ATTN_FN_(modify_lanes)(use, s, key, n, g0, g1, mod, top);
  }
}

/* what a score is taken relative to: the maximum, or 0 while a row has no key */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(base)(ATTN_VF_ m) {
  return ATTN_V_SELECT_(ATTN_V_EQ_(m, ATTN_V_SET1_(-INFINITY)), ATTN_V_ZERO_(), m);
}

ATTN_FUNC_ void ATTN_FN_(softmax_block)(float *s, int64_t n, int g0, int g1, float *m, float *l,
                                        float *alpha, const float *top) {
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ old = ATTN_V_LOAD_(m + lane), now = ATTN_V_MAX_(ATTN_V_LOAD_(top + lane), old);
    ATTN_VF_ base = ATTN_FN_(base)(now), sum = ATTN_V_ZERO_();
    ATTN_VF_ keep = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(old, base));
    float *cell = s + lane;
    int64_t j = 0;
    for (; j + 4 <= n; j += 4, cell += 4 * ATTN_TILE_) {
      ATTN_VF_ p[4];
      p[0] = ATTN_V_SUB_(ATTN_V_LOAD_(cell), base);
      p[1] = ATTN_V_SUB_(ATTN_V_LOAD_(cell + ATTN_TILE_), base);
      p[2] = ATTN_V_SUB_(ATTN_V_LOAD_(cell + 2 * ATTN_TILE_), base);
      p[3] = ATTN_V_SUB_(ATTN_V_LOAD_(cell + 3 * ATTN_TILE_), base);
      ATTN_FN_(exp2_neg4)(p);
      ATTN_V_STORE_(cell, p[0]);
      ATTN_V_STORE_(cell + ATTN_TILE_, p[1]);
      ATTN_V_STORE_(cell + 2 * ATTN_TILE_, p[2]);
      ATTN_V_STORE_(cell + 3 * ATTN_TILE_, p[3]);
      sum = ATTN_V_ADD_(ATTN_V_ADD_(ATTN_V_ADD_(ATTN_V_ADD_(sum, p[0]), p[1]), p[2]), p[3]);
    }
    for (; j < n; j++, cell += ATTN_TILE_) {
      ATTN_VF_ p = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(ATTN_V_LOAD_(cell), base));
      ATTN_V_STORE_(cell, p);
      sum = ATTN_V_ADD_(sum, p);
    }
    ATTN_V_STORE_(m + lane, now);
    ATTN_V_STORE_(l + lane, ATTN_V_FMA_(ATTN_V_LOAD_(l + lane), keep, sum));
    ATTN_V_STORE_(alpha + lane, keep);
  }
}

ATTN_FUNC_ void ATTN_FN_(scale_block)(float *x, int64_t n, int g0, int g1, const float *alpha) {
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ a = ATTN_V_LOAD_(alpha + lane);
    float *cell = x + lane;
    for (int64_t r = 0; r < n; r++, cell += ATTN_TILE_)
      ATTN_V_STORE_(cell, ATTN_V_MUL_(ATTN_V_LOAD_(cell), a));
  }
}

ATTN_FUNC_ void ATTN_FN_(join)(float *m, float *l, float *scale, const float *logit) {
  for (int lane = 0; lane < ATTN_TILE_; lane += ATTN_W_) {
    ATTN_VF_ old = ATTN_V_LOAD_(m + lane), x = ATTN_V_LOAD_(logit + lane);
    ATTN_VF_ now = ATTN_V_MAX_(x, old), base = ATTN_FN_(base)(now);
    ATTN_VF_ keep = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(old, base));
    ATTN_VF_ p = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(x, base));
    ATTN_V_STORE_(m + lane, now);
    ATTN_V_STORE_(l + lane, ATTN_V_FMA_(ATTN_V_LOAD_(l + lane), keep, p));
    ATTN_V_STORE_(scale + lane, ATTN_V_MUL_(ATTN_V_LOAD_(scale + lane), keep));
  }
}

ATTN_FUNC_ void ATTN_FN_(divide)(float *x, const float *y) {
  for (int lane = 0; lane < ATTN_TILE_; lane += ATTN_W_) {
    ATTN_VF_ b = ATTN_V_LOAD_(y + lane), zero = ATTN_V_ZERO_();
    ATTN_VF_ q = ATTN_V_DIV_(ATTN_V_LOAD_(x + lane), b);
    ATTN_V_STORE_(x + lane, ATTN_V_SELECT_(ATTN_V_EQ_(b, zero), zero, q));
  }
}
/* <<< attn/kernels/softmax.h */
/* >>> attn/kernels/rows.h */
/* kernels/rows.h owns work on rows: storage types, transposition between rows and lanes, and row
 * functions (exp, weights, blend, rotation). Tails touch only the elements that exist. */

/* n <= lanes numbers from p, which points at element i of a row of the given kind */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(load)(const void *row, int64_t i, int n, int kind) {
  if (kind == ATTN_F32) {
    const float *p = (const float *)row + i;
    return n == ATTN_W_ ? ATTN_V_LOAD_(p) : ATTN_V_LOAD_PART_(p, n);
  }
  if (kind == ATTN_KIND_BOOL_) {
    const unsigned char *p = (const unsigned char *)row + i;
    unsigned char t[ATTN_W_] = {0};
    if (n == ATTN_W_) return ATTN_V_LOAD_BOOL_(p);
    for (int c = 0; c < n; c++) t[c] = p[c];
    return ATTN_V_LOAD_BOOL_(t);
  }
  const uint16_t *p = (const uint16_t *)row + i;
  uint16_t t[ATTN_W_] = {0};
  if (n != ATTN_W_) {
    for (int c = 0; c < n; c++) t[c] = p[c];
    p = t;
  }
  return kind == ATTN_F16 ? ATTN_V_LOAD_F16_(p) : ATTN_V_LOAD_BF16_(p);
}

ATTN_INLINE_ void ATTN_FN_(store)(void *row, int64_t i, ATTN_VF_ v, int n, int kind) {
  if (kind == ATTN_F32) {
    float *p = (float *)row + i;
    if (n == ATTN_W_) {
      ATTN_V_STORE_(p, v);
    } else {
      ATTN_V_STORE_PART_(p, v, n);
    }
    return;
  }
  uint16_t *p = (uint16_t *)row + i, t[ATTN_W_];
  uint16_t *to = n == ATTN_W_ ? p : t;
  if (kind == ATTN_F16) {
    ATTN_V_STORE_F16_(to, v);
  } else {
    ATTN_V_STORE_BF16_(to, v);
  }
  if (n != ATTN_W_)
    for (int c = 0; c < n; c++) p[c] = t[c];
}

/* A NaN leaves as the one default NaN: payload and sign of a computed one differ between machines. */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(quiet)(ATTN_VF_ x) {
  return ATTN_V_SELECT_(ATTN_V_EQ_(x, x), x, ATTN_V_SET1_(attn_from_bits_(0x7fc00000u)));
}

ATTN_INLINE_ int ATTN_FN_(lanes_left)(int64_t n, int64_t i) {
  return n - i < ATTN_W_ ? (int)(n - i) : ATTN_W_;
}

/* x (hi + lo); of a bias, a finite x stays finite: -FLT_MAX is not -inf */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(scaled)(ATTN_VF_ x, ATTN_VF_ hi, ATTN_VF_ lo, int bias) {
  const ATTN_VF_ inf = ATTN_V_SET1_(INFINITY), zero = ATTN_V_ZERO_();
  ATTN_VF_ y = ATTN_V_FMA_(x, hi, ATTN_V_MUL_(x, lo));
  if (bias) {
    const ATTN_VF_ most = ATTN_V_SET1_(FLT_MAX), least = ATTN_V_SET1_(-FLT_MAX);
    const ATTN_VF_ z = ATTN_V_SELECT_(
        ATTN_V_EQ_(y, inf), most, ATTN_V_SELECT_(ATTN_V_EQ_(y, ATTN_V_SUB_(zero, inf)), least, y));
    y = ATTN_V_SELECT_(ATTN_V_LT_(ATTN_V_ABS_(x), inf), z, y);
  }
  return y;
}

/* scale hi + lo carries 48 bits, so that folding scale * log2 e into q costs one rounding */
ATTN_INLINE_ void ATTN_FN_(pack_kind)(float *dst, const void *const *rows, int n, int64_t dim,
                                      const int kind, const int bias, float hi, float lo) {
  ATTN_VF_ vhi = ATTN_V_SET1_(hi), vlo = ATTN_V_SET1_(lo), r[ATTN_W_];
  for (int lane = 0; lane < n; lane += ATTN_W_) {
    for (int64_t c = 0; c < dim; c += ATTN_W_) {
      int w = ATTN_FN_(lanes_left)(dim, c);
      if (w == ATTN_W_ &&
          lane + ATTN_W_ <= n) { /* whole squares, the usual case, stay in registers */
        ATTN_UNROLL_
        for (int i = 0; i < ATTN_W_; i++) {
          r[i] = ATTN_FN_(load)(rows[lane + i], c, ATTN_W_, kind);
          if (kind != ATTN_KIND_BOOL_) r[i] = ATTN_FN_(scaled)(r[i], vhi, vlo, bias);
        }
        ATTN_V_TRANSPOSE_(r);
        ATTN_UNROLL_
        for (int i = 0; i < ATTN_W_; i++) ATTN_V_STORE_(dst + (c + i) * ATTN_TILE_ + lane, r[i]);
        continue;
      }
      for (int i = 0; i < ATTN_W_; i++) {
        r[i] = ATTN_V_ZERO_();
        if (lane + i >= n) continue;
        r[i] = ATTN_FN_(load)(rows[lane + i], c, w, kind);
        if (kind != ATTN_KIND_BOOL_) r[i] = ATTN_FN_(scaled)(r[i], vhi, vlo, bias);
      }
      ATTN_V_TRANSPOSE_(r);
      for (int i = 0; i < w; i++) ATTN_V_STORE_(dst + (c + i) * ATTN_TILE_ + lane, r[i]);
    }
  }
  int end = (n + ATTN_GROUP_ - 1) / ATTN_GROUP_ * ATTN_GROUP_;
  for (int lane = (n + ATTN_W_ - 1) / ATTN_W_ * ATTN_W_; lane < end; lane += ATTN_W_)
    for (int64_t c = 0; c < dim; c++) ATTN_V_STORE_(dst + c * ATTN_TILE_ + lane, ATTN_V_ZERO_());
}

ATTN_FUNC_ void ATTN_FN_(pack)(float *dst, const void *const *rows, int n, int64_t dim, int kind,
                               float hi, float lo) {
#if ATTN_SPECIALISE_
  switch (kind) {
#define ATTN_CASE_(type, bias) \
  case (type) | (bias): ATTN_FN_(pack_kind)(dst, rows, n, dim, type, bias, hi, lo); break;
    ATTN_CASE_(ATTN_F32, 0)
    ATTN_CASE_(ATTN_F16, 0)
    ATTN_CASE_(ATTN_BF16, 0)
    ATTN_CASE_(ATTN_F32, ATTN_KIND_BIAS_)
    ATTN_CASE_(ATTN_F16, ATTN_KIND_BIAS_)
    ATTN_CASE_(ATTN_BF16, ATTN_KIND_BIAS_)
#undef ATTN_CASE_
    default: ATTN_FN_(pack_kind)(dst, rows, n, dim, ATTN_KIND_BOOL_, 0, hi, lo);
  }
#else
  ATTN_FN_(pack_kind)(dst, rows, n, dim, kind & ~ATTN_KIND_BIAS_, kind & ATTN_KIND_BIAS_, hi, lo);
#endif
}

ATTN_INLINE_ void ATTN_FN_(unpack_kind)(void *const *rows, const float *src, int n, int64_t dim,
                                        const int kind, const float *scale) {
  ATTN_VF_ r[ATTN_W_];
  for (int lane = 0; lane < n; lane += ATTN_W_) {
    ATTN_VF_ a = scale ? ATTN_V_LOAD_(scale + lane) : ATTN_V_SET1_(1.0f);
    for (int64_t c = 0; c < dim; c += ATTN_W_) {
      int w = ATTN_FN_(lanes_left)(dim, c);
      if (w == ATTN_W_ && lane + ATTN_W_ <= n) {
        ATTN_UNROLL_
        for (int i = 0; i < ATTN_W_; i++) {
          r[i] = ATTN_V_MUL_(ATTN_V_LOAD_(src + (c + i) * ATTN_TILE_ + lane), a);
          r[i] = ATTN_FN_(quiet)(r[i]);
        }
        ATTN_V_TRANSPOSE_(r);
        ATTN_UNROLL_
        for (int i = 0; i < ATTN_W_; i++) ATTN_FN_(store)(rows[lane + i], c, r[i], ATTN_W_, kind);
        continue;
      }
      for (int i = 0; i < ATTN_W_; i++) {
        r[i] = ATTN_V_ZERO_();
        if (i >= w) continue;
        r[i] = ATTN_V_MUL_(ATTN_V_LOAD_(src + (c + i) * ATTN_TILE_ + lane), a);
        r[i] = ATTN_FN_(quiet)(r[i]);
      }
      ATTN_V_TRANSPOSE_(r);
      for (int i = 0; i < ATTN_W_ && lane + i < n; i++)
        ATTN_FN_(store)(rows[lane + i], c, r[i], w, kind);
    }
  }
}

ATTN_FUNC_ void ATTN_FN_(unpack)(void *const *rows, const float *src, int n, int64_t dim,
                                 attn_dtype dtype, const float *scale) {
#if ATTN_SPECIALISE_
  switch (dtype) {
    case ATTN_F32: ATTN_FN_(unpack_kind)(rows, src, n, dim, ATTN_F32, scale); break;
    case ATTN_F16: ATTN_FN_(unpack_kind)(rows, src, n, dim, ATTN_F16, scale); break;
    default: ATTN_FN_(unpack_kind)(rows, src, n, dim, ATTN_BF16, scale);
  }
#else
  ATTN_FN_(unpack_kind)(rows, src, n, dim, (int)dtype, scale);
#endif
}

ATTN_FUNC_ void ATTN_FN_(widen)(float *dst, const void *src, int64_t stride, int64_t n, int64_t dim,
                                attn_dtype dtype) {
  const int64_t size = dtype == ATTN_F32 ? 4 : 2;
  for (int64_t r = 0; r < n; r++, dst += dim) {
    const char *row = (const char *)src + r * stride * size;
    int64_t c = 0;
    if (dtype == ATTN_F16) {
      for (; c + ATTN_W_ <= dim; c += ATTN_W_)
        ATTN_V_STORE_(dst + c, ATTN_FN_(load)(row, c, ATTN_W_, ATTN_F16));
    } else if (dtype == ATTN_BF16) {
      for (; c + ATTN_W_ <= dim; c += ATTN_W_)
        ATTN_V_STORE_(dst + c, ATTN_FN_(load)(row, c, ATTN_W_, ATTN_BF16));
    } else {
      for (; c + ATTN_W_ <= dim; c += ATTN_W_)
        ATTN_V_STORE_(dst + c, ATTN_FN_(load)(row, c, ATTN_W_, ATTN_F32));
    }
    if (c < dim) {
      int w = (int)(dim - c);
      ATTN_FN_(store)(dst, c, ATTN_FN_(load)(row, c, w, (int)dtype), w, ATTN_F32);
    }
  }
}

/* x * 0 is 0 for every finite x, else NaN; four sums, or one addition waits for the other */
ATTN_FUNC_ int ATTN_FN_(finite)(const float *x, int64_t stride, int64_t n, int64_t dim) {
  const ATTN_VF_ zero = ATTN_V_ZERO_();
  ATTN_VF_ a0 = zero, a1 = zero, a2 = zero, a3 = zero;
  float lanes[ATTN_W_];
  for (int64_t r = 0; r < n; r++, x += stride) {
    int64_t c = 0;
    for (; c + 4 * ATTN_W_ <= dim; c += 4 * ATTN_W_) {
      a0 = ATTN_V_FMA_(ATTN_V_LOAD_(x + c), zero, a0);
      a1 = ATTN_V_FMA_(ATTN_V_LOAD_(x + c + ATTN_W_), zero, a1);
      a2 = ATTN_V_FMA_(ATTN_V_LOAD_(x + c + 2 * ATTN_W_), zero, a2);
      a3 = ATTN_V_FMA_(ATTN_V_LOAD_(x + c + 3 * ATTN_W_), zero, a3);
    }
    for (; c < dim; c += ATTN_W_)
      a0 = ATTN_V_FMA_(ATTN_FN_(load)(x, c, ATTN_FN_(lanes_left)(dim, c), ATTN_F32), zero, a0);
  }
  ATTN_V_STORE_(lanes, ATTN_V_ADD_(ATTN_V_ADD_(a0, a1), ATTN_V_ADD_(a2, a3)));
  for (int i = 0; i < ATTN_W_; i++)
    if (lanes[i] != 0.0f) return 0;
  return 1;
}

ATTN_FUNC_ void ATTN_FN_(exp_row)(float *y, const float *x, int64_t n) {
  for (int64_t i = 0; i < n; i += ATTN_W_) {
    int w = ATTN_FN_(lanes_left)(n, i);
    ATTN_VF_ e = ATTN_FN_(exp)(ATTN_FN_(load)(x, i, w, ATTN_F32));
    ATTN_FN_(store)(y, i, ATTN_FN_(quiet)(e), w, ATTN_F32);
  }
}

ATTN_FUNC_ void ATTN_FN_(weights)(float *p, const float *x, int64_t n, float m, float scale) {
  ATTN_VF_ vm = ATTN_V_SET1_(m), a = ATTN_V_SET1_(scale);
  for (int64_t i = 0; i < n; i += ATTN_W_) {
    int w = ATTN_FN_(lanes_left)(n, i);
    ATTN_VF_ y = ATTN_V_SUB_(ATTN_FN_(load)(x, i, w, ATTN_F32), vm);
    y = ATTN_V_MUL_(ATTN_FN_(exp2_full)(y), a);
    ATTN_FN_(store)(p, i, ATTN_FN_(quiet)(y), w, ATTN_F32);
  }
}

ATTN_FUNC_ void ATTN_FN_(blend)(void *y, const void *x1, const void *x2, attn_dtype ty,
                                attn_dtype t1, attn_dtype t2, int64_t n, float a, float b) {
  ATTN_VF_ va = ATTN_V_SET1_(a), vb = ATTN_V_SET1_(b);
  for (int64_t i = 0; i < n; i += ATTN_W_) {
    int w = ATTN_FN_(lanes_left)(n, i);
    ATTN_VF_ s = ATTN_V_ZERO_();
    if (x1) s = ATTN_V_MUL_(va, ATTN_FN_(load)(x1, i, w, (int)t1));
    if (x2) s = ATTN_V_FMA_(vb, ATTN_FN_(load)(x2, i, w, (int)t2), s);
    ATTN_FN_(store)(y, i, ATTN_FN_(quiet)(s), w, (int)ty);
  }
}

ATTN_FUNC_ void ATTN_FN_(rope)(void *y, const void *x, attn_dtype ty, attn_dtype tx, int64_t dim,
                               int64_t rot, int half, const float *cos_row, const float *sin_row) {
  if (half) { /* both halves are loaded before either is stored: y may be x */
    int64_t h = rot / 2;
    for (int64_t i = 0; i < h; i += ATTN_W_) {
      int w = ATTN_FN_(lanes_left)(h, i);
      ATTN_VF_ a = ATTN_FN_(load)(x, i, w, (int)tx), b = ATTN_FN_(load)(x, i + h, w, (int)tx);
      ATTN_VF_ co = ATTN_FN_(load)(cos_row, i, w, ATTN_F32);
      ATTN_VF_ sa = ATTN_FN_(load)(sin_row, i, w, ATTN_F32);
      ATTN_VF_ sb = ATTN_FN_(load)(sin_row, i + h, w, ATTN_F32);
      ATTN_VF_ ya = ATTN_V_FMA_(b, sa, ATTN_V_MUL_(a, co));
      ATTN_VF_ yb = ATTN_V_FMA_(a, sb, ATTN_V_MUL_(b, co));
      ATTN_FN_(store)(y, i, ATTN_FN_(quiet)(ya), w, (int)ty);
      ATTN_FN_(store)(y, i + h, ATTN_FN_(quiet)(yb), w, (int)ty);
    }
  } else {
    for (int64_t i = 0; i < rot; i += ATTN_W_) {
      int w = ATTN_FN_(lanes_left)(rot, i);
      ATTN_VF_ a = ATTN_FN_(load)(x, i, w, (int)tx);
      ATTN_VF_ co = ATTN_FN_(load)(cos_row, i, w, ATTN_F32);
      ATTN_VF_ si = ATTN_FN_(load)(sin_row, i, w, ATTN_F32);
      ATTN_VF_ r = ATTN_V_FMA_(ATTN_V_SWAP_PAIRS_(a), si, ATTN_V_MUL_(a, co));
      ATTN_FN_(store)(y, i, ATTN_FN_(quiet)(r), w, (int)ty);
    }
  }
  const int64_t size = ty == ATTN_F32 ? 4 : 2;
  if (ty == tx) { /* the other columns keep their bits */
    if (y != x)
      memcpy((char *)y + rot * size, (const char *)x + rot * size, (size_t)((dim - rot) * size));
    return;
  }
  for (int64_t i = rot; i < dim; i += ATTN_W_) {
    int w = ATTN_FN_(lanes_left)(dim, i);
    ATTN_FN_(store)(y, i, ATTN_FN_(quiet)(ATTN_FN_(load)(x, i, w, (int)tx)), w, (int)ty);
  }
}
/* <<< attn/kernels/rows.h */

static const attn_table_ ATTN_FN_(table) = {
    ATTN_ISA_ID_,          ATTN_FN_(pack),         ATTN_FN_(unpack),        ATTN_FN_(widen),
    ATTN_FN_(score_block), ATTN_FN_(modify_block), ATTN_FN_(softmax_block), ATTN_FN_(value_block),
    ATTN_FN_(scale_block), ATTN_FN_(finite),       ATTN_FN_(join),          ATTN_FN_(divide),
    ATTN_FN_(weights),     ATTN_FN_(exp_row),      ATTN_FN_(blend),         ATTN_FN_(rope)};

#undef ATTN_FN_
/* >>> attn/isa/simd_undef.h */
/* isa/simd_undef.h forgets the vocabulary of one tier, so that the next can define it. */
#undef ATTN_T_
#undef ATTN_ISA_ID_
#undef ATTN_MR_
#undef ATTN_EXP_UNIT_
#undef ATTN_NG_
#undef ATTN_SPECIALISE_
#undef ATTN_VF_
#undef ATTN_VM_
#undef ATTN_V_ABS_
#undef ATTN_V_ADD_
#undef ATTN_V_DIV_
#undef ATTN_V_EQ_
#undef ATTN_V_EXP_FLOOR_
#undef ATTN_V_FMA_
#undef ATTN_V_LDEXP_
#undef ATTN_V_LDEXP_SMALL_
#undef ATTN_V_LOAD_
#undef ATTN_V_LOAD_BF16_
#undef ATTN_V_LOAD_BOOL_
#undef ATTN_V_LOAD_F16_
#undef ATTN_V_LOAD_PART_
#undef ATTN_V_LT_
#undef ATTN_V_MAX_
#undef ATTN_V_MUL_
#undef ATTN_V_ROUND_
#undef ATTN_V_SELECT_
#undef ATTN_V_SLEEF_
#undef ATTN_V_SET1_
#undef ATTN_V_STORE_
#undef ATTN_V_STORE_BF16_
#undef ATTN_V_STORE_F16_
#undef ATTN_V_STORE_PART_
#undef ATTN_V_SUB_
#undef ATTN_V_SWAP_PAIRS_
#undef ATTN_V_TRANSPOSE_
#undef ATTN_V_ZERO_
#undef ATTN_W_
/* <<< attn/isa/simd_undef.h */
/* <<< attn/kernels/pass.h */
#else

#ifndef ATTN_H
#define ATTN_H
/* >>> attn/api/types.h */
/* api/types.h owns the words every call shares: status codes, storage types, tensor and mask
 * views, the context and its report. No mechanism is declared here. */

#include <stddef.h>
#include <stdint.h>

/* The version, as MAJOR * 10000 + MINOR * 100 + PATCH. */
#define ATTN_VERSION 100

/* How every function is declared. ATTN_STATIC makes the implementation private to its file. */
#ifndef ATTN_DEF
#ifdef ATTN_STATIC
#define ATTN_DEF static
#else
#define ATTN_DEF extern
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What a call returns. Anything but ATTN_OK means that no output byte was written;
 * ctx->reason then holds a sentence that names the argument and the rule. */
typedef enum attn_status {
  ATTN_OK = 0,
  ATTN_E_NULL,    /* a required pointer is null */
  ATTN_E_DTYPE,   /* a storage type is unknown, or not one this argument may have */
  ATTN_E_SHAPE,   /* an extent is negative, zero where it must not be, or does not match */
  ATTN_E_HEADS,   /* a head count does not divide the number of query heads */
  ATTN_E_STRIDE,  /* rows of an output share memory with one another */
  ATTN_E_RANGE,   /* a length, offset or window lies outside its range */
  ATTN_E_VALUE,   /* a parameter or a mask entry is NaN or infinite, or has a wrong sign */
  ATTN_E_MASK,    /* a mask does not broadcast to [batch, heads, q_len, k_len], or has a bad kind */
  ATTN_E_OVERLAP, /* an output shares memory with an input or with another output */
  ATTN_E_OVERFLOW,  /* sizes whose product does not fit the address space */
  ATTN_E_WORKSPACE, /* the workspace is smaller than attn_<name>_workspace asks for */
  ATTN_E_MEMORY,    /* ATTN_MALLOC returned null */
  ATTN_E_ISA,       /* the tier asked for cannot run here: attn_isa_why says why */
  ATTN_E_ENV,       /* the environment variable ATTN_ISA names no tier of this machine's family */
  ATTN_E_CTX,       /* a field of attn_ctx is inconsistent */
  ATTN_E_ALIGN,     /* a pointer is not aligned to the size of its elements */
  ATTN_STATUS_COUNT
} attn_status;

/* A static English sentence for a status; never null, also for values out of range. */
ATTN_DEF const char *attn_status_string(attn_status status);

/* How numbers are stored. Arithmetic is f32 whatever the storage; conversion to 16 bits rounds
 * to nearest even and keeps infinities and NaN. */
typedef enum attn_dtype {
  ATTN_F32 = 0,  /* float */
  ATTN_F16 = 1,  /* IEEE binary16, as uint16_t */
  ATTN_BF16 = 2, /* upper half of a float, as uint16_t */
  ATTN_DTYPE_COUNT
} attn_dtype;

/* Asks for a real zero where 0 means "default" (a scale of 0). */
#define ATTN_ZERO (-0.0f)

/* A view of a [batch, heads, len, dim] array. Strides are in elements and may be anything (0
 * broadcasts an input, negative walks backwards); dim is contiguous; data is aligned to its
 * elements, no more.
 * A null data pointer means "absent" for optional tensors. */
typedef struct attn_tensor {
  void *data;
  attn_dtype dtype;
  int64_t batch, heads, len, dim;
  int64_t stride_batch, stride_head, stride_len;
} attn_tensor;

/* A dense view of data laid out [batch][heads][len][dim]. Inputs may be const: only tensors
 * named as outputs are written. */
ATTN_DEF attn_tensor attn_bhtd(const void *data, attn_dtype dtype, int64_t batch, int64_t heads,
                               int64_t len, int64_t dim);

/* A dense view of data laid out [batch][len][heads][dim] (projections before the head split). */
ATTN_DEF attn_tensor attn_bthd(const void *data, attn_dtype dtype, int64_t batch, int64_t len,
                               int64_t heads, int64_t dim);

/* What the entries of a mask are. */
typedef enum attn_mask_kind {
  ATTN_MASK_NONE = 0, /* no mask */
  ATTN_MASK_BOOL,     /* uint8_t, 0 = forbidden, anything else = allowed */
  ATTN_MASK_BITS,     /* one bit a key, bit (j & 7) of byte (j >> 3), 1 = allowed */
  ATTN_MASK_ADD       /* a number of type dtype, added to the scaled score; -inf forbids */
} attn_mask_kind;

/* A view of a [batch, heads, q_len, k_len] mask. Each extent is the call's extent or 1, which
 * broadcasts. Strides count entries, for ATTN_MASK_BITS bytes; entries along k are contiguous. */
typedef struct attn_mask {
  const void *data;
  attn_mask_kind kind;
  attn_dtype dtype; /* of ATTN_MASK_ADD */
  int64_t batch, heads, q_len, k_len;
  int64_t stride_batch, stride_head, stride_q;
} attn_mask;

/* Dense masks; pass 1 for every extent that broadcasts. A row of bits starts on a byte. */
ATTN_DEF attn_mask attn_mask_bool(const uint8_t *data, int64_t batch, int64_t heads, int64_t q_len,
                                  int64_t k_len);
ATTN_DEF attn_mask attn_mask_bits(const uint8_t *data, int64_t batch, int64_t heads, int64_t q_len,
                                  int64_t k_len);
ATTN_DEF attn_mask attn_mask_add(const void *data, attn_dtype dtype, int64_t batch, int64_t heads,
                                 int64_t q_len, int64_t k_len);

/* The tiers. Later ones are appended; see api/isa.h. */
typedef enum attn_isa {
  ATTN_ISA_AUTO = 0, /* the fastest that runs here */
  ATTN_ISA_SCALAR,   /* portable C */
  ATTN_ISA_AVX2,     /* x86: AVX2, FMA, F16C */
  ATTN_ISA_AVX512,   /* x86: AVX-512 F, BW, DQ, VL, CD */
  ATTN_ISA_NEON,     /* ARM: aarch64, or 32-bit compiled for NEON with VFPv4 */
  ATTN_ISA_COUNT
} attn_isa;

/* One of the pieces of work of a call: task(arg, index). */
typedef void (*attn_task_fn)(void *arg, int64_t index);

/* Runs task(arg, index) once for every index in 0..count-1, in any order, on any threads, one
 * after another if it must, and returns when all are done. user is ctx->parallel_user. count
 * is never above ctx->workers. */
typedef void (*attn_parallel_fn)(void *user, int64_t count, attn_task_fn task, void *arg);

/* What a call did, written on success. */
typedef struct attn_report {
  attn_isa isa;     /* the tier that ran */
  int workers;      /* pieces the work was cut into */
  const char *path; /* the name of the algorithm */
  const char *why;  /* why it was chosen */
  int64_t pairs;    /* query-key scores computed, masked ones inside a tile included */
} attn_report;

/* How a call runs. NULL or {0} (in C++ also {}): fastest tier, serial, memory from ATTN_MALLOC. One attn_ctx
 * belongs to one call at a time; calls with different contexts may run at once. */
typedef struct attn_ctx {
  int validate;                  /* also read masks and reject NaN and +inf in them */
  attn_isa isa;                  /* a tier to force, or ATTN_ISA_AUTO */
  void *workspace;               /* memory to work in, any alignment; null = ATTN_MALLOC */
  size_t workspace_size;         /* its bytes */
  attn_parallel_fn parallel_for; /* null = serial */
  void *parallel_user;
  int workers;        /* the most pieces to cut the work into; 0 = 1 */
  const char *reason; /* out: why the call was rejected, null after a success */
  attn_report report; /* out */
} attn_ctx;

#ifdef _OPENMP
/* A ready parallel_for for programs compiled with OpenMP; user is ignored. Set ctx.workers to
 * omp_get_max_threads() or less. */
ATTN_DEF void attn_parallel_openmp(void *user, int64_t count, attn_task_fn task, void *arg);
#endif
/* <<< attn/api/types.h */
/* >>> attn/api/isa.h */
/* api/isa.h owns the public questions about tiers: which exist, which run, and why not. */

/* Why a tier runs or does not. */
typedef enum attn_isa_state {
  ATTN_ISA_OK = 0,       /* runs */
  ATTN_ISA_NOT_COMPILED, /* another processor family, an ATTN_NO_<TIER> switch, or the compiler */
  ATTN_ISA_CPU_LACKS,    /* the processor has not all of its instructions */
  ATTN_ISA_OS_LACKS,     /* the operating system does not save its registers */
  ATTN_ISA_CAPPED        /* ATTN_ISA or attn_isa_limit() rules it out */
} attn_isa_state;

/* "auto", "scalar", "avx2", "avx512", "neon"; "unknown" for any other value. */
ATTN_DEF const char *attn_isa_name(attn_isa isa);

/* The state of a tier here and now. ATTN_ISA_AUTO and unknown values are NOT_COMPILED.
 * List the tiers with: for (int i = 1; i < ATTN_ISA_COUNT; i++) attn_isa_status((attn_isa)i). */
ATTN_DEF attn_isa_state attn_isa_status(attn_isa isa);

/* The same as a static English sentence, e.g. "the processor lacks AVX-512 F, BW, DQ, VL or CD". */
ATTN_DEF const char *attn_isa_why(attn_isa isa);

/* The tier that ATTN_ISA_AUTO stands for now. With an ATTN_ISA that names no tier it is
 * ATTN_ISA_SCALAR, and every call returns ATTN_E_ENV. */
ATTN_DEF attn_isa attn_isa_best(void);

/* Caps the tiers of the whole process: those above isa are off (x86: scalar < avx2 < avx512;
 * ARM: scalar < neon). ATTN_ISA_AUTO lifts the cap. The environment variable ATTN_ISA, read at
 * first use, caps as well; the lower cap holds. Safe to call from any thread; calls that run
 * already keep their tier. ATTN_E_ISA for a tier of another family, ATTN_E_ENV if ATTN_ISA
 * holds an unknown word. */
ATTN_DEF attn_status attn_isa_limit(attn_isa isa);
/* <<< attn/api/isa.h */
/* >>> attn/api/math.h */
/* api/math.h owns the elementary functions of the kernels, offered by themselves. */

/* y[i] = exp(x[i]), the polynomial all softmaxes here use: at most 2 ULP (docs/numerics.md has
 * the measured worst) for every float, subnormal results included; overflow gives +inf, exp(-inf)
 * = 0, NaN stays NaN. The same bits whatever n and i (body and tail alike) on avx2, avx512, neon.
 * y may be x. n = 0 is a no-op. Errors: NULL, SHAPE (n < 0), OVERLAP, ISA, ENV, CTX. */
ATTN_DEF attn_status attn_exp(float *y, const float *x, int64_t n, attn_ctx *ctx);
/* <<< attn/api/math.h */
/* >>> attn/api/core.h */
/* api/core.h owns family A: exact softmax attention and the merging of partial results. */

/* Keys a query sees behind and ahead of itself when a window field must say "none": 0 means
 * unlimited there. */
#define ATTN_WINDOW_NONE (-1)

/* Everything attn_sdpa can be told; {0} is plain attention. */
typedef struct attn_sdpa_params {
  float scale;           /* 0 = 1/sqrt(dk); ATTN_ZERO = 0; any finite value */
  int causal;            /* key j only for queries with j <= i + q_off */
  int has_q_off;         /* 1: q_off below holds; 0: q_off = Tk - Tq (ends aligned) */
  int64_t q_off;         /* query i sits at key position i + q_off; |q_off| < 2^40; else 0 */
  int64_t window_left;   /* furthest key behind: 0 = any, n = up to n back, ATTN_WINDOW_NONE = 0 */
  int64_t window_right;  /* furthest key ahead, likewise */
  const int32_t *kv_len; /* [B], 0..Tk: keys from kv_len[b] on are forbidden and never read */
  const int32_t *q_len;  /* [B], 0..Tq: rows from q_len[b] on are empty */
  attn_mask mask;        /* ATTN_MASK_BOOL or ATTN_MASK_BITS */
  attn_mask bias;        /* ATTN_MASK_ADD; not multiplied by the scale */
  const float *alibi;    /* [H] slopes m_h: adds -m_h |j - i - q_off| (attn_alibi_slopes) */
  float softcap;         /* c > 0: scores become c tanh(score / c), before any bias; 0 = off */
  const float *sinks;    /* [H] logits that join each row's denominator, without a value */
  int softmax_one;       /* 1: one more exp(0) in each denominator (softmax off by one) */
  attn_tensor lse;       /* out, optional: [B,H,Tq,1] f32, log of each row's denominator */
  attn_tensor map;       /* out, optional: [B,H,Tq,Tk] f32, the weights P */
} attn_sdpa_params;

/* Scaled dot-product attention: self or cross, multi-head, multi-query and grouped-query.
 *
 *   x_ij = cap(s q_i . k_j) + bias_ij - m_h |j - p_i|   for allowed j,  p_i = i + q_off
 *   LSE_i = log(sum_j exp(x_ij) + exp(sink_h) + [softmax_one])
 *   P_ij  = exp(x_ij - LSE_i),   O_i = sum_j P_ij v_j
 *
 * Shapes: q [B,H,Tq,dk], k [B,Hk,Tk,dk], v [B,Hv,Tk,dv], o [B,H,Tq,dv]. Hk and Hv each divide
 *   H; query head h reads key head h*Hk/H and value head h*Hv/H (integer division). Any dk, dv
 *   >= 1. B, Tq, Tk may be 0. Storage types of q, k, v, o are independent.
 * Allowed keys: causal, window, mask, bias > -inf and kv_len combine by AND.
 * Aliasing: inputs may share memory with each other; outputs with nothing. Rows of one output
 *   must not share memory with one another.
 * Memory: attn_sdpa_workspace bytes, O(tile * (dk + dv)) per worker whatever Tq and Tk; no
 *   Tq x Tk array unless map is given.
 * Empty rows (no allowed key, or i >= q_len): O = 0, P = 0, LSE = -inf. A sink counts as a key
 *   that is always allowed and has value 0, so it makes the LSE of a row before q_len finite:
 *   when partial results are merged, give sinks and softmax_one to one part only.
 * NaN: a forbidden key never reaches an output, whatever k and v hold there. NaN in a query row
 *   or in k or v of an allowed key makes NaN in exactly the rows that read it. A score of +inf
 *   gives NaN; an allowed score of -inf has weight 0.
 * Errors: NULL, DTYPE, SHAPE, HEADS, STRIDE, RANGE, VALUE, MASK, OVERLAP, OVERFLOW, WORKSPACE,
 *   MEMORY, ISA, ENV, CTX, ALIGN; outputs untouched.
 * Determinism: the same bits on avx2, avx512 and neon, for any number of workers, batch
 *   composition and division of the queries (at the same key positions).
 * Cost: 2 (dk + dv) flops a pair over the tiles that causal, window and lengths leave.
 * Source: Vaswani et al. 2017, arXiv 1706.03762; grouped heads: Shazeer 2019, arXiv 1911.02150,
 *   Ainslie et al. 2023, arXiv 2305.13245; free head width: Bhojanapalli et al. 2020, arXiv
 *   2002.07028; ALiBi: Press et al. 2021, arXiv 2108.12409; sinks: Xiao et al. 2023, arXiv
 *   2309.17453; streaming softmax: Milakov and Gimelshein 2018, arXiv 1805.02867. */
ATTN_DEF attn_status attn_sdpa(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                               const attn_sdpa_params *params, attn_ctx *ctx);

/* Bytes attn_sdpa wants in ctx->workspace for these arguments and ctx->workers; reads no data.
 * 0 when the call would be rejected or has nothing to do. */
ATTN_DEF size_t attn_sdpa_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                    const attn_sdpa_params *params, const attn_ctx *ctx);

/* Merges the results of one set of queries over two disjoint sets of keys:
 *
 *   L = log(exp(L1) + exp(L2)),  O = exp(L1 - L) O1 + exp(L2 - L) O2
 *
 * Shapes: o, o1, o2 [B,H,T,dv], any storage types; lse, lse1, lse2 [B,H,T,1] f32; lse may be
 *   absent. Row by row; outputs may be the same memory as o1/lse1 or o2/lse2 with equal
 *   strides and types, otherwise they share memory with nothing.
 * Empty: a part with L = -inf contributes nothing, whatever its O holds, and the other part is
 *   copied bit for bit (exact identity, for equal storage types); both -inf give O = 0, L = -inf.
 * Parts: the one over keys from j0 on wants has_q_off = 1 and q_off - j0, kv_len counted from j0,
 *   and masks cut likewise.
 * NaN: a NaN or +inf in L1 or L2 makes the row NaN. A part with finite L is read even when its
 *   weight underflows, so a NaN in it shows. Memory: none. Cost: one pass over O1, O2, O.
 * Errors: NULL, DTYPE, SHAPE, STRIDE, OVERLAP, OVERFLOW, ISA, ENV, CTX, ALIGN; outputs
 *   untouched.
 * Determinism: as attn_sdpa. Source: Rabe and Staats 2021, arXiv 2112.05682. */
ATTN_DEF attn_status attn_merge(attn_tensor o, attn_tensor lse, attn_tensor o1, attn_tensor lse1,
                                attn_tensor o2, attn_tensor lse2, attn_ctx *ctx);

/* Bytes attn_merge wants: 0. */
ATTN_DEF size_t attn_merge_workspace(attn_tensor o, attn_tensor lse, attn_tensor o1,
                                     attn_tensor lse1, attn_tensor o2, attn_tensor lse2,
                                     const attn_ctx *ctx);
/* <<< attn/api/core.h */
/* >>> attn/api/position.h */
/* api/position.h owns family B: positions. */

/* Which columns form a rotated pair. */
typedef enum attn_rope_layout {
  ATTN_ROPE_INTERLEAVED = 0, /* (2m, 2m+1), the paper */
  ATTN_ROPE_HALF             /* (m, m + rot/2), GPT-NeoX, Llama weights of many engines */
} attn_rope_layout;

typedef struct attn_rope_params {
  int64_t rot; /* columns that rotate, even; 0 = dim; ATTN_ROPE_NONE = none */
  double base; /* 0 = 10000 */
  attn_rope_layout layout;
  int inverse;              /* 1: rotate back */
  int64_t start;            /* position of row 0, if positions is null; may be negative */
  const int64_t *positions; /* [T], or [B,T] when positions_per_batch */
  int positions_per_batch;
} attn_rope_params;

#define ATTN_ROPE_NONE (-1)

/* Rotary position embedding of queries or keys.
 *
 *   phi = position * base^(-2m/rot),  m = 0..rot/2-1
 *   y_a = x_a cos phi - x_b sin phi,  y_b = x_a sin phi + x_b cos phi
 *
 * Shapes: x, y [B,H,T,d], any storage types; columns rot..d-1 are copied. rot = d needs d even.
 * Aliasing: y may be x with the same strides and type (in place), else they share no memory.
 * Queries behind a cache have start = Tk - Tq. Angles are formed and reduced in double, so that
 *   positions up to 10^6 and beyond keep an error below 1e-6.
 * Memory: attn_rope_workspace bytes, O(rot) per worker. Empty: B, H or T of 0 is a no-op.
 * NaN: stays in its pair; columns from rot on keep their bits when the types are equal. Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE (rot, layout, start
 *   beyond 2^61), VALUE (base),
 *   OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; outputs untouched.
 * Determinism: the same bits for every tier but scalar and any worker count; a row's rotation
 *   depends on its position alone. Cost: 6 flops a pair, and 6 multiplications per position and m,
 *   shared by all heads (and by all batch entries unless positions_per_batch).
 * Source: Su et al. 2021, arXiv 2104.09864. */
ATTN_DEF attn_status attn_rope(attn_tensor y, attn_tensor x, const attn_rope_params *params,
                               attn_ctx *ctx);
ATTN_DEF size_t attn_rope_workspace(attn_tensor y, attn_tensor x, const attn_rope_params *params,
                                    const attn_ctx *ctx);

/* The ALiBi slopes of the paper for n heads into slopes[n]: with c the largest power of two <= n,
 * 2^(-8(h+1)/c) for h < c, then 2^(-4(2r+1)/c) for r = 0..n-c-1. Pass them as
 * attn_sdpa_params.alibi. ATTN_E_NULL without slopes, ATTN_E_SHAPE for n < 1.
 * Source: Press et al. 2021, arXiv 2108.12409. */
ATTN_DEF attn_status attn_alibi_slopes(float *slopes, int64_t n);
/* <<< attn/api/position.h */
/* >>> attn/api/end.h */
/* api/end.h closes the declarations. */
#ifdef __cplusplus
}
#endif
/* <<< attn/api/end.h */
#endif

#if defined(ATTN_IMPLEMENTATION) && !defined(ATTN_IMPLEMENTED)
#define ATTN_IMPLEMENTED
/* >>> attn/isa/config.h */
/* isa/config.h owns what the compiler and the target are: processor family, inlining, target
 * regions, the hooks a user may override. Nothing here looks at the running machine. */

#include <float.h>
#include <math.h>
#include <string.h>

/* The name by which this file includes itself, once per tier. Define it when you rename attn.h. */
#ifndef ATTN_SELF
#define ATTN_SELF "attn.h"
#endif
#ifdef __has_include
#if !__has_include(ATTN_SELF)
#error "attn.h was renamed or is not on the include path: define ATTN_SELF as its name"
#endif
#endif

/* Memory for calls without a workspace. Define both or neither. */
#if defined(ATTN_MALLOC) != defined(ATTN_FREE)
#error "define ATTN_MALLOC and ATTN_FREE together"
#endif
#ifndef ATTN_MALLOC
#include <stdlib.h>
#define ATTN_MALLOC(size) malloc(size)
#define ATTN_FREE(ptr) free(ptr)
#endif
#ifndef ATTN_NO_GETENV
#include <stdlib.h>
#endif

#if defined(__clang__)
#define ATTN_CLANG_ 1
#elif defined(__GNUC__)
#define ATTN_GCC_ 1
#elif defined(_MSC_VER)
#define ATTN_MSVC_ 1
#endif

/* gcc takes the flag back for our functions; clang cannot, and folds the rounding and the tests for
 * NaN and -inf away. */
#if defined(ATTN_CLANG_) && (defined(__FAST_MATH__) || __FINITE_MATH_ONLY__)
#error "compile the file that defines ATTN_IMPLEMENTATION without -ffast-math and -Ofast"
#endif

#if defined(__x86_64__) || defined(__i386__) || defined(_M_X64) || defined(_M_IX86)
#define ATTN_X86_ 1
#elif defined(__aarch64__) || defined(_M_ARM64)
#define ATTN_ARM64_ 1
#elif defined(__arm__) && defined(__ARM_NEON) && defined(__ARM_FEATURE_FMA)
#define ATTN_ARM32_ 1
#endif
#if defined(__BYTE_ORDER__) && defined(__ORDER_BIG_ENDIAN__)
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define ATTN_BIG_ENDIAN_ 1
#endif
#endif

/* Which tiers are compiled. gcc for Windows misaligns the stack for wide vectors (gcc bug 54412);
 * define ATTN_FORCE_X86 if your compiler has that mended. */
#if defined(ATTN_X86_) && !(defined(__MINGW32__) && defined(ATTN_GCC_) && !defined(ATTN_FORCE_X86))
#ifndef ATTN_NO_AVX2
#define ATTN_HAS_AVX2_ 1
#endif
#ifndef ATTN_NO_AVX512
#define ATTN_HAS_AVX512_ 1
#endif
#endif
#if (defined(ATTN_ARM64_) || defined(ATTN_ARM32_)) && !defined(ATTN_BIG_ENDIAN_) && \
    !defined(ATTN_NO_NEON)
#define ATTN_HAS_NEON_ 1
#endif

/* Intrinsics headers come before any region: gcc ties their functions to the region they are
 * first seen in. */
#if defined(ATTN_HAS_AVX2_) || defined(ATTN_HAS_AVX512_)
#include <immintrin.h>
#endif
#if defined(ATTN_X86_) && defined(ATTN_MSVC_)
#include <intrin.h>
#elif defined(ATTN_X86_)
#include <cpuid.h>
#endif
#ifdef ATTN_HAS_NEON_
#include <arm_neon.h>
#endif

#if defined(ATTN_MSVC_)
#define ATTN_INLINE_ static __forceinline
#elif defined(__GNUC__)
#define ATTN_INLINE_ static inline __attribute__((always_inline, unused))
#else
#define ATTN_INLINE_ static inline
#endif

/* Before a short loop over vectors: unrolled whole, its array becomes registers. */
#if defined(ATTN_CLANG_)
#define ATTN_UNROLL_ _Pragma("clang loop unroll(full)")
#elif defined(ATTN_GCC_)
#define ATTN_UNROLL_ _Pragma("GCC unroll 16")
#else
#define ATTN_UNROLL_
#endif

/* A static function that a build may leave unused. */
#if defined(__GNUC__)
#define ATTN_FUNC_ static __attribute__((unused))
#else
#define ATTN_FUNC_ static
#endif
/* A public function. Unused ones must not warn when the implementation is private to a file. */
#if defined(ATTN_STATIC) && defined(__GNUC__)
#define ATTN_PUB_ static __attribute__((unused))
#elif defined(ATTN_STATIC)
#define ATTN_PUB_ static
#else
#define ATTN_PUB_
#endif

/* Atomics: relaxed is enough, since what they guard is idempotent. Compilers without them get
 * plain volatile accesses, which are atomic for aligned ints on everything they target. */
#if defined(__GNUC__)
#define ATTN_ATOMIC_LOAD_(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define ATTN_ATOMIC_STORE_(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#else
#define ATTN_ATOMIC_LOAD_(p) (*(p))
#define ATTN_ATOMIC_STORE_(p, v) ((void)(*(p) = (v)))
#endif

/* Which of SLEEF's functions a sleef.h included earlier has declared: it looks at the compiler's
 * flags, and its prototypes cannot be repeated in C++. Asked here, before any region. */
#if defined(ATTN_USE_SLEEF) && defined(__SLEEF_H__)
#define ATTN_SLEEF_HAS_SCALAR_ 1
#ifdef __AVX__
#define ATTN_SLEEF_HAS_AVX2_ 1
#endif
#ifdef __AVX512F__
#define ATTN_SLEEF_HAS_AVX512_ 1
#endif
#ifdef __ARM_NEON
#define ATTN_SLEEF_HAS_NEON_ 1
#endif
#endif

/* A region compiles the functions inside it for more than the baseline, and never lets the
 * compiler fuse a*b+c by itself: where bits must agree between tiers the code says FMA. */
#define ATTN_PRAGMA_(...) _Pragma(#__VA_ARGS__)
#define ATTN_PRAGMA_EXPAND_(...) ATTN_PRAGMA_(__VA_ARGS__)

/* The features of each tier: F(name, CPUID leaf, register, bit) then R(...) for the rest. The
 * region's target list and the run-time test are both made from this row. */
#define ATTN_FEATURES_AVX2_(F, R) \
  F("avx2", 7, EBX, 5) R("fma", 1, ECX, 12) R("f16c", 1, ECX, 29) R("avx", 1, ECX, 28)
/* clang-format off */
#define ATTN_FEATURES_AVX512_(F, R)                                              \
  ATTN_FEATURES_AVX2_(F, R) R("avx512f", 7, EBX, 16) R("avx512bw", 7, EBX, 30)  \
  R("avx512dq", 7, EBX, 17) R("avx512vl", 7, EBX, 31) R("avx512cd", 7, EBX, 28)
/* clang-format on */
/* The register state the system must save: SSE+AVX, then AVX-512's masks and upper halves. */
#define ATTN_XCR0_AVX2_ 0x06u
#define ATTN_XCR0_AVX512_ 0xE6u

#define ATTN_NAME_FIRST_(name, leaf, reg, bit) name
#if defined(ATTN_CLANG_)
#define ATTN_NAME_REST_(name, leaf, reg, bit) "," name
#define ATTN_BEGIN_REGION_(row)             \
  ATTN_PRAGMA_EXPAND_(clang attribute push( \
      __attribute__((target(row(ATTN_NAME_FIRST_, ATTN_NAME_REST_)))), apply_to = function))
#define ATTN_END_REGION_ ATTN_PRAGMA_(clang attribute pop)
#define ATTN_BEGIN_STRICT_ ATTN_PRAGMA_(STDC FP_CONTRACT OFF)
#define ATTN_END_STRICT_ ATTN_PRAGMA_(STDC FP_CONTRACT DEFAULT)
#elif defined(ATTN_GCC_)
#define ATTN_NAME_REST_(name, leaf, reg, bit) , name
#define ATTN_BEGIN_REGION_(row)  \
  ATTN_PRAGMA_(GCC push_options) \
  ATTN_PRAGMA_EXPAND_(GCC target(row(ATTN_NAME_FIRST_, ATTN_NAME_REST_)))
#define ATTN_END_REGION_ ATTN_PRAGMA_(GCC pop_options)
#define ATTN_BEGIN_STRICT_ \
  ATTN_PRAGMA_(GCC push_options) ATTN_PRAGMA_(GCC optimize("fp-contract=off", "no-fast-math"))
#define ATTN_END_STRICT_ ATTN_PRAGMA_(GCC pop_options)
#else
#define ATTN_BEGIN_REGION_(row)
#define ATTN_END_REGION_
#define ATTN_BEGIN_STRICT_
#define ATTN_END_STRICT_
#endif

#define ATTN_CAT2_(a, b) a##b
#define ATTN_CAT_(a, b) ATTN_CAT2_(a, b)
/* <<< attn/isa/config.h */
#ifdef __cplusplus
extern "C" {
#endif
/* >>> attn/isa/half.h */
/* isa/half.h owns the 16-bit formats in portable C, for the scalar tier and for tails. */

ATTN_INLINE_ float attn_from_bits_(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}
ATTN_INLINE_ uint32_t attn_to_bits_(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

ATTN_INLINE_ float attn_from_bf16_(uint16_t h) { return attn_from_bits_((uint32_t)h << 16); }

ATTN_INLINE_ uint16_t attn_to_bf16_(float f) {
  uint32_t x = attn_to_bits_(f);
  if (f != f) return (uint16_t)((x | 0x400000u) >> 16);
  return (uint16_t)((x + 0x7fffu + ((x >> 16) & 1u)) >> 16);
}

ATTN_INLINE_ float attn_from_f16_(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3ffu;
  if (e == 31) return attn_from_bits_(sign | 0x7f800000u | (m << 13) | (m ? 0x400000u : 0u));
  if (e != 0) return attn_from_bits_(sign | ((e + 112u) << 23) | (m << 13));
  /* subnormal: m * 2^-24, exact in f32 */
  return attn_from_bits_(sign | attn_to_bits_((float)m * 5.9604644775390625e-8f));
}

ATTN_INLINE_ uint16_t attn_to_f16_(float f) {
  uint32_t x = attn_to_bits_(f), sign = (x >> 16) & 0x8000u, a = x & 0x7fffffffu;
  if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
  if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65520 or more */
  if (a < 0x38800000u) { /* subnormal result: adding 0.5 leaves m in the low bits, rounded */
    uint32_t m = attn_to_bits_(attn_from_bits_(a) + 0.5f) - 0x3f000000u;
    return (uint16_t)(sign | m);
  }
  return (uint16_t)(sign | ((a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u) >> 13));
}
/* <<< attn/isa/half.h */
/* >>> attn/isa/table.h */
/* isa/table.h owns the thin waist: the type of the table of primitives that each tier fills. What
 * each primitive computes is said here once; kernels/ holds the one text that computes it.
 *
 * Queries sit in vector lanes. A tile is ATTN_TILE_ query rows, in groups of ATTN_GROUP_ lanes,
 * the same on every tier; arrays over a tile are [n][ATTN_TILE_], "lane" runs along a row of
 * queries. g0..g1 selects lane groups. Scores are in log2 units. */

#define ATTN_TILE_ 64
#define ATTN_GROUP_ 16
/* Keys between two updates of the running maximum; part of the bits of every result. */
#define ATTN_BLOCK_ 128

/* What pack reads: an attn_dtype, plus BIAS for numbers that must stay finite, or bytes that stand
 * for 0 and -inf. */
#define ATTN_KIND_BIAS_ 16
#define ATTN_KIND_BOOL_ 32

#define ATTN_LOG2E_ 1.4426950408889634074
#define ATTN_LN2_ 0.69314718055994530942

/* What is done to a score, in this order whatever the mechanism:
 *   E0  transforms of q, k, v rows     attn_rope, before the call
 *   E1  dot product                    score_block
 *   E2  dot with a table by distance   here, none yet
 *   E3  scale                          folded into the packed queries
 *   E4  multiplicative                 softcap; a rectifier and a factor by distance, none yet
 *   E5  additive                       a table by distance, none yet; b slope; c quadratic, none
 *                                      yet; d bias; e key; f log multiplier, none yet
 *   E6  maps                           the driver emits the scores
 *   E7  allowed set                    allow, lo and hi; -inf in bias and key
 *   E8  softmax                        softmax_block
 *   E9  value sum                      value_block
 *   E10 outputs                        the driver
 * A null or zero field is an absent stage. Arrays over keys start at the same key as the scores. */
typedef struct attn_modifiers_ {
  float softcap;      /* E4: cap, in log2 units */
  const float *slope; /* E5b: [lane], -m_h in log2 units */
  const float *rel;   /* E5b: [lane], first key of the block minus the query's position */
  const float *bias;  /* E5d: [key][lane], log2 units, -inf forbids */
  const float *key;   /* E5e: [key], log2 units, -inf forbids */
  const float *allow; /* E7: [key][lane], 0 or -inf */
  const float *lo;    /* E7: [lane], keys lo <= j < hi of the block are allowed */
  const float *hi;
} attn_modifiers_;

/* Which modifiers are present. */
enum {
  ATTN_USE_CAP_ = 1,
  ATTN_USE_SLOPE_ = 2,
  ATTN_USE_BIAS_ = 4,
  ATTN_USE_KEY_ = 8,
  ATTN_USE_ALLOW_ = 16,
  ATTN_USE_BOUND_ = 32
};

typedef struct attn_table_ {
  attn_isa isa;
  /* dst[c][lane] = row[lane][c] * (hi + lo), lanes n.. up to a whole group = 0 */
  void (*pack)(float *dst, const void *const *rows, int n, int64_t dim, int kind, float hi,
               float lo);
  /* row[lane][c] = src[c][lane] * scale[lane] (null = 1); a NaN is stored as the one default NaN */
  void (*unpack)(void *const *rows, const float *src, int n, int64_t dim, attn_dtype dtype,
                 const float *scale);
  /* dst[r][c] = src row r, any type to f32 */
  void (*widen)(float *dst, const void *src, int64_t stride, int64_t n, int64_t dim,
                attn_dtype dtype);
  /* s[j][lane] = sum_c k[j][c] qt[c][lane] in the order of c; top[lane] = max(top, s) */
  void (*score_block)(float *s, const float *qt, const float *k, int64_t stride, int64_t n,
                      int64_t dk, int g0, int g1, float *top);
  /* applies the modifiers to n keys of s, the first of which is number key of its block, and sets
   * top[lane] = max(top, s) */
  void (*modify_block)(float *s, int64_t key, int64_t n, int g0, int g1, const attn_modifiers_ *mod,
                       float *top);
  /* joins the scores to the running softmax: m' = max(m, top), alpha = 2^(m - m'),
   * s = 2^(s - m'), l = l alpha + sum_j s */
  void (*softmax_block)(float *s, int64_t n, int g0, int g1, float *m, float *l, float *alpha,
                        const float *top);
  /* ot[c][lane] = ot[c][lane] alpha[lane] + sum_j v[j][c] p[j][lane] in the order of j. alpha
   * null = 1; start = ot is taken as 0 */
  void (*value_block)(float *ot, const float *p, const float *v, int64_t stride, int64_t n,
                      int64_t dv, int g0, int g1, const float *alpha, int start);
  /* x[r][lane] *= alpha[lane] */
  void (*scale_block)(float *x, int64_t n, int g0, int g1, const float *alpha);
  /* 1 when every number of n rows is finite */
  int (*finite)(const float *x, int64_t stride, int64_t n, int64_t dim);
  /* joins one logit without a value to the softmax: scale[lane] *= what the old part keeps */
  void (*join)(float *m, float *l, float *scale, const float *logit);
  /* x[lane] = x / y, 0 where y = 0 */
  void (*divide)(float *x, const float *y);
  /* p[j] = 2^(x[j] - m) * scale */
  void (*weights)(float *p, const float *x, int64_t n, float m, float scale);
  /* y[i] = exp(x[i]) */
  void (*exp)(float *y, const float *x, int64_t n);
  /* y = a x1 + b x2, a row; a part may be null */
  void (*blend)(void *y, const void *x1, const void *x2, attn_dtype ty, attn_dtype t1,
                attn_dtype t2, int64_t n, float a, float b);
  /* rotates one row: y[c] = x[c] cos[c] + x[pair of c] sin[c] for c < rot, y[c] = x[c] after */
  void (*rope)(void *y, const void *x, attn_dtype ty, attn_dtype tx, int64_t dim, int64_t rot,
               int half, const float *cos_row, const float *sin_row);
} attn_table_;
/* <<< attn/isa/table.h */
/* >>> attn/isa/tiers.h */
/* isa/tiers.h owns the stanzas: each compiles the pass for one tier inside its region. A tier is
 * one vocabulary file, one feature row in isa/config.h and one stanza here. */

/* Adding 1.5 * 2^23 + 126 to a small number rounds it to an integer n and leaves n + 126, the
 * exponent field of 2^(n-1), in the low bits. The constant is even, so that ties go to even n as
 * rounding instructions have it; the factor 2 that is missing is in the polynomial, see
 * ATTN_EXP_UNIT_. */
#define ATTN_EXP_BIAS_ 12583038.0f
#define ATTN_EXP_BIAS_BITS_ 0x4B40007E
#define ATTN_EXP_C1_ 6.931472e-01f
#define ATTN_EXP_C2_ 2.4022646e-01f
#define ATTN_EXP_C3_ 5.5503383e-02f
#define ATTN_EXP_C4_ 9.61856e-03f
#define ATTN_EXP_C5_ 1.3397282e-03f
#define ATTN_EXP_C6_ 1.5322551e-04f

ATTN_BEGIN_STRICT_
/* >>> attn/isa/simd_scalar.h */
/* isa/simd_scalar.h owns the vocabulary of the scalar tier in portable C: 4 lanes as a plain
 * struct, which compilers map to whatever baseline vectors there are. The words are explained in
 * isa/simd_avx512.h. FMA rounds twice here: this tier is held to the error bounds, not the bits. */

#define ATTN_T_ scalar
#define ATTN_ISA_ID_ ATTN_ISA_SCALAR
#define ATTN_W_ 4
#define ATTN_MR_ 1
#define ATTN_NG_ 1
#define ATTN_SPECIALISE_ 0 /* it would cost compile time, and gain little here */

#define ATTN_VF_ attn_v4_
#define ATTN_VM_ attn_m4_
#define ATTN_V_LOAD_(p) attn_load_part_scalar_(p, 4)
#define ATTN_V_STORE_(p, v) attn_store_part_scalar_(p, v, 4)
#define ATTN_V_LOAD_PART_(p, n) attn_load_part_scalar_(p, n)
#define ATTN_V_STORE_PART_(p, v, n) attn_store_part_scalar_(p, v, n)
#define ATTN_V_SET1_(x) attn_set1_scalar_(x)
#define ATTN_V_ZERO_() attn_set1_scalar_(0.0f)
#define ATTN_V_ADD_(a, b) attn_add_scalar_(a, b)
#define ATTN_V_SUB_(a, b) attn_sub_scalar_(a, b)
#define ATTN_V_MUL_(a, b) attn_mul_scalar_(a, b)
#define ATTN_V_DIV_(a, b) attn_div_scalar_(a, b)
#define ATTN_V_FMA_(a, b, c) attn_fma_scalar_(a, b, c)
#define ATTN_V_MAX_(a, b) attn_max_scalar_(a, b)
#define ATTN_V_ABS_(a) attn_abs_scalar_(a)
#define ATTN_V_EQ_(a, b) attn_eq_scalar_(a, b)
#define ATTN_V_LT_(a, b) attn_lt_scalar_(a, b)
#define ATTN_V_SELECT_(m, a, b) attn_select_scalar_(m, a, b)
#define ATTN_V_ROUND_(x, t, n)                        \
  (t) = ATTN_V_ADD_(x, ATTN_V_SET1_(ATTN_EXP_BIAS_)), \
  (n) = ATTN_V_SUB_(t, ATTN_V_SET1_(ATTN_EXP_BIAS_))
#define ATTN_EXP_UNIT_ 2.0f
#define ATTN_V_EXP_FLOOR_(x) attn_max_scalar_(attn_set1_scalar_(-126.0f), x)
#define ATTN_V_LDEXP_SMALL_(p, t, n) attn_ldexp_small_scalar_(p, t)
#define ATTN_V_LDEXP_(p, t, n) ((void)(t), attn_ldexp_scalar_(p, n))
#define ATTN_V_LOAD_F16_(p) attn_load_f16_scalar_(p)
#define ATTN_V_STORE_F16_(p, v) attn_store_f16_scalar_(p, v)
#define ATTN_V_LOAD_BF16_(p) attn_load_bf16_scalar_(p)
#define ATTN_V_STORE_BF16_(p, v) attn_store_bf16_scalar_(p, v)
#define ATTN_V_LOAD_BOOL_(p) attn_load_bool_scalar_(p)
#define ATTN_V_SWAP_PAIRS_(a) attn_swap_pairs_scalar_(a)
#define ATTN_V_TRANSPOSE_(r) attn_transpose_scalar_(r)
#define ATTN_V_SLEEF_(f) attn_sleef_##f##_scalar_

typedef struct {
  float f[4];
} attn_v4_;
typedef struct {
  unsigned char on[4];
} attn_m4_;

#define ATTN_LANES_(expr)                      \
  for (int i = 0; i < 4; i++) r.f[i] = (expr); \
  return r;
#define ATTN_FLAGS_(expr)                                      \
  for (int i = 0; i < 4; i++) r.on[i] = (unsigned char)(expr); \
  return r;

ATTN_INLINE_ attn_v4_ attn_load_part_scalar_(const float *p, int n) {
  attn_v4_ r;
  ATTN_LANES_(i < n ? p[i] : 0.0f)
}
ATTN_INLINE_ void attn_store_part_scalar_(float *p, attn_v4_ v, int n) {
  for (int i = 0; i < n; i++) p[i] = v.f[i];
}
ATTN_INLINE_ attn_v4_ attn_set1_scalar_(float x) {
  attn_v4_ r;
  ATTN_LANES_(x)
}
ATTN_INLINE_ attn_v4_ attn_add_scalar_(attn_v4_ a, attn_v4_ b) {
  attn_v4_ r;
  ATTN_LANES_(a.f[i] + b.f[i])
}
ATTN_INLINE_ attn_v4_ attn_sub_scalar_(attn_v4_ a, attn_v4_ b) {
  attn_v4_ r;
  ATTN_LANES_(a.f[i] - b.f[i])
}
ATTN_INLINE_ attn_v4_ attn_mul_scalar_(attn_v4_ a, attn_v4_ b) {
  attn_v4_ r;
  ATTN_LANES_(a.f[i] * b.f[i])
}
ATTN_INLINE_ attn_v4_ attn_div_scalar_(attn_v4_ a, attn_v4_ b) {
  attn_v4_ r;
  ATTN_LANES_(a.f[i] / b.f[i])
}
ATTN_INLINE_ attn_v4_ attn_fma_scalar_(attn_v4_ a, attn_v4_ b, attn_v4_ c) {
  attn_v4_ r;
  ATTN_LANES_(a.f[i] * b.f[i] + c.f[i])
}
ATTN_INLINE_ attn_v4_ attn_max_scalar_(attn_v4_ a, attn_v4_ b) {
  attn_v4_ r;
  ATTN_LANES_(a.f[i] > b.f[i] ? a.f[i] : b.f[i])
}
ATTN_INLINE_ attn_v4_ attn_abs_scalar_(attn_v4_ a) {
  attn_v4_ r;
  ATTN_LANES_(a.f[i] < 0.0f ? -a.f[i] : a.f[i])
}
ATTN_INLINE_ attn_m4_ attn_eq_scalar_(attn_v4_ a, attn_v4_ b) {
  attn_m4_ r;
  ATTN_FLAGS_(a.f[i] == b.f[i])
}
ATTN_INLINE_ attn_m4_ attn_lt_scalar_(attn_v4_ a, attn_v4_ b) {
  attn_m4_ r;
  ATTN_FLAGS_(a.f[i] < b.f[i])
}
ATTN_INLINE_ attn_v4_ attn_select_scalar_(attn_m4_ m, attn_v4_ a, attn_v4_ b) {
  attn_v4_ r;
  ATTN_LANES_(m.on[i] ? a.f[i] : b.f[i])
}
ATTN_INLINE_ attn_v4_ attn_ldexp_small_scalar_(attn_v4_ p, attn_v4_ t) {
  attn_v4_ r;
  ATTN_LANES_(p.f[i] * attn_from_bits_(attn_to_bits_(t.f[i]) << 23))
}
/* 2^(n-1), n an integer in -150..128 or NaN; two exact-or-once-rounded steps as in the other tiers
 */
ATTN_INLINE_ attn_v4_ attn_ldexp_scalar_(attn_v4_ p, attn_v4_ n) {
  attn_v4_ r;
  for (int i = 0; i < 4; i++) {
    int e = n.f[i] > -151.0f && n.f[i] < 129.0f ? (int)n.f[i] - 1 : 0; /* else p is NaN */
    int half = e < 0 ? -((1 - e) / 2) : e / 2;
    uint32_t s = (uint32_t)(half + 127) << 23, t = (uint32_t)(e - half + 127) << 23;
    r.f[i] = p.f[i] * attn_from_bits_(s) * attn_from_bits_(t);
  }
  return r;
}
ATTN_INLINE_ attn_v4_ attn_load_f16_scalar_(const uint16_t *p) {
  attn_v4_ r;
  ATTN_LANES_(attn_from_f16_(p[i]))
}
ATTN_INLINE_ void attn_store_f16_scalar_(uint16_t *p, attn_v4_ v) {
  for (int i = 0; i < 4; i++) p[i] = attn_to_f16_(v.f[i]);
}
ATTN_INLINE_ attn_v4_ attn_load_bf16_scalar_(const uint16_t *p) {
  attn_v4_ r;
  ATTN_LANES_(attn_from_bf16_(p[i]))
}
ATTN_INLINE_ void attn_store_bf16_scalar_(uint16_t *p, attn_v4_ v) {
  for (int i = 0; i < 4; i++) p[i] = attn_to_bf16_(v.f[i]);
}
ATTN_INLINE_ attn_v4_ attn_load_bool_scalar_(const unsigned char *p) {
  attn_v4_ r;
  ATTN_LANES_(p[i] ? 0.0f : -INFINITY)
}
ATTN_INLINE_ attn_v4_ attn_swap_pairs_scalar_(attn_v4_ a) {
  attn_v4_ r;
  ATTN_LANES_(a.f[i ^ 1])
}
ATTN_INLINE_ void attn_transpose_scalar_(attn_v4_ *v) {
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < i; j++) {
      float t = v[i].f[j];
      v[i].f[j] = v[j].f[i];
      v[j].f[i] = t;
    }
}
#ifdef ATTN_USE_SLEEF
#ifndef ATTN_SLEEF_HAS_SCALAR_
float Sleef_expf_u10(float);
float Sleef_exp2f_u10(float);
float Sleef_tanhf_u10(float);
#endif
ATTN_INLINE_ attn_v4_ attn_sleef_exp_scalar_(attn_v4_ a) {
  attn_v4_ r;
  ATTN_LANES_(Sleef_expf_u10(a.f[i]))
}
ATTN_INLINE_ attn_v4_ attn_sleef_exp2_scalar_(attn_v4_ a) {
  attn_v4_ r;
  ATTN_LANES_(Sleef_exp2f_u10(a.f[i]))
}
ATTN_INLINE_ attn_v4_ attn_sleef_tanh_scalar_(attn_v4_ a) {
  attn_v4_ r;
  ATTN_LANES_(Sleef_tanhf_u10(a.f[i]))
}
#endif
#undef ATTN_LANES_
#undef ATTN_FLAGS_
/* <<< attn/isa/simd_scalar.h */
#define ATTN_PASS_ ATTN_VERSION
#include ATTN_SELF
#undef ATTN_PASS_

#ifdef ATTN_HAS_NEON_
/* >>> attn/isa/simd_neon.h */
/* isa/simd_neon.h owns the vector vocabulary of the neon tier: 4 lanes. The words are explained
 * in isa/simd_avx512.h. 32-bit ARM flushes subnormals and has no division: both are noted. */

#define ATTN_T_ neon
#define ATTN_ISA_ID_ ATTN_ISA_NEON
#define ATTN_W_ 4
#ifdef ATTN_ARM64_
#define ATTN_MR_ 5 /* 20 sums, 4 vectors of queries and 5 keys fill 32 registers */
#else
#define ATTN_MR_ 2 /* 16 registers */
#endif
#define ATTN_NG_ 1
#define ATTN_SPECIALISE_ 1

#define ATTN_VF_ float32x4_t
#define ATTN_VM_ uint32x4_t
#define ATTN_V_LOAD_(p) vld1q_f32(p)
#define ATTN_V_STORE_(p, v) vst1q_f32(p, v)
#define ATTN_V_LOAD_PART_(p, n) attn_load_part_neon_(p, n)
#define ATTN_V_STORE_PART_(p, v, n) attn_store_part_neon_(p, v, n)
#define ATTN_V_SET1_(x) vdupq_n_f32(x)
#define ATTN_V_ZERO_() vdupq_n_f32(0.0f)
#define ATTN_V_ADD_(a, b) vaddq_f32(a, b)
#define ATTN_V_SUB_(a, b) vsubq_f32(a, b)
#define ATTN_V_MUL_(a, b) vmulq_f32(a, b)
#ifdef ATTN_ARM64_
#define ATTN_V_DIV_(a, b) vdivq_f32(a, b)
#else
#define ATTN_V_DIV_(a, b) attn_div_neon_(a, b)
#endif
#define ATTN_V_FMA_(a, b, c) vfmaq_f32(c, a, b)
#define ATTN_V_MAX_(a, b) vmaxq_f32(a, b) /* NaN when either is */
#define ATTN_V_ABS_(a) vabsq_f32(a)
#define ATTN_V_EQ_(a, b) vceqq_f32(a, b)
#define ATTN_V_LT_(a, b) vcltq_f32(a, b)
#define ATTN_V_SELECT_(m, a, b) vbslq_f32(m, a, b)
#define ATTN_V_ROUND_(x, t, n)                        \
  (t) = ATTN_V_ADD_(x, ATTN_V_SET1_(ATTN_EXP_BIAS_)), \
  (n) = ATTN_V_SUB_(t, ATTN_V_SET1_(ATTN_EXP_BIAS_))
#define ATTN_EXP_UNIT_ 2.0f
#define ATTN_V_EXP_FLOOR_(x) vmaxq_f32(vdupq_n_f32(-126.0f), x)
#define ATTN_V_LDEXP_SMALL_(p, t, n) \
  vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(t), 23)))
#define ATTN_V_LDEXP_(p, t, n) attn_ldexp_neon_(p, t)
/* gcc for 32-bit ARM has the conversions only with -mfp16-format=ieee */
#if defined(ATTN_ARM64_) || defined(__ARM_FP16_FORMAT_IEEE)
#define ATTN_V_LOAD_F16_(p) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))
#define ATTN_V_STORE_F16_(p, v) vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v)))
#else
#define ATTN_V_LOAD_F16_(p) attn_load_f16_neon_(p)
#define ATTN_V_STORE_F16_(p, v) attn_store_f16_neon_(p, v)
#endif
#define ATTN_V_LOAD_BF16_(p) vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16))
#define ATTN_V_STORE_BF16_(p, v) vst1_u16(p, attn_to_bf16_neon_(v))
#define ATTN_V_LOAD_BOOL_(p) attn_load_bool_neon_(p)
#define ATTN_V_SWAP_PAIRS_(a) vrev64q_f32(a)
#define ATTN_V_TRANSPOSE_(r) attn_transpose_neon_(r)
#define ATTN_V_SLEEF_(f) Sleef_##f##f4_u10advsimd

#if defined(ATTN_USE_SLEEF) && !defined(ATTN_ARM64_)
#error "SLEEF has no functions for this tier: define ATTN_NO_NEON, or leave ATTN_USE_SLEEF out"
#elif defined(ATTN_USE_SLEEF) && !defined(ATTN_SLEEF_HAS_NEON_)
float32x4_t Sleef_expf4_u10advsimd(float32x4_t);
float32x4_t Sleef_exp2f4_u10advsimd(float32x4_t);
float32x4_t Sleef_tanhf4_u10advsimd(float32x4_t);
#endif

ATTN_INLINE_ float32x4_t attn_load_part_neon_(const float *p, int n) {
  float t[4] = {0, 0, 0, 0};
  for (int i = 0; i < n; i++) t[i] = p[i];
  return vld1q_f32(t);
}

ATTN_INLINE_ void attn_store_part_neon_(float *p, float32x4_t v, int n) {
  float t[4];
  vst1q_f32(t, v);
  for (int i = 0; i < n; i++) p[i] = t[i];
}

#ifndef ATTN_ARM64_
ATTN_INLINE_ float32x4_t attn_load_f16_neon_(const uint16_t *p) {
  float t[4];
  for (int i = 0; i < 4; i++) t[i] = attn_from_f16_(p[i]);
  return vld1q_f32(t);
}

ATTN_INLINE_ void attn_store_f16_neon_(uint16_t *p, float32x4_t v) {
  float t[4];
  vst1q_f32(t, v);
  for (int i = 0; i < 4; i++) p[i] = attn_to_f16_(t[i]);
}

ATTN_INLINE_ float32x4_t attn_div_neon_(float32x4_t a, float32x4_t b) {
  float x[4], y[4];
  vst1q_f32(x, a);
  vst1q_f32(y, b);
  for (int i = 0; i < 4; i++) x[i] /= y[i];
  return vld1q_f32(x);
}
#endif

ATTN_INLINE_ float32x4_t attn_ldexp_neon_(float32x4_t p, float32x4_t t) {
  int32x4_t n = vsubq_s32(vreinterpretq_s32_f32(t), vdupq_n_s32(ATTN_EXP_BIAS_BITS_ + 1));
  int32x4_t half = vshrq_n_s32(n, 1), rest = vsubq_s32(n, half), one = vdupq_n_s32(127);
  float32x4_t s = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, one), 23));
  float32x4_t r = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, one), 23));
  return vmulq_f32(vmulq_f32(p, s), r);
}

ATTN_INLINE_ uint16x4_t attn_to_bf16_neon_(float32x4_t v) {
  uint32x4_t x = vreinterpretq_u32_f32(v);
  uint32x4_t odd = vandq_u32(vshrq_n_u32(x, 16), vdupq_n_u32(1));
  uint32x4_t up = vaddq_u32(x, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  uint32x4_t quiet = vorrq_u32(x, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), up, quiet), 16);
}

ATTN_INLINE_ float32x4_t attn_load_bool_neon_(const unsigned char *p) {
  uint32_t t[4];
  for (int i = 0; i < 4; i++) t[i] = p[i];
  uint32x4_t forbidden = vceqq_u32(vld1q_u32(t), vdupq_n_u32(0));
  return vreinterpretq_f32_u32(vandq_u32(forbidden, vdupq_n_u32(0xff800000u)));
}

/* 4 x 4 in place */
ATTN_INLINE_ void attn_transpose_neon_(float32x4_t *r) {
  float32x4x2_t a = vtrnq_f32(r[0], r[1]), b = vtrnq_f32(r[2], r[3]);
  r[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
  r[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
  r[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
  r[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}
/* <<< attn/isa/simd_neon.h */
#define ATTN_PASS_ ATTN_VERSION
#include ATTN_SELF
#undef ATTN_PASS_
#endif

#ifdef ATTN_HAS_AVX2_
ATTN_BEGIN_REGION_(ATTN_FEATURES_AVX2_)
/* >>> attn/isa/simd_avx2.h */
/* isa/simd_avx2.h owns the vector vocabulary of the avx2 tier: 8 lanes. The words are explained
 * in isa/simd_avx512.h. */

#define ATTN_T_ avx2
#define ATTN_ISA_ID_ ATTN_ISA_AVX2
#define ATTN_W_ 8
#define ATTN_MR_ 6
#define ATTN_NG_ 1
#define ATTN_SPECIALISE_ 1

#define ATTN_VF_ __m256
#define ATTN_VM_ __m256
#define ATTN_V_LOAD_(p) _mm256_loadu_ps(p)
#define ATTN_V_STORE_(p, v) _mm256_storeu_ps(p, v)
#define ATTN_V_LOAD_PART_(p, n) _mm256_maskload_ps(p, attn_first_avx2_(n))
#define ATTN_V_STORE_PART_(p, v, n) _mm256_maskstore_ps(p, attn_first_avx2_(n), v)
#define ATTN_V_SET1_(x) _mm256_set1_ps(x)
#define ATTN_V_ZERO_() _mm256_setzero_ps()
#define ATTN_V_ADD_(a, b) _mm256_add_ps(a, b)
#define ATTN_V_SUB_(a, b) _mm256_sub_ps(a, b)
#define ATTN_V_MUL_(a, b) _mm256_mul_ps(a, b)
#define ATTN_V_DIV_(a, b) _mm256_div_ps(a, b)
#define ATTN_V_FMA_(a, b, c) _mm256_fmadd_ps(a, b, c)
#define ATTN_V_MAX_(a, b) _mm256_max_ps(a, b)
#define ATTN_V_ABS_(a) _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a)
#define ATTN_V_EQ_(a, b) _mm256_cmp_ps(a, b, _CMP_EQ_OQ)
#define ATTN_V_LT_(a, b) _mm256_cmp_ps(a, b, _CMP_LT_OQ)
#define ATTN_V_SELECT_(m, a, b) _mm256_blendv_ps(b, a, m)
#define ATTN_V_ROUND_(x, t, n)                        \
  (t) = ATTN_V_ADD_(x, ATTN_V_SET1_(ATTN_EXP_BIAS_)), \
  (n) = ATTN_V_SUB_(t, ATTN_V_SET1_(ATTN_EXP_BIAS_))
/* n + 126 shifted into the exponent field is 2^(n-1), and 0 for n = -126, the floor. The other form
 * multiplies by 2^(n/2) twice. */
#define ATTN_EXP_UNIT_ 2.0f
#define ATTN_V_EXP_FLOOR_(x) _mm256_max_ps(_mm256_set1_ps(-126.0f), x)
#define ATTN_V_LDEXP_SMALL_(p, t, n) \
  _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23)))
#define ATTN_V_LDEXP_(p, t, n) attn_ldexp_avx2_(p, t)
#define ATTN_V_LOAD_F16_(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define ATTN_V_STORE_F16_(p, v) \
  _mm_storeu_si128((__m128i *)(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT))
#define ATTN_V_LOAD_BF16_(p) \
  _mm256_castsi256_ps(       \
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p))), 16))
#define ATTN_V_STORE_BF16_(p, v) _mm_storeu_si128((__m128i *)(p), attn_to_bf16_avx2_(v))
#define ATTN_V_LOAD_BOOL_(p)                  \
  _mm256_and_ps(                              \
      _mm256_set1_ps(-INFINITY),              \
      _mm256_castsi256_ps(_mm256_cmpeq_epi32( \
          _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p))), _mm256_setzero_si256())))
#define ATTN_V_SWAP_PAIRS_(a) _mm256_permute_ps(a, 0xB1)
#define ATTN_V_TRANSPOSE_(r) attn_transpose_avx2_(r)
#define ATTN_V_SLEEF_(f) Sleef_##f##f8_u10avx2

#if defined(ATTN_USE_SLEEF) && !defined(ATTN_SLEEF_HAS_AVX2_)
__m256 Sleef_expf8_u10avx2(__m256);
__m256 Sleef_exp2f8_u10avx2(__m256);
__m256 Sleef_tanhf8_u10avx2(__m256);
#endif

/* all ones in the first n lanes */
ATTN_INLINE_ __m256i attn_first_avx2_(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

ATTN_INLINE_ __m256 attn_ldexp_avx2_(__m256 p, __m256 t) {
  __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(ATTN_EXP_BIAS_BITS_ + 1));
  __m256i half = _mm256_srai_epi32(n, 1), rest = _mm256_sub_epi32(n, half);
  __m256i one = _mm256_set1_epi32(127);
  __m256 s = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, one), 23));
  __m256 r = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, one), 23));
  return _mm256_mul_ps(_mm256_mul_ps(p, s), r);
}

ATTN_INLINE_ __m128i attn_to_bf16_avx2_(__m256 v) {
  __m256i x = _mm256_castps_si256(v);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
  __m256i up = _mm256_add_epi32(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  __m256i quiet = _mm256_or_si256(x, _mm256_set1_epi32(0x400000));
  __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  __m256i y = _mm256_srli_epi32(_mm256_castps_si256(_mm256_blendv_ps(
                                    _mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet), nan)),
                                16);
  y = _mm256_permute4x64_epi64(_mm256_packus_epi32(y, y), 0x08);
  return _mm256_castsi256_si128(y);
}

/* 8 x 8 in place */
ATTN_INLINE_ void attn_transpose_avx2_(__m256 *r) {
  __m256 a[8], b[8];
#define ATTN_PAIR_(i)                                          \
  a[2 * (i)] = _mm256_unpacklo_ps(r[2 * (i)], r[2 * (i) + 1]); \
  a[2 * (i) + 1] = _mm256_unpackhi_ps(r[2 * (i)], r[2 * (i) + 1]);
  ATTN_PAIR_(0)
  ATTN_PAIR_(1)
  ATTN_PAIR_(2)
  ATTN_PAIR_(3)
#undef ATTN_PAIR_
#define ATTN_QUAD_(i)                                                       \
  b[4 * (i)] = _mm256_shuffle_ps(a[4 * (i)], a[4 * (i) + 2], 0x44);         \
  b[4 * (i) + 1] = _mm256_shuffle_ps(a[4 * (i)], a[4 * (i) + 2], 0xEE);     \
  b[4 * (i) + 2] = _mm256_shuffle_ps(a[4 * (i) + 1], a[4 * (i) + 3], 0x44); \
  b[4 * (i) + 3] = _mm256_shuffle_ps(a[4 * (i) + 1], a[4 * (i) + 3], 0xEE);
  ATTN_QUAD_(0)
  ATTN_QUAD_(1)
#undef ATTN_QUAD_
#define ATTN_LANE_(i)                                    \
  r[i] = _mm256_permute2f128_ps(b[i], b[(i) + 4], 0x20); \
  r[(i) + 4] = _mm256_permute2f128_ps(b[i], b[(i) + 4], 0x31);
  ATTN_LANE_(0)
  ATTN_LANE_(1)
  ATTN_LANE_(2)
  ATTN_LANE_(3)
#undef ATTN_LANE_
}
/* <<< attn/isa/simd_avx2.h */
#define ATTN_PASS_ ATTN_VERSION
#include ATTN_SELF
#undef ATTN_PASS_
ATTN_END_REGION_
#endif

#ifdef ATTN_HAS_AVX512_
#if defined(ATTN_GCC_)
/* g++ 12 finds uninitialised variables in its own avx512 headers; at -O0 some of its intrinsics
 * are macros with sign conversions */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#endif
ATTN_BEGIN_REGION_(ATTN_FEATURES_AVX512_)
/* >>> attn/isa/simd_avx512.h */
/* isa/simd_avx512.h owns the vector vocabulary of the avx512 tier: 16 lanes. The four simd files
 * define the same words in the same order; isa/simd_undef.h forgets them. */

#define ATTN_T_ avx512
#define ATTN_ISA_ID_ ATTN_ISA_AVX512
#define ATTN_W_ 16         /* lanes of a vector */
#define ATTN_MR_ 6         /* rows of a micro-kernel */
#define ATTN_NG_ 4         /* lane groups (of 16 lanes) of a micro-kernel */
#define ATTN_SPECIALISE_ 1 /* one copy of a loop per storage type and set of modifiers */

#define ATTN_VF_ __m512
#define ATTN_VM_ __mmask16
/* lanes in and out; PART touches the first n lanes only, loads zero in the others */
#define ATTN_V_LOAD_(p) _mm512_loadu_ps(p)
#define ATTN_V_STORE_(p, v) _mm512_storeu_ps(p, v)
#define ATTN_V_LOAD_PART_(p, n) _mm512_maskz_loadu_ps((__mmask16)((1u << (n)) - 1u), p)
#define ATTN_V_STORE_PART_(p, v, n) _mm512_mask_storeu_ps(p, (__mmask16)((1u << (n)) - 1u), v)
#define ATTN_V_SET1_(x) _mm512_set1_ps(x)
#define ATTN_V_ZERO_() _mm512_setzero_ps()
/* arithmetic; MAX gives b when either is NaN or both are equal */
#define ATTN_V_ADD_(a, b) _mm512_add_ps(a, b)
#define ATTN_V_SUB_(a, b) _mm512_sub_ps(a, b)
#define ATTN_V_MUL_(a, b) _mm512_mul_ps(a, b)
#define ATTN_V_DIV_(a, b) _mm512_div_ps(a, b)
#define ATTN_V_FMA_(a, b, c) _mm512_fmadd_ps(a, b, c)
#define ATTN_V_MAX_(a, b) _mm512_max_ps(a, b)
#define ATTN_V_ABS_(a) _mm512_abs_ps(a)
/* comparisons and choice; NaN compares false */
#define ATTN_V_EQ_(a, b) _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ)
#define ATTN_V_LT_(a, b) _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)
#define ATTN_V_SELECT_(m, a, b) _mm512_mask_blend_ps(m, b, a)
/* n = x rounded to an integer, t = n + ATTN_EXP_BIAS_ (unused here) */
#define ATTN_V_ROUND_(x, t, n) (n) = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT), (t) = (n)
/* p * 2^n / UNIT: SMALL for n <= 0 after EXP_FLOOR, 0 below n = -125; the other for any n, rounded
 * once. NaN in p stays NaN whatever its payload. */
/* what the polynomial for LDEXP is multiplied by */
#define ATTN_EXP_UNIT_ 1.0f
#define ATTN_V_EXP_FLOOR_(x) (x)
#define ATTN_V_LDEXP_SMALL_(p, t, n) \
  ((void)(t),                        \
   _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(n, _mm512_set1_ps(-125.0f), _CMP_NLT_UQ), p, n))
#define ATTN_V_LDEXP_(p, t, n) ((void)(t), _mm512_scalef_ps(p, n))
/* 16-bit storage, round to nearest even */
#define ATTN_V_LOAD_F16_(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define ATTN_V_STORE_F16_(p, v) \
  _mm256_storeu_si256((__m256i *)(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT))
#define ATTN_V_LOAD_BF16_(p) \
  _mm512_castsi512_ps(       \
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p))), 16))
#define ATTN_V_STORE_BF16_(p, v) _mm256_storeu_si256((__m256i *)(p), attn_to_bf16_avx512_(v))
/* bytes to scores: 0 -> -inf, else 0 */
#define ATTN_V_LOAD_BOOL_(p)                                                      \
  _mm512_mask_blend_ps(_mm_test_epi8_mask(_mm_loadu_si128((const __m128i *)(p)),  \
                                          _mm_loadu_si128((const __m128i *)(p))), \
                       _mm512_set1_ps(-INFINITY), _mm512_setzero_ps())
/* lanes (0,1),(2,3).. exchanged */
#define ATTN_V_SWAP_PAIRS_(a) _mm512_permute_ps(a, 0xB1)
#define ATTN_V_TRANSPOSE_(r) attn_transpose_avx512_(r)
/* SLEEF's name of a function; own prototypes, since its header hides them from other regions */
#define ATTN_V_SLEEF_(f) Sleef_##f##f16_u10avx512f

#if defined(ATTN_USE_SLEEF) && !defined(ATTN_SLEEF_HAS_AVX512_)
__m512 Sleef_expf16_u10avx512f(__m512);
__m512 Sleef_exp2f16_u10avx512f(__m512);
__m512 Sleef_tanhf16_u10avx512f(__m512);
#endif

ATTN_INLINE_ __m256i attn_to_bf16_avx512_(__m512 v) {
  __m512i x = _mm512_castps_si512(v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
  __m512i up = _mm512_add_epi32(x, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __m512i quiet = _mm512_or_si512(x, _mm512_set1_epi32(0x400000));
  __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, up, quiet), 16));
}

/* 16 x 16 in place: r[i] lane j <-> r[j] lane i, by 2x2, 4x4 and 128-bit exchanges */
ATTN_INLINE_ void attn_transpose_avx512_(__m512 *r) {
  __m512 a[16], b[16];
#define ATTN_PAIR_(i)                                          \
  a[2 * (i)] = _mm512_unpacklo_ps(r[2 * (i)], r[2 * (i) + 1]); \
  a[2 * (i) + 1] = _mm512_unpackhi_ps(r[2 * (i)], r[2 * (i) + 1]);
  ATTN_PAIR_(0)
  ATTN_PAIR_(1)
  ATTN_PAIR_(2)
  ATTN_PAIR_(3)
  ATTN_PAIR_(4)
  ATTN_PAIR_(5)
  ATTN_PAIR_(6)
  ATTN_PAIR_(7)
#undef ATTN_PAIR_
#define ATTN_QUAD_(i)                                                       \
  b[4 * (i)] = _mm512_shuffle_ps(a[4 * (i)], a[4 * (i) + 2], 0x44);         \
  b[4 * (i) + 1] = _mm512_shuffle_ps(a[4 * (i)], a[4 * (i) + 2], 0xEE);     \
  b[4 * (i) + 2] = _mm512_shuffle_ps(a[4 * (i) + 1], a[4 * (i) + 3], 0x44); \
  b[4 * (i) + 3] = _mm512_shuffle_ps(a[4 * (i) + 1], a[4 * (i) + 3], 0xEE);
  ATTN_QUAD_(0)
  ATTN_QUAD_(1)
  ATTN_QUAD_(2)
  ATTN_QUAD_(3)
#undef ATTN_QUAD_
#define ATTN_LANE_(i)                                                \
  a[i] = _mm512_shuffle_f32x4(b[i], b[(i) + 4], 0x88);               \
  a[(i) + 4] = _mm512_shuffle_f32x4(b[i], b[(i) + 4], 0xDD);         \
  a[(i) + 8] = _mm512_shuffle_f32x4(b[(i) + 8], b[(i) + 12], 0x88);  \
  a[(i) + 12] = _mm512_shuffle_f32x4(b[(i) + 8], b[(i) + 12], 0xDD); \
  r[i] = _mm512_shuffle_f32x4(a[i], a[(i) + 8], 0x88);               \
  r[(i) + 8] = _mm512_shuffle_f32x4(a[i], a[(i) + 8], 0xDD);         \
  r[(i) + 4] = _mm512_shuffle_f32x4(a[(i) + 4], a[(i) + 12], 0x88);  \
  r[(i) + 12] = _mm512_shuffle_f32x4(a[(i) + 4], a[(i) + 12], 0xDD);
  ATTN_LANE_(0)
  ATTN_LANE_(1)
  ATTN_LANE_(2)
  ATTN_LANE_(3)
#undef ATTN_LANE_
}
/* <<< attn/isa/simd_avx512.h */
#define ATTN_PASS_ ATTN_VERSION
#include ATTN_SELF
#undef ATTN_PASS_
ATTN_END_REGION_
#if defined(ATTN_GCC_)
#pragma GCC diagnostic pop
#endif
#endif
ATTN_END_STRICT_
/* <<< attn/isa/tiers.h */
/* >>> attn/isa/detect.h */
/* isa/detect.h owns what the running machine can do, the caps, and the choice of a tier's table.
 * The only state of the library is here: two ints, each written with values any thread would
 * compute alike. */

#if defined(ATTN_HAS_AVX2_) || defined(ATTN_HAS_AVX512_)
enum { ATTN_REG_EBX_ = 1, ATTN_REG_ECX_ = 2 };
typedef struct attn_feature_ {
  const char *name; /* the compiler's name, for tests */
  int leaf, reg, bit;
} attn_feature_;
#define ATTN_FEATURE_(name, leaf, reg, bit) {name, leaf, ATTN_REG_##reg##_, bit},

ATTN_FUNC_ void attn_cpuid_(int leaf, uint32_t r[4]) {
#ifdef ATTN_MSVC_
  __cpuidex((int *)r, leaf, 0);
#else
  __cpuid_count(leaf, 0, r[0], r[1], r[2], r[3]);
#endif
}

/* which register sets the system saves; OSXSAVE must have been seen */
ATTN_FUNC_ uint32_t attn_xcr0_(void) {
#ifdef ATTN_MSVC_
  return (uint32_t)_xgetbv(0);
#else
  uint32_t lo, hi;
  __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(lo), "=d"(hi) : "c"(0)); /* xgetbv */
  (void)hi;
  return lo;
#endif
}

ATTN_FUNC_ attn_isa_state attn_probe_x86_(const attn_feature_ *f, int n, uint32_t xcr0) {
  uint32_t r[4] = {0, 0, 0, 0};
  attn_cpuid_(0, r);
  uint32_t max_leaf = r[0];
  for (int i = 0; i < n; i++) {
    if ((uint32_t)f[i].leaf > max_leaf) return ATTN_ISA_CPU_LACKS;
    attn_cpuid_(f[i].leaf, r);
    if (!(r[f[i].reg] >> f[i].bit & 1u)) return ATTN_ISA_CPU_LACKS;
  }
  attn_cpuid_(1, r);
  if (!(r[ATTN_REG_ECX_] >> 27 & 1u)) return ATTN_ISA_OS_LACKS; /* OSXSAVE */
  return (attn_xcr0_() & xcr0) == xcr0 ? ATTN_ISA_OK : ATTN_ISA_OS_LACKS;
}
#endif

ATTN_FUNC_ attn_isa_state attn_probe_(attn_isa isa) {
  switch (isa) {
    case ATTN_ISA_SCALAR: return ATTN_ISA_OK;
#ifdef ATTN_HAS_AVX2_
    case ATTN_ISA_AVX2: {
      static const attn_feature_ f[] = {ATTN_FEATURES_AVX2_(ATTN_FEATURE_, ATTN_FEATURE_)};
      return attn_probe_x86_(f, (int)(sizeof f / sizeof *f), ATTN_XCR0_AVX2_);
    }
#endif
#ifdef ATTN_HAS_AVX512_
    case ATTN_ISA_AVX512: {
      static const attn_feature_ f[] = {ATTN_FEATURES_AVX512_(ATTN_FEATURE_, ATTN_FEATURE_)};
      return attn_probe_x86_(f, (int)(sizeof f / sizeof *f), ATTN_XCR0_AVX512_);
    }
#endif
#ifdef ATTN_HAS_NEON_
    case ATTN_ISA_NEON: return ATTN_ISA_OK; /* part of what this was compiled for */
#endif
    default: return ATTN_ISA_NOT_COMPILED;
  }
}

/* 1 for a tier of this processor family, whether or not it is compiled */
ATTN_FUNC_ int attn_isa_native_(attn_isa isa) {
#if defined(ATTN_X86_)
  return isa == ATTN_ISA_SCALAR || isa == ATTN_ISA_AVX2 || isa == ATTN_ISA_AVX512;
#elif defined(ATTN_ARM64_) || defined(ATTN_ARM32_)
  return isa == ATTN_ISA_SCALAR || isa == ATTN_ISA_NEON;
#else
  return isa == ATTN_ISA_SCALAR;
#endif
}

/* The cached machine word: bits 0-15 two bits of state per tier, bits 16-23 the cap of ATTN_ISA,
 * bit 24 an ATTN_ISA that names no tier, bit 25 "filled". */
static int attn_machine_word_;
static int attn_limit_word_; /* attn_isa_limit's tier, 0 = none */

ATTN_FUNC_ int attn_machine_(void) {
  int w = ATTN_ATOMIC_LOAD_(&attn_machine_word_);
  if (w) return w;
  for (int i = 1; i < ATTN_ISA_COUNT; i++) w |= (int)attn_probe_((attn_isa)i) << (2 * i);
#ifndef ATTN_NO_GETENV
  const char *env = getenv("ATTN_ISA");
  if (env && *env && strcmp(env, "auto") != 0) {
    int cap = 0;
    for (int i = 1; i < ATTN_ISA_COUNT; i++)
      if (strcmp(env, attn_isa_name((attn_isa)i)) == 0 && attn_isa_native_((attn_isa)i)) cap = i;
    w |= cap ? cap << 16 : 1 << 24;
  }
#endif
  w |= 1 << 25;
  ATTN_ATOMIC_STORE_(&attn_machine_word_, w);
  return w;
}

ATTN_FUNC_ int attn_env_bad_(void) { return attn_machine_() >> 24 & 1; }

ATTN_PUB_ const char *attn_isa_name(attn_isa isa) {
  static const char *const names[] = {"auto", "scalar", "avx2", "avx512", "neon"};
  return (int)isa >= 0 && isa < ATTN_ISA_COUNT ? names[isa] : "unknown";
}

ATTN_PUB_ attn_isa_state attn_isa_status(attn_isa isa) {
  if ((int)isa <= 0 || isa >= ATTN_ISA_COUNT) return ATTN_ISA_NOT_COMPILED;
  int w = attn_machine_();
  attn_isa_state state = (attn_isa_state)(w >> (2 * (int)isa) & 3);
  if (state != ATTN_ISA_OK) return state;
  int cap = w >> 24 & 1 ? (int)ATTN_ISA_SCALAR : w >> 16 & 0xff;
  int limit = ATTN_ATOMIC_LOAD_(&attn_limit_word_);
  if ((cap && (int)isa > cap) || (limit && (int)isa > limit)) return ATTN_ISA_CAPPED;
  return ATTN_ISA_OK;
}

ATTN_PUB_ const char *attn_isa_why(attn_isa isa) {
  switch (attn_isa_status(isa)) {
    case ATTN_ISA_OK: return "runs";
    case ATTN_ISA_CAPPED:
      return attn_env_bad_() ? "the environment variable ATTN_ISA names no tier of this machine"
                             : "capped by ATTN_ISA or attn_isa_limit()";
    case ATTN_ISA_OS_LACKS: return "the operating system does not save the registers it needs";
    case ATTN_ISA_CPU_LACKS:
      return isa == ATTN_ISA_AVX512 ? "the processor lacks AVX-512 F, BW, DQ, VL or CD"
                                    : "the processor lacks AVX2, FMA or F16C";
    default: break;
  }
  if ((int)isa <= 0 || isa >= ATTN_ISA_COUNT) return "no such tier";
  return attn_isa_native_(isa) ? "left out when this was compiled"
                               : "a tier of another processor family";
}

ATTN_PUB_ attn_isa attn_isa_best(void) {
  for (int i = ATTN_ISA_COUNT - 1; i > 0; i--)
    if (attn_isa_status((attn_isa)i) == ATTN_ISA_OK) return (attn_isa)i;
  return ATTN_ISA_SCALAR;
}

ATTN_PUB_ attn_status attn_isa_limit(attn_isa isa) {
  if (isa != ATTN_ISA_AUTO && ((int)isa < 0 || isa >= ATTN_ISA_COUNT || !attn_isa_native_(isa)))
    return ATTN_E_ISA;
  if (attn_env_bad_()) return ATTN_E_ENV;
  ATTN_ATOMIC_STORE_(&attn_limit_word_, (int)isa);
  return ATTN_OK;
}

ATTN_FUNC_ const attn_table_ *attn_table_of_(attn_isa isa) {
  switch (isa) {
#ifdef ATTN_HAS_AVX2_
    case ATTN_ISA_AVX2: return &attn_table_avx2_;
#endif
#ifdef ATTN_HAS_AVX512_
    case ATTN_ISA_AVX512: return &attn_table_avx512_;
#endif
#ifdef ATTN_HAS_NEON_
    case ATTN_ISA_NEON: return &attn_table_neon_;
#endif
    default: return &attn_table_scalar_;
  }
}
/* <<< attn/isa/detect.h */
ATTN_BEGIN_STRICT_
/* >>> attn/engine/check.h */
/* engine/check.h owns argument checks: what makes a tensor, a mask or a context legal, and the
 * memory each one spans. Every check runs before the first write; the first failure wins. */

typedef struct attn_error_ {
  attn_status status;
  const char *reason;
} attn_error_;

/* 0, so that checks read: if (bad) return attn_reject_(e, status, "..."); */
ATTN_FUNC_ int attn_reject_(attn_error_ *e, attn_status status, const char *reason) {
  e->status = status;
  e->reason = reason;
  return 0;
}

/* The sentences about one argument, made at compile time from its name. */
typedef struct attn_words_ {
  const char *data, *align, *dtype, *extent, *dim, *size, *rows, *overlap;
} attn_words_;
#define ATTN_WORDS_(name)                                                                    \
  {                                                                                          \
    name ".data must not be null", name ".data must be aligned to its elements",             \
        name ".dtype must be ATTN_F32, ATTN_F16 or ATTN_BF16",                               \
        name ".batch, .heads and .len must not be negative", name ".dim must be at least 1", \
        name " spans more bytes than the address space holds",                               \
        name " is an output, so its rows must not share memory with one another",            \
        name " is an output and must not share memory with another argument"                 \
  }

/* The bytes lo..hi that a view may touch; empty when lo == hi. */
typedef struct attn_span_ {
  uintptr_t lo, hi;
} attn_span_;

ATTN_FUNC_ int attn_overlap_(attn_span_ a, attn_span_ b) {
  return a.lo < a.hi && b.lo < b.hi && a.lo < b.hi && b.lo < a.hi;
}

ATTN_FUNC_ int64_t attn_abs64_(int64_t x) { return x < 0 ? (x == INT64_MIN ? INT64_MAX : -x) : x; }

/* a * b and a + b for values >= 0, INT64_MAX when they do not fit */
ATTN_FUNC_ int64_t attn_mul_(int64_t a, int64_t b) {
  return a != 0 && b > INT64_MAX / a ? INT64_MAX : a * b;
}
ATTN_FUNC_ int64_t attn_add_(int64_t a, int64_t b) { return b > INT64_MAX - a ? INT64_MAX : a + b; }

ATTN_FUNC_ int64_t attn_size_(attn_dtype dtype) { return dtype == ATTN_F32 ? 4 : 2; }

/* The span of n0 x n1 x n2 rows of row_bytes at the given byte strides. 0 = does not fit. */
ATTN_FUNC_ int attn_span_of_(attn_span_ *span, const void *data, int64_t row_bytes,
                             const int64_t n[3], const int64_t stride[3]) {
  const int64_t limit = sizeof(void *) == 4 ? (int64_t)0x7fffffff : INT64_MAX / 4;
  int64_t below = 0, above = row_bytes;
  span->lo = span->hi = (uintptr_t)data;
  if (n[0] == 0 || n[1] == 0 || n[2] == 0 || row_bytes == 0) return 1;
  for (int d = 0; d < 3; d++) {
    int64_t reach = attn_mul_(n[d] - 1, attn_abs64_(stride[d]));
    if (stride[d] < 0)
      below = attn_add_(below, reach);
    else
      above = attn_add_(above, reach);
  }
  if (below > limit || above > limit || (uintptr_t)below > span->lo ||
      (uintptr_t)above > UINTPTR_MAX - span->lo)
    return 0;
  span->hi += (uintptr_t)above;
  span->lo -= (uintptr_t)below;
  return 1;
}

/* A tensor in its own right. Strides that are never used become 0: they may hold anything. */
ATTN_FUNC_ int attn_check_tensor_(attn_error_ *e, attn_tensor *t, const attn_words_ *w,
                                  attn_span_ *span) {
  if ((int)t->dtype < 0 || t->dtype >= ATTN_DTYPE_COUNT)
    return attn_reject_(e, ATTN_E_DTYPE, w->dtype);
  if (t->batch < 0 || t->heads < 0 || t->len < 0) return attn_reject_(e, ATTN_E_SHAPE, w->extent);
  if (t->dim < 1) return attn_reject_(e, ATTN_E_SHAPE, w->dim);
  const int64_t size = attn_size_(t->dtype), n[3] = {t->batch, t->heads, t->len};
  if (t->batch <= 1) t->stride_batch = 0;
  if (t->heads <= 1) t->stride_head = 0;
  if (t->len <= 1) t->stride_len = 0;
  int64_t stride[3] = {t->stride_batch, t->stride_head, t->stride_len};
  int empty = t->batch == 0 || t->heads == 0 || t->len == 0;
  if (!t->data && !empty) return attn_reject_(e, ATTN_E_NULL, w->data);
  if ((uintptr_t)t->data % (uintptr_t)size != 0) return attn_reject_(e, ATTN_E_ALIGN, w->align);
  for (int d = 0; d < 3; d++) {
    if (attn_abs64_(stride[d]) > INT64_MAX / 4) return attn_reject_(e, ATTN_E_OVERFLOW, w->size);
    stride[d] *= size;
  }
  if (!attn_span_of_(span, t->data, attn_mul_(t->dim, size), n, stride))
    return attn_reject_(e, ATTN_E_OVERFLOW, w->size);
  return 1;
}

/* An output's rows lie apart when its strides nest: each is at least the reach of the smaller. */
ATTN_FUNC_ int attn_check_rows_(attn_error_ *e, const attn_tensor *t, const attn_words_ *w) {
  int64_t n[3] = {t->batch, t->heads, t->len}, reach = t->dim;
  int64_t s[3] = {attn_abs64_(t->stride_batch), attn_abs64_(t->stride_head),
                  attn_abs64_(t->stride_len)};
  if (n[0] == 0 || n[1] == 0 || n[2] == 0) return 1;
  for (int a = 0; a < 2; a++)
    for (int b = 0; b < 2 - a; b++)
      if (s[b] > s[b + 1]) {
        int64_t x = s[b], y = n[b];
        s[b] = s[b + 1], s[b + 1] = x;
        n[b] = n[b + 1], n[b + 1] = y;
      }
  for (int d = 0; d < 3; d++) {
    if (n[d] <= 1) continue;
    if (s[d] < reach) return attn_reject_(e, ATTN_E_STRIDE, w->rows);
    reach = attn_add_(attn_mul_(n[d] - 1, s[d]), reach);
  }
  return 1;
}

ATTN_FUNC_ int attn_same_view_(const attn_tensor *a, const attn_tensor *b) {
  return a->data == b->data && a->dtype == b->dtype && a->stride_batch == b->stride_batch &&
         a->stride_head == b->stride_head && a->stride_len == b->stride_len;
}

/* A plain array of n elements of the given size that may be read. */
ATTN_FUNC_ int attn_check_array_(attn_error_ *e, const void *data, int64_t n, int64_t size,
                                 const char *align, attn_span_ *span) {
  span->lo = span->hi = (uintptr_t)data;
  if (!data) return 1;
  if ((uintptr_t)data % (uintptr_t)size != 0) return attn_reject_(e, ATTN_E_ALIGN, align);
  if (attn_mul_(n, size) > INT64_MAX / 4 || (uint64_t)attn_mul_(n, size) > UINTPTR_MAX - span->lo)
    return attn_reject_(e, ATTN_E_OVERFLOW,
                        "an array spans more bytes than the address space holds");
  span->hi += (uintptr_t)(n * size);
  return 1;
}

/* A mask against the extents it must broadcast to; kinds is a bit set of attn_mask_kind. */
typedef struct attn_mask_words_ {
  const char *kind, *data, *dtype, *extent, *size, *align;
} attn_mask_words_;

ATTN_FUNC_ int attn_check_mask_(attn_error_ *e, const attn_mask *m, const attn_mask_words_ *w,
                                unsigned kinds, const int64_t full[4], attn_span_ *span) {
  span->lo = span->hi = 0;
  if (m->kind == ATTN_MASK_NONE) return 1;
  if ((unsigned)m->kind > 31u || !(kinds >> (unsigned)m->kind & 1u))
    return attn_reject_(e, ATTN_E_MASK, w->kind);
  if (m->kind == ATTN_MASK_ADD && ((int)m->dtype < 0 || m->dtype >= ATTN_DTYPE_COUNT))
    return attn_reject_(e, ATTN_E_DTYPE, w->dtype);
  const int64_t have[4] = {m->batch, m->heads, m->q_len, m->k_len};
  int empty = 0;
  for (int d = 0; d < 4; d++) {
    if (have[d] != 1 && have[d] != full[d]) return attn_reject_(e, ATTN_E_MASK, w->extent);
    empty |= full[d] == 0;
  }
  if (empty) return 1;
  if (!m->data) return attn_reject_(e, ATTN_E_NULL, w->data);
  const int64_t size = m->kind == ATTN_MASK_ADD ? attn_size_(m->dtype) : 1;
  if ((uintptr_t)m->data % (uintptr_t)size != 0) return attn_reject_(e, ATTN_E_ALIGN, w->align);
  int64_t stride[3] = {m->stride_batch, m->stride_head, m->stride_q};
  for (int d = 0; d < 3; d++) {
    if (have[d] <= 1) stride[d] = 0;
    if (attn_abs64_(stride[d]) > INT64_MAX / 4) return attn_reject_(e, ATTN_E_OVERFLOW, w->size);
    stride[d] *= size;
  }
  int64_t row = m->kind == ATTN_MASK_BITS ? (m->k_len + 7) / 8 : m->k_len * size;
  if (!attn_span_of_(span, m->data, row, have, stride))
    return attn_reject_(e, ATTN_E_OVERFLOW, w->size);
  return 1;
}

/* The context: the tier that will run and the number of pieces. */
ATTN_FUNC_ int attn_check_ctx_(attn_error_ *e, const attn_ctx *ctx, const attn_table_ **table,
                               int *workers) {
  if (attn_env_bad_())
    return attn_reject_(e, ATTN_E_ENV,
                        "the environment variable ATTN_ISA must be auto, scalar, avx2 or avx512 on "
                        "x86, auto, scalar or neon on ARM");
  attn_isa isa = ctx ? ctx->isa : ATTN_ISA_AUTO;
  if (isa == ATTN_ISA_AUTO)
    isa = attn_isa_best();
  else if (attn_isa_status(isa) != ATTN_ISA_OK)
    return attn_reject_(e, ATTN_E_ISA,
                        "ctx.isa asks for a tier that cannot run here: attn_isa_why says why");
  *table = attn_table_of_(isa);
  *workers = 1;
  if (ctx && ctx->workers < 0)
    return attn_reject_(e, ATTN_E_CTX, "ctx.workers must not be negative");
  if (ctx && ctx->workspace_size && !ctx->workspace)
    return attn_reject_(e, ATTN_E_CTX,
                        "ctx.workspace is null although ctx.workspace_size is not 0");
  if (ctx && ctx->parallel_for && ctx->workers > 1) *workers = ctx->workers;
  return 1;
}

/* How every call ends: the status and the reason reach the caller. */
ATTN_FUNC_ attn_status attn_end_(attn_ctx *ctx, const attn_error_ *e) {
  if (ctx) ctx->reason = e->status == ATTN_OK ? NULL : e->reason;
  return e->status;
}

/* What a successful call did. */
ATTN_FUNC_ void attn_report_(attn_ctx *ctx, const attn_table_ *table, int workers, const char *path,
                             const char *why) {
  if (!ctx) return;
  ctx->report.isa = table->isa;
  ctx->report.workers = workers;
  ctx->report.path = path;
  ctx->report.why = why;
  ctx->report.pairs = 0;
}
/* <<< attn/engine/check.h */
/* >>> attn/engine/workspace.h */
/* engine/workspace.h owns the memory of a call: one block, from the caller or from ATTN_MALLOC,
 * cut into cache-line aligned pieces. */

#define ATTN_ALIGN_ 64

/* bytes for n elements, rounded up to whole cache lines */
ATTN_FUNC_ int64_t attn_piece_(int64_t n, int64_t size) {
  int64_t bytes = attn_mul_(n, size);
  return bytes > INT64_MAX - ATTN_ALIGN_ ? INT64_MAX
                                         : (bytes + ATTN_ALIGN_ - 1) / ATTN_ALIGN_ * ATTN_ALIGN_;
}

/* what to ask of the caller for count workers of each bytes, alignment included; INT64_MAX when
 * that cannot be addressed */
ATTN_FUNC_ int64_t attn_workspace_bytes_(int64_t each, int64_t count) {
  int64_t bytes = attn_add_(attn_mul_(each, count), ATTN_ALIGN_ - 1);
  return bytes > (sizeof(void *) == 4 ? (int64_t)0x7fffffff : INT64_MAX / 4) ? INT64_MAX : bytes;
}

/* The caller's workspace as a span, empty when there is none. */
ATTN_FUNC_ int attn_check_workspace_(attn_error_ *e, const attn_ctx *ctx, attn_span_ *span) {
  span->lo = span->hi = 0;
  if (!ctx || !ctx->workspace) return 1;
  span->lo = (uintptr_t)ctx->workspace;
  if (ctx->workspace_size > UINTPTR_MAX - span->lo)
    return attn_reject_(e, ATTN_E_OVERFLOW, "ctx.workspace_size passes the address space");
  span->hi = span->lo + ctx->workspace_size;
  return 1;
}

/* The context of a workspace query: the same call before it has one. */
ATTN_FUNC_ attn_ctx attn_before_workspace_(const attn_ctx *ctx) {
  attn_ctx plain;
  memset(&plain, 0, sizeof plain);
  if (ctx) plain = *ctx;
  plain.workspace = NULL, plain.workspace_size = 0;
  return plain;
}

typedef struct attn_workspace_ {
  char *base;  /* aligned */
  void *owned; /* what ATTN_FREE gets */
} attn_workspace_;

ATTN_FUNC_ int attn_workspace_get_(attn_error_ *e, attn_workspace_ *w, const attn_ctx *ctx,
                                   int64_t bytes) {
  char *raw;
  w->owned = NULL;
  if (bytes == INT64_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "the workspace would not fit the address space");
  if (ctx && ctx->workspace) {
    if ((uint64_t)ctx->workspace_size < (uint64_t)bytes)
      return attn_reject_(e, ATTN_E_WORKSPACE,
                          "ctx.workspace_size is less than the workspace query returns");
    raw = (char *)ctx->workspace;
  } else {
    w->owned = ATTN_MALLOC((size_t)bytes);
    if (!w->owned) return attn_reject_(e, ATTN_E_MEMORY, "ATTN_MALLOC returned null");
    raw = (char *)w->owned;
  }
  w->base = raw + (ATTN_ALIGN_ - (uintptr_t)raw % ATTN_ALIGN_) % ATTN_ALIGN_;
  return 1;
}

ATTN_FUNC_ void attn_workspace_drop_(attn_workspace_ *w) {
  if (w->owned) ATTN_FREE(w->owned);
}
/* <<< attn/engine/workspace.h */
/* >>> attn/engine/parallel.h */
/* engine/parallel.h owns the division of work: items handed to workers through the caller's
 * parallel_for. Which worker runs an item never changes a result. */

/* item(job, worker, index); worker selects the workspace */
typedef void (*attn_item_fn_)(void *job, int worker, int64_t index);

typedef struct attn_loop_ {
  attn_item_fn_ item;
  void *job;
  int64_t count;
  int workers;
  size_t next;
} attn_loop_;

ATTN_FUNC_ void attn_loop_task_(void *arg, int64_t worker) {
  attn_loop_ *loop = (attn_loop_ *)arg;
#if defined(__GNUC__)
  /* next free item first: uneven items (causal tiles) balance themselves */
  for (;;) {
    size_t i = __atomic_fetch_add(&loop->next, 1, __ATOMIC_RELAXED);
    if (i >= (size_t)loop->count) return;
    loop->item(loop->job, (int)worker, (int64_t)i);
  }
#else
  for (int64_t i = worker; i < loop->count; i += loop->workers)
    loop->item(loop->job, (int)worker, i);
#endif
}

ATTN_FUNC_ int attn_pieces_(int workers, int64_t count) {
  return count < workers ? (count < 1 ? 1 : (int)count) : workers;
}

ATTN_FUNC_ void attn_for_(const attn_ctx *ctx, int workers, int64_t count, attn_item_fn_ item,
                          void *job) {
  attn_loop_ loop = {item, job, count, workers, 0};
  if (workers > 1) {
    ctx->parallel_for(ctx->parallel_user, workers, attn_loop_task_, &loop);
  } else {
    attn_loop_task_(&loop, 0);
  }
}

#ifdef _OPENMP
ATTN_PUB_ void attn_parallel_openmp(void *user, int64_t count, attn_task_fn task, void *arg) {
  (void)user;
  int threads = count < 1 ? 1 : count > 1024 ? 1024 : (int)count;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
  for (int64_t i = 0; i < count; i++) task(arg, i);
}
#endif
/* <<< attn/engine/parallel.h */
/* >>> attn/engine/scalar_math.h */
/* engine/scalar_math.h owns elementary functions of single numbers in double, for what happens once
 * a row or a position. Own code, so that results do not depend on the machine's libm. */

/* Finite stays finite when it becomes a float: -FLT_MAX is a popular "almost -inf". */
ATTN_FUNC_ double attn_clamp_f64_(double x) {
  const double most = (double)FLT_MAX;
  return x > most ? most : x < -most ? -most : x;
}

/* A natural logarithm in log2 units; -inf stays -inf. */
ATTN_FUNC_ float attn_to_log2_(float x) {
  return x - x != 0.0f ? x : (float)attn_clamp_f64_((double)x * ATTN_LOG2E_);
}

/* log2 of a normal positive float: e + 2/ln 2 (z + z^3/3 + ...), z = (f-1)/(f+1), |z| < 0.172 */
ATTN_FUNC_ double attn_log2_(float x) {
  uint32_t u = attn_to_bits_(x);
  int e = (int)(u >> 23) - 127;
  double f = (double)attn_from_bits_((u & 0x7fffffu) | 0x3f800000u);
  if (f > 1.4142135623730951) f *= 0.5, e++;
  double z = (f - 1.0) / (f + 1.0), y = z * z, p = 1.0 / 13;
  p = ((((((p * y + 1.0 / 11) * y + 1.0 / 9) * y + 1.0 / 7) * y + 1.0 / 5) * y + 1.0 / 3) * y +
       1.0);
  return (double)e + p * z * (2.0 / ATTN_LN2_);
}

/* Sine and cosine, wrong by less than 1e-11: phi = n pi/2 + r with pi/2 in three parts, the first
 * of which times n is exact up to n = 2^20; then Taylor sums for |r| <= pi/4. */
ATTN_FUNC_ void attn_sincos_(double phi, double *sine, double *cosine) {
  const double round = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to an integer */
  if (!(phi < 1e6 && phi > -1e6)) {
    *sine = sin(phi), *cosine = cos(phi);
    return;
  }
  double n = (phi * 0.63661977236758134 + round) - round;
  double r = phi - n * 1.57079632673412561417e+00;
  r -= n * 6.07710050630396597660e-11;
  r -= n * 2.02226624879595063154e-21;
  double y = r * r;
  double s = -1.0 / 39916800, c = 1.0 / 479001600;
  s = ((((s * y + 1.0 / 362880) * y - 1.0 / 5040) * y + 1.0 / 120) * y - 1.0 / 6) * y + 1.0;
  c = (((((c * y - 1.0 / 3628800) * y + 1.0 / 40320) * y - 1.0 / 720) * y + 1.0 / 24) * y - 0.5) *
          y +
      1.0;
  s *= r;
  switch ((int)n & 3) {
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s;
  }
}
/* <<< attn/engine/scalar_math.h */
/* >>> attn/engine/tile.h */
/* engine/tile.h owns what the exact-softmax engine works on: the problem (attn_softmax_), the
 * memory of a worker and the lanes of a tile.
 *
 * A tile is up to ATTN_TILE_ query rows that read the same keys and values: rows of one head, or
 * of all heads of a group, query by query. */

enum { ATTN_PIECES_ = 10 };

typedef struct attn_softmax_ {
  const attn_table_ *table;
  attn_tensor o, q, k, v, lse, map; /* lse and map: data null = absent */
  attn_mask mask, bias;
  const int32_t *kv_len, *q_len;
  const float *alibi, *sinks;
  int softmax_one;
  float softcap;              /* log2 units, 0 = off */
  float scale_hi, scale_lo;   /* scale * log2 e, folded into the packed queries (E3) */
  int64_t q_off, left, right; /* row i sees keys i+q_off-left .. i+q_off+right */
  int64_t group;              /* query heads that share key and value heads */
  int64_t tiles;              /* per (batch, group) */
  int64_t bytes;              /* workspace of one worker, cut at these offsets */
  int64_t offset[ATTN_PIECES_];
  char *workspace;
} attn_softmax_;

/* What one worker works in. */
typedef struct attn_scratch_ {
  float *qt;            /* [dk][tile] packed queries */
  float *s;             /* [block][tile] scores, then weights */
  float *ot;            /* [dv][tile] accumulator */
  float *k, *v;         /* [block][dk], [block][dv] converted rows */
  float *bias, *allow;  /* [block][tile] */
  unsigned char *bytes; /* [tile][block] one expanded bit mask */
  unsigned char *hit;   /* [block][tile] which lanes read a value row that is not finite */
  int64_t *pairs;
} attn_scratch_;

/* Fills a->offset; the total is one worker's workspace, INT64_MAX when it cannot be. */
ATTN_FUNC_ int64_t attn_scratch_plan_(attn_softmax_ *a) {
  const int64_t tile = ATTN_TILE_, block = ATTN_BLOCK_, f = sizeof(float);
  const int64_t cells = attn_piece_(block * tile, f), none = 0;
  const int64_t size[ATTN_PIECES_] = {
      attn_piece_(attn_mul_(a->q.dim, tile), f),
      cells,
      attn_piece_(attn_mul_(a->v.dim, tile), f),
      a->k.dtype == ATTN_F32 ? none : attn_piece_(attn_mul_(a->k.dim, block), f),
      attn_piece_(attn_mul_(a->v.dim, block), f),
      a->bias.kind == ATTN_MASK_NONE ? none : cells,
      a->mask.kind == ATTN_MASK_NONE ? none : cells,
      a->mask.kind == ATTN_MASK_NONE ? none : attn_piece_(block * tile, 1),
      attn_piece_(block * tile, 1),
      attn_piece_(1, sizeof(int64_t))};
  int64_t total = 0;
  for (int i = 0; i < ATTN_PIECES_; i++) a->offset[i] = total, total = attn_add_(total, size[i]);
  return total;
}

ATTN_FUNC_ void attn_scratch_cut_(const attn_softmax_ *a, int worker, attn_scratch_ *w) {
  char *at = a->workspace + worker * a->bytes;
  w->qt = (float *)(void *)(at + a->offset[0]);
  w->s = (float *)(void *)(at + a->offset[1]);
  w->ot = (float *)(void *)(at + a->offset[2]);
  w->k = (float *)(void *)(at + a->offset[3]);
  w->v = (float *)(void *)(at + a->offset[4]);
  w->bias = (float *)(void *)(at + a->offset[5]);
  w->allow = (float *)(void *)(at + a->offset[6]);
  w->bytes = (unsigned char *)(at + a->offset[7]);
  w->hit = (unsigned char *)(at + a->offset[8]);
  w->pairs = (int64_t *)(void *)(at + a->offset[9]);
}

/* The lanes of one tile. */
typedef struct attn_tile_ {
  const attn_softmax_ *a;
  attn_scratch_ w;
  int64_t batch, head_k, head_v;
  int n, groups;                                   /* rows and lane groups in use */
  int careful;                                     /* the second sweep, see attn_tile_clean_ */
  int partial;                                     /* some pair of a visited block is forbidden */
  int64_t lo[ATTN_TILE_], hi[ATTN_TILE_];          /* keys each row may see */
  int64_t pos[ATTN_TILE_];                         /* its key position */
  const char *mask[ATTN_TILE_], *bias[ATTN_TILE_]; /* its mask rows */
  int64_t head[ATTN_TILE_], row[ATTN_TILE_];
  void *out[ATTN_TILE_];
  float m[ATTN_TILE_], l[ATTN_TILE_], alpha[ATTN_TILE_], top[ATTN_TILE_], spare[ATTN_TILE_];
  float scale[ATTN_TILE_], slope[ATTN_TILE_], rel[ATTN_TILE_], from[ATTN_TILE_], to[ATTN_TILE_];
  struct {
    int64_t lo_min, lo_max, hi_min, hi_max; /* over the rows that see a key; empty: all 0 */
    int ragged;                             /* some row sees no key */
  } g[ATTN_TILE_ / ATTN_GROUP_];
} attn_tile_;

ATTN_FUNC_ char *attn_at_(const attn_tensor *t, int64_t b, int64_t h, int64_t i) {
  return (char *)t->data +
         (b * t->stride_batch + h * t->stride_head + i * t->stride_len) * attn_size_(t->dtype);
}

/* Row i of a mask: extents of 1 broadcast. */
ATTN_FUNC_ const char *attn_mask_at_(const attn_mask *m, int64_t b, int64_t h, int64_t i) {
  int64_t e = (m->batch > 1 ? b : 0) * m->stride_batch + (m->heads > 1 ? h : 0) * m->stride_head +
              (m->q_len > 1 ? i : 0) * m->stride_q;
  return (const char *)m->data + e * (m->kind == ATTN_MASK_ADD ? attn_size_(m->dtype) : 1);
}

static int64_t attn_clamp_(int64_t x, int64_t lo, int64_t hi) {
  return x < lo ? lo : x > hi ? hi : x;
}

/* Places rows in lanes. Lanes that have no row compute on zeros and are never stored. */
ATTN_FUNC_ void attn_tile_lanes_(attn_tile_ *t, int64_t unit, int64_t tile) {
  const attn_softmax_ *a = t->a;
  const int64_t groups = a->q.heads / a->group, rows = a->group * a->q.len;
  const void *q[ATTN_TILE_];
  const int64_t first = tile * ATTN_TILE_, head0 = unit % groups * a->group;
  t->batch = unit / groups;
  t->head_k = head0 / (a->q.heads / a->k.heads);
  t->head_v = head0 / (a->q.heads / a->v.heads);
  t->n = rows - first < ATTN_TILE_ ? (int)(rows - first) : ATTN_TILE_;
  t->groups = (t->n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  int64_t keys = a->kv_len ? a->kv_len[t->batch] : a->k.len;
  int64_t queries = a->q_len ? a->q_len[t->batch] : a->q.len;
  memset(t->g, 0, sizeof t->g);
  for (int r = 0; r < ATTN_TILE_; r++) t->slope[r] = t->rel[r] = t->spare[r] = 0.0f;
  for (int r = t->n; r < ATTN_TILE_; r++)
    t->lo[r] = 0, t->hi[r] = INT64_MAX, t->pos[r] = 0, t->head[r] = 0;
  /* neighbours in lanes are neighbours in position, whatever the group */
  int64_t i = first / a->group - 1, h = head0 + a->group - 1;
  if (first % a->group) i++, h = head0 + first % a->group - 1;
  for (int r = 0; r < t->n; r++) {
    if (++h == head0 + a->group) h = head0, i++;
    t->row[r] = i, t->head[r] = h;
    const int64_t p = t->pos[r] = i + a->q_off;
    t->lo[r] = attn_clamp_(p - a->left, 0, keys);
    t->hi[r] = i < queries ? attn_clamp_(p + a->right + 1, 0, keys) : 0;
    q[r] = attn_at_(&a->q, t->batch, h, i);
    t->out[r] = attn_at_(&a->o, t->batch, h, i);
    if (a->mask.kind) t->mask[r] = attn_mask_at_(&a->mask, t->batch, h, i);
    if (a->bias.kind) t->bias[r] = attn_mask_at_(&a->bias, t->batch, h, i);
    if (a->alibi) t->slope[r] = -attn_to_log2_(a->alibi[h]);
    int g = r / ATTN_GROUP_;
    if (t->lo[r] >= t->hi[r]) {
      t->lo[r] = t->hi[r] = 0, t->g[g].ragged = 1;
    } else if (t->g[g].hi_max == 0) {
      t->g[g].lo_min = t->g[g].lo_max = t->lo[r], t->g[g].hi_min = t->g[g].hi_max = t->hi[r];
    } else {
      if (t->lo[r] < t->g[g].lo_min) t->g[g].lo_min = t->lo[r];
      if (t->lo[r] > t->g[g].lo_max) t->g[g].lo_max = t->lo[r];
      if (t->hi[r] < t->g[g].hi_min) t->g[g].hi_min = t->hi[r];
      if (t->hi[r] > t->g[g].hi_max) t->g[g].hi_max = t->hi[r];
    }
  }
  a->table->pack(t->w.qt, q, t->n, a->q.dim, (int)a->q.dtype, a->scale_hi, a->scale_lo);
}
/* <<< attn/engine/tile.h */
/* >>> attn/engine/mask.h */
/* engine/mask.h owns masks and biases of a tile: what they say of a block of keys, and their
 * entries in the form the modifiers take. */

ATTN_FUNC_ int attn_bit_(const void *row, int64_t j) {
  return ((const unsigned char *)row)[j >> 3] >> (j & 7) & 1;
}

/* Expands keys from..from+n of the mask rows of some lanes into dst[key][lane], log2 units. */
ATTN_FUNC_ void attn_tile_mask_rows_(attn_tile_ *t, const attn_mask *mask, const char *const *rows,
                                     int lanes, float *dst, int64_t from, int64_t n) {
  const void *at[ATTN_TILE_];
  const attn_table_ *f = t->a->table;
  const int64_t size = mask->kind == ATTN_MASK_ADD ? attn_size_(mask->dtype) : 1;
  for (int r = 0; r < lanes; r++) {
    if (mask->kind != ATTN_MASK_BITS) {
      at[r] = rows[r] + from * size;
      continue;
    }
    unsigned char *bytes = t->w.bytes + r * ATTN_BLOCK_;
    for (int64_t j = 0; j < n; j++) bytes[j] = (unsigned char)attn_bit_(rows[r], from + j);
    at[r] = bytes;
  }
  if (mask->kind == ATTN_MASK_ADD) {
    const float hi = (float)ATTN_LOG2E_, lo = (float)(ATTN_LOG2E_ - (double)hi);
    f->pack(dst, at, lanes, n, (int)mask->dtype | ATTN_KIND_BIAS_, hi, lo);
  } else {
    f->pack(dst, at, lanes, n, ATTN_KIND_BOOL_, 1.0f, 0.0f);
  }
}

/* Expands keys j0..j0+n of a mask for the whole tile. Entries that broadcast along k are repeated. */
ATTN_FUNC_ void attn_tile_mask_(attn_tile_ *t, const attn_mask *mask, const char *const *rows,
                                float *dst, int64_t j0, int64_t n) {
  if (mask->k_len > 1) {
    attn_tile_mask_rows_(t, mask, rows, t->n, dst, j0, n);
    return;
  }
  attn_tile_mask_rows_(t, mask, rows, t->n, dst, 0, 1);
  for (int64_t j = 1; j < n; j++) memcpy(dst + j * ATTN_TILE_, dst, ATTN_TILE_ * sizeof(float));
}

/* What a boolean mask says of a block: it is skipped, plain, or tested pair by pair. */
enum { ATTN_FORBIDS_ALL_, ATTN_ALLOWS_ALL_, ATTN_MIXED_ };

ATTN_FUNC_ int attn_tile_allows_(const attn_tile_ *t, int64_t j0, int64_t j1) {
  const attn_mask *mask = &t->a->mask;
  int some = 0, all = 1;
  if (mask->kind == ATTN_MASK_NONE) return ATTN_ALLOWS_ALL_;
  if (mask->k_len == 1) j0 = 0, j1 = 1;
  for (int r = 0; r < t->n && !(some && !all); r++) {
    const unsigned char *row = (const unsigned char *)t->mask[r];
    if (r > 0 && t->mask[r] == t->mask[r - 1]) continue;
    int64_t j = j0;
    if (mask->kind == ATTN_MASK_BITS) {
      for (; j < j1; j++) {
        int on = attn_bit_(row, j);
        some |= on, all &= on;
      }
      continue;
    }
    for (uint64_t x; j + 8 <= j1; j += 8) { /* eight at once: any byte, no zero byte */
      const uint64_t ones = 0x0101010101010101u;
      memcpy(&x, row + j, 8);
      some |= x != 0, all &= ((x - ones) & ~x & (ones << 7)) == 0;
    }
    for (; j < j1; j++) some |= row[j] != 0, all &= row[j] != 0;
  }
  return !some ? ATTN_FORBIDS_ALL_ : all ? ATTN_ALLOWS_ALL_ : ATTN_MIXED_;
}

/* 1 when all rows of a tile read the same mask row: it then stays a row, see mod.key */
ATTN_FUNC_ int attn_mask_per_key_(const attn_softmax_ *a, const attn_mask *mask) {
  return mask->q_len == 1 && (mask->heads == 1 || a->group == 1);
}

/* Keys j0..j0+n of a per-key bias, in log2 units; a per-key mask then forbids some. */
ATTN_FUNC_ void attn_tile_key_(attn_tile_ *t, const attn_mask *mask, const char *row, float *key,
                               int64_t j0, int64_t n) {
  const unsigned char *bytes = (const unsigned char *)row;
  const int64_t step = mask->k_len > 1 ? 1 : 0, from = step * j0, width = step ? n : 1;
  if (mask->kind == ATTN_MASK_ADD) { /* as one lane, so that it rounds as a mask by pair does */
    attn_tile_mask_rows_(t, mask, &row, 1, t->w.bias, from, width);
    for (int64_t j = 0; j < n; j++) key[j] = t->w.bias[j * step * ATTN_TILE_];
  } else {
    for (int64_t j = 0; j < n; j++) { /* not an addition: NaN + -inf would let the key through */
      int64_t e = from + j * step;
      if (!(mask->kind == ATTN_MASK_BITS ? attn_bit_(row, e) : bytes[e])) key[j] = -INFINITY;
    }
  }
}
/* <<< attn/engine/mask.h */
/* >>> attn/engine/softmax.h */
/* engine/softmax.h owns the exact-softmax driver: it walks the key blocks that a tile of queries
 * may see and calls the primitives on them. Which keys and modifiers a mechanism has is data in
 * attn_softmax_; argument checks belong to the mechanisms.
 *
 * Blocks of ATTN_BLOCK_ keys start at multiples of it, whatever the tile, so a row's result never
 * depends on the rows beside it. */

/* Key rows j0.. as f32: the tensor itself, or a converted copy. */
ATTN_FUNC_ const float *attn_rows_f32_(const attn_softmax_ *a, const attn_tensor *x, int64_t b,
                                       int64_t h, int64_t j0, int64_t n, float *copy,
                                       int64_t *stride) {
  const char *p = attn_at_(x, b, h, j0);
  if (x->dtype == ATTN_F32) {
    *stride = x->stride_len;
    return (const float *)(const void *)p;
  }
  a->table->widen(copy, p, x->stride_len, n, x->dim, x->dtype);
  *stride = x->dim;
  return copy;
}

/* A run of keys j0..j1 that lane groups g0..g1 see; bounded: some of these rows see only a part. */
typedef struct attn_segment_ {
  int64_t j0, j1;
  int g0, g1, bounded;
} attn_segment_;

enum { ATTN_GROUPS_ = ATTN_TILE_ / ATTN_GROUP_, ATTN_SEGMENTS_ = 2 * ATTN_GROUPS_ + 1 };

/* Cuts block j0..j1 where the set of groups that see a key changes. */
ATTN_FUNC_ int attn_tile_cut_(const attn_tile_ *t, int64_t j0, int64_t j1, attn_segment_ *seg) {
  int64_t edge[ATTN_SEGMENTS_ + 1];
  int edges = 0, count = 0;
  edge[edges++] = j0;
  edge[edges++] = j1;
  for (int g = 0; g < t->groups; g++) {
    const int64_t e[2] = {t->g[g].lo_min, t->g[g].hi_max};
    for (int i = 0; i < 2; i++) {
      if (e[i] <= j0 || e[i] >= j1) continue;
      int at = edges;
      while (edge[at - 1] > e[i]) at--;
      if (edge[at - 1] == e[i]) continue;
      memmove(edge + at + 1, edge + at, (size_t)(edges - at) * sizeof *edge);
      edge[at] = e[i];
      edges++;
    }
  }
  for (int i = 0; i + 1 < edges; i++) {
    attn_segment_ s = {edge[i], edge[i + 1], ATTN_GROUPS_, 0, 0};
    for (int g = 0; g < t->groups; g++) {
      if (t->g[g].lo_min > s.j0 || t->g[g].hi_max < s.j1) continue;
      if (g < s.g0) s.g0 = g;
      s.g1 = g + 1;
    }
    for (int g = s.g0; g < s.g1; g++)
      s.bounded |= t->g[g].ragged || t->g[g].lo_max > s.j0 || t->g[g].hi_min < s.j1;
    if (s.g0 >= s.g1) continue;
    attn_segment_ *last = count ? seg + count - 1 : NULL;
    if (last && last->j1 == s.j0 && last->g0 == s.g0 && last->g1 == s.g1 &&
        last->bounded == s.bounded)
      last->j1 = s.j1;
    else
      seg[count++] = s;
  }
  return count;
}

/* Values that are not finite must reach the rows that may read them and no others, though a
 * forbidden pair has weight 0 and 0 * NaN is NaN. A tile in which that may have happened is swept
 * again carefully: such values are taken out of a copy of the block here, before the scores become
 * weights, with the lanes that read them, and put back by attn_tile_patch_. */
ATTN_FUNC_ void attn_tile_clean_(attn_tile_ *t, const attn_modifiers_ *mod, int64_t j0, int64_t n,
                                 const float *v, int64_t stride) {
  const int64_t dv = t->a->v.dim;
  /* by the masks, not by the score: an allowed score may be -inf, and its value is read */
  for (int64_t j = 0; j < n; j++)
    for (int lane = 0; lane < t->n; lane++) {
      const int64_t cell = j * ATTN_TILE_ + lane;
      t->w.hit[cell] = (unsigned char)(t->lo[lane] <= j0 + j && j0 + j < t->hi[lane] &&
                                       !(mod->key && mod->key[j] == -INFINITY) &&
                                       !(mod->bias && mod->bias[cell] == -INFINITY) &&
                                       !(mod->allow && mod->allow[cell] != 0.0f));
    }
  for (int64_t j = 0; j < n; j++)
    for (int64_t c = 0; c < dv; c++) {
      float x = v[j * stride + c];
      t->w.v[j * dv + c] = x - x == 0.0f ? x : 0.0f;
    }
}

/* Adds what attn_tile_clean_ took out, read from the tensor itself. */
ATTN_FUNC_ void attn_tile_patch_(attn_tile_ *t, int64_t j0, int64_t n) {
  const attn_softmax_ *a = t->a;
  const int64_t dv = a->v.dim;
  float x;
  for (int64_t j = 0; j < n; j++)
    for (int64_t c = 0; c < dv; c++) {
      const char *p = attn_at_(&a->v, t->batch, t->head_v, j0 + j) + c * attn_size_(a->v.dtype);
      if (a->v.dtype == ATTN_F32)
        memcpy(&x, p, 4);
      else
        a->table->widen(&x, p, 0, 1, 1, a->v.dtype);
      if (x - x == 0.0f) continue;
      for (int lane = 0; lane < t->n; lane++)
        if (t->w.hit[j * ATTN_TILE_ + lane])
          t->w.ot[c * ATTN_TILE_ + lane] += t->w.s[j * ATTN_TILE_ + lane] * x;
    }
}

/* The score map leaves in log2 units here and becomes weights when the row's sum is known. */
ATTN_FUNC_ void attn_tile_emit_(attn_tile_ *t, int64_t j0, int64_t n) {
  void *rows[ATTN_TILE_];
  for (int r = 0; r < t->n; r++)
    rows[r] = (float *)(void *)attn_at_(&t->a->map, t->batch, t->head[r], t->row[r]) + j0;
  t->a->table->unpack(rows, t->w.s, t->n, n, ATTN_F32, NULL);
}

/* One block of keys as one tile sees it. */
typedef struct attn_block_ {
  int64_t base, j0, j1; /* where the block starts; the keys of it that are visited */
  attn_segment_ seg[ATTN_SEGMENTS_];
  int count, bounded;
  int whole;                    /* one segment for all rows */
  int partial;                  /* some pair may be forbidden */
  const attn_mask *mask, *bias; /* null when they say nothing here */
  const float *k, *v;
  int64_t k_stride, v_stride;
  attn_modifiers_ mod;    /* arrays over keys start at j0; lo and hi go to bounded segments only */
  float key[ATTN_BLOCK_]; /* what mod.key points at */
  int64_t first[ATTN_GROUPS_], end[ATTN_GROUPS_]; /* keys each lane group has scores for */
} attn_block_;

/* Finds what keys j0..j1 need. 0 = no row sees any of them. */
ATTN_FUNC_ int attn_block_open_(const attn_tile_ *t, attn_block_ *b, int64_t j0, int64_t j1) {
  const attn_softmax_ *a = t->a;
  b->count = attn_tile_cut_(t, j0, j1, b->seg);
  const int allows = b->count == 0 ? ATTN_FORBIDS_ALL_ : attn_tile_allows_(t, j0, j1);
  if (allows == ATTN_FORBIDS_ALL_) return 0;
  b->base = j0 / ATTN_BLOCK_ * ATTN_BLOCK_;
  b->j0 = b->seg[0].j0, b->j1 = b->seg[b->count - 1].j1;
  b->mask = allows == ATTN_MIXED_ ? &a->mask : NULL;
  b->bias = a->bias.kind ? &a->bias : NULL;
  b->bounded = 0;
  for (int g = 0; g < ATTN_GROUPS_; g++) b->first[g] = b->end[g] = 0;
  for (int i = 0; i < b->count; i++) {
    b->bounded |= b->seg[i].bounded;
    /* positions grow with the lanes, so the segments of a group follow one another */
    for (int g = b->seg[i].g0; g < b->seg[i].g1; g++) {
      if (b->end[g] == 0) b->first[g] = b->seg[i].j0;
      b->end[g] = b->seg[i].j1;
    }
  }
  b->whole = b->count == 1 && b->seg[0].g0 == 0 && b->seg[0].g1 == t->groups;
  b->partial = b->bounded || !b->whole || b->mask || b->bias;
  const int64_t n = b->j1 - b->j0;
  b->k = attn_rows_f32_(a, &a->k, t->batch, t->head_k, b->j0, n, t->w.k, &b->k_stride);
  b->v = attn_rows_f32_(a, &a->v, t->batch, t->head_v, b->j0, n, t->w.v, &b->v_stride);
  return 1;
}

/* Fills in the modifiers of the block. Distances and bounds count from its fixed start, so that
 * they round alike whatever part of it is visited. */
ATTN_FUNC_ void attn_block_modifiers_(attn_tile_ *t, attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  const int64_t n = b->j1 - b->j0;
  const int key_mask = b->mask && attn_mask_per_key_(a, b->mask);
  const int key_bias = b->bias && attn_mask_per_key_(a, b->bias);
  memset(&b->mod, 0, sizeof b->mod);
  b->mod.softcap = a->softcap;
  if (a->alibi) {
    for (int r = 0; r < t->n; r++) t->rel[r] = (float)(b->base - t->pos[r]);
    b->mod.slope = t->slope, b->mod.rel = t->rel;
  }
  if (key_mask || key_bias) memset(b->key, 0, sizeof b->key), b->mod.key = b->key;
  if (key_bias) attn_tile_key_(t, b->bias, t->bias[0], b->key, b->j0, n);
  if (key_mask) attn_tile_key_(t, b->mask, t->mask[0], b->key, b->j0, n);
  if (b->bias && !key_bias) {
    attn_tile_mask_(t, b->bias, t->bias, t->w.bias, b->j0, n);
    b->mod.bias = t->w.bias;
  }
  if (b->mask && !key_mask) {
    attn_tile_mask_(t, b->mask, t->mask, t->w.allow, b->j0, n);
    b->mod.allow = t->w.allow;
  }
  if (b->bounded)
    for (int r = 0; r < ATTN_TILE_; r++) {
      t->from[r] = (float)attn_clamp_(t->lo[r] - b->base, 0, ATTN_BLOCK_);
      t->to[r] = (float)attn_clamp_(t->hi[r] - b->base, 0, ATTN_BLOCK_);
    }
}

/* E1 to E7: the scores of the block, and the maximum of each row in t->top. */
ATTN_FUNC_ void attn_block_scores_(attn_tile_ *t, const attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const int modified = a->softcap > 0.0f || a->alibi || b->mask || b->bias;
  for (int r = 0; r < ATTN_TILE_; r++) t->top[r] = -INFINITY;
  if (a->map.data && !b->whole) /* a map wants every cell */
    for (int64_t c = 0; c < (b->j1 - b->j0) * ATTN_TILE_; c++) t->w.s[c] = -INFINITY;
  for (int i = 0; i < b->count; i++) {
    const attn_segment_ *seg = &b->seg[i];
    const int64_t at = seg->j0 - b->j0, n = seg->j1 - seg->j0;
    const int change = modified || seg->bounded;
    float *s = t->w.s + at * ATTN_TILE_;
    /* scores that will change have no maximum yet */
    f->score_block(s, t->w.qt, b->k + at * b->k_stride, b->k_stride, n, a->q.dim, seg->g0, seg->g1,
                   change ? t->spare : t->top);
    if (change) {
      attn_modifiers_ mod = b->mod;
      if (mod.key) mod.key += at;
      if (mod.bias) mod.bias += at * ATTN_TILE_;
      if (mod.allow) mod.allow += at * ATTN_TILE_;
      if (seg->bounded) mod.lo = t->from, mod.hi = t->to;
      f->modify_block(s, seg->j0 - b->base, n, seg->g0, seg->g1, &mod, t->top);
    }
    const int lanes = (seg->g1 - seg->g0) * ATTN_GROUP_, left = t->n - seg->g0 * ATTN_GROUP_;
    *t->w.pairs += n * (lanes < left ? lanes : left);
  }
  if (a->map.data) attn_tile_emit_(t, b->j0, b->j1 - b->j0);
}

/* E8 and E9: scores become weights and values are added to the accumulator; started = it holds
 * earlier blocks. One segment for all rows, the usual case, rescales it in registers. */
ATTN_FUNC_ void attn_block_values_(attn_tile_ *t, attn_block_ *b, int started) {
  const attn_table_ *f = t->a->table;
  const int64_t n = b->j1 - b->j0, dv = t->a->v.dim;
  float *s = t->w.s;
  int patch = 0;
  if (t->careful && b->partial && !f->finite(b->v, b->v_stride, n, dv)) {
    attn_tile_clean_(t, &b->mod, b->j0, n, b->v, b->v_stride);
    b->v = t->w.v, b->v_stride = dv, patch = 1;
  }
  if (b->whole) {
    f->softmax_block(s, n, 0, t->groups, t->m, t->l, t->alpha, t->top);
    f->value_block(t->w.ot, s, b->v, b->v_stride, n, dv, 0, t->groups, started ? t->alpha : NULL,
                   !started);
  } else {
    if (!started) memset(t->w.ot, 0, (size_t)(dv * ATTN_TILE_) * sizeof(float));
    for (int g = 0; g < t->groups; g++) {
      if (b->end[g] == 0) continue;
      f->softmax_block(s + (b->first[g] - b->j0) * ATTN_TILE_, b->end[g] - b->first[g], g, g + 1,
                       t->m, t->l, t->alpha, t->top);
      if (started) f->scale_block(t->w.ot, dv, g, g + 1, t->alpha);
    }
    for (int i = 0; i < b->count; i++) {
      const attn_segment_ *seg = &b->seg[i];
      const int64_t at = seg->j0 - b->j0;
      f->value_block(t->w.ot, s + at * ATTN_TILE_, b->v + at * b->v_stride, b->v_stride,
                     seg->j1 - seg->j0, dv, seg->g0, seg->g1, NULL, 0);
    }
  }
  if (patch) attn_tile_patch_(t, b->j0, n);
}

/* Sinks, the last division, and what leaves the tile (E10). */
ATTN_FUNC_ void attn_tile_finish_(attn_tile_ *t, int started) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const int64_t queries = a->q_len ? a->q_len[t->batch] : a->q.len;
  float logit[ATTN_TILE_];
  for (int pass = 0; pass < 2; pass++) {
    if (pass == 0 ? !a->sinks : !a->softmax_one) continue;
    for (int r = 0; r < ATTN_TILE_; r++) {
      logit[r] = -INFINITY;
      if (r < t->n && t->row[r] < queries)
        logit[r] = pass == 0 ? attn_to_log2_(a->sinks[t->head[r]]) : 0.0f;
    }
    f->join(t->m, t->l, t->scale, logit);
  }
  if (!started) memset(t->w.ot, 0, (size_t)(a->v.dim * ATTN_TILE_) * sizeof(float));
  f->divide(t->scale, t->l);
  if (a->lse.data)
    for (int r = 0; r < t->n; r++) {
      float lse = -INFINITY;
      if (t->l[r] > 0.0f && t->l[r] < INFINITY)
        lse = (float)(((double)t->m[r] + attn_log2_(t->l[r])) * ATTN_LN2_);
      else if (t->l[r] != 0.0f)
        lse = attn_from_bits_(0x7fc00000u);
      memcpy(attn_at_(&a->lse, t->batch, t->head[r], t->row[r]), &lse, sizeof lse);
    }
  f->unpack(t->out, t->w.ot, t->n, a->v.dim, a->o.dtype, t->scale);
  if (!a->map.data) return;
  for (int r = 0; r < t->n; r++) {
    float *row = (float *)(void *)attn_at_(&a->map, t->batch, t->head[r], t->row[r]);
    /* m includes the sinks here: exp2(x - m) / l with what scale already holds */
    float inv = t->l[r] == 0.0f ? 0.0f : 1.0f / t->l[r];
    f->weights(row, row, a->map.dim, t->m[r] == -INFINITY ? 0.0f : t->m[r], inv);
  }
}

/* Walks the key blocks from first to end. 0 when there was nothing to see. */
ATTN_FUNC_ int attn_tile_sweep_(attn_tile_ *t, int64_t first, int64_t end) {
  attn_block_ block;
  int started = 0;
  t->partial = 0;
  for (int r = 0; r < ATTN_TILE_; r++)
    t->m[r] = -INFINITY, t->l[r] = 0.0f, t->alpha[r] = 1.0f, t->scale[r] = 1.0f;
  for (int64_t j = first, next; j < end; j = next) {
    next = (j / ATTN_BLOCK_ + 1) * ATTN_BLOCK_;
    if (next > end) next = end;
    if (!attn_block_open_(t, &block, j, next)) continue;
    t->partial |= block.partial;
    attn_block_modifiers_(t, &block);
    attn_block_scores_(t, &block);
    attn_block_values_(t, &block, started);
    started = 1;
  }
  return started;
}

/* One work item: a tile of one (batch, head group). Late tiles first, since causal ones cost more.
 */
ATTN_FUNC_ void attn_softmax_item_(void *job, int worker, int64_t index) {
  const attn_softmax_ *a = (const attn_softmax_ *)job;
  attn_tile_ t;
  t.a = a;
  attn_scratch_cut_(a, worker, &t.w);
  attn_tile_lanes_(&t, index / a->tiles, a->tiles - 1 - index % a->tiles);
  int64_t first = INT64_MAX, end = 0;
  const int64_t pairs = *t.w.pairs;
  for (int g = 0; g < t.groups; g++) {
    if (t.g[g].hi_max > end) end = t.g[g].hi_max;
    if (t.g[g].hi_max > 0 && t.g[g].lo_min < first) first = t.g[g].lo_min;
  }
  if (a->map.data)
    for (int r = 0; r < t.n; r++) {
      float *row = (float *)(void *)attn_at_(&a->map, t.batch, t.head[r], t.row[r]);
      for (int64_t c = 0; c < a->map.dim; c++) row[c] = -INFINITY;
    }
  t.careful = 0;
  int started = attn_tile_sweep_(&t, first, end);
  if (t.partial && started && !a->table->finite(t.w.ot, ATTN_TILE_, a->v.dim, t.n)) {
    t.careful = 1, *t.w.pairs = pairs;
    attn_tile_sweep_(&t, first, end);
  }
  attn_tile_finish_(&t, started);
}

/* Runs the whole problem; a is complete but for its workspace. */
ATTN_FUNC_ int attn_softmax_run_(attn_error_ *e, attn_softmax_ *a, attn_ctx *ctx, int workers) {
  attn_workspace_ w;
  const int64_t items = a->q.batch * (a->q.heads / a->group) * a->tiles;
  workers = attn_pieces_(workers, items);
  a->bytes = attn_scratch_plan_(a);
  if (!attn_workspace_get_(e, &w, ctx, attn_workspace_bytes_(a->bytes, workers))) return 0;
  a->workspace = w.base;
  attn_scratch_ s;
  for (int i = 0; i < workers; i++) {
    attn_scratch_cut_(a, i, &s);
    *s.pairs = 0;
  }
  attn_for_(ctx, workers, items, attn_softmax_item_, a);
  attn_report_(ctx, a->table, workers, "streaming softmax, queries in lanes",
               "the only exact-softmax path");
  for (int i = 0; ctx && i < workers; i++) {
    attn_scratch_cut_(a, i, &s);
    ctx->report.pairs += *s.pairs;
  }
  attn_workspace_drop_(&w);
  return 1;
}
/* <<< attn/engine/softmax.h */
/* >>> attn/mechanisms/common.h */
/* mechanisms/common.h owns the public functions that belong to no family: views, masks, status
 * sentences, elementary functions. */

ATTN_PUB_ const char *attn_status_string(attn_status status) {
  static const char *const text[] = {
      "success",
      "a required pointer is null",
      "a storage type is unknown or not allowed for this argument",
      "an extent is out of range or does not match",
      "a head count does not divide the number of query heads",
      "rows of an output share memory with one another",
      "a length, offset or window lies outside its range",
      "a value is NaN, infinite or of the wrong sign",
      "a mask does not broadcast to the scores or has a wrong kind",
      "an output shares memory with another argument",
      "sizes do not fit the address space",
      "the workspace is too small",
      "memory could not be allocated",
      "the tier asked for cannot run here",
      "the environment variable ATTN_ISA names no tier of this machine",
      "a field of attn_ctx is inconsistent",
      "a pointer is not aligned to its elements"};
  return (int)status >= 0 && status < ATTN_STATUS_COUNT ? text[status] : "unknown status";
}

ATTN_FUNC_ attn_tensor attn_view_(const void *data, attn_dtype dtype, int64_t batch, int64_t heads,
                                  int64_t len, int64_t dim) {
  attn_tensor t;
  memset(&t, 0, sizeof t);
  t.data = (void *)(uintptr_t)data; /* only outputs are written */
  t.dtype = dtype;
  t.batch = batch, t.heads = heads, t.len = len, t.dim = dim;
  return t;
}

/* Products of extents that pass the range saturate: the call then rejects the view. */
ATTN_FUNC_ int64_t attn_stride_(int64_t a, int64_t b) {
  return a < 0 || b < 0 ? 0 : attn_mul_(a, b);
}

ATTN_PUB_ attn_tensor attn_bhtd(const void *data, attn_dtype dtype, int64_t batch, int64_t heads,
                                int64_t len, int64_t dim) {
  attn_tensor t = attn_view_(data, dtype, batch, heads, len, dim);
  t.stride_len = dim;
  t.stride_head = attn_stride_(len, dim);
  t.stride_batch = attn_stride_(heads, t.stride_head);
  return t;
}

ATTN_PUB_ attn_tensor attn_bthd(const void *data, attn_dtype dtype, int64_t batch, int64_t len,
                                int64_t heads, int64_t dim) {
  attn_tensor t = attn_view_(data, dtype, batch, heads, len, dim);
  t.stride_head = dim;
  t.stride_len = attn_stride_(heads, dim);
  t.stride_batch = attn_stride_(len, t.stride_len);
  return t;
}

ATTN_FUNC_ attn_mask attn_mask_view_(const void *data, attn_mask_kind kind, attn_dtype dtype,
                                     int64_t batch, int64_t heads, int64_t q_len, int64_t k_len) {
  attn_mask m;
  memset(&m, 0, sizeof m);
  m.data = data, m.kind = kind, m.dtype = dtype;
  m.batch = batch, m.heads = heads, m.q_len = q_len, m.k_len = k_len;
  m.stride_q = kind == ATTN_MASK_BITS ? k_len / 8 + (k_len % 8 != 0) : k_len;
  m.stride_head = attn_stride_(q_len, m.stride_q);
  m.stride_batch = attn_stride_(heads, m.stride_head);
  return m;
}

ATTN_PUB_ attn_mask attn_mask_bool(const uint8_t *data, int64_t batch, int64_t heads, int64_t q_len,
                                   int64_t k_len) {
  return attn_mask_view_(data, ATTN_MASK_BOOL, ATTN_F32, batch, heads, q_len, k_len);
}
ATTN_PUB_ attn_mask attn_mask_bits(const uint8_t *data, int64_t batch, int64_t heads, int64_t q_len,
                                   int64_t k_len) {
  return attn_mask_view_(data, ATTN_MASK_BITS, ATTN_F32, batch, heads, q_len, k_len);
}
ATTN_PUB_ attn_mask attn_mask_add(const void *data, attn_dtype dtype, int64_t batch, int64_t heads,
                                  int64_t q_len, int64_t k_len) {
  return attn_mask_view_(data, ATTN_MASK_ADD, dtype, batch, heads, q_len, k_len);
}

ATTN_PUB_ attn_status attn_exp(float *y, const float *x, int64_t n, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_span_ sy, sx;
  int workers;
  if (!attn_check_ctx_(&e, ctx, &table, &workers)) return attn_end_(ctx, &e);
  if (n < 0 || n > INT64_MAX / 16) {
    attn_reject_(&e, n < 0 ? ATTN_E_SHAPE : ATTN_E_OVERFLOW, "n must not be negative or huge");
  } else if (n > 0 && (!y || !x)) {
    attn_reject_(&e, ATTN_E_NULL, y ? "x must not be null" : "y must not be null");
  } else if (attn_check_array_(&e, y, n, 4, "y must be aligned to its elements", &sy) &&
             attn_check_array_(&e, x, n, 4, "x must be aligned to its elements", &sx)) {
    if (y != x && attn_overlap_(sy, sx)) {
      attn_reject_(&e, ATTN_E_OVERLAP, "y must be x or share no memory with it");
    } else {
      table->exp(y, x, n);
      attn_report_(ctx, table, 1, "exp row", "the only path");
    }
  }
  return attn_end_(ctx, &e);
}
/* <<< attn/mechanisms/common.h */
/* >>> attn/mechanisms/core.h */
/* mechanisms/core.h owns family A (with ALiBi, which is a field of it): argument checks and the
 * translation of parameters into the exact-softmax engine's terms. */

ATTN_FUNC_ int64_t attn_gcd_(int64_t a, int64_t b) {
  while (b) {
    int64_t r = a % b;
    a = b, b = r;
  }
  return a;
}

/* A window field as a distance; a quarter of INT64_MAX is beyond every position. */
ATTN_FUNC_ int64_t attn_reach_(int64_t window) {
  const int64_t far = INT64_MAX / 4;
  return window == 0 ? far : window == ATTN_WINDOW_NONE ? 0 : window < far ? window : far;
}

/* An additive mask has no NaN and no +inf. Distinct entries are read once. */
ATTN_FUNC_ int attn_check_bias_(attn_error_ *e, const attn_table_ *table, const attn_mask *m) {
  float x[ATTN_BLOCK_];
  for (int64_t b = 0; b < m->batch; b++)
    for (int64_t h = 0; h < m->heads; h++)
      for (int64_t i = 0; i < m->q_len; i++)
        for (int64_t j = 0; j < m->k_len; j += ATTN_BLOCK_) {
          const int64_t n = m->k_len - j < ATTN_BLOCK_ ? m->k_len - j : ATTN_BLOCK_;
          const char *row = attn_mask_at_(m, b, h, i) + j * attn_size_(m->dtype);
          table->widen(x, row, 0, 1, n, m->dtype);
          for (int64_t c = 0; c < n; c++)
            if (!(x[c] < INFINITY))
              return attn_reject_(e, ATTN_E_VALUE, "params.bias holds NaN or +inf");
        }
  return 1;
}

ATTN_FUNC_ int attn_check_logits_(attn_error_ *e, const float *x, int64_t n, int finite,
                                  const char *reason) {
  for (int64_t i = 0; x && i < n; i++)
    if (!(x[i] < INFINITY) || (finite && x[i] == -INFINITY))
      return attn_reject_(e, ATTN_E_VALUE, reason);
  return 1;
}

ATTN_FUNC_ int attn_check_lens_(attn_error_ *e, const int32_t *len, int64_t n, int64_t most,
                                const char *reason) {
  for (int64_t b = 0; len && b < n; b++)
    if (len[b] < 0 || len[b] > most) return attn_reject_(e, ATTN_E_RANGE, reason);
  return 1;
}

/* Every rule of attn_sdpa for a, which holds the four tensors and nothing else yet, and the rest of
 * the engine's problem. data = 0 leaves out what would read arrays (the workspace query). */
ATTN_FUNC_ int attn_sdpa_plan_(attn_error_ *e, attn_softmax_ *a, const attn_sdpa_params *params,
                               const attn_ctx *ctx, int *workers, int data) {
  static const attn_words_ wo = ATTN_WORDS_("o"), wq = ATTN_WORDS_("q"), wk = ATTN_WORDS_("k"),
                           wv = ATTN_WORDS_("v"), wl = ATTN_WORDS_("params.lse"),
                           wm = ATTN_WORDS_("params.map");
  static const attn_mask_words_ wmask = {
      "params.mask.kind must be ATTN_MASK_NONE, ATTN_MASK_BOOL or ATTN_MASK_BITS",
      "params.mask.data must not be null",
      "params.mask.dtype is not used",
      "params.mask must have extents 1 or [batch, heads, q_len, k_len]",
      "params.mask spans more bytes than the address space holds",
      "params.mask.data alignment"};
  static const attn_mask_words_ wbias = {
      "params.bias.kind must be ATTN_MASK_NONE or ATTN_MASK_ADD",
      "params.bias.data must not be null",
      "params.bias.dtype must be ATTN_F32, ATTN_F16 or ATTN_BF16",
      "params.bias must have extents 1 or [batch, heads, q_len, k_len]",
      "params.bias spans more bytes than the address space holds",
      "params.bias.data must be aligned to its elements"};
  attn_sdpa_params zero;
  memset(&zero, 0, sizeof zero);
  const attn_sdpa_params *p = params ? params : &zero;
  const int has_lse = p->lse.data != NULL, has_map = p->map.data != NULL && a->k.len > 0;
  enum { O, LSE, MAP, Q, K, V, MASK, BIAS, ALIBI, SINKS, KV_LEN, Q_LEN, WORK, SPANS };
  attn_span_ span[SPANS];
  attn_tensor *o = &a->o, *q = &a->q, *k = &a->k, *v = &a->v, *lse = &a->lse, *map = &a->map;
  memset(span, 0, sizeof span);

  if (!attn_check_ctx_(e, ctx, &a->table, workers)) return 0;
  if (!attn_check_tensor_(e, q, &wq, &span[Q]) || !attn_check_tensor_(e, k, &wk, &span[K]) ||
      !attn_check_tensor_(e, v, &wv, &span[V]) || !attn_check_tensor_(e, o, &wo, &span[O]))
    return 0;
  if (q->heads < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
  if (k->batch != q->batch) return attn_reject_(e, ATTN_E_SHAPE, "k.batch must equal q.batch");
  if (v->batch != q->batch) return attn_reject_(e, ATTN_E_SHAPE, "v.batch must equal q.batch");
  if (k->dim != q->dim) return attn_reject_(e, ATTN_E_SHAPE, "k.dim must equal q.dim");
  if (v->len != k->len) return attn_reject_(e, ATTN_E_SHAPE, "v.len must equal k.len");
  if (k->heads < 1 || q->heads % k->heads)
    return attn_reject_(e, ATTN_E_HEADS, "k.heads must divide q.heads");
  if (v->heads < 1 || q->heads % v->heads)
    return attn_reject_(e, ATTN_E_HEADS, "v.heads must divide q.heads");
  if (o->batch != q->batch || o->heads != q->heads || o->len != q->len)
    return attn_reject_(e, ATTN_E_SHAPE, "o.batch, .heads and .len must equal those of q");
  if (o->dim != v->dim) return attn_reject_(e, ATTN_E_SHAPE, "o.dim must equal v.dim");
  if (!attn_check_rows_(e, o, &wo)) return 0;

  const float scale = p->scale;
  if (!(scale - scale == 0.0f)) return attn_reject_(e, ATTN_E_VALUE, "params.scale must be finite");
  if (!(p->softcap >= 0.0f && p->softcap < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.softcap must be finite and not negative");
  if (!p->has_q_off && p->q_off)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off needs params.has_q_off = 1");
  if (p->has_q_off && attn_abs64_(p->q_off) >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off must lie within 2^40 of 0");
  if (q->len >= (int64_t)1 << 40 || k->len >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_OVERFLOW, "q.len and k.len must be below 2^40");
  if (p->window_left < ATTN_WINDOW_NONE)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.window_left must be 0, positive or ATTN_WINDOW_NONE");
  if (p->window_right < ATTN_WINDOW_NONE)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.window_right must be 0, positive or ATTN_WINDOW_NONE");

  const int64_t full[4] = {q->batch, q->heads, q->len, k->len};
  if (!attn_check_mask_(e, &p->mask, &wmask, 1u << ATTN_MASK_BOOL | 1u << ATTN_MASK_BITS, full,
                        &span[MASK]) ||
      !attn_check_mask_(e, &p->bias, &wbias, 1u << ATTN_MASK_ADD, full, &span[BIAS]))
    return 0;
  if (!attn_check_array_(e, p->alibi, q->heads, 4, "params.alibi must be aligned to its elements",
                         &span[ALIBI]) ||
      !attn_check_array_(e, p->sinks, q->heads, 4, "params.sinks must be aligned to its elements",
                         &span[SINKS]) ||
      !attn_check_array_(e, p->kv_len, q->batch, 4, "params.kv_len must be aligned to its elements",
                         &span[KV_LEN]) ||
      !attn_check_array_(e, p->q_len, q->batch, 4, "params.q_len must be aligned to its elements",
                         &span[Q_LEN]))
    return 0;
  if (has_lse) {
    *lse = p->lse;
    if (lse->dtype != ATTN_F32)
      return attn_reject_(e, ATTN_E_DTYPE, "params.lse.dtype must be ATTN_F32");
    if (!attn_check_tensor_(e, lse, &wl, &span[LSE])) return 0;
    if (lse->batch != q->batch || lse->heads != q->heads || lse->len != q->len || lse->dim != 1)
      return attn_reject_(e, ATTN_E_SHAPE, "params.lse must be [q.batch, q.heads, q.len, 1]");
    if (!attn_check_rows_(e, lse, &wl)) return 0;
  }
  if (has_map) {
    *map = p->map;
    if (map->dtype != ATTN_F32)
      return attn_reject_(e, ATTN_E_DTYPE, "params.map.dtype must be ATTN_F32");
    if (!attn_check_tensor_(e, map, &wm, &span[MAP])) return 0;
    if (map->batch != q->batch || map->heads != q->heads || map->len != q->len ||
        map->dim != k->len)
      return attn_reject_(e, ATTN_E_SHAPE, "params.map must be [q.batch, q.heads, q.len, k.len]");
    if (!attn_check_rows_(e, map, &wm)) return 0;
  }
  if (!attn_check_workspace_(e, ctx, &span[WORK])) return 0;
  for (int x = O; x <= MAP; x++)
    for (int y = x + 1; y < WORK; y++)
      if (attn_overlap_(span[x], span[y]))
        return attn_reject_(e, ATTN_E_OVERLAP,
                            x == O     ? wo.overlap
                            : x == LSE ? wl.overlap
                                       : wm.overlap);
  for (int x = O; x < WORK; x++)
    if (attn_overlap_(span[x], span[WORK]))
      return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with a tensor");
  if (data) {
    if (!attn_check_lens_(e, p->kv_len, q->batch, k->len, "params.kv_len must lie in 0..k.len") ||
        !attn_check_lens_(e, p->q_len, q->batch, q->len, "params.q_len must lie in 0..q.len") ||
        !attn_check_logits_(e, p->alibi, q->heads, 1, "params.alibi must be finite") ||
        !attn_check_logits_(e, p->sinks, q->heads, 0, "params.sinks holds NaN or +inf"))
      return 0;
    if (ctx && ctx->validate && p->bias.kind && q->batch && q->len && k->len &&
        !attn_check_bias_(e, a->table, &p->bias))
      return 0;
  }

  /* the engine's problem */
  a->o = *o, a->q = *q, a->k = *k, a->v = *v;
  if (k->len > 0) a->mask = p->mask, a->bias = p->bias;
  a->kv_len = p->kv_len, a->q_len = p->q_len;
  a->alibi = p->alibi, a->sinks = p->sinks, a->softmax_one = p->softmax_one != 0;
  double s = (double)scale;
  if (scale == 0.0f) s = attn_to_bits_(scale) ? 0.0 : 1.0 / sqrt((double)q->dim);
  s = attn_clamp_f64_(s * ATTN_LOG2E_);
  a->scale_hi = (float)s;
  a->scale_lo = (float)(s - (double)a->scale_hi);
  a->softcap = attn_to_log2_(p->softcap);
  /* 1 / softcap stays finite */
  if (p->softcap > 0.0f && a->softcap < FLT_MIN) a->softcap = FLT_MIN;
  a->q_off = p->has_q_off ? p->q_off : k->len - q->len;
  a->left = attn_reach_(p->window_left);
  a->right = p->causal ? 0 : attn_reach_(p->window_right);
  a->group = attn_gcd_(q->heads / k->heads, q->heads / v->heads);
  if (q->len > INT64_MAX / ATTN_TILE_ / q->heads)
    return attn_reject_(e, ATTN_E_OVERFLOW, "q.heads * q.len is too large");
  a->tiles = (a->group * q->len + ATTN_TILE_ - 1) / ATTN_TILE_;
  if (q->batch && a->tiles > INT64_MAX / q->batch / q->heads)
    return attn_reject_(e, ATTN_E_OVERFLOW, "q.batch * q.heads * q.len is too large");
  return 1;
}

ATTN_PUB_ size_t attn_sdpa_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const attn_sdpa_params *params, const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_softmax_ a;
  memset(&a, 0, sizeof a);
  a.o = o, a.q = q, a.k = k, a.v = v;
  attn_ctx plain; /* the workspace is what is asked for: none is given yet */
  int workers;
  memset(&plain, 0, sizeof plain);
  if (ctx) plain = *ctx;
  plain.workspace = NULL, plain.workspace_size = 0;
  if (!attn_sdpa_plan_(&e, &a, params, &plain, &workers, 0)) return 0;
  if (q.batch == 0 || q.len == 0) return 0;
  int64_t items = q.batch * (q.heads / a.group) * a.tiles;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  int64_t bytes = attn_workspace_bytes_(attn_scratch_plan_(&a), attn_pieces_(workers, items));
  return bytes == INT64_MAX ? 0 : (size_t)bytes;
}

ATTN_PUB_ attn_status attn_sdpa(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                const attn_sdpa_params *params, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_softmax_ a;
  memset(&a, 0, sizeof a);
  a.o = o, a.q = q, a.k = k, a.v = v;
  int workers;
  if (attn_sdpa_plan_(&e, &a, params, ctx, &workers, 1)) {
    if (q.batch == 0 || q.len == 0)
      attn_report_(ctx, a.table, 1, "no-op", "no queries");
    else
      attn_softmax_run_(&e, &a, ctx, workers);
  }
  return attn_end_(ctx, &e);
}

typedef struct attn_merge_job_ {
  const attn_table_ *table;
  attn_tensor o, lse, o1, lse1, o2, lse2;
} attn_merge_job_;

/* Every rule of attn_merge. */
ATTN_FUNC_ int attn_merge_plan_(attn_error_ *e, attn_merge_job_ *m, const attn_ctx *ctx,
                                int *workers) {
  static const attn_words_ w[6] = {ATTN_WORDS_("o"),    ATTN_WORDS_("lse"), ATTN_WORDS_("o1"),
                                   ATTN_WORDS_("lse1"), ATTN_WORDS_("o2"),  ATTN_WORDS_("lse2")};
  static const char *const shape[6] = {"",
                                       "lse must be [o.batch, o.heads, o.len, 1]",
                                       "o1 must have the shape of o",
                                       "lse1 must be [o.batch, o.heads, o.len, 1]",
                                       "o2 must have the shape of o",
                                       "lse2 must be [o.batch, o.heads, o.len, 1]"};
  static const char *const type[6] = {"", "lse.dtype must be ATTN_F32",
                                      "", "lse1.dtype must be ATTN_F32",
                                      "", "lse2.dtype must be ATTN_F32"};
  attn_tensor *t[6] = {&m->o, &m->lse, &m->o1, &m->lse1, &m->o2, &m->lse2};
  attn_span_ span[6];
  memset(span, 0, sizeof span);
  if (!attn_check_ctx_(e, ctx, &m->table, workers)) return 0;
  for (int i = 0; i < 6; i++) {
    if (i == 1 && !t[i]->data) continue;
    if (i % 2 && t[i]->dtype != ATTN_F32) return attn_reject_(e, ATTN_E_DTYPE, type[i]);
    if (!attn_check_tensor_(e, t[i], &w[i], &span[i])) return 0;
    if (i && (t[i]->batch != m->o.batch || t[i]->heads != m->o.heads || t[i]->len != m->o.len ||
              t[i]->dim != (i % 2 ? 1 : m->o.dim)))
      return attn_reject_(e, ATTN_E_SHAPE, shape[i]);
  }
  if (!attn_check_rows_(e, &m->o, &w[0])) return 0;
  if (m->lse.data && !attn_check_rows_(e, &m->lse, &w[1])) return 0;
  for (int x = 0; x < 2; x++)
    for (int y = x + 1; y < 6; y++)
      if (attn_overlap_(span[x], span[y]) && !(y >= 2 && y % 2 == x && attn_same_view_(t[x], t[y])))
        return attn_reject_(e, ATTN_E_OVERLAP, w[x].overlap);
  return 1;
}

/* One row, given its two LSEs l and e = exp(l - max l); returns the LSE of both. */
ATTN_FUNC_ float attn_merge_row_(const attn_merge_job_ *m, void *y, const void *x1, const void *x2,
                                 const float l[2], const float e[2]) {
  const attn_table_ *f = m->table;
  const int64_t dim = m->o.dim;
  const attn_dtype to = m->o.dtype, t1 = m->o1.dtype, t2 = m->o2.dtype;
  const float nan = attn_from_bits_(0x7fc00000u), sum = e[0] + e[1];
  if (l[0] == -INFINITY && l[1] == -INFINITY) {
    f->blend(y, NULL, NULL, to, t1, t2, dim, 0.0f, 0.0f);
    return -INFINITY;
  }
  if (!(sum > 0.0f && l[0] < INFINITY && l[1] < INFINITY)) {
    f->blend(y, x1, x2, to, t1, t2, dim, nan, nan);
    return nan;
  }
  if (l[0] == -INFINITY || l[1] == -INFINITY) { /* exact identity: the other part as it is */
    const int first = l[1] == -INFINITY;
    if ((first ? t1 : t2) == to)
      memmove(y, first ? x1 : x2, (size_t)(dim * attn_size_(to)));
    else
      f->blend(y, first ? x1 : NULL, first ? NULL : x2, to, t1, t2, dim, 1.0f, 1.0f);
    return first ? l[0] : l[1];
  }
  f->blend(y, x1, x2, to, t1, t2, dim, e[0] / sum, e[1] / sum);
  return (float)((double)(l[0] > l[1] ? l[0] : l[1]) + attn_log2_(sum) * ATTN_LN2_);
}

enum { ATTN_MERGE_ROWS_ = 32 };

ATTN_FUNC_ int64_t attn_merge_runs_(int64_t len) {
  return len / ATTN_MERGE_ROWS_ + (len % ATTN_MERGE_ROWS_ != 0);
}

/* A run of rows of one head: the exponentials of all of them are taken together. */
ATTN_FUNC_ void attn_merge_item_(void *job, int worker, int64_t index) {
  const attn_merge_job_ *m = (const attn_merge_job_ *)job;
  const int64_t runs = attn_merge_runs_(m->o.len);
  const int64_t b = index / runs / m->o.heads, h = index / runs % m->o.heads;
  const int64_t first = index % runs * ATTN_MERGE_ROWS_;
  const int n = m->o.len - first < ATTN_MERGE_ROWS_ ? (int)(m->o.len - first) : ATTN_MERGE_ROWS_;
  float l[ATTN_MERGE_ROWS_][2], e[ATTN_MERGE_ROWS_][2] = {{0}};
  (void)worker;
  for (int r = 0; r < n; r++) {
    memcpy(&l[r][0], attn_at_(&m->lse1, b, h, first + r), 4);
    memcpy(&l[r][1], attn_at_(&m->lse2, b, h, first + r), 4);
    const float top = l[r][0] > l[r][1] ? l[r][0] : l[r][1];
    e[r][0] = l[r][0] - top, e[r][1] = l[r][1] - top;
  }
  m->table->exp(e[0], e[0], 2 * n);
  for (int r = 0; r < n; r++) {
    const int64_t i = first + r;
    float lse = attn_merge_row_(m, attn_at_(&m->o, b, h, i), attn_at_(&m->o1, b, h, i),
                                attn_at_(&m->o2, b, h, i), l[r], e[r]);
    if (m->lse.data) memcpy(attn_at_(&m->lse, b, h, i), &lse, 4);
  }
}

ATTN_PUB_ attn_status attn_merge(attn_tensor o, attn_tensor lse, attn_tensor o1, attn_tensor lse1,
                                 attn_tensor o2, attn_tensor lse2, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_merge_job_ m = {NULL, o, lse, o1, lse1, o2, lse2};
  int workers;
  if (attn_merge_plan_(&e, &m, ctx, &workers)) {
    const int empty = o.batch == 0 || o.heads == 0 || o.len == 0;
    int64_t items = empty ? 0 : o.batch * o.heads * attn_merge_runs_(o.len);
    workers = attn_pieces_(workers, items);
    attn_for_(ctx, workers, items, attn_merge_item_, &m);
    attn_report_(ctx, m.table, workers, "row blend", "the only path");
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_ size_t attn_merge_workspace(attn_tensor o, attn_tensor lse, attn_tensor o1,
                                      attn_tensor lse1, attn_tensor o2, attn_tensor lse2,
                                      const attn_ctx *ctx) {
  (void)o, (void)lse, (void)o1, (void)lse1, (void)o2, (void)lse2, (void)ctx;
  return 0;
}
/* <<< attn/mechanisms/core.h */
/* >>> attn/mechanisms/position.h */
/* mechanisms/position.h owns family B: rotary embedding and the ALiBi slopes. */

/* The angle of position p is that of 16 floor(p / 16) plus that of p mod 16. Sines of the second
 * kind are made once a call, of the first once in 16 positions, and joined by the addition theorem:
 * so a position costs six multiplications a pair, and its rotation depends on nothing else. */
enum { ATTN_ROPE_RUN_ = 16 };

typedef struct attn_rope_job_ {
  const attn_table_ *table;
  attn_tensor y, x;
  attn_rope_params p; /* rot and base resolved */
  int64_t pairs;      /* rot / 2 */
  double *theta;      /* [pairs] */
  double *fine;       /* [run][2][pairs] sines and cosines of 0..15 */
  char *workspace;    /* of the workers, each of this many bytes: */
  int64_t bytes;
} attn_rope_job_;

/* One worker's part: the last coarse position and its sines and cosines, and one row's as floats
 * laid out as the primitive wants them. */
typedef struct attn_rope_row_ {
  int64_t *coarse;
  double *sine, *cosine;        /* [pairs] */
  float *sine_row, *cosine_row; /* [rot] */
} attn_rope_row_;

ATTN_FUNC_ int attn_rope_plan_(attn_error_ *e, attn_rope_job_ *j, const attn_rope_params *params,
                               const attn_ctx *ctx, int *workers) {
  static const attn_words_ wy = ATTN_WORDS_("y"), wx = ATTN_WORDS_("x");
  attn_span_ sy, sx, sp = {0, 0}, sw = {0, 0};
  memset(&j->p, 0, sizeof j->p);
  if (params) j->p = *params;
  attn_rope_params *p = &j->p;
  if (!p->positions) p->positions_per_batch = 0;
  if (!attn_check_ctx_(e, ctx, &j->table, workers)) return 0;
  if (!attn_check_tensor_(e, &j->x, &wx, &sx) || !attn_check_tensor_(e, &j->y, &wy, &sy)) return 0;
  if (j->y.batch != j->x.batch || j->y.heads != j->x.heads || j->y.len != j->x.len ||
      j->y.dim != j->x.dim)
    return attn_reject_(e, ATTN_E_SHAPE, "y must have the shape of x");
  if (!attn_check_rows_(e, &j->y, &wy)) return 0;
  p->rot = p->rot == 0 ? j->x.dim : p->rot == ATTN_ROPE_NONE ? 0 : p->rot;
  if (p->rot < 0 || p->rot > j->x.dim || p->rot % 2)
    return attn_reject_(e, ATTN_E_RANGE, "params.rot must be even and lie in 0..x.dim");
  if (p->base == 0.0) p->base = 10000.0;
  if (!(p->base > 0.0 && p->base < HUGE_VAL))
    return attn_reject_(e, ATTN_E_VALUE, "params.base must be positive and finite");
  if (p->layout != ATTN_ROPE_INTERLEAVED && p->layout != ATTN_ROPE_HALF)
    return attn_reject_(e, ATTN_E_RANGE, "params.layout must be one of attn_rope_layout");
  if (attn_abs64_(p->start) > INT64_MAX / 4)
    return attn_reject_(e, ATTN_E_RANGE, "params.start must lie within 2^61 of 0");
  int64_t count = attn_mul_(p->positions_per_batch ? j->x.batch : 1, j->x.len);
  if (p->positions && count > INT64_MAX / 8)
    return attn_reject_(e, ATTN_E_OVERFLOW, "params.positions spans more than the address space");
  if (!attn_check_array_(e, p->positions, count, 8,
                         "params.positions must be aligned to its elements", &sp))
    return 0;
  if ((attn_overlap_(sy, sx) && !attn_same_view_(&j->y, &j->x)) || attn_overlap_(sy, sp))
    return attn_reject_(e, ATTN_E_OVERLAP, wy.overlap);
  if (!attn_check_workspace_(e, ctx, &sw)) return 0;
  if (attn_overlap_(sw, sx) || attn_overlap_(sw, sy) || attn_overlap_(sw, sp))
    return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with a tensor");
  j->pairs = p->rot / 2;
  j->bytes = attn_add_(attn_piece_(1, sizeof(int64_t)),
                       attn_add_(attn_mul_(2, attn_piece_(j->pairs, sizeof(double))),
                                 attn_mul_(2, attn_piece_(p->rot, sizeof(float)))));
  return 1;
}

ATTN_FUNC_ int64_t attn_rope_shared_(const attn_rope_job_ *j) {
  return attn_add_(attn_piece_(j->pairs, sizeof(double)),
                   attn_piece_(attn_mul_(2 * ATTN_ROPE_RUN_, j->pairs), sizeof(double)));
}

ATTN_FUNC_ int64_t attn_rope_bytes_(const attn_rope_job_ *j, int workers) {
  return attn_workspace_bytes_(attn_add_(attn_rope_shared_(j), attn_mul_(j->bytes, workers)), 1);
}

ATTN_FUNC_ int64_t attn_rope_runs_(const attn_rope_job_ *j) {
  return j->x.len / ATTN_ROPE_RUN_ + (j->x.len % ATTN_ROPE_RUN_ != 0);
}

/* Runs of rows; with positions per batch entry each entry has its own. */
ATTN_FUNC_ int64_t attn_rope_items_(const attn_rope_job_ *j) {
  if (j->x.batch == 0 || j->x.heads == 0 || j->x.len == 0) return 0;
  return j->p.positions_per_batch ? attn_mul_(attn_rope_runs_(j), j->x.batch) : attn_rope_runs_(j);
}

ATTN_FUNC_ int64_t attn_rope_position_(const attn_rope_job_ *j, int64_t b, int64_t i) {
  if (!j->p.positions) return j->p.start + i;
  return j->p.positions[(j->p.positions_per_batch ? b * j->x.len : 0) + i];
}

ATTN_FUNC_ void attn_rope_cut_(const attn_rope_job_ *j, int worker, attn_rope_row_ *r) {
  char *at = j->workspace + worker * j->bytes;
  const int64_t pair = attn_piece_(j->pairs, sizeof(double));
  r->coarse = (int64_t *)(void *)at, at += attn_piece_(1, sizeof(int64_t));
  r->sine = (double *)(void *)at, at += pair;
  r->cosine = (double *)(void *)at, at += pair;
  r->sine_row = (float *)(void *)at, at += attn_piece_(j->p.rot, sizeof(float));
  r->cosine_row = (float *)(void *)at;
}

/* Angles in double: a float angle is wrong by 0.03 at position 10^6. */
ATTN_FUNC_ void attn_rope_angles_(const attn_rope_job_ *j, int64_t position, double *sine,
                                  double *cosine) {
  for (int64_t m = 0; m < j->pairs; m++)
    attn_sincos_((double)position * j->theta[m], &sine[m], &cosine[m]);
}

/* The row of sines and cosines of one position. */
ATTN_FUNC_ void attn_rope_fill_(const attn_rope_job_ *j, attn_rope_row_ *r, int64_t position) {
  const int64_t fine = (position % ATTN_ROPE_RUN_ + ATTN_ROPE_RUN_) % ATTN_ROPE_RUN_;
  const double *fs = j->fine + 2 * fine * j->pairs, *fc = fs + j->pairs;
  const double sign = j->p.inverse ? -1.0 : 1.0;
  const int half = j->p.layout == ATTN_ROPE_HALF;
  if (*r->coarse != position - fine) {
    attn_rope_angles_(j, position - fine, r->sine, r->cosine);
    *r->coarse = position - fine;
  }
  for (int64_t m = 0; m < j->pairs; m++) {
    const float c = (float)(r->cosine[m] * fc[m] - r->sine[m] * fs[m]);
    const float s = (float)(sign * (r->sine[m] * fc[m] + r->cosine[m] * fs[m]));
    const int64_t a = half ? m : 2 * m, b = half ? m + j->pairs : a + 1;
    r->cosine_row[a] = r->cosine_row[b] = c, r->sine_row[a] = -s, r->sine_row[b] = s;
  }
}

ATTN_FUNC_ void attn_rope_item_(void *job, int worker, int64_t index) {
  const attn_rope_job_ *j = (const attn_rope_job_ *)job;
  const int64_t runs = attn_rope_runs_(j);
  const int64_t first = index % runs * ATTN_ROPE_RUN_;
  const int64_t end = j->x.len - first < ATTN_ROPE_RUN_ ? j->x.len : first + ATTN_ROPE_RUN_;
  const int64_t b0 = index / runs, b1 = j->p.positions_per_batch ? b0 + 1 : j->x.batch;
  attn_rope_row_ r;
  attn_rope_cut_(j, worker, &r);
  for (int64_t i = first; i < end; i++) {
    attn_rope_fill_(j, &r, attn_rope_position_(j, b0, i));
    for (int64_t b = b0; b < b1; b++)
      for (int64_t h = 0; h < j->x.heads; h++)
        j->table->rope(attn_at_(&j->y, b, h, i), attn_at_(&j->x, b, h, i), j->y.dtype, j->x.dtype,
                       j->x.dim, j->p.rot, j->p.layout == ATTN_ROPE_HALF, r.cosine_row, r.sine_row);
  }
}

/* Makes the tables all workers read: the frequencies, and the fine rows that occur. */
ATTN_FUNC_ void attn_rope_tables_(attn_rope_job_ *j, char *base, int workers) {
  unsigned seen = 0;
  j->theta = (double *)(void *)base;
  j->fine = (double *)(void *)(base + attn_piece_(j->pairs, sizeof(double)));
  j->workspace = base + attn_rope_shared_(j);
  for (int64_t m = 0; m < j->pairs; m++)
    j->theta[m] = pow(j->p.base, -2.0 * (double)m / (double)j->p.rot);
  for (int64_t b = 0; b < (j->p.positions_per_batch ? j->x.batch : 1); b++)
    for (int64_t i = 0; i < j->x.len && seen != 0xffffu; i++) {
      const int64_t p = attn_rope_position_(j, b, i);
      const int64_t fine = (p % ATTN_ROPE_RUN_ + ATTN_ROPE_RUN_) % ATTN_ROPE_RUN_;
      double *row = j->fine + 2 * fine * j->pairs;
      if (!(seen >> fine & 1u)) attn_rope_angles_(j, fine, row, row + j->pairs);
      seen |= 1u << fine;
    }
  for (int w = 0; w < workers; w++) {
    attn_rope_row_ r;
    attn_rope_cut_(j, w, &r);
    *r.coarse = INT64_MAX; /* no multiple of 16 */
  }
}

ATTN_PUB_ attn_status attn_rope(attn_tensor y, attn_tensor x, const attn_rope_params *params,
                                attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_rope_job_ j;
  attn_workspace_ w;
  int workers;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x;
  if (attn_rope_plan_(&e, &j, params, ctx, &workers)) {
    int64_t items = attn_rope_items_(&j);
    workers = attn_pieces_(workers, items);
    if (items == 0) {
      attn_report_(ctx, j.table, 1, "no-op", "no rows");
    } else if (attn_workspace_get_(&e, &w, ctx, attn_rope_bytes_(&j, workers))) {
      attn_rope_tables_(&j, w.base, workers);
      attn_for_(ctx, workers, items, attn_rope_item_, &j);
      attn_workspace_drop_(&w);
      attn_report_(ctx, j.table, workers, "row rotation", "the only path");
    }
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_ size_t attn_rope_workspace(attn_tensor y, attn_tensor x, const attn_rope_params *params,
                                     const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_rope_job_ j;
  const attn_ctx plain = attn_before_workspace_(ctx);
  int workers;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x;
  if (!attn_rope_plan_(&e, &j, params, &plain, &workers)) return 0;
  int64_t items = attn_rope_items_(&j);
  if (items == 0) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  int64_t bytes = attn_rope_bytes_(&j, attn_pieces_(workers, items));
  return bytes == INT64_MAX ? 0 : (size_t)bytes;
}

ATTN_PUB_ attn_status attn_alibi_slopes(float *slopes, int64_t n) {
  if (!slopes) return ATTN_E_NULL;
  if (n < 1) return ATTN_E_SHAPE;
  int64_t c = 1;
  while (c <= n / 2) c *= 2;
  for (int64_t h = 0; h < n; h++)
    slopes[h] = (float)pow(2.0, h < c ? -8.0 * (double)(h + 1) / (double)c
                                      : -4.0 * (double)(2 * (h - c) + 1) / (double)c);
  return ATTN_OK;
}
/* <<< attn/mechanisms/position.h */
ATTN_END_STRICT_
#ifdef __cplusplus
}
#endif
/* >>> attn/isa/undef.h */
/* isa/undef.h forgets every private macro, so that no name ending in an underscore remains. */
#undef ATTN_ALIGN_
#undef ATTN_ARM32_
#undef ATTN_ARM64_
#undef ATTN_ATOMIC_LOAD_
#undef ATTN_ATOMIC_STORE_
#undef ATTN_BEGIN_REGION_
#undef ATTN_BEGIN_STRICT_
#undef ATTN_BIG_ENDIAN_
#undef ATTN_BLOCK_
#undef ATTN_CAT2_
#undef ATTN_CAT_
#undef ATTN_CLANG_
#undef ATTN_END_REGION_
#undef ATTN_END_STRICT_
#undef ATTN_EXP_BIAS_
#undef ATTN_EXP_BIAS_BITS_
#undef ATTN_EXP_C1_
#undef ATTN_EXP_C2_
#undef ATTN_EXP_C3_
#undef ATTN_EXP_C4_
#undef ATTN_EXP_C5_
#undef ATTN_EXP_C6_
#undef ATTN_FEATURES_AVX2_
#undef ATTN_FEATURES_AVX512_
#undef ATTN_FEATURE_
#undef ATTN_FLAGS_
#undef ATTN_FN_
#undef ATTN_FUNC_
#undef ATTN_GCC_
#undef ATTN_GROUP_
#undef ATTN_HAS_AVX2_
#undef ATTN_HAS_AVX512_
#undef ATTN_HAS_NEON_
#undef ATTN_INLINE_
#undef ATTN_KIND_BIAS_
#undef ATTN_KIND_BOOL_
#undef ATTN_LANES_
#undef ATTN_LANE_
#undef ATTN_LN2_
#undef ATTN_LOG2E_
#undef ATTN_MSVC_
#undef ATTN_NAME_FIRST_
#undef ATTN_NAME_REST_
#undef ATTN_PAIR_
#undef ATTN_PASS_
#undef ATTN_PRAGMA_
#undef ATTN_PRAGMA_EXPAND_
#undef ATTN_PUB_
#undef ATTN_QUAD_
#undef ATTN_ROW_INIT_
#undef ATTN_ROW_STEP_
#undef ATTN_ROW_STORE_
#undef ATTN_SLEEF_HAS_AVX2_
#undef ATTN_SLEEF_HAS_AVX512_
#undef ATTN_SLEEF_HAS_NEON_
#undef ATTN_SLEEF_HAS_SCALAR_
#undef ATTN_TILE_
#undef ATTN_UNROLL_
#undef ATTN_WORDS_
#undef ATTN_X86_
#undef ATTN_XCR0_AVX2_
#undef ATTN_XCR0_AVX512_
/* <<< attn/isa/undef.h */
#endif

#endif
/* <<< attn/all.h */
