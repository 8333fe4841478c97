/* families/linear/recurrence.h owns the linear state: keys absorbed a chunk at a time, rows that read the state in
 * the middle of a chunk or after the last key. Everything lies in rows, so that all products are those
 * of the gemm tile. A chunk of n <= 64 keys with features C, values V, behind a state S, z:
 *
 *   rows P = phi(Q):  T = D . tril(P C^T),  num = diag(a) P S + T V,  den = diag(a) P z + T 1
 *   afterwards        S = a_n S + (w . C)^T V,  z likewise
 *
 * D[i][j] is what is left of key j at row i, a[i] what is left of S; neither is ever a quotient. The
 * delta rules put (I + L)^-1 R in the place of V. */

enum {
  ATTN_LINEAR_CHUNK_ = 64,    /* keys, and rows, worked on at once */
  ATTN_LINEAR_ROWS_ = 12,     /* rows that share the end of their triangle: two tiles of gemm */
  ATTN_LINEAR_READ_ = 60,     /* rows that read at once where there is no chunk: whole tiles */
  ATTN_LINEAR_DEEP_ = 128,    /* terms of a sum before it goes on in memory */
  ATTN_LINEAR_FLUSH_ = 256,   /* keys whose sum joins S at once */
  ATTN_LINEAR_PIECES_ = 13,   /* of a worker's memory */
  ATTN_LINEAR_SEGMENT_ = 4096 /* keys whose sum is made alone in the form without order */
};

typedef struct attn_linear_ {
  const attn_table_ *table;
  attn_map_ map;
  attn_tensor o, q, k, v, rate;
  const int32_t *kv_len, *q_len;
  const float *rate_head;
  float rate_const, eps, out_scale;
  attn_linear_rule rule;
  attn_linear_den den;
  int causal, delta, decays; /* the rule is one of the two; it has a_t */
  int64_t q_off, chunk;
  int64_t m, dv, wide;  /* wide: dv in whole groups of 16 */
  int64_t heads, group; /* of states; query heads that read one of them */
  int64_t per_kv;       /* states that share a head of k and v */
  int64_t slot, late;   /* floats of a state; where the sum of the values lies in it, 0 = nowhere */
  char *shared;         /* of the map */
  float *slots;         /* of all states */
  float *marks, *parts; /* states on the way, sums of segments, where workers share a head */
  int kept, shares;     /* slots are the caller's; workers share a head */
  int few;              /* keys, and rows, go one by one: there are no chunks */
  int64_t segments, slices, tiles;
  int64_t need_slots, need_marks; /* bytes */
  char *own;                      /* of the workers */
  int64_t own_bytes, at[ATTN_LINEAR_PIECES_];
} attn_linear_;

/* The numbers behind S [m][wide] and z: the stabiliser c; the weight of the keys; what is left of the state
 * before the first key; what is left of S since its rest joined it, and how many keys ago that was. */
enum {
  ATTN_LINEAR_TOP_,
  ATTN_LINEAR_COUNT_KEYS_,
  ATTN_LINEAR_KEEP_,     /* two floats */
  ATTN_LINEAR_LEFT_ = 4, /* two floats */
  ATTN_LINEAR_OPEN_ = 6,
  ATTN_LINEAR_TAIL_ = 16,
  ATTN_LINEAR_JOIN_ = 32 /* keys, one by one, before the rest joins S */
};

/* Sums, beside each the rest that is not in it (kernels/linear.h): the state is left S + rest, where keys go
 * one by one; else rests are what roundings have lost, and what reads needs S and z alone. */
typedef struct attn_linear_slot_ {
  float *s, *s_rest, *z, *z_rest;
  float *tail;
  float *sum, *sum_rest; /* of the values, null unless late */
} attn_linear_slot_;

/* A number in two floats. */
ATTN_FUNC_ double attn_linear_pair_(const float *p) { return (double)p[0] + (double)p[1]; }
ATTN_FUNC_ void attn_linear_set_pair_(float *p, double x) {
  p[0] = (float)x, p[1] = (float)(x - (double)p[0]);
}

ATTN_FUNC_ attn_linear_slot_ attn_linear_slot_at_(const attn_linear_ *a, float *p) {
  attn_linear_slot_ s;
  s.s = p, s.s_rest = p + a->m * a->wide, s.z = s.s_rest + a->m * a->wide;
  s.z_rest = s.z + attn_group_up_(a->m), s.tail = s.z_rest + attn_group_up_(a->m);
  s.sum = a->late ? p + a->late : NULL, s.sum_rest = a->late ? s.sum + a->wide : NULL;
  return s;
}

ATTN_FUNC_ void attn_linear_empty_(const attn_linear_ *a, float *p) {
  memset(p, 0, (size_t)a->slot * sizeof(float));
  attn_linear_slot_at_(a, p).tail[ATTN_LINEAR_TOP_] = -INFINITY;
  attn_linear_slot_at_(a, p).tail[ATTN_LINEAR_KEEP_] = 1.0f;
  attn_linear_slot_at_(a, p).tail[ATTN_LINEAR_LEFT_] = 1.0f;
}

/* What went in one by one joins S. */
ATTN_FUNC_ void attn_linear_settle_(const attn_table_ *f, attn_linear_slot_ s, int64_t n) {
  float *open = s.tail + ATTN_LINEAR_OPEN_, *left = s.tail + ATTN_LINEAR_LEFT_;
  if (*open == 0.0f) return;
  attn_on_(state, f)->accrue(s.s, s.s_rest, NULL, n, attn_linear_pair_(left), 0.0f);
  attn_linear_set_pair_(left, 1.0);
  *open = 0.0f;
}

/* Rows of tensors that are read or written next, asked for between products, or each of them would be
 * waited for. */
typedef struct attn_linear_ask_ {
  const char *at[8];
  int64_t step[8], bytes[8];
  int streams;
  int64_t rows, each; /* left of each stream; asked for at once */
} attn_linear_ask_;

/* What a worker has for itself. */
typedef struct attn_linear_own_ {
  char *map;
  float *x;     /* rows of q or k, [64][dk] */
  float *c, *p; /* features of keys and of rows, [64][m] */
  float *ct;    /* those of keys turned, [m][64] */
  float *t, *d; /* [64][64]: weights; what is left of a key at a row */
  float *g;     /* [64][64]: C C^T, then -L */
  float *v, *y; /* [64][wide]: values, results */
  float *u;     /* [m][wide]: sums of keys that are not yet in S */
  float *z;     /* [m]: the same of features */
  float *slot;  /* a state */
  attn_linear_ask_ *ask;
} attn_linear_own_;

/* Where the pieces of a worker's memory begin, in floats, in the order of attn_linear_own_; its bytes. Those of
 * chunks are not there where keys go one by one. */
ATTN_FUNC_ int64_t attn_linear_lay_(attn_linear_ *a) {
  const int64_t n = ATTN_LINEAR_CHUNK_, square = n * n, features = attn_mul_(n, a->m);
  const int64_t values = attn_mul_(n, a->wide), sums = attn_mul_(a->m, a->wide);
  const int64_t floats[ATTN_LINEAR_PIECES_] = {attn_mul_(n, a->k.dim),
                                               features,
                                               features,
                                               a->few ? 0 : features,
                                               a->few ? 0 : square,
                                               a->decays || a->map.running ? square : 0,
                                               a->delta ? square : 0,
                                               values,
                                               values,
                                               a->few ? 0 : sums,
                                               a->few ? 0 : a->m,
                                               a->few && a->kept ? 0 : a->slot,
                                               sizeof(attn_linear_ask_) / sizeof(float)};
  int64_t at = attn_piece_(attn_map_own_(&a->map), 1);
  for (int i = 0; i < ATTN_LINEAR_PIECES_; i++) {
    a->at[i] = at / (int64_t)sizeof(float);
    if (floats[i]) at = attn_add_(at, attn_piece_(floats[i], sizeof(float)));
  }
  return at;
}

ATTN_FUNC_ void attn_linear_cut_(const attn_linear_ *a, int worker, attn_linear_own_ *w) {
  char *base = a->own + worker * a->own_bytes;
  float *p = (float *)(void *)base;
  const int64_t *at = a->at;
  w->map = base;
  w->x = p + at[0], w->c = p + at[1], w->p = p + at[2], w->ct = p + at[3], w->t = p + at[4];
  w->d = p + at[5], w->g = p + at[6], w->v = p + at[7], w->y = p + at[8], w->u = p + at[9];
  w->z = p + at[10], w->slot = p + at[11];
  w->ask = (attn_linear_ask_ *)(void *)(p + at[12]);
  w->ask->rows = 0;
}

static const int32_t attn_linear_index_[ATTN_LINEAR_CHUNK_] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
static const float attn_linear_ones_[ATTN_LINEAR_CHUNK_] = {
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

/* Up to 64 rows from i on, over the next `calls` products. */
ATTN_FUNC_ void attn_linear_ask_all_(attn_linear_ask_ *k, int64_t i, int64_t len, int64_t calls) {
  k->rows = len - i < ATTN_LINEAR_CHUNK_ ? len - i : (int64_t)ATTN_LINEAR_CHUNK_;
  k->each = ATTN_LINEAR_CHUNK_ / calls + 1;
  k->streams = 0;
}
ATTN_FUNC_ void attn_linear_ask_for_(attn_linear_ask_ *k, const attn_tensor *t, int64_t b,
                                     int64_t h, int64_t i) {
  if (k->rows <= 0) return;
  k->at[k->streams] = attn_at_(t, b, h, i);
  k->step[k->streams] = attn_bytes_(t->dtype, t->stride_len);
  k->bytes[k->streams++] = attn_bytes_(t->dtype, t->dim);
}

ATTN_FUNC_ void attn_linear_ask_some_(attn_linear_ask_ *k) {
  const int64_t rows = k->rows < k->each ? k->rows : k->each;
  k->rows -= rows;
  for (int n = 0; n < k->streams; n++)
    for (int64_t r = 0; r < rows; r++, k->at[n] += k->step[n])
      for (int64_t c = 0; c < k->bytes[n]; c += 64) ATTN_PREFETCH_(k->at[n] + c);
}

/* y = (start ? 0 : y) + X w, in runs of k that stay in the first cache; columns of X are x_step apart. */
ATTN_FUNC_ void attn_linear_times_(const attn_table_ *f, attn_linear_ask_ *ask, float *y,
                                   int64_t y_stride, attn_floats_ x, int64_t x_step, attn_floats_ w,
                                   int64_t cols, int start) {
  for (int64_t k = 0; k < w.rows; k += ATTN_LINEAR_DEEP_)
    for (int64_t r = 0; r < x.rows; r += ATTN_LINEAR_ROWS_) {
      attn_on_(dense, f)->gemm(
          y + r * y_stride, y_stride,
          x.rows - r < ATTN_LINEAR_ROWS_ ? x.rows - r : (int64_t)ATTN_LINEAR_ROWS_,
          x.p + k * x_step + r * x.stride, x.stride, x_step, w.p + k * w.stride, w.stride,
          w.rows - k < ATTN_LINEAR_DEEP_ ? w.rows - k : (int64_t)ATTN_LINEAR_DEEP_, cols,
          start && k == 0);
      if (ask->rows > 0) attn_linear_ask_some_(ask);
    }
}

/* n rows of a tensor as dense f32, where they are if they are so. */
ATTN_FUNC_ const float *attn_linear_rows_(const attn_table_ *f, float *to, const attn_tensor *t,
                                          int64_t b, int64_t h, int64_t i, int64_t n) {
  const char *from = attn_at_(t, b, h, i);
  if (t->dtype == ATTN_F32 && (t->stride_len == t->dim || n == 1))
    return (const float *)(const void *)from;
  f->widen(to, from, t->stride_len, NULL, n, t->dim, t->dtype, NULL);
  return to;
}

ATTN_FUNC_ float attn_linear_exp_(const attn_table_ *f, float x) {
  float y;
  f->exp(&y, &x, 1);
  return y;
}

/* A head's keys on their way into a state, and the chunk at hand. */
typedef struct attn_linear_chain_ {
  const attn_linear_ *a;
  attn_linear_own_ w;
  attn_linear_slot_ s;
  int64_t b, head, kv;
  int64_t col, cols; /* of the values */
  int64_t pending;   /* keys whose sum is in w.u, not in S */
  int64_t next;      /* the first key behind the chunk */
  int n;             /* keys of the chunk */
  int finite;        /* the values are */
  int sound;  /* a row has read the state behind the last key, and was finite: so is the state */
  int falls;  /* the stabiliser grows inside of it */
  int weighs; /* last, and what is left of a key at a row, are not all 1 */
  int scaled; /* left is not all 1 */
  double keep, fade; /* what is left of S over the chunk, by rates; by all that shrinks it */
  const float *v;    /* the first of its values, without col */
  int64_t v_stride;
  float rate[ATTN_LINEAR_CHUNK_]; /* a_t or b_t */
  float
      fall[ATTN_LINEAR_CHUNK_]; /* what a key that raises the stabiliser leaves of all before it */
  float left[ATTN_LINEAR_CHUNK_];  /* what is left of S at a row */
  float last[ATTN_LINEAR_CHUNK_];  /* what is left of a key at the end, with its gate */
  float value[ATTN_LINEAR_CHUNK_]; /* the same by rates alone, with sums of values */
} attn_linear_chain_;

ATTN_FUNC_ void attn_linear_open_(attn_linear_chain_ *c, const attn_linear_ *a, int worker,
                                  int64_t b, int64_t head) {
  attn_clear_(c, offsetof(attn_linear_chain_, rate));
  c->a = a, c->b = b, c->head = head, c->kv = attn_over_(head, a->per_kv);
  c->cols = a->dv;
  attn_linear_cut_(a, worker, &c->w);
  if (!a->few && a->wide > a->dv) memset(c->w.u, 0, (size_t)(a->m * a->wide) * sizeof(float));
}

/* S = keep S + what is pending. Columns beyond the slice keep their bits. */
ATTN_FUNC_ void attn_linear_flush_(attn_linear_chain_ *c, double keep) {
  const attn_linear_ *a = c->a;
  const attn_table_ *f = a->table;
  const attn_linear_slot_ *s = &c->s;
  if (!c->pending) return;
  if (c->cols == a->dv)
    attn_on_(state, f)->accrue(s->s, s->s_rest, c->w.u, a->m * a->wide, keep, 1.0f);
  else
    for (int64_t r = 0, at = c->col; r < a->m; r++, at += a->wide)
      attn_on_(state, f)->accrue(s->s + at, s->s_rest + at, c->w.u + at, c->cols, keep, 1.0f);
  attn_on_(state, f)->accrue(s->z, s->z_rest, c->w.z, a->m, keep, 1.0f);
  c->pending = 0;
}

/* What the stabiliser leaves of the state at each key, now that it is `now` behind them. */
ATTN_FUNC_ void attn_linear_falls_(attn_linear_chain_ *c, const float *now) {
  float *top = c->s.tail + ATTN_LINEAR_TOP_;
  c->falls = c->scaled = 0;
  for (int j = 0; c->a->map.running && j < c->n; j++) {
    c->fall[j] = now[j] == *top ? 1.0f : attn_linear_exp_(c->a->table, *top - now[j]);
    c->scaled |= now[j] != *top, c->falls |= j > 0 && now[j] != *top;
    *top = now[j];
  }
}

/* The rates of the chunk. */
ATTN_FUNC_ void attn_linear_rates_(attn_linear_chain_ *c, int64_t j0) {
  const attn_linear_ *a = c->a;
  if (a->rule == ATTN_LINEAR_SUM) return;
  if (a->rate.data)
    a->table->widen(
        c->rate,
        attn_at_(&a->rate, a->rate.batch > 1 ? c->b : 0, a->rate.heads > 1 ? c->kv : 0, j0),
        a->rate.stride_len, NULL, c->n, 1, a->rate.dtype, NULL);
  else
    for (int j = 0; j < c->n; j++) c->rate[j] = a->rate_head ? a->rate_head[c->kv] : a->rate_const;
}

/* What rates and stabiliser leave of S and of the keys; rows: also at each row. Nothing at a row depends on
 * a later key: where that one shrinks nothing the factors are 1 and could be left out. */
ATTN_FUNC_ void attn_linear_decay_(attn_linear_chain_ *c, int rows) {
  const attn_linear_ *a = c->a;
  const int n = c->n, gated = a->rule == ATTN_LINEAR_GATED;
  double at_end = 1.0, by_rates = 1.0, left = 1.0;
  float by[ATTN_LINEAR_CHUNK_];
  for (int j = n; j-- > 0;) {
    const float rate = a->decays ? c->rate[j] : 1.0f;
    const double gate = gated ? 1.0 - (double)rate : 1.0;
    c->last[j] = (float)(at_end * gate), c->value[j] = (float)(by_rates * gate);
    by[j] = a->map.running ? rate * c->fall[j] : rate;
    at_end *= (double)by[j], by_rates *= (double)rate;
  }
  c->keep = by_rates, c->fade = at_end;
  for (int i = 0; i < n; i++) {
    left *= (double)by[i];
    c->left[i] = (float)left;
    if (!rows || !c->weighs) continue;
    float *d = c->w.d + i * ATTN_LINEAR_CHUNK_;
    for (int j = 0; j < i; j++) d[j] = by[i] * d[j - ATTN_LINEAR_CHUNK_];
    d[i] = gated ? 1.0f - c->rate[i] : 1.0f;
  }
}

/* The values of the chunk as f32 rows that are whole vectors. */
ATTN_FUNC_ void attn_linear_values_(attn_linear_chain_ *c, int64_t j0) {
  const attn_linear_ *a = c->a;
  const attn_table_ *f = a->table;
  const char *from = attn_at_(&a->v, c->b, c->kv, j0);
  if (a->v.dtype == ATTN_F32 && a->wide == a->dv) {
    c->v = (const float *)(const void *)from, c->v_stride = a->v.stride_len;
  } else {
    c->v = c->w.v, c->v_stride = a->wide;
    if (a->wide == a->dv)
      f->widen(c->w.v, from, a->v.stride_len, NULL, c->n, a->dv, a->v.dtype, NULL);
    else
      for (int j = 0; j < c->n; j++)
        f->widen(c->w.v + j * a->wide, from + attn_bytes_(a->v.dtype, j * a->v.stride_len), 0, NULL,
                 1, a->dv, a->v.dtype, NULL);
  }
}

/* In place of the values, what the delta rules write: row i is b_i (v_i - c_i S_i / kappa_i), where
 * S_i holds the rows before it too. Forward substitution: rows of earlier blocks by gemm, those of the
 * same block one by one. */
ATTN_FUNC_ void attn_linear_delta_(attn_linear_chain_ *c, int64_t j0) {
  const attn_linear_ *a = c->a;
  const attn_table_ *f = a->table;
  const attn_linear_own_ *w = &c->w;
  const int64_t e = ATTN_LINEAR_CHUNK_, wide = a->wide, n = c->n;
  const int attends = a->rule == ATTN_LINEAR_DELTA_ATTN;
  float *v = w->v + c->col, kappa[ATTN_LINEAR_CHUNK_], self;
  attn_linear_times_(f, w->ask, w->y + c->col, wide, attn_floats_at_(w->c, a->m, n), 1,
                     attn_floats_at_(c->s.s + c->col, wide, a->m), c->cols, 1);
  if (attends)
    attn_on_(list, f)->dots(kappa, c->s.z, w->c, a->m, attn_linear_index_, n, a->m, ATTN_F32, 0);
  for (int64_t i0 = 0, rows; i0 < n; i0 += rows) {
    rows = n - i0 < ATTN_LINEAR_ROWS_ ? n - i0 : (int64_t)ATTN_LINEAR_ROWS_;
    float *g = w->g + i0 * e;
    attn_linear_times_(f, w->ask, g, e, attn_floats_at_(w->c + i0 * a->m, a->m, rows), 1,
                       attn_floats_at_(w->ct, e, a->m), i0 + rows, 1);
    for (int64_t i = i0; i < i0 + rows; i++) {
      float b = c->rate[i], by = b;
      float *row = w->g + i * e;
      if (attends) {
        attn_on_(list, f)->dots(&self, attn_linear_ones_, row, 0, attn_linear_index_, 1, i,
                                ATTN_F32, 0);
        self += kappa[i];
        by = fabsf(self) < FLT_MIN ? 0.0f : b / self; /* a key that no other is like reads 0 */
      }
      f->blend(v + i * wide, attn_at_(&a->v, c->b, c->kv, j0 + i) + attn_bytes_(a->v.dtype, c->col),
               w->y + i * wide + c->col, ATTN_F32, a->v.dtype, ATTN_F32, c->cols, b, -by);
      for (int64_t j = 0; j < i; j++) row[j] *= -by;
    }
    if (i0)
      attn_linear_times_(f, w->ask, v + i0 * wide, wide, attn_floats_at_(g, e, rows), 1,
                         attn_floats_at_(v, wide, i0), c->cols, 0);
    for (int64_t i = i0 + 1; i < i0 + rows; i++)
      attn_on_(sum, f)->axpys(v + i * wide, w->g + i * e + i0, v + i0 * wide, wide,
                              attn_linear_index_, i - i0, c->cols, ATTN_F32, 1.0f, 0);
  }
  c->v = w->v, c->v_stride = wide;
}

/* Features, values and rates of keys j0 .. j0 + n - 1. each: the state is used in between, by rows of this
 * chunk or of another walk over the same keys. */
ATTN_FUNC_ void attn_linear_keys_(attn_linear_chain_ *c, int64_t j0, int n, int each, int rows) {
  const attn_linear_ *a = c->a;
  const attn_table_ *f = a->table;
  const attn_linear_own_ *w = &c->w;
  const float *x = attn_linear_rows_(f, w->x, &a->k, c->b, c->kv, j0, n);
  float now[ATTN_LINEAR_CHUNK_];
  attn_map_keys_(&a->map, w->map, w->c, x, n, c->head, c->s.tail[ATTN_LINEAR_TOP_], now);
  c->n = n, c->next = j0 + n;
  c->keep = c->fade = 1.0;
  attn_linear_falls_(c, now);
  c->scaled |= a->decays, c->weighs = a->decays || c->falls;
  if (each || a->delta || c->scaled) attn_linear_flush_(c, 1.0);
  if (!rows) {
    attn_linear_ask_all_(w->ask, j0 + n, a->k.len, a->m / ATTN_LINEAR_ROWS_ + 1);
    attn_linear_ask_for_(w->ask, &a->k, c->b, c->kv, j0 + n);
    attn_linear_ask_for_(w->ask, &a->v, c->b, c->kv, j0 + n);
  }
  attn_linear_rates_(c, j0);
  if (c->scaled) attn_linear_decay_(c, rows);
  if (rows || a->delta) {
    const void *line[ATTN_LINEAR_CHUNK_];
    for (int j = 0; j < n; j++) line[j] = w->c + j * a->m;
    f->pack(w->ct, line, n, a->m, ATTN_F32, 1.0f, attn_least_(1.0f));
  }
  if (a->delta)
    attn_linear_delta_(c, j0);
  else
    attn_linear_values_(c, j0);
  if (rows) c->finite = f->finite(c->v, c->v_stride, n, a->dv);
}

/* The sum of the chunk's values, by rates alone. */
ATTN_FUNC_ void attn_linear_late_keys_(attn_linear_chain_ *c) {
  const attn_linear_ *a = c->a;
  const float *by = c->scaled ? c->value : attn_linear_ones_;
  float *count = c->s.tail + ATTN_LINEAR_COUNT_KEYS_;
  memset(c->w.y, 0, (size_t)a->wide * sizeof(float)); /* no row needs it yet */
  attn_on_(sum, a->table)
      ->axpys(c->w.y, by, c->v, c->v_stride, attn_linear_index_, c->n, a->dv, ATTN_F32, 1.0f, 0);
  attn_on_(state, a->table)->accrue(c->s.sum, c->s.sum_rest, c->w.y, a->dv, c->keep, 1.0f);
  *count *= (float)c->keep;
  for (int j = 0; j < c->n; j++) *count += by[j];
}

/* The chunk joins the state. */
ATTN_FUNC_ void attn_linear_update_(attn_linear_chain_ *c, int each) {
  const attn_linear_ *a = c->a;
  const attn_table_ *f = a->table;
  const attn_linear_own_ *w = &c->w;
  if (c->weighs) f->scale_rows(w->c, a->m, w->c, a->m, c->n, a->m, c->last);
  attn_linear_times_(f, w->ask, w->u + c->col, a->wide, attn_floats_at_(w->c, 1, a->m), a->m,
                     attn_floats_at_(c->v + c->col, c->v_stride, c->n), c->cols, c->pending == 0);
  if (c->pending == 0) memset(w->z, 0, (size_t)a->m * sizeof(float));
  attn_on_(sum, f)->axpys(w->z, attn_linear_ones_, w->c, a->m, attn_linear_index_, c->n, a->m,
                          ATTN_F32, 1.0f, 0);
  c->pending += c->n;
  if (each || a->delta || c->scaled || c->pending >= ATTN_LINEAR_FLUSH_)
    attn_linear_flush_(c, c->fade);
  if (a->decays)
    attn_linear_set_pair_(c->s.tail + ATTN_LINEAR_KEEP_,
                          c->keep * attn_linear_pair_(c->s.tail + ATTN_LINEAR_KEEP_));
  if (c->s.sum) attn_linear_late_keys_(c);
}

/* Keys j0 .. j1 - 1 that no row reads in between. */
ATTN_FUNC_ void attn_linear_absorb_(attn_linear_chain_ *c, int64_t j0, int64_t j1, int each) {
  for (int64_t j = j0, n; j < j1; j += n) {
    n = j1 - j < c->a->chunk ? j1 - j : c->a->chunk;
    attn_linear_keys_(c, j, (int)n, each, 0);
    attn_linear_update_(c, each);
  }
}

/* to = what is left of it behind the keys of part, and these. */
ATTN_FUNC_ void attn_linear_add_(const attn_linear_ *a, attn_linear_slot_ to,
                                 attn_linear_slot_ part) {
  const attn_table_ *f = a->table;
  const float c0 = to.tail[ATTN_LINEAR_TOP_], c1 = part.tail[ATTN_LINEAR_TOP_];
  const float top = c1 > c0 ? c1 : c0;
  const double rates = attn_linear_pair_(part.tail + ATTN_LINEAR_KEEP_);
  const double keep = rates * (c0 == top ? 1.0 : (double)attn_linear_exp_(f, c0 - top));
  const float by = c1 == top ? 1.0f : attn_linear_exp_(f, c1 - top);
  attn_on_(state, f)->accrue(to.s, to.s_rest, part.s, a->m * a->wide, keep, by);
  attn_on_(state, f)->accrue(to.z, to.z_rest, part.z, a->m, keep, by);
  to.tail[ATTN_LINEAR_TOP_] = top;
  attn_linear_set_pair_(to.tail + ATTN_LINEAR_KEEP_,
                        rates * attn_linear_pair_(to.tail + ATTN_LINEAR_KEEP_));
  if (!a->late) return;
  attn_on_(state, f)->accrue(to.sum, to.sum_rest, part.sum, a->dv, rates, 1.0f);
  to.tail[ATTN_LINEAR_COUNT_KEYS_] =
      (float)rates * to.tail[ATTN_LINEAR_COUNT_KEYS_] + part.tail[ATTN_LINEAR_COUNT_KEYS_];
}

/* After the last key: the part of the features that is the same for all of them. */
ATTN_FUNC_ void attn_linear_late_(const attn_linear_ *a, attn_linear_slot_ s) {
  const float eps = a->map.late_eps;
  if (!a->late) return;
  for (int64_t r = 0; r < a->m; r++) {
    attn_on_(sum, a->table)
        ->axpys(s.s + r * a->wide, &eps, s.sum, 0, attn_linear_index_, 1, a->dv, ATTN_F32, 1.0f, 0);
    s.z[r] += eps * s.tail[ATTN_LINEAR_COUNT_KEYS_];
  }
}

/* ---- rows ---------------------------------------------------------------------------------------*/

/* o = 0 for rows i0 .. i1 - 1. */
ATTN_FUNC_ void attn_linear_zeros_(const attn_linear_ *a, int64_t b, int64_t h, int64_t i0,
                                   int64_t i1) {
  for (int64_t i = i0; i < i1; i++)
    memset(attn_at_(&a->o, b, h, i), 0, (size_t)attn_bytes_(a->o.dtype, a->dv));
}

/* by = out_scale / den of r rows. Returns those whose denominator is below the normal numbers, which
 * counts as 0. */
ATTN_FUNC_ uint64_t attn_linear_factors_(const attn_linear_ *a, float *by, const float *den,
                                         int64_t r) {
  float d[ATTN_TILE_];
  uint64_t vanish = 0;
  const int few = r < 16;
  for (int64_t i = 0; i < (few ? r : (int64_t)ATTN_TILE_); i++) {
    float t = i < r && a->den != ATTN_LINEAR_DEN_NONE ? den[i] : 1.0f;
    if (a->den == ATTN_LINEAR_DEN_ADD) t += a->eps;
    if (a->den == ATTN_LINEAR_DEN_CLAMP && t < a->eps) t = a->eps;
    if (fabsf(t) < FLT_MIN) t = 1.0f, vanish |= (uint64_t)1 << i;
    by[i] = a->out_scale, d[i] = t;
    if (few) by[i] = by[i] / t;
  }
  if (!few) attn_on_(tile, a->table)->divide(by, d, ATTN_GROUPS_);
  return vanish;
}

/* Rows of o that divide by 0. */
ATTN_FUNC_ void attn_linear_vanish_(const attn_linear_ *a, uint64_t rows, int64_t b, int64_t h,
                                    int64_t i0) {
  for (int64_t i = i0; rows; i++, rows >>= 1)
    if (rows & 1) attn_linear_zeros_(a, b, h, i, i + 1);
}

/* o = y out_scale / den of r rows. */
ATTN_FUNC_ void attn_linear_divide_(const attn_linear_ *a, const float *y, const float *den,
                                    int64_t b, int64_t h, int64_t i0, int64_t r) {
  const attn_table_ *f = a->table;
  float by[ATTN_TILE_];
  const uint64_t vanish = attn_linear_factors_(a, by, den, r);
  if (a->o.dtype == ATTN_F32)
    f->scale_rows((float *)(void *)attn_at_(&a->o, b, h, i0), a->o.stride_len, y, a->wide, r, a->dv,
                  by);
  else
    for (int64_t i = 0; i < r; i++)
      f->blend(attn_at_(&a->o, b, h, i0 + i), y + i * a->wide, NULL, a->o.dtype, ATTN_F32, ATTN_F32,
               a->dv, by[i], 0.0f);
  attn_linear_vanish_(a, vanish, b, h, i0);
}

/* Rows i0 .. i0 + r - 1 read a state that is complete. */
ATTN_FUNC_ void attn_linear_read_(const attn_linear_ *a, const attn_linear_own_ *w,
                                  attn_linear_slot_ s, int64_t b, int64_t h, int64_t i0,
                                  int64_t r) {
  const attn_table_ *f = a->table;
  float den[ATTN_LINEAR_CHUNK_];
  const float *x = attn_linear_rows_(f, w->x, &a->q, b, h, i0, r);
  attn_linear_ask_all_(w->ask, i0 + r, a->q.len, 5);
  attn_linear_ask_for_(w->ask, &a->q, b, h, i0 + r);
  attn_linear_ask_for_(w->ask, &a->o, b, h, i0 + r);
  attn_map_queries_(&a->map, w->map, w->p, x, r, h);
  if (a->den != ATTN_LINEAR_DEN_NONE)
    attn_on_(list, f)->dots(den, s.z, w->p, a->m, attn_linear_index_, r, a->m, ATTN_F32, 0);
  if (a->o.dtype != ATTN_F32) {
    attn_linear_times_(f, w->ask, w->y, a->wide, attn_floats_at_(w->p, a->m, r), 1,
                       attn_floats_at_(s.s, a->wide, a->m), a->dv, 1);
    attn_linear_divide_(a, w->y, den, b, h, i0, r);
    return;
  }
  float by[ATTN_TILE_];
  const uint64_t vanish = attn_linear_factors_(a, by, den, r);
  f->scale_rows(w->p, a->m, w->p, a->m, r, a->m, by);
  attn_linear_times_(f, w->ask, (float *)(void *)attn_at_(&a->o, b, h, i0), a->o.stride_len,
                     attn_floats_at_(w->p, a->m, r), 1, attn_floats_at_(s.s, a->wide, a->m), a->dv,
                     1);
  attn_linear_vanish_(a, vanish, b, h, i0);
}

/* The same of rows i0 .. i1 - 1, a tile at a time. */
ATTN_FUNC_ void attn_linear_read_all_(const attn_linear_ *a, const attn_linear_own_ *w,
                                      attn_linear_slot_ s, int64_t b, int64_t h, int64_t i0,
                                      int64_t i1) {
  for (int64_t i = i0; i < i1; i += ATTN_LINEAR_READ_)
    attn_linear_read_(a, w, s, b, h, i,
                      i1 - i < ATTN_LINEAR_READ_ ? i1 - i : (int64_t)ATTN_LINEAR_READ_);
}

/* What is read after rows i0 .. i0 + r - 1 of head h: those of the next head of the group, or what the
 * next chunk begins with. */
ATTN_FUNC_ void attn_linear_ask_next_(attn_linear_chain_ *c, int64_t h, int64_t i0, int64_t r) {
  const attn_linear_ *a = c->a;
  const int last = (h + 1) % a->group == 0;
  const int64_t i = last ? i0 + r : i0, next = last ? h + 1 - a->group : h + 1;
  attn_linear_ask_all_(c->w.ask, i, a->q.len, 18);
  attn_linear_ask_for_(c->w.ask, &a->q, c->b, next, i);
  attn_linear_ask_for_(c->w.ask, &a->o, c->b, next, i);
  if (!last || c->next + ATTN_LINEAR_CHUNK_ > a->k.len) return;
  attn_linear_ask_for_(c->w.ask, &a->k, c->b, c->kv, c->next);
  attn_linear_ask_for_(c->w.ask, &a->v, c->b, c->kv, c->next);
}

/* Rows i0 .. i0 + r - 1 of head h read behind keys 0 .. r - 1 of the chunk. */
ATTN_FUNC_ void attn_linear_rows_of_(attn_linear_chain_ *c, int64_t h, int64_t i0, int64_t r) {
  const attn_linear_ *a = c->a;
  const attn_table_ *f = a->table;
  const attn_linear_own_ *w = &c->w;
  const int64_t e = ATTN_LINEAR_CHUNK_, m = a->m;
  const int divides = a->den != ATTN_LINEAR_DEN_NONE;
  float den[ATTN_LINEAR_CHUNK_], sum[ATTN_LINEAR_CHUNK_];
  const float *x = attn_linear_rows_(f, w->x, &a->q, c->b, h, i0, r);
  attn_linear_ask_next_(c, h, i0, r);
  attn_map_queries_(&a->map, w->map, w->p, x, r, h);
  for (int64_t i = 0, rows; i < r; i += rows) {
    rows = r - i < ATTN_LINEAR_ROWS_ ? r - i : (int64_t)ATTN_LINEAR_ROWS_;
    attn_linear_times_(f, w->ask, w->t + i * e, e, attn_floats_at_(w->p + i * m, m, rows), 1,
                       attn_floats_at_(w->ct, e, m), i + rows, 1);
    for (int64_t n = i; n < i + rows; n++) {
      const int64_t sums = attn_group_up_(n + 1), end = sums < i + rows ? i + rows : sums;
      float *t = w->t + n * e;
      const float *d = w->d + n * e;
      if (c->weighs)
        for (int64_t j = 0; j <= n; j++) t[j] *= d[j];
      for (int64_t j = n + 1; j < end; j++) t[j] = 0.0f;
    }
  }
  if (divides)
    for (int64_t i = 0; i < r; i += 16)
      attn_on_(list, f)->dots(sum + i, attn_linear_ones_, w->t + i * e, e, attn_linear_index_,
                              r - i < 16 ? r - i : 16, r < i + 16 ? r : i + 16, ATTN_F32, 0);
  if (c->scaled) f->scale_rows(w->p, m, w->p, m, r, m, c->left);
  attn_linear_times_(f, w->ask, w->y, a->wide, attn_floats_at_(w->p, m, r), 1,
                     attn_floats_at_(c->s.s, a->wide, m), a->dv, 1);
  /* a value that is not finite must not meet the zeros of rows that do not see it */
  const int64_t step = c->finite ? ATTN_LINEAR_ROWS_ : 1;
  for (int64_t i = 0, rows; i < r; i += rows) {
    rows = r - i < step ? r - i : step;
    attn_linear_times_(f, w->ask, w->y + i * a->wide, a->wide,
                       attn_floats_at_(w->t + i * e, e, rows), 1,
                       attn_floats_at_(c->v, c->v_stride, i + rows), a->dv, 0);
  }
  if (divides) {
    attn_on_(list, f)->dots(den, c->s.z, w->p, m, attn_linear_index_, r, m, ATTN_F32, 0);
    for (int64_t i = 0; i < r; i++) den[i] += sum[i];
  }
  attn_linear_divide_(a, w->y, den, c->b, h, i0, r);
}
