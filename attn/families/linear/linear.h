/* families/linear/linear.h owns attention over a linear state: checks, and how the work is divided. A head's
 * keys are a chain. Where there are more workers than heads, the chain is first walked for the keys
 * alone, by slices of the values, and left at marks from which rows go on; without order, sums of
 * segments are made apart and added in order. Each way does the same arithmetic. */

enum {
  ATTN_LINEAR_RUN_ = 1024, /* keys between two marks, or as many as whole chunks have */
  ATTN_LINEAR_TILE_ = 240  /* rows of an item that only read */
};

/* ---- checks -------------------------------------------------------------------------------------*/

/* 0 = the default, -0 = 0 */
ATTN_FUNC_ int attn_linear_default_(attn_error_ *e, float *x, float otherwise, const char *rule) {
  if (*x == 0.0f) *x = attn_to_bits_(*x) ? 0.0f : otherwise;
  return *x - *x == 0.0f ? 1 : attn_reject_(e, ATTN_E_VALUE, rule);
}

ATTN_FUNC_ int attn_linear_check_den_(attn_error_ *e, attn_linear_ *a,
                                      const attn_linear_params *p) {
  const int rfa = a->map.kind == ATTN_FEATURES_RFA;
  if ((int)p->den < 0 || p->den >= ATTN_LINEAR_DEN_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.den must be an attn_linear_den");
  a->den = p->den, a->eps = p->eps, a->out_scale = p->out_scale;
  if (p->den == ATTN_LINEAR_DEN_DEFAULT)
    a->den = a->rule == ATTN_LINEAR_DELTA ? ATTN_LINEAR_DEN_NONE
             : rfa                        ? ATTN_LINEAR_DEN_CLAMP
                                          : ATTN_LINEAR_DEN_ADD;
  const int positive =
      a->map.kind == ATTN_FEATURES_SOFTMAX || a->map.kind == ATTN_FEATURES_HYPERBOLIC;
  if (a->den == ATTN_LINEAR_DEN_NONE && a->map.p.norm == ATTN_FEATURE_NORM_NONE &&
      (positive || a->map.running))
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.den must divide: features of this map carry a factor of their own");
  const float usual = a->den == ATTN_LINEAR_DEN_CLAMP     ? 1e-4f
                      : a->map.kind == ATTN_FEATURES_ELU1 ? 1e-6f
                                                          : 0.0f;
  if (!attn_linear_default_(e, &a->eps, usual, "params.eps must be finite") ||
      !attn_linear_default_(e, &a->out_scale, 1.0f, "params.out_scale must be finite"))
    return 0;
  a->map.quotients =
      positive && a->eps == 0.0f && a->map.p.eps == 0.0f && a->map.p.norm == ATTN_FEATURE_NORM_NONE;
  return a->eps >= 0.0f ? 1 : attn_reject_(e, ATTN_E_VALUE, "params.eps must not be negative");
}

/* A rate of decay or a gate lies in 0 .. 1; data = 0: arrays are not read. */
ATTN_FUNC_ int attn_linear_check_rates_(attn_error_ *e, const attn_linear_ *a, int data) {
  const attn_tensor *t = &a->rate;
  float x[ATTN_LINEAR_CHUNK_];
  if (!a->decays) return 1;
  if (!t->data && !a->rate_head)
    return a->rate_const >= 0.0f && a->rate_const <= 1.0f
               ? 1
               : attn_reject_(e, ATTN_E_VALUE, "params.rate_const must lie in 0 .. 1");
  if (!data) return 1;
  if (!t->data) {
    for (int64_t h = 0; h < a->k.heads; h++)
      if (!(a->rate_head[h] >= 0.0f && a->rate_head[h] <= 1.0f))
        return attn_reject_(e, ATTN_E_VALUE, "params.rate_head: rates must lie in 0 .. 1");
    return 1;
  }
  for (int64_t b = 0; b < t->batch; b++) {
    int64_t len = 0; /* keys that do not exist have no rate either */
    for (int64_t i = 0; i < a->k.batch; i++)
      if (t->batch == 1 || i == b) {
        const int64_t n = a->kv_len ? a->kv_len[i] : a->k.len;
        if (n > len) len = n;
      }
    for (int64_t h = 0; h < t->heads; h++)
      for (int64_t j = 0; j < len; j += ATTN_LINEAR_CHUNK_) {
        const int64_t n = len - j < ATTN_LINEAR_CHUNK_ ? len - j : (int64_t)ATTN_LINEAR_CHUNK_;
        a->table->widen(x, attn_at_(t, b, h, j), t->stride_len, NULL, n, 1, t->dtype, NULL);
        for (int64_t i = 0; i < n; i++)
          if (!(x[i] >= 0.0f && x[i] <= 1.0f))
            return attn_reject_(e, ATTN_E_VALUE, "params.rate: rates must lie in 0 .. 1");
      }
  }
  return 1;
}

/* Whether so many keys and rows go one by one. */
ATTN_FUNC_ int attn_linear_few_rows_(const attn_linear_ *a, int64_t keys, int64_t rows) {
  return keys <= ATTN_LINEAR_FEW_ && rows <= ATTN_LINEAR_FEW_ &&
         attn_mul_(a->group, rows) <= ATTN_LINEAR_CHUNK_;
}

/* Every rule; all but the memory and the division of work is set. data = 0: arrays are not read; -1:
 * nor are addresses compared. */
ATTN_FUNC_ int attn_linear_plan_(attn_error_ *e, attn_linear_ *a, attn_tensor o, attn_tensor q,
                                 attn_tensor k, attn_tensor v, const attn_linear_params *params,
                                 const attn_ctx *ctx, int *workers, int data) {
  enum { O, Q, K, V, RATE, COUNT };
  const int64_t any = ATTN_ANY_;
  static const attn_linear_params none ATTN_ZEROS_;
  const attn_linear_params *p = params ? params : &none;
  attn_spans_ more;
  more.n = 0;
  attn_span_ *state = attn_spans_more_(&more, 1);
  attn_clear_(a, sizeof *a);
  if (!attn_check_ctx_(e, ctx, &a->table, workers)) return 0;
  a->map.table = a->table;
  a->o = o, a->q = q, a->k = k, a->v = v, a->rate = p->rate;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&a->o, "o", ATTN_OUT_, q.batch, q.heads, q.len, v.dim,
                    "o must be [q.batch, q.heads, q.len, v.dim]"),
      ATTN_OPERAND_(&a->q, "q", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&a->k, "k", 0, q.batch, ATTN_DIVIDES_, any, q.dim,
                    "k must be [q.batch, kv_heads, Tk, q.dim], kv_heads a divisor of q.heads"),
      ATTN_OPERAND_(&a->v, "v", 0, q.batch, k.heads, k.len, any,
                    "v must be [q.batch, k.heads, k.len, dv]"),
      ATTN_OPERAND_(&a->rate, "params.rate", ATTN_OPTIONAL_, any, ATTN_ONE_OR_ALL_, k.len, 1,
                    "params.rate must be [1 or B, 1 or kv_heads, k.len, 1]")};
  if (!attn_check_given_(e, op, COUNT)) return 0;
  for (int i = 0; i < COUNT; i++)
    if (!attn_check_operand_(e, &op[i], i == RATE ? k.heads : q.heads)) return 0;
  if (!attn_linear_sizes_(e, a, p, q.heads, k.heads, k.dim, v.dim)) return 0;
  if (!p->has_q_off && p->q_off)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off needs params.has_q_off = 1");
  if (p->has_q_off && attn_abs64_(p->q_off) >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off must lie within 2^40 of 0");
  a->q_off = p->has_q_off ? p->q_off : k.len - q.len;
  if (p->rule == ATTN_LINEAR_GATED && a->map.kind == ATTN_FEATURES_RFA && !a->causal)
    return attn_reject_(e, ATTN_E_RANGE, "params.rule: gated random features must be causal");
  if (p->chunk < 0 || p->chunk > ATTN_LINEAR_CHUNK_)
    return attn_reject_(e, ATTN_E_RANGE, "params.chunk must lie in 1 .. 64, or be 0");
  a->chunk = p->chunk ? p->chunk : (int64_t)ATTN_LINEAR_CHUNK_;
  a->kv_len = p->kv_len, a->q_len = p->q_len, a->rate_head = p->rate_head;
  a->few = attn_linear_few_rows_(a, k.len, q.len);
  if (!attn_take_array_(e, p->kv_len, q.batch, 4, "params.kv_len must be aligned to its elements",
                        &more) ||
      !attn_take_array_(e, p->q_len, q.batch, 4, "params.q_len must be aligned to its elements",
                        &more) ||
      !attn_take_array_(e, p->rate_head, k.heads, 4,
                        "params.rate_head must be aligned to its elements", &more))
    return 0;
  if (a->rate.data && a->rate.batch != 1 && a->rate.batch != q.batch)
    return attn_reject_(e, ATTN_E_SHAPE, op[RATE].rule);
  if (p->rule == ATTN_LINEAR_SUM && (a->rate.data || p->rate_head || p->rate_const != 0.0f))
    return attn_reject_(e, ATTN_E_RANGE, "params.rate must be absent for ATTN_LINEAR_SUM");
  if (p->rule == ATTN_LINEAR_GATED && !a->rate.data && !p->rate_head &&
      !attn_to_bits_(p->rate_const))
    return attn_reject_(e, ATTN_E_NULL, "params.rate must not be absent for ATTN_LINEAR_GATED");
  a->rate_const = p->rate_const;
  if (!attn_linear_default_(e, &a->rate_const, 1.0f, "params.rate_const must be finite") ||
      !attn_linear_check_den_(e, a, p))
    return 0;
  if (data > 0 &&
      (!attn_check_lens_(e, p->kv_len, q.batch, k.len, "params.kv_len must lie in 0..k.len") ||
       !attn_check_lens_(e, p->q_len, q.batch, q.len, "params.q_len must lie in 0..q.len")))
    return 0;
  if (!attn_linear_check_rates_(e, a, data > 0)) return 0;
  if (p->state) {
    const attn_linear_block_ block = attn_linear_block_of_(a, q.batch, k.heads);
    if (!attn_linear_check_block_(e, &block, p->state, p->state_bytes, state)) return 0;
    a->slots = (float *)(void *)((char *)p->state + sizeof block);
    a->kept = 1;
  }
  if (data < 0) return 1;
  if (a->map.directions) *attn_spans_more_(&more, 1) = a->map.w_span;
  if (a->map.p.sigmas) *attn_spans_more_(&more, 1) = a->map.sigmas_span;
  if (!attn_span_alone_(state, op, COUNT, state + 1, more.n - 1))
    return attn_reject_(e, ATTN_E_OVERLAP,
                        "params.state must not share memory with another argument");
  return attn_check_apart_(e, ctx, op, COUNT, more.span, more.n);
}

/* ---- the division of work -----------------------------------------------------------------------*/

/* What of a batch entry exists, and how rows meet keys. */
typedef struct attn_linear_range_ {
  int64_t keys, rows; /* lengths */
  int64_t row0, key0; /* the first row that sees a key, the chunk grid's origin */
  int64_t met;        /* rows from row0 on that stand at a key: of key0 and the next */
  int64_t end;        /* keys that matter */
  int few;
} attn_linear_range_;

ATTN_FUNC_ attn_linear_range_ attn_linear_range_of_(const attn_linear_ *a, int64_t b) {
  attn_linear_range_ r;
  memset(&r, 0, sizeof r);
  r.keys = a->kv_len ? a->kv_len[b] : a->k.len;
  r.rows = a->q_len ? a->q_len[b] : a->q.len;
  r.row0 = a->causal && a->q_off < 0 ? (-a->q_off < r.rows ? -a->q_off : r.rows) : 0;
  r.key0 = r.end = r.keys;
  if (a->causal && r.row0 < r.rows && r.row0 + a->q_off < r.keys) {
    r.key0 = r.row0 + a->q_off;
    r.met = r.rows - r.row0 < r.keys - r.key0 ? r.rows - r.row0 : r.keys - r.key0;
    if (!a->kept) r.end = r.key0 + r.met;
  }
  if (!a->kept && r.row0 == r.rows) r.keys = r.key0 = r.end = 0;
  if (!a->kept && r.keys == 0) r.row0 = r.rows; /* there is nothing to read */
  r.few = a->few || attn_linear_few_rows_(a, r.keys, r.rows);
  return r;
}

/* Keys of a segment: whole chunks, of which the first begins at key0. */
ATTN_FUNC_ int64_t attn_linear_run_of_(const attn_linear_ *a) {
  if (!a->causal) return ATTN_LINEAR_SEGMENT_;
  return (ATTN_LINEAR_RUN_ + a->chunk - 1) / a->chunk * a->chunk;
}

ATTN_FUNC_ int64_t attn_linear_segments_(const attn_linear_ *a, const attn_linear_range_ *r) {
  const int64_t n = a->causal ? r->end - r->key0 : r->keys, each = attn_linear_run_of_(a);
  return n > 0 ? (n + each - 1) / each : 1;
}

ATTN_FUNC_ float *attn_linear_slot_of_(const attn_linear_ *a, int64_t b, int64_t head) {
  return a->slots ? a->slots + (b * a->heads + head) * a->slot : NULL;
}
ATTN_FUNC_ float *attn_linear_mark_(const attn_linear_ *a, int64_t unit, int64_t n) {
  return a->marks + (unit * (a->segments + 1) + n) * a->slot;
}

/* Rows that see nothing, of all heads of a state. */
ATTN_FUNC_ void attn_linear_blank_(const attn_linear_ *a, const attn_linear_range_ *r, int64_t b,
                                   int64_t head) {
  for (int64_t h = head * a->group; h < (head + 1) * a->group; h++) {
    attn_linear_zeros_(a, b, h, 0, r->row0);
    attn_linear_zeros_(a, b, h, r->rows, a->q.len);
  }
}

/* Chunks of keys j0 .. j1 - 1, from key0 on, and the rows that stand there. */
ATTN_FUNC_ void attn_linear_walk_(attn_linear_chain_ *c, const attn_linear_range_ *r, int64_t j0,
                                  int64_t j1, int with_rows) {
  const attn_linear_ *a = c->a;
  for (int64_t j = j0, n; j < j1; j += n) {
    const int64_t at = j - r->key0, left = with_rows ? r->met - at : 0;
    n = j1 - j < a->chunk ? j1 - j : a->chunk;
    attn_linear_keys_(c, j, (int)n, 1, left > 0);
    const int64_t rows = left < n ? left : n;
    if (rows > 0)
      for (int64_t h = c->head * a->group; h < (c->head + 1) * a->group; h++)
        attn_linear_rows_of_(c, h, r->row0 + at, rows);
    attn_linear_update_(c, 1);
  }
}

/* Rows behind the last key. */
ATTN_FUNC_ void attn_linear_rest_(attn_linear_chain_ *c, const attn_linear_range_ *r) {
  const attn_linear_ *a = c->a;
  for (int64_t h = c->head * a->group; h < (c->head + 1) * a->group; h++)
    attn_linear_read_all_(a, &c->w, c->s, c->b, h, r->row0 + r->met, r->rows);
}

/* What the caller keeps of a state has one NaN; the numbers behind the sums hold -inf, so apart. */
ATTN_FUNC_ void attn_linear_keep_(const attn_linear_ *a, float *slot) {
  float *tail = attn_linear_slot_at_(a, slot).tail;
  attn_row_one_nan_(a->table, slot, tail - slot);
  attn_row_one_nan_(a->table, tail, slot + a->slot - tail);
}

/* A few keys and rows. */
ATTN_FUNC_ void attn_linear_few_(attn_linear_chain_ *c, const attn_linear_range_ *r, float *slot) {
  c->s = attn_linear_slot_at_(c->a, slot);
  attn_linear_blank_(c->a, r, c->b, c->head);
  attn_linear_steps_(c, r->keys, r->row0, r->rows);
  if (c->a->kept && !c->sound) attn_linear_keep_(c->a, slot);
}

/* All of a head in order. */
ATTN_FUNC_ void attn_linear_whole_(void *job, int worker, int64_t unit) {
  const attn_linear_ *a = (const attn_linear_ *)job;
  const int64_t b = attn_over_(unit, a->heads), head = unit - b * a->heads;
  const attn_linear_range_ r = attn_linear_range_of_(a, b);
  attn_linear_chain_ c;
  attn_linear_open_(&c, a, worker, b, head);
  float *slot = a->kept ? attn_linear_slot_of_(a, b, head) : c.w.slot;
  if (!a->kept) attn_linear_empty_(a, slot);
  if (r.few) {
    attn_linear_few_(&c, &r, slot);
    return;
  }
  c.s = attn_linear_slot_at_(a, slot);
  attn_linear_settle_(a->table, c.s, a->m * a->wide);
  attn_linear_blank_(a, &r, b, head);
  attn_linear_absorb_(&c, 0, r.key0, 0);
  attn_linear_walk_(&c, &r, r.key0, r.end, 1);
  attn_linear_flush_(&c, 1.0);
  attn_linear_rest_(&c, &r);
}

/* z, its rest and the numbers behind them. */
ATTN_FUNC_ void attn_linear_copy_z_(const attn_linear_ *a, float *to, const float *from) {
  memcpy(to, from, (size_t)(2 * attn_group_up_(a->m) + ATTN_LINEAR_TAIL_) * sizeof(float));
}

/* A slice of the values along the keys, left at marks: what rows of segments start from. z, which all
 * slices need, is each one's own; the first leaves it. */
ATTN_FUNC_ void attn_linear_slice_(void *job, int worker, int64_t index) {
  const attn_linear_ *a = (const attn_linear_ *)job;
  const int64_t unit = index / a->slices, slice = index % a->slices, groups = a->wide / 16;
  const int64_t b = unit / a->heads, head = unit % a->heads;
  const attn_linear_range_ r = attn_linear_range_of_(a, b);
  const int64_t marks = a->causal ? attn_linear_segments_(a, &r) : 0, run = attn_linear_run_of_(a);
  float *slot = attn_linear_slot_of_(a, b, head);
  attn_linear_chain_ c;
  attn_linear_open_(&c, a, worker, b, head);
  if (r.few) {
    if (slice == 0) attn_linear_few_(&c, &r, slot);
    return;
  }
  const int64_t end = (slice + 1) * groups / a->slices * 16;
  c.col = slice * groups / a->slices * 16, c.cols = (end < a->dv ? end : a->dv) - c.col;
  const attn_linear_slot_ whole = attn_linear_slot_at_(a, slot);
  c.s = attn_linear_slot_at_(a, c.w.slot);
  attn_linear_copy_z_(a, c.s.z, whole.z);
  c.s.s = whole.s, c.s.s_rest = whole.s_rest;
  attn_linear_absorb_(&c, 0, r.key0, 0);
  attn_linear_flush_(&c, 1.0);
  for (int64_t n = 0; n <= marks; n++) {
    const int64_t j = r.key0 + n * run, to = j + run < r.end ? j + run : r.end;
    float *mark = attn_linear_mark_(a, unit, n < marks ? n : a->segments);
    if (n < marks)
      for (int64_t i = 0; i < 2 * a->m; i++) /* S and its rest */
        memcpy(mark + i * a->wide + c.col, slot + i * a->wide + c.col,
               (size_t)c.cols * sizeof(float));
    if (slice == 0) attn_linear_copy_z_(a, attn_linear_slot_at_(a, mark).z, c.s.z);
    if (n < marks) attn_linear_walk_(&c, &r, j, to, 0);
  }
}

/* Rows of a segment, from its mark. */
ATTN_FUNC_ void attn_linear_segment_(void *job, int worker, int64_t index) {
  const attn_linear_ *a = (const attn_linear_ *)job;
  const int64_t unit = index / a->segments, n = index % a->segments;
  const int64_t b = unit / a->heads, head = unit % a->heads;
  const attn_linear_range_ r = attn_linear_range_of_(a, b);
  const int64_t segments = attn_linear_segments_(a, &r), run = attn_linear_run_of_(a);
  const int64_t j = r.key0 + n * run, to = j + run < r.end ? j + run : r.end;
  if (r.few || n >= segments) return;
  attn_linear_chain_ c;
  attn_linear_open_(&c, a, worker, b, head);
  memcpy(c.w.slot, attn_linear_mark_(a, unit, n), (size_t)a->slot * sizeof(float));
  c.s = attn_linear_slot_at_(a, c.w.slot);
  if (n == 0) attn_linear_blank_(a, &r, b, head);
  /* behind the chunk of the last row that met a key only rows at the end need the state */
  const int64_t last = r.key0 + (r.met + a->chunk - 1) / a->chunk * a->chunk;
  attn_linear_walk_(&c, &r, j, r.row0 + r.met < r.rows || to < last ? to : last, 1);
  if (n == segments - 1) attn_linear_rest_(&c, &r);
}

/* Without order: a segment's keys by themselves. */
ATTN_FUNC_ void attn_linear_part_(attn_linear_chain_ *c, const attn_linear_range_ *r, int64_t n,
                                  float *slot) {
  const int64_t j = n * ATTN_LINEAR_SEGMENT_;
  const int64_t to = r->keys - j < ATTN_LINEAR_SEGMENT_ ? r->keys : j + ATTN_LINEAR_SEGMENT_;
  attn_linear_empty_(c->a, slot);
  c->s = attn_linear_slot_at_(c->a, slot);
  attn_linear_absorb_(c, j, to, 0);
  attn_linear_flush_(c, 1.0);
}
ATTN_FUNC_ void attn_linear_part_item_(void *job, int worker, int64_t index) {
  const attn_linear_ *a = (const attn_linear_ *)job;
  const int64_t unit = index / a->segments, n = index % a->segments, b = unit / a->heads;
  const attn_linear_range_ r = attn_linear_range_of_(a, b);
  if (r.few || n * ATTN_LINEAR_SEGMENT_ >= r.keys) return;
  attn_linear_chain_ c;
  attn_linear_open_(&c, a, worker, b, unit % a->heads);
  attn_linear_part_(&c, &r, n, a->parts + index * a->slot);
}

/* All keys of a head into its state, parts made apart or here. */
ATTN_FUNC_ void attn_linear_total_(void *job, int worker, int64_t unit) {
  const attn_linear_ *a = (const attn_linear_ *)job;
  const int64_t b = unit / a->heads, head = unit % a->heads;
  const attn_linear_range_ r = attn_linear_range_of_(a, b);
  float *slot = attn_linear_slot_of_(a, b, head);
  const attn_linear_slot_ to = attn_linear_slot_at_(a, slot);
  attn_linear_chain_ c;
  attn_linear_open_(&c, a, worker, b, head);
  if (!a->kept) attn_linear_empty_(a, slot);
  if (r.few) {
    attn_linear_few_(&c, &r, slot);
    return;
  }
  attn_linear_settle_(a->table, to, a->m * a->wide);
  if (a->delta) {
    c.s = to;
    attn_linear_absorb_(&c, 0, r.keys, 0);
    return;
  }
  for (int64_t n = 0; n * ATTN_LINEAR_SEGMENT_ < r.keys; n++) {
    float *part = a->parts ? a->parts + (unit * a->segments + n) * a->slot : c.w.slot;
    if (!a->parts) attn_linear_part_(&c, &r, n, part);
    attn_linear_add_(a, to, attn_linear_slot_at_(a, part));
  }
  attn_linear_late_(a, to);
}

/* A run of rows that read the states of all keys. */
ATTN_FUNC_ void attn_linear_reads_(void *job, int worker, int64_t index) {
  const attn_linear_ *a = (const attn_linear_ *)job;
  const int64_t unit = index / a->tiles, i0 = index % a->tiles * ATTN_LINEAR_TILE_;
  const int64_t b = unit / a->q.heads, h = unit % a->q.heads, head = h / a->group;
  const int64_t i1 = a->q.len - i0 < ATTN_LINEAR_TILE_ ? a->q.len : i0 + ATTN_LINEAR_TILE_;
  const attn_linear_range_ r = attn_linear_range_of_(a, b);
  const int64_t end = r.rows < i1 ? (r.rows > i0 ? r.rows : i0) : i1;
  attn_linear_own_ w;
  if (r.few) return;
  attn_linear_cut_(a, worker, &w);
  if (r.row0 < r.rows)
    attn_linear_read_all_(a, &w, attn_linear_slot_at_(a, attn_linear_slot_of_(a, b, head)), b, h,
                          i0, end);
  else
    attn_linear_zeros_(a, b, h, i0, end);
  attn_linear_zeros_(a, b, h, end, i1);
}

/* ---- the call -----------------------------------------------------------------------------------*/

/* Whether there are rows to compute, or a state to move on. */
ATTN_FUNC_ int attn_linear_busy_(const attn_linear_ *a) {
  return a->q.batch && a->q.heads && (a->q.len || (a->kept && a->k.len));
}

/* How the work is cut, and the bytes that takes; INT64_MAX: too many. */
ATTN_FUNC_ int64_t attn_linear_divide_work_(attn_linear_ *a, int workers) {
  const int64_t units = attn_mul_(a->q.batch, a->heads);
  const int64_t each = attn_linear_run_of_(a);
  a->segments = attn_runs_of_(a->k.len, each);
  a->tiles = attn_runs_of_(a->q.len, ATTN_LINEAR_TILE_);
  a->shares = workers > units && a->segments > 1;
  a->slices = 1;
  if (a->shares && (a->causal || a->delta)) {
    const int64_t most = a->wide >= 32 ? a->wide / 32 : 1, want = workers / units;
    a->slices = want < most ? want : most;
  }
  a->own_bytes = attn_linear_lay_(a);
  const int64_t slot = attn_mul_(a->slot, 4), slots = attn_piece_(attn_mul_(units, slot), 1);
  a->need_slots = !a->kept && (!a->causal || a->shares) ? slots : 0;
  a->need_marks = 0;
  if (a->shares)
    a->need_marks = attn_piece_(
        attn_mul_(attn_mul_(units, slot), attn_add_(a->delta && !a->causal ? 0 : a->segments, 1)),
        1);
  if (a->shares && a->delta && !a->causal) a->segments = 0;
  const int64_t shared = attn_piece_(attn_map_shared_(&a->map), 1);
  return attn_workspace_bytes_(attn_add_(attn_add_(shared, attn_add_(a->need_slots, a->need_marks)),
                                         attn_mul_(a->own_bytes, workers)),
                               1);
}

/* Slots before and after slices: they begin empty, and take z from the first one. */
ATTN_FUNC_ void attn_linear_slots_(const attn_linear_ *a, int after) {
  for (int64_t unit = 0; unit < a->q.batch * a->heads; unit++) {
    float *slot = a->slots + unit * a->slot;
    if (!after && !a->kept) attn_linear_empty_(a, slot);
    if (!after && !attn_linear_range_of_(a, unit / a->heads).few)
      attn_linear_settle_(a->table, attn_linear_slot_at_(a, slot), a->m * a->wide);
    if (after && !attn_linear_range_of_(a, unit / a->heads).few)
      attn_linear_copy_z_(a, attn_linear_slot_at_(a, slot).z,
                          attn_linear_slot_at_(a, attn_linear_mark_(a, unit, a->segments)).z);
  }
}

/* The states of a call of many keys or rows. */
ATTN_FUNC_ void attn_linear_keep_item_(void *job, int worker, int64_t unit) {
  const attn_linear_ *a = (const attn_linear_ *)job;
  (void)worker;
  if (!attn_linear_range_of_(a, unit / a->heads).few)
    attn_linear_keep_(a, a->slots + unit * a->slot);
}

ATTN_FUNC_ void attn_linear_run_(attn_linear_ *a, attn_ctx *ctx, int workers) {
  const int64_t units = a->q.batch * a->heads, rows = a->q.batch * a->q.heads * a->tiles;
  const int sliced = a->shares && (a->causal || a->delta);
  if (sliced) {
    const int64_t n = units * a->slices;
    attn_linear_slots_(a, 0);
    attn_for_fading_(ctx, attn_pieces_(workers, n), n, attn_linear_slice_, a);
    attn_linear_slots_(a, 1);
  }
  if (a->causal) {
    const int64_t n = sliced ? units * a->segments : units;
    attn_for_fading_(ctx, attn_pieces_(workers, n), n,
                     sliced ? attn_linear_segment_ : attn_linear_whole_, a);
    return;
  }
  if (!sliced) {
    const int64_t n = units * a->segments;
    if (a->parts) attn_for_fading_(ctx, attn_pieces_(workers, n), n, attn_linear_part_item_, a);
    attn_for_fading_(ctx, attn_pieces_(workers, units), units, attn_linear_total_, a);
  }
  if (rows) attn_for_fading_(ctx, attn_pieces_(workers, rows), rows, attn_linear_reads_, a);
}

ATTN_PUB_ attn_status attn_linear(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                  const attn_linear_params *params, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_workspace_ memory = {NULL, NULL};
  attn_linear_ a;
  int workers;
  if (!attn_linear_plan_(&e, &a, o, q, k, v, params, ctx, &workers, 1)) return attn_end_(ctx, &e);
  if (attn_linear_busy_(&a)) {
    const int64_t bytes = attn_linear_divide_work_(&a, workers);
    if (!attn_workspace_get_(&e, &memory, ctx, bytes)) return attn_end_(ctx, &e);
    char *at = memory.base;
    a.shared = at, at += attn_piece_(attn_map_shared_(&a.map), 1);
    if (a.need_slots) a.slots = (float *)(void *)at;
    at += a.need_slots;
    if (a.need_marks && (a.causal || a.delta)) a.marks = (float *)(void *)at;
    if (a.need_marks && !a.marks) a.parts = (float *)(void *)at;
    a.own = at + a.need_marks;
    attn_map_prepare_(&a.map, a.shared);
    attn_linear_run_(&a, ctx, workers);
    if (a.kept && !a.few) {
      const int64_t units = a.q.batch * a.heads;
      attn_for_fading_(ctx, attn_pieces_(workers, units), units, attn_linear_keep_item_, &a);
    }
    attn_workspace_drop_(&memory);
  }
  attn_report_(ctx, a.table, workers,
               a.k.len <= ATTN_LINEAR_FEW_ && a.q.len <= ATTN_LINEAR_FEW_ ? "linear state, steps"
               : a.causal                                                 ? "linear state, chunks"
                                                                          : "linear state, sums",
               a.causal ? "rows see the keys before them" : "rows see all keys");
  return attn_end_(ctx, &e);
}

ATTN_PUB_ size_t attn_linear_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                       const attn_linear_params *params, const attn_ctx *ctx) {
  const attn_ctx plain = attn_before_workspace_(ctx);
  attn_error_ e = {ATTN_OK, NULL};
  attn_linear_ a;
  int workers;
  if (!attn_linear_plan_(&e, &a, o, q, k, v, params, &plain, &workers, 0))
    return ATTN_WORKSPACE_REJECTED;
  if (!attn_linear_busy_(&a)) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers;
  const int64_t bytes = attn_linear_divide_work_(&a, workers);
  return attn_answer_(e.status, bytes);
}
