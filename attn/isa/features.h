/* isa/features.h owns the state of what processors have beside a tier: probed once, switched off by
 * ATTN_ISA or attn_feature_off. */

/* Two bits of state a feature, from bit 2 on; bits 16 to 29 the features that ATTN_ISA switches off,
 * bit 30 "filled". */
static int attn_feature_word_;
static int attn_feature_off_word_; /* what attn_feature_off has switched off */

ATTN_FUNC_ int attn_features_(void) {
  int w = ATTN_ATOMIC_LOAD_(&attn_feature_word_);
  if (w) return w;
  for (int i = 1; i < ATTN_FEATURE_COUNT; i++)
    w |= (int)attn_probe_feature_((attn_feature)i) << (2 * i);
#ifndef ATTN_NO_GETENV
  const char *env = getenv("ATTN_ISA");
  const int off = env ? attn_env_off_(env + attn_env_word_(env), 0) : 0;
  if (off > 0) w |= off << 16;
#endif
  w |= 1 << 30;
  ATTN_ATOMIC_STORE_(&attn_feature_word_, w);
  return w;
}

ATTN_FUNC_ int attn_feature_known_(attn_feature feature) {
  return (int)feature > 0 && feature < ATTN_FEATURE_COUNT;
}

ATTN_PUB_ const char *attn_feature_name(attn_feature feature) {
  return (int)feature == 0              ? attn_feature_rows_[0].name
         : attn_feature_known_(feature) ? attn_feature_rows_[(int)feature].name
                                        : "unknown";
}

ATTN_PUB_ attn_isa attn_feature_isa(attn_feature feature) {
  return attn_feature_known_(feature) ? attn_feature_rows_[(int)feature].isa : ATTN_ISA_AUTO;
}

ATTN_PUB_ attn_isa_state attn_feature_status(attn_feature feature) {
  if (!attn_feature_known_(feature)) return ATTN_ISA_NOT_COMPILED;
  const int w = attn_features_(), off = w >> 16 | ATTN_ATOMIC_LOAD_(&attn_feature_off_word_);
  const attn_isa_state state = (attn_isa_state)(w >> (2 * (int)feature) & 3);
  if (state != ATTN_ISA_OK) return state;
  return off >> (int)feature & 1 ? ATTN_ISA_CAPPED : attn_isa_status(attn_feature_isa(feature));
}

ATTN_PUB_ const char *attn_feature_why(attn_feature feature) {
  const attn_isa isa = attn_feature_isa(feature);
  switch (attn_feature_status(feature)) {
    case ATTN_ISA_OK: return "runs";
    case ATTN_ISA_CAPPED:
      return attn_isa_status(isa) == ATTN_ISA_OK ? "switched off by ATTN_ISA or attn_feature_off()"
                                                 : attn_isa_why(isa);
    case ATTN_ISA_OS_LACKS: return attn_isa_why(isa);
    case ATTN_ISA_CPU_LACKS: return "the processor lacks it";
    default: break;
  }
  if (!attn_feature_known_(feature)) return "no such feature";
  return attn_isa_native_(isa) ? "left out when this was compiled"
                               : "a feature of another processor family";
}

ATTN_PUB_ attn_status attn_feature_off(attn_feature feature, int off) {
  if (!attn_feature_known_(feature) || !attn_isa_native_(attn_feature_isa(feature)))
    return ATTN_E_ISA;
  if (attn_env_bad_()) return ATTN_E_ENV;
  const int w = ATTN_ATOMIC_LOAD_(&attn_feature_off_word_), bit = 1 << (int)feature;
  ATTN_ATOMIC_STORE_(&attn_feature_off_word_, off ? w | bit : w & ~bit);
  return ATTN_OK;
}
