/* families/compression/probsparse.h owns ProbSparse attention: the measure of queries on sampled keys, the
 * choice of the best, and exact attention for these beside an average for the others. */

typedef struct attn_probsparse_job_ {
  attn_tensor o, q, k, v, m;
  attn_tensor selection; /* the caller's numbers as a view [B,H,1,u]; data null: made here */
  attn_probsparse_params p;
  int64_t rows, samples; /* u and U of whole items */
  const attn_table_ *table;
  int32_t *pick;         /* [B,H,u] selected rows, ascending */
  unsigned char *failed; /* [B,H] the selection has a row that is not there, or one twice */
  double *sum;           /* [B,Hv,chunks+1,dv] of values before each chunk */
  int64_t chunks;
  attn_softmax_ engine;
  char *memory; /* of the workers */
  int64_t each;
} attn_probsparse_job_;

/* What a call reads and writes. */
enum { ATTN_PS_MEASURE_, ATTN_PS_SELECT_, ATTN_PS_ATTEND_ };

/* ---- counts ---------------------------------------------------------------------------------*/

/* min(n, max(1, f ceil(ln n))); no whole number but 1 is near a power of e */
ATTN_FUNC_ int64_t attn_probsparse_count_(int64_t n, int64_t factor) {
  int64_t log = 0;
  for (double power = 1.0; power < (double)n; power *= 2.718281828459045235) log++;
  const int64_t count = attn_mul_(factor, log);
  return count < 1 && n > 0 ? 1 : count < n ? count : n;
}

ATTN_PUB_ int64_t attn_probsparse_rows(int64_t queries, const attn_probsparse_params *params) {
  if (queries < 0 || (params && (params->factor < 0 || params->rows < 0))) return 0;
  if (params && params->has_rows) return params->rows < queries ? params->rows : queries;
  return attn_probsparse_count_(queries, params && params->factor ? params->factor : 5);
}

ATTN_PUB_ int64_t attn_probsparse_samples(int64_t keys, const attn_probsparse_params *params) {
  if (keys < 0 || (params && params->factor < 0)) return 0;
  return attn_probsparse_count_(keys, params && params->factor ? params->factor : 5);
}

/* ---- the measure ----------------------------------------------------------------------------*/

enum { ATTN_PS_TILE_ = 32 };

/* M of some queries in all heads of an item: their samples are drawn once. */
ATTN_FUNC_ void attn_probsparse_measure_item_(void *job, int worker, int64_t index) {
  const attn_probsparse_job_ *a = (const attn_probsparse_job_ *)job;
  const attn_tensor *q = &a->q, *k = &a->k;
  const int64_t tiles = (q->len + ATTN_PS_TILE_ - 1) / ATTN_PS_TILE_, b = index / tiles;
  const int64_t queries = attn_cluster_len_(a->p.q_len, b, q->len);
  const int64_t keys = attn_cluster_len_(a->p.kv_len, b, k->len);
  const int64_t n = attn_probsparse_samples(keys, &a->p), dk = q->dim;
  const uint64_t stream = ATTN_STREAM(0, 0, 5);
  const double by = a->p.by_samples ? (double)n : (double)keys;
  const int ahead = k->len > ((int64_t)1 << 18) / attn_bytes_(k->dtype, dk) ? ATTN_AHEAD_ : 0;
  int32_t *sample = (int32_t *)(void *)(a->memory + worker * a->each);
  float *row = (float *)(void *)(sample + attn_piece_(a->samples, 4) / 4), x[ATTN_BLOCK_];
  for (int64_t t = 0; t < n; t++) sample[t] = (int32_t)t;
  for (int64_t r = 0, i = index % tiles * ATTN_PS_TILE_; r < ATTN_PS_TILE_ && i < q->len;
       r++, i++) {
    const int there = i < queries && keys > 0;
    const int32_t *at = a->p.samples ? a->p.samples + i * n : sample;
    if (there && n < keys && !a->p.samples)
      for (int64_t t = 0; t < n; t++)
        sample[t] = (int32_t)attn_random_below(a->p.seed, stream, (uint64_t)(i * n + t), keys);
    for (int64_t h = 0; h < q->heads; h++) {
      const char *key = there ? attn_at_(k, b, h / (q->heads / k->heads), 0) : NULL;
      float top = -INFINITY, m = 0.0f;
      double sum = 0.0;
      if (there) a->table->widen(row, attn_at_(q, b, h, i), 0, NULL, 1, dk, q->dtype, NULL);
      if (there)
        for (int64_t t = 0; t < n; t += ATTN_BLOCK_) {
          const int64_t some = n - t < ATTN_BLOCK_ ? n - t : (int64_t)ATTN_BLOCK_;
          attn_on_(list, a->table)
              ->dots(x, row, key, k->stride_len, at + t, some, dk, k->dtype, ahead);
          for (int64_t e = 0; e < some; e++) top = x[e] > top ? x[e] : top, sum += (double)x[e];
        }
      if (there) m = attn_one_nan_((float)((double)top - sum / by));
      memcpy(attn_at_(&a->m, b, h, i), &m, sizeof m);
    }
  }
}

ATTN_COLD_ int attn_probsparse_measure_steps_(attn_stage_ *s, void *job) {
  attn_probsparse_job_ *a = (attn_probsparse_job_ *)job;
  const int64_t tiles = (a->q.len + ATTN_PS_TILE_ - 1) / ATTN_PS_TILE_;
  a->table = s->table;
  a->each = attn_add_(attn_piece_(a->samples, 4), attn_piece_(a->q.dim, 4));
  if (!attn_stage_for_(s, attn_mul_(a->q.batch, tiles), attn_probsparse_measure_item_, a, a->each,
                       &a->memory))
    return 0;
  for (int64_t b = 0; s->run && b < a->q.batch; b++) {
    const int64_t keys = attn_cluster_len_(a->p.kv_len, b, a->k.len);
    s->pairs += a->q.heads * attn_cluster_len_(a->p.q_len, b, a->q.len) *
                attn_probsparse_samples(keys, &a->p);
  }
  return 1;
}

/* ---- the selection --------------------------------------------------------------------------*/

/* The best rows of one head. */
ATTN_FUNC_ void attn_probsparse_select_item_(void *job, int worker, int64_t unit) {
  const attn_probsparse_job_ *a = (const attn_probsparse_job_ *)job;
  const int64_t b = unit / a->m.heads, h = unit % a->m.heads;
  const int64_t n = attn_cluster_len_(a->p.q_len, b, a->m.len);
  const int64_t rows = attn_probsparse_rows(n, &a->p);
  uint64_t *x = (uint64_t *)(void *)(a->memory + worker * a->each);
  int32_t *to = (int32_t *)(void *)attn_at_(&a->selection, b, h, 0);
  for (int64_t i = 0; i < n; i++) {
    float m;
    memcpy(&m, attn_at_(&a->m, b, h, i), sizeof m);
    x[i] = attn_candidate_(m, i);
  }
  if (rows > 0) attn_select_(x, n, rows, x + a->m.len);
  attn_sort_(x, rows, x + a->m.len);
  for (int64_t r = 0; r < a->rows; r++)
    to[r] = r < rows ? (int32_t)attn_candidate_index_(x[r]) : -1;
}

ATTN_COLD_ int attn_probsparse_select_steps_(attn_stage_ *s, void *job) {
  attn_probsparse_job_ *a = (attn_probsparse_job_ *)job;
  a->table = s->table;
  a->each = attn_piece_(attn_mul_(a->m.len, 2), 8);
  return attn_stage_for_(s, attn_mul_(a->m.batch, a->m.heads), attn_probsparse_select_item_, a,
                         a->each, &a->memory);
}

/* ---- other rows -----------------------------------------------------------------------------*/

/* Values whose sums are formed together; rows of o that are filled together. */
enum { ATTN_PS_CHUNK_ = 1024 };

ATTN_FUNC_ double *attn_probsparse_sum_(const attn_probsparse_job_ *a, int64_t unit,
                                        int64_t chunk) {
  return a->sum + (unit * (a->chunks + 1) + chunk) * a->v.dim;
}

/* sum += value j; row has room for one */
ATTN_FUNC_ void attn_probsparse_add_(const attn_probsparse_job_ *a, double *sum, int64_t b,
                                     int64_t h, int64_t j, float *row) {
  const char *at = attn_at_(&a->v, b, h, j);
  const float *x = (const float *)(const void *)at;
  if (a->v.dtype != ATTN_F32) {
    a->table->widen(row, at, 0, NULL, 1, a->v.dim, a->v.dtype, NULL);
    x = row;
  }
  int64_t c = 0;
  for (; c + 8 <= a->v.dim; c += 8) /* eight at a time: loops that any compiler vectorises */
    for (int i = 0; i < 8; i++) sum[c + i] += (double)x[c + i];
  for (; c < a->v.dim; c++) sum[c] += (double)x[c];
}

/* row = sum by */
ATTN_FUNC_ void attn_probsparse_row_(float *row, const double *sum, int64_t n, double by) {
  int64_t c = 0;
  for (; c + 8 <= n; c += 8)
    for (int i = 0; i < 8; i++) row[c + i] = attn_one_nan_((float)(sum[c + i] * by));
  for (; c < n; c++) row[c] = attn_one_nan_((float)(sum[c] * by));
}

/* Sums of chunks of values, */
ATTN_FUNC_ void attn_probsparse_chunk_(void *job, int worker, int64_t index) {
  const attn_probsparse_job_ *a = (const attn_probsparse_job_ *)job;
  const int64_t unit = index / a->chunks, chunk = index % a->chunks, b = unit / a->v.heads;
  const int64_t keys = attn_cluster_len_(a->p.kv_len, b, a->v.len), dv = a->v.dim;
  double *sum = attn_probsparse_sum_(a, unit, chunk + 1);
  float *row = (float *)(void *)(a->memory + worker * a->each);
  memset(sum, 0, (size_t)dv * sizeof *sum);
  for (int64_t r = 0, j = chunk * ATTN_PS_CHUNK_; r < ATTN_PS_CHUNK_ && j < keys; r++, j++)
    attn_probsparse_add_(a, sum, b, unit % a->v.heads, j, row);
}

/* then of all values before each. */
ATTN_FUNC_ void attn_probsparse_prefix_(void *job, int worker, int64_t unit) {
  const attn_probsparse_job_ *a = (const attn_probsparse_job_ *)job;
  const int64_t dv = a->v.dim;
  double *sum = attn_probsparse_sum_(a, unit, 0);
  (void)worker;
  for (int64_t c = 0; c < dv; c++) sum[c] = 0.0;
  for (int64_t c = 0; c < a->chunks * dv; c++) sum[dv + c] += sum[c];
}

/* Some rows of the query heads that share values become means, or sums. */
ATTN_FUNC_ void attn_probsparse_fill_(void *job, int worker, int64_t index) {
  const attn_probsparse_job_ *a = (const attn_probsparse_job_ *)job;
  const attn_tensor *o = &a->o;
  const int64_t tiles = (o->len + ATTN_PS_CHUNK_ - 1) / ATTN_PS_CHUNK_, unit = index / tiles;
  const int64_t b = unit / a->v.heads, hv = unit % a->v.heads, group = o->heads / a->v.heads;
  const int64_t queries = attn_cluster_len_(a->p.q_len, b, o->len), dv = a->v.dim;
  const int64_t keys = attn_cluster_len_(a->p.kv_len, b, a->v.len);
  const int64_t off = a->p.has_q_off ? a->p.q_off : a->k.len - a->q.len;
  double *sum = (double *)(void *)(a->memory + worker * a->each);
  float *row = (float *)(void *)(sum + dv), *wide = row + dv;
  int64_t seen = -1; /* values in sum */
  for (int64_t r = 0, i = index % tiles * ATTN_PS_CHUNK_; r < ATTN_PS_CHUNK_ && i < o->len;
       r++, i++) {
    const int64_t sees = i < queries ? a->p.causal ? attn_clamp_(i + off + 1, 0, keys) : keys : 0;
    if (sees > 0 && sees != seen) {
      if (seen < 0) {
        seen = sees == keys ? keys : sees / ATTN_PS_CHUNK_ * ATTN_PS_CHUNK_;
        memcpy(sum, attn_probsparse_sum_(a, unit, seen == keys ? a->chunks : seen / ATTN_PS_CHUNK_),
               (size_t)dv * sizeof *sum);
      }
      for (; seen < sees; seen++) attn_probsparse_add_(a, sum, b, hv, seen, wide);
      attn_probsparse_row_(row, sum, dv, a->p.causal && a->p.fill_sum ? 1.0 : 1.0 / (double)sees);
    }
    for (int64_t h = hv * group; h < (hv + 1) * group; h++) {
      if (sees > 0)
        attn_row_copy_(a->table, attn_at_(o, b, h, i), o->dtype, (const char *)row, ATTN_F32, dv);
      else
        attn_rows_zero_(a->table, o, b, h, i, i + 1);
    }
  }
}

ATTN_COLD_ int attn_probsparse_average_(attn_stage_ *s, attn_probsparse_job_ *a) {
  const int64_t units = attn_mul_(a->v.batch, a->v.heads), dv = a->v.dim;
  const int64_t tiles = (a->o.len + ATTN_PS_CHUNK_ - 1) / ATTN_PS_CHUNK_;
  a->chunks = (a->v.len + ATTN_PS_CHUNK_ - 1) / ATTN_PS_CHUNK_;
  a->sum = (double *)attn_stage_take_(s, attn_mul_(units, attn_mul_(a->chunks + 1, dv)), 8);
  a->each = attn_piece_(attn_mul_(dv, 16), 1);
  return attn_stage_for_(s, attn_mul_(units, a->chunks), attn_probsparse_chunk_, a, a->each,
                         &a->memory) &&
         attn_stage_for_(s, units, attn_probsparse_prefix_, a, 0, NULL) &&
         attn_stage_for_(s, attn_mul_(units, tiles), attn_probsparse_fill_, a, a->each, &a->memory);
}

/* ---- selected rows --------------------------------------------------------------------------*/

/* The selection of one head, ascending: neighbours in a tile then see about the same keys. */
ATTN_FUNC_ void attn_probsparse_sort_(void *job, int worker, int64_t unit) {
  const attn_probsparse_job_ *a = (const attn_probsparse_job_ *)job;
  const int64_t b = unit / a->q.heads, n = attn_cluster_len_(a->p.q_len, b, a->q.len);
  const int64_t rows = attn_probsparse_rows(n, &a->p);
  const int32_t *from = (const int32_t *)a->selection.data + unit * a->rows;
  int32_t *to = a->pick + unit * a->rows;
  uint64_t *x = (uint64_t *)(void *)(a->memory + worker * a->each);
  int bad = 0;
  for (int64_t r = 0; r < rows; r++) {
    bad |= from[r] < 0 || from[r] >= n;
    x[r] = (uint64_t)(int64_t)from[r];
  }
  attn_sort_(x, rows, x + a->rows);
  for (int64_t r = 0; r < rows; r++) {
    to[r] = (int32_t)x[rows - 1 - r];
    bad |= r > 0 && to[r] == to[r - 1];
  }
  a->failed[unit] = (unsigned char)bad;
}

/* 64 selected rows of the heads that share keys and values: a tile like any other of attn_sdpa. */
ATTN_FUNC_ void attn_probsparse_tile_(void *job, int worker, int64_t index) {
  const attn_probsparse_job_ *a = (const attn_probsparse_job_ *)job;
  const attn_softmax_ *f = &a->engine;
  const int64_t groups = f->q.heads / f->group, unit = index / f->tiles;
  const int64_t b = unit / groups, head = unit % groups * f->group;
  const int64_t n = attn_cluster_len_(a->p.q_len, b, a->q.len);
  const int64_t rows = attn_probsparse_rows(n, &a->p), first = index % f->tiles * ATTN_TILE_;
  const int64_t left = rows * f->group - first;
  attn_tile_ t;
  if (left <= 0) return;
  attn_tile_open_(&t, f, worker);
  t.batch = b, t.n = left < ATTN_TILE_ ? (int)left : (int)ATTN_TILE_;
  for (int r = 0; r < t.n; r++) {
    t.head[r] = head + (first + r) / rows;
    t.row[r] = a->pick[(b * f->q.heads + t.head[r]) * a->rows + (first + r) % rows];
  }
  attn_tile_run_(&t, 1);
}

ATTN_COLD_ int attn_probsparse_exact_(attn_stage_ *s, attn_probsparse_job_ *a) {
  attn_softmax_ *f = &a->engine;
  attn_sdpa_params p;
  int workers;
  memset(&p, 0, sizeof p);
  memset(f, 0, sizeof *f);
  p.scale = a->p.scale, p.causal = a->p.causal != 0, p.kv_len = a->p.kv_len;
  p.has_q_off = a->p.has_q_off, p.q_off = a->p.q_off, p.one_order = 1;
  f->o = a->o, f->q = a->q, f->k = a->k, f->v = a->v;
  if (!attn_sdpa_plan_(s->e, f, &p, &s->ctx, &workers, -1)) return 0;
  f->tiles = (attn_mul_(f->group, a->rows) + ATTN_TILE_ - 1) / ATTN_TILE_;
  const int64_t items = attn_mul_(a->q.batch * (a->q.heads / f->group), f->tiles);
  workers = attn_pieces_(s->workers, items);
  f->bytes = attn_scratch_plan_(f);
  f->workspace = attn_stage_spare_(s, attn_mul_(f->bytes, workers));
  if (s->run) attn_scratch_open_(f, workers);
  if (!attn_stage_for_(s, items, attn_probsparse_tile_, a, f->bytes, NULL)) return 0;
  if (s->run) s->pairs += attn_scratch_pairs_(f, workers);
  return 1;
}

ATTN_COLD_ int attn_probsparse_steps_(attn_stage_ *s, void *job) {
  attn_probsparse_job_ *a = (attn_probsparse_job_ *)job;
  const int64_t b = a->q.batch, h = a->q.heads, units = attn_mul_(b, h);
  const attn_tensor given = a->selection;
  a->table = s->table;
  if (!given.data) {
    a->m = attn_stage_tensor_(s, b, h, a->q.len, 1);
    a->selection.data = attn_stage_take_(s, attn_mul_(units, a->rows), 4);
    if (!attn_probsparse_measure_steps_(s, a) || !attn_probsparse_select_steps_(s, a)) return 0;
  }
  a->pick = (int32_t *)attn_stage_take_(s, attn_mul_(units, a->rows), 4);
  a->failed = (unsigned char *)attn_stage_take_(s, units, 1);
  a->each = attn_piece_(attn_mul_(a->rows, 2), 8);
  if (!attn_stage_for_(s, units, attn_probsparse_sort_, a, a->each, &a->memory)) return 0;
  a->selection = given;
  if (s->run)
    for (int64_t u = 0; u < units; u++)
      if (a->failed[u])
        return attn_reject_(s->e, ATTN_E_INDEX,
                            "selection must hold different rows of each item's queries");
  return attn_probsparse_average_(s, a) && attn_probsparse_exact_(s, a);
}

/* ---- checks ---------------------------------------------------------------------------------*/

/* The caller's samples are keys. */
ATTN_COLD_ int attn_probsparse_given_(attn_error_ *e, const attn_probsparse_job_ *a) {
  const int64_t n = a->p.samples && a->q.batch > 0 ? a->q.len * a->samples : 0;
  for (int64_t i = 0; i < n; i++)
    if (a->p.samples[i] < 0 || a->p.samples[i] >= a->k.len)
      return attn_reject_(e, ATTN_E_INDEX, "params.samples must lie in 0..k.len - 1");
  return 1;
}

/* Every rule of the three calls; data = 0: without those that read arrays. */
ATTN_COLD_ int attn_probsparse_check_(attn_error_ *e, attn_probsparse_job_ *a, int call,
                                      const attn_probsparse_params *params, const attn_ctx *ctx,
                                      const attn_table_ **table, int *workers, int data) {
  const int64_t any = ATTN_ANY_, in = ATTN_DIVIDES_;
  const int measure = call == ATTN_PS_MEASURE_, select = call == ATTN_PS_SELECT_;
  const attn_tensor *lead = select ? &a->m : &a->q;
  const int64_t b = lead->batch, h = lead->heads, t = lead->len;
  attn_probsparse_params *p = &a->p;
  attn_span_ more[3];
  attn_operand_ op[6];
  int n = 0;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (params) *p = *params;
  if (p->factor < 0) return attn_reject_(e, ATTN_E_SHAPE, "params.factor must not be negative");
  if (p->rows < 0) return attn_reject_(e, ATTN_E_SHAPE, "params.rows must not be negative");
  if (!p->has_rows && p->rows)
    return attn_reject_(e, ATTN_E_RANGE, "params.rows needs params.has_rows = 1");
  if (!p->has_q_off && p->q_off)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off needs params.has_q_off = 1");
  if (p->has_q_off && attn_abs64_(p->q_off) >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off must lie within 2^40 of 0");
  if (p->factor == 0) p->factor = 5;
  if (!select) {
    const attn_operand_ q = ATTN_OPERAND_(&a->q, "q", 0, any, any, any, any, "");
    const attn_operand_ k = ATTN_OPERAND_(&a->k, "k", 0, b, in, any, a->q.dim,
                                          "k must be [q.batch, a divisor of q.heads, ., q.dim]");
    op[n++] = q, op[n++] = k;
  }
  if (call == ATTN_PS_ATTEND_) {
    const attn_operand_ v = ATTN_OPERAND_(&a->v, "v", 0, b, in, a->k.len, any,
                                          "v must be [q.batch, a divisor of q.heads, k.len, .]");
    const attn_operand_ o = ATTN_OPERAND_(&a->o, "o", ATTN_OUT_, b, h, t, a->v.dim,
                                          "o must be [q.batch, q.heads, q.len, v.dim]");
    op[n++] = v, op[n++] = o;
  } else {
    const attn_operand_ m = ATTN_OPERAND_(
        &a->m, "m", measure ? ATTN_OUT_ | ATTN_IS_F32_ : ATTN_IS_F32_, select ? any : b,
        select ? any : h, select ? any : t, 1, "m must be f32 [batch, heads, q.len, 1]");
    op[n++] = m;
  }
  for (int i = 0; i < n; i++) {
    if (!attn_check_operand_(e, &op[i], h)) return 0;
    if (i == 0 && h < 1)
      return attn_reject_(e, ATTN_E_SHAPE,
                          select ? "m.heads must be at least 1" : "q.heads must be at least 1");
  }
  if (t > INT32_MAX || (!select && a->k.len > INT32_MAX))
    return attn_reject_(e, ATTN_E_OVERFLOW, "q.len and k.len must be below 2^31");
  a->rows = attn_probsparse_rows(t, p);
  a->samples = select ? 0 : attn_probsparse_samples(a->k.len, p);
  if (!measure && a->rows > 0) {
    a->selection = attn_bhtd(a->selection.data, ATTN_F32, b, h, 1, a->rows);
    const attn_operand_ picks = ATTN_OPERAND_(
        &a->selection, "selection", select ? ATTN_OUT_ : ATTN_OPTIONAL_, b, h, 1, a->rows, "");
    op[n] = picks;
    if (!attn_check_operand_(e, &op[n++], h)) return 0;
  }
  if (select || a->selection.data) p->samples = NULL; /* nothing is measured */
  if (p->samples && p->kv_len)
    return attn_reject_(e, ATTN_E_RANGE, "params.samples goes without params.kv_len");
  return attn_check_scale_(e, p->scale) &&
         attn_check_array_(e, p->samples, attn_mul_(t, a->samples), 4,
                           "params.samples must be aligned to its elements", &more[2]) &&
         attn_check_array_(e, p->q_len, b, 4, "params.q_len must be aligned to its elements",
                           &more[0]) &&
         attn_check_array_(e, p->kv_len, b, 4, "params.kv_len must be aligned to its elements",
                           &more[1]) &&
         attn_check_apart_(e, ctx, op, n, more, 3) &&
         (!data || (attn_probsparse_given_(e, a) &&
                    attn_check_lens_(e, p->q_len, b, t, "params.q_len must lie in 0..q.len") &&
                    (select || attn_check_lens_(e, p->kv_len, b, a->k.len,
                                                "params.kv_len must lie in 0..k.len"))));
}

/* ---- the calls ------------------------------------------------------------------------------*/

/* A call, or with bytes its workspace query. */
ATTN_COLD_ attn_status attn_probsparse_job_call_(attn_probsparse_job_ *a, int call,
                                                 const attn_probsparse_params *params,
                                                 attn_ctx *ctx, size_t *bytes) {
  static const attn_steps_fn_ steps[] = {attn_probsparse_measure_steps_,
                                         attn_probsparse_select_steps_, attn_probsparse_steps_};
  static const char *const path[] = {"sampled dots", "selection",
                                     "selected rows beside an average"};
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_probsparse_check_(&e, a, call, params, ctx, &table, &workers, bytes == NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    const attn_tensor *lead = call == ATTN_PS_SELECT_ ? &a->m : &a->q;
    if (lead->batch > 0 && lead->len > 0 && (call != ATTN_PS_SELECT_ || a->rows > 0))
      attn_stage_call_(&s, ctx, steps[call], a, path[call], bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no queries");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_probsparse_job_ attn_probsparse_job_of_(const int32_t *selection) {
  attn_probsparse_job_ a;
  memset(&a, 0, sizeof a);
  a.selection.data = (void *)(uintptr_t)selection;
  return a;
}

ATTN_COLD_ attn_status attn_probsparse_measure_call_(attn_tensor m, attn_tensor q, attn_tensor k,
                                                     const attn_probsparse_params *params,
                                                     attn_ctx *ctx, size_t *bytes) {
  attn_probsparse_job_ a = attn_probsparse_job_of_(NULL);
  a.m = m, a.q = q, a.k = k;
  return attn_probsparse_job_call_(&a, ATTN_PS_MEASURE_, params, ctx, bytes);
}
ATTN_CALL_(attn_probsparse_measure, (m, q, k, params), attn_tensor m, attn_tensor q, attn_tensor k,
           const attn_probsparse_params *params)

ATTN_COLD_ attn_status attn_probsparse_select_call_(int32_t *selection, attn_tensor m,
                                                    const attn_probsparse_params *params,
                                                    attn_ctx *ctx, size_t *bytes) {
  attn_probsparse_job_ a = attn_probsparse_job_of_(selection);
  a.m = m;
  return attn_probsparse_job_call_(&a, ATTN_PS_SELECT_, params, ctx, bytes);
}
ATTN_CALL_(attn_probsparse_select, (selection, m, params), int32_t *selection, attn_tensor m,
           const attn_probsparse_params *params)

ATTN_COLD_ attn_status attn_probsparse_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                             attn_tensor v, const int32_t *selection,
                                             const attn_probsparse_params *params, attn_ctx *ctx,
                                             size_t *bytes) {
  attn_probsparse_job_ a = attn_probsparse_job_of_(selection);
  a.o = o, a.q = q, a.k = k, a.v = v;
  return attn_probsparse_job_call_(&a, ATTN_PS_ATTEND_, params, ctx, bytes);
}
ATTN_CALL_(attn_probsparse, (o, q, k, v, selection, params), attn_tensor o, attn_tensor q,
           attn_tensor k, attn_tensor v, const int32_t *selection,
           const attn_probsparse_params *params)
