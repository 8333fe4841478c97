/* families/training/project_backward.h owns the gradients of a product with weights inside a larger call, over all its
 * rows or one run of them after the other. */

/* A gradient of something learned, summed over runs of rows: in the output itself where that is f32, else beside it,
 * so that it is rounded once. */
typedef struct attn_learned_ {
  attn_tensor out, sum; /* out.data null: not asked for */
  int accumulate, begun;
} attn_learned_;

ATTN_COLD_ attn_learned_ attn_learned_open_(attn_stage_ *s, attn_tensor out, int accumulate) {
  attn_learned_ l = {out, out, accumulate, accumulate};
  if (!out.data || out.dtype == ATTN_F32) return l;
  l.sum = attn_stage_tensor_(s, out.batch, out.heads, out.len, out.dim), l.begun = 0;
  return l;
}

ATTN_COLD_ int attn_learned_close_(attn_stage_ *s, const attn_learned_ *l) {
  return l->sum.data == l->out.data || attn_stage_shares_(s, l->out, l->sum, l->accumulate);
}

/* Rows that may be read by nobody: whether one of them is not finite, and copies in which it is 0. */
typedef struct attn_seen_ {
  const attn_table_ *table;
  attn_tensor x, d, to; /* to: f32 */
  int copies;
  unsigned char *bad; /* [batch] */
  char *memory;
} attn_seen_;

ATTN_FUNC_ void attn_seen_item_(void *job, int worker, int64_t index) {
  const attn_seen_ *a = (const attn_seen_ *)job;
  float *room = (float *)(void *)(a->memory + worker * attn_piece_(a->x.dim, sizeof(float)));
  unsigned char bad = 0;
  for (int64_t i = 0; i < a->x.len; i++) {
    const char *from = attn_at_(&a->x, index, 0, i);
    float *row = a->copies ? (float *)(void *)attn_at_(&a->to, index, 0, i) : room;
    a->table->widen(row, from, 0, NULL, 1, a->x.dim, a->x.dtype, NULL);
    const int fine = a->table->finite(row, a->x.dim, 1, a->x.dim);
    bad |= !fine;
    const float *d = (const float *)(const void *)attn_at_(&a->d, index, 0, i);
    int read = 0;
    for (int64_t c = 0; !fine && c < a->d.dim; c++) read |= d[c] != 0.0f;
    if (!fine && !read) memset(row, 0, (size_t)a->x.dim * sizeof(float));
  }
  if (!a->copies) a->bad[index] = bad;
}

/* x becomes a copy without rows that are not finite and whose d, of f32, is 0: nobody has read them. There is none mostly,
 * and then no copy. */
ATTN_COLD_ int attn_stage_seen_(attn_stage_ *s, attn_tensor *x, attn_tensor d) {
  const int64_t each = attn_piece_(x->dim, sizeof(float));
  attn_seen_ a;
  attn_clear_(&a, sizeof a);
  a.table = s->table, a.x = *x, a.d = d;
  a.to = attn_stage_tensor_(s, x->batch, 1, x->len, x->dim);
  a.bad = (unsigned char *)attn_stage_take_(s, x->batch, 1);
  if (!attn_stage_for_(s, x->batch, attn_seen_item_, &a, each, &a.memory)) return 0;
  for (int64_t b = 0; s->run && b < x->batch; b++) a.copies |= a.bad[b];
  if (!a.copies) return 1;
  *x = a.to;
  return attn_stage_for_(s, x->batch, attn_seen_item_, &a, each, &a.memory);
}

/* Rows of x and what reaches y = x w + bias: to w, which lies as w does, */
ATTN_COLD_ int attn_stage_learn_(attn_stage_ *s, attn_learned_ *l, attn_tensor w, attn_tensor x,
                                 attn_tensor d_y) {
  const int turned = attn_turn_back_(&w);
  if (!l->out.data) return 1;
  const int more = l->begun;
  l->begun = 1;
  return attn_stage_outer_(s, l->sum, turned ? d_y : x, turned ? x : d_y, 1.0f, more);
}

/* to bias, */
ATTN_COLD_ int attn_stage_learn_bias_(attn_stage_ *s, attn_learned_ *l, attn_tensor d_y) {
  if (!l->out.data) return 1;
  const int more = l->begun;
  l->begun = 1;
  return attn_stage_shares_(s, l->sum, d_y, more);
}

/* and to x: d_x = d_y w^T, or is added to, d_x f32 then. */
ATTN_COLD_ int attn_stage_back_product_(attn_stage_ *s, attn_tensor d_x, attn_tensor d_y,
                                        attn_tensor w, int more) {
  const int64_t mark = s->used;
  attn_gemm_params p;
  attn_clear_(&p, sizeof p);
  p.w_transposed = !attn_turn_back_(&w);
  const attn_tensor made =
      more ? attn_stage_tensor_(s, d_x.batch, d_x.heads, d_x.len, d_x.dim) : d_x;
  if (!attn_stage_gemm_as_(s, made, d_y, w, &p) || (more && !attn_stage_shares_(s, d_x, made, 1)))
    return 0;
  attn_stage_back_(s, mark);
  return 1;
}
