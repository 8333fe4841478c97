/* tests/families/content/test_yoso.c owns attention by hashes that meet: the expectation and its samples against their
 * definitions in float64, and the one against the other. */

#include <stdlib.h>

#include "compound.h"

#define PI 3.14159265358979323846

typedef struct scene {
  attn_tensor o, q, k, v;
  attn_yoso_params p;
  int sampled;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return s->sampled ? attn_yoso_sample(s->o, s->q, s->k, s->v, &s->p, ctx)
                    : attn_yoso(s->o, s->q, s->k, s->v, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return s->sampled ? attn_yoso_sample_workspace(s->o, s->q, s->k, s->v, &s->p, ctx)
                    : attn_yoso_workspace(s->o, s->q, s->k, s->v, &s->p, ctx);
}

typedef struct shape {
  int64_t batch, heads, k_heads, v_heads, q_len, k_len, dk, dv;
  attn_dtype type;
  test_layout layout;
} shape;

static shape plain(int64_t heads, int64_t q_len, int64_t k_len, int64_t dk, int64_t dv) {
  shape x = {1, heads, heads, heads, q_len, k_len, dk, dv, ATTN_F32, TEST_BHTD};
  return x;
}

static shape any_shape(test_rng *rng) {
  static const attn_dtype type[] = {ATTN_F32, ATTN_F32, ATTN_F16, ATTN_BF16};
  shape x;
  x.batch = test_range(rng, 1, 2), x.k_heads = test_range(rng, 1, 2);
  x.heads = x.k_heads * test_range(rng, 1, 2), x.v_heads = test_range(rng, 0, 1) ? x.heads : 1;
  x.q_len = test_range(rng, 1, 70), x.k_len = test_range(rng, 1, 150);
  x.dk = test_range(rng, 1, 40), x.dv = test_range(rng, 1, 70);
  x.type = type[test_range(rng, 0, 3)];
  x.layout = (test_layout)test_range(rng, 0, 3);
  return x;
}

/* Whole numbers in every type, so that products with planes of eighths are exact. */
static void whole(attn_tensor t, test_rng *rng) {
  for (int64_t n = 0; n < t.batch * t.heads * t.len; n++)
    for (int64_t c = 0; c < t.dim; c++)
      oracle_set(&t, n / t.len / t.heads, n / t.len % t.heads, n % t.len, c,
                 (double)test_range(rng, -4, 4));
}

static scene *build(const shape *x, int sampled, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->q = drawn(x->type, x->layout, x->batch, x->heads, x->q_len, x->dk, 1, rng);
  s->k = drawn(x->type, TEST_PADDED, x->batch, x->k_heads, x->k_len, x->dk, 1, rng);
  s->v = drawn(x->type, x->layout, x->batch, x->v_heads, x->k_len, x->dv, 1, rng);
  s->o = output(x->type, TEST_PADDED, x->batch, x->heads, x->q_len, x->dv, &s->does.block[0]);
  s->sampled = sampled, s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o;
  return s;
}

static scene *again(const scene *s) {
  scene *y = test_mem(sizeof *y);
  *y = *s;
  y->o = test_tensor(s->o.dtype, TEST_BHTD, s->o.batch, s->o.heads, s->o.len, s->o.dim);
  y->does.scene = y, y->does.out[0] = &y->o;
  return y;
}

static void planes(scene *s, int64_t heads, int64_t draws, int64_t tau, test_rng *rng) {
  s->p.draws = draws, s->p.code_len = tau;
  s->p.planes = test_tensor(ATTN_F32, TEST_PADDED, heads, draws, s->q.dim, tau);
  for (int64_t n = 0; n < heads * draws * s->q.dim; n++)
    for (int64_t t = 0; t < tau; t++)
      oracle_set(&s->p.planes, n / s->q.dim / draws, n / s->q.dim % draws, n % s->q.dim, t,
                 (double)test_range(rng, -16, 16) / 8);
}

/* ---- the definition -------------------------------------------------------------------------*/

static int64_t tau_of(const scene *s) { return s->p.code_len ? s->p.code_len : 9; }

/* The weight of a cosine. */
static double weight(double c, int64_t tau) {
  return pow(1 - acos(c > 1 ? 1 : c < -1 ? -1 : c) / PI, (double)tau);
}

/* The weight of a pair, and how well floats know it. */
static double expected(const scene *s, int64_t b, int64_t h, int64_t i, int64_t j, double *err) {
  const int64_t hk = head_of(&s->k, h, s->q.heads), tau = tau_of(s);
  double qk = 0, qq = 0, kk = 0;
  for (int64_t c = 0; c < s->q.dim; c++) {
    const double x = oracle_get(&s->q, b, h, i, c), y = oracle_get(&s->k, b, hk, j, c);
    qk += x * y, qq += x * x, kk += y * y;
  }
  const double cos_of = s->p.unit ? qk : qk / (fmax(sqrt(qq), 1e-12) * fmax(sqrt(kk), 1e-12));
  const double away = 6e-7 * fmax(1, s->p.unit ? sqrt(qq * kk) : 1), w = weight(cos_of, tau);
  *err = weight(cos_of + away, tau) - weight(cos_of - away, tau) + 4e-7 * (double)tau * w;
  return w;
}

static int64_t code(const scene *s, const attn_tensor *x, int64_t b, int64_t hx, int64_t h,
                    int64_t i, int64_t r) {
  int64_t n = 0;
  for (int64_t t = 0; t < tau_of(s); t++) {
    double sum = 0;
    for (int64_t c = 0; c < x->dim; c++)
      sum += oracle_get(x, b, hx, i, c) *
             oracle_get(&s->p.planes, s->p.planes.batch > 1 ? h : 0, r, c, t);
    n |= (int64_t)(sum > 0) << t;
  }
  return n;
}

/* The share of draws in which a pair meets, for all pairs of a head. */
static double *meetings(const scene *s, int64_t b, int64_t h) {
  const int64_t tq = s->q.len, tk = s->k.len, hk = head_of(&s->k, h, s->q.heads);
  double *w = test_mem((size_t)(tq * tk + 1) * sizeof *w);
  int64_t *kc = test_mem((size_t)(tk + 1) * sizeof *kc);
  memset(w, 0, (size_t)(tq * tk) * sizeof *w);
  for (int64_t r = 0; r < s->p.draws; r++) {
    for (int64_t j = 0; j < tk; j++) kc[j] = code(s, &s->k, b, hk, h, j, r);
    for (int64_t i = 0; i < tq; i++) {
      const int64_t qc = code(s, &s->q, b, h, h, i, r);
      for (int64_t j = 0; j < tk; j++) w[i * tk + j] += (qc == kc[j]) / (double)s->p.draws;
    }
  }
  return w;
}

static void check(const scene *s, const uint8_t *seen, const char *what) {
  const int64_t tk = s->k.len, dv = s->v.dim, heads = s->q.heads;
  double *sum = test_mem((size_t)dv * sizeof *sum), *tol = test_mem((size_t)dv * sizeof *tol);
  for (int64_t n = 0; n < s->q.batch * heads; n++) {
    const int64_t b = n / heads, h = n % heads, hv = head_of(&s->v, h, heads);
    const double *met = s->sampled ? meetings(s, b, h) : NULL;
    for (int64_t i = 0; i < s->q.len; i++) {
      double length = 0, most = 0;
      int64_t keys = 0;
      for (int64_t c = 0; c < dv; c++) sum[c] = tol[c] = 0;
      for (int64_t j = 0; j < tk; j++) {
        if (!oracle_allowed(&s->q, &s->k, &s->p.attention, b, h, i, j) ||
            (seen && !seen[i * tk + j]))
          continue;
        double err = 0;
        const double w = met ? met[i * tk + j] : expected(s, b, h, i, j, &err);
        keys++;
        for (int64_t c = 0; c < dv; c++) {
          const double x = oracle_get(&s->v, b, hv, j, c);
          sum[c] += w * x, tol[c] += (err + 1e-6 * w) * fabs(x);
        }
      }
      for (int64_t c = 0; c < dv; c++) length += sum[c] * sum[c], most = fmax(most, tol[c]);
      length = sqrt(length);
      for (int64_t c = 0; c < dv; c++) {
        const double by = s->p.raw ? 1 : 1 / fmax(length, 1e-12);
        const double slack = s->p.raw ? tol[c] : 2 * most * sqrt((double)dv) * by + 4e-7;
        if (keys == 0)
          assert_true(oracle_get(&s->o, b, h, i, c) == 0);
        else
          value_check(oracle_get(&s->o, b, h, i, c), sum[c] * by, slack, s->o.dtype, what, b, h, i,
                      c);
      }
    }
  }
}

/* ---- the expectation ------------------------------------------------------------------------*/

static void any_allowed(scene *s, int64_t t, test_rng *rng) {
  attn_sdpa_params *a = &s->p.attention;
  const int64_t tq = s->q.len, tk = s->k.len;
  a->causal = (int)test_range(rng, 0, 2);
  if (t % 5 == 1) a->has_q_off = 1, a->q_off = test_range(rng, -5, tk);
  if (t % 3 == 0) a->kv_len = test_lengths(s->q.batch, tk, rng);
  if (t % 4 == 0) a->q_len = test_lengths(s->q.batch, tq, rng);
  if (s->sampled) return;
  if (t % 5 == 2) a->window = attn_window_of(test_range(rng, 0, 40), test_range(rng, -1, 20));
  if (t % 7 == 3)
    a->mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, s->q.batch, s->q.heads, tq, tk, rng);
}

void D7_expectation(void **state) {
  (void)state;
  test_rng rng = test_seed(7100);
  for (int64_t t = 0; t < test_count(60, 14); t++, test_mem_release()) {
    shape x = any_shape(&rng);
    if (t % 6 == 5) x.q_len = test_range(&rng, 1, 4);
    scene *s = build(&x, 0, &rng);
    s->p.code_len = t % 3 ? test_range(&rng, 1, 16) : 0, s->p.raw = (int)(t % 2);
    any_allowed(s, t, &rng);
    promise_run(&s->does);
    check(s, NULL, "expectation");
  }
}

/* Past the marks of 128 and 1024 keys; keys that are queries, opposites and multiples of them; values of mean one. */
void D7_long(void **state) {
  (void)state;
  test_rng rng = test_seed(7101);
  for (int t = 0; t < 3; t++) {
    shape x = plain(1, t ? 70 : 3, t == 2 ? 1100 : 200, 17, 5);
    scene *s = build(&x, 0, &rng);
    s->p.raw = t < 2, s->p.code_len = t == 1 ? 16 : 0;
    s->p.attention.causal = t == 2;
    for (int64_t j = 0; j < s->k.len; j++) {
      const int64_t i = j % s->q.len;
      for (int64_t c = 0; j % 3 && c < 17; c++)
        oracle_set(&s->k, 0, 0, j, c, (j % 3 == 1 ? 2 : -0.5) * oracle_get(&s->q, 0, 0, i, c));
      for (int64_t c = 0; c < 5; c++)
        oracle_set(&s->v, 0, 0, j, c, 1 + 0.1 * oracle_get(&s->v, 0, 0, j, c));
    }
    promise_run(&s->does);
    check(s, NULL, "long");
  }
}

/* A schedule is the mask that it stands for. */
void D7_schedule(void **state) {
  (void)state;
  test_rng rng = test_seed(7102);
  for (int t = 0; t < 3; t++) {
    shape x = plain(2, 150, 150, 9, 7);
    scene *s = build(&x, 0, &rng);
    attn_schedule schedule = {0};
    attn_pattern pattern = t == 0   ? attn_pattern_band(30, 5)
                           : t == 1 ? attn_pattern_strided(7)
                                    : attn_pattern_random(6, 3);
    uint8_t *seen = test_mem(150 * 150);
    assert_int_equal(attn_schedule_build(&schedule, &pattern, 2, 150, 150, NULL, NULL), ATTN_OK);
    if (t < 2) {
      for (int n = 0; n < 150 * 150; n++) {
        const int d = n % 150 - n / 150;
        seen[n] = t ? d % 7 == 0 : d >= -30 && d <= 5;
      }
      s->p.attention.schedule = &schedule;
      promise_run(&s->does);
      check(s, seen, "schedule");
    } else { /* lists: their keys as a map of weights says them */
      attn_sdpa_params p;
      attn_ctx ctx = test_ctx();
      memset(&p, 0, sizeof p);
      p.schedule = &schedule, p.map = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 150, 150);
      assert_int_equal(attn_sdpa(s->o, s->q, s->k, s->v, &p, &ctx), ATTN_OK);
      uint8_t *mask = test_mem(2 * 150 * 150);
      for (int n = 0; n < 2 * 150 * 150; n++) mask[n] = ((const float *)p.map.data)[n] > 0;
      s->p.attention.schedule = &schedule, s->p.raw = 1;
      promise_run(&s->does);
      s->p.attention.schedule = NULL;
      s->p.attention.mask = attn_mask_bool(mask, 1, 2, 150, 150);
      check(s, NULL, "lists");
    }
    attn_schedule_free(&schedule);
  }
}

/* Rows as they are: of length 1, or cut where their product is beyond it. Keys of 8 bits. */
void D7_unit(void **state) {
  (void)state;
  test_rng rng = test_seed(7103);
  for (int t = 0; t < 3; t++) {
    shape x = plain(2, 66, 40, 6, 5);
    scene *s = build(&x, 0, &rng), *y;
    s->p.unit = 1, s->p.raw = t < 2;
    for (int64_t n = 0; t && n < 2 * (66 + 40); n++) {
      attn_tensor *a = n < 132 ? &s->q : &s->k;
      const int64_t h = n < 132 ? n / 66 : (n - 132) / 40, i = n < 132 ? n % 66 : (n - 132) % 40;
      const double by = 1 / sqrt(dot_rows(a, a, 0, h, i, i));
      for (int64_t c = 0; c < 6; c++) oracle_set(a, 0, h, i, c, by * oracle_get(a, 0, h, i, c));
    }
    promise_run(&s->does);
    check(s, NULL, "unit");
    if (t == 0) continue;
    y = again(s), y->p.unit = 0;
    promise_run(&y->does);
    check(y, NULL, "units of units");
  }
  shape x = plain(1, 20, 30, 8, 4);
  scene *s = build(&x, 0, &rng);
  attn_tensor k8 = test_tensor(ATTN_I8, TEST_BHTD, 1, 1, 30, 8);
  float scale[30];
  attn_ctx ctx = test_ctx();
  attn_scales sc = attn_scales_dense(scale, NULL, 0, &k8);
  assert_int_equal(attn_quantize(k8, sc, s->k, &ctx), ATTN_OK);
  assert_int_equal(attn_dequantize(s->k, k8, sc, &ctx), ATTN_OK);
  s->p.unit = s->p.raw = 1;
  promise_run(&s->does);
  check(s, NULL, "keys of 8 bits as floats");
  scene *y = again(s);
  y->k = k8, y->p.attention.k_scales = sc;
  promise_run(&y->does);
  test_assert_same(s->o, y->o, "keys of 8 bits");
}

/* The same, the opposite and a right angle. */
void D7_example(void **state) {
  (void)state;
  shape x = plain(1, 1, 3, 2, 3);
  test_rng rng = test_seed(7104);
  for (int tau = 1; tau <= 16; tau++) {
    scene *s = build(&x, 0, &rng);
    static const double key[3][2] = {{7, 0}, {-0.25, 0}, {0, 3}};
    for (int64_t c = 0; c < 2; c++) oracle_set(&s->q, 0, 0, 0, c, 2 * (c == 0));
    for (int64_t j = 0; j < 3; j++) {
      for (int64_t c = 0; c < 2; c++) oracle_set(&s->k, 0, 0, j, c, key[j][c]);
      for (int64_t c = 0; c < 3; c++) oracle_set(&s->v, 0, 0, j, c, j == c);
    }
    s->p.code_len = tau, s->p.raw = 1;
    promise_run(&s->does);
    assert_true(oracle_get(&s->o, 0, 0, 0, 0) == 1 && oracle_get(&s->o, 0, 0, 0, 1) == 0);
    assert_true(fabs(oracle_get(&s->o, 0, 0, 0, 2) / ldexp(1, -tau) - 1) < 3e-6);
    s->p.raw = 0; /* (1, 0, 2^-tau) of length 1 */
    promise_run(&s->does);
    assert_true(fabs(oracle_get(&s->o, 0, 0, 0, 0) - 1 / sqrt(1 + ldexp(1, -2 * tau))) < 1e-6);
  }
}

/* The weight alone, over all cosines. */
void D7_weights(void **state) {
  (void)state;
  test_rng rng = test_seed(7113);
  shape x = plain(1, 513, 1, 1, 1);
  for (int tau = 1; tau <= 16; tau += 5) {
    scene *s = build(&x, 0, &rng);
    test_fill_value(s->k, 1), test_fill_value(s->v, 1);
    for (int64_t i = 0; i < 513; i++) oracle_set(&s->q, 0, 0, i, 0, (double)(i - 256) / 256);
    s->p.unit = s->p.raw = 1, s->p.code_len = tau;
    promise_run(&s->does);
    for (int64_t i = 0; i < 513; i++) {
      const double want = weight((double)(i - 256) / 256, tau);
      value_check(oracle_get(&s->o, 0, 0, i, 0), want, 2.5e-7 * tau * want, ATTN_F32, "weight", 0,
                  0, i, 0);
    }
  }
}

/* ---- samples --------------------------------------------------------------------------------*/

void D7_sample(void **state) {
  (void)state;
  test_rng rng = test_seed(7105);
  for (int64_t t = 0; t < test_count(50, 12); t++, test_mem_release()) {
    shape x = any_shape(&rng);
    scene *s = build(&x, 1, &rng);
    whole(s->q, &rng), whole(s->k, &rng);
    planes(s, t % 2 ? x.heads : 1, test_range(&rng, 1, 9), test_range(&rng, 1, t % 5 ? 5 : 16),
           &rng);
    if (t % 4 == 3) s->p.draws = 40, planes(s, 1, 40, 3, &rng); /* several blocks of planes */
    s->p.raw = t % 3 != 0;
    any_allowed(s, t, &rng);
    promise_run(&s->does);
    check(s, NULL, "sample");
  }
}

/* Planes that are drawn are those of the generator, each head and draw its own. */
void D7_planes(void **state) {
  (void)state;
  test_rng rng = test_seed(7106);
  for (int t = 0; t < 4; t++) {
    shape x = plain(3, 33, 47, 11, 37);
    x.batch = 2;
    scene *s = build(&x, 1, &rng), *y;
    s->p.seed = 99 + (uint64_t)t, s->p.raw = t & 1, s->p.attention.causal = t >> 1;
    if (t) s->p.draws = 5, s->p.code_len = 4;
    const int64_t draws = t ? 5 : 64, tau = t ? 4 : 9;
    promise_run(&s->does);
    y = again(s);
    y->p.planes = test_tensor(ATTN_F32, TEST_BHTD, 3, draws, 11, tau);
    for (int64_t n = 0; n < 3 * draws * 11 * tau; n++) {
      const int64_t h = n / tau / 11 / draws, r = n / tau / 11 % draws;
      oracle_set(&y->p.planes, h, r, n / tau % 11, n % tau,
                 attn_random_normal(s->p.seed, ATTN_STREAM(r, h, 2), (uint64_t)(n % (11 * tau))));
    }
    promise_run(&y->does);
    test_assert_same(s->o, y->o, "drawn planes");
    s->p.seed++;
    promise_run(&s->does);
    assert_false(test_same(s->o, y->o));
  }
}

/* The mean over seeds is within 5 standard errors of the expectation, and samples vary as they should: twice the
 * draws, half the variance. */
void D7_unbiased(void **state) {
  (void)state;
  enum { ROWS = 12, DV = 4, SEEDS = 40 };
  test_rng rng = test_seed(7107);
  shape x = plain(1, ROWS, 20, 8, DV);
  scene *s = build(&x, 1, &rng), *y = again(s);
  double spread[2] = {0, 0}, mean = 0;
  for (int64_t j = 0; j < ROWS; j += 2) /* near pairs, and some that are the same */
    for (int64_t c = 0; c < 8; c++)
      oracle_set(&s->k, 0, 0, j, c,
                 oracle_get(&s->q, 0, 0, j, c) + (j % 4 ? 0.3 : 0) * test_normal(&rng));
  y->sampled = 0, y->p.raw = s->p.raw = 1, y->p.code_len = s->p.code_len = 4;
  promise_run(&y->does);
  for (int twice = 0; twice < 2; twice++) {
    double sum[ROWS * DV] = {0}, square[ROWS * DV] = {0};
    for (int seed = 0; seed < SEEDS; seed++) {
      s->p.seed = 1000 + (uint64_t)seed, s->p.draws = twice ? 64 : 32;
      promise_run(&s->does);
      for (int n = 0; n < ROWS * DV; n++) {
        const double z = oracle_get(&s->o, 0, 0, n / DV, n % DV);
        sum[n] += z, square[n] += z * z;
      }
    }
    for (int n = 0; n < ROWS * DV; n++) {
      const double m = sum[n] / SEEDS, var = (square[n] - SEEDS * m * m) / (SEEDS - 1);
      const double want = oracle_get(&y->o, 0, 0, n / DV, n % DV), error = sqrt(var / SEEDS);
      if (fabs(m - want) > 5 * error + 1e-5)
        fail_msg("mean %d is %g, not %g: %g standard errors", n, m, want, fabs(m - want) / error);
      spread[twice] += var, mean += (m - want) / error;
    }
  }
  assert_true(spread[0] / spread[1] > 1.6 && spread[0] / spread[1] < 2.5);
  assert_true(fabs(mean) / (2 * ROWS * DV) < 0.5);
}

/* Many equal keys: sums do not drift, and twice the length of q changes nothing. */
void D7_drift(void **state) {
  (void)state;
  test_rng rng = test_seed(7108);
  const int64_t keys = test_fast ? 5000 : 40000;
  shape x = plain(1, 2, keys, 2, 3);
  scene *s = build(&x, 1, &rng);
  test_fill_value(s->q, 1), test_fill_value(s->k, 1);
  for (int64_t j = 0; j < keys; j++) {
    oracle_set(&s->v, 0, 0, j, 0, 1.0 / 3);
    oracle_set(&s->v, 0, 0, j, 1, 1 + 0.01 * oracle_get(&s->v, 0, 0, j, 1));
  }
  s->p.draws = 3, s->p.raw = 1;
  promise_run(&s->does);
  for (int64_t c = 0; c < 3; c++) {
    double sum = 0, size = 0;
    for (int64_t j = 0; j < keys; j++) {
      sum += oracle_get(&s->v, 0, 0, j, c), size += fabs(oracle_get(&s->v, 0, 0, j, c));
    }
    for (int64_t i = 0; i < 2; i++)
      value_check(oracle_get(&s->o, 0, 0, i, c), sum, 3e-7 * size, ATTN_F32, "drift", 0, 0, i, c);
  }
  scene *y = again(s);
  test_fill_value(s->q, 2);
  promise_run(&y->does);
  test_assert_same(s->o, y->o, "length");
}

/* Nothing of a draw is left for the next: a bucket of large values becomes one of a small one. */
void D7_draws(void **state) {
  (void)state;
  test_rng rng = test_seed(7114);
  static const double value[4] = {16777216, 1.5, 1.5, 1};
  for (int tau = 1; tau < 5; tau += 3) {
    shape x = plain(1, 1, 4, 1, 1);
    scene *s = build(&x, 1, &rng);
    planes(s, 1, 2, tau, &rng);
    for (int64_t j = 0; j < 4; j++) {
      oracle_set(&s->k, 0, 0, j, 0, j < 3 ? 1 : -1);
      oracle_set(&s->v, 0, 0, j, 0, value[j]);
    }
    test_fill_value(s->q, -1);
    for (int64_t n = 0; n < 2 * tau; n++)
      oracle_set(&s->p.planes, 0, n / tau, 0, n % tau, n / tau ? -1 : 1);
    s->p.raw = 1;
    promise_run(&s->does);
    assert_true(oracle_get(&s->o, 0, 0, 0, 0) == 1);
  }
}

/* ---- both -----------------------------------------------------------------------------------*/

/* What a row may not see does not reach it, whatever is stored there; what it sees does. */
void D7_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(7109);
  for (int t = 0; t < 8; t++) {
    shape x = plain(1, 30, 70, 5, 40);
    scene *s = build(&x, t & 1, &rng), *y = again(s);
    static const int32_t len[1] = {50};
    s->p.code_len = y->p.code_len = 3, s->p.draws = y->p.draws = 3, s->p.raw = y->p.raw = t >> 2;
    if (t & 2)
      s->p.attention.causal = y->p.attention.causal = ATTN_CAUSAL_START;
    else
      s->p.attention.kv_len = y->p.attention.kv_len = len;
    promise_run(&s->does);
    const int64_t from = t & 2 ? 12 : 50; /* rows below 12 see no such key */
    for (int64_t j = from; j < 70; j++) {
      test_fill_row(s->k, 0, 0, j, (double)NAN);
      test_fill_row(s->v, 0, 0, j, j % 2 ? (double)NAN : (double)INFINITY);
    }
    promise_run(&y->does);
    const int64_t rows = t & 2 ? 12 : 30;
    assert_true(test_same(test_rows(s->o, 0, rows), test_rows(y->o, 0, rows)));
    if (t & 1) continue;
    for (int64_t i = rows; i < 30; i++) assert_true(isnan(oracle_get(&y->o, 0, 0, i, 0)));
  }
  shape x = plain(1, 30, 70, 5, 40);
  for (int t = 0; t < 4; t++) { /* in a query; in a value that all rows read */
    scene *s = build(&x, t & 1, &rng);
    s->p.raw = t >> 1;
    if (t & 1) test_fill_value(s->q, 1), test_fill_row(s->k, 0, 0, 9, 1);
    if (!(t & 1)) test_fill_row(s->q, 0, 0, 7, (double)NAN);
    if (t & 1) oracle_set(&s->v, 0, 0, 9, 33, (double)NAN);
    promise_run(&s->does);
    for (int64_t i = 0; i < 30; i++)
      for (int64_t c = 0; c < 40; c++) {
        const int nan = t & 1 ? c == 33 || !s->p.raw : i == 7;
        assert_true((isnan(oracle_get(&s->o, 0, 0, i, c)) != 0) == nan);
      }
  }
}

/* Keys from kv_len on, which may lie in no memory at all, are not read. */
void D7_unread(void **state) {
  (void)state;
  test_rng rng = test_seed(7115);
  static const int32_t len[3] = {1, 60, 64};
  for (int t = 0; t < 6; t++, test_mem_release()) {
    shape x = plain(1, 5, len[t / 2], 7, 6);
    test_where = TEST_BEFORE_GUARD;
    scene *s = build(&x, t & 1, &rng), *y;
    test_where = TEST_HEAP;
    s->p.draws = 3, s->p.attention.has_q_off = 1;
    promise_run(&s->does);
    y = again(s);
    y->k.len = y->v.len = len[t / 2] + 2000, y->p.attention.kv_len = &len[t / 2];
    promise_run(&y->does);
    test_assert_same(s->o, y->o, "keys before an unreadable page");
  }
}

void D7_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(7110);
  for (int t = 0; t < 8; t++, test_mem_release()) {
    shape x = plain(4, 75, 130, 9, 66);
    x.batch = 2, x.k_heads = 2;
    if (t >= 4) x.type = ATTN_BF16;
    scene *s = build(&x, t & 1, &rng);
    s->p.draws = 3, s->p.raw = t >> 1 & 1, s->p.attention.causal = t >> 2;
    promise_keep(&s->does);
    promise_run(&s->does);
    scene *y = again(s); /* a batch entry and the last rows by themselves */
    y->q = test_one(s->q, 1, 1, 0, 4), y->k = test_one(s->k, 1, 1, 0, 2);
    y->v = test_one(s->v, 1, 1, 0, 4);
    y->q = test_rows(y->q, 70, 5);
    y->o = test_tensor(x.type, TEST_BHTD, 1, 4, 5, 66);
    promise_run(&y->does);
    test_assert_same(y->o, test_rows(test_one(s->o, 1, 1, 0, 4), 70, 5), "rows by themselves");
  }
}

void D7_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(7111);
  for (int t = 0; t < 8; t++) {
    shape x = plain(2, t / 2 == 0 ? 0 : 5, t / 2 == 1 ? 0 : 6, 3, 4);
    if (t / 2 == 2) x.batch = 0;
    scene *s = build(&x, t & 1, &rng);
    static const int32_t none[1] = {0};
    if (t / 2 == 3) s->p.attention.kv_len = none;
    promise_run(&s->does);
    assert_true(ask(s, NULL) != ATTN_WORKSPACE_REJECTED);
    for (int64_t n = 0; n < s->o.batch * 2 * s->o.len * 4; n++)
      assert_true(oracle_get(&s->o, 0, n / 4 / s->o.len, n / 4 % s->o.len, n % 4) == 0);
  }
}

void D7_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(7112);
  shape x = plain(2, 9, 11, 4, 6);
  static const int32_t beyond[1] = {12};
  static const float sinks[2] = {0, 0};
  uint8_t mask[1] = {1};
  for (int sampled = 0; sampled < 2; sampled++) {
    scene *s = build(&x, sampled, &rng), keep = *s;
    attn_sdpa_params *a = &s->p.attention;
#define REJECT(change, status, word)                            \
  do {                                                          \
    change;                                                     \
    promise_reject(&s->does, status, word);                     \
    s->p = keep.p, s->q = keep.q, s->k = keep.k, s->v = keep.v; \
  } while (0)
    REJECT(s->p.code_len = -1, ATTN_E_RANGE, "code_len");
    REJECT(s->p.code_len = 17, ATTN_E_RANGE, "code_len");
    REJECT(s->p.draws = -1, ATTN_E_RANGE, "draws");
    REJECT(s->p.draws = (1 << 20) + 1, ATTN_E_RANGE, "draws");
    REJECT(a->scale = 1, ATTN_E_RANGE, "scale");
    REJECT(a->scale = ATTN_ZERO, ATTN_E_RANGE, "scale");
    REJECT(a->sinks = sinks, ATTN_E_RANGE, "sinks");
    REJECT(a->softmax_one = 1, ATTN_E_RANGE, "softmax_one");
    REJECT(a->alibi = sinks, ATTN_E_RANGE, "terms");
    REJECT(a->softcap = 1, ATTN_E_RANGE, "terms");
    REJECT(a->lse = s->v, ATTN_E_RANGE, "lse");
    REJECT(a->align_lengths = 1, ATTN_E_RANGE, "align_lengths");
    REJECT(a->compute = ATTN_COMPUTE_BF16, ATTN_E_RANGE, "compute");
    REJECT(a->causal = 3, ATTN_E_RANGE, "causal");
    REJECT(a->kv_len = beyond, ATTN_E_RANGE, "kv_len");
    REJECT(s->k.dim = 3, ATTN_E_SHAPE, "k.dim");
    REJECT(s->v.len = 10, ATTN_E_SHAPE, "v.len");
    REJECT(s->q.data = NULL, ATTN_E_NULL, "q");
    REJECT(s->k = s->o; s->k.len = 11; s->k.dim = 4, ATTN_E_OVERLAP, "o");
    if (!sampled) continue;
    REJECT(a->window = attn_window_of(1, 1), ATTN_E_RANGE, "window");
    REJECT(a->mask = attn_mask_bool(mask, 1, 1, 1, 1), ATTN_E_RANGE, "mask");
    REJECT(s->p.planes = test_tensor(ATTN_F32, TEST_BHTD, 1, 63, 4, 9), ATTN_E_SHAPE, "planes");
    REJECT(s->p.planes = test_tensor(ATTN_F32, TEST_BHTD, 1, 64, 4, 8), ATTN_E_SHAPE, "planes");
    REJECT(s->p.planes = test_tensor(ATTN_F32, TEST_BHTD, 3, 64, 4, 9), ATTN_E_SHAPE, "planes");
    REJECT(s->p.planes = test_tensor(ATTN_F16, TEST_BHTD, 1, 64, 4, 9), ATTN_E_DTYPE, "planes");
    REJECT(s->p.planes = s->o; s->p.planes.heads = s->p.draws = 2; s->p.planes.len = 4;
           s->p.planes.dim = s->p.code_len = 6, ATTN_E_OVERLAP, "o");
#undef REJECT
  }
  scene *s = build(&x, 0, &rng);
  attn_tensor eight = test_tensor(ATTN_E4M3, TEST_BHTD, 1, 2, 11, 4);
  s->k = eight;
  promise_reject(&s->does, ATTN_E_DTYPE, "params.unit");
}
