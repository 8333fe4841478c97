/* isa/subnormal.h owns the switch by which a loop asks for subnormal numbers to count as 0, inputs and results. Where what
 * is left of a state becomes that small its products are nothing, but a core of Intel's takes 150 cycles for each.
 * Compilers or processors without the switch keep them. */

#if (defined(__x86_64__) || defined(_M_X64)) && \
    (defined(ATTN_HAS_AVX2_) || defined(ATTN_HAS_AVX512_))
typedef unsigned attn_float_mode_;
ATTN_FUNC_ attn_float_mode_ attn_subnormals_off_(void) {
  const unsigned was = _mm_getcsr();
  _mm_setcsr(was | 0x8040u); /* FTZ, DAZ */
  return was;
}
ATTN_FUNC_ void attn_subnormals_as_(attn_float_mode_ was) { _mm_setcsr(was); }
#elif defined(ATTN_ARM64_) && defined(__GNUC__)
typedef uint64_t attn_float_mode_;
ATTN_FUNC_ void attn_subnormals_as_(attn_float_mode_ was) {
  __asm__ __volatile__("msr fpcr, %0" : : "r"(was) : "memory");
}
ATTN_FUNC_ attn_float_mode_ attn_subnormals_off_(void) {
  uint64_t was;
  __asm__ __volatile__("mrs %0, fpcr" : "=r"(was));
  attn_subnormals_as_(was | 1u << 24); /* FZ */
  return was;
}
#else
typedef int attn_float_mode_;
ATTN_FUNC_ attn_float_mode_ attn_subnormals_off_(void) { return 0; }
ATTN_FUNC_ void attn_subnormals_as_(attn_float_mode_ was) { (void)was; }
#endif
