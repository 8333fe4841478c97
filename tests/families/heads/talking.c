/* tests/families/heads/talking.c owns the weights of talking heads in float64. */

#include "talking.h"

talking_shape talking_plain(int64_t hk, int64_t h, int64_t hv, int64_t tq, int64_t tk) {
  talking_shape x = {1, hk, h, hv, hk, hv, tq, tk, 6, 5, ATTN_F32, ATTN_F32, ATTN_F32, ATTN_F32, 0};
  return x;
}

int64_t talking_heads(const attn_talking_params *p) {
  return p->w_transposed ? p->w_l.len : p->w_l.dim;
}

double talking_mixed(const attn_talking_params *p, const attn_tensor *w, int64_t from, int64_t to) {
  return p->w_transposed ? oracle_get(w, 0, 0, to, from) : oracle_get(w, 0, 0, from, to);
}

attn_tensor talking_nothing(const attn_tensor *q, const attn_talking_params *p) {
  attn_tensor zero = test_tensor(ATTN_F32, TEST_BHTD, q->batch, talking_heads(p), q->len, q->dim);
  test_fill_value(zero, 0);
  return zero;
}

double talking_weights(const attn_tensor *q, const attn_tensor *k, const attn_talking_params *p,
                       const attn_tensor *zero, int64_t b, int64_t h, int64_t i, double *w) {
  double top = -(double)INFINITY, sum = 0, scale = scale_of(p->attention.scale, q->dim);
  for (int64_t j = 0; j < k->len; j++) {
    w[j] = -(double)INFINITY;
    if (!oracle_allowed(zero, k, &p->attention, b, h, i, j)) continue;
    w[j] = oracle_score(zero, k, &p->attention, b, h, i, j).x;
    for (int64_t c = 0; c < q->heads; c++)
      w[j] += scale * dot_rows(q, k, b, c, i, j) * talking_mixed(p, &p->w_l, c, h);
    top = fmax(top, w[j]);
  }
  for (int64_t j = 0; j < k->len; j++) sum += w[j] > -(double)INFINITY ? exp(w[j] - top) : 0;
  for (int64_t j = 0; j < k->len; j++) w[j] = w[j] > -(double)INFINITY ? exp(w[j] - top) / sum : 0;
  return sum > 0 ? top + log(sum) : -(double)INFINITY;
}
