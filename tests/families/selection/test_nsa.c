/* tests/families/selection/test_nsa.c owns native sparse attention against its definition in float64. */

#include "selected.h"

typedef struct nsa_call {
  selected_call c;
  attn_nsa_params p;
  int64_t l, d, size, blocks, window;
} nsa_call;

static nsa_call nsa_of(selected_call c, int64_t l, int64_t d, int64_t size, int64_t blocks,
                       int64_t window, test_rng *rng) {
  nsa_call m;
  const attn_tensor *q = &c.base.q;
  memset(&m, 0, sizeof m);
  m.c = c, m.l = l, m.d = d, m.size = size, m.blocks = blocks, m.window = window;
  m.p.block = l, m.p.stride = d, m.p.select = size, m.p.blocks = blocks, m.p.window = window;
  m.p.scale = c.softmax.scale, m.p.has_q_off = c.softmax.has_q_off, m.p.q_off = c.softmax.q_off;
  m.p.kv_len = c.softmax.kv_len;
  m.p.gate = drawn(ATTN_F32, TEST_BTHD, q->batch, q->heads, q->len, 3, 1, rng);
  m.p.index = selected_lists(q->batch * c.base.k.heads * q->len * blocks);
  return m;
}

static attn_status nsa_call_of(void *scene, attn_ctx *ctx) {
  nsa_call *m = scene;
  return attn_nsa(m->c.base.o, m->c.base.q, m->c.base.k, m->c.base.v, &m->p, ctx);
}
static size_t nsa_ask(void *scene, const attn_ctx *ctx) {
  nsa_call *m = scene;
  return attn_nsa_workspace(m->c.base.o, m->c.base.q, m->c.base.k, m->c.base.v, &m->p, ctx);
}

static attn_report nsa_run(nsa_call *m) {
  attn_ctx ctx = test_ctx();
  const attn_status s = nsa_call_of(m, &ctx);
  if (s) fail_msg("attn_nsa: %s", ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
  return ctx.report;
}

/* Compressed rows: means, or what is given. */
static cube nsa_rows(const nsa_call *m, const attn_tensor *x, const attn_tensor *given) {
  if (given->data) return cube_from(given);
  const int64_t n = x->len < m->l ? 0 : (x->len - m->l) / m->d + 1;
  cube y = cube_of(x->batch, x->heads, n, x->dim);
  for (int64_t u = 0; u < x->batch * x->heads * n; u++)
    for (int64_t i = 0; i < m->l; i++)
      for (int64_t e = 0; e < x->dim; e++)
        cube_at(&y, u / n / x->heads, u / n % x->heads, u % n)[e] +=
            oracle_get(x, u / n / x->heads, u / n % x->heads, u % n * m->d + i, e) / (double)m->l;
  return y;
}

/* What a row reads of keys from .. to, and of a list of blocks if there is one, times a gate. */
static void nsa_branch(double *o, const nsa_call *m, const attn_tensor *k, const attn_tensor *v,
                       int64_t b, int64_t h, int64_t i, int64_t from, int64_t to,
                       const int32_t *list, double gate) {
  bag a = bag_of(k->len + 1, v->dim);
  const int64_t hk = head_of(k, h, m->c.base.q.heads);
  for (int64_t j = from < 0 ? 0 : from; j < to; j++) {
    int in = !list;
    for (int64_t e = 0; list && e < m->blocks; e++) in |= list[e] == j / m->size;
    if (in)
      bag_add(&a, dot_rows(&m->c.base.q, k, b, h, i, j) * scale_of(m->p.scale, k->dim), v, b, hk,
              j);
  }
  bag_close(&a);
  for (int64_t e = 0; e < v->dim; e++) o[e] += gate * a.o[e];
}

static void nsa_check(nsa_call *m, double slack, const char *what) {
  const test_call *d = &m->c.base;
  const int64_t tq = d->q.len, nh = d->q.heads, hk = d->k.heads, g = nh / hk,
                candidates = d->k.len / m->size + 1;
  nsa_run(m);
  const cube kc = nsa_rows(m, &d->k, &m->p.k_cmp), vc = nsa_rows(m, &d->v, &m->p.v_cmp);
  const attn_tensor *ks = m->p.k_sel.data ? &m->p.k_sel : &d->k,
                    *vs = m->p.v_sel.data ? &m->p.v_sel : &d->v;
  const attn_tensor *kw = m->p.k_win.data ? &m->p.k_win : &d->k,
                    *vw = m->p.v_win.data ? &m->p.v_win : &d->v;
  const int64_t dv = d->v.dim, dk = d->k.dim;
  double *p = test_mem((size_t)(kc.len + 1) * 8), *sum = test_mem((size_t)(kc.len + 1) * 8);
  double *score = test_mem((size_t)candidates * 8), *o = test_mem((size_t)(g * dv) * 8);
  unsigned char *may = test_mem((size_t)candidates);
  for (int64_t u = 0; u < d->q.batch * hk * tq; u++) {
    const int64_t b = u / tq / hk, i = u % tq, head = u / tq % hk,
                  pos = selected_position(&m->c, i);
    const int64_t keys = selected_keys(&m->c, b), sees = pos + 1 < keys ? pos + 1 : keys;
    const int64_t n = sees < m->l ? 0 : (sees - m->l) / m->d + 1,
                  own = pos < 0 ? -1 : pos / m->size;
    const int64_t blocks = (keys + m->size - 1) / m->size;
    const int32_t *list = m->p.index + u * m->blocks;
    for (int64_t c = 0; c < n; c++) sum[c] = 0;
    for (int64_t x = 0; x < g; x++) {
      const int64_t h = head * g + x;
      double top = -1e300, all = 0;
      for (int64_t c = 0; c < n; c++) {
        p[c] = 0;
        for (int64_t e = 0; e < dk; e++)
          p[c] += oracle_get(&d->q, b, h, i, e) * cube_at(&kc, b, head, c)[e];
        p[c] *= scale_of(m->p.scale, dk);
        if (p[c] > top) top = p[c];
      }
      for (int64_t c = 0; c < n; c++) all += p[c] = exp(p[c] - top);
      for (int64_t e = 0; e < dv; e++) o[x * dv + e] = 0;
      for (int64_t c = 0; c < n; c++) {
        sum[c] += p[c] / all;
        for (int64_t e = 0; e < dv; e++)
          o[x * dv + e] +=
              oracle_get(&m->p.gate, b, h, i, 0) * p[c] / all * cube_at(&vc, b, head, c)[e];
      }
      nsa_branch(o + x * dv, m, ks, vs, b, h, i, 0, sees, list, oracle_get(&m->p.gate, b, h, i, 1));
      nsa_branch(o + x * dv, m, kw, vw, b, h, i, pos - m->window + 1, sees, NULL,
                 oracle_get(&m->p.gate, b, h, i, 2));
      for (int64_t e = 0; e < dv; e++)
        value_check(oracle_get(&d->o, b, h, i, e), o[x * dv + e], 2e-4, d->o.dtype, what, b, h, i,
                    e);
    }
    int64_t forced[3], many = 0;
    if (own >= 0 && own < blocks) forced[many++] = own;
    if (own >= 1 && own - 1 < blocks && many < m->blocks && m->blocks > 1) forced[many++] = own - 1;
    if (own >= 2 && blocks > 0 && many < m->blocks && m->blocks > 2) forced[many++] = 0;
    for (int64_t j = 0; j < candidates; j++) {
      may[j] = j <= own && j < blocks, score[j] = 0;
      for (int64_t x = 0; x < m->size / m->d; x++)
        for (int64_t y = 0; y < m->l / m->d; y++) {
          const int64_t c = j * (m->size / m->d) + x - y;
          if (c >= 0 && c < n) score[j] += sum[c];
        }
    }
    selected_judge(list, m->blocks, forced, many, score, may, candidates, m->blocks, slack, what);
  }
}

void M3_nsa_random(void **state) {
  (void)state;
  test_rng rng = test_seed(34100);
  static const int64_t heads[][2] = {{1, 1}, {4, 1}, {4, 2}, {6, 3}, {70, 1}};
  static const int64_t sizes[][3] = {{4, 2, 8}, {3, 3, 3}, {6, 2, 2}, {1, 1, 5}, {8, 4, 4}};
  for (int64_t n = test_count(50, 15); n-- > 0; test_mem_release()) {
    const int64_t *h = heads[n % 5], *z = sizes[n / 2 % 5],
                  tk = test_range(&rng, 1, n % 5 == 4 ? 30 : 90);
    const int64_t tq = n % 3 ? test_range(&rng, 1, tk < 40 ? tk : 40) : 1;
    selected_call c =
        selected_of(1 + n % 2, h[0], h[1], tq, tk, test_range(&rng, 1, 12), (int)(n % 16), &rng);
    nsa_call m = nsa_of(c, z[0], z[1], z[2], test_range(&rng, 1, 6), test_range(&rng, 1, 20), &rng);
    const int64_t rows = tk < z[0] ? 0 : (tk - z[0]) / z[1] + 1, nb = 1 + n % 2, dk = c.base.k.dim,
                  dv = c.base.v.dim;
    const attn_dtype type = (attn_dtype)(n / 3 % 3);
    const int own = n % 3 ? (int)test_range(&rng, 0, 63) : 0; /* tensors of their own */
    if (own & 1) m.p.k_cmp = drawn(ATTN_F32, TEST_PADDED, nb, h[1], rows, dk, 1, &rng);
    if (own & 2) m.p.v_cmp = drawn(ATTN_F32, TEST_BTHD, nb, h[1], rows, dv, 1, &rng);
    if (own & 4) m.p.k_sel = drawn(type, TEST_BTHD, nb, h[1], tk, dk, 1, &rng);
    if (own & 8) m.p.v_sel = drawn(type, TEST_NEGATIVE, nb, h[1], tk, dv, 1, &rng);
    if (own & 16) m.p.k_win = drawn(ATTN_BF16, TEST_PADDED, nb, h[1], tk, dk, 1, &rng);
    if (own & 32) m.p.v_win = drawn(ATTN_F16, TEST_BHTD, nb, h[1], tk, dv, 1, &rng);
    m.p.gate = drawn((attn_dtype)(n % 3), TEST_BTHD, nb, h[0], tq, 3, 1, &rng);
    nsa_check(&m, 1e-4, "random");
  }
}

/* The paper's sizes, several tiles. */
void M3_nsa_long(void **state) {
  (void)state;
  test_rng rng = test_seed(34200);
  for (int n = 0; n < 2; n++, test_mem_release()) {
    selected_call c = selected_of(1, n ? 16 : 2, 1, n ? 3 : 70, n ? 2300 : 1400, 8, 0, &rng);
    nsa_call m = nsa_of(c, 32, 16, 64, 16, 512, &rng);
    m.p.block = m.p.stride = m.p.select = m.p.blocks = m.p.window = 0;
    nsa_check(&m, 1e-4, "long");
  }
}

/* Keys that are copies of a few: equal scores go to the lower block; with one size they are the weights themselves. */
void M3_nsa_ties(void **state) {
  (void)state;
  test_rng rng = test_seed(34300);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    selected_call c = selected_of(1, 2, 1, 48, 96, 4, 0, &rng);
    for (int64_t j = 0; j < 96; j++)
      for (int64_t e = 0; e < 4; e++)
        oracle_set(&c.base.k, 0, 0, j, e, (double)(j / 4 * 7 % 3) + (double)(e == 0));
    nsa_call m = nsa_of(c, 4, 4, 4, 5 + n, 8, &rng);
    nsa_run(&m);
    for (int64_t i = 0; i < 48; i++) { /* the three kinds of blocks by their order */
      double score[24];
      unsigned char may[24];
      const int64_t own = (i + 48) / 4, forced[3] = {own, own - 1, 0};
      double kind[3] = {0};
      for (int x = 0; x < 3; x++)
        for (int h = 0; h < 2; h++) {
          double dot = 0;
          for (int e = 0; e < 4; e++)
            dot += oracle_get(&c.base.q, 0, h, i, e) * ((double)x + (e == 0));
          double all = 0;
          for (int64_t j = 0; j < (i + 49) / 4; j++) {
            double y = 0;
            for (int e = 0; e < 4; e++)
              y += oracle_get(&c.base.q, 0, h, i, e) * ((double)(j * 7 % 3) + (e == 0));
            all += exp(0.5 * (y - dot));
          }
          kind[x] += 1 / all;
        }
      if (fabs(kind[0] - kind[1]) < 1e-4 || fabs(kind[1] - kind[2]) < 1e-4 ||
          fabs(kind[0] - kind[2]) < 1e-4)
        continue;
      for (int64_t j = 0; j < 24; j++) may[j] = j <= own, score[j] = kind[j * 7 % 3];
      selected_judge(m.p.index + i * m.blocks, m.blocks, forced, 3, score, may, 24, m.blocks, 0,
                     "ties");
    }
  }
}

/* One gate open: all blocks, or a window that holds all, are causal attention. */
void M3_nsa_dense(void **state) {
  (void)state;
  test_rng rng = test_seed(34400);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    selected_call c = selected_of(1, 4, 2, n % 2 ? 5 : 150, 150, 16, 0, &rng);
    nsa_call m = nsa_of(c, 8, 4, 16, n < 2 ? 10 : 2, n < 2 ? 3 : 150, &rng);
    for (int64_t r = 0; r < 4 * c.base.q.len; r++)
      for (int x = 0; x < 3; x++)
        oracle_set(&m.p.gate, 0, r / c.base.q.len, r % c.base.q.len, x, x == (n < 2 ? 1 : 2));
    if (n < 2)
      test_fill_row(c.base.v, 0, 0, 149, 1e30); /* gates of 0 leave nothing of the others */
    nsa_run(&m);
    c.base.params.lse = absent();
    test_compare(&c.base, "one gate");
  }
}

/* Rows alone or in parts, over a growing cache, with kept compressed rows and without, have the bits of all. */
void M3_nsa_decode(void **state) {
  (void)state;
  enum { T = 150 };
  static const int32_t parts[] = {1, 2, 7, 65};
  test_rng rng = test_seed(34500);
  selected_call c = selected_of(1, 4, 2, T, T, 12, 0, &rng);
  nsa_call whole = nsa_of(c, 8, 4, 12, 4, 20, &rng);
  nsa_run(&whole);
  c.softmax.lse = absent();
  attn_tensor kept[2] = {test_tensor(ATTN_F32, TEST_PADDED, 1, 2, (T - 8) / 4 + 1, 12),
                         test_tensor(ATTN_F32, TEST_BHTD, 1, 2, (T - 8) / 4 + 1, 15)};
  for (int x = 0; x < 4; x++)
    for (int32_t i = 0, n, before = 0; i < T; i += x == 0 && i < 120 ? 11 : n) {
      int32_t len;
      nsa_call m = whole;
      n = parts[x] < T - i ? parts[x] : T - i;
      m.c = selected_part(&c, i, n, &len);
      attn_nsa_compress_params cp = {8, 4, before, &len, {0}, {0}};
      attn_ctx ctx = test_ctx();
      assert_int_equal(attn_nsa_compress(kept[0], c.base.k, &cp, &ctx), ATTN_OK);
      assert_int_equal(attn_nsa_compress(kept[1], c.base.v, &cp, &ctx), ATTN_OK);
      before = len;
      m.p.gate = test_rows(whole.p.gate, i, n), m.p.index = selected_lists(2 * n * 4);
      m.p.has_q_off = 1, m.p.q_off = i, m.p.kv_len = &len;
      for (int given = 0; given < 2; given++) {
        if (given) m.p.k_cmp = kept[0], m.p.v_cmp = kept[1];
        nsa_run(&m);
        selected_same_part(&m.c, &c, i, m.p.index, whole.p.index, 2, 4);
      }
    }
}

/* A learned compression is a product; keys and values apart. */
void M3_nsa_compress(void **state) {
  (void)state;
  test_rng rng = test_seed(34600);
  for (int64_t n = test_count(16, 8); n-- > 0; test_mem_release()) {
    const int64_t d = test_range(&rng, 1, 4), l = d * test_range(&rng, 1, 3),
                  t = test_range(&rng, 0, 40);
    const int64_t dim = test_range(&rng, 1, 7), wide = test_range(&rng, 1, 9),
                  rows = t < l ? 0 : (t - l) / d + 1;
    const int learned = n % 2 == 0, first = n % 3 == 2 ? (int)test_range(&rng, 0, t) : 0;
    attn_tensor x = drawn(n % 4 ? ATTN_F32 : ATTN_F16, TEST_BTHD, 2, 2, t, dim, 1, &rng);
    attn_nsa_compress_params p = {l,   d,  first, n % 5 == 3 ? test_lengths(2, t, &rng) : NULL,
                                  {0}, {0}};
    if (learned) p.w = drawn(ATTN_F32, TEST_BHTD, 1, n % 3 ? 2 : 1, l * dim, wide, 1, &rng);
    if (learned && n % 4) p.e = drawn(ATTN_F32, TEST_BHTD, 1, n % 3 ? 1 : 2, l, dim, 1, &rng);
    attn_tensor y = test_tensor(ATTN_F32, TEST_BTHD, 2, 2, rows, learned ? wide : dim);
    attn_ctx ctx = test_ctx();
    test_fill_value(y, 7.5);
    if (attn_nsa_compress(y, x, &p, &ctx)) fail_msg("%s", ctx.reason);
    for (int64_t u = 0; u < 4 * rows; u++) {
      const int64_t b = u / rows / 2, h = u / rows % 2, c = u % rows,
                    keys = p.kv_len ? p.kv_len[b] : t;
      for (int64_t z = 0; z < y.dim; z++) {
        double want = 0;
        for (int64_t i = 0; i < l; i++)
          for (int64_t e = 0; e < dim; e++) {
            double v = oracle_get(&x, b, h, c * d + i, e);
            if (p.e.data) v += oracle_get(&p.e, 0, p.e.heads > 1 ? h : 0, i, e);
            if (learned) want += v * oracle_get(&p.w, 0, p.w.heads > 1 ? h : 0, i * dim + e, z);
            if (!learned && e == z) want += v / (double)l;
          }
        if (c * d + l > keys) want = 0;
        if (c * d + l <= first) want = 7.5;
        if (!(fabs(want - oracle_get(&y, b, h, c, z)) < 1e-4)) fail_msg("row %d: %g", (int)c, want);
      }
    }
  }
}

/* Values that are not finite reach the rows that see or choose them. */
void M3_nsa_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(34700);
  for (int n = 0; n < 2; n++, test_mem_release()) {
    selected_call c = selected_of(1, 2, 1, 96, 96, 8, 0, &rng);
    nsa_call m = nsa_of(c, 8, 8, 16, 3, 16, &rng);
    m.p.v_cmp = drawn(ATTN_F32, TEST_BHTD, 1, 1, 12, 11, 1, &rng),
    m.p.k_cmp = drawn(ATTN_F32, TEST_BHTD, 1, 1, 12, 8, 1, &rng);
    for (int64_t i = 32; i < 48; i++) test_fill_row(n ? c.base.k : c.base.v, 0, 0, i, NAN);
    nsa_run(&m);
    for (int64_t r = 0; r < 2 * 96; r++) {
      int bad = r % 96 >= 32 && r % 96 < 63;
      for (int e = 0; e < 3; e++) bad |= m.p.index[3 * (r % 96) + e] == 2;
      for (int64_t x = 0; x < c.base.o.dim && !bad; x++) {
        const double y = oracle_get(&c.base.o, 0, r / 96, r % 96, x);
        if (!(y - y == 0)) fail_msg("case %d: row %d has NaN", n, (int)r);
      }
    }
  }
}

void M3_nsa_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(34750);
  static const int64_t shape[][2] = {{0, 5}, {5, 0}, {0, 0}, {2, 2}};
  for (int n = 0; n < 4; n++, test_mem_release()) {
    selected_call c = selected_of(1, 4, 2, shape[n][0], shape[n][1], 3, 0, &rng);
    nsa_call m = nsa_of(c, 4, 2, 4, 2, 3, &rng);
    nsa_check(&m, 0, "empty");
  }
}

void M3_nsa_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(34800);
  selected_call c = selected_of(2, 4, 2, 70, 90, 9, SELECTED_HALF | SELECTED_LENGTHS, &rng);
  nsa_call m = nsa_of(c, 4, 2, 8, 4, 9, &rng);
  const int64_t n = 2 * 2 * 70 * 4;
  attn_tensor lists = attn_bhtd(m.p.index, ATTN_F32, 1, 1, 1, n);
  promise p = {nsa_call_of, nsa_ask, &m, {&m.c.base.o, &lists}, {{0}}, 0};
  p.block[0].data = m.c.base.o.data, p.block[0].size = (size_t)(2 * 4 * 70 * 12 * 4);
  p.block[1].data = (unsigned char *)m.p.index, p.block[1].size = (size_t)n * 4;
  promise_keep(&p);
}

void M3_nsa_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(34900);
  selected_call c = selected_of(1, 2, 1, 6, 12, 4, 0, &rng);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 5, 4),
              w = drawn(ATTN_F32, TEST_BHTD, 1, 1, 16, 4, 1, &rng);
  for (int n = 0; n < 17; n++) {
    attn_ctx ctx = test_ctx();
    nsa_call m = nsa_of(c, 4, 2, 4, 2, 3, &rng);
    attn_nsa_compress_params p = {4, 2, 0, NULL, {0}, {0}};
    attn_status want = n < 5 ? ATTN_E_RANGE : ATTN_E_SHAPE;
    test_fill_value(c.base.o, 3), test_fill_value(y, 3);
    if (n == 0) m.p.stride = 3;
    if (n == 1) m.p.select = 3;
    if (n == 2) m.p.blocks = -1;
    if (n == 3) m.p.window = -1;
    if (n == 4) m.p.block = -4;
    if (n == 5) m.p.gate.dim = 2;
    if (n == 6) m.p.k_cmp = y, m.p.k_cmp.len = 4;
    if (n == 7) m.p.v_sel = c.base.v, m.p.v_sel.len = 11;
    if (n == 8) m.p.gate = absent(), want = ATTN_E_NULL;
    if (n == 9) m.p.index = (int32_t *)c.base.o.data, want = ATTN_E_OVERLAP;
    if (n == 10) want = ATTN_E_NULL;
    if (n == 11) p.stride = 3, want = ATTN_E_RANGE;
    if (n == 12) p.first = 13, want = ATTN_E_RANGE;
    if (n == 13) p.w = w, p.w.len = 15;
    if (n == 14) p.e = w, p.e.len = 4, want = ATTN_E_NULL;
    if (n == 15) p.w = w, p.w.dim = 3;
    if (n == 16) p.w = y, p.w.len = 16, p.w.stride_len = 0, want = ATTN_E_OVERLAP;
    const attn_status got = n < 10    ? nsa_call_of(&m, &ctx)
                            : n == 10 ? attn_nsa(c.base.o, c.base.q, c.base.k, c.base.v, NULL, &ctx)
                                      : attn_nsa_compress(y, c.base.k, &p, &ctx);
    if (got != want) fail_msg("case %d: %d, %s", n, (int)got, ctx.reason ? ctx.reason : "");
    assert_non_null(ctx.reason);
    for (int64_t x = 0; x < 7; x++) assert_true(oracle_get(&c.base.o, 0, 1, 5, x) == 3);
    assert_true(oracle_get(&y, 0, 0, 4, 3) == 3);
  }
  test_mem_release();
}
