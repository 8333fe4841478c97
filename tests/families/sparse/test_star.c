/* tests/families/sparse/test_star.c owns the Star-Transformer's two calls. */

#include "compound.h"

typedef struct scene {
  attn_tensor o, q, k, v, kr, vr;
  attn_star_params p;
  int relay;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return s->relay ? attn_star_relay(s->o, s->q, s->kr, s->vr, s->k, s->v, &s->p, ctx)
                  : attn_star_satellites(s->o, s->q, s->k, s->v, s->kr, s->vr, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return s->relay
             ? attn_star_relay_workspace(s->o, s->q, s->kr, s->vr, s->k, s->v, &s->p, ctx)
             : attn_star_satellites_workspace(s->o, s->q, s->k, s->v, s->kr, s->vr, &s->p, ctx);
}

typedef struct shape {
  int64_t batch, heads, k_heads, v_heads, tokens, dk, dv;
  attn_dtype o_type, in_type;
  int own, relay, lse;
} shape;

static scene *build(const shape *x, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  test_layout a = (test_layout)test_range(rng, 0, 3), b = (test_layout)test_range(rng, 0, 3);
  int64_t rows = x->relay ? 1 : x->tokens;
  s->relay = x->relay;
  s->q = drawn(x->in_type, a, x->batch, x->heads, rows, x->dk, 1, rng);
  s->k = drawn(x->in_type, b, x->batch, x->k_heads, x->tokens, x->dk, 1, rng);
  s->v = drawn(ATTN_F32, a, x->batch, x->v_heads, x->tokens, x->dv, 1, rng);
  s->kr = drawn(ATTN_F32, b, x->batch, x->k_heads, 1, x->dk, 1, rng);
  s->vr = drawn(x->in_type, a, x->batch, x->v_heads, 1, x->dv, 1, rng);
  if (x->own) {
    s->p.k_own = drawn(ATTN_F32, a, x->batch, x->v_heads, x->tokens, x->dk, 1, rng);
    s->p.v_own = drawn(x->in_type, b, x->batch, x->k_heads, x->tokens, x->dv, 1, rng);
  }
  s->o = output(x->o_type, a, x->batch, x->heads, rows, x->dv, &s->does.block[0]);
  if (x->lse) s->p.lse = output(ATTN_F32, b, x->batch, x->heads, rows, 1, &s->does.block[1]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o, s->does.out[1] = &s->p.lse;
  return s;
}

static shape plain(int64_t tokens) {
  shape x = {1, 2, 2, 2, tokens, 8, 6, ATTN_F32, ATTN_F32, 0, 0, 1};
  return x;
}

/* Whether satellite i sees j, by the definition. */
static int near(const scene *s, int64_t i, int64_t j, int64_t n) {
  int64_t w = s->p.has_width || s->p.width ? s->p.width : 1;
  int64_t d = i > j ? i - j : j - i;
  return d <= w || (!s->p.no_ring && n - d <= w);
}

static void check(const scene *s, const char *what) {
  int64_t n = s->k.len;
  double scale = scale_of(s->p.scale, s->q.dim);
  bag a = bag_of(n + 2, s->v.dim);
  for (int64_t r = 0; r < s->q.batch * s->q.heads * s->q.len; r++) {
    int64_t b = r / s->q.len / s->q.heads, h = r / s->q.len % s->q.heads, i = r % s->q.len;
    bag_empty(&a);
    for (int64_t j = 0; j < n; j++) {
      if (!s->relay && !near(s, i, j, n)) continue;
      bag_add(&a, scale * dot_rows(&s->q, &s->k, b, h, i, j), &s->v, b,
              head_of(&s->v, h, s->q.heads), j);
    }
    bag_add(&a, scale * dot_rows(&s->q, &s->kr, b, h, i, 0), &s->vr, b,
            head_of(&s->vr, h, s->q.heads), 0);
    if (s->p.k_own.data) {
      bag_add(&a, scale * dot_rows(&s->q, &s->p.k_own, b, h, i, i), &s->p.v_own, b,
              head_of(&s->p.v_own, h, s->q.heads), i);
    }
    bag_close(&a);
    bag_check(&a, &s->o, &s->p.lse, b, h, i, 2e-5, what);
  }
}

void C6_star_satellites(void **state) {
  (void)state;
  test_rng rng = test_seed(600);
  for (int64_t n = test_count(60, 12); n-- > 0;) {
    shape x = plain(n % 3 ? test_range(&rng, 1, 9) : test_range(&rng, 10, 150));
    x.batch = test_range(&rng, 1, 2), x.heads = 4;
    x.k_heads = (int64_t)1 << test_range(&rng, 0, 2),
    x.v_heads = (int64_t)1 << test_range(&rng, 0, 2);
    x.dk = test_range(&rng, 1, 20), x.dv = test_range(&rng, 1, 20);
    x.o_type = (attn_dtype)(n % 4 ? 0 : n / 4 % 3), x.in_type = (attn_dtype)(n % 5 ? 0 : n / 5 % 3);
    x.own = n & 1, x.lse = n % 7 != 0;
    scene *s = build(&x, &rng);
    s->p.width = test_range(&rng, -1, n % 3 ? 6 : 40);
    if (s->p.width < 0) s->p.has_width = 1, s->p.width = 0;
    if (s->p.width > 0) s->p.has_width = n % 2 == 1;
    s->p.no_ring = test_range(&rng, 0, 3) == 0;
    s->p.scale = n % 6 == 0 ? 0.3f : n % 6 == 1 ? ATTN_ZERO : 0.0f;
    promise_run(&s->does);
    check(s, "satellites");
  }
}

void C6_star_relay(void **state) {
  (void)state;
  test_rng rng = test_seed(601);
  for (int64_t n = test_count(20, 6); n-- > 0;) {
    shape x = plain(n ? test_range(&rng, 0, 200) : 0);
    x.batch = 2, x.heads = 4, x.k_heads = 2, x.v_heads = 1, x.relay = 1, x.lse = n & 1;
    x.o_type = (attn_dtype)(n % 3);
    scene *s = build(&x, &rng);
    promise_run(&s->does);
    check(s, "relay");
  }
}

/* Without private keys: attention of the nodes [relay; satellites] under the static mask. */
void C6_star_is_a_mask(void **state) {
  (void)state;
  test_rng rng = test_seed(602);
  for (int64_t tokens = 1; tokens < 40; tokens += tokens < 8 ? 1 : 13) {
    shape x = plain(tokens);
    scene *s = build(&x, &rng);
    s->p.width = test_range(&rng, 1, 5);
    promise_run(&s->does);
    uint8_t *mask = test_mem((size_t)(tokens * (tokens + 1)));
    for (int64_t i = 0; i < tokens; i++) {
      for (int64_t j = 0; j <= tokens; j++)
        mask[i * (tokens + 1) + j] = j == 0 || near(s, i, j - 1, tokens);
    }
    test_spec spec = test_plain(2, tokens, tokens + 1, x.dk, x.dv);
    test_call nodes = test_build(&spec, &rng);
    test_copy(nodes.q, s->q);
    test_copy(test_rows(nodes.k, 0, 1), s->kr);
    test_copy(test_rows(nodes.v, 0, 1), s->vr);
    test_copy(test_rows(nodes.k, 1, tokens), s->k);
    test_copy(test_rows(nodes.v, 1, tokens), s->v);
    nodes.params.mask = attn_mask_bool(mask, 1, 1, tokens, tokens + 1);
    test_run(&nodes);
    test_assert_near(s->o, nodes.o, 1e-5, "static mask");
    test_assert_near(s->p.lse, nodes.params.lse, 1e-5, "static mask");
  }
}

/* A wide ring sees everything; a private key is a merge. */
void C6_star_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(603);
  shape x = plain(31);
  x.own = 1;
  scene *s = build(&x, &rng);
  attn_tensor k_own = s->p.k_own, v_own = s->p.v_own, o = s->o, lse = s->p.lse;
  s->p.width = 15;
  promise_run(&s->does);
  s->o = output(ATTN_F32, TEST_BHTD, 1, 2, 31, x.dv, NULL);
  s->p.width = INT64_MAX;
  promise_run(&s->does);
  test_assert_same(s->o, o, "everything");
  s->p.width = 4;
  promise_run(&s->does);
  attn_tensor own = s->o;
  s->p.k_own.data = s->p.v_own.data = NULL;
  s->o = o, s->p.lse = lse;
  promise_run(&s->does);
  attn_tensor score = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 31, 1),
              merged = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 31, x.dv);
  for (int64_t r = 0; r < 62; r++) {
    oracle_set(&score, 0, r / 31, r % 31, 0,
               dot_rows(&s->q, &k_own, 0, r / 31, r % 31, r % 31) / sqrt(8));
  }
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_merge(merged, absent(), o, lse, v_own, score, &ctx), ATTN_OK);
  test_assert_near(own, merged, 1e-6, "private keys");
}

/* What a satellite does not see does not reach it. */
void C6_star_nan_stays(void **state) {
  (void)state;
  test_rng rng = test_seed(604);
  shape x = plain(40);
  x.own = 1;
  scene *s = build(&x, &rng);
  s->p.width = 2;
  test_fill_row(s->k, 0, 1, 39, (double)NAN);
  test_fill_row(s->v, 0, 1, 39, (double)NAN);
  test_fill_row(s->p.v_own, 0, 0, 7, (double)NAN);
  promise_run(&s->does);
  for (int64_t r = 0; r < 80; r++) {
    int64_t h = r / 40, i = r % 40;
    int want = (h == 1 && (i >= 37 || i <= 1)) || (h == 0 && i == 7);
    assert_int_equal(isnan(oracle_get(&s->o, 0, h, i, 0)) != 0, want);
  }
}

void C6_star_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(605);
  for (int n = 0; n < 3; n++) {
    shape x = plain(150);
    x.own = n != 1, x.relay = n == 2, x.o_type = (attn_dtype)n;
    scene *s = build(&x, &rng);
    s->p.width = 30;
    promise_keep(&s->does);
  }
}

void C6_star_empty_batch(void **state) {
  (void)state;
  test_rng rng = test_seed(606);
  for (int n = 0; n < 2; n++) {
    shape x = plain(5);
    x.batch = 0, x.relay = n;
    scene *s = build(&x, &rng);
    promise_run(&s->does);
  }
}

void C6_star_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(607);
  for (int n = 0; n < 22; n++) {
    shape x = plain(9);
    x.own = 1, x.relay = n >= 19;
    scene *s = build(&x, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->q.len = s->k.len = s->v.len = s->o.len = 0, word = "q.len"; break;
      case 1: s->p.width = -1, want = ATTN_E_RANGE, word = "width"; break;
      case 2: s->p.v_own.data = NULL, want = ATTN_E_NULL, word = "v_own"; break;
      case 3: s->p.k_own.data = NULL, want = ATTN_E_NULL, word = "k_own"; break;
      case 4: s->k.len = 8, word = "k must"; break;
      case 5: s->v.len = 8, word = "v must"; break;
      case 6: s->kr.len = 2, s->kr.stride_len = 0, word = "k_relay"; break;
      case 7: s->vr.dim = 5, word = "v_relay"; break;
      case 8: s->p.k_own.dim = 7, word = "k_own"; break;
      case 9: s->p.v_own.len = 8, word = "v_own"; break;
      case 10: s->o.dim = 5, word = "o must"; break;
      case 11: s->p.lse.dim = 2, word = "lse"; break;
      case 12: s->p.lse.dtype = ATTN_F16, want = ATTN_E_DTYPE, word = "lse"; break;
      case 13: s->p.scale = (float)NAN, want = ATTN_E_VALUE, word = "scale"; break;
      case 14: s->k.heads = 3, want = ATTN_E_HEADS, word = "k must"; break;
      case 15: s->kr.data = NULL, want = ATTN_E_NULL, word = "k_relay"; break;
      case 16: s->q.data = NULL, want = ATTN_E_NULL, word = "q.data"; break;
      case 17: s->p.v_own = s->o, want = ATTN_E_OVERLAP, word = "o is"; break;
      case 18: s->o.stride_len = 1, want = ATTN_E_STRIDE, word = "o is"; break;
      case 19: s->q.len = 2, s->q.stride_len = 0, s->o.len = 2, word = "q_relay"; break;
      case 20: s->v.len = 3, word = "v must"; break;
      default: s->vr.batch = 2, s->vr.stride_batch = 0, word = "v_relay"; break;
    }
    promise_reject(&s->does, want, word);
    attn_ctx ctx = test_ctx();
    assert_int_equal(ask(s, &ctx), ATTN_WORKSPACE_REJECTED);
  }
}
