/* calls/backward/chain.h owns what stands between the gradient of a score and that of the product inside
 * it: an adaptive span, the caller's function, the soft-cap, the factor by distance; and what each of them must know of
 * the scores. */

/* Whether a soft-cap is taken off while scores become gradients: what it left is at hand then. apart: for the gradients
 * of terms, which may lie before it, and for what reaches scores. */
ATTN_FUNC_ int attn_chain_fused_(const attn_softmax_ *a, int apart) {
  return !apart && !attn_modifies_(a) && !(attn_caps_last_(a) && ATTN_PART_(TERMS, a->span.z));
}

/* Whether what a soft-cap left is not what enters the softmax, pairs that are forbidden apart. */
ATTN_FUNC_ int attn_chain_caps_first_(const attn_softmax_ *a) {
  return a->softcap > 0.0f && !attn_caps_last_(a) &&
         ((a->terms & ~ATTN_TERM_SOFTCAP_) || a->bias.kind || a->alibi);
}

/* Which of the scores inside are kept: what the soft-cap left, what it was given. */
ATTN_FUNC_ int attn_chain_capped_(const attn_softmax_ *a, const attn_backward_ *g) {
  const int apart = g->map_scores || attn_terms_asked_(&g->asked);
  return ATTN_HAS_TERMS && a->softcap > 0.0f &&
         (attn_chain_caps_first_(a) || !attn_chain_fused_(a, apart));
}
ATTN_FUNC_ int attn_chain_inner_(const attn_softmax_ *a, const attn_sdpa_gradients *p) {
  return ATTN_HAS_TERMS && (a->by_distance.factor.alpha || p->d_scale);
}

/* Scores of a block before what is added to them: products made again, and what stands inside the scale. */
ATTN_FUNC_ void attn_chain_scores_(attn_tile_ *t, const attn_backward_memory_ *m,
                                   const attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  float *const scores = t->w.s, *const inner = m->inner ? m->inner : m->capped;
  const int caps = m->capped && !attn_caps_last_(a);
  t->w.s = inner;
  for (int i = 0; i < b->count; i++) {
    const attn_segment_ *seg = &b->seg[i];
    float *s = inner + seg->at * ATTN_TILE_, *y = caps ? m->capped + seg->at * ATTN_TILE_ : s;
    attn_modifiers_ mod;
    attn_clear_(&mod, sizeof mod);
    attn_on_(tile, f)->score_block(s, t->w.qt, b->k + seg->at * b->k_stride, b->k_stride, seg->n,
                                   a->q.dim, seg->g0, seg->g1, t->spare);
    if (ATTN_PART_(TERMS, a->relative.keys.data)) attn_block_relative_keys_(t, b, seg);
    if (ATTN_PART_(TERMS, a->labels.label)) attn_block_labels_(t, b, seg);
    mod.factor = b->mod.factor, mod.index = b->mod.index;
    if (b->mod.factor) mod.back = b->mod.back + seg->at;
    if (b->mod.dot) mod.dot = b->mod.dot + seg->at * ATTN_TILE_;
    if (mod.dot || mod.factor)
      attn_on_(tile, f)->modify_block(s, seg->n, seg->g0, seg->g1, &mod, t->spare);
    if (caps && y != s) memcpy(y, s, (size_t)(seg->n * ATTN_TILE_) * sizeof(float));
    if (caps) attn_tile_cap_(t, y, seg->n, seg->g0, seg->g1);
  }
  t->w.s = scores;
}

/* Before a block's scores become weights: what is kept of them. */
ATTN_FUNC_ void attn_chain_keep_(attn_tile_ *t, const attn_backward_memory_ *m,
                                 const attn_block_ *b, int fused) {
  const attn_softmax_ *a = t->a;
  const size_t bytes = (size_t)(b->n * ATTN_TILE_) * sizeof(float);
  if (m->inner || (m->capped && attn_chain_caps_first_(a)))
    attn_chain_scores_(t, m, b);
  else if (m->capped && !fused && !attn_caps_last_(a))
    memcpy(m->capped, t->w.s, bytes);
  if (m->capped && attn_caps_last_(a)) memcpy(m->capped, m->before ? m->before : t->w.s, bytes);
  if (!m->before) return;
  memcpy(m->after, t->w.s, bytes);
  for (int i = 0; i < b->count; i++) {
    const attn_segment_ *seg = &b->seg[i];
    const int64_t at = seg->at * ATTN_TILE_;
    attn_tile_natural_(t, m->before + at, seg->n, seg->g0, seg->g1, 1);
    attn_tile_natural_(t, m->after + at, seg->n, seg->g0, seg->g1, 1);
  }
}

/* What is taken off with the step from scores to gradients. */
ATTN_FUNC_ attn_grad_cap_ attn_chain_cap_(const attn_tile_ *t, const attn_backward_memory_ *m,
                                          int fused) {
  attn_grad_cap_ cap = {NULL, 0.0f};
  if (!fused || !(t->a->softcap > 0.0f)) return cap;
  cap.uncap = 1.0f / t->a->softcap;
  if (attn_chain_caps_first_(t->a)) cap.capped = m->capped;
  return cap;
}

/* ---- steps back -----------------------------------------------------------------------------*/

/* The caller's function: dX by what it left becomes that by what it was given. */
ATTN_FUNC_ void attn_chain_modify_(const attn_tile_ *t, const attn_backward_tile_ *x,
                                   const attn_block_ *b, const attn_segment_ *seg, float *d) {
  int64_t key[ATTN_BLOCK_];
  const int r0 = seg->g0 * ATTN_GROUP_;
  const int r1 = seg->g1 * ATTN_GROUP_ < t->n ? seg->g1 * ATTN_GROUP_ : t->n;
  const float *after = x->m->after + seg->at * ATTN_TILE_;
  attn_score_tile tile;
  attn_clear_(&tile, sizeof tile);
  for (int e = 0; e < seg->n; e++) key[e] = attn_block_key_(b, seg->at + e);
  tile.score = d + r0, tile.key_stride = ATTN_TILE_, tile.query_stride = 1;
  tile.batch = t->batch, tile.keys = seg->n, tile.queries = r1 - r0;
  tile.key = key, tile.query = t->row + r0, tile.position = t->pos + r0, tile.head = t->head + r0;
  x->job->asked.modify_back(t->a->modify_user, &tile, x->m->before + seg->at * ATTN_TILE_ + r0,
                            after + r0);
  for (int e = 0; e < seg->n; e++) /* what is forbidden, whatever was made of it */
    for (int r = r0; r < r1; r++)
      if (after[e * ATTN_TILE_ + r] == -INFINITY) d[e * ATTN_TILE_ + r] = 0.0f;
}

/* The soft-cap, y what it left: d (1 - (y / c)^2). */
ATTN_FUNC_ void attn_chain_uncap_(const attn_segment_ *seg, const float *y, float uncap, float *d) {
  const int r0 = seg->g0 * ATTN_GROUP_, r1 = seg->g1 * ATTN_GROUP_;
  for (int64_t at = 0; at < seg->n * ATTN_TILE_; at += ATTN_TILE_)
    for (int64_t c = at + r0; c < at + r1; c++) {
      const float z = y[c] * uncap;
      d[c] =
          d[c] == 0.0f ? 0.0f : d[c] * (1.0f - z * z); /* y of a forbidden pair may be anything */
    }
}

/* The factor by distance, a what it left: d f where that is positive. */
ATTN_FUNC_ void attn_chain_factor_(const attn_tile_ *t, const attn_block_ *b,
                                   const attn_segment_ *seg, const float *a, float *d) {
  const int r1 = seg->g1 * ATTN_GROUP_ < t->n ? seg->g1 * ATTN_GROUP_ : t->n;
  for (int e = 0; e < seg->n; e++) {
    const float *f = b->mod.factor - b->mod.back[seg->at + e];
    for (int r = seg->g0 * ATTN_GROUP_; r < r1; r++) {
      const int64_t c = e * ATTN_TILE_ + r;
      d[c] = a[c] > 0.0f    ? d[c] * f[b->mod.index ? b->mod.index[r] : r]
             : a[c] == a[c] ? 0.0f
                            : d[c];
    }
  }
}

/* All of them, and the gradients of terms on the way: dX of a segment becomes that of the product. */
ATTN_FUNC_ void attn_chain_back_(const attn_tile_ *t, const attn_backward_tile_ *x,
                                 const attn_block_ *b, const attn_segment_ *seg, int fused,
                                 float *d) {
  const attn_softmax_ *a = t->a;
  const attn_backward_memory_ *m = x->m;
  const int64_t at = seg->at * ATTN_TILE_;
  if (x->sums) attn_terms_span_(t, &x->job->asked, x->sums, b, seg, d);
  if (m->before) attn_chain_modify_(t, x, b, seg, d);
  if (!fused && m->capped && attn_caps_last_(a))
    attn_chain_uncap_(seg, m->capped + at, 1.0f / a->softcap, d);
  if (x->sums) attn_terms_add_(t, &x->job->asked, x->sums, b, seg, d);
  if (!fused && m->capped && !attn_caps_last_(a))
    attn_chain_uncap_(seg, m->capped + at, 1.0f / a->softcap, d);
  if (x->sums && x->sums->by_factor) attn_terms_inner_(t, x->sums, b, seg, m->inner + at, d);
  if (ATTN_PART_(TERMS, a->by_distance.factor.alpha))
    attn_chain_factor_(t, b, seg, m->inner + at, d);
}
