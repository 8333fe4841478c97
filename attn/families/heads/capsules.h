/* families/heads/capsules.h owns dynamic routing of heads, a token at a time. */

typedef struct attn_capsules_ {
  attn_votes_ votes; /* first: items get it */
  attn_capsules_kind kind;
  int over_heads;
} attn_capsules_;

/* v = |s|^2 / (1 + |s|^2) s / |s| = |s| / (1 + |s|^2) s */
ATTN_FUNC_ void attn_capsules_squash_(float *s, int64_t dc) {
  double sum = 0.0;
  for (int64_t c = 0; c < dc; c++) sum += (double)s[c] * (double)s[c];
  const double by = sqrt(sum) / (1.0 + sum);
  for (int64_t c = 0; c < dc; c++) s[c] = (float)(by * (double)s[c]);
}

/* What a token works in. */
typedef struct attn_capsules_room_ {
  attn_votes_room_ r;
  float *v, *by; /* [N dc] */
  float *l, *c;  /* [H][N], l in log2 units */
  float *mass;   /* [N] */
} attn_capsules_room_;

ATTN_FUNC_ int64_t attn_capsules_cut_(const attn_votes_ *a, attn_capsules_room_ *w, float *at) {
  const int64_t pairs = attn_mul_(a->n, a->heads), first = attn_votes_cut_(a, &w->r, at);
  if (at) {
    w->v = at + first, w->by = w->v + a->m, w->l = w->by + a->m;
    w->c = w->l + pairs, w->mass = w->c + pairs;
  }
  return attn_add_(attn_add_(first, attn_mul_(2, a->m)), attn_add_(attn_mul_(2, pairs), a->n));
}

/* Couplings of a capsule that vanish together: its mean wants only what they are to each other. */
ATTN_FUNC_ void attn_capsules_shares_(const attn_votes_ *a, const attn_capsules_room_ *w,
                                      int64_t n) {
  float *x = w->r.column, top = -INFINITY, sum = 0.0f;
  for (int64_t h = 0; h < a->heads; h++) {
    x[h] = w->l[h * a->n + n] - w->r.top[h] - (float)attn_log2_(w->r.sum[h]);
    if (x[h] > top) top = x[h];
  }
  a->table->weights(x, x, a->heads, top, 1.0f);
  for (int64_t h = 0; h < a->heads; h++) sum += w->c[h * a->n + n] = x[h];
  w->mass[n] = sum;
}

/* v = the sums divided by those of the couplings */
ATTN_FUNC_ void attn_capsules_mean_(const attn_capsules_ *g, const attn_capsules_room_ *w,
                                    const float *u, int64_t stride) {
  const attn_votes_ *a = &g->votes;
  memset(w->mass, 0, (size_t)a->n * sizeof(float));
  attn_on_(sum, a->table)
      ->axpys(w->mass, a->ones, w->c, a->n, a->index, a->heads, a->n, ATTN_F32, 1.0f, 0);
  for (int64_t n = 0; n < a->n; n++) {
    if (w->mass[n] < 1e-20f && !g->over_heads) attn_capsules_shares_(a, w, n);
    w->r.inv[n] = 1.0f / w->mass[n];
  }
  attn_votes_sum_(a, &w->r, w->v, w->c, u, stride);
  a->table->scale_rows(w->v, a->dc, w->v, a->dc, a->n, a->dc, w->r.inv);
}

ATTN_FUNC_ void attn_capsules_item_(void *job, int worker, int64_t index) {
  const attn_capsules_ *g = (const attn_capsules_ *)job;
  const attn_votes_ *a = &g->votes;
  attn_capsules_room_ w;
  int64_t b, t0, stride, next;
  const int64_t tokens = attn_votes_first_(a, index, &b, &t0);
  const float *u = attn_votes_of_(a, worker, b, t0, tokens, &stride, &next);
  attn_capsules_cut_(a, &w, (float *)(void *)(a->memory + worker * a->each + a->at_token));
  for (int64_t t = 0; t < tokens; t++, u += next) {
    memset(w.l, 0, (size_t)(a->n * a->heads) * sizeof(float));
    for (int64_t k = 0;; k++) {
      if (g->over_heads)
        attn_votes_softmax_heads_(a, &w.r, w.c, w.l);
      else
        attn_votes_softmax_(a, &w.r, w.c, w.l);
      if (g->kind == ATTN_CAPSULES_MEAN) {
        attn_capsules_mean_(g, &w, u, stride);
      } else {
        attn_votes_sum_(a, &w.r, w.v, w.c, u, stride);
        for (int64_t n = 0; n < a->n; n++) attn_capsules_squash_(w.v + n * a->dc, a->dc);
      }
      if (k + 1 == a->rounds) break;
      memcpy(w.by, w.v, (size_t)a->m * sizeof(float));
      attn_on_(norm, a->table)->normalise(w.by, a->m, 0.0f, (float)ATTN_LOG2E_, 0.0f, NULL, NULL);
      attn_votes_dots_(a, &w.r, w.l, w.by, u, stride, NULL);
    }
    attn_votes_put_(a, b, t0 + t, w.v);
  }
}

ATTN_COLD_ int attn_capsules_steps_(attn_stage_ *s, void *job) {
  attn_capsules_ *g = (attn_capsules_ *)job;
  attn_capsules_room_ unused;
  const int64_t own = attn_capsules_cut_(&g->votes, &unused, NULL);
  return attn_votes_run_(s, &g->votes, attn_capsules_item_, attn_piece_(own, sizeof(float)));
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_capsules_call_(attn_tensor y, attn_tensor x,
                                           const attn_capsules_params *p, attn_ctx *ctx,
                                           size_t *bytes) {
  static const char *const w[] = {ATTN_WORDS_("x"), ATTN_WORDS_("params.w"), ATTN_WORDS_("y")};
  enum { X, W, Y, COUNT };
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_capsules_ r;
  attn_votes_ *a = &r.votes;
  const int64_t any = ATTN_ANY_;
  int workers;
  memset(&r, 0, sizeof r);
  a->y = y, a->x = x;
  if (p) a->w = p->w, r.kind = p->kind, r.over_heads = p->over_heads != 0;
  attn_operand_ op[COUNT] = {ATTN_OPERAND_AS_(&a->x, w[X], 0, any, any, any, any, ""),
                             ATTN_OPERAND_AS_(&a->w, w[W], ATTN_OPTIONAL_, x.heads, any, x.dim, any,
                                              "params.w must be [x.heads, N, x.dim, dc]"),
                             ATTN_OPERAND_AS_(&a->y, w[Y], ATTN_OUT_, x.batch, 1, x.len, any,
                                              "y must be [x.batch, 1, x.len, .]")};
  int ok = attn_check_ctx_(&e, ctx, &table, &workers);
  if (ok && !p)
    ok = attn_reject_(&e, ATTN_E_NULL, "params must not be null: it has the number of capsules");
  for (int i = 0; ok && i < COUNT; i++) ok = attn_check_operand_(&e, &op[i], 1);
  ok = ok && attn_votes_check_(&e, a, p->capsules, p->iterations);
  if (ok && ((int)r.kind < 0 || r.kind >= ATTN_CAPSULES_COUNT))
    ok = attn_reject_(&e, ATTN_E_RANGE, "params.kind must be an attn_capsules_kind");
  if (ok && attn_check_apart_(&e, ctx, op, COUNT, NULL, 0)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (x.batch == 0 || x.len == 0) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no tokens");
    } else {
      attn_stage_call_(&s, ctx, attn_capsules_steps_, &r, "dynamic routing", bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_CALL_(attn_capsules, (y, x, params), attn_tensor y, attn_tensor x,
           const attn_capsules_params *params)
