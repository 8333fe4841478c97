/* engine/storage.h owns where the rows of a sequence lie: end to end with those of other sequences, in
 * the pages of a cache, or as a tensor says. */

/* Where key `key` of batch entry `batch` lies: its row of k is attn_at_(&a->k, *page, head, *row), and
 * so for v and the scales. Returns how many keys from this one on lie in consecutive rows. */
ATTN_FUNC_ int64_t attn_storage_(const attn_softmax_ *a, int64_t batch, int64_t key, int64_t *page,
                                 int64_t *row) {
  const attn_sequences_ *s = a->seq;
  *page = batch, *row = key;
  if (!ATTN_HAS_CACHE || !s || !s->cached) return INT64_MAX;
  const attn_sequence *x = &s->cached[batch];
  if (s->window && key >= s->sinks) /* a ring ends where a page ends */
    key = s->sinks + (key - s->sinks) % (x->table_len * s->page - s->sinks);
  *page = x->table[key / s->page], *row = key % s->page;
  return s->page - *row;
}

/* Queries and keys of sequence b. */
ATTN_FUNC_ int64_t attn_queries_(const attn_softmax_ *a, int64_t b) {
  const attn_sequences_ *s = a->seq;
  return s && s->q ? s->q[b + 1] - s->q[b] : a->q.len;
}
ATTN_FUNC_ int64_t attn_keys_(const attn_softmax_ *a, int64_t b) {
  const attn_sequences_ *s = a->seq;
  return !s          ? a->k.len
         : s->cached ? attn_add_(s->cached[b].len, s->coming ? attn_queries_(a, b) : 0)
         : s->kv     ? s->kv[b + 1] - s->kv[b]
                     : a->k.len;
}

ATTN_FUNC_ void attn_skip_rows_(attn_tensor *t, int64_t rows, int64_t len) {
  if (t->data) t->data = attn_at_(t, 0, 0, rows);
  t->len = len;
}

ATTN_FUNC_ void attn_skip_scales_(attn_scales *s, int64_t rows) {
  if (s->scale) s->scale += rows * s->stride_len;
  if (s->zero) s->zero += rows * s->stride_len;
}

/* A copy of the problem a becomes that of sequence `batch`, whichever it was of before. */
ATTN_FUNC_ void attn_problem_turn_(const attn_softmax_ *a, int64_t batch, attn_softmax_ *own) {
  const attn_sequences_ *s = a->seq;
  const int64_t len = attn_keys_(a, batch);
  int64_t queries = a->q.len;
  own->k.len = own->v.len = len;
  if (s->q) {
    queries = attn_queries_(a, batch);
    own->q = a->q, own->o = a->o, own->lse = a->lse;
    attn_skip_rows_(&own->q, s->q[batch], queries);
    attn_skip_rows_(&own->o, s->q[batch], queries);
    attn_skip_rows_(&own->lse, s->q[batch], queries);
    own->tiles = (a->group * queries + ATTN_TILE_ - 1) / ATTN_TILE_;
  } else if ((s->cached || s->by_lengths) && a->q_len) {
    queries = a->q_len[batch];
  }
  if (s->kv) {
    own->k = a->k, own->v = a->v;
    own->k_scales = a->k_scales, own->v_scales = a->v_scales;
    attn_skip_rows_(&own->k, s->kv[batch], len);
    attn_skip_rows_(&own->v, s->kv[batch], len);
    attn_skip_scales_(&own->k_scales, s->kv[batch]);
    attn_skip_scales_(&own->v_scales, s->kv[batch]);
  }
  const int64_t keys = s->by_lengths && a->kv_len ? a->kv_len[batch] : len;
  if (s->aligned) own->q_off = keys - queries;
  if (s->offs) own->q_off = s->offs[batch];
}

/* The problem of one sequence: a itself when all are alike, else a copy with its own rows, lengths and
 * offset, in which `batch` stays its index. */
ATTN_FUNC_ const attn_softmax_ *attn_problem_(const attn_softmax_ *a, int64_t batch,
                                              attn_softmax_ *own) {
  if (!a->seq) return a;
  *own = *a;
  attn_problem_turn_(a, batch, own);
  return own;
}
