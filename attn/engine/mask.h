/* engine/mask.h owns masks and biases of a tile: what they say of a block of keys, and their
 * entries in the form the modifiers take. */

ATTN_FUNC_ int attn_bit_(const void *row, int64_t j) {
  return ((const unsigned char *)row)[j >> 3] >> (j & 7) & 1;
}

/* Expands keys from..from+n of the mask rows of some lanes into dst[key][lane], log2 units. */
ATTN_FUNC_ void attn_tile_mask_rows_(attn_tile_ *t, const attn_mask *mask, const char *const *rows,
                                     int lanes, float *dst, int64_t from, int64_t n) {
  const void *at[ATTN_TILE_];
  const attn_table_ *f = t->a->table;
  const int64_t size = mask->kind == ATTN_MASK_ADD ? attn_size_(mask->dtype) : 1;
  for (int r = 0; r < lanes; r++) {
    if (mask->kind != ATTN_MASK_BITS) {
      at[r] = rows[r] + from * size;
      continue;
    }
    unsigned char *bytes = t->w.bytes + r * ATTN_BLOCK_;
    for (int64_t j = 0; j < n; j++) bytes[j] = (unsigned char)attn_bit_(rows[r], from + j);
    at[r] = bytes;
  }
  if (mask->kind == ATTN_MASK_ADD) {
    const float hi = (float)ATTN_LOG2E_, lo = (float)(ATTN_LOG2E_ - (double)hi);
    f->pack(dst, at, lanes, n, (int)mask->dtype | ATTN_KIND_BIAS_, hi, lo);
  } else {
    f->pack(dst, at, lanes, n, ATTN_KIND_BOOL_, 1.0f, 0.0f);
  }
}

/* Expands keys j0..j0+n of a mask for the whole tile. Entries that broadcast along k are repeated. */
ATTN_FUNC_ void attn_tile_mask_(attn_tile_ *t, const attn_mask *mask, const char *const *rows,
                                float *dst, int64_t j0, int64_t n) {
  if (mask->k_len > 1) {
    attn_tile_mask_rows_(t, mask, rows, t->n, dst, j0, n);
    return;
  }
  attn_tile_mask_rows_(t, mask, rows, t->n, dst, 0, 1);
  for (int64_t j = 1; j < n; j++) memcpy(dst + j * ATTN_TILE_, dst, ATTN_TILE_ * sizeof(float));
}

/* What a boolean mask says of a block: it is skipped, plain, or tested pair by pair. */
enum { ATTN_FORBIDS_ALL_, ATTN_ALLOWS_ALL_, ATTN_MIXED_ };

ATTN_FUNC_ int attn_tile_allows_(const attn_tile_ *t, int64_t j0, int64_t j1) {
  const attn_mask *mask = &t->a->mask;
  int some = 0, all = 1;
  if (mask->kind == ATTN_MASK_NONE) return ATTN_ALLOWS_ALL_;
  if (mask->k_len == 1) j0 = 0, j1 = 1;
  for (int r = 0; r < t->n && !(some && !all); r++) {
    const unsigned char *row = (const unsigned char *)t->mask[r];
    if (r > 0 && t->mask[r] == t->mask[r - 1]) continue;
    int64_t j = j0;
    if (mask->kind == ATTN_MASK_BITS) {
      for (; j < j1; j++) {
        int on = attn_bit_(row, j);
        some |= on, all &= on;
      }
      continue;
    }
    for (uint64_t x; j + 8 <= j1; j += 8) { /* eight at once: any byte, no zero byte */
      const uint64_t ones = 0x0101010101010101u;
      memcpy(&x, row + j, 8);
      some |= x != 0, all &= ((x - ones) & ~x & (ones << 7)) == 0;
    }
    for (; j < j1; j++) some |= row[j] != 0, all &= row[j] != 0;
  }
  return !some ? ATTN_FORBIDS_ALL_ : all ? ATTN_ALLOWS_ALL_ : ATTN_MIXED_;
}

/* 1 when all rows of a tile read the same mask row: it then stays a row, see mod.key */
ATTN_FUNC_ int attn_mask_per_key_(const attn_softmax_ *a, const attn_mask *mask) {
  return mask->q_len == 1 && (mask->heads == 1 || a->group == 1);
}

/* Keys j0..j0+n of a per-key bias, in log2 units; a per-key mask then forbids some. */
ATTN_FUNC_ void attn_tile_key_(attn_tile_ *t, const attn_mask *mask, const char *row, float *key,
                               int64_t j0, int64_t n) {
  const unsigned char *bytes = (const unsigned char *)row;
  const int64_t step = mask->k_len > 1 ? 1 : 0, from = step * j0, width = step ? n : 1;
  if (mask->kind == ATTN_MASK_ADD) { /* as one lane, so that it rounds as a mask by pair does */
    attn_tile_mask_rows_(t, mask, &row, 1, t->w.bias, from, width);
    for (int64_t j = 0; j < n; j++) key[j] = t->w.bias[j * step * ATTN_TILE_];
  } else {
    for (int64_t j = 0; j < n; j++) { /* not an addition: NaN + -inf would let the key through */
      int64_t e = from + j * step;
      if (!(mask->kind == ATTN_MASK_BITS ? attn_bit_(row, e) : bytes[e])) key[j] = -INFINITY;
    }
  }
}
