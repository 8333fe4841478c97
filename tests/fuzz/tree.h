/* tree.h owns the decoding of bytes into patterns: trees of every kind, mostly sound, with arrays
 * as long as the fields say and no longer. Fields get hostile values where no value makes the
 * pattern lie about the length of an array, which no library could notice. */

#ifndef FUZZ_TREE_H
#define FUZZ_TREE_H

#include <stdio.h>

#include "store.h"

#define TREE_MAX 40 /* nodes */

typedef struct forest {
  input *in;
  store *s;
  int64_t heads, q, k; /* of the node at work */
  int64_t side;        /* a divisor of the lengths, for grids; 1 at worst */
  int64_t tokens;      /* leaves of a tree with k nodes */
  int nodes;
  int turns;                 /* transpositions above, which multiply the cost */
  const attn_pattern *cycle; /* the parts of a node above */
  int64_t cycle_count;
} forest;

static forest forest_of(input *in, store *s, int64_t heads, int64_t q, int64_t k) {
  forest f;
  memset(&f, 0, sizeof f);
  f.in = in, f.s = s, f.heads = heads, f.q = q, f.k = k, f.tokens = 1;
  for (f.side = 1 + below(in, 24); k % f.side; f.side--) {
  }
  while (f.tokens < k && k <= 4096 && attn_tree_nodes(f.tokens) < k) f.tokens++;
  return f;
}

/* ---- predicates: what pair says follows from the seed, and rectangle agrees ------------------*/

typedef struct asked {
  int64_t heads, longest;
  unsigned seed;
} asked;

static void asked_about(const asked *a, int64_t head, int64_t i, int64_t j) {
  if (head < 0 || head >= a->heads || i < 0 || i >= a->longest || j < 0 || j >= a->longest) {
    fprintf(stderr, "a predicate was asked about a pair that does not exist\n");
    abort();
  }
}

static int pair_of(void *user, int64_t head, int64_t i, int64_t j) {
  const asked *a = (const asked *)user;
  asked_about(a, head, i, j);
  switch (a->seed % 4) {
    case 0: return (i + j + head) % (1 + a->seed / 4) == 0;
    case 1: return i / (1 + a->seed / 4) == j / (1 + a->seed / 4);
    case 2: return (i * 7 + j * 13 + head) % 5 < 2;
    default: return (int)a->seed / 4 % 3 - 1;
  }
}

static attn_rectangle rectangle_of(void *user, int64_t head, int64_t i0, int64_t i1, int64_t j0,
                                   int64_t j1) {
  const asked *a = (const asked *)user;
  const int64_t n = 1 + a->seed / 4;
  asked_about(a, head, i0, j0);
  asked_about(a, head, i1 - 1, j1 - 1);
  if (i0 >= i1 || j0 >= j1) abort();
  if (a->seed % 4 == 3) return a->seed / 4 % 3 == 1 ? ATTN_EMPTY : ATTN_WHOLE;
  if (a->seed % 4 != 1) return ATTN_PARTIAL;
  if (i0 / n == (i1 - 1) / n && j0 / n == (j1 - 1) / n)
    return i0 / n == j0 / n ? ATTN_WHOLE : ATTN_EMPTY;
  return ATTN_PARTIAL;
}

static attn_pattern make_predicate(forest *f) {
  asked *a = (asked *)store_take(f->s, sizeof *a);
  a->heads = f->heads, a->longest = f->q > f->k ? f->q : f->k, a->seed = take(f->in);
  return attn_pattern_predicate(pair_of, below(f->in, 2) ? rectangle_of : NULL, a);
}

/* ---- patterns with arrays --------------------------------------------------------------------*/

static int64_t up(int64_t n, int64_t block) { return n / block + (n % block != 0); }

/* rows x stride bytes a head, the last row without what lies beyond its end. */
static const uint8_t *make_bits(forest *f, int64_t rows, int64_t stride, int64_t row,
                                int64_t heads) {
  if (heads < 1) heads = 1;
  int64_t size = array_size(rows, stride, heads);
  if (size < 0) return NULL;
  if (size > 0) size -= stride - row;
  uint8_t *bits = (uint8_t *)store_take(f->s, (size_t)size);
  filler r = {take(f->in), 0};
  const int dense = below(f->in, 3);
  for (int64_t i = 0; i < size; i++) {
    bits[i] = (uint8_t)filler_next(&r);
    if (dense == 1) bits[i] = bits[i] < 32 ? (uint8_t)filler_next(&r) : 0;
    if (dense == 2) bits[i] = bits[i] < 32 ? (uint8_t)filler_next(&r) : 0xff;
  }
  return bits;
}

static attn_pattern make_bitmap(forest *f) {
  const int64_t row = up(f->k, 8), stride = row + below(f->in, 3);
  const int64_t heads = below(f->in, 2) ? f->heads : below(f->in, 2);
  attn_pattern p = attn_pattern_bitmap(make_bits(f, f->q, stride, row, heads), stride);
  p.bits_heads = heads;
  return p;
}

static attn_pattern make_block_mask(forest *f) {
  const int64_t q = 1 + below(f->in, 70), k = 1 + below(f->in, 70), row = up(f->k, k);
  const int64_t heads = below(f->in, 2) ? f->heads : below(f->in, 2);
  attn_pattern p = attn_pattern_block_mask(make_bits(f, up(f->q, q), row, row, heads), q, k);
  p.bits_heads = heads;
  if (chance(f->in, 16)) p.key_block = -(int64_t)take(f->in);
  return p;
}

static attn_pattern make_csr(forest *f) {
  if (f->q < 0 || f->q > 4096) return attn_pattern_csr(NULL, NULL, 0);
  int64_t *at = (int64_t *)store_take(f->s, (size_t)(f->q + 1) * sizeof *at), count = 0;
  const int64_t most = f->k > 0 ? 1 + below(f->in, 12) : 1;
  filler r = {take(f->in), 0};
  for (int64_t i = 0; i < f->q; i++) at[i + 1] = at[i] + (int64_t)filler_next(&r) % most;
  count = at[f->q];
  int32_t *col = (int32_t *)store_take(f->s, (size_t)count * sizeof *col);
  for (int64_t i = 0; i < f->q; i++) {
    const int64_t n = at[i + 1] - at[i], step = n ? f->k / n : 0, turn = (int64_t)filler_next(&r);
    for (int64_t e = 0; e < n; e++) col[at[i] + e] = (int32_t)((e + turn) % n * step);
  }
  if (chance(f->in, 24)) at[take(f->in) % (uint64_t)(f->q + 1)] = nasty_int(f->in);
  if (count > 0 && chance(f->in, 24))
    col[take(f->in) % (uint64_t)count] = (int32_t)nasty_int(f->in);
  return attn_pattern_csr(at, col, count);
}

static attn_pattern make_global(forest *f) {
  int64_t n = below(f->in, 6);
  int32_t *list = store_ints(f->in, f->s, f->k > 0 ? n : 0, 0, f->k);
  attn_pattern p = attn_pattern_global(list, f->k > 0 ? n : 0);
  if (chance(f->in, 3)) {
    p.query_count = f->q > 0 ? below(f->in, 6) : 0;
    p.queries = store_ints(f->in, f->s, p.query_count, 0, f->q);
  }
  p.no_rows = chance(f->in, 4), p.no_columns = chance(f->in, 4);
  return p;
}

static attn_pattern make_axial(forest *f) {
  int32_t *shape = (int32_t *)store_take(f->s, 3 * sizeof *shape);
  const int64_t dims = 1 + below(f->in, 3);
  shape[0] = (int32_t)(dims > 1 ? f->side : f->k), shape[1] = (int32_t)(f->k / f->side);
  shape[2] = 1;
  if (chance(f->in, 24)) shape[below(f->in, 3)] = (int32_t)nasty_int(f->in);
  return attn_pattern_axial(shape, dims, below(f->in, (int)dims + 1) - 1);
}

static attn_pattern make_segments(forest *f) {
  int64_t n = below(f->in, 6);
  int32_t *inner = store_ascending(f->in, f->s, &n, f->k);
  int32_t *offsets = (int32_t *)store_take(f->s, (size_t)(n + 2) * sizeof *offsets);
  for (int64_t i = 0; i < n; i++) offsets[i + 1] = inner[i];
  offsets[n + 1] = (int32_t)f->k;
  return attn_pattern_segments(offsets, n + 1);
}

static attn_pattern make_blockwise(forest *f) {
  const int64_t n = 1 + below(f->in, 9), all = array_size(f->heads, n, 1);
  int32_t *order = NULL;
  if (below(f->in, 2) && all > 0) {
    order = (int32_t *)store_take(f->s, (size_t)all * sizeof *order);
    if (attn_block_permutations(order, f->heads, n, take(f->in)) != ATTN_OK) abort();
    if (chance(f->in, 16)) order[take(f->in) % (uint64_t)all] = (int32_t)nasty_int(f->in);
  }
  return attn_pattern_blockwise(n, order);
}

static attn_pattern make_sparse(forest *f, int fixed) {
  const int64_t n = 1 + below(f->in, 70);
  attn_pattern p = fixed ? attn_pattern_sparse_fixed(n, 1 + take(f->in) % n, ATTN_SPARSE_MERGED)
                         : attn_pattern_sparse_strided(n, ATTN_SPARSE_MERGED);
  p.use = (attn_sparse_use)below(f->in, 3), p.layer = below(f->in, 3);
  if (fixed) p.sub_blocks = below(f->in, 4);
  if (p.use == ATTN_SPARSE_HEADS && below(f->in, 2) && array_size(f->heads, 1, 1) >= 0) {
    p.indices = f->heads;
    p.index = store_ints(f->in, f->s, f->heads, 0, 3);
  }
  if (chance(f->in, 4)) p.causal = 0;
  return p;
}

static attn_pattern make_axes(forest *f) {
  attn_axis *axes =
      (attn_axis *)store_take(f->s, 3 * sizeof *axes); /* whatever `indices` becomes */
  const int64_t dims = 1 + below(f->in, 3);
  for (int64_t a = 0; a < 3; a++) {
    attn_axis *x = &axes[a];
    x->length = a == 0 ? (dims > 1 ? f->side : f->k) : a == 1 ? f->k / f->side : 1;
    x->dilation = below(f->in, 4);
    x->kernel = 1 + below(f->in, 9);
    x->stride = below(f->in, 4);
    if (x->dilation > 1 && x->dilation * x->kernel > x->length) x->dilation = 1;
    if (x->kernel > x->length) x->kernel = x->length;
    if (x->stride > x->kernel) x->stride = x->kernel;
    x->causal = below(f->in, 2);
  }
  if (chance(f->in, 24)) axes[below(f->in, 3)].kernel = nasty_int(f->in);
  if (chance(f->in, 24)) axes[below(f->in, 3)].length = nasty_int(f->in);
  if (chance(f->in, 24)) axes[below(f->in, 3)].dilation = nasty_int(f->in);
  return attn_pattern_neighborhood_axes(axes, dims);
}

/* ---- compositions ----------------------------------------------------------------------------*/

static attn_pattern make_pattern(forest *f);

static attn_pattern make_parts(forest *f, attn_pattern_kind kind) {
  const int one = kind == ATTN_PATTERN_COMPLEMENT || kind == ATTN_PATTERN_TRANSPOSE;
  int64_t n = one ? 1 : kind == ATTN_PATTERN_DIFF ? 2 : below(f->in, 4);
  if (kind == ATTN_PATTERN_PER_HEAD) n = f->heads;
  const forest before = *f;
  attn_pattern p = attn_pattern_full(), *parts;
  p.kind = kind, p.part_count = n;
  if (n < 0 || n > 8) return p;
  parts = (attn_pattern *)store_take(f->s, (size_t)n * sizeof *parts);
  p.parts = parts;
  /* a cycle, where no array would be read with the lengths exchanged */
  if (f->cycle && chance(f->in, 24) && f->q == f->k && f->cycle_count >= n) {
    p.parts = f->cycle;
    if (!one) p.part_count = f->cycle_count;
    return p;
  }
  f->cycle = parts, f->cycle_count = n;
  if (kind == ATTN_PATTERN_TRANSPOSE) f->q = before.k, f->k = before.q, f->turns++;
  for (int64_t i = 0; i < n; i++) parts[i] = make_pattern(f);
  f->q = before.q, f->k = before.k, f->turns = before.turns;
  f->cycle = before.cycle, f->cycle_count = before.cycle_count;
  return p;
}

/* p inside 20 to 45 compositions of one part. */
static attn_pattern make_deep(forest *f, attn_pattern p) {
  const int depth = 20 + below(f->in, 26), joined = below(f->in, 2);
  for (int i = 0; i < depth; i++) {
    attn_pattern *part = (attn_pattern *)store_take(f->s, sizeof *part);
    *part = p;
    p = joined ? attn_pattern_union(part, 1) : attn_pattern_complement(part);
  }
  return p;
}

/* Hundreds of full parts. */
static attn_pattern make_broad(forest *f) {
  const int64_t n = 1000 + below(f->in, 50);
  attn_pattern *parts = (attn_pattern *)store_take(f->s, (size_t)n * sizeof *parts);
  for (int64_t i = 0; i < n; i++) parts[i] = attn_pattern_band(i, 0);
  return below(f->in, 2) ? attn_pattern_union(parts, n) : attn_pattern_intersect(parts, n);
}

/* ---- all kinds -------------------------------------------------------------------------------*/

static attn_pattern make_kind(forest *f, int kind) {
  input *in = f->in;
  int64_t n, w = chance(in, 4) ? -1 : below(in, 90);
  attn_pattern p;
  switch (kind) {
    case ATTN_PATTERN_GLOBAL: return make_global(f);
    case ATTN_PATTERN_BAND:
      if (chance(in, 4) && array_size(f->heads, 1, 1) >= 0)
        return attn_pattern_multiscale(store_ints(in, f->s, f->heads, 0, 90), f->heads);
      return attn_pattern_band(w, below(in, 60) - 1);
    case ATTN_PATTERN_DILATED:
      if (w < 0) return attn_pattern_strided(1 + below(in, 40));
      return attn_pattern_dilated(w, below(in, 20) - 1, 1 + below(in, 40));
    case ATTN_PATTERN_RANDOM: return attn_pattern_random(below(in, 40), take(in));
    case ATTN_PATTERN_RANDOM_BLOCKS:
      n = 1 + below(in, 70);
      return attn_pattern_random_blocks(n, below(in, 6), take(in));
    case ATTN_PATTERN_BLOCKS:
      n = 1 + below(in, 70);
      p = attn_pattern_blocks(n, below(in, 3), below(in, 3));
      switch (below(in, 6)) {
        case 4: return attn_pattern_chunked(n);
        case 5: return attn_pattern_block_causal(n);
        default: return p;
      }
    case ATTN_PATTERN_RING:
    case ATTN_PATTERN_STAR:
      p = kind == ATTN_PATTERN_RING ? attn_pattern_ring(below(in, 90))
                                    : attn_pattern_star(below(in, 90));
      p.no_ring = chance(in, 4);
      return p;
    case ATTN_PATTERN_LONGFORMER: {
      n = below(in, 5);
      const int32_t *list = store_ascending(in, f->s, &n, f->k);
      return attn_pattern_longformer(below(in, 90), 1 + below(in, 5), list, n);
    }
    case ATTN_PATTERN_ETC: n = below(in, 6); return attn_pattern_etc(n, 1 + below(in, 90));
    case ATTN_PATTERN_BIGBIRD:
      n = below(in, 70);
      p = chance(in, 4) ? attn_pattern_bigbird_etc(below(in, 20), n, take(in))
                        : attn_pattern_bigbird(n, take(in));
      if (chance(in, 4)) p.before = below(in, 4), p.after = below(in, 4), p.count = below(in, 6);
      if (chance(in, 4)) p.first = below(in, 4), p.last = below(in, 4);
      return p;
    case ATTN_PATTERN_SPARSE_STRIDED: return make_sparse(f, 0);
    case ATTN_PATTERN_SPARSE_FIXED: return make_sparse(f, 1);
    case ATTN_PATTERN_BLOCKWISE: return make_blockwise(f);
    case ATTN_PATTERN_IMAGE_1D:
      n = 1 + below(in, 70);
      p = attn_pattern_image_1d(n, take(in));
      p.causal = below(in, 2), p.after = below(in, 2) * below(in, 60);
      return p;
    case ATTN_PATTERN_IMAGE_2D:
      n = below(in, 9);
      if (chance(in, 4)) return attn_pattern_neighborhood(f->side, f->k / f->side, n);
      w = 1 + below(in, 9);
      p = attn_pattern_image_2d(f->side, f->k / f->side, 1 + below(in, 9), w, n, below(in, 9));
      p.order = (attn_image_order)below(in, 3);
      if (chance(in, 3)) p.bottom = below(in, 9);
      return p;
    case ATTN_PATTERN_AXIAL: return make_axial(f);
    case ATTN_PATTERN_TREE:
      p = attn_pattern_tree(f->tokens, 1 + below(in, 5));
      p.overlap = below(in, 2), p.include_self = below(in, 2);
      return p;
    case ATTN_PATTERN_SEGMENTS: return make_segments(f);
    case ATTN_PATTERN_PREDICATE: return make_predicate(f);
    case ATTN_PATTERN_BITMAP: return make_bitmap(f);
    case ATTN_PATTERN_CSR: return make_csr(f);
    case ATTN_PATTERN_BLOCK_MASK: return make_block_mask(f);
    case ATTN_PATTERN_BLOCK_DIFFUSION: return attn_pattern_block_diffusion(1 + below(in, 70));
    case ATTN_PATTERN_NEIGHBORHOOD: return make_axes(f);
    case ATTN_PATTERN_FULL: return attn_pattern_full();
    default: return make_parts(f, (attn_pattern_kind)kind);
  }
}

/* One field of any value; of those that say how long an array is only what is short enough. */
static void flaw_pattern(input *in, attn_pattern *p) {
  const int64_t bad = nasty_int(in);
  const int sized = p->kind == ATTN_PATTERN_BLOCK_MASK || p->kind == ATTN_PATTERN_BLOCKWISE;
  switch (below(in, 28)) {
    case 0: p->causal = (int)bad; break;
    case 1: p->left = bad; break;
    case 2: p->right = bad; break;
    case 3: p->step = bad; break;
    case 4:
      if (!sized || bad < 1 || bad > 4096) p->block = bad;
      break;
    case 5: p->before = bad; break;
    case 6: p->after = bad; break;
    case 7: p->first = bad; break;
    case 8: p->last = bad; break;
    case 9:
      if (!sized || !p->index || bad < 1) p->count = bad;
      break;
    case 10: p->seed = (uint64_t)bad; break;
    case 11: p->index = NULL; break;
    case 12:
      if (!p->index || bad < p->indices) p->indices = bad;
      break;
    case 13: p->queries = NULL; break;
    case 14:
      if (!p->queries || bad < p->query_count) p->query_count = bad;
      break;
    case 15: p->axis = bad; break;
    case 16: p->layer = bad; break;
    case 17: p->sub_blocks = bad; break;
    case 18: p->use = (attn_sparse_use)(bad & 0xff); break;
    case 19: p->height = bad; break;
    case 20: p->width = bad; break;
    case 21: p->tile_height = bad; break;
    case 22: p->tile_width = bad; break;
    case 23: p->top = bad; break;
    case 24: p->bottom = bad; break;
    case 25:
      if (!p->bits || bad < 0) p->bits_heads = bad;
      break;
    case 26:
      if (!p->bits || bad < 0) p->bits_stride = bad;
      break;
    default:
      if (bad < 0 || bad > 1024 || bad < p->part_count) p->part_count = bad;
      p->pair = NULL;
      if ((unsigned)p->kind < ATTN_PATTERN_BLOCKWISE) p->kind = (attn_pattern_kind)(bad & 0xff);
      if ((unsigned)p->kind > ATTN_PATTERN_SPARSE_FIXED && (unsigned)p->kind < ATTN_PATTERN_COUNT)
        p->kind = ATTN_PATTERN_FULL;
      break;
  }
}

static attn_pattern make_pattern(forest *f) {
  input *in = f->in;
  int kind = below(in, ATTN_PATTERN_COUNT);
  if (f->nodes++ >= TREE_MAX && kind >= ATTN_PATTERN_UNION) kind = ATTN_PATTERN_BAND;
  if (kind == ATTN_PATTERN_TRANSPOSE && f->turns > 1) kind = ATTN_PATTERN_COMPLEMENT;
  attn_pattern p = make_kind(f, kind);
  if (chance(in, 8)) p.causal = 1;
  if (chance(in, 16)) flaw_pattern(in, &p);
  if (f->nodes == 1 && chance(in, 32)) p = below(in, 2) ? make_deep(f, p) : make_broad(f);
  return p;
}

#endif
