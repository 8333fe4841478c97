/* families/depth/exit_decoder.h owns a stack of decoder blocks whose tokens stop at different depths. Keys of
 * layers that a token skipped are made when somebody first looks at them. */

typedef struct attn_exit_stack_ {
  attn_tensor y, x;
  int32_t *exits;
  const attn_exit_cache *cache;
  attn_exit_decoder_params p;
  attn_running_ r;
  attn_running_room_ room;
  attn_tensor states, normal,
      before;       /* of the call's tokens; normalised; of those that run, before */
  attn_tensor late; /* normalised rows of tokens that skipped a layer */
  int32_t *stopped; /* [B n] the last layer of each token, 0 = it runs */
  unsigned char *stop;
  int64_t reached; /* layers that were run */
} attn_exit_stack_;

enum { ATTN_LATE_ROWS_ = 256 }; /* rows that are normalised at once */

/* ---- checks ---------------------------------------------------------------------------------*/

/* The block of layer m behind a cache that holds all tokens. *own is that cache. */
ATTN_COLD_ attn_coder_job_ attn_exit_layer_(const attn_exit_stack_ *a, int64_t m,
                                            attn_decoder_cache *own) {
  const void *there = (const void *)(uintptr_t)ATTN_ALIGN_;
  attn_coder_job_ j = attn_coder_open_(a->y, a->x);
  j.p = a->p.layers[m];
  *own = a->cache->layer[m];
  own->len = a->cache->len;
  if (own->e_k.data) /* of what cross attention has read, extents alone are left */
    j.e = attn_bhtd(there, ATTN_F32, a->x.batch, 1, own->e_k.len,
                    attn_inputs_(&j.p.cross.w_k, j.p.cross.w_transposed));
  j.cache = own;
  return j;
}

/* The spans of a layer's cache; two are written, two read. */
enum { ATTN_EXIT_WRITTEN_ = 2, ATTN_EXIT_SPANS_ = 4 };
ATTN_COLD_ int attn_exit_spans_(attn_error_ *e, const attn_decoder_cache *c,
                                attn_span_ span[ATTN_EXIT_SPANS_]) {
  static const char w[] = ATTN_WORDS_("cache.layer");
  const attn_tensor t[ATTN_EXIT_SPANS_] = {c->k, c->v, c->e_k, c->e_v};
  for (int i = 0; i < ATTN_EXIT_SPANS_; i++) {
    attn_tensor own = t[i];
    span[i].lo = span[i].hi = 0;
    if ((i < ATTN_EXIT_WRITTEN_ || own.data) && !attn_check_tensor_(e, &own, w, &span[i])) return 0;
  }
  return 1;
}

/* The rules of layer m, all but those of its own block. */
ATTN_COLD_ int attn_exit_layer_check_(attn_error_ *e, const attn_exit_stack_ *a, int64_t m,
                                      const attn_operand_ *op, int n) {
  const char *overlap = "cache holds outputs, which must not share memory with another argument";
  const attn_decoder_cache *c = &a->cache->layer[m];
  const attn_block_params *p = &a->p.layers[m];
  attn_span_ span[ATTN_EXIT_SPANS_], other[ATTN_EXIT_SPANS_], block[ATTN_BLOCK_SPANS_];
  if (!attn_check_placeless_(e, &p->self) || !attn_check_placeless_(e, &p->cross)) return 0;
  if (p->cross.attention.causal)
    return attn_reject_(e, ATTN_E_RANGE, "cross.attention.causal must be 0: all of e is seen");
  if (c->len < 0 || c->len > a->cache->len)
    return attn_reject_(e, ATTN_E_RANGE, "cache.layer[m].len must lie in 0..cache.len");
  if (!attn_exit_spans_(e, c, span) || !attn_block_spans_(e, p, a->x.batch, block)) return 0;
  for (int k = 0; k < n; k++) {
    const int out = op[k].role & ATTN_OUT_;
    if (!attn_check_spans_(e, span, out ? ATTN_EXIT_SPANS_ : ATTN_EXIT_WRITTEN_, op[k].span,
                           overlap) ||
        (out && !attn_check_spans_(e, block, ATTN_BLOCK_SPANS_, op[k].span,
                                   attn_says_(op[k].w, ATTN_SAYS_OVERLAP_))))
      return 0;
  }
  for (int64_t l = 0; l < a->p.count; l++) {
    if (!attn_exit_spans_(e, &a->cache->layer[l], other)) return 0;
    for (int i = 0; i < ATTN_EXIT_WRITTEN_; i++)
      if (!attn_check_spans_(e, block, ATTN_BLOCK_SPANS_, other[i], overlap) ||
          (l != m && !attn_check_spans_(e, span, ATTN_EXIT_SPANS_, other[i], overlap)))
        return 0;
  }
  return 1;
}

ATTN_COLD_ int attn_exit_stack_check_(attn_error_ *e, attn_exit_stack_ *a, const attn_ctx *ctx,
                                      const attn_table_ **table, int *workers, int query) {
  static const char *const w[] = {ATTN_WORDS_("y"), ATTN_WORDS_("x"), ATTN_WORDS_("exits"),
                                  ATTN_WORDS_("cache.last")};
  const int64_t b = a->x.batch, n = a->x.len, dm = a->x.dim, any = ATTN_ANY_;
  const attn_exit_cache *c = a->cache;
  attn_tensor last = c->last;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (a->p.count < 1 || a->p.count > INT32_MAX)
    return attn_reject_(e, ATTN_E_SHAPE, "params.count must lie in 1..2^31 - 1");
  if (!a->p.layers || !c->layer)
    return attn_reject_(e, ATTN_E_NULL, "params.layers and cache.layer must not be null");
  attn_operand_ op[4] = {
      ATTN_OPERAND_AS_(&a->x, w[1], 0, any, 1, any, any, "x must have one head"),
      ATTN_OPERAND_AS_(&a->y, w[0], ATTN_OUT_, b, 1, n, dm, "y must have the shape of x"),
      ATTN_OPERAND_AS_(&last, w[3], ATTN_OUT_, b, 1, any, dm,
                       "cache.last must be [x.batch, 1, room, x.dim]")};
  for (int i = 0; i < 3; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (c->len < 0 || c->len > last.len)
    return attn_reject_(e, ATTN_E_RANGE, "cache.len must lie in 0..cache.last.len");
  if (n > last.len - c->len)
    return attn_reject_(e, ATTN_E_FULL, "x.len must not pass the room behind cache.len");
  if (attn_mul_(b, n) > INT32_MAX || last.len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "x.batch * x.len and the room must be below 2^31");
  if (!a->exits && !a->p.decide && b > 0 && n > 0)
    return attn_reject_(e, ATTN_E_NULL, "exits must not be null where params.decide is");
  if (!attn_check_written_(e, &op[3], a->exits, attn_mul_(b, n), 4, w[2],
                           "exits must be aligned to its elements"))
    return 0;
  if (!a->p.decide) op[3].role = 0;
  if (attn_same_view_(&a->y, &a->x)) op[0].span.hi = op[0].span.lo;
  if (!attn_check_apart_(e, ctx, op, 4, NULL, 0)) return 0;
  for (int64_t m = 0; m < a->p.count; m++) {
    attn_decoder_cache own;
    attn_coder_job_ j = attn_exit_layer_(a, m, &own);
    if (!attn_decoder_pair_(e, &a->p.layers[m], own.e_k.data != NULL) ||
        !attn_exit_layer_check_(e, a, m, op, 4) ||
        !attn_coder_check_(e, &j, 1, &own, ctx, table, workers, query))
      return 0;
  }
  if (!a->p.decide && !query)
    for (int64_t i = 0; i < b * n; i++)
      if (a->exits[i] < 1 || a->exits[i] > a->p.count)
        return attn_reject_(e, ATTN_E_RANGE, "exits must lie in 1..params.count");
  return 1;
}

/* ---- steps ----------------------------------------------------------------------------------*/

/* Keys and values of the rows x, put at row `at` of a layer's. */
ATTN_COLD_ int attn_exit_keys_(attn_stage_ *s, const attn_multihead_params *p,
                               const attn_decoder_cache *c, int64_t at, attn_tensor x) {
  return attn_stage_to_heads_(s, p, ATTN_W_K_, attn_stage_rows_(c->k, at, x.len), x) &&
         attn_stage_to_heads_(s, p, ATTN_W_V_, attn_stage_rows_(c->v, at, x.len), x);
}

/* Those that layer m lacks: of tokens that skipped it, then of the call's. */
ATTN_COLD_ int attn_exit_fill_(attn_stage_ *s, const attn_exit_stack_ *a, int64_t m,
                               const attn_coder_job_ *j) {
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  const attn_exit_cache *c = a->cache;
  const int pre = j->p.sublayer == ATTN_SUBLAYER_PRE;
  for (int64_t i = c->layer[m].len, n; i < c->len; i += n) {
    n = c->len - i < ATTN_LATE_ROWS_ ? c->len - i : (int64_t)ATTN_LATE_ROWS_;
    const attn_tensor rows = attn_stage_rows_(c->last, i, n), to = attn_stage_rows_(a->late, 0, n);
    if ((pre && !attn_stage_norm_(s, to, rows, none, &j->p.norm_self)) ||
        !attn_exit_keys_(s, &j->self.p, j->cache, i, pre ? to : rows))
      return 0;
  }
  if (pre && !attn_stage_norm_(s, a->normal, a->states, none, &j->p.norm_self)) return 0;
  return attn_exit_keys_(s, &j->self.p, j->cache, c->len, pre ? a->normal : a->states);
}

/* Asks who of the rows that have left layer m, the m + 1st, stops there. */
ATTN_COLD_ int attn_exit_ask_(attn_stage_ *s, attn_exit_stack_ *a, int64_t m) {
  attn_exit_rows rows;
  attn_ctx ctx = s->ctx;
  memset(&rows, 0, sizeof rows), memset(a->stop, 0, (size_t)a->r.n);
  ctx.workspace = NULL, ctx.workspace_size = 0, ctx.reason = NULL;
  rows.layer = m + 1, rows.token = a->r.row, rows.stop = a->stop;
  rows.h = attn_stage_rows_(a->room.x, 0, a->r.n);
  rows.before = attn_stage_rows_(a->before, 0, a->r.n);
  const attn_status status = a->p.decide(a->p.user, &rows, &ctx);
  if (status != ATTN_OK)
    return attn_reject_(s->e, status, ctx.reason ? ctx.reason : "params.decide has ended the call");
  for (int64_t i = 0; i < a->r.n; i++)
    if (a->stop[i]) a->stopped[a->r.row[i]] = (int32_t)(m + 1);
  return 1;
}

/* Lists the tokens that run layer m, the m + 1st. */
ATTN_COLD_ void attn_exit_list_(attn_exit_stack_ *a, int64_t m) {
  attn_running_ *r = &a->r;
  r->n = 0;
  for (int64_t i = 0; i < r->batch * r->len; i++) {
    if (i % r->len == 0) r->first[i / r->len] = r->n;
    if (a->p.decide ? a->stopped[i] == 0 : a->exits[i] > m) r->row[r->n++] = (int32_t)i;
  }
  r->first[r->batch] = r->n;
}

ATTN_COLD_ int attn_exit_run_(attn_stage_ *s, attn_exit_stack_ *a, int64_t m) {
  attn_decoder_cache own;
  attn_coder_job_ j = attn_exit_layer_(a, m, &own);
  attn_multihead_params *self = &j.self.p, *cross = &j.cross.p;
  const int pre = j.p.sublayer == ATTN_SUBLAYER_PRE;
  j.cache = &own;
  *self = j.p.self, *cross = j.p.cross;
  attn_multihead_turn_(self), attn_multihead_turn_(cross), attn_feed_turn_(&j.p.ff);
  if (self->heads == 0) self->heads = 1;
  if (cross->heads == 0) cross->heads = 1;
  const int64_t keys = own.len + a->x.len;
  if (!attn_exit_fill_(s, a, m, &j) || !attn_stage_running_gather_(s, &a->r, a->room.x, a->states))
    return 0;
  if (a->p.decide && s->run)
    memcpy(a->before.data, a->room.x.data, (size_t)(a->r.n * a->x.dim) * sizeof(float));
  return attn_stage_running_attend_(s, &a->r, &a->room, self, attn_stage_rows_(own.k, 0, keys),
                                    attn_stage_rows_(own.v, 0, keys), NULL, 1, pre,
                                    &j.p.norm_self) &&
         (!j.e.data || attn_stage_running_attend_(s, &a->r, &a->room, cross, own.e_k, own.e_v,
                                                  j.p.e_len, 0, pre, &j.p.norm_cross)) &&
         attn_stage_running_feed_(s, &a->r, &a->room, &j.p) &&
         attn_stage_running_scatter_(s, &a->r, a->room.x, a->states);
}

ATTN_COLD_ int attn_exit_stack_steps_(attn_stage_ *s, void *job) {
  attn_exit_stack_ *a = (attn_exit_stack_ *)job;
  const int64_t batch = a->x.batch, len = a->x.len, dm = a->x.dim, rows = attn_mul_(batch, len);
  int pre = 0;
  a->room.wide_q = a->room.wide_o = 1;
  for (int64_t m = 0; m < a->p.count; m++) {
    const attn_block_params *p = &a->p.layers[m];
    attn_multihead_params self = p->self, cross = p->cross;
    attn_multihead_turn_(&self), attn_multihead_turn_(&cross);
    const int64_t q[2] = {self.w_q.dim, cross.w_q.data ? cross.w_q.dim : 1};
    const int64_t o[2] = {self.w_o.len, cross.w_q.data ? cross.w_o.len : 1};
    pre |= p->sublayer == ATTN_SUBLAYER_PRE;
    for (int i = 0; i < 2; i++) {
      if (q[i] > a->room.wide_q) a->room.wide_q = q[i];
      if (o[i] > a->room.wide_o) a->room.wide_o = o[i];
    }
  }
  a->r = attn_stage_running_(s, batch, len);
  a->r.base = a->cache->len;
  attn_stage_running_room_(s, &a->room, rows, dm);
  a->states = a->normal = a->before = a->late = attn_stage_tensor_(s, batch, 1, len, dm);
  if (pre) a->normal = attn_stage_tensor_(s, batch, 1, len, dm);
  if (pre) a->late = attn_stage_tensor_(s, batch, 1, ATTN_LATE_ROWS_, dm);
  if (a->p.decide) a->before = attn_stage_tensor_(s, 1, 1, rows, dm);
  a->stopped = (int32_t *)attn_stage_take_(s, rows, sizeof *a->stopped);
  a->stop = (unsigned char *)attn_stage_take_(s, rows, 1);
  if (!attn_stage_copy_rows_(s, a->states, a->x, NULL)) return 0;
  if (s->run) memset(a->stopped, 0, (size_t)rows * sizeof *a->stopped);
  for (int64_t m = 0; m < a->p.count; m++) {
    if (s->run) attn_exit_list_(a, m);
    if (a->r.n == 0) break;
    if (!attn_exit_run_(s, a, m)) return 0;
    a->reached = m + 1;
    if (s->run && a->p.decide && m + 1 < a->p.count && !attn_exit_ask_(s, a, m)) return 0;
  }
  for (int64_t i = 0; s->run && a->p.decide && a->exits && i < rows; i++)
    a->exits[i] = a->stopped[i] ? a->stopped[i] : (int32_t)a->p.count;
  return attn_stage_copy_rows_(s, attn_stage_rows_(a->cache->last, a->cache->len, len), a->states,
                               NULL) &&
         attn_stage_copy_rows_(s, a->y, a->states, NULL);
}

/* ---- the call -------------------------------------------------------------------------------*/

ATTN_COLD_ attn_status attn_exit_decoder_call_(attn_exit_stack_ *a,
                                               const attn_exit_decoder_params *params,
                                               attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (params) a->p = *params;
  if (!params || !a->cache) {
    attn_reject_(&e, ATTN_E_NULL, "params and cache must not be null");
  } else if (attn_exit_stack_check_(&e, a, ctx, &table, &workers, bytes != NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (a->x.batch > 0 && a->x.len > 0)
      attn_stage_call_(&s, ctx, attn_exit_stack_steps_, a, "layers, rows that run", bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no rows");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_PUB_COLD_ attn_status attn_exit_decoder(attn_tensor y, int32_t *exits, attn_tensor x,
                                             attn_exit_cache *cache,
                                             const attn_exit_decoder_params *params,
                                             attn_ctx *ctx) {
  attn_exit_stack_ a;
  memset(&a, 0, sizeof a);
  a.y = y, a.x = x, a.exits = exits, a.cache = cache;
  const attn_status status = attn_exit_decoder_call_(&a, params, ctx, NULL);
  if (status == ATTN_OK && a.reached > 0) {
    cache->len += x.len;
    for (int64_t m = 0; m < a.reached; m++) cache->layer[m].len = cache->len;
  }
  return status;
}
ATTN_PUB_COLD_ size_t attn_exit_decoder_workspace(attn_tensor y, int32_t *exits, attn_tensor x,
                                                  const attn_exit_cache *cache,
                                                  const attn_exit_decoder_params *params,
                                                  const attn_ctx *ctx) {
  attn_ctx plain = attn_before_workspace_(ctx);
  attn_exit_stack_ a;
  size_t bytes = 0;
  memset(&a, 0, sizeof a);
  a.y = y, a.x = x, a.exits = exits, a.cache = cache;
  const attn_status status = attn_exit_decoder_call_(&a, params, &plain, &bytes);
  return attn_answer_(status, (int64_t)bytes);
}
