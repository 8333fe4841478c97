/* families/training/pinv_backward.h owns the gradient of the iterative pseudo-inverse: through all its iterations, and the
 * sums that it starts with. */

enum { ATTN_PINV_ROOM_ = 11 }; /* matrices beside the iterates */

typedef struct attn_pinv_back_ {
  const attn_table_ *table;
  attn_tensor d_a, d_z, a;
  int64_t iterations, width; /* floats of a row, in whole vectors */
  char *own;
  int64_t each;
} attn_pinv_back_;

/* y = by x w, or added to y; m x m with rows of `width` floats; x or w turned, w by a copy in room. */
ATTN_FUNC_ void attn_pinv_back_times_(const attn_pinv_back_ *p, float *y, const float *x,
                                      int x_turned, const float *w, int w_turned, float by, int add,
                                      float *room) {
  const int64_t m = p->a.dim, width = p->width;
  float *turned = room, *to = room + m * width;
  for (int64_t i = 0; w_turned && i < m; i++)
    for (int64_t j = 0; j < m; j++) turned[j * width + i] = w[i * width + j];
  attn_on_(dense, p->table)
      ->gemm(to, width, m, x, x_turned ? 1 : width, x_turned ? width : 1, w_turned ? turned : w,
             width, m, m, 1);
  for (int64_t i = 0; i < m; i++)
    p->table->blend(y + i * width, to + i * width, add ? y + i * width : NULL, ATTN_F32, ATTN_F32,
                    ATTN_F32, m, by, 1.0f);
}

/* y = plus I - x */
ATTN_FUNC_ void attn_pinv_back_less_(const attn_pinv_back_ *p, float *y, const float *x,
                                     float plus) {
  const int64_t m = p->a.dim, width = p->width;
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j < m; j++) y[i * width + j] = 0.0f - x[i * width + j];
    y[i * width + i] += plus;
  }
}

/* Z = A^T / (c r), c and r the largest column sum and row sum of |A|, the first of equals. */
ATTN_FUNC_ void attn_pinv_back_start_(const attn_pinv_back_ *p, float *d_a, const float *d_z,
                                      const float *a) {
  const int64_t m = p->a.dim, width = p->width;
  int64_t at[2] = {0, 0};
  double most[2] = {0, 0}, sum = 0;
  for (int64_t i = 0; i < m; i++) {
    double part[2] = {0, 0};
    for (int64_t j = 0; j < m; j++)
      part[0] += fabs((double)a[j * width + i]), part[1] += fabs((double)a[i * width + j]);
    for (int n = 0; n < 2; n++)
      if (!(part[n] <= most[n])) most[n] = part[n], at[n] = i;
  }
  if (most[1] == 0.0) return;
  const double by = 1.0 / (most[0] * most[1]);
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < m; j++) {
      d_a[i * width + j] += (float)((double)d_z[j * width + i] * by);
      sum += (double)d_z[j * width + i] * (double)a[i * width + j];
    }
  for (int64_t i = 0; i < m; i++)
    for (int n = 0; n < 2; n++) {
      const int64_t e = n ? at[1] * width + i : i * width + at[0];
      const double sign = a[e] > 0.0f ? 1.0 : a[e] < 0.0f ? -1.0 : 0.0;
      d_a[e] -= (float)(sign * sum * by / most[n]);
    }
}

ATTN_FUNC_ void attn_pinv_back_item_(void *job, int worker, int64_t index) {
  const attn_pinv_back_ *p = (const attn_pinv_back_ *)job;
  const int64_t b = index / p->a.heads, h = index % p->a.heads, m = p->a.dim, width = p->width;
  const int64_t each = m * width;
  float *a = (float *)(void *)(p->own + worker * p->each), *y = a + each, *t1 = y + each;
  float *t2 = t1 + each, *t3 = t2 + each, *d_z = t3 + each, *d_a = d_z + each, *d_y = d_a + each;
  float *d_t = d_y + each, *room = d_t + each, *z = room + 2 * each;
  memset(a, 0, (size_t)p->each);
  for (int64_t i = 0; i < m; i++) {
    p->table->widen(a + i * width, attn_at_(&p->a, b, h, i), 0, NULL, 1, m, p->a.dtype, NULL);
    p->table->widen(d_z + i * width, attn_at_(&p->d_z, b, h, i), 0, NULL, 1, m, p->d_z.dtype, NULL);
  }
  double sums[2];
  attn_pinv_sums_(sums, a, m, width);
  attn_pinv_start_(z, a, m, width, sums);
  for (int64_t n = 0; n < 2 * p->iterations; n++) { /* all there, then all back */
    const int back = n >= p->iterations;
    const float *at = z + (back ? 2 * p->iterations - 1 - n : n) * each;
    attn_pinv_back_times_(p, y, a, 0, at, 0, 1.0f, 0, room);
    attn_pinv_back_less_(p, t1, y, 7.0f);
    attn_pinv_back_times_(p, t3, y, 0, t1, 0, 1.0f, 0, room);
    attn_pinv_back_less_(p, t2, t3, 15.0f);
    attn_pinv_back_times_(p, d_t, y, 0, t2, 0, 1.0f, 0, room);
    attn_pinv_back_less_(p, t3, d_t, 13.0f);
    if (!back) {
      attn_pinv_back_times_(p, z + (n + 1) * each, at, 0, t3, 0, 0.25f, 0, room);
      continue;
    }
    attn_pinv_back_times_(p, d_t, at, 1, d_z, 0, 0.25f, 0, room); /* of 13 I - Y T2 */
    attn_pinv_back_times_(p, d_z, d_z, 0, t3, 1, 0.25f, 0, room); /* of Z, as a factor */
    attn_pinv_back_times_(p, d_y, d_t, 0, t2, 1, -1.0f, 0, room);
    attn_pinv_back_times_(p, t3, y, 1, d_t, 0, -1.0f, 0, room); /* of 15 I - Y T1 */
    attn_pinv_back_times_(p, d_y, t3, 0, t1, 1, -1.0f, 1, room);
    attn_pinv_back_times_(p, d_y, y, 1, t3, 0, 1.0f, 1, room); /* of 7 I - Y, which is -Y^T that */
    attn_pinv_back_times_(p, d_a, d_y, 0, at, 1, 1.0f, 1, room);
    attn_pinv_back_times_(p, d_z, a, 1, d_y, 0, 1.0f, 1, room);
  }
  attn_pinv_back_start_(p, d_a, d_z, a);
  for (int64_t i = 0; i < m; i++)
    p->table->blend(attn_at_(&p->d_a, b, h, i), d_a + i * width, NULL, p->d_a.dtype, ATTN_F32,
                    ATTN_F32, m, 1.0f, 0.0f);
}

ATTN_COLD_ int attn_pinv_back_steps_(attn_stage_ *s, void *job) {
  attn_pinv_back_ p = *(const attn_pinv_back_ *)job;
  p.table = s->table;
  p.width = attn_round_up_(p.a.dim, 16) | 16; /* as in calls/inverse.h */
  p.each = attn_piece_(attn_mul_(attn_add_(attn_add_(p.iterations, 1), ATTN_PINV_ROOM_),
                                 attn_mul_(p.a.dim, p.width)),
                       sizeof(float));
  const int64_t items = p.a.len > 0 ? attn_mul_(p.a.batch, p.a.heads) : 0;
  return attn_stage_for_(s, items, attn_pinv_back_item_, &p, p.each, &p.own);
}

ATTN_COLD_ attn_status attn_pinv_backward_call_(attn_tensor d_a, attn_tensor d_z, attn_tensor a,
                                                int64_t iterations, attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_pinv_back_ p;
  int workers = 1;
  attn_clear_(&p, sizeof p);
  p.d_a = d_a, p.d_z = d_z, p.a = a, p.iterations = iterations;
  const int64_t any = ATTN_ANY_, m = a.len;
  attn_operand_ op[] = {
      ATTN_OPERAND_(&p.a, "a", 0, any, any, any, m, "a must be square: a.dim must equal a.len"),
      ATTN_OPERAND_(&p.d_z, "d_z", 0, a.batch, a.heads, m, m, "d_z must have the shape of a"),
      ATTN_OPERAND_(&p.d_a, "d_a", ATTN_OUT_, a.batch, a.heads, m, m,
                    "d_a must have the shape of a")};
  int ok = attn_check_ctx_(&e, ctx, &table, &workers) && attn_check_given_(&e, op, 3);
  for (int i = 0; ok && i < 3; i++) ok = attn_check_operand_(&e, &op[i], a.heads);
  if (ok && iterations < 0) ok = attn_reject_(&e, ATTN_E_RANGE, "iterations must not be negative");
  if (ok) (void)attn_check_apart_(&e, ctx, op, 3, NULL, 0);
  return attn_step_call_(&e, table, workers, ctx, attn_pinv_back_steps_, &p,
                         "iterations there and back", bytes);
}
ATTN_CALL_(attn_pinv_backward, (d_a, d_z, a, iterations), attn_tensor d_a, attn_tensor d_z,
           attn_tensor a, int64_t iterations)
