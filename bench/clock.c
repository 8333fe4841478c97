/* clock.c owns the wall clock and thread placement on Linux. */
#define _GNU_SOURCE
#include "clock.h"

#include <sched.h>
#include <time.h>

static double read_clock(clockid_t id) {
  struct timespec t;
  clock_gettime(id, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double clock_now(void) { return read_clock(CLOCK_MONOTONIC); }
double clock_busy(void) { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

/* The set is read once, before anybody pins. */
static const cpu_set_t *given(void) {
  static cpu_set_t set;
  static int known;
  if (!known) known = sched_getaffinity(0, sizeof set, &set) == 0;
  return &set;
}

int clock_cores(void) {
  int n = CPU_COUNT(given());
  return n > 0 ? n : 1;
}

void clock_pin(int n) {
  cpu_set_t one = *given();
  if (n >= 0) {
    int cpu = 0, seen = 0;
    while (cpu < CPU_SETSIZE - 1 && !(CPU_ISSET(cpu, given()) && seen++ == n)) cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
  }
  sched_setaffinity(0, sizeof one, &one);
}
