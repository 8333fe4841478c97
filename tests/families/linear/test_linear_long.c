/* tests/families/linear/test_linear_long.c owns streams of many tokens: however they are cut into calls, S, z and o
 * are those of the sums in float64, and their errors do not grow. */

#include "linear.h"

enum { DIM = 17 };

typedef struct stream {
  attn_linear_params p;
  double s, z, weight; /* S and z of the numbers below, in float64; of a key before the last */
  float k[64 * DIM], v[64 * DIM], o[64 * DIM];
} stream;

/* All keys and values are alike; the sums of feature 3 and column 5. */
static void tokens(stream *x, int64_t n, attn_ctx *ctx) {
  const attn_tensor k = attn_bhtd(x->k, ATTN_F32, 1, 1, n, DIM);
  const attn_tensor v = attn_bhtd(x->v, ATTN_F32, 1, 1, n, DIM);
  const attn_tensor o = attn_bhtd(x->o, ATTN_F32, 1, 1, n, DIM);
  assert_int_equal(attn_linear(o, k, k, v, &x->p, ctx), ATTN_OK);
  for (int64_t j = 0; j < n; j++) {
    const double phi = (double)x->k[3] + 1;
    x->s = x->weight * x->s + phi * (double)x->v[5], x->z = x->weight * x->z + phi;
  }
}

static void judge(const stream *x, int64_t calls, attn_ctx *ctx) {
  attn_tensor s, z;
  assert_int_equal(attn_linear_view(x->p.state, x->p.state_bytes, &s, &z, ctx), ATTN_OK);
  value_check(oracle_get(&s, 0, 0, 3, 5), x->s, 1e-6 * x->s, ATTN_F32, "S", 0, 0, calls, 5);
  value_check(oracle_get(&z, 0, 0, 0, 3), x->z, 1e-6 * x->z, ATTN_F32, "z", 0, 0, calls, 3);
}

/* One token a call, a few, a chunk, and all of them in turn; sums that keep all and that fade slowly. */
void E4_state_many_tokens(void **state) {
  (void)state;
  const int64_t most = test_fast ? 4096 : 32768;
  static const int64_t cut[4] = {1, 3, 5, 64};
  for (int n = 0; n < 10; n++, test_mem_release()) {
    stream *x = test_mem(sizeof *x);
    attn_ctx ctx = test_ctx();
    memset(x, 0, sizeof *x);
    x->p.causal = 1, x->p.rule = n % 2 ? ATTN_LINEAR_DECAY : ATTN_LINEAR_SUM;
    if (n % 2) x->p.rate_const = 0.99998f;
    x->weight = n % 2 ? (double)x->p.rate_const : 1;
    for (int i = 0; i < 64 * DIM; i++)
      x->k[i] = 0.1f * (float)(i % DIM), x->v[i] = 0.7f + 0.01f * (float)(i % DIM);
    const size_t bytes = attn_linear_state_bytes(&x->p, 1, 1, 1, DIM, DIM);
    x->p.state = test_mem(bytes), x->p.state_bytes = bytes;
    assert_int_equal(attn_linear_begin(x->p.state, bytes, &x->p, 1, 1, 1, DIM, DIM, &ctx), ATTN_OK);
    for (int64_t t = 0, call = 0; t < most; call++) {
      const int64_t len = cut[n / 2 < 4 ? n / 2 : call % 4];
      tokens(x, len, &ctx);
      t += len;
      if (call % 97 == 0) judge(x, call, &ctx);
    }
    judge(x, -1, &ctx);
    for (int64_t c = 0; c < DIM; c++) /* a mean of equal values */
      value_check((double)x->o[c], (double)x->v[c], 1e-6 * (double)x->v[c], ATTN_F32, "o", 0, 0, -1,
                  c);
  }
}

/* Values of any sign, keys that grow: token by token is as near to float64 as the whole is. */
void E4_state_many_keys(void **state) {
  (void)state;
  test_rng rng = test_seed(771);
  const int64_t t = test_fast ? 2000 : 9000;
  for (int kind = 0; kind < 2; kind++, test_mem_release()) {
    const linear_shape x = linear_plain(1, t, t, 4, 3), one = linear_plain(1, 1, 1, 4, 3);
    linear_scene *s = linear_build(&x, &rng), *step = linear_build(&one, &rng);
    if (kind) s->p.map.kind = ATTN_FEATURES_SOFTMAX, s->p.map.w = linear_w(1, 6, 4, &rng);
    s->p.causal = 1;
    for (int64_t j = 0; j < t; j++)
      for (int64_t c = 0; c < 4; c++) {
        const double grown = kind ? 0.5 + (double)j / (double)t : 1;
        oracle_set(&s->k, 0, 0, j, c, grown * oracle_get(&s->k, 0, 0, j, c));
        oracle_set(&s->v, 0, 0, j, c % 3, 1 + 0.25 * oracle_get(&s->v, 0, 0, j, c % 3));
      }
    cube size, want = linear_oracle(s, &size);
    promise_run(&s->does);
    step->p = s->p;
    linear_keep(step);
    attn_ctx ctx = test_ctx();
    double worst[2] = {0, 0};
    for (int64_t j = 0; j < t; j++) {
      assert_int_equal(attn_linear(step->o, test_rows(s->q, j, 1), test_rows(s->k, j, 1),
                                   test_rows(s->v, j, 1), &step->p, &ctx),
                       ATTN_OK);
      for (int64_t c = 0; c < 3; c++) {
        const double o = cube_at(&want, 0, 0, j)[c], by = cube_at(&size, 0, 0, j)[c];
        worst[0] = fmax(worst[0], fabs(oracle_get(&s->o, 0, 0, j, c) - o) / by);
        worst[1] = fmax(worst[1], fabs(oracle_get(&step->o, 0, 0, 0, c) - o) / by);
      }
    }
    for (int n = 0; n < 2; n++)
      if (!(worst[n] < 1e-6)) fail_msg("%s: %g", n ? "token by token" : "at once", worst[n]);
  }
}
