/* params.h owns the decoding of the older fields of attn_sdpa_params: the allowed set, masks and
 * numbers per head. */

#ifndef FUZZ_PARAMS_H
#define FUZZ_PARAMS_H

#include "job.h"
#include "store.h"

static int32_t *make_lengths(input *in, store *s, int64_t batch, int64_t extent) {
  if (batch < 0 || batch > 64) return NULL;
  int32_t *lengths = (int32_t *)store_take(s, (size_t)batch * sizeof *lengths);
  if (extent < 0 || extent > 1000) extent = 1000;
  for (int64_t i = 0; i < batch; i++)
    lengths[i] =
        chance(in, 16) ? (int32_t)nasty_int(in) : (int32_t)((int64_t)take(in) * 3 % (extent + 1));
  return lengths;
}

static float *make_per_head(input *in, store *s, int64_t heads, int *tame) {
  if (heads < 0 || heads > 64) return NULL;
  float *x = (float *)store_take(s, (size_t)heads * sizeof *x);
  for (int64_t i = 0; i < heads; i++) {
    x[i] = (float)(below(in, 17) - 8) / 8.0f;
    if (chance(in, 32)) x[i] = nasty_float(in), *tame = 0;
  }
  return x;
}

/* 0 when the mask cannot have its memory. */
static int make_mask(input *in, store *s, attn_mask *m, attn_mask_kind kind, const attn_tensor *q,
                     int64_t keys, int *tame) {
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
  if (chance(in, 32) && m->k_len >= 0) m->k_len += below(in, 3) - 1;
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
  uint8_t *base = (uint8_t *)store_take(s, before + after);
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

/* view: the tensors of the call as they were planned, flaws included. */
static void make_params(input *in, job *j, store *s, attn_sdpa_params *p, const attn_tensor *q,
                        int64_t keys) {
  p->causal = chance(in, 32) ? (int)(nasty_int(in) & 0xff) : below(in, 3);
  if (chance(in, 4)) {
    p->has_q_off = 1;
    p->q_off = chance(in, 8) ? nasty_int(in) : below(in, 200) - 100;
  }
  if (chance(in, 4))
    p->window = attn_window_of(chance(in, 8) ? nasty_int(in) : below(in, 90) - 1,
                               chance(in, 8) ? nasty_int(in) : below(in, 90) - 1);
  if (chance(in, 32)) p->window.on = 0;
  if (chance(in, 12) && q->batch >= 0 && q->batch <= ROWS_MAX) {
    int64_t *offs = (int64_t *)store_take(s, (size_t)(q->batch + 1) * sizeof *offs);
    for (int64_t b = 0; b < q->batch; b++)
      offs[b] = chance(in, 32) ? nasty_int(in) : below(in, 200) - 100;
    p->q_offs = offs;
    if (!chance(in, 8)) p->has_q_off = 0, p->q_off = 0;
    j->tame = 0;
  }
  p->align_lengths = chance(in, 12);
  if (chance(in, 4)) p->kv_len = make_lengths(in, s, q->batch, keys);
  if (chance(in, 4)) p->q_len = make_lengths(in, s, q->batch, q->len);
  if (chance(in, 4)) p->scale = below(in, 2) ? ATTN_ZERO : (float)(below(in, 65) - 32) / 32.0f;
  if (chance(in, 16)) p->scale = nasty_float(in), j->tame = 0;
  if (chance(in, 4)) p->softcap = (float)below(in, 33) / 2.0f;
  if (chance(in, 32)) p->softcap = nasty_float(in), j->tame = 0;
  if (chance(in, 4)) p->alibi = make_per_head(in, s, q->heads, &j->tame);
  if (chance(in, 4)) p->sinks = make_per_head(in, s, q->heads, &j->tame);
  p->softmax_one = chance(in, 4);
  if (chance(in, 3)) {
    const int kind = (int)take(in);
    p->mask_new = kind % 8 >= 6;
    j->runnable &= make_mask(in, s, &p->mask, kind % 2 ? ATTN_MASK_BITS : ATTN_MASK_BOOL, q,
                             p->mask_new ? q->len : keys, &j->tame);
  }
  if (chance(in, 3)) j->runnable &= make_mask(in, s, &p->bias, ATTN_MASK_ADD, q, keys, &j->tame);
  if (chance(in, 24)) {
    p->dropout.p = chance(in, 8) ? (double)nasty_float(in) : (double)below(in, 16) / 16;
    p->dropout.seed = (uint64_t)nasty_int(in), p->dropout.offset = (uint64_t)nasty_int(in);
    p->dropout.batch0 = chance(in, 8) ? nasty_int(in) : below(in, 9);
    p->dropout.head0 = chance(in, 8) ? nasty_int(in) : below(in, 9);
    j->tame = 0;
  }
  if (chance(in, 6)) make_compute(in, j, &p->compute, &p->compute_prefer);
}

#endif
