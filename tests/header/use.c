/* use.c owns the smallest useful program: causal attention on every tier that runs here, against
 * the definition in double. C99 and C++11 alike. Arguments, if any, name the tiers that must run;
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

int main(int argc, char **argv) {
  int errors = 0;
  for (int i = 1; i < ATTN_ISA_COUNT; i++) {
    attn_isa isa = (attn_isa)i;
    int runs = attn_isa_status(isa) == ATTN_ISA_OK, wanted = runs;
    if (argc > 1) wanted = 0;
    for (int a = 1; a < argc; a++) wanted |= strcmp(argv[a], attn_isa_name(isa)) == 0;
    printf("%s: %s\n", attn_isa_name(isa), attn_isa_why(isa));
    errors += runs != wanted;
    if (runs) errors += wrong(isa);
  }
  return errors != 0;
}
