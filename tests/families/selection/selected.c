/* tests/families/selection/selected.c owns the shared parts of the tests of learned selections. */

#include "selected.h"

selected_call selected_of(int64_t batch, int64_t heads, int64_t k_heads, int64_t tq, int64_t tk,
                          int64_t d, int options, test_rng *rng) {
  selected_call c;
  test_spec spec = test_plain(heads, tq, tk, d, d + 3);
  memset(&c, 0, sizeof c);
  spec.batch = batch, spec.k_heads = spec.v_heads = k_heads;
  if (options & SELECTED_HALF)
    spec.k_type = ATTN_F16, spec.v_type = ATTN_BF16, spec.q_type = ATTN_F16;
  if (options & SELECTED_LAYOUTS)
    spec.q_layout = TEST_BTHD, spec.k_layout = TEST_NEGATIVE, spec.v_layout = TEST_PADDED;
  if (options & SELECTED_LAYOUTS) spec.o_layout = TEST_BTHD;
  c.base = test_build(&spec, rng);
  c.base.params.causal = ATTN_CAUSAL_END;
  if (options & SELECTED_LENGTHS) {
    int32_t *len = test_lengths(batch, tk, rng);
    c.softmax.kv_len = c.base.params.kv_len = len;
  }
  if (options & SELECTED_OFFSET) {
    c.softmax.has_q_off = c.base.params.has_q_off = 1;
    c.softmax.q_off = c.base.params.q_off = test_range(rng, -3, tk);
  }
  c.softmax.lse = c.base.params.lse;
  return c;
}

void selected_whole(selected_call *c, test_rng *rng) {
  const attn_tensor *t[] = {&c->base.q, &c->base.k};
  for (int n = 0; n < 2; n++)
    for (int64_t b = 0; b < t[n]->batch; b++)
      for (int64_t h = 0; h < t[n]->heads; h++)
        for (int64_t i = 0; i < t[n]->len; i++)
          for (int64_t x = 0; x < t[n]->dim; x++)
            oracle_set(t[n], b, h, i, x, (double)test_range(rng, -3, 3));
}

selected_call selected_codes(selected_call *c, attn_dtype type, int64_t group, int zero) {
  selected_call d = *c;
  attn_tensor *from[2] = {&c->base.k, &c->base.v}, *to[2] = {&d.base.k, &d.base.v};
  attn_scales *scales[2] = {&d.softmax.k_scales, &d.softmax.v_scales};
  for (int n = 0; n < 2; n++) {
    const attn_tensor *t = from[n];
    const int64_t rows = t->batch * t->heads * t->len, groups = group ? t->dim / group + 1 : 1;
    attn_ctx ctx = test_ctx();
    *to[n] = attn_bhtd(NULL, type, t->batch, t->heads, t->len, t->dim + t->dim % 2);
    to[n]->data = test_mem((size_t)(rows * (t->dim + 1))), to[n]->dim = t->dim;
    float *zeros = zero ? test_mem((size_t)(rows * groups) * 4) : NULL;
    *scales[n] = attn_scales_dense(test_mem((size_t)(rows * groups) * 4), zeros, group, to[n]);
    assert_int_equal(attn_quantize(*to[n], *scales[n], *t, &ctx), ATTN_OK);
    assert_int_equal(attn_dequantize(*t, *to[n], *scales[n], &ctx), ATTN_OK);
  }
  d.base.o = test_tensor(ATTN_F32, TEST_BHTD, c->base.o.batch, c->base.o.heads, c->base.o.len,
                         c->base.o.dim);
  d.softmax.lse =
      test_tensor(ATTN_F32, TEST_BHTD, c->base.o.batch, c->base.o.heads, c->base.o.len, 1);
  return d;
}

selected_call selected_part(const selected_call *c, int64_t i, int64_t n, int32_t *len) {
  selected_call part = *c;
  const attn_tensor *o = &c->base.o;
  *len = (int32_t)(i + n);
  part.base.q = test_rows(c->base.q, i, n);
  part.base.o = test_tensor(ATTN_F32, TEST_BHTD, 1, o->heads, n, o->dim);
  part.softmax.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, o->heads, n, 1);
  part.softmax.has_q_off = 1, part.softmax.q_off = i, part.softmax.kv_len = len;
  return part;
}

void selected_same_part(const selected_call *part, const selected_call *whole, int64_t i,
                        const int32_t *list, const int32_t *all, int64_t heads, int64_t k) {
  const int64_t n = part->base.o.len, t = whole->base.o.len;
  test_assert_same(part->base.o, test_rows(whole->base.o, i, n), "a part");
  if (whole->softmax.lse.data)
    test_assert_same(part->softmax.lse, test_rows(whole->softmax.lse, i, n), "LSE of a part");
  for (int64_t h = 0; h < heads; h++)
    assert_memory_equal(list + h * n * k, all + (h * t + i) * k, (size_t)(n * k) * 4);
}

int32_t *selected_lists(int64_t n) {
  int32_t *x = test_mem((size_t)n * 4 + 4);
  memset(x, 0x77, (size_t)n * 4 + 4);
  return x;
}

int64_t selected_position(const selected_call *c, int64_t i) {
  return i + (c->softmax.has_q_off ? c->softmax.q_off : c->base.k.len - c->base.q.len);
}

int64_t selected_keys(const selected_call *c, int64_t b) {
  return c->softmax.kv_len ? c->softmax.kv_len[b] : c->base.k.len;
}

void selected_judge(const int32_t *list, int64_t k, const int64_t *forced, int64_t n,
                    const double *score, const unsigned char *may, int64_t candidates, int64_t most,
                    double slack, const char *what) {
  int64_t some = 0, can = 0, held = 0;
  unsigned char *in = test_mem((size_t)candidates + 1);
  memset(in, 0, (size_t)candidates + 1);
  for (int64_t e = 0; e < k; e++) {
    if (list[e] < 0) continue;
    if (list[e] >= candidates || (e && list[e] <= list[e - 1]))
      fail_msg("%s: entry %d is %d", what, (int)e, list[e]);
    in[list[e]] = 1, some++;
    if (e && list[e - 1] < 0) fail_msg("%s: a hole", what);
  }
  for (int64_t e = 0; e < n; e++) {
    if (!in[forced[e]]) fail_msg("%s: %d is missing", what, (int)forced[e]);
    in[forced[e]] = 2, held++;
  }
  for (int64_t j = 0; j < candidates; j++) {
    if (may[j] && in[j] != 2) can++;
    if (in[j] == 1 && !may[j]) fail_msg("%s: %d may not be chosen", what, (int)j);
  }
  const int64_t want = held + (can < most - held ? can : most - held);
  if (some != want) fail_msg("%s: %d chosen, %d wanted", what, (int)some, (int)want);
  for (int64_t j = 0; j < candidates; j++)
    for (int64_t l = 0; in[j] == 1 && l < candidates; l++)
      if (may[l] && !in[l] &&
          (score[l] > score[j] + slack || (slack == 0 && score[l] == score[j] && l < j)))
        fail_msg("%s: %d (%g) instead of %d (%g)", what, (int)j, score[j], (int)l, score[l]);
}

void selected_attended(const selected_call *c, const int32_t *index, int64_t heads, int64_t k,
                       int64_t size, const char *what) {
  test_call d = c->base;
  const int64_t nb = d.q.batch, nh = d.q.heads, tq = d.q.len, tk = d.k.len;
  uint8_t *mask = test_mem((size_t)(nb * nh * tq * tk) + 1);
  memset(mask, 0, (size_t)(nb * nh * tq * tk));
  for (int64_t r = 0; r < nb * nh * tq; r++) {
    const int32_t *list =
        index + ((r / tq / nh * heads + r / tq % nh / (nh / heads)) * tq + r % tq) * k;
    for (int64_t e = 0; e < k; e++)
      for (int64_t j = list[e] * size; list[e] >= 0 && j < (list[e] + 1) * size && j < tk; j++)
        mask[r * tk + j] = 1;
  }
  if (nb * nh * tq * tk > 0) d.params.mask = attn_mask_bool(mask, nb, nh, tq, tk);
  test_compare(&d, what);
}
