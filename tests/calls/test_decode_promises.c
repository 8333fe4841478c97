/* tests/calls/test_decode_promises.c owns what calls with few queries promise beside numbers: bits, memory,
 * forbidden keys, NaN, and the report. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "few.h"
#include "list.h"

static attn_status sdpa(const test_call *c, attn_ctx *ctx) {
  return attn_sdpa(c->o, c->q, c->k, c->v, &c->params, ctx);
}

/* Any number of workers in any order, and the other vector tier, give the same bits. */
void A1_decode_bits(void **state) {
  (void)state;
  static const attn_parallel_fn loops[] = {test_parallel_forward, test_parallel_backward,
                                           test_parallel_threads};
  static const int workers[] = {1, 2, 3, 7};
  for (int n = 0; n < test_count(40, 10); n++) {
    test_rng rng = test_seed(720000 + (uint64_t)n);
    kept_call c = few_call(n < 12 ? 0 : FEW_ALL, 1 << 17, &rng);
    test_call want = test_again(&c.call), got = test_again(&c.call);
    want.o.dtype = c.call.o.dtype;
    test_run(&want);
    for (int k = 0; k < 4; k++) {
      attn_ctx ctx = test_ctx();
      int64_t most = 0;
      ctx.workers = workers[k];
      ctx.parallel_for = loops[(k + n) % 3];
      ctx.parallel_user = &most;
      assert_int_equal(sdpa(&got, &ctx), ATTN_OK);
      assert_in_range(most, 0, workers[k]);
      test_assert_same_outputs(&got, &want, "workers");
    }
    if (test_isa == ATTN_ISA_AVX512) {
      attn_ctx ctx = test_ctx();
      ctx.isa = ATTN_ISA_AVX2;
      assert_int_equal(sdpa(&got, &ctx), ATTN_OK);
      test_assert_same_outputs(&got, &want, "avx2 and avx512");
    }
    test_mem_release();
  }
}

/* The bits that every tier with fused multiply-add must produce, of inputs that every machine has: each
 * storage type of keys and values, by row and by lane, in one split and in several. */
static const uint64_t golden[] = {
    0x40d2084475206ed0u, 0xcbc63868d266133du, 0x7a8fb603d4154bfdu, 0x3e70be1e78608346u,
    0x5871e992343668c5u, 0x50ea8b5e241c6136u, 0x9fbdba21bf04a23eu, 0x2ac3eb091e314e31u,
    0x514fb9330eeb3cf6u, 0x2cfa317e4ae5e0bcu, 0xcfa6f8b6d0ca7974u, 0xc9c7c2a94f1734f2u,
    0x7b95ed9247231d54u, 0xe7ed4039facdcf20u, 0x54fa6d763a8207acu, 0x5005c49f6d0fbeaau,
    0x78ed0eddcee7e94fu, 0x0f4683a4afb21a47u, 0x67748946aa490290u, 0x0d8245a005d8b7bbu,
    0x3fd395e905f867c8u, 0xb7c5496203acc8c3u, 0x5040fbf2df669301u, 0x864ae8af0bff45f5u,
};
void A1_decode_golden(void **state) {
  (void)state;
  for (int n = 0; n < 24; n++) {
    test_rng rng = test_seed(735000 + (uint64_t)n);
    attn_dtype type = (attn_dtype)(n % 6);
    test_spec z = test_plain(n / 6 % 2 ? 20 : 3, 1 + n % 2, 0, 40, 33);
    int64_t keys = n < 12 ? 300 : 2100;
    kept_call c;
    z.k_heads = z.v_heads = 1;
    c.call = test_build(&z, &rng);
    int coded = type >= ATTN_I8;
    kept_spec k = {type, TEST_BHTD, 1, 1, keys, 40, 0, 0, 0, SCALE_DENSE};
    kept_spec v = {type, TEST_BHTD, 1, 1, keys, 33, 0, 0, 0, SCALE_DENSE};
    if (coded && n / 12) k.group = 32;
    if (coded && type != ATTN_E4M3) v.zero = n / 12;
    const kept values = kept_rows(&v, &rng), rows = kept_rows(&k, &rng); /* in this order */
    kept_put(&c, rows, values);
    test_fill(c.call.q, &rng, test_exact);
    if (!coded) test_fill(c.call.k, &rng, test_exact);
    if (!coded) test_fill(c.call.v, &rng, test_exact);
    if (!coded) test_copy(c.k.plain, c.call.k);
    if (!coded) test_copy(c.v.plain, c.call.v);
    c.call.params.causal = 1;
    kept_check(&c, "golden");
    uint64_t hash = 0xCBF29CE484222325u;
    const attn_tensor *out[2] = {&c.call.o, &c.call.params.lse};
    for (int t = 0; t < 2; t++) {
      const unsigned char *bytes = out[t]->data;
      for (int64_t e = 0; e < 4 * out[t]->heads * out[t]->len * out[t]->dim; e++)
        hash = (hash ^ bytes[e]) * 0x100000001B3u;
    }
    test_mem_release();
    if (test_isa == ATTN_ISA_SCALAR || test_other_bits) continue;
    if (hash != golden[n]) {
      fail_msg("case %d: hash 0x%016llx, not the golden one", n, (unsigned long long)hash);
    }
  }
}

/* One long row can be shared by several workers. */
void A1_decode_uses_workers(void **state) {
  (void)state;
  test_rng rng = test_seed(721);
  test_spec z = test_plain(1, 1, 20000, 8, 8);
  test_call call = test_build(&z, &rng);
  attn_ctx ctx = test_ctx();
  int64_t most = 0;
  ctx.workers = 4;
  ctx.parallel_for = test_parallel_threads;
  ctx.parallel_user = &most;
  assert_int_equal(sdpa(&call, &ctx), ATTN_OK);
  assert_true(most >= 2);
  assert_true(ctx.report.workers >= 2);
  test_compare(&call, "one row, four workers");
}

/* A sequence alone, a head alone and a query alone give the bits of the whole call. */
void A1_decode_composition(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++) {
    test_rng rng = test_seed(722000 + (uint64_t)n);
    int64_t tq = n & 1 ? 4 : 1, tk = n & 2 ? 2600 : 300, b = n & 1, h = n % 4;
    test_spec z = test_plain(4, tq, tk, 20, 12);
    z.batch = 2;
    z.k_heads = z.v_heads = 2;
    z.k_type = z.v_type = (attn_dtype)(n % 3);
    test_call call = test_build(&z, &rng);
    attn_sdpa_params *p = &call.params;
    int32_t lengths[2] = {(int32_t)tk, (int32_t)(tk / 2 + n)};
    p->kv_len = lengths;
    p->causal = p->has_q_off = 1;
    p->q_off = tk - tq;
    test_left(p, n & 4 ? tk / 3 : -1);
    p->alibi = test_floats(4, 0.01, &rng);
    if (n & 4) p->bias = test_mask(ATTN_MASK_ADD, ATTN_F32, 1, 1, 1, tk, &rng);
    test_run(&call);
    test_compare(&call, "the whole");
    test_call one = call;
    one.q = test_one(call.q, b, 1, h, 1);
    one.k = test_one(call.k, b, 1, h / 2, 1);
    one.v = test_one(call.v, b, 1, h / 2, 1);
    one.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, tq, 12);
    one.params.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, tq, 1);
    one.params.kv_len += b;
    one.params.alibi += h;
    test_run(&one);
    test_assert_same(one.o, test_one(call.o, b, 1, h, 1), "one head alone");
    test_assert_same(one.params.lse, test_one(p->lse, b, 1, h, 1), "one head alone");
    for (int64_t i = 0; i < tq; i++) {
      test_call row = call;
      row.q = test_rows(call.q, i, 1);
      row.o = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, 1, 12);
      row.params.lse = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, 1, 1);
      row.params.q_off += i;
      test_run(&row);
      test_assert_same(row.o, test_rows(call.o, i, 1), "one query alone");
      test_assert_same(row.params.lse, test_rows(p->lse, i, 1), "one query alone");
    }
  }
}

/* Copies of heads, strides and keys behind the last visible one change no bit. */
void A1_decode_views(void **state) {
  (void)state;
  for (int n = 0; n < 9; n++) {
    test_rng rng = test_seed(723000 + (uint64_t)n);
    test_spec z = test_plain(6, 1 + n % 2, n & 2 ? 1500 : 200, 33, 18);
    z.k_heads = z.v_heads = 2;
    z.k_type = z.v_type = (attn_dtype)(n % 3);
    test_call call = test_build(&z, &rng), other = test_again(&call);
    test_run(&call);
    test_layout layout = (test_layout)(TEST_BTHD + n % 3);
    other.k = test_tensor(z.k_type, layout, 1, 6, z.k_len + 40, 33);
    other.v = test_tensor(z.v_type, layout, 1, 6, z.k_len + 40, 18);
    int32_t length = (int32_t)z.k_len;
    test_fill_value(other.k, (double)NAN);
    test_fill_value(other.v, (double)NAN);
    for (int64_t h = 0; h < 6; h++) {
      test_copy(test_rows(test_one(other.k, 0, 1, h, 1), 0, length),
                test_one(call.k, 0, 1, h / 3, 1));
      test_copy(test_rows(test_one(other.v, 0, 1, h, 1), 0, length),
                test_one(call.v, 0, 1, h / 3, 1));
    }
    other.params.kv_len = &length;
    test_run(&other);
    test_assert_same_outputs(&other, &call, "copies of heads in another layout");
  }
}

/* one_order: a few queries have the bits that they have among many. */
void A1_decode_one_order(void **state) {
  (void)state;
  for (int n = 0; n < 12; n++) {
    test_rng rng = test_seed(724000 + (uint64_t)n);
    test_spec z = test_plain(4, 130, n & 1 ? 1400 : 300, 24, 20);
    z.k_heads = z.v_heads = n & 2 ? 1 : 4;
    z.k_type = (attn_dtype)(n % 3);
    test_call call = test_build(&z, &rng);
    call.params.causal = n % 4 < 2;
    call.params.has_q_off = 1;
    call.params.q_off = z.k_len - 140;
    test_left(&call.params, n % 3 == 1 ? 50 : -1);
    if (n % 3 == 2) call.params.alibi = test_floats(4, 0.1, &rng);
    test_run(&call);
    for (int k = 0; k < 3; k++) {
      int64_t i = test_range(&rng, 0, 129), len = test_range(&rng, 1, 130 - i > 16 ? 16 : 130 - i);
      test_call part = call;
      part.q = test_rows(call.q, i, len);
      part.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, len, 20);
      part.params.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, len, 1);
      part.params.q_off += i;
      part.params.one_order = 1;
      attn_report report = test_run(&part);
      assert_null(strstr(report.path, "few"));
      test_assert_same(part.o, test_rows(call.o, i, len), "one order");
      test_assert_same(part.params.lse, test_rows(call.params.lse, i, len), "one order");
    }
  }
}

/* Pairs that a mask of any kind, a bound or a length takes away: the same bits. */
void A1_decode_masks_agree(void **state) {
  (void)state;
  for (int n = 0; n < 12; n++) {
    test_rng rng = test_seed(725000 + (uint64_t)n);
    int64_t heads = n & 1 ? 2 : 12, tq = n & 2 ? 3 : 1, tk = n & 4 ? 1300 : 200;
    int64_t row = (tk + 7) / 8, left = tk / 2, off = tk - tq - 7;
    test_spec z = test_plain(heads, tq, tk, 10, 11);
    z.k_heads = z.v_heads = n & 1 ? 2 : 1;
    test_call call = test_build(&z, &rng), bytes = test_again(&call), bits = test_again(&call),
              add = test_again(&call);
    uint8_t *allowed = test_mem((size_t)(tq * tk)), *packed = test_mem((size_t)(tq * row));
    float *bias = test_mem((size_t)(tq * tk) * sizeof *bias);
    memset(packed, 0, (size_t)(tq * row));
    for (int64_t c = 0; c < tq * tk; c++) {
      int64_t i = c / tk, j = c % tk, p = i + off;
      int ok = n < 8 ? j <= p && p - j <= left : test_u64(&rng) % 3 != 0;
      allowed[c] = (uint8_t)(ok ? 1 + j % 255 : 0);
      bias[c] = ok ? 0 : -INFINITY;
      if (ok) packed[i * row + j / 8] |= (uint8_t)(1 << j % 8);
    }
    bytes.params.mask = attn_mask_bool(allowed, 1, 1, tq, tk);
    bits.params.mask = attn_mask_bits(packed, 1, 1, tq, tk);
    add.params.bias = attn_mask_add(bias, ATTN_F32, 1, 1, tq, tk);
    call.params.causal = call.params.has_q_off = 1;
    call.params.q_off = off;
    test_left(&call.params, left);
    test_run(&bytes);
    test_run(&bits);
    test_run(&add);
    test_compare(&bytes, "a mask");
    test_assert_same_outputs(&bits, &bytes, "bits");
    test_assert_same_outputs(&add, &bytes, "additive 0 and -inf");
    if (n >= 8) continue;
    test_run(&call);
    test_assert_same_outputs(&call, &bytes, "bounds");
  }
}

/* Whatever forbidden keys hold, the bits are those of clean data. */
void A1_decode_forbidden_garbage(void **state) {
  (void)state;
  double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY, 3e38};
  for (int n = 0; n < 48; n++) {
    if (test_fast && n % 3) continue;
    test_rng rng = test_seed(726);
    int kind = n % 6;
    int64_t heads = n / 6 % 2 ? 4 : 16, tq = n / 12 % 2 ? 3 : 1, tk = n / 24 ? 1300 : 260;
    test_spec z = test_plain(heads, tq, tk, 13, 21);
    z.k_heads = z.v_heads = heads == 4 ? 2 : 1;
    test_call clean = test_build(&z, &rng);
    attn_sdpa_params *p = &clean.params;
    int32_t length = (int32_t)(tk - 70);
    uint8_t *allowed = test_mem((size_t)(tq * tk));
    float *bias = test_mem((size_t)(tq * tk) * sizeof *bias);
    test_term_user user = {1, 0, 5, MODIFY_FORBID};
    for (int64_t c = 0; c < tq * tk; c++) {
      allowed[c] = c % tk % 5 != 2 && c % tk < tk - 10;
      bias[c] = allowed[c] ? 0.25f : -INFINITY;
    }
    if (kind == 0) p->kv_len = &length;
    if (kind == 1) p->mask = attn_mask_bool(allowed, 1, 1, tq, tk);
    if (kind == 2) p->bias = attn_mask_add(bias, ATTN_F32, 1, 1, tq, tk);
    if (kind >= 3) p->has_q_off = 1, p->q_off = tk - 40;
    if (kind == 3) p->causal = 1;
    if (kind >= 4) test_left(p, 100);
    if (kind == 5) {
      p->modify = test_modify;
      p->modify_user = &user;
    }
    test_run(&clean);
    test_call call = test_again(&clean);
    for (int64_t j = 0; j < tk; j++) {
      int seen = 0;
      for (int64_t i = 0; i < tq; i++) seen |= oracle_allowed(&clean.q, &clean.k, p, 0, 0, i, j);
      for (int64_t h = 0; h < z.k_heads && !seen; h++) {
        oracle_set(&call.k, 0, h, j, 12, bad[j % 4]);
        test_fill_row(call.v, 0, h, j, bad[j / 4 % 4]);
      }
    }
    test_run(&call);
    char what[48];
    snprintf(what, sizeof what, "garbage, case %d", n);
    test_assert_same_outputs(&call, &clean, what);
    test_mem_release();
  }
}

/* NaN that some rows may read and others not: on the diagonal, and in one row's mask. */
void A1_decode_nan_reaches_its_rows(void **state) {
  (void)state;
  for (int n = 0; n < 24; n++) {
    test_rng rng = test_seed(727);
    int64_t heads = n & 1 ? 2 : 8, tk = n & 2 ? 1100 : 140, tq = 6, key = tk - 3;
    test_spec z = test_plain(heads, tq, tk, 9, 10);
    z.k_heads = z.v_heads = 1;
    test_call clean = test_build(&z, &rng);
    uint8_t *allowed = test_mem((size_t)(tq * tk));
    memset(allowed, 1, (size_t)(tq * tk));
    for (int64_t i = 0; i < 3; i++) allowed[i * tk + key] = 0;
    if (n / 4 % 3) {
      clean.params.mask = attn_mask_bool(allowed, 1, 1, tq, tk);
    } else {
      clean.params.causal = 1; /* row i sits at key tk - 6 + i */
    }
    if (n / 4 % 3 == 2) clean.params.alibi = test_floats(heads, 0.1, &rng);
    test_run(&clean);
    test_call call = test_again(&clean);
    oracle_set(n & 8 ? &call.v : &call.k, 0, 0, key, 4, n & 16 ? (double)INFINITY : (double)NAN);
    if (n & 16 && !(n & 8)) oracle_set(&call.k, 0, 0, key, 5, -(double)INFINITY);
    test_run(&call);
    test_assert_same(test_rows(call.o, 0, 3), test_rows(clean.o, 0, 3), "rows that do not see it");
    test_assert_same(test_rows(call.params.lse, 0, 3), test_rows(clean.params.lse, 0, 3), "LSE");
    for (int64_t i = 3; i < tq; i++) {
      for (int64_t c = 0; c < 10; c++) {
        double x = oracle_get(&call.o, 0, 1, i, c), y = oracle_get(&clean.o, 0, 1, i, c);
        if (n & 8) {
          assert_true(c == 4 ? isnan(x) || isinf(x) : x == y);
        } else if (!(n & 16)) {
          assert_true(isnan(x));
        }
      }
    }
    test_mem_release();
  }
}

/* NaN in a query stays in its row. */
void A1_decode_nan_in_query(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++) {
    test_rng rng = test_seed(728);
    test_spec z = test_plain(n & 1 ? 2 : 12, 3, n & 2 ? 1500 : 100, 20, 10);
    z.k_heads = z.v_heads = 1;
    test_call clean = test_build(&z, &rng);
    clean.params.causal = (n & 4) != 0;
    test_run(&clean);
    test_call call = test_again(&clean);
    oracle_set(&call.q, 0, 1, 1, 19, (double)NAN);
    test_run(&call);
    for (int64_t r = 0; r < 3 * z.heads; r++) {
      attn_tensor a = test_rows(test_one(call.o, 0, 1, r / 3, 1), r % 3, 1);
      attn_tensor b = test_rows(test_one(clean.o, 0, 1, r / 3, 1), r % 3, 1);
      if (r == 4) {
        for (int64_t c = 0; c < 10; c++) assert_true(isnan(oracle_get(&a, 0, 0, 0, c)));
        assert_true(isnan(oracle_get(&call.params.lse, 0, 1, 1, 0)));
      } else {
        test_assert_same(a, b, "rows beside a NaN");
      }
    }
  }
}

/* The workspace asked for is enough, wherever it lies, and one byte less is rejected with the
 * outputs untouched. */
void A1_decode_workspace(void **state) {
  (void)state;
  for (int n = 0; n < test_count(40, 12); n++) {
    test_rng rng = test_seed(729000 + (uint64_t)n);
    kept_call c = few_call(n < 20 ? 0 : FEW_ALL & ~FEW_LAYOUTS, 1 << 16, &rng);
    test_call want = test_again(&c.call), got = test_again(&c.call);
    test_run(&want);
    for (int workers = 1; workers <= 5; workers += 2) {
      attn_ctx ctx = test_ctx();
      ctx.workers = workers;
      ctx.parallel_for = test_parallel_backward;
      size_t size = attn_sdpa_workspace(got.o, got.q, got.k, got.v, &got.params, &ctx);
      size_t at = (size_t)test_range(&rng, 0, 70);
      unsigned char *memory = test_mem(size + at + 64);
      ctx.workspace = memory + at;
      ctx.workspace_size = size;
      test_malloc_fails = 1;
      attn_status status = sdpa(&got, &ctx);
      test_malloc_fails = 0;
      if (status != ATTN_OK) fail_msg("workspace: %s", ctx.reason);
      test_assert_same_outputs(&got, &want, "with a workspace");
      for (size_t i = 0; i < at; i++) assert_int_equal(memory[i], 0xA5);
      for (size_t i = 0; i < 64; i++) assert_int_equal(memory[at + size + i], 0xA5);
      if (size == 0) continue;
      test_fill_value(got.o, 7);
      test_call seven = got;
      ctx.workspace_size = size - 1;
      assert_int_equal(sdpa(&got, &ctx), ATTN_E_WORKSPACE);
      assert_true(oracle_get(&seven.o, 0, 0, 0, 0) == 7);
    }
    test_mem_release();
  }
}

/* Every operand lies against an unreadable page. */
void A1_decode_guard_pages(void **state) {
  (void)state;
  for (int n = 0; n < test_count(120, 24); n++) {
    test_rng rng = test_seed(730000 + (uint64_t)n);
    test_where = n & 1 ? TEST_AFTER_GUARD : TEST_BEFORE_GUARD;
    kept_call c = few_call(n % 3 ? FEW_TYPES : FEW_ALL & ~FEW_QUANTISED, 1 << 14, &rng);
    attn_ctx ctx = test_ctx();
    size_t size = attn_sdpa_workspace(c.call.o, c.call.q, c.call.k, c.call.v, &c.call.params, &ctx);
    ctx.workspace = test_mem(size);
    ctx.workspace_size = size;
    assert_int_equal(sdpa(&c.call, &ctx), ATTN_OK);
    test_where = TEST_HEAP;
    kept_compare(&c, "between guard pages");
    test_mem_release();
  }
}

/* Keys past kv_len, past the last causal row and before the first window are not even read. */
void A1_decode_unread_keys(void **state) {
  (void)state;
  static const int64_t lengths[] = {1, 5, 17, 127, 128, 129, 1024, 1025};
  for (int n = 0; n < 8 * 3 * 3; n++) {
    test_rng rng = test_seed(731);
    int64_t length = lengths[n % 8], more = 300;
    int32_t kv_len = (int32_t)length;
    test_spec z = test_plain(n % 3 ? 2 : 12, 1, length, 20, 12);
    z.k_heads = z.v_heads = 1;
    z.k_type = z.v_type = (attn_dtype)(n / 8 % 3);
    test_where = n / 24 < 2 ? TEST_BEFORE_GUARD : TEST_AFTER_GUARD;
    test_call call = test_build(&z, &rng), whole = call;
    test_where = TEST_HEAP;
    whole.k.len = whole.v.len = length + more;
    attn_sdpa_params *p = &whole.params;
    if (n / 24 == 0) {
      p->kv_len = &kv_len;
    } else if (n / 24 == 1) {
      p->causal = p->has_q_off = 1;
      p->q_off = length - 1;
    } else { /* keys 0 .. more-1 lie before the rows of memory */
      int64_t size = oracle_size(z.k_type);
      whole.k.data = (char *)whole.k.data - more * whole.k.stride_len * size;
      whole.v.data = (char *)whole.v.data - more * whole.v.stride_len * size;
      test_left(p, length - 1);
    }
    test_run(&whole);
    test_compare(&call, "keys in unreadable pages");
    test_mem_release();
  }
}

/* The report says which way was gone. */
void A1_decode_report(void **state) {
  (void)state;
  static const struct {
    int64_t heads, k_heads, tq;
    int few;
  } cases[] = {{4, 4, 1, 1},   {4, 1, 1, 1},  {8, 1, 1, 1},  {8, 1, 2, 1},
               {4, 4, 16, 1},  {4, 4, 17, 0}, {64, 1, 1, 1}, {16, 1, 4, 1},
               {128, 1, 1, 0}, {16, 1, 5, 0}, {2, 1, 16, 1}, {1, 1, 1, 1}};
  for (int n = 0; n < 12; n++) {
    test_rng rng = test_seed(732);
    test_spec z = test_plain(cases[n].heads, cases[n].tq, 100, 8, 8);
    z.k_heads = z.v_heads = cases[n].k_heads;
    test_call call = test_build(&z, &rng);
    attn_report report = test_run(&call);
    assert_int_equal(strstr(report.path, "few queries") != NULL, cases[n].few);
    assert_non_null(report.why);
    assert_true(report.pairs >= z.heads * z.q_len * 100);
    call.params.one_order = 1;
    report = test_run(&call);
    assert_null(strstr(report.path, "few queries"));
  }
}

/* A window costs the same however long the keys before it are, the first keys included. */
void A1_decode_window_of_a_stream(void **state) {
  (void)state;
  for (int n = 0; n < 24; n++) {
    test_rng rng = test_seed(734000 + (uint64_t)n);
    static const int64_t lengths[] = {900, 2100, 5000, 20000};
    int64_t tk = lengths[n % 4], keep = n % 3 == 0 ? 0 : n % 3 == 1 ? 4 : 1500;
    test_spec z = test_plain(n & 4 ? 12 : 2, n & 8 ? 3 : 1, tk, 4, 3);
    z.k_heads = z.v_heads = n & 4 ? 1 : 2;
    test_call call = test_build(&z, &rng);
    attn_sdpa_params *p = &call.params;
    p->causal = n & 1;
    test_left(p, test_range(&rng, 1, 1200));
    test_right(p, n & 1 ? p->causal ? -1 : 0 : test_range(&rng, 0, 50));
    p->keep = keep;
    p->has_q_off = 1;
    p->q_off = n % 5 == 4 ? -2 : tk - test_range(&rng, 3, tk / 2);
    test_check(&call, "a window of a stream");
    /* the same pairs as a mask: all splits */
    test_call mask = test_again(&call);
    uint8_t *allowed = test_mem((size_t)(z.q_len * tk));
    for (int64_t c = 0; c < z.q_len * tk; c++) {
      allowed[c] = (uint8_t)oracle_allowed(&call.q, &call.k, p, 0, 0, c / tk, c % tk);
    }
    mask.params.causal = 0;
    mask.params.keep = 0, mask.params.window = (attn_window){0, 0, 0};
    mask.params.mask = attn_mask_bool(allowed, 1, 1, z.q_len, tk);
    test_run(&mask);
    test_assert_same_outputs(&call, &mask, "a window and its mask");
    attn_ctx ctx = test_ctx();
    size_t size = attn_sdpa_workspace(call.o, call.q, call.k, call.v, p, &ctx);
    test_call longer = call;
    longer.k.len = longer.v.len = (int64_t)1 << 30;
    longer.k.stride_len = longer.v.stride_len = 0; /* nothing is read */
    longer.k.stride_head = longer.v.stride_head = 0;
    longer.params.q_off = ((int64_t)1 << 30) - (n & 1 ? 3 : 60);
    size_t more = attn_sdpa_workspace(longer.o, longer.q, longer.k, longer.v, &longer.params, &ctx);
    assert_in_range(more, 1, size + 20000);
    test_mem_release();
  }
}

/* Work follows the keys that the rows may see. */
void A1_decode_work(void **state) {
  (void)state;
  test_rng rng = test_seed(733);
  test_spec z = test_plain(2, 2, 20000, 4, 4);
  z.k_heads = z.v_heads = 1;
  test_call call = test_build(&z, &rng);
  int32_t length = 1500;
  assert_in_range(test_run(&call).pairs, 4 * 20000, 4 * 20000 + 2000);
  test_left(&call.params, 700);
  assert_in_range(test_run(&call).pairs, 4 * 700, 4 * 2000);
  test_left(&call.params, -1);
  call.params.causal = call.params.has_q_off = 1;
  call.params.q_off = 900;
  assert_in_range(test_run(&call).pairs, 4 * 900, 4 * 2000);
  call.params.causal = 0;
  call.params.kv_len = &length;
  assert_in_range(test_run(&call).pairs, 4 * 1500, 4 * 2000);
}
