/* families/compression/sets.h owns the blocks of the Set Transformer. */

/* ---- checks ---------------------------------------------------------------------------------*/

enum { ATTN_MAB_OPERANDS_ = 8 + ATTN_FEED_OPERANDS_ };

/* What is said about a block. */
typedef struct attn_mab_said_ {
  attn_said_ rule[8];
  const char *heads, *divide, *form, *reference, *len, *align, *range;
} attn_mab_said_;

/* A block from rows of width dx, which reads rows of width dy, to rows of width dm. */
ATTN_COLD_ int attn_mab_check_(attn_error_ *e, attn_mab_params *p, const attn_table_ *table,
                               attn_place_ at, int64_t batch, int64_t dx, int64_t m, int64_t dy,
                               int64_t dm, attn_operand_ *op, attn_arrays_ *more) {
#define ATTN_MAB_(at, x, y, read)                                                             \
  {                                                                                           \
    {ATTN_SAID_IN_OUT_(at "w_q", x, "o.dim"),  ATTN_SAID_IN_OUT_(at "w_k", y, "o.dim"),       \
     ATTN_SAID_IN_OUT_(at "w_v", y, "o.dim"),  ATTN_SAID_IN_OUT_(at "w_o", "o.dim", "o.dim"), \
     ATTN_SAID_(at "b_q", "[1, 1, 1, o.dim]"), ATTN_SAID_(at "b_k", "[1, 1, 1, o.dim]"),      \
     ATTN_SAID_(at "b_v", "[1, 1, 1, o.dim]"), ATTN_SAID_(at "b_o", "[1, 1, 1, o.dim]")},     \
        at "heads must not be negative", at "heads must divide o.dim",                        \
        at "form must be an attn_set_form",                                                   \
        at "w_o, b_o and ff.w_2 must be absent with ATTN_SET_REFERENCE",                      \
        read ".len must be below 2^31", at "y_len must be aligned to its elements",           \
        at "y_len must lie in 0.." read ".len"                                                \
  }
  static const attn_mab_said_ said[] = {
      ATTN_MAB_("", "x.dim", "y.dim", "y"), ATTN_MAB_("params.induce.", "o.dim", "x.dim", "x"),
      ATTN_MAB_("params.restore.", "x.dim", "o.dim", "points"),
      ATTN_MAB_("params.block.", "o.dim", "the width of what it reads", "z")};
#undef ATTN_MAB_
  const attn_mab_said_ *say = &said[at];
  if (p->heads == 0) p->heads = 1;
  if (p->heads < 0) return attn_reject_(e, ATTN_E_SHAPE, say->heads);
  if (dm % p->heads) return attn_reject_(e, ATTN_E_HEADS, say->divide);
  if ((int)p->form < 0 || p->form >= ATTN_SET_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, say->form);
  const int paper = p->form == ATTN_SET_PAPER, o = paper ? 0 : (int)ATTN_OPTIONAL_;
  if (!paper && (p->w_o.data || p->b_o.data || p->ff.w_2.data))
    return attn_reject_(e, ATTN_E_RANGE, say->reference);
  if (paper && dx != dm)
    return attn_reject_(e, ATTN_E_SHAPE, "x.dim must equal o.dim with ATTN_SET_PAPER");
  attn_tensor *const w[] = {&p->w_q, &p->w_k, &p->w_v, &p->w_o};
  for (int i = 0; i < 4; i++) attn_turn_(w[i], p->w_transposed);
  op[0] = attn_weight_(&p->w_q, &say->rule[0], 0, dx, dm);
  op[1] = attn_weight_(&p->w_k, &say->rule[1], 0, dy, dm);
  op[2] = attn_weight_(&p->w_v, &say->rule[2], 0, dy, dm);
  op[3] = attn_weight_(&p->w_o, &say->rule[3], o, dm, dm);
  op[4] = attn_bias_(&p->b_q, &say->rule[4], ATTN_OPTIONAL_, dm);
  op[5] = attn_bias_(&p->b_k, &say->rule[5], ATTN_OPTIONAL_, dm);
  op[6] = attn_bias_(&p->b_v, &say->rule[6], ATTN_OPTIONAL_, dm);
  op[7] = attn_bias_(&p->b_o, &say->rule[7], ATTN_OPTIONAL_, dm);
  for (int i = 0; i < 8; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (m > INT32_MAX) return attn_reject_(e, ATTN_E_OVERFLOW, say->len);
  if (p->scale == 0.0f && !attn_to_bits_(p->scale)) p->scale = (float)(1.0 / sqrt((double)dm));
  return attn_check_feed_(e, &p->ff, table, at, 1, dm, dm, op + 8) &&
         attn_check_norm_(e, &p->norm_0, dm, more) && attn_check_norm_(e, &p->norm_1, dm, more) &&
         attn_check_scale_(e, p->scale) &&
         attn_check_cut_(e, p->y_len, batch, m, say->align, say->range, more);
}

/* ---- steps ----------------------------------------------------------------------------------*/

/* Keys and values of the rows norm(x), norm null = none, and what makes them. v is k where the same
 * weights make both. */
typedef struct attn_pair_ {
  attn_tensor w_k, b_k, w_v, b_v;
  const attn_norm *norm;
  int tied;
  attn_tensor k, v, normal;
} attn_pair_;

/* With room for so many rows of a batch. */
ATTN_COLD_ void attn_stage_pair_open_(attn_stage_ *s, attn_pair_ *w, int64_t batch, int64_t rows) {
  w->tied = attn_same_view_(&w->w_k, &w->w_v) && attn_same_view_(&w->b_k, &w->b_v);
  w->k = attn_stage_tensor_(s, batch, 1, rows, w->w_k.dim);
  w->v = w->tied ? w->k : attn_stage_tensor_(s, batch, 1, rows, w->w_v.dim);
  if (w->norm) w->normal = attn_stage_tensor_(s, batch, 1, attn_layer_rows_(rows), w->w_k.len);
}

/* Those of x; *k and *v become them, in heads. */
ATTN_COLD_ int attn_stage_pair_(attn_stage_ *s, const attn_pair_ *w, attn_tensor x, int64_t heads,
                                attn_tensor *k, attn_tensor *v) {
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  const int64_t n = x.len, most = attn_layer_rows_(n);
  for (int64_t i = 0, m; i < n; i += m) {
    m = n - i < most ? n - i : most;
    attn_tensor rows = attn_stage_rows_(x, i, m);
    if (w->norm) {
      const attn_tensor to = attn_stage_rows_(w->normal, 0, m);
      if (!attn_stage_norm_(s, to, rows, none, w->norm)) return 0;
      rows = to;
    }
    if (!attn_stage_dense_(s, attn_stage_rows_(w->k, i, m), rows, w->w_k, w->b_k, ATTN_ACT_NONE) ||
        (!w->tied &&
         !attn_stage_dense_(s, attn_stage_rows_(w->v, i, m), rows, w->w_v, w->b_v, ATTN_ACT_NONE)))
      return 0;
  }
  *k = attn_split_(attn_stage_rows_(w->k, 0, n), heads);
  *v = attn_split_(attn_stage_rows_(w->v, 0, n), heads);
  return 1;
}

/* a = attention of a few rows q, both in heads, over x: 1024 keys at a time, joined by their LSE, so
 * that keys are read from the second cache and memory does not grow with x. */
ATTN_COLD_ int attn_stage_pack_(attn_stage_ *s, attn_tensor a, attn_tensor q, attn_tensor x,
                                attn_pair_ *w, const attn_sdpa_params *core) {
  const int64_t b = a.batch, h = a.heads, n = x.len, most = attn_layer_rows_(n);
  attn_sdpa_params p = *core;
  attn_tensor part = a, lse = p.lse, k, v;
  int32_t *len = NULL;
  attn_stage_pair_open_(s, w, b, most);
  if (n > most) {
    part = attn_split_(attn_stage_tensor_(s, b, 1, a.len, h * a.dim), h);
    lse = attn_stage_tensor_(s, b, h, a.len, 1), p.lse = attn_stage_tensor_(s, b, h, a.len, 1);
    if (core->kv_len) p.kv_len = len = (int32_t *)attn_stage_take_(s, b, sizeof *len);
  }
  for (int64_t i = 0, m; i == 0 || i < n; i += most) {
    m = n - i < most ? n - i : most;
    for (int64_t e = 0; s->run && len && e < b; e++) {
      const int64_t left = core->kv_len[e] - i;
      len[e] = (int32_t)(left < 0 ? 0 : left < m ? left : m);
    }
    attn_sdpa_params own = p;
    if (i == 0) own.lse = lse;
    if (!attn_stage_pair_(s, w, attn_stage_rows_(x, i, m), h, &k, &v) ||
        !attn_stage_sdpa_(s, i ? part : a, q, k, v, &own) ||
        (i && !attn_stage_merge_(s, a, a, lse, part, p.lse)))
      return 0;
    if (n == 0) break;
  }
  return 1;
}

/* o = MAB(x, y); x has the batch of o or 1. Two tensors of rows take turns: q, then what w_o or the
 * feed-forward makes; and A. */
ATTN_COLD_ int attn_stage_block_(attn_stage_ *s, attn_tensor o, attn_tensor x, attn_tensor y,
                                 const attn_mab_params *p) {
  const int64_t b = o.batch, n = o.len, dm = o.dim, most = attn_layer_rows_(n);
  const int paper = p->form == ATTN_SET_PAPER, packs = n <= most;
  const attn_norm *norm_0 = p->no_norm ? NULL : &p->norm_0,
                  *norm_1 = p->no_norm ? NULL : &p->norm_1;
  const attn_tensor first = attn_stage_tensor_(s, b, 1, most, dm);
  const attn_tensor second = attn_stage_tensor_(s, b, 1, most, dm);
  const attn_tensor middle = attn_stage_middle_(s, &p->ff, b, most);
  attn_sdpa_params core;
  attn_pair_ w;
  attn_tensor k = first, v = first;
  memset(&core, 0, sizeof core);
  memset(&w, 0, sizeof w);
  core.scale = p->scale, core.kv_len = p->y_len;
  w.w_k = p->w_k, w.b_k = p->b_k, w.w_v = p->w_v, w.b_v = p->b_v;
  if (!packs) {
    attn_stage_pair_open_(s, &w, b, y.len);
    if (!attn_stage_pair_(s, &w, y, p->heads, &k, &v)) return 0;
  }
  for (int64_t i = 0, m; i < n; i += m) {
    m = n - i < most ? n - i : most;
    const attn_tensor in = attn_stage_rows_(x, i, m), out = attn_stage_rows_(o, i, m);
    const attn_tensor rows = attn_stage_rows_(first, 0, m), a = attn_stage_rows_(second, 0, m);
    const attn_tensor h = paper ? rows : a, t = paper ? a : rows, heads = attn_split_(a, p->heads);
    attn_tensor q = rows;
    q.batch = x.batch;
    if (!attn_stage_dense_(s, q, in, p->w_q, p->b_q, ATTN_ACT_NONE)) return 0;
    q = attn_spread_(q, b);
    if (packs ? !attn_stage_pack_(s, heads, attn_split_(q, p->heads), y, &w, &core)
              : !attn_stage_sdpa_(s, heads, attn_split_(q, p->heads), k, v, &core))
      return 0;
    if ((paper && !attn_stage_dense_(s, h, a, p->w_o, p->b_o, ATTN_ACT_NONE)) ||
        !attn_stage_norm_(s, h, h, paper ? in : q, norm_0) ||
        !attn_stage_feed_(s, t, h, middle, &p->ff) || !attn_stage_norm_(s, out, h, t, norm_1))
      return 0;
  }
  return 1;
}

/* ---- calls ----------------------------------------------------------------------------------*/

typedef enum attn_set_call_ { ATTN_SET_MAB_, ATTN_SET_ISAB_, ATTN_SET_PMA_ } attn_set_call_;

/* One job for the three calls: few are the inducing points or the seeds. */
typedef struct attn_set_job_ {
  attn_set_call_ call;
  attn_tensor o, x, y, few;
  attn_mab_params block, restore; /* restore: of ISAB */
  attn_feed_forward before;       /* of PMA */
} attn_set_job_;

ATTN_COLD_ int attn_set_check_(attn_error_ *e, attn_set_job_ *j, const attn_ctx *ctx,
                               const attn_table_ **table, int *workers) {
  static const char *const w[] = {ATTN_WORDS_("o"), ATTN_WORDS_("x"),      ATTN_WORDS_("y"),
                                  ATTN_WORDS_("z"), ATTN_WORDS_("points"), ATTN_WORDS_("seeds")};
  enum { O, X, Y, Z, POINTS, SEEDS, ROWS = 3 };
  const int isab = j->call == ATTN_SET_ISAB_, pma = j->call == ATTN_SET_PMA_;
  const int64_t any = ATTN_ANY_, b = j->o.batch, dm = j->o.dim;
  attn_operand_ op[ROWS + 2 * ATTN_MAB_OPERANDS_ + ATTN_FEED_OPERANDS_];
  attn_arrays_ more[2] = {{0, {{0, 0, 0, 0}}}, {0, {{0, 0, 0, 0}}}};
  int n = 0;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  attn_tensor *one = pma ? &j->few : &j->x, *two = isab ? &j->few : &j->y;
  attn_operand_ rows[ROWS] = {
      ATTN_OPERAND_AS_(&j->o, w[O], ATTN_OUT_, any, 1, any, any, "o must have one head"),
      {one,
       w[pma ? SEEDS : X],
       0,
       any,
       1,
       j->o.len,
       pma ? dm : any,
       pma ? "seeds must be [1 or o.batch, 1, o.len, o.dim]"
           : "x must be [o.batch or 1, 1, o.len, .]",
       {0, 0, 0, 0}},
      {two,
       w[isab  ? POINTS
         : pma ? Z
               : Y],
       0,
       isab ? any : b,
       1,
       any,
       isab ? dm : any,
       isab  ? "points must be [1 or o.batch, 1, m, o.dim]"
       : pma ? "z must be [o.batch, 1, n, .]"
             : "y must be [o.batch, 1, m, .]",
       {0, 0, 0, 0}}};
  for (; n < ROWS; n++) {
    op[n] = rows[n];
    if (!attn_check_operand_(e, &op[n], 1)) return 0;
  }
  /* X of ISAB is what the first block reads, so it has all entries */
  if (one->batch != b && (isab || one->batch != 1))
    return attn_reject_(e, ATTN_E_SHAPE, rows[1].rule);
  if (isab && two->batch != b && two->batch != 1)
    return attn_reject_(e, ATTN_E_SHAPE, rows[2].rule);
  if (isab && two->len < 1) return attn_reject_(e, ATTN_E_SHAPE, "points.len must be at least 1");
  if (j->o.len > INT32_MAX) return attn_reject_(e, ATTN_E_OVERFLOW, "o.len must be below 2^31");
  int64_t dy = j->y.dim;
  const attn_feed_forward *f = &j->before;
  if (pma && !f->w_1.data &&
      (f->w_2.data || f->b_1.data || f->b_2.data || f->activation != ATTN_ACT_DEFAULT))
    return attn_reject_(e, ATTN_E_NULL,
                        "params.before.w_1 must not be null where another part of before is there");
  if (pma && j->before.w_1.data) {
    const attn_tensor *last = j->before.w_2.data ? &j->before.w_2 : &j->before.w_1;
    const int64_t din = dy;
    dy = j->before.w_transposed ? last->len : last->dim;
    if (!attn_check_feed_(e, &j->before, *table, ATTN_PLACE_BEFORE_, 1, din, dy, op + n)) return 0;
    n += ATTN_FEED_OPERANDS_;
  }
  const attn_tensor *reads = isab ? &j->x : &j->y;
  if (!attn_mab_check_(e, &j->block, *table,
                       isab  ? ATTN_PLACE_INDUCE_
                       : pma ? ATTN_PLACE_BLOCK_
                             : ATTN_PLACE_,
                       b, isab || pma ? dm : j->x.dim, reads->len, isab ? j->x.dim : dy, dm, op + n,
                       &more[0]))
    return 0;
  n += ATTN_MAB_OPERANDS_;
  if (isab) {
    if (j->restore.y_len) return attn_reject_(e, ATTN_E_RANGE, "params.restore.y_len must be null");
    if (!attn_mab_check_(e, &j->restore, *table, ATTN_PLACE_RESTORE_, b, j->x.dim, j->few.len, dm,
                         dm, op + n, &more[1]))
      return 0;
    n += ATTN_MAB_OPERANDS_;
  }
  return attn_check_apart_(e, ctx, op, n, more[0].span, more[0].n) &&
         (!isab || attn_check_apart_(e, ctx, op, n, more[1].span, more[1].n));
}

ATTN_COLD_ int attn_set_steps_(attn_stage_ *s, void *job) {
  const attn_set_job_ *j = (const attn_set_job_ *)job;
  if (j->call == ATTN_SET_MAB_) return attn_stage_block_(s, j->o, j->x, j->y, &j->block);
  if (j->call == ATTN_SET_ISAB_) {
    const attn_tensor h = attn_stage_tensor_(s, j->o.batch, 1, j->few.len, j->o.dim);
    return attn_stage_block_(s, h, j->few, j->x, &j->block) &&
           attn_stage_block_(s, j->o, j->x, h, &j->restore);
  }
  attn_tensor z = j->y;
  if (j->before.w_1.data) {
    const int64_t n = z.len, most = attn_layer_rows_(n);
    z = attn_stage_tensor_(s, z.batch, 1, n,
                           j->before.w_2.data ? j->before.w_2.dim : j->before.w_1.dim);
    const attn_tensor middle = attn_stage_middle_(s, &j->before, z.batch, most);
    for (int64_t i = 0, m; i < n; i += m) {
      m = n - i < most ? n - i : most;
      if (!attn_stage_feed_(s, attn_stage_rows_(z, i, m), attn_stage_rows_(j->y, i, m), middle,
                            &j->before))
        return 0;
    }
  }
  return attn_stage_block_(s, j->o, j->few, z, &j->block);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_set_call_run_(attn_set_job_ *j, int params, attn_ctx *ctx,
                                          size_t *bytes) {
  static const char *const path[] = {"attention block of sets", "induced set attention",
                                     "pooling by attention"};
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (!params) {
    attn_reject_(&e, ATTN_E_NULL, "params must not be null: it has the weights");
  } else if (attn_set_check_(&e, j, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (j->o.batch == 0 || j->o.len == 0) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no rows");
    } else {
      attn_stage_call_(&s, ctx, attn_set_steps_, j, path[j->call], bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_set_job_ attn_set_open_(attn_set_call_ call, attn_tensor o) {
  attn_set_job_ j;
  memset(&j, 0, sizeof j);
  j.call = call, j.o = o;
  return j;
}

ATTN_COLD_ attn_status attn_mab_call_(attn_tensor o, attn_tensor x, attn_tensor y,
                                      const attn_mab_params *params, attn_ctx *ctx, size_t *bytes) {
  attn_set_job_ j = attn_set_open_(ATTN_SET_MAB_, o);
  j.x = x, j.y = y;
  if (params) j.block = *params;
  return attn_set_call_run_(&j, params != NULL, ctx, bytes);
}
ATTN_CALL_(attn_mab, (o, x, y, params), attn_tensor o, attn_tensor x, attn_tensor y,
           const attn_mab_params *params)

ATTN_COLD_ attn_status attn_isab_call_(attn_tensor o, attn_tensor x, attn_tensor points,
                                       const attn_isab_params *params, attn_ctx *ctx,
                                       size_t *bytes) {
  attn_set_job_ j = attn_set_open_(ATTN_SET_ISAB_, o);
  j.x = x, j.few = points;
  if (params) j.block = params->induce, j.restore = params->restore;
  return attn_set_call_run_(&j, params != NULL, ctx, bytes);
}
ATTN_CALL_(attn_isab, (o, x, points, params), attn_tensor o, attn_tensor x, attn_tensor points,
           const attn_isab_params *params)

ATTN_COLD_ attn_status attn_pma_call_(attn_tensor o, attn_tensor z, attn_tensor seeds,
                                      const attn_pma_params *params, attn_ctx *ctx, size_t *bytes) {
  attn_set_job_ j = attn_set_open_(ATTN_SET_PMA_, o);
  j.y = z, j.few = seeds;
  if (params) j.block = params->block, j.before = params->before;
  return attn_set_call_run_(&j, params != NULL, ctx, bytes);
}
ATTN_CALL_(attn_pma, (o, z, seeds, params), attn_tensor o, attn_tensor z, attn_tensor seeds,
           const attn_pma_params *params)
