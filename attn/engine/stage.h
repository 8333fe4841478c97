/* engine/stage.h owns calls that are made of other calls. Such a call is a function that names its
 * steps one after another and is walked twice: once to measure, when tensors between the steps are
 * stand-ins without memory, and once to run, in one block that holds all of them. So everything is
 * judged and allocated before the first write, by the same text that does the work. */

typedef struct attn_stage_ {
  attn_error_ *e;
  const attn_table_ *table;
  int workers;
  int run;       /* 0: measuring */
  attn_ctx ctx;  /* of the inner calls */
  char *block;   /* null while measuring, and when nothing is needed */
  int64_t used;  /* bytes of tensors between the steps, so far */
  int64_t most;  /* of `used`, where some were given back */
  int64_t tail;  /* where the workspace of single steps begins: the most of `used` */
  int64_t spare; /* bytes of the step that wants most */
  int64_t pairs;
  attn_compute compute; /* of the last step that had any but f32 */
  attn_feature feature;
} attn_stage_;

/* Names the steps; 0 = one was rejected. */
typedef int (*attn_steps_fn_)(attn_stage_ *s, void *job);

ATTN_COLD_ void *attn_stage_take_(attn_stage_ *s, int64_t n, int64_t size) {
  char *p = s->block ? s->block + s->used : (char *)(uintptr_t)ATTN_ALIGN_;
  s->used = attn_add_(s->used, attn_piece_(n, size));
  return p;
}

/* What was taken since `used` was so many may be taken again. */
ATTN_COLD_ void attn_stage_back_(attn_stage_ *s, int64_t used) {
  if (s->used > s->most) s->most = s->used;
  s->used = used;
}

/* A dense f32 tensor for what passes between two steps. */
ATTN_COLD_ attn_tensor attn_stage_tensor_(attn_stage_ *s, int64_t batch, int64_t heads, int64_t len,
                                          int64_t dim) {
  int64_t n = attn_mul_(attn_mul_(batch, heads), attn_mul_(len, dim));
  return attn_bhtd(attn_stage_take_(s, n, sizeof(float)), ATTN_F32, batch, heads, len, dim);
}

/* The output itself where partial results may live in it, else a tensor of its shape. */
ATTN_COLD_ attn_tensor attn_stage_part_(attn_stage_ *s, const attn_tensor *o) {
  if (o->data && o->dtype == ATTN_F32) return *o;
  return attn_stage_tensor_(s, o->batch, o->heads, o->len, o->dim);
}

/* Room for one step; it lasts until the next. */
ATTN_COLD_ char *attn_stage_spare_(attn_stage_ *s, int64_t bytes) {
  if (bytes > s->spare) s->spare = bytes;
  return s->block ? s->block + s->tail : (char *)(uintptr_t)ATTN_ALIGN_;
}

/* What the report of a step says of the call. */
ATTN_COLD_ void attn_stage_count_(attn_stage_ *s) {
  const attn_report *r = &s->ctx.report;
  s->pairs += r->pairs;
  if (r->compute != ATTN_COMPUTE_F32) s->compute = r->compute, s->feature = r->feature;
}

ATTN_COLD_ int attn_stage_done_(attn_stage_ *s, attn_status status) {
  attn_stage_count_(s);
  return status == ATTN_OK ? 1 : attn_reject_(s->e, status, s->ctx.reason);
}

/* Rows i0 .. i0 + len - 1, heads h0 .. h0 + heads - 1, one batch entry. */
ATTN_COLD_ attn_tensor attn_stage_shift_(attn_tensor t, int64_t elements) {
  if (t.data) t.data = (char *)t.data + attn_bytes_(t.dtype, elements);
  return t;
}
ATTN_COLD_ attn_tensor attn_stage_rows_(attn_tensor t, int64_t i0, int64_t len) {
  if (len > 0 && i0 > 0) t = attn_stage_shift_(t, i0 * t.stride_len);
  t.len = len;
  return t;
}
/* The same rows, the last one first. */
ATTN_COLD_ attn_tensor attn_stage_backwards_(attn_tensor t) {
  if (t.len > 1) t = attn_stage_shift_(t, (t.len - 1) * t.stride_len);
  t.stride_len = -t.stride_len;
  return t;
}
ATTN_COLD_ attn_tensor attn_stage_heads_(attn_tensor t, int64_t h0, int64_t heads) {
  if (h0 > 0) t = attn_stage_shift_(t, h0 * t.stride_head);
  t.heads = heads;
  return t;
}
ATTN_COLD_ attn_tensor attn_stage_entry_(attn_tensor t, int64_t b) {
  if (b > 0 && t.batch > 1) t = attn_stage_shift_(t, b * t.stride_batch);
  t.batch = 1;
  return t;
}

/* count items, each run with `each` bytes of its worker; *memory becomes that of worker 0. */
ATTN_COLD_ int attn_stage_for_(attn_stage_ *s, int64_t count, attn_item_fn_ item, void *job,
                               int64_t each, char **memory) {
  const int pieces = count > 0 ? attn_pieces_(s->workers, count) : 0;
  char *spare = attn_stage_spare_(s, attn_mul_(each, pieces));
  if (memory) *memory = spare;
  if (s->run && count > 0) attn_for_(&s->ctx, pieces, count, item, job);
  return 1;
}

/* The same after laying out n matrices, which last as long as the step. */
ATTN_COLD_ int attn_stage_products_(attn_stage_ *s, attn_matrix_ *m, int n, int64_t count,
                                    attn_item_fn_ item, void *job, int64_t each, char **memory) {
  int64_t bytes = 0;
  if (count == 0) return 1;
  const int pieces = attn_pieces_(s->workers, count);
  for (int i = 0; i < n; i++) bytes = attn_add_(bytes, attn_matrix_bytes_(&m[i]));
  char *spare = attn_stage_spare_(s, attn_add_(bytes, attn_mul_(each, pieces)));
  if (!s->run) return 1;
  for (int i = 0; i < n; i++) {
    attn_matrix_lay_(&m[i], s->table, spare, &s->ctx, s->workers);
    spare += attn_matrix_bytes_(&m[i]);
  }
  *memory = spare;
  attn_for_(&s->ctx, pieces, count, item, job);
  return 1;
}

/* A stage for the context of a call that passed attn_check_ctx_; query: for attn_<name>_workspace,
 * which may be asked before parallel_for is set. */
ATTN_COLD_ attn_stage_ attn_stage_open_(attn_error_ *e, const attn_table_ *table, int workers,
                                        const attn_ctx *ctx, int query) {
  attn_stage_ s;
  attn_clear_(&s, sizeof s);
  s.e = e, s.table = table, s.workers = workers;
  s.ctx = attn_before_workspace_(ctx);
  s.ctx.validate = 0; /* the outer call has judged its arguments */
  s.ctx.isa = table->isa;
  if (query && ctx && ctx->workers > 1) s.workers = ctx->workers;
  return s;
}

/* Bytes of the whole call; -1 = rejected, INT64_MAX = not addressable. */
ATTN_COLD_ int64_t attn_stage_measure_(attn_stage_ *s, attn_steps_fn_ steps, void *job) {
  s->run = 0, s->used = s->most = s->spare = 0;
  if (!steps(s, job)) return -1;
  attn_stage_back_(s, s->used);
  s->spare = attn_piece_(s->spare, 1);
  const int64_t bytes = attn_add_(s->most, s->spare);
  return bytes ? attn_workspace_bytes_(bytes, 1) : 0;
}

/* Measures, takes the memory and runs; with bytes only measures. */
ATTN_COLD_ void attn_stage_call_(attn_stage_ *s, attn_ctx *ctx, attn_steps_fn_ steps, void *job,
                                 const char *path, size_t *bytes) {
  attn_workspace_ w = {NULL, NULL};
  const int64_t need = attn_stage_measure_(s, steps, job);
  if (need < 0) return;
  if (bytes) {
    if (attn_workspace_fits_(s->e, need)) *bytes = (size_t)need;
    return;
  }
  if (need > 0 && !attn_workspace_get_(s->e, &w, ctx, need)) return;
  s->block = w.base, s->tail = s->most, s->used = 0, s->run = 1;
  if (steps(s, job)) {
    attn_report_(ctx, s->table, s->workers, path, "the only path");
    if (ctx)
      ctx->report.pairs = s->pairs, ctx->report.compute = s->compute,
      ctx->report.feature = s->feature;
  }
  attn_workspace_drop_(&w);
}

/* A call that is one step, judged already; with bytes its workspace query. */
ATTN_COLD_ attn_status attn_step_call_(attn_error_ *e, const attn_table_ *table, int workers,
                                       attn_ctx *ctx, attn_steps_fn_ steps, void *job,
                                       const char *path, size_t *bytes) {
  if (e->status == ATTN_OK) {
    attn_stage_ s = attn_stage_open_(e, table, workers, ctx, bytes != NULL);
    attn_stage_call_(&s, ctx, steps, job, path, bytes);
  }
  return attn_end_(bytes ? NULL : ctx, e);
}

/* The same of a call that may have nothing to do: nothing names what there is none of, or is null. */
ATTN_COLD_ attn_status attn_step_call_or_(attn_error_ *e, const attn_table_ *table, int workers,
                                          attn_ctx *ctx, attn_steps_fn_ steps, void *job,
                                          const char *path, const char *nothing, size_t *bytes) {
  if (!nothing || e->status != ATTN_OK)
    return attn_step_call_(e, table, workers, ctx, steps, job, path, bytes);
  if (!bytes) attn_report_(ctx, table, 1, "no-op", nothing);
  return attn_end_(bytes ? NULL : ctx, e);
}

/* A public call and its workspace query: both are name_call_(arguments, ctx, bytes), which with bytes only
 * measures. */
#define ATTN_OPEN_(...) __VA_ARGS__
#define ATTN_CALL_(name, arguments, ...)                                     \
  ATTN_PUB_COLD_ attn_status name(__VA_ARGS__, attn_ctx *ctx) {              \
    return name##_call_(ATTN_OPEN_ arguments, ctx, NULL);                    \
  }                                                                          \
  ATTN_PUB_COLD_ size_t name##_workspace(__VA_ARGS__, const attn_ctx *ctx) { \
    attn_ctx plain = attn_before_workspace_(ctx);                            \
    size_t bytes = 0;                                                        \
    attn_status status = name##_call_(ATTN_OPEN_ arguments, &plain, &bytes); \
    return attn_answer_(status, (int64_t)bytes);                             \
  }

/* ---- checks ---------------------------------------------------------------------------------*/

/* What an extent of an operand may be, beside a number. */
enum { ATTN_ANY_ = -1, ATTN_DIVIDES_ = -2, ATTN_ONE_OR_ALL_ = -3 };
/* A MATRIX is a weight that attn_turn_ has seen; of CODES: which may be of 8 or 4 bits (words: ATTN_WORDS_). */
enum { ATTN_OUT_ = 1, ATTN_OPTIONAL_ = 2, ATTN_IS_F32_ = 4, ATTN_MATRIX_ = 8, ATTN_CODES_ = 16 };

/* One tensor argument: DIVIDES and ONE_OR_ALL are said of .heads, against the query heads. */
typedef struct attn_operand_ {
  attn_tensor *t;
  const char *w;
  int role;
  int64_t batch, heads, len, dim;
  /* the sentence about its shape, and type if that is fixed; of a matrix a second one, where it is turned */
  const char *rule;
  attn_span_ span;
} attn_operand_;
/* As an element of a list: the argument by its name, or with sentences of its own. */
#define ATTN_OPERAND_(t, name, role, batch, heads, len, dim, rule) \
  ATTN_OPERAND_AS_(t, ATTN_WORDS_(name), role, batch, heads, len, dim, rule)
#define ATTN_OPERAND_AS_(t, words, role, batch, heads, len, dim, rule) \
  {                                                                    \
    t, words, role, batch, heads, len, dim, rule, { 0, 0, 0, 0 }       \
  }

/* The two sentences about the shape of a matrix. */
#define ATTN_IN_OUT_(name, in, out) ATTN_HEADS_IN_OUT_(name, "1", in, out)
#define ATTN_HEADS_IN_OUT_(name, heads, in, out)                                                \
  name " must be [1, " heads ", " in ", " out "]\0" name " must be [1, " heads ", " out ", " in \
       "] with w_transposed"

/* A matrix is judged as it lies in memory. */
ATTN_COLD_ int attn_check_matrix_(attn_error_ *e, attn_operand_ *p) {
  const int codes =
      (p->role & ATTN_CODES_) && attn_quantized_(p->t->dtype) && p->t->dtype <= ATTN_I4;
  const int turned = attn_turn_back_(p->t);
  const int fine = codes ? attn_check_stored_(e, p->t, p->w, &p->span)
                         : attn_check_tensor_(e, p->t, p->w, &p->span);
  if (!turned) return fine;
  attn_turn_(p->t, 1);
  p->rule = attn_says_(p->rule, 1);
  return !fine || p->t->dim > 0 ? fine : attn_reject_(e, ATTN_E_SHAPE, p->rule);
}

ATTN_OUTLINE_ int attn_check_operand_(attn_error_ *e, attn_operand_ *p, int64_t heads) {
  attn_tensor *t = p->t;
  p->span.lo = p->span.hi = 0;
  if ((p->role & ATTN_OPTIONAL_) && !t->data) return 1;
  if (p->role & ATTN_MATRIX_) {
    if (!attn_check_matrix_(e, p)) return 0;
  } else if (!attn_check_tensor_(e, t, p->w, &p->span)) {
    return 0;
  }
  if ((p->role & ATTN_IS_F32_) && t->dtype != ATTN_F32)
    return attn_reject_(e, ATTN_E_DTYPE, p->rule);
  if ((p->batch != ATTN_ANY_ && t->batch != p->batch) ||
      (p->len != ATTN_ANY_ && t->len != p->len) || (p->dim != ATTN_ANY_ && t->dim != p->dim))
    return attn_reject_(e, ATTN_E_SHAPE, p->rule);
  if (p->heads == ATTN_DIVIDES_      ? t->heads < 1 || heads % t->heads != 0
      : p->heads == ATTN_ONE_OR_ALL_ ? t->heads != 1 && t->heads != heads
                                     : p->heads != ATTN_ANY_ && t->heads != p->heads)
    return attn_reject_(e, p->heads == ATTN_DIVIDES_ ? ATTN_E_HEADS : ATTN_E_SHAPE, p->rule);
  return !(p->role & ATTN_OUT_) || attn_check_rows_(e, t, p->w);
}

/* Required arguments that were never set, before the shapes of others are held against theirs. */
ATTN_FUNC_ int attn_check_given_(attn_error_ *e, const attn_operand_ *p, int n) {
  for (int i = 0; i < n; i++)
    if (p[i].t && !(p[i].role & ATTN_OPTIONAL_) && !attn_check_set_(e, p[i].t, p[i].w)) return 0;
  return 1;
}

/* Whether a span shares memory with none of the operands but itself, nor with the spans `more`. */
ATTN_FUNC_ int attn_span_alone_(const attn_span_ *span, const attn_operand_ *p, int n,
                                const attn_span_ *more, int m) {
  if (span->lo >= span->hi) return 1;
  for (int k = 0; k < n; k++)
    if (&p[k].span != span && attn_overlap_(*span, p[k].span)) return 0;
  for (int k = 0; k < m; k++)
    if (attn_overlap_(*span, more[k])) return 0;
  return 1;
}

/* No output shares memory with another argument or the workspace, nor does that with an input.
 * more: spans of plain arrays and masks. */
ATTN_OUTLINE_ int attn_check_apart_(attn_error_ *e, const attn_ctx *ctx, const attn_operand_ *p,
                                    int n, const attn_span_ *more, int m) {
  attn_span_ work;
  if (!attn_check_workspace_(e, ctx, &work)) return 0;
  for (int i = 0; i < n; i++)
    if ((p[i].role & ATTN_OUT_) && !attn_span_alone_(&p[i].span, p, n, more, m))
      return attn_reject_(e, ATTN_E_OVERLAP, attn_says_(p[i].w, ATTN_SAYS_OVERLAP_));
  return attn_span_alone_(&work, p, n, more, m) ||
         attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with a tensor");
}

ATTN_FUNC_ int attn_check_scale_(attn_error_ *e, float scale) {
  return scale - scale == 0.0f ? 1 : attn_reject_(e, ATTN_E_VALUE, "params.scale must be finite");
}
