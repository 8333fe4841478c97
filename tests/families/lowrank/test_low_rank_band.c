/* tests/families/lowrank/test_low_rank_band.c owns low-rank plus band attention: both softmaxes pair by pair in
 * float64, what follows from the formula, promises and rejections. */

#include "compound.h"

typedef struct scene {
  attn_tensor o, q_low, k_low, q_band, k_band, v;
  attn_low_rank_band_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_low_rank_band(s->o, s->q_low, s->k_low, s->q_band, s->k_band, s->v, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_low_rank_band_workspace(s->o, s->q_low, s->k_low, s->q_band, s->k_band, s->v, &s->p,
                                      ctx);
}

typedef struct shape {
  int64_t batch, heads, kv_heads, queries, keys, r, dk, dv, width;
  int concat, own_values, mixed; /* mixed: k_low and v have a head each, the others kv_heads */
  attn_dtype low_type, band_type, v_type, o_type;
  test_layout layout;
} shape;

static shape plain(int64_t queries, int64_t keys, int64_t width) {
  shape x = {1, 2, 2, queries,  keys,     3,        6,        5, width,
             0, 0, 0, ATTN_F32, ATTN_F32, ATTN_F32, ATTN_F32, 0};
  return x;
}

static scene *build(const shape *x, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t b = x->batch, h = x->heads, kv = x->kv_heads, wide = x->dv + 2;
  const int64_t one = x->mixed ? 1 : kv;
  s->q_low = drawn(x->low_type, x->layout, b, h, x->queries, x->r, 1, rng);
  s->k_low = drawn(x->low_type, TEST_PADDED, b, one, x->keys, x->r, 1, rng);
  s->q_band = drawn(x->band_type, TEST_BTHD, b, h, x->queries, x->dk, 1, rng);
  s->k_band = drawn(x->band_type, x->layout, b, kv, x->keys, x->dk, 1, rng);
  s->v = drawn(x->v_type, TEST_NEGATIVE, b, one, x->keys, x->dv, 1, rng);
  if (x->own_values)
    s->p.v_band = drawn(x->v_type, TEST_BHTD, b, kv, x->keys, x->concat ? wide : x->dv, 1, rng);
  s->p.half_width = x->width, s->p.concat = x->concat;
  s->o = output(x->o_type, TEST_PADDED, b, h, x->queries,
                x->concat ? x->dv + (x->own_values ? wide : x->dv) : x->dv, &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.out[0] = &s->o;
  return s;
}

/* ---- the oracle -----------------------------------------------------------------------------*/

static double weight(float one, const float *all, int64_t h) {
  return all ? (double)all[h] : one != 0 ? (double)one : signbit(one) ? 0 : 1;
}

static void check(const scene *s, const char *what) {
  const attn_low_rank_band_params *p = &s->p;
  const attn_tensor *vb = p->v_band.data ? &p->v_band : &s->v;
  const int64_t tk = s->k_low.len, tq = s->o.len, heads = s->o.heads;
  const int64_t off = p->has_q_off ? p->q_off : tk - tq, w = p->half_width;
  bag low = bag_of(tk, s->v.dim), band = bag_of(tk, vb->dim);
  for (int64_t n = 0; n < s->o.batch * heads * tq; n++) {
    const int64_t b = n / tq / heads, h = n / tq % heads, i = n % tq, at = i + off;
    const int64_t keys = p->kv_len ? p->kv_len[b] : tk;
    bag_empty(&low), bag_empty(&band);
    for (int64_t j = 0; j < keys && i < (p->q_len ? p->q_len[b] : tq); j++) {
      const int64_t d = j - at;
      if (p->causal && d > 0) continue;
      bag_add(&low,
              scale_of(p->scale_low, s->q_low.dim) * dot_rows(&s->q_low, &s->k_low, b, h, i, j),
              &s->v, b, head_of(&s->v, h, heads), j);
      if (d < -w || d > w) continue;
      double x =
          scale_of(p->scale_band, s->q_band.dim) * dot_rows(&s->q_band, &s->k_band, b, h, i, j);
      if (p->band_bias)
        x += (double)p->band_bias[(p->bias_heads > 1 ? h : 0) * (2 * w + 1) + d + w];
      bag_add(&band, x, vb, b, head_of(vb, h, heads), j);
    }
    bag_close(&low), bag_close(&band);
    const double wl = weight(p->weight_low, p->weights_low, h);
    const double wb = weight(p->weight_band, p->weights_band, h);
    for (int64_t c = 0; c < s->o.dim; c++) {
      const double x1 = c < low.dv ? low.o[c] : 0, x2 = c < band.dv ? band.o[c] : 0;
      const double want = !p->concat ? wl * x1 + wb * x2 : c < low.dv ? x1 : band.o[c - low.dv];
      const double size =
          p->concat ? fmax(low.value, band.value) : fabs(wl) * low.value + fabs(wb) * band.value;
      value_check(oracle_get(&s->o, b, h, i, c), want, 1e-5 * size, s->o.dtype, what, b, h, i, c);
    }
  }
}

static void run(scene *s, const char *what) {
  promise_run(&s->does);
  check(s, what);
}

/* ---- tests ----------------------------------------------------------------------------------*/

void G1_random(void **state) {
  (void)state;
  static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
  test_rng rng = test_seed(7100);
  for (int64_t n = test_count(60, 16); n-- > 0; test_mem_release()) {
    const int64_t keys = test_range(&rng, 1, n % 6 ? 30 : 300);
    shape x =
        plain(test_range(&rng, 1, n % 5 ? 30 : 150), keys, test_range(&rng, 0, n % 4 ? 5 : 40));
    x.batch = test_range(&rng, 1, 2), x.kv_heads = test_range(&rng, 1, 2);
    x.heads = x.kv_heads * test_range(&rng, 1, 2);
    x.r = test_range(&rng, 1, 9), x.dk = test_range(&rng, 1, 9), x.dv = test_range(&rng, 1, 9);
    x.concat = n % 3 == 2, x.own_values = n % 4 == 1, x.mixed = (int)(n / 2 % 2);
    x.low_type = types[n % 4 % 3], x.band_type = types[n / 2 % 4 % 3];
    x.v_type = types[n / 3 % 4 % 3], x.o_type = types[n / 5 % 4 % 3];
    x.layout = (test_layout)(n / 3 % TEST_LAYOUTS);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&x, &rng);
    test_where = TEST_HEAP;
    s->p.causal = n % 7 < 3;
    if (n % 5 == 3) s->p.has_q_off = 1, s->p.q_off = test_range(&rng, -9, 40);
    if (n % 3 == 1) {
      s->p.bias_heads = n % 2 ? x.heads : 0, s->p.bias_len = 2 * x.width + 1;
      s->p.band_bias = test_floats(x.heads * s->p.bias_len, 1, &rng);
    }
    if (n % 4 == 2) s->p.kv_len = test_lengths(x.batch, x.keys, &rng);
    if (n % 6 == 3) s->p.q_len = test_lengths(x.batch, x.queries, &rng);
    if (n % 7 > 4) s->p.scale_low = 0.5f, s->p.scale_band = ATTN_ZERO;
    if (!x.concat && n % 4 == 0) s->p.weight_low = 0.5f, s->p.weight_band = -0.25f;
    if (!x.concat && n % 4 == 3) s->p.weights_low = test_floats(x.heads, 1, &rng);
    if (!x.concat && n % 8 == 3) s->p.weights_band = test_floats(x.heads, 1, &rng);
    run(s, "low rank plus band");
  }
}

/* One of the maps alone is attn_sdpa, bit for bit, and what is left out may hold NaN. */
void G1_one_map(void **state) {
  (void)state;
  test_rng rng = test_seed(7101);
  for (int per_head = 0; per_head < 2; per_head++) {
    static const float zeros[] = {0, 0};
    shape x = plain(70, 90, 90);
    scene *s = build(&x, &rng);
    attn_tensor want = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 70, 5), was = s->q_band;
    attn_ctx ctx = test_ctx();
    s->p.causal = 1;
    attn_sdpa_params p = {0};
    p.causal = 1;
    if (per_head)
      s->p.weights_band = zeros;
    else
      s->p.weight_band = ATTN_ZERO;
    s->q_band = drawn(ATTN_F32, TEST_BHTD, 1, 2, 70, 6, (double)NAN, &rng);
    promise_run(&s->does);
    assert_int_equal(attn_sdpa(want, s->q_low, s->k_low, s->v, &p, &ctx), ATTN_OK);
    test_assert_same(s->o, want, "the low map alone");
    s->p.weights_band = NULL, s->p.weight_band = 0;
    if (per_head)
      s->p.weights_low = zeros;
    else
      s->p.weight_low = ATTN_ZERO;
    s->q_band = was;
    s->q_low = drawn(ATTN_F32, TEST_BHTD, 1, 2, 70, 3, (double)NAN, &rng);
    promise_run(&s->does);
    assert_int_equal(attn_sdpa(want, s->q_band, s->k_band, s->v, &p, &ctx), ATTN_OK);
    test_assert_near(s->o, want, 1e-5, "a band of all keys");
    s->p.weight_band = ATTN_ZERO, s->p.weight_low = ATTN_ZERO, s->p.weights_low = NULL;
    promise_run(&s->does);
    test_fill_value(want, 0);
    test_assert_same(s->o, want, "neither");
  }
}

/* Values of 1 give the sum of the weights, half of it where the band is beside the keys; a constant
 * bias changes nothing; a band of one key is its value. */
void G1_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(7102);
  shape x = plain(40, 30, 2);
  scene *s = build(&x, &rng);
  attn_tensor v = s->v;
  s->v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 30, 5);
  test_fill_value(s->v, 1);
  s->p.weight_low = 0.75f, s->p.weight_band = 0.5f, s->p.has_q_off = 1, s->p.q_off = -5;
  run(s, "values of 1");
  for (int64_t i = 0; i < 40; i++) {
    const double want = i - 5 < -2 || i - 5 > 31 ? 0.75 : 1.25;
    value_check(oracle_get(&s->o, 0, 1, i, 4), want, 1e-6, ATTN_F32, "sum of weights", 0, 1, i, 4);
  }
  s->v = v;
  attn_tensor first = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 40, 5);
  run(s, "no bias");
  test_copy(first, s->o);
  static const float bias[] = {3, 3, 3, 3, 3};
  s->p.band_bias = bias, s->p.bias_len = 5;
  run(s, "constant bias");
  test_assert_near(s->o, first, 1e-5, "constant bias");
  x = plain(30, 30, 0);
  s = build(&x, &rng);
  s->p.weight_low = ATTN_ZERO;
  promise_run(&s->does);
  test_assert_near(s->o, s->v, 1e-6, "a band of one key");
}

void G1_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(7103);
  for (int concat = 0; concat < 2; concat++) {
    shape x = plain(5, 0, 3);
    x.concat = concat;
    run(build(&x, &rng), "no keys");
    x = plain(0, 5, 3), x.concat = concat;
    run(build(&x, &rng), "no queries");
    x = plain(4, 4, 1), x.concat = concat, x.batch = 0;
    run(build(&x, &rng), "no batch");
    x = plain(4, 4, (int64_t)1 << 40), x.concat = concat;
    run(build(&x, &rng), "a wide band");
  }
}

void G1_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(7104);
  for (int concat = 0; concat < 2; concat++) {
    shape x = plain(150, 170, 4);
    x.batch = 2, x.heads = 4, x.concat = concat, x.o_type = concat ? ATTN_BF16 : ATTN_F16;
    scene *s = build(&x, &rng);
    s->p.kv_len = test_lengths(2, 170, &rng), s->p.causal = 1;
    promise_keep(&s->does);
  }
}

void G1_reject(void **state) {
  (void)state;
  test_rng rng = test_seed(7105);
  static const float nan_first[] = {NAN, 1, 1, 1, 1};
  static const int32_t many[] = {10};
  for (int n = 0; n < 41; n++, test_mem_release()) {
    shape x = plain(9, 9, 2);
    scene *s = build(&x, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->p.half_width = -1, want = ATTN_E_RANGE, word = "half_width"; break;
      case 1:
        s->p.half_width = ((int64_t)1 << 40) + 1, want = ATTN_E_RANGE, word = "half_width";
        break;
      case 2: s->p.band_bias = nan_first + 1, s->p.bias_len = 4, word = "bias_len"; break;
      case 3:
        s->p.band_bias = nan_first, s->p.bias_len = 5, want = ATTN_E_VALUE, word = "band_bias";
        break;
      case 4:
        s->p.band_bias = nan_first + 1, s->p.bias_len = 5, s->p.bias_heads = 3, word = "bias_heads";
        break;
      case 5: s->p.weight_low = (float)NAN, want = ATTN_E_VALUE, word = "weight_low"; break;
      case 6: s->p.weight_band = -(float)INFINITY, want = ATTN_E_VALUE, word = "weight_band"; break;
      case 7: s->p.weights_low = nan_first, want = ATTN_E_VALUE, word = "weights_low"; break;
      case 8: s->p.weights_band = nan_first, want = ATTN_E_VALUE, word = "weights_band"; break;
      case 9: s->p.scale_low = (float)NAN, want = ATTN_E_VALUE, word = "scale_low"; break;
      case 10: s->p.scale_band = (float)INFINITY, want = ATTN_E_VALUE, word = "scale_band"; break;
      case 11: s->p.q_off = 1, want = ATTN_E_RANGE, word = "q_off"; break;
      case 12:
        s->p.has_q_off = 1, s->p.q_off = (int64_t)1 << 40, want = ATTN_E_RANGE, word = "q_off";
        break;
      case 13: s->p.kv_len = many, want = ATTN_E_RANGE, word = "kv_len"; break;
      case 14: s->p.q_len = many, want = ATTN_E_RANGE, word = "q_len"; break;
      case 15: s->q_low.dim = 2, word = "k_low"; break;
      case 16: s->k_low.len = 8, word = "k_band"; break;
      case 17: s->q_band.len = 8, word = "q_band"; break;
      case 18: s->k_band.dim = 5, word = "k_band"; break;
      case 19: s->v.len = 8, word = "v must"; break;
      case 20: s->p.v_band = test_rows(s->v, 0, 8), word = "v_band"; break;
      case 21: s->p.v_band = s->v, s->p.v_band.dim = 4, word = "v_band"; break;
      case 22: s->o.dim = 4, word = "o must"; break;
      case 23: s->p.concat = 1, word = "o must"; break;
      case 24:
        s->k_low.heads = 3, s->k_low.stride_head = 0, want = ATTN_E_HEADS, word = "k_low";
        break;
      case 25: s->v.heads = 0, want = ATTN_E_HEADS, word = "v must"; break;
      case 26: s->q_low.data = NULL, want = ATTN_E_NULL, word = "q_low"; break;
      case 27: s->k_band.data = NULL, want = ATTN_E_NULL, word = "k_band"; break;
      case 28: s->o.stride_len = 0, want = ATTN_E_STRIDE, word = "o "; break;
      case 29: s->v = s->o, want = ATTN_E_OVERLAP, word = "o "; break;
      case 30: s->p.v_band = s->o, want = ATTN_E_OVERLAP, word = "o "; break;
      case 31:
        s->p.weights_low = (const float *)oracle_address(&s->o, 0, 0, 0, 0);
        want = ATTN_E_OVERLAP, word = "o ";
        break;
      case 32: s->q_band.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "q_band.dtype"; break;
      case 33: s->q_low.heads = s->q_band.heads = s->o.heads = 0, word = "heads"; break;
      case 34:
        s->p.weights_low = (const float *)((const char *)nan_first + 1), want = ATTN_E_ALIGN,
        word = "weights_low";
        break;
      default:
        x.concat = 1;
        s = build(&x, &rng);
        if (n == 35) s->p.weight_band = ATTN_ZERO;
        if (n == 36) s->p.weight_band = 1;
        if (n == 37) s->p.weight_low = ATTN_ZERO;
        if (n == 38) s->p.weight_low = 0.5f;
        if (n == 39) s->p.weights_low = nan_first + 1;
        if (n == 40) s->p.weights_band = nan_first + 1;
        want = ATTN_E_RANGE, word = "concat";
        break;
    }
    promise_reject(&s->does, want, word);
  }
}
