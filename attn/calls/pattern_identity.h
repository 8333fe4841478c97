/* calls/pattern_identity.h owns what a schedule remembers of its pattern: a hash of the fields and of what
 * the arrays hold, by which a call that wants the schedule of one pattern refuses that of another. */

typedef struct attn_identity_ {
  uint64_t hash;
  attn_field_ f;
  int64_t heads;
} attn_identity_;

ATTN_COLD_ void attn_identity_add_(attn_identity_ *c, int64_t x) {
  c->hash = attn_mix64_((c->hash ^ (uint64_t)x) + 0x9E3779B97F4A7C15u);
}

ATTN_COLD_ void attn_identity_list_(attn_identity_ *c, const int32_t *a, int64_t n) {
  if (!a) n = 0;
  attn_identity_add_(c, n);
  for (int64_t k = 0; k < n; k++) attn_identity_add_(c, a[k]);
}

/* `rows` of n bytes; of the last one only the bits that `last` has. */
ATTN_COLD_ void attn_identity_bytes_(attn_identity_ *c, const uint8_t *a, int64_t rows, int64_t n,
                                     int64_t stride, int last) {
  for (int64_t i = 0; a && n > 0 && i < rows; i++)
    for (int64_t k = 0; k < n; k++)
      attn_identity_add_(c, a[i * stride + k] & (k + 1 < n ? 0xff : last));
}

/* How many entries `index` has. */
ATTN_COLD_ int64_t attn_identity_indices_(const attn_identity_ *c, const attn_pattern *p) {
  switch ((int)p->kind) {
    case ATTN_PATTERN_GLOBAL:
    case ATTN_PATTERN_BAND:
    case ATTN_PATTERN_LONGFORMER:
    case ATTN_PATTERN_AXIAL:
    case ATTN_PATTERN_SEGMENTS:
    case ATTN_PATTERN_CSR: return p->indices;
    case ATTN_PATTERN_SPARSE_STRIDED:
    case ATTN_PATTERN_SPARSE_FIXED: return p->use == ATTN_SPARSE_HEADS ? p->indices : 0;
    case ATTN_PATTERN_BLOCKWISE: return c->heads * p->count;
    default: return 0;
  }
}

/* A pattern that has been checked, and its parts after it. Of a predicate nothing is known but that it is one. */
ATTN_COLD_ void attn_identity_pattern_(attn_identity_ *c, const attn_pattern *p) {
  const int64_t number[] = {(int64_t)p->kind,
                            p->causal != 0,
                            p->left,
                            p->right,
                            p->step,
                            p->block,
                            p->before,
                            p->after,
                            p->first,
                            p->last,
                            p->count,
                            (int64_t)p->seed,
                            p->no_rows != 0,
                            p->no_columns != 0,
                            p->no_ring != 0,
                            p->overlap != 0,
                            p->axis,
                            p->include_self != 0,
                            p->layer,
                            p->sub_blocks,
                            (int64_t)p->use,
                            (int64_t)p->order,
                            p->height,
                            p->width,
                            p->tile_height,
                            p->tile_width,
                            p->top,
                            p->bottom,
                            p->bits_heads > 1,
                            p->key_block,
                            p->queries != NULL,
                            p->part_count};
  const attn_field_ whole = c->f, *f = &whole;
  int64_t parts = 0;
  for (size_t k = 0; k < sizeof number / sizeof *number; k++) attn_identity_add_(c, number[k]);
  attn_identity_list_(c, p->index, attn_identity_indices_(c, p));
  if (p->kind == ATTN_PATTERN_GLOBAL) attn_identity_list_(c, p->queries, p->query_count);
  if (p->kind == ATTN_PATTERN_CSR)
    for (int64_t i = 0; i <= f->q_len; i++) attn_identity_add_(c, p->indptr[i]);
  for (int64_t a = 0; p->kind == ATTN_PATTERN_NEIGHBORHOOD && a < p->indices; a++) {
    const attn_axis *x = &p->axes[a];
    attn_identity_add_(c, p->indices);
    attn_identity_add_(c, x->length);
    attn_identity_add_(c, x->kernel);
    attn_identity_add_(c, attn_max64_(x->stride, 1));
    attn_identity_add_(c, attn_max64_(x->dilation, 1));
    attn_identity_add_(c, x->causal != 0);
  }
  const int64_t maps = attn_max64_(p->bits_heads, 1);
  if (p->kind == ATTN_PATTERN_BITMAP)
    attn_identity_bytes_(c, p->bits, f->q_len * maps, attn_ceil_(f->k_len, 8), p->bits_stride,
                         0xff >> (7 - (f->k_len + 7) % 8));
  if (p->kind == ATTN_PATTERN_BLOCK_MASK) {
    const int64_t n = attn_ceil_(f->k_len, p->key_block);
    attn_identity_bytes_(c, p->bits, attn_ceil_(f->q_len, p->block) * maps, n, n, 0xff);
  }
  switch ((int)p->kind) {
    case ATTN_PATTERN_UNION:
    case ATTN_PATTERN_INTERSECT:
    case ATTN_PATTERN_PER_HEAD: parts = p->part_count; break;
    case ATTN_PATTERN_DIFF: parts = 2; break;
    case ATTN_PATTERN_COMPLEMENT: parts = 1; break;
    case ATTN_PATTERN_TRANSPOSE:
      parts = 1;
      c->f.q_len = f->k_len, c->f.k_len = f->q_len, c->f.q_off = -f->q_off;
      break;
    default: break;
  }
  for (int64_t k = 0; p->parts && k < parts; k++) attn_identity_pattern_(c, &p->parts[k]);
  c->f = whole;
}

ATTN_COLD_ attn_identity_ attn_identity_open_(int64_t heads, int64_t q_len, int64_t k_len,
                                              int64_t q_off) {
  attn_identity_ c;
  c.hash = 0, c.heads = heads;
  c.f.q_len = q_len, c.f.k_len = k_len, c.f.q_off = q_off;
  return c;
}

/* Whether a schedule was built from the pattern of this identity. */
ATTN_COLD_ int attn_schedule_check_(attn_error_ *e, const attn_schedule *s, const attn_identity_ *c,
                                    const char *reason) {
  const attn_plan_ *p = attn_plan_of_(s);
  return (p && p->heads == c->heads && p->q_len == c->f.q_len && p->k_len == c->f.k_len &&
          p->q_off == c->f.q_off && p->identity == c->hash) ||
         attn_reject_(e, ATTN_E_SCHEDULE, reason);
}
