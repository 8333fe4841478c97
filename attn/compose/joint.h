/* compose/joint.h owns exact softmax whose heads meet: 64 queries against 128 keys for all heads at once.
 * A first walk over the keys finds the maximum and the sum of each row, a second hands out the weights
 * block by block. Weights of the first blocks wait in memory between the two, later ones are computed
 * again, with the same bits: memory does not grow with the keys. */

/* Floats from head to head; not a power of two, or all heads would meet in the same cache lines. */
enum { ATTN_JOINT_STEP_ = ATTN_BLOCK_ * ATTN_TILE_ + ATTN_GROUP_ };
/* Floats of weights that wait: 1024 keys of 8 heads. */
enum { ATTN_JOINT_WAIT_ = 66 << 13 };

typedef struct attn_joint_ {
  attn_softmax_ a; /* the softmax heads: allowed set and terms; its queries are not read */
  attn_tensor q, k, lse, map; /* lse, map: data null = absent; a map has the weights themselves */
  const float *mix;           /* [q.heads][heads]; null: score heads are softmax heads */
  int64_t heads;
  int once;            /* weights of no block wait: nobody walks again */
  int64_t kept, slots; /* blocks that wait; one slot more for the others */
  int64_t *pairs;      /* [items], null: are not counted */
  char *memory;        /* of the workers, cut at these offsets */
  int64_t each, at_qt, at_k, at_j, at_w, at_m, at_row, at_bias, at_own;
} attn_joint_;

typedef struct attn_joint_tile_ {
  const attn_joint_ *x;
  attn_tile_ *head;  /* [heads] */
  float *qt, *k, *j; /* [q.heads][dk][tile], [block][dk], score heads */
  float *w, *m;      /* [slots][heads][STEP] weights, [slots][heads][tile] what they count from */
  float *last, *inv, *by; /* [heads][tile] last maximum, 1 / sum, factor of a block's weights */
  char *own;              /* the mechanism's */
  int64_t batch, index, first;
  int n, groups, rows; /* lanes, lane groups; rows before q_len */
  int64_t j0, end;     /* keys that some row sees */
  int partial;         /* some pair of a block is forbidden */
  int scaled;          /* the weights that wait have their factor */
} attn_joint_tile_;

/* ---- checks ---------------------------------------------------------------------------------*/

enum { ATTN_JOINT_SPANS_ = 5 + (int)ATTN_TERMS_ };

/* The arrays of the score terms, for overlap; values too unless it is a query. */
ATTN_COLD_ int attn_joint_arrays_(attn_error_ *e, attn_joint_ *x, const attn_sdpa_params *p,
                                  const attn_ctx *ctx, attn_span_ *span, int query) {
  attn_softmax_ *a = &x->a;
  memset(span, 0, ATTN_JOINT_SPANS_ * sizeof *span);
  const int64_t full[4] = {a->q.batch, a->q.heads, a->q.len, a->k.len};
  if (!attn_check_masks_(e, &p->mask, &p->bias, full, p->mask_new, &span[0], &span[1]) ||
      !attn_check_array_(e, p->alibi, a->q.heads, 4, "", &span[2]) ||
      !attn_check_array_(e, p->kv_len, a->q.batch, 4, "", &span[3]) ||
      !attn_check_array_(e, p->q_len, a->q.batch, 4, "", &span[4]) ||
      !attn_check_terms_(e, a, p, span + 5))
    return 0;
  if (query) return 1;
  return attn_check_lens_(e, p->kv_len, a->q.batch, a->k.len,
                          "params.kv_len must lie in 0..k.len") &&
         attn_check_lens_(e, p->q_len, a->q.batch, a->q.len, "params.q_len must lie in 0..q.len") &&
         attn_check_logits_(e, p->alibi, a->q.heads, 1, "params.alibi must be finite") &&
         attn_check_term_values_(e, a) &&
         (!ctx || !ctx->validate || !p->bias.kind || !a->q.batch || !a->q.len || !a->k.len ||
          attn_check_bias_(e, a->table, &p->bias));
}

/* Everything about the scores of `heads` softmax heads. x has q and k, or a map; they are judged. span:
 * ATTN_JOINT_SPANS_ of them. */
ATTN_COLD_ int attn_joint_plan_(attn_error_ *e, attn_joint_ *x, const attn_sdpa_params *params,
                                int64_t heads, const attn_ctx *ctx, attn_span_ *span, int query) {
  static const float none[1] = {0}; /* a tensor that is not there: no number of it is read */
  attn_softmax_ *a = &x->a;
  attn_sdpa_params p = *params;
  int workers;
  if (attn_unlike_(&p) || p.keep || p.schedule || p.map.data || p.sinks || p.softmax_one)
    return attn_reject_(
        e, ATTN_E_RANGE,
        "params.attention: ragged, q_offs, align_lengths, keep, schedule, map, sinks and "
        "softmax_one must be absent");
  if (attn_terms_of_(&p) & ~attn_terms_with_(ATTN_TAKES_JOINT_))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.attention: softcap, relative, xl, labels, factor, span, modify, "
                        "modify_weights and dropout must be absent");
  if (p.k_scales.scale || p.k_scales.zero || p.v_scales.scale || p.v_scales.zero)
    return attn_reject_(e, ATTN_E_RANGE, "params.attention.k_scales and v_scales must be absent");
  p.lse.data = NULL;
  x->heads = heads;
  a->q = x->map.data ? attn_bhtd(none, ATTN_F32, x->map.batch, heads, x->map.len, 1) : x->q;
  a->k = x->map.data ? attn_bhtd(none, ATTN_F32, x->map.batch, 1, x->map.dim, 1) : x->k;
  if (x->map.data) {
    memset(&p, 0, sizeof p);
    p.kv_len = params->kv_len, p.q_len = params->q_len;
    p.q_off = params->q_off; /* targets have positions */
    p.has_q_off = params->has_q_off || (params->causal == ATTN_CAUSAL_START && !p.q_off);
  }
  a->q.heads = heads, a->q.stride_head = 0;
  a->k.heads = 1, a->k.stride_head = 0;
  a->v = attn_bhtd(none, ATTN_F32, a->k.batch, 1, a->k.len, 1);
  a->o = attn_bhtd(none, ATTN_F32, a->q.batch, heads, a->q.len, 1);
  if (!attn_sdpa_plan_(e, a, &p, ctx, &workers, -1) ||
      !attn_joint_arrays_(e, x, &p, ctx, span, query))
    return 0;
  a->group = 1, a->few = 0, a->splits = 1;
  a->by_row = 1; /* lanes without packed queries */
  a->o.stride_batch = a->o.stride_head = a->o.stride_len = 0;
  if (x->map.data) a->q.stride_batch = a->q.stride_len = 0;
  a->tiles = (a->q.len + ATTN_TILE_ - 1) / ATTN_TILE_;
  return 1;
}

/* ---- memory ---------------------------------------------------------------------------------*/

ATTN_COLD_ int64_t attn_joint_items_(const attn_joint_ *x) {
  return attn_mul_(x->a.q.batch, x->a.tiles);
}

/* What lasts for the call, and the layout of a worker's memory: own bytes for the mechanism. */
ATTN_COLD_ void attn_joint_memory_(attn_stage_ *s, attn_joint_ *x, int64_t own) {
  attn_softmax_ *a = &x->a;
  const int64_t f = sizeof(float), tile = ATTN_TILE_, h = x->heads;
  const int64_t row = attn_piece_(attn_mul_(h, tile), f);
  const int64_t one = attn_mul_(h, ATTN_JOINT_STEP_);
  const int64_t blocks = (a->k.len + ATTN_BLOCK_ - 1) / ATTN_BLOCK_;
  x->kept = one < ATTN_JOINT_WAIT_ ? ATTN_JOINT_WAIT_ / one : 1;
  if (x->map.data || x->once) x->kept = 0;
  x->slots = x->kept < blocks ? x->kept + 1 : blocks;
  if (attn_has_distance_(&a->by_distance)) {
    float *table = (float *)attn_stage_take_(s, attn_mul_(a->distance_heads, a->distances), f);
    a->distance = table;
    if (s->run) attn_distance_fill_(a, table, NULL);
  }
  x->pairs = (int64_t *)attn_stage_take_(s, attn_joint_items_(x), sizeof(int64_t));
  int64_t at = attn_piece_(attn_mul_(h, sizeof(attn_tile_)), 1);
  const int64_t q = x->map.data ? 0 : x->q.heads, dk = x->map.data ? 0 : x->q.dim;
  x->at_qt = at, at = attn_add_(at, attn_piece_(attn_mul_(q, attn_mul_(dk, tile)), f));
  x->at_k = at, at = attn_add_(at, attn_piece_(attn_mul_(dk, ATTN_BLOCK_), f));
  x->at_j = at, at = attn_add_(at, attn_piece_(x->mix ? attn_mul_(q, ATTN_JOINT_STEP_) : 0, f));
  x->at_w = at, at = attn_add_(at, attn_piece_(attn_mul_(x->slots, one), f));
  x->at_m = at, at = attn_add_(at, attn_mul_(x->slots, row));
  x->at_row = at, at = attn_add_(at, attn_mul_(3, row));
  x->at_bias = at;
  if (a->bias.kind) at = attn_add_(at, attn_piece_(ATTN_BLOCK_ * tile, f));
  x->at_own = at;
  x->each = attn_add_(at, own);
}

/* All tiles; the sum of their pairs goes to the report. */
ATTN_COLD_ int attn_joint_for_(attn_stage_ *s, attn_joint_ *x, attn_item_fn_ item, void *job) {
  const int64_t items = attn_joint_items_(x);
  if (!attn_stage_for_(s, items, item, job, x->each, &x->memory)) return 0;
  for (int64_t i = 0; s->run && i < items; i++) s->pairs += x->pairs[i];
  return 1;
}

/* ---- a tile ---------------------------------------------------------------------------------*/

/* Tile `index` of the call, the last of a batch entry first: causal ones cost most there; its queries are not packed. */
ATTN_FUNC_ void attn_joint_look_(attn_joint_tile_ *t, const attn_joint_ *x, int worker,
                                 int64_t index) {
  const attn_softmax_ *a = &x->a;
  char *at = x->memory + worker * x->each;
  const int64_t tile = a->tiles - 1 - index % a->tiles, row = x->heads * ATTN_TILE_;
  const int64_t q_len = a->q_len ? a->q_len[index / a->tiles] : a->q.len;
  t->x = x, t->batch = index / a->tiles, t->index = index, t->first = tile * ATTN_TILE_;
  t->head = (attn_tile_ *)(void *)at;
  t->qt = (float *)(void *)(at + x->at_qt), t->k = (float *)(void *)(at + x->at_k);
  t->j = (float *)(void *)(at + x->at_j), t->w = (float *)(void *)(at + x->at_w);
  t->m = (float *)(void *)(at + x->at_m), t->last = (float *)(void *)(at + x->at_row);
  t->inv = t->last + row, t->by = t->inv + row;
  t->own = at + x->at_own;
  for (int64_t h = 0; h < x->heads; h++) {
    attn_tile_ *u = &t->head[h];
    memset(&u->w, 0, sizeof u->w);
    u->a = a, u->plan = u->next = NULL, u->asked = ATTN_TILE_;
    u->key0 = 0, u->key1 = INT64_MAX, u->scored = 0;
    u->given = NULL, u->before = NULL;
    u->w.bias = (float *)(void *)(at + x->at_bias);
    attn_tile_group_rows_(u, t->batch * x->heads + h, tile);
    attn_tile_lanes_(u);
    attn_tile_load_(u);
    for (int r = u->groups * ATTN_GROUP_; r < ATTN_TILE_; r++) u->m[r] = -INFINITY, u->l[r] = 0.0f;
  }
  t->n = t->head[0].n, t->groups = t->head[0].groups;
  t->partial = t->scaled = 0;
  t->rows = (int)attn_clamp_(q_len - t->first, 0, t->n);
  t->j0 = INT64_MAX, t->end = 0;
  for (int g = 0; g < t->groups; g++) {
    if (t->head[0].g[g].hi_max > t->end) t->end = t->head[0].g[g].hi_max;
    if (t->head[0].g[g].hi_max > 0 && t->head[0].g[g].lo_min < t->j0)
      t->j0 = t->head[0].g[g].lo_min;
  }
  if (t->j0 > t->end) t->j0 = t->end;
  if (x->pairs) x->pairs[index] = x->map.data ? 0 : (t->end - t->j0) * t->n * x->heads;
}

/* Its queries, where there are scores. */
ATTN_FUNC_ void attn_joint_pack_(const attn_joint_tile_ *t) {
  const attn_joint_ *x = t->x;
  const attn_softmax_ *a = &x->a;
  if (!x->map.data)
    for (int64_t h = 0; h < x->q.heads; h++) {
      const void *rows[ATTN_TILE_];
      for (int r = 0; r < t->n; r++) rows[r] = attn_at_(&x->q, t->batch, h, t->first + r);
      a->table->pack(t->qt + h * x->q.dim * ATTN_TILE_, rows, t->n, x->q.dim, (int)x->q.dtype,
                     a->scale_hi, a->scale_lo);
    }
}

ATTN_FUNC_ void attn_joint_open_(attn_joint_tile_ *t, const attn_joint_ *x, int worker,
                                 int64_t index) {
  attn_joint_look_(t, x, worker, index);
  attn_joint_pack_(t);
}

/* Where the block that begins with key j ends. */
ATTN_FUNC_ int64_t attn_joint_next_(const attn_joint_tile_ *t, int64_t j) {
  const int64_t next = (j / ATTN_BLOCK_ + 1) * ATTN_BLOCK_;
  return next < t->end ? next : t->end;
}

/* Rows j0 .. j0 + n - 1 of a head as f32: in place, or a copy. */
ATTN_FUNC_ const float *attn_joint_rows_(const attn_joint_tile_ *t, const attn_tensor *y,
                                         int64_t head, int64_t j0, int64_t n, float *copy,
                                         int64_t *stride) {
  const char *p = attn_at_(y, t->batch, head, j0);
  *stride = y->dtype == ATTN_F32 ? y->stride_len : y->dim;
  if (y->dtype == ATTN_F32) return (const float *)(const void *)p;
  t->x->a.table->widen(copy, p, y->stride_len, NULL, n, y->dim, y->dtype, NULL);
  return copy;
}

/* y[r] = sum_k m[k][r] w[k] for n keys of all lanes in use */
ATTN_FUNC_ void attn_joint_mix_(const attn_joint_tile_ *t, float *y, int64_t rows, const float *m,
                                const float *w, int64_t heads, int64_t n) {
  const attn_table_ *f = t->x->a.table;
  const int64_t step = ATTN_JOINT_STEP_, lanes = t->groups * ATTN_GROUP_;
  if (lanes == ATTN_TILE_) {
    attn_on_(dense, f)->gemm(y, step, rows, m, 1, rows, w, step, heads, n * ATTN_TILE_, 1);
    return;
  }
  for (int64_t e = 0; e < n; e++)
    attn_on_(dense, f)->gemm(y + e * ATTN_TILE_, step, rows, m, 1, rows, w + e * ATTN_TILE_, step,
                             heads, lanes, 1);
}

/* Opens the keys j0 .. j0 + n - 1 for one head. 0 = no row sees any of them. */
ATTN_FUNC_ int attn_joint_see_(attn_tile_ *u, attn_block_ *b, int64_t j0, int64_t n) {
  attn_block_terms_(u, b);
  if (!attn_block_open_(u, b, j0, j0 + n)) return 0;
  attn_block_modifiers_(u, b);
  return 1;
}

/* Terms and allowed set of one head: s holds the scores of keys j0 .. */
ATTN_FUNC_ void attn_joint_modify_(attn_joint_tile_ *t, attn_tile_ *u, float *s, int64_t j0,
                                   int64_t n) {
  attn_block_ b;
  unsigned char seen[ATTN_BLOCK_] = {0};
  const int all = (1 << t->groups) - 1;
  for (int r = 0; r < ATTN_TILE_; r++) u->top[r] = -INFINITY;
  const int open = attn_joint_see_(u, &b, j0, n);
  t->partial |= !open || b.partial;
  if (open)
    for (int i = 0; i < b.count; i++) {
      const attn_segment_ *seg = &b.seg[i];
      const int64_t at = b.j0 - j0 + seg->at;
      attn_modifiers_ mod = b.mod;
      mod.at += seg->at;
      if (mod.key) mod.key += seg->at;
      if (mod.back) mod.back += seg->at;
      if (mod.bias) mod.bias += seg->at * ATTN_TILE_;
      if (seg->m0 < seg->m1) {
        mod.lanes = b.set.lanes ? b.set.lanes + seg->at : NULL;
        mod.lo = b.set.lo, mod.hi = b.set.hi;
      }
      attn_on_(tile, u->a->table)
          ->modify_block(s + at * ATTN_TILE_, seg->n, seg->g0, seg->g1, &mod, u->top);
      for (int e = 0; e < seg->n; e++)
        seen[at + e] |= (unsigned char)((1 << seg->g1) - (1 << seg->g0));
    }
  for (int64_t e = 0; e < n; e++)
    for (int g = 0; seen[e] != all && g < t->groups; g++)
      for (int r = 0; !(seen[e] >> g & 1) && r < ATTN_GROUP_; r++)
        s[e * ATTN_TILE_ + g * ATTN_GROUP_ + r] = -INFINITY;
}

/* Scores of a block of all heads, to w [heads][STEP]. */
ATTN_FUNC_ void attn_joint_scores_(attn_joint_tile_ *t, int64_t j0, int64_t n, float *w) {
  const attn_joint_ *x = t->x;
  const attn_table_ *f = x->a.table;
  const int64_t dk = x->q.dim, group = x->q.heads / x->k.heads;
  float *to = x->mix ? t->j : w;
  const float *k = NULL;
  int64_t stride = 0;
  for (int64_t h = 0; h < x->q.heads; h++) {
    if (h % group == 0) k = attn_joint_rows_(t, &x->k, h / group, j0, n, t->k, &stride);
    attn_on_(tile, f)->score_block(to + h * ATTN_JOINT_STEP_, t->qt + h * dk * ATTN_TILE_, k,
                                   stride, n, dk, 0, t->groups, t->head[0].spare);
  }
  if (x->mix) attn_joint_mix_(t, w, x->heads, x->mix, t->j, x->q.heads, n);
  for (int64_t h = 0; h < x->heads; h++)
    attn_joint_modify_(t, &t->head[h], w + h * ATTN_JOINT_STEP_, j0, n);
}

/* A block of all heads goes to a slot: 2^(score - m), and the m of each row. */
ATTN_FUNC_ void attn_joint_block_(attn_joint_tile_ *t, int64_t j0, int64_t n, int64_t slot) {
  const attn_joint_ *x = t->x;
  float *w = t->w + slot * x->heads * ATTN_JOINT_STEP_;
  attn_joint_scores_(t, j0, n, w);
  for (int64_t h = 0; h < x->heads; h++) {
    attn_tile_ *u = &t->head[h];
    attn_on_(tile, x->a.table)
        ->softmax_block(w + h * ATTN_JOINT_STEP_, n, 0, t->groups, u->m, u->l, u->alpha, u->top,
                        NULL);
    memcpy(t->m + (slot * x->heads + h) * ATTN_TILE_, u->m, sizeof u->m);
  }
}

/* Maxima and sums of all rows, and the LSE. */
ATTN_FUNC_ void attn_joint_first_(attn_joint_tile_ *t) {
  const attn_joint_ *x = t->x;
  int64_t i = 0;
  for (int r = 0; r < ATTN_TILE_; r++) t->head[0].spare[r] = -INFINITY;
  for (int64_t j = t->j0, next; j < t->end; j = next, i++) {
    next = attn_joint_next_(t, j);
    attn_joint_block_(t, j, next - j, i < x->kept ? i : x->kept);
  }
  for (int64_t h = 0; h < x->heads; h++) {
    const attn_tile_ *u = &t->head[h];
    float *inv = t->inv + h * ATTN_TILE_;
    for (int r = 0; r < ATTN_TILE_; r++) inv[r] = 1.0f;
    attn_on_(tile, x->a.table)->divide(inv, u->l, ATTN_GROUPS_);
    memcpy(t->last + h * ATTN_TILE_, u->m, sizeof u->m);
    for (int r = 0; x->lse.data && r < t->n; r++) {
      float lse = -INFINITY;
      if (u->l[r] > 0.0f && u->l[r] < INFINITY)
        lse = (float)(((double)u->m[r] + attn_log2_(u->l[r])) * ATTN_LN2_);
      else if (u->l[r] != 0.0f)
        lse = attn_from_bits_(0x7fc00000u);
      memcpy(attn_at_(&x->lse, t->batch, h, t->first + r), &lse, sizeof lse);
    }
  }
}

/* A block in the second walk: the weights are w[h][key][lane] by[h][lane], heads STEP apart. */
typedef void (*attn_joint_fn_)(void *user, attn_joint_tile_ *t, int64_t j0, int64_t n, float *w);

ATTN_FUNC_ void attn_joint_second_(attn_joint_tile_ *t, attn_joint_fn_ block, void *user) {
  const attn_joint_ *x = t->x;
  const attn_table_ *f = x->a.table;
  int64_t i = 0;
  for (int64_t j = t->j0, next; j < t->end; j = next, i++) {
    const int64_t slot = i < x->kept ? i : x->kept;
    float *w = t->w + slot * x->heads * ATTN_JOINT_STEP_;
    next = attn_joint_next_(t, j);
    for (int64_t h = 0; i == x->kept && h < x->heads; h++)
      memcpy(t->head[h].m, t->m + ((slot - 1) * x->heads + h) * ATTN_TILE_, sizeof t->head[h].m);
    if (i >= x->kept) attn_joint_block_(t, j, next - j, slot);
    for (int64_t h = 0; h < x->heads; h++) {
      float m[ATTN_TILE_], *by = t->by + h * ATTN_TILE_;
      memcpy(m, t->m + (slot * x->heads + h) * ATTN_TILE_, sizeof m);
      memcpy(by, t->inv + h * ATTN_TILE_, sizeof m);
      /* a block of no keys: by = 2^(m - last) / sum */
      attn_on_(tile, f)->softmax_block(w, 0, 0, t->groups, m, by, t->head[h].alpha,
                                       t->last + h * ATTN_TILE_, NULL);
      for (int r = 0; t->scaled && i < x->kept && r < ATTN_TILE_; r++) by[r] = 1.0f;
    }
    block(user, t, j, next - j, w);
  }
}

/* The same with the weights of a map. */
ATTN_FUNC_ void attn_joint_read_(attn_joint_tile_ *t, attn_joint_fn_ block, void *user) {
  const attn_joint_ *x = t->x;
  for (int64_t r = 0; r < x->heads * ATTN_TILE_; r++) t->by[r] = 1.0f;
  for (int64_t j = t->j0, next; j < t->end; j = next) {
    next = attn_joint_next_(t, j);
    for (int64_t h = 0; h < x->heads; h++) {
      const void *rows[ATTN_TILE_];
      for (int r = 0; r < t->n; r++)
        rows[r] = attn_at_(&x->map, t->batch, h, t->first + r) + attn_bytes_(x->map.dtype, j);
      x->a.table->pack(t->w + h * ATTN_JOINT_STEP_, rows, t->n, next - j, (int)x->map.dtype, 1.0f,
                       attn_least_(1.0f));
    }
    block(user, t, j, next - j, t->w);
  }
}
