/* tests/families/compression/test_memory_compressed.c owns memory compressed attention and its local blocks: against float64,
 * what follows from their formulas, what each row may read. */

#include "shortened.h"

typedef struct scene {
  trio x;
  attn_memory_compressed_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_memory_compressed(s->x.o, s->x.q, s->x.k, s->x.v, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_memory_compressed_workspace(s->x.o, s->x.q, s->x.k, s->x.v, &s->p, ctx);
}

static void bind(scene *s) {
  s->p.lse = s->x.lse, s->p.kv_len = s->x.kv_len, s->p.q_len = s->x.q_len;
  s->does.block[0] = s->x.o_block, s->does.block[1] = s->x.lse_block;
}

/* A kernel of c with random weights. */
static scene *build(const trio_shape *x, int64_t c, attn_pad pad, attn_slot slot, int shared,
                    test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t hk = shared ? 1 : x->k_heads, hv = shared ? 1 : x->v_heads;
  s->x = trio_of(x, rng);
  s->p.kernel = c, s->p.pad = pad, s->p.slot = slot;
  s->p.w_k =
      drawn(x->v_type, TEST_PADDED, 1, hk, c * x->dk, x->dk, 1.2 / sqrt((double)(c * x->dk)), rng);
  s->p.w_v =
      drawn(ATTN_F32, TEST_NEGATIVE, 1, hv, c * x->dv, x->dv, 1.2 / sqrt((double)(c * x->dv)), rng);
  if (c % 2) {
    s->p.b_k = drawn(ATTN_F32, TEST_PADDED, 1, hk, 1, x->dk, 0.5, rng);
    s->p.b_v = drawn(x->q_type, TEST_PADDED, 1, hv, 1, x->dv, 0.5, rng);
  }
  if (c != 2) s->p.null_k = drawn(x->k_type, TEST_PADDED, 1, hk, 1, x->dk, 1, rng);
  if (c != 4) s->p.null_v = drawn(ATTN_F32, TEST_PADDED, 1, hv, 1, x->dv, 1, rng);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->x.o, s->does.out[1] = &s->p.lse;
  bind(s);
  return s;
}

/* ---- the oracle -----------------------------------------------------------------------------*/

/* Where block m of n rows begins; INT64_MAX: there is none. */
static int64_t start_of(const attn_memory_compressed_params *p, int64_t m, int64_t n) {
  int64_t c = p->kernel ? p->kernel : 3, blocks = 0;
  for (int64_t rows = 0; rows < n; rows += c) blocks++;
  if (p->pad == ATTN_PAD_DROP && n % c) blocks--;
  if (m >= blocks) return INT64_MAX;
  return p->pad == ATTN_PAD_RIGHT || p->pad == ATTN_PAD_DROP ? m * c : m * c - (blocks * c - n);
}

static double *block_of(const attn_tensor *x, const attn_tensor *w, const attn_tensor *bias,
                        int64_t b, int64_t h, int64_t start, int64_t c, int64_t n) {
  const double **rows = test_mem((size_t)c * sizeof *rows);
  for (int64_t r = 0; r < c; r++)
    rows[r] = start + r >= 0 && start + r < n ? row_of(x, b, h, start + r) : NULL;
  return conv_row(w, bias, h, rows, c, x->dim);
}

static double *slot_of(const scene *s, int value, int64_t b, int64_t h) {
  const attn_tensor *x = value ? &s->x.v : &s->x.k, *null = value ? &s->p.null_v : &s->p.null_k;
  if (s->p.slot == ATTN_SLOT_FIRST) return row_of(x, b, h, 0);
  if (null->data) return row_of(null, 0, null->heads > 1 ? h : 0, 0);
  double *zero = test_mem((size_t)x->dim * sizeof *zero);
  for (int64_t c = 0; c < x->dim; c++) zero[c] = 0;
  return zero;
}

static void check(const scene *s, double tolerance, const char *what) {
  const trio *x = &s->x;
  const attn_memory_compressed_params *p = &s->p;
  const int64_t c = p->kernel ? p->kernel : 3;
  const int64_t off = p->has_q_off ? p->q_off : x->k.len - x->q.len;
  for (int64_t b = 0; b < x->q.batch; b++) {
    for (int64_t h = 0; h < x->q.heads; h++) {
      const int64_t hk = head_of(&x->k, h, x->q.heads), hv = head_of(&x->v, h, x->q.heads);
      const int64_t n = trio_keys(x, b);
      double **k = test_mem((size_t)(n + 1) * sizeof *k),
             **v = test_mem((size_t)(n + 1) * sizeof *v);
      int64_t start;
      for (int64_t m = 0; (start = start_of(p, m, n)) != INT64_MAX; m++) {
        k[m] = block_of(&x->k, &p->w_k, &p->b_k, b, hk, start, c, n);
        v[m] = block_of(&x->v, &p->w_v, &p->b_v, b, hv, start, c, n);
      }
      keys list = keys_of(n + 1);
      for (int64_t i = 0; i < x->q.len; i++) {
        const int64_t at = i + off;
        list.n = 0;
        if (i < trio_rows(x, b)) {
          if (p->slot == ATTN_SLOT_NULL || (p->slot == ATTN_SLOT_FIRST && n > 0 && at >= 0))
            keys_add(&list, slot_of(s, 0, b, hk), slot_of(s, 1, b, hv));
          for (int64_t m = 0; (start = start_of(p, m, n)) != INT64_MAX; m++) {
            int64_t last = start + c - 1 < n - 1 ? start + c - 1 : n - 1;
            if (!p->causal || (p->strict ? last < at : last <= at)) keys_add(&list, k[m], v[m]);
          }
        }
        keys_check(&list, x, b, h, i, p->scale, tolerance, what);
      }
    }
  }
}

static void run(scene *s, double tolerance, const char *what) {
  promise_run(&s->does);
  check(s, tolerance, what);
}

/* ---- tests ----------------------------------------------------------------------------------*/

void F3_random(void **state) {
  (void)state;
  test_rng rng = test_seed(3300);
  for (int64_t n = test_count(60, 15); n-- > 0; test_mem_release()) {
    trio_shape x = trio_random(&rng, n, n % 8 ? 24 : 90);
    const int64_t c = test_range(&rng, 1, 5);
    test_where = n % 3 == 1 ? TEST_AFTER_GUARD : n % 3 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(&x, c, (attn_pad)(n % 4), (attn_slot)(n / 2 % 3), n % 5 == 1, &rng);
    test_where = TEST_HEAP;
    if (c == 3) s->p.kernel = 0;
    s->p.causal = n % 3 != 0, s->p.strict = n % 4 == 1;
    if (n % 6 == 5) s->p.scale = n % 12 == 5 ? 0.4f : ATTN_ZERO;
    if (n % 5 == 2) s->p.has_q_off = 1, s->p.q_off = test_range(&rng, -20, 20);
    run(s, 3e-5, "memory compressed");
  }
}

/* w as kernels of c that are `each` times the identity in every row. */
static attn_tensor diagonal(int64_t c, int64_t d, double each) {
  attn_tensor w = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, c * d, d);
  test_fill_value(w, 0);
  for (int64_t r = 0; r < c * d; r++) oracle_set(&w, 0, 0, r, r % d, each);
  return w;
}

/* c = 1, identity, no slot: full and causal attention, bit for bit. */
void F3_identity(void **state) {
  (void)state;
  test_rng rng = test_seed(3301);
  for (int causal = 0; causal < 2; causal++) {
    trio_shape x = trio_plain(150, 170);
    scene *s = build(&x, 1, ATTN_PAD_DEFAULT, ATTN_SLOT_NONE, 1, &rng);
    s->p.w_k = diagonal(1, x.dk, 1), s->p.w_v = diagonal(1, x.dv, 1);
    s->p.b_k = s->p.b_v = absent(), s->p.causal = causal;
    promise_run(&s->does);
    attn_sdpa_params p;
    memset(&p, 0, sizeof p);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 150, x.dv);
    p.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 150, 1), p.causal = causal;
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_sdpa(o, s->x.q, s->x.k, s->x.v, &p, &ctx), ATTN_OK);
    test_assert_same(s->x.o, o, "identity");
    test_assert_same(s->p.lse, p.lse, "identity");
  }
}

/* Weights I/c: means of blocks. */
void F3_means(void **state) {
  (void)state;
  test_rng rng = test_seed(3302);
  trio_shape x = trio_plain(12, 12);
  scene *s = build(&x, 4, ATTN_PAD_RIGHT, ATTN_SLOT_NONE, 1, &rng);
  s->p.w_k = diagonal(4, x.dk, 0.25), s->p.w_v = diagonal(4, x.dv, 0.25);
  promise_run(&s->does);
  attn_pool_params pool;
  memset(&pool, 0, sizeof pool);
  pool.kernel = 4;
  attn_tensor k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 3, x.dk);
  attn_tensor v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 3, x.dv);
  attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 12, x.dv);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_pool(k, s->x.k, &pool, &ctx), ATTN_OK);
  assert_int_equal(attn_pool(v, s->x.v, &pool, &ctx), ATTN_OK);
  assert_int_equal(attn_sdpa(o, s->x.q, k, v, NULL, &ctx), ATTN_OK);
  test_assert_near(s->x.o, o, 1e-5, "means");
}

/* Keys and values behind p_i change no bit of row i. */
void F3_causal_reads(void **state) {
  (void)state;
  test_rng rng = test_seed(3303);
  for (int n = 0; n < 24; n++) {
    const int64_t t = 23, from = test_range(&rng, 1, 22);
    trio_shape x = trio_plain(t, t);
    scene *s = build(&x, 3 + n % 2, (attn_pad)(n % 4), (attn_slot)(n % 3), 0, &rng);
    s->p.causal = 1, s->p.strict = n / 12;
    promise_run(&s->does);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, t, x.dv);
    test_copy(o, s->x.o);
    for (int64_t i = from; i < t; i++) {
      for (int64_t h = 0; h < 2; h++)
        test_fill_row(s->x.k, 0, h, i, (double)NAN), test_fill_row(s->x.v, 0, h, i, 9);
    }
    promise_run(&s->does);
    test_assert_same(test_rows(s->x.o, 0, from), test_rows(o, 0, from), "rows before a change");
    int spoilt = 0;
    for (int64_t i = from; i < t; i++) spoilt += isnan(oracle_get(&s->x.o, 0, 0, i, 0)) != 0;
    if (n % 4 != ATTN_PAD_DROP && !s->p.strict) assert_true(spoilt > 0);
  }
}

/* Lengths give the bits of the call on tensors cut to them, in a batch of several. */
void F3_lengths(void **state) {
  (void)state;
  test_rng rng = test_seed(3304);
  for (int n = 0; n < 12; n++) {
    trio_shape x = trio_plain(40, 37);
    x.batch = 3, x.lens = 1, x.o_type = n % 2 ? ATTN_F16 : ATTN_F32;
    scene *s = build(&x, 2 + n % 3, (attn_pad)(n % 4), (attn_slot)(n % 3), 0, &rng);
    s->p.causal = n % 2;
    promise_run(&s->does);
    for (int64_t b = 0; b < 3; b++) {
      scene one = *s;
      one.x = trio_cut(&s->x, b);
      one.p.has_q_off = 1, one.p.q_off = 37 - 40;
      bind(&one);
      attn_ctx ctx = test_ctx();
      assert_int_equal(call(&one, &ctx), ATTN_OK);
      const int64_t rows = trio_rows(&s->x, b);
      attn_tensor o = test_one(s->x.o, b, 1, 0, 2), lse = test_one(s->x.lse, b, 1, 0, 2);
      if (rows > 16) { /* fewer go another way */
        test_assert_same(test_rows(o, 0, rows), one.x.o, "cut");
        test_assert_same(test_rows(lse, 0, rows), one.x.lse, "cut");
      } else {
        test_assert_near(test_rows(o, 0, rows), one.x.o, 2e-3, "cut");
      }
      for (int64_t i = rows; i < 40; i++) {
        assert_true(oracle_get(&o, 0, 1, i, 0) == 0);
        assert_true(isinf(oracle_get(&lse, 0, 1, i, 0)));
      }
    }
  }
}

void F3_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(3305);
  for (int n = 0; n < 36; n++) {
    /* fewer keys than a kernel; no keys; no block with DROP */
    trio_shape x = trio_plain(n % 5, n % 3);
    scene *s = build(&x, 3, (attn_pad)(n % 4), (attn_slot)(n / 4 % 3), n % 2, &rng);
    s->p.causal = n % 2;
    run(s, 3e-5, "few keys");
  }
  trio_shape x = trio_plain(4, 0);
  scene *s = build(&x, 3, ATTN_PAD_LEFT, ATTN_SLOT_NULL, 1, &rng);
  promise_run(&s->does);
  for (int64_t c = 0; c < x.dv; c++)
    assert_true(oracle_get(&s->x.o, 0, 1, 2, c) == oracle_get(&s->p.null_v, 0, 0, 0, c));
  x.batch = 0;
  promise_run(&build(&x, 3, ATTN_PAD_LEFT, ATTN_SLOT_NULL, 1, &rng)->does);
}

/* A NaN reaches the rows that see its block. */
void F3_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(3306);
  trio_shape x = trio_plain(20, 20);
  scene *s = build(&x, 4, ATTN_PAD_RIGHT, ATTN_SLOT_NULL, 1, &rng);
  s->p.causal = 1;
  test_fill_row(s->x.v, 0, 1, 9, (double)NAN); /* block 2, seen from row 11 on */
  promise_run(&s->does);
  for (int64_t i = 0; i < 20; i++) {
    assert_true(!isnan(oracle_get(&s->x.o, 0, 0, i, 0)));
    assert_int_equal(isnan(oracle_get(&s->x.o, 0, 1, i, 0)) != 0, i >= 11);
  }
}

void F3_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(3307);
  for (int n = 0; n < 3; n++) {
    trio_shape x = trio_plain(n == 2 ? 5 : 70, 90);
    x.batch = 2, x.lens = n == 1, x.k_heads = 1, x.o_type = ATTN_BF16, x.k_type = ATTN_F16;
    scene *s = build(&x, 3, ATTN_PAD_LEFT, (attn_slot)n, 0, &rng);
    s->p.causal = n > 0;
    promise_keep(&s->does);
  }
}

void F3_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(3308);
  int32_t lens[1] = {10};
  for (int n = 0; n < 36; n++) {
    trio_shape x = trio_plain(9, 9);
    scene *s = build(&x, 3, ATTN_PAD_LEFT, ATTN_SLOT_NULL, 0, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->p.kernel = -1, word = "kernel"; break;
      case 1: s->p.kernel = 4, word = "w_k"; break;
      case 2: s->p.w_v.len = 2 * x.dv, word = "w_v"; break;
      case 3: s->p.w_k.dim--, word = "w_k"; break;
      case 4: s->p.w_v = absent(), want = ATTN_E_NULL, word = "w_v"; break;
      case 5: s->p.w_k = absent(), want = ATTN_E_NULL, word = "w_k"; break;
      case 6: s->p.w_k.heads = 3, word = "w_k"; break;
      case 7: s->p.b_k.dim--, word = "b_k"; break;
      case 8: s->p.b_v.len = 2, word = "b_v"; break;
      case 9: s->p.null_k.dim--, word = "null_k"; break;
      case 10: s->p.null_v.heads = 3, word = "null_v"; break;
      case 11: s->p.pad = ATTN_PAD_SAME, want = ATTN_E_RANGE, word = "pad"; break;
      case 12: s->p.pad = (attn_pad)-1, want = ATTN_E_RANGE, word = "pad"; break;
      case 13: s->p.slot = ATTN_SLOT_COUNT, want = ATTN_E_RANGE, word = "slot"; break;
      case 14: s->p.scale = (float)NAN, want = ATTN_E_VALUE, word = "scale"; break;
      case 15: s->p.q_off = 1, want = ATTN_E_RANGE, word = "q_off"; break;
      case 16:
        s->p.has_q_off = 1, s->p.q_off = (int64_t)1 << 40, want = ATTN_E_RANGE, word = "q_off";
        break;
      case 17: s->p.kv_len = lens, want = ATTN_E_RANGE, word = "kv_len"; break;
      case 18: s->p.q_len = lens, want = ATTN_E_RANGE, word = "q_len"; break;
      case 19: s->x.k.dim--, word = "k must"; break;
      case 20: s->x.v.len--, word = "v must"; break;
      case 21: s->x.k.heads = 3, want = ATTN_E_HEADS, word = "k must"; break;
      case 22: s->x.v.heads = 0, want = ATTN_E_HEADS, word = "v must"; break;
      case 23: s->x.o.dim++, word = "o must"; break;
      case 24: s->x.o.len--, word = "o must"; break;
      case 25: s->x.o.heads = 1, word = "o must"; break;
      case 26: s->p.lse.dim = 2, word = "lse"; break;
      case 27: s->p.lse.dtype = ATTN_F16, want = ATTN_E_DTYPE, word = "lse"; break;
      case 28: s->x.q.data = NULL, want = ATTN_E_NULL, word = "q.data"; break;
      case 29: s->x.o.stride_len = 0, want = ATTN_E_STRIDE, word = "o "; break;
      case 30:
        s->p.w_v = s->x.o, s->p.w_v.heads = 1, s->p.w_v.len = 15, s->p.w_v.stride_len = 0,
        want = ATTN_E_OVERLAP, word = "o ";
        break;
      case 31: s->x.q.heads = 0, word = "q.heads"; break;
      case 32: s->x.q.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "q.dtype"; break;
      case 33:
        s->x.k.len = (int64_t)1 << 31, s->x.v.len = s->x.k.len, s->x.k.stride_len = 0,
        s->x.v.stride_len = 0, want = ATTN_E_OVERFLOW, word = "k.len";
        break;
      case 34: s->p.w_k.dtype = (attn_dtype)9, want = ATTN_E_DTYPE, word = "w_k"; break;
      default: s->x.v.batch = 2, s->x.v.stride_batch = 0, word = "v must"; break;
    }
    promise_reject(&s->does, want, word);
  }
  trio_shape x = trio_plain(5, 5);
  scene *s = build(&x, 3, ATTN_PAD_LEFT, ATTN_SLOT_NULL, 0, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_memory_compressed(s->x.o, s->x.q, s->x.k, s->x.v, NULL, &ctx), ATTN_E_NULL);
  assert_non_null(strstr(ctx.reason, "params"));
}

/* ---- local blocks -----------------------------------------------------------------------------*/

typedef struct local {
  trio x;
  attn_local_params p;
  promise does;
} local;

static attn_status call_local(void *at, attn_ctx *ctx) {
  local *s = at;
  return attn_local(s->x.o, s->x.q, s->x.k, s->x.v, &s->p, ctx);
}
static size_t ask_local(void *at, const attn_ctx *ctx) {
  local *s = at;
  return attn_local_workspace(s->x.o, s->x.q, s->x.k, s->x.v, &s->p, ctx);
}

static local *build_local(const trio_shape *x, int64_t block, int causal, test_rng *rng) {
  local *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->x = trio_of(x, rng);
  s->p.block = block, s->p.causal = causal;
  s->p.lse = s->x.lse, s->p.kv_len = s->x.kv_len, s->p.q_len = s->x.q_len;
  s->does.call = call_local, s->does.ask = ask_local, s->does.scene = s;
  s->does.out[0] = &s->x.o, s->does.out[1] = &s->p.lse;
  s->does.block[0] = s->x.o_block, s->does.block[1] = s->x.lse_block;
  return s;
}

static void run_local(local *s, const char *what) {
  const trio *x = &s->x;
  const int64_t block = s->p.block ? s->p.block : 256;
  promise_run(&s->does);
  for (int64_t b = 0; b < x->q.batch; b++) {
    for (int64_t h = 0; h < x->q.heads; h++) {
      keys list = keys_of(x->k.len);
      for (int64_t i = 0; i < x->q.len; i++) {
        list.n = 0;
        for (int64_t j = 0; j < trio_keys(x, b) && i < trio_rows(x, b); j++) {
          if (i / block == j / block && (!s->p.causal || j <= i))
            keys_add(&list, row_of(&x->k, b, head_of(&x->k, h, x->q.heads), j),
                     row_of(&x->v, b, head_of(&x->v, h, x->q.heads), j));
        }
        keys_check(&list, x, b, h, i, s->p.scale, 3e-5, what);
      }
    }
  }
}

void F3_local_random(void **state) {
  (void)state;
  test_rng rng = test_seed(3310);
  for (int64_t n = test_count(30, 8); n-- > 0; test_mem_release()) {
    trio_shape x = trio_random(&rng, n, n % 6 ? 24 : 150);
    x.k_len = x.q_len;
    local *s = build_local(&x, test_range(&rng, 0, n % 6 ? 9 : 70), n % 2 != 0, &rng);
    if (n % 5 == 2) s->p.scale = 0.3f;
    run_local(s, "local");
  }
}

/* A block as long as the rows: full and causal attention. A block of one: the values. Work follows the
 * pairs. */
void F3_local_blocks(void **state) {
  (void)state;
  test_rng rng = test_seed(3311);
  for (int causal = 0; causal < 2; causal++) {
    trio_shape x = trio_plain(300, 300);
    local *s = build_local(&x, 300, causal, &rng);
    promise_run(&s->does);
    attn_sdpa_params p;
    memset(&p, 0, sizeof p);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 300, x.dv);
    p.causal = causal;
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_sdpa(o, s->x.q, s->x.k, s->x.v, &p, &ctx), ATTN_OK);
    test_assert_same(s->x.o, o, "one block");
    s->p.block = INT64_MAX;
    promise_run(&s->does);
    test_assert_same(s->x.o, o, "one endless block");
    s->p.block = 1;
    promise_run(&s->does);
    test_copy(o, s->x.v);
    test_assert_same(s->x.o, o, "blocks of one");
    s->p.block = 64;
    ctx = test_ctx();
    assert_int_equal(call_local(s, &ctx), ATTN_OK);
    assert_true(ctx.report.pairs <= 2 * 300 * 64);
  }
}

void F3_local_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(3312);
  trio_shape x = trio_plain(130, 130);
  x.batch = 2, x.lens = 1, x.v_type = ATTN_F16;
  promise_keep(&build_local(&x, 50, 1, &rng)->does);
  x = trio_plain(0, 0);
  promise_run(&build_local(&x, 3, 0, &rng)->does);
}

void F3_local_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(3313);
  for (int n = 0; n < 6; n++) {
    trio_shape x = trio_plain(9, n ? 9 : 8);
    local *s = build_local(&x, 3, 0, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: word = "k.len"; break;
      case 1: s->p.block = -1, want = ATTN_E_RANGE, word = "block"; break;
      case 2: s->p.scale = (float)INFINITY, want = ATTN_E_VALUE, word = "scale"; break;
      case 3: s->x.k.dim--, word = "k must"; break;
      case 4: s->x.q = s->x.o, s->x.k.dim = 5, want = ATTN_E_OVERLAP, word = "o "; break;
      default: s->p.lse = s->x.o, s->p.lse.dim = 1, want = ATTN_E_OVERLAP, word = "o "; break;
    }
    promise_reject(&s->does, want, word);
  }
}
