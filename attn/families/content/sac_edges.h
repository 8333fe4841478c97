/* families/content/sac_edges.h owns the loop that draws the edges of sparse adaptive connection, two nodes an
 * edge. */

/* ---- the loop -------------------------------------------------------------------------------*/

/* Targets a source has to begin with. */
ATTN_FUNC_ void attn_sac_left_(const attn_sac_job_ *a, const attn_sac_rows_ *r,
                               const uint8_t *valid) {
  int32_t before = 0, all = 0;
  for (int64_t t = 0; t < a->nodes; t++) all += !valid || valid[t];
  for (int64_t t = 0; t < a->nodes; t++) {
    const int own = !valid || valid[t];
    r->left[t] = (a->p.causal ? before + own : all) - (a->p.no_self && own);
    r->last[t] = -1;
    before += own;
  }
}

/* Which targets source s may have. */
ATTN_FUNC_ void attn_sac_targets_(const attn_sac_job_ *a, const attn_sac_rows_ *r,
                                  const uint8_t *valid, const int32_t *edges, int64_t s) {
  for (int64_t t = 0; t < a->nodes; t++)
    r->allowed[t] = (!valid || valid[t]) && (!a->p.causal || t <= s) && (!a->p.no_self || t != s);
  for (int64_t e = a->p.repeat ? -1 : r->last[s]; e >= 0; e = r->before[e])
    r->allowed[edges[2 * e + 1]] = 0;
}

/* One head. */
ATTN_FUNC_ void attn_sac_item_(void *job, int worker, int64_t unit) {
  const attn_sac_job_ *a = (const attn_sac_job_ *)job;
  const int64_t b = unit / a->heads, h = unit % a->heads, t = a->nodes, n = a->n;
  const uint8_t *valid = a->p.valid ? a->p.valid + b * t : NULL;
  int32_t *edges = (int32_t *)a->edges.data, made = 0;
  float *log_p = (float *)a->log_p.data, chance;
  int64_t choices = 0;
  attn_sac_rows_ r;
  if (n > 0) edges += unit * n * 2;
  if (n > 0 && log_p) log_p += unit * n * 2;
  attn_sac_cut_(&r, a->memory + worker * a->each, a);
  attn_sac_left_(a, &r, valid);
  memset(r.h, 0, (size_t)a->dh * sizeof *r.h);
  memset(r.c, 0, (size_t)a->dh * sizeof *r.c);
  attn_sac_load_(a, r.x, &a->p.sos, 0, a->p.sos.heads > 1 ? h : 0, 0, a->de);
  for (int64_t turn = 0; turn < n; turn++) {
    const int64_t eb = a->e.batch > 1 ? b : 0, eh = a->e.heads > 1 ? h : 0;
    int64_t s = 0, to;
    float chances[2] = {0.0f, 0.0f};
    if (a->p.forced) {
      s = a->p.sources ? a->p.sources[unit * n + turn] : turn / (n / t);
      if (valid && !valid[s]) continue;
    }
    attn_lstm_cell_(a, &r, h, r.x);
    if (!a->p.forced) {
      for (int64_t i = 0; i < t; i++) r.allowed[i] = (!valid || valid[i]) && r.left[i] > 0;
      attn_pointer_row_(a, &r, b, h, r.h, -1);
      s = attn_choose_node_(a->table, r.logits, r.allowed, t,
                            attn_choose_number_(&a->p, h, choices), r.w, &chances[0]);
      if (s < 0) break;
      choices++;
    }
    attn_sac_load_(a, r.x, &a->e, eb, eh, s, a->de);
    attn_lstm_cell_(a, &r, h, r.x);
    if (r.left[s] <= 0) continue;
    attn_sac_targets_(a, &r, valid, edges, s);
    attn_pointer_row_(a, &r, b, h, r.h, s);
    to = attn_choose_node_(a->table, r.logits, r.allowed, t, attn_choose_number_(&a->p, h, choices),
                           r.w, &chance);
    choices++, chances[1] = chance;
    edges[2 * made] = (int32_t)s, edges[2 * made + 1] = (int32_t)to;
    if (log_p) memcpy(log_p + 2 * made, chances, sizeof chances);
    r.before[made] = r.last[s], r.last[s] = made++;
    if (!a->p.repeat) r.left[s]--;
    attn_sac_load_(a, r.x, &a->e, eb, eh, to, a->de);
  }
  ((int32_t *)a->count.data)[unit] = made;
  for (int64_t i = 2 * (int64_t)made; i < 2 * n; i++) edges[i] = -1;
  for (int64_t i = 2 * (int64_t)made; log_p && i < 2 * n; i++) log_p[i] = 0.0f;
}

ATTN_COLD_ int attn_sac_edges_steps_(attn_stage_ *s, void *job) {
  attn_sac_job_ *a = (attn_sac_job_ *)job;
  attn_sac_iota_(s, a);
  a->each = attn_sac_cut_(NULL, NULL, a);
  return attn_stage_for_(s, attn_mul_(a->batch, a->heads), attn_sac_item_, a, a->each, &a->memory);
}

/* ---- checks ---------------------------------------------------------------------------------*/

ATTN_PUB_ int64_t attn_sac_count(int64_t nodes, const attn_sac_params *params) {
  const double alpha = params ? params->alpha : 0.0, most = 2147483647.0;
  if (nodes < 0 || nodes > INT32_MAX || !(alpha >= 0.0 && alpha <= most)) return -1;
  const double n = params && params->forced && !params->sources ? floor(alpha) * (double)nodes
                                                                : floor(alpha * (double)nodes);
  return n <= most ? (int64_t)n : -1;
}

/* e, the network, and what decides which edges there may be; batch and heads are known. */
ATTN_COLD_ int attn_sac_network_check_(attn_error_ *e, attn_sac_job_ *j, attn_arguments_ *l,
                                       attn_sac_more_ *m, int data) {
  static const char w[] = ATTN_WORDS_("params.sos");
  attn_sac_params *p = &j->p;
  j->dh = p->lstm.w_hh.dim;
  if (!attn_pointer_check_(e, j, l) || !attn_lstm_check_(e, j, l, j->de) ||
      !attn_check_argument_(e, l, &p->sos, w, ATTN_OPTIONAL_, 1, ATTN_ONE_OR_ALL_, 1, j->de,
                            "params.sos must be [1, 1 or heads, 1, e.dim]"))
    return 0;
  j->n = attn_sac_count(j->nodes, p);
  if (j->n < 0)
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.alpha must be finite, not negative, and the edges below 2^31");
  const int64_t all = attn_mul_(j->batch, j->nodes);
  const int64_t n = p->forced ? attn_mul_(attn_mul_(j->batch, j->heads), j->n) : 0;
  if (!p->forced) p->sources = NULL;
  if (!attn_sac_array_(e, m, p->valid, all, 1, "") ||
      !attn_sac_array_(e, m, p->sources, n, 4, "params.sources must be aligned to its elements"))
    return 0;
  if (data && p->sources)
    for (int64_t i = 0; i < n; i++)
      if (p->sources[i] < 0 || p->sources[i] >= j->nodes)
        return attn_reject_(e, ATTN_E_INDEX, "params.sources must lie in 0..e.len-1");
  if (data && p->valid && j->nodes > 0)
    for (int64_t b = 0; b < j->batch; b++) {
      int64_t t = 0;
      while (t < j->nodes && !p->valid[b * j->nodes + t]) t++;
      if (t == j->nodes)
        return attn_reject_(e, ATTN_E_VALUE, "params.valid must have a node in each batch entry");
    }
  return 1;
}

ATTN_COLD_ int attn_sac_edges_check_(attn_error_ *e, attn_sac_job_ *j, attn_arguments_ *l,
                                     attn_sac_more_ *m, int data) {
  const int64_t any = ATTN_ANY_;
  if (j->p.heads < 0) return attn_reject_(e, ATTN_E_SHAPE, "params.heads must not be negative");
  l->batch = j->batch = j->e.batch, l->heads = j->heads = j->p.heads ? j->p.heads : 1;
  if (!attn_sac_network_check_(e, j, l, m, data)) return 0;
  j->edges = attn_bhtd(j->edges.data, ATTN_F32, j->batch, j->heads, j->n, 2);
  j->count = attn_bhtd(j->count.data, ATTN_F32, j->batch, j->heads, 1, 1);
  j->log_p = attn_bhtd(j->log_p.data, ATTN_F32, j->batch, j->heads, j->n, 2);
  j->nothing = j->batch == 0 || j->nodes == 0;
  return attn_check_argument_(e, l, &j->edges, ATTN_WORDS_("edges"), ATTN_OUT_, any, any, any, any,
                              "") &&
         attn_check_argument_(e, l, &j->count, ATTN_WORDS_("count"), ATTN_OUT_, any, any, any, any,
                              "") &&
         attn_check_argument_(e, l, &j->log_p, ATTN_WORDS_("log_p"), ATTN_OUT_ | ATTN_OPTIONAL_,
                              any, any, any, any, "");
}

/* ---- the call -------------------------------------------------------------------------------*/

ATTN_COLD_ attn_sac_job_ attn_sac_edges_job_(const int32_t *edges, const int32_t *count,
                                             const float *log_p, attn_tensor e) {
  attn_sac_job_ j;
  memset(&j, 0, sizeof j);
  j.edges = attn_sac_view_(edges), j.count = attn_sac_view_(count);
  j.log_p = attn_sac_view_(log_p), j.e = e;
  return j;
}
ATTN_COLD_ attn_status attn_sac_edges_call_(int32_t *edges, int32_t *count, float *log_p,
                                            attn_tensor e, const attn_sac_params *params,
                                            attn_ctx *ctx, size_t *bytes) {
  attn_sac_job_ j = attn_sac_edges_job_(edges, count, log_p, e);
  return attn_sac_run_(&j, params, 1, attn_sac_edges_check_, attn_sac_edges_steps_,
                       "edges one by one", ctx, bytes);
}
ATTN_CALL_(attn_sac_edges, (edges, count, log_p, e, params), int32_t *edges, int32_t *count,
           float *log_p, attn_tensor e, const attn_sac_params *params)
