/* engine/distance.h owns score terms that depend on the head and the distance alone. They are
 * expanded once a call into one array a head and kind: entry zero + p - j belongs to position p and key
 * j, so that a vector of consecutive queries reads consecutive numbers. */

ATTN_FUNC_ int attn_has_distance_(const attn_distance_terms_ *d) {
  return d->toeplitz.table || d->t5.table || d->parabola.w;
}

/* softplus(x) = log(1 + e^x) */
ATTN_FUNC_ double attn_softplus_(double x) { return x > 0.0 ? x + log1p(exp(-x)) : log1p(exp(x)); }

/* The additive terms of head h at distance d = j - p, natural. */
ATTN_FUNC_ double attn_distance_bias_(const attn_distance_terms_ *t, int64_t bucket, double scale,
                                      int64_t heads, int64_t h, int64_t d) {
  double x = 0.0;
  if (t->toeplitz.table) {
    const attn_toeplitz *z = &t->toeplitz;
    int64_t at = d - z->first;
    at = at < 0 ? 0 : at >= z->len ? z->len - 1 : at;
    x += (double)z->table[(z->heads > 1 ? h * z->len : 0) + at] * (z->inside ? scale : 1.0);
  }
  if (t->t5.table) x += (double)t->t5.table[bucket * heads + h];
  if (t->parabola.w) {
    const double w = (double)t->parabola.w[h],
                 b = t->parabola.bias ? (double)t->parabola.bias[h] : 0.0;
    x -= fabs(w * (double)d * (double)d + b);
  }
  return x;
}

/* f_h(|d|) = exp(softplus(beta) - softplus(beta - alpha |d|)) */
ATTN_FUNC_ double attn_distance_factor_(const attn_distance_factor *f, int64_t h, int64_t d) {
  const double alpha = (double)f->alpha[h], beta = (double)f->beta[h];
  const double t = (double)(d < 0 ? -d : d);
  return exp(attn_softplus_(beta) - attn_softplus_(beta - alpha * t));
}

/* Entries of one head, those that lanes without a row read included. */
ATTN_FUNC_ int64_t attn_distances_(int64_t q_len, int64_t k_len) {
  return attn_add_(attn_add_(q_len, k_len), ATTN_TILE_);
}

ATTN_FUNC_ void attn_distance_fill_(const attn_softmax_ *a, float *bias, float *factor) {
  const attn_distance_terms_ *t = &a->by_distance;
  int64_t edge[ATTN_T5_MOST_], side = 0;
  attn_t5_rule_ rule = {0, 0, 0, 0, 0};
  if (t->t5.table) {
    attn_t5_rule_of_(&rule, t->t5.buckets, t->t5.max_distance, t->t5.bidirectional);
    attn_t5_edges_(edge, &rule);
  }
  for (int64_t e = 0; e < a->distances; e++) {
    const int64_t d = a->distance_zero - e;
    const int64_t base = rule.bidirectional && d > 0 ? rule.side : 0;
    const int64_t away = d <= 0 ? -d : rule.bidirectional ? d : 0;
    if (t->t5.table) { /* distances are neighbours, so are their buckets */
      while (side > 0 && edge[side] > away) side--;
      while (side + 1 < rule.side && edge[side + 1] <= away) side++;
    }
    for (int64_t h = 0; h < a->distance_heads; h++) {
      const int64_t at = h * a->distances + e;
      if (bias) {
        double x = attn_distance_bias_(t, base + side, a->scale, a->q.heads, h, d);
        bias[at] = (float)attn_clamp_f64_(x * a->unit);
      }
      if (factor) factor[at] = (float)attn_clamp_f64_(attn_distance_factor_(&t->factor, h, d));
    }
  }
}
