/* engine/mask.h owns masks and biases of a tile: what they say of keys, and their entries in the
 * form the modifiers take. Keys are a run of consecutive ones here; blocks of other keys are made
 * of several runs. */

ATTN_FUNC_ int attn_mask_bit_(const void *row, int64_t j) {
  return ((const unsigned char *)row)[j >> 3] >> (j & 7) & 1;
}

/* Expands keys from..from+n of the additive mask rows of some lanes into dst[key][lane]. */
ATTN_FUNC_ void attn_tile_bias_rows_(const attn_tile_ *t, const char *const *rows, int lanes,
                                     float *dst, int64_t from, int64_t n) {
  const void *at[ATTN_TILE_];
  const attn_mask *bias = &t->a->bias;
  const float hi = (float)t->a->unit, lo = (float)(t->a->unit - (double)hi);
  for (int r = 0; r < lanes; r++) at[r] = rows[r] + from * attn_size_(bias->dtype);
  /* not 0: -inf * 0 is NaN; this is lost in the rounding of every other number */
  t->a->table->pack(dst, at, lanes, n, (int)bias->dtype | ATTN_KIND_BIAS_, hi,
                    lo > 0.0f ? lo : attn_least_(hi));
}

/* The same for the whole tile. Entries that broadcast along k are repeated. */
ATTN_FUNC_ void attn_tile_bias_(const attn_tile_ *t, float *dst, int64_t from, int64_t n) {
  if (t->a->bias.k_len > 1) {
    attn_tile_bias_rows_(t, t->bias, t->n, dst, from, n);
    return;
  }
  attn_tile_bias_rows_(t, t->bias, t->n, dst, 0, 1);
  for (int64_t j = 1; j < n; j++) memcpy(dst + j * ATTN_TILE_, dst, ATTN_TILE_ * sizeof(float));
}

/* The column of the boolean mask that speaks of key j; of some keys a mask of new tokens has none. */
ATTN_FUNC_ int64_t attn_mask_column_(const attn_softmax_ *a, int64_t j) {
  return a->mask_new ? j - a->q_off : a->mask.k_len == 1 ? 0 : j;
}

/* Whether query row r may see key j by the boolean mask. */
ATTN_FUNC_ int attn_tile_sees_(const attn_tile_ *t, int r, int64_t j) {
  const attn_mask *mask = &t->a->mask;
  j = attn_mask_column_(t->a, j);
  if (j < 0 || j >= mask->k_len) return 1;
  return mask->kind == ATTN_MASK_BITS ? attn_mask_bit_(t->mask[r], j) : t->mask[r][j] != 0;
}

/* 8 x 8 bits: bit c of byte r <-> bit r of byte c, by exchanging halves, quarters, eighths */
ATTN_FUNC_ uint64_t attn_transpose8_(uint64_t x) {
  uint64_t t = (x ^ (x >> 7)) & 0x00aa00aa00aa00aau;
  x ^= t ^ (t << 7);
  t = (x ^ (x >> 14)) & 0x0000cccc0000ccccu;
  x ^= t ^ (t << 14);
  t = (x ^ (x >> 28)) & 0x00000000f0f0f0f0u;
  return x ^ t ^ (t << 28);
}

/* some[key] gets `bit` where the mask byte of the key is not 0: constant length and no branch, so
 * that compilers use vectors */
ATTN_FUNC_ void attn_mask_row_(unsigned char *some, const unsigned char *row, unsigned char bit) {
  for (int j = 0; j < ATTN_BLOCK_; j++) some[j] |= (unsigned char)(bit & -(row[j] != 0));
}

/* Clears the lanes that the boolean mask forbids, for keys from..from+n. */
ATTN_FUNC_ void attn_tile_mask_(const attn_tile_ *t, uint64_t *lanes, int64_t from, int64_t n) {
  const attn_mask *mask = &t->a->mask;
  const int64_t first = t->a->mask_new ? t->a->q_off : 0;
  if (t->a->mask_new) {
    const int64_t before = attn_clamp_(first - from, 0, n);
    lanes += before, from += before, n -= before;
    if (n > first + mask->k_len - from) n = first + mask->k_len - from;
  }
  if (mask->k_len == 1 && !t->a->mask_new) {
    uint64_t some = 0;
    for (int r = 0; r < t->n; r++) some |= (uint64_t)attn_tile_sees_(t, r, 0) << r;
    for (int64_t j = 0; j < n; j++) lanes[j] &= some;
    return;
  }
  int64_t j = 0;
  if (mask->kind == ATTN_MASK_BOOL && n == ATTN_BLOCK_) {
    unsigned char some[ATTN_TILE_ / 8][ATTN_BLOCK_];
    memset(some, 0, sizeof some);
    for (int r = 0; r < t->n; r++)
      attn_mask_row_(some[r / 8], (const unsigned char *)t->mask[r] + (from - first),
                     (unsigned char)(1 << (r & 7)));
    for (; j < n; j++) {
      uint64_t x = 0;
      for (int i = 0; i < ATTN_TILE_ / 8; i++) x |= (uint64_t)some[i][j] << (8 * i);
      lanes[j] &= x;
    }
    return;
  }
  for (; mask->kind == ATTN_MASK_BITS && ((from - first) & 7) == 0 && j + 8 <= n; j += 8) {
    for (int r = 0; r < t->n; r += 8) { /* eight rows by eight keys at once */
      uint64_t square = 0;
      for (int i = 0; i < 8 && r + i < t->n; i++)
        square |= (uint64_t)(unsigned char)t->mask[r + i][(from - first + j) >> 3] << (8 * i);
      square = ~attn_transpose8_(square);
      for (int c = 0; c < 8; c++) lanes[j + c] &= ~((square >> (8 * c) & 255) << r);
    }
  }
  for (; j < n; j++) {
    uint64_t some = 0;
    for (int r = 0; r < t->n; r++) some |= (uint64_t)attn_tile_sees_(t, r, from + j) << r;
    lanes[j] &= some;
  }
}

/* 1 when all rows of a tile read the same mask row: it then stays a row, see mod.key */
ATTN_FUNC_ int attn_mask_per_key_(const attn_softmax_ *a, const attn_mask *mask) {
  return mask->q_len == 1 && (mask->heads == 1 || a->group == 1);
}

/* Keys from..from+n of a per-key bias; a per-key mask then forbids some. */
ATTN_FUNC_ void attn_tile_key_bias_(const attn_tile_ *t, float *key, int64_t from, int64_t n) {
  const int64_t step = t->a->bias.k_len > 1 ? 1 : 0;
  /* as one lane, so that it rounds as a mask by pair does */
  attn_tile_bias_rows_(t, t->bias, 1, t->w.bias, from * step, step ? n : 1);
  for (int64_t j = 0; j < n; j++) key[j] = t->w.bias[j * step * ATTN_TILE_];
}

/* Whether the additive mask forbids keys from..from+n to all rows of the tile. Read only as far as it
 * does: for an ordinary bias that is one number. */
ATTN_FUNC_ int attn_tile_bias_forbids_(const attn_tile_ *t, int64_t from, int64_t n) {
  const attn_mask *bias = &t->a->bias;
  const int rows = attn_mask_per_key_(t->a, bias) ? 1 : t->n;
  if (bias->k_len == 1) from = 0, n = 1;
  for (int r = 0; r < rows; r++)
    for (int64_t j = from; j < from + n; j++)
      if (attn_number_(t->bias[r], j, bias->dtype, NULL) != -INFINITY) return 0;
  return 1;
}

ATTN_FUNC_ void attn_tile_key_mask_(const attn_tile_ *t, float *key, int64_t from, int64_t n) {
  for (int64_t j = 0; j < n; j++) /* not an addition: NaN + -inf would let the key through */
    if (!attn_tile_sees_(t, 0, from + j)) key[j] = -INFINITY;
}
