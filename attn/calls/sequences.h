/* calls/sequences.h owns the checks of sequences that are not alike: rows end to end
 * (attn_ragged) or positions of their own (q_offs), and what cannot be combined with them. */

/* Offsets 0 = x[0] <= .. <= x[n] <= most. */
ATTN_FUNC_ int attn_check_indptr_(attn_error_ *e, const int64_t *x, int64_t n, int64_t most,
                                  const char *reason) {
  int64_t at = 0;
  if (x[0] != 0) return attn_reject_(e, ATTN_E_INDEX, reason);
  for (int64_t b = 1; b <= n; at = x[b++])
    if (x[b] < at || x[b] > most) return attn_reject_(e, ATTN_E_INDEX, reason);
  return 1;
}

/* Whether batch entries are calls of their own: with lengths or with offsets that differ. */
ATTN_FUNC_ int attn_unlike_(const attn_sdpa_params *p) {
  return p->ragged.sequences || p->q_offs || p->align_lengths;
}

/* What sequences that are not alike go without. */
ATTN_FUNC_ int attn_check_alike_(attn_error_ *e, const attn_softmax_ *a,
                                 const attn_sdpa_params *p) {
  static const char *const reason =
      "params.schedule, map, relative, xl, gaussian and span must be absent with sequences of "
      "unequal length";
  if (a->reshape)
    return attn_reject_(
        e, ATTN_E_RANGE,
        "params.attention.ragged, q_offs and align_lengths are for attn_sdpa alone");
  if (!p->ragged.q_indptr && !a->seq) /* entries of one shape */
    return !p->schedule || attn_reject_(e, ATTN_E_RANGE,
                                        "params.schedule has one q_off: q_offs and align_lengths "
                                        "must be absent");
  if (p->schedule || p->map.data || (attn_terms_of_(p) & ~attn_terms_with_(ATTN_TAKES_RAGGED_)))
    return attn_reject_(e, ATTN_E_RANGE, reason);
  return 1;
}

/* params.q_offs of n entries. */
ATTN_FUNC_ int attn_check_offs_(attn_error_ *e, attn_sequences_ *s, const int64_t *offs, int64_t n,
                                attn_span_ *span) {
  if (!attn_check_array_(e, offs, n, 8, "params.q_offs must be aligned to its elements", span))
    return 0;
  for (int64_t b = 0; offs && b < n; b++) {
    if (offs[b] <= -((int64_t)1 << 40) || offs[b] >= (int64_t)1 << 40)
      return attn_reject_(e, ATTN_E_RANGE, "params.q_offs must lie within 2^40 of 0");
    if (b == 0 || offs[b] < s->off_lo) s->off_lo = offs[b];
    if (b == 0 || offs[b] > s->off_hi) s->off_hi = offs[b];
  }
  s->offs = offs;
  return 1;
}

/* Batches of q, k and v, which have been checked, and what sequences they make: a->seq, and the extents
 * that masks broadcast to. Keys in the pages of a cache are there already. Reads the offsets. */
ATTN_FUNC_ int attn_check_sequences_(attn_error_ *e, attn_softmax_ *a, const attn_sdpa_params *p,
                                     attn_spans_ *all, int64_t full[4]) {
  const attn_ragged *r = &p->ragged;
  attn_sequences_ *s = &a->sequences;
  const int ragged = r->sequences || r->q_indptr || r->kv_indptr, cached = a->seq != NULL;
  const int64_t n = ragged ? r->sequences : a->q.batch;
  full[0] = n, full[1] = a->q.heads, full[2] = a->q.len, full[3] = a->k.len;
  if (!ragged && !cached && !attn_unlike_(p)) {
    if (a->k.batch != n) return attn_reject_(e, ATTN_E_SHAPE, "k.batch must equal q.batch");
    if (a->v.batch != n) return attn_reject_(e, ATTN_E_SHAPE, "v.batch must equal q.batch");
    return 1;
  }
  if (!attn_check_alike_(e, a, p)) return 0;
  attn_span_ *span = attn_spans_more_(all, 3);
  if (ragged) {
    if (n < 0 || n >= (int64_t)1 << 40)
      return attn_reject_(e, ATTN_E_RANGE, "params.ragged.sequences must lie in 0..2^40");
    if (!r->q_indptr)
      return attn_reject_(e, ATTN_E_NULL, "params.ragged.q_indptr must not be null");
    if (p->q_len)
      return attn_reject_(e, ATTN_E_RANGE, "params.q_len must be null with params.ragged");
    if (r->kv_indptr && p->kv_len)
      return attn_reject_(e, ATTN_E_RANGE,
                          "params.kv_len must be null with params.ragged.kv_indptr");
    if (a->q.batch != 1)
      return attn_reject_(e, ATTN_E_SHAPE, "q.batch must be 1 with params.ragged");
    if (!attn_check_array_(e, r->q_indptr, n + 1, 8,
                           "params.ragged.q_indptr must be aligned to its elements", &span[0]) ||
        !attn_check_array_(e, r->kv_indptr, n + 1, 8,
                           "params.ragged.kv_indptr must be aligned to its elements", &span[1]) ||
        !attn_check_indptr_(e, r->q_indptr, n, a->q.len,
                            "params.ragged.q_indptr must rise from 0 to at most q.len") ||
        (r->kv_indptr &&
         !attn_check_indptr_(e, r->kv_indptr, n, a->k.len,
                             "params.ragged.kv_indptr must rise from 0 to at most k.len")))
      return 0;
    s->q = r->q_indptr, s->kv = r->kv_indptr;
  }
  if (cached && a->sequences.n != n)
    return attn_reject_(e, ATTN_E_SHAPE, "q.batch must be n, with params.ragged 1");
  if (!cached) {
    if (a->k.batch != (r->kv_indptr ? 1 : n))
      return attn_reject_(e, ATTN_E_SHAPE,
                          ragged ? "k.batch must be 1 with params.ragged.kv_indptr, else "
                                   "params.ragged.sequences"
                                 : "k.batch must equal q.batch");
    if (a->v.batch != a->k.batch)
      return attn_reject_(e, ATTN_E_SHAPE, "v.batch must equal k.batch");
  }
  if (!attn_check_offs_(e, s, p->q_offs, n, &span[2])) return 0;
  s->n = n, s->rows = a->q.len;
  s->aligned = !p->has_q_off && !p->q_offs && p->causal != ATTN_CAUSAL_START;
  s->by_lengths = p->align_lengths != 0;
  a->seq = s;
  if (r->q_indptr) full[2] = 0;
  if (r->kv_indptr || cached) full[3] = 0;
  for (int64_t b = 0; b < n; b++) {
    const int64_t queries = attn_queries_(a, b), keys = attn_keys_(a, b);
    if (queries > full[2]) full[2] = queries;
    if (keys > full[3]) full[3] = keys;
  }
  return 1;
}

/* The scales of all keys that sequences have. */
ATTN_FUNC_ int attn_check_sequence_scales_(attn_error_ *e, const attn_softmax_ *a,
                                           const int32_t *kv_len, const char *reason_k,
                                           const char *reason_v) {
  attn_softmax_ own;
  int64_t page, row;
  for (int64_t b = 0; b < a->seq->n; b++) {
    attn_problem_(a, b, &own);
    const int64_t keys = kv_len ? kv_len[b] : own.k.len;
    const attn_sequences_ *q = a->seq;
    const int64_t ring = q->window ? q->cached[b].table_len * q->page - q->sinks : keys;
    for (int64_t j = 0, n; j < keys; j += n) {
      if (q->window && j >= q->sinks && j < keys - ring) j = keys - ring; /* once round is enough */
      n = attn_storage_(&own, b, j, &page, &row);
      if (n > keys - j) n = keys - j;
      for (int64_t h = 0; attn_quantized_(own.k.dtype) && h < own.k.heads; h++)
        if (!attn_scales_legal_(&own.k_scales, own.k.dim, page, h, row, n))
          return attn_reject_(e, ATTN_E_SCALE, reason_k);
      for (int64_t h = 0; attn_quantized_(own.v.dtype) && h < own.v.heads; h++)
        if (!attn_scales_legal_(&own.v_scales, own.v.dim, page, h, row, n))
          return attn_reject_(e, ATTN_E_SCALE, reason_v);
    }
  }
  return 1;
}
