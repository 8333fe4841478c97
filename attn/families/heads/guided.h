/* families/heads/guided.h owns the distance of heads' maps from target patterns: sum P^2 - 2 sum P T over what
 * a streaming pass visits, and sum T^2 over everything. */

typedef struct attn_guided_ {
  double *loss;
  attn_guided_params p;
  attn_joint_ x;
  int64_t entries, targets; /* of all lists of heads, of all groups */
  double *part;             /* [items][entries] */
  int64_t at_row;
} attn_guided_;

typedef struct attn_guided_tile_ {
  const attn_guided_ *a;
  double *t;   /* [block][tile] a target */
  double *row; /* [targets][tile] what a target has at one key of each row */
  double *sum; /* [entries] */
} attn_guided_tile_;

/* The arrays of a batch entry. */
ATTN_FUNC_ const uint8_t *attn_target_marks_(const attn_target *t, int64_t b) {
  return t->marked + (t->per_batch ? b * t->len : 0);
}
ATTN_FUNC_ const int32_t *attn_target_segments_(const attn_target *t, int64_t b) {
  return t->segment + (t->per_batch ? b * t->len : 0);
}

/* The number a target has where it has one, for the rows of a tile. */
ATTN_FUNC_ void attn_target_row_(const attn_guided_ *a, const attn_joint_tile_ *t,
                                 const attn_target *g, int alone, double *row) {
  const int64_t keys = a->x.a.k.len;
  const double weight = alone ? 1.0 : (double)g->weight;
  double count = 1.0;
  if (g->kind == ATTN_TARGET_UNIFORM) count = (double)keys;
  if (g->kind == ATTN_TARGET_TOKENS && !g->raw) {
    count = 0.0;
    for (int64_t j = 0; j < keys; j++) count += attn_target_marks_(g, t->batch)[j] != 0;
  }
  for (int r = 0; r < t->n; r++) {
    const int64_t p = t->first + r + a->x.a.q_off;
    if (g->kind == ATTN_TARGET_BLOCK) {
      const int32_t *segment = attn_target_segments_(g, t->batch);
      count = 0.0;
      if (p >= 0 && p < keys)
        for (int64_t j = 0; j < keys; j++) count += segment[j] == segment[p];
    }
    row[r] = count > 0.0 ? weight / count : 0.0;
  }
}

/* Adds a target to keys j0 .. j0 + n - 1 of a tile. */
ATTN_FUNC_ void attn_target_add_(const attn_guided_ *a, const attn_joint_tile_ *t,
                                 const attn_target *g, const double *row, int64_t j0, int64_t n,
                                 double *to) {
  const int64_t keys = a->x.a.k.len, p0 = t->first + a->x.a.q_off;
  const uint8_t *marked = g->kind == ATTN_TARGET_TOKENS ? attn_target_marks_(g, t->batch) : NULL;
  const int32_t *segment = g->kind == ATTN_TARGET_BLOCK ? attn_target_segments_(g, t->batch) : NULL;
  if (g->kind == ATTN_TARGET_OFFSET) {
    for (int r = 0; r < t->n; r++) {
      const int64_t e = p0 + r + g->offset - j0;
      if (e >= 0 && e < n) to[e * ATTN_TILE_ + r] += row[r];
    }
    return;
  }
  for (int64_t e = 0; e < n; e++) {
    if ((g->kind == ATTN_TARGET_FIRST && j0 + e > 0) || (marked && !marked[j0 + e])) continue;
    for (int r = 0; r < t->n; r++) {
      if (segment && (p0 + r < 0 || p0 + r >= keys || segment[j0 + e] != segment[p0 + r])) continue;
      to[e * ATTN_TILE_ + r] += row[r];
    }
  }
}

/* y->t = the target of group g at keys j0 ..; row: of its first target. */
ATTN_FUNC_ void attn_guided_target_(const attn_guided_tile_ *y, const attn_joint_tile_ *t,
                                    const attn_target_group *g, const double *row, int64_t j0,
                                    int64_t n) {
  memset(y->t, 0, (size_t)(n * ATTN_TILE_) * sizeof *y->t);
  for (int64_t m = 0; m < g->targets; m++)
    attn_target_add_(y->a, t, &g->target[m], row + m * ATTN_TILE_, j0, n, y->t);
}

ATTN_FUNC_ void attn_guided_block_(void *user, attn_joint_tile_ *t, int64_t j0, int64_t n,
                                   float *w) {
  attn_guided_tile_ *y = (attn_guided_tile_ *)user;
  const attn_guided_params *p = &y->a->p;
  const double *row = y->row;
  double *sum = y->sum;
  for (int64_t i = 0; i < p->groups; i++) {
    const attn_target_group *g = &p->group[i];
    if (g->heads > 0) attn_guided_target_(y, t, g, row, j0, n);
    for (int64_t k = 0; k < g->heads; k++) {
      const float *by = t->by + g->head[k] * ATTN_TILE_, *from = w + g->head[k] * ATTN_JOINT_STEP_;
      double acc[ATTN_TILE_] = {0.0};
      for (int64_t e = 0; e < n; e++)
        for (int r = 0; r < t->rows; r++) {
          const double x = (double)(from[e * ATTN_TILE_ + r] * by[r]);
          acc[r] += x * (x - 2.0 * y->t[e * ATTN_TILE_ + r]);
        }
      for (int r = 0; r < t->rows; r++) *sum += acc[r];
      sum++;
    }
    row += g->targets * ATTN_TILE_;
  }
}

ATTN_FUNC_ void attn_guided_item_(void *job, int worker, int64_t index) {
  const attn_guided_ *a = (const attn_guided_ *)job;
  const int64_t keys = a->x.a.k.len;
  attn_joint_tile_ t;
  attn_guided_tile_ y;
  attn_joint_open_(&t, &a->x, worker, index);
  y.a = a, y.t = (double *)(void *)t.own, y.row = (double *)(void *)(t.own + a->at_row);
  double *row = y.row, *sum = y.sum = a->part + index * a->entries;
  for (int64_t i = 0; i < a->p.groups; i++) {
    const attn_target_group *g = &a->p.group[i];
    double square = 0.0;
    for (int64_t m = 0; m < g->targets; m++)
      attn_target_row_(a, &t, &g->target[m], g->targets == 1, row + m * ATTN_TILE_);
    if (g->heads > 0)
      for (int64_t j = 0, n; j < keys; j += n) {
        n = keys - j < ATTN_BLOCK_ ? keys - j : ATTN_BLOCK_;
        attn_guided_target_(&y, &t, g, row, j, n);
        for (int64_t e = 0; e < n; e++)
          for (int r = 0; r < t.n; r++) square += y.t[e * ATTN_TILE_ + r] * y.t[e * ATTN_TILE_ + r];
      }
    for (int64_t k = 0; k < g->heads; k++) *sum++ = square;
    row += g->targets * ATTN_TILE_;
  }
  attn_joint_visit_(&t, attn_guided_block_, &y);
}

/* The loss from the sums of all tiles. */
ATTN_COLD_ double attn_guided_join_(const attn_guided_ *a) {
  const attn_softmax_ *x = &a->x.a;
  const double cells = (double)x->q.batch * (double)x->q.len * (double)x->k.len;
  double loss = 0.0;
  int64_t entry = 0;
  for (int64_t i = 0; i < a->p.groups; i++)
    for (int64_t k = 0; k < a->p.group[i].heads; k++, entry++)
      for (int64_t b = 0; b < x->q.batch; b++) {
        double sum = 0.0;
        for (int64_t t = 0; t < x->tiles; t++)
          sum += a->part[(b * x->tiles + t) * a->entries + entry];
        if (sum < 0.0) sum = 0.0; /* rounding */
        loss += a->p.reduction == ATTN_GUIDED_MSE   ? sum / cells / (double)a->p.group[i].heads
                : a->p.reduction == ATTN_GUIDED_FRO ? sqrt(sum) / (double)x->q.batch
                                                    : sum / (double)x->q.batch;
      }
  return loss;
}

ATTN_COLD_ int attn_guided_steps_(attn_stage_ *s, void *job) {
  attn_guided_ *a = (attn_guided_ *)job;
  const int64_t tile = ATTN_TILE_, f = sizeof(double);
  double loss = 0.0;
  if (!attn_nothing_(&a->x.a) && a->x.a.k.len > 0) {
    a->part = (double *)attn_stage_take_(s, attn_mul_(attn_joint_items_(&a->x), a->entries), f);
    a->at_row = attn_piece_(ATTN_BLOCK_ * tile, f);
    attn_joint_memory_(s, &a->x, attn_add_(a->at_row, attn_piece_(attn_mul_(a->targets, tile), f)));
    if (!attn_joint_for_(s, &a->x, attn_guided_item_, a)) return 0;
    if (s->run) loss = attn_guided_join_(a);
  }
  if (s->run) *a->loss = attn_one_nan_f64_(loss);
  return 1;
}

/* One target of a group; more is 1 when it is not alone. */
ATTN_COLD_ int attn_target_check_(attn_error_ *e, const attn_guided_ *a, const attn_target *t,
                                  int more, attn_span_ *span) {
  const int64_t keys = a->x.a.k.len, batch = t->per_batch ? a->x.a.q.batch : 1;
  span->lo = span->hi = 0;
  if ((int)t->kind < 0 || t->kind >= ATTN_TARGET_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.group.target.kind must be an attn_target_kind");
  if (t->raw && t->kind != ATTN_TARGET_TOKENS)
    return attn_reject_(e, ATTN_E_RANGE, "params.group.target.raw is of TOKENS alone");
  if (!(t->weight >= 0.0f && t->weight < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.group.target.weight must be finite and not negative");
  if (!more && t->weight != 0.0f && t->weight != 1.0f)
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.group.target.weight of a target alone must be 1, or 0 for it");
  if (attn_abs64_(t->offset) >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_RANGE, "params.group.target.offset must lie within 2^40 of 0");
  if (t->kind != ATTN_TARGET_TOKENS && t->kind != ATTN_TARGET_BLOCK) return 1;
  if (t->kind == ATTN_TARGET_TOKENS ? !t->marked : !t->segment)
    return attn_reject_(e, ATTN_E_NULL, "params.group.target needs marked, or segment");
  if (t->len != keys)
    return attn_reject_(e, ATTN_E_SHAPE, "params.group.target.len must be the number of keys");
  return attn_check_array_(
      e, t->kind == ATTN_TARGET_TOKENS ? (const void *)t->marked : (const void *)t->segment,
      attn_mul_(batch, keys), t->kind == ATTN_TARGET_TOKENS ? 1 : 4,
      "params.group.target.segment must be aligned to its elements", span);
}

ATTN_COLD_ int attn_group_check_(attn_error_ *e, attn_guided_ *a, const attn_target_group *g,
                                 const attn_ctx *ctx, int query) {
  attn_span_ span[2];
  double sum = 0.0;
  if (g->targets < 1 || g->heads < 0)
    return attn_reject_(e, ATTN_E_SHAPE,
                        "params.group.targets must be at least 1, .heads not negative");
  if (!g->target || (g->heads > 0 && !g->head))
    return attn_reject_(e, ATTN_E_NULL, "params.group.target and .head must not be null");
  if (!attn_check_array_(e, g->head, g->heads, 4,
                         "params.group.head must be aligned to its elements", &span[0]))
    return 0;
  for (int64_t m = 0; m < g->targets; m++) {
    if (!attn_target_check_(e, a, &g->target[m], g->targets > 1, &span[1]) ||
        !attn_loss_apart_(e, ctx, a->loss, 1, NULL, 0, span, 2))
      return 0;
    sum += (double)g->target[m].weight;
  }
  if (g->targets > 1 && !(sum > 1.0 - 1e-5 && sum < 1.0 + 1e-5))
    return attn_reject_(e, ATTN_E_VALUE, "params.group.target.weight must sum to 1 over a group");
  if (!query)
    for (int64_t i = 0; i < g->heads; i++)
      if (g->head[i] < 0 || g->head[i] >= a->x.heads)
        return attn_reject_(e, ATTN_E_INDEX, "params.group.head must lie in 0..H-1");
  a->entries = attn_add_(a->entries, g->heads);
  a->targets = attn_add_(a->targets, g->targets);
  return 1;
}

ATTN_COLD_ int attn_guided_check_(attn_error_ *e, attn_guided_ *a, const attn_guided_params *params,
                                  const attn_ctx *ctx, int query) {
  attn_operand_ op[ATTN_LOSS_TENSORS_];
  attn_span_ span[ATTN_JOINT_SPANS_];
  memset(op, 0, sizeof op), memset(span, 0, sizeof span);
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has the maps");
  a->p = *params, a->x.q = a->p.q, a->x.k = a->p.k, a->x.map = a->p.map;
  if ((int)a->p.reduction < 0 || a->p.reduction >= ATTN_GUIDED_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.reduction must be an attn_guided_reduction");
  if (a->p.groups < 0) return attn_reject_(e, ATTN_E_SHAPE, "params.groups must not be negative");
  if (a->p.groups > 0 && !a->p.group)
    return attn_reject_(e, ATTN_E_NULL, "params.group must not be null");
  if (!attn_joint_maps_check_(e, &a->x, &a->p.attention, ctx, op, span, query) ||
      !attn_loss_apart_(e, ctx, a->loss, 1, op, ATTN_LOSS_TENSORS_, span, ATTN_JOINT_SPANS_))
    return 0;
  for (int64_t i = 0; i < a->p.groups; i++)
    if (!attn_group_check_(e, a, &a->p.group[i], ctx, query)) return 0;
  return 1;
}

ATTN_COLD_ attn_status attn_guided_loss_call_(double *loss, const attn_guided_params *params,
                                              attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_guided_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  a.loss = loss;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    (void)attn_guided_check_(&e, &a, params, ctx, bytes != NULL);
  return attn_step_call_(&e, table, workers, ctx, attn_guided_steps_, &a,
                         "all heads of a tile at once", bytes);
}

ATTN_CALL_(attn_guided_loss, (loss, params), double *loss, const attn_guided_params *params)
