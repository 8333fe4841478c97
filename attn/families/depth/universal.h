/* families/depth/universal.h owns the Universal Transformer: halting by token, and the steps that those take
 * who still run. */

/* What became of a token. */
enum { ATTN_RUNS_ = 0, ATTN_HALTS_ = 1, ATTN_HALTED_ = 2 };

typedef struct attn_universal_ {
  attn_coder_job_ b; /* y, x and the block */
  attn_universal_params p;
  int copy, force, fixed;
  attn_running_ r;
  attn_running_room_ room;
  attn_tensor s, u, k, v, y,
      halt; /* states, with coordinates; keys, values; the mixture; p of rows */
  double *h;
  float *w;
  unsigned char *done;
} attn_universal_;

/* ---- checks ---------------------------------------------------------------------------------*/

ATTN_COLD_ int attn_switch_(attn_switch s, int by_default) {
  return s == ATTN_SWITCH_DEFAULT ? by_default : s == ATTN_SWITCH_ON;
}

ATTN_COLD_ int attn_universal_values_(attn_error_ *e, attn_universal_ *a) {
  attn_universal_params *p = &a->p;
  if (p->steps < 1 || p->steps > INT32_MAX)
    return attn_reject_(e, ATTN_E_RANGE, "params.steps must lie in 1..2^31 - 1");
  if (p->eps == 0.0f && !attn_to_bits_(p->eps)) p->eps = 0.01f;
  if (!(p->eps > 0.0f && p->eps < 1.0f))
    return attn_reject_(e, ATTN_E_RANGE, "params.eps must lie between 0 and 1");
  if (!(p->b_p - p->b_p == 0.0f)) return attn_reject_(e, ATTN_E_VALUE, "params.b_p must be finite");
  if ((int)p->output < 0 || p->output >= ATTN_UNIVERSAL_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.output must be an attn_universal_output");
  if ((int)p->copy_halted < 0 || p->copy_halted > ATTN_SWITCH_OFF || (int)p->force_last < 0 ||
      p->force_last > ATTN_SWITCH_OFF)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.copy_halted and .force_last must be an attn_switch");
  a->copy = attn_switch_(p->copy_halted, p->output == ATTN_UNIVERSAL_LAST);
  a->force = attn_switch_(p->force_last, p->output == ATTN_UNIVERSAL_ACCUM);
  if (p->output == ATTN_UNIVERSAL_LAST && !a->copy)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.copy_halted must not be off with ATTN_UNIVERSAL_LAST");
  if (!p->has_start) p->pos0 = p->step0 = 1;
  if (attn_abs64_(p->pos0) > INT64_MAX / 8 || attn_abs64_(p->step0) > INT64_MAX / 8)
    return attn_reject_(e, ATTN_E_RANGE, "params.pos0 and .step0 must lie within 2^60 of 0");
  a->fixed = p->w_p.data == NULL;
  if (a->fixed) p->output = ATTN_UNIVERSAL_LAST, a->copy = 1;
  return 1;
}

ATTN_COLD_ int attn_universal_check_(attn_error_ *e, attn_universal_ *a, const attn_ctx *ctx,
                                     const attn_table_ **table, int *workers, int query) {
  static const char *const word[] = {ATTN_WORDS_("y"), ATTN_WORDS_("x"), ATTN_WORDS_("params.ran"),
                                     ATTN_WORDS_("params.remainder")};
  static const attn_said_ rule = ATTN_SAID_("params.w_p", "[1, 1, 1, x.dim]");
  attn_universal_params *p = &a->p;
  attn_operand_ op[5];
  attn_arrays_ more;
  memset(op, 0, sizeof op), memset(&more, 0, sizeof more);
  if (!attn_universal_values_(e, a) || !attn_check_placeless_(e, &p->block.self)) return 0;
  if (p->block.sublayer != ATTN_SUBLAYER_POST)
    return attn_reject_(e, ATTN_E_RANGE, "params.block.sublayer must be ATTN_SUBLAYER_POST");
  a->b.p = p->block;
  if (!attn_coder_check_(e, &a->b, 0, NULL, ctx, table, workers, query)) return 0;
  const int64_t rows = attn_mul_(a->b.x.batch, a->b.x.len);
  if (rows > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "x.batch * x.len must be below 2^31");
  op[0].w = word[0], op[0].role = ATTN_OUT_, op[1].w = word[1];
  op[2] = attn_bias_(&p->w_p, &rule, ATTN_OPTIONAL_, a->b.x.dim);
  if (!attn_check_tensor_(e, &a->b.y, word[0], &op[0].span) ||
      !attn_check_tensor_(e, &a->b.x, word[1], &op[1].span) || !attn_check_operand_(e, &op[2], 1) ||
      !attn_check_written_(e, &op[3], p->ran, rows, 4, word[2],
                           "params.ran must be aligned to its elements") ||
      !attn_check_written_(e, &op[4], p->remainder, rows, 4, word[3],
                           "params.remainder must be aligned to its elements") ||
      !attn_check_array_(e, p->block.x_len, a->b.x.batch, 4, "", &more.span[more.n++]))
    return 0;
  if (attn_same_view_(&a->b.y, &a->b.x)) op[1].span.hi = op[1].span.lo;
  if (!attn_check_apart_(e, ctx, op, 5, more.span, more.n)) return 0;
  attn_span_ span[ATTN_BLOCK_SPANS_];
  if (!attn_block_spans_(e, &p->block, a->b.x.batch, span)) return 0;
  for (int i = 3; i < 5; i++)
    if (!attn_check_spans_(e, span, ATTN_BLOCK_SPANS_, op[i].span,
                           attn_says_(op[i].w, ATTN_SAYS_OVERLAP_)))
      return 0;
  return 1;
}

/* ---- halting --------------------------------------------------------------------------------*/

ATTN_COLD_ int64_t attn_universal_len_(const attn_universal_ *a, int64_t b) {
  return a->p.block.x_len ? a->p.block.x_len[b] : a->b.x.len;
}

/* Lists the rows of entries where somebody runs; all = 0: only who runs or halts in this step. */
ATTN_COLD_ void attn_universal_list_(attn_universal_ *a, int all, int last) {
  attn_running_ *r = &a->r;
  r->n = 0;
  for (int64_t b = 0; b < r->batch; b++) {
    const int64_t len = attn_universal_len_(a, b);
    const unsigned char *done = a->done + b * r->len;
    int live = 0, on = 0; /* somebody has a state to get; somebody goes on afterwards */
    for (int64_t t = 0; t < len; t++) live |= done[t] != ATTN_HALTED_, on |= done[t] == ATTN_RUNS_;
    r->first[b] = r->n;
    if (live)
      for (int64_t t = 0; t < len; t++)
        if ((all && on && !last) || done[t] != ATTN_HALTED_)
          r->row[r->n++] = (int32_t)(b * r->len + t);
  }
  r->first[r->batch] = r->n;
}

/* Who halts in step n, and the weight of the step's state for each row that is listed. */
ATTN_COLD_ void attn_universal_halt_(attn_universal_ *a, int last) {
  const float *p = (const float *)a->halt.data;
  const double bound = 1.0 - (double)a->p.eps;
  for (int64_t i = 0; i < a->r.n; i++) {
    const int64_t row = a->r.row[i];
    a->w[row] = 0.0f;
    if (a->done[row] == ATTN_HALTED_) continue;
    if (a->p.ran) a->p.ran[row]++;
    if (a->h[row] + (double)p[i] > bound || (last && a->force)) {
      a->w[row] = (float)(1.0 - a->h[row]);
      if (a->p.remainder) a->p.remainder[row] = a->w[row];
      a->done[row] = ATTN_HALTS_;
    } else {
      a->w[row] = p[i];
      a->h[row] += (double)p[i];
    }
  }
}

/* 64 rows: the new state, and its part of the mixture. */
ATTN_FUNC_ void attn_universal_update_(void *job, int worker, int64_t index) {
  attn_universal_ *a = (attn_universal_ *)job;
  const int64_t first = index * ATTN_TILE_, left = a->r.n - first, dm = a->s.dim;
  const int interp = a->p.output == ATTN_UNIVERSAL_INTERP;
  (void)worker;
  for (int64_t i = first; i < first + (left < ATTN_TILE_ ? left : ATTN_TILE_); i++) {
    const int64_t row = a->r.row[i];
    const void *made = attn_at_(&a->room.x, 0, 0, i);
    memcpy((float *)a->s.data + row * dm, made, (size_t)dm * sizeof(float));
    if (a->y.data && a->done[row] != ATTN_HALTED_) {
      float *y = (float *)a->y.data + row * dm;
      const float w = a->w[row];
      a->r.table->blend(y, made, y, ATTN_F32, ATTN_F32, ATTN_F32, dm, w, interp ? 1.0f - w : 1.0f);
    }
    if (a->done[row] == ATTN_HALTS_) a->done[row] = ATTN_HALTED_;
  }
}

/* ---- steps ----------------------------------------------------------------------------------*/

ATTN_COLD_ int attn_stage_signal_(attn_stage_ *s, attn_tensor y, attn_tensor x,
                                  const attn_universal_signal_params *params) {
  if (!s->run) {
    attn_stage_spare_(s, (int64_t)attn_universal_signal_workspace(y, x, params, &s->ctx));
    return 1;
  }
  s->ctx.workspace = attn_stage_spare_(s, 0), s->ctx.workspace_size = (size_t)s->spare;
  return attn_stage_done_(s, attn_universal_signal(y, x, params, &s->ctx));
}

/* u = s + coordinates (signal), or k and v of u, for the rows x0 .. of one entry or all. */
ATTN_COLD_ int attn_universal_rows_(attn_stage_ *s, attn_universal_ *a, int64_t b, int64_t batch,
                                    int64_t len, const attn_universal_signal_params *signal) {
  const attn_multihead_params *p = &a->b.self.p;
  attn_tensor t[4] = {a->u, a->s, a->k, a->v};
  for (int i = 0; i < 4; i++) {
    if (batch == 1) t[i] = attn_stage_entry_(t[i], b);
    t[i] = attn_stage_rows_(t[i], 0, len);
  }
  if (signal) return attn_stage_signal_(s, t[0], t[1], signal);
  return attn_multihead_project_(s, p, ATTN_W_K_, 0, t[2], t[0]) &&
         attn_multihead_project_(s, p, ATTN_W_V_, 0, t[3], t[0]);
}

/* The same for all entries that have listed rows. */
ATTN_COLD_ int attn_universal_all_(attn_stage_ *s, attn_universal_ *a,
                                   const attn_universal_signal_params *signal) {
  const attn_running_ *r = &a->r;
  int whole = 1;
  if (s->run)
    for (int64_t b = 0; b < r->batch; b++)
      whole &= r->first[b + 1] > r->first[b] && attn_universal_len_(a, b) == r->len;
  if (whole && !attn_universal_rows_(s, a, 0, r->batch, r->len, signal)) return 0;
  if (whole && s->run) return 1;
  for (int64_t b = 0; b < (s->run ? r->batch : 1); b++) {
    if (s->run && r->first[b + 1] == r->first[b]) continue;
    if (!attn_universal_rows_(s, a, b, 1, s->run ? attn_universal_len_(a, b) : r->len, signal))
      return 0;
  }
  return 1;
}

/* Step n. */
ATTN_COLD_ int attn_universal_step_(attn_stage_ *s, attn_universal_ *a, int64_t n) {
  const attn_universal_params *p = &a->p;
  const attn_multihead_params *self = &a->b.self.p;
  const int last = n == p->steps - 1;
  attn_universal_signal_params signal;
  memset(&signal, 0, sizeof signal);
  signal.position.start = p->pos0, signal.step = n + p->step0;
  if ((!p->no_coord && !attn_universal_all_(s, a, &signal)) ||
      !attn_stage_running_gather_(s, &a->r, a->room.x, a->u))
    return 0;
  if (!a->fixed) {
    attn_tensor x = attn_stage_rows_(a->room.x, 0, a->r.n), halt = a->halt;
    halt.len = a->r.n;
    attn_tensor bias = attn_bhtd(&a->p.b_p, ATTN_F32, 1, 1, 1, 1);
    if (!attn_stage_row_dots_(s, halt, x, p->w_p, bias, ATTN_ACT_SIGMOID)) return 0;
    if (s->run) {
      const int64_t before = a->r.n;
      attn_universal_halt_(a, last);
      attn_universal_list_(a, !a->copy, last);
      if (a->r.n != before && !attn_stage_running_gather_(s, &a->r, a->room.x, a->u)) return 0;
    }
  }
  attn_tensor k = attn_multihead_split_(a->k, self->kv_heads);
  attn_tensor v = attn_multihead_split_(a->v, self->kv_heads);
  return attn_universal_all_(s, a, NULL) &&
         attn_stage_running_attend_(s, &a->r, &a->room, self, k, v, p->block.x_len,
                                    self->attention.causal, 0, &a->b.p.norm_self) &&
         attn_stage_running_feed_(s, &a->r, &a->room, &a->b.p) &&
         attn_stage_for_(s, attn_tiles_of_(a->r.n), attn_universal_update_, a, 0, NULL);
}

/* Everybody begins to run; rows that do not exist have done so. */
ATTN_COLD_ void attn_universal_begin_(attn_universal_ *a) {
  const int64_t rows = a->r.batch * a->r.len;
  for (int64_t i = 0; i < rows; i++) {
    const int there = i % a->r.len < attn_universal_len_(a, i / a->r.len);
    a->h[i] = 0.0, a->w[i] = 0.0f;
    a->done[i] = there ? ATTN_RUNS_ : ATTN_HALTED_;
    if (a->p.ran) a->p.ran[i] = there && a->fixed ? (int32_t)a->p.steps : 0;
    if (a->p.remainder) a->p.remainder[i] = 0.0f;
  }
  if (a->y.data) memset(a->y.data, 0, (size_t)(rows * a->y.dim) * sizeof(float));
}

ATTN_COLD_ int attn_universal_steps_(attn_stage_ *s, void *job) {
  attn_universal_ *a = (attn_universal_ *)job;
  const attn_multihead_params *self = &a->b.self.p;
  const int64_t batch = a->b.x.batch, len = a->b.x.len, dm = a->b.x.dim;
  const int64_t rows = attn_mul_(batch, len);
  a->r = attn_stage_running_(s, batch, len);
  a->room.wide_q = self->w_q.dim, a->room.wide_o = self->w_o.len;
  attn_stage_running_room_(s, &a->room, rows, dm);
  a->s = a->u = attn_stage_tensor_(s, batch, 1, len, dm);
  if (!a->p.no_coord) a->u = attn_stage_tensor_(s, batch, 1, len, dm);
  a->k = attn_multihead_rows_(s, batch, len, self->w_k.dim);
  a->v = attn_multihead_rows_(s, batch, len, self->w_v.dim);
  a->y = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  if (a->p.output != ATTN_UNIVERSAL_LAST) a->y = attn_stage_tensor_(s, batch, 1, len, dm);
  a->halt = attn_stage_tensor_(s, 1, 1, rows, 1);
  a->h = (double *)attn_stage_take_(s, rows, sizeof *a->h);
  a->w = (float *)attn_stage_take_(s, rows, sizeof *a->w);
  a->done = (unsigned char *)attn_stage_take_(s, rows, 1);
  if (!attn_stage_copy_rows_(s, a->s, a->b.x, a->p.block.x_len)) return 0;
  if (s->run) attn_universal_begin_(a);
  for (int64_t n = 0; n < (s->run ? a->p.steps : 1); n++) {
    if (s->run) attn_universal_list_(a, !a->copy, 0);
    if (a->r.n == 0) break;
    if (!attn_universal_step_(s, a, n)) return 0;
  }
  return attn_stage_copy_rows_(s, a->b.y, a->y.data ? a->y : a->s, a->p.block.x_len);
}

/* ---- the call -------------------------------------------------------------------------------*/

ATTN_COLD_ attn_status attn_universal_call_(attn_tensor y, attn_tensor x,
                                            const attn_universal_params *params, attn_ctx *ctx,
                                            size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_universal_ a;
  int workers;
  memset(&a, 0, sizeof a);
  a.b = attn_coder_open_(y, x);
  if (params) a.p = *params;
  if (!params) {
    attn_reject_(&e, ATTN_E_NULL, "params must not be null: it has the weights");
  } else if (attn_universal_check_(&e, &a, ctx, &table, &workers, bytes != NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (x.batch > 0 && x.len > 0)
      attn_stage_call_(&s, ctx, attn_universal_steps_, &a, "one block, rows that run", bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no rows");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_CALL_(attn_universal, (y, x, params), attn_tensor y, attn_tensor x,
           const attn_universal_params *params)
