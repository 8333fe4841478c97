/* families/heads/talking_backward.h owns the gradients of talking heads. Tiles of queries find what is taken off their
 * gradients and sum d_q and the matrices' shares; then blocks of keys sum d_k and d_v over all tiles in order. Both make
 * weights and gradients of a block's scores again, for all heads at once. */

typedef struct attn_talking_back_ {
  attn_joint_ x;
  attn_tensor v, d_o, d_lse, w_l, w_w;
  attn_tensor d_q, d_k, d_v; /* f32, where they are made; data null, also below: not asked for */
  attn_tensor d_w_l, d_w_w;
  const float *mix_w, *back_l, *back_w; /* P_w, the transposes of P_l and P_w */
  float *less;                          /* [items][H][tile]: what is taken off each dW */
  double *shares;                       /* [items][hk H + H hv] of both matrices */
  int flipped;                          /* the caller's matrices have H by hk, hv by H */
} attn_talking_back_;

/* A worker's memory behind the joint tile's, and the tile at hand. */
typedef struct attn_talking_back_tile_ {
  const attn_talking_back_ *a;
  attn_grad_lanes_ *lanes; /* [H] */
  float *d, *u;            /* [H][STEP], [hv][STEP] */
  float *d_ot;             /* [hv][dv][tile] */
  float *row, *clean;      /* a block or tile of rows of k, v, q or d_o */
  /* tiles: [hk][dk][tile], and 2 of them; keys: rows of d_k and d_v of a block, and as much of the runs before */
  float *sum, *far;
  float *turned;      /* [keys][tile][H or hv in whole 16s] */
  float *gram;        /* [hk or H][H or hv in whole 16s] */
  unsigned char *hit; /* [block][tile] */
  double *row_sums;   /* [H][tile]: D */
  uint64_t open;      /* rows that some head sees a key for */
  int bad, careful;   /* rows of the tile are not finite; nor is what some pair does not see */
} attn_talking_back_tile_;

/* Blocks and tiles whose sums are joined before they go on, and keys of a pass over a matrix's shares. */
enum { ATTN_TALKING_RUN_ = 8, ATTN_TALKING_SHARE_ = 16 };

/* Floats of what a block of keys gets in all heads. */
ATTN_FUNC_ int64_t attn_talking_sent_(const attn_tensor *t) {
  return attn_mul_(t->heads, attn_mul_(t->dim, ATTN_BLOCK_));
}

/* The pieces of a worker's memory; its bytes. */
ATTN_FUNC_ int64_t attn_talking_back_cut_(const attn_talking_back_ *a, char *memory,
                                          attn_talking_back_tile_ *y) {
  const int64_t h = a->x.heads, hk = a->x.q.heads, hv = a->d_o.heads;
  const int64_t dk = a->x.q.dim, dv = a->v.dim, wide = attn_group_up_(attn_max64_(h, hv));
  const int64_t rows = attn_add_(attn_mul_(attn_max64_(dk, dv), ATTN_BLOCK_), ATTN_GROUP_);
  const int64_t sent = attn_add_(attn_talking_sent_(&a->x.k), attn_talking_sent_(&a->v));
  const int64_t sum = attn_max64_(sent, attn_mul_(attn_mul_(hk, dk), ATTN_TILE_));
  int64_t at = 0;
#define ATTN_CUT_(member, type, count)                                 \
  {                                                                    \
    const int64_t from = attn_cut_(&at, count, (int64_t)sizeof(type)); \
    if (memory) y->member = (type *)(void *)(memory + from);           \
  }
  ATTN_CUT_(lanes, attn_grad_lanes_, h)
  ATTN_CUT_(d, float, attn_mul_(h, ATTN_JOINT_STEP_))
  ATTN_CUT_(u, float, attn_mul_(hv, ATTN_JOINT_STEP_))
  ATTN_CUT_(d_ot, float, attn_mul_(hv, attn_mul_(dv, ATTN_TILE_)))
  ATTN_CUT_(row, float, rows)
  ATTN_CUT_(clean, float, rows)
  ATTN_CUT_(sum, float, sum)
  ATTN_CUT_(far, float, attn_mul_(2, sum))
  ATTN_CUT_(row_sums, double, attn_mul_(h, ATTN_TILE_))
  ATTN_CUT_(turned, float, attn_mul_(wide, ATTN_TALKING_SHARE_ * ATTN_TILE_))
  ATTN_CUT_(gram, float, attn_mul_(attn_max64_(h, hk), wide))
  ATTN_CUT_(hit, unsigned char, ATTN_BLOCK_ *ATTN_TILE_)
#undef ATTN_CUT_
  return at;
}

/* ---- pairs ----------------------------------------------------------------------------------*/

/* LSE of the rows of the tile, what is taken off their gradients, and d_o in lanes. */
ATTN_FUNC_ void attn_talking_back_open_(attn_talking_back_tile_ *y, const attn_joint_tile_ *t,
                                        const float *less) {
  const attn_talking_back_ *a = y->a;
  const attn_table_ *f = a->x.a.table;
  const int64_t dv = a->v.dim;
  const void *rows[ATTN_TILE_];
  y->open = 0;
  for (int64_t h = 0; h < a->x.heads; h++)
    for (int r = 0; r < ATTN_TILE_; r++) {
      float lse = -INFINITY;
      if (r < t->rows) memcpy(&lse, attn_at_(&a->x.lse, t->batch, h, t->first + r), sizeof lse);
      const int empty = lse == -INFINITY;
      const double unit = (double)lse * a->x.a.unit;
      attn_grad_lanes_ *l = &y->lanes[h];
      l->hi[r] = empty ? INFINITY : (float)attn_clamp_f64_(unit);
      l->lo[r] = empty ? 0.0f : (float)(unit - (double)l->hi[r]);
      l->less[r] = less ? less[h * ATTN_TILE_ + r] : 0.0f;
      if (!empty) y->open |= (uint64_t)1 << r;
    }
  y->bad = !f->finite(t->qt, ATTN_TILE_, a->x.q.heads * a->x.q.dim, t->n);
  for (int64_t h = 0; h < a->d_o.heads; h++) {
    for (int r = 0; r < t->n; r++) rows[r] = attn_at_(&a->d_o, t->batch, h, t->first + r);
    f->pack(y->d_ot + h * dv * ATTN_TILE_, rows, t->n, dv, (int)a->d_o.dtype, 1.0f,
            attn_least_(1.0f));
    y->bad |= !f->finite(y->d_ot + h * dv * ATTN_TILE_, ATTN_TILE_, dv, t->n);
  }
}

/* What pairs that no head sees have is nothing, of n keys of all heads. */
ATTN_FUNC_ void attn_talking_hide_(const attn_talking_back_tile_ *y, float *x, int64_t heads,
                                   int64_t n) {
  for (int64_t h = 0; h < heads; h++)
    for (int64_t i = 0; i < n * ATTN_TILE_; i++)
      if (!y->hit[i]) x[h * ATTN_JOINT_STEP_ + i] = 0.0f;
}

/* Whether rows j0 .. of all heads of a tensor are finite. */
ATTN_FUNC_ int attn_talking_fine_(attn_talking_back_tile_ *y, const attn_joint_tile_ *t,
                                  const attn_tensor *x, int64_t j0, int64_t n) {
  int fine = 1;
  for (int64_t h = 0; fine && h < x->heads; h++) {
    int64_t stride;
    const float *p = attn_joint_rows_(t, x, h, j0, n, y->row, &stride);
    fine = y->a->x.a.table->finite(p, stride, n, x->dim);
  }
  return fine;
}

/* Keys j0 .. j0 + n - 1: weights to t->w, dL (dW, where nothing is taken off) to y->d, J to t->j and dU to y->u. */
ATTN_FUNC_ void attn_talking_pairs_(attn_talking_back_tile_ *y, attn_joint_tile_ *t, int64_t j0,
                                    int64_t n) {
  const attn_talking_back_ *a = y->a;
  const attn_table_ *f = a->x.a.table;
  const int64_t hv = a->d_o.heads, dv = a->v.dim, group = hv / a->v.heads, step = ATTN_JOINT_STEP_;
  const attn_grad_cap_ cap = {NULL, 0.0f};
  const float *v = NULL;
  int64_t stride = 0;
  attn_joint_scores_(t, j0, n, t->w);
  for (int64_t h = 0; h < hv; h++) {
    if (h % group == 0) v = attn_joint_rows_(t, &a->v, h / group, j0, n, y->row, &stride);
    attn_on_(tile, f)->score_block(y->u + h * step, y->d_ot + h * dv * ATTN_TILE_, v, stride, n, dv,
                                   0, t->groups, t->head[0].spare);
  }
  y->careful = t->partial && (y->bad || !attn_talking_fine_(y, t, &a->x.k, j0, n) ||
                              !attn_talking_fine_(y, t, &a->v, j0, n));
  if (y->careful) {
    attn_talking_hits_(y->hit, t, j0, n);
    attn_talking_hide_(y, t->j, a->x.q.heads, n), attn_talking_hide_(y, y->u, hv, n);
  }
  attn_joint_mix_(t, y->d, a->x.heads, a->back_w, y->u, hv, n);
  for (int64_t h = 0; h < a->x.heads; h++)
    attn_on_(gradient, f)
        ->grad_block(t->w + h * step, y->d + h * step, n, 0, t->groups, &y->lanes[h], &cap);
}

/* ---- tiles of queries -----------------------------------------------------------------------*/

/* sum[r][c] += by (x[r] . z[c]) over n keys and the tile's lanes; heads of x and z lie STEP apart. */
ATTN_FUNC_ void attn_talking_share_(attn_talking_back_tile_ *y, const attn_joint_tile_ *t,
                                    double *sum, float *x, int64_t rows, float *z, int64_t cols,
                                    int64_t n, double by) {
  const attn_dense_table_ *on = attn_on_(dense, y->a->x.a.table);
  const int64_t step = ATTN_JOINT_STEP_, wide = attn_group_up_(cols);
  for (int64_t e = 0; t->n < ATTN_TILE_ && e < n; e++) { /* lanes that no row is in */
    const size_t rest = (size_t)(ATTN_TILE_ - t->n) * sizeof(float);
    for (int64_t r = 0; r < rows; r++) memset(x + r * step + e * ATTN_TILE_ + t->n, 0, rest);
    for (int64_t c = 0; c < cols; c++) memset(z + c * step + e * ATTN_TILE_ + t->n, 0, rest);
  }
  for (int64_t e = 0, some; e < n; e += some) {
    some = attn_min64_(n - e, ATTN_TALKING_SHARE_);
    for (int64_t c = 0; c < cols; c += ATTN_GROUP_) {
      const void *from[ATTN_GROUP_];
      const int many = (int)attn_min64_(cols - c, ATTN_GROUP_);
      for (int i = 0; i < many; i++) from[i] = z + (c + i) * step + e * ATTN_TILE_;
      on->turn(y->turned + c, wide, from, (int)ATTN_F32, some * ATTN_TILE_, many);
    }
    on->gemm(y->gram, wide, rows, x + e * ATTN_TILE_, step, 1, y->turned, wide, some * ATTN_TILE_,
             cols, 1);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t c = 0; c < cols; c++) sum[r * cols + c] += by * (double)y->gram[r * wide + c];
  }
}

/* d[h][lane] += the sum over n keys of x */
ATTN_FUNC_ void attn_talking_columns_(const attn_talking_back_tile_ *y, const attn_joint_tile_ *t,
                                      double *d, const float *x, int64_t n) {
  static const float one[1] = {1.0f};
  float sum[ATTN_TILE_];
  for (int64_t h = 0; h < y->a->x.heads; h++, d += ATTN_TILE_) {
    attn_on_(tile, y->a->x.a.table)
        ->value_block(sum, x + h * ATTN_JOINT_STEP_, one, 0, n, 1, 0, t->groups, NULL, 1);
    for (int r = 0; r < t->n; r++) d[r] += (double)sum[r];
  }
}

/* dJ of n keys, in the place of J. */
ATTN_FUNC_ void attn_talking_back_mix_(attn_talking_back_tile_ *y, attn_joint_tile_ *t, int64_t n) {
  const attn_joint_ *x = &y->a->x;
  attn_joint_mix_(t, t->j, x->q.heads, y->a->back_l, y->d, x->heads, n);
}

/* d_q += dJ times keys j0 .. */
ATTN_FUNC_ void attn_talking_queries_(attn_talking_back_tile_ *y, attn_joint_tile_ *t, int64_t j0,
                                      int64_t n, int start) {
  const attn_talking_back_ *a = y->a;
  const attn_table_ *f = a->x.a.table;
  const int64_t hk = a->x.q.heads, dk = a->x.q.dim, group = hk / a->x.k.heads;
  for (int64_t h = 0; h < hk; h++) {
    int64_t stride;
    const float *d = t->j + h * ATTN_JOINT_STEP_;
    float *sum = y->sum + h * dk * ATTN_TILE_;
    const float *k = attn_joint_rows_(t, &a->x.k, h / group, j0, n, y->row, &stride);
    /* the pairs that see what is not finite there have dJ of NaN */
    if (y->careful && attn_talking_clean_(y->clean, f, k, stride, n, dk)) k = y->clean, stride = dk;
    attn_on_(tile, f)->value_block(sum, d, k, stride, n, dk, 0, t->groups, NULL, start);
  }
}

ATTN_FUNC_ void attn_talking_queries_end_(attn_talking_back_tile_ *y, const attn_joint_tile_ *t) {
  const attn_talking_back_ *a = y->a;
  const attn_table_ *f = a->x.a.table;
  const int64_t dk = a->x.q.dim;
  void *rows[ATTN_TILE_];
  float by[ATTN_TILE_];
  for (int r = 0; r < ATTN_TILE_; r++) by[r] = (float)attn_clamp_f64_(a->x.a.scale);
  attn_on_(tile, f)->scale_block(y->far, a->x.q.heads * dk, 0, t->groups, by);
  for (int64_t h = 0; h < a->x.q.heads; h++) {
    for (int r = 0; r < t->n; r++) rows[r] = attn_at_(&a->d_q, t->batch, h, t->first + r);
    f->unpack(rows, y->far + h * dk * ATTN_TILE_, t->n, dk, ATTN_F32, NULL);
  }
}

/* A tile of queries. */
ATTN_FUNC_ void attn_talking_back_item_(void *job, int worker, int64_t index) {
  const attn_talking_back_ *a = (const attn_talking_back_ *)job;
  const attn_joint_ *x = &a->x;
  const attn_table_ *f = x->a.table;
  const int64_t h = x->heads, hk = x->q.heads, hv = a->d_o.heads, all = hk * x->q.dim;
  attn_joint_tile_ t;
  attn_talking_back_tile_ y;
  attn_joint_open_(&t, x, worker, index);
  y.a = a;
  attn_talking_back_cut_(a, t.own, &y);
  double *share = a->shares ? a->shares + index * h * (hk + hv) : NULL;
  float *less = a->less + index * h * ATTN_TILE_;
  double *d = y.row_sums;
  for (int64_t i = 0; share && i < h * (hk + hv); i++) share[i] = 0.0;
  for (int64_t i = 0; i < h * ATTN_TILE_; i++) d[i] = 0.0;
  attn_talking_back_open_(&y, &t, NULL);
  for (int64_t j = t.j0, next; j < t.end; j = next) {
    next = attn_joint_next_(&t, j);
    attn_talking_pairs_(&y, &t, j, next - j);
    attn_talking_columns_(&y, &t, d, y.d, next - j);
    if (a->d_w_w.data) attn_talking_share_(&y, &t, share + hk * h, t.w, h, y.u, hv, next - j, 1.0);
  }
  for (int64_t g = 0; g < h; g++)
    for (int r = 0; r < ATTN_TILE_; r++) {
      float more = 0.0f;
      if (a->d_lse.data && r < t.rows)
        memcpy(&more, attn_at_(&a->d_lse, t.batch, g, t.first + r), sizeof more);
      less[g * ATTN_TILE_ + r] = (float)(d[g * ATTN_TILE_ + r] - (double)more);
    }
  if (!a->d_q.data && !a->d_w_l.data) return;
  for (int64_t g = 0; g < h; g++)
    memcpy(y.lanes[g].less, less + g * ATTN_TILE_, sizeof y.lanes[g].less);
  memset(y.far, 0, (size_t)(2 * all * ATTN_TILE_) * sizeof(float));
  int run = 0;
  for (int64_t j = t.j0, next; j < t.end; j = next) {
    next = attn_joint_next_(&t, j);
    attn_talking_pairs_(&y, &t, j, next - j);
    if (a->d_w_l.data)
      attn_talking_share_(&y, &t, share, t.j, hk, y.d, h, next - j, 1.0 / x->a.unit);
    if (!a->d_q.data) continue;
    attn_talking_back_mix_(&y, &t, next - j);
    attn_talking_queries_(&y, &t, j, next - j, run == 0);
    if (++run < (int)ATTN_TALKING_RUN_ && next < t.end) continue;
    attn_on_(tile, f)->fold_block(y.far, y.far + all * ATTN_TILE_, y.sum, all, t.groups,
                                  attn_alpha_one_, next == t.end);
    run = 0;
  }
  if (a->d_q.data) attn_talking_queries_end_(&y, &t);
}

/* ---- blocks of keys -------------------------------------------------------------------------*/

/* to [key][dim] += sums over lanes of p [key][lane] times rows of x, a head of queries or of d_o. */
ATTN_FUNC_ void attn_talking_send_(attn_talking_back_tile_ *y, const attn_joint_tile_ *t, float *to,
                                   const float *p, const attn_tensor *x, int64_t head, int64_t n) {
  const attn_table_ *f = y->a->x.a.table;
  const int64_t dim = x->dim, lanes = t->groups * ATTN_GROUP_;
  const float *row = y->row;
  f->widen(y->row, attn_at_(x, t->batch, head, t->first), x->stride_len, NULL, t->n, dim, x->dtype,
           NULL);
  for (int64_t r = 0; r < lanes; r++)
    if (!(y->open >> r & 1)) memset(y->row + r * dim, 0, (size_t)dim * sizeof(float));
  const int patch = y->careful && attn_talking_clean_(y->clean, f, y->row, dim, lanes, dim);
  if (patch) row = y->clean;
  attn_on_(dense, f)->gemm(to, dim, n, p, ATTN_TILE_, 1, row, dim, lanes, dim, 2);
  for (int64_t r = 0; patch && r < t->n; r++)
    for (int64_t c = 0; c < dim; c++) {
      const float z = y->row[r * dim + c];
      for (int64_t e = 0; z - z != 0.0f && e < n; e++)
        if (y->hit[e * ATTN_TILE_ + r]) to[e * dim + c] += p[e * ATTN_TILE_ + r] * z;
    }
}

/* The tile's queries and d_o to keys j0 .. of a block, which begins at `block`. */
ATTN_FUNC_ void attn_talking_keys_(attn_talking_back_tile_ *y, attn_joint_tile_ *t, int64_t block,
                                   int64_t j0, int64_t n) {
  const attn_talking_back_ *a = y->a;
  const int64_t hk = a->x.q.heads, hv = a->d_o.heads, dk = a->x.q.dim, dv = a->v.dim;
  const int64_t group_k = hk / a->x.k.heads, group_v = hv / a->v.heads;
  float *to = y->sum + attn_talking_sent_(&a->x.k);
  attn_talking_pairs_(y, t, j0, n);
  if (a->d_v.data) attn_joint_mix_(t, y->u, hv, a->mix_w, t->w, a->x.heads, n);
  for (int64_t h = 0; a->d_v.data && h < hv; h++)
    attn_talking_send_(y, t, to + (h / group_v * ATTN_BLOCK_ + j0 - block) * dv,
                       y->u + h * ATTN_JOINT_STEP_, &a->d_o, h, n);
  if (a->d_k.data) attn_talking_back_mix_(y, t, n);
  for (int64_t h = 0; a->d_k.data && h < hk; h++)
    attn_talking_send_(y, t, y->sum + (h / group_k * ATTN_BLOCK_ + j0 - block) * dk,
                       t->j + h * ATTN_JOINT_STEP_, &a->x.q, h, n);
}

/* Rows of a block of keys go out, times scale. */
ATTN_FUNC_ void attn_talking_keys_end_(const attn_talking_back_tile_ *y, const attn_tensor *to,
                                       const float *from, int64_t batch, int64_t j0, double scale) {
  const int64_t n = attn_min64_(to->len - j0, ATTN_BLOCK_);
  for (int64_t h = 0; to->data && h < to->heads; h++)
    for (int64_t e = 0; e < n; e++)
      y->a->x.a.table->blend(attn_at_(to, batch, h, j0 + e), from + (h * ATTN_BLOCK_ + e) * to->dim,
                             NULL, ATTN_F32, ATTN_F32, ATTN_F32, to->dim,
                             (float)attn_clamp_f64_(scale), 1.0f);
}

/* A block of keys: all tiles of queries that see some of them, the first one first. */
ATTN_FUNC_ void attn_talking_keys_item_(void *job, int worker, int64_t index) {
  const attn_talking_back_ *a = (const attn_talking_back_ *)job;
  const attn_joint_ *x = &a->x;
  const int64_t blocks = attn_runs_of_(x->k.len, ATTN_BLOCK_), tiles = x->a.tiles;
  const int64_t batch = index / blocks, j0 = index % blocks * ATTN_BLOCK_;
  const int64_t sent = attn_talking_sent_(&x->k), all = sent + attn_talking_sent_(&a->v);
  attn_joint_tile_ t;
  attn_talking_back_tile_ y;
  int run = 0;
  y.a = a;
  for (int64_t i = 0; i < tiles; i++) {
    const int64_t tile =
        batch * tiles + tiles - 1 - i; /* from last to first in the joint's order */
    attn_joint_look_(&t, x, worker, tile);
    if (i == 0) {
      attn_talking_back_cut_(a, t.own, &y);
      memset(y.sum, 0, (size_t)all * sizeof(float)), memset(y.far, 0, (size_t)all * sizeof(float));
    }
    const int64_t from = attn_max64_(j0, t.j0), end = attn_min64_(j0 + ATTN_BLOCK_, t.end);
    if (from < end) {
      attn_joint_pack_(&t);
      attn_talking_back_open_(&y, &t, a->less + tile * x->heads * ATTN_TILE_);
      attn_talking_keys_(&y, &t, j0, from, end - from);
      run++;
    }
    if (run < (int)ATTN_TALKING_RUN_ && i + 1 < tiles) continue;
    x->a.table->blend(y.far, y.far, y.sum, ATTN_F32, ATTN_F32, ATTN_F32, all, 1.0f, 1.0f);
    memset(y.sum, 0, (size_t)all * sizeof(float));
    run = 0;
  }
  attn_talking_keys_end_(&y, &a->d_k, y.far, batch, j0, x->a.scale);
  attn_talking_keys_end_(&y, &a->d_v, y.far + sent, batch, j0, 1.0);
}

/* ---- the call -------------------------------------------------------------------------------*/

/* The first walk of forward: the LSE of a tile. */
ATTN_FUNC_ void attn_talking_lse_item_(void *job, int worker, int64_t index) {
  attn_joint_tile_ t;
  attn_joint_open_(&t, (const attn_joint_ *)job, worker, index);
  attn_joint_first_(&t);
}

/* The shares of all tiles in order, as the caller's matrix lies; cols: heads that are mixed into. */
ATTN_COLD_ int attn_talking_shares_(attn_stage_ *s, const attn_talking_back_ *a,
                                    const attn_tensor *d, int64_t at, int64_t cols,
                                    int accumulate) {
  if (!d->data) return 1;
  const int64_t n = attn_mul_(d->len, d->dim), rows = cols ? n / cols : 0;
  const int64_t all = a->x.heads * (a->x.q.heads + a->d_o.heads);
  const attn_tensor made = attn_stage_tensor_(s, 1, 1, d->len, d->dim);
  for (int64_t i = 0; s->run && i < n; i++) {
    double sum = 0.0;
    for (int64_t t = 0; t < attn_joint_items_(&a->x); t++) sum += a->shares[t * all + at + i];
    ((float *)made.data)[a->flipped ? i % cols * rows + i / cols : i] = attn_one_nan_((float)sum);
  }
  return attn_stage_shares_(s, *d, made, accumulate);
}

typedef struct attn_talking_back_job_ {
  attn_talking_back_ a;
  attn_tensor out[3]; /* d_q, d_k, d_v as the caller gave them */
  int accumulate;
} attn_talking_back_job_;

ATTN_COLD_ int attn_talking_back_steps_(attn_stage_ *s, void *job) {
  const attn_talking_back_job_ *j = (const attn_talking_back_job_ *)job;
  attn_talking_back_ a = j->a;
  attn_joint_ *x = &a.x;
  const attn_tensor *const of[3] = {&x->q, &x->k, &a.v};
  attn_tensor *const to[3] = {&a.d_q, &a.d_k, &a.d_v};
  const int64_t h = x->heads, items = attn_joint_items_(x);
  for (int i = 0; i < 3; i++) {
    if (!j->out[i].data) continue;
    *to[i] = j->out[i];
    if (j->accumulate || to[i]->dtype != ATTN_F32 || !attn_gradient_whole_(to[i], of[i]))
      *to[i] = attn_stage_tensor_(s, of[i]->batch, of[i]->heads, of[i]->len, of[i]->dim);
  }
  x->mix = attn_talking_matrix_(s, a.w_l, 0), a.back_l = attn_talking_matrix_(s, a.w_l, 1);
  a.mix_w = attn_talking_matrix_(s, a.w_w, 0), a.back_w = attn_talking_matrix_(s, a.w_w, 1);
  x->once = 1;
  if (!x->lse.data) x->lse = attn_stage_tensor_(s, x->q.batch, h, x->q.len, 1);
  a.less = (float *)attn_stage_take_(s, attn_mul_(items, attn_mul_(h, ATTN_TILE_)), sizeof(float));
  if (a.d_w_l.data || a.d_w_w.data)
    a.shares = (double *)attn_stage_take_(
        s, attn_mul_(items, attn_mul_(h, attn_add_(x->q.heads, a.d_o.heads))), sizeof(double));
  attn_joint_memory_(s, x, attn_talking_back_cut_(&a, NULL, NULL));
  attn_joint_ first = *x;
  first.pairs = NULL;
  if (!j->a.x.lse.data &&
      !attn_stage_for_(s, items, attn_talking_lse_item_, &first, first.each, &first.memory))
    return 0;
  if (!attn_joint_for_(s, x, attn_talking_back_item_, &a)) return 0;
  x->pairs = NULL;
  const int64_t blocks = attn_mul_(x->q.batch, attn_runs_of_(x->k.len, ATTN_BLOCK_));
  const int empty = items == 0; /* no query: keys get nothing */
  for (int i = 1; s->run && empty && i < 3; i++)
    for (int64_t b = 0; to[i]->data && b < to[i]->batch; b++)
      attn_zero_rows_(to[i], b, 0, to[i]->heads, 0);
  if ((a.d_k.data || a.d_v.data) && !empty &&
      !attn_stage_for_(s, blocks, attn_talking_keys_item_, &a, x->each, &x->memory))
    return 0;
  for (int i = 0; i < 3; i++)
    if (j->out[i].data && !attn_stage_made_(s, &j->out[i], *to[i], j->accumulate)) return 0;
  return attn_talking_shares_(s, &a, &a.d_w_l, 0, h, j->accumulate) &&
         attn_talking_shares_(s, &a, &a.d_w_w, attn_mul_(x->q.heads, h), a.d_o.heads,
                              j->accumulate);
}

ATTN_COLD_ int attn_talking_back_check_(attn_error_ *e, attn_talking_back_job_ *j,
                                        const attn_talking_params *params, const attn_ctx *ctx,
                                        int query) {
  static const char shape[] =
      "a gradient must have the shape of what it is of, or 1 where that has a stride of 0";
  const int64_t any = ATTN_ANY_;
  const int out = (int)ATTN_OUT_ | (int)ATTN_OPTIONAL_;
  attn_talking_back_ *a = &j->a;
  attn_joint_ *x = &a->x;
  const int64_t b = x->q.batch, hk = x->q.heads, hv = a->d_o.heads, tq = x->q.len, tk = x->k.len;
  attn_span_ span[ATTN_JOINT_SPANS_];
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has w_l and w_w");
  a->w_l = params->w_l, a->w_w = params->w_w, x->lse = params->attention.lse;
  attn_turn_(&a->w_l, params->w_transposed), attn_turn_(&a->w_w, params->w_transposed);
  const int flipped = a->flipped = params->w_transposed != 0;
  const int64_t heads = a->w_l.dim;
  attn_operand_ op[] = {
      ATTN_OPERAND_(&j->out[0], "d_q", out, any, any, any, any, shape),
      ATTN_OPERAND_(&j->out[1], "d_k", out, any, any, any, any, shape),
      ATTN_OPERAND_(&j->out[2], "d_v", out, any, any, any, any, shape),
      ATTN_OPERAND_(&a->d_o, "d_o", 0, b, any, tq, a->v.dim,
                    "d_o must be [q.batch, ., q.len, v.dim]"),
      ATTN_OPERAND_(&x->q, "q", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&x->k, "k", 0, b, ATTN_DIVIDES_, any, x->q.dim,
                    "k must be [q.batch, a divisor of q.heads, ., q.dim]"),
      ATTN_OPERAND_(&a->v, "v", 0, b, ATTN_DIVIDES_, tk, any,
                    "v must be [q.batch, a divisor of d_o.heads, k.len, .]"),
      ATTN_OPERAND_(&a->w_l, "params.w_l", ATTN_MATRIX_, 1, 1, hk, any,
                    ATTN_IN_OUT_("params.w_l", "q.heads", "H")),
      ATTN_OPERAND_(&a->w_w, "params.w_w", ATTN_MATRIX_, 1, 1, heads, hv,
                    ATTN_IN_OUT_("params.w_w", "H", "d_o.heads")),
      ATTN_OPERAND_(&a->d_w_l, "gradients.d_w_l", out, 1, 1, flipped ? heads : hk,
                    flipped ? hk : heads, "gradients.d_w_l must have the shape of params.w_l"),
      ATTN_OPERAND_(&a->d_w_w, "gradients.d_w_w", out, 1, 1, flipped ? hv : heads,
                    flipped ? heads : hv, "gradients.d_w_w must have the shape of params.w_w"),
      ATTN_OPERAND_(&x->lse, "params.attention.lse", (int)ATTN_OPTIONAL_ | (int)ATTN_IS_F32_, b,
                    heads, tq, 1, "params.attention.lse must be f32 [q.batch, H, q.len, 1]"),
      ATTN_OPERAND_(&a->d_lse, "gradients.d_lse", (int)ATTN_OPTIONAL_ | (int)ATTN_IS_F32_, b, heads,
                    tq, 1, "gradients.d_lse must be f32 [q.batch, H, q.len, 1]")};
  enum { V = 6, N = sizeof op / sizeof *op };
  const attn_tensor *const of[3] = {&x->q, &x->k, &a->v};
  if (!attn_check_given_(e, op, N)) return 0;
  if (hk < 1 || hv < 1)
    return attn_reject_(e, ATTN_E_SHAPE, "q.heads and d_o.heads must be at least 1");
  for (int i = 0; i < (int)N; i++)
    if (!attn_check_operand_(e, &op[i], i == V ? hv : hk)) return 0;
  for (int i = 0; i < 3; i++)
    if (j->out[i].data && !attn_gradient_fits_(&j->out[i], of[i]))
      return attn_reject_(e, ATTN_E_SHAPE, shape);
  if (j->accumulate != 0 && j->accumulate != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.accumulate must be 0 or 1");
  return attn_joint_plan_(e, x, &params->attention, heads, ctx, span, query) &&
         attn_check_apart_(e, ctx, op, N, span, ATTN_JOINT_SPANS_);
}

ATTN_COLD_ attn_status attn_talking_backward_call_(attn_tensor d_q, attn_tensor d_k,
                                                   attn_tensor d_v, attn_tensor d_o, attn_tensor q,
                                                   attn_tensor k, attn_tensor v,
                                                   const attn_talking_params *params,
                                                   const attn_talking_gradients *gradients,
                                                   attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_talking_back_job_ j;
  attn_talking_back_ *a = &j.a;
  int workers = 1;
  attn_clear_(&j, sizeof j);
  j.out[0] = d_q, j.out[1] = d_k, j.out[2] = d_v;
  a->d_o = d_o, a->x.q = q, a->x.k = k, a->v = v;
  if (gradients) {
    a->d_w_l = gradients->d_w_l, a->d_w_w = gradients->d_w_w, a->d_lse = gradients->d_lse;
    j.accumulate = gradients->accumulate;
  }
  const int some = d_q.data || d_k.data || d_v.data || a->d_w_l.data || a->d_w_w.data;
  if (attn_check_ctx_(&e, ctx, &table, &workers))
    (void)attn_talking_back_check_(&e, &j, params, ctx, bytes != NULL);
  return attn_step_call_or_(&e, table, workers, ctx, attn_talking_back_steps_, &j,
                            "all heads of a tile at once", some ? NULL : "no output is asked for",
                            bytes);
}
ATTN_CALL_(attn_talking_backward, (d_q, d_k, d_v, d_o, q, k, v, params, gradients), attn_tensor d_q,
           attn_tensor d_k, attn_tensor d_v, attn_tensor d_o, attn_tensor q, attn_tensor k,
           attn_tensor v, const attn_talking_params *params,
           const attn_talking_gradients *gradients)
