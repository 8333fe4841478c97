/* tests/families/training/test_optimiser.c owns N7, steps of optimisers: against loops in double, their promises and
 * what they refuse. */

#include <stdio.h>

#include "compound.h"

/* The arrays of a step: weights, gradients and what the optimiser keeps, and the same in double. */
typedef struct flat {
  int64_t n;
  float *w, *g, *m, *v;
  double *W, *M, *V, *size; /* size: of m, by magnitudes */
} flat;

static float *numbers(int64_t n, double size, test_rng *rng) {
  float *x = test_mem((size_t)n * sizeof(float));
  for (int64_t i = 0; i < n; i++) x[i] = (float)(size * test_normal(rng));
  return x;
}

static flat flat_of(int64_t n, test_rng *rng) {
  flat a = {n,
            numbers(n, 1, rng),
            numbers(n, 1, rng),
            numbers(n, 0, rng),
            numbers(n, 0, rng),
            NULL,
            NULL,
            NULL,
            NULL};
  double **const more[] = {&a.W, &a.M, &a.V, &a.size};
  for (int k = 0; k < 4; k++) *more[k] = test_mem((size_t)(n + 1) * sizeof(double));
  for (int64_t i = 0; i < n; i++) a.W[i] = (double)a.w[i], a.M[i] = a.V[i] = a.size[i] = 0;
  return a;
}

static void draw(flat *a, test_rng *rng) {
  for (int64_t i = 0; i < a->n; i++)
    a->g[i] = (float)(test_normal(rng) * exp2((double)(i % 9) - 4));
}

static void close_to(double got, double want, double tolerance, const char *what, int step,
                     int64_t i) {
  if (!(fabs(got - want) <= tolerance))
    fail_msg("%s[%d] after step %d: %.9g, not %.9g (%.2g)", what, (int)i, step, got, want,
             tolerance);
}

static double field(double x, double usual) {
  if (x != 0) return x;
  return signbit(x) ? 0 : usual;
}

/* A step as the formula has it. */
static void adamw_step(flat *a, const attn_adamw_params *p) {
  const double lr = field(p->lr, 1e-3), b1 = field(p->beta1, 0.9), b2 = field(p->beta2, 0.999);
  const double eps = field(p->eps, 1e-8), clip = field(p->clip, 1), t = (double)p->step;
  for (int64_t i = 0; i < a->n; i++) {
    const double g = (double)a->g[i] * clip;
    a->M[i] = b1 * a->M[i] + (1 - b1) * g;
    a->size[i] = b1 * a->size[i] + (1 - b1) * fabs(g);
    a->V[i] = b2 * a->V[i] + (1 - b2) * g * g;
    a->W[i] = a->W[i] * (1 - lr * p->decay) -
              lr * (a->M[i] / (1 - pow(b1, t))) / (sqrt(a->V[i] / (1 - pow(b2, t))) + eps);
  }
}

void N7_adamw(void **state) {
  (void)state;
  test_rng rng = test_seed(9700);
  for (int64_t k = test_count(60, 20); k-- > 0; test_mem_release()) {
    test_where = k % 2 ? TEST_AFTER_GUARD : TEST_BEFORE_GUARD;
    flat a = flat_of(test_range(&rng, 1, k % 5 ? 70 : 40000), &rng);
    test_where = TEST_HEAP;
    attn_adamw_params p;
    memset(&p, 0, sizeof p);
    if (k % 3) p.lr = 0.01, p.decay = 0.1;
    if (k % 4 == 1) p.beta1 = 0.5, p.beta2 = 0.95, p.eps = 1e-3;
    if (k % 4 == 2) p.beta1 = (double)ATTN_ZERO, p.beta2 = (double)ATTN_ZERO, p.clip = 0.25;
    if (k % 7 == 3) p.lr = (double)ATTN_ZERO;
    if (k % 7 == 5) p.clip = (double)ATTN_ZERO;
    if (k % 7 == 6) p.eps = (double)ATTN_ZERO;
    double size = 0;
    for (int s = 1; s <= 7; s++) {
      attn_ctx ctx = test_ctx();
      draw(&a, &rng);
      p.step = s;
      adamw_step(&a, &p);
      assert_int_equal(attn_adamw(a.w, a.g, a.m, a.v, a.n, &p, &ctx), ATTN_OK);
      assert_int_equal(ctx.report.isa, test_isa);
      const double lr = field(p.lr, 1e-3), eps = field(p.eps, 1e-8);
      for (int64_t i = 0; i < a.n; i++) {
        const double mean = a.size[i] / (1 - pow(field(p.beta1, 0.9), s));
        const double root = sqrt(a.V[i] / (1 - pow(field(p.beta2, 0.999), s)));
        close_to((double)a.m[i], a.M[i], 4e-7 * a.size[i], "m", s, i);
        close_to((double)a.v[i], a.V[i], 1e-6 * a.V[i], "v", s, i);
        size = fabs(a.W[i]) + s * 4 * lr * mean / (root + eps);
        close_to((double)a.w[i], a.W[i], 4e-7 * s * size, "w", s, i);
      }
    }
  }
}

/* Corrections of steps far on, and of the first: m / (1 - beta1) is g then, its quotient the sign. */
void N7_adamw_steps(void **state) {
  (void)state;
  static const int64_t steps[] = {1, 2, 1000, 123457, INT64_MAX};
  for (int k = 0; k < 5; k++) {
    float w = 1, g = -3, m = 0.5f, v = 0.25f;
    attn_adamw_params p;
    attn_ctx ctx = test_ctx();
    memset(&p, 0, sizeof p);
    p.step = steps[k], p.lr = 0.5, p.beta2 = 0.9999;
    const double t = (double)p.step, M = 0.9 * 0.5 - 0.3, V = 0.9999 * 0.25 + 0.0009;
    const double want = 1 - 0.5 * M / (1 - pow(0.9, t)) / (sqrt(V / (1 - pow(0.9999, t))) + 1e-8);
    assert_int_equal(attn_adamw(&w, &g, &m, &v, 1, &p, &ctx), ATTN_OK);
    close_to((double)w, want, 1e-6 * (1 + fabs(want)), "w", (int)k, 0);
    w = 1, m = v = 0;
    p.step = 1, p.eps = (double)ATTN_ZERO;
    assert_int_equal(attn_adamw(&w, &g, &m, &v, 1, &p, &ctx), ATTN_OK);
    close_to((double)w, 1.5, 1e-6, "w", 1, 0);
  }
}

void N7_sgd(void **state) {
  (void)state;
  test_rng rng = test_seed(9701);
  for (int64_t k = test_count(60, 20); k-- > 0; test_mem_release()) {
    test_where = k % 2 ? TEST_AFTER_GUARD : TEST_BEFORE_GUARD;
    flat a = flat_of(test_range(&rng, 1, k % 5 ? 70 : 40000), &rng);
    test_where = TEST_HEAP;
    attn_sgd_params p;
    memset(&p, 0, sizeof p);
    if (k % 3) p.lr = 0.05;
    if (k % 2) p.momentum = 0.9, p.nesterov = k % 4 == 1;
    if (k % 5 > 2) p.decay = 0.1;
    if (k % 7 == 2) p.clip = 0.3;
    const int bare = k % 4 == 2;
    for (int64_t i = 0; i < a.n; i++) a.m[i] = NAN; /* the first step reads none of it */
    for (int s = 1; s <= 5; s++) {
      attn_ctx ctx = test_ctx();
      draw(&a, &rng);
      p.first = s == 1;
      const double lr = field(p.lr, 1e-3);
      assert_int_equal(attn_sgd(a.w, a.g, bare ? NULL : a.m, a.n, &p, &ctx), ATTN_OK);
      assert_int_equal(ctx.report.isa, test_isa);
      for (int64_t i = 0; i < a.n; i++) {
        const double g = (double)a.g[i] * field(p.clip, 1) + p.decay * a.W[i];
        a.M[i] = s == 1 ? g : p.momentum * a.M[i] + g;
        const double sum = fabs((double)a.g[i]) + p.decay * fabs(a.W[i]);
        a.size[i] = sum + (s == 1 ? 0 : p.momentum * a.size[i]);
        a.W[i] -= lr * (p.nesterov ? g + p.momentum * a.M[i] : a.M[i]);
        if (!bare) close_to((double)a.m[i], a.M[i], 1e-6 * a.size[i], "b", s, i);
        close_to((double)a.w[i], a.W[i], 1e-6 * (fabs(a.W[i]) + 4 * lr * a.size[i]) + 1e-6, "w", s,
                 i);
      }
    }
  }
}

/* One order of operations, said in C: the bits of each element. The scalar tier rounds FMA twice. */
void N7_steps_order(void **state) {
  (void)state;
  test_rng rng = test_seed(9702);
  if (test_isa == ATTN_ISA_SCALAR) return;
  flat a = flat_of(301, &rng);
  attn_ctx ctx = test_ctx();
  attn_adamw_params p;
  attn_sgd_params d;
  memset(&p, 0, sizeof p), memset(&d, 0, sizeof d);
  p.step = 3, p.decay = 0.25, p.clip = 0.7, p.lr = 0.01;
  d.lr = 0.01, d.momentum = 0.8, d.decay = 0.25, d.clip = 0.7, d.nesterov = 1;
  draw(&a, &rng);
  for (int64_t i = 0; i < a.n; i++) a.m[i] = (float)test_normal(&rng), a.v[i] = a.m[i] * a.m[i];
  float *w = test_mem(301 * 4), *m = test_mem(301 * 4), *v = test_mem(301 * 4);
  memcpy(w, a.w, 301 * 4), memcpy(m, a.m, 301 * 4), memcpy(v, a.v, 301 * 4);
  assert_int_equal(attn_adamw(a.w, a.g, a.m, a.v, a.n, &p, &ctx), ATTN_OK);
  const float rate = (float)(0.01 / (1 - 0.9 * 0.9 * 0.9));
  const float root = (float)(1 / (1 - 0.999 * 0.999 * 0.999));
  for (int64_t i = 0; i < a.n; i++) {
    const volatile float g = a.g[i] * 0.7f, some = (float)(1 - 0.9) * g;
    const volatile float part = (float)(1 - 0.999) * g, square = part * g;
    m[i] = fmaf(0.9f, m[i], some), v[i] = fmaf(0.999f, v[i], square);
    const volatile float scaled = root * v[i], top = rate * m[i];
    const volatile float under = sqrtf(scaled) + 1e-8f;
    w[i] = fmaf((float)(1 - 0.01 * 0.25), w[i], -(top / under));
    assert_memory_equal(&a.m[i], &m[i], 4);
    assert_memory_equal(&a.v[i], &v[i], 4);
    assert_memory_equal(&a.w[i], &w[i], 4);
  }
  assert_int_equal(attn_sgd(a.w, a.g, a.m, a.n, &d, &ctx), ATTN_OK);
  for (int64_t i = 0; i < a.n; i++) {
    const volatile float g = a.g[i] * 0.7f, x = fmaf(0.25f, w[i], g);
    m[i] = fmaf(0.8f, m[i], x), w[i] = fmaf(-0.01f, fmaf(0.8f, m[i], x), w[i]);
    assert_memory_equal(&a.m[i], &m[i], 4);
    assert_memory_equal(&a.w[i], &w[i], 4);
  }
  test_mem_release();
}

/* Any number of workers, and an array in two pieces, have the same bits; NaN stays where it is. */
void N7_steps_alone(void **state) {
  (void)state;
  static const attn_parallel_fn order[3] = {test_parallel_forward, test_parallel_backward,
                                            test_parallel_threads};
  enum { N = 50021, AT = 33333 };
  test_rng rng = test_seed(9703);
  for (int k = 0; k < 12; k++, test_mem_release()) {
    flat a = flat_of(N, &rng), b = a;
    float **const mine[] = {&b.w, &b.g, &b.m, &b.v};
    float *const from[] = {a.w, a.g, a.m, a.v};
    attn_adamw_params p;
    attn_sgd_params d;
    attn_ctx ctx = test_ctx(), many = test_ctx();
    memset(&p, 0, sizeof p), memset(&d, 0, sizeof d);
    p.step = 2, p.decay = 0.1, d.momentum = 0.9, d.nesterov = 1;
    for (int i = 0; i < 4; i++)
      *mine[i] = test_mem(N * sizeof(float)), memcpy(*mine[i], from[i], N * sizeof(float));
    many.workers = 2 + k, many.parallel_for = order[k % 3];
    const int bad = k < 8 ? k % 4 : -1; /* w, g, m, v */
    if (bad >= 0) (*mine[bad])[AT] = k < 4 ? NAN : INFINITY;
    if (k % 2) {
      assert_int_equal(attn_adamw(a.w, a.g, a.m, a.v, N, &p, &ctx), ATTN_OK);
      assert_int_equal(attn_adamw(b.w, b.g, b.m, b.v, 777, &p, &many), ATTN_OK);
      assert_int_equal(attn_adamw(b.w + 777, b.g + 777, b.m + 777, b.v + 777, N - 777, &p, &many),
                       ATTN_OK);
      assert_int_equal(many.report.workers, 2 + k < 4 ? 2 + k : 4);
    } else {
      assert_int_equal(attn_sgd(a.w, a.g, a.m, N, &d, &ctx), ATTN_OK);
      assert_int_equal(attn_sgd(b.w, b.g, b.m, 777, &d, &many), ATTN_OK);
      assert_int_equal(attn_sgd(b.w + 777, b.g + 777, b.m + 777, N - 777, &d, &many), ATTN_OK);
    }
    for (int i = 0; bad >= 0 && i < 4; i++) {
      if (i == 0 && (((k % 2 || bad < 3) && k < 4) || k == 5)) { /* 5: infinity by infinity */
        const uint32_t nan = 0x7fc00000u;                        /* the one NaN that is stored */
        assert_memory_equal(*mine[0] + AT, &nan, 4);
      }
      (*mine[i])[AT] = from[i][AT];
    }
    for (int i = 0; i < 4; i++) assert_memory_equal(*mine[i], from[i], N * sizeof(float));
  }
}

void N7_steps_nothing(void **state) {
  (void)state;
  attn_adamw_params p;
  attn_ctx ctx = test_ctx();
  memset(&p, 0, sizeof p);
  p.step = 1;
  assert_int_equal(attn_adamw(NULL, NULL, NULL, NULL, 0, &p, &ctx), ATTN_OK);
  assert_string_equal(ctx.report.path, "no-op");
  assert_int_equal(attn_sgd(NULL, NULL, NULL, 0, NULL, &ctx), ATTN_OK);
  assert_string_equal(ctx.report.path, "no-op");
}

/* One call that is refused: its arrays stay. */
typedef struct refusal {
  attn_adamw_params p;
  attn_sgd_params d;
  float *x[4];
  int64_t n;
} refusal;

static void refused(refusal *r, int adamw, attn_status want, const char *word) {
  attn_ctx ctx = test_ctx();
  unsigned char before[4][40];
  for (int i = 0; i < 4; i++)
    if (r->x[i]) memcpy(before[i], r->x[i], 40);
  const attn_status got = adamw ? attn_adamw(r->x[0], r->x[1], r->x[2], r->x[3], r->n, &r->p, &ctx)
                                : attn_sgd(r->x[0], r->x[1], r->x[2], r->n, &r->d, &ctx);
  if (got != want || !ctx.reason || !strstr(ctx.reason, word))
    fail_msg("%s, not %s about %s (%s)", attn_status_string(got), attn_status_string(want), word,
             ctx.reason ? ctx.reason : "no reason");
  for (int i = 0; i < 4; i++)
    if (r->x[i]) assert_memory_equal(before[i], r->x[i], 40);
}

void N7_steps_rejects(void **state) {
  (void)state;
  static const char *const name[] = {"w", "g", "m", "v"}, *const sgd[] = {"w", "g", "b"};
  static const double bad[] = {-1, (double)NAN, (double)INFINITY, -1e-300};
  static const double outside[] = {1, -0.1, (double)NAN, 2};
  test_rng rng = test_seed(9704);
  for (int adamw = 0; adamw < 2; adamw++) {
    refusal ok;
    memset(&ok, 0, sizeof ok);
    for (int i = 0; i < 4; i++) ok.x[i] = numbers(24, 1, &rng);
    ok.n = 12, ok.p.step = 1, ok.d.momentum = 0.5;
    for (int i = 0; i < 3 + adamw; i++) {
      char word[16];
      snprintf(word, sizeof word, "%s must", adamw ? name[i] : sgd[i]);
      refusal r = ok;
      r.x[i] = NULL;
      refused(&r, adamw, ATTN_E_NULL, word);
      r = ok;
      r.x[i] = (float *)(void *)((char *)ok.x[i] + 2);
      refused(&r, adamw, ATTN_E_ALIGN, word);
      for (int j = 0; j < i; j++) {
        r = ok;
        r.x[i] = ok.x[j] + 11;
        refused(&r, adamw, ATTN_E_OVERLAP, word);
        r.x[i] = ok.x[j];
        refused(&r, adamw, ATTN_E_OVERLAP, word);
      }
    }
    refusal r = ok;
    r.n = -1;
    refused(&r, adamw, ATTN_E_SHAPE, "n must");
    r.n = INT64_MAX / 4;
    refused(&r, adamw, ATTN_E_OVERFLOW, "");
    for (int k = 0; k < 4; k++) {
      double *const positive[] = {adamw ? &r.p.lr : &r.d.lr, adamw ? &r.p.decay : &r.d.decay,
                                  &r.p.eps};
      static const char *const says[] = {"params.lr", "params.decay", "params.eps"};
      for (int f = 0; f < 2 + adamw; f++) {
        r = ok;
        *positive[f] = bad[k];
        refused(&r, adamw, ATTN_E_VALUE, says[f]);
      }
      r = ok;
      r.d.momentum = r.p.beta1 = outside[k];
      refused(&r, adamw, ATTN_E_RANGE, adamw ? "params.beta1" : "params.momentum");
      r = ok;
      r.p.beta2 = outside[k];
      if (adamw) refused(&r, 1, ATTN_E_RANGE, "params.beta2");
      r = ok;
      r.p.clip = r.d.clip = k % 2 ? (double)NAN : -(double)INFINITY;
      refused(&r, adamw, ATTN_E_VALUE, "params.clip");
      r = ok;
      r.p.step = k ? -k : 0;
      if (adamw) refused(&r, 1, ATTN_E_RANGE, "params.step");
      r = ok;
      if (k % 2)
        r.d.first = 2;
      else
        r.d.nesterov = -1;
      if (!adamw) refused(&r, 0, ATTN_E_RANGE, "params.first");
    }
    attn_ctx ctx = test_ctx();
    ctx.workspace = ok.x[1], ctx.workspace_size = 4;
    assert_int_equal(adamw ? attn_adamw(ok.x[0], ok.x[1], ok.x[2], ok.x[3], 12, &ok.p, &ctx)
                           : attn_sgd(ok.x[0], ok.x[1], ok.x[2], 12, &ok.d, &ctx),
                     ATTN_E_OVERLAP);
    test_mem_release();
  }
}
