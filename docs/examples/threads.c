/* threads.c owns the example of a caller's own threads and memory: a small pool of POSIX threads
 * drives attention, in a workspace that the caller allocates once. Usage: threads [WORKERS]. */
#define _POSIX_C_SOURCE 200809L
#define ATTN_IMPLEMENTATION
#include "attn.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_WORKERS = 64, HEADS = 8, T = 1024, D = 64, VALUES = HEADS * T * D, ROUNDS = 10 };

/* ---- the pool ------------------------------------------------------------------------------ */

/* Threads sleep on `start` between calls. A call hands out the indices 0..count-1 one by one, to
 * the caller as well, and sleeps on `done` until the last of them has ended. */
typedef struct pool {
  pthread_mutex_t lock; /* guards all fields below */
  pthread_cond_t start, done;
  attn_task_fn task;
  void *arg;
  int64_t count, next, unfinished;
  int quit;
  int threads;
  pthread_t thread[MAX_WORKERS];
} pool;

/* Takes and runs tasks until none is left; called and left with the lock held. */
static void pool_drain(pool *p) {
  while (p->next < p->count) {
    int64_t index = p->next++;
    attn_task_fn task = p->task;
    void *arg = p->arg;
    pthread_mutex_unlock(&p->lock);
    task(arg, index);
    pthread_mutex_lock(&p->lock);
    if (--p->unfinished == 0) pthread_cond_signal(&p->done);
  }
}

static void *pool_thread(void *user) {
  pool *p = user;
  pthread_mutex_lock(&p->lock);
  while (!p->quit) {
    pool_drain(p);
    if (!p->quit) pthread_cond_wait(&p->start, &p->lock);
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

/* The attn_parallel_fn: this is all that attn.h has to know of the pool. */
static void pool_run(void *user, int64_t count, attn_task_fn task, void *arg) {
  pool *p = user;
  pthread_mutex_lock(&p->lock);
  p->task = task;
  p->arg = arg;
  p->next = 0;
  p->count = p->unfinished = count;
  pthread_cond_broadcast(&p->start);
  pool_drain(p);
  while (p->unfinished > 0) pthread_cond_wait(&p->done, &p->lock);
  pthread_mutex_unlock(&p->lock);
}

/* Starts workers - 1 threads, since the caller works too; fewer when the system refuses. */
static void pool_open(pool *p, int workers) {
  memset(p, 0, sizeof *p);
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->start, NULL);
  pthread_cond_init(&p->done, NULL);
  while (p->threads < workers - 1 &&
         pthread_create(&p->thread[p->threads], NULL, pool_thread, p) == 0)
    p->threads++;
}

static void pool_close(pool *p) {
  pthread_mutex_lock(&p->lock);
  p->quit = 1;
  pthread_cond_broadcast(&p->start);
  pthread_mutex_unlock(&p->lock);
  while (p->threads > 0) pthread_join(p->thread[--p->threads], NULL);
  pthread_cond_destroy(&p->done);
  pthread_cond_destroy(&p->start);
  pthread_mutex_destroy(&p->lock);
}

/* ---- its use ------------------------------------------------------------------------------- */

static float q_data[VALUES], k_data[VALUES], v_data[VALUES], serial[VALUES], parallel[VALUES];

static double seconds_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The best of a few runs of causal attention into out, in seconds. */
static double attend(float *out, attn_ctx *ctx) {
  attn_tensor q = attn_bhtd(q_data, ATTN_F32, 1, HEADS, T, D);
  attn_tensor k = attn_bhtd(k_data, ATTN_F32, 1, HEADS, T, D);
  attn_tensor v = attn_bhtd(v_data, ATTN_F32, 1, HEADS, T, D);
  attn_tensor o = attn_bhtd(out, ATTN_F32, 1, HEADS, T, D);
  attn_sdpa_params params = {.causal = 1};

  /* Asked once, allocated once, used for every call: attn.h itself then allocates nothing. */
  ctx->workspace_size = attn_sdpa_workspace(o, q, k, v, &params, ctx);
  ctx->workspace = malloc(ctx->workspace_size);

  double best = 1e30;
  for (int i = 0; i < ROUNDS; i++) {
    double start = seconds_now();
    attn_status status = attn_sdpa(o, q, k, v, &params, ctx);
    double seconds = seconds_now() - start;
    if (status != ATTN_OK) {
      fprintf(stderr, "threads: %s: %s\n", attn_status_string(status), ctx->reason);
      exit(1);
    }
    if (seconds < best) best = seconds;
  }
  free(ctx->workspace);
  return best;
}

int main(int argc, char **argv) {
  int workers = argc > 1 ? atoi(argv[1]) : 2;
  if (workers < 1 || workers > MAX_WORKERS) {
    fprintf(stderr, "threads: WORKERS must be 1..%d\n", MAX_WORKERS);
    return 1;
  }
  for (int i = 0; i < VALUES; i++) {
    q_data[i] = 4.0f * (float)rand() / (float)RAND_MAX - 2.0f;
    k_data[i] = 4.0f * (float)rand() / (float)RAND_MAX - 2.0f;
    v_data[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
  }

  attn_ctx alone = {0};
  double serial_seconds = attend(serial, &alone);

  pool p;
  pool_open(&p, workers);
  attn_ctx together = {.parallel_for = pool_run, .parallel_user = &p, .workers = workers};
  double parallel_seconds = attend(parallel, &together);
  pool_close(&p);

  int same = memcmp(serial, parallel, sizeof serial) == 0;
  printf("%s tier: %.2f ms alone, %.2f ms in %d pieces (%.2f x), workspace %zu bytes, %s\n",
         attn_isa_name(together.report.isa), 1e3 * serial_seconds, 1e3 * parallel_seconds,
         together.report.workers, serial_seconds / parallel_seconds, together.workspace_size,
         same ? "same bits" : "DIFFERENT BITS");
  return same ? 0 : 1;
}
