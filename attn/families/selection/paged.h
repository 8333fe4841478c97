/* families/selection/paged.h owns rows that lie in the pages of a cache, as selections read them, and the rules of a
 * cache that params name. */

/* Rows of x with their scales: those of entry b by the table of held[b], or null: as x says. */
typedef struct attn_paged_ {
  attn_tensor x;
  attn_scales scales;
  const attn_sequence *held;
} attn_paged_;

/* Where row i of entry b lies; how many from it on are neighbours. */
ATTN_FUNC_ int64_t attn_paged_at_(const attn_paged_ *p, int64_t b, int64_t i, int64_t *page,
                                  int64_t *row) {
  *page = b, *row = i;
  if (!p->held) return INT64_MAX;
  *page = p->held[b].table[i / p->x.len], *row = i % p->x.len;
  return p->x.len - *row;
}

/* Rows i .. i + n - 1 of a head as floats, one behind the other; by[0 .. n - 1], or null: the scale of each, which
 * then is not in them. */
ATTN_FUNC_ void attn_paged_widen_(const attn_table_ *f, const attn_paged_ *p, float *to, float *by,
                                  int64_t b, int64_t h, int64_t i, int64_t n) {
  int64_t page, row;
  for (int64_t e = 0, m; e < n; e += m) {
    m = attn_min64_(attn_paged_at_(p, b, i + e, &page, &row), n - e);
    const attn_rows_scale_ s = attn_scales_at_(&p->scales, page, h, row);
    f->widen(to + e * p->x.dim, attn_at_(&p->x, page, h, row), p->x.stride_len, NULL, m, p->x.dim,
             p->x.dtype, by ? NULL : &s);
    for (int64_t r = 0; by && r < m; r++) by[e + r] = s.scale[r * s.stride];
  }
}

/* The keys of a problem. */
ATTN_FUNC_ attn_paged_ attn_paged_keys_(const attn_softmax_ *f) {
  attn_paged_ p = {f->k, f->k_scales, NULL};
  if (f->seq) p.x.len = f->seq->page, p.held = f->seq->cached;
  return p;
}

/* A cache that params name and n sequences of it, from which what is written (out) lies apart; p: its keys. data:
 * tables may be read. */
ATTN_COLD_ int attn_paged_check_(attn_error_ *e, attn_paged_ *p, const attn_cache *cache,
                                 const attn_sequence *held, int64_t n, const attn_span_ *out,
                                 int outs, int data) {
  attn_span_ span[ATTN_CACHE_SPANS_ + 1];
  attn_cache c;
  if (!cache || !held)
    return attn_reject_(e, ATTN_E_NULL, "a cache and its sequences go together in params");
  if (n < 0 || n >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_SHAPE, "sequences of a cache must be 0..2^40");
  if ((uintptr_t)held % sizeof(void *))
    return attn_reject_(e, ATTN_E_ALIGN, "sequences must be aligned to its elements");
  c = *cache;
  if (!attn_check_cache_(e, &c, 0, span) ||
      !attn_check_array_(e, held, attn_mul_(n, (int64_t)sizeof *held), 1, "",
                         &span[ATTN_CACHE_SPANS_]))
    return 0;
  if (c.window)
    return attn_reject_(e, ATTN_E_RANGE, "cache.window must be 0: a ring forgets by itself");
  for (int64_t b = -(ATTN_CACHE_SPANS_ + 1); b < n; b++) {
    attn_span_ table;
    if (b < 0) table = span[b + ATTN_CACHE_SPANS_ + 1];
    if (b >= 0 && (!attn_check_sequence_(e, &c, &held[b], &table) ||
                   (data && !attn_check_pages_(e, &c, &held[b]))))
      return 0;
    for (int i = 0; i < outs; i++)
      if (attn_overlap_(table, out[i]))
        return attn_reject_(e, ATTN_E_OVERLAP,
                            "an output and ctx.workspace must not share memory with a cache, its "
                            "sequences or their tables");
  }
  p->x = c.k, p->scales = c.k_scales, p->held = held;
  return 1;
}

/* The tokens of the longest. */
ATTN_COLD_ int64_t attn_paged_longest_(const attn_sequence *held, int64_t n) {
  int64_t longest = 0;
  for (int64_t b = 0; b < n; b++) longest = attn_max64_(longest, held[b].len);
  return longest;
}
