/* families/training/relu_backward.h owns the call for the gradients of rectified attention, and those of RELA's norm. */

/* What a call is given. */
typedef struct attn_relu_back_ {
  attn_backward_call_ call; /* params and weights are to be set */
  const attn_relu_params *params;
  const attn_relu_gradients *gradients;
} attn_relu_back_;

/* The rules, and w and the call by params. */
ATTN_COLD_ int attn_relu_back_open_(attn_error_ *e, attn_relu_back_ *j, attn_rectified_ *w,
                                    attn_sdpa_params *scores, const attn_relu_params *p) {
  const attn_relu_gradients *g = j->gradients;
  const attn_sdpa_gradients *x = &g->attention;
  if (!attn_rectified_open_(e, w, &j->call.d_o, &j->call.q, p, scores)) return 0;
  if (x->d_lse.data || x->d_map.data)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.attention: d_lse and d_map need a softmax");
  if (x->d_scale && w->weights.scales)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.attention.d_scale wants a scale with GAU");
  const int rela = p->kind == ATTN_RELU_RELA;
  const int64_t n = attn_mul_(j->call.q.heads, j->call.v.dim);
  w->weights.d_sum = g->d_sum;
  w->weights.gain.y = g->d_gain, w->weights.gain.n = w->weights.gate.n = rela ? n : 0;
  w->weights.gate.y = g->d_gate;
  j->call.params = scores, j->call.gradients = x, j->call.weights = &w->weights;
  return 1;
}

/* ---- the gated norm -------------------------------------------------------------------------*/

typedef struct attn_rela_back_ {
  const attn_table_ *table;
  const attn_relu_params *p;
  const attn_relu_gradients *g;
  attn_tensor o, d,
      d_o;      /* RAW's output and the gradient by it, both dense, and that by the call's */
  double *root; /* [B,Tq]: 1 / sqrt(mean o^2 + eps) */
  char *memory;
  int64_t each;
} attn_rela_back_;

ATTN_FUNC_ int64_t attn_rela_rows_(const attn_rela_back_ *m, int64_t b) {
  return m->p->attention.q_len ? m->p->attention.q_len[b] : m->o.len;
}

/* sigmoid(gate o) of n <= 64 columns from c on, of a row and head. */
ATTN_FUNC_ void attn_rela_gate_(const attn_rela_back_ *m, const float *o, int64_t h, int64_t c,
                                int64_t n, double *g) {
  float e[64] = {0};
  const float *gate = m->p->gate + h * m->o.dim + c;
  for (int64_t i = 0; i < n; i++) e[i] = -(gate[i] * o[c + i]);
  m->table->exp(e, e, n);
  for (int64_t i = 0; i < n; i++) g[i] = 1.0 / (1.0 + (double)e[i]);
}

/* The gradient by a query's o: root (gu - u mean(gu u)) + gu u (1 - g) gate, gu = d_y gain g. */
ATTN_FUNC_ void attn_rela_back_row_(void *job, int worker, int64_t index) {
  const attn_rela_back_ *m = (const attn_rela_back_ *)job;
  const int64_t b = index / m->o.len, i = index % m->o.len, dv = m->o.dim, heads = m->o.heads;
  const attn_relu_params *p = m->p;
  const double eps = p->eps == 0.0f && !attn_to_bits_(p->eps) ? 1e-8 : (double)p->eps;
  float *room = (float *)(void *)(m->memory + worker * m->each);
  double sum = 0, all = 0, g[64];
  int64_t stride;
  const int there = i < attn_rela_rows_(m, b);
  for (int64_t h = 0; h < heads; h++) {
    const float *o = (const float *)(const void *)attn_at_(&m->o, b, h, i);
    if (!there) memset(attn_at_(&m->d, b, h, i), 0, (size_t)dv * sizeof(float));
    for (int64_t c = 0; c < dv; c++) sum += (double)o[c] * (double)o[c];
  }
  const double mean = sum / (double)(heads * dv);
  const double root = mean + eps == 0.0 ? 0.0 : 1.0 / sqrt(mean + eps);
  m->root[index] = root;
  for (int pass = 0; there && pass < 2; pass++)
    for (int64_t h = 0; h < heads; h++) {
      const float *o = (const float *)(const void *)attn_at_(&m->o, b, h, i);
      const float *d_y =
          attn_rows_in_(m->table, &m->d_o, attn_at_(&m->d_o, b, h, i), 1, dv, room, &stride);
      float *d = (float *)(void *)attn_at_(&m->d, b, h, i);
      for (int64_t c0 = 0, n; c0 < dv; c0 += n) {
        n = attn_min64_(64, dv - c0);
        attn_rela_gate_(m, o, h, c0, n, g);
        for (int64_t c = c0; c < c0 + n; c++) {
          const double gu = (double)d_y[c] * (double)p->gain[h * dv + c] * g[c - c0];
          const double u = (double)o[c] * root, gate = (double)p->gate[h * dv + c];
          if (pass == 0)
            all += gu * u;
          else
            d[c] = (float)(root * (gu - u * all / (double)(heads * dv)) +
                           gu * u * (1.0 - g[c - c0]) * gate);
        }
      }
    }
}

/* d_gain = sum d_y u g, d_gate = sum d_y gain u g (1 - g) o of a head, batch and rows ascending. */
ATTN_FUNC_ void attn_rela_back_head_(void *job, int worker, int64_t h) {
  const attn_rela_back_ *m = (const attn_rela_back_ *)job;
  const int64_t dv = m->o.dim;
  double *gain = (double *)(void *)(m->memory + worker * m->each), *gate = gain + dv, g[64];
  float *room = (float *)(void *)(gate + dv);
  int64_t stride;
  for (int64_t c = 0; c < 2 * dv; c++) gain[c] = 0;
  for (int64_t b = 0; b < m->o.batch; b++)
    for (int64_t i = 0; i < attn_rela_rows_(m, b); i++) {
      const float *o = (const float *)(const void *)attn_at_(&m->o, b, h, i);
      const float *d_y =
          attn_rows_in_(m->table, &m->d_o, attn_at_(&m->d_o, b, h, i), 1, dv, room, &stride);
      for (int64_t c0 = 0, n; c0 < dv; c0 += n) {
        n = attn_min64_(64, dv - c0);
        attn_rela_gate_(m, o, h, c0, n, g);
        for (int64_t c = c0; c < c0 + n; c++) {
          const double y = (double)d_y[c] * (double)o[c] * m->root[b * m->o.len + i] * g[c - c0];
          gain[c] += y;
          gate[c] += y * (double)m->p->gain[h * dv + c] * (1.0 - g[c - c0]) * (double)o[c];
        }
      }
    }
  for (int64_t c = 0; c < dv; c++) {
    const int more = m->g->attention.accumulate;
    if (m->g->d_gain) attn_terms_put_(&m->g->d_gain[h * dv + c], gain[c], more);
    if (m->g->d_gate) attn_terms_put_(&m->g->d_gate[h * dv + c], gate[c], more);
  }
}

/* RAW's output again, its gradient by that of the norm, and then RAW's own gradients. */
ATTN_COLD_ int attn_rela_back_steps_(attn_stage_ *s, void *job) {
  attn_relu_back_ j = *(const attn_relu_back_ *)job;
  const attn_tensor *q = &j.call.q;
  const int64_t dv = j.call.v.dim;
  attn_relu_params raw = *j.params;
  attn_rectified_ w;
  attn_sdpa_params scores;
  attn_rela_back_ m;
  raw.kind = ATTN_RELU_RAW, raw.gain = raw.gate = NULL, memset(&raw.sum, 0, sizeof raw.sum);
  attn_clear_(&m, sizeof m);
  m.table = s->table, m.p = j.params, m.g = j.gradients, m.d_o = j.call.d_o;
  m.o = attn_stage_tensor_(s, q->batch, q->heads, q->len, dv);
  m.d = attn_stage_tensor_(s, q->batch, q->heads, q->len, dv);
  m.root = (double *)attn_stage_take_(s, attn_mul_(q->batch, q->len), (int64_t)sizeof(double));
  if (!s->run) {
    if (!attn_relu_plan_(s->e, &w.relu, &m.o, q, &raw, &scores)) return 0;
    const int64_t bytes =
        attn_sdpa_need_(s->e, m.o, *q, j.call.k, j.call.v, &scores, &w.relu.reshape, &s->ctx, -1);
    if (bytes < 0) return 0;
    attn_stage_spare_(s, bytes);
  } else {
    s->ctx.workspace = attn_stage_spare_(s, 0), s->ctx.workspace_size = (size_t)s->spare;
    if (!attn_stage_done_(s, attn_relu(m.o, *q, j.call.k, j.call.v, &raw, &s->ctx))) return 0;
  }
  m.each = attn_piece_(dv, sizeof(float));
  if (!attn_stage_for_(s, attn_mul_(q->batch, q->len), attn_rela_back_row_, &m, m.each, &m.memory))
    return 0;
  m.each = attn_piece_(attn_mul_(5, dv), sizeof(float));
  if ((j.gradients->d_gain || j.gradients->d_gate) &&
      !attn_stage_for_(s, q->heads, attn_rela_back_head_, &m, m.each, &m.memory))
    return 0;
  j.call.d_o = m.d;
  attn_relu_gradients rest = *j.gradients;
  rest.d_gain = rest.d_gate = NULL, j.gradients = &rest;
  return attn_relu_back_open_(s->e, &j, &w, &scores, &raw) && attn_stage_sdpa_backward_(s, &j.call);
}

/* ---- the call -------------------------------------------------------------------------------*/

/* Gain and gate are read while outputs are written. */
ATTN_COLD_ int attn_rela_back_apart_(attn_error_ *e, const attn_relu_params *p, int64_t n,
                                     const attn_span_ *out, const attn_ctx *ctx, int data) {
  attn_span_ span[2], work;
  if (!attn_check_array_(e, p->gain, n, 4, "params.gain must be aligned to its elements", span) ||
      !attn_check_array_(e, p->gate, n, 4, "params.gate must be aligned to its elements",
                         span + 1) ||
      !attn_check_workspace_(e, ctx, &work))
    return 0;
  for (int y = 0; y < 2; y++)
    for (int x = 0; x <= (int)ATTN_GRADIENT_OUTPUTS_; x++)
      if (attn_overlap_(x < (int)ATTN_GRADIENT_OUTPUTS_ ? out[x] : work, span[y]))
        return attn_reject_(
            e, ATTN_E_OVERLAP,
            "params.gain and gate must not share memory with gradients or the workspace");
  return data <= 0 || (attn_check_finite_(e, p->gain, n, "params.gain must be finite") &&
                       attn_check_finite_(e, p->gate, n, "params.gate must be finite"));
}

ATTN_COLD_ attn_status attn_relu_backward_call_(attn_tensor d_q, attn_tensor d_k, attn_tensor d_v,
                                                attn_tensor d_o, attn_tensor q, attn_tensor k,
                                                attn_tensor v, const attn_relu_params *params,
                                                const attn_relu_gradients *gradients, attn_ctx *ctx,
                                                size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_relu_params p;
  attn_relu_gradients g;
  attn_rectified_ w;
  attn_sdpa_params scores;
  attn_softmax_ a;
  attn_backward_ job;
  attn_relu_back_ j;
  attn_span_ out[ATTN_GRADIENT_OUTPUTS_];
  int workers = 1;
  const int data = bytes ? 0 : 1;
  attn_clear_(&p, sizeof p), attn_clear_(&g, sizeof g), attn_clear_(&j, sizeof j);
  if (params) p = *params;
  if (gradients) g = *gradients;
  memset(&p.sum, 0, sizeof p.sum);
  j.call.d_q = d_q, j.call.d_k = d_k, j.call.d_v = d_v, j.call.d_o = d_o;
  j.call.q = q, j.call.k = k, j.call.v = v;
  j.params = &p, j.gradients = &g;
  if (!attn_relu_back_open_(&e, &j, &w, &scores, &p)) return attn_end_(bytes ? NULL : ctx, &e);
  if (p.kind != ATTN_RELU_RELA) {
    attn_backward_run_(&e, &j.call, ctx, bytes, data);
    return attn_end_(bytes ? NULL : ctx, &e);
  }
  if (!attn_backward_ready_(&e, &j.call, &a, &job, out, ctx, &workers, data) ||
      !attn_rela_back_apart_(&e, &p, attn_mul_(q.heads, v.dim), out, ctx, data))
    return attn_end_(bytes ? NULL : ctx, &e);
  const char *idle = attn_nothing_(&a)                        ? "no queries"
                     : !a.own_items && !g.d_gain && !g.d_gate ? "no output is asked for"
                                                              : NULL;
  if (idle && !bytes) attn_backward_nothing_(&job);
  return attn_step_call_or_(&e, a.table, workers, ctx, attn_rela_back_steps_, &j,
                            "forward again, its norm, then gradients", idle, bytes);
}
ATTN_CALL_(attn_relu_backward, (d_q, d_k, d_v, d_o, q, k, v, params, gradients), attn_tensor d_q,
           attn_tensor d_k, attn_tensor d_v, attn_tensor d_o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_relu_params *params, const attn_relu_gradients *gradients)
