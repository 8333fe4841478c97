/* engine/schedule.h owns the making of a schedule: the order in which the rows of a term are cut
 * into tiles, the phases, the choice between runs and lists, and the writer of the bytes
 * (engine/plan.h).
 *
 * A top-level union falls into terms. Each has an order in which neighbouring rows share keys;
 * terms of one order make a phase, which leaves out what earlier phases have. */

enum {
  ATTN_ORDER_NATURAL_,   /* row after row */
  ATTN_ORDER_IMAGE_,     /* vertical strips, `step` pixels of `width` */
  ATTN_ORDER_GRID_,      /* boxes of the grid of node `width` */
  ATTN_ORDER_CLASS_,     /* p = c modulo `step`; keys likewise */
  ATTN_ORDER_SCATTERED_, /* as natural, but better not mixed with others */
  ATTN_ORDER_LISTS_,     /* row by row, each with a list */
  ATTN_ORDERS_
};

typedef struct attn_order_ {
  int64_t kind, step, width;
} attn_order_;

typedef struct attn_term_ {
  attn_order_ order;
  int64_t node, phase;
} attn_term_;

typedef struct attn_vec_ {
  void *data;
  int64_t count, capacity;
} attn_vec_;

/* Counts of one variant. */
typedef struct attn_counts_ {
  int64_t pairs, computed, full, partial, lists, heads;
} attn_counts_;

typedef struct attn_build_ {
  attn_field_ f;
  attn_sight_ s;
  attn_node_ *node; /* the head at work */
  attn_term_ *term;
  int64_t terms;
  uint64_t identity; /* of the pattern */
  uint64_t *heavy;   /* a bit a row: sees (nearly) all keys, so it stays among its like */
  int64_t heavies;
  attn_vec_ tile, run, row, key;
  attn_vec_ start;    /* int64: first tile of each phase of each variant */
  attn_vec_ phases;   /* int32: phases of each variant */
  attn_vec_ counts;   /* attn_counts_ of each variant */
  attn_counts_ count; /* of the variant at work */
  /* the phase and tile at work */
  attn_order_ order;
  int64_t phase, most, cells; /* most rows a tile; the node whose borders tiles respect, or -1 */
  int64_t border, cell;       /* where the current cell ends, and the lane where it began */
  attn_rows_ t;
} attn_build_;

/* `more` elements at the end of a vector, not yet counted; null = no memory. */
ATTN_COLD_ void *attn_vec_room_(attn_vec_ *v, int64_t more, int64_t size) {
  const int64_t need = attn_max64_(attn_add_(v->count, more), 1); /* not even 0 elements are null */
  if (!attn_room_(&v->data, &v->capacity, v->count, need, size)) return NULL;
  return (char *)v->data + v->count * size;
}

/* ------------------------------------------------------------------ orders */

/* What a tile costs, in tenths of a (lane, key) pair: measured on d = 64. */
typedef struct attn_price_ {
  int64_t pairs, full, runs, lists;
} attn_price_;

/* Scores that the runs of a tile cost when a call takes no lanes away (engine/block.h). */
ATTN_FUNC_ int64_t attn_runs_computed_(const attn_plan_tile_ *tile, const attn_plan_run_ *run);

ATTN_FUNC_ void attn_price_of_(attn_price_ *c, const attn_runs_ *r, int64_t rows) {
  const uint64_t all = attn_low_bits_(rows), low = 0x7fff7fff7fff7fffu, one = 0x0001000100010001u;
  uint64_t before = 0;
  int64_t ones = 0;
  memset(c, 0, sizeof *c);
  for (int64_t x = 0; x < r->count; x++) {
    const uint64_t lanes = r->run[x].lanes, change = lanes ^ before;
    const int64_t n = r->run[x].n;
    if (change & (change - 1)) /* neighbours mostly differ in one lane */
      ones = attn_ones_(lanes);
    else if (change)
      ones += lanes & change ? 1 : -1;
    before = lanes;
    /* fields of 16 lanes that are not 0 */
    const uint64_t groups = (((lanes & low) + low) | lanes) >> 15 & one;
    const int64_t lanes_run = (int64_t)(groups * one >> 48) * ATTN_GROUP_;
    c->pairs += n * ones;
    c->full += lanes == all;
    c->runs += 10 * n * lanes_run;
  }
  c->runs += 80 * r->count;
  c->lists = 33 * c->pairs + 400 * rows;
}

/* Whether lists are cheaper for a node in a few tiles of consecutive rows. -1 = no memory. */
ATTN_COLD_ int attn_scattered_(attn_build_ *b, int64_t node) {
  const int64_t tiles = 4;
  attn_rows_ *t = &b->t;
  int64_t runs = 0, lists = 0;
  t->f = &b->f, t->n = attn_min64_(ATTN_TILE_, b->f.q_len);
  t->step = 1, t->first = 0, t->keys = b->f.k_len;
  for (int64_t k = 0; k < tiles && t->n; k++) {
    attn_price_ c;
    for (int64_t r = 0; r < t->n; r++) {
      t->i[r] = (b->f.q_len - t->n) * k / (tiles - 1) + r;
      t->p[r] = t->i[r] + b->f.q_off;
    }
    if (!attn_eval_(&b->s, node, t, 0)) return -1;
    attn_price_of_(&c, &b->s.runs[0], t->n);
    runs += c.runs, lists += c.lists;
  }
  return lists < runs;
}

ATTN_COLD_ attn_order_ attn_order_make_(int64_t kind, int64_t step, int64_t width) {
  attn_order_ o;
  o.kind = kind, o.step = step, o.width = width;
  return o;
}

ATTN_COLD_ int attn_same_order_(attn_order_ a, attn_order_ b) {
  return a.kind == b.kind && a.step == b.step && a.width == b.width;
}

/* Blocks of an image that fill a group of lanes make strips of their own; of smaller ones, strips
 * of 4 pixels keep every 16 lanes in a square. */
ATTN_COLD_ int attn_image_tiles_(const attn_node_ *x) {
  return x->tile_height * x->tile_width >= ATTN_GROUP_;
}

/* The order that suits a node. A class order must hold all keys of its rows in their class. */
ATTN_COLD_ attn_order_ attn_order_of_(const attn_build_ *b, int64_t at) {
  const int64_t few = 5; /* rows that are not worth a tile */
  const attn_node_ *x = &b->node[at];
  attn_order_ o = attn_order_make_(ATTN_ORDER_NATURAL_, 1, 0), y;
  switch ((int)x->kind) {
    case ATTN_PATTERN_DILATED:
    case ATTN_PATTERN_AXIAL:
      if (x->step > 1)
        o = b->f.q_len / x->step < few ? attn_order_make_(ATTN_ORDER_LISTS_, 1, 0)
                                       : attn_order_make_(ATTN_ORDER_CLASS_, x->step, 0);
      break;
    case ATTN_PATTERN_IMAGE_2D:
      o = attn_order_make_(ATTN_ORDER_IMAGE_,
                           attn_min64_(attn_image_tiles_(x) ? x->tile_width : 4, x->width),
                           x->width);
      break;
    case ATTN_PATTERN_NEIGHBORHOOD: {
      const int64_t step = x->indices == 1 ? attn_max64_(x->axes->dilation, 1) : 1;
      if (x->indices > 1 && b->f.q_len == b->f.k_len && b->f.q_off == 0)
        o = attn_order_make_(ATTN_ORDER_GRID_, 1, at);
      else if (step > 1)
        o = b->f.q_len / step < few ? attn_order_make_(ATTN_ORDER_LISTS_, 1, 0)
                                    : attn_order_make_(ATTN_ORDER_CLASS_, step, 0);
      break;
    }
    case ATTN_PATTERN_RANDOM:
      if (x->count <= b->f.k_len / 4) o.kind = ATTN_ORDER_LISTS_;
      break;
    case ATTN_PATTERN_RANDOM_BLOCKS:
    case ATTN_PATTERN_BLOCK_MASK:
      if (x->block < 8 && b->terms > 1) o.kind = ATTN_ORDER_SCATTERED_;
      break;
    case ATTN_PATTERN_CSR: o.kind = ATTN_ORDER_LISTS_; break;
    case ATTN_PATTERN_PREDICATE:
    case ATTN_PATTERN_BITMAP:
      if (b->terms > 1) o.kind = ATTN_ORDER_SCATTERED_;
      break;
    case ATTN_PATTERN_INTERSECT: /* the part that says most */
      for (int64_t k = x->part; k; k = b->node[k].next) {
        y = attn_order_of_(b, k);
        if (y.kind == ATTN_ORDER_CLASS_ || (y.kind == ATTN_ORDER_IMAGE_ && o.kind != y.kind) ||
            (y.kind > o.kind && o.kind == ATTN_ORDER_NATURAL_))
          o = y;
        if (o.kind == ATTN_ORDER_CLASS_) break;
      }
      break;
    case ATTN_PATTERN_DIFF: return attn_order_of_(b, x->part);
    case ATTN_PATTERN_TRANSPOSE: /* one row would cost as much as 64 */
      o = attn_order_of_(b, x->part);
      if (o.kind == ATTN_ORDER_LISTS_) o.kind = ATTN_ORDER_SCATTERED_;
      break;
    default: break;
  }
  return o;
}

/* What only a look can tell: whether scattered keys are scattered. 0 = no memory. */
ATTN_COLD_ int attn_order_settle_(attn_build_ *b, attn_term_ *term) {
  const int64_t kind = b->node[term->node].kind;
  attn_order_ *o = &term->order;
  *o = attn_order_of_(b, term->node);
  if (b->f.q_len < 5) { /* decoding: one phase */
    *o = attn_order_make_(ATTN_ORDER_NATURAL_, 1, 0);
  } else if (o->kind == ATTN_ORDER_SCATTERED_ ||
             (o->kind == ATTN_ORDER_LISTS_ &&
              (kind == ATTN_PATTERN_CSR || kind >= ATTN_PATTERN_UNION))) {
    const int lists = attn_scattered_(b, term->node);
    if (lists < 0) return 0;
    if (!lists) o->kind = ATTN_ORDER_NATURAL_;
  }
  return 1;
}

/* ------------------------------------------------------------------ rows that see all */

ATTN_COLD_ void attn_heavy_rows_(attn_build_ *b, int64_t i, int64_t end) {
  for (i = attn_max64_(i, 0); i < attn_min64_(end, b->f.q_len); i++) {
    b->heavies += !(b->heavy[i >> 6] >> (i & 63) & 1);
    b->heavy[i >> 6] |= attn_bit_(i & 63);
  }
}

ATTN_COLD_ void attn_heavy_(attn_build_ *b, int64_t at) {
  const attn_node_ *x = &b->node[at];
  const int64_t off = b->f.q_off;
  if (x->kind == ATTN_PATTERN_UNION || x->kind == ATTN_PATTERN_INTERSECT) {
    for (int64_t k = x->part; k; k = b->node[k].next) attn_heavy_(b, k);
  } else if (x->kind == ATTN_PATTERN_DIFF) {
    attn_heavy_(b, x->part);
  } else if (x->kind == ATTN_PATTERN_GLOBAL && x->rows) {
    if (x->queries)
      for (int64_t g = 0; g < x->query_count; g++)
        attn_heavy_rows_(b, x->queries[g], x->queries[g] + (int64_t)1);
    if (!x->queries)
      for (int64_t g = 0; g < x->indices; g++)
        attn_heavy_rows_(b, x->index[g] - off, x->index[g] - off + 1);
  } else if (x->kind == ATTN_PATTERN_ETC) {
    attn_heavy_rows_(b, -off, x->first - off);
  } else if (x->kind == ATTN_PATTERN_RING) {
    attn_heavy_rows_(b, 0, x->first);
  } else if (x->kind == ATTN_PATTERN_BIGBIRD) {
    const int64_t g = x->extra, blocks = attn_ceil_(b->f.k_len - g, x->block);
    const int64_t last = attn_max64_(blocks - x->last, 0);
    attn_heavy_rows_(b, -off, g - off + attn_min64_(x->first, blocks) * x->block);
    attn_heavy_rows_(b, g - off + last * x->block, g - off + blocks * x->block);
  }
}

/* ------------------------------------------------------------------ cells */

/* The first row behind the cell of row i: rows of a cell share keys, so that tiles rather end with
 * cells. INT64_MAX = no more borders. */
ATTN_COLD_ int64_t attn_cell_end_(const attn_build_ *b, int64_t at, int64_t i) {
  const attn_node_ *x = &b->node[at];
  const int64_t p = i + b->f.q_off;
  switch ((int)x->kind) {
    case ATTN_PATTERN_BLOCKS:
    case ATTN_PATTERN_RANDOM_BLOCKS:
    case ATTN_PATTERN_SPARSE_FIXED: return (attn_floor_(p, x->block) + 1) * x->block - b->f.q_off;
    case ATTN_PATTERN_BIGBIRD:
      return (attn_floor_(p - x->extra, x->block) + 1) * x->block + x->extra - b->f.q_off;
    case ATTN_PATTERN_BLOCKWISE:
      return attn_block_start_(i * x->count / b->f.q_len + 1, x->count, b->f.q_len);
    case ATTN_PATTERN_BLOCK_MASK: return (i / x->block + 1) * x->block;
    case ATTN_PATTERN_AXIAL: return (i / (x->step * x->count) + 1) * (x->step * x->count);
    case ATTN_PATTERN_SEGMENTS: return x->index[attn_segment_of_(x, i) + 1];
    case ATTN_PATTERN_BLOCK_DIFFUSION: {
      const int64_t n = b->f.k_len / 2, half = i < n ? 0 : n;
      return half + attn_min64_(((i - half) / x->block + 1) * x->block, n);
    }
    case ATTN_PATTERN_TREE: return i < x->width ? x->width : INT64_MAX;
    case ATTN_PATTERN_IMAGE_2D:
      return (i / x->width / x->tile_height + 1) * x->tile_height * x->width;
    default: return INT64_MAX;
  }
}

/* The first leaf of a node that has cells in the order at work, or -1. */
ATTN_COLD_ int64_t attn_cells_(const attn_build_ *b, int64_t at) {
  const attn_node_ *x = &b->node[at];
  switch ((int)x->kind) {
    case ATTN_PATTERN_BLOCKS:
    case ATTN_PATTERN_RANDOM_BLOCKS:
    case ATTN_PATTERN_SPARSE_FIXED:
    case ATTN_PATTERN_BIGBIRD:
    case ATTN_PATTERN_BLOCKWISE:
    case ATTN_PATTERN_BLOCK_MASK:
    case ATTN_PATTERN_AXIAL:
    case ATTN_PATTERN_SEGMENTS:
    case ATTN_PATTERN_BLOCK_DIFFUSION:
    case ATTN_PATTERN_TREE: return at;
    case ATTN_PATTERN_IMAGE_2D:
      return b->order.kind == ATTN_ORDER_IMAGE_ && attn_image_tiles_(x) ? at : -1;
    case ATTN_PATTERN_UNION:
    case ATTN_PATTERN_INTERSECT:
      for (int64_t k = x->part; k; k = b->node[k].next) {
        const int64_t found = attn_cells_(b, k);
        if (found >= 0) return found;
      }
      return -1;
    case ATTN_PATTERN_DIFF: return attn_cells_(b, x->part);
    default: return -1;
  }
}

/* ------------------------------------------------------------------ tiles */

/* What the rows see in this phase, in runs[0]. */
ATTN_COLD_ int attn_eval_phase_(attn_build_ *b, const attn_rows_ *t) {
  b->s.runs[0].count = 0;
  int first = 1;
  for (int64_t k = 0; k < b->terms; k++) {
    if (b->term[k].phase != b->phase) continue;
    if (first ? !attn_eval_(&b->s, b->term[k].node, t, 0)
              : !attn_eval_onto_(&b->s, ATTN_PATTERN_UNION, b->term[k].node, t, 0))
      return 0;
    first = 0;
  }
  for (int64_t k = 0; k < b->terms; k++)
    if (b->term[k].phase < b->phase &&
        !attn_eval_onto_(&b->s, ATTN_PATTERN_DIFF, b->term[k].node, t, 0))
      return 0;
  return 1;
}

/* A tile of the rows at work, and its rows. Null = no memory. */
ATTN_COLD_ attn_plan_tile_ *attn_put_tile_(attn_build_ *b) {
  const attn_rows_ *t = &b->t;
  attn_plan_tile_ *tile = (attn_plan_tile_ *)attn_vec_room_(&b->tile, 1, sizeof *tile);
  int32_t *row = (int32_t *)attn_vec_room_(&b->row, t->n, sizeof *row);
  if (!tile || !row) return NULL;
  for (int64_t r = 0; r < t->n; r++) row[r] = (int32_t)t->i[r];
  tile->n = (int32_t)t->n, tile->step = (int32_t)t->step;
  tile->row = b->row.count, tile->at = b->run.count, tile->count = 0;
  b->row.count += t->n, b->tile.count++;
  return tile;
}

/* Adds the runs of a tile, whose price is c. */
ATTN_COLD_ void attn_counts_runs_(attn_counts_ *count, const attn_plan_tile_ *t,
                                  const attn_plan_run_ *run, const attn_price_ *c) {
  count->pairs += c->pairs;
  if (t->step < 0) {
    count->computed += c->pairs, count->lists++;
  } else {
    count->computed += attn_runs_computed_(t, run);
    count->full += c->full, count->partial += t->count - c->full;
  }
}

/* Runs, which are computed as lists where step is negative. */
ATTN_COLD_ int attn_put_runs_(attn_build_ *b, const attn_price_ *c, int lists) {
  const attn_rows_ *t = &b->t;
  const attn_runs_ *in = &b->s.runs[0];
  attn_plan_tile_ *tile = attn_put_tile_(b);
  attn_plan_run_ *run = (attn_plan_run_ *)attn_vec_room_(&b->run, in->count, sizeof *run);
  if (!tile || !run) return 0;
  if (in->count) memcpy(run, in->run, (size_t)in->count * sizeof *run);
  if (t->step > 1)
    for (int64_t x = 0; x < in->count; x++) run[x].key = (int32_t)(t->first + run[x].key * t->step);
  tile->count = in->count;
  b->run.count += in->count;
  if (lists) tile->step = -tile->step;
  attn_counts_runs_(&b->count, tile, run, c);
  return 1;
}

/* The head of a tile of lists, before its keys. */
ATTN_COLD_ attn_plan_tile_ *attn_put_lists_head_(attn_build_ *b) {
  attn_plan_tile_ *tile = attn_put_tile_(b);
  int32_t *at = (int32_t *)attn_vec_room_(&b->key, b->t.n + 1, sizeof *at);
  if (!tile || !at) return NULL;
  tile->step = 0, tile->at = b->key.count;
  b->key.count += b->t.n + 1;
  b->count.lists++;
  at[0] = 0;
  return tile;
}

ATTN_COLD_ int attn_put_lists_(attn_build_ *b, int64_t pairs) {
  const attn_rows_ *t = &b->t;
  const attn_runs_ *in = &b->s.runs[0];
  attn_plan_tile_ *tile = attn_put_lists_head_(b);
  int64_t next[ATTN_TILE_];
  if (!tile || !attn_vec_room_(&b->key, pairs, sizeof(int32_t))) return 0;
  int32_t *at = (int32_t *)b->key.data + tile->at, *key = at + t->n + 1;
  memset(next, 0, sizeof next);
  for (int64_t x = 0; x < in->count; x++)
    for (uint64_t lanes = in->run[x].lanes; lanes; lanes &= lanes - 1)
      next[attn_lowest_(lanes)] += in->run[x].n;
  for (int64_t r = 0; r < t->n; r++) {
    at[r + 1] = (int32_t)(at[r] + next[r]);
    next[r] = at[r];
  }
  for (int64_t x = 0; x < in->count; x++)
    for (uint64_t lanes = in->run[x].lanes; lanes; lanes &= lanes - 1) {
      int64_t *to = &next[attn_lowest_(lanes)];
      for (int64_t k = 0; k < in->run[x].n; k++)
        key[(*to)++] = (int32_t)(t->first + (in->run[x].key + k) * t->step);
    }
  tile->count = pairs;
  b->key.count += pairs, b->count.pairs += pairs, b->count.computed += pairs;
  return 1;
}

/* Lists straight from single rows. b->most keeps their sum below 2^31. */
ATTN_FUNC_ int attn_put_row_lists_(attn_build_ *b) {
  attn_plan_tile_ *tile = attn_put_lists_head_(b);
  const int64_t index = b->tile.count - 1;
  int64_t pairs = 0;
  attn_rows_ one;
  if (!tile) return 0;
  const int64_t at = tile->at;
  for (int64_t r = 0; r < b->t.n; r++) {
    int64_t n = 0;
    attn_rows_one_(&one, &b->f, b->t.i[r]);
    if (!attn_eval_phase_(b, &one)) return 0;
    const attn_runs_ *in = &b->s.runs[0];
    for (int64_t x = 0; x < in->count; x++) n += in->run[x].n;
    int32_t *key = (int32_t *)attn_vec_room_(&b->key, n, sizeof *key);
    if (!key) return 0;
    for (int64_t x = 0; x < in->count; x++)
      for (int32_t k = 0; k < in->run[x].n; k++) *key++ = in->run[x].key + k;
    b->key.count += n, pairs += n;
    ((int32_t *)b->key.data)[at + r + 1] = (int32_t)pairs;
  }
  ((attn_plan_tile_ *)b->tile.data)[index].count = pairs;
  b->count.pairs += pairs, b->count.computed += pairs;
  return 1;
}

ATTN_COLD_ int attn_put_(attn_build_ *b) {
  attn_price_ c;
  if (b->t.n == 0) return 1;
  for (int64_t r = 0; r < b->t.n; r++) b->t.p[r] = b->t.i[r] + b->f.q_off;
  if (b->order.kind == ATTN_ORDER_LISTS_) return attn_put_row_lists_(b);
  if (!attn_eval_phase_(b, &b->t)) return 0;
  attn_price_of_(&c, &b->s.runs[0], b->t.n);
  const int lists = c.pairs > 0 && c.lists < c.runs;
  const int64_t runs = b->s.runs[0].count * (int64_t)sizeof(attn_plan_run_);
  if (!lists || runs <= c.pairs * (int64_t)sizeof(int32_t) || c.pairs > INT32_MAX)
    return attn_put_runs_(b, &c, lists);
  return attn_put_lists_(b, c.pairs);
}

/* The next row of a stream. A tile ends with its last whole cell, unless that fills it. */
ATTN_COLD_ int attn_put_row_(attn_build_ *b, int64_t i) {
  attn_rows_ *t = &b->t;
  const int begins = i >= b->border;
  if (t->n == b->most) {
    int64_t rest[ATTN_TILE_];
    const int64_t whole = begins || b->cell == 0 ? t->n : b->cell, left = t->n - whole;
    memcpy(rest, t->i + whole, (size_t)left * sizeof *rest);
    t->n = whole;
    if (!attn_put_(b)) return 0;
    memcpy(t->i, rest, (size_t)left * sizeof *rest);
    t->n = left, b->cell = 0;
  }
  if (begins) {
    b->cell = t->n;
    b->border = b->cells < 0 ? INT64_MAX : attn_cell_end_(b, b->cells, i);
  }
  t->i[t->n++] = i;
  return 1;
}

/* Tiles do not cross streams. */
ATTN_COLD_ int attn_end_stream_(attn_build_ *b) {
  const int fits = attn_put_(b);
  b->t.n = 0, b->cell = 0, b->border = INT64_MIN;
  return fits;
}

/* One stream: rows y wide pixels apart, `wide` of them at a time. */
ATTN_COLD_ int attn_stream_rows_(attn_build_ *b, int64_t first, int64_t wide, int64_t apart) {
  for (int64_t y = first; y < b->f.q_len; y += apart)
    for (int64_t i = y; i < y + wide && i < b->f.q_len; i++)
      if (!(b->heavies && b->heavy[i >> 6] >> (i & 63) & 1) && !attn_put_row_(b, i)) return 0;
  return attn_end_stream_(b);
}

/* Ordinals of an axis that a tile takes side by side: those that share a window stay together. */
ATTN_COLD_ int64_t attn_grid_strip_(const attn_axis *x) {
  const int64_t t = attn_max64_(x->stride, 1), side = 4;
  return attn_ceil_(side, t) * t;
}

/* Boxes of a grid, class by class of its dilations: strips of the last axis, of the last two where there are
 * three, as long as the first. */
ATTN_COLD_ int attn_grid_rows_(attn_build_ *b, const attn_node_ *x) {
  attn_axis a[ATTN_AXES_];
  int64_t d[ATTN_AXES_], end[ATTN_AXES_];
  attn_axes_of_(x, a);
  for (int k = 0; k < ATTN_AXES_; k++) d[k] = attn_max64_(a[k].dilation, 1);
  const int64_t classes = d[0] * d[1] * d[2], wide = attn_grid_strip_(&a[2]);
  const int64_t high = a[0].length > 1 ? attn_grid_strip_(&a[1]) : a[1].length;
  for (int64_t c = 0; c < classes; c++) {
    const int64_t f[ATTN_AXES_] = {c / (d[1] * d[2]), c / d[2] % d[1], c % d[2]};
    for (int k = 0; k < ATTN_AXES_; k++) end[k] = (a[k].length - 1 - f[k]) / d[k] + 1;
    for (int64_t y0 = 0; y0 < end[1]; y0 += high)
      for (int64_t x0 = 0; x0 < end[2]; x0 += wide) {
        for (int64_t z = 0; z < end[0]; z++)
          for (int64_t y = y0; y < attn_min64_(y0 + high, end[1]); y++)
            for (int64_t u = x0; u < attn_min64_(x0 + wide, end[2]); u++)
              if (!attn_put_row_(
                      b, ((f[0] + z * d[0]) * a[1].length + f[1] + y * d[1]) * a[2].length + f[2] +
                             u * d[2]))
                return 0;
        if (!attn_end_stream_(b)) return 0;
      }
  }
  return 1;
}

ATTN_COLD_ int attn_heavy_stream_(attn_build_ *b) {
  b->cells = -1;
  for (int64_t w = 0; w <= b->f.q_len / 64; w++)
    for (; b->heavy[w]; b->heavy[w] &= b->heavy[w] - 1)
      if (!attn_put_row_(b, w * 64 + attn_lowest_(b->heavy[w]))) return 0;
  b->heavies = 0;
  return attn_end_stream_(b);
}

ATTN_COLD_ int attn_build_phase_(attn_build_ *b) {
  attn_rows_ *t = &b->t;
  int64_t *start = (int64_t *)attn_vec_room_(&b->start, 1, sizeof *start);
  if (!start) return 0;
  *start = b->tile.count, b->start.count++;
  b->order = attn_order_make_(ATTN_ORDER_NATURAL_, 1, 0), b->cells = -1;
  for (int64_t k = b->terms - 1; k >= 0; k--)
    if (b->term[k].phase == b->phase) b->order = b->term[k].order;
  for (int64_t k = b->terms - 1; k >= 0; k--)
    if (b->term[k].phase == b->phase) {
      const int64_t cells = attn_cells_(b, b->term[k].node);
      if (cells >= 0) b->cells = cells;
      if (b->order.kind == ATTN_ORDER_NATURAL_) attn_heavy_(b, b->term[k].node);
    }
  b->most = ATTN_TILE_;
  if (b->order.kind == ATTN_ORDER_LISTS_)
    b->most = attn_max64_(attn_min64_(ATTN_TILE_, INT32_MAX / attn_max64_(b->f.k_len, 1)), 1);
  b->border = INT64_MIN, b->cell = 0;
  t->f = &b->f, t->n = 0, t->step = 1, t->first = 0, t->keys = b->f.k_len;
  const int64_t step = b->order.step;
  if (b->order.kind == ATTN_ORDER_CLASS_) {
    t->step = step;
    for (t->first = 0; t->first < step; t->first++) {
      const int64_t i = t->first - b->f.q_off - attn_floor_(t->first - b->f.q_off, step) * step;
      t->keys = attn_max64_(attn_ceil_(b->f.k_len - t->first, step), 0);
      if (!attn_stream_rows_(b, i, 1, step)) return 0;
    }
    return 1;
  }
  if (b->order.kind == ATTN_ORDER_IMAGE_) {
    const int64_t w = b->order.width;
    for (int64_t x = 0; x < w; x += step)
      if (!attn_stream_rows_(b, x, attn_min64_(step, w - x), w)) return 0;
    return 1;
  }
  if (b->order.kind == ATTN_ORDER_GRID_) return attn_grid_rows_(b, &b->node[b->order.width]);
  return attn_stream_rows_(b, 0, b->f.q_len, attn_max64_(b->f.q_len, 1)) &&
         (!b->heavies || attn_heavy_stream_(b));
}

/* ------------------------------------------------------------------ variants */

ATTN_COLD_ void attn_terms_(attn_build_ *b, int64_t at) {
  if (b->node[at].kind == ATTN_PATTERN_UNION) {
    for (int64_t k = b->node[at].part; k; k = b->node[k].next) attn_terms_(b, k);
  } else {
    b->term[b->terms].node = at;
    b->term[b->terms++].phase = -1;
  }
}

/* The tiles of one variant, whose nodes are in b->node. 0 = no memory. */
ATTN_COLD_ int attn_build_variant_(attn_build_ *b) {
  int64_t phases = 0;
  b->s.node = b->node;
  memset(&b->count, 0, sizeof b->count);
  b->terms = 0;
  attn_terms_(b, 0);
  for (int64_t k = 0; k < b->terms; k++)
    if (!attn_order_settle_(b, &b->term[k])) return 0;
  for (int64_t kind = 0; kind < ATTN_ORDERS_; kind++)
    for (int64_t k = 0; k < b->terms; k++) {
      if (b->term[k].order.kind != kind || b->term[k].phase >= 0) continue;
      for (int64_t m = k; m < b->terms; m++)
        if (attn_same_order_(b->term[m].order, b->term[k].order)) b->term[m].phase = phases;
      phases++;
    }
  if (phases == 0) phases = 1; /* the empty union */
  for (b->phase = 0; b->phase < phases; b->phase++)
    if (!attn_build_phase_(b)) return 0;
  int32_t *mine = (int32_t *)attn_vec_room_(&b->phases, 1, sizeof *mine);
  attn_counts_ *counts = (attn_counts_ *)attn_vec_room_(&b->counts, 1, sizeof *counts);
  if (!mine || !counts) return 0;
  *mine = (int32_t)phases, *counts = b->count;
  b->phases.count++, b->counts.count++;
  return 1;
}
