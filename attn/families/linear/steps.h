/* families/linear/steps.h owns the linear state where keys go one by one: a call of a few of them and of a few rows. */

enum { ATTN_LINEAR_FEW_ = 4 }; /* keys, and rows, that go one by one */

/* A head's keys 0 .. n - 1 one after another, row i behind key i + q_off or, without order, behind the
 * last. Rows of all heads of the group fit a tile. */
ATTN_FUNC_ void attn_linear_steps_(attn_linear_chain_ *c, int64_t n, int64_t i0, int64_t i1) {
  const attn_linear_ *a = c->a;
  const attn_table_ *f = a->table;
  const attn_linear_own_ *w = &c->w;
  const attn_linear_slot_ s = c->s;
  attn_sums_ sums = {s.s, s.s_rest, a->wide, 1.0f};
  const int64_t m = a->m, wide = a->wide, rows = i1 - i0, h0 = c->head * a->group;
  if (rows > 0)
    for (int64_t g = 0; g < a->group; g++)
      attn_map_queries_(&a->map, w->map, w->p + g * rows * m,
                        attn_linear_rows_(f, w->x, &a->q, c->b, h0 + g, i0, rows), rows, h0 + g);
  const float *x = n > 0 ? attn_linear_rows_(f, w->x, &a->k, c->b, c->kv, 0, n) : NULL;
  c->n = (int)n, c->sound = 0;
  if (n > 0) {
    float now[ATTN_LINEAR_CHUNK_];
    attn_map_keys_(&a->map, w->map, w->c, x, n, c->head, c->s.tail[ATTN_LINEAR_TOP_], now);
    attn_linear_falls_(c, now);
    attn_linear_rates_(c, 0);
    memset(w->v, 0, (size_t)(n * wide) * sizeof(float));
  }
  for (int64_t j = 0; j < n || j == 0; j++) {
    double of_s = attn_linear_pair_(s.tail + ATTN_LINEAR_LEFT_);
    float keep = j < n && a->map.running ? c->fall[j] : 1.0f;
    sums.left = (float)of_s;
    float *p = w->c + j * m, *v = w->v + j * wide;
    if (j < n) {
      const char *value = attn_at_(&a->v, c->b, c->kv, j);
      if (a->delta) {
        float by = c->rate[j];
        attn_on_(state, f)->step(w->y, p, &sums, m, wide, 1.0f, NULL, NULL);
        if (a->rule == ATTN_LINEAR_DELTA_ATTN) {
          const float self = attn_on_(state, f)->step_z(p, s.z, s.z_rest, m, 1.0f, NULL);
          by = fabsf(self) < FLT_MIN ? 0.0f : by / self;
        }
        f->blend(v, value, w->y, ATTN_F32, a->v.dtype, ATTN_F32, a->dv, c->rate[j], -by);
      } else {
        f->widen(v, value, 0, NULL, 1, a->dv, a->v.dtype, NULL);
        if (a->decays) keep *= c->rate[j];
        if (a->rule == ATTN_LINEAR_GATED) {
          const float gate = 1.0f - c->rate[j];
          f->scale_rows(p, m, p, m, 1, m, &gate);
        }
      }
      of_s *= (double)keep, sums.left = (float)of_s;
      attn_linear_set_pair_(s.tail + ATTN_LINEAR_LEFT_, of_s);
      s.tail[ATTN_LINEAR_OPEN_] += 1.0f;
      attn_on_(state, f)->step_z(NULL, s.z, s.z_rest, m, keep, p);
      if (c->s.sum) {
        const float weight = a->rule == ATTN_LINEAR_GATED ? 1.0f - c->rate[j] : 1.0f;
        const float left = a->decays ? c->rate[j] : 1.0f;
        attn_on_(state, f)->accrue(s.sum, s.sum_rest, v, a->dv, (double)left, weight);
        c->s.tail[ATTN_LINEAR_COUNT_KEYS_] = left * c->s.tail[ATTN_LINEAR_COUNT_KEYS_] + weight;
      }
    }
    int joined = j >= n;
    for (int64_t i = 0; i < rows; i++) {
      const int64_t at = a->causal ? i0 + i + a->q_off : n - 1;
      if ((at < n ? at : n - 1) != j && n > 0) continue;
      if (c->s.sum && i == 0) { /* only without order, so behind the last key */
        if (!joined) attn_on_(state, f)->step(NULL, NULL, &sums, m, wide, keep, p, v);
        joined = 1;
        attn_linear_settle_(f, s, m * wide);
        sums.left = 1.0f;
        attn_linear_late_(a, c->s);
      }
      for (int64_t g = 0; g < a->group; g++) {
        const float *row = w->p + (g * rows + i) * m;
        attn_on_(state, f)->step(w->y, row, &sums, m, wide, keep, joined ? NULL : p, v);
        const float den = attn_on_(state, f)->step_z(row, s.z, s.z_rest, m, 1.0f, NULL);
        joined = 1;
        if (j >= n - 1 && !c->s.sum)
          c->sound |= den - den == 0.0f && f->finite(w->y, wide, 1, a->dv);
        attn_linear_divide_(a, w->y, &den, c->b, h0 + g, i0 + i, 1);
      }
    }
    if (!joined) attn_on_(state, f)->step(NULL, NULL, &sums, m, wide, keep, p, v);
    if (s.tail[ATTN_LINEAR_OPEN_] >= (float)ATTN_LINEAR_JOIN_) attn_linear_settle_(f, s, m * wide);
  }
}
