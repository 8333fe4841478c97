/* families/memory/segment_layer.h owns attention of a segment behind a memory: Transformer-XL's core form
 * and its layer, which is also the Compressive Transformer's. */

/* ---- the core form --------------------------------------------------------------------------*/

typedef struct attn_segment_job_ {
  attn_tensor o, q, k, v;
  attn_segment_params p;
} attn_segment_job_;

/* The first distance that t queries may need. */
ATTN_COLD_ int64_t attn_segment_first_(const attn_segment_params *p, int64_t t) {
  return p->bidirectional && t > 0 ? 1 - t : 0;
}

/* Distances from there to the furthest key that the last of them sees. */
ATTN_COLD_ int64_t attn_segment_reach_(const attn_segment_params *p, int64_t t, int64_t keys) {
  return attn_sub_(p->window > 0 && p->window < keys ? p->window : keys, attn_segment_first_(p, t));
}

/* Rules that a layer shares; w_r stands for r there. */
ATTN_COLD_ int attn_segment_params_(attn_error_ *e, const attn_segment_params *p, int r,
                                    const char *without) {
  if (p->window < 0) return attn_reject_(e, ATTN_E_RANGE, "window must be 0 (none) or at least 1");
  if (!r && (p->u || p->v)) return attn_reject_(e, ATTN_E_NULL, without);
  return attn_check_scale_(e, p->scale);
}

ATTN_COLD_ int attn_segment_check_(attn_error_ *e, attn_segment_job_ *j,
                                   const attn_segment_params *params, const attn_ctx *ctx,
                                   const attn_table_ **table, int *workers) {
  enum { Q, K, V, R, O, LSE, USAGE, COUNT };
  attn_segment_params *p = &j->p;
  attn_span_ more[2];
  const int64_t any = ATTN_ANY_, in = ATTN_DIVIDES_;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (params) *p = *params;
  if (!attn_segment_params_(e, p, p->r.data != NULL, "params.u and .v need params.r")) return 0;
  const int64_t b = j->q.batch, h = j->q.heads, t = j->q.len, dk = j->q.dim, dv = j->v.dim;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&j->q, "q", 0, any, any, any, any, "q"),
      ATTN_OPERAND_(&j->k, "k", 0, b, in, any, dk, "k must be [q.batch, Hk, M + L, q.dim]"),
      ATTN_OPERAND_(&j->v, "v", 0, b, in, j->k.len, any, "v must be [q.batch, Hv, k.len, dv]"),
      ATTN_OPERAND_(&p->r, "params.r", ATTN_OPTIONAL_ | ATTN_IS_F32_, 1, ATTN_ONE_OR_ALL_, any, dk,
                    "params.r must be f32 [1, 1 or q.heads, n, q.dim]"),
      ATTN_OPERAND_(&j->o, "o", ATTN_OUT_, b, h, t, dv,
                    "o must be [q.batch, q.heads, q.len, v.dim]"),
      ATTN_OPERAND_(&p->lse, "params.lse", ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b, h, t, 1,
                    "params.lse must be f32 [q.batch, q.heads, q.len, 1]"),
      ATTN_OPERAND_(&p->usage, "params.usage", ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b, 1, 1,
                    any, "params.usage must be f32 [q.batch, 1, 1, n]")};
  for (int i = 0; i < COUNT; i++) {
    if (i == K && h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  }
  if (j->k.len < t) return attn_reject_(e, ATTN_E_SHAPE, "k.len must not be less than q.len");
  if (p->r.data && p->r.len < attn_segment_reach_(p, t, j->k.len))
    return attn_reject_(e, ATTN_E_RANGE, "params.r must have a row for every distance in sight");
  if (p->usage.data && p->usage.dim > j->k.len)
    return attn_reject_(e, ATTN_E_SHAPE, "params.usage.dim must not pass k.len");
  const char *align = "params.u and .v must be aligned to their elements";
  return attn_check_array_(e, p->u, attn_mul_(h, dk), 4, align, &more[0]) &&
         attn_check_array_(e, p->v, attn_mul_(h, dk), 4, align, &more[1]) &&
         attn_check_apart_(e, ctx, op, COUNT, more, 2);
}

ATTN_COLD_ int attn_segment_steps_(attn_stage_ *s, void *job) {
  const attn_segment_job_ *j = (const attn_segment_job_ *)job;
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.scale = j->p.scale, p.causal = !j->p.bidirectional;
  if (j->p.window > 0) p.window = attn_window_of(j->p.window - 1, -1);
  if (j->p.r.data) { /* row t of r is first + t keys back */
    p.xl.table = attn_stage_backwards_(j->p.r);
    p.xl.first = 1 - j->p.r.len - attn_segment_first_(&j->p, j->q.len);
    p.xl.u = j->p.u, p.xl.v = j->p.v;
  }
  p.lse = j->p.lse;
  if (j->p.usage.data && !p.lse.data)
    p.lse = attn_stage_tensor_(s, j->q.batch, j->q.heads, j->q.len, 1);
  return attn_stage_sdpa_(s, j->o, j->q, j->k, j->v, &p) &&
         (!j->p.usage.data || attn_stage_usage_(s, j->p.usage, j->q, j->k, &p));
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_segment_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, const attn_segment_params *params,
                                          attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_segment_job_ j;
  const attn_table_ *table;
  int workers;
  memset(&j, 0, sizeof j);
  j.o = o, j.q = q, j.k = k, j.v = v;
  if (attn_segment_check_(&e, &j, params, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    attn_stage_call_(&s, ctx, attn_segment_steps_, &j, "attention behind a memory", bytes);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_CALL_(attn_segment, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_segment_params *params)

/* ---- the layer ------------------------------------------------------------------------------*/

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

/* One job for the layer and its two ends; absent tensors have no data. */
typedef struct attn_segment_layer_job_ {
  attn_tensor o, h, x, q, k, v; /* x: the heads, of the last step alone */
  attn_segment_layer_params p;
  int layer, project, output; /* which of the three this is */
  int64_t dk, dv;
} attn_segment_layer_job_;

/* Whether the rows are normalised before the weights. */
ATTN_COLD_ const attn_norm *attn_segment_norm_(const attn_segment_layer_params *p) {
  return p->sublayer == ATTN_SUBLAYER_PRE ? &p->norm : NULL;
}

ATTN_COLD_ int attn_segment_numbers_(attn_error_ *e, attn_segment_layer_job_ *j,
                                     const attn_segment_layer_params *params) {
  attn_segment_layer_params *p = &j->p;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has the weights");
  *p = *params;
  if (p->heads == 0) p->heads = 1;
  if (p->kv_heads == 0) p->kv_heads = p->heads;
  if (p->heads < 1 || p->kv_heads < 1)
    return attn_reject_(e, ATTN_E_SHAPE, "params.heads and .kv_heads must not be negative");
  if (p->heads % p->kv_heads)
    return attn_reject_(e, ATTN_E_HEADS, "params.kv_heads must divide params.heads");
  if ((int)p->sublayer < 0 || p->sublayer > ATTN_SUBLAYER_PLAIN)
    return attn_reject_(e, ATTN_E_RANGE, "params.sublayer must be an attn_sublayer");
  if (!(p->norm.eps >= 0.0f && p->norm.eps < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.norm.eps must be finite and not negative");
  if (!j->layer) return 1;
  const int r = p->w_r.data || p->attention.r.data;
  if (p->w_r.data && p->attention.r.data)
    return attn_reject_(e, ATTN_E_NULL, "params.w_r and params.attention.r exclude each other");
  if (p->base == 0.0) p->base = 10000.0;
  if (!(p->base > 0.0 && p->base < HUGE_VAL))
    return attn_reject_(e, ATTN_E_VALUE, "params.base must be positive and finite");
  return attn_segment_params_(e, &p->attention, r,
                              "params.attention.u and .v need params.w_r or params.attention.r");
}

ATTN_COLD_ int attn_segment_layer_check_(attn_error_ *e, attn_segment_layer_job_ *j,
                                         const attn_segment_layer_params *params,
                                         const attn_ctx *ctx, const attn_table_ **table,
                                         int *workers) {
  static const attn_memory_words_ wm[] = {ATTN_MEMORY_WORDS_("params.memory"),
                                          ATTN_MEMORY_WORDS_("params.compressed")};
  enum { H, WQ, WK, WV, WO, BO, WR, R, X, O, Q, K, V, LSE, USAGE, MEM, CMEM, COUNT };
  attn_segment_layer_params *p = &j->p;
  attn_segment_params *a = &p->attention;
  attn_span_ more[4];
  const int64_t any = ATTN_ANY_;
  memset(more, 0, sizeof more);
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!attn_segment_numbers_(e, j, params)) return 0;
  const int optional = ATTN_OPTIONAL_, f32 = ATTN_IS_F32_, out = ATTN_OUT_ | ATTN_OPTIONAL_;
  const int matrix = ATTN_MATRIX_, maybe = ATTN_MATRIX_ | ATTN_OPTIONAL_;
  /* what this step does not read is as if it were absent */
  if (!j->output && !j->layer) p->w_o.data = p->b_o.data = NULL;
  if (j->output) p->w_q.data = p->w_k.data = p->w_v.data = NULL;
  if (!j->layer) {
    memset(&p->memory, 0, sizeof p->memory), memset(&p->compressed, 0, sizeof p->compressed);
    memset(a, 0, sizeof *a), p->w_r.data = NULL;
  }
  attn_tensor *const w[] = {&p->w_q, &p->w_k, &p->w_v, &p->w_o, &p->w_r};
  for (int i = 0; i < 5; i++) attn_turn_(w[i], p->w_transposed);
  const int64_t hq = p->heads, hk = p->kv_heads, dm = j->h.dim, b = j->h.batch, t = j->h.len;
  if ((p->w_q.data && p->w_q.dim % hq) || (p->w_k.data && p->w_k.dim % hk) ||
      (p->w_v.data && p->w_v.dim % hk))
    return attn_reject_(e, ATTN_E_HEADS,
                        "params.heads must divide the width of w_q, kv_heads those of w_k and w_v");
  j->dk = p->w_q.data ? p->w_q.dim / hq : p->w_k.dim / hk;
  static const char wx[] = ATTN_WORDS_("x");
  if (j->output && !attn_check_set_(e, &j->x, wx)) return 0;
  j->dv = j->output ? j->x.dim : p->w_v.dim / hk;
  const int heads_out = p->sublayer == ATTN_SUBLAYER_PLAIN && !p->w_o.data && !j->output;
  if (!j->project && !heads_out && !p->w_o.data)
    return attn_reject_(e, ATTN_E_NULL, attn_says_(ATTN_WORDS_("params.w_o"), ATTN_SAYS_DATA_));
  if (p->b_o.data && !p->w_o.data)
    return attn_reject_(e, ATTN_E_NULL, "params.b_o needs params.w_o");
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&j->h, "h", 0, any, 1, any, any, "h must have one head"),
      ATTN_OPERAND_(&p->w_q, "params.w_q", j->layer || j->q.data ? matrix : maybe, 1, 1, dm,
                    attn_mul_(hq, j->dk), ATTN_IN_OUT_("params.w_q", "h.dim", "heads * dk")),
      ATTN_OPERAND_(&p->w_k, "params.w_k", j->layer || j->k.data ? matrix : maybe, 1, 1, dm,
                    attn_mul_(hk, j->dk), ATTN_IN_OUT_("params.w_k", "h.dim", "kv_heads * dk")),
      ATTN_OPERAND_(&p->w_v, "params.w_v", j->layer || j->v.data ? matrix : maybe, 1, 1, dm, any,
                    ATTN_IN_OUT_("params.w_v", "h.dim", "kv_heads * dv")),
      ATTN_OPERAND_(&p->w_o, "params.w_o", j->project || heads_out ? maybe : matrix, 1, 1,
                    attn_mul_(hq, j->dv), p->sublayer == ATTN_SUBLAYER_PLAIN ? any : dm,
                    ATTN_IN_OUT_("params.w_o", "heads * dv", "h.dim")),
      ATTN_OPERAND_(&p->b_o, "params.b_o", optional, 1, 1, 1, p->w_o.dim,
                    "params.b_o must be [1, 1, 1, the width of w_o]"),
      ATTN_OPERAND_(&p->w_r, "params.w_r", maybe, 1, 1, dm, attn_mul_(hq, j->dk),
                    ATTN_IN_OUT_("params.w_r", "h.dim", "heads * dk")),
      ATTN_OPERAND_(&a->r, "params.attention.r", optional | f32, 1, ATTN_ONE_OR_ALL_, any, j->dk,
                    "params.attention.r must be f32 [1, 1 or heads, n, dk]"),
      ATTN_OPERAND_(&j->x, "x", j->output ? 0 : optional, b, hq, t, any,
                    "x must be [B, heads, L, dv]"),
      ATTN_OPERAND_(&j->o, "o", j->project ? out : ATTN_OUT_, b, heads_out ? hq : 1, t,
                    heads_out ? j->dv : p->w_o.dim,
                    "o must be [h.batch, 1, h.len, the width of w_o], without w_o [h.batch, heads, "
                    "h.len, dv]"),
      ATTN_OPERAND_(&j->q, "q", out, b, hq, t, j->dk, "q must be [h.batch, heads, h.len, dk]"),
      ATTN_OPERAND_(&j->k, "k", out, b, hk, t, j->dk, "k must be [h.batch, kv_heads, h.len, dk]"),
      ATTN_OPERAND_(&j->v, "v", out, b, hk, t, j->dv, "v must be [h.batch, kv_heads, h.len, dv]"),
      ATTN_OPERAND_(&a->lse, "params.attention.lse", out | f32, b, hq, t, 1,
                    "params.attention.lse must be f32 [h.batch, heads, h.len, 1]"),
      ATTN_OPERAND_(&a->usage, "params.attention.usage", out | f32, b, 1, 1, any,
                    "params.attention.usage must be f32 [h.batch, 1, 1, n]")};
  for (int i = 0; i <= USAGE; i++)
    if (!attn_check_operand_(e, &op[i], hq)) return 0;
  if (!attn_check_memory_(e, &p->memory, &wm[0], b, dm, 0, &op[MEM]) ||
      !attn_check_memory_(e, &p->compressed, &wm[1], b, dm, 0, &op[CMEM]))
    return 0;
  const int64_t far = (int64_t)1 << 38;
  if (t >= far || p->memory.len >= far || p->compressed.len >= far)
    return attn_reject_(e, ATTN_E_OVERFLOW, "h.len and the memories' len must be below 2^38");
  const int64_t keys = p->compressed.len + p->memory.len + t;
  if (a->r.data && a->r.len < attn_segment_reach_(a, t, keys))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.attention.r must have a row for every distance in sight");
  if (a->usage.data && a->usage.dim > keys)
    return attn_reject_(e, ATTN_E_SHAPE, "params.attention.usage.dim must not pass the keys");
  const char *align = "params.attention.u and .v must be aligned to their elements";
  const char *norm = "params.norm.gain and .bias must be aligned to their elements";
  return attn_check_array_(e, a->u, attn_mul_(hq, j->dk), 4, align, &more[0]) &&
         attn_check_array_(e, a->v, attn_mul_(hq, j->dk), 4, align, &more[1]) &&
         attn_check_array_(e, p->norm.gain, dm, 4, norm, &more[2]) &&
         attn_check_array_(e, p->norm.bias, dm, 4, norm, &more[3]) &&
         attn_check_apart_(e, ctx, op, COUNT, more, 4);
}

/* r = w_r times the encodings of the distances, matrices of a head each. */
ATTN_COLD_ int attn_segment_distances_(attn_stage_ *s, attn_tensor *r,
                                       const attn_segment_layer_params *p, int64_t t,
                                       int64_t keys) {
  const int64_t n = attn_segment_reach_(&p->attention, t, keys);
  const attn_tensor sines = attn_stage_tensor_(s, 1, 1, n, p->w_r.len);
  attn_sinusoid_params pe;
  memset(&pe, 0, sizeof pe);
  pe.start = attn_segment_first_(&p->attention, t), pe.base = p->base;
  pe.layout = p->interleaved ? ATTN_SINUSOID_INTERLEAVED : ATTN_SINUSOID_HALVES;
  *r = attn_stage_tensor_(s, 1, p->heads, n, p->w_r.dim / p->heads);
  return attn_stage_sinusoid_(s, sines, &pe) &&
         attn_stage_gemm_(s, *r, sines, attn_weight_heads_(p->w_r, p->heads), NULL);
}

ATTN_COLD_ int attn_segment_layer_steps_(attn_stage_ *s, void *job) {
  const attn_segment_layer_job_ *j = (const attn_segment_layer_job_ *)job;
  const attn_segment_layer_params *p = &j->p;
  attn_lift_ lift;
  attn_segment_job_ core;
  if (j->output)
    return attn_stage_close_(s, j->o, j->x, j->h, p->w_o, p->b_o, p->sublayer, &p->norm);
  memset(&lift, 0, sizeof lift);
  memset(&core, 0, sizeof core);
  lift.norm = attn_segment_norm_(p);
  attn_memory_take_(&lift.x, &p->compressed, 0, p->compressed.len);
  attn_memory_take_(&lift.x, &p->memory, 0, p->memory.len);
  const int64_t b = j->h.batch, h = p->heads, t = j->h.len, m = attn_parts_len_(&lift.x);
  attn_parts_add_(&lift.x, j->h);
  if (j->project) {
    if (j->q.data) attn_lift_add_(&lift, j->q, p->w_q, 0);
    if (j->k.data) attn_lift_add_(&lift, j->k, p->w_k, 0);
    if (j->v.data) attn_lift_add_(&lift, j->v, p->w_v, 0);
    return attn_stage_lift_(s, &lift);
  }
  core.q = attn_stage_tensor_(s, b, h, t, j->dk);
  core.k = attn_stage_tensor_(s, b, p->kv_heads, attn_add_(m, t), j->dk);
  core.v = attn_stage_tensor_(s, b, p->kv_heads, attn_add_(m, t), j->dv);
  core.p = p->attention;
  core.o = p->w_o.data ? attn_stage_tensor_(s, b, h, t, j->dv) : j->o;
  attn_lift_add_(&lift, core.q, p->w_q, m);
  attn_lift_add_(&lift, core.k, p->w_k, 0);
  attn_lift_add_(&lift, core.v, p->w_v, 0);
  if (p->w_r.data && !attn_segment_distances_(s, &core.p.r, p, t, attn_add_(m, t))) return 0;
  return attn_stage_lift_(s, &lift) && attn_segment_steps_(s, &core) &&
         (!p->w_o.data ||
          attn_stage_close_(s, j->o, core.o, j->h, p->w_o, p->b_o, p->sublayer, &p->norm));
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_segment_layer_job_call_(attn_segment_layer_job_ *j,
                                                    const attn_segment_layer_params *params,
                                                    const char *path, attn_ctx *ctx,
                                                    size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  int workers = 1;
  (void)attn_segment_layer_check_(&e, j, params, ctx, &table, &workers);
  const int none = j->h.batch == 0 || (j->h.len == 0 && !j->p.attention.usage.data);
  return attn_step_call_or_(&e, table, workers, ctx, attn_segment_layer_steps_, j, path,
                            none ? "no rows" : NULL, bytes);
}

ATTN_COLD_ attn_segment_layer_job_ attn_segment_layer_of_(attn_tensor o, attn_tensor h) {
  attn_segment_layer_job_ j;
  memset(&j, 0, sizeof j);
  j.o = o, j.h = h;
  return j;
}

ATTN_COLD_ attn_status attn_segment_layer_call_(attn_tensor o, attn_tensor h,
                                                const attn_segment_layer_params *params,
                                                attn_ctx *ctx, size_t *bytes) {
  attn_segment_layer_job_ j = attn_segment_layer_of_(o, h);
  j.layer = 1;
  return attn_segment_layer_job_call_(&j, params, "projections, attention behind a memory", ctx,
                                      bytes);
}
ATTN_CALL_(attn_segment_layer, (o, h, params), attn_tensor o, attn_tensor h,
           const attn_segment_layer_params *params)

ATTN_COLD_ attn_segment_layer_job_ attn_segment_project_of_(attn_tensor q, attn_tensor k,
                                                            attn_tensor v, attn_tensor h) {
  attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  attn_segment_layer_job_ j = attn_segment_layer_of_(none, h);
  j.project = 1, j.q = q, j.k = k, j.v = v;
  return j;
}
ATTN_COLD_ attn_status attn_segment_project_call_(attn_tensor q, attn_tensor k, attn_tensor v,
                                                  attn_tensor h,
                                                  const attn_segment_layer_params *params,
                                                  attn_ctx *ctx, size_t *bytes) {
  attn_segment_layer_job_ j = attn_segment_project_of_(q, k, v, h);
  return attn_segment_layer_job_call_(&j, params, "row products, split into heads", ctx, bytes);
}
ATTN_CALL_(attn_segment_project, (q, k, v, h, params), attn_tensor q, attn_tensor k, attn_tensor v,
           attn_tensor h, const attn_segment_layer_params *params)

ATTN_COLD_ attn_status attn_segment_output_call_(attn_tensor o, attn_tensor x, attn_tensor h,
                                                 const attn_segment_layer_params *params,
                                                 attn_ctx *ctx, size_t *bytes) {
  attn_segment_layer_job_ j = attn_segment_layer_of_(o, h);
  j.output = 1, j.x = x;
  return attn_segment_layer_job_call_(&j, params, "row products, residual and norm", ctx, bytes);
}
ATTN_CALL_(attn_segment_output, (o, x, h, params), attn_tensor o, attn_tensor x, attn_tensor h,
           const attn_segment_layer_params *params)
