/* engine/tile.h owns the memory of a worker and the lanes of a tile.
 *
 * A tile is up to ATTN_TILE_ query rows that read the same keys and values: rows of one head, or
 * of all heads of a group, query by query. */

/* Which keys the gathered rows in a worker's memory belong to: tiles of one residue class share
 * them. n = 0: to none. */
typedef struct attn_held_ {
  int64_t batch, head_k, head_v;
  int n;
  int32_t index[ATTN_BLOCK_];
} attn_held_;

/* Keys between two looks at how long the lists of candidates are. */
enum { ATTN_CHUNK_ = 64 };

/* Codes of the queries and of a block of keys: engine/codes.h. */
typedef struct attn_codes_ {
  float scale[ATTN_TILE_],
      sums[ATTN_TILE_]; /* of a query; 0: it has none; the sum of its numbers */
  int32_t raised[ATTN_TILE_];
  uint64_t bad[4],
      any;   /* queries whose products with keys of a zone, or of none, are those of f32 */
  int zones; /* of keys, whose centers are known */
  float with[3][ATTN_TILE_]; /* products with these */
  float key_scale[ATTN_BLOCK_], key_some[ATTN_BLOCK_];
} attn_codes_;

/* What one worker works in. */
typedef struct attn_scratch_ {
  float *qt;                    /* [dk][tile] packed queries */
  float *s;                     /* [block][tile] scores, then weights */
  float *ot, *far;              /* [dv][tile] accumulator, and [2] those of earlier stretches */
  float *k, *v;                 /* [block][dk], [block][dv] converted or gathered rows */
  float *bias, *dot;            /* [block][tile] */
  unsigned char *hit;           /* [block][tile] which lanes read a value row that is not finite */
  float *rows;                  /* [tile][ATTN_ROOM_] scores by row */
  int32_t *index;               /* [2][tile][block] key lists, and where they are in the caller's */
  float *q_rows, *o_rows;       /* [2][tile][dk], [tile][dv] */
  float *xl_qt, *xl_dots;       /* [dk][tile], [ATTN_ROOM_][tile] */
  float *rel_queries;           /* [1 + dk + 80][tile]: factors, keys in lanes, their dots */
  float *rel_keys, *rel_values; /* [distance][tile]: dots with each vector, weights on each */
  float *rel_far;               /* [2] of earlier stretches */
  unsigned char *rel_hit;       /* [distance][tile] which lanes have a key at it */
  float *labels;                /* [label][tile] dots with each vector */
  attn_held_ *held;
  int64_t *pairs;
  float *row_q, *row_s; /* [ATTN_ROWS_][dk, ATTN_ROWS_ROOM_], rows padded */
  float *row_o;         /* [2][ATTN_ROWS_][dv]: what is summed, and the block that is being added */
  float *merge_o, *merge_w; /* [tile][dv], [split] */
  int32_t *merge_i;         /* [split] */
  attn_topk_ *best;         /* the best keys of each row so far */
  uint64_t *best_list, *best_spare;
  uint32_t *low; /* engine/low.h */
  attn_codes_ *codes;
  float *code_q, *code_k;      /* [dk][tile], [block][dk]: room for codes as floats */
  float *code_s, *code_center; /* [block][tile] scores of single queries, [4][dk]: the last is 0 */
  float *reshape;              /* what reshapes keeps of a tile */
  float *factors;              /* [block][tile] of one rank */
  char *own;                   /* what a mechanism's own items keep */
} attn_scratch_;

/* Keys of a stretch. What a row has summed over them meets the sums of the stretches before as a whole:
 * a chain over all blocks would drift with the length of the row. A multiple of ATTN_SPLIT_; part of the
 * bits of every result. */
#define ATTN_STRETCH_ 1024

/* Distances between a lane group and a block of keys, rounded up. */
#define ATTN_ROOM_ (ATTN_BLOCK_ + ATTN_GROUP_)

/* Distances between a tile and a group of keys, rounded up. */
#define ATTN_AROUND_ (ATTN_TILE_ + ATTN_GROUP_)

/* Distances that a tile needs of a table of relative vectors. */
ATTN_FUNC_ int64_t attn_relative_rows_(const attn_softmax_ *a) {
  const int64_t len =
      ATTN_PART_(TERMS, a->relative.keys.data) ? a->relative.keys.len : a->relative.values.len;
  const int64_t most = attn_add_(a->q.len, a->k.len);
  return len < most ? len : most;
}

/* Room for a row of numbers in the order of kernels/decode.h. */
ATTN_FUNC_ int64_t attn_row_width_(int64_t dim) { return attn_add_(dim, 31) & ~(int64_t)31; }

/* Powers of two of rows of f16 (engine/powers.h): of queries, keys and values; what sums over values are times. */
typedef struct attn_tile_powers_ {
  int any_q, any_k;
  int16_t q[ATTN_TILE_], k[ATTN_BLOCK_], v[ATTN_BLOCK_], sum[ATTN_TILE_];
  float unit[2 * ATTN_TILE_], by[ATTN_BLOCK_];
} attn_tile_powers_;

/* Memory of products of bf16 and f16, in pairs: of queries, [dk / 2][tile]; of weights, [block / 2][tile]; of
 * values, [block / 2][dv]; rows of keys; powers of f16. */
typedef struct attn_low_plan_ {
  int64_t weights, values, keys, powers, bytes; /* where they begin, in pairs */
  int64_t key_width, value_width; /* numbers of a row of keys, pairs of a row of values */
} attn_low_plan_;

ATTN_FUNC_ attn_low_plan_ attn_low_plan_of_(const attn_softmax_ *a) {
  const int64_t tile = ATTN_TILE_, half = ATTN_BLOCK_ / 2 + 1; /* ends of a block may be odd */
  attn_low_plan_ x;
  x.key_width = attn_add_(a->q.dim, ATTN_GROUP_ - 1) / ATTN_GROUP_ * ATTN_GROUP_;
  x.value_width = attn_add_(a->v.dim, ATTN_GROUP_ - 1) / ATTN_GROUP_ * ATTN_GROUP_;
  x.weights = attn_mul_(x.key_width / 2, tile);
  x.values = attn_add_(x.weights, half * tile);
  x.keys = attn_add_(x.values, attn_mul_(x.value_width, half));
  x.powers = attn_add_(x.keys, attn_mul_(x.key_width, half));
  const int64_t powers = a->low->peaks ? (int64_t)(sizeof(attn_tile_powers_) / 4) : 0;
  x.bytes = attn_piece_(attn_add_(x.powers, powers), sizeof(uint32_t));
  return x;
}

/* Floats from a row of codes to the next. */
ATTN_FUNC_ int64_t attn_codes_width_(const attn_softmax_ *a) {
  return attn_add_(a->q.dim, ATTN_GROUP_ - 1) / ATTN_GROUP_ * ATTN_GROUP_;
}

/* A piece behind those that are there. */
ATTN_FUNC_ void attn_scratch_put_(attn_softmax_ *a, int piece, int64_t bytes) {
  a->offset[piece] = a->bytes;
  a->bytes = attn_add_(a->bytes, bytes);
}

/* Fills a->offset of the pieces that are wanted; the total is one worker's memory, INT64_MAX when it cannot be. */
ATTN_FUNC_ int64_t attn_scratch_plan_(attn_softmax_ *a) {
  const int64_t tile = ATTN_TILE_, block = ATTN_BLOCK_, f = sizeof(float);
  const int64_t cells = attn_piece_(block * tile, f), room = attn_piece_(ATTN_ROOM_ * tile, f);
  const int64_t dk = attn_piece_(a->q.dim, f * tile), dv = attn_piece_(a->v.dim, f * tile);
  const int gathers = ATTN_PART_(PATTERN, a->plan) || ATTN_PART_(EDGES, a->edges);
  const int xl = ATTN_PART_(TERMS, a->xl.table.data) != NULL;
  const int queries = ATTN_PART_(TERMS, a->relative.queries.data) != NULL;
  const int best = ATTN_PART_(CONTENT, a->choice) && a->choice->k;
  a->bytes = 0;
  attn_clear_(a->offset, sizeof a->offset);
  if (!a->by_row || a->seq) {
    attn_scratch_put_(a, ATTN_P_QT_, dk);
    attn_scratch_put_(a, ATTN_P_OT_, dv);
  }
  if (!a->few || a->seq) attn_scratch_put_(a, ATTN_P_FAR_, attn_mul_(dv, 2));
  attn_scratch_put_(a, ATTN_P_S_, cells);
  const attn_reshape_ *reshape = ATTN_PART_(WEIGHTS_, a->reshape);
  if (gathers || a->k.dtype != ATTN_F32 || (a->seq && a->seq->cached) || (reshape && reshape->keys))
    attn_scratch_put_(a, ATTN_P_K_, attn_piece_(attn_rows_of_(a, &a->k)->dim, f * block));
  attn_scratch_put_(a, ATTN_P_V_, attn_piece_(attn_rows_of_(a, &a->v)->dim, f * block));
  if (gathers || a->bias.kind || a->modify_weights || ATTN_PART_(COMPOSED, a->addends))
    attn_scratch_put_(a, ATTN_P_BIAS_, cells);
  if (gathers || xl || queries || ATTN_PART_(COMPOSED, a->addends))
    attn_scratch_put_(a, ATTN_P_DOT_, cells);
  attn_scratch_put_(a, ATTN_P_HIT_, attn_piece_(block * tile, 1));
  if (gathers || xl || queries || best) {
    attn_scratch_put_(a, ATTN_P_ROWS_, room);
    attn_scratch_put_(a, ATTN_P_INDEX_, 2 * cells);
  }
  if (gathers || xl) attn_scratch_put_(a, ATTN_P_Q_ROWS_, attn_mul_(dk, 2));
  if (gathers || best) attn_scratch_put_(a, ATTN_P_O_ROWS_, dv);
  if (xl) {
    attn_scratch_put_(a, ATTN_P_XL_QT_, dk);
    attn_scratch_put_(a, ATTN_P_XL_DOTS_, attn_piece_((block + tile) * tile, f));
  }
  if (queries)
    attn_scratch_put_(a, ATTN_P_REL_QUERIES_,
                      attn_piece_(attn_add_(a->q.dim, ATTN_AROUND_ + 1), f * tile));
  if (ATTN_PART_(TERMS, a->relative.keys.data) || ATTN_PART_(TERMS, a->relative.values.data)) {
    const int64_t rows = attn_relative_rows_(a), relative = attn_piece_(rows, f * tile);
    if (a->relative.keys.data) attn_scratch_put_(a, ATTN_P_REL_KEYS_, relative);
    if (a->relative.values.data) {
      attn_scratch_put_(a, ATTN_P_REL_VALUES_, relative);
      if (!a->few || a->seq) attn_scratch_put_(a, ATTN_P_REL_FAR_, attn_piece_(rows, 2 * f * tile));
      attn_scratch_put_(a, ATTN_P_REL_HIT_, attn_piece_(rows, tile));
    }
  }
  if (ATTN_PART_(TERMS, a->labels.label))
    attn_scratch_put_(a, ATTN_P_LABELS_, attn_piece_(a->labels.table.len, f * tile));
  attn_scratch_put_(a, ATTN_P_HELD_, attn_piece_(1, sizeof(attn_held_)));
  attn_scratch_put_(a, ATTN_P_PAIRS_, attn_piece_(1, sizeof(int64_t)));
  if (a->by_row) {
    const int64_t rows = f * ATTN_ROWS_;
    attn_scratch_put_(a, ATTN_P_ROW_Q_, attn_piece_(attn_row_width_(a->q.dim), rows));
    attn_scratch_put_(a, ATTN_P_ROW_S_, attn_piece_(ATTN_ROWS_ROOM_, rows));
    attn_scratch_put_(a, ATTN_P_ROW_O_, attn_piece_(attn_row_width_(a->v.dim), 2 * rows));
  }
  if (a->few && a->splits > 1) {
    attn_scratch_put_(a, ATTN_P_MERGE_O_, dv);
    attn_scratch_put_(a, ATTN_P_MERGE_W_, attn_piece_(a->splits, f));
    attn_scratch_put_(a, ATTN_P_MERGE_I_, attn_piece_(a->splits, sizeof(int32_t)));
  }
  if (best) {
    const int64_t most = attn_add_(attn_mul_(2, a->choice->k), ATTN_CHUNK_);
    attn_scratch_put_(a, ATTN_P_BEST_, attn_piece_(1, sizeof(attn_topk_)));
    attn_scratch_put_(a, ATTN_P_BEST_LIST_, attn_piece_(most, 8 * tile));
    attn_scratch_put_(a, ATTN_P_BEST_SPARE_, attn_piece_(most, 8));
  }
  if (reshape && reshape->tile_bytes)
    attn_scratch_put_(a, ATTN_P_RESHAPE_, attn_piece_(reshape->tile_bytes, 1));
  if (ATTN_PART_(LATENT, a->factored)) attn_scratch_put_(a, ATTN_P_FACTORS_, cells);
  if (a->own_bytes) attn_scratch_put_(a, ATTN_P_OWN_, attn_piece_(a->own_bytes, 1));
  if (ATTN_PART_(LOW, a->low)) attn_scratch_put_(a, ATTN_P_LOW_, attn_low_plan_of_(a).bytes);
  if (ATTN_PART_(LOW, a->codes)) {
    const int64_t width = attn_codes_width_(a);
    attn_scratch_put_(a, ATTN_P_CODES_, attn_piece_(1, sizeof(attn_codes_)));
    attn_scratch_put_(a, ATTN_P_CODE_Q_, attn_piece_(width, f * tile));
    attn_scratch_put_(a, ATTN_P_CODE_K_, attn_piece_(width, f * block));
    attn_scratch_put_(a, ATTN_P_CODE_S_, cells);
    attn_scratch_put_(a, ATTN_P_CODE_CENTER_, attn_piece_(width, 4 * f));
  }
  return a->bytes;
}

ATTN_FUNC_ void attn_scratch_cut_(const attn_softmax_ *a, int worker, attn_scratch_ *w) {
  char *at = a->workspace + worker * a->bytes;
#define ATTN_CUT_(member, type, piece) w->member = (type *)(void *)(at + a->offset[piece])
  ATTN_CUT_(qt, float, ATTN_P_QT_);
  ATTN_CUT_(s, float, ATTN_P_S_);
  ATTN_CUT_(ot, float, ATTN_P_OT_);
  ATTN_CUT_(far, float, ATTN_P_FAR_);
  ATTN_CUT_(k, float, ATTN_P_K_);
  ATTN_CUT_(v, float, ATTN_P_V_);
  ATTN_CUT_(bias, float, ATTN_P_BIAS_);
  ATTN_CUT_(dot, float, ATTN_P_DOT_);
  ATTN_CUT_(hit, unsigned char, ATTN_P_HIT_);
  ATTN_CUT_(rows, float, ATTN_P_ROWS_);
  ATTN_CUT_(index, int32_t, ATTN_P_INDEX_);
  ATTN_CUT_(q_rows, float, ATTN_P_Q_ROWS_);
  ATTN_CUT_(o_rows, float, ATTN_P_O_ROWS_);
  ATTN_CUT_(xl_qt, float, ATTN_P_XL_QT_);
  ATTN_CUT_(xl_dots, float, ATTN_P_XL_DOTS_);
  ATTN_CUT_(rel_queries, float, ATTN_P_REL_QUERIES_);
  ATTN_CUT_(rel_keys, float, ATTN_P_REL_KEYS_);
  ATTN_CUT_(rel_values, float, ATTN_P_REL_VALUES_);
  ATTN_CUT_(rel_far, float, ATTN_P_REL_FAR_);
  ATTN_CUT_(rel_hit, unsigned char, ATTN_P_REL_HIT_);
  ATTN_CUT_(labels, float, ATTN_P_LABELS_);
  ATTN_CUT_(held, attn_held_, ATTN_P_HELD_);
  ATTN_CUT_(pairs, int64_t, ATTN_P_PAIRS_);
  ATTN_CUT_(row_q, float, ATTN_P_ROW_Q_);
  ATTN_CUT_(row_s, float, ATTN_P_ROW_S_);
  ATTN_CUT_(row_o, float, ATTN_P_ROW_O_);
  ATTN_CUT_(merge_o, float, ATTN_P_MERGE_O_);
  ATTN_CUT_(merge_w, float, ATTN_P_MERGE_W_);
  ATTN_CUT_(merge_i, int32_t, ATTN_P_MERGE_I_);
  ATTN_CUT_(best, attn_topk_, ATTN_P_BEST_);
  ATTN_CUT_(best_list, uint64_t, ATTN_P_BEST_LIST_);
  ATTN_CUT_(best_spare, uint64_t, ATTN_P_BEST_SPARE_);
  ATTN_CUT_(low, uint32_t, ATTN_P_LOW_);
  ATTN_CUT_(codes, attn_codes_, ATTN_P_CODES_);
  ATTN_CUT_(code_q, float, ATTN_P_CODE_Q_);
  ATTN_CUT_(code_k, float, ATTN_P_CODE_K_);
  ATTN_CUT_(code_s, float, ATTN_P_CODE_S_);
  ATTN_CUT_(code_center, float, ATTN_P_CODE_CENTER_);
  ATTN_CUT_(reshape, float, ATTN_P_RESHAPE_);
  ATTN_CUT_(factors, float, ATTN_P_FACTORS_);
  ATTN_CUT_(own, char, ATTN_P_OWN_);
#undef ATTN_CUT_
}

/* Before the first item: the workers have counted nothing and hold no keys. */
ATTN_FUNC_ void attn_scratch_open_(const attn_softmax_ *a, int workers) {
  for (char *at = a->workspace; workers > 0; workers--, at += a->bytes) {
    *(int64_t *)(void *)(at + a->offset[ATTN_P_PAIRS_]) = 0;
    ((attn_held_ *)(void *)(at + a->offset[ATTN_P_HELD_]))->n = 0;
  }
}

/* Scores that they have computed since. */
ATTN_FUNC_ int64_t attn_scratch_pairs_(const attn_softmax_ *a, int workers) {
  int64_t pairs = 0;
  for (const char *at = a->workspace; workers > 0; workers--, at += a->bytes)
    pairs += *(const int64_t *)(const void *)(at + a->offset[ATTN_P_PAIRS_]);
  return pairs;
}

/* The lanes of one tile. */
typedef struct attn_tile_ {
  const attn_softmax_ *a;
  attn_scratch_ w;
  const attn_plan_tile_ *plan; /* its runs or lists, when there is a schedule */
  const attn_plan_tile_ *next; /* the tile that comes after it, or null */
  const int32_t *keys;         /* in place of its runs: keys that all of its rows see, ascending */
  int64_t keys_n;
  int asked; /* rows of that one which are on their way */
  int64_t batch, head_k, head_v;
  int64_t key0, key1; /* the keys of a work item */
  int scored;         /* w.s holds the dot products already */
  const float *given; /* scores of the rows: in place of products */
  float *
      before; /* [block][tile], or null: scores as the caller's function gets them, in their unit */
  int64_t given_stride;                             /* from one row to the next */
  attn_kv_rows_ rows_k, rows_v;                     /* a block of few queries */
  int n, groups;                                    /* rows and lane groups in use */
  int lined;                                        /* consecutive rows of one head */
  int careful;                                      /* the second sweep, see attn_tile_clean_ */
  int rel_careful;                                  /* likewise, see attn_tile_relative_ */
  int partial;                                      /* some pair of a visited block is forbidden */
  int64_t lo[ATTN_TILE_], hi[ATTN_TILE_];           /* keys each row may see, or in this part */
  int64_t near[ATTN_TILE_];                         /* where the second part begins: see keep */
  int64_t wide_lo[ATTN_TILE_], wide_hi[ATTN_TILE_]; /* both parts */
  int64_t pos[ATTN_TILE_];                          /* its key position */
  const char *mask[ATTN_TILE_], *bias[ATTN_TILE_];  /* its mask rows */
  int64_t head[ATTN_TILE_], row[ATTN_TILE_];
  void *out[ATTN_TILE_];
  float sum[ATTN_TILE_],
      inverse[ATTN_TILE_]; /* of a row whose weights are changed: l of all keys, 1/l */
  float m[ATTN_TILE_], l[ATTN_TILE_], alpha[ATTN_TILE_], top[ATTN_TILE_], spare[ATTN_TILE_];
  float scale[ATTN_TILE_], slope[ATTN_TILE_], rel[ATTN_TILE_], from[ATTN_TILE_], to[ATTN_TILE_];
  float floor[ATTN_TILE_]; /* of what is chosen */
  float late_by[ATTN_TILE_], late_hi[ATTN_TILE_], late_lo[ATTN_TILE_], late_top[ATTN_TILE_];
  float shift[ATTN_TILE_];    /* of a reshaped row */
  float gates[2][ATTN_TILE_]; /* summed over the later keys of a row, in two parts */
  float far_m[ATTN_TILE_];    /* what w.far holds */
  float far_l[ATTN_TILE_], far_low[ATTN_TILE_];
  int64_t stretch; /* the one that is being summed; -1: none yet */
  int folded;      /* w.far holds something */
  int64_t blocks;  /* of few queries, so far */
  uint64_t done;   /* rows whose output is there already */
  float center[ATTN_TILE_], precision[ATTN_TILE_], count[ATTN_TILE_];
  float start[ATTN_TILE_], edge[ATTN_TILE_]; /* of an adaptive span, see attn_tile_span_ */
  int64_t last[ATTN_TILE_];
  int32_t index[ATTN_TILE_]; /* of the lanes in an array by distance */
  int64_t flat;              /* keys from here on have a ramp of 1 in every lane */
  int64_t xl_next;           /* the key that w.xl_dots goes on with */
  int64_t rel_first;         /* distance of the first row of w.rel_keys and w.rel_values */
  int64_t rel_rows;
  struct {
    int64_t lo_min, lo_max, hi_min, hi_max; /* over the rows that see a key; empty: all 0 */
    int64_t pos_min, pos_max;
    int ragged; /* some row sees no key */
  } g[ATTN_TILE_ / ATTN_GROUP_];
} attn_tile_;

/* The powers of f16; null where nothing is. */
ATTN_FUNC_ attn_tile_powers_ *attn_low_powers_(const attn_tile_ *t) {
  const attn_softmax_ *a = t->a;
  if (!ATTN_PART_(LOW, a->low) || !a->low->peaks) return NULL;
  return (attn_tile_powers_ *)(void *)(t->w.low + attn_low_plan_of_(a).powers);
}

/* 0, 1, .. as floats: the keys of a block of consecutive ones, counted from its base; joined runs of
 * a schedule may pass the next one */
#define ATTN_COUNT8_(n) n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7
#define ATTN_COUNT32_(n) \
  ATTN_COUNT8_(n), ATTN_COUNT8_(n + 8), ATTN_COUNT8_(n + 16), ATTN_COUNT8_(n + 24)
static const float attn_count_[2 * ATTN_BLOCK_] = {
    ATTN_COUNT32_(0),   ATTN_COUNT32_(32),  ATTN_COUNT32_(64),  ATTN_COUNT32_(96),
    ATTN_COUNT32_(128), ATTN_COUNT32_(160), ATTN_COUNT32_(192), ATTN_COUNT32_(224)};
#undef ATTN_COUNT8_
#undef ATTN_COUNT32_

/* Whether anything is done to scores beside the softmax: few queries by row then have lanes too. */
ATTN_FUNC_ int attn_few_opens_(const attn_softmax_ *a) {
  return a->terms || ATTN_PART_(COMPOSED, a->addends) || attn_late_(a);
}

/* Lanes that hold a row. */
ATTN_FUNC_ uint64_t attn_tile_all_(const attn_tile_ *t) {
  return t->n == ATTN_TILE_ ? ~(uint64_t)0 : ((uint64_t)1 << t->n) - 1;
}

ATTN_UNUSED_ static inline char *attn_at_(const attn_tensor *t, int64_t b, int64_t h, int64_t i) {
  const int64_t e = b * t->stride_batch + h * t->stride_head + i * t->stride_len;
  return (char *)t->data + attn_bytes_(t->dtype, e);
}

/* The scales of the rows from that one on. */
ATTN_FUNC_ attn_rows_scale_ attn_scales_at_(const attn_scales *s, int64_t b, int64_t h, int64_t i) {
  const int64_t e = b * s->stride_batch + h * s->stride_head + i * s->stride_len;
  attn_rows_scale_ r;
  r.scale = s->scale ? s->scale + e : NULL, r.zero = s->zero ? s->zero + e : NULL;
  r.stride = s->stride_len, r.group = s->group;
  return r;
}

/* The same from group c on. */
ATTN_FUNC_ attn_rows_scale_ attn_scales_column_(attn_rows_scale_ r, int64_t c) {
  if (r.scale) r.scale += c;
  if (r.zero) r.zero += c;
  return r;
}

/* Column c of a row of any type; s null = 1. */
ATTN_FUNC_ float attn_number_(const char *row, int64_t c, attn_dtype dtype,
                              const attn_rows_scale_ *s) {
  const unsigned char *byte = (const unsigned char *)row;
  const int64_t g = s && s->group ? c / s->group : 0;
  uint16_t half;
  float x;
  if (dtype == ATTN_F32) {
    memcpy(&x, row + 4 * c, 4);
    return x;
  }
  if (dtype == ATTN_F16 || dtype == ATTN_BF16) {
    memcpy(&half, row + 2 * c, 2);
    return dtype == ATTN_F16 ? attn_from_f16_(half) : attn_from_bf16_(half);
  }
  x = dtype == ATTN_I8   ? (float)((const signed char *)row)[c]
      : dtype == ATTN_I4 ? attn_from_i4_(byte, c)
                         : attn_from_e4m3_(byte[c]);
  if (s && s->zero) x -= s->zero[g];
  return s && s->scale ? x * s->scale[g] : x;
}

/* Row i of a table that is [1, 1 or H, len, dim]. */
ATTN_FUNC_ const float *attn_table_row_(const attn_tensor *t, int64_t h, int64_t i) {
  return (const float *)(const void *)attn_at_(t, 0, t->heads > 1 ? h : 0, i);
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

/* A natural logarithm in score units; -inf stays -inf. */
ATTN_FUNC_ float attn_to_unit_(const attn_softmax_ *a, float x) {
  return x - x != 0.0f ? x : (float)attn_clamp_f64_((double)x * a->unit);
}

/* Where the numbers of row (b, h, i) are in an array [B, H, Tq]. */
ATTN_FUNC_ int64_t attn_row_number_(const attn_softmax_ *a, int64_t b, int64_t h, int64_t i) {
  if (a->seq && a->seq->q) return h * a->seq->rows + a->seq->q[b] + i;
  return (b * a->q.heads + h) * a->q.len + i;
}

/* Which rows a tile holds: rows first .. of a (batch, head group), query by query, */
ATTN_FUNC_ void attn_tile_group_rows_(attn_tile_ *t, int64_t unit, int64_t tile) {
  const attn_softmax_ *a = t->a;
  const int64_t groups = attn_over_(a->q.heads, a->group), rows = a->group * a->q.len;
  const int64_t first = tile * ATTN_TILE_;
  t->batch = attn_over_(unit, groups);
  const int64_t head0 = (unit - t->batch * groups) * a->group;
  t->n = rows - first < ATTN_TILE_ ? (int)(rows - first) : ATTN_TILE_;
  /* neighbours in lanes are neighbours in position, whatever the group */
  int64_t i = attn_over_(first, a->group), h = head0 + (first - i * a->group) - 1;
  if (h < head0) i--, h += a->group;
  for (int r = 0; r < t->n; r++) {
    if (++h == head0 + a->group) h = head0, i++;
    t->row[r] = i, t->head[r] = h;
  }
}

/* or those that a schedule says. */
ATTN_FUNC_ void attn_tile_plan_rows_(attn_tile_ *t, int64_t batch, int64_t head,
                                     const attn_plan_tile_ *tile) {
  const attn_plan_ *plan = ATTN_PART_(PATTERN, t->a->plan);
  const int32_t *row = (const int32_t *)attn_plan_at_(plan, plan->at_row) + tile->row;
  t->plan = tile;
  t->batch = batch, t->n = tile->n;
  for (int r = 0; r < t->n; r++) t->row[r] = row[r], t->head[r] = head;
}
