/* families/training/block_backward.h owns the gradients of encoder and decoder blocks: forward's parts again, whose heads and
 * LSE stay, then each part backwards. */

typedef struct attn_coder_back_ {
  attn_tensor d_x, d_y;
  attn_coder_job_ j; /* of forward, judged */
  attn_block_gradients g;
} attn_coder_back_;

/* A part of a block as forward left it: F is attention or the feed-forward. */
typedef struct attn_coder_part_ {
  attn_tensor x, in, t, out; /* in = norm(x) or x; t = F(in), of POST x + F(in) */
  const attn_norm *norm, *after;
  const attn_norm_gradients *d_norm, *d_after;
} attn_coder_part_;

ATTN_COLD_ int attn_coder_part_normed_(attn_sublayer kind, const attn_coder_part_ *p) {
  return kind != ATTN_SUBLAYER_POST && p->norm->kind != ATTN_NORM_NONE;
}
ATTN_COLD_ int attn_coder_part_behind_(attn_sublayer kind, const attn_coder_part_ *p) {
  return kind == ATTN_SUBLAYER_SANDWICH && p->after->kind != ATTN_NORM_NONE;
}

/* Before F: its rows, and room for what it makes. */
ATTN_COLD_ int attn_coder_part_open_(attn_stage_ *s, attn_sublayer kind, attn_coder_part_ *p,
                                     attn_tensor x) {
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  p->x = p->in = x;
  p->t = attn_stage_tensor_(s, x.batch, 1, x.len, x.dim);
  if (!attn_coder_part_normed_(kind, p)) return 1;
  p->in = attn_stage_tensor_(s, x.batch, 1, x.len, x.dim);
  return attn_stage_norm_(s, p->in, x, none, p->norm);
}

/* Behind it: what the next part reads. */
ATTN_COLD_ int attn_coder_part_close_(attn_stage_ *s, attn_sublayer kind, attn_coder_part_ *p) {
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  p->out = attn_stage_tensor_(s, p->x.batch, 1, p->x.len, p->x.dim);
  if (kind == ATTN_SUBLAYER_POST)
    return attn_stage_norm_(s, p->t, p->t, p->x, NULL) &&
           attn_stage_norm_(s, p->out, p->t, none, p->norm);
  if (!attn_coder_part_behind_(kind, p)) return attn_stage_norm_(s, p->out, p->t, p->x, NULL);
  return attn_stage_norm_(s, p->out, p->t, none, p->after) &&
         attn_stage_norm_(s, p->out, p->out, p->x, NULL);
}

/* d_x = the gradient by x of a norm of it that reached d_y (+ more); d_x may be d_y. */
ATTN_COLD_ int attn_coder_part_norm_back_(attn_stage_ *s, attn_tensor d_x, attn_tensor d_y,
                                          attn_tensor more, attn_tensor x, const attn_norm *norm,
                                          const attn_norm_gradients *g, int accumulate) {
  attn_norm_back_ a;
  const int64_t mark = s->used;
  attn_clear_(&a, sizeof a);
  a.d_x = d_x, a.d_y = d_y, a.d_sum = more, a.x = x, a.norm = *norm;
  a.d_gain = g->d_gain, a.d_bias = g->d_bias, a.accumulate = accumulate, a.fresh = 1;
  a.eps = norm->eps != 0.0f ? norm->eps : norm->kind == ATTN_NORM_RMS ? 1e-6f : 1e-5f;
  if (!attn_norm_back_steps_(s, &a)) return 0;
  attn_stage_back_(s, mark);
  return 1;
}

/* d, what reaches a part's output, becomes what reaches its sum x + .. ; *d_t is what reaches F, beside it or the same. */
ATTN_COLD_ int attn_coder_part_back_(attn_stage_ *s, attn_sublayer kind, const attn_coder_part_ *p,
                                     attn_tensor d, attn_tensor *d_t, int accumulate) {
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  *d_t = d;
  if (kind == ATTN_SUBLAYER_POST)
    return p->norm->kind == ATTN_NORM_NONE ||
           attn_coder_part_norm_back_(s, d, d, none, p->t, p->norm, p->d_norm, accumulate);
  if (!attn_coder_part_behind_(kind, p)) return 1;
  *d_t = attn_stage_tensor_(s, d.batch, 1, d.len, d.dim);
  return attn_coder_part_norm_back_(s, *d_t, d, none, p->t, p->after, p->d_after, accumulate);
}

/* d_in, what F gives back, joins d: that of x then. */
ATTN_COLD_ int attn_coder_part_join_(attn_stage_ *s, attn_sublayer kind, const attn_coder_part_ *p,
                                     attn_tensor d, attn_tensor d_in, int accumulate) {
  if (!attn_coder_part_normed_(kind, p)) return attn_stage_shares_(s, d, d_in, 1);
  return attn_coder_part_norm_back_(s, d, d_in, d, p->x, p->norm, p->d_norm, accumulate);
}

/* ---- parts ----------------------------------------------------------------------------------*/

/* Attention over again; its heads and LSE stay, unless they were kept. */
ATTN_COLD_ int attn_coder_part_attend_(attn_stage_ *s, attn_multihead_back_ *b,
                                       const attn_coder_part_ *p, attn_tensor e) {
  attn_multihead_job_ *j = &b->j;
  const int kept = b->g.kept;
  attn_tensor all, lse;
  j->x = p->in, j->y = p->t;
  j->x_k = j->x_v = e.data ? e : p->in;
  b->own_k = e.data != NULL, b->own_v = 0, b->fresh = 1, b->g.kept = 1;
  if (!kept) {
    all = attn_multihead_rows_(s, j->x.batch, j->x.len, attn_mul_(j->p.heads, j->dv));
    j->p.each = attn_multihead_split_(all, j->p.heads);
    j->p.attention.lse = attn_stage_tensor_(s, j->x.batch, j->p.heads, j->x.len, 1);
  }
  const int64_t mark = s->used;
  if (!kept) {
    if (!attn_multihead_steps_(s, j)) return 0;
  } else if (!attn_multihead_outputs_(s, b, p->in, p->in, p->in, &all, &lse) ||
             !attn_multihead_project_(s, &j->p, ATTN_W_O_, 0, p->t, all)) {
    return 0;
  }
  attn_stage_back_(s, mark);
  return 1;
}

/* Its gradients: d becomes that of the part's x. */
ATTN_COLD_ int attn_coder_part_attend_back_(attn_stage_ *s, attn_sublayer kind,
                                            attn_multihead_back_ *b, const attn_coder_part_ *p,
                                            attn_tensor d, int accumulate) {
  const int64_t mark = s->used;
  b->d_x = attn_stage_tensor_(s, d.batch, 1, d.len, d.dim);
  if (!attn_coder_part_back_(s, kind, p, d, &b->d_y, accumulate) ||
      !attn_multihead_back_steps_(s, b) ||
      !attn_coder_part_join_(s, kind, p, d, b->d_x, accumulate))
    return 0;
  attn_stage_back_(s, mark);
  return 1;
}

/* The feed-forward over again, where a norm behind it must know. */
ATTN_COLD_ int attn_coder_part_feed_(attn_stage_ *s, attn_sublayer kind, const attn_block_params *p,
                                     const attn_coder_part_ *part) {
  const attn_surround_ plain = attn_surround_of_(ATTN_SUBLAYER_PLAIN, NULL);
  const int post = kind == ATTN_SUBLAYER_POST && part->norm->kind != ATTN_NORM_NONE;
  const int64_t mark = s->used;
  if (!post && !attn_coder_part_behind_(kind, part)) return 1;
  if (!attn_stage_feed_forward_(s, part->t, part->in, &p->ff, p->chunks, &plain)) return 0;
  attn_stage_back_(s, mark);
  return !post || attn_stage_norm_(s, part->t, part->t, part->x, NULL);
}

ATTN_COLD_ int attn_coder_part_feed_back_(attn_stage_ *s, attn_sublayer kind,
                                          const attn_coder_back_ *b, const attn_coder_part_ *p,
                                          attn_tensor d, attn_tensor d_x) {
  const int64_t mark = s->used;
  attn_feed_back_ f;
  attn_clear_(&f, sizeof f);
  f.ff = b->j.p.ff, f.g = b->g.ff, f.g.accumulate = b->g.accumulate, f.x = p->in, f.fresh = 1;
  f.d_x = attn_stage_tensor_(s, d.batch, 1, d.len, d.dim);
  if (!attn_coder_part_back_(s, kind, p, d, &f.d_y, b->g.accumulate) ||
      !attn_feed_back_steps_(s, &f) ||
      !attn_coder_part_join_(s, kind, p, d_x, f.d_x, b->g.accumulate))
    return 0;
  attn_stage_back_(s, mark);
  return 1;
}

/* ---- the block ------------------------------------------------------------------------------*/

/* Rows in f32, those from len[b] on 0 and not read. */
typedef struct attn_coder_rows_ {
  const attn_table_ *table;
  attn_tensor to, x;
  const int32_t *len;
} attn_coder_rows_;

ATTN_FUNC_ void attn_coder_rows_item_(void *job, int worker, int64_t b) {
  const attn_coder_rows_ *a = (const attn_coder_rows_ *)job;
  const int64_t n = a->len ? a->len[b] : a->x.len;
  (void)worker;
  for (int64_t i = 0; i < a->x.len; i++) {
    char *to = attn_at_(&a->to, b, 0, i);
    if (i < n)
      a->table->widen((float *)(void *)to, attn_at_(&a->x, b, 0, i), 0, NULL, 1, a->x.dim,
                      a->x.dtype, NULL);
    else
      memset(to, 0, (size_t)a->x.dim * sizeof(float));
  }
}

ATTN_COLD_ int attn_stage_coder_rows_(attn_stage_ *s, attn_tensor *x, const int32_t *len) {
  attn_coder_rows_ a = {s->table, *x, *x, len};
  a.to = *x = attn_stage_tensor_(s, x->batch, 1, x->len, x->dim);
  return attn_stage_for_(s, x->batch, attn_coder_rows_item_, &a, 0, NULL);
}

ATTN_COLD_ int attn_coder_back_steps_(attn_stage_ *s, void *job) {
  const attn_coder_back_ *b = (const attn_coder_back_ *)job;
  const attn_coder_job_ *j = &b->j;
  const attn_block_params *p = &j->p;
  const attn_block_gradients *g = &b->g;
  const attn_sublayer kind = p->sublayer;
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  const int crosses = j->e.data != NULL, parallel = kind == ATTN_SUBLAYER_PARALLEL;
  attn_coder_part_ self = {none,          none,           none,          none,
                           &p->norm_self, &p->after_self, &g->norm_self, &g->after_self};
  attn_coder_part_ cross = {
      none, none, none, none, &p->norm_cross, &p->after_cross, &g->norm_cross, &g->after_cross};
  attn_coder_part_ feed = {none,        none,         none,        none,
                           &p->norm_ff, &p->after_ff, &g->norm_ff, &g->after_ff};
  attn_multihead_back_ mine, others;
  attn_tensor x = j->x, e = j->e, d = b->d_y;
  attn_clear_(&mine, sizeof mine), attn_clear_(&others, sizeof others);
  mine.j = j->self, mine.g = g->self, others.j = j->cross, others.g = g->cross;
  mine.g.accumulate = others.g.accumulate = g->accumulate, others.g.d_x_k = g->d_e;
  /* rows that do not exist are 0, so that nothing in them reaches a sum */
  if ((p->x_len && !attn_stage_coder_rows_(s, &x, p->x_len)) ||
      (crosses && p->e_len && !attn_stage_coder_rows_(s, &e, p->e_len)) ||
      !attn_stage_coder_rows_(s, &d, p->x_len))
    return 0;
  if (!attn_coder_part_open_(s, kind, &self, x) ||
      !attn_coder_part_attend_(s, &mine, &self, none) || !attn_coder_part_close_(s, kind, &self))
    return 0;
  if (crosses &&
      (!attn_coder_part_open_(s, kind, &cross, self.out) ||
       !attn_coder_part_attend_(s, &others, &cross, e) || !attn_coder_part_close_(s, kind, &cross)))
    return 0;
  if (!attn_coder_part_open_(s, kind, &feed,
                             parallel  ? x
                             : crosses ? cross.out
                                       : self.out) ||
      !attn_coder_part_feed_(s, kind, p, &feed))
    return 0;
  /* in parallel both parts read the same d; what the feed-forward adds waits */
  attn_tensor sum = d;
  if (parallel) {
    sum = attn_stage_tensor_(s, d.batch, 1, d.len, d.dim);
    if (!attn_stage_norm_(s, sum, d, none, NULL)) return 0;
  }
  if (!attn_coder_part_feed_back_(s, kind, b, &feed, d, sum)) return 0;
  if (crosses && !attn_coder_part_attend_back_(s, kind, &others, &cross, d, g->accumulate))
    return 0;
  if (parallel) {
    const attn_tensor in = attn_stage_tensor_(s, d.batch, 1, d.len, d.dim);
    mine.d_x = in, mine.d_y = d;
    if (!attn_multihead_back_steps_(s, &mine) ||
        !attn_coder_part_join_(s, kind, &self, sum, in, g->accumulate))
      return 0;
  } else if (!attn_coder_part_attend_back_(s, kind, &mine, &self, d, g->accumulate)) {
    return 0;
  }
  return !b->d_x.data || attn_stage_shares_(s, b->d_x, sum, g->accumulate);
}

/* ---- checks ---------------------------------------------------------------------------------*/

enum {
  ATTN_CODER_BACK_DX_ = ATTN_CODER_OPERANDS_,
  ATTN_CODER_BACK_DY_,
  ATTN_CODER_BACK_DE_,
  ATTN_CODER_BACK_SELF_,
  ATTN_CODER_BACK_MORE_ = (int)ATTN_MULTIHEAD_BACK_OPERANDS_ - (int)ATTN_MULTIHEAD_OPERANDS_,
  ATTN_CODER_BACK_CROSS_ = ATTN_CODER_BACK_SELF_ + ATTN_CODER_BACK_MORE_,
  ATTN_CODER_BACK_FF_ = ATTN_CODER_BACK_CROSS_ + ATTN_CODER_BACK_MORE_,
  ATTN_CODER_BACK_OPERANDS_ = ATTN_CODER_BACK_FF_ + ATTN_FEED_LEARNED_,
  ATTN_CODER_BACK_NORMS_ = 12,
  ATTN_CODER_BACK_TERMS_ = ATTN_MULTIHEAD_BACK_TERMS_,
  ATTN_CODER_BACK_SPANS_ = ATTN_CODER_BACK_NORMS_ + 2 * ATTN_CODER_BACK_TERMS_
};

/* Gradients of an attention, its operands at op, those of forward at known; terms: spans of those of its scores. */
ATTN_COLD_ int attn_coder_attention_(attn_error_ *e, const attn_multihead_job_ *j,
                                     const attn_multihead_gradients *g, attn_operand_ *op,
                                     const attn_operand_ *known, attn_span_ *terms,
                                     const attn_ctx *ctx) {
  attn_operand_ all[ATTN_MULTIHEAD_BACK_OPERANDS_];
  attn_multihead_back_ b;
  attn_clear_(&b, sizeof b);
  b.j = *j, b.g = *g, b.d_y = j->y;
  memcpy(all, known, ATTN_MULTIHEAD_OPERANDS_ * sizeof *all);
  if (g->accumulate)
    return attn_reject_(e, ATTN_E_RANGE,
                        "gradients.self.accumulate and cross.accumulate must be 0: "
                        "gradients.accumulate holds for all");
  if (!attn_multihead_back_operands_(e, &b, all) || !attn_multihead_back_terms_(e, &b, terms, ctx))
    return 0;
  all[ATTN_MULTIHEAD_BACK_DY_].span.hi = all[ATTN_MULTIHEAD_BACK_DY_].span.lo; /* stands in */
  memcpy(op, all + ATTN_MULTIHEAD_OPERANDS_, ATTN_CODER_BACK_MORE_ * sizeof *op);
  return 1;
}

/* Arrays of the norms' gradients. */
ATTN_COLD_ int attn_coder_norm_spans_(attn_error_ *e, const attn_coder_back_ *b, attn_span_ *span) {
  const attn_block_params *p = &b->j.p;
  const attn_block_gradients *g = &b->g;
  const attn_norm *const norm[] = {&p->norm_self,  &p->norm_cross,  &p->norm_ff,
                                   &p->after_self, &p->after_cross, &p->after_ff};
  const attn_norm_gradients *const d[] = {&g->norm_self,  &g->norm_cross,  &g->norm_ff,
                                          &g->after_self, &g->after_cross, &g->after_ff};
  for (int i = 0; i < ATTN_CODER_BACK_NORMS_; i++) {
    const float *y = i % 2 ? d[i / 2]->d_bias : d[i / 2]->d_gain;
    const float *of = i % 2 ? norm[i / 2]->bias : norm[i / 2]->gain;
    const int there = norm[i / 2]->kind != ATTN_NORM_NONE && (i / 2 % 3 != 1 || b->j.e.data) &&
                      (i < 6 || p->sublayer == ATTN_SUBLAYER_SANDWICH);
    if (y && (!of || !there))
      return attn_reject_(e, ATTN_E_NULL,
                          "gradients of a norm want that norm with its gain and bias in params");
    if (!attn_check_array_(e, y, b->j.x.dim, 4,
                           "d_gain and d_bias must be aligned to their elements", &span[i]))
      return 0;
  }
  return 1;
}

/* Forward's problem with a y that stands in, and without what it need not have left. */
ATTN_COLD_ void attn_coder_back_stand_(attn_coder_back_ *b) {
  attn_multihead_params *const m[] = {&b->j.p.self, &b->j.p.cross};
  const attn_multihead_gradients *const g[] = {&b->g.self, &b->g.cross};
  const attn_tensor *x = &b->j.x;
  b->j.y = attn_bhtd((void *)(uintptr_t)ATTN_ALIGN_, ATTN_F32, x->batch, 1, x->len, x->dim);
  for (int i = 0; i < 2; i++) {
    memset(&m[i]->attention.map, 0, sizeof m[i]->attention.map);
    if (g[i]->kept) continue;
    memset(&m[i]->each, 0, sizeof m[i]->each);
    memset(&m[i]->attention.lse, 0, sizeof m[i]->attention.lse);
  }
}

ATTN_COLD_ int attn_coder_back_check_(attn_error_ *e, attn_coder_back_ *b, int decoder,
                                      const attn_ctx *ctx, const attn_table_ **table, int *workers,
                                      int query) {
  attn_operand_ op[ATTN_CODER_BACK_OPERANDS_];
  attn_span_ span[ATTN_CODER_BACK_SPANS_], work;
  attn_arrays_ more;
  attn_coder_job_ *j = &b->j;
  attn_block_gradients *g = &b->g;
  const int either = ATTN_OUT_ | ATTN_OPTIONAL_;
  const int64_t n = j->x.batch, t = j->x.len, dm = j->x.dim;
  const attn_operand_ rows[] = {
      ATTN_OPERAND_(&b->d_x, "d_x", either, n, 1, t, dm, "d_x must have the shape of x"),
      ATTN_OPERAND_(&b->d_y, "d_y", 0, n, 1, t, dm, "d_y must have the shape of x"),
      ATTN_OPERAND_(&g->d_e, "gradients.d_e", either, j->e.batch, 1, j->e.len, j->e.dim,
                    "gradients.d_e must have the shape of e")};
  attn_clear_(op, sizeof op), attn_clear_(span, sizeof span);
  attn_coder_back_stand_(b);
  for (int i = 0; i < 2; i++) {
    attn_multihead_back_ m;
    attn_clear_(&m, sizeof m);
    m.j.p = i ? j->p.cross : j->p.self, m.g = i ? g->cross : g->self;
    if (i && !j->e.data) continue;
    if (!attn_multihead_back_params_(e, &m.j.p) || !attn_multihead_kept_(e, &m)) return 0;
  }
  if (!attn_feed_back_ff_(e, &j->p.ff) ||
      !attn_coder_operands_(e, j, decoder, NULL, ctx, table, workers, op, &more))
    return 0;
  op[ATTN_CODER_Y_].span.hi = op[ATTN_CODER_Y_].span.lo;
  for (int i = 0; i < (int)ATTN_CODER_OPERANDS_; i++) op[i].role &= ~(int)ATTN_OUT_;
  memcpy(op + ATTN_CODER_BACK_DX_, rows, sizeof rows);
  if (!b->d_y.data && !attn_check_set_(e, &b->d_y, op[ATTN_CODER_BACK_DY_].w)) return 0;
  if (g->d_e.data && !j->e.data)
    return attn_reject_(e, ATTN_E_NULL, "gradients.d_e wants e, of a decoder");
  for (int i = ATTN_CODER_BACK_DX_; i <= (int)ATTN_CODER_BACK_DE_; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (g->accumulate != 0 && g->accumulate != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.accumulate must be 0 or 1");
  attn_span_ *terms = span + ATTN_CODER_BACK_NORMS_;
  if (!attn_coder_norm_spans_(e, b, span) ||
      !attn_feed_back_learned_(e, &g->ff, &j->p.ff, op + ATTN_CODER_BACK_FF_) ||
      !attn_coder_attention_(e, &j->self, &g->self, op + ATTN_CODER_BACK_SELF_,
                             op + ATTN_CODER_SELF_, terms, ctx) ||
      (j->e.data &&
       !attn_coder_attention_(e, &j->cross, &g->cross, op + ATTN_CODER_BACK_CROSS_,
                              op + ATTN_CODER_CROSS_, terms + ATTN_CODER_BACK_TERMS_, ctx)))
    return 0;
  if (g->ff.accumulate)
    return attn_reject_(e, ATTN_E_RANGE,
                        "gradients.ff.accumulate must be 0: gradients.accumulate holds for all");
  if (!attn_check_apart_(e, ctx, op, ATTN_CODER_BACK_OPERANDS_, more.span, more.n) ||
      !attn_check_workspace_(e, ctx, &work))
    return 0;
  for (int i = 0; i < ATTN_CODER_BACK_SPANS_; i++) {
    int apart = attn_span_alone_(&span[i], op, ATTN_CODER_BACK_OPERANDS_, more.span, more.n) &&
                !attn_overlap_(span[i], work);
    for (int k = i + 1; k < ATTN_CODER_BACK_SPANS_; k++) apart &= !attn_overlap_(span[i], span[k]);
    if (!apart)
      return attn_reject_(e, ATTN_E_OVERLAP,
                          "a gradient must not share memory with another argument");
  }
  const attn_span_ outer[2] = {op[ATTN_CODER_BACK_DX_].span, op[ATTN_CODER_BACK_DE_].span};
  return query || (attn_multihead_back_reads_(e, &j->self, outer, terms, ctx) &&
                   (!j->e.data || attn_multihead_back_reads_(e, &j->cross, outer,
                                                             terms + ATTN_CODER_BACK_TERMS_, ctx)));
}

/* ---- calls ----------------------------------------------------------------------------------*/

ATTN_COLD_ attn_status attn_coder_backward_(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                            attn_tensor e, const attn_block_params *params,
                                            const attn_block_gradients *gradients, int decoder,
                                            attn_ctx *ctx, size_t *bytes) {
  attn_error_ error = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_coder_back_ b;
  int workers = 1;
  attn_clear_(&b, sizeof b);
  b.d_x = d_x, b.d_y = d_y, b.j.x = x, b.j.e = e;
  if (gradients) b.g = *gradients;
  if (!params) {
    attn_reject_(&error, ATTN_E_NULL, "params must not be null: it has the weights");
  } else if (!decoder || attn_decoder_pair_(&error, params, e.data != NULL)) {
    b.j.p = *params;
    (void)attn_coder_back_check_(&error, &b, decoder, ctx, &table, &workers, bytes != NULL);
  }
  return attn_step_call_(&error, table, workers, ctx, attn_coder_back_steps_, &b,
                         decoder ? "decoder block" : "encoder block", bytes);
}

ATTN_COLD_ attn_status attn_encoder_backward_call_(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                                   const attn_block_params *params,
                                                   const attn_block_gradients *gradients,
                                                   attn_ctx *ctx, size_t *bytes) {
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  return attn_coder_backward_(d_x, d_y, x, none, params, gradients, 0, ctx, bytes);
}
ATTN_CALL_(attn_encoder_backward, (d_x, d_y, x, params, gradients), attn_tensor d_x,
           attn_tensor d_y, attn_tensor x, const attn_block_params *params,
           const attn_block_gradients *gradients)

ATTN_COLD_ attn_status attn_decoder_backward_call_(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                                   attn_tensor e, const attn_block_params *params,
                                                   const attn_block_gradients *gradients,
                                                   attn_ctx *ctx, size_t *bytes) {
  return attn_coder_backward_(d_x, d_y, x, e, params, gradients, 1, ctx, bytes);
}
ATTN_CALL_(attn_decoder_backward, (d_x, d_y, x, e, params, gradients), attn_tensor d_x,
           attn_tensor d_y, attn_tensor x, attn_tensor e, const attn_block_params *params,
           const attn_block_gradients *gradients)
