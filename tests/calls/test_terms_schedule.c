/* tests/calls/test_terms_schedule.c owns score terms, masks and lengths on top of schedules: the oracle
 * sees a boolean mask, which is drawn here from the definition of each pattern. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "terms.h"

enum { BAND, DILATED, STRIDED, GLOBAL, SEGMENTS, GRID, AXIAL, LISTS, PATTERNS };

/* A pattern and what it means. */
typedef struct drawn {
  attn_pattern pattern;
  uint8_t *allowed; /* [Tq, Tk] */
  int32_t index[8];
  int64_t left, right, step;
} drawn;

static int in_list(const int32_t *list, int64_t n, int64_t x) {
  for (int64_t k = 0; k < n; k++) {
    if (list[k] == x) return 1;
  }
  return 0;
}

/* Whether the pair exists, for the patterns that are a formula. The grid is 12 wide. */
static int exists(const drawn *d, int kind, int64_t p, int64_t j) {
  int64_t delta = j - p, y = p / 12 - j / 12, x = p % 12 - j % 12;
  if (kind == BAND) return delta >= -d->left && delta <= d->right;
  if (kind == DILATED) {
    return delta % d->step == 0 && delta / d->step >= -d->left && delta / d->step <= d->right;
  }
  if (kind == STRIDED) return delta % d->step == 0;
  if (kind == GLOBAL) return in_list(d->index, 3, j) || in_list(d->index, 3, p);
  if (kind == SEGMENTS) {
    for (int s = 0; s < 4; s++) {
      if (p >= d->index[s] && p < d->index[s + 1]) return j >= d->index[s] && j < d->index[s + 1];
    }
    return 0;
  }
  if (kind == GRID) return y >= -2 && y <= 2 && x >= -2 && x <= 2;
  return y == 0 || x == 0; /* AXIAL */
}

static void draw(drawn *d, int kind, int64_t tq, int64_t tk, int64_t q_off, test_rng *rng) {
  memset(d, 0, sizeof *d);
  d->left = test_range(rng, 0, 40);
  d->right = test_range(rng, 0, 20);
  d->step = test_range(rng, 2, 6);
  d->allowed = test_mem((size_t)(tq * tk));
  if (kind == BAND) d->pattern = attn_pattern_band(d->left, d->right);
  if (kind == DILATED) d->pattern = attn_pattern_dilated(d->left, d->right, d->step);
  if (kind == STRIDED) d->pattern = attn_pattern_strided(d->step);
  if (kind == GLOBAL) {
    d->index[0] = 0;
    d->index[1] = (int32_t)(tk / 2);
    d->index[2] = (int32_t)(tk - 1);
    d->pattern = attn_pattern_global(d->index, 3);
  }
  if (kind == SEGMENTS) {
    for (int s = 0; s <= 4; s++) d->index[s] = (int32_t)(tk * s * s / 16);
    d->pattern = attn_pattern_segments(d->index, 4);
  }
  if (kind == GRID) d->pattern = attn_pattern_neighborhood(tk / 12, 12, 2);
  if (kind == AXIAL) {
    d->index[0] = (int32_t)(tk / 12);
    d->index[1] = 12;
    d->pattern = attn_pattern_axial(d->index, 2, -1);
  }
  if (kind < LISTS) {
    for (int64_t n = 0; n < tq * tk; n++) {
      d->allowed[n] = (uint8_t)exists(d, kind, n / tk + q_off, n % tk);
    }
    return;
  }
  int64_t *indptr = test_mem((size_t)(tq + 1) * sizeof *indptr), at = 0;
  int32_t *col = test_mem((size_t)(tq * tk) * sizeof *col);
  for (int64_t i = 0; i < tq; i++) {
    indptr[i] = at;
    for (int64_t j = 0; j < tk; j++) {
      int on = test_u64(rng) % (i % 5 == 1 ? 1 : 9) == 0 && i % 11 != 7;
      d->allowed[i * tk + j] = (uint8_t)on;
      if (on) col[at++] = (int32_t)j;
    }
  }
  indptr[tq] = at;
  d->pattern = attn_pattern_csr(indptr, col, at);
}

static attn_schedule scheduled(const drawn *d, const test_call *call) {
  attn_schedule s;
  attn_schedule_params p;
  memset(&p, 0, sizeof p);
  p.has_q_off = call->params.has_q_off;
  p.q_off = call->params.q_off;
  attn_ctx ctx = test_ctx();
  attn_status status =
      attn_schedule_build(&s, &d->pattern, call->q.heads, call->q.len, call->k.len, &p, &ctx);
  if (status != ATTN_OK) fail_msg("attn_schedule_build: %s", ctx.reason);
  return s;
}

/* The call without its schedule: the pattern joins the mask. */
static test_call unscheduled(const test_call *call, const drawn *d) {
  test_call u = *call;
  int64_t b_n = call->q.batch, h_n = call->q.heads, tq = call->q.len, tk = call->k.len;
  uint8_t *all = test_mem((size_t)(b_n * h_n * tq * tk));
  for (int64_t n = 0; n < b_n * h_n * tq * tk; n++) {
    int64_t i = n / tk % tq, j = n % tk, h = n / tk / tq % h_n, b = n / tk / tq / h_n;
    all[n] = d->allowed[i * tk + j] && oracle_mask(&call->params.mask, b, h, i, j) == 0;
  }
  u.params.schedule = NULL;
  u.params.mask = attn_mask_bool(all, b_n, h_n, tq, tk);
  return u;
}

/* Every pattern with a term, with several, and with masks, lengths and causal besides. */
void api_terms_on_schedules(void **state) {
  (void)state;
  for (int64_t n = 0; n < test_count(PATTERNS * 13, PATTERNS * 4); n++) {
    test_rng rng = test_seed(400000 + (uint64_t)n);
    int kind = (int)(n % PATTERNS), square = kind >= SEGMENTS && kind <= AXIAL,
        grid = square && kind > SEGMENTS;
    int64_t tk = grid ? 12 * test_range(&rng, 1, 14) : test_range(&rng, 4, 200);
    int64_t tq = square ? tk : test_range(&rng, 1, 200), h = test_range(&rng, 1, 3);
    test_spec spec = test_plain(h, tq, tk, 9, 7);
    spec.batch = test_range(&rng, 1, 2);
    if (n & 8) spec.k_heads = spec.v_heads = 1;
    spec.map = n % 3 == 0;
    test_call call = test_build(&spec, &rng);
    attn_sdpa_params *p = &call.params;
    p->causal = test_u64(&rng) % 3 == 0;
    if (!square && test_u64(&rng) & 1) {
      p->has_q_off = 1;
      p->q_off = test_range(&rng, 0, 30);
    }
    if (test_u64(&rng) % 3 == 0) p->kv_len = test_lengths(spec.batch, tk, &rng);
    if (test_u64(&rng) % 4 == 0) {
      p->mask = test_mask(ATTN_MASK_BITS, ATTN_F32, spec.batch, h, tq, tk, &rng);
    }
    if (test_u64(&rng) % 4 == 0) {
      p->bias = test_mask(ATTN_MASK_ADD, ATTN_F32, spec.batch, h, tq, tk, &rng);
    }
    if (test_u64(&rng) % 4 == 0) p->alibi = test_floats(h, 0.1, &rng);
    if (test_u64(&rng) % 4 == 0) p->sinks = test_floats(h, 1, &rng);
    int terms = 1 << (n / PATTERNS % (TERM_COUNT + 1)); /* the last: none */
    if (terms > TERM_QUERIES) terms = 0;
    for (int64_t more = test_range(&rng, 0, 2); more-- > 0;) {
      terms |= 1 << test_range(&rng, 0, TERM_COUNT - 1);
    }
    test_add_terms(&call, terms, &rng);
    drawn d;
    draw(&d, kind, tq, tk, p->has_q_off ? p->q_off : tk - tq, &rng);
    attn_schedule s = scheduled(&d, &call);
    p->schedule = &s;
    test_run(&call);
    test_call mask = unscheduled(&call, &d);
    char what[60];
    snprintf(what, sizeof what, "case %d, pattern %d, terms %x", (int)n, kind, (unsigned)terms);
    test_compare(&mask, what);
    attn_schedule_free(&s);
    test_mem_release();
  }
}

/* Garbage in keys that a pattern does not list, and NaN in those that it lists, term by term. */
void api_terms_on_schedules_nan(void **state) {
  (void)state;
  for (int n = 0; n < PATTERNS * 3; n++) {
    test_rng rng = test_seed(410000 + (uint64_t)n);
    int kind = n % PATTERNS;
    test_spec spec = test_plain(2, 144, 144, 9, 7);
    test_call call = test_build(&spec, &rng);
    test_add_terms(&call, 1 << test_range(&rng, 0, TERM_COUNT - 1), &rng);
    drawn d;
    draw(&d, kind, 144, 144, 0, &rng);
    attn_schedule s = scheduled(&d, &call);
    call.params.schedule = &s;
    test_fill_row(n % 3 == 1 ? call.k : call.v, 0, 0, 50, (double)NAN);
    test_fill_row(n % 3 == 2 ? call.k : call.v, 0, 1, 113, (double)NAN);
    test_run(&call);
    test_call mask = unscheduled(&call, &d);
    test_compare(&mask, "NaN beside a schedule");
    attn_schedule_free(&s);
    test_mem_release();
  }
}

/* The same bits for any number of workers. */
void api_terms_on_schedules_workers(void **state) {
  (void)state;
  for (int n = 0; n < PATTERNS; n++) {
    test_rng rng = test_seed(420000 + (uint64_t)n);
    test_spec spec = test_plain(2, 180, 180, 9, 7);
    spec.batch = 2;
    test_call call = test_build(&spec, &rng), want = test_again(&call);
    test_add_terms(&call, TERM_KEYS | TERM_VALUES | TERM_T5 | TERM_MODIFY, &rng);
    drawn d;
    draw(&d, n, 180, 180, 0, &rng);
    attn_schedule s = scheduled(&d, &call);
    call.params.schedule = &s;
    attn_tensor lse = want.params.lse;
    want.params = call.params;
    want.params.lse = lse;
    test_run(&want);
    for (int workers = 2; workers <= 5; workers += 3) {
      attn_ctx ctx = test_ctx();
      ctx.workers = workers;
      ctx.parallel_for = workers == 2 ? test_parallel_backward : test_parallel_threads;
      assert_int_equal(attn_sdpa(call.o, call.q, call.k, call.v, &call.params, &ctx), ATTN_OK);
      test_assert_same_outputs(&call, &want, "workers");
    }
    attn_schedule_free(&s);
    test_mem_release();
  }
}
