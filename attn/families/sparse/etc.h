/* families/sparse/etc.h owns Extended Transformer Construction: two softmaxes, each over two sources of
 * keys, with labels; and the masks and labels of structured inputs. */

typedef struct attn_etc_job_ {
  attn_tensor o[2], q[2]; /* long, global */
  attn_tensor k[ATTN_ETC_PIECES], v[ATTN_ETC_PIECES];
  attn_etc_params p;
} attn_etc_job_;

/* Side of the queries and of the keys of a piece: 0 = long, 1 = global. */
ATTN_FUNC_ int attn_etc_from_(int piece) { return piece >= ATTN_ETC_G2G; }
ATTN_FUNC_ int attn_etc_to_(int piece) { return piece == ATTN_ETC_L2G || piece == ATTN_ETC_G2G; }

/* Label by distance d = key - query, clipped at m. */
ATTN_FUNC_ int64_t attn_etc_distance_(int64_t d, int64_t m) {
  return d >= 0 ? (d < m ? d : m) : m + (-d < m ? -d : m);
}

/* Columns of a piece's mask and labels. */
ATTN_FUNC_ int64_t attn_etc_columns_(const attn_etc_job_ *j, int piece) {
  return piece == ATTN_ETC_L2L ? 2 * j->p.radius + 1 : j->q[attn_etc_to_(piece)].len;
}

/* Labels given as arrays, or made from distances, are inside their tables. */
ATTN_COLD_ int attn_etc_labels_fit_(attn_error_ *e, const attn_etc_job_ *j, int piece) {
  const attn_etc_params *p = &j->p;
  const int side = attn_etc_from_(piece);
  const attn_tensor *table = side ? &p->table_global : &p->table_long;
  const int64_t rows = j->q[side].len, columns = attn_etc_columns_(j, piece);
  const int64_t copies = p->labels_per_batch ? j->q[0].batch : 1;
  if (!p->label[piece]) return 1;
  for (int64_t r = 0; r < copies * rows; r++)
    for (int64_t c = 0; c < columns; c++) {
      const int64_t key = r % rows + c - p->radius, label = p->label[piece][r * columns + c];
      if (piece == ATTN_ETC_L2L && (key < 0 || key >= rows)) continue;
      if (label < 0 || label >= table->len)
        return attn_reject_(e, ATTN_E_RANGE, "params.label must lie in 0..len-1 of its table");
    }
  return 1;
}

ATTN_COLD_ int attn_etc_labels_check_(attn_error_ *e, const attn_etc_job_ *j, int data) {
  const attn_etc_params *p = &j->p;
  for (int side = 0; side < 2; side++) {
    const int piece = side ? ATTN_ETC_G2G : ATTN_ETC_L2L;
    const attn_tensor *table = side ? &p->table_global : &p->table_long;
    if (!p->label[piece] != !p->label[piece + 1])
      return attn_reject_(e, ATTN_E_NULL, "params.label: the two pieces of a side go together");
    if (p->label[piece] && !table->data)
      return attn_reject_(e, ATTN_E_NULL,
                          side ? "params.table_global must not be null when there are labels"
                               : "params.table_long must not be null when there are labels");
    if (p->by_distance && p->label[piece])
      return attn_reject_(e, ATTN_E_VALUE, "params.label must be null with params.by_distance");
    const int64_t rows = attn_sub_(table->len, 2 + (p->sentence != NULL));
    if (p->by_distance && table->data && (rows < 0 || rows / 2 < p->clip))
      return attn_reject_(e, ATTN_E_RANGE, "params.clip needs longer tables: 2 clip + 3 rows");
  }
  if (p->by_distance && (p->clip < 0 || p->clip > INT32_MAX))
    return attn_reject_(e, ATTN_E_RANGE, "params.clip must lie in 0..2^31-1");
  if (p->by_distance && !p->table_long.data && !p->table_global.data)
    return attn_reject_(e, ATTN_E_NULL, "params.by_distance needs a table");
  if (data)
    for (int piece = 0; piece < ATTN_ETC_PIECES; piece++)
      if (!attn_etc_labels_fit_(e, j, piece)) return 0;
  const int64_t n = (p->labels_per_batch ? j->q[0].batch : 1) * j->q[0].len;
  if (data && p->by_distance && p->sentence)
    for (int64_t i = 0; i < n; i++)
      if (p->sentence[i] >= j->q[1].len)
        return attn_reject_(e, ATTN_E_RANGE, "params.sentence must be below n_g");
  return 1;
}

ATTN_COLD_ int attn_etc_check_(attn_error_ *e, attn_etc_job_ *j, const attn_tensor *k,
                               const attn_tensor *v, const attn_etc_params *params,
                               const attn_ctx *ctx, const attn_table_ **table, int *workers,
                               int data) {
  static const char *const w[] = {ATTN_WORDS_("q_long"),
                                  ATTN_WORDS_("q_global"),
                                  ATTN_WORDS_("k[ATTN_ETC_L2L]"),
                                  ATTN_WORDS_("k[ATTN_ETC_L2G]"),
                                  ATTN_WORDS_("k[ATTN_ETC_G2G]"),
                                  ATTN_WORDS_("k[ATTN_ETC_G2L]"),
                                  ATTN_WORDS_("v[ATTN_ETC_L2L]"),
                                  ATTN_WORDS_("v[ATTN_ETC_L2G]"),
                                  ATTN_WORDS_("v[ATTN_ETC_G2G]"),
                                  ATTN_WORDS_("v[ATTN_ETC_G2L]"),
                                  ATTN_WORDS_("params.table_long"),
                                  ATTN_WORDS_("params.table_global"),
                                  ATTN_WORDS_("o_long"),
                                  ATTN_WORDS_("o_global"),
                                  ATTN_WORDS_("params.lse_long"),
                                  ATTN_WORDS_("params.lse_global")};
  static const attn_mask_words_ wm = {
      "params.mask must be of kind ATTN_MASK_NONE, ATTN_MASK_BOOL or ATTN_MASK_BITS",
      "params.mask.data must not be null",
      "params.mask.dtype is not used",
      "params.mask must have extents 1 or those of its piece; of L2L [.., n_l, 2 radius + 1]",
      "params.mask spans more bytes than the address space holds",
      "params.mask.data alignment"};
  enum { Q, K = 2, V = 6, TABLE = 10, O = 12, LSE = 14, COUNT = 16, MORE = 11 };
  attn_etc_params *p = &j->p;
  attn_operand_ op[COUNT];
  attn_span_ more[MORE];
  const int64_t any = ATTN_ANY_;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it says the radius");
  if (!k || !v)
    return attn_reject_(e, ATTN_E_NULL, k ? "v must not be null" : "k must not be null");
  *p = *params;
  for (int i = 0; i < ATTN_ETC_PIECES; i++) j->k[i] = k[i], j->v[i] = v[i];
  const int64_t b = j->q[0].batch, h = j->q[0].heads, dk = j->q[0].dim, dv = j->v[0].dim;
  if (p->radius < 1 || p->radius > INT32_MAX)
    return attn_reject_(e, ATTN_E_RANGE, "params.radius must lie in 1..2^31-1");
  memset(op, 0, sizeof op);
  for (int i = 0; i < COUNT; i++) op[i].w = w[i], op[i].batch = b, op[i].heads = h;
  for (int side = 0; side < 2; side++) {
    const int64_t n = j->q[side].len;
    op[Q + side].t = &j->q[side], op[Q + side].len = any, op[Q + side].dim = dk;
    op[Q + side].rule = "q_global must have batch, heads and dim of q_long";
    op[TABLE + side].t = side ? &p->table_global : &p->table_long;
    op[TABLE + side].role = ATTN_OPTIONAL_ | ATTN_IS_F32_;
    op[TABLE + side].batch = 1, op[TABLE + side].heads = ATTN_ONE_OR_ALL_;
    op[TABLE + side].len = any, op[TABLE + side].dim = dk;
    op[TABLE + side].rule = "params.table_long and .table_global must be f32 [1, 1 or H, n, dk]";
    op[O + side].t = &j->o[side], op[O + side].role = ATTN_OUT_;
    op[O + side].len = n, op[O + side].dim = dv;
    op[O + side].rule =
        side ? "o_global must be [B, H, n_g, dv]" : "o_long must be [B, H, n_l, dv]";
    op[LSE + side].t = side ? &p->lse_global : &p->lse_long;
    op[LSE + side].role = ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_;
    op[LSE + side].len = n, op[LSE + side].dim = 1;
    op[LSE + side].rule = side ? "params.lse_global must be f32 [B, H, n_g, 1]"
                               : "params.lse_long must be f32 [B, H, n_l, 1]";
  }
  for (int i = 0; i < ATTN_ETC_PIECES; i++) {
    const int64_t n = j->q[attn_etc_to_(i)].len;
    op[K + i].t = &j->k[i], op[K + i].heads = ATTN_DIVIDES_, op[K + i].len = n, op[K + i].dim = dk;
    op[K + i].rule = "k must be [B, a divisor of H, rows of the key side, dk]";
    op[V + i].t = &j->v[i], op[V + i].heads = ATTN_DIVIDES_, op[V + i].len = n;
    op[V + i].dim = i ? dv : any;
    op[V + i].rule = "v must be [B, a divisor of H, rows of the key side, dv]";
  }
  for (int i = 0; i < COUNT; i++) {
    if (i == K && h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q_long.heads must be at least 1");
    if (i == K && (j->q[0].len > INT32_MAX || j->q[1].len > INT32_MAX))
      return attn_reject_(e, ATTN_E_OVERFLOW, "q_long.len and q_global.len must be below 2^31");
    if (!attn_check_operand_(e, &op[i], h)) return 0;
  }
  for (int i = 0; i < ATTN_ETC_PIECES; i++) {
    const int64_t rows = j->q[attn_etc_from_(i)].len, columns = attn_etc_columns_(j, i);
    const int64_t full[4] = {b, h, rows, columns};
    const int64_t n = attn_mul_(p->labels_per_batch ? b : 1, attn_mul_(rows, columns));
    if (!attn_check_mask_(e, &p->mask[i], &wm, 1u << ATTN_MASK_BOOL | 1u << ATTN_MASK_BITS, full,
                          &more[i]) ||
        !attn_check_array_(e, p->label[i], n, 4, "params.label must be aligned to its elements",
                           &more[4 + i]))
      return 0;
  }
  const char *align = "params.sentence and biases must be aligned to their elements";
  const int64_t n = attn_mul_(p->labels_per_batch ? b : 1, j->q[0].len);
  return attn_check_scale_(e, p->scale) &&
         attn_check_array_(e, p->sentence, n, 4, align, &more[8]) &&
         attn_check_array_(e, p->bias_long,
                           attn_mul_(p->table_long.len < 0 ? 0 : p->table_long.len, h), 4, align,
                           &more[9]) &&
         attn_check_array_(e, p->bias_global,
                           attn_mul_(p->table_global.len < 0 ? 0 : p->table_global.len, h), 4,
                           align, &more[10]) &&
         attn_etc_labels_check_(e, j, data) && attn_check_apart_(e, ctx, op, COUNT, more, MORE);
}

/* One piece as the callbacks of attn_sdpa see it. */
typedef struct attn_etc_view_ {
  const attn_etc_job_ *j;
  int piece;
} attn_etc_view_;

ATTN_FUNC_ int64_t attn_etc_label_(void *user, int64_t b, int64_t h, int64_t i, int64_t key) {
  const attn_etc_view_ *a = (const attn_etc_view_ *)user;
  const attn_etc_params *p = &a->j->p;
  const int side = attn_etc_from_(a->piece);
  const int64_t entry = p->labels_per_batch ? b : 0;
  (void)h;
  if (p->by_distance) {
    const int64_t m = p->clip, token = side ? key : i;
    if (side == attn_etc_to_(a->piece)) return attn_etc_distance_(key - i, m);
    const int own = p->sentence && p->sentence[entry * a->j->q[0].len + token] == (side ? i : key);
    return 2 * m + 1 + own;
  }
  const int64_t columns = attn_etc_columns_(a->j, a->piece);
  const int64_t c = a->piece == ATTN_ETC_L2L ? key - i + p->radius : key;
  if (c < 0 || c >= columns) return -1;
  return p->label[a->piece][(entry * a->j->q[side].len + i) * columns + c];
}

/* The mask of the window, whose columns are distances. */
ATTN_FUNC_ void attn_etc_window_(void *user, const attn_score_tile *t) {
  const attn_etc_view_ *a = (const attn_etc_view_ *)user;
  const attn_mask *mask = &a->j->p.mask[ATTN_ETC_L2L];
  const int64_t radius = a->j->p.radius;
  for (int64_t r = 0; r < t->queries; r++) {
    const char *row = attn_mask_at_(mask, t->batch, t->head[r], t->query[r]);
    for (int64_t c = 0; c < t->keys; c++) {
      const int64_t d = t->key[c] - t->query[r] + radius, at = mask->k_len > 1 ? d : 0;
      if (d < 0 || d > 2 * radius) continue;
      if (!(mask->kind == ATTN_MASK_BITS ? attn_mask_bit_(row, at) : row[at]))
        t->score[c * t->key_stride + r * t->query_stride] = -INFINITY;
    }
  }
}

ATTN_COLD_ int attn_etc_steps_(attn_stage_ *s, void *job) {
  const attn_etc_job_ *j = (const attn_etc_job_ *)job;
  const int64_t used = s->used;
  int64_t most = used;
  for (int side = 0; side < 2; side++) {
    const attn_tensor *o = &j->o[side];
    const attn_tensor given = side ? j->p.lse_global : j->p.lse_long;
    const attn_tensor table = side ? j->p.table_global : j->p.table_long;
    attn_tensor part[2], lse[2];
    s->used = used;
    part[0] = attn_stage_part_(s, o);
    part[1] = attn_stage_tensor_(s, o->batch, o->heads, o->len, o->dim);
    lse[0] = given.data ? given : attn_stage_tensor_(s, o->batch, o->heads, o->len, 1);
    lse[1] = attn_stage_tensor_(s, o->batch, o->heads, o->len, 1);
    for (int n = 0; n < 2; n++) {
      attn_etc_view_ view = {j, 2 * side + n};
      attn_sdpa_params p;
      memset(&p, 0, sizeof p);
      p.scale = j->p.scale, p.lse = lse[n];
      if (j->p.label[view.piece] || (j->p.by_distance && table.data)) {
        p.labels.label = attn_etc_label_, p.labels.user = &view;
        p.labels.table = table;
        p.labels.bias = side ? j->p.bias_global : j->p.bias_long;
      }
      if (view.piece == ATTN_ETC_L2L) {
        p.window = attn_window_of(j->p.radius, j->p.radius);
        if (j->p.mask[view.piece].kind) p.modify = attn_etc_window_, p.modify_user = &view;
      } else {
        p.mask = j->p.mask[view.piece];
      }
      if (!attn_stage_sdpa_(s, part[n], j->q[side], j->k[view.piece], j->v[view.piece], &p))
        return 0;
    }
    if (!attn_stage_merge_(s, *o, part[0], lse[0], part[1], lse[1])) return 0;
    if (s->used > most) most = s->used;
  }
  s->used = most;
  return 1;
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_etc_job_call_(attn_etc_job_ *j, const attn_tensor *k,
                                          const attn_tensor *v, const attn_etc_params *params,
                                          attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_etc_check_(&e, j, k, v, params, ctx, &table, &workers, bytes == NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    attn_stage_call_(&s, ctx, attn_etc_steps_, j, "etc: two sources a side", bytes);
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_etc_call_(attn_tensor o_long, attn_tensor o_global, attn_tensor q_long,
                                      attn_tensor q_global, const attn_tensor k[ATTN_ETC_PIECES],
                                      const attn_tensor v[ATTN_ETC_PIECES],
                                      const attn_etc_params *params, attn_ctx *ctx, size_t *bytes) {
  attn_etc_job_ j;
  memset(&j, 0, sizeof j);
  j.o[0] = o_long, j.o[1] = o_global, j.q[0] = q_long, j.q[1] = q_global;
  return attn_etc_job_call_(&j, k, v, params, ctx, bytes);
}
ATTN_CALL_(attn_etc, (o_long, o_global, q_long, q_global, k, v, params), attn_tensor o_long,
           attn_tensor o_global, attn_tensor q_long, attn_tensor q_global,
           const attn_tensor k[ATTN_ETC_PIECES], const attn_tensor v[ATTN_ETC_PIECES],
           const attn_etc_params *params)

/* ---- structured inputs ----------------------------------------------------------------------*/

ATTN_COLD_ int attn_etc_structure_check_(attn_error_ *e, const attn_etc_structure *s,
                                         const attn_ctx *ctx) {
  const attn_table_ *table;
  int workers;
  if (!attn_check_ctx_(e, ctx, &table, &workers)) return 0;
  if (!s) return attn_reject_(e, ATTN_E_NULL, "structure must not be null");
  if (s->longs < 0 || s->globals < 0 || s->longs > INT32_MAX || s->globals > INT32_MAX)
    return attn_reject_(e, ATTN_E_SHAPE, "structure.longs and .globals must lie in 0..2^31-1");
  if (s->radius < 1 || s->radius > INT32_MAX)
    return attn_reject_(e, ATTN_E_RANGE, "structure.radius must lie in 1..2^31-1");
  if (s->clip < 0 || s->clip > (INT32_MAX - 3) / 2)
    return attn_reject_(e, ATTN_E_RANGE, "structure.clip must lie in 0..2^30-2");
  if ((s->longs && s->globals) && !s->example_long != !s->example_global)
    return attn_reject_(e, ATTN_E_NULL, "structure.example_long and .example_global go together");
  if ((s->hard_g2l || s->hard_l2g) && !s->sentence)
    return attn_reject_(e, ATTN_E_NULL, "structure.sentence must not be null for hard masks");
  static const char align[] = "structure: a list must be aligned to its elements";
  attn_span_ any;
  if (!attn_check_array_(e, s->sentence, s->longs, sizeof *s->sentence, align, &any) ||
      !attn_check_array_(e, s->example_long, s->longs, sizeof *s->example_long, align, &any) ||
      !attn_check_array_(e, s->example_global, s->globals, sizeof *s->example_global, align, &any))
    return 0;
  if (s->sentence)
    for (int64_t i = 0; i < s->longs; i++) {
      if (s->example_long && s->example_long[i] < 0) continue;
      if (s->sentence[i] < 0 || s->sentence[i] >= s->globals)
        return attn_reject_(e, ATTN_E_RANGE, "structure.sentence must lie in 0..globals-1");
    }
  return 1;
}

ATTN_COLD_ int attn_etc_same_(const int32_t *a, int64_t i, const int32_t *b, int64_t j) {
  return !a || !b || a[i] == b[j];
}

ATTN_PUB_COLD_ attn_status attn_etc_masks(uint8_t *l2l, uint8_t *l2g, uint8_t *g2g, uint8_t *g2l,
                                          const attn_etc_structure *structure, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_etc_structure *s = structure;
  if (!attn_etc_structure_check_(&e, s, ctx)) return attn_end_(ctx, &e);
  const int32_t *xl = s->example_long, *xg = s->example_global;
  const int64_t n = s->longs, m = s->globals, columns = 2 * s->radius + 1;
  for (int64_t i = 0; i < n; i++) {
    for (int64_t t = 0; l2l && t < columns; t++) {
      const int64_t j = i + t - s->radius;
      l2l[i * columns + t] = (uint8_t)(j >= 0 && j < n && attn_etc_same_(xl, i, xl, j));
    }
    for (int64_t g = 0; g < m; g++) {
      const int same = attn_etc_same_(xl, i, xg, g), own = s->sentence && s->sentence[i] == g;
      if (l2g) l2g[i * m + g] = (uint8_t)(same && (own || !s->hard_l2g));
      if (g2l) g2l[g * n + i] = (uint8_t)(same && (own || !s->hard_g2l));
    }
  }
  for (int64_t g = 0; g2g && g < m * m; g++) g2g[g] = (uint8_t)attn_etc_same_(xg, g / m, xg, g % m);
  return attn_end_(ctx, &e);
}

ATTN_PUB_COLD_ attn_status attn_etc_labels(int32_t *l2l, int32_t *l2g, int32_t *g2g, int32_t *g2l,
                                           const attn_etc_structure *structure, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_etc_structure *s = structure;
  if (!attn_etc_structure_check_(&e, s, ctx)) return attn_end_(ctx, &e);
  if (((uintptr_t)l2l | (uintptr_t)l2g | (uintptr_t)g2g | (uintptr_t)g2l) % sizeof *l2l) {
    attn_reject_(&e, ATTN_E_ALIGN, "l2l, l2g, g2g and g2l must be aligned to their elements");
    return attn_end_(ctx, &e);
  }
  const int64_t n = s->longs, m = s->globals, columns = 2 * s->radius + 1;
  for (int64_t i = 0; i < n; i++) {
    for (int64_t t = 0; l2l && t < columns; t++)
      l2l[i * columns + t] = (int32_t)attn_etc_distance_(t - s->radius, s->clip);
    for (int64_t g = 0; g < m; g++) {
      const int own = s->sentence && s->sentence[i] == g;
      if (l2g) l2g[i * m + g] = (int32_t)(2 * s->clip + 1 + own);
      if (g2l) g2l[g * n + i] = (int32_t)(2 * s->clip + 1 + own);
    }
  }
  for (int64_t g = 0; g2g && g < m * m; g++)
    g2g[g] = (int32_t)attn_etc_distance_(g % m - g / m, s->clip);
  return attn_end_(ctx, &e);
}
