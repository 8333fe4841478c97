/* tests/families/training/test_longformer_backward.c owns N6, the gradients of Longformer: those of attention in float64 over
 * the pairs of local rows, and over the rows of global tokens. */

#include "backward.h"

enum { H = 4 };

typedef struct longformer_back {
  attn_tensor d_q, d_k, d_v, d_o, q, k, v, o, lse;
  attn_longformer_params p;
  attn_longformer_gradients g;
  int32_t window[H], dilation[H];
  promise does, more; /* of d_q, d_k, d_v; of the global tensors */
} longformer_back;

static attn_status run(void *at, attn_ctx *ctx) {
  longformer_back *s = at;
  return attn_longformer_backward(s->d_q, s->d_k, s->d_v, s->d_o, s->q, s->k, s->v, s->o, s->lse,
                                  &s->p, &s->g, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  longformer_back *s = at;
  return attn_longformer_backward_workspace(s->d_q, s->d_k, s->d_v, s->d_o, s->q, s->k, s->v, s->o,
                                            s->lse, &s->p, &s->g, ctx);
}

static attn_tensor like(const attn_tensor *x, attn_dtype type, test_block *block) {
  return output(type, TEST_PADDED, x->batch, x->heads, x->len, x->dim, block);
}

static void outputs(longformer_back *s, attn_dtype type) {
  memset(&s->does, 0, sizeof s->does), memset(&s->more, 0, sizeof s->more);
  s->d_q = like(&s->q, type, &s->does.block[0]), s->d_k = like(&s->k, type, &s->does.block[1]);
  s->d_v = like(&s->v, type, &s->does.block[2]);
  s->does.out[0] = &s->d_q, s->does.out[1] = &s->d_k, s->does.out[2] = &s->d_v;
  s->does.call = run, s->does.ask = ask, s->does.scene = s, s->does.mallocs = 1;
  if (!s->p.k_global.data) return;
  s->g.d_q_global = like(&s->p.q_global, ATTN_F32, &s->more.block[0]);
  s->g.d_k_global = like(&s->p.k_global, type, &s->more.block[1]);
  s->g.d_v_global = like(&s->p.v_global, ATTN_F32, &s->more.block[2]);
  s->does.out[3] = &s->g.d_k_global, s->does.block[3] = s->more.block[1];
}

static longformer_back *build(int64_t batch, int64_t tokens, int64_t most, int per_entry, int own,
                              attn_dtype type, test_rng *rng) {
  longformer_back *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t dk = test_range(rng, 1, 10), dv = test_range(rng, 1, 10);
  const int64_t lists = per_entry ? batch : 1;
  s->q = drawn(ATTN_F32, TEST_BTHD, batch, H, tokens, dk, 1, rng);
  s->k = drawn(ATTN_F32, TEST_PADDED, batch, 2, tokens, dk, 1, rng);
  s->v = drawn(ATTN_F32, TEST_BHTD, batch, H, tokens, dv, 1, rng);
  s->d_o = drawn(type, TEST_PADDED, batch, H, tokens, dv, 1, rng);
  s->g.d_lse = drawn(ATTN_F32, TEST_BHTD, batch, H, tokens, 1, 1, rng);
  s->o = test_tensor(ATTN_F32, TEST_BTHD, batch, H, tokens, dv);
  s->lse = test_tensor(ATTN_F32, TEST_PADDED, batch, H, tokens, 1);
  int64_t *ptr = test_mem((size_t)(lists + 1) * sizeof *ptr), longest = 0;
  int32_t *list = test_mem((size_t)(lists * tokens + 1) * sizeof *list);
  ptr[0] = 0;
  for (int64_t b = 0; b < lists; b++) {
    int64_t n = 0;
    for (int64_t i = 0; i < tokens && n < most; i++)
      if (test_range(rng, 0, tokens - 1) < most) list[ptr[b] + n++] = (int32_t)i;
    ptr[b + 1] = ptr[b] + n;
    if (n > longest) longest = n;
  }
  s->p.global = ptr[lists] ? list : NULL, s->p.globals = ptr[lists];
  if (per_entry) s->p.global_indptr = ptr;
  if (own) {
    s->p.q_global = drawn(ATTN_F32, TEST_BHTD, batch, H, longest, dk, 1, rng);
    s->p.k_global = drawn(ATTN_F32, TEST_BTHD, batch, 1, tokens, dk, 1, rng);
    s->p.v_global = drawn(ATTN_F32, TEST_BTHD, batch, 2, tokens, dv, 1, rng);
  }
  for (int h = 0; h < H; h++) {
    s->window[h] = (int32_t)test_range(rng, 0, 6);
    s->dilation[h] = (int32_t)test_range(rng, 1, 4);
  }
  s->p.window = s->window, s->p.dilation = s->dilation;
  outputs(s, type);
  return s;
}

static void forward(longformer_back *s) {
  attn_ctx ctx = test_ctx();
  attn_longformer_params p = s->p;
  p.lse = s->lse;
  assert_int_equal(attn_longformer(s->o, s->q, s->k, s->v, &p, &ctx), ATTN_OK);
}

/* Entry r of the list of batch entry b, -1 behind its end; and the place of token i. */
static int64_t listed(const longformer_back *s, int64_t b, int64_t r) {
  const int64_t from = s->p.global_indptr ? s->p.global_indptr[b] : 0;
  const int64_t end = s->p.global_indptr ? s->p.global_indptr[b + 1] : s->p.globals;
  return r < end - from ? s->p.global[from + r] : -1;
}
static int64_t place(const longformer_back *s, int64_t b, int64_t i) {
  for (int64_t r = 0; listed(s, b, r) >= 0; r++)
    if (listed(s, b, r) == i) return r;
  return -1;
}
static int valid(const longformer_back *s, int64_t b, int64_t i) {
  return !s->p.valid.kind || oracle_mask(&s->p.valid, b, 0, 0, i) == 0;
}

static int sees(const longformer_back *s, int64_t b, int64_t h, int64_t i, int64_t j) {
  const int64_t far = i > j ? i - j : j - i, d = s->dilation[h];
  if (!valid(s, b, i) || !valid(s, b, j) || (s->p.causal && j > i)) return 0;
  if (place(s, b, i) >= 0 || place(s, b, j) >= 0) return 1;
  return far % d == 0 && far / d <= s->window[h];
}

static void compare(const longformer_back *s, const char *what) {
  const int64_t B = s->q.batch, T = s->q.len, n = s->p.q_global.len;
  backward dense;
  uint8_t *mask = test_mem((size_t)(B * H * T * T + 1));
  memset(&dense, 0, sizeof dense);
  dense.call.q = s->q, dense.call.k = s->k, dense.call.v = s->v, dense.d_o = s->d_o;
  dense.d_q = s->d_q, dense.d_k = s->d_k, dense.d_v = s->d_v, dense.g.d_lse = s->g.d_lse;
  dense.call.params.scale = s->p.scale;
  for (int64_t at = 0; at < B * H * T * T; at++) {
    const int64_t b = at / T / T / H, h = at / T / T % H, i = at / T % T;
    const int apart = s->p.k_global.data && place(s, b, i) >= 0;
    mask[at] = !apart && sees(s, b, h, i, at % T);
  }
  dense.call.params.mask = attn_mask_bool(mask, B, H, T, T);
  const backward_want local = backward_oracle(&dense, NULL);
  backward_compare(&dense, &local, what);
  if (!s->p.k_global.data || n == 0) return;
  dense.call.q = s->p.q_global, dense.call.k = s->p.k_global, dense.call.v = s->p.v_global;
  dense.d_q = s->g.d_q_global, dense.d_k = s->g.d_k_global, dense.d_v = s->g.d_v_global;
  dense.d_o = test_tensor(ATTN_F32, TEST_BHTD, B, H, n, s->v.dim);
  dense.g.d_lse = test_tensor(ATTN_F32, TEST_BHTD, B, H, n, 1);
  for (int64_t at = 0; at < B * H * n; at++) {
    const int64_t b = at / n / H, h = at / n % H, r = at % n, i = listed(s, b, r);
    for (int64_t j = 0; j < T; j++) mask[at * T + j] = i >= 0 && sees(s, b, h, i, j);
    for (int64_t c = 0; c < s->v.dim; c++)
      oracle_set(&dense.d_o, b, h, r, c, i < 0 ? 0 : oracle_get(&s->d_o, b, h, i, c));
    oracle_set(&dense.g.d_lse, b, h, r, 0, i < 0 ? 0 : oracle_get(&s->g.d_lse, b, h, i, 0));
  }
  dense.call.params.mask = attn_mask_bool(mask, B, H, n, T);
  const backward_want global = backward_oracle(&dense, NULL);
  backward_compare(&dense, &global, what);
}

void N6_longformer(void **state) {
  (void)state;
  test_rng rng = test_seed(9800);
  for (int64_t n = test_count(60, 16); n-- > 0; test_mem_release()) {
    const int64_t batch = test_range(&rng, 1, 3), tokens = test_range(&rng, 1, n % 4 ? 40 : 150);
    longformer_back *s = build(batch, tokens, n % 5 ? test_range(&rng, 0, 6) : tokens, n & 1,
                               n % 3 != 0, n % 7 ? ATTN_F32 : ATTN_BF16, &rng);
    s->p.causal = n % 4 == 1 || n % 8 == 2;
    if (n % 3 == 1)
      s->p.valid = test_mask(n & 2 ? ATTN_MASK_BITS : ATTN_MASK_BOOL, ATTN_F32, n % 4 ? batch : 1,
                             1, 1, tokens, &rng);
    if (n % 6 == 4) s->p.scale = 0.3f;
    if (n % 6 == 5) s->g.d_lse = test_tensor(ATTN_F32, TEST_BHTD, batch, H, tokens, 1);
    if (n % 6 == 5) test_fill_value(s->g.d_lse, 0);
    forward(s);
    promise_run(&s->does);
    compare(s, "longformer");
    if (n % 5 == 0) promise_keep(&s->does);
  }
}

/* Schedules that are given, outputs by themselves, and sums that are added to; what nobody reads holds anything. */
void N6_longformer_outputs(void **state) {
  (void)state;
  test_rng rng = test_seed(9801);
  for (int n = 0; n < 7; n++, test_mem_release()) {
    longformer_back *s = build(2, 60, 5, 1, 1, ATTN_F32, &rng), *t = test_mem(sizeof *t);
    uint8_t *there = test_mem(60);
    attn_schedule schedules[2];
    attn_ctx ctx = test_ctx();
    for (int i = 0; i < 60; i++) there[i] = i < 50;
    s->p.valid = attn_mask_bool(there, 1, 1, 1, 60);
    forward(s);
    promise_run(&s->does);
    *t = *s;
    outputs(t, ATTN_F32);
    attn_tensor *const y[] = {&t->d_q,          &t->d_k,          &t->d_v,
                              &t->g.d_q_global, &t->g.d_k_global, &t->g.d_v_global};
    const attn_tensor *const was[] = {&s->d_q,          &s->d_k,          &s->d_v,
                                      &s->g.d_q_global, &s->g.d_k_global, &s->g.d_v_global};
    for (int i = 0; i < 6; i++)
      if (n < 6 && i != n) *y[i] = absent();
    for (int b = 0; b < 2; b++)
      assert_int_equal(attn_longformer_schedule(&schedules[b], &t->p, H, 60, b, &ctx), ATTN_OK);
    t->p.schedules = schedules;
    for (int64_t i = 50; i < 60; i++)
      for (int64_t h = 0; h < H; h++) {
        test_fill_row(t->q, 1, h, i, (double)NAN), test_fill_row(t->k, 1, h / 2, i, (double)NAN);
        test_fill_row(t->v, 1, h, i, (double)NAN), test_fill_row(t->d_o, 1, h, i, (double)NAN);
        test_fill_row(t->p.k_global, 1, 0, i, (double)NAN);
        test_fill_row(t->p.v_global, 1, h / 2, i, (double)INFINITY);
      }
    promise_run(&t->does);
    for (int i = 0; i < 6; i++)
      if (y[i]->data) test_assert_same(*y[i], *was[i], "by itself");
    t->g.accumulate = 1;
    promise_run(&t->does);
    for (int i = 0; i < 6; i++)
      if (y[i]->data)
        value_check(oracle_get(y[i], 0, 0, 1, 0), 2 * oracle_get(was[i], 0, 0, 1, 0), 1e-6,
                    ATTN_F32, "twice", 0, 0, i, 0);
    for (int b = 0; b < 2; b++) attn_schedule_free(&schedules[b]);
  }
}

void N6_longformer_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9802);
  for (int n = 0; n < 14; n++, test_mem_release()) {
    longformer_back *s = build(2, 30, 4, 0, n != 9, ATTN_F32, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    forward(s);
    switch (n) {
      case 0: s->d_q.len = 29, word = "d_q"; break;
      case 1: s->d_k.heads = 1, word = "d_k"; break;
      case 2: s->d_v.dim++, word = "d_v"; break;
      case 3: s->d_o.batch = 1, word = "d_o"; break;
      case 4: s->lse.data = NULL, want = ATTN_E_NULL, word = "lse"; break;
      case 5: s->g.accumulate = 2, want = ATTN_E_RANGE, word = "accumulate"; break;
      case 6: s->g.d_k_global.len = 3, word = "global"; break;
      case 7: s->g.d_q_global.data = s->d_q.data, want = ATTN_E_OVERLAP, word = "share"; break;
      case 8: s->k = s->d_k, want = ATTN_E_OVERLAP, word = "d_k"; break;
      case 9:
        s->g.d_k_global = s->k, s->g.d_k_global.data = s->o.data;
        want = ATTN_E_NULL, word = "global";
        break;
      case 10: s->p.window = NULL, want = ATTN_E_NULL, word = "window"; break;
      case 11: s->g.d_lse.dtype = ATTN_BF16, want = ATTN_E_DTYPE, word = "d_lse"; break;
      case 12: s->window[2] = -1, want = ATTN_E_RANGE, word = "window"; break;
      default: s->d_q.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "d_q"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
