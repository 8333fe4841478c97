/* stored.h owns quantised rows in the place of those that a buffer holds, with their scales. */

#ifndef FUZZ_STORED_H
#define FUZZ_STORED_H

#include "job.h"
#include "store.h"

/* Elements of ATTN_I4 are halves of bytes, in rows of whole ones. */
static void widen(attn_tensor *t) {
  int64_t *stride[3] = {&t->stride_batch, &t->stride_head, &t->stride_len};
  for (int i = 0; i < 3; i++) *stride[i] = (int64_t)((uint64_t)*stride[i] * 2);
}

static void store_codes(input *in, job *j, store *st, buffer *b, attn_tensor t, attn_scales *s) {
  if (!buffer_full(b)) return;
  t.dtype = (attn_dtype)(ATTN_I8 + below(in, 3));
  if (t.dtype == ATTN_I4 && !chance(in, 16)) widen(&t);
  buffer_free(b);
  j->runnable &= buffer_make(b, t, below(in, 4));
  filler f = {take(in), 0};
  for (size_t i = 0; b->base && i < b->size; i++) {
    b->base[i] = (uint8_t)filler_next(&f);
    if (t.dtype == ATTN_E4M3 && (b->base[i] & 127) == 127) b->base[i] &= 128;
  }
  s->group = 32 * below(in, 3);
  const int64_t groups = s->group ? (t.dim + s->group - 1) / s->group : 1;
  const int64_t n = array_size(t.batch * t.heads, t.len, groups);
  const float top = t.dtype == ATTN_I8 ? 127.0f : t.dtype == ATTN_I4 ? 7.0f : 448.0f;
  s->scale = store_floats(in, st, n, 0.5f, 1.0f, &j->tame);
  for (int64_t i = 0; s->scale && i < n; i++) s->scale[i] /= top;
  if (t.dtype != ATTN_E4M3 && chance(in, 3))
    s->zero = store_floats(in, st, n, -3.0f, 3.0f, &j->tame);
  s->stride_len = groups, s->stride_head = t.len * groups,
  s->stride_batch = t.heads * t.len * groups;
  if (chance(in, 16)) s->stride_head = s->stride_batch = 0;
  if (chance(in, 16)) s->group = nasty_int(in), s->stride_len = 1, j->runnable &= s->group >= t.dim;
  if (chance(in, 16)) s->scale = NULL, j->tame = 0;
}

#endif
