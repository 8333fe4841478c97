/* tests/families/latent/test_tpa.c owns M5, tensor product attention: against attention on heads made in float64, over a
 * cache of factors, and what it becomes where ranks are 1. */

#include <stdio.h>

#include "latent.h"

typedef struct tpa {
  int64_t batch, heads, dk, dv, rank[3];
  attn_factors x[3];
  attn_tensor o;
  attn_tpa_params p;
  attn_rope_params rope;
  attn_cache cache, was;
  attn_sequence held[LATENT_SEQUENCES], had[LATENT_SEQUENCES];
  int32_t *tables, *table_was;
  unsigned char *memory, *image;
  size_t size;
  int64_t pages;
  cube past[LATENT_SEQUENCES][2]; /* k and v of all heads, as the cache has them */
  promise does;
} tpa;

static void as_it_was(tpa *z) {
  if (!z->pages) return;
  memcpy(z->memory, z->image, z->size);
  z->cache = z->was;
  memcpy(z->held, z->had, sizeof z->held);
  memcpy(z->tables, z->table_was, (size_t)(LATENT_SEQUENCES * z->pages) * sizeof *z->tables);
}
static void remember(tpa *z) {
  if (!z->pages) return;
  memcpy(z->image, z->memory, z->size);
  z->was = z->cache;
  memcpy(z->had, z->held, sizeof z->had);
  memcpy(z->table_was, z->tables, (size_t)(LATENT_SEQUENCES * z->pages) * sizeof *z->tables);
}
static attn_status call(void *at, attn_ctx *ctx) {
  tpa *z = at;
  as_it_was(z);
  return attn_tpa(z->o, &z->x[0], &z->x[1], &z->x[2], &z->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  tpa *z = at;
  as_it_was(z);
  return attn_tpa_workspace(z->o, &z->x[0], &z->x[1], &z->x[2], &z->p, ctx);
}

static tpa *roomy(int64_t batch, int64_t heads, int64_t page, attn_dtype type, int64_t room) {
  tpa *z = test_mem(sizeof *z);
  memset(z, 0, sizeof *z);
  z->batch = batch, z->heads = heads, z->dk = 6, z->dv = 5;
  z->rank[0] = 6, z->rank[1] = 2, z->rank[2] = 3;
  z->pages = page ? room / page + 1 : 0;
  if (page) {
    const attn_cache_params c = {.k_dtype = type,
                                 .v_dtype = type,
                                 .k_heads = 1,
                                 .dk = z->rank[1] * (heads + z->dk),
                                 .dv = z->rank[2] * (heads + z->dv),
                                 .pages = z->pages * batch,
                                 .page = page};
    z->size = attn_cache_size(&c), z->memory = test_mem(z->size), z->image = test_mem(z->size);
    memset(z->memory, 0xFF, z->size);
    assert_int_equal(attn_cache_open(&z->cache, z->memory, z->size, &c, NULL), ATTN_OK);
    const size_t tables = (size_t)(LATENT_SEQUENCES * z->pages) * sizeof *z->tables;
    z->tables = test_mem(tables), z->table_was = test_mem(tables);
    for (int64_t b = 0; b < LATENT_SEQUENCES; b++)
      attn_sequence_init(&z->held[b], z->tables + b * z->pages, z->pages, NULL);
    z->p.cache = &z->cache, z->p.held = z->held;
  }
  z->does.call = call, z->does.ask = ask, z->does.scene = z;
  z->does.out[0] = &z->o, z->does.out[1] = &z->p.lse;
  remember(z);
  return z;
}

static tpa *plain(int64_t batch, int64_t heads, int64_t page, attn_dtype type) {
  return roomy(batch, heads, page, type, 120);
}

/* The factors of a call. */
static void tokens(tpa *z, const int64_t *rows, int ragged, int64_t extra, attn_dtype type,
                   test_rng *rng) {
  const test_layout layout = (test_layout)(test_u64(rng) % TEST_SHARED);
  int64_t all = extra, *indptr = test_mem((size_t)(z->batch + 1) * sizeof *indptr);
  indptr[0] = 0;
  for (int64_t b = 0; b < z->batch; b++) indptr[b + 1] = indptr[b] + rows[b], all += rows[b];
  const int64_t batch = ragged ? 1 : z->batch, len = ragged ? all : rows[0];
  z->p.indptr = ragged ? indptr : NULL, z->p.sequences = ragged ? z->batch : 0;
  for (int i = 0; i < 3; i++) {
    z->x[i].a = drawn(type, TEST_BTHD, batch, z->rank[i], len, z->heads, 1, rng);
    z->x[i].b = drawn(type, layout, batch, z->rank[i], len, i < 2 ? z->dk : z->dv, 1.5, rng);
  }
  z->o = output(ATTN_F32, layout, batch, z->heads, len, z->dv, &z->does.block[0]);
  z->p.lse = output(ATTN_F32, TEST_BHTD, batch, z->heads, len, 1, &z->does.block[1]);
  remember(z);
}

/* A number as a row of the cache holds it. */
static double stored(const tpa *z, int kept, double x) {
  if (!kept || !z->pages) return x;
  if (z->cache.k.dtype == ATTN_F32) return (double)(float)x;
  attn_tensor one = test_tensor(z->cache.k.dtype, TEST_BHTD, 1, 1, 1, 1);
  oracle_set(&one, 0, 0, 0, 0, x);
  return oracle_get(&one, 0, 0, 0, 0);
}

/* Head h of row i of entry b, at a position; which: 0 q, 1 k, 2 v. */
static void head(const tpa *z, double *y, int which, int64_t b, int64_t h, int64_t i,
                 double position) {
  const attn_factors *x = &z->x[which];
  const int64_t d = x->b.dim, rank = z->rank[which];
  double *row = test_mem((size_t)d * sizeof *row), *f = test_mem((size_t)d * sizeof *f);
  for (int64_t c = 0; c < d; c++) y[c] = 0;
  for (int64_t r = 0; r < rank; r++) {
    for (int64_t c = 0; c < d; c++) row[c] = oracle_get(&x->b, b, r, i, c);
    if (z->p.rope && which < 2) {
      assert_int_equal(attn_rope_frequencies(f, NULL, z->p.rope, d), ATTN_OK);
      for (int64_t m = 0; m < d / 2; m++) {
        const double u = row[2 * m], v = row[2 * m + 1], phi = position * f[m];
        row[2 * m] = u * cos(phi) - v * sin(phi), row[2 * m + 1] = u * sin(phi) + v * cos(phi);
      }
    }
    for (int64_t c = 0; c < d; c++)
      y[c] +=
          stored(z, which, oracle_get(&x->a, b, r, i, h)) * stored(z, which, row[c]) / (double)rank;
  }
}

/* Runs it against the heads, and takes them into the past. */
static void check(tpa *z, double tolerance, const char *what) {
  promise_run(&z->does);
  for (int64_t b = 0; b < z->batch; b++) {
    const int64_t i0 = z->p.indptr ? z->p.indptr[b] : 0, entry = z->p.indptr ? 0 : b;
    const int64_t fresh = z->p.indptr ? z->p.indptr[b + 1] - i0 : z->o.len;
    const int64_t old = z->pages ? z->had[b].len : 0, n = old + fresh;
    cube kv[2] = {cube_of(1, z->heads, n, z->dk), cube_of(1, z->heads, n, z->dv)};
    int64_t *keys = test_mem((size_t)(n + 1) * sizeof *keys);
    double *q = test_mem((size_t)z->dk * sizeof *q), *o = test_mem((size_t)z->dv * sizeof *o), lse;
    const double scale = scale_of(z->p.scale, z->dk);
    for (int w = 0; w < 2; w++)
      for (int64_t h = 0; h < z->heads; h++)
        for (int64_t j = 0; j < n; j++)
          if (j < old)
            memcpy(cube_at(&kv[w], 0, h, j), cube_at(&z->past[b][w], 0, h, j),
                   (size_t)kv[w].dim * sizeof(double));
          else
            head(z, cube_at(&kv[w], 0, h, j), 1 + w, entry, h, i0 + j - old,
                 (double)(z->rope.start + j));
    for (int64_t h = 0; h < z->heads; h++)
      for (int64_t i = 0; i < fresh; i++) {
        int64_t many = 0;
        for (int64_t j = 0; j < n; j++)
          if ((z->p.bidirectional || j <= old + i) &&
              (!z->p.window.on || j >= old + i - z->p.window.left))
            keys[many++] = j;
        head(z, q, 0, entry, h, i0 + i, (double)(z->rope.start + old + i));
        cube_row(o, &lse, q, &kv[0], &kv[1], 0, h, keys, many, scale);
        value_check(oracle_get(&z->p.lse, entry, h, i0 + i, 0), lse, tolerance, ATTN_F32, what, b,
                    h, i, -1);
        for (int64_t c = 0; c < z->dv; c++)
          value_check(oracle_get(&z->o, entry, h, i0 + i, c), o[c], tolerance, ATTN_F32, what, b, h,
                      i, c);
      }
    z->past[b][0] = kv[0], z->past[b][1] = kv[1];
    if (z->pages) assert_int_equal(z->held[b].len, n);
  }
  for (int64_t i = z->p.indptr ? z->p.indptr[z->batch] : z->o.len; i < z->o.len; i++)
    for (int64_t c = 0; c < z->dv; c++) assert_true(oracle_get(&z->o, 0, 0, i, c) == 0);
  remember(z);
}

static int64_t *same(int64_t rows) {
  int64_t *x = test_mem(LATENT_SEQUENCES * sizeof *x);
  for (int b = 0; b < LATENT_SEQUENCES; b++) x[b] = rows;
  return x;
}

void M5_tpa_rows(void **state) {
  (void)state;
  for (int n = 0; n < 12; n++, test_mem_release()) {
    test_rng rng = test_seed(5900 + (uint64_t)n);
    static const int64_t lens[] = {1, 9, 40, 131};
    tpa *z = plain(1 + n % 3, n % 4 == 2 ? 17 : 1 + n % 5, 0, ATTN_F32);
    for (int i = 0; i < 3; i++) z->rank[i] = test_range(&rng, 1, 7);
    z->dk = 2 * test_range(&rng, 1, 12), z->dv = test_range(&rng, 1, 20);
    if (n & 1) z->p.rope = &z->rope, z->rope.start = 300 * n - 1000;
    if (n % 4 == 3) z->p.bidirectional = 1;
    if (n % 5 == 4) z->p.window = attn_window_of(5, -1), z->p.scale = 0.3f;
    tokens(z, same(lens[n % 4]), 0, 0, (attn_dtype)(n % 3), &rng);
    char text[40];
    snprintf(text, sizeof text, "factors, case %d", n);
    check(z, 2e-5, text);
  }
}

void M5_tpa_cache(void **state) {
  (void)state;
  static const double loose[] = {2e-5, 3e-3, 2.5e-2};
  for (int n = 0; n < 6; n++, test_mem_release()) {
    test_rng rng = test_seed(5950 + (uint64_t)n);
    static const int64_t pages[] = {120, 1, 16};
    tpa *z = plain(1 + n % 3, n % 2 ? 18 : 3, pages[n % 3], (attn_dtype)(n / 2));
    z->p.rope = &z->rope, z->rope.start = 11;
    for (int c = 0; c < 4; c++) {
      static const int64_t lens[] = {20, 1, 30, 2};
      const int ragged = (n + c) % 4 == 2;
      int64_t *rows = same(lens[c]);
      for (int64_t b = 0; b < z->batch && ragged; b++) rows[b] = test_range(&rng, 0, lens[c]);
      tokens(z, rows, ragged, ragged ? 2 : 0, ATTN_F32, &rng);
      char text[40];
      snprintf(text, sizeof text, "kept factors %d, call %d", n, c);
      check(z, loose[n / 2], text);
    }
  }
}

/* One token behind many: past the marks of blocks and splits, in pages that end within a block, heads of one tile and of
 * two; beside sequences that have more, or none. */
void M5_tpa_token(void **state) {
  (void)state;
  static const double loose[] = {2e-5, 3e-3, 2.5e-2};
  static const struct {
    int64_t heads, past, page, window;
  } at[] = {{2, 1030, 128, -1}, {17, 135, 50, -1},  {70, 20, 128, -1},
            {1, 300, 290, 70},  {16, 140, 150, 12}, {64, 20, 7, -1}};
  for (int n = 0; n < 6; n++, test_mem_release()) {
    test_rng rng = test_seed(5960 + (uint64_t)n);
    tpa *z = roomy(2, at[n].heads, at[n].page, (attn_dtype)(n % 3), at[n].past + 40);
    z->p.bidirectional = n == 1;
    if (at[n].window >= 0) z->p.window = attn_window_of(at[n].window, -1), z->p.scale = 0.2f;
    tokens(z, same(at[n].past), 0, 0, ATTN_F32, &rng);
    check(z, loose[n % 3], "before a token");
    for (int c = 0; c < 4; c++) {
      static const int64_t mixed[] = {1, 5, 0, 0}, some[] = {0, 1, 0, 0};
      const int ragged = c > 1;
      tokens(z, c == 2 ? mixed : c == 3 ? some : same(1), ragged, ragged, ATTN_F32, &rng);
      char text[40];
      snprintf(text, sizeof text, "a token, case %d, call %d", n, c);
      check(z, loose[n % 3], text);
      if (c == 1) promise_keep(&z->does), as_it_was(z);
    }
    for (int i = 0; n == 4 && i < 15; i++) { /* NaN of one head, until the window has passed */
      tokens(z, same(1), 0, 0, ATTN_F32, &rng);
      if (i == 0) oracle_set(&z->x[2].a, 0, 0, 0, 5, (double)NAN);
      promise_run(&z->does), remember(z);
      for (int64_t r = 0; r < 32; r++)
        assert_int_equal(isnan(oracle_get(&z->o, r / 16, r % 16, 0, 1)) != 0, r == 5 && i < 13);
    }
  }
}

/* Ranks of 1 with a of 1 are one head of keys and values for all; a token at a time is the whole. */
void M5_tpa_identities(void **state) {
  (void)state;
  test_rng rng = test_seed(5970);
  attn_ctx ctx = test_ctx();
  tpa *z = plain(2, 4, 0, ATTN_F32);
  z->rank[1] = z->rank[2] = 1, z->dk = 8, z->dv = 7;
  tokens(z, same(70), 0, 0, ATTN_F32, &rng);
  test_fill_value(z->x[1].a, 1), test_fill_value(z->x[2].a, 1);
  check(z, 2e-5, "one head");
  attn_tensor q = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, 70, 8);
  attn_tensor o = test_tensor(ATTN_F32, TEST_BHTD, 2, 4, 70, 7);
  double row[8];
  for (int64_t r = 0; r < 2 * 4 * 70; r++) {
    head(z, row, 0, r / 280, r / 70 % 4, r % 70, 0);
    for (int c = 0; c < 8; c++) oracle_set(&q, r / 280, r / 70 % 4, r % 70, c, row[c]);
  }
  attn_sdpa_params s;
  memset(&s, 0, sizeof s);
  s.causal = 1;
  assert_int_equal(attn_sdpa(o, q, z->x[1].b, z->x[2].b, &s, &ctx), ATTN_OK);
  test_assert_near(z->o, o, 1e-5, "multi-query attention");

  z = plain(1, 5, 8, ATTN_F32);
  z->p.rope = &z->rope;
  tokens(z, same(50), 0, 0, ATTN_F32, &rng);
  check(z, 2e-5, "at once");
  o = test_tensor(ATTN_F32, TEST_BHTD, 1, 5, 50, z->dv);
  attn_tpa_params p = z->p;
  memset(&p.lse, 0, sizeof p.lse);
  assert_int_equal(attn_cache_release(&z->cache, &z->held[0], NULL), ATTN_OK);
  for (int64_t i = 0; i < 50; i++) {
    attn_factors one[3];
    for (int w = 0; w < 3; w++)
      one[w].a = test_rows(z->x[w].a, i, 1), one[w].b = test_rows(z->x[w].b, i, 1);
    assert_int_equal(attn_tpa(test_rows(o, i, 1), &one[0], &one[1], &one[2], &p, &ctx), ATTN_OK);
  }
  test_assert_near(o, z->o, 2e-5, "token by token");
}

void M5_tpa_promises(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++, test_mem_release()) {
    test_rng rng = test_seed(5980 + (uint64_t)n);
    tpa *z = plain(2, n == 1 ? 18 : 3, n > 1 ? 16 : 0, ATTN_F16);
    z->p.rope = &z->rope;
    tokens(z, same(n == 2 ? 1 : 33), n == 3, 1, ATTN_F32, &rng);
    promise_run(&z->does);
    promise_keep(&z->does);
  }
}

/* A NaN in a token's factors reaches the rows that see it; nothing to do. */
void M5_tpa_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(5990);
  tpa *z = plain(2, 3, 4, ATTN_F32);
  attn_ctx ctx = test_ctx();
  for (int which = 0; which < 6; which++) {
    tokens(z, same(9), 0, 0, ATTN_F32, &rng);
    attn_tensor t = which % 2 ? z->x[which / 2].b : z->x[which / 2].a;
    test_fill_row(t, 1, 0, 4, (double)NAN);
    promise_run(&z->does);
    for (int b = 0; b < 2; b++)
      for (int i = 0; i < 9; i++)
        assert_int_equal(isnan(oracle_get(&z->o, b, 2, i, 0)) != 0,
                         b == 1 && (which < 2 ? i == 4 : i >= 4));
    for (int b = 0; b < 2; b++)
      assert_int_equal(attn_cache_release(&z->cache, &z->held[b], NULL), ATTN_OK);
  }
  tokens(z, same(0), 0, 0, ATTN_F32, &rng);
  assert_int_equal(attn_tpa(z->o, &z->x[0], &z->x[1], &z->x[2], &z->p, &ctx), ATTN_OK);
  assert_string_equal(ctx.report.path, "no-op");
}

void M5_tpa_rejects(void **state) {
  (void)state;
  for (int n = 0; n < 21; n++, test_mem_release()) {
    test_rng rng = test_seed(5995);
    const attn_qk_norm norm = {0};
    tpa *z = plain(2, 3, n >= 10 ? 4 : 0, ATTN_F32);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    tokens(z, same(5), 0, 0, ATTN_F32, &rng);
    promise_run(&z->does);
    z->p.rope = &z->rope;
    switch (n) {
      case 0: z->x[0].a.dim--, word = "a of"; break;
      case 1: z->x[1].b.heads--, word = "b of"; break;
      case 2: z->x[1].b.dim--, word = "b of"; break;
      case 3: z->x[2].b.dim++, word = "b of"; break;
      case 4: z->x[2].a.data = NULL, z->x[2].a.dim = 0, want = ATTN_E_NULL, word = "v.a"; break;
      case 5: z->p.scale = (float)NAN, want = ATTN_E_VALUE, word = "scale"; break;
      case 6: z->p.sequences = 1, want = ATTN_E_RANGE, word = "sequences"; break;
      case 7: z->rope.rotary_dim = 3, want = ATTN_E_RANGE, word = "rotary_dim"; break;
      case 8: z->x[1].a.heads = z->x[1].b.heads = 0, word = "rank"; break;
      case 9: z->p.held = z->held, want = ATTN_E_NULL, word = "together"; break;
      case 10: z->was.k.dim--, word = "cache.k"; break;
      case 11: z->was.v.dim--, word = "cache.v"; break;
      case 12: z->was.v.data = NULL, want = ATTN_E_NULL, word = "cache.v"; break;
      case 13: z->was.window = 5, want = ATTN_E_RANGE, word = "ring"; break;
      case 14: z->had[1].table_len = 1, want = ATTN_E_FULL, word = "room"; break;
      case 15:
        z->had[0].len = z->had[0].high = 3, z->table_was[0] = -4, want = ATTN_E_PAGE, word = "page";
        break;
      case 16:
        z->x[0].a.data = z->memory,
        z->x[0].a.stride_len = z->x[0].a.stride_head = z->x[0].a.stride_batch = 0,
        want = ATTN_E_OVERLAP, word = "cache.k";
        break;
      case 17: z->p.lse.data = z->o.data, want = ATTN_E_OVERLAP, word = "o "; break;
      case 20: z->rope.norm = &norm, want = ATTN_E_RANGE, word = "norm"; break;
      case 18: z->p.window.left = 3, want = ATTN_E_RANGE, word = "window"; break;
      default: z->was.k.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "cache.k"; break;
    }
    promise_reject(&z->does, want, word);
    if (z->pages && memcmp(z->memory, z->image, z->size))
      fail_msg("the cache has changed, case %d", n);
  }
}
