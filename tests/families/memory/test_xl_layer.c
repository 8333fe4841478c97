/* tests/families/memory/test_xl_layer.c owns what Transformer-XL and XLNet ask of attn_segment_layer: encodings of
 * distances, biases, both directions, outputs for each head. */

#include "segment.h"

static segment_shape xl_shape(void) {
  segment_shape x;
  memset(&x, 0, sizeof x);
  x.batch = 1, x.tokens = 50, x.dm = 16, x.heads = x.kv_heads = 2, x.dk = x.dv = 8;
  x.sublayer = ATTN_SUBLAYER_PLAIN, x.relative = 1;
  return x;
}

static attn_tensor reversed(attn_tensor t) {
  t.data = (float *)t.data + (t.len - 1) * t.stride_len, t.stride_len = -t.stride_len;
  return t;
}

void B4_layer_random(void **state) {
  (void)state;
  test_rng rng = test_seed(400);
  for (int64_t n = test_count(24, 6); n-- > 0;) {
    segment_shape x = xl_shape();
    x.batch = test_range(&rng, 1, 2), x.tokens = test_range(&rng, 1, n % 4 ? 20 : 90);
    x.memory = n % 3 ? test_range(&rng, 1, 40) : 0;
    x.dm = n == 3 ? 139 : test_range(&rng, 1, 20), x.heads = x.kv_heads = test_range(&rng, 1, 3);
    x.dk = test_range(&rng, 1, 10), x.dv = test_range(&rng, 1, 10);
    x.out = n & 1 ? test_range(&rng, 1, 20) : 0;
    x.type = (attn_dtype)(n % 6 == 0 ? 1 + n / 6 % 2 : 0);
    x.bare = (int)(n % 4), x.bidirectional = n % 3 == 1;
    segment_scene *s = segment_build(&x, &rng);
    s->p.interleaved = n % 4 == 2, s->p.base = n % 5 == 3 ? 100 : 0;
    if (n % 6 == 5) s->p.attention.scale = 0.4f;
    promise_run(&s->does);
    segment_check(s, 3e-5, "xl layer");
  }
}

/* With the preceding inputs as memory, the last rows are those of one call on everything; both ways the
 * memory's rows are keys alone. */
void B4_layer_memory(void **state) {
  (void)state;
  test_rng rng = test_seed(401);
  for (int both = 0; both < 2; both++) {
    segment_shape x = xl_shape();
    x.bidirectional = both;
    segment_scene *s = segment_build(&x, &rng);
    s->p.attention.usage = absent(), s->does.out[2] = NULL;
    promise_run(&s->does);
    attn_tensor whole = s->o, lse = s->p.attention.lse, all = s->h;
    s->p.memory.rows = test_rows(all, 0, 31), s->p.memory.len = 31, s->p.memory.first = 0;
    s->h = test_rows(all, 31, 19);
    s->o = output(ATTN_F32, TEST_BHTD, 1, 2, 19, 8, NULL);
    s->p.attention.lse = output(ATTN_F32, TEST_BHTD, 1, 2, 19, 1, NULL);
    promise_run(&s->does);
    test_assert_near(s->o, test_rows(whole, 31, 19), 1e-5, "memory");
    test_assert_near(s->p.attention.lse, test_rows(lse, 31, 19), 1e-5, "memory");
  }
}

/* A sequence read backwards, with the table of distances turned round, has its outputs backwards. */
void B4_layer_mirror(void **state) {
  (void)state;
  test_rng rng = test_seed(402);
  segment_shape x = xl_shape();
  x.relative = 2, x.bidirectional = 1;
  segment_scene *s = segment_build(&x, &rng);
  s->p.memory.len = 0;
  s->p.attention.usage = s->p.attention.lse = absent(), s->does.out[1] = s->does.out[2] = NULL;
  promise_run(&s->does);
  attn_tensor first = s->o;
  s->h = reversed(s->h), s->p.attention.r = reversed(s->p.attention.r);
  s->o = output(ATTN_F32, TEST_BHTD, 1, 2, 50, 8, NULL);
  promise_run(&s->does);
  test_assert_near(reversed(s->o), first, 1e-5, "mirror");
}

void B4_layer_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(403);
  for (int n = 0; n < 2; n++) {
    segment_shape x = xl_shape();
    x.batch = n, x.tokens = n ? 0 : 4, x.memory = 3, x.bidirectional = 1;
    promise_run(&segment_build(&x, &rng)->does);
  }
}

void B4_layer_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(404);
  segment_shape x = xl_shape();
  x.batch = 2, x.tokens = 70, x.memory = 30, x.dm = 25, x.heads = x.kv_heads = 3;
  x.out = 24, x.type = ATTN_F16, x.bidirectional = 1;
  promise_keep(&segment_build(&x, &rng)->does);
}
