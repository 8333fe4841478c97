/* tests/families/compression/subset.c owns the shapes and numbers of tests/families/compression/subset.h. */

#include "subset.h"

subset_shape subset_plain(int64_t heads, int64_t q_len, int64_t k_len, int64_t dk, int64_t dv) {
  subset_shape x = {1, heads, heads, heads, q_len, k_len, dk, dv, ATTN_F32, TEST_BHTD};
  return x;
}

subset_shape subset_any(int64_t q_most, int64_t k_most, test_rng *rng) {
  static const attn_dtype type[] = {ATTN_F32, ATTN_F32, ATTN_F16, ATTN_BF16};
  subset_shape x;
  x.batch = test_range(rng, 1, 2), x.k_heads = test_range(rng, 1, 2);
  x.heads = x.k_heads * test_range(rng, 1, 3);
  const int64_t of[] = {1, x.heads % 2 ? x.heads : 2, x.heads};
  x.v_heads = of[test_range(rng, 0, 2)];
  x.q_len = test_range(rng, 1, q_most), x.k_len = test_range(rng, 1, k_most);
  x.dk = test_range(rng, 1, 19), x.dv = test_range(rng, 1, 19);
  x.type = type[test_range(rng, 0, 3)];
  x.layout = (test_layout)test_range(rng, 0, 3);
  return x;
}

subset_tensors subset_draw(const subset_shape *x, test_block *block, test_rng *rng) {
  subset_tensors t;
  t.q = drawn(x->type, x->layout, x->batch, x->heads, x->q_len, x->dk, 1, rng);
  t.k = drawn(x->type, TEST_PADDED, x->batch, x->k_heads, x->k_len, x->dk, 1, rng);
  t.v = drawn(x->type, x->layout, x->batch, x->v_heads, x->k_len, x->dv, 1, rng);
  t.o = output(x->type, TEST_PADDED, x->batch, x->heads, x->q_len, x->dv, block);
  return t;
}

int64_t subset_length(const int32_t *len, int64_t b, int64_t all) { return len ? len[b] : all; }

static uint64_t mixed(uint64_t z) {
  z ^= z >> 30, z *= 0xBF58476D1CE4E5B9u;
  z ^= z >> 27, z *= 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

uint64_t subset_number(uint64_t seed, uint64_t stream, uint64_t n) {
  const uint64_t gold = 0x9E3779B97F4A7C15u;
  return mixed(mixed(seed + gold * (stream + 1)) + gold * (n + 1));
}

/* digit by digit in base 2^16 */
int64_t subset_below(uint64_t u, int64_t n) {
  uint64_t rest = 0;
  for (int d = 0; d < 4; d++) rest = (rest + (u >> (16 * d) & 65535u) * (uint64_t)n) >> 16;
  return (int64_t)rest;
}
