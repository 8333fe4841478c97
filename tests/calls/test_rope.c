/* tests/calls/test_rope.c owns M4, rotary families, against their definition and published numbers. */

#include <math.h>
#include <string.h>

#include "list.h"
#include "rope.h"

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
    attn_rope_params p = rope_described(&rng, (int)(n % ATTN_ROPE_TYPES), axes == 2 ? r / 2 : r);
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
    if (p.axial || test_range(&rng, 0, 1)) rope_take_positions(&p, &rng, b, t, axes, 3000);
    if (test_range(&rng, 0, 2) == 0) {
      p.xpos = 512, p.keys = (int)test_range(&rng, 0, 1);
      p.start = test_range(&rng, -99, 3000); /* where f16 holds the factors */
    }
    rope_turns(y, x, &p);
    rope_compare(y, x, &p);
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
    attn_rope_params p = rope_described(&rng, n % ATTN_ROPE_TYPES, axial ? r / 2 : r);
    double factor = 0, own = axial ? (double)r / 2 : (double)r;
    p.rotary_dim = r, p.axial = (int)axial;
    for (int i = 0; i < 70; i++) f[i] = -7;
    assert_int_equal(attn_rope_frequencies(f, &factor, &p, d), ATTN_OK);
    for (int64_t m = 0; m < r / 2; m++) {
      double want = rope_frequency(&p, own, axial ? m % (r / 4) : m);
      if (fabs(f[m] / want - 1) > 1e-12)
        fail_msg("type %d, frequency %d of %d: %.15g, not %.15g", (int)p.type, (int)m, (int)r / 2,
                 f[m], want);
    }
    assert_true(r / 2 >= 70 || f[r / 2] == -7);
    assert_true(fabs(factor / rope_factor(&p) - 1) < 1e-14);
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
