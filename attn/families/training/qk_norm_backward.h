/* families/training/qk_norm_backward.h owns the gradients of the norm of queries or of keys. */

typedef struct attn_qk_back_ {
  const attn_table_ *table;
  const attn_qk_rows_ *g;
  attn_tensor d;
  const float *sum; /* [heads][dim]: of d_y x / |x|, times sqrt(dim) */
  float *d_temperature;
  int accumulate;
} attn_qk_back_;

ATTN_FUNC_ float attn_qk_by_(const attn_qk_rows_ *g, int64_t h) {
  return g->temperature ? g->by * g->temperature[h] : g->by;
}

/* What reaches y = factor h reaches h. */
ATTN_FUNC_ void attn_qk_back_item_(void *job, int worker, int64_t index) {
  const attn_qk_back_ *a = (const attn_qk_back_ *)job;
  const int64_t b = index / a->d.heads, h = index % a->d.heads;
  (void)worker;
  for (int64_t i = 0; i < a->d.len; i++) {
    char *row = attn_at_(&a->d, b, h, i);
    a->table->blend(row, row, NULL, ATTN_F32, ATTN_F32, ATTN_F32, a->d.dim, attn_qk_by_(a->g, h),
                    0.0f);
  }
}

/* y is its temperature times the rest. */
ATTN_FUNC_ void attn_qk_back_temperature_(void *job, int worker, int64_t h) {
  const attn_qk_back_ *a = (const attn_qk_back_ *)job;
  const attn_norm *norm = &a->g->norm;
  const float *sum = a->sum + h * a->g->dim,
              *gain = norm->gain ? norm->gain + h * a->g->step : NULL;
  float *y = a->d_temperature + h;
  double t = 0.0;
  (void)worker;
  for (int64_t c = 0; c < a->g->dim; c++)
    t += (gain ? (double)gain[c] + norm->gain_less_one : 1.0) * (double)sum[c];
  *y = attn_one_nan_((float)(t * (double)a->g->by + (a->accumulate ? (double)*y : 0.0)));
}

/* Rows of h = x / |x| gain: d_x, which may be d_y, and d_gain. */
ATTN_COLD_ int attn_stage_qk_rows_back_(attn_stage_ *s, const attn_qk_rows_ *g, attn_tensor d_x,
                                        attn_tensor d_y, attn_tensor x, int64_t h, float *d_gain,
                                        int accumulate) {
  const int64_t mark = s->used;
  attn_norm_back_ a;
  attn_clear_(&a, sizeof a);
  a.d_x = d_x, a.d_y = d_y, a.x = x, a.norm = g->norm, a.eps = g->norm.eps;
  if (a.norm.gain) a.norm.gain += h * g->step;
  a.d_gain = d_gain, a.accumulate = accumulate, a.fresh = 1;
  if (!attn_norm_back_steps_(s, &a)) return 0;
  attn_stage_back_(s, mark);
  return 1;
}

/* d, what reaches the normed rows, becomes what reaches x; both in heads side by side in rows of one tensor. */
ATTN_COLD_ int attn_stage_qk_back_(attn_stage_ *s, const attn_qk_rows_ *g, attn_tensor d,
                                   attn_tensor x, float *d_gain, float *d_temperature,
                                   int accumulate) {
  const int64_t mark = s->used, heads = s->run ? g->heads : g->heads > 0; /* all need the same */
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  attn_qk_back_ a = {s->table, g, d, NULL, d_temperature, accumulate};
  if (d_temperature) {
    float *sum = (float *)attn_stage_take_(s, attn_mul_(g->heads, g->dim), (int64_t)sizeof(float));
    a.sum = sum;
    for (int64_t h = 0; h < heads; h++)
      if (!attn_stage_qk_rows_back_(s, g, none, attn_stage_heads_(d, h, 1),
                                    attn_stage_heads_(x, h, 1), h, sum + h * g->dim, 0))
        return 0;
    if (!attn_stage_for_(s, g->heads, attn_qk_back_temperature_, &a, 0, NULL)) return 0;
  }
  if ((g->temperature || g->by != 1.0f) &&
      !attn_stage_for_(s, attn_mul_(d.batch, d.heads), attn_qk_back_item_, &a, 0, NULL))
    return 0;
  if (g->all) d.dim = x.dim = attn_mul_(g->heads, g->dim), d.heads = x.heads = 1;
  if (!g->step) {
    if (!attn_stage_qk_rows_back_(s, g, d, d, x, 0, d_gain, accumulate)) return 0;
  } else {
    for (int64_t h = 0; h < heads; h++)
      if (!attn_stage_qk_rows_back_(s, g, attn_stage_heads_(d, h, 1), attn_stage_heads_(d, h, 1),
                                    attn_stage_heads_(x, h, 1), h,
                                    d_gain ? d_gain + h * g->step : NULL, accumulate))
        return 0;
  }
  attn_stage_back_(s, mark);
  return 1;
}
