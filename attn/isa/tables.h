/* isa/tables.h owns the tables that isa/table.h describes: the members of each family in the order of its
 * struct, and one instance a tier. They lie inside functions, so that a family which no call of a
 * program names is not compiled, without optimisation either. */

#define ATTN_ROWS_TABLE_(on) \
  on(pack), on(unpack), on(widen), on(finite), on(weights), on(exp_row), on(blend), on(scale_rows)
#define ATTN_TILE_TABLE_(on)                                                              \
  on(score_block), on(modify_block), on(softmax_block), on(value_block), on(scale_block), \
      on(fold_block), on(join), on(divide), on(exclude)
#define ATTN_RELU_TABLE_(on) on(relu_block)
#define ATTN_RESHAPE_TABLE_(on)                                                             \
  on(sigmoid_block), on(softpick_block), on(stick_block), on(late_block), on(entmax_group), \
      on(cope_block), on(fade_row)
#define ATTN_LOW_TABLE_(on) \
  on(pair_dots), on(pair_tile), on(pair_rows), on(narrow), on(pair_softmax), 0
#define ATTN_HALF_TABLE_(on) \
  on(pair_dots), on(pair_tile), on(pair_rows), on(narrow), on(pair_softmax), on(peaks)
#define ATTN_CODE_TABLE_(on) on(code_rows), on(code_bytes), on(code_tile), on(code_dots)
#define ATTN_CODE_PANEL_TABLE_(on) on(code_sums), on(code_panel)
#define ATTN_CODE_LINE_TABLE_(on) on(code_columns), on(code_words), on(code_along), on(code_flip)
#define ATTN_FEW_TABLE_(on) on(pack_row), on(score_rows), on(softmax_rows), on(value_rows)
#define ATTN_LIST_TABLE_(on) on(dots)
#define ATTN_SUM_TABLE_(on) on(axpys)
#define ATTN_SELECT_TABLE_(on) on(squares), on(above)
#define ATTN_DENSE_TABLE_(on) \
  on(gemm), on(join_runs), on(gemm_turned), on(turn), on(strip), on(activate), on(act), on(clip)
#define ATTN_STORED_TABLE_(on) on(stored_rows), on(stored_words)
#define ATTN_NORM_TABLE_(on) on(moments), on(normalise), on(norm), on(sizes), on(resize)
#define ATTN_ROPE_TABLE_(on) on(rope)
#define ATTN_GATE_TABLE_(on) on(gate)
#define ATTN_FACTOR_TABLE_(on) on(factor_block)
#define ATTN_FEATURE_TABLE_(on) on(top_rows), on(power_rows), on(wave_rows), on(elu1)
#define ATTN_STATE_TABLE_(on) on(step), on(step_z), on(accrue), on(accrue_rows)
#define ATTN_RECURRENT_TABLE_(on)                                                            \
  on(fade_products), on(fade_square), on(fade_rows), on(fade_by), on(meets), on(fade_whole), \
      on(bounded), on(nearly), on(token)
#define ATTN_EMA_TABLE_(on) on(ema)
#define ATTN_FOURIER_TABLE_(on) on(butterflies), on(mirror)
#define ATTN_COLLIDE_TABLE_(on) on(angle_block), on(bucket_rows)
#define ATTN_GRADIENT_TABLE_(on) \
  on(grad_block), on(row_dots), on(scatter), on(slope), on(norm_slopes)
#define ATTN_FADING_TABLE_(on) on(fade_on), on(fade_off)
#define ATTN_RECTIFIED_TABLE_(on) on(relu_grad_block), on(relu_dots)
#define ATTN_DROP_TABLE_(on) on(drop_bits), on(drop_block), on(drop_list)
#define ATTN_DROPOUT_TABLE_(on) on(drop_row)
#define ATTN_OPTIMISER_TABLE_(on) on(adam), on(descend), on(square_sum)
#define ATTN_LOSS_TABLE_(on) on(loss_run), on(loss_slope)

#define ATTN_ON_SCALAR_(name) attn_##name##_scalar_
#define ATTN_ON_AVX2_(name) attn_##name##_avx2_
#define ATTN_ON_AVX512_(name) attn_##name##_avx512_
#define ATTN_ON_NEON_(name) attn_##name##_neon_
#define ATTN_ON_SCALARF16_(name) attn_##name##_scalarf16_
#define ATTN_ON_AVX2F16_(name) attn_##name##_avx2f16_
#define ATTN_ON_AVX512F16_(name) attn_##name##_avx512f16_
#define ATTN_ON_NEONF16_(name) attn_##name##_neonf16_
#define ATTN_ON_NEONFP16FML_(name) attn_##name##_neonfp16fml_
#define ATTN_ON_AVX512BF16_(name) attn_##name##_avx512bf16_
#define ATTN_ON_AVX512VNNI_(name) attn_##name##_avx512vnni_
#define ATTN_ON_NEONBF16_(name) attn_##name##_neonbf16_
#define ATTN_ON_NEONDOTPROD_(name) attn_##name##_neondotprod_
#define ATTN_ON_AVXVNNI_(name) attn_##name##_avxvnni_
#define ATTN_ON_NONE_(name) 0 /* never asked for */
#ifndef ATTN_HAS_AVX2_
#undef ATTN_ON_AVX2_
#undef ATTN_ON_AVX2F16_
#define ATTN_ON_AVX2F16_ ATTN_ON_NONE_
#define ATTN_ON_AVX2_ ATTN_ON_NONE_
#endif
#ifndef ATTN_HAS_AVX512_
#undef ATTN_ON_AVX512_
#undef ATTN_ON_AVX512F16_
#define ATTN_ON_AVX512F16_ ATTN_ON_NONE_
#define ATTN_ON_AVX512_ ATTN_ON_NONE_
#endif
#ifndef ATTN_HAS_NEON_
#undef ATTN_ON_NEON_
#undef ATTN_ON_NEONF16_
#define ATTN_ON_NEONF16_ ATTN_ON_NONE_
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
/* What stands in for features on the avx512 tier is avx2's, if that is there: it is small rather than fast, and has
 * the same bits. */
#ifdef ATTN_EMULATED_BY_AVX2_
#define ATTN_ON_EMULATED512_ ATTN_ON_AVX2_
#define ATTN_ON_HALF512_ ATTN_ON_AVX2F16_
#else
#define ATTN_ON_EMULATED512_ ATTN_ON_AVX512_
#define ATTN_ON_HALF512_ ATTN_ON_AVX512F16_
#endif
#define ATTN_EMULATIONS_(type, get, members)                                         \
  ATTN_FUNC_ const type *get(attn_isa isa) {                                         \
    static const type tables[ATTN_ISA_COUNT - 1] = {{members(ATTN_ON_SCALAR_)},      \
                                                    {members(ATTN_ON_AVX2_)},        \
                                                    {members(ATTN_ON_EMULATED512_)}, \
                                                    {members(ATTN_ON_NEON_)}};       \
    return &tables[(int)isa - 1];                                                    \
  }
ATTN_TABLES_(attn_tile_table_, attn_tile_on_, ATTN_TILE_TABLE_)
ATTN_TABLES_(attn_relu_table_, attn_relu_on_, ATTN_RELU_TABLE_)
ATTN_TABLES_(attn_reshape_table_, attn_reshape_on_, ATTN_RESHAPE_TABLE_)
#if ATTN_HAS_LOW && !defined(ATTN_NO_EMULATION)
ATTN_EMULATIONS_(attn_low_table_, attn_low_on_, ATTN_LOW_TABLE_)
ATTN_EMULATIONS_(attn_code_table_, attn_code_on_, ATTN_CODE_TABLE_)
ATTN_EMULATIONS_(attn_code_panel_table_, attn_code_panel_on_, ATTN_CODE_PANEL_TABLE_)
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
ATTN_TABLES_(attn_factor_table_, attn_factor_on_, ATTN_FACTOR_TABLE_)
ATTN_TABLES_(attn_feature_table_, attn_feature_on_, ATTN_FEATURE_TABLE_)
ATTN_TABLES_(attn_state_table_, attn_state_on_, ATTN_STATE_TABLE_)
ATTN_TABLES_(attn_recurrent_table_, attn_recurrent_on_, ATTN_RECURRENT_TABLE_)
ATTN_TABLES_(attn_ema_table_, attn_ema_on_, ATTN_EMA_TABLE_)
ATTN_TABLES_(attn_fourier_table_, attn_fourier_on_, ATTN_FOURIER_TABLE_)
ATTN_TABLES_(attn_collide_table_, attn_collide_on_, ATTN_COLLIDE_TABLE_)
ATTN_TABLES_(attn_gradient_table_, attn_gradient_on_, ATTN_GRADIENT_TABLE_)
ATTN_TABLES_(attn_fading_table_, attn_fading_on_, ATTN_FADING_TABLE_)
ATTN_TABLES_(attn_rectified_table_, attn_rectified_on_, ATTN_RECTIFIED_TABLE_)
ATTN_TABLES_(attn_drop_table_, attn_drop_on_, ATTN_DROP_TABLE_)
ATTN_TABLES_(attn_dropout_table_, attn_dropout_on_, ATTN_DROPOUT_TABLE_)
ATTN_TABLES_(attn_optimiser_table_, attn_optimiser_on_, ATTN_OPTIMISER_TABLE_)
ATTN_TABLES_(attn_loss_table_, attn_loss_on_, ATTN_LOSS_TABLE_)

#if ATTN_HAS_LOW
/* In a function of a tier: a feature's table, where it runs. */
#define ATTN_OF_FEATURE_(id, type, members)                      \
  {                                                              \
    static const type table = {members};                         \
    if (isa == attn_feature_isa(ATTN_FEATURE_##id) &&            \
        attn_feature_status(ATTN_FEATURE_##id) == ATTN_ISA_OK) { \
      *feature = ATTN_FEATURE_##id;                              \
      return &table;                                             \
    }                                                            \
  }
#ifdef ATTN_NO_EMULATION
#define ATTN_EMULATED_(table) ((void)isa, NULL)
#else
#define ATTN_EMULATED_(table) (table)
#endif

/* Products of bf16 on a tier, and the feature that has them; null: neither an instruction nor an
 * emulation is there. */
ATTN_FUNC_ const attn_low_table_ *attn_low_of_(attn_isa isa, attn_feature *feature) {
  *feature = ATTN_FEATURE_NONE;
#ifdef ATTN_HAS_AVX512BF16_
  ATTN_OF_FEATURE_(AVX512_BF16, attn_low_table_, ATTN_LOW_TABLE_(ATTN_ON_AVX512BF16_))
#endif
#ifdef ATTN_HAS_NEONBF16_
  ATTN_OF_FEATURE_(NEON_BF16, attn_low_table_, ATTN_LOW_TABLE_(ATTN_ON_NEONBF16_))
#endif
  return ATTN_EMULATED_(attn_low_on_(isa));
}

/* The same of f16. */
ATTN_FUNC_ const attn_low_table_ *attn_half_of_(attn_isa isa, attn_feature *feature) {
#ifndef ATTN_NO_EMULATION
  static const attn_low_table_ tables[ATTN_ISA_COUNT - 1] = {{ATTN_HALF_TABLE_(ATTN_ON_SCALARF16_)},
                                                             {ATTN_HALF_TABLE_(ATTN_ON_AVX2F16_)},
                                                             {ATTN_HALF_TABLE_(ATTN_ON_HALF512_)},
                                                             {ATTN_HALF_TABLE_(ATTN_ON_NEONF16_)}};
#endif
  *feature = ATTN_FEATURE_NONE;
#ifdef ATTN_HAS_NEONFP16FML_
  ATTN_OF_FEATURE_(NEON_FP16FML, attn_low_table_, ATTN_HALF_TABLE_(ATTN_ON_NEONFP16FML_))
#endif
  return ATTN_EMULATED_(&tables[(int)isa - 1]);
}

/* The same of codes of 8 bits. */
ATTN_FUNC_ const attn_code_table_ *attn_code_of_(attn_isa isa, attn_feature *feature) {
  *feature = ATTN_FEATURE_NONE;
#ifdef ATTN_HAS_AVX512VNNI_
  ATTN_OF_FEATURE_(AVX512_VNNI, attn_code_table_, ATTN_CODE_TABLE_(ATTN_ON_AVX512VNNI_))
#endif
#ifdef ATTN_HAS_AVXVNNI_
  ATTN_OF_FEATURE_(AVX_VNNI, attn_code_table_, ATTN_CODE_TABLE_(ATTN_ON_AVXVNNI_))
#endif
#ifdef ATTN_HAS_NEONDOTPROD_
  ATTN_OF_FEATURE_(NEON_DOTPROD, attn_code_table_, ATTN_CODE_TABLE_(ATTN_ON_NEONDOTPROD_))
#endif
  return ATTN_EMULATED_(attn_code_on_(isa));
}

#define ATTN_PANEL_OF_(name, on)                                               \
  if (feature == ATTN_FEATURE_##name) {                                        \
    static const attn_code_panel_table_ panels = {ATTN_CODE_PANEL_TABLE_(on)}; \
    static const attn_code_line_table_ lines = {ATTN_CODE_LINE_TABLE_(on)};    \
    *line = &lines;                                                            \
    return &panels;                                                            \
  }

/* What products of codes with a matrix need beside attn_code_of_'s answer, of the same feature; line: null
 * where it has none. */
ATTN_FUNC_ const attn_code_panel_table_ *attn_code_panel_of_(attn_isa isa, attn_feature feature,
                                                             const attn_code_line_table_ **line) {
  *line = NULL;
#ifdef ATTN_HAS_AVX512VNNI_
  ATTN_PANEL_OF_(AVX512_VNNI, ATTN_ON_AVX512VNNI_)
#endif
#ifdef ATTN_HAS_AVXVNNI_
  ATTN_PANEL_OF_(AVX_VNNI, ATTN_ON_AVXVNNI_)
#endif
#ifdef ATTN_HAS_NEONDOTPROD_
  ATTN_PANEL_OF_(NEON_DOTPROD, ATTN_ON_NEONDOTPROD_)
#endif
  (void)feature;
  return ATTN_EMULATED_(attn_code_panel_on_(isa));
}
#undef ATTN_PANEL_OF_
#undef ATTN_OF_FEATURE_
#undef ATTN_EMULATED_
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
#undef ATTN_HALF_TABLE_
#undef ATTN_CODE_TABLE_
#undef ATTN_CODE_PANEL_TABLE_
#undef ATTN_CODE_LINE_TABLE_
#undef ATTN_RELU_TABLE_
#undef ATTN_RESHAPE_TABLE_
#undef ATTN_LIST_TABLE_
#undef ATTN_SUM_TABLE_
#undef ATTN_SELECT_TABLE_
#undef ATTN_DENSE_TABLE_
#undef ATTN_STORED_TABLE_
#undef ATTN_NORM_TABLE_
#undef ATTN_ROPE_TABLE_
#undef ATTN_GATE_TABLE_
#undef ATTN_FACTOR_TABLE_
#undef ATTN_FEATURE_TABLE_
#undef ATTN_STATE_TABLE_
#undef ATTN_RECURRENT_TABLE_
#undef ATTN_EMA_TABLE_
#undef ATTN_FOURIER_TABLE_
#undef ATTN_COLLIDE_TABLE_
#undef ATTN_FADING_TABLE_
#undef ATTN_RECTIFIED_TABLE_
#undef ATTN_DROP_TABLE_
#undef ATTN_DROPOUT_TABLE_
#undef ATTN_GRADIENT_TABLE_
#undef ATTN_OPTIMISER_TABLE_
#undef ATTN_LOSS_TABLE_
#undef ATTN_ON_SCALAR_
#undef ATTN_ON_AVX2_
#undef ATTN_ON_AVX512_
#undef ATTN_ON_NEON_
#undef ATTN_ON_SCALARF16_
#undef ATTN_ON_AVX2F16_
#undef ATTN_ON_AVX512F16_
#undef ATTN_ON_NEONF16_
#undef ATTN_ON_NEONFP16FML_
#undef ATTN_ON_AVX512BF16_
#undef ATTN_ON_AVX512VNNI_
#undef ATTN_ON_NEONBF16_
#undef ATTN_ON_NEONDOTPROD_
#undef ATTN_ON_AVXVNNI_
#undef ATTN_ON_NONE_
#undef ATTN_TABLES_
#undef ATTN_TABLES_FROM_
#undef ATTN_EMULATIONS_
#undef ATTN_ON_EMULATED512_
#undef ATTN_ON_HALF512_
