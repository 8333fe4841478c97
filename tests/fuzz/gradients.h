/* gradients.h owns the gradients of a call of attn_sdpa or attn_relu that has run: of its own operands, with o in the place
 * of what reaches it; those of attn_linear and attn_talking lie with them (linear.h, heads.h). */

#ifndef FUZZ_GRADIENTS_H
#define FUZZ_GRADIENTS_H

#include <math.h>

#include "job.h"
#include "terms.h"

/* A dense tensor of the shape of x, in exactly its memory. */
static attn_tensor gradient_of(const attn_tensor *x) {
  const size_t n = (size_t)(x->batch * x->heads * x->len * x->dim);
  return attn_bhtd(must(malloc(n * sizeof(float) + !n)), ATTN_F32, x->batch, x->heads, x->len,
                   x->dim);
}

/* Leaves half of a gradient, where the scores before and after are numbers or none. */
static void halve_back(void *user, const attn_score_tile *t, const float *before,
                       const float *after) {
  promise_tile((const limits *)user, t);
  for (int64_t c = 0; c < t->keys; c++)
    for (int64_t r = 0; r < t->queries; r++) {
      const int64_t at = c * t->key_stride + r * t->query_stride;
      const float sum = before[at] + after[at]; /* both may be read */
      t->score[at] *= sum > 1e30f ? 0.25f : 0.5f;
    }
}

/* Gradients of what a call reads rows of, and of its scale. */
enum { GRADIENTS = 9 };
static attn_sdpa_gradients asked_of(const attn_sdpa_params *params, attn_tensor y[GRADIENTS],
                                    int64_t heads) {
  const attn_tensor *const x[] = {&params->relative.keys, &params->relative.values,
                                  &params->relative.queries, &params->xl.table,
                                  &params->labels.table};
  const attn_tensor scale = attn_bhtd(NULL, ATTN_F32, 1, 1, 1, heads);
  attn_sdpa_gradients g;
  memset(&g, 0, sizeof g);
  for (int i = 0; i < 5; i++)
    if (x[i]->data) y[3 + i] = gradient_of(x[i]);
  g.d_relative.keys = y[3], g.d_relative.values = y[4], g.d_relative.queries = y[5];
  g.d_xl_table = y[6], g.d_label_table = y[7];
  if (!params->labels.label) memset(&g.d_label_table, 0, sizeof g.d_label_table);
  if (params->scale != 0 || !signbit(params->scale)) /* one of ATTN_ZERO has none */
    y[8] = gradient_of(&scale), g.d_scale = (float *)y[8].data;
  if (params->modify) g.modify_back = halve_back;
  return g;
}

/* The same bits from last to first as alone; numbers from numbers. relu: null, attn_sdpa's. */
static void judge_gradients(job *j, const attn_sdpa_params *params, const attn_relu_params *relu) {
  attn_tensor y[2][GRADIENTS];
  attn_status status = ATTN_OK;
  if (!j->b[LSE].view.data && !relu) return;
  memset(y, 0, sizeof y);
  for (int n = 0; n < 2; n++) {
    attn_ctx ctx;
    memset(&ctx, 0, sizeof ctx);
    if (n) ctx.workers = 3, ctx.parallel_for = backwards;
    for (int i = 0; i < 3; i++) y[n][i] = gradient_of(&j->b[Q + i].view);
    const attn_sdpa_gradients g = asked_of(params, y[n], j->b[Q].view.heads);
    attn_relu_gradients rectified;
    memset(&rectified, 0, sizeof rectified);
    rectified.d_sum = j->b[LSE].view, rectified.attention = g;
    status = relu ? attn_relu_backward(y[n][0], y[n][1], y[n][2], j->b[O].view, j->b[Q].view,
                                       j->b[K].view, j->b[V].view, relu, &rectified, &ctx)
                  : attn_sdpa_backward(y[n][0], y[n][1], y[n][2], j->b[O].view, j->b[Q].view,
                                       j->b[K].view, j->b[V].view, j->b[O].view, j->b[LSE].view,
                                       params, &g, &ctx);
    promise(status == ATTN_OK || status == ATTN_E_RANGE, j,
            "gradients of a call that ran are refused");
  }
  for (int i = 0; i < GRADIENTS; i++) {
    const size_t n = (size_t)(y[0][i].batch * y[0][i].heads * y[0][i].len * y[0][i].dim);
    const float *x = (const float *)y[0][i].data;
    if (!x) continue;
    promise(status != ATTN_OK || !memcmp(x, y[1][i].data, n * sizeof *x), j,
            "workers change the bits of gradients");
    for (size_t c = 0; status == ATTN_OK && j->tame && !relu && i < 3 && c < n; c++)
      promise(x[c] == x[c], j, "a gradient that is NaN from numbers");
    free(y[0][i].data), free(y[1][i].data);
  }
}

#endif
