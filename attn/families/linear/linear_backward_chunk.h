/* families/linear/linear_backward_chunk.h owns the gradients of attention over a linear state, a chunk of keys and the
 * rows that read within it. Values have a column of ones, so that z is a column of S. A chunk of n keys with features
 * C, values V, behind a state S, and rows P, with W[e][j] what is left of key j, with its gate, behind key e and g[e]
 * what is left of S:
 *
 *   N = g P S + (W . P C^T) V;  B = d_N V^T
 *   d_P = g d_N S^T + (W . B) C
 *   d_C = (W . B)^T P + last V d_S^T,  d_V = (W . P C^T)^T d_N + last C d_S
 *   and before the chunk d_S = g[n - 1] d_S + (g P)^T d_N
 *
 * where d_S on the right is that behind the chunk, and last the last row of W. The delta rules have what they write in
 * the place of V, and their own part afterwards. Nothing is divided by a rate. */

enum {
  ATTN_LINEAR_MARK_ = 16,        /* chunks between two states that are kept */
  ATTN_LINEAR_BACK_PIECES_ = 28, /* of a worker's memory */
  ATTN_LINEAR_SQUARE_ = ATTN_LINEAR_CHUNK_ * ATTN_LINEAR_CHUNK_
};

typedef struct attn_linear_back_ {
  attn_linear_ f; /* forward, as it is planned */
  attn_map_back_ map;
  attn_tensor d_o;
  /* f32, [B,H,Tq,dk], [B,Hkv,Tk,dk or dv or 1]; data null: not made */
  attn_tensor d_q, d_k, d_v, d_rate;
  attn_tensor d_s, d_z;         /* the caller's: of the state before the call */
  attn_tensor d_s_end, d_z_end; /* of the one behind it; data null: 0 */
  int accumulate;               /* of d_s and d_z */
  int64_t wide, turned;         /* dv + 1 and m in whole groups */
  int64_t chunks;
  char *own;
  int64_t each, at[ATTN_LINEAR_BACK_PIECES_];
} attn_linear_back_;

/* One state head of a batch entry. */
typedef struct attn_linear_back_chain_ {
  const attn_linear_back_ *a;
  int64_t b, kv, head;
  int first; /* of the states that share a head of k and v */
  int64_t keys, rows;
  int64_t row0, met; /* rows from met on read behind the last key, those from row0 on within */
  int64_t end;       /* keys that matter */
  int64_t j0;        /* the chunk's first key */
  int n, weighs;     /* its keys; not all factors are 1 */
  int ones;          /* rows of w that hold the triangle of ones */
  int apart;         /* 1: only d_q of a row is made, 2: all but d_q */
  float top;         /* the stabiliser behind it */
  float most;        /* and before it */
  char *map;
  const float *key_x, *row_x; /* rows of k and of q as f32 */
  float *x, *y_x, *d_x;       /* room for them, and for their gradients: [64][dk] */
  float *c, *p, *ct;          /* features of keys and rows [64][m], of keys turned [m][64] */
  float *d_c, *d_p, *room;    /* their gradients; room: [64][m] */
  float *s, *d_s, *next;      /* S, its gradient behind the chunk and before it: [m][wide] */
  float *turn;                /* one of them turned: [wide][turned] */
  float *v, *vt, *d_v;        /* values, turned [wide][64], and gradients */
  float *out, *part;          /* N, then d_N; P S: [64][wide] */
  float *w, *t, *g;           /* W, P C^T, B: [64][64] */
  float *plain, *sum;         /* P C^T before W; sums of its products with B: [64][64] */
  float *read, *like;         /* of the delta rules: C S of the state before each key; C C^T */
  float *states, *marks, *tops;
  float rate[ATTN_LINEAR_CHUNK_], fall[ATTN_LINEAR_CHUNK_], keep[ATTN_LINEAR_CHUNK_];
  float gate[ATTN_LINEAR_CHUNK_], left[ATTN_LINEAR_CHUNK_];
  float inverse[ATTN_LINEAR_CHUNK_]; /* 1 / kappa, 0 where nothing is read */
  double start[ATTN_LINEAR_CHUNK_];  /* of the products with what S leaves at a row */
} attn_linear_back_chain_;

/* y = (start ? 0 : y) + X w */
ATTN_FUNC_ void attn_linear_back_times_(const attn_linear_back_chain_ *c, float *y, int64_t stride,
                                        attn_floats_ x, int64_t step, attn_floats_ w, int64_t cols,
                                        int start) {
  attn_linear_ask_ none;
  none.rows = 0;
  attn_linear_times_(c->a->f.table, &none, y, stride, x, step, w, cols, start);
}

/* Rows of n that are done at once from r on. Of a triangle, row r sees keys 0 .. e + r, these rows those of the last. */
ATTN_FUNC_ int64_t attn_linear_back_step_of_(int64_t r, int64_t n) {
  return n - r < ATTN_LINEAR_ROWS_ ? n - r : (int64_t)ATTN_LINEAR_ROWS_;
}

/* The triangle y = X w of n rows; what lies beyond is no number. */
ATTN_FUNC_ void attn_linear_back_corner_(const attn_linear_back_chain_ *c, float *y, attn_floats_ x,
                                         int64_t e, attn_floats_ w) {
  for (int64_t r = 0, rows; r < x.rows; r += rows) {
    rows = attn_linear_back_step_of_(r, x.rows);
    attn_linear_back_times_(c, y + r * ATTN_LINEAR_CHUNK_, ATTN_LINEAR_CHUNK_,
                            attn_floats_at_(x.p + r * x.stride, x.stride, rows), 1, w, e + r + rows,
                            1);
  }
}

/* t = W . x within the triangle of n rows, 0 beyond. */
ATTN_FUNC_ void attn_linear_back_mask_(const attn_linear_back_chain_ *c, float *t, const float *x,
                                       int64_t n, int64_t e) {
  for (int64_t r = 0; r < n; r++, t += ATTN_LINEAR_CHUNK_, x += ATTN_LINEAR_CHUNK_) {
    const float *w = c->w + (e + r) * ATTN_LINEAR_CHUNK_;
    attn_on_(gradient, c->a->f.table)->slope(t, x, w, w, e + r + 1, ATTN_ACT_NONE);
    memset(t + e + r + 1, 0, (size_t)(ATTN_LINEAR_CHUNK_ - (e + r + 1)) * sizeof *t);
  }
}

/* y += T w of a triangle of n rows. */
ATTN_FUNC_ void attn_linear_back_lower_(const attn_linear_back_chain_ *c, float *y, int64_t stride,
                                        const float *t, int64_t n, int64_t e, const float *w) {
  for (int64_t r = 0, rows; r < n; r += rows) {
    rows = attn_linear_back_step_of_(r, n);
    attn_linear_back_times_(c, y + r * stride, stride,
                            attn_floats_at_(t + r * ATTN_LINEAR_CHUNK_, ATTN_LINEAR_CHUNK_, rows),
                            1, attn_floats_at_(w, stride, e + r + rows), stride, 0);
  }
}

/* y += T^T w, rows of y for the chunk's keys: rows of T before the first that sees a key have 0 there. */
ATTN_FUNC_ void attn_linear_back_upper_(const attn_linear_back_chain_ *c, float *y, int64_t stride,
                                        const float *t, int64_t n, int64_t e, const float *w) {
  for (int64_t j = 0, keys; j < e + n; j += keys) {
    const int64_t r = j > e ? j - e : 0;
    keys = attn_linear_back_step_of_(j, e + n);
    attn_linear_back_times_(
        c, y + j * stride, stride, attn_floats_at_(t + r * ATTN_LINEAR_CHUNK_ + j, 1, keys),
        ATTN_LINEAR_CHUNK_, attn_floats_at_(w + r * stride, stride, n - r), stride, 0);
  }
}

/* to[k][r] = x[r][k] of n rows of dim numbers. */
ATTN_FUNC_ void attn_linear_back_turn_(const attn_linear_back_chain_ *c, float *to, int64_t stride,
                                       const float *x, int64_t x_stride, int64_t n, int64_t dim) {
  const void *row[ATTN_LINEAR_CHUNK_];
  for (int64_t r = 0; r < n; r += ATTN_LINEAR_CHUNK_) {
    const int some = n - r < ATTN_LINEAR_CHUNK_ ? (int)(n - r) : (int)ATTN_LINEAR_CHUNK_;
    for (int i = 0; i < some; i++) row[i] = x + (r + i) * x_stride;
    attn_on_(dense, c->a->f.table)->turn(to + r, stride, row, ATTN_F32, dim, some);
  }
}

/* ---- keys -----------------------------------------------------------------------------------*/

/* What rates and stabiliser leave of S and of the keys. */
ATTN_FUNC_ void attn_linear_back_factors_(attn_linear_back_chain_ *c, const float *now) {
  const attn_linear_ *f = &c->a->f;
  const int n = c->n;
  float left = 1.0f;
  c->weighs = f->decays;
  for (int j = 0; j < n; j++) {
    const float rate = f->decays ? c->rate[j] : 1.0f;
    c->fall[j] = 1.0f;
    if (f->map.running && now[j] != c->top) {
      c->fall[j] = attn_linear_exp_(f->table, c->top - now[j]), c->weighs = 1;
      c->top = now[j];
    }
    c->keep[j] = rate * c->fall[j];
    c->gate[j] = f->rule == ATTN_LINEAR_GATED ? 1.0f - rate : 1.0f;
    left *= c->keep[j], c->left[j] = left;
  }
  if (!c->weighs && c->ones >= n) return;
  c->ones = c->weighs ? 0 : n;
  for (int e = 0; e < n; e++) {
    float *w = c->w + e * ATTN_LINEAR_CHUNK_;
    for (int j = 0; j < e; j++) w[j] = c->keep[e] * w[j - ATTN_LINEAR_CHUNK_];
    w[e] = c->gate[e];
    for (int j = e + 1; j < ATTN_LINEAR_CHUNK_; j++) w[j] = 0.0f;
  }
}

/* In the place of the values what the delta rules write, u = b (v - read / kappa); read = c S of the state before. */
ATTN_FUNC_ void attn_linear_back_delta_(attn_linear_back_chain_ *c) {
  const attn_linear_back_ *a = c->a;
  const attn_linear_ *f = &a->f;
  const int64_t e = ATTN_LINEAR_CHUNK_, wide = a->wide, n = c->n;
  attn_linear_back_turn_(c, c->ct, e, c->c, f->m, n, f->m);
  attn_linear_back_times_(c, c->like, e, attn_floats_at_(c->c, f->m, n), 1,
                          attn_floats_at_(c->ct, e, f->m), n, 1);
  attn_linear_back_times_(c, c->read, wide, attn_floats_at_(c->c, f->m, n), 1,
                          attn_floats_at_(c->s, wide, f->m), wide, 1);
  for (int64_t i = 0, from = 0; i < n; i++) { /* of blocks before by one product, then one by one */
    float *read = c->read + i * wide, *v = c->v + i * wide;
    if (i % ATTN_LINEAR_ROWS_ == 0 && (from = i) > 0)
      attn_linear_back_times_(c, read, wide,
                              attn_floats_at_(c->like + i * e, e, attn_linear_back_step_of_(i, n)),
                              1, attn_floats_at_(c->v, wide, i), wide, 0);
    if (i > from)
      attn_linear_back_times_(c, read, wide, attn_floats_at_(c->like + i * e + from, e, 1), 1,
                              attn_floats_at_(c->v + from * wide, wide, i - from), wide, 0);
    c->inverse[i] = 1.0f;
    if (f->rule == ATTN_LINEAR_DELTA_ATTN)
      c->inverse[i] = fabsf(read[f->dv]) < FLT_MIN ? 0.0f : 1.0f / read[f->dv];
    f->table->blend(v, v, read, ATTN_F32, ATTN_F32, ATTN_F32, f->dv, c->rate[i],
                    -c->rate[i] * c->inverse[i]);
  }
}

/* Features, values and factors of keys j0 .. j0 + n - 1, whose state before is c->s, c->top. */
ATTN_FUNC_ void attn_linear_back_keys_(attn_linear_back_chain_ *c, int64_t j0, int n) {
  const attn_linear_back_ *a = c->a;
  const attn_linear_ *f = &a->f;
  attn_linear_chain_ chain;
  float now[ATTN_LINEAR_CHUNK_];
  c->j0 = j0, c->n = n, c->most = c->top;
  c->key_x = attn_linear_rows_(f->table, c->x, &f->k, c->b, c->kv, j0, n);
  attn_map_keys_(&f->map, c->map, c->c, c->key_x, n, c->head, c->top, now);
  chain.a = f, chain.b = c->b, chain.kv = c->kv, chain.n = n;
  attn_linear_rates_(&chain, j0);
  if (f->rule != ATTN_LINEAR_SUM) memcpy(c->rate, chain.rate, sizeof c->rate);
  attn_linear_back_factors_(c, now);
  memset(c->v, 0, (size_t)(n * a->wide) * sizeof(float));
  for (int j = 0; j < n; j++) {
    float *v = c->v + j * a->wide;
    f->table->widen(v, attn_at_(&f->v, c->b, c->kv, j0 + j), 0, NULL, 1, f->dv, f->v.dtype, NULL);
    v[f->dv] = 1.0f;
  }
  if (f->delta) attn_linear_back_delta_(c);
}

/* They join the state. */
ATTN_FUNC_ void attn_linear_back_absorb_(attn_linear_back_chain_ *c) {
  const attn_linear_back_ *a = c->a;
  const attn_table_ *f = a->f.table;
  const int64_t m = a->f.m, n = c->n;
  float *last = c->w + (n - 1) * ATTN_LINEAR_CHUNK_;
  if (c->weighs) {
    float by[ATTN_LINEAR_CHUNK_];
    for (int64_t r = 0; r < m; r += ATTN_LINEAR_CHUNK_) {
      const int64_t some = m - r < ATTN_LINEAR_CHUNK_ ? m - r : (int64_t)ATTN_LINEAR_CHUNK_;
      for (int64_t i = 0; i < some; i++) by[i] = c->left[n - 1];
      f->scale_rows(c->s + r * a->wide, a->wide, c->s + r * a->wide, a->wide, some, a->wide, by);
    }
    f->scale_rows(c->c, m, c->c, m, n, m, last);
  }
  attn_linear_back_times_(c, c->s, a->wide, attn_floats_at_(c->c, 1, m), m,
                          attn_floats_at_(c->v, a->wide, n), a->wide, 0);
}

/* ---- rows -----------------------------------------------------------------------------------*/

/* Features of rows i .. i + n - 1. */
ATTN_FUNC_ void attn_linear_back_queries_(attn_linear_back_chain_ *c, int64_t h, int64_t i,
                                          int64_t n) {
  const attn_linear_ *f = &c->a->f;
  c->row_x = attn_linear_rows_(f->table, c->y_x, &f->q, c->b, h, i, n);
  attn_map_queries_(&f->map, c->map, c->p, c->row_x, n, h);
}

/* In the place of N comes d_N: with den = N's last column, d_n = out_scale d_o / den, d_den = -(d_n . n) / den. */
ATTN_FUNC_ void attn_linear_back_divide_(attn_linear_back_chain_ *c, int64_t h, int64_t i,
                                         int64_t n) {
  const attn_linear_back_ *a = c->a;
  const attn_linear_ *f = &a->f;
  const int64_t dv = f->dv;
  float *d_o = c->d_v + ATTN_LINEAR_CHUNK_ * a->wide; /* a row */
  for (int64_t r = 0; r < n; r++) {
    float *y = c->out + r * a->wide, t, den = y[dv], slope = 1.0f;
    f->table->widen(d_o, attn_at_(&a->d_o, c->b, h, i + r), 0, NULL, 1, dv, a->d_o.dtype, NULL);
    attn_on_(gradient, f->table)->row_dots(&t, d_o, y, 1, dv);
    if (f->den == ATTN_LINEAR_DEN_ADD) den += f->eps;
    if (f->den == ATTN_LINEAR_DEN_NONE) den = 1.0f, slope = 0.0f;
    if (f->den == ATTN_LINEAR_DEN_CLAMP && !(den > f->eps))
      slope = 0.0f, den = den <= f->eps ? f->eps : den;
    memset(y + dv, 0, (size_t)(a->wide - dv) * sizeof *y);
    if (fabsf(den) < FLT_MIN) {
      memset(y, 0, (size_t)dv * sizeof *y);
      continue;
    }
    attn_map_back_times_(&f->map, y, d_o, dv, f->out_scale / den);
    if (slope != 0.0f)
      y[dv] = -(float)((double)f->out_scale * (double)t / (double)den / (double)den);
  }
}

/* d_q of rows whose features have the gradient d_p. */
ATTN_FUNC_ void attn_linear_back_write_rows_(attn_linear_back_chain_ *c, int64_t h, int64_t i,
                                             int64_t n) {
  const attn_linear_back_ *a = c->a;
  attn_map_back_tile_(&a->map, c->map, c->d_x, c->d_p, c->room, c->row_x, n, h, 0, -INFINITY);
  for (int64_t r = 0; r < n; r++)
    a->f.table->blend(attn_at_(&a->d_q, c->b, h, i + r), c->d_x + r * a->d_q.dim, NULL, ATTN_F32,
                      ATTN_F32, ATTN_F32, a->d_q.dim, 1.0f, 0.0f);
}

/* Rows that read the state behind the last key; c->turn is S turned. */
ATTN_FUNC_ void attn_linear_back_rest_(attn_linear_back_chain_ *c, int64_t h, int64_t i,
                                       int64_t n) {
  const attn_linear_back_ *a = c->a;
  const int64_t m = a->f.m, wide = a->wide;
  attn_linear_back_queries_(c, h, i, n);
  attn_linear_back_times_(c, c->out, wide, attn_floats_at_(c->p, m, n), 1,
                          attn_floats_at_(c->s, wide, m), wide, 1);
  attn_linear_back_divide_(c, h, i, n);
  attn_linear_back_times_(c, c->d_s, wide, attn_floats_at_(c->p, 1, m), m,
                          attn_floats_at_(c->out, wide, n), wide, 0);
  if (!a->d_q.data) return;
  attn_linear_back_times_(c, c->d_p, m, attn_floats_at_(c->out, wide, n), 1,
                          attn_floats_at_(c->turn, a->turned, wide), m, 1);
  attn_linear_back_write_rows_(c, h, i, n);
}

/* sum += P C^T . B, of rows that read behind key e on. */
ATTN_FUNC_ void attn_linear_back_products_(attn_linear_back_chain_ *c, int64_t e, int64_t n) {
  for (int64_t r = 0; r < n; r++)
    for (int64_t j = 0; j <= e + r; j++)
      c->sum[(e + r) * ATTN_LINEAR_CHUNK_ + j] +=
          c->plain[r * ATTN_LINEAR_CHUNK_ + j] * c->g[r * ATTN_LINEAR_CHUNK_ + j];
}

/* Rows i .. i + n - 1 of a head, the first of which reads behind the chunk's key e. c->turn is S turned. 0: something is
 * not finite, and would reach rows that do not see it. */
ATTN_FUNC_ int attn_linear_back_within_(attn_linear_back_chain_ *c, int64_t h, int64_t i, int64_t n,
                                        int64_t e) {
  const attn_linear_back_ *a = c->a;
  const attn_table_ *f = a->f.table;
  const int64_t m = a->f.m, wide = a->wide, side = ATTN_LINEAR_CHUNK_;
  const int with_q = a->d_q.data && c->apart != 2, with_k = c->apart != 1;
  const float *left = c->left + e;
  attn_linear_back_queries_(c, h, i, n);
  if (!c->apart && !f->finite(c->p, m, n, m)) return 0;
  attn_linear_back_times_(c, c->part, wide, attn_floats_at_(c->p, m, n), 1,
                          attn_floats_at_(c->s, wide, m), wide, 1);
  attn_linear_back_corner_(c, c->plain, attn_floats_at_(c->p, m, n), e,
                           attn_floats_at_(c->ct, side, m));
  attn_linear_back_mask_(c, c->t, c->plain, n, e);
  f->scale_rows(c->out, wide, c->part, wide, n, wide, left);
  attn_linear_back_lower_(c, c->out, wide, c->t, n, e, c->v);
  attn_linear_back_divide_(c, h, i, n);
  if (!c->apart && !f->finite(c->out, wide, n, wide)) return 0;
  if (with_k) attn_linear_back_upper_(c, c->d_v, wide, c->t, n, e, c->out);
  attn_linear_back_corner_(c, c->g, attn_floats_at_(c->out, wide, n), e,
                           attn_floats_at_(c->vt, side, wide));
  if (with_k && a->d_rate.data && a->f.decays) {
    float dots[ATTN_LINEAR_CHUNK_];
    attn_linear_back_products_(c, e, n);
    attn_on_(gradient, f)->row_dots(dots, c->out, c->part, n, wide);
    for (int64_t r = 0; r < n; r++) c->start[e + r] += (double)dots[r];
  }
  attn_linear_back_mask_(c, c->g, c->g, n, e);
  if (with_k) attn_linear_back_upper_(c, c->d_c, m, c->g, n, e, c->p);
  if (with_q) {
    attn_linear_back_times_(c, c->d_p, m, attn_floats_at_(c->out, wide, n), 1,
                            attn_floats_at_(c->turn, a->turned, wide), m, 1);
    if (c->weighs) f->scale_rows(c->d_p, m, c->d_p, m, n, m, left);
    attn_linear_back_lower_(c, c->d_p, m, c->g, n, e, c->c);
  }
  if (with_k) {
    if (c->weighs) f->scale_rows(c->p, m, c->p, m, n, m, left);
    attn_linear_back_times_(c, c->next, wide, attn_floats_at_(c->p, 1, m), m,
                            attn_floats_at_(c->out, wide, n), wide, 0);
  }
  if (with_q) attn_linear_back_write_rows_(c, h, i, n);
  return 1;
}

/* ---- a chunk --------------------------------------------------------------------------------*/

/* What the state behind the chunk gives keys and values, and the state before it. */
ATTN_FUNC_ void attn_linear_back_behind_(attn_linear_back_chain_ *c) {
  const attn_linear_back_ *a = c->a;
  const attn_table_ *f = a->f.table;
  const int64_t m = a->f.m, wide = a->wide, side = ATTN_LINEAR_CHUNK_, n = c->n;
  const float *last = c->w + (n - 1) * side;
  attn_linear_back_turn_(c, c->turn, a->turned, c->d_s, wide, m, wide);
  attn_linear_back_times_(c, c->d_v, wide, attn_floats_at_(c->c, m, n), 1,
                          attn_floats_at_(c->d_s, wide, m), wide, 1);
  attn_linear_back_times_(c, c->d_c, m, attn_floats_at_(c->v, wide, n), 1,
                          attn_floats_at_(c->turn, a->turned, wide), m, 1);
  if (a->d_rate.data && a->f.decays) {
    float dots[ATTN_LINEAR_CHUNK_];
    memset(c->sum, 0, ATTN_LINEAR_SQUARE_ * sizeof(float));
    attn_on_(gradient, f)->row_dots(dots, c->d_v, c->v, n, wide);
    for (int64_t j = 0; j < n; j++) c->sum[(n - 1) * side + j] = dots[j], c->start[j] = 0.0;
    for (int64_t r = 0; r < m; r++) {
      attn_on_(gradient, f)->row_dots(dots, c->d_s + r * wide, c->s + r * wide, 1, wide);
      c->start[n - 1] += (double)dots[0];
    }
  }
  memcpy(c->next, c->d_s, (size_t)(m * wide) * sizeof(float));
  if (!c->weighs) return;
  f->scale_rows(c->d_v, wide, c->d_v, wide, n, wide, last);
  f->scale_rows(c->d_c, m, c->d_c, m, n, m, last);
  attn_map_back_times_(&a->f.map, c->next, c->next, m * wide, c->left[n - 1]);
}

/* d_a_t = fall_t <d_S_t, S_(t-1)>, of a gate less <d_S_t, p v>: each product of a row and a key counts with the factors
 * between them but that of t. */
ATTN_FUNC_ void attn_linear_back_decay_(attn_linear_back_chain_ *c, float *d_rate) {
  const int n = c->n, side = ATTN_LINEAR_CHUNK_, gated = c->a->f.rule == ATTN_LINEAR_GATED;
  double *before = c->start; /* products of row e and all keys before t */
  for (int t = 0; t < n; t++) {
    double all = 0.0, own = 0.0;
    for (int e = n; e-- > t;) {
      const double keep = e + 1 < n ? (double)c->keep[e + 1] : 0.0;
      all = before[e] + keep * all, own = (double)c->sum[e * side + t] + keep * own;
    }
    d_rate[t] = (float)((double)c->fall[t] * all - (gated ? own : 0.0));
    for (int e = t + 1; e < n; e++)
      before[e] =
          (double)c->keep[t] * before[e] + (double)c->gate[t] * (double)c->sum[e * side + t];
  }
}

/* The delta rules: d_v is the gradient by what they write; c->turn is S turned. */
ATTN_FUNC_ void attn_linear_back_undo_(attn_linear_back_chain_ *c, float *d_rate) {
  const attn_linear_back_ *a = c->a;
  const attn_linear_ *f = &a->f;
  const int64_t m = f->m, wide = a->wide, side = ATTN_LINEAR_CHUNK_, n = c->n, dv = f->dv;
  const int attends = f->rule == ATTN_LINEAR_DELTA_ATTN;
  float *back = c->part; /* the gradient by what a key reads, and by kappa */
  for (int64_t t = n, end = n; t-- > 0;) {
    float *y = c->d_v + t * wide, *to = back + t * wide, of_read, of_value, *v = c->read + t * wide;
    const float by = c->rate[t] * c->inverse[t];
    /* keys after t have read what it wrote: those after its block by one product */
    if (t + 1 == n || (t + 1) % ATTN_LINEAR_ROWS_ == 0) {
      const int64_t lo = t - t % ATTN_LINEAR_ROWS_;
      end = t + 1;
      if (end < n)
        attn_linear_back_times_(c, c->d_v + lo * wide, wide,
                                attn_floats_at_(c->like + end * side + lo, 1, end - lo), side,
                                attn_floats_at_(back + end * wide, wide, n - end), dv, 0);
    }
    if (t + 1 < end)
      attn_linear_back_times_(c, y, wide, attn_floats_at_(c->like + (t + 1) * side + t, side, 1),
                              side, attn_floats_at_(back + (t + 1) * wide, wide, end - t - 1), dv,
                              0);
    attn_on_(gradient, f->table)->row_dots(&of_read, y, v, 1, dv);
    f->table->widen(v, attn_at_(&f->v, c->b, c->kv, c->j0 + t), 0, NULL, 1, dv, f->v.dtype, NULL);
    attn_on_(gradient, f->table)->row_dots(&of_value, y, v, 1, dv);
    d_rate[t] = of_value - of_read * c->inverse[t];
    memset(to, 0, (size_t)wide * sizeof(float));
    attn_map_back_times_(&f->map, to, y, dv, -by);
    if (attends) to[dv] = of_read * by * c->inverse[t];
    attn_map_back_times_(&f->map, y, y, dv, c->rate[t]);
  }
  /* products of back and what earlier keys wrote, a triangle */
  attn_linear_back_times_(c, c->t, side, attn_floats_at_(back, wide, n), 1,
                          attn_floats_at_(c->vt, side, wide), n, 1);
  for (int64_t t = 0; t < n; t++)
    for (int64_t j = t; j < n; j++) c->t[t * side + j] = 0.0f;
  attn_linear_back_times_(c, c->d_c, m, attn_floats_at_(c->t, side, n), 1,
                          attn_floats_at_(c->c, m, n), m, 0);
  attn_linear_back_times_(c, c->d_c, m, attn_floats_at_(c->t, 1, n), side,
                          attn_floats_at_(c->c, m, n), m, 0);
  attn_linear_back_times_(c, c->d_c, m, attn_floats_at_(back, wide, n), 1,
                          attn_floats_at_(c->turn, a->turned, wide), m, 0);
  attn_linear_back_times_(c, c->next, wide, attn_floats_at_(c->c, 1, m), m,
                          attn_floats_at_(back, wide, n), wide, 0);
}

/* Rows of a gradient of k, v or the rates. */
ATTN_FUNC_ void attn_linear_back_store_(const attn_linear_back_chain_ *c, const attn_tensor *d,
                                        const float *x, int64_t stride) {
  for (int j = 0; d->data && j < c->n; j++) {
    float *to = (float *)(void *)attn_at_(d, c->b, c->kv, c->j0 + j);
    c->a->f.table->blend(to, x + j * stride, c->first ? NULL : to, ATTN_F32, ATTN_F32, ATTN_F32,
                         d->dim, 1.0f, 1.0f);
  }
}

/* Keys j0 .. j0 + n - 1 and the rows that read behind one of them; c->s, c->top are the state before them, c->d_s is the
 * gradient of that behind them and becomes that of the one before. 0: see attn_linear_back_within_; nothing of keys
 * and state has been written. */
ATTN_FUNC_ int attn_linear_back_chunk_(attn_linear_back_chain_ *c, int64_t j0, int n) {
  const attn_linear_back_ *a = c->a;
  const attn_linear_ *f = &a->f;
  const int64_t m = f->m, wide = a->wide;
  float d_rate[ATTN_LINEAR_CHUNK_] = {0.0f}, *swap;
  attn_linear_back_keys_(c, j0, n);
  if (!c->apart && !(f->table->finite(c->c, m, n, m) && f->table->finite(c->v, wide, n, wide)))
    return 0;
  attn_linear_back_behind_(c);
  const int64_t lo = j0 - f->q_off, i0 = lo > c->row0 ? lo : c->row0;
  const int64_t i1 = lo + n < c->met ? lo + n : c->met;
  if (i0 < i1 && !f->delta) attn_linear_back_turn_(c, c->ct, ATTN_LINEAR_CHUNK_, c->c, m, n, m);
  if (i0 < i1 || f->delta) {
    attn_linear_back_turn_(c, c->vt, ATTN_LINEAR_CHUNK_, c->v, wide, n, wide);
    attn_linear_back_turn_(c, c->turn, a->turned, c->s, wide, m, wide);
  }
  for (int64_t h = c->head * f->group; i0 < i1 && h < (c->head + 1) * f->group; h++)
    if (!attn_linear_back_within_(c, h, i0, i1 - i0, i0 - lo)) return 0;
  if (f->delta)
    attn_linear_back_undo_(c, d_rate);
  else if (a->d_rate.data && f->decays)
    attn_linear_back_decay_(c, d_rate);
  attn_linear_back_store_(c, &a->d_v, c->d_v, wide);
  attn_linear_back_store_(c, &a->d_rate, d_rate, 1);
  if (a->d_k.data) {
    attn_map_back_tile_(&a->map, c->map, c->d_x, c->d_c, c->room, c->key_x, n, c->head, 1, c->most);
    attn_linear_back_store_(c, &a->d_k, c->d_x, f->k.dim);
  }
  swap = c->d_s, c->d_s = c->next, c->next = swap;
  return 1;
}

/* d_q of row i of head h alone, which reads behind key e of the chunk that begins at j0: with no other key at hand, and the
 * bits that the chunk would have given. */
ATTN_FUNC_ void attn_linear_back_row_(attn_linear_back_chain_ *c, int64_t j0, int64_t h, int64_t i,
                                      int64_t e) {
  const attn_linear_back_ *a = c->a;
  const int64_t m = a->f.m, side = ATTN_LINEAR_CHUNK_;
  attn_linear_back_keys_(c, j0, (int)e + 1);
  attn_linear_back_turn_(c, c->ct, side, c->c, m, e + 1, m);
  attn_linear_back_turn_(c, c->vt, side, c->v, a->wide, e + 1, a->wide);
  attn_linear_back_turn_(c, c->turn, a->turned, c->s, a->wide, m, a->wide);
  (void)attn_linear_back_within_(c, h, i, 1, e);
}
