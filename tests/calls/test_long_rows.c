/* tests/calls/test_long_rows.c owns the promise that errors do not grow with the length of a row: each
 * path of exact attention over 65536 keys, against float64, for values that average to zero and for
 * values that do not. Those show a chain of additions that drifts; values of mean zero hide it. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"

enum { DIM = 16 };

/* ---- inputs ---------------------------------------------------------------------------------*/

typedef enum long_values { MEAN_ZERO, MEAN_ONE, ONE_SIGN, ONES, HUGE_ROW, VALUES } long_values;

static void fill_values(attn_tensor v, long_values kind, test_rng *rng) {
  for (int64_t h = 0; h < v.heads; h++)
    for (int64_t j = 0; j < v.len; j++)
      for (int64_t c = 0; c < DIM; c++) {
        double x = test_normal(rng);
        if (kind == MEAN_ONE) x += 1;
        if (kind == ONE_SIGN) x = fabs(x);
        if (kind == ONES) x = 1;
        if (kind == HUGE_ROW && j == v.len / 3) x = 1e6;
        oracle_set(&v, 0, h, j, c, x);
      }
}

typedef enum long_path {
  BY_ROW,
  BY_LANE,
  ONE_ORDER,
  TILE,
  KEEP,
  SCHEDULE,
  EDGES,
  RELU,
  PATHS
} long_path;

static const char *const names[PATHS] = {"by row", "by lane",  "one order", "tile",
                                         "keep",   "schedule", "edges",     "relu"};

static test_call build(long_path path, int64_t keys, test_rng *rng) {
  test_spec z = test_plain(path == BY_LANE ? 6 : 1, 20, keys, DIM, DIM);
  z.k_heads = z.v_heads = 1;
  if (path == BY_ROW || path == ONE_ORDER) z.q_len = 2;
  if (path == BY_LANE) z.q_len = 8;
  test_call call = test_build(&z, rng);
  /* scores small enough that the sums round more than they do */
  for (int64_t h = 0; h < z.heads; h++)
    for (int64_t i = 0; i < z.q_len; i++)
      for (int64_t c = 0; c < DIM; c++)
        oracle_set(&call.q, 0, h, i, c, oracle_get(&call.q, 0, h, i, c) / 2);
  call.params.one_order = path == ONE_ORDER;
  if (path == KEEP) {
    call.params.keep = keys / 4 + 5;
    call.params.window = attn_window_of(keys / 2 + 11, -1);
    call.params.causal = 1;
  }
  return call;
}

static void check_status(attn_status status, const attn_ctx *ctx, const char *what) {
  if (status != ATTN_OK) {
    fail_msg("%s: %s: %s", what, attn_status_string(status), ctx->reason ? ctx->reason : "(null)");
  }
}

static void run(test_call *c, long_path path) {
  attn_ctx ctx = test_ctx();
  if (path == RELU) {
    attn_relu_params p;
    memset(&p, 0, sizeof p);
    p.kind = ATTN_RELU_NORM;
    check_status(attn_relu(c->o, c->q, c->k, c->v, &p, &ctx), &ctx, names[path]);
  } else if (path == EDGES) {
    attn_edges_params p;
    memset(&p, 0, sizeof p);
    int64_t *ptr = test_mem((size_t)(c->q.len + 1) * sizeof *ptr);
    int32_t *col = test_mem((size_t)(c->q.len * c->k.len) * sizeof *col);
    for (int64_t i = 0; i <= c->q.len; i++) ptr[i] = i * c->k.len;
    for (int64_t e = 0; e < c->q.len * c->k.len; e++) col[e] = (int32_t)(e % c->k.len);
    p.indptr = ptr, p.col = col, p.edges = ptr[c->q.len];
    check_status(attn_edges(c->o, c->q, c->k, c->v, &p, &ctx), &ctx, names[path]);
  } else if (path == SCHEDULE) {
    const attn_pattern p = attn_pattern_strided(2);
    attn_schedule s;
    check_status(attn_schedule_build(&s, &p, 1, c->q.len, c->k.len, NULL, &ctx), &ctx, "build");
    c->params.schedule = &s;
    test_run(c);
    attn_schedule_free(&s);
  } else {
    test_run(c);
  }
}

/* ---- the formula ----------------------------------------------------------------------------*/

static int seen(const test_call *c, long_path path, int64_t i, int64_t j) {
  const int64_t at = c->k.len - c->q.len + i;
  if (path == KEEP) return j <= at && (j < c->params.keep || j >= at - c->params.window.left);
  if (path == SCHEDULE) return (at - j) % 2 == 0;
  return 1;
}

/* The worst |o - exact| of a row, in units of sum_j P_j |v_j|. */
static double row_error(const test_call *c, long_path path, int64_t h, int64_t i, double *p) {
  double top = -INFINITY, sum = 0, worst = 0;
  for (int64_t j = 0; j < c->k.len; j++) {
    double x = 0;
    for (int64_t e = 0; e < DIM; e++)
      x += oracle_get(&c->q, 0, h, i, e) * oracle_get(&c->k, 0, 0, j, e);
    p[j] = seen(c, path, i, j) ? x / 4 : -INFINITY;
    if (p[j] > top) top = p[j];
  }
  for (int64_t j = 0; j < c->k.len; j++) {
    p[j] = path == RELU ? (p[j] > 0 ? p[j] : 0) : exp(p[j] - top);
    sum += p[j];
  }
  for (int64_t e = 0; e < DIM; e++) {
    double o = 0, size = 0;
    for (int64_t j = 0; j < c->k.len; j++) {
      const double v = oracle_get(&c->v, 0, 0, j, e);
      o += p[j] * v, size += p[j] * fabs(v);
    }
    const double error = fabs(oracle_get(&c->o, 0, h, i, e) - o / sum) / (size / sum);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

static void long_rows(long_path first, long_path last) {
  static const int64_t lengths[] = {300, 4096, 65536};
  for (int path = (int)first; path <= (int)last; path++)
    for (int n = 0; n < (test_fast ? 2 : 3); n++)
      for (int kind = 0; kind < VALUES; kind++) {
        test_rng rng = test_seed((uint64_t)(750000 + 100 * path + 10 * n + kind));
        test_call call = build((long_path)path, lengths[n], &rng);
        fill_values(call.v, (long_values)kind, &rng);
        run(&call, (long_path)path);
        double *p = test_mem((size_t)lengths[n] * sizeof *p);
        for (int64_t i = 0; i < 2; i++) {
          const double error =
              row_error(&call, (long_path)path, call.q.heads - 1, i ? call.q.len - 1 : 0, p);
          if (!(error <= 1e-6)) {
            fail_msg("%s, %lld keys, values %d: row error %.2g of sum P|v|", names[path],
                     (long long)lengths[n], kind, error);
          }
        }
        test_mem_release();
      }
}

void A1_any_length(void **state) {
  (void)state;
  long_rows(BY_ROW, SCHEDULE);
}

void A4_any_length(void **state) {
  (void)state;
  long_rows(RELU, RELU);
}

void A7_any_length(void **state) {
  (void)state;
  long_rows(EDGES, EDGES);
}

/* Keys beyond the clipping distance share a vector: of ones, whatever the weights, it gives one. */
void B3_any_length(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    const int64_t keys = test_fast ? 4096 : 65536;
    test_rng rng = test_seed((uint64_t)(751000 + n));
    test_spec z = test_plain(1, n & 1 ? 3 : 20, keys, DIM, DIM);
    test_call call = test_build(&z, &rng);
    call.params.relative.values = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, n & 2 ? 1 : 9, DIM);
    call.params.causal = 1;
    test_fill_value(call.v, 0);
    test_fill_value(call.params.relative.values, 1);
    if (n >= 2) test_fill_value(call.q, 0.1), test_fill_value(call.k, 0.3);
    test_run(&call);
    for (int64_t i = 0; i < call.q.len; i++)
      for (int64_t c = 0; c < DIM; c++) {
        const double o = oracle_get(&call.o, 0, 0, i, c);
        if (!(fabs(o - 1) <= 1e-6)) fail_msg("row %lld: the mean of ones is %.9g", (long long)i, o);
      }
    test_mem_release();
  }
}
