/* families/training/rectified.h owns rectified weights on the way back: what their rows are multiplied by, made again, and
 * the step from scores to weights and gradients. */

typedef struct attn_rectified_ {
  attn_relu_ relu;     /* forward's */
  attn_reshape_ plain; /* of the gradients: scores in natural units */
  attn_back_weights_ weights;
} attn_rectified_;

/* Keys, sums and sums of r_ij dw_ij of a tile's rows, where its scores are needed; else its keys alone. */
ATTN_FUNC_ void attn_rectified_tally_(attn_tile_ *t, const attn_backward_ *g,
                                      attn_backward_memory_ *m) {
  const attn_rectified_ *w = (const attn_rectified_ *)g->weights->user;
  const attn_softmax_ *all = t->a;
  const int norm = w->relu.params->kind == ATTN_RELU_NORM;
  attn_softmax_ counting = *all;
  attn_plan_tile_ plan;
  attn_walk_ walk;
  const int64_t listed = attn_backward_open_(t, m, &plan);
  counting.reshape = &w->relu.reshape, counting.counting = w->relu.reshape.tally != NULL;
  t->a = &counting;
  if (norm) attn_backward_pack_(t, g, m);
  for (int part = 0; part < attn_tile_parts_(t); part++) {
    attn_backward_walk_(t, m, part, listed, &walk);
    while (attn_walk_next_(t, &walk)) {
      attn_block_ *b = &walk.block;
      float sum[ATTN_TILE_] = {0}, keys[ATTN_TILE_] = {0}, dots[ATTN_TILE_] = {0};
      attn_block_fetch_(t, b);
      attn_block_modifiers_(t, b);
      attn_block_scores_(t, b);
      for (int i = 0; i < b->count; i++) {
        const attn_segment_ *seg = &b->seg[i];
        float *s = t->w.s + seg->at * ATTN_TILE_, *d = m->dp + seg->at * ATTN_TILE_;
        attn_on_(relu, all->table)
            ->relu_block(s, seg->n, seg->g0, seg->g1, w->relu.square, sum, keys);
        if (!norm) continue;
        attn_on_(tile, all->table)
            ->score_block(d, m->d_ot, b->v + seg->at * b->v_stride, b->v_stride, seg->n, all->v.dim,
                          seg->g0, seg->g1, t->spare);
        attn_on_(rectified, all->table)->relu_dots(s, d, seg->n, seg->g0, seg->g1, dots);
      }
      for (int r = 0; r < t->n; r++) {
        m->row_keys[t->row[r]] += (double)keys[r];
        m->row_sums[t->row[r]] += (double)sum[r], m->row_dots[t->row[r]] += (double)dots[r];
      }
    }
  }
  t->a = all;
}

/* lo: what multiplies r^power; less: what is taken off d_o_i . v_j. */
ATTN_FUNC_ void attn_rectified_lanes_(attn_tile_ *t, const attn_backward_ *g,
                                      const attn_backward_memory_ *m) {
  const attn_softmax_ *a = t->a;
  const attn_rectified_ *w = (const attn_rectified_ *)g->weights->user;
  const attn_relu_params *p = w->relu.params;
  const int64_t queries = a->q_len ? a->q_len[t->batch] : a->q.len;
  for (int r = 0; r < ATTN_TILE_; r++) {
    const int there = r < t->n && t->row[r] < queries;
    double keys = 0, c = 0, less = 0;
    m->lanes->hi[r] = there ? 0.0f : INFINITY;
    if (there) {
      float d = 0.0f;
      if (m->row_keys) keys = m->row_keys[t->row[r]];
      if (keys > 16777216.0) keys = 16777216.0; /* as forward counts */
      if (p->by_keys) keys = (double)a->k.len;
      const double l = m->row_keys ? m->row_sums[t->row[r]] : 0.0;
      c = attn_clamp_f64_(attn_relu_factor_(p, keys, l));
      if (g->d_sum.data) memcpy(&d, attn_at_(&g->d_sum, t->batch, t->head[r], t->row[r]), sizeof d);
      less = -(double)d;
      if (p->kind == ATTN_RELU_NORM) less += c * (m->row_dots[t->row[r]] + l * (double)d);
    }
    m->lanes->lo[r] = (float)c, m->lanes->less[r] = (float)less;
    if (m->by) m->by[r] = (float)(1.0 / (keys > 1.0 ? keys : 1.0));
  }
  if (m->by) attn_tile_scale_(t, m->by);
}

ATTN_FUNC_ void attn_rectified_grad_(const attn_tile_ *t, const attn_backward_ *g,
                                     const attn_backward_memory_ *m, const attn_segment_ *seg,
                                     float *d, const attn_grad_cap_ *cap) {
  const attn_rectified_ *w = (const attn_rectified_ *)g->weights->user;
  attn_on_(rectified, t->a->table)
      ->relu_grad_block(t->w.s + seg->at * ATTN_TILE_, d, seg->n, seg->g0, seg->g1, w->relu.square,
                        m->lanes, cap);
}

/* The rules of forward, and w by params, which stay where they are; scores: what the engine is told. */
ATTN_COLD_ int attn_rectified_open_(attn_error_ *e, attn_rectified_ *w, const attn_tensor *d_o,
                                    const attn_tensor *q, const attn_relu_params *p,
                                    attn_sdpa_params *scores) {
  attn_tensor o = *d_o;
  o.dtype = ATTN_F32;
  attn_clear_(w, sizeof *w);
  if (!attn_relu_plan_(e, &w->relu, &o, q, p, scores)) return 0;
  const int scales = w->relu.by_square || w->relu.reshape.open != NULL;
  const int counts =
      (p->kind == ATTN_RELU_LEN || p->kind == ATTN_RELU_VAR || scales) && !p->by_keys;
  w->plain.natural = 1;
  w->weights.reshape = &w->plain, w->weights.user = w, w->weights.scales = scales;
  w->weights.lanes = attn_rectified_lanes_, w->weights.grad = attn_rectified_grad_;
  if (counts || p->kind == ATTN_RELU_NORM) w->weights.tally = attn_rectified_tally_;
  return 1;
}
