/* calls/gemm.h owns dense products of rows: 96 or 192 rows of X by at most 256 columns are an item. */

/* A worker by itself takes twice the rows: W is read half as often. */
enum { ATTN_GEMM_ROWS_ = 96, ATTN_GEMM_MOST_ = 2 * ATTN_GEMM_ROWS_, ATTN_GEMM_COLS_ = 256 };
/* Elements of k between two looks at y, of bf16 and f16. */
enum { ATTN_GEMM_DEEP_ = 256 };

typedef struct attn_gemm_ {
  const attn_table_ *table;
  attn_tensor y, x, bias;
  attn_tensor gate; /* of compound calls: f32 [B, H, m, n] that the result is multiplied by */
  attn_matrix_ w;
  const attn_low_table_ *low; /* products of bf16 or f16; null: of f32, or */
  attn_coded_ coded;          /* of codes */
  attn_feature feature;
  float scale, softcap;
  int act;
  attn_act_form form;
  int finish, formed; /* something follows the product; a soft-cap or a form */
  int aside;          /* Y is made in memory of the worker */
  int64_t rows, cols; /* of an item */
  int64_t row_runs, col_runs, items;
  char *own; /* of the workers: rows of x and of y as f32 */
  int64_t own_bytes, own_y, own_tile;
} attn_gemm_;

/* Whether t broadcasts to the batch and heads of y. */
ATTN_FUNC_ int attn_gemm_fits_(const attn_tensor *t, const attn_tensor *y) {
  return (t->batch == 1 || t->batch == y->batch) && (t->heads == 1 || t->heads == y->heads);
}

/* Products that read the same matrix of w. */
ATTN_FUNC_ int64_t attn_gemm_products_(const attn_tensor *w, const attn_tensor *y) {
  return attn_mul_(w->batch == y->batch ? 1 : y->batch, w->heads == y->heads ? 1 : y->heads);
}

/* Whether the rows of all entries lie at equal steps; they become those of one entry. */
ATTN_FUNC_ int attn_gemm_flat_(const attn_tensor *t) {
  return t->heads == 1 && (t->len == 1 || t->stride_batch == t->len * t->stride_len);
}
ATTN_FUNC_ attn_tensor attn_gemm_flatten_(attn_tensor t) {
  if (t.len == 1) t.stride_len = t.stride_batch;
  t.len = attn_mul_(t.batch, t.len), t.batch = 1, t.stride_batch = 0;
  return t;
}

ATTN_FUNC_ int64_t attn_gemm_rows_(int workers) {
  return workers > 1 ? (int64_t)ATTN_GEMM_ROWS_ : (int64_t)ATTN_GEMM_MOST_;
}

/* Whether a sum over several strips would come back to rows of Y that lie multiples of 4 KB apart: those share
 * the places of a first-level cache with each other and with all that lies so (a fifth of the time, avx2). */
ATTN_FUNC_ int attn_gemm_crowds_(const attn_gemm_ *a) {
  return a->x.dim > 2 * ATTN_DEEP_ && a->y.len > 1 && a->y.stride_len % 1024 == 0;
}

/* Whether the product of bf16 or f16 can be made where y is: no column beside it is written. */
ATTN_FUNC_ int attn_gemm_direct_(const attn_gemm_ *a) {
  return a->y.dtype == ATTN_F32 && (!ATTN_PART_(LOW, a->low) || a->y.dim % ATTN_GROUP_ == 0);
}

/* Whether pairs of x can be read where they are. */
ATTN_FUNC_ int attn_gemm_paired_(const attn_gemm_ *a) {
#ifdef ATTN_BIG_ENDIAN_
  (void)a;
  return 0;
#else
  return a->x.dtype == attn_low_dtype_(a->low) && a->x.dim % 2 == 0;
#endif
}

/* Columns of an item: few rows go along rows of W that are read in place, whose lines follow each other. */
ATTN_FUNC_ int64_t attn_gemm_cols_(const attn_gemm_ *a, int workers) {
  int64_t cols = ATTN_GEMM_COLS_;
  if (a->y.len > ATTN_STORED_FEW_ || a->w.transposed || ATTN_PART_(LOW, a->low)) return cols;
  while (cols < ATTN_STORED_COLS_ && a->y.dim / workers >= 2 * cols) cols *= 2;
  return cols;
}

/* The items for so many workers, and what one needs for an item, whatever their number. */
ATTN_FUNC_ void attn_gemm_cut_(attn_gemm_ *a, int workers) {
  const attn_tensor *y = &a->y;
  a->formed = a->softcap > 0.0f || attn_formed_(&a->form);
  a->finish =
      a->act != ATTN_ACT_NONE || a->bias.data || a->scale != 1.0f || a->gate.data || a->formed;
  a->rows = attn_gemm_rows_(workers);
  a->row_runs = attn_runs_of_(y->len, a->rows);
  a->own_y =
      a->x.dtype != ATTN_F32 ? attn_piece_((int64_t)ATTN_GEMM_MOST_ * (int64_t)ATTN_DEEP_, 4) : 0;
  if (ATTN_PART_(LOW, a->low)) /* rows as f32, and narrow */
    a->own_y = attn_piece_((int64_t)ATTN_GEMM_MOST_ * (int64_t)ATTN_GEMM_DEEP_, 6);
  a->aside = !attn_gemm_direct_(a) || attn_gemm_crowds_(a);
  a->own_tile = a->own_y + (a->aside ? ATTN_GEMM_MOST_ * ATTN_GEMM_COLS_ * 4 : 0);
  a->own_bytes = a->own_tile;
  if (ATTN_PART_(LOW, a->coded.codes))
    a->own_bytes += attn_piece_(1, (int64_t)sizeof(attn_coded_room_));
  /* of few items the last ones would leave workers without */
  for (a->cols = attn_gemm_cols_(a, workers);; a->cols /= 2) {
    a->col_runs = attn_runs_of_(y->dim, a->cols);
    a->items = attn_mul_(attn_mul_(y->batch, y->heads), attn_mul_(a->row_runs, a->col_runs));
    if (workers < 2 || a->cols == ATTN_PANEL_ || a->items >= 4 * (int64_t)workers) return;
  }
}

/* w: a float type, or codes of 8 or 4 bits. */
ATTN_FUNC_ int attn_check_codes_(attn_error_ *e, attn_tensor *w, const char *words,
                                 attn_span_ *span) {
  if (!attn_quantized_(w->dtype)) return attn_check_tensor_(e, w, words, span);
  if (w->dtype > ATTN_I4)
    return attn_reject_(e, ATTN_E_DTYPE, "w.dtype must be a float type, ATTN_I8 or ATTN_I4");
  return attn_check_stored_(e, w, words, span);
}

/* Scales of a w that has been checked: [groups][n], or [n][groups] of a transposed one. Strides that are never
 * used become 0. */
ATTN_FUNC_ int attn_check_codes_scales_(attn_error_ *e, attn_scales *s, const attn_tensor *w,
                                        int turned, const attn_scales_words_ *words,
                                        attn_span_ span[2]) {
  if (!attn_quantized_(w->dtype) && !s->scale && !s->zero) return 1;
  attn_tensor x = *w;
  if (turned)
    return attn_check_scale_rows_(e, s, &x, attn_scale_groups_(s, w->dim), words, 0, span);
  x.len = attn_scale_groups_(s, w->len);
  return attn_check_scale_rows_(e, s, &x, w->dim, words, 0, span);
}

/* Scales of a weight that attn_turn_ has seen and that may be absent; op: two, of which the spans are set. */
ATTN_COLD_ int attn_check_weight_scales_(attn_error_ *e, attn_scales *scales, const attn_tensor *of,
                                         const attn_scales_words_ *words, attn_operand_ *op) {
  attn_tensor w = *of;
  attn_span_ span[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
  if (!w.data) w.dtype = ATTN_F32; /* its other fields may hold anything */
  const int turned = attn_turn_back_(&w);
  if (!attn_check_codes_scales_(e, scales, &w, turned, words, span)) return 0;
  op[0].span = span[0], op[1].span = span[1];
  return 1;
}

/* A job of three tensors, and nothing else yet. */
ATTN_FUNC_ void attn_gemm_open_(attn_gemm_ *a, const attn_tensor *y, const attn_tensor *x,
                                const attn_tensor *w) {
  a->y = *y, a->x = *x, a->w.w = *w;
  a->bias.data = a->gate.data = a->w.packed = NULL, a->w.strip = 0, a->w.run = 0;
  a->low = a->w.low = NULL, a->coded.codes = NULL, a->feature = ATTN_FEATURE_NONE;
  a->softcap = 0.0f, a->form.slope = a->form.limit = a->form.gate_add = 0.0f;
}

/* Every rule; everything but memory is set. apart = 0: the tensors have no memory yet that could be
 * shared. */
ATTN_FUNC_ int attn_gemm_plan_(attn_error_ *e, attn_gemm_ *a, const attn_gemm_params *params,
                               const attn_ctx *ctx, int *workers, int apart) {
  static const char wy[] = ATTN_WORDS_("y"), wx[] = ATTN_WORDS_("x"), ww[] = ATTN_WORDS_("w"),
                    wb[] = ATTN_WORDS_("params.bias");
  static const attn_scales_words_ wc = ATTN_SCALES_WORDS_("params.w_scales", "w");
  attn_span_ sy, sx, sw, sb = {0, 0, 0, 0}, ss, sc[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
  attn_tensor *y = &a->y, *x = &a->x, *w = &a->w.w;
  if (!attn_check_ctx_(e, ctx, &a->table, workers)) return 0;
  a->scale = 1.0f, a->act = ATTN_ACT_NONE;
  if (!attn_check_tensor_(e, y, wy, &sy) || !attn_check_tensor_(e, x, wx, &sx) ||
      !attn_check_codes_(e, w, ww, &sw))
    return 0;
  const int turned = params && params->w_transposed;
  attn_matrix_open_(&a->w, turned, y->len, attn_gemm_products_(w, y));
  if (x->len != y->len) return attn_reject_(e, ATTN_E_SHAPE, "x.len must equal y.len");
  if (a->w.k != x->dim)
    return attn_reject_(
        e, ATTN_E_SHAPE,
        turned ? "w.dim must equal x.dim for params.w_transposed" : "w.len must equal x.dim");
  if (a->w.n != y->dim)
    return attn_reject_(
        e, ATTN_E_SHAPE,
        turned ? "w.len must equal y.dim for params.w_transposed" : "w.dim must equal y.dim");
  if (!attn_gemm_fits_(x, y) || !attn_gemm_fits_(w, y))
    return attn_reject_(e, ATTN_E_SHAPE,
                        attn_gemm_fits_(x, y) ? "w.batch and w.heads must be 1 or those of y"
                                              : "x.batch and x.heads must be 1 or those of y");
  attn_scales scales;
  memset(&scales, 0, sizeof scales);
  if (params) scales = params->w_scales;
  if (!attn_check_codes_scales_(e, &scales, w, turned, &wc, sc)) return 0;
  if (params) {
    if (params->scale != 0.0f || signbit(params->scale)) a->scale = params->scale;
    if (!(a->scale - a->scale == 0.0f))
      return attn_reject_(e, ATTN_E_VALUE, "params.scale must be finite");
    attn_activation act = params->activation;
    if (!attn_check_activation_(e, &act, ATTN_ACT_NONE,
                                "params.activation must be an attn_activation"))
      return 0;
    if (!attn_check_form_(e, &params->form, 0)) return 0;
    if (!(params->softcap >= 0.0f && params->softcap < INFINITY))
      return attn_reject_(e, ATTN_E_VALUE, "params.softcap must be finite and not negative");
    a->act = (int)act, a->bias = params->bias, a->form = params->form, a->softcap = params->softcap;
    if (params->compute == ATTN_COMPUTE_I8
            ? !attn_coded_choose_(e, &a->coded, a->table, w->dtype, params->compute_prefer,
                                  &a->feature)
            : !attn_compute_take_(e, a->table, params->compute, params->compute_prefer, 1,
                                  ATTN_COMPUTE_WORDS_("params.compute"), &a->low, &a->feature))
      return 0;
    if (a->bias.data) {
      if (!attn_check_tensor_(e, &a->bias, wb, &sb)) return 0;
      if (a->bias.len != 1 || a->bias.dim != y->dim || !attn_gemm_fits_(&a->bias, y))
        return attn_reject_(e, ATTN_E_SHAPE,
                            "params.bias must be [1 or B, 1 or H, 1, y.dim] for y's B and H");
    }
  }
  if (!attn_check_rows_(e, y, wy) || !attn_check_workspace_(e, ctx, &ss)) return 0;
  if (apart && (attn_overlap_(sy, sx) || attn_overlap_(sy, sw) || attn_overlap_(sy, sb) ||
                attn_overlap_(sy, sc[0]) || attn_overlap_(sy, sc[1])))
    return attn_reject_(e, ATTN_E_OVERLAP, attn_says_(wy, ATTN_SAYS_OVERLAP_));
  if (attn_overlap_(ss, sx) || attn_overlap_(ss, sw) || attn_overlap_(ss, sb) ||
      attn_overlap_(ss, sy) || attn_overlap_(ss, sc[0]) || attn_overlap_(ss, sc[1]))
    return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace shares memory with an argument");
  if (y->batch > 1 && w->batch == 1 && x->batch == y->batch &&
      (!a->bias.data || a->bias.batch == 1) && attn_gemm_flat_(x) && attn_gemm_flat_(y)) {
    *y = attn_gemm_flatten_(*y), *x = attn_gemm_flatten_(*x);
    attn_matrix_open_(&a->w, turned, y->len, 1);
  }
  if (attn_quantized_(w->dtype)) attn_matrix_codes_(&a->w, &scales);
  if (ATTN_PART_(LOW, a->low)) attn_matrix_narrow_(&a->w, a->low);
  if (ATTN_PART_(LOW, a->coded.codes)) attn_coded_plan_(&a->coded, &a->x, &a->w, a->feature);
  attn_gemm_cut_(a, *workers);
  *workers = attn_pieces_(*workers, a->items);
  return 1;
}

ATTN_FUNC_ int64_t attn_gemm_bytes_(const attn_gemm_ *a, int workers) {
  if (a->items == 0) return 0;
  int64_t bytes = attn_add_(attn_matrix_bytes_(&a->w), attn_mul_(a->own_bytes, workers));
  if (ATTN_PART_(LOW, a->coded.codes)) bytes = attn_add_(bytes, attn_coded_bytes_(&a->coded));
  return bytes ? attn_workspace_bytes_(bytes, 1) : 0;
}

/* The product of bf16 or f16 of an item: rows from `in` on. */
ATTN_FUNC_ void attn_gemm_low_(const attn_gemm_ *a, attn_matrix_part_ part, float *y,
                               int64_t stride, int64_t rows, const char *in, char *own) {
  const int64_t deep = ATTN_GEMM_DEEP_;
  float *wide = (float *)(void *)own;
  uint16_t *narrow = (uint16_t *)(void *)(own + ATTN_GEMM_MOST_ * deep * 4);
  const int divides = a->low->peaks && a->x.dtype != ATTN_F16;
  float by[ATTN_GEMM_MOST_];
  int16_t power[ATTN_GEMM_MOST_];
  for (; part.k0 < a->x.dim; part.k0 += deep) {
    const char *x = in + attn_bytes_(a->x.dtype, part.k0);
    part.depth = a->x.dim - part.k0 < deep ? a->x.dim - part.k0 : deep;
    if (attn_gemm_paired_(a)) {
      const attn_halves_ there = {x, 2 * a->x.stride_len, rows, NULL};
      attn_matrix_times_low_(&a->w, &part, y, stride, &there);
      continue;
    }
    attn_floats_ from = {(const float *)(const void *)x, a->x.stride_len, rows};
    if (a->x.dtype != ATTN_F32) {
      a->table->widen(wide, x, a->x.stride_len, NULL, rows, part.depth, a->x.dtype, NULL);
      from.p = wide, from.stride = part.depth;
    }
    const int any =
        divides && attn_powers_(a->low, power, by, from.p, from.stride, rows, part.depth);
    attn_low_rows_(a->low, narrow, deep, from.p, from.stride, rows, part.depth, any ? by : NULL);
    const attn_halves_ made = {narrow, 2 * deep, rows, any ? power : NULL};
    attn_matrix_times_low_(&a->w, &part, y, stride, &made);
  }
}

/* The product of f32 of some rows of an item; part: all of k. */
ATTN_FUNC_ void attn_gemm_plain_(const attn_gemm_ *a, attn_matrix_part_ part, float *y,
                                 int64_t stride, int64_t rows, const char *in, char *own) {
  const int64_t deep = a->x.dtype == ATTN_F32 ? a->x.dim : (int64_t)ATTN_DEEP_;
  for (; part.k0 < a->x.dim; part.k0 += deep) {
    const char *from = in + attn_bytes_(a->x.dtype, part.k0);
    attn_floats_ x = {(const float *)(const void *)from, a->x.stride_len, rows};
    part.depth = a->x.dim - part.k0 < deep ? a->x.dim - part.k0 : deep;
    if (a->x.dtype != ATTN_F32) {
      float *wide = (float *)(void *)own;
      a->table->widen(wide, from, a->x.stride_len, NULL, rows, part.depth, a->x.dtype, NULL);
      x.p = wide, x.stride = part.depth;
    }
    attn_matrix_times_(a->table, &a->w, &part, y, stride, x, part.k0 == 0);
  }
}

#if ATTN_HAS_LOW && ATTN_HAS_QUANTIZE
/* The product of codes of an item: rows from r0 on. Rows without codes have that of f32. */
ATTN_FUNC_ void attn_gemm_coded_(const attn_gemm_ *a, attn_matrix_part_ part, float *y,
                                 int64_t stride, int64_t r0, int64_t n, const char *in, char *own) {
  const attn_coded_ *x = &a->coded;
  const int64_t b = a->x.batch > 1 ? part.b : 0, h = a->x.heads > 1 ? part.h : 0;
  const attn_coded_rows_ rows = {b * a->x.heads + h, r0, n};
  const unsigned char *bad = x->bad + rows.unit * a->x.len + r0;
  part.depth = a->x.dim;
  attn_coded_times_(a->table, &a->w, x, &rows, &part, y, stride, own + a->own_tile);
  for (int64_t r = 0; r < n; r++)
    if (bad[r])
      attn_gemm_plain_(a, part, y + r * stride, stride, 1,
                       in + attn_bytes_(a->x.dtype, r * a->x.stride_len), own);
}
#endif

/* What follows a product where a soft-cap or a form is in it. */
ATTN_OUTLINE_ void attn_gemm_formed_(const attn_gemm_ *a, float *row, const float *gate, int64_t n,
                                     const float *bias) {
  attn_on_(dense, a->table)->activate(row, n, bias, a->scale, (int)ATTN_ACT_NONE);
  if (a->softcap > 0.0f) attn_capped_row_(a->table, row, n, a->softcap);
  attn_formed_row_(a->table, row, row, gate, n, a->act, &a->form);
}

/* 96 or 192 rows by 64 to 256 columns of one product. */
ATTN_FUNC_ void attn_gemm_item_(void *job, int worker, int64_t index) {
  const attn_gemm_ *a = (const attn_gemm_ *)job;
  const attn_table_ *f = a->table;
  const int64_t at = attn_over_(index, a->col_runs), unit = attn_over_(at, a->row_runs);
  const int64_t b = attn_over_(unit, a->y.heads), h = unit - b * a->y.heads;
  const int64_t r0 = (at - unit * a->row_runs) * a->rows, c0 = (index - at * a->col_runs) * a->cols;
  const int64_t rows = a->y.len - r0 < a->rows ? a->y.len - r0 : a->rows;
  const int64_t c1 = a->y.dim - c0 < a->cols ? a->y.dim : c0 + a->cols;
  char *own = a->own + worker * a->own_bytes;
  const char *in = attn_at_(&a->x, a->x.batch > 1 ? b : 0, a->x.heads > 1 ? h : 0, r0);
  float *y = (float *)(void *)attn_at_(&a->y, b, h, r0);
  int64_t stride = a->y.stride_len;
  if (!a->aside)
    y += c0;
  else
    y = (float *)(void *)(own + a->own_y), stride = a->cols;
  const attn_matrix_part_ part = {b, h, 0, 0, c0, c1};
  if (ATTN_PART_(LOW, a->low)) attn_gemm_low_(a, part, y, stride, rows, in, own);
#if ATTN_HAS_LOW && ATTN_HAS_QUANTIZE
  else if (a->coded.codes)
    attn_gemm_coded_(a, part, y, stride, r0, rows, in, own);
#endif
  else
    attn_gemm_plain_(a, part, y, stride, rows, in, own);
  if (!a->finish && !a->aside && !ATTN_PART_(LOW, a->low)) return;
  for (int64_t c = 0; c < c1 - c0; c += ATTN_GEMM_COLS_) {
    const int64_t n = c1 - c0 - c < ATTN_GEMM_COLS_ ? c1 - c0 - c : (int64_t)ATTN_GEMM_COLS_;
    float bias[ATTN_GEMM_COLS_];
    if (a->bias.data)
      f->widen(bias,
               attn_at_(&a->bias, a->bias.batch > 1 ? b : 0, a->bias.heads > 1 ? h : 0, 0) +
                   attn_bytes_(a->bias.dtype, c0 + c),
               0, NULL, 1, n, a->bias.dtype, NULL);
    for (int64_t r = 0; r < rows; r++) {
      float *row = y + r * stride + c;
      const float *gate = NULL, *more = a->bias.data ? bias : NULL;
      if (a->gate.data)
        gate = (const float *)(const void *)attn_at_(&a->gate, b, h, r0 + r) + c0 + c;
      if (a->formed)
        attn_gemm_formed_(a, row, gate, n, more);
      else if (gate)
        attn_on_(dense, f)->act(row, row, gate, n, more, a->scale, a->act);
      else if (a->finish)
        attn_on_(dense, f)->activate(row, n, more, a->scale, a->act);
      else if (ATTN_PART_(LOW, a->low))
        attn_row_one_nan_(f, row, n);
      if (a->aside)
        f->blend(attn_at_(&a->y, b, h, r0 + r) + attn_bytes_(a->y.dtype, c0 + c), row, NULL,
                 a->y.dtype, ATTN_F32, ATTN_F32, n, 1.0f, 0.0f);
    }
  }
}

ATTN_PUB_ attn_status attn_gemm(attn_tensor y, attn_tensor x, attn_tensor w,
                                const attn_gemm_params *params, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_workspace_ memory = {(char *)(uintptr_t)ATTN_ALIGN_, NULL}; /* no bytes: none are read */
  attn_gemm_ a;
  int workers;
  attn_gemm_open_(&a, &y, &x, &w);
  if (!attn_gemm_plan_(&e, &a, params, ctx, &workers, 1)) return attn_end_(ctx, &e);
  const int64_t bytes = attn_gemm_bytes_(&a, workers);
  if (a.items) {
    if (bytes && !attn_workspace_get_(&e, &memory, ctx, bytes)) return attn_end_(ctx, &e);
    a.own = memory.base + attn_matrix_bytes_(&a.w);
#if ATTN_HAS_LOW && ATTN_HAS_QUANTIZE
    if (a.coded.codes) {
      attn_coded_make_(&a.coded, a.table, a.own, ctx, workers);
      a.own += attn_coded_bytes_(&a.coded);
    }
#endif
    attn_matrix_lay_(&a.w, a.table, memory.base, ctx, workers);
    attn_for_(ctx, workers, a.items, attn_gemm_item_, &a);
    attn_workspace_drop_(&memory);
  }
  attn_report_(ctx, a.table, workers,
               a.w.run || a.w.direct ? "dense product, w in place"
               : a.w.in_turn         ? "dense product, w turned in place"
                                     : "dense product, panels",
               a.w.run       ? "codes"
               : a.w.direct  ? "few rows of x"
               : a.w.in_turn ? "few rows of x, w transposed"
                             : "many rows of x, or w not f32");
  attn_compute_report_(ctx, a.low, a.feature);
  if (ctx && ATTN_PART_(LOW, a.coded.codes))
    ctx->report.compute = ATTN_COMPUTE_I8, ctx->report.feature = a.feature;
  return attn_end_(ctx, &e);
}

/* Bytes of workspace; -1 = rejected. */
ATTN_FUNC_ int64_t attn_gemm_need_(attn_error_ *e, attn_tensor y, attn_tensor x, attn_tensor w,
                                   const attn_gemm_params *params, const attn_ctx *ctx, int apart) {
  const attn_ctx plain = attn_before_workspace_(ctx);
  attn_gemm_ a;
  int workers;
  attn_gemm_open_(&a, &y, &x, &w);
  if (!attn_gemm_plan_(e, &a, params, &plain, &workers, apart)) return -1;
  /* parallel_for may be set later */
  if (plain.workers > 1) attn_gemm_cut_(&a, plain.workers);
  return attn_gemm_bytes_(&a, attn_pieces_(plain.workers > 1 ? plain.workers : 1, a.items));
}

ATTN_PUB_ size_t attn_gemm_workspace(attn_tensor y, attn_tensor x, attn_tensor w,
                                     const attn_gemm_params *params, const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const int64_t bytes = attn_gemm_need_(&e, y, x, w, params, ctx, 1);
  return attn_answer_(e.status, bytes);
}
