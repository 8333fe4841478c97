/* tests/compose/test_multihead_rope.c owns M4 inside multi-head attention: queries and keys that are rotated
 * between projection and attention. */

#include "calls/qk_norm.h"
#include "multihead.h"

enum { B = 2, DK = 8, DV = 6 };

/* Bits of the calls it is made of: products, rotations, attention, product. */
static void by_hand(const multihead *s, const attn_rope_params *q_rope,
                    const attn_rope_params *k_rope, const char *what) {
  const attn_multihead_params *p = &s->p;
  const attn_tensor from = s->x_k.data ? s->x_k : s->x;
  const int64_t h = p->heads, kv = p->kv_heads, tq = s->x.len, tk = from.len;
  attn_tensor q = test_tensor(ATTN_F32, TEST_BTHD, B, h, tq, DK);
  attn_tensor k = test_tensor(ATTN_F32, TEST_BTHD, B, kv, tk, DK);
  attn_tensor v = test_tensor(ATTN_F32, TEST_BTHD, B, kv, tk, DV);
  attn_tensor o = test_tensor(ATTN_F32, TEST_BTHD, B, h, tq, DV);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, B, 1, tq, s->y.dim);
  attn_tensor *to[4] = {&q, &k, &v, &o};
  const attn_tensor w[4] = {p->w_q, p->w_k, p->w_v, p->w_o};
  const attn_tensor bias[4] = {p->b_q, p->b_k, p->b_v, p->b_o};
  attn_ctx ctx = test_ctx();
  for (int n = 0; n < 4; n++) {
    attn_gemm_params g;
    memset(&g, 0, sizeof g);
    g.bias = bias[n];
    if (n == 3) {
      assert_int_equal(attn_rope(q, q, q_rope, &ctx), ATTN_OK);
      assert_int_equal(attn_rope(k, k, k_rope, &ctx), ATTN_OK);
      attn_sdpa_params a = p->attention;
      memset(&a.lse, 0, sizeof a.lse), memset(&a.map, 0, sizeof a.map);
      if (q_rope->norm && q_rope->norm->kind == ATTN_QK_NORM_L2) a.scale = 1;
      assert_int_equal(attn_sdpa(o, q, k, v, &a, &ctx), ATTN_OK);
    }
    const attn_tensor side =
        attn_bhtd(to[n]->data, ATTN_F32, B, 1, to[n]->len, to[n]->heads * to[n]->dim);
    assert_int_equal(attn_gemm(n == 3 ? y : side,
                               n == 3 ? side
                               : n    ? from
                                      : s->x,
                               w[n], &g, &ctx),
                     ATTN_OK);
  }
  test_assert_same(s->y, y, what);
}

void M4_multihead_by_hand(void **state) {
  (void)state;
  for (int n = 0; n < 14; n++, test_mem_release()) {
    test_rng rng = test_seed(1820 + (uint64_t)n);
    multihead_shape x = multihead_plain(n % 3 ? 19 : 70, 4, DK, DV);
    x.batch = B, x.kv_heads = n % 2 ? 2 : 4, x.want = WANT_Y, x.dmv = 0;
    x.keys = n % 3 == 1 ? 83 : n % 3 == 2 ? 0 : 130;
    multihead *s = multihead_build(&x, &rng);
    const int64_t tq = x.queries, tk = x.keys ? x.keys : tq;
    attn_sdpa_params *a = &s->p.attention;
    attn_rope_params rope, q_rope, k_rope;
    memset(&rope, 0, sizeof rope);
    rope.layout = n & 1 ? ATTN_ROPE_HALF : ATTN_ROPE_INTERLEAVED, rope.start = n * 11 - 30;
    if (n % 4 == 1) rope.type = ATTN_ROPE_LINEAR, rope.factor = 4;
    if (n % 4 == 2) rope.xpos = 512;
    if (n % 4 == 3) rope.rotary_dim = 4;
    a->causal = n % 5 == 4 ? ATTN_CAUSAL_START : ATTN_CAUSAL_END;
    int64_t first = tk - tq;
    if (a->causal == ATTN_CAUSAL_START) first = 0;
    if (n == 6) first = -7;
    if (n == 9) first = tk > tq + 2 ? 2 : 0;
    if (n == 6 || n == 9) a->has_q_off = 1, a->q_off = first;
    q_rope = k_rope = rope, q_rope.start += first, k_rope.keys = 1;
    if (n > 9) { /* positions of every key, of which the queries take theirs */
      const int each = n & 1, axes = n > 11 ? 3 : 1, sets = each ? B : 1;
      if (axes == 3)
        for (int i = 0; i < 3; i++)
          rope.mrope_section[i] = rope.rotary_dim == 4 ? i < 2 : i < 2 ? 1 : 2;
      int64_t *all = test_mem((size_t)(axes * sets * tk) * sizeof *all);
      int64_t *some = test_mem((size_t)(axes * sets * tq) * sizeof *some);
      for (int64_t i = 0; i < axes * sets * tk; i++) all[i] = test_range(&rng, -50, 200);
      for (int64_t i = 0; i < axes * sets * tq; i++) some[i] = all[i / tq * tk + first + i % tq];
      rope.positions = all, rope.positions_per_batch = each;
      q_rope = k_rope = rope, q_rope.positions = some, k_rope.keys = 1;
    }
    s->p.rope = &rope;
    promise_run(&s->does);
    by_hand(s, &q_rope, &k_rope, "rotated");
    promise_keep(&s->does);
  }
}

/* Norms of queries and of keys, with a rotation or without. */
void M2_qk_norm_multihead(void **state) {
  (void)state;
  for (int n = 0; n < 16; n++, test_mem_release()) {
    test_rng rng = test_seed(2640 + (uint64_t)n);
    multihead_shape x = multihead_plain(n % 3 ? 19 : 70, 4, DK, DV);
    x.batch = B, x.kv_heads = n % 2 ? 2 : 4, x.want = WANT_Y, x.dmv = 0;
    x.keys = n % 3 == 1 ? 83 : 0;
    multihead *s = multihead_build(&x, &rng);
    attn_qk_norm norm = qk_norm_described(&rng, n / 2 % 4, 4, x.kv_heads, DK);
    attn_rope_params rope, q_rope, k_rope;
    memset(&rope, 0, sizeof rope);
    rope.norm = &norm, rope.has_rotary_dim = n / 8, norm.after = n % 3 == 2;
    q_rope = k_rope = rope, k_rope.keys = 1;
    s->p.attention.causal = ATTN_CAUSAL_END;
    q_rope.start = (x.keys ? x.keys : x.queries) - x.queries;
    s->p.rope = &rope;
    promise_run(&s->does);
    by_hand(s, &q_rope, &k_rope, "normed");
    promise_keep(&s->does);
  }
}

/* Only differences of positions matter. */
void M4_multihead_shift(void **state) {
  (void)state;
  test_rng rng = test_seed(1840);
  multihead_shape x = multihead_plain(40, 4, DK, DV);
  x.batch = B, x.want = WANT_Y | WANT_LSE | WANT_MAP;
  multihead *s = multihead_build(&x, &rng);
  attn_tensor lse = s->p.attention.lse, map = s->p.attention.map;
  attn_rope_params rope;
  memset(&rope, 0, sizeof rope);
  s->p.attention.causal = ATTN_CAUSAL_END, s->p.rope = &rope;
  for (int n = 0; n < 2; n++) {
    rope.start = 0, rope.xpos = n ? 512 : 0;
    promise_run(&s->does);
    const attn_tensor y = s->y;
    s->y = test_tensor(ATTN_F32, TEST_BHTD, B, 1, 40, y.dim);
    s->p.attention.lse = test_tensor(ATTN_F32, TEST_BHTD, B, 4, 40, 1);
    s->p.attention.map = test_tensor(ATTN_F32, TEST_BHTD, B, 4, 40, 40);
    rope.start = 3001;
    promise_run(&s->does);
    test_assert_near(y, s->y, 3e-5, "y");
    test_assert_near(lse, s->p.attention.lse, 3e-5, "lse");
    test_assert_near(map, s->p.attention.map, 3e-5, "map");
    s->y = y, s->p.attention.lse = lse, s->p.attention.map = map;
  }
}

/* The next place where a whole number may lie. */
static const int64_t *whole(const void *p) { return (const int64_t *)(((uintptr_t)p + 7) / 8 * 8); }

void M4_multihead_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(1841);
  for (int n = 0; n < 15; n++, test_mem_release()) {
    static const int64_t indptr[2] = {0, 9}, offs[1] = {0};
    multihead_shape x = multihead_plain(9, 4, n == 3 ? 5 : 6, 6);
    x.keys = n == 5 ? 0 : 12, x.biases |= n == 0 ? BIAS_KV : 0, x.want = WANT_Y | WANT_EACH;
    multihead *s = multihead_build(&x, &rng);
    attn_multihead_params *p = &s->p;
    attn_rope_params rope;
    int64_t at[36] = {0};
    double real[12] = {0};
    attn_status want = ATTN_E_RANGE;
    const char *word = "rope";
    memset(&rope, 0, sizeof rope);
    if (n != 3) promise_run(&s->does);
    p->rope = &rope;
    switch (n) {
      case 0: break; /* bias_k */
      case 1: p->attention.q_offs = offs; break;
      case 2: p->attention.align_lengths = 1; break;
      case 3: word = "rotary_dim"; break; /* odd dk */
      case 4: rope.rotary_dim = 8, word = "rotary_dim"; break;
      case 5:
        p->attention.ragged.sequences = 1, p->attention.ragged.q_indptr = indptr;
        p->attention.ragged.kv_indptr = indptr;
        break;
      case 6: rope.positions = at, p->attention.has_q_off = 1, p->attention.q_off = -1; goto places;
      case 7:
        rope.positions = at, p->attention.has_q_off = 1, p->attention.q_off = 4;
      places:
        word = "positions";
        break;
      case 8: rope.type = ATTN_ROPE_YARN, want = ATTN_E_VALUE, word = "original"; break;
      case 9: rope.xpos = 512, rope.start = 32760, word = "xpos"; break;
      case 10:
        rope.real_positions = real, real[11] = (double)NAN, want = ATTN_E_VALUE, word = "real";
        break;
      case 11: rope.positions = whole(s->y.data), want = ATTN_E_OVERLAP; break;
      case 12: rope.positions = whole(p->each.data), want = ATTN_E_OVERLAP; break;
      case 13: rope.start = INT64_MAX / 4, word = "start"; break;
      default: rope.layout = (attn_rope_layout)7, word = "layout"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
