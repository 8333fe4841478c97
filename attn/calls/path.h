/* calls/path.h owns the transitions between a query and the keys before it: what is made of them once a call, and
 * queries that are carried from block to block.
 *
 * With w_t of the 64 keys of a half block as rows of W, the product of its transitions is I - W^T M W, where
 * (I + upper(diag(beta) W W^T)) M = diag(beta); M is upper triangular. A row with x = q_i of which z = W x keeps
 * what is not behind its position loses W^T M z on its way past the half, and its scores are K x - N z, N =
 * upper(K W^T) M. Rows at or behind the end of a block see all of it: their scores are products with keys that have
 * been carried to that end, and they pass it by one matrix. Which of the two it is hangs on a row's position
 * alone. */

/* What is made of a block of keys; halves are of 64. */
typedef struct attn_path_block_ {
  float *keys;      /* [block][dk], carried to the end of the block */
  float *whole;     /* [dk][dk], the product of all its transitions */
  float *m[2];      /* -M */
  float *less[2];   /* -N, transposed */
  uint64_t *broken; /* [2] tokens of which w is no unit vector by far */
} attn_path_block_;

/* A tile, or a worker's room while blocks are prepared. */
typedef struct attn_path_tile_ {
  int64_t at;              /* queries are at the end of this block */
  int64_t scored;          /* the block whose scores by row are in s, or -1 */
  float *q, *next, *spare; /* [dk][tile] carried queries; those past the block of s; */
  float *z, *u;            /* [64][tile] */
  float *s;                /* [block][tile] */
  float *w[2], *k;         /* [64][dk] */
} attn_path_tile_;

/* A longer w has lengthened what it should turn. */
#define ATTN_PATH_LONG_ 1.5625f

/* ---- memory ---------------------------------------------------------------------------------*/

ATTN_COLD_ int64_t attn_path_tile_bytes_(const attn_softmax_ *a) {
  const int64_t row = attn_mul_(a->q.dim, 3 * ATTN_TILE_ + 3 * ATTN_TILE_);
  const int64_t cells = (int64_t)ATTN_TILE_ * (2 * ATTN_TILE_ + ATTN_BLOCK_);
  return attn_add_(attn_piece_(1, sizeof(attn_path_tile_)),
                   attn_piece_(attn_add_(row, cells), (int64_t)sizeof(float)));
}

/* Floats of a block. */
ATTN_FUNC_ int64_t attn_path_size_(const attn_softmax_ *a) {
  const int64_t dk = a->q.dim, cells = 4 * (int64_t)ATTN_TILE_ * ATTN_TILE_ + ATTN_GROUP_;
  const int64_t n = attn_add_(attn_mul_(attn_add_(dk, ATTN_BLOCK_), dk), cells);
  return attn_add_(n, ATTN_GROUP_ - 1) & ~(int64_t)(ATTN_GROUP_ - 1);
}

/* Blocks from the first that a row may see to that of the last row. */
ATTN_FUNC_ int64_t attn_path_blocks_(const attn_softmax_ *a, int64_t *first) {
  const int64_t from = attn_clamp_(attn_sub_(a->q_off, a->left), 0, a->k.len) / ATTN_BLOCK_;
  const int64_t end = attn_clamp_(attn_add_(a->q_off, a->q.len), 0, a->k.len);
  *first = from;
  return end > from * ATTN_BLOCK_ ? attn_runs_of_(end - from * ATTN_BLOCK_, ATTN_BLOCK_) : 0;
}

ATTN_COLD_ int64_t attn_path_bytes_(const attn_softmax_ *a) {
  int64_t first;
  const int64_t n = attn_mul_(attn_mul_(a->q.batch, a->k.heads), attn_path_blocks_(a, &first));
  return attn_piece_(attn_mul_(n, attn_path_size_(a)), (int64_t)sizeof(float));
}

ATTN_FUNC_ attn_path_block_ attn_path_block_of_(const attn_softmax_ *a, int64_t b, int64_t h,
                                                int64_t block) {
  const attn_reshaped_job_ *j = attn_reshaped_of_(a);
  const int64_t dk = a->q.dim, cells = (int64_t)ATTN_TILE_ * ATTN_TILE_;
  int64_t first;
  const int64_t n = attn_path_blocks_(a, &first), at = (b * a->k.heads + h) * n + block - first;
  float *x = (float *)(void *)(j->memory + j->at_path) + at * attn_path_size_(a);
  attn_path_block_ y;
  y.broken = (uint64_t *)(void *)x, x += ATTN_GROUP_;
  for (int half = 0; half < 2; half++, x += 2 * cells) y.m[half] = x, y.less[half] = x + cells;
  y.keys = x, y.whole = x + ATTN_BLOCK_ * dk;
  return y;
}

ATTN_FUNC_ attn_path_tile_ *attn_path_of_(const attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  return (attn_path_tile_ *)(void *)((char *)t->w.reshape + attn_reshaped_of_(a)->at_path_tile);
}

ATTN_FUNC_ attn_path_tile_ *attn_path_open_(const attn_tile_ *t) {
  const int64_t lanes = t->a->q.dim * ATTN_TILE_;
  attn_path_tile_ *x = attn_path_of_(t);
  float *p = (float *)(void *)((char *)x + attn_piece_(1, sizeof *x));
  x->q = p, x->next = p + lanes, x->spare = p + 2 * lanes, p += 3 * lanes;
  x->w[0] = p, x->w[1] = p + lanes, x->k = p + 2 * lanes, p += 3 * lanes;
  x->z = p, x->u = p + ATTN_TILE_ * ATTN_TILE_, x->s = p + 2 * ATTN_TILE_ * ATTN_TILE_;
  return x;
}

/* ---- products -------------------------------------------------------------------------------*/

/* 64 rows from row `at` on as floats; those that are not there or in `not_these` are 0. */
ATTN_FUNC_ void attn_path_rows_(const attn_softmax_ *a, const attn_tensor *x,
                                const attn_scales *scales, int64_t b, int64_t h, int64_t at,
                                int64_t n, uint64_t not_these, float *to) {
  const int64_t d = x->dim;
  attn_rows_scale_ s;
  memset(&s, 0, sizeof s);
  if (scales) s = attn_scales_at_(scales, b, h, at);
  a->table->widen(to, attn_at_(x, b, h, at), x->stride_len, NULL, n, d, x->dtype, &s);
  memset(to + n * d, 0, (size_t)((ATTN_TILE_ - n) * d) * sizeof *to);
  for (int r = 0; r < n && not_these; r++)
    if (not_these >> r & 1) memset(to + r * d, 0, (size_t)d * sizeof *to);
}

/* Rows of floats in lanes. */
ATTN_FUNC_ void attn_path_pack_(const attn_softmax_ *a, float *to, const float *x) {
  const void *rows[ATTN_TILE_];
  for (int r = 0; r < ATTN_TILE_; r++) rows[r] = x + r * a->q.dim;
  a->table->pack(to, rows, ATTN_TILE_, a->q.dim, ATTN_F32, 1.0f, attn_least_(1.0f));
}

/* to[r][lane] = rows[r] . x[..][lane] */
ATTN_FUNC_ void attn_path_dots_(const attn_softmax_ *a, float *to, const float *x,
                                const float *rows, int64_t n, int64_t dim, int groups) {
  float top[ATTN_TILE_] = {0};
  attn_on_(tile, a->table)->score_block(to, x, rows, dim, n, dim, 0, groups, top);
}

/* to[c][lane] = to + sum over 64 rows of rows[r][c] x[r][lane]; fresh: without to */
ATTN_FUNC_ void attn_path_sums_(const attn_softmax_ *a, float *to, const float *x,
                                const float *rows, int64_t dim, int groups, int fresh) {
  attn_on_(tile, a->table)->value_block(to, x, rows, dim, ATTN_TILE_, dim, 0, groups, NULL, fresh);
}

/* Queries in lanes past the transitions of a half: z = W q, of what they meet. */
ATTN_FUNC_ void attn_path_carry_(const attn_softmax_ *a, float *q, const float *z, float *u,
                                 const float *m, const float *w, int groups) {
  attn_path_dots_(a, u, z, m, ATTN_TILE_, ATTN_TILE_, groups);
  attn_path_sums_(a, q, u, w, a->q.dim, groups, 0);
}

/* ---- once a call ----------------------------------------------------------------------------*/

/* Rows of -M from the last to the first: each needs those behind it. */
ATTN_FUNC_ void attn_path_solve_(const attn_softmax_ *a, int64_t b, int64_t h, int64_t at,
                                 int64_t n, const float *gram, float *m) {
  const attn_tensor *beta = &attn_reshaped_of_(a)->beta;
  for (int64_t t = ATTN_TILE_ - 1; t >= 0; t--) {
    float *row = m + t * ATTN_TILE_, by = 0.0f;
    if (t >= n) {
      memset(row, 0, ATTN_TILE_ * sizeof *row);
      continue;
    }
    by = attn_number_(attn_at_(beta, b, h, at + t), 0, beta->dtype, NULL);
    attn_on_(tile, a->table)
        ->value_block(row, row + ATTN_TILE_, gram + (t + 1) * ATTN_TILE_ + t, ATTN_TILE_, n - 1 - t,
                      1, (int)t / ATTN_GROUP_, ATTN_TILE_ / ATTN_GROUP_, NULL, 1);
    for (int64_t l = 0; l < t; l++) row[l] = 0.0f;
    row[t] = 1.0f;
    for (int64_t l = t; l < ATTN_TILE_; l++) row[l] *= -by;
  }
}

/* A half of a block, whose keys go to kt, a lane each, carried to its end. */
ATTN_FUNC_ void attn_path_half_(const attn_softmax_ *a, attn_path_tile_ *x,
                                const attn_path_block_ *y, int half, float *kt, int64_t b,
                                int64_t h, int64_t at, int64_t n) {
  const attn_tensor *w = &attn_reshaped_of_(a)->w;
  const int groups = ATTN_TILE_ / ATTN_GROUP_;
  uint64_t broken = 0;
  for (int again = 0; again < 2; again++) {
    attn_path_rows_(a, w, NULL, b, h, at, n, broken, x->w[half]);
    attn_path_pack_(a, x->spare, x->w[half]);
    attn_path_dots_(a, x->z, x->spare, x->w[half], ATTN_TILE_, a->q.dim, groups);
    for (int t = 0; t < n && !again; t++)
      if (!(x->z[t * ATTN_TILE_ + t] <= ATTN_PATH_LONG_)) broken |= (uint64_t)1 << t;
    if (!broken) break;
  }
  y->broken[half] = broken;
  attn_path_solve_(a, b, h, at, n, x->z, y->m[half]);
  attn_path_rows_(a, &a->k, &a->k_scales, b, h, at, n, 0, x->k);
  attn_path_pack_(a, kt, x->k);
  attn_path_dots_(a, x->u, kt, x->w[half], ATTN_TILE_, a->q.dim, groups);
  for (int t = 0; t < ATTN_TILE_; t++) /* the transition of a key's own token does not meet it */
    for (int j = t; j < ATTN_TILE_; j++) x->u[t * ATTN_TILE_ + j] = 0.0f;
  attn_path_sums_(a, y->less[half], x->u, y->m[half], ATTN_TILE_, groups, 1);
  attn_path_sums_(a, kt, y->less[half], x->w[half], a->q.dim, groups, 0);
}

/* The product of a block, unit vectors 64 at a time. */
ATTN_FUNC_ void attn_path_whole_(const attn_softmax_ *a, attn_path_tile_ *x,
                                 const attn_path_block_ *y, int halves) {
  const int64_t dk = a->q.dim;
  for (int64_t e = 0, n; e < dk; e += n) {
    n = dk - e < ATTN_TILE_ ? dk - e : ATTN_TILE_;
    const int groups = (int)((n + ATTN_GROUP_ - 1) / ATTN_GROUP_);
    memset(x->spare, 0, (size_t)(dk * ATTN_TILE_) * sizeof *x->spare);
    for (int64_t i = 0; i < n; i++) x->spare[(e + i) * ATTN_TILE_ + i] = 1.0f;
    for (int half = halves - 1; half >= 0; half--) {
      attn_path_dots_(a, x->z, x->spare, x->w[half], ATTN_TILE_, dk, groups);
      attn_path_carry_(a, x->spare, x->z, x->u, y->m[half], x->w[half], groups);
    }
    for (int64_t c = 0; c < dk; c++)
      memcpy(y->whole + c * dk + e, x->spare + c * ATTN_TILE_, (size_t)n * sizeof(float));
  }
}

/* No key before a broken token is known to rows behind it. */
ATTN_FUNC_ void attn_path_break_(const attn_softmax_ *a, const attn_path_block_ *y) {
  const float none = attn_from_bits_(0x7fc00000u);
  const int64_t dk = a->q.dim;
  int64_t last = ATTN_BLOCK_ - 1;
  if (!(y->broken[0] | y->broken[1])) return;
  while (!(y->broken[last / ATTN_TILE_] >> last % ATTN_TILE_ & 1)) last--;
  for (int64_t i = 0; i < last * dk; i++) y->keys[i] = none;
  for (int64_t i = 0; i < dk * dk; i++) y->whole[i] = none;
}

/* A block of keys of one head. */
ATTN_FUNC_ void attn_path_item_(void *job, int worker, int64_t index) {
  const attn_softmax_ *a = (const attn_softmax_ *)job;
  int64_t first;
  const int64_t blocks = attn_path_blocks_(a, &first), dk = a->q.dim;
  const int64_t b = index / blocks / a->k.heads, h = index / blocks % a->k.heads;
  const int64_t block = first + index % blocks, at = block * ATTN_BLOCK_;
  const int64_t n = attn_len_of_(a->kv_len, b, a->k.len) - at;
  const int groups = ATTN_TILE_ / ATTN_GROUP_, halves = n > ATTN_TILE_ ? 2 : 1;
  const attn_path_block_ y = attn_path_block_of_(a, b, h, block);
  attn_tile_ t;
  if (n <= 0) return;
  attn_tile_open_(&t, a, worker);
  attn_path_tile_ *x = attn_path_open_(&t);
  y.broken[0] = y.broken[1] = 0;
  for (int half = halves - 1; half >= 0; half--) {
    const int64_t left = n - half * ATTN_TILE_;
    attn_path_half_(a, x, &y, half, half ? x->next : x->q, b, h, at + half * ATTN_TILE_,
                    left < ATTN_TILE_ ? left : ATTN_TILE_);
  }
  if (attn_add_(a->q_off, a->q.len) < at + ATTN_BLOCK_) return; /* no row sees all of it */
  if (halves > 1) {
    attn_path_dots_(a, x->z, x->q, x->w[1], ATTN_TILE_, dk, groups);
    attn_path_sums_(a, x->u, x->z, y.m[1], ATTN_TILE_, groups, 1);
    attn_path_sums_(a, x->q, x->u, x->w[1], dk, groups, 0);
  }
  for (int half = 0; half < halves; half++) {
    void *rows[ATTN_TILE_];
    for (int r = 0; r < ATTN_TILE_; r++) rows[r] = y.keys + (half * ATTN_TILE_ + r) * dk;
    a->table->unpack(rows, half ? x->next : x->q, ATTN_TILE_, dk, ATTN_F32, NULL);
  }
  attn_path_whole_(a, x, &y, halves);
  attn_path_break_(a, &y);
}

ATTN_FUNC_ void attn_path_prepare_(const attn_softmax_ *a, attn_ctx *ctx, int workers) {
  int64_t first;
  const int64_t items = a->q.batch * a->k.heads * attn_path_blocks_(a, &first);
  attn_for_(ctx, attn_pieces_(workers, items), items, attn_path_item_, (void *)(uintptr_t)a);
}

/* ---- tiles ----------------------------------------------------------------------------------*/

/* Rows of a tile at or behind the end of a block, and those inside it. */
ATTN_FUNC_ uint64_t attn_path_lanes_(const attn_tile_ *t, int64_t block, uint64_t *inside) {
  const int64_t at = block * ATTN_BLOCK_, last = at + ATTN_BLOCK_ - 1;
  uint64_t behind = 0;
  *inside = 0;
  for (int r = 0; r < t->n; r++) {
    if (t->pos[r] >= last)
      behind |= (uint64_t)1 << r;
    else if (t->pos[r] >= at)
      *inside |= (uint64_t)1 << r;
  }
  return behind;
}

/* A sweep begins: queries are at the block of the last row. */
ATTN_FUNC_ void attn_path_start_(attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  const int64_t keys = attn_len_of_(a->kv_len, t->batch, a->k.len);
  attn_path_tile_ *x = attn_path_open_(t);
  int64_t last = -1;
  for (int r = 0; r < t->n; r++)
    if (t->pos[r] > last) last = t->pos[r];
  if (last > keys - 1) last = keys - 1;
  x->at = last < 0 ? -1 : last / ATTN_BLOCK_, x->scored = -1;
  memcpy(x->q, t->w.qt, (size_t)(a->q.dim * ATTN_TILE_) * sizeof *x->q);
}

/* What the rows of one half lose that lie in it, and where they are after it. */
ATTN_FUNC_ void attn_path_rows_half_(attn_tile_ *t, const attn_path_block_ *y, int64_t at, int half,
                                     uint64_t inside) {
  const attn_softmax_ *a = t->a;
  const attn_reshaped_job_ *j = attn_reshaped_of_(a);
  attn_path_tile_ *x = attn_path_of_(t);
  const int64_t left = attn_len_of_(a->kv_len, t->batch, a->k.len) - at, dk = a->q.dim;
  const int64_t n = left < ATTN_TILE_ ? left : ATTN_TILE_;
  float *s = x->s + half * ATTN_TILE_ * ATTN_TILE_;
  int any = 0;
  for (int r = 0; r < t->n; r++) any |= (inside >> r & 1) && t->pos[r] >= at;
  if (n <= 0 || !any) { /* nobody sees these keys */
    memset(s, 0, ATTN_TILE_ * ATTN_TILE_ * sizeof *s);
    return;
  }
  attn_path_rows_(a, &j->w, NULL, t->batch, t->head_k, at, n, y->broken[half], x->w[0]);
  attn_path_rows_(a, &a->k, &a->k_scales, t->batch, t->head_k, at, n, 0, x->k);
  attn_path_dots_(a, s, x->next, x->k, ATTN_TILE_, dk, t->groups);
  attn_path_dots_(a, x->z, x->next, x->w[0], ATTN_TILE_, dk, t->groups);
  for (int r = 0; r < t->n; r++)
    for (int64_t l = attn_clamp_(t->pos[r] - at + 1, 0, n); l < n; l++)
      x->z[l * ATTN_TILE_ + r] = 0.0f;
  attn_path_sums_(a, s, x->z, y->less[half], ATTN_TILE_, t->groups, 0);
  attn_path_carry_(a, x->next, x->z, x->u, y->m[half], x->w[0], t->groups);
  for (int r = 0; r < t->n && y->broken[half]; r++) {
    int64_t last = attn_clamp_(t->pos[r] - at, -1, ATTN_TILE_ - 1);
    while (last >= 0 && !(y->broken[half] >> last & 1)) last--;
    if (last < 0) continue;
    const float none = attn_from_bits_(0x7fc00000u);
    for (int64_t e = 0; e < last; e++) s[e * ATTN_TILE_ + r] = none;
    for (int64_t c = 0; c < dk; c++) x->next[c * ATTN_TILE_ + r] = none;
  }
}

/* Rows inside a block: their scores go to s, and they are carried to its beginning in `next`. */
ATTN_FUNC_ void attn_path_inside_(attn_tile_ *t, int64_t block, uint64_t inside) {
  const attn_softmax_ *a = t->a;
  attn_path_tile_ *x = attn_path_of_(t);
  const attn_path_block_ y = attn_path_block_of_(a, t->batch, t->head_k, block);
  if (x->scored == block) return;
  x->scored = block;
  memcpy(x->next, x->q, (size_t)(a->q.dim * ATTN_TILE_) * sizeof *x->q);
  for (int half = 1; half >= 0; half--)
    attn_path_rows_half_(t, &y, block * ATTN_BLOCK_ + half * ATTN_TILE_, half, inside);
}

/* Carries queries past a block. */
ATTN_FUNC_ void attn_path_pass_block_(attn_tile_ *t, int64_t block) {
  const attn_softmax_ *a = t->a;
  attn_path_tile_ *x = attn_path_of_(t);
  const attn_path_block_ y = attn_path_block_of_(a, t->batch, t->head_k, block);
  const int64_t dk = a->q.dim;
  uint64_t inside;
  const uint64_t behind = attn_path_lanes_(t, block, &inside);
  float *old = x->q;
  if (inside) attn_path_inside_(t, block, inside);
  if (behind) attn_path_dots_(a, x->spare, x->q, y.whole, dk, dk, t->groups);
  if (behind == attn_tile_all_(t)) {
    x->q = x->spare, x->spare = old;
    return;
  }
  for (int64_t c = 0; c < dk; c++)
    for (int r = 0; r < t->n; r++) {
      const int64_t i = c * ATTN_TILE_ + r;
      if (behind >> r & 1)
        x->q[i] = x->spare[i];
      else if (inside >> r & 1)
        x->q[i] = x->next[i];
    }
}

/* E1 of a segment. */
ATTN_FUNC_ void attn_path_products_(attn_tile_ *t, const attn_block_ *b, const attn_segment_ *seg,
                                    float *s, float *top) {
  const attn_softmax_ *a = t->a;
  attn_path_tile_ *x = attn_path_of_(t);
  const int64_t key = attn_block_key_(b, seg->at), block = key / ATTN_BLOCK_;
  const int64_t e0 = key % ATTN_BLOCK_, dk = a->q.dim;
  uint64_t inside;
  for (; x->at > block; x->at--) attn_path_pass_block_(t, x->at);
  const uint64_t behind = attn_path_lanes_(t, block, &inside);
  float own[ATTN_TILE_];
  for (int r = 0; r < ATTN_TILE_; r++) own[r] = -INFINITY;
  if (behind) {
    const attn_path_block_ y = attn_path_block_of_(a, t->batch, t->head_k, block);
    attn_on_(tile, a->table)
        ->score_block(s, x->q, y.keys + e0 * dk, dk, seg->n, dk, seg->g0, seg->g1,
                      inside ? own : top);
  }
  if (!inside && behind) return;
  if (inside) attn_path_inside_(t, block, inside);
  for (int e = 0; e < seg->n; e++)
    for (int r = seg->g0 * ATTN_GROUP_; r < seg->g1 * ATTN_GROUP_; r++) {
      float *cell = s + e * ATTN_TILE_ + r;
      if (inside >> r & 1)
        *cell = x->s[(e0 + e) * ATTN_TILE_ + r];
      else if (!(behind >> r & 1))
        *cell = 0.0f; /* sees none of these keys */
      if (*cell > top[r]) top[r] = *cell;
    }
}
