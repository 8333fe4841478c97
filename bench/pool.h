/* pool.h owns a small pthread pool that serves as attn_ctx.parallel_for. */
#ifndef BENCH_POOL_H
#define BENCH_POOL_H

#include "header.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pool pool;

/* threads - 1 threads beside the caller, on cores 0 .. threads - 2; null when that fails. */
pool *pool_new(int threads);
void pool_free(pool *p);

/* An attn_parallel_fn; user is the pool. */
void pool_run(void *user, int64_t count, attn_task_fn task, void *arg);

#ifdef __cplusplus
}
#endif
#endif
