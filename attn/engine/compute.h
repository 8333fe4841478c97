/* engine/compute.h owns what the products of a call are made of, and leaves out what only some families have. */

/* Parts of a problem that only some families have: null where ATTN_ONLY leaves those out, and all that
 * follows from them is not compiled. */
#define ATTN_PART_(family, part) (ATTN_HAS_##family ? (part) : NULL)

/* The sentences about an argument that names a compute. */
#define ATTN_COMPUTE_WORDS_(name)                                                  \
  name " must be an attn_compute\0" name                                           \
       ": neither a feature of the processor nor an emulation has such products "  \
       "(attn_feature_why)\0" name ": ATTN_ONLY leaves out ATTN_FAMILY_LOW\0" name \
       " must be ATTN_COMPUTE_F32 in this call\0" name                             \
       ": ATTN_COMPUTE_I8 is for codes, in attn_gemm and attention"
enum {
  ATTN_COMPUTE_ENUM_,
  ATTN_COMPUTE_NONE_,
  ATTN_COMPUTE_LEFT_OUT_,
  ATTN_COMPUTE_F32_,
  ATTN_COMPUTE_CODES_
};

/* The primitives that `compute` has on this tier, null for f32; takes: the call has others than that. */
ATTN_FUNC_ int attn_compute_take_(attn_error_ *e, const attn_table_ *table, attn_compute compute,
                                  int prefer, int takes, const char *words,
                                  const attn_low_table_ **low, attn_feature *feature) {
  *low = NULL, *feature = ATTN_FEATURE_NONE;
  if ((int)compute < 0 || compute >= ATTN_COMPUTE_COUNT)
    return attn_reject_(e, ATTN_E_VALUE, attn_says_(words, ATTN_COMPUTE_ENUM_));
  if (compute == ATTN_COMPUTE_F32) return 1;
#if ATTN_HAS_LOW
  if (compute != ATTN_COMPUTE_I8 && takes) {
    *low = compute == ATTN_COMPUTE_F16 ? attn_half_of_(table->isa, feature)
                                       : attn_low_of_(table->isa, feature);
    if (prefer && *feature == ATTN_FEATURE_NONE) *low = NULL;
    if (*low || prefer) return 1;
    return attn_reject_(e, ATTN_E_ISA, attn_says_(words, ATTN_COMPUTE_NONE_));
  }
#else
  (void)table;
#endif
  if (prefer) return 1;
  if (!ATTN_HAS_LOW) return attn_reject_(e, ATTN_E_ISA, attn_says_(words, ATTN_COMPUTE_LEFT_OUT_));
  return attn_reject_(e, ATTN_E_VALUE,
                      attn_says_(words, takes ? ATTN_COMPUTE_CODES_ : ATTN_COMPUTE_F32_));
}

/* After attn_report_. */
ATTN_FUNC_ void attn_compute_report_(attn_ctx *ctx, const attn_low_table_ *low,
                                     attn_feature feature) {
  if (ctx && ATTN_PART_(LOW, low))
    ctx->report.compute = low->peaks ? ATTN_COMPUTE_F16 : ATTN_COMPUTE_BF16,
    ctx->report.feature = feature;
}
