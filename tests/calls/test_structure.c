/* tests/calls/test_structure.c owns the structural patterns of models since 2022: chunks, blocks that are
 * denoised, neighbourhoods of a grid. */

#include <math.h>
#include <string.h>

#include "list.h"
#include "patterns.h"

static void check_sets(attn_pattern_kind kind, const char *what) {
  test_rng rng = test_seed(9300 + (uint64_t)kind);
  for (int64_t n = test_count(90, 20); n-- > 0;) {
    test_graph g = test_random_graph(kind, n % 4 == 0 ? 300 : 50, 2, &rng);
    test_graph_check(&g, what);
    test_mem_release();
  }
}

static void check_runs(attn_pattern_kind kind, const char *what) {
  test_rng rng = test_seed(9400 + (uint64_t)kind);
  for (int64_t n = test_count(12, 4); n-- > 0;) {
    test_graph g = test_random_graph(kind, n % 3 == 0 ? 240 : 70, 1, &rng);
    test_graph_attend(&g, &rng, what);
    test_mem_release();
  }
}

static void same_set(attn_pattern a, attn_pattern b, int64_t q_len, int64_t k_len,
                     const char *what) {
  test_graph x = test_graph_of(a, 2, q_len, k_len), y = test_graph_of(b, 2, q_len, k_len);
  test_graphs_equal(&x, &y, what);
  test_mem_release();
}

static attn_pattern causal(attn_pattern p) {
  p.causal = 1;
  return p;
}

/* Every pair, by its formula. */
static void check_formula(attn_pattern p, int64_t tq, int64_t tk, int64_t block, int chunked) {
  test_graph g = test_graph_of(p, 1, tq, tk);
  attn_schedule s = test_schedule(&g);
  int64_t pairs;
  const uint8_t *m = test_schedule_mask(&s, &pairs);
  for (int64_t i = 0; i < tq; i++) {
    int64_t at = i + tk - tq;
    for (int64_t j = 0; j < tk; j++) {
      double own = floor((double)at / (double)block), other = floor((double)j / (double)block);
      int want = chunked ? j <= at && own == other : other <= own;
      if (m[i * tk + j] != want)
        fail_msg("block %d, %d queries, %d keys: pair %d, %d", (int)block, (int)tq, (int)tk, (int)i,
                 (int)j);
    }
  }
  test_mem_release();
}

void M3_chunked(void **state) {
  (void)state;
  static const int64_t extents[][2] = {{1, 1}, {9, 9}, {3, 40}, {70, 131}, {131, 131}, {40, 11}};
  for (size_t e = 0; e < sizeof extents / sizeof *extents; e++) {
    int64_t tq = extents[e][0], tk = extents[e][1];
    for (int64_t c = 1; c < 140; c = c * 2 + 1) {
      check_formula(attn_pattern_chunked(c), tq, tk, c, 1);
      check_formula(attn_pattern_block_causal(c), tq, tk, c, 0);
    }
    int64_t most = tq > tk ? tq : tk;
    same_set(attn_pattern_chunked(most),
             tq <= tk ? causal(attn_pattern_full()) : attn_pattern_chunked(INT64_MAX), tq, tk,
             "one chunk");
    same_set(attn_pattern_block_causal(1), causal(attn_pattern_full()), tq, tk, "blocks of one");
    same_set(causal(attn_pattern_block_causal(5)), causal(attn_pattern_full()), tq, tk, "a cut");
  }
  test_graph g = test_graph_of(attn_pattern_chunked(4), 1, 10, 10);
  TEST_ROW(&g, 0, 6, 4, 5, 6);
  TEST_ROW(&g, 0, 8, 8);
  g.p = attn_pattern_block_causal(4);
  TEST_ROW(&g, 0, 4, 0, 1, 2, 3, 4, 5, 6, 7);
  attn_pattern bad = attn_pattern_chunked(0);
  attn_schedule s = {0};
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_schedule_build(&s, &bad, 1, 4, 4, NULL, &ctx), ATTN_E_RANGE);
  bad = attn_pattern_block_causal(-3);
  assert_int_equal(attn_schedule_build(&s, &bad, 1, 4, 4, NULL, &ctx), ATTN_E_RANGE);
  assert_null(s.data);
  /* results: a chunk is a call of its own, many chunks cross the blocks of the engine */
  test_rng rng = test_seed(9310);
  g = test_graph_of(attn_pattern_chunked(100), 2, 259, 259);
  test_graph_attend(&g, &rng, "chunked");
  g.p = attn_pattern_block_causal(50);
  test_graph_attend(&g, &rng, "causal by blocks");
}

void M3_block_diffusion(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_BLOCK_DIFFUSION, "block diffusion");
  check_runs(ATTN_PATTERN_BLOCK_DIFFUSION, "block diffusion");
  test_graph g = test_graph_of(attn_pattern_block_diffusion(2), 1, 10, 10);
  TEST_ROW(&g, 0, 0, 0, 1);
  TEST_ROW(&g, 0, 3, 2, 3, 5, 6);
  TEST_ROW(&g, 0, 4, 4, 5, 6, 7, 8);
  TEST_ROW(&g, 0, 5, 5, 6);
  TEST_ROW(&g, 0, 8, 5, 6, 7, 8);
  TEST_ROW(&g, 0, 9, 5, 6, 7, 8, 9);
  /* blocks of one: the noised token and the clean past */
  g.p = attn_pattern_block_diffusion(1);
  TEST_ROW(&g, 0, 2, 2, 5, 6);
  /* clean rows are what generation sees; one block: noised rows see noise alone */
  enum { N = 75 };
  for (int64_t c = 1; c < 100; c = 2 * c + 3) {
    int64_t pairs, few;
    test_graph both = test_graph_of(attn_pattern_block_diffusion(c), 1, 2 * N, 2 * N);
    test_graph clean = test_graph_of(attn_pattern_block_causal(c), 1, N, N);
    attn_schedule s = test_schedule(&both), t = test_schedule(&clean);
    const uint8_t *m = test_schedule_mask(&s, &pairs), *n = test_schedule_mask(&t, &few);
    for (int64_t i = 0; i < N; i++)
      for (int64_t j = 0; j < N; j++) {
        assert_int_equal(m[(N + i) * 2 * N + N + j], n[i * N + j]);
        assert_int_equal(m[(N + i) * 2 * N + j], 0);
        assert_int_equal(m[i * 2 * N + j] + m[i * 2 * N + N + j], n[i * N + j]);
      }
    test_mem_release();
  }
  attn_pattern bad = attn_pattern_block_diffusion(0);
  attn_schedule s = {0};
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_schedule_build(&s, &bad, 1, 4, 4, NULL, &ctx), ATTN_E_RANGE);
  bad.block = 2;
  assert_int_equal(attn_schedule_build(&s, &bad, 1, 5, 5, NULL, &ctx), ATTN_E_SHAPE);
  assert_int_equal(attn_schedule_build(&s, &bad, 1, 2, 4, NULL, &ctx), ATTN_E_SHAPE);
  assert_null(s.data);
}

static attn_pattern grid(const attn_axis *axes, int64_t n) {
  return attn_pattern_neighborhood_axes(axes, n);
}

void M3_neighborhood_sets(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_NEIGHBORHOOD, "neighbourhood");
  const attn_axis line = {8, 3, 1, 1, 0}, wide = {9, 4, 1, 2, 0}, strided = {10, 4, 3, 1, 0};
  test_graph g = test_graph_of(grid(&line, 1), 1, 8, 8);
  TEST_ROW(&g, 0, 0, 0, 1, 2); /* moved inwards, not cut */
  TEST_ROW(&g, 0, 4, 3, 4, 5);
  TEST_ROW(&g, 0, 7, 5, 6, 7);
  g = test_graph_of(grid(&wide, 1), 1, 9, 9);
  TEST_ROW(&g, 0, 0, 0, 2, 4, 6);
  TEST_ROW(&g, 0, 1, 1, 3, 5, 7);
  TEST_ROW(&g, 0, 6, 2, 4, 6, 8);
  g = test_graph_of(grid(&strided, 1), 1, 10, 10);
  for (int i = 3; i < 6; i++) TEST_ROW(&g, 0, i, 2, 3, 4, 5);
  attn_axis past = {10, 4, 3, 1, 1};
  g = test_graph_of(grid(&past, 1), 1, 10, 10);
  TEST_ROW(&g, 0, 3, 2, 3);
  TEST_ROW(&g, 0, 5, 2, 3, 4, 5);
  TEST_ROW(&g, 0, 9, 6, 7, 8, 9);
  const attn_axis plane[2] = {{4, 3, 0, 0, 0}, {5, 2, 0, 0, 0}};
  g = test_graph_of(grid(plane, 2), 1, 20, 20);
  TEST_ROW(&g, 0, 7, 1, 2, 6, 7, 11, 12);
  TEST_ROW(&g, 0, 19, 8, 9, 13, 14, 18, 19);
}

/* Grids and denoised blocks as parts of compositions, and rows that lie off them. */
void M3_neighborhood_parts(void **state) {
  (void)state;
  enum { N = 7 * 9 };
  const attn_axis plane[2] = {{7, 3, 1, 2, 0}, {9, 3, 1, 2, 0}}, line = {N, 9, 2, 3, 0},
                  box[3] = {{3, 2, 2, 1, 1}, {3, 3, 1, 1, 0}, {7, 3, 1, 2, 0}};
  const attn_pattern each[] = {grid(plane, 2), grid(&line, 1), grid(box, 3)};
  const attn_pattern others[] = {attn_pattern_strided(2), attn_pattern_random(3, 7),
                                 attn_pattern_band(5, 4), attn_pattern_strided(3)};
  for (int k = 0; k < 3; k++) {
    for (int n = 0; n < 4; n++)
      for (int turn = 0; turn < 2; turn++) {
        const attn_pattern parts[2] = {turn ? others[n] : each[k], turn ? each[k] : others[n]};
        attn_pattern whole[] = {attn_pattern_intersect(parts, 2), attn_pattern_union(parts, 2),
                                attn_pattern_diff(parts), attn_pattern_per_head(parts, 2)};
        for (int w = 0; w < 4; w++) {
          test_graph g = test_graph_of(whole[w], 2, N, N);
          test_graph_check(&g, "a grid and another pattern");
          test_mem_release();
        }
      }
    const attn_pattern ones[] = {attn_pattern_complement(&each[k]),
                                 attn_pattern_transpose(&each[k]), each[k]};
    for (int w = 0; w < 3; w++) {
      static const int64_t rows[][2] = {{N, 0},      {N, 8},     {N, -5},
                                        {N + 9, -4}, {4, N - 2}, {6, N + 3}};
      for (int e = 0; e < 6; e++) {
        if (w == 1 && e) break;
        test_graph g = test_graph_of(ones[w], 1, rows[e][0], N);
        g.has_q_off = e > 0, g.q_off = rows[e][1];
        test_graph_check(&g, "rows off a grid");
        test_mem_release();
      }
    }
  }
  for (int n = 0; n < 4; n++) {
    const attn_pattern parts[2] = {attn_pattern_block_diffusion(5), others[n]};
    attn_pattern whole[] = {attn_pattern_intersect(parts, 2), attn_pattern_union(parts, 2),
                            attn_pattern_diff(parts)};
    for (int w = 0; w < 3; w++) {
      test_graph g = test_graph_of(whole[w], 1, 146, 146);
      test_graph_check(&g, "denoised blocks and another pattern");
      test_mem_release();
    }
  }
}

void M3_neighborhood_identities(void **state) {
  (void)state;
  enum { A = 5, B = 6, C = 7, N = A * B * C };
  attn_axis box[3] = {{A, 3, 2, 1, 0}, {B, 2, 1, 2, 0}, {C, 5, 1, 1, 0}};
  attn_schedule_info info;
  test_graph g = test_graph_of(grid(box, 3), 1, N, N);
  attn_schedule s = test_schedule(&g);
  assert_int_equal(attn_schedule_describe(&info, &s), ATTN_OK);
  assert_int_equal(info.pairs, N * 3 * 2 * 5); /* exactly the product of the kernels */
  test_mem_release();
  const attn_axis all[3] = {{A, A, 2, 1, 0}, {B, B, 0, 0, 0}, {C, C, 7, 1, 0}};
  same_set(grid(all, 3), attn_pattern_full(), N, N, "the kernel of the grid");
  const attn_axis front[3] = {{1, 1, 1, 1, 0}, {1, 1, 1, 1, 0}, {140, 140, 1, 1, 1}};
  same_set(grid(front, 3), causal(attn_pattern_full()), 140, 140, "a causal line");
  same_set(grid(front + 2, 1), causal(attn_pattern_full()), 3, 140, "decoded");
  const attn_axis cut = {140, 9, 1, 1, 1};
  same_set(grid(&cut, 1), attn_pattern_band(8, 0), 140, 140, "a causal window");
  const attn_axis blocks = {140, 7, 7, 1, 0};
  same_set(grid(&blocks, 1), attn_pattern_blocks(7, 0, 0), 140, 140, "stride = kernel");
  const attn_axis both = {140, 7, 7, 1, 1};
  same_set(grid(&both, 1), attn_pattern_chunked(7), 140, 140, "stride = kernel, causal");
  const attn_axis squares[2] = {{12, 4, 4, 1, 0}, {15, 5, 5, 1, 0}};
  attn_pattern tiles = attn_pattern_image_2d(12, 15, 4, 5, 0, 0);
  tiles.order = ATTN_IMAGE_NONE;
  same_set(grid(squares, 2), tiles, 180, 180, "blocks of pixels");
  const attn_axis lines[2] = {{12, 12, 1, 1, 0}, {15, 1, 1, 1, 0}};
  const int32_t shape[2] = {12, 15};
  same_set(grid(lines, 2), attn_pattern_axial(shape, 2, 0), 180, 180, "columns");
  const attn_axis gaps = {140, 46, 1, 3, 0};
  const attn_axis third = {138, 46, 1, 3, 0};
  (void)gaps;
  same_set(grid(&third, 1), attn_pattern_strided(3), 138, 138, "every third");
  /* away from the edges a window is that of attn_pattern_neighborhood */
  const attn_axis near[2] = {{14, 5, 1, 1, 0}, {13, 5, 1, 1, 0}};
  int64_t pairs;
  g = test_graph_of(grid(near, 2), 1, 182, 182);
  test_graph h = test_graph_of(attn_pattern_neighborhood(14, 13, 2), 1, 182, 182);
  attn_schedule a = test_schedule(&g), b = test_schedule(&h);
  const uint8_t *m = test_schedule_mask(&a, &pairs), *n = test_schedule_mask(&b, &pairs);
  for (int64_t y = 2; y < 12; y++)
    for (int64_t x = 2; x < 11; x++)
      assert_memory_equal(m + (y * 13 + x) * 182, n + (y * 13 + x) * 182, 182);
  test_mem_release();
}

void M3_neighborhood_run(void **state) {
  (void)state;
  check_runs(ATTN_PATTERN_NEIGHBORHOOD, "neighbourhood");
  /* grids of several tiles: cost follows the pairs, whatever the grid */
  const attn_axis plane[2] = {{40, 9, 1, 1, 0}, {36, 9, 1, 1, 0}};
  const attn_axis dilated[2] = {{40, 7, 1, 3, 0}, {36, 7, 1, 2, 0}};
  const attn_axis box[3] = {{9, 5, 1, 1, 0}, {12, 5, 1, 1, 0}, {16, 5, 1, 1, 0}};
  const struct {
    const attn_axis *axes;
    int64_t n, cells;
    double most; /* computed a pair */
  } c[] = {{plane, 2, 1440, 3.5}, {dilated, 2, 1440, 4.0}, {box, 3, 1728, 6.0}};
  for (int k = 0; k < 3; k++) {
    test_graph g = test_graph_of(grid(c[k].axes, c[k].n), 1, c[k].cells, c[k].cells);
    attn_schedule s = test_schedule(&g);
    attn_schedule_info info;
    assert_int_equal(attn_schedule_describe(&info, &s), ATTN_OK);
    if ((double)info.computed > c[k].most * (double)info.pairs)
      fail_msg("grid %d: %g computed a pair", k, (double)info.computed / (double)info.pairs);
    test_mem_release();
  }
  test_rng rng = test_seed(9420);
  test_graph g = test_graph_of(grid(dilated, 2), 1, 1440, 1440);
  if (test_count(2, 1) > 1) test_graph_attend(&g, &rng, "a dilated plane");
  const attn_axis small[3] = {{3, 3, 1, 1, 1}, {8, 3, 2, 2, 0}, {11, 5, 1, 1, 0}};
  g = test_graph_of(grid(small, 3), 2, 264, 264);
  test_graph_attend(&g, &rng, "a causal box");
}

void M3_neighborhood_rejects(void **state) {
  (void)state;
  const attn_axis good[3] = {{3, 2, 1, 1, 0}, {4, 2, 2, 2, 1}, {2, 1, 0, 0, 0}};
  attn_schedule s = {0};
  attn_ctx ctx = test_ctx();
  attn_pattern p = grid(good, 3);
  assert_int_equal(attn_schedule_build(&s, &p, 1, 24, 24, NULL, &ctx), ATTN_OK);
  attn_schedule_free(&s);
#define REFUSE(want, change)                                                               \
  do {                                                                                     \
    attn_axis x[3];                                                                        \
    attn_pattern bad = grid(x, 3);                                                         \
    memcpy(x, good, sizeof x);                                                             \
    change;                                                                                \
    assert_int_equal(attn_schedule_build(&s, &bad, 1, 24, 24, NULL, &ctx), ATTN_E_##want); \
    assert_null(s.data);                                                                   \
    assert_non_null(ctx.reason);                                                           \
  } while (0)
  REFUSE(RANGE, bad.indices = 0);
  REFUSE(RANGE, bad.indices = 4);
  REFUSE(RANGE, bad.indices = INT64_MIN);
  REFUSE(NULL, bad.axes = NULL);
  REFUSE(SHAPE, bad.indices = 2);
  REFUSE(SHAPE, x[0].length = 0);
  REFUSE(SHAPE, x[0].length = INT64_MIN);
  REFUSE(SHAPE, x[1].length = INT64_MAX);
  REFUSE(SHAPE, x[2].length = 3);
  REFUSE(RANGE, x[0].kernel = 0);
  REFUSE(RANGE, x[0].kernel = -1);
  REFUSE(RANGE, x[0].kernel = 4);
  REFUSE(RANGE, x[0].kernel = INT64_MAX);
  REFUSE(RANGE, x[1].dilation = 3);
  REFUSE(RANGE, x[1].dilation = -1);
  REFUSE(RANGE, x[1].dilation = INT64_MAX);
  REFUSE(RANGE, x[1].stride = 3);
  REFUSE(RANGE, x[1].stride = -1);
#undef REFUSE
}
