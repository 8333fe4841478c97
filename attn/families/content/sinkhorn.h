/* families/content/sinkhorn.h owns attention over sorted blocks. An item mixes up to six blocks of keys and
 * values in the memory of its worker, or reads the chosen ones in place; 64 queries then sweep the sorted
 * rows and the own ones into one softmax. SortCut mixes its few blocks first, for all queries. */

enum { ATTN_SINK_MOST_ = 6, ATTN_SINK_FLOATS_ = 65536 };

/* What one worker works in, and the state of its tile. */
typedef struct attn_sink_tile_ {
  const attn_sink_job_ *a;
  const attn_table_ *f;
  int64_t b, h, hk, hv;
  float *qt, *s, *ot, *rest; /* [dk][tile], [block][tile], [dv][tile] twice */
  float *k, *v;              /* rows of keys and values as f32, [block][dk], [block][dv] */
  float *mixed_k, *mixed_v;  /* [together][b][dk], [together][b][dv] */
  float *wide, *p;           /* [block][dk or dv] rows that are mixed, [together][NB] rows of P */
  int64_t *pairs;
  int rows, groups, started;
  int careful, spoilt; /* causal: see attn_sink_clean_ */
  uint64_t reads[2 * ATTN_GROUP_];
  float m[ATTN_TILE_], l[ATTN_TILE_], alpha[ATTN_TILE_], top[ATTN_TILE_], spare[ATTN_TILE_];
  float lo[ATTN_TILE_], hi[ATTN_TILE_];
} attn_sink_tile_;

/* Cuts it from memory; bytes of it. */
ATTN_FUNC_ int64_t attn_sink_cut_(attn_sink_tile_ *x, char *memory, const attn_sink_job_ *a) {
  const int64_t dk = a->q.dim, dv = a->v.dim, tile = 4 * ATTN_TILE_, block = 4 * ATTN_BLOCK_;
  const int soft = !a->p.hard, sum = a->p.combine == ATTN_SINKHORN_SUM;
  const int64_t b = attn_mul_(a->p.block, a->what == ATTN_SINK_CUT_ ? 0 : 4);
  const int64_t n[] = {
      8,
      attn_mul_(dk, tile),
      block * ATTN_TILE_,
      attn_mul_(dv, tile),
      a->p.combine == ATTN_SINKHORN_MIXTURE ? attn_mul_(dv, tile) : 0,
      a->k.dtype != ATTN_F32 || a->p.null_k.data || sum ? attn_mul_(dk, block) : 0,
      a->v.dtype != ATTN_F32 || a->p.null_v.data || a->p.causal ? attn_mul_(dv, block) : 0,
      soft || sum ? attn_mul_(attn_mul_(dk, b), a->together) : 0,
      soft ? attn_mul_(attn_mul_(dv, b), a->together) : 0,
      soft ? attn_add_(attn_mul_(dk > dv ? dk : dv, block), 64) : 0,
      soft ? attn_mul_(attn_mul_(a->blocks, 4), a->together) : 0};
  enum { PARTS = 11 };
  int64_t at[PARTS], bytes = 0;
  for (int i = 0; i < PARTS; i++) at[i] = bytes, bytes = attn_add_(bytes, attn_piece_(n[i], 1));
  if (!memory) return bytes;
  float **part[] = {&x->qt, &x->s,       &x->ot,      &x->rest, &x->k,
                    &x->v,  &x->mixed_k, &x->mixed_v, &x->wide, &x->p};
  x->pairs = (int64_t *)(void *)memory;
  for (int i = 1; i < PARTS; i++) *part[i - 1] = (float *)(void *)(memory + at[i]);
  return bytes;
}

ATTN_FUNC_ void attn_sink_open_(attn_sink_tile_ *x, const attn_sink_job_ *a, int worker,
                                int64_t unit) {
  attn_sink_cut_(x, a->memory + worker * a->each, a);
  x->a = a, x->f = a->table;
  x->careful = x->spoilt = 0;
  x->b = unit / a->heads, x->h = unit % a->heads;
  x->hk = x->h / (a->heads / a->k.heads), x->hv = x->h / (a->heads / a->v.heads);
}

/* ---- mixing ---------------------------------------------------------------------------------*/

/* y[r][t] = sum of p[r][j] x[j b + t] over the first n blocks: r counts `rows` places, y is dense. From
 * block `all` on each is forbidden to one place more: those places skip it when careful, else they have
 * zeros there. */
ATTN_FUNC_ void attn_sink_mix_(attn_sink_tile_ *x, float *y, const attn_tensor *from, int64_t head,
                               int rows, int64_t n, int64_t all) {
  const int64_t size = x->a->p.block, dim = from->dim, step = size * from->stride_len;
  const int in_place = from->dtype == ATTN_F32 && dim % ATTN_GROUP_ == 0;
  if (!x->careful) all = n;
  for (int64_t t = 0; t < size; t++)
    for (int64_t j = 0, some; j < n; j += some) {
      const int64_t r = j < all ? 0 : j - all + 1, left = j < all ? attn_min64_(all, n) - j : 1;
      some = attn_min64_(left, ATTN_BLOCK_);
      const char *at = attn_at_(from, x->b, head, j * size + t);
      const float *w = (const float *)(const void *)at;
      if (!in_place) {
        x->f->widen(x->wide, at, step, NULL, some, dim, from->dtype, NULL);
        w = x->wide;
      }
      attn_on_(dense, x->f)
          ->gemm(y + (r * size + t) * dim, size * dim, rows - r, x->p + r * x->a->blocks + j,
                 x->a->blocks, 1, w, in_place ? step : dim, some, dim, j == 0);
    }
}

/* Places i0 .. of a head, soft, into k and v; has[r]: the row of P is not 0. */
ATTN_FUNC_ void attn_sink_places_(attn_sink_tile_ *x, float *k, float *v, int64_t i0, int rows,
                                  int *has) {
  const attn_sink_job_ *a = x->a;
  const attn_tensor *p = &a->sort;
  int64_t most = 0;
  for (int r = 0; r < rows; r++) {
    const float *from = (const float *)(const void *)attn_at_(p, p->batch > 1 ? x->b : 0,
                                                              p->heads > 1 ? x->h : 0, i0 + r);
    const int64_t end = a->p.causal ? i0 + r + (a->p.diag != 0) : a->blocks;
    float *to = x->p + r * a->blocks;
    has[r] = 0;
    for (int64_t j = 0; j < a->blocks; j++) {
      to[j] = j < end ? from[j] : 0.0f;
      if (to[j] != 0.0f && most < j + 1) most = j + 1;
      has[r] |= to[j] != 0.0f;
    }
  }
  const int64_t all = a->p.causal ? i0 + (a->p.diag != 0) : most;
  attn_sink_mix_(x, k, &a->k, x->hk, rows, most, all);
  attn_sink_mix_(x, v, &a->v, x->hv, rows, most, all);
}

/* ---- attention ------------------------------------------------------------------------------*/

/* Rows i .. i + n - 1 of one head as a tensor by themselves. */
ATTN_FUNC_ attn_tensor attn_sink_view_(const attn_tensor *t, int64_t b, int64_t h, int64_t i,
                                       int64_t n) {
  attn_tensor y = *t;
  y.data = attn_at_(t, b, h, i);
  y.batch = y.heads = 1, y.len = n;
  return y;
}

ATTN_FUNC_ const float *attn_sink_f32_(const attn_sink_tile_ *x, const attn_tensor *t, int64_t j,
                                       int64_t n, float *copy, int64_t *stride) {
  const char *at = attn_at_(t, 0, 0, j);
  *stride = t->dtype == ATTN_F32 ? t->stride_len : t->dim;
  if (t->dtype == ATTN_F32) return (const float *)(const void *)at;
  x->f->widen(copy, at, t->stride_len, NULL, n, t->dim, t->dtype, NULL);
  return copy;
}

/* The queries of a tile: rows i .. of the sequence. */
ATTN_FUNC_ void attn_sink_queries_(attn_sink_tile_ *x, int64_t i, int rows) {
  const attn_sink_job_ *a = x->a;
  const void *from[ATTN_TILE_];
  x->rows = rows, x->groups = (rows + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  for (int r = 0; r < rows; r++) from[r] = attn_at_(&a->q, x->b, x->h, i + r);
  x->f->pack(x->qt, from, rows, a->q.dim, (int)a->q.dtype, a->scale_hi, a->scale_lo);
}

ATTN_FUNC_ void attn_sink_reset_(attn_sink_tile_ *x) {
  for (int r = 0; r < ATTN_TILE_; r++) x->m[r] = -INFINITY, x->l[r] = 0.0f;
  x->started = 0;
}

/* Values that are not finite must reach the rows that see them and no others, though 0 * NaN is NaN. When
 * an item of a causal call has such a result it is done again carefully: they are taken out of a copy of the
 * block before scores become weights, */
ATTN_FUNC_ void attn_sink_clean_(attn_sink_tile_ *x, const attn_tensor *v, int64_t j, int64_t n,
                                 int g0) {
  x->f->widen(x->v, attn_at_(v, 0, 0, j), v->stride_len, NULL, n, v->dim, v->dtype, NULL);
  for (int64_t e = 0; e < n; e++) {
    x->reads[e] = 0;
    for (int r = g0 * ATTN_GROUP_; r < x->rows; r++)
      if (x->s[e * ATTN_TILE_ + r] != -INFINITY) x->reads[e] |= attn_bit_(r);
  }
  for (int64_t c = 0; c < n * v->dim; c++)
    if (!(x->v[c] - x->v[c] == 0.0f)) x->v[c] = 0.0f;
}

/* and added to the sums of those rows. */
ATTN_FUNC_ void attn_sink_patch_(attn_sink_tile_ *x, const attn_tensor *v, int64_t j, int64_t n) {
  for (int64_t e = 0; e < n; e++) {
    const char *row = attn_at_(v, 0, 0, j + e);
    for (int64_t c = 0; c < v->dim; c++) {
      const float y = attn_number_(row, c, v->dtype, NULL);
      if (y - y == 0.0f) continue;
      for (int r = 0; r < x->rows; r++)
        if (x->reads[e] >> r & 1) x->ot[c * ATTN_TILE_ + r] += x->s[e * ATTN_TILE_ + r] * y;
    }
  }
}

/* Adds the keys of a tensor to the softmax of the tile. first >= 0: row r sees those up to first + r. */
ATTN_FUNC_ void attn_sink_sweep_(attn_sink_tile_ *x, attn_tensor k, attn_tensor v, int64_t first) {
  const attn_table_ *f = x->f;
  const int64_t last = first < 0 || k.len < first + x->rows ? k.len : first + x->rows;
  attn_modifiers_ mod;
  int64_t stride;
  memset(&mod, 0, sizeof mod);
  mod.at = attn_count_, mod.lo = x->lo, mod.hi = x->hi;
  for (int64_t j = 0, some; j < last; j += some) {
    const int masked = first >= 0 && j >= first; /* keys before are seen by all rows */
    const int g0 = masked ? (int)((j - first) / ATTN_GROUP_) : 0, g1 = x->groups;
    const int64_t most = masked ? 2 * ATTN_GROUP_ : ATTN_BLOCK_;
    some = first >= 0 && !masked ? first - j : last - j;
    if (some > most) some = most;
    for (int r = 0; r < ATTN_TILE_; r++) x->top[r] = x->spare[r] = -INFINITY, x->lo[r] = 0.0f;
    const float *rows = attn_sink_f32_(x, &k, j, some, x->k, &stride);
    attn_on_(tile, f)->score_block(x->s, x->qt, rows, stride, some, k.dim, g0, g1,
                                   masked ? x->spare : x->top);
    if (masked) {
      for (int r = 0; r < ATTN_TILE_; r++)
        x->hi[r] = (float)attn_clamp_(first + r + 1 - j, 0, ATTN_BLOCK_);
      attn_on_(tile, f)->modify_block(x->s, some, g0, g1, &mod, x->top);
    }
    const int careful = masked && x->careful;
    if (careful) attn_sink_clean_(x, &v, j, some, g0);
    attn_on_(tile, f)->softmax_block(x->s, some, g0, g1, x->m, x->l, x->alpha, x->top, NULL);
    rows = careful ? x->v : attn_sink_f32_(x, &v, j, some, x->v, &stride);
    if (careful) stride = v.dim;
    attn_on_(tile, f)->value_block(x->ot, x->s, rows, stride, some, v.dim, g0, g1,
                                   x->started ? x->alpha : NULL, !x->started);
    if (careful) attn_sink_patch_(x, &v, j, some);
    x->started = 1;
    *x->pairs += x->careful ? 0 : some * (x->rows - g0 * ATTN_GROUP_);
  }
}

/* The sum is divided; times weight it goes to the rest, or with join meets what is there. */
ATTN_FUNC_ void attn_sink_part_(attn_sink_tile_ *x, float weight, int join) {
  const int64_t n = x->a->v.dim * ATTN_TILE_;
  for (int r = 0; r < ATTN_TILE_; r++) x->alpha[r] = weight;
  attn_on_(tile, x->f)->divide(x->alpha, x->l, ATTN_GROUPS_);
  if (!x->started) memset(x->ot, 0, (size_t)n * sizeof(float));
  attn_on_(tile, x->f)->scale_block(x->ot, x->a->v.dim, 0, x->groups, x->alpha);
  if (join)
    for (int64_t c = 0; c < n; c++) x->ot[c] += x->rest[c];
  if (join) return;
  memcpy(x->rest, x->ot, (size_t)n * sizeof(float));
  attn_sink_reset_(x);
}

/* Rows i .. of the output. */
ATTN_FUNC_ void attn_sink_finish_(attn_sink_tile_ *x, int64_t i) {
  const attn_sink_job_ *a = x->a;
  const int mixture = a->p.combine == ATTN_SINKHORN_MIXTURE;
  void *to[ATTN_TILE_];
  for (int r = 0; r < x->rows; r++) to[r] = attn_at_(&a->o, x->b, x->h, i + r);
  if (!mixture) {
    for (int r = 0; r < ATTN_TILE_; r++) x->alpha[r] = 1.0f;
    attn_on_(tile, x->f)->divide(x->alpha, x->l, ATTN_GROUPS_);
    if (!x->started) memset(x->ot, 0, (size_t)(a->v.dim * ATTN_TILE_) * sizeof(float));
  }
  if (a->p.causal && !x->careful && !x->f->finite(x->ot, ATTN_TILE_, a->v.dim, x->rows))
    x->spoilt = 1;
  x->f->unpack(to, x->ot, x->rows, a->v.dim, a->o.dtype, mixture ? NULL : x->alpha);
  for (int r = 0; a->p.lse.data && r < x->rows; r++) {
    float lse = -INFINITY;
    if (x->l[r] > 0.0f && x->l[r] < INFINITY)
      lse = (float)(((double)x->m[r] + attn_log2_(x->l[r])) * ATTN_LN2_);
    else if (x->l[r] != 0.0f)
      lse = attn_from_bits_(0x7fc00000u);
    memcpy(attn_at_(&a->p.lse, x->b, x->h, i + r), &lse, sizeof lse);
  }
}

/* All queries of block i. sorted_k.data null: it has no sorted keys. own = 1: they are its own. */
ATTN_FUNC_ void attn_sink_block_(attn_sink_tile_ *x, int64_t i, attn_tensor sorted_k,
                                 attn_tensor sorted_v, int own) {
  const attn_sink_job_ *a = x->a;
  const attn_sinkhorn_params *p = &a->p;
  const int64_t size = p->block, at = i * size;
  const attn_tensor k = attn_sink_view_(&a->k, x->b, x->hk, at, size);
  const attn_tensor v = attn_sink_view_(&a->v, x->b, x->hv, at, size);
  const int sum = p->combine == ATTN_SINKHORN_SUM, mixture = p->combine == ATTN_SINKHORN_MIXTURE;
  const int both = mixture || p->combine == ATTN_SINKHORN_CONCAT;
  for (int64_t r = 0; r < size; r += ATTN_TILE_) {
    const int rows = size - r < ATTN_TILE_ ? (int)(size - r) : (int)ATTN_TILE_;
    attn_sink_queries_(x, at + r, rows);
    attn_sink_reset_(x);
    if (sorted_k.data && !(own && both && !mixture)) /* a set: the own block counts once */
      attn_sink_sweep_(x, sorted_k, sorted_v, p->causal && (p->diag || sum) ? r : -1);
    if (mixture) attn_sink_part_(x, p->alpha_sorted, 0);
    if (both) attn_sink_sweep_(x, k, v, p->causal ? r : -1);
    if (mixture) attn_sink_part_(x, p->alpha_local, 1);
    attn_sink_finish_(x, at + r);
  }
}

/* k'_t + k_t of block i; to may be where k' lies. */
ATTN_FUNC_ attn_tensor attn_sink_sum_(attn_sink_tile_ *x, float *to, const attn_tensor *sorted,
                                      int64_t i) {
  const attn_tensor *k = &x->a->k;
  const int64_t size = x->a->p.block, dk = k->dim;
  float *wide = x->k;
  for (int64_t t = 0; t < size; t++) {
    const float *own = attn_row_wide_(x->f, k, x->b, x->hk, i * size + t, wide);
    const float *other = attn_row_wide_(x->f, sorted, 0, 0, t, wide + dk);
    for (int64_t c = 0; c < dk; c++) to[t * dk + c] = own[c] + other[c];
  }
  return attn_bhtd(to, ATTN_F32, 1, 1, size, dk);
}

/* One row as all rows of a block. */
ATTN_FUNC_ attn_tensor attn_sink_null_(const attn_sink_tile_ *x, const attn_tensor *row) {
  attn_tensor y = attn_sink_view_(row, 0, row->heads > 1 ? x->h : 0, 0, x->a->p.block);
  y.stride_len = 0;
  return y;
}

/* A few blocks of a head. */
ATTN_FUNC_ void attn_sink_blocks_at_(attn_sink_tile_ *x, int64_t unit, int64_t i0, int n) {
  const attn_sink_job_ *a = x->a;
  const int64_t size = a->p.block;
  const int sum = a->p.combine == ATTN_SINKHORN_SUM;
  int has[ATTN_SINK_MOST_];
  if (!a->p.hard) attn_sink_places_(x, x->mixed_k, x->mixed_v, i0, n, has);
  for (int r = 0; r < n; r++) {
    const int64_t i = i0 + r, j = a->p.hard ? a->choice[unit * a->places + i] : -1;
    float *mixed = a->p.hard ? x->mixed_k : x->mixed_k + r * size * a->k.dim;
    attn_tensor k = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0), v = k;
    if (j >= 0) {
      k = attn_sink_view_(&a->k, x->b, x->hk, j * size, size);
      v = attn_sink_view_(&a->v, x->b, x->hv, j * size, size);
    } else if (!a->p.hard && has[r]) {
      k = attn_bhtd(mixed, ATTN_F32, 1, 1, size, a->k.dim);
      v = attn_bhtd(x->mixed_v + r * size * a->v.dim, ATTN_F32, 1, 1, size, a->v.dim);
    } else if (a->p.null_k.data) {
      k = attn_sink_null_(x, &a->p.null_k), v = attn_sink_null_(x, &a->p.null_v);
    }
    if (sum && k.data) k = attn_sink_sum_(x, mixed, &k, i);
    attn_sink_block_(x, i, k, v, j == i);
  }
}

ATTN_FUNC_ void attn_sink_item_(void *job, int worker, int64_t index) {
  const attn_sink_job_ *a = (const attn_sink_job_ *)job;
  const int64_t runs = (a->blocks + a->together - 1) / a->together, unit = index / runs;
  const int64_t i0 = index % runs * a->together;
  const int n = a->blocks - i0 < a->together ? (int)(a->blocks - i0) : (int)a->together;
  attn_sink_tile_ x;
  attn_sink_open_(&x, a, worker, unit);
  attn_sink_blocks_at_(&x, unit, i0, n);
  x.careful = x.spoilt;
  if (x.careful) attn_sink_blocks_at_(&x, unit, i0, n);
}

/* ---- SortCut --------------------------------------------------------------------------------*/

/* Soft: mixes a few places of one head, and notes which have keys. */
ATTN_FUNC_ void attn_sortcut_mix_(void *job, int worker, int64_t index) {
  const attn_sink_job_ *a = (const attn_sink_job_ *)job;
  const int64_t runs = (a->places + a->together - 1) / a->together, unit = index / runs;
  const int64_t i0 = index % runs * a->together, at = i0 * a->p.block;
  const int n = a->places - i0 < a->together ? (int)(a->places - i0) : (int)a->together;
  attn_sink_tile_ x;
  int has[ATTN_SINK_MOST_];
  attn_sink_open_(&x, a, worker, unit);
  attn_sink_places_(&x, (float *)(void *)attn_at_(&a->mixed_k, x.b, x.h, at),
                    (float *)(void *)attn_at_(&a->mixed_v, x.b, x.h, at), i0, n, has);
  for (int r = 0; r < n; r++) a->list[unit * a->places + i0 + r] = has[r];
}

/* The blocks that the queries of a head read: soft the places that have keys, hard the chosen ones. */
ATTN_FUNC_ void attn_sortcut_list_(void *job, int worker, int64_t unit) {
  const attn_sink_job_ *a = (const attn_sink_job_ *)job;
  int32_t *list = a->list + unit * a->places, n = 0;
  (void)worker;
  for (int64_t i = 0; i < a->places; i++) {
    const int32_t j = a->p.hard ? a->choice[unit * a->places + i] : list[i] ? (int32_t)i : -1;
    int32_t at = n;
    if (j < 0) continue;
    while (at > 0 && list[at - 1] > j) at--; /* ascending, each once; few blocks are cut out */
    if (at > 0 && list[at - 1] == j) continue;
    memmove(list + at + 1, list + at, (size_t)(n - at) * sizeof *list);
    list[at] = j, n++;
  }
  a->listed[unit] = n;
}

/* 64 queries of one head; with local of one block. */
ATTN_FUNC_ void attn_sortcut_item_(void *job, int worker, int64_t index) {
  const attn_sink_job_ *a = (const attn_sink_job_ *)job;
  const int64_t size = a->p.block, run = a->p.local ? size : a->q.len;
  const int64_t tiles = (run + ATTN_TILE_ - 1) / ATTN_TILE_, all = tiles * (a->q.len / run);
  const int64_t unit = index / all, block = index % all / tiles, first = index % tiles * ATTN_TILE_;
  const int rows = run - first < ATTN_TILE_ ? (int)(run - first) : (int)ATTN_TILE_;
  const int32_t *list = a->list + unit * a->places;
  attn_sink_tile_ x;
  int own = 0;
  attn_sink_open_(&x, a, worker, unit);
  attn_sink_queries_(&x, block * run + first, rows);
  attn_sink_reset_(&x);
  for (int64_t e = 0, n; e < a->listed[unit]; e += n) {
    const int64_t from = list[e] * size;
    n = 1;
    while (e + n < a->listed[unit] && list[e + n] == list[e] + n) n++;
    own |= a->p.hard && list[e] <= block && block < list[e] + n;
    if (a->p.hard)
      attn_sink_sweep_(&x, attn_sink_view_(&a->k, x.b, x.hk, from, n * size),
                       attn_sink_view_(&a->v, x.b, x.hv, from, n * size), -1);
    else
      attn_sink_sweep_(&x, attn_sink_view_(&a->mixed_k, x.b, x.h, from, n * size),
                       attn_sink_view_(&a->mixed_v, x.b, x.h, from, n * size), -1);
  }
  if (a->p.local && !own)
    attn_sink_sweep_(&x, attn_sink_view_(&a->k, x.b, x.hk, block * size, size),
                     attn_sink_view_(&a->v, x.b, x.hv, block * size, size), -1);
  attn_sink_finish_(&x, block * run + first);
}

/* ---- steps ----------------------------------------------------------------------------------*/

/* P, or what stands for it. */
ATTN_COLD_ int attn_sink_sort_(attn_stage_ *s, attn_sink_job_ *a) {
  const int64_t b = a->q.batch, h = a->heads, nb = a->blocks;
  if (a->made) {
    attn_tensor r = a->p.logits;
    if (!r.data) {
      const attn_tensor x = a->p.x.data ? a->p.x : a->k;
      const attn_tensor y = attn_stage_tensor_(s, b, x.heads, nb, x.dim);
      r = attn_stage_tensor_(s, b, h, nb, nb);
      if (!attn_sink_blocks_(s, a, y, x) || !attn_sink_logits_(s, a, r, y)) return 0;
    }
    a->sort = attn_stage_tensor_(s, b, h, nb, nb);
    if (!attn_sink_balance_(s, a, a->sort, r)) return 0;
  }
  if (!a->p.hard) return 1;
  a->choice = a->p.choice;
  if (a->choice && a->places == nb) return 1;
  int32_t *made = (int32_t *)attn_stage_take_(s, attn_mul_(attn_mul_(b, h), a->places), 4);
  if (a->p.choice) { /* the first places of each head */
    if (s->run)
      for (int64_t u = 0; u < b * h; u++)
        memcpy(made + u * a->places, a->p.choice + u * nb, (size_t)a->places * sizeof *made);
  } else if (!attn_sink_choose_(s, a, made, b, a->sort)) {
    return 0;
  }
  a->choice = made;
  return 1;
}

/* A loop over items that count pairs. */
ATTN_COLD_ int attn_sink_loop_(attn_stage_ *s, attn_sink_job_ *a, int64_t count,
                               attn_item_fn_ item) {
  const int pieces = count > 0 ? attn_pieces_(s->workers, count) : 0;
  char *memory = attn_stage_spare_(s, attn_mul_(a->each, pieces));
  if (s->run)
    for (int w = 0; w < pieces; w++) memset(memory + w * a->each, 0, sizeof(int64_t));
  if (!attn_stage_for_(s, count, item, a, a->each, &a->memory)) return 0;
  for (int w = 0; s->run && w < pieces; w++) {
    int64_t pairs;
    memcpy(&pairs, memory + w * a->each, sizeof pairs);
    s->pairs += pairs;
  }
  return 1;
}

ATTN_COLD_ int attn_sink_steps_(attn_stage_ *s, void *job) {
  attn_sink_job_ *a = (attn_sink_job_ *)job;
  const int64_t b = a->q.batch, units = attn_mul_(b, a->heads), size = a->p.block;
  const double scale = a->p.scale != 0.0f || attn_to_bits_(a->p.scale)
                           ? (double)a->p.scale
                           : 1.0 / sqrt((double)a->q.dim);
  const double unit = attn_clamp_f64_(scale * ATTN_LOG2E_);
  const int64_t floats = attn_mul_(size, attn_add_(a->q.dim, a->v.dim));
  a->table = s->table;
  a->scale_hi = (float)unit, a->scale_lo = (float)(unit - (double)a->scale_hi);
  a->together = a->p.hard ? 1 : attn_clamp_(ATTN_SINK_FLOATS_ / floats, 1, ATTN_SINK_MOST_);
  if (!attn_sink_sort_(s, a)) return 0;
  a->each = attn_sink_cut_(NULL, NULL, a);
  if (a->what == ATTN_SINK_ATTEND_)
    return attn_sink_loop_(s, a, attn_mul_(units, (a->blocks + a->together - 1) / a->together),
                           attn_sink_item_);
  const int64_t run = a->p.local ? size : a->q.len, tiles = (run + ATTN_TILE_ - 1) / ATTN_TILE_;
  a->list = (int32_t *)attn_stage_take_(s, attn_mul_(units, a->places), 4);
  a->listed = (int32_t *)attn_stage_take_(s, units, 4);
  if (!a->p.hard) {
    const int64_t rows = attn_mul_(a->places, size);
    a->mixed_k = attn_stage_tensor_(s, b, a->heads, rows, a->k.dim);
    a->mixed_v = attn_stage_tensor_(s, b, a->heads, rows, a->v.dim);
    if (!attn_sink_loop_(s, a, attn_mul_(units, (a->places + a->together - 1) / a->together),
                         attn_sortcut_mix_))
      return 0;
  }
  return attn_stage_for_(s, units, attn_sortcut_list_, a, 0, NULL) &&
         attn_sink_loop_(s, a, attn_mul_(units, attn_mul_(tiles, a->q.len / run)),
                         attn_sortcut_item_);
}

/* ---- checks ---------------------------------------------------------------------------------*/

/* The chosen blocks of all places in use. */
ATTN_COLD_ int attn_sink_check_choice_(attn_error_ *e, const attn_sink_job_ *j) {
  for (int64_t u = 0; u < j->q.batch * j->heads; u++)
    for (int64_t i = 0; i < j->places; i++) {
      const int64_t c = j->p.choice[u * j->blocks + i];
      const int64_t end = j->p.causal ? i + (j->p.diag != 0) : j->blocks;
      if (c < -1 || c >= end)
        return attn_reject_(e, ATTN_E_INDEX,
                            "params.choice must hold -1 or a block, with causal an earlier one");
    }
  return 1;
}

ATTN_COLD_ int attn_sink_check_options_(attn_error_ *e, attn_sink_job_ *j) {
  attn_sinkhorn_params *p = &j->p;
  float *const weight[2] = {&p->alpha_sorted, &p->alpha_local};
  j->places = j->blocks;
  if (j->what == ATTN_SINK_CUT_) {
    if (p->causal) return attn_reject_(e, ATTN_E_RANGE, "params.causal is not for attn_sortcut");
    if (p->combine != ATTN_SINKHORN_CONCAT)
      return attn_reject_(e, ATTN_E_RANGE, "params.combine is not for attn_sortcut");
    if (p->cut < 1 || p->cut > j->blocks)
      return attn_reject_(e, ATTN_E_RANGE, "params.cut must lie in 1..k.len / block");
    if (p->local && j->q.len != j->k.len)
      return attn_reject_(e, ATTN_E_SHAPE, "q.len must equal k.len with params.local");
    if (p->null_k.data || p->null_v.data)
      return attn_reject_(e, ATTN_E_RANGE, "params.null_k and .null_v are not for attn_sortcut");
    j->places = p->cut;
  } else if (j->q.len != j->k.len) {
    return attn_reject_(e, ATTN_E_SHAPE, "q.len must equal k.len");
  }
  if ((int)p->combine < 0 || p->combine >= ATTN_SINKHORN_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.combine must be an attn_sinkhorn_combine");
  if (p->combine == ATTN_SINKHORN_MIXTURE && p->lse.data)
    return attn_reject_(e, ATTN_E_RANGE, "params.lse does not exist with ATTN_SINKHORN_MIXTURE");
  for (int i = 0; i < 2; i++) {
    if (*weight[i] == 0.0f && !attn_to_bits_(*weight[i])) *weight[i] = 1.0f;
    if (!(*weight[i] - *weight[i] == 0.0f))
      return attn_reject_(e, ATTN_E_VALUE, "params.alpha_sorted and .alpha_local must be finite");
  }
  return 1;
}

ATTN_COLD_ int attn_sink_check_call_(attn_error_ *e, attn_sink_job_ *j, attn_arguments_ *l,
                                     const attn_ctx *ctx, int data) {
  attn_sinkhorn_params *p = &j->p;
  attn_tensor *q = &j->q, *k = &j->k;
  const int64_t any = ATTN_ANY_, in = ATTN_DIVIDES_, one = ATTN_ONE_OR_ALL_;
  attn_span_ more = {0, 0, 0, 0};
  if (!attn_check_argument_(e, l, q, ATTN_WORDS_("q"), 0, any, any, any, any, "q")) return 0;
  const int64_t b = l->batch = q->batch, h = l->heads = j->heads = q->heads;
  if (h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
  if (!attn_check_argument_(e, l, k, ATTN_WORDS_("k"), 0, b, in, any, q->dim,
                            "k must be [q.batch, a divisor of q.heads, ., q.dim]") ||
      !attn_check_argument_(e, l, &j->v, ATTN_WORDS_("v"), 0, b, in, k->len, any,
                            "v must be [q.batch, a divisor of q.heads, k.len, .]") ||
      !attn_check_argument_(e, l, &j->o, ATTN_WORDS_("o"), ATTN_OUT_, b, h, q->len, j->v.dim,
                            "o must be [q.batch, q.heads, q.len, v.dim]") ||
      !attn_check_argument_(e, l, &p->lse, ATTN_WORDS_("params.lse"),
                            ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b, h, q->len, 1,
                            "params.lse must be f32 [q.batch, q.heads, q.len, 1]") ||
      !attn_check_scale_(e, p->scale) ||
      !attn_sink_check_blocks_(e, j, k->len, "k.len must be a multiple of params.block"))
    return 0;
  if (b > 0 && q->len > 0) {
    const int64_t nb = j->blocks;
    if (!attn_sink_check_options_(e, j)) return 0;
    if ((p->null_k.data || p->null_v.data) &&
        (!attn_check_argument_(e, l, &p->null_k, ATTN_WORDS_("params.null_k"), 0, 1, one, 1, q->dim,
                               "params.null_k must be [1, 1 or q.heads, 1, q.dim]") ||
         !attn_check_argument_(e, l, &p->null_v, ATTN_WORDS_("params.null_v"), 0, 1, one, 1,
                               j->v.dim, "params.null_v must be [1, 1 or q.heads, 1, v.dim]")))
      return 0;
    j->made = !j->sort.data && !(p->hard && p->choice);
    if (j->sort.data && p->hard && p->choice)
      return attn_reject_(e, ATTN_E_RANGE, "sort and params.choice exclude each other");
    if (!attn_check_argument_(e, l, &j->sort, ATTN_WORDS_("sort"), ATTN_OPTIONAL_ | ATTN_IS_F32_,
                              one, one, nb, nb,
                              "sort must be f32 [1 or q.batch, 1 or q.heads, blocks, blocks]"))
      return 0;
    if (j->made) {
      if (!p->logits.data) {
        if (!attn_check_argument_(e, l, &p->x, ATTN_WORDS_("params.x"), ATTN_OPTIONAL_, b, in,
                                  k->len, any,
                                  "params.x must be [q.batch, a divisor of q.heads, k.len, .]") ||
            !attn_sink_check_network_(e, j, l, p->x.data ? p->x.dim : k->dim))
          return 0;
      } else if (!attn_check_argument_(e, l, &p->logits, ATTN_WORDS_("params.logits"), ATTN_IS_F32_,
                                       one, one, nb, nb,
                                       "params.logits must be f32 [1 or q.batch, 1 or q.heads, "
                                       "blocks, blocks]")) {
        return 0;
      }
      if (!attn_sink_check_balance_(e, j, l)) return 0;
    }
    if (p->hard && p->choice) {
      const int64_t n = attn_mul_(attn_mul_(b, h), nb);
      if (!attn_check_array_(e, p->choice, n, 4, "params.choice must be aligned to its elements",
                             &more) ||
          (data && !attn_sink_check_choice_(e, j)))
        return 0;
    }
  }
  return attn_check_apart_(e, ctx, l->op, l->n, &more, 1);
}

/* ---- the calls ------------------------------------------------------------------------------*/

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_sink_call_(attn_sink_job_ *j, const attn_sinkhorn_params *params,
                                       attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_arguments_ list;
  int workers;
  memset(&list, 0, sizeof list);
  if (!attn_check_ctx_(&e, ctx, &table, &workers)) return attn_end_(bytes ? NULL : ctx, &e);
  if (params)
    j->p = *params;
  else
    attn_reject_(&e, ATTN_E_NULL, "params must not be null: it has the block length");
  if (e.status == ATTN_OK && attn_sink_check_call_(&e, j, &list, ctx, bytes == NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (j->q.batch > 0 && j->q.len > 0)
      attn_stage_call_(&s, ctx, attn_sink_steps_, j,
                       j->p.hard ? "sorted blocks in place" : "sorted blocks, mixed", bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no queries");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_sink_job_ attn_sink_job_of_(int what, attn_tensor o, attn_tensor q, attn_tensor k,
                                            attn_tensor v, attn_tensor sort) {
  attn_sink_job_ j;
  memset(&j, 0, sizeof j);
  j.what = what, j.o = o, j.q = q, j.k = k, j.v = v, j.sort = sort;
  return j;
}

ATTN_COLD_ attn_status attn_sinkhorn_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                           attn_tensor v, attn_tensor sort,
                                           const attn_sinkhorn_params *params, attn_ctx *ctx,
                                           size_t *bytes) {
  attn_sink_job_ j = attn_sink_job_of_(ATTN_SINK_ATTEND_, o, q, k, v, sort);
  return attn_sink_call_(&j, params, ctx, bytes);
}
ATTN_CALL_(attn_sinkhorn, (o, q, k, v, sort, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, attn_tensor sort, const attn_sinkhorn_params *params)

ATTN_COLD_ attn_status attn_sortcut_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, attn_tensor sort,
                                          const attn_sinkhorn_params *params, attn_ctx *ctx,
                                          size_t *bytes) {
  attn_sink_job_ j = attn_sink_job_of_(ATTN_SINK_CUT_, o, q, k, v, sort);
  return attn_sink_call_(&j, params, ctx, bytes);
}
ATTN_CALL_(attn_sortcut, (o, q, k, v, sort, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, attn_tensor sort, const attn_sinkhorn_params *params)
