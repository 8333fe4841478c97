/* families/heads/talking.h owns talking heads: scores mixed over heads, a softmax, weights mixed over heads,
 * values. */

typedef struct attn_talking_ {
  attn_joint_ x;
  attn_tensor o, v, w_l, w_w;
  float *mix_l, *mix_w; /* P_l, P_w as dense f32 */
  int64_t at_ot, at_v, at_hit;
} attn_talking_;

/* Keys whose weights are scaled and mixed while they are in the first cache. */
enum { ATTN_TALKING_KEYS_ = 16 };

typedef struct attn_talking_tile_ {
  const attn_talking_ *a;
  float *u, *ot, *v;  /* mixed weights, [hv][dv][tile], [block][dv] */
  unsigned char *hit; /* [block][tile] which lanes read a value row */
  int started, careful;
} attn_talking_tile_;

/* Which lanes some softmax head lets see which keys, [block][tile]. */
ATTN_FUNC_ void attn_talking_hits_(unsigned char *hit, attn_joint_tile_ *t, int64_t j0, int64_t n) {
  attn_block_ b;
  memset(hit, 0, (size_t)(n * ATTN_TILE_));
  for (int64_t h = 0; h < t->x->heads; h++) {
    if (!attn_joint_see_(&t->head[h], &b, j0, n)) continue;
    for (int e = 0; e < b.n; e++)
      for (int r = 0; r < t->n; r++)
        if (attn_block_reads_(&t->head[h], &b, e, r)) hit[(b.j0 - j0 + e) * ATTN_TILE_ + r] = 1;
  }
}

/* Values that are not finite must reach the rows that may read them and no others: they are taken out of
 * a copy, and put back afterwards. 0 = all are finite. */
ATTN_FUNC_ int attn_talking_clean_(float *to, const attn_table_ *f, const float *v, int64_t stride,
                                   int64_t n, int64_t dv) {
  if (f->finite(v, stride, n, dv)) return 0;
  for (int64_t e = 0; e < n; e++)
    for (int64_t c = 0; c < dv; c++) {
      const float x = v[e * stride + c];
      to[e * dv + c] = x - x == 0.0f ? x : 0.0f;
    }
  return 1;
}

ATTN_FUNC_ void attn_talking_patch_(const attn_talking_tile_ *y, const attn_joint_tile_ *t,
                                    int64_t h, float *ot, const float *u, int64_t j0, int64_t n) {
  const attn_tensor *v = &y->a->v;
  const int64_t head = h / (y->a->o.heads / v->heads);
  for (int64_t e = 0; e < n; e++) {
    const char *row = attn_at_(v, t->batch, head, j0 + e);
    for (int64_t c = 0; c < v->dim; c++) {
      const float x = attn_number_(row, c, v->dtype, NULL);
      for (int r = 0; x - x != 0.0f && r < t->n; r++)
        if (y->hit[e * ATTN_TILE_ + r]) ot[c * ATTN_TILE_ + r] += u[e * ATTN_TILE_ + r] * x;
    }
  }
}

/* A block of weights: mixed, then times the values. */
ATTN_FUNC_ void attn_talking_block_(void *user, attn_joint_tile_ *t, int64_t j0, int64_t n,
                                    float *w) {
  attn_talking_tile_ *y = (attn_talking_tile_ *)user;
  const attn_talking_ *a = y->a;
  const attn_table_ *f = a->x.a.table;
  const int64_t hv = a->o.heads, dv = a->v.dim, group = hv / a->v.heads;
  const float *v = NULL;
  int64_t stride = 0;
  if (y->careful) attn_talking_hits_(y->hit, t, j0, n);
  for (int64_t e = 0, part; e < n; e += part) {
    part = n - e < ATTN_TALKING_KEYS_ ? n - e : (int64_t)ATTN_TALKING_KEYS_;
    for (int64_t h = 0; h < a->x.heads; h++)
      attn_on_(tile, f)->scale_block(w + h * ATTN_JOINT_STEP_ + e * ATTN_TILE_, part, 0, t->groups,
                                     t->by + h * ATTN_TILE_);
    attn_joint_mix_(t, y->u + e * ATTN_TILE_, hv, a->mix_w, w + e * ATTN_TILE_, a->x.heads, part);
  }
  for (int64_t h = 0; h < hv; h++) {
    float *ot = y->ot + h * dv * ATTN_TILE_, *u = y->u + h * ATTN_JOINT_STEP_;
    if (h % group == 0 || y->careful)
      v = attn_joint_rows_(t, &a->v, h / group, j0, n, y->v, &stride);
    const int patch = y->careful && attn_talking_clean_(y->v, f, v, stride, n, dv);
    if (patch) v = y->v, stride = dv;
    attn_on_(tile, f)->value_block(ot, u, v, stride, n, dv, 0, t->groups, NULL, !y->started);
    if (patch) attn_talking_patch_(y, t, h, ot, u, j0, n);
  }
  y->started = 1;
}

ATTN_FUNC_ void attn_talking_item_(void *job, int worker, int64_t index) {
  const attn_talking_ *a = (const attn_talking_ *)job;
  const attn_table_ *f = a->x.a.table;
  const int64_t hv = a->o.heads, dv = a->v.dim;
  attn_joint_tile_ t;
  attn_talking_tile_ y;
  void *rows[ATTN_TILE_];
  attn_joint_open_(&t, &a->x, worker, index);
  y.a = a, y.u = (float *)(void *)t.own, y.ot = (float *)(void *)(t.own + a->at_ot);
  y.v = (float *)(void *)(t.own + a->at_v), y.hit = (unsigned char *)(t.own + a->at_hit);
  y.started = y.careful = 0;
  attn_joint_first_(&t);
  attn_joint_second_(&t, attn_talking_block_, &y);
  if (t.partial && y.started && !f->finite(y.ot, ATTN_TILE_, hv * dv, t.n)) {
    y.started = 0, y.careful = t.scaled = 1;
    attn_joint_second_(&t, attn_talking_block_, &y);
  }
  if (!y.started) memset(y.ot, 0, (size_t)(hv * dv * ATTN_TILE_) * sizeof(float));
  for (int64_t h = 0; h < hv; h++) {
    for (int r = 0; r < t.n; r++) rows[r] = attn_at_(&a->o, t.batch, h, t.first + r);
    f->unpack(rows, y.ot + h * dv * ATTN_TILE_, t.n, dv, a->o.dtype, NULL);
  }
}

/* P_l or P_w as dense f32; flip: its transpose. */
ATTN_COLD_ float *attn_talking_matrix_(attn_stage_ *s, attn_tensor w, int flip) {
  const int64_t n = w.len, dim = w.dim;
  const int turned = attn_turn_back_(&w);
  float *to = (float *)attn_stage_take_(s, attn_mul_(n, dim), sizeof(float));
  for (int64_t k = 0; s->run && k < n; k++)
    for (int64_t c = 0; c < dim; c++)
      to[flip ? c * n + k : k * dim + c] =
          attn_number_(attn_at_(&w, 0, 0, turned ? c : k), turned ? k : c, w.dtype, NULL);
  return to;
}

ATTN_COLD_ int attn_talking_steps_(attn_stage_ *s, void *job) {
  attn_talking_ *a = (attn_talking_ *)job;
  const int64_t f = sizeof(float), hv = a->o.heads, dv = a->v.dim;
  if (attn_nothing_(&a->x.a)) return 1;
  a->mix_l = attn_talking_matrix_(s, a->w_l, 0), a->mix_w = attn_talking_matrix_(s, a->w_w, 0);
  a->x.mix = a->mix_l;
  a->at_ot = attn_piece_(attn_mul_(hv, ATTN_JOINT_STEP_), f);
  a->at_v = attn_add_(a->at_ot, attn_piece_(attn_mul_(hv, attn_mul_(dv, ATTN_TILE_)), f));
  a->at_hit = attn_add_(a->at_v, attn_piece_(attn_mul_(dv, ATTN_BLOCK_), f));
  attn_joint_memory_(s, &a->x, attn_add_(a->at_hit, attn_piece_(ATTN_BLOCK_ * ATTN_TILE_, 1)));
  return attn_joint_for_(s, &a->x, attn_talking_item_, a);
}

ATTN_COLD_ int attn_talking_check_(attn_error_ *e, attn_talking_ *a,
                                   const attn_talking_params *params, const attn_ctx *ctx,
                                   int query) {
  enum { O, Q, K, V, WL, WW, LSE, COUNT };
  const int64_t any = ATTN_ANY_, b = a->x.q.batch, hk = a->x.q.heads, hv = a->o.heads;
  const int64_t tq = a->x.q.len, tk = a->x.k.len;
  attn_span_ span[ATTN_JOINT_SPANS_];
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has w_l and w_w");
  a->w_l = params->w_l, a->w_w = params->w_w, a->x.lse = params->attention.lse;
  attn_turn_(&a->w_l, params->w_transposed), attn_turn_(&a->w_w, params->w_transposed);
  const int64_t heads = a->w_l.dim;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&a->o, "o", ATTN_OUT_, b, any, tq, a->v.dim,
                    "o must be [q.batch, ., q.len, v.dim]"),
      ATTN_OPERAND_(&a->x.q, "q", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&a->x.k, "k", 0, b, ATTN_DIVIDES_, any, a->x.q.dim,
                    "k must be [q.batch, a divisor of q.heads, ., q.dim]"),
      ATTN_OPERAND_(&a->v, "v", 0, b, ATTN_DIVIDES_, tk, any,
                    "v must be [q.batch, a divisor of o.heads, k.len, .]"),
      ATTN_OPERAND_(&a->w_l, "params.w_l", ATTN_MATRIX_, 1, 1, hk, any,
                    ATTN_IN_OUT_("params.w_l", "q.heads", "H")),
      ATTN_OPERAND_(&a->w_w, "params.w_w", ATTN_MATRIX_, 1, 1, heads, hv,
                    ATTN_IN_OUT_("params.w_w", "H", "o.heads")),
      ATTN_OPERAND_(&a->x.lse, "params.attention.lse", ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b,
                    heads, tq, 1, "params.attention.lse must be f32 [q.batch, H, q.len, 1]")};
  if (!attn_check_given_(e, op, COUNT)) return 0;
  if (hk < 1 || hv < 1)
    return attn_reject_(e, ATTN_E_SHAPE, "q.heads and o.heads must be at least 1");
  for (int i = 0; i < COUNT; i++)
    if (!attn_check_operand_(e, &op[i], i == V ? hv : hk)) return 0;
  return attn_joint_plan_(e, &a->x, &params->attention, heads, ctx, span, query) &&
         attn_check_apart_(e, ctx, op, COUNT, span, ATTN_JOINT_SPANS_);
}

ATTN_COLD_ attn_status attn_talking_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, const attn_talking_params *params,
                                          attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_talking_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  a.o = o, a.x.q = q, a.x.k = k, a.v = v;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    (void)attn_talking_check_(&e, &a, params, ctx, bytes != NULL);
  return attn_step_call_(&e, table, workers, ctx, attn_talking_steps_, &a,
                         "all heads of a tile at once", bytes);
}

ATTN_CALL_(attn_talking, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_talking_params *params)
