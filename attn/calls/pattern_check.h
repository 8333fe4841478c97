/* calls/pattern_check.h owns the rules that a pattern must obey, kind by kind, before any of
 * it is used. */

/* A global list in ascending order without doubles, made where the caller's is not. */
typedef struct attn_sorted_ {
  const int32_t *from;
  int64_t from_count;
  int32_t *list;
  int64_t count;
} attn_sorted_;

typedef struct attn_tree_ {
  attn_error_ *e;
  int64_t heads;
  int64_t parts;   /* met so far */
  int64_t nodes;   /* that one head's tree may need */
  int depends;     /* on the head */
  attn_drawn_ row; /* a list that is sorted to be looked at */
  attn_vec_ sorted;
} attn_tree_;

ATTN_COLD_ int attn_rule_(attn_tree_ *c, int ok, attn_status status, const char *reason) {
  return ok ? 1 : attn_reject_(c->e, status, reason);
}

#define ATTN_RULE_(ok, status, reason) attn_rule_(c, (ok), ATTN_E_##status, reason)

/* n numbers at a pointer, all within [lo, hi). */
ATTN_COLD_ int attn_check_numbers_(attn_tree_ *c, const int32_t *a, int64_t n, int64_t lo,
                                   int64_t hi, const char *reason) {
  attn_span_ span;
  if (n > 0 && !a)
    return attn_reject_(c->e, ATTN_E_NULL, "pattern: a list with entries must not be null");
  if (!attn_check_array_(c->e, a, n, sizeof *a, "pattern: a list must be aligned to its elements",
                         &span))
    return 0;
  for (int64_t k = 0; k < n; k++)
    if (a[k] < lo || a[k] >= hi) return attn_reject_(c->e, ATTN_E_INDEX, reason);
  return 1;
}

ATTN_COLD_ int attn_ascending_(const int32_t *a, int64_t n) {
  for (int64_t k = 1; k < n; k++)
    if (a[k] <= a[k - 1]) return 0;
  return 1;
}

/* A checked list that is not ascending gets a copy that is. */
ATTN_COLD_ int attn_check_sort_(attn_tree_ *c, const int32_t *a, int64_t n) {
  if (attn_ascending_(a, n)) return 1;
  attn_sorted_ *s = (attn_sorted_ *)attn_vec_room_(&c->sorted, 1, sizeof *s);
  if (!s || !attn_drawn_copy_(&c->row, a, n))
    return attn_reject_(c->e, ATTN_E_MEMORY, "ATTN_MALLOC returned null");
  s->from = a, s->from_count = n, s->list = c->row.list, s->count = 0;
  c->sorted.count++;
  c->row.list = NULL, c->row.room = 0; /* is the copy */
  for (int64_t k = 0; k < n; k++)
    if (s->count == 0 || s->list[k] > s->list[s->count - 1]) s->list[s->count++] = s->list[k];
  return 1;
}

/* The list as the nodes use it. */
ATTN_COLD_ const int32_t *attn_sorted_list_(const attn_tree_ *c, const int32_t *a, int64_t *n) {
  const attn_sorted_ *s = (const attn_sorted_ *)c->sorted.data;
  for (int64_t k = 0; k < c->sorted.count; k++)
    if (s[k].from == a && s[k].from_count == *n) {
      *n = s[k].count;
      return s[k].list;
    }
  return a;
}

ATTN_COLD_ int attn_check_global_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f) {
  return ATTN_RULE_(p->indices >= 0, RANGE, "pattern.indices must not be negative") &&
         ATTN_RULE_(!p->queries || p->query_count >= 0, RANGE,
                    "pattern.query_count must not be negative") &&
         attn_check_numbers_(c, p->index, p->indices, 0, f->k_len,
                             "pattern.index has an entry outside 0 .. k_len - 1") &&
         (!p->queries ||
          attn_check_numbers_(c, p->queries, p->query_count, 0, f->q_len,
                              "pattern.queries has an entry outside 0 .. q_len - 1")) &&
         attn_check_sort_(c, p->index, p->indices) &&
         (!p->queries || attn_check_sort_(c, p->queries, p->query_count));
}

ATTN_COLD_ int attn_check_sides_(attn_tree_ *c, const attn_pattern *p, int64_t least,
                                 const char *reason) {
  return ATTN_RULE_(p->left >= least && p->right >= least, RANGE, reason);
}

ATTN_COLD_ int attn_check_square_(attn_tree_ *c, const attn_field_ *f) {
  return ATTN_RULE_(f->q_len == f->k_len, SHAPE, "this pattern wants q_len = k_len") &&
         ATTN_RULE_(f->q_off == 0, RANGE, "this pattern wants q_len = k_len and q_off = 0");
}

ATTN_COLD_ int attn_check_step_(attn_tree_ *c, const attn_pattern *p) {
  return ATTN_RULE_(p->step >= 1, RANGE, "pattern.step must be at least 1");
}
ATTN_COLD_ int attn_check_block_(attn_tree_ *c, const attn_pattern *p) {
  return ATTN_RULE_(p->block >= 1, RANGE, "pattern.block must be at least 1");
}
ATTN_COLD_ int attn_check_beside_(attn_tree_ *c, const attn_pattern *p) {
  return ATTN_RULE_(p->before >= 0 && p->after >= 0, RANGE,
                    "pattern.before and pattern.after must not be negative");
}
ATTN_COLD_ int attn_check_count_(attn_tree_ *c, const attn_pattern *p, int64_t least,
                                 const char *reason) {
  return ATTN_RULE_(p->count >= least, RANGE, reason);
}

ATTN_COLD_ int attn_check_use_(attn_tree_ *c, const attn_pattern *p) {
  if (!ATTN_RULE_((int)p->use >= 0 && p->use <= ATTN_SPARSE_HEADS, RANGE,
                  "pattern.use must be an attn_sparse_use") ||
      !ATTN_RULE_(p->layer >= 0, RANGE, "pattern.layer must not be negative"))
    return 0;
  if (p->use != ATTN_SPARSE_HEADS || !p->index) return 1;
  return ATTN_RULE_(p->indices == c->heads, HEADS, "pattern.indices must equal heads") &&
         attn_check_numbers_(c, p->index, p->indices, 0, 3,
                             "pattern.index must assign sets 0, 1 or 2");
}

ATTN_COLD_ int attn_check_blockwise_(attn_tree_ *c, const attn_pattern *p) {
  const int64_t n = p->count;
  if (!attn_check_count_(c, p, 1, "pattern.count must be at least 1") ||
      !ATTN_RULE_(n <= INT32_MAX, RANGE, "pattern.count must be below 2^31"))
    return 0;
  if (!p->index || c->heads == 0) return 1;
  if (!ATTN_RULE_(n <= INT64_MAX / 8 / c->heads, OVERFLOW,
                  "pattern.index spans more than the address space") ||
      !attn_check_numbers_(c, p->index, c->heads * n, 0, n,
                           "pattern.index must hold permutations of 0 .. count - 1"))
    return 0;
  attn_vec_ v = {NULL, 0, 0};
  attn_marks_ set;
  const int64_t words = attn_marks_words_(n);
  uint64_t *zeros = (uint64_t *)attn_vec_room_(&v, words, sizeof *zeros);
  if (!zeros) return attn_reject_(c->e, ATTN_E_MEMORY, "ATTN_MALLOC returned null");
  memset(zeros, 0, (size_t)words * sizeof *zeros);
  attn_marks_cut_(&set, zeros, n);
  int fine = 1;
  for (int64_t h = 0; h < c->heads && fine; h++) {
    int64_t count = 0, from = 0;
    for (int64_t b = 0; b < n; b++) attn_mark_(&set, p->index[h * n + b]);
    for (uint64_t bits; (bits = attn_unmark_(&set, &from, n)) != 0;) count += attn_ones_(bits);
    fine = count == n;
  }
  ATTN_FREE(v.data);
  return ATTN_RULE_(fine, INDEX, "pattern.index must hold permutations of 0 .. count - 1");
}

ATTN_COLD_ int attn_check_image_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f) {
  return attn_check_square_(c, f) &&
         ATTN_RULE_(p->height >= 1 && p->width >= 1, SHAPE,
                    "pattern.height and pattern.width must be at least 1") &&
         ATTN_RULE_(attn_mul_(p->height, p->width) == f->k_len, SHAPE,
                    "pattern.height * pattern.width must equal k_len") &&
         ATTN_RULE_(p->tile_height >= 1 && p->tile_width >= 1, RANGE,
                    "pattern.tile_height and pattern.tile_width must be at least 1") &&
         ATTN_RULE_(p->top >= 0 && p->bottom >= 0 && p->left >= 0 && p->right >= 0, RANGE,
                    "pattern.top, bottom, left and right must not be negative") &&
         ATTN_RULE_((int)p->order >= 0 && p->order <= ATTN_IMAGE_NONE, RANGE,
                    "pattern.order must be an attn_image_order");
}

ATTN_COLD_ int attn_check_axial_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f) {
  int64_t product = 1;
  if (!attn_check_square_(c, f) ||
      !ATTN_RULE_(p->indices >= 1, RANGE, "pattern.indices: a grid has at least 1 axis") ||
      !attn_check_numbers_(c, p->index, p->indices, 1, INT64_MAX,
                           "pattern.index: the axes of a grid must be at least 1 long"))
    return 0;
  for (int64_t a = 0; a < p->indices; a++) product = attn_mul_(product, p->index[a]);
  return ATTN_RULE_(product == f->k_len, SHAPE, "pattern.index: the grid must have k_len cells") &&
         ATTN_RULE_(p->axis >= -1 && p->axis < p->indices, RANGE,
                    "pattern.axis must be -1 or an axis of the grid");
}

ATTN_COLD_ int attn_check_axes_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f) {
  attn_span_ span;
  int64_t cells = 1;
  if (!ATTN_RULE_(p->indices >= 1 && p->indices <= ATTN_AXES_, RANGE,
                  "pattern.indices: a neighbourhood has 1 to 3 axes") ||
      !ATTN_RULE_(p->axes != NULL, NULL, "pattern.axes must not be null") ||
      !attn_check_array_(c->e, p->axes, attn_mul_(p->indices, (int64_t)(sizeof *p->axes / 8)), 8,
                         "pattern.axes must be aligned to its elements", &span))
    return 0;
  for (int64_t a = 0; a < p->indices; a++) {
    const attn_axis *x = &p->axes[a];
    if (!ATTN_RULE_(x->length >= 1, SHAPE, "pattern.axes: length must be at least 1") ||
        !ATTN_RULE_(x->kernel >= 1 && x->dilation >= 0 &&
                        attn_mul_(x->kernel, attn_max64_(x->dilation, 1)) <= x->length,
                    RANGE, "pattern.axes: kernel * dilation must lie in 1 .. length") ||
        !ATTN_RULE_(x->stride >= 0 && x->stride <= x->kernel, RANGE,
                    "pattern.axes: stride must lie in 1 .. kernel, or be 0"))
      return 0;
    cells = attn_mul_(cells, x->length);
  }
  return ATTN_RULE_(cells == f->k_len, SHAPE, "pattern.axes: the grid must have k_len cells");
}

ATTN_COLD_ int attn_check_tree_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f) {
  int64_t size[64], base[64];
  if (!attn_check_square_(c, f) ||
      !ATTN_RULE_(p->width >= 1 && p->width <= INT32_MAX, SHAPE,
                  "pattern.width: a tree has at least 1 token") ||
      !attn_check_count_(c, p, 1, "pattern.count must be at least 1"))
    return 0;
  return ATTN_RULE_(base[attn_tree_levels_(p->width, size, base)] + 1 == f->k_len, SHAPE,
                    "k_len must be the number of nodes of the tree");
}

ATTN_COLD_ int attn_check_segments_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f) {
  const char *const reason =
      "pattern.index must begin with 0, end with k_len and never decrease (segments)";
  if (!attn_check_square_(c, f) ||
      !ATTN_RULE_(p->indices >= 1, RANGE, "pattern.indices must be 1 more than the segments") ||
      !ATTN_RULE_(p->index != NULL, NULL, "pattern.index must not be null") ||
      !attn_check_numbers_(c, p->index, p->indices, 0, f->k_len + 1, reason))
    return 0;
  for (int64_t k = 1; k < p->indices; k++)
    if (p->index[k] < p->index[k - 1]) return attn_reject_(c->e, ATTN_E_INDEX, reason);
  return ATTN_RULE_(p->index[0] == 0 && p->index[p->indices - 1] == f->k_len, INDEX, reason);
}

ATTN_COLD_ int attn_check_bits_(attn_tree_ *c, const attn_pattern *p, int64_t rows,
                                int64_t stride) {
  return ATTN_RULE_(p->bits_heads == 0 || p->bits_heads == 1 || p->bits_heads == c->heads, HEADS,
                    "pattern.bits_heads must be 0, 1 or heads") &&
         ATTN_RULE_(attn_mul_(attn_mul_(rows, stride), attn_max64_(p->bits_heads, 1)) <
                        (sizeof(void *) == 4 ? (int64_t)0x7fffffff : INT64_MAX / 4),
                    OVERFLOW, "pattern.bits spans more bytes than the address space holds") &&
         ATTN_RULE_(p->bits || rows == 0 || stride == 0 || c->heads == 0, NULL,
                    "pattern.bits must not be null");
}

ATTN_COLD_ int attn_check_csr_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f) {
  const int64_t *at = p->indptr;
  attn_span_ span;
  if (!ATTN_RULE_(at != NULL, NULL, "pattern.indptr must not be null") ||
      !ATTN_RULE_(p->indices >= 0, RANGE, "pattern.indices must not be negative") ||
      !attn_check_array_(c->e, at, f->q_len + 1, sizeof *at,
                         "pattern.indptr must be aligned to its elements", &span))
    return 0;
  if (!ATTN_RULE_(at[0] == 0, INDEX, "pattern.indptr must begin with 0")) return 0;
  for (int64_t i = 0; i < f->q_len; i++)
    if (at[i + 1] < at[i])
      return attn_reject_(c->e, ATTN_E_INDEX, "pattern.indptr must never decrease");
  if (!ATTN_RULE_(at[f->q_len] == p->indices, INDEX,
                  "pattern.indptr must end with pattern.indices") ||
      !attn_check_numbers_(c, p->index, p->indices, 0, f->k_len,
                           "pattern.index has a column outside 0 .. k_len - 1"))
    return 0;
  for (int64_t i = 0; i < f->q_len; i++) {
    const int64_t n = at[i + 1] - at[i];
    if (!n || attn_ascending_(p->index + at[i], n)) continue;
    if (!attn_drawn_copy_(&c->row, p->index + at[i], n))
      return attn_reject_(c->e, ATTN_E_MEMORY, "ATTN_MALLOC returned null");
    if (!attn_ascending_(c->row.list, n))
      return attn_reject_(c->e, ATTN_E_INDEX, "pattern.index has a column twice in a row");
  }
  return 1;
}

ATTN_COLD_ int attn_check_pattern_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f,
                                   int depth);

ATTN_COLD_ int attn_check_parts_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f,
                                 int64_t n, int depth) {
  if (!ATTN_RULE_(n >= 0, RANGE, "pattern.part_count must not be negative") ||
      !ATTN_RULE_(n <= ATTN_PARTS_ - c->parts, PATTERN, "a pattern may have 1024 parts in all") ||
      !ATTN_RULE_(n == 0 || depth < ATTN_DEPTH_, PATTERN, "a pattern may be 32 deep") ||
      !ATTN_RULE_(n == 0 || p->parts, NULL, "pattern.parts must not be null"))
    return 0;
  c->parts += n;
  for (int64_t k = 0; k < n; k++)
    if (!attn_check_pattern_(c, &p->parts[k], f, depth + 1)) return 0;
  return 1;
}

ATTN_COLD_ int attn_check_pattern_(attn_tree_ *c, const attn_pattern *p, const attn_field_ *f,
                                   int depth) {
  const char *const negative = "pattern.left and pattern.right must not be negative";
  const char *const unbounded = "pattern.left and pattern.right must be at least -1";
  const char *const draws = "pattern.count must not be negative";
  attn_field_ turned;
  c->nodes += 4;
  switch ((int)p->kind) {
    case ATTN_PATTERN_FULL: return 1;
    case ATTN_PATTERN_GLOBAL: return attn_check_global_(c, p, f);
    case ATTN_PATTERN_BAND:
      if (!p->index)
        return ATTN_RULE_(p->indices == 0, NULL,
                          "pattern.index must not be null: a radius a head") &&
               attn_check_sides_(c, p, -1, unbounded);
      c->depends = 1;
      return ATTN_RULE_(p->indices == c->heads, HEADS, "pattern.indices must equal heads") &&
             attn_check_numbers_(c, p->index, p->indices, 0, INT64_MAX,
                                 "pattern.index: a radius must not be negative");
    case ATTN_PATTERN_DILATED:
      return attn_check_step_(c, p) && attn_check_sides_(c, p, -1, unbounded);
    case ATTN_PATTERN_RANDOM: c->depends = 1; return attn_check_count_(c, p, 0, draws);
    case ATTN_PATTERN_RANDOM_BLOCKS:
      c->depends = 1;
      return attn_check_block_(c, p) && attn_check_count_(c, p, 0, draws);
    case ATTN_PATTERN_BLOCKS:
    case ATTN_PATTERN_IMAGE_1D: return attn_check_block_(c, p) && attn_check_beside_(c, p);
    case ATTN_PATTERN_RING:
    case ATTN_PATTERN_STAR:
      return attn_check_square_(c, f) &&
             ATTN_RULE_(p->left >= 0, RANGE, "pattern.left must not be negative") &&
             ATTN_RULE_(p->kind == ATTN_PATTERN_RING || f->k_len >= 2, SHAPE,
                        "k_len: a star has a relay and at least 1 satellite");
    case ATTN_PATTERN_LONGFORMER:
      return attn_check_square_(c, f) && attn_check_step_(c, p) &&
             attn_check_sides_(c, p, 0, negative) &&
             ATTN_RULE_(p->indices >= 0, RANGE, "pattern.indices must not be negative") &&
             attn_check_numbers_(c, p->index, p->indices, 0, f->k_len,
                                 "pattern.index has an entry outside 0 .. k_len - 1") &&
             ATTN_RULE_(attn_ascending_(p->index, p->indices), INDEX,
                        "pattern.index must be strictly ascending");
    case ATTN_PATTERN_ETC:
      return attn_check_square_(c, f) &&
             ATTN_RULE_(p->first >= 0 && p->first <= f->k_len, RANGE,
                        "pattern.first must lie in 0 .. k_len") &&
             attn_check_sides_(c, p, 1, "pattern.left and pattern.right must be at least 1");
    case ATTN_PATTERN_BIGBIRD:
      c->depends |= p->count > 0;
      return attn_check_block_(c, p) && attn_check_beside_(c, p) &&
             attn_check_count_(c, p, 0, draws) &&
             ATTN_RULE_(p->first >= 0 && p->last >= 0, RANGE,
                        "pattern.first and pattern.last must not be negative") &&
             ATTN_RULE_(p->left >= 0 && p->left <= f->k_len, RANGE,
                        "pattern.left must lie in 0 .. k_len");
    case ATTN_PATTERN_SPARSE_STRIDED:
      c->depends |= p->use == ATTN_SPARSE_HEADS;
      return attn_check_step_(c, p) && attn_check_use_(c, p) &&
             ATTN_RULE_(p->left >= 0, RANGE, "pattern.left must not be negative");
    case ATTN_PATTERN_SPARSE_FIXED:
      c->depends |= p->use == ATTN_SPARSE_HEADS || p->sub_blocks > 1;
      return attn_check_block_(c, p) && attn_check_use_(c, p) &&
             ATTN_RULE_(p->count >= 1 && p->count <= p->block, RANGE,
                        "pattern.count must lie in 1 .. block") &&
             ATTN_RULE_(p->sub_blocks >= 0 &&
                            attn_mul_(attn_max64_(p->sub_blocks, 1), p->count) <= p->block,
                        RANGE, "pattern.sub_blocks * pattern.count must lie in 0 .. block");
    case ATTN_PATTERN_BLOCKWISE: c->depends = 1; return attn_check_blockwise_(c, p);
    case ATTN_PATTERN_IMAGE_2D: return attn_check_image_(c, p, f);
    case ATTN_PATTERN_AXIAL: c->nodes += 32; return attn_check_axial_(c, p, f);
    case ATTN_PATTERN_TREE: return attn_check_tree_(c, p, f);
    case ATTN_PATTERN_SEGMENTS: return attn_check_segments_(c, p, f);
    case ATTN_PATTERN_PREDICATE:
      c->depends = 1;
      return ATTN_RULE_(p->pair != NULL, NULL, "pattern.pair must not be null");
    case ATTN_PATTERN_BITMAP:
      c->depends |= p->bits_heads > 1;
      return ATTN_RULE_(p->bits_stride >= attn_ceil_(f->k_len, 8), SHAPE,
                        "pattern.bits_stride must be at least k_len bits") &&
             attn_check_bits_(c, p, f->q_len, f->k_len ? p->bits_stride : 0);
    case ATTN_PATTERN_BLOCK_MASK:
      c->depends |= p->bits_heads > 1;
      return attn_check_block_(c, p) &&
             ATTN_RULE_(p->key_block >= 1, RANGE, "pattern.key_block must be at least 1") &&
             attn_check_bits_(c, p, attn_ceil_(f->q_len, p->block),
                              attn_ceil_(f->k_len, p->key_block));
    case ATTN_PATTERN_CSR: return attn_check_csr_(c, p, f);
    case ATTN_PATTERN_BLOCK_DIFFUSION:
      return attn_check_square_(c, f) && attn_check_block_(c, p) &&
             ATTN_RULE_(f->k_len % 2 == 0, SHAPE,
                        "k_len must be even: noised tokens, then the clean ones");
    case ATTN_PATTERN_NEIGHBORHOOD: return attn_check_axes_(c, p, f);
    case ATTN_PATTERN_UNION:
    case ATTN_PATTERN_INTERSECT: return attn_check_parts_(c, p, f, p->part_count, depth);
    case ATTN_PATTERN_DIFF: return attn_check_parts_(c, p, f, 2, depth);
    case ATTN_PATTERN_COMPLEMENT: return attn_check_parts_(c, p, f, 1, depth);
    case ATTN_PATTERN_TRANSPOSE:
      turned.q_len = f->k_len, turned.k_len = f->q_len, turned.q_off = -f->q_off;
      return attn_check_parts_(c, p, &turned, 1, depth);
    case ATTN_PATTERN_PER_HEAD:
      c->depends = 1;
      return ATTN_RULE_(p->part_count == c->heads, HEADS, "pattern.part_count must equal heads") &&
             attn_check_parts_(c, p, f, p->part_count, depth);
    default: return attn_reject_(c->e, ATTN_E_PATTERN, "pattern.kind must be an attn_pattern_kind");
  }
}
#undef ATTN_RULE_
