/* isa/simd_f16.h owns the words of pairs whose halves are f16, in any vocabulary: kernels/low.h is compiled once
 * more with them. A vector in memory has the even numbers of its lanes first, then the odd ones, as f16;
 * outside of it the two are floats. Products of two f16 are exact in f32. */

#undef ATTN_T_
#define ATTN_T_ ATTN_CAT_(ATTN_TIER_, f16)
#undef ATTN_VP_
#undef ATTN_VP1_
#undef ATTN_PAIR_LOAD_
#undef ATTN_PAIR_STORE_
#undef ATTN_PAIR_SET1_
#undef ATTN_PAIR_EVEN_
#undef ATTN_PAIR_ODD_
#undef ATTN_PAIR_JOIN_
#undef ATTN_PAIR_DOT_
#undef ATTN_PAIR_EXP2_
#undef ATTN_PAIR_ZIP_
#undef ATTN_PAIR_KIND_
#undef ATTN_PAIR_ROW_
#undef ATTN_PAIR_WORDS_
#undef ATTN_PAIR_ONES_
#undef ATTN_PAIR_WEIGHT_
#undef ATTN_PAIR_SHARE_
#undef ATTN_PAIR_TIMES_
#undef ATTN_PAIR_UNIT_
#define ATTN_PAIR_FN_(name) ATTN_CAT_(ATTN_CAT_(attn_##name##_, ATTN_T_), _)
#define ATTN_VP_ ATTN_PAIR_FN_(pair)
#define ATTN_PAIR_LOAD_(p) ATTN_PAIR_FN_(load_pairs)(p)
#define ATTN_PAIR_STORE_(p, v) ATTN_PAIR_FN_(store_pairs)(p, v)
#define ATTN_PAIR_SET1_(x) ATTN_PAIR_FN_(set1_pairs)(x)
#define ATTN_PAIR_EVEN_(v) ((v).even)
#define ATTN_PAIR_ODD_(v) ((v).odd)
#define ATTN_PAIR_JOIN_(even, odd) ATTN_PAIR_FN_(join_pairs)(even, odd)
#define ATTN_PAIR_KIND_ ATTN_F16
#define ATTN_PAIR_ROW_(p, v) ATTN_V_STORE_F16_(p, v)
#define ATTN_PAIR_WORDS_(to, even, odd) ATTN_PAIR_FN_(store_words)(to, even, odd)
/* f16 ends soon below 1: weights are stored 2^15 times as large, and what adds them up is 2^-15 */
#define ATTN_PAIR_ONES_ 0x02000200u
#define ATTN_PAIR_WEIGHT_(x) ATTN_V_MUL_(x, ATTN_V_SET1_(32768.0f))
#define ATTN_PAIR_SHARE_(x) ATTN_V_MUL_(x, ATTN_V_SET1_(1.0f / 32768.0f))
#define ATTN_PAIR_TIMES_(x, by) ATTN_V_MUL_(x, ATTN_V_SET1_(by))
#define ATTN_PAIR_UNIT_(d) (d)->unit
#define ATTN_PAIR_PEAKS_ 1

typedef struct {
  ATTN_VF_ even, odd;
} ATTN_PAIR_FN_(pair);

ATTN_INLINE_ ATTN_VP_ ATTN_PAIR_FN_(load_pairs)(const uint32_t *p) {
  const uint16_t *h = (const uint16_t *)(const void *)p;
  ATTN_VP_ v;
  v.even = ATTN_V_LOAD_F16_(h), v.odd = ATTN_V_LOAD_F16_(h + ATTN_W_);
  return v;
}
ATTN_INLINE_ void ATTN_PAIR_FN_(store_pairs)(uint32_t *p, ATTN_VP_ v) {
  uint16_t *h = (uint16_t *)(void *)p;
  ATTN_V_STORE_F16_(h, v.even);
  ATTN_V_STORE_F16_(h + ATTN_W_, v.odd);
}
ATTN_INLINE_ ATTN_VP_ ATTN_PAIR_FN_(set1_pairs)(uint32_t x) {
  ATTN_VP_ v;
  v.even = ATTN_V_SET1_F16_((uint16_t)(x & 0xffffu));
  v.odd = ATTN_V_SET1_F16_((uint16_t)(x >> 16));
  return v;
}
ATTN_INLINE_ ATTN_VP_ ATTN_PAIR_FN_(join_pairs)(ATTN_VF_ even, ATTN_VF_ odd) {
  uint16_t h[2 * ATTN_W_];
  ATTN_VP_ v;
  ATTN_V_STORE_F16_(h, even);
  ATTN_V_STORE_F16_(h + ATTN_W_, odd);
  v.even = ATTN_V_LOAD_F16_(h), v.odd = ATTN_V_LOAD_F16_(h + ATTN_W_);
  return v;
}
/* words of a row in memory, which are broadcast */
ATTN_INLINE_ void ATTN_PAIR_FN_(store_words)(uint32_t *p, ATTN_VF_ even, ATTN_VF_ odd) {
  uint16_t h[2 * ATTN_W_];
  ATTN_V_STORE_F16_(h, even);
  ATTN_V_STORE_F16_(h + ATTN_W_, odd);
  for (int i = 0; i < ATTN_W_; i++) p[i] = h[i] | (uint32_t)h[i + ATTN_W_] << 16;
}
