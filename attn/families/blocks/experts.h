/* families/blocks/experts.h owns rows through the experts that they are sent to: runs of rows are sorted by expert, and
 * items are the rows of an expert by some of its columns, which they read where they lie. */

enum {
  ATTN_EXPERTS_ROWS_ = 128, /* of an expert in a run, when all are sent as many */
  ATTN_EXPERTS_SUM_ = 8,    /* of y in an item */
  /* of columns that few rows read in place, whose lines follow each other */
  ATTN_EXPERTS_COLS_ = ATTN_STORED_COLS_,
  /* floats of an item's block of x w_3; its rows are not a multiple of 4 KB apart */
  ATTN_EXPERTS_BLOCK_ = ATTN_GEMM_MOST_ * (ATTN_GEMM_COLS_ + 16)
};

typedef struct attn_experts_job_ {
  const attn_table_ *table;
  attn_tensor y, x; /* x: of the call */
  attn_expert_rows_params p;
  int64_t count, k, dff;      /* dff = dout without w_2 */
  const attn_low_table_ *low; /* of the experts' products */
  attn_feature feature;
  attn_experts_gate_ gate;     /* of this run of rows */
  attn_tensor from, to;        /* its rows of x and y */
  int64_t b, i;                /* and where they begin: batch entry, or 0 of flat rows */
  attn_tensor side, hidden;    /* of pairs of row and expert: rows of x, then of y; hidden rows */
  attn_tensor other, by;       /* shared(x), and its gate */
  int64_t *begin;              /* [count + 1] the pairs of an expert */
  int64_t *first;              /* [count + 1] its items of a product */
  int64_t *row;                /* [pairs] the row of a pair */
  float *share;                /* [pairs] its weight */
  int64_t *place;              /* [rows][k] the pairs of a row, experts ascending */
  const attn_feed_forward *ff; /* the experts */
  int down;                    /* the product: hidden rows to rows of y */
  int64_t cols;                /* of an item at most */
  char *own;                   /* of the workers */
  int64_t each, at_block, at_lay;
} attn_experts_job_;

/* ---- the order of rows ------------------------------------------------------------------------*/

/* Sorts pairs by expert; rows stay ascending. */
ATTN_FUNC_ void attn_experts_sort_(attn_experts_job_ *j) {
  const attn_experts_gate_ *g = &j->gate;
  const int64_t pairs = g->rows * g->k;
  for (int64_t e = 0; e <= j->count; e++) j->begin[e] = j->first[e] = 0;
  for (int64_t n = 0; n < pairs; n++) j->begin[g->expert[n] + 1]++;
  for (int64_t e = 0; e < j->count; e++) j->begin[e + 1] += j->begin[e];
  for (int64_t e = 0; e < j->count; e++) j->first[e] = j->begin[e];
  for (int64_t n = 0; n < pairs; n++) {
    const int64_t at = j->first[g->expert[n]]++, r = n / g->k;
    int64_t i = n;
    j->row[at] = r, j->share[at] = g->weight[n];
    for (; i > r * g->k && j->place[i - 1] > at; i--) j->place[i] = j->place[i - 1];
    j->place[i] = at;
  }
}

ATTN_FUNC_ int64_t attn_experts_rows_of_(const attn_experts_job_ *j, int64_t e) {
  return j->begin[e + 1] - j->begin[e];
}

/* The rows of an expert's items, about as many in each. */
ATTN_FUNC_ int64_t attn_experts_high_(const attn_experts_job_ *j, int64_t e) {
  const int64_t n = attn_experts_rows_of_(j, e);
  return attn_runs_of_(n, attn_runs_of_(n, ATTN_GEMM_MOST_));
}

/* Their columns. */
ATTN_FUNC_ int64_t attn_experts_wide_(const attn_experts_job_ *j, int64_t e) {
  const int few = attn_experts_rows_of_(j, e) <= ATTN_STORED_FEW_ && !j->ff->w_transposed &&
                  !ATTN_PART_(LOW, j->low);
  const int64_t most = few ? (int64_t)ATTN_EXPERTS_COLS_ : (int64_t)ATTN_GEMM_COLS_;
  return j->cols < most ? j->cols : most;
}

/* Items of the product at hand: of few items the last ones would leave workers without. */
ATTN_FUNC_ int64_t attn_experts_cut_(attn_experts_job_ *j, int workers) {
  const int64_t columns = j->down ? j->to.dim : j->dff;
  for (j->cols = ATTN_EXPERTS_COLS_;; j->cols /= 2) {
    int64_t items = 0;
    for (int64_t e = 0; e < j->count; e++) {
      const int64_t n = attn_experts_rows_of_(j, e);
      j->first[e] = items;
      if (n > 0)
        items += attn_runs_of_(n, attn_experts_high_(j, e)) *
                 attn_runs_of_(columns, attn_experts_wide_(j, e));
    }
    j->first[j->count] = items;
    if (workers < 2 || j->cols == ATTN_PANEL_ || items >= 4 * (int64_t)workers) return items;
  }
}

/* ---- products ---------------------------------------------------------------------------------*/

/* A matrix of the experts with its bias. */
typedef struct attn_experts_weight_ {
  const attn_tensor *w, *bias;
  const attn_scales *scales;
} attn_experts_weight_;

/* A block of columns of expert e, of a matrix or a bias. */
ATTN_FUNC_ attn_tensor attn_experts_columns_(attn_tensor w, int64_t e, int64_t c, int64_t n) {
  if (!w.data) return w;
  w = attn_stage_heads_(w, e, 1);
  if (attn_is_turned_(&w))
    w = attn_stage_shift_(w, c * w.stride_len);
  else
    w = attn_stage_shift_(w, c);
  w.dim = n;
  return w;
}

/* y = act(x w + bias) gate, in a form, of some rows and the columns of one expert from c on that y has; bias, gate and
 * form may be absent. */
ATTN_FUNC_ void attn_experts_times_(const attn_experts_job_ *j, attn_tensor y, attn_tensor x,
                                    attn_experts_weight_ from, int64_t e, int64_t c,
                                    attn_activation act, attn_tensor gate,
                                    const attn_act_form *form, char *own) {
  attn_tensor w = attn_experts_columns_(*from.w, e, c, y.dim);
  const attn_tensor bias = attn_experts_columns_(*from.bias, e, c, y.dim);
  const int turned = attn_turn_back_(&w);
  attn_gemm_ a;
  memset(&a, 0, sizeof a);
  a.table = j->table, a.y = y, a.x = x, a.bias = bias, a.gate = gate;
  if (form) a.form = *form;
  a.w = attn_matrix_loose_(w, turned, y.len), a.scale = 1.0f, a.act = (int)act;
  if (attn_quantized_(w.dtype)) {
    attn_scales scales = *from.scales;
    const int64_t at = e * scales.stride_head + (turned ? c * scales.stride_len : c);
    scales.scale += at;
    if (scales.zero) scales.zero += at;
    attn_matrix_codes_(&a.w, &scales);
  }
  if (ATTN_PART_(LOW, j->low)) {
    attn_matrix_narrow_(&a.w, j->low), a.low = j->low;
    attn_matrix_lay_(&a.w, j->table, own + j->at_lay, NULL, 1);
  }
  attn_gemm_cut_(&a, 1);
  a.own = own;
  for (int64_t i = 0; i < a.items; i++) attn_gemm_item_(&a, 0, i);
}

/* Some rows of an expert by some columns of the product at hand. */
ATTN_FUNC_ void attn_experts_item_(void *job, int worker, int64_t index) {
  const attn_experts_job_ *j = (const attn_experts_job_ *)job;
  const attn_feed_forward *ff = j->ff;
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  const attn_experts_weight_ w_1 = {&ff->w_1, &ff->b_1, &ff->w_1_scales};
  const attn_experts_weight_ w_2 = {&ff->w_2, &ff->b_2, &ff->w_2_scales};
  const attn_experts_weight_ w_3 = {&ff->w_3, &ff->b_3, &ff->w_3_scales};
  char *own = j->own + worker * j->each;
  int64_t lo = 0, hi = j->count; /* the last expert whose items begin at index or before */
  while (hi - lo > 1) {
    const int64_t middle = lo + (hi - lo) / 2;
    if (j->first[middle] <= index)
      lo = middle;
    else
      hi = middle;
  }
  const int64_t e = lo, columns = j->down ? j->to.dim : j->dff;
  const int64_t high = attn_experts_high_(j, e), wide = attn_experts_wide_(j, e);
  const int64_t col_runs = attn_runs_of_(columns, wide), at = index - j->first[e];
  const int64_t r = at / col_runs * high, c = at % col_runs * wide;
  const int64_t left = attn_experts_rows_of_(j, e) - r, n = left < high ? left : high;
  const int64_t cols = columns - c < wide ? columns - c : wide, pair = j->begin[e] + r;
  attn_tensor hidden = attn_stage_rows_(j->hidden, pair, n), up = none;
  attn_tensor side = attn_stage_rows_(j->side, pair, n);
  if (j->down) {
    side = attn_stage_shift_(side, c), side.dim = cols;
    attn_experts_times_(j, side, hidden, w_2, e, c, ATTN_ACT_NONE, none, NULL, own);
    return;
  }
  hidden = attn_stage_shift_(hidden, c), hidden.dim = cols, side.dim = j->x.dim;
  if (ff->w_3.data) {
    up = attn_bhtd(own + j->at_block, ATTN_F32, 1, 1, n, cols);
    up.stride_len = cols + 16;
    attn_experts_times_(j, up, side, w_3, e, c, ATTN_ACT_NONE, none, NULL, own);
  }
  attn_experts_times_(j, hidden, side, w_1, e, c, ff->activation, up, &ff->form, own);
}

/* All items of one product. */
ATTN_COLD_ int attn_experts_product_(attn_stage_ *s, attn_experts_job_ *j, int down) {
  const int64_t deep = down ? j->dff : j->x.dim;
  const int low = ATTN_PART_(LOW, j->low) != NULL;
  const int64_t panels = low ? deep / 2 + 2 : 0;
  j->down = down;
  j->at_block =
      attn_add_((int64_t)ATTN_GEMM_MOST_ * (int64_t)ATTN_GEMM_COLS_ * 4,
                low ? attn_piece_((int64_t)ATTN_GEMM_MOST_ * (int64_t)ATTN_GEMM_DEEP_, 6) : 0);
  j->at_lay =
      attn_add_(j->at_block, !down && j->ff->w_3.data ? attn_piece_(ATTN_EXPERTS_BLOCK_, 4) : 0);
  j->each = attn_add_(j->at_lay, attn_piece_(attn_mul_(panels, ATTN_GEMM_COLS_), 4));
  return attn_stage_for_(s, s->run ? attn_experts_cut_(j, s->workers) : INT32_MAX,
                         attn_experts_item_, j, j->each, &j->own);
}

/* ---- rows there and back ----------------------------------------------------------------------*/

/* Rows of x by pairs, times their weight if that is so. */
ATTN_FUNC_ void attn_experts_gather_(void *job, int worker, int64_t index) {
  const attn_experts_job_ *j = (const attn_experts_job_ *)job;
  const int64_t pairs = j->gate.rows * j->k, from = index * ATTN_TILE_;
  const int64_t end = pairs - from < ATTN_TILE_ ? pairs : from + ATTN_TILE_;
  (void)worker;
  for (int64_t n = from; n < end; n++) {
    void *to = attn_at_(&j->side, 0, 0, n);
    const void *row = attn_at_(&j->from, 0, 0, j->row[n]);
    if (j->p.weigh_input)
      j->table->blend(to, row, NULL, ATTN_F32, j->from.dtype, ATTN_F32, j->from.dim, j->share[n],
                      0.0f);
    else
      j->table->widen((float *)to, row, 0, NULL, 1, j->from.dim, j->from.dtype, NULL);
  }
}

/* y = the sum of a row's pairs in the order of the experts, then shared(x). */
ATTN_FUNC_ void attn_experts_sum_(void *job, int worker, int64_t index) {
  const attn_experts_job_ *j = (const attn_experts_job_ *)job;
  const attn_tensor *made = j->ff->w_2.data ? &j->side : &j->hidden;
  const int64_t rows = j->gate.rows, from = index * ATTN_EXPERTS_SUM_, dout = j->to.dim;
  const int64_t end = rows - from < ATTN_EXPERTS_SUM_ ? rows : from + ATTN_EXPERTS_SUM_;
  for (int64_t r = from; r < end; r++) {
    const int64_t *place = j->place + r * j->k;
    void *y = attn_at_(&j->to, 0, 0, r);
    float *sum = (float *)(j->to.dtype == ATTN_F32 ? y : j->own + worker * j->each);
    for (int64_t n = 0; n < j->k; n++)
      j->table->blend(sum, n ? sum : NULL, attn_at_(made, 0, 0, place[n]), ATTN_F32, ATTN_F32,
                      ATTN_F32, dout, 1.0f, j->p.weigh_input ? 1.0f : j->share[place[n]]);
    if (j->other.data)
      j->table->blend(sum, sum, attn_at_(&j->other, 0, 0, r), ATTN_F32, ATTN_F32, ATTN_F32, dout,
                      1.0f, j->by.data ? *(const float *)attn_at_(&j->by, 0, 0, r) : 1.0f);
    if (j->to.dtype != ATTN_F32)
      j->table->blend(y, sum, NULL, j->to.dtype, ATTN_F32, ATTN_F32, dout, 1.0f, 0.0f);
  }
}

/* What was chosen, and the logits, to whom they are of use. */
ATTN_FUNC_ void attn_experts_tell_(const attn_experts_job_ *j) {
  const attn_expert_rows_params *p = &j->p;
  const attn_experts_gate_ *g = &j->gate;
  const int64_t rows = j->x.len;
  for (int64_t r = 0; r < g->rows; r++) {
    const int64_t b = j->b + (j->i + r) / rows, i = (j->i + r) % rows;
    if (p->expert)
      memcpy(p->expert + (b * rows + i) * j->k, g->expert + r * j->k,
             (size_t)j->k * sizeof *p->expert);
    if (p->weight.data)
      j->table->blend(attn_at_(&p->weight, b, 0, i), g->weight + r * j->k, NULL, ATTN_F32, ATTN_F32,
                      ATTN_F32, j->k, 1.0f, 0.0f);
    if (p->logits.data)
      j->table->blend(attn_at_(&p->logits, b, 0, i), g->logits + r * j->count, NULL, ATTN_F32,
                      ATTN_F32, ATTN_F32, j->count, 1.0f, 0.0f);
  }
}

/* ---- a run of rows ----------------------------------------------------------------------------*/

/* Numbers of rows, pairs and items, in room that lasts as long as the call. */
ATTN_COLD_ int64_t *attn_experts_longs_(attn_stage_ *s, int64_t n) {
  return (int64_t *)attn_stage_take_(s, n, 8);
}

/* Room for what lies between the steps of so many rows. */
ATTN_COLD_ void attn_experts_room_(attn_stage_ *s, attn_experts_job_ *j, int64_t rows) {
  const int64_t pairs = attn_mul_(rows, j->k), dout = j->y.dim, din = j->x.dim;
  attn_experts_gate_ *g = &j->gate;
  g->p = &j->p, g->count = j->count, g->k = j->k, g->bias = NULL;
  g->groups = j->p.groups > 0 ? j->p.groups : 1;
  g->group_k = j->p.group_k > 0 ? j->p.group_k : g->groups;
  g->scale = j->p.scale == 0.0f && !attn_to_bits_(j->p.scale) ? 1.0f : j->p.scale;
  g->expert = (int32_t *)attn_stage_take_(s, pairs, 4);
  g->weight = (float *)attn_stage_take_(s, pairs, 4);
  if (j->p.choice_bias.data) {
    float *bias = (float *)attn_stage_take_(s, j->count, 4);
    g->bias = bias;
    if (s->run)
      s->table->widen(bias, j->p.choice_bias.data, 0, NULL, 1, j->count, j->p.choice_bias.dtype,
                      NULL);
  }
  j->begin = attn_experts_longs_(s, attn_add_(j->count, 1));
  j->first = attn_experts_longs_(s, attn_add_(j->count, 1));
  j->row = attn_experts_longs_(s, pairs), j->place = attn_experts_longs_(s, pairs);
  j->share = (float *)attn_stage_take_(s, pairs, 4);
  j->side = attn_multihead_rows_(s, 1, pairs, j->ff->w_2.data && dout > din ? dout : din);
  if (j->ff->w_2.data) j->side.dim = dout;
  j->hidden = attn_multihead_rows_(s, 1, pairs, j->dff);
  if (j->p.shared.w_1.data) j->other = attn_stage_tensor_(s, 1, 1, rows, dout);
  if (j->p.w_shared.data) j->by = attn_stage_tensor_(s, 1, 1, rows, 1);
}

/* Rows from and to. */
ATTN_COLD_ int attn_experts_run_(attn_stage_ *s, attn_experts_job_ *j, attn_tensor logits) {
  const int64_t rows = j->from.len, pairs = attn_mul_(rows, j->k);
  attn_gemm_params p;
  memset(&p, 0, sizeof p);
  p.bias = j->p.b_gate;
  j->gate.rows = rows, j->gate.logits = (const float *)logits.data;
  if (!attn_stage_gemm_(s, attn_stage_rows_(logits, 0, rows), j->from, j->p.w_gate, &p) ||
      !attn_experts_gate_steps_(s, &j->gate))
    return 0;
  if (j->by.data) {
    memset(&p, 0, sizeof p);
    p.activation = ATTN_ACT_SIGMOID;
    if (!attn_stage_gemm_(s, attn_stage_rows_(j->by, 0, rows), j->from, j->p.w_shared, &p))
      return 0;
  }
  const attn_surround_ plain = attn_surround_of_(ATTN_SUBLAYER_PLAIN, NULL);
  if (j->other.data && !attn_stage_feed_forward_(s, attn_stage_rows_(j->other, 0, rows), j->from,
                                                 &j->p.shared, 0, &plain))
    return 0;
  if (s->run) attn_experts_sort_(j), attn_experts_tell_(j);
  if (!attn_stage_for_(s, attn_tiles_of_(pairs), attn_experts_gather_, j, 0, NULL) ||
      !attn_experts_product_(s, j, 0) || (j->ff->w_2.data && !attn_experts_product_(s, j, 1)))
    return 0;
  j->each = j->to.dtype == ATTN_F32 ? 0 : attn_piece_(j->to.dim, 4);
  return attn_stage_for_(s, attn_runs_of_(rows, ATTN_EXPERTS_SUM_), attn_experts_sum_, j, j->each,
                         &j->own);
}

ATTN_COLD_ int attn_experts_steps_(attn_stage_ *s, void *job) {
  attn_experts_job_ *j = (attn_experts_job_ *)job;
  attn_tensor x = j->x, y = j->y;
  j->table = s->table, j->ff = &j->p.experts;
  if (x.len == 0 || x.batch == 0) return 1;
  if (x.batch > 1 && attn_gemm_flat_(&x) && attn_gemm_flat_(&y))
    x = attn_gemm_flatten_(x), y = attn_gemm_flatten_(y);
  const int64_t most = attn_mul_(ATTN_EXPERTS_ROWS_, j->count) / j->k;
  const int64_t run = x.len < most ? x.len : most;
  const attn_tensor logits = attn_stage_tensor_(s, 1, 1, run, j->count);
  attn_experts_room_(s, j, run);
  for (j->b = 0; j->b < x.batch; j->b++) {
    for (int64_t n, i = 0; i < x.len; i += n) {
      n = x.len - i < run ? x.len - i : run;
      j->i = i;
      j->from = attn_stage_rows_(attn_stage_entry_(x, j->b), i, n);
      j->to = attn_stage_rows_(attn_stage_entry_(y, j->b), i, n);
      if (!attn_experts_run_(s, j, logits)) return 0;
      if (!s->run && i == 0 && n < x.len) i = (x.len - 1) / run * run - n; /* then the last */
    }
    if (!s->run) break; /* the entries are alike */
  }
  if (ATTN_PART_(LOW, j->low))
    s->compute = j->low->peaks ? ATTN_COMPUTE_F16 : ATTN_COMPUTE_BF16, s->feature = j->feature;
  s->pairs = attn_mul_(attn_mul_(j->x.batch, j->x.len), j->k);
  return 1;
}
