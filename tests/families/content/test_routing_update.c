/* tests/families/content/test_routing_update.c owns the centroids of the Routing Transformer (D2), and what its calls promise
 * and reject. */

#include "routing.h"

/* ---- centroids ------------------------------------------------------------------------------*/

static void updates(scene *s) {
  int64_t h = s->q.heads, c = s->mu.len, dk = s->q.dim;
  s->next = output(ATTN_F32, TEST_PADDED, 1, h, c, dk, &s->does.block[0]);
  s->does.call = routing_update_call, s->does.ask = routing_update_ask;
  s->does.out[0] = &s->next, s->does.out[1] = NULL;
  if (s->u.rule != ATTN_ROUTING_RUNNING) return;
  s->u.counts = test_mem((size_t)(h * c) * 4);
  for (int64_t i = 0; i < h * c; i++) s->u.counts[i] = (float)(i % 5);
  s->u.sums = test_tensor(ATTN_F32, TEST_BHTD, 1, h, c, dk);
  test_copy(s->u.sums, s->mu);
}

void D2_update(void **state) {
  (void)state;
  test_rng rng = test_seed(930);
  static const float decay[] = {0, 0.5f, 1, ATTN_ZERO};
  for (int t = 0; t < 48; t++) {
    shape x = routing_any_shape(&rng);
    scene *s = routing_build(&x, &rng);
    routing_any_params(s, &rng);
    s->u.rule = (attn_routing_rule)(t % 3), s->u.decay = decay[t / 3 % 4];
    s->u.renormalize = t / 12 % 2;
    updates(s);
    double lam = s->u.decay == 0.0f ? (signbit(s->u.decay) ? 0 : 0.999) : (double)s->u.decay;
    int64_t C = x.clusters, dk = x.dk;
    cube q = routing_normal(&s->q, s->p.norm), k = x.shared ? q : routing_normal(&s->k, s->p.norm);
    cube mu = cube_from(&s->mu), sum = cube_of(1, x.heads, C, dk), old = mu;
    double *count = test_mem((size_t)(x.heads * C) * sizeof *count), *n = count;
    for (int64_t i = 0; i < x.heads * C; i++) {
      count[i] = 0;
      for (int64_t c = 0; c < dk; c++) sum.data[i * dk + c] = 0;
    }
    int close = 0;
    for (int side = 0; side < (x.shared ? 1 : 2); side++) {
      const cube *rows = side ? &k : &q;
      const int32_t *len = side ? s->p.kv_len : s->p.q_len;
      for (int64_t u = 0; u < x.batch * x.heads; u++) {
        int64_t b = u / x.heads, h = u % x.heads, all = routing_length(len, b, rows->len);
        for (int64_t i = 0; i < all; i++) {
          const double *row = cube_at(rows, b, rows->heads * h / x.heads, i);
          int64_t best = 0;
          double top = -1e300, second = -1e300;
          for (int64_t c = 0; c < C; c++) {
            double z = routing_dots(cube_at(&mu, 0, h, c), row, dk);
            if (z > top)
              second = top, top = z, best = c;
            else if (z > second)
              second = z;
          }
          close |= top - second < 1e-5;
          count[h * C + best]++;
          for (int64_t c = 0; c < dk; c++) cube_at(&sum, 0, h, best)[c] += row[c];
        }
      }
    }
    if (close) continue; /* float32 may tell otherwise */
    if (s->u.rule == ATTN_ROUTING_RUNNING) old = cube_from(&s->u.sums);
    for (int64_t i = 0; i < x.heads * C && s->u.rule == ATTN_ROUTING_RUNNING; i++)
      n[i] = lam * (double)s->u.counts[i] + (1 - lam) * n[i];
    promise_run(&s->does);
    for (int64_t h = 0; h < x.heads; h++) {
      double all = 0;
      for (int64_t c = 0; c < C; c++) all += n[h * C + c];
      for (int64_t c = 0; c < C; c++) {
        double *to = test_mem((size_t)dk * sizeof *to), *S = cube_at(&sum, 0, h, c), size = 0;
        double length_of = sqrt(routing_dots(S, S, dk));
        for (int64_t e = 0; e < dk; e++) {
          double was = cube_at(&old, 0, h, c)[e], m = cube_at(&mu, 0, h, c)[e];
          if (s->u.rule == ATTN_ROUTING_SUM)
            to[e] = lam * m + (1 - lam) * S[e] / (x.shared ? 1 : 2);
          else if (s->u.rule == ATTN_ROUTING_DIRECTION)
            to[e] = length_of > 0 ? lam * m + (1 - lam) * S[e] / length_of : m;
          else
            to[e] = all > 0 ? (lam * was + (1 - lam) * S[e]) /
                                  ((n[h * C + c] + 1e-5) / (all + (double)C * 1e-5) * all)
                            : m;
          size += to[e] * to[e];
        }
        for (int64_t e = 0; e < dk; e++) {
          double want = s->u.renormalize && size > 0 ? to[e] / sqrt(size) : to[e];
          value_check(oracle_get(&s->next, 0, h, c, e), want, 2e-5 * (1 + fabs(want)), ATTN_F32,
                      "update", 0, h, c, e);
        }
        if (s->u.rule == ATTN_ROUTING_RUNNING)
          value_check((double)s->u.counts[h * C + c], n[h * C + c], 1e-5 * (1 + n[h * C + c]),
                      ATTN_F32, "count", 0, h, c, 0);
      }
    }
  }
}

/* In place, and a decay of 1 that changes nothing. */
void D2_update_still(void **state) {
  (void)state;
  test_rng rng = test_seed(931);
  shape x = routing_plain(2, 40, 30, 40, 3, 5);
  scene *s = routing_build(&x, &rng);
  updates(s);
  s->u.decay = 0.5f;
  promise_run(&s->does);
  attn_tensor before = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, 5, 40);
  test_copy(before, s->mu);
  attn_ctx ctx = test_ctx();
  s->u.decay = 1;
  attn_tensor moved = s->next;
  s->next = s->mu;
  assert_int_equal(routing_update_call(s, &ctx), ATTN_OK);
  test_assert_same(s->mu, before, "decay of 1");
  s->u.decay = 0.5f;
  assert_int_equal(routing_update_call(s, &ctx), ATTN_OK);
  test_assert_same(s->mu, moved, "in place");
}

static uint64_t mixed(uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}
static uint64_t absorb(uint64_t s, uint64_t x) { return mixed((s ^ x) + 0x9E3779B97F4A7C15u); }

void D2_start(void **state) {
  (void)state;
  test_rng rng = test_seed(932);
  for (int t = 0; t < 9; t++) {
    int64_t n = test_range(&rng, 3, 80), c = t == 0 ? n : test_range(&rng, 1, n);
    shape x = routing_plain(3, n, n, 6, 2, c);
    x.batch = 2;
    if (t == 4) x.type = ATTN_F16;
    scene *s = routing_build(&x, &rng);
    attn_ctx ctx = test_ctx();
    attn_routing_norm norm = (attn_routing_norm)(t % 3);
    uint64_t seed = 5 + (uint64_t)t;
    assert_int_equal(attn_routing_start(s->mu, s->q, norm, seed, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.isa, test_isa);
    cube q = routing_normal(&s->q, norm);
    for (int64_t h = 0; h < 3; h++) {
      char *in = test_mem((size_t)n);
      memset(in, c == n, (size_t)n);
      uint64_t stream = absorb(absorb(absorb(seed, 6), (uint64_t)h), 0);
      for (int64_t r = n - c; c < n && r < n; r++) {
        uint64_t range = (uint64_t)r + 1, m, low;
        do {
          stream += 0x9E3779B97F4A7C15u;
          m = (mixed(stream) >> 32) * range, low = m & 0xffffffffu;
        } while (low < range && low < (((uint64_t)1 << 32) - range) % range);
        in[in[m >> 32] ? r : (int64_t)(m >> 32)] = 1;
      }
      for (int64_t i = 0, at = 0; i < n; i++) {
        if (!in[i]) continue;
        for (int64_t e = 0; e < 6; e++)
          value_check(oracle_get(&s->mu, 0, h, at, e), cube_at(&q, 0, h, i)[e], 2e-6, ATTN_F32,
                      "start", 0, h, at, e);
        at++;
      }
    }
  }
}

/* ---- promises -------------------------------------------------------------------------------*/

void D2_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(933);
  for (int t = 0; t < 12; t++) {
    shape x = routing_plain(2, 130, 140, 7, 5, 4);
    x.batch = 2, x.shared = t % 2, x.k_heads = x.v_heads = 1;
    if (x.shared) x.k_len = 130, x.k_heads = 2;
    if (t == 2) x.type = ATTN_BF16;
    scene *s = routing_build(&x, &rng);
    s->p.membership = (attn_routing_membership)(t / 2 % 2), s->p.causal = t % 3 == 0;
    s->p.exclude_self = s->p.shared, s->p.w = 50, s->p.wk = 60;
    if (t % 4 < 2) routing_want_lse(s);
    if (t % 4 == 1) routing_learn(s, 4, 6, &rng);
    if (t / 4 == 1) routing_selects(s);
    if (t / 4 == 2) updates(s);
    promise_keep(&s->does);
  }
}

static scene *fresh(int call_is, test_rng *rng) {
  shape x = routing_plain(2, 12, 10, 4, 3, 3);
  x.batch = 2;
  scene *s = routing_build(&x, rng);
  if (call_is == 1) routing_selects(s);
  if (call_is == 2) routing_attends(s, 3, 50, rng);
  if (call_is == 3) updates(s);
  return s;
}

void D2_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(934);
  scene *s;
#define BAD(which, change, status, word) \
  s = fresh(which, &rng);                \
  change;                                \
  promise_reject(&s->does, status, word)
  static int32_t many[] = {13, 1};
  for (int which = 0; which < 4; which++) {
    BAD(which, s->p.norm = (attn_routing_norm)7, ATTN_E_RANGE, "norm");
    BAD(which, s->p.membership = (attn_routing_membership)2, ATTN_E_RANGE, "membership");
    BAD(which, s->p.combine = (attn_routing_combine)9, ATTN_E_RANGE, "combine");
    BAD(which, s->p.w = -1, ATTN_E_RANGE, "params.w");
    BAD(which, s->p.wk = -1, ATTN_E_RANGE, "params.w");
    BAD(which, s->p.exclude_self = 1, ATTN_E_RANGE, "exclude_self");
    BAD(which, s->p.scale = NAN, ATTN_E_VALUE, "scale");
    BAD(which, s->p.shared = 1, ATTN_E_SHAPE, "k must be absent");
    BAD(which, s->p.q_len = many, ATTN_E_RANGE, "q_len");
    BAD(which, s->p.kv_len = many, ATTN_E_RANGE, "kv_len");
    BAD(which, s->q.data = NULL, ATTN_E_NULL, "q.data");
    BAD(which, s->k.dim = 5, ATTN_E_SHAPE, "k must be");
    BAD(which, s->k.batch = 1, ATTN_E_SHAPE, "k must be");
    BAD(which, s->k.heads = 3, ATTN_E_HEADS, "k must be");
    BAD(which, s->q.dtype = ATTN_I8, ATTN_E_DTYPE, "q.dtype");
    if (which != 2) {
      if (which != 3) {
        BAD(which, s->mu.len = 0, ATTN_E_SHAPE, "cluster");
      }
      BAD(which, s->mu.dim = 3, ATTN_E_SHAPE, "centroids must be");
      BAD(which, s->mu.heads = 1, ATTN_E_SHAPE, "centroids must be");
      BAD(which, s->mu.dtype = ATTN_F16, ATTN_E_DTYPE, "centroids must be");
    }
    if (which == 0 || which == 2) {
      BAD(which, s->v.len = 9, ATTN_E_SHAPE, "k must be");
      BAD(which, s->o.dim = 2, ATTN_E_SHAPE, "o must be");
      BAD(which, routing_want_lse(s); s->p.combine = ATTN_ROUTING_MEAN, ATTN_E_RANGE, "UNION");
      BAD(which, routing_want_lse(s); s->p.lse.len = 4, ATTN_E_SHAPE, "params.lse");
      BAD(which, s->o.data = s->q.data, ATTN_E_OVERLAP, "o is an output");
      BAD(which, routing_learn(s, 3, 2, &rng);
          s->p.mem_k.len = s->p.mem_v.len = 5, ATTN_E_SHAPE, "mem_k.len must be a multiple");
      BAD(which, routing_learn(s, 3, 2, &rng);
          s->p.mem_v.len = 5, ATTN_E_SHAPE, "params.mem_v must");
      BAD(which, routing_learn(s, 3, 2, &rng);
          s->p.mem_k.dim = 3, ATTN_E_SHAPE, "params.mem_k must");
      BAD(which, routing_learn(s, 3, 2, &rng);
          s->p.mem_v.dim = 2, ATTN_E_SHAPE, "params.mem_v must");
      BAD(which, routing_learn(s, 3, 2, &rng); s->p.mem_k.data = NULL, ATTN_E_NULL, "params.mem_k");
      BAD(which, routing_learn(s, 3, 2, &rng); s->p.mem_v.data = NULL, ATTN_E_NULL, "params.mem_v");
      BAD(which, routing_learn(s, 3, 2, &rng); s->p.mem_v.data = s->o.data, ATTN_E_OVERLAP, "o is");
    }
    if (which == 1 || which == 2) {
      BAD(which, s->mq.clusters = 2, ATTN_E_SHAPE, "clusters");
      BAD(which, s->mk.clusters = 4, ATTN_E_SHAPE, "clusters");
      BAD(which, s->mk.index = NULL, ATTN_E_NULL, "keys.index");
      BAD(which, s->mq.indptr = NULL, ATTN_E_NULL, "queries.indptr");
    }
  }
  BAD(1, s->mq.entries -= 1, ATTN_E_SHAPE, "entries");
  BAD(1, s->mk.indptr = s->mq.indptr, ATTN_E_OVERLAP, "indptr");
  BAD(2, s->mq.indptr[0] = 1, ATTN_E_INDEX, "begin");
  BAD(2, s->mq.indptr[2] = s->mq.indptr[1] - 1, ATTN_E_INDEX, "indptr");
  BAD(2, s->mk.indptr[3] = (int32_t)s->mk.entries + 1, ATTN_E_INDEX, "indptr");
  BAD(2, s->mk.index[s->mk.entries] = 10, ATTN_E_INDEX, "below");
  BAD(2, s->mk.index[s->mk.entries] = -1, ATTN_E_INDEX, "below");
  BAD(2, s->mk.index[s->mk.entries + 1] = s->mk.index[s->mk.entries], ATTN_E_INDEX, "ascending");
  BAD(3, s->u.decay = 1.5f, ATTN_E_VALUE, "decay");
  BAD(3, s->u.decay = NAN, ATTN_E_VALUE, "decay");
  BAD(3, s->u.rule = (attn_routing_rule)3, ATTN_E_RANGE, "rule");
  BAD(3, s->u.rule = ATTN_ROUTING_RUNNING, ATTN_E_NULL, "counts");
  BAD(3, s->next.len = 2, ATTN_E_SHAPE, "next must be");
#undef BAD
  shape x = routing_plain(1, 6, 5, 4, 3, 2); /* shared with other lengths */
  x.shared = 1;
  s = routing_build(&x, &rng);
  promise_reject(&s->does, ATTN_E_SHAPE, "Tk = Tq if shared");
  attn_ctx ctx = test_ctx();
  s->mu.len = 7;
  assert_int_equal(attn_routing_start(s->mu, s->q, ATTN_ROUTING_L2, 0, &ctx), ATTN_E_SHAPE);
  s->mu.len = 0;
  assert_int_equal(attn_routing_start(s->mu, s->q, ATTN_ROUTING_L2, 0, &ctx), ATTN_E_SHAPE);
  assert_non_null(strstr(ctx.reason, "centroids.len"));
  assert_int_equal(attn_routing_entries(-1, 2, 0, ATTN_ROUTING_TOPW), -1);
  assert_int_equal(attn_routing_entries(10, 0, 0, ATTN_ROUTING_TOPW), -1);
  assert_int_equal(attn_routing_entries(10, 3, 0, ATTN_ROUTING_TOPW), 12);
  assert_int_equal(attn_routing_entries(10, 3, 99, ATTN_ROUTING_TOPW), 30);
  assert_int_equal(attn_routing_entries(10, 3, 99, ATTN_ROUTING_ARGMAX), 10);
}
