/* tests/families/sparse/test_segmented.c owns attention inside groups: segmented attention with its exchange, and
 * hierarchies. */

#include "compound.h"

enum { H = 2 };

typedef struct scene {
  attn_tensor o, q, k, v;
  attn_segmented_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_segmented(s->o, s->q, s->k, s->v, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_segmented_workspace(s->o, s->q, s->k, s->v, &s->p, ctx);
}

/* Rows i0 .. i1 of head (b, h) as one, in float64. */
static void aggregate(double *z, const cube *y, int64_t b, int64_t h, int64_t i0, int64_t i1,
                      const attn_aggregate *how) {
  double *weight = test_mem((size_t)(i1 - i0) * sizeof *weight), sum = 0, top = -1e300;
  for (int64_t i = i0; i < i1; i++) {
    double t = 0;
    for (int64_t e = 0; how->kind == ATTN_AGGREGATE_ATTENTION && e < how->w.dim; e++) {
      double x = how->bias ? (double)how->bias[e] : 0;
      for (int64_t c = 0; c < y->dim; c++)
        x += cube_at(y, b, h, i)[c] * oracle_get(&how->w, 0, how->w.heads > 1 ? h : 0, c, e);
      t += (double)how->u[e] * tanh(x);
    }
    weight[i - i0] = t;
    top = fmax(top, t);
  }
  for (int64_t i = i0; i < i1; i++) sum += exp(weight[i - i0] - top);
  for (int64_t c = 0; c < y->dim; c++) {
    z[c] = how->kind == ATTN_AGGREGATE_MAX ? -(double)INFINITY : 0;
    for (int64_t i = i0; i < i1; i++) {
      double x = cube_at(y, b, h, i)[c];
      switch (how->kind) {
        case ATTN_AGGREGATE_MEAN: z[c] += x / (double)(i1 - i0); break;
        case ATTN_AGGREGATE_MAX: z[c] = fmax(z[c], x); break;
        case ATTN_AGGREGATE_SUM: z[c] += x; break;
        case ATTN_AGGREGATE_FIRST: z[c] = i == i0 ? x : z[c]; break;
        case ATTN_AGGREGATE_LAST: z[c] = x; break;
        default: z[c] += exp(weight[i - i0] - top) / sum * x; break;
      }
    }
  }
}

/* Attention inside segments of offsets[0..count]. */
static cube inside(const cube *q, const cube *k, const cube *v, const int64_t *offsets,
                   int64_t count, int causal, double scale, cube *lse) {
  cube y = cube_of(q->batch, q->heads, q->len, v->dim);
  int64_t *keys = test_mem((size_t)(q->len + 1) * sizeof *keys);
  for (int64_t r = 0; r < q->batch * q->heads * count; r++) {
    int64_t b = r / count / q->heads, h = r / count % q->heads, a = r % count;
    for (int64_t i = offsets[a]; i < offsets[a + 1]; i++) {
      int64_t n = 0;
      for (int64_t j = offsets[a]; j < offsets[a + 1]; j++) {
        if (!causal || j <= i) keys[n++] = j;
      }
      cube_row(cube_at(&y, b, h, i), lse ? cube_at(lse, b, h, i) : NULL, cube_at(q, b, h, i), k, v,
               b, h, keys, n, scale);
    }
  }
  return y;
}

/* All heads of k or v. */
static cube spread(const attn_tensor *t, int64_t heads) {
  cube a = cube_from(t), c = cube_of(t->batch, heads, t->len, t->dim);
  for (int64_t r = 0; r < t->batch * heads * t->len; r++) {
    int64_t b = r / t->len / heads, h = r / t->len % heads, i = r % t->len;
    memcpy(cube_at(&c, b, h, i), cube_at(&a, b, head_of(t, h, heads), i),
           (size_t)t->dim * sizeof(double));
  }
  return c;
}

static void check(const scene *s, const char *what) {
  const attn_segmented_params *p = &s->p;
  int64_t n = s->q.len, count = p->indptr ? p->segments : (n + p->length - 1) / p->length;
  int64_t *offsets = test_mem((size_t)(count + 1) * sizeof *offsets);
  int64_t *seg = test_mem((size_t)(n + 1) * sizeof *seg), full = 0;
  int64_t *keys = test_mem((size_t)(count + 1) * sizeof *keys);
  for (int64_t a = 0; a <= count; a++)
    offsets[a] = p->indptr ? p->indptr[a] : a * p->length < n ? a * p->length : n;
  for (int64_t a = 0; a < count; a++) {
    for (int64_t i = offsets[a]; i < offsets[a + 1]; i++) seg[i] = full;
    full += offsets[a] < offsets[a + 1];
  }
  cube q = cube_from(&s->q), k = spread(&s->k, H), v = spread(&s->v, H);
  cube lse = cube_of(q.batch, H, n, 1);
  cube y = inside(&q, &k, &v, offsets, count, p->causal, scale_of(p->scale, q.dim), &lse);
  cube_check(&lse, &p->lse, 3e-5, what);
  if (p->integrate == ATTN_INTEGRATE_NONE) {
    cube_check(&y, &s->o, 3e-5, what);
    return;
  }
  cube z = cube_of(q.batch, H, full, y.dim);
  for (int64_t r = 0; r < q.batch * H; r++) {
    for (int64_t a = 0, e = 0; a < count; a++) {
      if (offsets[a] == offsets[a + 1]) continue;
      aggregate(cube_at(&z, r / H, r % H, e++), &y, r / H, r % H, offsets[a], offsets[a + 1],
                &p->aggregate);
    }
  }
  int pool = p->integrate == ATTN_INTEGRATE_POOL, rows = p->integrate == ATTN_INTEGRATE_TOKEN;
  attn_tensor none = absent();
  cube qi = cube_times(rows ? &y : &z, pool ? &none : &p->w_q);
  cube ki = cube_times(&z, pool ? &none : &p->w_k), vi = cube_times(&z, &p->w_v);
  cube out = cube_of(q.batch, H, n, s->o.dim);
  double *u = test_mem((size_t)vi.dim * sizeof *u);
  double gain = p->gain != 0.0f ? (double)p->gain : signbit(p->gain) ? 0.0 : 1.0;
  for (int64_t r = 0; r < q.batch * H * n; r++) {
    int64_t b = r / n / H, h = r / n % H, i = r % n, seen = 0;
    for (int64_t a = 0; a < full; a++) {
      if (!p->causal || a < seg[i]) keys[seen++] = a;
    }
    for (int64_t c = 0; c < vi.dim; c++) u[c] = 0;
    for (int64_t e = 0; pool && e < seen; e++) {
      for (int64_t c = 0; c < vi.dim; c++) u[c] += cube_at(&vi, b, h, keys[e])[c] / (double)seen;
    }
    if (!pool) {
      cube_row(u, NULL, cube_at(&qi, b, h, rows ? i : seg[i]), &ki, &vi, b, h, keys, seen,
               1 / sqrt((double)qi.dim));
    }
    double *o = cube_at(&out, b, h, i);
    for (int64_t c = 0; c < y.dim; c++)
      o[c] = cube_at(&y, b, h, i)[c] + (p->concat ? 0 : gain * u[c]);
    for (int64_t c = 0; c < vi.dim && p->concat; c++) o[y.dim + c] = u[c];
  }
  cube_check(&out, &s->o, 5e-5, what);
}

static attn_aggregate random_aggregate(int kind, int64_t dv, test_rng *rng) {
  attn_aggregate a;
  memset(&a, 0, sizeof a);
  a.kind = (attn_aggregate_kind)kind;
  if (kind != ATTN_AGGREGATE_ATTENTION) return a;
  int64_t dh = test_range(rng, 1, 9);
  a.w = drawn(ATTN_F32, TEST_BHTD, 1, test_range(rng, 1, 2), dv, dh, 1, rng);
  a.u = test_floats(dh, 2, rng);
  if (test_range(rng, 0, 1)) a.bias = test_floats(dh, 1, rng);
  return a;
}

/* count segments over n rows, some of them empty. */
static int32_t *random_offsets(int64_t n, int64_t count, test_rng *rng) {
  int32_t *offsets = test_mem((size_t)(count + 1) * sizeof *offsets);
  for (int64_t a = 0; a <= count; a++) offsets[a] = (int32_t)test_range(rng, 0, n);
  for (int64_t a = 0; a <= count; a++) {
    for (int64_t e = a + 1; e <= count; e++) {
      int32_t x = offsets[a], y = offsets[e];
      if (y < x) offsets[a] = y, offsets[e] = x;
    }
  }
  offsets[0] = 0, offsets[count] = (int32_t)n;
  return offsets;
}

static scene *build(int64_t batch, int64_t n, int64_t dk, int64_t dv, attn_dtype type,
                    test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->q = drawn(type, TEST_BTHD, batch, H, n, dk, 1, rng);
  s->k = drawn(ATTN_F32, TEST_PADDED, batch, 1, n, dk, 1, rng);
  s->v = drawn(type, TEST_BHTD, batch, H, n, dv, 1, rng);
  s->o = output(type, TEST_BTHD, batch, H, n, dv, &s->does.block[0]);
  s->p.lse = output(ATTN_F32, TEST_PADDED, batch, H, n, 1, &s->does.block[1]);
  s->p.length = 7;
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.mallocs = 1;
  s->does.out[0] = &s->o, s->does.out[1] = &s->p.lse;
  return s;
}

void C17_segmented_random(void **state) {
  (void)state;
  test_rng rng = test_seed(170);
  for (int64_t n = test_count(60, 16); n-- > 0;) {
    int64_t tokens = test_range(&rng, 1, n % 5 ? 40 : 150), dv = test_range(&rng, 1, 9);
    attn_dtype type = (attn_dtype)(n % 9 == 8 ? 1 : 0);
    scene *s = build(test_range(&rng, 1, 2), tokens, test_range(&rng, 1, 9), dv, type, &rng);
    s->p.integrate = (attn_integrate)(n % ATTN_INTEGRATE_COUNT);
    s->p.causal = n % 3 == 0 && s->p.integrate != ATTN_INTEGRATE_SUMMARY;
    s->p.aggregate = random_aggregate((int)(n / 4 % ATTN_AGGREGATE_COUNT), dv, &rng);
    s->p.length = test_range(&rng, 1, tokens + 3);
    if (n % 4 != 3) s->p.segments = test_range(&rng, 1, 9);
    if (n % 4 != 3) s->p.indptr = random_offsets(tokens, s->p.segments, &rng);
    if (n % 2) {
      int64_t inner = test_range(&rng, 1, 8);
      s->p.w_q = drawn(ATTN_F32, TEST_BHTD, 1, 1, dv, inner, 0.7, &rng);
      s->p.w_k = drawn(type, TEST_PADDED, 1, H, dv, inner, 0.7, &rng);
    }
    int64_t wide = n % 5 == 1 ? test_range(&rng, 1, 8) : dv;
    s->p.concat = n % 5 == 1 || n % 5 == 2;
    if (n % 5 < 2) s->p.w_v = drawn(ATTN_F32, TEST_BHTD, 1, 1, dv, wide, 0.7, &rng);
    if (n % 6 == 0) s->p.gain = n % 12 ? -0.5f : ATTN_ZERO;
    if (s->p.concat && s->p.integrate)
      s->o = output(type, TEST_BTHD, s->q.batch, H, tokens, dv + wide, NULL);
    promise_run(&s->does);
    check(s, "segmented");
  }
}

/* A gain of 0 is no exchange, whatever the summaries are; empty segments change nothing. */
void C17_segmented_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(171);
  static const int32_t plain[5] = {0, 7, 14, 21, 25}, gaps[8] = {0, 0, 7, 14, 14, 14, 21, 25};
  scene *s = build(1, 25, 8, 6, ATTN_F32, &rng);
  promise_run(&s->does);
  attn_tensor none = s->o;
  s->o = output(ATTN_F32, TEST_BHTD, 1, H, 25, 6, NULL);
  s->p.integrate = ATTN_INTEGRATE_TOKEN, s->p.gain = ATTN_ZERO;
  promise_run(&s->does);
  test_assert_same(s->o, none, "gain 0");
  s->p.integrate = ATTN_INTEGRATE_NONE; /* weights of what is not computed are not looked at */
  s->p.w_q = s->p.w_k = s->p.w_v = attn_bhtd(none.data, ATTN_F32, 1, 1, 2, 2);
  promise_run(&s->does);
  test_assert_same(s->o, none, "weights without integration");
  s->p.integrate = ATTN_INTEGRATE_TOKEN;
  memset(&s->p.w_q, 0, sizeof s->p.w_q), s->p.w_k = s->p.w_v = s->p.w_q;
  s->p.gain = 0;
  promise_run(&s->does);
  attn_tensor equal = s->o;
  s->o = output(ATTN_F32, TEST_BHTD, 1, H, 25, 6, NULL);
  s->p.indptr = plain, s->p.segments = 4;
  promise_run(&s->does);
  test_assert_same(s->o, equal, "offsets and length");
  s->p.indptr = gaps, s->p.segments = 7;
  promise_run(&s->does);
  test_assert_same(s->o, equal, "empty segments");
  /* equal segments are a block-diagonal mask */
  uint8_t mask[25 * 25];
  for (int i = 0; i < 25 * 25; i++) mask[i] = i / 25 / 7 == i % 25 / 7;
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.mask = attn_mask_bool(mask, 1, 1, 25, 25);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_sdpa(s->o, s->q, s->k, s->v, &p, &ctx), ATTN_OK);
  test_assert_near(none, s->o, 1e-5, "block diagonal");
}

/* Causal: tokens from t on never reach outputs before t. */
void C17_segmented_causal(void **state) {
  (void)state;
  test_rng rng = test_seed(172);
  for (int n = 0; n < 12; n++) {
    scene *s = build(1, 40, 6, 5, ATTN_F32, &rng);
    s->p.causal = 1;
    s->p.integrate = n & 1 ? ATTN_INTEGRATE_POOL : ATTN_INTEGRATE_TOKEN;
    s->p.aggregate = random_aggregate(n / 2 % ATTN_AGGREGATE_COUNT, 5, &rng);
    promise_run(&s->does);
    attn_tensor o = s->o;
    s->o = output(ATTN_F32, TEST_BHTD, 1, H, 40, 5, NULL);
    int64_t t = test_range(&rng, 1, 39);
    test_fill_value(test_rows(s->q, t, 40 - t), (double)NAN);
    test_fill_value(test_rows(s->k, t, 40 - t), (double)NAN);
    test_fill_value(test_rows(s->v, t, 40 - t), (double)NAN);
    promise_run(&s->does);
    test_assert_same(test_rows(s->o, 0, t), test_rows(o, 0, t), "causal");
    assert_true(isnan(oracle_get(&s->o, 0, 1, 39, 0)));
  }
}

void C17_segmented_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(173);
  static const int32_t zero[3] = {0, 0, 0};
  for (int n = 0; n < 4; n++) {
    scene *s = build(n & 1, n & 2 ? 0 : 3, 4, 4, ATTN_F32, &rng);
    s->p.integrate = ATTN_INTEGRATE_TOKEN;
    if (n & 2) s->p.indptr = zero, s->p.segments = 2;
    promise_run(&s->does);
  }
}

void C17_segmented_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(174);
  for (int n = 0; n < 4; n++) {
    scene *s = build(2, 150, 8, 6, n == 3 ? ATTN_BF16 : ATTN_F32, &rng);
    s->p.integrate = (attn_integrate)n;
    s->p.aggregate =
        random_aggregate(n % 2 ? ATTN_AGGREGATE_ATTENTION : ATTN_AGGREGATE_MEAN, 6, &rng);
    s->p.causal = n == 1;
    promise_keep(&s->does);
    attn_schedule schedule;
    attn_pattern blocks = attn_pattern_blocks(7, 0, 0);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_schedule_build(&schedule, &blocks, H, 150, 150, NULL, &ctx), ATTN_OK);
    s->p.schedule = &schedule, s->does.mallocs = 0;
    promise_keep(&s->does);
    attn_schedule_free(&schedule);
  }
}

/* Schedules of the same lengths, but of other segments. */
void C17_segmented_schedules(void **state) {
  (void)state;
  test_rng rng = test_seed(176);
  static const int32_t offsets[2][4] = {{0, 50, 60, 150}, {0, 50, 61, 150}};
  for (int n = 0; n < 6; n++) {
    scene *s = build(1, 150, 4, 3, ATTN_F32, &rng);
    attn_schedule schedule;
    attn_pattern p = n % 3 == 0   ? attn_pattern_blocks(s->p.length, 0, 0)
                     : n % 3 == 1 ? attn_pattern_segments(offsets[0], 3)
                                  : attn_pattern_segments(offsets[1], 3);
    if (n >= 3) s->p.indptr = offsets[0], s->p.segments = 3;
    assert_int_equal(attn_schedule_build(&schedule, &p, H, 150, 150, NULL, NULL), ATTN_OK);
    s->p.schedule = &schedule;
    if (n == 0 || n == 4)
      promise_run(&s->does);
    else
      promise_reject(&s->does, ATTN_E_SCHEDULE, "params.schedule must be of attn_pattern_segments");
    attn_schedule_free(&schedule);
  }
}

void C17_segmented_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(175);
  for (int n = 0; n < 24; n++) {
    scene *s = build(1, 12, 8, 6, ATTN_F32, &rng);
    static const int32_t late[3] = {1, 6, 12}, early[3] = {0, 6, 11}, down[4] = {0, 7, 6, 12};
    attn_status want = ATTN_E_INDEX;
    const char *word = "indptr";
    s->p.integrate = ATTN_INTEGRATE_TOKEN;
    s->p.aggregate = random_aggregate(ATTN_AGGREGATE_ATTENTION, 6, &rng);
    s->p.w_q = drawn(ATTN_F32, TEST_BHTD, 1, 1, 6, 4, 1, &rng);
    s->p.w_k = drawn(ATTN_F32, TEST_BHTD, 1, 1, 6, 4, 1, &rng);
    s->p.w_v = drawn(ATTN_F32, TEST_BHTD, 1, 1, 6, 6, 1, &rng);
    switch (n) {
      case 0: s->p.indptr = late, s->p.segments = 2; break;
      case 1: s->p.indptr = early, s->p.segments = 2; break;
      case 2: s->p.indptr = down, s->p.segments = 3; break;
      case 3: s->p.indptr = late, want = ATTN_E_RANGE, word = "segments"; break;
      case 4: s->p.length = 0, want = ATTN_E_RANGE, word = "length"; break;
      case 5: s->p.integrate = ATTN_INTEGRATE_COUNT, want = ATTN_E_RANGE, word = "integrate"; break;
      case 6:
        s->p.integrate = ATTN_INTEGRATE_SUMMARY, s->p.causal = 1, want = ATTN_E_RANGE,
        word = "causal";
        break;
      case 7: s->p.aggregate.kind = ATTN_AGGREGATE_COUNT, want = ATTN_E_RANGE, word = "kind"; break;
      case 8: s->p.aggregate.u = NULL, want = ATTN_E_NULL, word = "aggregate.u"; break;
      case 9: s->p.aggregate.w.data = NULL, want = ATTN_E_NULL, word = "aggregate.w"; break;
      case 10: s->p.aggregate.w.len = 5, want = ATTN_E_SHAPE, word = "aggregate.w"; break;
      case 11: s->p.w_q.len = 5, want = ATTN_E_SHAPE, word = "w_q"; break;
      case 12: s->p.w_k.dim = 3, want = ATTN_E_SHAPE, word = "w_k"; break;
      case 13: s->p.w_k.data = NULL, want = ATTN_E_SHAPE, word = "w_k"; break;
      case 14: s->p.w_v.dim = 5, want = ATTN_E_SHAPE, word = "w_v"; break;
      case 15: s->p.concat = 1, want = ATTN_E_SHAPE, word = "o.dim"; break;
      case 16: s->p.gain = (float)NAN, want = ATTN_E_VALUE, word = "gain"; break;
      case 17: s->p.scale = (float)NAN, want = ATTN_E_VALUE, word = "scale"; break;
      case 18: s->k.len = 11, want = ATTN_E_SHAPE, word = "k must"; break;
      case 19: s->v.heads = 3, want = ATTN_E_HEADS, word = "v must"; break;
      case 20: s->o.len = 11, want = ATTN_E_SHAPE, word = "o must"; break;
      case 21: s->p.w_v.data = s->o.data, want = ATTN_E_OVERLAP, word = "o is"; break;
      case 22: s->p.lse.heads = 1, want = ATTN_E_SHAPE, word = "lse"; break;
      default:
        s->p.w_q.batch = 2, s->p.w_q.stride_batch = 0, want = ATTN_E_SHAPE, word = "w_q";
        break;
    }
    promise_reject(&s->does, want, word);
  }
}

/* ---- hierarchies ----------------------------------------------------------------------------*/

enum { LEVELS = 4 };

static int64_t smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }

typedef struct levels {
  attn_tensor o, x, y[LEVELS], w_q[LEVELS], w_k[LEVELS], w_v[LEVELS];
  attn_hierarchy_params p;
  int64_t units[LEVELS];
  const int32_t *offsets[LEVELS];
  attn_aggregate aggregates[LEVELS];
  float gains[LEVELS];
  promise does;
} levels;

static attn_status call_levels(void *at, attn_ctx *ctx) {
  levels *s = at;
  return attn_hierarchy(s->o, s->x, &s->p, ctx);
}
static size_t ask_levels(void *at, const attn_ctx *ctx) {
  levels *s = at;
  return attn_hierarchy_workspace(s->o, s->x, &s->p, ctx);
}

/* projections: 0 none, 1 all, of the same widths; 2 widths differ and no broadcast is asked for */
static levels *build_levels(int64_t batch, int64_t n, int64_t d, int64_t count, int projections,
                            int attention, attn_dtype type, test_rng *rng) {
  levels *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->x = drawn(type, TEST_BTHD, batch, H, n, d, 1, rng);
  s->units[0] = n;
  for (int64_t l = 0; l + 1 < count; l++) {
    int64_t groups = s->units[l] ? test_range(rng, 1, s->units[l]) : 0;
    int32_t *offsets = test_mem((size_t)(groups + 1) * sizeof *offsets);
    offsets[0] = 0;
    for (int64_t g = 1; g <= groups; g++) /* room for one unit in each group to come */
      offsets[g] =
          (int32_t)(g == groups
                        ? s->units[l]
                        : test_range(rng, offsets[g - 1] + 1,
                                     smaller_of(s->units[l] - groups + g, offsets[g - 1] + 9)));
    s->units[l + 1] = groups, s->offsets[l] = offsets;
  }
  int64_t width = d;
  for (int64_t l = 0; l < count; l++) {
    int64_t inner = test_range(rng, 1, 9), next = projections == 2 ? test_range(rng, 1, 9) : d;
    if (projections) {
      s->w_q[l] = drawn(ATTN_F32, TEST_BHTD, 1, 1 + l % H, width, inner, 0.5, rng);
      s->w_k[l] = drawn(type, TEST_BHTD, 1, 1, width, inner, 0.5, rng);
      s->w_v[l] = drawn(ATTN_F32, TEST_PADDED, 1, H, width, next, 0.5, rng);
      width = next;
    }
    s->y[l] = output((attn_dtype)(l % 2 ? type : ATTN_F32), TEST_BTHD, batch, H, s->units[l], width,
                     &s->does.block[l < 3 ? l : 3]);
    s->aggregates[l] = random_aggregate(
        attention ? (int)ATTN_AGGREGATE_ATTENTION : (int)(l + width) % ATTN_AGGREGATE_ATTENTION,
        width, rng);
    s->gains[l] = (float)test_normal(rng);
    s->does.out[l < 3 ? l : 3] = &s->y[l];
  }
  if (projections != 2) s->o = output(type, TEST_BTHD, batch, H, n, d, &s->does.block[3]);
  if (projections != 2) s->does.out[3] = &s->o;
  s->p.levels = count, s->p.units = s->units, s->p.indptr = s->offsets, s->p.y = s->y;
  if (projections) s->p.w_q = s->w_q, s->p.w_k = s->w_k, s->p.w_v = s->w_v;
  s->p.aggregates = s->aggregates, s->p.gains = s->gains;
  s->does.call = call_levels, s->does.ask = ask_levels, s->does.scene = s, s->does.mallocs = 1;
  return s;
}

static void check_levels(const levels *s, const char *what) {
  const attn_hierarchy_params *p = &s->p;
  attn_aggregate mean;
  memset(&mean, 0, sizeof mean);
  int64_t n = s->x.len, batch = s->x.batch, count = p->levels ? p->levels : 1;
  cube h0 = cube_from(&s->x), y[LEVELS], out = cube_of(batch, H, n, s->o.data ? s->o.dim : 1);
  memset(out.data, 0, (size_t)(batch * H * n * out.dim) * sizeof(double));
  int64_t *of = test_mem((size_t)(n + 1) * sizeof *of); /* the unit that holds a token */
  for (int64_t i = 0; i < n; i++) of[i] = i;
  for (int64_t l = 0; l < count; l++) {
    int64_t whole[2] = {0, h0.len}, groups = l + 1 < count ? s->units[l + 1] : 1;
    int64_t *offsets = test_mem((size_t)(groups + 1) * sizeof *offsets);
    for (int64_t g = 0; g <= groups; g++) offsets[g] = l + 1 < count ? s->offsets[l][g] : whole[g];
    attn_tensor none = absent();
    cube q = cube_times(&h0, p->w_q ? &p->w_q[l] : &none),
         k = cube_times(&h0, p->w_k ? &p->w_k[l] : &none);
    cube v = cube_times(&h0, p->w_v ? &p->w_v[l] : &none);
    y[l] = inside(&q, &k, &v, offsets, groups, p->causal, scale_of(p->scale, q.dim), NULL);
    if (p->y && p->y[l].data) cube_check(&y[l], &p->y[l], 1e-4, what);
    for (int64_t r = 0; r < batch * H * n && s->o.data; r++) {
      int64_t unit = of[r % n] - (p->causal && l > 0);
      for (int64_t c = 0; c < out.dim && unit >= 0; c++)
        cube_at(&out, r / n / H, r / n % H, r % n)[c] +=
            (p->gains ? (double)p->gains[l] : 1) * cube_at(&y[l], r / n / H, r / n % H, unit)[c];
    }
    if (l + 1 == count) break;
    h0 = cube_of(batch, H, groups, y[l].dim);
    for (int64_t r = 0; r < batch * H * groups; r++) {
      int64_t g = r % groups;
      aggregate(cube_at(&h0, r / groups / H, r / groups % H, g), &y[l], r / groups / H,
                r / groups % H, offsets[g], offsets[g + 1],
                p->aggregates ? &p->aggregates[l] : &mean);
    }
    for (int64_t i = 0; i < n; i++) {
      int64_t g = 0;
      while (of[i] >= offsets[g + 1]) g++;
      of[i] = g;
    }
  }
  if (s->o.data) cube_check(&out, &s->o, 1e-4, what);
}

void C18_hierarchy_random(void **state) {
  (void)state;
  test_rng rng = test_seed(180);
  for (int64_t n = test_count(30, 9); n-- > 0;) {
    levels *s = build_levels(test_range(&rng, 1, 2), test_range(&rng, 1, n % 4 ? 40 : 150),
                             test_range(&rng, 1, 9), 1 + n % LEVELS, (int)(n % 3), n % 5 == 0,
                             (attn_dtype)(n % 7 ? 0 : 1), &rng);
    s->p.causal = n & 1;
    if (n % 4 == 1) s->p.gains = NULL;
    if (n % 6 == 2) s->p.aggregates = NULL;
    if (n % 6 == 3) s->p.scale = 0.5f;
    if (n % 5 == 3) s->p.y = NULL;
    promise_run(&s->does);
    check_levels(s, "hierarchy");
  }
}

/* One level is full attention; groups of one unit with FIRST hand their outputs up unchanged; an
 * attention aggregate with u = 0 is a mean. */
void C18_hierarchy_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(181);
  levels *s = build_levels(1, 33, 8, 1, 0, 0, ATTN_F32, &rng);
  s->p.gains = NULL;
  promise_run(&s->does);
  attn_tensor o = output(ATTN_F32, TEST_BHTD, 1, H, 33, 8, NULL);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_sdpa(o, s->x, s->x, s->x, NULL, &ctx), ATTN_OK);
  test_assert_near(s->o, o, 1e-5, "one level");

  s = build_levels(1, 33, 8, 2, 0, 0, ATTN_F32, &rng);
  int32_t ones[34];
  for (int i = 0; i < 34; i++) ones[i] = i;
  s->offsets[0] = ones, s->units[1] = 33, s->aggregates[0].kind = ATTN_AGGREGATE_FIRST;
  s->y[1] = output(ATTN_F32, TEST_BHTD, 1, H, 33, 8, NULL);
  promise_run(&s->does);
  test_assert_near(s->y[0], s->x, 1e-6, "groups of one");
  assert_int_equal(attn_sdpa(o, s->x, s->x, s->x, NULL, &ctx), ATTN_OK);
  test_assert_near(s->y[1], o, 1e-5, "groups of one");

  s = build_levels(1, 33, 8, 3, 0, 1, ATTN_F32, &rng);
  for (int l = 0; l < 2; l++)
    memset((void *)(uintptr_t)s->aggregates[l].u, 0, (size_t)s->aggregates[l].w.dim * 4);
  promise_run(&s->does);
  o = s->o;
  s->o = output(ATTN_F32, TEST_BHTD, 1, H, 33, 8, NULL), s->p.aggregates = NULL;
  promise_run(&s->does);
  test_assert_near(s->o, o, 1e-6, "u = 0");
}

void C18_hierarchy_causal(void **state) {
  (void)state;
  test_rng rng = test_seed(182);
  for (int n = 0; n < 8; n++) {
    levels *s = build_levels(1, 40, 6, 3, n & 1, n & 2, ATTN_F32, &rng);
    s->p.causal = 1;
    promise_run(&s->does);
    attn_tensor o = s->o;
    s->o = output(ATTN_F32, TEST_BHTD, 1, H, 40, 6, NULL);
    int64_t t = test_range(&rng, 1, 39);
    test_fill_value(test_rows(s->x, t, 40 - t), (double)NAN);
    promise_run(&s->does);
    test_assert_same(test_rows(s->o, 0, t), test_rows(o, 0, t), "causal");
    assert_true(isnan(oracle_get(&s->o, 0, 1, 39, 0)));
  }
}

void C18_hierarchy_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(183);
  for (int n = 0; n < 4; n++) {
    levels *s = build_levels(n & 1, n & 2 ? 0 : 4, 3, 2, 0, 0, ATTN_F32, &rng);
    promise_run(&s->does);
  }
}

void C18_hierarchy_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(184);
  for (int n = 0; n < 3; n++) {
    levels *s = build_levels(2, 150, 8, 3, n, n == 1, n == 2 ? ATTN_F16 : ATTN_F32, &rng);
    promise_keep(&s->does);
    attn_schedule schedule[2];
    attn_ctx ctx = test_ctx();
    for (int l = 0; l < 2; l++) {
      attn_pattern groups = attn_pattern_segments(s->offsets[l], s->units[l + 1]);
      assert_int_equal(
          attn_schedule_build(&schedule[l], &groups, H, s->units[l], s->units[l], NULL, &ctx),
          ATTN_OK);
    }
    s->p.schedules = schedule, s->does.mallocs = 0;
    promise_keep(&s->does);
    for (int l = 0; l < 2; l++) attn_schedule_free(&schedule[l]);
  }
}

/* The right schedules, then one of other groups. */
void C18_hierarchy_schedules(void **state) {
  (void)state;
  test_rng rng = test_seed(186);
  for (int n = 0; n < 3; n++) {
    levels *s = build_levels(1, 60, 4, 3, 0, 0, ATTN_F32, &rng);
    attn_schedule schedule[2];
    for (int l = 0; l < 2; l++) {
      attn_pattern groups = attn_pattern_segments(s->offsets[l], s->units[l + 1]);
      if (n == l + 1) groups = attn_pattern_band(1, 1);
      assert_int_equal(
          attn_schedule_build(&schedule[l], &groups, H, s->units[l], s->units[l], NULL, NULL),
          ATTN_OK);
    }
    s->p.schedules = schedule;
    if (n == 0)
      promise_run(&s->does);
    else
      promise_reject(&s->does, ATTN_E_SCHEDULE, "params.schedules[l] must be of");
    for (int l = 0; l < 2; l++) attn_schedule_free(&schedule[l]);
  }
}

void C18_hierarchy_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(185);
  for (int n = 0; n < 22; n++) {
    levels *s = build_levels(1, 12, 6, 3, 1, 1, ATTN_F32, &rng);
    static const int32_t late[3] = {1, 6, 12}, empty[4] = {0, 5, 5, 12}, early[3] = {0, 6, 11};
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    switch (n) {
      case 0: s->p.levels = 17, want = ATTN_E_RANGE, word = "levels"; break;
      case 1: s->p.levels = -1, want = ATTN_E_RANGE, word = "levels"; break;
      case 2: s->p.units = NULL, want = ATTN_E_NULL, word = "units"; break;
      case 3: s->p.indptr = NULL, want = ATTN_E_NULL, word = "indptr"; break;
      case 4: s->units[0] = 11, word = "units"; break;
      case 5: s->units[1] = 13, word = "units"; break;
      case 6:
        s->offsets[0] = late, s->units[1] = 2, s->units[2] = 1, s->y[1].len = 2,
        want = ATTN_E_INDEX, word = "indptr";
        break;
      case 7:
        s->offsets[0] = empty, s->units[1] = 3, s->units[2] = 1, s->y[1].len = 3,
        want = ATTN_E_INDEX, word = "indptr";
        break;
      case 8:
        s->offsets[0] = early, s->units[1] = 2, s->units[2] = 1, s->y[1].len = 2,
        want = ATTN_E_INDEX, word = "indptr";
        break;
      case 9: s->offsets[1] = NULL, want = ATTN_E_NULL, word = "indptr"; break;
      case 10: s->w_q[1].len = 5, word = "w_q"; break;
      case 11: s->w_k[1].dim++, word = "w_k"; break;
      case 12:
        s->w_k[1].data = NULL, s->w_q[1].dim = 1, s->w_q[1].stride_len = 1, word = "w_k";
        break;
      case 13: s->w_v[2].dim = 5, word = "w_v"; break;
      case 14: s->o.dim = 5, word = "o must"; break;
      case 15: s->y[2].len++, word = "params.y"; break;
      case 16: s->gains[2] = (float)INFINITY, want = ATTN_E_VALUE, word = "gains"; break;
      case 17: s->p.scale = (float)NAN, want = ATTN_E_VALUE, word = "scale"; break;
      case 18: s->aggregates[1].u = NULL, want = ATTN_E_NULL, word = "aggregate.u"; break;
      case 19: s->aggregates[0].w.len = 5, word = "aggregate.w"; break;
      case 20: s->y[2].data = s->o.data, want = ATTN_E_OVERLAP, word = "is an output"; break;
      default: s->x.data = NULL, want = ATTN_E_NULL, word = "x.data"; break;
    }
    if (n == 13) word = "params.y";
    promise_reject(&s->does, want, word);
  }
}
