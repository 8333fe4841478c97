/* tests/families/memory/test_segment_cache.c owns the other way to remember a segment (J1): projected keys and values
 * in a cache, in place of hidden states that are projected again. */

#include "segment.h"

enum { SEGMENT = 24, SEGMENTS = 5, DM = 16, HEADS = 4, KV = 2, DK = 8, DV = 6 };

/* A cache for two sequences, in pages of 16 rows. */
static attn_cache cache_of(int64_t window, int64_t pages_each, attn_sequence seq[2]) {
  attn_cache_params p;
  attn_cache cache;
  attn_ctx ctx = test_ctx();
  memset(&p, 0, sizeof p);
  p.k_heads = KV, p.dk = DK, p.dv = DV;
  p.pages = 2 * pages_each, p.page = 16, p.window = window;
  size_t size = attn_cache_size(&p);
  assert_true(size > 0);
  assert_int_equal(attn_cache_open(&cache, test_mem(size), size, &p, &ctx), ATTN_OK);
  for (int n = 0; n < 2; n++) {
    memset(&seq[n], 0, sizeof seq[n]);
    seq[n].table = test_mem((size_t)pages_each * sizeof(int32_t)), seq[n].table_len = pages_each;
  }
  return cache;
}

static void compare(attn_sublayer sublayer, int64_t window, int same) {
  test_rng rng = test_seed(580 + (uint64_t)window);
  segment_shape x = {2, SEGMENT * SEGMENTS, 0, 0, DM, HEADS, KV, DK, DV, sublayer, DM, window, 0,
                     3, ATTN_F32,           0, 0};
  segment_scene *s = segment_build(&x, &rng);
  s->p.attention.lse = s->p.attention.usage = absent(), s->does.out[1] = s->does.out[2] = NULL;
  int64_t room = window ? window - 1 : SEGMENT * SEGMENTS, pages = window ? 5 : 8;
  attn_memory m = ring_drawn(ATTN_F32, TEST_BHTD, 2, room, 0, DM, &rng);
  attn_sequence seq[2];
  attn_cache cache = cache_of(window, pages, seq);
  attn_tensor all = s->h;
  for (int64_t at = 0; at < all.len; at += SEGMENT) {
    attn_ctx ctx = test_ctx();
    s->h = test_rows(all, at, SEGMENT), s->p.memory = m;
    s->o = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, SEGMENT, DM);
    promise_run(&s->does);
    assert_int_equal(attn_memory_append(&m, s->h, &ctx), ATTN_OK);

    attn_tensor q = test_tensor(ATTN_F32, TEST_BTHD, 2, HEADS, SEGMENT, DK);
    attn_tensor k = test_tensor(ATTN_F32, TEST_BTHD, 2, KV, SEGMENT, DK);
    attn_tensor v = test_tensor(ATTN_F32, TEST_BTHD, 2, KV, SEGMENT, DV);
    attn_tensor heads = test_tensor(ATTN_F32, TEST_BTHD, 2, HEADS, SEGMENT, DV);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, SEGMENT, DM);
    attn_sdpa_params p;
    memset(&p, 0, sizeof p);
    p.causal = 1;
    assert_int_equal(attn_segment_project(q, k, v, s->h, &s->p, &ctx), ATTN_OK);
    assert_int_equal(attn_cache_append(&cache, seq, 2, k, v, NULL, &ctx), ATTN_OK);
    attn_status status = attn_cache_sdpa(heads, q, &cache, seq, 2, &p, &ctx);
    if (status != ATTN_OK) fail_msg("%s", ctx.reason);
    assert_int_equal(attn_segment_output(o, heads, s->h, &s->p, &ctx), ATTN_OK);
    if (same)
      test_assert_same(o, s->o, "a cache of all");
    else
      test_assert_near(o, s->o, 2e-5, "a ring");
  }
}

void J1_cache_ring(void **state) {
  (void)state;
  for (int n = 0; n < 3; n++) compare((attn_sublayer)n, n ? 40 : 17, 0);
}

void J1_cache_of_all(void **state) {
  (void)state;
  for (int n = 0; n < 3; n++) compare((attn_sublayer)n, 0, 1);
}
