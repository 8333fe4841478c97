/* tests/families/latent/test_mla_layer.c owns M5, the layer of multi-head latent attention: both forms against the formula,
 * caches, sequences of unequal length, and what it promises. */

#include <stdio.h>

#include "latent.h"

static int64_t *same(int64_t n, int64_t rows) {
  int64_t *x = test_mem((size_t)n * sizeof *x);
  for (int64_t b = 0; b < n; b++) x[b] = rows;
  return x;
}

/* Without a cache: widths, types, layouts, norms, rotations, windows. */
void M5_mla_rows(void **state) {
  (void)state;
  for (int n = 0; n < 16; n++, test_mem_release()) {
    test_rng rng = test_seed(5000 + (uint64_t)n);
    latent_shape s = latent_plain(1 + n % 3, n % 4 == 3 ? 9 : 1 + n % 4);
    const double loose = n % 5 == 4 ? 3e-5 : 2e-5;
    char text[48];
    s.dm = test_range(&rng, 3, 40), s.dq = n % 3 ? test_range(&rng, 1, 20) : 0;
    s.dc = test_range(&rng, 1, 40), s.dr = 2 * test_range(&rng, n % 7 == 6 ? 0 : 1, 5);
    if (n % 7 == 6) s.dr = 0;
    s.dn = test_range(&rng, 1, 17), s.dv = test_range(&rng, 1, 17), s.dmo = test_range(&rng, 1, 30);
    s.transposed = n & 1, s.gains = n & 2;
    s.x_type = (attn_dtype)(n % 3), s.w_type = (attn_dtype)(n / 3 % 3);
    s.y_type = n % 5 == 4 ? ATTN_F16 : ATTN_F32;
    latent *z = latent_build(&s, &rng);
    if (n % 4 == 1) z->p.rope = &z->rope, z->rope.start = 1000, z->rope.base = 500;
    if (n % 4 == 2) z->p.rope = &z->rope, z->rope.layout = ATTN_ROPE_HALF, z->rope.start = -9;
    if (n % 6 == 3) z->p.bidirectional = 1;
    if (n % 6 == 5) z->p.window = attn_window_of(3, n & 1 ? -1 : 2), z->p.bidirectional = 1;
    if (n % 6 == 4) z->p.window = attn_window_of(4, -1), z->p.scale = 0.7f, z->p.eps = 0.5f;
    if (n == 12) z->p.scale = ATTN_ZERO;
    if (n % 5 == 2) z->p.eps = ATTN_ZERO;
    static const int64_t lens[] = {1, 7, 23, 66};
    latent_tokens(z, same(s.batch, lens[n % 4]), 0, 0, &rng);
    if (n % 5 == 2 && z->x.len > 4) test_fill_row(z->x, 0, 0, 4, 0);
    for (int64_t c = 0; n == 7 && c < s.dm; c++) /* far below what eps would be */
      oracle_set(&z->x, 0, 0, 2, c, 1e-9 * oracle_get(&z->x, 0, 0, 2, c));
    snprintf(text, sizeof text, "latent layer, case %d", n);
    latent_check_forms(z, loose, text);
  }
}

/* Pages: prefill, several tokens, one token, sequences of unequal length. */
void M5_mla_cache(void **state) {
  (void)state;
  static const double loose[] = {2e-5, 2e-3, 1.5e-2};
  for (int n = 0; n < 9; n++, test_mem_release()) {
    test_rng rng = test_seed(5100 + (uint64_t)n);
    static const int64_t pages[] = {200, 1, 16};
    latent_shape s = latent_plain(1 + n % 3, n % 3 ? 3 : n == 6 ? 14 : 10);
    s.page = pages[n / 3], s.pages = s.page == 200 ? 4 : s.page == 1 ? 300 : 40;
    s.cache_type = (attn_dtype)(n % 3), s.transposed = n & 1, s.dq = n & 2 ? 11 : 0;
    latent *z = latent_build(&s, &rng);
    if (n & 1) z->p.rope = &z->rope, z->rope.start = 40;
    for (int c = 0; c < 4; c++) {
      static const int64_t lens[] = {19, 3, 1, 33};
      const int ragged = (n + c) % 4 == 3;
      int64_t *rows = same(s.batch, c == 0 && n == 4 ? 67 : lens[c]);
      for (int64_t b = 0; b < s.batch && ragged; b++) rows[b] = test_range(&rng, 0, lens[c]);
      char text[48];
      snprintf(text, sizeof text, "cached case %d, call %d", n, c);
      latent_tokens(z, rows, ragged, ragged ? 2 : 0, &rng);
      latent_check_forms(z, loose[n % 3], text);
    }
  }
}

/* Keys beyond 64, 128 and 1024, groups of heads, and what AUTO chooses. */
void M5_mla_long(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++, test_mem_release()) {
    test_rng rng = test_seed(5200 + (uint64_t)n);
    latent_shape s = latent_plain(1, n == 3 ? 17 : n == 2 ? 70 : 2);
    s.dm = 6, s.dq = 0, s.dc = 8, s.dr = 2, s.dn = 3, s.dv = 2, s.dmo = 3, s.page = 64,
    s.pages = 20;
    latent *z = latent_build(&s, &rng);
    const int64_t past = n == 1 ? (test_fast ? 300 : 1100) : 130;
    for (int c = 0; c < 3; c++) {
      latent_tokens(z, same(1, c == 0 ? past : c == 1 ? 1 : n == 3 ? 65 : 5), 0, 0, &rng);
      if (c == 0 && n == 1) { /* the formula is slow */
        promise_run(&z->does);
        for (int form = 1; form < ATTN_MLA_FORMS; form++) {
          z->p.form = (attn_mla_form)form;
          attn_tensor y = z->y;
          promise_run(&z->does);
          (void)y;
        }
        z->p.form = ATTN_MLA_AUTO;
        const int64_t dm = s.dm;
        z->past[0] = cube_of(1, 1, past, dm);
        for (int64_t i = 0; i < past * dm; i++)
          z->past[0].data[i] = oracle_get(&z->x, 0, 0, i / dm, i % dm);
        latent_remember(z);
        continue;
      }
      latent_check_forms(z, 2e-5, "long");
    }
  }
  test_rng rng = test_seed(5210);
  latent_shape s = latent_plain(1, 4);
  s.dc = 64, s.dr = 8, s.dn = s.dv = 16, s.page = 512, s.pages = 1;
  latent *z = latent_build(&s, &rng);
  attn_ctx ctx = test_ctx();
  for (int c = 0; c < 2; c++) { /* a prompt is expanded, a token absorbed */
    latent_tokens(z, same(1, c ? 1 : 200), 0, 0, &rng);
    assert_int_equal(attn_mla(z->y, z->x, &z->p, &ctx), ATTN_OK);
    assert_true(strstr(ctx.report.path, c ? "absorbed" : "expanded") != NULL);
    assert_int_equal(ctx.report.isa, test_isa);
  }
}

/* One token at a time is the whole, whatever the form and the pages. */
void M5_mla_token_by_token(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++, test_mem_release()) {
    test_rng rng = test_seed(5300 + (uint64_t)n);
    latent_shape s = latent_plain(1, n & 1 ? 20 : 3);
    s.page = n & 1 ? 7 : 64, s.pages = 80 / s.page + 1, s.cache_type = n < 2 ? ATTN_F32 : ATTN_BF16;
    latent *z = latent_build(&s, &rng);
    const int64_t len = 70;
    latent_tokens(z, same(1, len), 0, 0, &rng);
    z->p.form = n & 1 ? ATTN_MLA_EXPANDED : ATTN_MLA_AUTO;
    promise_run(&z->does);
    const attn_tensor x = z->x, y = z->y, lse = z->p.lse;
    attn_tensor all = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, len, s.dmo);
    attn_ctx ctx = test_ctx();
    memset(&z->p.lse, 0, sizeof z->p.lse);
    z->p.form = n == 1 ? ATTN_MLA_EXPANDED : ATTN_MLA_AUTO;
    assert_int_equal(attn_cache_release(&z->cache, &z->held[0], NULL), ATTN_OK);
    for (int64_t i = 0; i < len; i++)
      assert_int_equal(attn_mla(test_rows(all, i, 1), test_rows(x, i, 1), &z->p, &ctx), ATTN_OK);
    z->p.lse = lse;
    test_assert_near(all, y, 2e-5, "token by token");
  }
}

/* In a ring the window of the cache holds. */
void M5_mla_ring(void **state) {
  (void)state;
  test_rng rng = test_seed(5400);
  latent_shape s = latent_plain(1, 3);
  s.page = 5, s.pages = 6; /* 30 rows */
  latent *z = latent_build(&s, &rng);
  z->cache.window = 12;
  z->p.window = attn_window_of(11, -1); /* for the formula */
  for (int c = 0; c < 7; c++) {
    latent_tokens(z, same(1, c % 3 == 2 ? 1 : 15), 0, 0, &rng);
    attn_window w = z->p.window;
    memset(&z->p.window, 0, sizeof w);
    promise_run(&z->does);
    z->p.window = w;
    attn_tensor y = z->y, lse = z->p.lse;
    latent_shape plain = s;
    plain.page = 0;
    cube past = z->past[0];
    latent one = *z; /* the whole sequence without a cache */
    one.shape = plain, one.p.cache = NULL, one.p.held = NULL, one.does.scene = &one;
    one.does.out[0] = &one.y, one.does.out[1] = &one.p.lse;
    one.x = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, past.len + z->x.len, s.dm);
    for (int64_t i = 0; i < one.x.len; i++)
      for (int64_t k = 0; k < s.dm; k++)
        oracle_set(
            &one.x, 0, 0, i, k,
            i < past.len ? cube_at(&past, 0, 0, i)[k] : oracle_get(&z->x, 0, 0, i - past.len, k));
    one.y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, one.x.len, s.dmo);
    one.p.lse = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, one.x.len, 1);
    promise_run(&one.does);
    test_assert_near(y, test_rows(one.y, past.len, y.len), 2e-5, "ring");
    test_assert_near(lse, test_rows(one.p.lse, past.len, y.len), 2e-5, "ring's lse");
    z->past[0] = cube_from(&one.x);
    latent_remember(z);
  }
}

/* YaRN: frequencies, the factor of the rotated part, and that of all scores; the factor as a number, or by the lengths
 * of the contexts. */
void M5_mla_yarn(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++, test_mem_release()) {
    test_rng rng = test_seed(5500 + (uint64_t)n);
    latent_shape s = latent_plain(1, 2);
    s.dr = 16;
    latent *z = latent_build(&s, &rng);
    z->p.rope = &z->rope;
    z->rope.type = ATTN_ROPE_YARN, z->rope.factor = 40, z->rope.start = n * 5000;
    z->rope.original_max_position_embeddings = 4096;
    z->rope.mscale = n & 1 ? 1 : 0.707, z->rope.mscale_all_dim = n == 3 ? 0 : n & 1 ? 1 : 0.707;
    if (n > 3) z->rope.factor = 0, z->rope.max_position_embeddings = n == 7 ? 65536 : 163840;
    latent_tokens(z, same(1, 21), 0, 0, &rng);
    latent_check_forms(z, 2e-5, "yarn");
  }
  for (int n = 0; n < 2; n++, test_mem_release()) { /* the scale as a number */
    test_rng rng = test_seed(5510);
    latent_shape s = latent_plain(1, 2);
    latent *z = latent_build(&s, &rng);
    z->p.rope = &z->rope, z->rope.type = ATTN_ROPE_YARN, z->rope.factor = n ? 0 : 40;
    z->rope.max_position_embeddings = n ? 163840 : 0;
    z->rope.original_max_position_embeddings = 4096, z->rope.mscale = z->rope.mscale_all_dim = 1;
    latent_tokens(z, same(1, 9), 0, 0, &rng);
    promise_run(&z->does);
    const attn_tensor y = z->y;
    const double ms = attn_rope_mscale(40, 1);
    z->y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 9, s.dmo);
    z->p.scale = (float)(ms * ms / sqrt((double)(s.dn + s.dr)));
    promise_run(&z->does);
    test_assert_same(test_rows(z->y, 0, 9), test_rows(y, 0, 9), "scale");
  }
}

/* Positions of every row are those given. */
void M5_mla_positions(void **state) {
  (void)state;
  test_rng rng = test_seed(5520);
  latent_shape s = latent_plain(2, 3);
  latent *z = latent_build(&s, &rng);
  int64_t at[2 * 12];
  z->p.rope = &z->rope, z->rope.start = 77;
  latent_tokens(z, same(2, 12), 0, 0, &rng);
  promise_run(&z->does);
  const attn_tensor y = z->y, lse = z->p.lse;
  z->y = test_tensor(ATTN_F32, TEST_BHTD, 2, 1, 12, s.dmo);
  z->p.lse = test_tensor(ATTN_F32, TEST_BHTD, 2, 3, 12, 1);
  for (int i = 0; i < 24; i++) at[i] = 77 + i % 12;
  for (int each = 0; each < 2; each++) {
    z->rope.start = 0, z->rope.positions = at, z->rope.positions_per_batch = each;
    promise_run(&z->does);
    for (int b = 0; b < 2; b++) {
      test_assert_same(test_one(z->y, b, 1, 0, 1), test_one(y, b, 1, 0, 1), "positions");
      test_assert_same(test_one(z->p.lse, b, 1, 0, 3), test_one(lse, b, 1, 0, 3), "positions");
    }
    for (int i = 12; i < 24; i++) at[i] += each ? 0 : 5000, at[i] -= each ? 0 : 5000;
  }
}

/* Any workers, memory as asked for; both forms, with pages and without. */
void M5_mla_promises(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++, test_mem_release()) {
    test_rng rng = test_seed(5600 + (uint64_t)n);
    latent_shape s = latent_plain(n == 2 ? 1 : 2, n & 1 ? 10 : 2);
    if (n >= 2) s.page = 8, s.pages = 40;
    latent *z = latent_build(&s, &rng);
    z->p.form = n & 1 ? ATTN_MLA_EXPANDED : ATTN_MLA_ABSORBED;
    int64_t *rows = same(2, n == 5 ? 1 : n == 2 ? 66 : 30);
    if (n == 4) rows[0] = 3;
    latent_tokens(z, rows, n == 4, 1, &rng);
    promise_run(&z->does);
    promise_keep(&z->does);
  }
}

/* Nothing to do, and a NaN that reaches what sees it. */
void M5_mla_edges(void **state) {
  (void)state;
  test_rng rng = test_seed(5700);
  latent_shape s = latent_plain(2, 2);
  s.page = 4, s.pages = 30;
  latent *z = latent_build(&s, &rng);
  attn_ctx ctx = test_ctx();
  latent_tokens(z, same(2, 0), 0, 0, &rng);
  z->y.len = z->x.len = z->p.lse.len = 0;
  assert_int_equal(attn_mla(z->y, z->x, &z->p, &ctx), ATTN_OK);
  assert_int_equal(attn_mla_workspace(z->y, z->x, &z->p, &ctx), 0);
  assert_int_equal(z->held[0].len, 0);
  for (int form = 1; form < ATTN_MLA_FORMS; form++) {
    const attn_tensor was = drawn(ATTN_F32, TEST_BHTD, 2, 1, 9, s.dm, 1, &rng);
    z->p.form = (attn_mla_form)form;
    latent_tokens(z, same(2, 9), 0, 0, &rng);
    test_copy(z->x, was);
    test_fill_row(z->x, 1, 0, 5, (double)NAN);
    promise_run(&z->does);
    for (int b = 0; b < 2; b++)
      for (int i = 0; i < 9; i++)
        for (int64_t c = 0; c < s.dmo; c++)
          assert_int_equal(isnan(oracle_get(&z->y, b, 0, i, c)) != 0, b == 1 && i >= 5);
    for (int b = 0; b < 2; b++)
      assert_int_equal(attn_cache_release(&z->cache, &z->held[b], NULL), ATTN_OK);
    latent_remember(z);
  }
}

void M5_mla_rejects(void **state) {
  (void)state;
  static const char *const kept = "cache and sequences";
  for (int n = 0; n < 39; n++, test_mem_release()) {
    test_rng rng = test_seed(5800);
    const attn_qk_norm norm = {0};
    latent_shape s = latent_plain(2, 3);
    const int cached = n >= 20;
    if (cached) s.page = 4, s.pages = 10;
    latent *z = latent_build(&s, &rng);
    attn_mla_params *p = &z->p;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    int64_t indptr[3] = {0, 4, 9};
    latent_tokens(z, same(2, 5), 0, 0, &rng);
    promise_run(&z->does);
    latent_tokens(z, same(2, 5), 0, 0, &rng);
    p->rope = &z->rope;
    switch (n) {
      case 0: p->heads = -1, word = "heads"; break;
      case 1: p->heads = 2, want = ATTN_E_HEADS, word = "heads"; break;
      case 2: p->rope_dim = 11, word = "rope_dim"; break;
      case 3: p->rope_dim = -1, word = "rope_dim"; break;
      case 4: p->w_uq.data = NULL, p->w_uq.dim = 0, want = ATTN_E_NULL, word = "w_uq"; break;
      case 5: p->w_dq.dim--, word = "w_uq"; break;
      case 6: p->w_ukv.len--, word = "w_ukv"; break;
      case 7: p->w_o.len--, word = "w_o"; break;
      case 8: p->w_dkv.len--, word = "w_dkv"; break;
      case 9: p->w_dq.data = NULL, p->q_gain = NULL, want = ATTN_E_NULL, word = "w_dq"; break;
      case 10: z->x.heads = 2, word = "one head"; break;
      case 11: p->eps = -1, want = ATTN_E_VALUE, word = "eps"; break;
      case 12: p->scale = INFINITY, want = ATTN_E_VALUE, word = "scale"; break;
      case 13: p->form = ATTN_MLA_FORMS, want = ATTN_E_RANGE, word = "form"; break;
      case 14: p->window.left = 3, want = ATTN_E_RANGE, word = "window"; break;
      case 15: p->sequences = 2, want = ATTN_E_RANGE, word = "sequences"; break;
      case 16: p->indptr = indptr, p->sequences = 2, word = "batch"; break;
      case 17: z->rope.rotary_dim = 8, want = ATTN_E_RANGE, word = "rotary_dim"; break;
      case 38: z->rope.norm = &norm, want = ATTN_E_RANGE, word = "norm"; break;
      case 18: z->rope.type = ATTN_ROPE_YARN, want = ATTN_E_VALUE, word = "original"; break;
      case 19: p->held = z->held, want = ATTN_E_NULL, word = "go together"; break;
      case 20: p->held = NULL, want = ATTN_E_NULL, word = "go together"; break;
      case 21: z->was.v.dim--, word = "latent"; break;
      case 22: z->was.k.dim--, word = "cache.k"; break;
      case 23: z->was.k.heads = 2, word = "cache.k"; break;
      case 24: z->was.k.dtype = ATTN_I8, want = ATTN_E_DTYPE, word = "cache.k"; break;
      case 25:
        z->was.window = 4, p->form = ATTN_MLA_EXPANDED, want = ATTN_E_RANGE, word = "window";
        break;
      case 26: z->was.window = 4, p->bidirectional = 1, want = ATTN_E_RANGE, word = "window"; break;
      case 27:
        z->was.window = 4, p->window = attn_window_of(2, -1), want = ATTN_E_RANGE, word = "window";
        break;
      case 28: z->had[1].table_len = 2, want = ATTN_E_FULL, word = "room"; break;
      case 29:
        for (int b = 0; b < 10; b++)
          ((int32_t *)(void *)(z->image + ((unsigned char *)z->cache.holders - z->memory)))[b] +=
              b >= 4;
        want = ATTN_E_FULL, word = "free";
        break;
      case 30: z->had[1].len = 50, z->had[1].high = 50, want = ATTN_E_RANGE, word = "len"; break;
      case 31:
        z->table_was[0] = 99, z->had[0].len = z->had[0].high = 5, want = ATTN_E_PAGE, word = "page";
        break;
      case 32: z->had[1].table = z->had[0].table, want = ATTN_E_PAGE, word = "share"; break;
      case 33:
        z->x.data = z->memory, z->x.stride_len = z->x.stride_batch = 0, want = ATTN_E_OVERLAP,
        word = "cache.k";
        break;
      case 34:
        p->kv_gain = (const float *)(const void *)z->tables, want = ATTN_E_OVERLAP, word = "tables";
        break;
      case 35:
        p->q_gain = (const float *)(const void *)z->memory, want = ATTN_E_OVERLAP, word = "cache.k";
        break;
      case 36:
        p->q_gain = (const float *)(const void *)z->cache.holders, want = ATTN_E_OVERLAP,
        word = "cache";
        break;
      default:
        z->rope.cos = drawn(ATTN_F32, TEST_BHTD, 1, 1, 9, 3, 1, &rng), z->rope.sin = z->rope.cos,
        want = ATTN_E_RANGE, word = "positions";
        break;
    }
    promise_reject(&z->does, want, word);
    if (cached && n != 29 && memcmp(z->memory, z->image, z->size))
      fail_msg("%s changed, case %d", kept, n);
    if (cached && memcmp(z->held, z->had, sizeof z->had)) fail_msg("%s changed, case %d", kept, n);
  }
}
