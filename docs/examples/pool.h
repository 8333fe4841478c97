/* pool.h owns a ready-made pool of threads for attn_ctx.parallel_for: C99 or C++, POSIX threads, gcc or clang. Copy it
 * beside attn.h and include it after that.
 *
 *     pool p;
 *     pool_open(&p, workers);
 *     attn_ctx ctx = {.parallel_for = pool_run, .parallel_user = &p, .workers = workers};
 *     .. calls with &ctx, one at a time ..
 *     pool_close(&p);
 *
 * A call hands out its indices from one atomic counter, to the caller as well, and ends when the last index has
 * been worked on. A thread that is not awake in time is not waited for: the others take its share. Who waits looks on
 * for POOL_SPIN_NS and then sleeps, so that calls that follow each other closely, as the steps of one call of attn.h
 * do, pay no wake-up, and an idle program burns no core.
 *
 * With _GNU_SOURCE defined before the first include a thread that wakes up goes to a core of its own, counted from the
 * caller's. Guests of a virtual machine need this: a core that sleeps does not look free to them, and caller and
 * thread would share one. */
#ifndef POOL_H
#define POOL_H

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#ifndef POOL_SPIN_NS
#define POOL_SPIN_NS 50000 /* about what it costs to put a thread to sleep and to wake it */
#endif
enum {
  POOL_THREADS = 255,
  POOL_LINE = 128 /* bytes: two cache lines, which some processors fetch together */
};

/* What is written often has lines of its own, or each index taken would take the line from those who read. */
typedef struct pool {
  attn_task_fn task; /* of the round: written before `state`, until `unfinished` is 0 */
  void *arg;
  char line0[POOL_LINE];
  uint64_t state; /* atomic: number of the round << 32 | indices not yet taken */
  char line1[POOL_LINE];
  int64_t unfinished; /* atomic: indices not yet worked on */
  char line2[POOL_LINE];
  int sleeping, waiting,
      quit;       /* atomic, changed with the lock held: threads asleep; the caller is */
  int seats, cpu; /* atomic: threads that have begun; where the caller was last */
  pthread_mutex_t lock;
  pthread_cond_t wake, done;
  int threads;
  pthread_t thread[POOL_THREADS];
#ifdef CPU_SET
  cpu_set_t given; /* cores of who opened it */
#endif
} pool;

static inline int64_t pool_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void pool_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("isb" ::: "memory"); /* yield does nothing on most */
#endif
}

/* Notes where the caller is. */
static inline void pool_here(pool *p) {
#ifdef CPU_SET
  __atomic_store_n(&p->cpu, sched_getcpu(), __ATOMIC_RELAXED);
#else
  (void)p;
#endif
}

/* Moves a thread to its core: the seat-th after the caller's. */
static inline void pool_sit(pool *p, int seat) {
#ifdef CPU_SET
  const int cores = CPU_COUNT(&p->given);
  const int here = sched_getcpu();
  size_t cpu = (size_t)__atomic_load_n(&p->cpu, __ATOMIC_RELAXED);
  if (cores < 2 || cpu >= CPU_SETSIZE) return;
  for (int left = seat % (cores - 1) + 1; left > 0;) {
    cpu = (cpu + 1) % CPU_SETSIZE;
    left -= CPU_ISSET(cpu, &p->given) != 0;
  }
  if (here >= 0 && cpu == (size_t)here) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  sched_setaffinity(0, sizeof one, &one);
#else
  (void)p, (void)seat;
#endif
}

static inline int pool_has_work(pool *p) {
  return (uint32_t)__atomic_load_n(&p->state, __ATOMIC_SEQ_CST) != 0;
}
static inline int pool_is_done(pool *p) {
  return __atomic_load_n(&p->unfinished, __ATOMIC_SEQ_CST) == 0;
}

/* Looks on for a while; 0 = in vain. */
static inline int pool_look(pool *p, int (*ready)(pool *)) {
  const int64_t end = pool_now() + POOL_SPIN_NS;
  do {
    for (int i = 0; i < 32; i++) {
      if (ready(p)) return 1;
      pool_pause();
    }
  } while (pool_now() < end);
  return 0;
}

/* Takes and runs indices until none is left. The number in `state` keeps an index of this round from one who looked at
 * an earlier one; task and arg stay until the index that was taken is finished. */
static inline void pool_drain(pool *p) {
  uint64_t s = __atomic_load_n(&p->state, __ATOMIC_SEQ_CST);
  while ((uint32_t)s) {
    if (!__atomic_compare_exchange_n(&p->state, &s, s - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      continue;
    p->task(p->arg, (int64_t)(uint32_t)s - 1);
    if (__atomic_sub_fetch(&p->unfinished, 1, __ATOMIC_SEQ_CST) == 0 &&
        __atomic_load_n(&p->waiting, __ATOMIC_SEQ_CST)) {
      pthread_mutex_lock(&p->lock);
      pthread_cond_signal(&p->done);
      pthread_mutex_unlock(&p->lock);
    }
    s = __atomic_load_n(&p->state, __ATOMIC_SEQ_CST);
  }
}

/* Who sleeps says so first and then looks once more; who brings work or ends it does so first and then looks for
 * sleepers: one of the two sees the other. */
static inline void *pool_thread(void *user) {
  pool *p = (pool *)user;
  const int seat = __atomic_fetch_add(&p->seats, 1, __ATOMIC_RELAXED);
  pool_sit(p, seat);
  while (!__atomic_load_n(&p->quit, __ATOMIC_SEQ_CST)) {
    pool_drain(p);
    if (pool_look(p, pool_has_work)) continue;
    pthread_mutex_lock(&p->lock);
    __atomic_add_fetch(&p->sleeping, 1, __ATOMIC_SEQ_CST);
    while (!pool_has_work(p) && !__atomic_load_n(&p->quit, __ATOMIC_SEQ_CST))
      pthread_cond_wait(&p->wake, &p->lock);
    __atomic_sub_fetch(&p->sleeping, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&p->lock);
    pool_sit(p, seat);
  }
  return NULL;
}

/* The attn_parallel_fn: all that attn.h has to know of the pool. count is at most 2^32 - 1. */
static inline void pool_run(void *user, int64_t count, attn_task_fn task, void *arg) {
  pool *p = (pool *)user;
  const uint64_t round = (__atomic_load_n(&p->state, __ATOMIC_SEQ_CST) >> 32) + 1;
  if (count < 1) return;
  pool_here(p);
  p->task = task;
  p->arg = arg;
  __atomic_store_n(&p->unfinished, count, __ATOMIC_SEQ_CST);
  __atomic_store_n(&p->state, round << 32 | (uint64_t)count, __ATOMIC_SEQ_CST);
  if (count > 1 && __atomic_load_n(&p->sleeping, __ATOMIC_SEQ_CST)) {
    pthread_mutex_lock(&p->lock);
    for (int64_t i = 1; i < count && i <= p->threads; i++) pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
  }
  pool_drain(p);
  if (pool_is_done(p) || pool_look(p, pool_is_done)) return;
  pthread_mutex_lock(&p->lock);
  __atomic_store_n(&p->waiting, 1, __ATOMIC_SEQ_CST);
  while (!pool_is_done(p)) pthread_cond_wait(&p->done, &p->lock);
  __atomic_store_n(&p->waiting, 0, __ATOMIC_SEQ_CST);
  pthread_mutex_unlock(&p->lock);
}

/* Starts workers - 1 threads, since the caller works too; fewer when the system refuses, which costs time only. */
static inline void pool_open(pool *p, int workers) {
  memset(p, 0, sizeof *p);
#ifdef CPU_SET
  if (sched_getaffinity(0, sizeof p->given, &p->given)) CPU_ZERO(&p->given);
#endif
  pool_here(p);
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->wake, NULL);
  pthread_cond_init(&p->done, NULL);
  while (p->threads < workers - 1 && p->threads < POOL_THREADS &&
         pthread_create(&p->thread[p->threads], NULL, pool_thread, p) == 0)
    p->threads++;
}

static inline void pool_close(pool *p) {
  pthread_mutex_lock(&p->lock);
  __atomic_store_n(&p->quit, 1, __ATOMIC_SEQ_CST);
  pthread_cond_broadcast(&p->wake);
  pthread_mutex_unlock(&p->lock);
  while (p->threads > 0) pthread_join(p->thread[--p->threads], NULL);
  pthread_cond_destroy(&p->done);
  pthread_cond_destroy(&p->wake);
  pthread_mutex_destroy(&p->lock);
}

#endif
