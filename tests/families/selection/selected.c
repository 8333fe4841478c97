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
