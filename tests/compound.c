/* tests/compound.c owns the float64 softmax over gathered keys and the promises of compound calls.
 */

#include "compound.h"

bag bag_of(int64_t room, int64_t dv) {
  bag a = {0, room, dv, NULL, NULL, NULL, 0, 0};
  a.x = test_mem((size_t)(room + 1) * sizeof(double));
  a.v = test_mem((size_t)((room + 1) * dv) * sizeof(double));
  a.o = test_mem((size_t)dv * sizeof(double));
  return a;
}

void bag_empty(bag *a) { a->n = 0; }

void bag_add(bag *a, double x, const attn_tensor *v, int64_t b, int64_t h, int64_t j) {
  assert_true(a->n < a->room);
  a->x[a->n] = x;
  for (int64_t c = 0; c < a->dv; c++) a->v[a->n * a->dv + c] = oracle_get(v, b, h, j, c);
  a->n++;
}

void bag_close(bag *a) {
  double top = -(double)INFINITY, sum = 0;
  for (int64_t c = 0; c < a->dv; c++) a->o[c] = 0;
  a->value = 0;
  a->lse = -(double)INFINITY;
  for (int64_t j = 0; j < a->n; j++) top = fmax(top, a->x[j]);
  for (int64_t j = 0; j < a->n; j++) sum += exp(a->x[j] - top);
  for (int64_t j = 0; j < a->n; j++) {
    for (int64_t c = 0; c < a->dv; c++) {
      a->o[c] += exp(a->x[j] - top) / sum * a->v[j * a->dv + c];
      a->value = fmax(a->value, fabs(a->v[j * a->dv + c]));
    }
  }
  if (a->n) a->lse = top + log(sum);
}

int64_t head_of(const attn_tensor *k, int64_t h, int64_t heads) { return h * k->heads / heads; }

double dot_rows(const attn_tensor *q, const attn_tensor *k, int64_t b, int64_t h, int64_t i,
                int64_t j) {
  double sum = 0;
  int64_t hk = head_of(k, h, q->heads);
  for (int64_t c = 0; c < q->dim; c++)
    sum += oracle_get(q, b, h, i, c) * oracle_get(k, b, hk, j, c);
  return sum;
}

double scale_of(float scale, int64_t dk) {
  if (scale != 0.0f) return (double)scale;
  return signbit(scale) ? 0.0 : 1.0 / sqrt((double)dk);
}

void value_check(double got, double want, double tolerance, attn_dtype type, const char *what,
                 int64_t b, int64_t h, int64_t i, int64_t c) {
  double unit = type == ATTN_BF16 ? 1.0 / 256 : type == ATTN_F16 ? 1.0 / 2048 : 0;
  if (got == want || fabs(got - want) <= tolerance + unit * fabs(want) + (unit > 0 ? 1e-7 : 0))
    return;
  fail_msg("%s: [%d,%d,%d,%d] is %.9g, not %.9g", what, (int)b, (int)h, (int)i, (int)c, got, want);
}

void bag_check(const bag *a, const attn_tensor *o, const attn_tensor *lse, int64_t b, int64_t h,
               int64_t i, double tolerance, const char *what) {
  for (int64_t c = 0; c < a->dv; c++) {
    double got = oracle_get(o, b, h, i, c);
    value_check(got, a->o[c], tolerance * a->value, o->dtype, what, b, h, i, c);
  }
  if (!lse || !lse->data) return;
  value_check(oracle_get(lse, b, h, i, 0), a->lse, tolerance * fmax(1, fabs(a->lse)), ATTN_F32,
              what, b, h, i, -1);
}

attn_tensor drawn(attn_dtype dtype, test_layout layout, int64_t batch, int64_t heads, int64_t len,
                  int64_t dim, double size, test_rng *rng) {
  attn_tensor t = test_tensor(dtype, layout, batch, heads, len, dim);
  for (int64_t b = 0; b < batch; b++) {
    for (int64_t h = 0; h < heads; h++) {
      for (int64_t i = 0; i < len; i++) {
        for (int64_t c = 0; c < dim; c++) oracle_set(&t, b, h, i, c, size * test_normal(rng));
      }
    }
  }
  return t;
}

attn_tensor absent(void) {
  attn_tensor t;
  memset(&t, 0, sizeof t);
  return t;
}

attn_tensor output(attn_dtype dtype, test_layout layout, int64_t batch, int64_t heads, int64_t len,
                   int64_t dim, test_block *block) {
  attn_tensor t = test_tensor(dtype, layout, batch, heads, len, dim);
  if (block) *block = test_last_block;
  return t;
}

cube cube_of(int64_t batch, int64_t heads, int64_t len, int64_t dim) {
  cube a = {batch, heads, len, dim, NULL};
  a.data = test_mem((size_t)(batch * heads * len * dim + 1) * sizeof(double));
  return a;
}

double *cube_at(const cube *a, int64_t b, int64_t h, int64_t i) {
  return a->data + ((b * a->heads + h) * a->len + i) * a->dim;
}

cube cube_from(const attn_tensor *t) {
  cube a = cube_of(t->batch, t->heads, t->len, t->dim);
  for (int64_t n = 0; n < t->batch * t->heads * t->len; n++) {
    int64_t b = n / t->len / t->heads, h = n / t->len % t->heads, i = n % t->len;
    for (int64_t c = 0; c < t->dim; c++) cube_at(&a, b, h, i)[c] = oracle_get(t, b, h, i, c);
  }
  return a;
}

cube cube_times(const cube *x, const attn_tensor *w) {
  if (!w->data) return *x;
  cube y = cube_of(x->batch, x->heads, x->len, w->dim);
  for (int64_t n = 0; n < x->batch * x->heads * x->len; n++) {
    int64_t b = n / x->len / x->heads, h = n / x->len % x->heads, i = n % x->len;
    for (int64_t c = 0; c < w->dim; c++) {
      double sum = 0;
      for (int64_t d = 0; d < x->dim; d++) {
        sum += cube_at(x, b, h, i)[d] * oracle_get(w, 0, w->heads > 1 ? h : 0, d, c);
      }
      cube_at(&y, b, h, i)[c] = sum;
    }
  }
  return y;
}

void cube_row(double *o, double *lse, const double *q, const cube *k, const cube *v, int64_t b,
              int64_t h, const int64_t *keys, int64_t n, double scale) {
  double top = -(double)INFINITY, sum = 0;
  for (int64_t c = 0; c < v->dim; c++) o[c] = 0;
  for (int pass = 0; pass < 3; pass++) {
    for (int64_t e = 0; e < n; e++) {
      double x = 0;
      for (int64_t c = 0; c < k->dim; c++) x += q[c] * cube_at(k, b, h, keys[e])[c];
      x *= scale;
      if (pass == 0) top = fmax(top, x);
      if (pass == 1) sum += exp(x - top);
      if (pass < 2) continue;
      for (int64_t c = 0; c < v->dim; c++) {
        o[c] += exp(x - top) / sum * cube_at(v, b, h, keys[e])[c];
      }
    }
  }
  if (lse) *lse = n ? top + log(sum) : -(double)INFINITY;
}

void cube_check(const cube *want, const attn_tensor *got, double tolerance, const char *what) {
  double size = 0;
  for (int64_t n = 0; n < want->batch * want->heads * want->len * want->dim; n++) {
    if (fabs(want->data[n]) < 1e300) size = fmax(size, fabs(want->data[n]));
  }
  for (int64_t n = 0; n < want->batch * want->heads * want->len; n++) {
    int64_t b = n / want->len / want->heads, h = n / want->len % want->heads, i = n % want->len;
    for (int64_t c = 0; c < want->dim; c++) {
      value_check(oracle_get(got, b, h, i, c), cube_at(want, b, h, i)[c], tolerance * fmax(1, size),
                  got->dtype, what, b, h, i, c);
    }
  }
}

void promise_run(const promise *p) {
  attn_ctx ctx = test_ctx();
  attn_status status = p->call(p->scene, &ctx);
  if (status != ATTN_OK) fail_msg("%s: %s", attn_status_string(status), ctx.reason);
  assert_int_equal(ctx.report.isa, test_isa);
  assert_non_null(ctx.report.path);
}

/* Dense copies of the outputs. */
static void snapshot(const promise *p, attn_tensor copy[4]) {
  for (int n = 0; n < 4; n++) {
    if (!p->out[n] || !p->out[n]->data) continue;
    const attn_tensor *t = p->out[n];
    copy[n] = test_tensor(t->dtype, TEST_BHTD, t->batch, t->heads, t->len, t->dim);
    test_copy(copy[n], *t);
  }
}

static void compare(const promise *p, const attn_tensor copy[4], const char *what) {
  for (int n = 0; n < 4; n++) {
    if (!p->out[n] || !p->out[n]->data) continue;
    test_assert_same(*p->out[n], copy[n], what);
  }
}

static void spoil(const promise *p) {
  for (int n = 0; n < 4; n++) {
    if (p->out[n] && p->out[n]->data) test_fill_value(*p->out[n], 7);
  }
}

void promise_keep(const promise *p) {
  static const attn_parallel_fn order[3] = {test_parallel_forward, test_parallel_backward,
                                            test_parallel_threads};
  attn_tensor first[4], sevens[4];
  spoil(p);
  snapshot(p, sevens);
  promise_run(p);
  snapshot(p, first);
  for (int n = 0; n < 6; n++) {
    if (test_fast > 1 && n % 4 != 1) continue;
    attn_ctx ctx = test_ctx();
    int64_t most = 0;
    ctx.workers = 2 + n, ctx.parallel_for = order[n % 3], ctx.parallel_user = &most;
    size_t size = p->ask(p->scene, &ctx);
    assert_true(size > 0);
    int tight = n >= 3;
    test_where = TEST_BEFORE_GUARD;
    if (tight) ctx.workspace = test_mem(size), ctx.workspace_size = size;
    test_where = TEST_HEAP;
    spoil(p);
    int64_t calls = test_malloc_calls;
    attn_status status = p->call(p->scene, &ctx);
    if (status != ATTN_OK)
      fail_msg("%d workers: %s (%s)", 2 + n, attn_status_string(status), ctx.reason);
    if (tight && !p->mallocs) assert_int_equal(test_malloc_calls, calls);
    assert_true(most <= 2 + n);
    compare(p, first, "workers");
  }
  attn_ctx ctx = test_ctx();
  size_t size = p->ask(p->scene, &ctx);
  ctx.workspace = test_mem(size), ctx.workspace_size = size - 1;
  spoil(p);
  assert_int_equal(p->call(p->scene, &ctx), ATTN_E_WORKSPACE);
  compare(p, sevens, "workspace too small");
  ctx = test_ctx();
  test_malloc_fails = 1;
  attn_status status = p->call(p->scene, &ctx);
  test_malloc_fails = 0;
  assert_int_equal(status, ATTN_E_MEMORY);
  compare(p, sevens, "no memory");
}

void promise_reject(const promise *p, attn_status status, const char *word) {
  attn_ctx ctx = test_ctx();
  unsigned char *before[4] = {NULL};
  for (int n = 0; n < 4; n++) {
    if (!p->block[n].data) continue;
    before[n] = test_mem(p->block[n].size);
    memcpy(before[n], p->block[n].data, p->block[n].size);
  }
  attn_status got = p->call(p->scene, &ctx);
  if (got != status || !ctx.reason || !strstr(ctx.reason, word)) {
    fail_msg("%s, not %s about %s (%s)", attn_status_string(got), attn_status_string(status), word,
             ctx.reason ? ctx.reason : "no reason");
  }
  for (int n = 0; n < 4; n++) {
    if (before[n]) assert_memory_equal(before[n], p->block[n].data, p->block[n].size);
  }
}

int linear_causal(const attn_linear_params *p) {
  return p->causal == 0 ? p->rule != ATTN_LINEAR_SUM : p->causal == ATTN_LINEAR_CAUSAL;
}

int linear_order(int causal) { return causal ? ATTN_LINEAR_CAUSAL : ATTN_LINEAR_BIDIRECTIONAL; }
