/* tests/calls/test_c_schedule.c owns the contract of schedules: memory, saved and corrupted bytes, use by
 * many calls and workers, pictures, the work they promise, and garbage in forbidden keys. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "list.h"
#include "patterns.h"

/* A few graphs with runs, wedges, lists, phases and heads that differ. */
static test_graph typical(int n, test_rng *rng) {
  static const attn_pattern_kind kinds[] = {
      ATTN_PATTERN_BAND,       ATTN_PATTERN_DILATED,        ATTN_PATTERN_RANDOM,
      ATTN_PATTERN_LONGFORMER, ATTN_PATTERN_BIGBIRD,        ATTN_PATTERN_CSR,
      ATTN_PATTERN_AXIAL,      ATTN_PATTERN_SPARSE_STRIDED, ATTN_PATTERN_IMAGE_2D,
      ATTN_PATTERN_UNION,      ATTN_PATTERN_PER_HEAD,       ATTN_PATTERN_TREE};
  return test_random_graph(kinds[n % 12], 150, 1, rng);
}

static attn_schedule_params params_of(const test_graph *g) {
  attn_schedule_params p;
  memset(&p, 0, sizeof p);
  p.has_q_off = g->has_q_off;
  p.q_off = g->has_q_off ? g->q_off : 0;
  return p;
}

/* The size asked for is the size needed, the caller's memory holds the same bytes, nothing else is
 * touched, and a byte less is refused. */
void C2_schedule_memory(void **state) {
  (void)state;
  test_rng rng = test_seed(91);
  for (int n = 0; n < 36; n++, test_mem_release()) {
    test_graph g = typical(n, &rng);
    attn_schedule want = test_schedule(&g), s;
    attn_schedule_params p = params_of(&g);
    attn_ctx ctx = test_ctx();
    size_t size = attn_schedule_bytes(&g.p, g.heads, g.q_len, g.k_len, &p, &ctx);
    assert_int_equal(size, want.size);
    assert_int_equal(size % 8, 0);
    test_where = n % 2 ? TEST_BEFORE_GUARD : TEST_AFTER_GUARD;
    p.memory = test_mem(size);
    p.memory_size = size;
    test_where = TEST_HEAP;
    assert_int_equal(attn_schedule_build(&s, &g.p, g.heads, g.q_len, g.k_len, &p, &ctx), ATTN_OK);
    assert_true(s.data == p.memory && s.owned == NULL && s.size == size);
    assert_memory_equal(s.data, want.data, size);
    attn_schedule_free(&s);
    assert_true(s.data == NULL && s.size == 0);
    assert_memory_equal(p.memory, want.data, size); /* the caller's memory is not freed */

    unsigned char before[sizeof s];
    memset(&s, 0x5A, sizeof s);
    memcpy(before, &s, sizeof s);
    p.memory_size = size - 1;
    assert_int_equal(attn_schedule_build(&s, &g.p, g.heads, g.q_len, g.k_len, &p, &ctx),
                     ATTN_E_WORKSPACE);
    assert_non_null(ctx.reason);
    assert_memory_equal(&s, before, sizeof s);
    p.memory_size = size + 8;
    p.memory = (char *)test_mem(size + 16) + 4;
    assert_int_equal(attn_schedule_build(&s, &g.p, g.heads, g.q_len, g.k_len, &p, &ctx),
                     ATTN_E_ALIGN);
    p = params_of(&g);
    test_malloc_fails = 1;
    attn_status status = attn_schedule_build(&s, &g.p, g.heads, g.q_len, g.k_len, &p, &ctx);
    test_malloc_fails = 0;
    assert_int_equal(status, ATTN_E_MEMORY);
    assert_memory_equal(&s, before, sizeof s);
  }
  attn_schedule_free(NULL);
  attn_schedule none = {NULL, 0, NULL};
  attn_schedule_free(&none);
}

/* Heads that see the same keys share one set of tiles. */
void C2_schedule_shares_heads(void **state) {
  (void)state;
  attn_pattern parts[32], one = attn_pattern_band(9, 9);
  for (int h = 0; h < 32; h++) parts[h] = attn_pattern_band(h % 2 ? 3 : 9, 9);
  size_t single = attn_schedule_bytes(&one, 1, 900, 900, NULL, NULL);
  size_t many = attn_schedule_bytes(&one, 32, 900, 900, NULL, NULL);
  attn_pattern each = attn_pattern_per_head(parts, 32);
  size_t two = attn_schedule_bytes(&each, 32, 900, 900, NULL, NULL);
  assert_true(single > 0 && many <= single + 32 * 8 + 64);
  assert_true(two <= 2 * single + 32 * 8 + 64);
}

/* A schedule serves any batch, head width and number of calls; saved bytes serve as well. */
void C2_schedule_reuse(void **state) {
  (void)state;
  test_rng rng = test_seed(92);
  for (int n = 0; n < 12; n++, test_mem_release()) {
    test_graph g = typical(n, &rng);
    attn_schedule first = test_schedule(&g), second = test_schedule(&g), opened;
    assert_int_equal(first.size, second.size);
    assert_memory_equal(first.data, second.data, first.size);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_schedule_open(&opened, second.data, second.size, &ctx), ATTN_OK);
    assert_true(opened.owned == NULL && opened.data == second.data);
    for (int64_t batch = 0; batch < 3; batch++) {
      test_spec spec = test_plain(g.heads, 0, 0, 3 + 5 * batch, 8);
      spec.batch = batch;
      test_call call = test_graph_call(&g, &spec, &rng), again = test_again(&call);
      call.params.schedule = &first;
      again.params.schedule = &opened;
      test_graph_run(&call, &g, "a schedule used again");
      test_run(&again);
      test_assert_same_outputs(&again, &call, "a saved schedule");
    }
    assert_memory_equal(first.data, second.data, first.size);
  }
}

/* Calls and reads whatever an opened schedule allows, between guard pages. */
static void exercise(const attn_schedule *s, test_call *call) {
  attn_schedule_info info;
  if (attn_schedule_describe(&info, s) != ATTN_OK) return;
  call->params.schedule = s;
  attn_ctx ctx = test_ctx();
  (void)attn_sdpa(call->o, call->q, call->k, call->v, &call->params, &ctx);
  if (info.q_len > 1000 || info.k_len > 1000 || info.heads > 100) return;
  int64_t row[1001];
  uint8_t pixels[16 * 16];
  for (int64_t h = 0; h < info.heads; h++) {
    if (attn_schedule_csr(row, NULL, s, h) != ATTN_OK) continue;
    int64_t nnz = row[info.q_len];
    assert_true(nnz >= 0);
    if (nnz <= 200000) {
      test_place place = test_where;
      test_where = TEST_BEFORE_GUARD;
      int32_t *col = test_mem((size_t)nnz * sizeof *col);
      test_where = place;
      assert_int_equal(attn_schedule_csr(row, col, s, h), ATTN_OK);
    }
    (void)attn_pattern_render(pixels, 16, 16, 16, s, h);
  }
}

/* Bytes that differ anywhere are refused, or make a schedule that reads and writes within bounds. */
void C2_schedule_corrupted(void **state) {
  (void)state;
  static const int64_t spoils[] = {0,  1,         -1,        2,         -2,         8,       -8,
                                   64, INT64_MAX, INT64_MIN, 1u << 31u, -(1 << 30), 1 << 20, 4};
  test_rng rng = test_seed(93);
  for (int n = 0; n < (int)test_count(12, 6); n++) {
    test_graph g = typical(n, &rng);
    attn_schedule good = test_schedule(&g), s;
    size_t words = good.size / 4, fields = 24;
    test_spec spec = test_plain(g.heads, 0, 0, 3, 2);
    test_where = n % 2 ? TEST_BEFORE_GUARD : TEST_AFTER_GUARD;
    test_call call = test_graph_call(&g, &spec, &rng);
    unsigned char *bytes = test_mem(good.size);
    test_where = TEST_HEAP;
    attn_ctx ctx = test_ctx();
    int64_t refused = 0, tries = 0;
    for (int64_t t = 0; t < (int64_t)fields * 14 + test_count(400, 100); t++) {
      memcpy(bytes, good.data, good.size);
      if (t < (int64_t)fields * 14) { /* a field of the header, set or shifted */
        int64_t x;
        size_t at = (size_t)(t / 14) * 8;
        if (at + 8 > good.size) continue;
        memcpy(&x, bytes + at, 8);
        int64_t spoil = spoils[t % 14];
        x = t % 14 == 0 || spoil > 100000 || spoil < -100000 ? spoil : x + spoil;
        memcpy(bytes + at, &x, 8);
      } else { /* a word anywhere */
        int32_t x;
        size_t at = (size_t)test_range(&rng, 0, (int64_t)words - 1) * 4;
        memcpy(&x, bytes + at, 4);
        uint64_t how = test_u64(&rng) % 5;
        x = how == 0   ? x ^ (int32_t)((uint32_t)1 << test_range(&rng, 0, 31))
            : how == 1 ? -1
            : how == 2 ? (int32_t)test_range(&rng, 0, 300)
            : how == 3 ? INT32_MAX
                       : (int32_t)((uint32_t)x + (uint32_t)test_range(&rng, -3, 3));
        memcpy(bytes + at, &x, 4);
      }
      tries++;
      memset(&s, 0, sizeof s);
      attn_status status = attn_schedule_open(&s, bytes, good.size, &ctx);
      if (status != ATTN_OK) {
        assert_int_equal(status, ATTN_E_SCHEDULE);
        assert_non_null(ctx.reason);
        assert_null(s.data);
        refused++;
        continue;
      }
      exercise(&s, &call);
    }
    assert_true(refused > tries / 10);
    /* too short, by anything */
    for (size_t less = 1; less <= good.size; less += 1 + good.size / 50) {
      unsigned char *shorter = test_mem(good.size - less);
      memcpy(shorter, good.data, good.size - less);
      if ((uintptr_t)shorter % 8) continue;
      assert_int_equal(attn_schedule_open(&s, shorter, good.size - less, &ctx), ATTN_E_SCHEDULE);
    }
    test_mem_release();
  }
}

/* Runs of a tile with gaps lie in one residue class: a schedule that breaks this is refused. */
void C2_schedule_classes(void **state) {
  (void)state;
  test_graph g = test_graph_of(attn_pattern_dilated(20, 20, 3), 1, 90, 90);
  attn_schedule good = test_schedule(&g), s;
  unsigned char *bytes = test_mem(good.size);
  attn_ctx ctx = test_ctx();
  int64_t row[91], opened = 0;
  int32_t *col = test_mem(90 * 90 * sizeof *col);
  for (size_t at = 0; at < good.size; at += 4) {
    for (int change = -1; change <= 1; change += 2) {
      int32_t x;
      memcpy(bytes, good.data, good.size);
      memcpy(&x, bytes + at, 4);
      x = (int32_t)((uint32_t)x + (uint32_t)change);
      memcpy(bytes + at, &x, 4);
      if (attn_schedule_open(&s, bytes, good.size, &ctx) != ATTN_OK) continue;
      opened++;
      if (attn_schedule_csr(row, NULL, &s, 0) != ATTN_OK) continue;
      assert_true(row[90] <= 90 * 90);
      assert_int_equal(attn_schedule_csr(row, col, &s, 0), ATTN_OK);
      for (int64_t i = 0; i < 90; i++) {
        for (int64_t e = row[i] + 1; e < row[i + 1]; e++) {
          if ((col[e] - col[e - 1]) % 3) fail_msg("byte %d: row %d mixes classes", (int)at, (int)i);
        }
      }
    }
  }
  assert_true(opened > 0);
}

/* Offsets at the ends of their range survive being saved. */
void C2_schedule_far_offsets(void **state) {
  (void)state;
  static const int64_t offsets[] = {1000000, -1000000, INT32_MAX, -(int64_t)INT32_MAX};
  test_rng rng = test_seed(112);
  for (int n = 0; n < 8; n++) {
    test_graph g = test_graph_of(n & 1 ? attn_pattern_full() : attn_pattern_band(5, -1), 2, 70, 90);
    g.has_q_off = 1;
    g.q_off = offsets[n / 2];
    g.p.causal = n / 2 % 2 == 0;
    test_graph_check(&g, "a far offset");
    attn_schedule s = test_schedule(&g), opened;
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_schedule_open(&opened, s.data, s.size, &ctx), ATTN_OK);
    test_graph_attend(&g, &rng, "a far offset");
  }
}

static void one_call(void *arg, int64_t index) {
  test_call *call = (test_call *)arg + index;
  attn_ctx ctx;
  memset(&ctx, 0, sizeof ctx);
  ctx.isa = test_isa;
  attn_status status = attn_sdpa(call->o, call->q, call->k, call->v, &call->params, &ctx);
  if (status != ATTN_OK) test_fill_value(call->o, 12345);
}

/* The same bits for any number of workers, and for threads that share a schedule. */
void C2_schedule_workers(void **state) {
  (void)state;
  static const attn_parallel_fn loops[] = {test_parallel_forward, test_parallel_backward,
                                           test_parallel_threads};
  test_rng rng = test_seed(94);
  for (int n = 0; n < 12; n++, test_mem_release()) {
    test_graph g = typical(n, &rng);
    test_spec spec = test_plain(g.heads, 0, 0, 9, 11);
    spec.batch = 2;
    spec.map = n % 3 == 0;
    test_call call = test_graph_call(&g, &spec, &rng), want = test_again(&call), four[4];
    test_graph_run(&want, &g, "one worker");
    for (int workers = 1; workers <= 5; workers++) {
      attn_ctx ctx = test_ctx();
      int64_t most = 0;
      ctx.workers = workers;
      ctx.parallel_for = loops[(workers + n) % 3];
      ctx.parallel_user = &most;
      size_t size = attn_sdpa_workspace(call.o, call.q, call.k, call.v, &call.params, &ctx);
      ctx.workspace = test_mem(size);
      ctx.workspace_size = size;
      int64_t calls = test_malloc_calls;
      assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), ATTN_OK);
      assert_int_equal(test_malloc_calls, calls);
      assert_true(most <= workers);
      test_assert_same_outputs(&call, &want, "workers");
    }
    for (int t = 0; t < 4; t++) four[t] = test_again(&call);
    test_parallel_threads(NULL, 4, one_call, four);
    for (int t = 0; t < 4; t++) test_assert_same_outputs(&four[t], &want, "threads");
  }
}

/* Every operand, the schedule's bytes and the pattern's arrays end or begin at unreadable pages. */
void C2_schedule_guard_pages(void **state) {
  (void)state;
  test_rng rng = test_seed(95);
  for (int64_t n = test_count(60, 20); n-- > 0; test_mem_release()) {
    test_where = n % 2 ? TEST_BEFORE_GUARD : TEST_AFTER_GUARD;
    attn_pattern_kind kind = (attn_pattern_kind)(n % ATTN_PATTERN_COUNT);
    test_graph g = test_random_graph(kind, 70, 1, &rng);
    int64_t dk = test_range(&rng, 1, 20);
    test_spec spec = test_plain(g.heads, 0, 0, dk, test_range(&rng, 1, 20));
    spec.k_type = (attn_dtype)(n / 2 % 3);
    spec.v_type = (attn_dtype)(n / 4 % 3);
    spec.k_layout = n % 5 ? TEST_BHTD : TEST_NEGATIVE;
    spec.map = (int)(n >> 2 & 1);
    test_call call = test_graph_call(&g, &spec, &rng);
    attn_ctx ctx = test_ctx();
    size_t size = attn_sdpa_workspace(call.o, call.q, call.k, call.v, &call.params, &ctx);
    ctx.workspace = test_mem(size);
    ctx.workspace_size = size;
    assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), ATTN_OK);
    test_where = TEST_HEAP;
    test_graph_compare(&call, &g, "between guard pages");
  }
}

/* NaN in some keys or values: in exactly the rows that see them. Keys that no row sees may hold
 * anything. */
void C2_schedule_garbage(void **state) {
  (void)state;
  test_rng rng = test_seed(96);
  for (int64_t n = test_count(90, 30); n-- > 0; test_mem_release()) {
    attn_pattern_kind kind = (attn_pattern_kind)(n % ATTN_PATTERN_COUNT);
    test_graph g = test_random_graph(kind, n % 4 ? 100 : 200, 1, &rng);
    test_spec spec = test_plain(g.heads, 0, 0, 6, 5);
    spec.k_type = spec.v_type = (attn_dtype)(n / 3 % 3);
    spec.map = n % 3 == 0; /* weights beside a NaN score are NaN, allowed or not */
    test_call call = test_graph_call(&g, &spec, &rng);
    uint8_t *pairs = test_graph_mask(&g, NULL);
    for (int64_t h = 0; h < g.heads; h++) {
      for (int64_t j = 0; j < g.k_len; j++) {
        int seen = 0;
        for (int64_t i = 0; i < g.q_len; i++) seen |= pairs[(h * g.q_len + i) * g.k_len + j];
        attn_tensor t = n % 3 ? call.k : call.v;
        if (!seen) test_fill_row(t, 0, h, j, j % 2 ? (double)INFINITY : (double)NAN);
        if (seen && test_u64(&rng) % 30 == 0) test_fill_row(t, 0, h, j, (double)NAN);
      }
    }
    test_graph_run(&call, &g, "garbage");
  }
}

/* Pictures smaller and larger than the set. */
void C2_schedule_render(void **state) {
  (void)state;
  test_rng rng = test_seed(97);
  for (int64_t n = test_count(60, 20); n-- > 0; test_mem_release()) {
    int64_t w = test_range(&rng, 1, 12), h = test_range(&rng, 1, 12);
    int64_t fx = test_range(&rng, 1, 8), fy = test_range(&rng, 1, 8);
    test_graph g = test_graph_of(attn_pattern_full(), 2, h * fy, w * fx);
    g.p = test_random_part(&g, 1, &rng);
    attn_schedule s = test_schedule(&g);
    uint8_t *pairs = test_graph_mask(&g, NULL), small[12 * 14];
    for (int64_t head = 0; head < 2; head++) {
      memset(small, 0x5A, sizeof small);
      assert_int_equal(attn_pattern_render(small, w, h, w + 2, &s, head), ATTN_OK);
      for (int64_t y = 0; y < h; y++) {
        for (int64_t x = 0; x < w; x++) {
          int64_t sum = 0, cells = fx * fy;
          for (int64_t c = 0; c < cells; c++) {
            sum += pairs[(head * g.q_len + y * fy + c / fx) * g.k_len + x * fx + c % fx];
          }
          assert_int_equal(small[y * (w + 2) + x], (255 * sum + cells - 1) / cells);
        }
        if (y + 1 < h) assert_int_equal(small[y * (w + 2) + w], 0x5A);
      }
      int64_t tw = 2 * g.k_len, th = 3 * g.q_len;
      uint8_t *large = test_mem((size_t)(tw * th));
      assert_int_equal(attn_pattern_render(large, tw, th, tw, &s, head), ATTN_OK);
      for (int64_t c = 0; c < tw * th; c++) {
        int want = 255 * pairs[(head * g.q_len + c / tw / 3) * g.k_len + c % tw / 2];
        assert_int_equal(large[c], want);
      }
    }
  }
}

static attn_schedule_info describe(attn_pattern p, int64_t heads, int64_t tq, int64_t tk) {
  attn_schedule_info info;
  test_graph g = test_graph_of(p, heads, tq, tk);
  attn_schedule s = test_schedule(&g);
  assert_int_equal(attn_schedule_describe(&info, &s), ATTN_OK);
  return info;
}

/* What a schedule says it computes is what a call computes, whatever the pattern. */
void C2_schedule_counts(void **state) {
  (void)state;
  test_rng rng = test_seed(99);
  for (int64_t n = 0, count = test_count(120, 30); n < count; n++, test_mem_release()) {
    test_graph g = typical((int)n, &rng);
    attn_schedule s = test_schedule(&g);
    attn_schedule_info info;
    assert_int_equal(attn_schedule_describe(&info, &s), ATTN_OK);
    test_spec spec = test_plain(g.heads, 0, 0, 2, 2);
    test_call call = test_graph_call(&g, &spec, &rng);
    const int64_t batch = call.q.batch;
    attn_report report = test_run(&call);
    if (report.pairs != batch * info.computed)
      fail_msg("%s: %lld pairs ran, %lld described", test_graph_name(&g), (long long)report.pairs,
               (long long)(batch * info.computed));
  }
}

/* Few rows that see long runs of keys: read as lists, kept as runs. */
void C2_schedule_few_rows(void **state) {
  (void)state;
  test_rng rng = test_seed(100);
  static const int32_t some[] = {0, 5, 129, 700};
  for (int64_t rows = 1; rows <= 6; rows++)
    for (int n = 0; n < 8; n++, test_mem_release()) {
      const attn_pattern all[] = {attn_pattern_full(),
                                  attn_pattern_band(-1, 0),
                                  attn_pattern_band(300, 20),
                                  attn_pattern_dilated(100, 5, 3),
                                  attn_pattern_strided(2),
                                  attn_pattern_global(some, 4),
                                  attn_pattern_random_blocks(50, 4, 3),
                                  attn_pattern_blocks(100, 2, 0)};
      test_graph g = test_graph_of(all[n], 2, rows, 777);
      g.p.causal = n == 6;
      test_graph_check(&g, "few rows");
      test_graph_attend(&g, &rng, "few rows");
      if (n < 3) assert_true(attn_schedule_bytes(&g.p, 2, rows, 777, NULL, NULL) < 1000);
    }
}

/* Memory and work follow what a pattern holds, not how long the sequence is. */
void C2_schedule_far(void **state) {
  (void)state;
  static const int32_t some[] = {INT32_MAX - 2, 7, 7, 1 << 30};
  static const int64_t indptr[] = {0, 2, 2, 4};
  static const int32_t col[] = {9, 1 << 30, INT32_MAX - 5, 3};
  const attn_pattern parts[] = {attn_pattern_band(3, 1), attn_pattern_global(some, 4)};
  const struct {
    attn_pattern p;
    int64_t pairs;
  } cases[] = {{attn_pattern_band(100, 0), 303},
               {attn_pattern_full(), 3 * (int64_t)INT32_MAX},
               {attn_pattern_random(20, 4), 60},
               {attn_pattern_random_blocks(64, 2, 1), 384},
               {attn_pattern_union(parts, 2), 21},
               {attn_pattern_csr(indptr, col, 4), 4},
               {attn_pattern_blocks(1 << 20, 0, 0), 3 * ((1 << 20) - (int64_t)1)}};
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
    attn_schedule s;
    attn_schedule_info info;
    attn_ctx ctx = test_ctx();
    test_malloc_most = 0;
    assert_int_equal(attn_schedule_build(&s, &cases[n].p, 1, 3, INT32_MAX, NULL, &ctx), ATTN_OK);
    assert_int_equal(attn_schedule_describe(&info, &s), ATTN_OK);
    if (n != 3 && n != 4) assert_int_equal(info.pairs, cases[n].pairs);
    if (test_malloc_most >= 1 << 17 || info.bytes >= 1 << 13)
      fail_msg("case %d: %d bytes asked for, %d held", (int)n, (int)test_malloc_most,
               (int)info.bytes);
    attn_schedule_free(&s);
  }
}

/* Work follows the allowed pairs: twice the length is twice the work, and tiles waste little. */
void C2_schedule_work(void **state) {
  (void)state;
  static const int32_t some[] = {0, 1, 700}, grid[] = {32, 32};
  const struct {
    const char *name;
    attn_pattern p;
    double waste; /* the most pairs computed for an allowed one */
    int doubles;
  } cases[] = {
      {"band", attn_pattern_band(64, 0), 2, 1},
      {"wide band", attn_pattern_band(256, 256), 1.2, 1},
      {"dilated", attn_pattern_dilated(16, 16, 4), 4, 1},
      {"strided", attn_pattern_strided(32), 1.1, 0},
      {"random keys", attn_pattern_random(24, 1), 1, 1},
      {"random blocks", attn_pattern_random_blocks(64, 3, 1), 1, 1},
      {"blocks", attn_pattern_blocks(64, 1, 1), 1, 1},
      {"longformer", attn_pattern_longformer(64, 1, some, 3), 2.2, 1},
      {"bigbird", attn_pattern_bigbird(64, 1), 1, 0},
      {"sparse strided", attn_pattern_sparse_strided(32, ATTN_SPARSE_MERGED), 3, 0},
      {"sparse fixed", attn_pattern_sparse_fixed(32, 8, ATTN_SPARSE_MERGED), 3, 0},
      {"image", attn_pattern_image_1d(64, 64), 1.5, 1},
      {"axial", attn_pattern_axial(grid, 2, 0), 2, 0},
      {"axial rows", attn_pattern_axial(grid, 2, 1), 2, 0},
  };
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++, test_mem_release()) {
    attn_schedule_info once = describe(cases[n].p, 2, 1024, 1024);
    double waste = (double)once.computed / (double)once.pairs;
    if (waste > cases[n].waste) fail_msg("%s computes %.3g pairs a pair", cases[n].name, waste);
    if (cases[n].doubles) {
      attn_schedule_info twice = describe(cases[n].p, 2, 2048, 2048);
      double work = (double)twice.computed / (double)once.computed;
      if (work > 2.2) fail_msg("%s: %.3g times the work for twice the length", cases[n].name, work);
      double bytes = (double)twice.bytes / (double)once.bytes;
      if (bytes > 2.4)
        fail_msg("%s: %.3g times the bytes for twice the length", cases[n].name, bytes);
    }
    test_rng rng = test_seed(98);
    test_graph g = test_graph_of(cases[n].p, 2, 1024, 1024);
    test_spec spec = test_plain(2, 0, 0, 1, 1);
    test_call call = test_graph_call(&g, &spec, &rng);
    attn_report report = test_run(&call);
    if (report.pairs != once.computed) {
      fail_msg("%s: %lld pairs ran, %lld described, %lld allowed", cases[n].name,
               (long long)report.pairs, (long long)once.computed, (long long)once.pairs);
    }
  }
  /* a long sequence costs no square of anything */
  attn_schedule_info far = describe(attn_pattern_band(64, 64), 8, 1 << 17, 1 << 17);
  assert_true(far.bytes < (1 << 17) * 40);
  assert_true(far.computed <= 2 * far.pairs);
}
