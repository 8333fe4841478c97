/* engine/bytes.h owns schedules as bytes: their layout, written and checked in one way. Sections
 * follow each other in the order of the header without gaps but those of alignment, so that bytes
 * from anywhere can be judged by recomputing it. */

ATTN_COLD_ int64_t attn_section_(int64_t *end, int64_t n, int64_t size) {
  const int64_t at = *end, bytes = attn_mul_(n, size);
  *end = attn_add_(at, bytes > INT64_MAX - 7 ? INT64_MAX : (bytes + 7) / 8 * 8);
  return at;
}

/* Sets every offset and the total from the counts; bytes is INT64_MAX when it does not fit. */
ATTN_COLD_ void attn_plan_layout_(attn_plan_ *p) {
  int64_t end = sizeof *p;
  p->at_head = attn_section_(&end, p->heads, sizeof(int32_t));
  p->at_phase = attn_section_(&end, p->variants, sizeof(int32_t));
  p->at_tiles =
      attn_section_(&end, attn_add_(attn_mul_(p->variants, p->phases), 1), sizeof(int64_t));
  p->at_tile = attn_section_(&end, p->tiles, sizeof(attn_plan_tile_));
  p->at_run = attn_section_(&end, p->runs, sizeof(attn_plan_run_));
  p->at_row = attn_section_(&end, p->rows, sizeof(int32_t));
  p->at_key = attn_section_(&end, p->keys, sizeof(int32_t));
  p->bytes = end;
}

/* The header of what has been built; head[h] is the variant of head h. */
ATTN_COLD_ void attn_plan_header_(attn_plan_ *p, attn_build_ *b, int64_t heads,
                                  const int32_t *head) {
  attn_counts_ *c = (attn_counts_ *)b->counts.data;
  memset(p, 0, sizeof *p);
  p->magic = ATTN_PLAN_MAGIC_, p->identity = b->identity;
  p->heads = heads, p->q_len = b->f.q_len, p->k_len = b->f.k_len, p->q_off = b->f.q_off;
  p->variants = b->counts.count, p->phases = 1;
  p->tiles = b->tile.count, p->runs = b->run.count;
  p->rows = b->row.count, p->keys = b->key.count;
  for (int64_t h = 0; h < heads; h++) c[head[h]].heads++;
  for (int64_t v = 0; v < p->variants; v++) {
    p->phases = attn_max64_(p->phases, ((int32_t *)b->phases.data)[v]);
    p->pairs = attn_add_(p->pairs, attn_mul_(c[v].pairs, c[v].heads));
    p->computed = attn_add_(p->computed, attn_mul_(c[v].computed, c[v].heads));
    p->full = attn_add_(p->full, attn_mul_(c[v].full, c[v].heads));
    p->partial = attn_add_(p->partial, attn_mul_(c[v].partial, c[v].heads));
    p->lists = attn_add_(p->lists, attn_mul_(c[v].lists, c[v].heads));
  }
  attn_plan_layout_(p);
}

ATTN_COLD_ void attn_plan_copy_(char *to, int64_t at, const void *from, int64_t n, int64_t size) {
  const int64_t bytes = n * size;
  if (bytes) memcpy(to + at, from, (size_t)bytes);
  if (bytes % 8) memset(to + at + bytes, 0, (size_t)(8 - bytes % 8));
}

/* p->bytes bytes. */
ATTN_COLD_ void attn_plan_write_(void *memory, const attn_plan_ *p, const attn_build_ *b,
                                 const int32_t *head) {
  char *to = (char *)memory;
  const int32_t *phases = (const int32_t *)b->phases.data;
  const int64_t *start = (const int64_t *)b->start.data;
  int64_t *tiles = (int64_t *)(void *)(to + p->at_tiles), next = 0;
  memcpy(to, p, sizeof *p);
  attn_plan_copy_(to, p->at_head, head, p->heads, sizeof(int32_t));
  attn_plan_copy_(to, p->at_phase, phases, p->variants, sizeof(int32_t));
  for (int64_t v = 0; v < p->variants; v++) {
    for (int64_t k = 0; k < p->phases; k++) /* phases it has not are empty */
      *tiles++ = next + k < b->start.count && k < phases[v] ? start[next + k]
                 : next + phases[v] < b->start.count        ? start[next + phases[v]]
                                                            : p->tiles;
    next += phases[v];
  }
  *tiles = p->tiles;
  attn_plan_copy_(to, p->at_tile, b->tile.data, p->tiles, sizeof(attn_plan_tile_));
  attn_plan_copy_(to, p->at_run, b->run.data, p->runs, sizeof(attn_plan_run_));
  attn_plan_copy_(to, p->at_row, b->row.data, p->rows, sizeof(int32_t));
  attn_plan_copy_(to, p->at_key, b->key.data, p->keys, sizeof(int32_t));
}

ATTN_COLD_ int attn_count_ok_(int64_t n) { return n >= 0 && n <= INT32_MAX; }

/* One tile; counts what it holds. */
ATTN_COLD_ int attn_plan_tile_ok_(const attn_plan_ *p, const attn_plan_tile_ *t,
                                  attn_counts_ *count) {
  const int64_t step = attn_abs64_(t->step);
  if (t->n < 1 || t->n > ATTN_TILE_ || t->count < 0 || t->at < 0 || t->row < 0 ||
      t->row > p->rows - t->n)
    return 0;
  const int32_t *row = (const int32_t *)attn_plan_at_(p, p->at_row) + t->row;
  for (int64_t r = 0, above = -1; r < t->n; above = row[r++])
    if (row[r] <= above || row[r] >= p->q_len) return 0;
  if (t->step == 0) {
    if (t->at > p->keys - t->n - 1 || t->count > p->keys - t->at - t->n - 1) return 0;
    const int32_t *at = (const int32_t *)attn_plan_at_(p, p->at_key) + t->at;
    const int32_t *key = at + t->n + 1;
    if (at[0] != 0 || at[t->n] != t->count) return 0;
    for (int64_t r = 0; r < t->n; r++)
      if (at[r] > at[r + 1]) return 0;
    for (int64_t r = 0; r < t->n; r++)
      for (int64_t k = at[r], above = -1; k < at[r + 1]; above = key[k++])
        if (key[k] <= above || key[k] >= p->k_len) return 0;
    count->pairs += t->count, count->computed += t->count, count->lists++;
    return 1;
  }
  if (t->at > p->runs - t->count) return 0;
  const attn_plan_run_ *run = (const attn_plan_run_ *)attn_plan_at_(p, p->at_run) + t->at;
  attn_runs_ all;
  attn_price_ c;
  int64_t above = -1;
  for (int64_t x = 0; x < t->count; x++) {
    const attn_plan_run_ *r = &run[x];
    if (r->key <= above || r->n < 1 || !r->lanes || (r->lanes & ~attn_low_bits_(t->n))) return 0;
    if (r->key % step != run[0].key % step) return 0; /* the driver counts in steps */
    above = r->key + (r->n - (int64_t)1) * step;
    if (above >= p->k_len) return 0;
  }
  all.run = (attn_plan_run_ *)(uintptr_t)run, all.count = t->count; /* is only read */
  attn_price_of_(&c, &all, t->n);
  attn_counts_runs_(count, t, run, &c);
  return 1;
}

/* The tiles of one phase, which must hold every row once. seen: bits of q_len rows. */
ATTN_COLD_ int attn_plan_phase_ok_(const attn_plan_ *p, int64_t from, int64_t end, uint64_t *seen,
                                   attn_counts_ *count) {
  const attn_plan_tile_ *tile = (const attn_plan_tile_ *)attn_plan_at_(p, p->at_tile);
  const int32_t *row = (const int32_t *)attn_plan_at_(p, p->at_row);
  int64_t rows = 0;
  memset(seen, 0, (size_t)(p->q_len / 64 + 1) * sizeof *seen);
  for (int64_t k = from; k < end; k++) {
    if (!attn_plan_tile_ok_(p, &tile[k], count)) return 0;
    for (int64_t r = 0; r < tile[k].n; r++) {
      const int32_t i = row[tile[k].row + r];
      if (seen[i >> 6] >> (i & 63) & 1) return 0;
      seen[i >> 6] |= attn_bit_(i & 63);
    }
    rows += tile[k].n;
  }
  return rows == p->q_len;
}

/* Header, sizes and the tables of heads, phases and tiles. */
ATTN_COLD_ int attn_plan_frame_ok_(const attn_plan_ *p) {
  attn_plan_ same = *p;
  if (!attn_count_ok_(p->heads) || !attn_count_ok_(p->q_len) || !attn_count_ok_(p->k_len) ||
      attn_abs64_(p->q_off) > INT32_MAX || !attn_count_ok_(p->phases) || p->phases < 1 ||
      p->variants < (p->heads > 0) || p->variants > p->heads || p->tiles < 0 || p->runs < 0 ||
      p->rows < 0 || p->keys < 0)
    return 0;
  attn_plan_layout_(&same);
  if (memcmp(&same, p, sizeof same) != 0) return 0;
  const int32_t *head = (const int32_t *)attn_plan_at_(p, p->at_head);
  const int32_t *phases = (const int32_t *)attn_plan_at_(p, p->at_phase);
  const int64_t *tiles = (const int64_t *)attn_plan_at_(p, p->at_tiles);
  for (int64_t h = 0; h < p->heads; h++)
    if (head[h] < 0 || head[h] >= p->variants) return 0;
  for (int64_t v = 0; v < p->variants; v++)
    if (phases[v] < 1 || phases[v] > p->phases) return 0;
  const int64_t n = p->variants * p->phases;
  if (tiles[0] != 0 || tiles[n] != p->tiles) return 0;
  for (int64_t k = 0; k < n; k++)
    if (tiles[k] > tiles[k + 1] ||
        (k % p->phases >= phases[k / p->phases] && tiles[k] != tiles[k + 1]))
      return 0;
  return 1;
}

/* Everything; seen as above. The counts must be right too. */
ATTN_COLD_ int attn_plan_ok_(const attn_plan_ *p, uint64_t *seen) {
  const int32_t *head = (const int32_t *)attn_plan_at_(p, p->at_head);
  const int32_t *phases = (const int32_t *)attn_plan_at_(p, p->at_phase);
  const int64_t *tiles = (const int64_t *)attn_plan_at_(p, p->at_tiles);
  attn_counts_ sum;
  memset(&sum, 0, sizeof sum);
  for (int64_t v = 0; v < p->variants; v++) {
    attn_counts_ c;
    memset(&c, 0, sizeof c);
    for (int64_t k = v * p->phases; k < v * p->phases + phases[v]; k++)
      if (!attn_plan_phase_ok_(p, tiles[k], tiles[k + 1], seen, &c)) return 0;
    for (int64_t h = 0; h < p->heads; h++) c.heads += head[h] == v;
    sum.pairs = attn_add_(sum.pairs, attn_mul_(c.pairs, c.heads));
    sum.computed = attn_add_(sum.computed, attn_mul_(c.computed, c.heads));
    sum.full = attn_add_(sum.full, attn_mul_(c.full, c.heads));
    sum.partial = attn_add_(sum.partial, attn_mul_(c.partial, c.heads));
    sum.lists = attn_add_(sum.lists, attn_mul_(c.lists, c.heads));
  }
  return sum.pairs == p->pairs && sum.computed == p->computed && sum.full == p->full &&
         sum.partial == p->partial && sum.lists == p->lists;
}
