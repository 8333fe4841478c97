/* tests/families/memory/test_segment.c owns memories of segments (J1): the rings, the core form, the layer. */

#include "segment.h"

/* ---- rings ----------------------------------------------------------------------------------*/

/* A history of rows whose numbers are known from where they stand, exact in every storage type. */
static double history(int64_t b, int64_t n, int64_t c) {
  return (double)((n * 7 + b * 29 + c) % 113 - 50);
}

static attn_tensor history_rows(attn_dtype type, test_layout layout, int64_t batch, int64_t from,
                                int64_t len, int64_t dm) {
  attn_tensor t = test_tensor(type, layout, batch, 1, len, dm);
  for (int64_t b = 0; b < batch; b++) {
    for (int64_t i = 0; i < len; i++) {
      for (int64_t c = 0; c < dm; c++) oracle_set(&t, b, 0, i, c, history(b, from + i, c));
    }
  }
  return t;
}

static attn_memory ring_empty(attn_dtype type, int64_t batch, int64_t room, int64_t dm) {
  attn_memory m;
  memset(&m, 0, sizeof m);
  if (room) m.rows = test_tensor(type, TEST_PADDED, batch, 1, room, dm);
  return m;
}

static void append(attn_memory *m, attn_tensor h) {
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_memory_append(m, h, &ctx), ATTN_OK);
  assert_int_equal(ctx.report.isa, test_isa);
}

static void ring_is(const attn_memory *m, int64_t end, int64_t len) {
  attn_tensor part[2];
  assert_int_equal(m->len, len);
  assert_int_equal(attn_memory_parts(part, m), 1);
  assert_int_equal(part[0].len + part[1].len, len);
  for (int64_t b = 0; b < m->rows.batch && len; b++) {
    for (int64_t i = 0; i < len; i++) {
      for (int64_t c = 0; c < m->rows.dim; c++) {
        double want = history(b, end - len + i, c);
        int second = i >= part[0].len;
        assert_true(ring_get(m, b, i, c) == want);
        assert_true(oracle_get(&part[second], b, 0, second ? i - part[0].len : i, c) == want);
      }
    }
  }
}

void J1_memory_append(void **state) {
  (void)state;
  test_rng rng = test_seed(500);
  for (int64_t n = test_count(12, 4); n-- > 0;) {
    int64_t room = n % 4 ? test_range(&rng, 0, 12) : 1, batch = test_range(&rng, 1, 2), end = 0;
    attn_dtype type = (attn_dtype)(n % 3);
    attn_memory m = ring_empty(type, batch, room, 3);
    for (int step = 0; step < 8; step++) {
      int64_t len = test_range(&rng, 0, step % 3 ? 5 : 20);
      append(&m, history_rows((attn_dtype)(step % 3), (test_layout)(step % 4), batch, end, len, 3));
      end += len;
      ring_is(&m, end, end < room ? end : room);
    }
  }
}

void J1_memory_update(void **state) {
  (void)state;
  test_rng rng = test_seed(501);
  for (int64_t n = test_count(40, 8); n-- > 0;) {
    int64_t room = test_range(&rng, 0, 9), batch = test_range(&rng, 1, 2), end = 0;
    attn_memory m = ring_empty(ATTN_F32, batch, room, 3);
    while (room && test_range(&rng, 0, 3)) {
      int64_t len = test_range(&rng, 0, 6);
      append(&m, history_rows(ATTN_F32, TEST_BHTD, batch, end, len, 3));
      end += len;
    }
    int64_t len = test_range(&rng, 0, 7);
    attn_tensor h = history_rows((attn_dtype)(n % 3), TEST_BTHD, batch, end, len, 3);
    attn_tensor y = test_tensor((attn_dtype)(n % 2), TEST_NEGATIVE, batch, 1,
                                test_range(&rng, 0, m.len + len), 3);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_memory_update(y, m, h, &ctx), ATTN_OK);
    attn_tensor want = history_rows(y.dtype, TEST_BHTD, batch, end + len - y.len, y.len, 3);
    test_assert_same(y, want, "last rows");
  }
}

/* A tensor that is its own memory: it grows, then drops its oldest rows. */
void J1_memory_in_place(void **state) {
  (void)state;
  test_rng rng = test_seed(502);
  for (int n = 0; n < 4; n++) {
    attn_tensor all =
        test_tensor(n % 2 ? ATTN_F32 : ATTN_F16, n < 2 ? TEST_PADDED : TEST_NEGATIVE, 2, 1, 11, 5);
    int64_t end = 0;
    attn_memory m;
    memset(&m, 0, sizeof m);
    m.rows = all, m.rows.len = 0;
    for (int step = 0; step < 12; step++) {
      int64_t len = test_range(&rng, 0, step == 7 ? 15 : 4);
      attn_tensor h = history_rows(ATTN_F32, TEST_BHTD, 2, end, len, 5), y = all;
      attn_ctx ctx = test_ctx();
      end += len;
      y.len = m.len + len < 11 ? m.len + len : 11;
      assert_int_equal(attn_memory_update(y, m, h, &ctx), ATTN_OK);
      m.rows.len = m.len = y.len;
      ring_is(&m, end, y.len);
    }
  }
}

/* One row in place: how far rows lie apart says nothing there. */
void J1_memory_one_row(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    attn_memory m = ring_empty(ATTN_F32, 2, n < 2 ? 1 : 6, 3);
    append(&m, history_rows(ATTN_F32, TEST_BHTD, 2, 0, 1, 3));
    attn_tensor y = m.rows;
    y.len = n < 4 ? 1 : 2;
    if (n % 2 && n < 4) y.stride_len = 77;
    if (n >= 4) m.rows.len = 1, m.rows.stride_len = n % 2 ? 77 : 0; /* and grows */
    attn_ctx ctx = test_ctx();
    if (attn_memory_update(y, m, history_rows(ATTN_F32, TEST_BHTD, 2, 1, 1, 3), &ctx) != ATTN_OK)
      fail_msg("case %d: %s", n, ctx.reason);
    m.rows = y, m.first = 0, m.len = y.len;
    ring_is(&m, 2, y.len);
  }
}

void J1_memory_rejects(void **state) {
  (void)state;
  for (int n = 0; n < 17; n++) {
    attn_memory m = ring_empty(ATTN_F32, 2, 6, 3);
    test_block block = test_last_block;
    attn_tensor h = history_rows(ATTN_F32, TEST_BHTD, 2, 0, 3, 3);
    for (int64_t at = 0; at < 8; at += 4) /* it wraps around */
      append(&m, history_rows(ATTN_F32, TEST_BHTD, 2, at, 4, 3));
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 4, 3);
    attn_memory *at = &m;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    int update = n > 10;
    switch (n) {
      case 0: h.dim = 2, word = "memory.rows must"; break;
      case 1: h.batch = 1, word = "memory.rows must"; break;
      case 2: h.heads = 2, word = "h must"; break;
      case 3: h.data = NULL, want = ATTN_E_NULL, word = "h.data"; break;
      case 4: m.rows.data = NULL, want = ATTN_E_NULL, word = "memory.rows.data"; break;
      case 5: m.len = 7, want = ATTN_E_RANGE, word = "memory.len"; break;
      case 6: m.len = -1, want = ATTN_E_RANGE, word = "memory.len"; break;
      case 7: m.first = 6, want = ATTN_E_RANGE, word = "memory.first"; break;
      case 8: at = NULL, want = ATTN_E_NULL, word = "memory must"; break;
      case 9: h = m.rows, h.len = 3, want = ATTN_E_OVERLAP, word = "memory.rows is"; break;
      case 10: m.rows.data = NULL, m.rows.len = -4, word = "memory.rows"; break;
      case 11: y = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 10, 3), word = "y.len"; break;
      case 12: y.dim = 2, word = "y must"; break;
      case 13: y = m.rows, y.len = 4, want = ATTN_E_OVERLAP, word = "y is"; break;
      case 14: y = h, want = ATTN_E_OVERLAP, word = "y is"; break;
      case 15: m.rows.stride_len = 3, m.first = -1, want = ATTN_E_RANGE, word = "first"; break;
      default: y.dtype = (attn_dtype)99, want = ATTN_E_DTYPE, word = "y.dtype"; break;
    }
    unsigned char *before = test_mem(block.size);
    memcpy(before, block.data, block.size);
    attn_memory old = m;
    attn_ctx ctx = test_ctx();
    attn_status got = update ? attn_memory_update(y, m, h, &ctx) : attn_memory_append(at, h, &ctx);
    if (got != want || !ctx.reason || !strstr(ctx.reason, word))
      fail_msg("case %d: %s (%s)", n, attn_status_string(got), ctx.reason ? ctx.reason : "");
    assert_memory_equal(before, block.data, block.size);
    assert_true(m.len == old.len && m.first == old.first);
  }
  attn_memory m = ring_empty(ATTN_F32, 1, 4, 2);
  attn_tensor part[2];
  m.len = 5;
  assert_int_equal(attn_memory_parts(part, &m), 0);
  assert_int_equal(attn_memory_parts(part, NULL), 0);
}

/* ---- the layer ------------------------------------------------------------------------------*/

void J1_layer_random(void **state) {
  (void)state;
  test_rng rng = test_seed(510);
  for (int64_t n = test_count(30, 8); n-- > 0;) {
    segment_shape x = segment_random(&rng);
    segment_scene *s = segment_build(&x, &rng);
    if (n % 2 && s->p.w_o.data)
      s->p.b_o = drawn(x.type, TEST_BHTD, 1, 1, 1, s->p.w_o.dim, 0.7, &rng);
    if (x.heads == 1) s->p.heads = s->p.kv_heads = 0;
    if (n % 5 == 1) s->p.attention.scale = 0.3f;
    if (n % 5 == 2) s->p.attention.scale = ATTN_ZERO;
    if (n % 2) s->p.norm.eps = 0.5f;
    s->p.interleaved = n % 3 == 1, s->p.base = n % 4 == 3 ? 100 : 0;
    if (n % 7 == 3) s->p.attention.lse = absent(), s->does.out[1] = NULL;
    if (n % 7 == 4) s->p.attention.usage = absent(), s->does.out[2] = NULL;
    promise_run(&s->does);
    segment_check(s, 4e-5, "segment layer");
  }
}

/* A stream of segments through one layer with a memory of `room` rows; row n of the result is that
 * of token n. */
static attn_tensor stream(segment_scene *s, attn_tensor all, const int64_t *cuts, int64_t room) {
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, all.batch, 1, all.len, all.dim);
  attn_memory m = ring_empty(ATTN_F32, all.batch, room, all.dim);
  for (int64_t at = 0; at < all.len; cuts++) {
    int64_t len = *cuts < all.len - at ? *cuts : all.len - at;
    attn_ctx ctx = test_ctx();
    s->h = test_rows(all, at, len), s->o = test_rows(y, at, len), s->p.memory = m;
    attn_status status = attn_segment_layer(s->o, s->h, &s->p, &ctx);
    if (status != ATTN_OK) fail_msg("%s", ctx.reason);
    append(&m, s->h);
    at += len;
  }
  return y;
}

static segment_scene *streamed(int relative, attn_sublayer sublayer, int64_t tokens,
                               test_rng *rng) {
  segment_shape x = {2, tokens, 0, 0, 16, 4, 2, 8, 6, sublayer, 0, 0, relative, 3, ATTN_F32, 0, 0};
  if (sublayer == ATTN_SUBLAYER_PLAIN) x.out = 16;
  segment_scene *s = segment_build(&x, rng);
  s->p.memory = ring_empty(ATTN_F32, 2, 0, 16), s->p.compressed = s->p.memory;
  s->p.attention.lse = s->p.attention.usage = absent();
  return s;
}

/* A memory that holds all makes segments one causal pass. */
void J1_layer_one_pass(void **state) {
  (void)state;
  test_rng rng = test_seed(511);
  static const int64_t cuts[] = {20, 1, 33, 40, 17, 99}, whole[] = {130};
  for (int n = 0; n < 6; n++) {
    segment_scene *s = streamed(n % 2, (attn_sublayer)(n / 2), 130, &rng);
    attn_tensor all = s->h;
    attn_tensor one = stream(s, all, whole, 0), many = stream(s, all, cuts, 140);
    test_assert_near(many, one, 2e-5, "segments against one pass");
  }
}

void J1_layer_memoryless(void **state) {
  (void)state;
  test_rng rng = test_seed(512);
  static const int64_t cuts[] = {30, 30, 30};
  for (int relative = 0; relative < 2; relative++) {
    segment_scene *s = streamed(relative, ATTN_SUBLAYER_POST, 90, &rng);
    attn_tensor all = s->h, y = stream(s, all, cuts, 0);
    memset(&s->p.memory, 0, sizeof s->p.memory);
    for (int64_t at = 0; at < 90; at += 30) {
      s->h = test_rows(all, at, 30), s->o = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 30, 16);
      promise_run(&s->does);
      test_assert_same(s->o, test_rows(y, at, 30), "mem_len 0");
    }
  }
}

/* Outputs depend on mem_len earlier rows of the input, and on the last of them. */
void J1_layer_reach(void **state) {
  (void)state;
  test_rng rng = test_seed(513);
  static const int64_t cuts[] = {20, 20, 20, 20};
  const int64_t room = 13;
  segment_scene *s = streamed(1, ATTN_SUBLAYER_PRE, 80, &rng);
  attn_tensor all = s->h, y = stream(s, all, cuts, room);
  for (int64_t changed = 5; changed < 80; changed += 16) {
    attn_tensor other = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 80, 16);
    test_copy(other, all);
    test_fill_row(other, 0, 0, changed, 3), oracle_set(&other, 0, 0, changed, 0, -2);
    attn_tensor z = stream(s, other, cuts, room);
    int64_t segment = changed / 20 * 20, end = segment + 20;
    int64_t last = changed >= end - room ? end + 20 : end; /* it is in the next one's memory */
    if (last > 80) last = 80;
    test_assert_same(test_rows(z, 0, changed), test_rows(y, 0, changed), "rows before");
    test_assert_same(test_rows(z, last, 80 - last), test_rows(y, last, 80 - last),
                     "rows out of reach");
    for (int64_t i = changed; i < last; i++)
      assert_false(test_same(test_one(test_rows(z, i, 1), 0, 1, 0, 1),
                             test_one(test_rows(y, i, 1), 0, 1, 0, 1)));
  }
}

/* window = mem_len: no query sees more keys than that, whatever the memory holds. */
void J1_layer_same_length(void **state) {
  (void)state;
  test_rng rng = test_seed(514);
  segment_shape x = {1, 12, 30, 0, 8, 2, 2, 4, 4, ATTN_SUBLAYER_POST, 0, 30, 1, 0, ATTN_F32, 0, 0};
  segment_scene *s = segment_build(&x, &rng);
  promise_run(&s->does);
  segment_check(s, 4e-5, "same length");
  attn_tensor before = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 12, 8);
  test_copy(before, s->o);
  /* the oldest 1 .. 12 rows are out of sight of rows 0 .. 11 */
  for (int64_t i = 0; i < 12; i++)
    test_fill_row(s->p.memory.rows, 0, 0, (s->p.memory.first + i) % s->p.memory.rows.len, NAN);
  promise_run(&s->does);
  test_assert_same(test_rows(s->o, 11, 1), test_rows(before, 11, 1), "out of sight");
  assert_true(isnan(oracle_get(&s->o, 0, 0, 10, 0)));
}

/* The three steps one by one are the layer. */
void J1_layer_steps(void **state) {
  (void)state;
  test_rng rng = test_seed(515);
  for (int n = 0; n < 6; n++) {
    segment_shape x = {2,
                       40,
                       30,
                       0,
                       12,
                       4,
                       2,
                       5,
                       7,
                       (attn_sublayer)(n % 3),
                       9,
                       n % 2 ? 25 : 0,
                       n < 3 ? 2 : 0,
                       3,
                       ATTN_F32,
                       0,
                       0};
    segment_scene *s = segment_build(&x, &rng);
    attn_tensor q = test_tensor(ATTN_F32, TEST_BTHD, 2, 4, 40, 5), none = absent();
    attn_tensor k = test_tensor(ATTN_F32, TEST_BTHD, 2, 2, 70, 5);
    attn_tensor v = test_tensor(ATTN_F32, TEST_BTHD, 2, 2, 70, 7), part[2];
    attn_tensor heads = test_tensor(ATTN_F32, TEST_BTHD, 2, 4, 40, 7), o = s->o;
    attn_ctx ctx = test_ctx();
    promise_run(&s->does);
    assert_int_equal(attn_memory_parts(part, &s->p.memory), 1);
    assert_int_equal(attn_segment_project(q, test_rows(k, 30, 40), none, s->h, &s->p, &ctx),
                     ATTN_OK);
    assert_int_equal(ctx.report.isa, test_isa);
    assert_int_equal(attn_segment_project(none, none, test_rows(v, 30, 40), s->h, &s->p, &ctx),
                     ATTN_OK);
    for (int64_t i = 0, at = 0; i < 2; at += part[i++].len)
      assert_int_equal(attn_segment_project(none, test_rows(k, at, part[i].len),
                                            test_rows(v, at, part[i].len), part[i], &s->p, &ctx),
                       ATTN_OK);
    attn_segment_params a = s->p.attention;
    a.lse = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, 40, 1);
    a.usage = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 1, 70);
    assert_int_equal(attn_segment(heads, q, k, v, &a, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.isa, test_isa);
    test_assert_same(a.lse, s->p.attention.lse, "lse");
    test_assert_same(a.usage, s->p.attention.usage, "usage");
    o = test_tensor(ATTN_F32, TEST_BHTD, o.batch, o.heads, o.len, o.dim);
    assert_int_equal(attn_segment_output(o, heads, s->h, &s->p, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.isa, test_isa);
    test_assert_same(o, s->o, "steps");
    for (int i = 0; i < 2; i++) { /* not onto what it reads */
      attn_tensor on = o;
      on.data = i ? s->h.data : heads.data;
      assert_int_equal(attn_segment_output(on, heads, s->h, &s->p, &ctx), ATTN_E_OVERLAP);
    }
  }
}

void J1_layer_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(516);
  for (int n = 0; n < 3; n++) {
    segment_shape x = {n == 0 ? 0 : 2,
                       n == 1 ? 0 : 3,
                       5,
                       4,
                       8,
                       2,
                       2,
                       4,
                       4,
                       ATTN_SUBLAYER_POST,
                       0,
                       0,
                       1,
                       0,
                       ATTN_F32,
                       0,
                       0};
    segment_scene *s = segment_build(&x, &rng);
    promise_run(&s->does);
    if (n) segment_check(s, 4e-5, "empty");
  }
}

void J1_layer_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(517);
  for (int n = 0; n < 3; n++) {
    segment_shape x = {
        2, 70, 90, 40, 24, 4, 2, 8, 6, (attn_sublayer)n, 10, 0, n % 2, 3, n ? ATTN_F32 : ATTN_F16,
        0, 0};
    segment_scene *s = segment_build(&x, &rng);
    promise_keep(&s->does);
  }
}

/* No call reads or writes beyond its operands. */
void J1_layer_guards(void **state) {
  (void)state;
  test_rng rng = test_seed(518);
  for (int n = 0; n < 4; n++) {
    segment_shape x = {1, 21, 17,        5, 6,
                       2, 1,  5,         3, (attn_sublayer)(n % 3),
                       7, 0,  1 + n % 2, 3, (attn_dtype)(n % 3),
                       0, 0};
    test_where = n % 2 ? TEST_BEFORE_GUARD : TEST_AFTER_GUARD;
    segment_scene *s = segment_build(&x, &rng);
    promise_run(&s->does);
    test_where = TEST_HEAP;
  }
}

void J1_layer_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(519);
  for (int n = 0; n < 38; n++) {
    segment_shape x = {1,
                       9,
                       4,
                       3,
                       8,
                       4,
                       2,
                       4,
                       3,
                       ATTN_SUBLAYER_POST,
                       0,
                       0,
                       n == 26 || n == 27 || n == 37 ? 2 : 1,
                       3,
                       ATTN_F32,
                       0,
                       0};
    segment_scene *s = segment_build(&x, &rng);
    attn_segment_layer_params *p = &s->p;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->h.heads = 2, s->h.stride_head = 0, word = "h must"; break;
      case 1: p->memory.rows.dim = 7, word = "params.memory.rows must"; break;
      case 2: p->compressed.rows.batch = 2, word = "params.compressed.rows must"; break;
      case 3: p->memory.len = 99, want = ATTN_E_RANGE, word = "params.memory.len"; break;
      case 4:
        p->compressed.first = -1, want = ATTN_E_RANGE, word = "params.compressed.first";
        break;
      case 5: p->w_q.len = 7, word = "w_q"; break;
      case 6: p->w_k.dim = 6, word = "w_k"; break;
      case 7: p->w_v.len = 7, word = "w_v"; break;
      case 8: p->w_o.len = 5, word = "w_o"; break;
      case 9: p->w_o.dim = 5, word = "w_o"; break;
      case 10: p->w_o.data = NULL, want = ATTN_E_NULL, word = "w_o.data"; break;
      case 11: p->w_r.dim = 6, word = "w_r"; break;
      case 12: s->o.dim = 7, word = "o must"; break;
      case 13: p->heads = 3, want = ATTN_E_HEADS, word = "heads"; break;
      case 14: p->kv_heads = 3, want = ATTN_E_HEADS, word = "kv_heads"; break;
      case 15: p->heads = -1, word = "heads"; break;
      case 16: p->attention.scale = (float)NAN, want = ATTN_E_VALUE, word = "scale"; break;
      case 17: p->attention.window = -1, want = ATTN_E_RANGE, word = "window"; break;
      case 18: p->base = -1, want = ATTN_E_VALUE, word = "params.base"; break;
      case 19: p->base = HUGE_VAL, want = ATTN_E_VALUE, word = "params.base"; break;
      case 20: p->w_r.data = NULL, want = ATTN_E_NULL, word = "u and .v need"; break;
      case 21: p->norm.eps = -1, want = ATTN_E_VALUE, word = "eps"; break;
      case 22: p->sublayer = (attn_sublayer)5, want = ATTN_E_RANGE, word = "sublayer"; break;
      case 23: p->attention.lse.len = 8, word = "lse"; break;
      case 24: p->attention.usage.dim = 99, word = "usage"; break;
      case 25: p->attention.usage.dtype = ATTN_F16, want = ATTN_E_DTYPE, word = "usage"; break;
      case 26: p->attention.r.len = 3, want = ATTN_E_RANGE, word = "distance in sight"; break;
      case 27: p->w_r = p->w_q, want = ATTN_E_NULL, word = "exclude"; break;
      case 28: p->memory.rows.data = s->o.data, want = ATTN_E_OVERLAP, word = "o is"; break;
      case 29: s->h.data = NULL, want = ATTN_E_NULL, word = "h.data"; break;
      case 30:
        p->norm.gain = (const float *)(const void *)((const char *)p->norm.gain + 1);
        want = ATTN_E_ALIGN, word = "norm";
        break;
      case 31: p->memory.rows.data = NULL, want = ATTN_E_NULL, word = "params.memory.rows"; break;
      case 32:
        p->attention.usage.data = p->attention.lse.data, want = ATTN_E_OVERLAP, word = "lse";
        break;
      case 33:
        p->b_o = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, p->w_o.dim + 1, 1, &rng), word = "b_o";
        break;
      case 34: p->b_o = p->w_o, word = "b_o"; break;
      case 35:
        p->b_o = p->w_o, p->b_o.len = 1, p->w_o.data = NULL, p->sublayer = ATTN_SUBLAYER_PLAIN;
        want = ATTN_E_NULL, word = "b_o";
        break;
      case 36:
        p->w_r.data = NULL, p->attention.u = NULL, want = ATTN_E_NULL, word = "u and .v need";
        break;
      default: /* a table that is long enough without later keys */
        p->attention.bidirectional = 1, want = ATTN_E_RANGE, word = "distance in sight";
    }
    promise_reject(&s->does, want, word);
  }
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_segment_layer(absent(), absent(), NULL, &ctx), ATTN_E_NULL);
}

/* ---- the core form --------------------------------------------------------------------------*/

typedef struct core {
  attn_tensor o, q, k, v;
  attn_segment_params p;
  promise does;
} core;

static attn_status core_call(void *at, attn_ctx *ctx) {
  core *s = at;
  return attn_segment(s->o, s->q, s->k, s->v, &s->p, ctx);
}
static size_t core_ask(void *at, const attn_ctx *ctx) {
  core *s = at;
  return attn_segment_workspace(s->o, s->q, s->k, s->v, &s->p, ctx);
}

static core *core_build(int64_t batch, int64_t heads, int64_t kv, int64_t t, int64_t m, int64_t dk,
                        int64_t dv, int relative, test_rng *rng) {
  core *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->q = drawn(ATTN_F32, TEST_BTHD, batch, heads, t, dk, 1, rng);
  s->k = drawn(ATTN_F16, TEST_PADDED, batch, kv, m + t, dk, 1, rng);
  s->v = drawn(ATTN_BF16, TEST_NEGATIVE, batch, kv, m + t, dv, 1, rng);
  s->o = output(ATTN_F32, TEST_BTHD, batch, heads, t, dv, &s->does.block[0]);
  s->p.lse = output(ATTN_F32, TEST_BHTD, batch, heads, t, 1, &s->does.block[1]);
  s->p.usage = output(ATTN_F32, TEST_BHTD, batch, 1, 1, m + t, &s->does.block[2]);
  if (relative) {
    s->p.r = drawn(ATTN_F32, TEST_BHTD, 1, heads, m + t + 1, dk, 1, rng);
    s->p.u = test_floats(heads * dk, 0.5, rng), s->p.v = test_floats(heads * dk, 0.5, rng);
  }
  s->does.call = core_call, s->does.ask = core_ask, s->does.scene = s;
  s->does.out[0] = &s->o, s->does.out[1] = &s->p.lse, s->does.out[2] = &s->p.usage;
  return s;
}

void J1_core_random(void **state) {
  (void)state;
  test_rng rng = test_seed(520);
  for (int64_t n = test_count(12, 4); n-- > 0;) {
    int64_t kv = test_range(&rng, 1, 2), heads = kv * test_range(&rng, 1, 2);
    int64_t t = test_range(&rng, 1, 80), m = test_range(&rng, 0, 150), dk = test_range(&rng, 1, 9);
    core *s = core_build(test_range(&rng, 1, 2), heads, kv, t, m, dk, 4, (int)(n % 2), &rng);
    int64_t window = s->p.window = n % 3 ? 0 : test_range(&rng, 1, 100), ahead = 0;
    if (n % 4 > 1) { /* row 0 of r is distance -ahead */
      s->p.bidirectional = 1, ahead = t - 1;
      if (s->p.r.data) s->p.r = drawn(ATTN_F32, TEST_BHTD, 1, 1, m + t + ahead, dk, 1, &rng);
    }
    promise_run(&s->does);
    bag a = bag_of(m + t, 4);
    double *usage = test_mem((size_t)(m + t) * sizeof *usage);
    for (int64_t b = 0; b < s->q.batch; b++) {
      for (int64_t j = 0; j < m + t; j++) usage[j] = 0;
      for (int64_t h = 0; h < heads; h++) {
        for (int64_t i = 0; i < t; i++) {
          bag_empty(&a);
          int64_t from = window && i + m - window + 1 > 0 ? i + m - window + 1 : 0;
          for (int64_t j = from; j < (s->p.bidirectional ? m + t : i + m + 1); j++) {
            double x = 0;
            for (int64_t c = 0; c < dk; c++) {
              double q = oracle_get(&s->q, b, h, i, c);
              double k = oracle_get(&s->k, b, head_of(&s->k, h, heads), j, c);
              x += (s->p.u ? q + (double)s->p.u[h * dk + c] : q) * k;
              if (s->p.u)
                x += (q + (double)s->p.v[h * dk + c]) *
                     oracle_get(&s->p.r, 0, s->p.r.heads > 1 ? h : 0, i + m - j + ahead, c);
            }
            bag_add(&a, x / sqrt((double)dk), &s->v, b, head_of(&s->v, h, heads), j);
          }
          bag_close(&a);
          bag_check(&a, &s->o, &s->p.lse, b, h, i, 2e-5, "core");
          for (int64_t e = 0; e < a.n; e++)
            usage[from + e] += exp(a.x[e] - a.lse) / (double)(heads * t);
        }
      }
      for (int64_t j = 0; j < m + t; j++)
        value_check(oracle_get(&s->p.usage, b, 0, 0, j), usage[j], 1e-6, ATTN_F32, "usage", b, 0, 0,
                    j);
    }
  }
}

void J1_core_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(521);
  for (int relative = 0; relative < 2; relative++)
    promise_keep(&core_build(2, 4, 2, 70, 150, 8, 6, relative, &rng)->does);
}

void J1_core_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(522);
  for (int n = 0; n < 13; n++) {
    core *s = core_build(2, 4, 2, 9, 5, 4, 3, 1, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->k.len = s->v.len = 8, s->p.usage.dim = 8, word = "k.len"; break;
      case 1: s->p.window = -2, want = ATTN_E_RANGE, word = "window"; break;
      case 2: s->p.r.data = NULL, want = ATTN_E_NULL, word = "u and .v need"; break;
      case 3: s->p.r.data = NULL, s->p.u = NULL, want = ATTN_E_NULL, word = "u and .v need"; break;
      case 4: s->p.bidirectional = 1, want = ATTN_E_RANGE, word = "params.r"; break;
      case 5: s->p.r.len = 13, want = ATTN_E_RANGE, word = "params.r"; break;
      case 6: s->p.r.dim = 3, word = "params.r"; break;
      case 7: s->k.heads = 3, s->k.stride_head = 0, want = ATTN_E_HEADS, word = "k must"; break;
      case 8: s->v.len = 13, word = "v must"; break;
      case 9: s->o.dim = 2, word = "o must"; break;
      case 10: s->p.usage = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 1, 15), word = "usage"; break;
      case 11: s->o.data = s->q.data, want = ATTN_E_OVERLAP, word = "o is"; break;
      default: s->p.lse.dim = 2, word = "lse"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
