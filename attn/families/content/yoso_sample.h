/* families/content/yoso_sample.h owns samples of attention by hashes that meet: codes of rows by random planes, sums of
 * values by code, and the mean of what queries read there. */

enum { ATTN_YOSO_SLICE_ = 32 }; /* columns of values whose buckets are made at a time */

/* The planes of one draw and head, a row for each. */
ATTN_FUNC_ void attn_yoso_plane_(void *job, int worker, int64_t index) {
  const attn_yoso_job_ *j = (const attn_yoso_job_ *)job;
  const attn_yoso_params *p = &j->p;
  const int64_t h = index / p->draws, r = index % p->draws, dk = j->f.q.dim, tau = p->code_len;
  float *to = j->planes + index * tau * dk;
  (void)worker;
  for (int64_t c = 0; c < dk; c++) {
    const float *given = NULL;
    if (p->planes.data) given = (const float *)(const void *)attn_at_(&p->planes, h, r, c);
    for (int64_t t = 0; t < tau; t++)
      to[t * dk + c] =
          given ? given[t]
                : (float)attn_random_normal(p->seed, ATTN_STREAM(r, h, 2), (uint64_t)(c * tau + t));
  }
}

/* Codes of 64 rows of x, as one head sees them, in all draws. */
ATTN_FUNC_ void attn_yoso_code_(void *job, int worker, int64_t index) {
  const attn_yoso_job_ *j = (const attn_yoso_job_ *)job;
  const attn_tensor *x = j->from;
  const int64_t tiles = attn_tiles_of_(x->len), unit = index / tiles, heads = j->f.q.heads;
  const int64_t b = unit / heads, h = unit % heads, i0 = index % tiles * ATTN_TILE_, dk = x->dim;
  const int64_t tau = j->p.code_len, draws = j->p.draws, at_once = ATTN_BLOCK_ / tau;
  const int n = (int)attn_clamp_(attn_len_of_(j->len, b, x->len) - i0, 0, ATTN_TILE_);
  const float *planes = j->planes + (j->plane_heads > 1 ? h : 0) * draws * tau * dk;
  uint16_t *to = j->code + unit * draws * x->len + i0, code[ATTN_TILE_];
  float *s = (float *)(void *)(j->memory + worker * j->each), *qt = s + ATTN_BLOCK_ * ATTN_TILE_;
  float top[ATTN_TILE_];
  const void *row[ATTN_TILE_];
  if (n == 0) return;
  for (int r = 0; r < n; r++) row[r] = attn_at_(x, b, h / (heads / x->heads), i0 + r);
  j->table->pack(qt, row, n, dk, (int)x->dtype, 1.0f, attn_least_(1.0f));
  for (int64_t r = 0, some; r < draws; r += some) {
    const float *z = s;
    some = attn_min64_(draws - r, at_once);
    for (int i = 0; i < ATTN_TILE_; i++) top[i] = -INFINITY;
    attn_on_(tile, j->table)
        ->score_block(s, qt, planes + r * tau * dk, dk, some * tau, dk, 0,
                      (int)attn_ceil_(n, ATTN_GROUP_), top);
    for (int64_t e = 0; e < some; e++, to += x->len) {
      memset(code, 0, sizeof code);
      for (int t = 0; t < tau; t++, z += ATTN_TILE_)
        for (int i = 0; i < ATTN_TILE_; i++)
          code[i] = (uint16_t)(code[i] | (unsigned)(z[i] > 0.0f) << t);
      memcpy(to, code, (size_t)n * sizeof *code);
    }
  }
}

/* The first keys that row i sees. */
ATTN_FUNC_ int64_t attn_yoso_seen_(const attn_yoso_job_ *j, int64_t b, int64_t i) {
  const attn_softmax_ *f = &j->f;
  const int64_t keys = attn_len_of_(f->kv_len, b, f->k.len);
  return j->p.attention.causal ? attn_clamp_(i + f->q_off + 1, 0, keys) : keys;
}

/* Some columns of the sums of one head: draw by draw, keys join their buckets and rows read theirs. */
ATTN_FUNC_ void attn_yoso_item_(void *job, int worker, int64_t index) {
  const attn_yoso_job_ *j = (const attn_yoso_job_ *)job;
  const attn_softmax_ *f = &j->f;
  const int64_t unit = index / j->slices, b = unit / f->q.heads, h = unit % f->q.heads;
  const int64_t c0 = index % j->slices * ATTN_YOSO_SLICE_, w = j->width, draws = j->p.draws;
  const int64_t n = attn_min64_(f->v.dim - c0, ATTN_YOSO_SLICE_),
                hv = h / (f->q.heads / f->v.heads);
  const int64_t buckets = (int64_t)1 << j->p.code_len, tk = f->k.len, tq = f->q.len;
  const int64_t rows = attn_len_of_(f->q_len, b, tq), keys = attn_len_of_(f->kv_len, b, tk);
  const attn_collide_table_ *on = attn_on_(collide, j->table);
  float *table = (float *)(void *)(j->memory + worker * j->each), *v = table + 2 * buckets * w;
  float *sum = v + tk * w;
  memset(table, 0, (size_t)(2 * buckets * w) * sizeof *table);
  memset(v, 0, (size_t)(keys * w) * sizeof *v);
  memset(sum, 0, (size_t)(2 * tq * w) * sizeof *sum);
  for (int64_t i = 0; i < keys; i++)
    j->table->widen(v + i * w, attn_at_(&f->v, b, hv, i) + attn_bytes_(f->v.dtype, c0), 0, NULL, 1,
                    n, f->v.dtype, NULL);
  for (int64_t r = 0; r < draws; r++) {
    const uint16_t *q = j->q_code + (unit * draws + r) * tq,
                   *k = j->k_code + (unit * draws + r) * tk;
    int64_t seen = 0;
    for (int64_t i = 0, next; i < rows; i = next) {
      const int64_t all = attn_yoso_seen_(j, b, i);
      attn_bucket_rows_ join = {table, buckets * w, w, all - seen, v + seen * w, k + seen, NULL};
      on->bucket_rows(&join);
      seen = all;
      for (next = i + 1; next < rows && attn_yoso_seen_(j, b, next) == seen;) next++;
      attn_bucket_rows_ read = {sum + i * w, tq * w, w, next - i, table, NULL, q + i};
      if (seen > 0) on->bucket_rows(&read);
    }
    if (seen > buckets) memset(table, 0, (size_t)(2 * buckets * w) * sizeof *table);
    for (int64_t i = 0; seen <= buckets && i < seen; i++) {
      memset(table + k[i] * w, 0, (size_t)w * sizeof *table);
      memset(table + (buckets + k[i]) * w, 0, (size_t)w * sizeof *table);
    }
  }
  for (int64_t i = 0; i < tq; i++)
    j->table->blend(attn_at_(&j->sums, b, h, i) + attn_bytes_(j->sums.dtype, c0), sum + i * w, NULL,
                    j->sums.dtype, ATTN_F32, ATTN_F32, n, (float)(1.0 / (double)draws), 0.0f);
}

/* A row of sums becomes one of length 1. */
ATTN_FUNC_ void attn_yoso_end_(void *job, int worker, int64_t index) {
  const attn_yoso_job_ *j = (const attn_yoso_job_ *)job;
  const attn_tensor *x = &j->sums, *o = &j->f.o;
  const int64_t b = index / o->heads, h = index % o->heads;
  (void)worker;
  for (int64_t i = 0; i < o->len; i++) {
    const float *row = (const float *)(const void *)attn_at_(x, b, h, i);
    double sum = 0.0;
    for (int64_t c = 0; c < o->dim; c++) sum += (double)row[c] * (double)row[c];
    j->table->blend(attn_at_(o, b, h, i), row, NULL, o->dtype, ATTN_F32, ATTN_F32, o->dim,
                    attn_one_over_(sum), 0.0f);
  }
}

ATTN_COLD_ int attn_yoso_codes_(attn_stage_ *s, attn_yoso_job_ *j, const attn_tensor *x,
                                const int32_t *len, uint16_t **code) {
  const int64_t units = attn_mul_(j->f.q.batch, j->f.q.heads), f = sizeof(float);
  *code = (uint16_t *)attn_stage_take_(s, attn_mul_(attn_mul_(units, j->p.draws), x->len), 2);
  j->from = x, j->len = len, j->code = *code;
  j->each = attn_piece_(attn_mul_(attn_add_(ATTN_BLOCK_, x->dim), ATTN_TILE_), f);
  return attn_stage_for_(s, attn_mul_(units, attn_tiles_of_(x->len)), attn_yoso_code_, j, j->each,
                         &j->memory);
}

ATTN_COLD_ int attn_yoso_sample_steps_(attn_stage_ *s, void *job) {
  attn_yoso_job_ *j = (attn_yoso_job_ *)job;
  const attn_softmax_ *f = &j->f;
  const int64_t units = attn_mul_(f->q.batch, f->q.heads), dv = f->v.dim;
  j->plane_heads = j->p.planes.data ? j->p.planes.batch : f->q.heads;
  const int64_t planes = attn_mul_(j->plane_heads, j->p.draws);
  j->planes = (float *)attn_stage_take_(s, attn_mul_(attn_mul_(planes, j->p.code_len), f->q.dim),
                                        sizeof(float));
  if (!attn_stage_for_(s, planes, attn_yoso_plane_, j, 0, NULL) ||
      !attn_yoso_codes_(s, j, &f->k, f->kv_len, &j->k_code) ||
      !attn_yoso_codes_(s, j, &f->q, f->q_len, &j->q_code))
    return 0;
  j->sums = j->p.raw ? f->o : attn_stage_part_(s, &f->o);
  j->slices = attn_ceil_(dv, ATTN_YOSO_SLICE_);
  j->width = attn_ceil_(attn_min64_(dv, ATTN_YOSO_SLICE_), ATTN_GROUP_) * ATTN_GROUP_;
  const int64_t held =
      attn_add_((int64_t)2 << j->p.code_len, attn_add_(f->k.len, attn_mul_(f->q.len, 2)));
  j->each = attn_piece_(attn_mul_(held, j->width), sizeof(float));
  if (!attn_stage_for_(s, attn_mul_(units, j->slices), attn_yoso_item_, j, j->each, &j->memory))
    return 0;
  return j->p.raw || attn_stage_for_(s, units, attn_yoso_end_, j, 0, NULL);
}

ATTN_COLD_ attn_status attn_yoso_sample_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                              attn_tensor v, const attn_yoso_params *params,
                                              attn_ctx *ctx, size_t *bytes) {
  attn_yoso_job_ j;
  memset(&j, 0, sizeof j);
  j.f.o = o, j.f.q = q, j.f.k = k, j.f.v = v;
  return attn_yoso_job_call_(&j, params, 1, attn_yoso_sample_steps_, "buckets of sampled hashes",
                             ctx, bytes);
}
ATTN_CALL_(attn_yoso_sample, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_yoso_params *params)
