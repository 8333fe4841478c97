/* engine/codes.h owns scores from codes of 8 bits in the exact-softmax engine: params.compute = ATTN_COMPUTE_I8.
 *
 * A query has a scale, and a key, so that both hang on their own numbers alone. What many keys have in common
 * is taken off first: it moves all scores of a row alike and would eat up the codes. That is what the first
 * keys have in common, which every row sees that sees a later one: key 0 for the next 15, the mean of 16 for
 * the next 112, the mean of 128 from there on. Its product with the queries is added in f32, so that scores
 * are whole. Calls whose rows may see later keys without the first have nothing taken off.
 *
 * Rows of keys and of queries with a number that codes cannot hold have their products in f32. */

/* The most columns whose sums of products are exact in f32. */
#define ATTN_CODES_MOST_ 1024

/* The primitives of ATTN_COMPUTE_I8; values are multiplied as bf16 where the processor does it. */
ATTN_COLD_ int attn_codes_choose_(attn_error_ *e, attn_softmax_ *a, int prefer) {
  a->low = NULL, a->codes = NULL, a->feature = ATTN_FEATURE_NONE;
  const int fits = a->q.dim <= ATTN_CODES_MOST_;
#if ATTN_HAS_LOW
  attn_feature pairs = ATTN_FEATURE_NONE;
  if (a->takes_low && fits) {
    a->codes = attn_code_of_(a->table->isa, &a->feature);
    if (prefer && a->feature == ATTN_FEATURE_NONE) a->codes = NULL;
    if (a->codes) a->low = attn_low_of_(a->table->isa, &pairs);
    if (a->codes && pairs == ATTN_FEATURE_NONE) a->low = NULL;
    if (a->codes) return 1;
  }
#endif
  if (prefer) return 1;
  if (!ATTN_HAS_LOW)
    return attn_reject_(e, ATTN_E_ISA, "params.compute: ATTN_ONLY leaves out ATTN_FAMILY_LOW");
  if (!a->takes_low)
    return attn_reject_(e, ATTN_E_VALUE, "params.compute must be ATTN_COMPUTE_F32 in this call");
  if (!fits)
    return attn_reject_(e, ATTN_E_VALUE, "params.compute: ATTN_COMPUTE_I8 takes q.dim up to 1024");
  return attn_reject_(e, ATTN_E_ISA,
                      "params.compute: neither a feature of the processor nor an emulation has "
                      "products of int8 (attn_feature_why)");
}

/* Keys of an int8 cache are codes already. */
ATTN_FUNC_ int attn_codes_own_(const attn_softmax_ *a) {
  const attn_scales *s = &a->k_scales;
  return a->k.dtype == ATTN_I8 && (s->group == 0 || s->group >= a->k.dim);
}

/* Whether each row that sees a key sees all those before it. */
ATTN_FUNC_ int attn_codes_centered_(const attn_softmax_ *a) {
  return !attn_codes_own_(a) && !a->mask.kind && !a->bias.kind && a->left >= INT64_MAX / 4 &&
         !a->range && !a->modify && !ATTN_PART_(PATTERN, a->plan) && !ATTN_PART_(EDGES, a->edges);
}

/* Keys with the same center end here. */
ATTN_FUNC_ int64_t attn_codes_zone_(int64_t key, int *zone) {
  *zone = key < 16 ? 0 : key < ATTN_BLOCK_ ? 1 : 2;
  return *zone == 0 ? 16 : *zone == 1 ? ATTN_BLOCK_ : INT64_MAX;
}

/* The packed queries of a tile as codes. */
ATTN_FUNC_ void attn_codes_tile_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  attn_codes_ *x = t->w.codes;
  const attn_code_tile_ q = {t->w.code_q, t->w.qt, a->q.dim, t->groups,
                             x->scale,    x->sums, x->raised};
  a->codes->code_tile(&q);
  memset(t->w.code_center, 0, (size_t)(4 * attn_codes_width_(a)) * sizeof(float));
  x->zones = 0, x->bad[3] = 0;
  for (int r = 0; r < t->n; r++)
    if (x->scale[r] == 0.0f) x->bad[3] |= (uint64_t)1 << r;
  x->any = x->bad[3];
}

/* Keys that codes are made of: x, step elements apart. */
typedef struct attn_codes_from_ {
  const char *x;
  int64_t step;
  attn_dtype dtype; /* f32 or bf16 */
} attn_codes_from_;

/* What the keys from 0 on have in common, and its products; the block begins with them. */
ATTN_FUNC_ void attn_codes_center_(attn_tile_ *t, const attn_block_ *b,
                                   const attn_codes_from_ *from) {
  const attn_softmax_ *a = t->a;
  attn_codes_ *x = t->w.codes;
  const int64_t width = attn_codes_width_(a);
  float weight[ATTN_BLOCK_];
  int32_t index[ATTN_BLOCK_];
  for (int e = 0; e < b->n; e++) index[e] = e;
  x->zones = b->n < 16 ? 1 : b->n < ATTN_BLOCK_ ? 2 : 3;
  for (int z = 0; z < x->zones; z++) {
    const int n = z == 0 ? 1 : z == 1 ? 16 : ATTN_BLOCK_;
    for (int e = 0; e < n; e++) weight[e] = 1.0f / (float)n;
    attn_on_(sum, a->table)
        ->axpys(t->w.code_center + z * width, weight, from->x, from->step, index, n, a->k.dim,
                from->dtype, 1.0f, 0);
  }
  attn_on_(tile, a->table)
      ->score_block(x->with[0], t->w.qt, t->w.code_center, width, x->zones, a->k.dim, 0, t->groups,
                    t->spare);
  for (int z = 0; z < x->zones; z++) {
    x->bad[z] = x->bad[3]; /* of a zone alone: other keys may be seen without it */
    for (int r = 0; r < t->n; r++)
      if (x->with[z][r] - x->with[z][r] != 0.0f) x->bad[z] |= (uint64_t)1 << r;
    x->any |= x->bad[z];
  }
}

/* The codes of a block of keys. 0: some key has none. */
ATTN_FUNC_ int attn_codes_make_(attn_tile_ *t, const attn_block_ *b, const attn_codes_from_ *from) {
  const attn_softmax_ *a = t->a;
  attn_codes_ *x = t->w.codes;
  const int64_t width = attn_codes_width_(a), f = sizeof(float);
  const int centered = attn_codes_centered_(a);
  int good = 1;
  if (centered && b->j0 == 0) attn_codes_center_(t, b, from);
  for (int64_t e = 0, end; e < b->n; e = end) {
    int zone = 3;
    end = INT64_MAX;
    if (centered) end = attn_codes_zone_(b->j0 + e, &zone);
    end = end < b->j0 + b->n ? end - b->j0 : b->n;
    const int known = zone < x->zones;
    attn_code_rows_ rows;
    rows.to = t->w.code_k + e * width, rows.width = width * f;
    rows.step = attn_bytes_(from->dtype, from->step), rows.x = from->x + e * rows.step;
    rows.center = t->w.code_center + (known ? zone : 3) * width;
    rows.kind = (int)from->dtype;
    rows.n = end - e, rows.dim = a->k.dim, rows.scale = x->key_scale + e;
    a->codes->code_rows(&rows);
    for (int64_t i = e; i < end; i++)
      x->key_some[i] = known ? 1.0f : 0.0f, good &= x->key_scale[i] != 0.0f;
  }
  return good;
}

/* The same of keys that are codes: (n - zero) scale. 0: some scale is none. */
ATTN_FUNC_ int attn_codes_take_(attn_tile_ *t, const attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  attn_codes_ *x = t->w.codes;
  const int64_t width = attn_codes_width_(a);
  int good = 1;
  for (int64_t e = 0; e < b->n; e++) {
    int64_t page, row;
    float inverse;
    attn_storage_(a, t->batch, attn_block_key_(b, e), &page, &row);
    const attn_rows_scale_ s = attn_scales_at_(&a->k_scales, page, t->head_k, row);
    const float scale = s.scale ? *s.scale : 1.0f, zero = s.zero ? *s.zero : 0.0f;
    const float all = zero < 0.0f ? -zero : zero, most = scale < 0.0f ? -scale : scale;
    const int held =
        most > 0.0f && attn_code_scale_(most, all < ATTN_CODE_NUMBERS_, &inverse) > 0.0f;
    x->key_scale[e] = held ? scale : 0.0f;
    x->key_some[e] = -zero * scale;
    good &= x->key_scale[e] != 0.0f;
    a->codes->code_bytes(t->w.code_k + e * width,
                         (const signed char *)attn_at_(&a->k, page, t->head_k, row), a->k.dim);
  }
  return good;
}

/* Codes of a block whose rows are there in f32 too. */
ATTN_FUNC_ void attn_codes_keys_(attn_tile_ *t, const attn_block_ *b) {
  const attn_codes_from_ from = {(const char *)b->k, b->k_stride, ATTN_F32};
  if (attn_codes_own_(t->a))
    (void)attn_codes_take_(t, b);
  else
    (void)attn_codes_make_(t, b, &from);
}

/* Keys and codes, or values, of the block: keys in f32 only where they are wanted. */
ATTN_FUNC_ void attn_codes_fetch_(attn_tile_ *t, attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  const int own = attn_codes_own_(a), k = attn_low_direct_(t, b, &a->k, ATTN_BF16);
  const int v = ATTN_PART_(LOW, a->low) && attn_low_direct_(t, b, &a->v, ATTN_BF16) && !t->careful;
  b->v_low = NULL, b->v_step = 0;
  if (v) b->v_low = attn_at_(&a->v, t->batch, t->head_v, b->j0), b->v_step = 2 * a->v.stride_len;
  if (b->gathered || (!own && !k && !v)) {
    attn_block_fetch_(t, b);
    attn_codes_keys_(t, b);
    return;
  }
  int good = !own && !k ? 0 : 1;
  t->w.held->n = 0;
  b->v = b->k = NULL, b->v_stride = b->k_stride = 0;
  if (own) {
    good = attn_codes_take_(t, b);
  } else if (k) {
    const attn_codes_from_ from = {attn_at_(&a->k, t->batch, t->head_k, b->j0), a->k.stride_len,
                                   a->k.dtype};
    good = attn_codes_make_(t, b, &from);
  }
  if (!good || t->w.codes->any)
    b->k = attn_block_rows_(a, b, &a->k, &a->k_scales, t->batch, t->head_k, t->w.k, &b->k_stride);
  if (!own && !k) attn_codes_keys_(t, b);
  if (!v)
    b->v = attn_block_rows_(a, b, &a->v, &a->v_scales, t->batch, t->head_v, t->w.v, &b->v_stride);
}

/* Scores of keys at .. at + n of the block in f32. */
ATTN_FUNC_ void attn_codes_plain_(const attn_tile_ *t, const attn_block_ *b, int at, int n, int g0,
                                  int g1, float *s, float *top) {
  attn_on_(tile, t->a->table)
      ->score_block(s, t->w.qt, b->k + at * b->k_stride, b->k_stride, n, t->a->q.dim, g0, g1, top);
}

/* The lanes whose bit is set have theirs from queries in f32; old: the maxima before. */
ATTN_FUNC_ void attn_codes_mend_(const attn_tile_ *t, const attn_block_ *b, uint64_t bad, int at,
                                 int n, int g0, int g1, float *s, float *top, float *old) {
  attn_codes_plain_(t, b, at, n, g0, g1, t->w.code_s, old);
  for (int r = g0 * ATTN_GROUP_; r < g1 * ATTN_GROUP_; r++) {
    if (!(bad >> r & 1)) continue;
    top[r] = old[r];
    for (int e = 0; e < n; e++) s[e * ATTN_TILE_ + r] = t->w.code_s[e * ATTN_TILE_ + r];
  }
}

/* Scores of a segment. */
ATTN_FUNC_ void attn_codes_scores_(const attn_tile_ *t, const attn_block_ *b,
                                   const attn_segment_ *seg, float *s, float *top) {
  const attn_softmax_ *a = t->a;
  const attn_codes_ *x = t->w.codes;
  const int64_t width = attn_codes_width_(a);
  const int centered = attn_codes_centered_(a), end = seg->at + seg->n;
  for (int e = seg->at, to; e < end; e = to) {
    const int good = x->key_scale[e] != 0.0f;
    int64_t most = INT64_MAX;
    int zone = 3;
    if (centered) most = attn_codes_zone_(b->j0 + e, &zone);
    if (centered && most < INT64_MAX) most -= b->j0;
    if (zone >= x->zones) zone = 3;
    to = e + 1;
    while (to < end && to < most && (x->key_scale[to] != 0.0f) == good) to++;
    float *y = s + (e - seg->at) * ATTN_TILE_, old[ATTN_TILE_];
    if (!good) {
      attn_codes_plain_(t, b, e, to - e, seg->g0, seg->g1, y, top);
      continue;
    }
    if (x->bad[zone]) memcpy(old, top, sizeof old);
    attn_code_dots_ d;
    d.y = y, d.x = t->w.code_q, d.b = t->w.code_k + e * width;
    d.row = width * (int64_t)sizeof(float), d.rows = to - e, d.n = a->q.dim;
    d.g0 = seg->g0, d.g1 = seg->g1, d.raised = x->raised, d.x_scale = x->scale;
    d.more = zone < 3 ? x->with[zone] : x->sums;
    d.scale = x->key_scale + e, d.some = x->key_some + e, d.top = top;
    a->codes->code_dots(&d);
    if (x->bad[zone])
      attn_codes_mend_(t, b, x->bad[zone], e, to - e, seg->g0, seg->g1, y, top, old);
  }
}
