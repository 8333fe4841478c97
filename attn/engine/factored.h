/* engine/factored.h owns keys and values that heads make of vectors which all of them share: a tile's queries, heads in
 * lanes, meet the vectors, and what each head has of these is a factor of its lane. */

/* Asks for rows of x from `key` on, n of them where they are seen. A row is read in pieces, rank by rank, which
 * prefetchers of the hardware do not follow (32 heads, 65536 keys: 1.3 times the speed). */
ATTN_FUNC_ void attn_factored_ask_(const attn_tile_ *t, const attn_tensor *x, int64_t key,
                                   int64_t n) {
  const int64_t bytes = attn_bytes_(x->dtype, x->dim);
  int64_t page, row, left = t->g[0].hi_max - key;
  if (left < n) n = left;
  for (int64_t run; n > 0; n -= run, key += run) {
    run = attn_storage_(t->a, t->batch, key, &page, &row);
    for (int64_t e = 0; e < run && e < n; e++) {
      const char *p = attn_at_(x, page, 0, row + e);
      for (int64_t c = 0; c < bytes; c += 64) ATTN_PREFETCH_FAR_(p + c);
    }
  }
}

/* Dot products with the vectors of each rank, in the order of ranks. */
ATTN_FUNC_ void attn_factored_scores_(const attn_tile_ *t, const attn_block_ *b, int at, int n,
                                      float *s, float *top) {
  enum { KEYS = 12 }; /* whole steps of score_block */
  const attn_softmax_ *a = t->a;
  const attn_factored_ *f = a->factored;
  float none[ATTN_TILE_] = {0};
  for (int end = at + n; at < end; at += n, s += n * ATTN_TILE_) {
    const float *row = b->k + at * b->k_stride, *vector = row + f->k_rank * f->heads;
    n = end - at < KEYS ? end - at : KEYS;
    attn_factored_ask_(t, &f->k, b->j0 + at + b->n, n);
    attn_factored_ask_(t, &f->v, b->j0 + at + b->n, n);
    for (int64_t r = 0; r < f->k_rank; r++, vector += a->q.dim) {
      attn_on_(tile, a->table)
          ->score_block(t->w.factors, t->w.qt, vector, b->k_stride, n, a->q.dim, 0, t->groups,
                        none);
      attn_on_(factor, a->table)
          ->factor_block(s, t->w.factors, row + r * f->heads + t->head[0], b->k_stride, n, t->n,
                         1.0f / (float)f->k_rank, r > 0, r + 1 == f->k_rank ? top : NULL);
    }
  }
}

/* Weights, which stay as they are, and the values of a block. */
ATTN_FUNC_ void attn_factored_values_(const attn_tile_ *t, const attn_block_ *b, const float *alpha,
                                      int start) {
  const attn_softmax_ *a = t->a;
  const attn_factored_ *f = a->factored;
  const float *vector = b->v + f->v_rank * f->heads;
  for (int64_t r = 0; r < f->v_rank; r++, vector += a->v.dim, alpha = NULL, start = 0) {
    attn_on_(factor, a->table)
        ->factor_block(t->w.factors, t->w.s, b->v + r * f->heads + t->head[0], b->v_stride, b->n,
                       t->n, 1.0f / (float)f->v_rank, 0, NULL);
    attn_on_(tile, a->table)
        ->value_block(t->w.ot, t->w.factors, vector, b->v_stride, b->n, a->v.dim, 0, t->groups,
                      alpha, start);
  }
}
