/* tests/families/sparse/test_tree.c owns the BP-Transformer's tree: its edges, their labels, and attention on it. */

#include "compound.h"

typedef struct scene {
  attn_tensor o, q, k, v;
  attn_tree_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_tree(s->o, s->q, s->k, s->v, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_tree_workspace(s->o, s->q, s->k, s->v, &s->p, ctx);
}

/* The tree, level by level. */
typedef struct tree {
  int64_t tokens, nodes, levels; /* levels: number of the root's */
  int64_t base[40], count[40];
} tree;

static tree tree_of(int64_t tokens) {
  tree t;
  memset(&t, 0, sizeof t);
  t.tokens = tokens, t.count[0] = tokens;
  while (t.count[t.levels] > 1) {
    t.base[t.levels + 1] = t.base[t.levels] + t.count[t.levels];
    t.count[t.levels + 1] = (t.count[t.levels] + 1) / 2;
    t.levels++;
  }
  t.nodes = t.base[t.levels] + 1;
  return t;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Row i of the label matrix, -1 = no edge, by the procedure of the specification. */
static void labels_of(int64_t *row, const tree *t, const attn_tree_params *p, int64_t i) {
  int64_t clip = p->has_clip || p->clip ? p->clip : t->levels;
  int64_t each = 2 * p->k + 1, k = p->k;
  for (int64_t j = 0; j < t->nodes; j++) row[j] = -1;
  if (i >= t->tokens) {
    int64_t l = 1;
    while (i >= t->base[l] + t->count[l]) l++;
    int64_t first = (i - t->base[l]) << l;
    for (int64_t j = first; j < smaller(first + ((int64_t)1 << l), t->tokens); j++)
      row[j] = each * smaller(l, clip);
    if (p->include_self) row[i] = each * smaller(l, clip);
    return;
  }
  row[i] = 0;
  if (p->overlap) {
    int64_t right = i + 1, left = i - 1, go_right = !p->causal, go_left = 1;
    for (int64_t l = 0; l <= t->levels; l++) {
      int64_t label = each * smaller(l, clip);
      for (int64_t n = 0; n < k && go_right && right + n < t->count[l]; n++)
        row[t->base[l] + right + n] = label + 2 * n + 2;
      for (int64_t n = 0; n < k && go_left && left - n >= 0; n++)
        row[t->base[l] + left - n] = label + 2 * n + 1;
      if (right + k >= t->count[l]) go_right = 0;
      if (left - k < 0) go_left = 0;
      right = (right + k) / 2, left = (left - k) / 2;
    }
    return;
  }
  int64_t g = i, f = i + 1;
  for (int64_t l = 0; l <= t->levels; l++) {
    int64_t size = (int64_t)1 << l, label = each * smaller(l, clip);
    for (int64_t n = 0; n < k && g > 0; n++) {
      int64_t lev = g % size == 0 ? l : l - 1, m = (g >> lev) - 1;
      row[t->base[lev] + m] = label + 2 * n + 1;
      g = m << lev;
    }
    for (int64_t n = 0; n < k && f < t->tokens && !p->causal; n++) {
      int64_t lev = f % size == 0 ? l : l - 1, m = f >> lev;
      row[t->base[lev] + m] = label + 2 * n + 2;
      f = smaller((m + 1) << lev, t->tokens);
    }
  }
}

void C16_tree_nodes(void **state) {
  (void)state;
  assert_int_equal(attn_tree_nodes(1), 1);
  assert_int_equal(attn_tree_nodes(2), 3);
  assert_int_equal(attn_tree_nodes(11), 23);
  assert_int_equal(attn_tree_nodes(0), 0);
  assert_int_equal(attn_tree_nodes(-5), 0);
  assert_int_equal(attn_tree_nodes((int64_t)1 << 31), 0);
  for (int64_t n = 1; n < 300; n++) assert_int_equal(attn_tree_nodes(n), tree_of(n).nodes);
}

/* The worked example: 11 tokens, one node a level and side, token 5. */
void C16_tree_example(void **state) {
  (void)state;
  static const int want[7][2] = {{5, 0}, {4, 1}, {12, 4}, {11, 7}, {6, 2}, {7, 5}, {19, 8}};
  static const int over[7] = {5, 4, 12, 17, 6, 14, 19};
  attn_tree_params p;
  memset(&p, 0, sizeof p);
  p.tokens = 11, p.k = 1;
  for (int64_t j = 0; j < 23; j++) {
    int64_t label = -1, sees = 0;
    for (int n = 0; n < 7; n++) {
      if (want[n][0] == j) label = want[n][1];
      sees |= over[n] == j;
    }
    p.overlap = 0;
    assert_int_equal(attn_tree_label(&p, 5, j), label);
    p.overlap = 1;
    assert_int_equal(attn_tree_label(&p, 5, j) >= 0, sees);
  }
  assert_int_equal(attn_tree_label(&p, 5, 23), -1);
  assert_int_equal(attn_tree_label(&p, -1, 0), -1);
  assert_int_equal(attn_tree_label(NULL, 0, 0), -1);
  p.k = 0;
  assert_int_equal(attn_tree_label(&p, 5, 5), -1);
}

void C16_tree_labels(void **state) {
  (void)state;
  int64_t row[200];
  for (int64_t tokens = 1; tokens < 70; tokens += tokens < 20 ? 1 : 7) {
    for (int n = 0; n < 24; n++) {
      static const int64_t ks[6] = {1, 2, 3, 5, 64, INT32_MAX};
      attn_tree_params p;
      memset(&p, 0, sizeof p);
      p.tokens = tokens, p.k = ks[n % 6], p.causal = n & 1, p.overlap = n / 6 & 1;
      p.include_self = n % 3 == 0, p.clip = n / 12 ? n % 4 - 1 : 0;
      if (p.clip < 0) p.has_clip = 1, p.clip = 0;
      tree t = tree_of(tokens);
      for (int64_t i = 0; i < t.nodes; i++) {
        labels_of(row, &t, &p, i);
        for (int64_t j = 0; j < t.nodes; j++) {
          int64_t got = attn_tree_label(&p, i, j);
          if (got == row[j]) continue;
          fail_msg("tokens %d, k %d, case %d: label of %d -> %d is %d, not %d", (int)tokens,
                   (int)p.k, n, (int)i, (int)j, (int)got, (int)row[j]);
        }
      }
      /* disjoint nodes cover the sequence, or the prefix */
      for (int64_t i = 0; i < tokens && !p.overlap; i++) {
        int64_t covered = 0;
        for (int64_t j = 0; j < t.nodes; j++) {
          if (attn_tree_label(&p, i, j) < 0) continue;
          int64_t l = 0;
          while (j >= t.base[l] + t.count[l]) l++;
          int64_t first = (j - t.base[l]) << l;
          covered += smaller(first + ((int64_t)1 << l), tokens) - first;
        }
        assert_int_equal(covered, p.causal ? i + 1 : tokens);
      }
    }
  }
}

static scene *build(const attn_tree_params *p, int64_t batch, int64_t dk, int64_t dv, int table,
                    attn_dtype type, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  tree t = tree_of(p->tokens);
  s->p = *p;
  s->q = drawn(type, TEST_BTHD, batch, 2, t.nodes, dk, 1, rng);
  s->k = drawn(ATTN_F32, TEST_PADDED, batch, 1, t.nodes, dk, 1, rng);
  s->v = drawn(type, TEST_BHTD, batch, 2, t.nodes, dv, 1, rng);
  s->o = output(type, TEST_BTHD, batch, 2, t.nodes, dv, &s->does.block[0]);
  s->p.lse = output(ATTN_F32, TEST_BHTD, batch, 2, t.nodes, 1, &s->does.block[1]);
  int64_t clip = p->has_clip || p->clip ? smaller(p->clip, t.levels) : t.levels;
  if (table)
    s->p.table = drawn(ATTN_F32, TEST_BHTD, 1, table, (2 * p->k + 1) * (clip + 1), dk, 0.5, rng);
  s->does.call = call, s->does.ask = ask, s->does.scene = s, s->does.mallocs = 1;
  s->does.out[0] = &s->o, s->does.out[1] = &s->p.lse;
  return s;
}

static void check(const scene *s, const char *what) {
  tree t = tree_of(s->p.tokens);
  int64_t *row = test_mem((size_t)t.nodes * sizeof *row);
  bag a = bag_of(t.nodes, s->v.dim);
  double scale = scale_of(s->p.scale, s->q.dim);
  for (int64_t r = 0; r < s->q.batch * 2 * t.nodes; r++) {
    int64_t b = r / t.nodes / 2, h = r / t.nodes % 2, i = r % t.nodes;
    labels_of(row, &t, &s->p, i);
    bag_empty(&a);
    for (int64_t j = 0; j < t.nodes; j++) {
      if (row[j] < 0) continue;
      double x = dot_rows(&s->q, &s->k, b, h, i, j);
      const attn_tensor *table = &s->p.table;
      for (int64_t c = 0; c < s->q.dim && table->data; c++)
        x += oracle_get(&s->q, b, h, i, c) *
             oracle_get(table, 0, table->heads > 1 ? h : 0, row[j], c);
      bag_add(&a, scale * x, &s->v, b, head_of(&s->v, h, 2), j);
    }
    bag_close(&a);
    bag_check(&a, &s->o, &s->p.lse, b, h, i, 3e-5, what);
  }
}

void C16_tree_random(void **state) {
  (void)state;
  test_rng rng = test_seed(160);
  for (int64_t n = test_count(24, 6); n-- > 0;) {
    attn_tree_params p;
    memset(&p, 0, sizeof p);
    p.tokens = n == 0 ? 1 : n == 1 ? 2 : test_range(&rng, 3, n % 4 ? 40 : 150);
    p.k = test_range(&rng, 1, 5);
    p.causal = n & 1, p.overlap = n % 3 == 0, p.include_self = n % 5 == 0;
    p.clip = n % 4 == 3 ? test_range(&rng, -1, 4) : 0;
    if (p.clip < 0) p.has_clip = 1, p.clip = 0;
    p.scale = n % 7 == 3 ? 0.5f : 0.0f;
    scene *s = build(&p, 1 + n % 2, test_range(&rng, 1, 9), test_range(&rng, 1, 9), (int)(n % 3),
                     (attn_dtype)(n % 8 == 5), &rng);
    promise_run(&s->does);
    check(s, "tree");
  }
}

/* With k >= T the rows of tokens are full attention over tokens; a span's row is attention over its
 * tokens. */
void C16_tree_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(161);
  for (int causal = 0; causal < 2; causal++) {
    attn_tree_params p;
    memset(&p, 0, sizeof p);
    p.tokens = 37, p.k = 37, p.causal = causal;
    scene *s = build(&p, 1, 8, 6, 0, ATTN_F32, &rng);
    promise_run(&s->does);
    test_spec spec = test_plain(2, 37, 37, 8, 6);
    spec.k_heads = 1;
    test_call leaves = test_build(&spec, &rng);
    test_copy(leaves.q, test_rows(s->q, 0, 37));
    test_copy(leaves.k, test_rows(s->k, 0, 37));
    test_copy(leaves.v, test_rows(s->v, 0, 37));
    leaves.params.causal = causal;
    test_run(&leaves);
    test_assert_near(test_rows(s->o, 0, 37), leaves.o, 1e-5, "leaves");
    /* node 37 + 19 + 3 covers tokens 12 .. 15 */
    leaves.q = test_rows(s->q, 59, 1), leaves.o = test_rows(leaves.o, 0, 1);
    leaves.k = test_rows(leaves.k, 12, 4), leaves.v = test_rows(leaves.v, 12, 4);
    leaves.params.lse.len = 1, leaves.params.causal = 0;
    test_run(&leaves);
    test_assert_near(test_rows(s->o, 59, 1), leaves.o, 1e-5, "span");
  }
}

void C16_tree_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(162);
  for (int n = 0; n < 2; n++) {
    attn_tree_params p;
    attn_schedule schedule;
    memset(&p, 0, sizeof p);
    p.tokens = 90, p.k = 2, p.causal = n;
    scene *s = build(&p, 2, 8, 6, 2, ATTN_F32, &rng);
    promise_keep(&s->does);
    attn_tensor o = s->o;
    attn_pattern graph = attn_pattern_tree(90, 2);
    graph.causal = n;
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_schedule_build(&schedule, &graph, 2, s->q.len, s->q.len, NULL, &ctx),
                     ATTN_OK);
    s->p.schedule = &schedule, s->does.mallocs = 0;
    promise_keep(&s->does);
    promise_run(&s->does);
    s->o = output(ATTN_F32, TEST_BHTD, 2, 2, s->q.len, 6, NULL), s->p.schedule = NULL;
    promise_run(&s->does);
    test_assert_same(s->o, o, "a schedule given");
    attn_schedule_free(&schedule);
  }
}

/* A schedule of the same lengths, but of another graph. */
void C16_tree_schedules(void **state) {
  (void)state;
  test_rng rng = test_seed(167);
  attn_pattern other[6];
  for (int n = 0; n < 6; n++) {
    attn_schedule schedule;
    attn_tree_params p;
    memset(&p, 0, sizeof p);
    p.tokens = 32, p.k = 3;
    scene *s = build(&p, 1, 4, 4, 2, ATTN_F32, &rng);
    for (int m = 0; m < 6; m++) other[m] = attn_pattern_tree(32, 3);
    other[0].count = 2, other[1].causal = 1, other[2].overlap = 1, other[3].include_self = 1;
    other[4] = attn_pattern_band(5, 5);
    assert_int_equal(attn_schedule_build(&schedule, &other[n], 2, s->q.len, s->q.len, NULL, NULL),
                     ATTN_OK);
    s->p.schedule = &schedule;
    if (n < 5)
      promise_reject(&s->does, ATTN_E_SCHEDULE, "params.schedule must be of attn_pattern_tree");
    else
      promise_run(&s->does);
    attn_schedule_free(&schedule);
  }
}

void C16_tree_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(163);
  for (int n = 0; n < 15; n++) {
    attn_tree_params p;
    memset(&p, 0, sizeof p);
    p.tokens = 9, p.k = 2;
    scene *s = build(&p, 1, 8, 6, 2, ATTN_F32, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    attn_schedule junk = {NULL, 0, NULL};
    switch (n) {
      case 0: s->p.tokens = 0, want = ATTN_E_RANGE, word = "tokens"; break;
      case 1: s->p.k = 0, want = ATTN_E_RANGE, word = "params.k"; break;
      case 2: s->p.clip = -1, want = ATTN_E_RANGE, word = "clip"; break;
      case 3: s->p.tokens = 8, word = "q.len"; break;
      case 4: s->k.len = 9, word = "k must"; break;
      case 5: s->p.table.len--, word = "table"; break;
      case 6: s->p.table.dim = 7, word = "table"; break;
      case 7: s->p.k = 3, word = "table"; break;
      case 8: s->o.dim = 5, word = "o must"; break;
      case 9: s->p.scale = (float)NAN, want = ATTN_E_VALUE, word = "scale"; break;
      case 10: s->p.schedule = &junk, want = ATTN_E_SCHEDULE, word = "schedule"; break;
      case 11: s->p.table.data = s->o.data, want = ATTN_E_OVERLAP, word = "o is"; break;
      case 12: s->p.lse.dtype = ATTN_BF16, want = ATTN_E_DTYPE, word = "lse"; break;
      case 13: s->v.heads = 3, want = ATTN_E_HEADS, word = "v must"; break;
      default: s->p.tokens = INT64_MAX, want = ATTN_E_RANGE, word = "tokens"; break;
    }
    promise_reject(&s->does, want, word);
  }
}
