/* tests/families/heads/test_capsules.c owns the routing of heads, dynamic and by EM. */

#include "compound.h"

typedef struct scene {
  attn_tensor y, x;
  attn_capsules_params p;
  attn_capsules_em_params em;
  int by_em;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  if (s->by_em) return attn_capsules_em(s->y, s->x, &s->em, ctx);
  return attn_capsules(s->y, s->x, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  if (s->by_em) return attn_capsules_em_workspace(s->y, s->x, &s->em, ctx);
  return attn_capsules_workspace(s->y, s->x, &s->p, ctx);
}

typedef struct shape {
  int64_t batch, heads, tokens, dv, n, dc; /* dv 0: votes */
  attn_dtype x_type, w_type, y_type;
  int by_em;
} shape;

static shape plain(int64_t heads, int64_t tokens, int64_t n, int64_t dc) {
  shape x = {1, heads, tokens, 5, n, dc, ATTN_F32, ATTN_F32, ATTN_F32, 0};
  return x;
}

static scene *build(const shape *x, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t m = x->n * x->dc;
  attn_tensor w = absent();
  s->by_em = x->by_em;
  if (x->dv) {
    s->x = drawn(x->x_type, TEST_PADDED, x->batch, x->heads, x->tokens, x->dv, 1, rng);
    w = drawn(x->w_type, TEST_NEGATIVE, x->heads, x->n, x->dv, x->dc, 1 / sqrt((double)x->dv), rng);
  } else {
    s->x = drawn(x->x_type, TEST_BTHD, x->batch, x->heads, x->tokens, m, 1, rng);
  }
  s->p.w = s->em.w = w;
  s->p.capsules = s->em.capsules = x->dv ? 0 : x->n;
  s->y = output(x->y_type, TEST_PADDED, x->batch, 1, x->tokens, m, &s->does.block[0]);
  s->em.eps = 0.05f;
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.out[0] = &s->y;
  return s;
}

/* ---- the oracle -----------------------------------------------------------------------------*/

typedef struct token {
  int64_t h, n, d;
  double *u, *c, *log_c, *v; /* [H][N][dc], [H][N], [H][N], [N][dc] */
} token;

static token votes(const scene *s, int64_t b, int64_t t) {
  const attn_tensor *w = &s->p.w;
  token k = {s->x.heads, 0, 0, NULL, NULL, NULL, NULL};
  k.n = w->data ? w->heads : s->p.capsules, k.d = s->y.dim / k.n;
  k.u = test_mem((size_t)(k.h * k.n * k.d) * sizeof(double));
  k.c = test_mem((size_t)(k.h * k.n) * sizeof(double));
  k.log_c = test_mem((size_t)(k.h * k.n) * sizeof(double));
  k.v = test_mem((size_t)(k.n * k.d) * sizeof(double));
  for (int64_t e = 0; e < k.h * k.n * k.d; e++) {
    const int64_t h = e / k.d / k.n, n = e / k.d % k.n, d = e % k.d;
    double sum = 0;
    for (int64_t i = 0; w->data && i < w->len; i++)
      sum += oracle_get(&s->x, b, h, t, i) * oracle_get(w, h, n, i, d);
    k.u[e] = w->data ? sum : oracle_get(&s->x, b, h, t, n * k.d + d);
  }
  return k;
}

/* c = softmax of l over n for each h, or over h for each n. */
static void couple(const token *k, const double *l, int over_heads) {
  const int64_t groups = over_heads ? k->n : k->h, count = over_heads ? k->h : k->n;
  for (int64_t g = 0; g < groups; g++) {
    double top = -(double)INFINITY, sum = 0;
    for (int pass = 0; pass < 3; pass++) {
      for (int64_t i = 0; i < count; i++) {
        const int64_t at = over_heads ? i * k->n + g : g * k->n + i;
        if (pass == 0) top = fmax(top, l[at]);
        if (pass == 1) sum += exp(l[at] - top);
        if (pass == 2) k->log_c[at] = l[at] - top - log(sum), k->c[at] = exp(k->log_c[at]);
      }
    }
  }
}

static void route(const token *k, const attn_capsules_params *p) {
  const int64_t r = p->iterations ? p->iterations : 3, pairs = k->h * k->n;
  double *l = test_mem((size_t)pairs * sizeof *l);
  for (int64_t i = 0; i < pairs; i++) l[i] = 0;
  for (int64_t round = 0; round < r; round++) {
    couple(k, l, p->over_heads);
    for (int64_t n = 0; n < k->n; n++) {
      double *v = k->v + n * k->d, square = 0, mass = 0, top = -(double)INFINITY;
      /* a mean does not change when all its weights are multiplied, so that they need not vanish */
      for (int64_t h = 0; h < k->h; h++) top = fmax(top, k->log_c[h * k->n + n]);
      for (int64_t h = 0; p->kind == ATTN_CAPSULES_MEAN && h < k->h; h++)
        k->c[h * k->n + n] = exp(k->log_c[h * k->n + n] - top);
      for (int64_t h = 0; h < k->h; h++) mass += k->c[h * k->n + n];
      for (int64_t d = 0; d < k->d; d++) {
        v[d] = 0;
        for (int64_t h = 0; h < k->h; h++)
          v[d] += k->c[h * k->n + n] * k->u[(h * k->n + n) * k->d + d];
        square += v[d] * v[d];
      }
      for (int64_t d = 0; d < k->d; d++) {
        if (p->kind == ATTN_CAPSULES_MEAN)
          v[d] /= mass;
        else if (square > 0)
          v[d] *= square / (1 + square) / sqrt(square);
      }
    }
    for (int64_t i = 0; i < pairs && round + 1 < r; i++)
      for (int64_t d = 0; d < k->d; d++) l[i] += k->u[i * k->d + d] * k->v[i % k->n * k->d + d];
  }
}

static void fit(const token *k, const scene *s, int64_t b, int64_t t) {
  const attn_capsules_em_params *p = &s->em;
  const int64_t r = p->iterations ? p->iterations : 3, pairs = k->h * k->n, nd = k->n * k->d;
  const double eps = p->eps != 0 ? (double)p->eps : 1e-9, two_pi = 6.283185307179586;
  double *l = test_mem((size_t)pairs * sizeof *l), *var = test_mem((size_t)nd * sizeof *var);
  double *log_act = test_mem((size_t)k->n * sizeof *log_act);
  for (int64_t i = 0; i < pairs; i++) k->c[i] = 1 / (double)k->n;
  for (int64_t round = 0; round < r; round++) {
    double lambda = p->lambda
                        ? (double)p->lambda[round]
                        : 1 + (fmin((double)r, 3) - 1) * (double)round / fmax((double)r - 1, 1);
    for (int64_t n = 0; n < k->n; n++) {
      double mass = 0, cost = 0;
      for (int pass = 0; pass < 3; pass++) {
        for (int64_t h = 0; h < k->h; h++) {
          const double a = p->activation.data ? oracle_get(&p->activation, b, h, t, 0) : 1;
          const double w = k->c[h * k->n + n] * a;
          if (pass == 0) mass += w;
          for (int64_t d = 0; d < k->d; d++) {
            const double u = k->u[(h * k->n + n) * k->d + d];
            double *mu = &k->v[n * k->d + d], *q = &var[n * k->d + d];
            if (pass == 1) *mu = (h ? *mu : 0) + w * u / mass;
            if (pass == 2) *q = (h ? *q : eps) + w * (u - *mu) * (u - *mu) / mass;
          }
        }
      }
      for (int64_t d = 0; d < k->d; d++) {
        const double bu = p->beta_u ? (double)p->beta_u[p->betas > 1 ? n : 0] : 0;
        cost += mass * (bu + 0.5 * log(var[n * k->d + d]));
      }
      const double ba = p->beta_a ? (double)p->beta_a[p->betas > 1 ? n : 0] : 0;
      const double x = -lambda * (ba - cost);
      log_act[n] = p->no_act ? 0 : x > 0 ? -x - log1p(exp(-x)) : -log1p(exp(x));
    }
    for (int64_t i = 0; i < pairs; i++) {
      l[i] = log_act[i % k->n];
      for (int64_t d = 0; d < k->d; d++) {
        const double q = var[i % k->n * k->d + d],
                     e = k->u[i * k->d + d] - k->v[i % k->n * k->d + d];
        l[i] -= e * e / (2 * q) + 0.5 * log(two_pi * q);
      }
    }
    couple(k, l, 0);
    for (int64_t i = 0; i < pairs; i++) k->c[i] += eps;
  }
  for (int64_t e = 0; e < nd && !p->no_act; e++) k->v[e] *= exp(log_act[e / k->d]);
}

static void check(scene *s, double tolerance, const char *what) {
  promise_run(&s->does);
  cube y = cube_of(s->y.batch, 1, s->y.len, s->y.dim);
  for (int64_t r = 0; r < y.batch * y.len; r++) {
    token k = votes(s, r / y.len, r % y.len);
    if (s->by_em)
      fit(&k, s, r / y.len, r % y.len);
    else
      route(&k, &s->p);
    memcpy(cube_at(&y, r / y.len, 0, r % y.len), k.v, (size_t)y.dim * sizeof(double));
  }
  cube_check(&y, &s->y, tolerance, what);
}

static shape random_shape(test_rng *rng, int64_t n) {
  shape x = plain(1, 1, 1, 1);
  x.batch = test_range(rng, 1, 2), x.heads = test_range(rng, 1, n % 4 ? 9 : 20);
  x.tokens = test_range(rng, 1, n % 5 ? 9 : 100);
  x.dv = n % 3 ? test_range(rng, 1, n % 6 ? 12 : 140) : 0;
  x.n = test_range(rng, 1, 9), x.dc = n % 2 ? test_range(rng, 1, 7) : test_range(rng, 8, 40);
  if (x.tokens > 9) x.n = 3, x.dc = 7 + n % 2;
  x.x_type = (attn_dtype)(n % 3), x.w_type = (attn_dtype)(n / 3 % 3);
  x.y_type = (attn_dtype)(n / 2 % 3);
  return x;
}

/* ---- dynamic routing ------------------------------------------------------------------------*/

void I7_random(void **state) {
  (void)state;
  test_rng rng = test_seed(700);
  for (int64_t n = test_count(48, 16); n-- > 0; test_mem_release()) {
    shape x = random_shape(&rng, n);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&x, &rng);
    test_where = TEST_HEAP;
    s->p.iterations = n % 5;
    s->p.kind = n % 2 ? ATTN_CAPSULES_MEAN : ATTN_CAPSULES_SQUASH;
    s->p.over_heads = (int)(n / 2 % 2);
    check(s, 3e-5, "dynamic routing");
  }
}

/* Zero votes, one capsule, one round; large votes, whose logits part for good. */
void I7_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(701);
  shape x = plain(4, 6, 3, 9);
  scene *s = build(&x, &rng);
  test_fill_value(s->x, 0);
  promise_run(&s->does);
  for (int64_t i = 0; i < 6; i++)
    for (int64_t c = 0; c < 27; c++) assert_true(oracle_get(&s->y, 0, 0, i, c) == 0);
  x.dv = 0;
  for (int n = 0; n < 4; n++) {
    s = build(&x, &rng);
    for (int64_t r = 0; r < 4 * 6; r++)
      for (int64_t c = 0; c < 27; c++)
        oracle_set(&s->x, 0, r / 6, r % 6, c, 300 * oracle_get(&s->x, 0, r / 6, r % 6, c));
    s->p.kind = n % 2 ? ATTN_CAPSULES_MEAN : ATTN_CAPSULES_SQUASH, s->p.over_heads = n / 2;
    s->p.iterations = 2; /* later ones stand on the edge of a choice */
    check(s, 1e-4, "large votes");
  }
  x.n = 1;
  s = build(&x, &rng);
  promise_run(&s->does);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 6, 9);
  test_copy(y, s->y);
  s->p.iterations = 1;
  promise_run(&s->does);
  test_assert_same(s->y, y, "one capsule, any round");
  x.n = 3;
  s = build(&x, &rng);
  s->p.iterations = 1, s->p.kind = ATTN_CAPSULES_MEAN;
  promise_run(&s->does);
  for (int64_t e = 0; e < 6 * 27; e++) {
    double sum = 0;
    for (int64_t h = 0; h < 4; h++) sum += oracle_get(&s->x, 0, h, e / 27, e % 27) / 4;
    value_check(oracle_get(&s->y, 0, 0, e / 27, e % 27), sum, 1e-6, ATTN_F32, "mean", 0, 0, e / 27,
                e % 27);
  }
}

/* The heads of x and w in another order change nothing, capsules in another order their blocks. */
static void orders(int by_em) {
  test_rng rng = test_seed(702);
  shape x = plain(4, 5, 3, 8);
  x.by_em = by_em;
  scene *s = build(&x, &rng), other = *s;
  s->em.iterations = 2;
  promise_run(&s->does);
  other = *s, other.does.scene = &other;
  other.x = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, 5, 5);
  other.p.w = test_tensor(ATTN_F32, TEST_BHTD, 4, 3, 5, 8);
  other.y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 5, 24);
  for (int64_t h = 0; h < 4; h++) {
    test_copy(test_one(other.x, 0, 1, h, 1), test_one(s->x, 0, 1, (h + 1) % 4, 1));
    for (int64_t n = 0; n < 3; n++)
      test_copy(test_one(other.p.w, h, 1, n, 1), test_one(s->p.w, (h + 1) % 4, 1, (n + 2) % 3, 1));
  }
  other.em.w = other.p.w;
  promise_run(&other.does);
  for (int64_t n = 0; n < 3; n++)
    for (int64_t e = 0; e < 5 * 8; e++)
      value_check(oracle_get(&other.y, 0, 0, e / 8, n * 8 + e % 8),
                  oracle_get(&s->y, 0, 0, e / 8, (n + 2) % 3 * 8 + e % 8), 2e-5, ATTN_F32, "order",
                  0, n, e / 8, e % 8);
}

void I7_invariants(void **state) {
  (void)state;
  orders(0);
  test_rng rng = test_seed(703);
  shape x = plain(6, 20, 4, 10);
  x.dv = 0;
  scene *s = build(&x, &rng);
  promise_run(&s->does);
  for (int64_t i = 0; i < 20; i++) {
    for (int64_t n = 0; n < 4; n++) {
      double square = 0;
      for (int64_t c = 0; c < 10; c++) square += pow(oracle_get(&s->y, 0, 0, i, n * 10 + c), 2);
      assert_true(square < 1);
    }
  }
  /* tokens are by themselves: NaN in one, and the others keep their bits */
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 20, 40);
  test_copy(y, s->y);
  test_fill_row(s->x, 0, 3, 11, (double)NAN);
  promise_run(&s->does);
  test_assert_same(test_rows(s->y, 0, 11), test_rows(y, 0, 11), "before NaN");
  test_assert_same(test_rows(s->y, 12, 8), test_rows(y, 12, 8), "after NaN");
  assert_true(isnan(oracle_get(&s->y, 0, 0, 11, 0)));
}

static void promises(int by_em) {
  test_rng rng = test_seed(704);
  for (int n = 0; n < 2; n++) {
    shape x = plain(5, 70, 4, 12);
    x.batch = 2, x.by_em = by_em, x.y_type = ATTN_F16, x.x_type = n ? ATTN_BF16 : ATTN_F32;
    if (n) x.dv = 0;
    promise_keep(&build(&x, &rng)->does);
  }
  for (int n = 0; n < 2; n++) {
    shape x = plain(5, n, 4, 12);
    x.batch = 1 - n, x.by_em = by_em;
    promise_run(&build(&x, &rng)->does);
  }
}

static void rejects(int by_em) {
  test_rng rng = test_seed(705);
  for (int n = 0; n < 15; n++, test_mem_release()) {
    shape x = plain(5, 6, 4, 3);
    x.by_em = by_em;
    if (n > 9) x.dv = 0;
    scene *s = build(&x, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->p.w.batch = 4, word = "w must"; break;
      case 1: s->p.w.len = 4, word = "w must"; break;
      case 2: s->p.w.dim = 2, word = "y.dim"; break;
      case 3: s->p.w.heads = 3, word = "y.dim"; break;
      case 4: s->p.capsules = 3, word = "capsules"; break;
      case 5: s->y.len = 5, word = "y must"; break;
      case 6: s->p.iterations = -1, want = ATTN_E_RANGE, word = "iterations"; break;
      case 7: s->x.data = NULL, want = ATTN_E_NULL, word = "x"; break;
      case 8: s->x.heads = s->p.w.batch = 0, word = "x.heads"; break;
      case 9: s->p.w.data = NULL, word = "capsules"; break;
      case 10: s->p.capsules = 5, word = "capsules"; break;
      case 11: s->p.capsules = -4, word = "capsules"; break;
      case 12: s->y.dim = 11, word = "y.dim"; break;
      case 13: s->y = s->x, s->y.heads = 1, want = ATTN_E_OVERLAP, word = "y"; break;
      default: s->y.stride_len = 1, want = ATTN_E_STRIDE, word = "y"; break;
    }
    s->em.w = s->p.w, s->em.capsules = s->p.capsules, s->em.iterations = s->p.iterations;
    promise_reject(&s->does, want, word);
  }
  shape x = plain(5, 6, 4, 3);
  scene *s = build(&x, &rng);
  attn_ctx ctx = test_ctx();
  attn_status got =
      by_em ? attn_capsules_em(s->y, s->x, NULL, &ctx) : attn_capsules(s->y, s->x, NULL, &ctx);
  assert_int_equal(got, ATTN_E_NULL);
}

void I7_promises(void **state) {
  (void)state;
  promises(0);
}

void I7_rejects(void **state) {
  (void)state;
  rejects(0);
  test_rng rng = test_seed(706);
  shape x = plain(5, 6, 4, 3);
  scene *s = build(&x, &rng);
  s->p.kind = ATTN_CAPSULES_COUNT;
  promise_reject(&s->does, ATTN_E_RANGE, "kind");
}

/* ---- EM -------------------------------------------------------------------------------------*/

void I8_random(void **state) {
  (void)state;
  test_rng rng = test_seed(800);
  for (int64_t n = test_count(48, 16); n-- > 0; test_mem_release()) {
    shape x = random_shape(&rng, n);
    x.by_em = 1;
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&x, &rng);
    test_where = TEST_HEAP;
    s->em.iterations = n % 4;
    s->em.no_act = (int)(n / 2 % 2);
    s->em.eps = n % 3 ? 0.2f : 1.0f;
    if (n % 3 == 1) {
      s->em.activation = test_tensor(x.x_type, TEST_PADDED, x.batch, x.heads, x.tokens, 1);
      for (int64_t r = 0; r < x.batch * x.heads * x.tokens; r++)
        oracle_set(&s->em.activation, r / x.tokens / x.heads, r / x.tokens % x.heads, r % x.tokens,
                   0, (double)test_range(&rng, 1, 64) / 64);
    }
    if (n % 2) s->em.betas = n % 4 == 1 ? x.n : 1;
    if (n % 5) s->em.beta_u = test_floats(x.n, 0.5, &rng);
    if (n % 5 > 1) s->em.beta_a = test_floats(x.n, 0.5, &rng);
    if (n % 7 == 3) s->em.lambda = test_floats(4, 1, &rng);
    check(s, 1e-4, "EM routing");
  }
}

void I8_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(801);
  for (int n = 0; n < 5; n++) {
    shape x = plain(n == 1 ? 1 : 4, 6, n == 0 ? 1 : 3, n == 2 ? 1 : 9);
    x.by_em = 1, x.dv = 0;
    scene *s = build(&x, &rng);
    if (n == 3) /* the same votes for every capsule: R stays uniform */
      for (int64_t r = 0; r < 4 * 6; r++)
        for (int64_t c = 9; c < 27; c++)
          oracle_set(&s->x, 0, r / 6, r % 6, c, oracle_get(&s->x, 0, r / 6, r % 6, c % 9));
    s->em.no_act = n == 4, s->em.iterations = n == 4 ? 2 : 3;
    if (n == 4) s->em.eps = 0; /* the default, as far as it is well conditioned */
    check(s, n == 4 ? 2e-3 : 1e-4, "edges");
  }
  /* activations are relative, but for the cost */
  for (int n = 0; n < 2; n++) {
    shape x = plain(4, 6, 3, n ? 9 : 2);
    x.by_em = 1, x.dv = 0;
    scene *s = build(&x, &rng);
    s->em.activation = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, 6, 1);
    for (int64_t r = 0; r < 4 * 6; r++)
      oracle_set(&s->em.activation, 0, r / 6, r % 6, 0, (double)(r / 6 + 1) * 1e-36);
    check(s, 1e-4, "faint heads");
  }
  /* with the default eps and identical votes nothing overflows: exponents reach 1e9 */
  shape x = plain(4, 6, 3, 9);
  x.by_em = 1, x.dv = 0;
  scene *s = build(&x, &rng);
  s->em.eps = 0, s->em.iterations = 6;
  promise_run(&s->does);
  for (int64_t e = 0; e < 6 * 27; e++)
    assert_true(isfinite(oracle_get(&s->y, 0, 0, e / 27, e % 27)));
}

/* Votes that lie close together and far from 0: their variance is that of the votes as they are stored. */
void I8_narrow(void **state) {
  (void)state;
  static const float far[] = {1, 30, 1000}, lambda[] = {0.02f, 0.02f, 0.02f};
  test_rng rng = test_seed(803);
  for (int n = 0; n < 6; n++, test_mem_release()) {
    shape x = plain(8, 6, 2, n < 3 ? 4 : 9);
    x.by_em = 1, x.dv = 0;
    scene *s = build(&x, &rng);
    for (int64_t e = 0; e < 8 * 6 * s->x.dim; e++) {
      const int64_t h = e / s->x.dim / 6, t = e / s->x.dim % 6, c = e % s->x.dim;
      oracle_set(&s->x, 0, h, t, c, (double)far[n % 3] * (1 + 1e-6 * test_normal(&rng)));
    }
    s->em.eps = 1e-15f, s->em.lambda = lambda;
    check(s, 4e-6, "narrow");
  }
}

void I8_invariants(void **state) {
  (void)state;
  orders(1);
  test_rng rng = test_seed(802);
  shape x = plain(5, 6, 3, 8);
  x.by_em = 1, x.dv = 0;
  scene *s = build(&x, &rng);
  s->em.no_act = 1, s->em.iterations = 1;
  promise_run(&s->does);
  for (int64_t e = 0; e < 6 * 24; e++) { /* r = 1: the plain mean */
    double sum = 0;
    for (int64_t h = 0; h < 5; h++) sum += oracle_get(&s->x, 0, h, e / 24, e % 24) / 5;
    value_check(oracle_get(&s->y, 0, 0, e / 24, e % 24), sum, 1e-6, ATTN_F32, "mean", 0, 0, e / 24,
                e % 24);
  }
  s->em.iterations = 3, s->em.eps = 0.5f;
  promise_run(&s->does);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 6, 24);
  test_copy(y, s->y);
  for (int64_t r = 0; r < 5 * 6; r++) /* a constant on all votes of a component */
    for (int64_t c = 0; c < 24; c++)
      oracle_set(&s->x, 0, r / 6, r % 6, c,
                 oracle_get(&s->x, 0, r / 6, r % 6, c) + (double)(c % 3));
  promise_run(&s->does);
  for (int64_t e = 0; e < 6 * 24; e++)
    value_check(oracle_get(&s->y, 0, 0, e / 24, e % 24),
                oracle_get(&y, 0, 0, e / 24, e % 24) + (double)(e % 24 % 3), 2e-5, ATTN_F32,
                "moved", 0, 0, e / 24, e % 24);
  x.heads = 1;
  s = build(&x, &rng);
  s->em.no_act = 1;
  promise_run(&s->does);
  test_assert_near(s->y, s->x, 1e-6, "one head");
  /* tokens are by themselves */
  x.heads = 5, x.tokens = 20, x.dv = 6;
  s = build(&x, &rng);
  promise_run(&s->does);
  y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 20, 24);
  test_copy(y, s->y);
  for (int n = 0; n < 2; n++) {
    test_fill_row(s->x, 0, 3, 11, n ? 1e25 : (double)NAN);
    promise_run(&s->does);
    test_assert_same(test_rows(s->y, 0, 11), test_rows(y, 0, 11), "before NaN");
    test_assert_same(test_rows(s->y, 12, 8), test_rows(y, 12, 8), "after NaN");
    assert_true(isnan(oracle_get(&s->y, 0, 0, 11, 0)));
  }
}

void I8_promises(void **state) {
  (void)state;
  promises(1);
}

void I8_rejects(void **state) {
  (void)state;
  rejects(1);
  static const float bad[4] = {0, 0, INFINITY, 0};
  test_rng rng = test_seed(806);
  for (int n = 0; n < 8; n++, test_mem_release()) {
    shape x = plain(5, 6, 4, 3);
    x.by_em = 1;
    scene *s = build(&x, &rng);
    attn_status want = ATTN_E_VALUE;
    const char *word = "activation";
    s->em.activation = test_tensor(ATTN_F32, TEST_BHTD, 1, 5, 6, 1);
    test_fill_value(s->em.activation, 1);
    switch (n) {
      case 0: oracle_set(&s->em.activation, 0, 2, 3, 0, 0); break;
      case 1: oracle_set(&s->em.activation, 0, 2, 3, 0, (double)NAN); break;
      case 2: s->em.activation.heads = 4, want = ATTN_E_SHAPE; break;
      case 3: s->em.eps = -1, word = "eps"; break;
      case 4: s->em.eps = ATTN_ZERO, word = "eps"; break;
      case 5: s->em.betas = 3, want = ATTN_E_RANGE, word = "betas"; break;
      case 6: s->em.betas = 4, s->em.beta_u = bad, word = "beta_u"; break;
      default: s->em.lambda = bad, word = "lambda"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
