/* compose/feed_forward.h owns the feed-forward over many rows: weights are laid out once, then runs of
 * rows go through both products while their hidden rows are in the second cache. */

/* y = act(x w + bias) gate, in a form, for a matrix that has been laid out; one batch entry. bias, gate and form
 * may be absent. */
ATTN_COLD_ int attn_stage_gated_(attn_stage_ *s, attn_tensor y, attn_tensor x,
                                 const attn_matrix_ *w, attn_tensor bias, attn_activation act,
                                 attn_tensor gate, const attn_act_form *form) {
  attn_gemm_ a;
  memset(&a, 0, sizeof a);
  if (form) a.form = *form;
  a.table = s->table, a.y = y, a.x = x, a.bias = bias, a.gate = gate;
  a.w = *w, a.scale = 1.0f, a.act = (int)act;
  a.low = w->low;
  attn_gemm_cut_(&a, s->workers);
  return attn_stage_for_(s, a.items, attn_gemm_item_, &a, a.own_bytes, &a.own);
}

ATTN_COLD_ int attn_stage_laid_(attn_stage_ *s, attn_tensor y, attn_tensor x, const attn_matrix_ *w,
                                attn_tensor bias, attn_activation act) {
  return attn_stage_gated_(s, y, x, w, bias, act, attn_view_(NULL, ATTN_F32, 0, 0, 0, 0), NULL);
}

/* The hidden rows of a feed-forward: up is room for x w_3 + b_3, absent without w_3. */
ATTN_COLD_ int attn_stage_hidden_(attn_stage_ *s, attn_tensor y, attn_tensor x,
                                  const attn_feed_forward *ff, const attn_matrix_ *w_1,
                                  const attn_matrix_ *w_3, attn_tensor up) {
  const attn_activation act =
      ff->activation == ATTN_ACT_DEFAULT ? attn_feed_default_(ff) : ff->activation;
  return (!up.data || attn_stage_laid_(s, up, x, w_3, ff->b_3, ATTN_ACT_NONE)) &&
         attn_stage_gated_(s, y, x, w_1, ff->b_1, act, up, &ff->form);
}

/* A matrix for products with so many rows in all, laid out until `used` goes back; scales: of one of codes; ff: says what these are made of,
 * null = f32. */
ATTN_COLD_ attn_matrix_ attn_stage_lay_(attn_stage_ *s, attn_tensor w, const attn_scales *scales,
                                        int64_t rows, const attn_feed_forward *ff) {
  const attn_low_table_ *low = NULL;
  attn_feature feature;
  attn_matrix_ m = attn_weight_matrix_(w, rows, 1);
  if (attn_quantized_(w.dtype)) attn_matrix_codes_(&m, scales);
  if (ff && !attn_compute_take_(s->e, s->table, ff->compute, ff->compute_prefer, 1,
                                ATTN_COMPUTE_WORDS_("ff.compute"), &low, &feature))
    low = NULL; /* never: it has been judged */
  if (ATTN_PART_(LOW, low)) {
    attn_matrix_narrow_(&m, low);
    s->compute = low->peaks ? ATTN_COMPUTE_F16 : ATTN_COMPUTE_BF16, s->feature = feature;
  }
  void *memory = attn_stage_take_(s, attn_matrix_bytes_(&m), 1);
  if (s->run) attn_matrix_lay_(&m, s->table, memory, &s->ctx, s->workers);
  return m;
}

/* Rows that go through together: ceil(n / chunks) at most, the rows of an item a worker keep all of them busy. */
ATTN_COLD_ int64_t attn_feed_run_(const attn_stage_ *s, int64_t n, int64_t chunks) {
  const int64_t most = attn_mul_(attn_gemm_rows_(s->workers), s->workers);
  const int64_t run = chunks > 1 ? n / chunks + (n % chunks != 0) : most;
  return run < most ? run : most;
}

/* What stands around a feed-forward. */
typedef struct attn_surround_ {
  attn_sublayer kind;
  const attn_norm *norm, *after; /* after: of SANDWICH */
  attn_tensor h;                 /* of PARALLEL: what is added, f32 rows like x */
} attn_surround_;

ATTN_COLD_ attn_surround_ attn_surround_of_(attn_sublayer kind, const attn_norm *norm) {
  attn_surround_ a;
  memset(&a, 0, sizeof a);
  a.kind = kind, a.norm = norm;
  return a;
}

/* PLAIN: y = ff(x), POST: y = norm(x + ff(x)), PRE: y = x + ff(norm(x)), SANDWICH: y = x + after(ff(norm(x))),
 * PARALLEL: y = h + ff(norm(x)). Rows [B,1,n,.]; y may be x, or h. */
ATTN_COLD_ int attn_stage_feed_forward_(attn_stage_ *s, attn_tensor y, attn_tensor x,
                                        const attn_feed_forward *ff, int64_t chunks,
                                        const attn_surround_ *around) {
  const attn_sublayer kind = around->kind;
  const attn_norm *norm = around->norm, *after = around->after;
  attn_tensor h = around->h;
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  const int64_t mark = s->used, most = attn_feed_run_(s, x.len, chunks);
  const int two = ff->w_2.data != NULL, gated = ff->w_3.data != NULL;
  const int pre =
      kind != ATTN_SUBLAYER_PLAIN && kind != ATTN_SUBLAYER_POST && norm->kind != ATTN_NORM_NONE;
  const int behind = kind == ATTN_SUBLAYER_SANDWICH && after->kind != ATTN_NORM_NONE;
  const int aside = kind != ATTN_SUBLAYER_PLAIN || (!two && attn_same_view_(&y, &x));
  if (x.len == 0 || x.batch == 0) return 1;
  if (kind != ATTN_SUBLAYER_PARALLEL) h = x;
  if (x.batch > 1 && attn_gemm_flat_(&x) && attn_gemm_flat_(&y) && attn_gemm_flat_(&h))
    x = attn_gemm_flatten_(x), y = attn_gemm_flatten_(y), h = attn_gemm_flatten_(h);
  const int64_t rows = attn_mul_(x.batch, x.len), run = x.len < most ? x.len : most;
  const attn_matrix_ w_1 = attn_stage_lay_(s, ff->w_1, &ff->w_1_scales, rows, ff);
  const attn_matrix_ w_3 = gated ? attn_stage_lay_(s, ff->w_3, &ff->w_3_scales, rows, ff) : w_1;
  const attn_matrix_ w_2 = two ? attn_stage_lay_(s, ff->w_2, &ff->w_2_scales, rows, ff) : w_1;
  const attn_tensor normal = pre ? attn_stage_tensor_(s, 1, 1, run, x.dim) : none;
  const attn_tensor hidden = two ? attn_multihead_rows_(s, 1, run, w_1.n) : none;
  const attn_tensor up = gated ? attn_multihead_rows_(s, 1, run, w_1.n) : none;
  const attn_tensor out = aside ? attn_stage_tensor_(s, 1, 1, run, y.dim) : none;
  for (int64_t b = 0; b < x.batch; b++) {
    for (int64_t i = 0, n; i < x.len; i += n) {
      n = x.len - i < run ? x.len - i : run;
      const attn_tensor from = attn_stage_rows_(attn_stage_entry_(x, b), i, n);
      const attn_tensor to = attn_stage_rows_(attn_stage_entry_(y, b), i, n);
      const attn_tensor add = attn_stage_rows_(attn_stage_entry_(h, b), i, n);
      const attn_tensor made = aside ? attn_stage_rows_(out, 0, n) : to;
      const attn_tensor in = pre ? attn_stage_rows_(normal, 0, n) : from;
      const attn_tensor middle = two ? attn_stage_rows_(hidden, 0, n) : made;
      if ((pre && !attn_stage_norm_(s, in, from, none, norm)) ||
          !attn_stage_hidden_(s, middle, in, ff, &w_1, &w_3,
                              gated ? attn_stage_rows_(up, 0, n) : none) ||
          (two && !attn_stage_laid_(s, made, middle, &w_2, ff->b_2, ATTN_ACT_NONE)) ||
          (behind && !attn_stage_norm_(s, made, made, none, after)) ||
          (aside && !attn_stage_norm_(s, to, made, kind == ATTN_SUBLAYER_PLAIN ? none : add,
                                      kind == ATTN_SUBLAYER_POST ? norm : NULL)))
        return 0;
      if (!s->run && i == 0 && n < x.len) i = (x.len - 1) / run * run - n; /* then the last */
    }
    if (!s->run) break; /* the entries are alike */
  }
  attn_stage_back_(s, mark);
  return 1;
}
