/* engine/score_terms.h owns the table of score terms: which there are, where a call's parameters say so,
 * and what can be combined with each. Whoever must know asks here, so that a term stands in no list
 * besides.
 *
 *   X(NAME, field of the problem, field of attn_sdpa_params, whether it is there, what takes it, its
 *     function, whether its value is legal, else the sentence)
 *
 * A term is either a stage of the engine, which knows its field (function NULL), or a function on tiles of
 * scores, which the engine calls before the caller's own modifier: natural units, blocks and lists
 * alike, user = the problem's field. */

enum {
  ATTN_TAKES_FEW_ = 1,       /* few queries (engine/decode.h) */
  ATTN_TAKES_RAGGED_ = 2,    /* sequences of unequal length */
  ATTN_TAKES_JOINT_ = 4,     /* heads that need each other's scores */
  ATTN_TAKES_PLACELESS_ = 8, /* rows gathered without their positions */
  ATTN_TAKES_HEADS_ = 16,    /* rows of several heads in a tile */
  ATTN_TERM_SCORE_ = 32,     /* changes scores: they have no maximum before it */
  ATTN_TERM_ADDED_ = 64,     /* after the scale: scores are no longer proportional to it */
  ATTN_TERM_PAIR_ = 128,     /* computed or looked up for each pair of a key list */
  ATTN_TERM_FUNCTION_ = 256  /* it is a function, or the caller's */
};
#define ATTN_TAKES_MOST_ (ATTN_TAKES_FEW_ | ATTN_TAKES_RAGGED_ | ATTN_TAKES_JOINT_)
#define ATTN_TERM_MODIFIES_ \
  (ATTN_TAKES_FEW_ | ATTN_TAKES_RAGGED_ | ATTN_TAKES_HEADS_ | ATTN_TERM_SCORE_ | ATTN_TERM_ADDED_)

#define ATTN_SCORE_TERMS_(X)                                                                       \
  X(RELATIVE, relative.keys, relative.keys, p->relative.keys.data, ATTN_TERM_SCORE_, NULL, 1,      \
    NULL)                                                                                          \
  X(QUERIES, relative.queries, relative.queries, p->relative.queries.data, ATTN_TERM_SCORE_, NULL, \
    1, NULL)                                                                                       \
  X(VALUES, relative.values, relative.values, p->relative.values.data, 0, NULL, 1, NULL)           \
  X(XL, xl, xl, p->xl.table.data || p->xl.u || p->xl.v, ATTN_TERM_SCORE_, NULL, 1, NULL)           \
  X(LABELS, labels, labels, p->labels.label, ATTN_TAKES_RAGGED_ | ATTN_TERM_SCORE_, NULL, 1, NULL) \
  X(FACTOR, by_distance.factor, factor, p->factor.alpha,                                           \
    ATTN_TAKES_FEW_ | ATTN_TAKES_RAGGED_ | ATTN_TERM_SCORE_ | ATTN_TERM_PAIR_, NULL, 1, NULL)      \
  X(SOFTCAP, softcap, softcap, p->softcap != 0.0f, ATTN_TERM_MODIFIES_ | ATTN_TAKES_PLACELESS_,    \
    NULL, p->softcap >= 0.0f && p->softcap < INFINITY,                                             \
    "params.softcap must be finite and not negative")                                              \
  X(TOEPLITZ, by_distance.toeplitz, toeplitz, p->toeplitz.table,                                   \
    ATTN_TAKES_MOST_ | ATTN_TERM_SCORE_ | ATTN_TERM_ADDED_ | ATTN_TERM_PAIR_, NULL, 1, NULL)       \
  X(T5, by_distance.t5, t5, p->t5.table,                                                           \
    ATTN_TAKES_MOST_ | ATTN_TERM_SCORE_ | ATTN_TERM_ADDED_ | ATTN_TERM_PAIR_, NULL, 1, NULL)       \
  X(PARABOLA, by_distance.parabola, parabola, p->parabola.w,                                       \
    ATTN_TAKES_MOST_ | ATTN_TERM_SCORE_ | ATTN_TERM_ADDED_ | ATTN_TERM_PAIR_, NULL, 1, NULL)       \
  X(ALIBI, alibi, alibi, p->alibi,                                                                 \
    ATTN_TAKES_MOST_ | ATTN_TAKES_HEADS_ | ATTN_TERM_SCORE_ | ATTN_TERM_ADDED_ | ATTN_TERM_PAIR_,  \
    NULL, 1, NULL)                                                                                 \
  X(GAUSSIAN, gaussian, gaussian, p->gaussian.center || p->gaussian.precision,                     \
    ATTN_TAKES_FEW_ | ATTN_TAKES_JOINT_ | ATTN_TAKES_HEADS_ | ATTN_TERM_SCORE_ |                   \
        ATTN_TERM_ADDED_ | ATTN_TERM_PAIR_,                                                        \
    NULL, 1, NULL)                                                                                 \
  X(BIAS, bias, bias, p->bias.kind != ATTN_MASK_NONE,                                              \
    ATTN_TAKES_MOST_ | ATTN_TAKES_HEADS_ | ATTN_TERM_ADDED_ | ATTN_TERM_PAIR_, NULL, 1, NULL)      \
  X(SPAN, span, span, p->span.z, ATTN_TAKES_HEADS_ | ATTN_TERM_PAIR_, NULL, 1, NULL)               \
  X(MODIFY, modify, modify, p->modify, ATTN_TERM_MODIFIES_ | ATTN_TERM_FUNCTION_, NULL, 1, NULL)   \
  X(WEIGHTS, modify_weights, modify_weights, p->modify_weights,                                    \
    ATTN_TAKES_RAGGED_ | ATTN_TAKES_HEADS_, NULL, 1, NULL)                                         \
  X(DROP, drop, dropout, p->dropout.p != 0.0, ATTN_TAKES_RAGGED_ | ATTN_TAKES_HEADS_, NULL,        \
    p->dropout.p >= 0.0 && p->dropout.p < 1.0, "dropout.p must lie in [0, 1)")                     \
  X(MASK, mask, mask, p->mask.kind != ATTN_MASK_NONE,                                              \
    ATTN_TAKES_MOST_ | ATTN_TAKES_HEADS_ | ATTN_TERM_PAIR_, NULL, 1, NULL)

/* A bit for each. */
#define ATTN_TERM_NUMBER_(name, field, from, there, takes, function, legal, reason) \
  ATTN_TERM_##name##_NUMBER_,
#define ATTN_TERM_BIT_(name, field, from, there, takes, function, legal, reason) \
  ATTN_TERM_##name##_ = 1 << ATTN_TERM_##name##_NUMBER_,
enum { ATTN_SCORE_TERMS_(ATTN_TERM_NUMBER_) ATTN_TERM_KINDS_ };
enum { ATTN_SCORE_TERMS_(ATTN_TERM_BIT_) ATTN_TERM_NONE_ = 0 };

/* The terms that have one of these marks. */
ATTN_INLINE_ int attn_terms_with_(int marks) {
#define ATTN_TERM_IF_(name, field, from, there, takes, function, legal, reason) \
  | (((takes)&marks) ? (int)ATTN_TERM_##name##_ : 0)
  return 0 ATTN_SCORE_TERMS_(ATTN_TERM_IF_);
#undef ATTN_TERM_IF_
}

/* The terms of a call. */
ATTN_FUNC_ int attn_terms_of_(const attn_sdpa_params *p) {
#define ATTN_TERM_IF_(name, field, from, there, takes, function, legal, reason) \
  | ((there) ? (int)ATTN_TERM_##name##_ : 0)
  return 0 ATTN_SCORE_TERMS_(ATTN_TERM_IF_);
#undef ATTN_TERM_IF_
}

/* Whether there is one, or what is nothing without it: then the terms are taken and judged. */
ATTN_INLINE_ int attn_terms_any_(int terms, const attn_sdpa_params *p) {
  return terms || p->labels.table.data || p->labels.bias || p->factor.beta || p->parabola.bias;
}

/* They become those of a problem, which is all zero; 0 = the value of one is not legal, or it is not there. */
ATTN_FUNC_ int attn_terms_take_(attn_error_ *e, attn_softmax_ *a, const attn_sdpa_params *p) {
  a->terms = attn_terms_of_(p);
  if (!ATTN_HAS_TRAINING && (a->terms & ATTN_TERM_DROP_))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.dropout: ATTN_ONLY leaves out ATTN_FAMILY_TRAINING");
  if ((a->terms & ATTN_TERM_DROP_) && !a->takes_drop)
    return attn_reject_(e, ATTN_E_RANGE, "params.dropout must be absent in this call");
  if (!ATTN_HAS_TERMS && (a->terms & ~(ATTN_TERM_MASK_ | ATTN_TERM_BIAS_ | ATTN_TERM_ALIBI_)))
    return attn_reject_(
        e, ATTN_E_RANGE,
        "params: ATTN_ONLY leaves out ATTN_FAMILY_TERMS, which has softcap, modify and "
        "the terms from relative to span");
  if (attn_terms_any_(a->terms, p)) {
#define ATTN_TERM_TAKE_(name, field, from, there, takes, function, legal, reason) \
  if (!(legal)) return attn_reject_(e, ATTN_E_VALUE, reason);                     \
  a->field = p->from;
    ATTN_SCORE_TERMS_(ATTN_TERM_TAKE_)
#undef ATTN_TERM_TAKE_
    a->modify_user = p->modify_user, a->modify_weights_user = p->modify_weights_user;
  }
  if ((int)p->softcap_at < 0 || p->softcap_at >= ATTN_SOFTCAP_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.softcap_at is no attn_softcap_at");
  a->cap_last = p->softcap_at == ATTN_SOFTCAP_BIASED;
  return 1;
}

/* A problem loses the terms that change its scores: they are in them already. */
ATTN_FUNC_ void attn_terms_drop_(attn_softmax_ *a) {
#define ATTN_TERM_DROP_(name, field, from, there, takes, function, legal, reason) \
  if ((takes)&ATTN_TERM_SCORE_) memset(&a->field, 0, sizeof a->field);
  ATTN_SCORE_TERMS_(ATTN_TERM_DROP_)
#undef ATTN_TERM_DROP_
  a->terms &= ~attn_terms_with_(ATTN_TERM_SCORE_);
  a->distances = 0;
}

/* Whether some are functions, or the caller's modifier is there. */
ATTN_INLINE_ int attn_modifies_(const attn_softmax_ *a) {
  return ATTN_HAS_TERMS && (a->terms & attn_terms_with_(ATTN_TERM_FUNCTION_)) != 0;
}

/* Whether the soft-cap comes after the additive terms. */
ATTN_INLINE_ int attn_caps_last_(const attn_softmax_ *a) {
  return ATTN_HAS_TERMS && a->cap_last && a->softcap > 0.0f;
}

/* Whether anything follows the additive terms: what these forbid must then be known besides. */
ATTN_INLINE_ int attn_goes_on_(const attn_softmax_ *a) {
  return attn_modifies_(a) || attn_caps_last_(a);
}

/* Whether the caller changes weights: a first pass then finds maximum and sum of each row, a second one
 * has normalised weights. */
ATTN_INLINE_ int attn_weighs_(const attn_softmax_ *a) {
  return ATTN_HAS_TERMS && (a->terms & ATTN_TERM_WEIGHTS_) != 0;
}
ATTN_INLINE_ int attn_reweighs_(const attn_softmax_ *a) { return attn_weighs_(a) && !a->counting; }

/* Those on a tile of scores. */
ATTN_FUNC_ void attn_terms_apply_(const attn_softmax_ *a, const attn_score_tile *tile) {
  static const struct {
    attn_score_fn function;
    size_t field;
  } term[ATTN_TERM_KINDS_] = {
#define ATTN_TERM_ROW_(name, field, from, there, takes, function, legal, reason) \
  {function, offsetof(attn_softmax_, field)},
      ATTN_SCORE_TERMS_(ATTN_TERM_ROW_)
#undef ATTN_TERM_ROW_
  };
  for (int i = 0; i < ATTN_TERM_KINDS_; i++)
    if (term[i].function && a->terms >> i & 1)
      term[i].function((char *)(uintptr_t)a + term[i].field, tile);
  if (a->modify) a->modify(a->modify_user, tile);
}
