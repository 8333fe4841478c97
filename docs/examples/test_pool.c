/* test_pool.c owns the test of pool.h: every index of every round is worked on once, by any number of threads, and the
 * caller sees what they wrote; with pauses between rounds in which threads fall asleep. Exit status 1 = it was not
 * so. */
#ifndef _GNU_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "attn.h"

#include <stdio.h>
#include <stdlib.h>

#include "pool.h"

enum { MOST = 64 };

typedef struct counts {
  int64_t round, of[MOST]; /* how often, in the round */
} counts;

static void nap(long ns) {
  const struct timespec t = {0, ns};
  nanosleep(&t, NULL);
}

static void count(void *arg, int64_t index) {
  counts *c = (counts *)arg;
  if (c->round % 32 == 7) nap(20000 + 20000 * (long)index); /* the caller may fall asleep */
  c->of[index]++;
}

static int test(int workers, int rounds) {
  pool p;
  uint32_t random = 1;
  int wrong = 0;
  pool_open(&p, workers);
  for (int n = 0; n < rounds; n++) {
    counts c; /* on the stack: who came late would write into the next round's */
    memset(&c, 0, sizeof c);
    c.round = n;
    random = random * 1664525u + 1013904223u;
    const int64_t many = random >> 8 & 1 ? workers : (int64_t)(random >> 16) % (MOST + 1);
    if (n % 16 == 3) nap(4 * POOL_SPIN_NS);
    pool_run(&p, many, count, &c);
    for (int64_t i = 0; i < MOST; i++) wrong += c.of[i] != (i < many);
  }
  pool_close(&p);
  if (wrong)
    fprintf(stderr, "test_pool: %d workers: %d indices not worked on once\n", workers, wrong);
  return wrong;
}

int main(int argc, char **argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 3000;
  int wrong = 0;
  for (int workers = 1; workers <= 8; workers++) wrong += test(workers, rounds);
  if (!wrong) printf("pool: each index once, by 1 to 8 threads\n");
  return wrong != 0;
}
