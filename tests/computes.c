/* tests/computes.c owns how tests run in products of numbers below f32. */

#include "computes.h"
#include "compound.h"

#include <math.h>

/* A mode's own feature on a tier comes before what it uses besides. */
static const struct {
  attn_compute mode;
  attn_feature feature;
} uses[] = {
    {ATTN_COMPUTE_BF16, ATTN_FEATURE_AVX512_BF16}, {ATTN_COMPUTE_BF16, ATTN_FEATURE_NEON_BF16},
    {ATTN_COMPUTE_F16, ATTN_FEATURE_NEON_FP16FML}, {ATTN_COMPUTE_I8, ATTN_FEATURE_AVX512_VNNI},
    {ATTN_COMPUTE_I8, ATTN_FEATURE_AVX_VNNI},      {ATTN_COMPUTE_I8, ATTN_FEATURE_NEON_DOTPROD},
    {ATTN_COMPUTE_I8, ATTN_FEATURE_AVX512_BF16},   {ATTN_COMPUTE_I8, ATTN_FEATURE_NEON_BF16}};
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
  /* under qemu the instructions of features take five times as long as what stands in for them */
  const int last = test_isa == ATTN_ISA_NEON && test_feature(mode);
  once(mode, tests, test_fast && last ? 1 : n, state);
  for (int i = 0; i < USES; i++) {
    if (!used(i, mode)) continue;
    assert_int_equal(attn_feature_off(uses[i].feature, 1), ATTN_OK);
    once(mode, tests, test_fast && !(last && uses[i].feature == test_feature(mode)) ? 1 : n, state);
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

void test_mode_report(attn_compute mode, void **state) {
  (void)state;
  const attn_feature feature = test_feature(mode);
  for (int off = 0; off < (feature ? 2 : 1); off++)
    for (int prefer = 0; prefer < 2; prefer++) {
      test_rng rng = test_seed(9500);
      test_call call = test_two_heads(mode, ATTN_F32, 9, 40, 8, 8, &rng), plain = test_again(&call);
      attn_ctx ctx = test_ctx();
      call.params.compute_prefer = prefer, plain.params.compute = ATTN_COMPUTE_F32;
      if (off) assert_int_equal(attn_feature_off(feature, 1), ATTN_OK);
      const attn_status status = attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx);
      if (off) assert_int_equal(attn_feature_off(feature, 0), ATTN_OK);
      assert_int_equal(status, ATTN_OK);
      const int there = feature && !off;
      assert_int_equal(ctx.report.feature, there ? feature : ATTN_FEATURE_NONE);
      assert_int_equal(ctx.report.compute, there || !prefer ? mode : ATTN_COMPUTE_F32);
      const attn_report report = test_run(&plain);
      assert_int_equal(report.compute, ATTN_COMPUTE_F32);
      assert_int_equal(report.feature, ATTN_FEATURE_NONE);
      if (ctx.report.compute == ATTN_COMPUTE_F32)
        test_assert_same_outputs(&call, &plain, "a preference that cannot be met");
      else
        assert_false(test_same(call.o, plain.o));
      assert_int_equal(attn_sdpa(plain.o, call.q, call.k, call.v, NULL, &ctx), ATTN_OK);
      assert_int_equal(ctx.report.compute, ATTN_COMPUTE_F32);
      test_mem_release();
    }
}

void test_mode_workspace(attn_compute mode, void **state) {
  (void)state;
  test_rng rng = test_seed(9700);
  test_call call = test_two_heads(mode, ATTN_BF16, 70, 140, 20, 30, &rng);
  attn_ctx ctx = test_ctx();
  const size_t bytes = attn_sdpa_workspace(call.o, call.q, call.k, call.v, &call.params, &ctx);
  call.params.compute = ATTN_COMPUTE_F32;
  assert_true(bytes > attn_sdpa_workspace(call.o, call.q, call.k, call.v, &call.params, &ctx));
  call.params.compute = mode;
  ctx.workspace = test_mem(bytes), ctx.workspace_size = bytes - 1;
  assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), ATTN_E_WORKSPACE);
  ctx.workspace_size = bytes;
  assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), ATTN_OK);
  assert_int_equal(ctx.report.compute, mode);
}

/* A dense copy of the first output. */
static attn_tensor copied(const promise *p) {
  const attn_tensor *y = p->out[0];
  attn_tensor t = test_tensor(y->dtype, TEST_BHTD, y->batch, y->heads, y->len, y->dim);
  test_copy(t, *y);
  return t;
}

/* The largest difference, as a share of the largest number. */
static double away(const attn_tensor *got, const attn_tensor *want) {
  double most = 0, size = 0;
  for (int64_t r = 0; r < want->batch * want->heads * want->len; r++) {
    const int64_t b = r / want->len / want->heads, h = r / want->len % want->heads,
                  i = r % want->len;
    for (int64_t c = 0; c < want->dim; c++) {
      const double x = oracle_get(want, b, h, i, c), d = fabs(oracle_get(got, b, h, i, c) - x);
      size = fabs(x) > size ? fabs(x) : size, most = d > most || d != d ? d : most;
    }
  }
  return most / size;
}

void test_layer(const promise *p, attn_compute *compute, int *prefer, int codes, double bound,
                const char *word) {
  promise_run(p);
  const attn_tensor plain = copied(p);
  for (int mode = ATTN_COMPUTE_BF16; mode < ATTN_COMPUTE_COUNT; mode++) {
    const attn_feature feature = test_feature((attn_compute)mode);
    *compute = (attn_compute)mode;
    if (mode == ATTN_COMPUTE_I8 && !codes) {
      promise_reject(p, ATTN_E_VALUE, word);
      *prefer = 1, promise_run(p), *prefer = 0;
      test_assert_same(*p->out[0], plain, "preferred");
      continue;
    }
    for (int off = 0; off < (feature ? 2 : 1); off++) {
      attn_ctx ctx = test_ctx();
      if (feature) assert_int_equal(attn_feature_off(feature, off), ATTN_OK);
      assert_int_equal(p->call(p->scene, &ctx), ATTN_OK);
      assert_int_equal(ctx.report.compute, mode);
      assert_int_equal(ctx.report.feature, off ? ATTN_FEATURE_NONE : feature);
      const double d = away(p->out[0], &plain);
      if (!(d > 0 && d <= bound)) fail_msg("%s in mode %d: off by %g", word, mode, d);
      promise_keep(p);
      *prefer = 1, promise_run(p), *prefer = 0;
      if (off || !feature) test_assert_same(*p->out[0], plain, "preferred");
    }
    if (feature) assert_int_equal(attn_feature_off(feature, 0), ATTN_OK);
  }
  *compute = (attn_compute)77, promise_reject(p, ATTN_E_VALUE, word);
  *compute = ATTN_COMPUTE_F32, promise_run(p);
  test_assert_same(*p->out[0], plain, "f32 again");
}
