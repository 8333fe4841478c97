/* tests/calls/test_random.c owns reproducible random numbers and the matrices made of them: the vectors of
 * the definition, a second implementation of it, distributions, promises and rejections. */

#include "compound.h"

static const uint64_t gold = 0x9E3779B97F4A7C15u;

static uint64_t mix(uint64_t z) {
  z ^= z >> 30, z *= 0xBF58476D1CE4E5B9u;
  z ^= z >> 27, z *= 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

/* 1 / odd modulo 2^64, by Newton's iteration */
static uint64_t inverse(uint64_t odd) {
  uint64_t x = odd;
  for (int n = 0; n < 6; n++) x *= 2 - odd * x;
  return x;
}

static uint64_t unmix(uint64_t z) {
  z ^= z >> 31 ^ z >> 62, z *= inverse(0x94D049BB133111EBu);
  z ^= z >> 27 ^ z >> 54, z *= inverse(0xBF58476D1CE4E5B9u);
  return z ^ z >> 30 ^ z >> 60;
}

/* The counter at which stream 0 of seed 0 has the bits u. */
static uint64_t counter_of(uint64_t u) { return (unmix(u) - mix(gold)) * inverse(gold) - 1; }

static const struct {
  uint64_t seed;
  uint64_t draw, head, which, n, u;
  double normal;
  uint32_t bits;
} known[] = {{0, 0, 0, 0, 0, 0xa706dd2f4d197e6f, 0x1.91588c88ea018p-2, 0x3ec8ac46},
             {0, 0, 0, 0, 1, 0xb382a305f4414f5e, 0x1.0e47948215bb7p-1, 0x3f0723ca},
             {1, 0, 0, 0, 0, 0x5e41ab087439611e, -0x1.58bb60e4c33b3p-2, 0xbeac5db0},
             {42, 1, 2, 5, 3, 0x537c67696a3a54ca, -0x1.cd7a094963068p-2, 0xbee6bd05},
             {42, 0, 3, 1, 1000, 0x1b37900867790129, -0x1.3f114ad0c7773p+0, 0xbf9f88a5}};

void E0_random_vectors(void **state) {
  (void)state;
  static const int64_t below[] = {74, 169, 421, 899, 274, 175};
  assert_true(mix(gold) == 0xE220A8397B1DCDAFu && mix(2 * gold) == 0x6E789E6AA1B965F4u);
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    const uint64_t stream = ATTN_STREAM(known[i].draw, known[i].head, known[i].which);
    assert_true(attn_random_u64(known[i].seed, stream, known[i].n) == known[i].u);
    const double z = attn_random_normal(known[i].seed, stream, known[i].n);
    if (z != known[i].normal) fail_msg("normal %d is %a, not %a", (int)i, z, known[i].normal);
    const float f = (float)z;
    assert_memory_equal(&f, &known[i].bits, 4);
  }
  for (uint64_t n = 0; n < 6; n++)
    assert_true(attn_random_below(9, ATTN_STREAM(0, 0, 5), n, 1000) == below[n]);
  assert_true(attn_random_u64(0, 0, counter_of(0)) == 0);
  assert_true(attn_random_normal(0, 0, counter_of(0)) == -0x1.06b48528cea51p+3);
  assert_true(attn_random_normal(0, 0, counter_of(0x0fffffffffffffffu)) == -0x1.88bc1fbe1dac1p+0);
}

/* The definition once more, at random places; products of 128 bits by 16 at a time. */
void E0_random_integers(void **state) {
  (void)state;
  test_rng rng = test_seed(4100);
  for (int i = 0; i < 2000; i++) {
    const uint64_t seed = test_u64(&rng), stream = test_u64(&rng), n = test_u64(&rng);
    const uint64_t u = mix(mix(seed + gold * (stream + 1)) + gold * (n + 1));
    assert_true(attn_random_u64(seed, stream, n) == u);
    const int64_t limit = (int64_t)(test_u64(&rng) >> 1 >> test_range(&rng, 0, 62));
    uint64_t digit[8] = {0}; /* of the product, base 2^16 */
    for (int a = 0; a < 4; a++)
      for (int b = 0; b < 4; b++) {
        uint64_t t = (u >> 16 * a & 0xffff) * ((uint64_t)limit >> 16 * b & 0xffff);
        for (int c = a + b; t; c++) t += digit[c], digit[c] = t & 0xffff, t >>= 16;
      }
    const uint64_t high = digit[4] | digit[5] << 16 | digit[6] << 32 | digit[7] << 48;
    assert_true(attn_random_below(seed, stream, n, limit) == (int64_t)high);
  }
  assert_true(attn_random_below(1, 2, 3, 1) == 0 && attn_random_below(1, 2, 3, 0) == 0);
  assert_true(attn_random_below(1, 2, 3, -5) == 0);
}

/* The distribution function of z is the number it was made of; moments are those of a normal. */
void E0_random_normals(void **state) {
  (void)state;
  const int64_t count = test_count(100000, 20000);
  double sum = 0, square = 0, third = 0, fourth = 0;
  for (int64_t n = 0; n < count; n++) {
    const uint64_t u = attn_random_u64(11, 0, (uint64_t)n);
    const double z = attn_random_normal(11, 0, (uint64_t)n);
    const double p = ((double)(u >> 12) + 0.5) / 4503599627370496.0;
    const double back = p < 0.5 ? erfc(-z / sqrt(2)) / 2 : 1 - erfc(z / sqrt(2)) / 2;
    if (!(fabs(back - p) <= 3e-15 * p + 2e-16)) fail_msg("normal of %a is %a", p, z);
    sum += z, square += z * z, third += z * z * z, fourth += z * z * z * z;
  }
  const double s = 1 / sqrt((double)count), c = (double)count;
  assert_true(fabs(sum / c) < 5 * s && fabs(square / c - 1) < 5 * 1.5 * s);
  assert_true(fabs(third / c) < 5 * 4 * s && fabs(fourth / c - 3) < 5 * 10 * s);
  static const double far[] = {0x1p-53, 1e-12, 1e-9,          1e-7,
                               0.074,   0.076, 0.499999999999}; /* tails */
  for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
    const uint64_t k = (uint64_t)(far[i] * 4503599627370496.0);
    const double low = attn_random_normal(0, 0, counter_of(k << 12));
    const double high = attn_random_normal(0, 0, counter_of(~(k << 12)));
    const double p = ((double)k + 0.5) / 4503599627370496.0;
    assert_true(fabs(erfc(-low / sqrt(2)) / 2 - p) <= 1e-13 * p);
    assert_true(high == -low);
  }
}

/* ---- matrices -------------------------------------------------------------------------------*/

typedef struct scene {
  attn_tensor w;
  attn_random_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_random_features(s->w, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_random_features_workspace(s->w, &s->p, ctx);
}

static scene *matrix(int64_t heads, int64_t m, int64_t dk, uint64_t seed, test_layout layout) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->w = output(ATTN_F32, layout, 1, heads, m, dk, &s->does.block[0]);
  s->p.seed = seed;
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.out[0] = &s->w;
  return s;
}

/* The rule for one head, row by row from the first, as one would write it down. */
static double *rule(const scene *s, int64_t h) {
  const int64_t m = s->w.len, d = s->w.dim;
  double *w = test_mem((size_t)(m * d) * sizeof *w), *all = test_mem((size_t)(m * d) * sizeof *w);
  for (int64_t r = 0; r < m; r++) {
    double *v = all + r * d, mul = 0, square = 0;
    for (int64_t c = 0; c < d; c++) {
      v[c] = attn_random_normal(s->p.seed, ATTN_STREAM(s->p.draw, h, 0), (uint64_t)(r * d + c));
      const double g =
          attn_random_normal(s->p.seed, ATTN_STREAM(s->p.draw, h, 1), (uint64_t)(r * d + c));
      mul += g * g;
    }
    for (int twice = 0; twice < 2 && !s->p.gaussian; twice++)
      for (int64_t p = r / d * d; p < r; p++) {
        double a = 0;
        for (int64_t c = 0; c < d; c++) a += v[c] * all[p * d + c];
        for (int64_t c = 0; c < d; c++) v[c] -= a * all[p * d + c];
      }
    for (int64_t c = 0; c < d; c++) square += v[c] * v[c];
    if (s->p.unit_scale) mul = (double)d;
    for (int64_t c = 0; c < d; c++) {
      if (!s->p.gaussian) v[c] /= sqrt(square);
      w[r * d + c] = s->p.gaussian ? v[c] : sqrt(mul) * v[c];
    }
  }
  return w;
}

void E0_matrix_vectors(void **state) {
  (void)state;
  static const double want[5][3] = {{1.20629644, 0.789760053, 0.254846066},
                                    {0.426384985, -0.339443088, -0.966340601},
                                    {0.830876172, -1.56476498, 0.916262627},
                                    {-1.1836158, 1.54633021, -0.182515457},
                                    {-1.61279237, -1.11894929, 0.978884459}};
  static const double unit[3] = {1.42698908, 0.934247136, 0.301470309};
  scene *s = matrix(1, 5, 3, 7, TEST_BHTD);
  promise_run(&s->does);
  for (int64_t r = 0; r < 5; r++)
    for (int64_t c = 0; c < 3; c++) assert_true(oracle_get(&s->w, 0, 0, r, c) == (float)want[r][c]);
  s->p.unit_scale = 1;
  promise_run(&s->does);
  for (int64_t c = 0; c < 3; c++) assert_true(oracle_get(&s->w, 0, 0, 0, c) == (float)unit[c]);
}

void E0_matrix_random(void **state) {
  (void)state;
  test_rng rng = test_seed(4101);
  for (int64_t n = test_count(40, 12); n-- > 0; test_mem_release()) {
    const int64_t heads = test_range(&rng, 1, 3), m = test_range(&rng, 1, 40);
    const int64_t dk = n % 5 == 0 ? 1 : test_range(&rng, 1, 20);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = matrix(heads, m, dk, test_u64(&rng), (test_layout)(n % 4));
    test_where = TEST_HEAP;
    s->p.draw = n % 2 ? test_range(&rng, 0, 0xffffffff) : 0;
    s->p.gaussian = n % 4 == 3, s->p.unit_scale = n % 3 == 0;
    promise_run(&s->does);
    for (int64_t h = 0; h < heads; h++) {
      const double *w = rule(s, h);
      for (int64_t r = 0; r < m; r++) {
        double length = 0;
        for (int64_t c = 0; c < dk; c++) {
          const double got = oracle_get(&s->w, 0, h, r, c), want = w[r * dk + c];
          /* float32 values; the last place may move where an orthogonal row is ill-conditioned */
          if (!(fabs(got - want) <= 6.1e-8 * fabs(want) + (s->p.gaussian ? 0 : 1e-12)))
            fail_msg("row %d of head %d: %.9g, not %.9g", (int)r, (int)h, got, want);
          length += got * got;
        }
        if (s->p.gaussian) continue;
        if (s->p.unit_scale) assert_true(fabs(length / (double)dk - 1) < 1e-6);
        for (int64_t q = r / dk * dk; q < r; q++) {
          double dot = 0, other = 0;
          for (int64_t c = 0; c < dk; c++) {
            const double x = oracle_get(&s->w, 0, h, q, c);
            dot += x * oracle_get(&s->w, 0, h, r, c), other += x * x;
          }
          assert_true(fabs(dot) <= 1e-6 * sqrt(length * other));
        }
      }
    }
  }
}

/* Another head, draw or seed changes every number; rows of a smaller matrix are those of a larger. */
void E0_matrix_streams(void **state) {
  (void)state;
  for (int gaussian = 0; gaussian < 2; gaussian++) {
    scene *s = matrix(2, 23, 7, 5, TEST_BHTD), *t = matrix(2, 23, 7, 5, TEST_BHTD);
    scene *u = matrix(2, 23, 7, 6, TEST_BHTD), *few = matrix(1, 10, 7, 5, TEST_BHTD);
    s->p.gaussian = t->p.gaussian = u->p.gaussian = few->p.gaussian = gaussian;
    t->p.draw = 1;
    promise_run(&s->does), promise_run(&t->does), promise_run(&u->does), promise_run(&few->does);
    for (int64_t r = 0; r < 23; r++)
      for (int64_t c = 0; c < 7; c++) {
        const double x = oracle_get(&s->w, 0, 0, r, c);
        assert_true(x != oracle_get(&s->w, 0, 1, r, c));
        assert_true(x != oracle_get(&t->w, 0, 0, r, c) && x != oracle_get(&u->w, 0, 0, r, c));
        if (r < 10) assert_true(x == oracle_get(&few->w, 0, 0, r, c));
      }
  }
}

void E0_matrix_promises(void **state) {
  (void)state;
  for (int n = 0; n < 3; n++) {
    scene *s = matrix(3, n == 1 ? 200 : 40, 12, 3, TEST_PADDED);
    s->p.gaussian = n == 1, s->p.unit_scale = n == 2;
    promise_keep(&s->does);
  }
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_random_features(attn_bhtd(NULL, ATTN_F32, 1, 0, 4, 4), NULL, &ctx),
                   ATTN_OK);
  assert_int_equal(
      attn_random_features_workspace(attn_bhtd(NULL, ATTN_F32, 1, 0, 4, 4), NULL, &ctx), 0);
}

void E0_matrix_rejects(void **state) {
  (void)state;
  for (int n = 0; n < 10; n++) {
    scene *s = matrix(2, 9, 4, 1, TEST_BHTD);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "w ";
    switch (n) {
      case 0: s->w.data = NULL, want = ATTN_E_NULL, word = "w.data"; break;
      case 1: s->w.dtype = ATTN_F16, want = ATTN_E_DTYPE, word = "w.dtype"; break;
      case 2: s->w.batch = 2, s->w.stride_batch = 72; break;
      case 3: s->w.len = 0; break;
      case 4: s->w.dim = 0, word = "w.dim"; break;
      case 5: s->p.draw = -1, want = ATTN_E_RANGE, word = "params.draw"; break;
      case 6: s->p.draw = (int64_t)1 << 32, want = ATTN_E_RANGE, word = "params.draw"; break;
      case 7: s->w.stride_len = 3, want = ATTN_E_STRIDE; break;
      case 8: s->w.stride_head = INT64_MAX, want = ATTN_E_OVERFLOW; break;
      default: s->w.heads = -1, word = "w.batch"; break;
    }
    promise_reject(&s->does, want, word);
  }
  float w[64];
  attn_ctx ctx = test_ctx();
  ctx.workspace = w, ctx.workspace_size = sizeof w;
  assert_int_equal(attn_random_features(attn_bhtd(w, ATTN_F32, 1, 1, 2, 2), NULL, &ctx),
                   ATTN_E_OVERLAP);
}
