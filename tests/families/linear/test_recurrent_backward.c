/* tests/families/linear/test_recurrent_backward.c owns N5 of decaying states: gradients of attn_recurrent against differences
 * of a loss over the recurrences in float64, number by number and along directions, and over many tokens against the
 * recurrence in reverse. */

#include "recurrent.h"

enum { OUTPUTS = 11, ARRAYS = 3 };

typedef struct fading {
  recurrent_scene *s;
  attn_tensor d_o, d[OUTPUTS]; /* of q, k, v, decay, a, b, beta, bonus, dt, gate, lambda */
  attn_tensor arrays;          /* [3,1,1,H]: around d_a_log, d_dt_bias, d_skip */
  attn_recurrent_gradients g;
  promise does;
} fading;

static attn_status run(void *at, attn_ctx *ctx) {
  fading *f = at;
  const recurrent_scene *s = f->s;
  f->g.d_decay = f->d[3], f->g.d_a = f->d[4], f->g.d_b = f->d[5], f->g.d_beta = f->d[6];
  f->g.d_bonus = f->d[7], f->g.d_dt = f->d[8], f->g.d_gate = f->d[9], f->g.d_lambda = f->d[10];
  return attn_recurrent_backward(f->d[0], f->d[1], f->d[2], f->d_o, s->q, s->k, s->v, &s->p, &f->g,
                                 ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  fading *f = at;
  const recurrent_scene *s = f->s;
  f->g.d_decay = f->d[3], f->g.d_a = f->d[4], f->g.d_b = f->d[5], f->g.d_beta = f->d[6];
  f->g.d_bonus = f->d[7], f->g.d_dt = f->d[8], f->g.d_gate = f->d[9], f->g.d_lambda = f->d[10];
  return attn_recurrent_backward_workspace(f->d[0], f->d[1], f->d[2], f->d_o, s->q, s->k, s->v,
                                           &s->p, &f->g, ctx);
}

static const attn_tensor *given(const fading *f, int n) {
  const attn_recurrent_params *p = &f->s->p;
  const attn_tensor *const x[OUTPUTS] = {&f->s->q, &f->s->k,  &f->s->v, &p->decay, &p->a,     &p->b,
                                         &p->beta, &p->bonus, &p->dt,   &p->gate,  &p->lambda};
  return x[n];
}

static attn_tensor like(const attn_tensor *x) {
  return test_tensor(ATTN_F32, TEST_PADDED, x->batch, x->heads, x->len, x->dim);
}

static fading *build(const recurrent_shape *x, test_rng *rng) {
  fading *f = test_mem(sizeof *f);
  memset(f, 0, sizeof *f);
  f->s = recurrent_build(x, rng);
  attn_recurrent_params *p = &f->s->p;
  const int64_t heads = recurrent_heads(f->s);
  f->d_o = drawn(x->type, TEST_BTHD, x->batch, heads, x->len, x->dv, 1, rng);
  for (int n = 0; n < OUTPUTS; n++)
    if (given(f, n)->data) f->d[n] = like(given(f, n));
  if (p->rule == ATTN_RECURRENT_MAMBA2) {
    f->arrays = test_tensor(ATTN_F32, TEST_BHTD, 3, 1, 1, heads);
    f->g.d_a_log = f->arrays.data, f->g.d_dt_bias = f->g.d_a_log + heads;
    f->g.d_skip = f->g.d_dt_bias + heads;
  }
  if (x->keep) {
    f->g.d_initial_state = like(&p->initial_state);
    test_fill_value(f->g.d_initial_state, 7); /* is overwritten */
    f->g.d_final_state = drawn(ATTN_F32, TEST_PADDED, p->final_state.batch, heads,
                               p->final_state.len, x->dv, 1, rng);
  }
  if (p->initial_n.data) {
    f->g.d_initial_n = like(&p->initial_n), f->g.d_initial_m = like(&p->initial_m);
    f->g.d_final_n = drawn(ATTN_F32, TEST_PADDED, p->final_n.batch, heads, 1, x->dk, 1, rng);
    f->g.d_final_m = drawn(ATTN_F32, TEST_PADDED, p->final_m.batch, heads, 1, 1, 1, rng);
  }
  f->does.out[0] = &f->d[0], f->does.out[1] = &f->d[1], f->does.out[2] = &f->d[2];
  f->does.out[3] = &f->d[3];
  f->does.call = run, f->does.ask = ask, f->does.scene = f;
  return f;
}

static double loss(const fading *f) {
  const recurrent_truth y = recurrent_oracle(f->s);
  double sum = 0;
  for (int64_t n = 0; n < y.o.batch * y.o.heads * y.o.len; n++) {
    const int64_t b = n / y.o.len / y.o.heads, h = n / y.o.len % y.o.heads, i = n % y.o.len;
    const int32_t *len = f->s->p.len;
    for (int64_t c = 0; c < y.o.dim && (!len || i < len[b]); c++)
      sum += cube_at(&y.o, b, h, i)[c] * oracle_get(&f->d_o, b, h, i, c);
  }
  const attn_tensor *const ends[] = {&f->g.d_final_state, &f->g.d_final_n, &f->g.d_final_m};
  const cube *const end[] = {&y.s, &y.n, &y.m};
  for (int i = 0; i < 3; i++) {
    const attn_tensor *e = ends[i];
    for (int64_t n = 0; e->data && n < e->batch * e->heads * e->len; n++) {
      const int64_t b = n / e->len / e->heads, h = n / e->len % e->heads, r = n % e->len;
      for (int64_t c = 0; c < e->dim; c++)
        sum += cube_at(end[i], b, h, r)[c] * oracle_get(e, b, h, r, c);
    }
  }
  return sum;
}

/* ---- differences ----------------------------------------------------------------------------*/

static void differ(const fading *f, float *at, double got, const char *what) {
  const float was = *at;
  double by = 0;
  float step = 1.0f / 128;
  if (!(was - was == 0)) return; /* a log of -inf */
  for (int fine = 0; fine < 4; fine++, step /= 4) {
    double slope[2];
    for (int far = 0; far < 2; far++) {
      const float up_at = was + step * (float)(1 + far), down_at = was - step * (float)(1 + far);
      *at = up_at;
      const double up = loss(f);
      *at = down_at;
      slope[far] = (up - loss(f)) / ((double)up_at - (double)down_at);
      *at = was;
    }
    by = (4 * slope[0] - slope[1]) / 3;
    if (fabs(by - got) <= 2e-4 * (1 + fabs(by))) return;
  }
  fail_msg("%s: %.9g, not %.9g", what, got, by);
}

static void differ_some(fading *f, const attn_tensor *y, const attn_tensor *x, test_rng *rng,
                        const char *what) {
  /* a factor of 0 cuts, and its log has no difference around it */
  const int factor = x == &f->s->p.decay && f->s->p.form == ATTN_RECURRENT_FACTOR;
  const double low = !factor ? 0 : f->s->p.rule == ATTN_RECURRENT_MLSTM ? 0.02 : 1e-30;
  for (int n = 0; y->data && n < 3; n++) {
    const int64_t b = test_range(rng, 0, x->batch - 1), h = test_range(rng, 0, x->heads - 1);
    const int64_t i = test_range(rng, 0, x->len - 1), c = test_range(rng, 0, x->dim - 1);
    if (low > 0 && oracle_get(x, b, h, i, c) < low) continue;
    differ(f, oracle_address(x, b, h, i, c), oracle_get(y, b, h, i, c), what);
  }
}

/* All numbers of x moved at once. */
static void differ_along(fading *f, const attn_tensor *y, const attn_tensor *x, test_rng *rng,
                         const char *what) {
  double want = 0, size = 0, l[2];
  if (!y->data) return;
  const uint64_t seed = test_u64(rng);
  for (int way = 0; way < 3; way++) { /* up, down, back */
    test_rng move = test_seed(seed);
    for (int64_t n = 0; n < x->batch * x->heads * x->len * x->dim; n++) {
      const int64_t c = n % x->dim, i = n / x->dim % x->len, h = n / x->dim / x->len % x->heads;
      const int64_t b = n / x->dim / x->len / x->heads;
      float *at = oracle_address(x, b, h, i, c);
      const float by =
          (float)ldexp(round(4 * test_normal(&move)), -19); /* exact beside numbers below 16 */
      if (way == 0 && *at - *at == 0)
        want += 2 * (double)by * oracle_get(y, b, h, i, c),
            size += fabs((double)by * oracle_get(y, b, h, i, c));
      *at += way == 1 ? -2 * by : by;
    }
    if (way < 2) l[way] = loss(f);
  }
  if (fabs(l[0] - l[1] - want) > 2e-4 * size + 1e-9)
    fail_msg("%s along a direction: %.9g, not %.9g", what, want, l[0] - l[1]);
}

static const char *const names[OUTPUTS] = {"d_q",    "d_k",     "d_v",  "d_decay", "d_a",     "d_b",
                                           "d_beta", "d_bonus", "d_dt", "d_gate",  "d_lambda"};

static void check(fading *f, test_rng *rng, int along) {
  attn_recurrent_params *p = &f->s->p;
  promise_run(&f->does);
  for (int n = 0; n < OUTPUTS; n++)
    if (along && !(n == 3 && p->decay.data))
      differ_along(f, &f->d[n], given(f, n), rng, names[n]);
    else if (!along)
      differ_some(f, &f->d[n], given(f, n), rng, names[n]);
  if (along) return;
  differ_some(f, &f->g.d_initial_state, &p->initial_state, rng, "d_initial_state");
  differ_some(f, &f->g.d_initial_n, &p->initial_n, rng, "d_initial_n");
  differ_some(f, &f->g.d_initial_m, &p->initial_m, rng, "d_initial_m");
  const float *of[ARRAYS] = {p->a_log, p->dt_bias, p->skip};
  const float *got[ARRAYS] = {f->g.d_a_log, f->g.d_dt_bias, f->g.d_skip};
  for (int n = 0; got[0] && n < ARRAYS; n++)
    differ(f, (float *)(uintptr_t)of[n], (double)got[n][0], "an array");
}

/* Levels, of so many tokens before the call, where the rule has them. */
static void levels(recurrent_shape *x, int64_t position) {
  if (x->rule == ATTN_RECURRENT_RWKV6 || x->rule == ATTN_RECURRENT_MLSTM) return;
  x->position = position, x->levels = recurrent_levels(position + x->len);
}

static recurrent_shape shape(int n, int64_t len, test_rng *rng) {
  static const int64_t heads[][4] = {
      {1, 1, 1, 1}, {2, 2, 2, 2}, {4, 2, 1, 2}, {1, 2, 4, 4}, {2, 2, 4, 1}};
  const int64_t *h = heads[test_u64(rng) % 5];
  recurrent_shape x = recurrent_plain((attn_recurrent_rule)(n % 12), 2, len, test_range(rng, 1, 9),
                                      test_range(rng, 1, 9));
  x.q_heads = h[0], x.k_heads = h[1], x.v_heads = h[2], x.more_heads = h[3];
  if (x.rule == ATTN_RECURRENT_HGRN2) /* what there is says how many */
    x.more_heads = h[0] > h[2] ? h[0] : h[2];
  x.batch = test_range(rng, 1, 2), x.shared = (int)(test_u64(rng) & 1);
  x.keep = (int)(test_u64(rng) & 1), x.layout = TEST_PADDED;
  if (x.rule == ATTN_RECURRENT_RETENTION && n % 2) x.decay = 1 + n / 12 % 2;
  if (x.rule == ATTN_RECURRENT_GLA || x.rule == ATTN_RECURRENT_KDA) x.decay = 1 + n / 12 % 3;
  if (x.rule == ATTN_RECURRENT_KDA && x.decay == 1) x.decay = 3;
  if (x.rule == ATTN_RECURRENT_MLSTM) x.form = (attn_recurrent_form)(n / 12 % 3);
  if (x.rule != ATTN_RECURRENT_MLSTM && x.decay && n % 3 == 1) x.form = ATTN_RECURRENT_FACTOR;
  return x;
}

void N5_recurrent(void **state) {
  (void)state;
  test_rng rng = test_seed(9900);
  for (int64_t n = test_count(144, 48); n-- > 0; test_mem_release()) {
    recurrent_shape x = shape((int)n, test_range(&rng, 1, 9), &rng);
    if (n / 24 % 2) levels(&x, n % 5 ? test_range(&rng, 0, 9) : 0);
    fading *f = build(&x, &rng);
    attn_recurrent_params *p = &f->s->p;
    if (n % 5 == 1) p->l2norm_qk = 1;
    if (x.rule == ATTN_RECURRENT_MLSTM && n % 24 < 12) p->eps = 0.5f; /* m matters */
    if (n % 7 == 1) p->scale = -0.7f;
    const int64_t turn = (n + n / 12) % 6; /* rules repeat after 12 */
    if (turn == 2) p->len = test_lengths(x.batch, x.len, &rng);
    if (turn == 4) {
      uint8_t *reset = test_mem((size_t)(x.batch * x.len));
      for (int64_t i = 0; i < x.batch * x.len; i++) reset[i] = test_u64(&rng) % 4 == 0;
      p->reset = reset;
    }
    check(f, &rng, 0);
    if (n % 4 == 0) promise_keep(&f->does);
  }
}

/* MLSTM away from what has no difference: a q . n near 0, which divides its rounding, and a gate that equals what is
 * before it. */
static void smooth(recurrent_scene *s, test_rng *rng) {
  const attn_tensor t[] = {s->q, s->k, s->p.gate};
  for (int i = 0; i < 3; i++)
    for (int64_t n = 0; n < t[i].batch * t[i].heads * t[i].len * t[i].dim; n++) {
      const int64_t row = n / t[i].dim, h = row / t[i].len;
      float *x =
          oracle_address(&t[i], h / t[i].heads, h % t[i].heads, row % t[i].len, n % t[i].dim);
      *x = i < 2 ? fabsf(*x) : *x + (float)test_range(rng, 1, 255) / 65536;
    }
}

void N5_recurrent_along(void **state) {
  (void)state;
  test_rng rng = test_seed(9901);
  for (int64_t n = test_count(48, 24); n-- > 0; test_mem_release()) {
    recurrent_shape x = shape((int)n, test_range(&rng, 60, 150), &rng);
    x.dk = test_range(&rng, 1, 20), x.dv = test_range(&rng, 1, 20), x.slow = 0.2;
    if (n / 12 % 2) levels(&x, test_range(&rng, 0, 200));
    fading *f = build(&x, &rng);
    if (x.rule == ATTN_RECURRENT_MLSTM) smooth(f->s, &rng);
    check(f, &rng, 1);
  }
}

/* ---- the recurrence in reverse --------------------------------------------------------------*/

/* S = diag(w) S + b (a^T S) + k v^T with everything given, values of one sign: no sum cancels. */
void N5_recurrent_long(void **state) {
  (void)state;
  test_rng rng = test_seed(9902);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    enum { DK = 7, DV = 5 };
    recurrent_shape x = recurrent_plain(n == 1 ? ATTN_RECURRENT_GLA : ATTN_RECURRENT_DPLR, 1,
                                        test_count(4096, 700), DK, DV);
    x.slow = n == 2 ? 0.3 : 0.002, x.mean = 1;
    fading *f = build(&x, &rng);
    const recurrent_scene *s = f->s;
    const int64_t T = x.len;
    const int low = s->p.a.data != NULL;
    for (int64_t i = 0; i < T; i++)
      for (int64_t c = 0; c < DV; c++)
        oracle_set(&f->d_o, 0, 0, i, c, 1 + 0.25 * oracle_get(&f->d_o, 0, 0, i, c));
    promise_run(&f->does);
    double(*S)[DK][DV] = test_mem((size_t)(T + 1) * sizeof *S), D[DK][DV] = {{0}},
    E[DK][DV] = {{0}};
    memset(S, 0, sizeof *S);
    const double scale = 1 / sqrt((double)DK);
#define X(t, i, c) oracle_get(&(t), 0, 0, i, c)
    for (int64_t i = 0; i < T; i++) {
      double y[DV] = {0};
      for (int r = 0; low && r < DK; r++)
        for (int c = 0; c < DV; c++) y[c] += X(s->p.a, i, r) * S[i][r][c];
      for (int r = 0; r < DK; r++)
        for (int c = 0; c < DV; c++)
          S[i + 1][r][c] = exp(X(s->p.decay, i, r)) * S[i][r][c] +
                           (low ? X(s->p.b, i, r) * y[c] : 0) + X(s->k, i, r) * X(s->v, i, c);
    }
    for (int64_t i = T; i-- > 0;) { /* E: the same of absolute values */
      double y[DV] = {0}, d_y[DV] = {0}, e_y[DV] = {0}, z[DV] = {0};
      for (int r = 0; r < DK; r++)
        for (int c = 0; c < DV; c++) {
          D[r][c] += scale * X(s->q, i, r) * X(f->d_o, i, c);
          E[r][c] += fabs(scale * X(s->q, i, r) * X(f->d_o, i, c));
          if (low) y[c] += X(s->p.a, i, r) * S[i][r][c], d_y[c] += X(s->p.b, i, r) * D[r][c];
          if (low) e_y[c] += fabs(X(s->p.b, i, r)) * E[r][c];
          if (low) z[c] += fabs(X(s->p.a, i, r) * S[i][r][c]);
        }
      for (int c = 0; c < DV; c++) {
        double sum = 0, size = 0;
        for (int r = 0; r < DK; r++)
          sum += D[r][c] * X(s->k, i, r), size += E[r][c] * fabs(X(s->k, i, r));
        value_check(X(f->d[2], i, c), sum, 2e-5 * size, ATTN_F32, "d_v", 0, 0, i, c);
      }
      for (int r = 0; r < DK; r++) {
        const double w = exp(X(s->p.decay, i, r));
        double d[5] = {0}, size[5] = {0};
        for (int c = 0; c < DV; c++) {
          d[0] += scale * S[i + 1][r][c] * X(f->d_o, i, c);
          size[0] += fabs(scale * S[i + 1][r][c] * X(f->d_o, i, c));
          d[1] += D[r][c] * X(s->v, i, c), size[1] += E[r][c] * fabs(X(s->v, i, c));
          d[2] += w * D[r][c] * S[i][r][c], size[2] += w * E[r][c] * fabs(S[i][r][c]);
          d[3] += S[i][r][c] * d_y[c], size[3] += fabs(S[i][r][c]) * e_y[c];
          d[4] += D[r][c] * y[c], size[4] += E[r][c] * z[c];
          D[r][c] = w * D[r][c] + (low ? X(s->p.a, i, r) * d_y[c] : 0);
          E[r][c] = w * E[r][c] + (low ? fabs(X(s->p.a, i, r)) * e_y[c] : 0);
        }
        const int at[5] = {0, 1, 3, 4, 5};
        for (int m = 0; m < (low ? 5 : 3); m++)
          value_check(X(f->d[at[m]], i, r), d[m], 2e-5 * size[m] + 1e-6, ATTN_F32, names[at[m]], 0,
                      0, i, r);
      }
      double most =
          0; /* what a contraction leaves of absolute values is not to be had step by step */
      for (int e = 0; low && e < DK * DV; e++) most = fmax(most, fabs(D[e / DV][e % DV]));
      for (int e = 0; low && e < DK * DV; e++) E[e / DV][e % DV] = most;
    }
#undef X
  }
}

/* ---- promises -------------------------------------------------------------------------------*/

/* Two calls that hand states and their gradients over are one; transposed states; sequences end to end. */
void N5_recurrent_handed(void **state) {
  (void)state;
  test_rng rng = test_seed(9903);
  for (int n = 0; n < 24; n++, test_mem_release()) {
    recurrent_shape x = shape(n, 150, &rng);
    x.keep = 1, x.batch = 1, x.shared = 0, x.layout = TEST_BHTD;
    if (x.decay == 1) x.decay = 2;
    if (n > 11) levels(&x, n % 3 * 29);
    fading *f = build(&x, &rng);
    attn_ctx ctx = test_ctx();
    promise_run(&f->does);
    fading first = *f, second = *f;
    recurrent_scene a = *f->s, b = *f->s;
    const int64_t cut = 70;
    const int counts = x.rule == ATTN_RECURRENT_MLSTM;
    attn_tensor middle = like(&f->s->p.initial_state), d_middle = like(&middle);
    const int64_t at = x.position + cut;
    if (x.levels) b.p.position = &at;
    attn_tensor *const p1[] = {&a.q,      &a.k,    &a.v,      &a.p.decay,  &a.p.a, &a.p.b,
                               &a.p.beta, &a.p.dt, &a.p.gate, &a.p.lambda, &a.o};
    attn_tensor *const p2[] = {&b.q,      &b.k,    &b.v,      &b.p.decay,  &b.p.a, &b.p.b,
                               &b.p.beta, &b.p.dt, &b.p.gate, &b.p.lambda, &b.o};
    for (int i = 0; i < 11; i++)
      if (p1[i]->data)
        *p1[i] = recurrent_rows(*p1[i], 0, cut), *p2[i] = recurrent_rows(*p2[i], cut, 150 - cut);
    a.p.final_state = middle, b.p.initial_state = middle, b.p.final_state = absent();
    if (counts) {
      a.p.final_n = b.p.initial_n = like(&f->s->p.initial_n);
      a.p.final_m = b.p.initial_m = like(&f->s->p.initial_m);
      b.p.final_n = b.p.final_m = absent();
    }
    assert_int_equal(attn_recurrent(a.o, a.q, a.k, a.v, &a.p, &ctx), ATTN_OK);
    first.s = &a, second.s = &b;
    first.d_o = recurrent_rows(f->d_o, 0, cut), second.d_o = recurrent_rows(f->d_o, cut, 150 - cut);
    for (int i = 0; i < OUTPUTS; i++) {
      if (!f->d[i].data || i == 7) {
        first.d[i] = second.d[i] = absent();
        continue;
      }
      const attn_tensor all = like(&f->d[i]);
      first.d[i] = recurrent_rows(all, 0, cut), second.d[i] = recurrent_rows(all, cut, 150 - cut);
    }
    memset(&first.g, 0, sizeof first.g), memset(&second.g, 0, sizeof second.g);
    second.g.d_final_state = f->g.d_final_state, second.g.d_initial_state = d_middle;
    first.g.d_final_state = d_middle, first.g.d_initial_state = like(&middle);
    if (counts) {
      second.g.d_final_n = f->g.d_final_n, second.g.d_final_m = f->g.d_final_m;
      second.g.d_initial_n = first.g.d_final_n = like(&b.p.initial_n);
      second.g.d_initial_m = first.g.d_final_m = like(&b.p.initial_m);
      first.g.d_initial_n = like(&a.p.initial_n), first.g.d_initial_m = like(&a.p.initial_m);
    }
    assert_int_equal(run(&second, &ctx), ATTN_OK);
    assert_int_equal(run(&first, &ctx), ATTN_OK);
    for (int i = 0; i < OUTPUTS; i++)
      if (first.d[i].data) {
        const cube all = cube_from(&f->d[i]);
        double most = 0;
        for (int64_t e = 0; e < all.batch * all.heads * all.len * all.dim; e++)
          most = fmax(most, fabs(all.data[e]));
        for (int64_t e = 0; e < all.heads * all.len; e++)
          for (int64_t c = 0; c < all.dim; c++) {
            const int64_t h = e / all.len, r = e % all.len;
            const double got = r < cut ? oracle_get(&first.d[i], 0, h, r, c)
                                       : oracle_get(&second.d[i], 0, h, r - cut, c);
            value_check(got, cube_at(&all, 0, h, r)[c], 2e-5 * most, ATTN_F32, names[i], 0, h, r,
                        c);
          }
      }
    const cube begin = cube_from(&f->g.d_initial_state);
    cube_check(&begin, &first.g.d_initial_state, 2e-5, "d_initial_state");
    if (!counts) continue;
    const cube n_begin = cube_from(&f->g.d_initial_n), m_begin = cube_from(&f->g.d_initial_m);
    cube_check(&n_begin, &first.g.d_initial_n, 2e-5, "d_initial_n");
    cube_check(&m_begin, &first.g.d_initial_m, 2e-5, "d_initial_m");
  }
}

/* Level after level [dk, dv] of t as [dv, dk], or back. */
static attn_tensor turned(const attn_tensor *t, int64_t dk, int64_t dv, int back) {
  const int64_t levels = t->len / (back ? dv : dk);
  const attn_tensor y = test_tensor(ATTN_F32, TEST_PADDED, t->batch, t->heads,
                                    levels * (back ? dk : dv), back ? dv : dk);
  for (int64_t n = 0; n < t->batch * t->heads * levels * dk * dv; n++) {
    const int64_t c = n % dv, r = n / dv % dk, l = n / dv / dk % levels, u = n / dv / dk / levels;
    const int64_t b = u / t->heads, h = u % t->heads;
    if (back)
      oracle_set(&y, b, h, l * dk + r, c, oracle_get(t, b, h, l * dv + c, r));
    else
      oracle_set(&y, b, h, l * dv + c, r, oracle_get(t, b, h, l * dk + r, c));
  }
  return y;
}

/* States that lie turned: the same bits. */
void N5_recurrent_turned(void **state) {
  (void)state;
  test_rng rng = test_seed(9910);
  for (int n = 0; n < 24; n++, test_mem_release()) {
    recurrent_shape x = shape(n, 80, &rng);
    x.keep = 1, x.dk = 5, x.dv = 3;
    if (n > 11) levels(&x, 29);
    fading *f = build(&x, &rng);
    promise_run(&f->does);
    fading t = *f;
    recurrent_scene s = *f->s;
    attn_ctx ctx = test_ctx();
    t.s = &s, s.p.state_transposed = 1;
    s.p.initial_state = turned(&f->s->p.initial_state, 5, 3, 0);
    s.p.final_state = turned(&f->s->p.final_state, 5, 3, 0);
    t.g.d_final_state = turned(&f->g.d_final_state, 5, 3, 0);
    t.g.d_initial_state = like(&s.p.initial_state);
    t.g.d_a_log = t.g.d_dt_bias = t.g.d_skip = NULL;
    if (f->g.d_initial_m.data)
      t.g.d_initial_n = like(&f->g.d_initial_n), t.g.d_initial_m = like(&f->g.d_initial_m);
    for (int i = 0; i < OUTPUTS; i++) t.d[i] = f->d[i].data ? like(&f->d[i]) : absent();
    assert_int_equal(run(&t, &ctx), ATTN_OK);
    for (int i = 0; i < OUTPUTS; i++)
      if (f->d[i].data) test_assert_same(t.d[i], f->d[i], names[i]);
    const attn_tensor back = turned(&t.g.d_initial_state, 5, 3, 1);
    test_assert_same(back, f->g.d_initial_state, "d_initial_state");
    t.g.accumulate = 1;
    assert_int_equal(run(&t, &ctx), ATTN_OK);
    cube twice = cube_from(&back);
    for (int64_t e = 0; e < twice.batch * twice.heads * twice.len * twice.dim; e++)
      twice.data[e] *= 2;
    const attn_tensor again = turned(&t.g.d_initial_state, 5, 3, 1);
    cube_check(&twice, &again, 1e-5, "d_initial_state twice");
  }
}

/* Outputs by themselves, twice, of sequences; what does not exist holds anything. */
void N5_recurrent_outputs(void **state) {
  (void)state;
  test_rng rng = test_seed(9904);
  for (int n = 0; n < 36; n++, test_mem_release()) {
    recurrent_shape x = shape(n, 40, &rng);
    x.batch = 1, x.shared = 1;
    if (n % 3) x.sequences = 3, x.keep = 1;
    if (n > 17) levels(&x, n % 4 ? 21 : 0);
    fading *f = build(&x, &rng);
    static const int32_t marks[] = {0, 17, 17, 40}, len[] = {31};
    if (x.sequences) f->s->p.cu_seqlens = marks, f->s->p.sequences = 3;
    if (n % 3 == 0) f->s->p.len = len;
    promise_run(&f->does);
    if (n % 3 == 1) { /* one without tokens hands on */
      const attn_tensor *d = &f->g.d_initial_state, *e = &f->g.d_final_state;
      for (int64_t r = 0; r < d->len; r++)
        for (int64_t c = 0; c < d->dim; c++)
          assert_true(oracle_get(d, 1, 0, r, c) == oracle_get(e, 1, 0, r, c));
      if (f->g.d_initial_m.data)
        assert_true(oracle_get(&f->g.d_initial_m, 1, 0, 0, 0) ==
                    oracle_get(&f->g.d_final_m, 1, 0, 0, 0));
    }
    fading t = *f;
    t.g.d_initial_state = t.g.d_initial_n = t.g.d_initial_m = absent(),
    t.g.d_a_log = t.g.d_dt_bias = t.g.d_skip = NULL;
    int only = n % OUTPUTS;
    while (!f->d[only].data) only = (only + 1) % OUTPUTS;
    for (int i = 0; i < OUTPUTS; i++) t.d[i] = i == only ? like(&f->d[i]) : absent();
    attn_ctx ctx = test_ctx();
    for (int64_t i = 31; n % 3 == 0 && i < 40; i++) {
      test_fill_row(f->s->q, 0, 0, i, (double)NAN), test_fill_row(f->s->v, 0, 0, i, (double)NAN);
      test_fill_row(f->d_o, 0, 0, i, (double)NAN);
    }
    assert_int_equal(run(&t, &ctx), ATTN_OK);
    test_assert_same(t.d[only], f->d[only], "by itself");
    t.g.accumulate = 1;
    assert_int_equal(run(&t, &ctx), ATTN_OK);
    const attn_tensor *y = &t.d[only];
    for (int64_t i = 0; i < y->len; i++)
      value_check(oracle_get(y, 0, 0, i, 0), 2 * oracle_get(&f->d[only], 0, 0, i, 0), 1e-6,
                  ATTN_F32, "twice", 0, 0, i, 0);
  }
}

/* No batch entry, no token: arrays are 0 all the same. */
void N5_recurrent_nothing(void **state) {
  (void)state;
  test_rng rng = test_seed(9907);
  for (int n = 0; n < 2; n++, test_mem_release()) {
    recurrent_shape x = recurrent_plain(ATTN_RECURRENT_MAMBA2, 2, n ? 0 : 3, 4, 3);
    fading *f = build(&x, &rng);
    attn_tensor *const t[] = {&f->s->q, &f->s->k, &f->s->v, &f->s->p.dt, &f->d_o,
                              &f->d[0], &f->d[1], &f->d[2], &f->d[8]};
    for (int i = 0; !n && i < 9; i++) t[i]->batch = 0;
    test_fill_value(f->arrays, 7);
    promise_run(&f->does);
    for (int i = 0; i < ARRAYS; i++)
      for (int h = 0; h < 2; h++) assert_true(oracle_get(&f->arrays, i, 0, 0, h) == 0);
  }
}

/* A reset lets nothing through, NaN included. */
void N5_recurrent_reset(void **state) {
  (void)state;
  test_rng rng = test_seed(9905);
  for (int n = 0; n < 12; n++, test_mem_release()) {
    recurrent_shape x = recurrent_plain((attn_recurrent_rule)n, 1, 90, 5, 4);
    fading *f = build(&x, &rng);
    uint8_t *reset = test_mem(90);
    memset(reset, 0, 90);
    reset[50] = 1;
    f->s->p.reset = reset;
    oracle_set(&f->d_o, 0, 0, 60, 1, (double)NAN);
    for (int64_t i = 50; x.rule == ATTN_RECURRENT_MLSTM && i < 90;
         i++) /* its maximum is the reset's */
      oracle_set(&f->s->p.gate, 0, 0, i, 0, -100), oracle_set(&f->s->p.decay, 0, 0, i, 0, -0.125);
    promise_run(&f->does);
    for (int64_t i = 0; i < 50; i++)
      for (int o = 0; o < OUTPUTS; o++)
        for (int64_t c = 0; f->d[o].len > 1 && c < f->d[o].dim; c++)
          assert_true(isnan(oracle_get(&f->d[o], 0, 0, i, c)) == 0);
    if (f->d[9].data) assert_true(isnan(oracle_get(&f->d[3], 0, 0, 50, 0)));
    assert_true(isnan(oracle_get(&f->d[0], 0, 0, 60, 0)) ||
                isnan(oracle_get(&f->d[2], 0, 0, 59, 1)));
    for (int64_t i = 61; i < 90; i++) assert_true(isnan(oracle_get(&f->d[2], 0, 0, i, 1)) == 0);
  }
}

/* All lambda = 1 is the plain rule, whose q . d_q is the sum of what reaches lambda. */
void N5_recurrent_levels(void **state) {
  (void)state;
  test_rng rng = test_seed(9908);
  for (int n = 0; n < 12; n++, test_mem_release()) {
    recurrent_shape x = recurrent_plain((attn_recurrent_rule)n, 1, 300, 7, 5);
    x.slow = 0.05;
    levels(&x, 0);
    if (!x.levels) continue;
    fading *f = build(&x, &rng);
    test_fill_value(f->s->p.lambda, 1);
    for (int64_t i = 0; i < x.len; i++) /* what no token is in is not read */
      for (int64_t l = 1; l < x.levels; l++)
        if (!(i >> (l - 1) & 1)) oracle_set(&f->s->p.lambda, 0, 0, i, l, (double)NAN);
    f->s->p.scale = 1;
    fading plain = *f;
    recurrent_scene s = *f->s;
    attn_ctx ctx = test_ctx();
    plain.s = &s, s.p.lambda = absent(), s.p.position = NULL;
    for (int i = 0; i < OUTPUTS; i++)
      plain.d[i] = f->d[i].data && i < 10 ? like(&f->d[i]) : absent();
    plain.arrays = test_tensor(ATTN_F32, TEST_BHTD, 3, 1, 1, 1);
    if (f->g.d_a_log) {
      plain.g.d_a_log = plain.arrays.data, plain.g.d_dt_bias = plain.g.d_a_log + 1;
      plain.g.d_skip = plain.g.d_a_log + 2;
    }
    promise_run(&f->does);
    assert_int_equal(run(&plain, &ctx), ATTN_OK);
    for (int i = 0; i < 10; i++) {
      if (!f->d[i].data) continue;
      const cube want = cube_from(&plain.d[i]);
      double most = 0;
      for (int64_t e = 0; e < want.len * want.dim; e++) most = fmax(most, fabs(want.data[e]));
      cube_check(&want, &f->d[i], 1e-5 * most, names[i]);
    }
    for (int64_t i = 0; i < x.len; i++) {
      double sum = 0, want = 0, size = 0;
      for (int64_t l = 0; l < x.levels; l++) {
        sum += oracle_get(&f->d[10], 0, 0, i, l), size += fabs(oracle_get(&f->d[10], 0, 0, i, l));
        if (l && !(i >> (l - 1) & 1)) assert_true(oracle_get(&f->d[10], 0, 0, i, l) == 0);
      }
      for (int64_t c = 0; c < x.dk; c++)
        want += oracle_get(&f->s->q, 0, 0, i, c) * oracle_get(&f->d[0], 0, 0, i, c);
      value_check(sum, want, 1e-5 * (1 + size), ATTN_F32, "q . d_q", 0, 0, i, -1);
    }
  }
}

/* NaN of a key or value reaches lambda of the levels that its token is in, of `a` those whose tokens it reads. */
void N5_recurrent_levels_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(9909);
  for (int n = 0; n < 6; n++, test_mem_release()) {
    enum { K, V, A };
    const int of = n % 3;
    recurrent_shape x =
        recurrent_plain(of == A ? ATTN_RECURRENT_DPLR : ATTN_RECURRENT_GLA, 1, 150, 5, 4);
    levels(&x, 0);
    fading *f = build(&x, &rng);
    const int64_t j = n < 3 ? 37 : 40;
    attn_tensor *const t[] = {&f->s->k, &f->s->v, &f->s->p.a};
    oracle_set(t[of], 0, 0, j, 2, (double)NAN);
    promise_run(&f->does);
    for (int64_t i = 0; i < x.len; i++)
      for (int64_t l = 0; l < x.levels; l++) {
        const int64_t half = l ? (int64_t)1 << (l - 1) : 1, first = l ? (i & -half) - half : i;
        const int held = !l || (i >> (l - 1) & 1);
        const int in = held && i >= j && first < j + (of != A) && (of == A || j < first + half);
        assert_int_equal(isnan(oracle_get(&f->d[10], 0, 0, i, l)) != 0, in);
      }
    for (int64_t i = 0; of != A && i < j; i++)
      for (int64_t c = 0; c < x.dv; c++) assert_true(isnan(oracle_get(&f->d[2], 0, 0, i, c)) == 0);
  }
}

void N5_recurrent_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9906);
  for (int n = 0; n < 20; n++, test_mem_release()) {
    recurrent_shape x = recurrent_plain(n > 13    ? ATTN_RECURRENT_MLSTM
                                        : n == 12 ? ATTN_RECURRENT_GLA
                                                  : ATTN_RECURRENT_KDA,
                                        2, 20, 4, 3);
    x.keep = n != 8 && n != 12, x.levels = n == 12 ? 6 : 0;
    fading *f = build(&x, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "gradient";
    switch (n) {
      case 0: f->d[0].dim = 3; break;
      case 1: f->d[1].len = 19; break;
      case 2: f->d[3].dim = 1; break;
      case 3: f->d_o.heads = 1, word = "d_o"; break;
      case 4: f->d_o.data = NULL, want = ATTN_E_NULL, word = "d_o"; break;
      case 5: f->g.accumulate = 2, want = ATTN_E_RANGE, word = "accumulate"; break;
      case 6: f->d[4] = f->d[0], want = ATTN_E_NULL; break;
      case 7: f->d[0].data = f->s->q.data, want = ATTN_E_OVERLAP, word = "d_q"; break;
      case 8:
        f->g.d_initial_state = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 4, 3);
        want = ATTN_E_NULL, word = "d_initial_state";
        break;
      case 9: f->g.d_final_state.len = 3, word = "d_final_state"; break;
      case 10: f->g.d_skip = test_floats(2, 1, &rng), want = ATTN_E_NULL; break;
      case 11: f->s->p.decay.dim = 2, word = "decay"; break;
      case 12: f->d[10].dim = 5; break;
      case 13:
        f->g.d_final_m = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 1, 1), want = ATTN_E_NULL;
        break;
      case 14: f->d[9].dim = 2; break;
      case 15: f->g.d_final_n.dim = 3, word = "d_final_n"; break;
      case 16: f->g.d_initial_m.heads = 1, word = "d_initial_m"; break;
      case 17:
        f->g.d_initial_n.data = f->s->p.initial_n.data, want = ATTN_E_OVERLAP, word = "d_initial_n";
        break;
      case 18: f->d[9].data = f->s->p.gate.data, want = ATTN_E_OVERLAP, word = "d_gate"; break;
      default: f->d[10] = like(&f->d[0]), want = ATTN_E_NULL; break;
    }
    promise_reject(&f->does, want, word);
  }
}
