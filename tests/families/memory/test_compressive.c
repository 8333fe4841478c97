/* tests/families/memory/test_compressive.c owns compressed memories (J2): compression, usage, the update of both
 * memories, the layer behind them, the losses. */

#include "segment.h"

/* ---- compression ----------------------------------------------------------------------------*/

/* Row `block` of the compressed first rows of x, as float64; mem: x or a list of doubles. */
static void squeezed(double *y, const double *x, int64_t dm, int64_t block, int64_t rows,
                     const attn_compress_params *p, const double *usage) {
  int64_t rate = p->rate, dilation = p->dilation ? p->dilation : 1;
  if (p->kind == ATTN_COMPRESS_MOST_USED) { /* a row is kept if fewer than rows/rate are above it */
    for (int64_t i = 0, at = 0; i < rows; i++) {
      int64_t above = 0;
      for (int64_t k = 0; k < rows; k++)
        above += usage[k] > usage[i] || (usage[k] == usage[i] && k < i);
      if (above >= rows / rate || at++ != block) continue;
      memcpy(y, x + i * dm, (size_t)dm * sizeof *y);
    }
    return;
  }
  for (int64_t c = 0; c < dm; c++) {
    double sum = 0, top = -(double)INFINITY;
    for (int64_t r = 0; r < rate; r++) {
      sum += x[(block * rate + r) * dm + c] / (double)rate;
      top = fmax(top, x[(block * rate + r) * dm + c]);
    }
    y[c] = p->kind == ATTN_COMPRESS_MAX ? top : sum;
    if (p->kind < ATTN_COMPRESS_CONV) continue;
    y[c] = p->bias ? (double)p->bias[c] : 0;
    for (int64_t t = 0; t < p->w.heads; t++) {
      int64_t i = p->kind == ATTN_COMPRESS_CONV
                      ? block * rate + t
                      : (block + 1) * rate - 1 - (p->w.heads - 1 - t) * dilation;
      for (int64_t d = 0; d < dm && i >= 0; d++)
        y[c] += x[i * dm + d] * oracle_get(&p->w, 0, t, d, c);
    }
  }
}

static attn_compress_params method(int kind, int64_t rate, int64_t dm, attn_dtype type,
                                   test_rng *rng) {
  attn_compress_params p;
  memset(&p, 0, sizeof p);
  p.kind = (attn_compress_kind)kind, p.rate = rate;
  if (kind == ATTN_COMPRESS_CONV || kind == ATTN_COMPRESS_DILATED) {
    int64_t taps = kind == ATTN_COMPRESS_CONV ? rate : test_range(rng, 1, 4);
    p.w = drawn(type, TEST_PADDED, 1, taps, dm, dm, 1 / sqrt((double)(dm * taps)), rng);
    p.dilation = test_range(rng, 0, 3);
    if (test_range(rng, 0, 1)) p.bias = test_floats(dm, 1, rng);
  }
  return p;
}

/* Numbers of a few values, so that ties happen. */
static attn_tensor used(int64_t batch, int64_t rows, test_rng *rng) {
  attn_tensor u = test_tensor(ATTN_F32, TEST_PADDED, batch, 1, 1, rows);
  for (int64_t b = 0; b < batch; b++) {
    for (int64_t i = 0; i < rows; i++)
      oracle_set(&u, b, 0, 0, i, (double)test_range(rng, 0, 5) / 8);
  }
  return u;
}

static double *rows_of(const attn_tensor *t, int64_t b) {
  double *x = test_mem((size_t)(t->len * t->dim + 1) * sizeof *x);
  for (int64_t n = 0; n < t->len * t->dim; n++) x[n] = oracle_get(t, b, 0, n / t->dim, n % t->dim);
  return x;
}

typedef struct press {
  attn_tensor y, x;
  attn_compress_params p;
  promise does;
} press;
static attn_status press_call(void *at, attn_ctx *ctx) {
  press *s = at;
  return attn_compress(s->y, s->x, &s->p, ctx);
}
static size_t press_ask(void *at, const attn_ctx *ctx) {
  press *s = at;
  return attn_compress_workspace(s->y, s->x, &s->p, ctx);
}
static press *press_build(int kind, int64_t batch, int64_t blocks, int64_t rate, int64_t dm,
                          attn_dtype type, test_rng *rng) {
  press *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->x = drawn(type, TEST_NEGATIVE, batch, 1, blocks * rate, dm, 1, rng);
  s->y = output(type == ATTN_F16 ? ATTN_F32 : type, TEST_PADDED, batch, 1, blocks, dm,
                &s->does.block[0]);
  s->p = method(kind, rate, dm, type, rng);
  if (kind == ATTN_COMPRESS_MOST_USED && blocks) s->p.usage = used(batch, blocks * rate, rng);
  s->does.call = press_call, s->does.ask = press_ask, s->does.scene = s;
  s->does.out[0] = &s->y;
  return s;
}

void J2_compress_random(void **state) {
  (void)state;
  test_rng rng = test_seed(530);
  for (int64_t n = test_count(30, 10); n-- > 0;) {
    int kind = (int)(n % ATTN_COMPRESS_COUNT);
    int64_t rate = test_range(&rng, 1, 5), blocks = test_range(&rng, 0, n % 4 ? 12 : 90);
    int64_t dm = test_range(&rng, 1, n == 7 ? 140 : 12);
    press *s =
        press_build(kind, test_range(&rng, 1, 2), blocks, rate, dm, (attn_dtype)(n / 5 % 3), &rng);
    promise_run(&s->does);
    cube want = cube_of(s->x.batch, 1, blocks, dm);
    for (int64_t b = 0; b < s->x.batch; b++) {
      double *x = rows_of(&s->x, b), *usage = test_mem((size_t)(blocks * rate + 1) * sizeof *usage);
      for (int64_t i = 0; i < blocks * rate && s->p.usage.data; i++)
        usage[i] = oracle_get(&s->p.usage, b, 0, 0, i);
      for (int64_t i = 0; i < blocks; i++)
        squeezed(cube_at(&want, b, 0, i), x, dm, i, blocks * rate, &s->p, usage);
    }
    cube_check(&want, &s->y, 2e-6, "compressed");
  }
}

void J2_compress_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(531);
  press *s = press_build(ATTN_COMPRESS_CONV, 2, 70, 4, 9, ATTN_F32, &rng);
  s->p.bias = NULL;
  for (int64_t t = 0; t < 4; t++) {
    for (int64_t i = 0; i < 81; i++) oracle_set(&s->p.w, 0, t, i / 9, i % 9, i % 10 ? 0 : 0.25);
  }
  promise_run(&s->does);
  attn_tensor conv = s->y;
  s->y = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 70, 9);
  s->p.kind = ATTN_COMPRESS_MEAN;
  promise_run(&s->does);
  test_assert_near(conv, s->y, 1e-6, "a mean as a convolution");
  for (int kind = 0; kind < 5; kind++) { /* rate 1 changes nothing */
    if (kind == ATTN_COMPRESS_CONV || kind == ATTN_COMPRESS_DILATED) continue;
    press *one = press_build(kind, 2, 20, 1, 5, ATTN_F32, &rng);
    promise_run(&one->does);
    test_assert_same(one->y, one->x, "rate 1");
  }
}

void J2_compress_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(532);
  for (int kind = 0; kind < 5; kind++)
    promise_keep(&press_build(kind, 3, 70, 3, 10, kind == 2 ? ATTN_BF16 : ATTN_F32, &rng)->does);
  for (int kind = 0; kind < 5; kind++) {
    test_where = kind % 2 ? TEST_BEFORE_GUARD : TEST_AFTER_GUARD;
    promise_run(&press_build(kind, 1, 5, 3, 7, ATTN_F32, &rng)->does);
    test_where = TEST_HEAP;
  }
}

void J2_compress_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(533);
  for (int n = 0; n < 15; n++) {
    static const int kinds[] = {0, 0, 2, 2, 2, 3, 4, 4, 4, 0, 0, 0, 2, 3, 4};
    press *s = press_build(kinds[n], 1, 6, 3, 4, ATTN_F32, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->p.rate = 0, want = ATTN_E_RANGE, word = "rate"; break;
      case 1: s->p.rate = 4, word = "x.len"; break;
      case 2: s->p.w.heads = 2, word = "w must"; break;
      case 3: s->p.w.dim = 3, word = "w must"; break;
      case 4: s->p.w.data = NULL, want = ATTN_E_NULL, word = "w.data"; break;
      case 5: s->p.dilation = -1, want = ATTN_E_RANGE, word = "dilation"; break;
      case 6: s->p.usage.data = NULL, want = ATTN_E_NULL, word = "usage.data"; break;
      case 7: s->p.usage.dim = 17, word = "usage"; break;
      case 8: s->p.usage.dtype = ATTN_F16, want = ATTN_E_DTYPE, word = "usage"; break;
      case 9: s->y.len = 5, word = "y must"; break;
      case 10: s->p.kind = (attn_compress_kind)9, want = ATTN_E_RANGE, word = "kind"; break;
      case 11: s->x.data = s->y.data, want = ATTN_E_OVERLAP, word = "y is"; break;
      case 12:
        s->p.bias = (const float *)(const void *)((const char *)s->p.w.data + 1);
        want = ATTN_E_ALIGN, word = "bias";
        break;
      case 13: s->p.w.heads = 0, word = "tap"; break;
      default: s->p.usage.data = s->y.data, want = ATTN_E_OVERLAP, word = "y is"; break;
    }
    promise_reject(&s->does, want, word);
  }
}

/* ---- the update -----------------------------------------------------------------------------*/

/* Both memories as lists of rows, one batch entry. */
typedef struct lists {
  double *m, *c;
  int64_t in_m, in_c;
} lists;

static void lists_update(lists *a, const attn_tensor *h, int64_t b, int64_t room_c, int64_t length,
                         const attn_compress_params *p, int64_t dm) {
  const size_t row = (size_t)dm * sizeof(double);
  int64_t rows = a->in_m + h->len, e = rows > length ? rows - length : 0;
  double *x = rows_of(h, b), *usage = test_mem((size_t)(rows + 1) * sizeof *usage);
  memcpy(a->m + a->in_m * dm, x, (size_t)h->len * row);
  for (int64_t i = 0; i < rows && p->usage.data; i++) usage[i] = oracle_get(&p->usage, b, 0, 0, i);
  e -= e % p->rate;
  for (int64_t i = 0; i < e / p->rate; i++)
    squeezed(a->c + (a->in_c + i) * dm, a->m, dm, i, e, p, usage);
  a->in_c += e / p->rate;
  a->in_m = rows - e;
  memmove(a->m, a->m + e * dm, (size_t)a->in_m * row);
  int64_t over = a->in_c > room_c ? a->in_c - room_c : 0;
  a->in_c -= over;
  memmove(a->c, a->c + over * dm, (size_t)a->in_c * row);
}

static void ring_is(const attn_memory *m, int64_t b, const double *want, int64_t len, double near) {
  assert_int_equal(m->len, len);
  for (int64_t n = 0; n < len * m->rows.dim; n++) {
    double got = ring_get(m, b, n / m->rows.dim, n % m->rows.dim);
    value_check(got, want[n], near, ATTN_F32, "memory", b, 0, n / m->rows.dim, n % m->rows.dim);
  }
}

void J2_update_random(void **state) {
  (void)state;
  test_rng rng = test_seed(540);
  for (int64_t n = test_count(20, 5); n-- > 0;) {
    int kind = (int)(n % ATTN_COMPRESS_COUNT);
    int64_t rate = test_range(&rng, 1, 4), dm = 3, length = test_range(&rng, 0, 9);
    int64_t room = length + rate - 1 + test_range(&rng, 0, 2), room_c = test_range(&rng, 0, 6);
    attn_compressive_params p;
    memset(&p, 0, sizeof p);
    p.length = length, p.compress = method(kind, rate, dm, ATTN_F32, &rng);
    attn_memory m = ring_drawn(ATTN_F32, TEST_PADDED, 2, room, 0, dm, &rng);
    attn_memory c = ring_drawn(ATTN_F32, TEST_NEGATIVE, 2, room_c, 0, dm, &rng);
    lists want[2];
    for (int b = 0; b < 2; b++) {
      want[b].m = test_mem(400 * sizeof(double)), want[b].c = test_mem(400 * sizeof(double));
      want[b].in_m = want[b].in_c = 0;
    }
    for (int step = 0; step < 8; step++) {
      int64_t len = test_range(&rng, 0, step == 5 ? 30 : 6);
      attn_tensor h = drawn(ATTN_F32, TEST_BHTD, 2, 1, len, dm, 1, &rng);
      if (kind == ATTN_COMPRESS_MOST_USED && m.len + len)
        p.compress.usage = used(2, m.len + len, &rng);
      int64_t old = m.len + len > length ? m.len + len - length : 0;
      assert_int_equal(attn_compressive_rows(&m, len, &p), old - old % rate);
      attn_ctx ctx = test_ctx();
      attn_status status = attn_compressive_update(&m, &c, h, &p, &ctx);
      if (status != ATTN_OK) fail_msg("%s", ctx.reason);
      assert_int_equal(ctx.report.isa, test_isa);
      for (int b = 0; b < 2; b++) {
        lists_update(&want[b], &h, b, room_c, length, &p.compress, dm);
        ring_is(&m, b, want[b].m, want[b].in_m, 0);
        ring_is(&c, b, want[b].c, want[b].in_c, 4e-6);
      }
      assert_true(m.len + c.len <= room_c + length + rate - 1);
    }
  }
}

/* Any number of workers, a workspace of the size asked for, one byte less. */
void J2_update_promises(void **state) {
  (void)state;
  for (int kind = 0; kind < 5; kind++) {
    attn_tensor first_m, first_c;
    memset(&first_m, 0, sizeof first_m), memset(&first_c, 0, sizeof first_c);
    for (int n = 0; n < 5; n++) {
      test_rng rng = test_seed(541);
      attn_compressive_params p;
      memset(&p, 0, sizeof p);
      p.length = 50, p.compress = method(kind, 2, 6, ATTN_F32, &rng);
      attn_memory m = ring_drawn(ATTN_F32, TEST_BHTD, 2, 60, 55, 6, &rng);
      attn_memory c = ring_drawn(ATTN_F32, TEST_BHTD, 2, 80, 70, 6, &rng), m0 = m, c0 = c;
      attn_tensor h = drawn(ATTN_F32, TEST_BHTD, 2, 1, 150, 6, 1, &rng);
      if (kind == ATTN_COMPRESS_MOST_USED) p.compress.usage = used(2, 205, &rng);
      attn_ctx ctx = test_ctx();
      if (n) ctx.parallel_for = n % 2 ? test_parallel_threads : test_parallel_backward;
      ctx.workers = n + 1;
      size_t size = attn_compressive_update_workspace(&m, &c, h, &p, &ctx);
      assert_true(size > 0);
      if (n > 2) ctx.workspace = test_mem(size), ctx.workspace_size = size - (n == 4);
      attn_tensor old = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 80, 6);
      test_copy(old, c.rows);
      attn_status got = attn_compressive_update(&m, &c, h, &p, &ctx);
      if (n == 4) {
        assert_int_equal(got, ATTN_E_WORKSPACE);
        assert_true(m.len == m0.len && m.first == m0.first && c.len == c0.len);
        test_assert_same(c.rows, old, "rejected");
        continue;
      }
      assert_int_equal(got, ATTN_OK);
      assert_true(m.len == 51 && c.len == 80);
      if (n == 0) first_m = m.rows, first_c = c.rows;
      test_assert_same(c.rows, first_c, "workers");
      for (int64_t i = 0; i < m.len; i++) /* the free place between holds anything */
        assert_true(ring_get(&m, 1, i, 5) == oracle_get(&first_m, 1, 0, (m.first + i) % 60, 5));
    }
  }
}

void J2_update_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(542);
  for (int n = 0; n < 12; n++) {
    attn_compressive_params p;
    memset(&p, 0, sizeof p);
    p.length = 5, p.compress = method(n == 6 ? ATTN_COMPRESS_MOST_USED : 0, 3, 4, ATTN_F32, &rng);
    attn_memory m = ring_drawn(ATTN_F32, TEST_BHTD, 1, 7, 6, 4, &rng);
    test_block block = test_last_block;
    attn_memory c = ring_drawn(ATTN_F32, TEST_BHTD, 1, 4, 3, 4, &rng);
    test_block block_c = test_last_block;
    attn_tensor h = drawn(ATTN_F32, TEST_BHTD, 1, 1, 9, 4, 1, &rng);
    attn_memory *at = &m;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: p.length = -1, want = ATTN_E_RANGE, word = "length"; break;
      case 1: p.length = 6, word = "memory.rows.len"; break;
      case 2: p.compress.rate = 0, want = ATTN_E_RANGE, word = "rate"; break;
      case 3: h.dim = 3, word = "memory.rows"; break;
      case 4: c.rows.dim = 3, word = "compressed.rows"; break;
      case 5: at = NULL, want = ATTN_E_NULL, word = "memory"; break;
      case 6: want = ATTN_E_NULL, word = "usage"; break;
      case 7: c.rows.data = m.rows.data, want = ATTN_E_OVERLAP, word = "memory.rows is"; break;
      case 8:
        h.data = c.rows.data, h.len = 2, want = ATTN_E_OVERLAP, word = "compressed.rows is";
        break;
      case 9: c.len = 5, want = ATTN_E_RANGE, word = "compressed.len"; break;
      case 10:
        m.rows.dtype = (attn_dtype)77, want = ATTN_E_DTYPE, word = "memory.rows.dtype";
        break;
      default: c.rows.data = NULL, want = ATTN_E_NULL, word = "compressed.rows"; break;
    }
    unsigned char *was = test_mem(block.size), *was_c = test_mem(block_c.size);
    memcpy(was, block.data, block.size), memcpy(was_c, block_c.data, block_c.size);
    attn_memory m0 = m, c0 = c;
    attn_ctx ctx = test_ctx();
    attn_status got = attn_compressive_update(at, &c, h, &p, &ctx);
    if (got != want || !ctx.reason || !strstr(ctx.reason, word))
      fail_msg("case %d: %s (%s)", n, attn_status_string(got), ctx.reason ? ctx.reason : "");
    assert_memory_equal(was, block.data, block.size);
    assert_memory_equal(was_c, block_c.data, block_c.size);
    assert_true(m.len == m0.len && m.first == m0.first && c.len == c0.len && c.first == c0.first);
  }
  attn_memory m;
  attn_compressive_params p;
  memset(&m, 0, sizeof m), memset(&p, 0, sizeof p);
  assert_int_equal(attn_compressive_rows(&m, 4, &p), -1);
  p.compress.rate = 3;
  assert_int_equal(attn_compressive_rows(&m, 4, &p), 3);
  assert_int_equal(attn_compressive_rows(&m, -1, &p), -1);
  assert_int_equal(attn_compressive_rows(NULL, 4, &p), -1);
}

/* ---- the layer ------------------------------------------------------------------------------*/

void J2_layer_random(void **state) {
  (void)state;
  test_rng rng = test_seed(550);
  for (int64_t n = test_count(16, 5); n-- > 0;) {
    segment_shape x = segment_random(&rng);
    x.compressed = test_range(&rng, 1, 40);
    segment_scene *s = segment_build(&x, &rng);
    promise_run(&s->does);
    segment_check(s, 4e-5, "compressive layer");
  }
}

/* With rate 1 and means the two memories are one plain FIFO. */
void J2_layer_fifo(void **state) {
  (void)state;
  test_rng rng = test_seed(551);
  segment_shape x = {2, 80, 0, 0, 12, 4, 2, 5, 4, ATTN_SUBLAYER_PRE, 0, 0, 1, 3, ATTN_F32, 0, 0};
  segment_scene *s = segment_build(&x, &rng);
  s->p.attention.lse = s->p.attention.usage = absent();
  attn_tensor all = s->h, none = absent();
  attn_memory m = ring_drawn(ATTN_F32, TEST_BHTD, 2, 9, 0, 12, &rng);
  attn_memory c = ring_drawn(ATTN_F32, TEST_BHTD, 2, 14, 0, 12, &rng);
  attn_memory plain = ring_drawn(ATTN_F32, TEST_BHTD, 2, 23, 0, 12, &rng), empty;
  attn_compressive_params p;
  memset(&p, 0, sizeof p), memset(&empty, 0, sizeof empty);
  p.length = 9, p.compress.rate = 1;
  (void)none;
  for (int64_t at = 0; at < 80; at += 20) {
    attn_ctx ctx = test_ctx();
    s->h = test_rows(all, at, 20);
    attn_tensor one = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 20, 12);
    s->o = one, s->p.memory = plain, s->p.compressed = empty;
    promise_run(&s->does);
    s->o = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 20, 12), s->p.memory = m, s->p.compressed = c;
    promise_run(&s->does);
    test_assert_same(s->o, one, "one FIFO");
    assert_int_equal(attn_memory_append(&plain, s->h, &ctx), ATTN_OK);
    assert_int_equal(attn_compressive_update(&m, &c, s->h, &p, &ctx), ATTN_OK);
    assert_int_equal(m.len + c.len, plain.len);
  }
}

/* A stream of segments whose compression follows the usage that the layer reports. */
void J2_layer_most_used(void **state) {
  (void)state;
  test_rng rng = test_seed(552);
  segment_shape x = {1, 18, 0, 0, 8, 2, 2, 4, 4, ATTN_SUBLAYER_POST, 0, 0, 1, 0, ATTN_F32, 0, 0};
  segment_scene *s = segment_build(&x, &rng);
  s->p.attention.lse = absent();
  attn_memory m = ring_drawn(ATTN_F32, TEST_BHTD, 1, 13, 0, 8, &rng);
  attn_memory c = ring_drawn(ATTN_F32, TEST_BHTD, 1, 10, 0, 8, &rng);
  attn_compressive_params p;
  memset(&p, 0, sizeof p);
  p.length = 11, p.compress.rate = 3, p.compress.kind = ATTN_COMPRESS_MOST_USED;
  for (int step = 0; step < 4; step++) {
    attn_ctx ctx = test_ctx();
    s->h = drawn(ATTN_F32, TEST_BHTD, 1, 1, 18, 8, 1, &rng);
    s->p.memory = m, s->p.compressed = c;
    s->p.attention.usage = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, m.len + 18);
    promise_run(&s->does);
    segment_check(s, 4e-5, "most used");
    p.compress.usage = s->p.attention.usage;
    double total = 0;
    for (int64_t i = 0; i < m.len + 18; i++) total += oracle_get(&p.compress.usage, 0, 0, 0, i);
    assert_true(total < 1 + 1e-5 && (c.len > 0 || total > 1 - 1e-5));
    assert_int_equal(attn_compressive_update(&m, &c, s->h, &p, &ctx), ATTN_OK);
  }
  assert_int_equal(c.len, 10);
}

/* ---- usage ----------------------------------------------------------------------------------*/

/* Means of the columns of a map. */
static void usage_check(const test_call *call, const attn_tensor *usage, const char *what) {
  const attn_tensor *map = &call->params.map;
  for (int64_t b = 0; b < map->batch; b++) {
    int64_t rows = call->params.q_len ? call->params.q_len[b] : map->len;
    for (int64_t j = 0; j < usage->dim; j++) {
      double sum = 0;
      for (int64_t n = 0; n < map->heads * map->len; n++)
        sum += oracle_get(map, b, n / map->len, n % map->len, map->dim - usage->dim + j);
      double want = rows ? sum / (double)(map->heads * rows) : 0;
      value_check(oracle_get(usage, b, 0, 0, j), want, 2e-6, ATTN_F32, what, b, 0, 0, j);
    }
  }
}

void J2_usage_random(void **state) {
  (void)state;
  test_rng rng = test_seed(560);
  for (int64_t n = test_count(24, 8); n-- > 0;) {
    int64_t kv = test_range(&rng, 1, 2), heads = kv * test_range(&rng, 1, 3);
    test_spec spec = test_plain(heads, test_range(&rng, 0, n % 3 ? 30 : 150),
                                test_range(&rng, 1, n % 3 ? 60 : 300), test_range(&rng, 1, 9), 3);
    spec.batch = test_range(&rng, 1, 2), spec.k_heads = kv, spec.map = 1;
    spec.k_type = (attn_dtype)(n % 3), spec.k_layout = TEST_NEGATIVE;
    test_call call = test_build(&spec, &rng);
    attn_sdpa_params *p = &call.params;
    p->causal = (int)(n % 2);
    if (n % 5 == 1) test_left(p, test_range(&rng, 1, 30));
    if (n % 5 == 2)
      p->mask = test_mask(n % 4 ? ATTN_MASK_BOOL : ATTN_MASK_BITS, ATTN_F32, spec.batch, heads,
                          spec.q_len, spec.k_len, &rng);
    if (n % 5 == 3) p->kv_len = test_lengths(spec.batch, spec.k_len, &rng);
    if (n % 5 == 3) p->q_len = test_lengths(spec.batch, spec.q_len, &rng);
    if (n % 5 == 4) p->alibi = test_floats(heads, 0.1, &rng), p->softcap = 3;
    if (n % 6 == 1) p->sinks = test_floats(heads, 1, &rng);
    if (n % 6 == 2)
      p->bias = test_mask(ATTN_MASK_ADD, ATTN_F32, spec.batch, heads, spec.q_len, spec.k_len, &rng);
    if (n % 6 == 3) {
      p->toeplitz.len = 41, p->toeplitz.first = -20;
      p->toeplitz.table = test_floats(41, 1, &rng);
    }
    if (n % 6 == 4) p->relative.keys = drawn(ATTN_F32, TEST_BHTD, 1, heads, 9, spec.dk, 1, &rng);
    p->one_order = 1;
    test_run(&call);
    attn_sdpa_params again = *p;
    again.map = absent();
    attn_tensor usage =
        test_tensor(ATTN_F32, TEST_PADDED, spec.batch, 1, 1, test_range(&rng, 1, spec.k_len));
    attn_ctx ctx = test_ctx();
    size_t size = attn_usage_workspace(usage, call.q, call.k, &again, &ctx);
    ctx.workspace = test_mem(size), ctx.workspace_size = size;
    attn_status status = attn_usage(usage, call.q, call.k, &again, &ctx);
    if (status != ATTN_OK) fail_msg("%s", ctx.reason);
    assert_int_equal(ctx.report.isa, test_isa);
    usage_check(&call, &usage, "usage");
  }
}

typedef struct asked {
  attn_tensor usage, q, k;
  attn_sdpa_params p;
  promise does;
} asked;
static attn_status asked_call(void *at, attn_ctx *ctx) {
  asked *s = at;
  return attn_usage(s->usage, s->q, s->k, &s->p, ctx);
}
static size_t asked_ask(void *at, const attn_ctx *ctx) {
  asked *s = at;
  return attn_usage_workspace(s->usage, s->q, s->k, &s->p, ctx);
}
static asked *asked_build(test_rng *rng) {
  asked *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->q = drawn(ATTN_F32, TEST_BTHD, 2, 4, 90, 6, 1, rng);
  s->k = drawn(ATTN_F32, TEST_BHTD, 2, 2, 290, 6, 1, rng);
  s->p.causal = 1;
  s->p.lse = drawn(ATTN_F32, TEST_BHTD, 2, 4, 90, 1, 0.1, rng);
  for (int64_t n = 0; n < 720; n++) oracle_set(&s->p.lse, n / 360, n / 90 % 4, n % 90, 0, 7);
  s->usage = output(ATTN_F32, TEST_PADDED, 2, 1, 1, 270, &s->does.block[0]);
  s->does.call = asked_call, s->does.ask = asked_ask, s->does.scene = s;
  s->does.out[0] = &s->usage;
  return s;
}

void J2_usage_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(561);
  asked *s = asked_build(&rng);
  promise_keep(&s->does);
  s->p.alibi = test_floats(4, 0.1, &rng); /* memory that the workers share */
  s->p.toeplitz.table = test_floats(9, 1, &rng), s->p.toeplitz.len = 9;
  promise_keep(&s->does);
}

/* A key that no query sees holds NaN. */
void J2_usage_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(562);
  asked *s = asked_build(&rng);
  test_left(&s->p, 50); /* the first query sits at 200 */
  test_fill_row(s->k, 0, 1, 149, NAN);
  promise_run(&s->does);
  for (int64_t j = 0; j < 270; j++) {
    double got = oracle_get(&s->usage, 0, 0, 0, j);
    if (j < 130) assert_true(got == 0);
    assert_true(got == got);
  }
}

void J2_usage_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(563);
  for (int n = 0; n < 11; n++) {
    asked *s = asked_build(&rng);
    attn_schedule none = {NULL, 0, NULL};
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->usage = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 1, 291), word = "usage.dim"; break;
      case 1: s->usage.heads = 2, s->usage.stride_head = 600, word = "usage must"; break;
      case 2: s->usage.dtype = ATTN_BF16, want = ATTN_E_DTYPE, word = "usage"; break;
      case 3: s->p.lse.data = NULL, want = ATTN_E_NULL, word = "params.lse"; break;
      case 4: s->p.lse.len = 89, word = "params.lse"; break;
      case 5: s->p.schedule = &none, want = ATTN_E_RANGE, word = "schedule"; break;
      case 6: s->k.dim = 5, word = "k must"; break;
      case 7: s->k.heads = 3, s->k.stride_head = 0, want = ATTN_E_HEADS, word = "k must"; break;
      case 8: s->usage.data = s->p.lse.data, want = ATTN_E_OVERLAP, word = "usage is"; break;
      case 9: s->p.window = attn_window_of(-3, 0), want = ATTN_E_RANGE, word = "window"; break;
      default: s->p.span.z = test_floats(4, 1, &rng), want = ATTN_E_RANGE, word = "span"; break;
    }
    promise_reject(&s->does, want, word);
  }
}

/* ---- losses ---------------------------------------------------------------------------------*/

/* attn(h, rows) of one query of one head, in float64. */
static void attend(double *o, const attn_tensor *h, const attn_tensor *rows, int64_t b,
                   int64_t head, int64_t i, const attn_attention_loss_params *p) {
  int64_t heads = p->heads ? p->heads : 1, kv = p->kv_heads ? p->kv_heads : heads;
  int64_t dk = p->w_q.dim / heads, dv = p->w_v.dim / kv, g = head / (heads / kv);
  double *x = test_mem((size_t)(rows->len + 1) * sizeof *x), top = -(double)INFINITY, sum = 0;
  for (int64_t j = 0; j < rows->len; j++) {
    x[j] = 0;
    for (int64_t c = 0; c < dk; c++) {
      double q = 0, k = 0;
      for (int64_t d = 0; d < h->dim; d++) {
        q += oracle_get(h, b, 0, i, d) * oracle_get(&p->w_q, 0, 0, d, head * dk + c);
        k += oracle_get(rows, b, 0, j, d) * oracle_get(&p->w_k, 0, 0, d, g * dk + c);
      }
      x[j] += q * k * scale_of(p->scale, dk);
    }
    top = fmax(top, x[j]);
  }
  for (int64_t j = 0; j < rows->len; j++) sum += exp(x[j] - top);
  for (int64_t c = 0; c < dv; c++) {
    o[c] = 0;
    for (int64_t j = 0; j < rows->len; j++) {
      double v = 0;
      for (int64_t d = 0; d < h->dim; d++)
        v += oracle_get(rows, b, 0, j, d) * oracle_get(&p->w_v, 0, 0, d, g * dv + c);
      o[c] += exp(x[j] - top) / sum * v;
    }
  }
}

typedef struct loss {
  attn_tensor h, old, made, norm, mean, g;
  const float *bias;
  attn_attention_loss_params p;
  int rebuild;
  promise does;
} loss;
static attn_status loss_call(void *at, attn_ctx *ctx) {
  loss *s = at;
  if (s->rebuild)
    return attn_rebuild_loss(s->norm.data, s->mean.data, s->old, s->made, s->g, s->bias, ctx);
  return attn_attention_loss(s->norm.data, s->mean.data, s->h, s->old, s->made, &s->p, ctx);
}
static size_t loss_ask(void *at, const attn_ctx *ctx) {
  loss *s = at;
  if (s->rebuild)
    return attn_rebuild_loss_workspace(s->norm.data, s->mean.data, s->old, s->made, s->g, s->bias,
                                       ctx);
  return attn_attention_loss_workspace(s->norm.data, s->mean.data, s->h, s->old, s->made, &s->p,
                                       ctx);
}
static loss *loss_build(int rebuild, int64_t t, int64_t blocks, attn_dtype type, test_rng *rng) {
  loss *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->rebuild = rebuild;
  s->h = drawn(type, TEST_PADDED, 2, 1, t, 6, 1, rng);
  s->old = drawn(ATTN_F32, TEST_NEGATIVE, 2, 1, 3 * blocks, 6, 1, rng);
  s->made = drawn(type, TEST_PADDED, 2, 1, blocks, 6, 1, rng);
  s->g = drawn(type, TEST_PADDED, 1, 3, 6, 6, 0.4, rng);
  s->bias = test_floats(6, 0.5, rng);
  s->norm = output(ATTN_F32, TEST_BHTD, 1, 1, 1, 2, &s->does.block[0]);
  s->mean = output(ATTN_F32, TEST_BHTD, 1, 1, 1, 2, &s->does.block[1]);
  s->p.heads = 4, s->p.kv_heads = 2;
  s->p.w_q = drawn(ATTN_F32, TEST_BHTD, 1, 1, 6, 4 * 3, 0.4, rng);
  s->p.w_k = drawn(type, TEST_NEGATIVE, 1, 1, 6, 2 * 3, 0.4, rng);
  s->p.w_v = drawn(type, TEST_BHTD, 1, 1, 6, 2 * 5, 0.4, rng);
  s->does.call = loss_call, s->does.ask = loss_ask, s->does.scene = s;
  s->does.out[0] = &s->norm, s->does.out[1] = &s->mean;
  return s;
}

static void loss_check(const loss *s) {
  for (int64_t b = 0; b < 2; b++) {
    double sum = 0, count = 0;
    if (s->rebuild) {
      for (int64_t i = 0; i < s->old.len; i++) {
        for (int64_t c = 0; c < 6; c++) {
          double x = s->bias ? (double)s->bias[c] : 0;
          for (int64_t d = 0; d < 6; d++)
            x += oracle_get(&s->made, b, 0, i / 3, d) * oracle_get(&s->g, 0, i % 3, d, c);
          sum += pow(oracle_get(&s->old, b, 0, i, c) - x, 2), count++;
        }
      }
    } else {
      double x[5], y[5];
      for (int64_t n = 0; n < 4 * s->h.len; n++) {
        attend(x, &s->h, &s->old, b, n % 4, n / 4, &s->p);
        attend(y, &s->h, &s->made, b, n % 4, n / 4, &s->p);
        for (int c = 0; c < 5; c++) sum += (x[c] - y[c]) * (x[c] - y[c]), count++;
      }
    }
    double mean = count > 0 ? sum / count : 0;
    value_check(oracle_get(&s->norm, 0, 0, 0, b), sqrt(sum), 1e-5 * sqrt(sum), ATTN_F32, "norm", b,
                0, 0, 0);
    value_check(oracle_get(&s->mean, 0, 0, 0, b), mean, 2e-5 * mean, ATTN_F32, "mean", b, 0, 0, 0);
  }
}

void J2_loss_random(void **state) {
  (void)state;
  test_rng rng = test_seed(570);
  for (int n = 0; n < 8; n++) {
    loss *s = loss_build(n % 2, n > 1 ? test_range(&rng, 1, 20) : 66, test_range(&rng, 1, 9),
                         (attn_dtype)(n % 3), &rng);
    if (n > 3) s->bias = NULL, s->p.scale = 0.7f;
    promise_run(&s->does);
    loss_check(s);
  }
  loss *long_one = loss_build(1, 1, 70, ATTN_F32, &rng);
  promise_run(&long_one->does);
  loss_check(long_one);
}

void J2_loss_zero(void **state) {
  (void)state;
  test_rng rng = test_seed(571);
  loss *s = loss_build(0, 20, 8, ATTN_F32, &rng);
  s->made = s->old;
  promise_run(&s->does);
  for (int64_t b = 0; b < 2; b++) {
    assert_true(oracle_get(&s->norm, 0, 0, 0, b) == 0);
    assert_true(oracle_get(&s->mean, 0, 0, 0, b) == 0);
  }
  for (int rebuild = 0; rebuild < 2; rebuild++) { /* nothing to sum */
    s = loss_build(rebuild, 0, 0, ATTN_F32, &rng);
    promise_run(&s->does);
    loss_check(s);
    s->norm = absent(), s->does.out[0] = NULL;
    promise_run(&s->does);
  }
}

void J2_loss_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(572);
  promise_keep(&loss_build(0, 130, 40, ATTN_F16, &rng)->does);
  promise_keep(&loss_build(1, 1, 150, ATTN_BF16, &rng)->does);
}

void J2_loss_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(573);
  for (int n = 0; n < 14; n++) {
    loss *s = loss_build(n > 7, 5, 4, ATTN_F32, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->old.dim = 5, word = "old must"; break;
      case 1: s->made.batch = 1, word = "made must"; break;
      case 2: s->p.heads = 5, want = ATTN_E_HEADS, word = "heads"; break;
      case 3: s->p.w_k.dim = 5, word = "w_k"; break;
      case 4: s->p.w_v.data = NULL, want = ATTN_E_NULL, word = "w_v"; break;
      case 5: s->p.scale = (float)INFINITY, want = ATTN_E_VALUE, word = "scale"; break;
      case 6: s->h.data = s->norm.data, want = ATTN_E_OVERLAP, word = "norm is"; break;
      case 7: s->p.heads = -2, word = "heads"; break;
      case 8: s->made.len = 3, word = "old.len"; break;
      case 9: s->g.dim = 5, word = "g must"; break;
      case 10: s->g.heads = 0, want = ATTN_E_RANGE, word = "g.heads"; break;
      case 11: s->old.dim = 5, word = "made must"; break;
      case 12: s->mean.data = s->norm.data, want = ATTN_E_OVERLAP, word = "is"; break;
      default: s->g.data = NULL, want = ATTN_E_NULL, word = "g.data"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
