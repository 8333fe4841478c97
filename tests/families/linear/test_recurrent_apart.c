/* tests/families/linear/test_recurrent_apart.c owns what attn_recurrent keeps apart: rows from what later tokens hold, and
 * mLSTM's maximum from the float that a state keeps of it. */

#include "recurrent.h"

#include <stdio.h>

/* NaN and infinity of a token reach no bit of a row before it, wherever both are in a chunk: what has no part is not
 * multiplied by 0. Those of one column of the values reach no other column. */
void M1_later_tokens(void **state) {
  (void)state;
  test_rng rng = test_seed(1920);
  static const int64_t marks[] = {1, 11, 12, 17, 23, 63, 64, 69};
  for (int rule = 0; rule < ATTN_RECURRENT_COUNT; rule++, test_mem_release()) {
    recurrent_shape x = recurrent_plain((attn_recurrent_rule)rule, 1, 70, 10, 18);
    if (rule == ATTN_RECURRENT_MLSTM) x.form = ATTN_RECURRENT_LOGIT;
    x.slow = 0.1;
    recurrent_scene *s = recurrent_build(&x, &rng);
    attn_tensor want = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 70, 18);
    promise_run(&s->does);
    test_copy(want, s->o);
    const attn_tensor *holds[] = {&s->q,      &s->k,      &s->v,    &s->p.a,    &s->p.b,
                                  &s->p.beta, &s->p.gate, &s->p.dt, &s->p.decay};
    for (int n = 0; n < 9; n++) {
      const attn_tensor t = *holds[n];
      const int logit = rule == ATTN_RECURRENT_MLSTM;
      if (!t.data || (n == 8 && !logit)) continue; /* a decay that is NaN is rejected */
      for (size_t j = 0; j < sizeof marks / sizeof *marks; j++) {
        const int64_t at = marks[j];
        attn_tensor was = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, t.dim);
        char what[80];
        sprintf(what, "rule %d, argument %d, token %d", rule, n, (int)at);
        test_copy(was, test_rows(t, at, 1));
        test_fill_row(t, 0, 0, at, (double)(j % 3 == 2 ? INFINITY : NAN));
        promise_run(&s->does);
        test_assert_same(test_rows(s->o, 0, at), test_rows(want, 0, at), what);
        test_copy(test_rows(t, at, 1), was);
        if (n != 2) continue;
        const int64_t c = at % 18;
        oracle_set(&s->v, 0, 0, at, c, (double)NAN);
        promise_run(&s->does);
        for (int64_t i = 0; i < 70; i++)
          for (int64_t e = 0; e < 18; e++)
            if (e != c || i < at)
              assert_true(oracle_get(&s->o, 0, 0, i, e) == oracle_get(&want, 0, 0, i, e));
        const double first = oracle_get(&s->o, 0, 0, rule == ATTN_RECURRENT_RWKV6 ? 69 : at, c);
        assert_true(first != first);
        test_copy(test_rows(t, at, 1), was);
      }
    }
  }
}

/* S and n are in units of e^m for the m that the state holds, which is a float: where floats are 2^-10 apart, an m that
 * goes on with more bits than it is stored with would leave S off by that much. */
void M1_stored_maximum(void **state) {
  (void)state;
  test_rng rng = test_seed(1921);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    recurrent_shape x = recurrent_plain(ATTN_RECURRENT_MLSTM, 2, n % 2 ? 130 : 4, 6, 5);
    x.keep = 1, x.slow = 0.02;
    recurrent_scene *s = recurrent_build(&x, &rng);
    s->p.eps = ATTN_ZERO;
    for (int64_t h = 0; h < 2; h++)
      for (int64_t i = 0; i < x.len; i++) {
        oracle_set(&s->p.gate, 0, h, i, 0, i ? 9000 - (double)((i * 7 + h) % 11) : 9001);
        oracle_set(&s->p.decay, 0, h, i, 0, n < 2 ? -0.0137 : -1e-4 * (double)(1 + i % 5));
      }
    recurrent_check(s, 4e-6, "whole");
    recurrent_check_steps(s, 1, 1e-5, "tokens");
    recurrent_check_steps(s, 3, 1e-5, "three tokens");
    recurrent_check_steps(s, 50, 1e-5, "pieces");
  }
}

/* A NaN that a token makes in the state is the one default NaN, in a strip of whole vectors and beside it. */
void M1_token_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(1922);
  for (int rule = 0; rule < ATTN_RECURRENT_COUNT; rule++, test_mem_release()) {
    recurrent_shape x = recurrent_plain((attn_recurrent_rule)rule, 1, 1, 5, 70);
    x.keep = 1;
    recurrent_scene *s = recurrent_build(&x, &rng);
    if (!s->k.data) continue;
    test_fill_row(s->k, 0, 0, 0, 0), test_fill_row(s->v, 0, 0, 0, (double)INFINITY);
    promise_run(&s->does);
    for (int64_t r = 0; r < 5; r++)
      for (int64_t c = 0; c < 70; c++) {
        const float *at =
            (const float *)s->p.final_state.data + r * s->p.final_state.stride_len + c;
        uint32_t bits;
        memcpy(&bits, at, 4);
        assert_int_equal(bits, 0x7fc00000u);
      }
  }
}

/* MLSTM's n is no column of S where a token goes from the caller's state to the caller's: the same bits as from a state
 * that is transposed, where it is one; with a state at the begin, at the end, or both, and
 * with resets; n's NaN stays its own. */
void M1_token_norm(void **state) {
  (void)state;
  test_rng rng = test_seed(1923);
  for (int n = 0; n < 16; n++, test_mem_release()) {
    const int64_t dk = n % 4 < 2 ? 7 : 64, dv = n % 2 ? 31 : 48, len = 1 + n % 3;
    recurrent_shape x = recurrent_plain(ATTN_RECURRENT_MLSTM, 2, len, dk, dv);
    x.keep = 1, x.slow = 0.25, x.form = (attn_recurrent_form)(n % 3);
    recurrent_scene *s = recurrent_build(&x, &rng);
    attn_recurrent_params p = s->p;
    attn_tensor turned[2], o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, len, dv), last_n = p.final_n;
    for (int j = 0; j < 2; j++) turned[j] = test_tensor(ATTN_F32, TEST_PADDED, 1, 2, dv, dk);
    for (int64_t h = 0; h < 2; h++)
      for (int64_t r = 0; r < dk; r++)
        for (int64_t c = 0; c < dv; c++)
          oracle_set(&turned[0], 0, h, c, r, oracle_get(&p.initial_state, 0, h, r, c));
    if (n % 5 < 2) { /* the first token, or the last */
      uint8_t *reset = test_mem((size_t)len);
      memset(reset, 0, (size_t)len);
      reset[n % 5 ? 0 : len - 1] = 1;
      s->p.reset = p.reset = reset;
    }
    if (n >= 12) test_fill_row(p.initial_n, 0, 1, 0, (double)NAN);
    if (n % 4 == 1) s->p.final_state = s->p.final_n = s->p.final_m = absent();
    if (n % 4 == 2) s->p.initial_state = s->p.initial_n = s->p.initial_m = absent();
    if (n % 4 != 2) p.initial_state = turned[0];
    if (n % 4 == 2) p.initial_state = p.initial_n = p.initial_m = absent();
    p.final_state = turned[1], p.state_transposed = 1;
    p.final_n = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 1, dk);
    p.final_m = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 1, 1);
    promise_run(&s->does);
    attn_ctx ctx = test_ctx();
    if (attn_recurrent(o, s->q, s->k, s->v, &p, &ctx) != ATTN_OK) fail_msg("%s", ctx.reason);
    test_assert_same(o, s->o, "o");
    if (!s->p.final_state.data) continue;
    test_assert_same(p.final_n, last_n, "n");
    for (int64_t h = 0; h < 2; h++)
      for (int64_t r = 0; r < dk; r++)
        for (int64_t c = 0; c < dv; c++)
          assert_true(oracle_get(&s->p.final_state, 0, h, r, c) ==
                      oracle_get(&turned[1], 0, h, c, r));
  }
}

/* What roundings left beside a state goes with it at a reset, NaN included. */
void M1_reset_rest(void **state) {
  (void)state;
  test_rng rng = test_seed(1924);
  for (int rule = 0; rule < ATTN_RECURRENT_COUNT; rule++, test_mem_release()) {
    recurrent_shape x = recurrent_plain((attn_recurrent_rule)rule, 1, 70, 5, 20);
    x.keep = 1;
    recurrent_scene *s = recurrent_build(&x, &rng);
    uint8_t *reset = test_mem(70);
    memset(reset, 0, 70);
    reset[40] = 1, s->p.reset = reset;
    test_fill_row(s->v, 0, 0, 3, (double)NAN);
    promise_run(&s->does);
    for (int64_t r = 0; r < 5; r++)
      for (int64_t c = 0; c < 20; c++)
        assert_true(isfinite(oracle_get(&s->p.final_state, 0, 0, r, c)));
  }
}
