/* tests/families/compression/test_clustered.c owns clustered attention: codes and clusters against their definition, number
 * for number, and attention by centroids, plain and improved, against float64. */

#include <stdlib.h>

#include "subset.h"

typedef struct scene {
  attn_tensor o, q, k, v;
  const int32_t *place;
  attn_cluster_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_clustered(s->o, s->q, s->k, s->v, s->place, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_clustered_workspace(s->o, s->q, s->k, s->v, s->place, &s->p, ctx);
}

/* Random clusters of random queries. */
static int32_t *any_place(const subset_shape *x, int64_t clusters, test_rng *rng) {
  int64_t n = x->batch * x->heads * x->q_len;
  int32_t *place = test_mem((size_t)(n + 1) * sizeof *place);
  for (int64_t i = 0; i < n; i++) place[i] = (int32_t)test_range(rng, 0, clusters - 1);
  return place;
}

static scene *build(const subset_shape *x, int64_t clusters, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const subset_tensors t = subset_draw(x, &s->does.block[0], rng);
  s->o = t.o, s->q = t.q, s->k = t.k, s->v = t.v;
  s->place = any_place(x, clusters, rng);
  s->p.clusters = clusters;
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.out[0] = &s->o;
  return s;
}

/* ---- clusters -------------------------------------------------------------------------------*/

static int ones(uint64_t x) {
  int n = 0;
  for (; x; x &= x - 1) n++;
  return n;
}

/* The clusters of one head, n < 2^31 queries and products below 2^47. */
static void clusters_of(int32_t *place, uint64_t *code, const attn_tensor *q, int64_t b, int64_t h,
                        int64_t n, const attn_cluster_params *p) {
  int64_t bits = p->bits ? p->bits : 32, iterations = p->iterations ? p->iterations : 10,
          dk = q->dim;
  int64_t C = p->clusters;
  uint64_t *center = test_mem((size_t)C * sizeof *center);
  int64_t *order = test_mem((size_t)n * sizeof *order);
  for (int64_t i = 0; i < n; i++) code[i] = 0, order[i] = i;
  for (int64_t r = 0; r < bits; r++) {
    float *plane = test_mem((size_t)(dk + 1) * sizeof *plane);
    for (int64_t c = 0; c <= dk; c++)
      plane[c] = (float)attn_random_normal(p->seed, 2, (uint64_t)(r * (dk + 1) + c));
    for (int64_t i = 0; i < n; i++) {
      volatile double sum = 0;
      for (int64_t c = 0; c < dk; c++) sum = sum + oracle_get(q, b, h, i, c) * (double)plane[c];
      if (sum > (p->no_hash_bias ? 0 : (double)plane[dk])) code[i] |= (uint64_t)1 << r;
    }
  }
  for (int64_t i = 0; i < C; i++) {
    int64_t j = i + subset_below(subset_number(p->seed, 3, (uint64_t)i), n - i), t = order[i];
    order[i] = order[j], order[j] = t;
    center[i] = code[order[i]];
  }
  for (int64_t it = 1; it <= iterations; it++) {
    for (int64_t i = 0; i < n; i++) {
      place[i] = 0;
      for (int64_t c = 1; c < C; c++)
        if (ones(code[i] ^ center[c]) < ones(code[i] ^ center[place[i]])) place[i] = (int32_t)c;
    }
    for (int64_t c = 0; it < iterations && c < C; c++) {
      int64_t members = 0, set[64] = {0};
      for (int64_t i = 0; i < n; i++) {
        if (place[i] != c) continue;
        members++;
        for (int r = 0; r < 64; r++) set[r] += (int64_t)(code[i] >> r & 1u);
      }
      center[c] = 0;
      for (int64_t r = 0; r < bits; r++)
        if (2 * set[r] > members) center[c] |= (uint64_t)1 << r;
      if (!members) center[c] = subset_number(p->seed, 4, (uint64_t)(it * C + c)) >> (64 - bits);
    }
  }
}

static void check_clusters(const int32_t *got, const attn_tensor *q, const attn_cluster_params *p) {
  int32_t *want = test_mem((size_t)(q->len + 1) * sizeof *want);
  uint64_t *code = test_mem((size_t)(q->len + 1) * sizeof *code);
  for (int64_t u = 0; u < q->batch * q->heads; u++) {
    int64_t n = subset_length(p->q_len, u / q->heads, q->len);
    clusters_of(want, code, q, u / q->heads, u % q->heads, n, p);
    for (int64_t i = 0; i < q->len; i++) {
      if (got[u * q->len + i] != (i < n ? want[i] : -1))
        fail_msg("head %d query %d: %d, not %d", (int)u, (int)i, (int)got[u * q->len + i],
                 (int)want[i]);
    }
  }
}

void F1_clusters(void **state) {
  (void)state;
  test_rng rng = test_seed(701);
  int64_t count = test_count(60, 8);
  for (int64_t t = 0; t < count; t++) {
    subset_shape x = subset_any(40, 50, &rng);
    attn_cluster_params p;
    memset(&p, 0, sizeof p);
    if (t % 9 == 0) x.q_len = test_range(&rng, 60, 140), x.batch = 1;
    attn_tensor q = drawn(x.type, x.layout, x.batch, x.heads, x.q_len, x.dk, 1, &rng);
    if (t % 4 == 1) { /* exact numbers: sums of 0, bits on the plane */
      test_fill(q, &rng, test_exact);
      test_fill_row(q, 0, 0, 0, 0), test_fill_row(q, 0, 0, x.q_len / 2, 0);
    }
    if (t % 7 == 2) test_fill_value(q, 1e-20), test_fill_row(q, 0, 0, 0, 3);
    if (t % 7 == 3 && x.type == ATTN_F32) test_fill_row(q, 0, 0, 0, 1e25);
    int64_t least = x.q_len;
    if (t % 3 == 0) {
      int32_t *len = test_mem(2 * sizeof *len);
      for (int64_t b = 0; b < x.batch; b++) {
        len[b] = (int32_t)test_range(&rng, 1, x.q_len);
        if (len[b] < least) least = len[b];
      }
      p.q_len = len;
    }
    p.clusters = t % 5 ? test_range(&rng, 1, least) : least;
    p.bits = t % 2 ? test_range(&rng, 1, 63) : 0, p.iterations = t % 6 ? test_range(&rng, 1, 7) : 0;
    p.no_hash_bias = (int)test_range(&rng, 0, 1), p.seed = test_u64(&rng);
    int32_t *got = test_mem((size_t)(x.batch * x.heads * x.q_len) * sizeof *got);
    attn_ctx ctx = test_ctx();
    ctx.workers = (int)test_range(&rng, 0, 3), ctx.parallel_for = test_parallel_backward;
    assert_int_equal(attn_cluster_queries(got, q, &p, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.isa, test_isa);
    check_clusters(got, &q, &p);
  }
}

/* More members than a byte counts, more clusters than a row of 64, all bits. */
void F1_clusters_large(void **state) {
  (void)state;
  test_rng rng = test_seed(702);
  for (int t = 0; t < 2; t++) {
    attn_tensor q = drawn(ATTN_F32, TEST_BTHD, 1, 1, 700, 5, 1, &rng);
    attn_cluster_params p;
    memset(&p, 0, sizeof p);
    p.clusters = t ? 2 : 130, p.bits = t ? 63 : 34, p.iterations = 4, p.seed = (uint64_t)t;
    int32_t *got = test_mem(700 * sizeof *got);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_cluster_queries(got, q, &p, &ctx), ATTN_OK);
    check_clusters(got, &q, &p);
  }
}

/* Queries that lie on a plane: only sums in double, in order, tell on which side. */
void F1_clusters_on_planes(void **state) {
  (void)state;
  test_rng rng = test_seed(704);
  for (uint64_t seed = 0; seed < 24; seed++) {
    attn_tensor q = drawn(ATTN_F32, TEST_BHTD, 1, 1, 8, 4, 1, &rng);
    attn_cluster_params p;
    memset(&p, 0, sizeof p);
    p.clusters = 8, p.bits = p.iterations = 1, p.no_hash_bias = 1, p.seed = seed;
    for (int64_t i = 0; i < 7; i++)
      for (int64_t c = 0; c < 4; c++) {
        double plane = (double)(float)attn_random_normal(seed, 2, (uint64_t)(c + 2) % 4);
        oracle_set(&q, 0, 0, i, c, (c < 2 ? plane : -plane) * (c % 2 ? ldexp(1, (int)i) : 1));
      }
    int32_t got[8];
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_cluster_queries(got, q, &p, &ctx), ATTN_OK);
    check_clusters(got, &q, &p);
  }
}

/* Without offsets only directions count; equal codes share a cluster. */
void F1_clusters_directions(void **state) {
  (void)state;
  test_rng rng = test_seed(703);
  attn_tensor q = drawn(ATTN_F32, TEST_BHTD, 1, 2, 30, 6, 1, &rng);
  attn_tensor twice = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 30, 6);
  int32_t a[60], b[60], place[30];
  uint64_t code[30];
  attn_cluster_params p;
  memset(&p, 0, sizeof p);
  p.clusters = 7, p.bits = 5, p.no_hash_bias = 1;
  for (int64_t u = 0; u < 60; u++)
    for (int64_t c = 0; c < 6; c++)
      oracle_set(&twice, 0, u / 30, u % 30, c,
                 oracle_get(&q, 0, u / 30, u % 30, c) * (u % 2 ? 0.25 : 8));
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_cluster_queries(a, q, &p, &ctx), ATTN_OK);
  assert_int_equal(attn_cluster_queries(b, twice, &p, &ctx), ATTN_OK);
  assert_memory_equal(a, b, sizeof a);
  clusters_of(place, code, &q, 0, 0, 30, &p);
  for (int i = 0; i < 30; i++)
    for (int j = 0; j < i; j++)
      if (code[i] == code[j]) assert_int_equal(a[i], a[j]);
  p.no_hash_bias = 0;
  assert_int_equal(attn_cluster_queries(b, q, &p, &ctx), ATTN_OK);
  assert_memory_not_equal(a, b, sizeof a);
  assert_int_equal(attn_cluster_queries(a, q, &p, &ctx), ATTN_OK);
  p.seed = 1;
  assert_int_equal(attn_cluster_queries(b, q, &p, &ctx), ATTN_OK);
  assert_memory_not_equal(a, b, sizeof a);
}

/* ---- attention ------------------------------------------------------------------------------*/

typedef struct scored {
  double x;
  int64_t j;
} scored;

static int best_first(const void *a, const void *b) {
  const scored *x = a, *y = b;
  if (x->x != y->x) return x->x > y->x ? -1 : 1;
  return x->j < y->j ? -1 : 1;
}

/* Rows whose best keys are decided by less than float32 can tell are left out. */
static void check(const scene *s, double tolerance, const char *what) {
  const attn_cluster_params *p = &s->p;
  int64_t dk = s->q.dim, dv = s->v.dim, heads = s->q.heads;
  double scale = scale_of(p->scale, dk);
  double *mean = test_mem((size_t)dk * sizeof(double));
  double *rest = test_mem((size_t)dv * sizeof(double)), *o = test_mem((size_t)dv * sizeof(double));
  scored *x = test_mem((size_t)(s->k.len + 1) * sizeof *x);
  double *a = test_mem((size_t)(s->k.len + 1) * sizeof *a);
  int64_t *keys = test_mem((size_t)(s->k.len + 1) * sizeof *keys);
  cube q = cube_from(&s->q), k = cube_from(&s->k), v = cube_from(&s->v);
  for (int64_t u = 0; u < s->q.batch * heads; u++) {
    int64_t b = u / heads, h = u % heads, hk = head_of(&s->k, h, heads);
    int64_t hv = head_of(&s->v, h, heads), n = subset_length(p->q_len, b, s->q.len);
    int64_t nk = subset_length(p->kv_len, b, s->k.len), top = p->k < nk ? p->k : nk;
    const int32_t *place = s->place + u * s->q.len;
    for (int64_t i = n; i < s->q.len; i++)
      for (int64_t c = 0; c < dv; c++) assert_true(oracle_get(&s->o, b, h, i, c) == 0);
    for (int64_t g = 0; g < p->clusters; g++) {
      double most = -(double)INFINITY, sum = 0, mass = 0, size = 0;
      int64_t members = 0;
      for (int64_t c = 0; c < dk; c++) mean[c] = 0;
      for (int64_t i = 0; i < n; i++) {
        if (place[i] != g) continue;
        members++;
        for (int64_t c = 0; c < dk; c++) mean[c] += cube_at(&q, b, h, i)[c];
      }
      if (!members) continue;
      for (int64_t j = 0; j < nk; j++) {
        x[j].x = 0, x[j].j = j;
        for (int64_t c = 0; c < dk; c++)
          x[j].x += mean[c] / (double)members * cube_at(&k, b, hk, j)[c];
        x[j].x *= scale;
        most = fmax(most, x[j].x);
      }
      qsort(x, (size_t)nk, sizeof *x, best_first);
      for (int64_t e = 0; e < nk; e++) sum += a[e] = exp(x[e].x - most);
      if (top > 0 && top < nk) {
        double gap = x[top - 1].x - x[top].x;
        if (gap > 0 && gap < 1e-5 * (1 + fabs(x[top].x))) continue;
      }
      for (int64_t c = 0; c < dv; c++) rest[c] = 0;
      for (int64_t e = 0; e < nk; e++) {
        keys[e] = x[e].j;
        if (e < top) mass += a[e] / sum;
        for (int64_t c = 0; c < dv; c++) {
          double value = cube_at(&v, b, hv, x[e].j)[c];
          if (e >= top) rest[c] += a[e] / sum * value;
          size = fmax(size, fabs(value));
        }
      }
      /* cube_row reads k and v of one head */
      attn_tensor one_k = test_one(s->k, b, 1, hk, 1), one_v = test_one(s->v, b, 1, hv, 1);
      cube ck = cube_from(&one_k), cv = cube_from(&one_v);
      for (int64_t i = 0; i < n; i++) {
        if (place[i] != g) continue;
        if (p->causal) {
          int64_t seen = 0, *some = test_mem((size_t)(top + 1) * sizeof *some);
          for (int64_t e = 0; e < top; e++)
            if (keys[e] <= i + nk - n) some[seen++] = keys[e];
          cube_row(o, NULL, cube_at(&q, b, h, i), &ck, &cv, 0, 0, some, seen, scale);
          for (int64_t c = 0; c < dv; c++)
            value_check(oracle_get(&s->o, b, h, i, c), seen ? o[c] : 0, tolerance * size,
                        s->o.dtype, what, b, h, i, c);
          continue;
        }
        cube_row(o, NULL, cube_at(&q, b, h, i), &ck, &cv, 0, 0, keys, top, scale);
        for (int64_t c = 0; c < dv; c++) {
          value_check(oracle_get(&s->o, b, h, i, c), mass * o[c] + rest[c], tolerance * size,
                      s->o.dtype, what, b, h, i, c);
        }
      }
    }
  }
}

static void lengths(scene *s, int64_t clusters, test_rng *rng) {
  int32_t *len = test_mem(4 * sizeof *len);
  for (int64_t b = 0; b < s->q.batch; b++) {
    len[b] = (int32_t)test_range(rng, clusters, s->q.len);
    len[2 + b] = (int32_t)test_range(rng, 0, s->k.len);
  }
  s->p.q_len = len, s->p.kv_len = len + 2;
}

static void random_calls(uint64_t seed, int improved) {
  test_rng rng = test_seed(seed);
  static const float scale[] = {0, 0, 1.5f, -0.7f, ATTN_ZERO};
  int64_t count = test_count(60, 8);
  for (int64_t t = 0; t < count; t++) {
    subset_shape x = subset_any(40, 50, &rng);
    int64_t clusters = test_range(&rng, 1, x.q_len);
    scene *s = build(&x, clusters, &rng);
    if (improved) s->p.k = test_range(&rng, 1, t % 3 ? 8 : 60);
    s->p.causal = improved > 1;
    s->p.scale = scale[test_range(&rng, 0, improved ? 3 : 4)];
    if (t % 3 == 1) lengths(s, clusters, &rng);
    promise_run(&s->does);
    check(s, 2e-6, "clustered");
  }
}

void F1_plain(void **state) {
  (void)state;
  random_calls(710, 0);
}
void F1_improved(void **state) {
  (void)state;
  random_calls(711, 1);
}

void F1_causal(void **state) {
  (void)state;
  random_calls(712, 2);
  test_rng rng = test_seed(713);
  for (int t = 0; t < 4;
       t++) { /* more than a tile of members and of clusters, a block of best keys */
    subset_shape x = subset_plain(2, 300, t % 2 ? 400 : 300, 6, 5);
    scene *s = build(&x, t < 2 ? 3 : 90, &rng);
    s->p.causal = 1, s->p.k = t < 2 ? 150 : 20;
    promise_run(&s->does);
    check(s, 2e-6, "causal, large");
    promise_keep(&s->does);
  }
  /* the best are all keys: causal attention */
  subset_shape x = subset_plain(2, 70, 70, 6, 5);
  scene *s = build(&x, 4, &rng);
  s->p.causal = 1, s->p.k = 70;
  promise_run(&s->does);
  attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 70, 5);
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.causal = ATTN_CAUSAL_END;
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_sdpa(o, s->q, s->k, s->v, &p, &ctx), ATTN_OK);
  test_assert_near(s->o, o, 2e-6, "all keys");
}

/* With clusters that are given and keys as they are, no number of a later value is in a row: not even NaN. */
void F1_causal_values(void **state) {
  (void)state;
  test_rng rng = test_seed(714);
  subset_shape x = subset_plain(2, 90, 90, 6, 5);
  scene *s = build(&x, 3, &rng);
  s->p.causal = 1, s->p.k = 40;
  promise_run(&s->does);
  attn_tensor before = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 90, 5);
  test_copy(before, s->o);
  for (int64_t i = 31; i < 90; i++)
    for (int64_t h = 0; h < 2; h++) test_fill_row(s->v, 0, h, i, i % 2 ? (double)NAN : 1e30);
  promise_run(&s->does);
  test_assert_same(test_rows(s->o, 0, 31), test_rows(before, 0, 31), "later values");
}

/* More than a tile of clusters, of members, and than a block of best keys. */
void F1_large(void **state) {
  (void)state;
  test_rng rng = test_seed(712);
  for (int t = 0; t < 4; t++) {
    subset_shape x = subset_plain(1, 330, 300, 9, 11);
    if (t == 3) x.type = ATTN_F16;
    scene *s = build(&x, t == 1 ? 3 : 70, &rng);
    s->p.k = t == 0 ? 150 : t == 1 ? 20 : t == 2 ? 0 : 33;
    promise_run(&s->does);
    check(s, 3e-6, "large");
  }
}

/* A scale of 0: all scores are alike, the best keys are the first. */
void F1_ties(void **state) {
  (void)state;
  test_rng rng = test_seed(713);
  subset_shape x = subset_plain(2, 20, 90, 6, 5);
  for (int t = 0; t < 3; t++) {
    scene *s = build(&x, 4, &rng);
    s->p.k = 7;
    if (t == 0) s->p.scale = ATTN_ZERO;
    if (t == 1) test_fill_value(s->k, 0.5); /* equal keys */
    if (t == 2)
      for (int64_t j = 0; j < 90; j += 2) test_fill_row(s->k, 0, 0, j, 1); /* half of them */
    promise_run(&s->does);
    check(s, 2e-6, "ties");
  }
}

/* All of the mass is on the best keys, or nearly none. */
void F1_mass(void **state) {
  (void)state;
  test_rng rng = test_seed(714);
  for (int t = 0; t < 4; t++) {
    subset_shape x = subset_plain(1, 24, 64, 8, 6);
    scene *s = build(&x, 5, &rng);
    s->p.k = t < 2 ? 63 : 1, s->p.scale = t % 2 ? 6.0f : 1e-3f;
    promise_run(&s->does);
    check(s, t % 2 ? 1e-5 : 2e-6, "mass");
  }
}

static attn_tensor full(const scene *s) {
  attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, s->o.batch, s->o.heads, s->o.len, s->o.dim);
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.scale = s->p.scale;
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_sdpa(o, s->q, s->k, s->v, &p, &ctx), ATTN_OK);
  return o;
}

void F1_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(715);
  subset_shape x = subset_plain(4, 37, 51, 8, 9);
  x.k_heads = 2, x.v_heads = 1;
  /* a cluster for each query */
  for (int topk = 0; topk <= 12; topk += 12) {
    scene *s = build(&x, 37, &rng);
    int32_t *own = test_mem(4 * 37 * sizeof *own);
    for (int n = 0; n < 4 * 37; n++) own[n] = n % 37;
    s->place = own, s->p.k = topk;
    promise_run(&s->does);
    test_assert_near(s->o, full(s), 2e-6, "a cluster each");
  }
  /* as many best keys as there are, or more: whatever the clusters */
  for (int topk = 51; topk <= 1000; topk += 949) {
    scene *s = build(&x, 6, &rng);
    s->p.k = topk;
    promise_run(&s->does);
    test_assert_near(s->o, full(s), 2e-6, "all keys");
  }
  /* rows of a cluster are alike, constant values stay, equal queries have equal outputs */
  for (int topk = 0; topk <= 5; topk += 5) {
    scene *s = build(&x, 6, &rng);
    int32_t *place = test_mem(4 * 37 * sizeof *place);
    memcpy(place, s->place, 4 * 37 * sizeof *place);
    s->p.k = topk, s->place = place;
    for (int64_t c = 0; c < 8; c++) oracle_set(&s->q, 0, 3, 30, c, oracle_get(&s->q, 0, 3, 4, c));
    place[3 * 37 + 30] = place[3 * 37 + 4];
    promise_run(&s->does);
    for (int64_t n = 0; n < 4 * 37 && topk == 0; n++)
      for (int64_t i = 0; i < n % 37; i++)
        if (place[n] == place[n / 37 * 37 + i])
          assert_true(test_same(test_rows(test_one(s->o, 0, 1, n / 37, 1), n % 37, 1),
                                test_rows(test_one(s->o, 0, 1, n / 37, 1), i, 1)));
    assert_true(test_same(test_rows(test_one(s->o, 0, 1, 3, 1), 4, 1),
                          test_rows(test_one(s->o, 0, 1, 3, 1), 30, 1)));
    test_fill_value(s->v, 0.75);
    attn_tensor c = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, 37, 9);
    test_fill_value(c, 0.75);
    promise_run(&s->does);
    test_assert_near(s->o, c, 1e-6, "constant values");
  }
}

/* Without an assignment: the one of the other call, bit for bit. */
void F1_chain(void **state) {
  (void)state;
  test_rng rng = test_seed(716);
  for (int t = 0; t < 4; t++) {
    subset_shape x = subset_plain(2, 33, 40, 7, 8);
    x.batch = 2;
    if (t == 3) x.type = ATTN_BF16;
    scene *s = build(&x, 5, &rng);
    if (t % 2) s->p.k = 6;
    if (t >= 2) lengths(s, 5, &rng);
    s->p.seed = 77, s->p.bits = 12, s->p.iterations = 3;
    int32_t *place = test_mem(4 * 33 * sizeof *place);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_cluster_queries(place, s->q, &s->p, &ctx), ATTN_OK);
    s->place = place;
    promise_run(&s->does);
    check(s, 2e-6, "chain");
    attn_tensor two = test_tensor(s->o.dtype, TEST_BHTD, 2, 2, 33, 8);
    test_copy(two, s->o);
    s->place = NULL;
    promise_run(&s->does);
    test_assert_same(s->o, two, "chain");
    if (t < 2) promise_keep(&s->does);
  }
}

/* An item is what it is when its tensors end where it does. */
void F1_lengths(void **state) {
  (void)state;
  test_rng rng = test_seed(717);
  for (int t = 0; t < 4; t++) {
    subset_shape x = subset_plain(2, 45, 70, 6, 7);
    x.batch = 2;
    scene *s = build(&x, 4, &rng);
    lengths(s, 4, &rng);
    if (t % 2) s->p.k = t == 1 ? 9 : 40;
    s->place = t < 2 ? s->place : NULL;
    promise_run(&s->does);
    for (int64_t b = 0; b < 2; b++) {
      int64_t n = s->p.q_len[b], nk = s->p.kv_len[b];
      scene one = *s;
      int32_t *place = test_mem((size_t)(2 * n) * sizeof *place);
      for (int64_t e = 0; s->place && e < 2 * n; e++)
        place[e] = s->place[(b * 2 + e / n) * 45 + e % n];
      one.p.q_len = one.p.kv_len = NULL, one.place = s->place ? place : NULL;
      one.q = test_rows(test_one(s->q, b, 1, 0, 2), 0, n);
      one.k = test_rows(test_one(s->k, b, 1, 0, 2), 0, nk);
      one.v = test_rows(test_one(s->v, b, 1, 0, 2), 0, nk);
      one.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, n, 7);
      one.does.scene = &one;
      promise_run(&one.does);
      test_assert_same(test_rows(test_one(s->o, b, 1, 0, 2), 0, n), one.o, "cut tensors");
    }
  }
}

void F1_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(718);
  attn_ctx ctx = test_ctx();
  for (int topk = 0; topk <= 3; topk += 3) {
    /* no keys */
    subset_shape x = subset_plain(2, 9, 0, 4, 5);
    scene *s = build(&x, 3, &rng);
    s->p.k = topk;
    promise_run(&s->does);
    check(s, 0, "no keys");
    for (int64_t i = 0; i < 9; i++) assert_true(oracle_get(&s->o, 0, 1, i, 4) == 0);
    /* nothing to do */
    s->q.len = s->o.len = 0, s->place = NULL;
    promise_run(&s->does);
    assert_int_equal(ask(s, &ctx), 0);
    s = build(&x, 3, &rng);
    s->q.batch = s->k.batch = s->v.batch = s->o.batch = 0;
    promise_run(&s->does);
    /* one query, one key */
    x = subset_plain(1, 1, 1, 1, 1);
    s = build(&x, 1, &rng);
    s->p.k = topk, s->place = NULL;
    promise_run(&s->does);
    test_assert_near(s->o, s->v, 1e-6, "one key");
    /* equal queries share a cluster, the others stay empty */
    x = subset_plain(1, 70, 80, 5, 6);
    s = build(&x, 70, &rng);
    s->p.k = topk, s->place = NULL;
    for (int64_t i = 0; i < 70; i++)
      for (int64_t c = 0; c < 5; c++) oracle_set(&s->q, 0, 0, i, c, 0.3 - (double)c);
    promise_run(&s->does);
    test_assert_near(s->o, full(s), 2e-6, "equal queries");
    int32_t place[70];
    assert_int_equal(attn_cluster_queries(place, s->q, &s->p, &ctx), ATTN_OK);
    for (int i = 0; i < 70; i++) assert_int_equal(place[i], place[0]);
  }
}

/* NaN anywhere: no access out of bounds, and other clusters do not notice one in a query. */
void F1_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(719);
  for (int t = 0; t < 8; t++) {
    subset_shape x = subset_plain(2, 40, 60, 6, 5);
    scene *s = build(&x, 4, &rng), *clean;
    s->p.k = t % 2 ? 7 : 0;
    clean = test_mem(sizeof *clean);
    *clean = *s;
    clean->o = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 40, 5), clean->does.scene = clean;
    promise_run(&clean->does);
    if (t / 2 == 0) test_fill_row(s->q, 0, 1, 12, (double)NAN);
    if (t / 2 == 1) test_fill_row(s->k, 0, 1, 12, (double)NAN);
    if (t / 2 == 2) test_fill_row(s->v, 0, 1, 12, (double)NAN);
    if (t / 2 == 3) test_fill_value(s->q, (double)NAN), test_fill_value(s->k, (double)INFINITY);
    promise_run(&s->does);
    for (int64_t i = 0; i < 40 && t / 2 == 0; i++) {
      int same = test_same(test_rows(test_one(s->o, 0, 1, 1, 1), i, 1),
                           test_rows(test_one(clean->o, 0, 1, 1, 1), i, 1));
      assert_int_equal(same, s->place[40 + i] != s->place[40 + 12]);
    }
    if (t / 2 < 3)
      test_assert_same(test_one(s->o, 0, 1, 0, 1), test_one(clean->o, 0, 1, 0, 1), "other head");
    s->place = NULL;
    promise_run(&s->does);
  }
}

/* ---- promises -------------------------------------------------------------------------------*/

typedef struct queries {
  attn_tensor q, place; /* place: numbers seen as floats */
  attn_cluster_params p;
  promise does;
} queries;

static attn_status call_queries(void *at, attn_ctx *ctx) {
  queries *s = at;
  return attn_cluster_queries(s->place.data, s->q, &s->p, ctx);
}
static size_t ask_queries(void *at, const attn_ctx *ctx) {
  queries *s = at;
  return attn_cluster_queries_workspace(s->place.data, s->q, &s->p, ctx);
}

static queries *build_queries(test_rng *rng) {
  queries *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->q = drawn(ATTN_F16, TEST_BTHD, 2, 2, 90, 7, 1, rng);
  s->place = output(ATTN_F32, TEST_BHTD, 2, 2, 90, 1, &s->does.block[0]);
  s->p.clusters = 8, s->p.iterations = 3;
  s->does.call = call_queries, s->does.ask = ask_queries;
  s->does.scene = s, s->does.out[0] = &s->place;
  return s;
}

void F1_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(720);
  promise_keep(&build_queries(&rng)->does);
  for (int t = 0; t < 4; t++) {
    subset_shape x = subset_plain(4, 90, 140, 8, 6);
    x.k_heads = 2, x.type = t / 2 ? ATTN_F16 : ATTN_F32;
    scene *s = build(&x, 70, &rng);
    s->p.k = t % 2 ? 10 : 0;
    promise_keep(&s->does);
  }
}

void F1_reject(void **state) {
  (void)state;
  test_rng rng = test_seed(721);
  subset_shape x = subset_plain(4, 6, 9, 5, 7);
  x.batch = 2;
  scene *s = build(&x, 3, &rng), was = *s;
  queries *t = build_queries(&rng), then = *t;
  int32_t bad[48] = {0}, q_len[2] = {6, 2}, less[2] = {-1, 6}, more[2] = {6, 10};
  bad[47] = 3;
#define REJECTED(change, status, word)                         \
  do {                                                         \
    change;                                                    \
    promise_reject(&s->does, status, word);                    \
    if (status != ATTN_E_INDEX && !s->p.q_len && !s->p.kv_len) \
      assert_int_equal(ask(s, NULL), ATTN_WORKSPACE_REJECTED); \
    *s = was;                                                  \
  } while (0)
  REJECTED(s->p.clusters = 0, ATTN_E_SHAPE, "clusters");
  REJECTED(s->p.clusters = 7, ATTN_E_RANGE, "clusters");
  REJECTED(s->p.q_len = q_len, ATTN_E_RANGE, "clusters");
  REJECTED(s->p.q_len = less, ATTN_E_RANGE, "q_len");
  REJECTED(s->p.q_len = more, ATTN_E_RANGE, "q_len");
  REJECTED(s->p.kv_len = less, ATTN_E_RANGE, "kv_len");
  REJECTED(s->p.kv_len = more, ATTN_E_RANGE, "kv_len");
  REJECTED(s->p.bits = -1, ATTN_E_RANGE, "bits");
  REJECTED(s->p.causal = 1; s->p.k = 0, ATTN_E_RANGE, "params.causal needs");
  REJECTED(s->p.bits = 64, ATTN_E_RANGE, "bits");
  REJECTED(s->p.iterations = -1, ATTN_E_SHAPE, "iterations");
  REJECTED(s->p.k = -1, ATTN_E_SHAPE, "params.k");
  REJECTED(s->p.scale = (float)NAN, ATTN_E_VALUE, "scale");
  REJECTED(s->p.scale = (float)INFINITY, ATTN_E_VALUE, "scale");
  REJECTED(s->place = bad, ATTN_E_INDEX, "assignment");
  REJECTED((bad[47] = -1, s->place = bad), ATTN_E_INDEX, "assignment");
  REJECTED(s->k.heads = 3, ATTN_E_HEADS, "k must");
  REJECTED(s->v.heads = 0, ATTN_E_HEADS, "v must");
  REJECTED(s->k.batch = 1, ATTN_E_SHAPE, "k must");
  REJECTED(s->k.dim = 4, ATTN_E_SHAPE, "k must");
  REJECTED(s->v.len = 8, ATTN_E_SHAPE, "v must");
  REJECTED(s->o.dim = 6, ATTN_E_SHAPE, "o must");
  REJECTED(s->o.len = 5, ATTN_E_SHAPE, "o must");
  REJECTED(s->o.heads = 2, ATTN_E_SHAPE, "o must");
  REJECTED(s->q.heads = 0, ATTN_E_SHAPE, "heads");
  REJECTED(s->q.dim = 0, ATTN_E_SHAPE, "q.dim");
  REJECTED(s->q.data = NULL, ATTN_E_NULL, "q.data");
  REJECTED(s->k.data = NULL, ATTN_E_NULL, "k.data");
  REJECTED(s->v.data = NULL, ATTN_E_NULL, "v.data");
  REJECTED(s->o.data = NULL, ATTN_E_NULL, "o.data");
  REJECTED(s->q.dtype = ATTN_I8, ATTN_E_DTYPE, "q.dtype");
  REJECTED(s->o.stride_len = 2, ATTN_E_STRIDE, "o ");
  REJECTED(s->v.data = s->o.data, ATTN_E_OVERLAP, "o ");
  REJECTED(s->place = s->o.data, ATTN_E_OVERLAP, "o ");
  REJECTED(s->p.kv_len = s->o.data, ATTN_E_OVERLAP, "o ");
  REJECTED(s->place = (const int32_t *)(const void *)((const char *)s->place + 2), ATTN_E_ALIGN,
           "assignment");
#undef REJECTED
#define REJECTED(change, status, word)      \
  do {                                      \
    change;                                 \
    promise_reject(&t->does, status, word); \
    *t = then;                              \
  } while (0)
  REJECTED(t->p.clusters = 0, ATTN_E_SHAPE, "clusters");
  REJECTED(t->p.clusters = 91, ATTN_E_RANGE, "clusters");
  REJECTED(t->p.q_len = q_len, ATTN_E_RANGE, "clusters");
  REJECTED(t->p.bits = 64, ATTN_E_RANGE, "bits");
  REJECTED(t->p.iterations = -2, ATTN_E_SHAPE, "iterations");
  REJECTED(t->q.data = NULL, ATTN_E_NULL, "q.data");
  REJECTED(t->place.data = NULL, ATTN_E_NULL, "assignment");
  REJECTED(t->q.data = t->place.data, ATTN_E_OVERLAP, "assignment");
  REJECTED(t->p.q_len = t->place.data, ATTN_E_OVERLAP, "assignment");
#undef REJECTED
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_clustered(s->o, s->q, s->k, s->v, s->place, NULL, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_cluster_queries(t->place.data, t->q, NULL, &ctx), ATTN_E_NULL);
}
