/* engine/softmax.h owns the exact-softmax driver: it walks the key blocks that a tile of queries
 * may see and calls the primitives on them. Which keys and terms a mechanism has is data in
 * attn_softmax_; argument checks belong to the mechanisms. */

/* Whether a value stays finite in the product with its weight: bf16 ends below f32; of f16 there are powers. */
ATTN_FUNC_ int attn_tile_keeps_(const attn_tile_ *t, float x) {
  return ATTN_PART_(LOW, t->a->low) && !t->a->low->peaks ? x < 3.39e38f && x > -3.39e38f
                                                         : x - x == 0.0f;
}

/* Values that are not finite must reach the rows that may read them and no others, though a
 * forbidden pair has weight 0 and 0 * NaN is NaN. A tile in which that may have happened is swept
 * again carefully: such values are taken out of a copy of the block here, before the scores become
 * weights, with the lanes that read them, and put back by attn_tile_patch_. */
ATTN_FUNC_ void attn_tile_clean_(attn_tile_ *t, const attn_block_ *b) {
  const int64_t dv = t->a->v.dim;
  for (int e = 0; e < b->n; e++)
    for (int lane = 0; lane < t->n; lane++)
      t->w.hit[e * ATTN_TILE_ + lane] = (unsigned char)attn_block_reads_(t, b, e, lane);
  for (int64_t e = 0; e < b->n; e++)
    for (int64_t c = 0; c < dv; c++) {
      float x = b->v[e * b->v_stride + c];
      t->w.v[e * dv + c] = attn_tile_keeps_(t, x) ? x : 0.0f;
    }
  t->w.held->n = 0;
}

/* Adds what attn_tile_clean_ took out, read from the tensor itself. */
ATTN_FUNC_ void attn_tile_patch_(attn_tile_ *t, const attn_block_ *b) {
  const attn_softmax_ *a = t->a;
  const int64_t dv = a->v.dim;
  for (int64_t e = 0; e < b->n; e++) {
    const int64_t key = attn_block_key_(b, e);
    int64_t page, at;
    attn_storage_(a, t->batch, key, &page, &at);
    const char *row = attn_at_(&a->v, page, t->head_v, at);
    const attn_rows_scale_ s = attn_scales_at_(&a->v_scales, page, t->head_v, at);
    for (int64_t c = 0; c < dv; c++) {
      const float x = attn_number_(row, c, a->v.dtype, &s);
      if (attn_tile_keeps_(t, x)) continue;
      for (int lane = 0; lane < t->n; lane++)
        if (t->w.hit[e * ATTN_TILE_ + lane] &&
            !(attn_sparse_(a) && t->w.s[e * ATTN_TILE_ + lane] == 0.0f))
          t->w.ot[c * ATTN_TILE_ + lane] += t->w.s[e * ATTN_TILE_ + lane] * x;
    }
  }
}

/* The ramp of an adaptive span where a block meets it. 0: its weights there are 1. */
ATTN_FUNC_ int attn_block_ramp_(attn_tile_ *t, const attn_block_ *b, attn_ramp_ *ramp) {
  const attn_softmax_ *a = t->a;
  if (!ATTN_PART_(TERMS, a->span.z) || b->j0 >= t->flat) return 0;
  for (int r = 0; r < t->n; r++) t->start[r] = (float)(t->last[r] - (t->pos[r] - b->base));
  ramp->start = t->start, ramp->edge = t->edge, ramp->at = b->at;
  ramp->rate = (float)attn_clamp_f64_(ATTN_RAMP_UP_ / attn_span_ramp_(&a->span));
  return 1;
}

/* What it multiplies a weight by, 1 or more: nothing. */
ATTN_INLINE_ float attn_ramp_at_(const attn_ramp_ *ramp, int r, int e) {
  return (ramp->start[r] + ramp->at[e]) * ramp->rate + ramp->edge[r];
}

/* The same as a part of scores. */
ATTN_FUNC_ void attn_block_ramp_scores_(const attn_tile_ *t, const attn_block_ *b,
                                        const attn_ramp_ *ramp) {
  for (int i = 0; i < b->count; i++) {
    const attn_segment_ *seg = &b->seg[i];
    for (int r = seg->g0 * ATTN_GROUP_; r < seg->g1 * ATTN_GROUP_ && r < t->n; r++)
      for (int e = seg->at; e < seg->at + seg->n; e++) {
        const float m = attn_ramp_at_(ramp, r, e);
        if (m < 1.0f && t->w.s[e * ATTN_TILE_ + r] > -INFINITY)
          t->w.s[e * ATTN_TILE_ + r] += m > 0.0f ? (float)attn_log2_(m) : -INFINITY;
      }
  }
}

/* The score map leaves as scores here and becomes weights when the row's sum is known. */
ATTN_FUNC_ void attn_block_emit_(attn_tile_ *t, const attn_block_ *b, const attn_ramp_ *ramp) {
  void *rows[ATTN_TILE_];
  if (ramp) attn_block_ramp_scores_(t, b, ramp);
  const int again =
      t->a->phase > 0 || t->a->keep; /* earlier phases or parts have written other cells */
  if (again)
    for (int r = 0; r < t->n; r++) {
      float *row = (float *)(void *)attn_at_(&t->a->map, t->batch, t->head[r], t->row[r]);
      for (int e = 0; e < b->n; e++) {
        const float s = t->w.s[e * ATTN_TILE_ + r];
        if (s != -INFINITY) row[attn_block_key_(b, e)] = s;
      }
    }
  if (again) return;
  for (int e = 0, n; e < b->n; e += n) {
    n = attn_block_run_(b, e);
    for (int r = 0; r < t->n; r++)
      rows[r] = (float *)(void *)attn_at_(&t->a->map, t->batch, t->head[r], t->row[r]) +
                attn_block_key_(b, e);
    t->a->table->unpack(rows, t->w.s + e * ATTN_TILE_, t->n, n, ATTN_F32, NULL);
  }
}

/* Whether anything is added to scores, the allowed set apart. */
ATTN_FUNC_ int attn_block_terms_in_(const attn_tile_ *t, const attn_block_ *b) {
  const attn_modifiers_ *m = &b->mod;
  return (t->a->terms & attn_terms_with_(ATTN_TERM_SCORE_)) || m->bias || m->key || m->dot;
}

/* In place of E1 to E5: scores that lie in rows, natural and times the problem's scale. */
ATTN_FUNC_ void attn_segment_given_(attn_tile_ *t, const attn_block_ *b, const attn_segment_ *seg) {
  const void *rows[ATTN_TILE_];
  const int r0 = seg->g0 * ATTN_GROUP_,
            r1 = seg->g1 * ATTN_GROUP_ < t->n ? seg->g1 * ATTN_GROUP_ : t->n;
  const int64_t key = attn_block_key_(b, seg->at);
  for (int r = r0; r < r1; r++) rows[r - r0] = t->given + r * t->given_stride + key;
  t->a->table->pack(t->w.s + seg->at * ATTN_TILE_ + r0, rows, r1 - r0, seg->n,
                    (int)ATTN_F32 | ATTN_KIND_BIAS_, t->a->scale_hi, t->a->scale_lo);
}

/* E1 of one segment, and E3. */
ATTN_FUNC_ void attn_segment_products_(attn_tile_ *t, const attn_block_ *b,
                                       const attn_segment_ *seg, float *s, float *top) {
  const attn_softmax_ *a = t->a;
  const attn_reshape_ *reshape = ATTN_PART_(WEIGHTS_, a->reshape);
  if (reshape && reshape->products)
    reshape->products(t, b, seg, s, top);
  else if (ATTN_PART_(LOW, a->codes))
    attn_codes_scores_(t, b, seg, s, top);
  else if (ATTN_PART_(LOW, a->low))
    attn_low_scores_(t, b, seg, s, top);
  else if (ATTN_PART_(LATENT, a->factored))
    a->factored->scores(t, b, seg->at, seg->n, s, top);
  else
    attn_on_(tile, a->table)
        ->score_block(s, t->w.qt, b->k + seg->at * b->k_stride, b->k_stride, seg->n, a->q.dim,
                      seg->g0, seg->g1, top);
}

/* E1 to E7 of one segment; the maximum of each row goes to t->top. */
ATTN_FUNC_ void attn_segment_scores_(attn_tile_ *t, const attn_block_ *b,
                                     const attn_segment_ *seg) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const int g0 = seg->g0, g1 = seg->g1, set = seg->m0 < seg->m1;
  attn_modifiers_ mod = b->mod, only = b->set;
  float *s = t->w.s + seg->at * ATTN_TILE_;
  const int scored = t->scored || t->given;
  const int terms = t->given || attn_block_terms_in_(t, b);
  if (t->given) attn_segment_given_(t, b, seg);
  if (!terms && !set) {
    if (!scored) attn_segment_products_(t, b, seg, s, t->top);
    return;
  }
  /* scores that will change have no maximum yet */
  for (int r = 0; r < ATTN_TILE_; r++) t->spare[r] = -INFINITY;
  if (attn_tallies_(a) && a->counting &&
      !attn_modifies_(a)) /* only which pairs there are is asked for */
    for (int e = 0; e < seg->n; e++)
      memset(s + e * ATTN_TILE_ + g0 * ATTN_GROUP_, 0,
             (size_t)((g1 - g0) * ATTN_GROUP_) * sizeof(float));
  else if (!scored)
    attn_segment_products_(t, b, seg, s, t->spare);
  only.at += seg->at;
  if (only.lanes) only.lanes += seg->at;
  if (!terms) { /* only some groups change */
    for (int r = g0 * ATTN_GROUP_; r < g1 * ATTN_GROUP_; r++)
      if ((r < seg->m0 * ATTN_GROUP_ || r >= seg->m1 * ATTN_GROUP_) && t->spare[r] > t->top[r])
        t->top[r] = t->spare[r];
    attn_on_(tile, f)->modify_block(s, seg->n, seg->m0, seg->m1, &only, t->top);
    return;
  }
  if (ATTN_PART_(TERMS, a->relative.keys.data)) attn_block_relative_keys_(t, b, seg);
  if (ATTN_PART_(TERMS, a->labels.label)) attn_block_labels_(t, b, seg);
  mod.at += seg->at;
  if (mod.key) mod.key += seg->at;
  if (mod.back) mod.back += seg->at;
  if (mod.bias) mod.bias += seg->at * ATTN_TILE_;
  if (mod.dot) mod.dot += seg->at * ATTN_TILE_;
  if (attn_goes_on_(a)) {
    attn_on_(tile, f)->modify_block(s, seg->n, g0, g1, &mod, t->spare);
    if (attn_caps_last_(a)) attn_tile_cap_(t, s, seg->n, g0, g1);
    if (attn_modifies_(a)) {
      if (ATTN_PART_(TRAINING, t->before))
        memcpy(t->before + seg->at * ATTN_TILE_, s, (size_t)(seg->n * ATTN_TILE_) * sizeof(float));
      attn_block_modify_(t, b, seg);
    }
    attn_on_(tile, f)->modify_block(s, seg->n, g0, g1, &only, t->top);
    return;
  }
  if (set) mod.lanes = only.lanes, mod.lo = only.lo, mod.hi = only.hi;
  attn_on_(tile, f)->modify_block(s, seg->n, g0, g1, &mod, t->top);
}

ATTN_FUNC_ void attn_block_scores_(attn_tile_ *t, attn_block_ *b) {
  for (int r = 0; r < ATTN_TILE_; r++) t->top[r] = -INFINITY;
  if (ATTN_PART_(TERMS, t->a->xl.table.data)) attn_block_xl_(t, b), b->mod.dot = t->w.dot;
  if (ATTN_PART_(TERMS, t->a->relative.queries.data))
    attn_block_relative_queries_(t, b), b->mod.dot = t->w.dot;
  const int fill = t->a->map.data && !b->whole; /* a map wants every cell */
  for (int g = 0; (fill || b->gaps) && g < t->groups; g++)
    for (int e = fill ? 0 : b->first[g]; e < (fill ? b->n : b->end[g]); e++)
      for (int r = 0; r < ATTN_GROUP_; r++)
        t->w.s[e * ATTN_TILE_ + g * ATTN_GROUP_ + r] = -INFINITY;
  /* scores are changed while they are in the first cache; 66 is 11 strips of 6 keys */
  const int late = attn_late_(t->a), most = attn_block_terms_in_(t, b) || late ? 66 : ATTN_BLOCK_;
  for (int i = 0; i < b->count; i++) {
    const attn_segment_ *seg = &b->seg[i];
    attn_segment_ part = *seg;
    for (int left = seg->n; left > 0; left -= part.n, part.at += part.n) {
      part.n = left > most ? most : left;
      attn_segment_scores_(t, b, &part);
      if (late) t->a->reshape->late(t, b, part.at, part.n, part.g0, part.g1);
    }
    *t->w.pairs += attn_segment_pairs_(t, seg);
  }
  if (late) t->a->reshape->late(t, b, 0, 0, 0, 0);
}

/* Scores of keys first .. end of lane groups g0..g1 become weights. */
ATTN_FUNC_ void attn_block_weights_(attn_tile_ *t, const attn_ramp_ *ramp, int first, int end,
                                    int g0, int g1) {
  const attn_softmax_ *a = t->a;
  float *s = t->w.s + first * ATTN_TILE_;
  attn_ramp_ here;
  if (attn_tile_weigh_(t, s, end - first, g0, g1)) return;
  if (ramp) here = *ramp, here.at += first, ramp = &here;
  attn_on_(tile, a->table)
      ->softmax_block(s, end - first, g0, g1, t->m, t->l, t->alpha, t->top, ramp);
}

/* E8 and E9: scores become weights and values are added to the accumulator; started = it holds
 * earlier blocks. One segment for all rows, the usual case, rescales it in registers. */
ATTN_FUNC_ void attn_block_values_(attn_tile_ *t, attn_block_ *b, int started) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const int64_t dv = a->v.dim;
  const float *s = t->w.s;
  const float *alpha = started && !attn_shiftless_(a) ? t->alpha : NULL;
  attn_ramp_ zone, *ramp = NULL;
  int patch = 0;
  if (attn_block_ramp_(t, b, &zone)) ramp = &zone;
  if (a->map.data && !attn_weighs_(a)) {
    attn_block_emit_(t, b, ramp);
    ramp = NULL; /* it is in the scores now */
  }
  if (attn_reweighs_(a)) attn_block_note_(t, b);
  if (t->rel_careful) attn_block_relative_hits_(t, b);
  if (t->careful && b->partial &&
      (ATTN_PART_(LOW, a->low) || !f->finite(b->v, b->v_stride, b->n, dv))) {
    attn_tile_clean_(t, b);
    b->v = t->w.v, b->v_stride = dv, patch = 1;
  }
  if (ATTN_PART_(LOW, a->low)) {
    const int f32 =
        patch || ATTN_PART_(TERMS, a->relative.values.data) || attn_reweighs_(a) || attn_drops_(a);
    attn_low_values_(t, b, ramp, started, f32);
  } else if (b->whole) {
    attn_block_weights_(t, ramp, 0, b->n, 0, t->groups);
    if (attn_reweighs_(a)) attn_block_hand_(t, b);
    if (attn_drops_(a)) attn_block_drop_weights_(t, b);
    if (ATTN_PART_(LATENT, a->factored))
      a->factored->values(t, b, alpha, !started);
    else if (!a->counting)
      attn_on_(tile, f)->value_block(t->w.ot, s, b->v, b->v_stride, b->n, dv, 0, t->groups, alpha,
                                     !started);
  } else {
    if (!started) memset(t->w.ot, 0, (size_t)(dv * ATTN_TILE_) * sizeof(float));
    for (int g = 0, to; g < t->groups; g = to) {
      to = attn_block_alike_(t, b, g);
      if (b->end[g]) attn_block_weights_(t, ramp, b->first[g], b->end[g], g, to);
    }
    if (attn_reweighs_(a)) attn_block_hand_(t, b);
    if (attn_drops_(a)) attn_block_drop_weights_(t, b);
    for (int g = 0, to; g < t->groups; g = to) {
      const int at = b->first[g], n = b->end[g] - at;
      to = attn_block_alike_(t, b, g);
      if (n > 0 && !a->counting && !b->gaps)
        attn_on_(tile, f)->value_block(t->w.ot, s + at * ATTN_TILE_, b->v + at * b->v_stride,
                                       b->v_stride, n, dv, g, to, alpha, 0);
      else if (n > 0 && alpha)
        attn_on_(tile, f)->scale_block(t->w.ot, dv, g, to, alpha);
    }
    for (int i = 0; i < b->count && b->gaps && !a->counting; i++) {
      const attn_segment_ *seg = &b->seg[i];
      attn_on_(tile, f)->value_block(t->w.ot, s + seg->at * ATTN_TILE_,
                                     b->v + seg->at * b->v_stride, b->v_stride, seg->n, dv, seg->g0,
                                     seg->g1, NULL, 0);
    }
  }
  if (ATTN_PART_(TERMS, a->relative.values.data))
    attn_block_relative_values_(t, b, started && !attn_shiftless_(a));
  if (patch && !a->counting) attn_tile_patch_(t, b);
}

/* Where the accumulator of a row waits between phases. */
ATTN_FUNC_ void attn_tile_state_rows_(const attn_tile_ *t, void **rows) {
  const attn_softmax_ *a = t->a;
  for (int r = 0; r < t->n; r++)
    rows[r] = a->state_o
                  ? a->state_o + attn_row_number_(a, t->batch, t->head[r], t->row[r]) * a->v.dim
                  : t->out[r];
}

/* The state of a tile's rows: none, or what the phase before has left. 1 = the accumulator holds
 * something. */
ATTN_FUNC_ int attn_tile_load_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  void *rows[ATTN_TILE_];
  const void *from[ATTN_TILE_];
  for (int g = 0; g < t->groups * ATTN_GROUP_; g += ATTN_GROUP_)
    for (int r = g; r < g + ATTN_GROUP_; r++) {
      t->m[r] = -INFINITY, t->l[r] = t->count[r] = 0.0f;
      t->alpha[r] = t->scale[r] = 1.0f;
    }
  if ((a->phase == 0 && !attn_reweighs_(a)) || attn_choice_blind_(a)) return 0;
  for (int r = 0; r < t->n; r++) {
    const int64_t at = attn_row_number_(a, t->batch, t->head[r], t->row[r]);
    t->m[r] = a->state_m[at], t->l[r] = a->state_l[at], t->count[r] = a->state_n[at];
  }
  if (a->counting) return 1;
  if (attn_reweighs_(a)) attn_tile_known_(t);
  if (a->phase == 0) return 0;
  attn_tile_state_rows_(t, rows);
  for (int r = 0; r < t->n; r++) from[r] = rows[r];
  a->table->pack(t->w.ot, from, t->n, a->v.dim, ATTN_F32, 1.0f, attn_least_(1.0f));
  return 1;
}

/* Leaves the state for the next phase. */
ATTN_FUNC_ void attn_tile_store_(const attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  void *rows[ATTN_TILE_];
  for (int r = 0; r < t->n && !attn_reweighs_(a); r++) {
    const int64_t at = attn_row_number_(a, t->batch, t->head[r], t->row[r]);
    a->state_m[at] = t->m[r], a->state_l[at] = t->l[r];
    if (a->counting || !attn_tallies_(a)) a->state_n[at] = t->count[r];
  }
  if (a->counting) return;
  attn_tile_state_rows_(t, rows);
  a->table->unpack(rows, t->w.ot, t->n, a->v.dim, ATTN_F32, NULL);
}

/* Sinks join m and l. */
ATTN_FUNC_ void attn_tile_sinks_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const int64_t queries = a->q_len ? a->q_len[t->batch] : a->q.len;
  float logit[ATTN_TILE_];
  for (int pass = 0; pass < 2; pass++) {
    if (pass == 0 ? !a->sinks : !a->softmax_one) continue;
    for (int r = 0; r < t->groups * ATTN_GROUP_; r++) {
      logit[r] = -INFINITY;
      if (r < t->n && t->row[r] < queries)
        logit[r] = pass == 0 ? attn_to_unit_(a, a->sinks[t->head[r]]) : 0.0f;
    }
    attn_on_(tile, a->table)->join(t->m, t->l, t->scale, logit, t->groups);
  }
}

/* Sinks, the last division, and the LSE. */
ATTN_FUNC_ void attn_tile_divide_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  if (attn_reweighs_(a)) {
    memcpy(t->l, t->sum, sizeof t->l);
  } else {
    attn_tile_sinks_(t);
    attn_on_(tile, a->table)->divide(t->scale, t->l, t->groups);
  }
  if (!a->lse.data) return;
  for (int r = 0; r < t->n; r++) {
    float lse = -INFINITY;
    if (ATTN_PART_(CONTENT, a->choice) && (t->done >> r & 1)) continue;
    if (t->l[r] > 0.0f && t->l[r] < INFINITY)
      lse = (float)(((double)t->m[r] + attn_log2_(t->l[r])) * ATTN_LN2_);
    else if (t->l[r] != 0.0f)
      lse = attn_from_bits_(0x7fc00000u);
    memcpy(attn_at_(&a->lse, t->batch, t->head[r], t->row[r]), &lse, sizeof lse);
  }
}

/* Scores of a row of a map, in their unit, become natural ones. */
ATTN_FUNC_ void attn_map_natural_(const attn_softmax_ *a, float *row) {
  const float by = (float)(1.0 / a->unit);
  for (int64_t c = 0; c < a->map.dim; c++)
    row[c] = row[c] != row[c] ? attn_from_bits_(0x7fc00000u) : row[c] * by;
}

/* What leaves the tile (E10). */
ATTN_FUNC_ void attn_tile_finish_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  const attn_reshape_ *reshape = ATTN_PART_(WEIGHTS_, a->reshape);
  if (reshape && reshape->finish)
    reshape->finish(t);
  else if (!attn_shiftless_(a)) /* else the sums as they are */
    attn_tile_divide_(t);
  if (reshape && reshape->gate) reshape->gate(t, NULL, 0);
  f->unpack(t->out, t->w.ot, t->n, a->v.dim, a->o.dtype, t->scale);
  const int weights =
      (a->map.data && !attn_weighs_(a)) || (ATTN_PART_(EDGES, a->edges) && a->edges->weights);
  if (weights)
    for (int r = 0; r < t->n; r++) {
      /* m includes the sinks here: exp2(x - m) / l with what scale already holds */
      const float inv = t->l[r] == 0.0f ? 0.0f : 1.0f / t->l[r];
      const float m = t->m[r] == -INFINITY ? 0.0f : t->m[r];
      if (a->map.data) {
        float *row = (float *)(void *)attn_at_(&a->map, t->batch, t->head[r], t->row[r]);
        if (a->map_scores)
          attn_map_natural_(a, row);
        else
          f->weights(row, row, a->map.dim, m, inv);
        if (ATTN_PART_(LOW, a->low) && !a->map_scores) attn_low_map_(row, a->map.dim);
        if (ATTN_HAS_TRAINING && a->map_dropped) attn_map_drop_(t, r, row, a->map.dim);
      }
      if (ATTN_PART_(EDGES, a->edges) && a->edges->weights) {
        attn_list_ list;
        attn_list_of_(t, r, &list);
        float *row = attn_list_weights_(t, r, &list);
        f->weights(row, row, list.count, m, inv);
      }
    }
}

/* inline: gcc takes a function of prefetches for one without effect and drops the call */
ATTN_INLINE_ void attn_row_ahead_(const attn_tensor *x, int64_t b, int64_t h, int64_t i) {
  const char *p = attn_at_(x, b, h, i);
  for (int64_t c = 0; c < attn_bytes_(x->dtype, x->dim); c += 64) ATTN_PREFETCH_(p + c);
}

/* Rows of q and o lie in far memory when few keys are computed between two tiles, and so do scattered
 * keys. They are asked for in portions while a block is computed: rows of the next tile (blocks of
 * 256 keys at T = 16384: 10 % of the time), keys of the next block (stride 128: 15 %). */
ATTN_INLINE_ void attn_tile_ahead_(attn_tile_ *t, attn_cursor_ *keys, int64_t step) {
  const attn_softmax_ *a = t->a;
  if (t->next) {
    const int32_t *row = (const int32_t *)attn_plan_at_(a->plan, a->plan->at_row) + t->next->row;
    for (int i = 0; i < 16 && t->asked < t->next->n; i++, t->asked++) {
      attn_row_ahead_(&a->q, t->batch, t->head[0], row[t->asked]);
      attn_row_ahead_(&a->o, t->batch, t->head[0], row[t->asked]);
    }
  }
  if (ATTN_PART_(SELECTION, keys->key)) {
    a->listed->ahead(t, keys);
    return;
  }
  for (int i = 0; i < ATTN_BLOCK_ / 2 && keys->runs > 0; i++) {
    if (step == 1 && keys->run->n >= ATTN_GROUP_) return; /* the machine sees that coming */
    const int64_t key = keys->run->key + keys->used * step;
    attn_row_ahead_(&a->k, t->batch, t->head_k, key);
    attn_row_ahead_(&a->v, t->batch, t->head_v, key);
    if (++keys->used == keys->run->n) keys->run++, keys->runs--, keys->used = 0;
  }
}

/* The same without a schedule: the next item is most often the tile below. 64 keys a tile at
 * T = 16384: 20 % of the time, 128 keys: 15 %. */
ATTN_INLINE_ void attn_tile_below_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  for (int i = 0; i < ATTN_TILE_ / 2 && t->asked < t->n; i++, t->asked++) {
    const int64_t row = t->row[t->asked] - ATTN_TILE_ / a->group;
    if (row < 0) continue;
    attn_row_ahead_(&a->q, t->batch, t->head[t->asked], row);
    attn_row_ahead_(&a->o, t->batch, t->head[t->asked], row);
  }
}

/* Attends to the blocks of a walk. started: the accumulator holds something; the result too. */
ATTN_FUNC_ int attn_tile_walk_(attn_tile_ *t, int started) {
  const attn_softmax_ *a = t->a;
  attn_walk_ w;
  attn_cursor_ ahead = {NULL, 0, 0, NULL};
  attn_walk_open_(t, &w);
  if (ATTN_PART_(LOW, a->codes)) attn_codes_tile_(t);
  while (attn_walk_next_(t, &w)) {
    if (ATTN_PART_(LOW, a->codes))
      attn_codes_fetch_(t, &w.block);
    else if (ATTN_PART_(LOW, a->low))
      attn_low_fetch_(t, &w.block);
    else
      attn_block_fetch_(t, &w.block);
    if (attn_sparse_(a)) w.block.partial = 1;
    t->partial |= w.block.partial;
    attn_block_modifiers_(t, &w.block);
    const attn_plan_tile_ *ahead_of = w.cursor.runs > 0 ? t->plan : t->next;
    if (ATTN_PART_(PATTERN, a->plan)) {
      ahead = w.cursor.runs > 0 ? w.cursor : attn_tile_runs_(a, t->next);
      attn_tile_ahead_(t, &ahead, ahead_of ? ahead_of->step : 1);
    }
    if (w.few) attn_tile_below_(t);
    attn_block_scores_(t, &w.block);
    if (ATTN_PART_(PATTERN, a->plan)) attn_tile_ahead_(t, &ahead, ahead_of ? ahead_of->step : 1);
    if (w.few) attn_tile_below_(t);
    if (ATTN_PART_(CONTENT, a->choice)) {
      w.block.partial = t->partial = 1;
      if (!a->choice->on->block(t, &w.block)) continue;
    }
    attn_block_values_(t, &w.block, attn_tile_stretch_(t, attn_walk_stretch_(t, &w), started));
    started = 1;
  }
  return started;
}

/* All keys of a tile. 0 when there was nothing to see. */
ATTN_FUNC_ int attn_tile_sweep_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  int started = attn_tile_load_(t);
  if (ATTN_PART_(CONTENT, a->choice)) a->choice->on->open(t);
  t->partial = 0;
  t->xl_next = t->stretch = -1;
  t->folded = 0;
  const attn_reshape_ *reshape = ATTN_PART_(WEIGHTS_, a->reshape);
  if (reshape && reshape->start) reshape->start(t);
  if (ATTN_PART_(EDGES, a->edges) || (ATTN_PART_(PATTERN, a->plan) && t->plan->step <= 0))
    started = attn_tile_lists_(t, started);
  else
    for (int part = 0; part < attn_tile_parts_(t); part++) {
      attn_tile_part_(t, part);
      started = attn_tile_walk_(t, started);
    }
  attn_tile_unfold_(t);
  return started;
}

/* Factors of rows go into the packed queries and into what is made of them. */
ATTN_FUNC_ void attn_tile_scale_(attn_tile_ *t, const float by[ATTN_TILE_]) {
  const attn_softmax_ *a = t->a;
  const attn_table_ *f = a->table;
  attn_on_(tile, f)->scale_block(t->w.qt, a->q.dim, 0, t->groups, by);
  if (ATTN_PART_(TERMS, a->xl.table.data))
    attn_on_(tile, f)->scale_block(t->w.xl_qt, a->q.dim, 0, t->groups, by);
  if (ATTN_PART_(TERMS, a->relative.keys.data))
    attn_on_(tile, f)->scale_block(t->w.rel_keys, t->rel_rows, 0, t->groups, by);
  if (ATTN_PART_(TERMS, a->relative.queries.data))
    memcpy(t->w.rel_queries, by, ATTN_TILE_ * sizeof *by);
  if (ATTN_PART_(TERMS, a->labels.label))
    attn_on_(tile, f)->scale_block(t->w.labels, a->labels.table.len, 0, t->groups, by);
}

/* Rows of a tile are known: reshaped ones may have factors. */
ATTN_FUNC_ void attn_tile_reshape_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const attn_reshape_ *reshape = ATTN_PART_(WEIGHTS_, a->reshape);
  float by[ATTN_TILE_] = {0};
  if (!reshape || !reshape->open || a->counting || !reshape->open(t, by)) return;
  const int64_t width = attn_row_width_(a->q.dim);
  for (int r = 0; a->by_row && r < t->n; r++)
    for (int64_t c = 0; c < width; c++) t->w.row_q[r * width + c] *= by[r];
  if (!a->by_row) attn_tile_scale_(t, by);
}

/* The value side of relative vectors: sums by distance times vectors, added to the accumulator. As
 * with values, a vector that is not finite must reach the rows that have a key at its distance and
 * no others, whatever their weights: then the keys of a tile are noted. */
ATTN_FUNC_ void attn_tile_relative_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const attn_tensor *v = &a->relative.values;
  const int64_t dv = a->v.dim;
  const float *row = attn_table_row_(v, t->head[0], t->rel_first + attn_relative_clip_(a));
  t->w.held->n = 0;
  for (int64_t d = 0, n; d < t->rel_rows; d += n) { /* blocks as of keys, the same for all tiles */
    n = ATTN_BLOCK_ - (t->rel_first + attn_relative_clip_(a) + d) % ATTN_BLOCK_;
    if (n > t->rel_rows - d) n = t->rel_rows - d;
    const float *part = row + d * v->stride_len;
    if (!t->rel_careful) {
      attn_on_(tile, a->table)
          ->value_block(t->w.ot, t->w.rel_values + d * ATTN_TILE_, part, v->stride_len, n, dv, 0,
                        t->groups, NULL, 0);
      continue;
    }
    for (int64_t i = 0; i < n; i++)
      for (int64_t c = 0; c < dv; c++) {
        const float x = part[i * v->stride_len + c];
        t->w.v[i * dv + c] = x - x == 0.0f ? x : 0.0f;
      }
    attn_on_(tile, a->table)
        ->value_block(t->w.ot, t->w.rel_values + d * ATTN_TILE_, t->w.v, dv, n, dv, 0, t->groups,
                      NULL, 0);
    for (int64_t i = 0; i < n; i++)
      for (int64_t c = 0; c < dv; c++) {
        const float x = part[i * v->stride_len + c];
        for (int r = 0; x - x != 0.0f && r < t->n; r++)
          if (t->w.rel_hit[(d + i) * ATTN_TILE_ + r])
            t->w.ot[c * ATTN_TILE_ + r] += t->w.rel_values[(d + i) * ATTN_TILE_ + r] * x;
      }
  }
}

/* The rows of the map before the first key. */
ATTN_FUNC_ void attn_tile_no_map_(const attn_tile_ *t, float x) {
  const attn_tensor *map = &t->a->map;
  for (int r = 0; r < t->n; r++) {
    float *row = (float *)(void *)attn_at_(map, t->batch, t->head[r], t->row[r]);
    for (int64_t c = 0; c < map->dim; c++) row[c] = x;
  }
}

/* A tile whose rows are in their lanes. */
ATTN_FUNC_ void attn_tile_placed_(attn_tile_ *t, int last) {
  const attn_softmax_ *a = t->a;
  const int64_t pairs = *t->w.pairs;
  attn_tile_terms_(t);
  attn_tile_reshape_(t);
  if (a->map.data && a->phase == 0) attn_tile_no_map_(t, attn_weighs_(a) ? 0.0f : -INFINITY);
  t->careful = t->rel_careful = 0;
  if (ATTN_PART_(CONTENT, a->choice) && a->choice->on->skips(t)) return;
  if (attn_choice_blind_(a)) {
    a->choice->on->tile(t, last);
    return;
  }
  if (ATTN_PART_(TERMS, a->relative.values.data) && t->rel_rows > 0)
    t->rel_careful = !a->table->finite(
        attn_table_row_(&a->relative.values, t->head[0], t->rel_first + attn_relative_clip_(a)),
        a->relative.values.stride_len, t->rel_rows, a->v.dim);
  attn_tile_relative_clear_(t);
  const attn_reshape_ *reshape = ATTN_PART_(WEIGHTS_, a->reshape);
  if (reshape && reshape->before && !a->counting) reshape->before(t);
  int started = attn_tile_sweep_(t);
  if (t->partial && started && !a->counting &&
      !a->table->finite(t->w.ot, ATTN_TILE_, a->v.dim, t->n)) {
    t->careful = 1, *t->w.pairs = pairs;
    attn_tile_relative_clear_(t);
    started = attn_tile_sweep_(t);
  }
  if (!started) memset(t->w.ot, 0, (size_t)(a->v.dim * ATTN_TILE_) * sizeof(float));
  if (ATTN_PART_(TERMS, a->relative.values.data) && t->rel_rows > 0 && started)
    attn_tile_relative_(t);
  if (last && !a->counting)
    attn_tile_finish_(t);
  else
    attn_tile_store_(t);
}

/* A tile whose rows are known. */
ATTN_FUNC_ void attn_tile_run_(attn_tile_ *t, int last) {
  attn_tile_lanes_(t);
  attn_tile_placed_(t, last);
}

/* Tiles of one phase and head of a schedule. */
ATTN_FUNC_ int64_t attn_plan_tiles_(const attn_plan_ *p, int64_t head, int phase, int64_t *first) {
  const int32_t *variant = (const int32_t *)attn_plan_at_(p, p->at_head);
  const int64_t *tiles = (const int64_t *)attn_plan_at_(p, p->at_tiles);
  const int64_t at = variant[head] * p->phases + phase;
  *first = tiles[at];
  return tiles[at + 1] - tiles[at];
}

ATTN_FUNC_ void attn_tile_open_(attn_tile_ *t, const attn_softmax_ *a, int worker) {
  t->a = a;
  t->plan = t->next = NULL, t->keys = NULL;
  t->done = 0;
  t->key0 = 0, t->key1 = INT64_MAX, t->scored = 0;
  t->given = NULL, t->before = NULL;
  t->asked = ATTN_TILE_; /* nothing is to be asked for */
  attn_scratch_cut_(a, worker, &t->w);
}

/* Tile n of a (batch, head group), the last first: causal ones cost most there. */
ATTN_FUNC_ void attn_softmax_tile_(const attn_softmax_ *a, int worker, int64_t unit, int64_t n) {
  attn_tile_ t;
  attn_tile_open_(&t, a, worker);
  attn_tile_group_rows_(&t, unit, a->tiles - 1 - n);
  if (n + 1 < a->tiles) t.asked = 0; /* there is a tile below */
  attn_tile_run_(&t, 1);
}

/* One work item: a tile of one (batch, head group), or of a schedule. */
ATTN_FUNC_ void attn_softmax_item_(void *job, int worker, int64_t index) {
  const attn_softmax_ *a = (const attn_softmax_ *)job;
  attn_tile_ t;
  if (!ATTN_PART_(PATTERN, a->plan)) {
    attn_softmax_tile_(a, worker, index / a->tiles, index % a->tiles);
    return;
  }
  attn_tile_open_(&t, a, worker);
  const attn_plan_ *p = a->plan;
  const int32_t *variant = (const int32_t *)attn_plan_at_(p, p->at_head);
  const int32_t *phases = (const int32_t *)attn_plan_at_(p, p->at_phase);
  int64_t head = 0, first, left = index % a->tiles, n;
  while ((n = attn_plan_tiles_(p, head, a->phase, &first)) <= left) left -= n, head++;
  const attn_plan_tile_ *tile = (const attn_plan_tile_ *)attn_plan_at_(p, p->at_tile) + first;
  attn_tile_plan_rows_(&t, index / a->tiles, head, tile + (n - 1 - left));
  t.next = left + 1 < n ? tile + (n - 2 - left) : NULL, t.asked = 0;
  attn_tile_run_(&t, a->phase == phases[variant[head]] - 1);
}
