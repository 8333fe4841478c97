/* engine/addend.h owns scores that are no dot products: learned ones by position, one for each key, and
 * products of two short vectors of the query. They join the biases of a tile, a run of keys at a time. */

/* Which addends there are: 1 = some by key, 2 = some by pair. */
ATTN_FUNC_ int attn_addends_in_(const attn_softmax_ *a) {
  int in = 0;
  for (int n = 0; n < a->addend_count; n++) in |= a->addends[n].kind == ATTN_ADD_KEYS_ ? 1 : 2;
  return in;
}

/* x + w; what either forbids stays so, whatever the other holds. */
ATTN_FUNC_ float attn_add_allowed_(float x, float w) {
  return x == -INFINITY || w == -INFINITY ? -INFINITY : x + w;
}

/* x += w for the lanes of a group. */
ATTN_FUNC_ void attn_add_lanes_(float *x, const float *w) {
  for (int r = 0; r < ATTN_GROUP_; r++) x[r] = attn_add_allowed_(x[r], w[r]);
}

/* Keys are added last, to all lanes: NaN or +inf there must not undo what a lane's bias forbids. Such
 * keys join the bias. */
ATTN_FUNC_ void attn_tile_fold_keys_(const attn_tile_ *t, float *bias, float *key, int64_t n) {
  for (int64_t e = 0; e < n; e++) {
    if (key[e] - key[e] == 0.0f || key[e] == -INFINITY) continue;
    for (int r = 0; r < t->groups * ATTN_GROUP_; r++)
      bias[e * ATTN_TILE_ + r] = attn_add_allowed_(bias[e * ATTN_TILE_ + r], key[e]);
    key[e] = 0.0f;
  }
}

/* bias += products of the factors of n keys, or = them. */
ATTN_FUNC_ void attn_tile_products_(const attn_tile_ *t, const attn_addend_ *p, float *bias,
                                    int started, int64_t from, int64_t n) {
  const int64_t tile = t->row[0] / ATTN_TILE_;
  const char *x = attn_at_(&p->x, t->batch, t->head[0], tile * p->na);
  const char *y = attn_at_(&p->y, t->batch, t->head[0], tile * p->nb);
  for (int64_t e = 0; e < n; e++) {
    const int64_t j = from + e, c = j % p->na,
                  d = p->kind == ATTN_ADD_OUTER_ ? j / p->na : j % p->nb;
    const float *u = (const float *)(const void *)x + c * ATTN_TILE_;
    const float *v = (const float *)(const void *)y + d * ATTN_TILE_;
    for (int g = 0; g < t->groups; g++, u += ATTN_GROUP_, v += ATTN_GROUP_) {
      float w[ATTN_GROUP_], *to = bias + e * ATTN_TILE_ + g * ATTN_GROUP_;
      for (int r = 0; r < ATTN_GROUP_; r++) w[r] = u[r] * v[r];
      if (started)
        attn_add_lanes_(to, w);
      else
        memcpy(to, w, sizeof w);
    }
  }
}

/* Adds all to bias[key][lane], which holds something if started, and key[], for keys from..from+n. */
ATTN_FUNC_ void attn_tile_addends_(const attn_tile_ *t, float *bias, float *key, int started,
                                   int64_t from, int64_t n) {
  const attn_table_ *f = t->a->table;
  const void *rows[ATTN_TILE_];
  for (int i = 0; i < t->a->addend_count; i++) {
    const attn_addend_ *p = &t->a->addends[i];
    const int by_key = p->kind == ATTN_ADD_KEYS_;
    float hi = (float)p->weight;
    if ((double)hi > p->weight && attn_to_bits_(hi) > 1)
      hi = attn_from_bits_(attn_to_bits_(hi) - 1);
    const float lo = (float)(p->weight - (double)hi);
    if (p->kind >= ATTN_ADD_OUTER_) {
      attn_tile_products_(t, p, bias, started, from, n);
      started = 1;
      continue;
    }
    const int64_t shift = attn_bytes_(p->x.dtype, from);
    float *to = started || by_key ? t->w.dot : bias;
    rows[0] = attn_at_(&p->x, t->batch, t->head[0], 0) + shift;
    if (!by_key)
      for (int r = 0; r < t->n; r++)
        rows[r] = attn_at_(&p->x, t->batch, t->head[0], t->row[r] + p->row0) + shift;
    /* neither is 0: inf * 0 is NaN; see attn_tile_bias_rows_ */
    f->pack(to, rows, by_key ? 1 : t->n, n, (int)p->x.dtype | ATTN_KIND_BIAS_, hi,
            lo > 0.0f ? lo : attn_least_(hi));
    if (by_key)
      for (int64_t e = 0; e < n; e++) key[e] = attn_add_allowed_(key[e], to[e * ATTN_TILE_]);
    if (by_key) continue;
    if (started)
      for (int64_t e = 0; e < n; e++)
        for (int g = 0; g < t->groups * ATTN_GROUP_; g += ATTN_GROUP_)
          attn_add_lanes_(bias + e * ATTN_TILE_ + g, to + e * ATTN_TILE_ + g);
    started = 1;
  }
  if (started && (attn_addends_in_(t->a) & 1)) attn_tile_fold_keys_(t, bias, key, n);
}
