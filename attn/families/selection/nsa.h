/* families/selection/nsa.h owns native sparse attention (M3): the choice of blocks by the weights of compressed keys,
 * and the sum of three branches. */

typedef struct attn_nsa_job_ {
  attn_softmax_ f; /* the call as attn_sdpa would see it */
  attn_nsa_params p;
  attn_nsa_compress_job_ compress[2];
  attn_tensor k_cmp, v_cmp, lse, part[3];
  attn_topk_ search;
  attn_visits_ visit;
  int32_t *index;
  int64_t queries; /* of an item of the choice */
  char *memory;
  int64_t each, at_qt, at_s, at_p;
} attn_nsa_job_;

/* Compressed keys that row i of entry b sees. */
ATTN_FUNC_ int64_t attn_nsa_sees_(const attn_nsa_job_ *a, int64_t b, int64_t i) {
  const int64_t keys = attn_clamp_(i + a->f.q_off + 1, 0, attn_pick_keys_(&a->f, b));
  return attn_nsa_rows_(keys, a->p.block, a->p.stride);
}

ATTN_FUNC_ void attn_nsa_range_(const void *user, int64_t batch, int64_t row, int64_t *lo,
                                int64_t *hi) {
  *lo = 0, *hi = attn_nsa_sees_((const attn_nsa_job_ *)user, batch, row);
}

/* Weights of the compressed keys, summed over the heads of a group: sum [key][query], n queries from i0 on. */
ATTN_FUNC_ void attn_nsa_weights_(const attn_nsa_job_ *a, char *memory, int64_t b, int64_t head,
                                  int64_t i0, int n, float *sum) {
  const attn_softmax_ *f = &a->f;
  const int64_t g = f->q.heads / f->k.heads, lanes = n * g, dk = f->q.dim,
                most = attn_nsa_sees_(a, b, i0 + n - 1);
  float *qt = (float *)(void *)(memory + a->at_qt), *s = (float *)(void *)(memory + a->at_s);
  const float scale = (float)f->scale;
  memset(sum, 0, (size_t)(most * n) * sizeof *sum);
  for (int64_t at = 0; at < lanes; at += ATTN_TILE_) {
    const int m = lanes - at < ATTN_TILE_ ? (int)(lanes - at) : (int)ATTN_TILE_;
    const void *row[ATTN_TILE_] = {NULL};
    float lse[ATTN_TILE_] = {0}, top[ATTN_TILE_] = {0};
    int sees[ATTN_TILE_] = {0}; /* none of lanes without a row */
    for (int r = 0; r < m; r++) {
      const int64_t i = i0 + (at + r) / g, h = head * g + (at + r) % g;
      row[r] = attn_at_(&f->q, b, h, i);
      lse[r] = *(const float *)(const void *)attn_at_(&a->lse, b, h, i);
      sees[r] = (int)attn_nsa_sees_(a, b, i);
    }
    a->search.table->pack(qt, row, m, dk, (int)f->q.dtype, 1.0f, attn_least_(1.0f));
    for (int64_t j = 0; j < most; j += ATTN_BLOCK_) {
      const int64_t keys = most - j < ATTN_BLOCK_ ? most - j : (int64_t)ATTN_BLOCK_;
      const float *k = (const float *)(const void *)attn_at_(&a->k_cmp, b, head, j);
      attn_on_(tile, a->search.table)
          ->score_block(s, qt, k, a->k_cmp.stride_len, keys, dk, 0,
                        (m + ATTN_GROUP_ - 1) / ATTN_GROUP_, top);
      for (int64_t e = 0; e < keys; e++) {
        float x[ATTN_TILE_]; /* local: compilers then know that nothing overlaps */
        memcpy(x, s + e * ATTN_TILE_, sizeof x);
        for (int r = 0; r < ATTN_TILE_; r++)
          x[r] = (int)(j + e) < sees[r] ? x[r] * scale - lse[r] : -INFINITY;
        memcpy(s + e * ATTN_TILE_, x, sizeof x);
      }
      a->search.table->exp(s, s, keys * ATTN_TILE_);
      for (int r = 0, end; r < m; r = end) { /* a query, and its heads in this tile */
        const int64_t i = (at + r) / g;
        end = (int)attn_min64_(m, (i + 1) * g - at);
        for (int64_t e = 0; e < keys; e++) {
          float x = sum[(j + e) * n + i];
          for (int h = r; h < end; h++) x += s[e * ATTN_TILE_ + h];
          sum[(j + e) * n + i] = x;
        }
      }
    }
  }
}

/* The blocks of some queries of one key head. */
ATTN_FUNC_ void attn_nsa_item_(void *job, int worker, int64_t item) {
  const attn_nsa_job_ *a = (const attn_nsa_job_ *)job;
  const attn_softmax_ *f = &a->f;
  const int64_t tiles = attn_pick_blocks_(f->q.len, a->queries), unit = item / tiles,
                i0 = item % tiles * a->queries;
  const int64_t b = unit / f->k.heads, head = unit % f->k.heads, left = f->q.len - i0,
                k = a->visit.k;
  const int n = left < a->queries ? (int)left : (int)a->queries;
  const int64_t size = a->p.select, blocks = attn_pick_blocks_(attn_pick_keys_(f, b), size);
  const int64_t many = size / a->p.stride, few = a->p.block / a->p.stride;
  char *memory = a->memory + worker * a->each;
  float *sum = (float *)(void *)(memory + a->at_p);
  int64_t own[ATTN_TILE_], lo[ATTN_TILE_] = {0}, hi[ATTN_TILE_] = {0}, most = 0;
  const void *none[1] = {NULL};
  attn_topk_ t = a->search;
  attn_nsa_weights_(a, memory, b, head, i0, n, sum);
  attn_topk_open_(&t, memory, none, 0, ATTN_F32, 1.0f);
  attn_pick_open_(&t);
  t.n = n, t.groups = (n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  for (int r = 0; r < n; r++) {
    own[r] = attn_pick_block_(i0 + r + f->q_off, size);
    hi[r] = attn_clamp_(own[r] + 1, 0, blocks);
    if (hi[r] > most) most = hi[r];
  }
  for (int64_t j = 0; j < most; j += ATTN_PICK_) {
    const int64_t m = most - j < ATTN_PICK_ ? most - j : (int64_t)ATTN_PICK_;
    for (int r = 0; r < n; r++) {
      const int64_t sees = attn_nsa_sees_(a, b, i0 + r);
      for (int64_t e = 0; e < m; e++) {
        const int64_t block = j + e;
        float x = 0.0f;
        for (int64_t c = block * many - few + 1; c < (block + 1) * many; c++) {
          /* how often m - n is c - block many, with m < many and n < few */
          const int64_t d = c - block * many, from = d > 0 ? d : 0,
                        to = d + few < many ? d + few : many;
          if (c >= 0 && c < sees) x += (float)(to - from) * sum[c * n + r];
        }
        const int forced =
            block == own[r] || (k > 1 && block == own[r] - 1) || (k > 2 && block == 0);
        t.s[e * ATTN_TILE_ + r] = forced ? -INFINITY : x;
      }
    }
    attn_pick_take_(&t, m, j, lo, hi);
  }
  for (int r = 0; r < n; r++) {
    int32_t *to = a->index + (unit * f->q.len + i0 + r) * k;
    int64_t some = 0;
    if (own[r] >= 0 && own[r] < blocks) to[some++] = (int32_t)own[r];
    if (own[r] >= 1 && own[r] - 1 < blocks && some < k && k > 1) to[some++] = (int32_t)own[r] - 1;
    if (own[r] >= 2 && blocks > 0 && some < k && k > 2) to[some++] = 0;
    attn_pick_write_(&t, r, to, some, k);
  }
}

/* o = the branches times their gates, 64 rows. */
ATTN_FUNC_ void attn_nsa_sum_(void *job, int worker, int64_t item) {
  const attn_nsa_job_ *a = (const attn_nsa_job_ *)job;
  const attn_tensor *o = &a->f.o;
  const int64_t tiles = attn_tiles_of_(o->len), unit = item / tiles, b = unit / o->heads,
                h = unit % o->heads;
  const int64_t i0 = item % tiles * ATTN_TILE_,
                i1 = o->len - i0 < ATTN_TILE_ ? o->len : i0 + ATTN_TILE_;
  float *sum = (float *)(void *)(a->memory + worker * attn_piece_(o->dim, 4));
  for (int64_t i = i0; i < i1; i++) {
    for (int64_t c = 0; c < o->dim; c++) sum[c] = 0.0f;
    for (int x = 0; x < 3; x++) {
      const float *part = (const float *)(const void *)attn_at_(&a->part[x], b, h, i);
      const float gate = attn_number_(attn_at_(&a->p.gate, b, h, i), x, a->p.gate.dtype, NULL);
      for (int64_t c = 0; gate != 0.0f && c < o->dim; c++) sum[c] += gate * part[c];
    }
    a->search.table->blend(attn_at_(o, b, h, i), sum, NULL, o->dtype, ATTN_F32, ATTN_F32, o->dim,
                           1.0f, 0.0f);
  }
}

/* The compressed keys or values: given, or means. */
ATTN_COLD_ int attn_nsa_means_(attn_stage_ *s, attn_nsa_job_ *a, int n, attn_tensor *to) {
  attn_nsa_compress_job_ *c = &a->compress[n];
  const attn_tensor *x = n ? &a->f.v : &a->f.k;
  *to = n ? a->p.v_cmp : a->p.k_cmp;
  if (to->data) return 1;
  c->x = *x, c->p.block = a->p.block, c->p.stride = a->p.stride, c->p.kv_len = a->p.kv_len;
  c->y = attn_stage_tensor_(s, x->batch, x->heads, attn_nsa_rows_(x->len, a->p.block, a->p.stride),
                            x->dim);
  *to = c->y;
  return attn_nsa_compress_steps_(s, c);
}

ATTN_COLD_ int attn_nsa_steps_(attn_stage_ *s, void *job) {
  attn_nsa_job_ *a = (attn_nsa_job_ *)job;
  const attn_softmax_ *f = &a->f;
  const attn_tensor *q = &f->q;
  const int64_t g = q->heads / f->k.heads, units = attn_mul_(q->batch, f->k.heads), tq = q->len;
  const int64_t blocks = attn_pick_blocks_(f->k.len, a->p.select), tile = ATTN_TILE_;
  attn_softmax_ attend;
  attn_sdpa_params p;
  attn_selected x;
  attn_visits_ *v = &a->visit;
  for (int n = 0; n < 3; n++) a->part[n] = attn_stage_tensor_(s, q->batch, q->heads, tq, f->v.dim);
  a->lse = attn_stage_tensor_(s, q->batch, q->heads, tq, 1);
  memset(v, 0, sizeof *v);
  v->size = a->p.select, v->heads = f->k.heads;
  v->k = a->p.index || a->p.blocks < blocks ? a->p.blocks : blocks > 0 ? blocks : 1;
  a->index = a->p.index ? a->p.index
                        : (int32_t *)attn_stage_take_(s, attn_mul_(units, attn_mul_(tq, v->k)), 4);
  v->index = a->index;
  if (!attn_nsa_means_(s, a, 0, &a->k_cmp) || !attn_nsa_means_(s, a, 1, &a->v_cmp)) return 0;
  memset(&p, 0, sizeof p);
  p.scale = a->p.scale, p.lse = a->lse, p.one_order = 1;
  if (!attn_stage_ranged_(s, a->part[0], *q, a->k_cmp, a->v_cmp, &p, attn_nsa_range_, a)) return 0;
  a->queries = g < tile ? tile / g : 1;
  attn_topk_plan_(&a->search, s->table, 1, v->k, ATTN_F32, 0);
  a->at_qt = a->search.bytes;
  a->at_s = attn_add_(a->at_qt, attn_piece_(attn_mul_(q->dim, tile), 4));
  a->at_p = attn_add_(a->at_s, attn_piece_(ATTN_BLOCK_ * tile, 4));
  a->each = attn_add_(a->at_p, attn_piece_(attn_mul_(a->k_cmp.len, a->queries), 4));
  if (!attn_stage_for_(s, attn_mul_(units, attn_pick_blocks_(tq, a->queries)), attn_nsa_item_, a,
                       a->each, &a->memory))
    return 0;
  memset(&x, 0, sizeof x);
  x.scale = a->p.scale, x.has_q_off = a->p.has_q_off, x.q_off = a->p.q_off, x.kv_len = a->p.kv_len;
  attn_problem_clear_(&attend);
  attend.o = a->part[1], attend.q = *q;
  attend.k = a->p.k_sel.data ? a->p.k_sel : f->k, attend.v = a->p.v_sel.data ? a->p.v_sel : f->v;
  if (!attn_stage_visit_(s, &attend, &x, v)) return 0;
  memset(&p, 0, sizeof p);
  p.scale = x.scale, p.has_q_off = x.has_q_off, p.q_off = x.q_off, p.kv_len = x.kv_len,
  p.one_order = p.causal = 1;
  p.window = attn_window_of(a->p.window - 1, -1);
  return attn_stage_sdpa_(s, a->part[2], *q, a->p.k_win.data ? a->p.k_win : f->k,
                          a->p.v_win.data ? a->p.v_win : f->v, &p) &&
         attn_stage_for_(s, attn_mul_(attn_mul_(q->batch, q->heads), attn_tiles_of_(tq)),
                         attn_nsa_sum_, a, attn_piece_(f->v.dim, 4), &a->memory);
}

ATTN_COLD_ int attn_nsa_check_(attn_error_ *e, attn_nsa_job_ *a, const attn_nsa_params *p,
                               const attn_ctx *ctx, int *workers, int query) {
  attn_selected x;
  attn_spans_ all;
  all.n = 0;
  if (!p) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has the gates");
  a->p = *p;
  if (!attn_nsa_sizes_(e, &a->p.block, &a->p.stride)) return 0;
  if (a->p.select == 0) a->p.select = 64;
  if (a->p.blocks == 0) a->p.blocks = 16;
  if (a->p.window == 0) a->p.window = 512;
  if (a->p.select < 1 || a->p.select % a->p.stride != 0)
    return attn_reject_(e, ATTN_E_RANGE, "params.select must be positive, and stride divide it");
  if (a->p.blocks < 1) return attn_reject_(e, ATTN_E_RANGE, "params.blocks must not be negative");
  if (a->p.window < 1) return attn_reject_(e, ATTN_E_RANGE, "params.window must not be negative");
  memset(&x, 0, sizeof x);
  x.scale = p->scale, x.has_q_off = p->has_q_off, x.q_off = p->q_off, x.kv_len = p->kv_len;
  if (!attn_selected_plan_(e, &a->f, &x, ctx, workers, !query)) return 0;
  attn_softmax_ *f = &a->f;
  const attn_tensor *k = &f->k, *v = &f->v;
  const int64_t n = attn_nsa_rows_(k->len, a->p.block, a->p.stride);
  const int given = ATTN_OPTIONAL_;
  if (k->heads != v->heads) return attn_reject_(e, ATTN_E_HEADS, "v.heads must equal k.heads");
  if (attn_quantized_(k->dtype) || attn_quantized_(v->dtype))
    return attn_reject_(e, ATTN_E_DTYPE, "k and v must be ATTN_F32, ATTN_F16 or ATTN_BF16");
  attn_operand_ op[] = {
      ATTN_OPERAND_(&a->p.gate, "params.gate", 0, f->q.batch, f->q.heads, f->q.len, 3,
                    "params.gate must be [B, H, Tq, 3]"),
      ATTN_OPERAND_(&a->p.k_cmp, "params.k_cmp", given | ATTN_IS_F32_, k->batch, k->heads, n,
                    k->dim, "params.k_cmp must be f32 [B, Hk, (Tk - block) / stride + 1, dk]"),
      ATTN_OPERAND_(&a->p.v_cmp, "params.v_cmp", given | ATTN_IS_F32_, k->batch, k->heads, n,
                    v->dim, "params.v_cmp must be f32 [B, Hk, (Tk - block) / stride + 1, dv]"),
      ATTN_OPERAND_(&a->p.k_sel, "params.k_sel", given, k->batch, k->heads, k->len, k->dim,
                    "params.k_sel must have the shape of k"),
      ATTN_OPERAND_(&a->p.v_sel, "params.v_sel", given, k->batch, k->heads, k->len, v->dim,
                    "params.v_sel must have the shape of v"),
      ATTN_OPERAND_(&a->p.k_win, "params.k_win", given, k->batch, k->heads, k->len, k->dim,
                    "params.k_win must have the shape of k"),
      ATTN_OPERAND_(&a->p.v_win, "params.v_win", given, k->batch, k->heads, k->len, v->dim,
                    "params.v_win must have the shape of v")};
  if (!attn_check_given_(e, op, 1)) return 0;
  for (int i = 0; i < 7; i++) {
    if (!attn_check_operand_(e, &op[i], f->q.heads)) return 0;
    *attn_spans_more_(&all, 1) = op[i].span;
  }
  const int64_t count =
      attn_mul_(attn_mul_(f->q.batch, k->heads), attn_mul_(f->q.len, a->p.blocks));
  return attn_selected_apart_(e, ctx, f, &x, p->index, count, all.span, all.n);
}

ATTN_COLD_ attn_status attn_nsa_call_(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                      const attn_nsa_params *params, attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_nsa_job_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  a.f.o = o, a.f.q = q, a.f.k = k, a.f.v = v;
  (void)attn_nsa_check_(&e, &a, params, ctx, &workers, bytes != NULL);
  return attn_step_call_or_(
      &e, a.f.table, workers, ctx, attn_nsa_steps_, &a, "compressed keys, chosen blocks, a window",
      e.status == ATTN_OK && attn_nothing_(&a.f) ? "no queries" : NULL, bytes);
}
ATTN_CALL_(attn_nsa, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_nsa_params *params)
