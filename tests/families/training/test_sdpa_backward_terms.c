/* tests/families/training/test_sdpa_backward_terms.c owns N3, the gradients of score terms. */

#include "backward.h"
#include "terms.h"

/* Gradients of what is added to scores, beside the others and by themselves. */
void N3_terms(void **state) {
  (void)state;
  test_rng rng = test_seed(9220);
  for (int64_t n = test_count(120, 30); n-- > 0; test_mem_release()) {
    test_spec spec = backward_spec(&rng, n % 5 ? 60 : 200);
    backward *s = backward_build(&spec, ATTN_F32, TEST_PADDED, &rng);
    backward_options(s, &rng);
    backward_terms(s);
    if (n % 3 == 0) s->d_q = s->d_k = s->d_v = absent();
    backward_check(s, "terms");
    if (n % 4 == 0 && s->d_q.data) promise_keep(&s->does);
  }
}

/* One number of an array, by differences of the loss; where y is a table x lies in memory as it does. */
static void differ(const backward *s, const float *y, const float *x, int64_t n, float step,
                   test_rng *rng, const char *what) {
  if (!y || !n) return;
  const int64_t c = test_range(rng, 0, n - 1);
  float *at = (float *)(uintptr_t)x + c;
  const float was = *at;
  double got = 0;
  for (int fine = 0; fine < 3; fine++, step /= 8) { /* a kink may lie between, not thrice */
    double slope[2];
    for (int far = 0; far < 2; far++) {
      const float up_at = was + step * (float)(1 + far), down_at = was - step * (float)(1 + far);
      *at = up_at;
      const double up = backward_loss(s);
      *at = down_at;
      slope[far] = (up - backward_loss(s)) / ((double)up_at - (double)down_at);
      *at = was;
    }
    got = (4 * slope[0] - slope[1]) / 3; /* to the fourth order */
    if (fabs(got - (double)y[c]) <= 2e-4 * (1 + fabs(got))) return;
  }
  fail_msg("%s: %.9g, not %.9g", what, (double)y[c], got);
}

void N3_differences(void **state) {
  (void)state;
  test_rng rng = test_seed(9222);
  for (int64_t n = test_count(60, 20); n-- > 0; test_mem_release()) {
    test_spec spec = backward_spec(&rng, 9);
    backward *s = backward_build(&spec, ATTN_F32, TEST_PADDED, &rng);
    attn_sdpa_params *p = &s->call.params;
    const int64_t H = spec.heads, rows = spec.batch * H * spec.q_len;
    backward_options(s, &rng);
    memset(&p->bias, 0, sizeof p->bias);
    backward_terms(s);
    test_run(&s->call);
    promise_run(&s->does);
    differ(s, s->g.d_alibi, p->alibi, H, 1.0f / 4096, &rng, "alibi");
    differ(s, s->g.d_t5, p->t5.table, 32 * H, 1.0f / 4096, &rng, "t5");
    differ(s, s->g.d_toeplitz, p->toeplitz.table, (p->toeplitz.heads > 1 ? H : 1) * p->toeplitz.len,
           1.0f / 4096, &rng, "toeplitz");
    differ(s, s->g.d_parabola_w, p->parabola.w, H, 1.0f / 262144, &rng, "parabola.w");
    differ(s, s->g.d_parabola_bias, p->parabola.bias, H, 1.0f / 4096, &rng, "parabola.bias");
    differ(s, s->g.d_center, p->gaussian.center, rows, 1.0f / 4096, &rng, "center");
    differ(s, s->g.d_precision, p->gaussian.precision, rows, 1.0f / 4096, &rng, "precision");
  }
}

/* A mask that says what a schedule does. */
static attn_mask mask_of(const backward *s, const attn_schedule *schedule, int64_t H, int64_t T) {
  uint8_t *mask = test_mem((size_t)(H * T * T));
  attn_tensor map = test_tensor(ATTN_F32, TEST_BHTD, 1, H, T, T);
  test_call ask = test_again(&s->call);
  memset(&ask.params, 0, sizeof ask.params);
  ask.params.schedule = schedule, ask.params.map = map;
  test_run(&ask);
  for (int64_t i = 0; i < H * T * T; i++)
    mask[i] = oracle_get(&map, 0, i / T / T, i / T % T, i % T) != 0;
  return attn_mask_bool(mask, 1, H, T, T);
}

/* A schedule's tiles, of lists and of several phases too; and sums that are added to. */
void N3_terms_scheduled(void **state) {
  (void)state;
  test_rng rng = test_seed(9221);
  const int64_t T = 200;
  for (int n = 0; n < 4; n++, test_mem_release()) {
    static const int32_t global[] = {0, 131};
    attn_pattern part[2] = {attn_pattern_band(20, 3), attn_pattern_global(global, 2)};
    attn_pattern some = n < 2 ? attn_pattern_union(part, 2) : attn_pattern_random(9, 5);
    test_spec spec = test_plain(2, T, T, 9, 7);
    backward *s = backward_build(&spec, ATTN_F32, TEST_PADDED, &rng), *t;
    attn_schedule schedule = {NULL, 0, NULL};
    assert_int_equal(attn_schedule_build(&schedule, &some, 2, T, T, NULL, NULL), ATTN_OK);
    attn_sdpa_params *p = &s->call.params;
    p->alibi = test_floats(2, 0.1, &rng), p->t5.table = test_floats(64, 1, &rng);
    p->gaussian.center = test_floats(2 * T, 50, &rng),
    p->gaussian.precision = test_floats(2 * T, 0.01, &rng);
    p->bias = test_mask(ATTN_MASK_ADD, ATTN_F32, 1, 1, T, T, &rng);
    p->schedule = &schedule;
    backward_terms(s);
    test_run(&s->call);
    promise_run(&s->does);
    attn_sdpa_params masked = *p;
    masked.schedule = NULL, masked.mask = mask_of(s, &schedule, 2, T);
    const backward_want w = backward_oracle(s, &masked);
    backward_compare(s, &w, "terms of a schedule");
    t = backward_again(s);
    backward_terms(t);
    for (int h = 0; h < 2; h++) t->g.d_alibi[h] = 2;
    for (int i = 0; i < 64; i++) t->g.d_t5[i] = 3;
    for (int64_t i = 0; i < 2 * T; i++) t->g.d_center[i] = t->g.d_precision[i] = 1;
    test_fill_value(t->g.d_bias, 4);
    t->g.accumulate = 1, t->d_q = t->d_k = t->d_v = absent(), t->does.scene = t;
    promise_run(&t->does);
    for (int h = 0; h < 2; h++)
      value_check((double)t->g.d_alibi[h], 2 + (double)s->g.d_alibi[h], 1e-5, ATTN_F32, "alibi", 0,
                  h, 0, 0);
    for (int i = 0; i < 64; i++)
      value_check((double)t->g.d_t5[i], 3 + (double)s->g.d_t5[i], 1e-5, ATTN_F32, "t5", 0, 0, 0, i);
    for (int64_t i = 0; i < 2 * T; i++)
      value_check((double)t->g.d_center[i], 1 + (double)s->g.d_center[i], 1e-4, ATTN_F32, "center",
                  0, 0, 0, i);
    value_check(oracle_get(&t->g.d_bias, 0, 0, 5, 5), 4 + oracle_get(&s->g.d_bias, 0, 0, 5, 5),
                1e-6, ATTN_F32, "bias", 0, 0, 5, 5);
    attn_schedule_free(&schedule);
  }
}

/* What a map may be of. */
static attn_map_stage stage_of(const backward *s, test_rng *rng) {
  static const attn_map_stage stages[] = {ATTN_MAP_WEIGHTS, ATTN_MAP_DROPPED, ATTN_MAP_SCORES};
  return stages[test_u64(rng) % (s->call.params.span.z ? 2 : 3)];
}

/* The terms that read rows of tables, change scores or weigh: each by itself, then any of them together. */
void N3_tables(void **state) {
  (void)state;
  static const int alone[] = {TERM_KEYS,   TERM_VALUES, TERM_QUERIES, TERM_XL,
                              TERM_LABELS, TERM_FACTOR, TERM_SPAN,    0};
  test_rng rng = test_seed(9223);
  for (int64_t n = test_count(200, 48); n-- > 0; test_mem_release()) {
    test_spec spec = backward_spec(&rng, n % 6 ? 60 : 200);
    backward *s = backward_build(&spec, ATTN_F32, TEST_PADDED, &rng);
    int terms = alone[n % 8];
    if (n % 3 == 0) terms |= (int)(test_u64(&rng) % 8192) & ~(TERM_MODIFY | TERM_WEIGHTS);
    if (n % 2) backward_options(s, &rng);
    test_add_terms(&s->call, terms, &rng);
    if (terms == 0 || test_u64(&rng) % 4 == 0) backward_modify(s);
    if (terms == 0 || test_u64(&rng) % 4 == 0) backward_map(s, stage_of(s, &rng), &rng);
    if (s->call.params.sinks) backward_sinks(s);
    backward_terms(s);
    backward_check(s, "tables");
    if (n % 4 == 0) promise_keep(&s->does);
  }
}

static void differ_table(const backward *s, const attn_tensor *y, const attn_tensor *x,
                         test_rng *rng, const char *what) {
  if (!y->data) return;
  const int64_t h = test_range(rng, 0, x->heads - 1), i = test_range(rng, 0, x->len - 1);
  const int64_t c = test_range(rng, 0, x->dim - 1);
  const float *at = oracle_address(x, 0, h, i, c);
  float all = 0; /* of the rows that lie there */
  for (int64_t n = 0; n < x->heads * x->len; n++)
    if (oracle_address(x, 0, n / x->len, n % x->len, c) == at)
      all += (float)oracle_get(y, 0, n / x->len, n % x->len, c);
  differ(s, &all, at, 1, 1.0f / 4096, rng, what);
}

void N3_tables_differences(void **state) {
  (void)state;
  test_rng rng = test_seed(9224);
  for (int64_t n = test_count(120, 40); n-- > 0; test_mem_release()) {
    test_spec spec = backward_spec(&rng, 9);
    backward *s = backward_build(&spec, ATTN_F32, TEST_PADDED, &rng);
    attn_sdpa_params *p = &s->call.params;
    backward_options(s, &rng);
    memset(&p->bias, 0, sizeof p->bias);
    test_add_terms(&s->call, (int)(test_u64(&rng) % 8192) & ~(TERM_MODIFY | TERM_WEIGHTS), &rng);
    if (p->scale == 0) p->scale = 0.25f;
    for (int64_t i = 0; p->factor.alpha && i < spec.heads; i++) /* a kink at 0 */
      *((float *)(uintptr_t)p->factor.beta + i) = -1;
    const int64_t spans = p->span.per_query ? spec.batch * spec.heads * spec.q_len : spec.heads;
    if (p->span.z && !(p->span.ramp >= 8)) p->span.ramp = 8;
    for (int64_t i = 0; p->span.z && i < spans; i++) { /* away from the ends of a ramp */
      float *z = (float *)(uintptr_t)p->span.z + i;
      *z = 0.96f * *z + 0.137f;
    }
    if (n % 3 == 0) backward_modify(s);
    if (n % 4 == 0) backward_map(s, stage_of(s, &rng), &rng);
    backward_terms(s);
    test_run(&s->call);
    promise_run(&s->does);
    const attn_sdpa_gradients *g = &s->g;
    const int64_t H = spec.heads, wide = H * spec.dk;
    const float step = 1.0f / 4096;
    differ_table(s, &g->d_relative.keys, &p->relative.keys, &rng, "relative.keys");
    differ_table(s, &g->d_relative.queries, &p->relative.queries, &rng, "relative.queries");
    differ_table(s, &g->d_relative.values, &p->relative.values, &rng, "relative.values");
    differ_table(s, &g->d_xl_table, &p->xl.table, &rng, "xl.table");
    differ_table(s, &g->d_label_table, &p->labels.table, &rng, "labels.table");
    differ(s, g->d_xl_u, p->xl.u, wide, step, &rng, "xl.u");
    differ(s, g->d_xl_v, p->xl.v, wide, step, &rng, "xl.v");
    differ(s, g->d_label_bias, p->labels.bias, p->labels.table.len * H, step, &rng, "labels.bias");
    differ(s, g->d_alpha, p->factor.alpha, H, step, &rng, "factor.alpha");
    differ(s, g->d_beta, p->factor.beta, H, step, &rng, "factor.beta");
    differ(s, g->d_span, p->span.z, spans, 1.0f / 4096, &rng, "span.z");
    float all = 0;
    for (int64_t h = 0; h < H; h++) all += g->d_scale[h];
    differ(s, &all, &p->scale, 1, step, &rng, "scale");
  }
}

/* Tiles of lists and of several phases, whose rows lie apart. */
void N3_tables_scheduled(void **state) {
  (void)state;
  test_rng rng = test_seed(9225);
  const int64_t T = 200;
  for (int n = 0; n < test_count(18, 9); n++, test_mem_release()) {
    static const int32_t global[] = {0, 131};
    attn_pattern part[2] = {attn_pattern_band(20, 3), attn_pattern_global(global, 2)};
    attn_pattern some = n % 3 == 0   ? attn_pattern_union(part, 2)
                        : n % 3 == 1 ? attn_pattern_random(9, 5)
                                     : attn_pattern_strided(16);
    test_spec spec = test_plain(2, T, T, 9, 7);
    backward *s = backward_build(&spec, ATTN_F32, TEST_PADDED, &rng);
    attn_schedule schedule = {NULL, 0, NULL};
    attn_sdpa_params *p = &s->call.params;
    if (attn_schedule_build(&schedule, &some, 2, T, T, NULL, NULL) != ATTN_OK) fail_msg("pattern");
    const int terms = n < 9 ? TERM_KEYS | TERM_VALUES | TERM_QUERIES | TERM_LABELS : TERM_ALL;
    test_add_terms(&s->call, terms & ~(TERM_MODIFY | TERM_SPAN), &rng);
    if (n % 2) backward_map(s, stage_of(s, &rng), &rng);
    if (n % 4 == 3) p->dropout.p = 0.25, backward_modify(s);
    p->sinks = test_floats(2, 1, &rng), backward_sinks(s);
    backward_terms(s);
    attn_sdpa_params masked = *p;
    masked.mask = mask_of(s, &schedule, 2, T), p->schedule = &schedule;
    test_run(&s->call);
    promise_run(&s->does);
    const backward_want w = backward_oracle(s, &masked);
    backward_compare(s, &w, "tables of a schedule");
    attn_schedule_free(&schedule);
  }
}

/* Rows of tables that very many pairs read, and values that are not around 0. */
void N3_tables_long(void **state) {
  (void)state;
  test_rng rng = test_seed(9226);
  for (int n = 0; n < (test_fast > 1 ? 1 : test_count(4, 2)); n++, test_mem_release()) {
    test_spec spec = test_plain(1, n % 2 ? 1100 : 70, n % 2 ? 1300 : 9000, 4, 4);
    backward *s = backward_build(&spec, ATTN_F32, TEST_BHTD, &rng);
    attn_sdpa_params *p = &s->call.params;
    p->relative.keys = test_table(1, 9, 4, TEST_BHTD, &rng);
    p->relative.values = test_table(1, 9, 4, TEST_BHTD, &rng);
    p->relative.queries = test_table(1, 9, 4, TEST_BHTD, &rng);
    if (n > 1) test_add_terms(&s->call, TERM_XL | TERM_LABELS, &rng);
    for (int64_t i = 0; i < s->call.v.len; i++)
      for (int64_t c = 0; c < 4; c++)
        oracle_set(&s->call.v, 0, 0, i, c, 1 + oracle_get(&s->call.v, 0, 0, i, c));
    backward_terms(s);
    backward_check(s, "rows that many read");
  }
}

/* Outputs by themselves have the same bits, also those that are added to; heads of one table the sum of heads. */
void N3_tables_alone(void **state) {
  (void)state;
  test_rng rng = test_seed(9227);
  for (int n = 0; n < 12; n++, test_mem_release()) {
    test_spec spec = test_plain(2, 70, 150, 9, 7);
    backward *s = backward_build(&spec, ATTN_F32, TEST_PADDED, &rng), *t;
    s->call.params.softcap = 3, s->call.params.causal = n & 1;
    s->call.params.softcap_at = n & 2 ? ATTN_SOFTCAP_BIASED : ATTN_SOFTCAP_SCORES;
    const int all = TERM_KEYS | TERM_VALUES | TERM_QUERIES | TERM_XL | TERM_LABELS | TERM_FACTOR |
                    TERM_SPAN | TERM_T5;
    test_add_terms(&s->call, all, &rng);
    backward_terms(s);
    test_run(&s->call);
    promise_run(&s->does);
    t = backward_again(s);
    t->does.scene = t;
    memset(&t->g, 0, sizeof t->g);
    if (n % 3 == 0) t->d_k = t->d_v = absent();
    if (n % 3 == 1) t->d_q = t->d_v = absent();
    if (n % 3 == 2) {
      backward_terms(t);
      t->d_q = t->d_k = t->d_v = absent(), t->g.d_scale = t->g.d_span = NULL;
      t->g.d_relative.values = absent();
    }
    promise_run(&t->does);
    if (t->d_q.data) test_assert_same(t->d_q, s->d_q, "d_q alone");
    if (t->d_k.data) test_assert_same(t->d_k, s->d_k, "d_k alone");
    if (n % 3 != 2) continue;
    test_assert_same(t->g.d_relative.keys, s->g.d_relative.keys, "d_relative.keys");
    test_assert_same(t->g.d_relative.queries, s->g.d_relative.queries, "d_relative.queries");
    test_assert_same(t->g.d_xl_table, s->g.d_xl_table, "d_xl_table");
    test_assert_same(t->g.d_label_table, s->g.d_label_table, "d_label_table");
    assert_memory_equal(t->g.d_alpha, s->g.d_alpha, 8);
    t->g.accumulate = 1;
    const double key = oracle_get(&s->g.d_relative.keys, 0, 0, 0, 1),
                 label = oracle_get(&s->g.d_label_table, 0, 0, 0, 2);
    const float beta = t->g.d_beta[1];
    promise_run(&t->does);
    value_check(oracle_get(&t->g.d_relative.keys, 0, 0, 0, 1), 2 * key, 1e-6, ATTN_F32, "twice", 0,
                0, 0, 1);
    value_check(oracle_get(&t->g.d_label_table, 0, 0, 0, 2), 2 * label, 1e-6, ATTN_F32, "twice", 0,
                0, 0, 2);
    value_check((double)t->g.d_beta[1], 2 * (double)beta, 1e-6, ATTN_F32, "twice", 0, 0, 0, 1);
  }
}

/* NaN in a row of a table, a query or a key reaches what reads it and nothing else. */
void N3_tables_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(9228);
  const int64_t Tq = 70, Tk = 150, c = 5, at = 41;
  for (int n = 0; n < 12; n++, test_mem_release()) {
    test_spec spec = test_plain(1, Tq, Tk, 9, 7);
    backward *s = backward_build(&spec, ATTN_F32, TEST_PADDED, &rng), *t;
    attn_sdpa_params *p = &s->call.params;
    uint8_t *mask = test_mem((size_t)(Tq * Tk));
    for (int64_t i = 0; i < Tq * Tk; i++) mask[i] = (i / Tk + i % Tk) % 3 != 0;
    p->mask = attn_mask_bool(mask, 1, 1, Tq, Tk);
    p->has_q_off = 1, p->q_off = 0;
    attn_tensor *const table[] = {&p->relative.keys, &p->relative.queries, &p->relative.values};
    for (int i = 0; i < 3; i++)
      *table[i] = test_table(1, 2 * c + 1, i == 2 ? 7 : 9, TEST_PADDED, &rng);
    backward_terms(s);
    test_run(&s->call);
    promise_run(&s->does);
    t = backward_again(s);
    t->does.scene = t;
    backward_terms(t);
    const double bad = n & 1 ? (double)NAN : (double)INFINITY;
    const int what = n / 2; /* rows of three tables, a query, a key, d_o */
    const int64_t row = 7;  /* distance 2 */
    if (what < 3) oracle_set(table[what], 0, 0, row, 3, bad);
    if (what == 3) oracle_set(&t->call.q, 0, 0, at, 3, bad);
    if (what == 4) oracle_set(&t->call.k, 0, 0, at, 3, bad);
    if (what == 5) oracle_set(&t->d_o, 0, 0, at, 3, bad);
    if (what < 5) test_run(&t->call);
    promise_run(&t->does);
    int met = 0, kept = 0;
    for (int64_t i = 0; i < Tq; i++) {
      const int64_t key = what < 3 ? i + row - c : at;
      const int hit = what == 3 || what == 5 ? i == at : key < Tk && mask[i * Tk + key];
      if (hit) {
        met += !(fabs(oracle_get(&t->d_q, 0, 0, i, 3)) < (double)INFINITY);
        continue;
      }
      kept++;
      test_assert_same(test_rows(t->d_q, i, 1), test_rows(s->d_q, i, 1), "a row that reads none");
    }
    assert_true(met > 0 && kept > 0);
    if (what != 3 && what != 5) continue;
    int same = 0;
    const attn_tensor *const g[] = {&t->g.d_relative.keys, &t->g.d_relative.values},
                             *const old[] = {&s->g.d_relative.keys, &s->g.d_relative.values};
    for (int i = 0; i < 2; i++) /* distances that row `at` does not see */
      for (int64_t e = 1; e < 2 * c; e++) {
        const int64_t key = at + e - c;
        const int seen = mask[at * Tk + key];
        if (!seen)
          test_assert_same(test_rows(*g[i], e, 1), test_rows(*old[i], e, 1), "a distance unseen");
        else
          assert_false(fabs(oracle_get(g[i], 0, 0, e, 3)) < (double)INFINITY);
        same += !seen;
      }
    assert_true(same > 0);
  }
}

void N3_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9229);
  for (int n = 0; n < 17; n++, test_mem_release()) {
    test_spec spec = test_plain(2, 20, 30, 4, 3);
    backward *s = backward_build(&spec, ATTN_F32, TEST_PADDED, &rng);
    attn_sdpa_params *p = &s->call.params;
    attn_sdpa_gradients *g = &s->g;
    attn_status want = ATTN_E_NULL;
    const char *word = "";
    test_run(&s->call);
    p->relative.keys = test_table(1, 5, 4, TEST_PADDED, &rng);
    switch (n) {
      case 0: p->modify = (attn_score_fn)(uintptr_t)8, word = "modify_back"; break;
      case 1: backward_modify(s), p->modify = NULL, word = "modify_back"; break;
      case 2: g->d_relative.values = test_table(1, 5, 3, TEST_BHTD, &rng), word = "values"; break;
      case 3:
        g->d_relative.keys = test_table(2, 5, 4, TEST_BHTD, &rng), want = ATTN_E_SHAPE;
        word = "d_relative.keys";
        break;
      case 4:
        g->d_relative.keys = test_table(1, 5, 4, TEST_BHTD, &rng);
        g->d_relative.keys.data = p->relative.keys.data, want = ATTN_E_OVERLAP, word = "share";
        break;
      case 5: g->d_span = test_floats(2, 1, &rng), word = "span"; break;
      case 6: g->d_alpha = test_floats(2, 1, &rng), word = "factor"; break;
      case 7: g->d_xl_u = test_floats(8, 1, &rng), word = "xl"; break;
      case 8: g->d_label_bias = test_floats(8, 1, &rng), word = "labels"; break;
      case 9: backward_map(s, ATTN_MAP_RAW, &rng), want = ATTN_E_RANGE, word = "d_map"; break;
      case 10:
        backward_map(s, ATTN_MAP_WEIGHTS, &rng), g->d_map.len = 19, want = ATTN_E_SHAPE;
        word = "d_map";
        break;
      case 11:
        p->scale = ATTN_ZERO, g->d_scale = test_floats(2, 1, &rng), want = ATTN_E_VALUE;
        word = "d_scale";
        break;
      case 12: g->d_xl_table = test_table(1, 5, 4, TEST_BHTD, &rng), word = "xl"; break;
      case 13:
        p->modify_weights = (attn_score_fn)(uintptr_t)8, want = ATTN_E_RANGE;
        word = "modify_weights";
        break;
      case 14:
        backward_map(s, ATTN_MAP_WEIGHTS, &rng), g->d_scale = g->d_map.data;
        want = ATTN_E_OVERLAP, word = "share";
        break;
      case 15:
        p->span.z = test_floats(2, 1, &rng), backward_map(s, ATTN_MAP_SCORES, &rng);
        want = ATTN_E_RANGE, word = "d_map";
        break;
      default:
        g->d_relative.keys = test_table(1, 5, 4, TEST_BHTD, &rng);
        g->d_relative.keys.dtype = ATTN_BF16, want = ATTN_E_DTYPE, word = "d_relative.keys";
    }
    promise_reject(&s->does, want, word);
  }
}
