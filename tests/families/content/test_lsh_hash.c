/* tests/families/content/test_lsh_hash.c owns the hash of LSH attention against its definition in float64, with the
 * generator of the rotations written out again. */

#include <stdlib.h>

#include "compound.h"

static uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}
static const uint64_t gamma_step = 0x9E3779B97F4A7C15u;
static uint64_t stream(uint64_t seed, uint64_t tag, uint64_t head, uint64_t row) {
  uint64_t s = mixed((seed ^ tag) + gamma_step);
  s = mixed((s ^ head) + gamma_step);
  return mixed((s ^ row) + gamma_step);
}
static double gauss12(uint64_t *s) {
  double sum = 0;
  for (int n = 0; n < 12; n++) *s += gamma_step, sum += (double)(mixed(*s) >> 32);
  return sum / 4294967296.0 - 6;
}

/* Rotations of a head and round, [dk][width]. */
static double *rotation(const attn_lsh_params *p, int64_t h, int64_t r, int64_t dk, int64_t width) {
  double *x = test_mem((size_t)(dk * width + 1) * sizeof *x);
  uint64_t s = stream(p->seed, 4, (uint64_t)h, (uint64_t)r);
  const int64_t of = p->rotations.data && p->rotations.batch > 1 ? h : 0;
  for (int64_t n = 0; n < dk * width; n++) {
    x[n] = (double)(float)gauss12(&s);
    if (p->rotations.data) x[n] = oracle_get(&p->rotations, of, r, n / width, n % width);
  }
  return x;
}

/* Each part of a bucket is the largest, but for what float32 cannot tell; exact: ties go first. */
static void check_hash(const int32_t *got, const attn_tensor *x, const attn_lsh_params *p,
                       int64_t heads, int exact) {
  const int32_t one = (int32_t)attn_lsh_buckets(x->len, p),
                *factor = p->factors ? p->factors : &one;
  const int64_t factors = p->factors ? p->factor_count : 1, dk = x->dim;
  int64_t width = 0;
  for (int64_t f = 0; f < factors; f++) width += factor[f] / 2;
  for (int64_t n = 0; n < x->batch * heads * p->rounds; n++) {
    const int64_t b = n / p->rounds / heads, h = n / p->rounds % heads, r = n % p->rounds;
    const double *rot = rotation(p, h, r, dk, width);
    for (int64_t i = 0; i < x->len; i++) {
      int64_t bucket = got[n * x->len + i], column = 0;
      for (int64_t f = 0; f < factors; f++) {
        const int64_t size = factor[f], a = bucket % size;
        double z[512], most = 0, norm = 0;
        int64_t first = -1;
        bucket /= size;
        if (size == 1) assert_int_equal(a, 0);
        for (int64_t t = 0; t < size / 2; t++) {
          double sum = 0;
          for (int64_t c = 0; c < dk; c++) {
            const double y =
                oracle_get(x, b, head_of(x, h, heads), i, c) * rot[c * width + column + t];
            sum += y, norm = fmax(norm, fabs(y));
          }
          z[t] = sum, z[t + size / 2] = -sum;
          most = fmax(most, fabs(sum));
        }
        for (int64_t t = size - 1; t >= 0; t--)
          if (size > 1 && z[t] == most) first = t;
        column += size / 2;
        if (size > 1) assert_true(z[a] >= most - 1e-5 * norm * (double)dk);
        if (size > 1 && exact) assert_int_equal(a, first);
      }
      assert_int_equal(bucket, 0);
    }
  }
}

static attn_tensor rotations(int64_t heads, int64_t rounds, int64_t dk, int64_t width,
                             test_rng *rng) {
  return drawn(ATTN_F32, TEST_PADDED, heads, rounds, dk, width, 1, rng);
}

void D3_hash(void **state) {
  (void)state;
  test_rng rng = test_seed(4001);
  uint64_t s = stream(9, 4, 0, 0);
  assert_true(s != 0 && gauss12(&s) == -0.27780435420572758);
  assert_true(gauss12(&s) == 2.0853060516528785 && gauss12(&s) == -0.8717649350874126);
  s = stream(42, 1, 0, 7);
  assert_true(s == 0x43B4761AA1EA9C6Du);
  int64_t count = test_count(60, 10);
  static const attn_dtype type[] = {ATTN_F32, ATTN_F32, ATTN_F16, ATTN_BF16};
  for (int64_t t = 0; t < count; t++) {
    const int64_t batch = test_range(&rng, 1, 2), xh = test_range(&rng, 1, 2);
    const int64_t heads = xh * test_range(&rng, 1, 2);
    const int64_t len = t % 7 ? test_range(&rng, 1, 40) : test_range(&rng, 60, 200);
    const int64_t dk = test_range(&rng, 1, 20);
    attn_tensor x = drawn(type[test_range(&rng, 0, 3)], (test_layout)test_range(&rng, 0, 3), batch,
                          xh, len, dk, 1, &rng);
    attn_lsh_params p;
    memset(&p, 0, sizeof p);
    int32_t factors[3];
    p.rounds = test_range(&rng, 1, 5), p.seed = test_u64(&rng), p.heads = heads == xh ? 0 : heads;
    if (t % 3) {
      p.factors = factors, p.factor_count = test_range(&rng, 1, 3);
      for (int f = 0; f < 3; f++)
        factors[f] = 2 * (int32_t)test_range(&rng, 1, t % 5 == 1 ? 60 : 5);
    }
    if (t % 11 == 4) p.factors = factors, p.factor_count = 1, factors[0] = 1;
    if (t % 2 && !(t % 11 == 4)) {
      int64_t width = 0;
      for (int f = 0; f < p.factor_count; f++) width += factors[f] / 2;
      if (!p.factors) width = attn_lsh_buckets(len, &p) / 2;
      p.rotations = rotations(t % 4 == 1 ? 1 : heads, p.rounds, dk, width, &rng);
    }
    const int exact = x.dtype == ATTN_F32 && p.rotations.data && t % 4 == 3;
    if (exact) test_fill(x, &rng, test_exact), test_fill(p.rotations, &rng, test_exact);
    if (exact) test_fill_row(x, 0, 0, len / 2, 0); /* a zero row: all products are equal */
    int32_t *got = test_mem((size_t)(batch * heads * p.rounds * len) * sizeof *got);
    attn_ctx ctx = test_ctx();
    ctx.workers = (int)test_range(&rng, 0, 3), ctx.parallel_for = test_parallel_backward;
    assert_int_equal(attn_lsh_hash(got, x, &p, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.isa, test_isa);
    check_hash(got, &x, &p, heads, exact);
  }
}

/* A positive factor changes nothing; more columns than one go of products; many equal products. */
void D3_hash_scaling(void **state) {
  (void)state;
  test_rng rng = test_seed(4002);
  attn_tensor x = drawn(ATTN_F32, TEST_BHTD, 1, 1, 70, 6, 1, &rng);
  attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 70, 6);
  attn_lsh_params p;
  int32_t a[3 * 70], b[3 * 70], factors[2] = {800, 250};
  attn_ctx ctx = test_ctx();
  memset(&p, 0, sizeof p);
  p.rounds = 3, p.factors = factors, p.factor_count = 2;
  for (int64_t i = 0; i < 70; i++)
    for (int64_t c = 0; c < 6; c++)
      oracle_set(&y, 0, 0, i, c, oracle_get(&x, 0, 0, i, c) * (i % 2 ? 1024 : 0.125));
  assert_int_equal(attn_lsh_buckets(70, &p), 200000);
  assert_int_equal(attn_lsh_hash(a, x, &p, &ctx), ATTN_OK);
  assert_int_equal(attn_lsh_hash(b, y, &p, &ctx), ATTN_OK);
  assert_memory_equal(a, b, sizeof a);
  p.seed = 1;
  assert_int_equal(attn_lsh_hash(b, x, &p, &ctx), ATTN_OK);
  assert_memory_not_equal(a, b, sizeof a);
  /* products that are all 1, or all -1: the first index, the first negative one */
  p.rotations = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, 6, 525);
  test_fill_value(p.rotations, 1);
  for (int64_t i = 0; i < 70; i++)
    for (int64_t c = 0; c < 6; c++) oracle_set(&x, 0, 0, i, c, c ? 0 : i % 2 ? -1 : 1);
  assert_int_equal(attn_lsh_hash(a, x, &p, &ctx), ATTN_OK);
  for (int i = 0; i < 210; i++) assert_int_equal(a[i], i % 70 % 2 ? 400 + 800 * 125 : 0);
  test_fill_value(x, (double)NAN);
  assert_int_equal(attn_lsh_hash(a, x, &p, &ctx), ATTN_OK);
  for (int i = 0; i < 210; i++) assert_true(a[i] >= 0 && a[i] < 200000);
  p.rotations = absent();
  assert_int_equal(attn_lsh_buckets(1000, NULL), 30);
  assert_int_equal(attn_lsh_buckets(0, NULL), 2);
  factors[1] = 3;
  assert_int_equal(attn_lsh_buckets(70, &p), 0);
}

/* ---- promises -------------------------------------------------------------------------------*/

typedef struct hashing {
  attn_tensor x, place; /* place: numbers seen as floats */
  attn_lsh_params p;
  promise does;
} hashing;

static attn_status call_hash(void *at, attn_ctx *ctx) {
  hashing *s = at;
  return attn_lsh_hash(s->place.data, s->x, &s->p, ctx);
}
static size_t ask_hash(void *at, const attn_ctx *ctx) {
  hashing *s = at;
  return attn_lsh_hash_workspace(s->place.data, s->x, &s->p, ctx);
}
static hashing *build_hash(test_rng *rng) {
  hashing *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->x = drawn(ATTN_F16, TEST_BTHD, 2, 2, 90, 7, 1, rng), s->p.rounds = 3;
  s->place = output(ATTN_F32, TEST_BHTD, 2, 6, 90, 1, &s->does.block[0]);
  s->does.call = call_hash, s->does.ask = ask_hash;
  s->does.scene = s, s->does.out[0] = &s->place;
  return s;
}

void D3_hash_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(4003);
  promise_keep(&build_hash(&rng)->does);
}

void D3_hash_reject(void **state) {
  (void)state;
  test_rng rng = test_seed(4004);
  hashing *z = build_hash(&rng), before = *z;
  static const int32_t odd[2] = {4, 3}, ones[2] = {1, 4}, zero[1] = {0}, large[2] = {65536, 32768};
  static const int32_t even[2] = {4, 6}, single[1] = {1};
  int32_t less[2] = {-1, 6};
  attn_tensor rot = rotations(1, 2, 5, 5, &rng);
#define HASH(change, status, word)          \
  do {                                      \
    change;                                 \
    promise_reject(&z->does, status, word); \
    *z = before;                            \
  } while (0)
  HASH((z->p.factors = odd, z->p.factor_count = 2), ATTN_E_RANGE, "factors");
  HASH((z->p.factors = ones, z->p.factor_count = 2), ATTN_E_RANGE, "factors");
  HASH((z->p.factors = zero, z->p.factor_count = 1), ATTN_E_RANGE, "factors");
  HASH((z->p.factors = large, z->p.factor_count = 2), ATTN_E_RANGE, "factors");
  HASH((z->p.factors = even, z->p.factor_count = 0), ATTN_E_RANGE, "factors");
  HASH(z->p.factor_count = 1, ATTN_E_RANGE, "factors");
  HASH(z->p.heads = 3, ATTN_E_HEADS, "heads");
  HASH(z->p.rounds = -1, ATTN_E_RANGE, "rounds");
  HASH((z->p.rotations = rot), ATTN_E_SHAPE, "rotations");
  HASH((z->p.rotations = rot, z->p.factors = even, z->p.factor_count = 2), ATTN_E_SHAPE,
       "rotations");
  HASH((z->p.rotations = rot, z->p.factors = single, z->p.factor_count = 1), ATTN_E_SHAPE,
       "rotations");
  HASH(z->place.data = NULL, ATTN_E_NULL, "buckets");
  HASH(z->x.data = NULL, ATTN_E_NULL, "x.data");
  HASH(z->x.data = z->place.data, ATTN_E_OVERLAP, "buckets");
  HASH(z->p.kv_len = less, ATTN_E_RANGE, "kv_len");
#undef HASH
}
