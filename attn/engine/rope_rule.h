/* engine/rope_rule.h owns what a description of rotary angles says: its rules, its frequencies, its factor. */

ATTN_COLD_ double attn_rope_ms_(double factor, double mscale) {
  return factor > 1.0 ? 0.1 * mscale * log(factor) + 1.0 : 1.0;
}

ATTN_COLD_ int attn_rope_above_(double x, double least) { return x >= least && x < HUGE_VAL; }

/* Pairs that have frequencies of their own: axial ones have them twice. */
ATTN_FUNC_ int64_t attn_rope_own_(const attn_rope_params *p) {
  return p->rotary_dim / (p->axial ? 4 : 2);
}

/* What YaRN needs; resolves it. */
ATTN_COLD_ int attn_check_yarn_(attn_error_ *e, attn_rope_params *p) {
  if (p->factor == 0.0)
    p->factor = (double)p->max_position_embeddings / (double)p->original_max_position_embeddings;
  if (p->beta_fast == 0.0) p->beta_fast = 32.0;
  if (p->beta_slow == 0.0) p->beta_slow = 1.0;
  if (!(p->base > 1.0))
    return attn_reject_(e, ATTN_E_VALUE, "params.base must be above 1 for YaRN");
  if (!(p->beta_slow > 0.0 && p->beta_slow <= p->beta_fast && p->beta_fast < HUGE_VAL))
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.beta_slow must be positive and not above .beta_fast");
  if (!attn_rope_above_(p->mscale, 0.0) || !attn_rope_above_(p->mscale_all_dim, 0.0))
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.mscale and .mscale_all_dim must be finite and not negative");
  return 1;
}

/* The arrays of LongRoPE and what they span; data: they may be read. */
ATTN_COLD_ int attn_check_longrope_(attn_error_ *e, const attn_rope_params *p, int data,
                                    attn_span_ span[2]) {
  const int64_t n = attn_rope_own_(p);
  if (!p->short_factor || !p->long_factor)
    return attn_reject_(e, ATTN_E_NULL, "params.short_factor and .long_factor must be given");
  if (p->factors != n)
    return attn_reject_(e, ATTN_E_SHAPE,
                        "params.factors must be rotary_dim / 2, or rotary_dim / 4 with axial");
  if (p->original_max_position_embeddings < 2)
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.original_max_position_embeddings must be at least 2");
  if (p->max_position_embeddings < 1 && p->attention_factor == 0.0 &&
      !attn_rope_above_(p->factor, 1.0))
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.max_position_embeddings, .factor (at least 1) or .attention_factor "
                        "must be given");
  if (!attn_check_array_(e, p->short_factor, n, 8,
                         "params.short_factor must be aligned to its elements", &span[0]) ||
      !attn_check_array_(e, p->long_factor, n, 8,
                         "params.long_factor must be aligned to its elements", &span[1]))
    return 0;
  for (int64_t m = 0; data && m < n; m++)
    if (!attn_rope_above_(p->short_factor[m], DBL_MIN) ||
        !attn_rope_above_(p->long_factor[m], DBL_MIN))
      return attn_reject_(e, ATTN_E_VALUE,
                          "params.short_factor and .long_factor must be positive and finite");
  return 1;
}

/* The fields that a type needs; resolves them. */
ATTN_COLD_ int attn_check_rope_type_(attn_error_ *e, attn_rope_params *p, int data,
                                     attn_span_ span[2]) {
  const attn_rope_type type = p->type;
  const int long_rope = type == ATTN_ROPE_LONGROPE, yarn = type == ATTN_ROPE_YARN;
  if ((int)type < 0 || type >= ATTN_ROPE_TYPES)
    return attn_reject_(e, ATTN_E_RANGE, "params.type must be an attn_rope_type");
  if ((type == ATTN_ROPE_LLAMA3 || yarn || long_rope) && p->original_max_position_embeddings < 1)
    return attn_reject_(e, ATTN_E_VALUE, "params.original_max_position_embeddings must be given");
  if (type == ATTN_ROPE_DYNAMIC && p->max_position_embeddings < 1)
    return attn_reject_(e, ATTN_E_VALUE, "params.max_position_embeddings must be given");
  if ((type == ATTN_ROPE_DYNAMIC || long_rope) && p->sequence_len < 1)
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.sequence_len must be given: the type goes by the whole length");
  if (yarn && !attn_check_yarn_(e, p)) return 0;
  if (long_rope && !attn_check_longrope_(e, p, data, span)) return 0;
  if ((long_rope ? p->factor != 0.0 : type != ATTN_ROPE_DEFAULT) &&
      !attn_rope_above_(p->factor, 1.0))
    return attn_reject_(e, ATTN_E_VALUE, "params.factor must be finite and at least 1");
  if (type == ATTN_ROPE_LLAMA3 &&
      !(p->low_freq_factor > 0.0 && p->low_freq_factor < p->high_freq_factor &&
        p->high_freq_factor < HUGE_VAL))
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.low_freq_factor must be positive and below .high_freq_factor");
  return 1;
}

/* Sections and axes: which position turns a pair. */
ATTN_COLD_ int attn_check_rope_axes_(attn_error_ *e, const attn_rope_params *p) {
  const int64_t pairs = p->rotary_dim / 2, *section = p->mrope_section;
  const int many = section[0] || section[1] || section[2];
  int64_t left = pairs;
  for (int a = 0; a < 3; a++) {
    if (many && (section[a] < 0 || section[a] > left))
      return attn_reject_(e, ATTN_E_RANGE, "params.mrope_section must sum to rotary_dim / 2");
    left -= section[a];
  }
  if (many && left)
    return attn_reject_(e, ATTN_E_RANGE, "params.mrope_section must sum to rotary_dim / 2");
  if (p->axial && (many || pairs % 2))
    return attn_reject_(
        e, ATTN_E_RANGE,
        "params.axial goes without mrope_section and with rotary_dim a multiple of 4");
  if (p->mrope_interleaved && !many)
    return attn_reject_(e, ATTN_E_RANGE, "params.mrope_interleaved goes with mrope_section");
  return 1;
}

/* The factor of sines and cosines of a resolved description. */
ATTN_COLD_ double attn_rope_factor_(const attn_rope_params *p) {
  if (p->attention_factor != 0.0) return p->attention_factor;
  if (p->type == ATTN_ROPE_YARN)
    return p->mscale != 0.0 && p->mscale_all_dim != 0.0
               ? attn_rope_ms_(p->factor, p->mscale) / attn_rope_ms_(p->factor, p->mscale_all_dim)
               : attn_rope_ms_(p->factor, 1.0);
  if (p->type != ATTN_ROPE_LONGROPE) return 1.0;
  const double orig = (double)p->original_max_position_embeddings;
  const int given = p->max_position_embeddings > 0;
  const double most = given ? (double)p->max_position_embeddings / orig : p->factor;
  return most > 1.0 ? sqrt(1.0 + log(most) / log(orig)) : 1.0;
}

/* Everything about the angles but positions and tables, of rows of width dim; resolves it. span: of arrays. */
ATTN_FUNC_ int attn_check_rope_(attn_error_ *e, attn_rope_params *p, int64_t dim, int data,
                                attn_span_ span[2]) {
  p->rotary_dim = attn_given_or_(p->has_rotary_dim, p->rotary_dim, dim);
  if (p->rotary_dim < 0 || p->rotary_dim > dim || p->rotary_dim % 2)
    return attn_reject_(e, ATTN_E_RANGE, "params.rotary_dim must be even and lie in 0..x.dim");
  if (p->base == 0.0) p->base = 10000.0;
  if (!(p->base > 0.0 && p->base < HUGE_VAL))
    return attn_reject_(e, ATTN_E_VALUE, "params.base must be positive and finite");
  if (p->layout != ATTN_ROPE_INTERLEAVED && p->layout != ATTN_ROPE_HALF)
    return attn_reject_(e, ATTN_E_RANGE, "params.layout must be an attn_rope_layout");
  if (!(p->xpos >= 0.0 && p->xpos < HUGE_VAL))
    return attn_reject_(e, ATTN_E_VALUE, "params.xpos must be finite and not negative");
  if (p->type == ATTN_ROPE_DEFAULT && p->attention_factor == 0.0)
    return attn_check_rope_axes_(e, p);
  if (!attn_check_rope_type_(e, p, data, span)) return 0;
  const double factor = attn_rope_factor_(p); /* with that of xPos it must be a float */
  if (!(factor > 0.0 && factor <= 1000.0))
    return attn_reject_(e, ATTN_E_VALUE,
                        "the attention factor of params must be positive and at most 1000");
  return attn_check_rope_axes_(e, p);
}

/* f where share is 1, f / factor where it is 0: exactly. */
ATTN_COLD_ double attn_rope_between_(double f, double factor, double share) {
  const double slow = f / factor;
  return share <= 0.0 ? slow : share >= 1.0 ? f : slow + share * (f - slow);
}

/* The base of a type that changes it. */
ATTN_COLD_ double attn_rope_base_(const attn_rope_params *p, double width) {
  const double power = width / (width - 2.0);
  if (width <= 2.0) return p->base; /* one frequency, 1 whatever the base */
  if (p->type == ATTN_ROPE_NTK) return p->base * pow(p->factor, power);
  if (p->type != ATTN_ROPE_DYNAMIC) return p->base;
  const double most = (double)p->max_position_embeddings, len = (double)p->sequence_len;
  return p->base * pow(1.0 + p->factor * ((len > most ? len : most) - most) / most, power);
}

/* Places, in pairs, between which YaRN goes from frequencies that stay to those that are divided. */
ATTN_COLD_ void attn_yarn_range_(const attn_rope_params *p, double width, double *low,
                                 double *high) {
  const double turns = (double)p->original_max_position_embeddings / 6.283185307179586477;
  const double by = width / (2.0 * log(p->base));
  *low = by * log(turns / p->beta_fast), *high = by * log(turns / p->beta_slow);
  if (!p->no_truncate) *low = floor(*low), *high = ceil(*high);
  if (*low < 0.0) *low = 0.0;
  if (*low > 1e9) *low = 1e9; /* it may be infinite, which no pair tells from this */
  if (*high > width - 1.0) *high = width - 1.0;
  if (*low == *high) *high += 0.001;
}

/* The frequencies of a resolved description into f[rotary_dim / 2]. */
ATTN_FUNC_ void attn_rope_frequencies_(const attn_rope_params *p, double *f) {
  const int64_t n = attn_rope_own_(p);
  const double width = 2.0 * (double)n;
  const double base = p->type == ATTN_ROPE_DEFAULT ? p->base : attn_rope_base_(p, width);
  double low = 0.0, high = 0.0;
  for (int64_t m = 0; m < n; m++) f[m] = pow(base, -2.0 * (double)m / width);
  if (p->type == ATTN_ROPE_YARN) attn_yarn_range_(p, width, &low, &high);
  const double *by =
      p->sequence_len > p->original_max_position_embeddings ? p->long_factor : p->short_factor;
  for (int64_t m = 0; p->type != ATTN_ROPE_DEFAULT && m < n; m++) {
    const double share =
        ((double)p->original_max_position_embeddings * f[m] / 6.283185307179586477 -
         p->low_freq_factor) /
        (p->high_freq_factor - p->low_freq_factor);
    switch (p->type) {
      case ATTN_ROPE_LINEAR: f[m] /= p->factor; break;
      case ATTN_ROPE_LLAMA3: f[m] = attn_rope_between_(f[m], p->factor, share); break;
      case ATTN_ROPE_YARN:
        f[m] = attn_rope_between_(f[m], p->factor, 1.0 - ((double)m - low) / (high - low));
        break;
      case ATTN_ROPE_LONGROPE: f[m] /= by[m]; break;
      default: break;
    }
  }
  if (p->axial) memcpy(f + n, f, (size_t)n * sizeof *f);
}
