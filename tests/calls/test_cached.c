/* tests/calls/test_cached.c owns attention over sequences of unequal length: rows end to end, and rows in
 * the pages of a cache. Each sequence is judged as a call of its own, by the oracle and by bits. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "few.h"
#include "list.h"
#include "pages.h"

/* ---- rows end to end ------------------------------------------------------------------------*/

/* n + 1 places; some sequences are empty. */
static int64_t *places(int64_t n, int64_t most, int64_t least, test_rng *rng) {
  int64_t *x = test_mem((size_t)(n + 1) * sizeof *x);
  x[0] = 0;
  for (int64_t b = 0; b < n; b++) {
    x[b + 1] = x[b] + (test_u64(rng) % 5 ? test_range(rng, least, most) : least);
  }
  return x;
}

/* A ragged call with the packed tensors around it. */
typedef struct packed {
  test_call call;
  kept k, v;
  int64_t n, *q, *kv;
} packed;

static attn_tensor part_of(attn_tensor t, int64_t from, int64_t to) {
  return t.data ? test_rows(t, from, to - from) : t;
}

/* Runs it, and judges each sequence. */
static void check_packed(packed *p, const char *what) {
  attn_sdpa_params *params = &p->call.params;
  test_run(&p->call);
  for (int64_t b = 0; b < p->n; b++) {
    kept_call d, again;
    char text[96];
    snprintf(text, sizeof text, "%s, sequence %d of %d", what, (int)b, (int)p->n);
    memset(&d, 0, sizeof d);
    d.call = p->call;
    memset(&d.call.params.ragged, 0, sizeof d.call.params.ragged);
    d.call.q = part_of(p->call.q, p->q[b], p->q[b + 1]);
    d.call.o = part_of(p->call.o, p->q[b], p->q[b + 1]);
    d.call.params.lse = part_of(params->lse, p->q[b], p->q[b + 1]);
    if (p->kv) {
      int64_t len = p->kv[b + 1] - p->kv[b];
      kept_put(&d, kept_slice(p->k, p->kv[b], len), kept_slice(p->v, p->kv[b], len));
    } else {
      kept_put(&d, kept_entry(p->k, b), kept_entry(p->v, b));
      if (params->kv_len) d.call.params.kv_len = params->kv_len + b;
    }
    kept_compare(&d, text);
    again = d;
    again.call = test_again(&d.call);
    test_run(&again.call);
    test_assert_same_outputs(&d.call, &again.call, text);
  }
  /* rows of nobody */
  for (int64_t i = p->q[p->n]; i < p->call.q.len; i++) {
    for (int64_t h = 0; h < p->call.q.heads; h++) {
      const unsigned char *row = oracle_address(&p->call.o, 0, h, i, 0);
      for (int64_t n = 0; n < p->call.o.dim * oracle_size(p->call.o.dtype); n++) {
        assert_int_equal(row[n], 0xA5);
      }
    }
  }
}

static packed pack(int kind, test_rng *rng) {
  static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_I8, ATTN_I4, ATTN_E4M3};
  packed p;
  memset(&p, 0, sizeof p);
  p.n = test_range(rng, 1, 5);
  int64_t most = kind % 3 == 0 ? 1 : kind % 3 == 1 ? 12 : 90, keys = test_u64(rng) % 3 ? 120 : 700;
  p.q = places(p.n, most, 0, rng);
  if (kind & 4) p.kv = places(p.n, keys, 0, rng);
  int64_t extra = test_range(rng, 0, 3);
  test_spec z = test_plain(test_range(rng, 1, 4), p.q[p.n] + extra, 0, test_range(rng, 1, 40),
                           test_range(rng, 1, 40));
  z.k_heads = z.v_heads = test_u64(rng) & 1 ? 1 : z.heads;
  z.q_layout = (test_layout)(test_u64(rng) % TEST_SHARED);
  z.o_layout = (test_layout)(test_u64(rng) % TEST_SHARED);
  z.o_type = (attn_dtype)(test_u64(rng) % 3);
  p.call = test_build(&z, rng);
  int64_t batch = p.kv ? 1 : p.n, len = p.kv ? p.kv[p.n] + extra : test_range(rng, 1, keys);
  kept_spec ks = kept_some(types[test_u64(rng) % 6], batch, z.k_heads, len, z.dk, rng);
  kept_spec vs = kept_some(types[test_u64(rng) % 6], batch, z.v_heads, len, z.dv, rng);
  ks.layout = (test_layout)(test_u64(rng) % TEST_SHARED);
  vs.layout = (test_layout)(test_u64(rng) % TEST_SHARED);
  ks.scaling = vs.scaling = (kept_scaling)(test_u64(rng) % SCALE_BY_HEAD);
  p.k = kept_rows(&ks, rng), p.v = kept_rows(&vs, rng);
  attn_sdpa_params *params = &p.call.params;
  if (!p.kv && test_u64(rng) & 1) { /* the rest of a row of the batch is never read */
    params->kv_len = test_lengths(p.n, len, rng);
    for (int64_t b = 0; b < p.n; b++) {
      for (int64_t h = 0; h < z.k_heads; h++) {
        for (int64_t j = params->kv_len[b]; j < len; j++) {
          kept_poison(&p.k, b, h, j);
          kept_poison(&p.v, b, h, j);
        }
      }
    }
  }
  for (int64_t j = p.kv ? p.kv[p.n] : len; j < len; j++) {
    for (int64_t h = 0; h < z.k_heads; h++) {
      kept_poison(&p.k, 0, h, j);
      kept_poison(&p.v, 0, h, j);
    }
  }
  p.call.k = p.k.t, p.call.v = p.v.t;
  params->k_scales = p.k.s, params->v_scales = p.v.s;
  params->ragged.sequences = p.n;
  params->ragged.q_indptr = p.q, params->ragged.kv_indptr = p.kv;
  return p;
}

static void add_common(attn_sdpa_params *p, int64_t heads, int64_t reach, int own_off,
                       test_rng *rng) {
  p->causal = test_u64(rng) % 3 != 0;
  if (own_off && test_u64(rng) % 4 == 0) p->has_q_off = 1, p->q_off = test_range(rng, -9, reach);
  if (test_u64(rng) % 3 == 0) test_left(p, test_range(rng, -1, reach));
  if (test_u64(rng) % 4 == 0) test_right(p, test_range(rng, -1, 40));
  if (test_u64(rng) % 3 == 0) p->keep = test_range(rng, 0, 20);
  if (test_u64(rng) % 3 == 0) p->alibi = test_floats(heads, 0.1, rng);
  if (test_u64(rng) % 4 == 0) p->softcap = 2, p->softcap_at = (attn_softcap_at)p->causal;
  if (test_u64(rng) % 4 == 0) p->sinks = test_floats(heads, 1, rng);
  p->softmax_one = test_u64(rng) % 6 == 0;
}

void A2_ragged_judged(void **state) {
  (void)state;
  for (int n = 0; n < test_count(60, 16); n++) {
    test_rng rng = test_seed(900000 + (uint64_t)n);
    packed p = pack(n, &rng);
    char text[48];
    snprintf(text, sizeof text, "ragged, case %d", n);
    add_common(&p.call.params, p.call.q.heads, 150, 1, &rng);
    check_packed(&p, text);
    test_mem_release();
  }
}

/* Terms that are functions of the distance count within a sequence. */
void A2_ragged_judged_terms(void **state) {
  (void)state;
  for (int n = 0; n < test_count(40, 10); n++) {
    test_rng rng = test_seed(901000 + (uint64_t)n);
    packed p = pack(n, &rng);
    char text[48];
    snprintf(text, sizeof text, "ragged with terms, case %d", n);
    add_common(&p.call.params, p.call.q.heads, 150, 1, &rng);
    int terms = TERM_FACTOR | TERM_TOEPLITZ | TERM_T5 | TERM_PARABOLA;
    test_add_terms(&p.call, (int)test_u64(&rng) & terms, &rng);
    check_packed(&p, text);
    test_mem_release();
  }
}

/* The first keys stay, whatever the window: with every mask and term, by many queries and few. */
void A2_keep_against_oracle(void **state) {
  (void)state;
  for (int64_t n = 0; n < test_count(60, 12); n++) {
    test_rng rng = test_seed(902000 + (uint64_t)n);
    int terms = n % 3 ? 0 : (int)test_u64(&rng) & TERM_ALL & ~TERM_XL;
    if (n % 5 == 1) terms |= TERM_WEIGHTS;
    test_call call = test_terms_call(terms, n & 1 ? 300 : 90, &rng);
    test_left(&call.params, test_range(&rng, -1, 40));
    call.params.keep = test_range(&rng, 0, n % 4 ? 12 : 200);
    char text[48];
    snprintf(text, sizeof text, "keep, case %d", (int)n);
    test_check(&call, text);
    test_mem_release();
  }
}

/* ---- rows in pages --------------------------------------------------------------------------*/

/* A call over a cache. With ragged queries q holds them end to end. */
typedef struct cached {
  test_call call;
  pages c;
  int32_t *q_len;
  int64_t *q;
} cached;

static attn_status attend(cached *x, attn_ctx *ctx) {
  return attn_cache_sdpa(x->call.o, x->call.q, &x->c.cache, x->c.seq, x->c.n, &x->call.params, ctx);
}

static cached make(const pages_spec *z, int ragged, test_rng *rng) {
  cached x;
  memset(&x, 0, sizeof x);
  x.c = pages_make(z, rng);
  int64_t n = z->n, total = 0;
  x.q_len = test_mem((size_t)(n + 1) * sizeof *x.q_len);
  x.q = test_mem((size_t)(n + 1) * sizeof *x.q);
  x.q[0] = 0;
  for (int64_t b = 0; b < n; b++) { /* never more queries than tokens */
    int64_t most = z->queries < x.c.seq[b].len ? z->queries : x.c.seq[b].len;
    x.q_len[b] = (int32_t)(most && test_u64(rng) % 6 ? test_range(rng, 1, most) : 0);
    if (!ragged && z->queries == 1) x.q_len[b] = most > 0;
    if (x.q_len[b] > total) total = x.q_len[b];
    x.q[b + 1] = x.q[b] + x.q_len[b];
  }
  int64_t group = test_range(rng, 1, 4), heads = z->k_heads * group;
  if (heads % z->v_heads) heads = z->k_heads * z->v_heads;
  test_spec s = test_plain(heads, ragged ? x.q[n] : total, 0, z->dk, z->dv);
  s.batch = ragged ? 1 : n;
  s.k_heads = s.v_heads = 1;
  s.q_type = (attn_dtype)(test_u64(rng) % 3);
  s.o_type = (attn_dtype)(test_u64(rng) % 3);
  s.q_layout = (test_layout)(test_u64(rng) % TEST_SHARED);
  s.o_layout = (test_layout)(test_u64(rng) % TEST_SHARED);
  x.call = test_build(&s, rng);
  attn_sdpa_params *p = &x.call.params;
  if (ragged) {
    p->ragged.sequences = n;
    p->ragged.q_indptr = x.q;
  } else {
    for (int64_t b = 0; b < n; b++) {
      if (x.q_len[b] != total) p->q_len = x.q_len;
    }
  }
  return x;
}

static void judge(cached *x, const char *what, int bits) {
  for (int64_t b = 0; b < x->c.n; b++) {
    char text[96];
    snprintf(text, sizeof text, "%s, sequence %d of %d", what, (int)b, (int)x->c.n);
    attn_sdpa_params *p = &x->call.params;
    int64_t from = p->ragged.sequences ? x->q[b] : 0, len = x->q_len[b];
    int64_t entry = p->ragged.sequences ? 0 : b;
    attn_tensor t[3] = {x->call.q, x->call.o, p->lse};
    for (int k = 0; k < 3; k++) {
      if (t[k].data && t[k].len) {
        t[k] = test_rows(test_one(t[k], entry, 1, 0, t[k].heads), from, len);
      } else {
        t[k].batch = 1, t[k].len = 0;
      }
    }
    kept_call d = pages_dense(&x->c, &x->call, b, t[0], t[1], t[2]);
    d.call.params.bias.k_len = p->bias.kind && p->bias.k_len > 1 ? d.call.k.len : 1;
    if (!p->bias.kind) memset(&d.call.params.bias, 0, sizeof d.call.params.bias);
    if (p->bias.kind && p->bias.batch > 1) {
      d.call.params.bias.data = (const float *)d.call.params.bias.data + b * p->bias.stride_batch;
      d.call.params.bias.batch = 1;
    }
    kept_compare(&d, text);
    for (int64_t i = len; i < x->call.q.len && !p->ragged.sequences; i++) {
      assert_true(oracle_get(&x->call.o, b, 0, i, 0) == 0);
      assert_true(oracle_get(&p->lse, b, 0, i, 0) == -(double)INFINITY);
    }
    if (!bits) continue;
    kept_call again = d;
    again.call = test_again(&d.call);
    test_run(&again.call);
    test_assert_same_outputs(&d.call, &again.call, text);
  }
}

static void run_cached(cached *x, const char *what, int bits) {
  attn_ctx ctx = test_ctx();
  attn_status status = attend(x, &ctx);
  if (status != ATTN_OK) {
    fail_msg("%s: %s: %s", what, attn_status_string(status), ctx.reason ? ctx.reason : "(null)");
  }
  assert_null(ctx.reason);
  if (x->call.o.len && x->call.o.batch) assert_int_equal(ctx.report.isa, test_isa);
  judge(x, what, bits);
}

/* Cached calls decide by the longest sequence or the padded shape which order they use; with one
 * query each it is the order of the dense call. */
static void check_cached(int ragged, uint64_t seed, int64_t count) {
  for (int64_t n = 0; n < count; n++) {
    test_rng rng = test_seed(seed * 1000 + (uint64_t)n);
    pages_spec z = pages_some(&rng);
    cached x = make(&z, ragged, &rng);
    attn_sdpa_params *p = &x.call.params;
    add_common(p, x.call.q.heads, 150, 0, &rng);
    if (z.window) test_left(p, -1), p->keep = 0, p->causal = n & 1;
    p->one_order = n % 3 == 0;
    char text[96];
    snprintf(text, sizeof text, "cached, case %d: pages of %d, %s%s", (int)n, (int)z.page,
             z.window ? "ring" : "whole", z.latent ? ", latent" : "");
    run_cached(&x, text, p->one_order);
    test_mem_release();
  }
}

void A1_cached_padded(void **state) {
  (void)state;
  check_cached(0, 910, test_count(60, 14));
}

void A1_cached_ragged(void **state) {
  (void)state;
  check_cached(1, 911, test_count(60, 14));
}

/* One token each: the bits of attn_sdpa on the same rows in one piece. */
void A1_cached_decode_bits(void **state) {
  (void)state;
  for (int64_t n = 0; n < test_count(36, 12); n++) {
    test_rng rng = test_seed(912000 + (uint64_t)n);
    pages_spec z = pages_some(&rng);
    z.queries = 1;
    z.most = n % 6 ? 200 : 2600;
    cached x = make(&z, 0, &rng);
    attn_sdpa_params *p = &x.call.params;
    add_common(p, x.call.q.heads, 150, 0, &rng);
    if (z.window) test_left(p, -1), p->keep = 0;
    char text[96];
    snprintf(text, sizeof text, "cached, one token, case %d", (int)n);
    run_cached(&x, text, 1);
    test_mem_release();
  }
}

/* A sequence has another batch index when it is alone. */
static void weights_of_any(void *user, const attn_score_tile *tile) {
  attn_score_tile same = *tile;
  same.batch = 0;
  test_modify_weights(user, &same);
}

/* Terms by distance, a bias by key, and the caller's change of weights see tokens, not rows of pages. */
void A1_cached_terms(void **state) {
  (void)state;
  for (int64_t n = 0; n < test_count(40, 10); n++) {
    test_rng rng = test_seed(913000 + (uint64_t)n);
    pages_spec z = pages_some(&rng);
    if (n & 1) z.queries = 1;
    cached x = make(&z, 0, &rng);
    attn_sdpa_params *p = &x.call.params;
    add_common(p, x.call.q.heads, 150, 0, &rng);
    if (z.window) test_left(p, -1), p->keep = 0, p->causal = 1;
    int terms = TERM_FACTOR | TERM_TOEPLITZ | TERM_T5 | TERM_PARABOLA;
    x.call.k.len = x.c.longest;
    test_add_terms(&x.call, (int)test_u64(&rng) & terms, &rng);
    if (n % 3 == 0) {
      p->bias = test_mask(ATTN_MASK_ADD, ATTN_F32, z.n, x.call.q.heads, 1, x.c.longest, &rng);
    }
    test_term_user user = {0, 0, 77, 0};
    if (n % 4 > 1) p->modify_weights = weights_of_any, p->modify_weights_user = &user;
    char text[96];
    snprintf(text, sizeof text, "cached with terms, case %d", (int)n);
    run_cached(&x, text, n & 1);
    test_mem_release();
  }
}

/* Workers, the other vector tier, and a workspace of the size asked for. */
void A1_cached_promises(void **state) {
  (void)state;
  for (int64_t n = 0; n < test_count(24, 8); n++) {
    test_rng rng = test_seed(914000 + (uint64_t)n);
    pages_spec z = pages_some(&rng);
    if (n % 4 == 0) z.most = 3000, z.queries = 1;
    cached x = make(&z, n & 1, &rng), y;
    run_cached(&x, "promises", 0);
    y = x;
    y.call = test_again(&x.call);
    for (int workers = 1; workers <= 7; workers += 3) {
      attn_ctx ctx = test_ctx();
      ctx.workers = workers;
      ctx.parallel_for = workers == 4 ? test_parallel_threads : test_parallel_backward;
      size_t size = attn_cache_sdpa_workspace(y.call.o, y.call.q, &y.c.cache, y.c.seq, y.c.n,
                                              &y.call.params, &ctx);
      unsigned char *memory = test_mem(size + 64 + (size_t)n);
      ctx.workspace = memory + n;
      ctx.workspace_size = size;
      test_malloc_fails = 1;
      attn_status status = attend(&y, &ctx);
      test_malloc_fails = 0;
      if (status != ATTN_OK) fail_msg("case %d: %s", (int)n, ctx.reason);
      for (int k = 0; k < 64; k++) assert_int_equal(memory[(size_t)n + size + (size_t)k], 0xA5);
      if (!x.call.o.len) continue;
      if (size) {
        ctx.workspace_size = size - 1;
        assert_int_equal(attend(&y, &ctx), ATTN_E_WORKSPACE);
      }
      if (!x.call.params.q_len) test_assert_same_outputs(&x.call, &y.call, "cached, workers");
    }
    if (test_isa == ATTN_ISA_AVX512 && !x.call.params.q_len) {
      attn_ctx ctx = test_ctx();
      ctx.isa = ATTN_ISA_AVX2;
      assert_int_equal(attend(&y, &ctx), ATTN_OK);
      test_assert_same_outputs(&x.call, &y.call, "avx2 and avx512");
    }
    test_mem_release();
  }
}

/* Pages, tables and queries lie against unreadable memory. */
void A1_cached_guard_pages(void **state) {
  (void)state;
  for (int64_t n = 0; n < test_count(48, 12); n++) {
    test_rng rng = test_seed(915000 + (uint64_t)n);
    pages_spec z = pages_some(&rng);
    if (z.most > 200) z.most = 200;
    test_where = n & 1 ? TEST_AFTER_GUARD : TEST_BEFORE_GUARD;
    cached x = make(&z, n & 2, &rng);
    test_where = TEST_HEAP;
    run_cached(&x, "cached, guard pages", 0);
    test_mem_release();
  }
}
