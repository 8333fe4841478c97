/* calls/pattern_make.h owns the constructors of patterns: plain values, checked only when a
 * schedule is built. */

ATTN_COLD_ attn_pattern attn_pattern_of_(attn_pattern_kind kind) {
  attn_pattern p;
  memset(&p, 0, sizeof p);
  p.kind = kind;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_full(void) { return attn_pattern_of_(ATTN_PATTERN_FULL); }

ATTN_PUB_ attn_pattern attn_pattern_global(const int32_t *index, int64_t n) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_GLOBAL);
  p.index = index, p.indices = n;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_band(int64_t left, int64_t right) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_BAND);
  p.left = left, p.right = right;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_multiscale(const int32_t *radius, int64_t heads) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_BAND);
  p.index = radius, p.indices = radius ? heads : -1; /* without radii it is no plain band */
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_dilated(int64_t left, int64_t right, int64_t dilation) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_DILATED);
  p.left = left, p.right = right, p.step = dilation;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_strided(int64_t stride) {
  return attn_pattern_dilated(-1, -1, stride);
}

ATTN_PUB_ attn_pattern attn_pattern_random(int64_t count, uint64_t seed) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_RANDOM);
  p.count = count, p.seed = seed;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_random_blocks(int64_t block, int64_t count, uint64_t seed) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_RANDOM_BLOCKS);
  p.block = block, p.count = count, p.seed = seed;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_blocks(int64_t block, int64_t before, int64_t after) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_BLOCKS);
  p.block = block, p.before = before, p.after = after;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_chunked(int64_t chunk) {
  attn_pattern p = attn_pattern_blocks(chunk, 0, 0);
  p.causal = 1;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_block_causal(int64_t block) {
  return attn_pattern_blocks(block, INT64_MAX, 0);
}

ATTN_PUB_ attn_pattern attn_pattern_ring(int64_t width) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_RING);
  p.left = width;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_star(int64_t width) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_STAR);
  p.left = width;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_longformer(int64_t window, int64_t dilation,
                                               const int32_t *index, int64_t n) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_LONGFORMER);
  p.left = p.right = window, p.step = dilation;
  p.index = index, p.indices = n;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_etc(int64_t globals, int64_t radius) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_ETC);
  p.first = globals, p.left = p.right = radius;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_bigbird(int64_t block, uint64_t seed) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_BIGBIRD);
  p.block = block ? block : 64, p.seed = seed;
  p.first = p.last = p.before = p.after = 1;
  p.count = 3;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_bigbird_etc(int64_t globals, int64_t block, uint64_t seed) {
  attn_pattern p = attn_pattern_bigbird(block, seed);
  p.left = globals;
  p.first = p.last = p.count = 0;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_bigbird_tokens(int64_t half, const int32_t *index, int64_t n,
                                                   int64_t count, uint64_t seed,
                                                   attn_pattern storage[3]) {
  if (!storage) return attn_pattern_union(NULL, 3); /* rejected when it is built */
  storage[0] = attn_pattern_band(half, half);
  storage[1] = attn_pattern_global(index, n);
  storage[2] = attn_pattern_random(count, seed);
  return attn_pattern_union(storage, 3);
}

ATTN_PUB_ attn_pattern attn_pattern_sparse_strided(int64_t stride, attn_sparse_use use) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_SPARSE_STRIDED);
  p.causal = 1, p.step = p.left = stride, p.use = use;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_sparse_fixed(int64_t block, int64_t columns,
                                                 attn_sparse_use use) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_SPARSE_FIXED);
  p.causal = 1, p.block = block, p.count = columns, p.use = use;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_blockwise(int64_t blocks, const int32_t *permutation) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_BLOCKWISE);
  p.count = blocks, p.index = permutation;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_image_1d(int64_t block, int64_t before) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_IMAGE_1D);
  p.causal = 1, p.block = block, p.before = before;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_image_2d(int64_t height, int64_t width, int64_t tile_height,
                                             int64_t tile_width, int64_t top, int64_t side) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_IMAGE_2D);
  p.height = height, p.width = width, p.tile_height = tile_height, p.tile_width = tile_width;
  p.top = top, p.left = p.right = side;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_neighborhood(int64_t height, int64_t width, int64_t radius) {
  attn_pattern p = attn_pattern_image_2d(height, width, 1, 1, radius, radius);
  p.bottom = radius, p.order = ATTN_IMAGE_NONE;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_neighborhood_axes(const attn_axis *axes, int64_t n) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_NEIGHBORHOOD);
  p.axes = axes, p.indices = n;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_block_diffusion(int64_t block) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_BLOCK_DIFFUSION);
  p.block = block;
  return p;
}

/* In fields index and indices: the grid. */
ATTN_PUB_ attn_pattern attn_pattern_axial(const int32_t *shape, int64_t dims, int64_t axis) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_AXIAL);
  p.index = shape, p.indices = dims, p.axis = axis;
  return p;
}

/* In field width: the tokens; in count: k. */
ATTN_PUB_ attn_pattern attn_pattern_tree(int64_t tokens, int64_t k) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_TREE);
  p.width = tokens, p.count = k;
  return p;
}

/* In field indices: the entries of indptr. */
ATTN_PUB_ attn_pattern attn_pattern_segments(const int32_t *indptr, int64_t segments) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_SEGMENTS);
  p.index = indptr, p.indices = segments < 0 ? -1 : attn_add_(segments, 1);
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_predicate(attn_pair_fn pair, attn_rectangle_fn rectangle,
                                              void *user) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_PREDICATE);
  p.pair = pair, p.rectangle = rectangle, p.user = user;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_bitmap(const uint8_t *bits, int64_t stride) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_BITMAP);
  p.bits = bits, p.bits_stride = stride;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_csr(const int64_t *indptr, const int32_t *col, int64_t nnz) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_CSR);
  p.indptr = indptr, p.index = col, p.indices = nnz;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_block_mask(const uint8_t *mask, int64_t q_block,
                                               int64_t k_block) {
  attn_pattern p = attn_pattern_of_(ATTN_PATTERN_BLOCK_MASK);
  p.bits = mask, p.block = q_block, p.key_block = k_block;
  return p;
}

ATTN_COLD_ attn_pattern attn_pattern_parts_(attn_pattern_kind kind, const attn_pattern *parts,
                                            int64_t n) {
  attn_pattern p = attn_pattern_of_(kind);
  p.parts = parts, p.part_count = n;
  return p;
}

ATTN_PUB_ attn_pattern attn_pattern_union(const attn_pattern *parts, int64_t n) {
  return attn_pattern_parts_(ATTN_PATTERN_UNION, parts, n);
}
ATTN_PUB_ attn_pattern attn_pattern_intersect(const attn_pattern *parts, int64_t n) {
  return attn_pattern_parts_(ATTN_PATTERN_INTERSECT, parts, n);
}
ATTN_PUB_ attn_pattern attn_pattern_diff(const attn_pattern parts[2]) {
  return attn_pattern_parts_(ATTN_PATTERN_DIFF, parts, 2);
}
ATTN_PUB_ attn_pattern attn_pattern_complement(const attn_pattern *part) {
  return attn_pattern_parts_(ATTN_PATTERN_COMPLEMENT, part, 1);
}
ATTN_PUB_ attn_pattern attn_pattern_transpose(const attn_pattern *part) {
  return attn_pattern_parts_(ATTN_PATTERN_TRANSPOSE, part, 1);
}
ATTN_PUB_ attn_pattern attn_pattern_per_head(const attn_pattern *parts, int64_t heads) {
  return attn_pattern_parts_(ATTN_PATTERN_PER_HEAD, parts, heads);
}
