/* tests/test_api.c owns the contract around a call: words, views, memory at its exact size, gaps
 * between rows, unreadable pages, workers and composition. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"

void api_status_strings(void **state) {
  (void)state;
  for (int a = -3; a < ATTN_STATUS_COUNT + 3; a++) {
    const char *text = attn_status_string((attn_status)a);
    assert_non_null(text);
    assert_true(strlen(text) > 0);
    for (int b = 0; b < a && a < ATTN_STATUS_COUNT; b++) {
      assert_string_not_equal(text, attn_status_string((attn_status)b));
    }
  }
}

void api_views(void **state) {
  (void)state;
  float x[2 * 3 * 4 * 5] = {0};
  attn_tensor a = attn_bhtd(x, ATTN_F32, 2, 3, 4, 5), b = attn_bthd(x, ATTN_F16, 2, 4, 3, 5);
  assert_true(a.data == x && a.dtype == ATTN_F32 && b.dtype == ATTN_F16);
  assert_true(a.batch == 2 && a.heads == 3 && a.len == 4 && a.dim == 5);
  assert_true(b.batch == 2 && b.heads == 3 && b.len == 4 && b.dim == 5);
  assert_true(a.stride_batch == 60 && a.stride_head == 20 && a.stride_len == 5);
  assert_true(b.stride_batch == 60 && b.stride_head == 5 && b.stride_len == 15);
  attn_mask m = attn_mask_bits((uint8_t *)x, 2, 3, 4, 9);
  assert_true(m.kind == ATTN_MASK_BITS && m.stride_q == 2 && m.stride_head == 8 &&
              m.stride_batch == 24);
  m = attn_mask_add(x, ATTN_BF16, 2, 3, 4, 9);
  assert_true(m.kind == ATTN_MASK_ADD && m.dtype == ATTN_BF16 && m.stride_q == 9 &&
              m.stride_head == 36 && m.stride_batch == 108);
  m = attn_mask_bool((uint8_t *)x, 1, 1, 1, 9);
  assert_true(m.kind == ATTN_MASK_BOOL && m.batch == 1 && m.heads == 1 && m.q_len == 1 &&
              m.k_len == 9);
}

/* A call with most features, for the tests below. */
static test_call busy_call(int64_t tq, int64_t tk, int64_t dk, int64_t dv, test_rng *rng) {
  test_spec spec = test_plain(4, tq, tk, dk, dv);
  spec.batch = 2;
  spec.k_heads = 2;
  spec.v_heads = 1;
  spec.k_type = ATTN_F16;
  spec.v_type = ATTN_BF16;
  spec.map = 1;
  test_call call = test_build(&spec, rng);
  attn_sdpa_params *p = &call.params;
  p->causal = 1;
  test_left(p, tk);
  p->mask = test_mask(ATTN_MASK_BITS, ATTN_F32, 2, 4, tq, tk, rng);
  p->bias = test_mask(ATTN_MASK_ADD, ATTN_F32, 2, 4, tq, tk, rng);
  p->alibi = test_floats(4, 0.1, rng);
  p->sinks = test_floats(4, 1, rng);
  p->kv_len = test_lengths(2, tk, rng);
  p->q_len = test_lengths(2, tq, rng);
  return call;
}

void api_workspace_is_exact(void **state) {
  (void)state;
  static const int64_t shapes[][4] = {
      {1, 1, 1, 1}, {1, 300, 64, 64}, {70, 90, 33, 17}, {9, 65, 300, 2}, {130, 10, 5, 300}};
  for (int n = 0; n < 10; n++) {
    test_rng rng = test_seed(100);
    const int64_t *z = shapes[n / 2];
    test_spec spec = test_plain(2, z[0], z[1], z[2], z[3]);
    test_call call = n & 1 ? busy_call(z[0], z[1], z[2], z[3], &rng) : test_build(&spec, &rng);
    test_call want = test_again(&call);
    test_run(&want);
    for (int workers = 1; workers <= 3; workers += 2) {
      attn_ctx ctx = test_ctx();
      ctx.workers = workers;
      ctx.parallel_for = test_parallel_forward;
      size_t size = attn_sdpa_workspace(call.o, call.q, call.k, call.v, &call.params, &ctx);
      assert_true(size < 1u << 30);
      unsigned char *memory = test_mem(size + 256);
      for (size_t at = 0; at < 80; at += at < 17 ? 1 : 9) {
        memset(memory, 0xA5, size + 256);
        ctx.workspace = memory + at;
        ctx.workspace_size = size;
        test_malloc_fails = 1;
        int64_t calls = test_malloc_calls;
        attn_status status = attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx);
        test_malloc_fails = 0;
        if (status != ATTN_OK) fail_msg("%s", ctx.reason);
        assert_int_equal(test_malloc_calls, calls);
        test_assert_same_outputs(&call, &want, "with a workspace");
        for (size_t i = 0; i < 256; i++) {
          if (i < at) assert_int_equal(memory[i], 0xA5);
          if (at + size + i < size + 256) assert_int_equal(memory[at + size + i], 0xA5);
        }
      }
      if (size == 0) continue;
      ctx.workspace_size = size - 1;
      assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx),
                       ATTN_E_WORKSPACE);
    }
  }
}

void api_workspace_ignores_lengths(void **state) {
  (void)state;
  static const int64_t lengths[] = {512, 65536, 1 << 20};
  const int count = sizeof(void *) == 4 ? 2 : 3; /* the last spans 4 GiB */
  size_t sizes[3] = {0};
  for (int n = 0; n < count; n++) {
    /* The query reads no data, so any addresses do that lie apart. */
    attn_tensor x = attn_bhtd((void *)(uintptr_t)64, ATTN_F32, 1, 8, lengths[n], 128), o = x;
    o.data = (void *)(uintptr_t)(1 << 20);
    x.stride_batch = x.stride_head = x.stride_len = 0;
    sizes[n] = attn_sdpa_workspace(o, x, x, x, NULL, NULL);
    assert_true(sizes[n] > 0 && sizes[n] <= 65536 * 128 * sizeof(float));
    assert_int_equal(sizes[n], sizes[0]);
  }
}

/* Nothing is allocated twice, kept, or asked for when there is nothing to do. */
void api_memory_use(void **state) {
  (void)state;
  test_rng rng = test_seed(101);
  test_call call = busy_call(70, 80, 20, 20, &rng);
  int64_t before = test_malloc_calls;
  test_run(&call);
  assert_in_range(test_malloc_calls - before, 0, 1);
  before = test_malloc_calls;
  test_malloc_fails = 1;
  test_spec spec = test_plain(2, 0, 9, 8, 8);
  call = test_build(&spec, &rng);
  test_run(&call);
  assert_int_equal(test_malloc_calls, before);
}

/* The bytes between an output's rows belong to someone else. */
void api_gaps_stay(void **state) {
  (void)state;
  for (int layout = TEST_PADDED; layout <= TEST_NEGATIVE; layout++) {
    for (int type = 0; type < 3; type++) {
      test_rng rng = test_seed(102);
      test_spec spec = test_plain(3, 67, 70, 9, 13);
      spec.batch = 2;
      test_call call = test_build(&spec, &rng);
      attn_tensor *outs[3] = {&call.o, &call.params.lse, &call.params.map};
      int64_t widths[3] = {13, 1, 70};
      test_block blocks[3];
      for (int n = 0; n < 3; n++) {
        *outs[n] =
            test_tensor(n ? ATTN_F32 : (attn_dtype)type, (test_layout)layout, 2, 3, 67, widths[n]);
        blocks[n] = test_last_block;
      }
      test_check(&call, "padded outputs");
      for (int n = 0; n < 3; n++) {
        for (int64_t row = 0; row < 2 * 3 * 67; row++) {
          size_t size = (size_t)(widths[n] * oracle_size(outs[n]->dtype));
          memset(oracle_address(outs[n], row / 201, row / 67 % 3, row % 67, 0), 0xA5, size);
        }
        for (size_t at = 0; at < blocks[n].size; at++) {
          if (blocks[n].data[at] != 0xA5) fail_msg("output %d: a gap was written", n);
        }
      }
    }
  }
}

/* Every operand ends or begins at an unreadable page. */
static void check_guarded(test_place place) {
  static const int64_t sizes[] = {1, 3, 7, 17, 63, 64, 65, 70, 129};
  test_rng rng = test_seed(103);
  for (int64_t n = 0; n < test_count(40, 12); n++) {
    int64_t tq = sizes[test_u64(&rng) % 9], tk = sizes[test_u64(&rng) % 9];
    int64_t dk = test_range(&rng, 1, 40), dv = test_range(&rng, 1, 40);
    test_where = place;
    test_call call;
    if (n % 4 == 3) {
      call = busy_call(tq, tk, dk, dv, &rng);
    } else {
      test_spec spec = test_plain(1, tq, tk, dk, dv);
      spec.q_type = (attn_dtype)(n % 3);
      spec.k_type = (attn_dtype)(n / 2 % 3);
      spec.v_type = (attn_dtype)(n / 3 % 3);
      spec.o_type = (attn_dtype)(n / 4 % 3);
      spec.k_layout = n % 5 ? TEST_BHTD : TEST_NEGATIVE;
      spec.map = (int)(n & 1);
      call = test_build(&spec, &rng);
      call.params.causal = (int)(n >> 1 & 1);
      if (n % 4 == 1) call.params.mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, 1, 1, tq, tk, &rng);
      if (n % 4 == 2) {
        call.params.bias = test_mask(ATTN_MASK_ADD, (attn_dtype)(n / 4 % 3), 1, 1, tq, tk, &rng);
      }
    }
    attn_ctx ctx = test_ctx();
    size_t size = attn_sdpa_workspace(call.o, call.q, call.k, call.v, &call.params, &ctx);
    ctx.workspace = test_mem(size);
    ctx.workspace_size = size;
    assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), ATTN_OK);
    test_where = TEST_HEAP;
    test_compare(&call, "between guard pages");
    test_mem_release();
  }
}

void api_guard_pages_behind(void **state) {
  (void)state;
  check_guarded(TEST_BEFORE_GUARD);
}

void api_guard_pages_ahead(void **state) {
  (void)state;
  check_guarded(TEST_AFTER_GUARD);
}

/* Keys beyond kv_len, and beyond every causal row, may lie in unreadable pages. */
void api_guard_unread_keys(void **state) {
  (void)state;
  static const int64_t lengths[] = {1, 5, 63, 64, 65, 100, 128};
  for (int n = 0; n < 14; n++) {
    int64_t length = lengths[n / 2], tk = length + 300;
    int32_t kv_len = (int32_t)length;
    for (int type = 0; type < 3; type++) {
      test_rng rng = test_seed(104);
      test_spec spec = test_plain(1, 70, length, 20, 12);
      spec.k_type = spec.v_type = (attn_dtype)type;
      test_where = TEST_BEFORE_GUARD;
      test_call call = test_build(&spec, &rng);
      test_where = TEST_HEAP;
      call.k.len = call.v.len = tk;
      call.params.has_q_off = 1;
      if (n & 1) {
        call.params.kv_len = &kv_len;
      } else {
        call.params.causal = 1; /* the last row sees key length-1 */
        call.params.q_off = length - 70;
      }
      test_run(&call);
      call.k.len = call.v.len = length;
      call.params.kv_len = NULL;
      test_compare(&call, "keys behind an unreadable page");
      test_mem_release();
    }
  }
}

void api_guard_rope_merge_exp(void **state) {
  (void)state;
  for (int place = TEST_BEFORE_GUARD; place <= TEST_AFTER_GUARD; place++) {
    for (int64_t n = 1; n < 40; n++) {
      test_rng rng = test_seed(105);
      attn_ctx ctx = test_ctx();
      attn_tensor t[6];
      test_where = (test_place)place;
      for (int k = 0; k < 6; k++) {
        attn_dtype type = k % 2 ? ATTN_F32 : (attn_dtype)((n + k) % 3);
        t[k] = test_tensor(type, TEST_BHTD, 1, 1, 3, k % 2 ? 1 : n);
        test_fill(t[k], &rng, test_normal);
      }
      assert_int_equal(attn_merge(t[4], t[5], t[0], t[1], t[2], t[3], &ctx), ATTN_OK);
      attn_rope_params p;
      memset(&p, 0, sizeof p);
      p.rotary_dim = n / 2 * 2, p.has_rotary_dim = 1;
      p.layout = n & 1 ? ATTN_ROPE_HALF : ATTN_ROPE_INTERLEAVED;
      assert_int_equal(attn_rope(t[4], t[0], &p, &ctx), ATTN_OK);
      float *x = test_mem((size_t)n * sizeof *x), *y = test_mem((size_t)n * sizeof *y);
      for (int64_t k = 0; k < n; k++) x[k] = (float)test_normal(&rng);
      assert_int_equal(attn_exp(y, x, n, &ctx), ATTN_OK);
      test_mem_release();
    }
  }
}

/* A row's bits do not depend on workers, on who shares the call, or on how queries are cut. */
void api_bits_any_workers(void **state) {
  (void)state;
  static const attn_parallel_fn loops[] = {test_parallel_forward, test_parallel_backward,
                                           test_parallel_threads};
  for (int n = 0; n < 3; n++) {
    test_rng rng = test_seed(106);
    test_spec spec = test_plain(3, 300, 200, 24, 20);
    spec.map = n == 2;
    test_call call = n == 1 ? busy_call(150, 170, 24, 20, &rng) : test_build(&spec, &rng);
    call.params.causal = n != 2;
    test_call want = test_again(&call);
    test_run(&want);
    static const int workers[] = {1, 2, 3, 7};
    for (int k = 0; k < 12; k++) {
      attn_ctx ctx = test_ctx();
      int64_t most = 0;
      ctx.workers = workers[k % 4];
      ctx.parallel_for = loops[k / 4];
      ctx.parallel_user = &most;
      assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), ATTN_OK);
      assert_true(most <= ctx.workers);
      assert_true(ctx.report.workers <= ctx.workers && ctx.report.workers >= 1);
      if (workers[k % 4] > 1) assert_true(most > 1);
      test_assert_same_outputs(&call, &want, "workers");
    }
  }
}

void api_bits_any_composition(void **state) {
  (void)state;
  test_rng rng = test_seed(107);
  test_call call = busy_call(140, 150, 24, 20, &rng);
  call.params.q_len = NULL;
  test_run(&call);
  for (int64_t b = 0; b < 2; b++) {
    for (int64_t h = 0; h < 4; h++) {
      test_call one = call;
      one.q = test_one(call.q, b, 1, h, 1);
      one.k = test_one(call.k, b, 1, h / 2, 1);
      one.v = test_one(call.v, b, 1, 0, 1);
      one.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 140, 20);
      one.params.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 140, 1);
      one.params.map = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 140, 150);
      one.params.kv_len += b;
      one.params.alibi += h;
      one.params.sinks += h;
      attn_mask *masks[2] = {&one.params.mask, &one.params.bias};
      for (int k = 0; k < 2; k++) {
        int64_t at = (masks[k]->batch > 1 ? b * masks[k]->stride_batch : 0) +
                     (masks[k]->heads > 1 ? h * masks[k]->stride_head : 0);
        masks[k]->data = (const char *)masks[k]->data + at * (k ? 4 : 1);
        masks[k]->batch = masks[k]->heads = 1;
      }
      test_run(&one);
      test_assert_same(one.o, test_one(call.o, b, 1, h, 1), "one head alone");
      test_assert_same(one.params.lse, test_one(call.params.lse, b, 1, h, 1), "one head alone");
      test_assert_same(one.params.map, test_one(call.params.map, b, 1, h, 1), "one head alone");
    }
  }
}

void api_bits_any_chunks(void **state) {
  (void)state;
  static const int64_t chunks[] = {1, 2, 7, 37, 64, 100};
  for (int n = 0; n < 6; n++) {
    test_rng rng = test_seed(108);
    test_spec spec = test_plain(4, 140, 333, 24, 20);
    spec.k_heads = spec.v_heads = n % 2 ? 2 : 4;
    test_call call = test_build(&spec, &rng);
    call.params.causal = n < 4;
    test_left(&call.params, n % 3 == 1 ? 50 : -1);
    call.params.has_q_off = 1;
    call.params.q_off = 150;
    float *bias = test_floats(140 * 333, 1, &rng);
    bias[0] = bias[333 * 70 + 100] = -INFINITY;
    if (n & 1) call.params.bias = attn_mask_add(bias, ATTN_F32, 1, 1, 140, 333);
    if (n % 3 == 2) call.params.alibi = test_floats(4, 0.1, &rng);
    test_run(&call);
    for (int64_t i = 0; i < 140; i += chunks[n]) {
      int64_t len = chunks[n] < 140 - i ? chunks[n] : 140 - i;
      test_call part = call;
      part.q = test_rows(call.q, i, len);
      part.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, len, 20);
      part.params.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, len, 1);
      part.params.q_off = 150 + i;
      part.params.bias.q_len = len;
      part.params.one_order = 1;
      part.params.bias.data = bias + i * 333;
      test_run(&part);
      test_assert_same(part.o, test_rows(call.o, i, len), "a chunk of queries");
      test_assert_same(part.params.lse, test_rows(call.params.lse, i, len), "a chunk of queries");
    }
  }
}

/* Asking for the map or the LSE changes no bit of O; nor does a layout. */
void api_bits_any_layout(void **state) {
  (void)state;
  test_rng rng = test_seed(109);
  test_spec spec = test_plain(3, 100, 90, 24, 20);
  spec.lse = 0;
  test_call call = test_build(&spec, &rng);
  test_run(&call);
  for (int layout = 0; layout <= TEST_NEGATIVE; layout++) {
    spec.q_layout = spec.k_layout = spec.v_layout = spec.o_layout = (test_layout)layout;
    spec.lse = layout & 1;
    spec.map = layout & 2;
    test_call other = test_build(&spec, &rng);
    test_copy(other.q, call.q);
    test_copy(other.k, call.k);
    test_copy(other.v, call.v);
    test_run(&other);
    test_assert_same(other.o, call.o, "another layout");
  }
}

void api_report(void **state) {
  (void)state;
  test_rng rng = test_seed(110);
  test_spec spec = test_plain(2, 30, 40, 8, 8);
  test_call call = test_build(&spec, &rng);
  attn_ctx ctx = test_ctx();
  ctx.reason = "stale";
  assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), ATTN_OK);
  assert_null(ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
  assert_int_equal(ctx.report.workers, 1);
  assert_non_null(ctx.report.path);
  assert_non_null(ctx.report.why);
  assert_true(ctx.report.pairs >= 2 * 30 * 40);
}
