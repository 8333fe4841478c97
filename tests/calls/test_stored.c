/* tests/calls/test_stored.c owns quantised keys and values: few queries, many, windows, masks, terms,
 * every way their scales may lie. The oracle reads the numbers they stand for. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "few.h"
#include "list.h"

static const attn_dtype types[] = {ATTN_I8, ATTN_I4, ATTN_E4M3};

void A1_stored_few_queries(void **state) {
  (void)state;
  few_check(FEW_QUANTISED, 800, test_count(60, 12), 1 << 18, "stored, few queries");
}

void A1_stored_few_queries_combined(void **state) {
  (void)state;
  few_check(FEW_ALL, 801, test_count(90, 16), 1 << 17, "stored, few queries, all features");
}

/* Many queries: quantised k, v or both beside any float type. */
static kept_call many(test_rng *rng, int64_t most) {
  static const int64_t heads[] = {1, 2, 3, 4};
  test_spec z = test_plain(heads[test_u64(rng) % 4], test_range(rng, 17, 150), 0,
                           test_range(rng, 1, 80), test_range(rng, 1, 80));
  z.k_heads = test_u64(rng) & 1 ? 1 : z.heads;
  z.v_heads = test_u64(rng) & 1 ? 1 : z.heads;
  z.batch = test_range(rng, 1, 2);
  z.q_type = (attn_dtype)(test_u64(rng) % 3);
  z.o_type = (attn_dtype)(test_u64(rng) % 3);
  kept_call c;
  c.call = test_build(&z, rng);
  int64_t keys = few_keys(rng, most);
  attn_dtype k = types[test_u64(rng) % 3], v = test_u64(rng) & 1 ? k : types[test_u64(rng) % 3];
  uint64_t which = test_u64(rng) % 4;
  if (which == 0) k = (attn_dtype)(test_u64(rng) % 3);
  if (which == 1) v = (attn_dtype)(test_u64(rng) % 3);
  kept_spec ks = kept_some(k, z.batch, z.k_heads, keys, z.dk, rng);
  kept_spec vs = kept_some(v, z.batch, z.v_heads, keys, z.dv, rng);
  const kept values = kept_rows(&vs, rng), rows = kept_rows(&ks, rng); /* drawn in this order */
  kept_put(&c, rows, values);
  return c;
}

void A1_stored_many_queries(void **state) {
  (void)state;
  for (int64_t n = 0; n < test_count(40, 10); n++) {
    test_rng rng = test_seed(802000 + (uint64_t)n);
    kept_call c = many(&rng, 200);
    char text[64];
    snprintf(text, sizeof text, "stored, many queries, case %d", (int)n);
    c.call.params.causal = n & 1;
    kept_check(&c, text);
    test_mem_release();
  }
}

void A1_stored_masks_and_windows(void **state) {
  (void)state;
  for (int64_t n = 0; n < test_count(40, 10); n++) {
    test_rng rng = test_seed(803000 + (uint64_t)n);
    kept_call c = many(&rng, 200);
    attn_sdpa_params *p = &c.call.params;
    int64_t b = c.call.q.batch, h = c.call.q.heads, tq = c.call.q.len, tk = c.call.k.len;
    if (n % 2) p->causal = 1;
    if (n % 3) test_left(p, test_range(&rng, -1, 90));
    if (n % 5 == 1) test_right(p, test_range(&rng, -1, 90));
    if (n % 3 == 1) p->kv_len = test_lengths(b, tk, &rng);
    if (n % 4 == 1) p->mask = test_mask(ATTN_MASK_BITS, ATTN_F32, b, h, tq, tk, &rng);
    if (n % 4 == 2) p->bias = test_mask(ATTN_MASK_ADD, ATTN_F16, b, h, tq, tk, &rng);
    if (n % 4 == 3) p->mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, b, h, tq, tk, &rng);
    if (n % 5 == 2) p->alibi = test_floats(h, 0.1, &rng);
    if (n % 5 == 3) p->softcap = 3;
    if (n % 2) p->softcap_at = ATTN_SOFTCAP_BIASED;
    if (n % 5 == 4) p->sinks = test_floats(h, 1, &rng);
    if (n % 7 == 0) test_add_terms(&c.call, (int)test_u64(&rng) & TERM_ALL & ~TERM_XL, &rng);
    char text[64];
    snprintf(text, sizeof text, "stored, masks, case %d", (int)n);
    kept_check(&c, text);
    test_mem_release();
  }
}

/* Every code of every type at every place of a row, by one key: the output is the value. */
void A1_stored_every_code(void **state) {
  (void)state;
  for (int type = 0; type < 3; type++) {
    for (int tq = 1; tq <= 17; tq += 16) {
      for (int code = 0; code < 256; code++) {
        if (type == 2 && (code & 0x7f) == 0x7f) continue;
        test_rng rng = test_seed(804);
        test_spec z = test_plain(1, tq, 0, 4, 45);
        kept_call c;
        c.call = test_build(&z, &rng);
        kept_spec ks = {ATTN_F32, TEST_BHTD, 1, 1, 1, 4, 0, 0, 0, SCALE_DENSE};
        kept_spec vs = {types[type], TEST_BHTD, 1, 1, 1, 45, 0, type < 2, 0, SCALE_DENSE};
        kept k = kept_rows(&ks, &rng), v = kept_rows(&vs, &rng);
        memset(v.t.data, code, (size_t)kept_bytes(types[type], 45));
        v.s.scale[0] = 0.5f;
        if (v.s.zero) v.s.zero[0] = 3;
        kept_put(&c, k, v);
        test_run(&c.call);
        for (int64_t e = 0; e < 45; e++) {
          double want = (kept_code(&v.t, 0, 0, 0, e) - (type < 2 ? 3 : 0)) / 2;
          double got = oracle_get(&c.call.o, 0, 0, tq - 1, e);
          if (fabs(got - want) > 1e-6 * fabs(want)) {
            fail_msg("type %d, code %d, column %d: %.9g, not %.9g", type, code, (int)e, got, want);
          }
        }
        test_mem_release();
      }
    }
  }
}

/* A NaN among codes or scales reaches the rows that read it and no other. */
void A1_stored_nan(void **state) {
  (void)state;
  for (int n = 0; n < 48; n++) {
    test_rng rng = test_seed(805);
    int64_t tq = n & 1 ? 2 : 40, tk = n & 2 ? 300 : 60;
    test_spec z = test_plain(2, tq, 0, 40, 40);
    z.k_heads = z.v_heads = n & 4 ? 1 : 2;
    kept_call c;
    c.call = test_build(&z, &rng);
    kept_spec s = {types[n / 16], TEST_BHTD, 1, z.k_heads, tk, 40, 32, n / 16 < 2, 0, SCALE_DENSE};
    const kept values = kept_rows(&s, &rng), rows = kept_rows(&s, &rng); /* drawn in this order */
    kept_put(&c, rows, values);
    c.call.params.causal = 1;
    kept_check(&c, "before");
    test_call clean = test_again(&c.call);
    test_run(&clean);
    kept_poison(n & 8 ? &c.v : &c.k, 0, z.k_heads - 1, tk - 1); /* the last query alone sees it */
    test_run(&c.call);
    attn_tensor o = test_one(c.call.o, 0, 1, 1, 1), was = test_one(clean.o, 0, 1, 1, 1);
    test_assert_same(test_rows(o, 0, tq - 1), test_rows(was, 0, tq - 1), "rows before it");
    for (int64_t e = 0; e < 40; e++) assert_true(isnan(oracle_get(&o, 0, 0, tq - 1, e)));
    int32_t length = (int32_t)tk - 1; /* nobody sees it */
    c.call.params.kv_len = &length;
    test_run(&c.call);
    for (int64_t e = 0; e < 40; e++) assert_true(!isnan(oracle_get(&o, 0, 0, tq - 1, e)));
    test_mem_release();
  }
}

/* Quantised rows have the bits of the floats they stand for only within roundings, but the same bits
 * for any workers and layout, on avx2 and avx512. */
void A1_stored_bits(void **state) {
  (void)state;
  for (int n = 0; n < test_count(24, 8); n++) {
    test_rng rng = test_seed(806000 + (uint64_t)n);
    kept_call c = n & 1 ? many(&rng, 300) : few_call(FEW_QUANTISED, 1 << 17, &rng);
    test_call want = test_again(&c.call), got = test_again(&c.call);
    test_run(&want);
    for (int workers = 2; workers < 8; workers += 5) {
      attn_ctx ctx = test_ctx();
      ctx.workers = workers;
      ctx.parallel_for = test_parallel_threads;
      assert_int_equal(attn_sdpa(got.o, got.q, got.k, got.v, &got.params, &ctx), ATTN_OK);
      test_assert_same_outputs(&got, &want, "workers");
    }
    if (test_isa == ATTN_ISA_AVX512) {
      attn_ctx ctx = test_ctx();
      ctx.isa = ATTN_ISA_AVX2;
      assert_int_equal(attn_sdpa(got.o, got.q, got.k, got.v, &got.params, &ctx), ATTN_OK);
      test_assert_same_outputs(&got, &want, "avx2 and avx512");
    }
    /* dense copies of the same rows */
    kept *x[2] = {&c.k, &c.v};
    for (int k = 0; k < 2; k++) {
      kept_spec s = {x[k]->t.dtype,         TEST_BHTD,   x[k]->t.batch, x[k]->t.heads,
                     x[k]->t.len,           x[k]->t.dim, x[k]->s.group, x[k]->s.zero != NULL,
                     x[k]->s.scale == NULL, SCALE_DENSE};
      kept y = kept_rows(&s, &rng);
      for (int64_t r = 0; r < s.batch * s.len; r++) {
        kept_move(&y, r / s.len, r % s.len, x[k], r / s.len, r % s.len);
      }
      *x[k] = y;
    }
    kept_put(&c, c.k, c.v);
    got.k = c.call.k, got.v = c.call.v;
    got.params.k_scales = c.k.s, got.params.v_scales = c.v.s;
    test_run(&got);
    test_assert_same_outputs(&got, &want, "another layout");
    test_mem_release();
  }
}

/* Codes and scales lie against unreadable pages. */
void A1_stored_guard_pages(void **state) {
  (void)state;
  for (int n = 0; n < test_count(120, 24); n++) {
    test_rng rng = test_seed(807000 + (uint64_t)n);
    test_where = n & 1 ? TEST_AFTER_GUARD : TEST_BEFORE_GUARD;
    kept_call c = n % 3 ? few_call(FEW_ALL, 1 << 14, &rng) : many(&rng, 70);
    attn_ctx ctx = test_ctx();
    size_t size = attn_sdpa_workspace(c.call.o, c.call.q, c.call.k, c.call.v, &c.call.params, &ctx);
    ctx.workspace = test_mem(size);
    ctx.workspace_size = size;
    attn_status status = attn_sdpa(c.call.o, c.call.q, c.call.k, c.call.v, &c.call.params, &ctx);
    if (status != ATTN_OK) fail_msg("%s", ctx.reason);
    test_where = TEST_HEAP;
    kept_compare(&c, "stored, between guard pages");
    test_mem_release();
  }
}
