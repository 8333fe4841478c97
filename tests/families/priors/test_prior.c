/* tests/families/priors/test_prior.c owns the priors over positions that are computed outside attn_sdpa: H1's
 * predicted windows and H8, hard-coded Gaussian attention. */

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "list.h"

/* ---- H1 -------------------------------------------------------------------------------------*/

/* One attn_gaussian_window call. */
typedef struct window {
  attn_tensor q, k;
  float *center, *precision;
  attn_gaussian_params p;
} window;

static window window_build(int64_t b, int64_t h, int64_t hk, int64_t tq, int64_t tk, int64_t dk,
                           int64_t a, test_rng *rng) {
  window w;
  memset(&w, 0, sizeof w);
  w.q = test_tensor(ATTN_F32, TEST_BTHD, b, h, tq, dk);
  w.k = test_tensor(ATTN_F32, TEST_BHTD, b, hk, tk, dk);
  test_fill(w.q, rng, test_normal);
  test_fill(w.k, rng, test_normal);
  w.center = test_mem((size_t)(b * h * tq) * sizeof(float) + 4);
  w.precision = test_mem((size_t)(b * h * tq) * sizeof(float) + 4);
  w.p.hidden = a;
  w.p.w_p = test_floats(h * dk * a, 1 / sqrt((double)dk), rng);
  w.p.w_d = test_floats(h * dk * a, 1 / sqrt((double)dk), rng);
  w.p.u_p = test_floats(h * a, 1 / sqrt((double)a), rng);
  w.p.u_d = test_floats(h * a, 1 / sqrt((double)a), rng);
  return w;
}

static void window_ok(window *w) {
  attn_ctx ctx = test_ctx();
  if (attn_gaussian_window(w->center, w->precision, w->q, w->k, &w->p, &ctx) != ATTN_OK) {
    fail_msg("attn_gaussian_window: %s", ctx.reason);
  }
  assert_int_equal(ctx.report.isa, test_isa);
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* u . tanh(x w), and in *noise the sum of the absolute terms that round. */
static double predict(const double *x, const float *w, const float *u, int64_t dk, int64_t a,
                      double *noise) {
  double z = 0;
  *noise = 0;
  for (int64_t c = 0; c < a; c++) {
    double s = 0, size = 1;
    for (int64_t k = 0; k < dk; k++) {
      s += x[k] * (double)w[k * a + c];
      size += fabs(x[k] * (double)w[k * a + c]);
    }
    z += (double)u[c] * tanh(s);
    *noise += fabs((double)u[c]) * size;
  }
  return z;
}

static void window_compare(const window *w) {
  int64_t dk = w->q.dim, a = w->p.hidden ? w->p.hidden : dk, h_count = w->q.heads;
  double *x = test_mem((size_t)dk * sizeof *x), *mean = test_mem((size_t)dk * sizeof *x);
  double floor_sigma = w->p.sigma_min > 0 ? (double)w->p.sigma_min : 1e-6;
  for (int64_t b = 0; b < w->q.batch; b++) {
    int64_t keys = w->p.kv_len ? w->p.kv_len[b] : w->k.len;
    for (int64_t h = 0; h < h_count; h++) {
      for (int64_t c = 0; c < dk; c++) {
        mean[c] = 0;
        for (int64_t j = 0; j < keys; j++) {
          mean[c] += oracle_get(&w->k, b, h * w->k.heads / h_count, j, c) / (double)keys;
        }
      }
      for (int64_t i = 0; i < w->q.len; i++) {
        double noise, window_noise = 0, width = w->p.width > 0 ? (double)w->p.width : 10;
        for (int64_t c = 0; c < dk; c++) x[c] = oracle_get(&w->q, b, h, i, c);
        double n = (double)keys;
        double center =
            n * sigmoid(predict(x, w->p.w_p + h * dk * a, w->p.u_p + h * a, dk, a, &noise));
        if (w->p.mode == ATTN_GAUSSIAN_QUERY) {
          width = n * sigmoid(predict(x, w->p.w_p + h * dk * a, w->p.u_d + h * a, dk, a,
                                      &window_noise));
        } else if (w->p.mode == ATTN_GAUSSIAN_LAYER) {
          width = n * sigmoid(predict(mean, w->p.w_d + h * dk * a, w->p.u_d + h * a, dk, a,
                                      &window_noise));
        }
        double sigma = fmax(width / 2, floor_sigma), want = 1 / (2 * sigma * sigma);
        int64_t at = (b * h_count + h) * w->q.len + i;
        double got = (double)w->center[at], e = center - (double)w->p.index_base;
        /* f32 roundings of the sums reach the sigmoid, whose slope is at most 1/4 */
        if (!(fabs(got - e) <= n * (noise * 4e-7 + 1e-6))) {
          fail_msg("center [%d,%d,%d]: %.9g, not %.9g", (int)b, (int)h, (int)i, got, e);
        }
        got = (double)w->precision[at];
        if (!(fabs(got / want - 1) <= window_noise * 4e-6 + 1e-6)) {
          fail_msg("precision [%d,%d,%d]: %.9g, not %.9g", (int)b, (int)h, (int)i, got, want);
        }
      }
    }
  }
}

void H1_window_random(void **state) {
  (void)state;
  test_rng rng = test_seed(900);
  for (int64_t n = test_count(45, 15); n-- > 0;) {
    int64_t hk = test_range(&rng, 1, 3), h = hk * test_range(&rng, 1, 2);
    int64_t tq = test_range(&rng, 1, test_fast ? 20 : 150), tk = test_range(&rng, 1, 200);
    int64_t dk = test_range(&rng, 1, 40), a = test_range(&rng, 1, 40);
    window w = window_build(2, h, hk, tq, tk, dk, a, &rng);
    if (n % 4 == 0) {
      w.q = test_tensor((attn_dtype)(n / 4 % 3), (test_layout)(n % TEST_LAYOUTS), 2, h, tq, dk);
      w.k = test_tensor((attn_dtype)(n / 8 % 3), (test_layout)(n % TEST_LAYOUTS), 2, hk, tk, dk);
      test_fill(w.q, &rng, test_normal);
      test_fill(w.k, &rng, test_normal);
    }
    w.p.mode = (attn_gaussian_mode)(n % 3);
    w.p.index_base = (int)(n & 1);
    if (n % 5 == 0) w.p.width = 3.5f;
    if (n % 4 == 1) w.p.sigma_min = n & 4 ? 4 : 7; /* 7: between width / 2 and width */
    if (n & 2) w.p.kv_len = test_lengths(2, tk, &rng);
    window_ok(&w);
    window_compare(&w);
  }
}

/* hidden 0 = dk. */
void H1_window_defaults(void **state) {
  (void)state;
  test_rng rng = test_seed(901);
  window w = window_build(1, 2, 2, 70, 90, 12, 12, &rng);
  w.p.hidden = 0;
  window_ok(&w);
  window_compare(&w);
  w.p.mode = ATTN_GAUSSIAN_FIXED;
  w.p.u_d = w.p.w_d = NULL;
  window_ok(&w);
  for (int i = 0; i < 140; i++) assert_true(w.precision[i] == 0.02f); /* sigma = 10 / 2 */
}

/* u_p = 0 centers every row at I / 2. */
void H1_window_zero_weights(void **state) {
  (void)state;
  test_rng rng = test_seed(902);
  window w = window_build(2, 2, 1, 20, 50, 8, 8, &rng);
  static const float zeros[16] = {0};
  int32_t lengths[2] = {50, 21};
  w.p.u_p = zeros;
  w.p.kv_len = lengths;
  for (int base = 0; base < 2; base++) {
    w.p.index_base = base;
    window_ok(&w);
    for (int i = 0; i < 80; i++) {
      assert_true(w.center[i] == (float)(0.5 * lengths[i / 40] - base));
    }
  }
}

/* Saturated predictors and no keys: finite numbers, the floor of sigma, no NaN. */
void H1_window_saturated(void **state) {
  (void)state;
  test_rng rng = test_seed(903);
  for (int mode = 0; mode < 2; mode++) {
    for (int side = 0; side < 2; side++) {
      window w = window_build(1, 1, 1, 9, 40, 1, 1, &rng);
      float one = 100, u = side ? 1000 : -1000;
      int32_t none = 0;
      test_fill_value(w.q, 1);
      test_fill_value(w.k, 1);
      w.p.w_p = w.p.w_d = &one;
      w.p.u_p = w.p.u_d = &u;
      w.p.mode = (attn_gaussian_mode)mode;
      window_ok(&w);
      for (int i = 0; i < 9; i++) {
        assert_true(w.center[i] == (side ? 40.0f : 0.0f));
        double want = side ? 1 / (2 * 20.0 * 20.0) : 0.5e12;
        assert_true(fabs((double)w.precision[i] / want - 1) < 1e-6);
      }
      w.p.sigma_min = 1e-30f;
      w.p.kv_len = &none;
      window_ok(&w);
      for (int i = 0; i < 9; i++) assert_true(w.center[i] == 0 && w.precision[i] == FLT_MAX);
    }
  }
}

/* A NaN reaches the windows that read it and no other; padding is not read. */
void H1_window_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(904);
  for (int mode = 0; mode < 3; mode++) {
    window w = window_build(2, 4, 2, 30, 20, 6, 5, &rng);
    int32_t lengths[2] = {20, 11};
    w.p.kv_len = lengths;
    w.p.mode = (attn_gaussian_mode)mode;
    oracle_set(&w.q, 1, 2, 17, 3, (double)NAN);
    for (int64_t j = 11; j < 20; j++) test_fill_row(w.k, 1, 0, j, (double)NAN);
    oracle_set(&w.k, 0, 1, 4, 2, (double)NAN);
    window_ok(&w);
    for (int64_t b = 0; b < 2; b++) {
      for (int64_t h = 0; h < 4; h++) {
        for (int64_t i = 0; i < 30; i++) {
          int64_t at = (b * 4 + h) * 30 + i;
          int row = b == 1 && h == 2 && i == 17, key = b == 0 && h >= 2;
          assert_int_equal(isnan(w.center[at]) != 0, row);
          assert_int_equal(isnan(w.precision[at]) != 0, mode == ATTN_GAUSSIAN_QUERY   ? row
                                                        : mode == ATTN_GAUSSIAN_LAYER ? key
                                                                                      : 0);
        }
      }
    }
  }
}

/* Truncating padding with kv_len equals the shorter tensor; workers and chunks change no bit. */
void H1_window_same_bits(void **state) {
  (void)state;
  test_rng rng = test_seed(905);
  for (int mode = 0; mode < 3; mode++) {
    window w = window_build(1, 2, 1, 130, 300, 20, 9, &rng), other = w;
    int32_t length = 201;
    other.center = test_mem(260 * sizeof(float));
    other.precision = test_mem(260 * sizeof(float));
    w.p.mode = other.p.mode = (attn_gaussian_mode)mode;
    w.p.kv_len = &length;
    window_ok(&w);
    other.k = test_rows(w.k, 0, 201);
    attn_ctx ctx = test_ctx();
    ctx.parallel_for = test_parallel_threads;
    ctx.workers = 3;
    assert_int_equal(
        attn_gaussian_window(other.center, other.precision, other.q, other.k, &other.p, &ctx),
        ATTN_OK);
    assert_memory_equal(other.center, w.center, 260 * sizeof(float));
    assert_memory_equal(other.precision, w.precision, 260 * sizeof(float));
    for (int64_t i = 0; i < 130; i += 37) { /* one query by itself */
      other.q = test_rows(w.q, i, 1);
      window_ok(&other);
      for (int h = 0; h < 2; h++) {
        assert_memory_equal(other.center + h, w.center + h * 130 + i, sizeof(float));
        assert_memory_equal(other.precision + h, w.precision + h * 130 + i, sizeof(float));
      }
    }
  }
}

/* Nothing outside the operands is touched. */
void H1_window_guard_pages(void **state) {
  (void)state;
  for (int place = TEST_BEFORE_GUARD; place <= TEST_AFTER_GUARD; place++) {
    for (int64_t n = 1; n < 40; n++) {
      test_rng rng = test_seed(908);
      test_where = (test_place)place;
      window w = window_build(1, 1, 1, n, n % 7, 41 - n, n % 19 + 1, &rng);
      w.q = test_tensor((attn_dtype)(n % 3), TEST_BHTD, 1, 1, n, 41 - n);
      test_fill(w.q, &rng, test_normal);
      w.center = test_mem((size_t)n * sizeof(float));
      w.precision = test_mem((size_t)n * sizeof(float));
      w.p.mode = (attn_gaussian_mode)(n % 3);
      window_ok(&w);
      test_mem_release();
    }
  }
}

void H1_window_workspace_and_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(906);
  for (int mode = 0; mode < 3; mode++) {
    window w = window_build(2, 2, 1, 100, 30, 10, 7, &rng);
    attn_ctx ctx = test_ctx();
    ctx.workers = 3;
    ctx.parallel_for = test_parallel_forward;
    w.p.mode = (attn_gaussian_mode)mode;
    size_t size = attn_gaussian_window_workspace(w.center, w.precision, w.q, w.k, &w.p, &ctx);
    assert_true(size > 0);
    ctx.workspace = (char *)test_mem(size + 3) + 3;
    ctx.workspace_size = size;
    int64_t calls = test_malloc_calls;
    assert_int_equal(attn_gaussian_window(w.center, w.precision, w.q, w.k, &w.p, &ctx), ATTN_OK);
    assert_int_equal(test_malloc_calls, calls);
    window_compare(&w);
    ctx.workspace_size = size - 1;
    assert_int_equal(attn_gaussian_window(w.center, w.precision, w.q, w.k, &w.p, &ctx),
                     ATTN_E_WORKSPACE);
    w.q.len = 0;
    window_ok(&w);
    assert_int_equal(attn_gaussian_window_workspace(w.center, w.precision, w.q, w.k, &w.p, &ctx),
                     0);
  }
}

void H1_window_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(907);
  for (int n = 0; n < 20; n++) {
    window w = window_build(2, 4, 2, 5, 9, 6, 4, &rng);
    int32_t lengths[2] = {9, 3};
    attn_ctx ctx = test_ctx();
    attn_status want = ATTN_E_NULL;
    const char *word = "";
    w.p.kv_len = lengths;
    unsigned char before[160];
    memcpy(before, w.center, 160);
    float *center = w.center, *precision = w.precision;
    switch (n) {
      case 0: w.p.w_p = NULL, word = "w_p"; break;
      case 1: w.p.u_p = NULL, word = "u_p"; break;
      case 2: w.p.u_d = NULL, word = "u_d"; break;
      case 3: w.p.mode = ATTN_GAUSSIAN_LAYER, w.p.w_d = NULL, word = "w_d"; break;
      case 4: w.p.mode = (attn_gaussian_mode)3, want = ATTN_E_RANGE, word = "mode"; break;
      case 5: w.p.width = -1, want = ATTN_E_VALUE, word = "width"; break;
      case 6: w.p.width = ATTN_ZERO, want = ATTN_E_VALUE, word = "width"; break;
      case 7: w.p.sigma_min = -1, want = ATTN_E_VALUE, word = "sigma_min"; break;
      case 8: w.p.sigma_min = NAN, want = ATTN_E_VALUE, word = "sigma_min"; break;
      case 9: w.p.sigma_min = ATTN_ZERO, want = ATTN_E_VALUE, word = "sigma_min"; break;
      case 10: w.p.hidden = -1, want = ATTN_E_RANGE, word = "hidden"; break;
      case 11: w.p.index_base = 2, want = ATTN_E_RANGE, word = "index_base"; break;
      case 12: lengths[1] = 10, want = ATTN_E_RANGE, word = "kv_len"; break;
      case 13: w.k.heads = 3, want = ATTN_E_HEADS, word = "k.heads"; break;
      case 14: w.k.dim = 5, want = ATTN_E_SHAPE, word = "k"; break;
      case 15: center = NULL, word = "center"; break;
      case 16: precision = NULL, word = "precision"; break;
      case 17: precision = center + 3, want = ATTN_E_OVERLAP, word = "center"; break;
      case 18: w.p.u_d = precision, want = ATTN_E_OVERLAP, word = "precision"; break;
      default: w.p.hidden = INT64_MAX / 8, want = ATTN_E_OVERFLOW; word = "";
    }
    attn_status got = attn_gaussian_window(center, precision, w.q, w.k, &w.p, &ctx);
    if (got != want || !ctx.reason || !strstr(ctx.reason, word)) {
      fail_msg("rule %d: %s (%s)", n, attn_status_string(got), ctx.reason ? ctx.reason : "");
    }
    assert_memory_equal(before, w.center, 160);
    assert_memory_equal(before, w.precision, 160);
  }
}

/* ---- H8 -------------------------------------------------------------------------------------*/

static void hard_ok(attn_tensor o, attn_tensor v, const attn_hard_gaussian_params *p) {
  attn_ctx ctx = test_ctx();
  if (attn_hard_gaussian(o, v, p, &ctx) != ATTN_OK) fail_msg("attn_hard_gaussian: %s", ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
}

static attn_hard_gaussian_params gauss(void) {
  attn_hard_gaussian_params p;
  memset(&p, 0, sizeof p);
  return p;
}

/* The weights of row (b, h, i) over all keys; returns how many keys are allowed. */
static int64_t hard_weights(double *w, const attn_tensor *o, const attn_tensor *v,
                            const attn_hard_gaussian_params *p, int64_t b, int64_t h, int64_t i) {
  int64_t q_off = p->has_q_off ? p->q_off : v->len - o->len, position = i + q_off, allowed = 0;
  double r = p->ratio == 0 && !signbit(p->ratio) ? 1 : (double)p->ratio;
  double sigma = p->sigma ? (double)p->sigma[h] : 1;
  double c = r * (double)position + (p->offset ? (double)p->offset[h] : 0);
  double top = -(double)INFINITY, sum = 0;
  for (int64_t j = 0; j < v->len; j++) {
    int ok = j < (p->kv_len ? p->kv_len[b] : v->len) && (!p->causal || j <= position) &&
             i < (p->q_len ? p->q_len[b] : o->len) &&
             (!p->mask.kind || oracle_mask(&p->mask, b, h, i, j) == 0);
    double d = (double)j - c;
    /* renormalize: less the exponent of key 0, whose square would swallow the difference */
    double square = p->renormalize ? (double)j * ((double)j - 2 * c) : d * d;
    w[j] = ok ? -square / (2 * sigma * sigma) : -(double)INFINITY;
    allowed += ok;
    top = fmax(top, w[j]);
  }
  for (int64_t j = 0; j < v->len; j++) {
    if (p->renormalize) {
      w[j] = allowed ? exp(w[j] - top) : 0;
      sum += w[j];
    } else {
      w[j] = exp(w[j]) / (sigma * sqrt(2 * acos(-1.0)));
      if (w[j] < (double)p->threshold) w[j] = 0;
    }
  }
  for (int64_t j = 0; p->renormalize && allowed && j < v->len; j++) w[j] /= sum;
  return allowed;
}

static void hard_compare(attn_tensor o, attn_tensor v, const attn_hard_gaussian_params *p) {
  double *w = test_mem((size_t)(v.len + 1) * sizeof *w);
  for (int64_t b = 0; b < o.batch; b++) {
    for (int64_t h = 0; h < o.heads; h++) {
      for (int64_t i = 0; i < o.len; i++) {
        int64_t allowed = hard_weights(w, &o, &v, p, b, h, i);
        for (int64_t c = 0; c < o.dim; c++) {
          double want = 0, size = 0, got = oracle_get(&o, b, h, i, c);
          for (int64_t j = 0; j < v.len; j++) {
            double term = w[j] * oracle_get(&v, b, h * v.heads / o.heads, j, c);
            want += term;
            size += fabs(term);
          }
          double unit = o.dtype == ATTN_F16    ? fabs(want) * 4.9e-4 + 3e-8
                        : o.dtype == ATTN_BF16 ? fabs(want) * 3.92e-3
                                               : 0;
          if (!allowed && got != 0) fail_msg("an empty row has %g", got);
          if (fabs(got - want) <= 3e-6 * size + 1e-30 + unit + (p->sigma ? 1e-12 : 1e-13)) continue;
          fail_msg("[%d,%d,%d,%d]: %.9g, not %.9g (renormalize %d, ratio %g)", (int)b, (int)h,
                   (int)i, (int)c, got, want, p->renormalize, (double)p->ratio);
        }
      }
    }
  }
}

void H8_random_shapes(void **state) {
  (void)state;
  static const float ratios[] = {0, 1, 0.5f, 1.7f, 7.25f, ATTN_ZERO, -1, 40};
  test_rng rng = test_seed(910);
  for (int64_t n = test_count(160, 40); n-- > 0;) {
    int64_t hv = test_range(&rng, 1, 2), h = hv * test_range(&rng, 1, 2);
    int64_t tq = test_range(&rng, 1, test_fast ? 40 : 100), tk = test_range(&rng, 1, 200);
    int64_t dv = test_range(&rng, 1, 20);
    attn_dtype type = n % 4 ? ATTN_F32 : (attn_dtype)(n / 4 % 3);
    attn_tensor v = test_tensor(type, (test_layout)(n % TEST_LAYOUTS), 2, hv, tk, dv);
    attn_tensor o = test_tensor((attn_dtype)(n / 8 % 3), (test_layout)(n % 4), 2, h, tq, dv);
    attn_hard_gaussian_params p = gauss();
    float *sigma = test_floats(h, 1, &rng), *offset = test_floats(h, 3, &rng);
    test_fill(v, &rng, test_normal);
    for (int64_t k = 0; k < h; k++) {
      sigma[k] = 0.05f + fabsf(sigma[k]) * (n % 5 ? 1.0f : 12.0f);
      if (n % 3 == 0) offset[k] = roundf(offset[k]);
      if (n % 11 == 0) offset[k] *= 100;
    }
    if (n & 1) p.sigma = sigma;
    if (n & 2) p.offset = offset;
    p.ratio = n & 4 ? ratios[n / 8 % 8] : 0;
    p.renormalize = (int)(n / 2 % 2);
    p.causal = (int)(n / 4 % 2);
    p.threshold = n % 3 ? 0 : 0.03125f + (float)(n % 7) / 100;
    p.has_q_off = n % 5 == 0;
    p.q_off = p.has_q_off ? test_range(&rng, -30, 30) : 0;
    if (n % 3 == 1) p.kv_len = test_lengths(2, tk, &rng);
    if (n % 4 == 1) p.q_len = test_lengths(2, tq, &rng);
    if (n % 4 >= 2) {
      p.mask =
          test_mask(n % 4 == 2 ? ATTN_MASK_BOOL : ATTN_MASK_BITS, ATTN_F32, 2, h, tq, tk, &rng);
    }
    hard_ok(o, v, &p);
    hard_compare(o, v, &p);
  }
}

/* renormalize with centers far outside, tiny and huge sigmas: the nearest allowed key leads. */
void H8_renorm_far_centers(void **state) {
  (void)state;
  static const float offsets[] = {-1e6f, 1e6f, 3e30f, -250.5f, 250.5f, 0.5f};
  static const float sigmas[] = {1e-30f, 1e-3f, 0.3f, 1, 40, 1e30f};
  enum { T = 70, D = 5, H = 36 };
  test_rng rng = test_seed(911);
  attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D), o;
  float offset[H], sigma[H];
  o = test_tensor(ATTN_F32, TEST_BHTD, 1, H, T, D);
  test_fill(v, &rng, test_normal);
  for (int h = 0; h < H; h++) {
    offset[h] = offsets[h / 6];
    sigma[h] = sigmas[h % 6];
  }
  attn_hard_gaussian_params p = gauss();
  p.offset = offset;
  p.sigma = sigma;
  p.renormalize = 1;
  hard_ok(o, v, &p);
  hard_compare(o, v, &p);
  for (int64_t i = 0; i < T; i++) { /* 1e6 away with sigma 1: the first or last key alone */
    for (int64_t c = 0; c < D; c++) {
      assert_true(oracle_get(&o, 0, 3, i, c) == oracle_get(&v, 0, 0, 0, c));
      assert_true(oracle_get(&o, 0, 9, i, c) == oracle_get(&v, 0, 0, T - 1, c));
    }
  }
}

/* renormalize where the mask leaves keys far from the center only. */
void H8_renorm_distant_mask(void **state) {
  (void)state;
  enum { T = 150, D = 3 };
  test_rng rng = test_seed(912);
  attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D), o;
  uint8_t *mask = test_mem(T * T);
  o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, D);
  test_fill(v, &rng, test_normal);
  for (int i = 0; i < T * T; i++) mask[i] = (uint8_t)(i % T % 60 == 7 || i % T % 60 == 8);
  memset(mask + 20 * T, 0, T); /* an empty row */
  attn_hard_gaussian_params p = gauss();
  p.mask = attn_mask_bool(mask, 1, 1, T, T);
  p.renormalize = 1;
  hard_ok(o, v, &p);
  hard_compare(o, v, &p);
}

/* renormalize equals attn_sdpa with q = 0 and the parabola as additive mask. */
void H8_renorm_equals_softmax(void **state) {
  (void)state;
  test_spec spec = test_plain(1, 50, 66, 4, 9);
  test_rng rng = test_seed(913);
  test_call call = test_build(&spec, &rng);
  attn_tensor bias = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 50, 66);
  attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 50, 9);
  float sigma = 2.5f, offset = -1;
  attn_hard_gaussian_params p = gauss();
  test_fill_value(call.q, 0);
  for (int64_t i = 0; i < 50; i++) {
    for (int64_t j = 0; j < 66; j++) {
      double d = (double)(j - i - 16) + 1;
      oracle_set(&bias, 0, 0, i, j, -d * d / (2 * 2.5 * 2.5));
    }
  }
  call.params.bias = attn_mask_add(bias.data, ATTN_F32, 1, 1, 50, 66);
  p.sigma = &sigma;
  p.offset = &offset;
  p.renormalize = 1;
  for (p.causal = 0; p.causal < 2; p.causal++) {
    call.params.causal = p.causal;
    test_run(&call);
    hard_ok(o, call.v, &p);
    test_assert_near(o, call.o, 2e-6, "softmax");
  }
}

/* Away from the ends rows are a fixed convolution, bit for bit; constants pass through. */
void H8_convolution(void **state) {
  (void)state;
  enum { T = 200, D = 6, SHIFT = 37 };
  test_rng rng = test_seed(914);
  attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D), o[2];
  attn_hard_gaussian_params p = gauss();
  float offset = 0.3f, sigma = 1.5f;
  p.offset = &offset;
  p.sigma = &sigma;
  test_fill(v, &rng, test_normal);
  for (p.renormalize = 0; p.renormalize < 2; p.renormalize++) {
    for (int n = 0; n < 2; n++) {
      o[n] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T - SHIFT, D);
      p.has_q_off = 1;
      hard_ok(o[n], test_rows(v, n * SHIFT, T - SHIFT), &p);
    }
    test_assert_same(test_rows(o[0], 20 + SHIFT, T - 2 * SHIFT - 40),
                     test_rows(o[1], 20, T - 2 * SHIFT - 40), "shifted");
  }
  test_fill_value(v, 3);
  for (p.renormalize = 0; p.renormalize < 2; p.renormalize++) {
    attn_tensor all = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
    hard_ok(all, v, &p);
    for (int64_t i = p.renormalize ? 0 : 20; i < (p.renormalize ? T : T - 20); i++) {
      assert_true(fabs(oracle_get(&all, 0, 0, i, 0) / 3 - 1) < 1e-6);
    }
  }
}

/* sigma -> 0 with a whole offset picks v at p + offset. */
void H8_one_hot(void **state) {
  (void)state;
  enum { T = 90, D = 4 };
  test_rng rng = test_seed(915);
  attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D), o;
  float offset[3] = {-1, 0, 1}, sigma[3] = {1e-4f, 1e-4f, 1e-4f};
  attn_hard_gaussian_params p = gauss();
  o = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, T, D);
  test_fill(v, &rng, test_normal);
  p.offset = offset;
  p.sigma = sigma;
  p.renormalize = 1;
  hard_ok(o, v, &p);
  for (int64_t h = 0; h < 3; h++) {
    for (int64_t i = 1; i + 1 < T; i++) {
      for (int64_t c = 0; c < D; c++) {
        assert_true(oracle_get(&o, 0, h, i, c) == oracle_get(&v, 0, 0, i + h - 1, c));
      }
    }
  }
}

/* NaN and infinity reach exactly the rows that give their key weight, and the rest keeps its
 * bits. */
void H8_forbidden_garbage(void **state) {
  (void)state;
  enum { T = 100, D = 7 };
  test_rng rng = test_seed(916);
  for (int n = 0; n < 24; n++) {
    attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D), o[2];
    attn_tensor bad = test_tensor(n & 8 ? ATTN_BF16 : ATTN_F32, TEST_BHTD, 1, 1, T, D);
    attn_hard_gaussian_params p = gauss();
    test_fill(v, &rng, test_exact);
    if (n & 8) test_fill(v, &rng, test_normal), test_copy(bad, v), test_copy(v, bad);
    test_copy(bad, v);
    for (int64_t j = 9; j < T; j += 23) {
      oracle_set(&bad, 0, 0, j, j % D, j % 2 ? (double)NAN : (double)INFINITY);
    }
    int32_t length = 70;
    uint8_t *mask = test_mem(T * T);
    for (int i = 0; i < T * T; i++) mask[i] = (uint8_t)(test_u64(&rng) % 4 != 0);
    p.renormalize = n & 1;
    p.causal = n >> 1 & 1;
    p.ratio = n & 4 ? 0.75f : 0;
    p.threshold = n % 3 ? 0 : 0.05f;
    if (n % 3 == 1) p.kv_len = &length;
    if (n % 3 == 2) p.mask = attn_mask_bool(mask, 1, 1, T, T);
    for (int k = 0; k < 2; k++) {
      o[k] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
      hard_ok(o[k], k ? bad : v, &p);
    }
    double w[T];
    for (int64_t i = 0; i < T; i++) {
      hard_weights(w, &o[0], &v, &p, 0, 0, i);
      for (int64_t c = 0; c < D; c++) {
        int reads = 0, sure = 1;
        for (int64_t j = 9; j < T; j += 23) {
          double relative = w[j] * sqrt(2 * acos(-1.0)); /* the reach is exp(-32) = 1.3e-14 */
          if (j % D == c && w[j] > 0 && relative > 1e-14) reads = 1;
          if (relative > 1e-15 && relative < 1e-13) sure = 0;
        }
        double a = oracle_get(&o[0], 0, 0, i, c), b = oracle_get(&o[1], 0, 0, i, c);
        if (sure && reads != !isfinite(b)) fail_msg("case %d row %d col %d", n, (int)i, (int)c);
        if (!reads && sure && a != b) fail_msg("bits %d row %d: %.9g %.9g", n, (int)i, a, b);
      }
    }
  }
}

/* The work follows the band, not Tq * Tk. */
void H8_work_follows_the_band(void **state) {
  (void)state;
  attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1000, 4), o;
  attn_hard_gaussian_params p = gauss();
  o = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1000, 4);
  test_fill_value(v, 1);
  for (int n = 0; n < 3; n++) {
    attn_ctx ctx = test_ctx();
    p.renormalize = n == 1;
    p.ratio = n == 2 ? 30 : 0; /* bands far apart: the keys between them are left out */
    assert_int_equal(attn_hard_gaussian(o, v, &p, &ctx), ATTN_OK);
    assert_in_range(ctx.report.pairs, n == 2 ? 400 : 16000, 1000 * 40);
  }
  float offset = 1e9f;
  attn_ctx ctx = test_ctx();
  p.offset = &offset;
  p.ratio = 0;
  p.renormalize = 0;
  assert_int_equal(attn_hard_gaussian(o, v, &p, &ctx), ATTN_OK);
  assert_int_equal(ctx.report.pairs, 0);
  for (int64_t i = 0; i < 1000; i++) assert_true(oracle_get(&o, 0, 0, i, 3) == 0);
}

/* Workers, batch and division of the queries change no bit. */
void H8_same_bits(void **state) {
  (void)state;
  enum { TQ = 130, TK = 150, D = 5, H = 4 };
  test_rng rng = test_seed(917);
  for (int n = 0; n < 8; n++) {
    attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, TK, D), all, o;
    float offset[H] = {0.3f, -200, 5, 0}, sigma[H] = {1, 2, 20, 0.2f};
    uint8_t *mask = test_mem(TQ * TK);
    attn_hard_gaussian_params p = gauss();
    all = test_tensor(ATTN_F32, TEST_BHTD, 1, H, TQ, D);
    o = test_tensor(ATTN_F32, TEST_BHTD, 1, H, TQ, D);
    test_fill(v, &rng, test_normal);
    for (int i = 0; i < TQ * TK; i++) mask[i] = (uint8_t)(test_u64(&rng) % 8 == 0);
    p.offset = offset;
    p.sigma = sigma;
    p.renormalize = n & 1;
    p.causal = n >> 1 & 1;
    p.has_q_off = 1;
    p.q_off = 20;
    if (n & 4) p.mask = attn_mask_bool(mask, 1, 1, TQ, TK);
    hard_ok(all, v, &p);
    attn_ctx ctx = test_ctx();
    ctx.parallel_for = test_parallel_threads;
    ctx.workers = 4;
    assert_int_equal(attn_hard_gaussian(o, v, &p, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.workers, 4);
    test_assert_same(o, all, "workers");
    for (int64_t i = 0; i < TQ; i += 17) {
      attn_hard_gaussian_params part = p;
      int64_t rows = TQ - i < 19 ? TQ - i : 19;
      part.q_off = 20 + i;
      if (n & 4) part.mask = attn_mask_bool(mask + i * TK, 1, 1, rows, TK);
      o = test_tensor(ATTN_F32, TEST_BHTD, 1, H, rows, D);
      hard_ok(o, v, &part);
      for (int64_t h = 0; h < H; h++) {
        test_assert_same(test_one(o, 0, 1, h, 1), test_rows(test_one(all, 0, 1, h, 1), i, rows),
                         "division");
      }
    }
  }
}

/* Nothing outside the operands is touched, keys from kv_len on included. */
void H8_guard_pages(void **state) {
  (void)state;
  for (int place = TEST_BEFORE_GUARD; place <= TEST_AFTER_GUARD; place++) {
    for (int64_t n = 1; n < 60; n++) {
      test_rng rng = test_seed(919);
      test_where = (test_place)place;
      int64_t tk = 61 - n, dv = n % 35 + 1;
      attn_tensor v = test_tensor((attn_dtype)(n % 3), TEST_BHTD, 1, 1, tk, dv), o;
      o = test_tensor((attn_dtype)(n / 3 % 3), TEST_BHTD, 1, 2, n, dv);
      attn_hard_gaussian_params p = gauss();
      test_fill(v, &rng, test_normal);
      p.renormalize = n & 1;
      p.ratio = n & 2 ? 1.5f : 0;
      p.sigma = test_floats(2, 0, &rng);
      p.offset = test_floats(2, 4, &rng);
      ((float *)(uintptr_t)p.sigma)[0] = ((float *)(uintptr_t)p.sigma)[1] = 1.25f;
      if (n % 3) p.mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, 1, 2, n, tk, &rng);
      if (n % 5 == 0) { /* the rows from kv_len on do not even exist */
        int32_t *length = test_mem(sizeof *length);
        *length = (int32_t)tk;
        v.len += 20;
        if (p.mask.kind) p.mask.kind = ATTN_MASK_NONE;
        p.kv_len = length;
      }
      hard_ok(o, v, &p);
      if (!p.kv_len) hard_compare(o, v, &p);
      test_mem_release();
    }
  }
}

void H8_empty_and_workspace(void **state) {
  (void)state;
  test_rng rng = test_seed(918);
  attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 90, 6), o;
  o = test_tensor(ATTN_BF16, TEST_PADDED, 2, 3, 80, 6);
  test_fill(v, &rng, test_normal);
  attn_ctx ctx = test_ctx();
  ctx.workers = 2;
  ctx.parallel_for = test_parallel_backward;
  size_t size = attn_hard_gaussian_workspace(o, v, NULL, &ctx);
  assert_true(size > 0);
  ctx.workspace = (char *)test_mem(size + 1) + 1;
  ctx.workspace_size = size;
  int64_t calls = test_malloc_calls;
  attn_hard_gaussian_params p = gauss();
  assert_int_equal(attn_hard_gaussian(o, v, NULL, &ctx), ATTN_OK);
  assert_int_equal(test_malloc_calls, calls);
  hard_compare(o, v, &p);
  ctx.workspace_size = size - 1;
  assert_int_equal(attn_hard_gaussian(o, v, NULL, &ctx), ATTN_E_WORKSPACE);
  for (p.renormalize = 0; p.renormalize < 2; p.renormalize++) {
    int32_t none[2] = {0, 0};
    attn_tensor w = v;
    w.len = 0; /* no keys: rows of zeros */
    test_fill_value(o, 1);
    hard_ok(o, w, &p);
    hard_compare(o, w, &p);
    p.q_len = none;
    test_fill_value(o, 1);
    hard_ok(o, v, &p);
    hard_compare(o, v, &p);
    p.q_len = NULL;
    w.batch = 0;
    attn_tensor empty = o;
    empty.batch = 0;
    hard_ok(empty, w, &p);
    empty = o;
    empty.len = 0;
    hard_ok(empty, v, &p);
    assert_int_equal(attn_hard_gaussian_workspace(empty, v, &p, NULL), 0);
  }
}

void H8_rejects(void **state) {
  (void)state;
  attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, 9, 8), o;
  test_fill_value(v, 0);
  o = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, 6, 8);
  test_block block = test_last_block;
  uint8_t mask[54] = {0};
  for (int n = 0; n < 25; n++) {
    attn_tensor to = o, from = v;
    float sigma[4] = {1, 1, 1, 1}, offset[4] = {0};
    int32_t kv_len[2] = {9, 0}, q_len[2] = {6, 0};
    attn_hard_gaussian_params p = gauss();
    attn_ctx ctx = test_ctx();
    attn_status want = ATTN_E_VALUE;
    const char *word = "";
    p.sigma = sigma, p.offset = offset, p.kv_len = kv_len, p.q_len = q_len;
    p.mask = attn_mask_bool(mask, 1, 1, 6, 9);
    switch (n) {
      case 24: to.heads = 0, want = ATTN_E_SHAPE, word = "o.heads"; break;
      case 0: sigma[3] = 0, word = "sigma"; break;
      case 1: sigma[0] = -1, word = "sigma"; break;
      case 2: sigma[1] = NAN, word = "sigma"; break;
      case 3: sigma[1] = INFINITY, word = "sigma"; break;
      case 4: offset[2] = NAN, word = "offset"; break;
      case 5: p.threshold = -1, word = "threshold"; break;
      case 6: p.threshold = NAN, word = "threshold"; break;
      case 7: p.ratio = INFINITY, word = "ratio"; break;
      case 8: p.ratio = NAN, word = "ratio"; break;
      case 9: p.q_off = 3, want = ATTN_E_RANGE, word = "q_off"; break;
      case 10:
        p.has_q_off = 1, p.q_off = (int64_t)1 << 40, want = ATTN_E_RANGE, word = "q_off";
        break;
      case 11: kv_len[0] = 10, want = ATTN_E_RANGE, word = "kv_len"; break;
      case 12: q_len[1] = -1, want = ATTN_E_RANGE, word = "q_len"; break;
      case 13: from.heads = 3, want = ATTN_E_HEADS, word = "v.heads"; break;
      case 14: from.dim = 7, want = ATTN_E_SHAPE, word = "v"; break;
      case 15: from.batch = 1, want = ATTN_E_SHAPE, word = "v"; break;
      case 16: p.mask.kind = ATTN_MASK_ADD, want = ATTN_E_MASK, word = "mask"; break;
      case 17: p.mask.k_len = 8, want = ATTN_E_MASK, word = "mask"; break;
      case 18: from.data = to.data, want = ATTN_E_OVERLAP, word = "o"; break;
      case 19: p.sigma = to.data, want = ATTN_E_OVERLAP, word = "o"; break;
      case 20: to.stride_len = 7, want = ATTN_E_STRIDE, word = "o"; break;
      case 21: to.data = NULL, want = ATTN_E_NULL, word = "o"; break;
      case 22: from.data = NULL, want = ATTN_E_NULL, word = "v"; break;
      default: ctx.isa = (attn_isa)77, want = ATTN_E_ISA;
    }
    attn_status got = attn_hard_gaussian(to, from, &p, &ctx);
    if (got != want || !ctx.reason || !strstr(ctx.reason, word)) {
      fail_msg("rule %d: %s (%s)", n, attn_status_string(got), ctx.reason ? ctx.reason : "");
    }
    for (size_t k = 0; k < block.size; k++) assert_int_equal(block.data[k], 0xA5);
  }
}
