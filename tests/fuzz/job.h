/* job.h owns the trial of one call: it chooses how the call runs (tier, workers, workspace, memory
 * that fails), makes it, and judges what came back against what the API promises of every call. */

#ifndef FUZZ_JOB_H
#define FUZZ_JOB_H

#include <stdio.h>

#include "library.h"

#include "buffer.h"
#include "input.h"

/* a call's own tensors come first, then those that its parameters hold */
enum { JOB_TENSORS = 6, JOB_BUFFERS = 24 };

typedef struct job {
  const char *name;
  buffer b[JOB_BUFFERS]; /* the first outputs are written, the rest read */
  int outputs;
  int runnable;  /* every view has its memory and the work is small */
  int tame;      /* numbers for which no result may be NaN, and all tiers agree closely */
  int must_fail; /* 1 when the arguments break a rule for certain */
  void *args;
  attn_status (*call)(struct job *, attn_ctx *);
  size_t (*workspace)(struct job *, const attn_ctx *);
  /* promises about one output row of a tame call; null = none */
  void (*sane_row)(const buffer *, size_t place, void *job);
  void (*judge)(struct job *); /* promises about all outputs of a call that ran; null = none */
  int unsteady;                /* numbers whose rounding errors may grow: tiers may differ */
  int apart;                   /* products that tiers make in their own ways: other last bits */
  int bare;                    /* it computes without a workspace */
} job;

/* What products are made of, now and then no mode. */
static void make_compute(input *in, job *j, attn_compute *compute, int *prefer) {
  *compute = (attn_compute)below(in, ATTN_COMPUTE_COUNT + 1), *prefer = chance(in, 2);
  j->apart |= *compute != ATTN_COMPUTE_F32;
}

static void promise(int kept, const job *j, const char *what) {
  if (kept) return;
  fprintf(stderr, "%s: %s\n", j->name, what);
  abort();
}

/* A parallel_for that may run its tasks in any order takes the least expected one. */
static void backwards(void *user, int64_t count, attn_task_fn task, void *arg) {
  (void)user;
  while (count-- > 0) task(arg, count);
}

static void judge_rejection(const job *j, attn_status status, const attn_ctx *ctx) {
  promise(status > ATTN_OK && status < ATTN_STATUS_COUNT, j, "unknown status");
  promise(ctx->reason && ctx->reason[0], j, "a rejection without a reason");
  for (int i = 0; i < JOB_BUFFERS; i++)
    promise(buffer_unchanged(&j->b[i]), j, "a rejected call wrote");
}

static void judge_success(job *j, attn_isa asked, const attn_ctx *ctx) {
  promise(ctx->reason == NULL, j, "a success with a reason");
  promise(ctx->report.isa > ATTN_ISA_AUTO && ctx->report.isa < ATTN_ISA_COUNT, j, "no tier ran");
  promise(asked == ATTN_ISA_AUTO || ctx->report.isa == asked, j, "another tier ran");
  promise(ctx->report.pairs >= 0, j, "negative work");
  promise(!j->must_fail, j, "broken arguments were accepted");
  for (int i = 0; i < JOB_BUFFERS; i++)
    promise(i < j->outputs ? buffer_gaps_unchanged(&j->b[i]) : buffer_unchanged(&j->b[i]), j,
            "wrote outside the outputs");
  for (int i = 0; i < j->outputs; i++)
    if (j->tame && j->runnable && j->sane_row) each_row(&j->b[i], j->sane_row, j);
  if (j->runnable && j->judge) j->judge(j);
}

/* Compares each output element with the one of another tier, kept in user. */
static int close_enough;
static void compare_row(const buffer *b, size_t place, void *user) {
  for (int64_t c = 0; c < b->view.dim; c++) {
    float x = element(b->view.dtype, b->base + place, c);
    float y = element(b->view.dtype, (const uint8_t *)user + place, c);
    if (!(x == y || (x != x && y != y) || fabsf(x - y) <= 0.02f * (1.0f + fabsf(y))))
      close_enough = 0;
  }
}

/* The same call on another tier, serially: the same bits between vector tiers, nearly the same
 * results otherwise. */
static void judge_again(job *j, input *in, attn_isa first) {
  uint8_t *kept[JOB_BUFFERS] = {NULL};
  attn_ctx ctx;
  memset(&ctx, 0, sizeof ctx);
  ctx.isa = (attn_isa)(1 + below(in, ATTN_ISA_COUNT - 1));
  if (attn_isa_status(ctx.isa) != ATTN_ISA_OK) return;
  for (int i = 0; i < j->outputs; i++) {
    if (!j->b[i].base) continue;
    kept[i] = (uint8_t *)must(malloc(j->b[i].size + 1));
    memcpy(kept[i], j->b[i].base, j->b[i].size);
    buffer_restore(&j->b[i]);
  }
  promise(j->call(j, &ctx) == ATTN_OK, j, "another tier rejects the call");
  int same_bits =
      ctx.isa == first || (!j->apart && ctx.isa != ATTN_ISA_SCALAR && first != ATTN_ISA_SCALAR);
  for (int i = 0; i < j->outputs; i++) {
    if (kept[i] && same_bits) {
      promise(!memcmp(kept[i], j->b[i].base, j->b[i].size), j, "tiers or workers change bits");
    } else if (kept[i] && j->tame && !j->unsteady && !j->apart) {
      close_enough = 1;
      each_row(&j->b[i], compare_row, kept[i]);
      promise(close_enough, j, "tiers differ");
    }
    free(kept[i]);
  }
}

static void job_run(job *j, input *in) {
  attn_ctx ctx;
  memset(&ctx, 0, sizeof ctx);
  int odd = chance(in, 4);
  if (odd) ctx.isa = chance(in, 8) ? (attn_isa)(nasty_int(in) & 0xff) : (attn_isa)below(in, 5);
  attn_isa asked = ctx.isa;
  ctx.validate = below(in, 2);
  ctx.workers = below(in, 5);
  if (chance(in, 32)) ctx.workers = (int)nasty_int(in);
  /* without it a call runs serially in less memory than the query names */
  if (ctx.workers > 1 || chance(in, 4)) ctx.parallel_for = backwards;

  size_t want = j->workspace ? j->workspace(j, &ctx) : 0;
  const int refused = want == ATTN_WORKSPACE_REJECTED;
  if (refused) want = 0;
  int memory = below(in, 5), shift = below(in, 64), too_small = 0;
  uint8_t *block = NULL;
  int blocks = fuzz_malloc_blocks;
  fuzz_malloc_left = memory == 1 ? 0 : -1;
  fuzz_malloc_refused = 0;
  if (memory >= 2 && want > 0 && want < (size_t)1 << 24) {
    too_small = memory == 4;
    ctx.workspace_size = want - (size_t)too_small;
    block = (uint8_t *)must(malloc((size_t)shift + want));
    ctx.workspace = block + shift;
    fuzz_malloc_left = 0; /* with a workspace nothing may be allocated */
  }

  /* A call that wants no workspace is rejected or has nothing to compute, unless it never wants any, so
   * that it may be made on views without memory, unless it would have to write to one. */
  int writable = 1;
  for (int i = 0; i < j->outputs; i++) writable &= j->b[i].base || !j->b[i].view.data;
  if (j->runnable || (j->workspace && want == 0 && writable && (refused || !j->bare))) {
    for (int i = 0; i < JOB_BUFFERS; i++) buffer_remember(&j->b[i]);
    attn_status status = j->call(j, &ctx);
    promise(status != ATTN_OK || !refused, j, "the query refused what the call accepts");
    promise(status != ATTN_OK || !too_small, j, "a workspace too small was accepted");
    promise(status != ATTN_E_MEMORY || (fuzz_malloc_refused && !ctx.workspace), j,
            "out of memory, which there was");
    promise(attn_status_string(status) != NULL, j, "a status without a name");
    promise(fuzz_malloc_blocks == blocks, j, "memory is kept");
    fuzz_malloc_left = -1;
    if (status == ATTN_OK)
      judge_success(j, asked, &ctx);
    else
      judge_rejection(j, status, &ctx);
    if (status == ATTN_OK && j->runnable) judge_again(j, in, ctx.report.isa);
  }
  fuzz_malloc_left = -1;
  free(block);
  for (int i = 0; i < JOB_BUFFERS; i++) buffer_free(&j->b[i]);
}

#endif
