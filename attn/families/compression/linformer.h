/* families/compression/linformer.h owns Linformer: four ways to make few keys of many, then exact attention. */

typedef struct attn_linformer_job_ {
  attn_short_ x;
  attn_linformer_params p; /* f and rank resolved */
  int64_t width;           /* CONV: w */
} attn_linformer_job_;

ATTN_COLD_ int attn_linformer_check_(attn_error_ *e, attn_linformer_job_ *j,
                                     const attn_linformer_params *params, const attn_ctx *ctx,
                                     const attn_table_ **table, int *workers, int data) {
  static const char *const w[] = {ATTN_WORDS_("params.e"), ATTN_WORDS_("params.f")};
  static const char *const rule[] = {
      "params.e must be [1, 1 or k.heads, r, N]", "params.f must be [1, 1 or v.heads, r of e, N]",
      "params.e must have at least k.len columns", "params.f must have at least k.len columns"};
  attn_linformer_params *p = &j->p;
  attn_operand_ op[ATTN_SHORT_N_ + 4];
  attn_span_ lens[2];
  memset(op, 0, sizeof op);
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (params) *p = *params;
  j->x.lse = p->lse, j->x.kv_len = p->kv_len, j->x.q_len = p->q_len, j->x.scale = p->scale;
  if (!attn_short_check_(e, &j->x, op, lens, 0, 0, data)) return 0;
  if ((int)p->kind < 0 || p->kind >= ATTN_LINFORMER_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.kind must be an attn_linformer_kind");
  if (p->rank < 0) return attn_reject_(e, ATTN_E_RANGE, "params.rank must not be negative");
  if (p->rank == 0) p->rank = 256;
  int n = ATTN_SHORT_N_;
  if (p->kind == ATTN_LINFORMER_MATRIX) {
    if (!p->f.data) p->f = p->e;
    for (int i = 0; i < 2; i++, n++) {
      attn_tensor *t = i ? &p->f : &p->e;
      if (!attn_short_operand_(e, &op[n], t, w[i], 0, i ? j->x.v.heads : j->x.k.heads,
                               i ? p->e.len : (int64_t)ATTN_ANY_, ATTN_ANY_, rule[i]))
        return 0;
      if (t->len < 1) return attn_reject_(e, ATTN_E_SHAPE, rule[i]);
      if (t->dim < j->x.k.len) return attn_reject_(e, ATTN_E_SHAPE, rule[2 + i]);
    }
  } else if (p->kind == ATTN_LINFORMER_CONV) {
    attn_tensor *const t[] = {&p->w_k, &p->w_v, &p->b_k, &p->b_v};
    if (!attn_short_convolution_(e, &j->x, op + n, t, &j->width)) return 0;
    n += 4;
  }
  return attn_check_apart_(e, ctx, op, n, lens, 2);
}

/* All rows see all of what a batch entry's keys became. */
ATTN_FUNC_ void attn_linformer_range_(const void *user, int64_t b, int64_t row, int64_t *lo,
                                      int64_t *hi) {
  const attn_linformer_job_ *j = (const attn_linformer_job_ *)user;
  const int64_t n = attn_short_keys_(&j->x, b);
  (void)row;
  *lo = 0;
  *hi = j->p.kind == ATTN_LINFORMER_MATRIX ? (n > 0 ? j->p.e.len : 0)
        : j->p.kind == ATTN_LINFORMER_CONV ? n / j->width + (n % j->width != 0)
                                           : attn_min64_(n, j->p.rank);
}

/* y = few rows of x */
ATTN_COLD_ int attn_linformer_shorten_(attn_stage_ *s, const attn_linformer_job_ *j, attn_tensor y,
                                       attn_tensor x, int value) {
  const attn_linformer_params *g = &j->p;
  if (g->kind == ATTN_LINFORMER_MATRIX)
    return attn_stage_shrink_(s, y, value ? g->f : g->e, x, j->x.kv_len);
  if (g->kind == ATTN_LINFORMER_CONV) {
    attn_convolve_params c;
    memset(&c, 0, sizeof c);
    c.pad = ATTN_PAD_RIGHT, c.stride = j->width, c.x_len = j->x.kv_len,
    c.bias = value ? g->b_v : g->b_k;
    return attn_stage_convolve_(s, y, x, value ? g->w_v : g->w_k, &c);
  }
  attn_pool_params p;
  memset(&p, 0, sizeof p);
  p.kind = g->kind == ATTN_LINFORMER_MAX ? ATTN_POOL_MAX : ATTN_POOL_MEAN;
  p.x_len = j->x.kv_len;
  return attn_stage_pool_(s, y, x, &p);
}

ATTN_COLD_ int attn_linformer_steps_(attn_stage_ *s, void *job) {
  const attn_linformer_job_ *j = (const attn_linformer_job_ *)job;
  const attn_short_ *x = &j->x;
  const int64_t n = x->k.len, b = x->q.batch;
  const int64_t r = j->p.kind == ATTN_LINFORMER_MATRIX ? j->p.e.len
                    : j->p.kind == ATTN_LINFORMER_CONV ? n / j->width + (n % j->width != 0)
                                                       : attn_min64_(n, j->p.rank);
  const attn_tensor k = attn_stage_tensor_(s, b, x->k.heads, r, x->k.dim);
  const attn_tensor v = attn_stage_tensor_(s, b, x->v.heads, r, x->v.dim);
  const attn_sdpa_params p = attn_short_params_(x);
  if (n > 0 &&
      (!attn_linformer_shorten_(s, j, k, x->k, 0) || !attn_linformer_shorten_(s, j, v, x->v, 1)))
    return 0;
  return attn_stage_ranged_(s, x->o, x->q, k, v, &p, attn_linformer_range_, j);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_linformer_job_call_(attn_linformer_job_ *j,
                                                const attn_linformer_params *params, attn_ctx *ctx,
                                                size_t *bytes) {
  static const char *const path[] = {"matrix, then softmax", "means, then softmax",
                                     "maxima, then softmax", "convolution, then softmax"};
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_linformer_check_(&e, j, params, ctx, &table, &workers, !bytes)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (!attn_short_empty_(&j->x))
      attn_stage_call_(&s, ctx, attn_linformer_steps_, j, path[j->p.kind], bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no queries");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_linformer_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                            attn_tensor v, const attn_linformer_params *params,
                                            attn_ctx *ctx, size_t *bytes) {
  attn_linformer_job_ j;
  memset(&j, 0, sizeof j);
  j.x.o = o, j.x.q = q, j.x.k = k, j.x.v = v;
  return attn_linformer_job_call_(&j, params, ctx, bytes);
}
ATTN_CALL_(attn_linformer, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_linformer_params *params)
