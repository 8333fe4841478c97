/* calls/pattern_lower.h owns what compound kinds are made of: the checked pattern of one head
 * as a tree of nodes. */

typedef struct attn_lower_ {
  const attn_tree_ *tree;
  attn_node_ *node;
  int64_t count, head;
} attn_lower_;

/* Beyond every distance of positions, and small enough to be added up. */
#define ATTN_FAR_ ((int64_t)1 << 34)

ATTN_COLD_ int64_t attn_near_(int64_t x) { return attn_min64_(x, ATTN_FAR_); }

/* A node; what follows hangs it into its parent. */
ATTN_COLD_ attn_node_ *attn_node_add_(attn_lower_ *l, int64_t kind, int64_t cut) {
  attn_node_ *x = &l->node[l->count++];
  memset(x, 0, sizeof *x);
  x->kind = kind, x->cut = cut != 0;
  return x;
}

ATTN_COLD_ void attn_hang_(attn_lower_ *l, int64_t parent, int64_t *last, int64_t part) {
  if (*last)
    l->node[*last].next = part;
  else
    l->node[parent].part = part;
  *last = part;
}

ATTN_COLD_ void attn_lower_band_(attn_lower_ *l, int64_t left, int64_t right, int64_t step,
                                 int64_t cut) {
  const int64_t kind = step > 1 ? ATTN_PATTERN_DILATED : ATTN_PATTERN_BAND;
  attn_node_ *x = attn_node_add_(l, kind, cut);
  x->left = attn_near_(left), x->right = attn_near_(right), x->step = attn_near_(step);
}

ATTN_COLD_ attn_node_ *attn_lower_block_(attn_lower_ *l, int64_t kind, int64_t block, int64_t cut) {
  attn_node_ *x = attn_node_add_(l, kind, cut);
  x->block = attn_near_(block);
  return x;
}

ATTN_COLD_ void attn_lower_global_(attn_lower_ *l, const attn_pattern *p, int64_t cut) {
  attn_node_ *x = attn_node_add_(l, ATTN_PATTERN_GLOBAL, cut);
  x->rows = !p->no_rows, x->columns = !p->no_columns;
  x->indices = p->indices;
  x->index = attn_sorted_list_(l->tree, p->index, &x->indices);
  if (!p->queries) return;
  x->query_count = p->query_count;
  x->queries = attn_sorted_list_(l->tree, p->queries, &x->query_count);
}

ATTN_COLD_ void attn_lower_image_(attn_lower_ *l, const attn_pattern *p, int64_t cut) {
  attn_node_ *x = attn_node_add_(l, ATTN_PATTERN_IMAGE_2D, cut);
  x->height = p->height, x->width = p->width, x->order = (int64_t)p->order;
  x->tile_height = attn_min64_(p->tile_height, p->height);
  x->tile_width = attn_min64_(p->tile_width, p->width);
  x->top = attn_near_(p->top), x->bottom = attn_near_(p->bottom);
  x->left = attn_near_(p->left), x->right = attn_near_(p->right);
}

/* One axis, or all; axes of one cell add nothing to others. */
ATTN_COLD_ void attn_lower_axial_(attn_lower_ *l, const attn_pattern *p, int64_t cut) {
  const int64_t root = l->count;
  int64_t last = 0, step = 1;
  if (p->axis < 0) attn_node_add_(l, ATTN_PATTERN_UNION, 0);
  for (int64_t a = p->indices - 1; a >= 0; step *= p->index[a--]) {
    if (p->axis >= 0 ? a != p->axis : p->index[a] == 1 && (a > 0 || last)) continue;
    const int64_t at = l->count;
    attn_node_ *x = attn_node_add_(l, ATTN_PATTERN_AXIAL, cut);
    x->step = step, x->count = p->index[a];
    if (p->axis < 0) attn_hang_(l, root, &last, at);
  }
}

/* Which of the two sets of a Sparse Transformer a head uses; 2 = both. */
ATTN_COLD_ int64_t attn_sparse_set_(const attn_pattern *p, int64_t head) {
  if (p->use == ATTN_SPARSE_MERGED) return 2;
  if (p->use == ATTN_SPARSE_INTERLEAVE) return p->layer % 2;
  return p->index ? p->index[head] : head % 2;
}

ATTN_COLD_ void attn_lower_sparse_(attn_lower_ *l, const attn_pattern *p, int64_t cut) {
  const int64_t set = attn_sparse_set_(p, l->head), root = l->count;
  int64_t last = 0;
  if (set == 2) attn_node_add_(l, ATTN_PATTERN_UNION, 0);
  for (int64_t k = 0; k < 2; k++) {
    if (set != 2 && set != k) continue;
    const int64_t at = l->count;
    if (p->kind == ATTN_PATTERN_SPARSE_STRIDED) {
      if (k == 0)
        attn_lower_band_(l, p->left, p->left, 1, cut);
      else
        attn_lower_band_(l, -1, -1, p->step, cut);
    } else {
      attn_node_ *x = attn_lower_block_(l, k == 0 ? ATTN_PATTERN_BLOCKS : ATTN_PATTERN_SPARSE_FIXED,
                                        p->block, cut);
      if (k == 1) { /* sub-block v; those of blocks beyond all keys lie beyond them too */
        const int64_t v = l->head % attn_max64_(p->sub_blocks, 1);
        x->count = attn_near_(p->count);
        x->first = attn_near_(p->block - p->count * (v + 1));
      }
    }
    if (set == 2) attn_hang_(l, root, &last, at);
  }
}

/* A shift is told by its number, so that equal heads are seen to be equal. */
ATTN_COLD_ void attn_lower_blockwise_(attn_lower_ *l, const attn_pattern *p, int64_t cut) {
  attn_node_ *x = attn_node_add_(l, ATTN_PATTERN_BLOCKWISE, cut);
  const int64_t n = p->count;
  const int32_t *to = p->index ? p->index + l->head * n : NULL;
  x->count = n, x->left = to ? to[0] : l->head % n;
  if (to)
    for (int64_t b = 0; b < n; b++)
      if (to[b] != (b + to[0]) % n) x->index = to;
  if (x->index) x->left = 0;
}

ATTN_COLD_ void attn_lower_random_(attn_lower_ *l, const attn_pattern *p, int64_t cut) {
  attn_node_ *x =
      attn_lower_block_(l, (int64_t)p->kind, p->kind == ATTN_PATTERN_RANDOM ? 0 : p->block, cut);
  x->count = attn_near_(p->count);
  x->causal = cut != 0; /* whoever asks for it: what is drawn is not cut afterwards */
  if (p->count) x->seed = p->seed, x->head = l->head;
}

ATTN_COLD_ void attn_lower_bigbird_(attn_lower_ *l, const attn_pattern *p, int64_t cut) {
  attn_lower_random_(l, p, cut);
  attn_node_ *x = &l->node[l->count - 1];
  x->before = attn_near_(p->before), x->after = attn_near_(p->after);
  x->first = attn_near_(p->first), x->last = attn_near_(p->last);
  x->extra = p->left;
}

ATTN_COLD_ void attn_lower_user_(attn_lower_ *l, const attn_pattern *p, const attn_field_ *f,
                                 int64_t cut) {
  attn_node_ *x = attn_node_add_(l, (int64_t)p->kind, cut);
  const int64_t head = p->bits_heads > 1 ? l->head : 0;
  if (p->kind == ATTN_PATTERN_PREDICATE) {
    x->pair = p->pair, x->rectangle = p->rectangle, x->user = p->user, x->head = l->head;
  } else if (p->kind == ATTN_PATTERN_CSR) {
    x->indptr = p->indptr, x->index = p->index;
  } else if (p->kind == ATTN_PATTERN_BITMAP) {
    x->stride = p->bits_stride;
    if (p->bits) x->bits = p->bits + head * f->q_len * x->stride;
  } else {
    x->block = attn_near_(p->block), x->step = attn_near_(p->key_block);
    x->stride = attn_ceil_(f->k_len, p->key_block);
    if (p->bits) x->bits = p->bits + head * attn_ceil_(f->q_len, p->block) * x->stride;
  }
}

ATTN_COLD_ void attn_lower_pattern_(attn_lower_ *l, const attn_pattern *p, const attn_field_ *f,
                                    int64_t cut);

/* The cut of a result reaches the parts, whose draws are then among earlier keys. */
ATTN_COLD_ void attn_lower_algebra_(attn_lower_ *l, const attn_pattern *p, const attn_field_ *f,
                                    int64_t cut) {
  const int64_t root = l->count;
  const int pair = p->kind == ATTN_PATTERN_DIFF, turn = p->kind == ATTN_PATTERN_TRANSPOSE;
  const int single = turn || p->kind == ATTN_PATTERN_COMPLEMENT;
  const int64_t n = single ? 1 : pair ? 2 : p->part_count;
  attn_field_ turned;
  int64_t last = 0;
  turned.q_len = f->k_len, turned.k_len = f->q_len, turned.q_off = -f->q_off;
  attn_node_add_(l, (int64_t)p->kind, (single || n == 0) ? cut : 0);
  for (int64_t k = 0; k < n; k++) {
    const int64_t at = l->count;
    attn_lower_pattern_(l, &p->parts[k], turn ? &turned : f, single ? 0 : cut);
    attn_hang_(l, root, &last, at);
  }
}

ATTN_COLD_ void attn_lower_pattern_(attn_lower_ *l, const attn_pattern *p, const attn_field_ *f,
                                    int64_t cut) {
  const int64_t outer = cut, root = l->count;
  attn_node_ *x;
  int64_t last = 0;
  cut = cut || p->causal;
  switch ((int)p->kind) {
    case ATTN_PATTERN_FULL: attn_lower_band_(l, -1, -1, 1, cut); break;
    case ATTN_PATTERN_GLOBAL: attn_lower_global_(l, p, cut); break;
    case ATTN_PATTERN_BAND:
      attn_lower_band_(l, p->index ? p->index[l->head] : p->left,
                       p->index ? p->index[l->head] : p->right, 1, cut);
      break;
    case ATTN_PATTERN_DILATED: attn_lower_band_(l, p->left, p->right, p->step, cut); break;
    case ATTN_PATTERN_RANDOM:
    case ATTN_PATTERN_RANDOM_BLOCKS: attn_lower_random_(l, p, cut); break;
    case ATTN_PATTERN_BLOCKS:
    case ATTN_PATTERN_IMAGE_1D: {
      const int64_t unit = p->kind == ATTN_PATTERN_BLOCKS ? p->block : 1;
      x = attn_lower_block_(l, ATTN_PATTERN_BLOCKS, p->block, cut);
      x->before = attn_near_(attn_mul_(p->before, unit));
      x->after = attn_near_(attn_mul_(p->after, unit));
      break;
    }
    case ATTN_PATTERN_RING:
    case ATTN_PATTERN_STAR:
      x = attn_node_add_(l, ATTN_PATTERN_RING, cut);
      x->left = attn_near_(p->left), x->ring = !p->no_ring;
      x->first = p->kind == ATTN_PATTERN_STAR;
      break;
    case ATTN_PATTERN_LONGFORMER:
    case ATTN_PATTERN_ETC:
      attn_node_add_(l, ATTN_PATTERN_UNION, 0);
      attn_hang_(l, root, &last, l->count);
      if (p->kind == ATTN_PATTERN_LONGFORMER) {
        attn_lower_global_(l, p, cut);
      } else {
        x = attn_node_add_(l, ATTN_PATTERN_ETC, cut);
        x->first = p->first;
      }
      attn_hang_(l, root, &last, l->count);
      attn_lower_band_(l, p->left, p->right, p->kind == ATTN_PATTERN_ETC ? 1 : p->step, cut);
      break;
    case ATTN_PATTERN_BIGBIRD: attn_lower_bigbird_(l, p, cut); break;
    case ATTN_PATTERN_SPARSE_STRIDED:
    case ATTN_PATTERN_SPARSE_FIXED: attn_lower_sparse_(l, p, cut); break;
    case ATTN_PATTERN_BLOCKWISE: attn_lower_blockwise_(l, p, cut); break;
    case ATTN_PATTERN_IMAGE_2D: attn_lower_image_(l, p, cut); break;
    case ATTN_PATTERN_AXIAL: attn_lower_axial_(l, p, cut); break;
    case ATTN_PATTERN_TREE: /* its nodes are no positions: its own flag is no cut */
      x = attn_node_add_(l, ATTN_PATTERN_TREE, outer);
      x->width = p->width, x->count = attn_near_(p->count), x->causal = p->causal != 0;
      x->overlap = p->overlap != 0, x->self = p->include_self != 0;
      break;
    case ATTN_PATTERN_SEGMENTS:
      x = attn_node_add_(l, ATTN_PATTERN_SEGMENTS, cut);
      x->index = p->index, x->indices = p->indices;
      break;
    case ATTN_PATTERN_BLOCK_DIFFUSION:
      attn_lower_block_(l, ATTN_PATTERN_BLOCK_DIFFUSION, p->block, cut);
      break;
    case ATTN_PATTERN_NEIGHBORHOOD:
      x = attn_node_add_(l, ATTN_PATTERN_NEIGHBORHOOD, cut);
      x->axes = p->axes, x->indices = p->indices;
      break;
    case ATTN_PATTERN_PREDICATE:
    case ATTN_PATTERN_BITMAP:
    case ATTN_PATTERN_CSR:
    case ATTN_PATTERN_BLOCK_MASK: attn_lower_user_(l, p, f, cut); break;
    case ATTN_PATTERN_PER_HEAD: attn_lower_pattern_(l, &p->parts[l->head], f, cut); break;
    default: attn_lower_algebra_(l, p, f, cut); break;
  }
}
#undef ATTN_FAR_
