/* families/priors/hard_gaussian.h owns hard-coded Gaussian attention: weights from positions alone.
 *
 * The rows of a tile are neighbours of one head. Sixteen of them, a lane group, share the runs of
 * keys that lie near one of their centers. With ratio 1 a weight depends on j - p only: the weights
 * of a block are then one row of taps, and those of key j a piece of that row, reversed. */

#define ATTN_HARD_REACH_ 64.0 /* (8 sigma)^2 / sigma^2: exp(-32) is below f32 rounding squared */

typedef struct attn_hard_job_ {
  const attn_table_ *table;
  attn_tensor o, v;
  attn_hard_gaussian_params p;
  double ratio;
  int64_t q_off, group, tiles; /* heads per value head; tiles per (batch, head) */
  char *workspace;             /* of the workers, each of this many bytes: */
  int64_t bytes;
} attn_hard_job_;

/* One worker's part. */
typedef struct attn_hard_scratch_ {
  float *w;  /* [block][tile] weights, in the lanes of the present group */
  float *x;  /* [block + 1][group] exponents, then exponentials */
  float *ot; /* [dv][tile] */
  float *v;  /* [block][dv] converted rows */
  int64_t *pairs;
} attn_hard_scratch_;

/* The rows of one lane group. */
typedef struct attn_hard_group_ {
  const attn_hard_job_ *j;
  attn_hard_scratch_ s;
  int64_t batch, head, p0; /* position of lane 0 */
  double offset, limit;    /* of the head; the reach, squared */
  double bell, norm;       /* 1 / (2 sigma^2), 1 / (sigma sqrt(2 pi)) */
  int n, remote_rows;
  double base[ATTN_GROUP_], shift[ATTN_GROUP_]; /* key minus center is (key - base) - shift */
  int64_t hi[ATTN_GROUP_];                      /* keys from here on are forbidden */
  int64_t from[ATTN_GROUP_], to[ATTN_GROUP_];   /* holds every key with a weight */
  /* Renormalised rows whose nearest allowed key is remote count their distances from it. */
  int remote[ATTN_GROUP_];
  int64_t nearest[ATTN_GROUP_];
  const char *mask[ATTN_GROUP_];
} attn_hard_group_;

ATTN_COLD_ int attn_hard_plan_(attn_error_ *e, attn_hard_job_ *j,
                               const attn_hard_gaussian_params *params, const attn_ctx *ctx,
                               int *workers, int data) {
  static const char wo[] = ATTN_WORDS_("o"), wv[] = ATTN_WORDS_("v");
  static const attn_mask_words_ wm = {
      "params.mask.kind must be ATTN_MASK_NONE, ATTN_MASK_BOOL or ATTN_MASK_BITS",
      "params.mask.data must not be null",
      "params.mask.dtype is not used",
      "params.mask must have extents 1 or [batch, heads, o.len, v.len]",
      "params.mask spans more bytes than the address space holds",
      "params.mask.data alignment"};
  enum { O, V, MASK, OFFSET, SIGMA, KV_LEN, Q_LEN, WORK, SPANS };
  attn_span_ span[SPANS];
  attn_hard_gaussian_params *p = &j->p;
  attn_tensor *o = &j->o, *v = &j->v;
  memset(p, 0, sizeof *p);
  memset(span, 0, sizeof span);
  if (params) *p = *params;
  if (!attn_check_ctx_(e, ctx, &j->table, workers)) return 0;
  if (!attn_check_tensor_(e, o, wo, &span[O]) || !attn_check_tensor_(e, v, wv, &span[V])) return 0;
  if (o->heads < 1) return attn_reject_(e, ATTN_E_SHAPE, "o.heads must be at least 1");
  if (v->batch != o->batch || v->dim != o->dim)
    return attn_reject_(e, ATTN_E_SHAPE, "v.batch and v.dim must equal those of o");
  if (v->heads < 1 || o->heads % v->heads)
    return attn_reject_(e, ATTN_E_HEADS, "v.heads must divide o.heads");
  if (!attn_check_rows_(e, o, wo)) return 0;
  if (p->ratio - p->ratio != 0.0f)
    return attn_reject_(e, ATTN_E_VALUE, "params.ratio must be finite");
  if (!(p->threshold >= 0.0f && p->threshold < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.threshold must be finite and not negative");
  if (!p->has_q_off && p->q_off)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off needs params.has_q_off = 1");
  if (p->has_q_off && attn_abs64_(p->q_off) >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off must lie within 2^40 of 0");
  if (o->len >= (int64_t)1 << 40 || v->len >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_OVERFLOW, "o.len and v.len must be below 2^40");
  const int64_t full[4] = {o->batch, o->heads, o->len, v->len};
  if (!attn_check_mask_(e, &p->mask, &wm, 1u << ATTN_MASK_BOOL | 1u << ATTN_MASK_BITS, full,
                        &span[MASK]) ||
      !attn_check_array_(e, p->offset, o->heads, 4, "params.offset must be aligned to its elements",
                         &span[OFFSET]) ||
      !attn_check_array_(e, p->sigma, o->heads, 4, "params.sigma must be aligned to its elements",
                         &span[SIGMA]) ||
      !attn_check_array_(e, p->kv_len, o->batch, 4, "params.kv_len must be aligned to its elements",
                         &span[KV_LEN]) ||
      !attn_check_array_(e, p->q_len, o->batch, 4, "params.q_len must be aligned to its elements",
                         &span[Q_LEN]) ||
      !attn_check_workspace_(e, ctx, &span[WORK]))
    return 0;
  for (int y = V; y < WORK; y++)
    if (attn_overlap_(span[O], span[y]))
      return attn_reject_(e, ATTN_E_OVERLAP, attn_says_(wo, ATTN_SAYS_OVERLAP_));
  for (int x = O; x < WORK; x++)
    if (attn_overlap_(span[x], span[WORK]))
      return attn_reject_(e, ATTN_E_OVERLAP,
                          "ctx.workspace must not share memory with an argument");
  if (data)
    for (int64_t h = 0; h < o->heads; h++) {
      if (p->sigma && !(p->sigma[h] > 0.0f && p->sigma[h] < INFINITY))
        return attn_reject_(e, ATTN_E_VALUE, "params.sigma must be positive and finite");
      if (p->offset && p->offset[h] - p->offset[h] != 0.0f)
        return attn_reject_(e, ATTN_E_VALUE, "params.offset must be finite");
    }
  if (data &&
      (!attn_check_lens_(e, p->kv_len, o->batch, v->len, "params.kv_len must lie in 0..v.len") ||
       !attn_check_lens_(e, p->q_len, o->batch, o->len, "params.q_len must lie in 0..o.len")))
    return 0;
  if (v->len == 0) p->mask.kind = ATTN_MASK_NONE;
  j->ratio = p->ratio == 0.0f && attn_to_bits_(p->ratio) == 0 ? 1.0 : (double)p->ratio;
  j->q_off = p->has_q_off ? p->q_off : v->len - o->len;
  j->group = o->heads / v->heads;
  j->tiles = (o->len + ATTN_TILE_ - 1) / ATTN_TILE_;
  const int64_t f = sizeof(float), dv = v->dim;
  j->bytes = attn_add_(
      attn_piece_(ATTN_BLOCK_ * ATTN_TILE_, f),
      attn_add_(attn_piece_((ATTN_BLOCK_ + 1) * ATTN_GROUP_, f), attn_piece_(1, sizeof(int64_t))));
  j->bytes = attn_add_(j->bytes, attn_add_(attn_piece_(attn_mul_(dv, ATTN_TILE_), f),
                                           attn_piece_(attn_mul_(dv, ATTN_BLOCK_), f)));
  return 1;
}

ATTN_COLD_ int64_t attn_hard_items_(const attn_hard_job_ *j) {
  return attn_mul_(attn_mul_(j->o.batch, j->o.heads), j->tiles);
}

ATTN_FUNC_ void attn_hard_cut_(const attn_hard_job_ *j, int worker, attn_hard_scratch_ *s) {
  char *at = j->workspace + worker * j->bytes;
  const int64_t f = sizeof(float), dv = j->v.dim;
  s->w = (float *)(void *)at, at += attn_piece_(ATTN_BLOCK_ * ATTN_TILE_, f);
  s->x = (float *)(void *)at, at += attn_piece_((ATTN_BLOCK_ + 1) * ATTN_GROUP_, f);
  s->ot = (float *)(void *)at, at += attn_piece_(dv * ATTN_TILE_, f);
  s->v = (float *)(void *)at, at += attn_piece_(dv * ATTN_BLOCK_, f);
  s->pairs = (int64_t *)(void *)at;
}

/* Key minus center. */
ATTN_FUNC_ double attn_hard_distance_(const attn_hard_group_ *g, int r, int64_t key) {
  return ((double)key - g->base[r]) - g->shift[r];
}

ATTN_FUNC_ int attn_hard_masked_(const attn_hard_group_ *g, int r, int64_t key) {
  const attn_mask *mask = &g->j->p.mask;
  if (mask->k_len == 1) key = 0;
  return mask->kind == ATTN_MASK_BITS   ? !attn_mask_bit_(g->mask[r], key)
         : mask->kind == ATTN_MASK_BOOL ? !g->mask[r][key]
                                        : 0;
}

/* The allowed key nearest to the center of row r, -1 if there is none. */
ATTN_FUNC_ int64_t attn_hard_nearest_(const attn_hard_group_ *g, int r, double center) {
  const int64_t hi = g->hi[r];
  if (hi <= 0) return -1;
  const double edge = (double)(hi - 1);
  const int64_t at = (int64_t)(center < 0.0 ? 0.0 : center > edge ? edge : floor(center + 0.5));
  for (int64_t step = 0; at - step >= 0 || at + step < hi; step++) {
    const int64_t left = at - step, right = at + step;
    const int l = left >= 0 && !attn_hard_masked_(g, r, left);
    const int k = right < hi && !attn_hard_masked_(g, r, right);
    if (l && k)
      return fabs(attn_hard_distance_(g, r, left)) <= fabs(attn_hard_distance_(g, r, right))
                 ? left
                 : right;
    if (l || k) return l ? left : right;
  }
  return -1;
}

/* The keys row r can give weight to. */
ATTN_FUNC_ void attn_hard_row_(attn_hard_group_ *g, int r, int64_t keys) {
  const int64_t p = g->p0 + r;
  const double center = g->j->ratio * (double)p + g->offset;
  double reach = g->limit;
  /* with ratio 1 from j - p, so that it is the same wherever the pair lies */
  const int whole = g->j->ratio == 1.0;
  g->base[r] = whole ? (double)p : 0.0, g->shift[r] = whole ? g->offset : center;
  g->hi[r] = g->j->p.causal && p + 1 < keys ? p + 1 : keys;
  g->remote[r] = 0, g->from[r] = g->to[r] = 0;
  if (g->hi[r] <= 0) return;
  if (g->j->p.renormalize) {
    const int64_t key = g->nearest[r] = attn_hard_nearest_(g, r, center);
    if (key < 0) return;
    const double d = attn_hard_distance_(g, r, key);
    g->remote[r] = d * d > g->limit / 16.0; /* 2 sigma */
    if (g->remote[r]) reach += d * d;
  }
  /* a little more than the reach: attn_hard_exponent_ has the last word */
  const double lo = floor(center - sqrt(reach)) - 1.0, hi = ceil(center + sqrt(reach)) + 2.0;
  const double most = (double)g->hi[r];
  g->from[r] = (int64_t)(lo < 0.0 ? 0.0 : lo > most ? most : lo);
  g->to[r] = (int64_t)(hi < 0.0 ? 0.0 : hi > most ? most : hi);
}

/* The exponent of a pair at distance d from the center, before masks. */
ATTN_FUNC_ float attn_hard_bell_(const attn_hard_group_ *g, double d) {
  return d * d > g->limit ? -INFINITY : (float)(-(d * d) * g->bell);
}

/* The same for a row whose nearest allowed key is remote, less the exponent of that key:
 * d^2 - d_nearest^2 without cancellation. */
ATTN_FUNC_ float attn_hard_remote_(const attn_hard_group_ *g, int r, int64_t key) {
  const double more = (double)(key - g->nearest[r]) *
                      (attn_hard_distance_(g, r, key) + attn_hard_distance_(g, r, g->nearest[r]));
  return more > g->limit ? -INFINITY : (float)(-more * g->bell);
}

/* Exponentials of n exponents; those below the threshold become 0. */
ATTN_FUNC_ void attn_hard_exp_(const attn_hard_group_ *g, int64_t n) {
  const double least = g->j->p.renormalize ? 0.0 : (double)g->j->p.threshold;
  g->j->table->exp(g->s.x, g->s.x, n);
  if (least > 0.0)
    for (int64_t i = 0; i < n; i++)
      if ((double)g->s.x[i] * g->norm < least) g->s.x[i] = 0.0f;
}

/* The weights of keys j0..j0+n, without 1 / (sigma sqrt(2 pi)), into w[key][lane]. */
ATTN_FUNC_ void attn_hard_weights_(attn_hard_group_ *g, float *w, int64_t j0, int64_t n) {
  enum { LANES = ATTN_GROUP_ };
  float *x = g->s.x;
  int64_t first, step; /* the weights of key j start at x[first + j step] */
  if (g->j->ratio == 1.0 && g->remote_rows == 0) {
    const int64_t most = j0 + n - 1 - g->p0; /* distance to position of x[0]; it falls by 1 */
    for (int64_t i = 0; i < n + LANES - 1; i++)
      x[i] = g->j->p.causal && most - i > 0 ? -INFINITY
                                            : attn_hard_bell_(g, (double)(most - i) - g->offset);
    attn_hard_exp_(g, n + LANES - 1);
    first = n - 1, step = -1;
  } else {
    for (int64_t i = 0; i < n; i++)
      for (int r = 0; r < LANES; r++) {
        float *to = x + i * LANES + r;
        *to = attn_hard_bell_(g, attn_hard_distance_(g, r, j0 + i));
        if (g->remote[r]) *to = attn_hard_remote_(g, r, j0 + i);
        if (j0 + i >= g->hi[r]) *to = -INFINITY;
      }
    attn_hard_exp_(g, n * LANES);
    first = 0, step = LANES;
  }
  for (int64_t i = 0; i < n; i++)
    memcpy(w + i * ATTN_TILE_, x + first + i * step, LANES * sizeof(float));
  if (g->j->p.mask.kind)
    for (int64_t i = 0; i < n; i++)
      for (int r = 0; r < g->n; r++)
        if (attn_hard_masked_(g, r, j0 + i)) w[i * ATTN_TILE_ + r] = 0.0f;
}

/* The next run of keys at or after `from` that some row can give weight to; 0 = none. */
ATTN_FUNC_ int attn_hard_run_(const attn_hard_group_ *g, int64_t *from, int64_t *to) {
  int64_t start = INT64_MAX, end, last;
  for (int r = 0; r < g->n; r++) {
    const int64_t a = g->from[r] > *from ? g->from[r] : *from;
    if (a < g->to[r] && a < start) start = a;
  }
  if (start == INT64_MAX) return 0;
  end = start;
  do {
    last = end;
    for (int r = 0; r < g->n; r++)
      if (g->from[r] <= end && g->to[r] > end) end = g->to[r];
  } while (end != last);
  *from = start, *to = end;
  return 1;
}

/* Takes values that are not finite out of a copy of the rows, and adds them to the lanes that read
 * them: elsewhere 0 * NaN would not be 0. */
ATTN_FUNC_ void attn_hard_patch_(attn_hard_group_ *g, float *ot, const float *w, int64_t n) {
  const int64_t dv = g->j->v.dim;
  float *row = g->s.v;
  for (int64_t i = 0; i < n; i++, row += dv)
    for (int64_t c = 0; c < dv; c++) {
      if (row[c] - row[c] == 0.0f) continue;
      for (int r = 0; r < g->n; r++)
        if (w[i * ATTN_TILE_ + r] != 0.0f) ot[c * ATTN_TILE_ + r] += row[c];
      row[c] = 0.0f;
    }
}

/* Sums the runs of lane group `lanes`; careful = some value is not finite. l holds the sums of
 * weights. */
ATTN_FUNC_ void attn_hard_sum_(attn_hard_group_ *g, int lanes, float *l, int careful) {
  const attn_hard_job_ *j = g->j;
  const attn_table_ *f = j->table;
  const int64_t dv = j->v.dim, hv = g->head / j->group;
  const float one = 1.0f;
  float *w = g->s.w + lanes * ATTN_GROUP_, *ot = g->s.ot + lanes * ATTN_GROUP_;
  for (int64_t c = 0; c < dv; c++) memset(ot + c * ATTN_TILE_, 0, ATTN_GROUP_ * sizeof(float));
  memset(l + lanes * ATTN_GROUP_, 0, ATTN_GROUP_ * sizeof(float));
  for (int64_t a = 0, end = 0; attn_hard_run_(g, &a, &end); a = end)
    for (int64_t j0 = a; j0 < end; j0 += ATTN_BLOCK_) {
      const int64_t n = end - j0 < ATTN_BLOCK_ ? end - j0 : ATTN_BLOCK_;
      const char *rows = attn_at_(&j->v, g->batch, hv, j0);
      const float *v = (const float *)(const void *)rows;
      int64_t stride = j->v.stride_len;
      attn_hard_weights_(g, w, j0, n);
      if (careful || j->v.dtype != ATTN_F32) {
        f->widen(g->s.v, rows, stride, NULL, n, dv, j->v.dtype, NULL);
        v = g->s.v, stride = dv;
      }
      if (careful) attn_hard_patch_(g, ot, w, n);
      attn_on_(tile, f)->value_block(g->s.ot, g->s.w, v, stride, n, dv, lanes, lanes + 1, NULL, 0);
      if (j->p.renormalize)
        attn_on_(tile, f)->value_block(l, g->s.w, &one, 0, n, 1, lanes, lanes + 1, NULL, 0);
      if (!careful) *g->s.pairs += n * g->n;
    }
}

ATTN_FUNC_ void attn_hard_item_(void *job, int worker, int64_t index) {
  const attn_hard_job_ *j = (const attn_hard_job_ *)job;
  const int64_t bh = index / j->tiles, first = index % j->tiles * ATTN_TILE_;
  const int64_t size = attn_bytes_(j->o.dtype, j->o.dim);
  const int rows = j->o.len - first < ATTN_TILE_ ? (int)(j->o.len - first) : ATTN_TILE_;
  void *out[ATTN_TILE_];
  float l[ATTN_TILE_], scale[ATTN_TILE_];
  attn_hard_group_ g;
  memset(&g, 0, sizeof g);
  g.j = j, g.batch = bh / j->o.heads, g.head = bh % j->o.heads;
  attn_hard_cut_(j, worker, &g.s);
  const int64_t keys = j->p.kv_len ? j->p.kv_len[g.batch] : j->v.len;
  const int64_t queries = j->p.q_len ? j->p.q_len[g.batch] : j->o.len;
  const int live = (int)attn_clamp_(queries - first, 0, rows);
  const double sigma = j->p.sigma ? (double)j->p.sigma[g.head] : 1.0;
  g.offset = j->p.offset ? (double)j->p.offset[g.head] : 0.0;
  g.limit = ATTN_HARD_REACH_ * sigma * sigma;
  g.bell = 0.5 / (sigma * sigma);
  g.norm = 0.39894228040143267794 / sigma;
  for (int r = 0; r < rows; r++) out[r] = attn_at_(&j->o, g.batch, g.head, first + r);
  for (int r = 0; r < ATTN_TILE_; r++)
    scale[r] = j->p.renormalize ? 1.0f : (float)attn_clamp_f64_(g.norm), l[r] = 0.0f;
  for (int lanes = 0; lanes * ATTN_GROUP_ < live; lanes++) {
    const int at = lanes * ATTN_GROUP_;
    g.p0 = first + at + j->q_off;
    g.n = live - at < ATTN_GROUP_ ? live - at : ATTN_GROUP_;
    g.remote_rows = 0;
    /* lanes without a row see no key */
    for (int r = g.n; r < ATTN_GROUP_; r++) g.hi[r] = g.remote[r] = 0;
    for (int r = 0; r < g.n; r++) {
      if (j->p.mask.kind) g.mask[r] = attn_mask_at_(&j->p.mask, g.batch, g.head, first + at + r);
      attn_hard_row_(&g, r, keys);
      g.remote_rows += g.remote[r];
    }
    attn_hard_sum_(&g, lanes, l, 0);
    if (!j->table->finite(g.s.ot + at, ATTN_TILE_, j->v.dim, g.n)) attn_hard_sum_(&g, lanes, l, 1);
  }
  if (j->p.renormalize) attn_on_(tile, j->table)->divide(scale, l, ATTN_GROUPS_);
  j->table->unpack(out, g.s.ot, live, j->o.dim, j->o.dtype, scale);
  for (int r = live; r < rows; r++) memset(out[r], 0, (size_t)size);
}

ATTN_COLD_ void attn_hard_job_of_(attn_hard_job_ *j, attn_tensor o, attn_tensor v) {
  memset(j, 0, sizeof *j);
  j->o = o, j->v = v;
}

ATTN_PUB_COLD_ attn_status attn_hard_gaussian(attn_tensor o, attn_tensor v,
                                              const attn_hard_gaussian_params *params,
                                              attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_hard_job_ j;
  attn_hard_scratch_ s;
  attn_workspace_ w;
  int workers;
  attn_hard_job_of_(&j, o, v);
  if (attn_hard_plan_(&e, &j, params, ctx, &workers, 1)) {
    const int64_t items = attn_hard_items_(&j);
    workers = attn_pieces_(workers, items);
    if (items == 0) {
      attn_report_(ctx, j.table, 1, "no-op", "no queries");
    } else if (attn_workspace_get_(&e, &w, ctx, attn_workspace_bytes_(j.bytes, workers))) {
      j.workspace = w.base;
      for (int i = 0; i < workers; i++) {
        attn_hard_cut_(&j, i, &s);
        *s.pairs = 0;
      }
      attn_for_(ctx, workers, items, attn_hard_item_, &j);
      attn_report_(ctx, j.table, workers, "banded weights of positions",
                   "keys beyond 8 sigma have no weight");
      for (int i = 0; ctx && i < workers; i++) {
        attn_hard_cut_(&j, i, &s);
        ctx->report.pairs += *s.pairs;
      }
      attn_workspace_drop_(&w);
    }
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_COLD_ size_t attn_hard_gaussian_workspace(attn_tensor o, attn_tensor v,
                                                   const attn_hard_gaussian_params *params,
                                                   const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_hard_job_ j;
  const attn_ctx plain = attn_before_workspace_(ctx);
  int workers;
  attn_hard_job_of_(&j, o, v);
  if (!attn_hard_plan_(&e, &j, params, &plain, &workers, 0)) return ATTN_WORKSPACE_REJECTED;
  const int64_t items = attn_hard_items_(&j);
  if (items == 0) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  const int64_t bytes = attn_workspace_bytes_(j.bytes, attn_pieces_(workers, items));
  return attn_answer_(e.status, bytes);
}

#undef ATTN_HARD_REACH_
