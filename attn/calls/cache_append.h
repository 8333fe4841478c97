/* calls/cache_append.h owns the writing of rows into a cache. */

typedef struct attn_append_ {
  const attn_table_ *table;
  attn_cache c; /* checked */
  attn_sequence *sequences;
  int64_t n;
  attn_tensor k, v; /* the rows; v.data null: latent */
  const int64_t *rows, *indptr;
  int workers;
  int64_t shares; /* of the rows of a sequence, an item each */
  const attn_rope_
      *turn; /* not null: keys are rotated, into a row of floats where they are quantised */
  attn_rope_ rope;
  char *turned;
} attn_append_;

/* Numbers below which one worker is done before another is awake. */
enum { ATTN_APPEND_LEAST_ = 1 << 16 };

/* A run of rows that lie in one page: tokens token .. token + n - 1, rows row .. of page
 * table[entry]. */
typedef struct attn_append_run_ {
  int64_t token, end, entry, row, n;
  int again; /* the page has been met: a ring has come round to where it began */
} attn_append_run_;

/* Rows that sequence b gets. */
ATTN_FUNC_ int64_t attn_append_rows_(const attn_append_ *a, int64_t b) {
  return a->indptr ? a->indptr[b + 1] - a->indptr[b] : a->rows ? a->rows[b] : a->k.len;
}

/* Items of the rows, and the workers for them. */
ATTN_FUNC_ int attn_append_cut_(attn_append_ *a) {
  const int64_t width = a->c.k.heads * a->k.dim + (a->c.v.data ? a->c.v.heads * a->v.dim : 0);
  int64_t rows = 0;
  for (int64_t b = 0; b < a->n; b++) rows += attn_append_rows_(a, b);
  const int many = a->workers > 1 && attn_mul_(rows, width) >= ATTN_APPEND_LEAST_;
  a->shares = many ? 4 * (int64_t)a->workers : 1;
  return many ? attn_pieces_(a->workers, attn_mul_(a->n, a->shares)) : 1;
}

/* The next run of sequence b, the first when r->n is 0; 0 = there is none. */
ATTN_FUNC_ int attn_append_next_(const attn_append_ *a, int64_t b, attn_append_run_ *r) {
  const attn_sequence *s = &a->sequences[b];
  if (r->n == 0) r->token = s->len, r->end = s->len + attn_append_rows_(a, b);
  r->token += r->n;
  if (r->token >= r->end) return 0;
  const int64_t slot = attn_slot_(&a->c, s, r->token), page = a->c.k.len;
  r->entry = slot / page, r->row = slot % page;
  r->n = r->end - r->token < page - r->row ? r->end - r->token : page - r->row;
  r->again = r->token > s->len && r->entry == attn_slot_(&a->c, s, s->len) / page;
  return 1;
}

/* Counts the pages that the call takes: new ones, and copies of those that others hold too. Every
 * sequence steps off the pages that it writes to, so that of several that share a page the last one
 * may keep it, and one that is named too often shows. Afterwards they step on again. */
ATTN_FUNC_ int attn_append_count_(attn_error_ *e, const attn_append_ *a, int64_t *need) {
  attn_append_run_ r;
  int64_t steps = 0;
  int ok = 1;
  *need = 0;
  for (int64_t b = 0; b < a->n && ok; b++) {
    const int64_t held = attn_seq_held_(&a->c, &a->sequences[b]);
    memset(&r, 0, sizeof r);
    while (ok && attn_append_next_(a, b, &r)) {
      if (r.again) continue;
      if (r.entry >= held) {
        ++*need;
      } else if (!attn_page_legal_(&a->c, a->sequences[b].table[r.entry])) {
        ok = attn_reject_(e, ATTN_E_PAGE, attn_page_reason_);
      } else {
        *need += a->c.holders[a->sequences[b].table[r.entry]]-- > 1;
        steps++;
      }
    }
  }
  for (int64_t b = 0; b < a->n && steps > 0; b++) {
    const int64_t held = attn_seq_held_(&a->c, &a->sequences[b]);
    memset(&r, 0, sizeof r);
    while (steps > 0 && attn_append_next_(a, b, &r))
      if (!r.again && r.entry < held) a->c.holders[a->sequences[b].table[r.entry]]++, steps--;
  }
  return ok;
}

/* Tables lie apart from each other and from all memory that the call reads or writes. */
ATTN_FUNC_ int attn_append_apart_(attn_error_ *e, const attn_append_ *a, const attn_span_ *span,
                                  int spans) {
  static const char *const reason =
      "two sequences of the call share a table, or a table shares memory with another argument";
  uintptr_t top = 0;
  attn_span_ t, u;
  for (int64_t b = 0; b < a->n; b++) {
    if (!attn_check_sequence_(e, &a->c, &a->sequences[b], &t)) return 0;
    for (int i = 0; i < spans; i++)
      if (attn_overlap_(t, span[i])) return attn_reject_(e, ATTN_E_OVERLAP, reason);
    if (t.lo < top)
      for (int64_t d = 0; d < b; d++) /* tables in ascending order need no look back */
        if (!attn_check_sequence_(e, &a->c, &a->sequences[d], &u) || attn_overlap_(t, u))
          return attn_reject_(e, ATTN_E_PAGE, reason);
    if (t.hi > top) top = t.hi;
  }
  return 1;
}

/* The number of rows each sequence gets, and its room for them. */
ATTN_FUNC_ int attn_append_lengths_(attn_error_ *e, const attn_append_ *a) {
  const attn_cache *c = &a->c;
  if (a->indptr && a->indptr[0] != 0)
    return attn_reject_(e, ATTN_E_INDEX, "params.indptr[0] must be 0");
  for (int64_t b = 0; b < a->n; b++) {
    if (a->indptr && (a->indptr[b + 1] < a->indptr[b] || a->indptr[b + 1] > a->k.len))
      return attn_reject_(e, ATTN_E_INDEX,
                          "params.indptr must not decrease and must end at k.len or before");
    if (a->rows && (a->rows[b] < 0 || a->rows[b] > a->k.len))
      return attn_reject_(e, ATTN_E_RANGE, "params.rows must lie in 0..k.len");
  }
  for (int64_t b = 0; b < a->n; b++) {
    const attn_sequence *s = &a->sequences[b];
    const int64_t rows = attn_append_rows_(a, b);
    if (c->window > 0 && rows > 0 && rows > attn_ring_(c, s) - c->window + 1)
      return attn_reject_(e, ATTN_E_RANGE,
                          "a ring has not room for so many rows beside its window");
    if (attn_add_(s->len, rows) > INT64_MAX / 4)
      return attn_reject_(e, ATTN_E_RANGE, "a sequence may not be longer than 2^61");
    if (c->window == 0 && rows > attn_seq_room_(c, s) - s->len)
      return attn_reject_(e, ATTN_E_FULL, "a sequence's table has no room for its rows");
  }
  return 1;
}

/* The new rows against the cache. */
ATTN_FUNC_ int attn_append_rows_fit_(attn_error_ *e, const attn_tensor *x, const attn_tensor *store,
                                     const attn_append_ *a, int value) {
  if (x->heads != store->heads)
    return attn_reject_(
        e, ATTN_E_HEADS,
        value ? "v.heads must be the heads of cache.v" : "k.heads must be the heads of cache.k");
  if (x->dim != store->dim)
    return attn_reject_(e, ATTN_E_SHAPE,
                        value ? "v.dim must equal cache.v.dim" : "k.dim must equal cache.k.dim");
  if (x->batch != (a->indptr ? 1 : a->n) || x->len != a->k.len)
    return attn_reject_(e, ATTN_E_SHAPE,
                        "k and v must have a batch entry for each sequence, with params.indptr one "
                        "for all, and the same len");
  return 1;
}

/* What lies beside the cache; the first are only read, and may overlap. */
enum {
  ATTN_APPEND_READS_ = ATTN_CACHE_SPANS_ + 4 + ATTN_ROPE_SPANS_,
  ATTN_APPEND_SPANS_ = ATTN_APPEND_READS_ + 3
};

/* Where the rows of sequence b stand: rows of x from `first` on, of entry `batch`; positions from `from` on. */
typedef struct attn_append_places_ {
  attn_positions_ at;
  int64_t batch, first, from;
} attn_append_places_;

ATTN_FUNC_ attn_append_places_ attn_append_places_of_(const attn_append_ *a, int64_t b) {
  attn_append_places_ p = {a->rope.at, a->indptr ? 0 : b, a->indptr ? a->indptr[b] : 0, 0};
  if (p.at.whole || p.at.real) {
    p.from = p.first;
  } else { /* tokens go on */
    p.at.start = attn_add_(p.at.start, a->sequences[b].len);
    p.at.rows = p.at.len = attn_append_rows_(a, b);
  }
  return p;
}

/* How keys are rotated; data: sequences are judged, and what arrays hold may be read. */
ATTN_COLD_ int attn_append_rope_(attn_error_ *e, attn_append_ *a, const attn_rope_params *params,
                                 int data) {
  attn_rope_params p = *params;
  const int given = p.positions || p.real_positions;
  if (!ATTN_HAS_POSITION)
    return attn_reject_(e, ATTN_E_RANGE, "params.rope: ATTN_ONLY leaves out ATTN_FAMILY_POSITION");
  a->turn = &a->rope, p.keys = 1;
  if (!attn_rope_open_(e, &a->rope, &p, a->k.batch, a->k.heads, a->k.len, 0, given ? a->k.len : 0,
                       a->k.dim, data))
    return 0;
  for (int64_t b = 0; !given && data && b < a->n; b++) {
    attn_rope_ own = a->rope;
    own.at = attn_append_places_of_(a, b).at;
    if (attn_append_rows_(a, b) > 0 && !attn_check_rope_places_(e, &own)) return 0;
  }
  return 1;
}

/* Bytes of a worker's rotated rows of a token. */
ATTN_FUNC_ int64_t attn_append_turned_(const attn_append_ *a) {
  return attn_piece_(attn_mul_(a->k.heads, a->k.dim), sizeof(float));
}

/* Bytes that it takes: 0 where nothing is rotated. */
ATTN_FUNC_ int64_t attn_append_bytes_(const attn_append_ *a, int workers) {
  if (!ATTN_PART_(POSITION, a->turn)) return 0;
  return attn_workspace_bytes_(
      attn_add_(attn_rope_bytes_(&a->rope, workers), attn_mul_(workers, attn_append_turned_(a))),
      1);
}

ATTN_COLD_ void attn_append_lay_(attn_append_ *a, char *base, int workers) {
  attn_rope_lay_(&a->rope, base, workers);
  a->turned = base + attn_rope_bytes_(&a->rope, workers);
  if (a->rope.at.whole || a->rope.at.real) {
    attn_rope_see_(&a->rope, &a->rope.at);
    return;
  }
  for (int64_t b = 0; b < a->n; b++) {
    const attn_append_places_ p = attn_append_places_of_(a, b);
    attn_rope_see_(&a->rope, &p.at);
  }
}

ATTN_FUNC_ int attn_append_plan_(attn_error_ *e, attn_append_ *a, const attn_cache *cache,
                                 const attn_append_params *params, const attn_ctx *ctx, int data) {
  static const char wk[] = ATTN_WORDS_("k"), wv[] = ATTN_WORDS_("v");
  attn_span_ span[ATTN_APPEND_SPANS_], *const more = span + ATTN_CACHE_SPANS_;
  memset(span, 0, sizeof span);
  if (!attn_check_ctx_(e, ctx, &a->table, &a->workers)) return 0;
  if (!cache) return attn_reject_(e, ATTN_E_NULL, "cache must not be null");
  a->c = *cache;
  if (!attn_check_cache_(e, &a->c, 1, span)) return 0;
  if (a->n < 0) return attn_reject_(e, ATTN_E_SHAPE, "n must not be negative");
  if (a->n > 0 && !a->sequences) return attn_reject_(e, ATTN_E_NULL, "sequences must not be null");
  if (params) a->rows = params->rows, a->indptr = params->indptr;
  if (a->rows && a->indptr)
    return attn_reject_(e, ATTN_E_RANGE, "params.rows must be null with params.indptr");
  if (!attn_check_tensor_(e, &a->k, wk, &more[0])) return 0;
  if (attn_cache_latent_(&a->c)) {
    if (a->v.data) return attn_reject_(e, ATTN_E_SHAPE, "v.data must be null for latent rows");
  } else if (!attn_check_tensor_(e, &a->v, wv, &more[1])) {
    return 0;
  }
  if (!attn_append_rows_fit_(e, &a->k, &a->c.k, a, 0) ||
      (!attn_cache_latent_(&a->c) && !attn_append_rows_fit_(e, &a->v, &a->c.v, a, 1)))
    return 0;
  if (!attn_check_array_(e, a->rows, a->n, 8, "params.rows must be aligned to its elements",
                         &more[2]) ||
      !attn_check_array_(e, a->indptr, attn_add_(a->n, 1), 8,
                         "params.indptr must be aligned to its elements", &more[3]) ||
      !attn_check_array_(e, a->sequences, attn_mul_(a->n, (int64_t)sizeof *a->sequences), 1, "",
                         &span[ATTN_APPEND_READS_]) ||
      !attn_check_array_(e, cache, (int64_t)sizeof *cache, 1, "", &span[ATTN_APPEND_READS_ + 1]))
    return 0;
  if ((uintptr_t)a->sequences % sizeof(void *))
    return attn_reject_(e, ATTN_E_ALIGN, "sequences must be aligned to its elements");
  const attn_rope_params *rope = params ? params->rope : NULL;
  if (rope) {
    if (!attn_append_rope_(e, a, rope, 0) ||
        !attn_check_workspace_(e, ctx, &span[ATTN_APPEND_READS_ + 2]))
      return 0;
    memcpy(&more[4], a->rope.span, sizeof a->rope.span);
  }
  for (int i = ATTN_APPEND_READS_; i < ATTN_APPEND_SPANS_; i++)
    for (int j = ATTN_CACHE_SPANS_; j < i; j++)
      if (attn_overlap_(span[i], span[j]))
        return attn_reject_(e, ATTN_E_OVERLAP,
                            "sequences, cache and ctx.workspace must lie apart from the rows");
  for (int i = 0; i < ATTN_CACHE_SPANS_; i++)
    for (int j = ATTN_CACHE_SPANS_; j < ATTN_APPEND_SPANS_; j++)
      if (attn_overlap_(span[i], span[j]))
        return attn_reject_(e, ATTN_E_OVERLAP,
                            "the memory of the cache must not hold another argument");
  return attn_append_apart_(e, a, span, ATTN_APPEND_SPANS_) && attn_append_lengths_(e, a) &&
         (!rope || !data || attn_append_rope_(e, a, rope, 1));
}

/* 1 when all rows of x that are appended are finite. */
ATTN_FUNC_ int attn_append_finite_(const attn_append_ *a, const attn_tensor *x) {
  for (int64_t b = 0; b < a->n; b++)
    for (int64_t h = 0; h < x->heads; h++)
      for (int64_t i = 0, rows = attn_append_rows_(a, b); i < rows; i++)
        if (!attn_finite_row_(a->table,
                              attn_at_(x, a->indptr ? 0 : b, h, (a->indptr ? a->indptr[b] : 0) + i),
                              x->dtype, x->dim))
          return 0;
  return 1;
}

ATTN_FUNC_ void attn_cache_copy_scales_(const float *s, const attn_scales *v, int64_t groups,
                                        int64_t from, int64_t to, int64_t h, int64_t i) {
  const int64_t at = h * v->stride_head + i * v->stride_len;
  if (s)
    memcpy((float *)(uintptr_t)s + to * v->stride_batch + at, s + from * v->stride_batch + at,
           (size_t)groups * sizeof *s);
}

/* Rows 0 .. rows - 1 of one page as they are. */
ATTN_FUNC_ void attn_cache_copy_(const attn_tensor *t, const attn_scales *s, int64_t from,
                                 int64_t to, int64_t rows) {
  const size_t bytes = (size_t)attn_bytes_(t->dtype, t->dim);
  const int64_t groups = attn_scale_groups_(s, t->dim);
  if (!t->data) return;
  for (int64_t h = 0; h < t->heads; h++)
    for (int64_t i = 0; i < rows; i++) {
      memcpy(attn_at_(t, to, h, i), attn_at_(t, from, h, i), bytes);
      attn_cache_copy_scales_(s->scale, s, groups, from, to, h, i);
      attn_cache_copy_scales_(s->zero, s, groups, from, to, h, i);
    }
}

/* Gives entry r->entry of the sequence a page that it may write to: its own, a new one, or a copy. */
ATTN_FUNC_ void attn_append_page_(attn_append_ *a, attn_sequence *s, const attn_append_run_ *r,
                                  int64_t held) {
  attn_cache *c = &a->c;
  const int32_t old = s->table[r->entry];
  if (r->again || (r->entry < held && c->holders[old] == 1)) return;
  const int32_t fresh = (int32_t)attn_page_free_(c, c->next_free);
  c->holders[fresh] = 1, c->next_free = fresh + 1;
  s->table[r->entry] = fresh;
  if (r->entry >= held) return;
  const int64_t room = attn_seq_room_(c, s), live = s->high < room ? s->high : room;
  const int64_t rows = live - r->entry * c->k.len;
  c->holders[old]--;
  attn_cache_copy_(&c->k, &c->k_scales, old, fresh, rows < c->k.len ? rows : c->k.len);
  attn_cache_copy_(&c->v, &c->v_scales, old, fresh, rows < c->k.len ? rows : c->k.len);
}

/* Rows of x, n of them from `from` on, as rows of a store from y on, whose scales begin at `at`. */
ATTN_FUNC_ void attn_append_put_(const attn_table_ *f, const attn_tensor *store,
                                 const attn_scales *s, char *y, int64_t at, const attn_tensor *x,
                                 const char *from, int64_t n) {
  const int64_t y_step = attn_bytes_(store->dtype, store->stride_len);
  const int64_t step = attn_bytes_(x->dtype, x->stride_len);
  const size_t bytes = (size_t)attn_bytes_(x->dtype, x->dim);
  for (; n > 0; n--, y += y_step, from += step, at += s->stride_len)
    if (attn_quantized_(store->dtype))
      attn_quantize_row_(f, y, store->dtype, s->scale ? s->scale + at : NULL,
                         s->zero ? s->zero + at : NULL, s->group, from, x->dtype, x->dim);
    else if (store->dtype == x->dtype)
      memcpy(y, from, bytes);
    else
      f->blend(y, from, NULL, store->dtype, x->dtype, x->dtype, x->dim, 1.0f, 0.0f);
}

/* What a quantised type can hold: factors may have made a number infinite, or a table NaN. */
ATTN_COLD_ void attn_append_tame_(float *row, int64_t n) {
  for (int64_t c = 0; c < n; c++)
    row[c] = row[c] == row[c] ? (float)attn_clamp_f64_((double)row[c]) : 0.0f;
}

/* The keys of a run, rotated: rows of x from place i0 of the sequence's on. */
ATTN_FUNC_ void attn_append_turn_(const attn_append_ *a, int worker, int64_t b, int64_t i0,
                                  const attn_append_run_ *r, int64_t page) {
  const attn_append_places_ p = attn_append_places_of_(a, b);
  const attn_tensor *y = &a->c.k, *x = &a->k;
  const attn_scales *s = &a->c.k_scales;
  const int coded = attn_quantized_(y->dtype);
  float *turned = (float *)(void *)(a->turned + worker * attn_append_turned_(a));
  attn_rope_row_ turn;
  attn_rope_cut_(&a->rope, worker, &turn);
  for (int64_t i = 0; i < r->n; i++) {
    attn_rope_fill_(&a->rope, &p.at, &turn, p.batch, p.from + i0 + i);
    char *to = attn_at_(y, page, 0, r->row + i);
    attn_rope_rows_(&a->rope, a->table, &turn, coded ? (char *)turned : to,
                    coded ? x->dim : y->stride_head, coded ? ATTN_F32 : y->dtype,
                    attn_at_(x, p.batch, 0, p.first + i0 + i), x->stride_head, x->dtype, x->heads,
                    x->dim);
    for (int64_t h = 0; coded && h < y->heads; h++) {
      float *row = turned + h * x->dim;
      const int64_t at = page * s->stride_batch + h * s->stride_head + (r->row + i) * s->stride_len;
      if (!attn_finite_row_(a->table, row, ATTN_F32, x->dim)) attn_append_tame_(row, x->dim);
      attn_quantize_row_(a->table, attn_at_(y, page, h, r->row + i), y->dtype,
                         s->scale ? s->scale + at : NULL, s->zero ? s->zero + at : NULL, s->group,
                         row, ATTN_F32, x->dim);
    }
  }
}

/* Pages for all rows of sequence b. */
ATTN_FUNC_ void attn_append_pages_(attn_append_ *a, int64_t b) {
  attn_sequence *s = &a->sequences[b];
  const int64_t held = attn_seq_held_(&a->c, s);
  attn_append_run_ r;
  memset(&r, 0, sizeof r);
  while (attn_append_next_(a, b, &r)) attn_append_page_(a, s, &r, held);
}

/* A share of the rows of a sequence into their pages: the runs that begin there. */
ATTN_FUNC_ void attn_append_item_(void *job, int worker, int64_t index) {
  const attn_append_ *a = (const attn_append_ *)job;
  const int64_t b = index / a->shares, share = index % a->shares, rows = attn_append_rows_(a, b);
  const int64_t each = rows / a->shares + (rows % a->shares != 0);
  const int64_t first = a->indptr ? a->indptr[b] : 0;
  const attn_sequence *s = &a->sequences[b];
  const attn_tensor *x[2] = {&a->k, &a->v}, *store[2] = {&a->c.k, &a->c.v};
  const attn_scales *scales[2] = {&a->c.k_scales, &a->c.v_scales};
  attn_append_run_ r;
  const int turns = ATTN_PART_(POSITION, a->turn) != NULL;
  memset(&r, 0, sizeof r);
  while (attn_append_next_(a, b, &r)) {
    const int64_t at = r.token - s->len, page = s->table[r.entry];
    if (at / each != share) continue;
    if (turns) attn_append_turn_(a, worker, b, at, &r, page);
    for (int w = turns; w < 2 && store[w]->data; w++)
      for (int64_t h = 0; h < store[w]->heads; h++)
        attn_append_put_(a->table, store[w], scales[w], attn_at_(store[w], page, h, r.row),
                         page * scales[w]->stride_batch + h * scales[w]->stride_head +
                             r.row * scales[w]->stride_len,
                         x[w], attn_at_(x[w], a->indptr ? 0 : b, h, first + at), r.n);
  }
}

/* Everything is judged: takes pages and writes, by the workers that pay. */
ATTN_FUNC_ void attn_append_write_(attn_append_ *a, const attn_ctx *ctx, int workers) {
  for (int64_t b = 0; b < a->n; b++) attn_append_pages_(a, b);
  attn_for_(ctx, workers, attn_mul_(a->n, a->shares), attn_append_item_, a);
  for (int64_t b = 0; b < a->n; b++) {
    attn_sequence *s = &a->sequences[b];
    s->len += attn_append_rows_(a, b);
    if (s->high < s->len) s->high = s->len;
  }
}

/* Everything that a call reads to judge it. */
ATTN_FUNC_ int attn_append_judge_(attn_error_ *e, attn_append_ *a, const attn_cache *cache,
                                  const attn_append_params *params, const attn_ctx *ctx) {
  int64_t need;
  if (!attn_append_plan_(e, a, cache, params, ctx, 1)) return 0;
  if ((attn_quantized_(a->c.k.dtype) && !attn_append_finite_(a, &a->k)) ||
      (a->c.v.data && attn_quantized_(a->c.v.dtype) && !attn_append_finite_(a, &a->v)))
    return attn_reject_(e, ATTN_E_VALUE, "k or v holds NaN or infinity, which cannot be quantised");
  if (!attn_append_count_(e, a, &need)) return 0;
  return attn_pages_free_(&a->c, need) ||
         attn_reject_(e, ATTN_E_FULL, "the cache has not enough free pages");
}

ATTN_PUB_ attn_status attn_cache_append(attn_cache *cache, attn_sequence *sequences, int64_t n,
                                        attn_tensor k, attn_tensor v,
                                        const attn_append_params *params, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_append_ a;
  attn_workspace_ w = {NULL, NULL};
  memset(&a, 0, sizeof a);
  a.sequences = sequences, a.n = n, a.k = k, a.v = v;
  if (!attn_append_judge_(&e, &a, cache, params, ctx)) return attn_end_(ctx, &e);
  const int workers = attn_append_cut_(&a);
  if (ATTN_PART_(POSITION, a.turn)) {
    if (!attn_workspace_get_(&e, &w, ctx, attn_append_bytes_(&a, workers)))
      return attn_end_(ctx, &e);
    attn_append_lay_(&a, w.base, workers);
  }
  attn_append_write_(&a, ctx, workers);
  attn_workspace_drop_(&w);
  cache->next_free = a.c.next_free;
  attn_report_(ctx, a.table, workers, "cache rows", "the only path");
  return attn_end_(ctx, &e);
}

ATTN_PUB_COLD_ size_t attn_cache_append_workspace(const attn_cache *cache,
                                                  const attn_sequence *sequences, int64_t n,
                                                  attn_tensor k, attn_tensor v,
                                                  const attn_append_params *params,
                                                  const attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_append_ a;
  const attn_ctx plain = attn_before_workspace_(ctx);
  memset(&a, 0, sizeof a);
  a.sequences = (attn_sequence *)(uintptr_t)sequences, a.n = n, a.k = k, a.v = v;
  if (!attn_append_plan_(&e, &a, cache, params, &plain, 0)) return ATTN_WORKSPACE_REJECTED;
  if (ctx && ctx->workers > 1) a.workers = ctx->workers; /* parallel_for may be set later */
  return attn_answer_(e.status, attn_append_bytes_(&a, attn_append_cut_(&a)));
}
