/* tests/families/memory/test_infini.c owns M5, Infini-attention: segments and their memory against float64, streams in any
 * pieces, gates that are closed, and what it promises. */

#include <stdio.h>

#include "compound.h"

typedef struct scene {
  attn_tensor o, q, k, v;
  attn_infini_params p;
  cube m, z; /* the memory as it was before the call, [B,Hkv,dk,dv] and [B,Hkv,1,dk] */
  attn_tensor m_was, z_was, m_got, z_got, m_live,
      z_live; /* the same, as it has become, the call's */
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  if (!s->m_was.data) return attn_infini(s->o, s->q, s->k, s->v, &s->p, ctx);
  test_copy(s->m_live, s->m_was), test_copy(s->z_live, s->z_was);
  const attn_status status = attn_infini(s->o, s->q, s->k, s->v, &s->p, ctx);
  if (status == ATTN_OK) {
    test_copy(s->m_got, s->m_live), test_copy(s->z_got, s->z_live);
  } else {
    test_assert_same(s->m_live, s->m_was, "memory of a rejected call");
    test_assert_same(s->z_live, s->z_was, "z of a rejected call");
  }
  return status;
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_infini_workspace(s->o, s->q, s->k, s->v, &s->p, ctx);
}

typedef struct shape {
  int64_t batch, heads, kv, tq, tk, dk, dv, segment;
  attn_dtype in, out;
  int memory, plain, beta;
  double mean; /* of the values */
} shape;

static scene *build(const shape *x, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const test_layout layout = (test_layout)(test_u64(rng) % TEST_SHARED);
  s->q = drawn(x->in, layout, x->batch, x->heads, x->tq, x->dk, 1, rng);
  s->k = drawn(x->in, TEST_BTHD, x->batch, x->kv, x->tk, x->dk, 1, rng);
  s->v = drawn(x->in, TEST_PADDED, x->batch, x->kv, x->tk, x->dv, 1, rng);
  for (int64_t r = 0; x->mean != 0 && r < x->batch * x->kv * x->tk; r++)
    for (int64_t c = 0; c < x->dv; c++) {
      const int64_t b = r / x->tk / x->kv, h = r / x->tk % x->kv, j = r % x->tk;
      oracle_set(&s->v, b, h, j, c, x->mean + oracle_get(&s->v, b, h, j, c));
    }
  s->o = output(x->out, layout, x->batch, x->heads, x->tq, x->dv, &s->does.block[0]);
  s->p.segment = x->segment;
  if (x->beta) s->p.beta = test_floats(x->heads, 2, rng);
  if (x->plain) {
    s->p.q_plain = drawn(ATTN_F32, TEST_PADDED, x->batch, x->heads, x->tq, x->dk, 1, rng);
    s->p.k_plain = drawn(ATTN_F32, TEST_BHTD, x->batch, x->kv, x->tk, x->dk, 1, rng);
  }
  s->m = cube_of(x->batch, x->kv, x->dk, x->dv), s->z = cube_of(x->batch, x->kv, 1, x->dk);
  if (x->memory) {
    s->p.memory = s->m_live = test_tensor(ATTN_F32, TEST_PADDED, x->batch, x->kv, x->dk, x->dv);
    s->p.z = s->z_live = test_tensor(ATTN_F32, TEST_NEGATIVE, x->batch, x->kv, 1, x->dk);
    s->m_got = output(ATTN_F32, TEST_BHTD, x->batch, x->kv, x->dk, x->dv, &s->does.block[1]);
    s->z_got = output(ATTN_F32, TEST_BHTD, x->batch, x->kv, 1, x->dk, &s->does.block[2]);
    s->m_was = drawn(ATTN_F32, TEST_BHTD, x->batch, x->kv, x->dk, x->dv, x->memory > 1, rng);
    s->z_was = drawn(ATTN_F32, TEST_BHTD, x->batch, x->kv, 1, x->dk, 0, rng);
    for (int64_t r = 0; x->memory > 1 && r < x->batch * x->kv; r++)
      for (int64_t c = 0; c < x->dk; c++)
        oracle_set(&s->z_was, r / x->kv, r % x->kv, 0, c, 1 + fabs(test_normal(rng)));
    s->m = cube_from(&s->m_was), s->z = cube_from(&s->z_was);
  }
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o, s->does.out[1] = &s->m_got, s->does.out[2] = &s->z_got;
  return s;
}

/* ---- the formula ----------------------------------------------------------------------------*/

static double phi(double x) { return x > 0 ? x + 1 : exp(x); }

/* Row x [dk] of features reads M: y [dv]; 0 where z has nothing. */
static void reads(const double *x, const cube *m, const cube *z, int64_t b, int64_t h, double *y) {
  double den = 0;
  for (int64_t c = 0; c < m->dim; c++) y[c] = 0;
  for (int64_t r = 0; r < m->len; r++) {
    den += x[r] * cube_at(z, b, h, 0)[r];
    for (int64_t c = 0; c < m->dim; c++) y[c] += x[r] * cube_at(m, b, h, r)[c];
  }
  for (int64_t c = 0; c < m->dim; c++) y[c] = den > 0 ? y[c] / den : 0;
}

static void check(scene *s, double tolerance, const char *what) {
  const int64_t l = s->p.segment, tk = s->k.len, off = tk - s->q.len, dk = s->q.dim, dv = s->v.dim;
  const attn_tensor *qm = s->p.q_plain.data ? &s->p.q_plain : &s->q;
  const attn_tensor *km = s->p.k_plain.data ? &s->p.k_plain : &s->k;
  const int64_t group = s->q.heads / s->k.heads;
  cube k = cube_from(&s->k), v = cube_from(&s->v), m = s->m, z = s->z;
  double *x = test_mem((size_t)dk * 8), *q = test_mem((size_t)dk * 8), lse;
  double *far = test_mem((size_t)dv * 8), *near = test_mem((size_t)dv * 8);
  int64_t *keys = test_mem((size_t)(tk + 1) * sizeof *keys);
  for (int64_t r = 0; r < s->k.batch * s->k.heads; r++) {
    const int64_t b = r / s->k.heads, h = r % s->k.heads, tokens = s->p.len ? s->p.len[b] : tk;
    for (int64_t x0 = 0; x0 < group * s->q.len; x0++)
      for (int64_t c = 0; c < dv && x0 % s->q.len + off >= tokens; c++)
        assert_true(oracle_get(&s->o, b, h * group + x0 / s->q.len, x0 % s->q.len, c) == 0);
    for (int64_t j0 = 0; j0 < tokens; j0 += l) {
      const int64_t end = j0 + l < tokens ? j0 + l : tokens;
      for (int64_t g = h * group; g < (h + 1) * group; g++) {
        const double beta = s->p.beta ? (double)s->p.beta[g] : 0, gate = 1 / (1 + exp(-beta));
        for (int64_t p = j0 > off ? j0 : off; p < end; p++) {
          int64_t many = 0;
          for (int64_t j = j0; j <= p; j++) keys[many++] = j;
          for (int64_t c = 0; c < dk; c++) {
            q[c] = oracle_get(&s->q, b, g, p - off, c);
            x[c] = phi(oracle_get(qm, b, g, p - off, c));
          }
          reads(x, &m, &z, b, h, far);
          cube_row(near, &lse, q, &k, &v, b, h, keys, many, scale_of(s->p.scale, dk));
          for (int64_t c = 0; c < dv; c++)
            value_check(oracle_get(&s->o, b, g, p - off, c), gate * far[c] + (1 - gate) * near[c],
                        tolerance, s->o.dtype, what, b, g, p - off, c);
        }
      }
      if (end - j0 < l && s->p.open) continue;
      cube was_m = cube_of(m.batch, m.heads, m.len, m.dim),
           was_z = cube_of(z.batch, z.heads, 1, z.dim);
      memcpy(was_m.data, m.data, (size_t)(m.batch * m.heads * m.len * m.dim) * sizeof(double));
      memcpy(was_z.data, z.data, (size_t)(z.batch * z.heads * z.dim) * sizeof(double));
      for (int64_t j = j0; j < end; j++) {
        for (int64_t c = 0; c < dk; c++) x[c] = phi(oracle_get(km, b, h, j, c));
        reads(x, &was_m, &was_z, b, h, far);
        for (int64_t c = 0; c < dk; c++) {
          cube_at(&z, b, h, 0)[c] += x[c];
          for (int64_t e = 0; e < dv; e++)
            cube_at(&m, b, h, c)[e] += x[c] * (cube_at(&v, b, h, j)[e] - (s->p.delta ? far[e] : 0));
        }
      }
    }
  }
  if (!s->p.memory.data) return;
  cube_check(&m, &s->p.memory, tolerance, what);
  cube_check(&z, &s->p.z, tolerance, what);
}

static shape plain(int64_t tq, int64_t tk, int64_t segment) {
  shape x = {1, 2, 1, tq, tk, 9, 7, segment, ATTN_F32, ATTN_F32, 0, 0, 1, 0};
  return x;
}

void M5_infini_formula(void **state) {
  (void)state;
  for (int n = 0; n < 18; n++, test_mem_release()) {
    test_rng rng = test_seed(6100 + (uint64_t)n);
    static const int64_t tk[] = {40, 67, 150, 1, 300, 13}, ls[] = {16, 67, 64, 5, 128, 1};
    shape x = plain(0, tk[n % 6], ls[n * 5 % 6]);
    char text[40];
    x.tq = n % 3 == 1 ? 1 + x.tk / 3 : n % 6 == 5 ? 0 : x.tk, x.batch = 1 + n % 2;
    x.heads = n % 4 == 3 ? 6 : 2, x.kv = n % 4 == 2 ? 2 : n % 4 == 3 ? 3 : 1;
    x.dk = test_range(&rng, 1, 20), x.dv = n % 5 == 4 ? 16 : test_range(&rng, 1, 33);
    x.in = (attn_dtype)(n % 3), x.out = n % 7 == 6 ? ATTN_F16 : ATTN_F32;
    x.memory = n % 3, x.plain = n & 1, x.beta = n % 5 != 3, x.mean = n % 2;
    if (n == 10) x.tk = x.tq = 620, x.segment = 300; /* sums of 256 keys */
    scene *s = build(&x, &rng);
    s->p.delta = n / 2 % 2, s->p.open = n / 3 % 2;
    if (n == 7) s->p.scale = 0.2f;
    promise_run(&s->does);
    snprintf(text, sizeof text, "infini, case %d", n);
    check(s, 2e-5, text);
  }
}

/* Calls of whole segments, and tokens one by one, are one call. */
void M5_infini_streams(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++, test_mem_release()) {
    test_rng rng = test_seed(6150 + (uint64_t)n);
    shape x = plain(100, 100, 24);
    x.memory = 1, x.heads = 4, x.kv = 2;
    scene *s = build(&x, &rng);
    s->p.delta = n & 1;
    promise_run(&s->does);
    attn_tensor m = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 9, 7);
    attn_tensor z = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 1, 9);
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, 100, 7);
    attn_infini_params p = s->p;
    attn_ctx ctx = test_ctx();
    p.memory = m, p.z = z;
    test_fill_value(m, 0), test_fill_value(z, 0);
    for (int64_t j = 0, l; j < 100; j += l) {
      l = n < 2 ? 48 : 24;
      if (l > 100 - j) l = 100 - j;
      for (int64_t i = n < 2 ? l - 1 : 0; i < l; i++) {
        const int64_t rows = n < 2 ? l : 1, first = j + i + 1 - rows;
        p.open = n >= 2 && j + 24 <= 100; /* the last segment is short, and taken at its end */
        if (n >= 2 && j + 24 > 100) p.open = i + 1 < l;
        assert_int_equal(
            attn_infini(test_rows(o, first, rows), test_rows(s->q, first, rows),
                        test_rows(s->k, j, i + 1), test_rows(s->v, j, i + 1), &p, &ctx),
            ATTN_OK);
      }
    }
    test_assert_near(o, s->o, 1e-5, "stream");
    test_assert_near(m, s->p.memory, 1e-5, "its memory");
    test_assert_near(z, s->p.z, 1e-5, "its z");
  }
}

static attn_tensor entry(attn_tensor t, int64_t b, int64_t rows) {
  if (t.data) t = test_rows(test_one(t, b, 1, 0, t.heads), 0, rows);
  return t;
}

/* A padded batch, NaN behind its lengths, is each entry by itself, cut off: rows and memories, bit for bit. */
void M5_infini_lengths(void **state) {
  (void)state;
  enum { B = 4 };
  for (int n = 0; n < 16; n++, test_mem_release()) {
    test_rng rng = test_seed(6170 + (uint64_t)n);
    static const int64_t tqs[] = {100, 100, 37, 1};
    shape x = plain(tqs[n % 4], 100, n % 5 == 4 ? 150 : n % 3 ? 24 : 20);
    int32_t len[B];
    x.batch = B, x.kv = 1 + n % 2, x.heads = 2 * x.kv, x.memory = n % 3, x.plain = n / 2 % 2;
    x.out = n % 7 == 3 ? ATTN_F16 : ATTN_F32;
    scene *s = build(&x, &rng);
    s->p.delta = n / 4 % 2, s->p.open = n / 3 % 2, s->p.len = len;
    for (int b = 0; b < B; b++) {
      len[b] = (int32_t)(b == 0 ? 100 : b == 1 && n % 2 ? 0 : test_range(&rng, 0, 100));
      if (n % 8 == 5 && b == 2) len[b] = 40; /* whole segments */
      attn_tensor *keys[3] = {&s->k, &s->v, &s->p.k_plain}, *rows[2] = {&s->q, &s->p.q_plain};
      for (int y = 0; y < 3; y++)
        for (int64_t j = len[b]; keys[y]->data && j < 100; j++)
          for (int64_t h = 0; h < x.kv; h++) test_fill_row(*keys[y], b, h, j, (double)NAN);
      for (int y = 0; y < 2; y++)
        for (int64_t i = 0; rows[y]->data && i < x.tq; i++)
          for (int64_t h = 0; h < x.heads && i + 100 - x.tq >= len[b]; h++)
            test_fill_row(*rows[y], b, h, i, (double)NAN);
    }
    promise_run(&s->does);
    check(s, 2e-5, "lengths");
    for (int64_t b = 0; b < B; b++) {
      const int64_t behind = 100 - x.tq, rows = len[b] > behind ? len[b] - behind : 0;
      attn_infini_params p = s->p;
      attn_ctx ctx = test_ctx();
      attn_tensor o = test_tensor(s->o.dtype, TEST_BHTD, 1, x.heads, rows, 7);
      attn_tensor m = test_tensor(ATTN_F32, TEST_BHTD, 1, x.kv, 9, 7),
                  z = test_tensor(ATTN_F32, TEST_BHTD, 1, x.kv, 1, 9);
      p.len = NULL, p.q_plain = entry(p.q_plain, b, rows), p.k_plain = entry(p.k_plain, b, len[b]);
      if (x.memory) {
        test_copy(m, test_one(s->m_was, b, 1, 0, x.kv)),
            test_copy(z, test_one(s->z_was, b, 1, 0, x.kv));
        p.memory = m, p.z = z;
      }
      if (attn_infini(o, entry(s->q, b, rows), entry(s->k, b, len[b]), entry(s->v, b, len[b]), &p,
                      &ctx))
        fail_msg("%s", ctx.reason);
      test_assert_same(entry(s->o, b, rows), o, "an entry cut off");
      if (!x.memory) continue;
      test_assert_same(entry(s->m_got, b, 9), m, "its memory");
      test_assert_same(entry(s->z_got, b, 1), z, "its z");
    }
    if (n % 4 == 0) promise_keep(&s->does);
  }
}

/* A closed gate leaves the segments' own softmax; an open one the memory alone, which after one delta step of the same
 * keys does not change. */
void M5_infini_gates(void **state) {
  (void)state;
  test_rng rng = test_seed(6180);
  shape x = plain(90, 90, 30);
  x.memory = 2;
  scene *s = build(&x, &rng);
  test_fill_row(s->m_was, 0, 0, 3, (double)NAN); /* which nobody reads */
  const float closed[2] = {-INFINITY, -INFINITY};
  s->p.beta = closed;
  promise_run(&s->does);
  for (int64_t j = 0; j < 90; j += 30) {
    attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 30, 7);
    attn_sdpa_params p;
    attn_ctx ctx = test_ctx();
    memset(&p, 0, sizeof p);
    p.causal = 1;
    assert_int_equal(attn_sdpa(o, test_rows(s->q, j, 30), test_rows(s->k, j, 30),
                               test_rows(s->v, j, 30), &p, &ctx),
                     ATTN_OK);
    for (int h = 0; h < 2; h++)
      test_assert_same(test_one(test_rows(s->o, j, 30), 0, 1, h, 1), test_one(o, 0, 1, h, 1),
                       "closed");
  }
  const float open[2] = {INFINITY, INFINITY};
  x.memory = 0, s = build(&x, &rng);
  s->p.beta = open;
  promise_run(&s->does);
  check(s, 2e-5, "open");
  for (int c = 0; c < 7; c++) assert_true(oracle_get(&s->o, 0, 1, 29, c) == 0); /* nothing yet */
}

/* Errors of a memory do not grow with the tokens that it holds. */
void M5_infini_long(void **state) {
  (void)state;
  test_rng rng = test_seed(6190);
  const int64_t t = test_fast ? 4096 : 20000;
  shape x = plain(0, t, t / 2);
  x.heads = 1, x.dk = 3, x.dv = 2, x.memory = 1, x.mean = 1;
  scene *s = build(&x, &rng);
  promise_run(&s->does);
  check(s, 2e-7, "long"); /* of the largest number */
}

void M5_infini_promises(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++, test_mem_release()) {
    test_rng rng = test_seed(6200 + (uint64_t)n);
    shape x = plain(n == 2 ? 3 : 80, 80, 32);
    x.batch = 2, x.kv = 2, x.memory = n < 2 ? 2 : 0, x.out = n == 3 ? ATTN_BF16 : ATTN_F32;
    scene *s = build(&x, &rng);
    s->p.delta = n & 1;
    promise_run(&s->does);
    promise_keep(&s->does);
  }
}

/* A NaN in a value reaches its segment from its row on, and all rows of later segments; the memory keeps it. */
void M5_infini_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(6250);
  shape x = plain(60, 60, 20);
  x.memory = 1;
  scene *s = build(&x, &rng);
  test_fill_row(s->v, 0, 0, 27, (double)NAN);
  promise_run(&s->does);
  for (int i = 0; i < 60; i++) assert_int_equal(isnan(oracle_get(&s->o, 0, 1, i, 3)) != 0, i >= 27);
  assert_true(isnan(oracle_get(&s->p.memory, 0, 0, 2, 3)));
  assert_true(!isnan(oracle_get(&s->p.z, 0, 0, 0, 2)));
  attn_ctx ctx = test_ctx();
  s->q.len = s->o.len = s->k.len = s->v.len = 0;
  assert_int_equal(attn_infini(s->o, s->q, s->k, s->v, &s->p, &ctx), ATTN_OK);
  assert_string_equal(ctx.report.path, "no-op");
}

void M5_infini_rejects(void **state) {
  (void)state;
  for (int n = 0; n < 19; n++, test_mem_release()) {
    test_rng rng = test_seed(6260);
    int32_t len[1] = {n == 16 ? 31 : -1};
    shape x = plain(20, 30, 8);
    float bad[2] = {0, (float)NAN};
    x.memory = 2, x.plain = 1, x.heads = 2, x.kv = 2;
    scene *s = build(&x, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    promise_run(&s->does);
    switch (n) {
      case 0: s->p.segment = 0, want = ATTN_E_RANGE, word = "segment"; break;
      case 1: s->p.segment = -3, want = ATTN_E_RANGE, word = "segment"; break;
      case 2: s->q.len = s->o.len = s->p.q_plain.len = 31, word = "q.len"; break;
      case 3: s->k.dim--, word = "k must"; break;
      case 4: s->v.len--, word = "v must"; break;
      case 5: s->p.z.dim--, word = "z must"; break;
      case 6: s->p.beta = bad, want = ATTN_E_VALUE, word = "beta"; break;
      case 7: s->p.scale = INFINITY, want = ATTN_E_VALUE, word = "scale"; break;
      case 8: s->p.k_plain.data = NULL, want = ATTN_E_NULL, word = "k_plain"; break;
      case 9: s->p.q_plain.dim--, word = "q_plain"; break;
      case 10: s->p.memory.dtype = ATTN_F16, want = ATTN_E_DTYPE, word = "memory"; break;
      case 11: s->o.dim++, word = "o must"; break;
      case 12: s->k.heads = s->v.heads = 3, want = ATTN_E_HEADS, word = "k must"; break;
      case 13: s->q.data = NULL, want = ATTN_E_NULL, word = "q.data"; break;
      case 15: s->p.len = s->p.memory.data, want = ATTN_E_OVERLAP, word = "memory"; break;
      case 16:
      case 17: s->p.len = len, want = ATTN_E_RANGE, word = "len"; break;
      case 14: s->p.beta = s->p.memory.data, want = ATTN_E_OVERLAP, word = "memory"; break;
      default: s->v.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "v.dtype"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
