/* calls/differential.h owns the difference of two softmaxes: a problem of the exact-softmax engine for each map, the
 * second of which ends its tiles with the difference, its norm and factor. */

typedef struct attn_differential_job_ {
  attn_reshape_ reshape[2]; /* what the engine is told of each map */
  const attn_differential_params *p;
  attn_softmax_ a[2];
  attn_tensor first; /* f32 [B,H,Tq,dv]: of the first map, o itself where it may be */
  float lambda;      /* of all rows, without p->lambdas */
  double init;       /* l0 */
} attn_differential_job_;

/* The end of the second map's tiles. o: their rows, else w.ot. */
ATTN_FUNC_ void attn_differential_gate_(attn_tile_ *t, float *o, int64_t width) {
  const attn_differential_job_ *j = (const attn_differential_job_ *)t->a->reshape->user;
  const attn_differential_params *p = j->p;
  const int64_t dv = t->a->v.dim;
  const double eps = p->eps == 0.0f && !attn_to_bits_(p->eps) ? 1e-5 : (double)p->eps;
  float lambda[ATTN_TILE_], x[ATTN_GROUP_ * ATTN_TILE_];
  double sum[ATTN_TILE_] = {0};
  const void *rows[ATTN_TILE_];
  for (int r = 0; r < t->n; r++) {
    const int64_t b = t->batch, h = t->head[r], i = t->row[r];
    lambda[r] = j->lambda;
    if (p->lambdas.data)
      lambda[r] = attn_number_(attn_at_(&p->lambdas, b, h, i), 0, p->lambdas.dtype, NULL);
    rows[r] = attn_at_(&j->first, b, h, i);
  }
  for (int64_t c = 0, n; c < dv; c += n) {
    n = dv - c < ATTN_GROUP_ ? dv - c : (int64_t)ATTN_GROUP_;
    t->a->table->pack(x, rows, t->n, n, ATTN_F32, 1.0f, attn_least_(1.0f));
    for (int64_t i = 0; i < n; i++) {
      float *to = o ? o + c + i : t->w.ot + (c + i) * ATTN_TILE_;
      const float gain = p->gain && !p->no_norm ? p->gain[c + i] : 1.0f;
      const int64_t step = o ? width : 1;
      for (int r = 0; r < t->n; r++) {
        const float y = x[i * ATTN_TILE_ + r] - lambda[r] * (to[r * step] * t->scale[r]);
        sum[r] += (double)y * (double)y;
        to[r * step] = y * gain;
      }
    }
    for (int r = 0; r < t->n; r++) rows[r] = (const float *)rows[r] + n;
  }
  for (int r = 0; r < t->n; r++) { /* a row of zeros stays that, with eps = 0 too */
    t->scale[r] = p->no_norm ? 1.0f : (float)((1.0 - j->init) / sqrt(sum[r] / (double)dv + eps));
    if (sum[r] == 0.0 && eps == 0.0 && !p->no_norm) t->scale[r] = 0.0f;
  }
}

/* The heads of one map. */
ATTN_COLD_ attn_tensor attn_differential_half_(attn_tensor t, int map) {
  if (map && t.heads > 0 && t.data) t = attn_stage_shift_(t, t.stride_head);
  t.heads /= 2, t.stride_head = attn_mul_(t.stride_head, 2);
  return t;
}
ATTN_COLD_ void attn_differential_scales_(attn_scales *s, int map) {
  if (map && s->scale) s->scale += s->stride_head;
  if (map && s->zero) s->zero += s->stride_head;
  s->stride_head = attn_mul_(s->stride_head, 2);
}

/* Rules of the numbers. */
ATTN_COLD_ int attn_differential_rules_(attn_error_ *e, const attn_differential_params *p) {
  const float *const given[4] = {p->lambda_q1, p->lambda_k1, p->lambda_q2, p->lambda_k2};
  const int vectors =
      (given[0] != NULL) + (given[1] != NULL) + (given[2] != NULL) + (given[3] != NULL);
  if (vectors % 4)
    return attn_reject_(e, ATTN_E_NULL, "params.lambda_q1, k1, q2 and k2 go together");
  if (vectors ? p->lambda_dim < 1 : p->lambda_dim != 0)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.lambda_dim must be the length of the vectors, 0 without them");
  if ((p->lambdas.data != NULL) + (p->has_lambda != 0) + (vectors != 0) > 1)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.lambdas, has_lambda and lambda_q1 exclude each other");
  if (p->lambda != 0.0f && !p->has_lambda)
    return attn_reject_(e, ATTN_E_RANGE, "params.lambda needs params.has_lambda = 1");
  if (!(p->lambda - p->lambda == 0.0f && p->init - p->init == 0.0f))
    return attn_reject_(e, ATTN_E_VALUE, "params.lambda and init must be finite");
  if (p->layer < 0) return attn_reject_(e, ATTN_E_RANGE, "params.layer must not be negative");
  if (!(p->eps >= 0.0f && p->eps < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.eps must be finite and not negative");
  if (p->attention.lse.data || p->attention.map.data)
    return attn_reject_(e, ATTN_E_RANGE, "params.attention.lse and map must be absent");
  return 1;
}

/* l0, and the weight of all rows. */
ATTN_COLD_ int attn_differential_weight_(attn_error_ *e, attn_differential_job_ *j, int data) {
  const attn_differential_params *p = j->p;
  const double layer = p->layer > 0 ? (double)p->layer : 1.0;
  const int given = p->init != 0.0f || attn_to_bits_(p->init);
  double dot[2] = {0.0, 0.0};
  j->init = given ? (double)p->init : 0.8 - 0.6 * exp(-0.3 * (layer - 1.0));
  j->lambda = p->lambda;
  if (p->has_lambda || p->lambdas.data || data <= 0) return 1;
  for (int64_t c = 0; p->lambda_q1 && c < p->lambda_dim; c++) {
    dot[0] += (double)p->lambda_q1[c] * (double)p->lambda_k1[c];
    dot[1] += (double)p->lambda_q2[c] * (double)p->lambda_k2[c];
  }
  const double lambda = exp(dot[0]) - exp(dot[1]) + j->init;
  if (!(fabs(lambda) <= (double)FLT_MAX))
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.lambda_q1, k1, q2 and k2 must give a finite lambda");
  j->lambda = (float)lambda;
  return 1;
}

/* The arguments that attn_sdpa has not, once it has judged its own. */
ATTN_COLD_ int attn_differential_check_(attn_error_ *e, const attn_differential_job_ *j,
                                        const attn_ctx *ctx) {
  const attn_differential_params *p = j->p;
  attn_tensor o = j->a[0].o, lambdas = p->lambdas;
  const int64_t any = ATTN_ANY_;
  enum { GAIN = 4, MORE };
  attn_span_ more[MORE];
  attn_operand_ op[2] = {
      ATTN_OPERAND_(&o, "o", ATTN_OUT_, any, any, any, any, ""),
      ATTN_OPERAND_(&lambdas, "params.lambdas", ATTN_OPTIONAL_, o.batch, o.heads, o.len, 1,
                    "params.lambdas must be [o.batch, o.heads, o.len, 1]")};
  const float *const array[MORE] = {p->lambda_q1, p->lambda_k1, p->lambda_q2, p->lambda_k2,
                                    p->gain};
  for (int i = 0; i < 2; i++)
    if (!attn_check_operand_(e, &op[i], o.heads)) return 0;
  for (int i = 0; i < MORE; i++)
    if (!attn_check_array_(
            e, array[i], i == GAIN ? o.dim : p->lambda_dim, 4,
            i == GAIN ? "params.gain must be aligned to its elements"
                      : "params.lambda_q1, k1, q2 and k2 must be aligned to their elements",
            &more[i]))
      return 0;
  return attn_check_apart_(e, ctx, op, 2, more, MORE);
}

/* Both maps as problems of the engine. */
ATTN_COLD_ int attn_differential_plan_(attn_error_ *e, attn_differential_job_ *j, attn_tensor o,
                                       attn_tensor q, attn_tensor k, attn_tensor v,
                                       const attn_ctx *ctx, int *workers, int data) {
  static const char wo[] = ATTN_WORDS_("o"), wq[] = ATTN_WORDS_("q"), wk[] = ATTN_WORDS_("k");
  attn_span_ span;
  if (!attn_check_tensor_(e, &o, wo, &span) || !attn_check_tensor_(e, &q, wq, &span) ||
      !attn_check_stored_(e, &k, wk, &span))
    return 0;
  if (q.heads % 2 || k.heads % 2)
    return attn_reject_(e, ATTN_E_HEADS, "q.heads and k.heads must be even: two maps a head");
  if (o.heads != q.heads / 2)
    return attn_reject_(e, ATTN_E_SHAPE, "o.heads must be half of q.heads");
  for (int map = 0; map < 2; map++) {
    attn_softmax_ *a = &j->a[map];
    attn_sdpa_params p = j->p->attention;
    a->o = o, a->v = v, a->reshape = &j->reshape[map];
    a->q = attn_differential_half_(q, map), a->k = attn_differential_half_(k, map);
    attn_differential_scales_(&p.k_scales, map);
    j->reshape[map].few = 1, j->reshape[map].user = j;
    if (!attn_sdpa_plan_(e, a, &p, ctx, workers, data)) return 0;
  }
  j->reshape[1].gate = attn_differential_gate_;
  return attn_differential_check_(e, j, ctx) && attn_differential_weight_(e, j, data);
}

/* Runs both. room: of one, in front of which is a copy of o. */
ATTN_COLD_ void attn_differential_run_(attn_error_ *e, attn_differential_job_ *j, attn_ctx *ctx,
                                       int workers, int64_t copy, int64_t room) {
  attn_workspace_ w;
  attn_ctx own = attn_before_workspace_(ctx);
  int64_t pairs = 0;
  const attn_tensor *o = &j->a[1].o;
  j->first = *o;
  if (!attn_workspace_get_(e, &w, ctx, attn_add_(copy, room))) return;
  if (copy) j->first = attn_bhtd(w.base, ATTN_F32, o->batch, o->heads, o->len, o->dim);
  j->a[0].o = j->first;
  own.workspace = w.base + copy, own.workspace_size = (size_t)room;
  for (int map = 0; map < 2 && e->status == ATTN_OK; map++) {
    attn_softmax_run_(e, &j->a[map], &own, workers);
    pairs += own.report.pairs;
  }
  if (ctx && e->status == ATTN_OK) ctx->report = own.report, ctx->report.pairs = pairs;
  attn_workspace_drop_(&w);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_differential_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                               attn_tensor v,
                                               const attn_differential_params *params,
                                               attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_differential_params p;
  attn_differential_job_ j;
  int workers;
  memset(&p, 0, sizeof p), memset(&j, 0, sizeof j);
  if (params) p = *params;
  j.p = &p;
  if (!attn_differential_rules_(&e, &p)) return attn_end_(bytes ? NULL : ctx, &e);
  if (!attn_differential_plan_(&e, &j, o, q, k, v, ctx, &workers, bytes ? 0 : 1))
    return attn_end_(bytes ? NULL : ctx, &e);
  if (attn_nothing_(&j.a[0])) {
    if (!bytes) attn_report_(ctx, j.a[0].table, 1, "no-op", "no queries");
    return attn_end_(bytes ? NULL : ctx, &e);
  }
  if (bytes && ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  const int64_t room =
      attn_max64_(attn_softmax_bytes_(&j.a[0], workers), attn_softmax_bytes_(&j.a[1], workers));
  /* rows of o hold those of the first map until the second is there, but not while they wait between phases */
  const attn_tensor *to = &j.a[0].o;
  const int64_t rows = attn_mul_(attn_mul_(to->batch, to->heads), to->len);
  const int64_t copy = to->dtype == ATTN_F32 && j.a[0].phases == 1
                           ? 0
                           : attn_piece_(attn_mul_(rows, to->dim), sizeof(float));
  if (!bytes)
    attn_differential_run_(&e, &j, ctx, workers, copy, room);
  else if (attn_workspace_fits_(&e, attn_add_(copy, room)))
    *bytes = (size_t)attn_add_(copy, room);
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_CALL_(attn_differential, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_differential_params *params)
