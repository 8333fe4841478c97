/* pool.c owns the pool's threads: they sleep on a condition, and take indices from one counter. */
#include "pool.h"

#include <pthread.h>
#include <stdlib.h>

#include "clock.h"

struct pool {
  pthread_mutex_t lock;
  pthread_cond_t wake, done;
  pthread_t *threads;
  int size, busy, stop;
  unsigned round;
  attn_task_fn task;
  void *arg;
  int64_t count;
  int64_t next; /* atomic */
  int cores;    /* handed out so far */
};

static void work(pool *p) {
  for (;;) {
    int64_t i = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED);
    if (i >= p->count) return;
    p->task(p->arg, i);
  }
}

static void *thread_main(void *arg) {
  pool *p = arg;
  unsigned seen = 0;
  pthread_mutex_lock(&p->lock);
  clock_pin(p->cores++);
  while (!p->stop) {
    if (p->round == seen) {
      pthread_cond_wait(&p->wake, &p->lock);
      continue;
    }
    seen = p->round;
    pthread_mutex_unlock(&p->lock);
    work(p);
    pthread_mutex_lock(&p->lock);
    if (--p->busy == 0) pthread_cond_signal(&p->done);
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

pool *pool_new(int threads) {
  pool *p = calloc(1, sizeof *p);
  if (!p || !(p->threads = calloc((size_t)threads, sizeof *p->threads))) {
    free(p);
    return NULL;
  }
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->wake, NULL);
  pthread_cond_init(&p->done, NULL);
  for (; p->size < threads - 1; p->size++)
    if (pthread_create(&p->threads[p->size], NULL, thread_main, p)) {
      pool_free(p);
      return NULL;
    }
  return p;
}

void pool_free(pool *p) {
  if (!p) return;
  pthread_mutex_lock(&p->lock);
  p->stop = 1;
  pthread_cond_broadcast(&p->wake);
  pthread_mutex_unlock(&p->lock);
  for (int i = 0; i < p->size; i++) pthread_join(p->threads[i], NULL);
  pthread_cond_destroy(&p->done);
  pthread_cond_destroy(&p->wake);
  pthread_mutex_destroy(&p->lock);
  free(p->threads);
  free(p);
}

void pool_run(void *user, int64_t count, attn_task_fn task, void *arg) {
  pool *p = user;
  pthread_mutex_lock(&p->lock);
  p->task = task;
  p->arg = arg;
  p->count = count;
  p->next = 0;
  p->busy = p->size;
  p->round++;
  pthread_cond_broadcast(&p->wake);
  pthread_mutex_unlock(&p->lock);
  work(p);
  pthread_mutex_lock(&p->lock);
  while (p->busy) pthread_cond_wait(&p->done, &p->lock);
  pthread_mutex_unlock(&p->lock);
}
