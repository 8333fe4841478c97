/* tests/families/selection/test_prefill.c owns estimates of what a prompt need not attend to, against their definitions
 * pair by pair in float64: masses and sums, choices from those, masks, and attention over the masks. */

#include <math.h>
#include <stdlib.h>

#include "harness.h"

typedef struct scene {
  attn_tensor q, k;
  int64_t b, h, q_off;
  int32_t q_len[3], kv_len[3];
} scene;

static scene scene_of(test_rng *rng, int64_t b, int64_t h, int64_t hk, int64_t tq, int64_t tk,
                      int64_t dk, attn_dtype type) {
  scene s;
  s.b = b, s.h = h, s.q_off = tk - tq;
  s.q = test_tensor(type, (test_layout)test_range(rng, 0, TEST_NEGATIVE), b, h, tq, dk);
  s.k = test_tensor(type, (test_layout)test_range(rng, 0, TEST_NEGATIVE), b, hk, tk, dk);
  test_fill(s.q, rng, test_normal), test_fill(s.k, rng, test_normal);
  for (int i = 0; i < 3; i++) s.q_len[i] = (int32_t)tq, s.kv_len[i] = (int32_t)tk;
  return s;
}

static double dot(const scene *s, int64_t b, int64_t h, int64_t i, int64_t j) {
  const int64_t hk = h * s->k.heads / s->h;
  double x = 0;
  if (i >= s->q_len[b] || j >= s->kv_len[b]) return 0;
  for (int64_t c = 0; c < s->q.dim; c++)
    x += oracle_get(&s->q, b, h, i, c) * oracle_get(&s->k, b, hk, j, c);
  return x;
}

static int64_t runs(int64_t n, int64_t each) { return (n + each - 1) / each; }

/* The rule by gamma, from masses as the call gives them: forced ones, then the largest, ties to the lower. */
static void cover(uint8_t *chosen, const float *mass, int64_t n, double gamma) {
  double all = 0, sum = 0;
  for (int64_t j = 0; j < n; j++) all += (double)mass[j], sum += chosen[j] ? (double)mass[j] : 0;
  while (sum < gamma * all || gamma == 1) {
    int64_t best = -1;
    for (int64_t j = 0; j < n; j++)
      if (!chosen[j] && (best < 0 || mass[j] > mass[best])) best = j;
    if (best < 0) break;
    chosen[best] = 1, sum += (double)mass[best];
  }
}

/* Masses of a block of queries in float64, and how wrong they may be. */
static void masses(const scene *s, int64_t b, int64_t h, int64_t at, int64_t block, int64_t stride,
                   double scale, double *mass, int64_t columns) {
  const int64_t cells = runs(s->k.len, stride);
  double *z = calloc((size_t)cells + 1, sizeof *z);
  for (int64_t c = 0; c < columns; c++) mass[c] = 0;
  for (int64_t a = at * block / stride; a < (at + 1) * block / stride; a++) {
    double most = -INFINITY, sum = 0;
    if (a * stride >= s->q_len[b]) break;
    const int64_t end = (a + 1) * stride < s->q_len[b] ? (a + 1) * stride : s->q_len[b];
    const int64_t last = end - 1 + s->q_off;
    int64_t n = 0;
    for (; n * stride <= last && n * stride < s->kv_len[b]; n++) {
      z[n] = 0;
      for (int64_t t = 0; t < stride; t++)
        z[n] += dot(s, b, h, a * stride + stride - 1 - t, n * stride + t);
      z[n] *= scale / (double)stride;
      most = z[n] > most ? z[n] : most;
    }
    for (int64_t x = 0; x < n; x++) sum += exp(z[x] - most);
    for (int64_t x = 0; x < n; x++) mass[x * stride / block] += exp(z[x] - most) / sum;
  }
  free(z);
}

/* Blocks that query block `at` sees: 0 .. the result - 1; its own begin at *own. */
static int64_t seen(const scene *s, int64_t b, int64_t at, int64_t block, int64_t *own) {
  const int64_t i0 = at * block,
                i1 = (at + 1) * block < s->q_len[b] ? (at + 1) * block : s->q_len[b];
  int64_t n = 0;
  *own = (i0 + s->q_off < 0 ? 0 : i0 + s->q_off) / block;
  for (int64_t j = 0; i0 < i1 && j <= i1 - 1 + s->q_off && j < s->kv_len[b]; j++) n = j / block + 1;
  return n;
}

/* Lengths of their own, and NaN behind them. */
static void cut(scene *s, test_rng *rng) {
  for (int x = 0; x < 3; x++) {
    s->q_len[x] = (int32_t)test_range(rng, 0, s->q.len);
    s->kv_len[x] = (int32_t)test_range(rng, 0, s->k.len);
    for (int64_t h = 0; x < s->b && h < s->k.heads; h++)
      for (int64_t j = s->kv_len[x]; j < s->k.len; j++) test_fill_row(s->k, x, h, j, (double)NAN);
    for (int64_t h = 0; x < s->b && h < s->h; h++)
      for (int64_t j = s->q_len[x]; j < s->q.len; j++) test_fill_row(s->q, x, h, j, (double)NAN);
  }
}

static void xattention_case(test_rng *rng, int64_t n) {
  static const int64_t blocks[][2] = {{1, 1}, {8, 4}, {6, 2}, {16, 16}, {128, 16}, {96, 1}, {5, 5}};
  const int64_t block = blocks[n % 7][0], stride = blocks[n % 7][1];
  const int64_t group = test_range(rng, 1, 3), hk = test_range(rng, 1, 2),
                b = test_range(rng, 1, 2);
  const int64_t tq = test_range(rng, 1, n % 3 == 0 ? 300 : 40), tk = tq + test_range(rng, 0, 20);
  scene s = scene_of(rng, b, group * hk, hk, tq, tk, test_range(rng, 1, 19),
                     (attn_dtype)test_range(rng, 0, 2));
  const int64_t rows = runs(tq, block), columns = runs(tk, block);
  const size_t size = (size_t)(b * s.h * rows * columns);
  uint8_t *mask = test_mem(size), *again = test_mem(size), *want = test_mem((size_t)columns);
  double *mass = test_mem((size_t)columns * sizeof *mass);
  attn_xattention_params p = {0};
  attn_ctx ctx = test_ctx();
  p.block = block == 128 ? 0 : block, p.stride = stride == 16 ? 0 : stride;
  p.norm = n % 2 ? 2.0f : 0.0f, p.scale = n % 5 == 4 ? 0.7f : 0;
  p.gamma = n % 4 == 0 ? 0 : n % 4 == 1 ? ATTN_ZERO : n % 4 == 2 ? 0.5f : 1.0f;
  p.mass = test_tensor(ATTN_F32, TEST_PADDED, b, s.h, rows, columns);
  if (n % 3 == 1) p.has_q_off = 1, p.q_off = s.q_off = test_range(rng, -3, tk - tq);
  if (s.q_off < -tq) p.q_off = s.q_off = -tq;
  if (n % 3 == 2) {
    cut(&s, rng);
    p.q_len = s.q_len, p.kv_len = s.kv_len;
  }
  if (attn_xattention(mask, s.q, s.k, &p, &ctx)) fail_msg("%s", ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
  const double scale =
      (p.scale != 0.0f ? (double)p.scale : 1 / sqrt((double)s.q.dim)) / (n % 2 ? 2.0 : 1.0);
  for (int64_t unit = 0; unit < b * s.h * rows; unit++) {
    const int64_t at = unit % rows, h = unit / rows % s.h, e = unit / rows / s.h;
    float *have = oracle_address(&p.mass, e, h, at, 0);
    int64_t own;
    masses(&s, e, h, at, block, stride, scale, mass, columns);
    for (int64_t c = 0; c < columns; c++)
      if (!(fabs((double)have[c] - mass[c]) < 2e-5 * (1e-2 + mass[c])))
        fail_msg("case %d: mass %g, want %g", (int)n, (double)have[c], mass[c]);
    const int64_t see = seen(&s, e, at, block, &own);
    for (int64_t c = 0; c < columns; c++) want[c] = c < see && (c == 0 || c >= own);
    cover(want, have, see, n % 4 == 0 ? (double)0.9f : n % 4 == 1 ? 0 : n % 4 == 2 ? 0.5 : 1);
    assert_memory_equal(mask + unit * columns, want, (size_t)columns);
  }
  p.mass.data = NULL, ctx = test_ctx(), ctx.workers = 3, ctx.parallel_for = test_parallel_threads;
  ctx.workspace_size = attn_xattention_workspace(again, s.q, s.k, &p, &ctx);
  ctx.workspace = test_mem(ctx.workspace_size);
  assert_int_equal(attn_xattention(again, s.q, s.k, &p, &ctx), ATTN_OK);
  assert_memory_equal(again, mask, size);
}

void M3_xattention(void **state) {
  (void)state;
  test_rng rng = test_seed(30100);
  for (int64_t n = 0; n < test_count(84, 21); n++, test_mem_release()) xattention_case(&rng, n);
}

/* Cells of one query and one key: the masses are the weights of attention. */
void M3_xattention_is_the_map(void **state) {
  (void)state;
  test_rng rng = test_seed(30101);
  scene s = scene_of(&rng, 1, 2, 1, 131, 140, 24, ATTN_F32);
  uint8_t *mask = test_mem(2 * 131 * 140);
  attn_xattention_params p = {0};
  attn_sdpa_params dense = {0};
  attn_ctx ctx = test_ctx();
  attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 131, 24);
  for (int64_t j = 0; j < 140 * 24; j++) { /* scores of head 1 are far below 0 */
    oracle_set(&s.k, 0, 0, j / 24, j % 24, 2 + oracle_get(&s.k, 0, 0, j / 24, j % 24));
    if (j < 131 * 24) oracle_set(&s.q, 0, 1, j / 24, j % 24, -40);
  }
  p.block = p.stride = 1, p.mass = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 131, 140);
  dense.causal = 1, dense.map = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 131, 140);
  assert_int_equal(attn_xattention(mask, s.q, s.k, &p, &ctx), ATTN_OK);
  assert_int_equal(attn_sdpa(o, s.q, s.k, s.k, &dense, &ctx), ATTN_OK);
  for (int64_t h = 0; h < 2; h++)
    for (int64_t i = 0; i < 131; i++)
      for (int64_t j = 0; j < 140; j++) {
        const double x = oracle_get(&dense.map, 0, h, i, j), y = oracle_get(&p.mass, 0, h, i, j);
        assert_true(fabs(x - y) <= (h ? 1e-4 : 3e-6) * x + 1e-30);
        if (j > i + 9) assert_true(mask[(h * 131 + i) * 140 + j] == 0);
      }
}

static void slash_case(test_rng *rng, int64_t n) {
  const int64_t group = test_range(rng, 1, 3), hk = test_range(rng, 1, 2),
                b = test_range(rng, 1, 2);
  const int64_t tq = test_range(rng, 1, n % 3 == 0 ? 260 : 70), tk = tq + test_range(rng, 0, 20);
  scene s = scene_of(rng, b, group * hk, hk, tq, tk, test_range(rng, 1, 19),
                     (attn_dtype)test_range(rng, 0, 2));
  attn_vertical_slash_params p = {0};
  p.block = n % 4 == 0   ? 0
            : n % 5 == 2 ? 1
                         : test_range(rng, 1, 40),
  p.queries = n % 5 == 0 ? 0 : test_range(rng, 1, 90);
  p.gamma = n % 4 == 0 ? 0 : n % 4 == 1 ? ATTN_ZERO : n % 4 == 2 ? 0.5f : 1.0f;
  if (n % 6) p.has_sink = 1, p.sink = n % 3, p.has_near_by = 1, p.near_by = n % 7;
  if (n % 3 == 1) p.has_q_off = 1, p.q_off = s.q_off = test_range(rng, tq < 3 ? -tq : -3, tk - tq);
  if (n % 3 == 2) {
    cut(&s, rng);
    p.q_len = s.q_len, p.kv_len = s.kv_len;
  }
  const int64_t block = p.block ? p.block : 64, last = p.queries ? p.queries : 64;
  const int64_t rows = runs(tq, block), columns = runs(tk, block);
  const int64_t sink = n % 6 ? p.sink : 30, near_by = n % 6 ? p.near_by : 100;
  const size_t size = (size_t)(b * s.h * rows * columns), all = (size_t)tk;
  const double gamma = n % 4 == 0 ? (double)0.9f : n % 4 == 1 ? 0 : n % 4 == 2 ? 0.5 : 1;
  uint8_t *mask = test_mem(size), *again = test_mem(size),
          *want = test_mem((size_t)(rows * columns));
  uint8_t *column = test_mem(all), *offset = test_mem(all);
  double *cs = test_mem(all * 8), *os = test_mem(all * 8), *w = test_mem(all * 8);
  p.columns = test_tensor(ATTN_F32, TEST_PADDED, b, s.h, 1, tk);
  p.offsets = test_tensor(ATTN_F32, TEST_PADDED, b, s.h, 1, tk);
  attn_ctx ctx = test_ctx();
  if (attn_vertical_slash(mask, s.q, s.k, &p, &ctx)) fail_msg("%s", ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
  for (int64_t unit = 0; unit < b * s.h; unit++) {
    const int64_t e = unit / s.h, h = unit % s.h, q_len = s.q_len[e], keys = s.kv_len[e];
    for (int64_t j = 0; j < tk; j++) cs[j] = os[j] = 0;
    for (int64_t i = q_len < last ? 0 : q_len - last; i < q_len; i++) {
      double most = -INFINITY, sum = 0;
      for (int64_t j = 0; j < keys && j <= i + s.q_off; j++) {
        w[j] = dot(&s, e, h, i, j) / sqrt((double)s.q.dim);
        most = w[j] > most ? w[j] : most;
      }
      for (int64_t j = 0; j < keys && j <= i + s.q_off; j++) sum += exp(w[j] - most);
      for (int64_t j = 0; j < keys && j <= i + s.q_off; j++)
        cs[j] += exp(w[j] - most) / sum, os[i + s.q_off - j] += exp(w[j] - most) / sum;
    }
    float *hc = oracle_address(&p.columns, e, h, 0, 0),
          *ho = oracle_address(&p.offsets, e, h, 0, 0);
    for (int64_t j = 0; j < tk; j++) {
      if (!(fabs((double)hc[j] - cs[j]) < 2e-5 * (1e-2 + cs[j])))
        fail_msg("case %d: column %d", (int)n, (int)j);
      if (!(fabs((double)ho[j] - os[j]) < 2e-5 * (1e-2 + os[j])))
        fail_msg("case %d: offset %d", (int)n, (int)j);
      column[j] = j < sink, offset[j] = j < near_by;
    }
    const int64_t end = q_len + s.q_off < 0 ? 0 : q_len + s.q_off;
    cover(column, hc, end < keys ? end : keys, gamma), cover(offset, ho, end, gamma);
    memset(want, 0, (size_t)(rows * columns));
    for (int64_t i = 0; i < q_len; i++)
      for (int64_t j = 0; j < keys && j <= i + s.q_off; j++)
        want[i / block * columns + j / block] |= column[j] | offset[i + s.q_off - j];
    assert_memory_equal(mask + unit * rows * columns, want, (size_t)(rows * columns));
  }
  ctx = test_ctx(), ctx.workers = 3, ctx.parallel_for = test_parallel_threads;
  p.columns.data = p.offsets.data = NULL;
  ctx.workspace_size = attn_vertical_slash_workspace(again, s.q, s.k, &p, &ctx);
  ctx.workspace = test_mem(ctx.workspace_size);
  assert_int_equal(attn_vertical_slash(again, s.q, s.k, &p, &ctx), ATTN_OK);
  assert_memory_equal(again, mask, size);
}

void M3_vertical_slash(void **state) {
  (void)state;
  test_rng rng = test_seed(30102);
  for (int64_t n = 0; n < test_count(60, 18); n++, test_mem_release()) slash_case(&rng, n);
}

/* Attention over the mask of one entry. */
static attn_report attend(const scene *s, const uint8_t *mask, int64_t block, attn_tensor o,
                          attn_tensor v, int64_t *pairs) {
  attn_pattern chosen = attn_pattern_block_mask(mask, block, block);
  attn_schedule schedule = {0};
  attn_schedule_info info;
  attn_sdpa_params p = {0};
  attn_ctx ctx = test_ctx();
  chosen.bits_heads = s->h, chosen.causal = 1;
  assert_int_equal(attn_schedule_build(&schedule, &chosen, s->h, s->q.len, s->k.len, NULL, &ctx),
                   ATTN_OK);
  assert_int_equal(attn_schedule_describe(&info, &schedule), ATTN_OK);
  p.schedule = &schedule, *pairs = info.pairs;
  assert_int_equal(attn_sdpa(o, s->q, s->k, v, &p, &ctx), ATTN_OK);
  assert_int_equal(ctx.report.pairs, info.computed);
  attn_schedule_free(&schedule);
  return ctx.report;
}

/* All blocks are causal attention; the forced ones alone are a fraction of its work; in between the work follows the
 * choice, and what is left out weighs as little as gamma says. */
void M3_prefill_attends(void **state) {
  (void)state;
  test_rng rng = test_seed(30103);
  const int64_t t = test_fast ? 900 : 1100, d = 16, block = 64, n = runs(t, block);
  for (int way = 0; way < 2; way++, test_mem_release()) {
    scene s = scene_of(&rng, 1, 2, 1, t, t, d, ATTN_F32);
    attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, t, d);
    attn_tensor o[3], causal = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, t, d);
    attn_sdpa_params dense = {0};
    attn_ctx ctx = test_ctx();
    int64_t pairs[3];
    uint8_t *mask = test_mem((size_t)(2 * n * n));
    test_fill(v, &rng, test_normal);
    for (int64_t h = 0; h < 1; h++) /* tokens 100.. are what most look at */
      for (int64_t j = 100; j < 110; j++)
        for (int64_t c = 0; c < d; c++) oracle_set(&s.k, 0, h, j, c, 2.5);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < t; i++)
        for (int64_t c = 0; c < d; c++)
          oracle_set(&s.q, 0, h, i, c, 1 + oracle_get(&s.q, 0, h, i, c) / 4);
    dense.causal = 1;
    assert_int_equal(attn_sdpa(causal, s.q, s.k, v, &dense, &ctx), ATTN_OK);
    for (int g = 0; g < 3; g++) {
      const float gamma = g == 0 ? ATTN_ZERO : g == 1 ? 0.8f : 1.0f;
      if (way == 0) {
        attn_xattention_params p = {0};
        p.block = block, p.stride = 4, p.gamma = gamma;
        assert_int_equal(attn_xattention(mask, s.q, s.k, &p, &ctx), ATTN_OK);
      } else {
        attn_vertical_slash_params p = {0};
        p.block = block, p.gamma = gamma, p.has_near_by = 1, p.near_by = 5;
        assert_int_equal(attn_vertical_slash(mask, s.q, s.k, &p, &ctx), ATTN_OK);
      }
      o[g] = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, t, d);
      attend(&s, mask, block, o[g], v, &pairs[g]);
    }
    assert_int_equal(pairs[2], t * (t + 1));
    assert_true(pairs[0] < pairs[1] && pairs[1] < pairs[2] * 4 / 5);
    double all = 0, part = 0, none = 0;
    for (int64_t i = 0; i < t; i++)
      for (int64_t c = 0; c < d; c++) {
        const double x = oracle_get(&causal, 0, 1, i, c);
        all = fmax(all, fabs(x - oracle_get(&o[2], 0, 1, i, c)));
        part += pow(x - oracle_get(&o[1], 0, 1, i, c), 2);
        none += pow(x - oracle_get(&o[0], 0, 1, i, c), 2);
      }
    assert_true(all < 1e-5);
    assert_true(part < none / 2);
  }
}

/* NaN in what a block of queries sees keeps all that it may see, and touches no other; nothing to do is fine. */
void M3_prefill_nan_and_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(30104);
  enum { T = 96, N = 12 };
  scene s = scene_of(&rng, 1, 1, 1, T, T, 8, ATTN_F32);
  uint8_t mask[2][N * N], before[N * N];
  attn_xattention_params p = {0};
  attn_vertical_slash_params r = {0};
  attn_ctx ctx = test_ctx();
  p.block = 8, p.stride = 4, p.gamma = ATTN_ZERO, r.block = 8, r.gamma = ATTN_ZERO, r.queries = 8;
  assert_int_equal(attn_xattention(before, s.q, s.k, &p, &ctx), ATTN_OK);
  test_fill_row(s.k, 0, 0, 50, (double)NAN); /* block 6 */
  assert_int_equal(attn_xattention(mask[0], s.q, s.k, &p, &ctx), ATTN_OK);
  assert_int_equal(attn_vertical_slash(mask[1], s.q, s.k, &r, &ctx), ATTN_OK);
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++) {
      assert_int_equal(mask[0][i * N + j], i < 6 ? before[i * N + j] : j <= i);
      assert_int_equal(mask[1][i * N + j], j <= i);
    }
  s.q.len = 0;
  assert_int_equal(attn_xattention(NULL, s.q, s.k, &p, &ctx), ATTN_OK);
  assert_int_equal(attn_vertical_slash(NULL, s.q, s.k, &r, &ctx), ATTN_OK);
  assert_int_equal(attn_xattention_workspace(NULL, s.q, s.k, &p, &ctx), 0);
  s.q.len = T, s.k.len = 0;
  assert_int_equal(attn_xattention(NULL, s.q, s.k, NULL, &ctx), ATTN_OK);
  assert_int_equal(attn_vertical_slash(NULL, s.q, s.k, NULL, &ctx), ATTN_OK);
}

typedef struct spoiled {
  uint8_t *mask;
  attn_tensor q, k;
  attn_xattention_params x;
  attn_vertical_slash_params v;
  int32_t len[1];
  attn_ctx ctx;
} spoiled;

#define REJECTS(want, word, body)                                                              \
  for (int way = 0; way < 2; way++) {                                                          \
    spoiled s = good;                                                                          \
    s.x.kv_len = s.x.q_len = s.v.kv_len = s.v.q_len = s.len;                                   \
    body const attn_status status = way ? attn_vertical_slash(s.mask, s.q, s.k, &s.v, &s.ctx)  \
                                        : attn_xattention(s.mask, s.q, s.k, &s.x, &s.ctx);     \
    if (status != (want)) fail_msg("%s: status %d", #body, (int)status);                       \
    if (!s.ctx.reason || !strstr(s.ctx.reason, word)) fail_msg("%s: %s", #body, s.ctx.reason); \
    for (int i = 0; i < 64; i++) assert_int_equal(bytes[i], 0xA5);                             \
  }

void M3_prefill_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(30105);
  scene a = scene_of(&rng, 1, 4, 2, 16, 16, 8, ATTN_F32);
  uint8_t *bytes = test_mem(64);
  spoiled good;
  memset(&good, 0, sizeof good);
  good.mask = bytes, good.q = a.q, good.k = a.k, good.ctx = test_ctx(), good.len[0] = 9;
  good.x.block = good.v.block = 8, good.x.stride = 4;
  REJECTS(ATTN_E_NULL, "mask", s.mask = NULL;)
  REJECTS(ATTN_E_NULL, "q", s.q.data = NULL;)
  REJECTS(ATTN_E_NULL, "k", s.k.data = NULL;)
  REJECTS(ATTN_E_DTYPE, "k", s.k.dtype = ATTN_I8;)
  REJECTS(ATTN_E_SHAPE, "k must", s.k.dim = 7;)
  REJECTS(ATTN_E_SHAPE, "k must", s.k.batch = 2; s.k.stride_batch = 0;)
  REJECTS(ATTN_E_HEADS, "k.heads", s.k.heads = 3; s.k.stride_head = 0;)
  REJECTS(ATTN_E_SHAPE, "q.heads", s.q.heads = 0;)
  REJECTS(ATTN_E_VALUE, "scale", s.x.scale = s.v.scale = NAN;)
  REJECTS(ATTN_E_VALUE, "gamma", s.x.gamma = s.v.gamma = 1.01f;)
  REJECTS(ATTN_E_VALUE, "gamma", s.x.gamma = s.v.gamma = -0.01f;)
  REJECTS(ATTN_E_VALUE, "gamma", s.x.gamma = s.v.gamma = NAN;)
  REJECTS(ATTN_E_SHAPE, "block", s.x.block = s.v.block = -1;)
  REJECTS(ATTN_E_RANGE, "q_off", s.x.has_q_off = s.v.has_q_off = 1; s.x.q_off = s.v.q_off = 1;)
  REJECTS(ATTN_E_RANGE, "q_off", s.x.has_q_off = s.v.has_q_off = 1; s.x.q_off = s.v.q_off = -17;)
  REJECTS(ATTN_E_RANGE, "_len", s.len[0] = 17;)
  REJECTS(ATTN_E_RANGE, "_len", s.len[0] = -1;)
  REJECTS(ATTN_E_OVERLAP, "mask", s.mask = s.q.data;)
  REJECTS(ATTN_E_OVERLAP, "mask", s.mask = (uint8_t *)s.len;)
  REJECTS(ATTN_E_OVERLAP, "workspace", s.ctx.workspace = bytes; s.ctx.workspace_size = 64;)
  REJECTS(ATTN_E_SHAPE, way ? "near_by" : "stride", s.x.stride = -4; s.v.has_near_by = 1;
          s.v.near_by = -1;)
  REJECTS(ATTN_E_SHAPE, way ? "sink" : "stride", s.x.stride = 3; s.v.has_sink = 1; s.v.sink = -1;)
  REJECTS(ATTN_E_SHAPE, way ? "queries" : "mass", s.x.mass = a.q; s.v.queries = -1;)
  REJECTS(way ? ATTN_E_SHAPE : ATTN_E_VALUE, way ? "columns" : "norm", s.x.norm = ATTN_ZERO;
          s.v.columns = a.q;)
}

/* gamma 1 leaves out no block, however small its weight beside the sum of all; has_sink and has_near_by make 0 of either mean
 * none, where without them both have a usual number. */
void M3_prefill_everything(void **state) {
  (void)state;
  enum { T = 256, B = 64, BLOCKS = T / B };
  attn_tensor q = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, 4),
              k = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T, 4);
  uint8_t mask[BLOCKS * BLOCKS];
  attn_xattention_params x = {0};
  attn_ctx ctx = test_ctx();
  test_fill_value(q, 1), test_fill_value(k, 1);
  for (int64_t j = B; j < 2 * B; j++) test_fill_row(k, 0, 0, j, -40);
  x.block = B, x.stride = 16, x.gamma = 1;
  assert_int_equal(attn_xattention(mask, q, k, &x, &ctx), ATTN_OK);
  for (int n = 0; n < BLOCKS * BLOCKS; n++) assert_int_equal(mask[n], n % BLOCKS <= n / BLOCKS);
  for (int n = 0; n < 4; n++) {
    attn_vertical_slash_params p = {0};
    p.block = B, p.gamma = ATTN_ZERO, p.has_sink = n & 1, p.has_near_by = n >> 1;
    assert_int_equal(attn_vertical_slash(mask, q, k, &p, &ctx), ATTN_OK);
    for (int m = 0; m < BLOCKS * BLOCKS; m++) {
      const int back = m / BLOCKS - m % BLOCKS;
      assert_int_equal(mask[m], back >= 0 && ((m % BLOCKS == 0 && !p.has_sink) ||
                                              (back <= 2 && !p.has_near_by)));
    }
  }
  test_mem_release();
}
