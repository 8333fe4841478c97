/* families/memory/spalm.h owns SPALM: attention of hidden states over retrieved token vectors, the gate
 * that mixes it in, and the output distribution. */

typedef struct attn_spalm_job_ {
  attn_tensor z, h, y, gate, emb, log_p;
  const int32_t *index;
  const uint8_t *valid;
  const float *w_g;
  double b_g, scale;
  int64_t k;
  const attn_table_ *table;
  char *memory;
  int64_t each;
} attn_spalm_job_;

/* What one worker works in. */
typedef struct attn_spalm_room_ {
  float *z;      /* [tile][d] */
  float *h, *m;  /* [d] */
  float *x;      /* [k] scores, then weights */
  int32_t *pick; /* [k] */
  float *zt, *s; /* [d][tile], [block][tile] */
  float *wide;   /* [block][d] converted embeddings */
} attn_spalm_room_;

ATTN_FUNC_ int64_t attn_spalm_cut_(const attn_spalm_job_ *a, attn_spalm_room_ *w, char *memory) {
  const int64_t d = a->h.dim, emb = a->emb.data != NULL;
  const int64_t size[8] = {
      attn_piece_(attn_mul_(d, ATTN_TILE_), 4),
      attn_piece_(d, 4),
      attn_piece_(d, 4),
      attn_piece_(a->k, 4),
      attn_piece_(a->k, 4),
      emb ? attn_piece_(attn_mul_(d, ATTN_TILE_), 4) : 0,
      emb ? attn_piece_(ATTN_BLOCK_ * ATTN_TILE_, 4) : 0,
      emb && a->emb.dtype != ATTN_F32 ? attn_piece_(attn_mul_(d, ATTN_BLOCK_), 4) : 0};
  void *at[8];
  int64_t total = 0;
  for (int i = 0; i < 8; i++) {
    at[i] = memory ? memory + total : NULL;
    total = attn_add_(total, size[i]);
  }
  if (w) {
    w->z = (float *)at[0], w->h = (float *)at[1], w->m = (float *)at[2], w->x = (float *)at[3];
    w->pick = (int32_t *)at[4], w->zt = (float *)at[5], w->s = (float *)at[6];
    w->wide = (float *)at[7];
  }
  return total;
}

/* Turns n scores, times scale in log2 units, into weights; returns the log2 of their sum. A NaN makes
 * all of them NaN, and so does a best score that is infinite. What is rounded is a distance to the best. */
ATTN_FUNC_ double attn_row_weights_(const attn_table_ *f, float *x, int64_t n, double scale) {
  double top = -HUGE_VAL, sum = 0.0;
  for (int64_t i = 0; i < n; i++)
    if (!((double)x[i] * scale <= top)) top = (double)x[i] * scale;
  for (int64_t i = 0; i < n; i++) x[i] = (float)((double)x[i] * scale - top);
  f->weights(x, x, n, 0.0f, 1.0f);
  for (int64_t i = 0; i < n; i++) sum += (double)x[i];
  const float over = (float)(1.0 / sum);
  for (int64_t i = 0; i < n; i++) x[i] *= over;
  return sum == sum ? top + attn_log2_((float)sum) : sum;
}

/* 1 / (1 + exp(-x)), and one minus it to full precision */
ATTN_FUNC_ void attn_sigmoid_(const attn_table_ *f, double x, float *g, float *rest) {
  float e = (float)(x > 0.0 ? -x : x);
  f->exp(&e, &e, 1);
  const double small = (double)e / (1.0 + (double)e), large = 1.0 / (1.0 + (double)e);
  *g = (float)(x > 0.0 ? large : small), *rest = (float)(x > 0.0 ? small : large);
}

/* z of one position, into a row of the tile. */
ATTN_FUNC_ void attn_spalm_row_(const attn_spalm_job_ *a, const attn_spalm_room_ *w, int64_t t,
                                float *z) {
  const attn_table_ *f = a->table;
  const int64_t d = a->h.dim;
  int64_t n = 0;
  float g = 1.0f, rest = 0.0f;
  f->widen(w->h, attn_at_(&a->h, 0, 0, t), 0, NULL, 1, d, a->h.dtype, NULL);
  for (int64_t i = 0; i < a->k; i++) {
    const int32_t row = a->index ? a->index[t * a->k + i] : (int32_t)i;
    if (row >= 0 && (!a->valid || a->valid[t * a->k + i])) w->pick[n++] = row;
  }
  if (n == 0) {
    memcpy(z, w->h, (size_t)d * sizeof *z);
  } else {
    const char *rows = attn_at_(&a->y, 0, a->index ? 0 : t, 0);
    double x = a->b_g;
    if (a->w_g)
      for (int64_t c = 0; c < d; c++) x += (double)a->w_g[c] * (double)w->h[c];
    attn_sigmoid_(f, x, &g, &rest);
    attn_on_(list, f)->dots(w->x, w->h, rows, a->y.stride_len, w->pick, n, d, a->y.dtype, 0);
    attn_row_weights_(f, w->x, n, a->scale * ATTN_LOG2E_);
    memset(w->m, 0, (size_t)d * sizeof *w->m);
    attn_on_(sum, f)->axpys(w->m, w->x, rows, a->y.stride_len, w->pick, n, d, a->y.dtype, 1.0f, 0);
    f->blend(z, w->m, w->h, ATTN_F32, ATTN_F32, ATTN_F32, d, rest, g);
  }
  if (a->gate.data) memcpy(attn_at_(&a->gate, 0, 0, t), &g, sizeof g);
}

/* log softmax(z emb^T) of the n rows of a tile: the logits go out with the first pass over the
 * vocabulary, and are shifted when their sum is known. The maximum leaves them before they are scaled: as
 * a slope at a distance of 1. */
ATTN_COLD_ void attn_spalm_words_(const attn_spalm_job_ *a, const attn_spalm_room_ *w,
                                  int64_t first, int n) {
  const attn_table_ *f = a->table;
  const int groups = (n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  const void *in[ATTN_TILE_];
  void *out[ATTN_TILE_];
  static const float zero[ATTN_BLOCK_] = {0};
  float most[ATTN_TILE_], m[ATTN_TILE_], l[ATTN_TILE_], alpha[ATTN_TILE_], top[ATTN_TILE_];
  float unit[ATTN_TILE_], one[ATTN_TILE_], less[ATTN_TILE_], spare[ATTN_TILE_];
  attn_modifiers_ mod;
  memset(&mod, 0, sizeof mod);
  mod.at = zero, mod.rel = one, mod.slope = less;
  for (int r = 0; r < n; r++) in[r] = w->z + r * a->h.dim;
  for (int r = 0; r < ATTN_TILE_; r++)
    most[r] = -INFINITY, l[r] = 0.0f, unit[r] = (float)ATTN_LOG2E_, one[r] = 1.0f;
  f->pack(w->zt, in, n, a->h.dim, ATTN_F32, 1.0f, attn_least_(1.0f));
  for (int64_t v = 0; v < a->emb.len; v += ATTN_BLOCK_) {
    const int64_t count = a->emb.len - v < ATTN_BLOCK_ ? a->emb.len - v : ATTN_BLOCK_;
    const char *at = attn_at_(&a->emb, 0, 0, v);
    const float *rows = (const float *)(const void *)at;
    int64_t stride = a->emb.stride_len;
    if (a->emb.dtype != ATTN_F32) {
      f->widen(w->wide, at, stride, NULL, count, a->h.dim, a->emb.dtype, NULL);
      rows = w->wide, stride = a->h.dim;
    }
    for (int r = 0; r < ATTN_TILE_; r++) top[r] = -INFINITY;
    attn_on_(tile, f)->score_block(w->s, w->zt, rows, stride, count, a->h.dim, 0, groups, top);
    for (int r = 0; r < n; r++)
      out[r] = attn_at_(&a->log_p, 0, 0, first + r) + v * (int64_t)sizeof(float);
    f->unpack(out, w->s, n, count, ATTN_F32, NULL);
    for (int r = 0; r < ATTN_TILE_; r++) {
      const float now = top[r] > most[r] ? top[r] : most[r], base = now > -INFINITY ? now : 0.0f;
      m[r] = (most[r] - base) * unit[r], most[r] = now, less[r] = -base;
      spare[r] = -INFINITY, top[r] = now - base;
    }
    attn_on_(tile, f)->modify_block(w->s, count, 0, groups, &mod, spare);
    attn_on_(tile, f)->scale_block(w->s, count, 0, groups, unit);
    attn_on_(tile, f)->softmax_block(w->s, count, 0, groups, m, l, alpha, top, NULL);
  }
  for (int r = 0; r < n; r++) {
    char *row = attn_at_(&a->log_p, 0, 0, first + r);
    const float rest = (float)(-ATTN_LN2_ * attn_log2_(l[r]));
    if (l[r] > 0.0f)
      attn_on_(norm, f)->normalise((float *)(void *)row, a->log_p.dim, most[r], 1.0f, rest, NULL,
                                   NULL);
    else
      attn_row_add_(f, row, ATTN_F32, row, ATTN_F32, a->log_p.dim, attn_from_bits_(0x7fc00000u));
  }
}

ATTN_FUNC_ void attn_spalm_item_(void *job, int worker, int64_t tile) {
  const attn_spalm_job_ *a = (const attn_spalm_job_ *)job;
  const int64_t first = tile * ATTN_TILE_, d = a->h.dim;
  const int n = a->h.len - first < ATTN_TILE_ ? (int)(a->h.len - first) : ATTN_TILE_;
  attn_spalm_room_ w;
  attn_spalm_cut_(a, &w, a->memory + worker * a->each);
  for (int r = 0; r < n; r++) {
    float *z = w.z + r * d;
    attn_spalm_row_(a, &w, first + r, z);
    attn_row_copy_(a->table, attn_at_(&a->z, 0, 0, first + r), a->z.dtype, (const char *)z,
                   ATTN_F32, d);
  }
  if (a->emb.data) attn_spalm_words_(a, &w, first, n);
}

/* Every rule of attn_spalm; data = 0: without those that read arrays. */
ATTN_COLD_ int attn_spalm_check_(attn_error_ *e, attn_spalm_job_ *a, const attn_spalm_params *p,
                                 const attn_ctx *ctx, int data) {
  enum { H, Y, EMB, Z, GATE, LOG_P, COUNT };
  const int64_t any = ATTN_ANY_;
  attn_spalm_params zero;
  attn_span_ more[3];
  memset(&zero, 0, sizeof zero);
  if (!p) p = &zero;
  a->index = p->index, a->valid = p->valid, a->w_g = p->w_g;
  a->gate = p->gate, a->emb = p->emb, a->log_p = p->log_p;
  const int64_t n = a->h.len, d = a->h.dim;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&a->h, "h", 0, 1, 1, any, any, "h must have batch 1 and one head"),
      ATTN_OPERAND_(&a->y, "y", 0, 1, a->index ? 1 : n, any, d,
                    "y must be [1, h.len, k, h.dim], with params.index [1, 1, R, h.dim]"),
      ATTN_OPERAND_(&a->emb, "params.emb", ATTN_OPTIONAL_, 1, 1, any, d,
                    "params.emb must be [1, 1, V, h.dim]"),
      ATTN_OPERAND_(&a->z, "z", ATTN_OUT_, 1, 1, n, d, "z must have the shape of h"),
      ATTN_OPERAND_(&a->gate, "params.gate", ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, 1, 1, n, 1,
                    "params.gate must be f32 [1, 1, h.len, 1]"),
      ATTN_OPERAND_(&a->log_p, "params.log_p", ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, 1, 1, n,
                    any, "params.log_p must be f32 [1, 1, h.len, V]")};
  for (int i = 0; i < COUNT; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  a->k = a->index ? (p->k ? p->k : 4) : a->y.len;
  if (p->k < 0) return attn_reject_(e, ATTN_E_SHAPE, "params.k must not be negative");
  if (!a->index && p->k && p->k != a->y.len)
    return attn_reject_(e, ATTN_E_SHAPE, "params.k must be 0 or y.len without params.index");
  if (a->k > INT32_MAX || a->y.len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "params.k and y.len must be below 2^31");
  if ((a->emb.data != NULL) != (a->log_p.data != NULL))
    return attn_reject_(e, ATTN_E_SHAPE, "params.emb and params.log_p go together");
  if (a->emb.data && (a->emb.len != a->log_p.dim || a->emb.len < 1))
    return attn_reject_(e, ATTN_E_SHAPE, "params.log_p must be [1, 1, h.len, emb.len]");
  if (!(p->b_g - p->b_g == 0.0f)) return attn_reject_(e, ATTN_E_VALUE, "params.b_g must be finite");
  if (!attn_check_scale_(e, p->scale)) return 0;
  a->b_g = (double)p->b_g, a->scale = (double)p->scale;
  if (p->scale == 0.0f && !attn_to_bits_(p->scale)) a->scale = 1.0;
  const int64_t cells = attn_mul_(n, a->k);
  if (!attn_check_array_(e, a->index, cells, 4, "params.index must be aligned to its elements",
                         &more[0]) ||
      !attn_check_array_(e, a->valid, cells, 1, "", &more[1]) ||
      !attn_check_array_(e, a->w_g, d, 4, "params.w_g must be aligned to its elements", &more[2]) ||
      !attn_check_apart_(e, ctx, op, COUNT, more, 3))
    return 0;
  if (data && a->index)
    for (int64_t i = 0; i < cells; i++)
      if (a->index[i] < -1 || a->index[i] >= a->y.len)
        return attn_reject_(e, ATTN_E_INDEX, "params.index must lie in -1..y.len-1");
  return 1;
}

ATTN_COLD_ int attn_spalm_steps_(attn_stage_ *s, void *job) {
  attn_spalm_job_ *a = (attn_spalm_job_ *)job;
  const int64_t tiles = a->h.len / ATTN_TILE_ + (a->h.len % ATTN_TILE_ != 0);
  a->table = s->table;
  a->each = attn_spalm_cut_(a, NULL, NULL);
  if (s->run) s->pairs += a->h.len * (a->k + a->emb.len * (a->emb.data != NULL));
  return attn_stage_for_(s, tiles, attn_spalm_item_, a, a->each, &a->memory);
}

ATTN_COLD_ attn_status attn_spalm_call_(attn_spalm_job_ *a, const attn_spalm_params *params,
                                        attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_check_ctx_(&e, ctx, &table, &workers) &&
      attn_spalm_check_(&e, a, params, ctx, bytes == NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (a->h.len > 0)
      attn_stage_call_(&s, ctx, attn_spalm_steps_, a, "gathered rows, gate", bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no positions");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_PUB_ attn_status attn_spalm(attn_tensor z, attn_tensor h, attn_tensor y,
                                 const attn_spalm_params *params, attn_ctx *ctx) {
  attn_spalm_job_ a;
  memset(&a, 0, sizeof a);
  a.z = z, a.h = h, a.y = y;
  return attn_spalm_call_(&a, params, ctx, NULL);
}
ATTN_PUB_COLD_ size_t attn_spalm_workspace(attn_tensor z, attn_tensor h, attn_tensor y,
                                           const attn_spalm_params *params, const attn_ctx *ctx) {
  attn_spalm_job_ a;
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  memset(&a, 0, sizeof a);
  a.z = z, a.h = h, a.y = y;
  const attn_status status = attn_spalm_call_(&a, params, &plain, &bytes);
  return attn_answer_(status, (int64_t)bytes);
}
