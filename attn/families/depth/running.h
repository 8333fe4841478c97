/* families/depth/running.h owns blocks over some rows of their entries: those that still run. They are
 * gathered, attend to keys of all rows by their own positions, and go back where they came from. */

typedef struct attn_running_ {
  const attn_table_ *table;
  int64_t batch, len; /* rows of the tensors they come from are [batch, 1, len, .] */
  int64_t n;          /* rows that run, those of an entry in their order */
  int64_t *first;     /* [batch + 1] of an entry */
  int32_t *row;       /* [n] entry len + row */
  int64_t base;       /* keys before row 0 */
} attn_running_;

ATTN_COLD_ attn_running_ attn_stage_running_(attn_stage_ *s, int64_t batch, int64_t len) {
  attn_running_ r;
  memset(&r, 0, sizeof r);
  r.table = s->table, r.batch = batch, r.len = len;
  r.first = (int64_t *)attn_stage_take_(s, attn_add_(batch, 1), sizeof *r.first);
  r.row = (int32_t *)attn_stage_take_(s, attn_mul_(batch, len), sizeof *r.row);
  r.n = attn_mul_(batch, len);
  return r;
}

/* ---- gathering and spreading ----------------------------------------------------------------*/

typedef struct attn_running_rows_ {
  const attn_running_ *r;
  attn_tensor to, from;
} attn_running_rows_;

/* 64 rows that run. */
ATTN_FUNC_ void attn_running_gather_item_(void *job, int worker, int64_t index) {
  const attn_running_rows_ *a = (const attn_running_rows_ *)job;
  const attn_running_ *r = a->r;
  const int64_t i = index * ATTN_TILE_, n = r->n - i < ATTN_TILE_ ? r->n - i : ATTN_TILE_;
  (void)worker;
  r->table->widen((float *)(void *)attn_at_(&a->to, 0, 0, i), attn_at_(&a->from, 0, 0, 0),
                  a->from.stride_len, r->row + i, n, a->to.dim, a->from.dtype, NULL);
}

/* to [1,1,n,dm] = the rows that run, of dense from [batch,1,len,dm]. */
ATTN_COLD_ int attn_stage_running_gather_(attn_stage_ *s, const attn_running_ *r, attn_tensor to,
                                          attn_tensor from) {
  attn_running_rows_ a = {r, to, from};
  return attn_stage_for_(s, attn_tiles_of_(r->n), attn_running_gather_item_, &a, 0, NULL);
}

/* 64 rows of `to` go back to where they came from in `from`. */
ATTN_FUNC_ void attn_running_scatter_item_(void *job, int worker, int64_t index) {
  const attn_running_rows_ *a = (const attn_running_rows_ *)job;
  const int64_t i = index * ATTN_TILE_, left = a->r->n - i;
  (void)worker;
  for (int64_t k = i; k < i + (left < ATTN_TILE_ ? left : ATTN_TILE_); k++)
    memcpy(attn_at_(&a->from, 0, 0, a->r->row[k]), attn_at_(&a->to, 0, 0, k),
           (size_t)a->to.dim * sizeof(float));
}

ATTN_COLD_ int attn_stage_running_scatter_(attn_stage_ *s, const attn_running_ *r, attn_tensor rows,
                                           attn_tensor back) {
  attn_running_rows_ a = {r, rows, back};
  return attn_stage_for_(s, attn_tiles_of_(r->n), attn_running_scatter_item_, &a, 0, NULL);
}

/* ---- attention ------------------------------------------------------------------------------*/

/* The rows of one entry. */
typedef struct attn_running_entry_ {
  const attn_running_ *r;
  int64_t first;
} attn_running_entry_;

ATTN_FUNC_ void attn_running_range_(const void *user, int64_t batch, int64_t row, int64_t *lo,
                                    int64_t *hi) {
  const attn_running_entry_ *a = (const attn_running_entry_ *)user;
  (void)batch;
  *lo = 0, *hi = a->r->base + a->r->row[a->first + row] % a->r->len + 1;
}

/* Score terms that the rows of a block may have when they are gathered: those without positions. */
ATTN_COLD_ int attn_check_placeless_(attn_error_ *e, const attn_multihead_params *p) {
  const attn_sdpa_params *a = &p->attention;
  if (!attn_check_places_(e, a)) return 0;
  if (a->has_q_off || a->window.on || a->keep || a->kv_len || a->q_len || p->bias_k.data ||
      p->rope || p->bias_v.data || attn_unlike_(a) || a->schedule || a->lse.data || a->map.data ||
      p->each.data || (attn_terms_of_(a) & ~attn_terms_with_(ATTN_TAKES_PLACELESS_)))
    return attn_reject_(
        e, ATTN_E_RANGE,
        "attend of params.self and .cross may have scale, causal, softcap, sinks and "
        "softmax_one here, and no outputs, no bias_k and no rope");
  return 1;
}

/* What the tensors and arrays of a block span. */
enum { ATTN_BLOCK_SPANS_ = 32 };
ATTN_COLD_ int attn_block_spans_(attn_error_ *e, const attn_block_params *p, int64_t batch,
                                 attn_span_ span[ATTN_BLOCK_SPANS_]) {
  static const char w[] = ATTN_WORDS_("params");
  const char *align = "lengths and sinks must be aligned to their elements";
  const attn_multihead_params *m[2] = {&p->self, &p->cross};
  const attn_norm *norm[3] = {&p->norm_self, &p->norm_cross, &p->norm_ff};
  attn_tensor t[22];
  attn_arrays_ more;
  int n = 0;
  memset(&more, 0, sizeof more);
  if (p->sublayer != ATTN_SUBLAYER_POST && p->sublayer != ATTN_SUBLAYER_PRE)
    return attn_reject_(e, ATTN_E_RANGE,
                        "a layer's sublayer must be ATTN_SUBLAYER_POST or ATTN_SUBLAYER_PRE");
  for (int i = 0; i < 2; i++) {
    t[n++] = m[i]->w_q, t[n++] = m[i]->w_k, t[n++] = m[i]->w_v, t[n++] = m[i]->w_o;
    t[n++] = m[i]->b_q, t[n++] = m[i]->b_k, t[n++] = m[i]->b_v, t[n++] = m[i]->b_o;
  }
  t[n++] = p->ff.w_1, t[n++] = p->ff.b_1, t[n++] = p->ff.w_2, t[n++] = p->ff.b_2;
  t[n++] = p->ff.w_3, t[n++] = p->ff.b_3;
  for (int i = 0; i < n; i++) {
    span[i].lo = span[i].hi = 0;
    if (t[i].data && !attn_check_tensor_(e, &t[i], w, &span[i])) return 0;
  }
  for (int i = 0; i < 3; i++)
    if (!attn_check_norm_(e, norm[i], attn_inputs_(&p->self.w_q, p->self.w_transposed), &more))
      return 0;
  memcpy(span + n, more.span, 6 * sizeof *span);
  n += 6;
  for (int i = 0; i < 2; i++) {
    const int64_t heads = m[i]->heads > 0 ? m[i]->heads : 1;
    if (!attn_check_array_(e, i ? p->e_len : p->x_len, batch, 4, align, &span[n++]) ||
        !attn_check_array_(e, m[i]->attention.sinks, heads, 4, align, &span[n++]))
      return 0;
  }
  return 1;
}

ATTN_COLD_ int attn_check_spans_(attn_error_ *e, const attn_span_ *span, int n, attn_span_ out,
                                 const char *overlap) {
  for (int i = 0; i < n; i++)
    if (attn_overlap_(span[i], out)) return attn_reject_(e, ATTN_E_OVERLAP, overlap);
  return 1;
}

/* The heads' outputs o of the queries q, both [1,h,n,.]: entry b reads the first lens[b] rows (null =
 * all) of k and v [batch,.,keys,.]; causal rows those up to their own. Entries of one row see all. */
ATTN_COLD_ int attn_stage_running_heads_(attn_stage_ *s, const attn_running_ *r, attn_tensor o,
                                         attn_tensor q, attn_tensor k, attn_tensor v,
                                         const int32_t *lens, const attn_sdpa_params *attend,
                                         int causal) {
  attn_sdpa_params p = *attend;
  const int one = r->len == 1;
  p.causal = 0, p.kv_len = p.q_len = NULL, p.has_q_off = 0;
  p.one_order = !one;            /* whoever else runs, a row has its bits */
  if (one && r->n == r->batch) { /* the entries of a batch at once */
    attn_tensor oo = o, qq = q;
    oo.batch = qq.batch = r->batch, oo.len = qq.len = 1;
    oo.stride_batch = o.stride_len, qq.stride_batch = q.stride_len;
    p.kv_len = lens;
    if (!attn_stage_sdpa_(s, oo, qq, k, v, &p)) return 0;
    if (s->run) return 1;
    p.kv_len = NULL;
  }
  for (int64_t b = 0; b < (s->run ? r->batch : 1); b++) {
    const int64_t first = s->run ? r->first[b] : 0;
    const int64_t n = s->run ? r->first[b + 1] - first : r->len;
    const int64_t keys = s->run && lens ? lens[b] : k.len;
    if (n == 0) continue;
    const attn_running_entry_ entry = {r, first};
    const attn_tensor oo = attn_stage_rows_(o, first, n), qq = attn_stage_rows_(q, first, n);
    const attn_tensor kk = attn_stage_rows_(attn_stage_entry_(k, b), 0, keys);
    const attn_tensor vv = attn_stage_rows_(attn_stage_entry_(v, b), 0, keys);
    if (causal && !one ? !attn_stage_ranged_(s, oo, qq, kk, vv, &p, attn_running_range_, &entry)
                       : !attn_stage_sdpa_(s, oo, qq, kk, vv, &p))
      return 0;
  }
  return 1;
}

/* Room for the rows that run, on their way through attention. */
typedef struct attn_running_room_ {
  attn_tensor x;          /* [1,1,.,dm], the rows themselves */
  attn_tensor t;          /* likewise */
  int64_t wide_q, wide_o; /* H dk, H dv, the widest of all blocks */
  attn_tensor q, o;
} attn_running_room_;

ATTN_COLD_ void attn_stage_running_room_(attn_stage_ *s, attn_running_room_ *m, int64_t rows,
                                         int64_t dm) {
  m->x = attn_stage_tensor_(s, 1, 1, rows, dm), m->t = attn_stage_tensor_(s, 1, 1, rows, dm);
  m->q = attn_multihead_rows_(s, 1, rows, m->wide_q);
  m->o = attn_multihead_rows_(s, 1, rows, m->wide_o);
}

/* x = what the rows x are after attention of p to k and v and its sublayer. */
ATTN_COLD_ int attn_stage_running_attend_(attn_stage_ *s, const attn_running_ *r,
                                          const attn_running_room_ *room,
                                          const attn_multihead_params *p, attn_tensor k,
                                          attn_tensor v, const int32_t *lens, int causal, int pre,
                                          const attn_norm *norm) {
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  const attn_tensor x = attn_stage_rows_(room->x, 0, r->n), t = attn_stage_rows_(room->t, 0, r->n);
  attn_tensor q = attn_stage_rows_(room->q, 0, r->n), o = attn_stage_rows_(room->o, 0, r->n);
  q.dim = p->w_q.dim, o.dim = p->w_o.len;
  return (!pre || attn_stage_norm_(s, t, x, none, norm)) &&
         attn_multihead_project_(s, p, ATTN_W_Q_, 0, q, pre ? t : x) &&
         attn_stage_running_heads_(s, r, attn_multihead_split_(o, p->heads),
                                   attn_multihead_split_(q, p->heads), k, v, lens, &p->attention,
                                   causal) &&
         attn_multihead_project_(s, p, ATTN_W_O_, 0, t, o) &&
         attn_stage_norm_(s, x, t, x, pre ? NULL : norm);
}

/* The feed-forward of the rows, in place. */
ATTN_COLD_ int attn_stage_running_feed_(attn_stage_ *s, const attn_running_ *r,
                                        const attn_running_room_ *room,
                                        const attn_block_params *p) {
  const attn_tensor x = attn_stage_rows_(room->x, 0, r->n);
  const attn_surround_ around = attn_surround_of_(p->sublayer, &p->norm_ff);
  return attn_stage_feed_forward_(s, x, x, &p->ff, p->chunks, &around);
}

/* y = x, rows of any type; rows from lens[b] on become 0. */
typedef struct attn_copy_rows_ {
  const attn_table_ *table;
  attn_tensor y, x;
  const int32_t *lens;
  int64_t tiles;
} attn_copy_rows_;

ATTN_FUNC_ void attn_copy_rows_item_(void *job, int worker, int64_t index) {
  const attn_copy_rows_ *a = (const attn_copy_rows_ *)job;
  const int64_t b = index / a->tiles, first = index % a->tiles * ATTN_TILE_;
  const int64_t end = a->y.len - first < ATTN_TILE_ ? a->y.len : first + ATTN_TILE_;
  const int64_t len = a->lens ? a->lens[b] : a->y.len;
  (void)worker;
  for (int64_t i = first; i < end; i++) {
    char *y = attn_at_(&a->y, b, 0, i);
    if (i < len)
      a->table->blend(y, attn_at_(&a->x, b, 0, i), NULL, a->y.dtype, a->x.dtype, ATTN_F32, a->y.dim,
                      1.0f, 0.0f);
    else
      memset(y, 0, (size_t)attn_bytes_(a->y.dtype, a->y.dim));
  }
}

ATTN_COLD_ int attn_stage_copy_rows_(attn_stage_ *s, attn_tensor y, attn_tensor x,
                                     const int32_t *lens) {
  attn_copy_rows_ a = {s->table, y, x, lens, attn_tiles_of_(y.len)};
  return attn_stage_for_(s, attn_mul_(y.batch, a.tiles), attn_copy_rows_item_, &a, 0, NULL);
}
