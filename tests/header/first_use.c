/* first_use.c owns the race at first use: many threads make the first call of the process at once,
 * while others ask for tiers and set the cap. Built with the thread sanitizer. */

#include <pthread.h>
#include <stdio.h>

#define ATTN_STATIC
#define ATTN_IMPLEMENTATION
#include "attn.h"

enum { THREADS = 8, N = 4, D = 8 };

static pthread_barrier_t start;

static void *attend(void *wrong) {
  float q[N * D], o[N * D];
  for (int i = 0; i < N * D; i++) q[i] = 1.0f;
  attn_tensor t = attn_bhtd(q, ATTN_F32, 1, 1, N, D);
  pthread_barrier_wait(&start);
  attn_status status = attn_sdpa(attn_bhtd(o, ATTN_F32, 1, 1, N, D), t, t, t, NULL, NULL);
  *(int *)wrong = status != ATTN_OK || o[0] < 0.999f || o[0] > 1.001f;
  return NULL;
}

static void *ask(void *wrong) {
  pthread_barrier_wait(&start);
  *(int *)wrong = attn_isa_best() == ATTN_ISA_AUTO;
  for (int i = 0; i < ATTN_ISA_COUNT; i++) (void)attn_isa_why((attn_isa)i);
  return NULL;
}

static void *cap(void *wrong) {
  pthread_barrier_wait(&start);
  *(int *)wrong = attn_isa_limit(ATTN_ISA_SCALAR) != ATTN_OK;
  *(int *)wrong |= attn_isa_limit(ATTN_ISA_AUTO) != ATTN_OK;
  return NULL;
}

int main(void) {
  pthread_t thread[THREADS];
  int wrong[THREADS], errors = 0;
  pthread_barrier_init(&start, NULL, THREADS);
  for (int i = 0; i < THREADS; i++)
    if (pthread_create(&thread[i], NULL, i == 0 ? cap : i < 3 ? ask : attend, &wrong[i])) return 1;
  for (int i = 0; i < THREADS; i++) {
    pthread_join(thread[i], NULL);
    errors += wrong[i];
  }
  printf("first use by %d threads at once: %s\n", THREADS, errors ? "WRONG" : "right");
  return errors != 0;
}
