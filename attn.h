/* >>> attn/all.h */
/* >>> attn/manual.h */
/* attn.h - v0.1 - attention in one C header, at the speed of the machine. MIT-0, see the end.
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
 *   params.causal = 1;
 *   attn_status st = attn_sdpa(o, q, k, v, &params, NULL);
 *   if (st != ATTN_OK) puts(attn_status_string(st));
 *
 *   Build with  cc app.c -lm . No flag asks for vector instructions: each kernel is compiled for
 *   every tier inside this header, and the fastest one that processor and operating system
 *   support is chosen at run time. Compile with -O2: kernels built at -O0 are correct and slow.
 *
 *   Functions: attn_sdpa (attention), attn_merge (partial results), attn_relu (rectified weights),
 *   attn_edges (key lists); attn_pattern_*, attn_schedule_* (sparse patterns); attn_star_*,
 *   attn_longformer, attn_etc, attn_tree, attn_segmented, attn_hierarchy, attn_xl_layer (whole
 *   mechanisms); attn_rope, attn_sinusoid, attn_universal_signal, attn_learned_position,
 *   attn_alibi_slopes, attn_t5_bucket (positions); attn_gaussian_window, attn_hard_gaussian,
 *   attn_span_* (priors and spans); attn_exp; attn_bhtd, attn_bthd, attn_mask_* (views);
 *   attn_isa_* (tiers); attn_<name>_workspace (memory). Each is documented where it is declared,
 *   below.
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
 *   by clipped distance (relative), Transformer-XL (xl), labels of pairs, a factor or a table by
 *   distance (factor, toeplitz, t5, alibi), a parabola, a Gaussian bump per query, an adaptive
 *   span, dense biases, a soft-cap. All may be combined with each other, with masks and with
 *   schedules; api/score.h has their formulas, attn_sdpa_params their order. modify is yours: a
 *   function that changes a tile of scores in place, after all other terms.
 *
 * 6. MEMORY
 *   A call without a workspace takes one block from ATTN_MALLOC and gives it back. With
 *   ctx.workspace nothing is allocated: ask attn_<name>_workspace with the same arguments for
 *   the bytes. attn_sdpa works in O(64 dk + 64 dv + 128 dv + 8192) floats per worker, whatever
 *   the sequence lengths: T = 65536 needs what T = 64 needs; a schedule about triples that, one
 *   of several phases keeps three numbers a row (and a row of output that is not f32), a term by
 *   distance T numbers a head. A schedule itself is 0.3 to 3 KB per 64 queries, or a list of
 *   keys where they are scattered. There is no global state but two integers that cache the
 *   choice of tier. Inputs are read in place: nothing is packed or copied, except that 16-bit K
 *   and V are widened a block at a time.
 *
 * 7. THREADS
 *   Calls are serial unless ctx.parallel_for and ctx.workers are set. The callback runs
 *   task(arg, i) for i in 0..count-1, count <= workers, on whatever threads it likes, and
 *   returns when all are done. attn_parallel_openmp is ready-made when the file with
 *   ATTN_IMPLEMENTATION is compiled with OpenMP. Nothing spins, no thread is created. Any number
 *   of calls may run at once with different contexts.
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
 *
 * 10. NUMBERS AND DETERMINISM
 *   Empty rows (no allowed key) give O = 0, LSE = -inf. A forbidden key never reaches an output,
 *   even if it holds NaN; keys from kv_len on are not read. NaN in an allowed key or in a query
 *   appears in exactly the rows that read it. LSE is a natural logarithm. Causal masks align the
 *   last query with key k.len - 1, whatever kv_len says, unless q_off (one number for the batch)
 *   says otherwise.
 *   avx2, avx512 and neon give the same bits, for any number of workers, any batch around a row
 *   and any division of the queries over calls: each score is one chain of fused multiply-adds
 *   in the order of the head dimension, each output one in the order of the keys, and the
 *   running maximum moves at multiples of 128 keys. (A schedule puts rows and keys together in
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

/* E4: cap tanh(x / cap) = x (1 + y p(y)), y = (x / cap)^2, while |x / cap| < 1/2: p is a minimax
 * polynomial that errs by 2e-8. Most scores are that small, and a division costs more than all of
 * it. */
typedef struct {
  ATTN_VF_ cap, uncap, near;
} ATTN_FN_(cap_of);

ATTN_INLINE_ ATTN_FN_(cap_of) ATTN_FN_(cap_open)(float softcap) {
  ATTN_FN_(cap_of) k;
  k.cap = ATTN_V_SET1_(softcap), k.uncap = ATTN_V_SET1_(1.0f / softcap);
  k.near = ATTN_V_SET1_(0.5f * softcap);
  return k;
}

ATTN_INLINE_ ATTN_VF_ ATTN_FN_(cap_near)(ATTN_VF_ x, const ATTN_FN_(cap_of) *k) {
  ATTN_VF_ z = ATTN_V_MUL_(x, k->uncap), y = ATTN_V_MUL_(z, z);
  ATTN_VF_ p = ATTN_V_FMA_(y, ATTN_V_SET1_(0.0179887444f), ATTN_V_SET1_(-0.0533871106f));
  p = ATTN_V_FMA_(y, p, ATTN_V_SET1_(0.133304765f));
  p = ATTN_V_FMA_(y, p, ATTN_V_SET1_(-0.333333111f));
  return ATTN_V_FMA_(ATTN_V_MUL_(x, y), p, x);
}

ATTN_INLINE_ ATTN_VF_ ATTN_FN_(cap)(ATTN_VF_ x, const ATTN_FN_(cap_of) *k) {
  ATTN_VF_ t = ATTN_V_MUL_(k->cap, ATTN_FN_(tanh)(ATTN_V_MUL_(x, k->uncap)));
  return ATTN_V_SELECT_(ATTN_V_LT_(ATTN_V_ABS_(x), k->near), ATTN_FN_(cap_near)(x, k), t);
}

/* the same for a block, four keys side by side */
ATTN_INLINE_ void ATTN_FN_(cap_block)(float *s, int64_t n, int g0, int g1, float softcap,
                                      float *top) {
  const ATTN_FN_(cap_of) k = ATTN_FN_(cap_open)(softcap);
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ t = ATTN_V_LOAD_(top + lane);
    float *cell = s + lane;
    int64_t j = 0;
    for (; j + 4 <= n; j += 4, cell += 4 * ATTN_TILE_) {
      ATTN_VF_ x[4], z[4], far;
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) x[i] = ATTN_V_LOAD_(cell + i * ATTN_TILE_);
      far = ATTN_V_MAX_(ATTN_V_MAX_(ATTN_V_ABS_(x[0]), ATTN_V_ABS_(x[1])),
                        ATTN_V_MAX_(ATTN_V_ABS_(x[2]), ATTN_V_ABS_(x[3])));
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) z[i] = ATTN_FN_(cap_near)(x[i], &k);
      if (!ATTN_V_ALL_(ATTN_V_LT_(far, k.near))) {
        ATTN_VF_ w[4];
        ATTN_UNROLL_
        for (int i = 0; i < 4; i++) w[i] = ATTN_V_MUL_(x[i], k.uncap);
        ATTN_FN_(tanh4)(w);
        ATTN_UNROLL_
        for (int i = 0; i < 4; i++)
          z[i] =
              ATTN_V_SELECT_(ATTN_V_LT_(ATTN_V_ABS_(x[i]), k.near), z[i], ATTN_V_MUL_(k.cap, w[i]));
      }
      ATTN_UNROLL_
      for (int i = 0; i < 4; i++) {
        ATTN_V_STORE_(cell + i * ATTN_TILE_, z[i]);
        t = ATTN_V_MAX_(z[i], t);
      }
    }
    for (; j < n; j++, cell += ATTN_TILE_) {
      ATTN_VF_ z = ATTN_FN_(cap)(ATTN_V_LOAD_(cell), &k);
      ATTN_V_STORE_(cell, z);
      t = ATTN_V_MAX_(z, t);
    }
    ATTN_V_STORE_(top + lane, t);
  }
}

/* The numbers of an array by distance, for key r */
ATTN_INLINE_ const float *ATTN_FN_(by_distance)(const float *x, const attn_modifiers_ *mod,
                                                int64_t r) {
  return mod->back ? x - mod->back[r] : x + r * ATTN_TILE_;
}

/* The stages of a score tile, in the engine's order. Each is a vector operation or two on a score
 * in L1, so a stage that is absent must not cost a test: `use` is a constant for the usual sets. */
ATTN_INLINE_ void ATTN_FN_(modify_lanes)(const int use, const int gather, float *s, int64_t n,
                                         int g0, int g1, const attn_modifiers_ *mod, float *top) {
  const ATTN_VF_ inf = ATTN_V_SET1_(-INFINITY), zero = ATTN_V_ZERO_();
  const ATTN_FN_(cap_of) cap = ATTN_FN_(cap_open)(mod->softcap);
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ slope = zero, rel = zero, lo = zero, hi = zero, t = ATTN_V_LOAD_(top + lane);
    ATTN_VF_ center = zero, precision = zero;
    if (use & ATTN_USE_SLOPE_) slope = ATTN_V_LOAD_(mod->slope + lane);
    if (use & ATTN_USE_SLOPE_) rel = ATTN_V_LOAD_(mod->rel + lane);
    if (use & ATTN_USE_QUAD_) center = ATTN_V_LOAD_(mod->center + lane);
    if (use & ATTN_USE_QUAD_) precision = ATTN_V_SUB_(zero, ATTN_V_LOAD_(mod->precision + lane));
    if (use & ATTN_USE_BOUND_) lo = ATTN_V_LOAD_(mod->lo + lane), hi = ATTN_V_LOAD_(mod->hi + lane);
    const float *bias = use & ATTN_USE_BIAS_ ? mod->bias + lane : NULL, *per_key = mod->key;
    const float *dot = use & ATTN_USE_DOT_ ? mod->dot + lane : NULL, *where = mod->at;
    const uint64_t *lanes = mod->lanes;
    float *cell = s + lane;
    for (int64_t r = 0; r < n; r++, cell += ATTN_TILE_) {
      ATTN_VF_ x = ATTN_V_LOAD_(cell), at = zero;
      if (use & (ATTN_USE_SLOPE_ | ATTN_USE_QUAD_ | ATTN_USE_BOUND_)) at = ATTN_V_SET1_(where[r]);
      if (use & ATTN_USE_DOT_) x = ATTN_V_ADD_(x, ATTN_V_LOAD_(dot + r * ATTN_TILE_));
      if (use & ATTN_USE_FACTOR_) {
        const float *p = ATTN_FN_(by_distance)(mod->factor, mod, r);
        ATTN_VF_ f = gather ? ATTN_V_GATHER_(p, mod->index + lane) : ATTN_V_LOAD_(p + lane);
        x = ATTN_V_MUL_(ATTN_V_MAX_(zero, x), f);
      }
      if (use & ATTN_USE_CAP_) x = ATTN_FN_(cap)(x, &cap);
      if (use & ATTN_USE_TABLE_) {
        const float *p = ATTN_FN_(by_distance)(mod->table, mod, r);
        x = ATTN_V_ADD_(x, gather ? ATTN_V_GATHER_(p, mod->index + lane) : ATTN_V_LOAD_(p + lane));
      }
      if (use & ATTN_USE_SLOPE_) x = ATTN_V_FMA_(slope, ATTN_V_ABS_(ATTN_V_ADD_(rel, at)), x);
      if (use & ATTN_USE_QUAD_) {
        ATTN_VF_ d = ATTN_V_SUB_(at, center);
        x = ATTN_V_FMA_(ATTN_V_MUL_(d, d), precision, x);
      }
      if (use & ATTN_USE_BIAS_) {
        ATTN_VF_ b = ATTN_V_LOAD_(bias);
        x = ATTN_V_SELECT_(ATTN_V_EQ_(b, inf), inf, ATTN_V_ADD_(x, b));
        bias += ATTN_TILE_;
      }
      if (use & ATTN_USE_KEY_) {
        ATTN_VF_ b = ATTN_V_SET1_(per_key[r]);
        x = ATTN_V_SELECT_(ATTN_V_EQ_(b, inf), inf, ATTN_V_ADD_(x, b));
      }
      if (use & ATTN_USE_LANES_) x = ATTN_V_SELECT_(ATTN_V_BITS_(lanes[r] >> lane), x, inf);
      if (use & ATTN_USE_BOUND_)
        x = ATTN_V_SELECT_(ATTN_V_LT_(at, lo), inf, ATTN_V_SELECT_(ATTN_V_LT_(at, hi), x, inf));
      ATTN_V_STORE_(cell, x);
      t = ATTN_V_MAX_(x, t);
    }
    ATTN_V_STORE_(top + lane, t);
  }
}

ATTN_FUNC_ void ATTN_FN_(modify_block)(float *s, int64_t n, int g0, int g1,
                                       const attn_modifiers_ *mod, float *top) {
  const int use = (mod->softcap > 0.0f ? ATTN_USE_CAP_ : 0) | (mod->slope ? ATTN_USE_SLOPE_ : 0) |
                  (mod->bias ? ATTN_USE_BIAS_ : 0) | (mod->key ? ATTN_USE_KEY_ : 0) |
                  (mod->lanes ? ATTN_USE_LANES_ : 0) | (mod->lo ? ATTN_USE_BOUND_ : 0) |
                  (mod->dot ? ATTN_USE_DOT_ : 0) | (mod->factor ? ATTN_USE_FACTOR_ : 0) |
                  (mod->table ? ATTN_USE_TABLE_ : 0) | (mod->center ? ATTN_USE_QUAD_ : 0);
  if (use == ATTN_USE_CAP_) {
    ATTN_FN_(cap_block)(s, n, g0, g1, mod->softcap, top);
    return;
  }
  if (mod->index) {
    ATTN_FN_(modify_lanes)(use, 1, s, n, g0, g1, mod, top);
    return;
  }
  switch (use) {
#if ATTN_SPECIALISE_
#define ATTN_CASE_(set) \
  case set: ATTN_FN_(modify_lanes)(set, 0, s, n, g0, g1, mod, top); break;
    ATTN_CASE_(0)
    ATTN_CASE_(ATTN_USE_SLOPE_)
    ATTN_CASE_(ATTN_USE_SLOPE_ | ATTN_USE_BOUND_)
    ATTN_CASE_(ATTN_USE_BIAS_)
    ATTN_CASE_(ATTN_USE_KEY_)
    ATTN_CASE_(ATTN_USE_LANES_)
    ATTN_CASE_(ATTN_USE_BOUND_)
    ATTN_CASE_(ATTN_USE_DOT_)
    ATTN_CASE_(ATTN_USE_FACTOR_)
    ATTN_CASE_(ATTN_USE_TABLE_)
    ATTN_CASE_(ATTN_USE_QUAD_)
#undef ATTN_CASE_
#endif
    default: ATTN_FN_(modify_lanes)(use, 0, s, n, g0, g1, mod, top);
  }
}

/* what a score is taken relative to: the maximum, or 0 while a row has no key */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(base)(ATTN_VF_ m) {
  return ATTN_V_SELECT_(ATTN_V_EQ_(m, ATTN_V_SET1_(-INFINITY)), ATTN_V_ZERO_(), m);
}

/* weight of key j times its ramp */
ATTN_INLINE_ ATTN_VF_ ATTN_FN_(ramped)(ATTN_VF_ p, ATTN_VF_ start, const attn_ramp_ *ramp,
                                       int64_t j) {
  const ATTN_VF_ one = ATTN_V_SET1_(1.0f);
  ATTN_VF_ t =
      ATTN_V_FMA_(ATTN_V_ADD_(start, ATTN_V_SET1_(ramp->at[j])), ATTN_V_SET1_(ramp->rate), one);
  t = ATTN_V_SELECT_(ATTN_V_LT_(t, one), ATTN_V_MAX_(ATTN_V_ZERO_(), t), one);
  return ATTN_V_MUL_(p, t);
}

ATTN_INLINE_ void ATTN_FN_(softmax_lanes)(const int use_ramp, float *s, int64_t n, int g0, int g1,
                                          float *m, float *l, float *alpha, const float *top,
                                          const attn_ramp_ *ramp) {
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ old = ATTN_V_LOAD_(m + lane), now = ATTN_V_MAX_(ATTN_V_LOAD_(top + lane), old);
    ATTN_VF_ base = ATTN_FN_(base)(now), sum = ATTN_V_ZERO_(), start = sum;
    ATTN_VF_ keep = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(old, base));
    float *cell = s + lane;
    int64_t j = 0;
    if (use_ramp) start = ATTN_V_LOAD_(ramp->start + lane);
    for (; j + 4 <= n; j += 4, cell += 4 * ATTN_TILE_) {
      ATTN_VF_ p[4];
      p[0] = ATTN_V_SUB_(ATTN_V_LOAD_(cell), base);
      p[1] = ATTN_V_SUB_(ATTN_V_LOAD_(cell + ATTN_TILE_), base);
      p[2] = ATTN_V_SUB_(ATTN_V_LOAD_(cell + 2 * ATTN_TILE_), base);
      p[3] = ATTN_V_SUB_(ATTN_V_LOAD_(cell + 3 * ATTN_TILE_), base);
      ATTN_FN_(exp2_neg4)(p);
      if (use_ramp) {
        p[0] = ATTN_FN_(ramped)(p[0], start, ramp, j);
        p[1] = ATTN_FN_(ramped)(p[1], start, ramp, j + 1);
        p[2] = ATTN_FN_(ramped)(p[2], start, ramp, j + 2);
        p[3] = ATTN_FN_(ramped)(p[3], start, ramp, j + 3);
      }
      ATTN_V_STORE_(cell, p[0]);
      ATTN_V_STORE_(cell + ATTN_TILE_, p[1]);
      ATTN_V_STORE_(cell + 2 * ATTN_TILE_, p[2]);
      ATTN_V_STORE_(cell + 3 * ATTN_TILE_, p[3]);
      sum = ATTN_V_ADD_(ATTN_V_ADD_(ATTN_V_ADD_(ATTN_V_ADD_(sum, p[0]), p[1]), p[2]), p[3]);
    }
    for (; j < n; j++, cell += ATTN_TILE_) {
      ATTN_VF_ p = ATTN_FN_(exp2_neg)(ATTN_V_SUB_(ATTN_V_LOAD_(cell), base));
      if (use_ramp) p = ATTN_FN_(ramped)(p, start, ramp, j);
      ATTN_V_STORE_(cell, p);
      sum = ATTN_V_ADD_(sum, p);
    }
    ATTN_V_STORE_(m + lane, now);
    ATTN_V_STORE_(l + lane, ATTN_V_FMA_(ATTN_V_LOAD_(l + lane), keep, sum));
    ATTN_V_STORE_(alpha + lane, keep);
  }
}

ATTN_FUNC_ void ATTN_FN_(softmax_block)(float *s, int64_t n, int g0, int g1, float *m, float *l,
                                        float *alpha, const float *top, const attn_ramp_ *ramp) {
  if (ramp) {
    ATTN_FN_(softmax_lanes)(1, s, n, g0, g1, m, l, alpha, top, ramp);
  } else {
    ATTN_FN_(softmax_lanes)(0, s, n, g0, g1, m, l, alpha, top, ramp);
  }
}

ATTN_FUNC_ void ATTN_FN_(relu_block)(float *s, int64_t n, int g0, int g1, int square, float *l,
                                     float *count) {
  const ATTN_VF_ zero = ATTN_V_ZERO_(), one = ATTN_V_SET1_(1.0f), inf = ATTN_V_SET1_(-INFINITY);
  for (int lane = g0 * ATTN_GROUP_; lane < g1 * ATTN_GROUP_; lane += ATTN_W_) {
    ATTN_VF_ sum = ATTN_V_LOAD_(l + lane), keys = ATTN_V_LOAD_(count + lane);
    float *cell = s + lane;
    for (int64_t j = 0; j < n; j++, cell += ATTN_TILE_) {
      ATTN_VF_ x = ATTN_V_LOAD_(cell), p = ATTN_V_MAX_(zero, x);
      if (square) p = ATTN_V_MUL_(p, p);
      keys = ATTN_V_ADD_(keys, ATTN_V_SELECT_(ATTN_V_EQ_(x, inf), zero, one));
      sum = ATTN_V_ADD_(sum, p);
      ATTN_V_STORE_(cell, p);
    }
    ATTN_V_STORE_(l + lane, sum);
    ATTN_V_STORE_(count + lane, keys);
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
          r[i] = ATTN_FN_(scaled)(r[i], vhi, vlo, bias);
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
        r[i] = ATTN_FN_(scaled)(r[i], vhi, vlo, bias);
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
    default: ATTN_FN_(pack_kind)(dst, rows, n, dim, ATTN_BF16, ATTN_KIND_BIAS_, hi, lo);
#undef ATTN_CASE_
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

/* asks for a row of `bytes` bytes */
ATTN_INLINE_ void ATTN_FN_(ahead)(const char *row, int64_t bytes) {
  for (int64_t c = 0; c < bytes; c += 64) ATTN_PREFETCH_(row + c);
}

ATTN_INLINE_ void ATTN_FN_(widen_kind)(float *dst, const void *src, int64_t stride,
                                       const int32_t *index, int64_t n, int64_t dim,
                                       const int kind) {
  const int64_t size = kind == ATTN_F32 ? 4 : 2;
  for (int64_t r = 0; r < n; r++, dst += dim) {
    const char *row = (const char *)src + (index ? index[r] : r) * stride * size;
    int64_t c = 0;
    if (index && r + ATTN_AHEAD_ < n)
      ATTN_FN_(ahead)((const char *)src + index[r + ATTN_AHEAD_] * stride * size, dim * size);
    for (; c + ATTN_W_ <= dim; c += ATTN_W_)
      ATTN_V_STORE_(dst + c, ATTN_FN_(load)(row, c, ATTN_W_, kind));
    if (c < dim && dim >= ATTN_W_) { /* the last whole vector, some of it again */
      c = dim - ATTN_W_;
      ATTN_V_STORE_(dst + c, ATTN_FN_(load)(row, c, ATTN_W_, kind));
    } else if (c < dim) {
      int w = (int)(dim - c);
      ATTN_FN_(store)(dst, c, ATTN_FN_(load)(row, c, w, kind), w, ATTN_F32);
    }
  }
}

ATTN_FUNC_ void ATTN_FN_(widen)(float *dst, const void *src, int64_t stride, const int32_t *index,
                                int64_t n, int64_t dim, attn_dtype dtype) {
#if ATTN_SPECIALISE_
  switch (dtype) {
    case ATTN_F32: ATTN_FN_(widen_kind)(dst, src, stride, index, n, dim, ATTN_F32); return;
    case ATTN_F16: ATTN_FN_(widen_kind)(dst, src, stride, index, n, dim, ATTN_F16); return;
    default: break;
  }
  dtype = ATTN_BF16;
#endif
  ATTN_FN_(widen_kind)(dst, src, stride, index, n, dim, (int)dtype);
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
/* >>> attn/kernels/lists.h */
/* kernels/lists.h owns work on rows that have key lists of their own: one query against rows picked
 * by index. Elements of a row sit in vector lanes here, so a dot product ends in a sum over lanes:
 * always over 16 running sums, joined by halves, whatever the width of a vector. */

enum { ATTN_FN_(parts) = 16 / ATTN_W_ };

/* ATTN_W_ running sums of the dot products of q with four rows: elements c, c + 16, .. go to sum
 * c mod 16; sums 8, 4, .. apart are joined down to the vector. */
ATTN_INLINE_ void ATTN_FN_(dot_four)(ATTN_VF_ *sum, const float *q, const char *r0, const char *r1,
                                     const char *r2, const char *r3, int64_t dk, const int kind) {
  ATTN_VF_ a[4][ATTN_FN_(parts)];
  int64_t c = 0;
  ATTN_UNROLL_
  for (int i = 0; i < ATTN_FN_(parts); i++) a[0][i] = a[1][i] = a[2][i] = a[3][i] = ATTN_V_ZERO_();
  for (; c + 16 <= dk; c += 16) {
    ATTN_UNROLL_
    for (int i = 0; i < ATTN_FN_(parts); i++) {
      const int64_t at = c + i * ATTN_W_;
      const ATTN_VF_ x = ATTN_V_LOAD_(q + at);
      a[0][i] = ATTN_V_FMA_(x, ATTN_FN_(load)(r0, at, ATTN_W_, kind), a[0][i]);
      a[1][i] = ATTN_V_FMA_(x, ATTN_FN_(load)(r1, at, ATTN_W_, kind), a[1][i]);
      a[2][i] = ATTN_V_FMA_(x, ATTN_FN_(load)(r2, at, ATTN_W_, kind), a[2][i]);
      a[3][i] = ATTN_V_FMA_(x, ATTN_FN_(load)(r3, at, ATTN_W_, kind), a[3][i]);
    }
  }
  if (c < dk) {
    ATTN_UNROLL_
    for (int i = 0; i < ATTN_FN_(parts); i++) {
      const int64_t at = c + i * ATTN_W_;
      if (at >= dk) continue;
      const int w = ATTN_FN_(lanes_left)(dk, at);
      const ATTN_VF_ x = ATTN_FN_(load)(q, at, w, ATTN_F32);
      a[0][i] = ATTN_V_FMA_(x, ATTN_FN_(load)(r0, at, w, kind), a[0][i]);
      a[1][i] = ATTN_V_FMA_(x, ATTN_FN_(load)(r1, at, w, kind), a[1][i]);
      a[2][i] = ATTN_V_FMA_(x, ATTN_FN_(load)(r2, at, w, kind), a[2][i]);
      a[3][i] = ATTN_V_FMA_(x, ATTN_FN_(load)(r3, at, w, kind), a[3][i]);
    }
  }
  ATTN_UNROLL_
  for (int r = 0; r < 4; r++) {
#if ATTN_W_ == 4
    a[r][0] = ATTN_V_ADD_(a[r][0], a[r][2]), a[r][1] = ATTN_V_ADD_(a[r][1], a[r][3]);
    a[r][0] = ATTN_V_ADD_(a[r][0], a[r][1]);
#elif ATTN_W_ == 8
    a[r][0] = ATTN_V_ADD_(a[r][0], a[r][1]);
#endif
    sum[r] = a[r][0];
  }
}

ATTN_INLINE_ void ATTN_FN_(dots_kind)(float *out, const float *q, const void *k, int64_t stride,
                                      const int32_t *index, int64_t n, int64_t dk, const int kind,
                                      int ahead) {
  const char *rows = (const char *)k;
  const int64_t size = kind == ATTN_F32 ? 4 : 2, step = stride * size;
  int64_t e = 0;
  for (; e + ATTN_W_ <= n; e += ATTN_W_) {
    ATTN_VF_ a[ATTN_W_]; /* in memory: unrolled, the loop would be a page of code */
    for (int i = 0; i < ATTN_W_; i += 4) {
      const int32_t *x = index + e + i;
      if (ahead && e + i + ahead + 4 <= n)
        for (int r = 0; r < 4; r++) ATTN_FN_(ahead)(rows + x[r + ahead] * step, dk * size);
      ATTN_FN_(dot_four)(a + i, q, rows + x[0] * step, rows + x[1] * step, rows + x[2] * step,
                         rows + x[3] * step, dk, kind);
    }
    ATTN_V_TRANSPOSE_(a);
    ATTN_UNROLL_
    for (int h = ATTN_W_ / 2; h > 0; h /= 2) {
      ATTN_UNROLL_
      for (int i = 0; i < h; i++) a[i] = ATTN_V_ADD_(a[i], a[i + h]);
    }
    ATTN_V_STORE_(out + e, a[0]);
  }
  if (e == n) return;
  /* fewer rows than lanes: the last one again and again */
  int32_t last[ATTN_W_];
  float sums[ATTN_W_];
  for (int i = 0; i < ATTN_W_; i++) last[i] = index[e + i < n ? e + i : n - 1];
  ATTN_VF_ a[ATTN_W_];
  for (int i = 0; i < ATTN_W_; i += 4)
    ATTN_FN_(dot_four)(a + i, q, rows + last[i] * step, rows + last[i + 1] * step,
                       rows + last[i + 2] * step, rows + last[i + 3] * step, dk, kind);
  ATTN_V_TRANSPOSE_(a);
  for (int h = ATTN_W_ / 2; h > 0; h /= 2)
    for (int i = 0; i < h; i++) a[i] = ATTN_V_ADD_(a[i], a[i + h]);
  ATTN_V_STORE_(sums, a[0]);
  for (; e < n; e++) out[e] = sums[e % ATTN_W_];
}

ATTN_FUNC_ void ATTN_FN_(dots)(float *out, const float *q, const void *k, int64_t stride,
                               const int32_t *index, int64_t n, int64_t dk, attn_dtype dtype,
                               int ahead) {
#if ATTN_SPECIALISE_
  switch (dtype) {
    case ATTN_F32: ATTN_FN_(dots_kind)(out, q, k, stride, index, n, dk, ATTN_F32, ahead); return;
    case ATTN_F16: ATTN_FN_(dots_kind)(out, q, k, stride, index, n, dk, ATTN_F16, ahead); return;
    default: break;
  }
  dtype = ATTN_BF16;
#endif
  ATTN_FN_(dots_kind)(out, q, k, stride, index, n, dk, (int)dtype, ahead);
}

/* columns c .. c + 8 vectors of the sum */
#define ATTN_EACH8_(step) step(0) step(1) step(2) step(3) step(4) step(5) step(6) step(7)
#define ATTN_SUM_OPEN_(i) ATTN_VF_ a##i = ATTN_V_MUL_(ATTN_V_LOAD_(o + i * ATTN_W_), scale);
#define ATTN_SUM_ADD_(i) \
  a##i = ATTN_V_FMA_(w, ATTN_FN_(load)(row, c + i * ATTN_W_, ATTN_W_, kind), a##i);
#define ATTN_SUM_CLOSE_(i) ATTN_V_STORE_(o + i * ATTN_W_, a##i);
ATTN_INLINE_ void ATTN_FN_(axpys_kind)(float *o, const float *p, const void *v, int64_t stride,
                                       const int32_t *index, int64_t n, int64_t dv, const int kind,
                                       float alpha, int ahead) {
  const char *rows = (const char *)v;
  const int64_t size = kind == ATTN_F32 ? 4 : 2, step = stride * size;
  const ATTN_VF_ scale = ATTN_V_SET1_(alpha);
  int64_t c = 0;
  for (; c + 8 * ATTN_W_ <= dv; c += 8 * ATTN_W_, o += 8 * ATTN_W_) {
    ATTN_EACH8_(ATTN_SUM_OPEN_)
    for (int64_t e = 0; e < n; e++) {
      const char *row = rows + index[e] * step;
      const ATTN_VF_ w = ATTN_V_SET1_(p[e]);
      if (ahead && e + ahead < n)
        ATTN_FN_(ahead)(rows + index[e + ahead] * step + c * size, 8 * ATTN_W_ * size);
      ATTN_EACH8_(ATTN_SUM_ADD_)
    }
    ATTN_EACH8_(ATTN_SUM_CLOSE_)
  }
  for (; c + 4 * ATTN_W_ <= dv; c += 4 * ATTN_W_, o += 4 * ATTN_W_) {
    ATTN_SUM_OPEN_(0)
    ATTN_SUM_OPEN_(1) ATTN_SUM_OPEN_(2) ATTN_SUM_OPEN_(3) for (int64_t e = 0; e < n; e++) {
      if (index[e] < 0) continue;
      const char *row = rows + index[e] * step;
      const ATTN_VF_ w = ATTN_V_SET1_(p[e]);
      if (ahead && e + ahead < n)
        ATTN_FN_(ahead)(rows + index[e + ahead] * step + c * size, 4 * ATTN_W_ * size);
      ATTN_SUM_ADD_(0) ATTN_SUM_ADD_(1) ATTN_SUM_ADD_(2) ATTN_SUM_ADD_(3)
    }
    ATTN_SUM_CLOSE_(0) ATTN_SUM_CLOSE_(1) ATTN_SUM_CLOSE_(2) ATTN_SUM_CLOSE_(3)
  }
  for (; c < dv; c += ATTN_W_, o += ATTN_W_) {
    const int left = ATTN_FN_(lanes_left)(dv, c);
    ATTN_VF_ a = ATTN_V_MUL_(ATTN_FN_(load)(o, 0, left, ATTN_F32), scale);
    for (int64_t e = 0; e < n; e++)
      a = ATTN_V_FMA_(ATTN_V_SET1_(p[e]), ATTN_FN_(load)(rows + index[e] * step, c, left, kind), a);
    ATTN_FN_(store)(o, 0, a, left, ATTN_F32);
  }
}
#undef ATTN_EACH8_
#undef ATTN_SUM_OPEN_
#undef ATTN_SUM_ADD_
#undef ATTN_SUM_CLOSE_

ATTN_FUNC_ void ATTN_FN_(axpys)(float *o, const float *p, const void *v, int64_t stride,
                                const int32_t *index, int64_t n, int64_t dv, attn_dtype dtype,
                                float alpha, int ahead) {
#if ATTN_SPECIALISE_
  switch (dtype) {
    case ATTN_F32:
      ATTN_FN_(axpys_kind)(o, p, v, stride, index, n, dv, ATTN_F32, alpha, ahead);
      return;
    case ATTN_F16:
      ATTN_FN_(axpys_kind)(o, p, v, stride, index, n, dv, ATTN_F16, alpha, ahead);
      return;
    default: break;
  }
  dtype = ATTN_BF16;
#endif
  ATTN_FN_(axpys_kind)(o, p, v, stride, index, n, dv, (int)dtype, alpha, ahead);
}
/* <<< attn/kernels/lists.h */

static const attn_table_ ATTN_FN_(table) = {
    ATTN_ISA_ID_,          ATTN_FN_(pack),         ATTN_FN_(unpack),        ATTN_FN_(widen),
    ATTN_FN_(score_block), ATTN_FN_(modify_block), ATTN_FN_(softmax_block), ATTN_FN_(relu_block),
    ATTN_FN_(value_block), ATTN_FN_(dots),         ATTN_FN_(axpys),         ATTN_FN_(scale_block),
    ATTN_FN_(finite),      ATTN_FN_(join),         ATTN_FN_(divide),        ATTN_FN_(weights),
    ATTN_FN_(exp_row),     ATTN_FN_(blend),        ATTN_FN_(rope)};

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
#undef ATTN_V_ALL_
#undef ATTN_V_BITS_
#undef ATTN_V_DIV_
#undef ATTN_V_EQ_
#undef ATTN_V_EXP_FLOOR_
#undef ATTN_V_FMA_
#undef ATTN_V_GATHER_
#undef ATTN_V_LDEXP_
#undef ATTN_V_LDEXP_SMALL_
#undef ATTN_V_LOAD_
#undef ATTN_V_LOAD_BF16_
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
  ATTN_E_INDEX,     /* an index list has an entry out of range, out of order or doubled */
  ATTN_E_PATTERN,   /* a pattern has an unknown kind, is too deep (or cyclic) or too large */
  ATTN_E_SCHEDULE,  /* the bytes are no schedule, or one for other lengths */
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
/* >>> attn/api/score.h */
/* api/score.h owns the terms that a score may have beyond the scaled dot product. Each is a field
 * of attn_sdpa_params; all zero is absent. Terms of several mechanisms may be combined: the order
 * in which they apply is that of attn_sdpa_params.
 *
 * Query i sits at key position p_i = i + q_off; d = j - p_i is the signed distance, 0 for the
 * query's own position and negative for the past. Arrays per head are [H], H the query heads. */

/* Relative position vectors, by clipped distance: with c = (len - 1)/2 and e = clip(d, -c, c) + c
 *   x_ij = s q_i . (k_j + keys[e]),   O_i = sum_j P_ij (v_j + values[e])
 * keys [1, 1 or H, 2c+1, dk], values [1, 1 or H, 2c+1, dv], f32; either may be absent. Costs one
 * short row of dot products per query and an addition per pair. Source: Shaw et al. 2018, arXiv
 * 1803.02155. */
typedef struct attn_relative {
  attn_tensor keys, values;
} attn_relative;

/* Transformer-XL scores: x_ij = s ((q_i + u_h) . k_j + (q_i + v_h) . table[p_i - j - first])
 * table [1, 1 or H, n, dk] f32 holds the projected encodings of the distances first ..
 * first + n - 1 (p_i - j, so the past is positive) and must cover every pair that causal, window
 * and lengths allow. u and v may be null. Source: Dai et al. 2019, arXiv 1901.02860. */
typedef struct attn_xl {
  attn_tensor table;
  int64_t first;
  const float *content_bias;  /* u [H, dk] */
  const float *distance_bias; /* v [H, dk] */
} attn_xl;

/* Relative labels: the label of a pair chooses a vector that is added to the key and a number that
 * is added to the dot product, both inside the scale:
 *   x_ij = s (q_i . (k_j + table[label]) + bias[label, h])
 * label(user, batch, head, i, j) returns 0 .. table.len - 1 or a negative number for none; it must
 * depend on its arguments alone. Anything else counts as none. table [1, 1 or H, n, dk] f32, bias
 * [n, H] or null. Sources: Ainslie et al. 2020, arXiv 2004.08483; Ye et al. 2019, arXiv
 * 1911.04070. */
typedef int64_t (*attn_label_fn)(void *user, int64_t batch, int64_t head, int64_t i, int64_t j);
typedef struct attn_labels {
  attn_label_fn label;
  void *user;
  attn_tensor table;
  const float *bias;
} attn_labels;

/* Distance-aware factor: x = relu(x) f_h(|d|), f_h(t) = (1 + exp(beta_h))/(1 + exp(beta_h -
 * alpha_h t)). Needs s > 0. alpha, beta [H]. Source: Wu et al. 2020, arXiv 2010.06925. */
typedef struct attn_distance_factor {
  const float *alpha, *beta;
} attn_distance_factor;

/* A number for each distance: x += T_h[d], T_h[d] = table[h][d - first]. Outside the table its
 * nearest end holds, or, with reject, no allowed pair may lie there (ATTN_E_RANGE; judged by
 * causal, window, q_off and the extents). inside = 1 multiplies the term by s as well. Sources:
 * Raffel et al. 2019, arXiv 1910.10683; Huang et al. 2018, arXiv 1809.04281 (inside). */
typedef struct attn_toeplitz {
  const float *table; /* [heads, len] */
  int64_t len, first;
  int64_t heads; /* 0 or 1: shared; H: one row each */
  int reject, inside;
} attn_toeplitz;

/* T5's bucketed distances: x += table[bucket(d), h] with attn_t5_bucket. With this term a scale of
 * 0 means 1, as the T5 models want. Source: Raffel et al. 2019, arXiv 1910.10683. */
typedef struct attn_t5 {
  const float *table;   /* [buckets, H] */
  int64_t buckets;      /* 0 = 32 */
  int64_t max_distance; /* 0 = 128 */
  int bidirectional;    /* 0: the past only, future keys share bucket 0 */
} attn_t5;

/* A parabola of the distance: x -= |w_h d^2 + b_h|, w >= 0, b <= 0. Source: Guo et al. 2019, doi
 * 10.1609/aaai.v33i01.33016489. */
typedef struct attn_parabola {
  const float *w; /* [H]; null = absent */
  const float *b; /* [H]; null = 0 */
} attn_parabola;

/* A Gaussian bump per query: x -= precision_i (j - center_i)^2. Both [B, H, Tq]; see
 * attn_gaussian_window. Source: Yang et al. 2018, arXiv 1810.10182. */
typedef struct attn_gaussian {
  const float *center, *precision;
} attn_gaussian;

/* Adaptive span: weights are multiplied by m(t) = clip((ramp + z - t - shift)/ramp, 0, 1) and
 * renormalised, t = p_i - j >= 1 (>= 0 with include_self). Keys with m = 0 or t > most are not
 * visited. Source: Sukhbaatar et al. 2019, arXiv 1905.07799. */
typedef struct attn_span {
  const float *z;   /* [H], or [B, H, Tq] when per_query; 0 <= z, z <= most if that is given */
  int per_query;    /* 1: the dynamic span of attn_span_predict */
  float ramp;       /* R > 0; 0 = 32 */
  int64_t most;     /* S; 0 = none */
  int include_self; /* 0: strictly earlier keys, as in the paper */
  int64_t shift;    /* 0: the paper; -1: its released code */
} attn_span;

/* A tile of scores as a user's modifier sees it. The score of key c and query r is
 * score[c * key_stride + r * query_stride], in natural units, after every other term (but an
 * adaptive span, which multiplies weights) and before the allowed set: entries of forbidden pairs may hold anything and are ignored. */
typedef struct attn_score_tile {
  float *score;
  int64_t key_stride, query_stride;
  int64_t batch, keys, queries;
  const int64_t *key;      /* [keys] their indices */
  const int64_t *query;    /* [queries] their indices i */
  const int64_t *position; /* [queries] p_i */
  const int64_t *head;     /* [queries] query heads */
} attn_score_tile;

/* Changes scores in place. -inf forbids a pair; NaN makes its row NaN; +inf does too. Any pair is
 * handed over once or, near non-finite values, twice; in any order, from any worker. */
typedef void (*attn_score_fn)(void *user, const attn_score_tile *tile);
/* <<< attn/api/score.h */
/* >>> attn/api/pattern.h */
/* api/pattern.h owns patterns, which say from positions alone which (query, key) pairs exist, and
 * schedules, which are patterns made ready to run.
 *
 *   attn_pattern near = attn_pattern_band(256, 0);
 *   attn_schedule s;
 *   attn_schedule_build(&s, &near, heads, q_len, k_len, NULL, NULL);
 *   attn_sdpa(o, q, k, v, &(attn_sdpa_params){.schedule = &s}, NULL);   // any number of times
 *   attn_schedule_free(&s);
 *
 * Query i sits at key position p_i = i + q_off (default k_len - q_len: ends aligned). A pattern is
 * a set: a pair that several parts allow counts once. */

typedef enum attn_pattern_kind {
  ATTN_PATTERN_FULL = 0,      /* every pair */
  ATTN_PATTERN_GLOBAL,        /* chosen tokens see all and are seen by all */
  ATTN_PATTERN_BAND,          /* -left <= j - p <= right */
  ATTN_PATTERN_DILATED,       /* j = p + t step, -left <= t <= right */
  ATTN_PATTERN_RANDOM,        /* count keys drawn for each query */
  ATTN_PATTERN_RANDOM_BLOCKS, /* count blocks drawn for each query block */
  ATTN_PATTERN_BLOCKS,        /* own block, before and after whole blocks */
  ATTN_PATTERN_RING,          /* |j - i| <= left around a ring, or cut at its ends */
  ATTN_PATTERN_STAR,          /* node 0 is the relay, the others a ring */
  ATTN_PATTERN_LONGFORMER,
  ATTN_PATTERN_ETC,
  ATTN_PATTERN_BIGBIRD,
  ATTN_PATTERN_SPARSE_STRIDED,
  ATTN_PATTERN_SPARSE_FIXED,
  ATTN_PATTERN_BLOCKWISE,
  ATTN_PATTERN_IMAGE_1D,
  ATTN_PATTERN_IMAGE_2D,
  ATTN_PATTERN_AXIAL,
  ATTN_PATTERN_TREE,
  ATTN_PATTERN_SEGMENTS,
  ATTN_PATTERN_PREDICATE,
  ATTN_PATTERN_BITMAP,
  ATTN_PATTERN_CSR,
  ATTN_PATTERN_BLOCK_MASK,
  ATTN_PATTERN_UNION,
  ATTN_PATTERN_INTERSECT,
  ATTN_PATTERN_DIFF,
  ATTN_PATTERN_COMPLEMENT,
  ATTN_PATTERN_TRANSPOSE,
  ATTN_PATTERN_PER_HEAD,
  ATTN_PATTERN_COUNT
} attn_pattern_kind;

/* How the two sets of a Sparse Transformer are used. */
typedef enum attn_sparse_use {
  ATTN_SPARSE_MERGED = 0, /* every head sees the union */
  ATTN_SPARSE_INTERLEAVE, /* layer n uses set n mod 2 */
  ATTN_SPARSE_HEADS       /* head h uses set assign[h], default h mod 2; 2 = the union */
} attn_sparse_use;

/* The order in which the pixels of ATTN_PATTERN_IMAGE_2D come into being. */
typedef enum attn_image_order {
  ATTN_IMAGE_BLOCK = 0, /* block after block, the paper: a pixel sees those before it and itself */
  ATTN_IMAGE_RASTER,    /* row after row, likewise */
  ATTN_IMAGE_NONE       /* a pixel sees all of its memory */
} attn_image_order;

/* 1 if the pair exists; must depend on its arguments alone. */
typedef int (*attn_pair_fn)(void *user, int64_t head, int64_t i, int64_t j);
/* What a rectangle i0 <= i < i1, j0 <= j < j1 holds. */
typedef enum attn_rectangle { ATTN_EMPTY = 0, ATTN_WHOLE, ATTN_PARTIAL } attn_rectangle;
typedef attn_rectangle (*attn_rectangle_fn)(void *user, int64_t head, int64_t i0, int64_t i1,
                                            int64_t j0, int64_t j1);

/* A pattern: a plain value, made by one of the constructors below, whose fields may be changed
 * afterwards. Arrays and parts belong to the caller and are read by attn_schedule_build only.
 * Each constructor says which fields it uses. */
typedef struct attn_pattern {
  attn_pattern_kind kind;
  int causal;                /* any kind: only pairs with j <= p_i (draws: candidates too) */
  int64_t left, right;       /* keys or steps behind and ahead; -1 = any number */
  int64_t step;              /* dilation or stride */
  int64_t block;             /* block length */
  int64_t before, after;     /* blocks or positions beside the own block */
  int64_t first, last;       /* global blocks at the start and at the end; first extra tokens */
  int64_t count;             /* draws; columns of a block; nodes per level; number of blocks */
  uint64_t seed;             /* of the draws */
  const int32_t *index;      /* global keys, permutation, offsets, assignment or shape */
  int64_t indices;           /* how many */
  const int32_t *queries;    /* global query rows; null = those whose position is a global key */
  int64_t query_count;       /* how many */
  int no_rows, no_columns;   /* GLOBAL: leave out rows, columns */
  int no_ring;               /* RING, STAR: cut at the ends instead */
  int overlap, include_self; /* TREE */
  int64_t axis;              /* AXIAL; -1 = the union of all */
  int64_t layer, sub_blocks; /* SPARSE_*: INTERLEAVE's layer; FIXED: sub-blocks in use, 0 = 1 */
  attn_sparse_use use;
  int64_t height, width;           /* IMAGE_2D: the grid */
  int64_t tile_height, tile_width; /* its query blocks */
  int64_t top, bottom;             /* its flanges, with left and right */
  attn_image_order order;
  attn_pair_fn pair;           /* PREDICATE */
  attn_rectangle_fn rectangle; /* optional */
  void *user;
  const uint8_t *bits;              /* BITMAP bits, BLOCK_MASK bytes */
  int64_t bits_stride, bits_heads;  /* bytes between rows; 0 or 1: shared, H: one after another */
  int64_t key_block;                /* BLOCK_MASK: keys a block; `block` is queries */
  const int64_t *row_ptr;           /* CSR */
  const struct attn_pattern *parts; /* UNION, INTERSECT, PER_HEAD: n; DIFF: 2; others: 1 */
  int64_t part_count;
} attn_pattern;

/* Atoms. */

/* Every pair; with causal = 1, j <= p. */
ATTN_DEF attn_pattern attn_pattern_full(void);
/* Tokens index[0..n): keys seen by every query, and queries (those whose position is in the list,
 * or `queries`) that see every key. Any order, doubles collapse. Survey: arXiv 2106.04554. */
ATTN_DEF attn_pattern attn_pattern_global(const int32_t *index, int64_t n);
/* A window; -1 = no bound on that side. Beltagy et al. 2020, arXiv 2004.05150. */
ATTN_DEF attn_pattern attn_pattern_band(int64_t left, int64_t right);
/* One radius per head: head h sees |j - p| <= radius[h]. Guo et al. 2019, arXiv 1912.00544. */
ATTN_DEF attn_pattern attn_pattern_multiscale(const int32_t *radius, int64_t heads);
/* A window with gaps: left and right count steps of `dilation`. arXiv 2004.05150. */
ATTN_DEF attn_pattern attn_pattern_dilated(int64_t left, int64_t right, int64_t dilation);
/* (p - j) mod stride = 0. Child et al. 2019, arXiv 1904.10509. */
ATTN_DEF attn_pattern attn_pattern_strided(int64_t stride);
/* `count` keys for each head and query, without repetition, the same on every machine. Zaheer et
 * al. 2020, arXiv 2007.14062. */
ATTN_DEF attn_pattern attn_pattern_random(int64_t count, uint64_t seed);
/* `count` key blocks for each head and query block. */
ATTN_DEF attn_pattern attn_pattern_random_blocks(int64_t block, int64_t count, uint64_t seed);
/* The own block of `block` keys and whole neighbours. arXiv 2106.04554. */
ATTN_DEF attn_pattern attn_pattern_blocks(int64_t block, int64_t before, int64_t after);
/* Neighbours up to `width` away on a ring (q_len = k_len). Guo et al. 2019, arXiv 1902.09113. */
ATTN_DEF attn_pattern attn_pattern_ring(int64_t width);

/* Compound patterns, with the defaults of their papers. */

/* Star-Transformer as one graph: node 0 is the relay, nodes 1.. the satellites; see attn_star.
 * width 0 sees itself and the relay alone. arXiv 1902.09113. */
ATTN_DEF attn_pattern attn_pattern_star(int64_t width);
/* Longformer: a one-sided window of `window` steps of `dilation`, and global tokens index[0..n),
 * strictly ascending. Per-head windows: attn_pattern_per_head. arXiv 2004.05150. */
ATTN_DEF attn_pattern attn_pattern_longformer(int64_t window, int64_t dilation,
                                              const int32_t *index, int64_t n);
/* ETC on the concatenation [global; long]: `globals` tokens see all and are seen by all, long
 * tokens see `radius` to each side. attn_etc has its labels and masks. Ainslie et al. 2020, arXiv
 * 2004.08483. */
ATTN_DEF attn_pattern attn_pattern_etc(int64_t globals, int64_t radius);
/* BigBird over blocks (0 = 64): first = last = 1 global blocks, before = after = 1 window blocks,
 * count = 3 random ones per head. arXiv 2007.14062. */
ATTN_DEF attn_pattern attn_pattern_bigbird(int64_t block, uint64_t seed);
/* BigBird-ETC: g tokens in front see all and are seen by all; the rest as attn_pattern_bigbird
 * with first = last = 0 and count = 0. In field `left`: g. */
ATTN_DEF attn_pattern attn_pattern_bigbird_etc(int64_t globals, int64_t block, uint64_t seed);
/* BigBird over tokens: window of `half` each side, global tokens, `count` random keys. The three
 * parts are written to storage[0..3) and must live as long as the pattern. */
ATTN_DEF attn_pattern attn_pattern_bigbird_tokens(int64_t half, const int32_t *index, int64_t n,
                                                  int64_t count, uint64_t seed,
                                                  attn_pattern storage[3]);
/* Sparse Transformer, causal unless causal is set to 0: the last `stride` positions (left) and
 * every stride-th one. Fields use, layer, index (assignment of heads). arXiv 1904.10509. */
ATTN_DEF attn_pattern attn_pattern_sparse_strided(int64_t stride, attn_sparse_use use);
/* The own block, and the last `columns` positions of each earlier block; sub_blocks n: head h uses
 * the columns before those, (h mod n) times. */
ATTN_DEF attn_pattern attn_pattern_sparse_fixed(int64_t block, int64_t columns,
                                                attn_sparse_use use);
/* n x n blocks; query block b sees key block permutation[h][b] ([H, n]; null: (b + h) mod n).
 * Qiu et al. 2019, arXiv 1911.02972. */
ATTN_DEF attn_pattern attn_pattern_blockwise(int64_t blocks, const int32_t *permutation);
/* permutation(n) of each head from a seed, into permutation [heads, n]. ATTN_E_NULL, _SHAPE. */
ATTN_DEF attn_status attn_block_permutations(int32_t *permutation, int64_t heads, int64_t blocks,
                                             uint64_t seed);
/* Image Transformer over raster positions: the own block of `block`, `before` positions before it
 * and, in field after, positions after it; causal = 1. Parmar et al. 2018, arXiv 1802.05751. */
ATTN_DEF attn_pattern attn_pattern_image_1d(int64_t block, int64_t before);
/* Image Transformer in two dimensions: blocks of tile_height x tile_width pixels of a
 * height x width image (q_len = k_len = height * width) see the block and its flanges: top and
 * the same to both sides; set bottom for a symmetric one. Order ATTN_IMAGE_BLOCK. */
ATTN_DEF attn_pattern attn_pattern_image_2d(int64_t height, int64_t width, int64_t tile_height,
                                            int64_t tile_width, int64_t top, int64_t side);
/* Every pixel sees the pixels up to `radius` away in both directions: image_2d with blocks of one
 * pixel, order ATTN_IMAGE_NONE. Hassani et al. 2022, arXiv 2204.07143. */
ATTN_DEF attn_pattern attn_pattern_neighbourhood(int64_t height, int64_t width, int64_t radius);
/* Lines of a grid shape[0] x .. x shape[dims-1] along one axis, or -1: along all, in one softmax.
 * Ho et al. 2019, arXiv 1912.12180; union: arXiv 1811.11721. */
ATTN_DEF attn_pattern attn_pattern_axial(const int32_t *shape, int64_t dims, int64_t axis);
/* BP-Transformer's graph over attn_tree_nodes(tokens) nodes, k nodes per level and side; fields
 * overlap, include_self. See attn_tree. Ye et al. 2019, arXiv 1911.04070. */
ATTN_DEF attn_pattern attn_pattern_tree(int64_t tokens, int64_t k);
/* Segments offsets[s] .. offsets[s+1], s < segments; offsets has segments + 1 entries. */
ATTN_DEF attn_pattern attn_pattern_segments(const int32_t *offsets, int64_t segments);

/* The user's own. */

/* pair decides; rectangle, if given, spares most calls: pair is then called in partial tiles
 * only. Without it building costs O(Tq Tk) calls a head. */
ATTN_DEF attn_pattern attn_pattern_predicate(attn_pair_fn pair, attn_rectangle_fn rectangle,
                                             void *user);
/* Bit (j & 7) of byte (j >> 3) of row i; rows `stride` bytes apart. Set bits_heads for one map per
 * head, one after another. */
ATTN_DEF attn_pattern attn_pattern_bitmap(const uint8_t *bits, int64_t stride);
/* Row i sees col[row_ptr[i]] .. col[row_ptr[i+1] - 1], in any order, each once; `nnz` columns in
 * all. */
ATTN_DEF attn_pattern attn_pattern_csr(const int64_t *row_ptr, const int32_t *col, int64_t nnz);
/* One byte for each block of q_block queries (by index, not position) and k_block keys. */
ATTN_DEF attn_pattern attn_pattern_block_mask(const uint8_t *mask, int64_t q_block,
                                              int64_t k_block);

/* Algebra. parts stay the caller's and must live until the schedule is built. Compositions may be
 * 32 deep and have 1024 parts in all (ATTN_E_PATTERN). */
ATTN_DEF attn_pattern attn_pattern_union(const attn_pattern *parts, int64_t n);
ATTN_DEF attn_pattern attn_pattern_intersect(const attn_pattern *parts, int64_t n);
/* parts[0] without parts[1]. */
ATTN_DEF attn_pattern attn_pattern_diff(const attn_pattern parts[2]);
/* All pairs of [0, q_len) x [0, k_len) that part has not. */
ATTN_DEF attn_pattern attn_pattern_complement(const attn_pattern *part);
/* (i, j) exists if part has (j, i); part is taken over k_len queries and q_len keys. Building
 * tests every pair. */
ATTN_DEF attn_pattern attn_pattern_transpose(const attn_pattern *part);
/* Head h uses parts[h]. */
ATTN_DEF attn_pattern attn_pattern_per_head(const attn_pattern *parts, int64_t heads);

/* A pattern made ready for given lengths: a plain block of bytes without pointers, which may be
 * written to a file, read back (attn_schedule_open) and shared by threads. */
typedef struct attn_schedule {
  const void *data;
  size_t size;
  void *owned; /* what attn_schedule_free frees; null when the memory is the caller's */
} attn_schedule;

typedef struct attn_schedule_params {
  int has_q_off; /* 1: q_off below holds; 0: k_len - q_len */
  int64_t q_off;
  void *memory; /* where to build; null = ATTN_MALLOC. 8-byte aligned */
  size_t memory_size;
} attn_schedule_params;

/* What a schedule holds. Counts are sums over the heads. */
typedef struct attn_schedule_info {
  int64_t heads, q_len, k_len, q_off;
  int64_t pairs;    /* allowed pairs, exactly */
  int64_t computed; /* pairs the tiles compute, allowed or not */
  int64_t tiles;    /* tiles of up to 64 queries */
  int64_t full;     /* runs of keys that every query of a tile sees */
  int64_t partial;  /* runs of keys that some queries of a tile see */
  int64_t lists;    /* tiles whose rows have key lists of their own */
  int64_t phases;   /* parts of the rows' key sets that are computed one after another */
  int64_t bytes;
} attn_schedule_info;

/* Builds the schedule of a pattern for these lengths.
 *
 * Memory: the schedule in params->memory or from ATTN_MALLOC, O(tiles + runs of keys) and, for
 *   scattered keys, O(pairs); while building, ATTN_MALLOC is asked for O(k_len) more. Free it with
 *   attn_schedule_free. Patterns that do not differ between heads are stored once.
 * Errors: NULL, SHAPE, HEADS (PER_HEAD of another length), RANGE, VALUE, INDEX (lists out of range,
 *   out of order, doubled), PATTERN (unknown kind, too deep, too many parts), OVERFLOW, WORKSPACE
 *   (memory too small: attn_schedule_bytes), MEMORY, ALIGN, CTX, ISA, ENV. *schedule is then
 *   untouched. q_len, k_len, heads < 2^31.
 * Determinism: the same bytes on every machine of one byte order. Cost: O(runs of keys). */
ATTN_DEF attn_status attn_schedule_build(attn_schedule *schedule, const attn_pattern *pattern,
                                         int64_t heads, int64_t q_len, int64_t k_len,
                                         const attn_schedule_params *params, attn_ctx *ctx);
/* Bytes that attn_schedule_build wants in params->memory: builds, and throws away. 0 on error. */
ATTN_DEF size_t attn_schedule_bytes(const attn_pattern *pattern, int64_t heads, int64_t q_len,
                                    int64_t k_len, const attn_schedule_params *params,
                                    attn_ctx *ctx);
/* Frees what attn_schedule_build allocated and clears the struct; null is fine. */
ATTN_DEF void attn_schedule_free(attn_schedule *schedule);
/* A schedule from saved bytes (8-byte aligned), which stay the caller's. Every number in it is
 * checked, so that bytes from anywhere cannot make a later call read out of bounds:
 * ATTN_E_SCHEDULE. */
ATTN_DEF attn_status attn_schedule_open(attn_schedule *schedule, const void *bytes, size_t size,
                                        attn_ctx *ctx);
/* Counts and lengths. NULL, SCHEDULE. */
ATTN_DEF attn_status attn_schedule_describe(attn_schedule_info *info,
                                            const attn_schedule *schedule);
/* The pairs of one head as CSR, columns ascending: row_ptr [q_len + 1]; col may be null, to count
 * first. NULL, RANGE (head), SCHEDULE. */
ATTN_DEF attn_status attn_schedule_csr(int64_t *row_ptr, int32_t *col,
                                       const attn_schedule *schedule, int64_t head);
/* Draws what one head of a schedule computes: pixel (x, y) of a width x height picture, rows
 * `stride` bytes apart, gets 255 times the share of its pairs that are allowed, rounded up. width
 * = k_len and height = q_len give one pixel a pair. NULL, RANGE, SHAPE, SCHEDULE. */
ATTN_DEF attn_status attn_pattern_render(uint8_t *pixels, int64_t width, int64_t height,
                                         int64_t stride, const attn_schedule *schedule,
                                         int64_t head);
/* <<< attn/api/pattern.h */
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
  const attn_schedule *schedule; /* which pairs exist; null = all. Built for these lengths */
  /* Terms of the score, in the order in which they apply (api/score.h). softcap follows factor,
   * bias and alibi stand among the additive ones; modify is last before the allowed set. */
  attn_relative relative;
  attn_xl xl;
  attn_labels labels;
  attn_distance_factor factor;
  attn_toeplitz toeplitz;
  attn_t5 t5;
  attn_parabola parabola;
  attn_gaussian gaussian;
  attn_span span;
  attn_score_fn modify;
  void *modify_user;
  attn_tensor lse; /* out, optional: [B,H,Tq,1] f32, log of each row's denominator */
  attn_tensor map; /* out, optional: [B,H,Tq,Tk] f32, the weights P */
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
 * Memory: attn_sdpa_workspace bytes, O(tile * (dk + dv)) per worker whatever Tq and Tk, and more
 *   for terms: 256 bytes a label and a relative distance (min(2c + 1, Tq + Tk) of them, twice for
 *   values), per worker; 4 (Tq + Tk) bytes a head for terms by distance; 12 bytes a row for a
 *   schedule of several phases, and the row in f32 if o is not. No Tq x Tk array unless map is
 *   given.
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

/* How attn_relu turns scores into weights; x_ij = score, n_i = the row's allowed keys (at least 1),
 * or Tk with by_keys. */
typedef enum attn_relu_kind {
  ATTN_RELU_RAW = 0, /* relu(x)^power */
  ATTN_RELU_LEN,     /* n_i^-alpha relu(x)^power; Wortsman et al. 2023, arXiv 2309.08586 */
  ATTN_RELU_VAR,     /* relu(x) / (gamma sqrt(n_i/2)); Shen et al. 2023, arXiv 2302.06461 */
  ATTN_RELU_GAU,     /* relu(x)^2; without a scale it is 1/n_i, t5 or not, and toeplitz.inside
                      * needs one; Hua et al. 2022, arXiv 2202.10447 */
  ATTN_RELU_NORM,    /* relu(x)^power / (eps + sum_j relu(x_ij)^power) */
  ATTN_RELU_RELA     /* RAW with power 1, then a gated RMSNorm over all heads of a query:
                      * y = gain o / sqrt(mean o^2 + eps) sigmoid(gate o); Zhang et al. 2021, arXiv
                      * 2104.07012 */
} attn_relu_kind;

/* {0} is relu(x) unnormalised. */
typedef struct attn_relu_params {
  attn_relu_kind kind;
  int power;               /* 1 or 2; 0 = 1. VAR and RELA want 1, GAU is 2 whatever this says */
  float alpha;             /* LEN: >= 0; 0 = 1, ATTN_ZERO = 0 */
  float gamma;             /* VAR: > 0; 0 = 1 */
  float eps;               /* NORM: >= 0. RELA: >= 0; 0 = 1e-8, ATTN_ZERO = 0 */
  int by_keys;             /* 1: n_i is Tk */
  const float *gain;       /* RELA: [H dv] */
  const float *gate;       /* RELA: [H dv] */
  attn_tensor sum;         /* out, optional: [B,H,Tq,1] f32, sum_j w_ij */
  attn_sdpa_params scores; /* scale, allowed set and terms as in attn_sdpa; without sinks,
                            * softmax_one, span, relative.values, lse and map */
} attn_relu_params;

/* Attention with rectified weights in place of a softmax: O_i = sum_j w_ij v_j, w as
 * attn_relu_kind says, 0 on forbidden pairs.
 *
 * Shapes, aliasing, memory, NaN, determinism and cost as attn_sdpa, without exponentials. For RELA o
 *   must be f32, o.dim columns of H heads are one vector of the norm. A row of zeros stays zero.
 * n_i does not count pairs whose score is -inf, be it by a bias, a modifier or by itself, and stops
 *   at 2^24. Weights are not bounded: a
 *   result beyond f32 becomes infinite. Empty rows: O = 0, sum = 0.
 * Errors: those of attn_sdpa, RANGE (kind, power, fields that must be absent), VALUE (alpha, gamma,
 *   eps, gain or gate not finite), DTYPE (RELA's o). */
ATTN_DEF attn_status attn_relu(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                               const attn_relu_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_relu_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                    const attn_relu_params *params, const attn_ctx *ctx);

/* Key lists of attn_edges: row i of a set sees col[row_ptr[i]] .. col[row_ptr[i+1] - 1], in any
 * order, each key at most once. */
typedef struct attn_edges_params {
  const int64_t *row_ptr;  /* [Tq + 1], from 0, not decreasing */
  const int32_t *col;      /* [edges], 0 .. Tk-1 */
  int64_t edges;           /* entries of a set: what its row_ptr ends with */
  int per_head, per_batch; /* 1: a set for each head, each batch entry: row_ptr [B or 1, H or 1,
                            * Tq + 1] and col likewise, all sets with `edges` entries */
  const float *bias;       /* added to the scaled score, laid out as col; -inf forbids; or null */
  float scale;             /* as in attn_sdpa */
  int causal, has_q_off;
  int64_t q_off;
  const int32_t *kv_len; /* [B] */
  attn_tensor lse;       /* out, optional: [B,H,Tq,1] f32 */
  float *weights;        /* out, optional: [B,H,edges], the weight of each edge */
} attn_edges_params;

/* Attention over an explicit set of keys for each query.
 *
 *   x_e = s q_i . k_col[e] + bias_e,  P = softmax over row i's edges,  O_i = sum_e P_e v_col[e]
 *
 * Shapes of o, q, k, v, aliasing, empty rows, NaN as attn_sdpa. No dense array is formed, nothing
 *   is built beforehand; for sets used many times or with dense parts attn_pattern_csr is faster.
 * Memory: attn_edges_workspace bytes, O(tile * (dk + dv)) per worker.
 * Errors: those of attn_sdpa and INDEX: row_ptr not from 0, decreasing or not ending with edges, a
 *   column out of range and, with ctx->validate, a key twice in one set.
 * Determinism: the same bits on avx2, avx512 and neon, any number of workers. Cost: 2 (dk + dv)
 *   flops an edge, and reading its two rows. Source: Child et al. 2019, arXiv 1904.10509. */
ATTN_DEF attn_status attn_edges(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                const attn_edges_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_edges_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const attn_edges_params *params, const attn_ctx *ctx);
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

/* T5's bucket of a signed distance (key minus query), 0 .. buckets - 1.
 *
 *   n = buckets, or buckets / 2 (rounded down) when bidirectional;  m = n / 2, rounded down
 *   a = max(-distance, 0), or |distance| when bidirectional
 *   bucket = a for a < m, else min(n - 1, m + floor((n - m) log(a / m) / log(max_distance / m)));
 *   bidirectional: plus n when distance > 0
 *
 * buckets 0 = 32, max_distance 0 = 128. The floor is exact: bucket m + k begins at the smallest a
 *   with a^(n-m) >= m^(n-m-k) max_distance^k, in whole numbers. With the defaults the logarithmic
 *   buckets begin at 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113, bidirectional
 *   at 8, 12, 16, 23, 32, 46, 64, 91; all distances from max_distance on share the last one.
 * Returns -1 for invalid arguments: m < 1 (fewer than 2 buckets, 4 bidirectional), max_distance <=
 *   m, more than 1024 buckets, max_distance >= 2^31. Any distance is valid. Cost: some hundred
 *   flops. Source: Raffel et al. 2019, arXiv 1910.10683. */
ATTN_DEF int64_t attn_t5_bucket(int64_t distance, int bidirectional, int64_t buckets,
                                int64_t max_distance);

/* Which columns hold which sines and cosines of a sinusoidal encoding of width d. */
typedef enum attn_sinusoid_layout {
  ATTN_SINUSOID_INTERLEAVED = 0, /* (sin, cos) pairs, the paper; odd d ends in a sine */
  ATTN_SINUSOID_HALVES,          /* ceil(d/2) sines, then the cosines: Transformer-XL's code */
  ATTN_SINUSOID_T2T /* floor(d/2) sines, as many cosines, odd d: a 0; frequencies end at 1/base */
} attn_sinusoid_layout;

typedef struct attn_sinusoid_params {
  int64_t start;           /* position of row 0, if positions is null; may be negative */
  const double *positions; /* [T], or [B,T] when positions_per_batch; fractions are legal */
  int positions_per_batch;
  double base; /* 0 = 10000 */
  attn_sinusoid_layout layout;
  float x_scale; /* 0 = 1; ATTN_ZERO = 0: x is not read. The paper has sqrt(d) here */
} attn_sinusoid_params;

/* Sinusoidal position encoding, added to token vectors or by itself.
 *
 *   w_m = base^(-2m/d); t2t: base^(-m / max(floor(d/2) - 1, 1))
 *   PE(p, column of m) = sin(p w_m) and cos(p w_m), columns by layout
 *   y[b,h,i,:] = x_scale x[b,h,i,:] + PE(position of i, :)
 *
 * Shapes: y, x [B,H,T,d], any storage types; H is 1 for token vectors. x.data null: y is the
 *   table. Aliasing: y may be x with the same strides and type (in place), else they share no
 *   memory.
 * Angles are formed and reduced in double, so that positions up to 10^6 and beyond keep an error
 *   below 1e-6; every 16th position has its sines made anew, rows between turn that row in f32. A
 *   fractional position has its own.
 * Memory: attn_sinusoid_workspace bytes, O(d) per worker. Empty: B, H or T of 0 is a no-op.
 * NaN: stays in its element. Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE (layout, start beyond 2^61),
 *   VALUE (base, x_scale, a position that is not finite), OVERLAP, OVERFLOW, WORKSPACE, MEMORY,
 *   ISA, ENV, CTX, ALIGN; outputs untouched.
 * Determinism: the same bits for every tier but scalar and any worker count; a row's encoding
 *   depends on its position alone. Cost: 4 flops an element of a position, shared by all heads and
 *   batch entries (unless positions_per_batch), and 2 an element of y: bound by memory.
 * Source: Vaswani et al. 2017, arXiv 1706.03762. */
ATTN_DEF attn_status attn_sinusoid(attn_tensor y, attn_tensor x, const attn_sinusoid_params *params,
                                   attn_ctx *ctx);
ATTN_DEF size_t attn_sinusoid_workspace(attn_tensor y, attn_tensor x,
                                        const attn_sinusoid_params *params, const attn_ctx *ctx);

typedef struct attn_universal_params {
  int64_t step; /* t; the paper counts from 1. 0 is not neutral: it adds 1 to the cosines */
  attn_sinusoid_params position;
} attn_universal_params;

/* The position-and-time signal of the Universal Transformer, added at every recurrence step:
 *
 *   y[b,h,i,:] = x_scale x[b,h,i,:] + PE(position of i, :) + PE(step, :)
 *
 * PE, shapes, aliasing, memory, NaN, errors (and RANGE: a step beyond 2^61), determinism and cost
 * as attn_sinusoid, with one more addition. The sum of the two encodings is rounded once before it
 * meets x, so position and step may change places. Source: Dehghani et al. 2018, arXiv 1807.03819.
 */
ATTN_DEF attn_status attn_universal_signal(attn_tensor y, attn_tensor x,
                                           const attn_universal_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_universal_signal_workspace(attn_tensor y, attn_tensor x,
                                                const attn_universal_params *params,
                                                const attn_ctx *ctx);

typedef struct attn_learned_params {
  int64_t start;      /* row of the table for row 0, if ids is null */
  const int32_t *ids; /* [T], or [B,T] when ids_per_batch: rows of the table, repeats are legal */
  int ids_per_batch;
} attn_learned_params;

/* Learned absolute positions: y[b,h,i,:] = x[b,h,i,:] + table[id of i, :], id = start + i or ids.
 *
 * Shapes: y, x [B,H,T,d] (H is 1 for token vectors), table [1,1,n,d]; storage types are
 *   independent. x.data null: y is the gathered rows. Aliasing: y may be x with the same strides
 *   and type (in place), else y shares no memory with another argument.
 * Memory: none. Empty: B, H or T of 0 is a no-op. NaN: stays in its element.
 * Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE (any id outside 0..n-1: nothing is clamped, all are
 *   checked before the first write), OVERLAP, OVERFLOW, ISA, ENV, CTX, ALIGN; outputs untouched.
 * Determinism: the same bits for every tier and any worker count. Cost: an addition an element.
 * Source: Gehring et al. 2017, arXiv 1705.03122; tables per layer: Al-Rfou et al. 2018, arXiv
 *   1808.04444. */
ATTN_DEF attn_status attn_learned_position(attn_tensor y, attn_tensor x, attn_tensor table,
                                           const attn_learned_params *params, attn_ctx *ctx);
/* Bytes attn_learned_position wants: 0. */
ATTN_DEF size_t attn_learned_position_workspace(attn_tensor y, attn_tensor x, attn_tensor table,
                                                const attn_learned_params *params,
                                                const attn_ctx *ctx);
/* <<< attn/api/position.h */
/* >>> attn/api/prior.h */
/* api/prior.h owns family H: attention with a prior over positions. */

/* What decides the width of the window of attn_gaussian_window. */
typedef enum attn_gaussian_mode {
  ATTN_GAUSSIAN_QUERY = 0, /* each query */
  ATTN_GAUSSIAN_LAYER,     /* the mean key: one window per batch entry and head */
  ATTN_GAUSSIAN_FIXED      /* a constant */
} attn_gaussian_mode;

typedef struct attn_gaussian_params {
  const float *w_p, *u_p; /* [H, dk, hidden], [H, hidden]: the center, always needed */
  const float *u_d;       /* [H, hidden]: the window, QUERY and LAYER */
  const float *w_d;       /* [H, dk, hidden]: LAYER */
  int64_t hidden;         /* a; 0 = dk */
  attn_gaussian_mode mode;
  float width;           /* D of FIXED; 0 = 10 */
  float sigma_min;       /* 0 = 1e-6 */
  int64_t index_base;    /* the number of the first key, 0 or 1 */
  const int32_t *kv_len; /* [B], 0..Tk */
} attn_gaussian_params;

/* The predicted window of a Gaussian bias, for attn_sdpa_params.gaussian:
 *
 *   P_i = I sig(u_p . tanh(q_i w_p)),  I = kv_len[b] or Tk,  sig(x) = 1 / (1 + exp(-x))
 *   D_i = I sig(u_d . tanh(q_i w_p)), or I sig(u_d . tanh(kbar w_d)), or width
 *   sigma_i = max(D_i / 2, sigma_min)
 *   center = P_i - index_base,  precision = 1 / (2 sigma_i^2)
 *
 * kbar is the mean of keys 0..I-1; query head h reads key head h*Hk/H. q is taken as it is, not
 * scaled; the bias it leads to is not multiplied by the scale either.
 * Shapes: q [B,H,Tq,dk], k [B,Hk,Tk,dk] any storage types; center, precision [B,H,Tq] dense. k is
 *   read in LAYER mode only, up to kv_len. Aliasing: outputs share no memory with anything.
 * Memory: attn_gaussian_window_workspace bytes, O(64 (dk + hidden)) per worker.
 * Empty: B or Tq of 0 is a no-op. No keys: center = -index_base, sigma = sigma_min (and kbar = 0).
 * NaN: in a query row makes its center (and in QUERY mode its precision) NaN; in a key, the
 *   precision of the heads that read it. precision is at most FLT_MAX.
 * Errors: NULL (a parameter the mode needs), DTYPE, SHAPE, HEADS, RANGE (mode, hidden, index_base,
 *   kv_len), VALUE (width, sigma_min negative or not finite), OVERLAP, OVERFLOW, WORKSPACE,
 *   MEMORY, ISA, ENV, CTX, ALIGN; outputs untouched.
 * Determinism: the same bits for every tier but scalar, any worker count and division of the
 *   queries. Cost: 2 dk a + 4 a flops a query. Source: Yang et al. 2018, arXiv 1810.10182. */
ATTN_DEF attn_status attn_gaussian_window(float *center, float *precision, attn_tensor q,
                                          attn_tensor k, const attn_gaussian_params *params,
                                          attn_ctx *ctx);
ATTN_DEF size_t attn_gaussian_window_workspace(float *center, float *precision, attn_tensor q,
                                               attn_tensor k, const attn_gaussian_params *params,
                                               const attn_ctx *ctx);

typedef struct attn_hard_gaussian_params {
  const float *offset; /* [H]; null = 0. The paper uses -1, 0, +1 */
  const float *sigma;  /* [H] > 0; null = 1 */
  float ratio;         /* r; 0 = 1, ATTN_ZERO = 0 */
  float threshold;     /* smaller weights become 0; density form */
  int renorm;          /* 1: weights of a row sum to 1 */
  int causal;          /* key j only for queries with j <= p_i */
  int has_q_off;       /* 1: q_off below holds; 0: q_off = Tk - Tq. Cross attention: 1 and 0 */
  int64_t q_off;       /* p_i = i + q_off; |q_off| < 2^40; else 0 */
  const int32_t *kv_len, *q_len; /* [B] */
  attn_mask mask;                /* ATTN_MASK_BOOL or ATTN_MASK_BITS */
} attn_hard_gaussian_params;

/* Hard-coded Gaussian attention: no queries, no keys, one Gaussian per head.
 *
 *   c = r p_i + offset_h,  g_ij = -(j - c)^2 / (2 sigma_h^2)
 *   density: w_ij = exp(g_ij) / (sigma_h sqrt(2 pi)), 0 below threshold;  not renormalised
 *   renorm:  w_ij = softmax of g_ij over the allowed keys
 *   o_i = sum over allowed j of w_ij v_j
 *
 * Shapes: v [B,Hv,Tk,dv], o [B,H,Tq,dv], any storage types; Hv divides H, head h reads value head
 *   h*Hv/H. Keys farther than 8 sigma from c count as weight 0; with renorm the 8 sigma count from
 *   the nearest allowed key, so that a row with an allowed key never divides 0 by 0.
 * Aliasing: o shares no memory with anything. Memory: attn_hard_gaussian_workspace bytes, O(64 dv +
 *   128 dv) per worker.
 * Empty: rows without an allowed key, or from q_len on, are 0. B or Tq of 0 is a no-op.
 * NaN: a key that is forbidden, or of weight 0, never reaches an output; any other NaN or infinity
 *   shows in exactly the rows that read it.
 * Errors: NULL, DTYPE, SHAPE, HEADS, STRIDE, RANGE (q_off, lengths), VALUE (sigma not positive;
 *   sigma, offset, ratio or threshold not finite; threshold < 0), MASK, OVERLAP, OVERFLOW,
 *   WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; outputs untouched.
 * Determinism: the same bits for every tier but scalar, any worker count, batch composition and
 *   division of the queries (at the same positions). Cost: 2 dv flops a pair over the keys within 8
 *   sigma of some query of 16 neighbours. With r = 1 a weight is computed once for 16 queries.
 * Source: You et al. 2020, arXiv 2005.00742. */
ATTN_DEF attn_status attn_hard_gaussian(attn_tensor o, attn_tensor v,
                                        const attn_hard_gaussian_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_hard_gaussian_workspace(attn_tensor o, attn_tensor v,
                                             const attn_hard_gaussian_params *params,
                                             const attn_ctx *ctx);
/* <<< attn/api/prior.h */
/* >>> attn/api/heads.h */
/* api/heads.h owns family I: what differs between heads. Windows per head are patterns
 * (attn_pattern_multiscale), the adaptive span is a term of the score (attn_span). */

/* The dynamic span of each query: z[b,h,i] = S sig(v_h . x_bi + b_h), sig(x) = 1 / (1 + exp(-x)).
 *
 * Shapes: x [B,1,T,dm] token vectors, any storage type; v [H,dm], b [H] (null = 0); z [B,H,T]
 *   dense, for attn_span.z with per_query = 1. S = most >= 1; 0 <= z <= most.
 * Aliasing: z shares no memory with anything. Memory: attn_span_predict_workspace bytes, O(64 dm)
 *   per worker. Empty: B, T or H of 0 is a no-op. NaN in a token makes its spans NaN (attn_sdpa
 *   rejects those).
 * Errors: NULL, DTYPE, SHAPE (x.heads not 1, heads < 0), RANGE (most < 1), OVERLAP, OVERFLOW,
 *   WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; z untouched.
 * Determinism: the same bits for every tier but scalar, any worker count and division of the
 *   tokens. Cost: 2 dm flops a span. Source: Sukhbaatar et al. 2019, arXiv 1905.07799. */
ATTN_DEF attn_status attn_span_predict(float *z, attn_tensor x, const float *v, const float *b,
                                       int64_t heads, int64_t most, attn_ctx *ctx);
ATTN_DEF size_t attn_span_predict_workspace(float *z, attn_tensor x, const float *v, const float *b,
                                            int64_t heads, int64_t most, const attn_ctx *ctx);

/* lambda times the mean of the n spans z ([H], or [B,H,T] of dynamic ones), summed in double. 0 for
 * n < 1 or z null. A NaN in z makes the result NaN. */
ATTN_DEF double attn_span_penalty(const float *z, int64_t n, double lambda);

/* The largest distance t >= 0 whose weight m(t) = clip((ramp + z - t - shift) / ramp, 0, 1) is
 * positive: ceil(z + ramp) - 1 - shift, exactly, and at most `most`. Keys further back may leave a
 * cache. ramp 0 = 32, most 0 = none; shift as in attn_span. -1 when no distance has weight, or z or
 * ramp is negative, infinite or NaN, or most negative. */
ATTN_DEF int64_t attn_span_reach(float z, float ramp, int64_t shift, int64_t most);
/* <<< attn/api/heads.h */
/* >>> attn/api/compound.h */
/* api/compound.h owns mechanisms that need more than one softmax, or one over several sources of
 * keys. They are compositions of attn_sdpa and attn_merge, and share these rules:
 *
 * Memory: attn_<name>_workspace bytes; what passes between two steps is f32, O(B H T dv). A call
 *   that needs a schedule builds one each time with ATTN_MALLOC, even when it has a workspace, and
 *   so does its workspace query, unless params hold one: then nothing is allocated.
 * Aliasing, empty rows, NaN, errors, determinism: as attn_sdpa. Storage types of all tensors are
 *   independent, except that lse is f32. Heads of keys and values divide those of queries; dk, dv
 *   >= 1; extents of 0 are legal unless a call says otherwise. lse is optional everywhere: of the
 *   whole softmax of a row. scale: 0 = 1/sqrt(dk), ATTN_ZERO = 0. */

/* No neighbours on the ring: attn_star_params.width, where 0 means 1. */
#define ATTN_STAR_SELF (-1)

typedef struct attn_star_params {
  int64_t width;            /* satellites seen to each side; 0 = 1, ATTN_STAR_SELF = itself only */
  int no_ring;              /* 1: the ends are not neighbours */
  attn_tensor k_own, v_own; /* optional [B,Hk,T,dk], [B,Hv,T,dv]: a private key per satellite */
  float scale;
  attn_tensor lse; /* out, optional: [B,H,T,1], of the relay [B,H,1,1] */
} attn_star_params;

/* Star-Transformer, first half of a step: T satellites on a ring see their neighbours, themselves,
 * the relay and their private key, in one softmax:
 *
 *   keys of satellite i: { k_j : j = i + d mod T, |d| <= width }, k_relay, k_own[i]
 *
 * A neighbour reached from both sides counts once; a private key is a key of its own.
 * Shapes: o, q [B,H,T,.], k, v [B,Hk,T,.], k_relay, v_relay [B,Hk,1,.]; T >= 1. width, no_ring,
 *   k_own and v_own are of this half.
 * Cost: T (2 width + 3) pairs a head. Source: Guo et al. 2019, arXiv 1902.09113 (rings; zero keys
 *   at the ends, as in one implementation, are not imitated). */
ATTN_DEF attn_status attn_star_satellites(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, attn_tensor k_relay, attn_tensor v_relay,
                                          const attn_star_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_star_satellites_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                               attn_tensor v, attn_tensor k_relay,
                                               attn_tensor v_relay, const attn_star_params *params,
                                               const attn_ctx *ctx);

/* Second half: the relay sees itself and the keys of the UPDATED satellites. o, q_relay [B,H,1,.],
 * k_relay, v_relay [B,Hk,1,.], k, v [B,Hk,T,.], T >= 0. Cost: T + 1 pairs a head. */
ATTN_DEF attn_status attn_star_relay(attn_tensor o, attn_tensor q_relay, attn_tensor k_relay,
                                     attn_tensor v_relay, attn_tensor k, attn_tensor v,
                                     const attn_star_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_star_relay_workspace(attn_tensor o, attn_tensor q_relay, attn_tensor k_relay,
                                          attn_tensor v_relay, attn_tensor k, attn_tensor v,
                                          const attn_star_params *params, const attn_ctx *ctx);

typedef struct attn_longformer_params {
  const int32_t *window;   /* [H] steps to each side, >= 0; required */
  const int32_t *dilation; /* [H] distance of a step, >= 1; null = 1 */
  const int32_t *global;   /* global tokens, each list strictly ascending */
  int64_t globals;         /* entries of `global` */
  const int64_t
      *global_ptr;      /* [B + 1] list of entry b: global[ptr[b]..ptr[b+1]); null = one for all */
  attn_tensor q_global; /* [B,H,n,dk] rows in the order of the list, n the longest list; */
  attn_tensor k_global, v_global; /* [B,Hk,T,.]; all three, or none: then q, k, v serve */
  int causal;
  attn_mask valid; /* optional [B or 1,1,1,T], ATTN_MASK_BOOL or _BITS: tokens that are there */
  float scale;
  attn_tensor lse; /* out, optional: [B,H,T,1] */
  const attn_schedule
      *schedules; /* optional: [1], or [B] with global_ptr; attn_longformer_schedule */
} attn_longformer_params;

/* Longformer: a dilated window for all tokens, and global tokens that see all and are seen by all.
 *
 *   row i not global: keys { i + t dilation : |t| <= window } and the global ones, by q, k, v
 *   row i global:     all keys, by q_global, k_global, v_global
 *
 * A pair counts once; causal removes j > i everywhere. A token that is not valid is no key, and its
 * row is empty. Released models give the two-sided window: half of it goes here.
 * Shapes: o, q [B,H,T,.], k, v [B,Hk,T,.]. Memory: schedules are built with ATTN_MALLOC, one per
 *   different list, unless given. Errors also: NULL (window; one or two of the global tensors),
 *   RANGE (window, dilation), INDEX (lists), SCHEDULE.
 * Cost: (T - n)(2 window + 1 + n) + n T pairs a head; rows of global tokens are computed once.
 * Source: Beltagy et al. 2020, arXiv 2004.05150. */
ATTN_DEF attn_status attn_longformer(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const attn_longformer_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_longformer_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, const attn_longformer_params *params,
                                          const attn_ctx *ctx);
/* The schedule attn_longformer wants for batch entry b, for params->schedules. Free it with
 * attn_schedule_free. Reads window, dilation, the lists, causal, and whether q_global is there. */
ATTN_DEF attn_status attn_longformer_schedule(attn_schedule *schedule,
                                              const attn_longformer_params *params, int64_t heads,
                                              int64_t tokens, int64_t b, attn_ctx *ctx);

/* The four pieces of ETC, in the order long-long, long-global, global-global, global-long; the
 * first word is the query's side. */
typedef enum attn_etc_piece {
  ATTN_ETC_L2L = 0,
  ATTN_ETC_L2G,
  ATTN_ETC_G2G,
  ATTN_ETC_G2L,
  ATTN_ETC_PIECES
} attn_etc_piece;

typedef struct attn_etc_params {
  int64_t radius; /* long tokens see this many to each side, >= 1 */
  /* Masks [B or 1, H or 1, queries or 1, keys or 1], ATTN_MASK_BOOL or _BITS. That of L2L is
   * [.., n_l, 2 radius + 1]: its column t is key i + t - radius. */
  attn_mask mask[ATTN_ETC_PIECES];
  /* Relative labels, int32 in the shapes of the masks (queries x keys, dense); null = none. The
   * two pieces of a side, L2L and L2G or G2G and G2L, have them together. */
  const int32_t *label[ATTN_ETC_PIECES];
  int labels_per_batch; /* 1: [B] of them, one after another */
  /* Or labels by clipped distance without arrays: attn_etc_structure says which. */
  int by_distance;
  int64_t clip;
  const int32_t *sentence; /* optional, [n_l], or [B, n_l] when labels_per_batch; negative = none */
  attn_tensor table_long, table_global; /* [1, 1 or H, labels, dk] f32: of L2L, L2G and G2G, G2L */
  const float *bias_long, *bias_global; /* optional [labels, H] */
  float scale;
  attn_tensor lse_long, lse_global; /* out, optional: [B,H,n_l,1], [B,H,n_g,1] */
} attn_etc_params;

/* Extended Transformer Construction: a long input with a local window and a short global one.
 *
 *   long row i:   keys { g : mask L2G } and { j : |i - j| <= radius, mask L2L }, one softmax
 *   global row g: keys { g' : mask G2G } and { j : mask G2L }, one softmax
 *   x = s (q . (k + table[label]) + bias[label, h])
 *
 * Shapes: o_long, q_long [B,H,n_l,.], o_global, q_global [B,H,n_g,.]; k[piece], v[piece] of the
 *   four pieces, of n_l, n_g, n_g, n_l rows (they may coincide).
 * Errors also: RANGE (radius < 1, clip < 0, a label outside its table, a sentence of n_g or more),
 *   NULL (labels of one piece of a side only, labels without a table, k or v null).
 * Cost: n_l (2 radius + 1 + n_g) + n_g (n_g + n_l) pairs a head, and a short row of label scores
 *   per query. Source: Ainslie et al. 2020, arXiv 2004.08483; forbidden pairs are absent here,
 *   where its program subtracts 10000. */
ATTN_DEF attn_status attn_etc(attn_tensor o_long, attn_tensor o_global, attn_tensor q_long,
                              attn_tensor q_global, const attn_tensor k[ATTN_ETC_PIECES],
                              const attn_tensor v[ATTN_ETC_PIECES], const attn_etc_params *params,
                              attn_ctx *ctx);
ATTN_DEF size_t attn_etc_workspace(attn_tensor o_long, attn_tensor o_global, attn_tensor q_long,
                                   attn_tensor q_global, const attn_tensor k[ATTN_ETC_PIECES],
                                   const attn_tensor v[ATTN_ETC_PIECES],
                                   const attn_etc_params *params, const attn_ctx *ctx);

/* A structured input of ETC: long tokens in sentences, each of which has a global token. */
typedef struct attn_etc_structure {
  int64_t longs, globals;
  int64_t radius, clip;          /* >= 1; >= 0 */
  const int32_t *sentence;       /* optional [longs]: the global token of each long one */
  const int32_t *example_long;   /* optional [longs], [globals]: tokens of different examples do */
  const int32_t *example_global; /* not see each other; a negative one is padding */
  int hard_g2l, hard_l2g; /* global tokens see their sentence only; and the other way round */
} attn_etc_structure;

/* The masks and labels of a structure, arrays in the shapes of attn_etc_params (1 = allowed; any
 * may be null = not wanted):
 *   l2l: same example and |i-j| <= radius;   g2g: same example
 *   l2g and g2l: same example, and own sentence if hard
 *   labels of l2l, g2g: min(d, clip) for d >= 0, clip + min(-d, clip) for d < 0, d = key - query;
 *   of l2g, g2l: 2 clip + 2 for the own sentence, 2 clip + 1 otherwise; 2 clip + 3 labels in all.
 * Entries of l2l outside the input are 0. Errors: NULL (structure; hard without sentence; one of
 * the example arrays), SHAPE, RANGE (radius, clip, a sentence of a token that is no padding), CTX,
 * ISA, ENV. */
ATTN_DEF attn_status attn_etc_masks(uint8_t *l2l, uint8_t *l2g, uint8_t *g2g, uint8_t *g2l,
                                    const attn_etc_structure *structure, attn_ctx *ctx);
ATTN_DEF attn_status attn_etc_labels(int32_t *l2l, int32_t *l2g, int32_t *g2g, int32_t *g2l,
                                     const attn_etc_structure *structure, attn_ctx *ctx);

/* All levels share the label of their affiliated edge: attn_tree_params.clip, where 0 means one
 * per level. */
#define ATTN_TREE_ONE_LEVEL (-1)

typedef struct attn_tree_params {
  int64_t tokens; /* T >= 1 */
  int64_t k;      /* nodes per level and side, >= 1 */
  int causal;
  int overlap;       /* 0: the nodes of a token are disjoint; 1: the recursion of the paper */
  int include_self;  /* 1: span nodes see themselves too */
  int64_t clip;      /* levels from this one on share labels; 0 = none do; ATTN_TREE_ONE_LEVEL */
  attn_tensor table; /* optional [1, 1 or H, (2k+1)(clip+1) or more, dk] f32, added to keys */
  float scale;
  attn_tensor lse;               /* out, optional: [B,H,N,1] */
  const attn_schedule *schedule; /* optional, of attn_pattern_tree with the same fields */
} attn_tree_params;

/* Nodes of the binary tree over T tokens: levels of T, ceil(T/2), .. 1 nodes; node m of a level
 * stands behind all nodes of the levels below. 0 for T < 1, or when they pass INT32_MAX. */
ATTN_DEF int64_t attn_tree_nodes(int64_t tokens);

/* The label of the edge from node i to key node j, or -1 when i does not see j:
 *   itself 0; left node t of level l: (2k+1) min(l, clip) + 2t + 1, right: + 2t + 2; a span node of
 *   level l to its tokens (and itself): (2k+1) min(l, clip)
 * where l counts the steps outwards: a finer node that aligns level l has the label of level l.
 * -1 for params that attn_tree would reject. Cost: O(log T). */
ATTN_DEF int64_t attn_tree_label(const attn_tree_params *params, int64_t i, int64_t j);

/* BP-Transformer: a token sees near tokens and, further away, coarser and coarser spans of a binary
 * tree; a span node sees its tokens.
 *
 *   x_ij = s q_i . (k_j + table[label(i, j)])
 *
 * Shapes: o, q [B,H,N,.], k, v [B,Hk,N,.], rows in the order of the nodes, N =
 *   attn_tree_nodes(tokens). Errors also: RANGE (tokens, k, clip), SHAPE (N, table), SCHEDULE.
 * Cost: at most 1 + 2k(L+1) pairs a token, T L for all spans, L = ceil(log2 T); with a table
 *   O(log T) more per pair. Source: Ye et al. 2019, arXiv 1911.04070. */
ATTN_DEF attn_status attn_tree(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                               const attn_tree_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_tree_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                    const attn_tree_params *params, const attn_ctx *ctx);

/* How rows of a group become one. */
typedef enum attn_aggregate_kind {
  ATTN_AGGREGATE_MEAN = 0,
  ATTN_AGGREGATE_MAX,
  ATTN_AGGREGATE_SUM,
  ATTN_AGGREGATE_FIRST,
  ATTN_AGGREGATE_LAST,
  ATTN_AGGREGATE_ATTENTION, /* softmax weights of u . tanh(y w + b); Yang et al. 2016 */
  ATTN_AGGREGATE_COUNT
} attn_aggregate_kind;

typedef struct attn_aggregate {
  attn_aggregate_kind kind;
  attn_tensor w;  /* of ATTENTION: [1, 1 or H, dv, dh] */
  const float *b; /* [dh]; null = 0 */
  const float *u; /* [dh] */
} attn_aggregate;

typedef enum attn_integrate {
  ATTN_INTEGRATE_NONE = 0,
  ATTN_INTEGRATE_TOKEN,   /* each row sees the summaries */
  ATTN_INTEGRATE_SUMMARY, /* each segment's summary sees the summaries, for all its rows */
  ATTN_INTEGRATE_POOL,    /* mean of the summaries */
  ATTN_INTEGRATE_COUNT
} attn_integrate;

typedef struct attn_segmented_params {
  const int32_t *offsets; /* [segments + 1], 0 .. T, not descending; empty segments are legal */
  int64_t segments;
  int64_t length; /* or, with offsets null, segments of this length */
  int causal;     /* rows see the past of their segment, and summaries of earlier segments */
  attn_integrate integrate;
  attn_aggregate aggregate;
  attn_tensor w_q, w_k; /* optional [1, 1 or H, dv, d']; identity by default */
  attn_tensor w_v;      /* optional [1, 1 or H, dv, d''] */
  int concat;           /* 0: o = y + gain u; 1: o = [y ; u] */
  float gain;           /* 0 = 1, ATTN_ZERO = 0 */
  float scale;
  attn_tensor lse;               /* out, optional: [B,H,T,1], of the segments */
  const attn_schedule *schedule; /* optional, of attn_pattern_segments, or _blocks(length, 0, 0) */
} attn_segmented_params;

/* Attention inside segments, then optionally an exchange between them.
 *
 *   y_i = attention of row i over its own segment;   z_a = aggregate of the y of segment a
 *   TOKEN:   u_i = attention of y_i w_q over keys z_b w_k, values z_b w_v, scale 1/sqrt(d')
 *   SUMMARY: the same with query z_a w_q, for every row of segment a (not with causal)
 *   POOL:    u_i = mean of z_b w_v
 *
 * over the segments b that are not empty and, if causal, lie before row i's; none: u = 0.
 * Shapes: q [B,H,T,dk], k, v [B,Hk,T,.], o [B,H,T,dv], with concat [B,H,T,dv + d'']. Adding needs
 *   d'' = dv. Errors also: RANGE (length; SUMMARY with causal), INDEX (offsets), SCHEDULE.
 * Cost: squares of the segments, and T S or S^2 pairs of the exchange.
 * Source: a common form of segmented models; the exchange is defined here. */
ATTN_DEF attn_status attn_segmented(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                    const attn_segmented_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_segmented_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                         const attn_segmented_params *params, const attn_ctx *ctx);

/* The most levels of attn_hierarchy. */
#define ATTN_HIERARCHY_LEVELS 16

typedef struct attn_hierarchy_params {
  int64_t levels;                /* 1..ATTN_HIERARCHY_LEVELS; 0 = 1 */
  const int64_t *units;          /* [levels] units of each level, units[0] = T; null if 1 level */
  const int32_t *const *offsets; /* [levels - 1]: offsets[l] [units[l+1] + 1], strictly ascending,
                                  * groups the units of level l */
  const attn_tensor *w_q,
      *w_k;               /* optional [levels] of [1, 1 or H, d_l, d'_l]; data null = identity */
  const attn_tensor *w_v; /* optional [levels] of [1, 1 or H, d_l, d_{l+1}] */
  const attn_aggregate *aggregates; /* optional [levels - 1]; null = means */
  int causal;
  const float *gains; /* optional [levels], finite; null = 1 */
  float scale;        /* of every level; 0 = 1/sqrt(d'_l) */
  attn_tensor *y; /* out, optional: [levels] of [B,H,units[l],d_{l+1}]; data null = not wanted */
  const attn_schedule *schedules; /* optional [levels - 1], of attn_pattern_segments(offsets[l]) */
} attn_hierarchy_params;

/* Hierarchical attention: tokens inside their sentences, sentences inside their paragraphs, ..
 *
 *   h_0 = x;   y_l = attention of h_l w_q, h_l w_k, h_l w_v inside the groups of level l (top: all)
 *   h_{l+1}[g] = aggregate of y_l over group g
 *   o_i = sum_l gain_l y_l[unit of level l that holds i]
 *
 * causal: units see earlier units of their group and themselves; and o_i takes the unit BEFORE the
 * one that holds i for l >= 1, nothing if there is none, so that nothing before i depends on i.
 * Shapes: x [B,H,T,d_0], o [B,H,T,d] (data null: not wanted) where all y_l have width d. The
 *   groups are those of every batch entry. Errors also: RANGE (levels), INDEX (offsets), SCHEDULE,
 *   VALUE (gains). Cost: squares of the groups, and the projections.
 * Source: after Yang et al. 2016 (hierarchical attention networks) and Zhang et al. 2019, arXiv
 *   1905.06566; the form is defined here. */
ATTN_DEF attn_status attn_hierarchy(attn_tensor o, attn_tensor x,
                                    const attn_hierarchy_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_hierarchy_workspace(attn_tensor o, attn_tensor x,
                                         const attn_hierarchy_params *params, const attn_ctx *ctx);

typedef struct attn_xl_layer_params {
  int64_t heads;      /* H; 0 = 1 */
  attn_tensor mem;    /* optional [B,1,M,dm]: earlier hidden states */
  attn_tensor w_q;    /* [1,1,dm,H dk] */
  attn_tensor w_k;    /* [1,1,dm,H dk], of the content */
  attn_tensor w_r;    /* [1,1,dm,H dk], of the distances */
  attn_tensor w_v;    /* [1,1,dm,H dv] */
  attn_tensor w_o;    /* optional [1,1,H dv,dm] */
  const float *u, *v; /* [H, dk] content and distance bias; null = 0 */
  int bidirectional;  /* 1: not causal */
  double base;        /* of the sinusoids; 0 = 10000 */
  int interleaved;    /* 1: (sin, cos) pairs; 0: sines first, then cosines, as the source's code */
  float scale;
  attn_tensor lse; /* out, optional: [B,H,L,1] */
} attn_xl_layer_params;

/* One attention layer of Transformer-XL, with c = [mem ; x] along time:
 *
 *   q = x w_q,  k = c w_k,  v = c w_v,  r_t = PE(t) w_r   (attn_sinusoid)
 *   x_ij = s ((q_i + u_h) . k_j + (q_i + v_h) . r_{p_i - j}),  p_i = M + i,  causal
 *   o = [O_0 .. O_{H-1}] w_o, or the O_h themselves
 *
 * Shapes: x [B,1,L,dm]; o [B,1,L,dm] with w_o, else [B,H,L,dv]. Cost: the projections, and 2 (2 dk
 *   + dv) flops a pair. Source: Dai et al. 2019, arXiv 1901.02860. */
ATTN_DEF attn_status attn_xl_layer(attn_tensor o, attn_tensor x, const attn_xl_layer_params *params,
                                   attn_ctx *ctx);
ATTN_DEF size_t attn_xl_layer_workspace(attn_tensor o, attn_tensor x,
                                        const attn_xl_layer_params *params, const attn_ctx *ctx);
/* <<< attn/api/compound.h */
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

/* Rows picked by index come from anywhere: asked for some rows ahead, they are there in time. */
#if defined(__GNUC__)
#define ATTN_PREFETCH_(p) __builtin_prefetch(p)
#else
#define ATTN_PREFETCH_(p) ((void)(p))
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

/* Rows between asking for one and reading it. */
#define ATTN_AHEAD_ 12

/* What pack reads: an attn_dtype, plus BIAS for numbers that must stay finite. */
#define ATTN_KIND_BIAS_ 16

#define ATTN_LOG2E_ 1.4426950408889634074
#define ATTN_LN2_ 0.69314718055994530942

/* What is done to a score, in this order whatever the mechanism:
 *   E0  transforms of q, k, v rows     attn_rope, before the call
 *   E1  dot product                    score_block, dots
 *   E2  dot with a table               dot; by label and clipped distance in the driver
 *   E3  scale                          folded into the packed queries
 *   E4  multiplicative                 factor (with a rectifier), softcap
 *   E5  additive                       a table by distance; b slope; c center, precision; d bias;
 *                                      e key; f ramp, in softmax_block
 *   E6  maps                           the driver emits the scores; a user's modifier
 *   E7  allowed set                    lanes, lo and hi; -inf in bias and key
 *   E8  softmax                        softmax_block, relu_block
 *   E9  value sum                      value_block, axpys
 *   E10 outputs                        the driver
 * A null or zero field is an absent stage. Arrays over keys start at the same key as the scores.
 * Distances count from a key near the block, its base, so that they are exact in float. */
typedef struct attn_modifiers_ {
  const float *dot;       /* E2: [key][lane], added */
  const float *factor;    /* E4: x = max(x, 0) factor, found as table is */
  float softcap;          /* E4: cap, in score units */
  const float *table;     /* E5a: table - back[key] + index[lane], added */
  const int32_t *back;    /* [key], null: [key][lane] arrays in table's place */
  const int32_t *index;   /* [lane]; null: the lanes themselves */
  const float *at;        /* [key], its distance from the base */
  const float *slope;     /* E5b: [lane], -m_h in score units */
  const float *rel;       /* E5b: [lane], base minus the query's position */
  const float *center;    /* E5c: [lane], counted from the base */
  const float *precision; /* E5c: [lane], subtracts precision (at - center)^2 */
  const float *bias;      /* E5d: [key][lane], score units, -inf forbids */
  const float *key;       /* E5e: [key], score units, -inf forbids */
  const uint64_t *lanes;  /* E7: [key], a bit for each lane that sees it */
  const float *lo;        /* E7: [lane], keys lo <= at < hi are allowed */
  const float *hi;
} attn_modifiers_;

/* Which modifiers are present. */
enum {
  ATTN_USE_CAP_ = 1,
  ATTN_USE_SLOPE_ = 2,
  ATTN_USE_BIAS_ = 4,
  ATTN_USE_KEY_ = 8,
  ATTN_USE_LANES_ = 16,
  ATTN_USE_BOUND_ = 32,
  ATTN_USE_DOT_ = 64,
  ATTN_USE_FACTOR_ = 128,
  ATTN_USE_TABLE_ = 256,
  ATTN_USE_QUAD_ = 512
};

/* E5f: weights times clip((start[lane] + at[key]) rate + 1, 0, 1) */
typedef struct attn_ramp_ {
  const float *start, *at;
  float rate;
} attn_ramp_;

typedef struct attn_table_ {
  attn_isa isa;
  /* dst[c][lane] = row[lane][c] * (hi + lo), lanes n.. up to a whole group = 0 */
  void (*pack)(float *dst, const void *const *rows, int n, int64_t dim, int kind, float hi,
               float lo);
  /* row[lane][c] = src[c][lane] * scale[lane] (null = 1); a NaN is stored as the one default NaN */
  void (*unpack)(void *const *rows, const float *src, int n, int64_t dim, attn_dtype dtype,
                 const float *scale);
  /* dst[r][c] = src row r, or row index[r], any type to f32 */
  void (*widen)(float *dst, const void *src, int64_t stride, const int32_t *index, int64_t n,
                int64_t dim, attn_dtype dtype);
  /* s[j][lane] = sum_c k[j][c] qt[c][lane] in the order of c; top[lane] = max(top, s) */
  void (*score_block)(float *s, const float *qt, const float *k, int64_t stride, int64_t n,
                      int64_t dk, int g0, int g1, float *top);
  /* applies the modifiers to n keys of s and sets top[lane] = max(top, s) */
  void (*modify_block)(float *s, int64_t n, int g0, int g1, const attn_modifiers_ *mod, float *top);
  /* joins the scores to the running softmax: m' = max(m, top), alpha = 2^(m - m'),
   * s = 2^(s - m') times the ramp (null = 1), l = l alpha + sum_j s */
  void (*softmax_block)(float *s, int64_t n, int g0, int g1, float *m, float *l, float *alpha,
                        const float *top, const attn_ramp_ *ramp);
  /* in place of the softmax: s = max(s, 0), squared if square; l += sum_j s, count += the scores
   * above -inf */
  void (*relu_block)(float *s, int64_t n, int g0, int g1, int square, float *l, float *count);
  /* ot[c][lane] = ot[c][lane] alpha[lane] + sum_j v[j][c] p[j][lane] in the order of j. alpha
   * null = 1; start = ot is taken as 0 */
  void (*value_block)(float *ot, const float *p, const float *v, int64_t stride, int64_t n,
                      int64_t dv, int g0, int g1, const float *alpha, int start);
  /* out[e] = sum_c q[c] k[index[e]][c], over 16 running sums joined by halves; q and k rows are
   * as they are, any type for k; ahead = rows between asking for one and reading it, 0 = not asked for */
  void (*dots)(float *out, const float *q, const void *k, int64_t stride, const int32_t *index,
               int64_t n, int64_t dk, attn_dtype dtype, int ahead);
  /* o[c] = o[c] alpha + sum_e p[e] v[index[e]][c] in the order of e */
  void (*axpys)(float *o, const float *p, const void *v, int64_t stride, const int32_t *index,
                int64_t n, int64_t dv, attn_dtype dtype, float alpha, int ahead);
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
#define ATTN_V_ALL_(m) attn_all_scalar_(m)
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
#define ATTN_V_BITS_(bits) attn_bits_scalar_(bits)
#define ATTN_V_GATHER_(p, i) attn_gather_scalar_(p, i)
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
ATTN_INLINE_ int attn_all_scalar_(attn_m4_ m) { return m.on[0] && m.on[1] && m.on[2] && m.on[3]; }
ATTN_INLINE_ attn_m4_ attn_bits_scalar_(uint64_t bits) {
  attn_m4_ r;
  ATTN_FLAGS_(bits >> i & 1)
}
ATTN_INLINE_ attn_v4_ attn_gather_scalar_(const float *p, const int32_t *index) {
  attn_v4_ r;
  ATTN_LANES_(p[index[i]])
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
#define ATTN_V_ALL_(m) attn_all_neon_(m)
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
#define ATTN_V_BITS_(bits) attn_bits_neon_(bits)
#define ATTN_V_GATHER_(p, i) attn_gather_neon_(p, i)
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

ATTN_INLINE_ int attn_all_neon_(uint32x4_t m) {
  uint32x2_t x = vand_u32(vget_low_u32(m), vget_high_u32(m));
  return (vget_lane_u32(x, 0) & vget_lane_u32(x, 1)) == 0xffffffffu;
}

ATTN_INLINE_ uint32x4_t attn_bits_neon_(uint64_t bits) {
  const uint32_t lane[4] = {1, 2, 4, 8};
  return vtstq_u32(vdupq_n_u32((uint32_t)bits), vld1q_u32(lane));
}

ATTN_INLINE_ float32x4_t attn_gather_neon_(const float *p, const int32_t *i) {
  const float t[4] = {p[i[0]], p[i[1]], p[i[2]], p[i[3]]};
  return vld1q_f32(t);
}

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
#define ATTN_V_ALL_(m) (_mm256_movemask_ps(m) == 255)
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
#define ATTN_V_BITS_(bits) attn_bits_avx2_(bits)
#define ATTN_V_GATHER_(p, i) _mm256_i32gather_ps(p, _mm256_loadu_si256((const __m256i *)(i)), 4)
#define ATTN_V_SWAP_PAIRS_(a) _mm256_permute_ps(a, 0xB1)
#define ATTN_V_TRANSPOSE_(r) attn_transpose_avx2_(r)
#define ATTN_V_SLEEF_(f) Sleef_##f##f8_u10avx2

#if defined(ATTN_USE_SLEEF) && !defined(ATTN_SLEEF_HAS_AVX2_)
__m256 Sleef_expf8_u10avx2(__m256);
__m256 Sleef_exp2f8_u10avx2(__m256);
__m256 Sleef_tanhf8_u10avx2(__m256);
#endif

/* all ones in the first n lanes */
ATTN_INLINE_ __m256 attn_bits_avx2_(uint64_t bits) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  __m256i all = _mm256_set1_epi32((int)(uint32_t)bits);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, lane), lane));
}

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
/* 1 when every lane is chosen */
#define ATTN_V_ALL_(m) ((m) == 0xffff)
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
/* the lowest bits of a uint64_t as a choice of lanes; p[i[lane]] */
#define ATTN_V_BITS_(bits) ((__mmask16)(bits))
#define ATTN_V_GATHER_(p, i) _mm512_i32gather_ps(_mm512_loadu_si512(i), p, 4)
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
/* >>> attn/engine/plan.h */
/* engine/plan.h owns the form of a schedule's bytes: what the builder writes and the softmax
 * driver reads. Offsets count bytes from the start and are multiples of 8.
 *
 * Rows of a head are cut into tiles, phase after phase. In each of its phases every row of a
 * variant is in exactly one tile, and the keys of a row in different phases are disjoint. A tile
 * either has runs of keys, each with the set of rows that see it, or a list of keys for each row.
 */

#define ATTN_PLAN_MAGIC_ 0x3148435354545441u /* "ATTSCH1" and the byte order */

typedef struct attn_plan_ {
  uint64_t magic;
  int64_t bytes;
  int64_t heads, q_len, k_len, q_off;
  int64_t variants;                /* different sets of tiles */
  int64_t phases;                  /* the most phases a variant has, at least 1 */
  int64_t tiles, runs, rows, keys; /* entries of the sections */
  int64_t pairs, computed, full, partial, lists;
  int64_t at_head;  /* int32 [heads]: the variant of each head */
  int64_t at_phase; /* int32 [variants]: its phases, 1 .. phases */
  int64_t at_tiles; /* int64 [variants * phases + 1]: tiles of (variant, phase) start here */
  int64_t at_tile;  /* attn_plan_tile_ [tiles] */
  int64_t at_run;   /* attn_plan_run_ [runs] */
  int64_t at_row;   /* int32 [rows] */
  int64_t at_key;   /* int32 [keys] */
} attn_plan_;

typedef struct attn_plan_tile_ {
  int32_t n;     /* rows, 1 .. ATTN_TILE_ */
  int32_t step;  /* distance between the keys of a run, or 0: lists */
  int64_t row;   /* its rows are row[row .. row + n), ascending */
  int64_t at;    /* step > 0: run[at .. at + count); step = 0: key[at .. at + n] are n + 1 offsets
                 * into the keys that follow them, the first 0; row r sees those from its own
                 * offset to the next, ascending */
  int64_t count; /* runs, or keys of all lists */
} attn_plan_tile_;

/* Keys key, key + step, .. (n of them), seen by the rows whose bit is set; ascending and disjoint
 * within a tile, lanes is never 0. */
typedef struct attn_plan_run_ {
  int32_t key, n;
  uint64_t lanes;
} attn_plan_run_;

ATTN_FUNC_ const void *attn_plan_at_(const attn_plan_ *p, int64_t at) {
  return (const char *)p + at;
}

/* The bytes of a schedule if they look like one, else null. Nothing more is tested in every call:
 * attn_schedule_open has looked at bytes from elsewhere. */
ATTN_FUNC_ const attn_plan_ *attn_plan_of_(const attn_schedule *s) {
  const attn_plan_ *p = (const attn_plan_ *)(s ? s->data : NULL);
  if (!p || (uintptr_t)s->data % 8 != 0 || s->size < sizeof *p) return NULL;
  return p->magic == ATTN_PLAN_MAGIC_ && p->bytes >= 0 && (uint64_t)p->bytes == s->size ? p : NULL;
}
/* <<< attn/engine/plan.h */
/* >>> attn/engine/marks.h */
/* engine/marks.h owns sets of small integers: bits, with a second level of bits that says which
 * words are not 0, so that a sparse set is read in ascending order and cleared at once. */

/* the lowest bit of x, which is not 0 */
ATTN_INLINE_ int attn_lowest_(uint64_t x) {
#if defined(__GNUC__)
  return __builtin_ctzll(x);
#else
  int n = 0;
  for (int s = 32; s > 0; s /= 2)
    if (!(x & (((uint64_t)1 << s) - 1))) x >>= s, n += s;
  return n;
#endif
}

ATTN_INLINE_ int attn_ones_(uint64_t x) {
  x -= x >> 1 & 0x5555555555555555u;
  x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
  x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
  return (int)(x * 0x0101010101010101u >> 56);
}

ATTN_INLINE_ uint64_t attn_bit_(int64_t n) { return (uint64_t)1 << n; }
/* the n lowest bits, 0 <= n <= 64 */
ATTN_INLINE_ uint64_t attn_low_bits_(int64_t n) {
  return n >= 64 ? ~(uint64_t)0 : attn_bit_(n) - 1;
}

typedef struct attn_marks_ {
  uint64_t *bits;  /* number x is bit x mod 64 of word x / 64 */
  uint64_t *words; /* bit w mod 64 of word w / 64: bits[w] is not 0 */
} attn_marks_;

/* words of both levels for the numbers 0 .. n - 1 */
ATTN_FUNC_ int64_t attn_marks_words_(int64_t n) { return n / 64 + 1 + n / 4096 + 1; }

ATTN_FUNC_ void attn_marks_cut_(attn_marks_ *m, uint64_t *zeros, int64_t n) {
  m->bits = zeros;
  m->words = zeros + n / 64 + 1;
}

ATTN_INLINE_ void attn_mark_(const attn_marks_ *m, int64_t x) {
  m->bits[x >> 6] |= attn_bit_(x & 63);
  m->words[x >> 12] |= attn_bit_(x >> 6 & 63);
}

ATTN_INLINE_ int attn_marked_(const attn_marks_ *m, int64_t x) {
  return (int)(m->bits[x >> 6] >> (x & 63) & 1);
}

/* Takes the lowest word that is not 0 out of the set; *from is a number that none is below, and
 * becomes the first of that word. 0 when there is none among the numbers below n. */
ATTN_INLINE_ uint64_t attn_unmark_(const attn_marks_ *m, int64_t *from, int64_t n) {
  for (int64_t w = *from >> 12; w <= (n - 1) >> 12; w++) {
    if (!m->words[w]) continue;
    const int64_t b = w * 64 + attn_lowest_(m->words[w]);
    const uint64_t bits = m->bits[b];
    m->words[w] &= m->words[w] - 1, m->bits[b] = 0;
    *from = b * 64;
    return bits;
  }
  return 0;
}

/* Transposes 64 x 64 bits: bit c of row r becomes bit r of row c. */
ATTN_FUNC_ void attn_transpose_bits_(uint64_t a[64]) {
  uint64_t m = 0x00000000ffffffffu;
  for (int s = 32; s > 0; s /= 2, m ^= m << s)
    for (int r = 0; r < 64; r = ((r | s) + 1) & ~s) {
      const uint64_t x = (a[r] >> s ^ a[r | s]) & m;
      a[r] ^= x << s, a[r | s] ^= x;
    }
}
/* <<< attn/engine/marks.h */
/* >>> attn/engine/random.h */
/* engine/random.h owns the reproducible integers of patterns: SplitMix64 keyed by seed, purpose,
 * head and row. The same on every machine. Source: Steele, Lea, Flood 2014; Lemire 2018, arXiv
 * 1805.10941; Floyd, in Bentley 1987. */

/* What the numbers are drawn for. */
enum {
  ATTN_DRAW_TOKENS_ = 1,
  ATTN_DRAW_BLOCKS_ = 2,
  ATTN_DRAW_BIGBIRD_ = 3,
  ATTN_DRAW_PERMUTATION_ = 7
};

ATTN_INLINE_ uint64_t attn_mix64_(uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

/* The state of a stream. row may be negative: its two's complement counts. */
ATTN_FUNC_ uint64_t attn_stream_(uint64_t seed, uint64_t tag, int64_t head, int64_t row) {
  const uint64_t gamma = 0x9E3779B97F4A7C15u;
  uint64_t s = attn_mix64_((seed ^ tag) + gamma);
  s = attn_mix64_((s ^ (uint64_t)head) + gamma);
  return attn_mix64_((s ^ (uint64_t)row) + gamma);
}

ATTN_INLINE_ uint64_t attn_next64_(uint64_t *s) {
  *s += 0x9E3779B97F4A7C15u;
  return attn_mix64_(*s);
}

/* Uniform in [0, n), 1 <= n < 2^32, without bias. */
ATTN_INLINE_ int64_t attn_bounded_(uint64_t *s, int64_t n) {
  const uint64_t range = (uint64_t)n;
  uint64_t m = (attn_next64_(s) >> 32) * range;
  if ((m & 0xffffffffu) < range) {
    const uint64_t t = (((uint64_t)1 << 32) - range) % range;
    while ((m & 0xffffffffu) < t) m = (attn_next64_(s) >> 32) * range;
  }
  return (int64_t)(m >> 32);
}

/* Marks r < n distinct numbers of [0, n) in an empty set. */
ATTN_FUNC_ void attn_sample_(const attn_marks_ *set, uint64_t s, int64_t n, int64_t r) {
  for (int64_t t = n - r; t < n; t++) {
    const int64_t u = attn_bounded_(&s, t + 1);
    attn_mark_(set, attn_marked_(set, u) ? t : u);
  }
}

ATTN_FUNC_ void attn_permutation_(int32_t *a, uint64_t s, int64_t n) {
  for (int64_t t = 0; t < n; t++) a[t] = (int32_t)t;
  for (int64_t t = n - 1; t > 0; t--) {
    const int64_t u = attn_bounded_(&s, t + 1);
    const int32_t x = a[t];
    a[t] = a[u], a[u] = x;
  }
}
/* <<< attn/engine/random.h */
/* >>> attn/engine/pattern.h */
/* engine/pattern.h owns the working form of a pattern: a tree of nodes, and for a few query rows
 * the runs of keys they see. engine/atoms.h has the leaves; what a tile is for, engine/schedule.h.
 *
 * Rows are lanes, keys are numbers. A leaf says where a lane begins or ceases to see (toggles);
 * swept in ascending order, toggles become runs; operators merge runs of two operands. */

/* A node. kind is that of the pattern; of compound kinds one piece remains:
 *   ETC           rows and columns before `first`
 *   SPARSE_FIXED  the columns of a block: `count` from `first` on
 *   AXIAL         lines of `count` keys `step` apart
 *   BLOCKS        the own block, `before` and `after` positions
 *   RING          first = 1: node 0 is a relay (Star)
 * Numbers are clamped to where they still mean the same. Unused fields are 0, so that equal nodes
 * have equal bytes. */
typedef struct attn_node_ {
  int64_t kind;
  int64_t cut;        /* only keys up to p */
  int64_t causal;     /* draws and trees: causal by themselves */
  int64_t part, next; /* first part and next part of the same node; 0 = none */
  int64_t head;       /* 0 where it does not matter */
  int64_t left, right, step, block, before, after, first, last, count, extra;
  int64_t rows, columns, ring, overlap, self;
  int64_t height, width, tile_height, tile_width, top, bottom, order;
  uint64_t seed;
  int64_t indices, query_count, stride;
  const int32_t *index, *queries;
  const int64_t *row_ptr;
  const uint8_t *bits;
  attn_pair_fn pair;
  attn_rectangle_fn rectangle;
  void *user;
} attn_node_;

typedef struct attn_field_ {
  int64_t q_len, k_len, q_off;
} attn_field_;

/* Up to ATTN_TILE_ rows, ascending, and the keys that are looked at: first, first + step, ..,
 * `keys` of them. Runs count those by ordinals. */
typedef struct attn_rows_ {
  const attn_field_ *f;
  int64_t n, step, first, keys;
  int64_t i[ATTN_TILE_], p[ATTN_TILE_]; /* indices and positions */
} attn_rows_;

typedef struct attn_runs_ {
  attn_plan_run_ *run;
  int64_t count, capacity;
} attn_runs_;

enum { ATTN_DEPTH_ = 32, ATTN_PARTS_ = 1024, ATTN_LISTS_ = 4 * ATTN_DEPTH_ };

/* What sees: the nodes, and memory for toggles and runs. */
typedef struct attn_sight_ {
  const attn_node_ *node;
  uint64_t *toggle; /* [longest side + 1], 0 between sweeps */
  attn_marks_ touched;
  attn_marks_ drawn; /* a set of keys, empty between uses */
  int64_t lo, hi;    /* the touched range */
  int64_t toggles;
  attn_runs_ runs[ATTN_LISTS_]; /* one per depth of the tree, and a spare */
} attn_sight_;

ATTN_INLINE_ int64_t attn_min64_(int64_t a, int64_t b) { return a < b ? a : b; }
ATTN_INLINE_ int64_t attn_max64_(int64_t a, int64_t b) { return a > b ? a : b; }
/* floor(a / b) and ceil(a / b), b > 0 */
ATTN_INLINE_ int64_t attn_floor_(int64_t a, int64_t b) { return a / b - (a % b < 0); }
ATTN_INLINE_ int64_t attn_ceil_(int64_t a, int64_t b) { return a / b + (a % b > 0); }

/* Makes room for `need` elements, keeping the first `used`. 0 = no memory. */
ATTN_FUNC_ int attn_room_(void **data, int64_t *capacity, int64_t used, int64_t need,
                          int64_t size) {
  if (need <= *capacity) return 1;
  const int64_t to = attn_max64_(attn_max64_(need, 256), attn_mul_(*capacity, 2));
  const int64_t bytes = attn_mul_(to, size);
  if ((uint64_t)bytes > SIZE_MAX / 2) return 0;
  void *wide = ATTN_MALLOC((size_t)bytes);
  if (!wide) return 0;
  if (used) memcpy(wide, *data, (size_t)(used * size));
  if (*data) ATTN_FREE(*data);
  *data = wide, *capacity = to;
  return 1;
}

ATTN_FUNC_ int attn_runs_room_(attn_runs_ *r, int64_t more) {
  void *data = r->run;
  const int fits =
      attn_room_(&data, &r->capacity, r->count, r->count + more, (int64_t)sizeof(attn_plan_run_));
  r->run = (attn_plan_run_ *)data;
  return fits;
}

ATTN_INLINE_ void attn_run_put_(attn_runs_ *r, int64_t key, int64_t n, uint64_t lanes) {
  attn_plan_run_ *x = &r->run[r->count++];
  x->key = (int32_t)key, x->n = (int32_t)n, x->lanes = lanes;
}

/* Appends keys behind all others; equal neighbours become one run. */
ATTN_INLINE_ int attn_run_add_(attn_runs_ *r, int64_t key, int64_t n, uint64_t lanes) {
  if (!lanes || n <= 0) return 1;
  if (r->count) {
    attn_plan_run_ *x = &r->run[r->count - 1];
    if (x->lanes == lanes && x->key + (int64_t)x->n == key) {
      x->n += (int32_t)n;
      return 1;
    }
  }
  if (r->count == r->capacity && !attn_runs_room_(r, 1)) return 0;
  attn_run_put_(r, key, n, lanes);
  return 1;
}

/* lanes see the ordinals lo .. hi - 1, or see them no longer */
ATTN_INLINE_ void attn_toggle_(attn_sight_ *s, uint64_t lanes, int64_t lo, int64_t hi) {
  if (lo >= hi) return;
  s->toggle[lo] ^= lanes, s->toggle[hi] ^= lanes;
  attn_mark_(&s->touched, lo), attn_mark_(&s->touched, hi);
  if (lo < s->lo) s->lo = lo;
  if (hi > s->hi) s->hi = hi;
  s->toggles += 2;
}

/* The same for keys, which must lie in 0 .. k_len. */
ATTN_INLINE_ void attn_toggle_keys_(attn_sight_ *s, const attn_rows_ *t, uint64_t lanes, int64_t lo,
                                    int64_t hi) {
  if (t->step > 1) { /* the first ordinals at or after lo and hi */
    lo = (lo - t->first + t->step - 1) / t->step;
    hi = (hi - t->first + t->step - 1) / t->step;
  }
  attn_toggle_(s, lanes, lo, hi);
}

/* The keys lo .. hi - 1, wherever they lie; with cut no lane sees past its position. */
ATTN_FUNC_ void attn_see_(attn_sight_ *s, const attn_rows_ *t, int64_t cut, uint64_t lanes,
                          int64_t lo, int64_t hi) {
  if (lo < 0) lo = 0;
  if (hi > t->f->k_len) hi = t->f->k_len;
  if (lo >= hi) return;
  if (cut) { /* positions ascend: the later lanes see all */
    while (lanes && t->p[attn_lowest_(lanes)] < lo) lanes &= lanes - 1;
    uint64_t some = lanes;
    while (lanes && t->p[attn_lowest_(lanes)] + 1 < hi) lanes &= lanes - 1;
    for (some &= ~lanes; some; some &= some - 1) {
      const int r = attn_lowest_(some);
      attn_toggle_keys_(s, t, attn_bit_(r), lo, t->p[r] + 1);
    }
  }
  if (lanes) attn_toggle_keys_(s, t, lanes, lo, hi);
}

/* Turns all toggles into runs. */
ATTN_FUNC_ int attn_sweep_(attn_sight_ *s, attn_runs_ *out) {
  uint64_t lanes = 0;
  int64_t from = 0;
  out->count = 0;
  const int fits = attn_runs_room_(out, s->toggles);
  for (int64_t w = s->lo >> 12; w <= s->hi >> 12; w++) {
    uint64_t words = s->touched.words[w];
    for (s->touched.words[w] = 0; words; words &= words - 1) {
      const int64_t b = w * 64 + attn_lowest_(words);
      uint64_t bits = s->touched.bits[b];
      for (s->touched.bits[b] = 0; bits; bits &= bits - 1) {
        const int64_t key = b * 64 + attn_lowest_(bits);
        const uint64_t change = s->toggle[key];
        s->toggle[key] = 0;
        if (!change) continue;
        if (lanes && fits) attn_run_put_(out, from, key - from, lanes);
        lanes ^= change, from = key;
      }
    }
  }
  s->lo = INT64_MAX, s->hi = -1, s->toggles = 0;
  return fits;
}

/* Takes the drawn keys of a single row, which looks at all keys, as runs; those from end on are
 * dropped. */
ATTN_FUNC_ int attn_drain_(attn_sight_ *s, attn_runs_ *out, int64_t n, int64_t end) {
  int fits = 1;
  uint64_t bits;
  for (int64_t from = 0; (bits = attn_unmark_(&s->drawn, &from, n)) != 0;)
    for (; bits; bits &= bits - 1) {
      const int64_t key = from + attn_lowest_(bits);
      fits = fits && (key >= end || attn_run_add_(out, key, 1, 1));
    }
  return fits;
}

/* out = a op b, for UNION, INTERSECT and DIFF */
ATTN_FUNC_ int attn_combine_(attn_runs_ *out, int64_t op, const attn_runs_ *a,
                             const attn_runs_ *b) {
  int64_t x = 0, y = 0, key = 0;
  out->count = 0;
  while (x < a->count || (op == ATTN_PATTERN_UNION && y < b->count)) {
    /* the lanes of both at key, and how far they hold */
    int64_t end = INT64_MAX;
    uint64_t in_a = 0, in_b = 0;
    if (x < a->count) {
      const attn_plan_run_ *r = &a->run[x];
      if (r->key > key)
        end = r->key;
      else
        end = r->key + (int64_t)r->n, in_a = r->lanes;
    }
    if (y < b->count) {
      const attn_plan_run_ *r = &b->run[y];
      if (r->key > key)
        end = attn_min64_(end, r->key);
      else
        end = attn_min64_(end, r->key + (int64_t)r->n), in_b = r->lanes;
    }
    const uint64_t lanes = op == ATTN_PATTERN_UNION       ? in_a | in_b
                           : op == ATTN_PATTERN_INTERSECT ? in_a & in_b
                                                          : in_a & ~in_b;
    if (!attn_run_add_(out, key, end - key, lanes)) return 0;
    key = end;
    while (x < a->count && a->run[x].key + (int64_t)a->run[x].n <= key) x++;
    while (y < b->count && b->run[y].key + (int64_t)b->run[y].n <= key) y++;
  }
  return 1;
}

ATTN_FUNC_ int attn_invert_(attn_runs_ *out, const attn_runs_ *a, uint64_t all, int64_t keys) {
  int64_t key = 0;
  out->count = 0;
  for (int64_t x = 0; x < a->count; x++) {
    const attn_plan_run_ *r = &a->run[x];
    if (!attn_run_add_(out, key, r->key - key, all) ||
        !attn_run_add_(out, r->key, r->n, all & ~r->lanes))
      return 0;
    key = r->key + (int64_t)r->n;
  }
  return attn_run_add_(out, key, keys - key, all);
}

/* Row r of t, with all keys. */
ATTN_FUNC_ void attn_rows_one_(attn_rows_ *one, const attn_field_ *f, int64_t i) {
  one->f = f, one->n = 1;
  one->step = 1, one->first = 0, one->keys = f->k_len;
  one->i[0] = i, one->p[0] = i + f->q_off;
}

ATTN_FUNC_ int attn_leaf_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t,
                          attn_runs_ *out);

/* Leaves the runs of a node in s->runs[d]. 0 = no memory. */
ATTN_FUNC_ int attn_eval_(attn_sight_ *s, int64_t at, const attn_rows_ *t, int d);

/* (i, j) for the (j, i) of a part, which sees the other way: 64 of our keys are its rows. */
ATTN_FUNC_ int attn_eval_transposed_(attn_sight_ *s, int64_t part, const attn_rows_ *t, int d) {
  attn_field_ f;
  attn_rows_ u;
  uint64_t a[64];
  f.q_len = t->f->k_len, f.k_len = t->f->q_len, f.q_off = -t->f->q_off;
  u.f = &f, u.step = 1, u.first = 0, u.keys = f.k_len;
  s->runs[d].count = 0;
  for (int64_t k = 0; k < t->keys; k += 64) {
    u.n = attn_min64_(64, t->keys - k);
    for (int64_t r = 0; r < u.n; r++) {
      u.i[r] = t->first + (k + r) * t->step;
      u.p[r] = u.i[r] + f.q_off;
    }
    if (!attn_eval_(s, part, &u, d + 1)) return 0;
    const attn_runs_ *in = &s->runs[d + 1];
    uint64_t any = 0;
    memset(a, 0, sizeof a);
    for (int64_t r = 0, x = 0; r < t->n; r++) {
      while (x < in->count && in->run[x].key + (int64_t)in->run[x].n <= t->i[r]) x++;
      if (x < in->count && in->run[x].key <= t->i[r]) a[r] = in->run[x].lanes;
      any |= a[r];
    }
    if (!any) continue;
    attn_transpose_bits_(a);
    for (int64_t r = 0; r < u.n; r++)
      if (!attn_run_add_(&s->runs[d], k + r, 1, a[r])) return 0;
  }
  return 1;
}

ATTN_FUNC_ void attn_swap_runs_(attn_runs_ *a, attn_runs_ *b) {
  const attn_runs_ x = *a;
  *a = *b, *b = x;
}

/* s->runs[d] = s->runs[d] op node `at`. */
ATTN_FUNC_ int attn_eval_onto_(attn_sight_ *s, int64_t op, int64_t at, const attn_rows_ *t, int d) {
  attn_runs_ *spare = &s->runs[ATTN_LISTS_ - 1];
  if (op != ATTN_PATTERN_UNION && s->runs[d].count == 0) return 1;
  if (!attn_eval_(s, at, t, d + 1) || !attn_combine_(spare, op, &s->runs[d], &s->runs[d + 1]))
    return 0;
  attn_swap_runs_(spare, &s->runs[d]);
  return 1;
}

ATTN_FUNC_ int attn_eval_cut_(attn_sight_ *s, const attn_rows_ *t, int d) {
  attn_runs_ *spare = &s->runs[ATTN_LISTS_ - 1];
  attn_see_(s, t, 1, attn_low_bits_(t->n), 0, t->f->k_len);
  if (!attn_sweep_(s, &s->runs[d + 1]) ||
      !attn_combine_(spare, ATTN_PATTERN_INTERSECT, &s->runs[d], &s->runs[d + 1]))
    return 0;
  attn_swap_runs_(spare, &s->runs[d]);
  return 1;
}

ATTN_FUNC_ int attn_eval_(attn_sight_ *s, int64_t at, const attn_rows_ *t, int d) {
  const attn_node_ *x = &s->node[at];
  attn_runs_ *out = &s->runs[d], *spare = &s->runs[ATTN_LISTS_ - 1];
  if (x->kind < ATTN_PATTERN_UNION) { /* all but one cut by themselves */
    if (!attn_leaf_(s, x, t, out)) return 0;
    if (x->kind != ATTN_PATTERN_PREDICATE) return 1;
  } else if (x->kind == ATTN_PATTERN_TRANSPOSE) {
    if (!attn_eval_transposed_(s, x->part, t, d)) return 0;
  } else if (x->kind == ATTN_PATTERN_COMPLEMENT) {
    if (!attn_eval_(s, x->part, t, d) || !attn_invert_(spare, out, attn_low_bits_(t->n), t->keys))
      return 0;
    attn_swap_runs_(spare, out);
  } else {
    out->count = 0;
    if (x->part && !attn_eval_(s, x->part, t, d)) return 0;
    if (!x->part && x->kind == ATTN_PATTERN_INTERSECT && /* of nothing: every pair */
        !attn_run_add_(out, 0, t->keys, attn_low_bits_(t->n)))
      return 0;
    for (int64_t y = x->part ? s->node[x->part].next : 0; y; y = s->node[y].next)
      if (!attn_eval_onto_(s, x->kind, y, t, d)) return 0;
  }
  return !x->cut || attn_eval_cut_(s, t, d);
}
/* <<< attn/engine/pattern.h */
/* >>> attn/engine/atoms.h */
/* engine/atoms.h owns the leaves of patterns: which keys some rows see, by the definition of each
 * kind. Lanes with the same answer give it together. The ranges that a leaf gives one lane never
 * overlap (toggles would cancel). */

ATTN_INLINE_ uint64_t attn_lane_range_(int64_t r0, int64_t r1) {
  return attn_low_bits_(r1) & ~attn_low_bits_(r0);
}

/* The first lane from r on whose number (ascending) is at least limit. */
ATTN_INLINE_ int64_t attn_lanes_below_(const int64_t *x, int64_t n, int64_t r, int64_t limit) {
  if (x[n - 1] < limit) return n;
  while (x[r] < limit) r++;
  return r;
}

/* The first of n ascending numbers that is at least x. */
ATTN_FUNC_ int64_t attn_at_least_(const int32_t *a, int64_t n, int64_t x) {
  int64_t lo = 0, hi = n;
  while (lo < hi) {
    const int64_t mid = lo + (hi - lo) / 2;
    if (a[mid] < x)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

ATTN_FUNC_ void attn_see_band_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t right = x->cut && x->right != 0 ? 0 : x->right, keys = t->f->k_len;
  for (int64_t r = 0; r < t->n; r++) {
    const int64_t p = t->p[r];
    const int64_t lo = x->left < 0 ? 0 : attn_max64_(p - x->left, 0);
    const int64_t hi = right < 0 ? keys : attn_min64_(p + right + 1, keys);
    if (lo < hi) attn_toggle_keys_(s, t, attn_bit_(r), lo, hi);
  }
}

ATTN_FUNC_ void attn_see_dilated_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t d = x->step, right = x->cut && x->right != 0 ? 0 : x->right;
  for (int64_t r = 0; r < t->n; r++) {
    const int64_t p = t->p[r];
    if (t->step == d) { /* a band of ordinals */
      const int64_t u = (p - t->first) / d;
      attn_toggle_(s, attn_bit_(r), x->left < 0 ? 0 : attn_max64_(u - x->left, 0),
                   right < 0 ? t->keys : attn_min64_(u + right + 1, t->keys));
      continue;
    }
    int64_t lo = attn_ceil_(-p, d), hi = attn_floor_(t->f->k_len - 1 - p, d);
    if (x->left >= 0) lo = attn_max64_(lo, -x->left);
    if (right >= 0) hi = attn_min64_(hi, right);
    for (; lo <= hi; lo++) attn_toggle_keys_(s, t, attn_bit_(r), p + lo * d, p + lo * d + 1);
  }
}

/* Lanes whose query (or, without such a list, position) is global. */
ATTN_FUNC_ uint64_t attn_global_lanes_(const attn_node_ *x, const attn_rows_ *t) {
  const int32_t *list = x->queries ? x->queries : x->index;
  const int64_t count = x->queries ? x->query_count : x->indices;
  const int64_t *row = x->queries ? t->i : t->p;
  uint64_t lanes = 0;
  if (!x->rows) return 0;
  int64_t g = attn_at_least_(list, count, row[0]);
  for (int64_t r = 0; r < t->n && g < count; r++) {
    while (g < count && list[g] < row[r]) g++;
    if (g < count && list[g] == row[r]) lanes |= attn_bit_(r);
  }
  return lanes;
}

ATTN_FUNC_ void attn_see_global_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const uint64_t rows = attn_global_lanes_(x, t), others = attn_low_bits_(t->n) & ~rows;
  attn_see_(s, t, x->cut, rows, 0, t->f->k_len);
  for (int64_t g = 0, lo, hi; x->columns && others && g < x->indices;) {
    lo = hi = x->index[g];
    while (g < x->indices && x->index[g] == hi) g++, hi++;
    if (x->cut && lo > t->p[t->n - 1]) break;
    attn_see_(s, t, x->cut, others, lo, hi);
  }
}

ATTN_FUNC_ void attn_see_front_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t r = attn_lanes_below_(t->p, t->n, 0, x->first);
  attn_see_(s, t, x->cut, attn_low_bits_(r), 0, t->f->k_len);
  attn_see_(s, t, x->cut, attn_lane_range_(r, t->n), 0, x->first);
}

/* Gives drawn units [0, n) to lanes; unit u is the keys from origin + u size on. */
ATTN_FUNC_ void attn_see_drawn_(attn_sight_ *s, const attn_rows_ *t, int64_t cut, uint64_t lanes,
                                int64_t n, int64_t origin, int64_t size) {
  uint64_t bits;
  for (int64_t from = 0; (bits = attn_unmark_(&s->drawn, &from, n)) != 0;)
    for (; bits; bits &= bits - 1) {
      const int64_t key = origin + (from + attn_lowest_(bits)) * size;
      attn_see_(s, t, cut, lanes, key, key + size);
    }
}

ATTN_FUNC_ void attn_see_random_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  for (int64_t r = 0; r < t->n; r++) {
    const int64_t p = t->p[r], keys = t->f->k_len;
    const int64_t n = x->causal ? attn_max64_(attn_min64_(p + 1, keys), 0) : keys;
    if (x->count >= n) {
      attn_see_(s, t, x->cut, attn_bit_(r), 0, n);
    } else {
      attn_sample_(&s->drawn, attn_stream_(x->seed, ATTN_DRAW_TOKENS_, x->head, p), n, x->count);
      attn_see_drawn_(s, t, x->cut, attn_bit_(r), n, 0, 1);
    }
  }
}

ATTN_FUNC_ void attn_see_random_blocks_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t blocks = attn_ceil_(t->f->k_len, x->block);
  for (int64_t r = 0, r1; r < t->n; r = r1) {
    const int64_t own = attn_floor_(t->p[r], x->block);
    const int64_t n = x->causal ? attn_max64_(attn_min64_(own + 1, blocks), 0) : blocks;
    r1 = attn_lanes_below_(t->p, t->n, r, (own + 1) * x->block);
    if (x->count >= n) {
      attn_see_(s, t, x->cut, attn_lane_range_(r, r1), 0, n * x->block);
    } else {
      attn_sample_(&s->drawn, attn_stream_(x->seed, ATTN_DRAW_BLOCKS_, x->head, own), n, x->count);
      attn_see_drawn_(s, t, x->cut, attn_lane_range_(r, r1), n, 0, x->block);
    }
  }
}

ATTN_FUNC_ void attn_see_blocks_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  for (int64_t r = 0, r1; r < t->n; r = r1) {
    const int64_t lo = attn_floor_(t->p[r], x->block) * x->block, hi = lo + x->block;
    r1 = attn_lanes_below_(t->p, t->n, r, hi);
    attn_see_(s, t, x->cut, attn_lane_range_(r, r1), lo - x->before, hi + x->after);
  }
}

/* A ring of all nodes, or of those behind a relay. */
ATTN_FUNC_ void attn_see_ring_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t a = x->first, end = t->f->k_len, n = end - a, w = x->left;
  for (int64_t r = 0; r < t->n; r++) {
    const uint64_t lane = attn_bit_(r);
    const int64_t i = t->p[r];
    if (i < a || (x->ring && 2 * w + 1 >= n)) {
      attn_see_(s, t, x->cut, lane, 0, end);
      continue;
    }
    attn_see_(s, t, x->cut, lane, 0, a);
    attn_see_(s, t, x->cut, lane, attn_max64_(i - w, a), i + w + 1);
    if (x->ring && i - w < a) attn_see_(s, t, x->cut, lane, i - w + n, end);
    if (x->ring && i + w >= end) attn_see_(s, t, x->cut, lane, a, i + w + 1 - n);
  }
}

/* BigBird over blocks, behind `extra` tokens that see all and are seen by all. */
ATTN_FUNC_ void attn_see_bigbird_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t g = x->extra, bs = x->block, blocks = attn_ceil_(t->f->k_len - g, bs);
  const int64_t first = attn_min64_(x->first, blocks);
  const int64_t last = attn_max64_(blocks - x->last, first); /* global blocks: [0, first), [last, */
  /* lanes front .. back - 1 are extra tokens; those before the first key are none */
  const int64_t front = g ? attn_lanes_below_(t->p, t->n, 0, 0) : 0;
  const int64_t back = g ? attn_lanes_below_(t->p, t->n, 0, g) : 0;
  attn_see_(s, t, x->cut, attn_lane_range_(front, back), 0, t->f->k_len);
  attn_see_(s, t, x->cut, attn_low_bits_(t->n) & ~attn_lane_range_(front, back), 0, g);
  for (int64_t r = 0, r1; r < t->n; r = r1) {
    if (r == front && r < back) {
      r1 = back;
      continue;
    }
    const int64_t own = attn_floor_(t->p[r] - g, bs);
    r1 = attn_lanes_below_(t->p, t->n, r, g + (own + 1) * bs);
    if (r < front) r1 = attn_min64_(r1, front);
    const uint64_t lanes = attn_lane_range_(r, r1);
    if (own >= 0 && own < blocks && (own < first || own >= blocks - x->last)) {
      attn_see_(s, t, x->cut, lanes, g, t->f->k_len);
      continue;
    }
    const int64_t w0 = own - x->before, w1 = own + x->after + 1;
    const int64_t end = x->causal ? attn_min64_(last, own + 1) : last;
    /* candidates: [first, a) and [b, end) */
    const int64_t a = attn_max64_(attn_min64_(w0, end), first), b = attn_max64_(w1, first);
    const int64_t low = a - first, n = low + attn_max64_(end - b, 0);
    attn_see_(s, t, x->cut, lanes, g, g + first * bs);
    attn_see_(s, t, x->cut, lanes, g + attn_max64_(w0, first) * bs,
              g + attn_min64_(attn_max64_(w1, first), last) * bs);
    attn_see_(s, t, x->cut, lanes, g + last * bs, t->f->k_len);
    if (x->count < n)
      attn_sample_(&s->drawn, attn_stream_(x->seed, ATTN_DRAW_BIGBIRD_, x->head, own), n, x->count);
    else
      for (int64_t u = 0; u < n; u++) attn_mark_(&s->drawn, u);
    uint64_t bits;
    for (int64_t from = 0; (bits = attn_unmark_(&s->drawn, &from, n)) != 0;)
      for (; bits; bits &= bits - 1) {
        const int64_t u = from + attn_lowest_(bits);
        const int64_t key = g + (u < low ? first + u : b + u - low) * bs;
        attn_see_(s, t, x->cut, lanes, key, key + bs);
      }
  }
}

/* The summary columns of every block. */
ATTN_FUNC_ void attn_see_columns_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t top = t->p[t->n - 1];
  for (int64_t key = x->first; key < t->f->k_len && (!x->cut || key <= top); key += x->block)
    attn_see_(s, t, x->cut, attn_low_bits_(t->n), key, key + x->count);
}

/* b len / n, rounded up: where block b of n begins */
ATTN_INLINE_ int64_t attn_block_start_(int64_t b, int64_t n, int64_t len) {
  return attn_ceil_(b * len, n);
}

ATTN_FUNC_ void attn_see_blockwise_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t n = x->count;
  for (int64_t r = 0, r1; r < t->n; r = r1) {
    const int64_t b = t->i[r] * n / t->f->q_len;
    const int64_t key = x->index ? x->index[b] : (b + x->left) % n;
    r1 = attn_lanes_below_(t->i, t->n, r, attn_block_start_(b + 1, n, t->f->q_len));
    attn_see_(s, t, x->cut, attn_lane_range_(r, r1), attn_block_start_(key, n, t->f->k_len),
              attn_block_start_(key + 1, n, t->f->k_len));
  }
}

ATTN_FUNC_ void attn_see_image_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t w = x->width, th = x->tile_height, tw = x->tile_width;
  for (int64_t r = 0, r1; r < t->n; r = r1) {
    const int64_t y = t->i[r] / w, by = y / th * th, bx = t->i[r] % w / tw * tw;
    for (r1 = r + 1; r1 < t->n; r1++)
      if (t->i[r1] / w >= by + th || t->i[r1] % w / tw * tw != bx) break;
    const uint64_t lanes = attn_lane_range_(r, r1);
    const int64_t left = attn_max64_(bx - x->left, 0), right = attn_min64_(bx + tw + x->right, w);
    const int64_t top = attn_max64_(by - x->top, 0);
    const int64_t bottom = attn_min64_(by + th + x->bottom, x->height);
    const int64_t last = t->i[r1 - 1] / w; /* the lowest of these lanes' image rows */
    for (int64_t m = top; m < bottom; m++) {
      const int64_t at = m * w;
      if (x->order == ATTN_IMAGE_NONE || (x->order == ATTN_IMAGE_BLOCK && m < by)) {
        attn_see_(s, t, x->cut, lanes, at + left, at + right);
        continue;
      }
      /* In block order the blocks to the left come first as far as the own block reaches down;
       * then, in both orders, whole rows above the pixel and its own row up to it. */
      const int block = x->order == ATTN_IMAGE_BLOCK;
      if (m >= by + th && block) break;
      if (block) attn_see_(s, t, x->cut, lanes, at + left, at + bx);
      if (m > last && !block) break;
      const int64_t from = at + (block ? bx : left);
      const int64_t end = at + (block ? attn_min64_(bx + tw, w) : right);
      int64_t k = r;
      while (k < r1 && t->i[k] < at) k++;
      for (; k < r1 && t->i[k] < at + w; k++)
        attn_see_(s, t, x->cut, attn_bit_(k), from, t->i[k] + 1);
      attn_see_(s, t, x->cut, attn_lane_range_(k, r1), from, end);
    }
  }
}

ATTN_FUNC_ void attn_see_line_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t d = x->step, n = x->count;
  for (int64_t r = 0; r < t->n; r++) {
    const int64_t i = t->i[r], own = i / d % n, base = i - own * d;
    const int64_t see = x->cut ? own + 1 : n;
    if (d == 1) {
      attn_toggle_keys_(s, t, attn_bit_(r), base, base + see);
    } else if (t->step == d) {
      const int64_t u = (base - t->first) / d;
      attn_toggle_(s, attn_bit_(r), u, u + see);
    } else {
      for (int64_t k = 0; k < see; k++)
        attn_toggle_keys_(s, t, attn_bit_(r), base + k * d, base + k * d + 1);
    }
  }
}

/* Level l of the tree has size[l] nodes from base[l] on; returns the top level. */
ATTN_FUNC_ int attn_tree_levels_(int64_t tokens, int64_t size[64], int64_t base[64]) {
  int l = 0;
  size[0] = tokens, base[0] = 0;
  while (size[l] > 1) {
    size[l + 1] = (size[l] + 1) / 2;
    base[l + 1] = base[l] + size[l];
    l++;
  }
  return l;
}

/* The nodes beside token i, level by level, each once. */
ATTN_FUNC_ void attn_see_token_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t,
                                int64_t r) {
  int64_t size[64], base[64], g = t->i[r], f = g + 1;
  const int top = attn_tree_levels_(x->width, size, base);
  const uint64_t lane = attn_bit_(r);
  int left = 1, right = !x->causal;
  attn_see_(s, t, x->cut, lane, g, f);
  if (x->overlap) g--; /* here g and f are nodes of the level, below they bound what is covered */
  for (int l = 0; l <= top; l++) {
    if (x->overlap) {
      if (left)
        attn_see_(s, t, x->cut, lane, base[l] + attn_max64_(g - x->count + 1, 0), base[l] + g + 1);
      if (right)
        attn_see_(s, t, x->cut, lane, base[l] + f, base[l] + attn_min64_(f + x->count, size[l]));
      left = left && g - x->count >= 0, right = right && f + x->count < size[l];
      g = attn_floor_(g - x->count, 2), f = (f + x->count) / 2;
      continue;
    }
    for (int64_t k = 0; k < x->count && g > 0; k++) {
      const int lev = g & ((int64_t)attn_low_bits_(l)) ? l - 1 : l;
      const int64_t node = (g >> lev) - 1;
      attn_see_(s, t, x->cut, lane, base[lev] + node, base[lev] + node + 1);
      g = node << lev;
    }
    for (int64_t k = 0; right && k < x->count && f < x->width; k++) {
      const int lev = f & ((int64_t)attn_low_bits_(l)) ? l - 1 : l;
      const int64_t node = f >> lev;
      attn_see_(s, t, x->cut, lane, base[lev] + node, base[lev] + node + 1);
      f = attn_min64_((node + 1) << lev, x->width);
    }
  }
}

ATTN_FUNC_ void attn_see_tree_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  int64_t size[64], base[64];
  const int top = attn_tree_levels_(x->width, size, base);
  for (int64_t r = 0, l = 0; r < t->n; r++) {
    const int64_t i = t->i[r];
    if (i < x->width) {
      attn_see_token_(s, x, t, r);
      continue;
    }
    while (l < top && i >= base[l] + size[l]) l++;
    const int64_t lo = (i - base[l]) << l;
    attn_see_(s, t, x->cut, attn_bit_(r), lo, attn_min64_(lo + ((int64_t)1 << l), x->width));
    if (x->self) attn_see_(s, t, x->cut, attn_bit_(r), i, i + 1);
  }
}

/* The segment that holds i: the last that begins at or before it. */
ATTN_FUNC_ int64_t attn_segment_of_(const attn_node_ *x, int64_t i) {
  return attn_at_least_(x->index, x->indices, i + 1) - 1;
}

ATTN_FUNC_ void attn_see_segments_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  for (int64_t r = 0, r1; r < t->n; r = r1) {
    const int64_t a = attn_segment_of_(x, t->i[r]);
    r1 = attn_lanes_below_(t->i, t->n, r, x->index[a + 1]);
    attn_see_(s, t, x->cut, attn_lane_range_(r, r1), x->index[a], x->index[a + 1]);
  }
}

ATTN_FUNC_ void attn_see_csr_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  for (int64_t r = 0; r < t->n; r++)
    for (int64_t c = x->row_ptr[t->i[r]]; c < x->row_ptr[t->i[r] + 1]; c++) {
      const int64_t j = x->index[c];
      if (!x->cut || j <= t->p[r]) attn_toggle_keys_(s, t, attn_bit_(r), j, j + 1);
    }
}

ATTN_FUNC_ void attn_see_block_mask_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  for (int64_t r = 0, r1; r < t->n; r = r1) {
    const int64_t b = t->i[r] / x->block;
    const uint8_t *row = x->bits + b * x->stride;
    r1 = attn_lanes_below_(t->i, t->n, r, (b + 1) * x->block);
    for (int64_t k = 0; k < x->stride; k++)
      if (row[k])
        attn_see_(s, t, x->cut, attn_lane_range_(r, r1), k * x->step, k * x->step + x->step);
  }
}

/* The bits of up to 64 keys of a row; those of keys that do not exist are ignored. */
ATTN_FUNC_ uint64_t attn_bitmap_word_(const attn_node_ *x, const attn_rows_ *t, int64_t r,
                                      int64_t k, int64_t n) {
  const uint8_t *row = x->bits + t->i[r] * x->stride;
  uint64_t word = 0;
  if (t->step > 1) {
    for (int64_t c = 0; c < n; c++) {
      const int64_t j = t->first + (k + c) * t->step;
      word |= (uint64_t)(row[j >> 3] >> (j & 7) & 1) << c;
    }
  } else {
#ifndef ATTN_BIG_ENDIAN_
    if (n == 64)
      memcpy(&word, row + (k >> 3), 8);
    else
#endif
      for (int64_t c = 0; c < n; c += 8) word |= (uint64_t)row[(k + c) >> 3] << c;
  }
  if (x->cut) { /* ordinals whose key is at most p */
    const int64_t past = attn_floor_(t->p[r] - t->first, t->step) + 1 - k;
    n = attn_max64_(attn_min64_(n, past), 0);
  }
  return word & attn_low_bits_(n);
}

/* Words of 64 keys, a cache line of each row at a time. */
enum { ATTN_BITMAP_WORDS_ = 8 };
ATTN_FUNC_ int attn_leaf_bitmap_(const attn_node_ *x, const attn_rows_ *t, attn_runs_ *out) {
  uint64_t a[ATTN_BITMAP_WORDS_][64];
  for (int64_t k0 = 0; k0 < t->keys; k0 += ATTN_BITMAP_WORDS_ * 64) {
    uint64_t any[ATTN_BITMAP_WORDS_] = {0};
    for (int64_t r = 0; r < 64; r++)
      for (int w = 0; w < ATTN_BITMAP_WORDS_; w++) {
        const int64_t k = k0 + w * 64, n = attn_min64_(64, t->keys - k);
        any[w] |= a[w][r] = r < t->n && n > 0 ? attn_bitmap_word_(x, t, r, k, n) : 0;
      }
    for (int w = 0; w < ATTN_BITMAP_WORDS_; w++) {
      if (!any[w]) continue;
      attn_transpose_bits_(a[w]);
      for (int64_t c = 0; c < 64; c++)
        if (!attn_run_add_(out, k0 + w * 64 + c, 1, a[w][c])) return 0;
    }
  }
  return 1;
}

/* Ordinals k0 .. k1 - 1: a rectangle is asked about first; those of unclear content are halved
 * down to 64 keys. */
ATTN_FUNC_ int attn_leaf_predicate_(const attn_node_ *x, const attn_rows_ *t, attn_runs_ *out,
                                    int64_t k0, int64_t k1) {
  const uint64_t all = attn_low_bits_(t->n);
  if (k0 >= k1) return 1;
  if (x->rectangle) {
    const attn_rectangle is =
        x->rectangle(x->user, x->head, t->i[0], t->i[t->n - 1] + 1, t->first + k0 * t->step,
                     t->first + (k1 - 1) * t->step + 1);
    if (is == ATTN_EMPTY) return 1;
    if (is == ATTN_WHOLE) return attn_run_add_(out, k0, k1 - k0, all);
    if (k1 - k0 > 64) {
      const int64_t mid = (k0 + (k1 - k0) / 2 + 63) / 64 * 64;
      return attn_leaf_predicate_(x, t, out, k0, mid) && attn_leaf_predicate_(x, t, out, mid, k1);
    }
  }
  for (int64_t k = k0; k < k1; k++) {
    uint64_t lanes = 0;
    for (int64_t r = 0; r < t->n; r++)
      if (x->pair(x->user, x->head, t->i[r], t->first + k * t->step)) lanes |= attn_bit_(r);
    if (!attn_run_add_(out, k, 1, lanes)) return 0;
  }
  return 1;
}

/* One row with scattered keys needs no sweep. */
ATTN_FUNC_ int attn_leaf_scattered_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t,
                                    attn_runs_ *out) {
  const int64_t keys = t->f->k_len, p = t->p[0], past = attn_max64_(attn_min64_(p + 1, keys), 0);
  const int64_t end = x->cut ? past : keys, n = x->causal ? past : keys;
  if (x->kind == ATTN_PATTERN_CSR) {
    const int64_t count = x->row_ptr[t->i[0] + 1] - x->row_ptr[t->i[0]];
    if (!count) return 1;
    const int32_t *row = x->index + x->row_ptr[t->i[0]];
    int64_t above = -1, c = 0;
    for (; c < count && row[c] > above; above = row[c++])
      if (row[c] < end && !attn_run_add_(out, row[c], 1, 1)) return 0;
    if (c == count) return 1; /* the usual order */
    for (out->count = 0, c = 0; c < count; c++) attn_mark_(&s->drawn, row[c]);
    return attn_drain_(s, out, keys, end);
  }
  if (x->count >= n) return attn_run_add_(out, 0, attn_min64_(n, end), 1);
  attn_sample_(&s->drawn, attn_stream_(x->seed, ATTN_DRAW_TOKENS_, x->head, p), n, x->count);
  return attn_drain_(s, out, n, end);
}

ATTN_FUNC_ int attn_leaf_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t,
                          attn_runs_ *out) {
  out->count = 0;
  if (t->n == 1 && t->step == 1 && (x->kind == ATTN_PATTERN_RANDOM || x->kind == ATTN_PATTERN_CSR))
    return attn_leaf_scattered_(s, x, t, out);
  switch ((int)x->kind) {
    case ATTN_PATTERN_BAND: attn_see_band_(s, x, t); break;
    case ATTN_PATTERN_DILATED: attn_see_dilated_(s, x, t); break;
    case ATTN_PATTERN_GLOBAL: attn_see_global_(s, x, t); break;
    case ATTN_PATTERN_ETC: attn_see_front_(s, x, t); break;
    case ATTN_PATTERN_RANDOM: attn_see_random_(s, x, t); break;
    case ATTN_PATTERN_RANDOM_BLOCKS: attn_see_random_blocks_(s, x, t); break;
    case ATTN_PATTERN_BLOCKS: attn_see_blocks_(s, x, t); break;
    case ATTN_PATTERN_RING: attn_see_ring_(s, x, t); break;
    case ATTN_PATTERN_BIGBIRD: attn_see_bigbird_(s, x, t); break;
    case ATTN_PATTERN_SPARSE_FIXED: attn_see_columns_(s, x, t); break;
    case ATTN_PATTERN_BLOCKWISE: attn_see_blockwise_(s, x, t); break;
    case ATTN_PATTERN_IMAGE_2D: attn_see_image_(s, x, t); break;
    case ATTN_PATTERN_AXIAL: attn_see_line_(s, x, t); break;
    case ATTN_PATTERN_TREE: attn_see_tree_(s, x, t); break;
    case ATTN_PATTERN_SEGMENTS: attn_see_segments_(s, x, t); break;
    case ATTN_PATTERN_CSR: attn_see_csr_(s, x, t); break;
    case ATTN_PATTERN_BLOCK_MASK: attn_see_block_mask_(s, x, t); break;
    case ATTN_PATTERN_BITMAP: return attn_leaf_bitmap_(x, t, out);
    case ATTN_PATTERN_PREDICATE: return attn_leaf_predicate_(x, t, out, 0, t->keys);
    default: break;
  }
  return attn_sweep_(s, out);
}
/* <<< attn/engine/atoms.h */
/* >>> attn/engine/schedule.h */
/* engine/schedule.h owns the making of a schedule: the order in which the rows of a term are cut
 * into tiles, the phases, the choice between runs and lists, and the writer of the bytes
 * (engine/plan.h).
 *
 * A top-level union falls into terms. Each has an order in which neighbouring rows share keys;
 * terms of one order make a phase, which leaves out what earlier phases have. */

enum {
  ATTN_ORDER_NATURAL_,   /* row after row */
  ATTN_ORDER_IMAGE_,     /* vertical strips, `step` pixels of `width` */
  ATTN_ORDER_CLASS_,     /* p = c modulo `step`; keys likewise */
  ATTN_ORDER_SCATTERED_, /* as natural, but better not mixed with others */
  ATTN_ORDER_LISTS_,     /* row by row, each with a list */
  ATTN_ORDERS_
};

typedef struct attn_order_ {
  int64_t kind, step, width;
} attn_order_;

typedef struct attn_term_ {
  attn_order_ order;
  int64_t node, phase;
} attn_term_;

typedef struct attn_vec_ {
  void *data;
  int64_t count, capacity;
} attn_vec_;

/* Counts of one variant. */
typedef struct attn_counts_ {
  int64_t pairs, computed, full, partial, lists, heads;
} attn_counts_;

typedef struct attn_build_ {
  attn_field_ f;
  attn_sight_ s;
  attn_node_ *node; /* the head at work */
  attn_term_ *term;
  int64_t terms;
  uint64_t *heavy; /* a bit a row: sees (nearly) all keys, so it stays among its like */
  int64_t heavies;
  attn_vec_ tile, run, row, key;
  attn_vec_ start;    /* int64: first tile of each phase of each variant */
  attn_vec_ phases;   /* int32: phases of each variant */
  attn_vec_ counts;   /* attn_counts_ of each variant */
  attn_counts_ count; /* of the variant at work */
  /* the phase and tile at work */
  attn_order_ order;
  int64_t phase, most, cells; /* most rows a tile; the node whose borders tiles respect, or -1 */
  int64_t border, cell;       /* where the current cell ends, and the lane where it began */
  attn_rows_ t;
} attn_build_;

/* `more` elements at the end of a vector, not yet counted; null = no memory. */
ATTN_FUNC_ void *attn_vec_room_(attn_vec_ *v, int64_t more, int64_t size) {
  const int64_t need = attn_max64_(attn_add_(v->count, more), 1); /* not even 0 elements are null */
  if (!attn_room_(&v->data, &v->capacity, v->count, need, size)) return NULL;
  return (char *)v->data + v->count * size;
}

/* ------------------------------------------------------------------ orders */

/* What a tile costs, in tenths of a (lane, key) pair: measured on d = 64. */
typedef struct attn_price_ {
  int64_t pairs, computed, full, runs, lists;
} attn_price_;

ATTN_FUNC_ void attn_price_of_(attn_price_ *c, const attn_runs_ *r, int64_t rows) {
  const uint64_t all = attn_low_bits_(rows), low = 0x7fff7fff7fff7fffu, one = 0x0001000100010001u;
  const int64_t tail =
      (rows - 1) / ATTN_GROUP_ * ATTN_GROUP_; /* the last group, and what it lacks */
  const int64_t lacks = tail + ATTN_GROUP_ - rows;
  uint64_t before = 0;
  int64_t ones = 0;
  memset(c, 0, sizeof *c);
  for (int64_t x = 0; x < r->count; x++) {
    const uint64_t lanes = r->run[x].lanes, change = lanes ^ before;
    const int64_t n = r->run[x].n;
    if (change & (change - 1)) /* neighbours mostly differ in one lane */
      ones = attn_ones_(lanes);
    else if (change)
      ones += lanes & change ? 1 : -1;
    before = lanes;
    /* fields of 16 lanes that are not 0 */
    const uint64_t groups = (((lanes & low) + low) | lanes) >> 15 & one;
    const int64_t lanes_run = (int64_t)(groups * one >> 48) * ATTN_GROUP_;
    c->pairs += n * ones;
    c->computed += n * (lanes_run - (groups >> tail & 1 ? lacks : 0));
    c->full += lanes == all;
    c->runs += 10 * n * lanes_run;
  }
  c->runs += 80 * r->count;
  c->lists = 33 * c->pairs + 400 * rows;
}

/* Whether lists are cheaper for a node in a few tiles of consecutive rows. -1 = no memory. */
ATTN_FUNC_ int attn_scattered_(attn_build_ *b, int64_t node) {
  const int64_t tiles = 4;
  attn_rows_ *t = &b->t;
  int64_t runs = 0, lists = 0;
  t->f = &b->f, t->n = attn_min64_(ATTN_TILE_, b->f.q_len);
  t->step = 1, t->first = 0, t->keys = b->f.k_len;
  for (int64_t k = 0; k < tiles && t->n; k++) {
    attn_price_ c;
    for (int64_t r = 0; r < t->n; r++) {
      t->i[r] = (b->f.q_len - t->n) * k / (tiles - 1) + r;
      t->p[r] = t->i[r] + b->f.q_off;
    }
    if (!attn_eval_(&b->s, node, t, 0)) return -1;
    attn_price_of_(&c, &b->s.runs[0], t->n);
    runs += c.runs, lists += c.lists;
  }
  return lists < runs;
}

ATTN_FUNC_ attn_order_ attn_order_make_(int64_t kind, int64_t step, int64_t width) {
  attn_order_ o;
  o.kind = kind, o.step = step, o.width = width;
  return o;
}

ATTN_FUNC_ int attn_same_order_(attn_order_ a, attn_order_ b) {
  return a.kind == b.kind && a.step == b.step && a.width == b.width;
}

/* Blocks of an image that fill a group of lanes make strips of their own; of smaller ones, strips
 * of 4 pixels keep every 16 lanes in a square. */
ATTN_FUNC_ int attn_image_tiles_(const attn_node_ *x) {
  return x->tile_height * x->tile_width >= ATTN_GROUP_;
}

/* The order that suits a node. A class order must hold all keys of its rows in their class. */
ATTN_FUNC_ attn_order_ attn_order_of_(const attn_build_ *b, int64_t at) {
  const int64_t few = 5; /* rows that are not worth a tile */
  const attn_node_ *x = &b->node[at];
  attn_order_ o = attn_order_make_(ATTN_ORDER_NATURAL_, 1, 0), y;
  switch ((int)x->kind) {
    case ATTN_PATTERN_DILATED:
    case ATTN_PATTERN_AXIAL:
      if (x->step > 1)
        o = b->f.q_len / x->step < few ? attn_order_make_(ATTN_ORDER_LISTS_, 1, 0)
                                       : attn_order_make_(ATTN_ORDER_CLASS_, x->step, 0);
      break;
    case ATTN_PATTERN_IMAGE_2D:
      o = attn_order_make_(ATTN_ORDER_IMAGE_,
                           attn_min64_(attn_image_tiles_(x) ? x->tile_width : 4, x->width),
                           x->width);
      break;
    case ATTN_PATTERN_RANDOM:
      if (x->count <= b->f.k_len / 4) o.kind = ATTN_ORDER_LISTS_;
      break;
    case ATTN_PATTERN_RANDOM_BLOCKS:
    case ATTN_PATTERN_BLOCK_MASK:
      if (x->block < 8 && b->terms > 1) o.kind = ATTN_ORDER_SCATTERED_;
      break;
    case ATTN_PATTERN_CSR: o.kind = ATTN_ORDER_LISTS_; break;
    case ATTN_PATTERN_PREDICATE:
    case ATTN_PATTERN_BITMAP:
      if (b->terms > 1) o.kind = ATTN_ORDER_SCATTERED_;
      break;
    case ATTN_PATTERN_INTERSECT: /* the part that says most */
      for (int64_t k = x->part; k; k = b->node[k].next) {
        y = attn_order_of_(b, k);
        if (y.kind == ATTN_ORDER_CLASS_ || (y.kind == ATTN_ORDER_IMAGE_ && o.kind != y.kind) ||
            (y.kind > o.kind && o.kind == ATTN_ORDER_NATURAL_))
          o = y;
        if (o.kind == ATTN_ORDER_CLASS_) break;
      }
      break;
    case ATTN_PATTERN_DIFF: return attn_order_of_(b, x->part);
    case ATTN_PATTERN_TRANSPOSE: /* one row would cost as much as 64 */
      o = attn_order_of_(b, x->part);
      if (o.kind == ATTN_ORDER_LISTS_) o.kind = ATTN_ORDER_SCATTERED_;
      break;
    default: break;
  }
  return o;
}

/* What only a look can tell: whether scattered keys are scattered. 0 = no memory. */
ATTN_FUNC_ int attn_order_settle_(attn_build_ *b, attn_term_ *term) {
  const int64_t kind = b->node[term->node].kind;
  attn_order_ *o = &term->order;
  *o = attn_order_of_(b, term->node);
  if (b->f.q_len < 5) { /* decoding: one phase */
    *o = attn_order_make_(ATTN_ORDER_NATURAL_, 1, 0);
  } else if (o->kind == ATTN_ORDER_SCATTERED_ ||
             (o->kind == ATTN_ORDER_LISTS_ &&
              (kind == ATTN_PATTERN_CSR || kind >= ATTN_PATTERN_UNION))) {
    const int lists = attn_scattered_(b, term->node);
    if (lists < 0) return 0;
    if (!lists) o->kind = ATTN_ORDER_NATURAL_;
  }
  return 1;
}

/* ------------------------------------------------------------------ rows that see all */

ATTN_FUNC_ void attn_heavy_rows_(attn_build_ *b, int64_t i, int64_t end) {
  for (i = attn_max64_(i, 0); i < attn_min64_(end, b->f.q_len); i++) {
    b->heavies += !(b->heavy[i >> 6] >> (i & 63) & 1);
    b->heavy[i >> 6] |= attn_bit_(i & 63);
  }
}

ATTN_FUNC_ void attn_heavy_(attn_build_ *b, int64_t at) {
  const attn_node_ *x = &b->node[at];
  const int64_t off = b->f.q_off;
  if (x->kind == ATTN_PATTERN_UNION || x->kind == ATTN_PATTERN_INTERSECT) {
    for (int64_t k = x->part; k; k = b->node[k].next) attn_heavy_(b, k);
  } else if (x->kind == ATTN_PATTERN_DIFF) {
    attn_heavy_(b, x->part);
  } else if (x->kind == ATTN_PATTERN_GLOBAL && x->rows) {
    for (int64_t g = 0; x->queries && g < x->query_count; g++)
      attn_heavy_rows_(b, x->queries[g], x->queries[g] + (int64_t)1);
    for (int64_t g = 0; !x->queries && g < x->indices; g++)
      attn_heavy_rows_(b, x->index[g] - off, x->index[g] - off + 1);
  } else if (x->kind == ATTN_PATTERN_ETC) {
    attn_heavy_rows_(b, -off, x->first - off);
  } else if (x->kind == ATTN_PATTERN_RING) {
    attn_heavy_rows_(b, 0, x->first);
  } else if (x->kind == ATTN_PATTERN_BIGBIRD) {
    const int64_t g = x->extra, blocks = attn_ceil_(b->f.k_len - g, x->block);
    const int64_t last = attn_max64_(blocks - x->last, 0);
    attn_heavy_rows_(b, -off, g - off + attn_min64_(x->first, blocks) * x->block);
    attn_heavy_rows_(b, g - off + last * x->block, g - off + blocks * x->block);
  }
}

/* ------------------------------------------------------------------ cells */

/* The first row behind the cell of row i: rows of a cell share keys, so that tiles rather end with
 * cells. INT64_MAX = no more borders. */
ATTN_FUNC_ int64_t attn_cell_end_(const attn_build_ *b, int64_t at, int64_t i) {
  const attn_node_ *x = &b->node[at];
  const int64_t p = i + b->f.q_off;
  switch ((int)x->kind) {
    case ATTN_PATTERN_BLOCKS:
    case ATTN_PATTERN_RANDOM_BLOCKS:
    case ATTN_PATTERN_SPARSE_FIXED: return (attn_floor_(p, x->block) + 1) * x->block - b->f.q_off;
    case ATTN_PATTERN_BIGBIRD:
      return (attn_floor_(p - x->extra, x->block) + 1) * x->block + x->extra - b->f.q_off;
    case ATTN_PATTERN_BLOCKWISE:
      return attn_block_start_(i * x->count / b->f.q_len + 1, x->count, b->f.q_len);
    case ATTN_PATTERN_BLOCK_MASK: return (i / x->block + 1) * x->block;
    case ATTN_PATTERN_AXIAL: return (i / (x->step * x->count) + 1) * (x->step * x->count);
    case ATTN_PATTERN_SEGMENTS: return x->index[attn_segment_of_(x, i) + 1];
    case ATTN_PATTERN_TREE: return i < x->width ? x->width : INT64_MAX;
    case ATTN_PATTERN_IMAGE_2D:
      return (i / x->width / x->tile_height + 1) * x->tile_height * x->width;
    default: return INT64_MAX;
  }
}

/* The first leaf of a node that has cells in the order at work, or -1. */
ATTN_FUNC_ int64_t attn_cells_(const attn_build_ *b, int64_t at) {
  const attn_node_ *x = &b->node[at];
  switch ((int)x->kind) {
    case ATTN_PATTERN_BLOCKS:
    case ATTN_PATTERN_RANDOM_BLOCKS:
    case ATTN_PATTERN_SPARSE_FIXED:
    case ATTN_PATTERN_BIGBIRD:
    case ATTN_PATTERN_BLOCKWISE:
    case ATTN_PATTERN_BLOCK_MASK:
    case ATTN_PATTERN_AXIAL:
    case ATTN_PATTERN_SEGMENTS:
    case ATTN_PATTERN_TREE: return at;
    case ATTN_PATTERN_IMAGE_2D:
      return b->order.kind == ATTN_ORDER_IMAGE_ && attn_image_tiles_(x) ? at : -1;
    case ATTN_PATTERN_UNION:
    case ATTN_PATTERN_INTERSECT:
      for (int64_t k = x->part; k; k = b->node[k].next) {
        const int64_t found = attn_cells_(b, k);
        if (found >= 0) return found;
      }
      return -1;
    case ATTN_PATTERN_DIFF: return attn_cells_(b, x->part);
    default: return -1;
  }
}

/* ------------------------------------------------------------------ tiles */

/* What the rows see in this phase, in runs[0]. */
ATTN_FUNC_ int attn_eval_phase_(attn_build_ *b, const attn_rows_ *t) {
  b->s.runs[0].count = 0;
  int first = 1;
  for (int64_t k = 0; k < b->terms; k++) {
    if (b->term[k].phase != b->phase) continue;
    if (first ? !attn_eval_(&b->s, b->term[k].node, t, 0)
              : !attn_eval_onto_(&b->s, ATTN_PATTERN_UNION, b->term[k].node, t, 0))
      return 0;
    first = 0;
  }
  for (int64_t k = 0; k < b->terms; k++)
    if (b->term[k].phase < b->phase &&
        !attn_eval_onto_(&b->s, ATTN_PATTERN_DIFF, b->term[k].node, t, 0))
      return 0;
  return 1;
}

/* A tile of the rows at work, and its rows. Null = no memory. */
ATTN_FUNC_ attn_plan_tile_ *attn_put_tile_(attn_build_ *b) {
  const attn_rows_ *t = &b->t;
  attn_plan_tile_ *tile = (attn_plan_tile_ *)attn_vec_room_(&b->tile, 1, sizeof *tile);
  int32_t *row = (int32_t *)attn_vec_room_(&b->row, t->n, sizeof *row);
  if (!tile || !row) return NULL;
  for (int64_t r = 0; r < t->n; r++) row[r] = (int32_t)t->i[r];
  tile->n = (int32_t)t->n, tile->step = (int32_t)t->step;
  tile->row = b->row.count, tile->at = b->run.count, tile->count = 0;
  b->row.count += t->n, b->tile.count++;
  return tile;
}

ATTN_FUNC_ int attn_put_runs_(attn_build_ *b, const attn_price_ *c) {
  const attn_rows_ *t = &b->t;
  const attn_runs_ *in = &b->s.runs[0];
  attn_plan_tile_ *tile = attn_put_tile_(b);
  attn_plan_run_ *run = (attn_plan_run_ *)attn_vec_room_(&b->run, in->count, sizeof *run);
  if (!tile || !run) return 0;
  if (in->count) memcpy(run, in->run, (size_t)in->count * sizeof *run);
  for (int64_t x = 0; t->step > 1 && x < in->count; x++)
    run[x].key = (int32_t)(t->first + run[x].key * t->step);
  tile->count = in->count;
  b->run.count += in->count;
  b->count.full += c->full, b->count.partial += in->count - c->full;
  b->count.pairs += c->pairs, b->count.computed += c->computed;
  return 1;
}

/* The head of a tile of lists, before its keys. */
ATTN_FUNC_ attn_plan_tile_ *attn_put_lists_head_(attn_build_ *b) {
  attn_plan_tile_ *tile = attn_put_tile_(b);
  int32_t *at = (int32_t *)attn_vec_room_(&b->key, b->t.n + 1, sizeof *at);
  if (!tile || !at) return NULL;
  tile->step = 0, tile->at = b->key.count;
  b->key.count += b->t.n + 1;
  b->count.lists++;
  at[0] = 0;
  return tile;
}

ATTN_FUNC_ int attn_put_lists_(attn_build_ *b, int64_t pairs) {
  const attn_rows_ *t = &b->t;
  const attn_runs_ *in = &b->s.runs[0];
  attn_plan_tile_ *tile = attn_put_lists_head_(b);
  int64_t next[ATTN_TILE_];
  if (!tile || !attn_vec_room_(&b->key, pairs, sizeof(int32_t))) return 0;
  int32_t *at = (int32_t *)b->key.data + tile->at, *key = at + t->n + 1;
  memset(next, 0, sizeof next);
  for (int64_t x = 0; x < in->count; x++)
    for (uint64_t lanes = in->run[x].lanes; lanes; lanes &= lanes - 1)
      next[attn_lowest_(lanes)] += in->run[x].n;
  for (int64_t r = 0; r < t->n; r++) {
    at[r + 1] = (int32_t)(at[r] + next[r]);
    next[r] = at[r];
  }
  for (int64_t x = 0; x < in->count; x++)
    for (uint64_t lanes = in->run[x].lanes; lanes; lanes &= lanes - 1) {
      int64_t *to = &next[attn_lowest_(lanes)];
      for (int64_t k = 0; k < in->run[x].n; k++)
        key[(*to)++] = (int32_t)(t->first + (in->run[x].key + k) * t->step);
    }
  tile->count = pairs;
  b->key.count += pairs, b->count.pairs += pairs, b->count.computed += pairs;
  return 1;
}

/* Lists straight from single rows. b->most keeps their sum below 2^31. */
ATTN_FUNC_ int attn_put_row_lists_(attn_build_ *b) {
  attn_plan_tile_ *tile = attn_put_lists_head_(b);
  const int64_t index = b->tile.count - 1;
  int64_t pairs = 0;
  attn_rows_ one;
  if (!tile) return 0;
  const int64_t at = tile->at;
  for (int64_t r = 0; r < b->t.n; r++) {
    int64_t n = 0;
    attn_rows_one_(&one, &b->f, b->t.i[r]);
    if (!attn_eval_phase_(b, &one)) return 0;
    const attn_runs_ *in = &b->s.runs[0];
    for (int64_t x = 0; x < in->count; x++) n += in->run[x].n;
    int32_t *key = (int32_t *)attn_vec_room_(&b->key, n, sizeof *key);
    if (!key) return 0;
    for (int64_t x = 0; x < in->count; x++)
      for (int32_t k = 0; k < in->run[x].n; k++) *key++ = in->run[x].key + k;
    b->key.count += n, pairs += n;
    ((int32_t *)b->key.data)[at + r + 1] = (int32_t)pairs;
  }
  ((attn_plan_tile_ *)b->tile.data)[index].count = pairs;
  b->count.pairs += pairs, b->count.computed += pairs;
  return 1;
}

ATTN_FUNC_ int attn_put_(attn_build_ *b) {
  attn_price_ c;
  if (b->t.n == 0) return 1;
  for (int64_t r = 0; r < b->t.n; r++) b->t.p[r] = b->t.i[r] + b->f.q_off;
  if (b->order.kind == ATTN_ORDER_LISTS_) return attn_put_row_lists_(b);
  if (!attn_eval_phase_(b, &b->t)) return 0;
  attn_price_of_(&c, &b->s.runs[0], b->t.n);
  if (c.pairs > 0 && c.pairs <= INT32_MAX && c.lists < c.runs) return attn_put_lists_(b, c.pairs);
  return attn_put_runs_(b, &c);
}

/* The next row of a stream. A tile ends with its last whole cell, unless that fills it. */
ATTN_FUNC_ int attn_put_row_(attn_build_ *b, int64_t i) {
  attn_rows_ *t = &b->t;
  const int begins = i >= b->border;
  if (t->n == b->most) {
    int64_t rest[ATTN_TILE_];
    const int64_t whole = begins || b->cell == 0 ? t->n : b->cell, left = t->n - whole;
    memcpy(rest, t->i + whole, (size_t)left * sizeof *rest);
    t->n = whole;
    if (!attn_put_(b)) return 0;
    memcpy(t->i, rest, (size_t)left * sizeof *rest);
    t->n = left, b->cell = 0;
  }
  if (begins) {
    b->cell = t->n;
    b->border = b->cells < 0 ? INT64_MAX : attn_cell_end_(b, b->cells, i);
  }
  t->i[t->n++] = i;
  return 1;
}

/* Tiles do not cross streams. */
ATTN_FUNC_ int attn_end_stream_(attn_build_ *b) {
  const int fits = attn_put_(b);
  b->t.n = 0, b->cell = 0, b->border = INT64_MIN;
  return fits;
}

/* One stream: rows y wide pixels apart, `wide` of them at a time. */
ATTN_FUNC_ int attn_stream_rows_(attn_build_ *b, int64_t first, int64_t wide, int64_t apart) {
  for (int64_t y = first; y < b->f.q_len; y += apart)
    for (int64_t i = y; i < y + wide && i < b->f.q_len; i++)
      if (!(b->heavies && b->heavy[i >> 6] >> (i & 63) & 1) && !attn_put_row_(b, i)) return 0;
  return attn_end_stream_(b);
}

ATTN_FUNC_ int attn_heavy_stream_(attn_build_ *b) {
  b->cells = -1;
  for (int64_t w = 0; w <= b->f.q_len / 64; w++)
    for (; b->heavy[w]; b->heavy[w] &= b->heavy[w] - 1)
      if (!attn_put_row_(b, w * 64 + attn_lowest_(b->heavy[w]))) return 0;
  b->heavies = 0;
  return attn_end_stream_(b);
}

ATTN_FUNC_ int attn_build_phase_(attn_build_ *b) {
  attn_rows_ *t = &b->t;
  int64_t *start = (int64_t *)attn_vec_room_(&b->start, 1, sizeof *start);
  if (!start) return 0;
  *start = b->tile.count, b->start.count++;
  b->order = attn_order_make_(ATTN_ORDER_NATURAL_, 1, 0), b->cells = -1;
  for (int64_t k = b->terms - 1; k >= 0; k--)
    if (b->term[k].phase == b->phase) b->order = b->term[k].order;
  for (int64_t k = b->terms - 1; k >= 0; k--)
    if (b->term[k].phase == b->phase) {
      const int64_t cells = attn_cells_(b, b->term[k].node);
      if (cells >= 0) b->cells = cells;
      if (b->order.kind == ATTN_ORDER_NATURAL_) attn_heavy_(b, b->term[k].node);
    }
  b->most = ATTN_TILE_;
  if (b->order.kind == ATTN_ORDER_LISTS_)
    b->most = attn_max64_(attn_min64_(ATTN_TILE_, INT32_MAX / attn_max64_(b->f.k_len, 1)), 1);
  b->border = INT64_MIN, b->cell = 0;
  t->f = &b->f, t->n = 0, t->step = 1, t->first = 0, t->keys = b->f.k_len;
  const int64_t step = b->order.step;
  if (b->order.kind == ATTN_ORDER_CLASS_) {
    t->step = step;
    for (t->first = 0; t->first < step; t->first++) {
      const int64_t i = t->first - b->f.q_off - attn_floor_(t->first - b->f.q_off, step) * step;
      t->keys = attn_max64_(attn_ceil_(b->f.k_len - t->first, step), 0);
      if (!attn_stream_rows_(b, i, 1, step)) return 0;
    }
    return 1;
  }
  if (b->order.kind == ATTN_ORDER_IMAGE_) {
    const int64_t w = b->order.width;
    for (int64_t x = 0; x < w; x += step)
      if (!attn_stream_rows_(b, x, attn_min64_(step, w - x), w)) return 0;
    return 1;
  }
  return attn_stream_rows_(b, 0, b->f.q_len, attn_max64_(b->f.q_len, 1)) &&
         (!b->heavies || attn_heavy_stream_(b));
}

/* ------------------------------------------------------------------ variants */

ATTN_FUNC_ void attn_terms_(attn_build_ *b, int64_t at) {
  if (b->node[at].kind == ATTN_PATTERN_UNION) {
    for (int64_t k = b->node[at].part; k; k = b->node[k].next) attn_terms_(b, k);
  } else {
    b->term[b->terms].node = at;
    b->term[b->terms++].phase = -1;
  }
}

/* The tiles of one variant, whose nodes are in b->node. 0 = no memory. */
ATTN_FUNC_ int attn_build_variant_(attn_build_ *b) {
  int64_t phases = 0;
  b->s.node = b->node;
  memset(&b->count, 0, sizeof b->count);
  b->terms = 0;
  attn_terms_(b, 0);
  for (int64_t k = 0; k < b->terms; k++)
    if (!attn_order_settle_(b, &b->term[k])) return 0;
  for (int64_t kind = 0; kind < ATTN_ORDERS_; kind++)
    for (int64_t k = 0; k < b->terms; k++) {
      if (b->term[k].order.kind != kind || b->term[k].phase >= 0) continue;
      for (int64_t m = k; m < b->terms; m++)
        if (attn_same_order_(b->term[m].order, b->term[k].order)) b->term[m].phase = phases;
      phases++;
    }
  if (phases == 0) phases = 1; /* the empty union */
  for (b->phase = 0; b->phase < phases; b->phase++)
    if (!attn_build_phase_(b)) return 0;
  int32_t *mine = (int32_t *)attn_vec_room_(&b->phases, 1, sizeof *mine);
  attn_counts_ *counts = (attn_counts_ *)attn_vec_room_(&b->counts, 1, sizeof *counts);
  if (!mine || !counts) return 0;
  *mine = (int32_t)phases, *counts = b->count;
  b->phases.count++, b->counts.count++;
  return 1;
}
/* <<< attn/engine/schedule.h */
/* >>> attn/engine/bytes.h */
/* engine/bytes.h owns schedules as bytes: their layout, written and checked in one way. Sections
 * follow each other in the order of the header without gaps but those of alignment, so that bytes
 * from anywhere can be judged by recomputing it. */

ATTN_FUNC_ int64_t attn_section_(int64_t *end, int64_t n, int64_t size) {
  const int64_t at = *end, bytes = attn_mul_(n, size);
  *end = attn_add_(at, bytes > INT64_MAX - 7 ? INT64_MAX : (bytes + 7) / 8 * 8);
  return at;
}

/* Sets every offset and the total from the counts; bytes is INT64_MAX when it does not fit. */
ATTN_FUNC_ void attn_plan_layout_(attn_plan_ *p) {
  int64_t end = sizeof *p;
  p->at_head = attn_section_(&end, p->heads, sizeof(int32_t));
  p->at_phase = attn_section_(&end, p->variants, sizeof(int32_t));
  p->at_tiles =
      attn_section_(&end, attn_add_(attn_mul_(p->variants, p->phases), 1), sizeof(int64_t));
  p->at_tile = attn_section_(&end, p->tiles, sizeof(attn_plan_tile_));
  p->at_run = attn_section_(&end, p->runs, sizeof(attn_plan_run_));
  p->at_row = attn_section_(&end, p->rows, sizeof(int32_t));
  p->at_key = attn_section_(&end, p->keys, sizeof(int32_t));
  p->bytes = end;
}

/* The header of what has been built; head[h] is the variant of head h. */
ATTN_FUNC_ void attn_plan_header_(attn_plan_ *p, attn_build_ *b, int64_t heads,
                                  const int32_t *head) {
  attn_counts_ *c = (attn_counts_ *)b->counts.data;
  memset(p, 0, sizeof *p);
  p->magic = ATTN_PLAN_MAGIC_;
  p->heads = heads, p->q_len = b->f.q_len, p->k_len = b->f.k_len, p->q_off = b->f.q_off;
  p->variants = b->counts.count, p->phases = 1;
  p->tiles = b->tile.count, p->runs = b->run.count;
  p->rows = b->row.count, p->keys = b->key.count;
  for (int64_t h = 0; h < heads; h++) c[head[h]].heads++;
  for (int64_t v = 0; v < p->variants; v++) {
    p->phases = attn_max64_(p->phases, ((int32_t *)b->phases.data)[v]);
    p->pairs = attn_add_(p->pairs, attn_mul_(c[v].pairs, c[v].heads));
    p->computed = attn_add_(p->computed, attn_mul_(c[v].computed, c[v].heads));
    p->full = attn_add_(p->full, attn_mul_(c[v].full, c[v].heads));
    p->partial = attn_add_(p->partial, attn_mul_(c[v].partial, c[v].heads));
    p->lists = attn_add_(p->lists, attn_mul_(c[v].lists, c[v].heads));
  }
  attn_plan_layout_(p);
}

ATTN_FUNC_ void attn_plan_copy_(char *to, int64_t at, const void *from, int64_t n, int64_t size) {
  const int64_t bytes = n * size;
  if (bytes) memcpy(to + at, from, (size_t)bytes);
  if (bytes % 8) memset(to + at + bytes, 0, (size_t)(8 - bytes % 8));
}

/* p->bytes bytes. */
ATTN_FUNC_ void attn_plan_write_(void *memory, const attn_plan_ *p, const attn_build_ *b,
                                 const int32_t *head) {
  char *to = (char *)memory;
  const int32_t *phases = (const int32_t *)b->phases.data;
  const int64_t *start = (const int64_t *)b->start.data;
  int64_t *tiles = (int64_t *)(void *)(to + p->at_tiles), next = 0;
  memcpy(to, p, sizeof *p);
  attn_plan_copy_(to, p->at_head, head, p->heads, sizeof(int32_t));
  attn_plan_copy_(to, p->at_phase, phases, p->variants, sizeof(int32_t));
  for (int64_t v = 0; v < p->variants; v++) {
    for (int64_t k = 0; k < p->phases; k++) /* phases it has not are empty */
      *tiles++ = next + k < b->start.count && k < phases[v] ? start[next + k]
                 : next + phases[v] < b->start.count        ? start[next + phases[v]]
                                                            : p->tiles;
    next += phases[v];
  }
  *tiles = p->tiles;
  attn_plan_copy_(to, p->at_tile, b->tile.data, p->tiles, sizeof(attn_plan_tile_));
  attn_plan_copy_(to, p->at_run, b->run.data, p->runs, sizeof(attn_plan_run_));
  attn_plan_copy_(to, p->at_row, b->row.data, p->rows, sizeof(int32_t));
  attn_plan_copy_(to, p->at_key, b->key.data, p->keys, sizeof(int32_t));
}

ATTN_FUNC_ int attn_count_ok_(int64_t n) { return n >= 0 && n <= INT32_MAX; }

/* One tile; counts what it holds. */
ATTN_FUNC_ int attn_plan_tile_ok_(const attn_plan_ *p, const attn_plan_tile_ *t,
                                  attn_counts_ *count) {
  if (t->n < 1 || t->n > ATTN_TILE_ || t->step < 0 || t->count < 0 || t->at < 0 || t->row < 0 ||
      t->row > p->rows - t->n)
    return 0;
  const int32_t *row = (const int32_t *)attn_plan_at_(p, p->at_row) + t->row;
  for (int64_t r = 0, above = -1; r < t->n; above = row[r++])
    if (row[r] <= above || row[r] >= p->q_len) return 0;
  if (t->step == 0) {
    if (t->at > p->keys - t->n - 1 || t->count > p->keys - t->at - t->n - 1) return 0;
    const int32_t *at = (const int32_t *)attn_plan_at_(p, p->at_key) + t->at;
    const int32_t *key = at + t->n + 1;
    if (at[0] != 0 || at[t->n] != t->count) return 0;
    for (int64_t r = 0; r < t->n; r++)
      if (at[r] > at[r + 1]) return 0;
    for (int64_t r = 0; r < t->n; r++)
      for (int64_t k = at[r], above = -1; k < at[r + 1]; above = key[k++])
        if (key[k] <= above || key[k] >= p->k_len) return 0;
    count->pairs += t->count, count->computed += t->count, count->lists++;
    return 1;
  }
  if (t->at > p->runs - t->count) return 0;
  const attn_plan_run_ *run = (const attn_plan_run_ *)attn_plan_at_(p, p->at_run) + t->at;
  attn_runs_ all;
  attn_price_ c;
  int64_t above = -1;
  for (int64_t x = 0; x < t->count; x++) {
    const attn_plan_run_ *r = &run[x];
    if (r->key <= above || r->n < 1 || !r->lanes || (r->lanes & ~attn_low_bits_(t->n))) return 0;
    if (r->key % t->step != run[0].key % t->step) return 0; /* the driver counts in steps */
    above = r->key + (r->n - (int64_t)1) * t->step;
    if (above >= p->k_len) return 0;
  }
  all.run = (attn_plan_run_ *)(uintptr_t)run, all.count = t->count; /* is only read */
  attn_price_of_(&c, &all, t->n);
  count->pairs += c.pairs, count->computed += c.computed;
  count->full += c.full, count->partial += t->count - c.full;
  return 1;
}

/* The tiles of one phase, which must hold every row once. seen: bits of q_len rows. */
ATTN_FUNC_ int attn_plan_phase_ok_(const attn_plan_ *p, int64_t from, int64_t end, uint64_t *seen,
                                   attn_counts_ *count) {
  const attn_plan_tile_ *tile = (const attn_plan_tile_ *)attn_plan_at_(p, p->at_tile);
  const int32_t *row = (const int32_t *)attn_plan_at_(p, p->at_row);
  int64_t rows = 0;
  memset(seen, 0, (size_t)(p->q_len / 64 + 1) * sizeof *seen);
  for (int64_t k = from; k < end; k++) {
    if (!attn_plan_tile_ok_(p, &tile[k], count)) return 0;
    for (int64_t r = 0; r < tile[k].n; r++) {
      const int32_t i = row[tile[k].row + r];
      if (seen[i >> 6] >> (i & 63) & 1) return 0;
      seen[i >> 6] |= attn_bit_(i & 63);
    }
    rows += tile[k].n;
  }
  return rows == p->q_len;
}

/* Header, sizes and the tables of heads, phases and tiles. */
ATTN_FUNC_ int attn_plan_frame_ok_(const attn_plan_ *p) {
  attn_plan_ same = *p;
  if (!attn_count_ok_(p->heads) || !attn_count_ok_(p->q_len) || !attn_count_ok_(p->k_len) ||
      attn_abs64_(p->q_off) > INT32_MAX || !attn_count_ok_(p->phases) || p->phases < 1 ||
      p->variants < (p->heads > 0) || p->variants > p->heads || p->tiles < 0 || p->runs < 0 ||
      p->rows < 0 || p->keys < 0)
    return 0;
  attn_plan_layout_(&same);
  if (memcmp(&same, p, sizeof same) != 0) return 0;
  const int32_t *head = (const int32_t *)attn_plan_at_(p, p->at_head);
  const int32_t *phases = (const int32_t *)attn_plan_at_(p, p->at_phase);
  const int64_t *tiles = (const int64_t *)attn_plan_at_(p, p->at_tiles);
  for (int64_t h = 0; h < p->heads; h++)
    if (head[h] < 0 || head[h] >= p->variants) return 0;
  for (int64_t v = 0; v < p->variants; v++)
    if (phases[v] < 1 || phases[v] > p->phases) return 0;
  const int64_t n = p->variants * p->phases;
  if (tiles[0] != 0 || tiles[n] != p->tiles) return 0;
  for (int64_t k = 0; k < n; k++)
    if (tiles[k] > tiles[k + 1] ||
        (k % p->phases >= phases[k / p->phases] && tiles[k] != tiles[k + 1]))
      return 0;
  return 1;
}

/* Everything; seen as above. The counts must be right too. */
ATTN_FUNC_ int attn_plan_ok_(const attn_plan_ *p, uint64_t *seen) {
  const int32_t *head = (const int32_t *)attn_plan_at_(p, p->at_head);
  const int32_t *phases = (const int32_t *)attn_plan_at_(p, p->at_phase);
  const int64_t *tiles = (const int64_t *)attn_plan_at_(p, p->at_tiles);
  attn_counts_ sum;
  memset(&sum, 0, sizeof sum);
  for (int64_t v = 0; v < p->variants; v++) {
    attn_counts_ c;
    memset(&c, 0, sizeof c);
    for (int64_t k = v * p->phases; k < v * p->phases + phases[v]; k++)
      if (!attn_plan_phase_ok_(p, tiles[k], tiles[k + 1], seen, &c)) return 0;
    for (int64_t h = 0; h < p->heads; h++) c.heads += head[h] == v;
    sum.pairs = attn_add_(sum.pairs, attn_mul_(c.pairs, c.heads));
    sum.computed = attn_add_(sum.computed, attn_mul_(c.computed, c.heads));
    sum.full = attn_add_(sum.full, attn_mul_(c.full, c.heads));
    sum.partial = attn_add_(sum.partial, attn_mul_(c.partial, c.heads));
    sum.lists = attn_add_(sum.lists, attn_mul_(c.lists, c.heads));
  }
  return sum.pairs == p->pairs && sum.computed == p->computed && sum.full == p->full &&
         sum.partial == p->partial && sum.lists == p->lists;
}
/* <<< attn/engine/bytes.h */
/* >>> attn/engine/t5.h */
/* engine/t5.h owns T5's rule of distance buckets. It is exact: no logarithm of a floating
 * point number decides a bucket. */

enum { ATTN_T5_MOST_ = 1024 }; /* buckets, both sides together */

/* The resolved rule: side buckets on each side, the first `exact` of which hold one distance. */
typedef struct attn_t5_rule_ {
  int64_t side, exact, logs, most; /* logs = side - exact; most = max_distance */
  int bidirectional;
} attn_t5_rule_;

/* 0 when the arguments are invalid. */
ATTN_FUNC_ int attn_t5_rule_of_(attn_t5_rule_ *t, int64_t buckets, int64_t max_distance,
                                int bidirectional) {
  if (buckets == 0) buckets = 32;
  if (max_distance == 0) max_distance = 128;
  t->bidirectional = bidirectional != 0;
  t->side = bidirectional ? buckets / 2 : buckets;
  t->exact = t->side / 2;
  t->logs = t->side - t->exact;
  t->most = max_distance;
  return buckets <= ATTN_T5_MOST_ && t->exact >= 1 && max_distance > t->exact &&
         max_distance <= INT32_MAX;
}

/* x *= by; x has n limbs, the lowest first. Returns the limbs it has then. */
ATTN_FUNC_ int attn_big_times_(uint32_t *x, int n, int64_t by) {
  uint64_t carry = 0;
  for (int i = 0; i < n; i++) {
    carry += (uint64_t)x[i] * (uint64_t)by;
    x[i] = (uint32_t)carry;
    carry >>= 32;
  }
  if (carry) x[n++] = (uint32_t)carry;
  return n;
}

/* Whether distance a has reached logarithmic bucket k: a^logs >= exact^(logs - k) most^k, for
 * exact <= a < most. The quotient in double settles all but (near) ties, which are settled in
 * whole numbers. */
ATTN_FUNC_ int attn_t5_reaches_(const attn_t5_rule_ *t, int64_t a, int64_t k) {
  const double up = (double)a / (double)t->exact, down = (double)a / (double)t->most;
  const double slack = (double)t->logs * (1.0 / 1125899906842624.0); /* 4 roundings a factor */
  int64_t ups = t->logs - k, downs = k;
  double r = 1.0;
  while (ups + downs > 0) { /* in an order that keeps r near 1 */
    if (downs > 0 && (r >= 1.0 || ups == 0))
      r *= down, downs--;
    else
      r *= up, ups--;
  }
  if (r > 1.0 + slack) return 1;
  if (r < 1.0 - slack) return 0;
  uint32_t left[ATTN_T5_MOST_ / 2 + 1], right[ATTN_T5_MOST_ / 2 + 1];
  int nl = 1, nr = 1;
  left[0] = right[0] = 1;
  for (int64_t i = 0; i < t->logs; i++) {
    nl = attn_big_times_(left, nl, a);
    nr = attn_big_times_(right, nr, i < k ? t->most : t->exact);
  }
  if (nl != nr) return nl > nr;
  while (nl > 0 && left[nl - 1] == right[nl - 1]) nl--;
  return nl == 0 || left[nl - 1] > right[nl - 1];
}

/* edge[n] is the smallest distance of bucket n of a side, n = 0..side-1; nondecreasing, so that a
 * bucket between equal edges has none. edge has ATTN_T5_MOST_ entries. */
ATTN_FUNC_ void attn_t5_edges_(int64_t *edge, const attn_t5_rule_ *t) {
  for (int64_t n = 0; n <= t->exact; n++) edge[n] = n;
  for (int64_t k = 1; k < t->logs; k++) {
    int64_t lo = edge[t->exact + k - 1], hi = t->most; /* lo - 1 does not reach k, most does */
    while (lo < hi) {
      const int64_t mid = lo + (hi - lo) / 2;
      if (attn_t5_reaches_(t, mid, k))
        hi = mid;
      else
        lo = mid + 1;
    }
    edge[t->exact + k] = lo;
  }
}

/* bucket[n] = the bucket of distance first + n, for count distances within 2^62 of 0. */
ATTN_FUNC_ void attn_t5_fill_(int32_t *bucket, int64_t first, int64_t count,
                              const attn_t5_rule_ *t) {
  int64_t edge[ATTN_T5_MOST_], k = t->side - 1;
  attn_t5_edges_(edge, t);
  for (int64_t n = 0; n < count; n++) {
    const int64_t d = first + n, base = t->bidirectional && d > 0 ? t->side : 0;
    const int64_t a = d <= 0 ? -d : t->bidirectional ? d : 0;
    while (k > 0 && edge[k] > a) k--;
    while (k + 1 < t->side && edge[k + 1] <= a) k++;
    bucket[n] = (int32_t)(base + k);
  }
}

ATTN_PUB_ int64_t attn_t5_bucket(int64_t distance, int bidirectional, int64_t buckets,
                                 int64_t max_distance) {
  attn_t5_rule_ t;
  if (!attn_t5_rule_of_(&t, buckets, max_distance, bidirectional)) return -1;
  const int64_t base = bidirectional && distance > 0 ? t.side : 0;
  const int64_t a = !bidirectional && distance > 0 ? 0 : attn_abs64_(distance);
  if (a < t.exact) return base + a;
  if (a >= t.most) return base + t.side - 1;
  int64_t lo = 0, hi = t.logs; /* reaches lo, not hi (hi is cut off) */
  while (hi - lo > 1) {
    const int64_t mid = lo + (hi - lo) / 2;
    if (attn_t5_reaches_(&t, a, mid))
      lo = mid;
    else
      hi = mid;
  }
  return base + t.exact + lo;
}
/* <<< attn/engine/t5.h */
/* >>> attn/engine/tile.h */
/* engine/tile.h owns what the exact-softmax engine works on: the problem (attn_softmax_), the
 * memory of a worker and the lanes of a tile.
 *
 * A tile is up to ATTN_TILE_ query rows that read the same keys and values: rows of one head, or
 * of all heads of a group, query by query. */

/* The pieces of a worker's memory. */
enum {
  ATTN_P_QT_,
  ATTN_P_S_,
  ATTN_P_OT_,
  ATTN_P_K_,
  ATTN_P_V_,
  ATTN_P_BIAS_,
  ATTN_P_DOT_,
  ATTN_P_HIT_,
  ATTN_P_ROWS_,
  ATTN_P_INDEX_,
  ATTN_P_Q_ROWS_,
  ATTN_P_O_ROWS_,
  ATTN_P_XL_QT_,
  ATTN_P_XL_DOTS_,
  ATTN_P_REL_KEYS_,
  ATTN_P_REL_VALUES_,
  ATTN_P_REL_HIT_,
  ATTN_P_LABELS_,
  ATTN_P_HELD_,
  ATTN_P_PAIRS_,
  ATTN_PIECES_
};

/* Score terms that depend on head and distance alone. */
typedef struct attn_distance_terms_ {
  attn_toeplitz toeplitz;
  attn_t5 t5;
  attn_parabola parabola;
  attn_distance_factor factor;
} attn_distance_terms_;

typedef struct attn_softmax_ {
  const attn_table_ *table;
  attn_tensor o, q, k, v, lse, map; /* lse and map: data null = absent */
  attn_mask mask, bias;
  const int32_t *kv_len, *q_len;
  const float *alibi, *sinks;
  int softmax_one;
  double unit;                    /* of a score: log2 e, or 1 for rectified weights */
  double scale;                   /* the caller's, natural */
  float softcap;                  /* score units, 0 = off */
  float scale_hi, scale_lo;       /* scale * unit, folded into the packed queries (E3) */
  int64_t q_off, left, right;     /* row i sees keys i+q_off-left .. i+q_off+right */
  const attn_plan_ *plan;         /* a schedule, or null */
  const attn_edges_params *edges; /* key lists of the call, or null */
  attn_relative relative;
  attn_xl xl;
  attn_labels labels;
  attn_gaussian gaussian;
  attn_span span;
  attn_score_fn modify;
  void *modify_user;
  attn_distance_terms_ by_distance;
  const float *factor, *distance; /* [distance_heads][distances], see engine/distance.h */
  int64_t distances, distance_heads;
  const struct attn_relu_ *relu; /* rectified weights in place of a softmax */
  int64_t group;                 /* query heads that share key and value heads */
  int64_t tiles;                 /* per (batch, group) */
  int64_t bytes;                 /* memory of one worker, cut at these offsets */
  int64_t offset[ATTN_PIECES_];
  char *workspace;
  /* With several phases the state of every row waits here between them. */
  int phase, phases, counting;
  float *state_m, *state_l, *state_n,
      *state_o; /* [B,H,Tq], state_o [B,H,Tq,dv] or null: o itself */
} attn_softmax_;

typedef struct attn_relu_ {
  const attn_relu_params *params;
  int square;
  int count_first; /* scores need the number of allowed keys */
  int by_square;   /* the weights are divided by its square */
} attn_relu_;

/* Which keys the gathered rows in a worker's memory belong to: tiles of one residue class share
 * them. n = 0: to none. */
typedef struct attn_held_ {
  int64_t batch, head_k, head_v;
  int n;
  int32_t index[ATTN_BLOCK_];
} attn_held_;

/* What one worker works in. */
typedef struct attn_scratch_ {
  float *qt;                    /* [dk][tile] packed queries */
  float *s;                     /* [block][tile] scores, then weights */
  float *ot;                    /* [dv][tile] accumulator */
  float *k, *v;                 /* [block][dk], [block][dv] converted or gathered rows */
  float *bias, *dot;            /* [block][tile] */
  unsigned char *hit;           /* [block][tile] which lanes read a value row that is not finite */
  float *rows;                  /* [tile][ATTN_ROOM_] scores by row */
  int32_t *index;               /* [2][tile][block] key lists, and where they are in the caller's */
  float *q_rows, *o_rows;       /* [2][tile][dk], [tile][dv] */
  float *xl_qt, *xl_dots;       /* [dk][tile], [ATTN_ROOM_][tile] */
  float *rel_keys, *rel_values; /* [distance][tile]: dots with each vector, weights on each */
  unsigned char *rel_hit;       /* [distance][tile] which lanes have a key at it */
  float *labels;                /* [label][tile] dots with each vector */
  attn_held_ *held;
  int64_t *pairs;
} attn_scratch_;

/* Distances between a lane group and a block of keys, rounded up. */
#define ATTN_ROOM_ (ATTN_BLOCK_ + ATTN_GROUP_)

/* Distances that a tile needs of a table of relative vectors. */
ATTN_FUNC_ int64_t attn_relative_rows_(const attn_softmax_ *a) {
  const int64_t len = a->relative.keys.data ? a->relative.keys.len : a->relative.values.len;
  const int64_t most = attn_add_(a->q.len, a->k.len);
  return len < most ? len : most;
}

/* Fills a->offset; the total is one worker's memory, INT64_MAX when it cannot be. */
ATTN_FUNC_ int64_t attn_scratch_plan_(attn_softmax_ *a) {
  const int64_t tile = ATTN_TILE_, block = ATTN_BLOCK_, f = sizeof(float);
  const int64_t cells = attn_piece_(block * tile, f), room = attn_piece_(ATTN_ROOM_ * tile, f);
  const int64_t dk = attn_piece_(attn_mul_(a->q.dim, tile), f);
  const int64_t dv = attn_piece_(attn_mul_(a->v.dim, tile), f);
  const int gathers = a->plan || a->edges, lists = gathers || a->xl.table.data;
  int64_t size[ATTN_PIECES_] = {0}, total = 0;
  size[ATTN_P_QT_] = dk, size[ATTN_P_S_] = cells, size[ATTN_P_OT_] = dv;
  if (gathers || a->k.dtype != ATTN_F32)
    size[ATTN_P_K_] = attn_piece_(attn_mul_(a->k.dim, block), f);
  size[ATTN_P_V_] = attn_piece_(attn_mul_(a->v.dim, block), f);
  if (gathers || a->bias.kind) size[ATTN_P_BIAS_] = cells;
  if (gathers || a->xl.table.data) size[ATTN_P_DOT_] = cells;
  size[ATTN_P_HIT_] = attn_piece_(block * tile, 1);
  if (lists) {
    size[ATTN_P_ROWS_] = room, size[ATTN_P_INDEX_] = 2 * cells;
    size[ATTN_P_Q_ROWS_] = attn_mul_(dk, 2);
  }
  if (gathers) size[ATTN_P_O_ROWS_] = dv;
  if (a->xl.table.data) {
    size[ATTN_P_XL_QT_] = dk;
    size[ATTN_P_XL_DOTS_] = attn_piece_((block + tile) * tile, f);
  }
  const int64_t relative = attn_piece_(attn_mul_(attn_relative_rows_(a), tile), f);
  if (a->relative.keys.data) size[ATTN_P_REL_KEYS_] = relative;
  if (a->relative.values.data) {
    size[ATTN_P_REL_VALUES_] = relative;
    size[ATTN_P_REL_HIT_] = attn_piece_(attn_mul_(attn_relative_rows_(a), tile), 1);
  }
  if (a->labels.label) size[ATTN_P_LABELS_] = attn_piece_(attn_mul_(a->labels.table.len, tile), f);
  size[ATTN_P_HELD_] = attn_piece_(1, sizeof(attn_held_));
  size[ATTN_P_PAIRS_] = attn_piece_(1, sizeof(int64_t));
  for (int i = 0; i < ATTN_PIECES_; i++) a->offset[i] = total, total = attn_add_(total, size[i]);
  return total;
}

ATTN_FUNC_ void attn_scratch_cut_(const attn_softmax_ *a, int worker, attn_scratch_ *w) {
  char *at = a->workspace + worker * a->bytes;
#define ATTN_CUT_(member, type, piece) w->member = (type *)(void *)(at + a->offset[piece])
  ATTN_CUT_(qt, float, ATTN_P_QT_);
  ATTN_CUT_(s, float, ATTN_P_S_);
  ATTN_CUT_(ot, float, ATTN_P_OT_);
  ATTN_CUT_(k, float, ATTN_P_K_);
  ATTN_CUT_(v, float, ATTN_P_V_);
  ATTN_CUT_(bias, float, ATTN_P_BIAS_);
  ATTN_CUT_(dot, float, ATTN_P_DOT_);
  ATTN_CUT_(hit, unsigned char, ATTN_P_HIT_);
  ATTN_CUT_(rows, float, ATTN_P_ROWS_);
  ATTN_CUT_(index, int32_t, ATTN_P_INDEX_);
  ATTN_CUT_(q_rows, float, ATTN_P_Q_ROWS_);
  ATTN_CUT_(o_rows, float, ATTN_P_O_ROWS_);
  ATTN_CUT_(xl_qt, float, ATTN_P_XL_QT_);
  ATTN_CUT_(xl_dots, float, ATTN_P_XL_DOTS_);
  ATTN_CUT_(rel_keys, float, ATTN_P_REL_KEYS_);
  ATTN_CUT_(rel_values, float, ATTN_P_REL_VALUES_);
  ATTN_CUT_(rel_hit, unsigned char, ATTN_P_REL_HIT_);
  ATTN_CUT_(labels, float, ATTN_P_LABELS_);
  ATTN_CUT_(held, attn_held_, ATTN_P_HELD_);
  ATTN_CUT_(pairs, int64_t, ATTN_P_PAIRS_);
#undef ATTN_CUT_
}

/* The lanes of one tile. */
typedef struct attn_tile_ {
  const attn_softmax_ *a;
  attn_scratch_ w;
  const attn_plan_tile_ *plan; /* its runs or lists, when there is a schedule */
  const attn_plan_tile_ *next; /* the tile that comes after it, or null */
  int asked;                   /* rows of that one which are on their way */
  int64_t batch, head_k, head_v;
  int n, groups;                                   /* rows and lane groups in use */
  int lined;                                       /* consecutive rows of one head */
  int careful;                                     /* the second sweep, see attn_tile_clean_ */
  int rel_careful;                                 /* likewise, see attn_tile_relative_ */
  int partial;                                     /* some pair of a visited block is forbidden */
  int64_t lo[ATTN_TILE_], hi[ATTN_TILE_];          /* keys each row may see */
  int64_t pos[ATTN_TILE_];                         /* its key position */
  const char *mask[ATTN_TILE_], *bias[ATTN_TILE_]; /* its mask rows */
  int64_t head[ATTN_TILE_], row[ATTN_TILE_];
  void *out[ATTN_TILE_];
  float m[ATTN_TILE_], l[ATTN_TILE_], alpha[ATTN_TILE_], top[ATTN_TILE_], spare[ATTN_TILE_];
  float scale[ATTN_TILE_], slope[ATTN_TILE_], rel[ATTN_TILE_], from[ATTN_TILE_], to[ATTN_TILE_];
  float center[ATTN_TILE_], precision[ATTN_TILE_], start[ATTN_TILE_], count[ATTN_TILE_];
  int32_t index[ATTN_TILE_]; /* of the lanes in an array by distance */
  int64_t flat;              /* keys from here on have a ramp of 1 in every lane */
  int64_t xl_next;           /* the key that w.xl_dots goes on with */
  int64_t rel_first;         /* distance of the first row of w.rel_keys and w.rel_values */
  int64_t rel_rows;
  struct {
    int64_t lo_min, lo_max, hi_min, hi_max; /* over the rows that see a key; empty: all 0 */
    int64_t pos_min, pos_max;
    int ragged; /* some row sees no key */
  } g[ATTN_TILE_ / ATTN_GROUP_];
} attn_tile_;

/* 0, 1, .. as floats: the keys of a block of consecutive ones, counted from its base; joined runs of
 * a schedule may pass the next one */
#define ATTN_COUNT8_(n) n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7
#define ATTN_COUNT32_(n) \
  ATTN_COUNT8_(n), ATTN_COUNT8_(n + 8), ATTN_COUNT8_(n + 16), ATTN_COUNT8_(n + 24)
static const float attn_count_[2 * ATTN_BLOCK_] = {
    ATTN_COUNT32_(0),   ATTN_COUNT32_(32),  ATTN_COUNT32_(64),  ATTN_COUNT32_(96),
    ATTN_COUNT32_(128), ATTN_COUNT32_(160), ATTN_COUNT32_(192), ATTN_COUNT32_(224)};
#undef ATTN_COUNT8_
#undef ATTN_COUNT32_

/* Lanes that hold a row. */
ATTN_FUNC_ uint64_t attn_tile_all_(const attn_tile_ *t) {
  return t->n == ATTN_TILE_ ? ~(uint64_t)0 : ((uint64_t)1 << t->n) - 1;
}

ATTN_FUNC_ char *attn_at_(const attn_tensor *t, int64_t b, int64_t h, int64_t i) {
  return (char *)t->data +
         (b * t->stride_batch + h * t->stride_head + i * t->stride_len) * attn_size_(t->dtype);
}

/* Row i of a table that is [1, 1 or H, len, dim]. */
ATTN_FUNC_ const float *attn_table_row_(const attn_tensor *t, int64_t h, int64_t i) {
  return (const float *)(const void *)attn_at_(t, 0, t->heads > 1 ? h : 0, i);
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

/* A natural logarithm in score units; -inf stays -inf. */
ATTN_FUNC_ float attn_to_unit_(const attn_softmax_ *a, float x) {
  return x - x != 0.0f ? x : (float)attn_clamp_f64_((double)x * a->unit);
}

/* Where the numbers of row (b, h, i) are in an array [B, H, Tq]. */
ATTN_FUNC_ int64_t attn_row_number_(const attn_softmax_ *a, int64_t b, int64_t h, int64_t i) {
  return (b * a->q.heads + h) * a->q.len + i;
}

/* Which rows a tile holds: rows first .. of a (batch, head group), query by query, */
ATTN_FUNC_ void attn_tile_group_rows_(attn_tile_ *t, int64_t unit, int64_t tile) {
  const attn_softmax_ *a = t->a;
  const int64_t groups = a->q.heads / a->group, rows = a->group * a->q.len;
  const int64_t first = tile * ATTN_TILE_, head0 = unit % groups * a->group;
  t->batch = unit / groups;
  t->n = rows - first < ATTN_TILE_ ? (int)(rows - first) : ATTN_TILE_;
  /* neighbours in lanes are neighbours in position, whatever the group */
  int64_t i = first / a->group - 1, h = head0 + a->group - 1;
  if (first % a->group) i++, h = head0 + first % a->group - 1;
  for (int r = 0; r < t->n; r++) {
    if (++h == head0 + a->group) h = head0, i++;
    t->row[r] = i, t->head[r] = h;
  }
}

/* or those that a schedule says. */
ATTN_FUNC_ void attn_tile_plan_rows_(attn_tile_ *t, int64_t batch, int64_t head,
                                     const attn_plan_tile_ *tile) {
  const attn_plan_ *plan = t->a->plan;
  const int32_t *row = (const int32_t *)attn_plan_at_(plan, plan->at_row) + tile->row;
  t->plan = tile;
  t->batch = batch, t->n = tile->n;
  for (int r = 0; r < t->n; r++) t->row[r] = row[r], t->head[r] = head;
}

ATTN_FUNC_ double attn_span_ramp_(const attn_span *span) {
  return span->ramp > 0.0f ? (double)span->ramp : 32.0;
}

ATTN_FUNC_ double attn_span_z_(const attn_tile_ *t, int r) {
  const attn_span *span = &t->a->span;
  return (double)span
      ->z[span->per_query ? attn_row_number_(t->a, t->batch, t->head[r], t->row[r]) : t->head[r]];
}

/* The keys that an adaptive span leaves row r, and where its ramp ends. */
ATTN_FUNC_ void attn_tile_span_(attn_tile_ *t, int r) {
  const attn_span *span = &t->a->span;
  const double z = attn_span_z_(t, r), ramp = attn_span_ramp_(span);
  const int64_t p = t->pos[r], far = (int64_t)1 << 41;
  double reach = ceil(z + ramp) - 1.0;
  if (reach + 1.0 - z < ramp) reach += 1.0; /* a small ramp was lost in the sum */
  reach -= (double)span->shift;
  int64_t most = reach < (double)far ? (int64_t)reach : far;
  if (span->most > 0 && span->most < most) most = span->most;
  const int64_t lo = p - most, hi = p + (span->include_self != 0);
  if (lo > t->lo[r]) t->lo[r] = lo;
  if (hi < t->hi[r]) t->hi[r] = hi;
  double flat = ceil((double)(p + span->shift) - z);
  int64_t from = flat > (double)-far ? (int64_t)flat : -far;
  if (r == 0 || from > t->flat) t->flat = from;
}

/* What group g's rows see and where they sit. */
ATTN_FUNC_ void attn_tile_bounds_(attn_tile_ *t, int g) {
  const int r0 = g * ATTN_GROUP_, r1 = t->n < r0 + ATTN_GROUP_ ? t->n : r0 + ATTN_GROUP_;
  int64_t lo_min = INT64_MAX, lo_max = 0, hi_min = INT64_MAX, hi_max = 0;
  int64_t pos_min = t->pos[r0], pos_max = t->pos[r0];
  t->g[g].ragged = 0;
  for (int r = r0; r < r1; r++) {
    const int64_t lo = t->lo[r], hi = t->hi[r];
    if (t->pos[r] < pos_min) pos_min = t->pos[r];
    if (t->pos[r] > pos_max) pos_max = t->pos[r];
    if (lo >= hi) {
      t->lo[r] = t->hi[r] = 0, t->g[g].ragged = 1;
      continue;
    }
    if (lo < lo_min) lo_min = lo;
    if (lo > lo_max) lo_max = lo;
    if (hi < hi_min) hi_min = hi;
    if (hi > hi_max) hi_max = hi;
  }
  if (hi_max == 0) lo_min = hi_min = 0;
  t->g[g].lo_min = lo_min, t->g[g].lo_max = lo_max;
  t->g[g].hi_min = hi_min, t->g[g].hi_max = hi_max;
  t->g[g].pos_min = pos_min, t->g[g].pos_max = pos_max;
}

/* Places rows in lanes, transposes the queries. Lanes that have no row compute on zeros and are
 * never stored. */
ATTN_FUNC_ void attn_tile_lanes_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const void *q[ATTN_TILE_];
  const int64_t keys = a->kv_len ? a->kv_len[t->batch] : a->k.len;
  const int64_t queries = a->q_len ? a->q_len[t->batch] : a->q.len;
  t->head_k = t->head[0] / (a->q.heads / a->k.heads);
  t->head_v = t->head[0] / (a->q.heads / a->v.heads);
  t->groups = (t->n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  t->lined = 1;
  t->flat = INT64_MIN;
  for (int r = t->n; r < ATTN_TILE_; r++) {
    t->lo[r] = 0, t->hi[r] = INT64_MAX, t->pos[r] = 0, t->head[r] = 0;
    t->slope[r] = t->rel[r] = t->center[r] = t->precision[r] = t->start[r] = 0.0f, t->index[r] = 0;
  }
  for (int r = 0; r < t->n; r++) {
    const int64_t i = t->row[r], h = t->head[r], p = t->pos[r] = i + a->q_off;
    t->lined &= h == t->head[0] && i == t->row[0] + r;
    t->lo[r] = attn_clamp_(p - a->left, 0, keys);
    t->hi[r] = i < queries ? attn_clamp_(p + a->right + 1, 0, keys) : 0;
    q[r] = attn_at_(&a->q, t->batch, h, i);
    t->out[r] = attn_at_(&a->o, t->batch, h, i);
  }
  for (int r = 0; a->mask.kind && r < t->n; r++)
    t->mask[r] = attn_mask_at_(&a->mask, t->batch, t->head[r], t->row[r]);
  for (int r = 0; a->bias.kind && r < t->n; r++)
    t->bias[r] = attn_mask_at_(&a->bias, t->batch, t->head[r], t->row[r]);
  for (int r = 0; a->alibi && r < t->n; r++) t->slope[r] = -attn_to_unit_(a, a->alibi[t->head[r]]);
  for (int r = 0; a->gaussian.precision && r < t->n; r++) {
    const int64_t at = attn_row_number_(a, t->batch, t->head[r], t->row[r]);
    t->precision[r] = attn_to_unit_(a, a->gaussian.precision[at]);
  }
  for (int r = 0; a->span.z && r < t->n; r++) attn_tile_span_(t, r);
  for (int g = 0; g < t->groups; g++) attn_tile_bounds_(t, g);
  for (int g = t->groups; g < ATTN_TILE_ / ATTN_GROUP_; g++) memset(&t->g[g], 0, sizeof t->g[g]);
  a->table->pack(t->w.qt, q, t->n, a->q.dim, (int)a->q.dtype, a->scale_hi, a->scale_lo);
}
/* <<< attn/engine/tile.h */
/* >>> attn/engine/distance.h */
/* engine/distance.h owns score terms that depend on the head and the distance alone. They are
 * expanded once a call into one array a head and kind: entry i - j + Tk - 1 belongs to query i and
 * key j, so that a vector of consecutive queries reads consecutive numbers. */

ATTN_FUNC_ int attn_has_distance_(const attn_distance_terms_ *d) {
  return d->toeplitz.table || d->t5.table || d->parabola.w;
}

/* softplus(x) = log(1 + e^x) */
ATTN_FUNC_ double attn_softplus_(double x) { return x > 0.0 ? x + log1p(exp(-x)) : log1p(exp(x)); }

/* The additive terms of head h at distance d = j - p, natural. */
ATTN_FUNC_ double attn_distance_bias_(const attn_distance_terms_ *t, int64_t bucket, double scale,
                                      int64_t heads, int64_t h, int64_t d) {
  double x = 0.0;
  if (t->toeplitz.table) {
    const attn_toeplitz *z = &t->toeplitz;
    int64_t at = d - z->first;
    at = at < 0 ? 0 : at >= z->len ? z->len - 1 : at;
    x += (double)z->table[(z->heads > 1 ? h * z->len : 0) + at] * (z->inside ? scale : 1.0);
  }
  if (t->t5.table) x += (double)t->t5.table[bucket * heads + h];
  if (t->parabola.w) {
    const double w = (double)t->parabola.w[h], b = t->parabola.b ? (double)t->parabola.b[h] : 0.0;
    x -= fabs(w * (double)d * (double)d + b);
  }
  return x;
}

/* f_h(|d|) = exp(softplus(beta) - softplus(beta - alpha |d|)) */
ATTN_FUNC_ double attn_distance_factor_(const attn_distance_factor *f, int64_t h, int64_t d) {
  const double alpha = (double)f->alpha[h], beta = (double)f->beta[h];
  const double t = (double)(d < 0 ? -d : d);
  return exp(attn_softplus_(beta) - attn_softplus_(beta - alpha * t));
}

/* Entries of one head, those that lanes without a row read included. */
ATTN_FUNC_ int64_t attn_distances_(int64_t q_len, int64_t k_len) {
  return attn_add_(attn_add_(q_len, k_len), ATTN_TILE_);
}

ATTN_FUNC_ void attn_distance_fill_(const attn_softmax_ *a, float *bias, float *factor) {
  const attn_distance_terms_ *t = &a->by_distance;
  int64_t edge[ATTN_T5_MOST_], side = 0;
  attn_t5_rule_ rule = {0, 0, 0, 0, 0};
  if (t->t5.table) {
    attn_t5_rule_of_(&rule, t->t5.buckets, t->t5.max_distance, t->t5.bidirectional);
    attn_t5_edges_(edge, &rule);
  }
  for (int64_t e = 0; e < a->distances; e++) {
    const int64_t d = a->k.len - 1 - e - a->q_off;
    const int64_t base = rule.bidirectional && d > 0 ? rule.side : 0;
    const int64_t away = d <= 0 ? -d : rule.bidirectional ? d : 0;
    if (t->t5.table) { /* distances are neighbours, so are their buckets */
      while (side > 0 && edge[side] > away) side--;
      while (side + 1 < rule.side && edge[side + 1] <= away) side++;
    }
    for (int64_t h = 0; h < a->distance_heads; h++) {
      const int64_t at = h * a->distances + e;
      if (bias) {
        double x = attn_distance_bias_(t, base + side, a->scale, a->q.heads, h, d);
        bias[at] = (float)attn_clamp_f64_(x * a->unit);
      }
      if (factor) factor[at] = (float)attn_clamp_f64_(attn_distance_factor_(&t->factor, h, d));
    }
  }
}
/* <<< attn/engine/distance.h */
/* >>> attn/engine/mask.h */
/* engine/mask.h owns masks and biases of a tile: what they say of keys, and their entries in the
 * form the modifiers take. Keys are a run of consecutive ones here; blocks of other keys are made
 * of several runs. */

ATTN_FUNC_ int attn_mask_bit_(const void *row, int64_t j) {
  return ((const unsigned char *)row)[j >> 3] >> (j & 7) & 1;
}

/* Expands keys from..from+n of the additive mask rows of some lanes into dst[key][lane]. */
ATTN_FUNC_ void attn_tile_bias_rows_(const attn_tile_ *t, const char *const *rows, int lanes,
                                     float *dst, int64_t from, int64_t n) {
  const void *at[ATTN_TILE_];
  const attn_mask *bias = &t->a->bias;
  const float hi = (float)t->a->unit, lo = (float)(t->a->unit - (double)hi);
  for (int r = 0; r < lanes; r++) at[r] = rows[r] + from * attn_size_(bias->dtype);
  /* not 0: -inf * 0 is NaN; this is lost in the rounding of every other number */
  t->a->table->pack(dst, at, lanes, n, (int)bias->dtype | ATTN_KIND_BIAS_, hi,
                    lo > 0.0f ? lo : FLT_MIN);
}

/* The same for the whole tile. Entries that broadcast along k are repeated. */
ATTN_FUNC_ void attn_tile_bias_(const attn_tile_ *t, float *dst, int64_t from, int64_t n) {
  if (t->a->bias.k_len > 1) {
    attn_tile_bias_rows_(t, t->bias, t->n, dst, from, n);
    return;
  }
  attn_tile_bias_rows_(t, t->bias, t->n, dst, 0, 1);
  for (int64_t j = 1; j < n; j++) memcpy(dst + j * ATTN_TILE_, dst, ATTN_TILE_ * sizeof(float));
}

/* Whether query row r may see key j by the boolean mask. */
ATTN_FUNC_ int attn_tile_sees_(const attn_tile_ *t, int r, int64_t j) {
  const attn_mask *mask = &t->a->mask;
  if (mask->k_len == 1) j = 0;
  return mask->kind == ATTN_MASK_BITS ? attn_mask_bit_(t->mask[r], j) : t->mask[r][j] != 0;
}

/* 8 x 8 bits: bit c of byte r <-> bit r of byte c, by exchanging halves, quarters, eighths */
ATTN_FUNC_ uint64_t attn_transpose8_(uint64_t x) {
  uint64_t t = (x ^ (x >> 7)) & 0x00aa00aa00aa00aau;
  x ^= t ^ (t << 7);
  t = (x ^ (x >> 14)) & 0x0000cccc0000ccccu;
  x ^= t ^ (t << 14);
  t = (x ^ (x >> 28)) & 0x00000000f0f0f0f0u;
  return x ^ t ^ (t << 28);
}

/* some[key] gets `bit` where the mask byte of the key is not 0: constant length and no branch, so
 * that compilers use vectors */
ATTN_FUNC_ void attn_mask_row_(unsigned char *some, const unsigned char *row, unsigned char bit) {
  for (int j = 0; j < ATTN_BLOCK_; j++) some[j] |= (unsigned char)(bit & -(row[j] != 0));
}

/* Clears the lanes that the boolean mask forbids, for keys from..from+n. */
ATTN_FUNC_ void attn_tile_mask_(const attn_tile_ *t, uint64_t *lanes, int64_t from, int64_t n) {
  const attn_mask *mask = &t->a->mask;
  if (mask->k_len == 1) {
    uint64_t some = 0;
    for (int r = 0; r < t->n; r++) some |= (uint64_t)attn_tile_sees_(t, r, 0) << r;
    for (int64_t j = 0; j < n; j++) lanes[j] &= some;
    return;
  }
  int64_t j = 0;
  if (mask->kind == ATTN_MASK_BOOL && n == ATTN_BLOCK_) {
    unsigned char some[ATTN_TILE_ / 8][ATTN_BLOCK_];
    memset(some, 0, sizeof some);
    for (int r = 0; r < t->n; r++)
      attn_mask_row_(some[r / 8], (const unsigned char *)t->mask[r] + from,
                     (unsigned char)(1 << (r & 7)));
    for (; j < n; j++) {
      uint64_t x = 0;
      for (int i = 0; i < ATTN_TILE_ / 8; i++) x |= (uint64_t)some[i][j] << (8 * i);
      lanes[j] &= x;
    }
    return;
  }
  for (; mask->kind == ATTN_MASK_BITS && (from & 7) == 0 && j + 8 <= n; j += 8) {
    for (int r = 0; r < t->n; r += 8) { /* eight rows by eight keys at once */
      uint64_t square = 0;
      for (int i = 0; i < 8 && r + i < t->n; i++)
        square |= (uint64_t)(unsigned char)t->mask[r + i][(from + j) >> 3] << (8 * i);
      square = ~attn_transpose8_(square);
      for (int c = 0; c < 8; c++) lanes[j + c] &= ~((square >> (8 * c) & 255) << r);
    }
  }
  for (; j < n; j++) {
    uint64_t some = 0;
    for (int r = 0; r < t->n; r++) some |= (uint64_t)attn_tile_sees_(t, r, from + j) << r;
    lanes[j] &= some;
  }
}

/* 1 when all rows of a tile read the same mask row: it then stays a row, see mod.key */
ATTN_FUNC_ int attn_mask_per_key_(const attn_softmax_ *a, const attn_mask *mask) {
  return mask->q_len == 1 && (mask->heads == 1 || a->group == 1);
}

/* Keys from..from+n of a per-key bias; a per-key mask then forbids some. */
ATTN_FUNC_ void attn_tile_key_bias_(const attn_tile_ *t, float *key, int64_t from, int64_t n) {
  const int64_t step = t->a->bias.k_len > 1 ? 1 : 0;
  /* as one lane, so that it rounds as a mask by pair does */
  attn_tile_bias_rows_(t, t->bias, 1, t->w.bias, from * step, step ? n : 1);
  for (int64_t j = 0; j < n; j++) key[j] = t->w.bias[j * step * ATTN_TILE_];
}

ATTN_FUNC_ void attn_tile_key_mask_(const attn_tile_ *t, float *key, int64_t from, int64_t n) {
  for (int64_t j = 0; j < n; j++) /* not an addition: NaN + -inf would let the key through */
    if (!attn_tile_sees_(t, 0, from + j)) key[j] = -INFINITY;
}
/* <<< attn/engine/mask.h */
/* >>> attn/engine/block.h */
/* engine/block.h owns a block of keys as one tile sees it: which keys, which lane groups see which
 * of them, the rows of K and V, and what is to be done to its scores.
 *
 * Blocks of consecutive keys start at multiples of ATTN_BLOCK_, whatever the tile, so that a row's
 * result never depends on the rows beside it. A schedule's runs are put together to blocks between
 * the same marks; sparse ones are joined as long as they fit. Keys that are not consecutive are
 * copied together. */

enum { ATTN_GROUPS_ = ATTN_TILE_ / ATTN_GROUP_ };

/* Keys at .. at+n of a block, which lane groups g0..g1 see; some rows of groups m0..m1 see only a
 * part of them. */
typedef struct attn_segment_ {
  int at, n, g0, g1, m0, m1;
} attn_segment_;

typedef struct attn_block_ {
  int64_t base, j0; /* what distances count from; the first key */
  int n;            /* keys */
  int gathered;     /* the keys are index[0..n), else j0 .. */
  int32_t index[ATTN_BLOCK_];
  int by_lane; /* lanes[] holds something */
  uint64_t lanes[ATTN_BLOCK_];
  attn_segment_ seg[ATTN_BLOCK_];
  int count;
  int bounded;                  /* the rows' own lo and hi are tested */
  int whole;                    /* one segment for all rows */
  int partial;                  /* some pair may be forbidden */
  const attn_mask *mask, *bias; /* null when they say nothing here */
  const float *k, *v;
  int64_t k_stride, v_stride;
  attn_modifiers_ mod; /* terms; the allowed set apart, since it need not touch all groups */
  attn_modifiers_ set;
  float key[ATTN_BLOCK_];                     /* what mod.key points at */
  const float *at;                            /* keys, counted from base */
  float at_keys[ATTN_BLOCK_];                 /* what it points at when they are gathered */
  int32_t back[ATTN_BLOCK_];                  /* what mod.back points at */
  int first[ATTN_GROUPS_], end[ATTN_GROUPS_]; /* keys each lane group has scores for */
  int gaps;                                   /* bit g: some of them are in no segment */
} attn_block_;

ATTN_FUNC_ int64_t attn_block_key_(const attn_block_ *b, int64_t e) {
  return b->gathered ? b->index[e] : b->j0 + e;
}

/* The consecutive keys that begin with entry e. */
ATTN_FUNC_ int attn_block_run_(const attn_block_ *b, int e) {
  int n = 1;
  if (!b->gathered) return b->n - e;
  while (e + n < b->n && b->index[e + n] == b->index[e] + n) n++;
  return n;
}

/* Key rows as f32: the tensor itself, or a converted copy. */
ATTN_FUNC_ const float *attn_block_rows_(const attn_softmax_ *a, const attn_block_ *b,
                                         const attn_tensor *x, int64_t batch, int64_t head,
                                         float *copy, int64_t *stride) {
  const char *p = attn_at_(x, batch, head, b->gathered ? 0 : b->j0);
  if (x->dtype == ATTN_F32 && !b->gathered) {
    *stride = x->stride_len;
    return (const float *)(const void *)p;
  }
  a->table->widen(copy, p, x->stride_len, b->gathered ? b->index : NULL, b->n, x->dim, x->dtype);
  *stride = x->dim;
  return copy;
}

/* Cuts block j0..j1 where the set of groups that see a key by lo and hi changes. */
ATTN_FUNC_ void attn_block_cut_bounds_(const attn_tile_ *t, attn_block_ *b, int64_t j0,
                                       int64_t j1) {
  int64_t edge[2 * ATTN_GROUPS_ + 2];
  int edges = 0;
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
  b->count = 0;
  for (int i = 0; i + 1 < edges; i++) {
    attn_segment_ s = {(int)(edge[i] - j0), (int)(edge[i + 1] - edge[i]), ATTN_GROUPS_, 0, 0, 0};
    for (int g = 0; g < t->groups; g++) {
      if (t->g[g].lo_min > edge[i] || t->g[g].hi_max < edge[i + 1]) continue;
      if (g < s.g0) s.g0 = g;
      s.g1 = g + 1;
    }
    s.m0 = s.g1;
    for (int g = s.g0; g < s.g1; g++)
      if (t->g[g].ragged || t->g[g].lo_max > edge[i] || t->g[g].hi_min < edge[i + 1]) {
        if (s.m0 == s.g1) s.m0 = g;
        s.m1 = g + 1;
      }
    if (s.m1 == 0) s.m0 = 0;
    if (s.g0 >= s.g1) continue;
    attn_segment_ *last = b->count ? b->seg + b->count - 1 : NULL;
    if (last && last->at + last->n == s.at && last->g0 == s.g0 && last->g1 == s.g1 &&
        last->m0 == s.m0 && last->m1 == s.m1)
      last->n += s.n;
    else
      b->seg[b->count++] = s;
  }
}

/* What a segment costs, a key for a lane group being 16; the constant is measured. */
ATTN_FUNC_ int attn_segment_cost_(const attn_segment_ *s) {
  return s->g0 == s->g1 ? 0 : s->n * (16 * (s->g1 - s->g0) + (s->m1 - s->m0)) + 40;
}

ATTN_FUNC_ attn_segment_ attn_segment_join_(attn_segment_ x, attn_segment_ y) {
  attn_segment_ s = x;
  s.n = y.at + y.n - x.at;
  if (x.g0 == x.g1) { /* nobody sees x: join it as forbidden */
    s.g0 = s.m0 = y.g0, s.g1 = s.m1 = y.g1;
  } else if (y.g0 == y.g1) {
    s.m0 = s.g0, s.m1 = s.g1;
  } else if (x.g0 != y.g0 || x.g1 != y.g1) {
    s.m0 = s.g0 = x.g0 < y.g0 ? x.g0 : y.g0;
    s.m1 = s.g1 = x.g1 > y.g1 ? x.g1 : y.g1;
  } else if (x.m0 == x.m1) {
    s.m0 = y.m0, s.m1 = y.m1;
  } else if (y.m0 != y.m1) {
    s.m0 = x.m0 < y.m0 ? x.m0 : y.m0;
    s.m1 = x.m1 > y.m1 ? x.m1 : y.m1;
  }
  return s;
}

/* The segment of one key that the lanes x of `all` see. */
ATTN_FUNC_ attn_segment_ attn_segment_seen_(uint64_t x, uint64_t all, int groups) {
  const uint64_t group = ((uint64_t)1 << ATTN_GROUP_) - 1;
  attn_segment_ s = {0, 1, 0, groups, 0, 0};
  if (x == all) return s;
  if (!x) s.g1 = 0;
  if (!x) return s;
  while (!(x >> (s.g0 * ATTN_GROUP_) & group)) s.g0++;
  while (!(x >> ((s.g1 - 1) * ATTN_GROUP_) & group)) s.g1--;
  x ^= all;
  for (int g = s.g0; g < s.g1; g++)
    if (x >> (g * ATTN_GROUP_) & group) {
      if (s.m0 == s.m1) s.m0 = g;
      s.m1 = g + 1;
    }
  return s;
}

/* Cuts the block by b->lanes; neighbours are joined where that is cheaper. */
ATTN_FUNC_ void attn_block_cut_lanes_(const attn_tile_ *t, attn_block_ *b) {
  const uint64_t all = attn_tile_all_(t);
  attn_segment_ now = {0, b->n, 0, t->groups, 0, 0};
  b->count = 0;
  for (int e = 0; b->by_lane && e <= b->n; e++) {
    attn_segment_ s = {0, 0, 0, 0, 0, 0};
    if (e < b->n) {
      if (e > 0 && b->lanes[e] == b->lanes[e - 1]) {
        now.n++;
        continue;
      }
      s = attn_segment_seen_(b->lanes[e], all, t->groups);
      s.at = e;
      if (e > 0 && s.g0 == now.g0 && s.g1 == now.g1 && s.m0 == now.m0 && s.m1 == now.m1) {
        now.n++;
        continue;
      }
    }
    if (e > 0) { /* `now` is complete */
      attn_segment_ *last = b->count ? b->seg + b->count - 1 : NULL;
      const attn_segment_ both = last ? attn_segment_join_(*last, now) : now;
      if (last && attn_segment_cost_(&both) <= attn_segment_cost_(last) + attn_segment_cost_(&now))
        *last = both;
      else
        b->seg[b->count++] = now;
    }
    now = s;
  }
  if (!b->by_lane) b->seg[b->count++] = now;
  int kept = 0;
  for (int i = 0; i < b->count; i++)
    if (b->seg[i].g0 < b->seg[i].g1) b->seg[kept++] = b->seg[i];
  b->count = kept;
}

/* Where a tile's runs are read. */
typedef struct attn_cursor_ {
  const attn_plan_run_ *run;
  int64_t runs, used; /* runs left, keys of the first that are done */
} attn_cursor_;

/* The ordinal of a key in its residue class; most steps are 1, and divisions are slow. */
ATTN_FUNC_ int64_t attn_ordinal_(int32_t key, int64_t step) {
  return step == 1 ? key : key / (int32_t)step;
}

/* How many keys from the cursor on lie before ordinal `end`, up to `most`. */
ATTN_FUNC_ int attn_cursor_keys_(attn_cursor_ c, int64_t step, int64_t end, int most) {
  int64_t n = 0;
  for (; c.runs > 0 && n <= most; c.run++, c.runs--, c.used = 0) {
    const int64_t u = attn_ordinal_(c.run->key, step) + c.used;
    if (u >= end) break;
    n += c.run->n - c.used < end - u ? c.run->n - c.used : end - u;
  }
  return n > most ? most + 1 : (int)n;
}

/* The next keys of a tile's runs. 0 = there are none. */
ATTN_FUNC_ int attn_block_take_(const attn_tile_ *t, attn_block_ *b, attn_cursor_ *c) {
  const int64_t step = t->plan->step;
  const uint64_t all = attn_tile_all_(t);
  int64_t mark = 0;
  b->n = 0, b->by_lane = 0;
  if (c->runs > 0 && step == 1 && c->run->lanes == all) { /* most blocks of most patterns */
    const int64_t from = c->run->key + c->used;
    if (from % ATTN_BLOCK_ == 0 && c->run->n - c->used >= ATTN_BLOCK_) {
      b->n = ATTN_BLOCK_, b->j0 = from, b->gathered = 0;
      c->used += ATTN_BLOCK_;
      if (c->used == c->run->n) c->run++, c->runs--, c->used = 0;
      return 1;
    }
  }
  while (c->runs > 0 && b->n < ATTN_BLOCK_) {
    const int64_t u = attn_ordinal_(c->run->key, step) + c->used,
                  end = (u / ATTN_BLOCK_ + 1) * ATTN_BLOCK_;
    if (b->n && end != mark &&
        attn_cursor_keys_(*c, step, end, ATTN_BLOCK_ - b->n) > ATTN_BLOCK_ - b->n)
      break;
    mark = end;
    const int64_t left = c->run->n - c->used, n = left < end - u ? left : end - u;
    const int32_t key = (int32_t)(c->run->key + c->used * step);
    for (int64_t e = 0; e < n; e++) {
      b->index[b->n + e] = key + (int32_t)(e * step);
      b->lanes[b->n + e] = c->run->lanes;
    }
    if (c->run->lanes != all) b->by_lane = 1;
    b->n += (int)n;
    c->used += n;
    if (c->used == c->run->n) c->run++, c->runs--, c->used = 0;
  }
  if (b->n == 0) return 0;
  b->j0 = b->index[0];
  b->gathered = b->index[b->n - 1] - b->index[0] != b->n - 1;
  return 1;
}

/* Entry of the first key >= j. */
ATTN_FUNC_ int attn_block_find_(const attn_block_ *b, int64_t j) {
  int lo = 0, hi = b->n;
  while (lo < hi) {
    const int mid = (lo + hi) / 2;
    if (attn_block_key_(b, mid) < j)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

/* b->lanes holds something from here on. */
ATTN_FUNC_ void attn_block_lanes_(const attn_tile_ *t, attn_block_ *b) {
  for (int e = 0; !b->by_lane && e < b->n; e++) b->lanes[e] = attn_tile_all_(t);
  b->by_lane = 1;
}

/* Takes the rows' own lo and hi into b->lanes. */
ATTN_FUNC_ void attn_block_bound_lanes_(const attn_tile_ *t, attn_block_ *b) {
  const int64_t first = b->j0, last = attn_block_key_(b, b->n - 1);
  int bites = 0;
  for (int g = 0; g < t->groups; g++)
    bites |= t->g[g].ragged || t->g[g].lo_max > first || t->g[g].hi_min <= last;
  if (!bites) return;
  uint64_t turn[ATTN_BLOCK_ + 1] = {0}, now = 0;
  for (int r = 0; r < t->n; r++) {
    turn[attn_block_find_(b, t->lo[r])] ^= (uint64_t)1 << r;
    turn[attn_block_find_(b, t->hi[r])] ^= (uint64_t)1 << r;
  }
  attn_block_lanes_(t, b);
  for (int e = 0; e < b->n; e++) now ^= turn[e], b->lanes[e] &= now;
}

/* Whether the rows of the block have been gathered already; if not, they will be. */
ATTN_FUNC_ int attn_block_held_(const attn_tile_ *t, const attn_block_ *b) {
  attn_held_ *x = t->w.held;
  if (b->gathered && x->n == b->n && x->batch == t->batch && x->head_k == t->head_k &&
      x->head_v == t->head_v && memcmp(x->index, b->index, (size_t)b->n * sizeof *b->index) == 0)
    return 1;
  x->n = b->gathered ? b->n : 0; /* 16-bit rows are copied to the same place */
  x->batch = t->batch, x->head_k = t->head_k, x->head_v = t->head_v;
  if (b->gathered) memcpy(x->index, b->index, (size_t)b->n * sizeof *b->index);
  return 0;
}

/* What the boolean mask says of a block of consecutive keys. 0 = it forbids all of them. */
ATTN_FUNC_ int attn_block_mask_(const attn_tile_ *t, attn_block_ *b) {
  const uint64_t rows = attn_tile_all_(t);
  const int per_key = attn_mask_per_key_(t->a, b->mask);
  uint64_t some = 0, all = rows;
  for (int e = 0; e < b->n; e++) b->lanes[e] = rows;
  if (per_key) {
    for (int e = 0; e < b->n; e++)
      if (!attn_tile_sees_(t, 0, b->j0 + e)) b->lanes[e] = 0;
  } else {
    attn_tile_mask_(t, b->lanes, b->j0, b->n);
  }
  for (int e = 0; e < b->n; e++) some |= b->lanes[e], all &= b->lanes[e];
  if (all == rows) b->mask = NULL;
  if (all == rows || per_key) return some != 0;
  for (int i = 0; i < b->count; i++) b->seg[i].m0 = b->seg[i].g0, b->seg[i].m1 = b->seg[i].g1;
  b->mask = NULL, b->by_lane = 1;
  return some != 0;
}

/* Opens a block: for keys j0..j1, or with j0 = j1 for those that attn_block_take_ has taken. 0 = no
 * row sees any of them. */
ATTN_FUNC_ int attn_block_open_(const attn_tile_ *t, attn_block_ *b, int64_t j0, int64_t j1) {
  const attn_softmax_ *a = t->a;
  const int runs = j0 == j1;
  b->bias = a->bias.kind ? &a->bias : NULL;
  b->mask = a->mask.kind ? &a->mask : NULL;
  b->bounded = 0;
  if (runs) {
    attn_block_bound_lanes_(t, b);
    if (b->mask && !attn_mask_per_key_(a, b->mask)) {
      attn_block_lanes_(t, b);
      for (int e = 0, n; e < b->n; e += n) {
        n = attn_block_run_(b, e);
        attn_tile_mask_(t, b->lanes + e, attn_block_key_(b, e), n);
      }
      b->mask = NULL;
    }
    attn_block_cut_lanes_(t, b);
    if (b->count == 0) return 0;
    b->n = b->seg[b->count - 1].at + b->seg[b->count - 1].n; /* keys past kv_len are not read */
  } else {
    b->gathered = b->by_lane = 0, b->j0 = j0;
    attn_block_cut_bounds_(t, b, j0, j1);
    if (b->count == 0) return 0;
    const int skip = b->seg[0].at;
    b->j0 += skip;
    for (int i = 0; i < b->count; i++) {
      b->seg[i].at -= skip;
      if (b->seg[i].m0 < b->seg[i].m1) b->bounded = 1;
    }
    b->n = b->seg[b->count - 1].at + b->seg[b->count - 1].n;
    if (b->mask && !attn_block_mask_(t, b)) return 0;
  }
  b->base = b->j0 / ATTN_BLOCK_ * ATTN_BLOCK_;
  b->gaps = 0;
  for (int g = 0; g < ATTN_GROUPS_; g++) b->first[g] = b->end[g] = 0;
  for (int i = 0; i < b->count; i++)
    for (int g = b->seg[i].g0; g < b->seg[i].g1; g++) {
      if (b->end[g] == 0)
        b->first[g] = b->seg[i].at;
      else if (b->end[g] != b->seg[i].at)
        b->gaps |= 1 << g;
      b->end[g] = b->seg[i].at + b->seg[i].n;
    }
  b->whole = b->count == 1 && b->seg[0].g0 == 0 && b->seg[0].g1 == t->groups && b->seg[0].at == 0 &&
             b->seg[0].n == b->n;
  b->partial = b->bounded || b->by_lane || !b->whole || b->mask || b->bias || a->modify != NULL;
  if (attn_block_held_(t, b)) {
    b->k = t->w.k, b->k_stride = a->k.dim, b->v = t->w.v, b->v_stride = a->v.dim;
    return 1;
  }
  b->k = attn_block_rows_(a, b, &a->k, t->batch, t->head_k, t->w.k, &b->k_stride);
  b->v = attn_block_rows_(a, b, &a->v, t->batch, t->head_v, t->w.v, &b->v_stride);
  return 1;
}

/* Before a tile's first block. */
ATTN_FUNC_ void attn_block_terms_(const attn_tile_ *t, attn_block_ *b) {
  memset(&b->mod, 0, sizeof b->mod);
  memset(&b->set, 0, sizeof b->set);
  b->mod.softcap = t->a->softcap;
}

/* Fills in what is done to the scores. Distances and bounds count from the block's fixed base, so
 * that they round alike whatever part of it is visited. */
ATTN_FUNC_ void attn_block_modifiers_(attn_tile_ *t, attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  const int key_mask = b->mask != NULL;
  const int key_bias = b->bias && attn_mask_per_key_(a, b->bias);
  if (b->gathered) {
    for (int e = 0; e < b->n; e++) b->at_keys[e] = (float)(b->index[e] - b->base);
    b->at = b->at_keys;
  } else {
    b->at = attn_count_ + (b->j0 - b->base);
  }
  b->mod.at = b->set.at = b->at;
  if (a->alibi) {
    for (int r = 0; r < t->n; r++) t->rel[r] = (float)(b->base - t->pos[r]);
    b->mod.slope = t->slope, b->mod.rel = t->rel;
  }
  if (a->gaussian.center) {
    for (int r = 0; r < t->n; r++) {
      const float c = a->gaussian.center[attn_row_number_(a, t->batch, t->head[r], t->row[r])];
      t->center[r] = (float)((double)c - (double)b->base);
    }
    b->mod.center = t->center, b->mod.precision = t->precision;
  }
  if (a->distance || a->factor) {
    const int64_t head = a->distance_heads > 1 ? t->head[0] : 0;
    const int64_t at = head * a->distances + a->k.len - 1 - b->base + (t->lined ? t->row[0] : 0);
    for (int e = 0; e < b->n; e++) b->back[e] = (int32_t)(attn_block_key_(b, e) - b->base);
    if (!t->lined)
      for (int r = 0; r < t->n; r++) t->index[r] = (int32_t)t->row[r];
    b->mod.table = a->distance ? a->distance + at : NULL;
    b->mod.factor = a->factor ? a->factor + at : NULL;
    b->mod.back = b->back, b->mod.index = t->lined ? NULL : t->index;
  }
  if (key_mask || key_bias) memset(b->key, 0, sizeof b->key);
  for (int e = 0, n; (b->bias || key_mask) && e < b->n; e += n) {
    n = attn_block_run_(b, e);
    const int64_t from = attn_block_key_(b, e);
    if (key_bias) attn_tile_key_bias_(t, b->key + e, from, n);
    if (key_mask) attn_tile_key_mask_(t, b->key + e, from, n);
    if (b->bias && !key_bias) attn_tile_bias_(t, t->w.bias + e * ATTN_TILE_, from, n);
  }
  b->mod.key = key_mask || key_bias ? b->key : NULL;
  if (b->bias && !key_bias) b->mod.bias = t->w.bias;
  if (a->modify && (b->mod.key || b->mod.bias)) { /* what they forbid stays so, whatever it does */
    attn_block_lanes_(t, b);
    for (int e = 0; e < b->n; e++) {
      if (b->mod.key && b->key[e] == -INFINITY) b->lanes[e] = 0;
      for (int r = 0; b->mod.bias && r < t->n; r++)
        if (b->mod.bias[e * ATTN_TILE_ + r] == -INFINITY) b->lanes[e] &= ~((uint64_t)1 << r);
    }
  }
  b->set.lanes = b->by_lane ? b->lanes : NULL;
  b->set.lo = b->bounded ? t->from : NULL, b->set.hi = t->to;
  if (b->bounded) {
    for (int r = 0; r < ATTN_TILE_; r++) {
      t->from[r] = (float)attn_clamp_(t->lo[r] - b->base, 0, ATTN_BLOCK_);
      t->to[r] = (float)attn_clamp_(t->hi[r] - b->base, 0, ATTN_BLOCK_);
    }
  }
}
/* <<< attn/engine/block.h */
/* >>> attn/engine/terms.h */
/* engine/terms.h owns the score terms that need more than a vector operation per score: dot products
 * with tables of relative vectors (E2), their weights on the value side (E9), and the user's
 * modifier. */

/* The keys a tile may see, first to last. 0 = none. */
ATTN_FUNC_ int attn_tile_keys_(const attn_tile_ *t, int64_t *first, int64_t *last) {
  const attn_plan_ *plan = t->a->plan;
  *first = INT64_MAX, *last = -1;
  for (int g = 0; g < t->groups; g++) {
    if (t->g[g].hi_max - 1 > *last) *last = t->g[g].hi_max - 1;
    if (t->g[g].hi_max > 0 && t->g[g].lo_min < *first) *first = t->g[g].lo_min;
  }
  if (plan && t->plan->count > 0 && t->plan->step > 0) {
    const attn_plan_run_ *run =
        (const attn_plan_run_ *)attn_plan_at_(plan, plan->at_run) + t->plan->at;
    const attn_plan_run_ *end = run + t->plan->count - 1;
    if (run->key > *first) *first = run->key;
    const int64_t most = end->key + (int64_t)(end->n - 1) * t->plan->step;
    if (most < *last) *last = most;
  }
  return *first <= *last;
}

ATTN_FUNC_ int64_t attn_relative_clip_(const attn_softmax_ *a) {
  return ((a->relative.keys.data ? a->relative.keys.len : a->relative.values.len) - 1) / 2;
}

/* Before a tile's first block: dots of its queries with the vectors of every label and distance that
 * occurs, and the biases of Transformer-XL. */
ATTN_FUNC_ void attn_tile_terms_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const int64_t dk = a->q.dim, h = t->head[0];
  const double s = a->scale * a->unit;
  int64_t first, last;
  t->rel_rows = t->rel_first = 0;
  if ((a->relative.keys.data || a->relative.values.data) && attn_tile_keys_(t, &first, &last)) {
    const int64_t c = attn_relative_clip_(a);
    int64_t near = INT64_MAX, far = INT64_MIN;
    for (int g = 0; g < t->groups; g++) {
      if (t->g[g].pos_min < near) near = t->g[g].pos_min;
      if (t->g[g].pos_max > far) far = t->g[g].pos_max;
    }
    t->rel_first = attn_clamp_(first - far, -c, c);
    t->rel_rows = attn_clamp_(last - near, -c, c) - t->rel_first + 1;
    if (a->relative.keys.data)
      f->score_block(t->w.rel_keys, t->w.qt,
                     attn_table_row_(&a->relative.keys, h, t->rel_first + c),
                     a->relative.keys.stride_len, t->rel_rows, dk, 0, t->groups, t->spare);
  }
  if (a->labels.label) {
    const int64_t n = a->labels.table.len;
    f->score_block(t->w.labels, t->w.qt, attn_table_row_(&a->labels.table, h, 0),
                   a->labels.table.stride_len, n, dk, 0, t->groups, t->spare);
    for (int64_t e = 0; a->labels.bias && e < n; e++) {
      const float x = (float)attn_clamp_f64_((double)a->labels.bias[e * a->q.heads + h] * s);
      for (int r = 0; r < t->n; r++) t->w.labels[e * ATTN_TILE_ + r] += x;
    }
  }
  if (a->xl.table.data) { /* last: the other terms use the plain queries */
    for (int64_t c = 0; c < dk; c++) {
      const float u = a->xl.content_bias ? a->xl.content_bias[h * dk + c] : 0.0f;
      const float v = a->xl.distance_bias ? a->xl.distance_bias[h * dk + c] : 0.0f;
      const float us = (float)((double)u * s), vs = (float)((double)v * s);
      float *x = t->w.qt + c * ATTN_TILE_, *y = t->w.xl_qt + c * ATTN_TILE_;
      for (int r = 0; r < t->groups * ATTN_GROUP_; r++) y[r] = x[r] + vs, x[r] += us;
    }
  }
}

/* Which row of relative vectors the lanes of group g want for a key; -1 = not the same one. */
ATTN_FUNC_ int64_t attn_relative_row_(const attn_tile_ *t, int g, int64_t key, int64_t c) {
  if (key - t->g[g].pos_min <= -c) return -c - t->rel_first;
  if (key - t->g[g].pos_max >= c) return c - t->rel_first;
  return -1;
}

/* The entries from e on, before end, that want the same row as e. */
ATTN_FUNC_ int attn_relative_run_(const attn_tile_ *t, const attn_block_ *b, int g, int e, int end,
                                  int64_t c) {
  const int64_t row = attn_relative_row_(t, g, attn_block_key_(b, e), c);
  int n = 1;
  while (e + n < end && attn_relative_row_(t, g, attn_block_key_(b, e + n), c) == row) n++;
  return n;
}

/* s[key][lane] += q . keys[distance] for a segment. Most keys lie beyond the clipping distance of a
 * whole lane group: they get one row. */
ATTN_FUNC_ void attn_block_relative_keys_(attn_tile_ *t, const attn_block_ *b,
                                          const attn_segment_ *seg) {
  static const int32_t back[ATTN_BLOCK_] = {0};
  const int64_t c = attn_relative_clip_(t->a);
  attn_modifiers_ mod;
  memset(&mod, 0, sizeof mod);
  mod.back = back;
  for (int g = seg->g0; g < seg->g1; g++)
    for (int e = seg->at, n; e < seg->at + seg->n; e += n) {
      const int64_t row = attn_relative_row_(t, g, attn_block_key_(b, e), c);
      float *s = t->w.s + e * ATTN_TILE_;
      n = attn_relative_run_(t, b, g, e, seg->at + seg->n, c);
      if (row >= 0) {
        mod.table = t->w.rel_keys + row * ATTN_TILE_;
        t->a->table->modify_block(s, n, g, g + 1, &mod, t->spare);
        continue;
      }
      for (int i = 0; i < n; i++)
        for (int r = g * ATTN_GROUP_; r < (g + 1) * ATTN_GROUP_ && r < t->n; r++) {
          const int64_t d = attn_clamp_(attn_block_key_(b, e + i) - t->pos[r], -c, c);
          s[i * ATTN_TILE_ + r] += t->w.rel_keys[(d - t->rel_first) * ATTN_TILE_ + r];
        }
    }
}

ATTN_FUNC_ void attn_tile_relative_clear_(attn_tile_ *t) {
  if (!t->a->relative.values.data || t->rel_rows == 0) return;
  memset(t->w.rel_values, 0, (size_t)(t->rel_rows * ATTN_TILE_) * sizeof(float));
  memset(t->w.rel_hit, 0, (size_t)(t->rel_rows * ATTN_TILE_));
}

/* Whether row r may see entry e by what the driver knows; a bias may still forbid it. */
ATTN_FUNC_ int attn_block_sees_(const attn_tile_ *t, const attn_block_ *b, int e, int r) {
  const int64_t key = attn_block_key_(b, e);
  return t->lo[r] <= key && key < t->hi[r] && !(b->by_lane && !(b->lanes[e] >> r & 1));
}

/* Whether row r reads entry e. By the masks, not by the score: an allowed score may be -inf, and its
 * value is read; what a user's modifier forbids can only be seen in the score. */
ATTN_FUNC_ int attn_block_reads_(const attn_tile_ *t, const attn_block_ *b, int e, int r) {
  const int64_t cell = e * ATTN_TILE_ + r;
  return attn_block_sees_(t, b, e, r) && !(b->mod.key && b->mod.key[e] == -INFINITY) &&
         !(b->mod.bias && b->mod.bias[cell] == -INFINITY) &&
         !(t->a->modify && t->w.s[cell] == -INFINITY);
}

/* Notes the distances at which each row has a key; before scores become weights. */
ATTN_FUNC_ void attn_block_relative_hits_(attn_tile_ *t, const attn_block_ *b) {
  const int64_t c = attn_relative_clip_(t->a);
  for (int e = 0; e < b->n; e++)
    for (int r = 0; r < t->n; r++) {
      const int64_t d = attn_clamp_(attn_block_key_(b, e) - t->pos[r], -c, c) - t->rel_first;
      if (attn_block_reads_(t, b, e, r)) t->w.rel_hit[d * ATTN_TILE_ + r] = 1;
    }
}

/* Adds the block's weights to the sums by distance. */
ATTN_FUNC_ void attn_block_relative_values_(attn_tile_ *t, const attn_block_ *b, int started) {
  static const float one = 1.0f;
  const int64_t c = attn_relative_clip_(t->a);
  const attn_table_ *f = t->a->table;
  for (int g = 0; g < t->groups; g++)
    if (started && b->end[g] > 0) f->scale_block(t->w.rel_values, t->rel_rows, g, g + 1, t->alpha);
  for (int i = 0; i < b->count; i++) {
    const int end = b->seg[i].at + b->seg[i].n;
    for (int g = b->seg[i].g0; g < b->seg[i].g1; g++)
      for (int e = b->seg[i].at, n; e < end; e += n) {
        const int64_t row = attn_relative_row_(t, g, attn_block_key_(b, e), c);
        const float *p = t->w.s + e * ATTN_TILE_;
        n = attn_relative_run_(t, b, g, e, end, c);
        if (row >= 0) {
          f->value_block(t->w.rel_values + row * ATTN_TILE_, p, &one, 0, n, 1, g, g + 1, NULL, 0);
          continue;
        }
        for (int j = 0; j < n; j++)
          for (int r = g * ATTN_GROUP_; r < (g + 1) * ATTN_GROUP_ && r < t->n; r++) {
            const int64_t d = attn_clamp_(attn_block_key_(b, e + j) - t->pos[r], -c, c);
            t->w.rel_values[(d - t->rel_first) * ATTN_TILE_ + r] += p[j * ATTN_TILE_ + r];
          }
      }
  }
}

ATTN_FUNC_ void attn_block_labels_(attn_tile_ *t, const attn_block_ *b, const attn_segment_ *seg) {
  const attn_labels *z = &t->a->labels;
  for (int e = seg->at; e < seg->at + seg->n; e++)
    for (int r = seg->g0 * ATTN_GROUP_; r < seg->g1 * ATTN_GROUP_ && r < t->n; r++) {
      if (!attn_block_sees_(t, b, e, r)) continue;
      const int64_t x = z->label(z->user, t->batch, t->head[r], t->row[r], attn_block_key_(b, e));
      if (x >= 0 && x < z->table.len) t->w.s[e * ATTN_TILE_ + r] += t->w.labels[x * ATTN_TILE_ + r];
    }
}

/* t->w.dot = (q + v) . table[p - j] for a tile of consecutive rows and consecutive keys. Between
 * them only n + 63 distances occur: they are computed once, as scores of table rows in falling order,
 * and read along diagonals by transposing, shifting each row and transposing back. The next block's
 * first 63 are this one's last. */
ATTN_FUNC_ void attn_block_xl_lined_(attn_tile_ *t, const attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const int64_t more = t->n - 1, far = t->pos[t->n - 1], stride = a->xl.table.stride_len;
  const int64_t most = far - b->j0 - a->xl.first; /* row of entry 0 */
  const int64_t count = b->n + more, done = t->xl_next == b->j0 ? more : 0;
  const int64_t from = attn_clamp_(most - (a->xl.table.len - 1), done, count);
  const int64_t to = attn_clamp_(most + 1, from, count);
  void *row[ATTN_GROUP_];
  const void *src[ATTN_GROUP_];
  float *dots = t->w.xl_dots;
  for (int64_t e = done; e < count; e++) /* distances that no allowed pair has */
    if (e < from || e >= to) memset(dots + e * ATTN_TILE_, 0, ATTN_TILE_ * sizeof(float));
  if (to > from)
    f->score_block(dots + from * ATTN_TILE_, t->w.xl_qt,
                   attn_table_row_(&a->xl.table, t->head[0], most - from), -stride, to - from,
                   a->q.dim, 0, t->groups, t->spare);
  for (int g = 0; g < t->groups; g++) {
    const int r0 = g * ATTN_GROUP_, n = t->n - r0 < ATTN_GROUP_ ? t->n - r0 : ATTN_GROUP_;
    const int64_t last = t->pos[r0 + n - 1];
    for (int r = 0; r < n; r++) {
      float *x = t->w.rows + r * ATTN_ROOM_;
      row[r] = x, src[r] = x + (last - t->pos[r0 + r]);
    }
    f->unpack(row, dots + (far - last) * ATTN_TILE_ + r0, n, b->n + n - 1, ATTN_F32, NULL);
    f->pack(t->w.dot + r0, src, n, b->n, ATTN_F32, 1.0f, FLT_MIN);
  }
  memmove(dots, dots + b->n * ATTN_TILE_, (size_t)(more * ATTN_TILE_) * sizeof(float));
  t->xl_next = b->j0 + b->n;
}

/* The same for one row and any keys, as out[e]; q is row r of the transposed-back queries. */
ATTN_FUNC_ void attn_xl_row_(const attn_tile_ *t, float *out, const float *q, int r,
                             const int32_t *key, int n) {
  const attn_xl *z = &t->a->xl;
  int32_t row[ATTN_BLOCK_];
  for (int e = 0; e < n; e++)
    row[e] = (int32_t)attn_clamp_(t->pos[r] - key[e] - z->first, 0, z->table.len - 1);
  t->a->table->dots(out, q, attn_table_row_(&z->table, t->head[0], 0), z->table.stride_len, row, n,
                    t->a->q.dim, ATTN_F32, 0);
}

ATTN_FUNC_ void attn_block_xl_(attn_tile_ *t, const attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  void *row[ATTN_TILE_];
  const void *src[ATTN_TILE_];
  int32_t key[ATTN_BLOCK_];
  if (t->lined && !b->gathered) {
    attn_block_xl_lined_(t, b);
    return;
  }
  for (int e = 0; e < b->n; e++) key[e] = (int32_t)attn_block_key_(b, e);
  for (int r = 0; r < t->n; r++) row[r] = t->w.q_rows + r * a->q.dim;
  a->table->unpack(row, t->w.xl_qt, t->n, a->q.dim, ATTN_F32, NULL);
  for (int r = 0; r < t->n; r++) {
    float *x = t->w.rows + r * ATTN_ROOM_;
    attn_xl_row_(t, x, (const float *)row[r], r, key, b->n);
    src[r] = x;
  }
  a->table->pack(t->w.dot, src, t->n, b->n, ATTN_F32, 1.0f, FLT_MIN);
}

/* Scores to natural units, or back from them. */
ATTN_FUNC_ void attn_tile_natural_(const attn_tile_ *t, float *s, int64_t n, int g0, int g1,
                                   int natural) {
  float by[ATTN_TILE_];
  const double unit = t->a->unit;
  if (unit == 1.0) return;
  for (int r = 0; r < ATTN_TILE_; r++) by[r] = (float)(natural ? 1.0 / unit : unit);
  t->a->table->scale_block(s, n, g0, g1, by);
}

/* Hands scores [key][lane], in natural units, to the user's modifier. */
ATTN_FUNC_ void attn_tile_modify_(const attn_tile_ *t, float *s, const int64_t *key, int64_t n,
                                  int r0, int r1) {
  attn_score_tile tile;
  memset(&tile, 0, sizeof tile);
  tile.score = s + r0, tile.key_stride = ATTN_TILE_, tile.query_stride = 1;
  tile.batch = t->batch, tile.keys = n, tile.queries = r1 - r0;
  tile.key = key, tile.query = t->row + r0, tile.position = t->pos + r0, tile.head = t->head + r0;
  t->a->modify(t->a->modify_user, &tile);
}

ATTN_FUNC_ void attn_block_modify_(attn_tile_ *t, const attn_block_ *b, const attn_segment_ *seg) {
  int64_t key[ATTN_BLOCK_];
  const int r1 = seg->g1 * ATTN_GROUP_;
  for (int e = 0; e < seg->n; e++) key[e] = attn_block_key_(b, seg->at + e);
  float *s = t->w.s + seg->at * ATTN_TILE_;
  attn_tile_natural_(t, s, seg->n, seg->g0, seg->g1, 1);
  attn_tile_modify_(t, s, key, seg->n, seg->g0 * ATTN_GROUP_, r1 < t->n ? r1 : t->n);
  attn_tile_natural_(t, s, seg->n, seg->g0, seg->g1, 0);
}
/* <<< attn/engine/terms.h */
/* >>> attn/engine/lists.h */
/* engine/lists.h owns tiles whose rows have key lists of their own: scattered keys, of which no two
 * rows share many. Scores are computed row by row from the picked keys; then they are transposed,
 * entry e of every row in one vector, and the softmax is the one of all tiles. */

/* The list of a row: its keys, of which those before `next` are done. A caller's list also has its
 * place in the set it belongs to, and that set's place among the others. */
typedef struct attn_list_ {
  const int32_t *key;
  int64_t count, next, offset, set;
} attn_list_;

ATTN_FUNC_ void attn_list_of_(const attn_tile_ *t, int r, attn_list_ *x) {
  const attn_softmax_ *a = t->a;
  x->next = 0;
  if (a->edges) {
    const attn_edges_params *p = a->edges;
    const int64_t heads = p->per_head ? a->q.heads : 1;
    const int64_t set = (p->per_batch ? t->batch * heads : 0) + (p->per_head ? t->head[r] : 0);
    const int64_t *ptr = p->row_ptr + set * (a->q.len + 1) + t->row[r];
    x->offset = ptr[0], x->count = ptr[1] - ptr[0], x->set = set * p->edges;
    x->key = p->col ? p->col + x->set + x->offset : NULL;
  } else {
    const int32_t *key = (const int32_t *)attn_plan_at_(a->plan, a->plan->at_key) + t->plan->at;
    x->offset = x->set = 0, x->count = key[r + 1] - key[r];
    x->key = key + t->n + 1 + key[r];
  }
}

/* Where the weights of row r's list go. */
ATTN_FUNC_ float *attn_list_weights_(const attn_tile_ *t, int r, const attn_list_ *x) {
  const attn_softmax_ *a = t->a;
  const int64_t head = t->batch * a->q.heads + t->head[r];
  return a->edges->weights + head * a->edges->edges + x->offset;
}

/* The additive terms of a pair that depend on its distance, score units. */
ATTN_FUNC_ float attn_pair_bias_(const attn_tile_ *t, int r, int64_t key) {
  const attn_softmax_ *a = t->a;
  const int64_t at = (a->distance_heads > 1 ? t->head[r] : 0) * a->distances;
  float x = 0.0f;
  if (a->distance) x += a->distance[at + t->row[r] - key + a->k.len - 1];
  if (a->alibi) x += t->slope[r] * (float)attn_abs64_(key - t->pos[r]);
  if (a->gaussian.center) {
    const float c = a->gaussian.center[attn_row_number_(a, t->batch, t->head[r], t->row[r])];
    const float d = (float)((double)key - (double)c);
    x -= d * d * t->precision[r];
  }
  return x;
}

/* An adaptive span's factor of a pair: 0 < m <= 1 within reach. */
ATTN_FUNC_ float attn_pair_ramp_(const attn_tile_ *t, int r, int64_t key) {
  const attn_span *span = &t->a->span;
  const double away = attn_span_z_(t, r) - (double)(t->pos[r] - key + span->shift);
  const double m = away / attn_span_ramp_(span) + 1.0;
  return m < 1.0 ? m > 0.0 ? (float)m : 0.0f : 1.0f;
}

/* Whether pairs of lists have additive terms, or masks. */
ATTN_FUNC_ int attn_list_plain_(const attn_softmax_ *a) {
  return !a->distance && !a->alibi && !a->gaussian.center && !a->span.z && !a->bias.kind &&
         !(a->edges && a->edges->bias) && !a->factor && !a->mask.kind;
}

/* The next allowed keys of row r, up to a block of them, with their biases; edge[] says which
 * entries of the list they are. */
ATTN_FUNC_ int attn_list_take_(attn_tile_ *t, attn_list_ *x, int r, int32_t *index, int32_t *edge) {
  const attn_softmax_ *a = t->a;
  float bias[2]; /* one number of the mask */
  int n = 0;
  if (attn_list_plain_(a) && t->lo[r] == 0 && t->hi[r] == a->k.len) {
    const int64_t left = x->count - x->next;
    n = left < ATTN_BLOCK_ ? (int)left : ATTN_BLOCK_;
    if (n) memcpy(index, x->key + x->next, (size_t)n * sizeof *index);
    for (int e = 0; (a->edges && a->edges->weights) && e < n; e++) edge[e] = (int32_t)(x->next + e);
    x->next += n;
    return n;
  }
  for (; x->next < x->count && n < ATTN_BLOCK_; x->next++) {
    const int64_t key = x->key[x->next];
    float *cell = t->w.bias + n * ATTN_TILE_ + r;
    if (key < t->lo[r] || key >= t->hi[r]) continue;
    if (a->mask.kind && !attn_tile_sees_(t, r, key)) continue;
    *cell = attn_pair_bias_(t, r, key);
    if (a->span.z && attn_pair_ramp_(t, r, key) == 0.0f) continue;
    if (a->bias.kind) {
      const int64_t at = a->bias.k_len > 1 ? key : 0;
      a->table->widen(bias, t->bias[r] + at * attn_size_(a->bias.dtype), 0, NULL, 1, 1,
                      a->bias.dtype);
      if (bias[0] == -INFINITY) continue;
      *cell += attn_to_unit_(a, bias[0]);
    }
    if (a->edges && a->edges->bias) {
      const float z = a->edges->bias[x->set + x->offset + x->next];
      if (z == -INFINITY) continue;
      *cell += attn_to_unit_(a, z);
    }
    if (a->factor)
      t->w.dot[n * ATTN_TILE_ + r] =
          a->factor[(a->distance_heads > 1 ? t->head[r] : 0) * a->distances + t->row[r] - key +
                    a->k.len - 1];
    edge[n] = (int32_t)x->next;
    index[n++] = (int32_t)key;
  }
  return n;
}

/* E2 of a row's scores, while they still are a row. */
ATTN_FUNC_ void attn_list_terms_(attn_tile_ *t, float *s, const float *xl_q, int r,
                                 const int32_t *key, int n) {
  const attn_softmax_ *a = t->a;
  float xl[ATTN_BLOCK_];
  if (a->xl.table.data) {
    attn_xl_row_(t, xl, xl_q, r, key, n);
    for (int e = 0; e < n; e++) s[e] += xl[e];
  }
  if (a->relative.keys.data) {
    const int64_t c = attn_relative_clip_(a);
    for (int e = 0; e < n; e++) {
      const int64_t d = attn_clamp_(key[e] - t->pos[r], -c, c) - t->rel_first;
      s[e] += t->w.rel_keys[d * ATTN_TILE_ + r];
    }
  }
  for (int e = 0; a->labels.label && e < n; e++) {
    const int64_t x = a->labels.label(a->labels.user, t->batch, t->head[r], t->row[r], key[e]);
    if (x >= 0 && x < a->labels.table.len) s[e] += t->w.labels[x * ATTN_TILE_ + r];
  }
}

/* The score map, or the scores of the edges, leave as they are and become weights at the end. */
ATTN_FUNC_ void attn_list_emit_(attn_tile_ *t, const attn_list_ *x, int r, const int32_t *index,
                                const int32_t *edge, int n) {
  const attn_softmax_ *a = t->a;
  for (int e = 0; e < n; e++) {
    const float s = t->w.s[e * ATTN_TILE_ + r];
    if (index[e] < 0) continue;
    if (a->map.data)
      ((float *)(void *)attn_at_(&a->map, t->batch, t->head[r], t->row[r]))[index[e]] = s;
    if (a->edges && a->edges->weights) attn_list_weights_(t, r, x)[edge[e]] = s;
  }
}

/* The user's modifier, a row at a time; then what it forbids leaves the lists. */
ATTN_FUNC_ void attn_list_modify_(attn_tile_ *t, int32_t *const *index, const int *count,
                                  int most) {
  int64_t key[ATTN_BLOCK_];
  attn_tile_natural_(t, t->w.s, most, 0, t->groups, 1);
  for (int r = 0; r < t->n; r++) {
    for (int e = 0; e < count[r]; e++) key[e] = index[r][e];
    if (count[r]) attn_tile_modify_(t, t->w.s, key, count[r], r, r + 1);
  }
  attn_tile_natural_(t, t->w.s, most, 0, t->groups, 0);
  for (int r = 0; r < t->n; r++)
    for (int e = 0; e < count[r]; e++)
      if (t->w.s[e * ATTN_TILE_ + r] == -INFINITY) index[r][e] = -1;
}

/* Rows that are close anyway need not be asked for. */
ATTN_FUNC_ int attn_list_ahead_(const attn_softmax_ *a, const attn_tensor *x) {
  return a->k.len > ((int64_t)1 << 18) / (x->dim * attn_size_(x->dtype)) ? ATTN_AHEAD_ : 0;
}

/* Scores of the next keys of every row: row by row, then transposed. */
ATTN_FUNC_ void attn_list_scores_(attn_tile_ *t, int32_t *const *index, const int *count,
                                  int most) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const int64_t dk = a->q.dim;
  const char *k = attn_at_(&a->k, t->batch, t->head_k, 0);
  const void *row[ATTN_TILE_];
  uint64_t lanes[ATTN_BLOCK_ + 1] = {0}, done = 0;
  attn_modifiers_ mod, set;
  for (int r = 0; r < t->n; r++) {
    float *s = t->w.rows + r * ATTN_ROOM_;
    const float *q = t->w.q_rows + r * dk;
    f->dots(s, q, k, a->k.stride_len, index[r], count[r], dk, a->k.dtype,
            attn_list_ahead_(a, &a->k));
    attn_list_terms_(t, s, q + ATTN_TILE_ * dk, r, index[r], count[r]);
    for (int e = count[r]; e < most; e++) s[e] = 0.0f;
    row[r] = s;
    lanes[count[r]] |= (uint64_t)1 << r;
  }
  for (int e = 0; e < most; e++) done |= lanes[e], lanes[e] = attn_tile_all_(t) & ~done;
  f->pack(t->w.s, row, t->n, most, ATTN_F32, 1.0f, FLT_MIN);
  memset(&mod, 0, sizeof mod);
  set = mod;
  mod.softcap = a->softcap;
  if (!attn_list_plain_(a)) mod.bias = t->w.bias;
  if (a->factor) mod.factor = t->w.dot;
  set.lanes = lanes;
  for (int r = 0; r < ATTN_TILE_; r++) t->top[r] = -INFINITY;
  if (a->modify || a->span.z) {
    f->modify_block(t->w.s, most, 0, t->groups, &mod, t->spare);
    if (a->modify) attn_list_modify_(t, index, count, most);
    for (int r = 0; a->span.z && r < t->n; r++)
      for (int e = 0; e < count[r]; e++)
        if (index[r][e] >= 0)
          t->w.s[e * ATTN_TILE_ + r] += (float)attn_log2_(attn_pair_ramp_(t, r, index[r][e]));
    f->modify_block(t->w.s, most, 0, t->groups, &set, t->top);
  } else {
    mod.lanes = lanes;
    f->modify_block(t->w.s, most, 0, t->groups, &mod, t->top);
  }
}

/* Adds what the lists of a tile hold to its state; o_rows has the accumulator by rows. */
ATTN_FUNC_ void attn_list_values_(attn_tile_ *t, int32_t *const *index, const int *count,
                                  int most) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const int64_t dv = a->v.dim;
  const char *v = attn_at_(&a->v, t->batch, t->head_v, 0);
  void *row[ATTN_TILE_];
  int kept[ATTN_TILE_];
  if (a->relu) {
    f->relu_block(t->w.s, most, 0, t->groups, a->relu->square, t->l, t->count);
    for (int r = 0; r < ATTN_TILE_; r++) t->alpha[r] = 1.0f;
  } else {
    f->softmax_block(t->w.s, most, 0, t->groups, t->m, t->l, t->alpha, t->top, NULL);
  }
  if (a->counting) return;
  for (int r = 0; r < t->n; r++) row[r] = t->w.rows + r * ATTN_ROOM_;
  f->unpack(row, t->w.s, t->n, most, ATTN_F32, NULL);
  for (int r = 0; r < t->n; r++) {
    float *p = (float *)row[r];
    int n = count[r];
    if (a->modify) { /* what the modifier forbids is not read */
      n = 0;
      for (int e = 0; e < count[r]; e++)
        if (index[r][e] >= 0) p[n] = p[e], index[r][n++] = index[r][e];
    }
    f->axpys(t->w.o_rows + r * dv, p, v, a->v.stride_len, index[r], n, dv, a->v.dtype, t->alpha[r],
             attn_list_ahead_(a, &a->v));
    kept[r] = n;
  }
  if (!a->relative.values.data) return;
  const int64_t c = attn_relative_clip_(a);
  f->scale_block(t->w.rel_values, t->rel_rows, 0, t->groups, t->alpha);
  for (int r = 0; r < t->n; r++)
    for (int e = 0; e < kept[r]; e++) {
      const int64_t d = attn_clamp_(index[r][e] - t->pos[r], -c, c) - t->rel_first;
      t->w.rel_values[d * ATTN_TILE_ + r] += ((const float *)row[r])[e];
      t->w.rel_hit[d * ATTN_TILE_ + r] = 1;
    }
}

/* Walks the lists of a tile. started = the accumulator holds something; the result too. */
ATTN_FUNC_ int attn_tile_lists_(attn_tile_ *t, int started) {
  const attn_softmax_ *a = t->a;
  const int64_t dk = a->q.dim, dv = a->v.dim;
  attn_list_ list[ATTN_TILE_];
  int32_t *index[ATTN_TILE_];
  int count[ATTN_TILE_], any = 0;
  void *to[ATTN_TILE_];
  const void *from[ATTN_TILE_];
  for (int r = 0; r < t->n; r++) {
    attn_list_of_(t, r, &list[r]);
    index[r] = t->w.index + r * ATTN_BLOCK_;
    if (a->edges && a->edges->weights && !a->counting)
      for (int64_t e = 0; e < list[r].count; e++) attn_list_weights_(t, r, &list[r])[e] = -INFINITY;
    to[r] = t->w.q_rows + r * dk;
  }
  a->table->unpack(to, t->w.qt, t->n, dk, ATTN_F32, NULL);
  if (a->xl.table.data) {
    for (int r = 0; r < t->n; r++) to[r] = t->w.q_rows + (ATTN_TILE_ + r) * dk;
    a->table->unpack(to, t->w.xl_qt, t->n, dk, ATTN_F32, NULL);
  }
  for (int r = 0; r < t->n; r++) from[r] = to[r] = t->w.o_rows + r * dv;
  if (started)
    a->table->unpack(to, t->w.ot, t->n, dv, ATTN_F32, NULL);
  else
    memset(t->w.o_rows, 0, (size_t)(ATTN_TILE_ * dv) * sizeof(float));
  for (;;) {
    int most = 0;
    for (int r = 0; r < t->n; r++) {
      int32_t *edges = t->w.index + (ATTN_TILE_ + r) * ATTN_BLOCK_;
      count[r] = attn_list_take_(t, &list[r], r, index[r], edges);
      if (count[r] > most) most = count[r];
      *t->w.pairs += count[r];
    }
    if (most == 0) break;
    any = 1;
    attn_list_scores_(t, index, count, most);
    if (!a->counting)
      for (int r = 0; r < t->n && (a->map.data || a->edges); r++)
        attn_list_emit_(t, &list[r], r, index[r], t->w.index + (ATTN_TILE_ + r) * ATTN_BLOCK_,
                        count[r]);
    attn_list_values_(t, index, count, most);
  }
  if (any) a->table->pack(t->w.ot, from, t->n, dv, ATTN_F32, 1.0f, FLT_MIN);
  return started || any;
}
/* <<< attn/engine/lists.h */
/* >>> attn/engine/softmax.h */
/* engine/softmax.h owns the exact-softmax driver: it walks the key blocks that a tile of queries
 * may see and calls the primitives on them. Which keys and terms a mechanism has is data in
 * attn_softmax_; argument checks belong to the mechanisms. */

/* Values that are not finite must reach the rows that may read them and no others, though a
 * forbidden pair has weight 0 and 0 * NaN is NaN. A tile in which that may have happened is swept
 * again carefully: such values are taken out of a copy of the block here, before the scores become
 * weights, with the lanes that read them, and put back by attn_tile_patch_. */
ATTN_FUNC_ void attn_tile_clean_(attn_tile_ *t, const attn_block_ *b) {
  const int64_t dv = t->a->v.dim;
  for (int e = 0; e < b->n; e++)
    for (int lane = 0; lane < t->n; lane++)
      t->w.hit[e * ATTN_TILE_ + lane] = (unsigned char)attn_block_reads_(t, b, e, lane);
  for (int64_t e = 0; e < b->n; e++)
    for (int64_t c = 0; c < dv; c++) {
      float x = b->v[e * b->v_stride + c];
      t->w.v[e * dv + c] = x - x == 0.0f ? x : 0.0f;
    }
  t->w.held->n = 0;
}

/* Adds what attn_tile_clean_ took out, read from the tensor itself. */
ATTN_FUNC_ void attn_tile_patch_(attn_tile_ *t, const attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  const int64_t dv = a->v.dim;
  float x;
  for (int64_t e = 0; e < b->n; e++)
    for (int64_t c = 0; c < dv; c++) {
      const char *p = attn_at_(&a->v, t->batch, t->head_v, attn_block_key_(b, e));
      a->table->widen(&x, p + c * attn_size_(a->v.dtype), 0, NULL, 1, 1, a->v.dtype);
      if (x - x == 0.0f) continue;
      for (int lane = 0; lane < t->n; lane++)
        if (t->w.hit[e * ATTN_TILE_ + lane])
          t->w.ot[c * ATTN_TILE_ + lane] += t->w.s[e * ATTN_TILE_ + lane] * x;
    }
}

/* The score map leaves as scores here and becomes weights when the row's sum is known. */
ATTN_FUNC_ void attn_block_emit_(attn_tile_ *t, const attn_block_ *b, const attn_ramp_ *ramp) {
  void *rows[ATTN_TILE_];
  for (int r = 0; ramp && r < t->n; r++)
    for (int e = 0; e < b->n; e++) {
      float m = (ramp->start[r] + ramp->at[e]) * ramp->rate + 1.0f;
      if (m < 1.0f && t->w.s[e * ATTN_TILE_ + r] > -INFINITY)
        t->w.s[e * ATTN_TILE_ + r] += m > 0.0f ? (float)attn_log2_(m) : -INFINITY;
    }
  for (int r = 0; t->a->phase > 0 && r < t->n; r++) { /* earlier phases have written other cells */
    float *row = (float *)(void *)attn_at_(&t->a->map, t->batch, t->head[r], t->row[r]);
    for (int e = 0; e < b->n; e++) {
      const float s = t->w.s[e * ATTN_TILE_ + r];
      if (s != -INFINITY) row[attn_block_key_(b, e)] = s;
    }
  }
  if (t->a->phase > 0) return;
  for (int e = 0, n; e < b->n; e += n) {
    n = attn_block_run_(b, e);
    for (int r = 0; r < t->n; r++)
      rows[r] = (float *)(void *)attn_at_(&t->a->map, t->batch, t->head[r], t->row[r]) +
                attn_block_key_(b, e);
    t->a->table->unpack(rows, t->w.s + e * ATTN_TILE_, t->n, n, ATTN_F32, NULL);
  }
}

/* Whether anything is added to scores, the allowed set apart. */
ATTN_FUNC_ int attn_block_terms_in_(const attn_tile_ *t, const attn_block_ *b) {
  const attn_modifiers_ *m = &b->mod;
  return m->softcap > 0.0f || m->slope || m->center || m->table || m->factor || m->bias || m->key ||
         m->dot || t->a->relative.keys.data || t->a->labels.label || t->a->modify;
}

/* E1 to E7 of one segment; the maximum of each row goes to t->top. */
ATTN_FUNC_ void attn_segment_scores_(attn_tile_ *t, const attn_block_ *b,
                                     const attn_segment_ *seg) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const int g0 = seg->g0, g1 = seg->g1, set = seg->m0 < seg->m1;
  attn_modifiers_ mod = b->mod, only = b->set;
  float *s = t->w.s + seg->at * ATTN_TILE_;
  const float *k = b->k + seg->at * b->k_stride;
  const int terms = attn_block_terms_in_(t, b);
  if (!terms && !set) {
    f->score_block(s, t->w.qt, k, b->k_stride, seg->n, a->q.dim, g0, g1, t->top);
    return;
  }
  /* scores that will change have no maximum yet */
  for (int r = 0; r < ATTN_TILE_; r++) t->spare[r] = -INFINITY;
  if (a->counting && !a->modify) /* only which pairs there are is asked for */
    for (int e = 0; e < seg->n; e++)
      memset(s + e * ATTN_TILE_ + g0 * ATTN_GROUP_, 0,
             (size_t)((g1 - g0) * ATTN_GROUP_) * sizeof(float));
  else
    f->score_block(s, t->w.qt, k, b->k_stride, seg->n, a->q.dim, g0, g1, t->spare);
  only.at += seg->at;
  if (only.lanes) only.lanes += seg->at;
  if (!terms) { /* only some groups change */
    for (int r = g0 * ATTN_GROUP_; r < g1 * ATTN_GROUP_; r++)
      if ((r < seg->m0 * ATTN_GROUP_ || r >= seg->m1 * ATTN_GROUP_) && t->spare[r] > t->top[r])
        t->top[r] = t->spare[r];
    f->modify_block(s, seg->n, seg->m0, seg->m1, &only, t->top);
    return;
  }
  if (a->relative.keys.data) attn_block_relative_keys_(t, b, seg);
  if (a->labels.label) attn_block_labels_(t, b, seg);
  mod.at += seg->at;
  if (mod.key) mod.key += seg->at;
  if (mod.back) mod.back += seg->at;
  if (mod.bias) mod.bias += seg->at * ATTN_TILE_;
  if (mod.dot) mod.dot += seg->at * ATTN_TILE_;
  if (a->modify) {
    f->modify_block(s, seg->n, g0, g1, &mod, t->spare);
    attn_block_modify_(t, b, seg);
    f->modify_block(s, seg->n, g0, g1, &only, t->top);
    return;
  }
  if (set) mod.lanes = only.lanes, mod.lo = only.lo, mod.hi = only.hi;
  f->modify_block(s, seg->n, g0, g1, &mod, t->top);
}

ATTN_FUNC_ void attn_block_scores_(attn_tile_ *t, attn_block_ *b) {
  for (int r = 0; r < ATTN_TILE_; r++) t->top[r] = -INFINITY;
  if (t->a->xl.table.data) attn_block_xl_(t, b), b->mod.dot = t->w.dot;
  const int fill = t->a->map.data && !b->whole; /* a map wants every cell */
  for (int g = 0; (fill || b->gaps) && g < t->groups; g++)
    for (int e = fill ? 0 : b->first[g]; e < (fill ? b->n : b->end[g]); e++)
      for (int r = 0; r < ATTN_GROUP_; r++)
        t->w.s[e * ATTN_TILE_ + g * ATTN_GROUP_ + r] = -INFINITY;
  /* scores are changed while they are in the first cache; 66 is 11 strips of 6 keys */
  const int most = attn_block_terms_in_(t, b) ? 66 : ATTN_BLOCK_;
  for (int i = 0; i < b->count; i++) {
    const attn_segment_ *seg = &b->seg[i];
    attn_segment_ part = *seg;
    for (int left = seg->n; left > 0; left -= part.n, part.at += part.n) {
      part.n = left > most ? most : left;
      attn_segment_scores_(t, b, &part);
    }
    const int lanes = (seg->g1 - seg->g0) * ATTN_GROUP_, left = t->n - seg->g0 * ATTN_GROUP_;
    *t->w.pairs += seg->n * (int64_t)(lanes < left ? lanes : left);
  }
}

/* Scores of keys first .. end of lane groups g0..g1 become weights. */
ATTN_FUNC_ void attn_block_weights_(attn_tile_ *t, const attn_ramp_ *ramp, int first, int end,
                                    int g0, int g1) {
  const attn_softmax_ *a = t->a;
  float *s = t->w.s + first * ATTN_TILE_;
  attn_ramp_ here;
  if (a->relu) {
    a->table->relu_block(s, end - first, g0, g1, a->relu->square, t->l, t->count);
    return;
  }
  if (ramp) here = *ramp, here.at += first, ramp = &here;
  a->table->softmax_block(s, end - first, g0, g1, t->m, t->l, t->alpha, t->top, ramp);
}

/* E8 and E9: scores become weights and values are added to the accumulator; started = it holds
 * earlier blocks. One segment for all rows, the usual case, rescales it in registers. */
ATTN_FUNC_ void attn_block_values_(attn_tile_ *t, attn_block_ *b, int started) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const int64_t dv = a->v.dim;
  const float *s = t->w.s;
  attn_ramp_ zone, *ramp = NULL;
  int patch = 0;
  if (a->span.z && b->j0 < t->flat) {
    const double rate = 1.0 / attn_span_ramp_(&a->span);
    for (int r = 0; r < t->n; r++)
      t->start[r] = (float)(attn_span_z_(t, r) - (double)(t->pos[r] - b->base + a->span.shift));
    zone.start = t->start, zone.at = b->at, zone.rate = (float)attn_clamp_f64_(rate);
    ramp = &zone;
  }
  if (a->map.data) attn_block_emit_(t, b, ramp);
  if (a->map.data && ramp) ramp = NULL; /* it is in the scores now */
  if (t->rel_careful) attn_block_relative_hits_(t, b);
  if (t->careful && b->partial && !f->finite(b->v, b->v_stride, b->n, dv)) {
    attn_tile_clean_(t, b);
    b->v = t->w.v, b->v_stride = dv, patch = 1;
  }
  if (b->whole) {
    attn_block_weights_(t, ramp, 0, b->n, 0, t->groups);
    if (!a->counting)
      f->value_block(t->w.ot, s, b->v, b->v_stride, b->n, dv, 0, t->groups,
                     started && !a->relu ? t->alpha : NULL, !started);
  } else {
    if (!started) memset(t->w.ot, 0, (size_t)(dv * ATTN_TILE_) * sizeof(float));
    for (int g = 0; g < t->groups; g++) {
      if (b->end[g] == 0) continue;
      attn_block_weights_(t, ramp, b->first[g], b->end[g], g, g + 1);
      if (started && !a->relu) f->scale_block(t->w.ot, dv, g, g + 1, t->alpha);
    }
    for (int i = 0; i < b->count && !a->counting; i++) {
      const attn_segment_ *seg = &b->seg[i];
      f->value_block(t->w.ot, s + seg->at * ATTN_TILE_, b->v + seg->at * b->v_stride, b->v_stride,
                     seg->n, dv, seg->g0, seg->g1, NULL, 0);
    }
  }
  if (a->relative.values.data) attn_block_relative_values_(t, b, started && !a->relu);
  if (patch && !a->counting) attn_tile_patch_(t, b);
}

/* Where the accumulator of a row waits between phases. */
ATTN_FUNC_ void attn_tile_state_rows_(const attn_tile_ *t, void **rows) {
  const attn_softmax_ *a = t->a;
  for (int r = 0; r < t->n; r++)
    rows[r] = a->state_o
                  ? a->state_o + attn_row_number_(a, t->batch, t->head[r], t->row[r]) * a->v.dim
                  : t->out[r];
}

/* The state of a tile's rows: none, or what the phase before has left. 1 = the accumulator holds
 * something. */
ATTN_FUNC_ int attn_tile_load_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  void *rows[ATTN_TILE_];
  const void *from[ATTN_TILE_];
  for (int r = 0; r < ATTN_TILE_; r++) {
    t->m[r] = -INFINITY, t->l[r] = t->count[r] = 0.0f;
    t->alpha[r] = t->scale[r] = 1.0f;
  }
  if (a->phase == 0) return 0;
  for (int r = 0; r < t->n; r++) {
    const int64_t at = attn_row_number_(a, t->batch, t->head[r], t->row[r]);
    t->m[r] = a->state_m[at], t->l[r] = a->state_l[at], t->count[r] = a->state_n[at];
  }
  if (a->counting) return 1;
  attn_tile_state_rows_(t, rows);
  for (int r = 0; r < t->n; r++) from[r] = rows[r];
  a->table->pack(t->w.ot, from, t->n, a->v.dim, ATTN_F32, 1.0f, FLT_MIN);
  return 1;
}

/* Leaves the state for the next phase. */
ATTN_FUNC_ void attn_tile_store_(const attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  void *rows[ATTN_TILE_];
  for (int r = 0; r < t->n; r++) {
    const int64_t at = attn_row_number_(a, t->batch, t->head[r], t->row[r]);
    a->state_m[at] = t->m[r], a->state_l[at] = t->l[r];
    if (a->counting || !a->relu || !a->relu->count_first) a->state_n[at] = t->count[r];
  }
  if (a->counting) return;
  attn_tile_state_rows_(t, rows);
  a->table->unpack(rows, t->w.ot, t->n, a->v.dim, ATTN_F32, NULL);
}

/* What the sums of rectified weights are multiplied by: t->scale, and the sums themselves. */
ATTN_FUNC_ void attn_tile_relu_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const attn_relu_params *p = a->relu->params;
  for (int r = 0; r < t->n; r++) {
    const double keys = p->by_keys ? (double)a->k.len : (double)t->count[r];
    const double n = keys > 1.0 ? keys : 1.0, l = (double)t->l[r];
    double c = 1.0;
    if (a->relu->by_square) {
      c = 1.0 / (n * n);
    } else if (p->kind == ATTN_RELU_LEN) {
      const double alpha = p->alpha == 0.0f && !attn_to_bits_(p->alpha) ? 1.0 : (double)p->alpha;
      c = alpha == 1.0 ? 1.0 / n : pow(n, -alpha);
    } else if (p->kind == ATTN_RELU_VAR) {
      c = 1.0 / ((p->gamma == 0.0f ? 1.0 : (double)p->gamma) * sqrt(n / 2.0));
    } else if (p->kind == ATTN_RELU_NORM) {
      const double sum = (double)p->eps + l;
      c = sum == 0.0 ? 0.0 : 1.0 / sum;
    }
    t->scale[r] = (float)attn_clamp_f64_(c); /* 0 times it stays 0 */
    if (!a->lse.data) continue;
    float sum = (float)(c * l);
    memcpy(attn_at_(&a->lse, t->batch, t->head[r], t->row[r]), &sum, sizeof sum);
  }
}

/* Sinks, the last division, and the LSE. */
ATTN_FUNC_ void attn_tile_divide_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const int64_t queries = a->q_len ? a->q_len[t->batch] : a->q.len;
  float logit[ATTN_TILE_];
  for (int pass = 0; pass < 2; pass++) {
    if (pass == 0 ? !a->sinks : !a->softmax_one) continue;
    for (int r = 0; r < ATTN_TILE_; r++) {
      logit[r] = -INFINITY;
      if (r < t->n && t->row[r] < queries)
        logit[r] = pass == 0 ? attn_to_unit_(a, a->sinks[t->head[r]]) : 0.0f;
    }
    f->join(t->m, t->l, t->scale, logit);
  }
  f->divide(t->scale, t->l);
  if (!a->lse.data) return;
  for (int r = 0; r < t->n; r++) {
    float lse = -INFINITY;
    if (t->l[r] > 0.0f && t->l[r] < INFINITY)
      lse = (float)(((double)t->m[r] + attn_log2_(t->l[r])) * ATTN_LN2_);
    else if (t->l[r] != 0.0f)
      lse = attn_from_bits_(0x7fc00000u);
    memcpy(attn_at_(&a->lse, t->batch, t->head[r], t->row[r]), &lse, sizeof lse);
  }
}

/* What leaves the tile (E10). */
ATTN_FUNC_ void attn_tile_finish_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  if (a->relu)
    attn_tile_relu_(t);
  else
    attn_tile_divide_(t);
  f->unpack(t->out, t->w.ot, t->n, a->v.dim, a->o.dtype, t->scale);
  const int weights = a->map.data || (a->edges && a->edges->weights);
  for (int r = 0; weights && r < t->n; r++) {
    /* m includes the sinks here: exp2(x - m) / l with what scale already holds */
    const float inv = t->l[r] == 0.0f ? 0.0f : 1.0f / t->l[r];
    const float m = t->m[r] == -INFINITY ? 0.0f : t->m[r];
    if (a->map.data) {
      float *row = (float *)(void *)attn_at_(&a->map, t->batch, t->head[r], t->row[r]);
      f->weights(row, row, a->map.dim, m, inv);
    }
    if (a->edges && a->edges->weights) {
      attn_list_ list;
      attn_list_of_(t, r, &list);
      float *row = attn_list_weights_(t, r, &list);
      f->weights(row, row, list.count, m, inv);
    }
  }
}

/* inline: gcc takes a function of prefetches for one without effect and drops the call */
ATTN_INLINE_ void attn_row_ahead_(const attn_tensor *x, int64_t b, int64_t h, int64_t i) {
  const char *p = attn_at_(x, b, h, i);
  for (int64_t c = 0; c < x->dim * attn_size_(x->dtype); c += 64) ATTN_PREFETCH_(p + c);
}

/* Rows of q and o lie in far memory when few keys are computed between two tiles, and so do scattered
 * keys. They are asked for in portions while a block is computed: rows of the next tile (blocks of
 * 256 keys at T = 16384: 10 % of the time), keys of the next block (stride 128: 15 %). */
ATTN_INLINE_ void attn_tile_ahead_(attn_tile_ *t, attn_cursor_ *keys, int64_t step) {
  const attn_softmax_ *a = t->a;
  if (t->next) {
    const int32_t *row = (const int32_t *)attn_plan_at_(a->plan, a->plan->at_row) + t->next->row;
    for (int i = 0; i < 16 && t->asked < t->next->n; i++, t->asked++) {
      attn_row_ahead_(&a->q, t->batch, t->head[0], row[t->asked]);
      attn_row_ahead_(&a->o, t->batch, t->head[0], row[t->asked]);
    }
  }
  for (int i = 0; i < ATTN_BLOCK_ / 2 && keys->runs > 0; i++) {
    if (step == 1 && keys->run->n >= ATTN_GROUP_) return; /* the machine sees that coming */
    const int64_t key = keys->run->key + keys->used * step;
    attn_row_ahead_(&a->k, t->batch, t->head_k, key);
    attn_row_ahead_(&a->v, t->batch, t->head_v, key);
    if (++keys->used == keys->run->n) keys->run++, keys->runs--, keys->used = 0;
  }
}

/* The runs of a tile of a schedule. */
ATTN_FUNC_ attn_cursor_ attn_tile_runs_(const attn_softmax_ *a, const attn_plan_tile_ *tile) {
  attn_cursor_ c = {NULL, 0, 0};
  if (!tile || tile->step == 0) return c;
  c.run = (const attn_plan_run_ *)attn_plan_at_(a->plan, a->plan->at_run) + tile->at;
  c.runs = tile->count;
  return c;
}

/* Walks the key blocks of a tile, or its lists. 0 when there was nothing to see. */
ATTN_FUNC_ int attn_tile_sweep_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  attn_block_ block;
  attn_cursor_ cursor = {NULL, 0, 0}, ahead = cursor;
  int64_t j = INT64_MAX, end = 0;
  int started = attn_tile_load_(t);
  t->partial = 0;
  t->xl_next = -1;
  if (a->edges || (a->plan && t->plan->step == 0)) return attn_tile_lists_(t, started);
  if (a->plan) cursor = attn_tile_runs_(a, t->plan);
  for (int g = 0; g < t->groups; g++) {
    if (t->g[g].hi_max > end) end = t->g[g].hi_max;
    if (t->g[g].hi_max > 0 && t->g[g].lo_min < j) j = t->g[g].lo_min;
  }
  attn_block_terms_(t, &block);
  for (;;) {
    int64_t next = j;
    if (a->plan) {
      if (!attn_block_take_(t, &block, &cursor)) break;
    } else {
      if (j >= end) break;
      next = (j / ATTN_BLOCK_ + 1) * ATTN_BLOCK_;
      if (next > end) next = end;
    }
    const int open = attn_block_open_(t, &block, j, next);
    j = next;
    if (!open) continue;
    t->partial |= block.partial;
    attn_block_modifiers_(t, &block);
    const attn_plan_tile_ *from = cursor.runs > 0 ? t->plan : t->next;
    if (a->plan) {
      ahead = cursor.runs > 0 ? cursor : attn_tile_runs_(a, t->next);
      attn_tile_ahead_(t, &ahead, from ? from->step : 1);
    }
    attn_block_scores_(t, &block);
    if (a->plan) attn_tile_ahead_(t, &ahead, from ? from->step : 1);
    attn_block_values_(t, &block, started);
    started = 1;
  }
  return started;
}

/* Rectified weights whose scores are divided by the number of keys that a first pass has counted. */
ATTN_FUNC_ void attn_tile_by_count_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  float by[ATTN_TILE_] = {0};
  for (int r = 0; r < t->n; r++) {
    const float n = a->state_n[attn_row_number_(a, t->batch, t->head[r], t->row[r])];
    const float keys = a->relu->params->by_keys ? (float)a->k.len : n;
    by[r] = 1.0f / (keys > 1.0f ? keys : 1.0f);
  }
  f->scale_block(t->w.qt, a->q.dim, 0, t->groups, by);
  if (a->xl.table.data) f->scale_block(t->w.xl_qt, a->q.dim, 0, t->groups, by);
  if (a->relative.keys.data) f->scale_block(t->w.rel_keys, t->rel_rows, 0, t->groups, by);
  if (a->labels.label) f->scale_block(t->w.labels, a->labels.table.len, 0, t->groups, by);
}

/* The value side of relative vectors: sums by distance times vectors, added to the accumulator. As
 * with values, a vector that is not finite must reach the rows that have a key at its distance and
 * no others, whatever their weights: then the keys of a tile are noted. */
ATTN_FUNC_ void attn_tile_relative_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const attn_tensor *v = &a->relative.values;
  const int64_t dv = a->v.dim;
  const float *row = attn_table_row_(v, t->head[0], t->rel_first + attn_relative_clip_(a));
  if (!t->rel_careful) {
    a->table->value_block(t->w.ot, t->w.rel_values, row, v->stride_len, t->rel_rows, a->v.dim, 0,
                          t->groups, NULL, 0);
    return;
  }
  t->w.held->n = 0;
  for (int64_t d = 0, n; d < t->rel_rows; d += n) {
    n = t->rel_rows - d < ATTN_BLOCK_ ? t->rel_rows - d : ATTN_BLOCK_;
    const float *part = row + d * v->stride_len;
    for (int64_t i = 0; i < n; i++)
      for (int64_t c = 0; c < dv; c++) {
        const float x = part[i * v->stride_len + c];
        t->w.v[i * dv + c] = x - x == 0.0f ? x : 0.0f;
      }
    a->table->value_block(t->w.ot, t->w.rel_values + d * ATTN_TILE_, t->w.v, dv, n, dv, 0,
                          t->groups, NULL, 0);
    for (int64_t i = 0; i < n; i++)
      for (int64_t c = 0; c < dv; c++) {
        const float x = part[i * v->stride_len + c];
        for (int r = 0; x - x != 0.0f && r < t->n; r++)
          if (t->w.rel_hit[(d + i) * ATTN_TILE_ + r])
            t->w.ot[c * ATTN_TILE_ + r] += t->w.rel_values[(d + i) * ATTN_TILE_ + r] * x;
      }
  }
}

/* A tile whose rows are known. */
ATTN_FUNC_ void attn_tile_run_(attn_tile_ *t, int last) {
  const attn_softmax_ *a = t->a;
  const int64_t pairs = *t->w.pairs;
  attn_tile_lanes_(t);
  attn_tile_terms_(t);
  if (a->relu && a->relu->count_first && !a->counting) attn_tile_by_count_(t);
  for (int r = 0; a->map.data && a->phase == 0 && r < t->n; r++) {
    float *row = (float *)(void *)attn_at_(&a->map, t->batch, t->head[r], t->row[r]);
    for (int64_t c = 0; c < a->map.dim; c++) row[c] = -INFINITY;
  }
  t->careful = t->rel_careful = 0;
  if (a->relative.values.data && t->rel_rows > 0)
    t->rel_careful = !a->table->finite(
        attn_table_row_(&a->relative.values, t->head[0], t->rel_first + attn_relative_clip_(a)),
        a->relative.values.stride_len, t->rel_rows, a->v.dim);
  attn_tile_relative_clear_(t);
  int started = attn_tile_sweep_(t);
  if (t->partial && started && !a->counting &&
      !a->table->finite(t->w.ot, ATTN_TILE_, a->v.dim, t->n)) {
    t->careful = 1, *t->w.pairs = pairs;
    attn_tile_relative_clear_(t);
    started = attn_tile_sweep_(t);
  }
  if (!started) memset(t->w.ot, 0, (size_t)(a->v.dim * ATTN_TILE_) * sizeof(float));
  if (a->relative.values.data && t->rel_rows > 0 && started) attn_tile_relative_(t);
  if (last && !a->counting)
    attn_tile_finish_(t);
  else
    attn_tile_store_(t);
}

/* Tiles of one phase and head of a schedule. */
ATTN_FUNC_ int64_t attn_plan_tiles_(const attn_plan_ *p, int64_t head, int phase, int64_t *first) {
  const int32_t *variant = (const int32_t *)attn_plan_at_(p, p->at_head);
  const int64_t *tiles = (const int64_t *)attn_plan_at_(p, p->at_tiles);
  const int64_t at = variant[head] * p->phases + phase;
  *first = tiles[at];
  return tiles[at + 1] - tiles[at];
}

/* One work item: a tile of one (batch, head group), or of a schedule. Late tiles first, since causal
 * ones cost more. */
ATTN_FUNC_ void attn_softmax_item_(void *job, int worker, int64_t index) {
  const attn_softmax_ *a = (const attn_softmax_ *)job;
  attn_tile_ t;
  t.a = a;
  t.plan = t.next = NULL;
  attn_scratch_cut_(a, worker, &t.w);
  if (!a->plan) {
    attn_tile_group_rows_(&t, index / a->tiles, a->tiles - 1 - index % a->tiles);
    attn_tile_run_(&t, 1);
    return;
  }
  const attn_plan_ *p = a->plan;
  const int32_t *variant = (const int32_t *)attn_plan_at_(p, p->at_head);
  const int32_t *phases = (const int32_t *)attn_plan_at_(p, p->at_phase);
  int64_t head = 0, first, left = index % a->tiles, n;
  while ((n = attn_plan_tiles_(p, head, a->phase, &first)) <= left) left -= n, head++;
  const attn_plan_tile_ *tile = (const attn_plan_tile_ *)attn_plan_at_(p, p->at_tile) + first;
  attn_tile_plan_rows_(&t, index / a->tiles, head, tile + (n - 1 - left));
  t.next = left + 1 < n ? tile + (n - 2 - left) : NULL, t.asked = 0;
  attn_tile_run_(&t, a->phase == phases[variant[head]] - 1);
}

/* What is shared by the workers, in front of their own memory. */
typedef struct attn_shared_ {
  int64_t distance, factor, m, l, n, o, bytes;
} attn_shared_;

ATTN_FUNC_ void attn_shared_plan_(const attn_softmax_ *a, attn_shared_ *x) {
  const int64_t f = sizeof(float), rows = attn_mul_(attn_mul_(a->q.batch, a->q.heads), a->q.len);
  const int64_t table = attn_piece_(attn_mul_(a->distance_heads, a->distances), f);
  const int state = a->phases > 1 || (a->relu && a->relu->count_first);
  const int64_t row = state ? attn_piece_(rows, f) : 0;
  int64_t at = 0;
  x->distance = at, at = attn_add_(at, attn_has_distance_(&a->by_distance) ? table : 0);
  x->factor = at, at = attn_add_(at, a->by_distance.factor.alpha ? table : 0);
  x->m = at, at = attn_add_(at, row);
  x->l = at, at = attn_add_(at, row);
  x->n = at, at = attn_add_(at, row);
  x->o = at;
  if (a->phases > 1 && a->o.dtype != ATTN_F32)
    at = attn_add_(at, attn_piece_(attn_mul_(rows, a->v.dim), f));
  x->bytes = at;
}

ATTN_FUNC_ int64_t attn_softmax_items_(const attn_softmax_ *a, int phase) {
  int64_t n = 0, first;
  if (!a->plan) return a->q.batch * (a->q.heads / a->group) * a->tiles;
  for (int64_t h = 0; h < a->q.heads; h++) n += attn_plan_tiles_(a->plan, h, phase, &first);
  return n * a->q.batch;
}

/* The most workers that have something to do. */
ATTN_FUNC_ int attn_softmax_workers_(const attn_softmax_ *a, int workers) {
  int64_t most = 0;
  for (int i = 0; i < a->phases; i++)
    if (attn_softmax_items_(a, i) > most) most = attn_softmax_items_(a, i);
  return attn_pieces_(workers, most);
}

/* Bytes of the whole call, INT64_MAX when they cannot be; a worker's own go to a->bytes. */
ATTN_FUNC_ int64_t attn_softmax_bytes_(attn_softmax_ *a, int workers) {
  attn_shared_ x;
  attn_shared_plan_(a, &x);
  a->bytes = attn_scratch_plan_(a);
  const int64_t own = attn_mul_(a->bytes, attn_softmax_workers_(a, workers));
  return attn_workspace_bytes_(attn_add_(x.bytes, own), 1);
}

ATTN_FUNC_ void attn_softmax_pass_(attn_softmax_ *a, attn_ctx *ctx, int workers) {
  for (a->phase = 0; a->phase < a->phases; a->phase++) {
    const int64_t items = attn_softmax_items_(a, a->phase);
    if (a->plan) a->tiles = items / a->q.batch;
    if (items) attn_for_(ctx, attn_pieces_(workers, items), items, attn_softmax_item_, a);
  }
}

/* Runs the whole problem; a is complete but for its memory. */
ATTN_FUNC_ int attn_softmax_run_(attn_error_ *e, attn_softmax_ *a, attn_ctx *ctx, int workers) {
  attn_workspace_ w;
  attn_shared_ x;
  attn_scratch_ s;
  const int64_t bytes = attn_softmax_bytes_(a, workers);
  workers = attn_softmax_workers_(a, workers);
  if (!attn_workspace_get_(e, &w, ctx, bytes)) return 0;
  attn_shared_plan_(a, &x);
  a->workspace = w.base + x.bytes;
  float *distance = (float *)(void *)(w.base + x.distance);
  float *factor = (float *)(void *)(w.base + x.factor);
  a->distance = attn_has_distance_(&a->by_distance) ? distance : NULL;
  a->factor = a->by_distance.factor.alpha ? factor : NULL;
  a->state_m = (float *)(void *)(w.base + x.m);
  a->state_l = (float *)(void *)(w.base + x.l);
  a->state_n = (float *)(void *)(w.base + x.n);
  a->state_o = a->o.dtype == ATTN_F32 ? NULL : (float *)(void *)(w.base + x.o);
  if (a->distance || a->factor)
    attn_distance_fill_(a, a->distance ? distance : NULL, a->factor ? factor : NULL);
  for (int i = 0; i < workers; i++) {
    attn_scratch_cut_(a, i, &s);
    *s.pairs = 0, s.held->n = 0;
  }
  if (a->relu && a->relu->count_first) {
    a->counting = 1;
    attn_softmax_pass_(a, ctx, workers);
    a->counting = 0;
    for (int i = 0; i < workers; i++) {
      attn_scratch_cut_(a, i, &s);
      *s.pairs = 0;
    }
  }
  attn_softmax_pass_(a, ctx, workers);
  if (a->edges)
    attn_report_(ctx, a->table, workers, "streaming softmax, key lists", "the call gives lists");
  else if (a->plan)
    attn_report_(ctx, a->table, workers, "streaming softmax, scheduled tiles",
                 "the call has a schedule");
  else
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
      "a pointer is not aligned to its elements",
      "an index list has an entry out of range, out of order or doubled",
      "a pattern is of an unknown kind, too deep or too large",
      "a schedule is damaged or was built for other lengths"};
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
/* >>> attn/mechanisms/pattern_check.h */
/* mechanisms/pattern_check.h owns the rules that a pattern must obey, kind by kind, before any of
 * it is used. */

/* A global list in ascending order without doubles, made where the caller's is not. */
typedef struct attn_sorted_ {
  const int32_t *from;
  int64_t from_count;
  int32_t *list;
  int64_t count;
} attn_sorted_;

typedef struct attn_tree_ {
  attn_error_ *e;
  int64_t heads;
  int64_t parts;   /* met so far */
  int64_t nodes;   /* that one head's tree may need */
  int depends;     /* on the head */
  attn_marks_ set; /* of the longest side, empty between uses */
  attn_vec_ sorted;
} attn_tree_;

ATTN_FUNC_ int attn_rule_(attn_tree_ *c, int ok, attn_status status, const char *reason) {
  return ok ? 1 : attn_reject_(c->e, status, reason);
}

#define ATTN_RULE_(ok, status, reason) attn_rule_(c, (ok), ATTN_E_##status, reason)

/* n numbers at a pointer, all within [lo, hi). */
ATTN_FUNC_ int attn_check_numbers_(attn_tree_ *c, const int32_t *a, int64_t n, int64_t lo,
                                   int64_t hi, const char *reason) {
  attn_span_ span;
  if (n > 0 && !a)
    return attn_reject_(c->e, ATTN_E_NULL, "pattern: a list with entries must not be null");
  if (!attn_check_array_(c->e, a, n, sizeof *a, "pattern: a list must be aligned to its elements",
                         &span))
    return 0;
  for (int64_t k = 0; k < n; k++)
    if (a[k] < lo || a[k] >= hi) return attn_reject_(c->e, ATTN_E_INDEX, reason);
  return 1;
}

ATTN_FUNC_ int attn_ascending_(const int32_t *a, int64_t n) {
  for (int64_t k = 1; k < n; k++)
    if (a[k] <= a[k - 1]) return 0;
  return 1;
}

/* A checked list that is not ascending gets a copy that is. */
ATTN_FUNC_ int attn_check_sort_(attn_tree_ *c, const int32_t *a, int64_t n, int64_t most) {
  if (attn_ascending_(a, n)) return 1;
  attn_sorted_ *s = (attn_sorted_ *)attn_vec_room_(&c->sorted, 1, sizeof *s);
  int32_t *list = s ? (int32_t *)ATTN_MALLOC((size_t)attn_min64_(n, most) * sizeof *s->list) : NULL;
  if (!list) return attn_reject_(c->e, ATTN_E_MEMORY, "ATTN_MALLOC returned null");
  s->from = a, s->from_count = n, s->list = list, s->count = 0;
  c->sorted.count++;
  for (int64_t k = 0; k < n; k++) attn_mark_(&c->set, a[k]);
  uint64_t bits;
  for (int64_t from = 0; (bits = attn_unmark_(&c->set, &from, most)) != 0;)
    for (; bits; bits &= bits - 1) list[s->count++] = (int32_t)(from + attn_lowest_(bits));
  return 1;
}

/* The list as the nodes use it. */
ATTN_FUNC_ const int32_t *attn_sorted_list_(const attn_tree_ *c, const int32_t *a, int64_t *n) {
  const attn_sorted_ *s = (const attn_sorted_ *)c->sorted.data;
  for (int64_t k = 0; k < c->sorted.count; k++)
    if (s[k].from == a && s[k].from_count == *n) {
      *n = s[k].count;
      return s[k].list;
    }
  return a;
}

ATTN_FUNC_ int attn_check_global_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f) {
  return ATTN_RULE_(p->indices >= 0, RANGE, "pattern.indices must not be negative") &&
         ATTN_RULE_(!p->queries || p->query_count >= 0, RANGE,
                    "pattern.query_count must not be negative") &&
         attn_check_numbers_(c, p->index, p->indices, 0, f->k_len,
                             "pattern.index has an entry outside 0 .. k_len - 1") &&
         (!p->queries ||
          attn_check_numbers_(c, p->queries, p->query_count, 0, f->q_len,
                              "pattern.queries has an entry outside 0 .. q_len - 1")) &&
         attn_check_sort_(c, p->index, p->indices, f->k_len) &&
         (!p->queries || attn_check_sort_(c, p->queries, p->query_count, f->q_len));
}

ATTN_FUNC_ int attn_check_sides_(attn_tree_ *c, const attn_pattern *p, int64_t least,
                                 const char *reason) {
  return ATTN_RULE_(p->left >= least && p->right >= least, RANGE, reason);
}

ATTN_FUNC_ int attn_check_square_(attn_tree_ *c, const attn_field_ *f) {
  return ATTN_RULE_(f->q_len == f->k_len, SHAPE, "this pattern wants q_len = k_len") &&
         ATTN_RULE_(f->q_off == 0, RANGE, "this pattern wants q_len = k_len and q_off = 0");
}

ATTN_FUNC_ int attn_check_step_(attn_tree_ *c, const attn_pattern *p) {
  return ATTN_RULE_(p->step >= 1, RANGE, "pattern.step must be at least 1");
}
ATTN_FUNC_ int attn_check_block_(attn_tree_ *c, const attn_pattern *p) {
  return ATTN_RULE_(p->block >= 1, RANGE, "pattern.block must be at least 1");
}
ATTN_FUNC_ int attn_check_beside_(attn_tree_ *c, const attn_pattern *p) {
  return ATTN_RULE_(p->before >= 0 && p->after >= 0, RANGE,
                    "pattern.before and pattern.after must not be negative");
}
ATTN_FUNC_ int attn_check_count_(attn_tree_ *c, const attn_pattern *p, int64_t least,
                                 const char *reason) {
  return ATTN_RULE_(p->count >= least, RANGE, reason);
}

ATTN_FUNC_ int attn_check_use_(attn_tree_ *c, const attn_pattern *p) {
  if (!ATTN_RULE_((int)p->use >= 0 && p->use <= ATTN_SPARSE_HEADS, RANGE,
                  "pattern.use must be one of attn_sparse_use") ||
      !ATTN_RULE_(p->layer >= 0, RANGE, "pattern.layer must not be negative"))
    return 0;
  if (p->use != ATTN_SPARSE_HEADS || !p->index) return 1;
  return ATTN_RULE_(p->indices == c->heads, HEADS, "pattern.indices must equal heads") &&
         attn_check_numbers_(c, p->index, p->indices, 0, 3,
                             "pattern.index must assign sets 0, 1 or 2");
}

ATTN_FUNC_ int attn_check_blockwise_(attn_tree_ *c, const attn_pattern *p) {
  const int64_t n = p->count;
  if (!attn_check_count_(c, p, 1, "pattern.count must be at least 1") ||
      !ATTN_RULE_(n <= INT32_MAX, RANGE, "pattern.count must be below 2^31"))
    return 0;
  if (!p->index || c->heads == 0) return 1;
  if (!ATTN_RULE_(n <= INT64_MAX / 8 / c->heads, OVERFLOW,
                  "pattern.index spans more than the address space") ||
      !attn_check_numbers_(c, p->index, c->heads * n, 0, n,
                           "pattern.index must hold permutations of 0 .. count - 1"))
    return 0;
  attn_vec_ v = {NULL, 0, 0};
  attn_marks_ set;
  const int64_t words = attn_marks_words_(n);
  uint64_t *zeros = (uint64_t *)attn_vec_room_(&v, words, sizeof *zeros);
  if (!zeros) return attn_reject_(c->e, ATTN_E_MEMORY, "ATTN_MALLOC returned null");
  memset(zeros, 0, (size_t)words * sizeof *zeros);
  attn_marks_cut_(&set, zeros, n);
  int fine = 1;
  for (int64_t h = 0; h < c->heads && fine; h++) {
    int64_t count = 0, from = 0;
    for (int64_t b = 0; b < n; b++) attn_mark_(&set, p->index[h * n + b]);
    for (uint64_t bits; (bits = attn_unmark_(&set, &from, n)) != 0;) count += attn_ones_(bits);
    fine = count == n;
  }
  ATTN_FREE(v.data);
  return ATTN_RULE_(fine, INDEX, "pattern.index must hold permutations of 0 .. count - 1");
}

ATTN_FUNC_ int attn_check_image_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f) {
  return attn_check_square_(c, f) &&
         ATTN_RULE_(p->height >= 1 && p->width >= 1, SHAPE,
                    "pattern.height and pattern.width must be at least 1") &&
         ATTN_RULE_(attn_mul_(p->height, p->width) == f->k_len, SHAPE,
                    "pattern.height * pattern.width must equal k_len") &&
         ATTN_RULE_(p->tile_height >= 1 && p->tile_width >= 1, RANGE,
                    "pattern.tile_height and pattern.tile_width must be at least 1") &&
         ATTN_RULE_(p->top >= 0 && p->bottom >= 0 && p->left >= 0 && p->right >= 0, RANGE,
                    "pattern.top, bottom, left and right must not be negative") &&
         ATTN_RULE_((int)p->order >= 0 && p->order <= ATTN_IMAGE_NONE, RANGE,
                    "pattern.order must be one of attn_image_order");
}

ATTN_FUNC_ int attn_check_axial_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f) {
  int64_t product = 1;
  if (!attn_check_square_(c, f) ||
      !ATTN_RULE_(p->indices >= 1, RANGE, "pattern.indices: a grid has at least 1 axis") ||
      !attn_check_numbers_(c, p->index, p->indices, 1, INT64_MAX,
                           "pattern.index: the axes of a grid must be at least 1 long"))
    return 0;
  for (int64_t a = 0; a < p->indices; a++) product = attn_mul_(product, p->index[a]);
  return ATTN_RULE_(product == f->k_len, SHAPE, "pattern.index: the grid must have k_len cells") &&
         ATTN_RULE_(p->axis >= -1 && p->axis < p->indices, RANGE,
                    "pattern.axis must be -1 or an axis of the grid");
}

ATTN_FUNC_ int attn_check_tree_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f) {
  int64_t size[64], base[64];
  if (!attn_check_square_(c, f) ||
      !ATTN_RULE_(p->width >= 1 && p->width <= INT32_MAX, SHAPE,
                  "pattern.width: a tree has at least 1 token") ||
      !attn_check_count_(c, p, 1, "pattern.count must be at least 1"))
    return 0;
  return ATTN_RULE_(base[attn_tree_levels_(p->width, size, base)] + 1 == f->k_len, SHAPE,
                    "k_len must be the number of nodes of the tree");
}

ATTN_FUNC_ int attn_check_segments_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f) {
  const char *const reason =
      "pattern.index must begin with 0, end with k_len and never decrease (segments)";
  if (!attn_check_square_(c, f) ||
      !ATTN_RULE_(p->indices >= 1, RANGE, "pattern.indices must be 1 more than the segments") ||
      !ATTN_RULE_(p->index != NULL, NULL, "pattern.index must not be null") ||
      !attn_check_numbers_(c, p->index, p->indices, 0, f->k_len + 1, reason))
    return 0;
  for (int64_t k = 1; k < p->indices; k++)
    if (p->index[k] < p->index[k - 1]) return attn_reject_(c->e, ATTN_E_INDEX, reason);
  return ATTN_RULE_(p->index[0] == 0 && p->index[p->indices - 1] == f->k_len, INDEX, reason);
}

ATTN_FUNC_ int attn_check_bits_(attn_tree_ *c, const attn_pattern *p, int64_t rows,
                                int64_t stride) {
  return ATTN_RULE_(p->bits_heads == 0 || p->bits_heads == 1 || p->bits_heads == c->heads, HEADS,
                    "pattern.bits_heads must be 0, 1 or heads") &&
         ATTN_RULE_(attn_mul_(attn_mul_(rows, stride), attn_max64_(p->bits_heads, 1)) <
                        (sizeof(void *) == 4 ? (int64_t)0x7fffffff : INT64_MAX / 4),
                    OVERFLOW, "pattern.bits spans more bytes than the address space holds") &&
         ATTN_RULE_(p->bits || rows == 0 || stride == 0 || c->heads == 0, NULL,
                    "pattern.bits must not be null");
}

ATTN_FUNC_ int attn_check_csr_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f) {
  const int64_t *at = p->row_ptr;
  attn_span_ span;
  if (!ATTN_RULE_(at != NULL, NULL, "pattern.row_ptr must not be null") ||
      !ATTN_RULE_(p->indices >= 0, RANGE, "pattern.indices must not be negative") ||
      !attn_check_array_(c->e, at, f->q_len + 1, sizeof *at,
                         "pattern.row_ptr must be aligned to its elements", &span))
    return 0;
  if (!ATTN_RULE_(at[0] == 0, INDEX, "pattern.row_ptr must begin with 0")) return 0;
  for (int64_t i = 0; i < f->q_len; i++)
    if (at[i + 1] < at[i])
      return attn_reject_(c->e, ATTN_E_INDEX, "pattern.row_ptr must never decrease");
  if (!ATTN_RULE_(at[f->q_len] == p->indices, INDEX,
                  "pattern.row_ptr must end with pattern.indices") ||
      !attn_check_numbers_(c, p->index, p->indices, 0, f->k_len,
                           "pattern.index has a column outside 0 .. k_len - 1"))
    return 0;
  for (int64_t i = 0; i < f->q_len; i++) {
    const int64_t n = at[i + 1] - at[i];
    int twice = 0;
    if (!n) continue;
    const int32_t *row = p->index + at[i];
    if (attn_ascending_(row, n)) continue;
    for (int64_t k = 0; k < n; k++) {
      twice |= attn_marked_(&c->set, row[k]);
      attn_mark_(&c->set, row[k]);
    }
    for (int64_t k = 0; k < n; k++) c->set.bits[row[k] >> 6] = c->set.words[row[k] >> 12] = 0;
    if (twice) return attn_reject_(c->e, ATTN_E_INDEX, "pattern.index has a column twice in a row");
  }
  return 1;
}

ATTN_FUNC_ int attn_check_pattern_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f,
                                   int depth);

ATTN_FUNC_ int attn_check_parts_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f,
                                 int64_t n, int depth) {
  if (!ATTN_RULE_(n >= 0, RANGE, "pattern.part_count must not be negative") ||
      !ATTN_RULE_(n <= ATTN_PARTS_ - c->parts, PATTERN, "a pattern may have 1024 parts in all") ||
      !ATTN_RULE_(n == 0 || depth < ATTN_DEPTH_, PATTERN, "a pattern may be 32 deep") ||
      !ATTN_RULE_(n == 0 || p->parts, NULL, "pattern.parts must not be null"))
    return 0;
  c->parts += n;
  for (int64_t k = 0; k < n; k++)
    if (!attn_check_pattern_(c, &p->parts[k], f, depth + 1)) return 0;
  return 1;
}

ATTN_FUNC_ int attn_check_pattern_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f,
                                   int depth) {
  const char *const negative = "pattern.left and pattern.right must not be negative";
  const char *const unbounded = "pattern.left and pattern.right must be at least -1";
  const char *const draws = "pattern.count must not be negative";
  attn_field_ turned;
  c->nodes += 4;
  switch ((int)p->kind) {
    case ATTN_PATTERN_FULL: return 1;
    case ATTN_PATTERN_GLOBAL: return attn_check_global_(c, p, f);
    case ATTN_PATTERN_BAND:
      if (!p->index) return attn_check_sides_(c, p, -1, unbounded);
      c->depends = 1;
      return ATTN_RULE_(p->indices == c->heads, HEADS, "pattern.indices must equal heads") &&
             attn_check_numbers_(c, p->index, p->indices, 0, INT64_MAX,
                                 "pattern.index: a radius must not be negative");
    case ATTN_PATTERN_DILATED:
      return attn_check_step_(c, p) && attn_check_sides_(c, p, -1, unbounded);
    case ATTN_PATTERN_RANDOM: c->depends = 1; return attn_check_count_(c, p, 0, draws);
    case ATTN_PATTERN_RANDOM_BLOCKS:
      c->depends = 1;
      return attn_check_block_(c, p) && attn_check_count_(c, p, 0, draws);
    case ATTN_PATTERN_BLOCKS:
    case ATTN_PATTERN_IMAGE_1D: return attn_check_block_(c, p) && attn_check_beside_(c, p);
    case ATTN_PATTERN_RING:
    case ATTN_PATTERN_STAR:
      return attn_check_square_(c, f) &&
             ATTN_RULE_(p->left >= 0, RANGE, "pattern.left must not be negative") &&
             ATTN_RULE_(p->kind == ATTN_PATTERN_RING || f->k_len >= 2, SHAPE,
                        "k_len: a star has a relay and at least 1 satellite");
    case ATTN_PATTERN_LONGFORMER:
      return attn_check_square_(c, f) && attn_check_step_(c, p) &&
             attn_check_sides_(c, p, 0, negative) &&
             ATTN_RULE_(p->indices >= 0, RANGE, "pattern.indices must not be negative") &&
             attn_check_numbers_(c, p->index, p->indices, 0, f->k_len,
                                 "pattern.index has an entry outside 0 .. k_len - 1") &&
             ATTN_RULE_(attn_ascending_(p->index, p->indices), INDEX,
                        "pattern.index must be strictly ascending");
    case ATTN_PATTERN_ETC:
      return attn_check_square_(c, f) &&
             ATTN_RULE_(p->first >= 0 && p->first <= f->k_len, RANGE,
                        "pattern.first must lie in 0 .. k_len") &&
             attn_check_sides_(c, p, 1, "pattern.left and pattern.right must be at least 1");
    case ATTN_PATTERN_BIGBIRD:
      c->depends |= p->count > 0;
      return attn_check_block_(c, p) && attn_check_beside_(c, p) &&
             attn_check_count_(c, p, 0, draws) &&
             ATTN_RULE_(p->first >= 0 && p->last >= 0, RANGE,
                        "pattern.first and pattern.last must not be negative") &&
             ATTN_RULE_(p->left >= 0 && p->left <= f->k_len, RANGE,
                        "pattern.left must lie in 0 .. k_len");
    case ATTN_PATTERN_SPARSE_STRIDED:
      c->depends |= p->use == ATTN_SPARSE_HEADS;
      return attn_check_step_(c, p) && attn_check_use_(c, p) &&
             ATTN_RULE_(p->left >= 0, RANGE, "pattern.left must not be negative");
    case ATTN_PATTERN_SPARSE_FIXED:
      c->depends |= p->use == ATTN_SPARSE_HEADS || p->sub_blocks > 1;
      return attn_check_block_(c, p) && attn_check_use_(c, p) &&
             ATTN_RULE_(p->count >= 1 && p->count <= p->block, RANGE,
                        "pattern.count must lie in 1 .. block") &&
             ATTN_RULE_(p->sub_blocks >= 0 &&
                            attn_mul_(attn_max64_(p->sub_blocks, 1), p->count) <= p->block,
                        RANGE, "pattern.sub_blocks * pattern.count must lie in 0 .. block");
    case ATTN_PATTERN_BLOCKWISE: c->depends = 1; return attn_check_blockwise_(c, p);
    case ATTN_PATTERN_IMAGE_2D: return attn_check_image_(c, p, f);
    case ATTN_PATTERN_AXIAL: c->nodes += 32; return attn_check_axial_(c, p, f);
    case ATTN_PATTERN_TREE: return attn_check_tree_(c, p, f);
    case ATTN_PATTERN_SEGMENTS: return attn_check_segments_(c, p, f);
    case ATTN_PATTERN_PREDICATE:
      c->depends = 1;
      return ATTN_RULE_(p->pair != NULL, NULL, "pattern.pair must not be null");
    case ATTN_PATTERN_BITMAP:
      c->depends |= p->bits_heads > 1;
      return ATTN_RULE_(p->bits_stride >= attn_ceil_(f->k_len, 8), SHAPE,
                        "pattern.bits_stride must be at least k_len bits") &&
             attn_check_bits_(c, p, f->q_len, f->k_len ? p->bits_stride : 0);
    case ATTN_PATTERN_BLOCK_MASK:
      c->depends |= p->bits_heads > 1;
      return attn_check_block_(c, p) &&
             ATTN_RULE_(p->key_block >= 1, RANGE, "pattern.key_block must be at least 1") &&
             attn_check_bits_(c, p, attn_ceil_(f->q_len, p->block),
                              attn_ceil_(f->k_len, p->key_block));
    case ATTN_PATTERN_CSR: return attn_check_csr_(c, p, f);
    case ATTN_PATTERN_UNION:
    case ATTN_PATTERN_INTERSECT: return attn_check_parts_(c, p, f, p->part_count, depth);
    case ATTN_PATTERN_DIFF: return attn_check_parts_(c, p, f, 2, depth);
    case ATTN_PATTERN_COMPLEMENT: return attn_check_parts_(c, p, f, 1, depth);
    case ATTN_PATTERN_TRANSPOSE:
      turned.q_len = f->k_len, turned.k_len = f->q_len, turned.q_off = -f->q_off;
      return attn_check_parts_(c, p, &turned, 1, depth);
    case ATTN_PATTERN_PER_HEAD:
      c->depends = 1;
      return ATTN_RULE_(p->part_count == c->heads, HEADS, "pattern.part_count must equal heads") &&
             attn_check_parts_(c, p, f, p->part_count, depth);
    default:
      return attn_reject_(c->e, ATTN_E_PATTERN, "pattern.kind must be one of attn_pattern_kind");
  }
}
#undef ATTN_RULE_
/* <<< attn/mechanisms/pattern_check.h */
/* >>> attn/mechanisms/pattern_lower.h */
/* mechanisms/pattern_lower.h owns what compound kinds are made of: the checked pattern of one head
 * as a tree of nodes. */

typedef struct attn_lower_ {
  const attn_tree_ *tree;
  attn_node_ *node;
  int64_t count, head;
} attn_lower_;

/* Beyond every distance of positions, and small enough to be added up. */
#define ATTN_FAR_ ((int64_t)1 << 34)

ATTN_FUNC_ int64_t attn_near_(int64_t x) { return attn_min64_(x, ATTN_FAR_); }

/* A node; what follows hangs it into its parent. */
ATTN_FUNC_ attn_node_ *attn_node_add_(attn_lower_ *l, int64_t kind, int64_t cut) {
  attn_node_ *x = &l->node[l->count++];
  memset(x, 0, sizeof *x);
  x->kind = kind, x->cut = cut != 0;
  return x;
}

ATTN_FUNC_ void attn_hang_(attn_lower_ *l, int64_t parent, int64_t *last, int64_t part) {
  if (*last)
    l->node[*last].next = part;
  else
    l->node[parent].part = part;
  *last = part;
}

ATTN_FUNC_ void attn_lower_band_(attn_lower_ *l, int64_t left, int64_t right, int64_t step,
                                 int64_t cut) {
  const int64_t kind = step > 1 ? ATTN_PATTERN_DILATED : ATTN_PATTERN_BAND;
  attn_node_ *x = attn_node_add_(l, kind, cut);
  x->left = attn_near_(left), x->right = attn_near_(right), x->step = attn_near_(step);
}

ATTN_FUNC_ attn_node_ *attn_lower_block_(attn_lower_ *l, int64_t kind, int64_t block, int64_t cut) {
  attn_node_ *x = attn_node_add_(l, kind, cut);
  x->block = attn_near_(block);
  return x;
}

ATTN_FUNC_ void attn_lower_global_(attn_lower_ *l, const attn_pattern *p, int64_t cut) {
  attn_node_ *x = attn_node_add_(l, ATTN_PATTERN_GLOBAL, cut);
  x->rows = !p->no_rows, x->columns = !p->no_columns;
  x->indices = p->indices;
  x->index = attn_sorted_list_(l->tree, p->index, &x->indices);
  if (!p->queries) return;
  x->query_count = p->query_count;
  x->queries = attn_sorted_list_(l->tree, p->queries, &x->query_count);
}

ATTN_FUNC_ void attn_lower_image_(attn_lower_ *l, const attn_pattern *p, int64_t cut) {
  attn_node_ *x = attn_node_add_(l, ATTN_PATTERN_IMAGE_2D, cut);
  x->height = p->height, x->width = p->width, x->order = (int64_t)p->order;
  x->tile_height = attn_min64_(p->tile_height, p->height);
  x->tile_width = attn_min64_(p->tile_width, p->width);
  x->top = attn_near_(p->top), x->bottom = attn_near_(p->bottom);
  x->left = attn_near_(p->left), x->right = attn_near_(p->right);
}

/* One axis, or all; axes of one cell add nothing to others. */
ATTN_FUNC_ void attn_lower_axial_(attn_lower_ *l, const attn_pattern *p, int64_t cut) {
  const int64_t root = l->count;
  int64_t last = 0, step = 1;
  if (p->axis < 0) attn_node_add_(l, ATTN_PATTERN_UNION, 0);
  for (int64_t a = p->indices - 1; a >= 0; step *= p->index[a--]) {
    if (p->axis >= 0 ? a != p->axis : p->index[a] == 1 && (a > 0 || last)) continue;
    const int64_t at = l->count;
    attn_node_ *x = attn_node_add_(l, ATTN_PATTERN_AXIAL, cut);
    x->step = step, x->count = p->index[a];
    if (p->axis < 0) attn_hang_(l, root, &last, at);
  }
}

/* Which of the two sets of a Sparse Transformer a head uses; 2 = both. */
ATTN_FUNC_ int64_t attn_sparse_set_(const attn_pattern *p, int64_t head) {
  if (p->use == ATTN_SPARSE_MERGED) return 2;
  if (p->use == ATTN_SPARSE_INTERLEAVE) return p->layer % 2;
  return p->index ? p->index[head] : head % 2;
}

ATTN_FUNC_ void attn_lower_sparse_(attn_lower_ *l, const attn_pattern *p, int64_t cut) {
  const int64_t set = attn_sparse_set_(p, l->head), root = l->count;
  int64_t last = 0;
  if (set == 2) attn_node_add_(l, ATTN_PATTERN_UNION, 0);
  for (int64_t k = 0; k < 2; k++) {
    if (set != 2 && set != k) continue;
    const int64_t at = l->count;
    if (p->kind == ATTN_PATTERN_SPARSE_STRIDED) {
      if (k == 0)
        attn_lower_band_(l, p->left, p->left, 1, cut);
      else
        attn_lower_band_(l, -1, -1, p->step, cut);
    } else {
      attn_node_ *x = attn_lower_block_(l, k == 0 ? ATTN_PATTERN_BLOCKS : ATTN_PATTERN_SPARSE_FIXED,
                                        p->block, cut);
      if (k == 1) { /* sub-block v; those of blocks beyond all keys lie beyond them too */
        const int64_t v = l->head % attn_max64_(p->sub_blocks, 1);
        x->count = attn_near_(p->count);
        x->first = attn_near_(p->block - p->count * (v + 1));
      }
    }
    if (set == 2) attn_hang_(l, root, &last, at);
  }
}

/* A shift is told by its number, so that equal heads are seen to be equal. */
ATTN_FUNC_ void attn_lower_blockwise_(attn_lower_ *l, const attn_pattern *p, int64_t cut) {
  attn_node_ *x = attn_node_add_(l, ATTN_PATTERN_BLOCKWISE, cut);
  const int64_t n = p->count;
  const int32_t *to = p->index ? p->index + l->head * n : NULL;
  x->count = n, x->left = to ? to[0] : l->head % n;
  for (int64_t b = 0; to && b < n; b++)
    if (to[b] != (b + to[0]) % n) x->index = to;
  if (x->index) x->left = 0;
}

ATTN_FUNC_ void attn_lower_random_(attn_lower_ *l, const attn_pattern *p, int64_t cut) {
  attn_node_ *x =
      attn_lower_block_(l, (int64_t)p->kind, p->kind == ATTN_PATTERN_RANDOM ? 0 : p->block, cut);
  x->count = attn_near_(p->count);
  x->causal = p->causal != 0;
  if (p->count) x->seed = p->seed, x->head = l->head;
}

ATTN_FUNC_ void attn_lower_bigbird_(attn_lower_ *l, const attn_pattern *p, int64_t cut) {
  attn_lower_random_(l, p, cut);
  attn_node_ *x = &l->node[l->count - 1];
  x->before = attn_near_(p->before), x->after = attn_near_(p->after);
  x->first = attn_near_(p->first), x->last = attn_near_(p->last);
  x->extra = p->left;
}

ATTN_FUNC_ void attn_lower_user_(attn_lower_ *l, const attn_pattern *p, const attn_field_ *f,
                                 int64_t cut) {
  attn_node_ *x = attn_node_add_(l, (int64_t)p->kind, cut);
  const int64_t head = p->bits_heads > 1 ? l->head : 0;
  if (p->kind == ATTN_PATTERN_PREDICATE) {
    x->pair = p->pair, x->rectangle = p->rectangle, x->user = p->user, x->head = l->head;
  } else if (p->kind == ATTN_PATTERN_CSR) {
    x->row_ptr = p->row_ptr, x->index = p->index;
  } else if (p->kind == ATTN_PATTERN_BITMAP) {
    x->stride = p->bits_stride;
    if (p->bits) x->bits = p->bits + head * f->q_len * x->stride;
  } else {
    x->block = attn_near_(p->block), x->step = attn_near_(p->key_block);
    x->stride = attn_ceil_(f->k_len, p->key_block);
    if (p->bits) x->bits = p->bits + head * attn_ceil_(f->q_len, p->block) * x->stride;
  }
}

ATTN_FUNC_ void attn_lower_pattern_(attn_lower_ *l, const attn_pattern *p, const attn_field_ *f,
                                    int64_t cut);

/* The cut of a result reaches those parts that make it smaller. */
ATTN_FUNC_ void attn_lower_algebra_(attn_lower_ *l, const attn_pattern *p, const attn_field_ *f,
                                    int64_t cut) {
  const int64_t root = l->count;
  const int pair = p->kind == ATTN_PATTERN_DIFF, turn = p->kind == ATTN_PATTERN_TRANSPOSE;
  const int single = turn || p->kind == ATTN_PATTERN_COMPLEMENT;
  const int64_t n = single ? 1 : pair ? 2 : p->part_count;
  attn_field_ turned;
  int64_t last = 0;
  turned.q_len = f->k_len, turned.k_len = f->q_len, turned.q_off = -f->q_off;
  attn_node_add_(l, (int64_t)p->kind, (single || n == 0) ? cut : 0);
  for (int64_t k = 0; k < n; k++) {
    const int64_t at = l->count;
    const int reaches = !single && (k == 0 || p->kind == ATTN_PATTERN_UNION);
    attn_lower_pattern_(l, &p->parts[k], turn ? &turned : f, reaches ? cut : 0);
    attn_hang_(l, root, &last, at);
  }
}

ATTN_FUNC_ void attn_lower_pattern_(attn_lower_ *l, const attn_pattern *p, const attn_field_ *f,
                                    int64_t cut) {
  const int64_t outer = cut, root = l->count;
  attn_node_ *x;
  int64_t last = 0;
  cut = cut || p->causal;
  switch ((int)p->kind) {
    case ATTN_PATTERN_FULL: attn_lower_band_(l, -1, -1, 1, cut); break;
    case ATTN_PATTERN_GLOBAL: attn_lower_global_(l, p, cut); break;
    case ATTN_PATTERN_BAND:
      attn_lower_band_(l, p->index ? p->index[l->head] : p->left,
                       p->index ? p->index[l->head] : p->right, 1, cut);
      break;
    case ATTN_PATTERN_DILATED: attn_lower_band_(l, p->left, p->right, p->step, cut); break;
    case ATTN_PATTERN_RANDOM:
    case ATTN_PATTERN_RANDOM_BLOCKS: attn_lower_random_(l, p, cut); break;
    case ATTN_PATTERN_BLOCKS:
    case ATTN_PATTERN_IMAGE_1D: {
      const int64_t unit = p->kind == ATTN_PATTERN_BLOCKS ? p->block : 1;
      x = attn_lower_block_(l, ATTN_PATTERN_BLOCKS, p->block, cut);
      x->before = attn_near_(attn_mul_(p->before, unit));
      x->after = attn_near_(attn_mul_(p->after, unit));
      break;
    }
    case ATTN_PATTERN_RING:
    case ATTN_PATTERN_STAR:
      x = attn_node_add_(l, ATTN_PATTERN_RING, cut);
      x->left = attn_near_(p->left), x->ring = !p->no_ring;
      x->first = p->kind == ATTN_PATTERN_STAR;
      break;
    case ATTN_PATTERN_LONGFORMER:
    case ATTN_PATTERN_ETC:
      attn_node_add_(l, ATTN_PATTERN_UNION, 0);
      attn_hang_(l, root, &last, l->count);
      if (p->kind == ATTN_PATTERN_LONGFORMER) {
        attn_lower_global_(l, p, cut);
      } else {
        x = attn_node_add_(l, ATTN_PATTERN_ETC, cut);
        x->first = p->first;
      }
      attn_hang_(l, root, &last, l->count);
      attn_lower_band_(l, p->left, p->right, p->kind == ATTN_PATTERN_ETC ? 1 : p->step, cut);
      break;
    case ATTN_PATTERN_BIGBIRD: attn_lower_bigbird_(l, p, cut); break;
    case ATTN_PATTERN_SPARSE_STRIDED:
    case ATTN_PATTERN_SPARSE_FIXED: attn_lower_sparse_(l, p, cut); break;
    case ATTN_PATTERN_BLOCKWISE: attn_lower_blockwise_(l, p, cut); break;
    case ATTN_PATTERN_IMAGE_2D: attn_lower_image_(l, p, cut); break;
    case ATTN_PATTERN_AXIAL: attn_lower_axial_(l, p, cut); break;
    case ATTN_PATTERN_TREE: /* its nodes are no positions: its own flag is no cut */
      x = attn_node_add_(l, ATTN_PATTERN_TREE, outer);
      x->width = p->width, x->count = attn_near_(p->count), x->causal = p->causal != 0;
      x->overlap = p->overlap != 0, x->self = p->include_self != 0;
      break;
    case ATTN_PATTERN_SEGMENTS:
      x = attn_node_add_(l, ATTN_PATTERN_SEGMENTS, cut);
      x->index = p->index, x->indices = p->indices;
      break;
    case ATTN_PATTERN_PREDICATE:
    case ATTN_PATTERN_BITMAP:
    case ATTN_PATTERN_CSR:
    case ATTN_PATTERN_BLOCK_MASK: attn_lower_user_(l, p, f, cut); break;
    case ATTN_PATTERN_PER_HEAD: attn_lower_pattern_(l, &p->parts[l->head], f, cut); break;
    default: attn_lower_algebra_(l, p, f, cut); break;
  }
}
#undef ATTN_FAR_
/* <<< attn/mechanisms/pattern_lower.h */
/* >>> attn/mechanisms/pattern_make.h */
/* mechanisms/pattern_make.h owns the constructors of patterns: plain values, checked only when a
 * schedule is built. */

ATTN_FUNC_ attn_pattern attn_pattern_of_(attn_pattern_kind kind) {
  attn_pattern p;
  memset(&p, 0, sizeof p);
  p.kind = kind;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_full(void) { return attn_pattern_of_(ATTN_PATTERN_FULL); }

ATTN_PUB_ attn_pattern attn_pattern_global(const int32_t *index, int64_t n) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_GLOBAL);
  p.index = index, p.indices = n;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_band(int64_t left, int64_t right) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_BAND);
  p.left = left, p.right = right;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_multiscale(const int32_t *radius, int64_t heads) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_BAND);
  p.index = radius, p.indices = heads;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_dilated(int64_t left, int64_t right, int64_t dilation) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_DILATED);
  p.left = left, p.right = right, p.step = dilation;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_strided(int64_t stride) {
  return attn_pattern_dilated(-1, -1, stride);
}

ATTN_PUB_ attn_pattern attn_pattern_random(int64_t count, uint64_t seed) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_RANDOM);
  p.count = count, p.seed = seed;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_random_blocks(int64_t block, int64_t count, uint64_t seed) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_RANDOM_BLOCKS);
  p.block = block, p.count = count, p.seed = seed;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_blocks(int64_t block, int64_t before, int64_t after) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_BLOCKS);
  p.block = block, p.before = before, p.after = after;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_ring(int64_t width) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_RING);
  p.left = width;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_star(int64_t width) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_STAR);
  p.left = width;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_longformer(int64_t window, int64_t dilation,
                                               const int32_t *index, int64_t n) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_LONGFORMER);
  p.left = p.right = window, p.step = dilation;
  p.index = index, p.indices = n;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_etc(int64_t globals, int64_t radius) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_ETC);
  p.first = globals, p.left = p.right = radius;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_bigbird(int64_t block, uint64_t seed) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_BIGBIRD);
  p.block = block ? block : 64, p.seed = seed;
  p.first = p.last = p.before = p.after = 1;
  p.count = 3;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_bigbird_etc(int64_t globals, int64_t block, uint64_t seed) {
  attn_pattern p = attn_pattern_bigbird(block, seed);
  p.left = globals;
  p.first = p.last = p.count = 0;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_bigbird_tokens(int64_t half, const int32_t *index, int64_t n,
                                                   int64_t count, uint64_t seed,
                                                   attn_pattern storage[3]) {
  if (!storage) return attn_pattern_union(NULL, 3); /* rejected when it is built */
  storage[0] = attn_pattern_band(half, half);
  storage[1] = attn_pattern_global(index, n);
  storage[2] = attn_pattern_random(count, seed);
  return attn_pattern_union(storage, 3);
}

ATTN_PUB_ attn_pattern attn_pattern_sparse_strided(int64_t stride, attn_sparse_use use) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_SPARSE_STRIDED);
  p.causal = 1, p.step = p.left = stride, p.use = use;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_sparse_fixed(int64_t block, int64_t columns,
                                                 attn_sparse_use use) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_SPARSE_FIXED);
  p.causal = 1, p.block = block, p.count = columns, p.use = use;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_blockwise(int64_t blocks, const int32_t *permutation) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_BLOCKWISE);
  p.count = blocks, p.index = permutation;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_image_1d(int64_t block, int64_t before) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_IMAGE_1D);
  p.causal = 1, p.block = block, p.before = before;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_image_2d(int64_t height, int64_t width, int64_t tile_height,
                                             int64_t tile_width, int64_t top, int64_t side) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_IMAGE_2D);
  p.height = height, p.width = width, p.tile_height = tile_height, p.tile_width = tile_width;
  p.top = top, p.left = p.right = side;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_neighbourhood(int64_t height, int64_t width, int64_t radius) {
  attn_pattern p = attn_pattern_image_2d(height, width, 1, 1, radius, radius);
  p.bottom = radius, p.order = ATTN_IMAGE_NONE;
  return p;
}

/* In fields index and indices: the grid. */
ATTN_PUB_ attn_pattern attn_pattern_axial(const int32_t *shape, int64_t dims, int64_t axis) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_AXIAL);
  p.index = shape, p.indices = dims, p.axis = axis;
  return p;
}

/* In field width: the tokens; in count: k. */
ATTN_PUB_ attn_pattern attn_pattern_tree(int64_t tokens, int64_t k) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_TREE);
  p.width = tokens, p.count = k;
  return p;
}

/* In field indices: the entries of offsets. */
ATTN_PUB_ attn_pattern attn_pattern_segments(const int32_t *offsets, int64_t segments) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_SEGMENTS);
  p.index = offsets, p.indices = segments < 0 ? -1 : attn_add_(segments, 1);
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_predicate(attn_pair_fn pair, attn_rectangle_fn rectangle,
                                              void *user) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_PREDICATE);
  p.pair = pair, p.rectangle = rectangle, p.user = user;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_bitmap(const uint8_t *bits, int64_t stride) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_BITMAP);
  p.bits = bits, p.bits_stride = stride;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_csr(const int64_t *row_ptr, const int32_t *col, int64_t nnz) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_CSR);
  p.row_ptr = row_ptr, p.index = col, p.indices = nnz;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_block_mask(const uint8_t *mask, int64_t q_block,
                                               int64_t k_block) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_BLOCK_MASK);
  p.bits = mask, p.block = q_block, p.key_block = k_block;
  return p;
}

ATTN_FUNC_ attn_pattern attn_pattern_parts_(attn_pattern_kind kind, const attn_pattern *parts,
                                            int64_t n) {
  attn_pattern p = attn_pattern_of_(kind);
  p.parts = parts, p.part_count = n;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_union(const attn_pattern *parts, int64_t n) {
  return attn_pattern_parts_(ATTN_PATTERN_UNION, parts, n);
}
ATTN_PUB_ attn_pattern attn_pattern_intersect(const attn_pattern *parts, int64_t n) {
  return attn_pattern_parts_(ATTN_PATTERN_INTERSECT, parts, n);
}
ATTN_PUB_ attn_pattern attn_pattern_diff(const attn_pattern parts[2]) {
  return attn_pattern_parts_(ATTN_PATTERN_DIFF, parts, 2);
}
ATTN_PUB_ attn_pattern attn_pattern_complement(const attn_pattern *part) {
  return attn_pattern_parts_(ATTN_PATTERN_COMPLEMENT, part, 1);
}
ATTN_PUB_ attn_pattern attn_pattern_transpose(const attn_pattern *part) {
  return attn_pattern_parts_(ATTN_PATTERN_TRANSPOSE, part, 1);
}
ATTN_PUB_ attn_pattern attn_pattern_per_head(const attn_pattern *parts, int64_t heads) {
  return attn_pattern_parts_(ATTN_PATTERN_PER_HEAD, parts, heads);
}
/* <<< attn/mechanisms/pattern_make.h */
/* >>> attn/mechanisms/pattern.h */
/* mechanisms/pattern.h owns the public calls that make, open, free and describe schedules, and the
 * drawing of them. Constructors of patterns are in mechanisms/pattern_make.h. */

/* Everything a build holds. */
typedef struct attn_build_call_ {
  attn_error_ e;
  attn_tree_ tree;
  attn_build_ b;
  attn_vec_ nodes[2], terms, heavy;
  attn_vec_ zeros; /* toggles and marks */
  attn_vec_ head;  /* int32 [heads]: variants */
  attn_vec_ hash;  /* uint64 of each variant */
  attn_vec_ whose; /* int32: the first head of each variant */
  attn_vec_ table; /* int32: variants by hash, -1 = free */
} attn_build_call_;

ATTN_FUNC_ void attn_build_free_(attn_build_call_ *c) {
  const attn_sorted_ *sorted = (const attn_sorted_ *)c->tree.sorted.data;
  attn_vec_ *all[] = {&c->nodes[0], &c->nodes[1],   &c->terms, &c->heavy,   &c->zeros,
                      &c->head,     &c->hash,       &c->whose, &c->table,   &c->b.tile,
                      &c->b.run,    &c->b.row,      &c->b.key, &c->b.start, &c->b.phases,
                      &c->b.counts, &c->tree.sorted};
  for (int64_t k = 0; k < c->tree.sorted.count; k++) ATTN_FREE(sorted[k].list);
  for (size_t k = 0; k < sizeof all / sizeof *all; k++)
    if (all[k]->data) ATTN_FREE(all[k]->data);
  for (int d = 0; d < ATTN_LISTS_; d++)
    if (c->b.s.runs[d].run) ATTN_FREE(c->b.s.runs[d].run);
}

/* n elements of zeros. Null = no memory. */
ATTN_FUNC_ void *attn_zeros_(attn_vec_ *v, int64_t n, int64_t size) {
  void *data = attn_vec_room_(v, n, size);
  if (data) memset(data, 0, (size_t)(n * size)), v->count = n;
  return data;
}

/* Lowers head h into nodes[which]; returns their number. */
ATTN_FUNC_ int64_t attn_build_lower_(attn_build_call_ *c, const attn_pattern *p, int which,
                                     int64_t h) {
  attn_lower_ l;
  l.tree = &c->tree, l.node = (attn_node_ *)c->nodes[which].data, l.count = 0, l.head = h;
  attn_lower_pattern_(&l, p, &c->b.f, 0);
  return l.count;
}

ATTN_FUNC_ uint64_t attn_hash_(const void *data, int64_t bytes) {
  uint64_t h = 0, word;
  for (int64_t k = 0; k + 8 <= bytes; k += 8) {
    memcpy(&word, (const char *)data + k, 8);
    h = attn_mix64_((h ^ word) + 0x9E3779B97F4A7C15u);
  }
  return h;
}

/* The place of head h in the table of variants: that of an equal one, or a free place. Heads are
 * equal when they lower to the same nodes. */
ATTN_FUNC_ int32_t *attn_build_find_(attn_build_call_ *c, const attn_pattern *p, int64_t h,
                                     uint64_t *hash) {
  const int64_t count = attn_build_lower_(c, p, 0, h);
  const int64_t bytes = count * (int64_t)sizeof(attn_node_);
  int32_t *table = (int32_t *)c->table.data;
  *hash = attn_hash_(c->nodes[0].data, bytes);
  for (int64_t k = (int64_t)(*hash % (uint64_t)c->table.count);; k = (k + 1) % c->table.count) {
    if (table[k] < 0) return &table[k];
    if (((uint64_t *)c->hash.data)[table[k]] != *hash) continue;
    if (attn_build_lower_(c, p, 1, ((int32_t *)c->whose.data)[table[k]]) == count &&
        memcmp(c->nodes[0].data, c->nodes[1].data, (size_t)bytes) == 0)
      return &table[k];
  }
}

/* Every variant's tiles, and the variant of each head. 0 = no memory. */
ATTN_FUNC_ int attn_build_heads_(attn_build_call_ *c, const attn_pattern *p, int64_t heads) {
  int32_t *head = (int32_t *)attn_zeros_(&c->head, heads, sizeof *head);
  const int64_t different = c->tree.depends ? heads : attn_min64_(heads, 1);
  int32_t *table = (int32_t *)attn_vec_room_(&c->table, 2 * different + 1, sizeof *table);
  if (!head || !table) return 0;
  c->table.count = 2 * different + 1;
  memset(table, 0xff, (size_t)c->table.count * sizeof *table);
  for (int64_t h = 0; h < different; h++) {
    uint64_t hash;
    int32_t *place = attn_build_find_(c, p, h, &hash);
    if (*place < 0) {
      uint64_t *hashes = (uint64_t *)attn_vec_room_(&c->hash, 1, sizeof *hashes);
      int32_t *whose = (int32_t *)attn_vec_room_(&c->whose, 1, sizeof *whose);
      if (!hashes || !whose || !attn_build_variant_(&c->b)) return 0;
      *hashes = hash, *whose = (int32_t)h, *place = (int32_t)c->hash.count;
      c->hash.count++, c->whose.count++;
    }
    head[h] = *place;
  }
  return 1;
}

/* Memory of the size of the sequences and of the tree. */
ATTN_FUNC_ int attn_build_memory_(attn_build_call_ *c) {
  const int64_t side = attn_max64_(c->b.f.q_len, c->b.f.k_len) + 1;
  const int64_t marks = attn_marks_words_(side);
  uint64_t *zeros = (uint64_t *)attn_zeros_(&c->zeros, side + 2 * marks, sizeof *zeros);
  if (!zeros) return 0;
  c->b.s.toggle = zeros;
  attn_marks_cut_(&c->b.s.touched, zeros + side, side);
  attn_marks_cut_(&c->b.s.drawn, zeros + side + marks, side);
  c->tree.set = c->b.s.drawn;
  c->b.s.lo = INT64_MAX, c->b.s.hi = -1;
  return 1;
}

ATTN_FUNC_ int attn_build_tree_memory_(attn_build_call_ *c) {
  const int64_t nodes = c->tree.nodes;
  c->b.heavy = (uint64_t *)attn_zeros_(&c->heavy, c->b.f.q_len / 64 + 1, sizeof(uint64_t));
  c->b.node = (attn_node_ *)attn_zeros_(&c->nodes[0], nodes, sizeof(attn_node_));
  c->b.term = (attn_term_ *)attn_zeros_(&c->terms, nodes, sizeof(attn_term_));
  return c->b.heavy && c->b.node && c->b.term &&
         attn_zeros_(&c->nodes[1], nodes, sizeof(attn_node_)) != NULL;
}

/* Checks, and builds all but the bytes. */
ATTN_FUNC_ int attn_build_run_(attn_build_call_ *c, const attn_pattern *p, int64_t heads,
                               int64_t q_len, int64_t k_len, const attn_schedule_params *params) {
  attn_error_ *e = &c->e;
  if (!p) return attn_reject_(e, ATTN_E_NULL, "pattern must not be null");
  if (heads < 0 || q_len < 0 || k_len < 0)
    return attn_reject_(e, ATTN_E_SHAPE, "heads, q_len and k_len must not be negative");
  if (heads > INT32_MAX || q_len > INT32_MAX || k_len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "heads, q_len and k_len must be below 2^31");
  if (params && params->has_q_off && attn_abs64_(params->q_off) > INT32_MAX)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off must lie within 2^31 of 0");
  if (params && params->memory && (uintptr_t)params->memory % 8)
    return attn_reject_(e, ATTN_E_ALIGN, "params.memory must be aligned to 8 bytes");
  c->b.f.q_len = q_len, c->b.f.k_len = k_len;
  c->b.f.q_off = params && params->has_q_off ? params->q_off : k_len - q_len;
  c->tree.e = e, c->tree.heads = heads;
  if (attn_build_memory_(c)) {
    if (!attn_check_pattern_(&c->tree, p, &c->b.f, 0)) return 0;
    if (attn_build_tree_memory_(c) && attn_build_heads_(c, p, heads)) return 1;
  }
  return attn_reject_(e, ATTN_E_MEMORY, "ATTN_MALLOC returned null");
}

ATTN_FUNC_ int attn_build_finish_(attn_build_call_ *c, attn_schedule *schedule, int64_t heads,
                                  const attn_schedule_params *params) {
  const int32_t *head = (const int32_t *)c->head.data;
  attn_schedule made;
  attn_plan_ plan;
  attn_plan_header_(&plan, &c->b, heads, head);
  if ((uint64_t)plan.bytes > SIZE_MAX / 2 || plan.bytes == INT64_MAX)
    return attn_reject_(&c->e, ATTN_E_OVERFLOW, "the schedule would not fit the address space");
  made.size = (size_t)plan.bytes, made.owned = NULL;
  if (params && params->memory) {
    if (params->memory_size < made.size)
      return attn_reject_(&c->e, ATTN_E_WORKSPACE,
                          "params.memory_size is less than attn_schedule_bytes returns");
    made.data = params->memory;
  } else {
    made.data = made.owned = ATTN_MALLOC(made.size);
    if (!made.data) return attn_reject_(&c->e, ATTN_E_MEMORY, "ATTN_MALLOC returned null");
  }
  attn_plan_write_((void *)(uintptr_t)made.data, &plan, &c->b, head);
  *schedule = made;
  return 1;
}

ATTN_PUB_ attn_status attn_schedule_build(attn_schedule *schedule, const attn_pattern *pattern,
                                          int64_t heads, int64_t q_len, int64_t k_len,
                                          const attn_schedule_params *params, attn_ctx *ctx) {
  attn_build_call_ c;
  const attn_table_ *table;
  int workers;
  memset(&c, 0, sizeof c);
  if (attn_check_ctx_(&c.e, ctx, &table, &workers)) {
    if (!schedule)
      attn_reject_(&c.e, ATTN_E_NULL, "schedule must not be null");
    else if (attn_build_run_(&c, pattern, heads, q_len, k_len, params) &&
             attn_build_finish_(&c, schedule, heads, params))
      attn_report_(ctx, table, 1, "schedule", "the only path");
  }
  attn_build_free_(&c);
  return attn_end_(ctx, &c.e);
}

ATTN_PUB_ size_t attn_schedule_bytes(const attn_pattern *pattern, int64_t heads, int64_t q_len,
                                     int64_t k_len, const attn_schedule_params *params,
                                     attn_ctx *ctx) {
  attn_build_call_ c;
  const attn_table_ *table;
  attn_plan_ plan;
  int workers;
  size_t size = 0;
  memset(&c, 0, sizeof c);
  if (attn_check_ctx_(&c.e, ctx, &table, &workers) &&
      attn_build_run_(&c, pattern, heads, q_len, k_len, params)) {
    attn_plan_header_(&plan, &c.b, heads, (const int32_t *)c.head.data);
    if (plan.bytes == INT64_MAX || (uint64_t)plan.bytes > SIZE_MAX / 2)
      attn_reject_(&c.e, ATTN_E_OVERFLOW, "the schedule would not fit the address space");
    else
      size = (size_t)plan.bytes;
  }
  attn_build_free_(&c);
  attn_end_(ctx, &c.e);
  return size;
}

ATTN_PUB_ void attn_schedule_free(attn_schedule *schedule) {
  if (!schedule) return;
  if (schedule->owned) ATTN_FREE(schedule->owned);
  memset(schedule, 0, sizeof *schedule);
}

ATTN_PUB_ attn_status attn_schedule_open(attn_schedule *schedule, const void *bytes, size_t size,
                                         attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const char *const damaged = "the bytes are no schedule, or a damaged one";
  attn_schedule made;
  attn_vec_ seen = {NULL, 0, 0};
  made.data = bytes, made.size = size, made.owned = NULL;
  if (!schedule || !bytes) {
    attn_reject_(&e, ATTN_E_NULL,
                 schedule ? "bytes must not be null" : "schedule must not be null");
  } else if ((uintptr_t)bytes % 8) {
    attn_reject_(&e, ATTN_E_ALIGN, "bytes must be aligned to 8");
  } else {
    const attn_plan_ *p = attn_plan_of_(&made);
    if (!p || !attn_plan_frame_ok_(p)) {
      attn_reject_(&e, ATTN_E_SCHEDULE, damaged);
    } else if (!attn_vec_room_(&seen, p->q_len / 64 + 1, sizeof(uint64_t))) {
      attn_reject_(&e, ATTN_E_MEMORY, "ATTN_MALLOC returned null");
    } else {
      if (attn_plan_ok_(p, (uint64_t *)seen.data))
        *schedule = made;
      else
        attn_reject_(&e, ATTN_E_SCHEDULE, damaged);
      ATTN_FREE(seen.data);
    }
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_ attn_status attn_schedule_describe(attn_schedule_info *info,
                                             const attn_schedule *schedule) {
  const attn_plan_ *p = attn_plan_of_(schedule);
  if (!info || !schedule) return ATTN_E_NULL;
  if (!p) return ATTN_E_SCHEDULE;
  const int32_t *head = (const int32_t *)attn_plan_at_(p, p->at_head);
  const int64_t *tiles = (const int64_t *)attn_plan_at_(p, p->at_tiles);
  info->heads = p->heads, info->q_len = p->q_len, info->k_len = p->k_len;
  info->q_off = p->q_off, info->pairs = p->pairs, info->computed = p->computed;
  info->full = p->full, info->partial = p->partial, info->lists = p->lists;
  info->phases = p->phases, info->bytes = p->bytes, info->tiles = 0;
  for (int64_t h = 0; h < p->heads; h++)
    info->tiles += tiles[(head[h] + (int64_t)1) * p->phases] - tiles[head[h] * p->phases];
  return ATTN_OK;
}

/* ------------------------------------------------------------------ looking at the pairs */

/* Called for keys key, key + step, .. (n of them) of one row. */
typedef void (*attn_visit_fn_)(void *user, int64_t row, int64_t key, int64_t n, int64_t step);

/* The pairs of rows from .. end - 1, in no order of rows; of one row and phase in that of keys. */
ATTN_FUNC_ void attn_visit_(const attn_plan_ *p, int64_t head, int64_t from, int64_t end,
                            attn_visit_fn_ visit, void *user) {
  const int32_t *heads = (const int32_t *)attn_plan_at_(p, p->at_head);
  const int64_t *tiles = (const int64_t *)attn_plan_at_(p, p->at_tiles);
  const attn_plan_tile_ *tile = (const attn_plan_tile_ *)attn_plan_at_(p, p->at_tile);
  const int64_t v = heads[head];
  for (int64_t k = tiles[v * p->phases]; k < tiles[(v + 1) * p->phases]; k++) {
    const attn_plan_tile_ *t = &tile[k];
    const int32_t *row = (const int32_t *)attn_plan_at_(p, p->at_row) + t->row;
    const int64_t r0 = attn_at_least_(row, t->n, from), r1 = attn_at_least_(row, t->n, end);
    if (r0 >= r1) continue;
    if (t->step == 0) {
      const int32_t *at = (const int32_t *)attn_plan_at_(p, p->at_key) + t->at;
      for (int64_t r = r0; r < r1; r++)
        for (int64_t c = at[r]; c < at[r + 1]; c++) visit(user, row[r], at[t->n + 1 + c], 1, 1);
      continue;
    }
    const attn_plan_run_ *run = (const attn_plan_run_ *)attn_plan_at_(p, p->at_run) + t->at;
    for (int64_t x = 0; x < t->count; x++)
      for (uint64_t lanes = run[x].lanes & attn_lane_range_(r0, r1); lanes; lanes &= lanes - 1)
        visit(user, row[attn_lowest_(lanes)], run[x].key, run[x].n, t->step);
  }
}

typedef struct attn_csr_job_ {
  int64_t *row_ptr;
  int32_t *col;
} attn_csr_job_;

ATTN_FUNC_ void attn_csr_count_(void *user, int64_t row, int64_t key, int64_t n, int64_t step) {
  (void)key, (void)step;
  ((attn_csr_job_ *)user)->row_ptr[row + 1] += n;
}

/* row_ptr[row] moves from the row's first column to its end. */
ATTN_FUNC_ void attn_csr_fill_(void *user, int64_t row, int64_t key, int64_t n, int64_t step) {
  attn_csr_job_ *j = (attn_csr_job_ *)user;
  int32_t *to = j->col + j->row_ptr[row];
  j->row_ptr[row] += n;
  for (int64_t k = 0; k < n; k++) to[k] = (int32_t)(key + k * step);
}

ATTN_FUNC_ void attn_sift_(int32_t *a, int64_t at, int64_t n) {
  for (int64_t child; (child = 2 * at + 1) < n; at = child) {
    child += child + 1 < n && a[child + 1] > a[child];
    if (a[at] >= a[child]) return;
    const int32_t x = a[at];
    a[at] = a[child], a[child] = x;
  }
}

/* Columns of several phases: a heap sort needs no memory. */
ATTN_FUNC_ void attn_sort_columns_(int32_t *a, int64_t n) {
  if (attn_ascending_(a, n)) return;
  for (int64_t k = n / 2; k-- > 0;) attn_sift_(a, k, n);
  for (int64_t k = n; k-- > 1;) {
    const int32_t x = a[0];
    a[0] = a[k], a[k] = x;
    attn_sift_(a, 0, k);
  }
}

ATTN_PUB_ attn_status attn_schedule_csr(int64_t *row_ptr, int32_t *col,
                                        const attn_schedule *schedule, int64_t head) {
  const attn_plan_ *p = attn_plan_of_(schedule);
  attn_csr_job_ j;
  if (!row_ptr || !schedule) return ATTN_E_NULL;
  if (!p) return ATTN_E_SCHEDULE;
  if (head < 0 || head >= p->heads) return ATTN_E_RANGE;
  j.row_ptr = row_ptr, j.col = col;
  memset(row_ptr, 0, (size_t)(p->q_len + 1) * sizeof *row_ptr);
  attn_visit_(p, head, 0, p->q_len, attn_csr_count_, &j);
  for (int64_t i = 0; i < p->q_len; i++) row_ptr[i + 1] += row_ptr[i];
  if (!col) return ATTN_OK;
  attn_visit_(p, head, 0, p->q_len, attn_csr_fill_, &j);
  for (int64_t i = p->q_len; i > 0; i--) row_ptr[i] = row_ptr[i - 1];
  row_ptr[0] = 0;
  for (int64_t i = 0; i < p->q_len; i++)
    attn_sort_columns_(col + row_ptr[i], row_ptr[i + 1] - row_ptr[i]);
  return ATTN_OK;
}

/* A strip of one picture row: how many of the pairs of each pixel exist. */
enum { ATTN_STRIP_ = 256 };
typedef struct attn_strip_ {
  int64_t width, keys;   /* of the whole picture row */
  int64_t first, pixels; /* the strip */
  int64_t row, rows;     /* queries of the picture row */
  int64_t count[ATTN_STRIP_];
} attn_strip_;

/* The first number of cell x when n numbers are cut into cells; a cell has at least one. */
ATTN_FUNC_ int64_t attn_pixel_first_(int64_t x, int64_t cells, int64_t n) { return x * n / cells; }
ATTN_FUNC_ int64_t attn_pixel_end_(int64_t x, int64_t cells, int64_t n) {
  return attn_max64_((x + 1) * n / cells, x * n / cells + 1);
}

ATTN_FUNC_ void attn_strip_add_(void *user, int64_t row, int64_t key, int64_t n, int64_t step) {
  attn_strip_ *s = (attn_strip_ *)user;
  (void)row;
  int64_t x = attn_max64_(key * s->width / s->keys, s->first);
  while (x > s->first && attn_pixel_end_(x - 1, s->width, s->keys) > key) x--;
  for (; x < s->first + s->pixels; x++) {
    const int64_t lo = attn_pixel_first_(x, s->width, s->keys);
    const int64_t hi = attn_pixel_end_(x, s->width, s->keys);
    if (lo > key + (n - 1) * step) break;
    /* members below hi less those below lo */
    const int64_t up = attn_min64_(n, attn_max64_(attn_ceil_(hi - key, step), 0));
    const int64_t down = attn_min64_(n, attn_max64_(attn_ceil_(lo - key, step), 0));
    s->count[x - s->first] += up - down;
  }
}

ATTN_PUB_ attn_status attn_pattern_render(uint8_t *pixels, int64_t width, int64_t height,
                                          int64_t stride, const attn_schedule *schedule,
                                          int64_t head) {
  const attn_plan_ *p = attn_plan_of_(schedule);
  attn_strip_ s;
  if (!pixels || !schedule) return ATTN_E_NULL;
  if (!p) return ATTN_E_SCHEDULE;
  if (width < 1 || height < 1 || width > INT32_MAX || height > INT32_MAX || stride < width)
    return ATTN_E_SHAPE;
  if (head < 0 || head >= p->heads) return ATTN_E_RANGE;
  s.width = width, s.keys = p->k_len;
  for (int64_t y = 0; y < height; y++)
    for (s.first = 0; s.first < width; s.first += ATTN_STRIP_) {
      s.pixels = attn_min64_(ATTN_STRIP_, width - s.first);
      s.row = attn_pixel_first_(y, height, p->q_len);
      s.rows = attn_pixel_end_(y, height, p->q_len) - s.row;
      memset(s.count, 0, sizeof s.count);
      if (p->q_len && p->k_len) attn_visit_(p, head, s.row, s.row + s.rows, attn_strip_add_, &s);
      for (int64_t x = 0; x < s.pixels; x++) {
        const int64_t pairs =
            s.rows * (attn_pixel_end_(s.first + x, width, attn_max64_(p->k_len, 1)) -
                      attn_pixel_first_(s.first + x, width, p->k_len));
        pixels[y * stride + s.first + x] =
            (uint8_t)(p->k_len ? (s.count[x] * 255 + pairs - 1) / pairs : 0);
      }
    }
  return ATTN_OK;
}

ATTN_PUB_ attn_status attn_block_permutations(int32_t *permutation, int64_t heads, int64_t blocks,
                                              uint64_t seed) {
  if (heads < 0 || blocks < 1 || blocks > INT32_MAX || attn_mul_(heads, blocks) > INT64_MAX / 4)
    return ATTN_E_SHAPE;
  if (heads == 0) return ATTN_OK;
  if (!permutation) return ATTN_E_NULL;
  for (int64_t h = 0; h < heads; h++)
    attn_permutation_(permutation + h * blocks, attn_stream_(seed, ATTN_DRAW_PERMUTATION_, h, 0),
                      blocks);
  return ATTN_OK;
}
/* <<< attn/mechanisms/pattern.h */
/* >>> attn/mechanisms/terms.h */
/* mechanisms/terms.h owns the checks of the score terms (api/score.h) and their translation into the
 * exact-softmax engine's terms. */

/* The arrays that terms read, for the test of what they share with outputs. */
enum {
  ATTN_T_REL_K_,
  ATTN_T_REL_V_,
  ATTN_T_XL_,
  ATTN_T_XL_U_,
  ATTN_T_XL_V_,
  ATTN_T_LABELS_,
  ATTN_T_LABEL_BIAS_,
  ATTN_T_ALPHA_,
  ATTN_T_BETA_,
  ATTN_T_TOEPLITZ_,
  ATTN_T_T5_,
  ATTN_T_PARABOLA_W_,
  ATTN_T_PARABOLA_B_,
  ATTN_T_CENTER_,
  ATTN_T_PRECISION_,
  ATTN_T_SPAN_,
  ATTN_TERMS_
};

/* A table [1, 1 or H, len, dim] of floats. */
ATTN_FUNC_ int attn_check_table_(attn_error_ *e, attn_tensor *t, const attn_words_ *w,
                                 const char *type, const char *shape, int64_t heads, int64_t dim,
                                 attn_span_ *span) {
  if (!t->data) return 1;
  if (t->dtype != ATTN_F32) return attn_reject_(e, ATTN_E_DTYPE, type);
  if (!attn_check_tensor_(e, t, w, span)) return 0;
  if (t->batch != 1 || (t->heads != 1 && t->heads != heads) || t->len < 1 || t->dim != dim)
    return attn_reject_(e, ATTN_E_SHAPE, shape);
  return 1;
}

ATTN_FUNC_ int attn_check_finite_(attn_error_ *e, const float *x, int64_t n, const char *reason) {
  for (int64_t i = 0; x && i < n; i++)
    if (!(x[i] - x[i] == 0.0f)) return attn_reject_(e, ATTN_E_VALUE, reason);
  return 1;
}

ATTN_FUNC_ int attn_check_relative_(attn_error_ *e, attn_softmax_ *a, attn_span_ *span) {
  static const attn_words_ wk = ATTN_WORDS_("params.relative.keys"),
                           wv = ATTN_WORDS_("params.relative.values");
  attn_relative *r = &a->relative;
  if (!attn_check_table_(e, &r->keys, &wk, "params.relative.keys.dtype must be ATTN_F32",
                         "params.relative.keys must be [1, 1 or q.heads, n, q.dim]", a->q.heads,
                         a->q.dim, &span[ATTN_T_REL_K_]) ||
      !attn_check_table_(e, &r->values, &wv, "params.relative.values.dtype must be ATTN_F32",
                         "params.relative.values must be [1, 1 or q.heads, n, v.dim]", a->q.heads,
                         a->v.dim, &span[ATTN_T_REL_V_]))
    return 0;
  if ((r->keys.data && r->keys.len % 2 == 0) || (r->values.data && r->values.len % 2 == 0))
    return attn_reject_(e, ATTN_E_SHAPE, "params.relative: len must be odd, 2 c + 1");
  if (r->keys.data && r->values.data && r->keys.len != r->values.len)
    return attn_reject_(e, ATTN_E_SHAPE, "params.relative.values.len must equal that of keys");
  return 1;
}

/* The distances j - p that causal, window and the extents leave. 0 = none. */
ATTN_FUNC_ int attn_distance_range_(const attn_softmax_ *a, int64_t *first, int64_t *last) {
  *first = -(a->q_off + a->q.len - 1), *last = a->k.len - 1 - a->q_off;
  if (*first < -a->left) *first = -a->left;
  if (*last > a->right) *last = a->right;
  return a->q.len > 0 && a->k.len > 0 && *first <= *last;
}

ATTN_FUNC_ int attn_check_xl_(attn_error_ *e, attn_softmax_ *a, attn_span_ *span) {
  static const attn_words_ w = ATTN_WORDS_("params.xl.table");
  attn_xl *x = &a->xl;
  const int64_t n = attn_mul_(a->q.heads, a->q.dim), far = (int64_t)1 << 41;
  int64_t first, last;
  if (!x->table.data) {
    if (x->content_bias || x->distance_bias)
      return attn_reject_(e, ATTN_E_NULL, "params.xl.table.data must not be null with biases");
    return 1;
  }
  if (!attn_check_table_(e, &x->table, &w, "params.xl.table.dtype must be ATTN_F32",
                         "params.xl.table must be [1, 1 or q.heads, n, q.dim]", a->q.heads,
                         a->q.dim, &span[ATTN_T_XL_]) ||
      !attn_check_array_(e, x->content_bias, n, 4,
                         "params.xl.content_bias must be aligned to its elements",
                         &span[ATTN_T_XL_U_]) ||
      !attn_check_array_(e, x->distance_bias, n, 4,
                         "params.xl.distance_bias must be aligned to its elements",
                         &span[ATTN_T_XL_V_]))
    return 0;
  if (x->first < -far || x->first > far)
    return attn_reject_(e, ATTN_E_RANGE, "params.xl.first must lie within 2^41 of 0");
  if (x->table.len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "params.xl.table.len must be below 2^31");
  if (attn_distance_range_(a, &first, &last) &&
      (-last < x->first || -first >= x->first + x->table.len))
    return attn_reject_(e, ATTN_E_RANGE, "params.xl.table must cover every allowed distance");
  return 1;
}

ATTN_FUNC_ int attn_check_labels_(attn_error_ *e, attn_softmax_ *a, attn_span_ *span) {
  static const attn_words_ w = ATTN_WORDS_("params.labels.table");
  attn_labels *x = &a->labels;
  if (!x->label) {
    if (x->table.data || x->bias)
      return attn_reject_(e, ATTN_E_NULL, "params.labels.label must not be null with a table");
    return 1;
  }
  if (!x->table.data)
    return attn_reject_(e, ATTN_E_NULL, "params.labels.table.data must not be null");
  return attn_check_table_(e, &x->table, &w, "params.labels.table.dtype must be ATTN_F32",
                           "params.labels.table must be [1, 1 or q.heads, n, q.dim]", a->q.heads,
                           a->q.dim, &span[ATTN_T_LABELS_]) &&
         attn_check_array_(e, x->bias, attn_mul_(x->table.len, a->q.heads), 4,
                           "params.labels.bias must be aligned to its elements",
                           &span[ATTN_T_LABEL_BIAS_]);
}

/* Terms by distance: shapes and what can be judged without reading. */
ATTN_FUNC_ int attn_check_by_distance_(attn_error_ *e, attn_softmax_ *a, attn_span_ *span) {
  const attn_distance_terms_ *d = &a->by_distance;
  const attn_toeplitz *z = &d->toeplitz;
  const int64_t heads = a->q.heads, far = (int64_t)1 << 41;
  attn_t5_rule_ rule;
  int64_t first, last;
  if (!d->factor.alpha != !d->factor.beta)
    return attn_reject_(e, ATTN_E_NULL, "params.factor needs both alpha and beta");
  if (d->factor.alpha && !(a->scale > 0.0))
    return attn_reject_(e, ATTN_E_VALUE, "params.factor needs a positive scale");
  if (!attn_check_array_(e, d->factor.alpha, heads, 4,
                         "params.factor.alpha must be aligned to its elements",
                         &span[ATTN_T_ALPHA_]) ||
      !attn_check_array_(e, d->factor.beta, heads, 4,
                         "params.factor.beta must be aligned to its elements", &span[ATTN_T_BETA_]))
    return 0;
  if (z->table) {
    if (z->len < 1) return attn_reject_(e, ATTN_E_SHAPE, "params.toeplitz.len must be at least 1");
    if (z->heads != 0 && z->heads != 1 && z->heads != heads)
      return attn_reject_(e, ATTN_E_SHAPE, "params.toeplitz.heads must be 0, 1 or q.heads");
    if (z->first < -far || z->first > far || z->len > far)
      return attn_reject_(e, ATTN_E_RANGE, "params.toeplitz.first must lie within 2^41 of 0");
    if (z->reject && attn_distance_range_(a, &first, &last) &&
        (first < z->first || last >= z->first + z->len))
      return attn_reject_(e, ATTN_E_RANGE,
                          "params.toeplitz.table must cover every allowed distance");
    if (!attn_check_array_(e, z->table, attn_mul_(z->heads > 1 ? z->heads : 1, z->len), 4,
                           "params.toeplitz.table must be aligned to its elements",
                           &span[ATTN_T_TOEPLITZ_]))
      return 0;
  }
  if (d->t5.table) {
    if (d->t5.buckets < 0 || d->t5.max_distance < 0 ||
        !attn_t5_rule_of_(&rule, d->t5.buckets, d->t5.max_distance, d->t5.bidirectional))
      return attn_reject_(e, ATTN_E_RANGE,
                          "params.t5: buckets must be 2 (bidirectional 4) to 1024, max_distance "
                          "beyond the exact buckets");
    if (!attn_check_array_(e, d->t5.table, attn_mul_(d->t5.buckets ? d->t5.buckets : 32, heads), 4,
                           "params.t5.table must be aligned to its elements", &span[ATTN_T_T5_]))
      return 0;
  }
  if (d->parabola.b && !d->parabola.w)
    return attn_reject_(e, ATTN_E_NULL, "params.parabola.w must not be null with b");
  return attn_check_array_(e, d->parabola.w, heads, 4,
                           "params.parabola.w must be aligned to its elements",
                           &span[ATTN_T_PARABOLA_W_]) &&
         attn_check_array_(e, d->parabola.b, heads, 4,
                           "params.parabola.b must be aligned to its elements",
                           &span[ATTN_T_PARABOLA_B_]);
}

ATTN_FUNC_ int attn_check_span_(attn_error_ *e, attn_softmax_ *a, int64_t rows, attn_span_ *span) {
  const attn_span *s = &a->span;
  if (!s->z) return 1;
  if (!(s->ramp >= 0.0f && s->ramp < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.span.ramp must be positive, or 0 for 32");
  if (s->most < 0) return attn_reject_(e, ATTN_E_RANGE, "params.span.most must not be negative");
  if (attn_abs64_(s->shift) > (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_RANGE, "params.span.shift must lie within 2^40 of 0");
  return attn_check_array_(e, s->z, s->per_query ? rows : a->q.heads, 4,
                           "params.span.z must be aligned to its elements", span);
}

/* All score terms of p, into a; spans are what they read. a has extents, scale, window. */
ATTN_FUNC_ int attn_check_terms_(attn_error_ *e, attn_softmax_ *a, const attn_sdpa_params *p,
                                 attn_span_ *span) {
  const int64_t rows = attn_mul_(attn_mul_(a->q.batch, a->q.heads), a->q.len);
  a->relative = p->relative, a->xl = p->xl, a->labels = p->labels;
  a->by_distance.toeplitz = p->toeplitz, a->by_distance.t5 = p->t5;
  a->by_distance.parabola = p->parabola, a->by_distance.factor = p->factor;
  a->gaussian = p->gaussian, a->span = p->span;
  a->modify = p->modify, a->modify_user = p->modify_user;
  if (!attn_check_relative_(e, a, span) || !attn_check_xl_(e, a, span) ||
      !attn_check_labels_(e, a, span) || !attn_check_by_distance_(e, a, span))
    return 0;
  if (!p->gaussian.center != !p->gaussian.precision)
    return attn_reject_(e, ATTN_E_NULL, "params.gaussian needs both center and precision");
  if (!attn_check_array_(e, p->gaussian.center, rows, 4,
                         "params.gaussian.center must be aligned to its elements",
                         &span[ATTN_T_CENTER_]) ||
      !attn_check_array_(e, p->gaussian.precision, rows, 4,
                         "params.gaussian.precision must be aligned to its elements",
                         &span[ATTN_T_PRECISION_]) ||
      !attn_check_span_(e, a, rows, &span[ATTN_T_SPAN_]))
    return 0;
  if (attn_has_distance_(&a->by_distance) || p->factor.alpha) {
    a->distances = attn_distances_(a->q.len, a->k.len);
    const int shared = !p->t5.table && !p->parabola.w && !p->factor.alpha && p->toeplitz.heads <= 1;
    a->distance_heads = shared ? 1 : a->q.heads;
    if (a->distances > INT32_MAX)
      return attn_reject_(e, ATTN_E_OVERFLOW,
                          "q.len + k.len must be below 2^31 with terms by distance");
  }
  return 1;
}

/* The values of the terms. Those by query are read as they come. */
ATTN_FUNC_ int attn_check_term_values_(attn_error_ *e, const attn_softmax_ *a) {
  const attn_distance_terms_ *d = &a->by_distance;
  const attn_span *s = &a->span;
  const int64_t heads = a->q.heads;
  if (!attn_check_finite_(e, d->factor.alpha, heads, "params.factor.alpha must be finite") ||
      !attn_check_finite_(e, d->factor.beta, heads, "params.factor.beta must be finite") ||
      !attn_check_finite_(e, d->toeplitz.table,
                          d->toeplitz.len * (d->toeplitz.heads > 1 ? heads : 1),
                          "params.toeplitz.table must be finite") ||
      !attn_check_finite_(e, d->t5.table, heads * (d->t5.buckets ? d->t5.buckets : 32),
                          "params.t5.table must be finite"))
    return 0;
  for (int64_t h = 0; d->parabola.w && h < heads; h++) {
    if (!(d->parabola.w[h] >= 0.0f && d->parabola.w[h] < INFINITY))
      return attn_reject_(e, ATTN_E_VALUE, "params.parabola.w must be finite and not negative");
    if (d->parabola.b && !(d->parabola.b[h] <= 0.0f && d->parabola.b[h] > -INFINITY))
      return attn_reject_(e, ATTN_E_VALUE, "params.parabola.b must be finite and not positive");
  }
  const int64_t spans = s->per_query ? a->q.batch * heads * a->q.len : heads;
  for (int64_t i = 0; s->z && i < spans; i++) {
    if (!(s->z[i] >= 0.0f && s->z[i] < INFINITY))
      return attn_reject_(e, ATTN_E_VALUE, "params.span.z must be finite and not negative");
    if (s->most > 0 && (double)s->z[i] > (double)s->most)
      return attn_reject_(e, ATTN_E_RANGE, "params.span.z must not exceed params.span.most");
  }
  return 1;
}
/* <<< attn/mechanisms/terms.h */
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
          table->widen(x, row, 0, NULL, 1, n, m->dtype);
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

/* Every rule of attn_sdpa for a, which holds the four tensors and, for rectified weights, relu, and
 * the rest of the engine's problem. data = 0 leaves out what would read arrays (the workspace
 * query); data = -1 also what compares addresses, since some are not known yet. */
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
  if (!params) memset(&zero, 0, sizeof zero);
  const attn_sdpa_params *p = params ? params : &zero;
  const int has_lse = p->lse.data != NULL, has_map = p->map.data != NULL && a->k.len > 0;
  enum { O, LSE, MAP, Q, K, V, MASK, BIAS, ALIBI, SINKS, KV_LEN, Q_LEN, PLAN, TERMS };
  enum { WORK = TERMS + (int)ATTN_TERMS_, SPANS };
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
  /* what the terms' checks need of the engine's problem */
  a->o = *o, a->q = *q, a->k = *k, a->v = *v;
  a->unit = a->relu ? 1.0 : ATTN_LOG2E_;
  a->scale = (double)scale;
  if (scale == 0.0f && !attn_to_bits_(scale))
    a->scale = p->t5.table ? 1.0 : 1.0 / sqrt((double)q->dim);
  a->q_off = p->has_q_off ? p->q_off : k->len - q->len;
  a->left = attn_reach_(p->window_left);
  a->right = p->causal ? 0 : attn_reach_(p->window_right);
  if (!attn_check_terms_(e, a, p, span + TERMS)) return 0;
  if (p->schedule) {
    a->plan = attn_plan_of_(p->schedule);
    if (!a->plan)
      return attn_reject_(e, ATTN_E_SCHEDULE, "params.schedule is not a built schedule");
    if (a->plan->heads != q->heads || a->plan->q_len != q->len || a->plan->k_len != k->len ||
        a->plan->q_off != a->q_off)
      return attn_reject_(e, ATTN_E_SCHEDULE,
                          "params.schedule was built for other heads, lengths or q_off");
    span[PLAN].lo = (uintptr_t)p->schedule->data;
    span[PLAN].hi = span[PLAN].lo + p->schedule->size;
  }
  if (!attn_check_workspace_(e, ctx, &span[WORK])) return 0;
  for (int x = O; data >= 0 && x <= MAP; x++)
    for (int y = x + 1; span[x].lo < span[x].hi && y < WORK; y++)
      if (attn_overlap_(span[x], span[y]))
        return attn_reject_(e, ATTN_E_OVERLAP,
                            x == O     ? wo.overlap
                            : x == LSE ? wl.overlap
                                       : wm.overlap);
  for (int x = O; data >= 0 && x < WORK; x++)
    if (attn_overlap_(span[x], span[WORK]))
      return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with a tensor");
  if (data > 0) {
    if (!attn_check_lens_(e, p->kv_len, q->batch, k->len, "params.kv_len must lie in 0..k.len") ||
        !attn_check_lens_(e, p->q_len, q->batch, q->len, "params.q_len must lie in 0..q.len") ||
        !attn_check_logits_(e, p->alibi, q->heads, 1, "params.alibi must be finite") ||
        !attn_check_logits_(e, p->sinks, q->heads, 0, "params.sinks holds NaN or +inf") ||
        !attn_check_term_values_(e, a))
      return 0;
    if (ctx && ctx->validate && p->bias.kind && q->batch && q->len && k->len &&
        !attn_check_bias_(e, a->table, &p->bias))
      return 0;
  }

  /* the rest of the engine's problem */
  if (k->len > 0) a->mask = p->mask, a->bias = p->bias;
  a->kv_len = p->kv_len, a->q_len = p->q_len;
  a->alibi = p->alibi, a->sinks = p->sinks, a->softmax_one = p->softmax_one != 0;
  const double s = attn_clamp_f64_(a->scale * a->unit);
  a->scale_hi = (float)s;
  a->scale_lo = (float)(s - (double)a->scale_hi);
  a->softcap = attn_to_unit_(a, p->softcap);
  /* 1 / softcap stays finite */
  if (p->softcap > 0.0f && a->softcap < FLT_MIN) a->softcap = FLT_MIN;
  /* tables of one head and rows of one head go together */
  const int by_head = p->schedule || p->relative.keys.data || p->relative.values.data ||
                      p->xl.table.data || p->labels.label || a->distances;
  a->group = by_head ? 1 : attn_gcd_(q->heads / k->heads, q->heads / v->heads);
  a->phases = a->plan ? (int)a->plan->phases : 1;
  if (q->len > INT64_MAX / ATTN_TILE_ / q->heads)
    return attn_reject_(e, ATTN_E_OVERFLOW, "q.heads * q.len is too large");
  a->tiles = (a->group * q->len + ATTN_TILE_ - 1) / ATTN_TILE_;
  if (q->batch && a->tiles > INT64_MAX / q->batch / q->heads)
    return attn_reject_(e, ATTN_E_OVERFLOW, "q.batch * q.heads * q.len is too large");
  return 1;
}

/* Bytes that attn_sdpa would want, -1 when it would be rejected; data as in attn_sdpa_plan_, <= 0.
 * relu: those of attn_relu. */
ATTN_FUNC_ int64_t attn_sdpa_need_(attn_error_ *e, attn_tensor o, attn_tensor q, attn_tensor k,
                                   attn_tensor v, const attn_sdpa_params *params,
                                   const attn_relu_ *relu, const attn_ctx *ctx, int data) {
  const attn_ctx plain = attn_before_workspace_(ctx);
  attn_softmax_ a;
  int workers;
  memset(&a, 0, sizeof a);
  a.o = o, a.q = q, a.k = k, a.v = v, a.relu = relu;
  if (!attn_sdpa_plan_(e, &a, params, &plain, &workers, data)) return -1;
  if (q.batch == 0 || q.len == 0) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  return attn_softmax_bytes_(&a, workers);
}

ATTN_PUB_ size_t attn_sdpa_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const attn_sdpa_params *params, const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const int64_t bytes = attn_sdpa_need_(&e, o, q, k, v, params, NULL, ctx, 0);
  return bytes < 0 || bytes == INT64_MAX ? 0 : (size_t)bytes;
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
/* >>> attn/mechanisms/relu.h */
/* mechanisms/relu.h owns attention with rectified weights (A4): checks, and the gated norm of RELA,
 * on the exact-softmax engine with another last stage. */

/* The rules that attn_sdpa has not, and what the engine is told. */
ATTN_FUNC_ int attn_relu_plan_(attn_error_ *e, attn_relu_ *r, const attn_tensor *o,
                               const attn_tensor *q, const attn_relu_params *p,
                               attn_sdpa_params *scores) {
  const attn_sdpa_params *s = &p->scores;
  if ((int)p->kind < 0 || p->kind > ATTN_RELU_RELA)
    return attn_reject_(e, ATTN_E_RANGE, "params.kind is no attn_relu_kind");
  if (p->power < 0 || p->power > 2)
    return attn_reject_(e, ATTN_E_RANGE, "params.power must be 0, 1 or 2");
  if (p->power == 2 && (p->kind == ATTN_RELU_VAR || p->kind == ATTN_RELU_RELA))
    return attn_reject_(e, ATTN_E_RANGE, "params.power must be 0 or 1 for VAR and RELA");
  if (!(p->alpha >= 0.0f && p->alpha < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.alpha must be finite and not negative");
  if (!(p->gamma >= 0.0f && p->gamma < INFINITY) || (p->gamma == 0.0f && attn_to_bits_(p->gamma)))
    return attn_reject_(e, ATTN_E_VALUE, "params.gamma must be finite and positive, or 0 for 1");
  if (!(p->eps >= 0.0f && p->eps < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.eps must be finite and not negative");
  if (s->sinks || s->softmax_one)
    return attn_reject_(e, ATTN_E_RANGE, "params.scores: sinks and softmax_one need a softmax");
  if (s->span.z || s->relative.values.data)
    return attn_reject_(e, ATTN_E_RANGE, "params.scores: span and relative.values need a softmax");
  if (s->lse.data || s->map.data)
    return attn_reject_(e, ATTN_E_RANGE, "params.scores: lse and map need a softmax");
  if (p->kind == ATTN_RELU_RELA) {
    const int64_t n = q->heads > 0 && o->dim > 0 ? attn_mul_(q->heads, o->dim) : 0;
    if (!p->gain || !p->gate)
      return attn_reject_(e, ATTN_E_NULL, "params.gain and params.gate must not be null for RELA");
    if ((uintptr_t)p->gain % 4 || (uintptr_t)p->gate % 4)
      return attn_reject_(e, ATTN_E_ALIGN,
                          "params.gain and gate must be aligned to their elements");
    if (o->dtype != ATTN_F32)
      return attn_reject_(e, ATTN_E_DTYPE, "o.dtype must be ATTN_F32 for RELA");
    if (n > INT64_MAX / 8) return attn_reject_(e, ATTN_E_OVERFLOW, "q.heads * o.dim is too large");
  }
  if (p->sum.data && p->sum.dtype != ATTN_F32)
    return attn_reject_(e, ATTN_E_DTYPE, "params.sum.dtype must be ATTN_F32");
  if (p->sum.data && (p->sum.batch != q->batch || p->sum.heads != q->heads ||
                      p->sum.len != q->len || p->sum.dim != 1))
    return attn_reject_(e, ATTN_E_SHAPE, "params.sum must be [q.batch, q.heads, q.len, 1]");
  *scores = *s;
  scores->lse = p->sum;
  r->params = p;
  r->square = p->power == 2 || p->kind == ATTN_RELU_GAU;
  r->count_first = r->by_square = 0;
  if (p->kind == ATTN_RELU_GAU && s->scale == 0.0f && !attn_to_bits_(s->scale)) {
    if (s->toeplitz.table && s->toeplitz.inside)
      return attn_reject_(e, ATTN_E_RANGE, "params.scores.toeplitz.inside needs a scale with GAU");
    /* c = 1/n of each row. relu(x / n)^2 is relu(x)^2 / n^2 unless something is added to x: then a
     * first pass counts n */
    const int added = s->softcap != 0.0f || s->bias.kind || s->alibi || s->toeplitz.table ||
                      s->t5.table || s->parabola.w || s->gaussian.center || s->modify;
    scores->scale = 1.0f;
    r->by_square = !added;
    r->count_first = added;
  }
  return 1;
}

typedef struct attn_rela_ {
  const attn_table_ *table;
  const attn_relu_params *params;
  attn_tensor o;
} attn_rela_;

/* y = gain o / sqrt(mean o^2 + eps) sigmoid(gate o), one query; a row of zeros stays zero */
ATTN_FUNC_ void attn_rela_item_(void *job, int worker, int64_t index) {
  const attn_rela_ *m = (const attn_rela_ *)job;
  const attn_relu_params *p = m->params;
  const int64_t b = index / m->o.len, i = index % m->o.len, dv = m->o.dim;
  const double eps = p->eps == 0.0f && !attn_to_bits_(p->eps) ? 1e-8 : (double)p->eps;
  double sum = 0.0;
  float e[64];
  (void)worker;
  for (int64_t h = 0; h < m->o.heads; h++) {
    const float *x = (const float *)(const void *)attn_at_(&m->o, b, h, i);
    for (int64_t c = 0; c < dv; c++) sum += (double)x[c] * (double)x[c];
  }
  const double mean = sum / (double)(m->o.heads * dv);
  const double by = mean + eps == 0.0 ? 0.0 : 1.0 / sqrt(mean + eps);
  for (int64_t h = 0; h < m->o.heads; h++) {
    float *x = (float *)(void *)attn_at_(&m->o, b, h, i);
    for (int64_t c0 = 0; c0 < dv; c0 += 64) {
      const int64_t n = dv - c0 < 64 ? dv - c0 : 64;
      for (int64_t c = 0; c < n; c++) e[c] = -(p->gate[h * dv + c0 + c] * x[c0 + c]);
      m->table->exp(e, e, n);
      for (int64_t c = 0; c < n; c++)
        x[c0 + c] = p->gain[h * dv + c0 + c] * (float)((double)x[c0 + c] * by) / (1.0f + e[c]);
    }
  }
}

/* The vectors of RELA are read while o is written. */
ATTN_FUNC_ int attn_rela_apart_(attn_error_ *e, const attn_softmax_ *a, const attn_relu_params *p,
                                const attn_ctx *ctx) {
  static const attn_words_ w = ATTN_WORDS_("o");
  const int64_t n = a->q.heads * a->o.dim;
  attn_tensor o = a->o, sum = a->lse;
  attn_span_ span[4], work;
  memset(span, 0, sizeof span);
  if (!attn_check_tensor_(e, &o, &w, &span[0]) ||
      (sum.data && !attn_check_tensor_(e, &sum, &w, &span[1])) ||
      !attn_check_array_(e, p->gain, n, 4, "params.gain must be aligned to its elements",
                         &span[2]) ||
      !attn_check_array_(e, p->gate, n, 4, "params.gate must be aligned to its elements", &span[3]))
    return 0;
  if (!attn_check_workspace_(e, ctx, &work)) return 0;
  for (int y = 2; y < 4; y++)
    if (attn_overlap_(work, span[y]))
      return attn_reject_(e, ATTN_E_OVERLAP,
                          "ctx.workspace must not share memory with params.gain or gate");
  for (int x = 0; x < 2; x++)
    for (int y = 2; y < 4; y++)
      if (attn_overlap_(span[x], span[y]))
        return attn_reject_(e, ATTN_E_OVERLAP,
                            "params.gain and gate must not share memory with o or params.sum");
  return 1;
}

ATTN_PUB_ size_t attn_relu_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const attn_relu_params *params, const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_relu_params zero;
  attn_sdpa_params scores;
  attn_relu_ r;
  memset(&zero, 0, sizeof zero);
  if (!attn_relu_plan_(&e, &r, &o, &q, params ? params : &zero, &scores)) return 0;
  const int64_t bytes = attn_sdpa_need_(&e, o, q, k, v, &scores, &r, ctx, 0);
  return bytes < 0 || bytes == INT64_MAX ? 0 : (size_t)bytes;
}

ATTN_PUB_ attn_status attn_relu(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                const attn_relu_params *params, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_relu_params zero;
  attn_sdpa_params scores;
  attn_softmax_ a;
  attn_relu_ r;
  int workers;
  memset(&a, 0, sizeof a);
  memset(&zero, 0, sizeof zero);
  a.o = o, a.q = q, a.k = k, a.v = v, a.relu = &r;
  const attn_relu_params *p = params ? params : &zero;
  const int rela = p->kind == ATTN_RELU_RELA;
  if (!attn_relu_plan_(&e, &r, &o, &q, p, &scores) ||
      !attn_sdpa_plan_(&e, &a, &scores, ctx, &workers, 1) ||
      (rela && !attn_rela_apart_(&e, &a, p, ctx)) ||
      (rela && (!attn_check_finite_(&e, p->gain, q.heads * o.dim, "params.gain must be finite") ||
                !attn_check_finite_(&e, p->gate, q.heads * o.dim, "params.gate must be finite"))))
    return attn_end_(ctx, &e);
  if (q.batch == 0 || q.len == 0) {
    attn_report_(ctx, a.table, 1, "no-op", "no queries");
  } else if (attn_softmax_run_(&e, &a, ctx, workers) && rela) {
    attn_rela_ m = {a.table, p, a.o};
    const int64_t rows = a.o.batch * a.o.len;
    attn_for_(ctx, attn_pieces_(workers, rows), rows, attn_rela_item_, &m);
  }
  return attn_end_(ctx, &e);
}
/* <<< attn/mechanisms/relu.h */
/* >>> attn/mechanisms/edges.h */
/* mechanisms/edges.h owns attention over the caller's key lists (A7): their checks, on the
 * exact-softmax engine's lists. */

ATTN_FUNC_ int attn_edges_same_(const attn_edges_params *p, int64_t from, int64_t to) {
  for (int64_t x = from; x < to; x++)
    for (int64_t y = from; y < x; y++)
      if (p->col[x] == p->col[y]) return 1;
  return 0;
}

/* The sets themselves. Doubles are looked for only when asked: that costs the square of a list. */
ATTN_FUNC_ int attn_check_sets_(attn_error_ *e, const attn_edges_params *p, const attn_softmax_ *a,
                                int validate) {
  const int64_t sets = (p->per_batch ? a->q.batch : 1) * (p->per_head ? a->q.heads : 1);
  attn_edges_params at = *p;
  for (int64_t s = 0; s < sets; s++) {
    const int64_t *ptr = p->row_ptr + s * (a->q.len + 1);
    at.col = p->col ? p->col + s * p->edges : NULL;
    if (ptr[0] != 0) return attn_reject_(e, ATTN_E_INDEX, "params.row_ptr must begin with 0");
    for (int64_t i = 0; i < a->q.len; i++)
      if (ptr[i + 1] < ptr[i] || ptr[i + 1] > p->edges)
        return attn_reject_(e, ATTN_E_INDEX, "params.row_ptr must not decrease or pass edges");
    if (ptr[a->q.len] != p->edges)
      return attn_reject_(e, ATTN_E_INDEX, "params.row_ptr must end with params.edges");
    for (int64_t x = 0; x < p->edges; x++)
      if (at.col[x] < 0 || at.col[x] >= a->k.len)
        return attn_reject_(e, ATTN_E_INDEX, "params.col must lie in 0..k.len-1");
    for (int64_t i = 0; validate && i < a->q.len; i++)
      if (attn_edges_same_(&at, ptr[i], ptr[i + 1]))
        return attn_reject_(e, ATTN_E_INDEX, "params.col has a key twice in one set");
  }
  return 1;
}

/* Every rule of attn_edges; a holds the tensors. */
ATTN_FUNC_ int attn_edges_plan_(attn_error_ *e, attn_softmax_ *a, const attn_edges_params *p,
                                const attn_ctx *ctx, int *workers, int data) {
  enum { ROW_PTR, COL, BIAS, WEIGHTS, O, LSE, Q, K, V, KV_LEN, WORK, SPANS };
  attn_span_ span[SPANS];
  attn_sdpa_params s;
  memset(span, 0, sizeof span);
  memset(&s, 0, sizeof s);
  if (!p) return attn_reject_(e, ATTN_E_NULL, "params must not be null");
  s.scale = p->scale, s.causal = p->causal, s.has_q_off = p->has_q_off, s.q_off = p->q_off;
  s.kv_len = p->kv_len, s.lse = p->lse;
  if (!attn_sdpa_plan_(e, a, &s, ctx, workers, data)) return 0;
  const int64_t all = attn_mul_(a->q.batch, a->q.heads);
  const int64_t sets = attn_mul_(p->per_batch ? a->q.batch : 1, p->per_head ? a->q.heads : 1);
  if (p->edges < 0) return attn_reject_(e, ATTN_E_SHAPE, "params.edges must not be negative");
  if (p->edges >= (int64_t)1 << 40 || a->k.len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "params.edges and k.len are too large");
  if (!p->row_ptr) return attn_reject_(e, ATTN_E_NULL, "params.row_ptr must not be null");
  if (!p->col && p->edges) return attn_reject_(e, ATTN_E_NULL, "params.col must not be null");
  const int64_t n = attn_mul_(sets, p->edges);
  if (!attn_check_array_(e, p->row_ptr, attn_mul_(sets, a->q.len + 1), 8,
                         "params.row_ptr must be aligned to its elements", &span[ROW_PTR]) ||
      !attn_check_array_(e, p->col, n, 4, "params.col must be aligned to its elements",
                         &span[COL]) ||
      !attn_check_array_(e, p->bias, n, 4, "params.bias must be aligned to its elements",
                         &span[BIAS]) ||
      !attn_check_array_(e, p->weights, attn_mul_(all, p->edges), 4,
                         "params.weights must be aligned to its elements", &span[WEIGHTS]) ||
      !attn_check_array_(e, p->kv_len, a->q.batch, 4, "params.kv_len must be aligned",
                         &span[KV_LEN]) ||
      !attn_check_workspace_(e, ctx, &span[WORK]))
    return 0;
  static const attn_words_ w = ATTN_WORDS_("q");
  if (!attn_check_tensor_(e, &a->o, &w, &span[O]) || !attn_check_tensor_(e, &a->q, &w, &span[Q]) ||
      !attn_check_tensor_(e, &a->k, &w, &span[K]) || !attn_check_tensor_(e, &a->v, &w, &span[V]) ||
      (a->lse.data && !attn_check_tensor_(e, &a->lse, &w, &span[LSE])))
    return 0;
  for (int x = ROW_PTR; x <= BIAS; x++)
    if (attn_overlap_(span[x], span[O]) || attn_overlap_(span[x], span[LSE]))
      return attn_reject_(e, ATTN_E_OVERLAP,
                          "o and params.lse must not share memory with the sets");
  for (int x = 0; x < SPANS; x++)
    if (x != WEIGHTS && attn_overlap_(span[x], span[WEIGHTS]))
      return attn_reject_(e, ATTN_E_OVERLAP,
                          "params.weights must not share memory with another argument");
  for (int x = 0; x < O; x++)
    if (attn_overlap_(span[x], span[WORK]))
      return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with the sets");
  if (data > 0) {
    if (!attn_check_sets_(e, p, a, ctx && ctx->validate)) return 0;
    for (int64_t i = 0; p->bias && i < n; i++)
      if (!(p->bias[i] < INFINITY))
        return attn_reject_(e, ATTN_E_VALUE, "params.bias holds NaN or +inf");
  }
  a->edges = p;
  a->group = 1;
  a->tiles = (a->q.len + ATTN_TILE_ - 1) / ATTN_TILE_;
  return 1;
}

ATTN_PUB_ size_t attn_edges_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                      const attn_edges_params *params, const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_ctx plain = attn_before_workspace_(ctx);
  attn_softmax_ a;
  int workers;
  memset(&a, 0, sizeof a);
  a.o = o, a.q = q, a.k = k, a.v = v;
  if (!attn_edges_plan_(&e, &a, params, &plain, &workers, 0)) return 0;
  if (q.batch == 0 || q.len == 0) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  const int64_t bytes = attn_softmax_bytes_(&a, workers);
  return bytes == INT64_MAX ? 0 : (size_t)bytes;
}

ATTN_PUB_ attn_status attn_edges(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                 const attn_edges_params *params, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_softmax_ a;
  int workers;
  memset(&a, 0, sizeof a);
  a.o = o, a.q = q, a.k = k, a.v = v;
  if (attn_edges_plan_(&e, &a, params, ctx, &workers, 1)) {
    if (q.batch == 0 || q.len == 0)
      attn_report_(ctx, a.table, 1, "no-op", "no queries");
    else
      attn_softmax_run_(&e, &a, ctx, workers);
  }
  return attn_end_(ctx, &e);
}
/* <<< attn/mechanisms/edges.h */
/* >>> attn/mechanisms/position.h */
/* mechanisms/position.h owns family B: rotary embedding and the ALiBi slopes. T5 buckets are in
 * engine/t5.h. */

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
  j->workspace = (char *)j->fine + attn_piece_(2 * ATTN_ROPE_RUN_ * j->pairs, sizeof(double));
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
/* >>> attn/mechanisms/position_tables.h */
/* mechanisms/position_tables.h owns the encodings that are added to token vectors: sinusoids, the
 * signal of the Universal Transformer, learned tables. */

/* As in attn_rope, a position is 16 floor(p / 16) and a rest. The row of the first is made in
 * double; the encoding of p is that row turned by the angles of the rest, which is a rotary
 * embedding with fixed rows. */
typedef struct attn_sinusoid_job_ {
  const attn_table_ *table;
  attn_tensor y, x;       /* x.data null = none */
  attn_sinusoid_params p; /* base and x_scale resolved */
  int signal;             /* with the step of attn_universal_signal */
  int64_t step;
  int64_t pairs, width; /* frequencies; floats of a row, at least 2 pairs and y.dim */
  double *theta;        /* [pairs] */
  float *fine;          /* [run][2][width] cosines and sines of 0..15, as table->rope wants them */
  float *step_row;      /* [width] */
  char *workspace;      /* of the workers, each of this many bytes: */
  int64_t bytes;
} attn_sinusoid_job_;

/* One worker's part: the last coarse position, its row, and the row of the present position. */
typedef struct attn_sinusoid_rows_ {
  int64_t *coarse;
  float *coarse_row, *row; /* [width] */
} attn_sinusoid_rows_;

/* y, and x if there is one, of equal shape; y may be x. */
ATTN_FUNC_ int attn_check_added_(attn_error_ *e, attn_tensor *y, attn_tensor *x, attn_span_ *sy,
                                 attn_span_ *sx) {
  static const attn_words_ wy = ATTN_WORDS_("y"), wx = ATTN_WORDS_("x");
  sx->lo = sx->hi = 0;
  if (!attn_check_tensor_(e, y, &wy, sy)) return 0;
  if (x->data) {
    if (!attn_check_tensor_(e, x, &wx, sx)) return 0;
    if (y->batch != x->batch || y->heads != x->heads || y->len != x->len || y->dim != x->dim)
      return attn_reject_(e, ATTN_E_SHAPE, "x must have the shape of y");
  }
  if (!attn_check_rows_(e, y, &wy)) return 0;
  if (x->data && attn_overlap_(*sy, *sx) && !attn_same_view_(y, x))
    return attn_reject_(e, ATTN_E_OVERLAP, "y must be x or share no memory with it");
  return 1;
}

ATTN_FUNC_ int attn_sinusoid_plan_(attn_error_ *e, attn_sinusoid_job_ *j,
                                   const attn_sinusoid_params *params, const attn_ctx *ctx,
                                   int *workers, int data) {
  attn_span_ sy, sx, sp = {0, 0}, sw = {0, 0};
  attn_sinusoid_params *p = &j->p;
  memset(p, 0, sizeof *p);
  if (params) *p = *params;
  if (!p->positions) p->positions_per_batch = 0;
  if (!attn_check_ctx_(e, ctx, &j->table, workers)) return 0;
  if (!attn_check_added_(e, &j->y, &j->x, &sy, &sx)) return 0;
  if (attn_abs64_(p->start) > INT64_MAX / 4)
    return attn_reject_(e, ATTN_E_RANGE, "params.start must lie within 2^61 of 0");
  if (attn_abs64_(j->step) > INT64_MAX / 4)
    return attn_reject_(e, ATTN_E_RANGE, "params.step must lie within 2^61 of 0");
  if (p->base == 0.0) p->base = 10000.0;
  if (!(p->base > 0.0 && p->base < HUGE_VAL))
    return attn_reject_(e, ATTN_E_VALUE, "params.base must be positive and finite");
  if ((int)p->layout < 0 || p->layout > ATTN_SINUSOID_T2T)
    return attn_reject_(e, ATTN_E_RANGE, "params.layout must be one of attn_sinusoid_layout");
  if (p->x_scale - p->x_scale != 0.0f)
    return attn_reject_(e, ATTN_E_VALUE, "params.x_scale must be finite");
  if (p->x_scale == 0.0f && attn_to_bits_(p->x_scale) == 0) p->x_scale = 1.0f;
  const int64_t count = attn_mul_(p->positions_per_batch ? j->y.batch : 1, j->y.len);
  if (!attn_check_array_(e, p->positions, count, 8,
                         "params.positions must be aligned to its elements", &sp))
    return 0;
  if (attn_overlap_(sy, sp))
    return attn_reject_(e, ATTN_E_OVERLAP, "y must not share memory with params.positions");
  for (int64_t i = 0; data && p->positions && i < count; i++)
    if (!(fabs(p->positions[i]) < HUGE_VAL))
      return attn_reject_(e, ATTN_E_VALUE, "params.positions must be finite");
  if (!attn_check_workspace_(e, ctx, &sw)) return 0;
  if (attn_overlap_(sw, sx) || attn_overlap_(sw, sy) || attn_overlap_(sw, sp))
    return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with a tensor");
  if (p->x_scale == 0.0f) j->x.data = NULL;
  j->pairs = p->layout == ATTN_SINUSOID_T2T ? j->y.dim / 2 : j->y.dim / 2 + j->y.dim % 2;
  j->width = 2 * j->pairs > j->y.dim ? 2 * j->pairs : j->y.dim;
  j->bytes = attn_add_(attn_piece_(1, sizeof(int64_t)),
                       attn_mul_(2, attn_piece_(j->width, sizeof(float))));
  return 1;
}

ATTN_FUNC_ int64_t attn_sinusoid_bytes_(const attn_sinusoid_job_ *j, int workers) {
  const int64_t rows = 2 * ATTN_ROPE_RUN_ + 1;
  const int64_t shared = attn_add_(attn_piece_(j->pairs, sizeof(double)),
                                   attn_mul_(rows, attn_piece_(j->width, sizeof(float))));
  return attn_workspace_bytes_(attn_add_(shared, attn_mul_(j->bytes, workers)), 1);
}

ATTN_FUNC_ int64_t attn_row_runs_(int64_t len) {
  return len / ATTN_ROPE_RUN_ + (len % ATTN_ROPE_RUN_ != 0);
}

/* Runs of rows; with positions per batch entry each entry has its own. */
ATTN_FUNC_ int64_t attn_sinusoid_items_(const attn_sinusoid_job_ *j) {
  if (j->y.batch == 0 || j->y.heads == 0 || j->y.len == 0) return 0;
  return attn_mul_(attn_row_runs_(j->y.len), j->p.positions_per_batch ? j->y.batch : 1);
}

ATTN_FUNC_ void attn_sinusoid_cut_(const attn_sinusoid_job_ *j, int worker,
                                   attn_sinusoid_rows_ *r) {
  char *at = j->workspace + worker * j->bytes;
  r->coarse = (int64_t *)(void *)at, at += attn_piece_(1, sizeof(int64_t));
  r->coarse_row = (float *)(void *)at, at += attn_piece_(j->width, sizeof(float));
  r->row = (float *)(void *)at;
}

/* Sines and cosines of one position into the columns of the layout. */
ATTN_FUNC_ void attn_sinusoid_make_(const attn_sinusoid_job_ *j, double position, float *row) {
  const int halves = j->p.layout != ATTN_SINUSOID_INTERLEAVED;
  for (int64_t m = 0; m < j->pairs; m++) {
    double sine, cosine;
    attn_sincos_(position * j->theta[m], &sine, &cosine);
    const int64_t a = halves ? m : 2 * m, b = halves ? m + j->pairs : a + 1;
    row[a] = (float)sine, row[b] = (float)cosine;
  }
  if (j->width > 2 * j->pairs) row[2 * j->pairs] = 0.0f;
}

ATTN_FUNC_ int64_t attn_rest_(int64_t position) {
  return (position % ATTN_ROPE_RUN_ + ATTN_ROPE_RUN_) % ATTN_ROPE_RUN_;
}

/* The encoding of a whole position into r->row. */
ATTN_FUNC_ void attn_sinusoid_at_(const attn_sinusoid_job_ *j, attn_sinusoid_rows_ *r,
                                  int64_t position) {
  const int64_t rest = attn_rest_(position);
  const float *cosines = j->fine + 2 * rest * j->width;
  if (*r->coarse != position - rest) {
    attn_sinusoid_make_(j, (double)(position - rest), r->coarse_row);
    *r->coarse = position - rest;
  }
  j->table->rope(r->row, r->coarse_row, ATTN_F32, ATTN_F32, j->width, 2 * j->pairs,
                 j->p.layout != ATTN_SINUSOID_INTERLEAVED, cosines, cosines + j->width);
}

/* 1 and the position of a row if it is a whole number. */
ATTN_FUNC_ int attn_sinusoid_whole_(const attn_sinusoid_job_ *j, int64_t b, int64_t i,
                                    int64_t *position) {
  *position = j->p.start + i;
  if (!j->p.positions) return 1;
  const double p = j->p.positions[(j->p.positions_per_batch ? b * j->y.len : 0) + i];
  if (!(fabs(p) < 9007199254740992.0) || p != floor(p)) return 0;
  *position = (int64_t)p;
  return 1;
}

ATTN_FUNC_ void attn_sinusoid_item_(void *job, int worker, int64_t index) {
  const attn_sinusoid_job_ *j = (const attn_sinusoid_job_ *)job;
  const attn_table_ *f = j->table;
  const int64_t runs = attn_row_runs_(j->y.len), first = index % runs * ATTN_ROPE_RUN_;
  const int64_t end = j->y.len - first < ATTN_ROPE_RUN_ ? j->y.len : first + ATTN_ROPE_RUN_;
  const int64_t b0 = index / runs, b1 = j->p.positions_per_batch ? b0 + 1 : j->y.batch;
  attn_sinusoid_rows_ r;
  attn_sinusoid_cut_(j, worker, &r);
  for (int64_t i = first; i < end; i++) {
    int64_t position;
    if (attn_sinusoid_whole_(j, b0, i, &position))
      attn_sinusoid_at_(j, &r, position);
    else
      attn_sinusoid_make_(j, j->p.positions[(j->p.positions_per_batch ? b0 * j->y.len : 0) + i],
                          r.row);
    if (j->signal)
      f->blend(r.row, r.row, j->step_row, ATTN_F32, ATTN_F32, ATTN_F32, j->width, 1.0f, 1.0f);
    for (int64_t b = b0; b < b1; b++)
      for (int64_t h = 0; h < j->y.heads; h++)
        f->blend(attn_at_(&j->y, b, h, i), j->x.data ? attn_at_(&j->x, b, h, i) : NULL, r.row,
                 j->y.dtype, j->x.dtype, ATTN_F32, j->y.dim, j->p.x_scale, 1.0f);
  }
}

/* The rows that turn an encoding on by `rest` positions. */
ATTN_FUNC_ void attn_sinusoid_fine_(attn_sinusoid_job_ *j, int64_t rest) {
  float *cosines = j->fine + 2 * rest * j->width, *sines = cosines + j->width;
  const int halves = j->p.layout != ATTN_SINUSOID_INTERLEAVED;
  for (int64_t m = 0; m < j->pairs; m++) {
    double sine, cosine;
    attn_sincos_((double)rest * j->theta[m], &sine, &cosine);
    const int64_t a = halves ? m : 2 * m, b = halves ? m + j->pairs : a + 1;
    cosines[a] = cosines[b] = (float)cosine, sines[a] = (float)sine, sines[b] = -(float)sine;
  }
}

/* Makes what all workers read: frequencies, the fine rows that occur, the row of the step. */
ATTN_FUNC_ void attn_sinusoid_tables_(attn_sinusoid_job_ *j, char *base, int workers) {
  const int64_t row = attn_piece_(j->width, sizeof(float));
  unsigned seen = 0;
  attn_sinusoid_rows_ r;
  j->theta = (double *)(void *)base, base += attn_piece_(j->pairs, sizeof(double));
  j->step_row = (float *)(void *)base, base += row;
  j->fine = (float *)(void *)base, base += 2 * ATTN_ROPE_RUN_ * row;
  j->workspace = base;
  const double most = j->pairs > 1 ? (double)(j->pairs - 1) : 1.0;
  for (int64_t m = 0; m < j->pairs; m++)
    j->theta[m] =
        pow(j->p.base, j->p.layout == ATTN_SINUSOID_T2T ? -(double)m / most
                                                        : -2.0 * (double)m / (double)j->y.dim);
  for (int64_t b = 0; b < (j->p.positions_per_batch ? j->y.batch : 1); b++)
    for (int64_t i = 0; i < j->y.len && seen != 0xffffu; i++) {
      int64_t p;
      if (attn_sinusoid_whole_(j, b, i, &p)) seen |= 1u << attn_rest_(p);
    }
  if (j->signal) seen |= 1u << attn_rest_(j->step);
  for (int rest = 0; rest < ATTN_ROPE_RUN_; rest++)
    if (seen >> rest & 1u) attn_sinusoid_fine_(j, rest);
  for (int w = 0; w < workers; w++) {
    attn_sinusoid_cut_(j, w, &r);
    *r.coarse = INT64_MAX; /* no multiple of 16 */
  }
  if (!j->signal) return;
  attn_sinusoid_cut_(j, 0, &r);
  attn_sinusoid_at_(j, &r, j->step);
  memcpy(j->step_row, r.row, (size_t)j->width * sizeof(float));
}

ATTN_FUNC_ attn_status attn_sinusoid_run_(attn_sinusoid_job_ *j, const attn_sinusoid_params *params,
                                          attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_workspace_ w;
  int workers;
  if (attn_sinusoid_plan_(&e, j, params, ctx, &workers, 1)) {
    const int64_t items = attn_sinusoid_items_(j);
    workers = attn_pieces_(workers, items);
    if (items == 0) {
      attn_report_(ctx, j->table, 1, "no-op", "no rows");
    } else if (attn_workspace_get_(&e, &w, ctx, attn_sinusoid_bytes_(j, workers))) {
      attn_sinusoid_tables_(j, w.base, workers);
      attn_for_(ctx, workers, items, attn_sinusoid_item_, j);
      attn_workspace_drop_(&w);
      attn_report_(ctx, j->table, workers, "turned rows", "the only path");
    }
  }
  return attn_end_(ctx, &e);
}

ATTN_FUNC_ size_t attn_sinusoid_ask_(attn_sinusoid_job_ *j, const attn_sinusoid_params *params,
                                     const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_ctx plain = attn_before_workspace_(ctx);
  int workers;
  if (!attn_sinusoid_plan_(&e, j, params, &plain, &workers, 0)) return 0;
  const int64_t items = attn_sinusoid_items_(j);
  if (items == 0) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  const int64_t bytes = attn_sinusoid_bytes_(j, attn_pieces_(workers, items));
  return bytes == INT64_MAX ? 0 : (size_t)bytes;
}

ATTN_FUNC_ void attn_sinusoid_job_of_(attn_sinusoid_job_ *j, attn_tensor y, attn_tensor x,
                                      const attn_universal_params *signal) {
  memset(j, 0, sizeof *j);
  j->y = y, j->x = x;
  if (signal) j->step = signal->step;
}

ATTN_PUB_ attn_status attn_sinusoid(attn_tensor y, attn_tensor x,
                                    const attn_sinusoid_params *params, attn_ctx *ctx) {
  attn_sinusoid_job_ j;
  attn_sinusoid_job_of_(&j, y, x, NULL);
  return attn_sinusoid_run_(&j, params, ctx);
}

ATTN_PUB_ size_t attn_sinusoid_workspace(attn_tensor y, attn_tensor x,
                                         const attn_sinusoid_params *params, const attn_ctx *ctx) {
  attn_sinusoid_job_ j;
  attn_sinusoid_job_of_(&j, y, x, NULL);
  return attn_sinusoid_ask_(&j, params, ctx);
}

ATTN_PUB_ attn_status attn_universal_signal(attn_tensor y, attn_tensor x,
                                            const attn_universal_params *params, attn_ctx *ctx) {
  attn_sinusoid_job_ j;
  attn_sinusoid_job_of_(&j, y, x, params);
  j.signal = 1;
  return attn_sinusoid_run_(&j, params ? &params->position : NULL, ctx);
}

ATTN_PUB_ size_t attn_universal_signal_workspace(attn_tensor y, attn_tensor x,
                                                 const attn_universal_params *params,
                                                 const attn_ctx *ctx) {
  attn_sinusoid_job_ j;
  attn_sinusoid_job_of_(&j, y, x, params);
  j.signal = 1;
  return attn_sinusoid_ask_(&j, params ? &params->position : NULL, ctx);
}

typedef struct attn_learned_job_ {
  const attn_table_ *table;
  attn_tensor y, x, rows;
  attn_learned_params p;
} attn_learned_job_;

ATTN_FUNC_ int attn_learned_plan_(attn_error_ *e, attn_learned_job_ *j,
                                  const attn_learned_params *params, const attn_ctx *ctx,
                                  int *workers) {
  static const attn_words_ wt = ATTN_WORDS_("table");
  attn_span_ sy, sx, st, si;
  memset(&j->p, 0, sizeof j->p);
  if (params) j->p = *params;
  const int64_t count = attn_mul_(j->p.ids && j->p.ids_per_batch ? j->y.batch : 1, j->y.len);
  if (!attn_check_ctx_(e, ctx, &j->table, workers)) return 0;
  if (!attn_check_added_(e, &j->y, &j->x, &sy, &sx)) return 0;
  if (!attn_check_tensor_(e, &j->rows, &wt, &st)) return 0;
  if (j->rows.batch != 1 || j->rows.heads != 1 || j->rows.dim != j->y.dim)
    return attn_reject_(e, ATTN_E_SHAPE, "table must be [1, 1, rows, y.dim]");
  if (!attn_check_array_(e, j->p.ids, count, 4, "params.ids must be aligned to its elements", &si))
    return 0;
  if (attn_overlap_(sy, st) || attn_overlap_(sy, si))
    return attn_reject_(e, ATTN_E_OVERLAP, "y must not share memory with table or params.ids");
  if (!j->p.ids && j->y.len > 0 && (j->p.start < 0 || j->p.start > j->rows.len - j->y.len))
    return attn_reject_(e, ATTN_E_RANGE, "params.start .. start + y.len - 1 must be rows of table");
  for (int64_t i = 0; j->p.ids && i < count; i++)
    if (j->p.ids[i] < 0 || j->p.ids[i] >= j->rows.len)
      return attn_reject_(e, ATTN_E_RANGE, "params.ids must be rows of table");
  return 1;
}

ATTN_FUNC_ void attn_learned_item_(void *job, int worker, int64_t index) {
  const attn_learned_job_ *j = (const attn_learned_job_ *)job;
  const int64_t runs = attn_row_runs_(j->y.len), b = index / runs;
  const int64_t first = index % runs * ATTN_ROPE_RUN_;
  const int64_t end = j->y.len - first < ATTN_ROPE_RUN_ ? j->y.len : first + ATTN_ROPE_RUN_;
  (void)worker;
  for (int64_t h = 0; h < j->y.heads; h++)
    for (int64_t i = first; i < end; i++) {
      int64_t id = j->p.start + i;
      if (j->p.ids) id = j->p.ids[(j->p.ids_per_batch ? b * j->y.len : 0) + i];
      j->table->blend(attn_at_(&j->y, b, h, i), j->x.data ? attn_at_(&j->x, b, h, i) : NULL,
                      attn_at_(&j->rows, 0, 0, id), j->y.dtype, j->x.dtype, j->rows.dtype, j->y.dim,
                      1.0f, 1.0f);
    }
}

ATTN_PUB_ attn_status attn_learned_position(attn_tensor y, attn_tensor x, attn_tensor table,
                                            const attn_learned_params *params, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_learned_job_ j;
  int workers;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x, j.rows = table;
  if (attn_learned_plan_(&e, &j, params, ctx, &workers)) {
    const int64_t items = j.y.heads == 0 ? 0 : attn_mul_(j.y.batch, attn_row_runs_(j.y.len));
    workers = attn_pieces_(workers, items);
    attn_for_(ctx, workers, items, attn_learned_item_, &j);
    attn_report_(ctx, j.table, workers, items ? "row sum" : "no-op",
                 items ? "the only path" : "no rows");
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_ size_t attn_learned_position_workspace(attn_tensor y, attn_tensor x, attn_tensor table,
                                                 const attn_learned_params *params,
                                                 const attn_ctx *ctx) {
  (void)y, (void)x, (void)table, (void)params, (void)ctx;
  return 0;
}
/* <<< attn/mechanisms/position_tables.h */
/* >>> attn/mechanisms/prior.h */
/* mechanisms/prior.h owns the predicted window of the Gaussian bias (attn_gaussian_window). */

typedef struct attn_gaussian_job_ {
  const attn_table_ *table;
  attn_tensor q, k;
  attn_gaussian_params p; /* hidden resolved */
  float *center, *precision;
  double width, sigma_min;
  int64_t tiles;       /* per (batch, head) */
  double *layer_sigma; /* [B, H], LAYER */
  char *workspace;     /* of the workers, each of this many bytes: */
  int64_t bytes;
} attn_gaussian_job_;

/* One worker's part. */
typedef struct attn_gaussian_scratch_ {
  float *qt;        /* [dk][tile] packed rows */
  float *hidden;    /* [hidden][tile] */
  double *total;    /* [dk] sum of keys */
  float *sum, *key; /* [dk] sum of a block of keys; their mean */
} attn_gaussian_scratch_;

/* The parameters the mode needs, in the order of attn_gaussian_params. */
ATTN_FUNC_ int attn_gaussian_weights_(attn_error_ *e, const attn_gaussian_job_ *j,
                                      attn_span_ span[4]) {
  const attn_gaussian_params *p = &j->p;
  const int64_t row = attn_mul_(j->q.heads, p->hidden), matrix = attn_mul_(row, j->q.dim);
  const int window = p->mode != ATTN_GAUSSIAN_FIXED, layer = p->mode == ATTN_GAUSSIAN_LAYER;
  if (!p->w_p) return attn_reject_(e, ATTN_E_NULL, "params.w_p must not be null");
  if (!p->u_p) return attn_reject_(e, ATTN_E_NULL, "params.u_p must not be null");
  if (window && !p->u_d)
    return attn_reject_(e, ATTN_E_NULL, "params.u_d must not be null in this mode");
  if (layer && !p->w_d)
    return attn_reject_(e, ATTN_E_NULL, "params.w_d must not be null in this mode");
  return attn_check_array_(e, p->w_p, matrix, 4, "params.w_p must be aligned to its elements",
                           &span[0]) &&
         attn_check_array_(e, p->u_p, row, 4, "params.u_p must be aligned to its elements",
                           &span[1]) &&
         attn_check_array_(e, window ? p->u_d : NULL, row, 4,
                           "params.u_d must be aligned to its elements", &span[2]) &&
         attn_check_array_(e, layer ? p->w_d : NULL, matrix, 4,
                           "params.w_d must be aligned to its elements", &span[3]);
}

ATTN_FUNC_ int attn_gaussian_plan_(attn_error_ *e, attn_gaussian_job_ *j,
                                   const attn_gaussian_params *params, const attn_ctx *ctx,
                                   int *workers, int data) {
  static const attn_words_ wq = ATTN_WORDS_("q"), wk = ATTN_WORDS_("k");
  enum { CENTER, PRECISION, Q, K, LENGTHS, WEIGHTS, WORK = WEIGHTS + 4, SPANS };
  attn_span_ span[SPANS];
  attn_gaussian_params *p = &j->p;
  memset(p, 0, sizeof *p);
  memset(span, 0, sizeof span);
  if (params) *p = *params;
  if (!attn_check_ctx_(e, ctx, &j->table, workers)) return 0;
  if (!attn_check_tensor_(e, &j->q, &wq, &span[Q]) || !attn_check_tensor_(e, &j->k, &wk, &span[K]))
    return 0;
  if (j->q.heads < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
  if (j->k.batch != j->q.batch || j->k.dim != j->q.dim)
    return attn_reject_(e, ATTN_E_SHAPE, "k.batch and k.dim must equal those of q");
  if (j->k.heads < 1 || j->q.heads % j->k.heads)
    return attn_reject_(e, ATTN_E_HEADS, "k.heads must divide q.heads");
  const int64_t count = attn_mul_(attn_mul_(j->q.batch, j->q.heads), j->q.len);
  if (count > 0 && !j->center) return attn_reject_(e, ATTN_E_NULL, "center must not be null");
  if (count > 0 && !j->precision) return attn_reject_(e, ATTN_E_NULL, "precision must not be null");
  if (!attn_check_array_(e, j->center, count, 4, "center must be aligned to its elements",
                         &span[CENTER]) ||
      !attn_check_array_(e, j->precision, count, 4, "precision must be aligned to its elements",
                         &span[PRECISION]))
    return 0;
  if ((int)p->mode < 0 || p->mode > ATTN_GAUSSIAN_FIXED)
    return attn_reject_(e, ATTN_E_RANGE, "params.mode must be one of attn_gaussian_mode");
  if (p->hidden < 0) return attn_reject_(e, ATTN_E_RANGE, "params.hidden must not be negative");
  if (p->hidden == 0) p->hidden = j->q.dim;
  if (p->index_base != 0 && p->index_base != 1)
    return attn_reject_(e, ATTN_E_RANGE, "params.index_base must be 0 or 1");
  if (!attn_gaussian_weights_(e, j, span + WEIGHTS)) return 0;
  if (!(p->width >= 0.0f && p->width < INFINITY) || (p->width == 0.0f && attn_to_bits_(p->width)))
    return attn_reject_(e, ATTN_E_VALUE, "params.width must be positive and finite");
  if (!(p->sigma_min >= 0.0f && p->sigma_min < INFINITY) ||
      (p->sigma_min == 0.0f && attn_to_bits_(p->sigma_min)))
    return attn_reject_(e, ATTN_E_VALUE, "params.sigma_min must be positive and finite");
  j->width = p->width == 0.0f ? 10.0 : (double)p->width;
  j->sigma_min = p->sigma_min == 0.0f ? 1e-6 : (double)p->sigma_min;
  if (!attn_check_array_(e, p->kv_len, j->q.batch, 4,
                         "params.kv_len must be aligned to its elements", &span[LENGTHS]) ||
      !attn_check_workspace_(e, ctx, &span[WORK]))
    return 0;
  for (int x = CENTER; x <= PRECISION; x++)
    for (int y = x + 1; y < WORK; y++)
      if (attn_overlap_(span[x], span[y]))
        return attn_reject_(e, ATTN_E_OVERLAP,
                            x == CENTER ? "center must not share memory with another argument"
                                        : "precision must not share memory with another argument");
  for (int x = CENTER; x < WORK; x++)
    if (attn_overlap_(span[x], span[WORK]))
      return attn_reject_(e, ATTN_E_OVERLAP,
                          "ctx.workspace must not share memory with an argument");
  if (data &&
      !attn_check_lens_(e, p->kv_len, j->q.batch, j->k.len, "params.kv_len must lie in 0..k.len"))
    return 0;
  j->tiles = j->q.len / ATTN_TILE_ + (j->q.len % ATTN_TILE_ != 0);
  const int64_t dk = attn_piece_(j->q.dim, sizeof(float));
  j->bytes = attn_add_(attn_piece_(attn_mul_(j->q.dim, ATTN_TILE_), sizeof(float)),
                       attn_piece_(attn_mul_(p->hidden, ATTN_TILE_), sizeof(float)));
  j->bytes =
      attn_add_(j->bytes, attn_add_(attn_piece_(j->q.dim, sizeof(double)), attn_mul_(2, dk)));
  return 1;
}

ATTN_FUNC_ int64_t attn_gaussian_shared_(const attn_gaussian_job_ *j) {
  if (j->p.mode != ATTN_GAUSSIAN_LAYER) return 0;
  return attn_piece_(attn_mul_(j->q.batch, j->q.heads), sizeof(double));
}

ATTN_FUNC_ int64_t attn_gaussian_bytes_(const attn_gaussian_job_ *j, int workers) {
  return attn_workspace_bytes_(attn_add_(attn_gaussian_shared_(j), attn_mul_(j->bytes, workers)),
                               1);
}

ATTN_FUNC_ int64_t attn_gaussian_items_(const attn_gaussian_job_ *j) {
  return attn_mul_(attn_mul_(j->q.batch, j->q.heads), j->tiles);
}

ATTN_FUNC_ void attn_gaussian_cut_(const attn_gaussian_job_ *j, int worker,
                                   attn_gaussian_scratch_ *s) {
  char *at = j->workspace + worker * j->bytes;
  s->qt = (float *)(void *)at, at += attn_piece_(j->q.dim * ATTN_TILE_, sizeof(float));
  s->hidden = (float *)(void *)at, at += attn_piece_(j->p.hidden * ATTN_TILE_, sizeof(float));
  s->total = (double *)(void *)at, at += attn_piece_(j->q.dim, sizeof(double));
  s->sum = (float *)(void *)at, at += attn_piece_(j->q.dim, sizeof(float));
  s->key = (float *)(void *)at;
}

/* I: the keys of a batch entry. */
ATTN_FUNC_ int64_t attn_gaussian_keys_(const attn_gaussian_job_ *j, int64_t b) {
  return j->p.kv_len ? j->p.kv_len[b] : j->k.len;
}

/* tanh(row w) of up to a tile of rows into s->hidden. A cap of 1 is the hyperbolic tangent. */
ATTN_FUNC_ void attn_gaussian_hidden_(const attn_gaussian_job_ *j, attn_gaussian_scratch_ *s,
                                      const void *const *rows, int n, attn_dtype dtype,
                                      const float *w) {
  const attn_table_ *f = j->table;
  const int groups = (n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  const int64_t a = j->p.hidden, dk = j->q.dim;
  attn_modifiers_ mod;
  float top[ATTN_TILE_];
  for (int r = 0; r < ATTN_TILE_; r++) top[r] = 0.0f;
  memset(&mod, 0, sizeof mod);
  mod.softcap = 1.0f;
  f->pack(s->qt, rows, n, dk, (int)dtype, 1.0f, FLT_MIN); /* not 0: inf * 0 is NaN */
  f->value_block(s->hidden, s->qt, w, a, dk, a, 0, groups, NULL, 1);
  f->modify_block(s->hidden, a, 0, groups, &mod, top);
}

/* out[lane] = keys sig(u . hidden), for the lanes of n rows. */
ATTN_FUNC_ void attn_gaussian_share_(const attn_gaussian_job_ *j, const attn_gaussian_scratch_ *s,
                                     int n, const float *u, int64_t keys, double *out) {
  float lanes[ATTN_TILE_];
  j->table->value_block(lanes, s->hidden, u, 1, j->p.hidden, 1, 0,
                        (n + ATTN_GROUP_ - 1) / ATTN_GROUP_, NULL, 1);
  for (int r = 0; r < n; r++) lanes[r] = -lanes[r];
  j->table->exp(lanes, lanes, n);
  for (int r = 0; r < n; r++) out[r] = (double)keys / (1.0 + (double)lanes[r]);
}

/* A NaN stays one. */
ATTN_FUNC_ double attn_gaussian_sigma_(const attn_gaussian_job_ *j, double width) {
  return 0.5 * width <= j->sigma_min ? j->sigma_min : 0.5 * width;
}

/* LAYER: the mean of the keys of one key head, and the windows of the heads that read it. Sums are
 * f32 within a block of keys, double beyond. */
ATTN_FUNC_ void attn_gaussian_layer_(void *job, int worker, int64_t index) {
  const attn_gaussian_job_ *j = (const attn_gaussian_job_ *)job;
  const int64_t b = index / j->k.heads, hk = index % j->k.heads, dk = j->q.dim;
  const int64_t keys = attn_gaussian_keys_(j, b), group = j->q.heads / j->k.heads;
  attn_gaussian_scratch_ s;
  attn_gaussian_cut_(j, worker, &s);
  for (int64_t c = 0; c < dk; c++) s.total[c] = 0.0;
  for (int64_t t = 0; t < keys; t++) {
    const int fresh = t % ATTN_BLOCK_ == 0;
    j->table->blend(s.sum, fresh ? NULL : s.sum, attn_at_(&j->k, b, hk, t), ATTN_F32, ATTN_F32,
                    j->k.dtype, dk, 1.0f, 1.0f);
    if ((t + 1) % ATTN_BLOCK_ == 0 || t + 1 == keys)
      for (int64_t c = 0; c < dk; c++) s.total[c] += (double)s.sum[c];
  }
  for (int64_t c = 0; c < dk; c++) s.key[c] = keys ? (float)(s.total[c] / (double)keys) : 0.0f;
  for (int64_t h = hk * group; h < (hk + 1) * group; h++) {
    const void *row = s.key;
    double width;
    attn_gaussian_hidden_(j, &s, &row, 1, ATTN_F32, j->p.w_d + h * dk * j->p.hidden);
    attn_gaussian_share_(j, &s, 1, j->p.u_d + h * j->p.hidden, keys, &width);
    j->layer_sigma[b * j->q.heads + h] = attn_gaussian_sigma_(j, width);
  }
}

/* One tile of queries of one head. */
ATTN_FUNC_ void attn_gaussian_item_(void *job, int worker, int64_t index) {
  const attn_gaussian_job_ *j = (const attn_gaussian_job_ *)job;
  const int64_t bh = index / j->tiles, first = index % j->tiles * ATTN_TILE_;
  const int64_t b = bh / j->q.heads, h = bh % j->q.heads, a = j->p.hidden;
  const int64_t keys = attn_gaussian_keys_(j, b), at = bh * j->q.len + first;
  const int n = j->q.len - first < ATTN_TILE_ ? (int)(j->q.len - first) : ATTN_TILE_;
  const void *rows[ATTN_TILE_];
  double share[ATTN_TILE_];
  attn_gaussian_scratch_ s;
  attn_gaussian_cut_(j, worker, &s);
  for (int r = 0; r < ATTN_TILE_; r++) rows[r] = attn_at_(&j->q, b, h, first + (r < n ? r : 0));
  attn_gaussian_hidden_(j, &s, rows, n, j->q.dtype, j->p.w_p + h * j->q.dim * a);
  attn_gaussian_share_(j, &s, n, j->p.u_p + h * a, keys, share);
  for (int r = 0; r < n; r++) j->center[at + r] = (float)(share[r] - (double)j->p.index_base);
  if (j->p.mode == ATTN_GAUSSIAN_QUERY)
    attn_gaussian_share_(j, &s, n, j->p.u_d + h * a, keys, share);
  for (int r = 0; r < n; r++) {
    const double sigma =
        j->p.mode == ATTN_GAUSSIAN_LAYER
            ? j->layer_sigma[bh]
            : attn_gaussian_sigma_(j, j->p.mode == ATTN_GAUSSIAN_FIXED ? j->width : share[r]);
    j->precision[at + r] = (float)attn_clamp_f64_(0.5 / (sigma * sigma));
  }
}

ATTN_FUNC_ void attn_gaussian_job_of_(attn_gaussian_job_ *j, float *center, float *precision,
                                      attn_tensor q, attn_tensor k) {
  memset(j, 0, sizeof *j);
  j->center = center, j->precision = precision, j->q = q, j->k = k;
}

ATTN_PUB_ attn_status attn_gaussian_window(float *center, float *precision, attn_tensor q,
                                           attn_tensor k, const attn_gaussian_params *params,
                                           attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_gaussian_job_ j;
  attn_workspace_ w;
  int workers;
  attn_gaussian_job_of_(&j, center, precision, q, k);
  if (attn_gaussian_plan_(&e, &j, params, ctx, &workers, 1)) {
    const int64_t items = attn_gaussian_items_(&j), heads = j.q.batch * j.k.heads;
    workers = attn_pieces_(workers, items);
    if (items == 0) {
      attn_report_(ctx, j.table, 1, "no-op", "no queries");
    } else if (attn_workspace_get_(&e, &w, ctx, attn_gaussian_bytes_(&j, workers))) {
      j.layer_sigma = (double *)(void *)w.base;
      j.workspace = w.base + attn_gaussian_shared_(&j);
      if (j.p.mode == ATTN_GAUSSIAN_LAYER)
        attn_for_(ctx, attn_pieces_(workers, heads), heads, attn_gaussian_layer_, &j);
      attn_for_(ctx, workers, items, attn_gaussian_item_, &j);
      attn_workspace_drop_(&w);
      attn_report_(ctx, j.table, workers, "two-layer prediction", "the only path");
    }
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_ size_t attn_gaussian_window_workspace(float *center, float *precision, attn_tensor q,
                                                attn_tensor k, const attn_gaussian_params *params,
                                                const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_gaussian_job_ j;
  const attn_ctx plain = attn_before_workspace_(ctx);
  int workers;
  attn_gaussian_job_of_(&j, center, precision, q, k);
  if (!attn_gaussian_plan_(&e, &j, params, &plain, &workers, 0)) return 0;
  const int64_t items = attn_gaussian_items_(&j);
  if (items == 0) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  const int64_t bytes = attn_gaussian_bytes_(&j, attn_pieces_(workers, items));
  return bytes == INT64_MAX ? 0 : (size_t)bytes;
}
/* <<< attn/mechanisms/prior.h */
/* >>> attn/mechanisms/hard_gaussian.h */
/* mechanisms/hard_gaussian.h owns hard-coded Gaussian attention: weights from positions alone.
 *
 * The rows of a tile are neighbours of one head. Sixteen of them, a lane group, share the runs of
 * keys that lie near one of their centers. With ratio 1 a weight depends on j - p only: the weights
 * of a block are then one row of taps, and those of key j a piece of that row, reversed. */

#define ATTN_HARD_REACH_ 64.0 /* (8 sigma)^2 / sigma^2: exp(-32) is below f32 rounding squared */

typedef struct attn_hard_job_ {
  const attn_table_ *table;
  attn_tensor o, v;
  attn_hard_gaussian_params p;
  double ratio;
  int64_t q_off, group, tiles; /* heads per value head; tiles per (batch, head) */
  char *workspace;             /* of the workers, each of this many bytes: */
  int64_t bytes;
} attn_hard_job_;

/* One worker's part. */
typedef struct attn_hard_scratch_ {
  float *w;  /* [block][tile] weights, in the lanes of the present group */
  float *x;  /* [block + 1][group] exponents, then exponentials */
  float *ot; /* [dv][tile] */
  float *v;  /* [block][dv] converted rows */
  int64_t *pairs;
} attn_hard_scratch_;

/* The rows of one lane group. */
typedef struct attn_hard_group_ {
  const attn_hard_job_ *j;
  attn_hard_scratch_ s;
  int64_t batch, head, p0; /* position of lane 0 */
  double offset, limit;    /* of the head; the reach, squared */
  double bell, norm;       /* 1 / (2 sigma^2), 1 / (sigma sqrt(2 pi)) */
  int n, remote_rows;
  double base[ATTN_GROUP_], shift[ATTN_GROUP_]; /* key minus center is (key - base) - shift */
  int64_t hi[ATTN_GROUP_];                      /* keys from here on are forbidden */
  int64_t from[ATTN_GROUP_], to[ATTN_GROUP_];   /* holds every key with a weight */
  /* Renormalised rows whose nearest allowed key is remote count their distances from it. */
  int remote[ATTN_GROUP_];
  int64_t nearest[ATTN_GROUP_];
  const char *mask[ATTN_GROUP_];
} attn_hard_group_;

ATTN_FUNC_ int attn_hard_plan_(attn_error_ *e, attn_hard_job_ *j,
                               const attn_hard_gaussian_params *params, const attn_ctx *ctx,
                               int *workers, int data) {
  static const attn_words_ wo = ATTN_WORDS_("o"), wv = ATTN_WORDS_("v");
  static const attn_mask_words_ wm = {
      "params.mask.kind must be ATTN_MASK_NONE, ATTN_MASK_BOOL or ATTN_MASK_BITS",
      "params.mask.data must not be null",
      "params.mask.dtype is not used",
      "params.mask must have extents 1 or [batch, heads, o.len, v.len]",
      "params.mask spans more bytes than the address space holds",
      "params.mask.data alignment"};
  enum { O, V, MASK, OFFSET, SIGMA, KV_LEN, Q_LEN, WORK, SPANS };
  attn_span_ span[SPANS];
  attn_hard_gaussian_params *p = &j->p;
  attn_tensor *o = &j->o, *v = &j->v;
  memset(p, 0, sizeof *p);
  memset(span, 0, sizeof span);
  if (params) *p = *params;
  if (!attn_check_ctx_(e, ctx, &j->table, workers)) return 0;
  if (!attn_check_tensor_(e, o, &wo, &span[O]) || !attn_check_tensor_(e, v, &wv, &span[V]))
    return 0;
  if (o->heads < 1) return attn_reject_(e, ATTN_E_SHAPE, "o.heads must be at least 1");
  if (v->batch != o->batch || v->dim != o->dim)
    return attn_reject_(e, ATTN_E_SHAPE, "v.batch and v.dim must equal those of o");
  if (v->heads < 1 || o->heads % v->heads)
    return attn_reject_(e, ATTN_E_HEADS, "v.heads must divide o.heads");
  if (!attn_check_rows_(e, o, &wo)) return 0;
  if (p->ratio - p->ratio != 0.0f)
    return attn_reject_(e, ATTN_E_VALUE, "params.ratio must be finite");
  if (!(p->threshold >= 0.0f && p->threshold < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.threshold must be finite and not negative");
  if (!p->has_q_off && p->q_off)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off needs params.has_q_off = 1");
  if (p->has_q_off && attn_abs64_(p->q_off) >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off must lie within 2^40 of 0");
  if (o->len >= (int64_t)1 << 40 || v->len >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_OVERFLOW, "o.len and v.len must be below 2^40");
  const int64_t full[4] = {o->batch, o->heads, o->len, v->len};
  if (!attn_check_mask_(e, &p->mask, &wm, 1u << ATTN_MASK_BOOL | 1u << ATTN_MASK_BITS, full,
                        &span[MASK]) ||
      !attn_check_array_(e, p->offset, o->heads, 4, "params.offset must be aligned to its elements",
                         &span[OFFSET]) ||
      !attn_check_array_(e, p->sigma, o->heads, 4, "params.sigma must be aligned to its elements",
                         &span[SIGMA]) ||
      !attn_check_array_(e, p->kv_len, o->batch, 4, "params.kv_len must be aligned to its elements",
                         &span[KV_LEN]) ||
      !attn_check_array_(e, p->q_len, o->batch, 4, "params.q_len must be aligned to its elements",
                         &span[Q_LEN]) ||
      !attn_check_workspace_(e, ctx, &span[WORK]))
    return 0;
  for (int y = V; y < WORK; y++)
    if (attn_overlap_(span[O], span[y])) return attn_reject_(e, ATTN_E_OVERLAP, wo.overlap);
  for (int x = O; x < WORK; x++)
    if (attn_overlap_(span[x], span[WORK]))
      return attn_reject_(e, ATTN_E_OVERLAP,
                          "ctx.workspace must not share memory with an argument");
  for (int64_t h = 0; data && h < o->heads; h++) {
    if (p->sigma && !(p->sigma[h] > 0.0f && p->sigma[h] < INFINITY))
      return attn_reject_(e, ATTN_E_VALUE, "params.sigma must be positive and finite");
    if (p->offset && p->offset[h] - p->offset[h] != 0.0f)
      return attn_reject_(e, ATTN_E_VALUE, "params.offset must be finite");
  }
  if (data &&
      (!attn_check_lens_(e, p->kv_len, o->batch, v->len, "params.kv_len must lie in 0..v.len") ||
       !attn_check_lens_(e, p->q_len, o->batch, o->len, "params.q_len must lie in 0..o.len")))
    return 0;
  if (v->len == 0) p->mask.kind = ATTN_MASK_NONE;
  j->ratio = p->ratio == 0.0f && attn_to_bits_(p->ratio) == 0 ? 1.0 : (double)p->ratio;
  j->q_off = p->has_q_off ? p->q_off : v->len - o->len;
  j->group = o->heads / v->heads;
  j->tiles = (o->len + ATTN_TILE_ - 1) / ATTN_TILE_;
  const int64_t f = sizeof(float), dv = v->dim;
  j->bytes = attn_add_(
      attn_piece_(ATTN_BLOCK_ * ATTN_TILE_, f),
      attn_add_(attn_piece_((ATTN_BLOCK_ + 1) * ATTN_GROUP_, f), attn_piece_(1, sizeof(int64_t))));
  j->bytes = attn_add_(j->bytes, attn_add_(attn_piece_(attn_mul_(dv, ATTN_TILE_), f),
                                           attn_piece_(attn_mul_(dv, ATTN_BLOCK_), f)));
  return 1;
}

ATTN_FUNC_ int64_t attn_hard_items_(const attn_hard_job_ *j) {
  return attn_mul_(attn_mul_(j->o.batch, j->o.heads), j->tiles);
}

ATTN_FUNC_ void attn_hard_cut_(const attn_hard_job_ *j, int worker, attn_hard_scratch_ *s) {
  char *at = j->workspace + worker * j->bytes;
  const int64_t f = sizeof(float), dv = j->v.dim;
  s->w = (float *)(void *)at, at += attn_piece_(ATTN_BLOCK_ * ATTN_TILE_, f);
  s->x = (float *)(void *)at, at += attn_piece_((ATTN_BLOCK_ + 1) * ATTN_GROUP_, f);
  s->ot = (float *)(void *)at, at += attn_piece_(dv * ATTN_TILE_, f);
  s->v = (float *)(void *)at, at += attn_piece_(dv * ATTN_BLOCK_, f);
  s->pairs = (int64_t *)(void *)at;
}

/* Key minus center. */
ATTN_FUNC_ double attn_hard_distance_(const attn_hard_group_ *g, int r, int64_t key) {
  return ((double)key - g->base[r]) - g->shift[r];
}

ATTN_FUNC_ int attn_hard_masked_(const attn_hard_group_ *g, int r, int64_t key) {
  const attn_mask *mask = &g->j->p.mask;
  if (mask->k_len == 1) key = 0;
  return mask->kind == ATTN_MASK_BITS   ? !attn_mask_bit_(g->mask[r], key)
         : mask->kind == ATTN_MASK_BOOL ? !g->mask[r][key]
                                        : 0;
}

/* The allowed key nearest to the center of row r, -1 if there is none. */
ATTN_FUNC_ int64_t attn_hard_nearest_(const attn_hard_group_ *g, int r, double center) {
  const int64_t hi = g->hi[r];
  if (hi <= 0) return -1;
  const double edge = (double)(hi - 1);
  const int64_t at = (int64_t)(center < 0.0 ? 0.0 : center > edge ? edge : floor(center + 0.5));
  for (int64_t step = 0; at - step >= 0 || at + step < hi; step++) {
    const int64_t left = at - step, right = at + step;
    const int l = left >= 0 && !attn_hard_masked_(g, r, left);
    const int k = right < hi && !attn_hard_masked_(g, r, right);
    if (l && k)
      return fabs(attn_hard_distance_(g, r, left)) <= fabs(attn_hard_distance_(g, r, right))
                 ? left
                 : right;
    if (l || k) return l ? left : right;
  }
  return -1;
}

/* The keys row r can give weight to. */
ATTN_FUNC_ void attn_hard_row_(attn_hard_group_ *g, int r, int64_t keys) {
  const int64_t p = g->p0 + r;
  const double center = g->j->ratio * (double)p + g->offset;
  double reach = g->limit;
  /* with ratio 1 from j - p, so that it is the same wherever the pair lies */
  const int whole = g->j->ratio == 1.0;
  g->base[r] = whole ? (double)p : 0.0, g->shift[r] = whole ? g->offset : center;
  g->hi[r] = g->j->p.causal && p + 1 < keys ? p + 1 : keys;
  g->remote[r] = 0, g->from[r] = g->to[r] = 0;
  if (g->hi[r] <= 0) return;
  if (g->j->p.renorm) {
    const int64_t key = g->nearest[r] = attn_hard_nearest_(g, r, center);
    if (key < 0) return;
    const double d = attn_hard_distance_(g, r, key);
    g->remote[r] = d * d > g->limit / 16.0; /* 2 sigma */
    if (g->remote[r]) reach += d * d;
  }
  /* a little more than the reach: attn_hard_exponent_ has the last word */
  const double lo = floor(center - sqrt(reach)) - 1.0, hi = ceil(center + sqrt(reach)) + 2.0;
  const double most = (double)g->hi[r];
  g->from[r] = (int64_t)(lo < 0.0 ? 0.0 : lo > most ? most : lo);
  g->to[r] = (int64_t)(hi < 0.0 ? 0.0 : hi > most ? most : hi);
}

/* The exponent of a pair at distance d from the center, before masks. */
ATTN_FUNC_ float attn_hard_bell_(const attn_hard_group_ *g, double d) {
  return d * d > g->limit ? -INFINITY : (float)(-(d * d) * g->bell);
}

/* The same for a row whose nearest allowed key is remote, less the exponent of that key:
 * d^2 - d_nearest^2 without cancellation. */
ATTN_FUNC_ float attn_hard_remote_(const attn_hard_group_ *g, int r, int64_t key) {
  const double more = (double)(key - g->nearest[r]) *
                      (attn_hard_distance_(g, r, key) + attn_hard_distance_(g, r, g->nearest[r]));
  return more > g->limit ? -INFINITY : (float)(-more * g->bell);
}

/* Exponentials of n exponents; those below the threshold become 0. */
ATTN_FUNC_ void attn_hard_exp_(const attn_hard_group_ *g, int64_t n) {
  const double least = g->j->p.renorm ? 0.0 : (double)g->j->p.threshold;
  g->j->table->exp(g->s.x, g->s.x, n);
  for (int64_t i = 0; least > 0.0 && i < n; i++)
    if ((double)g->s.x[i] * g->norm < least) g->s.x[i] = 0.0f;
}

/* The weights of keys j0..j0+n, without 1 / (sigma sqrt(2 pi)), into w[key][lane]. */
ATTN_FUNC_ void attn_hard_weights_(attn_hard_group_ *g, float *w, int64_t j0, int64_t n) {
  enum { LANES = ATTN_GROUP_ };
  float *x = g->s.x;
  int64_t first, step; /* the weights of key j start at x[first + j step] */
  if (g->j->ratio == 1.0 && g->remote_rows == 0) {
    const int64_t most = j0 + n - 1 - g->p0; /* distance to position of x[0]; it falls by 1 */
    for (int64_t i = 0; i < n + LANES - 1; i++)
      x[i] = g->j->p.causal && most - i > 0 ? -INFINITY
                                            : attn_hard_bell_(g, (double)(most - i) - g->offset);
    attn_hard_exp_(g, n + LANES - 1);
    first = n - 1, step = -1;
  } else {
    for (int64_t i = 0; i < n; i++)
      for (int r = 0; r < LANES; r++) {
        float *to = x + i * LANES + r;
        *to = attn_hard_bell_(g, attn_hard_distance_(g, r, j0 + i));
        if (g->remote[r]) *to = attn_hard_remote_(g, r, j0 + i);
        if (j0 + i >= g->hi[r]) *to = -INFINITY;
      }
    attn_hard_exp_(g, n * LANES);
    first = 0, step = LANES;
  }
  for (int64_t i = 0; i < n; i++)
    memcpy(w + i * ATTN_TILE_, x + first + i * step, LANES * sizeof(float));
  for (int64_t i = 0; g->j->p.mask.kind && i < n; i++)
    for (int r = 0; r < g->n; r++)
      if (attn_hard_masked_(g, r, j0 + i)) w[i * ATTN_TILE_ + r] = 0.0f;
}

/* The next run of keys at or after `from` that some row can give weight to; 0 = none. */
ATTN_FUNC_ int attn_hard_run_(const attn_hard_group_ *g, int64_t *from, int64_t *to) {
  int64_t start = INT64_MAX, end, last;
  for (int r = 0; r < g->n; r++) {
    const int64_t a = g->from[r] > *from ? g->from[r] : *from;
    if (a < g->to[r] && a < start) start = a;
  }
  if (start == INT64_MAX) return 0;
  end = start;
  do {
    last = end;
    for (int r = 0; r < g->n; r++)
      if (g->from[r] <= end && g->to[r] > end) end = g->to[r];
  } while (end != last);
  *from = start, *to = end;
  return 1;
}

/* Takes values that are not finite out of a copy of the rows, and adds them to the lanes that read
 * them: elsewhere 0 * NaN would not be 0. */
ATTN_FUNC_ void attn_hard_patch_(attn_hard_group_ *g, float *ot, const float *w, int64_t n) {
  const int64_t dv = g->j->v.dim;
  float *row = g->s.v;
  for (int64_t i = 0; i < n; i++, row += dv)
    for (int64_t c = 0; c < dv; c++) {
      if (row[c] - row[c] == 0.0f) continue;
      for (int r = 0; r < g->n; r++)
        if (w[i * ATTN_TILE_ + r] != 0.0f) ot[c * ATTN_TILE_ + r] += row[c];
      row[c] = 0.0f;
    }
}

/* Sums the runs of lane group `lanes`; careful = some value is not finite. l holds the sums of
 * weights. */
ATTN_FUNC_ void attn_hard_sum_(attn_hard_group_ *g, int lanes, float *l, int careful) {
  const attn_hard_job_ *j = g->j;
  const attn_table_ *f = j->table;
  const int64_t dv = j->v.dim, hv = g->head / j->group;
  const float one = 1.0f;
  float *w = g->s.w + lanes * ATTN_GROUP_, *ot = g->s.ot + lanes * ATTN_GROUP_;
  for (int64_t c = 0; c < dv; c++) memset(ot + c * ATTN_TILE_, 0, ATTN_GROUP_ * sizeof(float));
  memset(l + lanes * ATTN_GROUP_, 0, ATTN_GROUP_ * sizeof(float));
  for (int64_t a = 0, end = 0; attn_hard_run_(g, &a, &end); a = end)
    for (int64_t j0 = a; j0 < end; j0 += ATTN_BLOCK_) {
      const int64_t n = end - j0 < ATTN_BLOCK_ ? end - j0 : ATTN_BLOCK_;
      const char *rows = attn_at_(&j->v, g->batch, hv, j0);
      const float *v = (const float *)(const void *)rows;
      int64_t stride = j->v.stride_len;
      attn_hard_weights_(g, w, j0, n);
      if (careful || j->v.dtype != ATTN_F32) {
        f->widen(g->s.v, rows, stride, NULL, n, dv, j->v.dtype);
        v = g->s.v, stride = dv;
      }
      if (careful) attn_hard_patch_(g, ot, w, n);
      f->value_block(g->s.ot, g->s.w, v, stride, n, dv, lanes, lanes + 1, NULL, 0);
      if (j->p.renorm) f->value_block(l, g->s.w, &one, 0, n, 1, lanes, lanes + 1, NULL, 0);
      if (!careful) *g->s.pairs += n * g->n;
    }
}

ATTN_FUNC_ void attn_hard_item_(void *job, int worker, int64_t index) {
  const attn_hard_job_ *j = (const attn_hard_job_ *)job;
  const int64_t bh = index / j->tiles, first = index % j->tiles * ATTN_TILE_;
  const int64_t size = j->o.dim * attn_size_(j->o.dtype);
  const int rows = j->o.len - first < ATTN_TILE_ ? (int)(j->o.len - first) : ATTN_TILE_;
  void *out[ATTN_TILE_];
  float l[ATTN_TILE_], scale[ATTN_TILE_];
  attn_hard_group_ g;
  memset(&g, 0, sizeof g);
  g.j = j, g.batch = bh / j->o.heads, g.head = bh % j->o.heads;
  attn_hard_cut_(j, worker, &g.s);
  const int64_t keys = j->p.kv_len ? j->p.kv_len[g.batch] : j->v.len;
  const int64_t queries = j->p.q_len ? j->p.q_len[g.batch] : j->o.len;
  const int live = (int)attn_clamp_(queries - first, 0, rows);
  const double sigma = j->p.sigma ? (double)j->p.sigma[g.head] : 1.0;
  g.offset = j->p.offset ? (double)j->p.offset[g.head] : 0.0;
  g.limit = ATTN_HARD_REACH_ * sigma * sigma;
  g.bell = 0.5 / (sigma * sigma);
  g.norm = 0.39894228040143267794 / sigma;
  for (int r = 0; r < rows; r++) out[r] = attn_at_(&j->o, g.batch, g.head, first + r);
  for (int r = 0; r < ATTN_TILE_; r++)
    scale[r] = j->p.renorm ? 1.0f : (float)attn_clamp_f64_(g.norm), l[r] = 0.0f;
  for (int lanes = 0; lanes * ATTN_GROUP_ < live; lanes++) {
    const int at = lanes * ATTN_GROUP_;
    g.p0 = first + at + j->q_off;
    g.n = live - at < ATTN_GROUP_ ? live - at : ATTN_GROUP_;
    g.remote_rows = 0;
    /* lanes without a row see no key */
    for (int r = g.n; r < ATTN_GROUP_; r++) g.hi[r] = g.remote[r] = 0;
    for (int r = 0; r < g.n; r++) {
      if (j->p.mask.kind) g.mask[r] = attn_mask_at_(&j->p.mask, g.batch, g.head, first + at + r);
      attn_hard_row_(&g, r, keys);
      g.remote_rows += g.remote[r];
    }
    attn_hard_sum_(&g, lanes, l, 0);
    if (!j->table->finite(g.s.ot + at, ATTN_TILE_, j->v.dim, g.n)) attn_hard_sum_(&g, lanes, l, 1);
  }
  if (j->p.renorm) j->table->divide(scale, l);
  j->table->unpack(out, g.s.ot, live, j->o.dim, j->o.dtype, scale);
  for (int r = live; r < rows; r++) memset(out[r], 0, (size_t)size);
}

ATTN_FUNC_ void attn_hard_job_of_(attn_hard_job_ *j, attn_tensor o, attn_tensor v) {
  memset(j, 0, sizeof *j);
  j->o = o, j->v = v;
}

ATTN_PUB_ attn_status attn_hard_gaussian(attn_tensor o, attn_tensor v,
                                         const attn_hard_gaussian_params *params, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_hard_job_ j;
  attn_hard_scratch_ s;
  attn_workspace_ w;
  int workers;
  attn_hard_job_of_(&j, o, v);
  if (attn_hard_plan_(&e, &j, params, ctx, &workers, 1)) {
    const int64_t items = attn_hard_items_(&j);
    workers = attn_pieces_(workers, items);
    if (items == 0) {
      attn_report_(ctx, j.table, 1, "no-op", "no queries");
    } else if (attn_workspace_get_(&e, &w, ctx, attn_workspace_bytes_(j.bytes, workers))) {
      j.workspace = w.base;
      for (int i = 0; i < workers; i++) {
        attn_hard_cut_(&j, i, &s);
        *s.pairs = 0;
      }
      attn_for_(ctx, workers, items, attn_hard_item_, &j);
      attn_report_(ctx, j.table, workers, "banded weights of positions",
                   "keys beyond 8 sigma have no weight");
      for (int i = 0; ctx && i < workers; i++) {
        attn_hard_cut_(&j, i, &s);
        ctx->report.pairs += *s.pairs;
      }
      attn_workspace_drop_(&w);
    }
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_ size_t attn_hard_gaussian_workspace(attn_tensor o, attn_tensor v,
                                              const attn_hard_gaussian_params *params,
                                              const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_hard_job_ j;
  const attn_ctx plain = attn_before_workspace_(ctx);
  int workers;
  attn_hard_job_of_(&j, o, v);
  if (!attn_hard_plan_(&e, &j, params, &plain, &workers, 0)) return 0;
  const int64_t items = attn_hard_items_(&j);
  if (items == 0) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  const int64_t bytes = attn_workspace_bytes_(j.bytes, attn_pieces_(workers, items));
  return bytes == INT64_MAX ? 0 : (size_t)bytes;
}

#undef ATTN_HARD_REACH_
/* <<< attn/mechanisms/hard_gaussian.h */
/* >>> attn/mechanisms/heads.h */
/* mechanisms/heads.h owns family I: the functions around the adaptive span. */

typedef struct attn_span_job_ {
  const attn_table_ *table;
  attn_tensor x;
  const float *v, *b;
  float *z;
  int64_t heads, most, tiles; /* tiles per batch entry */
  char *workspace;            /* of the workers, each of this many bytes: */
  int64_t bytes;              /* packed tokens [dm][tile], spans [block][tile] */
} attn_span_job_;

ATTN_FUNC_ int attn_span_plan_(attn_error_ *e, attn_span_job_ *j, const attn_ctx *ctx,
                               int *workers) {
  static const attn_words_ wx = ATTN_WORDS_("x");
  attn_span_ sx, sz, sv, sb, sw;
  if (!attn_check_ctx_(e, ctx, &j->table, workers)) return 0;
  if (!attn_check_tensor_(e, &j->x, &wx, &sx)) return 0;
  if (j->x.heads != 1) return attn_reject_(e, ATTN_E_SHAPE, "x.heads must be 1");
  if (j->heads < 0) return attn_reject_(e, ATTN_E_SHAPE, "heads must not be negative");
  if (j->most < 1) return attn_reject_(e, ATTN_E_RANGE, "most must be at least 1");
  const int64_t count = attn_mul_(attn_mul_(j->x.batch, j->heads), j->x.len);
  if (!j->z && count > 0) return attn_reject_(e, ATTN_E_NULL, "z must not be null");
  if (!j->v && j->heads > 0) return attn_reject_(e, ATTN_E_NULL, "v must not be null");
  if (!attn_check_array_(e, j->z, count, 4, "z must be aligned to its elements", &sz) ||
      !attn_check_array_(e, j->v, attn_mul_(j->heads, j->x.dim), 4,
                         "v must be aligned to its elements", &sv) ||
      !attn_check_array_(e, j->b, j->heads, 4, "b must be aligned to its elements", &sb))
    return 0;
  if (attn_overlap_(sz, sx) || attn_overlap_(sz, sv) || attn_overlap_(sz, sb))
    return attn_reject_(e, ATTN_E_OVERLAP,
                        "z is an output and must not share memory with another argument");
  if (!attn_check_workspace_(e, ctx, &sw)) return 0;
  if (attn_overlap_(sw, sx) || attn_overlap_(sw, sz) || attn_overlap_(sw, sv) ||
      attn_overlap_(sw, sb))
    return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with an argument");
  j->tiles = j->x.len / ATTN_TILE_ + (j->x.len % ATTN_TILE_ != 0);
  j->bytes = attn_add_(attn_piece_(attn_mul_(j->x.dim, ATTN_TILE_), sizeof(float)),
                       attn_piece_(ATTN_BLOCK_ * ATTN_TILE_, sizeof(float)));
  return 1;
}

ATTN_FUNC_ int64_t attn_span_items_(const attn_span_job_ *j) {
  return j->heads == 0 ? 0 : attn_mul_(j->x.batch, j->tiles);
}

/* most / (1 + e), rounded to a float that does not pass most */
ATTN_FUNC_ float attn_span_of_most_(int64_t most, float e) {
  const float z = (float)((double)most / (1.0 + (double)e));
  return (double)z > (double)most ? attn_from_bits_(attn_to_bits_(z) - 1) : z;
}

/* The tokens of a tile in lanes, heads as keys: a score block is H spans of 64 tokens. */
ATTN_FUNC_ void attn_span_item_(void *job, int worker, int64_t index) {
  const attn_span_job_ *j = (const attn_span_job_ *)job;
  const int64_t b = index / j->tiles, first = index % j->tiles * ATTN_TILE_, t = j->x.len;
  const int n = t - first < ATTN_TILE_ ? (int)(t - first) : ATTN_TILE_;
  const int groups = (n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  char *at = j->workspace + worker * j->bytes;
  float *qt = (float *)(void *)at, top[ATTN_TILE_];
  float *s = (float *)(void *)(at + attn_piece_(attn_mul_(j->x.dim, ATTN_TILE_), sizeof(float)));
  const void *rows[ATTN_TILE_];
  for (int r = 0; r < ATTN_TILE_; r++) top[r] = 0.0f;
  for (int r = 0; r < n; r++) rows[r] = attn_at_(&j->x, b, 0, first + r);
  /* not 0: inf * 0 is NaN */
  j->table->pack(qt, rows, n, j->x.dim, (int)j->x.dtype, 1.0f, FLT_MIN);
  for (int64_t h0 = 0; h0 < j->heads; h0 += ATTN_BLOCK_) {
    const int64_t heads = j->heads - h0 < ATTN_BLOCK_ ? j->heads - h0 : ATTN_BLOCK_;
    j->table->score_block(s, qt, j->v + h0 * j->x.dim, j->x.dim, heads, j->x.dim, 0, groups, top);
    for (int64_t h = 0; h < heads; h++) {
      float *row = s + h * ATTN_TILE_;
      const float bias = j->b ? j->b[h0 + h] : 0.0f;
      for (int r = 0; r < n; r++) row[r] = -(row[r] + bias);
      j->table->exp(row, row, n);
      for (int r = 0; r < n; r++) row[r] = attn_span_of_most_(j->most, row[r]);
      memcpy(j->z + (b * j->heads + h0 + h) * t + first, row, (size_t)n * sizeof(float));
    }
  }
}

ATTN_FUNC_ void attn_span_job_of_(attn_span_job_ *j, float *z, attn_tensor x, const float *v,
                                  const float *b, int64_t heads, int64_t most) {
  memset(j, 0, sizeof *j);
  j->z = z, j->x = x, j->v = v, j->b = b, j->heads = heads, j->most = most;
}

ATTN_PUB_ attn_status attn_span_predict(float *z, attn_tensor x, const float *v, const float *b,
                                        int64_t heads, int64_t most, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_span_job_ j;
  attn_workspace_ w;
  int workers;
  attn_span_job_of_(&j, z, x, v, b, heads, most);
  if (attn_span_plan_(&e, &j, ctx, &workers)) {
    const int64_t items = attn_span_items_(&j);
    workers = attn_pieces_(workers, items);
    if (items == 0) {
      attn_report_(ctx, j.table, 1, "no-op", "no tokens");
    } else if (attn_workspace_get_(&e, &w, ctx, attn_workspace_bytes_(j.bytes, workers))) {
      j.workspace = w.base;
      attn_for_(ctx, workers, items, attn_span_item_, &j);
      attn_workspace_drop_(&w);
      attn_report_(ctx, j.table, workers, "score block of heads", "the only path");
    }
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_ size_t attn_span_predict_workspace(float *z, attn_tensor x, const float *v,
                                             const float *b, int64_t heads, int64_t most,
                                             const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_span_job_ j;
  const attn_ctx plain = attn_before_workspace_(ctx);
  int workers;
  attn_span_job_of_(&j, z, x, v, b, heads, most);
  if (!attn_span_plan_(&e, &j, &plain, &workers)) return 0;
  const int64_t items = attn_span_items_(&j);
  if (items == 0) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  const int64_t bytes = attn_workspace_bytes_(j.bytes, attn_pieces_(workers, items));
  return bytes == INT64_MAX ? 0 : (size_t)bytes;
}

ATTN_PUB_ double attn_span_penalty(const float *z, int64_t n, double lambda) {
  double sum = 0.0;
  if (!z || n < 1) return 0.0;
  for (int64_t i = 0; i < n; i++) sum += (double)z[i];
  return lambda * (sum / (double)n);
}

ATTN_PUB_ int64_t attn_span_reach(float z, float ramp, int64_t shift, int64_t most) {
  const double huge = 2305843009213693952.0; /* 2^61 */
  if (ramp == 0.0f) ramp = 32.0f;
  if (!(z >= 0.0f && z < INFINITY && ramp > 0.0f && ramp < INFINITY) || most < 0) return -1;
  /* the fractions by themselves: z + ramp may lose a small ramp, and with it a key */
  const double whole = floor((double)z) + floor((double)ramp);
  const double a = (double)z - floor((double)z), b = (double)ramp - floor((double)ramp);
  int64_t t = whole < huge ? (int64_t)whole : (int64_t)huge;
  t += (a > 0.0 || b > 0.0) + (a + b > 1.0);
  shift = shift < -(INT64_MAX / 4) ? -(INT64_MAX / 4)
          : shift > INT64_MAX / 4  ? INT64_MAX / 4
                                   : shift;
  t -= 1 + shift;
  if (most > 0 && t > most) t = most;
  return t < 0 ? -1 : t;
}
/* <<< attn/mechanisms/heads.h */
/* >>> attn/engine/stage.h */
/* engine/stage.h owns calls that are made of other calls. Such a call is a function that names its
 * steps one after another and is walked twice: once to measure, when tensors between the steps are
 * stand-ins without memory, and once to run, in one block that holds all of them. So everything is
 * judged and allocated before the first write, by the same text that does the work. */

typedef struct attn_stage_ {
  attn_error_ *e;
  const attn_table_ *table;
  int workers;
  int run;       /* 0: measuring */
  attn_ctx ctx;  /* of the inner calls */
  char *block;   /* null while measuring, and when nothing is needed */
  int64_t used;  /* bytes of tensors between the steps, so far */
  int64_t tail;  /* where the workspace of single steps begins: all of `used` */
  int64_t spare; /* bytes of the step that wants most */
  int64_t pairs;
} attn_stage_;

/* Names the steps; 0 = one was rejected. */
typedef int (*attn_steps_fn_)(attn_stage_ *s, void *job);

ATTN_FUNC_ void *attn_stage_take_(attn_stage_ *s, int64_t n, int64_t size) {
  char *p = s->block ? s->block + s->used : (char *)(uintptr_t)ATTN_ALIGN_;
  s->used = attn_add_(s->used, attn_piece_(n, size));
  return p;
}

/* A dense f32 tensor for what passes between two steps. */
ATTN_FUNC_ attn_tensor attn_stage_tensor_(attn_stage_ *s, int64_t batch, int64_t heads, int64_t len,
                                          int64_t dim) {
  int64_t n = attn_mul_(attn_mul_(batch, heads), attn_mul_(len, dim));
  return attn_bhtd(attn_stage_take_(s, n, sizeof(float)), ATTN_F32, batch, heads, len, dim);
}

/* The output itself where partial results may live in it, else a tensor of its shape. */
ATTN_FUNC_ attn_tensor attn_stage_part_(attn_stage_ *s, const attn_tensor *o) {
  if (o->data && o->dtype == ATTN_F32) return *o;
  return attn_stage_tensor_(s, o->batch, o->heads, o->len, o->dim);
}

/* Room for one step; it lasts until the next. */
ATTN_FUNC_ char *attn_stage_spare_(attn_stage_ *s, int64_t bytes) {
  if (bytes > s->spare) s->spare = bytes;
  return s->block ? s->block + s->tail : NULL;
}

ATTN_FUNC_ int attn_stage_done_(attn_stage_ *s, attn_status status) {
  s->pairs += s->ctx.report.pairs;
  return status == ATTN_OK ? 1 : attn_reject_(s->e, status, s->ctx.reason);
}

ATTN_FUNC_ int attn_stage_sdpa_(attn_stage_ *s, attn_tensor o, attn_tensor q, attn_tensor k,
                                attn_tensor v, const attn_sdpa_params *params) {
  if (!s->run) {
    int64_t bytes = attn_sdpa_need_(s->e, o, q, k, v, params, NULL, &s->ctx, -1);
    if (bytes >= 0) attn_stage_spare_(s, bytes);
    return bytes >= 0;
  }
  s->ctx.workspace = attn_stage_spare_(s, 0), s->ctx.workspace_size = (size_t)s->spare;
  return attn_stage_done_(s, attn_sdpa(o, q, k, v, params, &s->ctx));
}

/* Encodings of positions, by themselves. */
ATTN_FUNC_ int attn_stage_sinusoid_(attn_stage_ *s, attn_tensor y,
                                    const attn_sinusoid_params *params) {
  attn_tensor none;
  memset(&none, 0, sizeof none);
  if (!s->run) {
    attn_stage_spare_(s, (int64_t)attn_sinusoid_workspace(y, none, params, &s->ctx));
    return 1;
  }
  s->ctx.workspace = attn_stage_spare_(s, 0), s->ctx.workspace_size = (size_t)s->spare;
  attn_status status = attn_sinusoid(y, none, params, &s->ctx);
  s->ctx.report.pairs = 0;
  return attn_stage_done_(s, status);
}

/* Rows i0 .. i0 + len - 1, and heads h0 .. h0 + heads - 1, and one batch entry. */
ATTN_FUNC_ attn_tensor attn_stage_shift_(attn_tensor t, int64_t elements) {
  if (t.data) t.data = (char *)t.data + elements * attn_size_(t.dtype);
  return t;
}
ATTN_FUNC_ attn_tensor attn_stage_rows_(attn_tensor t, int64_t i0, int64_t len) {
  if (len > 0 && i0 > 0) t = attn_stage_shift_(t, i0 * t.stride_len);
  t.len = len;
  return t;
}
ATTN_FUNC_ attn_tensor attn_stage_heads_(attn_tensor t, int64_t h0, int64_t heads) {
  if (h0 > 0) t = attn_stage_shift_(t, h0 * t.stride_head);
  t.heads = heads;
  return t;
}
ATTN_FUNC_ attn_tensor attn_stage_entry_(attn_tensor t, int64_t b) {
  if (b > 0 && t.batch > 1) t = attn_stage_shift_(t, b * t.stride_batch);
  t.batch = 1;
  return t;
}

/* Joins a second part (v2, lse2) to (part, lse) into o, which is part or another tensor. v2 may
 * have fewer heads than o and one row for all queries: a key seen by all rows is a part whose
 * output is its value and whose LSE is its score. */
ATTN_FUNC_ int attn_stage_merge_(attn_stage_ *s, attn_tensor o, attn_tensor part, attn_tensor lse,
                                 attn_tensor v2, attn_tensor lse2) {
  const int64_t group = o.heads / v2.heads;
  if (!s->run) return 1;
  if (v2.len == 1) v2.stride_len = 0;
  v2.len = o.len;
  for (int64_t h = 0; h < v2.heads; h++) {
    attn_tensor x[4] = {
        attn_stage_heads_(o, h * group, group), attn_stage_heads_(part, h * group, group),
        attn_stage_heads_(lse, h * group, group), attn_stage_heads_(lse2, h * group, group)};
    attn_tensor v = attn_stage_heads_(v2, h, 1);
    v.heads = group, v.stride_head = 0;
    if (v2.heads == o.heads) v = v2, x[0] = o, x[1] = part, x[2] = lse, x[3] = lse2;
    attn_status status = attn_merge(x[0], x[2], x[1], x[2], v, x[3], &s->ctx);
    s->ctx.report.pairs = 0;
    if (!attn_stage_done_(s, status)) return 0;
    if (v2.heads == o.heads) break;
  }
  return 1;
}

/* count items, each run with `each` bytes of its worker; *memory becomes that of worker 0. */
ATTN_FUNC_ int attn_stage_for_(attn_stage_ *s, int64_t count, attn_item_fn_ item, void *job,
                               int64_t each, char **memory) {
  const int pieces = count > 0 ? attn_pieces_(s->workers, count) : 0;
  char *spare = attn_stage_spare_(s, attn_mul_(each, pieces));
  if (memory) *memory = spare;
  if (s->run && count > 0) attn_for_(&s->ctx, pieces, count, item, job);
  return 1;
}

/* A stage for the context of a call that passed attn_check_ctx_; query: for attn_<name>_workspace,
 * which may be asked before parallel_for is set. */
ATTN_FUNC_ attn_stage_ attn_stage_open_(attn_error_ *e, const attn_table_ *table, int workers,
                                        const attn_ctx *ctx, int query) {
  attn_stage_ s;
  memset(&s, 0, sizeof s);
  s.e = e, s.table = table, s.workers = workers;
  s.ctx = attn_before_workspace_(ctx);
  s.ctx.validate = 0; /* the outer call has judged its arguments */
  s.ctx.isa = table->isa;
  if (query && ctx && ctx->workers > 1) s.workers = ctx->workers;
  return s;
}

/* Bytes of the whole call; -1 = rejected, INT64_MAX = not addressable. */
ATTN_FUNC_ int64_t attn_stage_measure_(attn_stage_ *s, attn_steps_fn_ steps, void *job) {
  s->run = 0, s->used = s->spare = 0;
  if (!steps(s, job)) return -1;
  s->spare = attn_piece_(s->spare, 1);
  const int64_t bytes = attn_add_(s->used, s->spare);
  return bytes ? attn_workspace_bytes_(bytes, 1) : 0;
}

/* Measures, takes the memory and runs; with bytes only measures. */
ATTN_FUNC_ void attn_stage_call_(attn_stage_ *s, attn_ctx *ctx, attn_steps_fn_ steps, void *job,
                                 const char *path, size_t *bytes) {
  attn_workspace_ w = {NULL, NULL};
  const int64_t need = attn_stage_measure_(s, steps, job);
  if (need < 0) return;
  if (bytes) {
    *bytes = need == INT64_MAX ? 0 : (size_t)need;
    return;
  }
  if (need > 0 && !attn_workspace_get_(s->e, &w, ctx, need)) return;
  s->block = w.base, s->tail = s->used, s->used = 0, s->run = 1;
  if (steps(s, job)) {
    attn_report_(ctx, s->table, s->workers, path, "the only path");
    if (ctx) ctx->report.pairs = s->pairs;
  }
  attn_workspace_drop_(&w);
}

/* Builds the schedule of a pattern into own, for *use, unless the caller's is there. */
ATTN_FUNC_ int attn_stage_schedule_(attn_stage_ *s, const attn_schedule **use, attn_schedule *own,
                                    const attn_pattern *pattern, int64_t heads, int64_t len) {
  if (*use) return 1;
  attn_status status = attn_schedule_build(own, pattern, heads, len, len, NULL, &s->ctx);
  if (status != ATTN_OK) return attn_reject_(s->e, status, s->ctx.reason);
  *use = own;
  return 1;
}

/* ---- checks ---------------------------------------------------------------------------------*/

/* What an extent of an operand may be, beside a number. */
enum { ATTN_ANY_ = -1, ATTN_DIVIDES_ = -2, ATTN_ONE_OR_ALL_ = -3 };
enum { ATTN_OUT_ = 1, ATTN_OPTIONAL_ = 2, ATTN_IS_F32_ = 4 };

/* One tensor argument: DIVIDES and ONE_OR_ALL are said of .heads, against the query heads. */
typedef struct attn_operand_ {
  attn_tensor *t;
  const attn_words_ *w;
  int role;
  int64_t batch, heads, len, dim;
  const char *rule; /* the sentence about its shape, and type if that is fixed */
  attn_span_ span;
} attn_operand_;

ATTN_FUNC_ int attn_check_operand_(attn_error_ *e, attn_operand_ *p, int64_t heads) {
  attn_tensor *t = p->t;
  p->span.lo = p->span.hi = 0;
  if ((p->role & ATTN_OPTIONAL_) && !t->data) return 1;
  if (!attn_check_tensor_(e, t, p->w, &p->span)) return 0;
  if ((p->role & ATTN_IS_F32_) && t->dtype != ATTN_F32)
    return attn_reject_(e, ATTN_E_DTYPE, p->rule);
  if ((p->batch != ATTN_ANY_ && t->batch != p->batch) ||
      (p->len != ATTN_ANY_ && t->len != p->len) || (p->dim != ATTN_ANY_ && t->dim != p->dim))
    return attn_reject_(e, ATTN_E_SHAPE, p->rule);
  if (p->heads == ATTN_DIVIDES_      ? t->heads < 1 || heads % t->heads != 0
      : p->heads == ATTN_ONE_OR_ALL_ ? t->heads != 1 && t->heads != heads
                                     : p->heads != ATTN_ANY_ && t->heads != p->heads)
    return attn_reject_(e, p->heads == ATTN_DIVIDES_ ? ATTN_E_HEADS : ATTN_E_SHAPE, p->rule);
  return !(p->role & ATTN_OUT_) || attn_check_rows_(e, t, p->w);
}

/* No output shares memory with another argument or the workspace, nor does that with an input.
 * more: spans of plain arrays and masks. */
ATTN_FUNC_ int attn_check_apart_(attn_error_ *e, const attn_ctx *ctx, const attn_operand_ *p, int n,
                                 const attn_span_ *more, int m) {
  attn_span_ work;
  if (!attn_check_workspace_(e, ctx, &work)) return 0;
  for (int i = 0; i < n; i++) {
    if (!(p[i].role & ATTN_OUT_)) continue;
    for (int k = 0; k < n + m; k++)
      if (k != i && attn_overlap_(p[i].span, k < n ? p[k].span : more[k - n]))
        return attn_reject_(e, ATTN_E_OVERLAP, p[i].w->overlap);
  }
  for (int k = 0; k < n + m; k++)
    if (attn_overlap_(work, k < n ? p[k].span : more[k - n]))
      return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with a tensor");
  return 1;
}

ATTN_FUNC_ int attn_check_scale_(attn_error_ *e, float scale) {
  return scale - scale == 0.0f ? 1 : attn_reject_(e, ATTN_E_VALUE, "params.scale must be finite");
}

/* ---- small steps ----------------------------------------------------------------------------*/

/* lse2[i] = s q_i . k_i, or k_0 for every i: a part of one key of its own. */
typedef struct attn_own_ {
  const attn_table_ *table;
  attn_tensor lse, q, k;
  double scale;
  char *memory;
  int64_t each;
} attn_own_;

ATTN_FUNC_ void attn_own_item_(void *job, int worker, int64_t index) {
  const attn_own_ *a = (const attn_own_ *)job;
  const int64_t b = index / a->q.heads, h = index % a->q.heads, dk = a->q.dim;
  const int64_t hk = h / (a->q.heads / a->k.heads);
  float *q = (float *)(void *)(a->memory + worker * a->each), *k = q + dk;
  for (int64_t i = 0; i < a->q.len; i++) {
    double sum = 0.0; /* products of floats are exact in double */
    a->table->widen(q, attn_at_(&a->q, b, h, i), 0, NULL, 1, dk, a->q.dtype);
    if (i == 0 || a->k.len > 1)
      a->table->widen(k, attn_at_(&a->k, b, hk, i), 0, NULL, 1, dk, a->k.dtype);
    for (int64_t c = 0; c < dk; c++) sum += (double)q[c] * (double)k[c];
    const float x = (float)(sum * a->scale);
    memcpy(attn_at_(&a->lse, b, h, i), &x, sizeof x);
  }
}

ATTN_FUNC_ int attn_stage_own_(attn_stage_ *s, attn_tensor lse, attn_tensor q, attn_tensor k,
                               float scale) {
  attn_own_ a = {s->table, lse, q, k, (double)scale, NULL, attn_piece_(attn_mul_(2, q.dim), 4)};
  if (scale == 0.0f) a.scale = attn_to_bits_(scale) ? 0.0 : 1.0 / sqrt((double)q.dim);
  return attn_stage_for_(s, attn_mul_(q.batch, q.heads), attn_own_item_, &a, a.each, &a.memory);
}
/* <<< attn/engine/stage.h */
/* >>> attn/engine/project.h */
/* engine/project.h owns small dense products of rows, Y = X W: the projections inside layers. The
 * value primitive computes them, with rows of X in the place of weights and of W of values. */

typedef struct attn_project_ {
  const attn_table_ *table;
  attn_tensor y, x, w;
  int64_t tiles;
  char *memory;
  int64_t each, at_sum, at_rows;
} attn_project_;

/* 64 rows of one head. */
ATTN_FUNC_ void attn_project_item_(void *job, int worker, int64_t index) {
  const attn_project_ *a = (const attn_project_ *)job;
  const attn_table_ *f = a->table;
  const int64_t unit = index / a->tiles, b = unit / a->y.heads, h = unit % a->y.heads;
  const int64_t first = index % a->tiles * ATTN_TILE_, left = a->y.len - first;
  const int n = left < ATTN_TILE_ ? (int)left : ATTN_TILE_;
  const int groups = (n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  char *memory = a->memory + worker * a->each;
  float *rows = (float *)(void *)memory, *sum = (float *)(void *)(memory + a->at_sum);
  float *wide = (float *)(void *)(memory + a->at_rows);
  const void *in[ATTN_TILE_];
  void *out[ATTN_TILE_];
  for (int r = 0; r < n; r++) {
    in[r] = attn_at_(&a->x, b, a->x.heads > 1 ? h : 0, first + r);
    out[r] = attn_at_(&a->y, b, h, first + r);
  }
  f->pack(rows, in, n, a->x.dim, (int)a->x.dtype, 1.0f, 0.0f);
  for (int64_t c = 0; c < a->x.dim; c += ATTN_BLOCK_) {
    const int64_t m = a->x.dim - c < ATTN_BLOCK_ ? a->x.dim - c : ATTN_BLOCK_;
    int64_t stride;
    const char *at = attn_at_(&a->w, 0, a->w.heads > 1 ? h : 0, c);
    const float *w = (const float *)(const void *)at;
    if (a->w.dtype == ATTN_F32) {
      stride = a->w.stride_len;
    } else {
      f->widen(wide, at, a->w.stride_len, NULL, m, a->w.dim, a->w.dtype);
      w = wide, stride = a->w.dim;
    }
    f->value_block(sum, rows + c * ATTN_TILE_, w, stride, m, a->w.dim, 0, groups, NULL, c == 0);
  }
  f->unpack(out, sum, n, a->w.dim, a->y.dtype, NULL);
}

/* y [B,H,T,dout] = x [B, 1 or H, T, din] times w [1, 1 or H, din, dout]; a sum over din is one
 * chain of FMAs in order. y is of any type. */
ATTN_FUNC_ int attn_stage_project_(attn_stage_ *s, attn_tensor y, attn_tensor x, attn_tensor w) {
  attn_project_ a = {s->table, y, x, w, 0, NULL, 0, 0, 0};
  a.tiles = y.len / ATTN_TILE_ + (y.len % ATTN_TILE_ != 0);
  a.at_sum = attn_piece_(attn_mul_(x.dim, ATTN_TILE_), sizeof(float));
  a.at_rows = attn_add_(a.at_sum, attn_piece_(attn_mul_(w.dim, ATTN_TILE_), sizeof(float)));
  a.each = a.at_rows;
  if (w.dtype != ATTN_F32)
    a.each = attn_add_(a.each, attn_piece_(attn_mul_(w.dim, ATTN_BLOCK_), sizeof(float)));
  return attn_stage_for_(s, attn_mul_(attn_mul_(y.batch, y.heads), a.tiles), attn_project_item_, &a,
                         a.each, &a.memory);
}
/* <<< attn/engine/project.h */
/* >>> attn/mechanisms/compound.h */
/* mechanisms/compound.h owns the Star-Transformer, Longformer and the BP-Transformer's tree. Each is
 * a list of checks and a list of steps (engine/stage.h). */

/* ---- Star-Transformer -----------------------------------------------------------------------*/

typedef struct attn_star_job_ {
  attn_tensor o, q, k, v, k_relay, v_relay;
  attn_star_params p;
  int relay; /* the second half */
  int64_t width;
} attn_star_job_;

ATTN_FUNC_ int attn_star_check_(attn_error_ *e, attn_star_job_ *j, const attn_star_params *params,
                                const attn_ctx *ctx, const attn_table_ **table, int *workers) {
  static const attn_words_ w[] = {ATTN_WORDS_("q"),
                                  ATTN_WORDS_("k"),
                                  ATTN_WORDS_("v"),
                                  ATTN_WORDS_("k_relay"),
                                  ATTN_WORDS_("v_relay"),
                                  ATTN_WORDS_("params.k_own"),
                                  ATTN_WORDS_("params.v_own"),
                                  ATTN_WORDS_("o"),
                                  ATTN_WORDS_("params.lse"),
                                  ATTN_WORDS_("q_relay")};
  enum { Q, K, V, KR, VR, KO, VO, O, LSE, COUNT };
  attn_star_params *p = &j->p;
  const attn_tensor *q = &j->q, *k = &j->k, *v = &j->v;
  if (params) *p = *params;
  if (j->relay) p->k_own.data = p->v_own.data = NULL;
  const int64_t b = q->batch, h = q->heads, t = q->len, dk = q->dim, dv = v->dim;
  const int64_t in = ATTN_DIVIDES_, any = ATTN_ANY_;
  attn_operand_ op[COUNT] = {
      {&j->q,
       j->relay ? &w[9] : &w[Q],
       0,
       any,
       any,
       j->relay ? 1 : any,
       any,
       "q_relay must have one row",
       {0, 0}},
      {&j->k,
       &w[K],
       0,
       b,
       in,
       j->relay ? any : t,
       dk,
       "k must be [q.batch, a divisor of q.heads, T, q.dim]",
       {0, 0}},
      {&j->v,
       &w[V],
       0,
       b,
       in,
       k->len,
       any,
       "v must be [q.batch, a divisor of q.heads, k.len, dv]",
       {0, 0}},
      {&j->k_relay,
       &w[KR],
       0,
       b,
       in,
       1,
       dk,
       "k_relay must be [q.batch, a divisor of q.heads, 1, q.dim]",
       {0, 0}},
      {&j->v_relay,
       &w[VR],
       0,
       b,
       in,
       1,
       dv,
       "v_relay must be [q.batch, a divisor of q.heads, 1, v.dim]",
       {0, 0}},
      {&p->k_own,
       &w[KO],
       ATTN_OPTIONAL_,
       b,
       in,
       t,
       dk,
       "params.k_own must be [q.batch, a divisor of q.heads, q.len, q.dim]",
       {0, 0}},
      {&p->v_own,
       &w[VO],
       ATTN_OPTIONAL_,
       b,
       in,
       t,
       dv,
       "params.v_own must be [q.batch, a divisor of q.heads, q.len, v.dim]",
       {0, 0}},
      {&j->o, &w[O], ATTN_OUT_, b, h, t, dv, "o must be [q.batch, q.heads, q.len, v.dim]", {0, 0}},
      {&p->lse,
       &w[LSE],
       ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_,
       b,
       h,
       t,
       1,
       "params.lse must be f32 [q.batch, q.heads, q.len, 1]",
       {0, 0}}};
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!j->relay) {
    if (t < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.len must be at least 1");
    if (p->width < ATTN_STAR_SELF)
      return attn_reject_(e, ATTN_E_RANGE, "params.width must be 0, positive or ATTN_STAR_SELF");
    if (!p->k_own.data != !p->v_own.data)
      return attn_reject_(e, ATTN_E_NULL, "params.k_own and params.v_own go together");
  }
  for (int i = 0; i < COUNT; i++) {
    if (i == K && h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  }
  j->width = p->width == 0 ? 1 : p->width == ATTN_STAR_SELF ? 0 : p->width;
  if (j->width > t) j->width = t;
  return attn_check_scale_(e, p->scale) && attn_check_apart_(e, ctx, op, COUNT, NULL, 0);
}

/* The band, what wraps around the ring at its two ends, the relay, the private keys. */
ATTN_FUNC_ int attn_star_steps_(attn_stage_ *s, void *job) {
  const attn_star_job_ *j = (const attn_star_job_ *)job;
  const int64_t b = j->q.batch, h = j->q.heads, t = j->q.len, w = j->width;
  const int ring = !j->relay && !j->p.no_ring && w > 0,
            whole = j->relay || (ring && w >= t - w - 1);
  const attn_tensor part = attn_stage_part_(s, &j->o);
  const attn_tensor one = attn_stage_tensor_(s, b, h, t, 1);
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.scale = j->p.scale;
  p.lse = j->p.lse.data ? j->p.lse : attn_stage_tensor_(s, b, h, t, 1);
  const attn_tensor lse = p.lse;
  if (!whole) p.window_left = p.window_right = w > 0 ? w : ATTN_WINDOW_NONE;
  if (!attn_stage_sdpa_(s, part, j->q, j->k, j->v, &p)) return 0;
  for (int end = 0; end < 2 && ring && !whole; end++) {
    /* row r of the first w sees keys r.. of the last w; of the last w, keys ..r of the first */
    const int64_t row = end ? t - w : 0, key = end ? 0 : t - w;
    const attn_tensor to = attn_stage_rows_(part, row, w), sum = attn_stage_rows_(lse, row, w);
    const attn_tensor corner = attn_stage_tensor_(s, b, h, w, j->v.dim);
    memset(&p, 0, sizeof p);
    p.scale = j->p.scale;
    p.lse = attn_stage_rows_(one, 0, w);
    p.has_q_off = 1;
    p.causal = end;
    p.window_left = end ? 0 : ATTN_WINDOW_NONE;
    if (!attn_stage_sdpa_(s, corner, attn_stage_rows_(j->q, row, w), attn_stage_rows_(j->k, key, w),
                          attn_stage_rows_(j->v, key, w), &p) ||
        !attn_stage_merge_(s, to, to, sum, corner, p.lse))
      return 0;
  }
  const int own = j->p.k_own.data != NULL;
  return attn_stage_own_(s, one, j->q, j->k_relay, j->p.scale) &&
         attn_stage_merge_(s, own ? part : j->o, part, lse, j->v_relay, one) &&
         (!own || (attn_stage_own_(s, one, j->q, j->p.k_own, j->p.scale) &&
                   attn_stage_merge_(s, j->o, part, lse, j->p.v_own, one)));
}

/* The call, or with bytes the workspace query. */
ATTN_FUNC_ attn_status attn_star_call_(attn_star_job_ *j, const attn_star_params *params,
                                       attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_star_check_(&e, j, params, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    attn_stage_call_(&s, ctx, attn_star_steps_, j, "star: window, wrap, relay", bytes);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_FUNC_ size_t attn_star_bytes_(attn_star_job_ *j, const attn_star_params *params,
                                   const attn_ctx *ctx) {
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  attn_star_call_(j, params, &plain, &bytes);
  return bytes;
}

ATTN_FUNC_ attn_star_job_ attn_star_job_of_(attn_tensor o, attn_tensor q, attn_tensor k,
                                            attn_tensor v, attn_tensor k_relay, attn_tensor v_relay,
                                            int relay) {
  attn_star_job_ j;
  memset(&j, 0, sizeof j);
  j.o = o, j.q = q, j.k = k, j.v = v, j.k_relay = k_relay, j.v_relay = v_relay, j.relay = relay;
  return j;
}

ATTN_PUB_ attn_status attn_star_satellites(attn_tensor o, attn_tensor q, attn_tensor k,
                                           attn_tensor v, attn_tensor k_relay, attn_tensor v_relay,
                                           const attn_star_params *params, attn_ctx *ctx) {
  attn_star_job_ j = attn_star_job_of_(o, q, k, v, k_relay, v_relay, 0);
  return attn_star_call_(&j, params, ctx, NULL);
}
ATTN_PUB_ size_t attn_star_satellites_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                                attn_tensor v, attn_tensor k_relay,
                                                attn_tensor v_relay, const attn_star_params *params,
                                                const attn_ctx *ctx) {
  attn_star_job_ j = attn_star_job_of_(o, q, k, v, k_relay, v_relay, 0);
  return attn_star_bytes_(&j, params, ctx);
}
ATTN_PUB_ attn_status attn_star_relay(attn_tensor o, attn_tensor q_relay, attn_tensor k_relay,
                                      attn_tensor v_relay, attn_tensor k, attn_tensor v,
                                      const attn_star_params *params, attn_ctx *ctx) {
  attn_star_job_ j = attn_star_job_of_(o, q_relay, k, v, k_relay, v_relay, 1);
  return attn_star_call_(&j, params, ctx, NULL);
}
ATTN_PUB_ size_t attn_star_relay_workspace(attn_tensor o, attn_tensor q_relay, attn_tensor k_relay,
                                           attn_tensor v_relay, attn_tensor k, attn_tensor v,
                                           const attn_star_params *params, const attn_ctx *ctx) {
  attn_star_job_ j = attn_star_job_of_(o, q_relay, k, v, k_relay, v_relay, 1);
  return attn_star_bytes_(&j, params, ctx);
}

/* ---- the tree -------------------------------------------------------------------------------*/

ATTN_PUB_ int64_t attn_tree_nodes(int64_t tokens) {
  int64_t nodes = tokens;
  if (tokens < 1 || tokens > INT32_MAX) return 0;
  for (int64_t n = tokens; n > 1;) n = n / 2 + n % 2, nodes += n;
  return nodes > INT32_MAX ? 0 : nodes;
}

/* Node id as level and place; the number of nodes of its level. */
ATTN_FUNC_ int attn_tree_find_(int64_t tokens, int64_t id, int64_t *place, int64_t *count) {
  int level = 0;
  for (*count = tokens; id >= *count; level++) id -= *count, *count = *count / 2 + *count % 2;
  *place = id;
  return level;
}

/* Step t of loop level l on which a token at i reaches node `place` of `level`, -1 if never; the
 * nodes of a side follow one another away from the token. */
ATTN_FUNC_ int64_t attn_tree_step_(const attn_tree_params *p, int64_t i, int right, int level,
                                   int64_t place, int *l) {
  const int64_t k = p->k < p->tokens ? p->k : p->tokens; /* more never exist */
  if (p->overlap) { /* level l has nodes at .. at + k - 1, or at .. at - k + 1 */
    int64_t at = right ? i + 1 : i - 1, n = p->tokens;
    for (*l = 0; *l < level; ++*l, n = n / 2 + n % 2) {
      if (right ? at + k >= n : at - k < 0) return -1;
      at = right ? (at + k) / 2 : (at - k) / 2;
    }
    int64_t t = right ? place - at : at - place;
    return t >= 0 && t < k ? t : -1;
  }
  int64_t edge = right ? i + 1 : i; /* of what is covered so far */
  for (*l = 0; *l <= level + 1; ++*l) {
    if (right ? edge >= p->tokens : edge <= 0) return -1;
    const int64_t size = (int64_t)1 << *l;
    int64_t t = 0;
    if (edge % size != 0) { /* one node of the level below comes first, and counts as one */
      const int64_t half = size / 2, at = right ? edge / half : edge / half - 1;
      if (*l - 1 == level && place == at) return 0;
      edge = right ? (at + 1) * half : at * half;
      t = 1;
    }
    const int64_t at = right ? edge / size : edge / size - 1;
    const int64_t away = right ? place - at : at - place;
    if (*l == level && away >= 0 && away < k - t) return t + away;
    edge = right ? edge + (k - t) * size : edge - (k - t) * size;
  }
  return -1;
}

/* attn_tree_label for checked params. */
ATTN_FUNC_ int64_t attn_tree_edge_(const attn_tree_params *p, int64_t i, int64_t j) {
  int64_t place, count, own, t;
  const int level = attn_tree_find_(p->tokens, j, &place, &count);
  const int64_t each = 2 * p->k + 1;
  int l;
  if (i >= p->tokens) {
    const int up = attn_tree_find_(p->tokens, i, &own, &t);
    const int sees = level == 0 ? place >> up == own : j == i && p->include_self;
    return sees ? each * (up < p->clip ? up : p->clip) : -1;
  }
  if (j == i) return 0;
  const int right = (place << level) > i;
  if (right && p->causal) return -1;
  t = attn_tree_step_(p, i, right, level, place, &l);
  return t < 0 ? -1 : each * (l < p->clip ? l : p->clip) + 2 * t + 1 + right;
}

/* Defaults and ranges. */
ATTN_FUNC_ int attn_tree_params_(attn_error_ *e, attn_tree_params *p) {
  if (p->tokens < 1 || attn_tree_nodes(p->tokens) == 0)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.tokens must be at least 1 and have fewer than 2^31 nodes");
  if (p->k < 1 || p->k > INT32_MAX)
    return attn_reject_(e, ATTN_E_RANGE, "params.k must lie in 1..2^31-1");
  if (p->clip < ATTN_TREE_ONE_LEVEL)
    return attn_reject_(e, ATTN_E_RANGE, "params.clip must be 0, positive or ATTN_TREE_ONE_LEVEL");
  int64_t place, count;
  const int64_t levels = attn_tree_find_(p->tokens, attn_tree_nodes(p->tokens) - 1, &place, &count);
  if (p->clip == 0 || p->clip > levels)
    p->clip = levels;
  else if (p->clip == ATTN_TREE_ONE_LEVEL)
    p->clip = 0;
  return 1;
}

ATTN_PUB_ int64_t attn_tree_label(const attn_tree_params *params, int64_t i, int64_t j) {
  attn_error_ e = {ATTN_OK, NULL};
  if (!params) return -1;
  attn_tree_params p = *params;
  if (!attn_tree_params_(&e, &p)) return -1;
  const int64_t nodes = attn_tree_nodes(p.tokens);
  return i < 0 || j < 0 || i >= nodes || j >= nodes ? -1 : attn_tree_edge_(&p, i, j);
}

typedef struct attn_tree_job_ {
  attn_tensor o, q, k, v;
  attn_tree_params p;
} attn_tree_job_;

ATTN_FUNC_ int attn_tree_check_(attn_error_ *e, attn_tree_job_ *j, const attn_tree_params *params,
                                const attn_ctx *ctx, const attn_table_ **table, int *workers) {
  static const attn_words_ w[] = {ATTN_WORDS_("q"), ATTN_WORDS_("k"),
                                  ATTN_WORDS_("v"), ATTN_WORDS_("params.table"),
                                  ATTN_WORDS_("o"), ATTN_WORDS_("params.lse")};
  enum { Q, K, V, TABLE, O, LSE, COUNT };
  attn_tree_params *p = &j->p;
  const int64_t any = ATTN_ANY_, in = ATTN_DIVIDES_;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it says the tokens");
  *p = *params;
  if (!attn_tree_params_(e, p) || !attn_check_scale_(e, p->scale)) return 0;
  const int64_t n = attn_tree_nodes(p->tokens), b = j->q.batch, h = j->q.heads;
  attn_operand_ op[COUNT] = {
      {&j->q, &w[Q], 0, any, any, n, any, "q.len must be attn_tree_nodes(params.tokens)", {0, 0}},
      {&j->k,
       &w[K],
       0,
       b,
       in,
       n,
       j->q.dim,
       "k must be [q.batch, a divisor of q.heads, q.len, q.dim]",
       {0, 0}},
      {&j->v,
       &w[V],
       0,
       b,
       in,
       n,
       any,
       "v must be [q.batch, a divisor of q.heads, q.len, dv]",
       {0, 0}},
      {&p->table,
       &w[TABLE],
       ATTN_OPTIONAL_ | ATTN_IS_F32_,
       1,
       ATTN_ONE_OR_ALL_,
       any,
       j->q.dim,
       "params.table must be f32 [1, 1 or q.heads, (2 k + 1)(clip + 1), q.dim]",
       {0, 0}},
      {&j->o,
       &w[O],
       ATTN_OUT_,
       b,
       h,
       n,
       j->v.dim,
       "o must be [q.batch, q.heads, q.len, v.dim]",
       {0, 0}},
      {&p->lse,
       &w[LSE],
       ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_,
       b,
       h,
       n,
       1,
       "params.lse must be f32 [q.batch, q.heads, q.len, 1]",
       {0, 0}}};
  for (int i = 0; i < COUNT; i++) {
    if (i == K && h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  }
  if (p->table.data && p->table.len < attn_mul_(2 * p->k + 1, p->clip + 1))
    return attn_reject_(e, ATTN_E_SHAPE, op[TABLE].rule);
  return attn_check_apart_(e, ctx, op, COUNT, NULL, 0);
}

ATTN_FUNC_ int64_t attn_tree_label_(void *user, int64_t b, int64_t h, int64_t i, int64_t j) {
  (void)b, (void)h;
  return attn_tree_edge_((const attn_tree_params *)user, i, j);
}

ATTN_FUNC_ int attn_tree_steps_(attn_stage_ *s, void *job) {
  attn_tree_job_ *j = (attn_tree_job_ *)job;
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.scale = j->p.scale, p.lse = j->p.lse, p.schedule = j->p.schedule;
  if (j->p.table.data)
    p.labels.label = attn_tree_label_, p.labels.user = &j->p, p.labels.table = j->p.table;
  return attn_stage_sdpa_(s, j->o, j->q, j->k, j->v, &p);
}

/* The call, or with bytes the workspace query. */
ATTN_FUNC_ attn_status attn_tree_call_(attn_tree_job_ *j, const attn_tree_params *params,
                                       attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  attn_schedule own = {NULL, 0, NULL};
  if (attn_tree_check_(&e, j, params, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    attn_pattern tree = attn_pattern_tree(j->p.tokens, j->p.k);
    tree.causal = j->p.causal, tree.overlap = j->p.overlap, tree.include_self = j->p.include_self;
    if (attn_stage_schedule_(&s, &j->p.schedule, &own, &tree, j->q.heads, j->q.len))
      attn_stage_call_(&s, ctx, attn_tree_steps_, j, "tree: one schedule, labels", bytes);
    attn_schedule_free(&own);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_PUB_ attn_status attn_tree(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                const attn_tree_params *params, attn_ctx *ctx) {
  attn_tree_job_ j;
  memset(&j, 0, sizeof j);
  j.o = o, j.q = q, j.k = k, j.v = v;
  return attn_tree_call_(&j, params, ctx, NULL);
}
ATTN_PUB_ size_t attn_tree_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const attn_tree_params *params, const attn_ctx *ctx) {
  attn_tree_job_ j;
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  memset(&j, 0, sizeof j);
  j.o = o, j.q = q, j.k = k, j.v = v;
  attn_tree_call_(&j, params, &plain, &bytes);
  return bytes;
}
/* <<< attn/mechanisms/compound.h */
/* >>> attn/mechanisms/longformer.h */
/* mechanisms/longformer.h owns Longformer: one sparse softmax for local rows, one full softmax for
 * the rows of global tokens, which have projections of their own. */

typedef struct attn_longformer_job_ {
  attn_tensor o, q, k, v;
  attn_longformer_params p;
  int64_t entries; /* different lists: 1 or B */
} attn_longformer_job_;

/* List b: its length; *list may be null when that is 0. */
ATTN_FUNC_ int64_t attn_longformer_list_(const attn_longformer_params *p, int64_t b,
                                         const int32_t **list) {
  *list = p->global;
  if (!p->global_ptr) return p->globals;
  if (p->global) *list = p->global + p->global_ptr[b];
  return p->global_ptr[b + 1] - p->global_ptr[b];
}

/* Rules about the arrays. */
ATTN_FUNC_ int attn_longformer_arrays_(attn_error_ *e, const attn_longformer_params *p,
                                       int64_t entries, int64_t heads, int64_t tokens) {
  if (!p->window) return attn_reject_(e, ATTN_E_NULL, "params.window must not be null");
  for (int64_t h = 0; h < heads; h++) {
    if (p->window[h] < 0)
      return attn_reject_(e, ATTN_E_RANGE, "params.window must not be negative");
    if (p->dilation && p->dilation[h] < 1)
      return attn_reject_(e, ATTN_E_RANGE, "params.dilation must be at least 1");
  }
  if (p->globals < 0) return attn_reject_(e, ATTN_E_SHAPE, "params.globals must not be negative");
  if (p->globals > 0 && !p->global)
    return attn_reject_(e, ATTN_E_NULL, "params.global must not be null");
  for (int64_t b = 0; p->global_ptr && b <= entries; b++)
    if (p->global_ptr[b] < (b ? p->global_ptr[b - 1] : 0) || p->global_ptr[b] > p->globals)
      return attn_reject_(e, ATTN_E_INDEX,
                          "params.global_ptr must ascend from 0 or more to params.globals or less");
  for (int64_t b = 0; b < entries; b++) {
    const int32_t *list;
    const int64_t n = attn_longformer_list_(p, b, &list);
    for (int64_t r = 0; r < n; r++)
      if (list[r] < (r ? list[r - 1] + (int64_t)1 : 0) || list[r] >= tokens)
        return attn_reject_(e, ATTN_E_INDEX,
                            "params.global must hold tokens in 0..T-1, strictly ascending");
  }
  return 1;
}

/* Builds the schedule of list b. Without global projections global rows are rows like others;
 * with them they are left out here. */
ATTN_FUNC_ int attn_longformer_build_(attn_error_ *e, attn_schedule *schedule,
                                      const attn_longformer_params *p, int64_t heads,
                                      int64_t tokens, int64_t b, attn_ctx *ctx) {
  const int32_t *list;
  const int64_t n = attn_longformer_list_(p, b, &list);
  int same = 1;
  for (int64_t h = 1; h < heads; h++)
    same &= p->window[h] == p->window[0] && (!p->dilation || p->dilation[h] == p->dilation[0]);
  const int64_t count = same ? 1 : heads;
  if (count > INT64_MAX / (int64_t)sizeof(attn_pattern) ||
      (uint64_t)count > SIZE_MAX / sizeof(attn_pattern))
    return attn_reject_(e, ATTN_E_OVERFLOW, "params.window has too many heads");
  attn_pattern *part = (attn_pattern *)ATTN_MALLOC((size_t)count * sizeof *part);
  if (!part) return attn_reject_(e, ATTN_E_MEMORY, "ATTN_MALLOC returned null");
  for (int64_t h = 0; h < count; h++)
    part[h] = attn_pattern_longformer(p->window[h], p->dilation ? p->dilation[h] : 1, list, n);
  attn_pattern local[2], all = part[0];
  local[0] = same ? part[0] : attn_pattern_per_head(part, heads);
  local[1] = attn_pattern_global(list, n);
  local[1].no_columns = 1;
  all = p->q_global.data && n > 0 ? attn_pattern_diff(local) : local[0];
  all.causal = p->causal != 0;
  attn_status status = attn_schedule_build(schedule, &all, heads, tokens, tokens, NULL, ctx);
  ATTN_FREE(part);
  return status == ATTN_OK ? 1 : attn_reject_(e, status, ctx->reason);
}

ATTN_PUB_ attn_status attn_longformer_schedule(attn_schedule *schedule,
                                               const attn_longformer_params *params, int64_t heads,
                                               int64_t tokens, int64_t b, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  attn_ctx inner = attn_before_workspace_(ctx);
  if (!attn_check_ctx_(&e, ctx, &table, &workers)) return attn_end_(ctx, &e);
  if (!schedule || !params) {
    attn_reject_(&e, ATTN_E_NULL,
                 schedule ? "params must not be null" : "schedule must not be null");
  } else if (heads < 1 || tokens < 0 || tokens > INT32_MAX) {
    attn_reject_(&e, ATTN_E_SHAPE, "heads must be at least 1, and tokens lie in 0..2^31-1");
  } else if (b < 0 || b == INT64_MAX) {
    attn_reject_(&e, ATTN_E_RANGE, "b must not be negative");
  } else if (attn_longformer_arrays_(&e, params, params->global_ptr ? b + 1 : 1, heads, tokens)) {
    attn_longformer_build_(&e, schedule, params, heads, tokens, b, &inner);
  }
  return attn_end_(ctx, &e);
}

ATTN_FUNC_ int attn_longformer_check_(attn_error_ *e, attn_longformer_job_ *j,
                                      const attn_longformer_params *params, const attn_ctx *ctx,
                                      const attn_table_ **table, int *workers) {
  static const attn_words_ w[] = {ATTN_WORDS_("q"),
                                  ATTN_WORDS_("k"),
                                  ATTN_WORDS_("v"),
                                  ATTN_WORDS_("params.q_global"),
                                  ATTN_WORDS_("params.k_global"),
                                  ATTN_WORDS_("params.v_global"),
                                  ATTN_WORDS_("o"),
                                  ATTN_WORDS_("params.lse")};
  static const attn_mask_words_ wm = {
      "params.valid.kind must be ATTN_MASK_NONE, ATTN_MASK_BOOL or ATTN_MASK_BITS",
      "params.valid.data must not be null",
      "params.valid.dtype is not used",
      "params.valid must be [1 or q.batch, 1, 1, 1 or q.len]",
      "params.valid spans more bytes than the address space holds",
      "params.valid.data alignment"};
  enum { Q, K, V, QG, KG, VG, O, LSE, COUNT };
  attn_longformer_params *p = &j->p;
  const int64_t any = ATTN_ANY_, in = ATTN_DIVIDES_;
  attn_span_ more[5];
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it says the windows");
  *p = *params;
  const int64_t b = j->q.batch, h = j->q.heads, t = j->q.len, dk = j->q.dim, dv = j->v.dim;
  attn_operand_ op[COUNT] = {
      {&j->q, &w[Q], 0, any, any, any, any, "", {0, 0}},
      {&j->k,
       &w[K],
       0,
       b,
       in,
       t,
       dk,
       "k must be [q.batch, a divisor of q.heads, q.len, q.dim]",
       {0, 0}},
      {&j->v,
       &w[V],
       0,
       b,
       in,
       t,
       any,
       "v must be [q.batch, a divisor of q.heads, q.len, dv]",
       {0, 0}},
      {&p->q_global,
       &w[QG],
       ATTN_OPTIONAL_,
       b,
       h,
       any,
       dk,
       "params.q_global must be [q.batch, q.heads, longest list, q.dim]",
       {0, 0}},
      {&p->k_global,
       &w[KG],
       ATTN_OPTIONAL_,
       b,
       in,
       t,
       dk,
       "params.k_global must be [q.batch, a divisor of q.heads, q.len, q.dim]",
       {0, 0}},
      {&p->v_global,
       &w[VG],
       ATTN_OPTIONAL_,
       b,
       in,
       t,
       dv,
       "params.v_global must be [q.batch, a divisor of q.heads, q.len, v.dim]",
       {0, 0}},
      {&j->o, &w[O], ATTN_OUT_, b, h, t, dv, "o must be [q.batch, q.heads, q.len, v.dim]", {0, 0}},
      {&p->lse,
       &w[LSE],
       ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_,
       b,
       h,
       t,
       1,
       "params.lse must be f32 [q.batch, q.heads, q.len, 1]",
       {0, 0}}};
  for (int i = 0; i < COUNT; i++) {
    if (i == K && h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
    if (i == K && t > INT32_MAX)
      return attn_reject_(e, ATTN_E_OVERFLOW, "q.len must be below 2^31");
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  }
  const int own = p->k_global.data != NULL; /* q_global may be empty, when all lists are */
  if (!p->v_global.data != !own ||
      (own ? !p->q_global.data && p->q_global.len : p->q_global.data != NULL))
    return attn_reject_(e, ATTN_E_NULL,
                        "params.q_global, .k_global and .v_global go together: all or none");
  const int64_t full[4] = {b, 1, 1, t};
  const char *align = "params holds a list that is not aligned to its elements";
  j->entries = p->global_ptr ? b : 1;
  if (!attn_check_scale_(e, p->scale) || !attn_check_array_(e, p->window, h, 4, align, &more[0]) ||
      !attn_check_array_(e, p->dilation, h, 4, align, &more[1]) ||
      !attn_check_array_(e, p->global, p->globals < 0 ? 0 : p->globals, 4, align, &more[2]) ||
      !attn_check_array_(e, p->global_ptr, attn_add_(b, 1), 8, align, &more[3]) ||
      !attn_longformer_arrays_(e, p, j->entries, h, t) ||
      !attn_check_mask_(e, &p->valid, &wm, 1u << ATTN_MASK_BOOL | 1u << ATTN_MASK_BITS, full,
                        &more[4]))
    return 0;
  for (int64_t a = 0; own && a < j->entries; a++) {
    const int32_t *list;
    if (attn_longformer_list_(p, a, &list) > p->q_global.len)
      return attn_reject_(e, ATTN_E_SHAPE, op[QG].rule);
  }
  return attn_check_apart_(e, ctx, op, COUNT, more, 5);
}

/* One row of o and lse: the result of a global row, or nothing when the token is not there. */
typedef struct attn_longformer_rows_ {
  const attn_table_ *table;
  attn_tensor o, lse, from, from_lse; /* lse may be absent */
  attn_mask valid;
  const int32_t *list; /* null: rows that are not valid are cleared */
} attn_longformer_rows_;

ATTN_FUNC_ void attn_longformer_row_(void *job, int worker, int64_t index) {
  const attn_longformer_rows_ *a = (const attn_longformer_rows_ *)job;
  const int64_t n = a->list ? a->from.len : a->o.len;
  const int64_t b = index / n / a->o.heads, h = index / n % a->o.heads, r = index % n;
  const int64_t i = a->list ? a->list[r] : r;
  float x = -INFINITY;
  (void)worker;
  if (a->list) {
    a->table->blend(attn_at_(&a->o, b, h, i), attn_at_(&a->from, b, h, r), NULL, a->o.dtype,
                    a->from.dtype, ATTN_F32, a->o.dim, 1.0f, 0.0f);
    memcpy(&x, attn_at_(&a->from_lse, b, h, r), sizeof x);
  } else {
    const char *row = attn_mask_at_(&a->valid, b, 0, 0);
    const int64_t at = a->valid.k_len > 1 ? i : 0;
    if (a->valid.kind == ATTN_MASK_BITS ? attn_mask_bit_(row, at) : row[at]) return;
    a->table->blend(attn_at_(&a->o, b, h, i), NULL, NULL, a->o.dtype, ATTN_F32, ATTN_F32, a->o.dim,
                    0.0f, 0.0f);
  }
  if (a->lse.data) memcpy(attn_at_(&a->lse, b, h, i), &x, sizeof x);
}

/* Rows of global tokens, for the batch entries of q that share a list. */
ATTN_FUNC_ int attn_longformer_global_(attn_stage_ *s, const attn_longformer_job_ *j,
                                       attn_longformer_rows_ *rows, attn_sdpa_params p, int64_t b) {
  const int one = j->p.global_ptr != NULL, causal = j->p.causal;
  attn_tensor q = j->p.q_global, k = j->p.k_global, v = j->p.v_global;
  const int64_t n = attn_longformer_list_(&j->p, b, &rows->list);
  if (n == 0) return 1;
  q.len = n;
  if (one) q = attn_stage_entry_(q, b), k = attn_stage_entry_(k, b), v = attn_stage_entry_(v, b);
  rows->from = attn_stage_tensor_(s, q.batch, q.heads, n, v.dim);
  rows->from_lse = attn_stage_tensor_(s, q.batch, q.heads, n, 1);
  p.schedule = NULL;
  for (int64_t r = 0; r < n; r += causal ? 1 : n) { /* causal rows end at different keys */
    const int64_t m = causal ? 1 : n;
    p.lse = attn_stage_rows_(rows->from_lse, r, m);
    p.causal = causal, p.has_q_off = 1, p.q_off = causal ? rows->list[r] : 0;
    if (!attn_stage_sdpa_(s, attn_stage_rows_(rows->from, r, m), attn_stage_rows_(q, r, m), k, v,
                          &p))
      return 0;
  }
  return attn_stage_for_(s, attn_mul_(attn_mul_(q.batch, q.heads), n), attn_longformer_row_, rows,
                         0, NULL);
}

ATTN_FUNC_ int attn_longformer_steps_(attn_stage_ *s, void *job) {
  const attn_longformer_job_ *j = (const attn_longformer_job_ *)job;
  const int one = j->p.global_ptr != NULL;
  const int64_t used = s->used;
  int64_t most = used;
  for (int64_t b = 0; b < j->entries; b++) {
    attn_longformer_rows_ rows;
    attn_sdpa_params p;
    memset(&p, 0, sizeof p);
    memset(&rows, 0, sizeof rows);
    rows.table = s->table;
    rows.o = one ? attn_stage_entry_(j->o, b) : j->o;
    if (j->p.lse.data) rows.lse = one ? attn_stage_entry_(j->p.lse, b) : j->p.lse;
    rows.valid = j->p.valid;
    if (one && rows.valid.kind) {
      rows.valid.data = attn_mask_at_(&rows.valid, b, 0, 0);
      rows.valid.batch = 1;
    }
    p.scale = j->p.scale, p.schedule = j->p.schedules + b;
    p.lse = rows.lse, p.mask = rows.valid;
    s->used = used;
    if (!attn_stage_sdpa_(s, rows.o, one ? attn_stage_entry_(j->q, b) : j->q,
                          one ? attn_stage_entry_(j->k, b) : j->k,
                          one ? attn_stage_entry_(j->v, b) : j->v, &p))
      return 0;
    if (j->p.q_global.data && !attn_longformer_global_(s, j, &rows, p, b)) return 0;
    if (s->used > most) most = s->used;
    rows.list = NULL;
    if (rows.valid.kind)
      attn_stage_for_(s, attn_mul_(attn_mul_(rows.o.batch, rows.o.heads), rows.o.len),
                      attn_longformer_row_, &rows, 0, NULL);
  }
  s->used = most;
  return 1;
}

/* The call, or with bytes the workspace query. */
ATTN_FUNC_ attn_status attn_longformer_call_(attn_longformer_job_ *j,
                                             const attn_longformer_params *params, attn_ctx *ctx,
                                             size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_schedule *own = NULL;
  int workers, ok;
  int64_t built = 0;
  if (attn_longformer_check_(&e, j, params, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    const int64_t n = j->q.len ? j->entries : 0;
    j->entries = n;
    ok = j->p.schedules != NULL || n == 0;
    if (!ok) {
      const size_t most = SIZE_MAX / sizeof *own;
      own = (uint64_t)n > most ? NULL : (attn_schedule *)ATTN_MALLOC((size_t)n * sizeof *own);
      ok = own ? 1 : attn_reject_(&e, ATTN_E_MEMORY, "ATTN_MALLOC returned null");
      for (j->p.schedules = own; ok && built < n; built += ok)
        ok = attn_longformer_build_(&e, &own[built], &j->p, j->q.heads, j->q.len, built, &s.ctx);
    }
    if (ok)
      attn_stage_call_(&s, ctx, attn_longformer_steps_, j, "longformer: local rows, global rows",
                       bytes);
    while (built > 0) attn_schedule_free(&own[--built]);
    if (own) ATTN_FREE(own);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_PUB_ attn_status attn_longformer(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                      const attn_longformer_params *params, attn_ctx *ctx) {
  attn_longformer_job_ j;
  memset(&j, 0, sizeof j);
  j.o = o, j.q = q, j.k = k, j.v = v;
  return attn_longformer_call_(&j, params, ctx, NULL);
}
ATTN_PUB_ size_t attn_longformer_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                           attn_tensor v, const attn_longformer_params *params,
                                           const attn_ctx *ctx) {
  attn_longformer_job_ j;
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  memset(&j, 0, sizeof j);
  j.o = o, j.q = q, j.k = k, j.v = v;
  attn_longformer_call_(&j, params, &plain, &bytes);
  return bytes;
}
/* <<< attn/mechanisms/longformer.h */
/* >>> attn/mechanisms/etc.h */
/* mechanisms/etc.h owns Extended Transformer Construction: two softmaxes, each over two sources of
 * keys, with labels; and the masks and labels of structured inputs. */

typedef struct attn_etc_job_ {
  attn_tensor o[2], q[2]; /* long, global */
  attn_tensor k[ATTN_ETC_PIECES], v[ATTN_ETC_PIECES];
  attn_etc_params p;
} attn_etc_job_;

/* Side of the queries and of the keys of a piece: 0 = long, 1 = global. */
ATTN_FUNC_ int attn_etc_from_(int piece) { return piece >= ATTN_ETC_G2G; }
ATTN_FUNC_ int attn_etc_to_(int piece) { return piece == ATTN_ETC_L2G || piece == ATTN_ETC_G2G; }

/* Label by distance d = key - query, clipped at m. */
ATTN_FUNC_ int64_t attn_etc_distance_(int64_t d, int64_t m) {
  return d >= 0 ? (d < m ? d : m) : m + (-d < m ? -d : m);
}

/* Columns of a piece's mask and labels. */
ATTN_FUNC_ int64_t attn_etc_columns_(const attn_etc_job_ *j, int piece) {
  return piece == ATTN_ETC_L2L ? 2 * j->p.radius + 1 : j->q[attn_etc_to_(piece)].len;
}

/* Labels given as arrays, or made from distances, are inside their tables. */
ATTN_FUNC_ int attn_etc_labels_fit_(attn_error_ *e, const attn_etc_job_ *j, int piece) {
  const attn_etc_params *p = &j->p;
  const int side = attn_etc_from_(piece);
  const attn_tensor *table = side ? &p->table_global : &p->table_long;
  const int64_t rows = j->q[side].len, columns = attn_etc_columns_(j, piece);
  const int64_t copies = p->labels_per_batch ? j->q[0].batch : 1;
  if (!p->label[piece]) return 1;
  for (int64_t r = 0; r < copies * rows; r++)
    for (int64_t c = 0; c < columns; c++) {
      const int64_t key = r % rows + c - p->radius, label = p->label[piece][r * columns + c];
      if (piece == ATTN_ETC_L2L && (key < 0 || key >= rows)) continue;
      if (label < 0 || label >= table->len)
        return attn_reject_(e, ATTN_E_RANGE, "params.label must lie in 0..len-1 of its table");
    }
  return 1;
}

ATTN_FUNC_ int attn_etc_labels_check_(attn_error_ *e, const attn_etc_job_ *j, int data) {
  const attn_etc_params *p = &j->p;
  for (int side = 0; side < 2; side++) {
    const int piece = side ? ATTN_ETC_G2G : ATTN_ETC_L2L;
    const attn_tensor *table = side ? &p->table_global : &p->table_long;
    if (!p->label[piece] != !p->label[piece + 1])
      return attn_reject_(e, ATTN_E_NULL, "params.label: the two pieces of a side go together");
    if (p->label[piece] && !table->data)
      return attn_reject_(e, ATTN_E_NULL,
                          side ? "params.table_global must not be null when there are labels"
                               : "params.table_long must not be null when there are labels");
    if (p->by_distance && p->label[piece])
      return attn_reject_(e, ATTN_E_VALUE, "params.label must be null with params.by_distance");
    const int64_t rows = table->len - 2 - (p->sentence != NULL);
    if (p->by_distance && table->data && (rows < 0 || rows / 2 < p->clip))
      return attn_reject_(e, ATTN_E_RANGE, "params.clip needs longer tables: 2 clip + 3 rows");
  }
  if (p->by_distance && (p->clip < 0 || p->clip > INT32_MAX))
    return attn_reject_(e, ATTN_E_RANGE, "params.clip must lie in 0..2^31-1");
  if (p->by_distance && !p->table_long.data && !p->table_global.data)
    return attn_reject_(e, ATTN_E_NULL, "params.by_distance needs a table");
  for (int piece = 0; data && piece < ATTN_ETC_PIECES; piece++)
    if (!attn_etc_labels_fit_(e, j, piece)) return 0;
  const int64_t n = (p->labels_per_batch ? j->q[0].batch : 1) * j->q[0].len;
  for (int64_t i = 0; data && p->by_distance && p->sentence && i < n; i++)
    if (p->sentence[i] >= j->q[1].len)
      return attn_reject_(e, ATTN_E_RANGE, "params.sentence must be below n_g");
  return 1;
}

ATTN_FUNC_ int attn_etc_check_(attn_error_ *e, attn_etc_job_ *j, const attn_tensor *k,
                               const attn_tensor *v, const attn_etc_params *params,
                               const attn_ctx *ctx, const attn_table_ **table, int *workers,
                               int data) {
  static const attn_words_ w[] = {ATTN_WORDS_("q_long"),
                                  ATTN_WORDS_("q_global"),
                                  ATTN_WORDS_("k[ATTN_ETC_L2L]"),
                                  ATTN_WORDS_("k[ATTN_ETC_L2G]"),
                                  ATTN_WORDS_("k[ATTN_ETC_G2G]"),
                                  ATTN_WORDS_("k[ATTN_ETC_G2L]"),
                                  ATTN_WORDS_("v[ATTN_ETC_L2L]"),
                                  ATTN_WORDS_("v[ATTN_ETC_L2G]"),
                                  ATTN_WORDS_("v[ATTN_ETC_G2G]"),
                                  ATTN_WORDS_("v[ATTN_ETC_G2L]"),
                                  ATTN_WORDS_("params.table_long"),
                                  ATTN_WORDS_("params.table_global"),
                                  ATTN_WORDS_("o_long"),
                                  ATTN_WORDS_("o_global"),
                                  ATTN_WORDS_("params.lse_long"),
                                  ATTN_WORDS_("params.lse_global")};
  static const attn_mask_words_ wm = {
      "params.mask must be of kind ATTN_MASK_NONE, ATTN_MASK_BOOL or ATTN_MASK_BITS",
      "params.mask.data must not be null",
      "params.mask.dtype is not used",
      "params.mask must have extents 1 or those of its piece; of L2L [.., n_l, 2 radius + 1]",
      "params.mask spans more bytes than the address space holds",
      "params.mask.data alignment"};
  enum { Q, K = 2, V = 6, TABLE = 10, O = 12, LSE = 14, COUNT = 16, MORE = 11 };
  attn_etc_params *p = &j->p;
  attn_operand_ op[COUNT];
  attn_span_ more[MORE];
  const int64_t any = ATTN_ANY_;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it says the radius");
  if (!k || !v)
    return attn_reject_(e, ATTN_E_NULL, k ? "v must not be null" : "k must not be null");
  *p = *params;
  for (int i = 0; i < ATTN_ETC_PIECES; i++) j->k[i] = k[i], j->v[i] = v[i];
  const int64_t b = j->q[0].batch, h = j->q[0].heads, dk = j->q[0].dim, dv = j->v[0].dim;
  if (p->radius < 1 || p->radius > INT32_MAX)
    return attn_reject_(e, ATTN_E_RANGE, "params.radius must lie in 1..2^31-1");
  memset(op, 0, sizeof op);
  for (int i = 0; i < COUNT; i++) op[i].w = &w[i], op[i].batch = b, op[i].heads = h;
  for (int side = 0; side < 2; side++) {
    const int64_t n = j->q[side].len;
    op[Q + side].t = &j->q[side], op[Q + side].len = any, op[Q + side].dim = dk;
    op[Q + side].rule = "q_global must have batch, heads and dim of q_long";
    op[TABLE + side].t = side ? &p->table_global : &p->table_long;
    op[TABLE + side].role = ATTN_OPTIONAL_ | ATTN_IS_F32_;
    op[TABLE + side].batch = 1, op[TABLE + side].heads = ATTN_ONE_OR_ALL_;
    op[TABLE + side].len = any, op[TABLE + side].dim = dk;
    op[TABLE + side].rule = "params.table_long and .table_global must be f32 [1, 1 or H, n, dk]";
    op[O + side].t = &j->o[side], op[O + side].role = ATTN_OUT_;
    op[O + side].len = n, op[O + side].dim = dv;
    op[O + side].rule =
        side ? "o_global must be [B, H, n_g, dv]" : "o_long must be [B, H, n_l, dv]";
    op[LSE + side].t = side ? &p->lse_global : &p->lse_long;
    op[LSE + side].role = ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_;
    op[LSE + side].len = n, op[LSE + side].dim = 1;
    op[LSE + side].rule = side ? "params.lse_global must be f32 [B, H, n_g, 1]"
                               : "params.lse_long must be f32 [B, H, n_l, 1]";
  }
  for (int i = 0; i < ATTN_ETC_PIECES; i++) {
    const int64_t n = j->q[attn_etc_to_(i)].len;
    op[K + i].t = &j->k[i], op[K + i].heads = ATTN_DIVIDES_, op[K + i].len = n, op[K + i].dim = dk;
    op[K + i].rule = "k must be [B, a divisor of H, rows of the key side, dk]";
    op[V + i].t = &j->v[i], op[V + i].heads = ATTN_DIVIDES_, op[V + i].len = n;
    op[V + i].dim = i ? dv : any;
    op[V + i].rule = "v must be [B, a divisor of H, rows of the key side, dv]";
  }
  for (int i = 0; i < COUNT; i++) {
    if (i == K && h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q_long.heads must be at least 1");
    if (i == K && (j->q[0].len > INT32_MAX || j->q[1].len > INT32_MAX))
      return attn_reject_(e, ATTN_E_OVERFLOW, "q_long.len and q_global.len must be below 2^31");
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  }
  for (int i = 0; i < ATTN_ETC_PIECES; i++) {
    const int64_t rows = j->q[attn_etc_from_(i)].len, columns = attn_etc_columns_(j, i);
    const int64_t full[4] = {b, h, rows, columns};
    const int64_t n = attn_mul_(p->labels_per_batch ? b : 1, attn_mul_(rows, columns));
    if (!attn_check_mask_(e, &p->mask[i], &wm, 1u << ATTN_MASK_BOOL | 1u << ATTN_MASK_BITS, full,
                          &more[i]) ||
        !attn_check_array_(e, p->label[i], n, 4, "params.label must be aligned to its elements",
                           &more[4 + i]))
      return 0;
  }
  const char *align = "params.sentence and biases must be aligned to their elements";
  const int64_t n = attn_mul_(p->labels_per_batch ? b : 1, j->q[0].len);
  return attn_check_scale_(e, p->scale) &&
         attn_check_array_(e, p->sentence, n, 4, align, &more[8]) &&
         attn_check_array_(e, p->bias_long,
                           attn_mul_(p->table_long.len < 0 ? 0 : p->table_long.len, h), 4, align,
                           &more[9]) &&
         attn_check_array_(e, p->bias_global,
                           attn_mul_(p->table_global.len < 0 ? 0 : p->table_global.len, h), 4,
                           align, &more[10]) &&
         attn_etc_labels_check_(e, j, data) && attn_check_apart_(e, ctx, op, COUNT, more, MORE);
}

/* One piece as the callbacks of attn_sdpa see it. */
typedef struct attn_etc_view_ {
  const attn_etc_job_ *j;
  int piece;
} attn_etc_view_;

ATTN_FUNC_ int64_t attn_etc_label_(void *user, int64_t b, int64_t h, int64_t i, int64_t key) {
  const attn_etc_view_ *a = (const attn_etc_view_ *)user;
  const attn_etc_params *p = &a->j->p;
  const int side = attn_etc_from_(a->piece);
  const int64_t entry = p->labels_per_batch ? b : 0;
  (void)h;
  if (p->by_distance) {
    const int64_t m = p->clip, token = side ? key : i;
    if (side == attn_etc_to_(a->piece)) return attn_etc_distance_(key - i, m);
    const int own = p->sentence && p->sentence[entry * a->j->q[0].len + token] == (side ? i : key);
    return 2 * m + 1 + own;
  }
  const int64_t columns = attn_etc_columns_(a->j, a->piece);
  const int64_t c = a->piece == ATTN_ETC_L2L ? key - i + p->radius : key;
  if (c < 0 || c >= columns) return -1;
  return p->label[a->piece][(entry * a->j->q[side].len + i) * columns + c];
}

/* The mask of the window, whose columns are distances. */
ATTN_FUNC_ void attn_etc_window_(void *user, const attn_score_tile *t) {
  const attn_etc_view_ *a = (const attn_etc_view_ *)user;
  const attn_mask *mask = &a->j->p.mask[ATTN_ETC_L2L];
  const int64_t radius = a->j->p.radius;
  for (int64_t r = 0; r < t->queries; r++) {
    const char *row = attn_mask_at_(mask, t->batch, t->head[r], t->query[r]);
    for (int64_t c = 0; c < t->keys; c++) {
      const int64_t d = t->key[c] - t->query[r] + radius, at = mask->k_len > 1 ? d : 0;
      if (d < 0 || d > 2 * radius) continue;
      if (!(mask->kind == ATTN_MASK_BITS ? attn_mask_bit_(row, at) : row[at]))
        t->score[c * t->key_stride + r * t->query_stride] = -INFINITY;
    }
  }
}

ATTN_FUNC_ int attn_etc_steps_(attn_stage_ *s, void *job) {
  const attn_etc_job_ *j = (const attn_etc_job_ *)job;
  const int64_t used = s->used;
  int64_t most = used;
  for (int side = 0; side < 2; side++) {
    const attn_tensor *o = &j->o[side];
    const attn_tensor given = side ? j->p.lse_global : j->p.lse_long;
    const attn_tensor table = side ? j->p.table_global : j->p.table_long;
    attn_tensor part[2], lse[2];
    s->used = used;
    part[0] = attn_stage_part_(s, o);
    part[1] = attn_stage_tensor_(s, o->batch, o->heads, o->len, o->dim);
    lse[0] = given.data ? given : attn_stage_tensor_(s, o->batch, o->heads, o->len, 1);
    lse[1] = attn_stage_tensor_(s, o->batch, o->heads, o->len, 1);
    for (int n = 0; n < 2; n++) {
      attn_etc_view_ view = {j, 2 * side + n};
      attn_sdpa_params p;
      memset(&p, 0, sizeof p);
      p.scale = j->p.scale, p.lse = lse[n];
      if (j->p.label[view.piece] || (j->p.by_distance && table.data)) {
        p.labels.label = attn_etc_label_, p.labels.user = &view;
        p.labels.table = table;
        p.labels.bias = side ? j->p.bias_global : j->p.bias_long;
      }
      if (view.piece == ATTN_ETC_L2L) {
        p.window_left = p.window_right = j->p.radius;
        if (j->p.mask[view.piece].kind) p.modify = attn_etc_window_, p.modify_user = &view;
      } else {
        p.mask = j->p.mask[view.piece];
      }
      if (!attn_stage_sdpa_(s, part[n], j->q[side], j->k[view.piece], j->v[view.piece], &p))
        return 0;
    }
    if (!attn_stage_merge_(s, *o, part[0], lse[0], part[1], lse[1])) return 0;
    if (s->used > most) most = s->used;
  }
  s->used = most;
  return 1;
}

/* The call, or with bytes the workspace query. */
ATTN_FUNC_ attn_status attn_etc_call_(attn_etc_job_ *j, const attn_tensor *k, const attn_tensor *v,
                                      const attn_etc_params *params, attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_etc_check_(&e, j, k, v, params, ctx, &table, &workers, bytes == NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    attn_stage_call_(&s, ctx, attn_etc_steps_, j, "etc: two sources a side", bytes);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_PUB_ attn_status attn_etc(attn_tensor o_long, attn_tensor o_global, attn_tensor q_long,
                               attn_tensor q_global, const attn_tensor k[ATTN_ETC_PIECES],
                               const attn_tensor v[ATTN_ETC_PIECES], const attn_etc_params *params,
                               attn_ctx *ctx) {
  attn_etc_job_ j;
  memset(&j, 0, sizeof j);
  j.o[0] = o_long, j.o[1] = o_global, j.q[0] = q_long, j.q[1] = q_global;
  return attn_etc_call_(&j, k, v, params, ctx, NULL);
}
ATTN_PUB_ size_t attn_etc_workspace(attn_tensor o_long, attn_tensor o_global, attn_tensor q_long,
                                    attn_tensor q_global, const attn_tensor k[ATTN_ETC_PIECES],
                                    const attn_tensor v[ATTN_ETC_PIECES],
                                    const attn_etc_params *params, const attn_ctx *ctx) {
  attn_etc_job_ j;
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  memset(&j, 0, sizeof j);
  j.o[0] = o_long, j.o[1] = o_global, j.q[0] = q_long, j.q[1] = q_global;
  attn_etc_call_(&j, k, v, params, &plain, &bytes);
  return bytes;
}

/* ---- structured inputs ----------------------------------------------------------------------*/

ATTN_FUNC_ int attn_etc_structure_check_(attn_error_ *e, const attn_etc_structure *s,
                                         const attn_ctx *ctx) {
  const attn_table_ *table;
  int workers;
  if (!attn_check_ctx_(e, ctx, &table, &workers)) return 0;
  if (!s) return attn_reject_(e, ATTN_E_NULL, "structure must not be null");
  if (s->longs < 0 || s->globals < 0 || s->longs > INT32_MAX || s->globals > INT32_MAX)
    return attn_reject_(e, ATTN_E_SHAPE, "structure.longs and .globals must lie in 0..2^31-1");
  if (s->radius < 1 || s->radius > INT32_MAX)
    return attn_reject_(e, ATTN_E_RANGE, "structure.radius must lie in 1..2^31-1");
  if (s->clip < 0 || s->clip > (INT32_MAX - 3) / 2)
    return attn_reject_(e, ATTN_E_RANGE, "structure.clip must lie in 0..2^30-2");
  if ((s->longs && s->globals) && !s->example_long != !s->example_global)
    return attn_reject_(e, ATTN_E_NULL, "structure.example_long and .example_global go together");
  if ((s->hard_g2l || s->hard_l2g) && !s->sentence)
    return attn_reject_(e, ATTN_E_NULL, "structure.sentence must not be null for hard masks");
  for (int64_t i = 0; s->sentence && i < s->longs; i++) {
    if (s->example_long && s->example_long[i] < 0) continue;
    if (s->sentence[i] < 0 || s->sentence[i] >= s->globals)
      return attn_reject_(e, ATTN_E_RANGE, "structure.sentence must lie in 0..globals-1");
  }
  return 1;
}

ATTN_FUNC_ int attn_etc_same_(const int32_t *a, int64_t i, const int32_t *b, int64_t j) {
  return !a || !b || a[i] == b[j];
}

ATTN_PUB_ attn_status attn_etc_masks(uint8_t *l2l, uint8_t *l2g, uint8_t *g2g, uint8_t *g2l,
                                     const attn_etc_structure *structure, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_etc_structure *s = structure;
  if (!attn_etc_structure_check_(&e, s, ctx)) return attn_end_(ctx, &e);
  const int32_t *xl = s->example_long, *xg = s->example_global;
  const int64_t n = s->longs, m = s->globals, columns = 2 * s->radius + 1;
  for (int64_t i = 0; i < n; i++) {
    for (int64_t t = 0; l2l && t < columns; t++) {
      const int64_t j = i + t - s->radius;
      l2l[i * columns + t] = (uint8_t)(j >= 0 && j < n && attn_etc_same_(xl, i, xl, j));
    }
    for (int64_t g = 0; g < m; g++) {
      const int same = attn_etc_same_(xl, i, xg, g), own = s->sentence && s->sentence[i] == g;
      if (l2g) l2g[i * m + g] = (uint8_t)(same && (own || !s->hard_l2g));
      if (g2l) g2l[g * n + i] = (uint8_t)(same && (own || !s->hard_g2l));
    }
  }
  for (int64_t g = 0; g2g && g < m * m; g++) g2g[g] = (uint8_t)attn_etc_same_(xg, g / m, xg, g % m);
  return attn_end_(ctx, &e);
}

ATTN_PUB_ attn_status attn_etc_labels(int32_t *l2l, int32_t *l2g, int32_t *g2g, int32_t *g2l,
                                      const attn_etc_structure *structure, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_etc_structure *s = structure;
  if (!attn_etc_structure_check_(&e, s, ctx)) return attn_end_(ctx, &e);
  const int64_t n = s->longs, m = s->globals, columns = 2 * s->radius + 1;
  for (int64_t i = 0; i < n; i++) {
    for (int64_t t = 0; l2l && t < columns; t++)
      l2l[i * columns + t] = (int32_t)attn_etc_distance_(t - s->radius, s->clip);
    for (int64_t g = 0; g < m; g++) {
      const int own = s->sentence && s->sentence[i] == g;
      if (l2g) l2g[i * m + g] = (int32_t)(2 * s->clip + 1 + own);
      if (g2l) g2l[g * n + i] = (int32_t)(2 * s->clip + 1 + own);
    }
  }
  for (int64_t g = 0; g2g && g < m * m; g++)
    g2g[g] = (int32_t)attn_etc_distance_(g % m - g / m, s->clip);
  return attn_end_(ctx, &e);
}
/* <<< attn/mechanisms/etc.h */
/* >>> attn/mechanisms/segmented.h */
/* mechanisms/segmented.h owns attention inside groups of rows with exchange between the groups:
 * segmented attention and hierarchies, and how the rows of a group become one. */

/* ---- aggregation ----------------------------------------------------------------------------*/

/* Groups of rows: offsets, or runs of `length`. */
typedef struct attn_groups_ {
  const int32_t *offsets;
  int64_t count, length, rows;
} attn_groups_;

ATTN_FUNC_ int64_t attn_group_at_(const attn_groups_ *g, int64_t a) {
  if (g->offsets) return g->offsets[a];
  return a > g->rows / g->length ? g->rows : a * g->length;
}

typedef struct attn_gather_ {
  const attn_table_ *table;
  attn_tensor z, y, hidden; /* z row n: group number n of those that are not empty */
  attn_groups_ groups;
  const attn_aggregate *how;
  char *memory;
  int64_t each, width; /* hidden.dim */
} attn_gather_;

ATTN_FUNC_ const float *attn_row_f32_(const attn_tensor *t, int64_t b, int64_t h, int64_t i) {
  return (const float *)(const void *)attn_at_(t, b, h, i);
}

/* u . tanh(hidden + b); tanh x = 1 - 2 / (e^2x + 1) */
ATTN_FUNC_ float attn_gather_logit_(const attn_gather_ *a, const float *hidden, float *work) {
  double sum = 0.0;
  for (int64_t c = 0; c < a->width; c++) {
    const float x = 2.0f * (hidden[c] + (a->how->b ? a->how->b[c] : 0.0f));
    work[c] = x > 40.0f ? 40.0f : x < -40.0f ? -40.0f : x;
  }
  a->table->exp(work, work, a->width);
  for (int64_t c = 0; c < a->width; c++)
    sum += (double)a->how->u[c] * (1.0 - 2.0 / ((double)work[c] + 1.0));
  return (float)sum;
}

/* z = rows i0..i1 as one. */
ATTN_FUNC_ void attn_gather_group_(const attn_gather_ *a, int64_t b, int64_t h, int64_t i0,
                                   int64_t i1, float *z, float *weight, float *work) {
  const int kind = (int)a->how->kind;
  const int64_t n = i1 - i0;
  double total = kind == ATTN_AGGREGATE_MEAN ? (double)n : 1.0;
  if (kind == ATTN_AGGREGATE_FIRST) i1 = i0 + 1;
  if (kind == ATTN_AGGREGATE_LAST) i0 = i1 - 1;
  if (kind == ATTN_AGGREGATE_ATTENTION) {
    float top = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
      weight[i] = attn_gather_logit_(a, attn_row_f32_(&a->hidden, b, h, i0 + i), work);
      if (!(weight[i] <= top)) top = weight[i];
    }
    for (int64_t i = 0; i < n; i++) weight[i] -= top;
    a->table->exp(weight, weight, n);
    total = 0.0;
    for (int64_t i = 0; i < n; i++) total += (double)weight[i];
  }
  for (int64_t c = 0; c < a->y.dim; c++) {
    double sum = 0.0;
    for (int64_t i = i0; i < i1; i++) {
      const double x = (double)attn_row_f32_(&a->y, b, h, i)[c];
      if (kind == ATTN_AGGREGATE_MAX)
        sum = i == i0 || x > sum || x != x ? x : sum;
      else
        sum += kind == ATTN_AGGREGATE_ATTENTION ? (double)weight[i - i0] * x : x;
    }
    z[c] = (float)(sum / total);
  }
}

/* All groups of one head. */
ATTN_FUNC_ void attn_gather_item_(void *job, int worker, int64_t index) {
  const attn_gather_ *a = (const attn_gather_ *)job;
  const int64_t b = index / a->y.heads, h = index % a->y.heads;
  float *work = (float *)(void *)(a->memory + worker * a->each);
  float *weight = (float *)(void *)((char *)work + attn_piece_(a->width, sizeof(float)));
  for (int64_t g = 0, n = 0; g < a->groups.count; g++) {
    const int64_t i0 = attn_group_at_(&a->groups, g), i1 = attn_group_at_(&a->groups, g + 1);
    if (i0 == i1) continue;
    attn_gather_group_(a, b, h, i0, i1, (float *)(void *)attn_at_(&a->z, b, h, n++), weight, work);
  }
}

/* z = one row for each group of y that is not empty; both f32. */
ATTN_FUNC_ int attn_stage_gather_(attn_stage_ *s, attn_tensor z, attn_tensor y, attn_groups_ groups,
                                  const attn_aggregate *how) {
  attn_gather_ a;
  memset(&a, 0, sizeof a);
  a.table = s->table, a.z = z, a.y = y, a.groups = groups, a.how = how;
  if (how->kind == ATTN_AGGREGATE_ATTENTION) {
    a.width = how->w.dim;
    a.hidden = attn_stage_tensor_(s, y.batch, y.heads, y.len, a.width);
    if (!attn_stage_project_(s, a.hidden, y, how->w)) return 0;
    a.each = attn_add_(attn_piece_(a.width, sizeof(float)), attn_piece_(y.len, sizeof(float)));
  }
  return attn_stage_for_(s, attn_mul_(y.batch, y.heads), attn_gather_item_, &a, a.each, &a.memory);
}

/* ATTENTION's parameters, for rows of width dv. */
ATTN_FUNC_ int attn_check_aggregate_(attn_error_ *e, attn_aggregate *a, int64_t heads, int64_t dv,
                                     attn_span_ span[3]) {
  static const attn_words_ w = ATTN_WORDS_("params.aggregate.w");
  attn_operand_ op = {&a->w,
                      &w,
                      0,
                      1,
                      ATTN_ONE_OR_ALL_,
                      dv,
                      ATTN_ANY_,
                      "params.aggregate.w must be [1, 1 or H, dv, dh]",
                      {0, 0}};
  memset(span, 0, 3 * sizeof *span);
  if ((int)a->kind < 0 || a->kind >= ATTN_AGGREGATE_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.aggregate.kind must be an attn_aggregate_kind");
  if (a->kind != ATTN_AGGREGATE_ATTENTION) return 1;
  const char *align = "params.aggregate.b and .u must be aligned to their elements";
  if (!attn_check_operand_(e, &op, heads)) return 0;
  span[0] = op.span;
  if (!a->u) return attn_reject_(e, ATTN_E_NULL, "params.aggregate.u must not be null");
  return attn_check_array_(e, a->b, a->w.dim, 4, align, &span[1]) &&
         attn_check_array_(e, a->u, a->w.dim, 4, align, &span[2]);
}

/* Offsets 0 .. rows, not descending; strict: no group is empty. */
ATTN_FUNC_ int attn_check_offsets_(attn_error_ *e, const int32_t *offsets, int64_t count,
                                   int64_t rows, int strict, const char *reason) {
  if (offsets[0] != 0 || offsets[count] != rows) return attn_reject_(e, ATTN_E_INDEX, reason);
  for (int64_t a = 0; a < count; a++)
    if (offsets[a + 1] < offsets[a] + (int64_t)(strict != 0))
      return attn_reject_(e, ATTN_E_INDEX, reason);
  return 1;
}

/* ---- segmented attention --------------------------------------------------------------------*/

typedef struct attn_segmented_job_ {
  attn_tensor o, q, k, v;
  attn_segmented_params p;
  attn_groups_ groups;
  int64_t full;       /* segments that are not empty */
  int64_t key, value; /* d', d'' */
} attn_segmented_job_;

ATTN_FUNC_ int attn_segmented_check_(attn_error_ *e, attn_segmented_job_ *j,
                                     const attn_segmented_params *params, const attn_ctx *ctx,
                                     const attn_table_ **table, int *workers) {
  static const attn_words_ w[] = {ATTN_WORDS_("q"),          ATTN_WORDS_("k"),
                                  ATTN_WORDS_("v"),          ATTN_WORDS_("params.w_q"),
                                  ATTN_WORDS_("params.w_k"), ATTN_WORDS_("params.w_v"),
                                  ATTN_WORDS_("o"),          ATTN_WORDS_("params.lse")};
  enum { Q, K, V, WQ, WK, WV, O, LSE, COUNT };
  attn_segmented_params *p = &j->p;
  attn_span_ more[4];
  const int64_t any = ATTN_ANY_, in = ATTN_DIVIDES_, some = ATTN_ONE_OR_ALL_;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it says the segments");
  *p = *params;
  if ((int)p->integrate < 0 || p->integrate >= ATTN_INTEGRATE_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.integrate must be an attn_integrate");
  if (p->integrate == ATTN_INTEGRATE_SUMMARY && p->causal)
    return attn_reject_(e, ATTN_E_RANGE, "params.causal does not go with ATTN_INTEGRATE_SUMMARY");
  const int on = p->integrate != ATTN_INTEGRATE_NONE, pool = p->integrate == ATTN_INTEGRATE_POOL;
  if (!on || pool) p->w_q.data = p->w_k.data = NULL;
  if (!on) p->w_v.data = NULL;
  const int64_t b = j->q.batch, h = j->q.heads, t = j->q.len, dk = j->q.dim, dv = j->v.dim;
  j->key = p->w_q.data ? p->w_q.dim : dv;
  j->value = p->w_v.data ? p->w_v.dim : dv;
  attn_operand_ op[COUNT] = {
      {&j->q, &w[Q], 0, any, any, any, any, "", {0, 0}},
      {&j->k,
       &w[K],
       0,
       b,
       in,
       t,
       dk,
       "k must be [q.batch, a divisor of q.heads, q.len, q.dim]",
       {0, 0}},
      {&j->v,
       &w[V],
       0,
       b,
       in,
       t,
       any,
       "v must be [q.batch, a divisor of q.heads, q.len, dv]",
       {0, 0}},
      {&p->w_q,
       &w[WQ],
       ATTN_OPTIONAL_,
       1,
       some,
       dv,
       any,
       "params.w_q must be [1, 1 or q.heads, v.dim, d']",
       {0, 0}},
      {&p->w_k,
       &w[WK],
       ATTN_OPTIONAL_,
       1,
       some,
       dv,
       j->key,
       "params.w_k must be [1, 1 or q.heads, v.dim, width of the inner queries]",
       {0, 0}},
      {&p->w_v,
       &w[WV],
       ATTN_OPTIONAL_,
       1,
       some,
       dv,
       any,
       "params.w_v must be [1, 1 or q.heads, v.dim, d'']",
       {0, 0}},
      {&j->o, &w[O], ATTN_OUT_, b, h, t, any, "o must be [q.batch, q.heads, q.len, .]", {0, 0}},
      {&p->lse,
       &w[LSE],
       ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_,
       b,
       h,
       t,
       1,
       "params.lse must be f32 [q.batch, q.heads, q.len, 1]",
       {0, 0}}};
  for (int i = 0; i < COUNT; i++) {
    if (i == K && h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
    if (i == K && t > INT32_MAX)
      return attn_reject_(e, ATTN_E_OVERFLOW, "q.len must be below 2^31");
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  }
  if (on && !p->w_k.data && j->key != dv) return attn_reject_(e, ATTN_E_SHAPE, op[WK].rule);
  if (on && !p->concat && j->value != dv)
    return attn_reject_(e, ATTN_E_SHAPE, "params.w_v must keep the width v.dim, or set .concat");
  if (j->o.dim != dv + (on && p->concat ? j->value : 0))
    return attn_reject_(e, ATTN_E_SHAPE, "o.dim must be v.dim, with params.concat v.dim + d''");
  if (!(p->gain - p->gain == 0.0f))
    return attn_reject_(e, ATTN_E_VALUE, "params.gain must be finite");
  if (!attn_check_scale_(e, p->scale)) return 0;
  memset(more, 0, sizeof more);
  if (on && !attn_check_aggregate_(e, &p->aggregate, h, dv, more)) return 0;
  const char *rule = "params.offsets must go from 0 to q.len and not descend";
  if (p->offsets) {
    if (p->segments < 0 || (p->segments == 0 && t > 0))
      return attn_reject_(e, ATTN_E_RANGE, "params.segments must be at least 1");
    if (!attn_check_array_(e, p->offsets, attn_add_(p->segments, 1), 4,
                           "params.offsets must be aligned to its elements", &more[3]) ||
        !attn_check_offsets_(e, p->offsets, p->segments, t, 0, rule))
      return 0;
  } else if (p->length < 1) {
    return attn_reject_(e, ATTN_E_RANGE, "params.length must be at least 1, or give .offsets");
  }
  attn_groups_ *g = &j->groups;
  g->offsets = p->offsets, g->length = p->length, g->rows = t;
  g->count = p->offsets ? p->segments : t / p->length + (t % p->length != 0);
  for (int64_t a = 0; a < g->count; a++) j->full += attn_group_at_(g, a) < attn_group_at_(g, a + 1);
  return attn_check_apart_(e, ctx, op, COUNT, more, 4);
}

/* out = y + gain u, or [y ; u]; u has a row for each row, or for each segment. */
typedef struct attn_exchange_ {
  const attn_table_ *table;
  attn_tensor o, y, u;
  attn_groups_ groups;
  int per_group, concat;
  float gain;
} attn_exchange_;

ATTN_FUNC_ void attn_exchange_item_(void *job, int worker, int64_t index) {
  const attn_exchange_ *a = (const attn_exchange_ *)job;
  const attn_dtype type = a->o.dtype, f32 = ATTN_F32;
  const int64_t b = index / a->y.heads, h = index % a->y.heads, dv = a->y.dim;
  int64_t n = -1, end = 0;
  (void)worker;
  for (int64_t i = 0, g = 0; i < a->y.len; i++) {
    for (; i == end; g++) { /* the next segment that is not empty */
      end = attn_group_at_(&a->groups, g + 1);
      if (end > i) n++;
    }
    char *o = attn_at_(&a->o, b, h, i);
    const void *y = attn_at_(&a->y, b, h, i), *u = attn_at_(&a->u, b, h, a->per_group ? n : i);
    if (a->concat) {
      a->table->blend(o, y, NULL, type, f32, f32, dv, 1.0f, 0.0f);
      a->table->blend(o + dv * attn_size_(type), u, NULL, type, f32, f32, a->u.dim, 1.0f, 0.0f);
    } else { /* nothing of u when the gain is 0, not even NaN */
      a->table->blend(o, y, a->gain == 0.0f ? NULL : u, type, f32, f32, dv, 1.0f, a->gain);
    }
  }
}

/* u[a] = mean of z over the visible segments, f32. */
typedef struct attn_pool_ {
  attn_tensor u, z;
  int causal;
} attn_pool_;

ATTN_FUNC_ void attn_pool_item_(void *job, int worker, int64_t index) {
  const attn_pool_ *a = (const attn_pool_ *)job;
  const int64_t b = index / a->z.heads, h = index % a->z.heads, n = a->z.len;
  (void)worker;
  for (int64_t c = 0; c < a->z.dim; c++) {
    double sum = 0.0;
    for (int64_t g = 0; !a->causal && g < n; g++) sum += (double)attn_row_f32_(&a->z, b, h, g)[c];
    for (int64_t g = 0; g < n; g++) {
      const int64_t seen = a->causal ? g : n;
      float *u = (float *)(void *)attn_at_(&a->u, b, h, g);
      u[c] = seen > 0 ? (float)(sum / (double)seen) : 0.0f;
      if (a->causal) sum += (double)attn_row_f32_(&a->z, b, h, g)[c];
    }
  }
}

ATTN_FUNC_ int attn_segmented_steps_(attn_stage_ *s, void *job) {
  const attn_segmented_job_ *j = (const attn_segmented_job_ *)job;
  const attn_segmented_params *g = &j->p;
  const int64_t b = j->q.batch, h = j->q.heads, t = j->q.len, n = j->full;
  const int pool = g->integrate == ATTN_INTEGRATE_POOL, rows = g->integrate == ATTN_INTEGRATE_TOKEN;
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.scale = g->scale, p.causal = g->causal, p.lse = g->lse, p.schedule = g->schedule;
  if (g->integrate == ATTN_INTEGRATE_NONE) return attn_stage_sdpa_(s, j->o, j->q, j->k, j->v, &p);
  const attn_tensor y = attn_stage_tensor_(s, b, h, t, j->v.dim);
  const attn_tensor z = attn_stage_tensor_(s, b, h, n, j->v.dim);
  const attn_tensor u = attn_stage_tensor_(s, b, h, rows ? t : n, j->value);
  attn_tensor q = rows ? y : z, k = z, v = z;
  if (g->w_q.data) q = attn_stage_tensor_(s, b, h, q.len, j->key);
  if (g->w_k.data) k = attn_stage_tensor_(s, b, h, n, j->key);
  if (g->w_v.data) v = attn_stage_tensor_(s, b, h, n, j->value);
  if (!attn_stage_sdpa_(s, y, j->q, j->k, j->v, &p) ||
      !attn_stage_gather_(s, z, y, j->groups, &g->aggregate) ||
      (g->w_q.data && !attn_stage_project_(s, q, rows ? y : z, g->w_q)) ||
      (g->w_k.data && !attn_stage_project_(s, k, z, g->w_k)) ||
      (g->w_v.data && !attn_stage_project_(s, v, z, g->w_v)))
    return 0;
  if (pool) {
    attn_pool_ a = {u, v, g->causal};
    attn_stage_for_(s, attn_mul_(b, h), attn_pool_item_, &a, 0, NULL);
  } else {
    memset(&p, 0, sizeof p);
    /* causal: the rows of a segment see the summaries before its own */
    for (int64_t a = 0, seen = 0; a < (g->causal ? j->groups.count : 1); a++) {
      const int64_t i0 = g->causal ? attn_group_at_(&j->groups, a) : 0;
      const int64_t m = g->causal ? attn_group_at_(&j->groups, a + 1) - i0 : u.len;
      const int64_t keys = g->causal ? seen : n;
      if (g->causal && m == 0) continue;
      if (!attn_stage_sdpa_(s, attn_stage_rows_(u, i0, m), attn_stage_rows_(q, i0, m),
                            attn_stage_rows_(k, 0, keys), attn_stage_rows_(v, 0, keys), &p))
        return 0;
      seen++;
    }
  }
  attn_exchange_ a = {
      s->table,  j->o,  y,         u,
      j->groups, !rows, g->concat, g->gain != 0.0f || attn_to_bits_(g->gain) ? g->gain : 1.0f};
  return attn_stage_for_(s, attn_mul_(b, h), attn_exchange_item_, &a, 0, NULL);
}

ATTN_FUNC_ attn_pattern attn_groups_pattern_(const attn_groups_ *g) {
  return g->offsets ? attn_pattern_segments(g->offsets, g->count)
                    : attn_pattern_blocks(g->length, 0, 0);
}

/* The call, or with bytes the workspace query. */
ATTN_FUNC_ attn_status attn_segmented_call_(attn_segmented_job_ *j,
                                            const attn_segmented_params *params, attn_ctx *ctx,
                                            size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  attn_schedule own = {NULL, 0, NULL};
  if (attn_segmented_check_(&e, j, params, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    const attn_pattern segments = attn_groups_pattern_(&j->groups);
    if (j->q.len == 0 || j->q.batch == 0) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no queries");
    } else if (attn_stage_schedule_(&s, &j->p.schedule, &own, &segments, j->q.heads, j->q.len)) {
      attn_stage_call_(&s, ctx, attn_segmented_steps_, j, "segments, then an exchange", bytes);
    }
    attn_schedule_free(&own);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_PUB_ attn_status attn_segmented(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const attn_segmented_params *params, attn_ctx *ctx) {
  attn_segmented_job_ j;
  memset(&j, 0, sizeof j);
  j.o = o, j.q = q, j.k = k, j.v = v;
  return attn_segmented_call_(&j, params, ctx, NULL);
}
ATTN_PUB_ size_t attn_segmented_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, const attn_segmented_params *params,
                                          const attn_ctx *ctx) {
  attn_segmented_job_ j;
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  memset(&j, 0, sizeof j);
  j.o = o, j.q = q, j.k = k, j.v = v;
  attn_segmented_call_(&j, params, &plain, &bytes);
  return bytes;
}
/* <<< attn/mechanisms/segmented.h */
/* >>> attn/mechanisms/hierarchy.h */
/* mechanisms/hierarchy.h owns hierarchical attention: segmented attention level by level, and the
 * sum of all levels at each token. */

typedef struct attn_hierarchy_job_ {
  attn_tensor o, x;
  attn_hierarchy_params p;
  int64_t units[ATTN_HIERARCHY_LEVELS];
  attn_tensor w[3][ATTN_HIERARCHY_LEVELS]; /* of q, k, v */
  attn_tensor y[ATTN_HIERARCHY_LEVELS];    /* outputs */
  attn_tensor row[ATTN_HIERARCHY_LEVELS];  /* f32 */
  attn_aggregate aggregate[ATTN_HIERARCHY_LEVELS];
  const attn_schedule *schedule[ATTN_HIERARCHY_LEVELS];
  const attn_table_ *table;
  char *memory;
  int64_t each;
} attn_hierarchy_job_;

/* One of the optional arrays of tensors; absent = all null. */
ATTN_FUNC_ void attn_hierarchy_copy_(attn_tensor *to, const attn_tensor *from, int64_t levels) {
  for (int64_t l = 0; from && l < levels; l++) to[l] = from[l];
}

ATTN_FUNC_ int attn_hierarchy_levels_(attn_error_ *e, attn_hierarchy_job_ *j) {
  attn_hierarchy_params *p = &j->p;
  if (p->levels == 0) p->levels = 1;
  if (p->levels < 1 || p->levels > ATTN_HIERARCHY_LEVELS)
    return attn_reject_(e, ATTN_E_RANGE, "params.levels must lie in 0..ATTN_HIERARCHY_LEVELS");
  j->units[0] = j->x.len;
  if (j->x.len > INT32_MAX) return attn_reject_(e, ATTN_E_OVERFLOW, "x.len must be below 2^31");
  if (p->levels == 1) return 1;
  if (!p->units || !p->offsets)
    return attn_reject_(
        e, ATTN_E_NULL,
        p->units ? "params.offsets must not be null" : "params.units must not be null");
  for (int64_t l = 0; l < p->levels; l++) {
    j->units[l] = p->units[l];
    if (p->units[l] < 0 || p->units[l] > (l ? p->units[l - 1] : j->x.len) ||
        (l == 0 && p->units[0] != j->x.len))
      return attn_reject_(e, ATTN_E_SHAPE,
                          "params.units must begin with x.len and grow from level to level");
  }
  return 1;
}

ATTN_FUNC_ int attn_hierarchy_check_(attn_error_ *e, attn_hierarchy_job_ *j,
                                     const attn_hierarchy_params *params, const attn_ctx *ctx,
                                     int *workers) {
  static const attn_words_ w[] = {ATTN_WORDS_("x"),          ATTN_WORDS_("o"),
                                  ATTN_WORDS_("params.w_q"), ATTN_WORDS_("params.w_k"),
                                  ATTN_WORDS_("params.w_v"), ATTN_WORDS_("params.y")};
  static const char *const rule[] = {
      "params.w_q must be [1, 1 or x.heads, width of the level, width of its queries]",
      "params.w_k must be [1, 1 or x.heads, width of the level, width of its queries]",
      "params.w_v must be [1, 1 or x.heads, width of the level, width of the next]",
      "params.y must be [x.batch, x.heads, units of the level, its width]"};
  enum { LEVELS = ATTN_HIERARCHY_LEVELS };
  attn_operand_ op[2 + 4 * LEVELS];
  attn_span_ more[4 * LEVELS + 1];
  attn_hierarchy_params *p = &j->p;
  int n = 2, m = 0;
  memset(op, 0, sizeof op);
  memset(more, 0, sizeof more);
  if (!attn_check_ctx_(e, ctx, &j->table, workers)) return 0;
  if (params) *p = *params;
  op[0].t = &j->x, op[0].w = &w[0];
  op[0].batch = op[0].heads = op[0].len = op[0].dim = ATTN_ANY_;
  if (!attn_check_operand_(e, &op[0], 1)) return 0;
  if (j->x.heads < 1) return attn_reject_(e, ATTN_E_SHAPE, "x.heads must be at least 1");
  if (!attn_hierarchy_levels_(e, j)) return 0;
  attn_hierarchy_copy_(j->w[0], p->w_q, p->levels);
  attn_hierarchy_copy_(j->w[1], p->w_k, p->levels);
  attn_hierarchy_copy_(j->w[2], p->w_v, p->levels);
  attn_hierarchy_copy_(j->y, p->y, p->levels);
  const int64_t b = j->x.batch, h = j->x.heads;
  const int optional = ATTN_OPTIONAL_;
  op[1].t = &j->o, op[1].w = &w[1], op[1].role = ATTN_OUT_ | optional;
  op[1].batch = b, op[1].heads = h, op[1].len = j->x.len, op[1].dim = ATTN_ANY_;
  op[1].rule = "o must be [x.batch, x.heads, x.len, width of every level]";
  if (!attn_check_operand_(e, &op[1], h)) return 0;
  int64_t d = j->x.dim;
  for (int64_t l = 0; l < p->levels; l++) {
    const int64_t key = j->w[0][l].data ? j->w[0][l].dim : d;
    for (int i = 0; i < 4; i++, n++) {
      op[n].t = i < 3 ? &j->w[i][l] : &j->y[l], op[n].w = &w[2 + i], op[n].rule = rule[i];
      op[n].role = i < 3 ? optional : ATTN_OUT_ | optional;
      op[n].batch = i < 3 ? 1 : b, op[n].heads = i < 3 ? (int64_t)ATTN_ONE_OR_ALL_ : h;
      op[n].len = i < 3 ? d : j->units[l], op[n].dim = i == 1 ? key : (int64_t)ATTN_ANY_;
      if (!attn_check_operand_(e, &op[n], h)) return 0;
    }
    if (!j->w[1][l].data && key != d) return attn_reject_(e, ATTN_E_SHAPE, rule[1]);
    if (j->w[2][l].data) d = j->w[2][l].dim;
    if (j->y[l].data && j->y[l].dim != d) return attn_reject_(e, ATTN_E_SHAPE, rule[3]);
    if (j->o.data && j->o.dim != d) return attn_reject_(e, ATTN_E_SHAPE, op[1].rule);
    j->row[l].dim = d;
    if (l + 1 == p->levels) break;
    if (p->aggregates) j->aggregate[l] = p->aggregates[l];
    const int32_t *offsets = p->offsets[l];
    if (!offsets) return attn_reject_(e, ATTN_E_NULL, "params.offsets must not hold null");
    if (!attn_check_aggregate_(e, &j->aggregate[l], h, d, &more[m]) ||
        !attn_check_array_(e, offsets, j->units[l + 1] + 1, 4,
                           "params.offsets must be aligned to their elements", &more[m + 3]) ||
        !attn_check_offsets_(
            e, offsets, j->units[l + 1], j->units[l], 1,
            "params.offsets must go from 0 to the units of their level, ascending"))
      return 0;
    m += 4;
  }
  if (!attn_check_array_(e, p->gains, p->levels, 4, "params.gains must be aligned to its elements",
                         &more[m++]) ||
      !attn_check_logits_(e, p->gains, p->levels, 1, "params.gains must be finite") ||
      !attn_check_scale_(e, p->scale))
    return 0;
  return attn_check_apart_(e, ctx, op, n, more, m);
}

/* The sum of the levels at each token of one head. */
ATTN_FUNC_ void attn_hierarchy_item_(void *job, int worker, int64_t index) {
  const attn_hierarchy_job_ *j = (const attn_hierarchy_job_ *)job;
  const int64_t b = index / j->x.heads, h = index % j->x.heads, dim = j->o.dim;
  float *sum = (float *)(void *)(j->memory + worker * j->each);
  int64_t unit[ATTN_HIERARCHY_LEVELS] = {0};
  for (int64_t i = 0; i < j->x.len; i++) {
    unit[0] = i;
    j->table->blend(sum, NULL, NULL, ATTN_F32, ATTN_F32, ATTN_F32, dim, 0.0f, 0.0f);
    for (int64_t l = 0; l < j->p.levels; l++) {
      const float gain = j->p.gains ? j->p.gains[l] : 1.0f;
      if (l > 0)
        while (unit[l - 1] >= j->p.offsets[l - 1][unit[l] + 1]) unit[l]++;
      const int64_t u = l > 0 && j->p.causal ? unit[l] - 1 : unit[l];
      if (u < 0 || gain == 0.0f) continue;
      j->table->blend(sum, sum, attn_at_(&j->row[l], b, h, u), ATTN_F32, ATTN_F32, ATTN_F32, dim,
                      1.0f, gain);
    }
    j->table->blend(attn_at_(&j->o, b, h, i), sum, NULL, j->o.dtype, ATTN_F32, ATTN_F32, dim, 1.0f,
                    0.0f);
  }
}

/* Rows of a level into an output of another type. */
typedef struct attn_copy_ {
  const attn_table_ *table;
  attn_tensor to, from;
} attn_copy_;

ATTN_FUNC_ void attn_copy_item_(void *job, int worker, int64_t index) {
  const attn_copy_ *a = (const attn_copy_ *)job;
  const int64_t b = index / a->to.heads, h = index % a->to.heads;
  (void)worker;
  for (int64_t i = 0; i < a->to.len; i++)
    a->table->blend(attn_at_(&a->to, b, h, i), attn_at_(&a->from, b, h, i), NULL, a->to.dtype,
                    a->from.dtype, ATTN_F32, a->to.dim, 1.0f, 0.0f);
}

ATTN_FUNC_ int attn_hierarchy_steps_(attn_stage_ *s, void *job) {
  attn_hierarchy_job_ *j = (attn_hierarchy_job_ *)job;
  const int64_t b = j->x.batch, h = j->x.heads;
  attn_tensor state = j->x;
  for (int64_t l = 0; l < j->p.levels; l++) {
    const int64_t n = j->units[l], d = j->row[l].dim;
    attn_tensor in[3]; /* q, k, v */
    attn_sdpa_params p;
    memset(&p, 0, sizeof p);
    for (int i = 0; i < 3; i++) {
      in[i] = state;
      if (!j->w[i][l].data) continue;
      in[i] = attn_stage_tensor_(s, b, h, n, j->w[i][l].dim);
      if (!attn_stage_project_(s, in[i], state, j->w[i][l])) return 0;
    }
    const int direct = j->y[l].data && j->y[l].dtype == ATTN_F32;
    j->row[l] = direct ? j->y[l] : attn_stage_tensor_(s, b, h, n, d);
    p.scale = j->p.scale, p.causal = j->p.causal, p.schedule = j->schedule[l];
    if (!attn_stage_sdpa_(s, j->row[l], in[0], in[1], in[2], &p)) return 0;
    if (j->y[l].data && !direct) {
      attn_copy_ a = {s->table, j->y[l], j->row[l]};
      attn_stage_for_(s, attn_mul_(b, h), attn_copy_item_, &a, 0, NULL);
    }
    if (l + 1 == j->p.levels) break;
    const attn_groups_ groups = {j->p.offsets[l], j->units[l + 1], 0, n};
    state = attn_stage_tensor_(s, b, h, j->units[l + 1], d);
    if (!attn_stage_gather_(s, state, j->row[l], groups, &j->aggregate[l])) return 0;
  }
  j->each = attn_piece_(j->o.data ? j->o.dim : 0, sizeof(float));
  return !j->o.data ||
         attn_stage_for_(s, attn_mul_(b, h), attn_hierarchy_item_, j, j->each, &j->memory);
}

/* The call, or with bytes the workspace query. */
ATTN_FUNC_ attn_status attn_hierarchy_call_(attn_hierarchy_job_ *j,
                                            const attn_hierarchy_params *params, attn_ctx *ctx,
                                            size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_schedule own[ATTN_HIERARCHY_LEVELS];
  int workers, ok = 1;
  memset(own, 0, sizeof own);
  if (attn_hierarchy_check_(&e, j, params, ctx, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, j->table, workers, ctx, bytes != NULL);
    if (j->x.len == 0 || j->x.batch == 0) {
      if (!bytes) attn_report_(ctx, j->table, 1, "no-op", "no tokens");
      return attn_end_(bytes ? NULL : ctx, &e);
    }
    for (int64_t l = 0; ok && l + 1 < j->p.levels; l++) {
      const attn_pattern groups = attn_pattern_segments(j->p.offsets[l], j->units[l + 1]);
      if (j->p.schedules) j->schedule[l] = &j->p.schedules[l];
      ok = attn_stage_schedule_(&s, &j->schedule[l], &own[l], &groups, j->x.heads, j->units[l]);
    }
    if (ok) attn_stage_call_(&s, ctx, attn_hierarchy_steps_, j, "levels of segments", bytes);
    for (int l = 0; l < ATTN_HIERARCHY_LEVELS; l++) attn_schedule_free(&own[l]);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_PUB_ attn_status attn_hierarchy(attn_tensor o, attn_tensor x,
                                     const attn_hierarchy_params *params, attn_ctx *ctx) {
  attn_hierarchy_job_ j;
  memset(&j, 0, sizeof j);
  j.o = o, j.x = x;
  return attn_hierarchy_call_(&j, params, ctx, NULL);
}
ATTN_PUB_ size_t attn_hierarchy_workspace(attn_tensor o, attn_tensor x,
                                          const attn_hierarchy_params *params,
                                          const attn_ctx *ctx) {
  attn_hierarchy_job_ j;
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  memset(&j, 0, sizeof j);
  j.o = o, j.x = x;
  attn_hierarchy_call_(&j, params, &plain, &bytes);
  return bytes;
}
/* <<< attn/mechanisms/hierarchy.h */
/* >>> attn/mechanisms/xl_layer.h */
/* mechanisms/xl_layer.h owns the layer of Transformer-XL: its projections around one attn_sdpa with
 * the xl term. */

typedef struct attn_xl_job_ {
  attn_tensor o, x;
  attn_xl_layer_params p;
  int64_t dk, dv;
} attn_xl_job_;

ATTN_FUNC_ int attn_xl_check_(attn_error_ *e, attn_xl_job_ *j, const attn_xl_layer_params *params,
                              const attn_ctx *ctx, const attn_table_ **table, int *workers) {
  static const attn_words_ w[] = {
      ATTN_WORDS_("x"),          ATTN_WORDS_("params.mem"), ATTN_WORDS_("params.w_q"),
      ATTN_WORDS_("params.w_k"), ATTN_WORDS_("params.w_r"), ATTN_WORDS_("params.w_v"),
      ATTN_WORDS_("params.w_o"), ATTN_WORDS_("o"),          ATTN_WORDS_("params.lse")};
  enum { X, MEM, WQ, WK, WR, WV, WO, O, LSE, COUNT };
  attn_xl_layer_params *p = &j->p;
  const int64_t any = ATTN_ANY_;
  attn_span_ more[2];
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has the weights");
  *p = *params;
  if (p->heads == 0) p->heads = 1;
  if (p->heads < 1) return attn_reject_(e, ATTN_E_SHAPE, "params.heads must not be negative");
  const int64_t b = j->x.batch, t = j->x.len, dm = j->x.dim, h = p->heads;
  const int out = p->w_o.data != NULL;
  if (p->w_q.dim % h || p->w_v.dim % h)
    return attn_reject_(e, ATTN_E_HEADS, "params.heads must divide w_q.dim and w_v.dim");
  j->dk = p->w_q.dim / h, j->dv = p->w_v.dim / h;
  attn_operand_ op[COUNT] = {
      {&j->x, &w[X], 0, any, 1, any, any, "x must have one head", {0, 0}},
      {&p->mem,
       &w[MEM],
       ATTN_OPTIONAL_,
       b,
       1,
       any,
       dm,
       "params.mem must be [x.batch, 1, M, x.dim]",
       {0, 0}},
      {&p->w_q, &w[WQ], 0, 1, 1, dm, any, "params.w_q must be [1, 1, x.dim, heads * dk]", {0, 0}},
      {&p->w_k, &w[WK], 0, 1, 1, dm, p->w_q.dim, "params.w_k must have the shape of w_q", {0, 0}},
      {&p->w_r, &w[WR], 0, 1, 1, dm, p->w_q.dim, "params.w_r must have the shape of w_q", {0, 0}},
      {&p->w_v, &w[WV], 0, 1, 1, dm, any, "params.w_v must be [1, 1, x.dim, heads * dv]", {0, 0}},
      {&p->w_o,
       &w[WO],
       ATTN_OPTIONAL_,
       1,
       1,
       p->w_v.dim,
       any,
       "params.w_o must be [1, 1, heads * dv, .]",
       {0, 0}},
      {&j->o,
       &w[O],
       ATTN_OUT_,
       b,
       out ? 1 : h,
       t,
       out ? p->w_o.dim : j->dv,
       "o must be [x.batch, 1, x.len, w_o.dim], without w_o [x.batch, heads, x.len, dv]",
       {0, 0}},
      {&p->lse,
       &w[LSE],
       ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_,
       b,
       h,
       t,
       1,
       "params.lse must be f32 [x.batch, heads, x.len, 1]",
       {0, 0}}};
  for (int i = 0; i < COUNT; i++)
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  if (!p->mem.data) p->mem.len = 0;
  if (t >= (int64_t)1 << 39 || p->mem.len >= (int64_t)1 << 39)
    return attn_reject_(e, ATTN_E_OVERFLOW, "x.len and params.mem.len must be below 2^39");
  if (p->base == 0.0) p->base = 10000.0;
  if (!(p->base > 0.0 && p->base < HUGE_VAL))
    return attn_reject_(e, ATTN_E_VALUE, "params.base must be positive and finite");
  const char *align = "params.u and .v must be aligned to their elements";
  return attn_check_scale_(e, p->scale) &&
         attn_check_array_(e, p->u, p->w_q.dim, 4, align, &more[0]) &&
         attn_check_array_(e, p->v, p->w_q.dim, 4, align, &more[1]) &&
         attn_check_apart_(e, ctx, op, COUNT, more, 2);
}

/* Columns of a weight as one matrix per head. */
ATTN_FUNC_ attn_tensor attn_xl_heads_(attn_tensor w, int64_t heads) {
  w.dim /= heads, w.heads = heads, w.stride_head = w.dim;
  return w;
}

ATTN_FUNC_ int attn_xl_steps_(attn_stage_ *s, void *job) {
  const attn_xl_job_ *j = (const attn_xl_job_ *)job;
  const attn_xl_layer_params *g = &j->p;
  const int64_t b = j->x.batch, h = g->heads, t = j->x.len, m = g->mem.len, keys = m + t;
  const attn_tensor w_q = attn_xl_heads_(g->w_q, h), w_k = attn_xl_heads_(g->w_k, h);
  const attn_tensor w_r = attn_xl_heads_(g->w_r, h), w_v = attn_xl_heads_(g->w_v, h);
  const int64_t first = g->bidirectional && t > 0 ? 1 - t : 0;
  const attn_tensor q = attn_stage_tensor_(s, b, h, t, j->dk);
  const attn_tensor k = attn_stage_tensor_(s, b, h, keys, j->dk);
  const attn_tensor v = attn_stage_tensor_(s, b, h, keys, j->dv);
  const attn_tensor sines = attn_stage_tensor_(s, 1, 1, keys - first, j->x.dim);
  const attn_tensor r = attn_stage_tensor_(s, 1, h, keys - first, j->dk);
  attn_sinusoid_params pe;
  attn_sdpa_params p;
  memset(&pe, 0, sizeof pe);
  memset(&p, 0, sizeof p);
  pe.start = first, pe.base = g->base;
  pe.layout = g->interleaved ? ATTN_SINUSOID_INTERLEAVED : ATTN_SINUSOID_HALVES;
  if (!attn_stage_sinusoid_(s, sines, &pe) || !attn_stage_project_(s, r, sines, w_r) ||
      !attn_stage_project_(s, q, j->x, w_q) ||
      !attn_stage_project_(s, attn_stage_rows_(k, m, t), j->x, w_k) ||
      !attn_stage_project_(s, attn_stage_rows_(v, m, t), j->x, w_v))
    return 0;
  if (m > 0 && (!attn_stage_project_(s, attn_stage_rows_(k, 0, m), g->mem, w_k) ||
                !attn_stage_project_(s, attn_stage_rows_(v, 0, m), g->mem, w_v)))
    return 0;
  p.scale = g->scale, p.causal = !g->bidirectional, p.lse = g->lse;
  p.xl.table = r, p.xl.first = first;
  p.xl.content_bias = g->u, p.xl.distance_bias = g->v;
  if (!g->w_o.data) return attn_stage_sdpa_(s, j->o, q, k, v, &p);
  /* the heads side by side, so that one product joins them */
  const int64_t wide = attn_mul_(h, j->dv);
  attn_tensor all = attn_stage_tensor_(s, b, 1, t, wide);
  attn_tensor o = attn_bthd(all.data, ATTN_F32, b, t, h, j->dv);
  return attn_stage_sdpa_(s, o, q, k, v, &p) && attn_stage_project_(s, j->o, all, g->w_o);
}

/* The call, or with bytes the workspace query. */
ATTN_FUNC_ attn_status attn_xl_call_(attn_xl_job_ *j, const attn_xl_layer_params *params,
                                     attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_xl_check_(&e, j, params, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (j->x.len == 0 || j->x.batch == 0) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no queries");
    } else {
      attn_stage_call_(&s, ctx, attn_xl_steps_, j, "projections, xl scores", bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_PUB_ attn_status attn_xl_layer(attn_tensor o, attn_tensor x,
                                    const attn_xl_layer_params *params, attn_ctx *ctx) {
  attn_xl_job_ j;
  memset(&j, 0, sizeof j);
  j.o = o, j.x = x;
  return attn_xl_call_(&j, params, ctx, NULL);
}
ATTN_PUB_ size_t attn_xl_layer_workspace(attn_tensor o, attn_tensor x,
                                         const attn_xl_layer_params *params, const attn_ctx *ctx) {
  attn_xl_job_ j;
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  memset(&j, 0, sizeof j);
  j.o = o, j.x = x;
  attn_xl_call_(&j, params, &plain, &bytes);
  return bytes;
}
/* <<< attn/mechanisms/xl_layer.h */
ATTN_END_STRICT_
#ifdef __cplusplus
}
#endif
/* >>> attn/isa/undef.h */
/* isa/undef.h forgets every private macro, so that no name ending in an underscore remains. */
#undef ATTN_AHEAD_
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
#undef ATTN_LANES_
#undef ATTN_LANE_
#undef ATTN_LN2_
#undef ATTN_LOG2E_
#undef ATTN_MSVC_
#undef ATTN_NAME_FIRST_
#undef ATTN_NAME_REST_
#undef ATTN_PAIR_
#undef ATTN_PLAN_MAGIC_
#undef ATTN_PASS_
#undef ATTN_PRAGMA_
#undef ATTN_PREFETCH_
#undef ATTN_PRAGMA_EXPAND_
#undef ATTN_PUB_
#undef ATTN_QUAD_
#undef ATTN_ROOM_
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
