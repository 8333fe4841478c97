/* tests/calls/test_c_identities.c owns what patterns promise about their sets: counts, partitions,
 * products, symmetry, and equality with one another. All by schedules, without the oracle. */

#include <string.h>

#include "list.h"
#include "patterns.h"

/* The set of a pattern, as [heads, q_len, k_len] bytes. */
static uint8_t *set_of(attn_pattern p, int64_t heads, int64_t q_len, int64_t k_len) {
  int64_t pairs;
  test_graph g = test_graph_of(p, heads, q_len, k_len);
  attn_schedule s = test_schedule(&g);
  return test_schedule_mask(&s, &pairs);
}

static int64_t pairs_of(attn_pattern p, int64_t heads, int64_t q_len, int64_t k_len) {
  test_graph g = test_graph_of(p, heads, q_len, k_len);
  attn_schedule s = test_schedule(&g);
  attn_schedule_info info;
  assert_int_equal(attn_schedule_describe(&info, &s), ATTN_OK);
  return info.pairs;
}

static void same_set(attn_pattern a, attn_pattern b, int64_t heads, int64_t q_len, int64_t k_len,
                     const char *what) {
  test_graph x = test_graph_of(a, heads, q_len, k_len), y = test_graph_of(b, heads, q_len, k_len);
  test_graphs_equal(&x, &y, what);
}

static attn_pattern causal(attn_pattern p) {
  p.causal = 1;
  return p;
}

static attn_pattern full(void) { return attn_pattern_full(); }

/* Extents to try every equality on: square and not, within a tile and over several. */
static const int64_t extents[][2] = {{1, 1},  {2, 7},    {7, 2},   {20, 20},
                                     {1, 90}, {65, 129}, {130, 70}};
enum { EXTENTS = sizeof extents / sizeof *extents };
#define EACH_EXTENT(tq, tk)                                   \
  for (int at_ = 0; at_ < EXTENTS; at_++, test_mem_release()) \
    for (int64_t tq = extents[at_][0], tk = extents[at_][1], once_ = 1; once_; once_ = 0)

void C1_identities(void **state) {
  (void)state;
  int32_t all[130];
  for (int n = 0; n < 130; n++) all[n] = n;
  EACH_EXTENT(tq, tk) {
    same_set(attn_pattern_global(all, tk), full(), 2, tq, tk, "every token global");
    same_set(causal(attn_pattern_global(all, tk)), causal(full()), 2, tq, tk, "and causal");
    assert_int_equal(pairs_of(attn_pattern_global(NULL, 0), 2, tq, tk), 0);
  }
  const int32_t some[] = {3, 64, 10, 3};
  uint8_t *m = set_of(attn_pattern_global(some, 4), 1, 90, 90);
  assert_int_equal(pairs_of(attn_pattern_global(some, 4), 1, 90, 90), 3 * (2 * 90 - 3));
  for (int i = 0; i < 90 * 90; i++) assert_int_equal(m[i], m[i % 90 * 90 + i / 90]);
}

void C2_identities(void **state) {
  (void)state;
  EACH_EXTENT(tq, tk) {
    same_set(attn_pattern_band(tq + tk, tq + tk), full(), 1, tq, tk, "a band without end");
    same_set(attn_pattern_band(-1, -1), full(), 1, tq, tk, "an unbounded band");
    same_set(attn_pattern_band(-1, 0), causal(full()), 1, tq, tk, "the past");
    same_set(causal(attn_pattern_band(3, 5)), attn_pattern_band(3, 0), 1, tq, tk, "causal band");
    for (int64_t inner = 0; inner < 3; inner++) {
      attn_pattern bands[2] = {attn_pattern_band(6, 4), attn_pattern_band(inner, inner)};
      int64_t rest = pairs_of(bands[0], 1, tq, tk) - pairs_of(bands[1], 1, tq, tk);
      assert_int_equal(pairs_of(attn_pattern_diff(bands), 1, tq, tk), rest);
    }
  }
  assert_int_equal(pairs_of(attn_pattern_band(2, 3), 1, 50, 50), 50 * 6 - 3 - 6);
}

void C3_identities(void **state) {
  (void)state;
  EACH_EXTENT(tq, tk) {
    same_set(attn_pattern_dilated(3, 4, 1), attn_pattern_band(3, 4), 1, tq, tk, "no gaps");
    same_set(attn_pattern_dilated(-1, -1, 5), attn_pattern_strided(5), 1, tq, tk, "unbounded");
    same_set(attn_pattern_dilated(200, 200, 5), attn_pattern_strided(5), 1, tq, tk, "wide");
    same_set(attn_pattern_strided(1), full(), 1, tq, tk, "stride 1");
    same_set(attn_pattern_dilated(9, 9, 400), attn_pattern_band(0, 0), 1, tq, tk, "far gaps");
  }
  /* within a residue class it is a band */
  uint8_t *gaps = set_of(attn_pattern_dilated(2, 1, 3), 1, 31, 31);
  for (int64_t c = 0; c < 3; c++) {
    int64_t n = (31 - c + 2) / 3;
    uint8_t *narrow = set_of(attn_pattern_band(2, 1), 1, n, n);
    for (int64_t i = 0; i < n; i++) {
      for (int64_t j = 0; j < n; j++) {
        assert_int_equal(narrow[i * n + j], gaps[(3 * i + c) * 31 + 3 * j + c]);
      }
    }
  }
}

void C4_identities(void **state) {
  (void)state;
  EACH_EXTENT(tq, tk) {
    same_set(attn_pattern_random(tk, 1), full(), 2, tq, tk, "all keys drawn");
    same_set(causal(attn_pattern_random(tk, 1)), causal(full()), 2, tq, tk, "all past keys drawn");
    same_set(attn_pattern_random_blocks(4, tk, 1), full(), 2, tq, tk, "all blocks drawn");
    same_set(causal(attn_pattern_random_blocks(4, tk, 1)), causal(full()), 2, tq, tk, "and causal");
    same_set(attn_pattern_random(4, 77), attn_pattern_random(4, 77), 3, tq, tk, "the same seed");
    assert_int_equal(pairs_of(attn_pattern_random(6, 3), 2, tq, tk), 2 * tq * (tk < 6 ? tk : 6));
  }
  uint8_t *a = set_of(attn_pattern_random(4, 77), 2, 64, 64);
  uint8_t *b = set_of(attn_pattern_random(4, 78), 2, 64, 64);
  assert_memory_not_equal(a, b, 64 * 64);
  assert_memory_not_equal(a, a + 64 * 64, 64 * 64); /* heads differ */
}

void C5_identities(void **state) {
  (void)state;
  EACH_EXTENT(tq, tk) {
    if (tq <= tk) same_set(attn_pattern_blocks(tk, 0, 0), full(), 1, tq, tk, "one block");
    same_set(attn_pattern_blocks(1, 2, 3), attn_pattern_band(2, 3), 1, tq, tk, "blocks of 1");
    same_set(attn_pattern_blocks(8, tq + tk, tq + tk), full(), 1, tq, tk, "every block");
  }
}

void C6_identities(void **state) {
  (void)state;
  for (int64_t n = 1; n <= 70; n += n < 9 ? 1 : 20) {
    same_set(attn_pattern_ring(n / 2 + 1), full(), 1, n, n, "once around");
    attn_pattern line = attn_pattern_ring(2);
    line.no_ring = 1;
    same_set(line, attn_pattern_band(2, 2), 1, n, n, "a ring cut open");
    int64_t row = n < 5 ? n : 5;
    assert_int_equal(pairs_of(attn_pattern_ring(2), 1, n, n), n * row);
    uint8_t *m = set_of(attn_pattern_star(2), 1, n + 1, n + 1);
    for (int64_t i = 0; i <= n; i++) {
      for (int64_t j = 0; j <= n; j++) {
        assert_int_equal(m[i * (n + 1) + j], m[j * (n + 1) + i]);
      }
    }
    assert_int_equal(pairs_of(attn_pattern_star(2), 1, n + 1, n + 1), n * row + 2 * n + 1);
  }
}

void C7_identities(void **state) {
  (void)state;
  const int32_t g[] = {0, 9, 40};
  for (int64_t d = 1; d < 5; d++) {
    for (int64_t w = 0; w < 40; w += 13) {
      attn_pattern parts[2] = {attn_pattern_dilated(w, w, d), attn_pattern_global(g, 3)};
      same_set(attn_pattern_longformer(w, d, g, 3), attn_pattern_union(parts, 2), 2, 70, 70,
               "window and global tokens");
      same_set(causal(attn_pattern_longformer(w, d, g, 3)), causal(attn_pattern_union(parts, 2)), 2,
               70, 70, "and causal");
    }
  }
  same_set(attn_pattern_longformer(70, 1, NULL, 0), full(), 1, 70, 70, "a window without end");
}

void C8_identities(void **state) {
  (void)state;
  const int32_t g[] = {0, 1, 2};
  attn_pattern parts[2] = {attn_pattern_band(4, 4), attn_pattern_global(g, 3)};
  same_set(attn_pattern_etc(3, 4), attn_pattern_union(parts, 2), 2, 75, 75, "etc");
  same_set(attn_pattern_etc(3, 75), full(), 1, 75, 75, "a radius without end");
  same_set(attn_pattern_etc(75, 1), full(), 1, 75, 75, "global tokens only");
  same_set(attn_pattern_etc(0, 4), attn_pattern_band(4, 4), 1, 75, 75, "no global token");
}

void C9_identities(void **state) {
  (void)state;
  EACH_EXTENT(tq, tk) {
    attn_pattern p = attn_pattern_bigbird(4, 9);
    p.count = tk;
    same_set(p, full(), 2, tq, tk, "every block drawn");
    p.count = p.first = p.last = 0;
    p.before = 2;
    same_set(p, attn_pattern_blocks(4, 2, 1), 2, tq, tk, "the window alone");
    p.first = tk;
    same_set(p, full(), 2, tk, tk, "every block global");
  }
  /* exactly min(r, candidates) blocks beside window and globals, different ones for each head */
  uint8_t *m = set_of(attn_pattern_bigbird(2, 4), 2, 40, 40);
  for (int64_t h = 0; h < 2; h++) {
    for (int64_t qb = 1; qb < 19; qb++) {
      int64_t drawn = 0;
      for (int64_t kb = 1; kb < 19; kb++) {
        if (kb >= qb - 1 && kb <= qb + 1) continue;
        drawn += m[h * 1600 + qb * 80 + kb * 2];
      }
      assert_int_equal(drawn, 3);
    }
  }
  assert_memory_not_equal(m, m + 1600, 1600);
  /* etc: the tokens in front see all, the rest counts blocks from behind them */
  attn_pattern rest = attn_pattern_bigbird_etc(0, 8, 2);
  uint8_t *front = set_of(attn_pattern_bigbird_etc(5, 8, 2), 1, 55, 55);
  uint8_t *alone = set_of(rest, 1, 50, 50);
  for (int64_t i = 0; i < 55; i++) {
    for (int64_t j = 0; j < 55; j++) {
      int want = i < 5 || j < 5 ? 1 : alone[(i - 5) * 50 + j - 5];
      assert_int_equal(front[i * 55 + j], want);
    }
  }
}

/* Whether some path j <- m <- i exists in a then b, over n tokens. */
static int64_t paths(const uint8_t *a, const uint8_t *b, int64_t n, int64_t i, int64_t j) {
  int64_t count = 0;
  for (int64_t m = 0; m < n; m++) count += a[i * n + m] && b[m * n + j];
  return count;
}

void C10_identities(void **state) {
  (void)state;
  for (int64_t l = 1; l <= 12; l += 3) {
    for (int64_t less = 0; less < 2 && less < l; less++) {
      const int64_t n = 37;
      attn_pattern p = attn_pattern_sparse_strided(l, ATTN_SPARSE_HEADS);
      assert_int_equal(p.causal, 1);
      p.left = l - less;
      uint8_t *m = set_of(p, 2, n, n);
      for (int64_t i = 0; i < n; i++) {
        int64_t row = 0;
        for (int64_t j = 0; j < n; j++) {
          row += m[i * n + j];
          assert_int_equal(paths(m, m + n * n, n, i, j) > 0, j <= i);
        }
        if (!less) assert_int_equal(row, (i < l ? i : l) + 1);
      }
      attn_pattern parts[2] = {attn_pattern_band(p.left, 0), causal(attn_pattern_strided(l))};
      p.use = ATTN_SPARSE_MERGED;
      same_set(p, attn_pattern_union(parts, 2), 2, n, n, "the union");
    }
  }
}

void C11_identities(void **state) {
  (void)state;
  for (int64_t l = 1; l <= 12; l += 3) {
    const int64_t n = 37;
    attn_pattern p = attn_pattern_sparse_fixed(l, l > 3 ? 2 : 1, ATTN_SPARSE_HEADS);
    assert_int_equal(p.causal, 1);
    uint8_t *m = set_of(p, 2, n, n);
    for (int64_t i = 0; i < n; i++) {
      for (int64_t j = 0; j < n; j++) {
        int two = m[i * n + j] || paths(m + n * n, m, n, i, j);
        assert_int_equal(two, j <= i);
      }
    }
    p.use = ATTN_SPARSE_INTERLEAVE;
    same_set(p, causal(attn_pattern_blocks(l, 0, 0)), 2, n, n, "the own block");
    p.layer = 1;
    p.count = l;
    same_set(p, causal(full()), 2, n, n, "all columns");
  }
  /* sub-blocks partition the causal triangle */
  attn_pattern p = attn_pattern_sparse_fixed(12, 3, ATTN_SPARSE_INTERLEAVE);
  p.layer = 1;
  p.sub_blocks = 4;
  uint8_t *m = set_of(p, 4, 50, 50);
  for (int c = 0; c < 2500; c++) {
    assert_int_equal(m[c] + m[c + 2500] + m[c + 5000] + m[c + 7500], c % 50 <= c / 50);
  }
}

void C12_identities(void **state) {
  (void)state;
  EACH_EXTENT(tq, tk) {
    same_set(attn_pattern_blockwise(1, NULL), full(), 2, tq, tk, "one block");
    for (int64_t n = 2; n < 6; n++) { /* the shifts partition the whole */
      uint8_t *m = set_of(attn_pattern_blockwise(n, NULL), n, tq, tk);
      for (int64_t c = 0; c < tq * tk; c++) {
        int64_t heads = 0;
        for (int64_t h = 0; h < n; h++) heads += m[h * tq * tk + c];
        assert_int_equal(heads, 1);
      }
    }
  }
  const int32_t identity[] = {0, 1, 2, 3, 4};
  same_set(attn_pattern_blockwise(5, identity), attn_pattern_blocks(14, 0, 0), 1, 70, 70, "blocks");
}

void C13_identities(void **state) {
  (void)state;
  EACH_EXTENT(tq, tk) {
    attn_pattern one = causal(attn_pattern_blocks(6, 1, 0)), p = attn_pattern_image_1d(6, 6);
    assert_int_equal(p.causal, 1);
    same_set(p, one, 1, tq, tk, "memory of one block");
    same_set(attn_pattern_image_1d(1, 7), attn_pattern_band(7, 0), 1, tq, tk, "blocks of 1");
    p = attn_pattern_image_1d(6, 0);
    p.causal = 0;
    same_set(p, attn_pattern_blocks(6, 0, 0), 1, tq, tk, "no memory");
  }
}

void C14_identities(void **state) {
  (void)state;
  attn_pattern p = attn_pattern_image_2d(7, 9, 7, 9, 0, 0);
  same_set(p, causal(full()), 1, 63, 63, "one block");
  p.order = ATTN_IMAGE_RASTER;
  same_set(p, causal(full()), 1, 63, 63, "one block, raster");
  p.order = ATTN_IMAGE_NONE;
  same_set(p, full(), 1, 63, 63, "one block, no order");
  p = attn_pattern_image_2d(1, 75, 1, 8, 0, 11);
  p.right = 0;
  same_set(p, attn_pattern_image_1d(8, 11), 1, 75, 75, "an image of one row");
  /* by rank the set is lower triangular with all of its diagonal */
  enum { HEIGHT = 11, WIDTH = 10, N = HEIGHT * WIDTH };
  int64_t rank[N], next = 0;
  for (int64_t by = 0; by < HEIGHT; by += 3) {
    for (int64_t bx = 0; bx < WIDTH; bx += 4) {
      for (int64_t y = by; y < by + 3 && y < HEIGHT; y++) {
        for (int64_t x = bx; x < bx + 4 && x < WIDTH; x++) rank[y * WIDTH + x] = next++;
      }
    }
  }
  uint8_t *m = set_of(attn_pattern_image_2d(HEIGHT, WIDTH, 3, 4, 2, 5), 1, N, N);
  for (int c = 0; c < N * N; c++) {
    if (c / N == c % N) assert_int_equal(m[c], 1);
    if (rank[c % N] > rank[c / N]) assert_int_equal(m[c], 0);
  }
  /* a neighbourhood as high as the image is a band in each line of pixels */
  const int32_t line[] = {HEIGHT, WIDTH};
  attn_pattern parts[2] = {attn_pattern_neighborhood(HEIGHT, WIDTH, 2),
                           attn_pattern_axial(line, 2, 1)};
  attn_pattern band[2] = {attn_pattern_band(2, 2), parts[1]};
  same_set(attn_pattern_intersect(parts, 2), attn_pattern_intersect(band, 2), 1, N, N, "a line");
}

void C15_identities(void **state) {
  (void)state;
  const int32_t shape[] = {3, 5, 4}, one[] = {60}, thin[] = {1, 60, 1};
  const int64_t n = 60;
  uint8_t *a[3];
  for (int d = 0; d < 3; d++) a[d] = set_of(attn_pattern_axial(shape, 3, d), 1, n, n);
  for (int64_t i = 0; i < n; i++) { /* one path between any two */
    for (int64_t j = 0; j < n; j++) {
      int64_t count = 0;
      for (int64_t m = 0; m < n; m++) {
        if (a[0][i * n + m]) count += paths(a[1], a[2], n, m, j);
      }
      assert_int_equal(count, 1);
    }
  }
  same_set(attn_pattern_axial(one, 1, 0), full(), 1, n, n, "one dimension");
  same_set(causal(attn_pattern_axial(one, 1, -1)), causal(full()), 1, n, n, "and causal");
  same_set(attn_pattern_axial(thin, 3, 0), attn_pattern_band(0, 0), 1, n, n, "an axis of one");
  assert_int_equal(pairs_of(attn_pattern_axial(shape, 3, -1), 1, n, n), n * (3 + 5 + 4 - 2));
  attn_pattern lines[3];
  for (int d = 0; d < 3; d++) lines[d] = attn_pattern_axial(shape, 3, d);
  same_set(attn_pattern_axial(shape, 3, -1), attn_pattern_union(lines, 3), 1, n, n, "all axes");
}

void C16_identities(void **state) {
  (void)state;
  for (int64_t tokens = 1; tokens <= 37; tokens++) {
    for (int64_t k = 1; k <= tokens; k += 1 + tokens / 3) {
      int64_t nodes = oracle_tree_nodes(tokens);
      for (int c = 0; c < 2; c++) {
        attn_pattern p = attn_pattern_tree(tokens, k);
        p.causal = c;
        uint8_t *m = set_of(p, 1, nodes, nodes);
        int64_t size = tokens, base = 0, length = 1;
        uint8_t cover[40 * 40];
        memset(cover, 0, sizeof cover);
        while (1) { /* how often the nodes of a token cover every token */
          for (int64_t i = 0; i < tokens; i++) {
            for (int64_t t = 0; t < tokens; t++) {
              cover[i * tokens + t] =
                  (uint8_t)(cover[i * tokens + t] + m[i * nodes + base + t / length]);
            }
          }
          if (size == 1) break;
          base += size;
          size = (size + 1) / 2;
          length *= 2;
        }
        for (int64_t e = 0; e < tokens * tokens; e++) {
          assert_int_equal(cover[e], !c || e % tokens <= e / tokens);
        }
      }
    }
    test_mem_release();
  }
  /* with enough leaves, tokens see every token and nothing else */
  const int64_t nodes = oracle_tree_nodes(30);
  uint8_t *m = set_of(attn_pattern_tree(30, 30), 1, nodes, nodes);
  for (int64_t c = 0; c < 30 * nodes; c++) assert_int_equal(m[c], c % nodes < 30);
}

void C17_identities(void **state) {
  (void)state;
  int32_t offsets[12], padded[24];
  for (int s = 0; s < 12; s++) {
    offsets[s] = s * 7 < 75 ? s * 7 : 75;
    padded[2 * s] = padded[2 * s + 1] = offsets[s]; /* with an empty segment after each */
  }
  for (int c = 0; c < 2; c++) {
    attn_pattern p = attn_pattern_segments(offsets, 11), q = attn_pattern_segments(padded, 23);
    attn_pattern blocks = attn_pattern_blocks(7, 0, 0);
    p.causal = q.causal = blocks.causal = c;
    same_set(p, blocks, 2, 75, 75, "equal segments");
    same_set(q, p, 2, 75, 75, "empty segments");
  }
  const int32_t whole[] = {0, 75};
  same_set(attn_pattern_segments(whole, 1), full(), 1, 75, 75, "one segment");
}

void C19_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(81);
  for (int64_t n = test_count(40, 10); n-- > 0; test_mem_release()) {
    int64_t tq = test_range(&rng, 1, 90), tk = test_range(&rng, 1, 140), all = 2 * tq * tk;
    test_graph g = test_graph_of(full(), 2, tq, tk);
    attn_pattern p[3], no[2], parts[2], twice;
    for (int c = 0; c < 3; c++) p[c] = test_random_part(&g, 1, &rng);
    no[0] = attn_pattern_complement(&p[0]);
    no[1] = attn_pattern_complement(&p[1]);
    assert_int_equal(pairs_of(p[0], 2, tq, tk) + pairs_of(no[0], 2, tq, tk), all);
    parts[0] = p[0];
    parts[1] = no[0];
    same_set(attn_pattern_union(parts, 2), full(), 2, tq, tk, "a set and its complement");
    assert_int_equal(pairs_of(attn_pattern_intersect(parts, 2), 2, tq, tk), 0);
    twice = attn_pattern_complement(&no[0]);
    same_set(twice, p[0], 2, tq, tk, "a complement's complement");
    parts[1] = attn_pattern_complement(&p[1]);
    same_set(attn_pattern_diff(p), attn_pattern_intersect(parts, 2), 2, tq, tk, "a difference");
    attn_pattern either = attn_pattern_union(p, 2);
    same_set(attn_pattern_complement(&either), attn_pattern_intersect(no, 2), 2, tq, tk,
             "De Morgan's law");
    parts[0] = attn_pattern_transpose(&p[2]);
    if (tq == tk) {
      same_set(attn_pattern_transpose(&parts[0]), p[2], 2, tq, tk, "turned twice");
    }
    /* 32-bit lists and maps of the same pairs are the same set */
    uint8_t *mask = set_of(p[2], 2, tq, tk);
    int64_t row_bytes = (tk + 7) / 8;
    uint8_t *bits = test_mem((size_t)(2 * tq * row_bytes));
    memset(bits, 0, (size_t)(2 * tq * row_bytes));
    for (int64_t c = 0; c < all; c++) {
      if (mask[c]) bits[c / tk * row_bytes + c % tk / 8] |= (uint8_t)(1 << c % tk % 8);
    }
    attn_pattern map = attn_pattern_bitmap(bits, row_bytes), bytes;
    map.bits_heads = 2;
    same_set(map, p[2], 2, tq, tk, "as bits");
    bytes = attn_pattern_block_mask(mask, 1, 1);
    bytes.bits_heads = 2;
    same_set(bytes, p[2], 2, tq, tk, "as blocks of one pair");
  }
}
