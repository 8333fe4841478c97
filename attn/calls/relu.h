/* calls/relu.h owns attention with rectified weights (A4): checks, and the gated norm of RELA,
 * on the exact-softmax engine with another last stage. */

/* ---- what the engine calls ------------------------------------------------------------------*/

typedef struct attn_relu_ {
  attn_reshape_ reshape;
  const attn_relu_params *params;
  int square, by_square; /* of weights: they are squared, or divided by the square of the keys */
} attn_relu_;

ATTN_FUNC_ void attn_relu_weigh_(attn_tile_ *t, float *s, int64_t keys, int g0, int g1) {
  const attn_relu_ *r = (const attn_relu_ *)t->a->reshape->user;
  attn_on_(relu, t->a->table)->relu_block(s, keys, g0, g1, r->square, t->l, t->count);
}

/* Scores that are divided by the number of keys, which a first pass has counted. */
ATTN_FUNC_ int attn_relu_open_(attn_tile_ *t, float *by) {
  const attn_softmax_ *a = t->a;
  const attn_relu_ *relu = (const attn_relu_ *)a->reshape->user;
  for (int r = 0; r < t->n; r++) {
    const float n = a->state_n[attn_row_number_(a, t->batch, t->head[r], t->row[r])];
    const float keys = relu->params->by_keys ? (float)a->k.len : n;
    by[r] = 1.0f / (keys > 1.0f ? keys : 1.0f);
  }
  return 1;
}

/* What the rectified scores of a row are multiplied by; keys: how many it has, l: their sum. */
ATTN_FUNC_ double attn_relu_factor_(const attn_relu_params *p, double keys, double l) {
  const double n = keys > 1.0 ? keys : 1.0;
  if (p->kind == ATTN_RELU_LEN) {
    const double alpha = p->alpha == 0.0f && !attn_to_bits_(p->alpha) ? 1.0 : (double)p->alpha;
    return alpha == 1.0 ? 1.0 / n : pow(n, -alpha);
  }
  if (p->kind == ATTN_RELU_VAR)
    return 1.0 / ((p->gamma == 0.0f ? 1.0 : (double)p->gamma) * sqrt(n / 2.0));
  if (p->kind != ATTN_RELU_NORM) return 1.0;
  const double sum = (double)p->eps + l;
  return sum == 0.0 ? 0.0 : 1.0 / sum;
}

/* What the sums of rectified weights are multiplied by: t->scale, and the sums themselves. */
ATTN_FUNC_ void attn_tile_relu_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const attn_relu_ *relu = (const attn_relu_ *)a->reshape->user;
  const attn_relu_params *p = relu->params;
  for (int r = 0; r < t->n; r++) {
    const double keys = p->by_keys ? (double)a->k.len : (double)t->count[r];
    const double n = keys > 1.0 ? keys : 1.0, l = (double)t->l[r];
    const double c = relu->by_square ? 1.0 / (n * n) : attn_relu_factor_(p, keys, l);
    t->scale[r] = (float)attn_clamp_f64_(c); /* 0 times it stays 0 */
    if (!a->lse.data) continue;
    float sum = (float)(c * l);
    memcpy(attn_at_(&a->lse, t->batch, t->head[r], t->row[r]), &sum, sizeof sum);
  }
}

/* ---- checks ---------------------------------------------------------------------------------*/

/* The rules that attn_sdpa has not, and what the engine is told. */
ATTN_COLD_ int attn_relu_plan_(attn_error_ *e, attn_relu_ *r, const attn_tensor *o,
                               const attn_tensor *q, const attn_relu_params *p,
                               attn_sdpa_params *scores) {
  const attn_sdpa_params *s = &p->attention;
  if ((int)p->kind < 0 || p->kind > ATTN_RELU_RELA)
    return attn_reject_(e, ATTN_E_RANGE, "params.kind must be an attn_relu_kind");
  if (p->power < 0 || p->power > 2)
    return attn_reject_(e, ATTN_E_RANGE, "params.power must be 0, 1 or 2");
  if (p->power == 2 && (p->kind == ATTN_RELU_VAR || p->kind == ATTN_RELU_RELA))
    return attn_reject_(e, ATTN_E_RANGE, "params.power must be 0 or 1 for VAR and RELA");
  if (!(p->alpha >= 0.0f && p->alpha < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.alpha must be finite and not negative");
  if (!(p->gamma >= 0.0f && p->gamma < INFINITY) || (p->gamma == 0.0f && attn_to_bits_(p->gamma)))
    return attn_reject_(e, ATTN_E_VALUE, "params.gamma must be finite and positive, or 0 for 1");
  if (!(p->eps >= 0.0f && p->eps < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.eps must be finite and not negative");
  if (s->sinks || s->softmax_one)
    return attn_reject_(e, ATTN_E_RANGE, "params.attention: sinks and softmax_one need a softmax");
  if (s->span.z || s->relative.values.data)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.attention: span and relative.values need a softmax");
  if (s->lse.data || s->map.data)
    return attn_reject_(e, ATTN_E_RANGE, "params.attention: lse and map need a softmax");
  if (p->kind == ATTN_RELU_RELA) {
    const int64_t n = q->heads > 0 && o->dim > 0 ? attn_mul_(q->heads, o->dim) : 0;
    if (!p->gain || !p->gate)
      return attn_reject_(e, ATTN_E_NULL, "params.gain and params.gate must not be null for RELA");
    if ((uintptr_t)p->gain % 4 || (uintptr_t)p->gate % 4)
      return attn_reject_(e, ATTN_E_ALIGN,
                          "params.gain and gate must be aligned to their elements");
    if (o->dtype != ATTN_F32)
      return attn_reject_(e, ATTN_E_DTYPE, "o.dtype must be ATTN_F32 for RELA");
    if (n > INT64_MAX / 8) return attn_reject_(e, ATTN_E_OVERFLOW, "q.heads * o.dim is too large");
  }
  if (p->sum.data && p->sum.dtype != ATTN_F32)
    return attn_reject_(e, ATTN_E_DTYPE, "params.sum.dtype must be ATTN_F32");
  static const char wq[] = ATTN_WORDS_("q");
  if (!attn_check_set_(e, q, wq)) return 0;
  if (p->sum.data && (p->sum.batch != q->batch || p->sum.heads != q->heads ||
                      p->sum.len != q->len || p->sum.dim != 1))
    return attn_reject_(e, ATTN_E_SHAPE, "params.sum must be [q.batch, q.heads, q.len, 1]");
  *scores = *s;
  scores->lse = p->sum;
  memset(r, 0, sizeof *r);
  r->params = p;
  r->reshape.user = r, r->reshape.natural = 1;
  r->reshape.weigh = attn_relu_weigh_, r->reshape.finish = attn_tile_relu_;
  r->square = p->power == 2 || p->kind == ATTN_RELU_GAU;
  if (p->kind == ATTN_RELU_GAU && s->scale == 0.0f && !attn_to_bits_(s->scale)) {
    if (s->toeplitz.table && s->toeplitz.inside)
      return attn_reject_(e, ATTN_E_RANGE,
                          "params.attention.toeplitz.inside needs a scale with GAU");
    /* c = 1/n of each row. relu(x / n)^2 is relu(x)^2 / n^2 unless something is added to x: then a
     * first pass counts n */
    const int added = (attn_terms_of_(s) & attn_terms_with_(ATTN_TERM_ADDED_)) != 0;
    scores->scale = 1.0f;
    r->by_square = !added;
    if (added) r->reshape.tally = attn_relu_weigh_, r->reshape.open = attn_relu_open_;
  }
  return 1;
}

typedef struct attn_rela_ {
  const attn_table_ *table;
  const attn_relu_params *params;
  attn_tensor o;
} attn_rela_;

/* y = gain o / sqrt(mean o^2 + eps) sigmoid(gate o), one query; a row of zeros stays zero */
ATTN_FUNC_ void attn_rela_item_(void *job, int worker, int64_t index) {
  const attn_rela_ *m = (const attn_rela_ *)job;
  const attn_relu_params *p = m->params;
  const int64_t b = index / m->o.len, i = index % m->o.len, dv = m->o.dim;
  const double eps = p->eps == 0.0f && !attn_to_bits_(p->eps) ? 1e-8 : (double)p->eps;
  double sum = 0.0;
  float e[64];
  (void)worker;
  for (int64_t h = 0; h < m->o.heads; h++) {
    const float *x = (const float *)(const void *)attn_at_(&m->o, b, h, i);
    for (int64_t c = 0; c < dv; c++) sum += (double)x[c] * (double)x[c];
  }
  const double mean = sum / (double)(m->o.heads * dv);
  const double by = mean + eps == 0.0 ? 0.0 : 1.0 / sqrt(mean + eps);
  for (int64_t h = 0; h < m->o.heads; h++) {
    float *x = (float *)(void *)attn_at_(&m->o, b, h, i);
    for (int64_t c0 = 0; c0 < dv; c0 += 64) {
      const int64_t n = dv - c0 < 64 ? dv - c0 : 64;
      for (int64_t c = 0; c < n; c++) e[c] = -(p->gate[h * dv + c0 + c] * x[c0 + c]);
      m->table->exp(e, e, n);
      for (int64_t c = 0; c < n; c++)
        x[c0 + c] = p->gain[h * dv + c0 + c] * (float)((double)x[c0 + c] * by) / (1.0f + e[c]);
    }
  }
}

/* The vectors of RELA are read while o is written. */
ATTN_COLD_ int attn_rela_apart_(attn_error_ *e, const attn_softmax_ *a, const attn_relu_params *p,
                                const attn_ctx *ctx) {
  static const char w[] = ATTN_WORDS_("o");
  const int64_t n = a->q.heads * a->o.dim;
  attn_tensor o = a->o, sum = a->lse;
  attn_span_ span[4], work;
  memset(span, 0, sizeof span);
  if (!attn_check_tensor_(e, &o, w, &span[0]) ||
      (sum.data && !attn_check_tensor_(e, &sum, w, &span[1])) ||
      !attn_check_array_(e, p->gain, n, 4, "params.gain must be aligned to its elements",
                         &span[2]) ||
      !attn_check_array_(e, p->gate, n, 4, "params.gate must be aligned to its elements", &span[3]))
    return 0;
  if (!attn_check_workspace_(e, ctx, &work)) return 0;
  for (int y = 2; y < 4; y++)
    if (attn_overlap_(work, span[y]))
      return attn_reject_(e, ATTN_E_OVERLAP,
                          "ctx.workspace must not share memory with params.gain or gate");
  for (int x = 0; x < 2; x++)
    for (int y = 2; y < 4; y++)
      if (attn_overlap_(span[x], span[y]))
        return attn_reject_(e, ATTN_E_OVERLAP,
                            "params.gain and gate must not share memory with o or params.sum");
  return 1;
}

ATTN_PUB_COLD_ size_t attn_relu_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, const attn_relu_params *params,
                                          const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_relu_params zero;
  attn_sdpa_params scores;
  attn_relu_ r;
  memset(&zero, 0, sizeof zero);
  if (!attn_relu_plan_(&e, &r, &o, &q, params ? params : &zero, &scores))
    return ATTN_WORKSPACE_REJECTED;
  const int64_t bytes = attn_sdpa_need_(&e, o, q, k, v, &scores, &r.reshape, ctx, 0);
  return attn_answer_(e.status, bytes);
}

ATTN_PUB_COLD_ attn_status attn_relu(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const attn_relu_params *params, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_relu_params zero;
  attn_sdpa_params scores;
  attn_softmax_ a;
  attn_relu_ r;
  int workers;
  memset(&a, 0, sizeof a);
  memset(&zero, 0, sizeof zero);
  a.o = o, a.q = q, a.k = k, a.v = v, a.reshape = &r.reshape;
  const attn_relu_params *p = params ? params : &zero;
  const int rela = p->kind == ATTN_RELU_RELA;
  if (!attn_relu_plan_(&e, &r, &o, &q, p, &scores) ||
      !attn_sdpa_plan_(&e, &a, &scores, ctx, &workers, 1) ||
      (rela && !attn_rela_apart_(&e, &a, p, ctx)) ||
      (rela && (!attn_check_finite_(&e, p->gain, q.heads * o.dim, "params.gain must be finite") ||
                !attn_check_finite_(&e, p->gate, q.heads * o.dim, "params.gate must be finite"))))
    return attn_end_(ctx, &e);
  if (attn_nothing_(&a)) {
    attn_report_(ctx, a.table, 1, "no-op", "no queries");
  } else if (attn_softmax_run_(&e, &a, ctx, workers) && rela) {
    attn_rela_ m = {a.table, p, a.o};
    const int64_t rows = a.o.batch * a.o.len;
    attn_for_(ctx, attn_pieces_(workers, rows), rows, attn_rela_item_, &m);
  }
  return attn_end_(ctx, &e);
}
