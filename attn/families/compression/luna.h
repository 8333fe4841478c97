/* families/compression/luna.h owns Luna's pack and unpack and the layer around them: two exact softmaxes over
 * short lists. The causal core is in families/compression/luna_causal.h. */

typedef struct attn_luna_job_ {
  attn_tensor y_x, y_p, x, p, c; /* self: c is x */
  attn_luna_layer_params par;    /* of the bare call: its attention alone */
  int layer, self;
} attn_luna_job_;

ATTN_COLD_ int attn_luna_check_(attn_error_ *e, attn_luna_job_ *j, const attn_ctx *ctx,
                                const attn_table_ **table, int *workers) {
  static const attn_said_ part[] = {
      ATTN_SAID_IN_OUT_("w_pq", "x.dim", "x.dim"), ATTN_SAID_IN_OUT_("w_pk", "c.dim", "x.dim"),
      ATTN_SAID_IN_OUT_("w_pv", "c.dim", "x.dim"), ATTN_SAID_IN_OUT_("w_q", "x.dim", "x.dim"),
      ATTN_SAID_IN_OUT_("w_k", "x.dim", "x.dim"),  ATTN_SAID_IN_OUT_("w_v", "x.dim", "x.dim"),
      ATTN_SAID_IN_OUT_("w_o", "x.dim", "x.dim"),  ATTN_SAID_("b_pq", "[1, 1, 1, x.dim]"),
      ATTN_SAID_("b_pk", "[1, 1, 1, x.dim]"),      ATTN_SAID_("b_pv", "[1, 1, 1, x.dim]"),
      ATTN_SAID_("b_q", "[1, 1, 1, x.dim]"),       ATTN_SAID_("b_k", "[1, 1, 1, x.dim]"),
      ATTN_SAID_("b_v", "[1, 1, 1, x.dim]"),       ATTN_SAID_("b_o", "[1, 1, 1, x.dim]")};
  enum { X, P, C, YX, YP, W, PARTS = 7, COUNT = W + 2 * PARTS };
  attn_luna_params *a = &j->par.attention;
  const int64_t any = ATTN_ANY_, b = j->x.batch, n = j->x.len, dm = j->x.dim;
  j->self = !j->c.data && j->c.dim == 0;
  const int64_t dc = j->self ? dm : j->c.dim, m = j->self ? n : j->c.len;
  attn_tensor *const weight[] = {&a->w_pq, &a->w_pk, &a->w_pv, &a->w_q, &a->w_k, &a->w_v, &a->w_o};
  attn_tensor *const bias[] = {&a->b_pq, &a->b_pk, &a->b_pv, &a->b_q, &a->b_k, &a->b_v, &a->b_o};
  attn_operand_ op[(int)COUNT + (int)ATTN_FEED_OPERANDS_] = {
      ATTN_OPERAND_(&j->x, "x", 0, any, 1, any, any, "x must have one head"),
      ATTN_OPERAND_(&j->p, "p", 0, any, 1, any, dm, "p must be [1 or x.batch, 1, l, x.dim]"),
      ATTN_OPERAND_(&j->c, "c", j->self ? (int)ATTN_OPTIONAL_ : 0, b, 1, any, any,
                    "c must be [x.batch, 1, m, .]"),
      ATTN_OPERAND_(&j->y_x, "y_x or x_next", ATTN_OUT_, b, 1, n, dm,
                    "y_x or x_next must have the shape of x"),
      ATTN_OPERAND_(&j->y_p, "y_p or p_next", ATTN_OUT_ | ATTN_OPTIONAL_, b, 1, j->p.len, dm,
                    "y_p or p_next must be [x.batch, 1, p.len, x.dim]")};
  attn_arrays_ more = {0, {{0, 0, 0, 0}}};
  int count = COUNT;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  for (int i = 0; i < W; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (j->p.batch != b && j->p.batch != 1) return attn_reject_(e, ATTN_E_SHAPE, op[P].rule);
  if (j->p.len < 1) return attn_reject_(e, ATTN_E_SHAPE, "p.len must be at least 1");
  if (n > INT32_MAX || j->p.len > INT32_MAX || m > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "x.len, p.len and c.len must be below 2^31");
  if (a->heads == 0) a->heads = 1;
  if (a->pack_heads == 0) a->pack_heads = a->heads;
  if (a->heads < 1 || a->pack_heads < 1)
    return attn_reject_(e, ATTN_E_SHAPE, "heads and pack_heads must not be negative");
  if (dm % a->heads || dm % a->pack_heads)
    return attn_reject_(e, ATTN_E_HEADS, "heads and pack_heads must divide x.dim");
  for (int i = 0; i < PARTS; i++) {
    attn_turn_(weight[i], a->w_transposed);
    op[W + i] = attn_weight_(weight[i], &part[i], 0, i == 1 || i == 2 ? dc : dm, dm);
    op[W + PARTS + i] = attn_bias_(bias[i], &part[PARTS + i], ATTN_OPTIONAL_, dm);
  }
  for (int i = W; i < COUNT; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (!attn_check_cut_(e, a->c_len, b, m, "c_len must be aligned to its elements",
                       "c_len must lie in 0..c.len", &more))
    return 0;
  if (j->layer) {
    if (!attn_check_feed_(e, &j->par.ff, *table, ATTN_PLACE_, 1, dm, dm, op + COUNT) ||
        !attn_check_norm_(e, &j->par.norm_x, dm, &more) ||
        !attn_check_norm_(e, &j->par.norm_p, dm, &more) ||
        !attn_check_norm_(e, &j->par.norm_ff, dm, &more))
      return 0;
    count += ATTN_FEED_OPERANDS_;
  }
  return attn_check_apart_(e, ctx, op, count, more.span, more.n);
}

/* Rows of X through unpacking and the rest of the layer; k, v of Y_P in heads. */
ATTN_COLD_ int attn_luna_unpack_(attn_stage_ *s, const attn_luna_job_ *j, attn_tensor k,
                                 attn_tensor v) {
  const attn_luna_layer_params *par = &j->par;
  const attn_luna_params *a = &par->attention;
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  const int64_t b = j->x.batch, n = j->x.len, dm = j->x.dim, most = attn_layer_rows_(n);
  const int layer = j->layer, pre = layer && par->pre;
  const attn_tensor first = attn_stage_tensor_(s, b, 1, most, dm);
  const attn_tensor second = attn_stage_tensor_(s, b, 1, most, dm);
  const attn_tensor third = pre ? attn_stage_tensor_(s, b, 1, most, dm) : none;
  const attn_tensor middle = layer ? attn_stage_middle_(s, &par->ff, b, most) : none;
  attn_sdpa_params core;
  memset(&core, 0, sizeof core);
  for (int64_t i = 0, m; i < n; i += m) {
    m = n - i < most ? n - i : most;
    const attn_tensor x = attn_stage_rows_(j->x, i, m), out = attn_stage_rows_(j->y_x, i, m);
    const attn_tensor normal = attn_stage_rows_(third, 0, m); /* what a norm before a step makes */
    const attn_tensor q = attn_stage_rows_(first, 0, m), heads = attn_stage_rows_(second, 0, m);
    const attn_tensor y = layer ? q : out, t = heads;
    if ((pre && !attn_stage_norm_(s, normal, x, none, &par->norm_x)) ||
        !attn_stage_dense_(s, q, pre ? normal : x, a->w_q, a->b_q, ATTN_ACT_NONE) ||
        !attn_stage_sdpa_(s, attn_split_(heads, a->heads), attn_split_(q, a->heads), k, v, &core) ||
        !attn_stage_dense_(s, y, heads, a->w_o, a->b_o, ATTN_ACT_NONE))
      return 0;
    if (!layer) continue;
    if (!attn_stage_norm_(s, y, y, x, pre ? NULL : &par->norm_x) ||
        (pre && !attn_stage_norm_(s, normal, y, none, &par->norm_ff)) ||
        !attn_stage_feed_(s, t, pre ? normal : y, middle, &par->ff) ||
        !attn_stage_norm_(s, out, y, t, pre ? NULL : &par->norm_ff))
      return 0;
  }
  return 1;
}

ATTN_COLD_ int attn_luna_steps_(attn_stage_ *s, void *job) {
  const attn_luna_job_ *j = (const attn_luna_job_ *)job;
  const attn_luna_params *a = &j->par.attention;
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  const int64_t b = j->x.batch, l = j->p.len, dm = j->x.dim;
  const int pre = j->layer && j->par.pre;
  /* the bare Y_P may lie in the output */
  const int in_place = !j->layer && j->y_p.data && j->y_p.dtype == ATTN_F32;
  const attn_tensor part = in_place ? j->y_p : attn_stage_tensor_(s, b, 1, l, dm);
  const attn_tensor q = attn_stage_tensor_(s, j->p.batch, 1, l, dm);
  attn_tensor p = j->p, k, v;
  attn_sdpa_params core;
  attn_pair_ pack, unpack;
  memset(&core, 0, sizeof core);
  memset(&pack, 0, sizeof pack);
  core.kv_len = a->c_len;
  unpack = pack;
  pack.w_k = a->w_pk, pack.b_k = a->b_pk, pack.w_v = a->w_pv, pack.b_v = a->b_pv;
  unpack.w_k = a->w_k, unpack.b_k = a->b_k, unpack.w_v = a->w_v, unpack.b_v = a->b_v;
  if (pre && j->self) pack.norm = &j->par.norm_x;
  if (pre) {
    p = attn_stage_tensor_(s, p.batch, 1, l, dm);
    if (!attn_stage_norm_(s, p, j->p, none, &j->par.norm_p)) return 0;
  }
  attn_stage_pair_open_(s, &unpack, b, l);
  if (!attn_stage_dense_(s, q, p, a->w_pq, a->b_pq, ATTN_ACT_NONE) ||
      !attn_stage_pack_(s, attn_split_(part, a->pack_heads),
                        attn_split_(attn_spread_(q, b), a->pack_heads), j->self ? j->x : j->c,
                        &pack, &core) ||
      !attn_stage_pair_(s, &unpack, part, a->heads, &k, &v) || !attn_luna_unpack_(s, j, k, v))
    return 0;
  if (!j->y_p.data) return 1;
  if (j->layer) return attn_stage_norm_(s, j->y_p, part, j->p, pre ? NULL : &j->par.norm_p);
  return in_place || attn_stage_norm_(s, j->y_p, part, none, NULL);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_luna_job_call_(attn_luna_job_ *j, int params, attn_ctx *ctx,
                                           size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (!params) {
    attn_reject_(&e, ATTN_E_NULL, "params must not be null: it has the weights");
  } else if (attn_luna_check_(&e, j, ctx, &table, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (j->x.batch == 0) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no batch entries");
    } else {
      attn_stage_call_(&s, ctx, attn_luna_steps_, j,
                       j->layer ? "pack and unpack, feed-forward" : "pack and unpack", bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_luna_job_ attn_luna_open_(attn_tensor y_x, attn_tensor y_p, attn_tensor x,
                                          attn_tensor p, attn_tensor c) {
  attn_luna_job_ j;
  memset(&j, 0, sizeof j);
  j.y_x = y_x, j.y_p = y_p, j.x = x, j.p = p, j.c = c;
  return j;
}

ATTN_COLD_ attn_status attn_luna_call_(attn_tensor y_x, attn_tensor y_p, attn_tensor x,
                                       attn_tensor p, attn_tensor c, const attn_luna_params *params,
                                       attn_ctx *ctx, size_t *bytes) {
  attn_luna_job_ j = attn_luna_open_(y_x, y_p, x, p, c);
  if (params) j.par.attention = *params;
  return attn_luna_job_call_(&j, params != NULL, ctx, bytes);
}
ATTN_CALL_(attn_luna, (y_x, y_p, x, p, c, params), attn_tensor y_x, attn_tensor y_p, attn_tensor x,
           attn_tensor p, attn_tensor c, const attn_luna_params *params)

ATTN_COLD_ attn_status attn_luna_layer_call_(attn_tensor x_next, attn_tensor p_next, attn_tensor x,
                                             attn_tensor p, attn_tensor c,
                                             const attn_luna_layer_params *params, attn_ctx *ctx,
                                             size_t *bytes) {
  attn_luna_job_ j = attn_luna_open_(x_next, p_next, x, p, c);
  j.layer = 1;
  if (params) j.par = *params;
  return attn_luna_job_call_(&j, params != NULL, ctx, bytes);
}
ATTN_CALL_(attn_luna_layer, (x_next, p_next, x, p, c, params), attn_tensor x_next,
           attn_tensor p_next, attn_tensor x, attn_tensor p, attn_tensor c,
           const attn_luna_layer_params *params)
