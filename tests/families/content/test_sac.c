/* tests/families/content/test_sac.c owns attention over drawn edges: the loop, whose every choice is judged by float64, edges
 * to lists, attention. */

#include "sac.h"

/* ---- the loop -------------------------------------------------------------------------------*/

/* Walks the loop along the edges that were made and judges each choice. */
static void follow(const network *x, int64_t batch, const int32_t *edges, const int32_t *count,
                   const float *log_p) {
  const attn_sac_params *p = &x->p;
  const int64_t t = x->e.len, de = x->e.dim, dh = p->lstm.w_hh.dim, heads = p->heads;
  const int64_t n = attn_sac_count(t, p);
  double *h = test_mem((size_t)dh * sizeof *h), *c = test_mem((size_t)dh * sizeof *c);
  double *in = test_mem((size_t)de * sizeof *in), *y = test_mem((size_t)t * sizeof *y);
  char *drawn_yet = test_mem((size_t)(t * t)), *allowed = test_mem((size_t)t);
  cube e = cube_from(&x->e);
  for (int64_t unit = 0; unit < batch * heads; unit++) {
    const int64_t b = unit / heads, head = unit % heads, eh = e.heads > 1 ? head : 0;
    const uint8_t *valid = p->valid ? p->valid + b * t : NULL;
    int64_t made = 0, choices = 0;
    memset(drawn_yet, 0, (size_t)(t * t));
    for (int64_t k = 0; k < dh; k++) h[k] = c[k] = 0;
    for (int64_t k = 0; k < de; k++)
      in[k] = p->sos.data ? oracle_get(&p->sos, 0, p->sos.heads > 1 ? head : 0, 0, k) : 0;
    for (int64_t turn = 0; turn < n; turn++) {
      const int32_t *edge = edges + 2 * (unit * n + made);
      const float *chance = log_p + 2 * (unit * n + made);
      int64_t s = p->sources ? p->sources[unit * n + turn] : p->forced ? turn / (n / t) : 0;
      if (p->forced && valid && !valid[s]) continue;
      sac_step(&p->lstm, head, in, h, c);
      int any = 0;
      if (!p->forced) {
        for (int64_t a = 0; a < t; a++) {
          allowed[a] = 0;
          for (int64_t to = 0; to < t; to++)
            allowed[a] |= (!valid || (valid[a] && valid[to])) && (!p->causal || to <= a) &&
                          (!p->no_self || to != a) && (p->repeat || !drawn_yet[a * t + to]);
          any |= allowed[a];
        }
        if (!any) break;
        assert_true(made < count[unit]);
        sac_point(y, p, &x->e, b, head, h, -1);
        s = edge[0];
        sac_judge(y, allowed, t, p->sampled ? sac_uniform(p->seed, head, choices++) : -1, s,
                  (double)chance[0], "source");
      }
      memcpy(in, cube_at(&e, b, eh, s), (size_t)de * sizeof *in);
      sac_step(&p->lstm, head, in, h, c);
      any = 0;
      for (int64_t to = 0; to < t; to++) {
        allowed[to] = (!valid || valid[to]) && (!p->causal || to <= s) &&
                      (!p->no_self || to != s) && (p->repeat || !drawn_yet[s * t + to]);
        any |= allowed[to];
      }
      if (!any) continue;
      assert_true(made < count[unit]);
      assert_int_equal(edge[0], s);
      if (p->forced) assert_true(chance[0] == 0.0f);
      sac_point(y, p, &x->e, b, head, h, s);
      sac_judge(y, allowed, t, p->sampled ? sac_uniform(p->seed, head, choices++) : -1, edge[1],
                (double)chance[1], "target");
      drawn_yet[s * t + edge[1]] = 1;
      memcpy(in, cube_at(&e, b, eh, edge[1]), (size_t)de * sizeof *in);
      made++;
    }
    assert_int_equal(made, count[unit]);
    for (int64_t i = 2 * made; i < 2 * n; i++) {
      assert_int_equal(edges[2 * unit * n + i], -1);
      assert_true(log_p[2 * unit * n + i] == 0.0f);
    }
  }
}

void D4_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(4404);
  for (int64_t n = test_count(36, 8); n-- > 0; test_mem_release()) {
    const int64_t b = test_range(&rng, 1, 2), heads = test_range(&rng, 1, 2);
    const int64_t nodes = test_range(&rng, 1, n % 4 ? 7 : 20);
    network x = sac_network(b, heads, nodes, test_range(&rng, 1, 9), test_range(&rng, 1, 9),
                            test_range(&rng, -1, 4), &rng);
    x.p.alpha = (double)test_range(&rng, 0, 12) / 4;
    x.p.sampled = n % 2 == 1, x.p.seed = (uint64_t)n + 3;
    x.p.causal = (int)test_range(&rng, 0, 1), x.p.no_self = (int)test_range(&rng, 0, 1);
    x.p.repeat = n % 5 == 4, x.p.forced = n % 3 == 2;
    uint8_t *valid = test_mem((size_t)(b * nodes));
    for (int64_t i = 0; i < b * nodes; i++) valid[i] = (uint8_t)(2 * test_range(&rng, 0, 2) / 3);
    for (int64_t i = 0; i < b; i++) valid[i * nodes + test_range(&rng, 0, nodes - 1)] = 5;
    if (n % 4 == 1) x.p.valid = valid;
    if (x.p.forced && n % 4 > 1) x.p.alpha += 0.5;
    int64_t most = attn_sac_count(nodes, &x.p);
    int32_t *sources = test_mem((size_t)(b * heads * 4 * nodes * 4));
    for (int64_t i = 0; i < 4 * b * heads * nodes; i++)
      sources[i] = (int32_t)test_range(&rng, 0, nodes - 1);
    if (x.p.forced && n % 4 == 0) {
      x.p.sources = sources;
      most = attn_sac_count(nodes, &x.p);
    }
    const size_t room = (size_t)(2 * b * heads * most + 1);
    int32_t *edges = test_mem(room * 4), *count = test_mem((size_t)(b * heads) * 4);
    float *log_p = test_mem(room * 4);
    attn_ctx ctx = test_ctx();
    attn_status status = attn_sac_edges(edges, count, log_p, x.e, &x.p, &ctx);
    if (status != ATTN_OK) fail_msg("%s", ctx.reason);
    assert_int_equal(ctx.report.isa, test_isa);
    follow(&x, b, edges, count, log_p);
    int32_t *again = test_mem(room * 4), *counts = test_mem((size_t)(b * heads) * 4);
    ctx = test_ctx();
    ctx.workers = 3, ctx.parallel_for = test_parallel_threads;
    ctx.workspace_size = attn_sac_edges_workspace(again, counts, NULL, x.e, &x.p, &ctx);
    ctx.workspace = test_mem(ctx.workspace_size);
    assert_int_equal(attn_sac_edges(again, counts, NULL, x.e, &x.p, &ctx), ATTN_OK);
    assert_memory_equal(again, edges, (room - 1) * 4);
    assert_memory_equal(counts, count, (size_t)(b * heads) * 4);
  }
}

/* Room for all pairs: each comes exactly once, then the loop ends. */
void D4_edges_all(void **state) {
  (void)state;
  test_rng rng = test_seed(4405);
  enum { T = 5 };
  for (int n = 0; n < 4; n++) {
    network x = sac_network(1, 1, T, 4, 3, 2, &rng);
    int32_t edges[2 * T * (T + 1)], count;
    attn_ctx ctx = test_ctx();
    int seen[T * T] = {0};
    x.p.alpha = T + 1, x.p.sampled = n % 2, x.p.causal = n / 2;
    assert_int_equal(attn_sac_count(T, &x.p), T * (T + 1));
    assert_int_equal(attn_sac_edges(edges, &count, NULL, x.e, &x.p, &ctx), ATTN_OK);
    assert_int_equal(count, n / 2 ? T * (T + 1) / 2 : T * T);
    for (int i = 0; i < count; i++)
      assert_int_equal(seen[edges[2 * i] * T + edges[2 * i + 1]]++, 0);
    for (int i = 0; i < T * T; i++) assert_int_equal(seen[i], n / 2 ? i % T <= i / T : 1);
  }
}

/* ---- lists and attention --------------------------------------------------------------------*/

typedef struct scene {
  attn_tensor o, q, k, v, e;
  int32_t *edges, *count;
  int64_t n;
  attn_sac_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_sac(s->o, s->q, s->k, s->v, s->edges, s->count, s->n, s->e, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_sac_workspace(s->o, s->q, s->k, s->v, s->edges, s->count, s->n, s->e, &s->p, ctx);
}

static scene *build(int64_t batch, int64_t heads, int64_t nodes, int64_t edge_heads, int64_t n,
                    test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  const int64_t dk = test_range(rng, 1, 20), dv = test_range(rng, 1, 20);
  s->q = drawn(sac_type(rng), TEST_PADDED, batch, heads, nodes, dk, 1, rng);
  s->k = drawn(sac_type(rng), TEST_NEGATIVE, batch, 1, nodes, dk, 1, rng);
  s->v = drawn(sac_type(rng), TEST_BTHD, batch, heads, nodes, dv, 1, rng);
  s->o = output(sac_type(rng), TEST_PADDED, batch, heads, nodes, dv, &s->does.block[0]);
  s->p.lse = output(ATTN_F32, TEST_BHTD, batch, heads, nodes, 1, &s->does.block[1]);
  s->p.heads = edge_heads, s->n = n;
  s->edges = test_mem((size_t)(2 * batch * edge_heads * n + 1) * 4);
  s->count = test_mem((size_t)(batch * edge_heads) * 4);
  for (int64_t i = 0; i < 2 * batch * edge_heads * n; i++)
    s->edges[i] = (int32_t)test_range(rng, 0, nodes - 1);
  for (int64_t i = 0; i < batch * edge_heads; i++) s->count[i] = (int32_t)test_range(rng, 0, n);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o, s->does.out[1] = &s->p.lse;
  return s;
}

/* seen[i T + j] of a set of edges. */
static void pairs(char *seen, const int32_t *edges, int64_t count, int64_t t,
                  const attn_sac_params *p) {
  memset(seen, 0, (size_t)(t * t));
  for (int64_t x = 0; x < count; x++) {
    seen[edges[2 * x] * t + edges[2 * x + 1]] = 1;
    if (p->symmetric) seen[edges[2 * x + 1] * t + edges[2 * x]] = 1;
  }
  for (int64_t i = 0; i < t; i++)
    for (int64_t j = 0; j < t; j++) {
      if (i == j && !p->no_add_self) seen[i * t + j] = 1;
      if (j > i && p->causal) seen[i * t + j] = 0;
    }
}

static void check(scene *s, const int32_t *edges, const int32_t *count, int64_t n) {
  const int64_t t = s->q.len, eh = s->p.heads ? s->p.heads : 1;
  char *seen = test_mem((size_t)(t * t + 1));
  bag a = bag_of(t, s->v.dim);
  for (int64_t u = 0; u < s->q.batch * s->q.heads; u++) {
    const int64_t b = u / s->q.heads, h = u % s->q.heads, set = b * eh + (eh > 1 ? h : 0);
    pairs(seen, edges + 2 * set * n, count[set], t, &s->p);
    for (int64_t i = 0; i < t; i++) {
      bag_empty(&a);
      for (int64_t j = 0; j < t; j++)
        if (seen[i * t + j])
          bag_add(&a, scale_of(s->p.scale, s->q.dim) * dot_rows(&s->q, &s->k, b, h, i, j), &s->v, b,
                  head_of(&s->v, h, s->q.heads), j);
      bag_close(&a);
      bag_check(&a, &s->o, &s->p.lse, b, h, i, 1e-5, "sac");
    }
  }
}

void D4_random(void **state) {
  (void)state;
  test_rng rng = test_seed(4406);
  for (int64_t n = test_count(40, 10); n-- > 0; test_mem_release()) {
    const int64_t heads = test_range(&rng, 1, 3), nodes = test_range(&rng, 1, n % 3 ? 12 : 80);
    test_where = n % 5 == 1 ? TEST_AFTER_GUARD : n % 5 == 2 ? TEST_BEFORE_GUARD : TEST_HEAP;
    scene *s = build(test_range(&rng, 1, 2), heads, nodes, n % 2 ? heads : 1,
                     test_range(&rng, 0, 3 * nodes), &rng);
    test_where = TEST_HEAP;
    s->p.causal = (int)test_range(&rng, 0, 1), s->p.symmetric = (int)test_range(&rng, 0, 1);
    s->p.no_add_self = (int)test_range(&rng, 0, 1);
    if (n % 4 == 1) s->p.scale = 0.3f;
    promise_run(&s->does);
    check(s, s->edges, s->count, s->n);
  }
}

void D4_lists(void **state) {
  (void)state;
  test_rng rng = test_seed(4407);
  for (int64_t n = test_count(60, 15); n-- > 0; test_mem_release()) {
    const int64_t sets = test_range(&rng, 0, 3), t = test_range(&rng, 0, n % 5 ? 9 : 40);
    const int64_t edges = t ? test_range(&rng, 0, 4 * t) : 0;
    attn_sac_params p;
    attn_ctx ctx = test_ctx();
    memset(&p, 0, sizeof p);
    p.causal = (int)test_range(&rng, 0, 1), p.symmetric = (int)test_range(&rng, 0, 1);
    p.no_add_self = (int)test_range(&rng, 0, 1);
    const int64_t room = attn_sac_room(t, edges, &p);
    int32_t *edge = test_mem((size_t)(2 * sets * edges + 1) * 4);
    int32_t *count = test_mem((size_t)(sets + 1) * 4);
    int32_t *col = test_mem((size_t)(sets * room + 1) * 4);
    int64_t *ptr = test_mem((size_t)(sets * (t + 1) + 1) * 8);
    char *seen = test_mem((size_t)(t * t + 1));
    for (int64_t i = 0; i < 2 * sets * edges; i++) edge[i] = (int32_t)test_range(&rng, 0, t - 1);
    for (int64_t i = 0; i < sets; i++) count[i] = (int32_t)test_range(&rng, 0, edges);
    if (n % 2) ctx.workers = 3, ctx.parallel_for = test_parallel_backward;
    assert_int_equal(attn_sac_csr(ptr, col, edge, count, sets, edges, t, &p, &ctx), ATTN_OK);
    for (int64_t set = 0; set < sets; set++) {
      int64_t at = 0;
      pairs(seen, edge + 2 * set * edges, count[set], t, &p);
      for (int64_t i = 0; i < t; i++) {
        assert_int_equal(ptr[set * (t + 1) + i], at);
        for (int64_t j = 0; j < t; j++)
          if (seen[i * t + j]) assert_int_equal(col[set * room + at++], j);
      }
      assert_int_equal(ptr[set * (t + 1) + t], at);
      while (at < room) assert_int_equal(col[set * room + at++], -1);
    }
    if (sets == 0 || t == 0) continue;
    count[0] = (int32_t)edges + 1;
    assert_int_equal(attn_sac_csr(ptr, col, edge, count, sets, edges, t, &p, &ctx), ATTN_E_INDEX);
    assert_int_equal(attn_sac_csr(ptr, col, edge, count, sets, edges, -1, &p, &ctx), ATTN_E_SHAPE);
    count[0] = 0;
    if (room > 0 && edges > 0)
      assert_int_equal(attn_sac_csr(ptr, edge, edge, count, sets, edges, t, &p, &ctx),
                       ATTN_E_OVERLAP);
  }
}

/* Drawn and attended in one call; all edges are full attention; no edges, the row itself. */
void D4_chain(void **state) {
  (void)state;
  test_rng rng = test_seed(4408);
  for (int n = 0; n < 12; n++, test_mem_release()) {
    const int64_t heads = 1 + n % 3, eh = n % 2 ? heads : 1, t = 3 + 2 * n;
    scene *s = build(2, heads, t, eh, 0, &rng);
    network x = sac_network(2, eh, t, 5, 4, 3, &rng);
    const attn_tensor lse = s->p.lse;
    s->p = x.p, s->p.lse = lse, s->e = x.e, s->edges = s->count = NULL;
    s->p.alpha = n == 4 ? 0 : n == 5 ? (double)t : 1.5;
    s->p.causal = n == 7, s->p.sampled = n > 8, s->p.symmetric = n == 9, s->p.no_add_self = n == 10;
    promise_run(&s->does);
    const int64_t most = attn_sac_count(t, &s->p);
    int32_t *edges = test_mem((size_t)(4 * eh * most + 1) * 4), *count = test_mem((size_t)eh * 8);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_sac_edges(edges, count, NULL, s->e, &s->p, &ctx), ATTN_OK);
    check(s, edges, count, most);
    attn_tensor o = test_tensor(s->o.dtype, TEST_BHTD, 2, heads, t, s->v.dim);
    test_copy(o, s->o);
    s->edges = edges, s->count = count, s->n = most;
    if (most) promise_run(&s->does), test_assert_same(s->o, o, "in two calls");
    if (n == 4) /* no edges: each row sees itself */
      for (int64_t c = 0; c < s->v.dim; c++)
        value_check(oracle_get(&o, 1, 0, 2, c), oracle_get(&s->v, 1, 0, 2, c), 1e-6, s->o.dtype,
                    "itself", 1, 0, 2, c);
    if (n != 5) continue;
    attn_sdpa_params full;
    memset(&full, 0, sizeof full);
    assert_int_equal(attn_sdpa(s->o, s->q, s->k, s->v, &full, &ctx), ATTN_OK);
    if (s->o.dtype == ATTN_F32) test_assert_near(s->o, o, 3e-6, "all edges");
  }
}

/* Doubles and the order of edges change nothing. */
void D4_order(void **state) {
  (void)state;
  test_rng rng = test_seed(4409);
  scene *s = build(1, 2, 20, 1, 60, &rng);
  s->count[0] = 30;
  promise_run(&s->does);
  attn_tensor o = test_tensor(s->o.dtype, TEST_BHTD, 1, 2, 20, s->v.dim);
  test_copy(o, s->o);
  for (int i = 0; i < 30; i++) { /* reversed, and once more */
    memcpy(s->edges + 2 * (59 - i), s->edges + 2 * i, 8);
  }
  s->count[0] = 60;
  promise_run(&s->does);
  test_assert_same(s->o, o, "doubles");
  memcpy(s->edges, s->edges + 60, 240);
  s->count[0] = 30;
  promise_run(&s->does);
  test_assert_same(s->o, o, "reversed");
}

/* NaN in nodes and weights ends the loop all the same, with legal edges. */
void D4_not_finite(void **state) {
  (void)state;
  test_rng rng = test_seed(4410);
  for (int n = 0; n < 8; n++) {
    network x = sac_network(1, 1, 6, 4, 3, 2, &rng);
    int32_t edges[24], count;
    attn_ctx ctx = test_ctx();
    const double bad = n / 4 ? (double)INFINITY : (double)NAN;
    x.p.alpha = 2, x.p.sampled = n % 2;
    if (n / 2 % 2) test_fill_value(x.p.w_p, bad);
    test_fill_row(x.e, 0, 0, 2, bad);
    assert_int_equal(attn_sac_edges(edges, &count, NULL, x.e, &x.p, &ctx), ATTN_OK);
    assert_int_equal(count, 12);
    for (int i = 0; i < 24; i++) assert_true(edges[i] >= 0 && edges[i] < 6);
  }
}

void D4_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(4411);
  for (int n = 0; n < 4; n++) {
    scene *s = build(2, 2, 70, n % 2 ? 2 : 1, 100, &rng);
    promise_keep(&s->does);
    network x = sac_network(2, n % 2 ? 2 : 1, 70, 4, 3, 2, &rng);
    const attn_tensor lse = s->p.lse;
    s->p = x.p, s->p.lse = lse, s->e = x.e, s->edges = s->count = NULL, s->p.alpha = 0.3;
    promise_keep(&s->does);
  }
  scene *s = build(1, 1, 3, 1, 4, &rng);
  s->q.len = s->k.len = s->v.len = s->o.len = s->p.lse.len = 0;
  promise_run(&s->does);
}

void D4_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(4412);
  uint8_t valid[8] = {0};
  int32_t sources[64];
  for (int i = 0; i < 64; i++) sources[i] = i % 9;
  for (int n = 0; n < 26; n++, test_mem_release()) {
    scene *s = build(1, 2, 8, n % 2 ? 2 : 1, 10, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    for (int i = 0; i < 1 + n % 2; i++) s->count[i] = 10;
    if (n > 9) {
      network x = sac_network(1, s->p.heads, 8, 5, 4, 2, &rng);
      const attn_tensor lse = s->p.lse;
      s->p = x.p, s->p.lse = lse, s->e = x.e, s->edges = s->count = NULL, s->p.alpha = 1;
    }
    switch (n) {
      case 0: s->n = -1, word = "n must"; break;
      case 1: s->count[1] = 11, want = ATTN_E_INDEX, word = "count"; break;
      case 2: s->count[0] = -1, want = ATTN_E_INDEX, word = "count"; break;
      case 3: s->edges[7] = 8, want = ATTN_E_INDEX, word = "edges"; break;
      case 4: s->edges[19] = -1, want = ATTN_E_INDEX, word = "edges"; break;
      case 5: s->count = NULL, want = ATTN_E_NULL, word = "count"; break;
      case 6: s->p.heads = 3, want = ATTN_E_HEADS, word = "heads"; break;
      case 7: s->k.len = 7, word = "k must"; break;
      case 8: s->p.scale = (float)NAN, want = ATTN_E_VALUE, word = "scale"; break;
      case 9: s->o.data = s->q.data, want = ATTN_E_OVERLAP, word = "o "; break;
      case 10: s->e.len = 7, word = "e.len"; break;
      case 11: s->p.lstm.w_ih.len = 15, word = "w_ih"; break;
      case 12: s->p.lstm.w_hh.len = 12, word = "w_hh"; break;
      case 13: s->p.w_p.dim = 3, word = "w_p"; break;
      case 14: s->p.w_p.len = 4, word = "w_p"; break;
      case 15: s->p.dist.len = 4, word = "dist"; break;
      case 16: s->p.dist.dim = 4, word = "dist"; break;
      case 17: s->p.sos = test_rows(s->e, 0, 2), word = "sos"; break;
      case 18: s->p.alpha = -1, want = ATTN_E_VALUE, word = "alpha"; break;
      case 19: s->p.alpha = (double)NAN, want = ATTN_E_VALUE, word = "alpha"; break;
      case 20: s->p.alpha = 1e12, want = ATTN_E_VALUE, word = "alpha"; break;
      case 21: s->p.valid = valid, want = ATTN_E_VALUE, word = "valid"; break;
      case 22:
        s->p.forced = 1, s->p.sources = sources + 1;
        want = ATTN_E_INDEX, word = "sources";
        break;
      case 23: s->p.lse.dtype = ATTN_F16, want = ATTN_E_DTYPE, word = "lse"; break;
      case 24: s->p.lstm.w_hh.data = NULL, want = ATTN_E_NULL, word = "w_hh"; break;
      default: s->q.dim++, word = "k must"; break;
    }
    promise_reject(&s->does, want, word);
  }
  const attn_sac_params one = {.heads = 1};
  int64_t indptr[9];
  const int32_t five = 5;
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_sac_csr(indptr, NULL, NULL, &five, 1, 5, 8, &one, &ctx), ATTN_E_NULL);
  assert_non_null(strstr(ctx.reason, "edges"));
  scene *s = build(1, 2, 8, 1, 10, &rng);
  assert_int_equal(attn_sac(s->o, s->q, s->k, s->v, NULL, NULL, 0, s->e, NULL, &ctx), ATTN_E_NULL);
  assert_int_equal(attn_sac_count(10, NULL), 0);
  s->p.alpha = 2.7;
  assert_int_equal(attn_sac_count(10, &s->p), 27);
  s->p.forced = 1;
  assert_int_equal(attn_sac_count(10, &s->p), 20);
  assert_int_equal(attn_sac_count(-1, &s->p), -1);
  assert_int_equal(attn_sac_room(10, 20, &s->p), 30);
  assert_int_equal(attn_sac_room(10, -1, &s->p), -1);
}
