/* api/calls/pattern.h owns patterns, which say from positions alone which (query, key) pairs exist, and
 * schedules, which are patterns made ready to run.
 *
 *   attn_pattern near = attn_pattern_band(256, 0);
 *   attn_schedule s;
 *   attn_schedule_build(&s, &near, heads, q_len, k_len, NULL, NULL);
 *   attn_sdpa(o, q, k, v, &(attn_sdpa_params){.schedule = &s}, NULL);   // any number of times
 *   attn_schedule_free(&s);
 *
 * Query i sits at key position p_i = i + q_off (default k_len - q_len: ends aligned). A pattern is
 * a set: a pair that several parts allow counts once. */

typedef enum attn_pattern_kind {
  ATTN_PATTERN_FULL = 0,      /* every pair */
  ATTN_PATTERN_GLOBAL,        /* chosen tokens see all and are seen by all */
  ATTN_PATTERN_BAND,          /* -left <= j - p <= right */
  ATTN_PATTERN_DILATED,       /* j = p + t step, -left <= t <= right */
  ATTN_PATTERN_RANDOM,        /* count keys drawn for each query */
  ATTN_PATTERN_RANDOM_BLOCKS, /* count blocks drawn for each query block */
  ATTN_PATTERN_BLOCKS,        /* own block, before and after whole blocks */
  ATTN_PATTERN_RING,          /* |j - i| <= left around a ring, or cut at its ends */
  ATTN_PATTERN_STAR,          /* node 0 is the relay, the others a ring */
  ATTN_PATTERN_LONGFORMER,
  ATTN_PATTERN_ETC,
  ATTN_PATTERN_BIGBIRD,
  ATTN_PATTERN_SPARSE_STRIDED,
  ATTN_PATTERN_SPARSE_FIXED,
  ATTN_PATTERN_BLOCKWISE,
  ATTN_PATTERN_IMAGE_1D,
  ATTN_PATTERN_IMAGE_2D,
  ATTN_PATTERN_AXIAL,
  ATTN_PATTERN_TREE,
  ATTN_PATTERN_SEGMENTS,
  ATTN_PATTERN_PREDICATE,
  ATTN_PATTERN_BITMAP,
  ATTN_PATTERN_CSR,
  ATTN_PATTERN_BLOCK_MASK,
  ATTN_PATTERN_BLOCK_DIFFUSION,
  ATTN_PATTERN_NEIGHBORHOOD,
  ATTN_PATTERN_UNION,
  ATTN_PATTERN_INTERSECT,
  ATTN_PATTERN_DIFF,
  ATTN_PATTERN_COMPLEMENT,
  ATTN_PATTERN_TRANSPOSE,
  ATTN_PATTERN_PER_HEAD,
  ATTN_PATTERN_COUNT
} attn_pattern_kind;

/* How the two sets of a Sparse Transformer are used. */
typedef enum attn_sparse_use {
  ATTN_SPARSE_MERGED = 0, /* every head sees the union */
  ATTN_SPARSE_INTERLEAVE, /* layer n uses set n mod 2 */
  ATTN_SPARSE_HEADS       /* head h uses set assign[h], default h mod 2; 2 = the union */
} attn_sparse_use;

/* The order in which the pixels of ATTN_PATTERN_IMAGE_2D come into being. */
typedef enum attn_image_order {
  ATTN_IMAGE_BLOCK = 0, /* block after block, the paper: a pixel sees those before it and itself */
  ATTN_IMAGE_RASTER,    /* row after row, likewise */
  ATTN_IMAGE_NONE       /* a pixel sees all of its memory */
} attn_image_order;

/* 1 if the pair exists; must depend on its arguments alone. */
typedef int (*attn_pair_fn)(void *user, int64_t head, int64_t i, int64_t j);
/* What a rectangle i0 <= i < i1, j0 <= j < j1 holds. */
typedef enum attn_rectangle { ATTN_EMPTY = 0, ATTN_WHOLE, ATTN_PARTIAL } attn_rectangle;
typedef attn_rectangle (*attn_rectangle_fn)(void *user, int64_t head, int64_t i0, int64_t i1,
                                            int64_t j0, int64_t j1);

/* One axis of a grid of tokens, and how far a token sees along it (ATTN_PATTERN_NEIGHBORHOOD). */
typedef struct attn_axis {
  int64_t length;
  int64_t kernel;   /* keys a token sees, 1 .. length / dilation */
  int64_t stride;   /* so many neighbours share a window, 1 .. kernel; 0 = 1 */
  int64_t dilation; /* tokens whose places differ by multiples of it see each other; 0 = 1 */
  int causal;       /* 1: a token sees itself and those before it */
} attn_axis;

/* A pattern: a plain value, made by one of the constructors below, whose fields may be changed
 * afterwards. Arrays and parts belong to the caller and are read by attn_schedule_build only.
 * Each constructor says which fields it uses. */
typedef struct attn_pattern {
  attn_pattern_kind kind;
  int causal;              /* any kind: only pairs with j <= p_i. Draws, also those of the parts of
                              * a union, intersection or difference: candidates are earlier keys */
  int64_t left, right;     /* keys or steps behind and ahead; -1 = any number */
  int64_t step;            /* dilation or stride */
  int64_t block;           /* block length */
  int64_t before, after;   /* blocks or positions beside the own block */
  int64_t first, last;     /* global blocks at the start and at the end; first extra tokens */
  int64_t count;           /* draws; columns of a block; nodes per level; number of blocks */
  uint64_t seed;           /* of the draws */
  const int32_t *index;    /* global keys, permutation, offsets, assignment or shape */
  int64_t indices;         /* how many */
  const int32_t *queries;  /* global query rows; null = those whose position is a global key */
  int64_t query_count;     /* how many */
  int no_rows, no_columns; /* GLOBAL: leave out rows, columns */
  int no_ring;             /* RING, STAR: cut at the ends instead */
  int overlap, include_self; /* TREE */
  int64_t axis;              /* AXIAL; -1 = the union of all */
  int64_t layer, sub_blocks; /* SPARSE_*: INTERLEAVE's layer; FIXED: sub-blocks in use, 0 = 1 */
  attn_sparse_use use;
  int64_t height, width;           /* IMAGE_2D: the grid */
  int64_t tile_height, tile_width; /* its query blocks */
  int64_t top, bottom;             /* its flanges, with left and right */
  attn_image_order order;
  attn_pair_fn pair;           /* PREDICATE */
  attn_rectangle_fn rectangle; /* optional */
  void *user;
  const uint8_t *bits;              /* BITMAP bits, BLOCK_MASK bytes */
  int64_t bits_stride, bits_heads;  /* bytes between rows; 0 or 1: shared, H: one after another */
  int64_t key_block;                /* BLOCK_MASK: keys a block; `block` is queries */
  const int64_t *indptr;            /* CSR */
  const struct attn_pattern *parts; /* UNION, INTERSECT, PER_HEAD: n; DIFF: 2; others: 1 */
  int64_t part_count;
  const attn_axis *axes; /* NEIGHBORHOOD: the grid, `indices` axes */
} attn_pattern;

/* A pattern made ready for given lengths: a plain block of bytes without pointers, which may be
 * written to a file, read back (attn_schedule_open) and shared by threads. It remembers its pattern by a
 * hash of all fields and of what the arrays hold (of a predicate: that it is one), by which a mechanism
 * that wants the schedule of one pattern refuses that of another. */
typedef struct attn_schedule {
  const void *data;
  size_t size;
  void *owned; /* what attn_schedule_free frees; null when the memory is the caller's */
} attn_schedule;

#if ATTN_HAS_PATTERN
/* Atoms. */

/* Every pair; with causal = 1, j <= p. */
ATTN_DEF attn_pattern attn_pattern_full(void);
/* Tokens index[0..n): keys seen by every query, and queries (those whose position is in the list,
 * or `queries`) that see every key. Any order, doubles collapse. Survey: arXiv 2106.04554. */
ATTN_DEF attn_pattern attn_pattern_global(const int32_t *index, int64_t n);
/* A window; -1 = no bound on that side. Beltagy et al. 2020, arXiv 2004.05150. */
ATTN_DEF attn_pattern attn_pattern_band(int64_t left, int64_t right);
/* One radius per head: head h sees |j - p| <= radius[h]. Guo et al. 2019, arXiv 1912.00544. */
ATTN_DEF attn_pattern attn_pattern_multiscale(const int32_t *radius, int64_t heads);
/* A window with gaps: left and right count steps of `dilation`. arXiv 2004.05150. */
ATTN_DEF attn_pattern attn_pattern_dilated(int64_t left, int64_t right, int64_t dilation);
/* (p - j) mod stride = 0. Child et al. 2019, arXiv 1904.10509. */
ATTN_DEF attn_pattern attn_pattern_strided(int64_t stride);
/* `count` keys for each head and query, without repetition, the same on every machine. Zaheer et
 * al. 2020, arXiv 2007.14062. */
ATTN_DEF attn_pattern attn_pattern_random(int64_t count, uint64_t seed);
/* `count` key blocks for each head and query block. */
ATTN_DEF attn_pattern attn_pattern_random_blocks(int64_t block, int64_t count, uint64_t seed);
/* The own block of `block` keys and whole neighbours. arXiv 2106.04554. */
ATTN_DEF attn_pattern attn_pattern_blocks(int64_t block, int64_t before, int64_t after);
/* Chunks of `chunk` positions, causal: j <= p and floor(j / chunk) = floor(p / chunk), which is
 * attn_pattern_blocks(chunk, 0, 0) with causal = 1. Llama 4, layers with rotary positions. */
ATTN_DEF attn_pattern attn_pattern_chunked(int64_t chunk);
/* Causal by blocks: floor(j / block) <= floor(p / block), a block sees all of itself. Block
 * diffusion when it generates. Arriola et al. 2025, arXiv 2503.09573. */
ATTN_DEF attn_pattern attn_pattern_block_causal(int64_t block);
/* Neighbours up to `width` away on a ring (q_len = k_len). Guo et al. 2019, arXiv 1902.09113. */
ATTN_DEF attn_pattern attn_pattern_ring(int64_t width);

/* Compound patterns, with the defaults of their papers. */

/* Star-Transformer as one graph: node 0 is the relay, nodes 1.. the satellites; see attn_star.
 * width 0 sees itself and the relay alone. arXiv 1902.09113. */
ATTN_DEF attn_pattern attn_pattern_star(int64_t width);
/* Longformer: a one-sided window of `window` steps of `dilation`, and global tokens index[0..n),
 * strictly ascending. Per-head windows: attn_pattern_per_head. arXiv 2004.05150. */
ATTN_DEF attn_pattern attn_pattern_longformer(int64_t window, int64_t dilation,
                                              const int32_t *index, int64_t n);
/* ETC on the concatenation [global; long]: `globals` tokens see all and are seen by all, long
 * tokens see `radius` to each side. attn_etc has its labels and masks. Ainslie et al. 2020, arXiv
 * 2004.08483. */
ATTN_DEF attn_pattern attn_pattern_etc(int64_t globals, int64_t radius);
/* BigBird over blocks (0 = 64): first = last = 1 global blocks, before = after = 1 window blocks,
 * count = 3 random ones per head. arXiv 2007.14062. */
ATTN_DEF attn_pattern attn_pattern_bigbird(int64_t block, uint64_t seed);
/* BigBird-ETC: g tokens in front see all and are seen by all; the rest as attn_pattern_bigbird
 * with first = last = 0 and count = 0. In field `left`: g. */
ATTN_DEF attn_pattern attn_pattern_bigbird_etc(int64_t globals, int64_t block, uint64_t seed);
/* BigBird over tokens: window of `half` each side, global tokens, `count` random keys. The three
 * parts are written to storage[0..3) and must live as long as the pattern. */
ATTN_DEF attn_pattern attn_pattern_bigbird_tokens(int64_t half, const int32_t *index, int64_t n,
                                                  int64_t count, uint64_t seed,
                                                  attn_pattern storage[3]);
/* Sparse Transformer, causal unless causal is set to 0: the last `stride` positions (left) and
 * every stride-th one. Fields use, layer, index (assignment of heads). arXiv 1904.10509. */
ATTN_DEF attn_pattern attn_pattern_sparse_strided(int64_t stride, attn_sparse_use use);
/* The own block, and the last `columns` positions of each earlier block; sub_blocks n: head h uses
 * the columns before those, (h mod n) times. */
ATTN_DEF attn_pattern attn_pattern_sparse_fixed(int64_t block, int64_t columns,
                                                attn_sparse_use use);
/* n x n blocks; query block b sees key block permutation[h][b] ([H, n]; null: (b + h) mod n).
 * Qiu et al. 2019, arXiv 1911.02972. */
ATTN_DEF attn_pattern attn_pattern_blockwise(int64_t blocks, const int32_t *permutation);
/* permutation(n) of each head from a seed, into permutation [heads, n]. ATTN_E_NULL, _SHAPE. */
ATTN_DEF attn_status attn_block_permutations(int32_t *permutation, int64_t heads, int64_t blocks,
                                             uint64_t seed);
/* Image Transformer over raster positions: the own block of `block`, `before` positions before it
 * and, in field after, positions after it; causal = 1. Parmar et al. 2018, arXiv 1802.05751. */
ATTN_DEF attn_pattern attn_pattern_image_1d(int64_t block, int64_t before);
/* Image Transformer in two dimensions: blocks of tile_height x tile_width pixels of a
 * height x width image (q_len = k_len = height * width) see the block and its flanges: top and
 * the same to both sides; set bottom for a symmetric one. Order ATTN_IMAGE_BLOCK. */
ATTN_DEF attn_pattern attn_pattern_image_2d(int64_t height, int64_t width, int64_t tile_height,
                                            int64_t tile_width, int64_t top, int64_t side);
/* Every pixel sees the pixels up to `radius` away in both directions, fewer at the edges: image_2d
 * with blocks of one pixel, order ATTN_IMAGE_NONE. Windows that move inwards at the edges, as those
 * of Hassani et al. 2022, arXiv 2204.07143: attn_pattern_neighborhood_axes. */
ATTN_DEF attn_pattern attn_pattern_neighborhood(int64_t height, int64_t width, int64_t radius);
/* Neighbourhood attention over a grid of 1 to 3 axes, tokens row-major (the last axis is the
 * nearest), k_len cells. A pair exists if it does along every axis. Along an axis of length L,
 * kernel K, stride t and dilation D: places of one residue modulo D are an axis of their own, i =
 * place / D, of n = ceil((L - residue) / D) cells, and i sees
 *
 *   plain:  start .. start + K - 1,  start = clip(lead - floor(K / 2), 0, n - K),
 *           lead = min(t floor(i / t) + floor(t / 2), n - 1)
 *   causal: max(lead - K + 1, 0) .. i,  lead = min(t floor(i / t) + t - 1, n - 1)
 *
 * So windows move inwards at the edges, and without causal axes each query has exactly the product
 * of the kernels; an even K has one key more on the left; stride = kernel makes blocks. p is the
 * cell; one outside the grid sees nothing. Hassani et al. 2022, arXiv 2204.07143 (dilation:
 * 2209.15001); stride: Hassani et al. 2025, arXiv 2504.16922. In field indices: the axes. */
ATTN_DEF attn_pattern attn_pattern_neighborhood_axes(const attn_axis *axes, int64_t n);
/* Block diffusion when it learns: q_len = k_len = 2n rows, n noised tokens and then the n clean ones, in
 * blocks of `block`. A noised token sees all of its own noised block and earlier clean blocks; a
 * clean one clean blocks up to and with its own. arXiv 2503.09573. */
ATTN_DEF attn_pattern attn_pattern_block_diffusion(int64_t block);
/* Lines of a grid shape[0] x .. x shape[dims-1] along one axis, or -1: along all, in one softmax.
 * Ho et al. 2019, arXiv 1912.12180; union: arXiv 1811.11721. */
ATTN_DEF attn_pattern attn_pattern_axial(const int32_t *shape, int64_t dims, int64_t axis);
/* BP-Transformer's graph over attn_tree_nodes(tokens) nodes, k nodes per level and side; fields
 * overlap, include_self. See attn_tree. Ye et al. 2019, arXiv 1911.04070. */
ATTN_DEF attn_pattern attn_pattern_tree(int64_t tokens, int64_t k);
/* Segments indptr[s] .. indptr[s+1], s < segments; indptr has segments + 1 entries. */
ATTN_DEF attn_pattern attn_pattern_segments(const int32_t *indptr, int64_t segments);

/* The user's own. */

/* pair decides; rectangle, if given, spares most calls: pair is then called in partial tiles
 * only. Without it building costs O(Tq Tk) calls a head. */
ATTN_DEF attn_pattern attn_pattern_predicate(attn_pair_fn pair, attn_rectangle_fn rectangle,
                                             void *user);
/* Bit (j & 7) of byte (j >> 3) of row i; rows `stride` bytes apart. Set bits_heads for one map per
 * head, one after another. */
ATTN_DEF attn_pattern attn_pattern_bitmap(const uint8_t *bits, int64_t stride);
/* Row i sees col[indptr[i]] .. col[indptr[i+1] - 1], in any order, each once; `nnz` columns in
 * all. */
ATTN_DEF attn_pattern attn_pattern_csr(const int64_t *indptr, const int32_t *col, int64_t nnz);
/* One byte for each block of q_block queries (by index, not position) and k_block keys. */
ATTN_DEF attn_pattern attn_pattern_block_mask(const uint8_t *mask, int64_t q_block,
                                              int64_t k_block);

/* Algebra. parts stay the caller's and must live until the schedule is built. Compositions may be
 * 32 deep and have 1024 parts in all (ATTN_E_PATTERN). */
ATTN_DEF attn_pattern attn_pattern_union(const attn_pattern *parts, int64_t n);
ATTN_DEF attn_pattern attn_pattern_intersect(const attn_pattern *parts, int64_t n);
/* parts[0] without parts[1]. */
ATTN_DEF attn_pattern attn_pattern_diff(const attn_pattern parts[2]);
/* All pairs of [0, q_len) x [0, k_len) that part has not. */
ATTN_DEF attn_pattern attn_pattern_complement(const attn_pattern *part);
/* (i, j) exists if part has (j, i); part is taken over k_len queries and q_len keys. Building
 * tests every pair. */
ATTN_DEF attn_pattern attn_pattern_transpose(const attn_pattern *part);
/* Head h uses parts[h]. */
ATTN_DEF attn_pattern attn_pattern_per_head(const attn_pattern *parts, int64_t heads);

typedef struct attn_schedule_params {
  int has_q_off; /* 1: q_off below holds; 0: k_len - q_len */
  int64_t q_off;
  void *memory; /* where to build; null = ATTN_MALLOC. 8-byte aligned */
  size_t memory_size;
} attn_schedule_params;

/* What a schedule holds. Counts are sums over the heads. */
typedef struct attn_schedule_info {
  int64_t heads, q_len, k_len, q_off;
  int64_t pairs;    /* allowed pairs, exactly */
  int64_t computed; /* pairs the tiles compute, allowed or not: report.pairs of attn_sdpa at B = 1
                     * where nothing else forbids or skips a key */
  int64_t tiles;    /* tiles of up to 64 queries */
  int64_t full;     /* runs of keys that every query of a tile sees */
  int64_t partial;  /* runs of keys that some queries of a tile see */
  int64_t lists;    /* tiles whose rows go through their keys one by one */
  int64_t phases;   /* parts of the rows' key sets that are computed one after another */
  int64_t bytes;
} attn_schedule_info;

/* Builds the schedule of a pattern for these lengths.
 *
 * Memory: the schedule in params->memory or from ATTN_MALLOC, O(tiles + runs of keys) and, for
 *   scattered keys, O(pairs); while building, ATTN_MALLOC is asked for as much again, never for
 *   O(k_len) as such. Free it with attn_schedule_free. Patterns that do not differ between heads are stored once.
 * Errors: NULL, SHAPE, HEADS (PER_HEAD of another length), RANGE, VALUE, INDEX (lists out of range,
 *   out of order, doubled), PATTERN (unknown kind, too deep, too many parts), OVERFLOW, WORKSPACE
 *   (memory too small: attn_schedule_bytes), MEMORY, ALIGN, CTX, ISA, ENV. *schedule is then
 *   untouched. q_len, k_len, heads < 2^31.
 * Determinism: the same bytes on every machine of one byte order. Cost: O(runs of keys). */
ATTN_DEF attn_status attn_schedule_build(attn_schedule *schedule, const attn_pattern *pattern,
                                         int64_t heads, int64_t q_len, int64_t k_len,
                                         const attn_schedule_params *params, attn_ctx *ctx);
/* Bytes that attn_schedule_build wants in params->memory: builds, and throws away. 0 on error. */
ATTN_DEF size_t attn_schedule_bytes(const attn_pattern *pattern, int64_t heads, int64_t q_len,
                                    int64_t k_len, const attn_schedule_params *params,
                                    attn_ctx *ctx);
/* Frees what attn_schedule_build allocated and clears the struct; null is fine. */
ATTN_DEF void attn_schedule_free(attn_schedule *schedule);
/* A schedule from saved bytes (8-byte aligned), which stay the caller's. Every number in it is
 * checked, so that bytes from anywhere cannot make a later call read out of bounds:
 * ATTN_E_SCHEDULE. */
ATTN_DEF attn_status attn_schedule_open(attn_schedule *schedule, const void *bytes, size_t size,
                                        attn_ctx *ctx);
/* Counts and lengths. NULL, SCHEDULE. */
ATTN_DEF attn_status attn_schedule_describe(attn_schedule_info *info,
                                            const attn_schedule *schedule);
/* The pairs of one head as CSR, columns ascending: indptr [q_len + 1]; col may be null, to count
 * first. NULL, RANGE (head), SCHEDULE. */
ATTN_DEF attn_status attn_schedule_csr(int64_t *indptr, int32_t *col, const attn_schedule *schedule,
                                       int64_t head);
/* Draws what one head of a schedule computes: pixel (x, y) of a width x height picture, rows
 * `stride` bytes apart, gets 255 times the share of its pairs that are allowed, rounded up. width
 * = k_len and height = q_len give one pixel a pair. NULL, RANGE, SHAPE, SCHEDULE. */
ATTN_DEF attn_status attn_pattern_render(uint8_t *pixels, int64_t width, int64_t height,
                                         int64_t stride, const attn_schedule *schedule,
                                         int64_t head);
#endif
