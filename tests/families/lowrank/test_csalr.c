/* tests/families/lowrank/test_csalr.c owns CSALR: against float64, sums of rows, the case that cannot be solved,
 * promises and rejections. What it shares with the Nystromformer is tested there. */

#include "landmarks.h"

void G3_random(void **state) {
  (void)state;
  static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
  static const float lambdas[] = {0, 0.25f, 3, 1};
  test_rng rng = test_seed(7300);
  for (int64_t n = test_count(40, 12); n-- > 0; test_mem_release()) {
    const int64_t most = n % 8 == 7 ? 90 : 30;
    landmarks_shape x = landmarks_plain(test_range(&rng, 1, most), test_range(&rng, 1, most),
                                        test_range(&rng, 1, 9), test_range(&rng, 1, 9));
    x.batch = test_range(&rng, 1, 3), x.heads = 2 * test_range(&rng, 1, 2);
    x.k_heads = n % 2 ? x.heads : 2, x.v_heads = n % 4 < 2 ? x.heads : 1;
    x.q_type = types[n % 4 % 3], x.k_type = types[n / 2 % 4 % 3];
    x.v_type = types[n / 3 % 4 % 3], x.o_type = types[n / 5 % 4 % 3];
    x.layout = (test_layout)(n / 3 % TEST_LAYOUTS), x.size = n % 5 ? 1 : 2.5;
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    landmarks *s = landmarks_build(&x, 1, &rng);
    test_where = TEST_HEAP;
    const int32_t *keys = test_lengths(x.batch, x.keys, &rng);
    const int32_t *queries = test_lengths(x.batch, x.queries, &rng);
    landmarks_set(s, n % 9 == 8 ? 0 : test_range(&rng, 1, n % 8 == 7 ? 70 : 12),
                  n % 6 == 5 ? 0.4f : 0, n % 4 > 1 ? keys : NULL, n % 5 > 2 ? queries : NULL);
    s->c.lambda = lambdas[n / 2 % 4], s->c.renormalize = n % 7 < 3;
    landmarks_run(s, "csalr");
  }
}

/* Values of 1 give 1 / (1 + lambda), or 1. */
void G3_row_sums(void **state) {
  (void)state;
  test_rng rng = test_seed(7301);
  landmarks_shape x = landmarks_plain(50, 40, 5, 2);
  landmarks *s = landmarks_build(&x, 1, &rng);
  attn_tensor want = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 50, 2);
  test_fill_value(s->v, 1);
  landmarks_set(s, 11, 0, NULL, NULL);
  for (int n = 0; n < 4; n++) {
    s->c.lambda = n < 2 ? 0 : 3, s->c.renormalize = n % 2;
    landmarks_run(s, "values of 1");
    test_fill_value(want, n % 2 ? 1 : n < 2 ? 0.5 : 0.25);
    test_assert_near(s->o, want, 2e-6, "values of 1");
  }
}

/* lambda = 0 is what the Nystromformer goes to; keys may change places within a segment. */
void G3_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(7302);
  landmarks_shape x = landmarks_plain(12, 12, 12, 5);
  landmarks *s = landmarks_build(&x, 1, &rng);
  attn_tensor other = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 12, 5);
  attn_ctx ctx = test_ctx();
  landmarks_peaked(s, &rng);
  s->c.lambda = ATTN_ZERO, s->p.always = 1, s->p.iterations = 12;
  landmarks_run(s, "lambda 0");
  assert_int_equal(attn_nystrom(other, s->q, s->k, s->v, &s->p, &ctx), ATTN_OK);
  test_assert_near(s->o, other, 2e-5, "lambda 0");
  assert_int_equal(attn_sdpa(other, s->q, s->k, s->v, NULL, &ctx), ATTN_OK);
  test_assert_near(s->o, other, 2e-5, "lambda 0, as many landmarks as tokens");
  x = landmarks_plain(30, 30, 6, 5);
  s = landmarks_build(&x, 1, &rng);
  landmarks_set(s, 5, 0, NULL, NULL);
  landmarks_run(s, "in order");
  other = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 30, 5);
  attn_tensor k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 30, 6), v = other;
  v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 30, 5);
  for (int64_t i = 0; i < 30; i++) {
    test_copy(test_rows(k, i, 1), test_rows(s->k, i / 6 * 6 + (i * 5 + 1) % 6, 1));
    test_copy(test_rows(v, i, 1), test_rows(s->v, i / 6 * 6 + (i * 5 + 1) % 6, 1));
  }
  test_copy(other, s->o);
  s->k = k, s->v = v;
  landmarks_run(s, "in another order");
  test_assert_near(s->o, other, 1e-5, "in another order");
}

/* Saturated maps: a cycle of two landmarks has the eigenvalue -1, a cycle of three has not. */
void G3_singular(void **state) {
  (void)state;
  test_rng rng = test_seed(7303);
  for (int64_t m = 2; m < 4; m++) {
    landmarks_shape x = landmarks_plain(2 * m, 2 * m, 3, 4);
    x.batch = 3;
    landmarks *s = landmarks_build(&x, 1, &rng);
    landmarks_set(s, m, 0, NULL, NULL);
    for (int64_t i = 0; i < 2 * m; i++) {
      test_fill_row(s->q, 1, 1, i, 0);
      test_fill_row(s->k, 1, 1, i, 0);
      oracle_set(&s->q, 1, 1, i, (i / 2 + 1) % m, 500);
      oracle_set(&s->k, 1, 1, i, i / 2, 500);
    }
    if (m == 2) {
      promise_reject(&s->does, ATTN_E_NUMERIC, "singular");
      s->c.lambda = 0.5f;
    }
    landmarks_run(s, "saturated");
  }
}

void G3_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(7304);
  static const int32_t lens[] = {150, 20, 20};
  landmarks_shape x = landmarks_plain(150, 150, 6, 5);
  x.batch = 3, x.heads = 4, x.o_type = ATTN_BF16;
  landmarks *s = landmarks_build(&x, 1, &rng);
  landmarks_set(s, 20, 0, lens, NULL);
  s->c.renormalize = 1;
  promise_keep(&s->does);
}

void G3_reject(void **state) {
  (void)state;
  test_rng rng = test_seed(7305);
  static const int32_t many[] = {10};
  for (int n = 0; n < 12; n++, test_mem_release()) {
    landmarks_shape x = landmarks_plain(9, 9, 4, 3);
    landmarks *s = landmarks_build(&x, 1, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->c.landmarks = -1, want = ATTN_E_RANGE, word = "landmarks"; break;
      case 1: s->c.lambda = -1, want = ATTN_E_VALUE, word = "lambda"; break;
      case 2: s->c.lambda = (float)NAN, want = ATTN_E_VALUE, word = "lambda"; break;
      case 3: s->c.lambda = (float)INFINITY, want = ATTN_E_VALUE, word = "lambda"; break;
      case 4: s->c.scale = (float)INFINITY, want = ATTN_E_VALUE, word = "scale"; break;
      case 5: s->c.kv_len = many, want = ATTN_E_RANGE, word = "kv_len"; break;
      case 6: s->c.q_len = many, want = ATTN_E_RANGE, word = "q_len"; break;
      case 7: s->k.dim = 3, word = "k must"; break;
      case 8: s->v.len = 8, word = "v must"; break;
      case 9: s->o.dim = 2, word = "o must"; break;
      case 10: s->k = s->o, s->q.dim = 3, want = ATTN_E_OVERLAP, word = "o "; break;
      default:
        test_fill_row(s->k, 0, 1, 4, (double)NAN), want = ATTN_E_NUMERIC, word = "finite";
        break;
    }
    promise_reject(&s->does, want, word);
  }
}
