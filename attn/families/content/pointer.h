/* families/content/pointer.h owns what draws edges between nodes: the step of an LSTM, the logits by which its
 * state points at nodes, the choice of one of them. All products are of one row with the rows of a matrix,
 * read where they lie. */

enum { ATTN_DRAW_EDGES_ = 8 };

typedef struct attn_sac_job_ {
  attn_sac_params p;
  const attn_table_ *table;
  attn_tensor x, h, c, h_next, c_next; /* of the step */
  attn_tensor y, e;                    /* logits and nodes */
  const int32_t *source;
  attn_tensor choice, log_p; /* numbers as views; log_p also of edges */
  const uint8_t *permitted;
  const double *u;
  attn_tensor edges, count;
  int64_t n;                                  /* edges a head */
  int64_t batch, heads, nodes, dh, de, reach; /* of the edges; D */
  attn_tensor o, q, k, v;
  int64_t room;
  int64_t *indptr;
  int32_t *col;
  const int32_t *iota; /* 0, 1, .. */
  int64_t longest;     /* how far */
  int nothing;         /* there is no work */
  char *memory;        /* of the workers */
  int64_t each;
} attn_sac_job_;

/* What one worker works in. */
typedef struct attn_sac_rows_ {
  float *x, *h, *c, *gates, *bias; /* [de or dx], [dh], [dh], [8 dh], [4 dh] */
  float *u, *logits, *w, *dist;    /* [de], [T], [T], [2 D + 1] */
  int32_t *last, *left,
      *before;      /* [T] last edge of a source, targets left to it; [n] the edge before */
  uint8_t *allowed; /* [T] */
} attn_sac_rows_;

/* Cuts it from memory; bytes of it. */
ATTN_FUNC_ int64_t attn_sac_cut_(attn_sac_rows_ *x, char *memory, const attn_sac_job_ *a) {
  const int64_t t = a->nodes, wide = a->x.dim > a->de ? a->x.dim : a->de;
  const int64_t n[] = {attn_mul_(wide, 4),
                       attn_mul_(a->dh, 4),
                       attn_mul_(a->dh, 4),
                       attn_mul_(a->dh, 32),
                       attn_mul_(a->dh, 16),
                       attn_mul_(a->de, 4),
                       attn_mul_(t, 4),
                       attn_mul_(t, 4),
                       attn_mul_(2 * a->reach + 1, 4),
                       attn_mul_(t, 4),
                       attn_mul_(t, 4),
                       attn_mul_(a->n, 4),
                       t};
  enum { PARTS = 13 };
  int64_t at[PARTS], bytes = 0;
  for (int i = 0; i < PARTS; i++) at[i] = bytes, bytes = attn_add_(bytes, attn_piece_(n[i], 1));
  if (!memory) return bytes;
  float **part[] = {&x->x, &x->h, &x->c, &x->gates, &x->bias, &x->u, &x->logits, &x->w, &x->dist};
  for (int i = 0; i < 9; i++) *part[i] = (float *)(void *)(memory + at[i]);
  x->last = (int32_t *)(void *)(memory + at[9]), x->left = (int32_t *)(void *)(memory + at[10]);
  x->before = (int32_t *)(void *)(memory + at[11]), x->allowed = (uint8_t *)memory + at[12];
  return bytes;
}

/* y = W x, W of one head. */
ATTN_FUNC_ void attn_sac_times_(const attn_sac_job_ *a, float *y, const attn_tensor *w, int64_t b,
                                int64_t h, const float *x) {
  attn_on_(list, a->table)
      ->dots(y, x, attn_at_(w, w->batch > 1 ? b : 0, w->heads > 1 ? h : 0, 0), w->stride_len,
             a->iota, w->len, w->dim, w->dtype, 0);
}

/* ---- the LSTM -------------------------------------------------------------------------------*/

/* h and c of the next step in place of those of the last. */
ATTN_FUNC_ void attn_lstm_cell_(const attn_sac_job_ *a, const attn_sac_rows_ *r, int64_t head,
                                const float *x) {
  const attn_table_ *f = a->table;
  const attn_lstm_params *p = &a->p.lstm;
  const int64_t n = a->dh;
  float *g = r->gates, *side = g + 4 * n;
  attn_sac_times_(a, g, &p->w_ih, 0, head, x);
  attn_sac_times_(a, side, &p->w_hh, 0, head, r->h);
  for (int64_t k = 0; k < 4 * n; k++) g[k] += side[k];
  if (p->bias.data) {
    const float *bias = attn_row_wide_(f, &p->bias, 0, p->bias.heads > 1 ? head : 0, 0, r->bias);
    for (int64_t k = 0; k < 4 * n; k++) g[k] += bias[k];
  }
  attn_on_(dense, f)->activate(g, 2 * n, NULL, 1.0f, ATTN_ACT_SIGMOID);
  attn_on_(dense, f)->activate(g + 2 * n, n, NULL, 1.0f, ATTN_ACT_TANH);
  attn_on_(dense, f)->activate(g + 3 * n, n, NULL, 1.0f, ATTN_ACT_SIGMOID);
  for (int64_t k = 0; k < n; k++) side[k] = r->c[k] = g[n + k] * r->c[k] + g[k] * g[2 * n + k];
  attn_on_(dense, f)->activate(side, n, NULL, 1.0f, ATTN_ACT_TANH);
  for (int64_t k = 0; k < n; k++) r->h[k] = g[3 * n + k] * side[k];
}

/* A row, or zeros, in memory of the worker. */
ATTN_FUNC_ void attn_sac_load_(const attn_sac_job_ *a, float *to, const attn_tensor *t, int64_t b,
                               int64_t h, int64_t i, int64_t n) {
  if (t->data)
    a->table->widen(to, attn_at_(t, b, h, i), 0, NULL, 1, n, t->dtype, NULL);
  else
    memset(to, 0, (size_t)n * sizeof *to);
}

ATTN_FUNC_ void attn_lstm_item_(void *job, int worker, int64_t index) {
  const attn_sac_job_ *a = (const attn_sac_job_ *)job;
  const attn_tensor *x = &a->x;
  const int64_t unit = index / x->len, i = index % x->len, b = unit / x->heads, h = unit % x->heads;
  attn_sac_rows_ r;
  attn_sac_cut_(&r, a->memory + worker * a->each, a);
  attn_sac_load_(a, r.x, x, b, h, i, x->dim);
  attn_sac_load_(a, r.h, &a->h, b, h, i, a->dh);
  attn_sac_load_(a, r.c, &a->c, b, h, i, a->dh);
  attn_lstm_cell_(a, &r, h, r.x);
  a->table->blend(attn_at_(&a->h_next, b, h, i), r.h, NULL, a->h_next.dtype, ATTN_F32, ATTN_F32,
                  a->dh, 1.0f, 0.0f);
  a->table->blend(attn_at_(&a->c_next, b, h, i), r.c, NULL, a->c_next.dtype, ATTN_F32, ATTN_F32,
                  a->dh, 1.0f, 0.0f);
}

/* ---- pointing -------------------------------------------------------------------------------*/

/* Logits of all nodes for a hidden state; source -1: without distances. */
ATTN_FUNC_ void attn_pointer_row_(const attn_sac_job_ *a, const attn_sac_rows_ *r, int64_t b,
                                  int64_t h, const float *state, int64_t source) {
  attn_sac_times_(a, r->u, &a->p.w_p, 0, h, state);
  attn_sac_times_(a, r->logits, &a->e, b, h, r->u);
  if (source < 0 || !a->p.dist.data) return;
  attn_sac_times_(a, r->dist, &a->p.dist, 0, h, r->u);
  for (int64_t t = 0; t < a->nodes; t++)
    r->logits[t] += r->dist[attn_clamp_(t - source, -a->reach, a->reach) + a->reach];
}

ATTN_FUNC_ void attn_pointer_item_(void *job, int worker, int64_t index) {
  const attn_sac_job_ *a = (const attn_sac_job_ *)job;
  const int64_t m = a->y.len, unit = index / m, i = index % m;
  const int64_t b = unit / a->heads, h = unit % a->heads;
  attn_sac_rows_ r;
  attn_sac_cut_(&r, a->memory + worker * a->each, a);
  attn_sac_load_(a, r.h, &a->h, b, h, i, a->dh);
  attn_pointer_row_(a, &r, b, h, r.h, a->source ? a->source[index] : -1);
  a->table->blend(attn_at_(&a->y, b, h, i), r.logits, NULL, a->y.dtype, ATTN_F32, ATTN_F32,
                  a->nodes, 1.0f, 0.0f);
}

/* ---- choosing -------------------------------------------------------------------------------*/

/* A permitted node of n; allowed null: all are. u < 0: the likeliest. w: room for n. -1: there is none. */
ATTN_FUNC_ int64_t attn_choose_node_(const attn_table_ *f, const float *logits,
                                     const uint8_t *allowed, int64_t n, double u, float *w,
                                     float *log_p) {
  int64_t first = -1, last = -1, best = -1;
  double sum = 0.0, so_far = 0.0;
  for (int64_t t = 0; t < n; t++) {
    if (allowed && !allowed[t]) continue;
    if (first < 0) first = t;
    last = t;
    if (best < 0 ? logits[t] == logits[t] : logits[t] > logits[best]) best = t;
  }
  if (first < 0) return -1;
  if (best < 0) best = first;
  for (int64_t t = 0; t < n; t++)
    w[t] = allowed && !allowed[t] ? -INFINITY : logits[t] - logits[best];
  f->exp(w, w, n);
  for (int64_t t = 0; t < n; t++) sum += (double)w[t];
  int64_t pick = u < 0.0 ? best : last;
  if (u >= 0.0)
    for (int64_t t = 0; t < last; t++) {
      so_far += (double)w[t];
      if (!(so_far > u * sum) || (allowed && !allowed[t])) continue;
      pick = t;
      break;
    }
  const float away = logits[pick] - logits[best];
  *log_p = sum > 0.0 && away <= 0.0f ? (float)((double)away - attn_ln_(sum))
                                     : attn_from_bits_(0x7fc00000u);
  return pick;
}

/* The number that choice m of a head is made by; -1: none. */
ATTN_FUNC_ double attn_choose_number_(const attn_sac_params *p, int64_t head, int64_t m) {
  uint64_t s = attn_stream_(p->seed, ATTN_DRAW_EDGES_, head, m);
  return p->sampled ? attn_stream_uniform_(&s) : -1.0;
}

ATTN_FUNC_ void attn_draw_item_(void *job, int worker, int64_t index) {
  const attn_sac_job_ *a = (const attn_sac_job_ *)job;
  const attn_tensor *y = &a->y;
  const int64_t unit = index / y->len, i = index % y->len, h = unit % y->heads;
  float *w = (float *)(void *)(a->memory + worker * a->each), log_p;
  ((int32_t *)a->choice.data)[index] = (int32_t)attn_choose_node_(
      a->table, (const float *)(const void *)attn_at_(y, unit / y->heads, h, i),
      a->permitted ? a->permitted + index * y->dim : NULL, y->dim,
      a->u ? a->u[index] : attn_choose_number_(&a->p, h, i), w, &log_p);
  if (a->log_p.data) ((float *)a->log_p.data)[index] = log_p;
}

/* ---- steps ----------------------------------------------------------------------------------*/

/* The numbers 0, 1, .. by which all rows of a matrix are named. */
ATTN_COLD_ void attn_sac_iota_(attn_stage_ *s, attn_sac_job_ *a) {
  int64_t longest = a->nodes;
  if (longest < a->de) longest = a->de;
  if (longest < 4 * a->dh) longest = 4 * a->dh;
  if (longest < 2 * a->reach + 1) longest = 2 * a->reach + 1;
  int32_t *iota = (int32_t *)attn_stage_take_(s, longest, 4);
  if (s->run)
    for (int64_t i = 0; i < longest; i++) iota[i] = (int32_t)i;
  a->iota = iota, a->table = s->table;
}

ATTN_COLD_ int attn_lstm_steps_(attn_stage_ *s, void *job) {
  attn_sac_job_ *a = (attn_sac_job_ *)job;
  attn_sac_iota_(s, a);
  a->each = attn_sac_cut_(NULL, NULL, a);
  return attn_stage_for_(s, attn_mul_(attn_mul_(a->x.batch, a->x.heads), a->x.len), attn_lstm_item_,
                         a, a->each, &a->memory);
}

ATTN_COLD_ int attn_pointer_steps_(attn_stage_ *s, void *job) {
  attn_sac_job_ *a = (attn_sac_job_ *)job;
  attn_sac_iota_(s, a);
  a->each = attn_sac_cut_(NULL, NULL, a);
  return attn_stage_for_(s, attn_mul_(attn_mul_(a->y.batch, a->y.heads), a->y.len),
                         attn_pointer_item_, a, a->each, &a->memory);
}

ATTN_COLD_ int attn_draw_steps_(attn_stage_ *s, void *job) {
  attn_sac_job_ *a = (attn_sac_job_ *)job;
  a->table = s->table;
  a->each = attn_piece_(a->y.dim, 4);
  return attn_stage_for_(s, attn_mul_(attn_mul_(a->y.batch, a->y.heads), a->y.len), attn_draw_item_,
                         a, a->each, &a->memory);
}

/* ---- checks ---------------------------------------------------------------------------------*/

/* What a call has besides tensors: spans of plain arrays. */
typedef struct attn_sac_more_ {
  attn_span_ span[4];
  int n;
} attn_sac_more_;

ATTN_FUNC_ int attn_sac_array_(attn_error_ *e, attn_sac_more_ *m, const void *data, int64_t n,
                               int64_t size, const char *align) {
  return attn_check_array_(e, data, n, size, align, &m->span[m->n++]);
}

ATTN_FUNC_ int attn_sac_small_(attn_error_ *e, int64_t n, const char *rule) {
  return n <= INT32_MAX / 4 || attn_reject_(e, ATTN_E_OVERFLOW, rule);
}

/* Weights of the LSTM for inputs of dx numbers; dh is known from w_hh. */
ATTN_COLD_ int attn_lstm_check_(attn_error_ *e, attn_sac_job_ *j, attn_arguments_ *l, int64_t dx) {
  attn_lstm_params *p = &j->p.lstm;
  const int64_t one = ATTN_ONE_OR_ALL_, rows = attn_mul_(4, j->dh);
  return attn_sac_small_(e, j->dh, "the hidden state is too wide") &&
         attn_check_argument_(e, l, &p->w_ih, ATTN_WORDS_("params.w_ih"), 0, 1, one, rows, dx,
                              "params.w_ih must be [1, 1 or heads, 4 dh, dx]") &&
         attn_check_argument_(e, l, &p->w_hh, ATTN_WORDS_("params.w_hh"), 0, 1, one, rows, j->dh,
                              "params.w_hh must be [1, 1 or heads, 4 dh, dh]") &&
         attn_check_argument_(e, l, &p->bias, ATTN_WORDS_("params.b"), ATTN_OPTIONAL_, 1, one, 1,
                              rows, "params.b must be [1, 1 or heads, 1, 4 dh]");
}

/* e, w_p and dist; sets nodes, de and reach. */
ATTN_COLD_ int attn_pointer_check_(attn_error_ *e, attn_sac_job_ *j, attn_arguments_ *l) {
  const int64_t one = ATTN_ONE_OR_ALL_;
  attn_sac_params *p = &j->p;
  if (!attn_check_argument_(e, l, &j->e, ATTN_WORDS_("e"), 0, one, one, ATTN_ANY_, ATTN_ANY_,
                            "e must be [1 or batch, 1 or heads, nodes, .]"))
    return 0;
  j->nodes = j->e.len, j->de = j->e.dim;
  if (!attn_sac_small_(e, j->nodes, "there must be fewer than 2^29 nodes") ||
      !attn_sac_small_(e, j->de, "e.dim is too large") ||
      !attn_check_argument_(e, l, &p->w_p, ATTN_WORDS_("params.w_p"), 0, 1, one, j->de, j->dh,
                            "params.w_p must be [1, 1 or heads, e.dim, dh]") ||
      !attn_check_argument_(e, l, &p->dist, ATTN_WORDS_("params.dist"), ATTN_OPTIONAL_, 1, one,
                            ATTN_ANY_, j->de,
                            "params.dist must be [1, 1 or heads, 2 D + 1, e.dim]"))
    return 0;
  if (!p->dist.data) return 1;
  if (p->dist.len % 2 == 0)
    return attn_reject_(e, ATTN_E_SHAPE, "params.dist must have an odd number of rows");
  j->reach = p->dist.len / 2;
  return attn_sac_small_(e, p->dist.len, "params.dist has too many rows");
}

ATTN_COLD_ int attn_lstm_step_check_(attn_error_ *e, attn_sac_job_ *j, attn_arguments_ *l,
                                     attn_sac_more_ *m, int data) {
  static const char wh[] = ATTN_WORDS_("h_next");
  const attn_tensor *x = &j->x;
  (void)m, (void)data;
  if (!attn_check_argument_(e, l, &j->x, ATTN_WORDS_("x"), 0, ATTN_ANY_, ATTN_ANY_, ATTN_ANY_,
                            ATTN_ANY_, "x"))
    return 0;
  l->batch = x->batch, l->heads = x->heads, j->dh = j->h_next.dim;
  if (!attn_check_set_(e, &j->h_next, wh)) return 0;
  if (!attn_check_argument_(e, l, &j->h, ATTN_WORDS_("h"), ATTN_OPTIONAL_, x->batch, x->heads,
                            x->len, j->dh, "h must be [x.batch, x.heads, x.len, h_next.dim]") ||
      !attn_check_argument_(e, l, &j->c, ATTN_WORDS_("c"), ATTN_OPTIONAL_, x->batch, x->heads,
                            x->len, j->dh, "c must be [x.batch, x.heads, x.len, h_next.dim]") ||
      !attn_check_argument_(e, l, &j->h_next, ATTN_WORDS_("h_next"), ATTN_OUT_, x->batch, x->heads,
                            x->len, ATTN_ANY_, "h_next must be [x.batch, x.heads, x.len, dh]") ||
      !attn_check_argument_(e, l, &j->c_next, ATTN_WORDS_("c_next"), ATTN_OUT_, x->batch, x->heads,
                            x->len, j->dh, "c_next must be [x.batch, x.heads, x.len, h_next.dim]"))
    return 0;
  if (j->h.data && attn_same_view_(&j->h, &j->h_next)) l->op[1].span.hi = l->op[1].span.lo;
  if (j->c.data && attn_same_view_(&j->c, &j->c_next)) l->op[2].span.hi = l->op[2].span.lo;
  j->nothing = x->batch == 0 || x->heads == 0 || x->len == 0;
  return j->nothing || attn_lstm_check_(e, j, l, x->dim);
}

ATTN_COLD_ int attn_pointer_logits_check_(attn_error_ *e, attn_sac_job_ *j, attn_arguments_ *l,
                                          attn_sac_more_ *m, int data) {
  const int64_t any = ATTN_ANY_;
  if (!attn_check_argument_(e, l, &j->h, ATTN_WORDS_("h"), 0, any, any, any, any, "h")) return 0;
  l->batch = j->h.batch, l->heads = j->heads = j->h.heads, j->dh = j->h.dim;
  j->nothing = l->batch == 0 || l->heads == 0 || j->h.len == 0;
  static const char we[] = ATTN_WORDS_("e");
  if (!attn_sac_small_(e, j->dh, "h.dim is too large") ||
      (!j->nothing && !attn_check_set_(e, &j->e, we)))
    return 0;
  if (!attn_check_argument_(e, l, &j->y, ATTN_WORDS_("y"), ATTN_OUT_, l->batch, l->heads, j->h.len,
                            j->nothing ? any : j->e.len,
                            "y must be [h.batch, h.heads, h.len, e.len]"))
    return 0;
  if (j->nothing) return 1;
  const int64_t rows = attn_mul_(attn_mul_(l->batch, l->heads), j->h.len);
  if (!attn_pointer_check_(e, j, l) ||
      !attn_sac_array_(e, m, j->source, rows, 4, "source must be aligned to its elements"))
    return 0;
  if (data && j->source)
    for (int64_t i = 0; i < rows; i++)
      if (j->source[i] < 0 || j->source[i] >= j->nodes)
        return attn_reject_(e, ATTN_E_INDEX, "source must lie in 0..e.len-1");
  return 1;
}

ATTN_COLD_ int attn_draw_check_(attn_error_ *e, attn_sac_job_ *j, attn_arguments_ *l,
                                attn_sac_more_ *m, int data) {
  const int64_t any = ATTN_ANY_;
  const attn_tensor *y = &j->y;
  if (!attn_check_argument_(e, l, &j->y, ATTN_WORDS_("logits"), ATTN_IS_F32_, any, any, any, any,
                            "logits must be f32") ||
      !attn_sac_small_(e, y->dim, "there must be fewer than 2^29 nodes"))
    return 0;
  j->choice = attn_bhtd(j->choice.data, ATTN_F32, y->batch, y->heads, y->len, 1);
  j->log_p = attn_bhtd(j->log_p.data, ATTN_F32, y->batch, y->heads, y->len, 1);
  const int64_t rows = attn_mul_(attn_mul_(y->batch, y->heads), y->len);
  j->nothing = rows == 0;
  if (!attn_check_argument_(e, l, &j->choice, ATTN_WORDS_("choice"), ATTN_OUT_, any, any, any, any,
                            "") ||
      !attn_check_argument_(e, l, &j->log_p, ATTN_WORDS_("log_p"), ATTN_OUT_ | ATTN_OPTIONAL_, any,
                            any, any, any, "") ||
      !attn_sac_array_(e, m, j->permitted, attn_mul_(rows, y->dim), 1, "") ||
      !attn_sac_array_(e, m, j->u, rows, 8, "u must be aligned to its elements"))
    return 0;
  if (data)
    for (int64_t i = 0; i < rows; i++) {
      int64_t t = 0;
      if (j->u && !(j->u[i] > 0.0 && j->u[i] < 1.0))
        return attn_reject_(e, ATTN_E_VALUE, "u must lie between 0 and 1");
      while (j->permitted && t < y->dim && !j->permitted[i * y->dim + t]) t++;
      if (t == y->dim)
        return attn_reject_(e, ATTN_E_VALUE, "permitted must allow a node in each row");
    }
  return 1;
}

/* ---- the calls ------------------------------------------------------------------------------*/

typedef int (*attn_sac_check_fn_)(attn_error_ *e, attn_sac_job_ *j, attn_arguments_ *l,
                                  attn_sac_more_ *m, int data);

/* A call of the family, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_sac_run_(attn_sac_job_ *j, const attn_sac_params *params, int needed,
                                     attn_sac_check_fn_ check, attn_steps_fn_ steps,
                                     const char *path, attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_arguments_ list;
  attn_sac_more_ more;
  int workers;
  memset(&list, 0, sizeof list);
  memset(&more, 0, sizeof more);
  if (!attn_check_ctx_(&e, ctx, &table, &workers)) return attn_end_(bytes ? NULL : ctx, &e);
  if (params)
    j->p = *params;
  else if (needed)
    attn_reject_(&e, ATTN_E_NULL, "params must not be null: it has the weights");
  /* what arrays hold is judged last */
  if (e.status == ATTN_OK && check(&e, j, &list, &more, 0) &&
      attn_check_apart_(&e, ctx, list.op, list.n, more.span, more.n) &&
      (bytes || (list.n = 0, more.n = 0, check(&e, j, &list, &more, 1)))) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (!j->nothing)
      attn_stage_call_(&s, ctx, steps, j, path, bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no rows");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ size_t attn_sac_bytes_(attn_sac_job_ *j, const attn_sac_params *params, int needed,
                                  attn_sac_check_fn_ check, attn_steps_fn_ steps,
                                  const attn_ctx *ctx) {
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  const attn_status status = attn_sac_run_(j, params, needed, check, steps, "", &plain, &bytes);
  return attn_answer_(status, (int64_t)bytes);
}

/* An array of the caller, whose extents are not known yet. */
ATTN_COLD_ attn_tensor attn_sac_view_(const void *data) {
  return attn_bhtd(data, ATTN_F32, 0, 0, 0, 1);
}

/* The parameters of a step, among all; the job's are those. */
ATTN_COLD_ attn_sac_params attn_lstm_params_(attn_sac_job_ *j, attn_tensor h_next,
                                             attn_tensor c_next, attn_tensor x, attn_tensor h,
                                             attn_tensor c, const attn_lstm_params *params) {
  attn_sac_params p;
  memset(&p, 0, sizeof p);
  memset(j, 0, sizeof *j);
  j->h_next = h_next, j->c_next = c_next, j->x = x, j->h = h, j->c = c;
  if (params) p.lstm = *params;
  return p;
}

ATTN_COLD_ attn_status attn_lstm_step_call_(attn_tensor h_next, attn_tensor c_next, attn_tensor x,
                                            attn_tensor h, attn_tensor c,
                                            const attn_lstm_params *params, attn_ctx *ctx,
                                            size_t *bytes) {
  attn_sac_job_ j;
  const attn_sac_params p = attn_lstm_params_(&j, h_next, c_next, x, h, c, params);
  return attn_sac_run_(&j, params ? &p : NULL, 1, attn_lstm_step_check_, attn_lstm_steps_,
                       "rows by rows of weights", ctx, bytes);
}
ATTN_CALL_(attn_lstm_step, (h_next, c_next, x, h, c, params), attn_tensor h_next,
           attn_tensor c_next, attn_tensor x, attn_tensor h, attn_tensor c,
           const attn_lstm_params *params)

ATTN_COLD_ attn_status attn_pointer_logits_call_(attn_tensor y, attn_tensor h, attn_tensor e,
                                                 const int32_t *source,
                                                 const attn_sac_params *params, attn_ctx *ctx,
                                                 size_t *bytes) {
  attn_sac_job_ j;
  memset(&j, 0, sizeof j);
  j.y = y, j.h = h, j.e = e, j.source = source;
  return attn_sac_run_(&j, params, 1, attn_pointer_logits_check_, attn_pointer_steps_,
                       "rows by nodes", ctx, bytes);
}
ATTN_CALL_(attn_pointer_logits, (y, h, e, source, params), attn_tensor y, attn_tensor h,
           attn_tensor e, const int32_t *source, const attn_sac_params *params)

ATTN_COLD_ attn_sac_job_ attn_choose_job_(const int32_t *choice, const float *log_p,
                                          attn_tensor logits, const uint8_t *permitted,
                                          const double *u) {
  attn_sac_job_ j;
  memset(&j, 0, sizeof j);
  j.choice = attn_sac_view_(choice), j.log_p = attn_sac_view_(log_p);
  j.y = logits, j.permitted = permitted, j.u = u;
  return j;
}
ATTN_PUB_COLD_ attn_status attn_choose(int32_t *choice, float *log_p, attn_tensor logits,
                                       const uint8_t *permitted, const double *u,
                                       const attn_sac_params *params, attn_ctx *ctx) {
  attn_sac_job_ j = attn_choose_job_(choice, log_p, logits, permitted, u);
  return attn_sac_run_(&j, params, 0, attn_draw_check_, attn_draw_steps_, "softmax of a row", ctx,
                       NULL);
}
ATTN_PUB_COLD_ size_t attn_choose_workspace(int32_t *choice, float *log_p, attn_tensor logits,
                                            const uint8_t *permitted, const double *u,
                                            const attn_sac_params *params, const attn_ctx *ctx) {
  attn_sac_job_ j = attn_choose_job_(choice, log_p, logits, permitted, u);
  return attn_sac_bytes_(&j, params, 0, attn_draw_check_, attn_draw_steps_, ctx);
}
