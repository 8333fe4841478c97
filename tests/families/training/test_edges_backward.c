/* tests/families/training/test_edges_backward.c owns N3, the gradients of attention over edges: those of attn_sdpa_backward
 * where all other pairs are forbidden. */

#include "compound.h"

typedef struct edges_back {
  attn_tensor d_q, d_k, d_v, d_o, q, k, v, o;
  attn_edges_params p;
  attn_edges_gradients g;
  attn_tensor bias; /* around g.d_bias */
  int64_t sets_b, sets_h;
  promise does;
} edges_back;

static attn_status run(void *at, attn_ctx *ctx) {
  edges_back *s = at;
  return attn_edges_backward(s->d_q, s->d_k, s->d_v, s->d_o, s->q, s->k, s->v, s->o, s->p.lse,
                             &s->p, &s->g, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  edges_back *s = at;
  return attn_edges_backward_workspace(s->d_q, s->d_k, s->d_v, s->d_o, s->q, s->k, s->v, s->o,
                                       s->p.lse, &s->p, &s->g, ctx);
}

typedef struct edges_shape {
  int64_t batch, heads, hk, hv, tq, tk, dk, dv, degree;
  int per_batch, per_head, bias, weights, lse;
  attn_dtype type;
} edges_shape;

static edges_back *build(const edges_shape *z, test_rng *rng) {
  edges_back *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->sets_b = z->per_batch ? z->batch : 1, s->sets_h = z->per_head ? z->heads : 1;
  const int64_t sets = s->sets_b * s->sets_h, B = z->batch, H = z->heads;
  s->q = drawn(z->type, TEST_PADDED, B, H, z->tq, z->dk, 1, rng);
  s->k = drawn(z->type, TEST_BTHD, B, z->hk, z->tk, z->dk, 1, rng);
  s->v = drawn(ATTN_F32, TEST_PADDED, B, z->hv, z->tk, z->dv, 1, rng);
  s->o = test_tensor(ATTN_F32, TEST_PADDED, B, H, z->tq, z->dv);
  s->d_o = drawn(z->type, TEST_BHTD, B, H, z->tq, z->dv, 1, rng);
  int64_t *ptr = test_mem((size_t)(sets * (z->tq + 1)) * sizeof *ptr), most = 0;
  for (int64_t n = 0; n < sets; n++) {
    int64_t *row = ptr + n * (z->tq + 1);
    row[0] = 0;
    for (int64_t i = 0; i < z->tq; i++)
      row[i + 1] = row[i] + (z->tk ? test_range(rng, 0, z->degree < z->tk ? z->degree : z->tk) : 0);
    if (row[z->tq] > most) most = row[z->tq];
  }
  int32_t *col = test_mem((size_t)(sets * most + 1) * sizeof *col);
  for (int64_t n = 0; n < sets; n++)
    for (int64_t i = 0; i < z->tq; i++) {
      const int64_t *row = ptr + n * (z->tq + 1) + i;
      const int64_t first = z->tk ? test_range(rng, 0, z->tk - 1) : 0;
      for (int64_t e = row[0]; e < row[1]; e++) /* a step that meets each key once */
        col[n * most + e] = (int32_t)((first + (e - row[0]) * (z->tk % 7 ? 7 : 1)) % z->tk);
    }
  s->p.indptr = ptr, s->p.col = col, s->p.edges = most, s->p.slack = 1;
  s->p.per_batch = z->per_batch, s->p.per_head = z->per_head;
  s->p.lse = test_tensor(ATTN_F32, TEST_BHTD, B, H, z->tq, 1);
  if (z->bias) {
    float *bias = test_floats(sets * most + 1, 1, rng);
    for (int64_t e = 0; e < sets * most; e += 5) bias[e] = -INFINITY;
    s->p.bias = bias;
    s->bias =
        output(ATTN_F32, TEST_BHTD, 1, 1, 1, sets * most > 0 ? sets * most : 1, &s->does.block[3]);
    s->g.d_bias = s->bias.data, s->does.out[3] = &s->bias;
  }
  if (z->weights) s->g.d_weights = test_floats(B * H * most + 1, 1, rng);
  if (z->lse) s->g.d_lse = drawn(ATTN_F32, TEST_PADDED, B, H, z->tq, 1, 1, rng);
  s->d_q = output(ATTN_F32, TEST_PADDED, B, H, z->tq, z->dk, &s->does.block[0]);
  s->d_k = output(z->type, TEST_BHTD, B, z->hk, z->tk, z->dk, &s->does.block[1]);
  s->d_v = output(ATTN_F32, TEST_PADDED, B, z->hv, z->tk, z->dv, &s->does.block[2]);
  s->does.out[0] = &s->d_q, s->does.out[1] = &s->d_k, s->does.out[2] = &s->d_v;
  s->does.call = run, s->does.ask = ask, s->does.scene = s;
  return s;
}

static void forward(edges_back *s) {
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_edges(s->o, s->q, s->k, s->v, &s->p, &ctx), ATTN_OK);
}

static int64_t set_of(const edges_back *s, int64_t b, int64_t h) {
  return (s->sets_b > 1 ? b : 0) * s->sets_h + (s->sets_h > 1 ? h : 0);
}

static void near(const attn_tensor *want, const attn_tensor *got, const char *what) {
  const cube w = cube_from(want);
  cube_check(&w, got, 4e-6, what);
}

/* Against the dense call of the same pairs. */
static void check(const edges_back *s) {
  const int64_t B = s->q.batch, H = s->q.heads, T = s->q.len, Tk = s->k.len;
  attn_sdpa_params p;
  attn_sdpa_gradients g;
  attn_ctx ctx = test_ctx();
  memset(&p, 0, sizeof p), memset(&g, 0, sizeof g);
  p.scale = s->p.scale, p.causal = s->p.causal, p.has_q_off = s->p.has_q_off, p.q_off = s->p.q_off;
  p.kv_len = s->p.kv_len, p.dropout = s->p.dropout;
  float *bias = test_mem((size_t)(B * H * T * Tk + 1) * sizeof *bias);
  const attn_tensor map = test_tensor(ATTN_F32, TEST_BHTD, B, H, T, Tk);
  const attn_tensor d_map = test_tensor(ATTN_F32, TEST_BHTD, B, H, T, Tk);
  for (int64_t n = 0; n < B * H * T * Tk; n++) bias[n] = -INFINITY;
  test_fill_value(d_map, 0);
  for (int64_t n = 0; n < B * H * T; n++) {
    const int64_t b = n / T / H, h = n / T % H, i = n % T, set = set_of(s, b, h);
    const int64_t *row = s->p.indptr + set * (T + 1) + i;
    for (int64_t e = row[0]; e < row[1]; e++) {
      const int64_t j = s->p.col[set * s->p.edges + e];
      bias[n * Tk + j] = s->p.bias ? s->p.bias[set * s->p.edges + e] : 0;
      if (s->g.d_weights)
        oracle_set(&d_map, b, h, i, j, (double)s->g.d_weights[(b * H + h) * s->p.edges + e]);
    }
  }
  p.bias = attn_mask_add(bias, ATTN_F32, B, H, T, Tk);
  p.lse = test_tensor(ATTN_F32, TEST_BHTD, B, H, T, 1), g.d_lse = s->g.d_lse;
  if (s->g.d_weights) g.d_map = d_map;
  g.d_bias = map;
  const attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, B, H, T, s->v.dim);
  const attn_tensor d_q = test_tensor(ATTN_F32, TEST_BHTD, B, H, T, s->q.dim);
  const attn_tensor d_k = test_tensor(ATTN_F32, TEST_BHTD, B, s->k.heads, Tk, s->k.dim);
  const attn_tensor d_v = test_tensor(ATTN_F32, TEST_BHTD, B, s->v.heads, Tk, s->v.dim);
  assert_int_equal(attn_sdpa(o, s->q, s->k, s->v, &p, &ctx), ATTN_OK);
  assert_int_equal(
      attn_sdpa_backward(d_q, d_k, d_v, s->d_o, s->q, s->k, s->v, o, p.lse, &p, &g, &ctx), ATTN_OK);
  near(&d_q, &s->d_q, "d_q"), near(&d_k, &s->d_k, "d_k"), near(&d_v, &s->d_v, "d_v");
  for (int64_t set = 0; s->g.d_bias && set < s->sets_b * s->sets_h; set++)
    for (int64_t i = 0; i < T; i++)
      for (int64_t e = s->p.indptr[set * (T + 1) + i]; e < s->p.indptr[set * (T + 1) + i + 1];
           e++) {
        double want = 0;
        for (int64_t n = 0; n < B * H; n++)
          if (set_of(s, n / H, n % H) == set)
            want += oracle_get(&map, n / H, n % H, i, s->p.col[set * s->p.edges + e]);
        value_check((double)s->g.d_bias[set * s->p.edges + e], want, 1e-5, ATTN_F32, "d_bias", 0,
                    set, i, e);
      }
}

void N3_edges(void **state) {
  (void)state;
  static const int64_t heads[][3] = {{1, 1, 1}, {4, 2, 1}, {6, 3, 2}, {2, 2, 2}};
  test_rng rng = test_seed(9640);
  for (int n = 0; n < test_count(48, 16); n++, test_mem_release()) {
    const int64_t *h = heads[n % 4];
    edges_shape z = {test_range(&rng, 1, 2),
                     h[0],
                     h[1],
                     h[2],
                     test_range(&rng, 1, 70),
                     test_range(&rng, 1, 200),
                     test_range(&rng, 1, 20),
                     test_range(&rng, 1, 20),
                     n % 5 ? 12 : 300,
                     n & 1,
                     n / 2 & 1,
                     n % 3 == 0,
                     n % 4 == 1,
                     n % 4 == 2,
                     n % 6 == 5 ? ATTN_BF16 : ATTN_F32};
    edges_back *s = build(&z, &rng);
    if (n % 3 == 1) s->p.causal = 1;
    if (n % 5 == 2) s->p.has_q_off = 1, s->p.q_off = 20;
    if (n % 4 == 3) s->p.kv_len = test_lengths(z.batch, z.tk, &rng);
    if (n % 7 == 1) s->p.dropout.p = 0.3, s->p.dropout.seed = 9;
    if (n % 7 == 2) s->p.scale = -0.4f;
    forward(s);
    promise_run(&s->does);
    check(s);
    if (n % 3 == 0) promise_keep(&s->does);
  }
}

/* Many rows that all send to a few keys: runs of 512; and a row of very many edges. */
void N3_edges_long(void **state) {
  (void)state;
  test_rng rng = test_seed(9641);
  for (int n = 0; n < 2; n++, test_mem_release()) {
    edges_shape z = {1, 1, 1, 1, n ? 3 : 1300, n ? 3000 : 6, 5, 4, n ? 3000 : 6, 0,
                     0, 1, 0, 0, ATTN_F32};
    edges_back *s = build(&z, &rng);
    for (int64_t i = 0; i < z.tq; i++)
      for (int64_t c = 0; c < 4; c++)
        oracle_set(&s->d_o, 0, 0, i, c, 1 + oracle_get(&s->d_o, 0, 0, i, c));
    forward(s);
    promise_run(&s->does);
    check(s);
  }
}

/* By themselves, added to, summed over what is broadcast; NaN where no edge is. */
void N3_edges_outputs(void **state) {
  (void)state;
  test_rng rng = test_seed(9642);
  for (int n = 0; n < 6; n++, test_mem_release()) {
    edges_shape z = {2, 4, 2, 1, 40, 60, 9, 7, 8, 0, 0, 1, 1, 1, ATTN_F32};
    edges_back *s = build(&z, &rng), *t = test_mem(sizeof *t);
    forward(s);
    promise_run(&s->does);
    *t = *s;
    memset(&t->does, 0, sizeof t->does);
    if (n != 0) t->d_q = absent();
    if (n != 1) t->d_k = absent();
    if (n != 2) t->d_v = absent();
    t->bias = absent(), t->g.d_bias = NULL;
    attn_tensor *const y[] = {&t->d_q, &t->d_k, &t->d_v};
    const attn_tensor *const was[] = {&s->d_q, &s->d_k, &s->d_v};
    for (int i = 0; i < 3; i++)
      if (y[i]->data) {
        *y[i] = output(ATTN_F32, TEST_BTHD, 2, was[i]->heads, was[i]->len, was[i]->dim,
                       &t->does.block[i]);
        t->does.out[i] = y[i];
      }
    if (n == 3) {
      t->bias = output(ATTN_F32, TEST_BHTD, 1, 1, 1, s->bias.dim, &t->does.block[3]);
      t->g.d_bias = t->bias.data, t->does.out[3] = &t->bias;
    }
    int read[60] = {0}; /* keys that no edge has hold anything */
    for (int64_t e = 0; e < s->p.indptr[40]; e++)
      if (s->p.bias[e] > -INFINITY) read[s->p.col[e]] = 1;
    for (int64_t j = 0; n < 3 && j < 60; j++)
      for (int64_t r = 0; !read[j] && r < 2; r++)
        test_fill_row(t->k, r, 0, j, (double)NAN), test_fill_row(t->v, r, 0, j, (double)INFINITY);
    t->does.call = run, t->does.ask = ask, t->does.scene = t;
    promise_run(&t->does);
    for (int i = 0; i < 3; i++)
      if (y[i]->data) test_assert_same(*y[i], *was[i], "by itself");
    if (n == 3) test_assert_same(t->bias, s->bias, "d_bias");
    if (n > 3) continue;
    attn_ctx ctx = test_ctx();
    t->g.accumulate = 1;
    assert_int_equal(run(t, &ctx), ATTN_OK);
    const attn_tensor *got = n < 3 ? y[n] : &t->bias, *once = n < 3 ? was[n] : &s->bias;
    value_check(oracle_get(got, 0, 0, 0, 1), 2 * oracle_get(once, 0, 0, 0, 1), 1e-6, ATTN_F32,
                "twice", 0, 0, 0, 1);
  }
  edges_shape z = {1, 2, 1, 1, 0, 5, 4, 3, 3, 0, 0, 0, 0, 0, ATTN_F32};
  edges_back *s = build(&z, &rng);
  test_fill_value(s->d_k, 7);
  promise_run(&s->does);
  assert_true(oracle_get(&s->d_k, 0, 0, 2, 1) == 0);
  test_mem_release();
}

void N3_edges_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9643);
  for (int n = 0; n < 13; n++, test_mem_release()) {
    edges_shape z = {2, 2, 2, 2, 10, 20, 4, 3, 5, 0, 0, 1, 0, 0, ATTN_F32};
    edges_back *s = build(&z, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    forward(s);
    switch (n) {
      case 0: s->d_q.dim = 3, word = "d_q"; break;
      case 1: s->d_k.len = 19, word = "d_k"; break;
      case 2: s->d_v.heads = 1, word = "d_v"; break;
      case 3: s->d_o.len = 9, word = "d_o"; break;
      case 4: s->p.lse = absent(), want = ATTN_E_NULL, word = "lse"; break;
      case 5: s->p.bias = NULL, want = ATTN_E_NULL, word = "bias"; break;
      case 6: s->g.accumulate = 3, want = ATTN_E_RANGE, word = "accumulate"; break;
      case 7: s->g.d_bias = s->d_q.data, want = ATTN_E_OVERLAP, word = "share"; break;
      case 8: s->d_k.data = s->k.data, want = ATTN_E_OVERLAP, word = "d_k"; break;
      case 9: s->p.indptr = NULL, want = ATTN_E_NULL, word = "indptr"; break;
      case 10: *(int32_t *)(uintptr_t)s->p.col = 20, want = ATTN_E_INDEX, word = "col"; break;
      case 11: s->d_q.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "d_q"; break;
      default: s->o.data = NULL, want = ATTN_E_NULL, word = "o"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
