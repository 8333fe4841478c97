/* tests/calls/test_qk_norm.c owns M2, the norm of queries and keys: in attn_rope against its definition and the calls
 * that it is made of, and in attn_reshaped against attention over normed rows. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "qk_norm.h"
#include "reshaped.h"
#include "rope.h"
#include "terms.h"

/* What becomes of row (b, i): in double, norm and rotation in their order. */
static void hold(attn_tensor y, attn_tensor x, const attn_rope_params *p, const char *what) {
  const attn_qk_norm *norm = p->norm;
  const int64_t d = x.dim, n = x.batch * x.heads * x.len * d;
  const int64_t rot = p->has_rotary_dim || p->rotary_dim ? p->rotary_dim : d;
  double *rows = test_mem((size_t)n * sizeof *rows + 1);
  double *turned = test_mem((size_t)n * sizeof *rows + 1);
  for (int pass = 0; pass < 2; pass++) {
    if (pass == 0)
      for (int64_t at = 0; at < n; at++)
        rows[at] = oracle_get(&x, at / d / x.len / x.heads, at / d / x.len % x.heads,
                              at / d % x.len, at % d);
    if (pass == norm->after) qk_norm_rows(rows, x.batch, x.heads, x.len, d, norm, p->keys);
    if (pass == norm->after) continue;
    for (int64_t r = 0; r < n / d; r++)
      oracle_rope(turned + r * d, rows + r * d, d, rot, 10000, p->layout, p->inverse,
                  (double)(p->start + r % x.len));
    memcpy(rows, turned, (size_t)n * sizeof *rows);
  }
  for (int64_t at = 0; at < n; at++) {
    const int64_t b = at / d / x.len / x.heads, h = at / d / x.len % x.heads, i = at / d % x.len;
    const double want = rows[at], got = oracle_get(&y, b, h, i, at % d);
    double top = 0, unit = y.dtype == ATTN_F16 ? 4.9e-4 : y.dtype == ATTN_BF16 ? 3.92e-3 : 0;
    for (int64_t c = 0; c < d; c++) top = fmax(top, fabs(rows[at / d * d + c]));
    if (!(fabs(got - want) <= 3e-6 * top + unit * fabs(want) + 3e-8))
      fail_msg("%s: [%d,%d,%d,%d] is %.9g, not %.9g", what, (int)b, (int)h, (int)i, (int)(at % d),
               got, want);
  }
}

void M2_qk_norm_rows(void **state) {
  (void)state;
  test_rng rng = test_seed(2600);
  for (int n = 0; n < test_count(160, 80); n++, test_mem_release()) {
    const int64_t heads = n % 5 == 4 ? test_range(&rng, 14, 35) : test_range(&rng, 1, 5);
    const int64_t b = test_range(&rng, 1, 2), t = test_range(&rng, 1, n % 5 == 4 ? 3 : 20);
    const int off = n % 4 == 3; /* no rotation */
    const int64_t d = off ? test_range(&rng, 1, 140) : 2 * test_range(&rng, 1, 70);
    const int in_place = n % 7 == 3;
    attn_dtype from = (attn_dtype)(n % 3), to = in_place ? from : (attn_dtype)(n / 3 % 3);
    attn_tensor x =
        test_tensor(from, (test_layout)(n / 2 % (in_place ? 4 : TEST_LAYOUTS)), b, heads, t, d);
    attn_tensor y = test_tensor(to, (test_layout)(n % 4), b, heads, t, d), own = x;
    test_fill(x, &rng, test_normal);
    if (n % 6 == 1) test_fill_row(x, 0, heads - 1, t - 1, 0);
    attn_qk_norm norm = qk_norm_described(&rng, n / 2 % 4, heads, heads, d);
    if (norm.kind == ATTN_QK_NORM_LAYER && d < 9)
      norm.eps = 0.5f; /* variance may be next to none */
    norm.after = n / 8 % 2;
    attn_rope_params p;
    memset(&p, 0, sizeof p);
    p.norm = &norm, p.keys = n / 3 % 2, p.layout = (attn_rope_layout)(n / 5 % 2);
    p.start = test_range(&rng, -9, 99), p.inverse = n % 3 == 1;
    if (n % 4 == 2) p.rotary_dim = d / 4 * 2, p.has_rotary_dim = 1;
    if (off) p.has_rotary_dim = 1;
    if (in_place) {
      own = test_tensor(from, TEST_BHTD, b, heads, t, d);
      test_copy(own, x), y = x;
    }
    char what[90];
    snprintf(what, sizeof what, "case %d, kind %d, heads %d, d %d", n, (int)norm.kind, (int)heads,
             (int)d);
    attn_ctx ctx = test_ctx();
    ctx.workspace_size = attn_rope_workspace(y, x, &p, &ctx);
    ctx.workspace = test_mem(ctx.workspace_size);
    const int64_t mallocs = test_malloc_calls;
    attn_status status = attn_rope(y, x, &p, &ctx);
    if (status != ATTN_OK) fail_msg("%s: %s", what, ctx.reason);
    assert_int_equal(test_malloc_calls, mallocs);
    assert_int_equal(ctx.report.isa, test_isa);
    hold(y, own, &p, what);
  }
}

/* The bits of attn_rms_norm or attn_layer_norm and of attn_rope, in their order; any workers, and each token by itself. */
void M2_qk_norm_is_its_calls(void **state) {
  (void)state;
  test_rng rng = test_seed(2601);
  for (int n = 0; n < 12; n++, test_mem_release()) {
    enum { H = 19, T = 37, D = 64 };
    attn_tensor x = test_tensor(ATTN_F32, n % 2 ? TEST_BTHD : TEST_BHTD, 2, H, T, D), step[2], y, z;
    test_fill(x, &rng, test_normal);
    attn_qk_norm norm;
    attn_layer_norm_params by;
    attn_rope_params p, plain;
    memset(&norm, 0, sizeof norm), memset(&p, 0, sizeof p), memset(&by, 0, sizeof by);
    norm.kind = n % 3 == 1 ? ATTN_QK_NORM_LAYER : ATTN_QK_NORM_RMS, norm.after = n / 3 % 2;
    norm.q_gain = test_floats(D, 1, &rng), norm.gain_less_one = n % 2;
    p.layout = (attn_rope_layout)(n / 6), p.start = 5;
    plain = p, p.norm = &norm;
    by.norm.gain = norm.q_gain, by.norm.gain_less_one = n % 2, by.norm.eps = 1e-6f;
    attn_ctx ctx = test_ctx();
    step[0] = test_tensor(ATTN_F32, TEST_BHTD, 2, H, T, D);
    step[1] = test_tensor(ATTN_F32, TEST_BHTD, 2, H, T, D);
    y = test_tensor(ATTN_F32, TEST_PADDED, 2, H, T, D);
    z = test_tensor(ATTN_F32, TEST_BHTD, 2, H, T, D);
    for (int i = 0; i < 2; i++) {
      const attn_tensor from = i ? step[0] : x;
      assert_int_equal(i == norm.after
                           ? (norm.kind ? attn_layer_norm : attn_rms_norm)(step[i], from, &by, &ctx)
                           : attn_rope(step[i], from, &plain, &ctx),
                       ATTN_OK);
    }
    assert_int_equal(attn_rope(y, x, &p, &ctx), ATTN_OK);
    test_assert_same(y, step[1], "calls");
    ctx.workers = 2 + n % 3,
    ctx.parallel_for = n % 2 ? test_parallel_threads : test_parallel_backward;
    assert_int_equal(attn_rope(z, x, &p, &ctx), ATTN_OK);
    test_assert_same(z, y, "workers");
    ctx = test_ctx();
    for (int64_t i = 0; i < T; i++) {
      attn_rope_params one = p;
      one.start += i;
      assert_int_equal(attn_rope(test_rows(z, i, 1), test_rows(x, i, 1), &one, &ctx), ATTN_OK);
    }
    test_assert_same(z, y, "token by token");
  }
}

/* Rows that say nothing, rows that floats cannot square, NaN and infinity. */
void M2_qk_norm_edges(void **state) {
  (void)state;
  enum { H = 3, T = 5, D = 48 };
  test_rng rng = test_seed(2602);
  for (int n = 0; n < 16; n++, test_mem_release()) {
    attn_qk_norm norm;
    attn_rope_params p;
    memset(&norm, 0, sizeof norm), memset(&p, 0, sizeof p);
    norm.kind = (attn_qk_norm_kind)(n % 4), norm.after = n / 4 % 2, p.norm = &norm;
    if (n > 7) norm.eps = ATTN_ZERO;
    attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, H, T, D);
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, H, T, D);
    test_fill(x, &rng, test_normal);
    for (int h = 0; h < H; h++) test_fill_row(x, 0, h, 0, 0);
    for (int64_t h = 0; h < H; h++)
      for (int64_t c = 0; c < D; c++) /* of one size */
        oracle_set(&x, 0, h, 1, c, (c % 4 < 2 ? 3e30 : -3e30));
    oracle_set(&x, 0, 1, 2, 7, NAN), oracle_set(&x, 0, 1, 3, 7, INFINITY);
    rope_turns(y, x, &p);
    const int all = norm.kind == ATTN_QK_NORM_RMS_ALL;
    const double size = norm.kind == ATTN_QK_NORM_L2 ? 1 / sqrt(D) : 1;
    for (int64_t h = 0; h < H; h++)
      for (int64_t c = 0; c < D; c++) {
        assert_true(oracle_get(&y, 0, h, 0, c) == 0);
        const double big = oracle_get(&y, 0, h, 1, c), mate = oracle_get(&y, 0, h, 1, c ^ 1);
        if (norm.kind != ATTN_QK_NORM_LAYER || !norm.after)
          assert_true(fabs(hypot(big, mate) - size * sqrt(2)) < 1e-5);
        assert_int_equal(isnan(oracle_get(&y, 0, h, 2, c)), h == 1 || all);
        if (h != 1 && !all) assert_true(fabs(oracle_get(&y, 0, h, 3, c)) <= 8);
        assert_true(fabs(oracle_get(&y, 0, h, 4, c)) <= 8);
      }
    assert_true(isnan(oracle_get(&y, 0, 1, 3, 7)));
  }
  /* a row of equal numbers is 0 without its mean, eps = 0 too */
  attn_qk_norm norm;
  attn_rope_params p;
  memset(&norm, 0, sizeof norm), memset(&p, 0, sizeof p);
  norm.kind = ATTN_QK_NORM_LAYER, norm.eps = ATTN_ZERO, p.norm = &norm;
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, 64);
  test_fill_value(x, 5);
  rope_turns(x, x, &p);
  for (int64_t c = 0; c < 64; c++) assert_true(oracle_get(&x, 0, 0, 0, c) == 0);
}

static void refuse(const attn_rope_params *p, attn_status want, const char *word) {
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 3, 8);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 3, 8);
  attn_ctx ctx = test_ctx();
  test_fill_value(x, 1), test_fill_value(y, 7);
  const attn_status status = attn_rope(y, x, p, &ctx);
  if (status != want || !strstr(ctx.reason, word))
    fail_msg("%s: %s, %s", word, attn_status_string(status), ctx.reason ? ctx.reason : "(null)");
  for (int i = 0; i < 48; i++) assert_true(((float *)y.data)[i] == 7);
}

void M2_qk_norm_rejects(void **state) {
  (void)state;
  float gains[17] = {0};
  const float bad[2] = {1, INFINITY};
  attn_qk_norm norm;
  attn_rope_params p;
  for (int n = 0; n < 10; n++) {
    memset(&norm, 0, sizeof norm), memset(&p, 0, sizeof p);
    p.norm = &norm;
    const char *word = "params.norm.eps";
    attn_status want = ATTN_E_VALUE;
    switch (n) {
      case 0: norm.kind = ATTN_QK_NORM_KINDS, word = "kind", want = ATTN_E_RANGE; break;
      case 1: norm.kind = (attn_qk_norm_kind)-1, word = "kind", want = ATTN_E_RANGE; break;
      case 2: norm.eps = -1; break;
      case 3: norm.eps = NAN; break;
      case 4: norm.gain_by_head = 2, word = "gain_by_head", want = ATTN_E_RANGE; break;
      case 5: norm.after = -1, word = "after", want = ATTN_E_RANGE; break;
      case 6: norm.temperature = gains, word = "temperature", want = ATTN_E_RANGE; break;
      case 7:
        norm.kind = ATTN_QK_NORM_L2, norm.temperature = bad, word = "temperature must be finite";
        break;
      case 8:
        norm.q_gain = (const float *)(const void *)((const char *)gains + 1), word = "gains";
        want = ATTN_E_ALIGN;
        break;
      default: norm.gain_less_one = 7, word = "gain_less_one", want = ATTN_E_RANGE;
    }
    refuse(&p, want, word);
  }
  /* what is not read may be anything; what is read shares no memory */
  memset(&norm, 0, sizeof norm), memset(&p, 0, sizeof p);
  p.norm = &norm, norm.k_gain = (const float *)(const void *)((const char *)gains + 1);
  attn_tensor x = attn_bhtd(gains, ATTN_F32, 1, 1, 2, 8);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_rope(x, x, &p, &ctx), ATTN_OK);
  norm.q_gain = gains + 4;
  assert_int_equal(attn_rope(x, x, &p, &ctx), ATTN_E_OVERLAP);
  /* attn_reshaped */
  const reshaped_call good = reshaped_plain(ATTN_RESHAPE_SOFTMAX, 2, 20, 30, 2699);
  attn_tensor table = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 49, 12);
  attn_tensor beta = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 30, 1);
  attn_tensor w = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 30, 12);
  test_term_user user = {1, 0, 1, 0};
  test_fill_value(table, 0), test_fill_value(beta, 1), test_fill_value(w, 0.25);
  for (int n = 0; n < 11; n++) {
    reshaped_call c = good;
    attn_schedule schedule;
    const char *word = "params.norm";
    memset(&norm, 0, sizeof norm), memset(&schedule, 0, sizeof schedule);
    c.p.norm = &norm;
    if (n == 0) norm.kind = ATTN_QK_NORM_RMS_ALL, word = "RMS_ALL";
    if (n == 1) c.p.attention.schedule = &schedule, word = "schedule";
    if (n == 2) norm.eps = -1, word = "params.norm.eps";
    if (n == 3) norm.k_gain = (const float *)c.o.data;
    if (n > 3) c.p.attention.causal = 1;
    if (n == 4) c.p.cope.table = table;
    if (n == 5) c.p.path.w = w, c.p.path.beta = beta;
    if (n == 6) c.p.attention.xl.table = table, c.p.attention.xl.first = -48;
    if (n == 7) c.p.attention.relative.keys = table;
    if (n == 8) c.p.attention.relative.queries = table;
    if (n == 9)
      c.p.attention.labels.label = test_label, c.p.attention.labels.user = &user,
      c.p.attention.labels.table = table;
    if (n == 10) norm.kind = ATTN_QK_NORM_KINDS, word = "params.norm.kind";
    test_fill_value(c.o, 7);
    const attn_status status = attn_reshaped(c.o, c.q, c.k, c.v, &c.p, &ctx);
    if (status == ATTN_OK || (n != 3 && !strstr(ctx.reason, word)))
      fail_msg("%s: %s", word, ctx.reason ? ctx.reason : "(null)");
    assert_int_equal(status, n == 3 ? ATTN_E_OVERLAP : n == 2 ? ATTN_E_VALUE : ATTN_E_RANGE);
    for (int e = 0; e < 2 * 20 * 7; e++) assert_true(((float *)c.o.data)[e] == 7);
    if (n != 3) { /* it is the norm that is refused */
      c.p.norm = NULL, c.p.attention.schedule = NULL;
      assert_int_equal(attn_reshaped(c.o, c.q, c.k, c.v, &c.p, &ctx), ATTN_OK);
    }
  }
}

/* The call is attention over normed rows. */
static void check_fused(reshaped_call *c, const attn_qk_norm *norm, const char *what) {
  reshaped_call by_hand = *c;
  by_hand.q = test_tensor(ATTN_F32, TEST_BHTD, c->q.batch, c->q.heads, c->q.len, c->q.dim);
  by_hand.k = test_tensor(ATTN_F32, TEST_BHTD, c->k.batch, c->k.heads, c->k.len, c->k.dim);
  qk_norm_to(by_hand.q, c->q, norm, 0), qk_norm_to(by_hand.k, c->k, norm, 1);
  if (norm->kind == ATTN_QK_NORM_L2 && c->p.attention.scale == 0) by_hand.p.attention.scale = 1;
  c->p.norm = norm;
  reshaped_run(c);
  reshaped_compare(&by_hand, what);
}

void M2_qk_norm_fused(void **state) {
  (void)state;
  for (int n = 0; n < test_count(60, 30); n++, test_mem_release()) {
    test_rng rng = test_seed(2620 + (uint64_t)n);
    static const int heads[6] = {1, 2, 4, 6, 8, 12}, keys[6] = {1, 1, 2, 6, 2, 3};
    const int64_t long_ = n % 6 == 0 ? 300 : n % 6 == 1 ? 140 : test_range(&rng, 1, 60);
    test_spec spec = test_plain(heads[n % 6], n % 5 == 4 ? 1 : long_, long_ + n % 3 * 5,
                                test_range(&rng, 3, 70), test_range(&rng, 1, 40));
    spec.batch = 1 + n % 2, spec.k_heads = keys[n % 6], spec.v_heads = keys[n % 6];
    spec.q_type = (attn_dtype)(n / 2 % 3), spec.k_type = (attn_dtype)(n / 3 % 3);
    spec.v_type = (attn_dtype)(n % 3), spec.o_type = ATTN_F32;
    spec.q_layout = (test_layout)(n % TEST_LAYOUTS), spec.k_layout = (test_layout)(n / 2 % 4);
    test_call call = test_build(&spec, &rng);
    reshaped_call c = reshaped_from(&call);
    attn_qk_norm norm =
        qk_norm_described(&rng, n % 4 == 1 ? 3 : n % 4, heads[n % 6], keys[n % 6], spec.dk);
    if (norm.kind == ATTN_QK_NORM_LAYER && spec.dk < 9) norm.eps = 0.5f;
    c.p.kind = (attn_reshape_kind)(n % 3 ? 0 : n / 3 % 5);
    c.p.attention.causal = c.p.kind == ATTN_RESHAPE_STICK || n % 2;
    int with = (int)(test_u64(&rng) % 32);
    if (n % 10 == 1 && c.p.kind != ATTN_RESHAPE_ENTMAX) with |= HAS_SELECTIVE;
    reshaped_add(&c, with, &rng);
    if (n % 7 == 2) c.p.attention.alibi = test_floats(spec.heads, 0.05, &rng);
    if (n % 7 == 3)
      test_left(&c.p.attention, 20), c.p.attention.keep = c.p.kind == ATTN_RESHAPE_STICK ? 0 : 3;
    if (n % 7 == 4)
      c.p.attention.mask =
          test_mask(ATTN_MASK_BOOL, ATTN_F32, spec.batch, spec.heads, spec.q_len, spec.k_len, &rng);
    if (n % 7 == 5)
      c.p.attention.bias =
          test_mask(ATTN_MASK_ADD, ATTN_F32, spec.batch, spec.heads, spec.q_len, spec.k_len, &rng);
    if (n % 7 == 6) c.p.attention.scale = 0.4f;
    if (c.p.selective.on) c.p.attention.keep = 0;
    reshaped_show(&c, n % 4 < 2 ? ATTN_MAP_WEIGHTS : ATTN_MAP_SCORES);
    char what[80];
    snprintf(what, sizeof what, "case %d, kind %d with %d, norm %d", n, (int)c.p.kind, with,
             (int)norm.kind);
    check_fused(&c, &norm, what);
  }
}

/* Values of V that are alike show the sum of the weights; any workers; later keys, and keys that are forbidden, reach
 * no row, NaN neither. */
void M2_qk_norm_promises(void **state) {
  (void)state;
  enum { T = 200, D = 40 };
  for (int n = 0; n < 8; n++, test_mem_release()) {
    test_rng rng = test_seed(2690 + (uint64_t)n);
    test_spec spec = test_plain(4, T, T, D, 8);
    spec.k_heads = spec.v_heads = 2;
    test_call call = test_build(&spec, &rng);
    reshaped_call c = reshaped_from(&call);
    attn_qk_norm norm = qk_norm_described(&rng, n % 4 == 1 ? 0 : n % 4, 4, 2, D);
    c.p.norm = &norm, c.p.attention.causal = 1, c.p.kind = n > 3 ? ATTN_RESHAPE_SIGMOID : 0;
    c.p.has_bias = n > 3, c.p.bias = n > 3 ? -4.0f : 0;
    if (n < 4) test_fill_value(c.v, 1);
    reshaped_run(&c);
    for (int64_t i = 0; n < 4 && i < T; i++)
      assert_true(fabs(oracle_get(&c.o, 0, 3, i, 7) - 1) < 1e-6);
    reshaped_call d = reshaped_again(&c), e = reshaped_again(&c);
    attn_ctx ctx = test_ctx();
    ctx.workers = 3, ctx.parallel_for = n % 2 ? test_parallel_threads : test_parallel_backward;
    ctx.workspace_size = attn_reshaped_workspace(d.o, d.q, d.k, d.v, &d.p, &ctx);
    ctx.workspace = test_mem(ctx.workspace_size);
    const int64_t mallocs = test_malloc_calls;
    assert_int_equal(attn_reshaped(d.o, d.q, d.k, d.v, &d.p, &ctx), ATTN_OK);
    assert_int_equal(test_malloc_calls, mallocs);
    test_assert_same(c.o, d.o, "workers");
    for (int64_t i = 150; i < T; i++) /* rows up to 149 know nothing of these */
      for (int64_t h = 0; h < 2; h++)
        test_fill_row(e.k, 0, h, i, n % 2 ? NAN : 1e30), test_fill_row(e.v, 0, h, i, INFINITY);
    reshaped_run(&e);
    test_assert_same(test_rows(c.o, 0, 150), test_rows(e.o, 0, 150), "later keys");
    int32_t len = 150;
    d = reshaped_again(&e);
    d.p.attention.kv_len = &len;
    reshaped_run(&d);
    test_assert_same(test_rows(c.o, 0, 150), test_rows(d.o, 0, 150), "keys past kv_len");
    for (int64_t i = 150; i < T; i++) assert_true(isfinite(oracle_get(&d.o, 0, 0, i, 0)));
  }
}
