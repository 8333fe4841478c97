/* tests/calls/test_quantize_sdpa.c owns attention over quantised keys and values: the same as over what
 * they stand for, in every path, and what is said about wrong scales. */

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "list.h"
#include "patterns.h"
#include "stored.h"

static const attn_dtype types[] = {ATTN_I8, ATTN_I4, ATTN_E4M3};

/* Quantised rows in any layout, with any kind of scales. */
static stored draw(attn_dtype type, int64_t batch, int64_t heads, int64_t len, int64_t dim,
                   test_rng *rng) {
  int64_t group = 32 * test_range(rng, 0, 3);
  int zero = type != ATTN_E4M3 && test_u64(rng) % 3 == 0;
  if (type == ATTN_E4M3 && test_u64(rng) % 3 == 0) group = -1;
  stored t = stored_tensor(type, (test_layout)test_range(rng, 0, TEST_LAYOUTS - 1), batch, heads,
                           len, dim, group, zero);
  stored_fill(&t, rng);
  return t;
}

/* A call over k and v, and the same over what they stand for; each may be plain. */
typedef struct pair {
  test_call stored, wide;
  stored k, v;
} pair;

static pair quantise(const test_call *call, int which, test_rng *rng) {
  pair p;
  memset(&p, 0, sizeof p);
  p.wide = test_again(call), p.stored = test_again(call);
  const attn_tensor *k = &call->k, *v = &call->v;
  if (which & 1) {
    p.k = draw(types[test_u64(rng) % 3], k->batch, k->heads, k->len, k->dim, rng);
    p.wide.k = p.k.wide, p.stored.k = p.k.x, p.stored.params.k_scales = p.k.s;
  }
  if (which & 2) {
    p.v = draw(types[test_u64(rng) % 3], v->batch, v->heads, v->len, v->dim, rng);
    p.wide.v = p.v.wide, p.stored.v = p.v.x, p.stored.params.v_scales = p.v.s;
  }
  return p;
}

/* Both give the same bits in the order of many queries; in any order what the oracle says. */
static void check(pair *p, const char *what) {
  p->stored.params.one_order = p->wide.params.one_order = 1;
  test_run(&p->wide);
  test_run(&p->stored);
  test_assert_same_outputs(&p->stored, &p->wide, what);
  test_call few = test_again(&p->stored);
  few.params.one_order = 0;
  test_run(&few);
  few.k = p->wide.k, few.v = p->wide.v;
  memset(&few.params.k_scales, 0, sizeof few.params.k_scales);
  memset(&few.params.v_scales, 0, sizeof few.params.v_scales);
  test_compare_stored(&few, what);
}

/* Any shape, layout, type, kind of scales, beside masks, lengths and a map. */
void A1_quantize_sdpa_random(void **state) {
  (void)state;
  test_rng rng = test_seed(7100);
  static const int64_t dims[] = {1, 5, 16, 31, 33, 64, 70};
  for (int64_t n = test_count(60, 12); n-- > 0;) {
    test_spec spec = test_plain(4, test_range(&rng, 1, 90), test_range(&rng, 1, 280),
                                dims[test_u64(&rng) % 7], dims[test_u64(&rng) % 7]);
    spec.batch = test_range(&rng, 1, 2), spec.k_heads = 1 << test_range(&rng, 0, 2);
    spec.v_heads = 1 << test_range(&rng, 0, 2), spec.map = n % 4 == 0;
    if (n % 3 == 0) spec.q_len = test_range(&rng, 1, 6);
    spec.q_type = (attn_dtype)(n % 3), spec.o_layout = TEST_PADDED;
    test_call call = test_build(&spec, &rng);
    call.params.causal = test_u64(&rng) % 3 == 0;
    if (test_u64(&rng) % 4 == 0) test_left(&call.params, test_range(&rng, 1, 150));
    if (test_u64(&rng) % 3 == 0) call.params.kv_len = test_lengths(spec.batch, spec.k_len, &rng);
    if (test_u64(&rng) % 3 == 0)
      call.params.mask = test_mask(test_u64(&rng) & 1 ? ATTN_MASK_BOOL : ATTN_MASK_BITS, ATTN_F32,
                                   spec.batch, 4, spec.q_len, spec.k_len, &rng);
    if (test_u64(&rng) % 3 == 0) call.params.softcap = 4;
    pair p = quantise(&call, (int)test_range(&rng, 1, 3), &rng);
    check(&p, "quantised keys and values");
    test_mem_release();
  }
}

/* Gathered rows and key lists of schedules. */
void A1_quantize_sdpa_schedules(void **state) {
  (void)state;
  test_rng rng = test_seed(7101);
  for (int64_t n = test_count(24, 9); n-- > 0;) {
    attn_pattern p = n % 3 == 0   ? attn_pattern_random(test_range(&rng, 3, 20), 5)
                     : n % 3 == 1 ? attn_pattern_strided(7)
                                  : attn_pattern_band(20, 9);
    test_graph g = test_graph_of(p, 2, 100, 140);
    test_spec spec = test_plain(2, 100, 140, 33, 20);
    test_call call = test_graph_call(&g, &spec, &rng);
    if (n % 4 == 3) call.params.causal = 1;
    pair two = quantise(&call, (int)(n % 3) + 1, &rng);
    test_run(&two.wide);
    test_run(&two.stored);
    test_assert_same_outputs(&two.stored, &two.wide, "a schedule over quantised rows");
    test_mem_release();
  }
}

/* Rectified weights take them as well. */
void A1_quantize_sdpa_relu(void **state) {
  (void)state;
  test_rng rng = test_seed(7102);
  for (int n = 0; n < 6; n++) {
    test_spec spec = test_plain(2, 40, 150, 24, 17);
    test_call call = test_build(&spec, &rng);
    pair p = quantise(&call, n % 3 + 1, &rng);
    attn_relu_params a, b;
    memset(&a, 0, sizeof a);
    a.kind = n < 3 ? ATTN_RELU_LEN : ATTN_RELU_NORM;
    b = a;
    a.attention.k_scales = p.stored.params.k_scales,
    a.attention.v_scales = p.stored.params.v_scales;
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_relu(p.stored.o, p.stored.q, p.stored.k, p.stored.v, &a, &ctx), ATTN_OK);
    assert_int_equal(attn_relu(p.wide.o, p.wide.q, p.wide.k, p.wide.v, &b, &ctx), ATTN_OK);
    test_assert_same(p.stored.o, p.wide.o, "rectified weights");
  }
}

/* No byte of rows or scales that does not exist, none of keys from kv_len on; any workers. */
void A1_quantize_sdpa_memory(void **state) {
  (void)state;
  test_rng rng = test_seed(7103);
  for (int n = 0; n < 24; n++) {
    test_where = n & 1 ? TEST_AFTER_GUARD : TEST_BEFORE_GUARD;
    test_spec spec = test_plain(2, n % 3 ? 33 : 2, 131, 31 + n % 5, 15 + n % 7);
    test_call call = test_build(&spec, &rng);
    pair p = quantise(&call, 3, &rng);
    check(&p, "against unreadable pages");
    int32_t *len = test_mem(sizeof *len);
    *len = 100;
    test_call cut = test_again(&p.stored);
    cut.params.kv_len = len;
    test_run(&cut);
    /* the same with keys past the length behind the wall, and bad scales there */
    stored k = stored_tensor(types[n % 3], TEST_BHTD, 1, 2, 131, spec.dk, 0, 0);
    stored v = stored_tensor(types[n % 3], TEST_BHTD, 1, 2, 131, spec.dv, 0, 0);
    stored_fill(&k, &rng), stored_fill(&v, &rng);
    cut.k = k.x, cut.v = v.x, cut.params.k_scales = k.s, cut.params.v_scales = v.s;
    test_call good = test_again(&cut), bad = test_again(&cut);
    test_run(&good);
    for (int h = 0; h < 2; h++)
      for (int j = 100; j < 131; j++) {
        k.s.scale[h * 131 + j] = v.s.scale[h * 131 + j] = NAN;
        memset(stored_row(&v.x, 0, h, j), 0x7f, (size_t)(v.x.dtype == ATTN_I4 ? 7 : 15));
      }
    attn_ctx ctx = test_ctx();
    ctx.validate = 1, ctx.workers = 3, ctx.parallel_for = test_parallel_threads;
    assert_int_equal(attn_sdpa(bad.o, bad.q, bad.k, bad.v, &bad.params, &ctx), ATTN_OK);
    test_assert_same_outputs(&bad, &good, "keys past the length");
    test_mem_release();
  }
}

/* NaN codes, and scales that make NaN or infinity, reach the rows that read them and no others. */
void A1_quantize_sdpa_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(7104);
  for (int n = 0; n < 12; n++)
    for (int few = 0; few < 2; few++) {
      int64_t tq = few ? 6 : 40, tk = 70;
      test_spec spec = test_plain(1, tq, tk, 8, 5);
      test_call call = test_build(&spec, &rng);
      call.params.causal = 1;
      stored v = stored_tensor(types[n % 3], TEST_BHTD, 1, 1, tk, 5, 0, n % 6 == 1);
      stored_fill(&v, &rng);
      call.v = v.x, call.params.v_scales = v.s;
      test_call clean = test_again(&call), dirty = test_again(&call);
      test_run(&clean);
      int64_t j = tk - 1 - n % 4; /* read by the last rows only */
      if (v.x.dtype == ATTN_E4M3 && n < 6)
        stored_row(&v.x, 0, 0, j)[2] = n & 1 ? 0x7f : 0xff;
      else
        v.s.scale[j] = n & 1 ? NAN : n & 2 ? INFINITY : FLT_MAX;
      test_run(&dirty);
      int64_t first = j - (tk - tq);
      stored_widen(&v);
      for (int64_t i = 0; i < tq; i++)
        for (int64_t c = 0; c < 5; c++) {
          double x = oracle_get(&dirty.o, 0, 0, i, c), y = oracle_get(&clean.o, 0, 0, i, c);
          if (i < first && x != y) fail_msg("row %d, which cannot read it, has changed", (int)i);
          int scaled = few && isfinite(v.s.scale ? v.s.scale[j] : 1); /* weight times scale first */
          if (i >= first && !scaled && !isfinite(oracle_get(&v.wide, 0, 0, j, c)) && isfinite(x))
            fail_msg("row %d does not show it", (int)i);
        }
    }
}

/* What is wrong with scales is said by name and touches nothing. */
void A1_quantize_sdpa_rejects(void **state) {
  (void)state;
  for (int n = 0; n < 24; n++) {
    test_rng rng = test_seed(7105);
    test_spec spec = test_plain(2, 3, 40, 64, 70);
    test_call call = test_build(&spec, &rng);
    test_block out = test_last_block;
    stored k = stored_tensor(n == 13 ? ATTN_I4 : ATTN_I8, TEST_PADDED, 1, 2, 40, 64, 32, 1);
    stored v = stored_tensor(ATTN_E4M3, TEST_PADDED, 1, 2, 40, 70, 32, 0);
    stored_fill(&k, &rng), stored_fill(&v, &rng);
    call.k = k.x, call.v = v.x, call.params.k_scales = k.s, call.params.v_scales = v.s;
    attn_scales *ks = &call.params.k_scales, *vs = &call.params.v_scales;
    attn_ctx ctx = test_ctx();
    attn_status want = ATTN_OK;
    const char *word = "";
    ctx.validate = 1;
    switch (n) {
      case 0: ks->scale = NULL, want = ATTN_E_NULL, word = "params.k_scales.scale"; break;
      case 1: ks->zero = NULL; break;
      case 2: vs->scale = NULL; break;
      case 3: vs->zero = k.s.zero, want = ATTN_E_DTYPE, word = "params.v_scales.zero"; break;
      case 4: ks->group = 31, want = ATTN_E_SHAPE, word = "params.k_scales.group"; break;
      case 5: vs->group = -32, want = ATTN_E_SHAPE, word = "params.v_scales.group"; break;
      case 6: ks->scale[1] = 0, want = ATTN_E_SCALE, word = "params.k_scales"; break;
      case 7: ks->zero[0] = NAN, want = ATTN_E_SCALE, word = "params.k_scales"; break;
      case 8:
        vs->scale[vs->stride_head + 39 * vs->stride_len + 2] = INFINITY;
        want = ATTN_E_SCALE, word = "params.v_scales";
        break;
      case 9:
        ks->scale = (float *)(void *)((char *)ks->scale + 2), want = ATTN_E_ALIGN;
        word = "params.k_scales.scale";
        break;
      case 10: call.k = k.wide, want = ATTN_E_DTYPE, word = "params.k_scales"; break;
      case 11: call.q.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "q.dtype"; break;
      case 12: call.o.dtype = ATTN_E4M3, want = ATTN_E_DTYPE, word = "o.dtype"; break;
      case 13: call.k.stride_head++, want = ATTN_E_STRIDE, word = "k"; break;
      case 14: vs->scale = call.o.data, want = ATTN_E_OVERLAP, word = "o"; break;
      case 15: call.params.lse.data = ks->zero, want = ATTN_E_OVERLAP, word = "lse"; break;
      case 16: ks->stride_head = INT64_MAX / 2, want = ATTN_E_OVERFLOW, word = "k_scales"; break;
      case 17: call.k.dtype = ATTN_DTYPE_COUNT, want = ATTN_E_DTYPE, word = "k.dtype"; break;
      case 18:
        ctx.workspace = ks->scale, ctx.workspace_size = 64, want = ATTN_E_OVERLAP;
        word = "workspace";
        break;
      case 19: call.params.lse.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "lse"; break;
      case 20: ks->group = 32 * 1000003LL; break; /* more than a row is the row */
      case 21: ctx.validate = 0, ks->scale[0] = -1; break;
      case 22:
        call.params.bias = attn_mask_add(k.s.scale, ATTN_E4M3, 1, 1, 1, 40), want = ATTN_E_DTYPE;
        word = "params.bias";
        break;
      default: call.v.dtype = (attn_dtype)-1, want = ATTN_E_DTYPE, word = "v.dtype";
    }
    unsigned char *before = test_mem(out.size);
    memcpy(before, out.data, out.size);
    attn_status got = attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx);
    if (got != want) fail_msg("rule %d: %d (%s)", n, got, ctx.reason);
    if (want == ATTN_OK) continue;
    if (!ctx.reason || !strstr(ctx.reason, word))
      fail_msg("rule %d: \"%s\" lacks \"%s\"", n, ctx.reason, word);
    assert_memory_equal(before, out.data, out.size);
    for (int64_t i = 0; i < 2 * 3 * 70 && n != 12; i++)
      assert_memory_equal((char *)call.o.data + 4 * i, "\xA5\xA5\xA5\xA5", 4);
  }
}

/* Other calls take floats only. */
void A1_quantize_elsewhere(void **state) {
  (void)state;
  test_rng rng = test_seed(7106);
  test_spec spec = test_plain(2, 8, 8, 6, 6);
  test_call c = test_build(&spec, &rng);
  attn_tensor bad = stored_tensor(ATTN_E4M3, TEST_BHTD, 1, 2, 8, 6, -1, 0).x, none;
  memset(&none, 0, sizeof none);
  attn_edges_params edges;
  memset(&edges, 0, sizeof edges);
  int64_t ptr[9] = {0};
  edges.indptr = ptr;
  attn_ctx ctx = test_ctx();
#define REFUSES(call)                             \
  do {                                            \
    ctx.reason = NULL;                            \
    assert_int_equal((call), ATTN_E_DTYPE);       \
    assert_non_null(strstr(ctx.reason, "dtype")); \
  } while (0)
  REFUSES(attn_edges(c.o, c.q, bad, c.v, &edges, &ctx));
  REFUSES(attn_edges(c.o, c.q, c.k, bad, &edges, &ctx));
  REFUSES(attn_rope(c.o, bad, NULL, &ctx));
  REFUSES(attn_rope(bad, c.q, NULL, &ctx));
  attn_tensor l1 = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 8, 1);
  attn_tensor l2 = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 8, 1);
  REFUSES(attn_merge(c.o, none, bad, l1, c.v, l2, &ctx));
  REFUSES(attn_merge(bad, none, c.q, l1, c.v, l2, &ctx));
  REFUSES(attn_sinusoid(bad, none, NULL, &ctx));
  attn_segmented_params segments;
  memset(&segments, 0, sizeof segments);
  segments.length = 4;
  REFUSES(
      attn_segmented(c.o, c.q, bad, c.v, &segments, &ctx)); /* calls made of calls check alike */
#undef REFUSES
}

/* The largest |x - y|, y null = 0. The numbers pass through a volatile: gcc 12 for ARM fails in
 * vectorising such a loop (vect_transform_reduction). */
static double test_worst(const void *x, const void *y, int64_t n) {
  double worst = 0;
  for (int64_t i = 0; i < n; i++) {
    volatile double d = (double)((const float *)x)[i];
    if (y) d -= (double)((const float *)y)[i];
    if (!(fabs(d) <= worst)) worst = fabs(d);
  }
  return worst;
}

/* How far int8 keys and values take a row from f32: the worst of rows of normal numbers, over the
 * largest |v|. docs/numerics.md has measured figures. */
void A1_quantize_accuracy(void **state) {
  (void)state;
  test_rng rng = test_seed(7107);
  static const double most[3] = {0.01, 0.2, 0.06};
  for (int type = 0; type < 3; type++) {
    test_spec spec = test_plain(2, 64, 512, 64, 64);
    test_call call = test_build(&spec, &rng), f32 = test_again(&call);
    test_run(&f32);
    stored k = stored_tensor(types[type], TEST_BHTD, 1, 2, 512, 64, 0, 0), v = k;
    v = stored_tensor(types[type], TEST_BHTD, 1, 2, 512, 64, 0, 0);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_quantize(k.x, k.s, call.k, &ctx), ATTN_OK);
    assert_int_equal(attn_quantize(v.x, v.s, call.v, &ctx), ATTN_OK);
    const double top = test_worst(call.v.data, NULL, 2 * 512 * 64);
    call.k = k.x, call.v = v.x, call.params.k_scales = k.s, call.params.v_scales = v.s;
    test_run(&call);
    const double worst = test_worst(call.o.data, f32.o.data, 2 * 64 * 64) / top;
    if (!(worst <= most[type])) fail_msg("type %d: %g", types[type], worst);
  }
}
