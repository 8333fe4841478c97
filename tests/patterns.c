/* tests/patterns.c owns schedules in tracked memory and their comparison with the oracle. */

#include "patterns.h"

#include <stdio.h>
#include <string.h>

test_graph test_graph_of(attn_pattern p, int64_t heads, int64_t q_len, int64_t k_len) {
  test_graph g;
  memset(&g, 0, sizeof g);
  g.p = p;
  g.heads = heads;
  g.q_len = q_len;
  g.k_len = k_len;
  g.q_off = k_len - q_len;
  return g;
}

const char *test_graph_name(const test_graph *g) {
  static char text[160];
  snprintf(text, sizeof text, "kind %d%s, %d heads, %d x %d, offset %d", (int)g->p.kind,
           g->p.causal ? " causal" : "", (int)g->heads, (int)g->q_len, (int)g->k_len,
           (int)g->q_off);
  return text;
}

int32_t *test_ints(int64_t n, const int32_t *from) {
  int32_t *to = test_mem((size_t)n * sizeof *to);
  if (n) memcpy(to, from, (size_t)n * sizeof *to);
  return to;
}

uint8_t *test_graph_mask(const test_graph *g, int64_t *pairs) {
  int64_t cells = g->q_len * g->k_len, count = 0;
  uint8_t *mask = test_mem((size_t)(g->heads * cells));
  for (int64_t h = 0; h < g->heads; h++) {
    count +=
        oracle_pattern_mask(mask + h * cells, &g->p, g->heads, g->q_len, g->k_len, g->q_off, h);
  }
  if (pairs) *pairs = count;
  return mask;
}

attn_schedule test_schedule(const test_graph *g) {
  attn_schedule_params params;
  attn_schedule s, kept;
  attn_ctx ctx = test_ctx();
  memset(&params, 0, sizeof params);
  memset(&kept, 0, sizeof kept);
  params.has_q_off = g->has_q_off;
  params.q_off = g->has_q_off ? g->q_off : 0;
  attn_status status = attn_schedule_build(&s, &g->p, g->heads, g->q_len, g->k_len, &params, &ctx);
  if (status != ATTN_OK) {
    fail_msg("attn_schedule_build: %s: %s (%s)", attn_status_string(status),
             ctx.reason ? ctx.reason : "(null)", test_graph_name(g));
  }
  if (ctx.reason) fail_msg("a reason after a success: %s", ctx.reason);
  kept.data = memcpy(test_mem(s.size), s.data, s.size);
  kept.size = s.size;
  attn_schedule_free(&s);
  assert_null(s.data);
  assert_null(s.owned);
  assert_int_equal(s.size, 0);
  return kept;
}

uint8_t *test_schedule_mask(const attn_schedule *s, int64_t *pairs) {
  attn_schedule_info info;
  assert_int_equal(attn_schedule_describe(&info, s), ATTN_OK);
  int64_t cells = info.q_len * info.k_len;
  uint8_t *mask = test_mem((size_t)(info.heads * cells));
  int64_t *row = test_mem((size_t)(info.q_len + 1) * sizeof *row);
  memset(mask, 0, (size_t)(info.heads * cells));
  *pairs = 0;
  for (int64_t h = 0; h < info.heads; h++) {
    assert_int_equal(attn_schedule_csr(row, NULL, s, h), ATTN_OK);
    int64_t nnz = row[info.q_len];
    assert_true(row[0] == 0 && nnz >= 0 && nnz <= cells);
    int64_t *again = test_mem((size_t)(info.q_len + 1) * sizeof *again);
    int32_t *col = test_mem((size_t)nnz * sizeof *col);
    assert_int_equal(attn_schedule_csr(again, col, s, h), ATTN_OK);
    assert_memory_equal(row, again, (size_t)(info.q_len + 1) * sizeof *row);
    for (int64_t i = 0; i < info.q_len; i++) {
      assert_true(row[i] <= row[i + 1]);
      for (int64_t e = row[i]; e < row[i + 1]; e++) {
        assert_true(col[e] >= 0 && col[e] < info.k_len);
        if (e > row[i] && col[e] <= col[e - 1]) fail_msg("columns of row %d descend", (int)i);
        mask[h * cells + i * info.k_len + col[e]] = 1;
      }
    }
    *pairs += nnz;
  }
  return mask;
}

/* Names the first pair in which two sets differ. */
static void compare_masks(const uint8_t *got, const uint8_t *want, const test_graph *g,
                          const char *what) {
  int64_t cells = g->q_len * g->k_len;
  if (memcmp(got, want, (size_t)(g->heads * cells)) == 0) return;
  for (int64_t c = 0; c < g->heads * cells; c++) {
    if (got[c] == want[c]) continue;
    fail_msg("%s (%s): pair (%d, %d) of head %d is %s", what, test_graph_name(g),
             (int)(c % cells / g->k_len), (int)(c % g->k_len), (int)(c / cells),
             want[c] ? "missing" : "too many");
  }
}

void test_graph_check(const test_graph *g, const char *what) {
  int64_t pairs, have, cells = g->q_len * g->k_len;
  uint8_t *want = test_graph_mask(g, &pairs);
  attn_schedule s = test_schedule(g);
  uint8_t *got = test_schedule_mask(&s, &have);
  compare_masks(got, want, g, what);
  attn_schedule_info info;
  assert_int_equal(attn_schedule_describe(&info, &s), ATTN_OK);
  if (info.heads != g->heads || info.q_len != g->q_len || info.k_len != g->k_len ||
      info.q_off != g->q_off || info.bytes != (int64_t)s.size) {
    fail_msg("%s: described as %d heads, %d x %d, offset %d (%s)", what, (int)info.heads,
             (int)info.q_len, (int)info.k_len, (int)info.q_off, test_graph_name(g));
  }
  if (info.pairs != pairs || have != pairs || info.computed < pairs) {
    fail_msg("%s (%s): %d pairs, described %d, computed %d", what, test_graph_name(g), (int)pairs,
             (int)info.pairs, (int)info.computed);
  }
  uint8_t *pixels = test_mem((size_t)(cells + g->q_len * 3));
  for (int64_t h = 0; cells && h < g->heads; h++) {
    assert_int_equal(attn_pattern_render(pixels, g->k_len, g->q_len, g->k_len + 3, &s, h), ATTN_OK);
    for (int64_t c = 0; c < cells; c++) {
      if (pixels[c / g->k_len * 3 + c] == 255 * want[h * cells + c]) continue;
      fail_msg("%s (%s): pixel (%d, %d) of head %d is %d", what, test_graph_name(g),
               (int)(c % g->k_len), (int)(c / g->k_len), (int)h, pixels[c / g->k_len * 3 + c]);
    }
  }
}

void test_graphs_equal(const test_graph *a, const test_graph *b, const char *what) {
  int64_t pairs_a, pairs_b;
  attn_schedule sa = test_schedule(a), sb = test_schedule(b);
  uint8_t *ma = test_schedule_mask(&sa, &pairs_a), *mb = test_schedule_mask(&sb, &pairs_b);
  assert_true(a->heads == b->heads && a->q_len == b->q_len && a->k_len == b->k_len);
  compare_masks(ma, mb, a, what);
}

void test_graph_row(const test_graph *g, int64_t h, int64_t i, int64_t n, const int32_t *keys) {
  for (int64_t j = 0, e = 0; j < g->k_len; j++) { /* the oracle is judged as well */
    int want = e < n && keys[e] == j;
    e += want;
    assert_int_equal(oracle_pattern(&g->p, g->heads, g->q_len, g->k_len, g->q_off, h, i, j), want);
  }
  attn_schedule s = test_schedule(g);
  int64_t *row = test_mem((size_t)(g->q_len + 1) * sizeof *row);
  assert_int_equal(attn_schedule_csr(row, NULL, &s, h), ATTN_OK);
  int32_t *col = test_mem((size_t)row[g->q_len] * sizeof *col);
  assert_int_equal(attn_schedule_csr(row, col, &s, h), ATTN_OK);
  int same = row[i + 1] - row[i] == n;
  for (int64_t e = 0; same && e < n; e++) same = col[row[i] + e] == keys[e];
  if (same) return;
  for (int64_t e = row[i]; e < row[i + 1]; e++) print_error(" %d", (int)col[e]);
  fail_msg("  is row %d of head %d (%s)", (int)i, (int)h, test_graph_name(g));
}

test_call test_graph_call(const test_graph *g, const test_spec *spec, test_rng *rng) {
  test_spec s = *spec;
  s.q_len = g->q_len;
  s.k_len = g->k_len;
  test_call call = test_build(&s, rng);
  attn_schedule *schedule = test_mem((sizeof *schedule + 7) / 8 * 8);
  *schedule = test_schedule(g);
  call.params.schedule = schedule;
  call.params.has_q_off = g->has_q_off;
  call.params.q_off = g->has_q_off ? g->q_off : 0;
  return call;
}

void test_graph_compare(const test_call *call, const test_graph *g, const char *what) {
  test_call plain = *call;
  const attn_mask *own = &call->params.mask;
  int64_t cells = g->q_len * g->k_len, batch = call->q.batch;
  uint8_t *pairs = test_graph_mask(g, NULL);
  if (own->kind != ATTN_MASK_NONE) {
    uint8_t *both = test_mem((size_t)(batch * g->heads * cells));
    for (int64_t c = 0; c < batch * g->heads * cells; c++) {
      int64_t b = c / cells / g->heads, h = c / cells % g->heads;
      double x = oracle_mask(own, b, h, c % cells / g->k_len, c % g->k_len);
      both[c] = (uint8_t)(x == 0 && pairs[c % (g->heads * cells)]);
    }
    plain.params.mask = attn_mask_bool(both, batch, g->heads, g->q_len, g->k_len);
  } else {
    plain.params.mask = attn_mask_bool(pairs, 1, g->heads, g->q_len, g->k_len);
  }
  plain.params.schedule = NULL;
  char text[240];
  snprintf(text, sizeof text, "%s (%s)", what, test_graph_name(g));
  test_compare(&plain, text);
}

void test_graph_run(test_call *call, const test_graph *g, const char *what) {
  attn_report report = test_run(call);
  (void)report;
  test_graph_compare(call, g, what);
}

void test_graph_attend(const test_graph *g, test_rng *rng, const char *what) {
  int64_t dk = test_range(rng, 1, 9);
  test_spec spec = test_plain(g->heads, 0, 0, dk, test_range(rng, 1, 9));
  spec.map = (int)(test_u64(rng) & 1);
  test_call call = test_graph_call(g, &spec, rng);
  test_graph_run(&call, g, what);
}
