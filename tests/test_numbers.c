/* test_numbers.c owns the functions that turn plain numbers into others: whatever they get, nothing overflows (the
 * sanitizers say so) and the answer is a count or says that there is none. tests/spoil has the calls with a context. */
#include <math.h>

#include "harness.h"

typedef struct numbers {
  int64_t n[6];
  float x[2];
  int pick; /* enumerators and flags */
} numbers;

/* Lengths and places: a count, or -1. */
static int64_t worst;
static void count(int64_t n) {
  if (n < worst) worst = n;
}
/* Bytes: less than half of what is addressable, or ATTN_WORKSPACE_REJECTED. */
static int sizes_wrong;
static void bytes(size_t n) { sizes_wrong += n > SIZE_MAX / 2 && n != ATTN_WORKSPACE_REJECTED; }
static int patterns_taken;
static void pattern(attn_pattern p) {
  attn_ctx ctx = {0};
  patterns_taken += attn_schedule_bytes(&p, 1, 3, 5, NULL, &ctx) != 0;
}
static void view(attn_tensor x) { (void)x; }
static void mask(attn_mask x) { (void)x; }

static void try_lengths(const numbers *a) {
  const int64_t *n = a->n;
  const int some = a->pick;
  attn_pool_params pool = {.kernel = n[2], .stride = n[3]};
  attn_convolve_params convolve = {.pad = (attn_pad)some, .stride = n[2], .dilation = n[3]};
  attn_probsparse_params sparse = {.factor = n[1], .has_rows = some & 1, .rows = n[2]};
  attn_lsh_params lsh = {.rounds = n[1], .chunk = n[2], .heads = n[3]};
  attn_sac_params sac = {.alpha = (double)a->x[0], .forced = some & 1, .symmetric = some & 2};
  attn_tree_params tree = {
      .tokens = n[0], .k = n[1], .clip = n[2], .overlap = some & 1, .causal = some & 2};
  attn_feature_map map = {.kind = (attn_feature_kind)some, .order = n[1], .features = n[2]};
  attn_memory memory = {.len = n[1], .first = n[2]};
  attn_compressive_params compressive = {.length = n[3],
                                         .compress = {.rate = n[4], .dilation = n[5]}};
  count(attn_pool_len(n[0], n[1], &pool));
  count(attn_convolve_len(n[0], n[1], &convolve));
  count(attn_probsparse_rows(n[0], &sparse));
  count(attn_probsparse_samples(n[0], &sparse));
  count(attn_lsh_buckets(n[0], &lsh));
  count(attn_routing_entries(n[0], n[1], n[2], (attn_routing_membership)some));
  count(attn_sac_count(n[0], &sac));
  count(attn_sac_room(n[0], n[1], &sac));
  count(attn_span_reach(a->x[0], a->x[1], n[0], n[1]));
  count(attn_random_feature_count(n[0]));
  count(attn_feature_count(&map, n[0]));
  count(attn_compressive_rows(&memory, n[0], &compressive));
  count(attn_tree_nodes(n[0]));
  if (n[0] < INT64_MAX / 2) count(attn_tree_label(&tree, n[3], n[4]));
  count(attn_t5_bucket(n[0], some & 1, n[1], n[2]));
  const int64_t bucket = attn_deberta_bucket(n[0], n[1], n[2]);
  count(bucket == INT64_MIN || (bucket >= -n[1] && bucket <= n[1]) ? 0 : -2);
}

static void try_sizes(const numbers *a) {
  const int64_t *n = a->n;
  attn_cache_params cache = {.k_dtype = (attn_dtype)(a->pick & 7),
                             .k_heads = n[0],
                             .v_heads = n[1],
                             .dk = n[2],
                             .dv = n[3]};
  cache.pages = n[4], cache.page = n[5], cache.window = n[1], cache.keep = n[2],
  cache.k_group = n[3];
  attn_linear_params linear = {.map = {.kind = (attn_feature_kind)a->pick}, .chunk = n[5]};
  bytes(attn_cache_size(&cache));
  bytes(attn_luna_state_bytes(n[0], n[1], n[2], n[3], n[4]));
  bytes(attn_linear_state_bytes(&linear, n[0], n[1], n[2], n[3], n[4]));
  bytes(attn_average_state_bytes(n[0], n[1]));
}

static void try_rope(const numbers *a) {
  const int64_t *n = a->n;
  static double by[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  double f[8], factor;
  attn_rope_params p = {.type = (attn_rope_type)a->pick,
                        .rotary_dim = n[0] < 8 ? n[0] : 8,
                        .has_rotary_dim = 1,
                        .factor = (double)a->x[0],
                        .attention_factor = a->pick & 1 ? (double)a->x[1] : 0,
                        .low_freq_factor = (double)a->x[1],
                        .high_freq_factor = (double)a->x[0],
                        .mscale = (double)a->x[1],
                        .max_position_embeddings = n[1],
                        .original_max_position_embeddings = n[2],
                        .sequence_len = n[3],
                        .factors = n[4],
                        .short_factor = by,
                        .long_factor = by};
  p.axial = n[5] & 1, p.mrope_section[0] = n[5] > 5 ? n[5] : 0, p.mrope_section[1] = n[4] & 7;
  for (int i = 0; i < 8; i++) f[i] = 0;
  if (attn_rope_frequencies(f, &factor, &p, n[0]) != ATTN_OK) return;
  for (int i = 0; i < 8; i++) count(f[i] - f[i] == 0 && f[i] >= 0 ? 0 : -2);
  count(factor - factor == 0 && factor > 0 ? 0 : -2);
  (void)attn_rope_mscale((double)a->x[0], (double)a->x[1]);
}

static void try_views(const numbers *a) {
  const int64_t *n = a->n;
  static float data[4];
  attn_tensor x = attn_bhtd(data, (attn_dtype)(a->pick % 9), n[0], n[1], n[2], n[3]), parts[2];
  attn_memory memory = {.rows = x, .len = n[4], .first = n[5]};
  view(attn_bthd(data, (attn_dtype)(a->pick % 9), n[0], n[1], n[2], n[3]));
  view(attn_trajectory_rows(x, (attn_trajectory_token)a->pick));
  (void)attn_scales_dense(data, data, n[4], &x);
  (void)attn_window_of(n[0], n[1]);
  (void)attn_memory_parts(parts, &memory);
  mask(attn_mask_bool(NULL, n[0], n[1], n[2], n[3]));
  mask(attn_mask_bits(NULL, n[0], n[1], n[2], n[3]));
  mask(attn_mask_add(NULL, (attn_dtype)(a->pick % 9), n[0], n[1], n[2], n[3]));
  mask(attn_trajectory_mask(NULL, NULL, n[0], n[1]));
  count(
      -(int64_t)(attn_block_permutations(NULL, n[0], n[1], 1) == ATTN_OK && n[0] > 0 && n[1] > 0));
  count(-(int64_t)(attn_alibi_slopes(NULL, n[0]) == ATTN_OK && n[0] > 0));
  count(-(int64_t)(attn_draft_mask(NULL, n[0], NULL, n[1]) == ATTN_OK && n[1] != 0));
  count(-(int64_t)(attn_draft_positions(NULL, NULL, n[1], n[2]) == ATTN_OK && n[1] != 0));
  (void)attn_span_penalty(NULL, n[0], 1);
  try_rope(a);
  const int64_t below = attn_random_below((uint64_t)n[0], (uint64_t)n[1], (uint64_t)n[2], n[3]);
  count(n[3] > 0 && below >= n[3] ? -2 : below < 0 ? -1 : 0);
}

static void try_patterns(const numbers *a) {
  const int64_t *n = a->n;
  const attn_sparse_use use = (attn_sparse_use)(a->pick % 4);
  attn_pattern storage[3];
  pattern(attn_pattern_global(NULL, n[0]));
  pattern(attn_pattern_band(n[0], n[1]));
  pattern(attn_pattern_multiscale(NULL, n[0]));
  pattern(attn_pattern_dilated(n[0], n[1], n[2]));
  pattern(attn_pattern_strided(n[0]));
  pattern(attn_pattern_random(n[0], 1));
  pattern(attn_pattern_random_blocks(n[0], n[1], 1));
  pattern(attn_pattern_blocks(n[0], n[1], n[2]));
  pattern(attn_pattern_ring(n[0]));
  pattern(attn_pattern_star(n[0]));
  pattern(attn_pattern_longformer(n[0], n[1], NULL, n[2]));
  pattern(attn_pattern_etc(n[0], n[1]));
  pattern(attn_pattern_bigbird(n[0], 1));
  pattern(attn_pattern_bigbird_etc(n[0], n[1], 1));
  pattern(attn_pattern_bigbird_tokens(n[0], NULL, n[1], n[2], 1, storage));
  pattern(attn_pattern_sparse_strided(n[0], use));
  pattern(attn_pattern_sparse_fixed(n[0], n[1], use));
  pattern(attn_pattern_blockwise(n[0], NULL));
  pattern(attn_pattern_image_1d(n[0], n[1]));
  pattern(attn_pattern_image_2d(n[0], n[1], n[2], n[3], n[4], n[5]));
  pattern(attn_pattern_neighborhood(n[0], n[1], n[2]));
  pattern(attn_pattern_chunked(n[0]));
  pattern(attn_pattern_block_causal(n[0]));
  pattern(attn_pattern_block_diffusion(n[0]));
  const attn_axis axes[2] = {{n[0], n[1], n[2], n[3], 0}, {n[4], n[5], 1, 1, 1}};
  pattern(attn_pattern_neighborhood_axes(axes, 2));
  pattern(attn_pattern_neighborhood_axes(axes, n[0]));
  pattern(attn_pattern_axial(NULL, n[0], n[1]));
  pattern(attn_pattern_tree(n[0], n[1]));
  pattern(attn_pattern_segments(NULL, n[0]));
  pattern(attn_pattern_bitmap(NULL, n[0]));
  pattern(attn_pattern_csr(NULL, NULL, n[0]));
  pattern(attn_pattern_block_mask(NULL, n[0], n[1]));
  pattern(attn_pattern_union(NULL, n[0]));
  pattern(attn_pattern_intersect(NULL, n[0]));
  pattern(attn_pattern_per_head(NULL, n[0]));
}

void api_numbers_of_any_size(void **state) {
  (void)state;
  static const int64_t far[] = {INT64_MIN,
                                INT64_MIN + 1,
                                -((int64_t)1 << 62),
                                -((int64_t)1 << 32),
                                -2,
                                -1,
                                0,
                                1,
                                2,
                                3,
                                5,
                                64,
                                (int64_t)1 << 31,
                                ((int64_t)1 << 32) + 1,
                                (int64_t)1 << 40,
                                (int64_t)1 << 61,
                                (int64_t)1 << 62,
                                INT64_MAX / 2 + 1,
                                INT64_MAX - 1,
                                INT64_MAX};
  static const float some[] = {0, -1, 0.5f, 3, 1e30f, -1e30f, INFINITY, NAN};
  enum { FAR = sizeof far / sizeof *far, SOME = sizeof some / sizeof *some };
  test_rng rng = test_seed(1717);
  worst = 0, sizes_wrong = patterns_taken = 0;
  for (int draw = 0; draw < 4000; draw++) {
    numbers a;
    const int near = (int)test_range(&rng, 0, 2); /* of 3 draws one has small numbers alone */
    for (int i = 0; i < 6; i++)
      a.n[i] = near == 0 ? test_range(&rng, -1, 7) : far[test_range(&rng, 0, FAR - 1)];
    for (int i = 0; i < 2; i++) a.x[i] = some[test_range(&rng, 0, SOME - 1)];
    a.pick = (int)test_range(&rng, -1, 8);
    try_lengths(&a), try_sizes(&a), try_views(&a), try_patterns(&a);
  }
  assert_true(worst >= -1);
  assert_int_equal(sizes_wrong, 0);
  assert_true(patterns_taken > 4000 && patterns_taken < 60000);
}
