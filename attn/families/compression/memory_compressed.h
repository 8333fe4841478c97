/* families/compression/memory_compressed.h owns memory compressed attention: a convolution with as large a stride as
 * kernel, a slot in front, exact attention; and the local layers that go with it. */

typedef struct attn_compressed_job_ {
  attn_short_ x;
  attn_memory_compressed_params p; /* kernel and pad resolved */
} attn_compressed_job_;

ATTN_COLD_ int attn_compressed_check_(attn_error_ *e, attn_compressed_job_ *j,
                                      const attn_memory_compressed_params *params,
                                      const attn_ctx *ctx, const attn_table_ **table, int *workers,
                                      int data) {
  static const char *const w[] = {ATTN_WORDS_("params.null_k"), ATTN_WORDS_("params.null_v")};
  attn_memory_compressed_params *p = &j->p;
  attn_operand_ op[ATTN_SHORT_N_ + 6];
  attn_span_ lens[2];
  int n = ATTN_SHORT_N_;
  memset(op, 0, sizeof op);
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has the weights");
  *p = *params;
  j->x.lse = p->lse, j->x.kv_len = p->kv_len, j->x.q_len = p->q_len, j->x.scale = p->scale;
  if (!attn_short_check_(e, &j->x, op, lens, p->has_q_off, p->q_off, data)) return 0;
  if (p->kernel < 0) return attn_reject_(e, ATTN_E_SHAPE, "params.kernel must not be negative");
  if (p->kernel == 0) p->kernel = 3;
  if (p->pad == ATTN_PAD_DEFAULT) p->pad = ATTN_PAD_LEFT;
  if (p->pad != ATTN_PAD_LEFT && p->pad != ATTN_PAD_RIGHT && p->pad != ATTN_PAD_DROP)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.pad must be ATTN_PAD_LEFT, ATTN_PAD_RIGHT or ATTN_PAD_DROP");
  if ((int)p->slot < 0 || p->slot >= ATTN_SLOT_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.slot must be an attn_slot");
  attn_tensor *const t[] = {&p->w_k, &p->w_v, &p->b_k, &p->b_v};
  if (!attn_short_convolution_(e, &j->x, op + n, t, &p->kernel)) return 0;
  n += 4;
  if (p->slot != ATTN_SLOT_NULL) p->null_k.data = p->null_v.data = NULL;
  if (!attn_short_operand_(e, &op[n], &p->null_k, w[0], ATTN_OPTIONAL_, j->x.k.heads, 1, j->x.k.dim,
                           "params.null_k must be [1, 1 or k.heads, 1, k.dim]") ||
      !attn_short_operand_(e, &op[n + 1], &p->null_v, w[1], ATTN_OPTIONAL_, j->x.v.heads, 1,
                           j->x.v.dim, "params.null_v must be [1, 1 or v.heads, 1, v.dim]"))
    return 0;
  return attn_check_apart_(e, ctx, op, n + 2, lens, 2);
}

/* Blocks of n rows. */
ATTN_FUNC_ int64_t attn_compressed_blocks_(const attn_compressed_job_ *j, int64_t n) {
  const int64_t c = j->p.kernel;
  return n / c + (j->p.pad != ATTN_PAD_DROP && n % c != 0);
}

/* The slot is key 0, block m key m + 1; without a slot block m is key m. */
ATTN_FUNC_ void attn_compressed_range_(const void *user, int64_t b, int64_t row, int64_t *lo,
                                       int64_t *hi) {
  const attn_compressed_job_ *j = (const attn_compressed_job_ *)user;
  const int64_t n = attn_short_keys_(&j->x, b), c = j->p.kernel, p = row + j->x.q_off;
  const int64_t blocks = attn_compressed_blocks_(j, n);
  const int64_t shift = j->p.pad == ATTN_PAD_LEFT ? blocks * c - n : 0;
  const int64_t last = j->p.strict ? p - 1 : p; /* the last row that is seen */
  const int slot = j->p.slot != ATTN_SLOT_NONE;
  int64_t seen = blocks;
  if (j->p.causal && last < n - 1) seen = last < 0 ? 0 : (last + shift + 1) / c;
  *lo = j->p.slot == ATTN_SLOT_FIRST && (n == 0 || p < 0);
  *hi = seen + slot;
}

/* The slot's row: of x itself where first is set. */
typedef struct attn_front_ {
  const attn_table_ *table;
  attn_tensor y, x;
  const attn_short_ *of;
  int first;
} attn_front_;

ATTN_FUNC_ void attn_front_item_(void *job, int worker, int64_t index) {
  const attn_front_ *a = (const attn_front_ *)job;
  const int64_t b = index / a->y.heads, h = index % a->y.heads;
  const void *row = NULL;
  (void)worker;
  if (!a->first && a->x.data) row = attn_at_(&a->x, 0, a->x.heads > 1 ? h : 0, 0);
  if (a->first && attn_short_keys_(a->of, b) > 0) row = attn_at_(&a->x, b, h, 0);
  a->table->blend(attn_at_(&a->y, b, h, 0), row, NULL, a->y.dtype, a->x.dtype, ATTN_F32, a->y.dim,
                  1.0f, 0.0f);
}

/* The blocks of x, behind their slot, in *y. */
ATTN_COLD_ int attn_compressed_shorten_(attn_stage_ *s, const attn_compressed_job_ *j,
                                        attn_tensor *y, attn_tensor x, attn_tensor w,
                                        attn_tensor bias, attn_tensor slot) {
  const int front = j->p.slot != ATTN_SLOT_NONE;
  const int64_t blocks = attn_compressed_blocks_(j, x.len);
  attn_convolve_params c;
  memset(&c, 0, sizeof c);
  c.pad = j->p.pad, c.stride = j->p.kernel, c.bias = bias, c.x_len = j->x.kv_len;
  *y = attn_stage_tensor_(s, x.batch, x.heads, blocks + front, x.dim);
  attn_front_ a = {s->table, *y, slot, &j->x, j->p.slot == ATTN_SLOT_FIRST};
  if (a.first) a.x = x;
  if (front && !attn_stage_for_(s, attn_mul_(x.batch, x.heads), attn_front_item_, &a, 0, NULL))
    return 0;
  return blocks == 0 || attn_stage_convolve_(s, attn_stage_rows_(*y, front, blocks), x, w, &c);
}

ATTN_COLD_ int attn_compressed_steps_(attn_stage_ *s, void *job) {
  const attn_compressed_job_ *j = (const attn_compressed_job_ *)job;
  const attn_memory_compressed_params *g = &j->p;
  const attn_short_ *x = &j->x;
  const attn_sdpa_params p = attn_short_params_(x);
  attn_tensor k, v;
  return attn_compressed_shorten_(s, j, &k, x->k, g->w_k, g->b_k, g->null_k) &&
         attn_compressed_shorten_(s, j, &v, x->v, g->w_v, g->b_v, g->null_v) &&
         attn_stage_ranged_(s, x->o, x->q, k, v, &p, attn_compressed_range_, j);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_compressed_call_(attn_compressed_job_ *j,
                                             const attn_memory_compressed_params *params,
                                             attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_compressed_check_(&e, j, params, ctx, &table, &workers, !bytes)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (!attn_short_empty_(&j->x))
      attn_stage_call_(&s, ctx, attn_compressed_steps_, j, "convolution, then softmax", bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no queries");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_memory_compressed_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                                    attn_tensor v,
                                                    const attn_memory_compressed_params *params,
                                                    attn_ctx *ctx, size_t *bytes) {
  attn_compressed_job_ j;
  memset(&j, 0, sizeof j);
  j.x.o = o, j.x.q = q, j.x.k = k, j.x.v = v;
  return attn_compressed_call_(&j, params, ctx, bytes);
}
ATTN_CALL_(attn_memory_compressed, (o, q, k, v, params), attn_tensor o, attn_tensor q,
           attn_tensor k, attn_tensor v, const attn_memory_compressed_params *params)

/* ---- local blocks ---------------------------------------------------------------------------*/

typedef struct attn_local_job_ {
  attn_short_ x;
  int64_t block;
  int causal;
} attn_local_job_;

ATTN_COLD_ int attn_local_check_(attn_error_ *e, attn_local_job_ *j,
                                 const attn_local_params *params, const attn_ctx *ctx,
                                 const attn_table_ **table, int *workers, int data) {
  attn_operand_ op[ATTN_SHORT_N_];
  attn_span_ lens[2];
  memset(op, 0, sizeof op);
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (params) {
    j->x.lse = params->lse, j->x.kv_len = params->kv_len, j->x.q_len = params->q_len;
    j->x.scale = params->scale, j->block = params->block, j->causal = params->causal;
  }
  if (!attn_short_check_(e, &j->x, op, lens, 0, 0, data)) return 0;
  if (j->x.q.len != j->x.k.len) return attn_reject_(e, ATTN_E_SHAPE, "k.len must equal q.len");
  if (j->block < 0) return attn_reject_(e, ATTN_E_RANGE, "params.block must not be negative");
  if (j->block == 0) j->block = 256;
  return attn_check_apart_(e, ctx, op, ATTN_SHORT_N_, lens, 2);
}

ATTN_FUNC_ void attn_local_range_(const void *user, int64_t b, int64_t row, int64_t *lo,
                                  int64_t *hi) {
  const attn_local_job_ *j = (const attn_local_job_ *)user;
  const int64_t n = attn_short_keys_(&j->x, b);
  *lo = row - row % j->block;
  *hi = j->causal ? row + 1 : attn_add_(*lo, j->block);
  if (*hi > n) *hi = n;
}

ATTN_COLD_ int attn_local_steps_(attn_stage_ *s, void *job) {
  const attn_local_job_ *j = (const attn_local_job_ *)job;
  const attn_sdpa_params p = attn_short_params_(&j->x);
  return attn_stage_ranged_(s, j->x.o, j->x.q, j->x.k, j->x.v, &p, attn_local_range_, j);
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_local_job_call_(attn_local_job_ *j, const attn_local_params *params,
                                            attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_local_check_(&e, j, params, ctx, &table, &workers, !bytes)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (!attn_short_empty_(&j->x))
      attn_stage_call_(&s, ctx, attn_local_steps_, j, "softmax over blocks", bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no queries");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_local_call_(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                        const attn_local_params *params, attn_ctx *ctx,
                                        size_t *bytes) {
  attn_local_job_ j;
  memset(&j, 0, sizeof j);
  j.x.o = o, j.x.q = q, j.x.k = k, j.x.v = v;
  return attn_local_job_call_(&j, params, ctx, bytes);
}
ATTN_CALL_(attn_local, (o, q, k, v, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_local_params *params)
