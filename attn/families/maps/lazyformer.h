/* families/maps/lazyformer.h owns maps that serve several layers (H5): a map times values, and a stack
 * of layers whose values are known at once. */

/* ---- a map times values ---------------------------------------------------------------------*/

/* Keys at once: with fewer, rows of a map come late from memory (76 % of peak; with 128 70 %). */
enum { ATTN_MAP_DEEP_ = 256 };

typedef struct attn_map_apply_job_ {
  attn_tensor o, map, v;
  int causal;
  int64_t q_off, tiles, wide; /* floats of a row of values or sums: whole groups */
  const attn_table_ *table;
  char *memory; /* of the workers: values of a block, sums, weights as floats */
  int64_t each, at_sum, at_weights;
} attn_map_apply_job_;

/* y += map rows times values j0 .. j0 + n. careful: values that are not finite go to weights other
 * than 0 alone. */
ATTN_FUNC_ void attn_map_apply_block_(const attn_map_apply_job_ *a, char *memory, int64_t b,
                                      int64_t h, int64_t i0, int64_t rows, int64_t j0, int64_t n,
                                      int careful) {
  const attn_table_ *f = a->table;
  const int64_t dv = a->v.dim, hv = h / (a->o.heads / a->v.heads);
  float *v = (float *)(void *)memory, *y = (float *)(void *)(memory + a->at_sum);
  float *wide = (float *)(void *)(memory + a->at_weights);
  const float *p = (const float *)(const void *)attn_at_(&a->map, b, h, i0) + j0;
  int64_t stride = a->map.stride_len;
  const int cut = a->causal && j0 + n > i0 + a->q_off + 1;
  if (a->map.dtype != ATTN_F32 || cut) {
    const char *from = attn_at_(&a->map, b, h, i0) + attn_bytes_(a->map.dtype, j0);
    f->widen(wide, from, a->map.stride_len, NULL, rows, n, a->map.dtype, NULL);
    if (cut)
      for (int64_t r = 0; r < rows; r++)
        for (int64_t j = attn_clamp_(i0 + r + a->q_off + 1 - j0, 0, n); j < n; j++)
          wide[r * n + j] = 0.0f;
    p = wide, stride = n;
  }
  const float *w = v;
  int64_t w_stride = a->wide;
  if (a->v.dtype == ATTN_F32 && dv % ATTN_GROUP_ == 0 && !careful)
    w = (const float *)(const void *)attn_at_(&a->v, b, hv, j0), w_stride = a->v.stride_len;
  if (w == v)
    for (int64_t j = 0; j < n; j++) {
      float *to = v + j * a->wide;
      f->widen(to, attn_at_(&a->v, b, hv, j0 + j), 0, NULL, 1, dv, a->v.dtype, NULL);
      if (careful)
        for (int64_t c = 0; c < dv; c++) to[c] = to[c] - to[c] == 0.0f ? to[c] : 0.0f;
    }
  attn_on_(dense, f)->gemm(y, a->wide, rows, p, stride, 1, w, w_stride, n, dv, 0);
  if (careful)
    for (int64_t j = 0; j < n; j++) {
      const char *row = attn_at_(&a->v, b, hv, j0 + j);
      for (int64_t c = 0; c < dv; c++) {
        const float x = attn_number_(row, c, a->v.dtype, NULL);
        for (int64_t r = 0; x - x != 0.0f && r < rows; r++)
          if (p[r * stride + j] != 0.0f) y[r * a->wide + c] += p[r * stride + j] * x;
      }
    }
}

/* A tile of rows of one head. */
ATTN_FUNC_ void attn_map_apply_item_(void *job, int worker, int64_t index) {
  const attn_map_apply_job_ *a = (const attn_map_apply_job_ *)job;
  const int64_t tile = a->tiles - 1 - index % a->tiles, unit = index / a->tiles;
  const int64_t b = unit / a->o.heads, h = unit % a->o.heads, i0 = tile * ATTN_TILE_;
  const int64_t rows = a->o.len - i0 < ATTN_TILE_ ? a->o.len - i0 : (int64_t)ATTN_TILE_;
  const int64_t end = a->causal ? attn_clamp_(i0 + rows + a->q_off, 0, a->v.len) : a->v.len;
  char *memory = a->memory + worker * a->each;
  float *y = (float *)(void *)(memory + a->at_sum);
  for (int careful = 0; careful < 2; careful++) {
    memset(y, 0, (size_t)(rows * a->wide) * sizeof(float));
    for (int64_t j = 0; j < end; j += ATTN_MAP_DEEP_)
      attn_map_apply_block_(a, memory, b, h, i0, rows, j,
                            end - j < ATTN_MAP_DEEP_ ? end - j : (int64_t)ATTN_MAP_DEEP_, careful);
    if (a->table->finite(y, a->wide, rows, a->v.dim)) break;
  }
  for (int64_t r = 0; r < rows; r++)
    a->table->blend(attn_at_(&a->o, b, h, i0 + r), y + r * a->wide, NULL, a->o.dtype, ATTN_F32,
                    ATTN_F32, a->v.dim, 1.0f, 0.0f);
}

ATTN_COLD_ int attn_map_apply_check_(attn_error_ *e, attn_map_apply_job_ *a,
                                     const attn_map_apply_params *p, const attn_ctx *ctx,
                                     int *workers) {
  const int64_t any = ATTN_ANY_;
  const int no_keys = a->v.len == 0 && a->map.dim == 0; /* a map without columns is no tensor */
  attn_operand_ op[3] = {
      ATTN_OPERAND_(&a->v, "v", 0, a->o.batch, ATTN_DIVIDES_, any, a->o.dim,
                    a->o.heads >= 1 && (a->v.heads < 1 || a->o.heads % a->v.heads)
                        ? "v.heads must divide o.heads"
                        : "v must be [o.batch, ., map.dim, o.dim]"),
      ATTN_OPERAND_(&a->o, "o", ATTN_OUT_, any, any, any, any, ""),
      ATTN_OPERAND_(&a->map, "map", no_keys ? ATTN_OPTIONAL_ : 0, a->o.batch, a->o.heads, a->o.len,
                    a->v.len, "map must be [o.batch, o.heads, o.len, v.len]")};
  if (!attn_check_ctx_(e, ctx, &a->table, workers)) return 0;
  if (no_keys) a->map.data = NULL;
  if (!attn_check_given_(e, op, 3)) return 0;
  if (a->o.heads < 1) return attn_reject_(e, ATTN_E_SHAPE, "o.heads must be at least 1");
  for (int i = 0; i < 3; i++)
    if (!attn_check_operand_(e, &op[i], a->o.heads)) return 0;
  if (p && !p->has_q_off && p->q_off)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off needs params.has_q_off = 1");
  if (p && p->has_q_off && attn_abs64_(p->q_off) >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off must lie within 2^40 of 0");
  if (a->o.len >= (int64_t)1 << 40 || a->v.len >= (int64_t)1 << 40)
    return attn_reject_(e, ATTN_E_OVERFLOW, "o.len and v.len must be below 2^40");
  a->causal = p && p->causal;
  a->q_off = p && p->has_q_off ? p->q_off : a->v.len - a->o.len;
  return attn_check_apart_(e, ctx, op, 3, NULL, 0);
}

ATTN_COLD_ int attn_map_apply_steps_(attn_stage_ *s, void *job) {
  attn_map_apply_job_ *a = (attn_map_apply_job_ *)job;
  const int64_t f = sizeof(float);
  a->wide = attn_row_width_(a->v.dim);
  a->tiles = attn_tiles_of_(a->o.len);
  a->at_sum = attn_piece_(attn_mul_(a->wide, ATTN_MAP_DEEP_), f);
  a->at_weights = attn_add_(a->at_sum, attn_piece_(attn_mul_(a->wide, ATTN_TILE_), f));
  a->each = attn_add_(a->at_weights, attn_piece_(ATTN_MAP_DEEP_ * ATTN_TILE_, f));
  return attn_stage_for_(s, attn_mul_(attn_mul_(a->o.batch, a->o.heads), a->tiles),
                         attn_map_apply_item_, a, a->each, &a->memory);
}

ATTN_COLD_ attn_status attn_map_apply_job_call_(attn_tensor o, attn_tensor map, attn_tensor v,
                                                const attn_map_apply_params *params, attn_ctx *ctx,
                                                size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_map_apply_job_ a;
  int workers;
  memset(&a, 0, sizeof a);
  a.o = o, a.map = map, a.v = v;
  if (attn_map_apply_check_(&e, &a, params, ctx, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, a.table, workers, ctx, bytes != NULL);
    if (o.batch == 0 || o.len == 0) {
      if (!bytes) attn_report_(ctx, a.table, 1, "no-op", "no queries");
    } else {
      attn_stage_call_(&s, ctx, attn_map_apply_steps_, &a, "map times values", bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_map_apply_call_(attn_tensor o, attn_tensor map, attn_tensor v,
                                            const attn_map_apply_params *params, attn_ctx *ctx,
                                            size_t *bytes) {
  return attn_map_apply_job_call_(o, map, v, params, ctx, bytes);
}
ATTN_CALL_(attn_map_apply, (o, map, v, params), attn_tensor o, attn_tensor map, attn_tensor v,
           const attn_map_apply_params *params)

/* ---- a stack of layers ----------------------------------------------------------------------*/

typedef struct attn_lazy_job_ {
  const attn_tensor *o, *q, *k, *v;
  int64_t layers, period;
  const attn_sdpa_params *attention;
} attn_lazy_job_;

/* Layers from l on that are one pass: of one period, with equal heads of values. Relative values are
 * as wide as those of one layer. */
ATTN_COLD_ int64_t attn_lazy_run_(const attn_lazy_job_ *a, int64_t l) {
  int64_t n = 1;
  if (a->attention->relative.values.data) return 1;
  while (l + n < a->layers && (l + n) % a->period != 0 && a->v[l + n].heads == a->v[l].heads) n++;
  return n;
}

/* Rows between tensors: values come together, outputs go apart. */
typedef struct attn_lazy_copy_ {
  const attn_table_ *table;
  attn_tensor to, from;
} attn_lazy_copy_;

ATTN_FUNC_ void attn_lazy_copy_item_(void *job, int worker, int64_t index) {
  const attn_lazy_copy_ *a = (const attn_lazy_copy_ *)job;
  const int64_t n = a->to.len, h = index / n % a->to.heads, b = index / n / a->to.heads;
  (void)worker;
  a->table->blend(attn_at_(&a->to, b, h, index % n), attn_at_(&a->from, b, h, index % n), NULL,
                  a->to.dtype, a->from.dtype, ATTN_F32, a->to.dim, 1.0f, 0.0f);
}

/* Columns of `all` to or from a tensor of its own. */
ATTN_COLD_ int attn_lazy_columns_(attn_stage_ *s, attn_tensor all, int64_t column, attn_tensor own,
                                  int in) {
  attn_lazy_copy_ a = {s->table, own, own};
  if (s->run) all = attn_stage_shift_(all, column);
  all.dim = own.dim;
  if (in)
    a.to = all;
  else
    a.from = all;
  return attn_stage_for_(s, attn_mul_(attn_mul_(own.batch, own.heads), own.len),
                         attn_lazy_copy_item_, &a, 0, NULL);
}

ATTN_COLD_ int attn_lazy_steps_(attn_stage_ *s, void *job) {
  const attn_lazy_job_ *a = (const attn_lazy_job_ *)job;
  int64_t most_v = 0, most_o = 0;
  for (int64_t l = 0, n; l < a->layers; l += n) { /* the widest run of layers */
    int64_t dv = 0;
    n = attn_lazy_run_(a, l);
    for (int64_t i = l; i < l + n; i++) dv = attn_add_(dv, a->v[i].dim);
    const attn_tensor *v = &a->v[l], *o = &a->o[l];
    const int64_t in = attn_mul_(attn_mul_(v->batch, v->heads), attn_mul_(v->len, dv));
    const int64_t out = attn_mul_(attn_mul_(o->batch, o->heads), attn_mul_(o->len, dv));
    if (n > 1 && in > most_v) most_v = in;
    if (n > 1 && out > most_o) most_o = out;
  }
  void *values = attn_stage_take_(s, most_v, sizeof(float));
  void *outputs = attn_stage_take_(s, most_o, sizeof(float));
  for (int64_t l = 0, n; l < a->layers; l += n) {
    const attn_tensor q = a->q[l / a->period], k = a->k[l / a->period];
    attn_tensor v = a->v[l], o = a->o[l];
    int64_t dv = 0;
    n = attn_lazy_run_(a, l);
    if (n > 1) {
      for (int64_t i = l; i < l + n; i++) dv = attn_add_(dv, a->v[i].dim);
      v = attn_bhtd(values, ATTN_F32, v.batch, v.heads, v.len, dv);
      o = attn_bhtd(outputs, ATTN_F32, o.batch, o.heads, o.len, dv);
      dv = 0;
      for (int64_t i = l; i < l + n; dv += a->v[i].dim, i++)
        if (!attn_lazy_columns_(s, v, dv, a->v[i], 1)) return 0;
    }
    if (!attn_stage_sdpa_(s, o, q, k, v, a->attention)) return 0;
    dv = 0;
    if (n > 1)
      for (int64_t i = l; i < l + n; dv += a->v[i].dim, i++)
        if (!attn_lazy_columns_(s, o, dv, a->o[i], 0)) return 0;
  }
  return 1;
}

/* The rules of attn_sdpa for each layer, then what layers have in common. */
ATTN_COLD_ int attn_lazy_check_(attn_error_ *e, attn_lazy_job_ *a, const attn_ctx *ctx,
                                const attn_table_ **table, int *workers, int data) {
  static const char wo[] = ATTN_WORDS_("o"), wi[] = ATTN_WORDS_("q, k or v");
  const attn_sdpa_params *p = a->attention;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (a->layers < 0) return attn_reject_(e, ATTN_E_RANGE, "layers must not be negative");
  if (a->period < 1) return attn_reject_(e, ATTN_E_RANGE, "params.period must be at least 1");
  if (a->layers && (!a->o || !a->q || !a->k || !a->v))
    return attn_reject_(e, ATTN_E_NULL, "o, q, k and v must not be null");
  if (p->lse.data || p->map.data || attn_unlike_(p))
    return attn_reject_(
        e, ATTN_E_RANGE,
        "params.attention: lse, map, ragged, q_offs and align_lengths must be absent");
  for (int64_t l = 0; l < a->layers; l++) {
    attn_softmax_ x;
    memset(&x, 0, sizeof x);
    x.o = a->o[l], x.q = a->q[l / a->period], x.k = a->k[l / a->period], x.v = a->v[l];
    if (!attn_sdpa_plan_(e, &x, p, ctx, workers, data)) return 0;
    if (attn_quantized_(x.v.dtype))
      return attn_reject_(e, ATTN_E_DTYPE, "v must be f32, f16 or bf16");
    if (x.q.batch != a->q[0].batch || x.q.heads != a->q[0].heads || x.q.len != a->q[0].len)
      return attn_reject_(e, ATTN_E_SHAPE, "all layers must have the batch, heads and len of q[0]");
  }
  if (data > 0)
    for (int64_t l = 0; l < a->layers; l++) /* an output and everything of other layers */
      for (int64_t i = 0; i < a->layers; i++) {
        const attn_tensor *other[4] = {&a->o[i], &a->q[i / a->period], &a->k[i / a->period],
                                       &a->v[i]};
        attn_tensor o = a->o[l];
        attn_span_ span, more;
        if (i == l) continue;
        if (!attn_check_tensor_(e, &o, wo, &span)) return 0;
        for (int t = 0; t < 4; t++) {
          attn_tensor x = *other[t];
          if (!attn_check_stored_(e, &x, wi, &more)) return 0;
          if (attn_overlap_(span, more))
            return attn_reject_(e, ATTN_E_OVERLAP, attn_says_(wo, ATTN_SAYS_OVERLAP_));
        }
      }
  return 1;
}

ATTN_COLD_ attn_status attn_lazyformer_job_call_(const attn_tensor *o, const attn_tensor *q,
                                                 const attn_tensor *k, const attn_tensor *v,
                                                 int64_t layers,
                                                 const attn_lazyformer_params *params,
                                                 attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_lazyformer_params zero;
  const attn_table_ *table;
  int workers;
  memset(&zero, 0, sizeof zero);
  const attn_lazyformer_params *p = params ? params : &zero;
  attn_lazy_job_ a = {o, q, k, v, layers, p->period ? p->period : 2, &p->attention};
  if (attn_lazy_check_(&e, &a, ctx, &table, &workers, bytes == NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (layers == 0) {
      if (!bytes) attn_report_(ctx, table, 1, "no-op", "no layers");
    } else {
      attn_stage_call_(&s, ctx, attn_lazy_steps_, &a, "streaming softmax, values side by side",
                       bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_status attn_lazyformer_call_(const attn_tensor *o, const attn_tensor *q,
                                             const attn_tensor *k, const attn_tensor *v,
                                             int64_t layers, const attn_lazyformer_params *params,
                                             attn_ctx *ctx, size_t *bytes) {
  return attn_lazyformer_job_call_(o, q, k, v, layers, params, ctx, bytes);
}
ATTN_CALL_(attn_lazyformer, (o, q, k, v, layers, params), const attn_tensor *o,
           const attn_tensor *q, const attn_tensor *k, const attn_tensor *v, int64_t layers,
           const attn_lazyformer_params *params)
