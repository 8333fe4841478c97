/* tests/oracle.c owns the float64 formulas of tests/oracle.h. Clarity is all that counts here. */

#include "oracle.h"

#include <math.h>
#include <string.h>

double oracle_from_f16(uint16_t bits) {
  int sign = bits >> 15, exponent = bits >> 10 & 31, fraction = bits & 1023;
  double x;
  if (exponent == 31) {
    x = fraction ? (double)NAN : (double)INFINITY;
  } else if (exponent == 0) {
    x = ldexp(fraction, -24);
  } else {
    x = ldexp(1024 + fraction, exponent - 25);
  }
  return sign ? -x : x;
}

double oracle_from_bf16(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float x;
  memcpy(&x, &wide, sizeof x);
  return (double)x;
}

/* 2^e of doubles that are not subnormal. */
static double power(int e) {
  const uint64_t bits = (uint64_t)(e + 1023) << 52;
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* A binary format with p bits of precision and least exponent emin, as sign, exponent, fraction: the bits
 * below the sign count its numbers from 0, 2^(p-1) of them an exponent. */
static uint16_t to_small(double x, int p, int emin, int exponent_bits) {
  const int infinity = ((1 << exponent_bits) - 1) << (p - 1);
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint16_t sign = (uint16_t)(bits >> 63 << 15);
  if (isnan(x)) return (uint16_t)(sign | infinity | 1 << (p - 2));
  if (isinf(x)) return (uint16_t)(sign | infinity);
  int e = (int)(bits >> 52 & 2047) - 1023; /* |x| = 1.f * 2^e */
  if (e < emin) e = emin;
  const double n = nearbyint(fabs(x) * power(p - 1 - e)); /* to nearest, ties to even */
  const int number = (int)n + ((e - emin) << (p - 1));
  return (uint16_t)(sign | (number < infinity ? number : infinity));
}

uint16_t oracle_to_f16(double x) { return to_small(x, 11, -14, 5); }
uint16_t oracle_to_bf16(double x) { return to_small(x, 8, -126, 8); }

int64_t oracle_size(attn_dtype dtype) { return dtype == ATTN_F32 ? 4 : 2; }

void *oracle_address(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t c) {
  int64_t at = b * t->stride_batch + h * t->stride_head + i * t->stride_len + c;
  return (char *)t->data + at * oracle_size(t->dtype);
}

double oracle_wide(const void *p, attn_dtype dtype) {
  static double f16[65536]; /* ldexp is slow */
  uint16_t u;
  memcpy(&u, p, sizeof u);
  for (int n = 65535; f16[1] == 0 && n > 0; n--) f16[n] = oracle_from_f16((uint16_t)n);
  return dtype == ATTN_F16 ? f16[u] : oracle_from_bf16(u);
}

double oracle_get(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t c) {
  return oracle_number(oracle_address(t, b, h, i, c), t->dtype, 0);
}

void oracle_set(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t c, double x) {
  void *p = oracle_address(t, b, h, i, c);
  if (t->dtype == ATTN_F32) {
    float f = (float)x;
    memcpy(p, &f, sizeof f);
  } else {
    uint16_t u = t->dtype == ATTN_F16 ? oracle_to_f16(x) : oracle_to_bf16(x);
    memcpy(p, &u, sizeof u);
  }
}

double oracle_mask(const attn_mask *m, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (m->kind == ATTN_MASK_NONE) return 0;
  int64_t row = (m->batch == 1 ? 0 : b * m->stride_batch) +
                (m->heads == 1 ? 0 : h * m->stride_head) + (m->q_len == 1 ? 0 : i * m->stride_q);
  if (m->k_len == 1) j = 0;
  const uint8_t *bytes = (const uint8_t *)m->data;
  if (m->kind == ATTN_MASK_ADD) {
    return oracle_number(bytes, m->dtype, row + j);
  }
  int allowed = m->kind == ATTN_MASK_BOOL ? bytes[row + j] : bytes[row + (j >> 3)] >> (j & 7) & 1;
  return allowed ? 0 : -(double)INFINITY;
}

int64_t oracle_position(const attn_tensor *q, const attn_tensor *k, const attn_sdpa_params *params,
                        int64_t b, int64_t i) {
  if (params->has_q_off) return i + params->q_off;
  if (params->q_offs) return i + params->q_offs[b];
  if (params->causal == ATTN_CAUSAL_START) return i;
  if (!params->align_lengths) return i + k->len - q->len;
  return i + (params->kv_len ? params->kv_len[b] : k->len) -
         (params->q_len ? params->q_len[b] : q->len);
}

int oracle_allowed(const attn_tensor *q, const attn_tensor *k, const attn_sdpa_params *params,
                   int64_t b, int64_t h, int64_t i, int64_t j) {
  const attn_window *w = &params->window;
  int64_t delta = j - oracle_position(q, k, params, b, i);
  if (params->q_len && i >= params->q_len[b]) return 0;
  if (params->kv_len && j >= params->kv_len[b]) return 0;
  if (params->causal && delta > 0) return 0;
  if (w->on && w->left >= 0 && -delta > w->left && j >= params->keep) return 0;
  if (w->on && w->right >= 0 && delta > w->right) return 0;
  if (oracle_mask(&params->mask, b, h, i, j) < 0) return 0;
  if (oracle_span(params, q, b, h, i, delta) == 0) return 0;
  return !(oracle_mask(&params->bias, b, h, i, j) == -(double)INFINITY);
}

void oracle_philox(uint32_t w[4], const uint32_t counter[4], const uint32_t key[2]) {
  uint32_t k0 = key[0], k1 = key[1];
  memcpy(w, counter, 4 * sizeof *w);
  for (int round = 0; round < 10; round++) {
    const uint64_t a = (uint64_t)w[0] * 0xD2511F53u, b = (uint64_t)w[2] * 0xCD9E8D57u;
    const uint32_t next[4] = {(uint32_t)(b >> 32) ^ w[1] ^ k0, (uint32_t)b,
                              (uint32_t)(a >> 32) ^ w[3] ^ k1, (uint32_t)a};
    memcpy(w, next, sizeof next);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
}

double oracle_drop(const attn_drop *drop, int64_t b, int64_t h, int64_t i, int64_t j) {
  const uint64_t seed = drop->seed + drop->offset;
  const uint32_t counter[4] = {(uint32_t)(j / 4), (uint32_t)i, (uint32_t)(h + drop->head0),
                               (uint32_t)(b + drop->batch0)};
  const uint32_t key[2] = {(uint32_t)(seed & 0xffffffffu), (uint32_t)(seed >> 32)};
  uint32_t w[4];
  if (drop->p == 0) return 1;
  oracle_philox(w, counter, key);
  return (double)(w[j % 4] / 256) < drop->p * 16777216 ? 0 : 1 / (1 - drop->p);
}

void oracle_sdpa(const attn_tensor *q, const attn_tensor *k, const attn_tensor *v,
                 const attn_sdpa_params *params, int64_t b, int64_t h, int64_t i, oracle_row *row) {
  int64_t hv = h * v->heads / q->heads, position = oracle_position(q, k, params, b, i);
  double infinity = (double)INFINITY, m = -infinity, z = 0;
  double sink = params->sinks ? (double)params->sinks[h] : -infinity;
  double one = params->softmax_one ? 0 : -infinity;
  row->allowed = 0;
  row->noise = row->value = 0;

  /* Scores go to row->p. */
  for (int64_t j = 0; j < k->len; j++) {
    row->p[j] = -infinity;
    if (!oracle_allowed(q, k, params, b, h, i, j)) continue;
    oracle_pair pair = oracle_score(q, k, params, b, h, i, j);
    if (pair.x == -infinity) continue;
    row->p[j] = pair.x;
    row->size[j] = pair.size;
    row->allowed++;
    if (!(row->p[j] <= m)) m = row->p[j];
  }

  for (int64_t c = 0; c < v->dim; c++) row->o[c] = 0;
  int live = !(params->q_len && i >= params->q_len[b]);
  if (live && sink > m) m = sink;
  if (live && one > m) m = one;
  row->lse = -infinity;
  if (m == -infinity) {
    for (int64_t j = 0; j < k->len; j++) row->p[j] = 0;
    return;
  }
  for (int64_t j = 0; j < k->len; j++) z += exp(row->p[j] - m);
  if (live) z += exp(sink - m) + exp(one - m);
  row->lse = m + log(z);
  for (int64_t j = 0; j < k->len; j++) {
    double x = row->p[j];
    row->p[j] = x == -infinity ? 0 : exp(x - m) / z;
    if (x == -infinity) continue;
    row->noise += row->p[j] * row->size[j];
    if (params->modify_weights)
      row->p[j] = oracle_hand(params->modify_weights, params->modify_weights_user, b, h, i, j,
                              position, row->p[j]);
    const double keep = oracle_drop(&params->dropout, b, h, i, j);
    const void *values = oracle_address(v, b, hv, j, 0);
    for (int64_t c = 0; c < v->dim; c++) {
      double value = oracle_number(values, v->dtype, c), more = 0;
      if (params->relative.values.data) more = oracle_relative_value(params, h, j - position, c);
      row->o[c] += row->p[j] * keep * (value + more);
      if (keep * (fabs(value) + fabs(more)) > row->value)
        row->value = keep * (fabs(value) + fabs(more));
    }
  }
}

double oracle_merge(double *o, const double *o1, double lse1, const double *o2, double lse2,
                    int64_t dv) {
  double infinity = (double)INFINITY;
  if (lse1 == -infinity && lse2 == -infinity) {
    for (int64_t c = 0; c < dv; c++) o[c] = 0;
    return -infinity;
  }
  double m = fmax(lse1, lse2), z = exp(lse1 - m) + exp(lse2 - m), lse = m + log(z);
  double w1 = exp(lse1 - lse), w2 = exp(lse2 - lse);
  for (int64_t c = 0; c < dv; c++) {
    o[c] = (lse1 == -infinity ? 0 : w1 * o1[c]) + (lse2 == -infinity ? 0 : w2 * o2[c]);
  }
  return lse;
}

void oracle_rope(double *y, const double *x, int64_t d, int64_t rot, double base,
                 attn_rope_layout layout, int inverse, double position) {
  for (int64_t c = 0; c < d; c++) y[c] = x[c];
  for (int64_t m = 0; m < rot / 2; m++) {
    double phi = position * pow(base, -2.0 * (double)m / (double)rot);
    if (inverse) phi = -phi;
    int64_t a = layout == ATTN_ROPE_HALF ? m : 2 * m;
    int64_t b = layout == ATTN_ROPE_HALF ? m + rot / 2 : 2 * m + 1;
    y[a] = x[a] * cos(phi) - x[b] * sin(phi);
    y[b] = x[a] * sin(phi) + x[b] * cos(phi);
  }
}

double oracle_slope(int64_t h, int64_t n) {
  int64_t c = 1;
  while (2 * c <= n) c *= 2;
  double exponent =
      h < c ? -8.0 * (double)(h + 1) / (double)c : -4.0 * (double)(2 * (h - c) + 1) / (double)c;
  return pow(2, exponent);
}
