/* families/memory/xl_layer.h owns the layer of Transformer-XL: its projections around one attn_sdpa with
 * the xl term. */

/* Encodings of positions, by themselves. */
ATTN_COLD_ int attn_stage_sinusoid_(attn_stage_ *s, attn_tensor y,
                                    const attn_sinusoid_params *params) {
  attn_tensor none;
  memset(&none, 0, sizeof none);
  if (!s->run) {
    attn_stage_spare_(s, (int64_t)attn_sinusoid_workspace(y, none, params, &s->ctx));
    return 1;
  }
  s->ctx.workspace = attn_stage_spare_(s, 0), s->ctx.workspace_size = (size_t)s->spare;
  attn_status status = attn_sinusoid(y, none, params, &s->ctx);
  s->ctx.report.pairs = 0;
  return attn_stage_done_(s, status);
}

typedef struct attn_xl_job_ {
  attn_tensor o, x;
  attn_xl_layer_params p;
  int64_t dk, dv;
} attn_xl_job_;

ATTN_COLD_ int attn_xl_check_(attn_error_ *e, attn_xl_job_ *j, const attn_xl_layer_params *params,
                              const attn_ctx *ctx, const attn_table_ **table, int *workers) {
  enum { X, MEM, WQ, WK, WR, WV, WO, O, LSE, COUNT };
  attn_xl_layer_params *p = &j->p;
  const int64_t any = ATTN_ANY_;
  attn_span_ more[2];
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has the weights");
  *p = *params;
  if (p->heads == 0) p->heads = 1;
  if (p->heads < 1) return attn_reject_(e, ATTN_E_SHAPE, "params.heads must not be negative");
  const int64_t b = j->x.batch, t = j->x.len, dm = j->x.dim, h = p->heads;
  const int out = p->w_o.data != NULL;
  if (p->w_q.dim % h || p->w_v.dim % h)
    return attn_reject_(e, ATTN_E_HEADS, "params.heads must divide w_q.dim and w_v.dim");
  j->dk = p->w_q.dim / h, j->dv = p->w_v.dim / h;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&j->x, "x", 0, any, 1, any, any, "x must have one head"),
      ATTN_OPERAND_(&p->mem, "params.mem", ATTN_OPTIONAL_, b, 1, any, dm,
                    "params.mem must be [x.batch, 1, M, x.dim]"),
      ATTN_OPERAND_(&p->w_q, "params.w_q", 0, 1, 1, dm, any,
                    "params.w_q must be [1, 1, x.dim, heads * dk]"),
      ATTN_OPERAND_(&p->w_k, "params.w_k", 0, 1, 1, dm, p->w_q.dim,
                    "params.w_k must have the shape of w_q"),
      ATTN_OPERAND_(&p->w_r, "params.w_r", 0, 1, 1, dm, p->w_q.dim,
                    "params.w_r must have the shape of w_q"),
      ATTN_OPERAND_(&p->w_v, "params.w_v", 0, 1, 1, dm, any,
                    "params.w_v must be [1, 1, x.dim, heads * dv]"),
      ATTN_OPERAND_(&p->w_o, "params.w_o", ATTN_OPTIONAL_, 1, 1, p->w_v.dim, any,
                    "params.w_o must be [1, 1, heads * dv, .]"),
      ATTN_OPERAND_(
          &j->o, "o", ATTN_OUT_, b, out ? 1 : h, t, out ? p->w_o.dim : j->dv,
          "o must be [x.batch, 1, x.len, w_o.dim], without w_o [x.batch, heads, x.len, dv]"),
      ATTN_OPERAND_(&p->lse, "params.lse", ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b, h, t, 1,
                    "params.lse must be f32 [x.batch, heads, x.len, 1]")};
  for (int i = 0; i < COUNT; i++)
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  if (!p->mem.data) p->mem.len = 0;
  if (t >= (int64_t)1 << 39 || p->mem.len >= (int64_t)1 << 39)
    return attn_reject_(e, ATTN_E_OVERFLOW, "x.len and params.mem.len must be below 2^39");
  if (p->base == 0.0) p->base = 10000.0;
  if (!(p->base > 0.0 && p->base < HUGE_VAL))
    return attn_reject_(e, ATTN_E_VALUE, "params.base must be positive and finite");
  const char *align = "params.u and .v must be aligned to their elements";
  return attn_check_scale_(e, p->scale) &&
         attn_check_array_(e, p->u, p->w_q.dim, 4, align, &more[0]) &&
         attn_check_array_(e, p->v, p->w_q.dim, 4, align, &more[1]) &&
         attn_check_apart_(e, ctx, op, COUNT, more, 2);
}

/* Columns of a weight as one matrix per head. */
ATTN_COLD_ attn_tensor attn_xl_heads_(attn_tensor w, int64_t heads) {
  w.dim /= heads, w.heads = heads, w.stride_head = w.dim;
  return w;
}

/* r = w_r times the encodings of n positions, matrices of a head each. */
ATTN_COLD_ int attn_xl_distances_(attn_stage_ *s, attn_tensor *r, attn_tensor w_r, int64_t heads,
                                  int64_t n, const attn_sinusoid_params *pe) {
  const attn_tensor sines = attn_stage_tensor_(s, 1, 1, n, w_r.len);
  *r = attn_stage_tensor_(s, 1, heads, n, w_r.dim / heads);
  return attn_stage_sinusoid_(s, sines, pe) &&
         attn_stage_gemm_(s, *r, sines, attn_xl_heads_(w_r, heads), NULL);
}

ATTN_COLD_ int attn_xl_steps_(attn_stage_ *s, void *job) {
  const attn_xl_job_ *j = (const attn_xl_job_ *)job;
  const attn_xl_layer_params *g = &j->p;
  const int64_t b = j->x.batch, h = g->heads, t = j->x.len, m = g->mem.len, keys = m + t;
  const attn_tensor w_q = attn_xl_heads_(g->w_q, h), w_k = attn_xl_heads_(g->w_k, h);
  const attn_tensor w_v = attn_xl_heads_(g->w_v, h);
  const int64_t first = g->bidirectional && t > 0 ? 1 - t : 0;
  const attn_tensor q = attn_stage_tensor_(s, b, h, t, j->dk);
  const attn_tensor k = attn_stage_tensor_(s, b, h, keys, j->dk);
  const attn_tensor v = attn_stage_tensor_(s, b, h, keys, j->dv);
  attn_tensor r;
  attn_sinusoid_params pe;
  attn_sdpa_params p;
  memset(&pe, 0, sizeof pe);
  memset(&p, 0, sizeof p);
  pe.start = first, pe.base = g->base;
  pe.layout = g->interleaved ? ATTN_SINUSOID_INTERLEAVED : ATTN_SINUSOID_HALVES;
  if (!attn_xl_distances_(s, &r, g->w_r, h, keys - first, &pe) ||
      !attn_stage_gemm_(s, q, j->x, w_q, NULL) ||
      !attn_stage_gemm_(s, attn_stage_rows_(k, m, t), j->x, w_k, NULL) ||
      !attn_stage_gemm_(s, attn_stage_rows_(v, m, t), j->x, w_v, NULL))
    return 0;
  if (m > 0 && (!attn_stage_gemm_(s, attn_stage_rows_(k, 0, m), g->mem, w_k, NULL) ||
                !attn_stage_gemm_(s, attn_stage_rows_(v, 0, m), g->mem, w_v, NULL)))
    return 0;
  p.scale = g->scale, p.causal = !g->bidirectional, p.lse = g->lse;
  p.xl.table = attn_stage_backwards_(r), p.xl.first = 1 - keys; /* r goes back in time */
  p.xl.content_bias = g->u, p.xl.distance_bias = g->v;
  if (!g->w_o.data) return attn_stage_sdpa_(s, j->o, q, k, v, &p);
  /* the heads side by side, so that one product joins them */
  const int64_t wide = attn_mul_(h, j->dv);
  attn_tensor all = attn_stage_tensor_(s, b, 1, t, wide);
  attn_tensor o = attn_bthd(all.data, ATTN_F32, b, t, h, j->dv);
  return attn_stage_sdpa_(s, o, q, k, v, &p) && attn_stage_gemm_(s, j->o, all, g->w_o, NULL);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_xl_call_(attn_xl_job_ *j, const attn_xl_layer_params *params,
                                     attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  int workers = 1;
  (void)attn_xl_check_(&e, j, params, ctx, &table, &workers);
  return attn_step_call_or_(&e, table, workers, ctx, attn_xl_steps_, j, "projections, xl scores",
                            j->x.len == 0 || j->x.batch == 0 ? "no queries" : NULL, bytes);
}

ATTN_COLD_ attn_status attn_xl_layer_call_(attn_tensor o, attn_tensor x,
                                           const attn_xl_layer_params *params, attn_ctx *ctx,
                                           size_t *bytes) {
  attn_xl_job_ j;
  memset(&j, 0, sizeof j);
  j.o = o, j.x = x;
  return attn_xl_call_(&j, params, ctx, bytes);
}
ATTN_CALL_(attn_xl_layer, (o, x, params), attn_tensor o, attn_tensor x,
           const attn_xl_layer_params *params)
