/* families/selection/cache_evict.h owns the moving of rows that stay inside the pages of sequences, and the pages
 * that this frees. */

typedef struct attn_cache_evict_ {
  attn_append_ a;   /* cache and sequences, checked */
  attn_evict_ with; /* what moves beside them */
  const int32_t *kept;
  int64_t capacity;
} attn_cache_evict_;

/* Rows that sequence b keeps: as many in every head. */
ATTN_FUNC_ int64_t attn_cache_evict_rows_(const attn_cache_evict_ *x, int64_t b) {
  const int32_t *kept = x->kept + b * x->a.c.k.heads * x->capacity;
  int64_t n = 0;
  while (n < x->capacity && kept[n] >= 0) n++;
  return n;
}

/* Whether one of the rows that stay moves to entry t of the table. They ascend: if any of a page does, its last
 * does. */
ATTN_FUNC_ int attn_cache_evict_writes_(const attn_cache_evict_ *x, int64_t b, int64_t t,
                                        int64_t rows) {
  const int64_t heads = x->a.c.k.heads, end = attn_min64_((t + 1) * x->a.c.k.len, rows);
  for (int64_t h = 0; h < heads && end > t * x->a.c.k.len; h++)
    if (x->kept[(b * heads + h) * x->capacity + end - 1] != end - 1) return 1;
  return 0;
}

/* One head of one sequence. */
ATTN_FUNC_ void attn_cache_evict_item_(void *job, int worker, int64_t index) {
  const attn_cache_evict_ *x = (const attn_cache_evict_ *)job;
  const attn_cache *c = &x->a.c;
  const int64_t b = index / c->k.heads, h = index % c->k.heads, page = c->k.len;
  const int32_t *kept = x->kept + index * x->capacity, *table = x->a.sequences[b].table;
  (void)worker;
  for (int64_t r = 0; r < x->capacity && kept[r] >= 0; r++) {
    const int64_t from[2] = {table[kept[r] / page], kept[r] % page};
    const int64_t to[2] = {table[r / page], r % page};
    if (kept[r] == r) continue;
    attn_cache_move_(&c->k, &c->k_scales, h, from, to);
    attn_cache_move_(&c->v, &c->v_scales, h, from, to);
  }
}

/* Rows of each head, and pages: every sequence steps off those that it writes to, then off those that it gives back, which
 * come free behind the last copy; so one that is named too often shows. Then all step on again. */
ATTN_COLD_ int attn_cache_evict_judge_(attn_error_ *e, const attn_cache_evict_ *x) {
  const attn_cache *c = &x->a.c;
  int64_t need = 0, steps[2] = {0, 0};
  int ok = 1;
  for (int64_t b = 0; b < x->a.n; b++) {
    const int64_t rows = attn_cache_evict_rows_(x, b);
    for (int64_t i = 0; i < c->k.heads * x->capacity; i++) {
      const int64_t r = i % x->capacity;
      const int32_t *at = x->kept + b * c->k.heads * x->capacity + i;
      if (r < rows ? *at < (r ? at[-1] + 1 : 0) || *at >= x->a.sequences[b].len : *at != -1)
        return attn_reject_(e, ATTN_E_INDEX,
                            "kept must ascend in 0..len-1, with -1 behind the last, and have as "
                            "many in every head of a sequence");
    }
    if (!attn_check_pages_(e, c, &x->a.sequences[b])) return 0;
  }
  for (int walk = 0; walk < 4; walk++) {
    const int on = walk / 2, gives = walk % 2;
    for (int64_t b = 0; b < x->a.n && (on ? steps[gives] > 0 : ok); b++) {
      const attn_sequence *s = &x->a.sequences[b];
      const int64_t rows = attn_cache_evict_rows_(x, b), stay = attn_pages_of_(c, rows);
      const int64_t end = gives ? attn_seq_held_(c, s) : stay;
      for (int64_t t = gives ? stay : 0; t < end && (on ? steps[gives] > 0 : ok); t++) {
        if (!gives && !attn_cache_evict_writes_(x, b, t, rows)) continue;
        if (on) {
          c->holders[s->table[t]]++, steps[gives]--;
        } else if (attn_page_legal_(c, s->table[t])) {
          steps[gives]++, need += c->holders[s->table[t]]-- > 1 && !gives;
        } else {
          ok = attn_reject_(e, ATTN_E_PAGE, attn_page_reason_);
        }
      }
    }
  }
  return ok && (attn_pages_free_(c, need) ||
                attn_reject_(e, ATTN_E_FULL,
                             "the cache has not enough free pages for copies of shared ones"));
}

ATTN_COLD_ int attn_cache_evict_check_(attn_error_ *e, attn_cache_evict_ *x,
                                       const attn_cache *cache, attn_cache_evict_params *p,
                                       const attn_ctx *ctx) {
  enum { LISTS = ATTN_CACHE_SPANS_, STRUCTS, SEQUENCES, FREED, SPANS };
  const int64_t any = ATTN_ANY_;
  attn_cache *c = &x->a.c;
  attn_arguments_ l;
  attn_span_ span[SPANS];
  attn_tensor places, kept;
  int64_t longest = 0;
  memset(span, 0, sizeof span), attn_clear_(&l, sizeof l);
  if (!attn_check_ctx_(e, ctx, &x->a.table, &x->a.workers)) return 0;
  if (!cache) return attn_reject_(e, ATTN_E_NULL, "cache must not be null");
  *c = *cache;
  if (!attn_check_cache_(e, c, 1, span)) return 0;
  if (x->a.n < 0 || x->a.n >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_SHAPE, "n must lie in 0..2^40");
  if (x->a.n > 0 && !x->a.sequences)
    return attn_reject_(e, ATTN_E_NULL, "sequences must not be null");
  if (c->window)
    return attn_reject_(e, ATTN_E_RANGE, "cache.window must be 0: a ring forgets by itself");
  if (c->v.heads != c->k.heads)
    return attn_reject_(e, ATTN_E_HEADS, "cache.v.heads must equal cache.k.heads");
  if (x->capacity < 1 || x->capacity > INT32_MAX)
    return attn_reject_(e, ATTN_E_RANGE, "capacity must lie in 1..2^31-1");
  if ((uintptr_t)x->a.sequences % sizeof(void *))
    return attn_reject_(e, ATTN_E_ALIGN, "sequences must be aligned to its elements");
  if (!attn_check_array_(e, cache, (int64_t)sizeof *cache, 1, "", &span[STRUCTS]) ||
      !attn_check_array_(e, x->a.sequences, attn_mul_(x->a.n, (int64_t)sizeof *x->a.sequences), 1,
                         "", &span[SEQUENCES]) ||
      !attn_check_array_(e, p->freed, x->a.n, 8, "params.freed must be aligned to its elements",
                         &span[FREED]) ||
      !attn_check_kept_(e, &l, &kept, x->kept, x->a.n, c->k.heads, x->capacity, ATTN_OUT_))
    return 0;
  span[LISTS] = l.op[0].span; /* beside the cache it is only read */
  for (int64_t b = 0; b < x->a.n; b++) {
    attn_span_ table;
    if (!attn_check_sequence_(e, c, &x->a.sequences[b], &table)) return 0;
    longest = attn_max64_(longest, x->a.sequences[b].len);
  }
  if (longest > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "a sequence must be shorter than 2^31");
  places = attn_bhtd(p->positions, ATTN_F32, x->a.n, c->k.heads, p->places, 1);
  if ((p->more.data && p->more.len < longest) || (p->positions && p->places < longest))
    return attn_reject_(e, ATTN_E_SHAPE,
                        "params.more and .positions must have a row for each token of the longest "
                        "sequence");
  l.n = 0;
  if (!attn_check_argument_(e, &l, &p->more, ATTN_WORDS_("params.more"), ATTN_OUT_ | ATTN_OPTIONAL_,
                            x->a.n, c->k.heads, any, any,
                            "params.more must be [n, cache.k.heads, ., .]") ||
      !attn_check_argument_(e, &l, &places, ATTN_WORDS_("params.positions"),
                            ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, "") ||
      !attn_check_apart_(e, ctx, l.op, l.n, span, SPANS))
    return 0;
  if (p->more.data) x->with.rows[x->with.n++] = p->more;
  if (p->positions) x->with.rows[x->with.n++] = places;
  for (int i = LISTS; i < SPANS; i++)
    for (int j = 0; j < i; j++)
      if (attn_overlap_(span[i], span[j]))
        return attn_reject_(e, ATTN_E_OVERLAP,
                            "kept, params.freed, sequences and cache must share no memory");
  attn_span_ all[SPANS + 2];
  memcpy(all, span, sizeof span), all[SPANS] = l.op[0].span, all[SPANS + 1] = l.op[1].span;
  return attn_append_apart_(e, &x->a, all, SPANS + 2) && attn_cache_evict_judge_(e, x);
}

ATTN_PUB_COLD_ attn_status attn_cache_evict(attn_cache *cache, attn_sequence *sequences, int64_t n,
                                            const int32_t *kept, int64_t capacity,
                                            const attn_cache_evict_params *params, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_cache_evict_params p;
  attn_cache_evict_ x;
  attn_append_run_ run;
  attn_clear_(&x, sizeof x), attn_clear_(&p, sizeof p), attn_clear_(&run, sizeof run);
  if (params) p = *params;
  x.a.sequences = sequences, x.a.n = n, x.kept = kept, x.capacity = capacity;
  if (!attn_cache_evict_check_(&e, &x, cache, &p, ctx)) return attn_end_(ctx, &e);
  const int64_t items = n * x.a.c.k.heads;
  const int workers = attn_pieces_(x.a.workers, items);
  for (int64_t b = 0; b < n; b++) {
    const int64_t rows = attn_cache_evict_rows_(&x, b), stay = attn_pages_of_(&x.a.c, rows);
    for (run.entry = 0; run.entry < stay; run.entry++)
      if (attn_cache_evict_writes_(&x, b, run.entry, rows))
        attn_append_page_(&x.a, &sequences[b], &run, attn_seq_held_(&x.a.c, &sequences[b]));
  }
  attn_for_(ctx, workers, items, attn_cache_evict_item_, &x);
  x.with.kept = kept, x.with.capacity = capacity, x.with.heads = x.a.c.k.heads;
  if (x.with.n) attn_for_(ctx, workers, items, attn_evict_item_, &x.with);
  for (int64_t b = 0; b < n; b++) {
    attn_sequence *s = &sequences[b];
    const int64_t rows = attn_cache_evict_rows_(&x, b), held = attn_seq_held_(&x.a.c, s);
    attn_pages_drop_(&e, &x.a.c, s->table, attn_pages_of_(&x.a.c, rows), held);
    if (p.freed) p.freed[b] = held - attn_pages_of_(&x.a.c, rows);
    s->len = s->high = rows;
  }
  cache->next_free = x.a.c.next_free;
  attn_report_(ctx, x.a.table, workers, "rows to the front of their pages", "the only path");
  return attn_end_(ctx, &e);
}
