/* calls/cache.h owns the pages of a cache and who holds them: laying a cache out, forking,
 * going back, letting go. Rows are written in calls/cache_append.h only. */

/* ---- layout ----------------------------------------------------------------------------------*/

/* Bytes of one part after another, whole cache lines each. */
typedef struct attn_cache_plan_ {
  attn_cache cache; /* pointers null */
  int64_t at[ATTN_CACHE_SPANS_], bytes;
} attn_cache_plan_;

/* Dense [pages][heads][page][dim], rows of I4 on whole bytes. */
ATTN_FUNC_ attn_tensor attn_cache_rows_(attn_dtype dtype, int64_t pages, int64_t heads,
                                        int64_t page, int64_t dim) {
  attn_tensor t = attn_view_(NULL, dtype, pages, heads, page, dim);
  t.stride_len = dtype == ATTN_I4 ? dim + dim % 2 : dim;
  t.stride_head = attn_mul_(page, t.stride_len);
  t.stride_batch = attn_mul_(heads, t.stride_head);
  return t;
}

ATTN_FUNC_ int64_t attn_cache_part_(attn_cache_plan_ *p, int part, int64_t n, int64_t size) {
  p->at[part] = p->bytes;
  return p->bytes = attn_add_(p->bytes, attn_piece_(n, size));
}

/* A tensor and its scales, parts `part` and `scales`, `scales` + 1. */
ATTN_FUNC_ int attn_cache_store_(attn_cache_plan_ *p, const attn_tensor *t, attn_scales *s,
                                 int64_t group, int zero, int part, int scales) {
  const int quantised = attn_quantized_(t->dtype);
  const int64_t n = attn_mul_(t->batch, t->stride_batch); /* even, of I4 */
  attn_cache_part_(p, part, t->dtype == ATTN_I4 ? n / 2 : attn_mul_(n, attn_size_(t->dtype)), 1);
  if (group < 0 || group % 32 || (group && !quantised)) return 0;
  if (zero && (!quantised || t->dtype == ATTN_E4M3)) return 0;
  if (quantised) *s = attn_scales_dense(NULL, NULL, group, t);
  const int64_t numbers = quantised ? attn_mul_(t->batch, s->stride_batch) : 0;
  attn_cache_part_(p, scales, numbers, 4);
  attn_cache_part_(p, scales + 1, zero ? numbers : 0, 4);
  return 1;
}

ATTN_FUNC_ int attn_cache_plan_of_(attn_error_ *e, attn_cache_plan_ *p,
                                   const attn_cache_params *params) {
  memset(p, 0, sizeof *p);
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null");
  const attn_cache_params *x = params;
  const int64_t v_heads = x->v_heads ? x->v_heads : x->k_heads, dv = x->dv ? x->dv : x->dk;
  attn_cache *c = &p->cache;
  if ((int)x->k_dtype < 0 || x->k_dtype >= ATTN_DTYPE_COUNT ||
      (!x->latent && ((int)x->v_dtype < 0 || x->v_dtype >= ATTN_DTYPE_COUNT)))
    return attn_reject_(e, ATTN_E_DTYPE, "params.k_dtype and .v_dtype must be of attn_dtype");
  if (x->pages < 1 || x->pages > INT32_MAX || x->page < 1)
    return attn_reject_(e, ATTN_E_SHAPE,
                        "params.pages and .page must be at least 1, and pages less than 2^31");
  if (x->k_heads < 1 || v_heads < 1 || x->dk < 1 || dv < 1 || x->dk > INT64_MAX / 4 ||
      dv > INT64_MAX / 4)
    return attn_reject_(e, ATTN_E_SHAPE, "params.k_heads, .v_heads, .dk and .dv must be positive");
  if (x->latent && (v_heads != x->k_heads || dv > x->dk || x->v_group || x->v_zero))
    return attn_reject_(e, ATTN_E_SHAPE,
                        "params.latent wants v_heads = k_heads, dv <= dk and nothing else of v");
  if (x->window < 0 || x->window > INT64_MAX / 4 || x->keep < 0 || x->keep > INT64_MAX / 4 ||
      (x->keep > 0 && x->window == 0))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.window and .keep must lie in 0..2^61; keep wants a window");
  c->window = x->window, c->keep = x->keep;
  c->k = attn_cache_rows_(x->k_dtype, x->pages, x->k_heads, x->page, x->dk);
  c->v = attn_cache_rows_(x->latent ? x->k_dtype : x->v_dtype, x->latent ? 0 : x->pages, v_heads,
                          x->page, dv);
  if (!attn_cache_store_(p, &c->k, &c->k_scales, x->k_group, x->k_zero, ATTN_CACHE_K_,
                         ATTN_CACHE_K_SCALE_) ||
      (!x->latent && !attn_cache_store_(p, &c->v, &c->v_scales, x->v_group, x->v_zero,
                                        ATTN_CACHE_V_, ATTN_CACHE_V_SCALE_)))
    return attn_reject_(
        e, ATTN_E_SHAPE,
        "params.k_group and .v_group must be 0 or a positive multiple of 32, k_zero "
        "and v_zero 0 or 1, all of I8 and I4 only but a group of E4M3");
  attn_cache_part_(p, ATTN_CACHE_HOLDERS_, x->pages, 4);
  if (p->bytes > (sizeof(void *) == 4 ? (int64_t)0x7fffffff : INT64_MAX / 4))
    return attn_reject_(e, ATTN_E_OVERFLOW,
                        "a cache of these sizes does not fit the address space");
  return 1;
}

ATTN_PUB_ size_t attn_cache_size(const attn_cache_params *params) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_cache_plan_ p;
  return attn_cache_plan_of_(&e, &p, params) ? (size_t)p.bytes : 0;
}

ATTN_PUB_ attn_status attn_cache_open(attn_cache *cache, void *memory, size_t size,
                                      const attn_cache_params *params, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_cache_plan_ p;
  attn_span_ own, sc;
  const attn_table_ *table;
  int workers;
  char *const base = (char *)memory;
  if (!attn_check_ctx_(&e, ctx, &table, &workers)) return attn_end_(ctx, &e);
  if (!cache || !memory) {
    attn_reject_(&e, ATTN_E_NULL, cache ? "memory must not be null" : "cache must not be null");
    return attn_end_(ctx, &e);
  }
  if (!attn_cache_plan_of_(&e, &p, params) ||
      !attn_check_array_(&e, cache, (int64_t)sizeof *cache, 1, "", &sc))
    return attn_end_(ctx, &e);
  if ((uintptr_t)memory % 4 != 0)
    attn_reject_(&e, ATTN_E_ALIGN, "memory must be aligned to 4");
  else if ((uint64_t)size < (uint64_t)p.bytes)
    attn_reject_(&e, ATTN_E_WORKSPACE, "size is less than attn_cache_size returns");
  else if (!attn_check_array_(&e, memory, p.bytes, 1, "", &own))
    return attn_end_(ctx, &e);
  else if (attn_overlap_(own, sc))
    attn_reject_(&e, ATTN_E_OVERLAP, "cache must not lie in memory");
  if (e.status != ATTN_OK) return attn_end_(ctx, &e);
  attn_cache *c = &p.cache;
  c->k.data = base + p.at[ATTN_CACHE_K_];
  if (attn_quantized_(c->k.dtype))
    c->k_scales.scale = (float *)(void *)(base + p.at[ATTN_CACHE_K_SCALE_]);
  if (params->k_zero) c->k_scales.zero = (float *)(void *)(base + p.at[ATTN_CACHE_K_ZERO_]);
  if (!params->latent) {
    c->v.data = base + p.at[ATTN_CACHE_V_];
    if (attn_quantized_(c->v.dtype))
      c->v_scales.scale = (float *)(void *)(base + p.at[ATTN_CACHE_V_SCALE_]);
    if (params->v_zero) c->v_scales.zero = (float *)(void *)(base + p.at[ATTN_CACHE_V_ZERO_]);
  }
  c->holders = (int32_t *)(void *)(base + p.at[ATTN_CACHE_HOLDERS_]);
  memset(c->holders, 0, (size_t)c->k.batch * sizeof *c->holders);
  *cache = *c;
  attn_report_(ctx, table, 1, "cache pages", "the only path");
  return attn_end_(ctx, &e);
}

ATTN_PUB_ attn_status attn_sequence_init(attn_sequence *sequence, int32_t *table, int64_t table_len,
                                         attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_span_ own, entries;
  const attn_table_ *t;
  int workers;
  if (!attn_check_ctx_(&e, ctx, &t, &workers)) return attn_end_(ctx, &e);
  if (!sequence || !table)
    attn_reject_(&e, ATTN_E_NULL,
                 sequence ? "table must not be null" : "sequence must not be null");
  else if (table_len < 1)
    attn_reject_(&e, ATTN_E_SHAPE, "table_len must be at least 1");
  else if (attn_check_array_(&e, sequence, 1, sizeof(void *), "sequence must be aligned", &own) &&
           attn_check_array_(&e, table, table_len, 4, "table must be aligned to its elements",
                             &entries)) {
    own.hi = own.lo + sizeof *sequence;
    if (attn_overlap_(own, entries))
      attn_reject_(&e, ATTN_E_OVERLAP, "sequence must not lie in its table");
  }
  if (e.status != ATTN_OK) return attn_end_(ctx, &e);
  memset(sequence, 0, sizeof *sequence);
  sequence->table = table, sequence->table_len = table_len;
  attn_report_(ctx, t, 1, "cache pages", "the only path");
  return attn_end_(ctx, &e);
}

/* ---- holders ---------------------------------------------------------------------------------*/

/* The next free page from next_free on, round the end; -1 = none. Pages that are given back move
 * next_free down to them, so that the search rarely passes a page that is held. */
ATTN_FUNC_ int64_t attn_page_free_(const attn_cache *c, int64_t from) {
  for (int64_t i = 0, p = from; i < c->k.batch; i++, p++) {
    if (p >= c->k.batch) p = 0;
    if (c->holders[p] == 0) return p;
  }
  return -1;
}

/* 1 when `need` pages are free. */
ATTN_FUNC_ int attn_pages_free_(const attn_cache *c, int64_t need) {
  for (int64_t i = 0, p = c->next_free; i < c->k.batch && need > 0; i++, p++) {
    if (p >= c->k.batch) p = 0;
    need -= c->holders[p] == 0;
  }
  return need <= 0;
}

/* Gives entries t0 .. t1 - 1 back, or nothing when one of them is not held. */
ATTN_FUNC_ int attn_pages_drop_(attn_error_ *e, attn_cache *c, const int32_t *table, int64_t t0,
                                int64_t t1) {
  for (int64_t t = t0; t < t1; t++) {
    if (!attn_page_legal_(c, table[t])) {
      while (t-- > t0) c->holders[table[t]]++;
      return attn_reject_(e, ATTN_E_PAGE, attn_page_reason_);
    }
    c->holders[table[t]]--;
  }
  for (int64_t t = t0; t < t1; t++)
    if (c->holders[table[t]] == 0 && table[t] < c->next_free) c->next_free = table[t];
  return 1;
}

/* The start of a call about one or two sequences. */
ATTN_FUNC_ int attn_check_held_(attn_error_ *e, attn_cache *checked, const attn_cache *cache,
                                const attn_sequence *s, const char *null, const attn_ctx *ctx,
                                const attn_table_ **table) {
  attn_span_ span[ATTN_CACHE_SPANS_], st;
  int workers;
  if (!attn_check_ctx_(e, ctx, table, &workers)) return 0;
  if (!cache) return attn_reject_(e, ATTN_E_NULL, "cache must not be null");
  if (!s) return attn_reject_(e, ATTN_E_NULL, null);
  *checked = *cache;
  if (!attn_check_cache_(e, checked, 0, span) || !attn_check_sequence_(e, checked, s, &st))
    return 0;
  for (int i = 0; i < ATTN_CACHE_SPANS_; i++)
    if (attn_overlap_(st, span[i]))
      return attn_reject_(e, ATTN_E_OVERLAP, "a sequence's table must not lie in the cache");
  return 1;
}

ATTN_PUB_ attn_status attn_cache_fork(attn_cache *cache, attn_sequence *child,
                                      const attn_sequence *parent, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_cache c;
  attn_span_ a, b;
  const attn_table_ *table;
  if (!attn_check_held_(&e, &c, cache, parent, "parent must not be null", ctx, &table) ||
      !attn_check_held_(&e, &c, cache, child, "child must not be null", ctx, &table))
    return attn_end_(ctx, &e);
  const int64_t held = attn_seq_held_(&c, parent);
  if (child->len != 0)
    attn_reject_(&e, ATTN_E_RANGE, "child.len must be 0");
  else if (c.window > 0 && child->table_len != parent->table_len)
    attn_reject_(&e, ATTN_E_RANGE, "in a ring child.table_len must equal parent.table_len");
  else if (child->table_len < held)
    attn_reject_(&e, ATTN_E_FULL, "child's table has no room for the pages of parent");
  else if (attn_check_array_(&e, child->table, child->table_len, 4, "", &a) &&
           attn_check_array_(&e, parent->table, parent->table_len, 4, "", &b) &&
           attn_overlap_(a, b))
    attn_reject_(&e, ATTN_E_OVERLAP, "child and parent must not share a table");
  else if (attn_check_pages_(&e, &c, parent))
    for (int64_t t = 0; t < held && e.status == ATTN_OK; t++)
      if (c.holders[parent->table[t]] == INT32_MAX)
        attn_reject_(&e, ATTN_E_PAGE, "a page is held 2^31 - 1 times");
  if (e.status != ATTN_OK) return attn_end_(ctx, &e);
  for (int64_t t = 0; t < held; t++) {
    child->table[t] = parent->table[t];
    c.holders[child->table[t]]++;
  }
  child->len = parent->len, child->high = parent->high;
  attn_report_(ctx, table, 1, "cache pages", "the only path");
  return attn_end_(ctx, &e);
}

ATTN_PUB_ attn_status attn_cache_rollback(attn_cache *cache, attn_sequence *sequence, int64_t len,
                                          attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_cache c;
  const attn_table_ *table;
  if (!attn_check_held_(&e, &c, cache, sequence, "sequence must not be null", ctx, &table))
    return attn_end_(ctx, &e);
  attn_sequence *const s = sequence;
  const int round = c.window > 0 && s->high > attn_seq_room_(&c, s);
  const int ring_lives = round && len > c.keep; /* keys that lie where others lay */
  if (len < 0 || len > s->len) {
    attn_reject_(&e, ATTN_E_ROLLBACK, "len must lie in 0..sequence.len");
  } else if (ring_lives && len < s->high - (attn_ring_(&c, s) - c.window)) {
    attn_reject_(&e, ATTN_E_ROLLBACK,
                 "len lies too far back: the ring has overwritten keys that its window would show");
  } else {
    const int64_t held = attn_seq_held_(&c, s), keep = ring_lives ? held : attn_pages_of_(&c, len);
    if (attn_pages_drop_(&e, &c, s->table, keep, held)) {
      cache->next_free = c.next_free;
      s->len = len;
      if (!ring_lives) s->high = len;
      attn_report_(ctx, table, 1, "cache pages", "the only path");
    }
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_ attn_status attn_cache_release(attn_cache *cache, attn_sequence *sequence,
                                         attn_ctx *ctx) {
  return attn_cache_rollback(cache, sequence, 0, ctx);
}
