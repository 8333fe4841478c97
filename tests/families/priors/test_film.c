/* tests/families/priors/test_film.c owns CAMTL: blocks modulated by task vectors, and attention with a
 * block-diagonal prior, against float64. */

#include "compound.h"
#include "terms.h"

typedef struct film {
  attn_tensor y, a;
  attn_film_params p;
  promise does;
} film;

static attn_status film_call(void *at, attn_ctx *ctx) {
  film *s = at;
  return attn_film_blocks(s->y, s->a, &s->p, ctx);
}
static size_t film_ask(void *at, const attn_ctx *ctx) {
  film *s = at;
  return attn_film_blocks_workspace(s->y, s->a, &s->p, ctx);
}

/* width: 0 = w, 1 = m w, 2 = m w w; direct: gamma and beta are given. */
static film *film_of(int64_t batch, int64_t m, int64_t w, int width, int direct, attn_dtype type,
                     test_rng *rng) {
  film *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  int64_t f = width == 0 ? w : width == 1 ? m * w : m * w * w;
  s->a = drawn(type, TEST_PADDED, 1, m, w, w, 1, rng);
  s->y = output(type == ATTN_F32 ? ATTN_F32 : ATTN_BF16, TEST_NEGATIVE, batch, m, w, w,
                &s->does.block[0]);
  if (direct) {
    s->p.gamma = drawn(type, TEST_PADDED, direct == 2 ? 1 : batch, 1, 1, f, 1, rng);
    s->p.beta = drawn(ATTN_F32, TEST_BHTD, batch, 1, 1, f, 1, rng);
  } else {
    s->p.z = drawn(type, TEST_PADDED, batch, 1, 1, 5, 1, rng);
    s->p.w_f = drawn(ATTN_F32, TEST_PADDED, 1, 1, 5, 2 * f, 0.5, rng);
    if (m % 2) s->p.b_f = drawn(type, TEST_BHTD, 1, 1, 1, 2 * f, 0.5, rng);
  }
  s->does.call = film_call, s->does.ask = film_ask, s->does.scene = s, s->does.out[0] = &s->y;
  return s;
}

/* gamma (part 0) or beta (part 1) of entry (k, r, c). */
static double vector_at(const film *s, int64_t b, int part, int64_t k, int64_t r, int64_t c) {
  const attn_film_params *p = &s->p;
  const attn_tensor *t = part ? &p->beta : &p->gamma;
  int64_t m = s->a.heads, w = s->a.dim, f = t->data ? t->dim : p->w_f.dim / 2;
  int64_t at = f == w ? c : f == m * w ? k * w + c : (k * w + r) * w + c;
  if (t->data) return oracle_get(t, t->batch > 1 ? b : 0, 0, 0, at);
  at += part * f;
  double sum = p->b_f.data ? oracle_get(&p->b_f, 0, 0, 0, at) : 0;
  for (int64_t i = 0; i < p->z.dim; i++)
    sum += oracle_get(&p->z, b, 0, 0, i) * oracle_get(&p->w_f, 0, 0, i, at);
  return part || p->plain ? sum : 1 + sum;
}

void H6_film_random(void **state) {
  (void)state;
  for (int64_t n = test_count(40, 12); n-- > 0; test_mem_release()) {
    test_rng rng = test_seed(8000 + (uint64_t)n);
    int64_t batch = test_range(&rng, 1, 3), m = test_range(&rng, 1, 4), w = test_range(&rng, 1, 9);
    film *s = film_of(batch, m, w, (int)(n % 3), (int)(n / 3 % 3), (attn_dtype)(n % 5 % 3), &rng);
    s->p.plain = n % 4 == 3;
    promise_run(&s->does);
    cube want = cube_of(batch, m, w, w);
    for (int64_t e = 0; e < batch * m * w * w; e++) {
      int64_t b = e / w / w / m, k = e / w / w % m, r = e / w % w, c = e % w;
      want.data[e] =
          oracle_get(&s->a, 0, k, r, c) * vector_at(s, b, 0, k, r, c) + vector_at(s, b, 1, k, r, c);
    }
    cube_check(&want, &s->y, 1e-6, "film");
  }
}

/* Weights of zero leave the blocks as they are; with plain they are gone. */
void H6_film_one_plus(void **state) {
  (void)state;
  test_rng rng = test_seed(8050);
  film *s = film_of(2, 3, 4, 0, 0, ATTN_F32, &rng);
  test_fill_value(s->p.w_f, 0);
  test_fill_value(s->p.b_f, 0);
  promise_run(&s->does);
  for (int64_t b = 0; b < 2; b++)
    test_assert_same(test_one(s->y, b, 1, 0, 3), s->a, "zero weights");
  s->p.plain = 1;
  promise_run(&s->does);
  test_fill_value(s->a, 0);
  test_assert_near(test_one(s->y, 1, 1, 0, 3), s->a, 0, "plain");
}

void H6_film_limits(void **state) {
  (void)state;
  test_rng rng = test_seed(8060);
  for (int direct = 0; direct < 2; direct++) {
    film *s = film_of(2, 3, 4, 1, direct, ATTN_F32, &rng), keep = *s;
    promise_keep(&s->does);
#define REJECT(change, status, word)        \
  do {                                      \
    *s = keep;                              \
    change;                                 \
    promise_reject(&s->does, status, word); \
  } while (0)
    REJECT(s->a.len = 3, ATTN_E_SHAPE, "a must");
    REJECT(s->a.batch = 2, ATTN_E_SHAPE, "a must");
    REJECT(s->y.len = 3, ATTN_E_SHAPE, "y must");
    REJECT(s->y.heads = 2, ATTN_E_SHAPE, "y must");
    REJECT(s->y.stride_len = 3, ATTN_E_STRIDE, "y is");
    REJECT(s->y.data = s->a.data, ATTN_E_OVERLAP, "y is");
    if (direct) {
      REJECT(s->p.gamma.dim = 11; s->p.beta.dim = 11, ATTN_E_SHAPE, "F must");
      REJECT(s->p.beta.dim = 4, ATTN_E_SHAPE, "beta");
      REJECT(s->p.gamma.batch = 3, ATTN_E_SHAPE, "gamma");
      REJECT(s->p.beta.data = NULL, ATTN_E_NULL, "beta");
      REJECT(s->p.z = s->p.gamma, ATTN_E_RANGE, "gamma");
    } else {
      REJECT(s->p.w_f.dim = s->p.b_f.dim = 23, ATTN_E_SHAPE, "w_f");
      REJECT(s->p.w_f.dim = 22; s->p.b_f.dim = 22, ATTN_E_SHAPE, "F must");
      REJECT(s->p.w_f.len = 4, ATTN_E_SHAPE, "w_f");
      REJECT(s->p.b_f.dim = 12, ATTN_E_SHAPE, "b_f");
      REJECT(s->p.z.batch = 1, ATTN_E_SHAPE, "z");
      REJECT(s->p.z.data = NULL, ATTN_E_NULL, "z");
    }
#undef REJECT
  }
  attn_ctx ctx = test_ctx();
  film *s = film_of(1, 1, 1, 0, 0, ATTN_F32, &rng);
  assert_int_equal(attn_film_blocks(s->y, s->a, NULL, &ctx), ATTN_E_NULL);
}

/* ---- attention ------------------------------------------------------------------------------*/

typedef struct scene {
  test_call at;
  attn_tensor blocks;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  attn_camtl_params p;
  p.blocks = s->blocks, p.attention = s->at.params;
  return attn_camtl(s->at.o, s->at.q, s->at.k, s->at.v, &p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  attn_camtl_params p;
  p.blocks = s->blocks, p.attention = s->at.params;
  return attn_camtl_workspace(s->at.o, s->at.q, s->at.k, s->at.v, &p, ctx);
}

static scene *around(test_call c, attn_tensor blocks) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  s->at = c, s->blocks = blocks;
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->at.o, s->does.out[1] = &s->at.params.lse, s->does.out[2] = &s->at.params.map;
  return s;
}

/* The prior as a dense bias: M[p_i, j]. */
static attn_mask dense(const scene *s) {
  const attn_tensor *q = &s->at.q, *k = &s->at.k, *x = &s->blocks;
  int64_t b = q->batch, tq = q->len, tk = k->len, w = x->dim;
  float *m = test_mem((size_t)(b * tq * tk + 1) * sizeof *m);
  for (int64_t n = 0; n < b * tq * tk; n++) {
    int64_t p = oracle_position(q, k, &s->at.params, n / tk / tq, n / tk % tq), j = n % tk;
    m[n] = 0;
    for (int64_t block = 0; block < x->heads; block++)
      if (p >= block * w && p < block * w + w && j >= block * w && j < block * w + w)
        m[n] = (float)oracle_get(x, x->batch > 1 ? n / tk / tq : 0, block, p - block * w,
                                 j - block * w);
  }
  return attn_mask_add(m, ATTN_F32, b, 1, tq, tk);
}

void H6_random(void **state) {
  (void)state;
  static const int terms[] = {0, 0, TERM_KEYS | TERM_VALUES, TERM_T5, TERM_MODIFY, TERM_LABELS};
  for (int64_t n = test_count(30, 14); n-- > 0; test_mem_release()) {
    test_rng rng = test_seed(8100 + (uint64_t)n);
    test_call c = test_terms_call(terms[n % 6], n % 5 ? 50 : 200, &rng);
    if (c.params.has_q_off && c.params.q_off < 0) c.params.q_off = -c.params.q_off;
    if (!c.params.has_q_off && c.q.len > c.k.len) c.params.has_q_off = 1, c.params.q_off = 3;
    memset(&c.params.bias, 0, sizeof c.params.bias);
    if (c.params.modify) c.params.alibi = NULL;
    c.params.softcap_at = ATTN_SOFTCAP_SCORES; /* before a bias, as before the prior */
    int64_t off = c.params.has_q_off ? c.params.q_off : c.k.len - c.q.len;
    int64_t most = c.q.len + off > c.k.len ? c.q.len + off : c.k.len;
    int64_t w = n % 7 == 0 ? 1 : n % 7 == 1 ? most : test_range(&rng, 1, most);
    scene *s = around(
        c, drawn(ATTN_F32, TEST_PADDED, n % 2 ? 1 : c.q.batch, (most + w - 1) / w, w, w, 1, &rng));
    if (c.params.modify) ((test_term_user *)c.params.modify_user)->kind = MODIFY_ADD;
    promise_run(&s->does);
    test_call with = s->at; /* a bias is added before modify: both are sums here */
    with.params.bias = dense(s);
    test_compare(&with, "camtl");
  }
}

/* Blocks of zeros are attn_sdpa; no key is masked: a block of -20 leaves the rows of other blocks
 * as they are. The same as a modifier, and for a few queries. */
void H6_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(8200);
  test_spec spec = test_plain(3, 60, 60, 8, 8);
  scene *s = around(test_build(&spec, &rng), drawn(ATTN_F32, TEST_BHTD, 1, 4, 16, 16, 1, &rng));
  test_call plain = test_again(&s->at);
  test_fill_value(s->blocks, 0);
  promise_run(&s->does);
  test_run(&plain);
  test_assert_near(s->at.o, plain.o, 2e-6, "zero blocks");
  attn_block_prior prior = {s->blocks, NULL, NULL};
  test_fill_value(test_one(s->blocks, 0, 1, 2, 1), -20);
  promise_run(&s->does);
  test_assert_near(test_rows(s->at.o, 0, 32), test_rows(plain.o, 0, 32), 2e-6, "other blocks");
  assert_true(fabs(oracle_get(&s->at.o, 0, 1, 40, 3) - oracle_get(&plain.o, 0, 1, 40, 3)) > 1e-3);
  plain.params.modify = attn_block_prior_add, plain.params.modify_user = &prior;
  test_run(&plain);
  test_assert_same(plain.o, s->at.o, "as a modifier");
  /* a few queries at the end */
  scene few = *s;
  few.at.q = test_rows(s->at.q, 57, 3), few.at.params.lse = absent();
  few.at.o = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, 3, 8), few.does.scene = &few;
  promise_run(&few.does);
  test_assert_near(few.at.o, test_rows(s->at.o, 57, 3), 2e-6, "decode");
}

void H6_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(8210);
  test_spec spec = test_plain(2, 150, 140, 8, 8);
  test_call c = test_build(&spec, &rng);
  c.params.has_q_off = 1, c.params.q_off = 0;
  scene *s = around(c, drawn(ATTN_F32, TEST_BHTD, 1, 3, 50, 50, 1, &rng));
  promise_keep(&s->does);
}

void H6_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(8220);
  test_spec spec = test_plain(2, 9, 10, 4, 4);
  scene *s = around(test_build(&spec, &rng), drawn(ATTN_F32, TEST_BHTD, 1, 2, 5, 5, 1, &rng));
  s->at.o = output(ATTN_F32, TEST_BHTD, 1, 2, 9, 4, &s->does.block[0]);
  scene keep = *s;
#define REJECT(change, status, word) \
  *s = keep;                         \
  change;                            \
  promise_reject(&s->does, status, word);
  REJECT(s->blocks.heads = 1, ATTN_E_RANGE, "blocks")
  REJECT(s->at.params.has_q_off = 1; s->at.params.q_off = 2, ATTN_E_RANGE, "blocks")
  REJECT(s->at.params.has_q_off = 1; s->at.params.q_off = -1, ATTN_E_RANGE, "q_off")
  REJECT(s->at.k.len = s->at.v.len = 8, ATTN_E_RANGE, "q_off")
  REJECT(s->blocks.len = 4, ATTN_E_SHAPE, "blocks")
  REJECT(s->blocks.batch = 2, ATTN_E_SHAPE, "blocks")
  REJECT(s->blocks.heads = (int64_t)1 << 40; s->blocks.len = s->blocks.dim = (int64_t)1 << 24;
         s->blocks.stride_head = s->blocks.stride_len = 0, ATTN_E_OVERFLOW, "blocks")
  REJECT(s->blocks.dtype = ATTN_BF16, ATTN_E_DTYPE, "blocks")
  REJECT(s->blocks = absent(), ATTN_E_NULL, "blocks")
  REJECT(s->blocks.data = NULL, ATTN_E_NULL, "blocks")
  REJECT(s->at.v.len = 9, ATTN_E_SHAPE, "v.len")
  REJECT(s->at.params.scale = (float)NAN, ATTN_E_VALUE, "scale")
  static const int64_t row[] = {0, 9};
  REJECT(s->at.params.ragged.sequences = 1;
         s->at.params.ragged.q_indptr = s->at.params.ragged.kv_indptr = row;
         s->at.params.lse = absent(), ATTN_E_RANGE, "ragged")
  REJECT(s->at.o.data = s->blocks.data, ATTN_E_OVERLAP, "o is")
#undef REJECT
  *s = keep;
  attn_ctx ctx = test_ctx();
  ctx.validate = 1;
  oracle_set(&s->blocks, 0, 1, 4, 4, (double)INFINITY);
  assert_int_equal(call(s, &ctx), ATTN_E_VALUE);
  assert_non_null(strstr(ctx.reason, "blocks"));
}
