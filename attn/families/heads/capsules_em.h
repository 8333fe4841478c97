/* families/heads/capsules_em.h owns EM routing of heads: a mixture of Gaussians is fitted to the votes of
 * each token. */

typedef struct attn_em_ {
  attn_votes_ votes;      /* first: items get it */
  attn_tensor activation; /* absent = 1 */
  const float *beta_u, *beta_a, *lambda;
  int64_t betas;
  float eps;
  int act;
} attn_em_;

/* sum log2 x[c] of positive numbers: the logarithm of a product of mantissas, and their exponents. */
ATTN_FUNC_ double attn_em_log2_(const float *x, int64_t n) {
  double sum = 0.0, product = 1.0;
  int64_t exponent = 0;
  for (int64_t c = 0; c < n; c++) {
    const uint32_t bits = attn_to_bits_(x[c]);
    exponent += (int64_t)(bits >> 23) - 127;
    product *= (double)attn_from_bits_((bits & 0x7fffffu) | 0x3f800000u);
    if (c % 64 == 63) sum += attn_log2_((float)product), product = 1.0;
  }
  return sum + attn_log2_((float)product) + (double)exponent;
}

/* What a token works in. */
typedef struct attn_em_room_ {
  double *log_var, *log_act; /* [N]; log_var: sum_d log var_n[d] */
  attn_votes_room_ r;
  float *mu, *var;    /* [N dc] */
  float *z;           /* [H][N dc] squares of u - mu */
  float *share, *p;   /* [H][N] R, and R a or the exponents that make R, in log2 units */
  float *mass, *some; /* [N] */
  float *a;           /* [H], over their largest, */
  double most;        /* which only the cost knows */
} attn_em_room_;

ATTN_FUNC_ int64_t attn_em_cut_(const attn_votes_ *a, attn_em_room_ *w, float *at) {
  const int64_t pairs = attn_mul_(a->n, a->heads), m = a->m, n = a->n;
  const int64_t size[] = {m, m, attn_mul_(a->heads, m), pairs, pairs, n, n, a->heads};
  float **to[] = {&w->mu, &w->var, &w->z, &w->share, &w->p, &w->mass, &w->some, &w->a};
  int64_t total = attn_mul_(4, n);
  if (at) w->log_var = (double *)(void *)at, w->log_act = w->log_var + n;
  total = attn_add_(total, attn_votes_cut_(a, &w->r, at ? at + total : NULL));
  for (int i = 0; i < 8; i++) {
    if (at) *to[i] = at + total;
    total = attn_add_(total, size[i]);
  }
  return total;
}

/* y_n = sum_h p[h][n] x_hn / mass_n */
ATTN_FUNC_ void attn_em_mean_(const attn_votes_ *a, const attn_em_room_ *w, float *y,
                              const float *x, int64_t stride) {
  attn_votes_sum_(a, &w->r, y, w->p, x, stride);
  a->table->scale_rows(y, a->dc, y, a->dc, a->n, a->dc, w->r.inv);
}

/* z_h = x_h - y */
ATTN_FUNC_ void attn_em_less_(const attn_votes_ *a, float *z, const float *x, int64_t stride,
                              const float *y) {
  for (int64_t h = 0; h < a->heads; h++)
    a->table->blend(z + h * a->m, x + h * stride, y, ATTN_F32, ATTN_F32, ATTN_F32, a->m, 1.0f,
                    -1.0f);
}

/* The M step, but for activations. A variance may be far below the squares of votes, so the mean is corrected
 * by that of the distances to it: those are then right to a few roundings of themselves. */
ATTN_FUNC_ void attn_em_fit_(const attn_em_ *g, const attn_em_room_ *w, const float *u,
                             int64_t stride) {
  const attn_votes_ *a = &g->votes;
  const attn_table_ *f = a->table;
  const int64_t m = a->m;
  f->scale_rows(w->p, a->n, w->share, a->n, a->heads, a->n, w->a);
  memset(w->mass, 0, (size_t)a->n * sizeof(float));
  attn_on_(sum, f)->axpys(w->mass, a->ones, w->p, a->n, a->index, a->heads, a->n, ATTN_F32, 1.0f,
                          0);
  for (int64_t n = 0; n < a->n; n++) w->r.inv[n] = 1.0f / w->mass[n];
  attn_em_mean_(a, w, w->mu, u, stride);
  attn_em_less_(a, w->z, u, stride, w->mu);
  attn_em_mean_(a, w, w->var, w->z, m);
  attn_em_less_(a, w->z, w->z, m, w->var);
  f->blend(w->mu, w->mu, w->var, ATTN_F32, ATTN_F32, ATTN_F32, m, 1.0f, 1.0f);
  attn_on_(norm, f)->normalise(w->z, a->heads * m, 0.0f, 1.0f, 0.0f, w->z, NULL); /* z z */
  attn_em_mean_(a, w, w->var, w->z, m);
  attn_on_(norm, f)->normalise(w->var, m, 0.0f, 1.0f, g->eps, NULL, NULL);
  for (int64_t n = 0; n < a->n; n++)
    w->log_var[n] = attn_em_log2_(w->var + n * a->dc, a->dc) * ATTN_LN2_;
}

/* log act_n = -log(1 + e^x) = -max(x, 0) - log(1 + e^-|x|), x = lambda (cost_n - beta_a,n) */
ATTN_FUNC_ void attn_em_activate_(const attn_em_ *g, const attn_em_room_ *w, int64_t k) {
  const attn_votes_ *a = &g->votes;
  const int64_t r = a->rounds, some = r < 3 ? r : 3, all = r > 1 ? r - 1 : 1;
  const double lambda =
      g->lambda ? (double)g->lambda[k] : 1.0 + (double)(some - 1) * (double)k / (double)all;
  for (int64_t n = 0; n < a->n; n++) {
    const int64_t at = g->betas > 1 ? n : 0;
    const double bu = g->beta_u ? (double)g->beta_u[at] : 0.0;
    const double ba = g->beta_a ? (double)g->beta_a[at] : 0.0;
    const double cost = w->most * (double)w->mass[n] * ((double)a->dc * bu + 0.5 * w->log_var[n]);
    const double x = lambda * (cost - ba);
    w->log_act[n] = x > 0.0 ? -x : 0.0;
    w->some[n] = (float)attn_clamp_f64_(-fabs(x) * ATTN_LOG2E_);
  }
  attn_on_(dense, a->table)->activate(w->some, a->n, NULL, 1.0f, ATTN_ACT_SOFTPLUS2_);
  for (int64_t n = 0; n < a->n; n++) w->log_act[n] -= (double)w->some[n] * ATTN_LN2_;
}

/* The E step. What all capsules have in common leaves the exponents first. */
ATTN_FUNC_ void attn_em_expect_(const attn_em_ *g, const attn_em_room_ *w) {
  const attn_votes_ *a = &g->votes;
  double top = -HUGE_VAL;
  for (int64_t n = 0; n < a->n; n++) {
    w->log_var[n] = -0.5 * w->log_var[n] + (g->act ? w->log_act[n] : 0.0);
    if (w->log_var[n] > top) top = w->log_var[n];
  }
  for (int64_t n = 0; n < a->n; n++)
    w->some[n] = (float)attn_clamp_f64_((w->log_var[n] - top) * ATTN_LOG2E_);
  for (int64_t c = 0; c < a->m; c++) w->var[c] = (float)(-0.5 * ATTN_LOG2E_) / w->var[c];
  attn_votes_dots_(a, &w->r, w->p, w->var, w->z, a->m, w->some);
  attn_votes_softmax_(a, &w->r, w->share, w->p);
  attn_on_(norm, a->table)->normalise(w->share, a->n * a->heads, 0.0f, 1.0f, g->eps, NULL, NULL);
}

/* The activations of a token's heads. */
ATTN_FUNC_ void attn_em_weigh_(const attn_em_ *g, attn_em_room_ *w, int64_t b, int64_t t) {
  const attn_tensor *a = &g->activation;
  float most = a->data ? 0.0f : 1.0f;
  for (int64_t h = 0; h < g->votes.heads; h++) {
    w->a[h] = a->data ? attn_number_(attn_at_(a, b, h, t), 0, a->dtype, NULL) : 1.0f;
    if (w->a[h] > most) most = w->a[h];
  }
  for (int64_t h = 0; h < g->votes.heads; h++) w->a[h] /= most;
  w->most = (double)most;
}

ATTN_FUNC_ void attn_em_item_(void *job, int worker, int64_t index) {
  const attn_em_ *g = (const attn_em_ *)job;
  const attn_votes_ *a = &g->votes;
  attn_em_room_ w;
  int64_t b, t0, stride, next;
  const int64_t tokens = attn_votes_first_(a, index, &b, &t0);
  const float *u = attn_votes_of_(a, worker, b, t0, tokens, &stride, &next);
  attn_em_cut_(a, &w, (float *)(void *)(a->memory + worker * a->each + a->at_token));
  for (int64_t t = 0; t < tokens; t++, u += next) {
    attn_em_weigh_(g, &w, b, t0 + t);
    for (int64_t i = 0; i < a->n * a->heads; i++) w.share[i] = (float)(1.0 / (double)a->n);
    for (int64_t k = 0;; k++) {
      attn_em_fit_(g, &w, u, stride);
      if (g->act) attn_em_activate_(g, &w, k);
      if (k + 1 == a->rounds) break;
      attn_em_expect_(g, &w);
    }
    if (g->act) {
      for (int64_t n = 0; n < a->n; n++) w.some[n] = (float)attn_clamp_f64_(w.log_act[n]);
      a->table->exp(w.some, w.some, a->n);
      a->table->scale_rows(w.mu, a->dc, w.mu, a->dc, a->n, a->dc, w.some);
    }
    attn_votes_put_(a, b, t0 + t, w.mu);
  }
}

ATTN_COLD_ int attn_em_steps_(attn_stage_ *s, void *job) {
  attn_em_ *g = (attn_em_ *)job;
  attn_em_room_ unused;
  const int64_t own = attn_em_cut_(&g->votes, &unused, NULL);
  return attn_votes_run_(s, &g->votes, attn_em_item_, attn_piece_(own, sizeof(float)));
}

/* Numbers that are read before the call writes; a workspace query reads none. */
ATTN_COLD_ int attn_em_values_(attn_error_ *e, const attn_em_ *g) {
  const attn_tensor *t = &g->activation;
  const int64_t n = t->data ? t->batch * t->heads * t->len : 0;
  for (int64_t i = 0; i < n; i++) {
    const int64_t b = i / t->len / t->heads, h = i / t->len % t->heads;
    const float x = attn_number_(attn_at_(t, b, h, i % t->len), 0, t->dtype, NULL);
    if (!(x > 0.0f && x <= 1.0f))
      return attn_reject_(e, ATTN_E_VALUE, "params.activation must lie in 0..1 and not be 0");
  }
  const int64_t betas = g->betas > 1 ? g->betas : 1;
  return attn_check_logits_(e, g->beta_u, betas, 1, "params.beta_u must be finite") &&
         attn_check_logits_(e, g->beta_a, betas, 1, "params.beta_a must be finite") &&
         attn_check_logits_(e, g->lambda, g->votes.rounds, 1, "params.lambda must be finite");
}

ATTN_COLD_ int attn_em_check_(attn_error_ *e, attn_em_ *g, const attn_capsules_em_params *p,
                              const attn_ctx *ctx, const attn_table_ **table, int *workers,
                              int query) {
  static const char *const w[] = {ATTN_WORDS_("x"), ATTN_WORDS_("params.w"),
                                  ATTN_WORDS_("params.activation"), ATTN_WORDS_("y")};
  enum { X, W, A, Y, COUNT };
  attn_votes_ *a = &g->votes;
  const int64_t any = ATTN_ANY_;
  attn_span_ more[3];
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!p)
    return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has the number of capsules");
  a->w = p->w, g->activation = p->activation, g->act = !p->no_act;
  g->beta_u = p->beta_u, g->beta_a = p->beta_a, g->lambda = p->lambda, g->betas = p->betas;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_AS_(&a->x, w[X], 0, any, any, any, any, ""),
      ATTN_OPERAND_AS_(&a->w, w[W], ATTN_OPTIONAL_, a->x.heads, any, a->x.dim, any,
                       "params.w must be [x.heads, N, x.dim, dc]"),
      ATTN_OPERAND_AS_(&g->activation, w[A], ATTN_OPTIONAL_, a->x.batch, a->x.heads, a->x.len, 1,
                       "params.activation must be [x.batch, x.heads, x.len, 1]"),
      ATTN_OPERAND_AS_(&a->y, w[Y], ATTN_OUT_, a->x.batch, 1, a->x.len, any,
                       "y must be [x.batch, 1, x.len, .]")};
  for (int i = 0; i < COUNT; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (!attn_votes_check_(e, a, p->capsules, p->iterations)) return 0;
  if (p->betas != 0 && p->betas != 1 && p->betas != a->n)
    return attn_reject_(e, ATTN_E_RANGE, "params.betas must be 0, 1 or the number of capsules");
  g->eps = p->eps == 0.0f && !attn_to_bits_(p->eps) ? 1e-9f : p->eps;
  if (!(g->eps >= FLT_MIN && g->eps < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.eps must be a positive, normal number, or 0 for 1e-9");
  const int64_t betas = p->betas > 1 ? p->betas : 1;
  return attn_check_array_(e, p->beta_u, betas, 4, "params.beta_u must be aligned", &more[0]) &&
         attn_check_array_(e, p->beta_a, betas, 4, "params.beta_a must be aligned", &more[1]) &&
         attn_check_array_(e, p->lambda, a->rounds, 4, "params.lambda must be aligned", &more[2]) &&
         attn_check_apart_(e, ctx, op, COUNT, more, 3) && (query || attn_em_values_(e, g));
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_capsules_em_call_(attn_tensor y, attn_tensor x,
                                              const attn_capsules_em_params *params, attn_ctx *ctx,
                                              size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_em_ g;
  int workers;
  memset(&g, 0, sizeof g);
  g.votes.y = y, g.votes.x = x;
  if (attn_em_check_(&e, &g, params, ctx, &table, &workers, bytes != NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (x.batch == 0 || x.len == 0) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no tokens");
    } else {
      attn_stage_call_(&s, ctx, attn_em_steps_, &g, "EM routing", bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_CALL_(attn_capsules_em, (y, x, params), attn_tensor y, attn_tensor x,
           const attn_capsules_em_params *params)
