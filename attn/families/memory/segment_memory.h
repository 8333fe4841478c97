/* families/memory/segment_memory.h owns memories of hidden states as rings, and the usage of keys. The
 * layer that reads them is in segment_layer.h. */

/* ---- views and checks -----------------------------------------------------------------------*/

/* Rows i .. i+n-1 of a ring, counted from where the oldest lies, as one or two parts. */
ATTN_COLD_ void attn_memory_take_(attn_parts_ *x, const attn_memory *m, int64_t i, int64_t n) {
  if (n < 1) return;
  const int64_t room = m->rows.len, at = (m->first + i) % room;
  const int64_t head = n < room - at ? n : room - at;
  attn_parts_add_(x, attn_stage_rows_(m->rows, at, head));
  attn_parts_add_(x, attn_stage_rows_(m->rows, 0, n - head));
}

/* An empty list, and one with all rows of a memory. */
ATTN_COLD_ attn_parts_ attn_parts_none_(void) {
  attn_parts_ x;
  memset(&x, 0, sizeof x);
  return x;
}

typedef struct attn_memory_words_ {
  const char *rows;
  const char *shape, *room, *len, *first;
} attn_memory_words_;
#define ATTN_MEMORY_WORDS_(name)                                                                  \
  {                                                                                               \
    ATTN_WORDS_(name ".rows"), name ".rows must be [h.batch, 1, room, h.dim]",                    \
        name ".rows.data must not be null when it has room", name ".len must lie in 0..rows.len", \
        name ".first must lie in 0..rows.len - 1"                                                 \
  }

/* A memory for inputs [batch,1,.,dim]; all zero is none. out: it will be written. */
ATTN_COLD_ int attn_check_memory_(attn_error_ *e, attn_memory *m, const attn_memory_words_ *w,
                                  int64_t batch, int64_t dim, int out, attn_operand_ *op) {
  memset(op, 0, sizeof *op);
  op->t = &m->rows, op->w = w->rows, op->rule = w->shape;
  op->role = out ? ATTN_OUT_ : 0;
  op->batch = batch, op->heads = 1, op->len = ATTN_ANY_, op->dim = dim;
  if (!m->rows.data) {
    if (m->rows.len < 0)
      return attn_reject_(e, ATTN_E_SHAPE, attn_says_(w->rows, ATTN_SAYS_EXTENT_));
    if (m->rows.len > 0) return attn_reject_(e, ATTN_E_NULL, w->room);
    m->rows.batch = batch, m->rows.heads = 1, m->rows.dim = dim;
  }
  if (!attn_check_operand_(e, op, 1)) return 0;
  if (m->len < 0 || m->len > m->rows.len) return attn_reject_(e, ATTN_E_RANGE, w->len);
  if (m->first < 0 || (m->first > 0 && m->first >= m->rows.len))
    return attn_reject_(e, ATTN_E_RANGE, w->first);
  return 1;
}

ATTN_PUB_ int attn_memory_parts(attn_tensor parts[2], const attn_memory *memory) {
  static const char w[] = ATTN_WORDS_("memory.rows");
  attn_parts_ x = attn_parts_none_();
  attn_error_ e = {ATTN_OK, NULL};
  attn_span_ span;
  if (!parts || !memory || memory->len < 0 || memory->len > memory->rows.len || memory->first < 0 ||
      (memory->first > 0 && memory->first >= memory->rows.len))
    return 0;
  attn_tensor rows = memory->rows;
  if (rows.data && !attn_check_tensor_(&e, &rows, w, &span)) return 0;
  attn_memory_take_(&x, memory, 0, memory->len);
  for (int n = 0; n < 2; n++) {
    parts[n] = n < x.count ? x.part[n] : memory->rows;
    if (n >= x.count) parts[n].len = 0;
  }
  return 1;
}

/* ---- moving rows ----------------------------------------------------------------------------*/

/* y = n rows of x from i on. In place is legal: rows go from first to last, and none moves up. */
ATTN_COLD_ void attn_rows_copy_(const attn_table_ *f, const attn_parts_ *y, const attn_parts_ *x,
                                int64_t batch, int64_t i, int64_t n) {
  for (int64_t b = 0; b < batch; b++)
    for (int64_t r = 0; r < n; r++) {
      int64_t to = r, from = i + r;
      const attn_tensor *ty = attn_parts_find_(y, &to), *tx = attn_parts_find_(x, &from);
      void *dst = attn_at_(ty, b, 0, to);
      const void *src = attn_at_(tx, b, 0, from);
      if (dst == src) continue;
      if (ty->dtype == tx->dtype)
        memmove(dst, src, (size_t)(ty->dim * attn_size_(ty->dtype)));
      else
        f->blend(dst, src, NULL, ty->dtype, tx->dtype, tx->dtype, ty->dim, 1.0f, 0.0f);
    }
}

/* Appends the last rows of h, from row i on, to a checked ring. */
ATTN_COLD_ void attn_ring_append_(const attn_table_ *f, attn_memory *m, const attn_tensor *h,
                                  int64_t i) {
  const int64_t room = m->rows.len;
  if (h->len - i > room) i = h->len - room;
  const int64_t n = h->len - i;
  if (n < 1) return;
  attn_parts_ y = attn_parts_none_(), x = y;
  attn_memory_take_(&y, m, m->len, n);
  attn_parts_add_(&x, *h);
  attn_rows_copy_(f, &y, &x, h->batch, i, n);
  const int64_t over = n > room - m->len ? n - (room - m->len) : 0;
  m->first = (m->first + over) % room;
  m->len += n - over;
}

static const attn_memory_words_ attn_memory_is_ = ATTN_MEMORY_WORDS_("memory");
static const char attn_h_is_[] = ATTN_WORDS_("h");

ATTN_COLD_ attn_status attn_memory_append_call_(attn_memory *memory, const attn_memory *from,
                                                attn_tensor h, attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  attn_operand_ op[2] = {ATTN_OPERAND_AS_(&h, attn_h_is_, 0, ATTN_ANY_, 1, ATTN_ANY_, ATTN_ANY_,
                                          "h must have one head")};
  if (!attn_check_ctx_(&e, ctx, &table, &workers)) return attn_end_(bytes ? NULL : ctx, &e);
  if (!from) {
    attn_reject_(&e, ATTN_E_NULL, "memory must not be null");
    return attn_end_(bytes ? NULL : ctx, &e);
  }
  attn_memory m = *from;
  if (attn_check_operand_(&e, &op[0], 1) &&
      attn_check_memory_(&e, &m, &attn_memory_is_, h.batch, h.dim, 1, &op[1]) &&
      attn_check_apart_(&e, ctx, op, 2, NULL, 0) && !bytes) {
    attn_ring_append_(table, &m, &h, 0);
    memory->len = m.len, memory->first = m.first;
    attn_report_(ctx, table, 1, "rows into a ring", "the only path");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_PUB_COLD_ attn_status attn_memory_append(attn_memory *memory, attn_tensor h, attn_ctx *ctx) {
  return attn_memory_append_call_(memory, memory, h, ctx, NULL);
}
ATTN_PUB_COLD_ size_t attn_memory_append_workspace(const attn_memory *memory, attn_tensor h,
                                                   const attn_ctx *ctx) {
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  const attn_status status = attn_memory_append_call_(NULL, memory, h, &plain, &bytes);
  return attn_answer_(status, (int64_t)bytes);
}

ATTN_COLD_ attn_status attn_memory_update_call_(attn_tensor y, attn_memory memory, attn_tensor h,
                                                attn_ctx *ctx, size_t *bytes) {
  static const char wy[] = ATTN_WORDS_("y");
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  attn_memory m = memory;
  attn_operand_ op[3] = {ATTN_OPERAND_AS_(&h, attn_h_is_, 0, ATTN_ANY_, 1, ATTN_ANY_, ATTN_ANY_,
                                          "h must have one head"),
                         {NULL, NULL, 0, 0, 0, 0, 0, NULL, {0, 0, 0, 0}},
                         ATTN_OPERAND_AS_(&y, wy, ATTN_OUT_, h.batch, 1, ATTN_ANY_, h.dim,
                                          "y must be [h.batch, 1, ., h.dim]")};
  if (!attn_check_ctx_(&e, ctx, &table, &workers) || !attn_check_operand_(&e, &op[0], 1) ||
      !attn_check_memory_(&e, &m, &attn_memory_is_, h.batch, h.dim, 0, &op[1]) ||
      !attn_check_operand_(&e, &op[2], 1))
    return attn_end_(bytes ? NULL : ctx, &e);
  attn_parts_ x = attn_parts_none_(), to = x;
  attn_memory_take_(&x, &m, 0, m.len);
  attn_parts_add_(&x, h);
  const int64_t rows = attn_add_(m.len, h.len);
  attn_tensor same = y; /* with the strides that the checks may have set to 0 */
  if (x.count > 0 && m.len > 0) {
    const attn_tensor *p = &x.part[0];
    if (y.batch <= 1) same.stride_batch = p->stride_batch;
    same.stride_head = p->stride_head;
    if (y.len <= 1 || p->len <= 1) same.stride_len = p->stride_len;
    if (x.part[0].len == m.len && attn_same_view_(&same, p)) op[1].span.lo = op[1].span.hi;
  }
  if (rows == INT64_MAX)
    attn_reject_(&e, ATTN_E_OVERFLOW, "memory.len + h.len is too large");
  else if (y.len > rows)
    attn_reject_(&e, ATTN_E_SHAPE, "y.len must not pass memory.len + h.len");
  else if (attn_check_apart_(&e, ctx, op, 3, NULL, 0) && !bytes) {
    attn_parts_add_(&to, y);
    attn_rows_copy_(table, &to, &x, h.batch, rows - y.len, y.len);
    attn_report_(ctx, table, 1, "rows of two lists", "the only path");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}
ATTN_CALL_(attn_memory_update, (y, memory, h), attn_tensor y, attn_memory memory, attn_tensor h)

/* ---- usage ----------------------------------------------------------------------------------*/

/* data = 1: the call; 0, -1: a query, as in attn_sdpa_plan_. */
ATTN_COLD_ int attn_usage_plan_(attn_error_ *e, attn_columns_ *c, attn_tensor usage, attn_tensor q,
                                attn_tensor k, const attn_sdpa_params *params, const attn_ctx *ctx,
                                int *workers, int data) {
  enum { Q, K, LSE, USAGE, COUNT };
  const int64_t any = ATTN_ANY_;
  const attn_table_ *table;
  memset(c, 0, sizeof *c);
  if (!attn_check_ctx_(e, ctx, &table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has the lse");
  attn_sdpa_params p = *params;
  if (p.schedule || p.span.z || p.map.data || attn_unlike_(&p))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.schedule, .span, .map, .ragged, .q_offs and .align_lengths must be "
                        "absent");
  if (p.modify_weights)
    return attn_reject_(e, ATTN_E_RANGE, "params.modify_weights must be absent");
  c->usage = usage, c->lse = p.lse;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&q, "q", 0, any, any, any, any, "q"),
      ATTN_OPERAND_(&k, "k", 0, q.batch, ATTN_DIVIDES_, any, q.dim,
                    "k must be [q.batch, Hk, Tk, q.dim]"),
      ATTN_OPERAND_(&c->lse, "params.lse", ATTN_IS_F32_, q.batch, q.heads, q.len, 1,
                    "params.lse must be f32 [q.batch, q.heads, q.len, 1]"),
      ATTN_OPERAND_(&c->usage, "usage", ATTN_OUT_ | ATTN_IS_F32_, q.batch, 1, 1, any,
                    "usage must be f32 [q.batch, 1, 1, n]")};
  for (int i = 0; i < COUNT; i++) {
    if (i == K && q.heads < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
    if (!attn_check_operand_(e, &op[i], q.heads)) return 0;
  }
  if (usage.dim > k.len) return attn_reject_(e, ATTN_E_SHAPE, "usage.dim must not pass k.len");
  if (data >= 0 && !attn_check_apart_(e, ctx, op, COUNT, NULL, 0)) return 0;
  p.lse = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0), p.sinks = NULL, p.softmax_one = 0;
  p.one_order = 1;
  c->a.q = q, c->a.k = k, c->a.o = c->lse;
  c->a.v = k, c->a.v.dim = 1; /* nothing is summed: a column stands for the values */
  /* what params points at lies apart from the output and the workspace as well */
  attn_span_ outer[2] = {op[USAGE].span};
  if (!attn_check_workspace_(e, ctx, &outer[1])) return 0;
  c->a.outer = data >= 0 ? outer : NULL;
  attn_ctx plain = attn_before_workspace_(ctx);
  const int ok = attn_sdpa_plan_(e, &c->a, &p, &plain, workers, data);
  c->a.outer = NULL;
  return ok;
}

ATTN_COLD_ int64_t attn_usage_need_(attn_error_ *e, attn_tensor usage, attn_tensor q, attn_tensor k,
                                    const attn_sdpa_params *params, const attn_ctx *ctx, int data) {
  const attn_ctx plain = attn_before_workspace_(ctx);
  attn_columns_ c;
  int workers;
  if (!attn_usage_plan_(e, &c, usage, q, k, params, &plain, &workers, data)) return -1;
  if (q.batch == 0) return 0;
  if (ctx && ctx->workers > 1) workers = ctx->workers; /* parallel_for may be set later */
  return attn_columns_plan_(&c, &workers);
}

ATTN_PUB_COLD_ size_t attn_usage_workspace(attn_tensor usage, attn_tensor q, attn_tensor k,
                                           const attn_sdpa_params *params, const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const int64_t bytes = attn_usage_need_(&e, usage, q, k, params, ctx, 0);
  return attn_answer_(e.status, bytes);
}

ATTN_PUB_COLD_ attn_status attn_usage(attn_tensor usage, attn_tensor q, attn_tensor k,
                                      const attn_sdpa_params *params, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_columns_ c;
  int workers;
  if (attn_usage_plan_(&e, &c, usage, q, k, params, ctx, &workers, 1)) {
    if (q.batch == 0)
      attn_report_(ctx, c.a.table, 1, "no-op", "no batch");
    else
      attn_columns_run_(&e, &c, ctx, workers);
  }
  return attn_end_(ctx, &e);
}

ATTN_COLD_ int attn_stage_usage_(attn_stage_ *s, attn_tensor usage, attn_tensor q, attn_tensor k,
                                 const attn_sdpa_params *params) {
  if (!s->run) {
    const int64_t bytes = attn_usage_need_(s->e, usage, q, k, params, &s->ctx, -1);
    if (bytes >= 0) attn_stage_spare_(s, bytes);
    return bytes >= 0;
  }
  s->ctx.workspace = attn_stage_spare_(s, 0), s->ctx.workspace_size = (size_t)s->spare;
  return attn_stage_done_(s, attn_usage(usage, q, k, params, &s->ctx));
}
