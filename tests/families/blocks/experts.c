/* tests/families/blocks/experts.c owns the float64 answer of mixtures of experts, and scenes of one. */

#include "experts.h"
#include "stored.h"

enum { MOST = 64 };

static attn_status call(void *at, attn_ctx *ctx) {
  experts *s = at;
  return attn_expert_rows(s->y, s->x, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  experts *s = at;
  return attn_expert_rows_workspace(s->y, s->x, &s->p, ctx);
}

experts_shape experts_plain(int64_t rows, int64_t count, int64_t k) {
  experts_shape x;
  memset(&x, 0, sizeof x);
  x.batch = 1, x.rows = rows, x.din = 24, x.dff = 37, x.dout = 20, x.count = count, x.k = k;
  x.gated = x.biases = 1;
  return x;
}

/* Multiples of 1/512: products with those of 1/64 are summed without rounding. */
static double small(test_rng *rng) { return test_exact(rng) / 8; }

static attn_tensor gate_weight(attn_dtype type, int64_t len, int64_t dim, test_rng *rng) {
  attn_tensor t = test_tensor(type, TEST_PADDED, 1, 1, len, dim);
  test_fill(t, rng, small);
  return t;
}

static attn_feed_forward feed(const experts_shape *x, int64_t heads, test_rng *rng) {
  const int64_t mid = x->dff ? x->dff : x->dout;
  attn_feed_forward ff;
  memset(&ff, 0, sizeof ff);
  ff.w_1 = drawn(x->w_type, TEST_PADDED, 1, heads, x->din, mid, 1 / sqrt((double)x->din), rng);
  if (x->biases) ff.b_1 = drawn(ATTN_F32, TEST_BHTD, 1, heads, 1, mid, 0.5, rng);
  if (x->dff)
    ff.w_2 = drawn(x->w_type, TEST_BHTD, 1, heads, mid, x->dout, 1 / sqrt((double)mid), rng);
  if (x->dff && x->biases) ff.b_2 = drawn(x->w_type, TEST_PADDED, 1, heads, 1, x->dout, 0.5, rng);
  if (!x->gated) return ff;
  ff.w_3 = drawn(x->w_type, TEST_NEGATIVE, 1, heads, x->din, mid, 1 / sqrt((double)x->din), rng);
  if (x->biases) ff.b_3 = drawn(ATTN_BF16, TEST_BHTD, 1, heads, 1, mid, 0.5, rng);
  return ff;
}

experts *experts_build(const experts_shape *x, test_rng *rng) {
  experts *s = test_mem(sizeof *s);
  attn_expert_rows_params *p = &s->p;
  memset(s, 0, sizeof *s);
  s->x = test_tensor(x->x_type, x->layout, x->batch, 1, x->rows, x->din);
  test_fill(s->x, rng, test_exact);
  p->w_gate = gate_weight(x->w_type, x->din, x->count, rng);
  if (x->biases) p->b_gate = gate_weight(ATTN_F32, 1, x->count, rng);
  p->k = x->k, p->experts = feed(x, x->count, rng);
  if (x->shared) p->shared = feed(x, 1, rng);
  if (x->shared > 1) p->w_shared = gate_weight(x->w_type, x->din, 1, rng);
  s->y = output(x->y_type, x->layout, x->batch, 1, x->rows, x->dout, &s->does.block[0]);
  const size_t list = (size_t)(x->batch * x->rows * x->k) * sizeof(int32_t);
  p->expert = test_mem(list);
  s->does.block[1].data = (unsigned char *)p->expert, s->does.block[1].size = list;
  p->weight = output(ATTN_F32, TEST_PADDED, x->batch, 1, x->rows, x->k, &s->does.block[2]);
  p->logits = output(ATTN_F32, TEST_NEGATIVE, x->batch, 1, x->rows, x->count, &s->does.block[3]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->y, s->does.out[2] = &p->weight, s->does.out[3] = &p->logits;
  return s;
}

static attn_tensor turned(attn_tensor w) {
  if (!w.data) return w;
  attn_tensor t = test_tensor(w.dtype, TEST_PADDED, 1, w.heads, w.dim, w.len);
  for (int64_t h = 0; h < w.heads; h++)
    for (int64_t i = 0; i < w.len; i++)
      for (int64_t c = 0; c < w.dim; c++) oracle_set(&t, 0, h, c, i, oracle_get(&w, 0, h, i, c));
  return t;
}

void experts_turn(experts *s) {
  attn_expert_rows_params *p = &s->p;
  attn_feed_forward *const ff[] = {&p->experts, &p->shared};
  p->w_gate = turned(p->w_gate), p->w_shared = turned(p->w_shared), p->w_transposed = 1;
  for (int i = 0; i < 2; i++) {
    ff[i]->w_1 = turned(ff[i]->w_1), ff[i]->w_2 = turned(ff[i]->w_2);
    ff[i]->w_3 = turned(ff[i]->w_3), ff[i]->w_transposed = 1;
  }
}

/* Random codes for a matrix; *w becomes them, and what they stand for is returned. */
static attn_tensor codes(attn_tensor *w, attn_scales *s, int swapped, attn_dtype type,
                         int64_t group, int zero, test_rng *rng) {
  const int64_t heads = w->heads, in = swapped ? w->dim : w->len;
  const int64_t groups = group ? (in + group - 1) / group : 1;
  stored t = stored_tensor(type, TEST_PADDED, 1, heads, w->len, w->dim, swapped ? group : -1, zero);
  if (!swapped) { /* the numbers lie as those of [groups][out], one for each */
    const stored numbers =
        stored_tensor(ATTN_I8, TEST_PADDED, 1, heads, groups, w->dim * 32, 32, zero);
    t.s = numbers.s, t.scale = numbers.scale, t.zero = numbers.zero, t.s.group = group;
  }
  const double unit = 1 / (sqrt((double)in) * (type == ATTN_I4 ? 5 : 70));
  for (size_t i = 0; i < t.code.size; i++) t.code.data[i] = (unsigned char)test_u64(rng);
  for (size_t i = 0; i < t.scale.size / sizeof(float); i++) {
    ((float *)(void *)t.scale.data)[i] = (float)(unit * (1 + 0.2 * test_normal(rng)));
    if (zero) ((float *)(void *)t.zero.data)[i] = (float)test_range(rng, -20, 20) / 4;
  }
  attn_tensor wide = test_tensor(ATTN_F32, TEST_BHTD, 1, heads, w->len, w->dim);
  for (int64_t h = 0; h < heads; h++)
    for (int64_t i = 0; i < w->len; i++)
      for (int64_t c = 0; c < w->dim; c++) {
        const int64_t k = swapped ? c : i, g = group ? k / group : 0;
        const int64_t at =
            h * t.s.stride_head + (swapped ? i * t.s.stride_len + g : g * t.s.stride_len + c);
        const double q = stored_number(type, stored_code(type, stored_row(&t.x, 0, h, i), c));
        oracle_set(&wide, 0, h, i, c,
                   (q - (t.s.zero ? (double)t.s.zero[at] : 0)) * (double)t.s.scale[at]);
      }
  *w = t.x, *s = t.s;
  return wide;
}

void experts_code(experts *s, attn_dtype type, int64_t group, int zero, test_rng *rng) {
  attn_feed_forward *ff = &s->p.experts;
  attn_tensor *const w[] = {&ff->w_1, &ff->w_2, &ff->w_3};
  attn_scales *const scales[] = {&s->p.experts.w_1_scales, &s->p.experts.w_2_scales, &s->p.experts.w_3_scales};
  s->wide = *ff;
  attn_tensor *const wide[] = {&s->wide.w_1, &s->wide.w_2, &s->wide.w_3};
  for (int i = 0; i < 3; i++)
    if (w[i]->data) *wide[i] = codes(w[i], scales[i], ff->w_transposed, type, group, zero, rng);
}

/* ---- the oracle -----------------------------------------------------------------------------*/

static double get(const attn_tensor *w, int swapped, int64_t h, int64_t in, int64_t out) {
  return swapped ? oracle_get(w, 0, h, out, in) : oracle_get(w, 0, h, in, out);
}

/* Whether a comes before b: larger, or as large and earlier; NaN comes last. */
static int before(const double *c, int64_t a, int64_t b) {
  const double x = isnan(c[a]) ? -HUGE_VAL : c[a], y = isnan(c[b]) ? -HUGE_VAL : c[b];
  if (isnan(c[a]) != isnan(c[b])) return !isnan(c[a]);
  return x > y || (x == y && a < b);
}

/* The k best of those that may be, the best first. */
static void best(int64_t *to, const double *c, const int *may, int64_t n, int64_t k) {
  int taken[MOST] = {0};
  for (int64_t i = 0; i < k; i++) {
    int64_t at = -1;
    for (int64_t e = 0; e < n; e++)
      if (!taken[e] && (!may || may[e]) && (at < 0 || before(c, e, at))) at = e;
    assert_true(at >= 0);
    to[i] = at, taken[at] = 1;
  }
}

static void choose(const attn_expert_rows_params *p, const double *l, int64_t n, int64_t *to,
                   double *g) {
  double s[MOST], c[MOST], top = -HUGE_VAL, sum = 0;
  int may[MOST];
  for (int64_t e = 0; e < n; e++) top = fmax(top, l[e]);
  for (int64_t e = 0; e < n; e++) sum += s[e] = exp(l[e] - top);
  for (int64_t e = 0; e < n; e++) {
    s[e] = p->score == ATTN_EXPERTS_SIGMOID ? 1 / (1 + exp(-l[e])) : s[e] / sum;
    c[e] = s[e] + (p->choice_bias.data ? oracle_get(&p->choice_bias, 0, 0, 0, e) : 0);
    may[e] = 1;
  }
  if (p->groups > 1) {
    const int64_t size = n / p->groups;
    int64_t group[MOST];
    double of[MOST];
    for (int64_t a = 0; a < p->groups; a++) {
      int64_t two[2] = {0, 0};
      best(two, c + a * size, NULL, size, size > 1 ? 2 : 1);
      of[a] = c[a * size + two[0]];
      if (p->group_by == ATTN_EXPERTS_GROUP_SUM) of[a] += c[a * size + two[1]];
    }
    best(group, of, NULL, p->groups, p->group_k ? p->group_k : p->groups);
    for (int64_t e = 0; e < n; e++) may[e] = 0;
    for (int64_t a = 0; a < (p->group_k ? p->group_k : p->groups); a++)
      for (int64_t e = 0; e < size; e++) may[group[a] * size + e] = 1;
  }
  best(to, c, may, n, p->k);
  sum = 0;
  for (int64_t i = 0; i < p->k; i++) sum += s[to[i]];
  for (int64_t i = 0; i < p->k; i++) {
    g[i] = s[to[i]] / (p->no_renormalize ? 1 : sum);
    g[i] *= p->scale != 0 ? (double)p->scale : signbit(p->scale) ? 0 : 1;
  }
}

/* One row of a feed-forward, by the matrices of a head. */
static void feed_row(double *y, const attn_feed_forward *ff, int64_t h, const double *x,
                     int64_t din, int64_t dout) {
  const int64_t dff = ff->w_transposed ? ff->w_1.len : ff->w_1.dim;
  cube in = cube_of(1, 1, 1, din);
  attn_feed_forward one = *ff;
  attn_tensor *const w[] = {&one.w_1, &one.w_2, &one.w_3};
  memcpy(in.data, x, (size_t)din * sizeof *x);
  for (int i = 0; i < 3; i++) {
    const attn_tensor from = *w[i];
    if (!from.data) continue;
    const int64_t rows = i == 1 ? dff : din, cols = i == 1 ? dout : dff;
    *w[i] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, rows, cols);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t c = 0; c < cols; c++)
        oracle_set(w[i], 0, 0, r, c, get(&from, ff->w_transposed, h, r, c));
  }
  if (one.b_1.data) one.b_1 = test_one(one.b_1, 0, 1, h, 1);
  if (one.b_2.data) one.b_2 = test_one(one.b_2, 0, 1, h, 1);
  if (one.b_3.data) one.b_3 = test_one(one.b_3, 0, 1, h, 1);
  const cube out = rows_feed(&in, &one);
  memcpy(y, out.data, (size_t)dout * sizeof *y);
}

static void near(double got, double want, double tolerance, const char *what, int64_t row) {
  if (isnan(want) ? !isnan(got) : !(fabs(got - want) <= tolerance))
    fail_msg("row %d: %s is %.9g, not %.9g", (int)row, what, got, want);
}

void experts_check(experts *s, double tolerance, const char *what) {
  const attn_expert_rows_params *p = &s->p;
  const int64_t din = s->x.dim, dout = s->y.dim, rows = s->x.len;
  const int64_t n = p->w_transposed ? p->w_gate.len : p->w_gate.dim;
  const cube x = cube_from(&s->x);
  cube want = cube_of(s->y.batch, 1, rows, dout);
  double *of = test_mem((size_t)dout * sizeof *of), *in = test_mem((size_t)din * sizeof *in);
  attn_ctx ctx = test_ctx();
  const attn_status status = attn_expert_rows(s->y, s->x, &s->p, &ctx);
  if (status != ATTN_OK) fail_msg("%s: %s", what, ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
  assert_int_equal(ctx.report.pairs, s->y.batch * rows * p->k);
  for (int64_t r = 0; r < s->y.batch * rows; r++) {
    const int64_t b = r / rows, i = r % rows;
    const double *row = cube_at(&x, b, 0, i);
    double l[MOST], g[MOST], *y = cube_at(&want, b, 0, i), gate = 0;
    int64_t to[MOST];
    for (int64_t e = 0; e < n; e++) {
      l[e] = p->b_gate.data ? oracle_get(&p->b_gate, 0, 0, 0, e) : 0;
      for (int64_t c = 0; c < din; c++) l[e] += row[c] * get(&p->w_gate, p->w_transposed, 0, c, e);
      if (p->logits.data) near(oracle_get(&p->logits, b, 0, i, e), l[e], 0, "a logit", r);
    }
    choose(p, l, n, to, g);
    for (int64_t c = 0; c < dout; c++) y[c] = 0;
    for (int64_t e = 0; e < p->k; e++) {
      if (p->expert) near(p->expert[r * p->k + e], (double)to[e], 0, "an expert", r);
      if (p->weight.data)
        near(oracle_get(&p->weight, b, 0, i, e), g[e], 1e-6 * (1 + fabs(g[e])), "a weight", r);
      for (int64_t c = 0; c < din; c++) in[c] = row[c] * (p->weigh_input ? g[e] : 1);
      feed_row(of, s->wide.w_1.data ? &s->wide : &p->experts, to[e], in, din, dout);
      for (int64_t c = 0; c < dout; c++) y[c] += of[c] * (p->weigh_input ? 1 : g[e]);
    }
    if (!p->shared.w_1.data) continue;
    for (int64_t c = 0; c < din && p->w_shared.data; c++)
      gate += row[c] * get(&p->w_shared, p->w_transposed, 0, c, 0);
    feed_row(of, &p->shared, 0, row, din, dout);
    for (int64_t c = 0; c < dout; c++)
      y[c] += of[c] * (p->w_shared.data ? 1 / (1 + exp(-gate)) : 1);
  }
  cube_check(&want, &s->y, tolerance, what);
}
