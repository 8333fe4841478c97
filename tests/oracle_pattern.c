/* tests/oracle_pattern.c owns the predicates of tests/oracle_pattern.h. Clarity is all that counts
 * here; only samples are remembered from one pair to the next. */

#include "oracle_pattern.h"

#include <stdlib.h>
#include <string.h>

/* Floor division, and the remainder in 0 .. b-1. */
static int64_t quotient(int64_t a, int64_t b) { return a / b - (a % b < 0); }
static int64_t remainder_of(int64_t a, int64_t b) { return a - quotient(a, b) * b; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t clamp(int64_t x, int64_t low, int64_t high) { return most(low, least(x, high)); }

/* ---- the generator --------------------------------------------------------------------------*/

#define GAMMA 0x9E3779B97F4A7C15u

static uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

static uint64_t absorb(uint64_t s, uint64_t x) { return mix((s ^ x) + GAMMA); }

oracle_stream oracle_stream_of(uint64_t seed, uint64_t tag, uint64_t head, uint64_t row) {
  oracle_stream s = {absorb(absorb(absorb(seed, tag), head), row)};
  return s;
}

uint64_t oracle_next64(oracle_stream *s) {
  s->state += GAMMA;
  return mix(s->state);
}

uint64_t oracle_bounded(oracle_stream *s, uint64_t n) {
  uint64_t threshold = (((uint64_t)1 << 32) - n) % n;
  for (;;) { /* the threshold is below n, so testing it alone redraws in the same cases */
    uint64_t product = (oracle_next64(s) >> 32) * n;
    if ((product & 0xFFFFFFFFu) >= threshold) return product >> 32;
  }
}

static int by_value(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

int64_t oracle_sample(oracle_stream *s, int64_t n, int64_t count, int64_t *out) {
  int64_t have = 0;
  if (count >= n) {
    for (; have < n; have++) out[have] = have;
    return have;
  }
  for (int64_t t = n - count; t < n; t++) {
    int64_t u = (int64_t)oracle_bounded(s, (uint64_t)t + 1);
    for (int64_t c = 0; c < have; c++) {
      if (out[c] == u) {
        u = t;
        break;
      }
    }
    out[have++] = u;
  }
  qsort(out, (size_t)have, sizeof *out, by_value);
  return have;
}

void oracle_permutation(oracle_stream *s, int64_t n, int32_t *out) {
  for (int64_t t = 0; t < n; t++) out[t] = (int32_t)t;
  for (int64_t t = n - 1; t >= 1; t--) {
    int64_t u = (int64_t)oracle_bounded(s, (uint64_t)t + 1);
    int32_t keep = out[t];
    out[t] = out[u];
    out[u] = keep;
  }
}

/* Whether x is in the sample. The last draws are kept, since neighbouring pairs share them. */
static int sampled(uint64_t seed, uint64_t tag, int64_t head, int64_t row, int64_t n, int64_t count,
                   int64_t x) {
  enum { KEPT = 4096 };
  static struct {
    uint64_t seed, tag;
    int64_t head, row, n, count, have;
  } last;
  static int64_t draw[KEPT];
  if (n <= 0 || x < 0 || x >= n) return 0;
  if (count >= n) return 1;
  if (last.seed != seed || last.tag != tag || last.head != head || last.row != row || last.n != n ||
      last.count != count) {
    if (count > KEPT) abort();
    oracle_stream s = oracle_stream_of(seed, tag, (uint64_t)head, (uint64_t)row);
    last.have = oracle_sample(&s, n, count, draw);
    last.seed = seed;
    last.tag = tag;
    last.head = head;
    last.row = row;
    last.n = n;
    last.count = count;
  }
  for (int64_t c = 0; c < last.have; c++) {
    if (draw[c] == x) return 1;
  }
  return 0;
}

/* ---- the kinds ------------------------------------------------------------------------------*/

/* What every predicate may ask for: the pattern, the extents, the pair, and p(i). */
typedef struct pair_of {
  const attn_pattern *p;
  int64_t heads, q_len, k_len, q_off, h, i, j, at;
  int causal; /* it, or what it is a part of */
} pair_of;

static int listed(const int32_t *list, int64_t n, int64_t x) {
  for (int64_t c = 0; c < n; c++) {
    if (list[c] == x) return 1;
  }
  return 0;
}

/* -1 drops a side. */
static int within(int64_t distance, int64_t left, int64_t right) {
  return (left < 0 || distance >= -left) && (right < 0 || distance <= right);
}

static int global(const pair_of *s) {
  const attn_pattern *p = s->p;
  if (!p->no_columns && listed(p->index, p->indices, s->j)) return 1;
  if (p->no_rows) return 0;
  return p->queries ? listed(p->queries, p->query_count, s->i)
                    : listed(p->index, p->indices, s->at);
}

static int band(const pair_of *s) {
  if (s->p->index) return within(s->j - s->at, s->p->index[s->h], s->p->index[s->h]);
  return within(s->j - s->at, s->p->left, s->p->right);
}

static int dilated(const pair_of *s) {
  int64_t distance = s->j - s->at;
  if (remainder_of(distance, s->p->step)) return 0;
  return within(quotient(distance, s->p->step), s->p->left, s->p->right);
}

static int random_keys(const pair_of *s) {
  int64_t n = s->causal ? clamp(s->at + 1, 0, s->k_len) : s->k_len;
  return sampled(s->p->seed, 1, s->h, s->at, n, s->p->count, s->j);
}

static int random_blocks(const pair_of *s) {
  int64_t bs = s->p->block, qb = quotient(s->at, bs), nkb = (s->k_len + bs - 1) / bs;
  int64_t n = s->causal ? clamp(qb + 1, 0, nkb) : nkb;
  return sampled(s->p->seed, 2, s->h, qb, n, s->p->count, s->j / bs);
}

static int blocks(const pair_of *s) {
  int64_t qb = quotient(s->at, s->p->block), kb = s->j / s->p->block;
  return qb - s->p->before <= kb && kb <= qb + s->p->after;
}

/* Places a and b of n on a ring or a line. */
static int neighbours(const attn_pattern *p, int64_t n, int64_t a, int64_t b) {
  int64_t d = a > b ? a - b : b - a;
  return d <= p->left || (!p->no_ring && n - d <= p->left);
}

static int star(const pair_of *s) {
  if (s->i == 0 || s->j == 0) return 1;
  return neighbours(s->p, s->q_len - 1, s->i - 1, s->j - 1);
}

static int longformer(const pair_of *s) {
  const attn_pattern *p = s->p;
  if (listed(p->index, p->indices, s->i) || listed(p->index, p->indices, s->j)) return 1;
  int64_t distance = s->j - s->i;
  if (remainder_of(distance, p->step)) return 0;
  return within(distance / p->step, p->left, p->left);
}

static int etc(const pair_of *s) {
  if (s->i < s->p->first || s->j < s->p->first) return 1;
  return within(s->j - s->i, s->p->left, s->p->left);
}

static int bigbird(const pair_of *s) {
  const attn_pattern *p = s->p;
  int64_t extra = p->left, bs = p->block ? p->block : 64, at = s->at - extra, j = s->j - extra;
  if ((s->at >= 0 && at < 0) || j < 0) return 1;
  int64_t nb = (s->k_len - extra + bs - 1) / bs, qb = quotient(at, bs), kb = j / bs;
  int64_t tail = most(0, nb - p->last);
  if (qb >= 0 && (qb < p->first || (qb >= tail && qb < nb))) return 1;
  if (kb < p->first || kb >= tail) return 1;
  if (qb - p->before <= kb && kb <= qb + p->after) return 1;
  /* kb is a candidate: which, and of how many? */
  int64_t rank = -1, candidates = 0;
  for (int64_t b = 0; b < nb; b++) {
    if (b < p->first || b >= tail || (qb - p->before <= b && b <= qb + p->after)) continue;
    if (s->causal && b > qb) continue;
    if (b == kb) rank = candidates;
    candidates++;
  }
  return rank >= 0 && sampled(p->seed, 3, s->h, qb, candidates, p->count, rank);
}

/* Which of the two sets of a Sparse Transformer head h uses: 0, 1 or 2 for both. */
static int set_in_use(const pair_of *s) {
  if (s->p->use == ATTN_SPARSE_MERGED) return 2;
  if (s->p->use == ATTN_SPARSE_INTERLEAVE) return (int)(s->p->layer % 2);
  return s->p->index ? s->p->index[s->h] : (int)(s->h % 2);
}

static int sparse_strided(const pair_of *s) {
  const attn_pattern *p = s->p;
  int64_t back = s->at - s->j;
  int local = back <= p->left && back >= -p->left, far = remainder_of(back, p->step) == 0;
  int use = set_in_use(s);
  return use == 0 ? local : use == 1 ? far : local || far;
}

static int sparse_fixed(const pair_of *s) {
  const attn_pattern *p = s->p;
  int64_t l = p->block, c = p->count, v = s->h % (p->sub_blocks ? p->sub_blocks : 1);
  int64_t column = s->j % l;
  int own = s->j / l == quotient(s->at, l);
  int summary = l - c * (v + 1) <= column && column < l - c * v;
  int use = set_in_use(s);
  return use == 0 ? own : use == 1 ? summary : own || summary;
}

static int blockwise(const pair_of *s) {
  int64_t n = s->p->count, qb = s->i * n / s->q_len, kb = s->j * n / s->k_len;
  return (s->p->index ? s->p->index[s->h * n + qb] : (qb + s->h) % n) == kb;
}

static int image_1d(const pair_of *s) {
  int64_t l = s->p->block, b = quotient(s->at, l);
  return b * l - s->p->before <= s->j && s->j <= (b + 1) * l - 1 + s->p->after;
}

static int image_2d(const pair_of *s) {
  const attn_pattern *p = s->p;
  int64_t th = p->tile_height, tw = p->tile_width;
  int64_t y = s->i / p->width, x = s->i % p->width, ky = s->j / p->width, kx = s->j % p->width;
  int64_t by = y / th, bx = x / tw;
  if (ky < by * th - p->top || ky > (by + 1) * th - 1 + p->bottom) return 0;
  if (kx < bx * tw - p->left || kx > (bx + 1) * tw - 1 + p->right) return 0;
  if (p->order == ATTN_IMAGE_NONE) return 1;
  if (p->order == ATTN_IMAGE_RASTER) return s->j <= s->i;
  const int64_t query[4] = {by, bx, y % th, x % tw}, key[4] = {ky / th, kx / tw, ky % th, kx % tw};
  for (int c = 0; c < 4; c++) {
    if (key[c] != query[c]) return key[c] < query[c];
  }
  return 1;
}

static int axial(const pair_of *s) {
  int64_t i = s->i, j = s->j, differ = 0, where = -1;
  for (int64_t a = s->p->indices - 1; a >= 0; a--) {
    int64_t n = s->p->index[a], ci = i % n, cj = j % n;
    i /= n;
    j /= n;
    if (ci == cj) continue;
    differ++;
    where = a;
    if (s->p->causal && cj > ci) return 0;
  }
  if (differ == 0) return 1;
  return differ == 1 && (s->p->axis < 0 || s->p->axis == where);
}

static int segments(const pair_of *s) {
  const int32_t *at = s->p->index;
  for (int64_t a = 0; a + 1 < s->p->indices; a++) {
    if (at[a] <= s->i && s->i < at[a + 1]) return at[a] <= s->j && s->j < at[a + 1];
  }
  return 0;
}

/* ---- the tree -------------------------------------------------------------------------------*/

enum { LEVELS = 34 };
typedef struct tree {
  int64_t size[LEVELS], base[LEVELS];
  int top;
} tree;

static tree tree_over(int64_t tokens) {
  tree t;
  memset(&t, 0, sizeof t);
  t.size[0] = tokens;
  while (t.size[t.top] > 1) {
    t.size[t.top + 1] = (t.size[t.top] + 1) / 2;
    t.base[t.top + 1] = t.base[t.top] + t.size[t.top];
    t.top++;
  }
  return t;
}

int64_t oracle_tree_nodes(int64_t tokens) {
  tree t = tree_over(tokens);
  return t.base[t.top] + t.size[t.top];
}

int64_t oracle_tree_tokens(int64_t nodes) {
  for (int64_t tokens = 1; tokens <= nodes; tokens++) {
    if (oracle_tree_nodes(tokens) == nodes) return tokens;
  }
  return 0;
}

/* Both walks go level by level from the token outwards and say whether they meet node j. */
static int meets_partition(const tree *t, int64_t k, int causal, int64_t i, int64_t j) {
  int64_t tokens = t->size[0], left = i, right = i + 1;
  for (int l = 0; l <= t->top; l++) {
    for (int64_t n = 0; n < k && left > 0; n++) {
      int level = left % ((int64_t)1 << l) == 0 ? l : l - 1;
      int64_t m = (left >> level) - 1;
      if (t->base[level] + m == j) return 1;
      left = m << level;
    }
    for (int64_t n = 0; n < k && right < tokens && !causal; n++) {
      int level = right % ((int64_t)1 << l) == 0 ? l : l - 1;
      int64_t m = right >> level;
      if (t->base[level] + m == j) return 1;
      right = least((m + 1) << level, tokens);
    }
  }
  return 0;
}

static int meets_overlapping(const tree *t, int64_t k, int causal, int64_t i, int64_t j) {
  int64_t left = i - 1, right = i + 1;
  int go_left = 1, go_right = !causal;
  for (int l = 0; l <= t->top; l++) {
    int64_t n = t->size[l], m = j - t->base[l];
    int here = m >= 0 && m < n;
    if (go_left && here && m <= left && m > left - k) return 1;
    if (go_right && here && m >= right && m < right + k) return 1;
    go_left = go_left && left - k >= 0;
    go_right = go_right && right + k < n;
    left = quotient(left - k, 2);
    right = (right + k) / 2;
  }
  return 0;
}

static int tree_edges(const pair_of *s) {
  static tree t; /* of the last call */
  const attn_pattern *p = s->p;
  if (t.size[0] == 0 || t.base[t.top] + t.size[t.top] != s->q_len) {
    t = tree_over(oracle_tree_tokens(s->q_len));
  }
  int64_t tokens = t.size[0];
  if (s->i < tokens) {
    if (s->i == s->j) return 1;
    return (p->overlap ? meets_overlapping : meets_partition)(&t, p->count, p->causal, s->i, s->j);
  }
  if (s->j == s->i) return p->include_self;
  int level = 0;
  while (level < t.top && t.base[level + 1] <= s->i) level++;
  return s->j < tokens && s->j >> level == s->i - t.base[level];
}

/* ---- block diffusion, neighbourhoods ---------------------------------------------------------*/

static int block_diffusion(const pair_of *s) {
  int64_t n = s->q_len / 2, c = s->p->block;
  int noised = s->i < n, key_noised = s->j < n;
  int64_t own = (noised ? s->i : s->i - n) / c, other = (key_noised ? s->j : s->j - n) / c;
  if (noised) return key_noised ? own == other : other < own;
  return !key_noised && other <= own;
}

/* Whether place x of an axis sees place y: step by step as the papers' code finds a window. */
static int near_on_axis(const attn_axis *a, int64_t x, int64_t y) {
  int64_t d = a->dilation ? a->dilation : 1, t = a->stride ? a->stride : 1, n = 0, key = -1;
  if (x % d != y % d) return 0;
  for (int64_t u = x % d, m = 0; u < a->length; u += d, m++) {
    if (u == y) key = m;
    n++;
  }
  int64_t i = x / d, leader = i - i % t;
  if (a->causal) {
    leader = least(leader + t - 1, n - 1);
    return key <= i && key > leader - a->kernel;
  }
  leader = least(leader + t / 2, n - 1);
  int64_t start = leader - a->kernel / 2;
  while (start + a->kernel > n) start--;
  while (start < 0) start++;
  return start <= key && key < start + a->kernel;
}

static int neighborhood(const pair_of *s) {
  int64_t i = s->at, j = s->j;
  if (i < 0 || i >= s->k_len) return 0;
  for (int64_t a = s->p->indices - 1; a >= 0; a--) {
    int64_t n = s->p->axes[a].length;
    if (!near_on_axis(&s->p->axes[a], i % n, j % n)) return 0;
    i /= n;
    j /= n;
  }
  return 1;
}

/* ---- the user's own, and the algebra --------------------------------------------------------*/

static int bitmap(const pair_of *s) {
  const uint8_t *bits = s->p->bits;
  if (s->p->bits_heads > 1) bits += s->h * s->q_len * s->p->bits_stride;
  return bits[s->i * s->p->bits_stride + s->j / 8] >> (s->j % 8) & 1;
}

static int csr(const pair_of *s) {
  int64_t from = s->p->indptr[s->i], to = s->p->indptr[s->i + 1];
  return listed(s->p->index + from, to - from, s->j);
}

static int block_mask(const pair_of *s) {
  int64_t qb = s->p->block, kb = s->p->key_block;
  int64_t rows = (s->q_len + qb - 1) / qb, columns = (s->k_len + kb - 1) / kb;
  const uint8_t *bytes = s->p->bits;
  if (s->p->bits_heads > 1) bytes += s->h * rows * columns;
  return bytes[s->i / qb * columns + s->j / kb] != 0;
}

static int allows(const attn_pattern *p, const pair_of *outer);

static int has(const pair_of *s) {
  const attn_pattern *parts = s->p->parts;
  int64_t n = s->p->part_count;
  switch (s->p->kind) {
    case ATTN_PATTERN_FULL: return 1;
    case ATTN_PATTERN_GLOBAL: return global(s);
    case ATTN_PATTERN_BAND: return band(s);
    case ATTN_PATTERN_DILATED: return dilated(s);
    case ATTN_PATTERN_RANDOM: return random_keys(s);
    case ATTN_PATTERN_RANDOM_BLOCKS: return random_blocks(s);
    case ATTN_PATTERN_BLOCKS: return blocks(s);
    case ATTN_PATTERN_RING: return neighbours(s->p, s->q_len, s->i, s->j);
    case ATTN_PATTERN_STAR: return star(s);
    case ATTN_PATTERN_LONGFORMER: return longformer(s);
    case ATTN_PATTERN_ETC: return etc(s);
    case ATTN_PATTERN_BIGBIRD: return bigbird(s);
    case ATTN_PATTERN_SPARSE_STRIDED: return sparse_strided(s);
    case ATTN_PATTERN_SPARSE_FIXED: return sparse_fixed(s);
    case ATTN_PATTERN_BLOCKWISE: return blockwise(s);
    case ATTN_PATTERN_IMAGE_1D: return image_1d(s);
    case ATTN_PATTERN_IMAGE_2D: return image_2d(s);
    case ATTN_PATTERN_AXIAL: return axial(s);
    case ATTN_PATTERN_TREE: return tree_edges(s);
    case ATTN_PATTERN_SEGMENTS: return segments(s);
    case ATTN_PATTERN_PREDICATE: return s->p->pair(s->p->user, s->h, s->i, s->j) != 0;
    case ATTN_PATTERN_BITMAP: return bitmap(s);
    case ATTN_PATTERN_CSR: return csr(s);
    case ATTN_PATTERN_BLOCK_MASK: return block_mask(s);
    case ATTN_PATTERN_BLOCK_DIFFUSION: return block_diffusion(s);
    case ATTN_PATTERN_NEIGHBORHOOD: return neighborhood(s);
    case ATTN_PATTERN_UNION:
      for (int64_t c = 0; c < n; c++) {
        if (allows(&parts[c], s)) return 1;
      }
      return 0;
    case ATTN_PATTERN_INTERSECT:
      for (int64_t c = 0; c < n; c++) {
        if (!allows(&parts[c], s)) return 0;
      }
      return 1;
    case ATTN_PATTERN_DIFF: return allows(&parts[0], s) && !allows(&parts[1], s);
    case ATTN_PATTERN_COMPLEMENT: {
      pair_of whole = *s;
      whole.causal = 0;
      return !allows(&parts[0], &whole);
    }
    case ATTN_PATTERN_TRANSPOSE:
      return oracle_pattern(parts, s->heads, s->k_len, s->q_len, -s->q_off, s->h, s->j, s->i);
    case ATTN_PATTERN_PER_HEAD: return allows(&parts[s->h], s);
    default: abort();
  }
}

/* The pair of a part of a composition. In a tree, causal speaks of tokens, not of node numbers. */
static int allows(const attn_pattern *p, const pair_of *outer) {
  pair_of s = *outer;
  s.p = p;
  s.causal = outer->causal || p->causal;
  if (p->causal && p->kind != ATTN_PATTERN_TREE && s.j > s.at) return 0;
  return has(&s);
}

int oracle_pattern(const attn_pattern *p, int64_t heads, int64_t q_len, int64_t k_len,
                   int64_t q_off, int64_t h, int64_t i, int64_t j) {
  pair_of s = {p, heads, q_len, k_len, q_off, h, i, j, i + q_off, 0};
  return allows(p, &s);
}

int64_t oracle_pattern_mask(uint8_t *mask, const attn_pattern *p, int64_t heads, int64_t q_len,
                            int64_t k_len, int64_t q_off, int64_t h) {
  int64_t pairs = 0;
  for (int64_t i = 0; i < q_len; i++) {
    for (int64_t j = 0; j < k_len; j++) {
      int yes = oracle_pattern(p, heads, q_len, k_len, q_off, h, i, j);
      mask[i * k_len + j] = (uint8_t)yes;
      pairs += yes;
    }
  }
  return pairs;
}
