/* families/heads/collaborative.h owns collaborative heads: one query and one key projection, mixed anew
 * for each head while a tile of queries is packed. The content bias is H more channels of the keys:
 * head h mixes in the one that holds (x_k w_c)[h], against queries of 1. */

/* mix = [mix_h, e_h], f32; the last channels of q = 1. */
ATTN_COLD_ void attn_collaborative_fill_(const attn_stage_ *s, const attn_multihead_job_ *j,
                                         float *mix, const attn_tensor *q) {
  const int64_t h = j->p.heads, extra = q->dim - j->dk;
  memset(mix, 0, (size_t)(h * q->dim) * sizeof(float));
  for (int64_t i = 0; i < h; i++) {
    s->table->widen(mix + i * q->dim, attn_at_(&j->mix, 0, 0, i), 0, NULL, 1, j->dk, j->mix.dtype,
                    NULL);
    if (extra) mix[i * q->dim + j->dk + i] = 1.0f;
  }
  if (extra)
    for (int64_t b = 0; b < q->batch; b++)
      for (int64_t i = 0; i < q->len; i++) {
        float *row = (float *)(void *)attn_at_(q, b, 0, i) + j->dk;
        for (int64_t c = 0; c < extra; c++) row[c] = 1.0f;
      }
}

ATTN_COLD_ int attn_collaborative_steps_(attn_stage_ *s, void *job) {
  const attn_multihead_job_ *j = (const attn_multihead_job_ *)job;
  const attn_multihead_params *p = &j->p;
  const int64_t h = p->heads, width = attn_add_(j->dk, j->w_c.data ? h : 0);
  const attn_tensor q = attn_stage_tensor_(s, j->x.batch, 1, j->x.len, width);
  const attn_tensor k = attn_stage_tensor_(s, j->x_k.batch, 1, j->x_k.len, width);
  const attn_tensor v = attn_multihead_rows_(s, j->x_v.batch, j->x_v.len, p->w_v.dim);
  float *mix = (float *)attn_stage_take_(s, attn_mul_(h, width), sizeof(float));
  attn_tensor none, q_own = q, k_own = k, content = attn_stage_shift_(k, j->dk), heads = q;
  attn_sdpa_params attend = p->attention;
  memset(&none, 0, sizeof none);
  q_own.dim = k_own.dim = j->dk, content.dim = h;
  heads.heads = h, heads.stride_head = 0;
  if (attend.scale == 0.0f && !attn_to_bits_(attend.scale))
    attend.scale = (float)(1.0 / sqrt((double)j->dk / (double)h));
  if (s->run) attn_collaborative_fill_(s, j, mix, &q);
  return attn_multihead_project_(s, p, ATTN_W_Q_, 0, q_own, j->x) &&
         attn_multihead_project_(s, p, ATTN_W_K_, 0, k_own, j->x_k) &&
         (!j->w_c.data || attn_stage_dense_(s, content, j->x_k, j->w_c, none, ATTN_ACT_NONE)) &&
         attn_multihead_project_(s, p, ATTN_W_V_, 0, v, j->x_v) &&
         attn_multihead_join_(s, j, heads, k, attn_multihead_split_(v, h), &attend, mix);
}

ATTN_COLD_ attn_status attn_collaborative_call_(attn_tensor y, attn_tensor x, attn_tensor x_k,
                                                const attn_collaborative_params *g, attn_ctx *ctx,
                                                size_t *bytes) {
  attn_multihead_job_ j;
  attn_error_ e = {ATTN_OK, NULL};
  memset(&j, 0, sizeof j);
  j.y = y, j.x = x, j.x_k = x_k;
  if (g) {
    const attn_sdpa_params *a = &g->attention;
    j.p.heads = g->heads, j.p.w_q = g->w_q, j.p.w_k = g->w_k, j.p.w_v = g->w_v, j.p.w_o = g->w_o;
    j.p.w_transposed = g->w_transposed, j.p.b_v = g->b_v, j.p.b_o = g->b_o, j.p.attention = *a,
    j.p.each = g->each;
    j.mix = g->mix, j.w_c = g->w_c;
    if (!g->mix.data) attn_reject_(&e, ATTN_E_NULL, "params.mix.data must not be null");
    if (g->w_c.data &&
        (a->relative.keys.data || a->relative.queries.data || a->xl.table.data || a->labels.label))
      attn_reject_(&e, ATTN_E_RANGE,
                   "params.w_c goes without relative.keys, relative.queries, xl and labels");
    if (e.status != ATTN_OK) return attn_end_(bytes ? NULL : ctx, &e);
  }
  return attn_multihead_job_call_(&j, g != NULL, attn_collaborative_steps_,
                                  "shared projections, mixed heads", ctx, bytes);
}

ATTN_CALL_(attn_collaborative, (y, x, x_k, params), attn_tensor y, attn_tensor x, attn_tensor x_k,
           const attn_collaborative_params *params)
