/* tests/families/training/test_relu_backward.c owns N3, the gradients of rectified attention. In float64 they are made
 * pair by pair from their formulas, and those against differences of a loss. */

#include "backward.h"
#include "terms.h"

typedef struct relu_back {
  backward *s; /* its call, outputs and gradients of terms */
  attn_relu_params p;
  attn_relu_gradients g;
  attn_tensor learned[2]; /* around d_gain and d_gate */
  promise does;
} relu_back;

static attn_status run(void *at, attn_ctx *ctx) {
  relu_back *r = at;
  const backward *s = r->s;
  return attn_relu_backward(s->d_q, s->d_k, s->d_v, s->d_o, s->call.q, s->call.k, s->call.v, &r->p,
                            &r->g, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  relu_back *r = at;
  const backward *s = r->s;
  return attn_relu_backward_workspace(s->d_q, s->d_k, s->d_v, s->d_o, s->call.q, s->call.k,
                                      s->call.v, &r->p, &r->g, ctx);
}

/* What of attn_sdpa's call rectified attention takes. */
static void take(relu_back *r) {
  attn_sdpa_params *p = &r->s->call.params;
  memset(&p->lse, 0, sizeof p->lse), memset(&p->dropout, 0, sizeof p->dropout);
  p->sinks = NULL, p->softmax_one = 0;
  r->s->g.d_lse = absent(), r->s->g.d_sinks = NULL;
  r->p.attention = *p, r->g.attention = r->s->g;
}

static void learned(relu_back *r, test_rng *rng) {
  const int64_t n = r->s->call.q.heads * r->s->call.v.dim;
  if (r->p.kind != ATTN_RELU_RELA) return;
  r->p.gain = test_floats(n, 1, rng), r->p.gate = test_floats(n, 1, rng);
  for (int i = 0; i < 2; i++) r->learned[i] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, n);
  r->g.d_gain = r->learned[0].data, r->g.d_gate = r->learned[1].data;
}

static relu_back *build(const test_spec *spec, attn_relu_kind kind, attn_dtype type,
                        test_rng *rng) {
  relu_back *r = test_mem(sizeof *r);
  memset(r, 0, sizeof *r);
  r->s = backward_build(spec, type, TEST_PADDED, rng);
  r->does = r->s->does;
  r->does.call = run, r->does.ask = ask, r->does.scene = r;
  r->p.kind = kind;
  take(r), learned(r, rng);
  return r;
}

static void options(relu_back *r, test_rng *rng) {
  static const float alphas[] = {0, ATTN_ZERO, 0.5f, 2};
  const attn_tensor *q = &r->s->call.q;
  attn_relu_params *p = &r->p;
  if (p->kind != ATTN_RELU_VAR && p->kind != ATTN_RELU_RELA) p->power = (int)test_range(rng, 0, 2);
  if (p->kind == ATTN_RELU_LEN) p->alpha = alphas[test_u64(rng) % 4];
  if (p->kind == ATTN_RELU_VAR) p->gamma = test_u64(rng) & 1 ? 0 : 2.5f;
  if (p->kind == ATTN_RELU_NORM || p->kind == ATTN_RELU_RELA)
    p->eps = test_u64(rng) & 1 ? 0 : 0.25f;
  p->by_keys = test_u64(rng) % 3 == 0;
  if (test_u64(rng) & 1)
    r->g.d_sum = drawn(ATTN_F32, TEST_PADDED, q->batch, q->heads, q->len, 1, 1, rng);
}

/* Whether scores are divided by the number of keys. */
static int divides(const relu_back *r) {
  const float s = r->p.attention.scale;
  return r->p.kind == ATTN_RELU_GAU && s == 0 && !signbit(s);
}

static double or_else(float x, double y) { return x == 0 && !signbit(x) ? y : (double)x; }

/* ---- a row of forward -----------------------------------------------------------------------*/

typedef struct row {
  attn_sdpa_params p; /* with its scale */
  double *x, *size;   /* [Tk], x of forbidden pairs -inf */
  double *w, c;       /* r and what it is multiplied by */
  double total, off;  /* sum of r, and how far it may be off */
} row;

static row row_room(const relu_back *r) {
  const size_t n = (size_t)(r->s->call.k.len + 1) * sizeof(double);
  row y;
  memset(&y, 0, sizeof y);
  y.x = test_mem(n), y.size = test_mem(n), y.w = test_mem(n);
  return y;
}

static double unsure(const relu_back *r, const row *y, int64_t j) {
  return 5.9604644775390625e-8 * y->size[j] * (6 + sqrt((double)r->s->call.q.dim) / 4);
}

static void row_of(const relu_back *r, row *y, int64_t b, int64_t h, int64_t i) {
  const attn_tensor *q = &r->s->call.q, *k = &r->s->call.k;
  const attn_relu_params *p = &r->p;
  const int square = p->kind == ATTN_RELU_GAU || p->power == 2;
  double n = 0;
  y->p = p->attention;
  for (int again = 0; again < 1 + divides(r); again++) {
    if (again) y->p.scale = (float)(1 / fmax(p->by_keys ? (double)k->len : n, 1));
    n = 0;
    for (int64_t j = 0; j < k->len; j++) {
      y->x[j] = -(double)INFINITY, y->size[j] = 0;
      if (!oracle_allowed(q, k, &y->p, b, h, i, j)) continue;
      const oracle_pair pair = backward_score(r->s, &y->p, b, h, i, j);
      y->x[j] = pair.x, y->size[j] = pair.size;
      n += pair.x > -(double)INFINITY;
    }
  }
  y->total = y->off = 0;
  for (int64_t j = 0; j < k->len; j++) {
    const double x = fmax(y->x[j], 0), off = unsure(r, y, j);
    y->w[j] = square ? x * x : x, y->total += y->w[j];
    if (y->x[j] > -off) y->off += square ? (2 * x + off) * off : off;
  }
  n = fmax(p->by_keys ? (double)k->len : n, 1), y->c = 1;
  if (p->kind == ATTN_RELU_LEN) y->c = pow(n, -or_else(p->alpha, 1));
  if (p->kind == ATTN_RELU_VAR) y->c = 1 / (or_else(p->gamma, 1) * sqrt(n / 2));
  const double below = (double)p->eps + y->total;
  if (p->kind == ATTN_RELU_NORM) y->c = below == 0 ? 0 : 1 / below;
}

/* d_o_i . v_j */
static double pull(const relu_back *r, int64_t b, int64_t h, int64_t i, int64_t j, double *size) {
  const attn_tensor *v = &r->s->call.v;
  double sum = 0, all = 0;
  for (int64_t c = 0; c < v->dim; c++) {
    const double x = oracle_get(v, b, head_of(v, h, r->s->call.q.heads), j, c);
    sum += oracle_get(&r->s->d_o, b, h, i, c) * x, all += x * x;
  }
  *size = sqrt(all);
  return sum;
}

/* A query's o in front of the norm: [H dv]. off: how far a number of it may be off. */
static void raw_row(const relu_back *r, row *y, int64_t b, int64_t i, double *o, double *off) {
  const attn_tensor *v = &r->s->call.v;
  const int64_t H = r->s->call.q.heads;
  *off = 0;
  for (int64_t h = 0; h < H; h++) {
    row_of(r, y, b, h, i);
    for (int64_t c = 0; c < v->dim; c++) {
      double sum = 0, more = 0;
      for (int64_t j = 0; j < v->len; j++) {
        const double x = oracle_get(v, b, head_of(v, h, H), j, c);
        if (y->w[j] > 0) sum += y->w[j] * x;
        if (y->x[j] > -unsure(r, y, j)) more += (unsure(r, y, j) + 1e-6 * y->w[j]) * fabs(x);
      }
      o[h * v->dim + c] = sum, *off = fmax(*off, more);
    }
  }
}

static double loss(const relu_back *r) {
  const attn_tensor *q = &r->s->call.q, *v = &r->s->call.v, *d_o = &r->s->d_o;
  const int64_t H = q->heads, n = H * v->dim;
  double *o = test_mem((size_t)n * sizeof *o), sum = 0, off;
  row y = row_room(r);
  for (int64_t at = 0; at < q->batch * q->len; at++) {
    const int64_t b = at / q->len, i = at % q->len;
    if (r->p.attention.q_len && i >= r->p.attention.q_len[b]) continue;
    raw_row(r, &y, b, i, o, &off);
    double squares = 0;
    for (int64_t c = 0; c < n; c++) squares += o[c] * o[c];
    const double below = squares / (double)n + or_else(r->p.eps, (double)1e-8f);
    for (int64_t h = 0; h < H; h++) {
      row_of(r, &y, b, h, i);
      if (r->g.d_sum.data) sum += oracle_get(&r->g.d_sum, b, h, i, 0) * y.c * y.total;
      for (int64_t c = 0; c < v->dim; c++) {
        double x = o[h * v->dim + c] * y.c;
        if (r->p.kind == ATTN_RELU_RELA)
          x = below > 0 ? (double)r->p.gain[h * v->dim + c] * x / sqrt(below) /
                              (1 + exp(-(double)r->p.gate[h * v->dim + c] * x))
                        : 0;
        sum += x * oracle_get(d_o, b, h, i, c);
      }
    }
  }
  return sum;
}

/* ---- gradients ------------------------------------------------------------------------------*/

/* Of the norm: in place of d_o the gradient by RAW's output; bound: [B H Tq], how far such a row may be off. */
static attn_tensor norm_back(const relu_back *r, double *bound) {
  const attn_tensor *q = &r->s->call.q, *v = &r->s->call.v, *d_o = &r->s->d_o;
  const int64_t H = q->heads, n = H * v->dim;
  const attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, q->batch, H, q->len, v->dim);
  const size_t room = (size_t)n * sizeof(double);
  double *o = test_mem(room), *gain = test_mem(room), *gate = test_mem(room);
  double *gain_off = test_mem(room), *gate_off = test_mem(room), off;
  row x = row_room(r);
  memset(gain, 0, room), memset(gate, 0, room);
  memset(gain_off, 0, room), memset(gate_off, 0, room);
  test_fill_value(y, 0);
  for (int64_t at = 0; at < q->batch * q->len; at++) {
    const int64_t b = at / q->len, i = at % q->len;
    for (int64_t h = 0; h < H; h++) bound[(b * H + h) * q->len + i] = 0;
    if (r->p.attention.q_len && i >= r->p.attention.q_len[b]) continue;
    raw_row(r, &x, b, i, o, &off);
    double squares = 0, mean = 0, size = 0;
    for (int64_t c = 0; c < n; c++) squares += o[c] * o[c];
    const double below = squares / (double)n + or_else(r->p.eps, (double)1e-8f);
    const double root = below > 0 ? 1 / sqrt(below) : 0;
    const double loose = 1e-6 + 3 * off * root;
    for (int pass = 0; pass < 2; pass++)
      for (int64_t c = 0; c < n; c++) {
        const double d = oracle_get(d_o, b, c / v->dim, i, c % v->dim), u = o[c] * root;
        const double a = (double)r->p.gain[c], z = (double)r->p.gate[c];
        const double g = 1 / (1 + exp(-z * o[c])), gu = d * a * g;
        if (pass == 0) {
          mean += gu * u / (double)n, size += fabs(gu * u) / (double)n;
          gain[c] += d * u * g, gate[c] += d * a * u * g * (1 - g) * o[c];
          const double rough = loose * (1 + fabs(z) * (off + fabs(o[c]))) * (1 + fabs(u));
          gain_off[c] += fabs(d) * rough, gate_off[c] += fabs(d * a) * rough * (fabs(o[c]) + off);
        } else {
          oracle_set(&y, b, c / v->dim, i, c % v->dim,
                     root * (gu - u * mean) + gu * u * (1 - g) * z);
          bound[(b * H + c / v->dim) * q->len + i] +=
              loose * (1 + fabs(z) * (fabs(o[c]) + off)) *
              (root * (fabs(d * a) + (fabs(u) + 1) * (size + fabs(mean))) +
               fabs(d * a) * (1 + fabs(u)) * fabs(z));
        }
      }
  }
  for (int64_t c = 0; c < n; c++) {
    value_check((double)r->g.d_gain[c], gain[c], gain_off[c] + 1e-30, ATTN_F32, "d_gain", 0, 0, 0,
                c);
    value_check((double)r->g.d_gate[c], gate[c], gate_off[c] + 1e-30, ATTN_F32, "d_gate", 0, 0, 0,
                c);
  }
  return y;
}

static void clear(cube *a) {
  memset(a->data, 0, (size_t)(a->batch * a->heads * a->len * a->dim) * sizeof(double));
}

static double norm_of(const attn_tensor *t, int64_t b, int64_t h, int64_t i) {
  double sum = 0;
  for (int64_t c = 0; c < t->dim; c++) sum += pow(oracle_get(t, b, h, i, c), 2);
  return sqrt(sum);
}

/* Every pair; scale: what the tables' gradients are multiplied by where they are compared. */
static backward_want oracle(const relu_back *r, const double *loose, double scale) {
  const backward *s = r->s;
  const attn_tensor *q = &s->call.q, *k = &s->call.k, *v = &s->call.v;
  const int64_t H = q->heads, T = k->len;
  const int square = r->p.kind == ATTN_RELU_GAU || r->p.power == 2;
  const int norm = r->p.kind == ATTN_RELU_NORM;
  backward_want y;
  memset(&y, 0, sizeof y);
  y.q = cube_of(q->batch, H, q->len, q->dim), y.q_bound = cube_of(q->batch, H, q->len, 1);
  y.k = cube_of(k->batch, k->heads, T, k->dim), y.k_bound = cube_of(k->batch, k->heads, T, 1);
  y.v = cube_of(v->batch, v->heads, T, v->dim), y.v_bound = cube_of(v->batch, v->heads, T, 1);
  cube *const pair[] = {&y.top, &y.x, &y.y, &y.s, &y.a, &y.w, &y.x_bound, &y.s_bound, &y.w_bound};
  cube *const all[] = {&y.q, &y.k, &y.v, &y.q_bound, &y.k_bound, &y.v_bound};
  for (int n = 0; n < 9; n++) *pair[n] = cube_of(q->batch, H, q->len, T), clear(pair[n]);
  for (int n = 0; n < 6; n++) clear(all[n]);
  double *key = test_mem((size_t)q->dim * sizeof *key),
         *query = test_mem((size_t)q->dim * sizeof *key);
  double *dw = test_mem((size_t)(T + 1) * sizeof *dw),
         *far = test_mem((size_t)(T + 1) * sizeof *far);
  row x = row_room(r);
  for (int64_t at = 0; at < q->batch * H * q->len; at++) {
    const int64_t b = at / q->len / H, h = at / q->len % H, i = at % q->len;
    const int64_t hk = head_of(k, h, H), hv = head_of(v, h, H);
    if (r->p.attention.q_len && i >= r->p.attention.q_len[b]) continue;
    row_of(r, &x, b, h, i);
    const double d_o = norm_of(&s->d_o, b, h, i), more = loose ? loose[at] : 0;
    const double d_sum = r->g.d_sum.data ? oracle_get(&r->g.d_sum, b, h, i, 0) : 0;
    const double c_off = norm ? x.off * x.c : 0; /* relative */
    double mean = 0, mean_off = 0;
    for (int64_t j = 0; j < T; j++) {
      double size;
      dw[j] = far[j] = 0;
      if (x.x[j] == -(double)INFINITY) continue;
      dw[j] = pull(r, b, h, i, j, &size) + d_sum;
      far[j] = 2e-6 * (d_o * size + fabs(d_sum)) + more * size;
      const double off = unsure(r, &x, j), r_off = square ? (2 * fmax(x.x[j], 0) + off) * off : off;
      if (!norm) continue;
      mean += x.c * x.w[j] * dw[j];
      mean_off += x.c * (x.w[j] * far[j] + (x.x[j] > -off ? r_off * fabs(dw[j]) : 0) +
                         x.w[j] * fabs(dw[j]) * (c_off + 1e-6));
    }
    for (int64_t j = 0; j < T; j++) {
      const double off = unsure(r, &x, j);
      if (!(x.x[j] > -off)) continue;
      const double e = dw[j] - mean, e_off = far[j] + mean_off;
      const double slope = x.x[j] > 0 ? (square ? 2 * x.x[j] : 1) : 0;
      const double top = x.c * e * slope;
      double most =
          x.c * (e_off + fabs(e) * (c_off + 2e-6)) * (square ? 2 * (fabs(x.x[j]) + off) : 1);
      if (square) most += 2 * off * x.c * fabs(e);
      if (fabs(x.x[j]) <= off) most += x.c * fabs(e) * (square ? 2 * off : 1);
      const backward_pair step = backward_chain(s, &x.p, b, h, i, j, top);
      const double by = scale_of(x.p.scale, q->dim),
                   off_s = most * step.s_by + step.s_more * fabs(step.y);
      cube_at(&y.top, b, h, i)[j] = top, cube_at(&y.x, b, h, i)[j] = step.x;
      cube_at(&y.y, b, h, i)[j] = step.y, cube_at(&y.a, b, h, i)[j] = step.a;
      cube_at(&y.s, b, h, i)[j] = step.s * by / scale;
      cube_at(&y.w, b, h, i)[j] = x.c * x.w[j], cube_at(&y.x_bound, b, h, i)[j] = most;
      cube_at(&y.s_bound, b, h, i)[j] = off_s * fabs(by / scale);
      const double r_off = square ? (2 * fmax(x.x[j], 0) + off) * off : off;
      const double w_off = x.c * (r_off + x.w[j] * (c_off + 2e-6));
      cube_at(&y.w_bound, b, h, i)[j] = w_off;
      backward_sides(s, &x.p, b, h, i, j, query, key);
      double query_size = 0, key_size = 0;
      for (int64_t c = 0; c < q->dim; c++) {
        cube_at(&y.q, b, h, i)[c] += by * step.s * key[c];
        cube_at(&y.k, b, hk, j)[c] += by * step.s * query[c];
        query_size += query[c] * query[c], key_size += key[c] * key[c];
      }
      for (int64_t c = 0; c < v->dim; c++)
        cube_at(&y.v, b, hv, j)[c] += x.c * x.w[j] * oracle_get(&s->d_o, b, h, i, c);
      *cube_at(&y.q_bound, b, h, i) += fabs(by) * (off_s + 2e-6 * fabs(step.s)) * sqrt(key_size);
      *cube_at(&y.k_bound, b, hk, j) += fabs(by) * (off_s + 2e-6 * fabs(step.s)) * sqrt(query_size);
      *cube_at(&y.v_bound, b, hv, j) += w_off * d_o + x.c * x.w[j] * more;
    }
  }
  return y;
}

static void compare(relu_back *r, const char *what) {
  backward *s = r->s;
  const attn_tensor *q = &s->call.q, d_o = s->d_o;
  const attn_sdpa_params was = s->call.params;
  double *loose = test_mem((size_t)(q->batch * q->heads * q->len) * sizeof *loose);
  const int rela = r->p.kind == ATTN_RELU_RELA;
  if (rela) s->d_o = norm_back(r, loose);
  if (divides(r)) s->call.params.scale = 1;
  const backward_want w = oracle(r, rela ? loose : NULL, scale_of(s->call.params.scale, q->dim));
  backward_compare(s, &w, what);
  s->d_o = d_o, s->call.params = was;
}

static void check(relu_back *r, const char *what) {
  promise_run(&r->does);
  compare(r, what);
}

/* ---- tests ----------------------------------------------------------------------------------*/

/* Masks, windows, lengths and whatever is added to scores. */
void N3_relu(void **state) {
  (void)state;
  test_rng rng = test_seed(9700);
  for (int64_t n = test_count(180, 48); n-- > 0; test_mem_release()) {
    test_spec spec = backward_spec(&rng, n % 5 ? 60 : 200);
    const attn_dtype type = n % 7 == 3 ? ATTN_BF16 : ATTN_F32;
    if (n % 4 == 1) spec.q_type = spec.k_type = spec.v_type = spec.o_type = ATTN_F16;
    relu_back *r = build(&spec, (attn_relu_kind)(n % 6), type, &rng);
    backward_options(r->s, &rng);
    if (r->p.kind == ATTN_RELU_GAU && r->s->call.params.scale == 0)
      r->s->call.params.toeplitz.inside = 0;
    if (n % 2) backward_terms(r->s);
    if (r->p.kind == ATTN_RELU_GAU && r->s->call.params.scale == 0) r->s->g.d_scale = NULL;
    take(r), options(r, &rng);
    check(r, "rectified");
    if (n % 4 == 0) promise_keep(&r->does);
  }
}

/* Tables of rows, factors and functions of scores. */
void N3_relu_tables(void **state) {
  (void)state;
  static const int alone[] = {TERM_KEYS, TERM_QUERIES, TERM_XL, TERM_LABELS, TERM_FACTOR, 0};
  test_rng rng = test_seed(9701);
  for (int64_t n = test_count(144, 36); n-- > 0; test_mem_release()) {
    test_spec spec = backward_spec(&rng, 70);
    relu_back *r = build(&spec, (attn_relu_kind)(n / 6 % 6), ATTN_F32, &rng);
    if (n % 2) backward_options(r->s, &rng);
    test_add_terms(&r->s->call, alone[n % 6], &rng);
    if (alone[n % 6] == 0 || test_u64(&rng) % 4 == 0) backward_modify(r->s);
    attn_sdpa_params *p = &r->s->call.params;
    if (r->p.kind == ATTN_RELU_GAU && p->scale == 0) p->toeplitz.inside = 0;
    backward_terms(r->s);
    if (r->p.kind == ATTN_RELU_GAU && p->scale == 0) r->s->g.d_scale = NULL;
    take(r), options(r, &rng);
    check(r, "rectified, tables");
  }
}

/* One number of an array by differences of the loss; a kink may lie between, not thrice. */
static void differ(const relu_back *r, double got, float *at, float step, const char *what) {
  const float was = *at;
  double by = 0;
  for (int fine = 0; fine < 3; fine++, step /= 8) {
    double slope[2];
    for (int far = 0; far < 2; far++) {
      const float up_at = was + step * (float)(1 + far), down_at = was - step * (float)(1 + far);
      *at = up_at;
      const double up = loss(r);
      *at = down_at;
      slope[far] = (up - loss(r)) / ((double)up_at - (double)down_at);
      *at = was;
    }
    by = (4 * slope[0] - slope[1]) / 3;
    if (fabs(by - got) <= 3e-4 * (1 + fabs(by))) return;
  }
  fail_msg("%s: %.9g, not %.9g", what, got, by);
}

static void differ_row(const relu_back *r, const attn_tensor *y, const attn_tensor *x,
                       test_rng *rng, const char *what) {
  const int64_t b = test_range(rng, 0, x->batch - 1), h = test_range(rng, 0, x->heads - 1);
  const int64_t i = test_range(rng, 0, x->len - 1), c = test_range(rng, 0, x->dim - 1);
  float *at = (float *)oracle_address(x, b, h, i, c);
  differ(r, oracle_get(y, b, h, i, c), at, 1.0f / 1024, what);
}

void N3_relu_differences(void **state) {
  (void)state;
  test_rng rng = test_seed(9702);
  for (int64_t n = test_count(60, 24); n-- > 0; test_mem_release()) {
    test_spec spec = backward_spec(&rng, 9);
    spec.q_layout = spec.k_layout = spec.v_layout = TEST_PADDED;
    relu_back *r = build(&spec, (attn_relu_kind)(n % 6), ATTN_F32, &rng);
    attn_sdpa_params *p = &r->s->call.params;
    p->causal = n % 4 == 1;
    if (n % 5 == 2) p->softcap = 1.5f;
    if (n % 5 == 3) p->alibi = test_floats(spec.heads, 0.1, &rng);
    backward_terms(r->s);
    if (r->p.kind == ATTN_RELU_GAU) r->s->g.d_scale = NULL;
    take(r), options(r, &rng);
    if (r->p.kind == ATTN_RELU_RELA) r->p.eps = 0.25f;
    promise_run(&r->does);
    differ_row(r, &r->s->d_q, &r->s->call.q, &rng, "d_q");
    differ_row(r, &r->s->d_k, &r->s->call.k, &rng, "d_k");
    differ_row(r, &r->s->d_v, &r->s->call.v, &rng, "d_v");
    const int64_t c = test_range(&rng, 0, spec.heads * spec.dv - 1);
    if (r->g.d_gain) {
      differ(r, (double)r->g.d_gain[c], (float *)(uintptr_t)r->p.gain + c, 1.0f / 256, "d_gain");
      differ(r, (double)r->g.d_gate[c], (float *)(uintptr_t)r->p.gate + c, 1.0f / 256, "d_gate");
    }
    if (p->alibi)
      differ(r, (double)r->s->g.d_alibi[0], (float *)(uintptr_t)p->alibi, 1.0f / 4096, "d_alibi");
  }
}

/* Scores whose mean is not 0, over many keys: nothing that is summed cancels. */
void N3_relu_long(void **state) {
  (void)state;
  test_rng rng = test_seed(9703);
  for (int n = 0; n < 6; n++, test_mem_release()) {
    test_spec spec = test_plain(1, 70, test_count(1500, 700), 8, 5);
    relu_back *r = build(&spec, (attn_relu_kind)n, ATTN_F32, &rng);
    attn_tensor *const x[] = {&r->s->call.q, &r->s->call.k, &r->s->call.v, &r->s->d_o};
    for (int t = 0; t < 4; t++)
      for (int64_t i = 0; i < x[t]->len; i++)
        for (int64_t c = 0; c < x[t]->dim; c++)
          oracle_set(x[t], 0, 0, i, c, 1 + 0.25 * oracle_get(x[t], 0, 0, i, c));
    check(r, "rectified, long");
  }
}

/* A schedule's tiles, of lists and of several phases, are a mask's; and sums that are added to. */
void N3_relu_scheduled(void **state) {
  (void)state;
  test_rng rng = test_seed(9704);
  const int64_t T = 200;
  for (int n = 0; n < 12; n++, test_mem_release()) {
    static const int32_t global[] = {0, 131};
    attn_pattern part[2] = {attn_pattern_band(20, 3), attn_pattern_global(global, 2)};
    attn_pattern some = n % 2 ? attn_pattern_union(part, 2) : attn_pattern_random(9, 5);
    test_spec spec = test_plain(2, T, T, 9, 7);
    relu_back *r = build(&spec, (attn_relu_kind)(n / 2), ATTN_F32, &rng);
    attn_schedule schedule = {NULL, 0, NULL};
    assert_int_equal(attn_schedule_build(&schedule, &some, 2, T, T, NULL, NULL), ATTN_OK);
    uint8_t *mask = test_mem((size_t)(2 * T * T));
    attn_tensor map = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, T);
    attn_sdpa_params seen;
    attn_ctx ctx = test_ctx();
    memset(&seen, 0, sizeof seen), seen.schedule = &schedule, seen.map = map;
    const attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T, 7);
    assert_int_equal(attn_sdpa(o, r->s->call.q, r->s->call.k, r->s->call.v, &seen, &ctx), ATTN_OK);
    for (int64_t i = 0; i < 2 * T * T; i++)
      mask[i] = oracle_get(&map, 0, i / T / T, i / T % T, i % T) != 0;
    take(r), options(r, &rng);
    r->p.attention.schedule = &schedule;
    promise_run(&r->does);
    r->p.attention.schedule = NULL, r->p.attention.mask = attn_mask_bool(mask, 1, 2, T, T);
    compare(r, "rectified, scheduled");
    const double was[] = {oracle_get(&r->s->d_q, 0, 1, 7, 3), oracle_get(&r->s->d_k, 0, 1, 7, 3),
                          r->g.d_gain ? (double)r->g.d_gain[5] : 0};
    r->p.attention.schedule = &schedule, memset(&r->p.attention.mask, 0, sizeof(attn_mask));
    r->g.attention.accumulate = 1;
    promise_run(&r->does);
    const double now[] = {oracle_get(&r->s->d_q, 0, 1, 7, 3), oracle_get(&r->s->d_k, 0, 1, 7, 3),
                          r->g.d_gain ? (double)r->g.d_gain[5] : 0};
    for (int i = 0; i < 3; i++)
      value_check(now[i], 2 * was[i], 1e-6, ATTN_F32, "twice", 0, 0, i, 0);
    attn_schedule_free(&schedule);
  }
}

/* Which outputs are asked for changes no bit; rows and keys that nobody reads may hold anything. */
void N3_relu_outputs(void **state) {
  (void)state;
  test_rng rng = test_seed(9705);
  for (int n = 0; n < 24; n++, test_mem_release()) {
    test_spec spec = test_plain(4, 70, 150, 9, 7);
    spec.batch = 2, spec.k_heads = 2, spec.v_heads = 1;
    relu_back *r = build(&spec, (attn_relu_kind)(n / 4), ATTN_F32, &rng);
    backward *s = r->s;
    static const int32_t kv[] = {120, 150}, rows[] = {70, 41};
    s->call.params.kv_len = kv, s->call.params.q_len = rows;
    s->call.params.alibi = test_floats(4, 0.1, &rng);
    backward_terms(s);
    if (r->p.kind == ATTN_RELU_GAU) s->g.d_scale = NULL;
    take(r), options(r, &rng);
    promise_run(&r->does);
    const attn_tensor was[] = {s->d_q, s->d_k, s->d_v};
    float alibi[4];
    memcpy(alibi, s->g.d_alibi, sizeof alibi);
    relu_back *t = test_mem(sizeof *t);
    *t = *r, t->s = backward_again(s);
    t->does = t->s->does, t->does.call = run, t->does.ask = ask, t->does.scene = t;
    t->g.d_gain = t->g.d_gate = NULL;
    attn_tensor *const y[] = {&t->s->d_q, &t->s->d_k, &t->s->d_v};
    for (int i = 0; i < 3; i++)
      if (n % 4 != i) *y[i] = absent();
    if (n % 4 != 3) memset(&t->g.attention, 0, sizeof t->g.attention);
    for (int64_t j = 120; j < 150; j++)
      for (int64_t h = 0; h < 2; h++)
        test_fill_row(s->call.k, 0, h, j, (double)NAN),
            test_fill_row(s->call.v, 0, 0, j, (double)INFINITY);
    for (int64_t i = 41; i < 70; i++)
      for (int64_t h = 0; h < 4; h++)
        test_fill_row(s->call.q, 1, h, i, (double)NAN), test_fill_row(s->d_o, 1, h, i, (double)NAN);
    for (int64_t i = 41; r->g.d_sum.data && i < 70; i++)
      test_fill_row(r->g.d_sum, 1, 2, i, (double)NAN);
    promise_run(&t->does);
    for (int i = 0; i < 3; i++)
      if (y[i]->data) test_assert_same(*y[i], was[i], "by itself");
    if (n % 4 == 3) assert_memory_equal(alibi, s->g.d_alibi, sizeof alibi);
  }
}

/* NaN and infinities go where the formulas send them, and no further. */
void N3_relu_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(9706);
  for (int n = 0; n < 24; n++, test_mem_release()) {
    test_spec spec = test_plain(1, 130, 130, 6, 5);
    relu_back *r = build(&spec, (attn_relu_kind)(n % 6), ATTN_F32, &rng);
    backward *s = r->s;
    s->call.params.causal = 1;
    if (r->p.kind == ATTN_RELU_RELA) r->g.d_gain = r->g.d_gate = NULL;
    take(r);
    const int64_t at = 67;
    attn_tensor *const x[] = {&s->call.q, &s->call.k, &s->call.v, &s->d_o};
    oracle_set(x[n / 6], 0, 0, at, 2, (double)NAN);
    promise_run(&r->does);
    for (int64_t i = 0; i < 130; i++) {
      int q = 0, k = 0, v = 0;
      for (int64_t c = 0; c < 5; c++) {
        q |= isnan(oracle_get(&s->d_q, 0, 0, i, c)), k |= isnan(oracle_get(&s->d_k, 0, 0, i, c));
        v |= isnan(oracle_get(&s->d_v, 0, 0, i, c));
      }
      const int query = n / 6 == 0 || n / 6 == 3; /* a row's */
      if (query ? i != at : i < at) assert_false(q);
      if (query && i > at) assert_false(k || v);
      if (n / 6 == 0 && i == at) assert_true(q);
      if (n / 6 == 1 && i == at) assert_true(k);
      if (n / 6 == 1 && i > at) assert_true(q);
      if (n / 6 == 3 && i <= at) assert_true(v);
    }
  }
}

/* Nothing above 0, no keys, no rows. */
void N3_relu_nothing(void **state) {
  (void)state;
  test_rng rng = test_seed(9707);
  for (int n = 0; n < 24; n++, test_mem_release()) {
    test_spec spec = test_plain(2, n % 4 == 3 ? 0 : 70, n % 4 == 2 ? 0 : 90, 5, 4);
    relu_back *r = build(&spec, (attn_relu_kind)(n / 4), ATTN_F32, &rng);
    if (n % 4 == 0) test_fill_value(r->s->call.k, 0);
    if (n % 4 == 1) test_fill_value(r->s->call.q, 1), test_fill_value(r->s->call.k, -1);
    if (r->p.kind == ATTN_RELU_RELA) r->p.eps = n & 1 ? ATTN_ZERO : 0;
    attn_tensor *const y[] = {&r->s->d_q, &r->s->d_k, &r->s->d_v};
    for (int i = 0; i < 3; i++) test_fill_value(*y[i], 7);
    promise_run(&r->does);
    for (int t = 0; t < 3; t++)
      for (int64_t i = 0; i < 2 * y[t]->len; i++)
        for (int64_t c = 0; c < y[t]->dim; c++)
          assert_true(oracle_get(y[t], 0, i / y[t]->len, i % y[t]->len, c) == 0);
    for (int64_t c = 0; r->g.d_gain && c < 8; c++)
      assert_true(r->g.d_gain[c] == 0 && r->g.d_gate[c] == 0);
  }
}

void N3_relu_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9708);
  for (int n = 0; n < 24; n++, test_mem_release()) {
    test_spec spec = test_plain(2, 10, 20, 4, 3);
    const int rela = n >= 16 && n <= 22;
    relu_back *r = build(&spec, rela ? ATTN_RELU_RELA : ATTN_RELU_RAW, ATTN_F32, &rng);
    backward *s = r->s;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    float *spare = test_floats(64, 1, &rng);
    r->learned[0] = absent();
    switch (n) {
      case 0: s->d_q.dim = 3, word = "d_q"; break;
      case 1: s->d_k.len = 19, word = "d_k"; break;
      case 2: s->d_v.heads = 3, word = "d_v"; break;
      case 3: s->d_o.len = 9, word = "d_o"; break;
      case 4: s->d_o.data = NULL, want = ATTN_E_NULL, word = "d_o"; break;
      case 5: r->g.attention.accumulate = 3, want = ATTN_E_RANGE, word = "accumulate"; break;
      case 6: s->d_o.data = s->d_k.data, want = ATTN_E_OVERLAP, word = "d_k"; break;
      case 7: s->d_q.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "d_q"; break;
      case 8: r->p.kind = (attn_relu_kind)6, want = ATTN_E_RANGE, word = "kind"; break;
      case 9: r->p.power = 3, want = ATTN_E_RANGE, word = "power"; break;
      case 10: r->p.attention.dropout.p = 0.5, want = ATTN_E_RANGE, word = "dropout"; break;
      case 11:
        r->g.attention.d_lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 10, 1);
        want = ATTN_E_RANGE, word = "d_lse";
        break;
      case 12:
        r->g.attention.d_map = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 10, 20);
        want = ATTN_E_RANGE, word = "d_map";
        break;
      case 13: r->g.d_sum = s->d_o, word = "d_sum"; break;
      case 14: r->g.d_gain = spare, want = ATTN_E_NULL, word = "d_gain"; break;
      case 15:
        r->p.kind = ATTN_RELU_GAU, r->g.attention.d_scale = spare;
        want = ATTN_E_RANGE, word = "d_scale";
        break;
      case 16: r->p.gain = NULL, want = ATTN_E_NULL, word = "gain"; break;
      case 17: r->g.d_gain = r->g.d_gate, want = ATTN_E_OVERLAP, word = "share"; break;
      case 18:
        r->g.d_gain = (float *)(uintptr_t)r->p.gain, want = ATTN_E_OVERLAP, word = "gain";
        break;
      case 19: r->g.d_gate = s->d_o.data, want = ATTN_E_OVERLAP, word = "share"; break;
      case 20:
        *(float *)(uintptr_t)r->p.gate = NAN;
        want = ATTN_E_VALUE, word = "gate";
        break;
      case 21: r->p.power = 2, want = ATTN_E_RANGE, word = "power"; break;
      case 22: s->call.k.dim = 3, word = "d_k"; break;
      default: r->g.attention.d_alibi = spare, want = ATTN_E_NULL, word = "alibi"; break;
    }
    promise_reject(&r->does, want, word);
  }
}
