/* engine/topk.h owns selection: the k best keys of each of up to 64 query rows, by dot product or by
 * distance, over keys that stream past in blocks. No scores are kept but those of one block.
 *
 * A candidate is one 64-bit number, its score in the upper half (in an order-preserving form) and the
 * complement of its index in the lower: candidates are all different, larger is better, equal scores
 * go to the lower index. So the k best are one set, whatever the order of the search and however the
 * keys are divided, and parts can be joined by selecting again.
 *
 * A row collects candidates until it has 2 k, then keeps k of them; from there on only scores above
 * its floor, the worst that was kept, are looked at. */

/* Keys of a block: fewer than for a softmax, so that scores, keys and queries share a cache of 48 KB
 * at width 64; whole strips of the widest kernel. */
enum { ATTN_PICK_ = 48 };

/* The pieces of a worker's memory. */
enum {
  ATTN_K_QT_,
  ATTN_K_S_,
  ATTN_K_WIDE_,
  ATTN_K_ROWS_,
  ATTN_K_LIST_,
  ATTN_K_SPARE_,
  ATTN_K_PIECES_
};

typedef struct attn_topk_ {
  const attn_table_ *table;
  int64_t dim, k, room; /* of a list */
  int by_distance;      /* scores are minus the squared distance; else dot products */
  int unordered;        /* keys do not come in ascending order, or equal ones matter */
  int64_t bytes, offset[ATTN_K_PIECES_];
  float *qt, *s;   /* [dim][tile], [block][tile] */
  float *wide;     /* [block][dim] converted keys */
  float *rows;     /* [tile][dim] queries, for distances */
  uint64_t *list;  /* [tile][room] */
  uint64_t *spare; /* [room] */
  int n, groups;
  int64_t count[ATTN_TILE_];
  int64_t settled[ATTN_TILE_]; /* by distance: candidates from here on are row numbers alone */
  float floor[ATTN_TILE_];
  double norm[ATTN_TILE_];
  const char *keys; /* what is being searched, the index of its first row, and how it is stored */
  int64_t first, stride;
  attn_dtype dtype;
  double slack; /* bound of the relative rounding of scores and norms */
} attn_topk_;

/* ---- candidates -----------------------------------------------------------------------------*/

/* NaN becomes 0, below -inf; the two zeros are one. */
ATTN_FUNC_ uint64_t attn_candidate_(float score, int64_t index) {
  const uint32_t u = attn_to_bits_(score + 0.0f);
  const uint32_t up = score != score ? 0 : u >> 31 ? ~u : u | 0x80000000u;
  return (uint64_t)up << 32 | (uint32_t) ~(uint32_t)index;
}

ATTN_FUNC_ int64_t attn_candidate_index_(uint64_t c) { return (uint32_t) ~(uint32_t)c; }

ATTN_FUNC_ float attn_candidate_score_(uint64_t c) {
  const uint32_t up = (uint32_t)(c >> 32);
  return attn_from_bits_(up == 0 ? 0x7fc00000u : up >> 31 ? up & 0x7fffffffu : ~up);
}

/* Sorts a few numbers, the largest first. */
ATTN_FUNC_ void attn_sort_few_(uint64_t *x, int64_t n) {
  for (int64_t i = 1; i < n; i++) {
    const uint64_t t = x[i];
    int64_t j = i;
    for (; j > 0 && x[j - 1] < t; j--) x[j] = x[j - 1];
    x[j] = t;
  }
}

/* Sorts n numbers, the largest first: runs of 8, then merging; room for n numbers more. */
ATTN_FUNC_ void attn_sort_(uint64_t *x, int64_t n, uint64_t *room) {
  uint64_t *from = x, *to = room;
  for (int64_t r = 0; r < n; r += 8) attn_sort_few_(x + r, n - r < 8 ? n - r : 8);
  for (int64_t width = 8; width < n; width *= 2) {
    for (int64_t r = 0; r < n; r += 2 * width) {
      const int64_t middle = n - r < width ? n : r + width;
      const int64_t end = n - r < 2 * width ? n : r + 2 * width;
      int64_t i = r, j = middle, e = r;
      while (i < middle && j < end) {
        const uint64_t a = from[i], b = from[j];
        const int left = a > b;
        to[e++] = left ? a : b;
        i += left, j += !left;
      }
      while (i < middle) to[e++] = from[i++];
      while (j < end) to[e++] = from[j++];
    }
    uint64_t *t = from;
    from = to, to = t;
  }
  if (from != x) memcpy(x, from, (size_t)n * sizeof *x);
}

/* Sorts indices, the smallest first, where they are: a heap with the largest on top. */
ATTN_FUNC_ void attn_sort_keys_(int32_t *x, int64_t n) {
  for (int64_t root = n / 2, end = n; end > 1;) {
    if (root > 0) {
      root--;
    } else {
      const int32_t top = x[0];
      x[0] = x[--end], x[end] = top;
    }
    const int32_t t = x[root];
    int64_t i = root, child;
    for (; (child = 2 * i + 1) < end; i = child) {
      if (child + 1 < end && x[child + 1] > x[child]) child++;
      if (x[child] <= t) break;
      x[i] = x[child];
    }
    x[i] = t;
  }
}

/* Moves the k largest of n different numbers to the front, the smallest of those to k - 1; room for n
 * numbers more. Quick selection without branches on the numbers: a part is divided into the other
 * array, from both ends. Pivots that halve the range of numbers bound the rounds when guesses are
 * poor. */
ATTN_FUNC_ void attn_select_(uint64_t *x, int64_t n, int64_t k, uint64_t *room) {
  uint64_t *from = x, *to = room;
  int64_t lo = 0, hi = n; /* the k-th is among from[lo .. hi) */
  for (int round = 0; hi - lo > 8; round++) {
    const uint64_t a = from[lo], b = from[lo + (hi - lo) / 2], c = from[hi - 1];
    uint64_t pivot = a > b ? (b > c ? b : a > c ? c : a) : (a > c ? a : b > c ? c : b);
    int64_t i = lo, j = hi - 1;
    if (round >= 24) {
      uint64_t least = a, most = a;
      for (int64_t e = lo; e < hi; e++) {
        least = from[e] < least ? from[e] : least;
        most = from[e] > most ? from[e] : most;
      }
      pivot = least + (most - least) / 2;
    }
    for (int64_t e = lo; e < hi; e++) {
      const uint64_t t = from[e];
      const int above = t > pivot;
      to[i] = t, to[j] = t;
      i += above, j -= !above;
    }
    if (k <= i) {
      hi = i;
    } else {
      if (to != x) memcpy(x + lo, to + lo, (size_t)(i - lo) * sizeof *x);
      lo = i;
    }
    uint64_t *t = from;
    from = to, to = t;
  }
  if (from != x) memcpy(x + lo, from + lo, (size_t)(hi - lo) * sizeof *x);
  attn_sort_few_(x + lo, hi - lo);
}

/* ---- a tile of queries ----------------------------------------------------------------------*/

/* Sets the sizes of t; k at least 1, dtype that of the keys. t->bytes is one worker's memory. */
ATTN_COLD_ void attn_topk_plan_(attn_topk_ *t, const attn_table_ *table, int64_t dim, int64_t k,
                                attn_dtype dtype, int by_distance) {
  const int64_t tile = ATTN_TILE_, block = ATTN_PICK_;
  int64_t size[ATTN_K_PIECES_];
  memset(t, 0, sizeof *t);
  t->table = table, t->dim = dim, t->k = k, t->by_distance = by_distance;
  t->room = attn_add_(attn_mul_(2, k), block);
  t->slack = ((double)dim + 16.0) / 16777216.0;
  size[ATTN_K_QT_] = attn_piece_(attn_mul_(dim, tile), 4);
  size[ATTN_K_S_] = attn_piece_(block * tile, 4);
  size[ATTN_K_WIDE_] = dtype == ATTN_F32 ? 0 : attn_piece_(attn_mul_(dim, block), 4);
  size[ATTN_K_ROWS_] = by_distance ? attn_piece_(attn_mul_(dim, tile), 4) : 0;
  size[ATTN_K_LIST_] = attn_piece_(attn_mul_(t->room, tile), 8);
  size[ATTN_K_SPARE_] = attn_piece_(t->room, 8);
  for (int i = 0; i < ATTN_K_PIECES_; i++)
    t->offset[i] = t->bytes, t->bytes = attn_add_(t->bytes, size[i]);
}

/* Starts with n rows of queries of the given type; sign: 1, -1 for the smallest dot products, 0 for
 * all the same. */
ATTN_FUNC_ void attn_topk_open_(attn_topk_ *t, char *memory, const void *const *rows, int n,
                                attn_dtype dtype, float sign) {
  t->qt = (float *)(void *)(memory + t->offset[ATTN_K_QT_]);
  t->s = (float *)(void *)(memory + t->offset[ATTN_K_S_]);
  t->wide = (float *)(void *)(memory + t->offset[ATTN_K_WIDE_]);
  t->rows = (float *)(void *)(memory + t->offset[ATTN_K_ROWS_]);
  t->list = (uint64_t *)(void *)(memory + t->offset[ATTN_K_LIST_]);
  t->spare = (uint64_t *)(void *)(memory + t->offset[ATTN_K_SPARE_]);
  t->n = n, t->groups = (n + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  t->table->pack(t->qt, rows, n, t->dim, (int)dtype, sign, sign * attn_least_(1.0f));
  for (int r = 0; r < ATTN_TILE_; r++) t->count[r] = t->settled[r] = 0, t->floor[r] = -INFINITY;
  for (int r = 0; t->by_distance && r < n; r++) {
    float *q = t->rows + r * t->dim;
    t->table->widen(q, rows[r], 0, NULL, 1, t->dim, dtype, NULL);
    t->norm[r] = 0.0;
    for (int64_t c = 0; c < t->dim; c++) t->norm[r] += (double)q[c] * (double)q[c];
  }
}

/* The next float above or below a finite one. */
ATTN_FUNC_ float attn_step_(float x, int up) {
  const uint32_t u = attn_to_bits_(x);
  if (x == 0.0f) return attn_from_bits_(up ? 1u : 0x80000001u);
  return attn_from_bits_((x > 0.0f) == up ? u + 1 : u - 1);
}

/* Distances of rows with larger squared norms are not guessed but computed. */
#define ATTN_NORM_MOST_ 1e37

/* Row numbers become candidates, with their distances. */
ATTN_FUNC_ void attn_topk_settle_(attn_topk_ *t, int r) {
  uint64_t *list = t->list + r * t->room;
  const float *q = t->by_distance ? t->rows + r * t->dim : NULL;
  int32_t pick[ATTN_PICK_];
  float x[ATTN_PICK_];
  if (t->by_distance)
    for (int64_t c = t->settled[r]; c < t->count[r]; c += ATTN_PICK_) {
      const int64_t n = t->count[r] - c < ATTN_PICK_ ? t->count[r] - c : (int64_t)ATTN_PICK_;
      for (int64_t e = 0; e < n; e++) pick[e] = (int32_t)list[c + e];
      if (t->dtype == ATTN_F32) {
        const float *keys = (const float *)(const void *)t->keys;
        attn_on_(select, t->table)->squares(x, q, keys, t->stride, pick, n, t->dim);
      } else {
        t->table->widen(t->wide, t->keys, t->stride, pick, n, t->dim, t->dtype, NULL);
        attn_on_(select, t->table)->squares(x, q, t->wide, t->dim, NULL, n, t->dim);
      }
      for (int64_t e = 0; e < n; e++) list[c + e] = attn_candidate_(-x[e], t->first + pick[e]);
    }
  t->settled[r] = t->count[r];
}

/* Keeps the k best of row r. Its floor: no score below it can be among them.
 *
 * By distance the score of the scan is q.key - |key|^2 / 2, and -distance is twice that less |q|^2.
 * slack |q|^2 and slack |key|^2 bound what rounding does to it, and slack times the distance what it
 * does to the sum of squares; tiny, what underflow does to either. */
ATTN_FUNC_ void attn_topk_keep_(attn_topk_ *t, int r) {
  uint64_t *list = t->list + r * t->room;
  attn_topk_settle_(t, r);
  if (t->count[r] < t->k) return;
  attn_select_(list, t->count[r], t->k, t->spare);
  t->count[r] = t->settled[r] = t->k;
  const float worst = attn_candidate_score_(list[t->k - 1]);
  t->floor[r] = -INFINITY;
  if (t->by_distance) {
    const double tiny = ((double)t->dim + 16.0) * 1e-37;
    const double x = t->norm[r] * (0.5 - t->slack) + (double)worst * (0.5 + t->slack) - tiny;
    if (t->norm[r] < ATTN_NORM_MOST_ && t->slack < 0.1 && x > -1e38 && x < 1e38)
      t->floor[r] = attn_step_((float)x, 0);
  } else if (worst < INFINITY) {
    t->floor[r] = worst == -INFINITY ? -FLT_MAX : t->unordered ? worst : attn_step_(worst, 1);
  }
}

/* What the scan adds to the scores of n keys, by distance. */
ATTN_FUNC_ void attn_topk_norms_(const attn_topk_ *t, float *add, const float *k, int64_t stride,
                                 int64_t n) {
  const float half = (float)(0.5 - t->slack);
  attn_on_(select, t->table)->squares(add, NULL, k, stride, NULL, n, t->dim);
  for (int64_t j = 0; j < n; j++)
    add[j] = add[j] < (float)ATTN_NORM_MOST_ ? attn_step_(-add[j] * half, 1) : INFINITY;
}

/* Takes the scores of keys that most rows take, row by row and without a branch. */
ATTN_FUNC_ void attn_topk_most_(attn_topk_ *t, const uint64_t *lanes, int64_t n, int64_t from) {
  for (int r = 0; r < t->n; r++) {
    uint64_t *list = t->list + r * t->room;
    const float *s = t->s + r;
    int64_t at = t->count[r];
    for (int64_t j = 0; j < n; j++) {
      list[at] = attn_candidate_(s[j * ATTN_TILE_], t->first + from + j);
      at += (int64_t)(lanes[j] >> r & 1);
    }
    t->count[r] = at;
  }
}

/* Takes the scores of n keys into the lists; they are rows `from` .. of what is searched. */
ATTN_FUNC_ void attn_topk_take_(attn_topk_ *t, const float *k, int64_t stride, int64_t n,
                                int64_t from) {
  const uint64_t all = attn_low_bits_(t->n);
  float add[ATTN_PICK_];
  uint64_t lanes[ATTN_PICK_], some = 0;
  if (t->by_distance) attn_topk_norms_(t, add, k, stride, n);
  attn_on_(select, t->table)
      ->above(lanes, t->s, t->by_distance ? add : NULL, n, 0, t->groups, t->floor);
  int64_t many = 0;
  for (int64_t j = 0; j < n; j++) some |= lanes[j] & all, many += (lanes[j] & all) == all;
  if (!t->by_distance && many > n / 2) attn_topk_most_(t, lanes, n, from), n = 0;
  for (int64_t j = 0; j < n; j++) {
    uint64_t left = lanes[j] & all;
    for (; left; left &= left - 1) {
      const int r = attn_lowest_(left);
      t->list[r * t->room + t->count[r]++] =
          t->by_distance ? (uint64_t)(from + j)
                         : attn_candidate_(t->s[j * ATTN_TILE_ + r], t->first + from + j);
    }
  }
  for (; some; some &= some - 1) {
    const int r = attn_lowest_(some);
    if (t->count[r] >= 2 * t->k) attn_topk_keep_(t, r);
  }
}

/* n more keys, rows of the given type; the first has this index, and all pass in ascending order. */
ATTN_FUNC_ void attn_topk_scan_(attn_topk_ *t, const char *keys, int64_t stride, attn_dtype dtype,
                                int64_t n, int64_t first) {
  const int64_t bytes = attn_bytes_(dtype, t->dim), apart = attn_bytes_(dtype, stride);
  const int64_t block = ATTN_PICK_, ask = block / 2;
  float top[ATTN_TILE_];
  for (int r = 0; r < ATTN_TILE_; r++) top[r] = 0.0f; /* not used */
  t->keys = keys, t->stride = stride, t->dtype = dtype, t->first = first;
  for (int64_t j = 0; j < n; j += block) {
    const int64_t m = n - j < block ? n - j : block;
    const char *at = keys + j * apart;
    const float *k = (const float *)(const void *)at;
    int64_t step = stride;
    if (dtype != ATTN_F32) {
      t->table->widen(t->wide, at, stride, NULL, m, t->dim, dtype, NULL);
      k = t->wide, step = t->dim;
    }
    for (int64_t i = 0; i < m; i += ask) { /* while half a block is multiplied, another comes */
      const int64_t rows = m - i < ask ? m - i : ask, next = j + i + block;
      for (int64_t r = next; r < n && r < next + ask; r++)
        for (int64_t c = 0; c < bytes; c += 64) ATTN_PREFETCH_(keys + r * apart + c);
      attn_on_(tile, t->table)
          ->score_block(t->s + i * ATTN_TILE_, t->qt, k + i * step, step, rows, t->dim, 0,
                        t->groups, top);
    }
    attn_topk_take_(t, k, step, m, j);
  }
  for (int r = 0; r < t->n; r++) attn_topk_settle_(t, r);
}

/* The candidates of row r, at most k, the best first; *count of them. */
ATTN_FUNC_ const uint64_t *attn_topk_list_(attn_topk_ *t, int r, int64_t *count) {
  uint64_t *list = t->list + r * t->room;
  attn_topk_keep_(t, r);
  *count = t->count[r];
  attn_sort_(list, *count, t->spare);
  return list;
}
