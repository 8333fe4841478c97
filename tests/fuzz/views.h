/* views.h owns views of a sound shape in one of the usual layouts, and their flaws. */

#ifndef FUZZ_VIEWS_H
#define FUZZ_VIEWS_H

#include "buffer.h"
#include "input.h"

/* A view of a sound shape in one of the usual layouts. */
static attn_tensor make_view(input *in, attn_dtype dtype, int64_t batch, int64_t heads, int64_t len,
                             int64_t dim, int output) {
  attn_tensor t = attn_bhtd(NULL, dtype, batch, heads, len, dim);
  int64_t pad;
  switch (below(in, output ? 5 : 7)) {
    case 1: return attn_bthd(NULL, dtype, batch, len, heads, dim);
    case 2: /* padded rows */
      pad = 1 + below(in, 9);
      t.stride_len = dim + pad, t.stride_head = len * t.stride_len + pad;
      t.stride_batch = heads * t.stride_head + pad;
      break;
    case 3: /* every axis backwards */
      t.stride_len = -t.stride_len, t.stride_head = -t.stride_head;
      t.stride_batch = -t.stride_batch;
      break;
    case 4: /* rows apart by an odd step, heads between them */
      t.stride_head = dim + 1, t.stride_len = heads * t.stride_head + 3;
      t.stride_batch = len * t.stride_len;
      break;
    case 5: t.stride_batch = t.stride_head = 0; break;
    case 6: t.stride_len = below(in, 3) - 1; break;
    default: break;
  }
  return t;
}

/* Breaks one field. */
static void flaw_view(input *in, attn_tensor *t) {
  int64_t bad = nasty_int(in);
  switch (below(in, 9)) {
    case 0: t->dtype = (attn_dtype)(bad & 0xff); break;
    case 1: t->batch = bad; break;
    case 2: t->heads = bad; break;
    case 3: t->len = bad; break;
    case 4: t->dim = bad; break;
    case 5: t->stride_batch = bad; break;
    case 6: t->stride_head = bad; break;
    case 7: t->stride_len = bad; break;
    default: t->len = t->len % 1000 + below(in, 3) - 1; break;
  }
}

#endif
