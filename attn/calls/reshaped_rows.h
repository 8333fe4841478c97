/* calls/reshaped_rows.h owns what the engine calls while attn_reshaped runs: factors and forgetting of rows,
 * weights of blocks, and gates. */

typedef struct attn_reshaped_job_ {
  attn_reshape_ reshape; /* what the engine is told */
  const attn_reshaped_params *p;
  attn_tensor log_f, gate, cope, w, beta;
  attn_forget_sum *sums;         /* [B][heads of log_f][Tk] */
  int late;                      /* SSMAX multiplies finished scores, not queries */
  int64_t at_less, at_fade;      /* of SELECTIVE, in the memory of prepare */
  int64_t at_path, at_path_tile; /* of PATH, there and in that of a tile */
  char *memory;
  double *fade; /* [B][Tk] what earlier rows take from a key's scores, natural */
  float *less;  /* [B][Tk][tile] the same for each row of a tile, log2; null while it is made */
  int64_t tile;
  attn_qk_rows_ norm[2]; /* of queries, of keys */
  int64_t at_sizes;      /* in the memory of prepare, of many tiles: what keys are divided by, */
  float *sizes;          /* [B][Hk][Tk][3] */
} attn_reshaped_job_;

ATTN_FUNC_ const attn_reshaped_job_ *attn_reshaped_of_(const attn_softmax_ *a) {
  return (const attn_reshaped_job_ *)a->reshape->user;
}

/* A number that is x, or what stands for 0. */
ATTN_FUNC_ double attn_or_(float x, double usual) {
  return x == 0.0f && !attn_to_bits_(x) ? usual : (double)x;
}

/* ---- norms --------------------------------------------------------------------------------------*/

/* Rows of a tile are those of one head, or heads of one token after the other. */
ATTN_FUNC_ void attn_reshaped_queries_(const attn_tile_ *t, const void **q) {
  const attn_softmax_ *a = t->a;
  const attn_qk_rows_ *g = &attn_reshaped_of_(a)->norm[0];
  float *y = t->w.reshape;
  for (int r = 0, n; r < t->n; r += n) {
    const int64_t h = t->head[r], i = t->row[r];
    int each = 1;
    for (n = 1; r + n < t->n && t->row[r + n] == i && t->head[r + n] == h + n;) n++;
    if (n == 1)
      for (each = 0; r + n < t->n && t->row[r + n] == i + n && t->head[r + n] == h;) n++;
    attn_qk_norm_rows_(g, a->table, y + r * a->q.dim, q[r],
                       each ? a->q.stride_head : a->q.stride_len, a->q.dtype, n, h, each);
  }
  for (int r = 0; r < t->n; r++) q[r] = y + r * a->q.dim;
}

/* What a block of keys of one head is divided by, for all tiles. */
ATTN_FUNC_ void attn_reshaped_sizes_item_(void *job, int worker, int64_t index) {
  const attn_softmax_ *a = (const attn_softmax_ *)job;
  const attn_reshaped_job_ *j = attn_reshaped_of_(a);
  const int64_t blocks = (a->k.len + ATTN_BLOCK_ - 1) / ATTN_BLOCK_, unit = index / blocks;
  const int64_t h = unit % a->k.heads, batch = unit / a->k.heads;
  attn_block_ b;
  attn_scratch_ w;
  attn_scratch_cut_(a, worker, &w);
  b.gathered = 0, b.j0 = index % blocks * ATTN_BLOCK_;
  const int64_t left = attn_len_of_(a->kv_len, batch, a->k.len) - b.j0;
  b.n = left < ATTN_BLOCK_ ? (int)left : ATTN_BLOCK_;
  if (left <= 0) return;
  b.k = attn_block_rows_(a, &b, &a->k, &a->k_scales, batch, h, w.k, &b.k_stride);
  attn_qk_sizes_(&j->norm[1], a->table, j->sizes + 3 * (unit * a->k.len + b.j0), b.k, b.k_stride,
                 a->k.dim, b.n, h, 0);
}

ATTN_FUNC_ void attn_reshaped_keys_of_(const attn_tile_ *t, attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  const attn_reshaped_job_ *j = attn_reshaped_of_(a);
  const attn_norm_rows_ rows = {t->w.k, NULL, b->k, NULL, a->k.dim, 0, b->k_stride, 0, a->k.dim};
  const int64_t at = (t->batch * a->k.heads + t->head_k) * a->k.len + b->j0;
  if (j->sizes)
    attn_qk_resize_(&j->norm[1], a->table, &rows, b->n, j->sizes + 3 * at, t->head_k, 0);
  else
    attn_qk_norm_rows_(&j->norm[1], a->table, t->w.k, b->k, b->k_stride, ATTN_F32, b->n, t->head_k,
                       0);
  b->k = t->w.k, b->k_stride = a->k.dim;
}

/* ---- sums of log f --------------------------------------------------------------------------*/

ATTN_FUNC_ attn_forget_sum *attn_forgotten_(const attn_softmax_ *a, int64_t b, int64_t h) {
  const attn_reshaped_job_ *j = attn_reshaped_of_(a);
  const int64_t heads = j->log_f.heads;
  return j->sums + (b * heads + h / (a->q.heads / heads)) * a->k.len;
}

/* One head of log f: those of the keys that are not known yet. */
ATTN_FUNC_ void attn_forget_item_(void *job, int worker, int64_t index) {
  const attn_softmax_ *a = (const attn_softmax_ *)job;
  const attn_reshaped_job_ *j = attn_reshaped_of_(a);
  const attn_tensor *f = &j->log_f;
  const int64_t b = index / f->heads, h = index % f->heads, n = attn_len_of_(a->kv_len, b, f->len);
  attn_forget_sum *x = j->sums + index * f->len, at = {0.0, 0};
  int64_t i = j->p->forget.sums ? j->p->forget.known : 0;
  (void)worker;
  if (i > 0 && i < n) at = x[i - 1];
  for (; i < n; i++) {
    const float y = attn_number_(attn_at_(f, b, h, i), 0, f->dtype, NULL);
    if (y == -INFINITY)
      at.sum = 0.0, at.since = i;
    else
      at.sum += (double)y;
    x[i] = at;
  }
}

/* Nothing has been taken from keys that no row before this call has seen. */
ATTN_FUNC_ void attn_selective_prepare_(const attn_softmax_ *a, attn_reshaped_job_ *j,
                                        char *memory) {
  const int64_t n = a->k.len, from = a->q_off < 0 ? 0 : a->q_off;
  j->fade = j->p->selective.sums;
  if (!j->fade) j->fade = (double *)(void *)(memory + j->at_fade);
  for (int64_t b = 0; b < a->q.batch; b++)
    for (int64_t key = from; key < n; key++) j->fade[b * n + key] = 0.0;
}

ATTN_FUNC_ void attn_path_prepare_(const attn_softmax_ *a, attn_ctx *ctx, int workers);
ATTN_FUNC_ void attn_reshaped_prepare_(const attn_softmax_ *a, char *memory, attn_ctx *ctx,
                                       int workers) {
  attn_reshaped_job_ *j = (attn_reshaped_job_ *)(uintptr_t)a->reshape->user;
  const int64_t items = a->q.batch * j->log_f.heads;
  j->memory = memory;
  if (!j->p->forget.sums) j->sums = (attn_forget_sum *)(void *)memory;
  if (j->log_f.data)
    attn_for_(ctx, attn_pieces_(workers, items), items, attn_forget_item_, (void *)(uintptr_t)a);
  if (j->p->selective.on) attn_selective_prepare_(a, j, memory);
  if (j->w.data) attn_path_prepare_(a, ctx, workers);
  if (j->at_sizes >= 0) {
    const int64_t blocks = a->k.heads * ((a->k.len + ATTN_BLOCK_ - 1) / ATTN_BLOCK_);
    j->sizes = (float *)(void *)(memory + j->at_sizes);
    attn_for_(ctx, attn_pieces_(workers, a->q.batch * blocks), a->q.batch * blocks,
              attn_reshaped_sizes_item_, (void *)(uintptr_t)a);
  }
}

/* The sum at the position of row r; null: it sees no key. */
ATTN_FUNC_ const attn_forget_sum *attn_forget_at_(const attn_tile_ *t, int r) {
  const attn_softmax_ *a = t->a;
  const int64_t keys = attn_len_of_(a->kv_len, t->batch, a->k.len);
  const int64_t at = t->pos[r] < keys ? t->pos[r] : keys - 1;
  return at < 0 ? NULL : attn_forgotten_(a, t->batch, t->head[r]) + at;
}

/* In log2 units and in two floats, so that differences lose nothing. */
ATTN_FUNC_ void attn_forget_split_(double sum, float *hi, float *lo) {
  const double x = sum * ATTN_LOG2E_;
  *hi = (float)x, *lo = (float)(x - (double)*hi);
}

/* Whether the key at a row's own position is none. */
ATTN_FUNC_ int attn_reshaped_strict_(const attn_softmax_ *a) {
  const attn_reshaped_params *p = attn_reshaped_of_(a)->p;
  return p->kind == ATTN_RESHAPE_STICK && !p->include_self;
}

ATTN_FUNC_ void attn_reshaped_bound_(attn_tile_ *t, int r) {
  const attn_softmax_ *a = t->a;
  const attn_forget_sum *at = attn_reshaped_of_(a)->log_f.data ? attn_forget_at_(t, r) : NULL;
  if (attn_reshaped_strict_(a) && t->hi[r] > t->pos[r]) t->hi[r] = t->pos[r];
  if (at && at->since > t->lo[r]) t->lo[r] = at->since;
}

/* ---- rows -----------------------------------------------------------------------------------*/

/* The keys that lengths and windows leave row r. */
ATTN_FUNC_ int64_t attn_row_keys_(const attn_tile_ *t, int r) {
  const attn_softmax_ *a = t->a;
  const int64_t keys = attn_len_of_(a->kv_len, t->batch, a->k.len), p = t->pos[r];
  const attn_forget_sum *at = attn_reshaped_of_(a)->log_f.data ? attn_forget_at_(t, r) : NULL;
  const int64_t since = at && at->since > 0 ? at->since : 0;
  if (t->row[r] >= attn_len_of_(a->q_len, t->batch, a->q.len)) return 0;
  const int64_t hi = attn_clamp_(p + a->right + !attn_reshaped_strict_(a), 0, keys);
  int64_t near = attn_clamp_(p - a->left, 0, keys), n = 0;
  if (a->keep) {
    const int64_t end = a->keep < hi ? a->keep : hi;
    if (end > since) n = end - since;
    if (near < a->keep) near = a->keep;
  }
  if (near < since) near = since;
  return hi > near ? n + hi - near : n;
}

/* n_i */
ATTN_FUNC_ double attn_reshaped_keys_(const attn_tile_ *t, int r) {
  const attn_softmax_ *a = t->a;
  double n = a->reshape->tally
                 ? (double)a->state_n[attn_row_number_(a, t->batch, t->head[r], t->row[r])]
                 : (double)attn_row_keys_(t, r);
  return n > 1.0 ? n : 1.0;
}

ATTN_FUNC_ double attn_temperature_at_(const attn_temperature *x, int64_t position) {
  double p = (double)position + attn_or_(x->shift, 1.0);
  if (p < 0.0) p = 0.0;
  return 1.0 + attn_or_(x->beta, 0.1) * log(floor(p / attn_or_(x->interval, 8192.0)) + 1.0);
}

/* q . e of the rows of a tile, in log2 units, a row each: neighbours in a row are what a key and the next one read.
 * Rows begin a line apart in the sets of a cache. Behind them the queries without their scale. */
ATTN_FUNC_ int64_t attn_cope_stride_(const attn_tensor *table) {
  return attn_add_(table->len, 2 * ATTN_GROUP_ - 1) & ~(int64_t)(ATTN_GROUP_ - 1);
}
ATTN_FUNC_ void attn_cope_open_(attn_tile_ *t, const attn_tensor *table) {
  const attn_softmax_ *a = t->a;
  const int64_t stride = attn_cope_stride_(table);
  const float hi = (float)ATTN_LOG2E_;
  const void *q[ATTN_TILE_];
  void *row[ATTN_TILE_];
  float *qt = t->w.reshape + stride * ATTN_TILE_;
  for (int r = 0; r < t->n; r++) q[r] = attn_at_(&a->q, t->batch, t->head[r], t->row[r]);
  a->table->pack(qt, q, t->n, a->q.dim, (int)a->q.dtype, hi, (float)(ATTN_LOG2E_ - (double)hi));
  int64_t first, last, rows = 1; /* a row with n keys ends at position n at most */
  if (attn_tile_keys_(t, &first, &last)) rows = last - first + 2;
  if (rows > table->len) rows = table->len;
  for (int64_t at = 0, n; at < rows; at += n) {
    n = rows - at < ATTN_BLOCK_ ? rows - at : ATTN_BLOCK_;
    attn_on_(tile, a->table)
        ->score_block(t->w.s, qt, attn_table_row_(table, t->head[0], at), table->stride_len, n,
                      a->q.dim, 0, t->groups, t->spare);
    for (int r = 0; r < ATTN_TILE_; r++) row[r] = t->w.reshape + r * stride + at;
    a->table->unpack(row, t->w.s, t->groups * ATTN_GROUP_, n, ATTN_F32, NULL);
  }
}

ATTN_FUNC_ int attn_reshaped_open_(attn_tile_ *t, float *by) {
  const attn_softmax_ *a = t->a;
  const attn_reshaped_job_ *j = attn_reshaped_of_(a);
  const attn_reshaped_params *p = j->p;
  const double all = (double)attn_len_of_(a->kv_len, t->batch, a->k.len);
  for (int r = 0; r < ATTN_TILE_; r++)
    t->late_top[r] = -INFINITY, t->late_by[r] = t->late_hi[r] = t->late_lo[r] = t->shift[r] = 0.0f;
  if (j->cope.data) attn_cope_open_(t, &j->cope);
  for (int r = 0; r < t->n; r++) {
    double x = 1.0;
    if (p->temperature.on) x = attn_temperature_at_(&p->temperature, t->pos[r]);
    if (p->ssmax.scale) {
      const double s = (double)p->ssmax.scale[t->head[r]];
      const double c = s * log(attn_reshaped_keys_(t, r)) +
                       (p->ssmax.bias ? (double)p->ssmax.bias[t->head[r]] : 0.0);
      t->late_by[r] = (float)attn_clamp_f64_(c);
      if (!j->late) x *= c;
    }
    by[r] = (float)attn_clamp_f64_(x);
    if (j->log_f.data) {
      const attn_forget_sum *at = attn_forget_at_(t, r);
      if (at) attn_forget_split_(at->sum, &t->late_hi[r], &t->late_lo[r]);
    }
    if (p->kind == ATTN_RESHAPE_SIGMOID) {
      const double n = p->by_row ? attn_reshaped_keys_(t, r) : all > 1.0 ? all : 1.0;
      t->shift[r] = (float)attn_clamp_f64_((p->has_bias ? (double)p->bias : -log(n)) * ATTN_LOG2E_);
    }
  }
  return p->temperature.on || (p->ssmax.scale && !j->late);
}

/* ---- scores and weights ---------------------------------------------------------------------*/

/* A block whose scores are complete: positions count from its last key. */
ATTN_FUNC_ void attn_reshaped_cope_(attn_tile_ *t, const attn_block_ *b) {
  const attn_tensor *table = &attn_reshaped_of_(t->a)->cope;
  if (t->stretch < 0) memset(t->gates, 0, sizeof t->gates); /* the first block of a sweep */
  for (int r = 0; r < ATTN_TILE_; r++) t->top[r] = -INFINITY;
  for (int g = 0, to; g < t->groups; g = to) {
    to = attn_block_alike_(t, b, g);
    if (b->end[g] > b->first[g])
      attn_on_(reshape, t->a->table)
          ->cope_block(t->w.s + b->first[g] * ATTN_TILE_, b->end[g] - b->first[g], g, to,
                       t->w.reshape, attn_cope_stride_(table), table->len - 1, t->gates[0],
                       t->gates[1], t->top);
  }
}

ATTN_FUNC_ void attn_reshaped_late_(attn_tile_ *t, const attn_block_ *b, int at, int n, int g0,
                                    int g1) {
  const attn_reshaped_job_ *j = attn_reshaped_of_(t->a);
  float hi[ATTN_BLOCK_], lo[ATTN_BLOCK_];
  if (!n) {
    memcpy(t->top, t->late_top, sizeof t->top);
    for (int r = 0; r < ATTN_TILE_; r++) t->late_top[r] = -INFINITY;
    if (j->cope.data) attn_reshaped_cope_(t, b);
    return;
  }
  if (!j->late && !j->log_f.data && !j->less) return;
  attn_late_terms_ x = {j->late ? t->late_by : NULL, t->late_hi, t->late_lo, NULL, NULL, NULL};
  if (j->less) x.less = j->less + (t->batch * t->a->k.len + attn_block_key_(b, at)) * ATTN_TILE_;
  if (j->log_f.data) {
    const attn_forget_sum *sum = attn_forgotten_(t->a, t->batch, t->head[0]);
    for (int e = 0; e < n; e++)
      attn_forget_split_(sum[attn_block_key_(b, at + e)].sum, &hi[e], &lo[e]);
    x.key_hi = hi, x.key_lo = lo;
  }
  attn_on_(reshape, t->a->table)->late_block(t->w.s + at * ATTN_TILE_, n, g0, g1, &x, t->late_top);
}

ATTN_FUNC_ void attn_reshaped_late_list_(attn_tile_ *t, int32_t *const *index, const int *count) {
  const attn_reshaped_job_ *j = attn_reshaped_of_(t->a);
  for (int r = 0; r < t->n; r++) {
    t->top[r] = -INFINITY;
    for (int e = 0; e < count[r]; e++) {
      float *x = &t->w.s[e * ATTN_TILE_ + r], hi, lo;
      if (*x == -INFINITY) continue;
      if (j->late) *x *= t->late_by[r];
      if (j->log_f.data) {
        const attn_forget_sum *sum = attn_forgotten_(t->a, t->batch, t->head[r]);
        attn_forget_split_(sum[index[r][e]].sum, &hi, &lo);
        *x += (t->late_hi[r] - hi) + (t->late_lo[r] - lo);
      }
      if (*x > t->top[r]) t->top[r] = *x;
    }
  }
}

ATTN_FUNC_ void attn_reshaped_tally_(attn_tile_ *t, float *s, int64_t keys, int g0, int g1) {
  attn_on_(relu, t->a->table)->relu_block(s, keys, g0, g1, 0, t->l, t->count);
}

ATTN_FUNC_ void attn_reshaped_sigmoid_(attn_tile_ *t, float *s, int64_t keys, int g0, int g1) {
  attn_on_(reshape, t->a->table)->sigmoid_block(s, keys, g0, g1, t->shift, t->l);
}

/* count and m are the sum of what later keys have taken, as stick_block has it. */
ATTN_FUNC_ void attn_reshaped_stick_(attn_tile_ *t, float *s, int64_t keys, int g0, int g1) {
  attn_on_(reshape, t->a->table)->stick_block(s, keys, g0, g1, t->count, t->m, t->l);
}

ATTN_FUNC_ void attn_reshaped_softpick_(attn_tile_ *t, float *s, int64_t keys, int g0, int g1) {
  attn_on_(reshape, t->a->table)->softpick_block(s, keys, g0, g1, t->m, t->l, t->alpha, t->top);
}

/* ---- the end of a tile ----------------------------------------------------------------------*/

/* The sums of sigmoids. */
ATTN_FUNC_ void attn_reshaped_sums_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  for (int r = 0; a->lse.data && r < t->n; r++) {
    const float l = t->l[r] == t->l[r] ? t->l[r] : attn_from_bits_(0x7fc00000u);
    memcpy(attn_at_(&a->lse, t->batch, t->head[r], t->row[r]), &l, sizeof l);
  }
}

/* The sums of sticks, and what is left of them. */
ATTN_FUNC_ void attn_reshaped_left_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const int64_t keys = attn_len_of_(a->kv_len, t->batch, a->k.len),
                rows = attn_len_of_(a->q_len, t->batch, a->q.len);
  float left[ATTN_TILE_];
  attn_reshaped_sums_(t);
  if (!attn_reshaped_of_(a)->p->remainder) return;
  for (int r = 0; r < t->n; r++) left[r] = -(t->count[r] + (t->m[r] == -INFINITY ? 0.0f : t->m[r]));
  a->table->weights(left, left, t->n, 0.0f, 1.0f);
  for (int r = 0; r < t->n; r++) {
    const int64_t p = t->pos[r];
    if (p < 0 || p >= keys || t->row[r] >= rows || left[r] == 0.0f) continue;
    const char *row = attn_at_(&a->v, t->batch, t->head_v, p);
    const attn_rows_scale_ s = attn_scales_at_(&a->v_scales, t->batch, t->head_v, p);
    for (int64_t c = 0; c < a->v.dim; c++)
      t->w.ot[c * ATTN_TILE_ + r] += left[r] * attn_number_(row, c, a->v.dtype, &s);
    t->l[r] += left[r];
  }
}

ATTN_FUNC_ void attn_reshaped_picked_(attn_tile_ *t) {
  for (int r = 0; r < t->n; r++) t->scale[r] = (float)(1.0 / ((double)t->l[r] + 1e-8));
}

/* e^-x for n numbers of gates; 0 for lanes whose row has no weight. */
ATTN_FUNC_ void attn_gate_powers_(const attn_tile_ *t, float *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) x[i] = -x[i];
  t->a->table->exp(x, x, n);
}

ATTN_FUNC_ void attn_reshaped_gate_(attn_tile_ *t, float *o, int64_t width) {
  const attn_tensor *g = &attn_reshaped_of_(t->a)->gate;
  const int64_t dv = t->a->v.dim;
  const void *rows[ATTN_TILE_];
  const int64_t columns = ATTN_GROUP_, most = columns * ATTN_TILE_;
  float x[ATTN_GROUP_ * ATTN_TILE_];
  if (g->dim == 1) {
    for (int r = 0; r < t->n; r++)
      x[r] = attn_number_(attn_at_(g, t->batch, t->head[r], t->row[r]), 0, g->dtype, NULL);
    attn_gate_powers_(t, x, t->n);
    for (int r = 0; r < t->n; r++)
      if (t->l[r] != 0.0f) t->scale[r] /= 1.0f + x[r];
    return;
  }
  for (int r = 0; o && r < t->n; r++)
    for (int64_t c = 0, n; t->l[r] != 0.0f && c < dv; c += n) {
      n = dv - c < most ? dv - c : most;
      const char *row = attn_at_(g, t->batch, t->head[r], t->row[r]) + attn_bytes_(g->dtype, c);
      t->a->table->widen(x, row, 0, NULL, 1, n, g->dtype, NULL);
      attn_gate_powers_(t, x, n);
      for (int64_t i = 0; i < n; i++) o[r * width + c + i] /= 1.0f + x[i];
    }
  for (int64_t c = 0, n; !o && c < dv; c += n) {
    n = dv - c < columns ? dv - c : columns;
    for (int r = 0; r < t->n; r++)
      rows[r] = attn_at_(g, t->batch, t->head[r], t->row[r]) + attn_bytes_(g->dtype, c);
    t->a->table->pack(x, rows, t->n, n, (int)g->dtype, 1.0f, attn_least_(1.0f));
    for (int64_t i = 0; i < n; i++) {
      float *y = x + i * ATTN_TILE_, *to = t->w.ot + (c + i) * ATTN_TILE_;
      attn_gate_powers_(t, y, t->n);
      for (int r = 0; r < t->n; r++)
        if (t->l[r] != 0.0f) to[r] /= 1.0f + y[r];
    }
  }
}
