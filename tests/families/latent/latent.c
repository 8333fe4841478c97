/* tests/families/latent/latent.c owns layers of latent attention: building, calling, and the formula. */

#include "latent.h"

#include <stdio.h>

latent_shape latent_plain(int64_t batch, int64_t heads) {
  latent_shape x = {batch,    heads,    26,       11,       20, 6, 5, 7, 9,
                    ATTN_F32, ATTN_F32, ATTN_F32, ATTN_F32, 0,  1, 0, 0};
  return x;
}

static void as_it_was(latent *z) {
  if (z->shape.page) {
    memcpy(z->memory, z->image, z->size);
    z->cache = z->was;
    memcpy(z->held, z->had, sizeof z->held);
    memcpy(z->tables, z->table_was,
           (size_t)(LATENT_SEQUENCES * z->shape.pages) * sizeof *z->tables);
  }
}

static attn_status call(void *at, attn_ctx *ctx) {
  latent *z = at;
  as_it_was(z);
  return attn_mla(z->y, z->x, &z->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  latent *z = at;
  as_it_was(z);
  return attn_mla_workspace(z->y, z->x, &z->p, ctx);
}

static attn_tensor weight(const latent_shape *s, int64_t in, int64_t out, test_rng *rng) {
  const double size = 1.6 / sqrt((double)in);
  return s->transposed ? drawn(s->w_type, TEST_PADDED, 1, 1, out, in, size, rng)
                       : drawn(s->w_type, TEST_PADDED, 1, 1, in, out, size, rng);
}

static float *gain(int64_t n, test_rng *rng) {
  float *g = test_floats(n, 0.3, rng);
  for (int64_t c = 0; c < n; c++) g[c] += 1;
  return g;
}

latent *latent_build(const latent_shape *s, test_rng *rng) {
  latent *z = test_mem(sizeof *z);
  memset(z, 0, sizeof *z);
  z->shape = *s;
  attn_mla_params *p = &z->p;
  p->heads = s->heads, p->rope_dim = s->dr, p->w_transposed = s->transposed;
  if (s->dq) p->w_dq = weight(s, s->dm, s->dq, rng);
  p->w_uq = weight(s, s->dq ? s->dq : s->dm, s->heads * (s->dn + s->dr), rng);
  p->w_dkv = weight(s, s->dm, s->dc + s->dr, rng);
  p->w_ukv = weight(s, s->dc, s->heads * (s->dn + s->dv), rng);
  p->w_o = weight(s, s->heads * s->dv, s->dmo, rng);
  if (s->gains) p->kv_gain = gain(s->dc, rng);
  if (s->gains && s->dq) p->q_gain = gain(s->dq, rng);
  for (int64_t b = 0; b < s->batch; b++) z->past[b] = cube_of(1, 1, 0, s->dm);
  if (s->page) {
    const attn_cache_params c = {.k_dtype = s->cache_type,
                                 .k_heads = 1,
                                 .dk = s->dc + s->dr,
                                 .dv = s->dc,
                                 .latent = 1,
                                 .pages = s->pages,
                                 .page = s->page};
    z->size = attn_cache_size(&c);
    z->memory = test_mem(z->size), z->image = test_mem(z->size);
    memset(z->memory, 0xFF, z->size); /* NaN */
    assert_int_equal(attn_cache_open(&z->cache, z->memory, z->size, &c, NULL), ATTN_OK);
    const size_t tables = (size_t)(LATENT_SEQUENCES * s->pages) * sizeof *z->tables;
    z->tables = test_mem(tables), z->table_was = test_mem(tables);
    for (int64_t b = 0; b < LATENT_SEQUENCES; b++)
      attn_sequence_init(&z->held[b], z->tables + b * s->pages, s->pages, NULL);
    p->cache = &z->cache, p->held = z->held;
  }
  z->does.call = call, z->does.ask = ask, z->does.scene = z;
  z->does.out[0] = &z->y, z->does.out[1] = &p->lse;
  latent_remember(z);
  return z;
}

void latent_remember(latent *z) {
  if (!z->shape.page) return;
  memcpy(z->image, z->memory, z->size);
  z->was = z->cache;
  memcpy(z->had, z->held, sizeof z->had);
  memcpy(z->table_was, z->tables, (size_t)(LATENT_SEQUENCES * z->shape.pages) * sizeof *z->tables);
}

void latent_tokens(latent *z, const int64_t *rows, int ragged, int64_t extra, test_rng *rng) {
  const latent_shape *s = &z->shape;
  const test_layout layout = (test_layout)(test_u64(rng) % TEST_SHARED);
  int64_t all = extra, *indptr = test_mem((size_t)(s->batch + 1) * sizeof *indptr);
  indptr[0] = 0;
  for (int64_t b = 0; b < s->batch; b++) indptr[b + 1] = indptr[b] + rows[b], all += rows[b];
  const int64_t batch = ragged ? 1 : s->batch, len = ragged ? all : rows[0];
  z->p.indptr = ragged ? indptr : NULL, z->p.sequences = ragged ? s->batch : 0;
  z->x = drawn(s->x_type, layout, batch, 1, len, s->dm, 1, rng);
  z->y = output(s->y_type, layout, batch, 1, len, s->dmo, &z->does.block[0]);
  z->p.lse = output(ATTN_F32, TEST_BHTD, batch, s->heads, len, 1, &z->does.block[1]);
  latent_remember(z);
}

/* ---- the formula ----------------------------------------------------------------------------*/

/* Number o of row x times w. */
static double times(const latent *z, const attn_tensor *w, const double *x, int64_t in, int64_t o) {
  double sum = 0;
  for (int64_t c = 0; c < in; c++)
    sum += x[c] * (z->shape.transposed ? oracle_get(w, 0, 0, o, c) : oracle_get(w, 0, 0, c, o));
  return sum;
}

static void rms(const latent *z, double *x, int64_t n, const float *g) {
  const double eps = z->p.eps != 0 ? (double)z->p.eps : signbit(z->p.eps) ? 0 : 1e-6;
  double sum = 0;
  for (int64_t c = 0; c < n; c++) sum += x[c] * x[c];
  for (int64_t c = 0; c < n; c++)
    x[c] = sum == 0 ? 0 : x[c] / sqrt(sum / (double)n + eps) * (g ? (double)g[c] : 1);
}

static void turn(const latent *z, double *x, double position) {
  const int64_t n = z->shape.dr;
  double *f = test_mem((size_t)(n / 2 + 1) * sizeof *f), by = 1;
  if (n == 0) return;
  assert_int_equal(attn_rope_frequencies(f, &by, z->p.rope, n), ATTN_OK);
  for (int64_t m = 0; m < n / 2; m++) {
    const int half = z->p.rope && z->p.rope->layout == ATTN_ROPE_HALF;
    double *a = x + (half ? m : 2 * m), *b = half ? a + n / 2 : a + 1, phi = position * f[m];
    const double u = *a, v = *b;
    *a = by * (u * cos(phi) - v * sin(phi)), *b = by * (u * sin(phi) + v * cos(phi));
  }
}

/* A row of the cache. */
static void kept_row(const latent *z, double *row, const double *x, double position) {
  const latent_shape *s = &z->shape;
  const int64_t wide = s->dc + s->dr;
  for (int64_t c = 0; c < wide; c++) row[c] = times(z, &z->p.w_dkv, x, s->dm, c);
  rms(z, row, s->dc, z->p.kv_gain);
  turn(z, row + s->dc, position);
  if (!s->page) return;
  attn_tensor one = test_tensor(s->cache_type, TEST_BHTD, 1, 1, 1, wide);
  for (int64_t c = 0; c < wide; c++)
    oracle_set(&one, 0, 0, 0, c, row[c]), row[c] = oracle_get(&one, 0, 0, 0, c);
}

/* How much longer a context is than the one that a model was trained with. */
static double latent_factor(const attn_rope_params *r) {
  return r->factor != 0
             ? r->factor
             : (double)r->max_position_embeddings / (double)r->original_max_position_embeddings;
}

/* Tokens from `fresh` on of a sequence, whose rows in the call begin at row i0 of entry b. */
static void judge(const latent *z, const cube *all, int64_t fresh, int64_t b, int64_t i0,
                  double tolerance, const char *what) {
  const latent_shape *s = &z->shape;
  const int64_t h = s->heads, dk = s->dn + s->dr, n = all->len, first = z->rope.start;
  const attn_window *w = &z->p.window;
  double scale = z->p.scale != 0 ? (double)z->p.scale : 1 / sqrt((double)dk), *row, *q, *low, *side;
  if (z->p.scale == 0 && signbit(z->p.scale)) scale = 0;
  if (z->p.scale == 0 && z->rope.type == ATTN_ROPE_YARN && z->rope.mscale_all_dim > 0)
    scale *= pow(0.1 * z->rope.mscale_all_dim * log(latent_factor(&z->rope)) + 1, 2);
  cube k = cube_of(1, h, n, dk), v = cube_of(1, h, n, s->dv), o = cube_of(1, 1, 1, h * s->dv);
  row = test_mem((size_t)(s->dc + s->dr) * sizeof *row), low = test_mem(8 * 4096);
  q = test_mem((size_t)(h * dk) * sizeof *q), side = cube_at(&o, 0, 0, 0);
  int64_t *keys = test_mem((size_t)(n + 1) * sizeof *keys);
  for (int64_t j = 0; j < n; j++) {
    kept_row(z, row, cube_at(all, 0, 0, j), (double)(first + j));
    for (int64_t g = 0; g < h; g++) {
      for (int64_t c = 0; c < dk; c++)
        cube_at(&k, 0, g, j)[c] = c < s->dn
                                      ? times(z, &z->p.w_ukv, row, s->dc, g * (s->dn + s->dv) + c)
                                      : row[s->dc + c - s->dn];
      for (int64_t c = 0; c < s->dv; c++)
        cube_at(&v, 0, g, j)[c] =
            times(z, &z->p.w_ukv, row, s->dc, g * (s->dn + s->dv) + s->dn + c);
    }
  }
  for (int64_t i = fresh; i < n; i++) {
    const double *x = cube_at(all, 0, 0, i);
    int64_t many = 0;
    for (int64_t c = 0; c < s->dq; c++) low[c] = times(z, &z->p.w_dq, x, s->dm, c);
    rms(z, low, s->dq, z->p.q_gain);
    for (int64_t j = 0; j < n; j++)
      if ((z->p.bidirectional || j <= i) && (!w->on || w->left < 0 || j >= i - w->left) &&
          (!w->on || w->right < 0 || j <= i + w->right))
        keys[many++] = j;
    for (int64_t g = 0; g < h; g++) {
      double lse;
      for (int64_t c = 0; c < dk; c++)
        q[c] = times(z, &z->p.w_uq, s->dq ? low : x, s->dq ? s->dq : s->dm, g * dk + c);
      turn(z, q + s->dn, (double)(first + i));
      cube_row(side + g * s->dv, &lse, q, &k, &v, 0, g, keys, many, scale);
      value_check(oracle_get(&z->p.lse, b, g, i0 + i - fresh, 0), lse, tolerance, ATTN_F32, what, b,
                  g, i0 + i - fresh, -1);
    }
    for (int64_t c = 0; c < s->dmo; c++)
      value_check(oracle_get(&z->y, b, 0, i0 + i - fresh, c),
                  times(z, &z->p.w_o, side, h * s->dv, c), tolerance, s->y_type, what, b, 0,
                  i0 + i - fresh, c);
  }
}

static cube longer(const latent *z, int64_t b, int64_t *i0, int64_t *entry) {
  const cube *past = &z->past[b];
  const int64_t from = z->p.indptr ? z->p.indptr[b] : 0;
  const int64_t more = z->p.indptr ? z->p.indptr[b + 1] - from : z->x.len;
  cube all = cube_of(1, 1, (z->shape.page ? past->len : 0) + more, z->shape.dm);
  if (z->shape.page && past->len)
    memcpy(all.data, past->data, (size_t)(past->len * past->dim) * sizeof(double));
  *i0 = from, *entry = z->p.indptr ? 0 : b;
  for (int64_t i = 0; i < more; i++)
    for (int64_t c = 0; c < all.dim; c++)
      cube_at(&all, 0, 0, all.len - more + i)[c] = oracle_get(&z->x, *entry, 0, from + i, c);
  return all;
}

static void compare(const latent *z, double tolerance, const char *what) {
  for (int64_t b = 0; b < z->shape.batch; b++) {
    int64_t i0, entry;
    const cube all = longer(z, b, &i0, &entry);
    judge(z, &all, z->shape.page ? z->past[b].len : 0, entry, i0, tolerance, what);
  }
  for (int64_t i = z->p.indptr ? z->p.indptr[z->shape.batch] : z->x.len; i < z->x.len; i++)
    for (int64_t c = 0; c < z->y.dim; c++) assert_true(oracle_get(&z->y, 0, 0, i, c) == 0);
}

static void take(latent *z) {
  for (int64_t b = 0; b < z->shape.batch && z->shape.page; b++) {
    int64_t i0, entry;
    z->past[b] = longer(z, b, &i0, &entry);
    assert_int_equal(z->held[b].len, z->past[b].len);
  }
  latent_remember(z);
}

void latent_check(latent *z, double tolerance, const char *what) {
  promise_run(&z->does);
  compare(z, tolerance, what);
  take(z);
}

void latent_check_forms(latent *z, double tolerance, const char *what) {
  const attn_mla_form form = z->p.form;
  attn_tensor was = test_tensor(z->y.dtype, TEST_BHTD, z->y.batch, 1, z->y.len, z->y.dim);
  char text[96];
  for (int n = 2; n > 0; n--) {
    z->p.form = n == 2 ? ATTN_MLA_EXPANDED : ATTN_MLA_ABSORBED;
    snprintf(text, sizeof text, "%s, %s", what, n == 2 ? "expanded" : "absorbed");
    promise_run(&z->does);
    compare(z, tolerance, text);
    if (n == 1 && z->y.dtype == ATTN_F32) test_assert_near(z->y, was, 1e-5, text);
    if (n == 2) test_copy(was, z->y);
  }
  z->p.form = form;
  take(z);
}
