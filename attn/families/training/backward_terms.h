/* families/training/backward_terms.h owns the gradients of what is added to scores: sums of dX over the pairs that share
 * a number. They are a second sweep over the tiles, head by head, which makes scores and dX alone. */

/* A worker's sums for one owner: a head, or all heads where a table serves them all. */
typedef struct attn_term_sums_ {
  double *by_distance; /* [Tq + Tk]: entry Tk - 1 + i - j, of the head and batch entry at hand */
  double *toeplitz, *t5;
  double alibi, w, bias;                            /* of the head at hand, over the batch */
  double center[ATTN_TILE_], precision[ATTN_TILE_]; /* of the rows of a tile */
} attn_term_sums_;

/* Whether some gradient of a term is asked for. */
ATTN_FUNC_ int attn_terms_asked_(const attn_sdpa_gradients *p) {
  return p->d_alibi || p->d_toeplitz || p->d_t5 || p->d_parabola_w || p->d_parabola_bias ||
         p->d_center || p->d_precision || p->d_bias.data;
}

ATTN_FUNC_ int64_t attn_t5_buckets_(const attn_softmax_ *a) {
  const int64_t n = a->by_distance.t5.buckets;
  return n ? n : 32;
}

/* Whether those of all heads meet in one number. */
ATTN_FUNC_ int attn_terms_shared_(const attn_softmax_ *a, const attn_sdpa_gradients *p) {
  return a->q.heads > 1 && ((p->d_toeplitz && a->by_distance.toeplitz.heads <= 1) ||
                            (p->d_bias.data && p->d_bias.heads == 1));
}

/* Adds dX of a segment, rows r0 .. of the tile, d [key][lane]. */
ATTN_FUNC_ void attn_terms_add_(const attn_tile_ *t, const attn_sdpa_gradients *p,
                                attn_term_sums_ *x, const attn_block_ *b, const attn_segment_ *seg,
                                const float *d) {
  const attn_softmax_ *a = t->a;
  const int r0 = seg->g0 * ATTN_GROUP_;
  const int r1 = seg->g1 * ATTN_GROUP_ < t->n ? seg->g1 * ATTN_GROUP_ : t->n;
  for (int e = 0; x->by_distance && e < seg->n; e++) {
    double *to = x->by_distance + a->k.len - 1 - attn_block_key_(b, seg->at + e);
    const float *from = d + e * ATTN_TILE_;
    if (t->lined)
      for (int r = r0; r < r1; r++) to[t->row[0] + r] += (double)from[r];
    else
      for (int r = r0; r < r1; r++) to[t->row[r]] += (double)from[r];
  }
  for (int r = r0; (p->d_center || p->d_precision) && r < r1; r++) {
    const double c =
        (double)a->gaussian.center[attn_row_number_(a, t->batch, t->head[r], t->row[r])];
    for (int e = 0; e < seg->n; e++) {
      const double away = (double)attn_block_key_(b, seg->at + e) - c;
      x->center[r] += away * (double)d[e * ATTN_TILE_ + r];
      x->precision[r] += away * away * (double)d[e * ATTN_TILE_ + r];
    }
  }
  for (int r = r0; p->d_bias.data && r < r1; r++) {
    float *row = (float *)(void *)attn_at_(&p->d_bias, p->d_bias.batch > 1 ? t->batch : 0,
                                           p->d_bias.heads > 1 ? t->head[r] : 0, t->row[r]);
    for (int e = 0; e < seg->n; e++) row[attn_block_key_(b, seg->at + e)] += d[e * ATTN_TILE_ + r];
  }
}

/* The sums of a tile's rows; a row may be in tiles of several phases. */
ATTN_FUNC_ void attn_terms_rows_(const attn_tile_ *t, const attn_sdpa_gradients *p,
                                 const attn_term_sums_ *x) {
  for (int r = 0; r < t->n; r++) {
    const int64_t at = attn_row_number_(t->a, t->batch, t->head[r], t->row[r]);
    if (p->d_center)
      p->d_center[at] =
          attn_one_nan_((float)((double)p->d_center[at] +
                                2 * (double)t->a->gaussian.precision[at] * x->center[r]));
    if (p->d_precision)
      p->d_precision[at] = attn_one_nan_((float)((double)p->d_precision[at] - x->precision[r]));
  }
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
