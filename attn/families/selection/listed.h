/* families/selection/listed.h owns exact attention to chosen keys one by one: the lists of engine/lists.h. */

/* Attention to the lists of p, whose indptr and col are written by now; f holds the tensors. */
ATTN_COLD_ int attn_stage_listed_(attn_stage_ *s, attn_softmax_ *f, const attn_selected *x,
                                  const attn_edges_params *p) {
  int workers;
  if (!attn_selected_plan_(s->e, f, x, &s->ctx, &workers, -1)) return 0;
  f->edges = p, f->group = 1, f->tiles = attn_tiles_of_(f->q.len);
  char *spare = attn_stage_spare_(s, attn_softmax_bytes_(f, s->workers));
  if (!s->run) return 1;
  s->ctx.workspace = spare, s->ctx.workspace_size = (size_t)s->spare;
  if (!attn_softmax_run_(s->e, f, &s->ctx, s->workers)) return 0;
  attn_stage_count_(s);
  return 1;
}
