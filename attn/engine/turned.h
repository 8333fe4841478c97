/* engine/turned.h owns weights that lie in memory as [out, in], the way linear layers of PyTorch keep them.
 * From a call's checks to its products such a weight is a view that is [in, out] by its extents, and a mark
 * says how it lies: what stands between need not know. */

/* The mark, where a weight, of one batch entry, has no other use for a number. */
#define ATTN_TURNED_ INT64_MIN

ATTN_FUNC_ int attn_is_turned_(const attn_tensor *w) { return w->stride_batch == ATTN_TURNED_; }

ATTN_FUNC_ void attn_turn_over_(attn_tensor *w, int64_t mark) {
  const int64_t len = w->len;
  w->len = w->dim, w->dim = len, w->stride_batch = mark;
}

/* A weight as the caller gives it becomes the view. */
ATTN_FUNC_ void attn_turn_(attn_tensor *w, int transposed) {
  w->stride_batch = 0;
  if (transposed) attn_turn_over_(w, ATTN_TURNED_);
}

/* The view becomes what lies in memory; whether that is transposed. */
ATTN_FUNC_ int attn_turn_back_(attn_tensor *w) {
  const int turned = attn_is_turned_(w);
  if (turned) attn_turn_over_(w, 0);
  return turned;
}

/* The inputs of a weight that lies in memory so. */
ATTN_FUNC_ int64_t attn_inputs_(const attn_tensor *w, int transposed) {
  return transposed ? w->dim : w->len;
}

/* The columns of a weight cut into heads. */
ATTN_FUNC_ attn_tensor attn_weight_heads_(attn_tensor w, int64_t heads) {
  w.dim /= heads, w.heads = heads;
  w.stride_head = attn_is_turned_(&w) ? w.dim * w.stride_len : w.dim;
  return w;
}
