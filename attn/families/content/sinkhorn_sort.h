/* families/content/sinkhorn_sort.h owns how blocks of keys get their order: descriptors of blocks, the sorting
 * network, balancing of its logits, the hard choice; and the checks of all calls of the family. */

enum { ATTN_DRAW_GUMBEL_ = 5 };

/* Which call it is. */
enum {
  ATTN_SINK_BLOCKS_,
  ATTN_SINK_LOGITS_,
  ATTN_SINK_BALANCE_,
  ATTN_SINK_CHOOSE_,
  ATTN_SINK_ATTEND_,
  ATTN_SINK_CUT_
};

typedef struct attn_sink_job_ {
  int what;
  attn_tensor to, from; /* of the calls that make P, and of each step of them */
  attn_tensor o, q, k, v, sort;
  attn_sinkhorn_params p; /* defaults resolved */
  const attn_table_ *table;
  int64_t heads, blocks; /* H, NB */
  int made;              /* P is made by the call */
  /* attention */
  int64_t places;               /* rows of P in use */
  const int32_t *choice;        /* [B,H,places], hard */
  int32_t *list, *listed;       /* of SortCut: [B,H,places] blocks to read, [B,H] how many */
  attn_tensor mixed_k, mixed_v; /* of SortCut, soft: [B,H,places b, .] */
  int64_t together;             /* blocks that are mixed at once */
  float scale_hi, scale_lo;     /* of scores in log2 units */
  char *memory;                 /* of the workers */
  int64_t each;
} attn_sink_job_;

/* Uniform in (0, 1). */
ATTN_FUNC_ double attn_stream_uniform_(uint64_t *s) {
  return ((double)(int64_t)(attn_next64_(s) >> 12) + 0.5) / 4503599627370496.0;
}

/* A row of any float type becomes f32, in place if it is. */
ATTN_FUNC_ const float *attn_row_wide_(const attn_table_ *f, const attn_tensor *x, int64_t b,
                                       int64_t h, int64_t i, float *copy) {
  const char *row = attn_at_(x, b, h, i);
  if (x->dtype == ATTN_F32) return (const float *)(const void *)row;
  f->widen(copy, row, 0, NULL, 1, x->dim, x->dtype, NULL);
  return copy;
}

/* ---- descriptors ----------------------------------------------------------------------------*/

/* Descriptors of one head; those of a causal model are sums from the first row on. */
ATTN_FUNC_ void attn_sink_blocks_item_(void *job, int worker, int64_t unit) {
  const attn_sink_job_ *a = (const attn_sink_job_ *)job;
  const attn_tensor *x = &a->from;
  const int64_t b = unit / x->heads, h = unit % x->heads, dx = x->dim, size = a->p.block;
  double *sum = (double *)(void *)(a->memory + worker * a->each);
  float *wide = (float *)(void *)(sum + dx);
  for (int64_t c = 0; c < dx; c++) sum[c] = 0.0;
  for (int64_t i = 0; i < a->blocks; i++) {
    /* causal: rows after the first one of the block before, and the first of this */
    const int64_t from = !a->p.causal ? i * size : i == 0 ? 0 : (i - 1) * size + 1;
    const int64_t end = !a->p.causal ? (i + 1) * size : i * size + 1;
    if (!a->p.causal)
      for (int64_t c = 0; c < dx; c++) sum[c] = 0.0;
    for (int64_t t = from; t < end; t++) {
      const float *row = attn_row_wide_(a->table, x, b, h, t, wide);
      for (int64_t c = 0; c < dx; c++) sum[c] += (double)row[c];
    }
    for (int64_t c = 0; c < dx; c++) /* a finite sum stays so */
      wide[c] = (float)(sum[c] - sum[c] == 0.0 ? attn_clamp_f64_(sum[c]) : sum[c]);
    a->table->blend(attn_at_(&a->to, b, h, i), wide, NULL, a->to.dtype, ATTN_F32, ATTN_F32, dx,
                    1.0f, 0.0f);
  }
}

ATTN_COLD_ int attn_sink_blocks_(attn_stage_ *s, const attn_sink_job_ *j, attn_tensor y,
                                 attn_tensor x) {
  attn_sink_job_ a = *j;
  a.to = y, a.from = x;
  a.each = attn_piece_(attn_mul_(x.dim, 12), 1);
  return attn_stage_for_(s, attn_mul_(x.batch, x.heads), attn_sink_blocks_item_, &a, a.each,
                         &a.memory);
}

/* ---- the network ----------------------------------------------------------------------------*/

/* Descriptors may have fewer heads than the logits: each serves a group of them. */
ATTN_COLD_ int attn_sink_layer_(attn_stage_ *s, attn_tensor y, attn_tensor x, attn_tensor w,
                                attn_tensor bias) {
  const int64_t runs = x.heads == y.heads ? 1 : x.heads, group = y.heads / runs;
  for (int64_t n = 0; n < runs; n++) {
    attn_gemm_params g;
    memset(&g, 0, sizeof g);
    g.activation = ATTN_ACT_RELU;
    g.bias = bias.data && bias.heads > 1 ? attn_stage_heads_(bias, n * group, group) : bias;
    if (!attn_stage_gemm_(s, attn_stage_heads_(y, n * group, group),
                          runs > 1 ? attn_stage_heads_(x, n, 1) : x,
                          w.heads > 1 ? attn_stage_heads_(w, n * group, group) : w, &g))
      return 0;
  }
  return 1;
}

ATTN_COLD_ int attn_sink_logits_(attn_stage_ *s, const attn_sink_job_ *j, attn_tensor r,
                                 attn_tensor y) {
  const attn_tensor hidden = attn_stage_tensor_(s, r.batch, r.heads, r.len, j->p.w_1.dim);
  return attn_sink_layer_(s, hidden, y, j->p.w_1, j->p.b_1) &&
         attn_sink_layer_(s, r, hidden, j->p.w_2, j->p.b_2);
}

/* ---- balancing ------------------------------------------------------------------------------*/

/* What exp may get: its result is 0 or infinite beyond; NaN stays. */
ATTN_FUNC_ float attn_sink_power_(double x) {
  return x < -150.0 ? -INFINITY : x > 150.0 ? INFINITY : (float)x;
}

/* Takes the logarithm of its sum of exponentials from a row, unless all of it is -inf. */
ATTN_FUNC_ void attn_balance_row_(const attn_table_ *f, double *x, float *e, int64_t n) {
  double top = -(double)INFINITY, sum = 0.0;
  for (int64_t j = 0; j < n; j++)
    if (x[j] > top) top = x[j];
  if (top == -(double)INFINITY) return;
  for (int64_t j = 0; j < n; j++) e[j] = attn_sink_power_(x[j] - top);
  f->exp(e, e, n);
  for (int64_t j = 0; j < n; j++) sum += (double)e[j];
  top += sum > 0.0 ? attn_ln_(sum) : sum; /* or NaN */
  for (int64_t j = 0; j < n; j++) x[j] -= top;
}

/* The same for all columns, row by row. */
ATTN_FUNC_ void attn_balance_columns_(const attn_table_ *f, double *x, double *top, double *sum,
                                      float *e, int64_t n) {
  for (int64_t j = 0; j < n; j++) top[j] = -(double)INFINITY, sum[j] = 0.0;
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++)
      if (x[i * n + j] > top[j]) top[j] = x[i * n + j];
  for (int64_t j = 0; j < n; j++)
    if (top[j] == -(double)INFINITY) top[j] = 0.0;
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < n; j++) e[j] = attn_sink_power_(x[i * n + j] - top[j]);
    f->exp(e, e, n);
    for (int64_t j = 0; j < n; j++) sum[j] += (double)e[j];
  }
  for (int64_t j = 0; j < n; j++) top[j] = sum[j] > 0.0 ? top[j] + attn_ln_(sum[j]) : sum[j];
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++) x[i * n + j] -= top[j];
}

/* Each element by the sum of its column so far: a running maximum and sum. */
ATTN_FUNC_ void attn_balance_so_far_(const attn_table_ *f, double *x, double *top, double *sum,
                                     float *e, int64_t n) {
  for (int64_t j = 0; j < n; j++) top[j] = -(double)INFINITY, sum[j] = 0.0;
  for (int64_t i = 0; i < n; i++, x += n) {
    for (int64_t j = 0; j < n; j++) {
      const double d = x[j] - top[j]; /* of -inf and -inf: NaN, not used */
      e[j] = attn_sink_power_(d > 0.0 ? -d : d);
    }
    f->exp(e, e, n);
    for (int64_t j = 0; j < n; j++) {
      if (x[j] > top[j])
        sum[j] = sum[j] * (double)e[j] + 1.0, top[j] = x[j];
      else if (x[j] != -(double)INFINITY)
        sum[j] += (double)e[j];
      x[j] -= sum[j] > 0.0 ? top[j] + attn_ln_(sum[j]) : sum[j]; /* nothing yet, or NaN */
    }
  }
}

/* One head. */
ATTN_FUNC_ void attn_balance_item_(void *job, int worker, int64_t unit) {
  const attn_sink_job_ *a = (const attn_sink_job_ *)job;
  const attn_sinkhorn_params *p = &a->p;
  const int64_t b = unit / a->heads, h = unit % a->heads, n = a->blocks;
  double *x = (double *)(void *)(a->memory + worker * a->each), *top = x + n * n, *sum = top + n;
  float *e = (float *)(void *)(sum + n);
  for (int64_t i = 0; i < n; i++) {
    const int64_t end = p->causal ? i + (p->diag != 0) : n;
    const attn_tensor *r = &a->from, *z = &p->noise;
    const float *in =
        (const float *)(const void *)attn_at_(r, r->batch > 1 ? b : 0, r->heads > 1 ? h : 0, i);
    const float *noise = NULL;
    uint64_t stream = attn_stream_(p->seed, ATTN_DRAW_GUMBEL_, h, i);
    if (z->data)
      noise =
          (const float *)(const void *)attn_at_(z, z->batch > 1 ? b : 0, z->heads > 1 ? h : 0, i);
    for (int64_t j = 0; j < n; j++) {
      double g = noise ? (double)noise[j] : 0.0;
      if (j >= end) {
        x[i * n + j] = -(double)INFINITY;
        continue;
      }
      if (p->gumbel) g = -attn_ln_(-attn_ln_(attn_stream_uniform_(&stream)));
      x[i * n + j] = ((double)in[j] + g) / (double)p->tau;
    }
  }
  const int rows = p->balance == ATTN_BALANCE_ROWS;
  for (int64_t it = rows ? -1 : 0; it < (rows ? 0 : p->iterations); it++) {
    for (int64_t i = 0; i < n; i++) attn_balance_row_(a->table, x + i * n, e, n);
    if (p->balance == ATTN_BALANCE_SINKHORN)
      attn_balance_columns_(a->table, x, top, sum, e, n);
    else if (p->balance == ATTN_BALANCE_CUMULATIVE)
      attn_balance_so_far_(a->table, x, top, sum, e, n);
  }
  for (int64_t i = 0; i < n; i++) {
    float *out = (float *)(void *)attn_at_(&a->to, b, h, i);
    for (int64_t j = 0; j < n; j++) out[j] = attn_sink_power_(x[i * n + j]);
    a->table->exp(out, out, n);
  }
}

ATTN_COLD_ int attn_sink_balance_(attn_stage_ *s, const attn_sink_job_ *j, attn_tensor p,
                                  attn_tensor r) {
  attn_sink_job_ a = *j;
  a.to = p, a.from = r;
  a.each = attn_piece_(attn_mul_(j->blocks, attn_add_(attn_mul_(j->blocks, 8), 24)), 1);
  return attn_stage_for_(s, attn_mul_(p.batch, p.heads), attn_balance_item_, &a, a.each, &a.memory);
}

/* ---- the hard choice ------------------------------------------------------------------------*/

/* Sources of the places i0 .. of one head. */
ATTN_FUNC_ void attn_sink_choose_item_(void *job, int worker, int64_t unit) {
  const attn_sink_job_ *a = (const attn_sink_job_ *)job;
  const attn_tensor *p = &a->from;
  const int64_t b = unit / a->heads, h = unit % a->heads;
  int32_t *choice = (int32_t *)a->to.data + unit * a->places;
  (void)worker;
  for (int64_t i = 0; i < a->places; i++) {
    const float *row =
        (const float *)(const void *)attn_at_(p, p->batch > 1 ? b : 0, p->heads > 1 ? h : 0, i);
    const int64_t end = a->p.causal ? i + (a->p.diag != 0) : a->blocks;
    float top = 0.0f;
    choice[i] = -1;
    for (int64_t j = 0; j < end; j++)
      if (row[j] > top) top = row[j], choice[i] = (int32_t)j;
  }
}

ATTN_COLD_ int attn_sink_choose_(attn_stage_ *s, const attn_sink_job_ *j, int32_t *choice,
                                 int64_t batch, attn_tensor p) {
  attn_sink_job_ a = *j;
  a.to.data = choice, a.from = p;
  return attn_stage_for_(s, attn_mul_(batch, j->heads), attn_sink_choose_item_, &a, 0, NULL);
}

/* ---- checks ---------------------------------------------------------------------------------*/

/* Blocks of T rows. */
ATTN_COLD_ int attn_sink_check_blocks_(attn_error_ *e, attn_sink_job_ *j, int64_t len,
                                       const char *rule) {
  if (j->p.block < 1) return attn_reject_(e, ATTN_E_SHAPE, "params.block must be at least 1");
  if (len % j->p.block) return attn_reject_(e, ATTN_E_SHAPE, rule);
  j->blocks = len / j->p.block;
  return j->blocks <= INT32_MAX ||
         attn_reject_(e, ATTN_E_OVERFLOW, "there must be fewer than 2^31 blocks");
}

ATTN_COLD_ int attn_sink_check_network_(attn_error_ *e, attn_sink_job_ *j, attn_arguments_ *l,
                                        int64_t dx) {
  attn_sinkhorn_params *p = &j->p;
  const int64_t one = ATTN_ONE_OR_ALL_;
  attn_turn_(&p->w_1, p->w_transposed), attn_turn_(&p->w_2, p->w_transposed);
  return attn_check_argument_(e, l, &p->w_1, ATTN_WORDS_("params.w_1"), ATTN_MATRIX_, 1, one, dx,
                              ATTN_ANY_,
                              ATTN_HEADS_IN_OUT_("params.w_1", "1 or heads", "dx", "m")) &&
         attn_check_argument_(e, l, &p->b_1, ATTN_WORDS_("params.b_1"), ATTN_OPTIONAL_, 1, one, 1,
                              p->w_1.dim, "params.b_1 must be [1, 1 or heads, 1, m]") &&
         attn_check_argument_(e, l, &p->w_2, ATTN_WORDS_("params.w_2"), ATTN_MATRIX_, 1, one,
                              p->w_1.dim, j->blocks,
                              ATTN_HEADS_IN_OUT_("params.w_2", "1 or heads", "m", "blocks")) &&
         attn_check_argument_(e, l, &p->b_2, ATTN_WORDS_("params.b_2"), ATTN_OPTIONAL_, 1, one, 1,
                              j->blocks, "params.b_2 must be [1, 1 or heads, 1, blocks]");
}

ATTN_COLD_ int attn_sink_check_balance_(attn_error_ *e, attn_sink_job_ *j, attn_arguments_ *l) {
  static const char w[] = ATTN_WORDS_("params.noise");
  attn_sinkhorn_params *p = &j->p;
  if ((int)p->balance < 0 || p->balance >= ATTN_BALANCE_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.balance must be an attn_sinkhorn_balancing");
  if (p->balance == ATTN_BALANCE_DEFAULT)
    p->balance = p->causal ? ATTN_BALANCE_ROWS : ATTN_BALANCE_SINKHORN;
  if (p->iterations < 0)
    return attn_reject_(e, ATTN_E_SHAPE, "params.iterations must not be negative");
  p->iterations = attn_given_or_(p->has_iterations, p->iterations, 8);
  if (p->tau == 0.0f && !attn_to_bits_(p->tau)) p->tau = 0.75f;
  if (!(p->tau > 0.0f && p->tau < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.tau must be positive and finite");
  if (p->gumbel && p->noise.data)
    return attn_reject_(e, ATTN_E_RANGE, "params.noise and params.gumbel exclude each other");
  return attn_check_argument_(e, l, &p->noise, w, ATTN_OPTIONAL_ | ATTN_IS_F32_, ATTN_ONE_OR_ALL_,
                              ATTN_ONE_OR_ALL_, j->blocks, j->blocks,
                              "params.noise must be f32 [1 or batch, 1 or heads, blocks, blocks]");
}

/* The calls that make P, by themselves. */
ATTN_COLD_ int attn_sink_check_made_(attn_error_ *e, attn_sink_job_ *j, attn_arguments_ *l) {
  static const char *const w[] = {ATTN_WORDS_("y"), ATTN_WORDS_("x"), ATTN_WORDS_("r"),
                                  ATTN_WORDS_("p"), ATTN_WORDS_("choice")};
  const int64_t any = ATTN_ANY_, one = ATTN_ONE_OR_ALL_, in = ATTN_DIVIDES_;
  attn_tensor *to = &j->to, *from = &j->from;
  if (j->what == ATTN_SINK_BLOCKS_) {
    if (!attn_check_argument_(e, l, from, w[1], 0, any, any, any, any, "x") ||
        !attn_sink_check_blocks_(e, j, from->len, "x.len must be a multiple of params.block"))
      return 0;
    j->heads = from->heads;
    return attn_check_argument_(e, l, to, w[0], ATTN_OUT_, from->batch, from->heads, j->blocks,
                                from->dim, "y must be [x.batch, x.heads, x.len / block, x.dim]");
  }
  if (j->what == ATTN_SINK_CHOOSE_) {
    const attn_tensor view = *to;
    if (!attn_check_argument_(e, l, from, w[3], ATTN_IS_F32_, any, any, any, any, "p must be f32"))
      return 0;
    j->heads = from->heads, j->blocks = j->places = from->len;
    if (from->len > INT32_MAX)
      return attn_reject_(e, ATTN_E_OVERFLOW, "there must be fewer than 2^31 blocks");
    if (from->len > 0 && from->dim != from->len)
      return attn_reject_(e, ATTN_E_SHAPE, "p.dim must equal p.len");
    *to = attn_bhtd(view.data, ATTN_F32, from->batch, from->heads, from->len, 1);
    return attn_check_argument_(e, l, to, w[4], ATTN_OUT_, any, any, any, any, "");
  }
  const int net = j->what == ATTN_SINK_LOGITS_;
  if (!attn_check_argument_(e, l, to, net ? w[2] : w[3], net ? ATTN_OUT_ : ATTN_OUT_ | ATTN_IS_F32_,
                            any, any, any, any, "p must be f32"))
    return 0;
  l->batch = to->batch, l->heads = j->heads = to->heads, j->blocks = to->len;
  if (to->len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "there must be fewer than 2^31 blocks");
  if (to->len > 0 && to->dim != to->len)
    return attn_reject_(e, ATTN_E_SHAPE, net ? "r.dim must equal r.len" : "p.dim must equal p.len");
  if (to->batch == 0 || to->heads == 0 || to->len == 0) return 1;
  if (net)
    return attn_check_argument_(e, l, from, w[0], 0, to->batch, in, to->len, any,
                                "y must be [r.batch, a divisor of r.heads, r.len, .]") &&
           attn_sink_check_network_(e, j, l, from->dim);
  return attn_check_argument_(e, l, from, w[2], ATTN_IS_F32_, one, one, to->len, to->len,
                              "r must be f32 [1 or p.batch, 1 or p.heads, p.len, p.len]") &&
         attn_sink_check_balance_(e, j, l);
}

/* ---- the calls ------------------------------------------------------------------------------*/

ATTN_COLD_ int attn_sink_made_steps_(attn_stage_ *s, void *job) {
  attn_sink_job_ *j = (attn_sink_job_ *)job;
  j->table = s->table;
  if (j->what == ATTN_SINK_BLOCKS_) return attn_sink_blocks_(s, j, j->to, j->from);
  if (j->what == ATTN_SINK_LOGITS_) return attn_sink_logits_(s, j, j->to, j->from);
  if (j->what == ATTN_SINK_BALANCE_) return attn_sink_balance_(s, j, j->to, j->from);
  return attn_sink_choose_(s, j, (int32_t *)j->to.data, j->to.batch, j->from);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_sink_made_call_(int what, attn_tensor to, attn_tensor from,
                                            const attn_sinkhorn_params *params, const char *path,
                                            attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_sink_job_ j;
  attn_arguments_ list;
  int workers;
  memset(&j, 0, sizeof j);
  memset(&list, 0, sizeof list);
  j.what = what, j.to = to, j.from = from;
  if (!attn_check_ctx_(&e, ctx, &table, &workers)) return attn_end_(bytes ? NULL : ctx, &e);
  if (params)
    j.p = *params;
  else if (what == ATTN_SINK_BLOCKS_ || what == ATTN_SINK_LOGITS_)
    attn_reject_(&e, ATTN_E_NULL, "params must not be null");
  if (e.status == ATTN_OK && attn_sink_check_made_(&e, &j, &list) &&
      attn_check_apart_(&e, ctx, list.op, list.n, NULL, 0)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (j.to.batch > 0 && j.heads > 0 && j.blocks > 0)
      attn_stage_call_(&s, ctx, attn_sink_made_steps_, &j, path, bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no blocks");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ size_t attn_sink_made_bytes_(int what, attn_tensor to, attn_tensor from,
                                        const attn_sinkhorn_params *params, const attn_ctx *ctx) {
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  const attn_status status = attn_sink_made_call_(what, to, from, params, "", &plain, &bytes);
  return attn_answer_(status, (int64_t)bytes);
}

ATTN_COLD_ attn_status attn_sinkhorn_blocks_call_(attn_tensor y, attn_tensor x,
                                                  const attn_sinkhorn_params *params, attn_ctx *ctx,
                                                  size_t *bytes) {
  return attn_sink_made_call_(ATTN_SINK_BLOCKS_, y, x, params, "sums of blocks", ctx, bytes);
}
ATTN_CALL_(attn_sinkhorn_blocks, (y, x, params), attn_tensor y, attn_tensor x,
           const attn_sinkhorn_params *params)

ATTN_COLD_ attn_status attn_sinkhorn_logits_call_(attn_tensor r, attn_tensor y,
                                                  const attn_sinkhorn_params *params, attn_ctx *ctx,
                                                  size_t *bytes) {
  return attn_sink_made_call_(ATTN_SINK_LOGITS_, r, y, params, "two dense layers", ctx, bytes);
}
ATTN_CALL_(attn_sinkhorn_logits, (r, y, params), attn_tensor r, attn_tensor y,
           const attn_sinkhorn_params *params)

ATTN_PUB_COLD_ attn_status attn_sinkhorn_balance(attn_tensor p, attn_tensor r,
                                                 const attn_sinkhorn_params *params,
                                                 attn_ctx *ctx) {
  return attn_sink_made_call_(ATTN_SINK_BALANCE_, p, r, params, "balancing of logarithms", ctx,
                              NULL);
}
ATTN_PUB_COLD_ size_t attn_sinkhorn_balance_workspace(attn_tensor p, attn_tensor r,
                                                      const attn_sinkhorn_params *params,
                                                      const attn_ctx *ctx) {
  return attn_sink_made_bytes_(ATTN_SINK_BALANCE_, p, r, params, ctx);
}

ATTN_COLD_ attn_tensor attn_sink_choice_(const int32_t *choice) {
  return attn_bhtd(choice, ATTN_F32, 0, 0, 0, 1);
}
ATTN_COLD_ attn_status attn_sinkhorn_choose_call_(int32_t *choice, attn_tensor p,
                                                  const attn_sinkhorn_params *params, attn_ctx *ctx,
                                                  size_t *bytes) {
  return attn_sink_made_call_(ATTN_SINK_CHOOSE_, attn_sink_choice_(choice), p, params,
                              "largest of each row", ctx, bytes);
}
ATTN_CALL_(attn_sinkhorn_choose, (choice, p, params), int32_t *choice, attn_tensor p,
           const attn_sinkhorn_params *params)
