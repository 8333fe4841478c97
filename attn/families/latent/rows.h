/* families/latent/rows.h owns rows of tokens that belong to sequences: where those of a sequence are, what it
 * has had before, how rows turn with their place in it, and rows copied from the pages of a cache. */

typedef struct attn_latent_ {
  const attn_table_ *table;
  int64_t n;             /* sequences */
  int64_t batch, len;    /* rows of the call */
  const int64_t *indptr; /* where their rows begin; null: an entry each */
  attn_cache *cache;     /* or null; the caller's, */
  attn_cache is;         /* and what was checked */
  attn_sequence *held;
  int grown; /* the rows of the call are in the cache */
} attn_latent_;

/* More heads than these are a mistake. */
enum { ATTN_LATENT_MOST_ = 65536 };

/* Sequences whose steps are named one after another: measuring, one stands for all that are alike. */
ATTN_COLD_ int64_t attn_latent_walked_(const attn_stage_ *s, const attn_latent_ *l) {
  return s->run || l->indptr || l->cache || l->n < 1 ? l->n : 1;
}

/* Rows that sequence b has in the call, and with those before them. */
ATTN_FUNC_ int64_t attn_latent_new_(const attn_latent_ *l, int64_t b) {
  return l->indptr ? l->indptr[b + 1] - l->indptr[b] : l->len;
}
ATTN_FUNC_ int64_t attn_latent_all_(const attn_latent_ *l, int64_t b) {
  const int64_t more = attn_latent_new_(l, b);
  return !l->cache ? more : l->grown ? l->held[b].len : attn_add_(l->held[b].len, more);
}

/* Rows of an entry that some sequence has. */
ATTN_FUNC_ int64_t attn_latent_end_(const attn_latent_ *l) {
  return l->indptr ? l->indptr[l->n] : l->len;
}

/* The rows of sequence b. */
ATTN_COLD_ attn_tensor attn_latent_part_(const attn_latent_ *l, attn_tensor t, int64_t b) {
  return l->indptr ? attn_stage_rows_(t, l->indptr[b], attn_latent_new_(l, b))
                   : attn_stage_entry_(t, b);
}

/* Rows of heads side by side; their starts are not a power of 2 apart (attn_multihead_rows_ says why). */
ATTN_COLD_ attn_tensor attn_latent_rows_(attn_stage_ *s, int64_t batch, int64_t len, int64_t heads,
                                         int64_t dim) {
  const int64_t wide = attn_mul_(heads, dim);
  attn_tensor t = attn_stage_tensor_(s, batch, 1, len, attn_add_(wide, 31) / 16 * 16 | 16);
  t.dim = dim, t.heads = heads, t.stride_head = dim;
  return t;
}

/* The same with the rows of a head end to end. */
ATTN_COLD_ attn_tensor attn_latent_heads_(attn_stage_ *s, int64_t heads, int64_t len, int64_t dim) {
  attn_tensor t = attn_stage_tensor_(s, 1, heads, len, attn_add_(dim, 31) / 16 * 16 | 16);
  t.dim = dim;
  return t;
}

/* Heads side by side as one row. */
ATTN_COLD_ attn_tensor attn_latent_wide_(attn_tensor t) {
  t.dim *= t.heads, t.heads = 1;
  return t;
}

/* The rows of all entries, which follow each other. */
ATTN_COLD_ attn_tensor attn_latent_flat_(attn_tensor t) {
  t.len = attn_mul_(t.batch, t.len), t.batch = 1, t.stride_batch = 0;
  return t;
}

/* Columns c .. c + n - 1. */
ATTN_COLD_ attn_tensor attn_latent_columns_(attn_tensor t, int64_t c, int64_t n) {
  t = attn_stage_shift_(t, c);
  t.dim = n;
  return t;
}

/* The same of a weight that attn_turn_ has seen. */
ATTN_COLD_ attn_tensor attn_weight_columns_(attn_tensor w, int64_t c, int64_t n) {
  w = attn_stage_shift_(w, attn_is_turned_(&w) ? c * w.stride_len : c);
  w.dim = n;
  return w;
}

/* Its transpose. */
ATTN_COLD_ attn_tensor attn_weight_flip_(attn_tensor w) {
  attn_turn_over_(&w, attn_is_turned_(&w) ? 0 : ATTN_TURNED_);
  return w;
}

/* ---- rotation -----------------------------------------------------------------------------------*/

typedef struct attn_latent_turn_ {
  const attn_latent_ *l;
  attn_rope_ g;
  attn_tensor x;
  int64_t runs; /* of an entry */
} attn_latent_turn_;

/* The places of the rows of sequence b where they go on from what it has had; else those of all rows. */
ATTN_FUNC_ attn_positions_ attn_latent_places_(const attn_rope_ *g, const attn_latent_ *l,
                                               int64_t b) {
  attn_positions_ at = g->at;
  if (at.whole || at.real) return at;
  at.rows = at.len = attn_latent_new_(l, b);
  at.start = attn_add_(at.start, attn_sub_(attn_latent_all_(l, b), at.rows));
  return at;
}

/* Judges how rows of width dim turn; data: arrays may be read. keys: as those of attn_rope. */
ATTN_COLD_ int attn_latent_rope_(attn_error_ *e, attn_rope_ *g, const attn_rope_params *params,
                                 const attn_latent_ *l, int64_t dim, int keys, int data) {
  attn_rope_params p;
  memset(&p, 0, sizeof p);
  if (params) p = *params;
  p.keys = keys;
  const int given = p.positions || p.real_positions;
  if (p.norm) return attn_reject_(e, ATTN_E_RANGE, "params.rope->norm must be absent here");
  if (!attn_rope_open_(e, g, &p, l->batch, 1, l->len, 0, given ? l->len : 0, dim, data)) return 0;
  for (int64_t b = 0; !given && data && b < l->n; b++) {
    attn_rope_ own = *g;
    own.at = attn_latent_places_(g, l, b);
    if (attn_latent_new_(l, b) > 0 && !attn_check_rope_places_(e, &own)) return 0;
  }
  return 1;
}

ATTN_FUNC_ void attn_latent_turn_item_(void *job, int worker, int64_t index) {
  const attn_latent_turn_ *a = (const attn_latent_turn_ *)job;
  const attn_latent_ *l = a->l;
  const int64_t entry = index / a->runs, first = index % a->runs * ATTN_ROPE_RUN_;
  const int64_t all = attn_latent_end_(l), left = all - first;
  const int64_t end = left < ATTN_ROPE_RUN_ ? all : first + ATTN_ROPE_RUN_;
  int64_t b = l->indptr ? 0 : entry, top = l->indptr ? l->n : entry + 1;
  while (top - b > 1) { /* indptr[b] <= first < indptr[top] */
    const int64_t mid = b + (top - b) / 2;
    if (l->indptr[mid] <= first)
      b = mid;
    else
      top = mid;
  }
  const int given = a->g.at.whole || a->g.at.real;
  attn_rope_row_ r;
  attn_rope_cut_(&a->g, worker, &r);
  for (int64_t i = first; i < end; i++) {
    while (l->indptr && i >= l->indptr[b + 1]) b++;
    const attn_positions_ at = attn_latent_places_(&a->g, l, b);
    attn_rope_fill_(&a->g, &at, &r, entry, given || !l->indptr ? i : i - l->indptr[b]);
    char *x = attn_at_(&a->x, entry, 0, i);
    attn_rope_rows_(&a->g, l->table, &r, x, a->x.stride_head, ATTN_F32, x, a->x.stride_head,
                    ATTN_F32, a->x.heads, a->x.dim);
  }
}

/* Rows of floats turn in place. */
ATTN_COLD_ int attn_stage_latent_turn_(attn_stage_ *s, const attn_latent_ *l, const attn_rope_ *g,
                                       attn_tensor x) {
  attn_latent_turn_ a;
  memset(&a, 0, sizeof a);
  a.l = l, a.g = *g, a.x = x;
  a.runs = attn_runs_of_(attn_latent_end_(l), ATTN_ROPE_RUN_);
  const int64_t items = attn_mul_(x.batch, a.runs);
  if (items == 0 || g->pairs == 0) return 1;
  const int pieces = attn_pieces_(s->workers, items);
  char *spare = attn_stage_spare_(s, attn_rope_bytes_(&a.g, pieces));
  if (!s->run) return 1;
  attn_rope_lay_(&a.g, spare, pieces);
  for (int64_t b = 0; b < (a.g.at.whole || a.g.at.real ? 1 : l->n); b++) {
    const attn_positions_ at = attn_latent_places_(&a.g, l, b);
    attn_rope_see_(&a.g, &at);
  }
  attn_for_(&s->ctx, pieces, items, attn_latent_turn_item_, &a);
  return 1;
}

/* ---- rows of a cache ----------------------------------------------------------------------------*/

typedef struct attn_latent_copy_ {
  const attn_latent_ *l;
  attn_tensor y, x;
  int64_t b, tiles; /* of a cache: the sequence; 64 rows */
} attn_latent_copy_;

/* Rows of a store of the cache as floats, y dense. */
ATTN_FUNC_ void attn_latent_gather_item_(void *job, int worker, int64_t index) {
  const attn_latent_copy_ *a = (const attn_latent_copy_ *)job;
  const attn_cache *c = &a->l->is;
  const attn_sequence *held = &a->l->held[a->b];
  const int64_t first = index * ATTN_TILE_, left = a->y.len - first;
  const int64_t end = left < ATTN_TILE_ ? a->y.len : first + ATTN_TILE_;
  (void)worker;
  for (int64_t j = first, n; j < end; j += n) {
    const int64_t slot = attn_slot_(c, held, j), row = slot % a->x.len;
    n = end - j < a->x.len - row ? end - j : a->x.len - row;
    a->l->table->widen((float *)(void *)attn_at_(&a->y, 0, 0, j),
                       attn_at_(&a->x, held->table[slot / a->x.len], 0, row), a->x.stride_len, NULL,
                       n, a->x.dim, a->x.dtype, NULL);
  }
}

/* All rows that sequence b has in a store of the cache, f32 [1,1,len,dim]; not of a ring. */
ATTN_COLD_ int attn_stage_latent_rows_(attn_stage_ *s, const attn_latent_ *l, attn_tensor store,
                                       int64_t b, attn_tensor *y) {
  *y = attn_stage_tensor_(s, 1, 1, attn_latent_all_(l, b), store.dim);
  attn_latent_copy_ a = {l, *y, store, b, 0};
  return attn_stage_for_(s, attn_tiles_of_(y->len), attn_latent_gather_item_, &a, 0, NULL);
}

ATTN_FUNC_ void attn_latent_copy_item_(void *job, int worker, int64_t index) {
  const attn_latent_copy_ *a = (const attn_latent_copy_ *)job;
  const int64_t unit = index / a->tiles, first = index % a->tiles * ATTN_TILE_;
  const int64_t left = a->y.len - first;
  const int64_t end = left < ATTN_TILE_ ? a->y.len : first + ATTN_TILE_;
  const int64_t b = unit / a->y.heads, h = unit % a->y.heads;
  (void)worker;
  for (int64_t i = first; i < end; i++)
    memcpy(attn_at_(&a->y, b, h, i), attn_at_(&a->x, b, h, i), (size_t)a->y.dim * sizeof(float));
}

/* y = x of floats, whose strides may be 0. */
ATTN_COLD_ int attn_stage_copy_(attn_stage_ *s, attn_tensor y, attn_tensor x) {
  attn_latent_copy_ a = {NULL, y, x, 0, attn_tiles_of_(y.len)};
  return attn_stage_for_(s, attn_mul_(attn_mul_(y.batch, y.heads), a.tiles), attn_latent_copy_item_,
                         &a, 0, NULL);
}

/* Rows of the call that no sequence has become 0. */
ATTN_COLD_ void attn_latent_clear_(const attn_latent_ *l, const attn_tensor *x) {
  for (int64_t i = attn_latent_end_(l); i < x->len; i++)
    for (int64_t h = 0; h < x->heads; h++)
      memset(attn_at_(x, 0, h, i), 0, (size_t)attn_bytes_(x->dtype, x->dim));
}
