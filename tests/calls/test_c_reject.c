/* tests/calls/test_c_reject.c owns bad patterns and schedules: each rule has its status and a reason, and
 * nothing is written. Also what user callbacks may be asked. */

#include <string.h>

#include "list.h"
#include "patterns.h"

/* Any of the statuses for a parameter out of its range. */
enum { PARAMETER = -1 };

static const char *name_of(int status) {
  return status == PARAMETER ? "a bad parameter" : attn_status_string((attn_status)status);
}

static void refuse_for(const char *what, attn_pattern p, int status, int64_t heads, int64_t q_len,
                       int64_t k_len, const attn_schedule_params *params) {
  attn_schedule s;
  unsigned char before[sizeof s];
  attn_ctx ctx = test_ctx();
  memset(&s, 0x5A, sizeof s);
  memcpy(before, &s, sizeof s);
  attn_status got = attn_schedule_build(&s, &p, heads, q_len, k_len, params, &ctx);
  int as_told = status == PARAMETER ? got == ATTN_E_RANGE || got == ATTN_E_VALUE ||
                                          got == ATTN_E_SHAPE || got == ATTN_E_OVERFLOW
                                    : (int)got == status;
  if (!as_told) {
    fail_msg("%s: %s (%s), not %s", what, attn_status_string(got), ctx.reason ? ctx.reason : "-",
             name_of(status));
  }
  if (!ctx.reason || strlen(ctx.reason) < 5) fail_msg("%s: no reason", what);
  assert_memory_equal(&s, before, sizeof s);
  assert_int_equal(attn_schedule_bytes(&p, heads, q_len, k_len, params, &ctx), 0);
}

/* Two heads, 9 queries and keys. */
static void refuse(const char *what, attn_pattern p, int status) {
  refuse_for(what, p, status, 2, 9, 9, NULL);
}

/* As many queries as keys is what it wants. */
static void refuse_oblong(const char *what, attn_pattern p) {
  refuse_for(what, p, PARAMETER, 2, 8, 9, NULL);
}

/* One field of a legal pattern spoilt. */
#define SPOIL(legal, field, value, status)               \
  do {                                                   \
    attn_pattern p_ = (legal);                           \
    p_.field = (value);                                  \
    refuse(#legal ", " #field " = " #value, p_, status); \
  } while (0)

static const int32_t ascending[] = {0, 4, 8}, late[] = {0, 4, 9}, early[] = {-1, 4, 8},
                     descending[] = {0, 8, 4}, doubled[] = {0, 4, 4};

void C1_rejects(void **state) {
  (void)state;
  refuse("a key behind the last", attn_pattern_global(late, 3), ATTN_E_INDEX);
  refuse("a key before the first", attn_pattern_global(early, 3), ATTN_E_INDEX);
  refuse("no list", attn_pattern_global(NULL, 3), ATTN_E_NULL);
  refuse("fewer than none", attn_pattern_global(ascending, -1), PARAMETER);
  attn_pattern p = attn_pattern_global(ascending, 3);
  p.queries = late;
  p.query_count = 3;
  refuse("a query behind the last", p, ATTN_E_INDEX);
  p.queries = early;
  refuse("a query before the first", p, ATTN_E_INDEX);
  p.query_count = -1;
  refuse("fewer queries than none", p, PARAMETER);
}

void C2_rejects(void **state) {
  (void)state;
  SPOIL(attn_pattern_band(1, 1), left, -2, PARAMETER);
  SPOIL(attn_pattern_band(1, 1), right, -2, PARAMETER);
  SPOIL(attn_pattern_band(1, 1), left, INT64_MIN, PARAMETER);
  attn_pattern p = attn_pattern_band(1, 1);
  attn_schedule_params far;
  memset(&far, 0, sizeof far);
  far.has_q_off = 1;
  far.q_off = (int64_t)1 << 41;
  refuse_for("a far offset", p, PARAMETER, 2, 9, 9, &far);
  refuse_for("fewer queries than none", p, ATTN_E_SHAPE, 2, -1, 9, NULL);
  refuse_for("fewer keys than none", p, ATTN_E_SHAPE, 2, 9, -1, NULL);
  refuse_for("fewer heads than none", p, PARAMETER, -1, 9, 9, NULL);
  refuse_for("too many keys", p, PARAMETER, 2, 9, (int64_t)1 << 31, NULL);
  refuse_for("too many queries", p, PARAMETER, 2, (int64_t)1 << 31, 9, NULL);
  attn_schedule s;
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_schedule_build(NULL, &p, 2, 9, 9, NULL, &ctx), ATTN_E_NULL);
  assert_non_null(ctx.reason);
  assert_int_equal(attn_schedule_build(&s, NULL, 2, 9, 9, NULL, &ctx), ATTN_E_NULL);
  assert_non_null(ctx.reason);
}

void I6_multiscale_rejects(void **state) {
  (void)state;
  const int32_t radius[] = {4, 2, 0}, bad[] = {4, -1};
  refuse("a negative radius", attn_pattern_multiscale(bad, 2), ATTN_E_INDEX);
  refuse("too many radii", attn_pattern_multiscale(radius, 3), ATTN_E_HEADS);
  refuse("too few radii", attn_pattern_multiscale(radius, 1), ATTN_E_HEADS);
}

void C3_rejects(void **state) {
  (void)state;
  SPOIL(attn_pattern_dilated(1, 1, 2), step, 0, PARAMETER);
  SPOIL(attn_pattern_dilated(1, 1, 2), step, -1, PARAMETER);
  SPOIL(attn_pattern_dilated(1, 1, 2), left, -2, PARAMETER);
  SPOIL(attn_pattern_dilated(1, 1, 2), right, -2, PARAMETER);
  refuse("stride 0", attn_pattern_strided(0), PARAMETER);
}

void C4_rejects(void **state) {
  (void)state;
  refuse("fewer draws than none", attn_pattern_random(-1, 0), PARAMETER);
  refuse("fewer draws than none", attn_pattern_random_blocks(4, -1, 0), PARAMETER);
  refuse("blocks of 0", attn_pattern_random_blocks(0, 1, 0), PARAMETER);
}

void C5_rejects(void **state) {
  (void)state;
  SPOIL(attn_pattern_blocks(2, 1, 1), block, 0, PARAMETER);
  SPOIL(attn_pattern_blocks(2, 1, 1), before, -1, PARAMETER);
  SPOIL(attn_pattern_blocks(2, 1, 1), after, -1, PARAMETER);
}

void C6_rejects(void **state) {
  (void)state;
  refuse("width -1", attn_pattern_ring(-1), PARAMETER);
  refuse("width -1", attn_pattern_star(-1), PARAMETER);
  refuse_oblong("ring", attn_pattern_ring(1));
  refuse_oblong("star", attn_pattern_star(1));
}

void C7_rejects(void **state) {
  (void)state;
  refuse("window -1", attn_pattern_longformer(-1, 1, ascending, 3), PARAMETER);
  refuse("dilation 0", attn_pattern_longformer(1, 0, ascending, 3), PARAMETER);
  refuse("a token behind the last", attn_pattern_longformer(1, 1, late, 3), ATTN_E_INDEX);
  refuse("a token before the first", attn_pattern_longformer(1, 1, early, 3), ATTN_E_INDEX);
  refuse("descending tokens", attn_pattern_longformer(1, 1, descending, 3), ATTN_E_INDEX);
  refuse("doubled tokens", attn_pattern_longformer(1, 1, doubled, 3), ATTN_E_INDEX);
  refuse("no list", attn_pattern_longformer(1, 1, NULL, 3), ATTN_E_NULL);
  refuse_oblong("longformer", attn_pattern_longformer(1, 1, NULL, 0));
}

void C8_rejects(void **state) {
  (void)state;
  refuse("radius 0", attn_pattern_etc(2, 0), PARAMETER);
  refuse("radius -1", attn_pattern_etc(2, -1), PARAMETER);
  refuse("fewer tokens than none", attn_pattern_etc(-1, 1), PARAMETER);
  refuse_oblong("etc", attn_pattern_etc(2, 1));
}

void C9_rejects(void **state) {
  (void)state;
  SPOIL(attn_pattern_bigbird(2, 0), block, -1, PARAMETER);
  SPOIL(attn_pattern_bigbird(2, 0), before, -1, PARAMETER);
  SPOIL(attn_pattern_bigbird(2, 0), after, -1, PARAMETER);
  SPOIL(attn_pattern_bigbird(2, 0), first, -1, PARAMETER);
  SPOIL(attn_pattern_bigbird(2, 0), last, -1, PARAMETER);
  SPOIL(attn_pattern_bigbird(2, 0), count, -1, PARAMETER);
  refuse("fewer tokens than none", attn_pattern_bigbird_etc(-1, 2, 0), PARAMETER);
  attn_pattern storage[3];
  refuse("half a window", attn_pattern_bigbird_tokens(-2, ascending, 3, 1, 0, storage), PARAMETER);
  refuse("late", attn_pattern_bigbird_tokens(2, late, 3, 1, 0, storage), ATTN_E_INDEX);
}

void C10_rejects(void **state) {
  (void)state;
  const int32_t assign[] = {0, 3}, minus[] = {-1, 0};
  attn_pattern p = attn_pattern_sparse_strided(3, ATTN_SPARSE_HEADS);
  SPOIL(p, step, 0, PARAMETER);
  SPOIL(p, left, -1, PARAMETER);
  SPOIL(p, use, (attn_sparse_use)3, PARAMETER);
  p.indices = 2;
  SPOIL(p, index, assign, ATTN_E_INDEX);
  SPOIL(p, index, minus, ATTN_E_INDEX);
  p.use = ATTN_SPARSE_INTERLEAVE;
  SPOIL(p, layer, -1, PARAMETER);
}

void C11_rejects(void **state) {
  (void)state;
  attn_pattern p = attn_pattern_sparse_fixed(6, 2, ATTN_SPARSE_MERGED);
  SPOIL(p, block, 0, PARAMETER);
  SPOIL(p, count, 0, PARAMETER);
  SPOIL(p, count, 7, PARAMETER);
  SPOIL(p, sub_blocks, 4, PARAMETER);
  SPOIL(p, sub_blocks, -1, PARAMETER);
  SPOIL(p, sub_blocks, INT64_MAX / 2 + 2, PARAMETER);
}

void C12_rejects(void **state) {
  (void)state;
  const int32_t twice[] = {0, 1, 2, 0, 1, 1}, far[] = {0, 1, 2, 0, 1, 3}, minus[] = {0, 1, -1};
  refuse("no block", attn_pattern_blockwise(0, NULL), PARAMETER);
  refuse("doubled", attn_pattern_blockwise(3, twice), ATTN_E_INDEX);
  refuse("out of range", attn_pattern_blockwise(3, far), ATTN_E_INDEX);
  refuse("out of range", attn_pattern_blockwise(3, minus), ATTN_E_INDEX);
  int32_t out[4];
  assert_int_equal(attn_block_permutations(NULL, 2, 2, 0), ATTN_E_NULL);
  assert_int_equal(attn_block_permutations(out, 2, 0, 0), ATTN_E_SHAPE);
  assert_int_equal(attn_block_permutations(out, -1, 2, 0), ATTN_E_SHAPE);
}

void C13_rejects(void **state) {
  (void)state;
  SPOIL(attn_pattern_image_1d(2, 1), block, 0, PARAMETER);
  SPOIL(attn_pattern_image_1d(2, 1), before, -1, PARAMETER);
  SPOIL(attn_pattern_image_1d(2, 1), after, -1, PARAMETER);
}

void C14_rejects(void **state) {
  (void)state;
  attn_pattern p = attn_pattern_image_2d(3, 3, 2, 2, 1, 1);
  SPOIL(p, height, 0, PARAMETER);
  SPOIL(p, width, -3, PARAMETER);
  SPOIL(p, width, 4, PARAMETER);
  SPOIL(p, width, INT64_MAX, PARAMETER);
  SPOIL(p, tile_height, 0, PARAMETER);
  SPOIL(p, tile_width, 0, PARAMETER);
  SPOIL(p, top, -1, PARAMETER);
  SPOIL(p, bottom, -1, PARAMETER);
  SPOIL(p, left, -1, PARAMETER);
  SPOIL(p, right, -1, PARAMETER);
  SPOIL(p, order, (attn_image_order)3, PARAMETER);
  refuse_for("oblong", p, PARAMETER, 2, 8, 9, NULL);
  refuse("radius -1", attn_pattern_neighborhood(3, 3, -1), PARAMETER);
}

void C15_rejects(void **state) {
  (void)state;
  const int32_t shape[] = {3, 3}, other[] = {3, 4}, none[] = {-3, -3}, zero[] = {9, 0};
  const int32_t huge[] = {65536, 65536, 65536, 65536, 65536};
  SPOIL(attn_pattern_axial(shape, 2, 0), axis, 2, PARAMETER);
  SPOIL(attn_pattern_axial(shape, 2, 0), axis, -2, PARAMETER);
  SPOIL(attn_pattern_axial(shape, 2, 0), indices, 0, PARAMETER);
  refuse("another grid", attn_pattern_axial(other, 2, 0), PARAMETER);
  refuse("negative", attn_pattern_axial(none, 2, 0), ATTN_E_INDEX);
  refuse("nothing", attn_pattern_axial(zero, 2, 0), ATTN_E_INDEX);
  refuse("huge", attn_pattern_axial(huge, 5, 0), PARAMETER);
  refuse("no shape", attn_pattern_axial(NULL, 2, 0), ATTN_E_NULL);
  refuse_oblong("axial", attn_pattern_axial(shape, 2, 0));
}

void C16_rejects(void **state) {
  (void)state;
  int64_t nodes = oracle_tree_nodes(5);
  refuse_for("no node a level", attn_pattern_tree(5, 0), PARAMETER, 1, nodes, nodes, NULL);
  refuse_for("too few nodes", attn_pattern_tree(5, 1), PARAMETER, 1, nodes - 1, nodes - 1, NULL);
  refuse_for("too many nodes", attn_pattern_tree(5, 1), PARAMETER, 1, nodes + 1, nodes + 1, NULL);
  refuse_for("oblong", attn_pattern_tree(5, 1), PARAMETER, 1, 1, nodes, NULL);
  refuse_for("no token", attn_pattern_tree(0, 1), PARAMETER, 1, 1, 1, NULL);
}

void C17_rejects(void **state) {
  (void)state;
  const int32_t good[] = {0, 4, 9}, start[] = {1, 4, 9}, end[] = {0, 4, 8}, back[] = {0, 5, 4, 9};
  refuse("a late start", attn_pattern_segments(start, 2), ATTN_E_INDEX);
  refuse("an early end", attn_pattern_segments(end, 2), ATTN_E_INDEX);
  refuse("backwards", attn_pattern_segments(back, 3), ATTN_E_INDEX);
  refuse("no offsets", attn_pattern_segments(NULL, 2), ATTN_E_NULL);
  refuse("fewer than none", attn_pattern_segments(good, -1), PARAMETER);
  refuse_oblong("segments", attn_pattern_segments(good, 2));
}

static int yes(void *user, int64_t head, int64_t i, int64_t j) {
  (void)user;
  return (int)(head + i + j) >= 0;
}

void C19_rejects(void **state) {
  (void)state;
  uint8_t bits[64] = {0};
  refuse("no function", attn_pattern_predicate(NULL, NULL, NULL), ATTN_E_NULL);
  refuse("no bits", attn_pattern_bitmap(NULL, 2), ATTN_E_NULL);
  refuse("short rows", attn_pattern_bitmap(bits, 1), PARAMETER);
  SPOIL(attn_pattern_bitmap(bits, 2), bits_heads, 3, ATTN_E_HEADS);
  SPOIL(attn_pattern_bitmap(bits, 2), bits_heads, -1, ATTN_E_HEADS);
  refuse("no mask", attn_pattern_block_mask(NULL, 3, 3), ATTN_E_NULL);
  refuse("blocks of 0", attn_pattern_block_mask(bits, 0, 3), PARAMETER);
  refuse("blocks of 0", attn_pattern_block_mask(bits, 3, 0), PARAMETER);
  SPOIL(attn_pattern_block_mask(bits, 3, 3), bits_heads, 3, ATTN_E_HEADS);

  int64_t row[10] = {0, 1, 1, 1, 1, 1, 1, 1, 1, 3};
  int32_t col[3] = {8, 2, 0};
  attn_pattern p = attn_pattern_csr(row, col, 3);
  attn_schedule s;
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_schedule_build(&s, &p, 2, 9, 9, NULL, &ctx), ATTN_OK);
  attn_schedule_free(&s);
  refuse("no rows", attn_pattern_csr(NULL, col, 3), ATTN_E_NULL);
  refuse("no columns", attn_pattern_csr(row, NULL, 3), ATTN_E_NULL);
  refuse("too few columns", attn_pattern_csr(row, col, 2), ATTN_E_INDEX);
  refuse("too many columns", attn_pattern_csr(row, col, 4), ATTN_E_INDEX);
  row[0] = 1;
  refuse("a late start", p, ATTN_E_INDEX);
  row[0] = 0;
  row[4] = 2;
  refuse("backwards", p, ATTN_E_INDEX);
  row[4] = INT64_MAX;
  refuse("far away", p, ATTN_E_INDEX);
  row[4] = -5;
  refuse("before the first", p, ATTN_E_INDEX);
  row[4] = 1;
  col[1] = 9;
  refuse("a column behind the last", p, ATTN_E_INDEX);
  col[1] = -1;
  refuse("a column before the first", p, ATTN_E_INDEX);
  col[1] = 0;
  refuse("a column twice", p, ATTN_E_INDEX);
}

void C19_algebra_rejects(void **state) {
  (void)state;
  attn_pattern p, parts[3] = {attn_pattern_full(), attn_pattern_full(), attn_pattern_full()};
  for (int kind = ATTN_PATTERN_UNION; kind < ATTN_PATTERN_COUNT; kind++) {
    p = attn_pattern_union(NULL, 2);
    p.kind = (attn_pattern_kind)kind;
    refuse("no parts", p, ATTN_E_NULL);
  }
  refuse("fewer parts than none", attn_pattern_union(parts, -1), PARAMETER);
  refuse("fewer parts than none", attn_pattern_intersect(parts, -1), PARAMETER);
  refuse("too many heads", attn_pattern_per_head(parts, 3), ATTN_E_HEADS);
  refuse("too few heads", attn_pattern_per_head(parts, 1), ATTN_E_HEADS);
  SPOIL(attn_pattern_full(), kind, (attn_pattern_kind)-1, ATTN_E_PATTERN);
  SPOIL(attn_pattern_full(), kind, ATTN_PATTERN_COUNT, ATTN_E_PATTERN);
  parts[1].kind = (attn_pattern_kind)1000;
  refuse("an unknown part", attn_pattern_union(parts, 2), ATTN_E_PATTERN);
  parts[1] = attn_pattern_band(-5, 0);
  refuse("a bad part", attn_pattern_union(parts, 2), PARAMETER);
  refuse("a bad head", attn_pattern_per_head(parts, 2), PARAMETER);

  parts[0] = attn_pattern_complement(&parts[0]);
  refuse("its own part", parts[0], ATTN_E_PATTERN);
  parts[0] = attn_pattern_union(parts, 2);
  parts[1] = attn_pattern_intersect(parts, 2);
  refuse("parts of each other", parts[1], ATTN_E_PATTERN);

  attn_pattern chain[40];
  chain[0] = attn_pattern_band(1, 1);
  for (int n = 1; n < 40; n++) chain[n] = attn_pattern_complement(&chain[n - 1]);
  test_graph deep = test_graph_of(chain[31], 1, 9, 9);
  test_graph_check(&deep, "32 deep");
  refuse("33 deep", chain[33], ATTN_E_PATTERN);

  attn_pattern *many = test_mem(1025 * sizeof *many);
  for (int n = 0; n < 1025; n++) many[n] = attn_pattern_band(0, 0);
  test_graph wide = test_graph_of(attn_pattern_union(many, 1000), 1, 9, 9);
  test_graph_check(&wide, "a thousand parts");
  refuse("too many parts", attn_pattern_union(many, 1025), ATTN_E_PATTERN);
}

void C2_schedule_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(110);
  test_graph g = test_graph_of(attn_pattern_band(2, 2), 2, 9, 12);
  test_spec spec = test_plain(2, 9, 12, 4, 4);
  spec.map = 1;
  test_call call = test_build(&spec, &rng);
  test_fill_value(call.o, 7);
  test_fill_value(call.params.lse, 7);
  test_call before = call;
  before.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 9, 4);
  test_fill_value(before.o, 7);
  uint64_t zeros[64] = {0};
  attn_schedule bad[7], empty = {NULL, 0, NULL}, nothing = {zeros, sizeof zeros, NULL};
  static const int64_t extents[5][3] = {{1, 9, 12}, {4, 9, 12}, {2, 8, 12}, {2, 9, 11}, {2, 12, 9}};
  for (int n = 0; n < 5; n++) {
    test_graph other = test_graph_of(g.p, extents[n][0], extents[n][1], extents[n][2]);
    bad[n] = test_schedule(&other);
  }
  bad[5] = empty;
  bad[6] = nothing;
  for (int n = 0; n < 7; n++) {
    attn_ctx ctx = test_ctx();
    call.params.schedule = &bad[n];
    attn_status status = attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx);
    if (status != ATTN_E_SCHEDULE && !(n == 5 && status == ATTN_E_NULL)) {
      fail_msg("schedule %d: %s", n, attn_status_string(status));
    }
    assert_non_null(ctx.reason);
    test_assert_same(call.o, before.o, "an output of a refused call");
    assert_int_equal(attn_sdpa_workspace(call.o, call.q, call.k, call.v, &call.params, &ctx),
                     ATTN_WORKSPACE_REJECTED);
  }

  attn_schedule good = test_schedule(&g), s;
  attn_schedule_info info;
  attn_ctx ctx = test_ctx();
  int64_t row[10];
  uint8_t pixels[9 * 12];
  assert_int_equal(attn_schedule_open(NULL, good.data, good.size, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_schedule_open(&s, NULL, good.size, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_schedule_open(&s, zeros, sizeof zeros, &ctx), ATTN_E_SCHEDULE);
  assert_int_equal(attn_schedule_open(&s, good.data, 0, &ctx), ATTN_E_SCHEDULE);
  char *shifted = test_mem(good.size + 8);
  memcpy(shifted + 4, good.data, good.size);
  attn_status status = attn_schedule_open(&s, shifted + 4, good.size, &ctx);
  assert_true(status == ATTN_E_ALIGN || status == ATTN_E_SCHEDULE);
  assert_int_equal(attn_schedule_describe(NULL, &good), ATTN_E_NULL);
  assert_int_equal(attn_schedule_describe(&info, NULL), ATTN_E_NULL);
  assert_int_equal(attn_schedule_describe(&info, &nothing), ATTN_E_SCHEDULE);
  assert_int_equal(attn_schedule_csr(NULL, NULL, &good, 0), ATTN_E_NULL);
  assert_int_equal(attn_schedule_csr(row, NULL, NULL, 0), ATTN_E_NULL);
  assert_int_equal(attn_schedule_csr(row, NULL, &good, -1), ATTN_E_RANGE);
  assert_int_equal(attn_schedule_csr(row, NULL, &good, 2), ATTN_E_RANGE);
  assert_int_equal(attn_schedule_csr(row, NULL, &nothing, 0), ATTN_E_SCHEDULE);
  assert_int_equal(attn_pattern_render(NULL, 12, 9, 12, &good, 0), ATTN_E_NULL);
  assert_int_equal(attn_pattern_render(pixels, 12, 9, 12, NULL, 0), ATTN_E_NULL);
  assert_int_equal(attn_pattern_render(pixels, 12, 9, 12, &good, 2), ATTN_E_RANGE);
  assert_int_equal(attn_pattern_render(pixels, -1, 9, 12, &good, 0), ATTN_E_SHAPE);
  assert_int_equal(attn_pattern_render(pixels, 12, -1, 12, &good, 0), ATTN_E_SHAPE);
  assert_int_equal(attn_pattern_render(pixels, 12, 9, 11, &good, 0), ATTN_E_SHAPE);
  assert_int_equal(attn_pattern_render(pixels, 12, 9, 12, &nothing, 0), ATTN_E_SCHEDULE);
}

/* What a predicate is asked, and what it has been told to answer. */
typedef struct watch {
  int64_t heads, q_len, k_len, calls, rectangles;
  int everything;
} watch;

static int watched(void *user, int64_t head, int64_t i, int64_t j) {
  watch *w = (watch *)user;
  w->calls++;
  assert_true(head >= 0 && head < w->heads && i >= 0 && i < w->q_len && j >= 0 && j < w->k_len);
  return w->everything || (i / 20 + j / 20) % 2 == 0;
}

static attn_rectangle watched_in(void *user, int64_t head, int64_t i0, int64_t i1, int64_t j0,
                                 int64_t j1) {
  watch *w = (watch *)user;
  w->rectangles++;
  assert_true(head >= 0 && head < w->heads);
  assert_true(i0 >= 0 && i0 < i1 && i1 <= w->q_len && j0 >= 0 && j0 < j1 && j1 <= w->k_len);
  if (w->everything) return ATTN_WHOLE;
  if (i0 / 20 != (i1 - 1) / 20 || j0 / 20 != (j1 - 1) / 20) return ATTN_PARTIAL;
  return (i0 / 20 + j0 / 20) % 2 == 0 ? ATTN_WHOLE : ATTN_EMPTY;
}

/* A predicate is never asked about padding, and not at all where its rectangles decide. */
void C19_predicate_calls(void **state) {
  (void)state;
  static const int64_t extents[][2] = {{1, 1}, {7, 9}, {65, 63}, {70, 200}, {200, 70}};
  for (int n = 0; n < 10; n++, test_mem_release()) {
    watch w = {2, extents[n / 2][0], extents[n / 2][1], 0, 0, n & 1};
    test_graph g =
        test_graph_of(attn_pattern_predicate(watched, watched_in, &w), 2, w.q_len, w.k_len);
    attn_schedule s = test_schedule(&g);
    int64_t calls = w.calls;
    if (w.everything) assert_int_equal(calls, 0);
    assert_true(w.rectangles > 0);
    g.p.rectangle = NULL;
    w.calls = w.rectangles = 0;
    attn_schedule plain = test_schedule(&g);
    assert_int_equal(w.rectangles, 0);
    assert_true(w.calls >= 2 * w.q_len * w.k_len && w.calls <= 8 * 2 * w.q_len * w.k_len);
    assert_int_equal(s.size, plain.size);
    test_graph_check(&g, "watched");
  }
  /* parts that hide a pair's answer do not change it */
  attn_pattern parts[2] = {attn_pattern_predicate(yes, NULL, NULL), attn_pattern_band(3, 3)};
  test_graph g = test_graph_of(attn_pattern_intersect(parts, 2), 2, 70, 90);
  test_graph band = test_graph_of(parts[1], 2, 70, 90);
  test_graphs_equal(&g, &band, "all of a band");
}
