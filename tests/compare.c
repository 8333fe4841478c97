/* tests/compare.c owns building an attn_sdpa call, running it on the tier under test and judging
 * every row of its outputs against the oracle. */

#include <math.h>
#include <string.h>

#include "harness.h"

/* Half the distance from 1 to the next float. */
#define EPSILON 5.9604644775390625e-8
#define CODES \
  0.06 /* error of a score from codes, as a share of the sizes of its products: loose, see O4_errors */

test_spec test_plain(int64_t heads, int64_t q_len, int64_t k_len, int64_t dk, int64_t dv) {
  test_spec spec;
  memset(&spec, 0, sizeof spec);
  spec.batch = 1;
  spec.heads = spec.k_heads = spec.v_heads = heads;
  spec.q_len = q_len;
  spec.k_len = k_len;
  spec.dk = dk;
  spec.dv = dv;
  spec.lse = 1;
  return spec;
}

static attn_tensor output(attn_tensor like) {
  attn_tensor t = test_tensor(like.dtype, TEST_BHTD, like.batch, like.heads, like.len, like.dim);
  return t;
}

test_call test_build(const test_spec *s, test_rng *rng) {
  test_call call;
  memset(&call, 0, sizeof call);
  call.params.compute = test_compute;
  call.q = test_tensor(s->q_type, s->q_layout, s->batch, s->heads, s->q_len, s->dk);
  call.k = test_tensor(s->k_type, s->k_layout, s->batch, s->k_heads, s->k_len, s->dk);
  call.v = test_tensor(s->v_type, s->v_layout, s->batch, s->v_heads, s->k_len, s->dv);
  call.o = test_tensor(s->o_type, s->o_layout, s->batch, s->heads, s->q_len, s->dv);
  test_fill(call.q, rng, test_normal);
  test_fill(call.k, rng, test_normal);
  test_fill(call.v, rng, test_normal);
  if (s->lse) {
    call.params.lse = test_tensor(ATTN_F32, s->o_layout, s->batch, s->heads, s->q_len, 1);
  }
  if (s->map) {
    call.params.map = test_tensor(ATTN_F32, s->o_layout, s->batch, s->heads, s->q_len, s->k_len);
  }
  return call;
}

test_call test_again(const test_call *call) {
  test_call again = *call;
  again.o = output(call->o);
  if (call->params.lse.data) again.params.lse = output(call->params.lse);
  if (call->params.map.data) again.params.map = output(call->params.map);
  return again;
}

attn_report test_run(test_call *call) {
  attn_ctx ctx = test_ctx();
  attn_status status = attn_sdpa(call->o, call->q, call->k, call->v, &call->params, &ctx);
  if (status != ATTN_OK) {
    fail_msg("attn_sdpa: %s: %s", attn_status_string(status), ctx.reason ? ctx.reason : "(null)");
  }
  if (ctx.reason) fail_msg("a reason after a success: %s", ctx.reason);
  if (ctx.report.isa != test_isa) {
    fail_msg("ran on %s instead of %s", attn_isa_name(ctx.report.isa), attn_isa_name(test_isa));
  }
  if (ctx.report.compute != call->params.compute && call->q.len && call->q.batch && call->q.heads)
    fail_msg("compute %d instead of %d", (int)ctx.report.compute, (int)call->params.compute);
  return ctx.report;
}

/* What storing x costs. */
static double rounding(attn_dtype dtype, double x) {
  if (dtype == ATTN_F16) return fabs(x) * ldexp(1, -11) + ldexp(1, -25);
  if (dtype == ATTN_BF16) return fabs(x) * ldexp(1, -8);
  return fabs(x) * EPSILON;
}

/* Equal as far as NaN and infinities go; otherwise judged by the tolerance. */
static int close(double got, double want, double tolerance) {
  if (isnan(want)) return isnan(got);
  if (isinf(want)) return got == want;
  return fabs(got - want) <= tolerance;
}

/* Row (b, h, i) of a map of another stage. */
static void compare_scores(const test_call *call, int roundings, int64_t b, int64_t h, int64_t i,
                           const char *what) {
  const attn_sdpa_params *p = &call->params;
  const int biased = p->map_stage == ATTN_MAP_CAPPED && p->softcap_at == ATTN_SOFTCAP_BIASED;
  const int all = p->map_stage != ATTN_MAP_SCORES && !biased;
  attn_sdpa_params bare;
  memset(&bare, 0, sizeof bare);
  bare.scale = p->scale;
  if (p->map_stage == ATTN_MAP_CAPPED) bare.softcap = p->softcap;
  for (int64_t j = 0; j < call->k.len; j++) {
    const int there = (!p->kv_len || j < p->kv_len[b]) && (!p->q_len || i < p->q_len[b]);
    const int known = all ? there : oracle_allowed(&call->q, &call->k, p, b, h, i, j);
    oracle_pair pair = {-(double)INFINITY, 0};
    if (known) pair = oracle_score(&call->q, &call->k, all ? &bare : p, b, h, i, j);
    double got = oracle_get(&p->map, b, h, i, j);
    double unsure =
        EPSILON * (fabs(pair.x) + pair.size * (roundings + sqrt((double)call->q.dim) / 4));
    if (p->compute == ATTN_COMPUTE_I8) unsure += CODES * pair.size;
    if (isinf(pair.x)) unsure = 0;
    if (close(got, pair.x, 4 * unsure)) continue;
    fail_msg("%s: score[%d,%d,%d,%d] is %.9g, not %.9g", what, (int)b, (int)h, (int)i, (int)j, got,
             pair.x);
  }
}

static void compare(const test_call *call, int roundings, const char *what) {
  const attn_tensor *o = &call->o, *q = &call->q, *k = &call->k, *v = &call->v;
  const attn_sdpa_params *params = &call->params;
  oracle_row row;
  row.o = test_mem((size_t)v->dim * sizeof(double));
  row.p = test_mem((size_t)(k->len + 1) * sizeof(double));
  row.size = test_mem((size_t)(k->len + 1) * sizeof(double));
  for (int64_t b = 0; b < o->batch; b++) {
    for (int64_t h = 0; h < o->heads; h++) {
      for (int64_t i = 0; i < o->len; i++) {
        oracle_sdpa(q, k, v, params, b, h, i, &row);
        /* A score is known to a few roundings of its terms: a chain of dk of them grows like
         * sqrt(dk); a sum of Tk values likewise. */
        double score = EPSILON * row.noise * (roundings + sqrt((double)q->dim) / 4);
        /* weights rounded to bf16 err by up to 2^-8 each, and so does their sum; of f16 by 2^-11 */
        double narrow = params->compute == ATTN_COMPUTE_BF16  ? ldexp(1, -7)
                        : params->compute == ATTN_COMPUTE_F16 ? ldexp(1, -10)
                                                              : 0;
        /* q + u is rounded, too: a score by its own size, their sum by the mean of sizes */
        const double given = params->xl.table.data ? narrow / 2 : 0;
        score += given * row.noise;
        if (params->compute == ATTN_COMPUTE_I8) { /* six sigma of what codes round, of any data */
          score += CODES * row.noise;
          narrow = ldexp(1, -7) + fmin(expm1(2 * score) - 2 * score, 1e30);
        }
        double weight = 2e-6 + 2 * score + narrow;
        for (int64_t c = 0; c < v->dim; c++) {
          double got = oracle_get(o, b, h, i, c), want = row.o[c];
          if (close(got, want, weight * row.value + rounding(o->dtype, want))) continue;
          fail_msg("%s: o[%d,%d,%d,%d] is %.9g, not %.9g; error %.3g of max |v| (%.3g allowed)",
                   what, (int)b, (int)h, (int)i, (int)c, got, want, fabs(got - want) / row.value,
                   weight);
        }
        if (params->lse.data) {
          double got = oracle_get(&params->lse, b, h, i, 0);
          if (!close(got, row.lse, 1e-6 * (1 + fabs(row.lse)) + score + narrow)) {
            fail_msg("%s: lse[%d,%d,%d] is %.9g, not %.9g", what, (int)b, (int)h, (int)i, got,
                     row.lse);
          }
        }
        if (!params->map.data) continue;
        if (params->map_stage != ATTN_MAP_WEIGHTS && params->map_stage != ATTN_MAP_DROPPED) {
          compare_scores(call, roundings, b, h, i, what);
          continue;
        }
        double least = 1.2e-38;
#ifdef __arm__ /* flushes subnormals, also before the division by a sum below 1 (a span's ramp) */
        if (params->span.z) least = 1e-36;
#endif
        if (params->compute == ATTN_COMPUTE_I8) least *= 1 + narrow;
        if (params->compute == ATTN_COMPUTE_F16) least = ldexp(1, -40); /* below are no f16 */
        if (params->modify_weights) least *= 4; /* what is scaled may have been lost before */
        for (int64_t j = 0; j < k->len; j++) {
          double got = oracle_get(&params->map, b, h, i, j), want = row.p[j];
          if (params->map_stage == ATTN_MAP_DROPPED)
            want *= oracle_drop(&params->dropout, b, h, i, j);
          double unsure = 2e-6 + 2 * score + narrow;
          if (want > 0) unsure += EPSILON * (fabs(row.lse) * 4 + row.size[j] * 8);
          if (want > 0) unsure += given * row.size[j];
          if (params->compute == ATTN_COMPUTE_I8)
            unsure += fmin(expm1(2 * CODES * row.size[j]), 1e30) * (1 + unsure);
          /* the oracle hands floats to the function too: a subnormal one may be 0 there */
          const int lost = params->modify_weights && test_other_bits;
          if (close(got, want, unsure * want + least * (want > 0 || lost))) continue;
          fail_msg("%s: map[%d,%d,%d,%d] is %.9g, not %.9g", what, (int)b, (int)h, (int)i, (int)j,
                   got, want);
        }
      }
    }
  }
}

void test_compare(const test_call *call, const char *what) { compare(call, 4, what); }

/* The scale of a key is rounded, and so is its product with a score. */
void test_compare_stored(const test_call *call, const char *what) { compare(call, 6, what); }

void test_check(test_call *call, const char *what) {
  test_run(call);
  test_compare(call, what);
}

void test_assert_same_outputs(const test_call *a, const test_call *b, const char *what) {
  test_assert_same(a->o, b->o, what);
  if (a->params.lse.data) test_assert_same(a->params.lse, b->params.lse, what);
  if (a->params.map.data) test_assert_same(a->params.map, b->params.map, what);
}
