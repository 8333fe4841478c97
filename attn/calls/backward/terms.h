/* calls/backward/terms.h owns the gradients of what is added to scores: sums of dX over the pairs that share
 * a number. They are a second sweep over the tiles, head by head, which makes scores and dX alone. */

/* Whether some gradient of a term is asked for. */
ATTN_FUNC_ int attn_terms_asked_(const attn_sdpa_gradients *p) {
  return p->d_alibi || p->d_toeplitz || p->d_t5 || p->d_parabola_w || p->d_parabola_bias ||
         p->d_center || p->d_precision || p->d_bias.data || p->d_scale || p->d_span || p->d_alpha ||
         p->d_beta || p->d_xl_u || p->d_xl_v || p->d_label_bias || p->d_relative.keys.data ||
         p->d_relative.queries.data || p->d_relative.values.data || p->d_xl_table.data ||
         p->d_label_table.data;
}

/* Whether one of these is summed by distance. */
ATTN_FUNC_ int attn_terms_by_distance_(const attn_softmax_ *a, const attn_sdpa_gradients *p) {
  return p->d_alibi || p->d_toeplitz || p->d_t5 || p->d_parabola_w || p->d_parabola_bias ||
         (p->d_scale && a->by_distance.toeplitz.table && a->by_distance.toeplitz.inside);
}

ATTN_FUNC_ int64_t attn_t5_buckets_(const attn_softmax_ *a) {
  const int64_t n = a->by_distance.t5.buckets;
  return n ? n : 32;
}

/* Whether those of all heads meet in one number. */
ATTN_FUNC_ int attn_terms_shared_(const attn_softmax_ *a, const attn_sdpa_gradients *p) {
  const attn_tensor *const y[] = {
      &p->d_bias,     &p->d_relative.keys, &p->d_relative.queries, &p->d_relative.values,
      &p->d_xl_table, &p->d_label_table};
  int shared = p->d_toeplitz && a->by_distance.toeplitz.heads <= 1;
  for (int i = 0; i < 6; i++) shared |= y[i]->data && y[i]->heads == 1;
  return a->q.heads > 1 && shared;
}

/* The numbers of a segment, by distance. */
ATTN_FUNC_ void attn_terms_distance_(const attn_tile_ *t, double *sums, const attn_block_ *b,
                                     const attn_segment_ *seg, const float *d) {
  const int r0 = seg->g0 * ATTN_GROUP_;
  const int r1 = seg->g1 * ATTN_GROUP_ < t->n ? seg->g1 * ATTN_GROUP_ : t->n;
  for (int e = 0; e < seg->n; e++) {
    double *to = sums + t->a->k.len - 1 - attn_block_key_(b, seg->at + e);
    const float *from = d + e * ATTN_TILE_;
    if (t->lined)
      for (int r = r0; r < r1; r++) to[t->row[0] + r] += (double)from[r];
    else
      for (int r = r0; r < r1; r++) to[t->row[r]] += (double)from[r];
  }
}

/* Adds dX of a segment, rows r0 .. of the tile, d [key][lane]. */
ATTN_FUNC_ void attn_terms_add_(const attn_tile_ *t, const attn_sdpa_gradients *p,
                                attn_term_sums_ *x, const attn_block_ *b, const attn_segment_ *seg,
                                const float *d) {
  const attn_softmax_ *a = t->a;
  const int r0 = seg->g0 * ATTN_GROUP_;
  const int r1 = seg->g1 * ATTN_GROUP_ < t->n ? seg->g1 * ATTN_GROUP_ : t->n;
  if (x->by_distance) attn_terms_distance_(t, x->by_distance, b, seg, d);
  for (int r = r0; (p->d_center || p->d_precision) && r < r1; r++) {
    const double c =
        (double)a->gaussian.center[attn_row_number_(a, t->batch, t->head[r], t->row[r])];
    for (int e = 0; e < seg->n; e++) {
      const double away = (double)attn_block_key_(b, seg->at + e) - c;
      x->center[r] += away * (double)d[e * ATTN_TILE_ + r];
      x->precision[r] += away * away * (double)d[e * ATTN_TILE_ + r];
    }
  }
  for (int e = 0; x->by_key && e < seg->n; e++)
    for (int r = r0; r < r1; r++)
      x->by_key[attn_block_key_(b, seg->at + e)] += (double)d[e * ATTN_TILE_ + r];
  for (int r = r0; p->d_bias.data && !x->by_key && r < r1; r++) {
    float *row = (float *)(void *)attn_at_(&p->d_bias, p->d_bias.batch > 1 ? t->batch : 0,
                                           p->d_bias.heads > 1 ? t->head[r] : 0, t->row[r]);
    for (int e = 0; e < seg->n; e++) row[attn_block_key_(b, seg->at + e)] += d[e * ATTN_TILE_ + r];
  }
}

/* Adds what an adaptive span gets of a segment: of P_ij with a factor m between 0 and 1, dX / (m R). */
ATTN_FUNC_ void attn_terms_span_(const attn_tile_ *t, const attn_sdpa_gradients *p,
                                 attn_term_sums_ *x, const attn_block_ *b, const attn_segment_ *seg,
                                 const float *d) {
  const int r1 = seg->g1 * ATTN_GROUP_ < t->n ? seg->g1 * ATTN_GROUP_ : t->n;
  const double length = attn_span_ramp_(&t->a->span);
  attn_ramp_ ramp;
  if (!p->d_span || b->j0 >= t->flat) return;
  ramp.start = t->start, ramp.edge = t->edge, ramp.at = b->at;
  ramp.rate = (float)attn_clamp_f64_(ATTN_RAMP_UP_ / length);
  for (int e = 0; e < seg->n; e++)
    for (int r = seg->g0 * ATTN_GROUP_; r < r1; r++) {
      const float m = attn_ramp_at_(&ramp, r, seg->at + e);
      if (m > 0.0f && m < 1.0f) x->spans[r] += (double)d[e * ATTN_TILE_ + r] / ((double)m * length);
    }
}

/* Adds dX times the score inside the soft-cap, a, by distance. */
ATTN_FUNC_ void attn_terms_inner_(const attn_tile_ *t, attn_term_sums_ *x, const attn_block_ *b,
                                  const attn_segment_ *seg, const float *a, const float *d) {
  const int r1 = seg->g1 * ATTN_GROUP_ < t->n ? seg->g1 * ATTN_GROUP_ : t->n;
  for (int e = 0; e < seg->n; e++) {
    double *to = x->by_factor + t->a->k.len - 1 - attn_block_key_(b, seg->at + e);
    for (int r = seg->g0 * ATTN_GROUP_; r < r1; r++) {
      const int c = e * ATTN_TILE_ + r;
      if (d[c] != 0.0f)
        to[t->row[r]] += (double)d[c] * (double)a[c]; /* a of what is forbidden is anything */
    }
  }
}

/* The sums of a tile's rows; a row may be in tiles of several phases. */
ATTN_FUNC_ void attn_terms_rows_(const attn_tile_ *t, const attn_sdpa_gradients *p,
                                 attn_term_sums_ *x) {
  for (int r = 0; r < t->n; r++) {
    const int64_t at = attn_row_number_(t->a, t->batch, t->head[r], t->row[r]);
    if (p->d_center)
      p->d_center[at] =
          attn_one_nan_((float)((double)p->d_center[at] +
                                2 * (double)t->a->gaussian.precision[at] * x->center[r]));
    if (p->d_precision)
      p->d_precision[at] = attn_one_nan_((float)((double)p->d_precision[at] - x->precision[r]));
    if (p->d_span && t->a->span.per_query)
      p->d_span[at] = attn_one_nan_((float)((double)p->d_span[at] + x->spans[r]));
    else
      x->span += x->spans[r];
  }
}

/* Of dX times the score a inside the soft-cap, natural: the factor, a = relu(s r) f, and the scale, of which a = s r. */
ATTN_FUNC_ void attn_terms_sort_inner_(const attn_softmax_ *a, attn_term_sums_ *x, int64_t h) {
  const attn_distance_factor *f = &a->by_distance.factor;
  const double beta = f->alpha ? (double)f->beta[h] : 0, alpha = f->alpha ? (double)f->alpha[h] : 0;
  for (int64_t n = 0; x->by_factor && n < a->q.len + a->k.len - 1; n++) {
    const double far = (double)attn_abs64_(a->k.len - 1 - n - a->q_off);
    const double sum = x->by_factor[n] / a->unit;
    const double share = 1.0 / (1.0 + exp(alpha * far - beta));
    x->scale += sum / a->scale;
    if (sum != 0)
      x->alpha += sum * far * share, x->beta += sum * (1.0 / (1.0 + exp(-beta)) - share);
  }
}

/* What rows of a batch entry share goes to its bias. */
ATTN_FUNC_ void attn_terms_sort_keys_(const attn_softmax_ *a, const attn_sdpa_gradients *p,
                                      const attn_term_sums_ *x, int64_t b, int64_t h) {
  const attn_tensor *y = &p->d_bias;
  float *row = x->by_key
                   ? (float *)(void *)attn_at_(y, y->batch > 1 ? b : 0, y->heads > 1 ? h : 0, 0)
                   : NULL;
  for (int64_t j = 0; row && j < a->k.len; j++) row[j] += (float)x->by_key[j];
}

/* The sums by distance of a batch entry go to what they belong to. */
ATTN_FUNC_ void attn_terms_sort_(const attn_softmax_ *a, attn_term_sums_ *x, int64_t h) {
  const attn_distance_terms_ *t = &a->by_distance;
  int64_t edge[ATTN_T5_MOST_];
  attn_t5_rule_ rule = {0, 0, 0, 0, 0};
  if (!x->by_distance) return;
  if (x->t5) {
    attn_t5_rule_of_(&rule, t->t5.buckets, t->t5.max_distance, t->t5.bidirectional);
    attn_t5_edges_(edge, &rule);
  }
  for (int64_t n = 0; n < a->q.len + a->k.len - 1; n++) {
    const int64_t d = a->k.len - 1 - n - a->q_off; /* j - p */
    const double sum = x->by_distance[n], far = (double)attn_abs64_(d);
    x->alibi -= far * sum;
    if (t->toeplitz.table && t->toeplitz.inside)
      x->scale +=
          sum *
          (double)t->toeplitz.table[(t->toeplitz.heads > 1 ? h * t->toeplitz.len : 0) +
                                    attn_clamp_(d - t->toeplitz.first, 0, t->toeplitz.len - 1)];
    if (x->toeplitz) {
      const int64_t row = t->toeplitz.heads > 1 ? h * t->toeplitz.len : 0;
      x->toeplitz[row + attn_clamp_(d - t->toeplitz.first, 0, t->toeplitz.len - 1)] +=
          sum * (t->toeplitz.inside ? a->scale : 1.0);
    }
    if (x->t5) {
      const int64_t back = d <= 0 ? -d : rule.bidirectional ? d : 0;
      int64_t lo = 0, hi = rule.side; /* edge[lo] <= back < edge[hi] */
      while (hi - lo > 1) {
        const int64_t mid = lo + (hi - lo) / 2;
        if (edge[mid] <= back)
          lo = mid;
        else
          hi = mid;
      }
      x->t5[((d > 0 ? rule.side * rule.bidirectional : 0) + lo) * a->q.heads + h] += sum;
    }
    if (t->parabola.w) {
      const double g = (double)t->parabola.w[h] * far * far +
                       (t->parabola.bias ? (double)t->parabola.bias[h] : 0.0);
      const double signed_sum = g > 0 ? sum : g < 0 ? -sum : 0;
      x->w -= far * far * signed_sum, x->bias -= signed_sum;
    }
  }
}

/* y = x, or with accumulate y + x */
ATTN_FUNC_ void attn_terms_put_(float *y, double x, int accumulate) {
  if (y) *y = attn_one_nan_((float)(x + (accumulate ? (double)*y : 0.0)));
}

/* Entries of a table of the head h, whose heads lie so far apart. */
ATTN_FUNC_ void attn_terms_put_row_(float *y, const double *x, int64_t n, int64_t step,
                                    int accumulate) {
  for (int64_t i = 0; y && i < n; i++) attn_terms_put_(y + i * step, x[i * step], accumulate);
}

/* Before the first sum of heads h0 .. h1 - 1: what is added to directly is 0. */
ATTN_FUNC_ void attn_terms_open_(const attn_softmax_ *a, const attn_sdpa_gradients *p, int64_t h0,
                                 int64_t h1) {
  if (p->accumulate) return;
  for (int64_t b = 0; b < a->q.batch; b++)
    for (int64_t h = h0; h < h1; h++) {
      const int64_t at = (b * a->q.heads + h) * a->q.len;
      const size_t bytes = (size_t)a->q.len * sizeof(float);
      if (p->d_center) memset(p->d_center + at, 0, bytes);
      if (p->d_precision) memset(p->d_precision + at, 0, bytes);
      if (p->d_span && a->span.per_query) memset(p->d_span + at, 0, bytes);
    }
  if (p->d_bias.data && p->d_bias.heads == 1) h0 = 0, h1 = 1;
  for (int64_t b = 0; b < p->d_bias.batch; b++) attn_zero_rows_(&p->d_bias, b, h0, h1 - h0, 0);
}

/* After the last: the one NaN in what was added to directly. */
ATTN_FUNC_ void attn_terms_close_(const attn_sdpa_gradients *p, int64_t h0, int64_t h1) {
  const attn_tensor *y = &p->d_bias;
  if (y->heads == 1) h0 = 0, h1 = 1;
  for (int64_t n = 0; y->data && n < y->batch * (h1 - h0) * y->len; n++) {
    float *row = (float *)(void *)attn_at_(y, n / y->len / (h1 - h0), h0 + n / y->len % (h1 - h0),
                                           n % y->len);
    for (int64_t c = 0; c < y->dim; c++) row[c] = attn_one_nan_(row[c]);
  }
}

/* A table that a tensor has, of the head h or of all. */
ATTN_FUNC_ void attn_terms_put_table_(const attn_tensor *y, const double *x, int64_t h,
                                      double scale, int accumulate) {
  for (int64_t i = 0; x && i < y->len; i++, x += y->dim) {
    float *row = (float *)(void *)attn_at_(y, 0, y->heads > 1 ? h : 0, i);
    for (int64_t c = 0; c < y->dim; c++) attn_terms_put_(&row[c], scale * x[c], accumulate);
  }
}
