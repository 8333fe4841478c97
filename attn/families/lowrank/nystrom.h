/* families/lowrank/nystrom.h owns attention through landmarks: Nystromformer and CSALR. They differ in what
 * is done with the small map between landmarks. */

typedef struct attn_landmark_job_ {
  attn_tensor o, q, k, v, conv;
  const int32_t *kv_len, *q_len;
  const uint8_t *valid; /* [B][Tk], Tq = Tk */
  int64_t landmarks, iterations;
  float scale, lambda;
  int csalr, always, renormalize, by_batch;
} attn_landmark_job_;

/* Every rule; the lengths are read for the workspace query as well. */
ATTN_COLD_ int attn_landmark_check_(attn_error_ *e, attn_landmark_job_ *j, const attn_ctx *ctx,
                                    const attn_table_ **table, int *workers) {
  enum { Q, K, V, O, CONV, COUNT };
  attn_span_ more[3];
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  const int64_t b = j->q.batch, h = j->q.heads, tq = j->q.len, tk = j->k.len;
  const int64_t any = ATTN_ANY_, in = ATTN_DIVIDES_;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&j->q, "q", 0, any, any, any, any, NULL),
      ATTN_OPERAND_(&j->k, "k", 0, b, in, any, j->q.dim,
                    "k must be [q.batch, a divisor of q.heads, Tk, q.dim]"),
      ATTN_OPERAND_(&j->v, "v", 0, b, in, tk, any,
                    "v must be [q.batch, a divisor of q.heads, k.len, dv]"),
      ATTN_OPERAND_(&j->o, "o", ATTN_OUT_, b, h, tq, j->v.dim,
                    "o must be [q.batch, q.heads, q.len, v.dim]"),
      ATTN_OPERAND_(&j->conv, "params.conv", ATTN_OPTIONAL_, 1, ATTN_ONE_OR_ALL_, any, 1,
                    "params.conv must be [1, 1 or q.heads, kernel, 1]")};
  for (int i = 0; i < COUNT; i++) {
    if (!attn_check_operand_(e, &op[i], h)) return 0;
    if (h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
  }
  if (tq > INT32_MAX || tk > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "q.len and k.len must be below 2^31");
  if (j->landmarks < 0)
    return attn_reject_(e, ATTN_E_RANGE, "params.landmarks must not be negative");
  if (j->landmarks == 0) j->landmarks = 64;
  if (j->iterations < 0)
    return attn_reject_(e, ATTN_E_RANGE, "params.iterations must not be negative");
  if (j->lambda == 0.0f && !attn_to_bits_(j->lambda)) j->lambda = 1.0f;
  if (!(j->lambda >= 0.0f && j->lambda < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.lambda must be finite and not negative");
  if (j->conv.data && j->conv.len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "params.conv.len must be below 2^31");
  if (j->conv.data && j->conv.len % 2 == 0)
    return attn_reject_(e, ATTN_E_SHAPE, "params.conv must have an odd number of rows");
  if (j->valid && tq != tk)
    return attn_reject_(e, ATTN_E_SHAPE, "params.valid needs q.len = k.len");
  if (!attn_check_scale_(e, j->scale) ||
      !attn_check_array_(e, j->kv_len, b, 4, "params.kv_len must be aligned to its elements",
                         &more[0]) ||
      !attn_check_array_(e, j->q_len, b, 4, "params.q_len must be aligned to its elements",
                         &more[1]) ||
      !attn_check_array_(e, j->valid, attn_mul_(b, tk), 1, "", &more[2]) ||
      !attn_check_apart_(e, ctx, op, COUNT, more, 3) ||
      !attn_check_lens_(e, j->kv_len, b, tk, "params.kv_len must lie in 0..k.len") ||
      !attn_check_lens_(e, j->q_len, b, tq, "params.q_len must lie in 0..q.len"))
    return 0;
  if (j->conv.data)
    for (int64_t i = 0; i < b; i++)
      if ((j->q_len ? j->q_len[i] : tq) != (j->kv_len ? j->kv_len[i] : tk))
        return attn_reject_(e, ATTN_E_SHAPE, "params.conv needs as many queries as keys");
  return 1;
}

/* ---- the steps ------------------------------------------------------------------------------*/

/* What stays from the first half of the work to the second, of the whole batch; and what does not. */
typedef struct attn_landmark_room_ {
  attn_tensor kt, x;          /* [B,Hk,m,dk] mean keys, [B,H,m,dv] their values */
  attn_tensor qt, a, bv, sum; /* [B,H,m,dk], [B,H,m,m], [B,H,m,dv], [B,H,m,1] */
  attn_tensor wide;           /* [B,H,Tq,dv] f32: o, or its place until it is rounded */
  attn_tensor v;              /* for conv; with valid a copy that is 0 where tokens do not exist */
  uint8_t *marks,
      *map; /* with valid: [B][m] segments of keys that have tokens, [B][m][m] and of queries */
} attn_landmark_room_;

/* Neighbouring batch entries of the same lengths; exact: without landmarks. */
typedef struct attn_landmark_run_ {
  int64_t first, count, queries, keys, landmarks;
  int exact;
} attn_landmark_run_;

ATTN_COLD_ attn_landmark_run_ attn_landmark_run_of_(const attn_landmark_job_ *j, int64_t first) {
  attn_landmark_run_ r = {first, 1, j->q.len, j->k.len, j->landmarks, 0};
  if (j->q_len) r.queries = j->q_len[first];
  if (j->kv_len) r.keys = j->kv_len[first];
  while (first + r.count < j->q.batch && (!j->q_len || j->q_len[first + r.count] == r.queries) &&
         (!j->kv_len || j->kv_len[first + r.count] == r.keys))
    r.count++;
  const int64_t most = r.queries < r.keys ? r.keys : r.queries;
  const int64_t least = r.queries < r.keys ? r.queries : r.keys;
  r.exact = least == 0 || (!j->always && j->landmarks >= most);
  if (r.landmarks > least) r.landmarks = least;
  return r;
}

/* The entries of a run, and rows i0 .. i0 + len - 1 of them. */
ATTN_COLD_ attn_tensor attn_landmark_view_(attn_tensor t, const attn_landmark_run_ *r, int64_t i0,
                                           int64_t len) {
  if (r->first > 0) t = attn_stage_shift_(t, r->first * t.stride_batch);
  t.batch = r->count;
  return attn_stage_rows_(t, i0, len);
}

/* A mask of some bytes an entry, those of the run's, for `rows` rows or for all alike (1). */
ATTN_COLD_ attn_mask attn_landmark_mask_(const uint8_t *of, const attn_landmark_run_ *r,
                                         int64_t stride, int64_t rows, int64_t keys) {
  attn_mask m = attn_mask_bool(of + r->first * stride, r->count, 1, rows, keys);
  m.stride_batch = stride;
  return m;
}

/* seen[a] = whether segment a of n rows has a token. */
ATTN_COLD_ void attn_landmark_seen_(uint8_t *seen, const uint8_t *valid, int64_t n, int64_t m) {
  for (int64_t a = 0; a < m; a++) {
    seen[a] = 0;
    for (int64_t i = a * n / m; i < (a + 1) * n / m; i++) seen[a] |= valid[i] != 0;
  }
}

/* Which landmarks there are, entry by entry. */
ATTN_COLD_ void attn_landmark_mark_(const attn_landmark_job_ *j, const attn_landmark_room_ *w,
                                    const attn_landmark_run_ *r) {
  const int64_t m = r->landmarks, most = w->kt.len;
  for (int64_t b = r->first; b < r->first + r->count; b++) {
    const uint8_t *valid = j->valid + b * j->k.len;
    uint8_t *keys = w->marks + b * most, *map = w->map + b * most * most;
    attn_landmark_seen_(keys, valid, r->queries, m); /* of queries, until they are in the map */
    for (int64_t a = 0; a < m; a++) memset(map + a * m, keys[a], (size_t)m);
    attn_landmark_seen_(keys, valid, r->keys, m);
    for (int64_t a = 0; a < m * m; a++) map[a] &= keys[a % m];
  }
}

/* Means of segments, over the tokens that exist. */
ATTN_COLD_ int attn_landmark_means_(attn_stage_ *s, const attn_landmark_job_ *j, attn_tensor y,
                                    attn_tensor x, const attn_landmark_run_ *r) {
  attn_pooled_ a;
  memset(&a, 0, sizeof a);
  a.y = y, a.x = x;
  if (j->valid) a.valid = j->valid + r->first * j->k.len, a.valid_stride = j->k.len;
  return attn_stage_pooled_(s, a);
}

/* y = x where tokens exist, else 0; without x the others stay as they are. One row. */
typedef struct attn_landmark_rows_ {
  const attn_table_ *table;
  attn_tensor y, x;
  const uint8_t *valid;
} attn_landmark_rows_;

ATTN_FUNC_ void attn_landmark_rows_item_(void *job, int worker, int64_t index) {
  const attn_landmark_rows_ *a = (const attn_landmark_rows_ *)job;
  const int64_t i0 = index % attn_tiles_of_(a->y.len) * ATTN_TILE_;
  const int64_t unit = index / attn_tiles_of_(a->y.len), h = unit % a->y.heads;
  const int64_t b = unit / a->y.heads;
  (void)worker;
  for (int64_t i = i0; i < a->y.len && i < i0 + ATTN_TILE_; i++) {
    const int keep = a->valid[b * a->y.len + i] != 0;
    if (keep && !a->x.data) continue;
    a->table->blend(attn_at_(&a->y, b, h, i), keep ? attn_at_(&a->x, b, h, i) : NULL, NULL,
                    a->y.dtype, keep ? a->x.dtype : ATTN_F32, ATTN_F32, a->y.dim, 1.0f, 0.0f);
  }
}

ATTN_COLD_ int attn_landmark_rows_of_(attn_stage_ *s, const attn_landmark_job_ *j, attn_tensor y,
                                      attn_tensor x) {
  attn_landmark_rows_ a = {s->table, y, x, j->valid};
  return attn_stage_for_(s, attn_mul_(attn_mul_(y.batch, y.heads), attn_tiles_of_(y.len)),
                         attn_landmark_rows_item_, &a, 0, NULL);
}

/* Landmarks, the map A between them, and B v. */
ATTN_COLD_ int attn_landmark_maps_(attn_stage_ *s, const attn_landmark_job_ *j,
                                   const attn_landmark_room_ *w, const attn_landmark_run_ *r) {
  const int64_t m = r->landmarks;
  const attn_tensor q = attn_landmark_view_(j->q, r, 0, r->queries);
  const attn_tensor k = attn_landmark_view_(j->k, r, 0, r->keys);
  const attn_tensor v = attn_landmark_view_(j->v, r, 0, r->keys);
  const attn_tensor qt = attn_landmark_view_(w->qt, r, 0, m);
  const attn_tensor kt = attn_landmark_view_(w->kt, r, 0, m);
  const attn_tensor bv = attn_landmark_view_(w->bv, r, 0, m);
  attn_tensor column = kt; /* values of no use beside the map */
  attn_sdpa_params plain, map;
  memset(&plain, 0, sizeof plain);
  plain.scale = j->scale, map = plain;
  map.map = attn_landmark_view_(w->a, r, 0, m), map.map.dim = m, column.dim = 1;
  if (j->valid) {
    if (s->run) attn_landmark_mark_(j, w, r);
    map.mask = attn_landmark_mask_(w->map, r, w->kt.len * w->kt.len, m, m);
    plain.mask = attn_landmark_mask_(j->valid, r, j->k.len, 1, r->keys);
  }
  return attn_landmark_means_(s, j, qt, q, r) && attn_landmark_means_(s, j, kt, k, r) &&
         attn_stage_sdpa_(s, attn_landmark_view_(w->sum, r, 0, m), qt, kt, column, &map) &&
         attn_stage_sdpa_(s, bv, qt, k, v, &plain);
}

/* x = Z (B v) or (A + lambda I)^-1 (B v); sums as in attn_stage_pinv_. */
ATTN_COLD_ int attn_landmark_small_(attn_stage_ *s, const attn_landmark_job_ *j,
                                    const attn_landmark_room_ *w, const attn_landmark_run_ *r,
                                    double *sums) {
  const int64_t m = r->landmarks;
  const attn_tensor x = attn_landmark_view_(w->x, r, 0, m);
  const attn_tensor bv = attn_landmark_view_(w->bv, r, 0, m);
  attn_tensor a = attn_landmark_view_(w->a, r, 0, m);
  a.dim = m;
  if (!j->csalr)
    return attn_stage_pinv_(s, a, a, j->iterations, sums) && attn_stage_gemm_(s, x, a, bv, NULL);
  const attn_share_ all = {x, j->renormalize ? 1.0f + j->lambda : 1.0f, NULL},
                    none = {x, 0.0f, NULL};
  return attn_stage_solve_(s, x, a, bv, (double)j->lambda) &&
         (!j->renormalize || attn_stage_weigh_(s, x, all, none));
}

/* wide[b,h] += conv[h] along v; the heads of a group read one head of v. */
ATTN_COLD_ int attn_landmark_conv_(attn_stage_ *s, attn_tensor wide, attn_tensor v,
                                   attn_tensor conv) {
  const int64_t group = wide.heads / v.heads;
  attn_convolve_params p;
  memset(&p, 0, sizeof p);
  p.accumulate = 1, p.pad = ATTN_PAD_SAME;
  for (int64_t h = 0; h < v.heads; h++) {
    attn_tensor one = attn_stage_heads_(v, h, 1);
    one.heads = group, one.stride_head = 0;
    if (group == 1) return attn_stage_depthwise_(s, wide, v, conv, &p);
    if (!attn_stage_depthwise_(s, attn_stage_heads_(wide, h * group, group), one,
                               conv.heads > 1 ? attn_stage_heads_(conv, h * group, group) : conv,
                               &p))
      return 0;
  }
  return 1;
}

/* o, all rows of it. */
ATTN_COLD_ int attn_landmark_large_(attn_stage_ *s, const attn_landmark_job_ *j,
                                    const attn_landmark_room_ *w, const attn_landmark_run_ *r) {
  const int64_t n = r->queries, m = r->exact ? r->keys : r->landmarks, rest = j->q.len - n;
  const attn_tensor q = attn_landmark_view_(j->q, r, 0, n), o = attn_landmark_view_(j->o, r, 0, n);
  const attn_tensor wide = attn_landmark_view_(w->wide, r, 0, n);
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.scale = j->scale;
  if (j->valid)
    p.mask = r->exact ? attn_landmark_mask_(j->valid, r, j->k.len, 1, m)
                      : attn_landmark_mask_(w->marks, r, w->kt.len, 1, m);
  if (!attn_stage_sdpa_(s, wide, q, attn_landmark_view_(r->exact ? j->k : w->kt, r, 0, m),
                        attn_landmark_view_(r->exact ? j->v : w->x, r, 0, m), &p))
    return 0;
  if (j->conv.data &&
      !attn_landmark_conv_(s, wide, attn_landmark_view_(w->v, r, 0, r->keys), j->conv))
    return 0;
  if (j->conv.data && j->o.dtype != ATTN_F32) {
    const attn_share_ all = {wide, 1.0f, NULL}, none = {wide, 0.0f, NULL};
    if (!attn_stage_weigh_(s, o, all, none)) return 0;
  }
  p.mask.kind = ATTN_MASK_NONE; /* rows that see no key are zeros */
  return rest == 0 ||
         attn_stage_sdpa_(s, attn_landmark_view_(j->o, r, n, rest),
                          attn_landmark_view_(j->q, r, n, rest), attn_landmark_view_(j->k, r, 0, 0),
                          attn_landmark_view_(j->v, r, 0, 0), &p);
}

/* All that can fail comes before the first row of o. */
ATTN_COLD_ int attn_landmark_steps_(attn_stage_ *s, void *job) {
  const attn_landmark_job_ *j = (const attn_landmark_job_ *)job;
  const int64_t b = j->q.batch, h = j->q.heads, dv = j->v.dim;
  attn_landmark_room_ w;
  attn_landmark_run_ r;
  int64_t m = 0;
  for (int64_t i = 0; i < b; i += r.count) {
    r = attn_landmark_run_of_(j, i);
    if (!r.exact && r.landmarks > m) m = r.landmarks;
  }
  w.kt = attn_stage_tensor_(s, b, j->k.heads, m, j->k.dim);
  w.x = attn_stage_tensor_(s, b, h, m, dv);
  w.qt = attn_stage_tensor_(s, b, h, m, j->q.dim);
  w.a = attn_stage_tensor_(s, b, h, m, m);
  w.bv = attn_stage_tensor_(s, b, h, m, dv);
  w.sum = attn_stage_tensor_(s, b, h, m, 1);
  w.wide = j->conv.data ? attn_stage_part_(s, &j->o) : j->o;
  w.v = j->v, w.marks = w.map = NULL;
  if (j->valid) {
    w.marks = (uint8_t *)attn_stage_take_(s, attn_mul_(b, m), 1);
    w.map = (uint8_t *)attn_stage_take_(s, attn_mul_(b, attn_mul_(m, m)), 1);
    if (j->conv.data) {
      w.v = attn_stage_tensor_(s, b, j->v.heads, j->v.len, dv);
      if (!attn_landmark_rows_of_(s, j, w.v, j->v)) return 0;
    }
  }
  double sums[2] = {0.0, 0.0};
  for (int64_t i = 0; i < b; i += r.count) {
    r = attn_landmark_run_of_(j, i);
    if (r.exact) continue;
    if (!attn_landmark_maps_(s, j, &w, &r)) return 0;
    attn_tensor a = attn_landmark_view_(w.a, &r, 0, r.landmarks);
    a.dim = r.landmarks;
    if (s->run && j->by_batch) attn_pinv_most_(sums, a);
  }
  for (int64_t i = 0; i < b; i += r.count) {
    r = attn_landmark_run_of_(j, i);
    if (!r.exact && !attn_landmark_small_(s, j, &w, &r, j->by_batch ? sums : NULL)) return 0;
  }
  for (int64_t i = 0; i < b; i += r.count) {
    r = attn_landmark_run_of_(j, i);
    if (!attn_landmark_large_(s, j, &w, &r)) return 0;
  }
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  return !j->valid || attn_landmark_rows_of_(s, j, j->o, none);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_landmark_call_(attn_landmark_job_ *j, attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_landmark_check_(&e, j, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (j->q.batch == 0 || j->q.len == 0) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no queries");
    } else {
      attn_stage_call_(&s, ctx, attn_landmark_steps_, j,
                       j->csalr ? "landmarks, linear solve" : "landmarks, pseudo-inverse", bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_landmark_job_ attn_nystrom_job_(attn_tensor o, attn_tensor q, attn_tensor k,
                                                attn_tensor v, const attn_nystrom_params *p) {
  attn_landmark_job_ j;
  memset(&j, 0, sizeof j);
  j.o = o, j.q = q, j.k = k, j.v = v;
  if (!p) return j;
  j.conv = p->conv, j.kv_len = p->kv_len, j.q_len = p->q_len, j.scale = p->scale;
  j.landmarks = p->landmarks, j.iterations = attn_given_or_(p->has_iterations, p->iterations, 6),
  j.always = p->always;
  j.by_batch = p->by_batch, j.valid = p->valid;
  return j;
}
ATTN_COLD_ attn_status attn_nystrom_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, const attn_nystrom_params *params,
                                          attn_ctx *ctx, size_t *bytes) {
  attn_landmark_job_ j = attn_nystrom_job_(o, q, k, v, params);
  return attn_landmark_call_(&j, ctx, bytes);
}
ATTN_CALL_(attn_nystrom, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_nystrom_params *params)

ATTN_COLD_ attn_landmark_job_ attn_csalr_job_(attn_tensor o, attn_tensor q, attn_tensor k,
                                              attn_tensor v, const attn_csalr_params *p) {
  attn_landmark_job_ j;
  memset(&j, 0, sizeof j);
  j.o = o, j.q = q, j.k = k, j.v = v, j.csalr = j.always = 1;
  if (!p) return j;
  j.kv_len = p->kv_len, j.q_len = p->q_len, j.scale = p->scale;
  j.landmarks = p->landmarks, j.lambda = p->lambda, j.renormalize = p->renormalize;
  return j;
}
ATTN_COLD_ attn_status attn_csalr_call_(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                        const attn_csalr_params *params, attn_ctx *ctx,
                                        size_t *bytes) {
  attn_landmark_job_ j = attn_csalr_job_(o, q, k, v, params);
  return attn_landmark_call_(&j, ctx, bytes);
}
ATTN_CALL_(attn_csalr, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_csalr_params *params)
