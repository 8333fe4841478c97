/* tests/calls/test_interleave.c owns views that lie in other columns of the same rows: they share no memory, and outputs
 * may be such; whatever does share some is found. */

#include "compound.h"

enum { ROOM = 600 };

/* How often each element of the room is one of a view; 0 = it reaches beyond. */
static int mark(int *seen, const attn_tensor *t, const float *room) {
  for (int64_t b = 0; b < t->batch; b++)
    for (int64_t h = 0; h < t->heads; h++)
      for (int64_t i = 0; i < t->len; i++)
        for (int64_t c = 0; c < t->dim; c++) {
          const int64_t at = (const float *)t->data - room + b * t->stride_batch +
                             h * t->stride_head + i * t->stride_len + c;
          if (at < 0 || at >= ROOM) return 0;
          seen[at]++;
        }
  return 1;
}

/* A view whose strides are often those of rows of `wide` numbers. */
static attn_tensor view(float *room, const int64_t extent[4], int64_t wide, test_rng *rng) {
  attn_tensor t = attn_bhtd(room + test_range(rng, 0, ROOM - 1), ATTN_F32, extent[0], extent[1],
                            extent[2], extent[3]);
  const int sign = test_range(rng, 0, 5) ? 1 : -1;
  t.stride_len = sign * (test_range(rng, 0, 5) ? wide : test_range(rng, 1, 2 * wide));
  t.stride_head = test_range(rng, 0, 2) ? test_range(rng, t.dim, t.dim + 3) : t.len * wide;
  t.stride_batch = test_range(rng, 0, 5) ? t.len * wide * (test_range(rng, 0, 2) ? 1 : t.heads)
                                         : test_range(rng, 1, ROOM / 3);
  if (!test_range(rng, 0, 5)) t.stride_head = -t.stride_head;
  if (!test_range(rng, 0, 5)) t.stride_batch = -t.stride_batch;
  return t;
}

void A1_interleaved_views(void **state) {
  (void)state;
  test_rng rng = test_seed(1);
  float *room = test_mem(ROOM * sizeof *room), *was = test_mem(ROOM * sizeof *was);
  int64_t apart = 0, shared = 0, woven = 0;
  for (int64_t n = test_count(60000, 20000); n > 0; n--) {
    const int64_t extent[4] = {test_range(&rng, 1, 2), test_range(&rng, 1, 3),
                               test_range(&rng, 1, 4), test_range(&rng, 1, 6)};
    const int64_t wide = test_range(&rng, 4, 40);
    attn_tensor y = view(room, extent, wide, &rng), x = view(room, extent, wide, &rng);
    int in_y[ROOM] = {0}, in_x[ROOM] = {0}, met = 0, twice = 0;
    if (!mark(in_y, &y, room) || !mark(in_x, &x, room)) continue;
    for (int i = 0; i < ROOM; i++) met |= in_y[i] && in_x[i], twice |= in_y[i] > 1;
    for (int i = 0; i < ROOM; i++) was[i] = room[i] = (float)i;
    attn_ctx ctx = test_ctx();
    const attn_status status = attn_activate(y, x, NULL, &ctx);
    if (twice) {
      assert_int_equal(status, ATTN_E_STRIDE);
      continue;
    }
    const int same = met && y.data == x.data &&
                     (extent[0] == 1 || y.stride_batch == x.stride_batch) &&
                     (extent[1] == 1 || y.stride_head == x.stride_head) &&
                     (extent[2] == 1 || y.stride_len == x.stride_len);
    if (status != ATTN_OK) {
      assert_true(status == ATTN_E_OVERLAP || status == ATTN_E_STRIDE);
      assert_memory_equal(room, was, ROOM * sizeof *room);
      shared += met;
      continue;
    }
    if (met && !same) fail_msg("views that share memory were taken for apart, %d left", (int)n);
    for (int64_t b = 0; b < y.batch; b++)
      for (int64_t h = 0; h < y.heads; h++)
        for (int64_t i = 0; i < y.len; i++)
          for (int64_t c = 0; c < y.dim; c++)
            assert_true(
                ((float *)y.data)[b * y.stride_batch + h * y.stride_head + i * y.stride_len + c] ==
                (float)((const float *)x.data - room + b * x.stride_batch + h * x.stride_head +
                        i * x.stride_len + c));
    apart += !met;
    int first[2] = {ROOM, ROOM}, last[2] = {0, 0}; /* one lies between parts of the other */
    for (int i = 0; i < ROOM; i++)
      for (int side = 0; side < 2; side++)
        if ((side ? in_x : in_y)[i])
          first[side] = first[side] < i ? first[side] : i, last[side] = i;
    woven += !met && first[0] < last[1] && first[1] < last[0];
  }
  assert_true(apart > 300 && shared > 300 && woven > 300);
}

/* What is one buffer of rows: q, k, v and o, or their gradients, side by side. */
static attn_tensor column(attn_tensor wide, int64_t first, int64_t heads, int64_t dim) {
  attn_tensor t = attn_bthd((float *)wide.data + first, ATTN_F32, wide.batch, wide.len, heads, dim);
  t.stride_len = wide.dim, t.stride_batch = wide.len * wide.dim;
  return t;
}

void A1_interleaved_attention(void **state) {
  (void)state;
  test_rng rng = test_seed(2);
  for (int64_t n = test_count(20, 5); n > 0; n--) {
    const int64_t B = test_range(&rng, 1, 3), T = test_range(&rng, 1, 40),
                  Hk = test_range(&rng, 1, 2);
    const int64_t H = Hk * test_range(&rng, 1, 3), d = 2 * test_range(&rng, 1, 20),
                  pad = test_range(&rng, 0, 3);
    const int64_t width = 2 * H * d + 2 * Hk * d + pad;
    attn_tensor wide = drawn(ATTN_F32, TEST_BHTD, B, 1, T, width, 1, &rng);
    attn_tensor back = output(ATTN_F32, TEST_BHTD, B, 1, T, width, &(test_block){0});
    const attn_tensor q = column(wide, 0, H, d), k = column(wide, H * d, Hk, d),
                      v = column(wide, (H + Hk) * d, Hk, d),
                      o = column(wide, (H + 2 * Hk) * d, H, d);
    const attn_tensor d_q = column(back, 0, H, d), d_k = column(back, H * d, Hk, d),
                      d_v = column(back, (H + Hk) * d, Hk, d),
                      d_o = column(back, (H + 2 * Hk) * d, H, d);
    attn_tensor o2 = test_tensor(ATTN_F32, TEST_BHTD, B, H, T, d), d_q2 = o2, d_k2, d_v2;
    attn_tensor lse = test_tensor(ATTN_F32, TEST_BHTD, B, H, T, 1);
    d_q2 = test_tensor(ATTN_F32, TEST_BHTD, B, H, T, d);
    d_k2 = test_tensor(ATTN_F32, TEST_BHTD, B, Hk, T, d);
    d_v2 = test_tensor(ATTN_F32, TEST_BHTD, B, Hk, T, d);
    test_fill(d_o, &rng, test_normal);
    attn_ctx ctx = test_ctx();
    attn_sdpa_params p = {.causal = (int)test_range(&rng, 0, 1), .lse = lse};
    assert_int_equal(attn_sdpa(o2, q, k, v, &p, &ctx), ATTN_OK);
    assert_int_equal(attn_sdpa(o, q, k, v, &p, &ctx), ATTN_OK);
    test_assert_same(o, o2, "o between q, k and v");
    p.lse = absent();
    assert_int_equal(attn_sdpa_backward(d_q2, d_k2, d_v2, d_o, q, k, v, o, lse, &p, NULL, &ctx),
                     ATTN_OK);
    assert_int_equal(attn_sdpa_backward(d_q, d_k, d_v, d_o, q, k, v, o, lse, &p, NULL, &ctx),
                     ATTN_OK);
    test_assert_same(d_q, d_q2, "d_q");
    test_assert_same(d_k, d_k2, "d_k");
    test_assert_same(d_v, d_v2, "d_v");
    if (T < 2) continue; /* one column too far is shared */
    attn_tensor far = d_k;
    far.data = (float *)d_k.data - 1;
    assert_int_equal(attn_sdpa_backward(d_q, far, d_v, d_o, q, k, v, o, lse, &p, NULL, &ctx),
                     ATTN_E_OVERLAP);
    far.data = (float *)d_k.data + 1;
    assert_int_equal(attn_sdpa_backward(d_q, far, d_v, d_o, q, k, v, o, lse, &p, NULL, &ctx),
                     ATTN_E_OVERLAP);
  }
}
