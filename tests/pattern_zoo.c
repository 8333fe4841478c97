/* tests/pattern_zoo.c owns random patterns of every kind, with parameters at and beyond the ends of
 * what makes a difference. */

#include <string.h>

#include "patterns.h"

static int coin(test_rng *rng, int64_t n) { return test_range(rng, 0, n - 1) == 0; }

/* A length near the interesting ones: 1, 2, tails, and the edges of a tile. */
static int64_t some_length(test_rng *rng, int64_t size) {
  static const int64_t edges[] = {1, 2, 3, 63, 64, 65, 127, 128, 129};
  int64_t n = coin(rng, 3) ? edges[test_range(rng, 0, 8)] : test_range(rng, 1, size);
  return n < size ? n : size;
}

/* A parameter for n keys: small, ordinary, or past the end. */
static int64_t some_extent(test_rng *rng, int64_t low, int64_t n) {
  int64_t x = coin(rng, 3) ? low + test_range(rng, 0, 2) : low + test_range(rng, 0, n / 3 + 1);
  return coin(rng, 8) ? n + test_range(rng, 0, 9) : x;
}

/* Some of 0 .. n-1, ascending or, shuffled, in any order and with doubles. */
static int32_t *some_indices(test_rng *rng, int64_t n, int shuffled, int64_t *count) {
  int64_t want = test_range(rng, 0, n < 6 ? n : 6), have = 0;
  int32_t list[512];
  assert_in_range(n, 0, 512);
  if (shuffled) {
    for (; have < want; have++) list[have] = (int32_t)test_range(rng, 0, n - 1);
  } else {
    for (int64_t x = 0; x < n; x++) {
      if (test_range(rng, 0, n - 1) < want) list[have++] = (int32_t)x;
    }
  }
  *count = have;
  return test_ints(have, list); /* exactly so many, for guard pages */
}

static void any_bytes(uint8_t *x, int64_t n, test_rng *rng) {
  uint64_t mode = test_u64(rng) % 4; /* sparse, dense, one in two, all */
  for (int64_t c = 0; c < n; c++) {
    uint64_t a = test_u64(rng), b = a >> 8, d = a >> 16;
    x[c] = (uint8_t)(mode == 0 ? a & b & d : mode == 1 ? a | b | d : mode == 2 ? a : 255);
  }
}

/* A pair function without structure, and one with rectangles. */
static int scattered(void *user, int64_t head, int64_t i, int64_t j) {
  uint64_t seed = *(const uint64_t *)user;
  oracle_stream s = {seed + (uint64_t)(head * 1000003 + i * 1009 + j) * 77777};
  return oracle_next64(&s) % 3 == 0;
}

static int stairs(void *user, int64_t head, int64_t i, int64_t j) {
  int64_t step = (int64_t)(*(const uint64_t *)user % 9) + 1;
  return (i / step + j / step + head) % 3 != 0 && j <= i + 40;
}

static attn_rectangle stairs_in(void *user, int64_t head, int64_t i0, int64_t i1, int64_t j0,
                                int64_t j1) {
  int64_t step = (int64_t)(*(const uint64_t *)user % 9) + 1;
  if (j0 > i1 - 1 + 40) return ATTN_EMPTY;
  if (i0 / step == (i1 - 1) / step && j0 / step == (j1 - 1) / step) {
    if ((i0 / step + j0 / step + head) % 3 == 0) return ATTN_EMPTY;
    if (j1 - 1 <= i0 + 40) return ATTN_WHOLE;
  }
  return ATTN_PARTIAL;
}

static attn_pattern random_csr(const test_graph *g, test_rng *rng) {
  int64_t nnz = 0, *row = test_mem((size_t)(g->q_len + 1) * sizeof *row);
  int32_t *col = test_mem((size_t)(g->q_len * g->k_len) * sizeof *col);
  uint64_t density = test_u64(rng) % 5;
  row[0] = 0;
  for (int64_t i = 0; i < g->q_len; i++) {
    for (int64_t j = 0; j < g->k_len; j++) {
      if (test_u64(rng) % 12 >= 3 * density && !(density == 0 && j == i)) continue;
      int64_t at = row[i] + test_range(rng, 0, nnz - row[i]);
      col[nnz++] = col[at]; /* any order */
      col[at] = (int32_t)j;
    }
    row[i + 1] = nnz;
  }
  return attn_pattern_csr(row, test_ints(nnz, col), nnz);
}

/* A pattern of a kind for the extents of g. */
static attn_pattern pattern_for(attn_pattern_kind kind, const test_graph *g, int depth,
                                test_rng *rng) {
  int64_t tk = g->k_len, n = 0, m;
  uint64_t seed = test_u64(rng), *user;
  attn_pattern p = attn_pattern_full(), *parts;
  switch (kind) {
    case ATTN_PATTERN_GLOBAL:
      p.index = some_indices(rng, tk, 1, &n);
      p = attn_pattern_global(p.index, n);
      p.no_rows = coin(rng, 4);
      p.no_columns = coin(rng, 4);
      if (coin(rng, 3)) p.queries = some_indices(rng, g->q_len, 1, &p.query_count);
      break;
    case ATTN_PATTERN_BAND:
      if (coin(rng, 4)) {
        int32_t *radius = test_mem((size_t)g->heads * sizeof *radius);
        for (int64_t h = 0; h < g->heads; h++) radius[h] = (int32_t)some_extent(rng, 0, tk);
        p = attn_pattern_multiscale(radius, g->heads);
      } else {
        m = some_extent(rng, -1, tk);
        p = attn_pattern_band(m, some_extent(rng, -1, tk));
      }
      break;
    case ATTN_PATTERN_DILATED:
      m = some_extent(rng, 1, tk);
      n = some_extent(rng, -1, tk / m);
      p = coin(rng, 3) ? attn_pattern_strided(m)
                       : attn_pattern_dilated(n, some_extent(rng, -1, tk / m), m);
      break;
    case ATTN_PATTERN_RANDOM: p = attn_pattern_random(some_extent(rng, 0, tk), seed); break;
    case ATTN_PATTERN_RANDOM_BLOCKS:
      m = some_extent(rng, 1, tk);
      p = attn_pattern_random_blocks(m, some_extent(rng, 0, tk / m), seed);
      break;
    case ATTN_PATTERN_BLOCKS:
      m = some_extent(rng, 1, tk);
      n = some_extent(rng, 0, tk / m);
      p = attn_pattern_blocks(m, n, some_extent(rng, 0, tk / m));
      break;
    case ATTN_PATTERN_RING:
      p = attn_pattern_ring(some_extent(rng, 0, tk));
      p.no_ring = coin(rng, 2);
      break;
    case ATTN_PATTERN_STAR:
      p = attn_pattern_star(some_extent(rng, 0, tk));
      p.no_ring = coin(rng, 2);
      break;
    case ATTN_PATTERN_LONGFORMER:
      p.index = some_indices(rng, tk, 0, &n);
      m = some_extent(rng, 0, tk);
      p = attn_pattern_longformer(m, some_extent(rng, 1, tk), p.index, n);
      break;
    case ATTN_PATTERN_ETC:
      m = test_range(rng, 0, tk < 9 ? tk : 9);
      p = attn_pattern_etc(m, some_extent(rng, 1, tk));
      break;
    case ATTN_PATTERN_BIGBIRD:
      m = some_extent(rng, 1, tk / 4 + 1);
      if (coin(rng, 3)) {
        p = attn_pattern_bigbird_etc(test_range(rng, 0, tk < 9 ? tk : 9), m, seed);
        p.count = test_range(rng, 0, 3);
      } else {
        p = attn_pattern_bigbird(coin(rng, 9) ? 0 : m, seed);
      }
      if (coin(rng, 3)) p.first = test_range(rng, 0, 3);
      if (coin(rng, 3)) p.last = test_range(rng, 0, 3);
      if (coin(rng, 3)) p.before = test_range(rng, 0, 3);
      if (coin(rng, 3)) p.after = test_range(rng, 0, 3);
      if (coin(rng, 3)) p.count = some_extent(rng, 0, 9);
      break;
    case ATTN_PATTERN_SPARSE_STRIDED:
    case ATTN_PATTERN_SPARSE_FIXED: {
      attn_sparse_use use = (attn_sparse_use)(test_u64(rng) % 3);
      m = some_extent(rng, 1, tk);
      if (kind == ATTN_PATTERN_SPARSE_STRIDED) {
        p = attn_pattern_sparse_strided(m, use);
        if (coin(rng, 2)) p.left = some_extent(rng, 0, tk);
      } else {
        n = test_range(rng, 1, m);
        p = attn_pattern_sparse_fixed(m, n, use);
        p.sub_blocks = test_range(rng, 0, m / n);
      }
      p.layer = test_range(rng, 0, 5);
      if (use == ATTN_SPARSE_HEADS && coin(rng, 2)) {
        int32_t *assign = test_mem((size_t)g->heads * sizeof *assign);
        for (int64_t h = 0; h < g->heads; h++) assign[h] = (int32_t)test_range(rng, 0, 2);
        p.index = assign;
        p.indices = g->heads;
      }
      p.causal = !coin(rng, 3);
      return p;
    }
    case ATTN_PATTERN_BLOCKWISE:
      n = some_extent(rng, 1, tk / 3);
      if (coin(rng, 2)) {
        p = attn_pattern_blockwise(n, NULL);
      } else {
        int32_t *permutation = test_mem((size_t)(g->heads * n) * sizeof *permutation);
        attn_status status = attn_block_permutations(permutation, g->heads, n, seed);
        assert_int_equal(status, ATTN_OK);
        p = attn_pattern_blockwise(n, permutation);
      }
      break;
    case ATTN_PATTERN_IMAGE_1D:
      m = some_extent(rng, 1, tk);
      p = attn_pattern_image_1d(m, some_extent(rng, 0, tk));
      if (coin(rng, 2)) p.after = some_extent(rng, 0, tk);
      p.causal = !coin(rng, 3);
      return p;
    case ATTN_PATTERN_SEGMENTS: {
      m = test_range(rng, 1, 9);
      int32_t *offsets = test_mem((size_t)(m + 1) * sizeof *offsets);
      offsets[0] = 0;
      offsets[m] = (int32_t)tk;
      for (int64_t s = m - 1; s > 0; s--) offsets[s] = (int32_t)test_range(rng, 0, offsets[s + 1]);
      p = attn_pattern_segments(offsets, m);
      break;
    }
    case ATTN_PATTERN_PREDICATE:
      user = test_mem(sizeof *user);
      *user = seed;
      p = coin(rng, 2) ? attn_pattern_predicate(scattered, NULL, user)
                       : attn_pattern_predicate(stairs, coin(rng, 4) ? NULL : stairs_in, user);
      break;
    case ATTN_PATTERN_BITMAP: {
      int64_t stride = (tk + 7) / 8 + test_range(rng, 0, 2);
      int64_t maps = coin(rng, 2) ? g->heads : test_range(rng, 0, 1);
      /* bits behind the last key are set or not: they mean nothing */
      int64_t bytes = (maps ? maps : 1) * g->q_len * stride;
      uint8_t *bits = test_mem((size_t)bytes);
      any_bytes(bits, bytes, rng);
      p = attn_pattern_bitmap(bits, stride);
      p.bits_heads = maps;
      break;
    }
    case ATTN_PATTERN_CSR: p = random_csr(g, rng); break;
    case ATTN_PATTERN_BLOCK_MASK: {
      n = some_extent(rng, 1, g->q_len);
      m = some_extent(rng, 1, tk);
      int64_t maps = coin(rng, 2) ? g->heads : test_range(rng, 0, 1);
      int64_t bytes = (maps ? maps : 1) * ((g->q_len + n - 1) / n) * ((tk + m - 1) / m);
      uint8_t *mask = test_mem((size_t)bytes);
      for (int64_t c = 0; c < bytes; c++) mask[c] = (uint8_t)(test_u64(rng) % 3);
      p = attn_pattern_block_mask(mask, n, m);
      p.bits_heads = maps;
      break;
    }
    case ATTN_PATTERN_UNION:
    case ATTN_PATTERN_INTERSECT:
      m = test_range(rng, 1, 4);
      parts = test_mem((size_t)m * sizeof *parts);
      for (int64_t c = 0; c < m; c++) parts[c] = test_random_part(g, depth, rng);
      p = kind == ATTN_PATTERN_UNION ? attn_pattern_union(parts, m)
                                     : attn_pattern_intersect(parts, m);
      break;
    case ATTN_PATTERN_DIFF:
      parts = test_mem(2 * sizeof *parts);
      for (int64_t c = 0; c < 2; c++) parts[c] = test_random_part(g, depth, rng);
      p = attn_pattern_diff(parts);
      break;
    case ATTN_PATTERN_COMPLEMENT:
      parts = test_mem(sizeof *parts);
      *parts = test_random_part(g, depth, rng);
      p = attn_pattern_complement(parts);
      break;
    case ATTN_PATTERN_TRANSPOSE: {
      test_graph turned = *g;
      turned.q_len = g->k_len;
      turned.k_len = g->q_len;
      turned.q_off = -g->q_off;
      parts = test_mem(sizeof *parts);
      *parts = test_random_part(&turned, depth, rng);
      p = attn_pattern_transpose(parts);
      break;
    }
    case ATTN_PATTERN_PER_HEAD:
      parts = test_mem((size_t)g->heads * sizeof *parts);
      for (int64_t h = 0; h < g->heads; h++) {
        parts[h] = h && coin(rng, 3) ? parts[h - 1] : test_random_part(g, depth, rng);
      }
      p = attn_pattern_per_head(parts, g->heads);
      break;
    default: break; /* FULL, and those with extents of their own */
  }
  p.causal = coin(rng, 3);
  return p;
}

/* Kinds that need as many queries as keys. */
static int is_square(attn_pattern_kind kind) {
  return kind == ATTN_PATTERN_RING || kind == ATTN_PATTERN_STAR ||
         kind == ATTN_PATTERN_LONGFORMER || kind == ATTN_PATTERN_ETC ||
         kind == ATTN_PATTERN_SEGMENTS;
}

static int has_own_extents(attn_pattern_kind kind) {
  return kind == ATTN_PATTERN_IMAGE_2D || kind == ATTN_PATTERN_AXIAL || kind == ATTN_PATTERN_TREE ||
         kind == ATTN_PATTERN_BLOCK_DIFFUSION || kind == ATTN_PATTERN_NEIGHBORHOOD;
}

attn_pattern test_random_part(const test_graph *g, int depth, test_rng *rng) {
  for (;;) {
    attn_pattern_kind kind = (attn_pattern_kind)test_range(rng, 0, ATTN_PATTERN_COUNT - 1);
    if (has_own_extents(kind)) continue;
    if (kind >= ATTN_PATTERN_UNION && depth == 0) continue;
    if (is_square(kind) && (g->q_len != g->k_len || g->q_off)) continue;
    if (kind == ATTN_PATTERN_STAR && g->k_len < 2) continue;
    return pattern_for(kind, g, depth - 1, rng);
  }
}

static attn_pattern random_image(test_graph *g, int64_t size, test_rng *rng) {
  int64_t height = test_range(rng, 1, 12), most = size / height + 1;
  int64_t width = test_range(rng, 1, most < 40 ? most : 40);
  int64_t tile_height = some_extent(rng, 1, height), tile_width = some_extent(rng, 1, width);
  int64_t top = some_extent(rng, 0, height), side = some_extent(rng, 0, width);
  attn_pattern p = attn_pattern_image_2d(height, width, tile_height, tile_width, top, side);
  g->q_len = g->k_len = height * width;
  if (coin(rng, 2)) p.right = some_extent(rng, 0, width);
  if (coin(rng, 2)) p.bottom = some_extent(rng, 0, height);
  p.order = (attn_image_order)(test_u64(rng) % 3);
  if (coin(rng, 5)) p = attn_pattern_neighborhood(height, width, test_range(rng, 0, 4));
  return p;
}

static attn_pattern random_axial(test_graph *g, int64_t size, test_rng *rng) {
  int64_t dims = test_range(rng, 1, 4), cells = 1;
  int32_t *shape = test_mem((size_t)dims * sizeof *shape);
  for (int64_t a = 0; a < dims; a++) {
    shape[a] = (int32_t)test_range(rng, 1, size / cells < 13 ? size / cells : 13);
    cells *= shape[a];
  }
  g->q_len = g->k_len = cells;
  attn_pattern p = attn_pattern_axial(shape, dims, test_range(rng, -1, dims - 1));
  p.causal = coin(rng, 2);
  return p;
}

static attn_pattern random_diffusion(test_graph *g, int64_t size, test_rng *rng) {
  int64_t n = some_length(rng, size / 2 > 1 ? size / 2 : 1);
  g->q_len = g->k_len = 2 * n;
  attn_pattern p = attn_pattern_block_diffusion(some_extent(rng, 1, n));
  p.causal = coin(rng, 4);
  return p;
}

/* A grid of 1 to 3 axes; some queries of it, or all. */
static attn_pattern random_neighborhood(test_graph *g, int64_t size, test_rng *rng) {
  int64_t dims = test_range(rng, 1, 3), cells = 1;
  attn_axis *axes = test_mem((size_t)dims * sizeof *axes);
  for (int64_t a = dims - 1; a >= 0; a--) {
    attn_axis *x = &axes[a];
    x->length = dims == 1 ? some_length(rng, size)
                          : test_range(rng, 1, size / cells < 17 ? size / cells : 17);
    x->dilation =
        coin(rng, 2) ? test_range(rng, 0, 1) : test_range(rng, 1, x->length < 5 ? x->length : 5);
    x->kernel = test_range(rng, 1, x->length / (x->dilation ? x->dilation : 1));
    x->stride = coin(rng, 2) ? test_range(rng, 0, 1) : test_range(rng, 1, x->kernel);
    x->causal = coin(rng, 4);
    cells *= x->length;
  }
  g->q_len = g->k_len = cells;
  g->q_off = 0;
  g->has_q_off = coin(rng, 4);
  if (g->has_q_off) {
    g->q_len = test_range(rng, 1, cells);
    g->q_off = test_range(rng, -2, cells - g->q_len + 2);
  }
  attn_pattern p = attn_pattern_neighborhood_axes(axes, dims);
  p.causal = coin(rng, 5);
  return p;
}

static attn_pattern random_tree(test_graph *g, int64_t size, test_rng *rng) {
  int64_t tokens = some_length(rng, size / 2 > 1 ? size / 2 : 1);
  g->q_len = g->k_len = oracle_tree_nodes(tokens);
  attn_pattern p = attn_pattern_tree(tokens, some_extent(rng, 1, tokens / 4));
  p.overlap = coin(rng, 2);
  p.include_self = coin(rng, 2);
  p.causal = coin(rng, 2);
  return p;
}

test_graph test_random_graph(attn_pattern_kind kind, int64_t size, int depth, test_rng *rng) {
  int64_t heads = test_range(rng, 1, 4), q_len = some_length(rng, size);
  test_graph g = test_graph_of(attn_pattern_full(), heads, q_len, some_length(rng, size));
  if (kind == ATTN_PATTERN_STAR && g.k_len < 2) g.k_len = 2;
  if (is_square(kind) || coin(rng, 3)) g.q_len = g.k_len;
  if (coin(rng, 9) && !is_square(kind)) g.q_len = 1;
  g.q_off = g.k_len - g.q_len;
  if (coin(rng, 5) && !is_square(kind) && !has_own_extents(kind)) {
    g.has_q_off = 1;
    g.q_off = test_range(rng, -g.q_len - 3, g.k_len + 3);
  }
  switch (kind) {
    case ATTN_PATTERN_IMAGE_2D: g.p = random_image(&g, size, rng); break;
    case ATTN_PATTERN_AXIAL: g.p = random_axial(&g, size, rng); break;
    case ATTN_PATTERN_TREE: g.p = random_tree(&g, size, rng); break;
    case ATTN_PATTERN_BLOCK_DIFFUSION: g.p = random_diffusion(&g, size, rng); break;
    case ATTN_PATTERN_NEIGHBORHOOD: g.p = random_neighborhood(&g, size, rng); break;
    default: g.p = pattern_for(kind, &g, depth, rng); break;
  }
  if (has_own_extents(kind) && !g.has_q_off) g.q_off = 0;
  return g;
}
