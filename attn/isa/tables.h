/* isa/tables.h owns the tables that isa/table.h describes: the members of each family in the order of its
 * struct, and one instance a tier. They lie inside functions, so that a family which no call of a
 * program names is not compiled, without optimisation either. */

#define ATTN_ROWS_TABLE_(on) \
  on(pack), on(unpack), on(widen), on(finite), on(weights), on(exp_row), on(blend), on(scale_rows)
#define ATTN_TILE_TABLE_(on)                                                              \
  on(score_block), on(modify_block), on(softmax_block), on(value_block), on(scale_block), \
      on(fold_block), on(join), on(divide), on(exclude)
#define ATTN_RELU_TABLE_(on) on(relu_block)
#define ATTN_LOW_TABLE_(on) \
  on(pair_dots), on(pair_tile), on(pair_rows), on(narrow), on(pair_softmax)
#define ATTN_CODE_TABLE_(on) on(code_rows), on(code_bytes), on(code_tile), on(code_dots)
#define ATTN_FEW_TABLE_(on) on(pack_row), on(score_rows), on(softmax_rows), on(value_rows)
#define ATTN_LIST_TABLE_(on) on(dots)
#define ATTN_SUM_TABLE_(on) on(axpys)
#define ATTN_SELECT_TABLE_(on) on(squares), on(above)
#define ATTN_DENSE_TABLE_(on) \
  on(gemm), on(join_runs), on(gemm_turned), on(turn), on(strip), on(activate), on(act)
#define ATTN_STORED_TABLE_(on) on(stored_rows), on(stored_words)
#define ATTN_NORM_TABLE_(on) on(moments), on(normalise), on(norm)
#define ATTN_ROPE_TABLE_(on) on(rope)
#define ATTN_GATE_TABLE_(on) on(gate)
#define ATTN_FEATURE_TABLE_(on) on(top_rows), on(power_rows), on(wave_rows), on(elu1)
#define ATTN_STATE_TABLE_(on) on(step), on(step_z), on(accrue)
#define ATTN_FOURIER_TABLE_(on) on(butterflies), on(mirror)

#define ATTN_ON_SCALAR_(name) attn_##name##_scalar_
#define ATTN_ON_AVX2_(name) attn_##name##_avx2_
#define ATTN_ON_AVX512_(name) attn_##name##_avx512_
#define ATTN_ON_NEON_(name) attn_##name##_neon_
#define ATTN_ON_AVX512BF16_(name) attn_##name##_avx512bf16_
#define ATTN_ON_AVX512VNNI_(name) attn_##name##_avx512vnni_
#define ATTN_ON_NEONBF16_(name) attn_##name##_neonbf16_
#define ATTN_ON_NEONDOTPROD_(name) attn_##name##_neondotprod_
#define ATTN_ON_AVXVNNI_(name) attn_##name##_avxvnni_
#define ATTN_ON_NONE_(name) 0 /* never asked for */
#ifndef ATTN_HAS_AVX2_
#undef ATTN_ON_AVX2_
#define ATTN_ON_AVX2_ ATTN_ON_NONE_
#endif
#ifndef ATTN_HAS_AVX512_
#undef ATTN_ON_AVX512_
#define ATTN_ON_AVX512_ ATTN_ON_NONE_
#endif
#ifndef ATTN_HAS_NEON_
#undef ATTN_ON_NEON_
#define ATTN_ON_NEON_ ATTN_ON_NONE_
#endif

/* In the order of attn_isa, without ATTN_ISA_AUTO. */
#define ATTN_TABLES_(type, get, members) ATTN_TABLES_FROM_(ATTN_ON_SCALAR_, type, get, members)
#define ATTN_TABLES_FROM_(scalar, type, get, members)                           \
  ATTN_FUNC_ const type *get(attn_isa isa) {                                    \
    static const type tables[ATTN_ISA_COUNT - 1] = {{members(scalar)},          \
                                                    {members(ATTN_ON_AVX2_)},   \
                                                    {members(ATTN_ON_AVX512_)}, \
                                                    {members(ATTN_ON_NEON_)}};  \
    return &tables[(int)isa - 1];                                               \
  }
ATTN_TABLES_(attn_tile_table_, attn_tile_on_, ATTN_TILE_TABLE_)
ATTN_TABLES_(attn_relu_table_, attn_relu_on_, ATTN_RELU_TABLE_)
#if ATTN_HAS_LOW && !defined(ATTN_NO_EMULATION)
ATTN_TABLES_(attn_low_table_, attn_low_on_, ATTN_LOW_TABLE_)
ATTN_TABLES_(attn_code_table_, attn_code_on_, ATTN_CODE_TABLE_)
#endif
ATTN_TABLES_(attn_few_table_, attn_few_on_, ATTN_FEW_TABLE_)
ATTN_TABLES_(attn_list_table_, attn_list_on_, ATTN_LIST_TABLE_)
ATTN_TABLES_(attn_sum_table_, attn_sum_on_, ATTN_SUM_TABLE_)
ATTN_TABLES_(attn_select_table_, attn_select_on_, ATTN_SELECT_TABLE_)
ATTN_TABLES_(attn_dense_table_, attn_dense_on_, ATTN_DENSE_TABLE_)
ATTN_TABLES_FROM_(ATTN_ON_NONE_, attn_stored_table_, attn_stored_on_, ATTN_STORED_TABLE_)
ATTN_TABLES_(attn_norm_table_, attn_norm_on_, ATTN_NORM_TABLE_)
ATTN_TABLES_(attn_rope_table_, attn_rope_on_, ATTN_ROPE_TABLE_)
ATTN_TABLES_(attn_gate_table_, attn_gate_on_, ATTN_GATE_TABLE_)
ATTN_TABLES_(attn_feature_table_, attn_feature_on_, ATTN_FEATURE_TABLE_)
ATTN_TABLES_(attn_state_table_, attn_state_on_, ATTN_STATE_TABLE_)
ATTN_TABLES_(attn_fourier_table_, attn_fourier_on_, ATTN_FOURIER_TABLE_)

/* Products of bf16 on a tier, and the feature that has them; null: neither an instruction nor an
 * emulation is there. */
#if ATTN_HAS_LOW
ATTN_FUNC_ const attn_low_table_ *attn_low_of_(attn_isa isa, attn_feature *feature) {
  *feature = ATTN_FEATURE_NONE;
#ifdef ATTN_HAS_AVX512BF16_
  static const attn_low_table_ avx512bf16 = {ATTN_LOW_TABLE_(ATTN_ON_AVX512BF16_)};
  if (isa == ATTN_ISA_AVX512 && attn_feature_status(ATTN_FEATURE_AVX512_BF16) == ATTN_ISA_OK) {
    *feature = ATTN_FEATURE_AVX512_BF16;
    return &avx512bf16;
  }
#endif
#ifdef ATTN_HAS_NEONBF16_
  static const attn_low_table_ neonbf16 = {ATTN_LOW_TABLE_(ATTN_ON_NEONBF16_)};
  if (isa == ATTN_ISA_NEON && attn_feature_status(ATTN_FEATURE_NEON_BF16) == ATTN_ISA_OK) {
    *feature = ATTN_FEATURE_NEON_BF16;
    return &neonbf16;
  }
#endif
#ifdef ATTN_NO_EMULATION
  (void)isa;
  return NULL;
#else
  return attn_low_on_(isa);
#endif
}

/* The same of codes of 8 bits. */
ATTN_FUNC_ const attn_code_table_ *attn_code_of_(attn_isa isa, attn_feature *feature) {
  *feature = ATTN_FEATURE_NONE;
#ifdef ATTN_HAS_AVX512VNNI_
  static const attn_code_table_ avx512vnni = {ATTN_CODE_TABLE_(ATTN_ON_AVX512VNNI_)};
  if (isa == ATTN_ISA_AVX512 && attn_feature_status(ATTN_FEATURE_AVX512_VNNI) == ATTN_ISA_OK) {
    *feature = ATTN_FEATURE_AVX512_VNNI;
    return &avx512vnni;
  }
#endif
#ifdef ATTN_HAS_AVXVNNI_
  static const attn_code_table_ avxvnni = {ATTN_CODE_TABLE_(ATTN_ON_AVXVNNI_)};
  if (isa == ATTN_ISA_AVX2 && attn_feature_status(ATTN_FEATURE_AVX_VNNI) == ATTN_ISA_OK) {
    *feature = ATTN_FEATURE_AVX_VNNI;
    return &avxvnni;
  }
#endif
#ifdef ATTN_HAS_NEONDOTPROD_
  static const attn_code_table_ neondotprod = {ATTN_CODE_TABLE_(ATTN_ON_NEONDOTPROD_)};
  if (isa == ATTN_ISA_NEON && attn_feature_status(ATTN_FEATURE_NEON_DOTPROD) == ATTN_ISA_OK) {
    *feature = ATTN_FEATURE_NEON_DOTPROD;
    return &neondotprod;
  }
#endif
#ifdef ATTN_NO_EMULATION
  (void)isa;
  return NULL;
#else
  return attn_code_on_(isa);
#endif
}
#endif

ATTN_FUNC_ const attn_table_ *attn_table_of_(attn_isa isa) {
  static const attn_table_ tables[ATTN_ISA_COUNT - 1] = {
      {ATTN_ISA_SCALAR, ATTN_ROWS_TABLE_(ATTN_ON_SCALAR_)},
      {ATTN_ISA_AVX2, ATTN_ROWS_TABLE_(ATTN_ON_AVX2_)},
      {ATTN_ISA_AVX512, ATTN_ROWS_TABLE_(ATTN_ON_AVX512_)},
      {ATTN_ISA_NEON, ATTN_ROWS_TABLE_(ATTN_ON_NEON_)}};
  return &tables[(int)isa - 1];
}

#undef ATTN_ROWS_TABLE_
#undef ATTN_TILE_TABLE_
#undef ATTN_FEW_TABLE_
#undef ATTN_LOW_TABLE_
#undef ATTN_CODE_TABLE_
#undef ATTN_RELU_TABLE_
#undef ATTN_LIST_TABLE_
#undef ATTN_SUM_TABLE_
#undef ATTN_SELECT_TABLE_
#undef ATTN_DENSE_TABLE_
#undef ATTN_STORED_TABLE_
#undef ATTN_NORM_TABLE_
#undef ATTN_ROPE_TABLE_
#undef ATTN_GATE_TABLE_
#undef ATTN_FEATURE_TABLE_
#undef ATTN_STATE_TABLE_
#undef ATTN_FOURIER_TABLE_
#undef ATTN_ON_SCALAR_
#undef ATTN_ON_AVX2_
#undef ATTN_ON_AVX512_
#undef ATTN_ON_NEON_
#undef ATTN_ON_AVX512BF16_
#undef ATTN_ON_AVX512VNNI_
#undef ATTN_ON_NEONBF16_
#undef ATTN_ON_NEONDOTPROD_
#undef ATTN_ON_AVXVNNI_
#undef ATTN_ON_NONE_
#undef ATTN_TABLES_
#undef ATTN_TABLES_FROM_
