/* arrays.h owns arrays of integers among a call's own arguments: outputs and inputs of exactly the length
 * that the call may touch, in buffers like tensors are; and the views of calls that have many. */

#ifndef FUZZ_ARRAYS_H
#define FUZZ_ARRAYS_H

#include "params.h"
#include "views.h"

/* A call, or with bytes its workspace query, in a function with ctx, query and bytes. */
#define EITHER(name, ...) \
  (bytes ? (*bytes = name##_workspace(__VA_ARGS__, query), ATTN_OK) : name(__VA_ARGS__, ctx))

/* n words of four bytes; null when they get no memory. */
static void *make_words(buffer *b, int64_t n) {
  buffer_free(b);
  memset(b, 0, sizeof *b);
  if (n >= 0) buffer_make(b, attn_bhtd(NULL, ATTN_F32, 1, 1, 1, n), 0);
  return b->view.data;
}

/* n numbers from low .. low + span - 1, now and then one that is not. */
static int32_t *make_ints(input *in, buffer *b, int64_t n, int64_t low, int64_t span) {
  int32_t *x = (int32_t *)make_words(b, n);
  filler f = {take(in), 0};
  for (int64_t i = 0; x && i < n; i++)
    x[i] = (int32_t)(low + (span > 0 ? (int64_t)filler_next(&f) % span : 0));
  if (x && n > 0 && chance(in, 16)) x[take(in) % (uint64_t)n] = (int32_t)nasty_int(in);
  return x;
}

/* A small number, seldom another. */
static int64_t some(input *in, int n) { return chance(in, 12) ? nasty_int(in) : below(in, n); }

/* Activations and gates that are cut and moved, now and then. */
static void make_form(input *in, attn_act_form *form) {
  if (!chance(in, 4)) return;
  float *const part[] = {&form->slope, &form->limit, &form->gate_add};
  for (int i = 0; i < 3; i++) *part[i] = chance(in, 24) ? nasty_float(in) : (float)below(in, 3) / 2;
}

static float some_scale(input *in) { return chance(in, 12) ? nasty_float(in) : 0; }

static attn_tensor any_view(input *in, int64_t batch, int64_t heads, int64_t len, int64_t dim,
                            int output) {
  return make_view(in, (attn_dtype)below(in, 3), batch, heads, len, dim, output);
}

/* Weights [1,heads,n,dim], or turned [1,heads,dim,n]. */
static attn_tensor weights_view(input *in, int64_t heads, int64_t n, int64_t dim, int turned) {
  return any_view(in, 1, heads, turned ? dim : n, turned ? n : dim, 0);
}
static attn_tensor weight_view(input *in, int64_t n, int64_t dim, int turned) {
  return weights_view(in, 1, n, dim, turned);
}

/* f32, as outputs beside the rows are. */
static attn_tensor f32_view(input *in, int64_t batch, int64_t heads, int64_t len, int64_t dim,
                            int output) {
  return make_view(in, ATTN_F32, batch, heads, len, dim, output);
}

/* Flaws, and memory for every view that has a shape: heads of 0 leave a buffer without. */
static void make_buffers(input *in, job *j, attn_tensor *view, int count) {
  const int flaws = below(in, 8) - 5;
  for (int i = 0; i < flaws; i++) {
    const int at = below(in, count);
    if (view[at].heads) flaw_view(in, &view[at]);
  }
  filler f = {take(in), chance(in, 6) ? 40 : 0};
  for (int i = 0; i < count; i++) {
    if (!view[i].heads && !view[i].batch) continue;
    j->runnable &= buffer_make(&j->b[i], view[i], below(in, 4));
    buffer_fill(&j->b[i], &f);
  }
  if (flaws > 0 && chance(in, 6)) j->b[below(in, count)].view.data = NULL;
}

#endif
