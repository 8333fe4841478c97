/* tests/calls/test_c_sets.c owns the sets of every pattern: random parameters against the oracle, and the
 * worked examples of the definitions. */

#include <string.h>

#include "list.h"
#include "patterns.h"

/* Random graphs of a kind: small ones, where parameters meet the ends, and some over several
 * tiles. */
static void check_sets(attn_pattern_kind kind, const char *what) {
  test_rng rng = test_seed(7000 + (uint64_t)kind);
  for (int64_t n = test_count(60, 14); n-- > 0;) {
    test_graph g = test_random_graph(kind, n % 4 == 0 ? 200 : 40, 2, &rng);
    test_graph_check(&g, what);
    test_mem_release();
  }
}

/* The same graph with every small number of queries and keys. */
static void check_small(attn_pattern p, int square, const char *what) {
  for (int64_t tq = 0; tq <= 5; tq++) {
    for (int64_t tk = 0; tk <= 5; tk++) {
      if (square && tq != tk) continue;
      for (int causal = 0; causal < 2; causal++) {
        test_graph g = test_graph_of(p, 2, tq, tk);
        g.p.causal = causal;
        test_graph_check(&g, what);
      }
    }
  }
}

void C1_set(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_GLOBAL, "global");
  check_small(attn_pattern_global(NULL, 0), 0, "no global key");
  check_small(attn_pattern_full(), 0, "full");
  /* while decoding, rows are judged by their position */
  const int32_t g[] = {7, 2, 7};
  test_graph t = test_graph_of(attn_pattern_global(g, 3), 1, 2, 9);
  TEST_ROW(&t, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8);
  TEST_ROW(&t, 0, 1, 2, 7);
  t.p.causal = 1;
  TEST_ROW(&t, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7);
}

void C2_set(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_BAND, "band");
  for (int64_t left = -1; left <= 3; left++) {
    for (int64_t right = -1; right <= 3; right++) {
      check_small(attn_pattern_band(left, right), 0, "a small band");
    }
  }
  check_small(attn_pattern_band((int64_t)1 << 31, (int64_t)1 << 31), 0, "a huge band");
}

/* One radius for each head; a wide one is no window at all. */
void I6_multiscale_set(void **state) {
  (void)state;
  const int32_t radius[] = {0, 1, 5, 300};
  static const int64_t extents[][2] = {{70, 70}, {1, 40}, {20, 130}, {130, 20}};
  for (int n = 0; n < 8; n++) {
    test_graph g =
        test_graph_of(attn_pattern_multiscale(radius, 4), 4, extents[n / 2][0], extents[n / 2][1]);
    g.p.causal = n & 1;
    test_graph_check(&g, "one radius a head");
    attn_pattern parts[4];
    for (int h = 0; h < 4; h++) {
      parts[h] = attn_pattern_band(radius[h], radius[h]);
      parts[h].causal = n & 1;
    }
    test_graph bands = g;
    bands.p = attn_pattern_per_head(parts, 4);
    test_graphs_equal(&g, &bands, "a band a head");
  }
}

void C3_set(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_DILATED, "dilated");
  check_small(attn_pattern_dilated(1, 2, 2), 0, "dilated by 2");
  check_small(attn_pattern_strided(3), 0, "strided by 3");
  test_graph g = test_graph_of(attn_pattern_dilated(1, 2, 2), 1, 6, 6);
  TEST_ROW(&g, 0, 0, 0, 2, 4);
  TEST_ROW(&g, 0, 1, 1, 3, 5);
  TEST_ROW(&g, 0, 2, 0, 2, 4);
  TEST_ROW(&g, 0, 4, 2, 4);
  g = test_graph_of(attn_pattern_dilated(1, 1, 2), 1, 2, 6);
  TEST_ROW(&g, 0, 0, 2, 4);
  TEST_ROW(&g, 0, 1, 3, 5);
}

/* The generator's printed vectors, for the oracle and, through patterns, for the library. */
void C4_vectors(void **state) {
  (void)state;
  oracle_stream s = {0};
  assert_true(oracle_next64(&s) == 0xE220A8397B1DCDAFu);
  assert_true(oracle_next64(&s) == 0x6E789E6AA1B965F4u);
  assert_true(oracle_next64(&s) == 0x06C45D188009454Fu);
  s = oracle_stream_of(42, 1, 0, 7);
  assert_true(s.state == 0x43B4761AA1EA9C6Du);
  assert_true(oracle_next64(&s) == 0x2D9DDB58F9BDC05Cu);
  assert_true(oracle_next64(&s) == 0x740913F2DA66D000u);
  assert_true(oracle_next64(&s) == 0xB251B0FD1F77D227u);
  static const uint64_t wide[] = {388936854, 149760196,  2010985109, 2071623919,
                                  879119682, 2172088119, 938137040,  1572236175};
  s = oracle_stream_of(1, 1, 0, 0);
  for (int n = 0; n < 8; n++) assert_true(oracle_bounded(&s, 3000000000u) == wide[n]);

  test_graph g = test_graph_of(attn_pattern_random(5, 42), 2, 100, 100);
  TEST_ROW(&g, 0, 7, 8, 17, 37, 43, 68);
  TEST_ROW(&g, 1, 7, 16, 34, 39, 59, 85);
  g = test_graph_of(attn_pattern_random_blocks(1, 4, 42), 1, 16, 16);
  TEST_ROW(&g, 0, 3, 5, 9, 11, 15);
  /* sample(61, 3) of stream(0, 3, 2, 5): the ranks of 61 candidates among 64 blocks */
  g = test_graph_of(attn_pattern_bigbird(1, 0), 3, 64, 64);
  g.p.first = g.p.last = 0;
  TEST_ROW(&g, 2, 5, 4, 5, 6, 31, 33, 47);
  int64_t draw[3];
  s = oracle_stream_of(0, 3, 2, 5);
  assert_int_equal(oracle_sample(&s, 61, 3, draw), 3);
  assert_true(draw[0] == 28 && draw[1] == 30 && draw[2] == 44);
  /* a row before the first key: its position is -1 */
  g = test_graph_of(attn_pattern_random(3, 7), 1, 11, 10);
  TEST_ROW(&g, 0, 0, 1, 2, 7);

  static const int32_t order[] = {4, 6, 2, 8, 1, 7, 9, 3, 0, 5};
  int32_t permutation[20], mine[10];
  assert_int_equal(attn_block_permutations(permutation, 2, 10, 5), ATTN_OK);
  assert_memory_equal(permutation, order, sizeof order);
  for (uint64_t h = 0; h < 2; h++) {
    s = oracle_stream_of(5, 7, h, 0);
    oracle_permutation(&s, 10, mine);
    assert_memory_equal(permutation + 10 * h, mine, sizeof mine);
  }
}

void C4_set(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_RANDOM, "random keys");
  check_sets(ATTN_PATTERN_RANDOM_BLOCKS, "random blocks");
  for (int64_t r = 0; r <= 3; r++) {
    check_small(attn_pattern_random(r, 5), 0, "random keys");
    check_small(attn_pattern_random_blocks(2, r, 5), 0, "random blocks");
  }
  /* few of many, as many as one sorts in place and more, and so many that a set of bits holds them */
  static const int64_t counts[] = {1, 16, 17, 39, 40, 90, 700};
  for (size_t k = 0; k < sizeof counts / sizeof *counts; k++, test_mem_release()) {
    attn_pattern parts[2] = {attn_pattern_random(counts[k], 5), attn_pattern_band(1, 0)};
    test_graph far = test_graph_of(parts[0], 1, 6, 20000);
    test_graph_check(&far, "few of many keys");
    far = test_graph_of(attn_pattern_union(parts, 2), 1, 6, 20000);
    test_graph_check(&far, "few of many keys and neighbours");
  }
  /* a list that descends, nearly all of it in a corner */
  int32_t col[60];
  const int64_t indptr[2] = {0, 60};
  for (int n = 0; n < 60; n++) col[n] = n ? 70 - n : 19999;
  test_graph list = test_graph_of(attn_pattern_csr(indptr, col, 60), 1, 1, 20000);
  test_graph_check(&list, "a list of neighbours and one far key");
  /* exactly min(r, n) keys in each row */
  test_graph g = test_graph_of(attn_pattern_random(9, 99), 3, 80, 75);
  g.p.causal = 1;
  attn_schedule s = test_schedule(&g);
  int64_t row[81];
  for (int64_t h = 0; h < 3; h++) {
    assert_int_equal(attn_schedule_csr(row, NULL, &s, h), ATTN_OK);
    for (int64_t i = 0; i < 80; i++) {
      int64_t n = i - 5 + 1 < 0 ? 0 : i - 5 + 1;
      assert_int_equal(row[i + 1] - row[i], n < 9 ? n : 9);
    }
  }
}

void C5_set(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_BLOCKS, "blocks");
  check_small(attn_pattern_blocks(2, 0, 0), 0, "blocks of 2");
  check_small(attn_pattern_blocks(2, 1, 1), 0, "blocks of 2 and neighbours");
}

void C6_set(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_RING, "ring");
  check_sets(ATTN_PATTERN_STAR, "star");
  for (int64_t width = 0; width <= 3; width++) {
    check_small(attn_pattern_ring(width), 1, "a small ring");
    for (int64_t nodes = 2; nodes <= 9; nodes++) { /* a satellite at least */
      test_graph g = test_graph_of(attn_pattern_star(width), 1, nodes, nodes);
      test_graph_check(&g, "a small star");
    }
  }
  test_graph g = test_graph_of(attn_pattern_star(1), 1, 7, 7);
  TEST_ROW(&g, 0, 0, 0, 1, 2, 3, 4, 5, 6);
  TEST_ROW(&g, 0, 1, 0, 1, 2, 6);
  TEST_ROW(&g, 0, 6, 0, 1, 5, 6);
}

void C7_set(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_LONGFORMER, "longformer");
  check_small(attn_pattern_longformer(1, 1, NULL, 0), 1, "longformer without global tokens");
  const int32_t all[] = {0, 1, 2, 3, 4};
  test_graph g = test_graph_of(attn_pattern_longformer(0, 1, all, 5), 1, 5, 5);
  test_graph_check(&g, "all tokens global");
}

void C8_set(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_ETC, "etc");
  check_small(attn_pattern_etc(0, 1), 1, "etc without global tokens");
}

void C9_set(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_BIGBIRD, "bigbird");
  check_small(attn_pattern_bigbird(1, 3), 0, "bigbird with blocks of 1");
  check_small(attn_pattern_bigbird(2, 3), 0, "bigbird with blocks of 2");
  /* nine blocks: row block 4 has 0 8, 3 4 5 and three of 1 2 6 7 */
  for (uint64_t seed = 0; seed < 20; seed++) {
    int64_t pairs, inside = 0;
    test_graph g = test_graph_of(attn_pattern_bigbird(1, seed), 1, 9, 9);
    attn_schedule s = test_schedule(&g);
    uint8_t *row = test_schedule_mask(&s, &pairs) + 4 * 9;
    assert_true(row[0] && row[8] && row[3] && row[4] && row[5]);
    inside = row[1] + row[2] + row[6] + row[7];
    assert_int_equal(inside, 3);
  }
  /* the token form is the union of its parts */
  test_rng rng = test_seed(80);
  for (int64_t n = test_count(12, 4); n-- > 0;) {
    test_graph g = test_random_graph(ATTN_PATTERN_GLOBAL, 90, 0, &rng);
    attn_pattern storage[3], *mine = test_mem(3 * sizeof *mine);
    int64_t half = test_range(&rng, 0, 9), count = test_range(&rng, 0, 9);
    g.p = attn_pattern_bigbird_tokens(half, g.p.index, g.p.indices, count, 5, storage);
    test_graph_check(&g, "bigbird over tokens");
    mine[0] = attn_pattern_band(half, half);
    mine[1] = attn_pattern_global(storage[1].index, storage[1].indices);
    for (int c = 0; c < 3; c++) {
      if (storage[c].kind == ATTN_PATTERN_GLOBAL) {
        mine[1] = attn_pattern_global(storage[c].index, storage[c].indices);
      }
    }
    mine[2] = attn_pattern_random(count, 5);
    test_graph parts = g;
    parts.p = attn_pattern_union(mine, 3);
    test_graphs_equal(&g, &parts, "bigbird over tokens");
    test_mem_release();
  }
}

void C10_set(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_SPARSE_STRIDED, "sparse transformer, strided");
  test_graph g = test_graph_of(attn_pattern_sparse_strided(3, ATTN_SPARSE_HEADS), 2, 8, 8);
  check_small(g.p, 0, "stride 3");
  TEST_ROW(&g, 0, 6, 3, 4, 5, 6);
  TEST_ROW(&g, 1, 6, 0, 3, 6);
  g.p.use = ATTN_SPARSE_MERGED;
  TEST_ROW(&g, 0, 6, 0, 3, 4, 5, 6);
  g.p.use = ATTN_SPARSE_INTERLEAVE;
  TEST_ROW(&g, 1, 6, 3, 4, 5, 6);
  g.p.layer = 5;
  TEST_ROW(&g, 0, 6, 0, 3, 6);
}

void C11_set(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_SPARSE_FIXED, "sparse transformer, fixed");
  test_graph g = test_graph_of(attn_pattern_sparse_fixed(4, 1, ATTN_SPARSE_HEADS), 2, 9, 9);
  check_small(g.p, 0, "blocks of 4");
  TEST_ROW(&g, 0, 6, 4, 5, 6);
  TEST_ROW(&g, 1, 6, 3);
  TEST_ROW(&g, 1, 7, 3, 7);
}

void C12_set(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_BLOCKWISE, "blockwise");
  for (int64_t n = 1; n <= 4; n++) {
    check_small(attn_pattern_blockwise(n, NULL), 0, "blockwise");
  }
  const int32_t turn[] = {1, 2, 3, 0};
  test_graph g = test_graph_of(attn_pattern_blockwise(4, turn), 1, 13, 13);
  TEST_ROW(&g, 0, 3, 4, 5, 6);
  TEST_ROW(&g, 0, 4, 7, 8, 9);
  TEST_ROW(&g, 0, 12, 0, 1, 2, 3);
  g = test_graph_of(attn_pattern_blockwise(2, NULL), 2, 1, 1);
  test_graph_row(&g, 1, 0, 0, NULL);
}

void C13_set(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_IMAGE_1D, "image transformer, one dimension");
  check_small(attn_pattern_image_1d(2, 1), 0, "blocks of 2");
}

void C14_set(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_IMAGE_2D, "image transformer, two dimensions");
  test_graph g = test_graph_of(attn_pattern_image_2d(6, 6, 2, 2, 1, 1), 1, 36, 36);
  TEST_ROW(&g, 0, 2 * 6 + 3, 7, 8, 9, 10, 13, 14, 15, 19);
  g.p.order = ATTN_IMAGE_RASTER;
  TEST_ROW(&g, 0, 2 * 6 + 3, 7, 8, 9, 10, 13, 14, 15);
  g.p.order = ATTN_IMAGE_NONE;
  TEST_ROW(&g, 0, 2 * 6 + 3, 7, 8, 9, 10, 13, 14, 15, 16, 19, 20, 21, 22);
  g.p = attn_pattern_neighborhood(6, 6, 1);
  TEST_ROW(&g, 0, 0, 0, 1, 6, 7);
  TEST_ROW(&g, 0, 14, 7, 8, 9, 13, 14, 15, 19, 20, 21);
}

void C15_set(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_AXIAL, "axial");
  const int32_t shape[] = {2, 3, 4};
  test_graph g = test_graph_of(attn_pattern_axial(shape, 3, 1), 1, 24, 24);
  TEST_ROW(&g, 0, 17, 13, 17, 21);
  g.p.axis = 2;
  TEST_ROW(&g, 0, 17, 16, 17, 18, 19);
  g.p.axis = -1;
  TEST_ROW(&g, 0, 17, 5, 13, 16, 17, 18, 19, 21);
  g.p.causal = 1;
  TEST_ROW(&g, 0, 17, 5, 13, 16, 17);
}

void C16_set(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_TREE, "tree");
  for (int64_t tokens = 1; tokens <= 40; tokens++) {
    for (int n = 0; n < 8; n++) {
      int64_t nodes = oracle_tree_nodes(tokens);
      test_graph g = test_graph_of(attn_pattern_tree(tokens, 1 + n % 3), 1, nodes, nodes);
      g.p.overlap = n & 1;
      g.p.causal = n >> 1 & 1;
      g.p.include_self = n >> 2 & 1;
      test_graph_check(&g, "a tree");
    }
    test_mem_release();
  }
  test_graph g = test_graph_of(attn_pattern_tree(11, 1), 1, 23, 23);
  TEST_ROW(&g, 0, 5, 4, 5, 6, 7, 11, 12, 19);
  g.p.overlap = 1;
  TEST_ROW(&g, 0, 5, 4, 5, 6, 12, 14, 17, 19);
  TEST_ROW(&g, 0, 19, 8, 9, 10);
}

void C17_set(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_SEGMENTS, "segments");
  const int32_t offsets[] = {0, 0, 3, 3, 4, 9, 9};
  test_graph g = test_graph_of(attn_pattern_segments(offsets, 6), 1, 9, 9);
  TEST_ROW(&g, 0, 2, 0, 1, 2);
  TEST_ROW(&g, 0, 3, 3);
  g.p.causal = 1;
  TEST_ROW(&g, 0, 6, 4, 5, 6);
}

void C19_user_set(void **state) {
  (void)state;
  check_sets(ATTN_PATTERN_PREDICATE, "predicate");
  check_sets(ATTN_PATTERN_BITMAP, "bitmap");
  check_sets(ATTN_PATTERN_CSR, "csr");
  check_sets(ATTN_PATTERN_BLOCK_MASK, "block mask");
}

void C19_algebra_set(void **state) {
  (void)state;
  for (int kind = ATTN_PATTERN_UNION; kind < ATTN_PATTERN_COUNT; kind++) {
    check_sets((attn_pattern_kind)kind, "algebra");
  }
}
