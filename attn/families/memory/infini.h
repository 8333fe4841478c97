/* families/memory/infini.h owns Infini-attention: a softmax within segments, and a linear memory that each segment
 * reads before it joins it. The memory of a head is S = [M | z], rows of whole vectors, so that one product gives
 * what a row reads and what that is divided by; a value's column behind the last is 1. */

/* Rows at once; keys whose sum is made by itself. */
enum { ATTN_INFINI_ROWS_ = 64, ATTN_INFINI_SUM_ = 256 };

typedef struct attn_infini_ {
  const attn_table_ *table;
  attn_tensor o, q, k, v, part; /* part: what the segments alone give */
  attn_infini_params p;
  int64_t wide, state; /* of a row of S; floats of S */
  int64_t q_off, group;
  char *memory;
  int64_t each;
} attn_infini_;

/* What a worker has for itself. */
typedef struct attn_infini_own_ {
  float *s, *s_rest; /* S and what its sums have lost */
  float *t, *t_rest; /* a segment's */
  float *u;          /* of a few keys */
  float *x, *c, *y;  /* rows: as they are, their features, products */
  float *values;     /* values with their column of ones */
} attn_infini_own_;

/* y += X w in runs that stay in the first cache; start: y = X w. */
ATTN_FUNC_ void attn_infini_times_(const attn_table_ *f, float *y, int64_t y_stride, int64_t rows,
                                   const float *x, int64_t x_stride, int64_t x_step, const float *w,
                                   int64_t w_stride, int64_t n, int64_t cols, int start) {
  for (int64_t k = 0; k < n; k += ATTN_DEEP_)
    attn_on_(dense, f)->gemm(y, y_stride, rows, x + k * x_step, x_stride, x_step, w + k * w_stride,
                             w_stride, n - k < ATTN_DEEP_ ? n - k : (int64_t)ATTN_DEEP_, cols,
                             start && k == 0);
}

/* Features of rows i .. i + n - 1 into w->c. */
ATTN_FUNC_ void attn_infini_features_(const attn_infini_ *a, const attn_infini_own_ *w,
                                      const attn_tensor *t, int64_t b, int64_t h, int64_t i,
                                      int64_t n) {
  a->table->widen(w->x, attn_at_(t, b, h, i), t->stride_len, NULL, n, t->dim, t->dtype, NULL);
  attn_on_(feature, a->table)->elu1(w->c, w->x, n * t->dim, 1.0f);
}

/* Products of n rows of features with S, and 1 / what they are divided by, 0 where that is none. */
ATTN_FUNC_ void attn_infini_read_(const attn_infini_ *a, const attn_infini_own_ *w, int64_t n,
                                  float *by) {
  const int64_t dk = a->q.dim, dv = a->v.dim;
  attn_infini_times_(a->table, w->y, a->wide, n, w->c, dk, 1, w->s, a->wide, dk, dv + 1, 1);
  for (int64_t r = 0; r < n; r++) {
    const float den = w->y[r * a->wide + dv];
    by[r] = den < FLT_MIN ? 0.0f : 1.0f / den;
  }
}

/* Rows of head h, queries i0 .. i1 - 1: their share of the memory joins that of the segment. */
ATTN_FUNC_ void attn_infini_rows_(const attn_infini_ *a, const attn_infini_own_ *w, int64_t b,
                                  int64_t h, int64_t i0, int64_t i1) {
  const attn_tensor *q = a->p.q_plain.data ? &a->p.q_plain : &a->q;
  const double beta = a->p.beta ? (double)a->p.beta[h] : 0.0;
  const double gate = 1.0 / (1.0 + attn_exp_f64_(-beta));
  float by[ATTN_INFINI_ROWS_];
  for (int64_t i = i0, n; i < i1; i += n) {
    n = i1 - i < ATTN_INFINI_ROWS_ ? i1 - i : (int64_t)ATTN_INFINI_ROWS_;
    if (gate > 0.0) {
      attn_infini_features_(a, w, q, b, h, i, n);
      attn_infini_read_(a, w, n, by);
    }
    for (int64_t r = 0; r < n; r++) {
      const void *part = attn_at_(&a->part, b, h, i + r);
      void *to = attn_at_(&a->o, b, h, i + r);
      if (gate > 0.0)
        a->table->blend(to, w->y + r * a->wide, part, a->o.dtype, ATTN_F32, ATTN_F32, a->o.dim,
                        (float)(gate * (double)by[r]), (float)(1.0 - gate));
      else if (to != part)
        a->table->blend(to, part, NULL, a->o.dtype, ATTN_F32, ATTN_F32, a->o.dim, 1.0f, 0.0f);
    }
  }
}

/* Tokens that an entry has. */
ATTN_FUNC_ int64_t attn_infini_len_(const attn_infini_ *a, int64_t b) {
  return a->p.len ? a->p.len[b] : a->k.len;
}

/* Rows of tokens that do not exist. */
ATTN_FUNC_ void attn_infini_absent_(const attn_infini_ *a, int64_t b, int64_t h, int64_t i) {
  for (; i < a->q.len; i++)
    a->table->blend(attn_at_(&a->o, b, h, i), NULL, NULL, a->o.dtype, ATTN_F32, ATTN_F32, a->o.dim,
                    0.0f, 0.0f);
}

/* Keys j0 .. j1 - 1 of a segment join the memory. */
ATTN_FUNC_ void attn_infini_keys_(const attn_infini_ *a, const attn_infini_own_ *w, int64_t b,
                                  int64_t h, int64_t j0, int64_t j1) {
  const attn_table_ *f = a->table;
  const attn_tensor *k = a->p.k_plain.data ? &a->p.k_plain : &a->k;
  const int64_t dk = a->q.dim, dv = a->v.dim, wide = a->wide;
  float by[ATTN_INFINI_ROWS_];
  memset(w->t, 0, (size_t)a->state * sizeof(float));
  memset(w->t_rest, 0, (size_t)a->state * sizeof(float));
  for (int64_t j = j0, n, pending = 0; j < j1; j += n) {
    n = j1 - j < ATTN_INFINI_ROWS_ ? j1 - j : (int64_t)ATTN_INFINI_ROWS_;
    attn_infini_features_(a, w, k, b, h, j, n);
    if (a->p.delta) attn_infini_read_(a, w, n, by);
    for (int64_t r = 0; r < n; r++) {
      float *v = w->values + r * wide;
      f->widen(v, attn_at_(&a->v, b, h, j + r), 0, NULL, 1, dv, a->v.dtype, NULL);
      v[dv] = 1.0f;
      if (a->p.delta)
        f->blend(v, w->y + r * wide, v, ATTN_F32, ATTN_F32, ATTN_F32, dv, -by[r], 1.0f);
    }
    attn_infini_times_(f, w->u, wide, dk, w->c, 1, dk, w->values, wide, n, wide, pending == 0);
    pending += n;
    if (pending < ATTN_INFINI_SUM_ && j + n < j1) continue;
    attn_on_(state, f)->accrue(w->t, w->t_rest, w->u, a->state, 1.0, 1.0f);
    pending = 0;
  }
  attn_on_(state, f)->accrue(w->s, w->s_rest, w->t, a->state, 1.0, 1.0f);
  attn_on_(state, f)->accrue(w->s, w->s_rest, w->t_rest, a->state, 1.0, 1.0f);
}

/* S from what was kept, or to it. */
ATTN_FUNC_ void attn_infini_carry_(const attn_infini_ *a, float *s, int64_t b, int64_t h, int out) {
  if (!a->p.memory.data) return;
  for (int64_t r = 0; r < a->q.dim; r++, s += a->wide) {
    float *m = (float *)(void *)attn_at_(&a->p.memory, b, h, r);
    float *z = (float *)(void *)attn_at_(&a->p.z, b, h, 0) + r;
    if (out) {
      attn_row_one_nan_(a->table, s, a->v.dim + 1);
      memcpy(m, s, (size_t)a->v.dim * sizeof *m), *z = s[a->v.dim];
    } else {
      memcpy(s, m, (size_t)a->v.dim * sizeof *m), s[a->v.dim] = *z;
    }
  }
}

/* All segments of a head of keys, one after the other. */
ATTN_FUNC_ void attn_infini_item_(void *job, int worker, int64_t index) {
  const attn_infini_ *a = (const attn_infini_ *)job;
  const int64_t b = index / a->k.heads, h = index % a->k.heads;
  const int64_t keys = attn_infini_len_(a, b), there = keys > a->q_off ? keys - a->q_off : 0;
  const int64_t l = a->p.segment, rows = ATTN_INFINI_ROWS_, dk = a->q.dim;
  float *at = (float *)(void *)(a->memory + worker * a->each);
  attn_infini_own_ w;
  w.s = at, w.s_rest = at + a->state, w.t = at + 2 * a->state, w.t_rest = at + 3 * a->state;
  w.u = at + 4 * a->state, w.y = at + 5 * a->state, w.values = w.y + rows * a->wide;
  w.x = w.values + rows * a->wide, w.c = w.x + rows * dk;
  memset(w.s, 0, (size_t)(2 * a->state) * sizeof(float));
  memset(w.values, 0, (size_t)(rows * a->wide) * sizeof(float));
  attn_infini_carry_(a, w.s, b, h, 0);
  for (int64_t j = 0, n; j < keys; j += n) {
    n = keys - j < l ? keys - j : l;
    const int64_t first = j > a->q_off ? j - a->q_off : 0, end = j + n - a->q_off;
    for (int64_t g = 0; g < a->group && first < end; g++)
      attn_infini_rows_(a, &w, b, h * a->group + g, first, end);
    const int last = j + n == keys;
    if ((last && a->p.open && n < l) || (last && !a->p.memory.data)) break; /* nobody reads it */
    attn_infini_keys_(a, &w, b, h, j, j + n);
  }
  attn_infini_carry_(a, w.s, b, h, 1);
  for (int64_t g = 0; g < a->group; g++) attn_infini_absent_(a, b, h * a->group + g, there);
}

/* ---- steps --------------------------------------------------------------------------------------*/

/* Causal attention of queries i0 .. over keys j0 .. of an entry: `runs` segments of n keys, whose last m are the
 * queries. */
ATTN_COLD_ int attn_infini_part_(attn_stage_ *s, const attn_infini_ *a, int64_t b, int64_t i0,
                                 int64_t m, int64_t j0, int64_t n, int64_t runs) {
  const attn_tensor *from[4] = {&a->part, &a->q, &a->k, &a->v};
  attn_tensor t[4];
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.causal = 1, p.scale = a->p.scale;
  for (int i = 0; i < 4; i++) {
    t[i] = attn_stage_rows_(attn_stage_entry_(*from[i], b), i < 2 ? i0 : j0, i < 2 ? m : n);
    if (runs > 1) t[i].batch = runs, t[i].stride_batch = t[i].len * t[i].stride_len;
  }
  return attn_stage_sdpa_(s, t[0], t[1], t[2], t[3], &p);
}

ATTN_COLD_ int attn_infini_steps_(attn_stage_ *s, void *job) {
  attn_infini_ *a = (attn_infini_ *)job;
  const int64_t l = a->p.segment, off = a->q_off;
  const int alike = !s->run && !a->p.len && a->q.batch > 0;
  const int64_t entries = alike ? 1 : a->q.batch;
  a->part = attn_stage_part_(s, &a->o);
  for (int64_t b = 0; b < entries && a->q.len > 0; b++) {
    const int64_t keys = attn_infini_len_(a, b), whole = keys / l * l;
    const int64_t begin = off / l * l, next = attn_add_(begin, l) < keys ? begin + l : keys;
    int64_t at = off;
    if (off >= keys) continue; /* none of the rows exists */
    if (off > begin) {         /* in the middle of a segment */
      if (!attn_infini_part_(s, a, b, 0, next - off, begin, next - begin, 1)) return 0;
      at = next;
    }
    if (at < whole && !attn_infini_part_(s, a, b, at - off, l, at, l, (whole - at) / l)) return 0;
    if (at < whole) at = whole;
    if (at < keys && !attn_infini_part_(s, a, b, at - off, keys - at, at, keys - at, 1)) return 0;
  }
  a->each = attn_piece_(attn_add_(attn_mul_(5, a->state),
                                  attn_mul_(2 * ATTN_INFINI_ROWS_, attn_add_(a->wide, a->q.dim))),
                        sizeof(float));
  return attn_stage_for_(s, attn_mul_(a->k.batch, a->k.heads), attn_infini_item_, a, a->each,
                         &a->memory);
}

/* ---- checks -------------------------------------------------------------------------------------*/

ATTN_COLD_ int attn_infini_check_(attn_error_ *e, attn_infini_ *a, const attn_ctx *ctx, int query) {
  enum { O, Q, K, V, QP, KP, M, Z, COUNT };
  const int maybe = ATTN_OPTIONAL_, kept = ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_;
  const int64_t any = ATTN_ANY_;
  attn_infini_params *p = &a->p;
  const attn_tensor *q = &a->q, *k = &a->k;
  attn_span_ more[2];
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&a->o, "o", ATTN_OUT_, q->batch, q->heads, q->len, a->v.dim,
                    "o must be [q.batch, q.heads, q.len, v.dim]"),
      ATTN_OPERAND_(&a->q, "q", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&a->k, "k", 0, q->batch, ATTN_DIVIDES_, any, q->dim,
                    "k must be [q.batch, Hkv, Tk, q.dim], Hkv a divisor of q.heads"),
      ATTN_OPERAND_(&a->v, "v", 0, q->batch, k->heads, k->len, any,
                    "v must be [q.batch, k.heads, k.len, dv]"),
      ATTN_OPERAND_(&p->q_plain, "params.q_plain", maybe, q->batch, q->heads, q->len, q->dim,
                    "params.q_plain must have the shape of q"),
      ATTN_OPERAND_(&p->k_plain, "params.k_plain", maybe, q->batch, k->heads, k->len, q->dim,
                    "params.k_plain must have the shape of k"),
      ATTN_OPERAND_(&p->memory, "params.memory", kept, q->batch, k->heads, q->dim, a->v.dim,
                    "params.memory must be f32 [q.batch, k.heads, q.dim, v.dim]"),
      ATTN_OPERAND_(&p->z, "params.z", kept, q->batch, k->heads, 1, q->dim,
                    "params.z must be f32 [q.batch, k.heads, 1, q.dim]")};
  if (p->segment < 1) return attn_reject_(e, ATTN_E_RANGE, "params.segment must be at least 1");
  if (!p->memory.data != !p->z.data || !p->q_plain.data != !p->k_plain.data)
    return attn_reject_(e, ATTN_E_NULL,
                        "params.memory and .z go together, as q_plain and k_plain do");
  if (!attn_check_given_(e, op, COUNT)) return 0;
  for (int i = 0; i < COUNT; i++)
    if (!attn_check_operand_(e, &op[i], q->heads)) return 0;
  if (q->len > k->len) return attn_reject_(e, ATTN_E_SHAPE, "q.len must not pass k.len");
  if (!attn_check_scale_(e, p->scale) ||
      !attn_check_array_(e, p->beta, q->heads, 4, "params.beta must be aligned to its elements",
                         &more[0]) ||
      !attn_check_array_(e, p->len, q->batch, 4, "params.len must be aligned to its elements",
                         &more[1]) ||
      !attn_check_apart_(e, ctx, op, COUNT, more, 2) ||
      !attn_check_lens_(e, p->len, q->batch, k->len, "params.len must lie in 0..k.len"))
    return 0;
  for (int64_t h = 0; !query && p->beta && h < q->heads; h++)
    if (p->beta[h] != p->beta[h])
      return attn_reject_(e, ATTN_E_VALUE, "params.beta must not be NaN");
  a->q_off = k->len - q->len, a->group = k->heads ? q->heads / k->heads : 0;
  a->wide = attn_mul_(attn_add_(a->v.dim, 16) / 16, 16), a->state = attn_mul_(q->dim, a->wide);
  return 1;
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_infini_call_(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                         const attn_infini_params *params, attn_ctx *ctx,
                                         size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_infini_ a;
  int workers = 1, fine = 0;
  memset(&a, 0, sizeof a);
  a.o = o, a.q = q, a.k = k, a.v = v;
  if (params) a.p = *params;
  if (attn_check_ctx_(&e, ctx, &a.table, &workers))
    fine = attn_infini_check_(&e, &a, ctx, bytes != NULL);
  return attn_step_call_or_(&e, a.table, workers, ctx, attn_infini_steps_, &a,
                            "segments and a linear memory",
                            fine && (!q.batch || !q.heads || !k.len) ? "no keys" : NULL, bytes);
}
ATTN_CALL_(attn_infini, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_infini_params *params)
