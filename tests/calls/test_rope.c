/* tests/calls/test_rope.c owns M4, rotary families: types of scaling, several positions a row, xPos, tables. */

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"

/* ---- the definition ---------------------------------------------------------------------------*/

static const double turn = 6.283185307179586476925;

static double ms(double factor, double x) { return factor <= 1 ? 1 : 0.1 * x * log(factor) + 1; }

static double yarn_dim(const attn_rope_params *p, double r, double base, double turns) {
  double orig = (double)p->original_max_position_embeddings;
  return r * log(orig / (turn * turns)) / (2 * log(base));
}

/* f_m of rows whose rotated width is r. */
static double frequency(const attn_rope_params *p, double r, int64_t m) {
  double base = p->base > 0 ? p->base : 10000, s = p->factor, e = 2.0 * (double)m / r;
  double orig = (double)p->original_max_position_embeddings;
  double most = (double)p->max_position_embeddings, len = (double)p->sequence_len;
  if (p->type == ATTN_ROPE_NTK && m > 0) base *= pow(s, r / (r - 2));
  if (p->type == ATTN_ROPE_DYNAMIC && m > 0 && len > most)
    base *= pow(s * len / most - (s - 1), r / (r - 2));
  double f = 1 / pow(base, e);
  if (p->type == ATTN_ROPE_LINEAR) return f / s;
  if (p->type == ATTN_ROPE_LLAMA3) {
    double wave = turn / f, lo = p->low_freq_factor, hi = p->high_freq_factor;
    if (wave > orig / lo) return f / s;
    if (wave < orig / hi) return f;
    double y = (orig / wave - lo) / (hi - lo);
    return (1 - y) * f / s + y * f;
  }
  if (p->type == ATTN_ROPE_YARN) {
    if (s == 0) s = most / orig;
    double low = yarn_dim(p, r, base, p->beta_fast > 0 ? p->beta_fast : 32);
    double high = yarn_dim(p, r, base, p->beta_slow > 0 ? p->beta_slow : 1);
    if (!p->no_truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, r - 1);
    if (low == high) high += 0.001;
    double ramp = fmin(fmax(((double)m - low) / (high - low), 0), 1);
    return f * (1 - ramp) + f / s * ramp;
  }
  if (p->type == ATTN_ROPE_LONGROPE)
    return f / (len > orig ? p->long_factor[m] : p->short_factor[m]);
  return f;
}

static double factor_of(const attn_rope_params *p) {
  double orig = (double)p->original_max_position_embeddings;
  double most = (double)p->max_position_embeddings, s = p->factor;
  if (p->attention_factor > 0) return p->attention_factor;
  if (p->type == ATTN_ROPE_YARN) {
    if (s == 0) s = most / orig;
    if (p->mscale > 0 && p->mscale_all_dim > 0) return ms(s, p->mscale) / ms(s, p->mscale_all_dim);
    return ms(s, 1);
  }
  if (p->type == ATTN_ROPE_LONGROPE) {
    double by = p->max_position_embeddings ? most / orig : s;
    return by <= 1 ? 1 : sqrt(1 + log(by) / log(orig));
  }
  return 1;
}

static int sections(const attn_rope_params *p) {
  return p->mrope_section[0] || p->mrope_section[1] || p->mrope_section[2];
}

/* Which of a row's positions turns pair m of `pairs`. */
static int axis_of(const attn_rope_params *p, int64_t pairs, int64_t m) {
  const int64_t *s = p->mrope_section;
  if (p->axial) return m < pairs / 2 ? 0 : 1;
  if (!sections(p)) return 0;
  if (!p->mrope_interleaved) return m < s[0] ? 0 : m < s[0] + s[1] ? 1 : 2;
  if (m % 3 == 1 && m < 3 * s[1]) return 1;
  if (m % 3 == 2 && m < 3 * s[2]) return 2;
  return 0;
}

/* Position of row i of entry b on an axis. */
static double place_of(const attn_rope_params *p, const attn_tensor *x, int axis, int64_t b,
                       int64_t i) {
  int64_t sets = p->positions_per_batch ? x->batch : 1, set = p->positions_per_batch ? b : 0;
  int64_t at = (axis * sets + set) * x->len + i;
  if (p->positions) return (double)p->positions[at];
  if (p->real_positions) return p->real_positions[at];
  return (double)(p->start + i);
}

/* Cosine and sine of pair m of a row, factors in them; *size what they are times. */
static void pair_of(const attn_rope_params *p, const attn_tensor *x, int64_t rot, int64_t m,
                    int64_t b, int64_t i, double *cosine, double *sine, double *size) {
  int64_t pairs = rot / 2;
  double at = place_of(p, x, axis_of(p, pairs, m), b, i);
  if (p->cos.data) {
    *cosine = oracle_get(&p->cos, 0, 0, (int64_t)at, m);
    *sine = oracle_get(&p->sin, 0, 0, (int64_t)at, m);
    *size = hypot(*cosine, *sine);
  } else {
    double r = (double)rot, own = p->axial ? r / 2 : r;
    int64_t n = p->axial && m >= pairs / 2 ? m - pairs / 2 : m;
    double phi = at * frequency(p, own, n);
    *size = factor_of(p);
    if (p->xpos > 0) *size *= pow((2 * (double)m / r + 0.4) / 1.4, (p->keys ? -at : at) / p->xpos);
    *cosine = *size * cos(phi), *sine = *size * sin(phi);
  }
  if (p->inverse) *sine = -*sine;
}

static void compare(attn_tensor y, attn_tensor x, const attn_rope_params *p) {
  int64_t rot = p->has_rotary_dim || p->rotary_dim ? p->rotary_dim : x.dim;
  for (int64_t b = 0; b < x.batch; b++)
    for (int64_t i = 0; i < x.len; i++)
      for (int64_t c = 0; c < x.dim; c++) {
        int half = p->layout == ATTN_ROPE_HALF, second = half ? c >= rot / 2 : (int)(c & 1);
        int64_t m = half ? c % (rot / 2 + !rot) : c / 2;
        int64_t mate = half ? (second ? c - rot / 2 : c + rot / 2) : c ^ 1;
        double co = 1, si = 0, size = 0;
        if (c < rot) pair_of(p, &x, rot, m, b, i, &co, &si, &size);
        for (int64_t h = 0; h < x.heads; h++) {
          double own = oracle_get(&x, b, h, i, c), want = own, unit = 0;
          double other = c < rot ? oracle_get(&x, b, h, i, mate) : 0;
          if (c < rot) want = second ? other * si + own * co : own * co - other * si;
          double got = oracle_get(&y, b, h, i, c);
          if (y.dtype == ATTN_F16) unit = fabs(want) * 4.9e-4 + 3e-8;
          if (y.dtype == ATTN_BF16) unit = fabs(want) * 3.92e-3;
          if (fabs(got - want) <= hypot(own, other) * size * 5e-7 + unit) continue;
          fail_msg("type %d, row %d, column %d of %d (rot %d): %.9g, not %.9g", (int)p->type,
                   (int)i, (int)c, (int)x.dim, (int)rot, got, want);
        }
      }
}

/* ---- cases ------------------------------------------------------------------------------------*/

static void turns_ok(attn_tensor y, attn_tensor x, const attn_rope_params *p) {
  attn_ctx ctx = test_ctx();
  attn_status status = attn_rope(y, x, p, &ctx);
  if (status != ATTN_OK) fail_msg("attn_rope: %s", ctx.reason ? ctx.reason : "(null)");
  assert_int_equal(ctx.report.isa, test_isa);
}

/* A legal description of each type for width r, which must be even. */
static attn_rope_params rule(test_rng *rng, int type, int64_t r) {
  attn_rope_params p;
  memset(&p, 0, sizeof p);
  p.type = (attn_rope_type)type;
  p.base = type % 2 ? 0 : 500000;
  p.factor = 1 + (double)test_range(rng, 0, 40) / 4;
  p.max_position_embeddings = test_range(rng, 1, 9) * 1024;
  p.original_max_position_embeddings = test_range(rng, 2, 64) * 64;
  p.low_freq_factor = 1 + (double)test_range(rng, 0, 3) / 2;
  p.high_freq_factor = p.low_freq_factor + (double)test_range(rng, 1, 9) / 2;
  p.sequence_len = test_range(rng, 1, 20000);
  if (type == ATTN_ROPE_YARN) {
    const int64_t ends = test_range(rng, 0, 5); /* the ramp may leave the pairs, or have no width */
    if (ends == 0) p.base = 3, p.original_max_position_embeddings = 1 << 20;
    if (ends == 1) p.original_max_position_embeddings = test_range(rng, 2, 12);
    p.no_truncate = (int)test_range(rng, 0, 1);
    if (test_range(rng, 0, 1)) p.beta_fast = 24, p.beta_slow = 2;
    if (test_range(rng, 0, 1)) p.mscale = 0.707, p.mscale_all_dim = test_range(rng, 0, 1) ? 0.5 : 0;
    if (test_range(rng, 0, 2) == 0)
      p.factor = 0, p.max_position_embeddings = 3 * p.original_max_position_embeddings;
  }
  if (type == ATTN_ROPE_LONGROPE) {
    double *by = test_mem((size_t)(2 * r + 2) * sizeof *by);
    for (int64_t m = 0; m < r; m++) by[m] = 1 + (double)test_range(rng, 0, 99) / 8;
    p.short_factor = by, p.long_factor = by + r / 2, p.factors = r / 2;
    if (test_range(rng, 0, 1)) p.max_position_embeddings = 0;
  }
  if (test_range(rng, 0, 4) == 0) p.attention_factor = 1.25;
  return p;
}

static void take_positions(attn_rope_params *p, test_rng *rng, int64_t batch, int64_t len, int axes,
                           int64_t most) {
  p->positions_per_batch = (int)test_range(rng, 0, 1);
  int64_t n = axes * (p->positions_per_batch ? batch : 1) * len;
  int64_t *whole = test_mem((size_t)n * sizeof *whole + 1);
  double *real = test_mem((size_t)n * sizeof *real + 1);
  for (int64_t i = 0; i < n; i++) {
    whole[i] = test_range(rng, -most, most);
    real[i] = (double)test_range(rng, -4 * most, 4 * most) / 4;
  }
  if (test_range(rng, 0, 1))
    p->positions = whole;
  else
    p->real_positions = real;
}

void M4_random_rotations(void **state) {
  (void)state;
  test_rng rng = test_seed(1801);
  for (int64_t n = test_count(240, 80); n-- > 0;) {
    int64_t t = test_range(&rng, 1, 37), d = test_range(&rng, 1, 140), b = test_range(&rng, 1, 3);
    attn_dtype from = (attn_dtype)(n % 3), to = (attn_dtype)(n / 3 % 3);
    attn_tensor x = test_tensor(from, (test_layout)(n % TEST_LAYOUTS), b, 3, t, d);
    attn_tensor y = test_tensor(to, (test_layout)(n % 4), b, 3, t, d);
    test_fill(x, &rng, test_normal);
    int64_t r = 2 * test_range(&rng, 0, d / 2);
    int axes = (int)test_range(&rng, 1, 3);
    if (axes == 2) r = r / 4 * 4;
    attn_rope_params p = rule(&rng, (int)(n % ATTN_ROPE_TYPES), axes == 2 ? r / 2 : r);
    p.rotary_dim = r, p.has_rotary_dim = 1;
    p.layout = n & 1 ? ATTN_ROPE_HALF : ATTN_ROPE_INTERLEAVED, p.inverse = (int)(n >> 1 & 1);
    p.start = test_range(&rng, -99, 20000);
    p.axial = axes == 2;
    if (axes == 3 && r > 0) {
      p.mrope_section[1] = test_range(&rng, 0, r / 2);
      p.mrope_section[2] = test_range(&rng, 0, r / 2 - p.mrope_section[1]);
      p.mrope_section[0] = r / 2 - p.mrope_section[1] - p.mrope_section[2];
      p.mrope_interleaved = (int)test_range(&rng, 0, 1);
    }
    if (axes == 3 && r == 0) axes = 1;
    if (p.axial || test_range(&rng, 0, 1)) take_positions(&p, &rng, b, t, axes, 3000);
    if (test_range(&rng, 0, 2) == 0) {
      p.xpos = 512, p.keys = (int)test_range(&rng, 0, 1);
      p.start = test_range(&rng, -99, 3000); /* where f16 holds the factors */
    }
    turns_ok(y, x, &p);
    compare(y, x, &p);
    test_mem_release();
  }
}

/* Frequencies of published configurations, made by transformers 5.23 (in f32): f_1, f_n/4, f_n/2, f_n*3/4,
 * f_n-1, and the factor. */
void M4_published_numbers(void **state) {
  (void)state;
  double by[96];
  static const double yarn_ms = 1.138629436112;
  static const struct {
    int dim;
    attn_rope_params p;
    double f[5], factor;
  } known[] = {{128, /* Llama 3.1 */
                {.type = ATTN_ROPE_LLAMA3,
                 .base = 500000,
                 .factor = 8,
                 .low_freq_factor = 1,
                 .high_freq_factor = 4,
                 .original_max_position_embeddings = 8192,
                 .max_position_embeddings = 131072},
                {0.814617217, 0.0376060307, 0.000524846022, 6.64786967e-06, 3.06892588e-07},
                1},
               {64, /* Llama 3.2 1B */
                {.type = ATTN_ROPE_LLAMA3,
                 .base = 500000,
                 .factor = 32,
                 .low_freq_factor = 1,
                 .high_freq_factor = 4,
                 .original_max_position_embeddings = 8192},
                {0.663601279, 0.0376060307, 0.000429556705, 1.66196742e-06, 9.41830649e-08},
                1},
               {64, /* DeepSeek-V3 */
                {.type = ATTN_ROPE_YARN,
                 .factor = 40,
                 .beta_fast = 32,
                 .beta_slow = 1,
                 .mscale = 1,
                 .mscale_all_dim = 1,
                 .original_max_position_embeddings = 4096},
                {0.749894202, 0.100000001, 0.00550000044, 2.49999994e-05, 3.33380353e-06},
                1},
               {64, /* the same with other mscale */
                {.type = ATTN_ROPE_YARN,
                 .max_position_embeddings = 163840,
                 .mscale = 0.707,
                 .mscale_all_dim = 0.5,
                 .original_max_position_embeddings = 4096},
                {0.749894202, 0.100000001, 0.00550000044, 2.49999994e-05, 3.33380353e-06},
                1.064468903941},
               {128, /* Qwen2.5 */
                {.type = ATTN_ROPE_YARN,
                 .base = 1000000,
                 .factor = 4,
                 .original_max_position_embeddings = 32768},
                {0.805842221, 0.0316227786, 0.000602941145, 7.90569356e-06, 3.10234441e-07},
                yarn_ms},
               {64, /* gpt-oss */
                {.type = ATTN_ROPE_YARN,
                 .base = 150000,
                 .factor = 32,
                 .no_truncate = 1,
                 .original_max_position_embeddings = 4096},
                {0.689044297, 0.0508132726, 0.000456483918, 4.09997847e-06, 3.0235114e-07},
                1.346573590280},
               {128,
                {.type = ATTN_ROPE_LINEAR, .factor = 4},
                {0.216491088, 0.0250000004, 0.00249999994, 0.000250000012, 2.88695483e-05},
                1},
               {128,
                {.type = ATTN_ROPE_DYNAMIC,
                 .factor = 2,
                 .max_position_embeddings = 4096,
                 .sequence_len = 100},
                {0.865964353, 0.100000001, 0.00999999978, 0.00100000005, 0.000115478193},
                1},
               {128,
                {.type = ATTN_ROPE_DYNAMIC,
                 .factor = 2,
                 .max_position_embeddings = 4096,
                 .sequence_len = 10000},
                {0.847517073, 0.0708558187, 0.00502054673, 0.000355734926, 2.9740866e-05},
                1},
               {96, /* Phi-3-mini-128k, with the factors of the frequencies named here */
                {.type = ATTN_ROPE_LONGROPE,
                 .max_position_embeddings = 131072,
                 .original_max_position_embeddings = 4096,
                 .sequence_len = 4096},
                {0.786099255, 0.0500000007, 0.00499999989, 0.000476190471, 4.1068728e-05},
                1.190238071424},
               {96,
                {.type = ATTN_ROPE_LONGROPE,
                 .max_position_embeddings = 131072,
                 .original_max_position_embeddings = 4096,
                 .sequence_len = 4097},
                {0.736967981, 0.0100704934, 0.00018635852, 1.56648002e-05, 1.87079604e-06},
                1.190238071424}};
  for (int i = 0; i < 96; i++) by[i] = 1;
  by[1] = 1.05, by[12] = 2, by[24] = 2, by[36] = 2.1, by[47] = 2.9499999999999975;
  by[49] = 1.1200000047683716, by[60] = 9.930000305175781, by[72] = 53.66000747680664;
  by[84] = 63.83739471435547, by[95] = 64.76000213623047;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    attn_rope_params p = known[i].p;
    double f[64], factor = 0;
    const int n = known[i].dim / 2, at[5] = {1, n / 4, n / 2, n * 3 / 4, n - 1};
    if (p.type == ATTN_ROPE_LONGROPE) p.short_factor = by, p.long_factor = by + 48, p.factors = 48;
    assert_int_equal(attn_rope_frequencies(f, &factor, &p, known[i].dim), ATTN_OK);
    for (int m = 0; m < 5; m++)
      if (fabs(f[at[m]] / known[i].f[m] - 1) > 4e-7)
        fail_msg("configuration %d, frequency %d: %.12g, not %.9g", (int)i, at[m], f[at[m]],
                 known[i].f[m]);
    if (fabs(factor / known[i].factor - 1) > 1e-11)
      fail_msg("configuration %d: factor %.13g, not %.13g", (int)i, factor, known[i].factor);
  }
}

void M4_frequencies(void **state) {
  (void)state;
  test_rng rng = test_seed(1802);
  double f[70];
  for (int n = 0; n < 400; n++) {
    int64_t d = test_range(&rng, 4, 139), r = test_range(&rng, 1, d / 4) * 4, axial = n % 5 == 0;
    attn_rope_params p = rule(&rng, n % ATTN_ROPE_TYPES, axial ? r / 2 : r);
    double factor = 0, own = axial ? (double)r / 2 : (double)r;
    p.rotary_dim = r, p.axial = (int)axial;
    for (int i = 0; i < 70; i++) f[i] = -7;
    assert_int_equal(attn_rope_frequencies(f, &factor, &p, d), ATTN_OK);
    for (int64_t m = 0; m < r / 2; m++) {
      double want = frequency(&p, own, axial ? m % (r / 4) : m);
      if (fabs(f[m] / want - 1) > 1e-12)
        fail_msg("type %d, frequency %d of %d: %.15g, not %.15g", (int)p.type, (int)m, (int)r / 2,
                 f[m], want);
    }
    assert_true(r / 2 >= 70 || f[r / 2] == -7);
    assert_true(fabs(factor / factor_of(&p) - 1) < 1e-14);
    assert_int_equal(attn_rope_frequencies(NULL, NULL, &p, d), ATTN_OK);
    test_mem_release();
  }
  attn_rope_params none;
  double want[8], factor = 0;
  memset(&none, 0, sizeof none);
  assert_int_equal(attn_rope_frequencies(f, &factor, NULL, 16), ATTN_OK);
  assert_int_equal(attn_rope_frequencies(want, NULL, &none, 16), ATTN_OK);
  assert_memory_equal(f, want, sizeof want);
  assert_true(factor == 1 && f[0] == 1 && fabs(f[4] - 0.01) < 1e-15);
  none.type = ATTN_ROPE_YARN, f[0] = factor = -7;
  assert_int_equal(attn_rope_frequencies(f, &factor, &none, 16), ATTN_E_VALUE);
  assert_int_equal(attn_rope_frequencies(f, &factor, NULL, 0), ATTN_E_SHAPE);
  assert_int_equal(attn_rope_frequencies(f, &factor, NULL, 7), ATTN_E_RANGE);
  assert_true(f[0] == -7 && factor == -7);
  assert_true(attn_rope_mscale(40, 1) == 0.1 * log(40) + 1 && attn_rope_mscale(0.5, 3) == 1 &&
              attn_rope_mscale(1, 3) == 1);
}

void M4_words(void **state) {
  (void)state;
  assert_int_equal(attn_rope_type_of("default"), ATTN_ROPE_DEFAULT);
  assert_int_equal(attn_rope_type_of("mrope"), ATTN_ROPE_DEFAULT);
  assert_int_equal(attn_rope_type_of("linear"), ATTN_ROPE_LINEAR);
  assert_int_equal(attn_rope_type_of("ntk"), ATTN_ROPE_NTK);
  assert_int_equal(attn_rope_type_of("dynamic"), ATTN_ROPE_DYNAMIC);
  assert_int_equal(attn_rope_type_of("llama3"), ATTN_ROPE_LLAMA3);
  assert_int_equal(attn_rope_type_of("yarn"), ATTN_ROPE_YARN);
  assert_int_equal(attn_rope_type_of("longrope"), ATTN_ROPE_LONGROPE);
  assert_int_equal(attn_rope_type_of("su"), ATTN_ROPE_LONGROPE);
  assert_int_equal(attn_rope_type_of("Yarn"), ATTN_ROPE_TYPES);
  assert_int_equal(attn_rope_type_of(""), ATTN_ROPE_TYPES);
  assert_int_equal(attn_rope_type_of(NULL), ATTN_ROPE_TYPES);
}

static attn_rope_params plain(void) {
  attn_rope_params p;
  memset(&p, 0, sizeof p);
  return p;
}

/* factor 1 (dynamic: a short sequence; LongRoPE: factors of 1), equal positions, and a section of all pairs
 * leave the default, bit for bit. */
void M4_neutral_is_default(void **state) {
  (void)state;
  test_rng rng = test_seed(1803);
  enum { T = 67, D = 48 };
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 2, 3, T, D);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 2, 3, T, D);
  attn_tensor z = test_tensor(ATTN_F32, TEST_BHTD, 2, 3, T, D);
  double one[D / 2];
  int64_t same[3 * T];
  for (int i = 0; i < D / 2; i++) one[i] = 1;
  for (int i = 0; i < 3 * T; i++) same[i] = 1000 + i % T;
  test_fill(x, &rng, test_normal);
  attn_rope_params p = plain();
  p.start = 1000;
  turns_ok(z, x, &p);
  for (int n = 0; n < ATTN_ROPE_TYPES + 6; n++) {
    p = plain();
    p.start = 1000, p.factor = 1;
    p.max_position_embeddings = p.original_max_position_embeddings = 1024;
    p.low_freq_factor = 1, p.high_freq_factor = 4;
    p.short_factor = p.long_factor = one, p.factors = D / 2;
    if (n < ATTN_ROPE_TYPES) p.type = (attn_rope_type)n, p.sequence_len = 1024;
    if (n == ATTN_ROPE_DYNAMIC) p.factor = 4;
    if (n >= ATTN_ROPE_TYPES) {
      p.mrope_section[0] = 8, p.mrope_section[1] = 9, p.mrope_section[2] = 7;
      p.mrope_interleaved = n & 1;
    }
    if (n >= ATTN_ROPE_TYPES + 2) p.positions = same;
    if (n >= ATTN_ROPE_TYPES + 4)
      p.mrope_section[0] = 24, p.mrope_section[1] = p.mrope_section[2] = 0;
    turns_ok(y, x, &p);
    char what[32];
    snprintf(what, sizeof what, "neutral %d", n);
    test_assert_same(y, z, what);
  }
}

/* Pairs (1, 0) show cosine and sine: their error at far positions. */
void M4_far_positions(void **state) {
  (void)state;
  test_rng rng = test_seed(1804);
  enum { T = 33, D = 128 };
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
  for (int64_t i = 0; i < T; i++)
    for (int64_t c = 0; c < D; c++) oracle_set(&x, 0, 0, i, c, c % 2 ? 0 : 1);
  for (int type = 0; type < ATTN_ROPE_TYPES; type++)
    for (int n = 0; n < 4; n++) {
      attn_rope_params p = rule(&rng, type, D);
      double f[D / 2], a = 0, real[T];
      p.start = n == 0 ? 999990 : n == 1 ? -1000001 : 123457;
      for (int i = 0; i < T; i++) real[i] = 1e6 - i / 3.0;
      if (n == 3) p.real_positions = real;
      assert_int_equal(attn_rope_frequencies(f, &a, &p, D), ATTN_OK);
      turns_ok(y, x, &p);
      for (int64_t i = 0; i < T; i++)
        for (int64_t m = 0; m < D / 2; m++) {
          long double phi = (long double)place_of(&p, &x, 0, 0, i) * (long double)f[m];
          double co = (double)cosl(phi), si = (double)sinl(phi);
          double away = fmax(fabs(oracle_get(&y, 0, 0, i, 2 * m) / a - co),
                             fabs(oracle_get(&y, 0, 0, i, 2 * m + 1) / a - si));
          if (!(away < 2e-7)) fail_msg("type %d, row %d, pair %d: %g", type, (int)i, (int)m, away);
        }
    }
}

static double dot(attn_tensor a, attn_tensor b, int64_t i, int64_t j) {
  double sum = 0;
  for (int64_t c = 0; c < a.dim; c++)
    sum += oracle_get(&a, 0, 0, i, c) * oracle_get(&b, 0, 0, j, c);
  return sum;
}

/* <R x, y> = <x, inverse y>, and back and forth is the square of the factor. */
void M4_inverse_is_transpose(void **state) {
  (void)state;
  test_rng rng = test_seed(1805);
  enum { T = 9, D = 32 };
  attn_tensor x[2], y[2];
  for (int i = 0; i < 2; i++) {
    x[i] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
    y[i] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
    test_fill(x[i], &rng, test_normal);
  }
  for (int n = 0; n < 2 * ATTN_ROPE_TYPES; n++) {
    attn_rope_params p = rule(&rng, n / 2, D);
    double a = 0;
    p.start = 77, p.attention_factor = 1.5;
    if (n & 1) p.xpos = 512, p.mrope_section[0] = 4, p.mrope_section[2] = 12;
    turns_ok(y[0], x[0], &p);
    p.inverse = 1;
    turns_ok(y[1], x[1], &p);
    for (int64_t i = 0; i < T; i++)
      assert_true(fabs(dot(y[0], x[1], i, i) - dot(x[0], y[1], i, i)) < 1e-4);
    if (n & 1) continue;
    assert_int_equal(attn_rope_frequencies(NULL, &a, &p, D), ATTN_OK);
    turns_ok(y[1], y[0], &p);
    for (int64_t i = 0; i < T; i++)
      for (int64_t c = 0; c < D; c++)
        assert_true(fabs(oracle_get(&y[1], 0, 0, i, c) - a * a * oracle_get(&x[0], 0, 0, i, c)) <
                    5e-6);
  }
}

/* Scores of xPos go by distance: they decay as z^(distance/512), and a shift of all positions leaves them. */
void M4_xpos_scores(void **state) {
  (void)state;
  test_rng rng = test_seed(1806);
  enum { T = 40, D = 64 };
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
  attn_tensor q[3], k[3];
  static const int64_t start[3] = {0, -20, 7000};
  for (int64_t i = 0; i < T; i++)
    for (int64_t c = 0; c < D; c++) oracle_set(&x, 0, 0, i, c, test_exact(&rng));
  for (int n = 0; n < 3; n++) {
    attn_rope_params p = plain();
    p.xpos = 512, p.start = start[n], p.layout = ATTN_ROPE_HALF;
    q[n] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
    k[n] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, D);
    turns_ok(q[n], x, &p);
    p.keys = 1;
    turns_ok(k[n], x, &p);
  }
  for (int64_t i = 0; i < T; i++)
    for (int64_t j = 0; j <= i; j++)
      for (int n = 1; n < 3; n++)
        assert_true(fabs(dot(q[0], k[0], i, j) - dot(q[n], k[n], i, j)) < 2e-4);
  /* one pair alone: its decay */
  for (int64_t i = 0; i < T; i++)
    for (int64_t c = 0; c < D; c++) oracle_set(&x, 0, 0, i, c, c == 5 ? 1 : 0);
  attn_rope_params p = plain();
  p.xpos = 512, p.layout = ATTN_ROPE_HALF;
  turns_ok(q[0], x, &p);
  p.keys = 1;
  turns_ok(k[0], x, &p);
  double z = (2 * 5 / 64.0 + 0.4) / 1.4, f = pow(10000, -10 / 64.0);
  for (int64_t i = 0; i < T; i++)
    assert_true(fabs(dot(q[0], k[0], i, 0) - pow(z, (double)i / 512) * cos((double)i * f)) < 1e-6);
}

/* The length of the whole sequence decides, not the position of a row. */
void M4_whole_length_decides(void **state) {
  (void)state;
  test_rng rng = test_seed(1807);
  enum { T = 20, D = 24 };
  static const int types[2] = {ATTN_ROPE_DYNAMIC, ATTN_ROPE_LONGROPE};
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, D);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, D);
  test_fill(x, &rng, test_normal);
  for (int n = 0; n < 2; n++)
    for (int64_t len = 1023; len <= 1025; len++) {
      attn_rope_params p = rule(&rng, types[n], D);
      double f[D / 2], start[D / 2];
      p.max_position_embeddings = p.original_max_position_embeddings = 1024, p.factor = 3;
      p.sequence_len = len;
      p.start = n ? 0 : 5000;
      turns_ok(y, x, &p);
      compare(y, x, &p);
      attn_rope_frequencies(f, NULL, &p, D);
      p.sequence_len = 1;
      attn_rope_frequencies(start, NULL, &p, D);
      assert_int_equal(memcmp(f, start, sizeof f) != 0, len > 1024);
    }
}

/* Given tables: any strides, repeated and far rows, several positions a row; what no row names is not read. */
void M4_tables(void **state) {
  (void)state;
  test_rng rng = test_seed(1808);
  for (int64_t n = test_count(60, 20); n-- > 0;) {
    int64_t t = test_range(&rng, 1, 20), d = test_range(&rng, 2, 70), rows = t + 30;
    int64_t r = 2 * test_range(&rng, 1, d / 2), axes = n % 3 == 2 ? 3 : 1;
    attn_tensor x = test_tensor(ATTN_F32, TEST_BTHD, 2, 3, t, d);
    attn_tensor y = test_tensor((attn_dtype)(n % 3), TEST_BHTD, 2, 3, t, d);
    attn_rope_params p = plain();
    p.rotary_dim = r, p.layout = n & 1 ? ATTN_ROPE_HALF : ATTN_ROPE_INTERLEAVED;
    p.inverse = (int)(n >> 2 & 1);
    p.cos = test_tensor(ATTN_F32, (test_layout)(n % 3), 1, 1, rows, r / 2);
    p.sin = test_tensor(ATTN_F32, (test_layout)((n + 1) % 3), 1, 1, rows, r / 2);
    test_fill(x, &rng, test_normal), test_fill(p.cos, &rng, test_normal);
    test_fill(p.sin, &rng, test_normal);
    for (int64_t c = 0; c < r / 2; c++) {
      oracle_set(&p.cos, 0, 0, rows - 1, c, (double)NAN);
      oracle_set(&p.sin, 0, 0, 0, c, (double)NAN);
    }
    p.start = 1 + test_range(&rng, 0, 28);
    if (axes == 3)
      p.mrope_section[0] = r / 2 - r / 4, p.mrope_section[1] = r / 4, p.mrope_interleaved = 1;
    if (axes == 3 || n % 2) {
      int64_t *at = test_mem((size_t)(axes * t) * sizeof *at);
      for (int64_t i = 0; i < axes * t; i++) at[i] = test_range(&rng, 1, rows - 2);
      p.positions = at;
    }
    turns_ok(y, x, &p);
    compare(y, x, &p);
    test_mem_release();
  }
}

/* Rows by themselves, all at once, any number of workers, the workspace of the query: the same bits. */
void M4_rows_and_workers(void **state) {
  (void)state;
  test_rng rng = test_seed(1809);
  enum { T = 131, D = 40 };
  attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, T, D);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, T, D);
  attn_tensor z = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, T, D);
  int64_t at[3 * T];
  test_fill(x, &rng, test_normal);
  for (int i = 0; i < 3 * T; i++) at[i] = test_range(&rng, 0, 500);
  for (int n = 0; n < 2 * ATTN_ROPE_TYPES; n++) {
    attn_rope_params p = rule(&rng, n / 2, D);
    p.start = -300, p.xpos = n & 1 ? 512 : 0;
    if (n & 1) {
      p.mrope_section[0] = 8, p.mrope_section[1] = p.mrope_section[2] = 6;
      p.mrope_interleaved = 1, p.positions = at;
    }
    turns_ok(z, x, &p);
    for (int workers = 1; workers <= 7; workers += 2) {
      attn_ctx ctx = test_ctx();
      ctx.workers = workers, ctx.parallel_for = test_parallel_threads;
      ctx.workspace_size = attn_rope_workspace(y, x, &p, &ctx);
      ctx.workspace = test_mem(ctx.workspace_size);
      assert_int_equal(attn_rope(y, x, &p, &ctx), ATTN_OK);
      test_assert_same(y, z, "workers");
      ctx.workspace_size--;
      assert_int_equal(attn_rope(y, x, &p, &ctx), ATTN_E_WORKSPACE);
    }
    for (int64_t i = 0; i < T; i += 13) {
      attn_rope_params one = p;
      int64_t here[3] = {at[i], at[T + i], at[2 * T + i]};
      one.start += i;
      if (p.positions) one.positions = here;
      turns_ok(test_rows(y, i, 1), test_rows(x, i, 1), &one);
    }
    test_assert_same(y, z, "rows by themselves");
  }
}

void M4_rejects(void **state) {
  (void)state;
  enum { T = 7, D = 16, CASES = 59 };
  for (int n = 0; n < CASES; n++) {
    test_rng rng = test_seed(1810);
    attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, D);
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, D);
    test_block out = test_last_block;
    attn_tensor table = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 10, D / 2);
    test_fill(x, &rng, test_normal), test_fill(table, &rng, test_normal);
    double one[D / 2];
    int64_t at[3 * T] = {0};
    for (int i = 0; i < D / 2; i++) one[i] = 1;
    attn_rope_params p = plain();
    attn_status want = ATTN_E_VALUE;
    p.factor = 2, p.max_position_embeddings = 4096, p.original_max_position_embeddings = 1024;
    p.low_freq_factor = 1, p.high_freq_factor = 4, p.sequence_len = 2000;
    p.short_factor = p.long_factor = one, p.factors = D / 2;
    const int low = n / 6; /* types 1 .. 6 lack a good factor */
    if (n < 24) p.type = (attn_rope_type)(1 + n % 6);
    if (low == 0) p.factor = 0.5;
    if (low == 1) p.factor = (double)NAN;
    if (low == 2) p.factor = (double)INFINITY;
    if (low == 3) p.factor = -2;
    if (n == 24) p.type = ATTN_ROPE_LINEAR, p.factor = 0;
    if (n == 25) p.type = ATTN_ROPE_NTK, p.factor = 0;
    if (n == 26) p.type = ATTN_ROPE_DYNAMIC, p.factor = 0;
    if (n == 27) p.type = ATTN_ROPE_LLAMA3, p.factor = 0;
    if (n == 28) p.type = ATTN_ROPE_YARN, p.factor = 0, p.max_position_embeddings = 0;
    if (n == 29) p.type = ATTN_ROPE_YARN, p.factor = 0, p.max_position_embeddings = 1023;
    if (n == 30) p.type = ATTN_ROPE_LONGROPE, p.factor = 0, p.max_position_embeddings = 0;
    if (n == 31) p.type = ATTN_ROPE_DYNAMIC, p.max_position_embeddings = 0;
    if (n == 32) p.type = ATTN_ROPE_DYNAMIC, p.sequence_len = 0;
    if (n == 33) p.type = ATTN_ROPE_LONGROPE, p.sequence_len = 0;
    if (n == 34) p.type = ATTN_ROPE_LLAMA3, p.original_max_position_embeddings = 0;
    if (n == 35) p.type = ATTN_ROPE_YARN, p.original_max_position_embeddings = 0;
    if (n == 36) p.type = ATTN_ROPE_LONGROPE, p.original_max_position_embeddings = 1;
    if (n == 37) p.type = ATTN_ROPE_LLAMA3, p.low_freq_factor = 0;
    if (n == 38) p.type = ATTN_ROPE_LLAMA3, p.high_freq_factor = 1;
    if (n == 39) p.type = ATTN_ROPE_YARN, p.beta_slow = 33;
    if (n == 40) p.type = ATTN_ROPE_YARN, p.mscale = -1;
    if (n == 41) p.type = ATTN_ROPE_LONGROPE, one[3] = 0;
    if (n == 42) p.attention_factor = -1;
    if (n == 43) p.xpos = -1;
    if (n == 44) p.type = ATTN_ROPE_TYPES, want = ATTN_E_RANGE;
    if (n == 45) p.type = (attn_rope_type)-1, want = ATTN_E_RANGE;
    if (n == 46) p.mrope_section[0] = p.mrope_section[2] = 3, want = ATTN_E_RANGE;
    if (n == 47) p.mrope_section[0] = 9, p.mrope_section[1] = -1, want = ATTN_E_RANGE;
    if (n == 48)
      p.mrope_section[0] = INT64_MAX, p.mrope_section[1] = INT64_MAX, want = ATTN_E_RANGE;
    if (n == 49) p.mrope_interleaved = 1, want = ATTN_E_RANGE;
    if (n == 50) p.axial = 1, p.rotary_dim = 14, p.positions = at, want = ATTN_E_RANGE;
    if (n == 51) p.axial = 1, want = ATTN_E_NULL;
    if (n == 52) p.type = ATTN_ROPE_LONGROPE, p.factors = D / 2 - 1, want = ATTN_E_SHAPE;
    if (n == 53) p.type = ATTN_ROPE_LONGROPE, p.long_factor = NULL, want = ATTN_E_NULL;
    if (n == 54) p.xpos = 512, p.start = 32763, want = ATTN_E_RANGE;
    if (n == 55) p.axial = 1, p.mrope_section[0] = 8, p.positions = at, want = ATTN_E_RANGE;
    if (n == 56) p.type = ATTN_ROPE_YARN, p.base = 1;
    if (n == 57)
      p.type = ATTN_ROPE_LONGROPE, p.short_factor = (double *)y.data, want = ATTN_E_OVERLAP;
    if (n == 58) {
      p.type = ATTN_ROPE_LONGROPE, want = ATTN_E_ALIGN;
      p.long_factor = (const double *)(const void *)((const char *)one + 4);
      assert_int_equal(attn_rope_frequencies(NULL, NULL, &p, D), ATTN_E_ALIGN);
    }
    attn_ctx ctx = test_ctx();
    attn_status got = attn_rope(y, x, &p, &ctx);
    if (n == 57 && got == ATTN_E_VALUE) got = want; /* what is there may be no factor */
    if (got != want || !ctx.reason)
      fail_msg("case %d: %s, not %s (%s)", n, attn_status_string(got), attn_status_string(want),
               ctx.reason ? ctx.reason : "no reason");
    for (size_t i = 0; i < out.size; i++) assert_int_equal(out.data[i], 0xA5);
    test_mem_release();
  }
}

void M4_table_rejects(void **state) {
  (void)state;
  enum { T = 7, D = 16, CASES = 19 };
  for (int n = 0; n < CASES; n++) {
    test_rng rng = test_seed(1811);
    attn_tensor x = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, D);
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, D);
    test_block out = test_last_block;
    int64_t at[T] = {0, 9, 1, 2, 3, 4, 5};
    double real[T] = {0};
    attn_rope_params p = plain();
    attn_status want = ATTN_E_RANGE;
    test_fill(x, &rng, test_normal);
    p.cos = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 10, D / 2);
    p.sin = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 10, D / 2);
    test_fill(p.cos, &rng, test_normal), test_fill(p.sin, &rng, test_normal);
    if (n == 0) p.cos.data = NULL, want = ATTN_E_NULL;
    if (n == 1) p.sin.data = NULL, want = ATTN_E_NULL;
    if (n == 2) p.cos.dim = 7, want = ATTN_E_SHAPE;
    if (n == 3) p.sin.len = 9, want = ATTN_E_SHAPE;
    if (n == 4) p.cos.heads = 2, want = ATTN_E_SHAPE;
    if (n == 5) p.cos.dtype = ATTN_F16, want = ATTN_E_DTYPE;
    if (n == 6) p.base = 10000;
    if (n == 7) p.type = ATTN_ROPE_LINEAR, p.factor = 2;
    if (n == 8) p.xpos = 512;
    if (n == 9) p.attention_factor = 1;
    if (n == 10) p.real_positions = real;
    if (n == 11) p.start = -1;
    if (n == 12) p.start = 4;
    if (n == 13) p.positions = at, at[1] = 10;
    if (n == 14) p.positions = at, at[6] = -1;
    if (n == 15)
      p.sin = y, p.sin.heads = 1, p.sin.dim = D / 2, p.sin.len = 10, want = ATTN_E_OVERLAP;
    if (n == 16) p.rotary_dim = 0, p.has_rotary_dim = 1, want = ATTN_E_SHAPE;
    if (n == 17) p.cos.batch = 2, want = ATTN_E_SHAPE;
    if (n == 18) p.start = INT64_MAX / 4;
    attn_ctx ctx = test_ctx();
    attn_status got = attn_rope(y, x, &p, &ctx);
    if (got != want || !ctx.reason)
      fail_msg("case %d: %s, not %s (%s)", n, attn_status_string(got), attn_status_string(want),
               ctx.reason ? ctx.reason : "no reason");
    if (n == 6) assert_int_equal(attn_rope_frequencies(NULL, NULL, &p, D), ATTN_E_RANGE);
    for (size_t i = 0; i < out.size; i++) assert_int_equal(out.data[i], 0xA5);
    test_mem_release();
  }
}
