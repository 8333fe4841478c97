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
