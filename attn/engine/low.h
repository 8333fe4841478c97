/* engine/low.h owns products of bf16 and of f16 in the exact-softmax engine: rows of K and V as pairs, scores from
 * them, and sums of values by weights that are rounded likewise. What lies between the two products is what
 * f32 has, in f32.
 *
 * Rows that f16 would not hold are divided by powers of two, which the products get back (engine/powers.h). A
 * value has the power of its key: its weight takes it over, and then the weights of a row are divided by
 * one of their own, that of the largest product. */

/* Rows of halves that can be read in place. */
ATTN_FUNC_ int attn_low_direct_(const attn_tile_ *t, const attn_block_ *b, const attn_tensor *x,
                                attn_dtype dtype) {
#ifdef ATTN_BIG_ENDIAN_
  (void)t, (void)b, (void)x, (void)dtype;
  return 0;
#else
  const attn_softmax_ *a = t->a;
  return x->dtype == dtype && !b->gathered && !(a->seq && a->seq->cached);
#endif
}

/* What the halves are. */
ATTN_INLINE_ attn_dtype attn_low_dtype_(const attn_low_table_ *low) {
  return low->peaks ? ATTN_F16 : ATTN_BF16;
}

/* n rows as halves, whose pairs are read as words: the even number is the low half. */
ATTN_FUNC_ void attn_low_rows_(const attn_low_table_ *low, uint16_t *to, int64_t width,
                               const float *x, int64_t stride, int64_t n, int64_t dim,
                               const float *by) {
  low->narrow(to, width, x, stride, n, dim, by);
#ifdef ATTN_BIG_ENDIAN_
  for (int64_t i = 0; i < n * width; i += 2) {
    const uint16_t even = to[i];
    to[i] = to[i + 1], to[i + 1] = even;
  }
#endif
}

/* Rows of keys as halves; those of an odd dim are read one number further. */
ATTN_FUNC_ void attn_low_keys_(const attn_tile_ *t, attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  attn_tile_powers_ *s = attn_low_powers_(t);
  if (s) s->any_k = 0;
  if (attn_low_direct_(t, b, &a->k, attn_low_dtype_(a->low)) && a->k.dim % 2 == 0) {
    b->k_low = attn_at_(&a->k, t->batch, t->head_k, b->j0);
    b->k_step = 2 * a->k.stride_len;
    return;
  }
  const attn_low_plan_ x = attn_low_plan_of_(a);
  uint16_t *to = (uint16_t *)(void *)(t->w.low + x.keys);
  if (s && a->k.dtype != ATTN_F16)
    s->any_k = attn_powers_(a->low, s->k, s->by, b->k, b->k_stride, b->n, a->k.dim);
  attn_low_rows_(a->low, to, x.key_width, b->k, b->k_stride, b->n, a->k.dim,
                 s && s->any_k ? s->by : NULL);
  b->k_low = to, b->k_step = 2 * x.key_width;
}

/* Rows of the block as they are wanted: f32 where something has to be converted or cleaned. */
ATTN_FUNC_ void attn_low_fetch_(const attn_tile_ *t, attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  const attn_dtype half = attn_low_dtype_(a->low);
  const int k = attn_low_direct_(t, b, &a->k, half) && a->k.dim % 2 == 0;
  const int v = attn_low_direct_(t, b, &a->v, half) && !t->careful;
  b->v_low = NULL, b->v_step = 0;
  if (!k || !v) attn_block_fetch_(t, b);
  if (v) b->v_low = attn_at_(&a->v, t->batch, t->head_v, b->j0), b->v_step = 2 * a->v.stride_len;
  attn_low_keys_(t, b);
}

/* Scores of a segment. */
ATTN_FUNC_ void attn_low_scores_(const attn_tile_ *t, const attn_block_ *b,
                                 const attn_segment_ *seg, float *y, float *top) {
  const attn_softmax_ *a = t->a;
  attn_pair_dots_ d;
  memset(&d, 0, sizeof d);
  d.y = y, d.ys = ATTN_TILE_, d.x = t->w.low;
  d.b = (const char *)b->k_low + seg->at * b->k_step;
  d.row = b->k_step, d.step = sizeof(uint32_t);
  d.rows = seg->n, d.n = (a->q.dim + 1) / 2;
  d.g0 = seg->g0, d.g1 = seg->g1, d.top = top;
  d.scale = ATTN_PART_(TERMS, a->xl.table.data) ? 1.0f : a->scale_hi; /* see attn_tile_terms_ */
  attn_tile_powers_ *s = attn_low_powers_(t);
  if (!s || (!s->any_k && !s->any_q)) {
    a->low->pair_dots(&d);
    return;
  }
  if (!s->any_k) memset(s->k, 0, sizeof s->k);
  const float scale = d.scale;
  const int64_t end = seg->at + seg->n;
  d.unit = s->unit, d.scale = 1.0f;
  for (int64_t e = seg->at, to; e < end; e = to) { /* keys of one power at a time */
    to = attn_powers_run_(s->k, e, end);
    attn_units_(s->unit, s->k[e], s->q, scale);
    d.y = y + (e - seg->at) * ATTN_TILE_, d.b = (const char *)b->k_low + e * b->k_step;
    d.rows = to - e;
    a->low->pair_dots(&d);
  }
}

/* Pairs of keys begin at even keys, whatever a block begins with, so that a row's sums hang on the row
 * alone. */
typedef struct attn_low_part_ {
  int first, n, lead; /* entries of a block; whether the first is the odd one of its pair */
  int64_t at, pairs;  /* the pairs they lie in */
} attn_low_part_;

ATTN_FUNC_ attn_low_part_ attn_low_part_of_(const attn_block_ *b, int first, int end) {
  const int odd = b->gathered ? 0 : (int)(b->j0 & 1);
  attn_low_part_ x = {first, end - first, (first + odd) & 1, (first + odd) / 2, 0};
  x.pairs = (x.n + x.lead + 1) / 2;
  return x;
}

/* Scores of entries first .. end - 1 become weights of groups g0..g1. */
ATTN_FUNC_ void attn_low_weights_(attn_tile_ *t, const attn_block_ *b, const attn_ramp_ *ramp,
                                  int g0, int g1, int in_place) {
  const attn_low_part_ x = attn_low_part_of_(b, b->first[g0], b->end[g0]);
  attn_running_softmax_ run = {t->m, t->l, t->alpha, t->top, NULL, in_place};
  attn_ramp_ here;
  if (ramp) here = *ramp, here.at += x.first, run.ramp = &here;
  t->a->low->pair_softmax(t->w.low + attn_low_plan_of_(t->a).weights + x.at * ATTN_TILE_,
                          t->w.s + x.first * ATTN_TILE_, x.n, x.lead, g0, g1, &run);
}

/* The powers of values, and what weights are to begin with. 1: some power is not 0. */
ATTN_FUNC_ int attn_low_value_powers_(const attn_tile_ *t, const attn_block_ *b,
                                      attn_tile_powers_ *s) {
  const attn_softmax_ *a = t->a;
  memset(s->v, 0, sizeof s->v);
  for (int r = 0; r < ATTN_TILE_; r++) s->sum[r] = -ATTN_WEIGHT_POWER_;
  attn_units_(s->unit, 0, s->sum, 1.0f);
  return a->v.dtype != ATTN_F16 &&
         attn_powers_(a->low, s->v, s->by, b->v, b->v_stride, b->n, a->v.dim);
}

/* Pairs of weights times powers of values, or of any size. Rows without such a key have those they had. */
ATTN_OUTLINE_ void attn_low_again_(const attn_tile_ *t, attn_tile_powers_ *s, uint32_t *p,
                                   const attn_low_part_ *x, int g0, int g1) {
  const float *w = t->w.s + x->first * ATTN_TILE_;
  const int16_t *power = s->v + x->first;
  for (int r = g0 * ATTN_GROUP_; r < g1 * ATTN_GROUP_; r++) {
    double top = 0.0;
    int moved = 0;
    for (int i = 0; i < x->n; i++) {
      const float y = w[i * ATTN_TILE_ + r] < 0.0f ? -w[i * ATTN_TILE_ + r] : w[i * ATTN_TILE_ + r];
      if (!(y > 0.0f) || y - y != 0.0f) continue;
      const double all = (double)y * attn_power_f64_(power[i]);
      moved |= power[i], top = all > top ? all : top;
    }
    int up = ATTN_WEIGHT_POWER_;
    if (moved || top > 1.0) up = ATTN_WEIGHT_POWER_ - 1 - attn_exponent_(top);
    s->sum[r] = (int16_t)(up < 250 ? up : 250); /* sums are beyond f32 there: see attn_units_ */
  }
  attn_power_tile_(t->a->low, p + x->at * ATTN_TILE_, w, x->n, x->lead, g0, g1, power, s->sum);
  for (int r = g0 * ATTN_GROUP_; r < g1 * ATTN_GROUP_; r++) s->sum[r] = (int16_t)-s->sum[r];
  attn_units_(s->unit, 0, s->sum, 1.0f);
}

/* attn_block_values_ of halves. Where keys are missing in between, their weights are 0. */
ATTN_FUNC_ void attn_low_values_(attn_tile_ *t, attn_block_ *b, const attn_ramp_ *ramp, int started,
                                 int in_place) {
  const attn_softmax_ *a = t->a;
  const attn_low_plan_ at = attn_low_plan_of_(a);
  uint32_t *p = t->w.low + at.weights, *v = t->w.low + at.values;
  const int64_t dv = a->v.dim, word = sizeof(uint32_t);
  attn_tile_powers_ *s = attn_low_powers_(t);
  const int moved = s && !a->counting && attn_low_value_powers_(t, b, s),
            again = moved || attn_reweighs_(a) || attn_drops_(a);
  attn_pair_dots_ d;
  for (int g = 0, to; g < t->groups; g = to) {
    to = attn_block_alike_(t, b, g);
    if (b->end[g]) attn_low_weights_(t, b, ramp, g, to, in_place || moved);
  }
  if (attn_reweighs_(a)) attn_block_hand_(t, b);
  if (a->counting) return;
  if (attn_drops_(a)) attn_block_drop_weights_(t, b);
  attn_pair_rows_ rows = {b->v_low, b->v_step, b->n, dv, (int)attn_low_dtype_(a->low), 0, NULL};
  if (moved) rows.by = s->by;
  if (!b->v_low) rows.x = b->v, rows.step = b->v_stride * word, rows.kind = (int)ATTN_F32;
  rows.lead = attn_low_part_of_(b, 0, b->n).lead;
  a->low->pair_rows(v, at.value_width, &rows);
  if (!started && !b->whole) memset(t->w.ot, 0, (size_t)(dv * ATTN_TILE_) * sizeof(float));
  memset(&d, 0, sizeof d);
  d.y = t->w.ot, d.ys = ATTN_TILE_, d.rows = dv;
  d.row = word, d.step = at.value_width * word;
  d.alpha = started ? t->alpha : NULL, d.start = !started && b->whole;
  if (s) d.unit = s->unit;
  for (int g = 0, to; g < t->groups; g = to) {
    to = attn_block_alike_(t, b, g);
    if (!b->end[g]) continue;
    const attn_low_part_ x = attn_low_part_of_(b, b->first[g], b->end[g]);
    if (again && s)
      attn_low_again_(t, s, p, &x, g, to);
    else if (again)
      a->low->pair_tile(p + x.at * ATTN_TILE_, t->w.s + x.first * ATTN_TILE_, x.n, x.lead, g, to);
    d.x = p + x.at * ATTN_TILE_, d.b = v + x.at * at.value_width;
    d.n = x.pairs, d.g0 = g, d.g1 = to;
    a->low->pair_dots(&d);
  }
}

/* The sum of a row holds weights that are rounded; those of its map are not, and one that is nearly all of the sum may
 * come out above it. */
ATTN_FUNC_ void attn_low_map_(float *row, int64_t n) {
  for (int64_t c = 0; c < n; c++)
    if (row[c] > 1.0f) row[c] = 1.0f;
}
