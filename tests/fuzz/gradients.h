/* gradients.h owns the gradients of a call of attn_sdpa that has run: of its own operands, with o in the place of what
 * reaches it; those of attn_linear lie with it (linear.h). */

#ifndef FUZZ_GRADIENTS_H
#define FUZZ_GRADIENTS_H

#include "job.h"
#include "terms.h"

/* A dense tensor of the shape of x, in exactly its memory. */
static attn_tensor gradient_of(const attn_tensor *x) {
  const size_t n = (size_t)(x->batch * x->heads * x->len * x->dim);
  return attn_bhtd(must(malloc(n * sizeof(float) + !n)), ATTN_F32, x->batch, x->heads, x->len,
                   x->dim);
}

/* The same bits from last to first as alone; numbers from numbers. */
static void judge_gradients(job *j, const attn_sdpa_params *params) {
  attn_tensor y[2][3];
  attn_status status = ATTN_OK;
  if (!j->b[LSE].view.data) return;
  for (int n = 0; n < 2; n++) {
    attn_ctx ctx;
    memset(&ctx, 0, sizeof ctx);
    if (n) ctx.workers = 3, ctx.parallel_for = backwards;
    for (int i = 0; i < 3; i++) y[n][i] = gradient_of(&j->b[Q + i].view);
    status = attn_sdpa_backward(y[n][0], y[n][1], y[n][2], j->b[O].view, j->b[Q].view, j->b[K].view,
                                j->b[V].view, j->b[O].view, j->b[LSE].view, params, NULL, &ctx);
    promise(status == ATTN_OK || status == ATTN_E_RANGE, j,
            "gradients of a call that ran are refused");
  }
  for (int i = 0; i < 3; i++) {
    const size_t n = (size_t)(y[0][i].batch * y[0][i].heads * y[0][i].len * y[0][i].dim);
    const float *x = (const float *)y[0][i].data;
    promise(status != ATTN_OK || !memcmp(x, y[1][i].data, n * sizeof *x), j,
            "workers change the bits of gradients");
    for (size_t c = 0; status == ATTN_OK && j->tame && c < n; c++)
      promise(x[c] == x[c], j, "a gradient that is NaN from numbers");
    free(y[0][i].data), free(y[1][i].data);
  }
}

#endif
