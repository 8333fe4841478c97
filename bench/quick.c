/* quick.c owns the short look at speed used while tuning: percent of the FMA peak of dense
 * attention in about 20 seconds, one thread. Usage: quick [tier ...], default avx512 avx2 neon. */
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "peak.h"
#include "problem.h"

#define SECONDS_PER_CASE 0.3
#define SECONDS_PER_ROUND 5e-3
#define MIN_ROUNDS 4

typedef struct result {
  double gflops; /* best round */
  double peak;   /* largest probe between the rounds: the clock of the core wanders over a run */
  double pairs;  /* computed / allowed */
} result;

/* Rounds of a few calls each, with a probe of the peak after every one; 0 on failure. */
static int measure(attn_isa isa, const problem_shape *shape, result *r) {
  problem p;
  attn_ctx ctx = {0};
  if (!problem_init(&p, shape, &ctx)) return 0;
  int calls = problem_calls(&p, SECONDS_PER_ROUND, 0.7 * peak_of(isa)->max), ok = 1, rounds = 0;
  double start = clock_now();
  r->gflops = 0;
  r->peak = peak_probe(isa);
  do {
    double t = clock_busy();
    for (int i = 0; i < calls && ok; i++) ok = problem_run(&p, isa, &ctx) == ATTN_OK;
    t = clock_busy() - t;
    if (!ok || ctx.report.isa != isa) {
      printf("  %s\n", ctx.reason ? ctx.reason : "another tier ran");
      ok = 0;
      break;
    }
    if (rounds && 1e-9 * p.flops * calls / t > r->gflops) r->gflops = 1e-9 * p.flops * calls / t;
    double peak = peak_probe(isa);
    if (peak > r->peak) r->peak = peak;
  } while (++rounds < MIN_ROUNDS || clock_now() - start < SECONDS_PER_CASE);
  r->pairs = p.pairs > 0 ? (double)ctx.report.pairs / p.pairs : 0;
  problem_free(&p);
  return ok;
}

/* Batches keep the data near 4 MB for short sequences, as a layer of a small model has it. */
static int64_t batch_of(int64_t t) { return t < 512 ? 512 / t : 1; }

static const int64_t lengths[] = {64, 128, 512, 2048};
enum { LENGTHS = sizeof lengths / sizeof *lengths, ROWS = 4 };

static int tier(attn_isa isa) {
  result table[ROWS][LENGTHS];
  if (attn_isa_status(isa) != ATTN_ISA_OK) {
    printf("%s: not run, %s\n\n", attn_isa_name(isa), attn_isa_why(isa));
    return 0;
  }
  for (int i = 0; i < 20; i++) peak_probe(isa);
  for (int row = 0; row < ROWS; row++)
    for (int i = 0; i < LENGTHS; i++) {
      problem_shape s = {0};
      s.batch = batch_of(lengths[i]);
      s.heads = 8;
      s.tq = lengths[i];
      s.dk = row % 2 ? 128 : 64;
      s.causal = row / 2;
      if (!measure(isa, &s, &table[row][i])) return 1;
    }
  for (int i = 0; i < 20; i++) peak_probe(isa);

  peak_print(isa);
  printf("%-14s", "% of peak");
  for (int i = 0; i < LENGTHS; i++) printf("   T=%-4d", (int)lengths[i]);
  printf("   computed / allowed pairs\n");
  for (int row = 0; row < ROWS; row++) {
    printf("%-6s d=%-5d ", row / 2 ? "causal" : "full", row % 2 ? 128 : 64);
    for (int i = 0; i < LENGTHS; i++)
      printf("   %5.1f%%", 100 * table[row][i].gflops / table[row][i].peak);
    for (int i = 0; i < LENGTHS; i++) printf("%s%.2f", i ? " " : "   ", table[row][i].pairs);
    printf("\n");
  }
  printf("\n");
  fflush(stdout);
  return 0;
}

int main(int argc, char **argv) {
  static const attn_isa usual[] = {ATTN_ISA_AVX512, ATTN_ISA_AVX2, ATTN_ISA_NEON};
  int bad = 0;
  clock_pin(clock_cores() - 1);
  for (int i = 0; i < 3 && argc < 2; i++)
    if (attn_isa_status(usual[i]) != ATTN_ISA_NOT_COMPILED) bad |= tier(usual[i]);
  for (int a = 1; a < argc; a++) {
    int isa = 1;
    while (isa < ATTN_ISA_COUNT && strcmp(argv[a], attn_isa_name((attn_isa)isa)) != 0) isa++;
    if (isa == ATTN_ISA_COUNT) {
      printf("%s: no such tier\n", argv[a]);
      return 1;
    }
    bad |= tier((attn_isa)isa);
  }
  return bad;
}
