/* tests/computes.c owns how tests run in products of numbers below f32. */

#include "computes.h"

#include <math.h>

/* A mode's own feature on a tier comes before what it uses besides. */
static const struct {
  attn_compute mode;
  attn_feature feature;
} uses[] = {{ATTN_COMPUTE_BF16, ATTN_FEATURE_AVX512_BF16},
            {ATTN_COMPUTE_I8, ATTN_FEATURE_AVX512_VNNI},
            {ATTN_COMPUTE_I8, ATTN_FEATURE_AVX512_BF16}};
enum { USES = sizeof uses / sizeof *uses };

static int used(int n, attn_compute mode) {
  const attn_feature f = uses[n].feature;
  return uses[n].mode == mode && attn_feature_isa(f) == test_isa &&
         attn_feature_status(f) == ATTN_ISA_OK;
}

attn_feature test_feature(attn_compute mode) {
  for (int n = 0; n < USES; n++)
    if (used(n, mode)) return uses[n].feature;
  return ATTN_FEATURE_NONE;
}

static void once(attn_compute mode, void (*const *tests)(void **), int n, void **state) {
  test_compute = mode, test_repeats = 1;
  for (int i = 0; i < n; i++) tests[i](state);
  test_compute = ATTN_COMPUTE_F32, test_repeats = 0;
}

void test_in_mode(attn_compute mode, void (*const *tests)(void **), int n, void **state) {
  once(mode, tests, n, state);
  for (int i = 0; i < USES; i++) {
    if (!used(i, mode)) continue;
    assert_int_equal(attn_feature_off(uses[i].feature, 1), ATTN_OK);
    once(mode, tests, n, state);
    assert_int_equal(attn_feature_off(uses[i].feature, 0), ATTN_OK);
  }
}

test_call test_two_heads(attn_compute mode, attn_dtype type, int64_t queries, int64_t keys,
                         int64_t dk, int64_t dv, test_rng *rng) {
  test_spec spec = test_plain(2, queries, keys, dk, dv);
  spec.q_type = spec.k_type = spec.v_type = type;
  test_call call = test_build(&spec, rng);
  call.params.compute = mode;
  return call;
}

test_errors test_errors_of(const test_call *call) {
  const int64_t keys = call->k.len, d = call->v.dim;
  test_errors e = {0, 0};
  oracle_row row;
  row.o = test_mem((size_t)d * sizeof(double));
  row.p = test_mem((size_t)keys * sizeof(double));
  row.size = test_mem((size_t)keys * sizeof(double));
  for (int64_t h = 0; h < call->q.heads; h++)
    for (int64_t i = 0; i < call->q.len; i++) {
      oracle_sdpa(&call->q, &call->k, &call->v, &call->params, 0, h, i, &row);
      for (int64_t c = 0; c < d; c++) {
        const double x = fabs(oracle_get(&call->o, 0, h, i, c) - row.o[c]) / row.value;
        e.mean += x * x, e.worst = x > e.worst || x != x ? x : e.worst;
      }
    }
  e.mean = sqrt(e.mean / (double)(call->q.heads * call->q.len * d));
  return e;
}
