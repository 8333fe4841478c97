/* families/memory/gtrxl.h owns gates in place of residual sums: their weights and rows, and the block of the
 * Gated Transformer-XL, which is a layer behind a memory, two gates and a feed-forward. */

/* ---- checks ---------------------------------------------------------------------------------*/

/* Where a gate stands among the parameters of a call. */
typedef enum attn_gtrxl_place_ {
  ATTN_GTRXL_ALONE_,
  ATTN_GTRXL_FIRST_,
  ATTN_GTRXL_SECOND_,
  ATTN_GTRXL_PLACES_
} attn_gtrxl_place_;

enum { ATTN_GTRXL_WEIGHTS_ = 6, ATTN_GTRXL_OPERANDS_ = ATTN_GTRXL_WEIGHTS_ + 1 };

/* The gate's weights in the order of their names; what its kind does not read becomes absent, b what it
 * stands for. */
ATTN_COLD_ int attn_gtrxl_gate_check_(attn_error_ *e, attn_gtrxl_gate_params *p,
                                      attn_gtrxl_place_ at, int64_t dm, attn_operand_ *op) {
#define ATTN_GTRXL_(at)                                                                \
  {                                                                                    \
    {ATTN_SAID_IN_OUT_(at "w_r", "dm", "dm"), ATTN_SAID_IN_OUT_(at "u_r", "dm", "dm"), \
     ATTN_SAID_IN_OUT_(at "w_z", "dm", "dm"), ATTN_SAID_IN_OUT_(at "u_z", "dm", "dm"), \
     ATTN_SAID_IN_OUT_(at "w_g", "dm", "dm"), ATTN_SAID_IN_OUT_(at "u_g", "dm", "dm"), \
     ATTN_SAID_(at "b_g", "[1, 1, 1, dm]")},                                           \
        at "kind must be an attn_gtrxl_kind", at "b must be finite"                    \
  }
  static const struct {
    attn_said_ rule[ATTN_GTRXL_OPERANDS_];
    const char *kind, *b;
  } said[ATTN_GTRXL_PLACES_] = {ATTN_GTRXL_("params."), ATTN_GTRXL_("params.gate_1."),
                                ATTN_GTRXL_("params.gate_2.")};
#undef ATTN_GTRXL_
  static const unsigned reads[ATTN_GTRXL_COUNT] = {127, 16, 80, 80, 112, 0}; /* a bit an operand */
  attn_tensor *t[ATTN_GTRXL_OPERANDS_] = {&p->w_r, &p->u_r, &p->w_z, &p->u_z,
                                          &p->w_g, &p->u_g, &p->b_g};
  if ((int)p->kind < 0 || p->kind >= ATTN_GTRXL_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, said[at].kind);
  if (!(p->b - p->b == 0.0f)) return attn_reject_(e, ATTN_E_VALUE, said[at].b);
  if (p->b == 0.0f && !attn_to_bits_(p->b)) p->b = 2.0f;
  for (int i = 0; i < ATTN_GTRXL_OPERANDS_; i++) {
    const int read = (int)(reads[p->kind] >> i & 1u), bias = i == ATTN_GTRXL_WEIGHTS_;
    if (!read) t[i]->data = NULL;
    if (bias) {
      op[i] = attn_bias_(t[i], &said[at].rule[i], ATTN_OPTIONAL_, dm);
    } else {
      attn_turn_(t[i], p->w_transposed);
      op[i] = attn_weight_(t[i], &said[at].rule[i], read ? 0 : (int)ATTN_OPTIONAL_, dm, dm);
    }
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  }
  return 1;
}

/* ---- rows -----------------------------------------------------------------------------------*/

/* Rows and columns that go through all products together: the more rows, the less often the weights pass
 * by; half as many where workers would be idle. */
enum { ATTN_GTRXL_ROWS_ = ATTN_GEMM_MOST_, ATTN_GTRXL_COLS_ = 128 };

/* Memory of a worker, in floats of n rows: x, y where they are not f32; r x; the inside of the logistic
 * function, and of the tanh, for 128 columns. */
typedef struct attn_gtrxl_ {
  const attn_table_ *table;
  attn_tensor o, x, y, b_g;
  float b;
  attn_gtrxl_kind kind;
  attn_matrix_ w[ATTN_GTRXL_WEIGHTS_];
  int64_t rows, tiles; /* rows of an item */
  char *memory;
  int64_t each, at_y, at_rx, at_gate, at_tanh;
} attn_gtrxl_;

/* Some rows: r x of all columns, then the rest, 128 columns at a time, so that what is between the
 * products and the output stays in the second cache. */
ATTN_FUNC_ void attn_gtrxl_item_(void *job, int worker, int64_t index) {
  const attn_gtrxl_ *a = (const attn_gtrxl_ *)job;
  const attn_table_ *f = a->table;
  const int64_t b = index / a->tiles, first = index % a->tiles * a->rows, dm = a->o.dim;
  const int64_t n = a->o.len - first < a->rows ? a->o.len - first : a->rows;
  enum { WIDE = ATTN_GTRXL_COLS_ };
  char *memory = a->memory + worker * a->each;
  float *rx = (float *)(void *)(memory + a->at_rx), *in = (float *)(void *)(memory + a->at_gate);
  float *c = (float *)(void *)(memory + a->at_tanh), less[WIDE];
  const int gru = a->kind == ATTN_GTRXL_GRU, input = a->kind == ATTN_GTRXL_INPUT;
  const int keep = gru || a->kind == ATTN_GTRXL_HIGHWAY, two = a->kind == ATTN_GTRXL_SIGTANH;
  const attn_floats_ x = attn_floats_of_(f, &a->x, b, 0, first, n, (float *)(void *)memory);
  const attn_floats_ y =
      attn_floats_of_(f, &a->y, b, 0, first, n, (float *)(void *)(memory + a->at_y));
  const attn_floats_ r_x = {rx, dm, n};
  if (gru)
    for (int64_t c0 = 0; c0 < dm; c0 += WIDE) {
      const int64_t c1 = dm - c0 < WIDE ? dm : c0 + WIDE;
      const attn_matrix_part_ part = {0, 0, 0, dm, c0, c1};
      attn_matrix_times_(f, &a->w[0], &part, rx + c0, dm, y, 1);
      attn_matrix_times_(f, &a->w[1], &part, rx + c0, dm, x, 0);
      for (int64_t r = 0; r < n; r++) {
        float *to = rx + r * dm + c0;
        attn_on_(gate, f)->gate(to, to, 1.0f, NULL, NULL, x.p + r * x.stride + c0, c1 - c0, 0, 0);
      }
    }
  for (int i = 0; i < WIDE; i++) less[i] = a->b;
  for (int64_t c0 = 0; c0 < dm; c0 += WIDE) {
    const int64_t c1 = dm - c0 < WIDE ? dm : c0 + WIDE, cols = c1 - c0;
    const attn_matrix_part_ part = {0, 0, 0, dm, c0, c1};
    if (a->b_g.data)
      f->widen(less, attn_at_(&a->b_g, 0, 0, 0) + attn_bytes_(a->b_g.dtype, c0), 0, NULL, 1, cols,
               a->b_g.dtype, NULL);
    if (gru) {
      attn_matrix_times_(f, &a->w[2], &part, in, WIDE, y, 1);
      attn_matrix_times_(f, &a->w[3], &part, in, WIDE, x, 0);
      attn_matrix_times_(f, &a->w[4], &part, c, WIDE, y, 1);
      attn_matrix_times_(f, &a->w[5], &part, c, WIDE, r_x, 0);
    } else {
      attn_matrix_times_(f, &a->w[4], &part, in, WIDE, two ? y : x, 1);
      if (two) attn_matrix_times_(f, &a->w[5], &part, c, WIDE, y, 1);
    }
    for (int64_t r = 0; r < n; r++) {
      char *o = attn_at_(&a->o, b, 0, first + r) + attn_bytes_(a->o.dtype, c0);
      const float *skip = x.p + r * x.stride + c0;
      const float *side = gru || two ? c + r * WIDE : y.p + r * y.stride + c0;
      float *from = in + r * WIDE, *to = a->o.dtype == ATTN_F32 ? (float *)(void *)o : from;
      attn_on_(gate, f)->gate(to, from, a->kind == ATTN_GTRXL_HIGHWAY ? -1.0f : 1.0f,
                              input ? NULL : less, input ? side : skip, input ? skip : side, cols,
                              gru || two, keep);
      if (a->o.dtype != ATTN_F32)
        f->blend(o, to, NULL, a->o.dtype, ATTN_F32, ATTN_F32, cols, 1.0f, 0.0f);
    }
  }
}

/* Some rows of x + y. */
ATTN_FUNC_ void attn_gtrxl_sum_item_(void *job, int worker, int64_t index) {
  const attn_gtrxl_ *a = (const attn_gtrxl_ *)job;
  const int64_t b = index / a->tiles, first = index % a->tiles * a->rows;
  (void)worker;
  for (int64_t i = first; i < a->o.len && i < first + a->rows; i++)
    a->table->blend(attn_at_(&a->o, b, 0, i), attn_at_(&a->x, b, 0, i), attn_at_(&a->y, b, 0, i),
                    a->o.dtype, a->x.dtype, a->y.dtype, a->o.dim, 1.0f, 1.0f);
}

/* o = gate(x, y); the weights have been checked. */
ATTN_COLD_ int attn_stage_gtrxl_(attn_stage_ *s, attn_tensor o, attn_tensor x, attn_tensor y,
                                 const attn_gtrxl_gate_params *p) {
  const attn_tensor w[ATTN_GTRXL_WEIGHTS_] = {p->w_r, p->u_r, p->w_z, p->u_z, p->w_g, p->u_g};
  const int64_t dm = o.dim;
  attn_gtrxl_ a;
  memset(&a, 0, sizeof a);
  a.table = s->table, a.o = o, a.x = x, a.y = y, a.b_g = p->b_g, a.b = p->b, a.kind = p->kind;
  if (o.batch > 1 && attn_gemm_flat_(&o) && attn_gemm_flat_(&x) && attn_gemm_flat_(&y))
    a.o = attn_gemm_flatten_(o), a.x = attn_gemm_flatten_(x), a.y = attn_gemm_flatten_(y);
  const int idle = a.o.len < attn_mul_(ATTN_GTRXL_ROWS_, s->workers);
  const int64_t rows = idle ? (int64_t)ATTN_GEMM_ROWS_ : (int64_t)ATTN_GTRXL_ROWS_;
  a.rows = rows, a.tiles = a.o.len / rows + (a.o.len % rows != 0);
  const int64_t count = attn_mul_(a.o.batch, a.tiles);
  if (p->kind == ATTN_GTRXL_RESIDUAL)
    return attn_stage_for_(s, count, attn_gtrxl_sum_item_, &a, 0, NULL);
  int first = p->kind == ATTN_GTRXL_GRU ? 0 : 4, last = p->u_g.data ? 5 : 4;
  for (int i = first; i <= last; i++) a.w[i] = attn_weight_matrix_(w[i], a.o.len, a.o.batch);
  const int64_t whole = attn_piece_(attn_mul_(rows, dm), sizeof(float));
  const int64_t part = attn_piece_(rows * ATTN_GTRXL_COLS_, sizeof(float));
  a.at_y = x.dtype == ATTN_F32 ? 0 : whole;
  a.at_rx = attn_add_(a.at_y, y.dtype == ATTN_F32 ? 0 : whole);
  a.at_gate = attn_add_(a.at_rx, first == 0 ? whole : 0);
  a.at_tanh = attn_add_(a.at_gate, part);
  a.each = attn_add_(a.at_tanh, last == 5 ? part : 0);
  return attn_stage_products_(s, a.w + first, last - first + 1, count, attn_gtrxl_item_, &a, a.each,
                              &a.memory);
}

/* ---- the gate -------------------------------------------------------------------------------*/

typedef struct attn_gtrxl_gate_job_ {
  attn_tensor o, x, y;
  attn_gtrxl_gate_params p;
} attn_gtrxl_gate_job_;

ATTN_COLD_ int attn_gtrxl_gate_steps_(attn_stage_ *s, void *job) {
  const attn_gtrxl_gate_job_ *j = (const attn_gtrxl_gate_job_ *)job;
  return attn_stage_gtrxl_(s, j->o, j->x, j->y, &j->p);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_gtrxl_gate_job_call_(attn_gtrxl_gate_job_ *j,
                                                 const attn_gtrxl_gate_params *params,
                                                 attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  const int64_t b = j->o.batch, t = j->o.len, dm = j->o.dim;
  attn_operand_ op[3 + ATTN_GTRXL_OPERANDS_] = {
      ATTN_OPERAND_(&j->o, "o", ATTN_OUT_, ATTN_ANY_, 1, ATTN_ANY_, ATTN_ANY_,
                    "o must have one head"),
      ATTN_OPERAND_(&j->x, "x", 0, b, 1, t, dm, "x must have the shape of o"),
      ATTN_OPERAND_(&j->y, "y", 0, b, 1, t, dm, "y must have the shape of o")};
  int workers, ok = attn_check_ctx_(&e, ctx, &table, &workers);
  for (int i = 0; ok && i < 3; i++) ok = attn_check_operand_(&e, &op[i], 1);
  if (ok && !params)
    ok = attn_reject_(&e, ATTN_E_NULL, "params must not be null: it has the weights");
  if (ok) j->p = *params;
  if (ok && attn_gtrxl_gate_check_(&e, &j->p, ATTN_GTRXL_ALONE_, dm, op + 3) &&
      attn_check_apart_(&e, ctx, op, 3 + ATTN_GTRXL_OPERANDS_, NULL, 0)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (b == 0 || t == 0) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no rows");
    } else {
      attn_stage_call_(&s, ctx, attn_gtrxl_gate_steps_, j, "row products, gate", bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_gtrxl_gate_call_(attn_tensor o, attn_tensor x, attn_tensor y,
                                             const attn_gtrxl_gate_params *params, attn_ctx *ctx,
                                             size_t *bytes) {
  attn_gtrxl_gate_job_ j;
  memset(&j, 0, sizeof j);
  j.o = o, j.x = x, j.y = y;
  return attn_gtrxl_gate_job_call_(&j, params, ctx, bytes);
}
ATTN_CALL_(attn_gtrxl_gate, (o, x, y, params), attn_tensor o, attn_tensor x, attn_tensor y,
           const attn_gtrxl_gate_params *params)

/* ---- the block ------------------------------------------------------------------------------*/

typedef struct attn_gtrxl_job_ {
  attn_segment_layer_job_ layer; /* o and h are the block's */
  attn_gtrxl_params p;
} attn_gtrxl_job_;

ATTN_COLD_ int attn_gtrxl_check_(attn_error_ *e, attn_gtrxl_job_ *j,
                                 const attn_gtrxl_params *params, const attn_ctx *ctx,
                                 const attn_table_ **table, int *workers) {
  enum {
    GATE_1 = 3,
    GATE_2 = GATE_1 + ATTN_GTRXL_OPERANDS_,
    FF = GATE_2 + ATTN_GTRXL_OPERANDS_,
    COUNT = FF + ATTN_FEED_OPERANDS_
  };
  const int64_t any = ATTN_ANY_, dm = j->layer.h.dim;
  const int out = ATTN_OUT_ | ATTN_OPTIONAL_;
  attn_arrays_ more = {0, {{0, 0, 0, 0}}};
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has the weights");
  j->p = *params;
  /* residual and norm after w_o are not the layer's here, but its widths are */
  j->p.attention.sublayer = ATTN_SUBLAYER_PRE;
  if (!attn_segment_layer_check_(e, &j->layer, &j->p.attention, ctx, table, workers)) return 0;
  attn_segment_params *a = &j->layer.p.attention;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&j->layer.o, "o", ATTN_OUT_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->lse, "params.attention.lse", out, any, any, any, any, ""),
      ATTN_OPERAND_(&a->usage, "params.attention.usage", out, any, any, any, any, "")};
  for (int i = 0; i < GATE_1; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (!attn_gtrxl_gate_check_(e, &j->p.gate_1, ATTN_GTRXL_FIRST_, dm, op + GATE_1) ||
      !attn_gtrxl_gate_check_(e, &j->p.gate_2, ATTN_GTRXL_SECOND_, dm, op + GATE_2) ||
      !attn_check_norm_(e, &j->p.norm_ff, dm, &more))
    return 0;
  if (!j->p.ff.w_2.data) return attn_reject_(e, ATTN_E_NULL, "ff.w_2.data must not be null");
  return attn_check_feed_(e, &j->p.ff, *table, ATTN_PLACE_, 1, dm, dm, op + FF) &&
         attn_check_apart_(e, ctx, op, COUNT, more.span, more.n);
}

/* The heads of all rows first; then 1024 rows at a time go all the way. */
ATTN_COLD_ int attn_gtrxl_steps_(attn_stage_ *s, void *job) {
  const attn_gtrxl_job_ *j = (const attn_gtrxl_job_ *)job;
  const attn_gtrxl_params *p = &j->p;
  const attn_feed_forward *ff = &p->ff;
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  attn_segment_layer_job_ layer = j->layer;
  attn_tensor h = j->layer.h, o = j->layer.o;
  const int64_t dm = h.dim, heads = layer.p.heads, rows = attn_mul_(h.batch, h.len);
  attn_tensor all = attn_stage_tensor_(s, h.batch, 1, h.len, attn_mul_(heads, layer.dv));
  const int64_t mark = s->used;
  layer.o = attn_split_(all, heads), layer.p.w_o.data = NULL;
  if (!attn_segment_layer_steps_(s, &layer)) return 0;
  attn_stage_back_(s, mark);
  if (h.batch > 1 && attn_gemm_flat_(&h) && attn_gemm_flat_(&o))
    h = attn_gemm_flatten_(h), o = attn_gemm_flatten_(o), all = attn_gemm_flatten_(all);
  const int64_t most = attn_layer_rows_(h.len);
  const attn_matrix_ w_o = attn_stage_lay_(s, j->layer.p.w_o, NULL, rows, NULL);
  const attn_matrix_ w_1 = attn_stage_lay_(s, ff->w_1, &ff->w_1_scales, rows, ff);
  const attn_matrix_ w_3 =
      ff->w_3.data ? attn_stage_lay_(s, ff->w_3, &ff->w_3_scales, rows, ff) : w_1;
  const attn_matrix_ w_2 = attn_stage_lay_(s, ff->w_2, &ff->w_2_scales, rows, ff);
  const attn_tensor skip = attn_stage_tensor_(s, 1, 1, most, dm);
  const attn_tensor side = attn_stage_tensor_(s, 1, 1, most, dm);
  const attn_tensor hidden = attn_stage_tensor_(s, 1, 1, most, w_1.n);
  const attn_tensor up = ff->w_3.data ? attn_stage_tensor_(s, 1, 1, most, w_1.n) : none;
  for (int64_t b = 0; b < h.batch; b++) {
    for (int64_t i = 0, n; i < h.len; i += n) {
      n = h.len - i < most ? h.len - i : most;
      const attn_tensor in = attn_stage_rows_(attn_stage_entry_(h, b), i, n);
      const attn_tensor out = attn_stage_rows_(attn_stage_entry_(o, b), i, n);
      const attn_tensor each = attn_stage_rows_(attn_stage_entry_(all, b), i, n);
      const attn_tensor x = attn_stage_rows_(skip, 0, n), y = attn_stage_rows_(side, 0, n);
      const attn_tensor mid = attn_stage_rows_(hidden, 0, n);
      if (!attn_stage_laid_(s, y, each, &w_o, j->layer.p.b_o, ATTN_ACT_RELU) ||
          !attn_stage_gtrxl_(s, x, in, y, &p->gate_1) ||
          !attn_stage_norm_(s, y, x, none, &p->norm_ff) ||
          !attn_stage_hidden_(s, mid, y, ff, &w_1, &w_3,
                              up.data ? attn_stage_rows_(up, 0, n) : none) ||
          !attn_stage_laid_(s, y, mid, &w_2, ff->b_2, ATTN_ACT_RELU) ||
          !attn_stage_gtrxl_(s, out, x, y, &p->gate_2))
        return 0;
    }
  }
  return 1;
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_gtrxl_call_(attn_tensor o, attn_tensor h,
                                        const attn_gtrxl_params *params, attn_ctx *ctx,
                                        size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_gtrxl_job_ j;
  const attn_table_ *table;
  int workers;
  memset(&j, 0, sizeof j);
  j.layer = attn_segment_layer_of_(o, h), j.layer.layer = 1;
  if (attn_gtrxl_check_(&e, &j, params, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (h.batch == 0 || (h.len == 0 && !j.layer.p.attention.usage.data)) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no rows");
    } else {
      attn_stage_call_(&s, ctx, attn_gtrxl_steps_, &j, "attention behind a memory, gates", bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_CALL_(attn_gtrxl, (o, h, params), attn_tensor o, attn_tensor h,
           const attn_gtrxl_params *params)
