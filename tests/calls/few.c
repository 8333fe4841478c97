/* tests/calls/few.c owns the random calls of tests/calls/few.h. */

#include <stdio.h>
#include <string.h>

#include "few.h"

int64_t few_keys(test_rng *rng, int64_t most) {
  static const int64_t marks[] = {1, 16, 64, 128, 256, 1024, 2048, 3072, 4096};
  if (most < 1) most = 1;
  int64_t n = test_range(rng, 1, most < 700 ? most : 700);
  if (test_u64(rng) % 3) n = marks[test_u64(rng) % 9] + test_range(rng, -1, 1);
  if (test_u64(rng) % 16 == 0) n = test_range(rng, 1, 5000);
  return n < 1 ? 1 : n > most ? most : n;
}

static int64_t divisor(int64_t n, test_rng *rng) {
  int64_t d = test_range(rng, 1, n);
  return n % d ? divisor(n, rng) : d;
}

static int64_t few_width(test_rng *rng) {
  static const int64_t widths[] = {1, 7, 16, 17, 32, 40, 64, 80, 128, 192};
  return test_u64(rng) & 1 ? test_range(rng, 1, 70) : widths[test_u64(rng) % 10];
}

static void add_bounds(test_call *c, test_rng *rng) {
  attn_sdpa_params *p = &c->params;
  int64_t tk = c->k.len, far = tk < 300 ? tk : test_u64(rng) % 3 ? 300 : tk;
  p->causal = test_u64(rng) & 1;
  if (test_u64(rng) % 3 == 0) {
    p->has_q_off = 1;
    p->q_off = test_range(rng, -20, tk + 20);
  }
  if (test_u64(rng) % 3 == 0) test_left(p, test_range(rng, -1, far));
  if (test_u64(rng) % 3 == 0) test_right(p, test_range(rng, -1, far));
  if (test_u64(rng) % 3 == 0) p->keep = test_range(rng, 0, test_u64(rng) % 2 ? 8 : tk + 2);
  if (test_u64(rng) % 3 == 0) p->kv_len = test_lengths(c->q.batch, tk, rng);
  if (test_u64(rng) % 5 == 0) p->q_len = test_lengths(c->q.batch, c->q.len, rng);
}

static void add_masks(test_call *c, test_rng *rng) {
  int64_t b = c->q.batch, h = c->q.heads, tq = c->q.len, tk = c->k.len;
  attn_mask_kind kind = test_u64(rng) & 1 ? ATTN_MASK_BITS : ATTN_MASK_BOOL;
  if (test_u64(rng) % 3) c->params.mask = test_mask(kind, ATTN_F32, b, h, tq, tk, rng);
  if (test_u64(rng) % 3) {
    c->params.bias = test_mask(ATTN_MASK_ADD, (attn_dtype)(test_u64(rng) % 3), b, h, tq, tk, rng);
  }
}

static void add_scores(test_call *c, test_rng *rng) {
  static const float scales[] = {0, 0.5f, -0.25f, ATTN_ZERO, 1};
  if (test_u64(rng) & 1) c->params.alibi = test_floats(c->q.heads, 0.1, rng);
  if (test_u64(rng) & 1) c->params.softcap = (float)test_range(rng, 1, 40) / 4;
  if (test_u64(rng) & 1) c->params.softcap_at = ATTN_SOFTCAP_BIASED;
  c->params.scale = scales[test_u64(rng) % 5];
}

kept_call few_call(int features, int64_t work, test_rng *rng) {
  static const int64_t heads[] = {1, 1, 2, 3, 4, 5, 6, 8, 16};
  static const attn_dtype types[] = {ATTN_I8, ATTN_I4, ATTN_E4M3};
  test_spec z = test_plain(heads[test_u64(rng) % 9], 1, 1, few_width(rng), few_width(rng));
  z.k_heads = test_u64(rng) & 1 ? 1 : divisor(z.heads, rng);
  z.v_heads = test_u64(rng) % 3 ? z.k_heads : divisor(z.heads, rng);
  z.batch = test_u64(rng) % 3 ? 1 : 2;
  z.q_len = test_u64(rng) & 1 ? 1 : test_range(rng, 1, 16);
  int64_t row = z.batch * z.heads * (z.dk + z.dv);
  while (z.q_len > 1 && z.q_len * row > work / 8) z.q_len--;
  z.k_len = few_keys(rng, work / (row * z.q_len));
  z.lse = test_u64(rng) % 4 != 0;
  kept_spec k = {ATTN_F32, TEST_BHTD, z.batch, z.k_heads, z.k_len, z.dk, 0, 0, 0, SCALE_DENSE};
  kept_spec v = {ATTN_F32, TEST_BHTD, z.batch, z.v_heads, z.k_len, z.dv, 0, 0, 0, SCALE_DENSE};
  if (features & FEW_TYPES) {
    z.q_type = (attn_dtype)(test_u64(rng) % 3), z.o_type = (attn_dtype)(test_u64(rng) % 3);
    k.dtype = (attn_dtype)(test_u64(rng) % 3), v.dtype = (attn_dtype)(test_u64(rng) % 3);
  }
  if (features & FEW_QUANTISED) {
    uint64_t which = test_u64(rng) % 4;
    attn_dtype both = types[test_u64(rng) % 3];
    if (which != 1) k = kept_some(both, k.batch, k.heads, k.len, k.dim, rng);
    if (which != 2) v = kept_some(both, v.batch, v.heads, v.len, v.dim, rng);
    if (which == 3) v = kept_some(types[test_u64(rng) % 3], v.batch, v.heads, v.len, v.dim, rng);
    if (!(features & FEW_LAYOUTS)) k.layout = v.layout = TEST_BHTD;
  } else if (features & FEW_LAYOUTS) {
    k.layout = (test_layout)(test_u64(rng) % TEST_LAYOUTS);
    v.layout = (test_layout)(test_u64(rng) % TEST_LAYOUTS);
  }
  if (features & FEW_LAYOUTS) {
    z.q_layout = (test_layout)(test_u64(rng) % TEST_ONE_ROW);
    z.o_layout = (test_layout)(test_u64(rng) % TEST_SHARED);
  }
  /* a sum of equal values rounds the same way each time */
  if (v.layout == TEST_ONE_ROW && z.k_len > 300) v.layout = TEST_BTHD;
  kept_call c;
  int64_t keys = z.k_len;
  z.k_len = 0;
  c.call = test_build(&z, rng);
  z.k_len = keys;
  const kept values = kept_rows(&v, rng), rows = kept_rows(&k, rng); /* drawn in this order */
  kept_put(&c, rows, values);
  if (features & FEW_BOUNDS) add_bounds(&c.call, rng);
  if (features & FEW_MASKS) add_masks(&c.call, rng);
  if (features & FEW_SCORES) add_scores(&c.call, rng);
  if (features & FEW_SINKS) {
    if (test_u64(rng) & 1) c.call.params.sinks = test_floats(z.heads, 1, rng);
    c.call.params.softmax_one = test_u64(rng) & 1;
  }
  if (features & FEW_TERMS) {
    int terms = TERM_FACTOR | TERM_TOEPLITZ | TERM_T5 | TERM_PARABOLA | TERM_GAUSSIAN | TERM_MODIFY;
    test_add_terms(&c.call, (int)test_u64(rng) & (int)test_u64(rng) & terms, rng);
  }
  return c;
}

void few_check(int features, uint64_t seed, int64_t count, int64_t work, const char *what) {
  for (int64_t n = 0; n < count; n++) {
    char text[96];
    test_rng rng = test_seed(seed * 1000 + (uint64_t)n);
    kept_call c = few_call(features, work, &rng);
    const attn_tensor *q = &c.call.q, *k = &c.call.k;
    snprintf(text, sizeof text, "%s, case %d: %d x %d heads of %d, %d queries, %d keys", what,
             (int)n, (int)q->heads, (int)k->heads, (int)q->dim, (int)q->len, (int)k->len);
    kept_check(&c, text);
    test_mem_release();
  }
}
