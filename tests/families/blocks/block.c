/* tests/families/blocks/block.c owns the float64 answer of a block, sublayer by sublayer, and scenes of one. */

#include "block.h"

static attn_status call(void *at, attn_ctx *ctx) {
  block *s = at;
  attn_decoder_cache cache = s->cache;
  if (s->kind == BLOCK_ENCODER) return attn_encoder(s->y, s->x, &s->p, ctx);
  if (s->kind == BLOCK_DECODER) return attn_decoder(s->y, s->x, s->e, &s->p, ctx);
  return attn_decoder_step(s->y, s->x, &cache, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  block *s = at;
  if (s->kind == BLOCK_ENCODER) return attn_encoder_workspace(s->y, s->x, &s->p, ctx);
  if (s->kind == BLOCK_DECODER) return attn_decoder_workspace(s->y, s->x, s->e, &s->p, ctx);
  return attn_decoder_step_workspace(s->y, s->x, &s->cache, &s->p, ctx);
}

block_shape block_plain(block_kind kind, int64_t batch, int64_t rows) {
  block_shape x;
  memset(&x, 0, sizeof x);
  x.kind = kind, x.batch = batch, x.rows = rows, x.dm = 12, x.heads = 4, x.kv_heads = 2;
  x.dk = 5, x.dv = 3, x.dff = 20, x.e_rows = kind == BLOCK_ENCODER ? -1 : 7, x.de = 9;
  x.biases = 1;
  return x;
}

static attn_multihead_params attention(const block_shape *x, int64_t de, test_rng *rng) {
  attn_multihead_params p;
  const int64_t h = x->heads, kv = x->kv_heads;
  const double size = 1.2 / sqrt((double)x->dm);
  memset(&p, 0, sizeof p);
  p.heads = h, p.kv_heads = kv == h ? 0 : kv;
  p.w_q = drawn(x->w_type, TEST_PADDED, 1, 1, x->dm, h * x->dk, size, rng);
  p.w_k = drawn(ATTN_F32, TEST_NEGATIVE, 1, 1, de, kv * x->dk, size, rng);
  p.w_v = drawn(x->w_type, TEST_BHTD, 1, 1, de, kv * x->dv, size, rng);
  p.w_o = drawn(ATTN_F32, TEST_PADDED, 1, 1, h * x->dv, x->dm, size, rng);
  if (x->bias_kv) {
    p.bias_k = drawn(x->w_type, TEST_BHTD, 1, 1, 1, kv * x->dk, 0.9, rng);
    p.bias_v = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, kv * x->dv, 0.9, rng);
  }
  if (!x->biases) return p;
  p.b_q = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, h * x->dk, 0.5, rng);
  p.b_k = drawn(x->w_type, TEST_BHTD, 1, 1, 1, kv * x->dk, 0.5, rng);
  p.b_v = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, kv * x->dv, 0.5, rng);
  p.b_o = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, x->dm, 0.5, rng);
  return p;
}

attn_decoder_cache block_cache(const block *s, int64_t room, attn_dtype type, test_layout layout) {
  const attn_multihead_params *self = &s->p.self, *cross = &s->p.cross;
  attn_decoder_cache c;
  memset(&c, 0, sizeof c);
  for (int n = 0; n < 4; n++) {
    const attn_multihead_params *p = n < 2 ? self : cross;
    const attn_tensor *w = n % 2 ? &p->w_v : &p->w_k;
    attn_tensor *to = n == 0 ? &c.k : n == 1 ? &c.v : n == 2 ? &c.e_k : &c.e_v;
    const int64_t kv = p->kv_heads ? p->kv_heads : p->heads;
    if (n >= 2 && !s->e.data) break;
    *to = test_tensor(type, layout, s->x.batch, kv, n < 2 ? room : s->e.len, w->dim / kv);
    test_fill_value(*to, (double)NAN);
  }
  return c;
}

attn_sublayer block_sublayer(int64_t n, int cross) {
  static const attn_sublayer kinds[] = {ATTN_SUBLAYER_POST, ATTN_SUBLAYER_PRE,
                                        ATTN_SUBLAYER_SANDWICH, ATTN_SUBLAYER_PARALLEL};
  return kinds[n % (cross ? 3 : 4)];
}

block *block_build(const block_shape *x, test_rng *rng) {
  block *s = test_mem(sizeof *s);
  attn_block_params *p = &s->p;
  memset(s, 0, sizeof *s);
  s->kind = x->kind;
  s->x = drawn(x->x_type, TEST_PADDED, x->batch, 1, x->rows, x->dm, 1, rng);
  p->self = attention(x, x->dm, rng);
  if (x->e_rows >= 0) {
    s->e = drawn(x->x_type, TEST_NEGATIVE, x->batch, 1, x->e_rows, x->de, 1, rng);
    p->cross = attention(x, x->de, rng);
    p->norm_cross = drawn_norm(x->dm, rng);
  }
  p->ff = drawn_feed(x->dm, x->dff, x->dm, x->biases, x->w_type, rng);
  p->ff.activation = x->act;
  p->sublayer = x->sublayer;
  p->norm_self = drawn_norm(x->dm, rng), p->norm_ff = drawn_norm(x->dm, rng);
  p->after_self = drawn_norm(x->dm, rng), p->after_ff = drawn_norm(x->dm, rng);
  p->after_cross = drawn_norm(x->dm, rng);
  s->y = output(x->y_type, x->batch > 1 ? TEST_PADDED : TEST_NEGATIVE, x->batch, 1, x->rows, x->dm,
                &s->does.block[0]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.out[0] = &s->y;
  return s;
}

/* ---- the oracle -----------------------------------------------------------------------------*/

/* MHA of rows x over rows e, which exist up to len[b], and over bias_k and bias_v. */
static cube attend(const cube *x, const cube *e, const attn_multihead_params *p, int causal,
                   const int32_t *len) {
  const int64_t h = p->heads ? p->heads : 1, kv = p->kv_heads ? p->kv_heads : h;
  const int64_t dk = p->w_q.dim / h, dv = p->w_v.dim / kv;
  const cube q = rows_dense(x, &p->w_q, &p->b_q), k = rows_dense(e, &p->w_k, &p->b_k);
  const cube v = rows_dense(e, &p->w_v, &p->b_v);
  cube a = cube_of(x->batch, 1, x->len, h * dv);
  double *w = test_mem((size_t)(e->len + 2) * sizeof *w);
  const int more = p->bias_k.data != NULL;
  for (int64_t r = 0; r < x->batch * x->len * h; r++) {
    const int64_t b = r / h / x->len, i = r / h % x->len, n = r % h, g = n * kv / h;
    int64_t keys = len ? len[b] : e->len;
    if (causal && keys > i + 1) keys = i + 1;
    double top = -(double)INFINITY, sum = 0;
    for (int64_t j = 0; j < keys + more; j++) {
      w[j] = 0;
      for (int64_t c = g * dk; c < (g + 1) * dk; c++)
        w[j] += cube_at(&q, b, 0, i)[n * dk + c - g * dk] *
                (j < keys ? cube_at(&k, b, 0, j)[c] : oracle_get(&p->bias_k, 0, 0, 0, c));
      w[j] /= sqrt((double)dk), top = fmax(top, w[j]);
    }
    for (int64_t j = 0; j < keys + more; j++) sum += w[j] = exp(w[j] - top);
    for (int64_t c = 0; c < dv; c++) {
      double o = 0;
      for (int64_t j = 0; j < keys; j++) o += w[j] / sum * cube_at(&v, b, 0, j)[g * dv + c];
      if (more) o += w[keys] / sum * oracle_get(&p->bias_v, 0, 0, 0, g * dv + c);
      cube_at(&a, b, 0, i)[n * dv + c] = o;
    }
  }
  return rows_dense(&a, &p->w_o, &p->b_o);
}

/* Rows from len[b] on are 0. */
static cube without(cube x, const int32_t *len) {
  for (int64_t b = 0; len && b < x.batch; b++)
    for (int64_t i = len[b]; i < x.len; i++)
      for (int64_t c = 0; c < x.dim; c++) cube_at(&x, b, 0, i)[c] = 0;
  return x;
}

cube block_answer(const block *s) {
  const attn_block_params *p = &s->p;
  const int pre = p->sublayer != ATTN_SUBLAYER_POST, causal = s->kind != BLOCK_ENCODER;
  const int sandwich = p->sublayer == ATTN_SUBLAYER_SANDWICH;
  cube x = cube_from(&s->x), n = pre ? rows_norm(&x, NULL, &p->norm_self) : x;
  cube t = attend(&n, &n, &p->self, causal || p->self.attention.causal, p->x_len);
  if (p->sublayer == ATTN_SUBLAYER_PARALLEL) {
    n = rows_norm(&x, NULL, &p->norm_ff);
    const cube f = rows_feed(&n, &p->ff);
    t = rows_norm(&t, &f, NULL);
    x = rows_norm(&x, &t, NULL);
    return without(x, p->x_len);
  }
  if (sandwich) t = rows_norm(&t, NULL, &p->after_self);
  x = rows_norm(&x, &t, pre ? NULL : &p->norm_self);
  if (s->e.data) {
    const cube e = cube_from(&s->e);
    n = pre ? rows_norm(&x, NULL, &p->norm_cross) : x;
    t = attend(&n, &e, &p->cross, 0, p->e_len);
    if (sandwich) t = rows_norm(&t, NULL, &p->after_cross);
    x = rows_norm(&x, &t, pre ? NULL : &p->norm_cross);
  }
  n = pre ? rows_norm(&x, NULL, &p->norm_ff) : x;
  t = rows_feed(&n, &p->ff);
  if (sandwich) t = rows_norm(&t, NULL, &p->after_ff);
  x = rows_norm(&x, &t, pre ? NULL : &p->norm_ff);
  return without(x, p->x_len);
}

void block_check(block *s, double tolerance, const char *what) {
  promise_run(&s->does);
  block_near(s, s->y, tolerance, what);
}

void block_near(const block *s, attn_tensor y, double tolerance, const char *what) {
  const cube want = block_answer(s);
  cube_check(&want, &y, tolerance, what);
}

void block_code(block *s, block *wide, attn_dtype type, int64_t group, int turned, int zero,
                test_rng *rng) {
  attn_block_params *p = &s->p, *to = &wide->p;
  attn_multihead_params *const m[] = {&p->self, &p->cross}, *const n[] = {&to->self, &to->cross};
  attn_feed_forward *ff = &p->ff;
  *wide = *s;
  p->ff.w_transposed = p->self.w_transposed = p->cross.w_transposed = turned;
  for (int i = 0; i < 11; i++) {
    attn_multihead_params *a = m[i / 4 % 2], *b = n[i / 4 % 2];
    attn_tensor *const w[] = {&a->w_q, &a->w_k, &a->w_v, &a->w_o, &ff->w_1, &ff->w_2, &ff->w_3};
    attn_tensor *const x[] = {&b->w_q,     &b->w_k,     &b->w_v,    &b->w_o,
                              &to->ff.w_1, &to->ff.w_2, &to->ff.w_3};
    attn_scales *const scales[] = {&a->w_q_scales,  &a->w_k_scales,  &a->w_v_scales, &a->w_o_scales,
                                   &ff->w_1_scales, &ff->w_2_scales, &ff->w_3_scales};
    const int at = i < 8 ? i % 4 : i - 4;
    if (!w[at]->data) continue;
    if (turned) *w[at] = turned_weight(*w[at]);
    *x[at] = coded_weight(w[at], scales[at], turned, type, group, zero, rng);
    if (turned) *x[at] = turned_weight(*x[at]);
  }
}

void block_decode(const block *s, attn_decoder_cache *cache, attn_tensor y, int64_t first) {
  attn_ctx ctx = test_ctx();
  attn_status status = attn_decoder_start(cache, s->e, &s->p, &ctx);
  if (status != ATTN_OK) fail_msg("start: %s", ctx.reason);
  for (int64_t i = 0, n; i < s->x.len; i += n) {
    n = i == 0 ? first : 1;
    status = attn_decoder_step(test_rows(y, i, n), test_rows(s->x, i, n), cache, &s->p, &ctx);
    if (status != ATTN_OK) fail_msg("step at %d: %s", (int)i, ctx.reason);
    assert_int_equal(ctx.report.isa, test_isa);
    assert_int_equal(cache->len, i + n);
  }
}
