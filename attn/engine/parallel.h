/* engine/parallel.h owns the division of work: items handed to workers through the caller's
 * parallel_for. Which worker runs an item never changes a result. */

/* item(job, worker, index); worker selects the workspace */
typedef void (*attn_item_fn_)(void *job, int worker, int64_t index);

typedef struct attn_loop_ {
  attn_item_fn_ item;
  void *job;
  int64_t count;
  int workers;
  size_t next;
} attn_loop_;

ATTN_FUNC_ void attn_loop_task_(void *arg, int64_t worker) {
  attn_loop_ *loop = (attn_loop_ *)arg;
#if defined(__GNUC__)
  /* next free item first: uneven items (causal tiles) balance themselves */
  for (;;) {
    size_t i = __atomic_fetch_add(&loop->next, 1, __ATOMIC_RELAXED);
    if (i >= (size_t)loop->count) return;
    loop->item(loop->job, (int)worker, (int64_t)i);
  }
#else
  for (int64_t i = worker; i < loop->count; i += loop->workers)
    loop->item(loop->job, (int)worker, i);
#endif
}

ATTN_FUNC_ int attn_pieces_(int workers, int64_t count) {
  return count < workers ? (count < 1 ? 1 : (int)count) : workers;
}

ATTN_FUNC_ void attn_for_(const attn_ctx *ctx, int workers, int64_t count, attn_item_fn_ item,
                          void *job) {
  attn_loop_ loop = {item, job, count, workers, 0};
  if (workers > 1)
    ctx->parallel_for(ctx->parallel_user, workers, attn_loop_task_, &loop);
  else
    for (int64_t i = 0; i < count; i++) item(job, 0, i);
}

typedef struct attn_fading_ {
  attn_item_fn_ item;
  void *job;
} attn_fading_;

ATTN_FUNC_ void attn_fading_item_(void *arg, int worker, int64_t index) {
  const attn_fading_ *f = (const attn_fading_ *)arg;
  const attn_float_mode_ was = attn_subnormals_off_();
  f->item(f->job, worker, index);
  attn_subnormals_as_(was);
}

/* The same for items in which states fade: subnormal numbers are 0 while one runs. */
ATTN_FUNC_ void attn_for_fading_(const attn_ctx *ctx, int workers, int64_t count,
                                 attn_item_fn_ item, void *job) {
  if (workers > 1) {
    attn_fading_ fading = {item, job};
    attn_for_(ctx, workers, count, attn_fading_item_, &fading);
  } else {
    const attn_float_mode_ was = attn_subnormals_off_();
    attn_for_(ctx, workers, count, item, job);
    attn_subnormals_as_(was);
  }
}

#ifdef _OPENMP
ATTN_PUB_ void attn_parallel_openmp(void *user, int64_t count, attn_task_fn task, void *arg) {
  (void)user;
  int threads = count < 1 ? 1 : count > 1024 ? 1024 : (int)count;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
  for (int64_t i = 0; i < count; i++) task(arg, i);
}
#endif
