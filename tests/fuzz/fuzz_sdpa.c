/* fuzz_sdpa.c owns the decoding of bytes into calls: attn_sdpa above all, attn_merge, attn_rope and
 * attn_exp. About half of the calls are valid; the others have a flaw or three. Views have exactly
 * the memory they reach, so under the address sanitizer every stray access ends the run. */

#include <stddef.h>
#include <stdlib.h>

static void *fuzz_malloc(size_t size);
#define ATTN_MALLOC(size) fuzz_malloc(size)
#define ATTN_FREE(ptr) free(ptr)
#define ATTN_IMPLEMENTATION
#include "attn.h"

#include "job.h"

static void *fuzz_malloc(size_t size) { return fuzz_malloc_fails ? NULL : malloc(size); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Multiply-adds a call may cost: the slowest tier under sanitizers needs to end in a moment. */
#define WORK_MAX 1e6

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

/* ---- attn_sdpa -------------------------------------------------------------------------------*/

enum { O, LSE, MAP, Q, K, V };

typedef struct sdpa_args {
  attn_sdpa_params params;
  void *owned[6]; /* the parameter arrays */
} sdpa_args;

static attn_status call_sdpa(job *j, attn_ctx *ctx) {
  sdpa_args *a = (sdpa_args *)j->args;
  return attn_sdpa(j->b[O].view, j->b[Q].view, j->b[K].view, j->b[V].view, &a->params, ctx);
}

static size_t workspace_sdpa(job *j, const attn_ctx *ctx) {
  sdpa_args *a = (sdpa_args *)j->args;
  return attn_sdpa_workspace(j->b[O].view, j->b[Q].view, j->b[K].view, j->b[V].view, &a->params,
                             ctx);
}

static void *owned(sdpa_args *a, size_t size) {
  int i = 0;
  while (a->owned[i]) i++;
  return a->owned[i] = must(malloc(size + !size));
}

static int32_t *make_lengths(input *in, sdpa_args *a, int64_t batch, int64_t extent) {
  if (batch < 0 || batch > 64) return NULL;
  int32_t *lengths = (int32_t *)owned(a, (size_t)batch * sizeof *lengths);
  if (extent < 0 || extent > 1000) extent = 1000;
  for (int64_t i = 0; i < batch; i++)
    lengths[i] =
        chance(in, 16) ? (int32_t)nasty_int(in) : (int32_t)((int64_t)take(in) * 3 % (extent + 1));
  return lengths;
}

static float *make_per_head(input *in, sdpa_args *a, int64_t heads, int *tame) {
  if (heads < 0 || heads > 64) return NULL;
  float *x = (float *)owned(a, (size_t)heads * sizeof *x);
  for (int64_t i = 0; i < heads; i++) {
    x[i] = (float)(below(in, 17) - 8) / 8.0f;
    if (chance(in, 32)) x[i] = nasty_float(in), *tame = 0;
  }
  return x;
}

/* 0 when the mask cannot have its memory. */
static int make_mask(input *in, sdpa_args *a, attn_mask *m, attn_mask_kind kind,
                     const attn_tensor *q, int64_t keys, int *tame) {
  int full = below(in, 16);
  m->kind = kind;
  m->dtype = (attn_dtype)below(in, 3);
  m->batch = full & 1 ? q->batch : 1;
  m->heads = full & 2 ? q->heads : 1;
  m->q_len = full & 4 ? q->len : 1;
  m->k_len = full & 8 ? keys : 1;
  int64_t row = m->k_len > 0 ? m->k_len : 0;
  size_t size = type_size(m->dtype);
  if (kind == ATTN_MASK_BITS) row = row / 8 + (row % 8 != 0);
  if (kind != ATTN_MASK_ADD) size = 1;
  if (row > SPAN_MAX || m->q_len > ROWS_MAX || m->heads > ROWS_MAX) return 0;
  if (m->q_len < 0 || m->heads < 0) return 0;
  m->stride_q = row + below(in, 3);
  m->stride_head = m->stride_q * m->q_len;
  m->stride_batch = m->stride_head * m->heads;
  if (chance(in, 8)) m->stride_q = -m->stride_q;
  if (chance(in, 32)) m->k_len += below(in, 3) - 1;
  if (chance(in, 32)) m->q_len = nasty_int(in);
  if (chance(in, 32)) m->kind = (attn_mask_kind)(nasty_int(in) & 0xff);
  if (chance(in, 32)) m->dtype = (attn_dtype)(nasty_int(in) & 0xff);

  /* another kind or type than was planned may read up to four bytes an entry */
  if (m->kind != kind || m->k_len != (full & 8 ? keys : 1)) size = 4, row = m->k_len;
  if ((unsigned)m->dtype >= ATTN_DTYPE_COUNT || type_size(m->dtype) > size) size = 4;
  const int64_t count[3] = {m->batch, m->heads, m->q_len};
  const int64_t stride[3] = {m->stride_batch, m->stride_head, m->stride_q};
  size_t before, after;
  if (!reach(count, stride, row, size, &before, &after)) return 0;
  uint8_t *base = (uint8_t *)owned(a, before + after);
  filler f = {take(in), chance(in, 8) ? 11 : 0};
  if (f.specials) *tame = 0;
  for (size_t i = 0; i < before + after; i++) base[i] = (uint8_t)(filler_next(&f) & 1);
  if (kind == ATTN_MASK_BITS)
    for (size_t i = 0; i < before + after; i++) base[i] = (uint8_t)filler_next(&f);
  if (kind == ATTN_MASK_ADD && (unsigned)m->dtype < ATTN_DTYPE_COUNT)
    for (size_t i = 0; i < (before + after) / type_size(m->dtype); i++)
      set_element(m->dtype, base, (int64_t)i,
                  filler_next(&f) % 5 == 0 ? -INFINITY : filler_number(&f));
  m->data = base + before;
  if (chance(in, 32)) m->data = NULL;
  return 1;
}

/* Every finite element within its bound: |O| <= max |v|, 0 <= P <= 1, LSE < inf. */
static void sane_row(const buffer *b, size_t place, void *user) {
  job *j = (job *)user;
  for (int64_t c = 0; c < b->view.dim; c++) {
    float x = element(b->view.dtype, b->base + place, c);
    promise(x == x, j, "NaN from numbers");
    if (b == &j->b[O]) promise(fabsf(x) <= 1.96f, j, "an output beyond its values");
    if (b == &j->b[LSE]) promise(x < INFINITY, j, "an infinite denominator");
    if (b == &j->b[MAP]) promise(x >= 0 && x <= 1.00001f, j, "a weight outside 0..1");
  }
}

static void fuzz_sdpa(input *in) {
  sdpa_args a;
  memset(&a, 0, sizeof a);
  job j = {.name = "attn_sdpa",
           .outputs = 3,
           .runnable = 1,
           .tame = 1,
           .args = &a,
           .call = call_sdpa,
           .workspace = workspace_sdpa,
           .sane_row = sane_row};

  int64_t key_heads = 1 + below(in, 3), value_heads = 1 + below(in, 2);
  int64_t heads = key_heads * value_heads * (1 + below(in, 2));
  int64_t batch = chance(in, 32) ? 0 : 1 + below(in, 2);
  int64_t queries = below(in, 8) ? 1 + below(in, 140) : below(in, 3);
  int64_t keys = below(in, 8) ? 1 + (take(in) + take(in) * 2) % 400 : below(in, 3);
  int64_t dk = 1 + below(in, 40), dv = 1 + below(in, 40);
  unsigned types = take(in), more = take(in);

  attn_tensor view[JOB_BUFFERS];
  view[Q] = make_view(in, (attn_dtype)(types % 3), batch, heads, queries, dk, 0);
  view[K] = make_view(in, (attn_dtype)(types / 3 % 3), batch, key_heads, keys, dk, 0);
  view[V] = make_view(in, (attn_dtype)(types / 9 % 3), batch, value_heads, keys, dv, 0);
  view[O] = make_view(in, (attn_dtype)(types / 27 % 3), batch, heads, queries, dv, 1);
  view[LSE] = make_view(in, ATTN_F32, batch, heads, queries, 1, 1);
  view[MAP] = make_view(in, ATTN_F32, batch, heads, queries, keys, 1);

  int flaws = below(in, 8) - 4;
  for (int i = 0; i < flaws; i++) flaw_view(in, &view[below(in, JOB_BUFFERS)]);
  filler f = {take(in), chance(in, 6) ? 40 : 0};
  if (f.specials) j.tame = 0;
  for (int i = 0; i < JOB_BUFFERS; i++) {
    int absent = (i == LSE && !(more & 1)) || (i == MAP && (more & 6) != 6);
    if (absent) {
      /* with a shape or without: a null pointer alone says "absent" */
      if (more & 8) j.b[i].view = view[i];
      continue;
    }
    j.runnable &= buffer_make(&j.b[i], view[i], below(in, 4));
    if (i >= Q) buffer_fill(&j.b[i], &f);
  }
  if (flaws > 0 && chance(in, 6)) j.b[below(in, JOB_BUFFERS)].view.data = NULL;

  attn_sdpa_params *p = &a.params;
  p->causal = below(in, 2);
  if (chance(in, 4)) {
    p->has_q_off = 1;
    p->q_off = chance(in, 8) ? nasty_int(in) : below(in, 200) - 100;
  }
  if (chance(in, 4)) p->window_left = chance(in, 8) ? nasty_int(in) : below(in, 90) - 1;
  if (chance(in, 4)) p->window_right = chance(in, 8) ? nasty_int(in) : below(in, 90) - 1;
  if (chance(in, 4)) p->kv_len = make_lengths(in, &a, view[Q].batch, view[K].len);
  if (chance(in, 4)) p->q_len = make_lengths(in, &a, view[Q].batch, view[Q].len);
  if (chance(in, 4)) p->scale = below(in, 2) ? ATTN_ZERO : (float)(below(in, 65) - 32) / 32.0f;
  if (chance(in, 16)) p->scale = nasty_float(in), j.tame = 0;
  if (chance(in, 4)) p->softcap = (float)below(in, 33) / 2.0f;
  if (chance(in, 32)) p->softcap = nasty_float(in), j.tame = 0;
  if (chance(in, 4)) p->alibi = make_per_head(in, &a, view[Q].heads, &j.tame);
  if (chance(in, 4)) p->sinks = make_per_head(in, &a, view[Q].heads, &j.tame);
  p->softmax_one = chance(in, 4);
  if (chance(in, 3))
    j.runnable &= make_mask(in, &a, &p->mask, chance(in, 2) ? ATTN_MASK_BITS : ATTN_MASK_BOOL,
                            &view[Q], view[K].len, &j.tame);
  if (chance(in, 3))
    j.runnable &= make_mask(in, &a, &p->bias, ATTN_MASK_ADD, &view[Q], view[K].len, &j.tame);

  /* Overlap: an output on top of another operand. Both must hold something to overlap. */
  int on = 1 + below(in, JOB_BUFFERS - 1);
  if (chance(in, 32) && j.runnable && buffer_full(&j.b[O]) && buffer_full(&j.b[on])) {
    j.b[O].view.data = j.b[on].view.data;
    j.must_fail = 1;
  }

  /* Data between two elements. */
  on = below(in, JOB_BUFFERS);
  if (chance(in, 32) && j.runnable && !j.must_fail && buffer_full(&j.b[on])) {
    j.b[on].view.data = (uint8_t *)j.b[on].view.data + 1;
    j.must_fail = 1;
  }

  p->lse = j.b[LSE].view, p->map = j.b[MAP].view;
  double work = (double)view[Q].batch * (double)view[Q].heads * ((double)view[Q].len + 1) *
                ((double)view[K].len + 1) * ((double)view[Q].dim + (double)view[V].dim + 8);
  j.runnable &= work <= WORK_MAX;
  /* An offset that puts scores out of the range of float is no tame input with slopes. */
  if (p->alibi && p->has_q_off) j.tame = 0;
  if (j.must_fail) j.tame = 0;
  job_run(&j, in);
  for (size_t i = 0; i < sizeof a.owned / sizeof *a.owned; i++) free(a.owned[i]);
}

/* ---- attn_merge ------------------------------------------------------------------------------*/

enum { M_O, M_LSE, M_O1, M_LSE1, M_O2, M_LSE2 };

static attn_status call_merge(job *j, attn_ctx *ctx) {
  return attn_merge(j->b[M_O].view, j->b[M_LSE].view, j->b[M_O1].view, j->b[M_LSE1].view,
                    j->b[M_O2].view, j->b[M_LSE2].view, ctx);
}

static void fuzz_merge(input *in) {
  job j = {.name = "attn_merge", .outputs = 2, .runnable = 1, .tame = 1, .call = call_merge};
  int64_t batch = below(in, 3), heads = 1 + below(in, 3), len = below(in, 20),
          dim = 1 + below(in, 70);
  attn_tensor view[JOB_BUFFERS];
  for (int i = 0; i < JOB_BUFFERS; i++) {
    int lse = i & 1;
    view[i] = make_view(in, lse ? ATTN_F32 : (attn_dtype)below(in, 3), batch, heads, len,
                        lse ? 1 : dim, i < 2);
  }
  int flaws = below(in, 8) - 4, in_place = below(in, 8);
  for (int i = 0; i < flaws; i++) flaw_view(in, &view[below(in, JOB_BUFFERS)]);
  filler f = {take(in), chance(in, 2) ? 9 : 0};
  for (int i = 0; i < JOB_BUFFERS; i++) {
    if (i == M_LSE && chance(in, 3)) continue;
    j.runnable &= buffer_make(&j.b[i], view[i], below(in, 4));
    buffer_fill(&j.b[i], &f);
  }
  if (flaws > 0 && chance(in, 6)) j.b[below(in, JOB_BUFFERS)].view.data = NULL;
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

  attn_rope_params *p = &a.params;
  p->layout = (attn_rope_layout)below(in, 2);
  p->inverse = below(in, 2);
  if (chance(in, 4)) p->rot = chance(in, 4) ? nasty_int(in) : 2 * below(in, 36);
  if (chance(in, 4)) p->base = chance(in, 4) ? (double)nasty_float(in) : 500000.0;
  if (chance(in, 16)) p->layout = (attn_rope_layout)(nasty_int(in) & 0xff);
  p->start = chance(in, 8) ? nasty_int(in) : below(in, 100) - 50;
  int64_t *positions = NULL;
  if (chance(in, 4) && view[1].len >= 0 && view[1].len <= ROWS_MAX && view[1].batch >= 0 &&
      view[1].batch <= 8) {
    p->positions_per_batch = below(in, 2);
    size_t n = (size_t)(view[1].len * (p->positions_per_batch ? view[1].batch : 1));
    positions = (int64_t *)must(malloc(n * sizeof *positions + !n));
    for (size_t i = 0; i < n; i++)
      positions[i] = chance(in, 16) ? nasty_int(in) : below(in, 200) * below(in, 200);
    p->positions = positions;
  }
  if (f.specials) j.tame = 0;
  job_run(&j, in);
  free(positions);
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  input in = {data, data + size};
  switch (below(&in, 8)) {
    case 5: fuzz_merge(&in); break;
    case 6: fuzz_rope(&in); break;
    case 7: fuzz_exp(&in); break;
    default: fuzz_sdpa(&in); break;
  }
  return 0;
}
