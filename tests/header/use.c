/* use.c owns the smallest useful program: on every tier that runs here causal attention against the
 * definition in double, and a window as a schedule, as edges and as rectified weights. C99 and C++11 alike. Arguments, if any, name the tiers that must run;
 * all others must not. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attn.h"

enum { TQ = 5, TK = 9, D = 3 };

static float number(int i) { return (float)((i * 37 + 11) % 64) / 32.0f - 1.0f; }

static int wrong(attn_isa isa) {
  float q[TQ * D], k[TK * D], v[TK * D], o[TQ * D];
  for (int i = 0; i < TQ * D; i++) q[i] = number(i), o[i] = 99.0f;
  for (int i = 0; i < TK * D; i++) k[i] = number(i + 100), v[i] = number(i + 200);

  attn_sdpa_params params;
  attn_ctx ctx;
  memset(&params, 0, sizeof params);
  memset(&ctx, 0, sizeof ctx);
  params.causal = 1;
  ctx.isa = isa;
  attn_status status = attn_sdpa(
      attn_bhtd(o, ATTN_F32, 1, 1, TQ, D), attn_bhtd(q, ATTN_F32, 1, 1, TQ, D),
      attn_bhtd(k, ATTN_F32, 1, 1, TK, D), attn_bhtd(v, ATTN_F32, 1, 1, TK, D), &params, &ctx);
  if (status != ATTN_OK || ctx.report.isa != isa) {
    printf("%s: %s\n", attn_isa_name(isa), ctx.reason ? ctx.reason : attn_status_string(status));
    return 1;
  }

  for (int i = 0; i < TQ; i++) {
    double sum = 0, row[D] = {0, 0, 0};
    for (int j = 0; j <= i + TK - TQ; j++) {
      double x = 0;
      for (int c = 0; c < D; c++) x += (double)q[i * D + c] * (double)k[j * D + c];
      double p = exp(x / sqrt((double)D));
      sum += p;
      for (int c = 0; c < D; c++) row[c] += p * (double)v[j * D + c];
    }
    for (int c = 0; c < D; c++)
      if (!(fabs(row[c] / sum - (double)o[i * D + c]) < 2e-6)) {
        printf("%s: o[%d][%d] is %g, not %g\n", attn_isa_name(isa), i, c, (double)o[i * D + c],
               row[c] / sum);
        return 1;
      }
  }
  return 0;
}

static int differ(attn_isa isa, const char *what, const float *have, const float *want, int n) {
  for (int i = 0; i < n; i++)
    if (!(fabs((double)have[i] - (double)want[i]) < 2e-6)) {
      printf("%s: %s: [%d] is %g, not %g\n", attn_isa_name(isa), what, i, (double)have[i],
             (double)want[i]);
      return 1;
    }
  return 0;
}

/* Two keys behind each query and its own: by the window's fields, a schedule, its edges. */
static int patterns_wrong(attn_isa isa) {
  float q[TQ * D], k[TK * D], v[TK * D], window[TQ * D], planned[TQ * D], listed[TQ * D];
  float sums[TQ] = {0}, ones[TK];
  int64_t indptr[TQ + 1];
  int32_t col[TQ * TK];
  for (int i = 0; i < TQ * D; i++) q[i] = number(i);
  for (int i = 0; i < TK * D; i++) k[i] = number(i + 100), v[i] = number(i + 200);
  for (int i = 0; i < TK; i++) ones[i] = 1.0f;
  const attn_tensor tq = attn_bhtd(q, ATTN_F32, 1, 1, TQ, D);
  const attn_tensor tk = attn_bhtd(k, ATTN_F32, 1, 1, TK, D);
  const attn_tensor tv = attn_bhtd(v, ATTN_F32, 1, 1, TK, D);

  attn_ctx ctx;
  attn_sdpa_params by_window, by_schedule;
  attn_edges_params by_edges;
  attn_relu_params rectified;
  attn_schedule schedule;
  memset(&ctx, 0, sizeof ctx);
  memset(&by_window, 0, sizeof by_window);
  memset(&by_schedule, 0, sizeof by_schedule);
  memset(&by_edges, 0, sizeof by_edges);
  memset(&rectified, 0, sizeof rectified);
  ctx.isa = isa;
  by_window.causal = 1, by_window.window = attn_window_of(2, -1);
  by_schedule.schedule = &schedule;
  by_edges.indptr = indptr, by_edges.col = col;
  rectified.kind = ATTN_RELU_NORM;
  rectified.sum = attn_bhtd(sums, ATTN_F32, 1, 1, TQ, 1);

  const attn_pattern band = attn_pattern_band(2, 0);
  if (attn_schedule_build(&schedule, &band, 1, TQ, TK, NULL, &ctx) != ATTN_OK ||
      attn_schedule_csr(indptr, col, &schedule, 0) != ATTN_OK) {
    printf("%s: %s\n", attn_isa_name(isa), ctx.reason ? ctx.reason : "no schedule");
    return 1;
  }
  by_edges.edges = indptr[TQ];
  rectified.attention = by_schedule;
  int wrong =
      attn_sdpa(attn_bhtd(window, ATTN_F32, 1, 1, TQ, D), tq, tk, tv, &by_window, &ctx) ||
      attn_sdpa(attn_bhtd(planned, ATTN_F32, 1, 1, TQ, D), tq, tk, tv, &by_schedule, &ctx) ||
      attn_edges(attn_bhtd(listed, ATTN_F32, 1, 1, TQ, D), tq, tk, tv, &by_edges, &ctx) ||
      differ(isa, "schedule", planned, window, TQ * D) ||
      differ(isa, "edges", listed, window, TQ * D);
  if (!wrong) { /* weights of sum 1, or of none, over values of 1 */
    const attn_tensor flat = attn_bhtd(ones, ATTN_F32, 1, 1, TK, 1);
    wrong = attn_relu(attn_bhtd(planned, ATTN_F32, 1, 1, TQ, 1), tq, tk, flat, &rectified, &ctx) ||
            differ(isa, "rectified", planned, sums, TQ);
    for (int i = 0; i < TQ; i++)
      wrong |= fabs((double)sums[i] - 1.0) > 1e-6 && fabs((double)sums[i]) > 1e-6;
  }
  if (wrong) printf("%s: %s\n", attn_isa_name(isa), ctx.reason ? ctx.reason : "patterns differ");
  attn_schedule_free(&schedule);
  return wrong;
}

int main(int argc, char **argv) {
  int errors = 0;
  for (int i = 1; i < ATTN_ISA_COUNT; i++) {
    attn_isa isa = (attn_isa)i;
    int runs = attn_isa_status(isa) == ATTN_ISA_OK, wanted = runs;
    if (argc > 1) wanted = 0;
    for (int a = 1; a < argc; a++) wanted |= strcmp(argv[a], attn_isa_name(isa)) == 0;
    printf("%s: %s\n", attn_isa_name(isa), attn_isa_why(isa));
    errors += runs != wanted;
    if (runs) errors += wrong(isa) + patterns_wrong(isa);
  }
  return errors != 0;
}
