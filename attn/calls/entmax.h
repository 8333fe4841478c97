/* calls/entmax.h owns the thresholds of entmax. The scores of a tile are kept, 16 rows side by side; the threshold
 * is found in them, and a second sweep reads them where it would compute them. */

typedef struct attn_entmax_ {
  int64_t at[ATTN_TILE_ / ATTN_GROUP_],
      n[ATTN_TILE_ / ATTN_GROUP_]; /* keys of a group so far, and all */
  float m[ATTN_TILE_], tau[ATTN_TILE_];
  float by, power; /* alpha - 1 of a score, and what the rest is raised to */
} attn_entmax_;

/* Keys that a group has at most: those before `keep` may come twice. */
ATTN_FUNC_ int64_t attn_entmax_room_(const attn_softmax_ *a) {
  return attn_mul_(a->k.len, a->keep ? 2 : 1);
}

ATTN_COLD_ int64_t attn_entmax_bytes_(const attn_softmax_ *a) {
  const int64_t cells = attn_mul_(attn_entmax_room_(a), ATTN_TILE_ * (int64_t)sizeof(float));
  return attn_add_(attn_piece_(1, sizeof(attn_entmax_)), cells);
}

/* The scores of a group from its key `at` on. */
ATTN_FUNC_ float *attn_entmax_scores_(const attn_tile_ *t, int g, int64_t at) {
  float *all = (float *)(void *)((char *)t->w.reshape + attn_piece_(1, sizeof(attn_entmax_)));
  return all + (g * attn_entmax_room_(t->a) + at) * ATTN_GROUP_;
}

/* The first sweep. */
ATTN_FUNC_ void attn_entmax_keep_(attn_tile_ *t, float *s, int64_t keys, int g0, int g1) {
  attn_entmax_ *x = (attn_entmax_ *)(void *)t->w.reshape;
  for (int g = g0; g < g1; g++) {
    float *to = attn_entmax_scores_(t, g, x->n[g]);
    for (int64_t e = 0; e < keys; e++)
      memcpy(to + e * ATTN_GROUP_, s + e * ATTN_TILE_ + g * ATTN_GROUP_, ATTN_GROUP_ * sizeof *to);
    for (int r = g * ATTN_GROUP_; r < (g + 1) * ATTN_GROUP_; r++)
      if (t->top[r] > x->m[r]) x->m[r] = t->top[r];
    x->n[g] += keys;
  }
}

/* The second: weights of what the first has kept, in the same order. */
ATTN_FUNC_ void attn_entmax_weigh_(attn_tile_ *t, float *s, int64_t keys, int g0, int g1) {
  attn_entmax_ *x = (attn_entmax_ *)(void *)t->w.reshape;
  float sum[ATTN_GROUP_], slope[ATTN_GROUP_], count[ATTN_GROUP_];
  for (int g = g0; g < g1; g++) {
    const int r0 = g * ATTN_GROUP_;
    if (x->at[g] == x->n[g]) x->at[g] = 0; /* the sweep begins again */
    attn_on_(reshape, t->a->table)
        ->entmax_group(s + r0, attn_entmax_scores_(t, g, x->at[g]), keys, x->m + r0, x->tau + r0,
                       x->by, x->power, sum, slope, count);
    for (int r = 0; r < ATTN_GROUP_; r++) t->l[r0 + r] += sum[r], t->count[r0 + r] += count[r];
    x->at[g] += keys;
  }
}

/* Newton's method for the norm of the rests above tau, (sum u^power)^(1/power) = 1, from below: a convex function
 * that falls, and is nearly a line. tau only rises, and a row that rests does not move again: no row waits on
 * another's bits. */
ATTN_FUNC_ void attn_entmax_solve_(const attn_tile_ *t, attn_entmax_ *x, int g) {
  float sum[ATTN_GROUP_], slope[ATTN_GROUP_], count[ATTN_GROUP_];
  float *tau = x->tau + g * ATTN_GROUP_, *m = x->m + g * ATTN_GROUP_;
  for (int r = 0; r < ATTN_GROUP_; r++) {
    tau[r] = -1.0f;
    if (m[r] == -INFINITY) m[r] = 0.0f;               /* no key */
    if (g * ATTN_GROUP_ + r >= t->n) m[r] = INFINITY; /* no row: no key has a weight */
  }
  for (int more = 1, turns = 0; more && turns < 100; turns++) {
    attn_on_(reshape, t->a->table)
        ->entmax_group(NULL, attn_entmax_scores_(t, g, 0), x->n[g], m, tau, x->by, x->power, sum,
                       slope, count);
    more = 0;
    for (int r = 0; r < ATTN_GROUP_; r++) {
      if (!(sum[r] > 1.0f)) continue;
      const double f = (double)sum[r], root = x->power == 1.0f   ? f
                                              : x->power == 2.0f ? sqrt(f)
                                                                 : exp(log(f) / (double)x->power);
      const float to = (float)((double)tau[r] + (f - f / root) / (double)slope[r]);
      if (to > tau[r] && to < 0.0f) tau[r] = to, more = 1;
    }
  }
}

ATTN_FUNC_ void attn_entmax_before_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const attn_reshaped_params *p = attn_reshaped_of_(a)->p;
  attn_entmax_ *x = (attn_entmax_ *)(void *)t->w.reshape;
  const double alpha = (double)(p->alphas          ? p->alphas[t->head[0]]
                                : p->alpha != 0.0f ? p->alpha
                                                   : 1.5f);
  const int64_t pairs = *t->w.pairs;
  attn_softmax_ own = *a; /* with one column of values */
  attn_reshape_ keep = *a->reshape;
  memset(x, 0, sizeof *x);
  for (int r = 0; r < ATTN_TILE_; r++) x->m[r] = -INFINITY;
  x->by = (float)((alpha - 1.0) * ATTN_LN2_), x->power = (float)(1.0 / (alpha - 1.0));
  keep.weigh = attn_entmax_keep_, own.reshape = &keep, own.v.dim = 1;
  t->a = &own, t->scored = 0;
  (void)attn_tile_sweep_(t);
  t->a = a, *t->w.pairs = pairs;
  t->w.held->n = 0; /* gathered rows have no values yet */
  for (int g = 0; g < t->groups; g++) attn_entmax_solve_(t, x, g);
  t->scored = !attn_modifies_(a); /* the caller's function sees scores, both times */
}

/* The division by the sums, and how many keys have a weight. */
ATTN_FUNC_ void attn_entmax_finish_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  attn_on_(tile, a->table)->divide(t->scale, t->l, t->groups);
  for (int r = 0; a->lse.data && r < t->n; r++)
    memcpy(attn_at_(&a->lse, t->batch, t->head[r], t->row[r]), &t->count[r], sizeof t->count[r]);
}
