/* tests/calls/test_mla.c owns attention over latent rows (MLA): the absorbed form, in which all heads read
 * one row a token and the value is a part of the key, against heads made one by one. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compound.h"
#include "kept.h"

typedef struct mla {
  int64_t batch, heads, queries, keys;
  int64_t latent, rope, nope, dv; /* columns of c, of the rotated part, of a head */
  attn_dtype type;
} mla;

static double *random_numbers(int64_t n, double size, test_rng *rng) {
  double *x = test_mem((size_t)n * sizeof *x);
  for (int64_t k = 0; k < n; k++) x[k] = size * test_normal(rng);
  return x;
}

static double dot(const double *x, const double *y, int64_t n) {
  double sum = 0;
  for (int64_t k = 0; k < n; k++) sum += x[k] * y[k];
  return sum;
}

/* k_h = [W_uk c ; rotated], v_h = W_uv c, each head by itself; x[j], v[j] of one row. Everything in
 * float64 from the numbers that are stored. */
static void check(const mla *z, test_rng *rng, const char *what) {
  const int64_t l = z->latent, width = l + z->rope;
  double *uk = random_numbers(z->heads * z->nope * l, 1 / sqrt((double)l), rng);
  double *uv = random_numbers(z->heads * z->dv * l, 1 / sqrt((double)l), rng);
  double scale = 1 / sqrt((double)(z->nope + z->rope));
  attn_tensor rows = drawn(z->type, TEST_BHTD, z->batch, 1, z->keys, width, 1, rng);
  attn_tensor values = rows; /* the first columns of a key */
  values.dim = l;
  attn_tensor nope = drawn(ATTN_F32, TEST_BHTD, z->batch, z->heads, z->queries, z->nope, 1, rng);
  attn_tensor q = drawn(ATTN_F32, TEST_BHTD, z->batch, z->heads, z->queries, width, 1, rng);
  for (int64_t n = 0; n < z->batch * z->heads * z->queries; n++) { /* q' = W_uk^T q */
    int64_t b = n / z->queries / z->heads, h = n / z->queries % z->heads, i = n % z->queries;
    for (int64_t c = 0; c < l; c++) {
      double sum = 0;
      for (int64_t d = 0; d < z->nope; d++)
        sum += uk[(h * z->nope + d) * l + c] * oracle_get(&nope, b, h, i, d);
      oracle_set(&q, b, h, i, c, sum);
    }
  }
  test_call call;
  memset(&call, 0, sizeof call);
  call.q = q, call.k = rows, call.v = values;
  call.o = output(ATTN_F32, TEST_BHTD, z->batch, z->heads, z->queries, l, NULL);
  call.params.lse = output(ATTN_F32, TEST_BHTD, z->batch, z->heads, z->queries, 1, NULL);
  call.params.scale = (float)scale;
  call.params.causal = 1;
  test_run(&call);

  double *key = test_mem((size_t)z->nope * sizeof *key), *c = test_mem((size_t)l * sizeof *c);
  double *x = test_mem((size_t)z->keys * sizeof *x), *o = test_mem((size_t)z->dv * sizeof *o);
  double *v = test_mem((size_t)(z->keys * z->dv) * sizeof *v);
  for (int64_t n = 0; n < z->batch * z->heads * z->queries; n++) {
    int64_t b = n / z->queries / z->heads, h = n / z->queries % z->heads, i = n % z->queries;
    int64_t keys = z->keys - z->queries + i + 1;
    double top = -(double)INFINITY, sum = 0;
    for (int64_t j = 0; j < keys; j++) {
      for (int64_t d = 0; d < l; d++) c[d] = oracle_get(&rows, b, 0, j, d);
      x[j] = 0;
      for (int64_t d = 0; d < z->nope; d++) {
        key[d] = dot(uk + (h * z->nope + d) * l, c, l);
        x[j] += key[d] * oracle_get(&nope, b, h, i, d);
      }
      for (int64_t d = l; d < width; d++)
        x[j] += oracle_get(&q, b, h, i, d) * oracle_get(&rows, b, 0, j, d);
      x[j] *= scale;
      top = fmax(top, x[j]);
      for (int64_t d = 0; d < z->dv; d++) v[j * z->dv + d] = dot(uv + (h * z->dv + d) * l, c, l);
    }
    for (int64_t j = 0; j < keys; j++) sum += exp(x[j] - top);
    double lse = top + log(sum), got = oracle_get(&call.params.lse, b, h, i, 0);
    if (!(fabs(got - lse) <= 1e-5 * (1 + fabs(lse)))) {
      fail_msg("%s: lse[%d,%d,%d] is %.9g, not %.9g", what, (int)b, (int)h, (int)i, got, lse);
    }
    for (int64_t d = 0; d < z->dv; d++) {
      double want = 0, most = 0, mine = 0;
      for (int64_t j = 0; j < keys; j++) {
        want += exp(x[j] - top) / sum * v[j * z->dv + d];
        most = fmax(most, fabs(v[j * z->dv + d]));
      }
      for (int64_t e = 0; e < l; e++) /* W_uv o' */
        mine += uv[(h * z->dv + d) * l + e] * oracle_get(&call.o, b, h, i, e);
      if (!(fabs(mine - want) <= 2e-5 * (1 + most))) {
        fail_msg("%s: o[%d,%d,%d,%d] is %.9g, not %.9g", what, (int)b, (int)h, (int)i, (int)d, mine,
                 want);
      }
    }
  }
}

void A6_mla_absorbed(void **state) {
  (void)state;
  static const mla shapes[] = {
      {1, 16, 1, 20, 512, 64, 3, 2, ATTN_F32}, {1, 3, 1, 200, 32, 8, 6, 5, ATTN_F16},
      {2, 2, 3, 70, 24, 7, 5, 4, ATTN_BF16},   {1, 64, 1, 40, 48, 16, 4, 3, ATTN_F32},
      {1, 128, 1, 30, 32, 8, 4, 3, ATTN_F32},  {1, 8, 2, 1100, 16, 4, 3, 2, ATTN_F32},
      {1, 4, 20, 90, 40, 9, 6, 5, ATTN_F32},   {1, 5, 1, 129, 100, 28, 8, 3, ATTN_F16}};
  for (int n = 0; n < 8; n++) {
    test_rng rng = test_seed(740 + (uint64_t)n);
    char text[32];
    snprintf(text, sizeof text, "latent rows, case %d", n);
    check(&shapes[n], &rng, text);
    test_mem_release();
  }
}

/* The shape of DeepSeek's decoding by the ordinary oracle, values in the rows of the keys. */
void A6_mla_wide(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    test_rng rng = test_seed(760 + (uint64_t)n);
    test_spec z = test_plain(n & 1 ? 16 : 4, 1, n < 3 ? 60 : 129, 576, 576);
    z.k_heads = z.v_heads = 1;
    z.k_type = z.v_type = (attn_dtype)(n % 3);
    test_call call = test_build(&z, &rng);
    call.v = call.k;
    call.v.dim = call.o.dim = 512;
    test_check(&call, "latent rows of 576");
    test_mem_release();
  }
}
