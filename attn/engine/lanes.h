/* engine/lanes.h owns what the rows of a tile see, and their place in its lanes. */

/* What is multiplied into both terms of a ramp, so that their sum is not below 1 where it should be 1,
 * whatever the roundings: a block beyond all ramps of a tile has no ramp at all. */
#define ATTN_RAMP_UP_ (1.0 + 2e-7)

ATTN_FUNC_ double attn_span_ramp_(const attn_span *span) {
  return span->ramp > 0.0f ? (double)span->ramp : 32.0;
}

ATTN_FUNC_ double attn_span_z_(const attn_tile_ *t, int r) {
  const attn_span *span = &t->a->span;
  return (double)span
      ->z[span->per_query ? attn_row_number_(t->a, t->batch, t->head[r], t->row[r]) : t->head[r]];
}

/* The largest distance t <= most with a weight m(t) = clip((ramp + z - t - shift) / ramp, 0, 1) above 0, and
 * ramp m(t) there, unclipped. Distances are whole: the fractions of z and ramp are kept apart from what is,
 * or a short ramp would be lost in the sum. */
ATTN_FUNC_ int64_t attn_span_last_(double z, double ramp, int64_t shift, int64_t most,
                                   double *rest) {
  const double huge = 2305843009213693952.0, whole = floor(z) + floor(ramp); /* 2^61 */
  const double a = z - floor(z), b = ramp - floor(ramp);
  const double over = (a > b ? a - 1.0 : a) + (a > b ? b : b - 1.0); /* a + b - 1, exact near 0 */
  int64_t t = whole < 0.0 ? -((int64_t)1 << 61) : (int64_t)1 << 61;
  if (whole > -huge && whole < huge) {
    *rest = over > 0.0 ? over : a + b > 0.0 ? a + b : 1.0;
    t = (int64_t)whole + (over > 0.0) - (a + b == 0.0) - shift;
  } else {
    *rest = z - huge - (double)shift + ramp;
  }
  if (t > most) *rest += (double)(t - most), t = most;
  return t;
}

/* The keys that an adaptive span leaves row r, and where its ramp ends. A weight is edge + (last - t) / ramp
 * for the tile, edge being that of the last key. */
ATTN_FUNC_ void attn_tile_span_(attn_tile_ *t, int r) {
  const attn_span *span = &t->a->span;
  const double z = attn_span_z_(t, r), ramp = attn_span_ramp_(span);
  const int64_t p = t->pos[r], far = (int64_t)1 << 41;
  double rest, flat = floor(z) - (double)span->shift; /* as far back weights are 1 */
  int64_t most = t->last[r] = attn_span_last_(z, ramp, span->shift, far, &rest);
  t->edge[r] = (float)attn_clamp_f64_(rest / ramp * ATTN_RAMP_UP_);
  if (span->max_span > 0 && span->max_span < most) most = span->max_span;
  const int64_t lo = p - most, hi = p + (span->include_self != 0);
  if (lo > t->lo[r]) t->lo[r] = lo;
  if (hi < t->hi[r]) t->hi[r] = hi;
  if (!(flat < (double)far)) flat = (double)far;
  if (flat < (double)-far) flat = (double)-far;
  const int64_t from = p - (int64_t)flat;
  if (r == 0 || from > t->flat) t->flat = from;
}

/* What group g's rows see and where they sit. */
ATTN_FUNC_ void attn_tile_bounds_(attn_tile_ *t, int g) {
  const int r0 = g * ATTN_GROUP_, r1 = t->n < r0 + ATTN_GROUP_ ? t->n : r0 + ATTN_GROUP_;
  int64_t lo_min = INT64_MAX, lo_max = 0, hi_min = INT64_MAX, hi_max = 0;
  int64_t pos_min = t->pos[r0], pos_max = t->pos[r0];
  t->g[g].ragged = 0;
  for (int r = r0; r < r1; r++) {
    const int64_t lo = t->lo[r], hi = t->hi[r];
    if (t->pos[r] < pos_min) pos_min = t->pos[r];
    if (t->pos[r] > pos_max) pos_max = t->pos[r];
    if (lo >= hi) {
      t->lo[r] = t->hi[r] = 0, t->g[g].ragged = 1;
      continue;
    }
    if (lo < lo_min) lo_min = lo;
    if (lo > lo_max) lo_max = lo;
    if (hi < hi_min) hi_min = hi;
    if (hi > hi_max) hi_max = hi;
  }
  if (hi_max == 0) lo_min = hi_min = 0;
  t->g[g].lo_min = lo_min, t->g[g].lo_max = lo_max;
  t->g[g].hi_min = hi_min, t->g[g].hi_max = hi_max;
  t->g[g].pos_min = pos_min, t->g[g].pos_max = pos_max;
}

/* The keys of a row with `keep` are two parts: 0 .. keep, and from the window's begin on; one part where
 * they meet. A tile is swept over one after the other. */
ATTN_FUNC_ int attn_tile_parts_(const attn_tile_ *t) { return t->a->keep ? 2 : 1; }

ATTN_FUNC_ void attn_tile_part_(attn_tile_ *t, int part) {
  const int64_t keep = t->a->keep;
  if (!keep) return;
  for (int r = 0; r < t->n; r++) {
    const int64_t lo = t->wide_lo[r], hi = t->wide_hi[r];
    const int meet = t->near[r] <= keep;
    t->lo[r] = part == 0 ? lo : meet ? hi : lo > t->near[r] ? lo : t->near[r];
    t->hi[r] = part == 0 && !meet && hi > keep ? keep : hi;
  }
  for (int g = 0; g < t->groups; g++) attn_tile_bounds_(t, g);
}

ATTN_FUNC_ void attn_tile_range_(attn_tile_ *t, int r) {
  int64_t lo = 0, hi = 0;
  t->a->range(t->a->range_user, t->batch, t->row[r], &lo, &hi);
  if (lo > t->lo[r]) t->lo[r] = lo;
  if (hi < t->hi[r]) t->hi[r] = hi;
}

/* Whether scaled queries are wanted beside their pairs: by terms of the score, and by key lists. */
ATTN_FUNC_ int attn_low_scales_(const attn_softmax_ *a) {
  const int terms = ATTN_TERM_RELATIVE_ | ATTN_TERM_XL_ | ATTN_TERM_LABELS_;
  return ATTN_PART_(PATTERN, a->plan) != NULL || (a->terms & terms);
}

/* The packed queries as pairs of halves. dtype: what they are stored as. */
ATTN_FUNC_ void attn_low_queries_(attn_tile_ *t, attn_dtype dtype) {
  const attn_softmax_ *a = t->a;
  attn_tile_powers_ *s = attn_low_powers_(t);
  float top[ATTN_TILE_] = {0};
  int16_t by[ATTN_TILE_];
  if (s && dtype != ATTN_F16) attn_lane_peaks_(top, t->w.qt, a->q.dim, t->groups * ATTN_GROUP_);
  if (!s || !(s->any_q = attn_lane_powers_(s->q, top))) {
    a->low->pair_tile(t->w.low, t->w.qt, a->q.dim, 0, 0, t->groups);
    return;
  }
  for (int r = 0; r < ATTN_TILE_; r++) by[r] = (int16_t)-s->q[r];
  attn_power_tile_(a->low, t->w.low, t->w.qt, (int)a->q.dim, 0, 0, t->groups, NULL, by);
}

/* Places rows in lanes, transposes the queries. Lanes of their groups that have no row compute on zeros and
 * are never stored. */
ATTN_FUNC_ void attn_tile_lanes_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const void *q[ATTN_TILE_];
  const int64_t keys = a->kv_len ? a->kv_len[t->batch] : a->k.len;
  const int64_t queries = a->q_len ? a->q_len[t->batch] : a->q.len;
  const attn_reshape_ *reshape = ATTN_PART_(WEIGHTS_, a->reshape);
  t->head_k = attn_over_(t->head[0], attn_over_(a->q.heads, a->k.heads));
  t->head_v = attn_over_(t->head[0], attn_over_(a->q.heads, a->v.heads));
  t->groups = (t->n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  t->flat = INT64_MIN;
  /* rows whose scores never meet a lane have no lanes beside them */
  const int lanes = a->few && a->by_row && !attn_few_opens_(a) ? t->n : t->groups * ATTN_GROUP_;
  for (int r = t->n; r < lanes; r++) {
    t->lo[r] = 0, t->hi[r] = INT64_MAX, t->pos[r] = 0, t->head[r] = 0;
    t->slope[r] = t->rel[r] = t->center[r] = t->precision[r] = 0.0f;
    t->start[r] = t->edge[r] = 0.0f, t->index[r] = 0;
  }
  const char *q0 = attn_at_(&a->q, t->batch, 0, 0);
  char *o0 = attn_at_(&a->o, t->batch, 0, 0);
  const int64_t q_size = attn_size_(a->q.dtype), o_size = attn_size_(a->o.dtype);
  int64_t apart = 0;
  for (int r = 0; r < t->n; r++) {
    const int64_t i = t->row[r], h = t->head[r], p = t->pos[r] = i + a->q_off;
    apart |= (h ^ t->head[0]) | (i - r - t->row[0]);
    t->near[r] = attn_clamp_(p - a->left, 0, keys);
    t->lo[r] = a->keep ? 0 : t->near[r];
    t->hi[r] = i < queries ? attn_clamp_(p + a->right + 1, 0, keys) : 0;
    if (a->range) attn_tile_range_(t, r);
    if (reshape && reshape->bound) reshape->bound(t, r);
    if (t->lo[r] < t->key0) t->lo[r] = t->key0;
    if (t->hi[r] > t->key1) t->hi[r] = t->key1;
    q[r] = q0 + (h * a->q.stride_head + i * a->q.stride_len) * q_size;
    t->out[r] = o0 + (h * a->o.stride_head + i * a->o.stride_len) * o_size;
  }
  t->lined = apart == 0;
  if (a->mask.kind)
    for (int r = 0; r < t->n; r++)
      t->mask[r] = attn_mask_at_(&a->mask, t->batch, t->head[r], t->row[r]);
  if (a->bias.kind)
    for (int r = 0; r < t->n; r++)
      t->bias[r] = attn_mask_at_(&a->bias, t->batch, t->head[r], t->row[r]);
  if (a->alibi)
    for (int r = 0; r < t->n; r++) t->slope[r] = -attn_to_unit_(a, a->alibi[t->head[r]]);
  for (int r = 0; ATTN_PART_(TERMS, a->gaussian.precision) && r < t->n; r++) {
    const int64_t at = attn_row_number_(a, t->batch, t->head[r], t->row[r]);
    t->precision[r] = attn_to_unit_(a, a->gaussian.precision[at]);
  }
  for (int r = 0; ATTN_PART_(TERMS, a->span.z) && r < t->n; r++) attn_tile_span_(t, r);
  if (a->keep)
    for (int r = 0; r < t->n; r++) t->wide_lo[r] = t->lo[r], t->wide_hi[r] = t->hi[r];
  for (int g = 0; g < t->groups; g++) attn_tile_bounds_(t, g);
  if (a->by_row) return;
  const int turned = reshape && reshape->queries;
  if (turned) reshape->queries(t, q);
  if (ATTN_PART_(LOW, a->low) &&
      !ATTN_PART_(LOW, a->codes)) { /* the scale comes after the product */
    a->table->pack(t->w.qt, q, t->n, a->q.dim, (int)a->q.dtype, 1.0f, attn_least_(1.0f));
    attn_low_queries_(t, a->q.dtype);
    if (!attn_low_scales_(a)) return;
  }
  a->table->pack(t->w.qt, q, t->n, a->q.dim, turned ? ATTN_F32 : (int)a->q.dtype, a->scale_hi,
                 a->scale_lo);
  if (ATTN_PART_(COMPOSED, a->mix))
    a->table->scale_rows(t->w.qt, ATTN_TILE_, t->w.qt, ATTN_TILE_, a->q.dim,
                         t->groups * ATTN_GROUP_,
                         ATTN_PART_(COMPOSED, a->mix) + t->head[0] * a->q.dim);
}

/* Tiles of so many rows. */
ATTN_FUNC_ int64_t attn_tiles_of_(int64_t rows) {
  return rows / ATTN_TILE_ + (rows % ATTN_TILE_ != 0);
}
