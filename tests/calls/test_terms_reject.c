/* tests/calls/test_terms_reject.c owns bad score terms: each rule has its status, a reason that names the
 * argument, and outputs whose every byte stays. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "terms.h"

enum { B = 2, H = 4, TQ = 6, TK = 9, DK = 8, DV = 10 };

/* The legal call that every rule spoils; the arrays of its terms, to spoil. */
typedef struct scene {
  test_call call;
  attn_ctx ctx;
  attn_sdpa_params *p;
  float alpha[H], beta[H], w[H], b[H], z[H], each_z[B * H * TQ];
  float center[B * H * TQ], precision[B * H * TQ];
  float toeplitz[H * 20], t5[32 * H], u[H * DK], label_bias[3 * H];
  float spare[64];
} scene;

typedef struct rule {
  attn_status status, other; /* either; ATTN_OK = no other */
  const char *word;          /* must stand in the reason */
  void (*spoil)(scene *s);
} rule;

#define RULE(name, body) \
  static void name(scene *s) { body }

/* B3 */
RULE(keys_even, s->p->relative.keys.len = 4;)
RULE(values_even, s->p->relative.values.len = 2;)
RULE(queries_even, s->p->relative.queries.len = 4;)
RULE(queries_differ, s->p->relative.queries.len = 3;)
RULE(queries_width, s->p->relative.queries.dim = DK + 1;)
RULE(queries_heads, s->p->relative.queries.heads = 2;)
RULE(queries_dtype, s->p->relative.queries.dtype = ATTN_F16;)
RULE(queries_overlap, s->p->relative.queries.data = s->call.o.data;)
RULE(keys_none, s->p->relative.keys.len = 0;)
RULE(tables_differ, s->p->relative.keys.len = 3;)
RULE(keys_width, s->p->relative.keys.dim = DK - 1;)
RULE(values_width, s->p->relative.values.dim = DV + 1;)
RULE(keys_heads, s->p->relative.keys.heads = 2;)
RULE(values_heads, s->p->relative.values.heads = H - 1;)
RULE(keys_batch, s->p->relative.keys.batch = B;)
RULE(keys_dtype, s->p->relative.keys.dtype = ATTN_F16;)
RULE(values_dtype, s->p->relative.values.dtype = ATTN_BF16;)
RULE(keys_align, s->p->relative.keys.data = (char *)s->p->relative.keys.data + 1;)
RULE(keys_huge, s->p->relative.keys.stride_len = INT64_MAX / 4;)
RULE(values_overlap, s->p->relative.values.data = s->call.o.data;)
RULE(keys_overlap, s->p->relative.keys.data = s->p->lse.data;)
/* B4 */
RULE(xl_short, s->p->xl.table.len--;)
RULE(xl_late, s->p->xl.first++; s->p->xl.table.len--;)
RULE(xl_empty, s->p->xl.table.len = 0;)
RULE(xl_width, s->p->xl.table.dim = DK + 1;)
RULE(xl_heads, s->p->xl.table.heads = 3;)
RULE(xl_dtype, s->p->xl.table.dtype = ATTN_F16;)
RULE(xl_batch, s->p->xl.table.batch = 0;)
RULE(xl_align, s->p->xl.table.data = (char *)s->p->xl.table.data + 2;)
RULE(xl_first, s->p->xl.first = INT64_MIN;)
RULE(xl_first_far, s->p->xl.first = INT64_MAX;)
RULE(u_align, s->p->xl.u = (float *)(void *)((char *)s->u + 1);)
RULE(v_align, s->p->xl.v = (float *)(void *)((char *)s->u + 2);)
RULE(u_overlap, s->p->xl.u = s->call.o.data;)
RULE(v_overlap, s->p->xl.v = s->call.o.data;)
RULE(xl_overlap, s->p->xl.table.data = s->call.o.data;)
RULE(u_alone, s->p->xl.table.data = NULL;)
/* labels */
RULE(label_null, s->p->labels.label = NULL;)
RULE(label_table_null, s->p->labels.table.data = NULL;)
RULE(label_width, s->p->labels.table.dim = DK - 1;)
RULE(label_heads, s->p->labels.table.heads = 3;)
RULE(label_none, s->p->labels.table.len = -1;)
RULE(label_dtype, s->p->labels.table.dtype = ATTN_BF16;)
RULE(label_bias_align, s->p->labels.bias = (float *)(void *)((char *)s->label_bias + 1);)
RULE(label_overlap, s->p->labels.table.data = s->call.o.data;)
RULE(label_bias_overlap, s->p->labels.bias = s->call.o.data;)
/* B7 */
RULE(alpha_null, s->p->factor.alpha = NULL;)
RULE(beta_null, s->p->factor.beta = NULL;)
RULE(alpha_nan, s->alpha[H - 1] = NAN;)
RULE(alpha_inf, s->alpha[0] = -INFINITY;)
RULE(beta_nan, s->beta[2] = NAN;)
RULE(beta_inf, s->beta[2] = INFINITY;)
RULE(factor_scale, s->p->scale = -0.5f;)
RULE(factor_zero, s->p->scale = ATTN_ZERO;)
RULE(alpha_align, s->p->factor.alpha = (float *)(void *)((char *)s->spare + 1);)
RULE(alpha_overlap, s->p->factor.alpha = s->call.o.data;)
RULE(beta_overlap, s->p->factor.beta = s->call.o.data;)
/* B8 */
RULE(toeplitz_empty, s->p->toeplitz.len = 0;)
RULE(toeplitz_negative, s->p->toeplitz.len = -3;)
RULE(toeplitz_heads, s->p->toeplitz.heads = 2;)
RULE(toeplitz_no_heads, s->p->toeplitz.heads = -1;)
RULE(toeplitz_short, s->p->toeplitz.reject = 1; s->p->toeplitz.len = 13;)
RULE(toeplitz_late, s->p->toeplitz.reject = 1; s->p->toeplitz.first = -7; s->p->toeplitz.len = 13;)
RULE(toeplitz_align, s->p->toeplitz.table = (float *)(void *)((char *)s->toeplitz + 3);)
RULE(toeplitz_overlap, s->p->toeplitz.table = s->call.o.data;)
RULE(toeplitz_huge, s->p->toeplitz.len = INT64_MAX / 2;)
RULE(toeplitz_far, s->p->toeplitz.first = INT64_MIN; s->p->toeplitz.reject = 1;)
RULE(t5_few, s->p->t5.buckets = 1;)
RULE(t5_few_sides, s->p->t5.buckets = 3; s->p->t5.bidirectional = 1;)
RULE(t5_negative, s->p->t5.buckets = -32;)
RULE(t5_near, s->p->t5.max_distance = 16;)
RULE(t5_near_negative, s->p->t5.max_distance = -128;)
RULE(t5_align, s->p->t5.table = (float *)(void *)((char *)s->t5 + 1);)
RULE(t5_overlap, s->p->t5.table = s->call.o.data;)
/* H2 */
RULE(w_negative, s->w[3] = -1e-9f;)
RULE(w_nan, s->w[0] = NAN;)
RULE(w_inf, s->w[0] = INFINITY;)
RULE(b_positive, s->b[1] = 1e-9f;)
RULE(b_nan, s->b[3] = NAN;)
RULE(b_inf, s->b[3] = -INFINITY;)
RULE(b_alone, s->p->parabola.w = NULL;)
RULE(w_align, s->p->parabola.w = (float *)(void *)((char *)s->w + 1);)
RULE(w_overlap, s->p->parabola.w = s->call.o.data;)
RULE(b_overlap, s->p->parabola.bias = s->call.o.data;)
/* H1 */
RULE(center_null, s->p->gaussian.center = NULL;)
RULE(precision_null, s->p->gaussian.precision = NULL;)
RULE(center_align, s->p->gaussian.center = (float *)(void *)((char *)s->center + 1);)
RULE(precision_align, s->p->gaussian.precision = (float *)(void *)((char *)s->center + 2);)
RULE(center_overlap, s->p->gaussian.center = s->call.o.data;)
RULE(precision_overlap, s->p->gaussian.precision = s->p->lse.data;)
/* I5 */
RULE(z_negative, s->z[2] = -1e-9f;)
RULE(z_nan, s->z[3] = NAN;)
RULE(z_inf, s->z[3] = INFINITY;)
RULE(z_beyond, s->p->span.max_span = 5; s->z[1] = 5.25f;)
RULE(each_z_beyond, s->p->span.z = s->each_z; s->p->span.per_query = 1; s->p->span.max_span = 5;
     s->each_z[B * H * TQ - 1] = 6;)
RULE(each_z_nan, s->p->span.z = s->each_z; s->p->span.per_query = 1; s->each_z[7] = NAN;)
RULE(ramp_negative, s->p->span.ramp = -1;)
RULE(ramp_nan, s->p->span.ramp = NAN;)
RULE(ramp_inf, s->p->span.ramp = INFINITY;)
RULE(most_negative, s->p->span.max_span = -1;)
RULE(z_align, s->p->span.z = (float *)(void *)((char *)s->z + 1);)
RULE(z_overlap, s->p->span.z = s->call.o.data;)
/* the schedule */
RULE(schedule_nothing, static attn_schedule none; s->p->schedule = &none;)

/* The word is checked against the sentence, so that a wrong argument is never blamed. */
static const rule rules[] = {
    {ATTN_E_SHAPE, ATTN_OK, "relative", keys_even},
    {ATTN_E_SHAPE, ATTN_OK, "relative", values_even},
    {ATTN_E_SHAPE, ATTN_OK, "relative", queries_even},
    {ATTN_E_SHAPE, ATTN_OK, "relative.queries", queries_differ},
    {ATTN_E_SHAPE, ATTN_OK, "relative.queries", queries_width},
    {ATTN_E_SHAPE, ATTN_E_HEADS, "relative.queries", queries_heads},
    {ATTN_E_DTYPE, ATTN_OK, "relative.queries", queries_dtype},
    {ATTN_E_OVERLAP, ATTN_OK, "o ", queries_overlap},
    {ATTN_E_SHAPE, ATTN_OK, "relative.keys", keys_none},
    {ATTN_E_SHAPE, ATTN_OK, "relative", tables_differ},
    {ATTN_E_SHAPE, ATTN_OK, "relative.keys", keys_width},
    {ATTN_E_SHAPE, ATTN_OK, "relative.values", values_width},
    {ATTN_E_SHAPE, ATTN_E_HEADS, "relative.keys", keys_heads},
    {ATTN_E_SHAPE, ATTN_E_HEADS, "relative.values", values_heads},
    {ATTN_E_SHAPE, ATTN_OK, "relative.keys", keys_batch},
    {ATTN_E_DTYPE, ATTN_OK, "relative.keys", keys_dtype},
    {ATTN_E_DTYPE, ATTN_OK, "relative.values", values_dtype},
    {ATTN_E_ALIGN, ATTN_OK, "relative.keys", keys_align},
    {ATTN_E_OVERFLOW, ATTN_OK, "relative.keys", keys_huge},
    {ATTN_E_OVERLAP, ATTN_OK, "o ", values_overlap},
    {ATTN_E_OVERLAP, ATTN_OK, "lse", keys_overlap},
    {ATTN_E_RANGE, ATTN_OK, "xl", xl_short},
    {ATTN_E_RANGE, ATTN_OK, "xl", xl_late},
    {ATTN_E_RANGE, ATTN_E_SHAPE, "xl", xl_empty},
    {ATTN_E_SHAPE, ATTN_OK, "xl.table", xl_width},
    {ATTN_E_SHAPE, ATTN_E_HEADS, "xl.table", xl_heads},
    {ATTN_E_DTYPE, ATTN_OK, "xl.table", xl_dtype},
    {ATTN_E_SHAPE, ATTN_OK, "xl.table", xl_batch},
    {ATTN_E_ALIGN, ATTN_OK, "xl.table", xl_align},
    {ATTN_E_RANGE, ATTN_OK, "xl", xl_first},
    {ATTN_E_RANGE, ATTN_OK, "xl", xl_first_far},
    {ATTN_E_ALIGN, ATTN_OK, "xl.u", u_align},
    {ATTN_E_ALIGN, ATTN_OK, "xl.v", v_align},
    {ATTN_E_OVERLAP, ATTN_OK, "o ", u_overlap},
    {ATTN_E_OVERLAP, ATTN_OK, "o ", v_overlap},
    {ATTN_E_OVERLAP, ATTN_OK, "o ", xl_overlap},
    {ATTN_E_NULL, ATTN_OK, "xl.table", u_alone},
    {ATTN_E_NULL, ATTN_OK, "labels.label", label_null},
    {ATTN_E_NULL, ATTN_OK, "labels.table", label_table_null},
    {ATTN_E_SHAPE, ATTN_OK, "labels.table", label_width},
    {ATTN_E_SHAPE, ATTN_E_HEADS, "labels.table", label_heads},
    {ATTN_E_SHAPE, ATTN_OK, "labels.table", label_none},
    {ATTN_E_DTYPE, ATTN_OK, "labels.table", label_dtype},
    {ATTN_E_ALIGN, ATTN_OK, "labels.bias", label_bias_align},
    {ATTN_E_OVERLAP, ATTN_OK, "o ", label_overlap},
    {ATTN_E_OVERLAP, ATTN_OK, "o ", label_bias_overlap},
    {ATTN_E_NULL, ATTN_OK, "factor", alpha_null},
    {ATTN_E_NULL, ATTN_OK, "factor", beta_null},
    {ATTN_E_VALUE, ATTN_OK, "factor.alpha", alpha_nan},
    {ATTN_E_VALUE, ATTN_OK, "factor.alpha", alpha_inf},
    {ATTN_E_VALUE, ATTN_OK, "factor.beta", beta_nan},
    {ATTN_E_VALUE, ATTN_OK, "factor.beta", beta_inf},
    {ATTN_E_VALUE, ATTN_E_RANGE, "scale", factor_scale},
    {ATTN_E_VALUE, ATTN_E_RANGE, "scale", factor_zero},
    {ATTN_E_ALIGN, ATTN_OK, "factor.alpha", alpha_align},
    {ATTN_E_OVERLAP, ATTN_OK, "o ", alpha_overlap},
    {ATTN_E_OVERLAP, ATTN_OK, "o ", beta_overlap},
    {ATTN_E_SHAPE, ATTN_E_RANGE, "toeplitz", toeplitz_empty},
    {ATTN_E_SHAPE, ATTN_E_RANGE, "toeplitz", toeplitz_negative},
    {ATTN_E_SHAPE, ATTN_E_HEADS, "toeplitz.heads", toeplitz_heads},
    {ATTN_E_SHAPE, ATTN_E_HEADS, "toeplitz.heads", toeplitz_no_heads},
    {ATTN_E_RANGE, ATTN_OK, "toeplitz", toeplitz_short},
    {ATTN_E_RANGE, ATTN_OK, "toeplitz", toeplitz_late},
    {ATTN_E_ALIGN, ATTN_OK, "toeplitz.table", toeplitz_align},
    {ATTN_E_OVERLAP, ATTN_OK, "o ", toeplitz_overlap},
    {ATTN_E_OVERFLOW, ATTN_E_RANGE, "toeplitz", toeplitz_huge},
    {ATTN_E_RANGE, ATTN_OK, "toeplitz", toeplitz_far},
    {ATTN_E_RANGE, ATTN_E_SHAPE, "t5", t5_few},
    {ATTN_E_RANGE, ATTN_E_SHAPE, "t5", t5_few_sides},
    {ATTN_E_RANGE, ATTN_E_SHAPE, "t5", t5_negative},
    {ATTN_E_RANGE, ATTN_OK, "t5", t5_near},
    {ATTN_E_RANGE, ATTN_OK, "t5", t5_near_negative},
    {ATTN_E_ALIGN, ATTN_OK, "t5.table", t5_align},
    {ATTN_E_OVERLAP, ATTN_OK, "o ", t5_overlap},
    {ATTN_E_VALUE, ATTN_OK, "parabola.w", w_negative},
    {ATTN_E_VALUE, ATTN_OK, "parabola.w", w_nan},
    {ATTN_E_VALUE, ATTN_OK, "parabola.w", w_inf},
    {ATTN_E_VALUE, ATTN_OK, "parabola.bias", b_positive},
    {ATTN_E_VALUE, ATTN_OK, "parabola.bias", b_nan},
    {ATTN_E_VALUE, ATTN_OK, "parabola.bias", b_inf},
    {ATTN_E_NULL, ATTN_OK, "parabola.w", b_alone},
    {ATTN_E_ALIGN, ATTN_OK, "parabola.w", w_align},
    {ATTN_E_OVERLAP, ATTN_OK, "o ", w_overlap},
    {ATTN_E_OVERLAP, ATTN_OK, "o ", b_overlap},
    {ATTN_E_NULL, ATTN_OK, "gaussian", center_null},
    {ATTN_E_NULL, ATTN_OK, "gaussian", precision_null},
    {ATTN_E_ALIGN, ATTN_OK, "gaussian.center", center_align},
    {ATTN_E_ALIGN, ATTN_OK, "gaussian.precision", precision_align},
    {ATTN_E_OVERLAP, ATTN_OK, "o ", center_overlap},
    {ATTN_E_OVERLAP, ATTN_OK, "lse", precision_overlap},
    {ATTN_E_VALUE, ATTN_E_RANGE, "span.z", z_negative},
    {ATTN_E_VALUE, ATTN_E_RANGE, "span.z", z_nan},
    {ATTN_E_VALUE, ATTN_E_RANGE, "span.z", z_inf},
    {ATTN_E_VALUE, ATTN_E_RANGE, "span.z", z_beyond},
    {ATTN_E_VALUE, ATTN_E_RANGE, "span.z", each_z_beyond},
    {ATTN_E_VALUE, ATTN_E_RANGE, "span.z", each_z_nan},
    {ATTN_E_VALUE, ATTN_E_RANGE, "span.ramp", ramp_negative},
    {ATTN_E_VALUE, ATTN_E_RANGE, "span.ramp", ramp_nan},
    {ATTN_E_VALUE, ATTN_E_RANGE, "span.ramp", ramp_inf},
    {ATTN_E_RANGE, ATTN_OK, "span.max_span", most_negative},
    {ATTN_E_ALIGN, ATTN_OK, "span.z", z_align},
    {ATTN_E_OVERLAP, ATTN_OK, "o ", z_overlap},
    {ATTN_E_SCHEDULE, ATTN_E_NULL, "schedule", schedule_nothing},
};

static void constant(float *x, int64_t n, float value) {
  for (int64_t k = 0; k < n; k++) x[k] = value;
}

static scene *make_scene(test_block out[2]) {
  scene *s = test_mem(sizeof *s);
  test_rng rng = test_seed(340);
  memset(s, 0, sizeof *s);
  test_spec spec = test_plain(H, TQ, TK, DK, DV);
  spec.batch = B;
  s->call = test_build(&spec, &rng);
  s->call.o = test_tensor(ATTN_F32, TEST_BHTD, B, H, TQ, DV);
  out[0] = test_last_block;
  attn_sdpa_params *p = s->p = &s->call.params;
  p->lse = test_tensor(ATTN_F32, TEST_BHTD, B, H, TQ, 1);
  out[1] = test_last_block;
  p->relative.keys = test_table(1, 5, DK, TEST_BHTD, &rng);
  p->relative.values = test_table(H, 5, DV, TEST_BHTD, &rng);
  p->relative.queries = test_table(H, 5, DK, TEST_BHTD, &rng);
  p->xl.table = test_table(H, TQ + TK - 1, DK, TEST_BHTD, &rng); /* q_off 3: d = -8 .. 5 */
  p->xl.first = -8;
  p->xl.u = p->xl.v = s->u;
  test_term_user *user = test_mem(sizeof *user);
  memset(user, 0, sizeof *user);
  user->labels = 3;
  p->labels.label = test_label;
  p->labels.user = user;
  p->labels.table = test_table(1, 3, DK, TEST_BHTD, &rng);
  p->labels.bias = s->label_bias;
  p->factor.alpha = s->alpha;
  p->factor.beta = s->beta;
  p->toeplitz.table = s->toeplitz;
  p->toeplitz.len = 14; /* d = -8 .. 5 */
  p->toeplitz.first = -8;
  p->toeplitz.heads = H;
  p->t5.table = s->t5;
  p->parabola.w = s->w;
  p->parabola.bias = s->b;
  p->gaussian.center = s->center;
  p->gaussian.precision = s->precision;
  constant(s->each_z, B * H * TQ, 4);
  constant(s->z, H, 4);
  p->span.z = s->z;
  p->span.include_self = 1;
  s->ctx = test_ctx();
  return s;
}

void api_terms_rejects(void **state) {
  (void)state;
  int wrong = 0;
  const int count = sizeof rules / sizeof *rules;
  for (int n = 0; n < count; n++) {
    test_block out[2];
    scene *s = make_scene(out);
    rules[n].spoil(s);
    unsigned char *before[2];
    for (int t = 0; t < 2; t++) {
      before[t] = test_mem(out[t].size);
      memcpy(before[t], out[t].data, out[t].size);
    }
    test_call *c = &s->call;
    attn_status got = attn_sdpa(c->o, c->q, c->k, c->v, &c->params, &s->ctx);
    const char *reason = s->ctx.reason ? s->ctx.reason : "(no reason)";
    int known = got && (got == rules[n].status || got == rules[n].other);
    if (!known || !strstr(reason, rules[n].word)) {
      print_error("rule %d: got \"%s\" because \"%s\"; want \"%s\" naming \"%s\"\n", n,
                  attn_status_string(got), reason, attn_status_string(rules[n].status),
                  rules[n].word);
      wrong++;
    }
    for (int t = 0; t < 2; t++) {
      if (memcmp(before[t], out[t].data, out[t].size) == 0) continue;
      print_error("rule %d: output %d was touched\n", n, t);
      wrong++;
    }
    /* the query reads no arrays, so it is blind to what they hold and where they lie */
    size_t size = attn_sdpa_workspace(c->o, c->q, c->k, c->v, &c->params, &s->ctx);
    int blind = got == ATTN_E_VALUE || got == ATTN_E_RANGE || got == ATTN_E_OVERLAP ||
                got == ATTN_E_SCHEDULE;
    if (size != ATTN_WORKSPACE_REJECTED && got && !blind) {
      print_error("rule %d: the workspace query gives %zu\n", n, size);
      wrong++;
    }
    test_mem_release();
  }
  print_message("           %d rules\n", count);
  assert_int_equal(wrong, 0);
}

/* The unspoilt call succeeds, so that each rule above is what rejects. */
void api_terms_accept_the_unspoilt_call(void **state) {
  (void)state;
  test_block out[2];
  scene *s = make_scene(out);
  test_check(&s->call, "the legal call");
  s->ctx.validate = 1;
  test_call *c = &s->call;
  assert_int_equal(attn_sdpa(c->o, c->q, c->k, c->v, &c->params, &s->ctx), ATTN_OK);
  /* the toeplitz table just covers, so it may reject */
  s->p->toeplitz.reject = 1;
  assert_int_equal(attn_sdpa(c->o, c->q, c->k, c->v, &c->params, &s->ctx), ATTN_OK);
}
