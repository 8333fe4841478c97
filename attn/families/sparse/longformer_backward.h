/* families/sparse/longformer_backward.h owns the gradients of Longformer: those of local rows over their schedule, and of
 * the rows of global tokens, which are gathered. */

typedef struct attn_longformer_back_ {
  attn_longformer_job_ j; /* o and lse: what forward left */
  attn_tensor d_q, d_k, d_v, d_o;
  attn_longformer_gradients g;
} attn_longformer_back_;

/* Rows of global tokens, copied. */
typedef struct attn_longformer_gather_ {
  const attn_table_ *table;
  const int32_t *list;
  attn_tensor to[4], from[4]; /* of one type each; data null: absent */
} attn_longformer_gather_;

ATTN_FUNC_ void attn_longformer_gather_row_(void *job, int worker, int64_t index) {
  const attn_longformer_gather_ *a = (const attn_longformer_gather_ *)job;
  const int64_t n = a->to[0].len, b = index / n / a->to[0].heads;
  const int64_t h = index / n % a->to[0].heads, r = index % n;
  (void)worker;
  for (int i = 0; i < 4; i++)
    if (a->from[i].data)
      memcpy(attn_at_(&a->to[i], b, h, r), attn_at_(&a->from[i], b, h, a->list[r]),
             (size_t)attn_bytes_(a->to[i].dtype, a->to[i].dim));
}

/* A causal row of a global token sees what is not behind it. */
ATTN_FUNC_ void attn_longformer_range_(const void *user, int64_t b, int64_t row, int64_t *lo,
                                       int64_t *hi) {
  (void)b;
  *lo = 0, *hi = ((const int32_t *)user)[row] + (int64_t)1;
}

/* Views of the batch entries that share list b. */
ATTN_COLD_ attn_tensor attn_longformer_entry_(const attn_longformer_job_ *j, attn_tensor t,
                                              int64_t b) {
  return t.data && j->p.global_indptr ? attn_stage_entry_(t, b) : t;
}

/* Gradients of the rows of global tokens. c, x: as of the local rows. */
ATTN_COLD_ int attn_longformer_back_global_(attn_stage_ *s, const attn_longformer_back_ *m,
                                            attn_backward_call_ c, attn_sdpa_gradients x,
                                            int64_t b) {
  const attn_longformer_job_ *j = &m->j;
  attn_longformer_gather_ a;
  attn_sdpa_params p = *c.params;
  attn_clear_(&a, sizeof a);
  const int64_t n = attn_longformer_list_(&j->p, b, &a.list);
  a.table = s->table, p.schedule = NULL, p.has_q_off = 1;
  c.d_q = attn_longformer_entry_(j, m->g.d_q_global, b);
  c.d_k = attn_longformer_entry_(j, m->g.d_k_global, b);
  c.d_v = attn_longformer_entry_(j, m->g.d_v_global, b);
  for (int64_t e = 0; s->run && !x.accumulate && e < c.d_q.batch; e++) /* rows behind the list */
    attn_zero_rows_(&c.d_q, e, 0, c.d_q.heads, n);
  c.q = attn_longformer_entry_(j, j->p.q_global, b);
  c.k = attn_longformer_entry_(j, j->p.k_global, b);
  c.v = attn_longformer_entry_(j, j->p.v_global, b);
  if (n == 0) {
    const attn_tensor *const y[] = {&c.d_k, &c.d_v};
    for (int i = 0; s->run && !x.accumulate && i < 2; i++)
      for (int64_t e = 0; e < y[i]->batch; e++) attn_zero_rows_(y[i], e, 0, y[i]->heads, 0);
    return 1;
  }
  const attn_tensor from[4] = {c.d_o, c.o, c.lse, x.d_lse};
  for (int i = 0; i < 4; i++) {
    a.from[i] = a.to[i] = from[i];
    if (!from[i].data) continue;
    const int64_t rows = attn_mul_(attn_mul_(from[i].batch, from[i].heads), n);
    void *room = attn_stage_take_(s, attn_mul_(rows, attn_bytes_(from[i].dtype, from[i].dim)), 1);
    a.to[i] = attn_bhtd(room, from[i].dtype, from[i].batch, from[i].heads, n, from[i].dim);
  }
  if (!attn_stage_for_(s, attn_mul_(attn_mul_(c.d_o.batch, c.d_o.heads), n),
                       attn_longformer_gather_row_, &a, 0, NULL))
    return 0;
  c.d_o = a.to[0], c.o = a.to[1], c.lse = a.to[2], x.d_lse = a.to[3];
  c.q.len = n, c.d_q.len = n;
  if (j->p.causal) c.range = attn_longformer_range_, c.range_user = a.list;
  c.params = &p, c.gradients = &x;
  return attn_stage_sdpa_backward_(s, &c);
}

ATTN_COLD_ int attn_longformer_back_steps_(attn_stage_ *s, void *job) {
  const attn_longformer_back_ *m = (const attn_longformer_back_ *)job;
  const attn_longformer_job_ *j = &m->j;
  for (int64_t b = 0; b < j->entries; b++) {
    const int64_t used = s->used;
    attn_backward_call_ c;
    attn_sdpa_params p;
    attn_sdpa_gradients x;
    attn_clear_(&c, sizeof c), attn_clear_(&p, sizeof p), attn_clear_(&x, sizeof x);
    c.d_q = attn_longformer_entry_(j, m->d_q, b), c.d_k = attn_longformer_entry_(j, m->d_k, b);
    c.d_v = attn_longformer_entry_(j, m->d_v, b), c.d_o = attn_longformer_entry_(j, m->d_o, b);
    c.q = attn_longformer_entry_(j, j->q, b), c.k = attn_longformer_entry_(j, j->k, b);
    c.v = attn_longformer_entry_(j, j->v, b), c.o = attn_longformer_entry_(j, j->o, b);
    c.lse = attn_longformer_entry_(j, j->p.lse, b);
    x.d_lse = attn_longformer_entry_(j, m->g.d_lse, b), x.accumulate = m->g.accumulate;
    p.scale = j->p.scale, p.schedule = j->p.schedules + b, p.mask = j->p.valid;
    if (p.mask.kind && j->p.global_indptr)
      p.mask.data = attn_mask_at_(&p.mask, b, 0, 0), p.mask.batch = 1;
    c.params = &p, c.gradients = &x;
    if (!attn_stage_sdpa_backward_(s, &c) ||
        (j->p.k_global.data && !attn_longformer_back_global_(s, m, c, x, b)))
      return 0;
    attn_stage_back_(s, used);
  }
  return 1;
}

/* Forward's rules, with lse in its place, and those of gradients. */
ATTN_COLD_ int attn_longformer_back_check_(attn_error_ *e, attn_longformer_back_ *m,
                                           const attn_longformer_params *params,
                                           const attn_tensor *lse, const attn_ctx *ctx,
                                           const attn_table_ **table, int *workers) {
  static const char global[] =
      "a gradient of a global tensor must have its shape, and be absent "
      "where that is";
  const int out = (int)ATTN_OUT_ | (int)ATTN_OPTIONAL_, any = ATTN_ANY_;
  attn_longformer_job_ *j = &m->j;
  attn_longformer_params p;
  const attn_ctx plain = attn_before_workspace_(ctx);
  if (!lse->data && j->q.len > 0) return attn_reject_(e, ATTN_E_NULL, "lse.data must not be null");
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it says the windows");
  p = *params, p.lse = *lse;
  if (!attn_longformer_check_(e, j, &p, &plain, table, workers)) return 0;
  const attn_tensor *q = &j->q, *k = &j->k, *v = &j->v;
  attn_longformer_params *at = &j->p;
  const attn_tensor *qg = &at->q_global, *kg = &at->k_global, *vg = &at->v_global;
  attn_operand_ op[] = {
      ATTN_OPERAND_(&m->d_q, "d_q", out, q->batch, q->heads, q->len, q->dim,
                    "d_q must have the shape of q"),
      ATTN_OPERAND_(&m->d_k, "d_k", out, k->batch, k->heads, k->len, k->dim,
                    "d_k must have the shape of k"),
      ATTN_OPERAND_(&m->d_v, "d_v", out, v->batch, v->heads, v->len, v->dim,
                    "d_v must have the shape of v"),
      ATTN_OPERAND_(&m->g.d_q_global, "gradients.d_q_global", out, qg->batch, qg->heads, qg->len,
                    qg->dim, global),
      ATTN_OPERAND_(&m->g.d_k_global, "gradients.d_k_global", out, kg->batch, kg->heads, kg->len,
                    kg->dim, global),
      ATTN_OPERAND_(&m->g.d_v_global, "gradients.d_v_global", out, vg->batch, vg->heads, vg->len,
                    vg->dim, global),
      ATTN_OPERAND_(&m->d_o, "d_o", 0, q->batch, q->heads, q->len, v->dim,
                    "d_o must have the shape of o"),
      ATTN_OPERAND_(&m->g.d_lse, "gradients.d_lse", (int)ATTN_OPTIONAL_ | (int)ATTN_IS_F32_,
                    q->batch, q->heads, q->len, 1, "gradients.d_lse must be f32 with lse's shape"),
      ATTN_OPERAND_(&j->q, "q", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&j->k, "k", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&j->v, "v", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&j->o, "o", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&at->lse, "lse", ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&at->q_global, "params.q_global", ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&at->k_global, "params.k_global", ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&at->v_global, "params.v_global", ATTN_OPTIONAL_, any, any, any, any, "")};
  enum { N = sizeof op / sizeof *op };
  attn_span_ list[5];
  const char *align = "params holds a list that is not aligned to its elements";
  for (int i = 3; i < 6; i++)
    if (op[i].t->data && !kg->data) return attn_reject_(e, ATTN_E_NULL, global);
  for (int i = 0; i < (int)N; i++)
    if (!attn_check_operand_(e, &op[i], q->heads)) return 0;
  if (m->g.accumulate != 0 && m->g.accumulate != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.accumulate must be 0 or 1");
  return attn_check_array_(e, at->window, q->heads, 4, align, &list[0]) &&
         attn_check_array_(e, at->dilation, q->heads, 4, align, &list[1]) &&
         attn_check_array_(e, at->global, at->globals, 4, align, &list[2]) &&
         attn_check_array_(e, at->global_indptr, attn_add_(q->batch, 1), 8, align, &list[3]) &&
         attn_longformer_valid_(e, j, &list[4]) && attn_check_apart_(e, ctx, op, N, list, 5);
}

ATTN_COLD_ attn_status attn_longformer_backward_call_(attn_tensor d_q, attn_tensor d_k,
                                                      attn_tensor d_v, attn_tensor d_o,
                                                      attn_tensor q, attn_tensor k, attn_tensor v,
                                                      attn_tensor o, attn_tensor lse,
                                                      const attn_longformer_params *params,
                                                      const attn_longformer_gradients *gradients,
                                                      attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_longformer_back_ m;
  int workers;
  attn_clear_(&m, sizeof m);
  m.d_q = d_q, m.d_k = d_k, m.d_v = d_v, m.d_o = d_o;
  m.j.o = o, m.j.q = q, m.j.k = k, m.j.v = v;
  if (gradients) m.g = *gradients;
  if (attn_longformer_back_check_(&e, &m, params, &lse, ctx, &table, &workers))
    attn_longformer_run_(&e, &m.j, table, workers, ctx, attn_longformer_back_steps_, &m,
                         "longformer: local rows, global rows, on the way back", bytes);
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_CALL_(attn_longformer_backward, (d_q, d_k, d_v, d_o, q, k, v, o, lse, params, gradients),
           attn_tensor d_q, attn_tensor d_k, attn_tensor d_v, attn_tensor d_o, attn_tensor q,
           attn_tensor k, attn_tensor v, attn_tensor o, attn_tensor lse,
           const attn_longformer_params *params, const attn_longformer_gradients *gradients)
