/* tests/harness.c owns random numbers, views, and the ready-made parallel_for callbacks. */

#include "harness.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

attn_isa test_isa = ATTN_ISA_AUTO;
int test_fast = 0;
int test_other_bits = 0;
test_block test_last_block;

int64_t test_count(int64_t full, int64_t fast) { return test_fast ? fast : full; }

int test_skipped = 0;

void test_skip(const char *reason) {
  test_skipped++;
  print_message("           NOT RUN: %s\n", reason);
  skip();
}

attn_ctx test_ctx(void) {
  attn_ctx ctx;
  memset(&ctx, 0, sizeof ctx);
  ctx.isa = test_isa;
  return ctx;
}

test_rng test_seed(uint64_t seed) {
  test_rng rng = {seed * 0x9E3779B97F4A7C15u + 1};
  return rng;
}

/* SplitMix64. */
uint64_t test_u64(test_rng *rng) {
  uint64_t z = rng->state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

int64_t test_range(test_rng *rng, int64_t low, int64_t high) {
  return low + (int64_t)(test_u64(rng) % (uint64_t)(high - low + 1));
}

double test_normal(test_rng *rng) {
  double sum = 0;
  for (int n = 0; n < 12; n++) sum += (double)(test_u64(rng) >> 11) * 0x1p-53;
  return sum - 6;
}

int test_poison, test_drawn;
test_rng *test_jitter;

double test_exact(test_rng *rng) {
  const double x = (double)test_range(rng, -127, 127) / 64;
  if (test_jitter) return x * (1 + (double)test_range(test_jitter, -1, 1) / 8388608);
  if (!test_poison || ++test_drawn % test_poison) return x;
  const double bad[] = {(double)NAN, -(double)NAN, (double)INFINITY, -(double)INFINITY};
  return bad[test_drawn / test_poison % 4];
}

attn_tensor test_tensor(attn_dtype dtype, test_layout layout, int64_t batch, int64_t heads,
                        int64_t len, int64_t dim) {
  int64_t real_batch = batch, real_heads = heads, real_len = len, pad = 0;
  if (layout == TEST_SHARED) real_batch = real_heads = 1;
  if (layout == TEST_ONE_ROW) real_len = 1;
  if (layout == TEST_PADDED || layout == TEST_NEGATIVE) pad = 3;
  attn_tensor t = attn_bhtd(NULL, dtype, batch, heads, len, dim);
  t.stride_len = dim + pad;
  t.stride_head = real_len * t.stride_len + 2 * pad;
  t.stride_batch = real_heads * t.stride_head + pad;
  if (layout == TEST_BTHD) {
    t.stride_head = dim;
    t.stride_len = heads * dim;
    t.stride_batch = len * heads * dim;
  }
  /* The span from the first element of the first row to the last of the last. */
  int64_t count = 0;
  if (batch && heads && len && dim) {
    count = (real_batch - 1) * t.stride_batch + (real_heads - 1) * t.stride_head +
            (real_len - 1) * t.stride_len + dim;
  }
  if (layout == TEST_SHARED) t.stride_batch = t.stride_head = 0;
  if (layout == TEST_ONE_ROW) t.stride_len = 0;
  size_t size = (size_t)(count * oracle_size(dtype));
  test_last_block.data = test_mem(size);
  test_last_block.size = size;
  t.data = test_last_block.data;
  if (layout == TEST_NEGATIVE && count) {
    t.data = test_last_block.data + (count - dim) * oracle_size(dtype);
    t.stride_batch = -t.stride_batch;
    t.stride_head = -t.stride_head;
    t.stride_len = -t.stride_len;
  }
  return t;
}

/* Visits every element of a view. */
#define EACH(t, b, h, i, c)                 \
  for (int64_t b = 0; b < (t).batch; b++)   \
    for (int64_t h = 0; h < (t).heads; h++) \
      for (int64_t i = 0; i < (t).len; i++) \
        for (int64_t c = 0; c < (t).dim; c++)

attn_compute test_compute;

attn_feature test_feature(attn_compute compute) {
  static const struct {
    attn_compute compute;
    attn_feature feature;
  } rows[] = {{ATTN_COMPUTE_BF16, ATTN_FEATURE_AVX512_BF16},
              {ATTN_COMPUTE_BF16, ATTN_FEATURE_NEON_BF16},
              {ATTN_COMPUTE_I8, ATTN_FEATURE_AVX512_VNNI},
              {ATTN_COMPUTE_I8, ATTN_FEATURE_AVX_VNNI},
              {ATTN_COMPUTE_I8, ATTN_FEATURE_NEON_DOTPROD}};
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    const attn_feature f = rows[n].feature;
    if (rows[n].compute == compute && attn_feature_isa(f) == test_isa &&
        attn_feature_status(f) == ATTN_ISA_OK)
      return f;
  }
  return ATTN_FEATURE_NONE;
}

void test_fill(attn_tensor t, test_rng *rng, double (*draw)(test_rng *)) {
  EACH(t, b, h, i, c) {
    double x = draw(rng);
    if (test_compute == ATTN_COMPUTE_BF16) x = oracle_from_bf16(oracle_to_bf16(x));
    oracle_set(&t, b, h, i, c, x);
  }
}

void test_fill_value(attn_tensor t, double x) { EACH(t, b, h, i, c) oracle_set(&t, b, h, i, c, x); }

void test_fill_row(attn_tensor t, int64_t b, int64_t h, int64_t i, double x) {
  for (int64_t c = 0; c < t.dim; c++) oracle_set(&t, b, h, i, c, x);
}

void test_copy(attn_tensor to, attn_tensor from) {
  EACH(to, b, h, i, c) oracle_set(&to, b, h, i, c, oracle_get(&from, b, h, i, c));
}

attn_tensor test_rows(attn_tensor t, int64_t i0, int64_t len) {
  t.data = (char *)t.data + i0 * t.stride_len * oracle_size(t.dtype);
  t.len = len;
  return t;
}

attn_tensor test_one(attn_tensor t, int64_t b, int64_t nb, int64_t h, int64_t nh) {
  t.data = (char *)t.data + (b * t.stride_batch + h * t.stride_head) * oracle_size(t.dtype);
  t.batch = nb;
  t.heads = nh;
  return t;
}

int test_same(attn_tensor x, attn_tensor y) {
  if (x.dtype != y.dtype) return 0;
  size_t size = (size_t)oracle_size(x.dtype);
  EACH(x, b, h, i, c) {
    if (memcmp(oracle_address(&x, b, h, i, c), oracle_address(&y, b, h, i, c), size)) return 0;
  }
  return 1;
}

void test_assert_same(attn_tensor x, attn_tensor y, const char *what) {
  size_t size = (size_t)oracle_size(x.dtype);
  assert_int_equal(x.dtype, y.dtype);
  EACH(x, b, h, i, c) {
    if (memcmp(oracle_address(&x, b, h, i, c), oracle_address(&y, b, h, i, c), size)) {
      fail_msg("%s: bits differ at [%d,%d,%d,%d]: %.9g and %.9g", what, (int)b, (int)h, (int)i,
               (int)c, oracle_get(&x, b, h, i, c), oracle_get(&y, b, h, i, c));
    }
  }
}

void test_assert_near(attn_tensor x, attn_tensor y, double tolerance, const char *what) {
  EACH(x, b, h, i, c) {
    double a = oracle_get(&x, b, h, i, c), e = oracle_get(&y, b, h, i, c);
    if (a == e || (isnan(a) && isnan(e)) || fabs(a - e) <= tolerance * (1 + fabs(e))) continue;
    fail_msg("%s: [%d,%d,%d,%d] is %.9g, not %.9g", what, (int)b, (int)h, (int)i, (int)c, a, e);
  }
}

attn_mask test_mask(attn_mask_kind kind, attn_dtype dtype, int64_t batch, int64_t heads,
                    int64_t q_len, int64_t k_len, test_rng *rng) {
  attn_mask m;
  memset(&m, 0, sizeof m);
  m.kind = kind;
  m.dtype = dtype;
  m.batch = test_u64(rng) & 1 ? batch : 1;
  m.heads = test_u64(rng) & 1 ? heads : 1;
  m.q_len = test_u64(rng) & 3 ? q_len : 1;
  m.k_len = test_u64(rng) & 7 ? k_len : 1;
  int64_t pad = test_range(rng, 0, 2), row = kind == ATTN_MASK_BITS ? (m.k_len + 7) / 8 : m.k_len;
  m.stride_q = row + pad;
  m.stride_head = m.q_len * m.stride_q + pad;
  m.stride_batch = m.heads * m.stride_head;
  int64_t count = (m.batch - 1) * m.stride_batch + (m.heads - 1) * m.stride_head +
                  (m.q_len - 1) * m.stride_q + row;
  if (!batch || !heads || !q_len || !k_len) count = 0;
  uint8_t *data = test_mem((size_t)(count * (kind == ATTN_MASK_ADD ? oracle_size(dtype) : 1)));
  attn_tensor flat = attn_bhtd(data, dtype, 1, 1, 1, count);
  for (int64_t n = 0; n < count; n++) {
    if (kind == ATTN_MASK_ADD) {
      double x = test_u64(rng) % 4 ? test_normal(rng) : -(double)INFINITY;
      oracle_set(&flat, 0, 0, 0, n, x);
    } else {
      uint64_t bits = test_u64(rng);
      data[n] = (uint8_t)(kind == ATTN_MASK_BITS ? bits | bits >> 8 : bits % 3);
    }
  }
  m.data = data;
  return m;
}

int32_t *test_lengths(int64_t n, int64_t limit, test_rng *rng) {
  int32_t *lengths = test_mem((size_t)n * sizeof *lengths);
  for (int64_t b = 0; b < n; b++) {
    lengths[b] = (int32_t)(test_u64(rng) % 4 ? test_range(rng, 0, limit) : limit);
  }
  return lengths;
}

float *test_floats(int64_t n, double scale, test_rng *rng) {
  float *x = test_mem((size_t)n * sizeof *x);
  for (int64_t h = 0; h < n; h++) x[h] = (float)(scale * test_normal(rng));
  return x;
}

static void note(void *user, int64_t count) {
  int64_t *most = user;
  if (most && count > *most) *most = count;
}

void test_parallel_forward(void *user, int64_t count, attn_task_fn task, void *arg) {
  note(user, count);
  for (int64_t n = 0; n < count; n++) task(arg, n);
}

void test_parallel_backward(void *user, int64_t count, attn_task_fn task, void *arg) {
  note(user, count);
  for (int64_t n = count - 1; n >= 0; n--) task(arg, n);
}

typedef struct job {
  attn_task_fn task;
  void *arg;
  int64_t index;
} job;

static void *run_job(void *p) {
  job *j = p;
  j->task(j->arg, j->index);
  return NULL;
}

void test_parallel_threads(void *user, int64_t count, attn_task_fn task, void *arg) {
  pthread_t threads[16];
  job jobs[16];
  note(user, count);
  assert_in_range(count, 0, 16);
  for (int64_t n = 0; n < count; n++) {
    jobs[n].task = task;
    jobs[n].arg = arg;
    jobs[n].index = n;
    assert_int_equal(pthread_create(&threads[n], NULL, run_job, &jobs[n]), 0);
  }
  for (int64_t n = 0; n < count; n++) assert_int_equal(pthread_join(threads[n], NULL), 0);
}
