/* families/memory/compressive_loss.h owns what compression loses, for evaluation: of attention and of the
 * rows themselves. */

/* Sums of squares of differences, an item each, then over the items of a batch entry in order. */
typedef struct attn_loss_ {
  const attn_table_ *table;
  attn_tensor a, b; /* [B,H,n,d] of any types */
  attn_tensor g;    /* or b is [B,1,n/rate,d] and meets [1,rate,d,d] */
  attn_matrix_ w;   /* g */
  const float *bias;
  float *norm, *mean;
  int64_t batch, tiles, count; /* tiles of a batch entry, numbers in one */
  double *part;                /* [B * tiles] */
  char *memory;
  int64_t each, at_rows;
} attn_loss_;

/* Squares of the difference of two rows. */
ATTN_FUNC_ double attn_loss_row_(const float *x, const float *y, int64_t n) {
  double s[8] = {0};
  for (int64_t c = 0; c < n; c++) {
    const double d = (double)x[c] - (double)y[c];
    s[c % 8] += d * d;
  }
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/* 64 rows of one head of a and b. */
ATTN_FUNC_ void attn_loss_item_(void *job, int worker, int64_t index) {
  const attn_loss_ *a = (const attn_loss_ *)job;
  const int64_t b = index / a->tiles, tiles = a->tiles / a->a.heads;
  const int64_t h = index % a->tiles / tiles, first = index % tiles * ATTN_TILE_;
  float *x = (float *)(void *)(a->memory + worker * a->each), *y = x + a->a.dim;
  double sum = 0.0;
  for (int64_t i = first; i < a->a.len && i < first + ATTN_TILE_; i++) {
    a->table->widen(x, attn_at_(&a->a, b, h, i), 0, NULL, 1, a->a.dim, a->a.dtype, NULL);
    a->table->widen(y, attn_at_(&a->b, b, h, i), 0, NULL, 1, a->a.dim, a->b.dtype, NULL);
    sum += attn_loss_row_(x, y, a->a.dim);
  }
  a->part[index] = sum;
}

/* 64 rows of b, each rebuilt to the rate rows it was made of. */
ATTN_FUNC_ void attn_loss_rebuilt_(void *job, int worker, int64_t index) {
  const attn_loss_ *a = (const attn_loss_ *)job;
  const attn_table_ *f = a->table;
  const int64_t b = index / a->tiles, first = index % a->tiles * ATTN_TILE_, dim = a->a.dim;
  const int n = a->b.len - first < ATTN_TILE_ ? (int)(a->b.len - first) : ATTN_TILE_;
  float *row = (float *)(void *)(a->memory + worker * a->each), *x = row + ATTN_TILE_ * dim;
  float *wide = (float *)(void *)(a->memory + worker * a->each + a->at_rows);
  const attn_floats_ in = attn_floats_of_(f, &a->b, b, 0, first, n, wide);
  double total = 0.0;
  for (int64_t t = 0; t < a->w.w.heads; t++) {
    const attn_matrix_part_ one = {0, t, 0, dim, 0, dim};
    attn_matrix_times_(f, &a->w, &one, row, dim, in, 1);
    for (int r = 0; r < n; r++) {
      const int64_t i = (first + r) * a->w.w.heads + t;
      if (a->bias)
        for (int64_t c = 0; c < dim; c++) row[r * dim + c] += a->bias[c];
      f->widen(x, attn_at_(&a->a, b, 0, i), 0, NULL, 1, dim, a->a.dtype, NULL);
      total += attn_loss_row_(x, row + r * dim, dim);
    }
  }
  a->part[index] = total;
}

ATTN_COLD_ int attn_stage_loss_(attn_stage_ *s, attn_loss_ *a) {
  const int64_t f = sizeof(float), dim = a->a.dim;
  const int rebuilt = a->g.data != NULL;
  a->table = s->table;
  a->batch = a->a.batch;
  a->tiles = rebuilt ? attn_tiles_of_(a->b.len) : attn_mul_(a->a.heads, attn_tiles_of_(a->a.len));
  a->count = attn_mul_(attn_mul_(a->a.heads, a->a.len), dim);
  const int64_t items = attn_mul_(a->batch, a->tiles);
  a->part = (double *)attn_stage_take_(s, items, sizeof(double));
  if (rebuilt) {
    a->w = attn_matrix_of_(a->g, 0, a->b.len, a->batch);
    a->at_rows = attn_piece_(attn_mul_(dim, ATTN_TILE_ + 1), f);
    a->each = attn_add_(a->at_rows,
                        a->b.dtype == ATTN_F32 ? 0 : attn_piece_(attn_mul_(dim, ATTN_TILE_), f));
  } else {
    a->each = attn_piece_(attn_mul_(dim, 2), f);
  }
  if (!attn_stage_products_(s, &a->w, rebuilt, items,
                            rebuilt ? attn_loss_rebuilt_ : attn_loss_item_, a, a->each, &a->memory))
    return 0;
  if (s->run)
    for (int64_t b = 0; b < a->batch; b++) {
      double sum = 0.0;
      for (int64_t i = 0; i < a->tiles; i++) sum += a->part[b * a->tiles + i];
      if (a->norm) a->norm[b] = (float)sqrt(sum);
      if (a->mean) a->mean[b] = a->count ? (float)(sum / (double)a->count) : 0.0f;
    }
  return 1;
}

/* norm and mean as outputs among the operands. */
ATTN_COLD_ int attn_check_losses_(attn_error_ *e, attn_tensor out[2], attn_operand_ *op,
                                  float *norm, float *mean, int64_t batch) {
  static const char *const w[] = {ATTN_WORDS_("norm"), ATTN_WORDS_("mean")};
  for (int i = 0; i < 2; i++) {
    const attn_operand_ one = ATTN_OPERAND_AS_(&out[i], w[i], ATTN_OUT_ | ATTN_OPTIONAL_, 1, 1, 1,
                                               batch, "norm and mean");
    out[i] = attn_bhtd(batch > 0 ? (i ? mean : norm) : NULL, ATTN_F32, 1, 1, 1, batch);
    op[i] = one;
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  }
  return 1;
}

typedef struct attn_attention_loss_job_ {
  attn_tensor h, old, made;
  attn_attention_loss_params p;
  attn_loss_ loss;
  int64_t dk, dv;
} attn_attention_loss_job_;

ATTN_COLD_ int attn_attention_loss_check_(attn_error_ *e, attn_attention_loss_job_ *j,
                                          const attn_attention_loss_params *params, float *norm,
                                          float *mean, const attn_ctx *ctx,
                                          const attn_table_ **table, int *workers) {
  enum { H, OLD, MADE, WQ, WK, WV, NORM, COUNT = NORM + 2 };
  attn_attention_loss_params *p = &j->p;
  attn_tensor out[2];
  const int64_t any = ATTN_ANY_;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has the weights");
  *p = *params;
  if (p->heads == 0) p->heads = 1;
  if (p->kv_heads == 0) p->kv_heads = p->heads;
  attn_tensor *const w[] = {&p->w_q, &p->w_k, &p->w_v};
  for (int i = 0; i < 3; i++) attn_turn_(w[i], p->w_transposed);
  const int64_t hq = p->heads, hk = p->kv_heads, b = j->h.batch, dm = j->h.dim;
  if (hq < 1 || hk < 1)
    return attn_reject_(e, ATTN_E_SHAPE, "params.heads and .kv_heads must not be negative");
  if (hq % hk || p->w_q.dim % hq || p->w_v.dim % hk)
    return attn_reject_(
        e, ATTN_E_HEADS,
        "params.kv_heads must divide heads and the width of w_v, heads that of w_q");
  j->dk = p->w_q.dim / hq, j->dv = p->w_v.dim / hk;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_AS_(&j->h, attn_h_is_, 0, any, 1, any, any, "h must have one head"),
      ATTN_OPERAND_(&j->old, "old", 0, b, 1, any, dm, "old must be [h.batch, 1, ., h.dim]"),
      ATTN_OPERAND_(&j->made, "made", 0, b, 1, any, dm, "made must be [h.batch, 1, ., h.dim]"),
      ATTN_OPERAND_(&p->w_q, "params.w_q", ATTN_MATRIX_, 1, 1, dm, any,
                    ATTN_IN_OUT_("params.w_q", "h.dim", "heads * dk")),
      ATTN_OPERAND_(&p->w_k, "params.w_k", ATTN_MATRIX_, 1, 1, dm, attn_mul_(hk, j->dk),
                    ATTN_IN_OUT_("params.w_k", "h.dim", "kv_heads * dk")),
      ATTN_OPERAND_(&p->w_v, "params.w_v", ATTN_MATRIX_, 1, 1, dm, any,
                    ATTN_IN_OUT_("params.w_v", "h.dim", "kv_heads * dv"))};
  for (int i = 0; i < NORM; i++)
    if (!attn_check_operand_(e, &op[i], hq)) return 0;
  return attn_check_losses_(e, out, &op[NORM], norm, mean, b) && attn_check_scale_(e, p->scale) &&
         attn_check_apart_(e, ctx, op, COUNT, NULL, 0);
}

/* attn(h, rows), all heads. */
ATTN_COLD_ int attn_attention_loss_side_(attn_stage_ *s, const attn_attention_loss_job_ *j,
                                         attn_tensor o, attn_tensor q, attn_tensor rows) {
  const attn_attention_loss_params *g = &j->p;
  attn_lift_ lift;
  attn_sdpa_params p;
  memset(&lift, 0, sizeof lift);
  memset(&p, 0, sizeof p);
  p.scale = g->scale;
  const attn_tensor k = attn_stage_tensor_(s, rows.batch, g->kv_heads, rows.len, j->dk);
  const attn_tensor v = attn_stage_tensor_(s, rows.batch, g->kv_heads, rows.len, j->dv);
  attn_parts_add_(&lift.x, rows);
  attn_lift_add_(&lift, k, g->w_k, 0);
  attn_lift_add_(&lift, v, g->w_v, 0);
  return attn_stage_lift_(s, &lift) && attn_stage_sdpa_(s, o, q, k, v, &p);
}

ATTN_COLD_ int attn_attention_loss_steps_(attn_stage_ *s, void *job) {
  attn_attention_loss_job_ *j = (attn_attention_loss_job_ *)job;
  const int64_t b = j->h.batch, heads = j->p.heads, t = j->h.len;
  const attn_tensor q = attn_stage_tensor_(s, b, heads, t, j->dk);
  attn_lift_ lift;
  memset(&lift, 0, sizeof lift);
  attn_parts_add_(&lift.x, j->h);
  attn_lift_add_(&lift, q, j->p.w_q, 0);
  j->loss.a = attn_stage_tensor_(s, b, heads, t, j->dv);
  j->loss.b = attn_stage_tensor_(s, b, heads, t, j->dv);
  return attn_stage_lift_(s, &lift) && attn_attention_loss_side_(s, j, j->loss.a, q, j->old) &&
         attn_attention_loss_side_(s, j, j->loss.b, q, j->made) && attn_stage_loss_(s, &j->loss);
}

ATTN_COLD_ attn_status attn_attention_loss_call_(float *norm, float *mean, attn_tensor h,
                                                 attn_tensor old, attn_tensor made,
                                                 const attn_attention_loss_params *params,
                                                 attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_attention_loss_job_ j;
  const attn_table_ *table;
  int workers;
  memset(&j, 0, sizeof j);
  j.h = h, j.old = old, j.made = made, j.loss.norm = norm, j.loss.mean = mean;
  if (attn_attention_loss_check_(&e, &j, params, norm, mean, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    attn_stage_call_(&s, ctx, attn_attention_loss_steps_, &j, "two attentions, sum of squares",
                     bytes);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_CALL_(attn_attention_loss, (norm, mean, h, old, made, params), float *norm, float *mean,
           attn_tensor h, attn_tensor old, attn_tensor made,
           const attn_attention_loss_params *params)

ATTN_COLD_ int attn_rebuild_loss_check_(attn_error_ *e, attn_loss_ *j, const attn_ctx *ctx,
                                        const attn_table_ **table, int *workers) {
  enum { OLD, MADE, G, NORM, COUNT = NORM + 2 };
  attn_tensor out[2];
  attn_span_ bias;
  const int64_t any = ATTN_ANY_, dm = j->a.dim;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&j->a, "old", 0, any, 1, any, any, "old must have one head"),
      ATTN_OPERAND_(&j->b, "made", 0, j->a.batch, 1, any, dm,
                    "made must be [old.batch, 1, ., old.dim]"),
      ATTN_OPERAND_(&j->g, "g", 0, 1, any, dm, dm, "g must be [1, rate, old.dim, old.dim]")};
  for (int i = 0; i < NORM; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (j->g.heads < 1) return attn_reject_(e, ATTN_E_RANGE, "g.heads, the rate, must be at least 1");
  if (j->a.len % j->g.heads || j->b.len != j->a.len / j->g.heads)
    return attn_reject_(e, ATTN_E_SHAPE, "old.len must be made.len times g.heads");
  return attn_check_array_(e, j->bias, dm, 4, "bias must be aligned to its elements", &bias) &&
         attn_check_losses_(e, out, &op[NORM], j->norm, j->mean, j->a.batch) &&
         attn_check_apart_(e, ctx, op, COUNT, &bias, 1);
}

ATTN_COLD_ int attn_rebuild_loss_steps_(attn_stage_ *s, void *job) {
  return attn_stage_loss_(s, (attn_loss_ *)job);
}

ATTN_COLD_ attn_status attn_rebuild_loss_call_(float *norm, float *mean, attn_tensor old,
                                               attn_tensor made, attn_tensor g, const float *bias,
                                               attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_loss_ j;
  const attn_table_ *table;
  int workers;
  memset(&j, 0, sizeof j);
  j.a = old, j.b = made, j.g = g, j.bias = bias, j.norm = norm, j.mean = mean;
  if (attn_rebuild_loss_check_(&e, &j, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    attn_stage_call_(&s, ctx, attn_rebuild_loss_steps_, &j, "row products, sum of squares", bytes);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_CALL_(attn_rebuild_loss, (norm, mean, old, made, g, bias), float *norm, float *mean,
           attn_tensor old, attn_tensor made, attn_tensor g, const float *bias)
