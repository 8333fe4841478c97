/* tests/terms.c owns the random score terms of tests/terms.h. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "terms.h"

static int64_t pick(test_rng *rng, const int64_t *from, int count) {
  return from[test_u64(rng) % (uint64_t)count];
}
#define PICK(rng, ...) \
  pick(rng, (const int64_t[]){__VA_ARGS__}, (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8))

static uint64_t mix(uint64_t seed, int64_t b, int64_t h, int64_t i, int64_t j) {
  test_rng rng = test_seed(seed + (uint64_t)(b * 1009 + h));
  rng.state += (uint64_t)i * 0x632BE59BD9B4E019u + (uint64_t)j * 0xD6E8FEB86659FD93u;
  return test_u64(&rng);
}

int64_t test_label(void *user, int64_t batch, int64_t head, int64_t i, int64_t j) {
  const test_term_user *u = user;
  int64_t label = (int64_t)(mix(u->seed, batch, head, i + u->i0, j) % (uint64_t)(u->labels + 3));
  /* none in three ways */
  if (label == u->labels + 1) return -1;
  if (label == u->labels + 2) return j % 2 ? INT64_MIN : INT64_MAX;
  return label;
}

void test_modify(void *user, const attn_score_tile *t) {
  const test_term_user *u = user;
  for (int64_t r = 0; r < t->queries; r++) {
    for (int64_t c = 0; c < t->keys; c++) {
      float *x = t->score + c * t->key_stride + r * t->query_stride;
      uint64_t random = mix(u->seed, t->batch, t->head[r], t->position[r], t->key[c]);
      float add = (float)((int)(random % 255) - 127) / 64;
      if (u->kind == MODIFY_ADD) *x += add;
      if (u->kind == MODIFY_HALVE) *x = *x / 2 + add;
      if (u->kind == MODIFY_FORBID && random % 3 == 0) *x = -INFINITY;
      if (u->kind == MODIFY_DOUBLE && t->key[c] % 5 == 0) *x *= 2;
    }
  }
}

void test_modify_weights(void *user, const attn_score_tile *t) {
  const test_term_user *u = user;
  for (int64_t r = 0; r < t->queries; r++) {
    for (int64_t c = 0; c < t->keys; c++) {
      float *x = t->score + c * t->key_stride + r * t->query_stride;
      uint64_t random = mix(u->seed + 5, t->batch, t->head[r], t->position[r], t->key[c]);
      *x *= (float)(random % 4) / 2;
      if (random % 7 == 0) *x += 0.0078125f;
    }
  }
}

static float fraction(test_rng *rng, double scale) { return (float)(scale * test_exact(rng)); }

static float *fractions(int64_t n, double scale, test_rng *rng) {
  float *x = test_mem((size_t)n * sizeof *x);
  for (int64_t k = 0; k < n; k++) x[k] = fraction(rng, scale);
  return x;
}

float *test_constant(int64_t n, double value) {
  float *x = test_mem((size_t)n * sizeof *x);
  for (int64_t k = 0; k < n; k++) x[k] = (float)value;
  return x;
}

attn_tensor test_table(int64_t heads, int64_t n, int64_t dim, test_layout layout, test_rng *rng) {
  attn_tensor t = test_tensor(ATTN_F32, layout, 1, heads, n, dim);
  test_fill(t, rng, test_exact);
  return t;
}

static test_layout some_layout(test_rng *rng) {
  return (test_layout)PICK(rng, TEST_BHTD, TEST_BTHD, TEST_PADDED, TEST_NEGATIVE, TEST_SHARED);
}

static void add_relative(test_call *call, int terms, test_rng *rng) {
  int64_t rows = 2 * PICK(rng, 0, 1, 2, 5, 17, 40, 300) + 1;
  for (int k = 0; k < 2; k++) {
    attn_tensor *t = k ? &call->params.relative.values : &call->params.relative.keys;
    if (!(terms & (k ? TERM_VALUES : TERM_KEYS))) continue;
    int64_t heads = test_u64(rng) & 1 ? call->q.heads : 1;
    *t = test_table(heads, rows, k ? call->v.dim : call->q.dim, some_layout(rng), rng);
  }
}

static void add_queries(test_call *call, test_rng *rng) {
  attn_relative *r = &call->params.relative;
  int64_t rows = 2 * PICK(rng, 0, 1, 2, 5, 17, 40, 63, 64, 300) + 1;
  if (r->keys.data) rows = r->keys.len;
  if (r->values.data) rows = r->values.len;
  int64_t heads = test_u64(rng) & 1 ? call->q.heads : 1;
  r->queries = test_table(heads, rows, call->q.dim, some_layout(rng), rng);
}

static void add_xl(test_call *call, test_rng *rng) {
  attn_sdpa_params *p = &call->params;
  int64_t first = 0, last = 0;
  for (int64_t b = 0; b == 0 || b < call->q.batch; b++) {
    int64_t q_off = oracle_position(&call->q, &call->k, p, b, 0);
    if (b == 0 || call->k.len - 1 - q_off > last) last = call->k.len - 1 - q_off;
    if (b == 0 || 1 - q_off - call->q.len < first) first = 1 - q_off - call->q.len;
  }
  if (p->causal && last > 0) last = 0;
  if (last < first) first = last; /* no pair at all */
  first -= test_range(rng, 0, 3);
  last += test_range(rng, 0, 3);
  int64_t h = call->q.heads, heads = test_u64(rng) & 1 ? h : 1;
  p->xl.table = test_table(heads, last - first + 1, call->q.dim, some_layout(rng), rng);
  p->xl.first = first;
  if (test_u64(rng) % 4) p->xl.u = fractions(h * call->q.dim, 1, rng);
  if (test_u64(rng) % 4) p->xl.v = fractions(h * call->q.dim, 1, rng);
}

static test_term_user *user_of(test_rng *rng) {
  test_term_user *user = test_mem(sizeof *user);
  memset(user, 0, sizeof *user);
  user->seed = test_u64(rng);
  user->labels = PICK(rng, 1, 2, 5, 24);
  user->kind = (int)(test_u64(rng) % MODIFY_KINDS);
  return user;
}

static void add_labels(test_call *call, test_rng *rng) {
  attn_labels *l = &call->params.labels;
  test_term_user *user = user_of(rng);
  int64_t heads = test_u64(rng) & 1 ? call->q.heads : 1;
  l->label = test_label;
  l->user = user;
  l->table = test_table(heads, user->labels, call->q.dim, some_layout(rng), rng);
  if (test_u64(rng) & 1) l->bias = fractions(user->labels * call->q.heads, 1, rng);
}

static void add_toeplitz(test_call *call, test_rng *rng) {
  attn_toeplitz *t = &call->params.toeplitz;
  t->len = PICK(rng, 1, 2, 7, 33, 200);
  t->first = test_range(rng, -t->len - 5, 5);
  t->heads = PICK(rng, 0, 1, call->q.heads);
  t->inside = test_u64(rng) & 1;
  t->table = fractions(t->len * (t->heads ? t->heads : 1), 2, rng);
}

static void add_t5(test_call *call, test_rng *rng) {
  attn_t5 *t = &call->params.t5;
  t->buckets = PICK(rng, 0, 0, 4, 5, 8, 33, 64);
  t->max_distance = PICK(rng, 0, 0, 33, 40, 300);
  t->bidirectional = test_u64(rng) & 1;
  t->table = fractions((t->buckets ? t->buckets : 32) * call->q.heads, 2, rng);
}

static void add_span(test_call *call, test_rng *rng) {
  attn_span *s = &call->params.span;
  static const float ramps[] = {0, 1, 0.5f, 8, 32, 0.0625f, 0.3f, 0.01f, 0.001f, 70.7f};
  s->ramp = ramps[test_u64(rng) % 10];
  s->per_query = test_u64(rng) & 1;
  int64_t n = call->q.heads * (s->per_query ? call->q.batch * call->q.len : 1);
  float *z = test_mem((size_t)n * sizeof *z);
  int kind = (int)(test_u64(rng) % 3); /* whole, quarters, or a little below a whole number */
  for (int64_t k = 0; k < n; k++) {
    z[k] = (float)(kind == 1 ? test_range(rng, 0, 120) : 4 * test_range(rng, 0, 30)) / 4;
    if (kind == 2) z[k] = fmaxf(0, z[k] - 0.7f * (s->ramp > 0 ? fminf(s->ramp, 1) : 1));
  }
  s->z = z;
  s->max_span = test_u64(rng) % 3 ? 0 : test_range(rng, 30, 50);
  s->include_self = test_u64(rng) & 1;
  s->shift = -(int64_t)(test_u64(rng) & 1);
}

void test_add_terms(test_call *call, int terms, test_rng *rng) {
  attn_sdpa_params *p = &call->params;
  int64_t h = call->q.heads, rows = call->q.batch * h * call->q.len;
  if (terms & (TERM_KEYS | TERM_VALUES)) add_relative(call, terms, rng);
  if (terms & TERM_QUERIES) add_queries(call, rng);
  if (terms & TERM_XL) add_xl(call, rng);
  if (terms & TERM_LABELS) add_labels(call, rng);
  if (terms & TERM_FACTOR) {
    p->factor.alpha = fractions(h, 0.25, rng);
    p->factor.beta = fractions(h, 2, rng);
    if (p->scale <= 0) p->scale = 0; /* 1/sqrt(dk) */
  }
  if (terms & TERM_TOEPLITZ) add_toeplitz(call, rng);
  if (terms & TERM_T5) add_t5(call, rng);
  if (terms & TERM_PARABOLA) {
    float *w = fractions(h, 0.0625, rng), *b = fractions(h, 2, rng);
    for (int64_t k = 0; k < h; k++) {
      w[k] = fabsf(w[k]);
      b[k] = -fabsf(b[k]);
    }
    p->parabola.w = w;
    if (test_u64(rng) % 3) p->parabola.bias = b;
  }
  if (terms & TERM_GAUSSIAN) {
    float *center = test_mem((size_t)rows * sizeof *center);
    float *precision = test_mem((size_t)rows * sizeof *precision);
    for (int64_t k = 0; k < rows; k++) {
      center[k] = (float)test_range(rng, -24, 8 * (call->k.len + 3)) / 8;
      precision[k] = ldexpf(1, (int)test_range(rng, -13, 1));
    }
    p->gaussian.center = center;
    p->gaussian.precision = precision;
  }
  if (terms & TERM_SPAN) add_span(call, rng);
  if (terms & TERM_MODIFY) {
    p->modify = test_modify;
    p->modify_user = user_of(rng);
  }
  if (terms & TERM_WEIGHTS) {
    p->modify_weights = test_modify_weights;
    p->modify_weights_user = user_of(rng);
  }
}

test_call test_terms_call(int terms, int64_t most, test_rng *rng) {
  static const int64_t edges[] = {1, 2, 63, 64, 65, 127, 128, 129};
  int64_t h = test_range(rng, 1, 4), len[2];
  for (int k = 0; k < 2; k++) {
    len[k] = test_u64(rng) % 3 ? test_range(rng, 1, most) : edges[test_u64(rng) % 8];
    if (len[k] > most) len[k] = most;
  }
  test_spec spec = test_plain(h, len[0], len[1], test_range(rng, 1, 20), test_range(rng, 1, 20));
  spec.batch = test_range(rng, 1, 2);
  while (h % (spec.k_heads = test_range(rng, 1, h))) continue;
  while (h % (spec.v_heads = test_range(rng, 1, h))) continue;
  if (test_u64(rng) % 3 == 0) {
    spec.q_type = (attn_dtype)(test_u64(rng) % 3);
    spec.k_type = (attn_dtype)(test_u64(rng) % 3);
    spec.v_type = (attn_dtype)(test_u64(rng) % 3);
    spec.o_type = (attn_dtype)(test_u64(rng) % 3);
  }
  if (test_u64(rng) % 3 == 0) {
    /* not TEST_ONE_ROW: a sum of equal weights rounds the same way each time */
    spec.q_layout = (test_layout)(test_u64(rng) % TEST_ONE_ROW);
    spec.k_layout = (test_layout)(test_u64(rng) % TEST_ONE_ROW);
    spec.v_layout = (test_layout)(test_u64(rng) % TEST_ONE_ROW);
    spec.o_layout = (test_layout)(test_u64(rng) % TEST_SHARED);
  }
  spec.lse = test_u64(rng) % 4 != 0;
  spec.map = test_u64(rng) % 3 == 0;
  test_call call = test_build(&spec, rng);
  attn_sdpa_params *p = &call.params;
  p->causal = test_u64(rng) & 1;
  if (test_u64(rng) % 3 == 0) {
    p->has_q_off = 1;
    p->q_off = test_range(rng, -60, 200);
  }
  if (test_u64(rng) % 3 == 0) test_left(p, test_range(rng, -1, 60));
  if (test_u64(rng) % 3 == 0) test_right(p, test_range(rng, -1, 60));
  if (test_u64(rng) % 3 == 0) p->kv_len = test_lengths(spec.batch, spec.k_len, rng);
  if (test_u64(rng) % 5 == 0) p->q_len = test_lengths(spec.batch, spec.q_len, rng);
  if (test_u64(rng) % 3 == 0) p->scale = (float)test_exact(rng);
  if (test_u64(rng) % 4 == 0) {
    p->mask = test_mask(test_u64(rng) & 1 ? ATTN_MASK_BITS : ATTN_MASK_BOOL, ATTN_F32, spec.batch,
                        h, spec.q_len, spec.k_len, rng);
  }
  if (test_u64(rng) % 4 == 0) {
    p->bias = test_mask(ATTN_MASK_ADD, (attn_dtype)(test_u64(rng) % 3), spec.batch, h, spec.q_len,
                        spec.k_len, rng);
  }
  if (test_u64(rng) % 4 == 0) p->alibi = test_floats(h, 0.1, rng);
  if (test_u64(rng) % 4 == 0) p->softcap = 2;
  if (spec.k_len % 2) p->softcap_at = ATTN_SOFTCAP_BIASED;
  if (test_u64(rng) % 5 == 0) p->sinks = test_floats(h, 1, rng);
  p->softmax_one = test_u64(rng) % 8 == 0;
  test_add_terms(&call, terms, rng);
  return call;
}

void test_terms_check(int terms, uint64_t seed, int64_t count, int64_t most, const char *what) {
  for (int64_t n = 0; n < count; n++) {
    char text[80];
    test_rng rng = test_seed(seed * 1000 + (uint64_t)n);
    test_call call = test_terms_call(terms, most, &rng);
    snprintf(text, sizeof text, "%s, case %d", what, (int)n);
    test_check(&call, text);
    test_mem_release();
  }
}
