/* families/compression/luna_causal.h owns Luna's causal core: chunks of 64 tokens over a state that does not
 * grow, and the state as a block of bytes. */

/* ---- the state: a header, the count of each batch entry, then KA [dk][l'] and VA [l][dv'] of each
 * head, l' and dv' in whole groups, so that kernels may read whole vectors, and the rests of both,
 * which are not in these sums (kernels/linear.h) -------------------------------------------*/

typedef struct attn_luna_head_ {
  uint32_t magic, version;
  int64_t batch, heads, l, dk, dv;
  int32_t omega;
  uint32_t scale; /* bits, after the default */
} attn_luna_head_;

enum { ATTN_LUNA_MAGIC_ = 0x414e554c, ATTN_LUNA_VERSION_ = 3, ATTN_LUNA_JOIN_ = 32 };

/* Whole lane groups. */
ATTN_FUNC_ int64_t attn_whole_(int64_t n) {
  return attn_add_(n, ATTN_GROUP_ - 1) / ATTN_GROUP_ * ATTN_GROUP_;
}

/* Floats of a head's KA, and of both. */
ATTN_FUNC_ int64_t attn_luna_ka_(int64_t l, int64_t dk) { return attn_mul_(dk, attn_whole_(l)); }
ATTN_FUNC_ int64_t attn_luna_floats_(int64_t l, int64_t dk, int64_t dv) {
  return attn_add_(attn_luna_ka_(l, dk), attn_mul_(l, attn_whole_(dv)));
}

/* INT64_MAX: too large. */
ATTN_COLD_ int64_t attn_luna_bytes_(int64_t batch, int64_t heads, int64_t l, int64_t dk,
                                    int64_t dv) {
  const int64_t head = attn_mul_(attn_luna_floats_(l, dk, dv), 2 * 4);
  return attn_add_(attn_add_((int64_t)sizeof(attn_luna_head_), attn_mul_(batch, 8)),
                   attn_mul_(attn_mul_(batch, heads), head));
}

ATTN_PUB_ size_t attn_luna_state_bytes(int64_t batch, int64_t heads, int64_t l, int64_t dk,
                                       int64_t dv) {
  if (batch < 1 || heads < 1 || l < 1 || dk < 1 || dv < 1) return 0;
  const int64_t bytes = attn_luna_bytes_(batch, heads, l, dk, dv);
  return attn_workspace_bytes_(bytes, 1) == INT64_MAX ? 0 : (size_t)bytes;
}

/* omega and scale; *s becomes the scale itself. */
ATTN_COLD_ int attn_luna_rules_(attn_error_ *e, const attn_luna_causal_params *p, int64_t dk,
                                float *s) {
  if ((int)p->omega < 0 || p->omega >= ATTN_LUNA_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.omega must be an attn_luna_omega");
  *s = p->scale != 0.0f || attn_to_bits_(p->scale) ? p->scale : (float)(1.0 / sqrt((double)dk));
  return attn_check_scale_(e, p->scale);
}

ATTN_PUB_COLD_ attn_status attn_luna_begin(void *state, size_t bytes,
                                           const attn_luna_causal_params *params, int64_t batch,
                                           int64_t heads, int64_t l, int64_t dk, int64_t dv,
                                           attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_luna_causal_params p;
  attn_luna_head_ head;
  const attn_table_ *table;
  float scale;
  int workers;
  memset(&p, 0, sizeof p);
  memset(&head, 0, sizeof head);
  if (params) p = *params;
  const size_t need = attn_luna_state_bytes(batch, heads, l, dk, dv);
  if (!attn_check_ctx_(&e, ctx, &table, &workers)) return attn_end_(ctx, &e);
  if (!state)
    attn_reject_(&e, ATTN_E_NULL, "state must not be null");
  else if ((uintptr_t)state % 8 != 0)
    attn_reject_(&e, ATTN_E_ALIGN, "state must be aligned to 8 bytes");
  else if (batch < 1 || heads < 1 || l < 1 || dk < 1 || dv < 1)
    attn_reject_(&e, ATTN_E_SHAPE, "batch, heads, l, dk and dv of a state must be at least 1");
  else if (need == 0)
    attn_reject_(&e, ATTN_E_OVERFLOW, "a state of these sizes does not fit the address space");
  else if (bytes < need)
    attn_reject_(&e, ATTN_E_SHAPE, "bytes must be at least attn_luna_state_bytes");
  else if (attn_luna_rules_(&e, &p, dk, &scale)) {
    head.magic = ATTN_LUNA_MAGIC_, head.version = ATTN_LUNA_VERSION_;
    head.batch = batch, head.heads = heads, head.l = l, head.dk = dk, head.dv = dv;
    head.omega = (int32_t)p.omega, head.scale = attn_to_bits_(scale);
    memset(state, 0, need);
    memcpy(state, &head, sizeof head);
    attn_report_(ctx, table, 1, "an empty state", "the only path");
  }
  return attn_end_(ctx, &e);
}

/* ---- checks ---------------------------------------------------------------------------------*/

typedef struct attn_luna_causal_ {
  const attn_table_ *table;
  attn_tensor o, q, k, v, p, kp;
  attn_luna_causal_params par;
  float scale;
  int64_t l, dk, dv, wide_l, wide_dv;
  int64_t *count; /* [B] of the state, or null */
  float *floats;  /* of the state */
  char *memory;   /* of the workers */
  int64_t each;
} attn_luna_causal_;

/* query: what the state holds is not looked at. */
ATTN_COLD_ int attn_luna_check_state_(attn_error_ *e, attn_luna_causal_ *a, int query,
                                      attn_span_ *span) {
  const attn_luna_causal_params *p = &a->par;
  attn_luna_head_ h;
  span->lo = span->hi = 0;
  if (!p->state) return 1;
  if ((uintptr_t)p->state % 8 != 0)
    return attn_reject_(e, ATTN_E_ALIGN, "params.state must be aligned to 8 bytes");
  const int64_t b = a->q.batch, need = attn_luna_bytes_(b, a->q.heads, a->l, a->dk, a->dv);
  if (p->state_bytes < sizeof h || (uint64_t)p->state_bytes < (uint64_t)need)
    return attn_reject_(e, ATTN_E_SHAPE,
                        "params.state_bytes must be at least attn_luna_state_bytes");
  span->lo = (uintptr_t)p->state, span->hi = span->lo + (uintptr_t)need;
  if (query) return 1;
  memcpy(&h, p->state, sizeof h);
  if (h.magic != ATTN_LUNA_MAGIC_ || h.version != ATTN_LUNA_VERSION_)
    return attn_reject_(e, ATTN_E_VALUE, "params.state was not made by attn_luna_begin");
  if (h.batch != b || h.heads != a->q.heads || h.l != a->l || h.dk != a->dk || h.dv != a->dv)
    return attn_reject_(e, ATTN_E_SHAPE,
                        "params.state was begun for other batch, heads, p.len, q.dim or v.dim");
  if (h.omega != (int32_t)p->omega || h.scale != attn_to_bits_(a->scale))
    return attn_reject_(e, ATTN_E_VALUE, "params.state was begun with another omega or scale");
  a->count = (int64_t *)(void *)((char *)p->state + sizeof h);
  a->floats = (float *)(void *)(a->count + b);
  for (int64_t i = 0; i < b; i++)
    if (a->count[i] < 0 || a->count[i] > ((int64_t)1 << 48))
      return attn_reject_(e, ATTN_E_VALUE, "params.state has a count of tokens out of range");
  return 1;
}

ATTN_COLD_ int attn_luna_causal_check_(attn_error_ *e, attn_luna_causal_ *a, const attn_ctx *ctx,
                                       int query, int *workers) {
  enum { Q, K, V, P, KP, O, COUNT };
  const int64_t any = ATTN_ANY_, b = a->q.batch, h = a->q.heads, t = a->q.len, dk = a->q.dim;
  attn_operand_ op[COUNT] = {
      ATTN_OPERAND_(&a->q, "q", 0, any, any, any, any, "q"),
      ATTN_OPERAND_(&a->k, "k", 0, b, ATTN_DIVIDES_, t, dk,
                    "k must be [q.batch, a divisor of q.heads, q.len, q.dim]"),
      ATTN_OPERAND_(&a->v, "v", 0, b, ATTN_DIVIDES_, t, any,
                    "v must be [q.batch, a divisor of q.heads, q.len, .]"),
      ATTN_OPERAND_(&a->p, "p", 0, any, h, any, dk, "p must be [1 or q.batch, q.heads, l, q.dim]"),
      ATTN_OPERAND_(&a->kp, "params.k_pack", ATTN_OPTIONAL_, b, ATTN_DIVIDES_, t, dk,
                    "params.k_pack must be [q.batch, a divisor of q.heads, q.len, q.dim]"),
      ATTN_OPERAND_(&a->o, "o", ATTN_OUT_, b, h, t, a->v.dim,
                    "o must be [q.batch, q.heads, q.len, v.dim]")};
  attn_arrays_ more = {0, {{0, 0, 0, 0}}};
  if (!attn_check_ctx_(e, ctx, &a->table, workers)) return 0;
  for (int i = 0; i < COUNT; i++) {
    if (!attn_check_operand_(e, &op[i], h)) return 0;
    if (i == Q && h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
  }
  if (a->p.batch != b && a->p.batch != 1) return attn_reject_(e, ATTN_E_SHAPE, op[P].rule);
  if (a->p.len < 1) return attn_reject_(e, ATTN_E_SHAPE, "p.len must be at least 1");
  if (t > INT32_MAX || a->p.len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "q.len and p.len must be below 2^31");
  if (!a->kp.data) a->kp = a->k;
  a->l = a->p.len, a->dk = dk, a->dv = a->v.dim;
  a->wide_l = attn_whole_(a->l), a->wide_dv = attn_whole_(a->dv);
  if (!attn_luna_rules_(e, &a->par, dk, &a->scale) ||
      !attn_check_cut_(e, a->par.q_len, b, t, "params.q_len must be aligned to its elements",
                       "params.q_len must lie in 0..q.len", &more) ||
      !attn_luna_check_state_(e, a, query, &more.span[more.n]))
    return 0;
  const attn_span_ state = more.span[more.n++];
  for (int i = 0; i < COUNT; i++)
    if (attn_overlap_(state, op[i].span))
      return attn_reject_(e, ATTN_E_OVERLAP,
                          "params.state must not share memory with another argument");
  if (attn_overlap_(state, more.span[0]))
    return attn_reject_(e, ATTN_E_OVERLAP, "params.state must not share memory with params.q_len");
  return attn_check_apart_(e, ctx, op, COUNT, more.span, more.n);
}

/* ---- one head -------------------------------------------------------------------------------*/

/* What a worker holds. */
typedef struct attn_luna_room_ {
  float *sums;             /* where there is no state */
  float *pt;               /* [l / 64][dk][64]: p^T */
  float *k, *kp, *v;       /* rows as f32 */
  float *alpha, *sum;      /* [64][l'], what a chunk adds to the state */
  float *qt, *s, *xt, *yt; /* [dk], [64], [l], [dv][64 lanes] */
  int32_t *index;          /* 0 .. l - 1 */
} attn_luna_room_;

ATTN_FUNC_ int64_t attn_luna_room_of_(const attn_luna_causal_ *a, attn_luna_room_ *r, char *base) {
  const int64_t f = sizeof(float), t = ATTN_TILE_, ka = attn_luna_ka_(a->l, a->dk);
  const int64_t va = attn_mul_(a->l, a->wide_dv), most = ka > va ? ka : va;
  const int64_t size[] = {attn_mul_(attn_luna_floats_(a->l, a->dk, a->dv), 2),
                          attn_mul_(attn_mul_(attn_tiles_of_(a->l), t), a->dk),
                          attn_mul_(a->dk, t),
                          attn_mul_(a->dk, t),
                          attn_mul_(a->wide_dv, t),
                          attn_mul_(a->wide_l, t),
                          most,
                          attn_mul_(a->dk, t),
                          t * t,
                          attn_mul_(a->l, t),
                          attn_mul_(a->dv, t)};
  enum { N = sizeof size / sizeof *size };
  float **const part[N] = {&r->sums, &r->pt, &r->k, &r->kp, &r->v, &r->alpha,
                           &r->sum,  &r->qt, &r->s, &r->xt, &r->yt};
  int64_t at = 0;
  for (int i = 0; i < N; i++) {
    if (base) *part[i] = (float *)(void *)(base + at);
    at = attn_add_(at, attn_piece_(size[i], f));
  }
  if (base) r->index = (int32_t *)(void *)(base + at);
  return attn_add_(at, attn_piece_(a->l, sizeof(int32_t)));
}

/* n rows as f32: in place, or a copy with rows of `width`, whole vectors of which may be read. */
ATTN_FUNC_ const float *attn_luna_rows_(const attn_table_ *f, const attn_tensor *x, int64_t b,
                                        int64_t h, int64_t i, int64_t n, float *copy, int64_t width,
                                        int64_t *stride) {
  const char *at = attn_at_(x, b, h, i);
  *stride = x->stride_len;
  if (x->dtype == ATTN_F32 && x->dim == width) return (const float *)(const void *)at;
  *stride = width;
  for (int64_t r = 0; r < (x->dim == width ? 1 : n); r++)
    f->widen(copy + r * width, at + attn_bytes_(x->dtype, r * x->stride_len), x->stride_len, NULL,
             x->dim == width ? n : 1, x->dim, x->dtype, NULL);
  return copy;
}

/* The rows of one head. */
typedef struct attn_luna_unit_ {
  const attn_luna_causal_ *a;
  attn_luna_room_ room;
  int64_t b, h, hk, hv, hp;
  float *ka, *va, *ka_rest, *va_rest;
  int64_t count;
} attn_luna_unit_;

/* omega of rows of scores, in place. */
ATTN_FUNC_ void attn_luna_omega_(const attn_luna_causal_ *a, float *x, int64_t n) {
  attn_on_(dense, a->table)
      ->activate(x, n, NULL, a->scale,
                 a->par.omega == ATTN_LUNA_ELU1 ? (int)ATTN_ACT_ELU1 : ATTN_ACT_SOFTPLUS2_);
}

/* What came token by token joins the sums, all of which lie side by side. */
ATTN_FUNC_ void attn_luna_settle_(const attn_luna_unit_ *u) {
  attn_on_(state, u->a->table)->accrue(u->ka, u->ka_rest, NULL, u->ka_rest - u->ka, 1.0, 0.0f);
}

/* One token. Rows that the state is made of have zeros to the end of their last group. */
ATTN_FUNC_ void attn_luna_token_(attn_luna_unit_ *u, int64_t i) {
  const attn_luna_causal_ *a = u->a;
  const attn_table_ *f = a->table;
  const attn_luna_room_ *r = &u->room;
  const int64_t l = a->l, dk = a->dk, dv = a->dv, pb = a->p.batch > 1 ? u->b : 0;
  int64_t unused;
  const float *kp = attn_luna_rows_(f, &a->kp, u->b, u->hp, i, 1, r->kp, dk, &unused);
  attn_on_(list, f)->dots(r->alpha, kp, attn_at_(&a->p, pb, u->h, 0), a->p.stride_len, r->index, l,
                          dk, a->p.dtype, 0);
  attn_luna_omega_(a, r->alpha, l);
  memset(r->alpha + l, 0, (size_t)(a->wide_l - l) * sizeof(float));
  const float *k = attn_luna_rows_(f, &a->k, u->b, u->hk, i, 1, r->k, dk, &unused);
  const float *v = attn_luna_rows_(f, &a->v, u->b, u->hv, i, 1, r->v, a->wide_dv, &unused);
  const float *q = attn_luna_rows_(f, &a->q, u->b, u->h, i, 1, r->qt, dk, &unused);
  if (dv < a->wide_dv) memset(r->v + dv, 0, (size_t)(a->wide_dv - dv) * sizeof(float));
  const double t = (double)++u->count;
  const attn_sums_ ka = {u->ka, u->ka_rest, a->wide_l, 1.0f};
  const attn_sums_ va = {u->va, u->va_rest, a->wide_dv, 1.0f};
  attn_on_(state, f)->step(r->xt, q, &ka, dk, a->wide_l, 1.0f, k, r->alpha);
  attn_on_(dense, f)->activate(r->xt, l, NULL, (float)((double)a->scale * ATTN_LOG2E_ / t),
                               ATTN_ACT_NONE);
  float top = -INFINITY, sum = 0.0f;
  for (int64_t c = 0; c < l; c++) top = r->xt[c] > top || r->xt[c] != r->xt[c] ? r->xt[c] : top;
  f->weights(r->xt, r->xt, l, top, 1.0f);
  for (int64_t c = 0; c < l; c++) sum += r->xt[c];
  attn_on_(state, f)->step(r->yt, r->xt, &va, l, a->wide_dv, 1.0f, r->alpha, v);
  f->blend(attn_at_(&a->o, u->b, u->h, i), r->yt, NULL, a->o.dtype, ATTN_F32, ATTN_F32, dv,
           (float)(1.0 / (t * (double)sum)), 0.0f);
  if (u->count % ATTN_LUNA_JOIN_ == 0) attn_luna_settle_(u);
}

/* Asks for the n-th 8 rows of the next chunk, which lie in far memory: called between the products of
 * this one, since all at once they would wait for each other. */
ATTN_INLINE_ void attn_luna_ahead_(const attn_luna_unit_ *u, int64_t i0, int n) {
  const attn_luna_causal_ *a = u->a;
  int64_t i = i0 + ATTN_TILE_ + 8 * n;
  for (int64_t end = i + 8 < a->q.len ? i + 8 : a->q.len; i < end; i++) {
    attn_row_ahead_(&a->q, u->b, u->h, i);
    attn_row_ahead_(&a->k, u->b, u->hk, i);
    attn_row_ahead_(&a->v, u->b, u->hv, i);
    attn_row_ahead_(&a->o, u->b, u->h, i);
  }
}

/* s[j][lane] = row j times packed lane, 0 where j > lane; 16 rows at a time, for the lanes from theirs
 * on. */
ATTN_FUNC_ void attn_luna_triangle_(const attn_table_ *f, float *s, const float *lanes,
                                    const float *rows, int64_t stride, int n, int64_t width) {
  const int groups = (n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  float top[ATTN_TILE_] = {0};
  for (int g = 0, j0 = 0; g < groups; g++, j0 += ATTN_GROUP_) {
    const int m = n - j0 < ATTN_GROUP_ ? n - j0 : ATTN_GROUP_;
    attn_on_(tile, f)->score_block(s + j0 * ATTN_TILE_, lanes, rows + j0 * stride, stride, m, width,
                                   g, groups, top);
    for (int j = 1; j < m; j++)
      memset(s + (j0 + j) * ATTN_TILE_ + j0, 0, (size_t)j * sizeof(float));
  }
}

/* to[c][lane] += s[j][lane] times row j; start: = */
ATTN_FUNC_ void attn_luna_add_(const attn_table_ *f, float *to, const float *s, const float *rows,
                               int64_t stride, int n, int64_t width, int start) {
  const int groups = (n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  for (int g = 0, j0 = 0; g < groups; g++, j0 += ATTN_GROUP_)
    attn_on_(tile, f)->value_block(to, s + j0 * ATTN_TILE_, rows + j0 * stride, stride,
                                   n - j0 < ATTN_GROUP_ ? n - j0 : ATTN_GROUP_, width, g, groups,
                                   NULL, start && g == 0);
}

/* state += x^T w, rows of both a token each, summed by themselves first: short chains. */
ATTN_FUNC_ void attn_luna_grow_(const attn_table_ *f, float *state, float *rest, float *sum,
                                int64_t width, int64_t rows, attn_floats_ x, attn_floats_ w,
                                int64_t cols) {
  attn_on_(dense, f)->gemm(sum, width, rows, x.p, 1, x.stride, w.p, w.stride, w.rows, cols, 1);
  if (cols == width) cols *= rows, rows = 1; /* one row of all */
  for (int64_t i = 0; i < rows; i++)
    attn_on_(state, f)->accrue(state + i * width, rest + i * width, sum + i * width, cols, 1.0,
                               1.0f);
}

/* n <= 64 tokens, or those before one whose numbers are not finite, since a zero weight would not hide it
 * from the rows before. Returns how many. */
ATTN_FUNC_ int attn_luna_chunk_(attn_luna_unit_ *u, int64_t i0, int n) {
  const attn_luna_causal_ *a = u->a;
  const attn_table_ *f = a->table;
  const attn_luna_room_ *r = &u->room;
  const int64_t l = a->l, dk = a->dk, dv = a->dv, wide = a->wide_l;
  const int empty = u->count == 0;
  float lane[ATTN_TILE_], top[ATTN_TILE_], m[ATTN_TILE_], sum[ATTN_TILE_], alpha[ATTN_TILE_];
  const void *in[ATTN_TILE_];
  void *out[ATTN_TILE_];
  int64_t k_stride, kp_stride, v_stride;
  const float *kp = attn_luna_rows_(f, &a->kp, u->b, u->hp, i0, n, r->kp, dk, &kp_stride);
  for (int64_t c = 0; c < wide; c += ATTN_TILE_)
    attn_on_(dense, f)->gemm(r->alpha + c, wide, n, kp, kp_stride, 1, r->pt + c * dk, ATTN_TILE_,
                             dk, wide - c < ATTN_TILE_ ? wide - c : ATTN_TILE_, 1);
  attn_luna_omega_(a, r->alpha, n * wide);
  attn_luna_ahead_(u, i0, 0);
  const float *v = attn_luna_rows_(f, &a->v, u->b, u->hv, i0, n, r->v, a->wide_dv, &v_stride);
  if (!f->finite(r->alpha, wide, n, l) || !f->finite(v, v_stride, n, dv)) {
    int some = 0;
    while (f->finite(r->alpha + some * wide, wide, 1, l) &&
           f->finite(v + some * v_stride, v_stride, 1, dv))
      some++;
    if (some == 0) return 0;
    n = some;
  }
  const int groups = (n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  const float *k = attn_luna_rows_(f, &a->k, u->b, u->hk, i0, n, r->k, dk, &k_stride);
  attn_luna_settle_(u);
  for (int i = 0; i < n; i++) {
    in[i] = attn_at_(&a->q, u->b, u->h, i0 + i);
    out[i] = attn_at_(&a->o, u->b, u->h, i0 + i);
  }
  f->pack(r->qt, in, n, dk, (int)a->q.dtype, 1.0f, attn_least_(1.0f));
  /* the softmax's arguments, then a, both [l][lane] */
  attn_luna_triangle_(f, r->s, r->qt, k, k_stride, n, dk);
  attn_luna_ahead_(u, i0, 1);
  if (!empty) attn_on_(tile, f)->value_block(r->xt, r->qt, u->ka, wide, dk, l, 0, groups, NULL, 1);
  attn_luna_ahead_(u, i0, 2);
  attn_luna_add_(f, r->xt, r->s, r->alpha, wide, n, l, empty);
  attn_luna_ahead_(u, i0, 3);
  for (int i = 0; i < ATTN_TILE_; i++) {
    lane[i] = (float)((double)a->scale * ATTN_LOG2E_ / (double)(u->count + i + 1));
    top[i] = m[i] = -INFINITY, sum[i] = 0.0f;
  }
  attn_modifiers_ none;
  memset(&none, 0, sizeof none);
  attn_on_(tile, f)->scale_block(r->xt, l, 0, groups, lane);
  attn_on_(tile, f)->modify_block(r->xt, l, 0, groups, &none, top);
  attn_on_(tile, f)->softmax_block(r->xt, l, 0, groups, m, sum, alpha, top, NULL);
  /* the outputs */
  attn_luna_triangle_(f, r->s, r->xt, r->alpha, wide, n, l);
  attn_luna_ahead_(u, i0, 4);
  if (!empty)
    attn_on_(tile, f)->value_block(r->yt, r->xt, u->va, a->wide_dv, l, dv, 0, groups, NULL, 1);
  attn_luna_ahead_(u, i0, 5);
  attn_luna_add_(f, r->yt, r->s, v, v_stride, n, dv, empty);
  attn_luna_ahead_(u, i0, 6);
  for (int i = 0; i < n; i++)
    lane[i] = (float)(1.0 / ((double)(u->count + i + 1) * (double)sum[i]));
  f->unpack(out, r->yt, n, dv, a->o.dtype, lane);
  const attn_floats_ weights = {r->alpha, wide, n};
  attn_luna_grow_(f, u->ka, u->ka_rest, r->sum, wide, dk, attn_floats_at_(k, k_stride, n), weights,
                  l);
  attn_luna_ahead_(u, i0, 7);
  attn_luna_grow_(f, u->va, u->va_rest, r->sum, a->wide_dv, l, weights,
                  attn_floats_at_(v, v_stride, n), dv);
  u->count += n;
  return n;
}

/* All tokens of one head. */
ATTN_FUNC_ void attn_luna_item_(void *job, int worker, int64_t index) {
  enum { FEW = 4 };
  const attn_luna_causal_ *a = (const attn_luna_causal_ *)job;
  const attn_table_ *f = a->table;
  const int64_t heads = a->q.heads, dk = a->dk, l = a->l;
  attn_luna_unit_ u;
  u.a = a, u.b = index / heads, u.h = index % heads;
  u.hk = u.h / (heads / a->k.heads), u.hv = u.h / (heads / a->v.heads);
  u.hp = u.h / (heads / a->kp.heads);
  const int64_t end = a->par.q_len ? a->par.q_len[u.b] : a->q.len;
  attn_luna_room_of_(a, &u.room, a->memory + worker * a->each);
  const int64_t floats = attn_luna_floats_(l, dk, a->dv); /* of ka and va, which lie side by side */
  u.count = a->count ? a->count[u.b] : 0;
  u.ka = a->floats ? a->floats + index * 2 * floats : u.room.sums, u.ka_rest = u.ka + floats;
  u.va = u.ka + attn_luna_ka_(l, dk), u.va_rest = u.ka_rest + attn_luna_ka_(l, dk);
  if (!a->floats && end > 0) memset(u.ka, 0, (size_t)(2 * floats) * sizeof(float));
  for (int64_t c = 0; c < l; c++) u.room.index[c] = (int32_t)c;
  for (int64_t c = 0; c < l && end > FEW; c += ATTN_TILE_) {
    const void *rows[ATTN_TILE_];
    const int n = l - c < ATTN_TILE_ ? (int)(l - c) : ATTN_TILE_;
    for (int e = 0; e < n; e++) rows[e] = attn_at_(&a->p, a->p.batch > 1 ? u.b : 0, u.h, c + e);
    f->pack(u.room.pt + c * dk, rows, n, dk, (int)a->p.dtype, 1.0f, attn_least_(1.0f));
  }
  for (int64_t i = 0, n; i < end; i += n) {
    n = end - i < ATTN_TILE_ ? end - i : ATTN_TILE_;
    for (int64_t e = n > FEW ? attn_luna_chunk_(&u, i, (int)n) : 0; e < n; e++)
      attn_luna_token_(&u, i + e);
  }
  if (a->floats) attn_row_one_nan_(f, u.ka, 2 * floats);
  for (int64_t i = end; i < a->q.len; i++)
    memset(attn_at_(&a->o, u.b, u.h, i), 0, (size_t)attn_bytes_(a->o.dtype, a->dv));
}

/* ---- the call -------------------------------------------------------------------------------*/

ATTN_COLD_ int attn_luna_causal_steps_(attn_stage_ *s, void *job) {
  attn_luna_causal_ *a = (attn_luna_causal_ *)job;
  attn_luna_room_ room;
  a->each = attn_luna_room_of_(a, &room, NULL);
  if (!attn_stage_for_(s, attn_mul_(a->q.batch, a->q.heads), attn_luna_item_, a, a->each,
                       &a->memory))
    return 0;
  for (int64_t b = 0; s->run && a->count && b < a->q.batch; b++)
    a->count[b] += a->par.q_len ? a->par.q_len[b] : a->q.len;
  return 1;
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_luna_causal_call_(attn_tensor o, attn_tensor q, attn_tensor k,
                                              attn_tensor v, attn_tensor p,
                                              const attn_luna_causal_params *params, attn_ctx *ctx,
                                              size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_luna_causal_ a;
  int workers;
  memset(&a, 0, sizeof a);
  a.o = o, a.q = q, a.k = k, a.v = v, a.p = p;
  if (params) a.par = *params, a.kp = params->k_pack;
  if (attn_luna_causal_check_(&e, &a, ctx, bytes != NULL, &workers)) {
    attn_stage_ s = attn_stage_open_(&e, a.table, workers, ctx, bytes != NULL);
    if (q.batch == 0 || q.len == 0) {
      if (!bytes) attn_report_(ctx, a.table, 1, "no-op", "no tokens");
    } else {
      attn_stage_call_(&s, ctx, attn_luna_causal_steps_, &a, "chunks over a packed state", bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_CALL_(attn_luna_causal, (o, q, k, v, p, params), attn_tensor o, attn_tensor q, attn_tensor k,
           attn_tensor v, attn_tensor p, const attn_luna_causal_params *params)
