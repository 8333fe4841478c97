/* families/heads/head_losses.h owns losses over the heads of one attention: how much they disagree, and how
 * far their maps are from given patterns. Sums are in f64, an item's each, joined in the order of the
 * items. */

/* A term of cosines: of rows before len, or of all of them end to end. */
typedef struct attn_cosines_ {
  const attn_table_ *table;
  attn_tensor x; /* [B,H,n,d]; data null = absent */
  const int32_t *len;
  int flat;
  int64_t tiles;         /* of 64 rows */
  double *part;          /* [B * tiles] */
  double *square, *norm; /* flat: [B * tiles][H], [B][H] */
  char *memory;
  int64_t each, at_row;
} attn_cosines_;

ATTN_FUNC_ int64_t attn_cosines_rows_(const attn_cosines_ *a, int64_t b) {
  return a->len ? a->len[b] : a->x.len;
}

/* A row of head h as f32, and its square. */
ATTN_FUNC_ double attn_cosines_square_(const attn_cosines_ *a, float *row, int64_t b, int64_t h,
                                       int64_t i) {
  double sum = 0.0;
  a->table->widen(row, attn_at_(&a->x, b, h, i), 0, NULL, 1, a->x.dim, a->x.dtype, NULL);
  for (int64_t c = 0; c < a->x.dim; c++) sum += (double)row[c] * (double)row[c];
  return sum;
}

ATTN_FUNC_ void attn_cosines_flat_(void *job, int worker, int64_t index) {
  const attn_cosines_ *a = (const attn_cosines_ *)job;
  float *row = (float *)(void *)(a->memory + worker * a->each + a->at_row);
  const int64_t b = index / a->tiles, first = index % a->tiles * ATTN_TILE_;
  const int64_t n = attn_cosines_rows_(a, b);
  for (int64_t h = 0; h < a->x.heads; h++) {
    double sum = 0.0;
    for (int64_t i = first; i < n && i < first + ATTN_TILE_; i++)
      sum += attn_cosines_square_(a, row, b, h, i);
    a->square[index * a->x.heads + h] = sum;
  }
}

/* sum over 64 rows of |sum_h u_h|^2, u_h of norm 1, or 0 for a vector of nearly 0 */
ATTN_FUNC_ void attn_cosines_item_(void *job, int worker, int64_t index) {
  const attn_cosines_ *a = (const attn_cosines_ *)job;
  double *u = (double *)(void *)(a->memory + worker * a->each), sum = 0.0;
  float *row = (float *)(void *)(a->memory + worker * a->each + a->at_row);
  const int64_t b = index / a->tiles, first = index % a->tiles * ATTN_TILE_;
  const int64_t n = attn_cosines_rows_(a, b), d = a->x.dim;
  for (int64_t i = first; i < n && i < first + ATTN_TILE_; i++) {
    for (int64_t c = 0; c < d; c++) u[c] = 0.0;
    for (int64_t h = 0; h < a->x.heads; h++) {
      const double square = attn_cosines_square_(a, row, b, h, i);
      const double norm = a->flat ? a->norm[b * a->x.heads + h] : sqrt(square);
      if (norm <= 1e-12) continue;
      for (int64_t c = 0; c < d; c++) u[c] += (double)row[c] / norm;
    }
    for (int64_t c = 0; c < d; c++) sum += u[c] * u[c];
  }
  a->part[index] = sum;
}

ATTN_COLD_ int attn_stage_cosines_(attn_stage_ *s, attn_cosines_ *a, double *result) {
  const int64_t heads = a->x.heads, batch = a->x.batch;
  if (s->run) *result = 0.0;
  if (!a->x.data || batch == 0 || a->x.len == 0) return 1;
  a->table = s->table;
  a->tiles = attn_tiles_of_(a->x.len);
  const int64_t items = attn_mul_(batch, a->tiles);
  a->part = (double *)attn_stage_take_(s, items, sizeof(double));
  a->at_row = attn_piece_(a->x.dim, sizeof(double));
  a->each = attn_add_(a->at_row, attn_piece_(a->x.dim, sizeof(float)));
  if (a->flat) {
    a->square = (double *)attn_stage_take_(s, attn_mul_(items, heads), sizeof(double));
    a->norm = (double *)attn_stage_take_(s, attn_mul_(batch, heads), sizeof(double));
    if (!attn_stage_for_(s, items, attn_cosines_flat_, a, a->each, &a->memory)) return 0;
    if (s->run)
      for (int64_t r = 0; r < batch * heads; r++) {
        double sum = 0.0;
        for (int64_t t = 0; t < a->tiles; t++)
          sum += a->square[(r / heads * a->tiles + t) * heads + r % heads];
        a->norm[r] = sqrt(sum);
      }
  }
  if (!attn_stage_for_(s, items, attn_cosines_item_, a, a->each, &a->memory)) return 0;
  if (!s->run) return 1;
  double sum = 0.0, count = 0.0;
  for (int64_t i = 0; i < items; i++) sum += a->part[i];
  for (int64_t b = 0; b < batch; b++) count += a->flat ? 1.0 : (double)attn_cosines_rows_(a, b);
  if (count > 0.0) *result = -sum / count / ((double)heads * (double)heads);
  return 1;
}

/* ---- disagreement ---------------------------------------------------------------------------*/

typedef struct attn_disagreement_ {
  double *d;
  attn_cosines_ sub, out;
  attn_joint_ x;
  int by_map, by_row; /* by_map: D_pos is wanted */
  double *part;       /* [items] */
} attn_disagreement_;

typedef struct attn_together_ {
  int64_t heads;
  double sum;
} attn_together_;

/* sum of (sum_h |P_h|)^2 of a block */
ATTN_FUNC_ void attn_together_block_(void *user, attn_joint_tile_ *t, int64_t j0, int64_t n,
                                     float *w) {
  attn_together_ *y = (attn_together_ *)user;
  double acc[ATTN_TILE_] = {0.0};
  (void)j0;
  for (int64_t e = 0; e < n; e++) {
    float s[ATTN_TILE_] = {0.0f};
    for (int64_t h = 0; h < y->heads; h++) {
      const float *p = w + h * ATTN_JOINT_STEP_ + e * ATTN_TILE_, *by = t->by + h * ATTN_TILE_;
      for (int r = 0; r < t->rows; r++) s[r] += fabsf(p[r] * by[r]);
    }
    for (int r = 0; r < t->rows; r++) acc[r] += (double)s[r] * (double)s[r];
  }
  for (int r = 0; r < t->rows; r++) y->sum += acc[r];
}

ATTN_FUNC_ void attn_joint_visit_(attn_joint_tile_ *t, attn_joint_fn_ block, void *user) {
  if (t->x->map.data) {
    attn_joint_read_(t, block, user);
    return;
  }
  attn_joint_first_(t);
  attn_joint_second_(t, block, user);
}

ATTN_FUNC_ void attn_disagreement_item_(void *job, int worker, int64_t index) {
  const attn_disagreement_ *a = (const attn_disagreement_ *)job;
  attn_joint_tile_ t;
  attn_together_ y = {a->x.heads, 0.0};
  attn_joint_open_(&t, &a->x, worker, index);
  attn_joint_visit_(&t, attn_together_block_, &y);
  a->part[index] = y.sum;
}

ATTN_COLD_ int attn_disagreement_steps_(attn_stage_ *s, void *job) {
  attn_disagreement_ *a = (attn_disagreement_ *)job;
  const attn_softmax_ *p = &a->x.a;
  double d[3] = {0.0, 0.0, 0.0};
  if (!attn_stage_cosines_(s, &a->sub, &d[0]) || !attn_stage_cosines_(s, &a->out, &d[1])) return 0;
  if (a->by_map && !attn_nothing_(p)) {
    const double heads = (double)a->x.heads;
    a->part = (double *)attn_stage_take_(s, attn_joint_items_(&a->x), sizeof(double));
    attn_joint_memory_(s, &a->x, 0);
    if (!attn_joint_for_(s, &a->x, attn_disagreement_item_, a)) return 0;
    if (s->run)
      for (int64_t b = 0; b < p->q.batch; b++) {
        const int64_t rows = p->q_len ? p->q_len[b] : p->q.len;
        double sum = 0.0;
        for (int64_t i = 0; i < p->tiles; i++) sum += a->part[b * p->tiles + i];
        if (rows > 0) d[2] -= sum / (a->by_row ? (double)rows : 1.0);
      }
    d[2] /= heads * heads * (double)p->q.batch;
  }
  for (int i = 0; s->run && i < 3; i++) a->d[i] = attn_one_nan_f64_(d[i]);
  return 1;
}

/* ---- checks that both losses share ----------------------------------------------------------*/

enum { ATTN_LOSS_Q_, ATTN_LOSS_K_, ATTN_LOSS_MAP_, ATTN_LOSS_TENSORS_ };

/* The maps: x->q and x->k, or x->map. */
ATTN_COLD_ int attn_joint_maps_check_(attn_error_ *e, attn_joint_ *x, const attn_sdpa_params *p,
                                      const attn_ctx *ctx, attn_operand_ *op, attn_span_ *span,
                                      int query) {
  const int64_t any = ATTN_ANY_;
  const attn_operand_ all[ATTN_LOSS_TENSORS_] = {
      ATTN_OPERAND_(&x->q, "params.q", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&x->k, "params.k", 0, x->q.batch, ATTN_DIVIDES_, any, x->q.dim,
                    "params.k must be [q.batch, a divisor of q.heads, ., q.dim]"),
      ATTN_OPERAND_(&x->map, "params.map", 0, any, any, any, any, "")};
  const int by_map = x->map.data != NULL;
  const int64_t heads = by_map ? x->map.heads : x->q.heads;
  memcpy(op, all, sizeof all);
  if (by_map && (x->q.data || x->k.data))
    return attn_reject_(e, ATTN_E_RANGE, "params.map must be absent when q and k are there");
  if (p->lse.data) return attn_reject_(e, ATTN_E_RANGE, "params.attention.lse must be absent");
  if (!attn_check_given_(e, op + (by_map ? ATTN_LOSS_MAP_ : ATTN_LOSS_Q_), 1)) return 0;
  if (heads < 1)
    return attn_reject_(e, ATTN_E_SHAPE, "params.q.heads or map.heads must be at least 1");
  for (int i = by_map ? ATTN_LOSS_MAP_ : ATTN_LOSS_Q_;
       i <= (by_map ? ATTN_LOSS_MAP_ : ATTN_LOSS_K_); i++)
    if (!attn_check_operand_(e, &op[i], heads)) return 0;
  return attn_joint_plan_(e, x, p, heads, ctx, span, query);
}

/* The result shares memory with no argument, the workspace with neither. */
ATTN_COLD_ int attn_loss_apart_(attn_error_ *e, const attn_ctx *ctx, const double *d, int64_t n,
                                const attn_operand_ *op, int ops, const attn_span_ *span,
                                int spans) {
  attn_span_ out, work;
  if (!d) return attn_reject_(e, ATTN_E_NULL, "the result must not be null");
  if (!attn_check_array_(e, d, n, 8, "the result must be aligned to its elements", &out) ||
      !attn_check_workspace_(e, ctx, &work))
    return 0;
  for (int i = 0; i < ops + spans; i++) {
    const attn_span_ in = i < ops ? op[i].span : span[i - ops];
    if (attn_overlap_(out, in))
      return attn_reject_(e, ATTN_E_OVERLAP, "the result must not share memory with an argument");
    if (attn_overlap_(work, in))
      return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with a tensor");
  }
  return !attn_overlap_(out, work) ||
         attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with the result");
}

ATTN_COLD_ int attn_disagreement_check_(attn_error_ *e, attn_disagreement_ *a,
                                        const attn_disagreement_params *p, const attn_ctx *ctx,
                                        int query) {
  static const char *const w[] = {ATTN_WORDS_("params.v"), ATTN_WORDS_("params.o")};
  enum { V = ATTN_LOSS_TENSORS_, O, COUNT };
  const int64_t any = ATTN_ANY_;
  attn_operand_ op[COUNT];
  attn_span_ span[ATTN_JOINT_SPANS_];
  attn_tensor *v = &a->sub.x, *o = &a->out.x;
  memset(op, 0, sizeof op), memset(span, 0, sizeof span);
  if (!p) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has the tensors");
  *v = p->v, *o = p->o, a->x.q = p->q, a->x.k = p->k, a->x.map = p->map;
  a->by_map = p->q.data || p->k.data || p->map.data, a->by_row = p->by_row != 0;
  if (a->by_map && !attn_joint_maps_check_(e, &a->x, &p->attention, ctx, op, span, query)) return 0;
  const attn_softmax_ *m = &a->x.a;
  const int64_t b = a->by_map ? m->q.batch : any, tq = a->by_map ? m->q.len : any;
  const int64_t tk = a->by_map ? m->k.len : any, heads = a->by_map ? a->x.heads : 0;
  const attn_operand_ vo[2] = {{v,
                                w[0],
                                ATTN_OPTIONAL_,
                                b,
                                any,
                                tk,
                                any,
                                "params.v must have the batch and the keys of the maps",
                                {0, 0, 0, 0}},
                               {o,
                                w[1],
                                ATTN_OPTIONAL_,
                                b,
                                any,
                                tq,
                                any,
                                "params.o must have the batch and the queries of the maps",
                                {0, 0, 0, 0}}};
  memcpy(op + V, vo, sizeof vo);
  if (!attn_check_operand_(e, &op[V], 1) || !attn_check_operand_(e, &op[O], 1)) return 0;
  if ((v->data && v->heads < 1) || (o->data && o->heads < 1))
    return attn_reject_(e, ATTN_E_SHAPE, "params.v.heads and o.heads must be at least 1");
  if (o->data && heads && o->heads != heads)
    return attn_reject_(e, ATTN_E_HEADS, "params.o must have the heads of the maps");
  if (v->data && (heads ? heads : o->data ? o->heads : v->heads) % v->heads)
    return attn_reject_(e, ATTN_E_HEADS, "params.v.heads must divide the heads of o and the maps");
  if (v->data && o->data && v->batch != o->batch)
    return attn_reject_(e, ATTN_E_SHAPE, "params.v and o must have the same batch");
  a->sub.len = p->attention.kv_len, a->out.len = p->attention.q_len;
  a->sub.flat = a->out.flat = p->flat != 0;
  if (!a->by_map) { /* the lengths have not been judged yet */
    if ((v->data &&
         !attn_check_array_(e, a->sub.len, v->batch, 4,
                            "params.attention.kv_len must be aligned to its elements", &span[0])) ||
        (o->data &&
         !attn_check_array_(e, a->out.len, o->batch, 4,
                            "params.attention.q_len must be aligned to its elements", &span[1])))
      return 0;
  }
  if (!attn_loss_apart_(e, ctx, a->d, 3, op, COUNT, span, ATTN_JOINT_SPANS_)) return 0;
  if (a->by_map || query) return 1;
  return (!v->data || attn_check_lens_(e, a->sub.len, v->batch, v->len,
                                       "params.attention.kv_len must lie in 0..v.len")) &&
         (!o->data || attn_check_lens_(e, a->out.len, o->batch, o->len,
                                       "params.attention.q_len must lie in 0..o.len"));
}

ATTN_COLD_ attn_status attn_disagreement_call_(double *d, const attn_disagreement_params *params,
                                               attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_disagreement_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  a.d = d;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    (void)attn_disagreement_check_(&e, &a, params, ctx, bytes != NULL);
  return attn_step_call_(&e, table, workers, ctx, attn_disagreement_steps_, &a,
                         "all heads of a tile at once", bytes);
}

ATTN_CALL_(attn_disagreement, (d, params), double *d, const attn_disagreement_params *params)
