/* draft.h owns the decoding of bytes into trees of draft tokens, and into the calls that say what their
 * nodes see and where they stand. */

#ifndef FUZZ_DRAFT_H
#define FUZZ_DRAFT_H

#include "arrays.h"

/* The node before each of n nodes, or -1; now and then no node before it. */
static int32_t *make_tree(input *in, store *s, int64_t n) {
  int32_t *parent = (int32_t *)store_take(s, (size_t)n * sizeof *parent);
  const int chain = chance(in, 4);
  for (int64_t i = 0; i < n; i++)
    parent[i] = (int32_t)(chain ? i - 1 : (int64_t)take(in) % (i + 1) - 1);
  if (n > 0 && chance(in, 16)) parent[take(in) % (uint64_t)n] = (int32_t)nasty_int(in);
  return parent;
}

typedef struct draft_args {
  int positions;
  int64_t n, stride, start;
  const int32_t *parent;
} draft_args;

static attn_status call_draft(job *j, attn_ctx *ctx) {
  const draft_args *a = (const draft_args *)j->args;
  void *y = j->b[0].view.data;
  ctx->reason = "a call without a context, of which more is asked";
  if (ctx->isa < 0 || ctx->isa >= ATTN_ISA_COUNT) return ATTN_E_ISA;
  const attn_status got = a->positions
                              ? attn_draft_positions((int64_t *)y, a->parent, a->n, a->start)
                              : attn_draft_mask((uint8_t *)y, a->stride, a->parent, a->n);
  if (got == ATTN_OK) ctx->reason = NULL;
  ctx->report.isa = ctx->isa == ATTN_ISA_AUTO ? ATTN_ISA_SCALAR : ctx->isa;
  return got;
}

/* A node stands one behind its parent, and sees it, what it sees, and itself. */
static void judge_draft(job *j) {
  const draft_args *a = (const draft_args *)j->args;
  for (int64_t i = 0; i < a->n && !a->positions; i++)
    for (int64_t c = 0; c < (a->n + 7) / 8 * 8; c++) {
      const uint8_t *bits = j->b[0].base + j->b[0].zero, *row = bits + i * a->stride;
      const int before =
          a->parent[i] >= 0 && c < a->n && bits[a->parent[i] * a->stride + c / 8] >> c % 8 & 1;
      promise((row[c / 8] >> c % 8 & 1) == (c == i || before), j, "a node sees what it must not");
    }
  for (int64_t i = 0; i < a->n && a->positions; i++) {
    const int64_t *at = (const int64_t *)j->b[0].view.data;
    promise(at[i] == (a->parent[i] < 0 ? a->start : at[a->parent[i]] + 1), j, "a node misplaced");
  }
}

static void fuzz_draft(input *in) {
  draft_args a;
  store s = {NULL, 0};
  memset(&a, 0, sizeof a);
  a.positions = below(in, 2);
  job j = {.name = "attn_draft",
           .outputs = 1,
           .runnable = 1,
           .args = &a,
           .call = call_draft,
           .judge = judge_draft};
  a.n = chance(in, 12) ? below(in, 200) : below(in, 30);
  a.stride = (a.n + 7) / 8 + (chance(in, 8) ? below(in, 9) - 4 : 0);
  a.start = chance(in, 8) ? nasty_int(in) : below(in, 1000) - 500;
  a.parent = make_tree(in, &s, a.n);
  attn_tensor view = attn_bhtd(NULL, ATTN_I8, 1, 1, a.n, a.positions ? 8 : (a.n + 7) / 8);
  view.stride_len = a.positions ? 8 : a.stride;
  j.runnable &= buffer_make(&j.b[0], view, 8 * below(in, 2));
  if (chance(in, 16)) a.n = -1 - below(in, 3);
  if (chance(in, 32)) a.parent = NULL;
  if (chance(in, 32)) j.b[0].view.data = NULL;
  if (chance(in, 24) && a.positions && j.b[0].view.data)
    j.b[0].view.data = (uint8_t *)j.b[0].view.data + 1;
  job_run(&j, in);
  store_free(&s);
}

#endif
