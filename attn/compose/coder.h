/* compose/coder.h owns the encoder and decoder block: attention with its residual and norm, once or
 * twice, then the feed-forward with its own. */

typedef struct attn_coder_job_ {
  attn_tensor y, x, e; /* e.data null: no cross attention */
  attn_block_params p;
  attn_multihead_job_ self, cross;
  const attn_decoder_cache *cache; /* of a step; null = keys and values are those of x and e */
} attn_coder_job_;

/* ---- checks ---------------------------------------------------------------------------------*/

/* Lengths stand for those of the attention, which must not say its own. */
ATTN_COLD_ int attn_coder_lens_(attn_error_ *e, attn_sdpa_params *p, const int32_t *q_len,
                                const int32_t *kv_len, const char *twice) {
  if ((q_len && p->q_len) || (kv_len && p->kv_len)) return attn_reject_(e, ATTN_E_RANGE, twice);
  if (q_len) p->q_len = q_len;
  if (kv_len) p->kv_len = kv_len;
  return 1;
}

/* What the operands of an attention are beside those that the block has named already. */
ATTN_COLD_ void attn_coder_known_(attn_operand_ *op, int cross) {
  const attn_span_ none = {0, 0, 0, 0};
  op[ATTN_MULTIHEAD_X_].span = op[ATTN_MULTIHEAD_XV_].span = op[ATTN_MULTIHEAD_Y_].span = none;
  op[ATTN_MULTIHEAD_Y_].role = 0;
  if (!cross) op[ATTN_MULTIHEAD_XK_].span = none;
}

enum {
  ATTN_CODER_Y_,
  ATTN_CODER_X_,
  ATTN_CODER_CACHE_, /* k, v, e_k, e_v */
  ATTN_CODER_SELF_ = ATTN_CODER_CACHE_ + 4,
  ATTN_CODER_CROSS_ = ATTN_CODER_SELF_ + ATTN_MULTIHEAD_OPERANDS_,
  ATTN_CODER_FF_ = ATTN_CODER_CROSS_ + ATTN_MULTIHEAD_OPERANDS_,
  ATTN_CODER_OPERANDS_ = ATTN_CODER_FF_ + ATTN_FEED_OPERANDS_
};

/* Keys and values that a step reads and writes. */
ATTN_COLD_ int attn_coder_cache_(attn_error_ *e, attn_coder_job_ *j, attn_decoder_cache *c,
                                 attn_operand_ *op) {
  const attn_multihead_job_ *self = &j->self, *cross = &j->cross;
  const int64_t b = j->x.batch, any = ATTN_ANY_;
  const attn_operand_ all[] = {
      ATTN_OPERAND_(&c->k, "cache.k", ATTN_OUT_, b, self->p.kv_heads, any, self->dk,
                    "cache.k must be [x.batch, kv_heads, room, dk]"),
      ATTN_OPERAND_(&c->v, "cache.v", ATTN_OUT_, b, self->p.kv_heads, c->k.len, self->dv,
                    "cache.v must be [x.batch, kv_heads, cache.k.len, dv]"),
      ATTN_OPERAND_(&c->e_k, "cache.e_k", 0, b, cross->p.kv_heads, any, cross->dk,
                    "cache.e_k must be [x.batch, kv_heads, Te, dk] of params.cross"),
      ATTN_OPERAND_(&c->e_v, "cache.e_v", 0, b, cross->p.kv_heads, c->e_k.len, cross->dv,
                    "cache.e_v must be [x.batch, kv_heads, cache.e_k.len, dv] of params.cross")};
  memcpy(op, all, sizeof all);
  for (int i = 0; i < (j->e.data ? 4 : 2); i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (c->len < 0 || c->len > c->k.len)
    return attn_reject_(e, ATTN_E_RANGE, "cache.len must lie in 0..cache.k.len");
  if (j->x.len > c->k.len - c->len)
    return attn_reject_(e, ATTN_E_FULL, "x.len must not pass the room behind cache.len");
  return 1;
}

/* What a step decides by itself. */
ATTN_COLD_ int attn_coder_step_(attn_error_ *e, const attn_block_params *p) {
  const attn_sdpa_params *a = &p->self.attention;
  if (p->x_len || a->kv_len || a->q_len || a->has_q_off || a->schedule || attn_unlike_(a) ||
      attn_unlike_(&p->cross.attention))
    return attn_reject_(
        e, ATTN_E_RANGE,
        "params.x_len and self.attention's kv_len, q_len, has_q_off, schedule, ragged, "
        "q_offs and align_lengths must be absent in a step, and cross.attention's last three");
  return 1;
}

/* Queries and keys of cross attention have no place in common; they may be normed. */
ATTN_COLD_ int attn_check_unturned_(attn_error_ *e, const attn_block_params *p) {
  return p->cross.rope && attn_rope_turns_(p->cross.rope)
             ? attn_reject_(e, ATTN_E_RANGE, "params.cross.rope must be absent or rotate no column")
             : 1;
}

/* The norms of a part, which may be left out. */
ATTN_COLD_ int attn_coder_norms_(attn_error_ *e, const attn_block_params *p, const attn_norm *norm,
                                 const attn_norm *after, int64_t dm, attn_arrays_ *more) {
  for (int i = 0; i < (p->sublayer == ATTN_SUBLAYER_SANDWICH ? 2 : 1); i++) {
    const attn_norm *one = i ? after : norm;
    if ((int)one->kind < 0 || one->kind >= ATTN_NORM_COUNT)
      return attn_reject_(e, ATTN_E_RANGE,
                          "the kind of a norm must be ATTN_NORM_LAYER, _RMS or _NONE");
    if (one->kind != ATTN_NORM_NONE && !attn_check_norm_(e, one, dm, more)) return 0;
  }
  return 1;
}

/* Every rule about its arguments one by one, op and more. decoder: causal, and with cross attention where e is; cache: of
 * a step, else null. */
ATTN_COLD_ int attn_coder_operands_(attn_error_ *e, attn_coder_job_ *j, int decoder,
                                    attn_decoder_cache *cache, const attn_ctx *ctx,
                                    const attn_table_ **table, int *workers, attn_operand_ *op,
                                    attn_arrays_ *more) {
  static const char wy[] = ATTN_WORDS_("y"), wx[] = ATTN_WORDS_("x"), we[] = ATTN_WORDS_("e");
  attn_block_params *p = &j->p;
  memset(op, 0, ATTN_CODER_OPERANDS_ * sizeof *op), memset(more, 0, sizeof *more);
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  const int64_t b = j->x.batch, t = j->x.len, dm = j->x.dim, any = ATTN_ANY_;
  const attn_operand_ rows[] = {
      ATTN_OPERAND_AS_(&j->y, wy, ATTN_OUT_, b, 1, t, dm, "y must be [x.batch, 1, x.len, x.dim]"),
      ATTN_OPERAND_AS_(&j->x, wx, 0, any, 1, any, any, "x must have one head")};
  memcpy(op, rows, sizeof rows);
  if (!attn_check_operand_(e, &op[ATTN_CODER_X_], 1) ||
      !attn_check_operand_(e, &op[ATTN_CODER_Y_], 1))
    return 0;
  attn_operand_ read =
      ATTN_OPERAND_AS_(&j->e, we, 0, b, 1, any, any, "e must be [x.batch, 1, Te, de]");
  if (j->e.data && !cache && !attn_check_operand_(e, &read, 1)) return 0;
  if ((int)p->sublayer < 0 || p->sublayer >= ATTN_SUBLAYER_COUNT ||
      p->sublayer == ATTN_SUBLAYER_PLAIN)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.sublayer must be ATTN_SUBLAYER_POST, _PRE, _SANDWICH or _PARALLEL");
  if (p->sublayer == ATTN_SUBLAYER_PARALLEL && j->e.data)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.sublayer ATTN_SUBLAYER_PARALLEL goes without cross attention");
  if (p->chunks < 0) return attn_reject_(e, ATTN_E_RANGE, "params.chunks must not be negative");
  if (t > INT32_MAX || j->e.len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "x.len and e.len must be below 2^31");
  if (!attn_check_feed_(e, &p->ff, *table, ATTN_PLACE_, 1, dm, dm, op + ATTN_CODER_FF_) ||
      !attn_coder_norms_(e, p, &p->norm_self, &p->after_self, dm, more) ||
      !attn_coder_norms_(e, p, &p->norm_ff, &p->after_ff, dm, more))
    return 0;
  if (cache && !attn_coder_step_(e, p)) return 0;
  if (!attn_check_unturned_(e, p)) return 0;
  if (!attn_check_cut_(e, p->x_len, b, t, "params.x_len must be aligned to its elements",
                       "params.x_len must lie in 0..x.len", more) ||
      !attn_coder_lens_(e, &p->self.attention, p->x_len, p->x_len,
                        "params.x_len stands for kv_len and q_len of params.self.attention, which "
                        "must be null beside it"))
    return 0;
  if (decoder && !p->self.attention.causal) p->self.attention.causal = 1;
  j->self.y = j->y, j->self.x = j->x, j->self.p = p->self;
  if (!attn_multihead_operands_(e, &j->self, op + ATTN_CODER_SELF_)) return 0;
  attn_coder_known_(op + ATTN_CODER_SELF_, 0);
  if (j->e.data) {
    if (!attn_coder_norms_(e, p, &p->norm_cross, &p->after_cross, dm, more) ||
        !attn_check_cut_(e, p->e_len, b, j->e.len, "params.e_len must be aligned to its elements",
                         "params.e_len must lie in 0..e.len", more) ||
        !attn_coder_lens_(e, &p->cross.attention, p->x_len, p->e_len,
                          "params.x_len and .e_len stand for q_len and kv_len of "
                          "params.cross.attention, which must be null beside them"))
      return 0;
    j->cross.y = j->y, j->cross.x = j->x, j->cross.x_k = j->e, j->cross.p = p->cross;
    if (!attn_multihead_operands_(e, &j->cross, op + ATTN_CODER_CROSS_)) return 0;
    attn_coder_known_(op + ATTN_CODER_CROSS_, !cache);
  }
  if (cache && !attn_coder_cache_(e, j, cache, op + ATTN_CODER_CACHE_)) return 0;
  return 1;
}

/* And about all of them. */
ATTN_COLD_ int attn_coder_check_(attn_error_ *e, attn_coder_job_ *j, int decoder,
                                 attn_decoder_cache *cache, const attn_ctx *ctx,
                                 const attn_table_ **table, int *workers, int query) {
  attn_operand_ op[ATTN_CODER_OPERANDS_];
  attn_arrays_ more;
  const int64_t t = j->x.len;
  if (!attn_coder_operands_(e, j, decoder, cache, ctx, table, workers, op, &more)) return 0;
  if (attn_same_view_(&j->y, &j->x)) op[ATTN_CODER_X_].span.hi = op[ATTN_CODER_X_].span.lo;
  if (!attn_check_apart_(e, ctx, op, ATTN_CODER_OPERANDS_, more.span, more.n)) return 0;
  if (cache) { /* attention over what will be there */
    attn_sdpa_params *a = &j->self.p.attention;
    a->has_q_off = 1, a->q_off = cache->len;
    j->self.x_k.len = j->self.x_v.len = cache->len + t;
  }
  const attn_span_ outer[3][2] = {
      {op[ATTN_CODER_Y_].span, op[(int)ATTN_CODER_SELF_ + (int)ATTN_MULTIHEAD_EACH_].span},
      {op[ATTN_CODER_Y_].span, op[(int)ATTN_CODER_CROSS_ + (int)ATTN_MULTIHEAD_EACH_].span},
      {op[ATTN_CODER_CACHE_].span, op[ATTN_CODER_CACHE_ + 1].span}};
  if (query) return 1;
  for (int i = 0; i < 3; i++)
    if ((i != 1 && !attn_multihead_attend_ok_(e, &j->self, outer[i], ctx)) ||
        (i != 0 && j->e.data && !attn_multihead_attend_ok_(e, &j->cross, outer[i], ctx)))
      return 0;
  return 1;
}

/* Cross attention wants both its weights and what they read. */
ATTN_COLD_ int attn_decoder_pair_(attn_error_ *e, const attn_block_params *params, int reads) {
  if (params && (params->cross.w_q.data != NULL) != reads)
    return attn_reject_(
        e, ATTN_E_NULL,
        "params.cross and what it reads (e, cache.e_k) go together: both or neither");
  return 1;
}

/* ---- steps ----------------------------------------------------------------------------------*/

/* y = x w + bias for y in heads: one product where they lie side by side. A head of nibbles that begins within a
 * byte can't be cut from its matrix: its rows are made first and then sent there. */
ATTN_COLD_ int attn_stage_to_heads_(attn_stage_ *s, const attn_multihead_params *p,
                                    attn_projection_ which, attn_tensor y, attn_tensor x) {
  const attn_tensor *w = which == ATTN_W_K_ ? &p->w_k : &p->w_v;
  const int64_t h = y.heads;
  if (h > 1 && y.stride_head != y.dim) {
    if (!ATTN_IS_I4_(w->dtype) || attn_is_turned_(w) || y.dim % 2 == 0)
      return attn_multihead_project_(s, p, which, h, y, x);
    const attn_tensor t = attn_multihead_rows_(s, x.batch, x.len, w->dim);
    attn_round_ round = {s->table, y, attn_multihead_split_(t, h)};
    return attn_multihead_project_(s, p, which, 0, t, x) &&
           attn_stage_for_(s, attn_mul_(y.batch, h), attn_round_item_, &round, 0, NULL);
  }
  y.dim *= h, y.heads = 1, y.stride_head = 0;
  return attn_multihead_project_(s, p, which, 0, y, x);
}

/* Keys of the rows x, rotated, to where they stay: those that rotate are rounded to its type once, behind it. */
ATTN_COLD_ int attn_stage_fresh_keys_(attn_stage_ *s, const attn_multihead_job_ *j, attn_tensor k,
                                      attn_tensor x, int64_t at) {
  const attn_multihead_params *p = &j->p;
  const attn_tensor there = attn_stage_rows_(k, at, x.len);
  if (!p->rope) return attn_stage_to_heads_(s, p, ATTN_W_K_, there, x);
  const attn_tensor t = attn_multihead_rows_(s, x.batch, x.len, p->w_k.dim);
  return attn_multihead_project_(s, p, ATTN_W_K_, 0, t, x) &&
         attn_multihead_turn_rows_(s, j, there, attn_multihead_split_(t, p->kv_heads), k.len, at,
                                   1);
}

/* Attention with keys and values that are there already, or (fresh) are put at their end first. */
ATTN_COLD_ int attn_stage_cached_(attn_stage_ *s, const attn_multihead_job_ *j, attn_tensor k,
                                  attn_tensor v, int fresh) {
  const attn_multihead_params *p = &j->p;
  const attn_tensor q = attn_multihead_rows_(s, j->x.batch, j->x.len, p->w_q.dim);
  const attn_tensor qh = attn_multihead_split_(q, p->heads);
  const int64_t n = j->x.len, at = k.len - n;
  return attn_multihead_project_(s, p, ATTN_W_Q_, 0, q, j->x) &&
         attn_multihead_turn_queries_(s, j, qh, k.len) &&
         (!fresh || (attn_stage_fresh_keys_(s, j, k, j->x, at) &&
                     attn_stage_to_heads_(s, p, ATTN_W_V_, attn_stage_rows_(v, at, n), j->x))) &&
         attn_multihead_join_(s, j, qh, k, v, &p->attention, NULL);
}

/* to = what the rows x are after attention and its sublayer; t: for the attention by itself, `to` where x
 * is another tensor. e: whose keys are read, null = those of x. */
ATTN_COLD_ int attn_stage_attend_(attn_stage_ *s, const attn_coder_job_ *b,
                                  const attn_multihead_job_ *attention, attn_tensor to,
                                  attn_tensor t, attn_tensor x, const attn_norm *norm,
                                  const attn_norm *after) {
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  const int pre = b->p.sublayer != ATTN_SUBLAYER_POST, self = attention == &b->self;
  const attn_decoder_cache *c = b->cache;
  attn_multihead_job_ j = *attention;
  const int64_t mark = s->used;
  const int first = pre && norm->kind != ATTN_NORM_NONE;
  if (first && !attn_stage_norm_(s, t, x, none, norm)) return 0;
  j.x = first ? t : x, j.y = t;
  if (c) {
    const attn_tensor k = self ? attn_stage_rows_(c->k, 0, c->len + x.len) : c->e_k;
    const attn_tensor v = self ? attn_stage_rows_(c->v, 0, c->len + x.len) : c->e_v;
    if (!attn_stage_cached_(s, &j, k, v, self)) return 0;
  } else {
    if (self) j.x_k = j.x_v = j.x;
    if (!attn_multihead_steps_(s, &j)) return 0;
  }
  attn_stage_back_(s, mark);
  if (b->p.sublayer == ATTN_SUBLAYER_SANDWICH && after->kind != ATTN_NORM_NONE &&
      !attn_stage_norm_(s, t, t, none, after))
    return 0;
  return attn_stage_norm_(s, to, t, x, pre ? NULL : norm);
}

/* Rows from len[b] on become 0. */
ATTN_COLD_ void attn_rows_clear_(const attn_tensor *y, const int32_t *len) {
  for (int64_t b = 0; b < y->batch; b++)
    for (int64_t i = len[b]; i < y->len; i++)
      memset(attn_at_(y, b, 0, i), 0, (size_t)attn_bytes_(y->dtype, y->dim));
}

ATTN_COLD_ int attn_coder_steps_(attn_stage_ *s, void *job) {
  const attn_coder_job_ *j = (const attn_coder_job_ *)job;
  const attn_block_params *p = &j->p;
  const attn_tensor x = j->x, rows = attn_stage_part_(s, &j->y);
  const int cross = j->e.data != NULL, aside = cross || rows.data == x.data;
  const attn_tensor t = aside ? attn_stage_tensor_(s, x.batch, 1, x.len, x.dim) : rows;
  attn_surround_ around = attn_surround_of_(p->sublayer, &p->norm_ff);
  const int parallel = p->sublayer == ATTN_SUBLAYER_PARALLEL;
  const attn_tensor sum = parallel ? t : rows; /* x is still read then */
  around.after = &p->after_ff, around.h = sum;
  if (!attn_stage_attend_(s, j, &j->self, sum, t, x, &p->norm_self, &p->after_self) ||
      (cross &&
       !attn_stage_attend_(s, j, &j->cross, rows, t, rows, &p->norm_cross, &p->after_cross)) ||
      !attn_stage_feed_forward_(s, j->y, parallel ? x : rows, &p->ff, p->chunks, &around))
    return 0;
  if (s->run && p->x_len) attn_rows_clear_(&j->y, p->x_len);
  return 1;
}

/* ---- calls ----------------------------------------------------------------------------------*/

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_coder_call_(attn_coder_job_ *j, const attn_block_params *params,
                                        int decoder, attn_decoder_cache *cache, const char *path,
                                        attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  j->cache = cache;
  if (params) j->p = *params;
  if (!params) {
    attn_reject_(&e, ATTN_E_NULL, "params must not be null: it has the weights");
  } else if (attn_coder_check_(&e, j, decoder, cache, ctx, &table, &workers, bytes != NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (j->x.len == 0 || j->x.batch == 0) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no rows");
    } else {
      attn_stage_call_(&s, ctx, attn_coder_steps_, j, path, bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_coder_job_ attn_coder_open_(attn_tensor y, attn_tensor x) {
  attn_coder_job_ j;
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x;
  return j;
}
