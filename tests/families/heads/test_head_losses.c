/* tests/families/heads/test_head_losses.c owns losses over heads: disagreement and guided maps, against float64, and what
 * follows from their formulas. */

#include "compound.h"

typedef struct scene {
  double *got; /* the result, and as a tensor of its halves */
  attn_tensor out;
  attn_disagreement_params d;
  attn_guided_params g;
  promise does;
} scene;

static attn_status call_d(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_disagreement(s->got, &s->d, ctx);
}
static size_t ask_d(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_disagreement_workspace(s->got, &s->d, ctx);
}
static attn_status call_g(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_guided_loss(s->got, &s->g, ctx);
}
static size_t ask_g(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_guided_loss_workspace(s->got, &s->g, ctx);
}

static scene *start(int64_t results) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->got = test_mem((size_t)results * sizeof(double));
  s->out = attn_bhtd(s->got, ATTN_F32, 1, 1, 1, 2 * results);
  s->does.block[0].data = (unsigned char *)s->got;
  s->does.block[0].size = (size_t)results * sizeof(double);
  s->does.call = results == 3 ? call_d : call_g, s->does.ask = results == 3 ? ask_d : ask_g;
  s->does.scene = s, s->does.out[0] = &s->out;
  return s;
}

static void near(double got, double want, double tolerance, const char *what) {
  if (!(fabs(got - want) <= tolerance * fmax(1, fabs(want))))
    fail_msg("%s: %.12g, not %.12g", what, got, want);
}

/* ---- the oracle -----------------------------------------------------------------------------*/

/* The maps [B,H,Tq,Tk], computed or read; 0 where lengths leave something out. */
static cube maps_of(const attn_tensor *q, const attn_tensor *k, const attn_tensor *map,
                    const attn_sdpa_params *p) {
  cube y = map->data ? cube_of(map->batch, map->heads, map->len, map->dim)
                     : cube_of(q->batch, q->heads, q->len, k->len);
  for (int64_t n = 0; n < y.batch * y.heads * y.len; n++) {
    int64_t b = n / y.len / y.heads, h = n / y.len % y.heads, i = n % y.len;
    double *row = cube_at(&y, b, h, i), top = -(double)INFINITY, sum = 0;
    for (int64_t j = 0; j < y.dim; j++) {
      int live = (!p->q_len || i < p->q_len[b]) && (!p->kv_len || j < p->kv_len[b]);
      if (map->data) {
        row[j] = live ? oracle_get(map, b, h, i, j) : 0;
        continue;
      }
      row[j] = oracle_allowed(q, k, p, b, h, i, j) ? oracle_score(q, k, p, b, h, i, j).x
                                                   : -(double)INFINITY;
      top = fmax(top, row[j]);
    }
    for (int64_t j = 0; !map->data && j < y.dim; j++)
      sum += row[j] > -(double)INFINITY ? exp(row[j] - top) : 0;
    for (int64_t j = 0; !map->data && j < y.dim; j++)
      row[j] = row[j] > -(double)INFINITY ? exp(row[j] - top) / sum : 0;
  }
  return y;
}

static double cosine(const double *x, const double *y, int64_t n) {
  double xy = 0, xx = 0, yy = 0;
  for (int64_t c = 0; c < n; c++) xy += x[c] * y[c], xx += x[c] * x[c], yy += y[c] * y[c];
  return sqrt(xx) <= 1e-12 || sqrt(yy) <= 1e-12 ? 0 : xy / (sqrt(xx) * sqrt(yy));
}

/* D_sub or D_out, pair by pair. */
static double cosines(const attn_tensor *x, const int32_t *len, int flat) {
  cube a = cube_from(x);
  double sum = 0, count = 0;
  for (int64_t b = 0; b < a.batch; b++) {
    int64_t n = len ? len[b] : a.len;
    count += flat ? 1 : (double)n;
    for (int64_t h = 0; h < a.heads; h++)
      for (int64_t g = 0; g < a.heads; g++)
        for (int64_t i = 0; i < (flat ? 1 : n); i++)
          sum += cosine(cube_at(&a, b, h, i), cube_at(&a, b, g, i), flat ? n * a.dim : a.dim);
  }
  return count > 0 ? -sum / count / (double)(a.heads * a.heads) : 0;
}

static double together(const cube *p, const int32_t *q_len, int by_row) {
  double all = 0;
  for (int64_t b = 0; b < p->batch; b++) {
    int64_t rows = q_len ? q_len[b] : p->len;
    double sum = 0;
    for (int64_t h = 0; h < p->heads; h++)
      for (int64_t g = 0; g < p->heads; g++)
        for (int64_t i = 0; i < rows; i++)
          for (int64_t j = 0; j < p->dim; j++)
            sum += fabs(cube_at(p, b, h, i)[j] * cube_at(p, b, g, i)[j]);
    if (rows > 0) all += sum / (by_row ? (double)rows : 1);
  }
  return -all / (double)(p->batch * p->heads * p->heads);
}

static double target_at(const attn_target_group *g, int64_t b, int64_t keys, int64_t p, int64_t j) {
  double sum = 0;
  for (int64_t m = 0; m < g->targets; m++) {
    const attn_target *t = &g->target[m];
    double weight = g->targets == 1 ? 1 : (double)t->weight, x = 0, count = 0;
    if (t->kind == ATTN_TARGET_OFFSET) x = j == p + t->offset;
    if (t->kind == ATTN_TARGET_FIRST) x = j == 0;
    if (t->kind == ATTN_TARGET_UNIFORM) x = 1 / (double)keys;
    if (t->kind == ATTN_TARGET_TOKENS) {
      const uint8_t *marked = t->marked + (t->per_batch ? b * keys : 0);
      for (int64_t r = 0; r < keys; r++) count += marked[r] != 0;
      if (marked[j]) x = t->raw ? 1 : 1 / count;
    }
    if (t->kind == ATTN_TARGET_BLOCK && p >= 0 && p < keys) {
      const int32_t *segment = t->segment + (t->per_batch ? b * keys : 0);
      for (int64_t r = 0; r < keys; r++) count += segment[r] == segment[p];
      if (segment[j] == segment[p]) x = 1 / count;
    }
    sum += weight * x;
  }
  return sum;
}

static double guided(const attn_guided_params *a) {
  cube p = maps_of(&a->q, &a->k, &a->map, &a->attention);
  int64_t off = a->attention.has_q_off ? a->attention.q_off : p.dim - p.len;
  double loss = 0;
  for (int64_t n = 0; n < a->groups; n++) {
    const attn_target_group *g = &a->group[n];
    for (int64_t k = 0; k < g->heads; k++)
      for (int64_t b = 0; b < p.batch; b++) {
        double sum = 0;
        for (int64_t i = 0; i < p.len; i++)
          for (int64_t j = 0; j < p.dim; j++) {
            double d = cube_at(&p, b, g->head[k], i)[j] - target_at(g, b, p.dim, i + off, j);
            sum += d * d;
          }
        loss += a->reduction == ATTN_GUIDED_MSE ? sum / (double)(p.batch * g->heads * p.len * p.dim)
                : a->reduction == ATTN_GUIDED_FRO ? sqrt(sum) / (double)p.batch
                                                  : sum / (double)p.batch;
      }
  }
  return loss;
}

/* ---- disagreement ---------------------------------------------------------------------------*/

static void check_d(scene *s, const char *what) {
  const attn_disagreement_params *d = &s->d;
  promise_run(&s->does);
  near(s->got[0], d->v.data ? cosines(&d->v, d->attention.kv_len, d->flat) : 0, 1e-6, what);
  near(s->got[1], d->o.data ? cosines(&d->o, d->attention.q_len, d->flat) : 0, 1e-6, what);
  double pos = 0;
  if (d->q.data || d->map.data) {
    cube p = maps_of(&d->q, &d->k, &d->map, &d->attention);
    pos = together(&p, d->attention.q_len, d->by_row);
  }
  near(s->got[2], pos, 1e-5, what);
}

void I1_random(void **state) {
  (void)state;
  test_rng rng = test_seed(320);
  for (int64_t n = test_count(32, 10); n-- > 0; test_mem_release()) {
    int64_t b = test_range(&rng, 1, 3), kh = test_range(&rng, 1, 2);
    int64_t h = kh * test_range(&rng, 1, 3), dk = test_range(&rng, 1, 9);
    int64_t tq = test_range(&rng, 1, n % 3 ? 20 : 140), tk = test_range(&rng, 1, n % 4 ? 20 : 200);
    attn_dtype type = n % 4 == 1 ? ATTN_F16 : n % 4 == 2 ? ATTN_BF16 : ATTN_F32;
    scene *s = start(3);
    test_where = n % 2 ? TEST_AFTER_GUARD : TEST_BEFORE_GUARD;
    if (n % 5 != 1) s->d.v = drawn(type, TEST_PADDED, b, kh, tk, 7, 1, &rng);
    if (n % 5 != 2) s->d.o = drawn(type, TEST_NEGATIVE, b, h, tq, 5, 1, &rng);
    if (n % 3 == 2) {
      s->d.map = drawn(type, TEST_PADDED, b, h, tq, tk, 0.2, &rng);
    } else if (n % 5 != 3) {
      s->d.q = drawn(type, TEST_BTHD, b, h, tq, dk, 1.5, &rng);
      s->d.k = drawn(type, TEST_PADDED, b, kh, tk, dk, 1.5, &rng);
      s->d.attention.causal = n % 4 == 3;
      if (n % 6 == 4) s->d.attention.mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, b, h, tq, tk, &rng);
    }
    test_where = TEST_HEAP;
    if (n % 4 == 0) s->d.attention.kv_len = test_lengths(b, tk, &rng);
    if (n % 4 == 3) s->d.attention.q_len = test_lengths(b, tq, &rng);
    s->d.flat = n % 3 == 1, s->d.by_row = (int)(n % 2);
    check_d(s, "disagreement");
  }
}

void I1_values(void **state) {
  (void)state;
  test_rng rng = test_seed(321);
  scene *s = start(3);
  s->d.o = drawn(ATTN_F32, TEST_BHTD, 2, 1, 9, 4, 1, &rng);
  check_d(s, "one head");
  near(s->got[1], -1, 1e-12, "one head");
  s->d.o.heads = 3, s->d.o.stride_head = 0; /* the same head */
  check_d(s, "identical");
  near(s->got[1], -1, 1e-12, "identical");
  s->d.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 4, 3, 4), test_fill_value(s->d.o, 0);
  check_d(s, "zero");
  near(s->got[1], 0, 0, "zero");
  for (int flat = 0; flat < 2; flat++) {
    s->d.flat = flat;
    for (int64_t n = 0; n < 12; n++) /* orthogonal */
      oracle_set(&s->d.o, 0, n % 4, n / 4, n % 4, (double)(n + 1)),
          oracle_set(&s->d.o, 0, n % 4, n / 4, 0, n % 4 ? 0 : (double)(n + 1));
    check_d(s, "orthogonal");
    near(s->got[1], -0.25, 1e-12, "orthogonal");
    for (int64_t n = 0; n < 12; n++) { /* pairs that cancel */
      test_fill_row(s->d.o, 0, n % 4, n / 4, 0);
      oracle_set(&s->d.o, 0, n % 4, n / 4, n % 4 / 2, n % 2 ? -3 : 3);
    }
    check_d(s, "cancel");
    near(s->got[1], 0, 1e-12, "cancel");
    test_fill_value(s->d.o, 0);
  }
}

void I1_one_hot(void **state) {
  (void)state;
  scene *s = start(3);
  s->d.map = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, 5, 4);
  test_fill_value(s->d.map, 0);
  for (int64_t n = 0; n < 15; n++) oracle_set(&s->d.map, 0, n % 3, n / 3, 2, 1);
  check_d(s, "one map");
  near(s->got[2], -5, 1e-12, "one map");
  s->d.by_row = 1;
  check_d(s, "one map, by row");
  near(s->got[2], -1, 1e-12, "one map, by row");
  s->d.by_row = 0;
  test_fill_value(s->d.map, 0);
  for (int64_t n = 0; n < 15; n++) oracle_set(&s->d.map, 0, n % 3, n / 3, n % 3, 1);
  check_d(s, "apart");
  near(s->got[2], -5.0 / 3, 1e-12, "apart");
}

/* A mask of the new tokens alone is the mask of all keys that allows the others. */
void I1_mask_of_new(void **state) {
  (void)state;
  enum { NEW = 6, ALL = 14 };
  test_rng rng = test_seed(323);
  scene *s = start(3);
  uint8_t all[NEW * ALL], some[NEW * NEW];
  attn_mask *m = &s->d.attention.mask;
  s->d.q = drawn(ATTN_F32, TEST_BHTD, 1, 3, NEW, 5, 1, &rng);
  s->d.k = drawn(ATTN_F32, TEST_BHTD, 1, 3, ALL, 5, 1, &rng);
  for (int i = 0; i < NEW * NEW; i++) some[i] = i % 3 > 0;
  for (int i = 0; i < NEW * ALL; i++) {
    const int c = i % ALL - (ALL - NEW);
    all[i] = c < 0 || some[i / ALL * NEW + c];
  }
  m->kind = ATTN_MASK_BOOL, m->batch = m->heads = 1, m->q_len = NEW;
  m->data = all, m->k_len = m->stride_q = ALL;
  promise_run(&s->does);
  const double want = s->got[2];
  m->data = some, m->k_len = m->stride_q = NEW, s->d.attention.mask_new = 1;
  promise_run(&s->does);
  assert_true(s->got[2] == want);
}

/* Scaling a row changes nothing, nor does the order of heads. */
void I1_invariants(void **state) {
  (void)state;
  test_rng rng = test_seed(322);
  scene *s = start(3);
  double first[3];
  attn_tensor v = s->d.v = drawn(ATTN_F32, TEST_BHTD, 1, 3, 8, 5, 1, &rng);
  attn_tensor q = s->d.q = drawn(ATTN_F32, TEST_BHTD, 1, 3, 8, 5, 1, &rng);
  attn_tensor k = s->d.k = drawn(ATTN_F32, TEST_BHTD, 1, 3, 8, 5, 1, &rng);
  check_d(s, "as drawn");
  memcpy(first, s->got, sizeof first);
  assert_true(first[0] >= -1 && first[0] <= 0);
  for (int64_t c = 0; c < 5; c++) oracle_set(&v, 0, 1, 3, c, 64 * oracle_get(&v, 0, 1, 3, c));
  attn_tensor *all[] = {&s->d.v, &s->d.q, &s->d.k};
  for (int n = 0; n < 3; n++) /* heads backwards */
    all[n]->data = oracle_address(all[n], 0, 2, 0, 0), all[n]->stride_head *= -1;
  check_d(s, "backwards");
  for (int n = 0; n < 3; n++) near(s->got[n], first[n], 1e-6, "invariant");
  (void)q, (void)k;
}

void I1_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(323);
  int32_t none[2] = {0, 0};
  for (int n = 0; n < 4; n++) {
    scene *s = start(3);
    int64_t tk = n == 2 ? 0 : 6, tq = n == 3 ? 0 : 5;
    s->d.v = drawn(ATTN_F32, TEST_BHTD, 2, 2, tk, 3, 1, &rng);
    s->d.o = drawn(ATTN_F32, TEST_BHTD, 2, 2, tq, 3, 1, &rng);
    s->d.q = drawn(ATTN_F32, TEST_BHTD, 2, 2, tq, 3, 1, &rng);
    s->d.k = drawn(ATTN_F32, TEST_BHTD, 2, 2, tk, 3, 1, &rng);
    if (n == 0) s->d.attention.kv_len = s->d.attention.q_len = none;
    s->d.flat = n % 2;
    check_d(s, "empty");
    if (n == 0) near(s->got[0] + s->got[1] + s->got[2], 0, 0, "all padding");
  }
  scene *s = start(3);
  check_d(s, "nothing asked");
}

void I1_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(324);
  for (int flat = 0; flat < 2; flat++) {
    scene *s = start(3);
    s->d.v = drawn(ATTN_F16, TEST_BHTD, 2, 2, 150, 7, 1, &rng);
    s->d.o = drawn(ATTN_F32, TEST_BHTD, 2, 4, 140, 6, 1, &rng);
    s->d.q = drawn(ATTN_F32, TEST_BHTD, 2, 4, 140, 6, 1, &rng);
    s->d.k = drawn(ATTN_F16, TEST_BHTD, 2, 2, 150, 6, 1, &rng);
    s->d.flat = flat;
    promise_keep(&s->does);
  }
}

void I1_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(325);
  int32_t bad = 9;
  scene *s = start(3);
  s->d.v = drawn(ATTN_F32, TEST_BHTD, 1, 2, 6, 3, 1, &rng);
  s->d.o = drawn(ATTN_F32, TEST_BHTD, 1, 4, 5, 3, 1, &rng);
  s->d.q = drawn(ATTN_F32, TEST_BHTD, 1, 4, 5, 3, 1, &rng);
  s->d.k = drawn(ATTN_F32, TEST_BHTD, 1, 2, 6, 3, 1, &rng);
  attn_disagreement_params was = s->d;
#define REJECT(change, status, word)        \
  do {                                      \
    change;                                 \
    promise_reject(&s->does, status, word); \
    s->d = was;                             \
  } while (0)
  REJECT(s->d.attention.kv_len = &bad, ATTN_E_RANGE, "kv_len");
  REJECT(s->d.attention.q_len = &bad, ATTN_E_RANGE, "q_len");
  REJECT((s->d.q.data = NULL, s->d.k.data = NULL, s->d.attention.kv_len = &bad), ATTN_E_RANGE,
         "kv_len");
  REJECT(s->d.o.heads = 2, ATTN_E_HEADS, "o");
  REJECT(s->d.o.len = 4, ATTN_E_SHAPE, "o");
  REJECT(s->d.v.len = 5, ATTN_E_SHAPE, "v");
  REJECT(s->d.v.heads = 0, ATTN_E_SHAPE, "v");
  REJECT(s->d.k.data = NULL, ATTN_E_NULL, "k");
  REJECT(s->d.k.dim = 2, ATTN_E_SHAPE, "k");
  REJECT(s->d.map = s->d.o, ATTN_E_RANGE, "map");
  REJECT(s->d.attention.lse = s->d.o, ATTN_E_RANGE, "lse");
  REJECT(s->d.v.data = s->got, ATTN_E_OVERLAP, "result");
#undef REJECT
  s->got = NULL;
  attn_ctx ctx = test_ctx();
  assert_int_equal(call_d(s, &ctx), ATTN_E_NULL);
}

/* ---- guided maps ----------------------------------------------------------------------------*/

static void check_g(scene *s, const char *what) {
  promise_run(&s->does);
  near(*s->got, guided(&s->g), 1e-5, what);
}

static attn_target target(attn_target_kind kind, int64_t offset, float weight) {
  attn_target t;
  memset(&t, 0, sizeof t);
  t.kind = kind, t.offset = offset, t.weight = weight;
  return t;
}

/* A target of each kind over `keys` keys: 0 .. 2 offsets, first, tokens, block, uniform. */
static attn_target any_target(int kind, int64_t batch, int64_t keys, test_rng *rng) {
  attn_target t = target((attn_target_kind)(kind < 3 ? 0 : kind - 2), kind - 1, 0);
  if (kind == 0) t.offset = test_range(rng, -5, 5);
  uint8_t *marked = test_mem((size_t)(batch * keys + 1));
  int32_t *segment = test_mem((size_t)(batch * keys + 1) * sizeof *segment);
  for (int64_t n = 0; n < batch * keys; n++) {
    marked[n] = (uint8_t)(2 * (test_range(rng, 0, 3) == 0));
    segment[n] = (int32_t)(n / 7 - 2);
  }
  if (t.kind == ATTN_TARGET_TOKENS) t.marked = marked, t.len = keys;
  if (t.kind == ATTN_TARGET_BLOCK) t.segment = segment, t.len = keys;
  t.per_batch = t.len && test_range(rng, 0, 1);
  t.raw = t.kind == ATTN_TARGET_TOKENS && test_range(rng, 0, 3) == 0;
  return t;
}

void I2_random(void **state) {
  (void)state;
  test_rng rng = test_seed(330);
  for (int64_t n = test_count(32, 10); n-- > 0; test_mem_release()) {
    int64_t b = test_range(&rng, 1, 2), kh = test_range(&rng, 1, 2);
    int64_t h = kh * test_range(&rng, 1, 3), groups = test_range(&rng, 0, 3);
    int64_t tq = test_range(&rng, 1, n % 3 ? 20 : 140), tk = test_range(&rng, 1, n % 4 ? 20 : 200);
    scene *s = start(1);
    attn_target_group *group = test_mem((size_t)(groups + 1) * sizeof *group);
    for (int64_t i = 0; i < groups; i++) {
      int64_t targets = test_range(&rng, 1, 3), heads = test_range(&rng, 0, 3);
      attn_target *t = test_mem((size_t)targets * sizeof *t);
      int32_t *head = test_mem((size_t)(heads + 1) * sizeof *head);
      for (int64_t m = 0; m < targets; m++) {
        t[m] = any_target((int)test_range(&rng, 0, 6), b, tk, &rng);
        if (targets == 2) t[m].weight = m ? 0.75f : 0.25f;
        if (targets == 3) t[m].weight = m ? 0.5f : 0;
      }
      for (int64_t k = 0; k < heads; k++) head[k] = (int32_t)test_range(&rng, 0, h - 1);
      group[i].target = t, group[i].targets = targets, group[i].head = head, group[i].heads = heads;
    }
    s->g.group = group, s->g.groups = groups;
    s->g.reduction = (attn_guided_reduction)(n % 3);
    attn_dtype type = n % 4 == 1 ? ATTN_F16 : ATTN_F32;
    if (n % 4 == 2) {
      s->g.map = drawn(type, TEST_PADDED, b, h, tq, tk, 0.2, &rng);
    } else {
      s->g.q = drawn(type, TEST_BTHD, b, h, tq, 5, 1.5, &rng);
      s->g.k = drawn(type, TEST_PADDED, b, kh, tk, 5, 1.5, &rng);
      s->g.attention.causal = n % 3 == 1;
    }
    if (n % 5 == 2) s->g.attention.has_q_off = 1, s->g.attention.q_off = test_range(&rng, -3, 3);
    if (n % 5 == 1) s->g.attention.kv_len = test_lengths(b, tk, &rng);
    if (n % 5 == 3) s->g.attention.q_len = test_lengths(b, tq, &rng);
    check_g(s, "guided");
  }
}

/* A map that is its target has no loss, in every reduction; one moved towards it has less. */
void I2_targets(void **state) {
  (void)state;
  test_rng rng = test_seed(331);
  static const int32_t head[2] = {0, 1};
  for (int n = 0; n < 21; n++) {
    scene *s = start(1);
    attn_target t = any_target(n % 7, 1, 12, &rng);
    attn_target_group group = {&t, 1, head, 2};
    t.per_batch = 0;
    s->g.group = &group, s->g.groups = 1, s->g.reduction = (attn_guided_reduction)(n / 7);
    s->g.map = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 10, 12);
    for (int64_t off = 2; off >= 0; off -= 2) { /* ends aligned, and q_off = 0 */
      for (int64_t h = 0; h < 2; h++)
        for (int64_t i = 0; i < 10; i++)
          for (int64_t j = 0; j < 12; j++)
            oracle_set(&s->g.map, 0, h, i, j, target_at(&group, 0, 12, i + off, j));
      s->g.attention.has_q_off = off == 0;
      check_g(s, "its own target");
      near(*s->got, 0, 1e-6, "its own target");
    }
    test_fill_value(s->g.map, 1.0 / 12);
    check_g(s, "uniform");
    double far = *s->got;
    for (int64_t j = 0; n % 7 == 3 && j < 12; j++) /* first: from the last key to it */
      oracle_set(&s->g.map, 0, 1, 4, j, j == 0 ? 2.0 / 12 : j == 11 ? 0 : 1.0 / 12);
    check_g(s, "towards it");
    if (n % 7 == 3) assert_true(*s->got < far);
  }
}

/* Groups add; mse is fro2 over the number of cells; no heads and T = 1. */
void I2_groups(void **state) {
  (void)state;
  test_rng rng = test_seed(332);
  static const int32_t head[3] = {2, 0, 1};
  attn_target t[2] = {target(ATTN_TARGET_OFFSET, 1, 0), target(ATTN_TARGET_FIRST, 0, 0)};
  attn_target_group group[3] = {{&t[0], 1, head, 2}, {&t[1], 1, head + 2, 1}, {&t[0], 1, NULL, 0}};
  scene *s = start(1);
  s->g.q = drawn(ATTN_F32, TEST_BHTD, 1, 3, 9, 4, 1, &rng);
  s->g.k = drawn(ATTN_F32, TEST_BHTD, 1, 3, 9, 4, 1, &rng);
  s->g.group = group, s->g.groups = 3;
  check_g(s, "all");
  double all = *s->got;
  s->g.groups = 1;
  check_g(s, "first");
  double first = *s->got;
  s->g.reduction = ATTN_GUIDED_MSE;
  check_g(s, "mse");
  near(*s->got, first / (2 * 81), 1e-12, "mse");
  s->g.reduction = ATTN_GUIDED_FRO2, s->g.group = group + 1;
  check_g(s, "second");
  near(first + *s->got, all, 1e-12, "a sum");
  s->g.group = group + 2;
  check_g(s, "no heads");
  near(*s->got, 0, 0, "no heads");
  s->g.q.len = s->g.k.len = 1, s->g.group = group; /* next: nothing there, |1|^2 a head */
  check_g(s, "T = 1");
  near(*s->got, 2, 1e-6, "T = 1");
}

void I2_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(333);
  static const int32_t head[3] = {3, 0, 3};
  attn_target t[2] = {any_target(5, 2, 150, &rng), any_target(1, 2, 150, &rng)};
  t[0].weight = t[1].weight = 0.5f;
  attn_target_group group[2] = {{t, 2, head, 3}, {t, 2, head, 1}};
  scene *s = start(1);
  s->g.q = drawn(ATTN_F32, TEST_BHTD, 2, 4, 140, 6, 1, &rng);
  s->g.k = drawn(ATTN_F16, TEST_BHTD, 2, 2, 150, 6, 1, &rng);
  s->g.group = group, s->g.groups = 2;
  promise_keep(&s->does);
}

void I2_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(334);
  int32_t head[2] = {0, 1}, bad = 9;
  attn_target t[2] = {any_target(4, 1, 6, &rng), any_target(5, 1, 6, &rng)};
  t[0].weight = 0.25f, t[1].weight = 0.75f;
  attn_target_group group = {t, 2, head, 2};
  scene *s = start(1);
  s->g.q = drawn(ATTN_F32, TEST_BHTD, 1, 2, 5, 3, 1, &rng);
  s->g.k = drawn(ATTN_F32, TEST_BHTD, 1, 1, 6, 3, 1, &rng);
  s->g.group = &group, s->g.groups = 1;
  attn_guided_params was = s->g;
  attn_target t0 = t[0], t1 = t[1];
  attn_target_group g0 = group;
#define REJECT(change, status, word)              \
  do {                                            \
    change;                                       \
    promise_reject(&s->does, status, word);       \
    s->g = was, t[0] = t0, t[1] = t1, group = g0; \
    head[0] = 0;                                  \
  } while (0)
  REJECT(head[0] = 2, ATTN_E_INDEX, "head");
  REJECT(head[0] = -1, ATTN_E_INDEX, "head");
  REJECT(t[0].len = 5, ATTN_E_SHAPE, "len");
  REJECT(t[1].segment = NULL, ATTN_E_NULL, "segment");
  REJECT(t[0].weight = 0.5f, ATTN_E_VALUE, "weight");
  REJECT(t[0].weight = NAN, ATTN_E_VALUE, "weight");
  REJECT((t[0].weight = -0.25f, t[1].weight = 1.25f), ATTN_E_VALUE, "weight");
  REJECT(group.targets = 1, ATTN_E_VALUE, "weight"); /* 0.25 alone */
  REJECT(group.targets = 0, ATTN_E_SHAPE, "targets");
  REJECT(group.head = NULL, ATTN_E_NULL, "head");
  REJECT(t[1].raw = 1, ATTN_E_RANGE, "raw");
  REJECT(t[0].kind = ATTN_TARGET_COUNT, ATTN_E_RANGE, "kind");
  REJECT(s->g.reduction = ATTN_GUIDED_COUNT, ATTN_E_RANGE, "reduction");
  REJECT(s->g.group = NULL, ATTN_E_NULL, "group");
  REJECT(s->g.q.data = NULL, ATTN_E_NULL, "q");
  REJECT(s->g.attention.kv_len = &bad, ATTN_E_RANGE, "kv_len");
#undef REJECT
}
