/* engine/atoms.h owns the leaves of patterns: which keys some rows see, by the definition of each
 * kind. Lanes with the same answer give it together. The ranges that a leaf gives one lane never
 * overlap (toggles would cancel). */

ATTN_INLINE_ uint64_t attn_lane_range_(int64_t r0, int64_t r1) {
  return attn_low_bits_(r1) & ~attn_low_bits_(r0);
}

/* The first lane from r on whose number (ascending) is at least limit. */
ATTN_INLINE_ int64_t attn_lanes_below_(const int64_t *x, int64_t n, int64_t r, int64_t limit) {
  if (x[n - 1] < limit) return n;
  while (x[r] < limit) r++;
  return r;
}

/* The first of n ascending numbers that is at least x. */
ATTN_COLD_ int64_t attn_at_least_(const int32_t *a, int64_t n, int64_t x) {
  int64_t lo = 0, hi = n;
  while (lo < hi) {
    const int64_t mid = lo + (hi - lo) / 2;
    if (a[mid] < x)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

ATTN_COLD_ void attn_see_band_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t right = x->cut && x->right != 0 ? 0 : x->right, keys = t->f->k_len;
  for (int64_t r = 0; r < t->n; r++) {
    const int64_t p = t->p[r];
    const int64_t lo = x->left < 0 ? 0 : attn_max64_(p - x->left, 0);
    const int64_t hi = right < 0 ? keys : attn_min64_(p + right + 1, keys);
    if (lo < hi) attn_toggle_keys_(s, t, attn_bit_(r), lo, hi);
  }
}

ATTN_COLD_ void attn_see_dilated_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t d = x->step, right = x->cut && x->right != 0 ? 0 : x->right;
  for (int64_t r = 0; r < t->n; r++) {
    const int64_t p = t->p[r];
    if (t->step == d) { /* a band of ordinals */
      const int64_t u = (p - t->first) / d;
      attn_put_toggles_(s, attn_bit_(r), x->left < 0 ? 0 : attn_max64_(u - x->left, 0),
                        right < 0 ? t->keys : attn_min64_(u + right + 1, t->keys));
      continue;
    }
    int64_t lo = attn_ceil_(-p, d), hi = attn_floor_(t->f->k_len - 1 - p, d);
    if (x->left >= 0) lo = attn_max64_(lo, -x->left);
    if (right >= 0) hi = attn_min64_(hi, right);
    for (; lo <= hi; lo++) attn_toggle_keys_(s, t, attn_bit_(r), p + lo * d, p + lo * d + 1);
  }
}

/* Lanes whose query (or, without such a list, position) is global. */
ATTN_COLD_ uint64_t attn_global_lanes_(const attn_node_ *x, const attn_rows_ *t) {
  const int32_t *list = x->queries ? x->queries : x->index;
  const int64_t count = x->queries ? x->query_count : x->indices;
  const int64_t *row = x->queries ? t->i : t->p;
  uint64_t lanes = 0;
  if (!x->rows) return 0;
  int64_t g = attn_at_least_(list, count, row[0]);
  for (int64_t r = 0; r < t->n && g < count; r++) {
    while (g < count && list[g] < row[r]) g++;
    if (g < count && list[g] == row[r]) lanes |= attn_bit_(r);
  }
  return lanes;
}

ATTN_COLD_ void attn_see_global_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const uint64_t rows = attn_global_lanes_(x, t), others = attn_low_bits_(t->n) & ~rows;
  attn_see_(s, t, x->cut, rows, 0, t->f->k_len);
  for (int64_t g = 0, lo, hi; x->columns && others && g < x->indices;) {
    lo = hi = x->index[g];
    while (g < x->indices && x->index[g] == hi) g++, hi++;
    if (x->cut && lo > t->p[t->n - 1]) break;
    attn_see_(s, t, x->cut, others, lo, hi);
  }
}

ATTN_COLD_ void attn_see_front_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t r = attn_lanes_below_(t->p, t->n, 0, x->first);
  attn_see_(s, t, x->cut, attn_low_bits_(r), 0, t->f->k_len);
  attn_see_(s, t, x->cut, attn_lane_range_(r, t->n), 0, x->first);
}

/* Draws units for lanes, `count` of [0, n), or all; unit u is the keys from u size on. */
ATTN_COLD_ void attn_see_drawn_(attn_sight_ *s, const attn_rows_ *t, const attn_node_ *x,
                                uint64_t lanes, uint64_t stream, int64_t n, int64_t size) {
  if (x->count >= n) {
    attn_see_(s, t, x->cut, lanes, 0, n * size);
    return;
  }
  if (!attn_draw_(&s->drawn, stream, n, x->count)) s->full = 1;
  for (int64_t k = 0; k < s->drawn.count; k++)
    attn_see_(s, t, x->cut, lanes, s->drawn.list[k] * size, (s->drawn.list[k] + (int64_t)1) * size);
}

ATTN_COLD_ void attn_see_random_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  for (int64_t r = 0; r < t->n; r++) {
    const int64_t p = t->p[r], keys = t->f->k_len;
    const int64_t n = x->causal ? attn_max64_(attn_min64_(p + 1, keys), 0) : keys;
    attn_see_drawn_(s, t, x, attn_bit_(r), attn_stream_(x->seed, ATTN_DRAW_TOKENS_, x->head, p), n,
                    1);
  }
}

ATTN_COLD_ void attn_see_random_blocks_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t blocks = attn_ceil_(t->f->k_len, x->block);
  for (int64_t r = 0, r1; r < t->n; r = r1) {
    const int64_t own = attn_floor_(t->p[r], x->block);
    const int64_t n = x->causal ? attn_max64_(attn_min64_(own + 1, blocks), 0) : blocks;
    r1 = attn_lanes_below_(t->p, t->n, r, (own + 1) * x->block);
    attn_see_drawn_(s, t, x, attn_lane_range_(r, r1),
                    attn_stream_(x->seed, ATTN_DRAW_BLOCKS_, x->head, own), n, x->block);
  }
}

ATTN_COLD_ void attn_see_blocks_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  for (int64_t r = 0, r1; r < t->n; r = r1) {
    const int64_t lo = attn_floor_(t->p[r], x->block) * x->block, hi = lo + x->block;
    r1 = attn_lanes_below_(t->p, t->n, r, hi);
    attn_see_(s, t, x->cut, attn_lane_range_(r, r1), lo - x->before, hi + x->after);
  }
}

/* A ring of all nodes, or of those behind a relay. */
ATTN_COLD_ void attn_see_ring_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t a = x->first, end = t->f->k_len, n = end - a, w = x->left;
  for (int64_t r = 0; r < t->n; r++) {
    const uint64_t lane = attn_bit_(r);
    const int64_t i = t->p[r];
    if (i < a || (x->ring && 2 * w + 1 >= n)) {
      attn_see_(s, t, x->cut, lane, 0, end);
      continue;
    }
    attn_see_(s, t, x->cut, lane, 0, a);
    attn_see_(s, t, x->cut, lane, attn_max64_(i - w, a), i + w + 1);
    if (x->ring && i - w < a) attn_see_(s, t, x->cut, lane, i - w + n, end);
    if (x->ring && i + w >= end) attn_see_(s, t, x->cut, lane, a, i + w + 1 - n);
  }
}

/* BigBird over blocks, behind `extra` tokens that see all and are seen by all. */
ATTN_COLD_ void attn_see_bigbird_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t g = x->extra, bs = x->block, blocks = attn_ceil_(t->f->k_len - g, bs);
  const int64_t first = attn_min64_(x->first, blocks);
  const int64_t last = attn_max64_(blocks - x->last, first); /* global blocks: [0, first), [last, */
  /* lanes front .. back - 1 are extra tokens; those before the first key are none */
  const int64_t front = g ? attn_lanes_below_(t->p, t->n, 0, 0) : 0;
  const int64_t back = g ? attn_lanes_below_(t->p, t->n, 0, g) : 0;
  attn_see_(s, t, x->cut, attn_lane_range_(front, back), 0, t->f->k_len);
  attn_see_(s, t, x->cut, attn_low_bits_(t->n) & ~attn_lane_range_(front, back), 0, g);
  for (int64_t r = 0, r1; r < t->n; r = r1) {
    if (r == front && r < back) {
      r1 = back;
      continue;
    }
    const int64_t own = attn_floor_(t->p[r] - g, bs);
    r1 = attn_lanes_below_(t->p, t->n, r, g + (own + 1) * bs);
    if (r < front) r1 = attn_min64_(r1, front);
    const uint64_t lanes = attn_lane_range_(r, r1);
    if (own >= 0 && own < blocks && (own < first || own >= blocks - x->last)) {
      attn_see_(s, t, x->cut, lanes, g, t->f->k_len);
      continue;
    }
    const int64_t w0 = own - x->before, w1 = own + x->after + 1;
    const int64_t end = x->causal ? attn_min64_(last, own + 1) : last;
    /* candidates: [first, a) and [b, end) */
    const int64_t a = attn_max64_(attn_min64_(w0, end), first), b = attn_max64_(w1, first);
    const int64_t low = a - first, n = low + attn_max64_(end - b, 0);
    attn_see_(s, t, x->cut, lanes, g, g + first * bs);
    attn_see_(s, t, x->cut, lanes, g + attn_max64_(w0, first) * bs,
              g + attn_min64_(attn_max64_(w1, first), last) * bs);
    attn_see_(s, t, x->cut, lanes, g + last * bs, t->f->k_len);
    if (x->count >= n) {
      attn_see_(s, t, x->cut, lanes, g + first * bs, g + a * bs);
      attn_see_(s, t, x->cut, lanes, g + b * bs, g + end * bs);
      continue;
    }
    if (!attn_draw_(&s->drawn, attn_stream_(x->seed, ATTN_DRAW_BIGBIRD_, x->head, own), n,
                    x->count))
      s->full = 1;
    for (int64_t k = 0; k < s->drawn.count; k++) {
      const int64_t u = s->drawn.list[k], key = g + (u < low ? first + u : b + u - low) * bs;
      attn_see_(s, t, x->cut, lanes, key, key + bs);
    }
  }
}

/* The summary columns of every block. */
ATTN_COLD_ void attn_see_columns_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t top = t->p[t->n - 1];
  for (int64_t key = x->first; key < t->f->k_len && (!x->cut || key <= top); key += x->block)
    attn_see_(s, t, x->cut, attn_low_bits_(t->n), key, key + x->count);
}

/* b len / n, rounded up: where block b of n begins */
ATTN_INLINE_ int64_t attn_block_start_(int64_t b, int64_t n, int64_t len) {
  return attn_ceil_(b * len, n);
}

ATTN_COLD_ void attn_see_blockwise_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t n = x->count;
  for (int64_t r = 0, r1; r < t->n; r = r1) {
    const int64_t b = t->i[r] * n / t->f->q_len;
    const int64_t key = x->index ? x->index[b] : (b + x->left) % n;
    r1 = attn_lanes_below_(t->i, t->n, r, attn_block_start_(b + 1, n, t->f->q_len));
    attn_see_(s, t, x->cut, attn_lane_range_(r, r1), attn_block_start_(key, n, t->f->k_len),
              attn_block_start_(key + 1, n, t->f->k_len));
  }
}

ATTN_COLD_ void attn_see_image_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t w = x->width, th = x->tile_height, tw = x->tile_width;
  for (int64_t r = 0, r1; r < t->n; r = r1) {
    const int64_t y = t->i[r] / w, by = y / th * th, bx = t->i[r] % w / tw * tw;
    for (r1 = r + 1; r1 < t->n; r1++)
      if (t->i[r1] / w >= by + th || t->i[r1] % w / tw * tw != bx) break;
    const uint64_t lanes = attn_lane_range_(r, r1);
    const int64_t left = attn_max64_(bx - x->left, 0), right = attn_min64_(bx + tw + x->right, w);
    const int64_t top = attn_max64_(by - x->top, 0);
    const int64_t bottom = attn_min64_(by + th + x->bottom, x->height);
    const int64_t last = t->i[r1 - 1] / w; /* the lowest of these lanes' image rows */
    for (int64_t m = top; m < bottom; m++) {
      const int64_t at = m * w;
      if (x->order == ATTN_IMAGE_NONE || (x->order == ATTN_IMAGE_BLOCK && m < by)) {
        attn_see_(s, t, x->cut, lanes, at + left, at + right);
        continue;
      }
      /* In block order the blocks to the left come first as far as the own block reaches down;
       * then, in both orders, whole rows above the pixel and its own row up to it. */
      const int block = x->order == ATTN_IMAGE_BLOCK;
      if (m >= by + th && block) break;
      if (block) attn_see_(s, t, x->cut, lanes, at + left, at + bx);
      if (m > last && !block) break;
      const int64_t from = at + (block ? bx : left);
      const int64_t end = at + (block ? attn_min64_(bx + tw, w) : right);
      int64_t k = r;
      while (k < r1 && t->i[k] < at) k++;
      for (; k < r1 && t->i[k] < at + w; k++)
        attn_see_(s, t, x->cut, attn_bit_(k), from, t->i[k] + 1);
      attn_see_(s, t, x->cut, attn_lane_range_(k, r1), from, end);
    }
  }
}

ATTN_COLD_ void attn_see_line_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t d = x->step, n = x->count;
  for (int64_t r = 0; r < t->n; r++) {
    const int64_t i = t->i[r], own = i / d % n, base = i - own * d;
    const int64_t see = x->cut ? own + 1 : n;
    if (d == 1) {
      attn_toggle_keys_(s, t, attn_bit_(r), base, base + see);
    } else if (t->step == d) {
      const int64_t u = (base - t->first) / d;
      attn_put_toggles_(s, attn_bit_(r), u, u + see);
    } else {
      for (int64_t k = 0; k < see; k++)
        attn_toggle_keys_(s, t, attn_bit_(r), base + k * d, base + k * d + 1);
    }
  }
}

/* Level l of the tree has size[l] nodes from base[l] on; returns the top level. */
ATTN_COLD_ int attn_tree_levels_(int64_t tokens, int64_t size[64], int64_t base[64]) {
  int l = 0;
  size[0] = tokens, base[0] = 0;
  while (size[l] > 1) {
    size[l + 1] = (size[l] + 1) / 2;
    base[l + 1] = base[l] + size[l];
    l++;
  }
  return l;
}

/* The nodes beside token i, level by level, each once. */
ATTN_COLD_ void attn_see_token_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t,
                                int64_t r) {
  int64_t size[64], base[64], g = t->i[r], f = g + 1;
  const int top = attn_tree_levels_(x->width, size, base);
  const uint64_t lane = attn_bit_(r);
  int left = 1, right = !x->causal;
  attn_see_(s, t, x->cut, lane, g, f);
  if (x->overlap) g--; /* here g and f are nodes of the level, below they bound what is covered */
  for (int l = 0; l <= top; l++) {
    if (x->overlap) {
      if (left)
        attn_see_(s, t, x->cut, lane, base[l] + attn_max64_(g - x->count + 1, 0), base[l] + g + 1);
      if (right)
        attn_see_(s, t, x->cut, lane, base[l] + f, base[l] + attn_min64_(f + x->count, size[l]));
      left = left && g - x->count >= 0, right = right && f + x->count < size[l];
      g = attn_floor_(g - x->count, 2), f = (f + x->count) / 2;
      continue;
    }
    for (int64_t k = 0; k < x->count && g > 0; k++) {
      const int lev = g & ((int64_t)attn_low_bits_(l)) ? l - 1 : l;
      const int64_t node = (g >> lev) - 1;
      attn_see_(s, t, x->cut, lane, base[lev] + node, base[lev] + node + 1);
      g = node << lev;
    }
    for (int64_t k = 0; right && k < x->count && f < x->width; k++) {
      const int lev = f & ((int64_t)attn_low_bits_(l)) ? l - 1 : l;
      const int64_t node = f >> lev;
      attn_see_(s, t, x->cut, lane, base[lev] + node, base[lev] + node + 1);
      f = attn_min64_((node + 1) << lev, x->width);
    }
  }
}

ATTN_COLD_ void attn_see_tree_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  int64_t size[64], base[64];
  const int top = attn_tree_levels_(x->width, size, base);
  for (int64_t r = 0, l = 0; r < t->n; r++) {
    const int64_t i = t->i[r];
    if (i < x->width) {
      attn_see_token_(s, x, t, r);
      continue;
    }
    while (l < top && i >= base[l] + size[l]) l++;
    const int64_t lo = (i - base[l]) << l;
    attn_see_(s, t, x->cut, attn_bit_(r), lo, attn_min64_(lo + ((int64_t)1 << l), x->width));
    if (x->self) attn_see_(s, t, x->cut, attn_bit_(r), i, i + 1);
  }
}

/* The segment that holds i: the last that begins at or before it. */
ATTN_COLD_ int64_t attn_segment_of_(const attn_node_ *x, int64_t i) {
  return attn_at_least_(x->index, x->indices, i + 1) - 1;
}

ATTN_COLD_ void attn_see_segments_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  for (int64_t r = 0, r1; r < t->n; r = r1) {
    const int64_t a = attn_segment_of_(x, t->i[r]);
    r1 = attn_lanes_below_(t->i, t->n, r, x->index[a + 1]);
    attn_see_(s, t, x->cut, attn_lane_range_(r, r1), x->index[a], x->index[a + 1]);
  }
}

ATTN_COLD_ void attn_see_csr_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  for (int64_t r = 0; r < t->n; r++)
    for (int64_t c = x->indptr[t->i[r]]; c < x->indptr[t->i[r] + 1]; c++) {
      const int64_t j = x->index[c];
      if (!x->cut || j <= t->p[r]) attn_toggle_keys_(s, t, attn_bit_(r), j, j + 1);
    }
}

ATTN_COLD_ void attn_see_block_mask_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  for (int64_t r = 0, r1; r < t->n; r = r1) {
    const int64_t b = t->i[r] / x->block;
    const uint8_t *row = x->bits + b * x->stride;
    r1 = attn_lanes_below_(t->i, t->n, r, (b + 1) * x->block);
    for (int64_t k = 0; k < x->stride; k++)
      if (row[k])
        attn_see_(s, t, x->cut, attn_lane_range_(r, r1), k * x->step, k * x->step + x->step);
  }
}

/* Noised tokens, then clean ones. */
ATTN_COLD_ void attn_see_diffusion_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  const int64_t n = t->f->k_len / 2;
  for (int64_t r = 0, r1; r < t->n; r = r1) {
    const int64_t half = t->p[r] < n ? 0 : n, lo = (t->p[r] - half) / x->block * x->block;
    const int64_t hi = attn_min64_(lo + x->block, n);
    r1 = attn_lanes_below_(t->p, t->n, r, half + hi);
    const uint64_t lanes = attn_lane_range_(r, r1);
    if (!half) attn_see_(s, t, x->cut, lanes, lo, hi);
    attn_see_(s, t, x->cut, lanes, n, n + (half ? hi : lo));
  }
}

enum { ATTN_AXES_ = 3 };

/* What a token sees along an axis: the ordinals lo .. hi - 1 of its residue class, whose keys are `first`,
 * first + step, .. */
typedef struct attn_reach_of_ {
  int64_t lo, hi, first, step;
} attn_reach_of_;

ATTN_COLD_ attn_reach_of_ attn_axis_reach_(const attn_axis *x, int64_t place) {
  const int64_t d = attn_max64_(x->dilation, 1), t = attn_max64_(x->stride, 1), k = x->kernel;
  const int64_t i = place / d, last = (x->length - 1 - place % d) / d, group = i / t * t;
  attn_reach_of_ to;
  to.first = place % d, to.step = d;
  if (x->causal) {
    to.lo = attn_max64_(attn_min64_(group + t - 1, last) - k + 1, 0), to.hi = i + 1;
  } else {
    const int64_t lead = attn_min64_(group + t / 2, last);
    to.lo = attn_max64_(attn_min64_(lead - k / 2, last + 1 - k), 0), to.hi = to.lo + k;
  }
  return to;
}

/* The axes of a neighbourhood, with axes of one cell in front. */
ATTN_COLD_ void attn_axes_of_(const attn_node_ *x, attn_axis to[ATTN_AXES_]) {
  const int64_t front = ATTN_AXES_ - x->indices;
  for (int64_t a = 0; a < ATTN_AXES_; a++) {
    memset(&to[a], 0, sizeof to[a]);
    to[a].length = to[a].kernel = 1;
    if (a >= front) to[a] = x->axes[a - front];
  }
}

ATTN_COLD_ void attn_see_neighbors_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t) {
  attn_axis axis[ATTN_AXES_];
  attn_axes_of_(x, axis);
  const int64_t wide = axis[2].length, area = axis[1].length * wide;
  for (int64_t r = 0, r1; r < t->n; r = r1) {
    attn_reach_of_ to[ATTN_AXES_], next[ATTN_AXES_];
    for (r1 = r; r1 < t->n; r1++) { /* lanes that see alike */
      const int64_t p = t->p[r1];
      if (p < 0 || p >= t->f->k_len) break;
      next[0] = attn_axis_reach_(&axis[0], p / area);
      next[1] = attn_axis_reach_(&axis[1], p / wide % axis[1].length);
      next[2] = attn_axis_reach_(&axis[2], p % wide);
      if (r1 > r && memcmp(next, to, sizeof to) != 0) break;
      memcpy(to, next, sizeof to);
    }
    if (r1 == r) { /* outside of the grid */
      r1++;
      continue;
    }
    const uint64_t lanes = attn_lane_range_(r, r1);
    const int64_t step = to[2].step == t->step && x->indices == 1 ? 1 : to[2].step;
    for (int64_t z = to[0].lo; z < to[0].hi; z++)
      for (int64_t y = to[1].lo; y < to[1].hi; y++) {
        const int64_t line =
            (to[0].first + z * to[0].step) * area + (to[1].first + y * to[1].step) * wide;
        const int64_t lo = line + to[2].first + to[2].lo * to[2].step;
        const int64_t hi = line + to[2].first + (to[2].hi - 1) * to[2].step + 1;
        if (step == 1) /* keys in a row, or all in the class of the rows */
          attn_see_(s, t, x->cut, lanes, lo, hi);
        for (int64_t j = lo; step > 1 && j < hi; j += step)
          attn_see_(s, t, x->cut, lanes, j, j + 1);
      }
  }
}

/* The bits of up to 64 keys of a row; those of keys that do not exist are ignored. */
ATTN_COLD_ uint64_t attn_bitmap_word_(const attn_node_ *x, const attn_rows_ *t, int64_t r,
                                      int64_t k, int64_t n) {
  const uint8_t *row = x->bits + t->i[r] * x->stride;
  uint64_t word = 0;
  if (t->step > 1) {
    for (int64_t c = 0; c < n; c++) {
      const int64_t j = t->first + (k + c) * t->step;
      word |= (uint64_t)(row[j >> 3] >> (j & 7) & 1) << c;
    }
  } else {
#ifndef ATTN_BIG_ENDIAN_
    if (n == 64)
      memcpy(&word, row + (k >> 3), 8);
    else
#endif
      for (int64_t c = 0; c < n; c += 8) word |= (uint64_t)row[(k + c) >> 3] << c;
  }
  if (x->cut) { /* ordinals whose key is at most p */
    const int64_t past = attn_floor_(t->p[r] - t->first, t->step) + 1 - k;
    n = attn_max64_(attn_min64_(n, past), 0);
  }
  return word & attn_low_bits_(n);
}

/* Words of 64 keys, a cache line of each row at a time. */
enum { ATTN_BITMAP_WORDS_ = 8 };
ATTN_COLD_ int attn_leaf_bitmap_(const attn_node_ *x, const attn_rows_ *t, attn_runs_ *out) {
  uint64_t a[ATTN_BITMAP_WORDS_][64];
  for (int64_t k0 = 0; k0 < t->keys; k0 += ATTN_BITMAP_WORDS_ * 64) {
    uint64_t any[ATTN_BITMAP_WORDS_] = {0};
    for (int64_t r = 0; r < 64; r++)
      for (int w = 0; w < ATTN_BITMAP_WORDS_; w++) {
        const int64_t k = k0 + w * 64, n = attn_min64_(64, t->keys - k);
        any[w] |= a[w][r] = r < t->n && n > 0 ? attn_bitmap_word_(x, t, r, k, n) : 0;
      }
    for (int w = 0; w < ATTN_BITMAP_WORDS_; w++) {
      if (!any[w]) continue;
      attn_transpose_bits_(a[w]);
      for (int64_t c = 0; c < 64; c++)
        if (!attn_run_add_(out, k0 + w * 64 + c, 1, a[w][c])) return 0;
    }
  }
  return 1;
}

/* Ordinals k0 .. k1 - 1: a rectangle is asked about first; those of unclear content are halved
 * down to 64 keys. */
ATTN_COLD_ int attn_leaf_predicate_(const attn_node_ *x, const attn_rows_ *t, attn_runs_ *out,
                                    int64_t k0, int64_t k1) {
  const uint64_t all = attn_low_bits_(t->n);
  if (k0 >= k1) return 1;
  if (x->rectangle) {
    const attn_rectangle is =
        x->rectangle(x->user, x->head, t->i[0], t->i[t->n - 1] + 1, t->first + k0 * t->step,
                     t->first + (k1 - 1) * t->step + 1);
    if (is == ATTN_EMPTY) return 1;
    if (is == ATTN_WHOLE) return attn_run_add_(out, k0, k1 - k0, all);
    if (k1 - k0 > 64) {
      const int64_t mid = (k0 + (k1 - k0) / 2 + 63) / 64 * 64;
      return attn_leaf_predicate_(x, t, out, k0, mid) && attn_leaf_predicate_(x, t, out, mid, k1);
    }
  }
  for (int64_t k = k0; k < k1; k++) {
    uint64_t lanes = 0;
    for (int64_t r = 0; r < t->n; r++)
      if (x->pair(x->user, x->head, t->i[r], t->first + k * t->step)) lanes |= attn_bit_(r);
    if (!attn_run_add_(out, k, 1, lanes)) return 0;
  }
  return 1;
}

/* One row with scattered keys needs no sweep. */
ATTN_COLD_ int attn_leaf_scattered_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t,
                                    attn_runs_ *out) {
  const int64_t keys = t->f->k_len, p = t->p[0], past = attn_max64_(attn_min64_(p + 1, keys), 0);
  const int64_t end = x->cut ? past : keys, n = x->causal ? past : keys;
  if (x->kind == ATTN_PATTERN_CSR) {
    const int64_t count = x->indptr[t->i[0] + 1] - x->indptr[t->i[0]];
    if (!count) return 1;
    const int32_t *row = x->index + x->indptr[t->i[0]];
    int64_t above = -1, c = 0;
    for (; c < count && row[c] > above; above = row[c++])
      if (row[c] < end && !attn_run_add_(out, row[c], 1, 1)) return 0;
    if (c == count) return 1; /* the usual order */
    out->count = 0;
    s->full = !attn_drawn_copy_(&s->drawn, row, count);
    return attn_drain_(s, out, end);
  }
  if (x->count >= n) return attn_run_add_(out, 0, attn_min64_(n, end), 1);
  s->full =
      !attn_draw_(&s->drawn, attn_stream_(x->seed, ATTN_DRAW_TOKENS_, x->head, p), n, x->count);
  return attn_drain_(s, out, end);
}

ATTN_COLD_ int attn_leaf_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t,
                          attn_runs_ *out) {
  out->count = 0;
  if (t->n == 1 && t->step == 1 && (x->kind == ATTN_PATTERN_RANDOM || x->kind == ATTN_PATTERN_CSR))
    return attn_leaf_scattered_(s, x, t, out);
  switch ((int)x->kind) {
    case ATTN_PATTERN_BAND: attn_see_band_(s, x, t); break;
    case ATTN_PATTERN_DILATED: attn_see_dilated_(s, x, t); break;
    case ATTN_PATTERN_GLOBAL: attn_see_global_(s, x, t); break;
    case ATTN_PATTERN_ETC: attn_see_front_(s, x, t); break;
    case ATTN_PATTERN_RANDOM: attn_see_random_(s, x, t); break;
    case ATTN_PATTERN_RANDOM_BLOCKS: attn_see_random_blocks_(s, x, t); break;
    case ATTN_PATTERN_BLOCKS: attn_see_blocks_(s, x, t); break;
    case ATTN_PATTERN_RING: attn_see_ring_(s, x, t); break;
    case ATTN_PATTERN_BIGBIRD: attn_see_bigbird_(s, x, t); break;
    case ATTN_PATTERN_SPARSE_FIXED: attn_see_columns_(s, x, t); break;
    case ATTN_PATTERN_BLOCKWISE: attn_see_blockwise_(s, x, t); break;
    case ATTN_PATTERN_IMAGE_2D: attn_see_image_(s, x, t); break;
    case ATTN_PATTERN_AXIAL: attn_see_line_(s, x, t); break;
    case ATTN_PATTERN_TREE: attn_see_tree_(s, x, t); break;
    case ATTN_PATTERN_SEGMENTS: attn_see_segments_(s, x, t); break;
    case ATTN_PATTERN_CSR: attn_see_csr_(s, x, t); break;
    case ATTN_PATTERN_BLOCK_MASK: attn_see_block_mask_(s, x, t); break;
    case ATTN_PATTERN_BLOCK_DIFFUSION: attn_see_diffusion_(s, x, t); break;
    case ATTN_PATTERN_NEIGHBORHOOD: attn_see_neighbors_(s, x, t); break;
    case ATTN_PATTERN_BITMAP: return attn_leaf_bitmap_(x, t, out);
    case ATTN_PATTERN_PREDICATE: return attn_leaf_predicate_(x, t, out, 0, t->keys);
    default: break;
  }
  return attn_sweep_(s, out);
}
