/* families/priors/gaussian.h owns the predicted window of the Gaussian bias (attn_gaussian_window). */

typedef struct attn_gaussian_job_ {
  const attn_table_ *table;
  attn_tensor q, k;
  attn_gaussian_params p; /* hidden resolved */
  float *center, *precision;
  double width, sigma_min;
  int64_t tiles;       /* per (batch, head) */
  double *layer_sigma; /* [B, H], LAYER */
  char *workspace;     /* of the workers, each of this many bytes: */
  int64_t bytes;
} attn_gaussian_job_;

/* One worker's part. */
typedef struct attn_gaussian_scratch_ {
  float *qt;        /* [dk][tile] packed rows */
  float *hidden;    /* [hidden][tile] */
  double *total;    /* [dk] sum of keys */
  float *sum, *key; /* [dk] sum of a block of keys; their mean */
} attn_gaussian_scratch_;

/* The parameters the mode needs, in the order of attn_gaussian_params. */
ATTN_COLD_ int attn_gaussian_weights_(attn_error_ *e, const attn_gaussian_job_ *j,
                                      attn_span_ span[4]) {
  const attn_gaussian_params *p = &j->p;
  const int64_t row = attn_mul_(j->q.heads, p->hidden), matrix = attn_mul_(row, j->q.dim);
  const int window = p->mode != ATTN_GAUSSIAN_FIXED, layer = p->mode == ATTN_GAUSSIAN_LAYER;
  if (!p->w_p) return attn_reject_(e, ATTN_E_NULL, "params.w_p must not be null");
  if (!p->u_p) return attn_reject_(e, ATTN_E_NULL, "params.u_p must not be null");
  if (window && !p->u_d)
    return attn_reject_(e, ATTN_E_NULL, "params.u_d must not be null in this mode");
  if (layer && !p->w_d)
    return attn_reject_(e, ATTN_E_NULL, "params.w_d must not be null in this mode");
  return attn_check_array_(e, p->w_p, matrix, 4, "params.w_p must be aligned to its elements",
                           &span[0]) &&
         attn_check_array_(e, p->u_p, row, 4, "params.u_p must be aligned to its elements",
                           &span[1]) &&
         attn_check_array_(e, window ? p->u_d : NULL, row, 4,
                           "params.u_d must be aligned to its elements", &span[2]) &&
         attn_check_array_(e, layer ? p->w_d : NULL, matrix, 4,
                           "params.w_d must be aligned to its elements", &span[3]);
}

ATTN_COLD_ int attn_gaussian_plan_(attn_error_ *e, attn_gaussian_job_ *j,
                                   const attn_gaussian_params *params, const attn_ctx *ctx,
                                   int *workers, int data) {
  static const char wq[] = ATTN_WORDS_("q"), wk[] = ATTN_WORDS_("k");
  enum { CENTER, PRECISION, Q, K, LENGTHS, WEIGHTS, WORK = WEIGHTS + 4, SPANS };
  attn_span_ span[SPANS];
  attn_gaussian_params *p = &j->p;
  memset(p, 0, sizeof *p);
  memset(span, 0, sizeof span);
  if (params) *p = *params;
  if (!attn_check_ctx_(e, ctx, &j->table, workers)) return 0;
  if (!attn_check_tensor_(e, &j->q, wq, &span[Q]) || !attn_check_tensor_(e, &j->k, wk, &span[K]))
    return 0;
  if (j->q.heads < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
  if (j->k.batch != j->q.batch || j->k.dim != j->q.dim)
    return attn_reject_(e, ATTN_E_SHAPE, "k.batch and k.dim must equal those of q");
  if (j->k.heads < 1 || j->q.heads % j->k.heads)
    return attn_reject_(e, ATTN_E_HEADS, "k.heads must divide q.heads");
  const int64_t count = attn_mul_(attn_mul_(j->q.batch, j->q.heads), j->q.len);
  if (count > 0 && !j->center) return attn_reject_(e, ATTN_E_NULL, "center must not be null");
  if (count > 0 && !j->precision) return attn_reject_(e, ATTN_E_NULL, "precision must not be null");
  if (!attn_check_array_(e, j->center, count, 4, "center must be aligned to its elements",
                         &span[CENTER]) ||
      !attn_check_array_(e, j->precision, count, 4, "precision must be aligned to its elements",
                         &span[PRECISION]))
    return 0;
  if ((int)p->mode < 0 || p->mode > ATTN_GAUSSIAN_FIXED)
    return attn_reject_(e, ATTN_E_RANGE, "params.mode must be an attn_gaussian_mode");
  if (p->hidden < 0) return attn_reject_(e, ATTN_E_RANGE, "params.hidden must not be negative");
  if (p->hidden == 0) p->hidden = j->q.dim;
  if (p->index_base != 0 && p->index_base != 1)
    return attn_reject_(e, ATTN_E_RANGE, "params.index_base must be 0 or 1");
  if (!attn_gaussian_weights_(e, j, span + WEIGHTS)) return 0;
  if (!(p->width >= 0.0f && p->width < INFINITY) || (p->width == 0.0f && attn_to_bits_(p->width)))
    return attn_reject_(e, ATTN_E_VALUE, "params.width must be positive and finite");
  if (!(p->sigma_min >= 0.0f && p->sigma_min < INFINITY) ||
      (p->sigma_min == 0.0f && attn_to_bits_(p->sigma_min)))
    return attn_reject_(e, ATTN_E_VALUE, "params.sigma_min must be positive and finite");
  j->width = p->width == 0.0f ? 10.0 : (double)p->width;
  j->sigma_min = p->sigma_min == 0.0f ? 1e-6 : (double)p->sigma_min;
  if (!attn_check_array_(e, p->kv_len, j->q.batch, 4,
                         "params.kv_len must be aligned to its elements", &span[LENGTHS]) ||
      !attn_check_workspace_(e, ctx, &span[WORK]))
    return 0;
  for (int x = CENTER; x <= PRECISION; x++)
    for (int y = x + 1; y < WORK; y++)
      if (attn_overlap_(span[x], span[y]))
        return attn_reject_(e, ATTN_E_OVERLAP,
                            x == CENTER ? "center must not share memory with another argument"
                                        : "precision must not share memory with another argument");
  for (int x = CENTER; x < WORK; x++)
    if (attn_overlap_(span[x], span[WORK]))
      return attn_reject_(e, ATTN_E_OVERLAP,
                          "ctx.workspace must not share memory with an argument");
  if (data &&
      !attn_check_lens_(e, p->kv_len, j->q.batch, j->k.len, "params.kv_len must lie in 0..k.len"))
    return 0;
  j->tiles = j->q.len / ATTN_TILE_ + (j->q.len % ATTN_TILE_ != 0);
  const int64_t dk = attn_piece_(j->q.dim, sizeof(float));
  j->bytes = attn_add_(attn_piece_(attn_mul_(j->q.dim, ATTN_TILE_), sizeof(float)),
                       attn_piece_(attn_mul_(p->hidden, ATTN_TILE_), sizeof(float)));
  j->bytes =
      attn_add_(j->bytes, attn_add_(attn_piece_(j->q.dim, sizeof(double)), attn_mul_(2, dk)));
  return 1;
}

ATTN_COLD_ int64_t attn_gaussian_shared_(const attn_gaussian_job_ *j) {
  if (j->p.mode != ATTN_GAUSSIAN_LAYER) return 0;
  return attn_piece_(attn_mul_(j->q.batch, j->q.heads), sizeof(double));
}

ATTN_COLD_ int64_t attn_gaussian_bytes_(const attn_gaussian_job_ *j, int workers) {
  return attn_workspace_bytes_(attn_add_(attn_gaussian_shared_(j), attn_mul_(j->bytes, workers)),
                               1);
}

ATTN_COLD_ int64_t attn_gaussian_items_(const attn_gaussian_job_ *j) {
  return attn_mul_(attn_mul_(j->q.batch, j->q.heads), j->tiles);
}

ATTN_FUNC_ void attn_gaussian_cut_(const attn_gaussian_job_ *j, int worker,
                                   attn_gaussian_scratch_ *s) {
  char *at = j->workspace + worker * j->bytes;
  s->qt = (float *)(void *)at, at += attn_piece_(j->q.dim * ATTN_TILE_, sizeof(float));
  s->hidden = (float *)(void *)at, at += attn_piece_(j->p.hidden * ATTN_TILE_, sizeof(float));
  s->total = (double *)(void *)at, at += attn_piece_(j->q.dim, sizeof(double));
  s->sum = (float *)(void *)at, at += attn_piece_(j->q.dim, sizeof(float));
  s->key = (float *)(void *)at;
}

/* I: the keys of a batch entry. */
ATTN_FUNC_ int64_t attn_gaussian_keys_(const attn_gaussian_job_ *j, int64_t b) {
  return j->p.kv_len ? j->p.kv_len[b] : j->k.len;
}

/* tanh(row w) of up to a tile of rows into s->hidden. A cap of 1 is the hyperbolic tangent. */
ATTN_FUNC_ void attn_gaussian_hidden_(const attn_gaussian_job_ *j, attn_gaussian_scratch_ *s,
                                      const void *const *rows, int n, attn_dtype dtype,
                                      const float *w) {
  const attn_table_ *f = j->table;
  const int groups = (n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  const int64_t a = j->p.hidden, dk = j->q.dim;
  attn_modifiers_ mod;
  float top[ATTN_TILE_];
  for (int r = 0; r < ATTN_TILE_; r++) top[r] = 0.0f;
  memset(&mod, 0, sizeof mod);
  mod.softcap = 1.0f;
  f->pack(s->qt, rows, n, dk, (int)dtype, 1.0f, attn_least_(1.0f)); /* not 0: inf * 0 is NaN */
  attn_on_(tile, f)->value_block(s->hidden, s->qt, w, a, dk, a, 0, groups, NULL, 1);
  attn_on_(tile, f)->modify_block(s->hidden, a, 0, groups, &mod, top);
}

/* out[lane] = keys sig(u . hidden), for the lanes of n rows. */
ATTN_FUNC_ void attn_gaussian_share_(const attn_gaussian_job_ *j, const attn_gaussian_scratch_ *s,
                                     int n, const float *u, int64_t keys, double *out) {
  float lanes[ATTN_TILE_];
  attn_on_(tile, j->table)
      ->value_block(lanes, s->hidden, u, 1, j->p.hidden, 1, 0, (n + ATTN_GROUP_ - 1) / ATTN_GROUP_,
                    NULL, 1);
  for (int r = 0; r < n; r++) lanes[r] = -lanes[r];
  j->table->exp(lanes, lanes, n);
  for (int r = 0; r < n; r++) out[r] = (double)keys / (1.0 + (double)lanes[r]);
}

/* A NaN stays one. */
ATTN_FUNC_ double attn_gaussian_sigma_(const attn_gaussian_job_ *j, double width) {
  return 0.5 * width <= j->sigma_min ? j->sigma_min : 0.5 * width;
}

/* LAYER: the mean of the keys of one key head, and the windows of the heads that read it. Sums are
 * f32 within a block of keys, double beyond. */
ATTN_FUNC_ void attn_gaussian_layer_(void *job, int worker, int64_t index) {
  const attn_gaussian_job_ *j = (const attn_gaussian_job_ *)job;
  const int64_t b = index / j->k.heads, hk = index % j->k.heads, dk = j->q.dim;
  const int64_t keys = attn_gaussian_keys_(j, b), group = j->q.heads / j->k.heads;
  attn_gaussian_scratch_ s;
  attn_gaussian_cut_(j, worker, &s);
  for (int64_t c = 0; c < dk; c++) s.total[c] = 0.0;
  for (int64_t t = 0; t < keys; t++) {
    const int fresh = t % ATTN_BLOCK_ == 0;
    j->table->blend(s.sum, fresh ? NULL : s.sum, attn_at_(&j->k, b, hk, t), ATTN_F32, ATTN_F32,
                    j->k.dtype, dk, 1.0f, 1.0f);
    if ((t + 1) % ATTN_BLOCK_ == 0 || t + 1 == keys)
      for (int64_t c = 0; c < dk; c++) s.total[c] += (double)s.sum[c];
  }
  for (int64_t c = 0; c < dk; c++) s.key[c] = keys ? (float)(s.total[c] / (double)keys) : 0.0f;
  for (int64_t h = hk * group; h < (hk + 1) * group; h++) {
    const void *row = s.key;
    double width;
    attn_gaussian_hidden_(j, &s, &row, 1, ATTN_F32, j->p.w_d + h * dk * j->p.hidden);
    attn_gaussian_share_(j, &s, 1, j->p.u_d + h * j->p.hidden, keys, &width);
    j->layer_sigma[b * j->q.heads + h] = attn_gaussian_sigma_(j, width);
  }
}

/* One tile of queries of one head. */
ATTN_FUNC_ void attn_gaussian_item_(void *job, int worker, int64_t index) {
  const attn_gaussian_job_ *j = (const attn_gaussian_job_ *)job;
  const int64_t bh = index / j->tiles, first = index % j->tiles * ATTN_TILE_;
  const int64_t b = bh / j->q.heads, h = bh % j->q.heads, a = j->p.hidden;
  const int64_t keys = attn_gaussian_keys_(j, b), at = bh * j->q.len + first;
  const int n = j->q.len - first < ATTN_TILE_ ? (int)(j->q.len - first) : ATTN_TILE_;
  const void *rows[ATTN_TILE_];
  double share[ATTN_TILE_];
  attn_gaussian_scratch_ s;
  attn_gaussian_cut_(j, worker, &s);
  for (int r = 0; r < ATTN_TILE_; r++) rows[r] = attn_at_(&j->q, b, h, first + (r < n ? r : 0));
  attn_gaussian_hidden_(j, &s, rows, n, j->q.dtype, j->p.w_p + h * j->q.dim * a);
  attn_gaussian_share_(j, &s, n, j->p.u_p + h * a, keys, share);
  for (int r = 0; r < n; r++) j->center[at + r] = (float)(share[r] - (double)j->p.index_base);
  if (j->p.mode == ATTN_GAUSSIAN_QUERY)
    attn_gaussian_share_(j, &s, n, j->p.u_d + h * a, keys, share);
  for (int r = 0; r < n; r++) {
    const double sigma =
        j->p.mode == ATTN_GAUSSIAN_LAYER
            ? j->layer_sigma[bh]
            : attn_gaussian_sigma_(j, j->p.mode == ATTN_GAUSSIAN_FIXED ? j->width : share[r]);
    j->precision[at + r] = (float)attn_clamp_f64_(0.5 / (sigma * sigma));
  }
}

ATTN_COLD_ void attn_gaussian_job_of_(attn_gaussian_job_ *j, float *center, float *precision,
                                      attn_tensor q, attn_tensor k) {
  memset(j, 0, sizeof *j);
  j->center = center, j->precision = precision, j->q = q, j->k = k;
}

ATTN_PUB_COLD_ attn_status attn_gaussian_window(float *center, float *precision, attn_tensor q,
                                                attn_tensor k, const attn_gaussian_params *params,
                                                attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_gaussian_job_ j;
  attn_workspace_ w;
  int workers;
  attn_gaussian_job_of_(&j, center, precision, q, k);
  if (attn_gaussian_plan_(&e, &j, params, ctx, &workers, 1)) {
    const int64_t items = attn_gaussian_items_(&j), heads = j.q.batch * j.k.heads;
    workers = attn_pieces_(workers, items);
    if (items == 0) {
      attn_report_(ctx, j.table, 1, "no-op", "no queries");
    } else if (attn_workspace_get_(&e, &w, ctx, attn_gaussian_bytes_(&j, workers))) {
      j.layer_sigma = (double *)(void *)w.base;
      j.workspace = w.base + attn_gaussian_shared_(&j);
      if (j.p.mode == ATTN_GAUSSIAN_LAYER)
        attn_for_(ctx, attn_pieces_(workers, heads), heads, attn_gaussian_layer_, &j);
      attn_for_(ctx, workers, items, attn_gaussian_item_, &j);
      attn_workspace_drop_(&w);
      attn_report_(ctx, j.table, workers, "two-layer prediction", "the only path");
    }
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_COLD_ size_t attn_gaussian_window_workspace(float *center, float *precision, attn_tensor q,
                                                     attn_tensor k,
                                                     const attn_gaussian_params *params,
                                                     const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_gaussian_job_ j;
  const attn_ctx plain = attn_before_workspace_(ctx);
  int workers;
  attn_gaussian_job_of_(&j, center, precision, q, k);
  if (!attn_gaussian_plan_(&e, &j, params, &plain, &workers, 0)) return ATTN_WORKSPACE_REJECTED;
  const int64_t items = attn_gaussian_items_(&j);
  if (items == 0) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  const int64_t bytes = attn_gaussian_bytes_(&j, attn_pieces_(workers, items));
  return attn_answer_(e.status, bytes);
}
