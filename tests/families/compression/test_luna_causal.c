/* tests/families/compression/test_luna_causal.c owns Luna's causal core: the double sum of its definition in float64,
 * states, prefixes, numbers that are not finite, promises and rejections. */

#include "compound.h"

typedef struct scene {
  attn_tensor o, q, k, v, p;
  attn_luna_causal_params par;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_luna_causal(s->o, s->q, s->k, s->v, s->p, &s->par, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_luna_causal_workspace(s->o, s->q, s->k, s->v, s->p, &s->par, ctx);
}

typedef struct shape {
  int64_t batch, heads, k_heads, v_heads, t, l, dk, dv, pack_heads; /* 0: k_pack is k */
  int shared;
  attn_dtype q_type, k_type, v_type, p_type, o_type;
  test_layout layout;
} shape;

static shape plain(int64_t t, int64_t l, int64_t dk, int64_t dv) {
  shape z = {1, 1, 1,        1,        t,        l,        dk,       dv,
             0, 0, ATTN_F32, ATTN_F32, ATTN_F32, ATTN_F32, ATTN_F32, TEST_BHTD};
  return z;
}

static scene *build(const shape *z, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t b = z->batch;
  s->q = drawn(z->q_type, z->layout, b, z->heads, z->t, z->dk, 1.5, rng);
  s->k = drawn(z->k_type, z->layout, b, z->k_heads, z->t, z->dk, 1, rng);
  s->v = drawn(z->v_type, z->layout, b, z->v_heads, z->t, z->dv, 1, rng);
  s->p = drawn(z->p_type, TEST_PADDED, z->shared ? 1 : b, z->heads, z->l, z->dk, 1.5, rng);
  if (z->pack_heads)
    s->par.k_pack = drawn(z->k_type, TEST_NEGATIVE, b, z->pack_heads, z->t, z->dk, 1, rng);
  s->o = output(z->o_type, z->layout, b, z->heads, z->t, z->dv, &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o;
  return s;
}

static double omega(attn_luna_omega kind, double x) {
  if (kind == ATTN_LUNA_ELU1) return x > 0 ? x + 1 : exp(x);
  return fmax(x, 0) + log1p(pow(2, -fabs(x))) / log(2.0);
}

/* Row (b, h, i), by the definition: two sums over the tokens. */
static void row_of(const scene *s, int64_t b, int64_t h, int64_t i, const double *alpha, double *a,
                   double *o) {
  const int64_t l = s->p.len, hk = head_of(&s->k, h, s->q.heads),
                hv = head_of(&s->v, h, s->q.heads);
  const double scale = scale_of(s->par.scale, s->q.dim), t = (double)(i + 1);
  double top = -(double)INFINITY, sum = 0;
  for (int64_t r = 0; r < l; r++) a[r] = 0;
  for (int64_t j = 0; j <= i; j++) {
    double dot = 0;
    for (int64_t c = 0; c < s->q.dim; c++)
      dot += oracle_get(&s->q, b, h, i, c) * oracle_get(&s->k, b, hk, j, c);
    for (int64_t r = 0; r < l; r++) a[r] += scale * dot * alpha[j * l + r] / t;
  }
  for (int64_t r = 0; r < l; r++) top = fmax(top, a[r]);
  for (int64_t r = 0; r < l; r++) a[r] = exp(a[r] - top), sum += a[r];
  for (int64_t r = 0; r < l; r++) a[r] /= sum;
  for (int64_t c = 0; c < s->v.dim; c++) o[c] = 0;
  for (int64_t j = 0; j <= i; j++) {
    double weight = 0;
    for (int64_t r = 0; r < l; r++) weight += a[r] * alpha[j * l + r] / t;
    for (int64_t c = 0; c < s->v.dim; c++) o[c] += weight * oracle_get(&s->v, b, hv, j, c);
  }
}

static void check(const scene *s, double tolerance, const char *what) {
  const attn_tensor *kp = s->par.k_pack.data ? &s->par.k_pack : &s->k;
  const int64_t t = s->q.len, l = s->p.len, dk = s->q.dim;
  double *alpha = test_mem((size_t)(t * l) * sizeof *alpha);
  double *a = test_mem((size_t)l * sizeof *a);
  cube want = cube_of(s->q.batch, s->q.heads, t, s->v.dim);
  for (int64_t b = 0; b < s->q.batch; b++)
    for (int64_t h = 0; h < s->q.heads; h++) {
      for (int64_t n = 0; n < t * l; n++) {
        double x = 0;
        for (int64_t c = 0; c < dk; c++)
          x += oracle_get(&s->p, s->p.batch > 1 ? b : 0, h, n % l, c) *
               oracle_get(kp, b, head_of(kp, h, s->q.heads), n / l, c);
        alpha[n] = omega(s->par.omega, x * scale_of(s->par.scale, dk));
      }
      for (int64_t i = 0; i < t; i++) {
        double *o = cube_at(&want, b, h, i);
        if (s->par.q_len && i >= s->par.q_len[b])
          memset(o, 0, (size_t)s->v.dim * sizeof *o);
        else
          row_of(s, b, h, i, alpha, a, o);
      }
    }
  cube_check(&want, &s->o, tolerance, what);
}

static void run(scene *s, double tolerance, const char *what) {
  promise_run(&s->does);
  check(s, tolerance, what);
}

/* ---- tests ----------------------------------------------------------------------------------*/

static const attn_dtype floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

void F5_causal_random(void **state) {
  (void)state;
  test_rng rng = test_seed(7200);
  for (int64_t n = test_count(45, 12); n-- > 0; test_mem_release()) {
    const int64_t t = test_range(&rng, 1, n % 3 ? 20 : 150),
                  l = test_range(&rng, 1, n % 5 ? 20 : 80);
    const int64_t dk = test_range(&rng, 1, n % 4 ? 12 : 70);
    shape z = plain(t, l, dk, n % 6 == 5 ? 16 : test_range(&rng, 1, n % 4 ? 12 : 70));
    z.batch = test_range(&rng, 1, 2), z.k_heads = test_range(&rng, 1, 2);
    z.heads = z.k_heads * test_range(&rng, 1, 2);
    z.v_heads = n % 2 ? z.k_heads : 1;
    z.pack_heads = n % 4 == 1 ? 1 : n % 4 == 2 ? z.heads : 0;
    z.shared = n % 5 < 2, z.layout = (test_layout)(n % 4);
    z.q_type = floats[n % 4 % 3], z.k_type = floats[n / 2 % 4 % 3],
    z.v_type = floats[n / 3 % 4 % 3];
    z.p_type = floats[n / 4 % 4 % 3], z.o_type = floats[n / 5 % 4 % 3];
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&z, &rng);
    test_where = TEST_HEAP;
    s->par.omega = (attn_luna_omega)(n / 2 % 2);
    if (n % 7 == 3) s->par.q_len = test_lengths(z.batch, t, &rng);
    if (n % 6 == 5) s->par.scale = 0.4f;
    if (n % 11 == 5) s->par.scale = ATTN_ZERO;
    run(s, 2e-5, "causal luna");
  }
}

/* Every length of the last chunk, in chunks and one by one. */
void F5_causal_tails(void **state) {
  (void)state;
  test_rng rng = test_seed(7201);
  for (int64_t t = 1; t <= (test_fast ? 20 : 70); t++, test_mem_release()) {
    shape z = plain(t, 1 + t % 19, 1 + t % 7, 1 + t % 33);
    run(build(&z, &rng), 2e-5, "tails");
  }
}

/* A sequence in pieces of any length gives what the whole gives; the state can be copied back. */
void F5_causal_state(void **state) {
  (void)state;
  test_rng rng = test_seed(7202);
  for (int n = 0; n < (test_fast ? 3 : 5); n++, test_mem_release()) {
    shape z = plain(150, 1 + n * 5, 9, 11);
    z.batch = 2, z.heads = 4, z.k_heads = 2, z.pack_heads = n % 2 ? 2 : 0;
    scene *s = build(&z, &rng);
    s->par.omega = (attn_luna_omega)(n % 2);
    run(s, 2e-5, "whole");
    attn_tensor whole = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, 150, 11);
    test_copy(whole, s->o);
    const size_t bytes = attn_luna_state_bytes(2, 4, z.l, 9, 11);
    assert_true(bytes > 0);
    scene part = *s;
    attn_ctx ctx = test_ctx();
    part.par.state = test_mem(bytes), part.par.state_bytes = bytes;
    void *saved = test_mem(bytes);
    assert_int_equal(attn_luna_begin(part.par.state, bytes, &s->par, 2, 4, z.l, 9, 11, &ctx),
                     ATTN_OK);
    for (int64_t i = 0, m; i < 150; i += m) {
      m = n == 0 ? 1 : n == 1 ? 64 : test_range(&rng, 1, n == 2 ? 6 : 90);
      if (m > 150 - i) m = 150 - i;
      part.q = test_rows(s->q, i, m), part.k = test_rows(s->k, i, m);
      part.v = test_rows(s->v, i, m), part.o = test_rows(s->o, i, m);
      if (s->par.k_pack.data) part.par.k_pack = test_rows(s->par.k_pack, i, m);
      memcpy(saved, part.par.state, bytes);
      test_fill_value(part.o, 7);
      assert_int_equal(call(&part, &ctx), ATTN_OK);
      test_assert_near(part.o, test_rows(whole, i, m), 1e-5, "in pieces");
      if (n < 2) continue;
      attn_tensor again = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, m, 11); /* another way, and back */
      memcpy(part.par.state, saved, bytes);
      scene other = part;
      other.o = again;
      assert_int_equal(call(&other, &ctx), ATTN_OK);
      test_assert_same(again, part.o, "rolled back");
    }
  }
}

/* Lengths of a state grow by those of the call. */
void F5_causal_lengths(void **state) {
  (void)state;
  test_rng rng = test_seed(7203);
  static const int32_t len[2] = {70, 3};
  shape z = plain(90, 6, 8, 16);
  z.batch = 2;
  scene *s = build(&z, &rng);
  s->par.q_len = len;
  run(s, 2e-5, "lengths");
  attn_ctx ctx = test_ctx();
  const size_t bytes = attn_luna_state_bytes(2, 1, 6, 8, 16);
  s->par.state = test_mem(bytes), s->par.state_bytes = bytes;
  assert_int_equal(attn_luna_begin(s->par.state, bytes, NULL, 2, 1, 6, 8, 16, &ctx), ATTN_OK);
  promise_run(&s->does);
  /* entry 1 goes on with its 4th token */
  scene whole = *s, next = *s;
  static const int32_t none[2] = {0, 20}, all[2] = {0, 23};
  next.q = test_rows(s->q, 3, 20), next.k = test_rows(s->k, 3, 20);
  next.v = test_rows(s->v, 3, 20), next.par.q_len = none;
  next.o = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 20, 16);
  assert_int_equal(call(&next, &ctx), ATTN_OK);
  whole.par.state = NULL, whole.par.q_len = all;
  assert_int_equal(call(&whole, &ctx), ATTN_OK);
  test_assert_near(test_one(next.o, 1, 1, 0, 1), test_one(test_rows(s->o, 3, 20), 1, 1, 0, 1), 1e-5,
                   "from the 4th token on");
}

/* No output depends on a later token, not even one that is not a number. */
void F5_causal_prefix(void **state) {
  (void)state;
  test_rng rng = test_seed(7204);
  for (int n = 0; n < 5; n++, test_mem_release()) {
    shape z = plain(130, 7, 8, 16);
    z.pack_heads = 1;
    scene *s = build(&z, &rng);
    run(s, 2e-5, "before");
    attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 130, 16);
    test_copy(first, s->o);
    attn_tensor rows[4] = {s->q, s->k, s->v, s->par.k_pack};
    const int64_t at = 100;
    if (n == 4) { /* other tokens: the same bits */
      for (int i = 0; i < 4; i++) test_fill(test_rows(rows[i], at, 30), &rng, test_normal);
      promise_run(&s->does);
      test_assert_same(test_rows(s->o, 0, at), test_rows(first, 0, at), "prefix");
      continue;
    }
    test_fill_row(rows[n], 0, 0, at, n % 2 ? (double)NAN : (double)INFINITY);
    promise_run(&s->does);
    test_assert_near(test_rows(s->o, 0, at), test_rows(first, 0, at), 1e-5, "before NaN");
    assert_true(!isfinite(oracle_get(&s->o, 0, 0, at, 0)));
    if (n == 0) { /* a query is nothing to the others */
      test_assert_near(test_rows(s->o, at + 1, 29), test_rows(first, at + 1, 29), 1e-5, "queries");
      continue;
    }
    for (int64_t i = at; i < 130; i++) assert_true(!isfinite(oracle_get(&s->o, 0, 0, i, 3)));
  }
}

/* l = 1 and values of 1: the running mean of alpha. */
void F5_causal_running_mean(void **state) {
  (void)state;
  test_rng rng = test_seed(7205);
  shape z = plain(140, 1, 6, 2);
  scene *s = build(&z, &rng);
  test_fill_value(s->v, 1);
  promise_run(&s->does);
  double sum = 0;
  for (int64_t j = 0; j < 140; j++) {
    double x = 0;
    for (int64_t c = 0; c < 6; c++)
      x += oracle_get(&s->p, 0, 0, 0, c) * oracle_get(&s->k, 0, 0, j, c);
    sum += omega(ATTN_LUNA_SOFTPLUS2, x / sqrt(6.0));
    value_check(oracle_get(&s->o, 0, 0, j, 1), sum / (double)(j + 1), 1e-5, ATTN_F32, "mean", 0, 0,
                j, 1);
  }
}

/* omega far out, to float's own precision: one token, whose output is alpha times v. */
void F5_causal_omega(void **state) {
  (void)state;
  static const float at[] = {-200,  -130, -126, -100, -20, -3, -1, -0.4f, -1e-6f, 0,
                             1e-6f, 0.3f, 1,    2.5f, 10,  24, 80, 130,   1e15f};
  enum { N = sizeof at / sizeof *at };
  for (int kind = 0; kind < 2; kind++)
    for (int n = 0; n < 2; n++) /* one by one, and a chunk whose tokens are all alike */
      for (int i = 0; i < N; i++) {
        float k[8], one[8], o[8], p = 1;
        const int64_t t = n ? 8 : 1;
        for (int j = 0; j < 8; j++) k[j] = at[i], one[j] = 1;
        attn_luna_causal_params par;
        attn_ctx ctx = test_ctx();
        memset(&par, 0, sizeof par);
        par.omega = (attn_luna_omega)kind, par.scale = 1;
        const attn_tensor x = attn_bhtd(k, ATTN_F32, 1, 1, t, 1);
        const attn_tensor v = attn_bhtd(one, ATTN_F32, 1, 1, t, 1);
        attn_tensor q = v;
        assert_int_equal(attn_luna_causal(attn_bhtd(o, ATTN_F32, 1, 1, t, 1), q, x, v,
                                          attn_bhtd(&p, ATTN_F32, 1, 1, 1, 1), &par, &ctx),
                         ATTN_OK);
        const double want = omega(par.omega, (double)at[i]);
        for (int64_t j = 0; j < t; j++)
          if (!(fabs((double)o[j] - want) <= 1.5e-6 * want + 2.4e-38))
            fail_msg("omega %d of %g is %.9g, not %.9g", kind, (double)at[i], (double)o[j], want);
      }
}

/* The error grows slowly with the number of tokens. */
void F5_causal_long(void **state) {
  (void)state;
  test_rng rng = test_seed(7206);
  shape z = plain(test_fast ? 300 : 1000, 5, 8, 8);
  run(build(&z, &rng), 1e-5, "long");
}

/* Sums of tokens that come one by one, or a few, drift no more than those of one call: the mean of many
 * equal values. */
void F5_causal_long_decode(void **state) {
  (void)state;
  const int64_t t = test_fast ? 16384 : 32768,
                bytes = (int64_t)attn_luna_state_bytes(1, 1, 1, 1, 1);
  const float value = 0.1f, p = 0;
  float *k = test_mem((size_t)t * 4), *v = test_mem((size_t)t * 4), *o = test_mem((size_t)t * 4);
  for (int64_t i = 0; i < t; i++) k[i] = 0, v[i] = value;
  const attn_tensor few = attn_bhtd((void *)(uintptr_t)&p, ATTN_F32, 1, 1, 1, 1);
  for (int64_t step = 1; step <= 16; step *= 4) {
    attn_luna_causal_params par;
    attn_ctx ctx = test_ctx();
    memset(&par, 0, sizeof par);
    par.state = test_mem((size_t)bytes), par.state_bytes = (size_t)bytes;
    assert_int_equal(attn_luna_begin(par.state, par.state_bytes, NULL, 1, 1, 1, 1, 1, &ctx),
                     ATTN_OK);
    const attn_tensor in = attn_bhtd(k, ATTN_F32, 1, 1, step, 1);
    ctx.workspace_size = attn_luna_causal_workspace(attn_bhtd(o, ATTN_F32, 1, 1, step, 1), in, in,
                                                    in, few, &par, &ctx);
    ctx.workspace = test_mem(ctx.workspace_size);
    for (int64_t i = 0; i < t; i += step) {
      const attn_tensor rows = attn_bhtd(k + i, ATTN_F32, 1, 1, step, 1);
      assert_int_equal(attn_luna_causal(attn_bhtd(o + i, ATTN_F32, 1, 1, step, 1), rows, rows,
                                        attn_bhtd(v + i, ATTN_F32, 1, 1, step, 1), few, &par, &ctx),
                       ATTN_OK);
    }
    for (int64_t i = 63; i < t; i = 4 * i + 3) /* omega(0) = 1 */
      assert_true(fabs((double)o[i] / (double)value - 1) < 1e-6);
  }
}

void F5_causal_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(7207);
  static const int32_t none[1] = {0};
  shape z = plain(0, 3, 4, 5);
  promise_run(&build(&z, &rng)->does);
  z.t = 9, z.batch = 0;
  promise_run(&build(&z, &rng)->does);
  z.batch = 1;
  scene *s = build(&z, &rng);
  s->par.q_len = none;
  run(s, 0, "length 0");
}

void F5_causal_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(7208);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    shape z = plain(n ? 140 : 3, 20, 18, 17);
    z.batch = 2, z.heads = 4, z.k_heads = 2, z.q_type = floats[n], z.o_type = floats[(n + 1) % 3];
    promise_keep(&build(&z, &rng)->does);
  }
}

void F5_causal_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(7209);
  static int32_t len[2] = {4, 10};
  const size_t bytes = attn_luna_state_bytes(2, 4, 5, 6, 7);
  for (int n = 0; n < 35; n++, test_mem_release()) {
    shape z = plain(9, 5, 6, 7);
    z.batch = 2, z.heads = 4, z.k_heads = z.v_heads = 2, z.pack_heads = 4;
    scene *s = build(&z, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    attn_ctx ctx = test_ctx();
    int64_t *state_words = test_mem(bytes);
    if (n >= 20) s->par.state = state_words, s->par.state_bytes = bytes;
    assert_int_equal(attn_luna_begin(state_words, bytes, NULL, 2, 4, 5, 6, 7, &ctx), ATTN_OK);
    switch (n) {
      case 0: s->p.len = 0, word = "p.len"; break;
      case 1: s->k.len = 8, word = "k must"; break;
      case 2: s->v.len = 10, word = "v must"; break;
      case 3: s->k.dim = 5, word = "k must"; break;
      case 4: s->k.heads = 3, s->k.stride_head = 0, want = ATTN_E_HEADS, word = "k must"; break;
      case 5: s->v.heads = 3, s->v.stride_head = 0, want = ATTN_E_HEADS, word = "v must"; break;
      case 6: s->p.heads = 2, word = "p must"; break;
      case 7: s->p.dim = 5, word = "p must"; break;
      case 8: s->p.batch = 3, s->p.stride_batch = 0, word = "p must"; break;
      case 9: s->par.k_pack.len = 8, word = "k_pack"; break;
      case 10: s->par.k_pack.heads = 3, want = ATTN_E_HEADS, word = "k_pack"; break;
      case 11: s->o.dim = 6, word = "o must"; break;
      case 12: s->par.omega = ATTN_LUNA_COUNT, want = ATTN_E_RANGE, word = "omega"; break;
      case 13: s->par.scale = (float)INFINITY, want = ATTN_E_VALUE, word = "scale"; break;
      case 14: s->par.q_len = len, want = ATTN_E_RANGE, word = "len"; break;
      case 15: s->v = s->o, s->v.heads = 2, want = ATTN_E_OVERLAP, word = "o "; break;
      case 16: s->o.stride_len = 0, want = ATTN_E_STRIDE, word = "o "; break;
      case 17: s->q.data = NULL, want = ATTN_E_NULL, word = "q.data"; break;
      case 18: s->q.heads = 0, word = "heads"; break;
      case 19: s->p.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "p.dtype"; break;
      case 20: s->par.state_bytes--, word = "state_bytes"; break;
      case 21:
        s->par.state = (char *)state_words + 4, s->par.state_bytes = bytes;
        want = ATTN_E_ALIGN, word = "state";
        break;
      case 22: memset(state_words, 0, 8), want = ATTN_E_VALUE, word = "attn_luna_begin"; break;
      case 23: state_words[1]++, word = "batch"; break;
      case 24: state_words[2]--, word = "heads"; break;
      case 25: state_words[3]++, word = "p.len"; break;
      case 26: state_words[4]++, word = "q.dim"; break;
      case 27: state_words[5]++, word = "v.dim"; break;
      case 28: s->par.omega = ATTN_LUNA_ELU1, want = ATTN_E_VALUE, word = "omega"; break;
      case 29: s->par.scale = 0.5f, want = ATTN_E_VALUE, word = "scale"; break;
      case 30: state_words[7] = -1, want = ATTN_E_VALUE, word = "count"; break;
      case 31:
        s->par.state = s->o.data, s->par.state_bytes = bytes; /* not begun there */
        want = ATTN_E_VALUE, word = "attn_luna_begin";
        break;
      case 32:
        s->k = attn_bhtd(state_words + 20, ATTN_F32, 2, 1, 9, 6), s->k.stride_batch = 0;
        want = ATTN_E_OVERLAP, word = "state";
        break;
      case 33:
        s->o = attn_bhtd(state_words + 9, ATTN_F32, 2, 4, 9, 7), s->does.block[0].data = NULL;
        want = ATTN_E_OVERLAP, word = "state";
        break;
      default: s->k.batch = 1, word = "k must"; break;
    }
    unsigned char *before = test_mem(bytes);
    memcpy(before, state_words, bytes);
    promise_reject(&s->does, want, word);
    assert_memory_equal(before, state_words, bytes);
  }
  attn_ctx ctx = test_ctx();
  int64_t *room = test_mem(bytes);
  attn_luna_causal_params bad;
  memset(&bad, 0, sizeof bad);
  assert_int_equal(attn_luna_begin(NULL, bytes, NULL, 2, 4, 5, 6, 7, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_luna_begin((char *)room + 4, bytes, NULL, 2, 4, 5, 6, 7, &ctx),
                   ATTN_E_ALIGN);
  assert_int_equal(attn_luna_begin(room, bytes - 1, NULL, 2, 4, 5, 6, 7, &ctx), ATTN_E_SHAPE);
  assert_int_equal(attn_luna_begin(room, bytes, NULL, 2, 4, 0, 6, 7, &ctx), ATTN_E_SHAPE);
  assert_int_equal(attn_luna_begin(room, bytes, NULL, 2, 4, INT64_MAX / 8, 6, 7, &ctx),
                   ATTN_E_OVERFLOW);
  bad.omega = (attn_luna_omega)-1;
  assert_int_equal(attn_luna_begin(room, bytes, &bad, 2, 4, 5, 6, 7, &ctx), ATTN_E_RANGE);
  bad.omega = ATTN_LUNA_ELU1, bad.scale = (float)NAN;
  assert_int_equal(attn_luna_begin(room, bytes, &bad, 2, 4, 5, 6, 7, &ctx), ATTN_E_VALUE);
  bad.omega = ATTN_LUNA_ELU1, bad.scale = 0;
  attn_ctx wrong = test_ctx();
  wrong.workers = -1, *room = 7;
  assert_int_equal(attn_luna_begin(room, bytes, &bad, 2, 4, 5, 6, 7, &wrong), ATTN_E_CTX);
  wrong = test_ctx(), wrong.isa = (attn_isa)99;
  assert_int_equal(attn_luna_begin(room, bytes, &bad, 2, 4, 5, 6, 7, &wrong), ATTN_E_ISA);
  assert_int_equal(*room, 7);
  assert_int_equal(attn_luna_begin(room, bytes, &bad, 2, 4, 5, 6, 7, &ctx), ATTN_OK);
  assert_int_equal(ctx.report.isa, test_isa);
  /* the workspace query does not look into the state */
  shape z = plain(9, 5, 6, 7);
  z.batch = 2, z.heads = 4;
  scene *s = build(&z, &rng);
  const size_t size = ask(s, &ctx);
  s->par.state = memset(room, 0xff, bytes), s->par.state_bytes = bytes;
  assert_true(size > 0 && ask(s, &ctx) == size);
  assert_true(attn_luna_state_bytes(1, 1, INT64_MAX, 4, 4) == 0);
  assert_true(attn_luna_state_bytes(1, 1, 1, 0, 4) == 0);
}
