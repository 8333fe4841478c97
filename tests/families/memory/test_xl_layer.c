/* tests/families/memory/test_xl_layer.c owns the layer of Transformer-XL. */

#include "compound.h"

typedef struct scene {
  attn_tensor o, x;
  attn_xl_layer_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_xl_layer(s->o, s->x, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_xl_layer_workspace(s->o, s->x, &s->p, ctx);
}

typedef struct shape {
  int64_t batch, tokens, memory, dm, heads, dk, dv, out; /* out 0: no w_o */
  attn_dtype type;
  int bias;
} shape;

static scene *build(const shape *x, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  double size = 1 / sqrt((double)x->dm);
  s->x = drawn(x->type, TEST_PADDED, x->batch, 1, x->tokens, x->dm, 1, rng);
  s->p.heads = x->heads;
  if (x->memory) s->p.mem = drawn(ATTN_F32, TEST_BHTD, x->batch, 1, x->memory, x->dm, 1, rng);
  s->p.w_q = drawn(x->type, TEST_PADDED, 1, 1, x->dm, x->heads * x->dk, size, rng);
  s->p.w_k = drawn(ATTN_F32, TEST_BHTD, 1, 1, x->dm, x->heads * x->dk, size, rng);
  s->p.w_r = drawn(ATTN_F32, TEST_NEGATIVE, 1, 1, x->dm, x->heads * x->dk, size, rng);
  s->p.w_v = drawn(x->type, TEST_BHTD, 1, 1, x->dm, x->heads * x->dv, size, rng);
  if (x->out) s->p.w_o = drawn(ATTN_F32, TEST_BHTD, 1, 1, x->heads * x->dv, x->out, 0.3, rng);
  if (x->bias & 1) s->p.u = test_floats(x->heads * x->dk, 0.5, rng);
  if (x->bias & 2) s->p.v = test_floats(x->heads * x->dk, 0.5, rng);
  s->o = output(x->type, TEST_BTHD, x->batch, x->out ? 1 : x->heads, x->tokens,
                x->out ? x->out : x->dv, &s->does.block[0]);
  s->p.lse = output(ATTN_F32, TEST_BHTD, x->batch, x->heads, x->tokens, 1, &s->does.block[1]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o, s->does.out[1] = &s->p.lse;
  return s;
}

/* Column h n + c of weight w as head h, column c. */
static attn_tensor head_views(attn_tensor w, int64_t heads) {
  w.heads = heads, w.dim /= heads, w.stride_head = w.dim;
  return w;
}

/* [mem ; x] of every head. */
static cube context(const scene *s, int64_t heads, int64_t from) {
  int64_t m = s->p.mem.data ? s->p.mem.len : 0, n = m + s->x.len - from;
  cube c = cube_of(s->x.batch, heads, n, s->x.dim);
  for (int64_t r = 0; r < c.batch * heads * n; r++) {
    int64_t b = r / n / heads, h = r / n % heads, i = r % n;
    for (int64_t d = 0; d < c.dim; d++) {
      cube_at(&c, b, h, i)[d] = i + from < m ? oracle_get(&s->p.mem, b, 0, i + from, d)
                                             : oracle_get(&s->x, b, 0, i + from - m, d);
    }
  }
  return c;
}

static void check(const scene *s, double tolerance, const char *what) {
  int64_t heads = s->p.heads ? s->p.heads : 1, m = s->p.mem.data ? s->p.mem.len : 0;
  int64_t n = s->x.len, dk = s->p.w_q.dim / heads, dv = s->p.w_v.dim / heads, dm = s->x.dim;
  attn_tensor w_q = head_views(s->p.w_q, heads), w_k = head_views(s->p.w_k, heads);
  attn_tensor w_r = head_views(s->p.w_r, heads), w_v = head_views(s->p.w_v, heads);
  cube all = context(s, heads, 0), own = context(s, heads, m),
       one = cube_of(1, heads, m + 2 * n, dm);
  cube q = cube_times(&own, &w_q), k = cube_times(&all, &w_k), v = cube_times(&all, &w_v);
  double base = s->p.base == 0 ? 10000 : s->p.base;
  for (int64_t r = 0; r < heads * one.len; r++) {
    double t = (double)(r % one.len - n); /* distances -n .. m + n - 1 */
    int64_t half = (dm + 1) / 2;
    for (int64_t c = 0; c < dm; c++) {
      int64_t pair = s->p.interleaved ? c / 2 : c % half;
      int sine = s->p.interleaved ? c % 2 == 0 : c < half;
      double phi = t * pow(base, -2.0 * (double)pair / (double)dm);
      cube_at(&one, 0, r / one.len, r % one.len)[c] = sine ? sin(phi) : cos(phi);
    }
  }
  cube table = cube_times(&one, &w_r), out = cube_of(s->x.batch, heads, n, dv);
  cube lse = cube_of(s->x.batch, heads, n, 1);
  double scale = scale_of(s->p.scale, dk), *x = test_mem((size_t)(m + n) * sizeof *x);
  for (int64_t r = 0; r < s->x.batch * heads * n; r++) {
    int64_t b = r / n / heads, h = r / n % heads, i = r % n;
    int64_t keys = s->p.bidirectional ? m + n : m + i + 1;
    double top = -(double)INFINITY, sum = 0;
    for (int64_t j = 0; j < keys; j++) {
      x[j] = 0;
      for (int64_t c = 0; c < dk; c++) {
        double u = s->p.u ? (double)s->p.u[h * dk + c] : 0,
               w = s->p.v ? (double)s->p.v[h * dk + c] : 0;
        double qc = cube_at(&q, b, h, i)[c];
        x[j] +=
            (qc + u) * cube_at(&k, b, h, j)[c] + (qc + w) * cube_at(&table, 0, h, m + i - j + n)[c];
      }
      x[j] *= scale;
      top = fmax(top, x[j]);
    }
    for (int64_t j = 0; j < keys; j++) sum += exp(x[j] - top);
    for (int64_t c = 0; c < dv; c++) {
      double y = 0;
      for (int64_t j = 0; j < keys; j++) y += exp(x[j] - top) / sum * cube_at(&v, b, h, j)[c];
      cube_at(&out, b, h, i)[c] = y;
    }
    *cube_at(&lse, b, h, i) = top + log(sum);
  }
  cube_check(&lse, &s->p.lse, tolerance, what);
  if (!s->p.w_o.data) {
    cube_check(&out, &s->o, tolerance, what);
    return;
  }
  cube side = cube_of(s->x.batch, 1, n, heads * dv);
  for (int64_t r = 0; r < s->x.batch * heads * n; r++) {
    int64_t b = r / n / heads, h = r / n % heads, i = r % n;
    for (int64_t c = 0; c < dv; c++)
      cube_at(&side, b, 0, i)[h * dv + c] = cube_at(&out, b, h, i)[c];
  }
  cube final = cube_times(&side, &s->p.w_o);
  cube_check(&final, &s->o, tolerance, what);
}

void B4_layer_random(void **state) {
  (void)state;
  test_rng rng = test_seed(400);
  for (int64_t n = test_count(24, 6); n-- > 0;) {
    shape x = {test_range(&rng, 1, 2),
               test_range(&rng, 1, n % 4 ? 20 : 90),
               n % 3 ? test_range(&rng, 1, 40) : 0,
               n == 3 ? 139 : test_range(&rng, 1, 20),
               test_range(&rng, 1, 3),
               test_range(&rng, 1, 10),
               test_range(&rng, 1, 10),
               n & 1 ? test_range(&rng, 1, 20) : 0,
               (attn_dtype)(n % 6 == 0 ? 1 + n / 6 % 2 : 0),
               (int)(n % 4)};
    scene *s = build(&x, &rng);
    s->p.bidirectional = n % 3 == 1, s->p.interleaved = n % 4 == 2;
    s->p.base = n % 5 == 3 ? 100 : 0;
    if (n % 6 == 5) s->p.scale = 0.4f;
    promise_run(&s->does);
    check(s, 3e-5, "xl layer");
  }
}

/* With the preceding inputs as memory, the last rows are those of one call on everything. */
void B4_layer_memory(void **state) {
  (void)state;
  test_rng rng = test_seed(401);
  shape x = {1, 50, 0, 16, 2, 8, 8, 0, ATTN_F32, 3};
  scene *s = build(&x, &rng);
  promise_run(&s->does);
  attn_tensor whole = s->o, lse = s->p.lse, all = s->x;
  s->p.mem = test_rows(all, 0, 31), s->x = test_rows(all, 31, 19);
  s->o = output(ATTN_F32, TEST_BHTD, 1, 2, 19, 8, NULL);
  s->p.lse = output(ATTN_F32, TEST_BHTD, 1, 2, 19, 1, NULL);
  promise_run(&s->does);
  test_assert_near(s->o, test_rows(whole, 31, 19), 1e-5, "memory");
  test_assert_near(s->p.lse, test_rows(lse, 31, 19), 1e-5, "memory");
}

void B4_layer_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(402);
  for (int n = 0; n < 2; n++) {
    shape x = {n, n ? 0 : 4, 3, 8, 2, 4, 4, 0, ATTN_F32, 0};
    scene *s = build(&x, &rng);
    promise_run(&s->does);
  }
}

void B4_layer_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(403);
  shape x = {2, 70, 30, 24, 3, 8, 6, 24, ATTN_F16, 3};
  scene *s = build(&x, &rng);
  promise_keep(&s->does);
}

void B4_layer_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(404);
  for (int n = 0; n < 18; n++) {
    shape x = {1, 9, 4, 8, 2, 4, 3, 10, ATTN_F32, 3};
    scene *s = build(&x, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->x.heads = 2, s->x.stride_head = 0, word = "x must"; break;
      case 1: s->p.mem.dim = 7, word = "mem"; break;
      case 2: s->p.w_q.len = 7, word = "w_q"; break;
      case 3: s->p.w_k.dim = 6, word = "w_k"; break;
      case 4: s->p.w_r.dim = 6, word = "w_r"; break;
      case 5: s->p.w_v.len = 7, word = "w_v"; break;
      case 6: s->p.w_o.len = 5, word = "w_o"; break;
      case 7: s->o.dim = 9, word = "o must"; break;
      case 8: s->p.heads = 3, want = ATTN_E_HEADS, word = "heads"; break;
      case 9: s->p.heads = -1, word = "heads"; break;
      case 10: s->p.base = -1, want = ATTN_E_VALUE, word = "base"; break;
      case 11: s->p.scale = (float)NAN, want = ATTN_E_VALUE, word = "scale"; break;
      case 12: s->p.w_r.data = NULL, want = ATTN_E_NULL, word = "w_r"; break;
      case 13:
        s->p.u = (const float *)(const void *)((const char *)s->p.u + 1), want = ATTN_E_ALIGN,
        word = "u and";
        break;
      case 14: s->p.mem.data = s->o.data, want = ATTN_E_OVERLAP, word = "o is"; break;
      case 15: s->p.lse.len = 8, word = "lse"; break;
      case 16: s->p.w_o.data = NULL, word = "o must"; break;
      default: s->x.data = NULL, want = ATTN_E_NULL, word = "x.data"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
