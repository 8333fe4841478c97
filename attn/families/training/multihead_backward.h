/* families/training/multihead_backward.h owns the gradients of multi-head attention with projections: forward's steps
 * again, the gradients of its attention, and products on either side. */

typedef struct attn_multihead_back_ {
  attn_tensor d_x, d_y;
  attn_multihead_job_ j; /* of forward, judged; x_k and x_v stand for what is absent */
  attn_multihead_gradients g;
  int own_k, own_v; /* x_k and x_v were given */
  int fresh;        /* d_x is overwritten, whatever else */
} attn_multihead_back_;

/* What is learned, in the order of its fields. */
enum { ATTN_MULTIHEAD_LEARNED_ = 10 };

/* Rows of queries or of keys: as they were projected, and in heads as attention reads them; both are the same where
 * there is no norm that would want the first. */
typedef struct attn_multihead_side_ {
  int keys;
  int64_t heads, first; /* position of the first row */
  attn_tensor raw, turned;
} attn_multihead_side_;

ATTN_COLD_ const attn_qk_norm *attn_multihead_norm_(const attn_multihead_params *p) {
  return p->rope ? p->rope->norm : NULL;
}

ATTN_COLD_ int attn_multihead_side_open_(attn_stage_ *s, const attn_multihead_job_ *j,
                                         attn_multihead_side_ *t) {
  const attn_tensor *x = t->keys ? &j->x_k : &j->x, *w = t->keys ? &j->p.w_k : &j->p.w_q;
  t->raw = attn_multihead_rows_(s, x->batch, x->len, w->dim);
  attn_tensor to = t->raw;
  if (attn_multihead_norm_(&j->p)) to = attn_multihead_rows_(s, x->batch, x->len, w->dim);
  t->turned = attn_multihead_split_(to, t->heads);
  return attn_multihead_project_(s, &j->p, t->keys ? ATTN_W_K_ : ATTN_W_Q_, 0, t->raw, *x) &&
         attn_multihead_turn_rows_(s, j, t->turned, attn_multihead_split_(t->raw, t->heads),
                                   j->x_k.len, t->first, t->keys);
}

/* d, what reaches the rows that attention reads, becomes what reaches those that were projected. */
ATTN_COLD_ int attn_multihead_side_back_(attn_stage_ *s, const attn_multihead_back_ *b,
                                         const attn_multihead_side_ *t, attn_tensor d) {
  const attn_qk_norm *norm = attn_multihead_norm_(&b->j.p);
  const attn_qk_norm_gradients *g = &b->g.norm;
  const attn_tensor heads = attn_multihead_split_(d, t->heads);
  attn_multihead_job_ plain = b->j;
  attn_rope_params turn;
  attn_tensor x = t->raw;
  attn_qk_rows_ rows;
  attn_span_ span[2];
  if (!b->j.p.rope) return 1;
  turn = *b->j.p.rope, turn.norm = NULL, plain.p.rope = &turn;
  if (norm && norm->after) {
    const attn_tensor from = attn_multihead_split_(x, t->heads);
    if (!attn_multihead_turn_rows_(s, &plain, from, from, b->j.x_k.len, t->first, t->keys))
      return 0;
  }
  turn.inverse = !turn.inverse;
  const int late = norm && norm->after;
  if (!late && !attn_multihead_turn_rows_(s, &plain, heads, heads, b->j.x_k.len, t->first, t->keys))
    return 0;
  if (!norm) return 1;
  if (!attn_qk_norm_open_(s->e, &rows, norm, t->keys, t->heads, heads.dim, 0, span) ||
      !attn_stage_seen_(s, &x, d) ||
      !attn_stage_qk_back_(s, &rows, heads, attn_multihead_split_(x, t->heads),
                           t->keys ? g->d_k_gain : g->d_q_gain, t->keys ? NULL : g->d_temperature,
                           b->g.accumulate))
    return 0;
  return !late ||
         attn_multihead_turn_rows_(s, &plain, heads, heads, b->j.x_k.len, t->first, t->keys);
}

/* Its heads' outputs side by side and their LSE: what forward left, or made again. */
ATTN_COLD_ int attn_multihead_outputs_(attn_stage_ *s, const attn_multihead_back_ *b, attn_tensor q,
                                       attn_tensor k, attn_tensor v, attn_tensor *all,
                                       attn_tensor *lse) {
  const attn_multihead_job_ *j = &b->j;
  const attn_tensor *each = &j->p.each;
  const int64_t h = j->p.heads, wide = attn_mul_(h, j->dv);
  attn_sdpa_params own = j->p.attention;
  *all = *each, *lse = own.lse;
  if (!b->g.kept || (h > 1 && each->stride_head != j->dv))
    *all = attn_multihead_rows_(s, j->x.batch, j->x.len, wide);
  all->heads = 1, all->dim = wide;
  const attn_tensor o = attn_multihead_split_(*all, h);
  if (b->g.kept) {
    attn_round_ round = {s->table, o, *each};
    return all->data == each->data ||
           attn_stage_for_(s, attn_mul_(o.batch, h), attn_round_item_, &round, 0, NULL);
  }
  *lse = own.lse = attn_stage_tensor_(s, j->x.batch, h, j->x.len, 1);
  if (s->run && own.ragged.sequences) /* rows that no sequence has */
    for (int64_t i = own.ragged.q_indptr[own.ragged.sequences]; i < j->x.len; i++)
      for (int64_t n = 0; n < h; n++)
        memset(attn_at_(&o, 0, n, i), 0, (size_t)j->dv * sizeof(float));
  return attn_stage_sdpa_whole_(s, o, q, k, v, &own) &&
         (!j->p.bias_k.data || attn_multihead_more_(s, j, o, q, &own));
}

/* The key that all rows see: its pairs have the same LSE and the same sums of d_o and o. c: that of the others. */
ATTN_COLD_ int attn_multihead_more_back_(attn_stage_ *s, const attn_multihead_job_ *j,
                                         const attn_backward_call_ *c, attn_tensor d_q,
                                         attn_learned_ *d_k, attn_learned_ *d_v) {
  const attn_multihead_params *p = &j->p;
  const attn_tensor q = attn_multihead_rows_(s, j->x.batch, j->x.len, p->w_q.dim);
  const attn_tensor k = attn_multihead_rows_(s, j->x.batch, 1, p->w_k.dim);
  const attn_tensor v = attn_multihead_rows_(s, j->x.batch, 1, p->w_v.dim);
  attn_backward_call_ one = *c;
  attn_sdpa_gradients plain;
  attn_sdpa_params own;
  attn_clear_(&plain, sizeof plain), attn_clear_(&own, sizeof own);
  plain.d_lse = c->gradients->d_lse;
  own.scale = p->attention.scale, own.q_len = p->attention.q_len;
  one.k = attn_multihead_split_(p->bias_k, p->kv_heads);
  one.v = attn_multihead_split_(p->bias_v, p->kv_heads);
  one.k.batch = one.v.batch = j->x.batch, one.k.stride_batch = one.v.stride_batch = 0;
  one.d_q = attn_multihead_split_(q, p->heads), one.d_k = attn_multihead_split_(k, p->kv_heads);
  one.d_v = attn_multihead_split_(v, p->kv_heads);
  one.params = &own, one.gradients = &plain;
  return attn_stage_sdpa_backward_(s, &one) && attn_stage_shares_(s, d_q, q, 1) &&
         attn_stage_learn_bias_(s, d_k, k) && attn_stage_learn_bias_(s, d_v, v);
}

/* A gradient by rows that several projections read: n products with their weights. */
ATTN_COLD_ int attn_multihead_back_rows_(attn_stage_ *s, attn_tensor d_x, const attn_tensor *d_y,
                                         const attn_tensor *w, int n, int accumulate) {
  const int64_t mark = s->used;
  const int aside = accumulate || d_x.dtype != ATTN_F32;
  if (!d_x.data) return 1;
  const attn_tensor made = aside ? attn_stage_tensor_(s, d_x.batch, 1, d_x.len, d_x.dim) : d_x;
  for (int i = 0; i < n; i++)
    if (!attn_stage_back_product_(s, made, d_y[i], w[i], i > 0)) return 0;
  if (aside && !attn_stage_shares_(s, d_x, made, accumulate)) return 0;
  attn_stage_back_(s, mark);
  return 1;
}

ATTN_COLD_ int attn_multihead_back_steps_(attn_stage_ *s, void *job) {
  const attn_multihead_back_ *b = (const attn_multihead_back_ *)job;
  const attn_multihead_job_ *j = &b->j;
  const attn_multihead_params *p = &j->p;
  const attn_multihead_gradients *g = &b->g;
  const int64_t h = p->heads, kv = p->kv_heads;
  const attn_tensor out[ATTN_MULTIHEAD_LEARNED_] = {g->d_w_q,    g->d_w_k,   g->d_w_v, g->d_w_o,
                                                    g->d_b_q,    g->d_b_k,   g->d_b_v, g->d_b_o,
                                                    g->d_bias_k, g->d_bias_v};
  attn_multihead_side_ queries, keys;
  attn_learned_ l[ATTN_MULTIHEAD_LEARNED_];
  attn_backward_call_ c;
  attn_sdpa_gradients terms = g->attention;
  attn_tensor all;
  attn_clear_(&c, sizeof c), attn_clear_(&queries, sizeof queries);
  queries.heads = h, queries.first = attn_q_off_(&p->attention, j->x.len, j->x_k.len);
  attn_clear_(&keys, sizeof keys), keys.heads = kv, keys.keys = 1;
  for (int i = 0; i < ATTN_MULTIHEAD_LEARNED_; i++)
    l[i] = attn_learned_open_(s, out[i], g->accumulate);
  const attn_tensor values = attn_multihead_rows_(s, j->x_v.batch, j->x_v.len, p->w_v.dim);
  if (!attn_multihead_side_open_(s, j, &queries) || !attn_multihead_side_open_(s, j, &keys) ||
      !attn_multihead_project_(s, p, ATTN_W_V_, 0, values, j->x_v))
    return 0;
  c.q = queries.turned, c.k = keys.turned, c.v = attn_multihead_split_(values, kv);
  if (!attn_multihead_outputs_(s, b, c.q, c.k, c.v, &all, &c.lse)) return 0;
  const attn_tensor d_all = attn_multihead_rows_(s, j->x.batch, j->x.len, attn_mul_(h, j->dv));
  const attn_tensor d_q = attn_multihead_rows_(s, j->x.batch, j->x.len, p->w_q.dim);
  const attn_tensor d_k = attn_multihead_rows_(s, j->x_k.batch, j->x_k.len, p->w_k.dim);
  const attn_tensor d_v = attn_multihead_rows_(s, j->x_v.batch, j->x_v.len, p->w_v.dim);
  c.o = attn_multihead_split_(all, h), c.d_o = attn_multihead_split_(d_all, h);
  c.d_q = attn_multihead_split_(d_q, h), c.d_k = attn_multihead_split_(d_k, kv);
  c.d_v = attn_multihead_split_(d_v, kv);
  terms.accumulate = g->accumulate;
  c.params = &p->attention, c.gradients = &terms;
  if (!attn_stage_back_product_(s, d_all, b->d_y, p->w_o, 0) ||
      (g->d_each.data && !attn_stage_shares_(s, c.d_o, g->d_each, 1)))
    return 0;
  /* what is made beside the outputs is overwritten, terms may be added to: two sweeps, as they are anyway */
  attn_backward_call_ rows = c;
  attn_sdpa_gradients plain;
  attn_clear_(&plain, sizeof plain);
  plain.d_lse = terms.d_lse, plain.d_map = terms.d_map, plain.modify_back = terms.modify_back;
  rows.gradients = &plain;
  c.d_q.data = c.d_k.data = c.d_v.data = NULL;
  if (!attn_stage_sdpa_backward_(s, &rows) || !attn_stage_sdpa_backward_(s, &c)) return 0;
  if ((p->bias_k.data && !attn_multihead_more_back_(s, j, &rows, d_q, &l[8], &l[9])) ||
      !attn_multihead_side_back_(s, b, &queries, d_q) ||
      !attn_multihead_side_back_(s, b, &keys, d_k))
    return 0;
  const attn_tensor d[4] = {d_q, d_k, d_v, b->d_y};
  attn_tensor in[4] = {j->x, j->x_k, j->x_v, all};
  const attn_tensor w[4] = {p->w_q, p->w_k, p->w_v, p->w_o};
  for (int i = 0; i < 3; i++)
    if (l[i].out.data && !attn_stage_seen_(s, &in[i], d[i])) return 0;
  for (int i = 0; i < 4; i++)
    if (!attn_stage_learn_(s, &l[i], w[i], in[i], d[i]) ||
        !attn_stage_learn_bias_(s, &l[4 + i], d[i]) || !attn_learned_close_(s, &l[i]) ||
        !attn_learned_close_(s, &l[4 + i]))
      return 0;
  if (!attn_learned_close_(s, &l[8]) || !attn_learned_close_(s, &l[9])) return 0;
  /* who reads x, x_k, x_v: neighbours of the list q, k, v */
  const int x_reads = b->own_k ? 1 : b->own_v ? 2 : 3, k_reads = b->own_v ? 1 : 2;
  return attn_multihead_back_rows_(s, b->d_x, d, w, x_reads, g->accumulate && !b->fresh) &&
         (!b->own_k ||
          attn_multihead_back_rows_(s, g->d_x_k, d + 1, w + 1, k_reads, g->accumulate)) &&
         (!b->own_v || attn_multihead_back_rows_(s, g->d_x_v, d + 2, w + 2, 1, g->accumulate));
}

/* ---- checks ---------------------------------------------------------------------------------*/

/* What forward takes and gradients do not. */
ATTN_COLD_ int attn_multihead_back_params_(attn_error_ *e, const attn_multihead_params *p) {
  const attn_tensor *const w[] = {&p->w_q, &p->w_k, &p->w_v, &p->w_o};
  for (int i = 0; i < 4; i++)
    if (w[i]->data && attn_quantized_(w[i]->dtype))
      return attn_reject_(e, ATTN_E_DTYPE, "weights of params must be of a float type");
  return p->w_o.data || attn_reject_(e, ATTN_E_NULL, "params.w_o.data must not be null");
}

enum {
  ATTN_MULTIHEAD_BACK_DX_ = ATTN_MULTIHEAD_OPERANDS_,
  ATTN_MULTIHEAD_BACK_DY_ = ATTN_MULTIHEAD_BACK_DX_ + 3,
  ATTN_MULTIHEAD_BACK_DLSE_ = ATTN_MULTIHEAD_BACK_DY_ + 2,
  ATTN_MULTIHEAD_BACK_LEARNED_ = ATTN_MULTIHEAD_BACK_DLSE_ + 2,
  ATTN_MULTIHEAD_BACK_OPERANDS_ = ATTN_MULTIHEAD_BACK_LEARNED_ + ATTN_MULTIHEAD_LEARNED_
};

/* Its gradients; op: those of forward first. */
ATTN_COLD_ int attn_multihead_back_operands_(attn_error_ *e, attn_multihead_back_ *b,
                                             attn_operand_ *op) {
  const attn_multihead_job_ *j = &b->j;
  const attn_multihead_params *p = &j->p;
  attn_multihead_gradients *g = &b->g;
  const int either = ATTN_OUT_ | ATTN_OPTIONAL_, read = ATTN_OPTIONAL_ | ATTN_IS_F32_;
  const int64_t n = j->x.batch, t = j->x.len, h = p->heads;
  const attn_operand_ rows[] = {
      ATTN_OPERAND_(&b->d_x, "d_x", either, n, 1, t, j->x.dim, "d_x must have the shape of x"),
      ATTN_OPERAND_(&g->d_x_k, "gradients.d_x_k", either, j->x_k.batch, 1, j->x_k.len, j->x_k.dim,
                    "gradients.d_x_k must have the shape of x_k"),
      ATTN_OPERAND_(&g->d_x_v, "gradients.d_x_v", either, j->x_v.batch, 1, j->x_v.len, j->x_v.dim,
                    "gradients.d_x_v must have the shape of x_v"),
      ATTN_OPERAND_(&b->d_y, "d_y", 0, n, 1, t, p->w_o.dim,
                    "d_y must be [x.batch, 1, x.len, the width of w_o]"),
      ATTN_OPERAND_(&g->d_each, "gradients.d_each", ATTN_OPTIONAL_, n, h, t, j->dv,
                    "gradients.d_each must be [x.batch, heads, x.len, dv]"),
      ATTN_OPERAND_(&g->attention.d_lse, "gradients.d_lse", read, n, h, t, 1,
                    "gradients.d_lse must be f32 [x.batch, heads, x.len, 1]"),
      ATTN_OPERAND_(&g->attention.d_map, "gradients.d_map", read, n, h, t, j->x_k.len,
                    "gradients.d_map must be f32 [x.batch, heads, x.len, x_k.len]")};
#define ATTN_LEARNED_(field, of)                                                               \
  {                                                                                            \
    ATTN_OPERAND_(&g->field, "gradients." #field, ATTN_OUT_ | ATTN_OPTIONAL_, 1, 1, 0, 0, ""), \
        p->of, "gradients." #field " wants params." #of,                                       \
        "gradients." #field " must have the shape of params." #of                              \
  }
  const struct {
    attn_operand_ op;
    attn_tensor of;
    const char *absent, *shape;
  } list[ATTN_MULTIHEAD_LEARNED_] = {
      ATTN_LEARNED_(d_w_q, w_q),      ATTN_LEARNED_(d_w_k, w_k), ATTN_LEARNED_(d_w_v, w_v),
      ATTN_LEARNED_(d_w_o, w_o),      ATTN_LEARNED_(d_b_q, b_q), ATTN_LEARNED_(d_b_k, b_k),
      ATTN_LEARNED_(d_b_v, b_v),      ATTN_LEARNED_(d_b_o, b_o), ATTN_LEARNED_(d_bias_k, bias_k),
      ATTN_LEARNED_(d_bias_v, bias_v)};
#undef ATTN_LEARNED_
  memcpy(op + ATTN_MULTIHEAD_BACK_DX_, rows, sizeof rows);
  if (!b->d_y.data && !attn_check_set_(e, &b->d_y, op[ATTN_MULTIHEAD_BACK_DY_].w)) return 0;
  for (int i = ATTN_MULTIHEAD_BACK_DX_; i < (int)ATTN_MULTIHEAD_BACK_LEARNED_; i++)
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  if ((g->d_x_k.data && !b->own_k) || (g->d_x_v.data && !b->own_v))
    return attn_reject_(e, ATTN_E_NULL,
                        "gradients.d_x_k and d_x_v want x_k and x_v: what is absent stands for "
                        "another, which has its share");
  for (int i = 0; i < ATTN_MULTIHEAD_LEARNED_; i++) {
    attn_operand_ *own = &op[(int)ATTN_MULTIHEAD_BACK_LEARNED_ + i];
    *own = list[i].op;
    if (!attn_check_learned_(e, own, list[i].of, list[i].absent, list[i].shape)) return 0;
  }
  if (p->bias_k.data && g->attention.d_map.data)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.d_map goes without params.bias_k");
  if (g->accumulate != 0 && g->accumulate != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.accumulate must be 0 or 1");
  if (g->attention.accumulate)
    return attn_reject_(e, ATTN_E_RANGE,
                        "gradients.attention.accumulate must be 0: accumulate holds for all");
  return 1;
}

/* What forward left, where it is read: it has been judged as outputs. */
ATTN_COLD_ int attn_multihead_kept_(attn_error_ *e, attn_multihead_back_ *b) {
  attn_multihead_params *p = &b->j.p;
  if (b->g.kept != 0 && b->g.kept != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.kept must be 0 or 1");
  memset(&p->attention.map, 0, sizeof p->attention.map);
  if (!b->g.kept) {
    memset(&p->each, 0, sizeof p->each);
    memset(&p->attention.lse, 0, sizeof p->attention.lse);
    return 1;
  }
  if (!p->each.data || !p->attention.lse.data)
    return attn_reject_(e, ATTN_E_NULL, "gradients.kept wants params.each and params.lse");
  return p->each.dtype == ATTN_F32 ||
         attn_reject_(e, ATTN_E_DTYPE, "params.each must be f32 where gradients.kept is 1");
}

enum {
  ATTN_MULTIHEAD_BACK_NORM_ = 3, /* arrays */
  ATTN_MULTIHEAD_BACK_TERMS_ = ATTN_GRADIENT_OUTPUTS_ - 3 + ATTN_MULTIHEAD_BACK_NORM_
};

/* Those of the norm. */
ATTN_COLD_ int attn_multihead_back_norm_(attn_error_ *e, const attn_multihead_back_ *b,
                                         attn_span_ *span) {
  const char *align = "gradients.norm's arrays must be aligned to their elements";
  const attn_multihead_params *p = &b->j.p;
  const attn_qk_norm_gradients *g = &b->g.norm;
  const attn_qk_norm *norm = attn_multihead_norm_(p);
  const int by_head = norm && (norm->gain_by_head || norm->kind == ATTN_QK_NORM_RMS_ALL);
  const int64_t h = p->heads, dk = b->j.dk;
  if ((g->d_q_gain && (!norm || !norm->q_gain)) || (g->d_k_gain && (!norm || !norm->k_gain)) ||
      (g->d_temperature && (!norm || !norm->temperature)))
    return attn_reject_(e, ATTN_E_NULL,
                        "gradients.norm's arrays want those of params.rope.norm: q_gain, k_gain, "
                        "temperature");
  return attn_check_array_(e, g->d_q_gain, by_head ? attn_mul_(h, dk) : dk, 4, align, &span[0]) &&
         attn_check_array_(e, g->d_k_gain, by_head ? attn_mul_(p->kv_heads, dk) : dk, 4, align,
                           &span[1]) &&
         attn_check_array_(e, g->d_temperature, h, 4, align, &span[2]);
}

/* The gradients of terms, as the attention's own call judges them, of stand-ins: their spans, those behind d_q, d_k and
 * d_v; and those of the norm. */
ATTN_COLD_ int attn_multihead_back_terms_(attn_error_ *e, const attn_multihead_back_ *b,
                                          attn_span_ *terms, const attn_ctx *ctx) {
  const void *there = (const void *)(uintptr_t)ATTN_ALIGN_;
  const attn_multihead_job_ *j = &b->j;
  const int64_t n = j->x.batch, t = j->x.len, h = j->p.heads, kv = j->p.kv_heads;
  attn_span_ out[ATTN_GRADIENT_OUTPUTS_];
  attn_backward_call_ c;
  attn_softmax_ a;
  attn_backward_ g;
  int workers;
  attn_clear_(&c, sizeof c), attn_problem_clear_(&a), attn_clear_(&g, sizeof g);
  c.q = c.d_q = attn_bhtd(there, ATTN_F32, n, h, t, j->dk);
  c.k = c.d_k = attn_bhtd(there, ATTN_F32, j->x_k.batch, kv, j->x_k.len, j->dk);
  c.v = c.d_v = attn_bhtd(there, ATTN_F32, j->x_v.batch, kv, j->x_v.len, j->dv);
  c.o = c.d_o = attn_bhtd(there, ATTN_F32, n, h, t, j->dv);
  c.lse = attn_bhtd(there, ATTN_F32, n, h, t, 1);
  c.params = &j->p.attention, c.gradients = &b->g.attention;
  attn_backward_take_(&c, &a, &g);
  const attn_ctx plain = attn_before_workspace_(ctx);
  if (!attn_backward_plan_(e, &a, &g, c.params, &c.lse, out, &plain, &workers, -1)) return 0;
  memcpy(terms, out + 3, sizeof out - 3 * sizeof *out);
  return attn_multihead_back_norm_(e, b, terms + (int)ATTN_GRADIENT_OUTPUTS_ - 3);
}

/* Whether what forward and its gradients read is apart from what they write. */
ATTN_COLD_ int attn_multihead_back_reads_(attn_error_ *e, const attn_multihead_job_ *j,
                                          const attn_span_ outer[2], const attn_span_ *terms,
                                          const attn_ctx *ctx) {
  const attn_span_ *norm = terms + (int)ATTN_GRADIENT_OUTPUTS_ - 3;
  return attn_multihead_attend_ok_(e, j, outer, ctx) && attn_multihead_rope_ok_(e, j, norm, ctx) &&
         attn_multihead_rope_ok_(e, j, norm + 1, ctx);
}

/* And they share memory with nothing. */
ATTN_COLD_ int attn_multihead_back_attend_(attn_error_ *e, const attn_multihead_back_ *b,
                                           const attn_operand_ *op, attn_span_ *terms,
                                           const attn_ctx *ctx) {
  enum { TERMS = ATTN_MULTIHEAD_BACK_TERMS_ };
  attn_span_ work;
  if (!attn_multihead_back_terms_(e, b, terms, ctx) || !attn_check_workspace_(e, ctx, &work))
    return 0;
  for (int i = 0; i < (int)TERMS; i++)
    if (!attn_span_alone_(&terms[i], op, ATTN_MULTIHEAD_BACK_OPERANDS_, terms + i + 1,
                          (int)TERMS - i - 1) ||
        attn_overlap_(terms[i], work))
      return attn_reject_(e, ATTN_E_OVERLAP,
                          "a gradient must not share memory with another argument");
  return 1;
}

ATTN_COLD_ int attn_multihead_back_check_(attn_error_ *e, attn_multihead_back_ *b,
                                          const attn_ctx *ctx, const attn_table_ **table,
                                          int *workers, int query) {
  attn_operand_ op[ATTN_MULTIHEAD_BACK_OPERANDS_];
  attn_span_ terms[ATTN_MULTIHEAD_BACK_TERMS_];
  attn_multihead_job_ *j = &b->j;
  const attn_span_ none = {0, 0, 0, 0};
  attn_clear_(op, sizeof op);
  b->own_k = j->x_k.data != NULL, b->own_v = j->x_v.data != NULL;
  if (!attn_check_ctx_(e, ctx, table, workers) || !attn_multihead_back_params_(e, &j->p) ||
      !attn_multihead_kept_(e, b))
    return 0;
  attn_multihead_params *p = &j->p;
  attn_tensor w_o = p->w_o; /* its width: forward judges the rest, with a y that stands in */
  attn_turn_(&w_o, p->w_transposed);
  j->y = attn_bhtd((void *)(uintptr_t)ATTN_ALIGN_, ATTN_F32, j->x.batch, 1, j->x.len, w_o.dim);
  if (!attn_multihead_operands_(e, j, op)) return 0;
  op[ATTN_MULTIHEAD_Y_].span = none;
  for (int i = ATTN_MULTIHEAD_Y_; i < (int)ATTN_MULTIHEAD_OPERANDS_; i++)
    op[i].role &= ~(int)ATTN_OUT_; /* what forward left is read */
  if (!attn_multihead_back_operands_(e, b, op) ||
      !attn_check_apart_(e, ctx, op, ATTN_MULTIHEAD_BACK_OPERANDS_, NULL, 0) ||
      !attn_multihead_back_attend_(e, b, op, terms, ctx))
    return 0;
  const attn_span_ outer[2] = {op[ATTN_MULTIHEAD_BACK_DX_].span,
                               op[ATTN_MULTIHEAD_BACK_DX_ + 1].span};
  return query || attn_multihead_back_reads_(e, j, outer, terms, ctx);
}

/* ---- the call -------------------------------------------------------------------------------*/

ATTN_COLD_ attn_status attn_multihead_backward_call_(attn_tensor d_x, attn_tensor d_y,
                                                     attn_tensor x, attn_tensor x_k,
                                                     attn_tensor x_v,
                                                     const attn_multihead_params *params,
                                                     const attn_multihead_gradients *gradients,
                                                     attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_multihead_back_ b;
  int workers = 1;
  attn_clear_(&b, sizeof b);
  b.d_x = d_x, b.d_y = d_y;
  b.j.x = x, b.j.x_k = x_k, b.j.x_v = x_v;
  if (gradients) b.g = *gradients;
  if (!params) {
    attn_reject_(&e, ATTN_E_NULL, "params must not be null: it has the weights");
  } else {
    b.j.p = *params;
    (void)attn_multihead_back_check_(&e, &b, ctx, &table, &workers, bytes != NULL);
  }
  return attn_step_call_(&e, table, workers, ctx, attn_multihead_back_steps_, &b,
                         "projections, heads", bytes);
}
ATTN_CALL_(attn_multihead_backward, (d_x, d_y, x, x_k, x_v, params, gradients), attn_tensor d_x,
           attn_tensor d_y, attn_tensor x, attn_tensor x_k, attn_tensor x_v,
           const attn_multihead_params *params, const attn_multihead_gradients *gradients)
