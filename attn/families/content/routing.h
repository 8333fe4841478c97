/* families/content/routing.h owns who is in a cluster of the Routing Transformer (D2): the checks of all its
 * calls, normalised rows, and the two kinds of membership. */

enum { ATTN_RT_SELECT_, ATTN_RT_ATTEND_, ATTN_RT_BOTH_, ATTN_RT_UPDATE_ };

/* Queries or keys. */
typedef struct attn_routed_ {
  attn_tensor x;      /* [B, H or Hk, n, dk], normalised when the steps have come so far */
  attn_members m;     /* of [B][H] */
  const int32_t *len; /* [B] or null */
  int64_t w;          /* resolved */
  int32_t *of;        /* ARGMAX: [B][H][n] the cluster of each row, -1 beyond len */
  attn_topk_ search;  /* a plan */
} attn_routed_;

/* The members of a unit's clusters from one on, one after the other; null when there is room for none. */
ATTN_INLINE_ int32_t *attn_routed_members_(const attn_routed_ *s, int64_t unit, int64_t from) {
  return s->m.entries ? s->m.index + unit * s->m.entries + from : NULL;
}

typedef struct attn_routing_job_ {
  const attn_table_ *table;
  attn_tensor o, k, v, centroids, next; /* k as the caller gave it */
  attn_routed_ side[2];                 /* queries, keys */
  int sides;                            /* that are routed: 1 when shared */
  attn_routing_params p;
  attn_routing_update_params u;
  int64_t learned; /* rows of mem_k of a head */
  int64_t tiles;   /* items of a head and side */
  char *memory;    /* of the workers */
  int64_t each;
} attn_routing_job_;

ATTN_PUB_ int64_t attn_routing_entries(int64_t n, int64_t clusters, int64_t w,
                                       attn_routing_membership membership) {
  if (n < 0 || clusters < 1 || w < 0) return -1;
  if (membership == ATTN_ROUTING_ARGMAX) return n;
  if (membership != ATTN_ROUTING_TOPW) return -1;
  if (w == 0) w = n / clusters + (n % clusters != 0);
  return attn_mul_(clusters, w < n ? w : n);
}

/* ---- checks ---------------------------------------------------------------------------------*/

ATTN_COLD_ int attn_routing_check_params_(attn_error_ *e, attn_routing_job_ *a, int call) {
  attn_routing_params *p = &a->p;
  const attn_routing_update_params *u = &a->u;
  if ((int)p->norm < 0 || p->norm >= ATTN_ROUTING_NORM_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.norm must be an attn_routing_norm");
  if ((int)p->membership < 0 || p->membership >= ATTN_ROUTING_MEMBERSHIP_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.membership must be an attn_routing_membership");
  if ((int)p->combine < 0 || p->combine >= ATTN_ROUTING_COMBINE_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.combine must be an attn_routing_combine");
  if (p->w < 0 || p->wk < 0)
    return attn_reject_(e, ATTN_E_RANGE, "params.w and .wk must be at least 1, or 0");
  if (p->exclude_self && !p->shared)
    return attn_reject_(e, ATTN_E_RANGE, "params.exclude_self needs params.shared");
  if (p->shared && p->kv_len)
    return attn_reject_(e, ATTN_E_RANGE, "params.kv_len must be null with params.shared");
  if (p->lse.data && p->combine == ATTN_ROUTING_MEAN)
    return attn_reject_(e, ATTN_E_RANGE, "params.lse needs ATTN_ROUTING_UNION");
  if (p->shared && a->side[1].x.data)
    return attn_reject_(e, ATTN_E_SHAPE, "k must be absent with params.shared");
  if (p->shared && (a->side[1].m.index || a->side[1].m.indptr))
    return attn_reject_(e, ATTN_E_SHAPE, "keys must be absent with params.shared");
  if (call == ATTN_RT_UPDATE_) {
    if ((int)u->rule < 0 || u->rule >= ATTN_ROUTING_RULE_COUNT)
      return attn_reject_(e, ATTN_E_RANGE, "params.rule must be an attn_routing_rule");
    if (!(u->decay >= 0.0f && u->decay <= 1.0f))
      return attn_reject_(e, ATTN_E_VALUE, "params.decay must lie in 0..1");
    if (u->rule == ATTN_ROUTING_RUNNING && (!u->counts || !u->sums.data))
      return attn_reject_(e, ATTN_E_NULL, "params.counts and .sums must not be null with RUNNING");
  }
  return attn_check_scale_(e, p->scale);
}

/* Members that are given: in range, ascending, no more than there is room for. */
ATTN_COLD_ int attn_routing_check_members_(attn_error_ *e, const attn_routed_ *s, int64_t b,
                                           int64_t heads) {
  static const char *const reason =
      "queries and keys must hold rows below their lengths, ascending in each cluster";
  for (int64_t u = 0; u < b * heads; u++) {
    const int32_t *start = s->m.indptr + u * (s->m.clusters + 1);
    const int32_t *index = attn_routed_members_(s, u, 0);
    const int64_t n = attn_len_of_(s->len, u / heads, s->x.len);
    if (start[0] != 0) return attn_reject_(e, ATTN_E_INDEX, "indptr must begin with 0");
    for (int64_t c = 0; c < s->m.clusters; c++) {
      if (start[c + 1] < start[c] || start[c + 1] > s->m.entries)
        return attn_reject_(e, ATTN_E_INDEX, "indptr must not decrease or pass entries");
      for (int64_t i = start[c]; i < start[c + 1]; i++)
        if (index[i] < (i > start[c] ? index[i - 1] + 1 : 0) || index[i] >= n)
          return attn_reject_(e, ATTN_E_INDEX, reason);
    }
  }
  return 1;
}

/* Every rule of the calls over clusters. data: arrays may be read. */
ATTN_COLD_ int attn_routing_check_(attn_error_ *e, attn_routing_job_ *a, int call,
                                   const attn_ctx *ctx, const attn_table_ **table, int *workers,
                                   int data) {
  static const char *const w[] = {ATTN_WORDS_("q"),
                                  ATTN_WORDS_("k"),
                                  ATTN_WORDS_("v"),
                                  ATTN_WORDS_("centroids"),
                                  ATTN_WORDS_("o"),
                                  ATTN_WORDS_("params.lse"),
                                  ATTN_WORDS_("next"),
                                  ATTN_WORDS_("params.counts"),
                                  ATTN_WORDS_("params.sums"),
                                  ATTN_WORDS_("queries.index"),
                                  ATTN_WORDS_("queries.indptr"),
                                  ATTN_WORDS_("keys.index"),
                                  ATTN_WORDS_("keys.indptr"),
                                  ATTN_WORDS_("params.mem_k"),
                                  ATTN_WORDS_("params.mem_v")};
  enum { Q, K, V, MU, O, LSE, NEXT, COUNTS, SUMS, QI, QS, KI, KS, MK, MV, COUNT };
  const int64_t any = ATTN_ANY_;
  const int select = call == ATTN_RT_SELECT_, update = call == ATTN_RT_UPDATE_;
  const int attends = call == ATTN_RT_ATTEND_ || call == ATTN_RT_BOTH_;
  const int listed = select || call == ATTN_RT_ATTEND_, routes = call != ATTN_RT_ATTEND_;
  const int running = update && a->u.rule == ATTN_ROUTING_RUNNING;
  attn_routing_params *p = &a->p;
  attn_routed_ *q = &a->side[0], *k = &a->side[1];
  attn_span_ more[2];
  if (!attn_check_ctx_(e, ctx, table, workers) || !attn_routing_check_params_(e, a, call)) return 0;
  if ((routes && !attn_check_set_(e, &a->centroids, w[MU])) ||
      (attends && !attn_check_set_(e, &a->v, w[V])))
    return 0;
  a->sides = p->shared ? 1 : 2;
  const int64_t b = q->x.batch, h = q->x.heads, tq = q->x.len, dk = q->x.dim;
  const int64_t tk = p->shared ? tq : attends ? a->v.len : k->x.len;
  const int64_t c = routes ? a->centroids.len : q->m.clusters;
  const int is_list = (select ? ATTN_OUT_ : 0) | ATTN_IS_F32_;
  attn_tensor none, counts = attn_bhtd(a->u.counts, ATTN_F32, 1, h, c, 1), list[4];
  memset(&none, 0, sizeof none);
  for (int i = 0; i < 2; i++) { /* of 4 bytes as well */
    const attn_members *m = &a->side[i].m;
    if (listed && i < a->sides && (m->entries < 0 || m->clusters != c))
      return attn_reject_(e, ATTN_E_SHAPE,
                          "queries and keys must have .clusters alike, as many as centroids, and "
                          ".entries not negative");
    list[2 * i] = attn_bhtd(m->index, ATTN_F32, b, h, m->entries, 1);
    list[2 * i + 1] = attn_bhtd(m->indptr, ATTN_F32, b, h, attn_add_(m->clusters, 1), 1);
  }
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_AS_(&q->x, w[Q], 0, any, any, any, any, ""),
      ATTN_OPERAND_AS_(&k->x, w[K], 0, b, ATTN_DIVIDES_, tk, dk,
                       "k must be [B, Hk, Tk, dk]: Hk divides H, dk is that of q, Tk that of v"),
      ATTN_OPERAND_AS_(&a->v, w[V], 0, b, ATTN_DIVIDES_, tk, any,
                       "v must be [B, Hv, Tk, dv]: Hv divides H, and Tk = Tq if shared"),
      ATTN_OPERAND_AS_(&a->centroids, w[MU], ATTN_IS_F32_, 1, h, any, dk,
                       "centroids must be f32 [1, H, C, dk]"),
      ATTN_OPERAND_AS_(&a->o, w[O], ATTN_OUT_, b, h, tq, a->v.dim, "o must be [B, H, Tq, dv]"),
      ATTN_OPERAND_AS_(&p->lse, w[LSE], ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b, h, tq, 1,
                       "params.lse must be f32 [B, H, Tq, 1]"),
      ATTN_OPERAND_AS_(&a->next, w[NEXT], ATTN_OUT_ | ATTN_IS_F32_, 1, h, c, dk,
                       "next must be f32 [1, H, C, dk]"),
      ATTN_OPERAND_AS_(&counts, w[COUNTS], ATTN_OUT_ | ATTN_IS_F32_, any, any, any, any, ""),
      ATTN_OPERAND_AS_(&a->u.sums, w[SUMS], ATTN_OUT_ | ATTN_IS_F32_, 1, h, c, dk,
                       "params.sums must be f32 [1, H, C, dk]"),
      ATTN_OPERAND_AS_(&list[0], w[QI], is_list, any, any, any, any, ""),
      ATTN_OPERAND_AS_(&list[1], w[QS], is_list, any, any, any, any, ""),
      ATTN_OPERAND_AS_(&list[2], w[KI], is_list, any, any, any, any, ""),
      ATTN_OPERAND_AS_(&list[3], w[KS], is_list, any, any, any, any, ""),
      ATTN_OPERAND_AS_(&p->mem_k, w[MK], 0, 1, h, any, dk, "params.mem_k must be [1, H, C n, dk]"),
      ATTN_OPERAND_AS_(&p->mem_v, w[MV], 0, 1, h, p->mem_k.len, a->v.dim,
                       "params.mem_v must be [1, H, C n, dv]")};
  const int keys = !p->shared, learned = attends && (p->mem_k.data || p->mem_v.data);
  const int used[COUNT] = {1,       keys,           attends,        routes,  attends,
                           attends, update,         running,        running, listed,
                           listed,  listed && keys, listed && keys, learned, learned};
  for (int i = 0; i < COUNT; i++) {
    if (!used[i]) {
      op[i].t = &none, op[i].role = ATTN_OPTIONAL_; /* says nothing */
      continue;
    }
    if (!attn_check_operand_(e, &op[i], h)) return 0;
    if (i == Q && h < 1) {
      if (b > 0) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
    }
  }
  if (c < 1) return attn_reject_(e, ATTN_E_SHAPE, "there must be at least 1 cluster");
  if (learned && p->mem_k.len % c)
    return attn_reject_(e, ATTN_E_SHAPE,
                        "params.mem_k.len must be a multiple of the number of clusters");
  a->learned = learned ? p->mem_k.len : 0;
  if (c >= INT32_MAX || tq > INT32_MAX || attn_add_(tk, a->learned) > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW,
                        "clusters and lengths, with those of params.mem_k, must be below 2^31");
  for (int i = 0; i < a->sides; i++) {
    attn_routed_ *s = &a->side[i];
    const int64_t n = s->x.len, given = i ? p->wk : p->w;
    s->len = i ? p->kv_len : p->q_len;
    s->w = given ? given : n / c + (n % c != 0);
    if (s->w > n) s->w = n;
    const int64_t most = attn_routing_entries(n, c, given, p->membership);
    if (select && s->m.entries < most)
      return attn_reject_(e, ATTN_E_SHAPE,
                          "queries.entries and keys.entries must be at least "
                          "attn_routing_entries");
    if ((update ? 0 : listed ? s->m.entries : most) > INT32_MAX)
      return attn_reject_(e, ATTN_E_OVERFLOW, "entries must be below 2^31");
    if (!listed) s->m.entries = most, s->m.clusters = c;
  }
  if (update && attn_same_view_(&a->next, &a->centroids))
    op[MU].span.lo = op[MU].span.hi = 0; /* in place: next speaks for both */
  if (!attn_check_array_(e, p->q_len, b, 4, "params.q_len must be aligned to its elements",
                         &more[0]) ||
      !attn_check_array_(e, p->kv_len, b, 4, "params.kv_len must be aligned to its elements",
                         &more[1]) ||
      !attn_check_apart_(e, ctx, op, COUNT, more, 2))
    return 0;
  if (!data) return 1;
  if (!attn_check_lens_(e, p->q_len, b, tq, "params.q_len must lie in 0..q.len") ||
      !attn_check_lens_(e, p->kv_len, b, tk, "params.kv_len must lie in 0..k.len"))
    return 0;
  if (call == ATTN_RT_ATTEND_)
    for (int i = 0; i < a->sides; i++)
      if (!attn_routing_check_members_(e, &a->side[i], b, h)) return 0;
  return 1;
}

/* ---- normalised rows ------------------------------------------------------------------------*/

/* Up to 64 rows of n: each step for all of them, since one row's steps wait for each other. */
ATTN_FUNC_ void attn_routing_norm_(const attn_table_ *f, float *x, int64_t n, int rows,
                                   attn_routing_norm norm) {
  static const attn_norm layer = {NULL, NULL, 1e-6f, ATTN_NORM_LAYER, 0};
  float t[2], shift[ATTN_TILE_], by[ATTN_TILE_], plus[ATTN_TILE_];
  double scale[ATTN_TILE_];
  const double d = (double)n;
  const int centred = norm == ATTN_ROUTING_LAYERNORM;
  if (norm == ATTN_ROUTING_NONE) return;
  for (int r = 0; r < rows; r++) {
    shift[r] = 0.0f;
    if (!centred) continue;
    attn_on_(norm, f)->moments(t, x + r * n, n, 0.0f);
    shift[r] = (float)((double)t[0] / d);
  }
  for (int r = 0; r < rows; r++) {
    attn_on_(norm, f)->moments(t, x + r * n, n, shift[r]);
    const int safe = t[1] < 1e30f && t[1] > 1e-18f; /* else squares are not what floats can hold */
    const double off = (double)t[0] / d, square = (double)t[1];
    if (centred) {
      scale[r] = 1.0 / sqrt(square / d - off * off + 1e-6);
    } else {
      const double size = sqrt(safe ? square : attn_row_sum_(x + r * n, n, 0.0, 1));
      scale[r] = 1.0 / (size > 1e-12 ? size : 1e-12);
    }
    by[r] = safe ? (float)scale[r] : 0.0f; /* 0: that row by itself */
    plus[r] = centred ? (float)(-off * scale[r]) : 0.0f;
  }
  for (int r = 0; r < rows; r++) {
    float *row = x + r * n;
    if (by[r] > 0.0f)
      attn_on_(norm, f)->normalise(row, n, shift[r], by[r], plus[r], NULL, NULL);
    else if (centred)
      attn_row_norm_(f, row, n, &layer);
    else
      for (int64_t c = 0; c < n; c++) row[c] = (float)((double)row[c] * scale[r]);
  }
}

/* y = norm(x), 64 rows, of those below len; several heads of y may have one of x. */
typedef struct attn_routing_rows_ {
  const attn_table_ *table;
  attn_tensor y, x;
  attn_routing_norm norm;
  const int32_t *len;
} attn_routing_rows_;

ATTN_FUNC_ void attn_routing_rows_item_(void *job, int worker, int64_t index) {
  const attn_routing_rows_ *a = (const attn_routing_rows_ *)job;
  const attn_tensor *x = &a->x;
  const int64_t tiles = attn_tiles_of_(x->len), unit = index / tiles,
                i0 = index % tiles * ATTN_TILE_;
  const int64_t heads = a->y.heads, b = unit / heads, h = unit % heads;
  const int64_t left = attn_len_of_(a->len, b, x->len) - i0;
  const int64_t n = left < ATTN_TILE_ ? left : (int64_t)ATTN_TILE_;
  float *y = (float *)(void *)attn_at_(&a->y, b, h, i0);
  (void)worker;
  if (n <= 0) return;
  a->table->widen(y, attn_at_(x, b, h / (heads / x->heads), i0), x->stride_len, NULL, n, x->dim,
                  x->dtype, NULL);
  attn_routing_norm_(a->table, y, x->dim, (int)n, a->norm);
}

ATTN_COLD_ int attn_routing_rows_of_(attn_stage_ *s, attn_tensor y, attn_tensor x,
                                     attn_routing_norm norm, const int32_t *len) {
  attn_routing_rows_ rows = {s->table, y, x, norm, len};
  return attn_stage_for_(s, attn_mul_(attn_mul_(y.batch, y.heads), attn_tiles_of_(x.len)),
                         attn_routing_rows_item_, &rows, 0, NULL);
}

/* The rows that are routed and scored: f32, or the caller's own without a norm. */
ATTN_COLD_ int attn_routing_normalise_(attn_stage_ *s, attn_routing_job_ *a) {
  for (int i = 0; i < a->sides && a->p.norm != ATTN_ROUTING_NONE; i++) {
    attn_tensor *x = &a->side[i].x;
    const attn_tensor y = attn_stage_tensor_(s, x->batch, x->heads, x->len, x->dim);
    if (!attn_routing_rows_of_(s, y, *x, a->p.norm, a->side[i].len)) return 0;
    *x = y;
  }
  return 1;
}

/* ---- membership -----------------------------------------------------------------------------*/

enum { ATTN_RT_THIN_ = 32, ATTN_RT_MANY_ = 2048 };

/* The best k rows of each centroid go to the lists of t. Of many rows every 32nd is looked at first: a score
 * that comes four deviations behind the best k / 32 of those has more than k before it, so that few others
 * are ever candidates. Where that went wrong, all are. */
ATTN_FUNC_ void attn_routing_search_(attn_topk_ *t, const attn_tensor *x, int64_t b, int64_t h,
                                     int64_t len) {
  const char *rows = attn_at_(x, b, h, 0);
  const int64_t k = t->k, some = len / ATTN_RT_THIN_;
  const double mean = (double)k / (double)ATTN_RT_THIN_;
  const int64_t rank = (int64_t)(mean + 4.0 * sqrt(mean) + 4.0);
  float floor[ATTN_TILE_];
  int again = 0;
  for (int r = 0; r < ATTN_TILE_; r++) floor[r] = -INFINITY;
  if (len >= ATTN_RT_MANY_ && rank < k && 2 * rank < some) {
    t->k = rank;
    attn_topk_scan_(t, rows, x->stride_len * ATTN_RT_THIN_, x->dtype, some, 0);
    for (int r = 0; r < t->n; r++) {
      attn_topk_keep_(t, r);
      floor[r] = attn_candidate_score_(t->list[r * t->room + rank - 1]);
      if (floor[r] - floor[r] != 0.0f) floor[r] = -INFINITY;
    }
    t->k = k;
  }
  do {
    for (int r = 0; r < ATTN_TILE_; r++)
      t->count[r] = t->settled[r] = 0, t->floor[r] = again ? -INFINITY : floor[r];
    attn_topk_scan_(t, rows, x->stride_len, x->dtype, len, 0);
    const int first = !again;
    again = 0;
    for (int r = 0; r < t->n; r++) {
      attn_topk_keep_(t, r);
      const float worst =
          t->count[r] < k ? 0.0f : attn_candidate_score_(t->list[r * t->room + k - 1]);
      if (first && floor[r] > -INFINITY && (t->count[r] < k || worst != worst)) again = 1;
    }
  } while (again);
}

/* The w best rows of up to 64 centroids. */
ATTN_FUNC_ void attn_routing_top_item_(void *job, int worker, int64_t index) {
  const attn_routing_job_ *a = (const attn_routing_job_ *)job;
  const int64_t clusters = a->centroids.len, heads = a->centroids.heads;
  const attn_routed_ *s = &a->side[index % a->sides];
  const int64_t unit = index / a->sides / a->tiles, c0 = index / a->sides % a->tiles * ATTN_TILE_;
  const int64_t b = unit / heads, h = unit % heads, hx = h / (heads / s->x.heads);
  const int64_t len = attn_len_of_(s->len, b, s->x.len), w = s->w < len ? s->w : len;
  const int n = clusters - c0 < ATTN_TILE_ ? (int)(clusters - c0) : (int)ATTN_TILE_;
  char *memory = a->memory + worker * a->each;
  int32_t *start = s->m.indptr + unit * (clusters + 1), *to = attn_routed_members_(s, unit, 0);
  const void *rows[ATTN_TILE_];
  attn_topk_ t = s->search;
  attn_marks_ set;
  attn_marks_cut_(&set, (uint64_t *)(void *)(memory + t.bytes), len);
  memset(set.bits, 0, (size_t)attn_marks_words_(len) * sizeof *set.bits);
  for (int r = 0; r < n; r++) {
    rows[r] = attn_at_(&a->centroids, 0, h, c0 + r);
    start[c0 + r] = (int32_t)((c0 + r) * w);
  }
  if (c0 + n == clusters) start[clusters] = (int32_t)(clusters * w);
  if (w == 0) return;
  if (w < len) {
    attn_topk_open_(&t, memory, rows, n, ATTN_F32, 1.0f);
    attn_routing_search_(&t, &s->x, b, hx, len);
  }
  to += c0 * w;
  for (int r = 0; r < n; r++) {
    if (w == len) {
      for (int64_t i = 0; i < len; i++) *to++ = (int32_t)i;
      continue;
    }
    const uint64_t *list = t.list + r * t.room;
    for (int64_t i = 0; i < w; i++) attn_mark_(&set, attn_candidate_index_(list[i]));
    int64_t from = 0;
    for (uint64_t bits; (bits = attn_unmark_(&set, &from, len)) != 0;)
      for (; bits; bits &= bits - 1) *to++ = (int32_t)(from + attn_lowest_(bits));
  }
}

/* 64 rows find their clusters: of a block of centroids the largest score first, then where it is. */
ATTN_FUNC_ void attn_routing_nearest_(const attn_routing_job_ *a, const attn_routed_ *s,
                                      char *memory, int64_t unit, int64_t i0) {
  const attn_table_ *f = a->table;
  const attn_tensor *mu = &a->centroids;
  const int64_t heads = mu->heads, b = unit / heads, h = unit % heads, dk = s->x.dim;
  const int64_t len = attn_len_of_(s->len, b, s->x.len);
  const int64_t all = s->x.len - i0 < ATTN_TILE_ ? s->x.len - i0 : (int64_t)ATTN_TILE_;
  const int n = len - i0 >= all ? (int)all : len > i0 ? (int)(len - i0) : 0;
  const int groups = (n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  int32_t *to = s->of + unit * s->x.len + i0;
  float *qt = (float *)(void *)memory, *score = qt + dk * ATTN_TILE_;
  float best[ATTN_TILE_], top[ATTN_TILE_];
  uint64_t lanes[ATTN_BLOCK_];
  const void *rows[ATTN_TILE_];
  for (int r = 0; r < all; r++) to[r] = r < n ? 0 : -1;
  if (n == 0) return;
  for (int r = 0; r < n; r++) rows[r] = attn_at_(&s->x, b, h / (heads / s->x.heads), i0 + r);
  f->pack(qt, rows, n, dk, (int)s->x.dtype, 1.0f, attn_least_(1.0f));
  for (int64_t c = 0; c < mu->len; c += ATTN_BLOCK_) {
    const int64_t m = mu->len - c < ATTN_BLOCK_ ? mu->len - c : (int64_t)ATTN_BLOCK_;
    uint64_t left = 0;
    for (int r = 0; r < ATTN_TILE_; r++) top[r] = -INFINITY;
    attn_on_(tile, f)->score_block(score, qt, (const float *)(const void *)attn_at_(mu, 0, h, c),
                                   mu->stride_len, m, dk, 0, groups, top);
    for (int r = 0; r < n; r++)
      if (c == 0 || top[r] > best[r]) best[r] = top[r], left |= attn_bit_(r);
    attn_on_(select, f)->above(lanes, score, NULL, m, 0, groups, top);
    for (int64_t j = 0; j < m && left; left &= ~lanes[j++])
      for (uint64_t here = lanes[j] & left; here; here &= here - 1)
        to[attn_lowest_(here)] = (int32_t)(c + j);
  }
}
ATTN_FUNC_ void attn_routing_nearest_item_(void *job, int worker, int64_t index) {
  const attn_routing_job_ *a = (const attn_routing_job_ *)job;
  int64_t units = a->side[0].x.batch * a->side[0].x.heads;
  const int64_t first = units * attn_tiles_of_(a->side[0].x.len);
  const attn_routed_ *s = &a->side[index >= first];
  if (index >= first) index -= first;
  const int64_t tiles = attn_tiles_of_(s->x.len);
  attn_routing_nearest_(a, s, a->memory + worker * a->each, index / tiles,
                        index % tiles * ATTN_TILE_);
}

/* Rows in the order of their clusters. */
ATTN_FUNC_ void attn_routing_sort_item_(void *job, int worker, int64_t index) {
  const attn_routing_job_ *a = (const attn_routing_job_ *)job;
  const attn_routed_ *s = &a->side[index % a->sides];
  const int64_t unit = index / a->sides, n = s->x.len, clusters = s->m.clusters;
  const int32_t *of = s->of + unit * n;
  int32_t *start = s->m.indptr + unit * (clusters + 1), *to = attn_routed_members_(s, unit, 0);
  (void)worker;
  for (int64_t c = 0; c <= clusters; c++) start[c] = 0;
  for (int64_t i = 0; i < n; i++)
    if (of[i] >= 0) start[of[i] + 1]++;
  for (int64_t c = 0; c < clusters; c++) start[c + 1] += start[c];
  for (int64_t i = 0; i < n; i++)
    if (of[i] >= 0) to[start[of[i]]++] = (int32_t)i;
  for (int64_t c = clusters; c > 0; c--) start[c] = start[c - 1]; /* where each ended */
  start[0] = 0;
}

/* Every row's nearest centroid, in side[].of. */
ATTN_COLD_ int attn_routing_assign_(attn_stage_ *s, attn_routing_job_ *a) {
  const int64_t units = attn_mul_(a->side[0].x.batch, a->side[0].x.heads);
  int64_t items = 0;
  a->each = 0;
  for (int i = 0; i < a->sides; i++) {
    attn_routed_ *x = &a->side[i];
    x->of = (int32_t *)attn_stage_take_(s, attn_mul_(units, x->x.len), 4);
    a->each = attn_piece_(attn_mul_(attn_add_(x->x.dim, ATTN_BLOCK_), ATTN_TILE_), 4);
    items = attn_add_(items, attn_mul_(units, attn_tiles_of_(x->x.len)));
  }
  return attn_stage_for_(s, items, attn_routing_nearest_item_, a, a->each, &a->memory);
}

/* The members of all clusters; rows are normalised. */
ATTN_COLD_ int attn_routing_members_(attn_stage_ *s, attn_routing_job_ *a) {
  const int64_t units = attn_mul_(a->side[0].x.batch, a->side[0].x.heads);
  if (a->p.membership == ATTN_ROUTING_ARGMAX)
    return attn_routing_assign_(s, a) &&
           attn_stage_for_(s, attn_mul_(units, a->sides), attn_routing_sort_item_, a, 0, NULL);
  a->tiles = attn_tiles_of_(a->centroids.len);
  a->each = 0;
  for (int i = 0; i < a->sides; i++) {
    attn_routed_ *x = &a->side[i];
    attn_topk_plan_(&x->search, s->table, x->x.dim, x->w > 0 ? x->w : 1, x->x.dtype, 0);
    const int64_t bytes = attn_add_(x->search.bytes, attn_piece_(attn_marks_words_(x->x.len), 8));
    if (bytes > a->each) a->each = bytes;
  }
  return attn_stage_for_(s, attn_mul_(attn_mul_(units, a->tiles), a->sides), attn_routing_top_item_,
                         a, a->each, &a->memory);
}

/* ---- the call -------------------------------------------------------------------------------*/

ATTN_COLD_ int attn_routing_select_steps_(attn_stage_ *s, void *job) {
  attn_routing_job_ a = *(const attn_routing_job_ *)job;
  a.table = s->table;
  return attn_routing_normalise_(s, &a) && attn_routing_members_(s, &a);
}

/* A call, or with bytes its workspace query. */
ATTN_COLD_ attn_status attn_routing_job_call_(attn_routing_job_ *a, int call,
                                              const attn_routing_params *params,
                                              attn_steps_fn_ steps, const char *path, attn_ctx *ctx,
                                              size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (params) a->p = *params;
  if (attn_routing_check_(&e, a, call, ctx, &table, &workers, bytes == NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    const attn_tensor *q = &a->side[0].x;
    if (q->heads > 0 && (q->batch > 0 || call == ATTN_RT_UPDATE_))
      attn_stage_call_(&s, ctx, steps, a, path, bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no batch entries");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_routing_job_ attn_routing_job_of_(attn_tensor q, attn_tensor k) {
  attn_routing_job_ a;
  memset(&a, 0, sizeof a);
  a.side[0].x = q, a.side[1].x = k;
  return a;
}

ATTN_COLD_ attn_status attn_routing_select_call_(attn_members queries, attn_members keys,
                                                 attn_tensor q, attn_tensor k,
                                                 attn_tensor centroids,
                                                 const attn_routing_params *params, attn_ctx *ctx,
                                                 size_t *bytes) {
  attn_routing_job_ a = attn_routing_job_of_(q, k);
  a.side[0].m = queries, a.side[1].m = keys, a.centroids = centroids;
  return attn_routing_job_call_(&a, ATTN_RT_SELECT_, params, attn_routing_select_steps_,
                                "members of clusters", ctx, bytes);
}
ATTN_CALL_(attn_routing_select, (queries, keys, q, k, centroids, params), attn_members queries,
           attn_members keys, attn_tensor q, attn_tensor k, attn_tensor centroids,
           const attn_routing_params *params)
