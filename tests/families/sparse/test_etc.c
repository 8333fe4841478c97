/* tests/families/sparse/test_etc.c owns Extended Transformer Construction: two sides, four pieces, masks, labels,
 * structured inputs. */

#include "compound.h"

typedef struct scene {
  attn_tensor o_long, o_global, q_long, q_global, k[4], v[4];
  attn_etc_params p;
  promise does;
} scene;

static attn_status call(void *at, attn_ctx *ctx) {
  scene *s = at;
  return attn_etc(s->o_long, s->o_global, s->q_long, s->q_global, s->k, s->v, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  scene *s = at;
  return attn_etc_workspace(s->o_long, s->o_global, s->q_long, s->q_global, s->k, s->v, &s->p, ctx);
}

enum { H = 2 };

static scene *build(int64_t batch, int64_t longs, int64_t globals, int64_t radius, int64_t dk,
                    int64_t dv, attn_dtype o_type, test_rng *rng) {
  scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  test_layout layout = (test_layout)test_range(rng, 0, 3);
  s->p.radius = radius;
  s->q_long = drawn(ATTN_F32, layout, batch, H, longs, dk, 1, rng);
  s->q_global = drawn(ATTN_F32, TEST_BTHD, batch, H, globals, dk, 1, rng);
  for (int n = 0; n < 4; n++) {
    int64_t rows = n == ATTN_ETC_L2G || n == ATTN_ETC_G2G ? globals : longs;
    s->k[n] = drawn((attn_dtype)(o_type * (n & 1)), layout, batch, n & 1 ? 1 : H, rows, dk, 1, rng);
    s->v[n] = drawn(ATTN_F32, TEST_BHTD, batch, n & 2 ? 1 : H, rows, dv, 1, rng);
  }
  s->o_long = output(o_type, layout, batch, H, longs, dv, &s->does.block[0]);
  s->o_global = output(o_type, TEST_BTHD, batch, H, globals, dv, &s->does.block[1]);
  s->p.lse_long = output(ATTN_F32, TEST_BHTD, batch, H, longs, 1, &s->does.block[2]);
  s->p.lse_global = output(ATTN_F32, TEST_PADDED, batch, H, globals, 1, &s->does.block[3]);
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  s->does.out[0] = &s->o_long, s->does.out[1] = &s->o_global;
  s->does.out[2] = &s->p.lse_long, s->does.out[3] = &s->p.lse_global;
  return s;
}

static int64_t columns_of(const scene *s, int piece) {
  return piece == ATTN_ETC_L2L   ? 2 * s->p.radius + 1
         : piece == ATTN_ETC_G2L ? s->q_long.len
                                 : s->q_global.len;
}

static void random_labels(scene *s, int64_t count, int64_t heads, test_rng *rng) {
  int64_t batch = s->p.labels_per_batch ? s->q_long.batch : 1;
  for (int n = 0; n < 4; n++) {
    int64_t rows = n < 2 ? s->q_long.len : s->q_global.len;
    int64_t cells = batch * rows * columns_of(s, n);
    int32_t *label = test_mem((size_t)cells * sizeof *label + 1);
    for (int64_t e = 0; e < cells; e++) label[e] = (int32_t)test_range(rng, 0, count - 1);
    s->p.label[n] = label;
  }
  s->p.table_long = drawn(ATTN_F32, TEST_BTHD, 1, heads, count, s->q_long.dim, 0.5, rng);
  s->p.table_global = drawn(ATTN_F32, TEST_BHTD, 1, 1, count, s->q_long.dim, 0.5, rng);
  s->p.bias_long = test_floats(count * H, 1, rng);
}

/* The label of a pair, straight from the specification; -1 = none. */
static int64_t label_of(const scene *s, int piece, int64_t b, int64_t i, int64_t j) {
  int64_t rows = piece < 2 ? s->q_long.len : s->q_global.len, m = s->p.clip;
  if (s->p.by_distance) {
    int64_t entry = s->p.labels_per_batch ? b * s->q_long.len : 0;
    if (piece == ATTN_ETC_L2G) return 2 * m + 1 + (s->p.sentence && s->p.sentence[entry + i] == j);
    if (piece == ATTN_ETC_G2L) return 2 * m + 1 + (s->p.sentence && s->p.sentence[entry + j] == i);
    int64_t d = j - i;
    return d >= 0 ? (d < m ? d : m) : m + (-d < m ? -d : m);
  }
  if (!s->p.label[piece]) return -1;
  int64_t c = piece == ATTN_ETC_L2L ? j - i + s->p.radius : j;
  int64_t row = (s->p.labels_per_batch ? b * rows : 0) + i;
  return s->p.label[piece][row * columns_of(s, piece) + c];
}

static void gather(bag *a, const scene *s, int piece, int64_t b, int64_t h, int64_t i) {
  const attn_tensor *q = piece < 2 ? &s->q_long : &s->q_global, *k = &s->k[piece];
  const attn_tensor *table = piece < 2 ? &s->p.table_long : &s->p.table_global;
  const float *bias = piece < 2 ? s->p.bias_long : s->p.bias_global;
  double scale = scale_of(s->p.scale, q->dim);
  for (int64_t j = 0; j < k->len; j++) {
    int64_t c = piece == ATTN_ETC_L2L ? j - i + s->p.radius : j;
    if (piece == ATTN_ETC_L2L && (j < i - s->p.radius || j > i + s->p.radius)) continue;
    if (s->p.mask[piece].kind && oracle_mask(&s->p.mask[piece], b, h, i, c) != 0) continue;
    double x = dot_rows(q, k, b, h, i, j);
    int64_t label = table->data ? label_of(s, piece, b, i, j) : -1;
    if (label >= 0) {
      for (int64_t d = 0; d < q->dim; d++) {
        x += oracle_get(q, b, h, i, d) * oracle_get(table, 0, table->heads > 1 ? h : 0, label, d);
      }
      if (bias) x += (double)bias[label * H + h];
    }
    bag_add(a, scale * x, &s->v[piece], b, head_of(&s->v[piece], h, H), j);
  }
}

static void check(const scene *s, const char *what) {
  bag a = bag_of(s->q_long.len + s->q_global.len, s->v[0].dim);
  for (int side = 0; side < 2; side++) {
    const attn_tensor *o = side ? &s->o_global : &s->o_long;
    const attn_tensor *lse = side ? &s->p.lse_global : &s->p.lse_long;
    for (int64_t r = 0; r < o->batch * H * o->len; r++) {
      int64_t b = r / o->len / H, h = r / o->len % H, i = r % o->len;
      bag_empty(&a);
      gather(&a, s, 2 * side, b, h, i);
      gather(&a, s, 2 * side + 1, b, h, i);
      bag_close(&a);
      bag_check(&a, o, lse, b, h, i, 3e-5, what);
    }
  }
}

void C8_etc_random(void **state) {
  (void)state;
  test_rng rng = test_seed(800);
  for (int64_t n = test_count(40, 10); n-- > 0;) {
    int64_t longs = n % 9 == 0 ? 0 : test_range(&rng, 1, n % 3 ? 20 : 140);
    int64_t globals = n % 8 == 0 ? 0 : test_range(&rng, 1, 12);
    scene *s = build(test_range(&rng, 1, 2), longs, globals, test_range(&rng, 1, n % 5 ? 9 : 150),
                     test_range(&rng, 1, 12), test_range(&rng, 1, 12),
                     (attn_dtype)(n % 7 ? 0 : n % 3), &rng);
    s->p.labels_per_batch = n & 1;
    for (int piece = 0; piece < 4 && n % 4; piece++) {
      s->p.mask[piece] =
          test_mask(piece & 1 ? ATTN_MASK_BITS : ATTN_MASK_BOOL, ATTN_F32, s->q_long.batch, H,
                    piece < 2 ? longs : globals, columns_of(s, piece), &rng);
    }
    if (n % 3 == 1) random_labels(s, test_range(&rng, 1, 30), n & 1 ? H : 1, &rng);
    promise_run(&s->does);
    check(s, "etc");
  }
}

void C8_etc_by_distance(void **state) {
  (void)state;
  test_rng rng = test_seed(801);
  for (int64_t n = test_count(12, 6); n-- > 0;) {
    int64_t longs = test_range(&rng, 1, 60), globals = test_range(&rng, 1, 9), clip = n % 5;
    scene *s = build(2, longs, globals, test_range(&rng, 1, 9), 8, 5, ATTN_F32, &rng);
    int32_t *sentence = test_mem((size_t)(2 * longs) * sizeof *sentence);
    for (int64_t i = 0; i < 2 * longs; i++) {
      sentence[i] = (int32_t)test_range(&rng, -1, globals - 1);
    }
    s->p.by_distance = 1, s->p.clip = clip, s->p.labels_per_batch = n & 1;
    if (n % 3) s->p.sentence = sentence;
    s->p.table_long = drawn(ATTN_F32, TEST_BHTD, 1, H, 2 * clip + 3, 8, 0.5, &rng);
    if (n % 4) s->p.table_global = drawn(ATTN_F32, TEST_BHTD, 1, 1, 2 * clip + 3, 8, 0.5, &rng);
    s->p.bias_global = s->p.table_global.data ? test_floats((2 * clip + 3) * H, 1, &rng) : NULL;
    promise_run(&s->does);
    check(s, "by distance");
  }
}

/* Shared projections, a radius over everything, no masks: full attention on [global; long]. */
void C8_etc_full(void **state) {
  (void)state;
  test_rng rng = test_seed(802);
  test_spec spec = test_plain(H, 50, 50, 8, 8);
  test_call whole = test_build(&spec, &rng);
  test_run(&whole);
  scene *s = build(1, 43, 7, 43, 8, 8, ATTN_F32, &rng);
  s->q_global = test_rows(whole.q, 0, 7), s->q_long = test_rows(whole.q, 7, 43);
  for (int n = 0; n < 4; n++) {
    int long_keys = n == ATTN_ETC_L2L || n == ATTN_ETC_G2L;
    s->k[n] = test_rows(whole.k, long_keys ? 7 : 0, long_keys ? 43 : 7);
    s->v[n] = test_rows(whole.v, long_keys ? 7 : 0, long_keys ? 43 : 7);
  }
  promise_run(&s->does);
  test_assert_near(s->o_global, test_rows(whole.o, 0, 7), 1e-5, "full, global");
  test_assert_near(s->o_long, test_rows(whole.o, 7, 43), 1e-5, "full, long");
  test_assert_near(s->p.lse_long, test_rows(whole.params.lse, 7, 43), 1e-5, "full, long");
}

/* Tables with equal rows and equal biases change no output. */
void C8_etc_equal_rows(void **state) {
  (void)state;
  test_rng rng = test_seed(803);
  scene *s = build(1, 30, 5, 4, 8, 6, ATTN_F32, &rng);
  promise_run(&s->does);
  attn_tensor o_long = s->o_long, o_global = s->o_global;
  random_labels(s, 9, H, &rng);
  float *bias = test_mem(9 * H * sizeof *bias);
  for (int n = 0; n < 9 * H; n++) bias[n] = 0.5f;
  s->p.bias_long = s->p.bias_global = bias;
  for (int64_t r = 1; r < 9; r++) {
    test_copy(test_rows(s->p.table_long, r, 1), test_rows(s->p.table_long, 0, 1));
    test_copy(test_rows(s->p.table_global, r, 1), test_rows(s->p.table_global, 0, 1));
  }
  s->o_long = output(ATTN_F32, TEST_BHTD, 1, H, 30, 6, NULL);
  s->o_global = output(ATTN_F32, TEST_BHTD, 1, H, 5, 6, NULL);
  promise_run(&s->does);
  test_assert_near(s->o_long, o_long, 1e-5, "equal rows");
  test_assert_near(s->o_global, o_global, 1e-5, "equal rows");
}

/* The worked example of the labels, and masks and labels of structures by their definition. */
void C8_etc_structures(void **state) {
  (void)state;
  static const int32_t row2[6] = {5, 4, 0, 1, 2, 3};
  int32_t label[6][11];
  attn_etc_structure six;
  memset(&six, 0, sizeof six);
  six.longs = 6, six.radius = 5, six.clip = 3;
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_etc_labels(label[0], NULL, NULL, NULL, &six, &ctx), ATTN_OK);
  for (int j = 0; j < 6; j++) assert_int_equal(label[2][j - 2 + 5], row2[j]);

  test_rng rng = test_seed(804);
  for (int64_t n = test_count(30, 10); n-- > 0;) {
    enum { MOST = 40, WIDE = 2 * 12 + 1 };
    int32_t sentence[MOST], ex_l[MOST], ex_g[MOST], *l[4];
    uint8_t *m[4];
    attn_etc_structure s;
    memset(&s, 0, sizeof s);
    s.longs = test_range(&rng, 1, MOST), s.globals = test_range(&rng, 1, 9);
    s.radius = test_range(&rng, 1, 12), s.clip = test_range(&rng, 0, 5);
    s.hard_g2l = n & 1, s.hard_l2g = n >> 1 & 1;
    for (int64_t i = 0; i < MOST; i++) {
      ex_l[i] = (int32_t)test_range(&rng, -1, 2), ex_g[i] = (int32_t)test_range(&rng, -2, 2);
      sentence[i] = (int32_t)(ex_l[i] < 0 && n % 5 ? 99 : test_range(&rng, 0, s.globals - 1));
    }
    if (n % 5) s.example_long = ex_l, s.example_global = ex_g;
    if (n & 3 || n % 7 == 0) s.sentence = sentence;
    for (int e = 0; e < 4; e++) m[e] = test_mem(MOST * MOST), l[e] = test_mem(4 * MOST * MOST);
    assert_int_equal(attn_etc_masks(m[0], m[1], m[2], m[3], &s, &ctx), ATTN_OK);
    assert_int_equal(attn_etc_labels(l[0], l[1], l[2], l[3], &s, &ctx), ATTN_OK);
    int64_t width = 2 * s.radius + 1;
    for (int64_t i = 0; i < s.longs; i++) {
      for (int64_t t = 0; t < width; t++) {
        int64_t j = i + t - s.radius, d = j - i;
        int in = j >= 0 && j < s.longs;
        assert_int_equal(m[0][i * width + t], in && (n % 5 == 0 || ex_l[i] == ex_l[j]));
        if (in) {
          int64_t want = d >= 0 ? (d < s.clip ? d : s.clip) : s.clip + (-d < s.clip ? -d : s.clip);
          assert_int_equal(l[0][i * width + t], want);
        }
      }
      for (int64_t g = 0; g < s.globals; g++) {
        int same = n % 5 == 0 || ex_l[i] == ex_g[g], own = s.sentence && sentence[i] == g;
        assert_int_equal(m[1][i * s.globals + g], same && (!s.hard_l2g || own));
        assert_int_equal(m[3][g * s.longs + i], same && (!s.hard_g2l || own));
        assert_int_equal(l[1][i * s.globals + g], 2 * s.clip + 1 + own);
        assert_int_equal(l[3][g * s.longs + i], 2 * s.clip + 1 + own);
      }
    }
    for (int64_t g = 0; g < s.globals; g++) {
      for (int64_t f = 0; f < s.globals; f++) {
        assert_int_equal(m[2][g * s.globals + f], n % 5 == 0 || ex_g[g] == ex_g[f]);
      }
    }
  }
}

void C8_etc_structure_rejects(void **state) {
  (void)state;
  static const int32_t sentence[4] = {0, 1, 2, 0}, example[4] = {0, 0, -1, 0};
  for (int n = 0; n < 9; n++) {
    attn_etc_structure s = {4, 2, 1, 1, sentence, example, example, 1, 1};
    uint8_t mask[16];
    int32_t label[16];
    attn_status want = ATTN_E_RANGE;
    const attn_etc_structure *at = &s;
    if (n == 0) at = NULL, want = ATTN_E_NULL;
    if (n == 1) s.longs = -1, want = ATTN_E_SHAPE;
    if (n == 2) s.radius = 0;
    if (n == 3) s.clip = -1;
    if (n == 4) s.sentence = NULL, want = ATTN_E_NULL;
    if (n == 5) s.example_global = NULL, want = ATTN_E_NULL;
    if (n == 6) s.example_long = s.example_global = NULL; /* then sentence 2 counts */
    if (n == 7) s.globals = 1;
    if (n == 8) want = ATTN_OK;
    attn_ctx ctx = test_ctx();
    memset(mask, 9, sizeof mask), memset(label, 9, sizeof label);
    assert_int_equal(attn_etc_masks(NULL, mask, NULL, NULL, at, &ctx), want);
    assert_int_equal(ctx.reason != NULL, n < 8);
    assert_int_equal(attn_etc_labels(NULL, label, NULL, NULL, at, &ctx), want);
    for (int e = 0; e < 16 && n < 8; e++) {
      assert_int_equal(mask[e], 9);
      assert_int_equal(label[e], 0x09090909);
    }
  }
}

/* Forbidden keys do not reach a row, by whichever mask. */
void C8_etc_nan_stays(void **state) {
  (void)state;
  test_rng rng = test_seed(805);
  scene *s = build(1, 30, 4, 3, 8, 6, ATTN_F32, &rng);
  uint8_t l2l[30 * 7], l2g[30 * 4];
  memset(l2l, 1, sizeof l2l), memset(l2g, 1, sizeof l2g);
  for (int64_t i = 0; i < 30; i++) {
    int64_t t = 20 - i + 3; /* nobody but row 22 sees long key 20, nobody global key 1 */
    if (t >= 0 && t < 7 && i != 22) l2l[i * 7 + t] = 0;
    l2g[i * 4 + 1] = 0;
  }
  s->p.mask[ATTN_ETC_L2L] = attn_mask_bool(l2l, 1, 1, 30, 7);
  s->p.mask[ATTN_ETC_L2G] = attn_mask_bool(l2g, 1, 1, 30, 4);
  test_fill_row(s->k[ATTN_ETC_L2L], 0, 0, 20, (double)NAN);
  test_fill_row(s->v[ATTN_ETC_L2L], 0, 0, 20, (double)NAN);
  test_fill_row(s->k[ATTN_ETC_L2G], 0, 0, 1, (double)NAN);
  test_fill_row(s->v[ATTN_ETC_L2G], 0, 0, 1, (double)INFINITY);
  promise_run(&s->does);
  for (int64_t i = 0; i < 30; i++) {
    assert_int_equal(isnan(oracle_get(&s->o_long, 0, 0, i, 0)) != 0, i == 22);
    if (i != 22) assert_true(fabs(oracle_get(&s->o_long, 0, 0, i, 0)) < 10);
  }
}

void C8_etc_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(806);
  for (int n = 0; n < 2; n++) {
    scene *s = build(2, 90, 11, 20, 8, 6, n ? ATTN_BF16 : ATTN_F32, &rng);
    s->p.mask[0] = test_mask(ATTN_MASK_BOOL, ATTN_F32, 2, H, 90, 41, &rng);
    random_labels(s, 12, H, &rng);
    promise_keep(&s->does);
  }
}

void C8_etc_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(807);
  for (int n = 0; n < 24; n++) {
    scene *s = build(1, 9, 3, 2, 8, 6, ATTN_F32, &rng);
    attn_status want = ATTN_E_SHAPE;
    const char *word = "";
    random_labels(s, 5, H, &rng);
    uint8_t mask[64] = {0};
    switch (n) {
      case 0: s->p.radius = 0, want = ATTN_E_RANGE, word = "radius"; break;
      case 1: s->q_global.dim = 7, word = "q_global"; break;
      case 2: s->k[1].len = 2, word = "k must"; break;
      case 3: s->v[3].len = 8, word = "v must"; break;
      case 4: s->v[2].dim = 5, word = "v must"; break;
      case 5: s->k[0].heads = 3, want = ATTN_E_HEADS, word = "k must"; break;
      case 6: s->o_global.len = 9, word = "o_global"; break;
      case 7: s->o_long.dim = 5, word = "o_long"; break;
      case 8: s->p.lse_long.dtype = ATTN_F16, want = ATTN_E_DTYPE, word = "lse_long"; break;
      case 9: s->p.label[0] = NULL, want = ATTN_E_NULL, word = "label"; break;
      case 10: s->p.label[3] = NULL, want = ATTN_E_NULL, word = "label"; break;
      case 11: s->p.table_long.data = NULL, want = ATTN_E_NULL, word = "table_long"; break;
      case 12: s->p.table_long.len = 1, want = ATTN_E_RANGE, word = "label"; break;
      case 13: s->p.table_global.dim = 7, word = "table"; break;
      case 14:
        s->p.mask[0] = attn_mask_bool(mask, 1, 1, 9, 9), want = ATTN_E_MASK, word = "mask";
        break;
      case 15:
        s->p.mask[1] = attn_mask_bool(NULL, 1, 1, 9, 3), want = ATTN_E_NULL, word = "mask";
        break;
      case 16: s->p.by_distance = 1, want = ATTN_E_VALUE, word = "label"; break;
      case 17:
        memset(s->p.label, 0, sizeof s->p.label);
        s->p.by_distance = 1, s->p.clip = 2, want = ATTN_E_RANGE, word = "clip";
        break;
      case 18:
        memset(s->p.label, 0, sizeof s->p.label);
        s->p.by_distance = 1, s->p.clip = -1, want = ATTN_E_RANGE, word = "clip";
        break;
      case 19: {
        static const int32_t sentence[9] = {0, 0, 0, 0, 3, 0, 0, 0, 0};
        memset(s->p.label, 0, sizeof s->p.label);
        s->p.by_distance = 1, s->p.sentence = sentence, want = ATTN_E_RANGE, word = "sentence";
        break;
      }
      case 20: s->o_long = s->q_long, want = ATTN_E_OVERLAP, word = "o_long"; break;
      case 21: s->o_global.data = s->o_long.data, want = ATTN_E_OVERLAP, word = "o_"; break;
      case 22: s->p.scale = (float)INFINITY, want = ATTN_E_VALUE, word = "scale"; break;
      default: s->q_global.batch = 2, s->q_global.stride_batch = 0, word = "q_global"; break;
    }
    if (n == 20) s->o_long.dim = 8, s->v[0].dim = s->v[1].dim = s->v[2].dim = s->v[3].dim = 6;
    if (n == 20) s->o_long.dim = 6;
    promise_reject(&s->does, want, word);
  }
}
