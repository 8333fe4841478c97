/* families/content/yoso.h owns the expectation of attention by hashes that meet (YOSO): a problem of the exact-softmax
 * engine with other weights, over rows of length 1; and the checks of both forms. */

typedef struct attn_yoso_job_ {
  attn_reshape_ reshape; /* what the engine is told */
  attn_yoso_params p;
  attn_softmax_ f;  /* the call as attn_sdpa would see it */
  attn_tensor q, k; /* rows of length 1 */
  /* the rows at work, and how many of each entry there are */
  const attn_tensor *from, *to;
  const int32_t *len;
  /* samples, see yoso_sample.h */
  const attn_table_ *table;
  float *planes;             /* [heads of them][draws tau][dk] */
  uint16_t *q_code, *k_code; /* [B H][draws][Tq], [B H][draws][Tk] */
  uint16_t *code;
  attn_tensor sums; /* f32 [B,H,Tq,dv] */
  int64_t plane_heads, slices, width, each;
  char *memory;
} attn_yoso_job_;

/* 1 / max(length, 1e-12) of a sum of squares, NaN of NaN. */
ATTN_FUNC_ float attn_one_over_(double squares) {
  const double length = sqrt(squares);
  return (float)(1.0 / (length < 1e-12 ? 1e-12 : length));
}

/* ---- what the engine calls ------------------------------------------------------------------*/

ATTN_FUNC_ void attn_yoso_weigh_(attn_tile_ *t, float *s, int64_t keys, int g0, int g1) {
  const attn_yoso_job_ *j = (const attn_yoso_job_ *)t->a->reshape->user;
  attn_on_(collide, t->a->table)->angle_block(s, keys, g0, g1, (int)j->p.code_len, t->l);
}

/* Rows of a tile become of length 1. o: by rows, else w.ot. */
ATTN_FUNC_ void attn_yoso_gate_(attn_tile_ *t, float *o, int64_t width) {
  double sum[ATTN_TILE_] = {0};
  (void)o, (void)width; /* of few queries, which one_order has none of */
  for (int64_t c = 0; c < t->a->v.dim; c++)
    for (int r = 0; r < t->n; r++) {
      const double x = (double)t->w.ot[c * ATTN_TILE_ + r];
      sum[r] += x * x;
    }
  for (int r = 0; r < t->n; r++) t->scale[r] = attn_one_over_(sum[r]);
}

/* 64 rows of one head, divided by their lengths. */
ATTN_FUNC_ void attn_yoso_unit_(void *job, int worker, int64_t index) {
  const attn_yoso_job_ *j = (const attn_yoso_job_ *)job;
  const attn_tensor *x = j->from, *y = j->to;
  const int64_t tiles = attn_tiles_of_(x->len), i0 = index % tiles * ATTN_TILE_, dim = x->dim;
  const int64_t b = index / tiles / x->heads, h = index / tiles % x->heads;
  const int64_t n = attn_min64_(attn_len_of_(j->len, b, x->len) - i0, ATTN_TILE_);
  (void)worker;
  for (int64_t i = i0; i < i0 + n; i++) {
    float *to = (float *)(void *)attn_at_(y, b, h, i);
    double sum = 0.0;
    j->table->widen(to, attn_at_(x, b, h, i), 0, NULL, 1, dim, x->dtype, NULL);
    for (int64_t c = 0; c < dim; c++) sum += (double)to[c] * (double)to[c];
    const float by = attn_one_over_(sum);
    for (int64_t c = 0; c < dim; c++) to[c] *= by;
  }
}

/* ---- checks ---------------------------------------------------------------------------------*/

/* Both forms; sampled: attn_yoso_sample. */
ATTN_COLD_ int attn_yoso_check_(attn_error_ *e, attn_yoso_job_ *j, const attn_ctx *ctx,
                                int *workers, int sampled, int data) {
  attn_yoso_params *p = &j->p;
  const attn_sdpa_params *s = &p->attention;
  attn_softmax_ *f = &j->f;
  attn_sdpa_params plain = *s;
  if (p->code_len < 0 || p->code_len > 16)
    return attn_reject_(e, ATTN_E_RANGE, "params.code_len must lie in 1..16, or be 0 for 9");
  if (p->draws < 0 || p->draws > 1 << 20)
    return attn_reject_(e, ATTN_E_RANGE, "params.draws must lie in 1..2^20, or be 0 for 64");
  if ((attn_terms_of_(s) & ~(int)ATTN_TERM_MASK_) || s->scale != 0.0f || attn_to_bits_(s->scale) ||
      s->sinks || s->softmax_one || s->lse.data || s->map.data || s->compute != ATTN_COMPUTE_F32)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.attention: scale, terms of the score, sinks, softmax_one, lse, map "
                        "and compute must be absent: weights are those of angles");
  if (sampled && (s->mask.kind || s->window.on || s->keep || s->schedule || s->k_scales.scale ||
                  s->v_scales.scale))
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.attention: mask, window, keep, schedule and scales of rows must be "
                        "absent in attn_yoso_sample");
  if (p->code_len == 0) p->code_len = 9;
  if (p->draws == 0) p->draws = 64;
  f->reshape = &j->reshape;
  plain.one_order = 1;
  if (!attn_sdpa_plan_(e, f, &plain, ctx, workers, data)) return 0;
  j->table = f->table;
  if ((sampled || !p->unit) && attn_quantized_(f->k.dtype))
    return attn_reject_(e, ATTN_E_DTYPE,
                        "k must be ATTN_F32, F16 or BF16; rows of 8 and 4 bits need params.unit");
  if (!sampled) return 1;
  if (attn_quantized_(f->v.dtype))
    return attn_reject_(e, ATTN_E_DTYPE, "v must be ATTN_F32, F16 or BF16");
  attn_tensor o = f->o;
  attn_operand_ op[2] = {
      ATTN_OPERAND_(&o, "o", ATTN_OUT_, ATTN_ANY_, ATTN_ANY_, ATTN_ANY_, ATTN_ANY_, ""),
      ATTN_OPERAND_(&p->planes, "params.planes", ATTN_OPTIONAL_ | ATTN_IS_F32_, ATTN_ANY_, p->draws,
                    f->q.dim, p->code_len,
                    "params.planes must be f32 [1 or heads, draws, dk, code_len]")};
  if (!attn_check_operand_(e, &op[0], 0) || !attn_check_operand_(e, &op[1], 0)) return 0;
  if (p->planes.data && p->planes.batch != 1 && p->planes.batch != f->q.heads)
    return attn_reject_(e, ATTN_E_SHAPE, op[1].rule);
  return attn_check_apart_(e, ctx, op, 2, NULL, 0);
}

/* ---- the call -------------------------------------------------------------------------------*/

/* Rows of x of length 1, those below len. */
ATTN_COLD_ int attn_yoso_units_(attn_stage_ *s, attn_yoso_job_ *j, const attn_tensor *x,
                                const int32_t *len, attn_tensor *y) {
  *y = attn_stage_tensor_(s, x->batch, x->heads, x->len, x->dim);
  j->from = x, j->to = y, j->len = len;
  const int64_t items = attn_mul_(attn_mul_(x->batch, x->heads), attn_tiles_of_(x->len));
  return attn_stage_for_(s, items, attn_yoso_unit_, j, 0, NULL);
}

ATTN_COLD_ int attn_yoso_steps_(attn_stage_ *s, void *job) {
  attn_yoso_job_ *j = (attn_yoso_job_ *)job;
  const attn_softmax_ *f = &j->f;
  attn_sdpa_params p = j->p.attention;
  attn_softmax_ a;
  attn_problem_clear_(&a);
  j->q = f->q, j->k = f->k;
  if (!j->p.unit && (!attn_yoso_units_(s, j, &f->q, NULL, &j->q) ||
                     !attn_yoso_units_(s, j, &f->k, f->kv_len, &j->k)))
    return 0;
  memset(&j->reshape, 0, sizeof j->reshape);
  j->reshape.user = j, j->reshape.natural = 1, j->reshape.weigh = attn_yoso_weigh_;
  if (!j->p.raw) j->reshape.gate = attn_yoso_gate_;
  a.o = f->o, a.q = j->q, a.k = j->k, a.v = f->v, a.reshape = &j->reshape;
  p.scale = 1.0f, p.one_order = 1;
  return attn_stage_problem_(s, &a, &p);
}

ATTN_COLD_ attn_status attn_yoso_job_call_(attn_yoso_job_ *j, const attn_yoso_params *params,
                                           int sampled, attn_steps_fn_ steps, const char *path,
                                           attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  int workers = 1;
  if (params) j->p = *params;
  (void)attn_yoso_check_(&e, j, ctx, &workers, sampled, bytes ? 0 : 1);
  return attn_step_call_or_(&e, j->table, workers, ctx, steps, j, path,
                            e.status == ATTN_OK && attn_nothing_(&j->f) ? "no queries" : NULL,
                            bytes);
}

ATTN_COLD_ attn_status attn_yoso_call_(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                       const attn_yoso_params *params, attn_ctx *ctx,
                                       size_t *bytes) {
  attn_yoso_job_ j;
  memset(&j, 0, sizeof j);
  j.f.o = o, j.f.q = q, j.f.k = k, j.f.v = v;
  return attn_yoso_job_call_(&j, params, 0, attn_yoso_steps_, "weights by angle, queries in lanes",
                             ctx, bytes);
}
ATTN_CALL_(attn_yoso, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_yoso_params *params)
