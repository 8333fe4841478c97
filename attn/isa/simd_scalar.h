/* isa/simd_scalar.h owns the vocabulary of the scalar tier in portable C: 4 lanes as a vector of the
 * compiler's, which it maps to whatever the baseline has, or as a plain struct where it knows none.
 * The words are explained in isa/simd_avx512.h. FMA rounds twice here: this tier is held to the error
 * bounds, not the bits. What is rare stays out of line: this tier is there to be small. */

#define ATTN_T_ scalar
#define ATTN_ISA_ID_ ATTN_ISA_SCALAR
#define ATTN_W_ 4
#define ATTN_MR_ 1
#define ATTN_NG_ 1
#define ATTN_ROW_COLS_ 4
#define ATTN_SPECIALISE_ 0 /* it would cost compile time, and gain little here */

#define ATTN_VF_ attn_v4_
#define ATTN_VM_ attn_m4_
#ifdef ATTN_VECTORS_
typedef float attn_v4_ __attribute__((vector_size(16)));
typedef float attn_v4_at_ __attribute__((vector_size(16), aligned(4)));
typedef int32_t attn_m4_ __attribute__((vector_size(16)));
typedef uint32_t attn_p4_ __attribute__((vector_size(16)));
#define attn_lane_(v, i) (v)[i]
#define ATTN_V_LOAD_(p) ((attn_v4_) * (const attn_v4_at_ *)(p))
#define ATTN_V_STORE_(p, v) ((void)(*(attn_v4_at_ *)(p) = (v)))
#define ATTN_V_SET1_(x) ((x)-ATTN_VECTOR_ZERO_(attn_v4_))
#define ATTN_V_ZERO_() ATTN_VECTOR_ZERO_(attn_v4_)
#define ATTN_V_ADD_(a, b) ((a) + (b))
#define ATTN_V_SUB_(a, b) ((a) - (b))
#define ATTN_V_MUL_(a, b) ((a) * (b))
#define ATTN_V_DIV_(a, b) ((a) / (b))
#define ATTN_V_FMA_(a, b, c) ((a) * (b) + (c))
#define ATTN_V_MAX_(a, b) attn_max_scalar_(a, b)
#define ATTN_V_ABS_(a) ((attn_v4_)((attn_m4_)(a)&0x7fffffff))
#define ATTN_V_EQ_(a, b) ((attn_m4_)((a) == (b)))
#define ATTN_V_LT_(a, b) ((attn_m4_)((a) < (b)))
#define ATTN_V_SELECT_(m, a, b) attn_select_scalar_(m, a, b)
#else
typedef struct {
  float f[4];
} attn_v4_;
typedef struct {
  int32_t f[4];
} attn_m4_;
typedef struct {
  uint32_t f[4];
} attn_p4_;
#define attn_lane_(v, i) (v).f[i]
#define ATTN_V_LOAD_(p) attn_load_part_scalar_(p, 4)
#define ATTN_V_STORE_(p, v) attn_store_part_scalar_(p, v, 4)
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
#endif
#define ATTN_V_LOAD_PART_(p, n) attn_load_part_scalar_(p, n)
#define ATTN_V_STORE_PART_(p, v, n) attn_store_part_scalar_(p, v, n)
#define ATTN_V_APART_() ((void)0)
#define ATTN_V_SLIP_(a, b, p) attn_slip_scalar_(a, b, p)
#define ATTN_V_SQRT_(a) attn_sqrt_scalar_(a)
#define ATTN_V_ALL_(m) (attn_chosen_scalar_(m) == 15)
#define ATTN_V_CHOSEN_(m) attn_chosen_scalar_(m)
#define ATTN_V_ROUND_(x, t, n)                        \
  (t) = ATTN_V_ADD_(x, ATTN_V_SET1_(ATTN_EXP_BIAS_)), \
  (n) = ATTN_V_SUB_(t, ATTN_V_SET1_(ATTN_EXP_BIAS_))
#define ATTN_EXP_UNIT_ 2.0f
#define ATTN_V_EXP_FLOOR_(x) ATTN_V_MAX_(ATTN_V_SET1_(-126.0f), x)
#define ATTN_V_LDEXP_SMALL_(p, t, n) attn_ldexp_small_scalar_(p, t)
#define ATTN_V_LDEXP_(p, t, n) ((void)(t), attn_ldexp_scalar_(p, n))
#define ATTN_V_LOAD_F16_(p) attn_load_f16_scalar_(p)
#define ATTN_V_STORE_F16_(p, v) attn_store_f16_scalar_(p, v)
#define ATTN_V_SET1_F16_(h) ATTN_V_SET1_(attn_from_f16_(h))
#define ATTN_V_LOAD_BF16_(p) attn_load_bf16_scalar_(p)
#define ATTN_V_STORE_BF16_(p, v) attn_store_bf16_scalar_(p, v)
#define ATTN_V_LOAD_I8_(p) attn_load_i8_scalar_(p)
#define ATTN_V_LOAD_E4M3_(p) attn_load_e4m3_scalar_(p)
#define ATTN_V_LOAD_I4_(p) attn_load_i4_scalar_(p)
#define ATTN_V_LOAD_I4_EVEN_(p) attn_nibbles_scalar_(p, 0)
#define ATTN_V_LOAD_I4_ODD_(p) attn_nibbles_scalar_(p, 4)
#define ATTN_VP_ attn_p4_
#define ATTN_PAIR_LOAD_(p) attn_load_pairs_scalar_(p)
#define ATTN_PAIR_STORE_(p, v) attn_store_pairs_scalar_(p, v)
#define ATTN_PAIR_SET1_(x) attn_set1_pairs_scalar_(x)
#define ATTN_PAIR_EVEN_(v) attn_half_scalar_(v, 16)
#define ATTN_PAIR_ODD_(v) attn_half_scalar_(v, 0)
#define ATTN_PAIR_JOIN_(even, odd) attn_join_pairs_scalar_(even, odd)
#define ATTN_VU_ attn_p4_
#define ATTN_U_LOAD_(p) attn_load_pairs_scalar_(p)
#define ATTN_U_SET1_(x) attn_set1_pairs_scalar_(x)
#define ATTN_U_TIMES_(up, low, a, m) attn_times_scalar_(&(up), &(low), a, m)
#define ATTN_U_XOR_(a, b, c) attn_xor_scalar_(a, b, c)
#define ATTN_U_LEAST_(a, t) attn_least_scalar_(a, t)
#define ATTN_V_ZIP_(to, even, odd) attn_zip_scalar_(to, even, odd)
#define ATTN_V_BITS_(bits) attn_bits_scalar_(bits)
#define ATTN_V_WITHIN_(x, lo, len) attn_within_scalar_(x, lo, len)
#define ATTN_V_GATHER_(p, i) attn_gather_scalar_(p, i)
#define ATTN_V_SWAP_PAIRS_(a) attn_swap_pairs_scalar_(a)
#define ATTN_V_REVERSE_(a) attn_reverse_scalar_(a)
#define ATTN_V_TRANSPOSE_(r) attn_transpose_scalar_(r)
#define ATTN_V_SUMS_(r) attn_sums_scalar_(r)
#define ATTN_V_SUM_(v) attn_sum_scalar_(v)
#define ATTN_V_TOP_(v) attn_top_scalar_(v)
#define ATTN_V_SLEEF_(f) attn_sleef_##f##_scalar_

#define ATTN_LANES_(expr)                                \
  for (int i = 0; i < 4; i++) attn_lane_(r, i) = (expr); \
  return r;
#define ATTN_FLAGS_(expr)                                          \
  for (int i = 0; i < 4; i++) attn_lane_(r, i) = -(int32_t)(expr); \
  return r;

ATTN_INLINE_ attn_v4_ attn_slip_scalar_(attn_v4_ a, attn_v4_ b, attn_v4_ p) {
  attn_v4_ r;
  ATTN_LANES_(
      (float)((double)attn_lane_(a, i) * (double)attn_lane_(b, i) - (double)attn_lane_(p, i)))
}
#ifdef ATTN_VECTORS_
ATTN_INLINE_ attn_v4_ attn_select_scalar_(attn_m4_ m, attn_v4_ a, attn_v4_ b) {
  return (attn_v4_)((m & (attn_m4_)a) | (~m & (attn_m4_)b));
}
ATTN_INLINE_ attn_v4_ attn_max_scalar_(attn_v4_ a, attn_v4_ b) {
  return attn_select_scalar_((attn_m4_)(a > b), a, b);
}
#else
ATTN_INLINE_ attn_v4_ attn_set1_scalar_(float x) {
  attn_v4_ r;
  ATTN_LANES_(x)
}
ATTN_INLINE_ attn_v4_ attn_add_scalar_(attn_v4_ a, attn_v4_ b) {
  attn_v4_ r;
  ATTN_LANES_(attn_lane_(a, i) + attn_lane_(b, i))
}
ATTN_INLINE_ attn_v4_ attn_sub_scalar_(attn_v4_ a, attn_v4_ b) {
  attn_v4_ r;
  ATTN_LANES_(attn_lane_(a, i) - attn_lane_(b, i))
}
ATTN_INLINE_ attn_v4_ attn_mul_scalar_(attn_v4_ a, attn_v4_ b) {
  attn_v4_ r;
  ATTN_LANES_(attn_lane_(a, i) * attn_lane_(b, i))
}
ATTN_INLINE_ attn_v4_ attn_div_scalar_(attn_v4_ a, attn_v4_ b) {
  attn_v4_ r;
  ATTN_LANES_(attn_lane_(a, i) / attn_lane_(b, i))
}
ATTN_INLINE_ attn_v4_ attn_fma_scalar_(attn_v4_ a, attn_v4_ b, attn_v4_ c) {
  attn_v4_ r;
  ATTN_LANES_(attn_lane_(a, i) * attn_lane_(b, i) + attn_lane_(c, i))
}
ATTN_INLINE_ attn_v4_ attn_max_scalar_(attn_v4_ a, attn_v4_ b) {
  attn_v4_ r;
  ATTN_LANES_(attn_lane_(a, i) > attn_lane_(b, i) ? attn_lane_(a, i) : attn_lane_(b, i))
}
ATTN_INLINE_ attn_v4_ attn_abs_scalar_(attn_v4_ a) {
  attn_v4_ r;
  ATTN_LANES_(attn_lane_(a, i) < 0.0f ? -attn_lane_(a, i) : attn_lane_(a, i))
}
ATTN_INLINE_ attn_m4_ attn_eq_scalar_(attn_v4_ a, attn_v4_ b) {
  attn_m4_ r;
  ATTN_FLAGS_(attn_lane_(a, i) == attn_lane_(b, i))
}
ATTN_INLINE_ attn_m4_ attn_lt_scalar_(attn_v4_ a, attn_v4_ b) {
  attn_m4_ r;
  ATTN_FLAGS_(attn_lane_(a, i) < attn_lane_(b, i))
}
ATTN_INLINE_ attn_v4_ attn_select_scalar_(attn_m4_ m, attn_v4_ a, attn_v4_ b) {
  attn_v4_ r;
  ATTN_LANES_(attn_lane_(m, i) ? attn_lane_(a, i) : attn_lane_(b, i))
}
#endif

ATTN_FUNC_ attn_v4_ attn_load_part_scalar_(const float *p, int n) {
  attn_v4_ r = {0};
  ATTN_LANES_(i < n ? p[i] : 0.0f)
}
ATTN_FUNC_ void attn_store_part_scalar_(float *p, attn_v4_ v, int n) {
  for (int i = 0; i < n; i++) p[i] = attn_lane_(v, i);
}
ATTN_FUNC_ attn_v4_ attn_sqrt_scalar_(attn_v4_ a) {
  attn_v4_ r = {0};
  ATTN_LANES_(sqrtf(attn_lane_(a, i)))
}
ATTN_INLINE_ uint64_t attn_chosen_scalar_(attn_m4_ m) {
  return (uint64_t)((attn_lane_(m, 0) & 1) | (attn_lane_(m, 1) & 2) | (attn_lane_(m, 2) & 4) |
                    (attn_lane_(m, 3) & 8));
}
ATTN_INLINE_ attn_v4_ attn_ldexp_small_scalar_(attn_v4_ p, attn_v4_ t) {
  attn_v4_ r = {0};
  ATTN_LANES_(attn_lane_(p, i) * attn_from_bits_(attn_to_bits_(attn_lane_(t, i)) << 23))
}
/* 2^(n-1), n an integer in -150..128 or NaN; two exact-or-once-rounded steps as in the other tiers
 */
ATTN_FUNC_ attn_v4_ attn_ldexp_scalar_(attn_v4_ p, attn_v4_ n) {
  attn_v4_ r = {0};
  for (int i = 0; i < 4; i++) {
    int e = attn_lane_(n, i) > -151.0f && attn_lane_(n, i) < 129.0f ? (int)attn_lane_(n, i) - 1
                                                                    : 0; /* else p is NaN */
    int half = e < 0 ? -((1 - e) / 2) : e / 2;
    uint32_t s = (uint32_t)(half + 127) << 23, t = (uint32_t)(e - half + 127) << 23;
    attn_lane_(r, i) = attn_lane_(p, i) * attn_from_bits_(s) * attn_from_bits_(t);
  }
  return r;
}
ATTN_FUNC_ attn_v4_ attn_load_f16_scalar_(const uint16_t *p) {
  attn_v4_ r = {0};
  ATTN_LANES_(attn_from_f16_(p[i]))
}
ATTN_FUNC_ void attn_store_f16_scalar_(uint16_t *p, attn_v4_ v) {
  for (int i = 0; i < 4; i++) p[i] = attn_to_f16_(attn_lane_(v, i));
}
ATTN_FUNC_ attn_v4_ attn_load_bf16_scalar_(const uint16_t *p) {
  attn_v4_ r = {0};
  ATTN_LANES_(attn_from_bf16_(p[i]))
}
ATTN_FUNC_ void attn_store_bf16_scalar_(uint16_t *p, attn_v4_ v) {
  for (int i = 0; i < 4; i++) p[i] = attn_to_bf16_(attn_lane_(v, i));
}
ATTN_INLINE_ attn_p4_ attn_load_pairs_scalar_(const uint32_t *p) {
  attn_p4_ r;
  memcpy(&r, p, sizeof r);
  return r;
}
ATTN_INLINE_ void attn_store_pairs_scalar_(uint32_t *p, attn_p4_ v) { memcpy(p, &v, sizeof v); }
ATTN_INLINE_ attn_p4_ attn_set1_pairs_scalar_(uint32_t x) {
  attn_p4_ r = {0};
  ATTN_LANES_(x)
}
ATTN_INLINE_ attn_v4_ attn_half_scalar_(attn_p4_ v, int shift) {
  attn_v4_ r = {0};
  ATTN_LANES_(attn_from_bits_(attn_lane_(v, i) << shift & 0xffff0000u))
}
ATTN_FUNC_ attn_p4_ attn_join_pairs_scalar_(attn_v4_ even, attn_v4_ odd) {
  attn_p4_ r = {0};
  ATTN_LANES_(attn_to_bf16_(attn_lane_(even, i)) | (uint32_t)attn_to_bf16_(attn_lane_(odd, i))
                                                       << 16)
}
ATTN_FUNC_ attn_v4_ attn_load_i8_scalar_(const void *p) {
  attn_v4_ r = {0};
  ATTN_LANES_((float)((const signed char *)p)[i])
}
ATTN_FUNC_ attn_v4_ attn_load_e4m3_scalar_(const void *p) {
  attn_v4_ r = {0};
  ATTN_LANES_(attn_from_e4m3_(((const unsigned char *)p)[i]))
}
ATTN_FUNC_ attn_v4_ attn_load_i4_scalar_(const void *p) {
  attn_v4_ r = {0};
  ATTN_LANES_(attn_from_i4_((const unsigned char *)p, i))
}
ATTN_FUNC_ attn_m4_ attn_bits_scalar_(uint64_t bits) {
  attn_m4_ r = {0};
  ATTN_FLAGS_(bits >> i & 1)
}
ATTN_FUNC_ attn_m4_ attn_within_scalar_(uint32_t x, const uint32_t *lo, const uint32_t *len) {
  attn_m4_ r = {0};
  ATTN_FLAGS_(x - lo[i] < len[i])
}
ATTN_FUNC_ attn_v4_ attn_gather_scalar_(const float *p, const int32_t *index) {
  attn_v4_ r = {0};
  ATTN_LANES_(p[index[i]])
}
ATTN_FUNC_ attn_v4_ attn_reverse_scalar_(attn_v4_ a) {
  attn_v4_ r = {0};
  ATTN_LANES_(attn_lane_(a, 3 - i))
}
ATTN_FUNC_ attn_v4_ attn_swap_pairs_scalar_(attn_v4_ a) {
  attn_v4_ r = {0};
  ATTN_LANES_(attn_lane_(a, i ^ 1))
}
ATTN_FUNC_ void attn_transpose_scalar_(attn_v4_ *v) {
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < i; j++) {
      float t = attn_lane_(v[i], j);
      attn_lane_(v[i], j) = attn_lane_(v[j], i);
      attn_lane_(v[j], i) = t;
    }
}
ATTN_FUNC_ attn_v4_ attn_sums_scalar_(const attn_v4_ *v) {
  attn_v4_ r = {0};
  ATTN_LANES_((attn_lane_(v[i], 0) + attn_lane_(v[i], 2)) +
              (attn_lane_(v[i], 1) + attn_lane_(v[i], 3)))
}
ATTN_INLINE_ float attn_sum_scalar_(attn_v4_ v) {
  return (attn_lane_(v, 0) + attn_lane_(v, 2)) + (attn_lane_(v, 1) + attn_lane_(v, 3));
}
ATTN_INLINE_ float attn_top_scalar_(attn_v4_ v) {
  const float x = attn_lane_(v, 0) > attn_lane_(v, 1) ? attn_lane_(v, 0) : attn_lane_(v, 1),
              y = attn_lane_(v, 2) > attn_lane_(v, 3) ? attn_lane_(v, 2) : attn_lane_(v, 3);
  return x > y ? x : y;
}
ATTN_FUNC_ attn_v4_ attn_nibbles_scalar_(const void *p, int shift) {
  const unsigned char *from = (const unsigned char *)p;
  attn_v4_ r = {0};
  ATTN_LANES_((float)(((from[i] >> shift & 15) ^ 8) - 8))
}
#ifdef ATTN_USE_SLEEF
#ifndef ATTN_SLEEF_HAS_SCALAR_
float Sleef_expf_u10(float);
float Sleef_exp2f_u10(float);
float Sleef_tanhf_u10(float);
float Sleef_expm1f_u10(float);
#endif
ATTN_INLINE_ attn_v4_ attn_sleef_exp_scalar_(attn_v4_ a) {
  attn_v4_ r = {0};
  ATTN_LANES_(Sleef_expf_u10(attn_lane_(a, i)))
}
ATTN_INLINE_ attn_v4_ attn_sleef_exp2_scalar_(attn_v4_ a) {
  attn_v4_ r = {0};
  ATTN_LANES_(Sleef_exp2f_u10(attn_lane_(a, i)))
}
ATTN_INLINE_ attn_v4_ attn_sleef_expm1_scalar_(attn_v4_ a) {
  attn_v4_ r = {0};
  ATTN_LANES_(Sleef_expm1f_u10(attn_lane_(a, i)))
}
ATTN_INLINE_ attn_v4_ attn_sleef_tanh_scalar_(attn_v4_ a) {
  attn_v4_ r = {0};
  ATTN_LANES_(Sleef_tanhf_u10(attn_lane_(a, i)))
}
#endif
ATTN_INLINE_ void attn_times_scalar_(attn_p4_ *up, attn_p4_ *low, attn_p4_ a, uint32_t m) {
  attn_p4_ x = {0}, y = {0};
  for (int i = 0; i < 4; i++) {
    const uint64_t n = (uint64_t)attn_lane_(a, i) * m;
    attn_lane_(x, i) = (uint32_t)(n >> 32), attn_lane_(y, i) = (uint32_t)n;
  }
  *up = x, *low = y;
}
ATTN_INLINE_ attn_p4_ attn_xor_scalar_(attn_p4_ a, attn_p4_ b, attn_p4_ c) {
  attn_p4_ r = {0};
  ATTN_LANES_(attn_lane_(a, i) ^ attn_lane_(b, i) ^ attn_lane_(c, i))
}
ATTN_INLINE_ attn_m4_ attn_least_scalar_(attn_p4_ a, uint32_t t) {
  attn_m4_ r = {0};
  ATTN_FLAGS_(attn_lane_(a, i) >> 8 >= t)
}
ATTN_INLINE_ void attn_zip_scalar_(attn_v4_ *to, attn_v4_ even, attn_v4_ odd) {
  for (int i = 0; i < 4; i++) {
    attn_lane_(to[i / 2], i % 2 * 2) = attn_lane_(even, i);
    attn_lane_(to[i / 2], i % 2 * 2 + 1) = attn_lane_(odd, i);
  }
}
#undef ATTN_LANES_
#undef ATTN_FLAGS_
#undef attn_lane_
