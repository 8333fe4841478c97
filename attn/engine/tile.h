/* engine/tile.h owns what the exact-softmax engine works on: the problem (attn_softmax_), the
 * memory of a worker and the lanes of a tile.
 *
 * A tile is up to ATTN_TILE_ query rows that read the same keys and values: rows of one head, or
 * of all heads of a group, query by query. */

enum { ATTN_PIECES_ = 10 };

typedef struct attn_softmax_ {
  const attn_table_ *table;
  attn_tensor o, q, k, v, lse, map; /* lse and map: data null = absent */
  attn_mask mask, bias;
  const int32_t *kv_len, *q_len;
  const float *alibi, *sinks;
  int softmax_one;
  float softcap;              /* log2 units, 0 = off */
  float scale_hi, scale_lo;   /* scale * log2 e, folded into the packed queries (E3) */
  int64_t q_off, left, right; /* row i sees keys i+q_off-left .. i+q_off+right */
  int64_t group;              /* query heads that share key and value heads */
  int64_t tiles;              /* per (batch, group) */
  int64_t bytes;              /* workspace of one worker, cut at these offsets */
  int64_t offset[ATTN_PIECES_];
  char *workspace;
} attn_softmax_;

/* What one worker works in. */
typedef struct attn_scratch_ {
  float *qt;            /* [dk][tile] packed queries */
  float *s;             /* [block][tile] scores, then weights */
  float *ot;            /* [dv][tile] accumulator */
  float *k, *v;         /* [block][dk], [block][dv] converted rows */
  float *bias, *allow;  /* [block][tile] */
  unsigned char *bytes; /* [tile][block] one expanded bit mask */
  unsigned char *hit;   /* [block][tile] which lanes read a value row that is not finite */
  int64_t *pairs;
} attn_scratch_;

/* Fills a->offset; the total is one worker's workspace, INT64_MAX when it cannot be. */
ATTN_FUNC_ int64_t attn_scratch_plan_(attn_softmax_ *a) {
  const int64_t tile = ATTN_TILE_, block = ATTN_BLOCK_, f = sizeof(float);
  const int64_t cells = attn_piece_(block * tile, f), none = 0;
  const int64_t size[ATTN_PIECES_] = {
      attn_piece_(attn_mul_(a->q.dim, tile), f),
      cells,
      attn_piece_(attn_mul_(a->v.dim, tile), f),
      a->k.dtype == ATTN_F32 ? none : attn_piece_(attn_mul_(a->k.dim, block), f),
      attn_piece_(attn_mul_(a->v.dim, block), f),
      a->bias.kind == ATTN_MASK_NONE ? none : cells,
      a->mask.kind == ATTN_MASK_NONE ? none : cells,
      a->mask.kind == ATTN_MASK_NONE ? none : attn_piece_(block * tile, 1),
      attn_piece_(block * tile, 1),
      attn_piece_(1, sizeof(int64_t))};
  int64_t total = 0;
  for (int i = 0; i < ATTN_PIECES_; i++) a->offset[i] = total, total = attn_add_(total, size[i]);
  return total;
}

ATTN_FUNC_ void attn_scratch_cut_(const attn_softmax_ *a, int worker, attn_scratch_ *w) {
  char *at = a->workspace + worker * a->bytes;
  w->qt = (float *)(void *)(at + a->offset[0]);
  w->s = (float *)(void *)(at + a->offset[1]);
  w->ot = (float *)(void *)(at + a->offset[2]);
  w->k = (float *)(void *)(at + a->offset[3]);
  w->v = (float *)(void *)(at + a->offset[4]);
  w->bias = (float *)(void *)(at + a->offset[5]);
  w->allow = (float *)(void *)(at + a->offset[6]);
  w->bytes = (unsigned char *)(at + a->offset[7]);
  w->hit = (unsigned char *)(at + a->offset[8]);
  w->pairs = (int64_t *)(void *)(at + a->offset[9]);
}

/* The lanes of one tile. */
typedef struct attn_tile_ {
  const attn_softmax_ *a;
  attn_scratch_ w;
  int64_t batch, head_k, head_v;
  int n, groups;                                   /* rows and lane groups in use */
  int careful;                                     /* the second sweep, see attn_tile_clean_ */
  int partial;                                     /* some pair of a visited block is forbidden */
  int64_t lo[ATTN_TILE_], hi[ATTN_TILE_];          /* keys each row may see */
  int64_t pos[ATTN_TILE_];                         /* its key position */
  const char *mask[ATTN_TILE_], *bias[ATTN_TILE_]; /* its mask rows */
  int64_t head[ATTN_TILE_], row[ATTN_TILE_];
  void *out[ATTN_TILE_];
  float m[ATTN_TILE_], l[ATTN_TILE_], alpha[ATTN_TILE_], top[ATTN_TILE_], spare[ATTN_TILE_];
  float scale[ATTN_TILE_], slope[ATTN_TILE_], rel[ATTN_TILE_], from[ATTN_TILE_], to[ATTN_TILE_];
  struct {
    int64_t lo_min, lo_max, hi_min, hi_max; /* over the rows that see a key; empty: all 0 */
    int ragged;                             /* some row sees no key */
  } g[ATTN_TILE_ / ATTN_GROUP_];
} attn_tile_;

ATTN_FUNC_ char *attn_at_(const attn_tensor *t, int64_t b, int64_t h, int64_t i) {
  return (char *)t->data +
         (b * t->stride_batch + h * t->stride_head + i * t->stride_len) * attn_size_(t->dtype);
}

/* Row i of a mask: extents of 1 broadcast. */
ATTN_FUNC_ const char *attn_mask_at_(const attn_mask *m, int64_t b, int64_t h, int64_t i) {
  int64_t e = (m->batch > 1 ? b : 0) * m->stride_batch + (m->heads > 1 ? h : 0) * m->stride_head +
              (m->q_len > 1 ? i : 0) * m->stride_q;
  return (const char *)m->data + e * (m->kind == ATTN_MASK_ADD ? attn_size_(m->dtype) : 1);
}

static int64_t attn_clamp_(int64_t x, int64_t lo, int64_t hi) {
  return x < lo ? lo : x > hi ? hi : x;
}

/* Places rows in lanes. Lanes that have no row compute on zeros and are never stored. */
ATTN_FUNC_ void attn_tile_lanes_(attn_tile_ *t, int64_t unit, int64_t tile) {
  const attn_softmax_ *a = t->a;
  const int64_t groups = a->q.heads / a->group, rows = a->group * a->q.len;
  const void *q[ATTN_TILE_];
  const int64_t first = tile * ATTN_TILE_, head0 = unit % groups * a->group;
  t->batch = unit / groups;
  t->head_k = head0 / (a->q.heads / a->k.heads);
  t->head_v = head0 / (a->q.heads / a->v.heads);
  t->n = rows - first < ATTN_TILE_ ? (int)(rows - first) : ATTN_TILE_;
  t->groups = (t->n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  int64_t keys = a->kv_len ? a->kv_len[t->batch] : a->k.len;
  int64_t queries = a->q_len ? a->q_len[t->batch] : a->q.len;
  memset(t->g, 0, sizeof t->g);
  for (int r = 0; r < ATTN_TILE_; r++) t->slope[r] = t->rel[r] = t->spare[r] = 0.0f;
  for (int r = t->n; r < ATTN_TILE_; r++)
    t->lo[r] = 0, t->hi[r] = INT64_MAX, t->pos[r] = 0, t->head[r] = 0;
  /* neighbours in lanes are neighbours in position, whatever the group */
  int64_t i = first / a->group - 1, h = head0 + a->group - 1;
  if (first % a->group) i++, h = head0 + first % a->group - 1;
  for (int r = 0; r < t->n; r++) {
    if (++h == head0 + a->group) h = head0, i++;
    t->row[r] = i, t->head[r] = h;
    const int64_t p = t->pos[r] = i + a->q_off;
    t->lo[r] = attn_clamp_(p - a->left, 0, keys);
    t->hi[r] = i < queries ? attn_clamp_(p + a->right + 1, 0, keys) : 0;
    q[r] = attn_at_(&a->q, t->batch, h, i);
    t->out[r] = attn_at_(&a->o, t->batch, h, i);
    if (a->mask.kind) t->mask[r] = attn_mask_at_(&a->mask, t->batch, h, i);
    if (a->bias.kind) t->bias[r] = attn_mask_at_(&a->bias, t->batch, h, i);
    if (a->alibi) t->slope[r] = -attn_to_log2_(a->alibi[h]);
    int g = r / ATTN_GROUP_;
    if (t->lo[r] >= t->hi[r]) {
      t->lo[r] = t->hi[r] = 0, t->g[g].ragged = 1;
    } else if (t->g[g].hi_max == 0) {
      t->g[g].lo_min = t->g[g].lo_max = t->lo[r], t->g[g].hi_min = t->g[g].hi_max = t->hi[r];
    } else {
      if (t->lo[r] < t->g[g].lo_min) t->g[g].lo_min = t->lo[r];
      if (t->lo[r] > t->g[g].lo_max) t->g[g].lo_max = t->lo[r];
      if (t->hi[r] < t->g[g].hi_min) t->g[g].hi_min = t->hi[r];
      if (t->hi[r] > t->g[g].hi_max) t->g[g].hi_max = t->hi[r];
    }
  }
  a->table->pack(t->w.qt, q, t->n, a->q.dim, (int)a->q.dtype, a->scale_hi, a->scale_lo);
}
