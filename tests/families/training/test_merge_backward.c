/* tests/families/training/test_merge_backward.c owns N2, the gradients of a merge of parts. */

#include "backward.h"
#include "dense.h"

typedef struct scene {
  attn_tensor d[2], d_o, o[2], lse[2];
  attn_merge_gradients g;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_merge_backward(s->d[0], s->d[1], s->d_o, s->o[0], s->lse[0], s->o[1], s->lse[1],
                             &s->g, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_merge_backward_workspace(s->d[0], s->d[1], s->d_o, s->o[0], s->lse[0], s->o[1],
                                       s->lse[1], &s->g, ctx);
}

static void outputs(scene *s, attn_dtype type, test_layout layout) {
  const attn_tensor *x = &s->d_o;
  for (int n = 0; n < 2; n++)
    s->d[n] = output(type, layout, x->batch, x->heads, x->len, x->dim, &s->does.block[n]);
  s->g.d_lse1 = output(ATTN_F32, layout, x->batch, x->heads, x->len, 1, &s->does.block[2]);
  s->g.d_lse2 = output(ATTN_F32, layout, x->batch, x->heads, x->len, 1, &s->does.block[3]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->d[0], s->does.out[1] = &s->d[1];
  s->does.out[2] = &s->g.d_lse1, s->does.out[3] = &s->g.d_lse2;
}

static scene *build(int64_t b, int64_t h, int64_t t, int64_t dv, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
#define SOME_(dim, type) \
  drawn(type, (test_layout)(test_u64(rng) % TEST_LAYOUTS), b, h, t, dim, 1, rng)
  s->d_o = SOME_(dv, (attn_dtype)(test_u64(rng) % 3));
  for (int n = 0; n < 2; n++) {
    s->o[n] = SOME_(dv, (attn_dtype)(test_u64(rng) % 3));
    s->lse[n] = drawn(ATTN_F32, TEST_PADDED, b, h, t, 1, 4, rng);
  }
  if (test_u64(rng) % 2) s->g.d_lse = SOME_(1, ATTN_F32);
  outputs(s, (attn_dtype)(test_u64(rng) % 3), (test_layout)(test_u64(rng) % TEST_SHARED));
  return s;
}

static void check(const scene *s, const char *what) {
  const attn_tensor *x = &s->d_o;
  for (int64_t row = 0; row < x->batch * x->heads * x->len; row++) {
    const int64_t b = row / x->len / x->heads, h = row / x->len % x->heads, i = row % x->len;
    const double l[2] = {oracle_get(&s->lse[0], b, h, i, 0), oracle_get(&s->lse[1], b, h, i, 0)};
    const int there[2] = {!isinf(l[0]), !isinf(l[1])};
    const double top = fmax(l[0], l[1]), all = top + log(exp(l[0] - top) + exp(l[1] - top));
    const double d_lse =
        s->g.d_lse.data && (there[0] || there[1]) ? oracle_get(&s->g.d_lse, b, h, i, 0) : 0;
    double a[2], dot[2] = {0, 0}, size = 0;
    const double known = 1e-6 + (there[0] && there[1] ? fabs(l[0] - l[1]) / 16777216 : 0);
    for (int n = 0; n < 2; n++) a[n] = there[n] ? exp(l[n] - all) : 0;
    for (int n = 0; n < 2; n++)
      for (int64_t c = 0; c < x->dim && there[0] && there[1]; c++) {
        const double y = oracle_get(x, b, h, i, c) * oracle_get(&s->o[n], b, h, i, c);
        dot[n] += y, size += fabs(y);
      }
    for (int n = 0; n < 2; n++) {
      const attn_tensor *to = n ? &s->g.d_lse2 : &s->g.d_lse1;
      const double mean = a[0] * dot[0] + a[1] * dot[1];
      const double want = a[n] * ((there[n] ? dot[n] - mean : 0) + d_lse);
      for (int64_t c = 0; c < x->dim && s->d[n].data; c++) {
        const double y = there[n] ? a[n] * oracle_get(x, b, h, i, c) : 0;
        value_check(oracle_get(&s->d[n], b, h, i, c), y, known * fabs(y) + 1e-38, s->d[n].dtype,
                    what, b, h, i, c);
      }
      if (to->data)
        value_check(oracle_get(to, b, h, i, 0), want,
                    known * a[n] * (a[1 - n] * size + fabs(d_lse)) + 1e-38, ATTN_F32, what, b, h, i,
                    n);
    }
  }
}

void N2_merge_backward(void **state) {
  (void)state;
  test_rng rng = test_seed(9250);
  for (int64_t n = test_count(120, 40); n-- > 0; test_mem_release()) {
    scene *s = build(test_range(&rng, 1, 2), test_range(&rng, 1, 3), test_range(&rng, 1, 80),
                     test_range(&rng, 1, 70), &rng);
    for (int64_t i = 0; i < s->d_o.len; i++) {
      const int kind = (int)(test_u64(&rng) % 8);
      if (kind < 2 || kind == 2) { /* parts that are empty, whatever their rows hold */
        for (int p = 0; p < 2; p++)
          if (kind == p || kind == 2) test_fill_row(s->lse[p], 0, 0, i, -(double)INFINITY);
      }
    }
    promise_run(&s->does);
    check(s, "merge");
    if (n % 4 == 0 && (s->d_o.dtype | s->o[0].dtype | s->o[1].dtype)) promise_keep(&s->does);
  }
}

/* What is not read: rows of empty parts, and d_o of rows without any. */
void N2_merge_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(9251);
  scene *s = build(1, 1, 6, 9, &rng), *t = test_mem(sizeof *t);
  for (int n = 0; n < 2; n++) s->o[n] = drawn(ATTN_F32, TEST_BHTD, 1, 1, 6, 9, 1, &rng);
  s->d_o = drawn(ATTN_F32, TEST_BHTD, 1, 1, 6, 9, 1, &rng);
  s->g.d_lse = drawn(ATTN_F32, TEST_BHTD, 1, 1, 6, 1, 1, &rng);
  outputs(s, ATTN_F32, TEST_BHTD);
  test_fill_row(s->lse[0], 0, 0, 1, -(double)INFINITY);
  test_fill_row(s->lse[1], 0, 0, 2, -(double)INFINITY);
  for (int n = 0; n < 2; n++) test_fill_row(s->lse[n], 0, 0, 3, -(double)INFINITY);
  promise_run(&s->does);
  check(s, "before");
  *t = *s;
  outputs(t, ATTN_F32, TEST_BHTD), t->does.scene = t;
  test_fill_row(s->o[0], 0, 0, 1, (double)NAN), test_fill_row(s->o[1], 0, 0, 2, (double)INFINITY);
  test_fill_row(s->d_o, 0, 0, 3, (double)NAN), test_fill_row(s->g.d_lse, 0, 0, 3, (double)NAN);
  promise_run(&t->does);
  for (int n = 0; n < 4; n++) test_assert_same(*t->does.out[n], *s->does.out[n], "not read");
  test_fill_row(s->lse[0], 0, 0, 4, (double)NAN),
      test_fill_row(s->lse[1], 0, 0, 5, (double)INFINITY);
  promise_run(&t->does);
  for (int n = 0; n < 4; n++)
    for (int64_t i = 0; i < 6; i++)
      assert_int_equal(isnan(oracle_get(t->does.out[n], 0, 0, i, 0)) != 0, i > 3);
}

/* Parts by key, each with its own gradients, have those of the whole. */
void N2_merge_parts(void **state) {
  (void)state;
  test_rng rng = test_seed(9252);
  for (int round = 0; round < 4; round++, test_mem_release()) {
    test_spec spec = test_plain(2, 50, 130, 9, 7);
    backward *s = backward_build(&spec, ATTN_F32, TEST_BHTD, &rng), *part[2];
    backward_lse(s, &rng);
    s->call.params.has_q_off = 1, s->call.params.q_off = 60, s->call.params.causal = 1;
    test_run(&s->call);
    promise_run(&s->does);
    scene m;
    memset(&m, 0, sizeof m);
    for (int n = 0; n < 2; n++) {
      part[n] = test_mem(sizeof *part[n]);
      *part[n] = *s;
      test_call *c = &part[n]->call;
      const int64_t j0 = n ? 90 : 0, len = n ? 40 : 90;
      *c = test_again(&s->call);
      c->k = test_rows(c->k, j0, len), c->v = test_rows(c->v, j0, len);
      c->params.q_off = 60 - j0;
      part[n]->d_q = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 50, 9);
      part[n]->d_k = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, len, 9);
      part[n]->d_v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, len, 7);
      test_run(c);
      m.o[n] = c->o, m.lse[n] = c->params.lse;
    }
    m.d_o = s->d_o, m.g.d_lse = s->g.d_lse;
    outputs(&m, ATTN_F32, TEST_BHTD);
    promise_run(&m.does);
    attn_tensor sum = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 50, 9);
    for (int n = 0; n < 2; n++) {
      part[n]->d_o = m.d[n], part[n]->g.d_lse = n ? m.g.d_lse2 : m.g.d_lse1;
      if (n) part[n]->d_q = part[0]->d_q, part[n]->g.accumulate = 1;
      if (n) test_fill_value(part[n]->d_k, 0), test_fill_value(part[n]->d_v, 0);
      part[n]->does.scene = part[n];
      promise_run(&part[n]->does);
      test_assert_near(part[n]->d_k, test_rows(s->d_k, n ? 90 : 0, n ? 40 : 90), 2e-6, "d_k");
      test_assert_near(part[n]->d_v, test_rows(s->d_v, n ? 90 : 0, n ? 40 : 90), 2e-6, "d_v");
    }
    test_copy(sum, part[0]->d_q);
    test_assert_near(sum, s->d_q, 3e-6, "d_q");
  }
}

/* Each output alone has the bits that it has beside the others; sums with what is there; shapes that do not match. */
void N2_merge_outputs(void **state) {
  (void)state;
  test_rng rng = test_seed(9253);
  scene *s = build(2, 2, 40, 33, &rng), *t = test_mem(sizeof *t);
  outputs(s, ATTN_F32, TEST_BHTD);
  promise_run(&s->does);
  for (int n = 0; n < 4; n++) {
    *t = *s;
    outputs(t, ATTN_F32, TEST_BHTD), t->does.scene = t;
    for (int i = 0; i < 4; i++)
      if (i != n) *t->does.out[i] = absent();
    promise_run(&t->does);
    test_assert_same(*t->does.out[n], *s->does.out[n], "alone");
    test_fill_value(*t->does.out[n], 3), t->g.accumulate = 1;
    promise_run(&t->does);
    for (int64_t i = 0; i < 40; i++)
      value_check(oracle_get(t->does.out[n], 1, 1, i, 0),
                  3 + oracle_get(s->does.out[n], 1, 1, i, 0), 1e-6, ATTN_F32, "added", 1, 1, i, n);
  }
#define REFUSE_(status, word, change)       \
  {                                         \
    const scene was = *s;                   \
    change;                                 \
    promise_reject(&s->does, status, word); \
    *s = was;                               \
  }
  REFUSE_(ATTN_E_SHAPE, "d_o1", s->d[0].len = 39)
  REFUSE_(ATTN_E_SHAPE, "d_o2", s->d[1].dim = 32)
  REFUSE_(ATTN_E_SHAPE, "o1", s->o[0].batch = 1)
  REFUSE_(ATTN_E_SHAPE, "o2", s->o[1].heads = 1)
  REFUSE_(ATTN_E_SHAPE, "lse1", s->lse[0].dim = 2)
  REFUSE_(ATTN_E_SHAPE, "lse2", s->lse[1].len = 39)
  REFUSE_(ATTN_E_SHAPE, "d_lse1", s->g.d_lse1.len = 39)
  REFUSE_(ATTN_E_SHAPE, "d_lse2", s->g.d_lse2.batch = 1)
  REFUSE_(ATTN_E_DTYPE, "lse1", s->lse[0].dtype = ATTN_F16)
  REFUSE_(ATTN_E_DTYPE, "d_lse2", s->g.d_lse2.dtype = ATTN_BF16)
  REFUSE_(ATTN_E_DTYPE, "o1", s->o[0].dtype = ATTN_I8)
  REFUSE_(ATTN_E_NULL, "d_o", s->d_o.data = NULL)
  REFUSE_(ATTN_E_NULL, "o2", s->o[1].data = NULL)
  REFUSE_(ATTN_E_NULL, "lse1", s->lse[0].data = NULL)
  REFUSE_(ATTN_E_RANGE, "accumulate", s->g.accumulate = 2)
  REFUSE_(ATTN_E_OVERLAP, "d_o1", s->d[0] = s->d[1])
}
