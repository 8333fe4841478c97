/* tests/families/maps/synthesizer.c owns the calls and the oracle of synthesizer attention. */

#include "synthesizer.h"

attn_status synth_call(void *at, attn_ctx *ctx) {
  synth_scene *s = at;
  return attn_synthesizer(s->o, s->v, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  synth_scene *s = at;
  return attn_synthesizer_workspace(s->o, s->v, &s->p, ctx);
}

synth_shape synth_plain(int64_t queries, int64_t keys) {
  synth_shape x = {1, 2, 2, queries, keys, 5, keys - queries, ATTN_F32, ATTN_F32, ATTN_F32, 3, 0};
  return x;
}

attn_synthesizer_net synth_net(const synth_shape *x, int64_t din, int64_t n, test_rng *rng) {
  attn_synthesizer_net net;
  memset(&net, 0, sizeof net);
  const int64_t h = x->heads, one = x->vary % 4 == 3 ? 1 : h, e = test_range(rng, 1, 11);
  const double size = 1 / sqrt((double)e);
  net.w_1 = x->vary / 2 % 2
                ? drawn(x->type, TEST_NEGATIVE, 1, one, e, din, 1 / sqrt((double)din), rng)
                : drawn(x->type, TEST_PADDED, 1, one, din, e, 1 / sqrt((double)din), rng);
  if (x->vary % 3) net.b_1 = drawn(ATTN_F32, TEST_BHTD, 1, h, 1, e, 0.5, rng);
  net.w_transposed = x->vary / 2 % 2;
  net.w_2 = net.w_transposed ? drawn(x->type, TEST_NEGATIVE, 1, h, n, e, size, rng)
                             : drawn(x->type, TEST_PADDED, 1, one, e, n, size, rng);
  if (x->vary % 5 != 1) net.b_2 = drawn(x->type, TEST_BHTD, 1, h, 1, n, 0.7, rng);
  return net;
}

static attn_synthesizer_source source_of(const synth_shape *x, attn_synthesizer_kind kind,
                                         test_rng *rng) {
  attn_synthesizer_source c;
  memset(&c, 0, sizeof c);
  c.kind = kind;
  const int64_t h = x->heads, n = x->keys + test_range(rng, x->keys == 0, 3),
                some = x->vary % 6 == 4 ? 1 : h;
  const int64_t rows = x->off + x->queries + test_range(rng, 0, 2);
  const int64_t k = test_range(rng, 1, 9), din = test_range(rng, 1, 9);
  if (kind == ATTN_SYNTHESIZER_RANDOM) {
    c.r = drawn(x->type, TEST_PADDED, 1, some, rows, n, 1.5, rng);
  } else if (kind == ATTN_SYNTHESIZER_RANDOM_FACTORED) {
    c.r1 = drawn(x->type, TEST_NEGATIVE, 1, some, rows, k, 0.7, rng);
    c.r2 = drawn(ATTN_F32, TEST_BTHD, 1, h, n, k, 0.7, rng);
  } else if (kind == ATTN_SYNTHESIZER_DOT) {
    c.q = drawn(x->type, TEST_BTHD, x->batch, h, x->queries, k, 1, rng);
    c.k = drawn(x->v_type, TEST_PADDED, x->batch, x->v_heads, x->keys, k, 1, rng);
    c.scale = x->vary % 3 == 1 ? 0.3f : x->vary % 7 == 3 ? ATTN_ZERO : 0;
  } else {
    c.x = drawn(x->type, TEST_PADDED, x->batch, some, x->queries, din, 1, rng);
    c.net = synth_net(x, din, n, rng);
    if (kind == ATTN_SYNTHESIZER_DENSE_FACTORED) {
      const int64_t a = x->vary % 9 == 2 ? 1 : test_range(rng, 1, x->keys + 1);
      c.net = synth_net(x, din, a, rng);
      c.net_b = synth_net(x, din, (x->keys + a - 1) / a + test_range(rng, x->keys == 0, 2), rng);
      c.tiling = (attn_synthesizer_tiling)(x->vary / 3 % 2);
    }
  }
  return c;
}

synth_scene *synth_build(const synth_shape *x, int count, const attn_synthesizer_kind *kinds,
                         test_rng *rng) {
  synth_scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t b = x->batch, h = x->heads;
  s->v = drawn(x->v_type, TEST_PADDED, b, x->v_heads, x->keys, x->dv, 1, rng);
  for (int i = 0; i < count; i++) s->source[i] = source_of(x, kinds[i], rng);
  s->p.sources = s->source, s->p.count = count;
  if (count > 1) {
    for (int i = 0; i < count; i++) s->weight[i] = (float)test_normal(rng);
    s->p.logits = s->weight, s->p.weights = count;
  }
  s->p.q_off = x->off == x->keys - x->queries ? 0 : x->off;
  s->p.has_q_off = x->off != x->keys - x->queries;
  s->o = output(x->o_type, TEST_NEGATIVE, b, h, x->queries, x->dv, &s->does.block[0]);
  if (x->outputs & 1)
    s->p.lse = output(ATTN_F32, TEST_PADDED, b, h, x->queries, 1, &s->does.block[1]);
  if (x->outputs & 2)
    s->p.map =
        output(ATTN_F32, TEST_BHTD, b, h, x->queries, x->keys ? x->keys : 1, &s->does.block[2]);
  s->does.call = synth_call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o, s->does.out[1] = &s->p.lse;
  if (x->keys) s->does.out[2] = &s->p.map;
  return s;
}

synth_scene *synth_one(const synth_shape *x, attn_synthesizer_kind kind, test_rng *rng) {
  return synth_build(x, 1, &kind, rng);
}

/* ---- the oracle -----------------------------------------------------------------------------*/

double synth_get(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t c) {
  return oracle_get(t, t->batch > 1 ? b : 0, t->heads > 1 ? h : 0, i, c);
}

/* F(x_i), n numbers. */
static double *network(const attn_synthesizer_net *net, const attn_tensor *x, int64_t b, int64_t h,
                       int64_t i, int64_t n) {
  const int turned = net->w_transposed;
  const int64_t e = turned ? net->w_1.len : net->w_1.dim;
  double *hidden = test_mem((size_t)e * sizeof *hidden), *y = test_mem((size_t)n * sizeof *y);
  for (int64_t d = 0; d < e; d++) {
    double sum = net->b_1.data ? synth_get(&net->b_1, b, h, 0, d) : 0;
    for (int64_t c = 0; c < x->dim; c++)
      sum += synth_get(x, b, h, i, c) *
             (turned ? synth_get(&net->w_1, b, h, d, c) : synth_get(&net->w_1, b, h, c, d));
    hidden[d] = sum > 0 ? sum : 0;
  }
  for (int64_t j = 0; j < n; j++) {
    y[j] = net->b_2.data ? synth_get(&net->b_2, b, h, 0, j) : 0;
    for (int64_t d = 0; d < e; d++)
      y[j] += hidden[d] *
              (turned ? synth_get(&net->w_2, b, h, j, d) : synth_get(&net->w_2, b, h, d, j));
  }
  return y;
}

/* The scores of one row of one source. */
static double *scores(const synth_scene *s, const attn_synthesizer_source *c, int64_t b, int64_t h,
                      int64_t i) {
  const int64_t tk = s->v.len, p = i + (s->p.has_q_off ? s->p.q_off : tk - s->o.len);
  double *x = test_mem((size_t)(tk + 1) * sizeof *x), *u, *v;
  const attn_synthesizer_net *fa = &c->net, *fb = &c->net_b;
  if (c->kind == ATTN_SYNTHESIZER_DENSE) return network(fa, &c->x, b, h, i, tk);
  const int64_t na = fa->w_transposed ? fa->w_2.len : fa->w_2.dim;
  const int64_t nb = fb->w_transposed ? fb->w_2.len : fb->w_2.dim;
  const int factored = c->kind == ATTN_SYNTHESIZER_DENSE_FACTORED;
  u = factored ? network(fa, &c->x, b, h, i, na) : NULL;
  v = factored ? network(fb, &c->x, b, h, i, nb) : NULL;
  for (int64_t j = 0; j < tk; j++) {
    x[j] = 0;
    if (c->kind == ATTN_SYNTHESIZER_RANDOM) x[j] = synth_get(&c->r, b, h, p, j);
    for (int64_t d = 0; c->kind == ATTN_SYNTHESIZER_RANDOM_FACTORED && d < c->r1.dim; d++)
      x[j] += synth_get(&c->r1, b, h, p, d) * synth_get(&c->r2, b, h, j, d);
    if (c->kind == ATTN_SYNTHESIZER_DOT)
      x[j] = scale_of(c->scale, c->q.dim) * dot_rows(&c->q, &c->k, b, h, i, j);
    if (factored) x[j] = u[j % na] * v[c->tiling == ATTN_SYNTHESIZER_OUTER ? j / na : j % nb];
  }
  return x;
}

static void weights_of(const synth_scene *s, double *w) {
  double sum = 0;
  for (int64_t n = 0; n < s->p.count; n++) {
    w[n] = s->p.alpha ? (double)s->p.alpha[n] : s->p.logits ? exp((double)s->p.logits[n]) : 1;
    sum += w[n];
  }
  for (int64_t n = 0; s->p.logits && n < s->p.count; n++) w[n] /= sum;
}

static void check(const synth_scene *s, const char *what) {
  const int64_t tk = s->v.len, tq = s->o.len, heads = s->o.heads;
  attn_sdpa_params see;
  memset(&see, 0, sizeof see);
  see.causal = s->p.causal, see.has_q_off = s->p.has_q_off, see.q_off = s->p.q_off;
  see.window = s->p.window;
  see.kv_len = s->p.kv_len, see.q_len = s->p.q_len, see.mask = s->p.mask, see.bias = s->p.bias;
  bag all = bag_of(tk, s->v.dim);
  double w[ATTN_SYNTHESIZER_MOST];
  weights_of(s, w);
  for (int64_t n = 0; n < s->o.batch * heads * tq; n++) {
    const int64_t b = n / tq / heads, h = n / tq % heads, i = n % tq;
    double *x = test_mem((size_t)(tk + 1) * sizeof *x);
    for (int64_t j = 0; j < tk; j++)
      x[j] = s->p.bias.kind ? oracle_mask(&s->p.bias, b, h, i, j) : 0;
    for (int64_t c = 0; tk && c < s->p.count; c++) {
      if (w[c] == 0) continue;
      const double *y = scores(s, &s->source[c], b, h, i);
      for (int64_t j = 0; j < tk; j++) x[j] += w[c] * y[j];
    }
    bag_empty(&all);
    for (int64_t j = 0; j < tk; j++)
      if (oracle_allowed(&s->o, &s->v, &see, b, h, i, j))
        bag_add(&all, x[j], &s->v, b, head_of(&s->v, h, heads), j);
    bag_close(&all);
    bag_check(&all, &s->o, &s->p.lse, b, h, i, 2e-5, what);
    for (int64_t j = 0; s->p.map.data && j < tk; j++) {
      const int seen = oracle_allowed(&s->o, &s->v, &see, b, h, i, j);
      value_check(oracle_get(&s->p.map, b, h, i, j), seen ? exp(x[j] - all.lse) : 0, 2e-5, ATTN_F32,
                  "map", b, h, i, j);
    }
  }
}

void synth_run(synth_scene *s, const char *what) {
  promise_run(&s->does);
  check(s, what);
}
