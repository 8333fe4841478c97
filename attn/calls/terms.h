/* calls/terms.h owns the checks of the score terms (api/calls/score.h) and their translation into the
 * exact-softmax engine's terms. */

/* The arrays that terms read, for the test of what they share with outputs. */
enum {
  ATTN_T_REL_K_,
  ATTN_T_REL_V_,
  ATTN_T_REL_Q_,
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
ATTN_FUNC_ int attn_check_table_(attn_error_ *e, attn_tensor *t, const char *w, const char *type,
                                 const char *shape, int64_t heads, int64_t dim, attn_span_ *span) {
  if (!t->data) return 1;
  if (t->dtype != ATTN_F32) return attn_reject_(e, ATTN_E_DTYPE, type);
  if (!attn_check_tensor_(e, t, w, span)) return 0;
  if (t->batch != 1 || (t->heads != 1 && t->heads != heads) || t->len < 1 || t->dim != dim)
    return attn_reject_(e, ATTN_E_SHAPE, shape);
  return 1;
}

ATTN_FUNC_ int attn_check_finite_(attn_error_ *e, const float *x, int64_t n, const char *reason) {
  if (x)
    for (int64_t i = 0; i < n; i++)
      if (!(x[i] - x[i] == 0.0f)) return attn_reject_(e, ATTN_E_VALUE, reason);
  return 1;
}

ATTN_FUNC_ int attn_check_relative_(attn_error_ *e, attn_softmax_ *a, attn_span_ *span) {
  static const char wk[] = ATTN_WORDS_("params.relative.keys"),
                    wv[] = ATTN_WORDS_("params.relative.values"),
                    wq[] = ATTN_WORDS_("params.relative.queries");
  attn_relative *r = &a->relative;
  if (!attn_check_table_(e, &r->keys, wk, "params.relative.keys.dtype must be ATTN_F32",
                         "params.relative.keys must be [1, 1 or q.heads, n, q.dim]", a->q.heads,
                         a->q.dim, &span[ATTN_T_REL_K_]) ||
      !attn_check_table_(e, &r->values, wv, "params.relative.values.dtype must be ATTN_F32",
                         "params.relative.values must be [1, 1 or q.heads, n, v.dim]", a->q.heads,
                         a->v.dim, &span[ATTN_T_REL_V_]) ||
      !attn_check_table_(e, &r->queries, wq, "params.relative.queries.dtype must be ATTN_F32",
                         "params.relative.queries must be [1, 1 or q.heads, n, q.dim]", a->q.heads,
                         a->q.dim, &span[ATTN_T_REL_Q_]))
    return 0;
  if ((r->keys.data && r->keys.len % 2 == 0) || (r->values.data && r->values.len % 2 == 0) ||
      (r->queries.data && r->queries.len % 2 == 0))
    return attn_reject_(e, ATTN_E_SHAPE, "params.relative: len must be odd, 2 c + 1");
  if (r->keys.data && r->values.data && r->keys.len != r->values.len)
    return attn_reject_(e, ATTN_E_SHAPE, "params.relative.values.len must equal that of keys");
  if (r->queries.data && attn_relative_clip_(a) != (r->queries.len - 1) / 2)
    return attn_reject_(e, ATTN_E_SHAPE,
                        "params.relative.queries.len must equal that of keys and values");
  if (r->queries.data && r->queries.len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "params.relative.queries.len must be below 2^31");
  return 1;
}

/* The distances j - p that causal and window leave to so many queries and keys, at offsets lo to hi. 0 =
 * none. */
ATTN_FUNC_ int attn_distances_left_(const attn_softmax_ *a, int64_t queries, int64_t keys,
                                    int64_t lo, int64_t hi, int64_t *first, int64_t *last) {
  *first = -(hi + queries - 1), *last = keys - 1 - lo;
  if (*first < -a->left && !a->keep) *first = -a->left;
  if (*last > a->right) *last = a->right;
  return queries > 0 && keys > 0 && *first <= *last;
}

ATTN_FUNC_ int attn_distance_range_(const attn_softmax_ *a, int64_t *first, int64_t *last) {
  const int each = a->seq && a->seq->offs;
  return attn_distances_left_(a, a->q.len, a->k.len, each ? a->seq->off_lo : a->q_off,
                              each ? a->seq->off_hi : a->q_off, first, last);
}

/* Whether Transformer-XL's table has what every batch entry reads; reads the lengths. */
ATTN_FUNC_ int attn_check_xl_covers_(attn_error_ *e, const attn_softmax_ *a) {
  const attn_xl *x = &a->xl;
  int64_t first, last;
  for (int64_t b = 0; b < (a->kv_len || a->q_len || a->seq ? a->q.batch : 1); b++) {
    attn_softmax_ own;
    const int64_t off = attn_problem_(a, b, &own)->q_off;
    if (attn_distances_left_(a, a->q_len ? a->q_len[b] : a->q.len,
                             a->kv_len ? a->kv_len[b] : a->k.len, off, off, &first, &last) &&
        (first < x->first || last >= x->first + x->table.len))
      return attn_reject_(e, ATTN_E_RANGE,
                          "params.xl.table must cover every allowed distance, from xl.first on");
  }
  return 1;
}

ATTN_FUNC_ int attn_check_xl_(attn_error_ *e, attn_softmax_ *a, attn_span_ *span) {
  static const char w[] = ATTN_WORDS_("params.xl.table");
  attn_xl *x = &a->xl;
  const int64_t n = attn_mul_(a->q.heads, a->q.dim), far = (int64_t)1 << 41;
  if (!x->table.data) {
    if (x->u || x->v)
      return attn_reject_(e, ATTN_E_NULL, "params.xl.table.data must not be null with biases");
    return 1;
  }
  if (!attn_check_table_(e, &x->table, w, "params.xl.table.dtype must be ATTN_F32",
                         "params.xl.table must be [1, 1 or q.heads, n, q.dim]", a->q.heads,
                         a->q.dim, &span[ATTN_T_XL_]) ||
      !attn_check_array_(e, x->u, n, 4, "params.xl.u must be aligned to its elements",
                         &span[ATTN_T_XL_U_]) ||
      !attn_check_array_(e, x->v, n, 4, "params.xl.v must be aligned to its elements",
                         &span[ATTN_T_XL_V_]))
    return 0;
  if (x->first < -far || x->first > far)
    return attn_reject_(e, ATTN_E_RANGE, "params.xl.first must lie within 2^41 of 0");
  if (x->table.len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "params.xl.table.len must be below 2^31");
  return a->kv_len || a->q_len || attn_check_xl_covers_(e, a); /* lengths are read later */
}

ATTN_FUNC_ int attn_check_labels_(attn_error_ *e, attn_softmax_ *a, attn_span_ *span) {
  static const char w[] = ATTN_WORDS_("params.labels.table");
  attn_labels *x = &a->labels;
  if (!x->label) {
    if (x->table.data || x->bias)
      return attn_reject_(e, ATTN_E_NULL, "params.labels.label must not be null with a table");
    return 1;
  }
  if (!x->table.data)
    return attn_reject_(e, ATTN_E_NULL, "params.labels.table.data must not be null");
  return attn_check_table_(e, &x->table, w, "params.labels.table.dtype must be ATTN_F32",
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
  if (d->parabola.bias && !d->parabola.w)
    return attn_reject_(e, ATTN_E_NULL, "params.parabola.w must not be null with b");
  return attn_check_array_(e, d->parabola.w, heads, 4,
                           "params.parabola.w must be aligned to its elements",
                           &span[ATTN_T_PARABOLA_W_]) &&
         attn_check_array_(e, d->parabola.bias, heads, 4,
                           "params.parabola.bias must be aligned to its elements",
                           &span[ATTN_T_PARABOLA_B_]);
}

ATTN_FUNC_ int attn_check_span_(attn_error_ *e, attn_softmax_ *a, int64_t rows, attn_span_ *span) {
  const attn_span *s = &a->span;
  if (!s->z) return 1;
  if (!(s->ramp >= 0.0f && s->ramp < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.span.ramp must be positive, or 0 for 32");
  if (s->max_span < 0)
    return attn_reject_(e, ATTN_E_RANGE, "params.span.max_span must not be negative");
  if (attn_abs64_(s->shift) > (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_RANGE, "params.span.shift must lie within 2^40 of 0");
  return attn_check_array_(e, s->z, s->per_query ? rows : a->q.heads, 4,
                           "params.span.z must be aligned to its elements", span);
}

/* All score terms of a, which has taken them (attn_terms_take_), with its extents, scale and window; spans
 * are what they read. */
ATTN_FUNC_ int attn_check_terms_(attn_error_ *e, attn_softmax_ *a, const attn_sdpa_params *p,
                                 attn_span_ *span) {
  const int64_t rows = attn_mul_(attn_mul_(a->q.batch, a->q.heads), a->q.len);
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
    /* padded queries sit behind the end of a sequence, at most q.len of them */
    a->distances = attn_distances_(attn_mul_(a->q.len, a->seq ? 2 : 1), a->k.len);
    a->distance_zero = a->k.len - 1 - a->q_off;
    if (a->seq && a->seq->offs) {
      a->distances = attn_add_(a->distances, a->seq->off_hi - a->seq->off_lo);
      a->distance_zero = a->k.len - 1 - a->seq->off_lo;
    }
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
  if ((a->xl.table.data && !attn_check_xl_covers_(e, a)) ||
      !attn_check_finite_(e, d->factor.alpha, heads, "params.factor.alpha must be finite") ||
      !attn_check_finite_(e, d->factor.beta, heads, "params.factor.beta must be finite") ||
      !attn_check_finite_(e, d->toeplitz.table,
                          attn_mul_(d->toeplitz.len, d->toeplitz.heads > 1 ? heads : 1),
                          "params.toeplitz.table must be finite") ||
      !attn_check_finite_(e, d->t5.table, attn_mul_(heads, d->t5.buckets ? d->t5.buckets : 32),
                          "params.t5.table must be finite"))
    return 0;
  if (d->parabola.w)
    for (int64_t h = 0; h < heads; h++) {
      if (!(d->parabola.w[h] >= 0.0f && d->parabola.w[h] < INFINITY))
        return attn_reject_(e, ATTN_E_VALUE, "params.parabola.w must be finite and not negative");
      if (d->parabola.bias && !(d->parabola.bias[h] <= 0.0f && d->parabola.bias[h] > -INFINITY))
        return attn_reject_(e, ATTN_E_VALUE,
                            "params.parabola.bias must be finite and not positive");
    }
  const int64_t spans = s->per_query ? attn_mul_(attn_mul_(a->q.batch, heads), a->q.len) : heads;
  if (s->z)
    for (int64_t i = 0; i < spans; i++) {
      if (!(s->z[i] >= 0.0f && s->z[i] < INFINITY))
        return attn_reject_(e, ATTN_E_VALUE, "params.span.z must be finite and not negative");
      if (s->max_span > 0 && (double)s->z[i] > (double)s->max_span)
        return attn_reject_(e, ATTN_E_RANGE, "params.span.z must not exceed params.span.max_span");
    }
  return 1;
}
