/* families/latent/kept.h owns the checks that calls over sequences share: which rows of a call belong together, the
 * cache that keeps them, and that what appending writes is nobody else's. */

/* What a call reads or writes beside its operands. */
typedef struct attn_latent_more_ {
  int n;
  attn_span_ span[6 + 2 * ATTN_ROPE_SPANS_];
} attn_latent_more_;

ATTN_COLD_ void attn_latent_note_(attn_latent_more_ *more, attn_span_ span) {
  more->span[more->n++] = span;
}

ATTN_COLD_ int attn_latent_array_(attn_error_ *e, attn_latent_more_ *more, const void *data,
                                  int64_t n, int64_t size, const char *align) {
  attn_span_ span;
  if (!attn_check_array_(e, data, n, size, align, &span)) return 0;
  attn_latent_note_(more, span);
  return 1;
}

/* The cache that params name, before anything else is known. */
ATTN_COLD_ int attn_latent_open_(attn_error_ *e, attn_latent_ *l) {
  if (!l->cache != !l->held)
    return attn_reject_(e, ATTN_E_NULL, "params.cache and params.held go together");
  if (!l->cache) return 1;
  l->is = *l->cache;
  return l->is.k.data || attn_reject_(e, ATTN_E_NULL, "cache.k.data must not be null");
}

/* Which rows belong together, and what is kept of them; own: what describes the cache. */
ATTN_COLD_ int attn_latent_sequences_(attn_error_ *e, attn_latent_ *l, const attn_tensor *x,
                                      int64_t sequences, attn_latent_more_ *more,
                                      attn_latent_more_ *own) {
  attn_span_ span[ATTN_CACHE_SPANS_], table;
  l->batch = x->batch, l->len = x->len, l->n = l->indptr ? sequences : l->batch;
  if (sequences < 0 || sequences >= (int64_t)1 << 40 || (!l->indptr && sequences))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.sequences must lie in 0..2^40, and be 0 without params.indptr");
  if (l->indptr && l->batch != 1)
    return attn_reject_(e, ATTN_E_SHAPE, "the batch of rows must be 1 with params.indptr");
  if (l->indptr && (!attn_latent_array_(e, more, l->indptr, l->n + 1, 8,
                                        "params.indptr must be aligned to its elements") ||
                    !attn_check_indptr_(e, l->indptr, l->n, l->len,
                                        "params.indptr must rise from 0 to at most x.len")))
    return 0;
  if (!l->cache) return 1;
  if (!attn_check_cache_(e, &l->is, 1, span)) return 0;
  if ((uintptr_t)l->held % sizeof(void *))
    return attn_reject_(e, ATTN_E_ALIGN, "params.held must be aligned to its elements");
  for (int64_t b = 0; b < l->n; b++)
    if (!attn_check_sequence_(e, &l->is, &l->held[b], &table)) return 0;
  attn_latent_note_(own, span[ATTN_CACHE_HOLDERS_]);
  return attn_latent_array_(e, own, l->cache, (int64_t)sizeof *l->cache, 1, "") &&
         attn_latent_array_(e, own, l->held, attn_mul_(l->n, (int64_t)sizeof *l->held), 1, "");
}

/* Room for rows of k and v columns (v 0: latent ones), and that what appending writes is nobody else's; data: tables
 * may be read. */
ATTN_COLD_ int attn_latent_room_(attn_error_ *e, const attn_latent_ *l, int64_t k, int64_t v,
                                 attn_operand_ *op, int n, attn_latent_more_ *more,
                                 const attn_latent_more_ *own, const attn_ctx *ctx, int data) {
  const void *there = (const void *)(uintptr_t)ATTN_ALIGN_; /* rows that are still to be made */
  attn_append_ a;
  attn_append_params p;
  attn_span_ table;
  memset(&a, 0, sizeof a), memset(&p, 0, sizeof p);
  a.sequences = l->held, a.n = l->n, p.indptr = l->indptr;
  a.k = attn_view_(there, ATTN_F32, l->batch, 1, l->len, k);
  if (v) a.v = attn_view_(there, ATTN_F32, l->batch, 1, l->len, v);
  if (!(data ? attn_append_judge_(e, &a, l->cache, &p, ctx)
             : attn_append_plan_(e, &a, l->cache, &p, ctx, 0)) ||
      !attn_check_workspace_(e, ctx, &more->span[more->n++]))
    return 0;
  for (int64_t b = -own->n; b < l->n; b++) {
    if (b >= 0 && (!attn_check_sequence_(e, &l->is, &l->held[b], &table) ||
                   (data && !attn_check_pages_(e, &l->is, &l->held[b]))))
      return 0;
    if (b < 0) table = own->span[b + own->n];
    if (!attn_span_alone_(&table, op, n, more->span, more->n))
      return attn_reject_(e, ATTN_E_OVERLAP,
                          "the cache, its sequences and tables must not share memory with another "
                          "argument or ctx.workspace");
  }
  return 1;
}

/* The rows of the call into the cache; v without data: latent ones. */
ATTN_COLD_ int attn_stage_latent_append_(attn_stage_ *s, attn_latent_ *l, attn_tensor k,
                                         attn_tensor v) {
  attn_append_params p;
  if (!s->run) return 1;
  memset(&p, 0, sizeof p);
  p.indptr = l->indptr, l->grown = 1;
  return attn_stage_done_(s, attn_cache_append(l->cache, l->held, l->n, k, v, &p, &s->ctx));
}
