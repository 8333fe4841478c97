/* families/training/merge_backward.h owns the gradients of attn_merge. */

typedef struct attn_merge_back_ {
  const attn_table_ *table;
  attn_tensor d_o, o[2], lse[2];
  attn_tensor d_each[2]; /* out, data null: not made */
  attn_merge_gradients g;
  char *memory;
  int64_t each;
} attn_merge_back_;

/* a_n d_o, in d_each[n]. */
ATTN_FUNC_ void attn_merge_share_(const attn_merge_back_ *m, int n, int64_t b, int64_t h, int64_t i,
                                  const float *d_o, float a) {
  const attn_tensor *y = &m->d_each[n];
  if (!y->data || (!d_o && m->g.accumulate)) return;
  char *at = attn_at_(y, b, h, i);
  m->table->blend(at, d_o, m->g.accumulate ? at : NULL, y->dtype, ATTN_F32, y->dtype, y->dim, a,
                  1.0f);
}

ATTN_FUNC_ void attn_merge_slope_(const attn_tensor *y, int64_t b, int64_t h, int64_t i, float x,
                                  int accumulate) {
  float was = 0.0f;
  if (!y->data) return;
  if (accumulate) memcpy(&was, attn_at_(y, b, h, i), sizeof was);
  x += was;
  if (x != x) x = attn_from_bits_(0x7fc00000u);
  memcpy(attn_at_(y, b, h, i), &x, sizeof x);
}

/* One row, by the shares of its parts; there[n]: part n is not empty. */
ATTN_FUNC_ void attn_merge_back_row_(const attn_merge_back_ *m, float *room, int64_t b, int64_t h,
                                     int64_t i, const float a[2], const int there[2]) {
  const attn_table_ *f = m->table;
  const attn_tensor *const d[2] = {&m->g.d_lse1, &m->g.d_lse2};
  const int64_t dim = m->d_o.dim;
  const int both = there[0] && there[1] && (d[0]->data || d[1]->data);
  float dot[2] = {0.0f, 0.0f}, d_lse = 0.0f;
  const float *d_o = NULL;
  int64_t stride;
  if (there[0] || there[1]) {
    d_o = attn_rows_in_(f, &m->d_o, attn_at_(&m->d_o, b, h, i), 1, dim, room, &stride);
    if (m->g.d_lse.data) memcpy(&d_lse, attn_at_(&m->g.d_lse, b, h, i), sizeof d_lse);
  }
  for (int n = 0; n < 2 && both; n++) {
    const float *o = attn_rows_in_(f, &m->o[n], attn_at_(&m->o[n], b, h, i), 1, dim,
                                   room + (n + 1) * dim, &stride);
    attn_on_(gradient, f)->row_dots(&dot[n], d_o, o, 1, dim);
  }
  const float g = dot[0] - dot[1];
  for (int n = 0; n < 2; n++) {
    attn_merge_share_(m, n, b, h, i, there[n] ? d_o : NULL, a[n]);
    const float slope = both ? a[n] * (d_lse + (n ? -g : g) * a[1 - n]) : there[n] ? d_lse : 0.0f;
    attn_merge_slope_(d[n], b, h, i, slope, m->g.accumulate);
  }
}

/* A run of rows of one head. */
ATTN_FUNC_ void attn_merge_back_item_(void *job, int worker, int64_t index) {
  const attn_merge_back_ *m = (const attn_merge_back_ *)job;
  const float nan = attn_from_bits_(0x7fc00000u);
  const int64_t runs = attn_merge_runs_(m->d_o.len);
  const int64_t b = index / runs / m->d_o.heads, h = index / runs % m->d_o.heads;
  const int64_t first = index % runs * ATTN_MERGE_ROWS_;
  const int64_t end = attn_min64_(m->d_o.len, first + ATTN_MERGE_ROWS_);
  for (int64_t i = first; i < end; i++) {
    float l[2], a[2];
    int there[2];
    for (int n = 0; n < 2; n++) memcpy(&l[n], attn_at_(&m->lse[n], b, h, i), sizeof l[n]);
    const float top = l[0] > l[1] ? l[0] : l[1];
    for (int n = 0; n < 2; n++) {
      there[n] = l[n] != -INFINITY;
      a[n] = there[n] ? l[n] - top : -INFINITY;
    }
    m->table->exp(a, a, 2);
    const float sum = a[0] + a[1];
    const int known = sum > 0.0f && l[0] < INFINITY && l[1] < INFINITY;
    for (int n = 0; n < 2; n++) a[n] = known ? a[n] / sum : nan;
    if (!known && (there[0] || there[1])) there[0] = there[1] = 1;
    attn_merge_back_row_(m, (float *)(void *)(m->memory + worker * m->each), b, h, i, a, there);
  }
}

ATTN_COLD_ int attn_merge_back_steps_(attn_stage_ *s, void *job) {
  attn_merge_back_ m = *(const attn_merge_back_ *)job;
  const int f32 = m.d_o.dtype == ATTN_F32 && m.o[0].dtype == ATTN_F32 && m.o[1].dtype == ATTN_F32;
  const int some = m.d_each[0].data || m.d_each[1].data || m.g.d_lse1.data || m.g.d_lse2.data;
  m.table = s->table;
  m.each = f32 ? 0 : attn_piece_(attn_mul_(3, m.d_o.dim), sizeof(float));
  if (!some) return 1;
  return attn_stage_for_(
      s, attn_mul_(attn_mul_(m.d_o.batch, m.d_o.heads), attn_merge_runs_(m.d_o.len)),
      attn_merge_back_item_, &m, m.each, &m.memory);
}

ATTN_COLD_ int attn_merge_back_check_(attn_error_ *e, attn_merge_back_ *m, const attn_ctx *ctx) {
  const int64_t b = m->d_o.batch, h = m->d_o.heads, t = m->d_o.len, dim = m->d_o.dim;
  const int64_t any = ATTN_ANY_;
  const int out = (int)ATTN_OUT_ | (int)ATTN_OPTIONAL_, f32 = ATTN_IS_F32_;
  attn_operand_ op[] = {
      ATTN_OPERAND_(&m->d_each[0], "d_o1", out, b, h, t, dim, "d_o1 must have the shape of d_o"),
      ATTN_OPERAND_(&m->d_each[1], "d_o2", out, b, h, t, dim, "d_o2 must have the shape of d_o"),
      ATTN_OPERAND_(&m->g.d_lse1, "gradients.d_lse1", out | f32, b, h, t, 1,
                    "gradients.d_lse1 must be [d_o.batch, d_o.heads, d_o.len, 1] of ATTN_F32"),
      ATTN_OPERAND_(&m->g.d_lse2, "gradients.d_lse2", out | f32, b, h, t, 1,
                    "gradients.d_lse2 must be [d_o.batch, d_o.heads, d_o.len, 1] of ATTN_F32"),
      ATTN_OPERAND_(&m->d_o, "d_o", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&m->o[0], "o1", 0, b, h, t, dim, "o1 must have the shape of d_o"),
      ATTN_OPERAND_(&m->lse[0], "lse1", f32, b, h, t, 1,
                    "lse1 must be [d_o.batch, d_o.heads, d_o.len, 1] of ATTN_F32"),
      ATTN_OPERAND_(&m->o[1], "o2", 0, b, h, t, dim, "o2 must have the shape of d_o"),
      ATTN_OPERAND_(&m->lse[1], "lse2", f32, b, h, t, 1,
                    "lse2 must be [d_o.batch, d_o.heads, d_o.len, 1] of ATTN_F32"),
      ATTN_OPERAND_(&m->g.d_lse, "gradients.d_lse", (int)ATTN_OPTIONAL_ | f32, b, h, t, 1,
                    "gradients.d_lse must be [d_o.batch, d_o.heads, d_o.len, 1] of ATTN_F32")};
  enum { N = sizeof op / sizeof *op };
  if (!attn_check_given_(e, op, N)) return 0;
  for (int i = 0; i < (int)N; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (m->g.accumulate != 0 && m->g.accumulate != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.accumulate must be 0 or 1");
  return attn_check_apart_(e, ctx, op, N, NULL, 0);
}

ATTN_COLD_ attn_status attn_merge_backward_call_(attn_tensor d_o1, attn_tensor d_o2,
                                                 attn_tensor d_o, attn_tensor o1, attn_tensor lse1,
                                                 attn_tensor o2, attn_tensor lse2,
                                                 const attn_merge_gradients *gradients,
                                                 attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_merge_back_ m;
  int workers = 1;
  attn_clear_(&m, sizeof m);
  m.d_each[0] = d_o1, m.d_each[1] = d_o2, m.d_o = d_o;
  m.o[0] = o1, m.lse[0] = lse1, m.o[1] = o2, m.lse[1] = lse2;
  if (gradients) m.g = *gradients;
  const int some = d_o1.data || d_o2.data || m.g.d_lse1.data || m.g.d_lse2.data;
  if (attn_check_ctx_(&e, ctx, &m.table, &workers)) (void)attn_merge_back_check_(&e, &m, ctx);
  return attn_step_call_or_(&e, m.table, workers, ctx, attn_merge_back_steps_, &m, "row by row",
                            some ? NULL : "no output is asked for", bytes);
}
ATTN_CALL_(attn_merge_backward, (d_o1, d_o2, d_o, o1, lse1, o2, lse2, gradients), attn_tensor d_o1,
           attn_tensor d_o2, attn_tensor d_o, attn_tensor o1, attn_tensor lse1, attn_tensor o2,
           attn_tensor lse2, const attn_merge_gradients *gradients)
