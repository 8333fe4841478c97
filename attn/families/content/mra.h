/* families/content/mra.h owns attention at two resolutions: means of blocks, the choice of block pairs, exact tiles
 * over the chosen ones by a schedule that exists only while an item runs, and what they are joined with. */

typedef struct attn_mra_job_ {
  attn_mra_params p; /* resolved */
  attn_softmax_ f;   /* the call as attn_sdpa would see it, then its exact part */
  attn_reshape_ reshape;
  const attn_table_ *table;
  int64_t nq, nk;      /* blocks of queries, of keys */
  attn_tensor q, k, v; /* means */
  /* what mean is at work */
  const attn_tensor *from, *to;
  const int32_t *len;
  float *map; /* [B][H][nq][nk] mu; once chosen: -inf of chosen pairs, else log n_Y */
  attn_tensor coarse,
      lse;          /* [B,H,nq,dv], [B,H,nq,1]: the approximated sums of a block of queries */
  attn_plan_ blank; /* stands for a schedule until an item makes its own */
  char *memory;
  int64_t each, at_rows, at_runs;
} attn_mra_job_;

ATTN_FUNC_ int64_t attn_mra_blocks_(const attn_mra_job_ *j, int64_t n) {
  return n / j->p.block + (n % j->p.block != 0);
}

/* ---- means and the choice -------------------------------------------------------------------*/

/* The mean of a block. */
ATTN_FUNC_ void attn_mra_mean_(void *job, int worker, int64_t index) {
  const attn_mra_job_ *j = (const attn_mra_job_ *)job;
  const attn_tensor *x = j->from, *y = j->to;
  const int64_t dim = x->dim, unit = index / y->len, b = unit / x->heads, h = unit % x->heads;
  const int64_t i0 = index % y->len * j->p.block, n = attn_len_of_(j->len, b, x->len);
  const int64_t i1 = n - i0 < j->p.block ? n : i0 + j->p.block;
  float *to = (float *)(void *)attn_at_(y, b, h, index % y->len);
  double *sum = (double *)(void *)(j->memory + worker * j->each);
  float *row = (float *)(void *)(sum + dim);
  memset(sum, 0, (size_t)dim * sizeof *sum);
  for (int64_t i = i0; i < i1; i++) {
    j->table->widen(row, attn_at_(x, b, h, i), 0, NULL, 1, dim, x->dtype, NULL);
    for (int64_t c = 0; c < dim; c++) sum[c] += (double)row[c];
  }
  for (int64_t c = 0; c < dim; c++) to[c] = i0 < i1 ? (float)(sum[c] / (double)(i1 - i0)) : 0.0f;
}

ATTN_FUNC_ int attn_mra_prior_(const attn_mra_job_ *j, int64_t x, int64_t y) {
  const int64_t away = x < y ? y - x : x - y;
  return x < j->p.first || y < j->p.first || (j->p.diagonal > 0 && away <= j->p.diagonal / 2);
}

/* The pairs of one head: scores become what the softmax over means needs of them. */
ATTN_FUNC_ void attn_mra_choose_(void *job, int worker, int64_t unit) {
  const attn_mra_job_ *j = (const attn_mra_job_ *)job;
  const int64_t b = unit / j->f.q.heads, nk = j->nk,
                keys = attn_len_of_(j->f.kv_len, b, j->f.k.len);
  const int64_t nx = attn_mra_blocks_(j, attn_len_of_(j->f.q_len, b, j->f.q.len));
  const int64_t ny = attn_mra_blocks_(j, keys), all = nx * ny;
  const int64_t chosen = j->p.exact < all ? j->p.exact : all;
  float *map = j->map + unit * j->nq * nk;
  uint64_t *best = (uint64_t *)(void *)(j->memory + worker * j->each), *spare = best + j->nq * nk;
  int64_t n = 0, priors = 0;
  for (int pass = 0; pass < 2; pass++) { /* those that come before others, the others */
    for (int64_t x = 0; x < nx; x++) {
      const float *row = map + x * nk;
      float top = -INFINITY;
      for (int64_t y = 0; y < ny; y++) top = row[y] > top ? row[y] : top;
      if (j->p.by_score) top = 0.0f;
      for (int64_t y = 0; y < ny; y++)
        if (attn_mra_prior_(j, x, y) == !pass)
          best[n++] = attn_candidate_(row[y] - top, x * nk + y);
    }
    if (!pass) priors = n;
  }
  if (priors < chosen && chosen < n)
    attn_select_(best + priors, n - priors, chosen - priors, spare);
  else if (chosen < priors && chosen > 0)
    attn_select_(best, priors, chosen, spare);
  for (int64_t y = 0; y < nk; y++) {
    const int64_t left = keys - y * j->p.block;
    const float x =
        left > 0 ? (float)log((double)(left < j->p.block ? left : j->p.block)) : -INFINITY;
    for (int64_t e = 0; e < j->nq; e++) map[e * nk + y] = x;
  }
  for (int64_t e = 0; e < chosen; e++) map[attn_candidate_index_(best[e])] = -INFINITY;
}

/* ---- exact tiles ----------------------------------------------------------------------------*/

/* The end of a tile: what approximates the other blocks is one more key, of the row's block. */
ATTN_FUNC_ void attn_mra_finish_(attn_tile_ *t) {
  const attn_mra_job_ *j = (const attn_mra_job_ *)t->a->reshape->user;
  const int64_t rows = attn_len_of_(t->a->q_len, t->batch, t->a->q.len), dv = t->a->v.dim;
  float s[ATTN_TILE_], top[ATTN_TILE_], x[ATTN_GROUP_ * ATTN_TILE_];
  const void *row[ATTN_TILE_];
  for (int r = 0; r < ATTN_TILE_; r++) {
    s[r] = -INFINITY;
    if (r < t->n) row[r] = attn_at_(&j->coarse, t->batch, t->head[r], t->row[r] / j->p.block);
    if (r < t->n && t->row[r] < rows)
      s[r] = (float)((double)*(const float *)(const void *)attn_at_(&j->lse, t->batch, t->head[r],
                                                                    t->row[r] / j->p.block) *
                     ATTN_LOG2E_);
    top[r] = s[r];
  }
  attn_on_(tile, t->a->table)->softmax_block(s, 1, 0, t->groups, t->m, t->l, t->alpha, top, NULL);
  for (int64_t c = 0, n; c < dv; c += n) {
    n = dv - c < ATTN_GROUP_ ? dv - c : (int64_t)ATTN_GROUP_;
    t->a->table->pack(x, row, t->n, n, ATTN_F32, 1.0f, attn_least_(1.0f));
    for (int64_t i = 0; i < n; i++) {
      float *to = t->w.ot + (c + i) * ATTN_TILE_;
      for (int r = 0; r < t->n; r++)
        to[r] = to[r] * t->alpha[r] +
                (s[r] > 0.0f || s[r] != s[r] ? s[r] * x[i * ATTN_TILE_ + r] : 0.0f);
    }
    for (int r = 0; r < t->n; r++) row[r] = (const float *)row[r] + n;
  }
  attn_tile_divide_(t);
}

/* The keys that the rows of a tile see, as runs: of chosen blocks. */
ATTN_FUNC_ int64_t attn_mra_runs_(const attn_mra_job_ *j, attn_plan_run_ *run, int64_t unit,
                                  int64_t i0, int64_t i1) {
  const int64_t size = j->p.block,
                keys = attn_len_of_(j->f.kv_len, unit / j->f.q.heads, j->f.k.len);
  int64_t n = 0;
  for (int64_t y = 0; y * size < keys; y++) {
    uint64_t lanes = 0;
    for (int64_t x = i0 / size; x * size < i1; x++) {
      const int from = (int)(x * size < i0 ? 0 : x * size - i0);
      const int to = (int)(i1 - x * size < size ? i1 - i0 : (x + 1) * size - i0);
      if (j->map[(unit * j->nq + x) * j->nk + y] == -INFINITY)
        lanes |= attn_low_bits_(to) & ~attn_low_bits_(from);
    }
    if (!lanes) continue;
    const int32_t more = (int32_t)(keys - y * size < size ? keys - y * size : size);
    if (n > 0 && run[n - 1].lanes == lanes && run[n - 1].key + run[n - 1].n == y * size) {
      run[n - 1].n += more;
      continue;
    }
    run[n].key = (int32_t)(y * size), run[n].n = more, run[n++].lanes = lanes;
  }
  return n;
}

/* 64 rows of one head. */
ATTN_FUNC_ void attn_mra_item_(void *job, int worker, int64_t index) {
  const attn_mra_job_ *j = (const attn_mra_job_ *)job;
  const int64_t tiles = attn_tiles_of_(j->f.q.len), unit = index / tiles, heads = j->f.q.heads;
  const int64_t i0 = index % tiles * ATTN_TILE_, n = attn_min64_(j->f.q.len - i0, ATTN_TILE_);
  char *memory = j->memory + worker * j->each;
  int32_t *row = (int32_t *)(void *)(memory + j->at_rows);
  attn_plan_ *plan = (attn_plan_ *)(void *)memory;
  attn_plan_tile_ tile;
  attn_softmax_ own = j->f;
  attn_tile_ t;
  memset(&tile, 0, sizeof tile);
  plan->at_row = j->at_rows, plan->at_run = j->at_runs;
  own.plan = plan;
  tile.n = (int32_t)n, tile.step = 1;
  for (int64_t r = 0; r < n; r++) row[r] = (int32_t)(i0 + r);
  tile.count = attn_mra_runs_(j, (attn_plan_run_ *)(void *)(memory + j->at_runs), unit, i0, i0 + n);
  attn_tile_open_(&t, &own, worker);
  attn_tile_plan_rows_(&t, unit / heads, unit % heads, &tile);
  attn_tile_run_(&t, 1);
}

/* ---- the call -------------------------------------------------------------------------------*/

ATTN_COLD_ int attn_mra_means_(attn_stage_ *s, attn_mra_job_ *j, const attn_tensor *x,
                               const int32_t *len, attn_tensor *y) {
  *y = attn_stage_tensor_(s, x->batch, x->heads, attn_mra_blocks_(j, x->len), x->dim);
  j->from = x, j->to = y, j->len = len;
  j->each = attn_piece_(attn_mul_(x->dim, 12), 1);
  return attn_stage_for_(s, attn_mul_(attn_mul_(y->batch, y->heads), y->len), attn_mra_mean_, j,
                         j->each, &j->memory);
}

/* Heads that share keys are rows of one product. */
ATTN_COLD_ int attn_mra_map_(attn_stage_ *s, attn_mra_job_ *j) {
  const attn_softmax_ *f = &j->f;
  const int64_t units = attn_mul_(f->q.batch, f->q.heads), kh = attn_mul_(f->k.batch, f->k.heads);
  const int64_t pairs = attn_mul_(j->nq, j->nk),
                rows = attn_mul_(attn_over_(f->q.heads, f->k.heads), j->nq);
  attn_gemm_params p;
  memset(&p, 0, sizeof p);
  p.scale = (float)f->scale;
  if (p.scale == 0.0f) p.scale = ATTN_ZERO;
  j->map = (float *)attn_stage_take_(s, attn_mul_(units, pairs), sizeof(float));
  attn_tensor w = attn_bhtd(j->k.data, ATTN_F32, 1, kh, j->nk, f->k.dim);
  attn_turn_(&w, 1);
  if (!attn_stage_gemm_(s, attn_bhtd(j->map, ATTN_F32, 1, kh, rows, j->nk),
                        attn_bhtd(j->q.data, ATTN_F32, 1, kh, rows, f->q.dim), w, &p))
    return 0;
  j->each = attn_piece_(pairs, 16);
  return attn_stage_for_(s, units, attn_mra_choose_, j, j->each, &j->memory);
}

/* The sums of blocks that are not chosen: a softmax over means, of n_Y keys each. */
ATTN_COLD_ int attn_mra_coarse_(attn_stage_ *s, attn_mra_job_ *j) {
  const attn_softmax_ *f = &j->f;
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  j->coarse = attn_stage_tensor_(s, f->q.batch, f->q.heads, j->nq, f->v.dim);
  j->lse = attn_stage_tensor_(s, f->q.batch, f->q.heads, j->nq, 1);
  p.scale = j->p.scale, p.lse = j->lse;
  if (j->nk) p.bias = attn_mask_add(j->map, ATTN_F32, f->q.batch, f->q.heads, j->nq, j->nk);
  return attn_stage_sdpa_(s, j->coarse, j->q, j->k, j->v, &p);
}

ATTN_COLD_ int attn_mra_steps_(attn_stage_ *s, void *job) {
  attn_mra_job_ *j = (attn_mra_job_ *)job;
  attn_softmax_ *f = &j->f;
  if (!attn_mra_means_(s, j, &f->q, f->q_len, &j->q) ||
      !attn_mra_means_(s, j, &f->k, f->kv_len, &j->k) || (j->nk && !attn_mra_map_(s, j)))
    return 0;
  if (!j->p.sparse && (!attn_mra_means_(s, j, &f->v, f->kv_len, &j->v) || !attn_mra_coarse_(s, j)))
    return 0;
  memset(&j->reshape, 0, sizeof j->reshape);
  j->reshape.user = j, j->reshape.finish = attn_mra_finish_;
  f->reshape = j->p.sparse ? NULL : &j->reshape;
  f->plan = &j->blank;
  f->bytes = attn_scratch_plan_(f);
  j->at_rows = attn_piece_(1, sizeof(attn_plan_));
  j->at_runs = attn_add_(j->at_rows, attn_piece_(ATTN_TILE_, sizeof(int32_t)));
  j->each = attn_add_(j->at_runs, attn_piece_(attn_max64_(j->nk, 1), sizeof(attn_plan_run_)));
  const int64_t items = attn_mul_(attn_mul_(f->q.batch, f->q.heads), attn_tiles_of_(f->q.len));
  const int workers = attn_pieces_(s->workers, items);
  const int64_t own = attn_mul_(j->each, workers);
  char *spare = attn_stage_spare_(s, attn_add_(own, attn_mul_(f->bytes, workers)));
  if (!s->run) return 1;
  j->memory = spare, f->workspace = spare + own;
  attn_scratch_open_(f, workers);
  attn_for_(&s->ctx, workers, items, attn_mra_item_, j);
  s->pairs += attn_scratch_pairs_(f, workers);
  return 1;
}

ATTN_COLD_ int attn_mra_check_(attn_error_ *e, attn_mra_job_ *j, const attn_ctx *ctx, int *workers,
                               int data) {
  attn_mra_params *p = &j->p;
  attn_softmax_ *f = &j->f;
  attn_sdpa_params plain;
  memset(&plain, 0, sizeof plain);
  if (p->block < 0)
    return attn_reject_(e, ATTN_E_RANGE, "params.block must be at least 1, or 0 for 32");
  if (p->exact < 0) return attn_reject_(e, ATTN_E_RANGE, "params.exact must not be negative");
  if (p->first < 0 || p->diagonal < 0)
    return attn_reject_(e, ATTN_E_RANGE, "params.first and diagonal must not be negative");
  plain.scale = p->scale, plain.kv_len = p->kv_len, plain.q_len = p->q_len, plain.lse = p->lse;
  plain.one_order = 1;
  f->reshape = &j->reshape, j->reshape.by_head = 1;
  if (!attn_sdpa_plan_(e, f, &plain, ctx, workers, data)) return 0;
  j->table = f->table;
  if (attn_quantized_(f->k.dtype) || attn_quantized_(f->v.dtype))
    return attn_reject_(e, ATTN_E_DTYPE, "k and v must be ATTN_F32, F16 or BF16");
  if (p->block == 0) p->block = 32;
  p->block = attn_min64_(p->block, attn_max64_(attn_max64_(f->q.len, f->k.len), 1));
  j->nq = attn_mra_blocks_(j, f->q.len), j->nk = attn_mra_blocks_(j, f->k.len);
  if (p->exact == 0 && !p->has_exact) p->exact = attn_mul_(4, j->nq);
  if (f->q.len > INT32_MAX || f->k.len > INT32_MAX || attn_mul_(j->nq, j->nk) > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW,
                        "q.len, k.len and the pairs of their blocks must be below 2^31");
  return 1;
}

ATTN_COLD_ attn_status attn_mra_call_(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                      const attn_mra_params *params, attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_mra_job_ j;
  int workers = 1;
  memset(&j, 0, sizeof j);
  if (params) j.p = *params;
  j.f.o = o, j.f.q = q, j.f.k = k, j.f.v = v;
  (void)attn_mra_check_(&e, &j, ctx, &workers, bytes ? 0 : 1);
  return attn_step_call_or_(&e, j.table, workers, ctx, attn_mra_steps_, &j,
                            "exact tiles of chosen blocks, means of the others",
                            e.status == ATTN_OK && attn_nothing_(&j.f) ? "no queries" : NULL,
                            bytes);
}
ATTN_CALL_(attn_mra, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_mra_params *params)
