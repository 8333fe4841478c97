/* rows.h owns the decoding of bytes into calls that go row by row: attn_merge, attn_rope and
 * attn_exp. */

#ifndef FUZZ_ROWS_H
#define FUZZ_ROWS_H

#include "rope.h"
#include "views.h"

/* ---- attn_merge ------------------------------------------------------------------------------*/

enum { M_O, M_LSE, M_O1, M_LSE1, M_O2, M_LSE2, M_TENSORS };

static attn_status call_merge(job *j, attn_ctx *ctx) {
  return attn_merge(j->b[M_O].view, j->b[M_LSE].view, j->b[M_O1].view, j->b[M_LSE1].view,
                    j->b[M_O2].view, j->b[M_LSE2].view, ctx);
}

static void fuzz_merge(input *in) {
  job j = {.name = "attn_merge", .outputs = 2, .runnable = 1, .tame = 1, .call = call_merge};
  int64_t batch = below(in, 3), heads = 1 + below(in, 3), len = below(in, 20),
          dim = 1 + below(in, 70);
  attn_tensor view[M_TENSORS];
  for (int i = 0; i < M_TENSORS; i++) {
    int lse = i & 1;
    view[i] = make_view(in, lse ? ATTN_F32 : (attn_dtype)below(in, 3), batch, heads, len,
                        lse ? 1 : dim, i < 2);
  }
  int flaws = below(in, 8) - 4, in_place = below(in, 8);
  for (int i = 0; i < flaws; i++) flaw_view(in, &view[below(in, M_TENSORS)]);
  filler f = {take(in), chance(in, 2) ? 9 : 0};
  for (int i = 0; i < M_TENSORS; i++) {
    if (i == M_LSE && chance(in, 3)) continue;
    j.runnable &= buffer_make(&j.b[i], view[i], below(in, 4));
    buffer_fill(&j.b[i], &f);
  }
  if (flaws > 0 && chance(in, 6)) j.b[below(in, M_TENSORS)].view.data = NULL;
  /* Memory of the first part on the second is fine; outputs may be a part itself. */
  if (flaws <= 0 && (in_place == 1 || in_place == 2)) {
    int part = in_place == 1 ? M_O1 : M_O2;
    for (int k = 0; k < 2; k++) {
      if (!j.b[k].base) continue;
      buffer_free(&j.b[part + k]);
      memset(&j.b[part + k], 0, sizeof j.b[0]);
      j.b[part + k].view = j.b[k].view;
    }
  }
  if (f.specials) j.tame = 0;
  job_run(&j, in);
}

/* ---- attn_rope -------------------------------------------------------------------------------*/

typedef struct rope_args {
  attn_rope_params params;
  attn_qk_norm norm;
} rope_args;

static attn_status call_rope(job *j, attn_ctx *ctx) {
  return attn_rope(j->b[0].view, j->b[1].view, &((rope_args *)j->args)->params, ctx);
}

static size_t workspace_rope(job *j, const attn_ctx *ctx) {
  return attn_rope_workspace(j->b[0].view, j->b[1].view, &((rope_args *)j->args)->params, ctx);
}

static void fuzz_rope(input *in) {
  rope_args a;
  memset(&a, 0, sizeof a);
  job j = {.name = "attn_rope",
           .outputs = 1,
           .runnable = 1,
           .tame = 1,
           .args = &a,
           .call = call_rope,
           .workspace = workspace_rope};
  int64_t batch = below(in, 3), heads = 1 + below(in, 3), len = below(in, 20);
  int64_t dim = chance(in, 4) ? 1 + below(in, 70) : 2 + 2 * below(in, 35);
  attn_tensor view[2];
  for (int i = 0; i < 2; i++)
    view[i] = make_view(in, (attn_dtype)below(in, 3), batch, heads, len, dim, i == 0);
  int flaws = below(in, 8) - 4;
  for (int i = 0; i < flaws; i++) flaw_view(in, &view[below(in, 2)]);
  filler f = {take(in), chance(in, 8) ? 40 : 0};
  for (int i = 0; i < 2; i++) {
    j.runnable &= buffer_make(&j.b[i], view[i], below(in, 4));
    buffer_fill(&j.b[i], &f);
  }
  if (flaws <= 0 && chance(in, 4)) { /* in place */
    buffer_free(&j.b[1]);
    memset(&j.b[1], 0, sizeof j.b[1]);
    j.b[1].view = j.b[0].view;
  }
  if (flaws > 0 && chance(in, 6)) j.b[below(in, 2)].view.data = NULL;

  store s = {NULL, 0};
  attn_rope_params *p = &a.params;
  make_rope(in, &j, &s, p, view[1].batch, view[1].len, view[1].dim);
  if (chance(in, 3)) {
    make_qk_norm(in, &s, &a.norm, view[1].heads, view[1].heads, view[1].dim, &j.tame);
    p->norm = &a.norm, j.tame = 0;
  }
  if (f.specials || p->xpos != 0 || p->attention_factor != 0 || p->cos.data) j.tame = 0;
  job_run(&j, in);
  store_free(&s);
}

/* ---- attn_exp --------------------------------------------------------------------------------*/

static attn_status call_exp(job *j, attn_ctx *ctx) {
  return attn_exp((float *)j->b[0].view.data, (const float *)j->b[1].view.data, *(int64_t *)j->args,
                  ctx);
}

static void fuzz_exp(input *in) {
  int64_t n = below(in, 250);
  job j = {
      .name = "attn_exp", .outputs = 1, .runnable = 1, .tame = 1, .args = &n, .call = call_exp};
  filler f = {take(in), chance(in, 2) ? 9 : 0};
  for (int i = 0; i < 2; i++) {
    buffer_make(&j.b[i], attn_bhtd(NULL, ATTN_F32, 1, 1, 1, n), below(in, 4));
    buffer_fill(&j.b[i], &f);
  }
  /* any bits at all are a legal argument */
  for (size_t i = j.b[1].zero; i < j.b[1].size && in->next < in->end; i++)
    j.b[1].base[i] = (uint8_t)take(in);
  switch (below(in, 8)) {
    case 5: /* in place */
      buffer_free(&j.b[1]);
      memset(&j.b[1], 0, sizeof j.b[1]);
      j.b[1].view = j.b[0].view;
      break;
    case 6:
      n = nasty_int(in);
      if (n > 0) n = -n;
      j.must_fail = n < 0;
      break;
    case 7:
      j.b[below(in, 2)].view.data = NULL;
      j.must_fail = n > 0;
      break;
    default: break;
  }
  if (f.specials) j.tame = 0;
  job_run(&j, in);
}

#endif
