/* calls/cache_check.h owns what makes a cache and its sequences legal, and where a ring keeps a
 * token. Which pages are free and what a call does to them is in calls/cache.h. */

enum {
  ATTN_CACHE_K_,
  ATTN_CACHE_V_,
  ATTN_CACHE_K_SCALE_,
  ATTN_CACHE_K_ZERO_,
  ATTN_CACHE_V_SCALE_,
  ATTN_CACHE_V_ZERO_,
  ATTN_CACHE_HOLDERS_,
  ATTN_CACHE_SPANS_
};

/* Rows end to end, latent caches have none of v: then the value of a key is part of its row. */
ATTN_FUNC_ int attn_cache_latent_(const attn_cache *c) { return !c->v.data; }

/* One of the two tensors of a cache with its scales. */
ATTN_FUNC_ int attn_check_store_(attn_error_ *e, attn_tensor *t, attn_scales *s, const char *w,
                                 const attn_scales_words_ *ws, int output, attn_span_ *span,
                                 attn_span_ scales[2]) {
  return attn_check_stored_(e, t, w, span) && (!output || attn_check_rows_(e, t, w)) &&
         attn_check_scales_(e, s, t, ws, output, scales);
}

/* The fields of a cache, whose strides that are never used become 0; a latent cache leaves with the
 * view of its values in v, data still null. output = 1: rows will be written. Reads no holder. */
ATTN_FUNC_ int attn_check_cache_(attn_error_ *e, attn_cache *c, int output,
                                 attn_span_ span[ATTN_CACHE_SPANS_]) {
  static const char wk[] = ATTN_WORDS_("cache.k"), wv[] = ATTN_WORDS_("cache.v");
  static const attn_scales_words_ sk = ATTN_SCALES_WORDS_("cache.k_scales", "cache.k"),
                                  sv = ATTN_SCALES_WORDS_("cache.v_scales", "cache.v");
  memset(span, 0, ATTN_CACHE_SPANS_ * sizeof *span);
  if (!attn_check_store_(e, &c->k, &c->k_scales, wk, &sk, output, &span[ATTN_CACHE_K_],
                         &span[ATTN_CACHE_K_SCALE_]))
    return 0;
  if (c->k.heads < 1 || c->k.len < 1)
    return attn_reject_(e, ATTN_E_SHAPE, "cache.k.heads and .len must be at least 1");
  if (c->k.batch > INT32_MAX)
    return attn_reject_(e, ATTN_E_SHAPE, "cache.k.batch, its pages, must be less than 2^31");
  if (attn_cache_latent_(c)) {
    const int64_t dv = c->v.dim;
    if (dv < 1 || dv > c->k.dim)
      return attn_reject_(
          e, ATTN_E_SHAPE,
          "cache.v.dim of latent rows (cache.v.data null) must lie in 1..cache.k.dim");
    if (c->v_scales.scale || c->v_scales.zero)
      return attn_reject_(e, ATTN_E_DTYPE, "cache.v_scales must be all zero for latent rows");
    c->v = c->k, c->v.data = NULL, c->v.dim = dv;
    memset(&c->v_scales, 0, sizeof c->v_scales);
  } else {
    if (!attn_check_store_(e, &c->v, &c->v_scales, wv, &sv, output, &span[ATTN_CACHE_V_],
                           &span[ATTN_CACHE_V_SCALE_]))
      return 0;
    if (c->v.heads < 1 || c->v.batch != c->k.batch || c->v.len != c->k.len)
      return attn_reject_(
          e, ATTN_E_SHAPE,
          "cache.v must have the pages (batch) and the rows (len) of cache.k, and a "
          "head or more");
  }
  if (c->k.batch > 0 && !c->holders)
    return attn_reject_(e, ATTN_E_NULL, "cache.holders must not be null");
  if (!attn_check_array_(e, c->holders, c->k.batch, 4,
                         "cache.holders must be aligned to its elements",
                         &span[ATTN_CACHE_HOLDERS_]))
    return 0;
  if (c->next_free < 0 || c->next_free > c->k.batch)
    return attn_reject_(e, ATTN_E_RANGE, "cache.next_free must lie in 0..pages");
  if (c->window < 0 || c->window > INT64_MAX / 4)
    return attn_reject_(e, ATTN_E_RANGE, "cache.window must lie in 0..2^61");
  if (c->keep < 0 || c->keep > INT64_MAX / 4 || (c->keep > 0 && c->window == 0))
    return attn_reject_(e, ATTN_E_RANGE,
                        "cache.keep must lie in 0..2^61, and be 0 without a window");
  if (output)
    for (int i = 0; i < ATTN_CACHE_SPANS_; i++)
      for (int j = 0; j < i; j++)
        if (attn_overlap_(span[i], span[j]))
          return attn_reject_(e, ATTN_E_OVERLAP,
                              "cache.k, .v, their scales and .holders must not share memory");
  return 1;
}

/* Rows that a sequence's table has room for. */
ATTN_FUNC_ int64_t attn_seq_room_(const attn_cache *c, const attn_sequence *s) {
  return attn_mul_(s->table_len, c->k.len);
}

/* Of them those that go round, in a ring. */
ATTN_FUNC_ int64_t attn_ring_(const attn_cache *c, const attn_sequence *s) {
  return attn_seq_room_(c, s) - c->keep;
}

/* The row of its table at which a sequence keeps token j. */
ATTN_FUNC_ int64_t attn_slot_(const attn_cache *c, const attn_sequence *s, int64_t j) {
  if (c->window == 0 || j < c->keep) return j;
  return c->keep + (j - c->keep) % attn_ring_(c, s);
}

/* Pages that rows rows fill or begin. */
ATTN_FUNC_ int64_t attn_pages_of_(const attn_cache *c, int64_t rows) {
  return rows / c->k.len + (rows % c->k.len != 0);
}

/* The first entries of a sequence's table that name a page: all, once a ring has come round. */
ATTN_FUNC_ int64_t attn_seq_held_(const attn_cache *c, const attn_sequence *s) {
  const int64_t room = attn_seq_room_(c, s);
  return attn_pages_of_(c, s->high < room ? s->high : room);
}

/* The fields of a sequence, for a cache that has been checked; reads no entry of its table. */
ATTN_FUNC_ int attn_check_sequence_(attn_error_ *e, const attn_cache *c, const attn_sequence *s,
                                    attn_span_ *span) {
  if (s->table_len < 0)
    return attn_reject_(e, ATTN_E_RANGE, "a sequence's table_len must not be negative");
  if (s->table_len > 0 && !s->table)
    return attn_reject_(e, ATTN_E_NULL, "a sequence's table must not be null");
  if (!attn_check_array_(e, s->table, s->table_len, 4,
                         "a sequence's table must be aligned to its elements", span))
    return 0;
  const int64_t room = attn_seq_room_(c, s);
  if (s->len < 0 || s->len > INT64_MAX / 4)
    return attn_reject_(e, ATTN_E_RANGE, "a sequence's len must not be negative or above 2^61");
  if (c->window == 0 && s->len > room)
    return attn_reject_(e, ATTN_E_RANGE, "a sequence's len is beyond the room of its table");
  if (c->window > 0 && room <= c->keep)
    return attn_reject_(e, ATTN_E_RANGE,
                        "a sequence's table has no room for a ring: table_len pages must hold more "
                        "rows than cache.keep");
  if (s->high != s->len) { /* only a ring that has come round and has then gone back */
    if (s->high < s->len || s->high > INT64_MAX / 4 || c->window == 0 || s->high <= room ||
        s->high - s->len > room - c->keep - c->window)
      return attn_reject_(
          e, ATTN_E_RANGE,
          "a sequence's high must be its len, or what a ring that came round and was "
          "rolled back has held");
  } else if (c->window > 0 && s->len > room && room - c->keep < c->window) {
    return attn_reject_(e, ATTN_E_RANGE, "a sequence's table is too short for cache.window");
  }
  return 1;
}

/* 1 when the entry names a page of the cache that somebody holds. */
ATTN_FUNC_ int attn_page_legal_(const attn_cache *c, int32_t page) {
  return page >= 0 && page < c->k.batch && c->holders[page] > 0;
}

static const char attn_page_reason_[] =
    "a sequence's table names a page that is not in the cache, or that fewer sequences hold than "
    "name it";

/* Every entry that a sequence holds. */
ATTN_FUNC_ int attn_check_pages_(attn_error_ *e, const attn_cache *c, const attn_sequence *s) {
  const int64_t held = attn_seq_held_(c, s);
  for (int64_t t = 0; t < held; t++)
    if (!attn_page_legal_(c, s->table[t])) return attn_reject_(e, ATTN_E_PAGE, attn_page_reason_);
  return 1;
}
