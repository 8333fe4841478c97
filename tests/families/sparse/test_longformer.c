/* tests/families/sparse/test_longformer.c owns Longformer: windows and dilations per head, global tokens with
 * projections of their own. */

#include "compound.h"

enum { H = 4 };

typedef struct scene {
  attn_tensor o, q, k, v;
  attn_longformer_params p;
  int32_t window[H], dilation[H];
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_longformer(s->o, s->q, s->k, s->v, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_longformer_workspace(s->o, s->q, s->k, s->v, &s->p, ctx);
}

/* per_entry: a list for each batch entry; own: global projections. */
static scene *build(int64_t batch, int64_t tokens, int64_t most, int per_entry, int own,
                    attn_dtype type, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  int64_t dk = test_range(rng, 1, 10), dv = test_range(rng, 1, 10), lists = per_entry ? batch : 1;
  s->q = drawn(type, TEST_BTHD, batch, H, tokens, dk, 1, rng);
  s->k = drawn(ATTN_F32, TEST_PADDED, batch, 2, tokens, dk, 1, rng);
  s->v = drawn(type, TEST_BHTD, batch, H, tokens, dv, 1, rng);
  s->o = output(type, TEST_BTHD, batch, H, tokens, dv, &s->does.block[0]);
  s->p.lse = output(ATTN_F32, TEST_PADDED, batch, H, tokens, 1, &s->does.block[1]);
  int64_t *ptr = test_mem((size_t)(lists + 1) * sizeof *ptr), longest = 0;
  int32_t *list = test_mem((size_t)(lists * tokens + 1) * sizeof *list);
  ptr[0] = 0;
  for (int64_t b = 0; b < lists; b++) {
    int64_t n = 0;
    for (int64_t i = 0; i < tokens && n < most; i++) {
      if (test_range(rng, 0, tokens - 1) < most) list[ptr[b] + n++] = (int32_t)i;
    }
    ptr[b + 1] = ptr[b] + n;
    if (n > longest) longest = n;
  }
  s->p.global = ptr[lists] ? list : NULL, s->p.globals = ptr[lists];
  if (per_entry) s->p.global_indptr = ptr;
  if (own) {
    s->p.q_global = drawn(ATTN_F32, TEST_BHTD, batch, H, longest, dk, 1, rng);
    s->p.k_global = drawn(type, TEST_BTHD, batch, 1, tokens, dk, 1, rng);
    s->p.v_global = drawn(ATTN_F32, TEST_BTHD, batch, 2, tokens, dv, 1, rng);
  }
  for (int h = 0; h < H; h++) s->window[h] = 2, s->dilation[h] = 1;
  s->p.window = s->window;
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.mallocs = 1;
  s->does.out[0] = &s->o, s->does.out[1] = &s->p.lse;
  return s;
}

/* The place of token i in the list of entry b, or -1. */
static int64_t place(const scene *s, int64_t b, int64_t i) {
  int64_t from = s->p.global_indptr ? s->p.global_indptr[b] : 0;
  int64_t end = s->p.global_indptr ? s->p.global_indptr[b + 1] : s->p.globals;
  for (int64_t e = from; e < end; e++) {
    if (s->p.global[e] == i) return e - from;
  }
  return -1;
}

static int valid(const scene *s, int64_t b, int64_t i) {
  return !s->p.valid.kind || oracle_mask(&s->p.valid, b, 0, 0, i) == 0;
}

static void check(const scene *s, const char *what) {
  int64_t n = s->q.len;
  double scale = scale_of(s->p.scale, s->q.dim);
  bag a = bag_of(n, s->v.dim);
  for (int64_t r = 0; r < s->q.batch * H * n; r++) {
    int64_t b = r / n / H, h = r / n % H, i = r % n, w = s->p.window[h];
    int64_t d = s->p.dilation ? s->p.dilation[h] : 1, at = place(s, b, i);
    int own = at >= 0 && s->p.q_global.data;
    const attn_tensor *q = own ? &s->p.q_global : &s->q, *k = own ? &s->p.k_global : &s->k;
    const attn_tensor *v = own ? &s->p.v_global : &s->v;
    bag_empty(&a);
    for (int64_t j = 0; j < n && valid(s, b, i); j++) {
      int64_t far = i > j ? i - j : j - i;
      int sees = at >= 0 || place(s, b, j) >= 0 || (far % d == 0 && far / d <= w);
      if (!sees || !valid(s, b, j) || (s->p.causal && j > i)) continue;
      bag_add(&a, scale * dot_rows(q, k, b, h, own ? at : i, j), v, b, head_of(v, h, H), j);
    }
    bag_close(&a);
    bag_check(&a, &s->o, &s->p.lse, b, h, i, 2e-5, what);
  }
}

static void random_windows(scene *s, test_rng *rng) {
  for (int h = 0; h < H; h++) {
    s->window[h] = (int32_t)test_range(rng, 0, 6);
    s->dilation[h] = (int32_t)test_range(rng, 1, 4);
  }
  s->p.dilation = s->dilation;
}

void C7_longformer_random(void **state) {
  (void)state;
  test_rng rng = test_seed(700);
  for (int64_t n = test_count(40, 10); n-- > 0;) {
    int64_t batch = test_range(&rng, 1, 3), tokens = test_range(&rng, 1, n % 4 ? 40 : 150);
    scene *s = build(batch, tokens, n % 5 ? test_range(&rng, 0, 6) : tokens, n & 1, n % 3 != 0,
                     (attn_dtype)(n % 7 ? 0 : 1 + n % 2), &rng);
    if (n % 4) random_windows(s, &rng);
    if (n % 8 == 3) s->window[1] = INT32_MAX, s->dilation[2] = INT32_MAX;
    s->p.causal = n % 4 == 1;
    if (n % 3 == 1) {
      attn_mask_kind kind = n & 2 ? ATTN_MASK_BITS : ATTN_MASK_BOOL;
      s->p.valid = test_mask(kind, ATTN_F32, batch, 1, 1, tokens, &rng);
    }
    if (n % 6 == 4) s->p.scale = 0.3f;
    if (n % 6 == 5) s->p.lse.data = NULL;
    promise_run(&s->does);
    check(s, "longformer");
  }
}

/* Separate projections change the rows of global tokens only. */
void C7_longformer_local_rows(void **state) {
  (void)state;
  test_rng rng = test_seed(701);
  scene *s = build(2, 60, 5, 1, 1, ATTN_F32, &rng);
  promise_run(&s->does);
  attn_tensor o = s->o;
  s->o = output(ATTN_F32, TEST_BHTD, 2, H, 60, s->v.dim, NULL);
  s->p.q_global.data = s->p.k_global.data = s->p.v_global.data = NULL;
  promise_run(&s->does);
  for (int64_t r = 0; r < 2 * H * 60; r++) {
    attn_tensor x = test_rows(test_one(o, r / 60 / H, 1, r / 60 % H, 1), r % 60, 1);
    attn_tensor y = test_rows(test_one(s->o, r / 60 / H, 1, r / 60 % H, 1), r % 60, 1);
    if (place(s, r / 60 / H, r % 60) < 0) test_assert_near(x, y, 1e-5, "local row");
    if (place(s, r / 60 / H, r % 60) >= 0) assert_false(test_same(x, y));
  }
}

/* A window over everything without global tokens is full attention. */
void C7_longformer_full(void **state) {
  (void)state;
  test_rng rng = test_seed(702);
  scene *s = build(1, 70, 0, 0, 0, ATTN_F32, &rng);
  for (int h = 0; h < H; h++) s->window[h] = 70;
  promise_run(&s->does);
  attn_tensor o = output(ATTN_F32, TEST_BHTD, 1, H, 70, s->v.dim, NULL);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_sdpa(o, s->q, s->k, s->v, NULL, &ctx), ATTN_OK);
  test_assert_near(s->o, o, 1e-5, "full");
}

/* Padding at the end gives the run on the shortened input, whatever stands there. */
void C7_longformer_padding(void **state) {
  (void)state;
  test_rng rng = test_seed(703);
  scene *s = build(1, 50, 4, 0, 1, ATTN_F32, &rng);
  static const int32_t list[3] = {1, 9, 44};
  uint8_t there[50];
  memset(there, 1, sizeof there), memset(there + 38, 0, 12);
  s->p.global = list, s->p.globals = 3;
  s->p.q_global = drawn(ATTN_F32, TEST_BHTD, 1, H, 3, s->q.dim, 1, &rng);
  s->p.valid = attn_mask_bool(there, 1, 1, 1, 50);
  test_fill_value(test_rows(s->k, 38, 12), (double)NAN);
  test_fill_value(test_rows(s->v, 38, 12), (double)NAN);
  test_fill_value(test_rows(s->q, 38, 12), (double)NAN);
  test_fill_value(test_rows(s->p.k_global, 38, 12), (double)NAN);
  test_fill_value(test_rows(s->p.v_global, 38, 12), (double)INFINITY);
  promise_run(&s->does);
  attn_tensor o = s->o, lse = s->p.lse;
  s->q.len = s->k.len = s->v.len = s->p.k_global.len = s->p.v_global.len = 38;
  s->p.q_global.len = s->p.globals = 2;
  memset(&s->p.valid, 0, sizeof s->p.valid);
  s->o = output(ATTN_F32, TEST_BHTD, 1, H, 38, s->v.dim, NULL);
  s->p.lse = output(ATTN_F32, TEST_BHTD, 1, H, 38, 1, NULL);
  promise_run(&s->does);
  test_assert_near(test_rows(o, 0, 38), s->o, 1e-5, "padding");
  test_assert_near(test_rows(lse, 0, 38), s->p.lse, 1e-5, "padding");
  for (int64_t i = 38; i < 50; i++) {
    assert_true(oracle_get(&o, 0, 2, i, 0) == 0);
    assert_true(oracle_get(&lse, 0, 2, i, 0) == -(double)INFINITY);
  }
}

void C7_longformer_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(704);
  for (int n = 0; n < 4; n++) {
    scene *s = build(n & 1, n & 2 ? 0 : 7, 0, n & 1, 1, ATTN_F32, &rng);
    promise_run(&s->does);
    s->p.q_global.data = NULL; /* no rows */
    promise_run(&s->does);
  }
}

void C7_longformer_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(705);
  for (int n = 0; n < 4; n++) {
    attn_schedule schedule[2];
    scene *s = build(2, 90, 6, n & 1, 1, n & 2 ? ATTN_F16 : ATTN_F32, &rng);
    random_windows(s, &rng);
    s->p.causal = n == 3;
    promise_keep(&s->does);
    attn_tensor o = s->o;
    attn_ctx ctx = test_ctx();
    for (int b = 0; b < 1 + (n & 1); b++)
      assert_int_equal(attn_longformer_schedule(&schedule[b], &s->p, H, 90, b, &ctx), ATTN_OK);
    s->p.schedules = schedule, s->does.mallocs = 0;
    promise_keep(&s->does);
    promise_run(&s->does);
    s->o = output(s->o.dtype, TEST_BHTD, 2, H, 90, s->v.dim, NULL), s->p.schedules = NULL;
    promise_run(&s->does);
    test_assert_same(s->o, o, "schedules given");
    for (int b = 0; b < 1 + (n & 1); b++) attn_schedule_free(&schedule[b]);
  }
}

/* The schedule of params that differ in one thing only. */
void C7_longformer_schedules(void **state) {
  (void)state;
  test_rng rng = test_seed(707);
  static int32_t lists[2][2] = {{3, 40}, {3, 41}};
  for (int n = 0; n < 12; n++) {
    attn_schedule schedule;
    attn_ctx ctx = test_ctx();
    scene *s = build(1, 90, 2, 0, n / 6, ATTN_F32, &rng);
    s->p.global = lists[0], s->p.globals = 2, s->p.dilation = s->dilation;
    if (n >= 6) s->p.q_global = drawn(ATTN_F32, TEST_BHTD, 1, H, 2, s->q.dim, 1, &rng);
    for (int h = 0; h < H; h++) s->window[h] = n % 2 ? 5 : 5 + h, s->dilation[h] = 1;
    switch (n % 6) {
      case 0: s->window[H - 1]++; break;
      case 1: s->dilation[1]++; break;
      case 2: s->p.global = lists[1]; break;
      case 3: s->p.causal = 1; break;
      case 4: s->p.globals = 1; break;
      default: break;
    }
    assert_int_equal(attn_longformer_schedule(&schedule, &s->p, H, 90, 0, &ctx), ATTN_OK);
    for (int h = 0; h < H; h++) s->window[h] = n % 2 ? 5 : 5 + h, s->dilation[h] = 1;
    s->p.global = lists[0], s->p.globals = 2, s->p.causal = 0;
    s->p.schedules = &schedule;
    if (n % 6 == 5)
      promise_run(&s->does);
    else
      promise_reject(&s->does, ATTN_E_SCHEDULE, "params.schedules");
    attn_schedule_free(&schedule);
  }
}

void C7_longformer_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(706);
  for (int n = 0; n < 25; n++) {
    scene *s = build(2, 12, 4, 0, 0, ATTN_F32, &rng);
    static const int32_t list[4] = {0, 3, 3, 11}, late[2] = {4, 12}, early[1] = {-1},
                         good[3] = {1, 4, 9};
    static const int64_t down[3] = {0, 2, 1}, far[3] = {0, 1, 4};
    attn_status want = ATTN_E_INDEX;
    const char *word = "global";
    s->p.global = good, s->p.globals = 3;
    s->p.q_global = drawn(ATTN_F32, TEST_BHTD, 2, H, 3, s->q.dim, 1, &rng);
    s->p.k_global = s->k, s->p.v_global = s->v;
    s->p.dilation = s->dilation;
    uint8_t mask[24] = {0};
    switch (n) {
      case 0: s->p.global = list, s->p.globals = 4; break;
      case 1: s->p.global = late, s->p.globals = 2; break;
      case 2: s->p.global = early, s->p.globals = 1; break;
      case 3: s->p.global_indptr = down; break;
      case 4: s->p.global_indptr = far; break;
      case 5: s->p.globals = -1, want = ATTN_E_SHAPE; break;
      case 6: s->p.global = NULL, want = ATTN_E_NULL; break;
      case 7: s->p.window = NULL, want = ATTN_E_NULL, word = "window"; break;
      case 8: s->window[3] = -1, want = ATTN_E_RANGE, word = "window"; break;
      case 9: s->dilation[3] = 0, want = ATTN_E_RANGE, word = "dilation"; break;
      case 10: s->p.q_global.data = NULL, want = ATTN_E_NULL; break;
      case 11: s->p.k_global.data = NULL, want = ATTN_E_NULL; break;
      case 12: s->p.v_global.data = NULL, want = ATTN_E_NULL; break;
      case 13: s->p.q_global.len = 2, want = ATTN_E_SHAPE, word = "q_global"; break;
      case 14: s->p.q_global.heads = 1, want = ATTN_E_SHAPE, word = "q_global"; break;
      case 15: s->p.k_global.len = 11, want = ATTN_E_SHAPE, word = "k_global"; break;
      case 16: s->p.v_global.dim++, want = ATTN_E_SHAPE, word = "v_global"; break;
      case 17: s->k.len = 11, want = ATTN_E_SHAPE, word = "k must"; break;
      case 18:
        s->p.valid = attn_mask_bool(mask, 2, 1, 12, 12), want = ATTN_E_MASK, word = "valid";
        break;
      case 19:
        s->p.valid = attn_mask_add(mask, ATTN_BF16, 2, 1, 1, 12), want = ATTN_E_MASK,
        word = "valid";
        break;
      case 20: s->p.scale = (float)NAN, want = ATTN_E_VALUE, word = "scale"; break;
      case 21: s->o.len = 11, want = ATTN_E_SHAPE, word = "o must"; break;
      case 22: s->p.v_global.data = s->o.data, want = ATTN_E_OVERLAP, word = "o is"; break;
      case 23: s->p.lse.dim = 2, want = ATTN_E_SHAPE, word = "lse"; break;
      default: s->k.heads = 3, want = ATTN_E_HEADS, word = "k must"; break;
    }
    promise_reject(&s->does, want, word);
  }
  attn_longformer_params p;
  static const int32_t window[2] = {1, -1};
  memset(&p, 0, sizeof p);
  p.window = window;
  attn_schedule untouched = {window, 7, NULL};
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_longformer_schedule(&untouched, &p, 2, 9, 0, &ctx), ATTN_E_RANGE);
  assert_int_equal(attn_longformer_schedule(&untouched, &p, 0, 9, 0, &ctx), ATTN_E_SHAPE);
  assert_int_equal(attn_longformer_schedule(&untouched, &p, 1, 9, -1, &ctx), ATTN_E_RANGE);
  assert_int_equal(attn_longformer_schedule(&untouched, NULL, 1, 9, 0, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_longformer_schedule(NULL, &p, 1, 9, 0, &ctx), ATTN_E_NULL);
  assert_true(untouched.data == window && untouched.size == 7);
}
