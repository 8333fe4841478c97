/* calls/pattern.h owns the public calls that make, open, free and describe schedules, and the
 * drawing of them. Constructors of patterns are in calls/pattern_make.h. */

/* Everything a build holds. */
typedef struct attn_build_call_ {
  attn_error_ e;
  attn_tree_ tree;
  attn_build_ b;
  attn_vec_ nodes[2], terms, heavy;
  attn_vec_ head;  /* int32 [heads]: variants */
  attn_vec_ hash;  /* uint64 of each variant */
  attn_vec_ whose; /* int32: the first head of each variant */
  attn_vec_ table; /* int32: variants by hash, -1 = free */
} attn_build_call_;

ATTN_COLD_ void attn_build_free_(attn_build_call_ *c) {
  const attn_sorted_ *sorted = (const attn_sorted_ *)c->tree.sorted.data;
  attn_vec_ *all[] = {&c->nodes[0], &c->nodes[1], &c->terms,    &c->heavy,
                      &c->head,     &c->hash,     &c->whose,    &c->table,
                      &c->b.tile,   &c->b.run,    &c->b.row,    &c->b.key,
                      &c->b.start,  &c->b.phases, &c->b.counts, &c->tree.sorted};
  for (int64_t k = 0; k < c->tree.sorted.count; k++) ATTN_FREE(sorted[k].list);
  for (size_t k = 0; k < sizeof all / sizeof *all; k++)
    if (all[k]->data) ATTN_FREE(all[k]->data);
  for (int d = 0; d < ATTN_LISTS_; d++)
    if (c->b.s.runs[d].run) ATTN_FREE(c->b.s.runs[d].run);
  void *more[] = {c->b.s.toggle,      c->b.s.spare,     c->b.s.change,    c->b.s.drawn.list,
                  c->b.s.drawn.aside, c->tree.row.list, c->tree.row.aside};
  for (size_t k = 0; k < sizeof more / sizeof *more; k++)
    if (more[k]) ATTN_FREE(more[k]);
}

/* n elements of zeros. Null = no memory. */
ATTN_COLD_ void *attn_zeros_(attn_vec_ *v, int64_t n, int64_t size) {
  void *data = attn_vec_room_(v, n, size);
  if (data) memset(data, 0, (size_t)(n * size)), v->count = n;
  return data;
}

/* Lowers head h into nodes[which]; returns their number. */
ATTN_COLD_ int64_t attn_build_lower_(attn_build_call_ *c, const attn_pattern *p, int which,
                                     int64_t h) {
  attn_lower_ l;
  l.tree = &c->tree, l.node = (attn_node_ *)c->nodes[which].data, l.count = 0, l.head = h;
  attn_lower_pattern_(&l, p, &c->b.f, 0);
  return l.count;
}

ATTN_COLD_ uint64_t attn_hash_(const void *data, int64_t bytes) {
  uint64_t h = 0, word;
  for (int64_t k = 0; k + 8 <= bytes; k += 8) {
    memcpy(&word, (const char *)data + k, 8);
    h = attn_mix64_((h ^ word) + 0x9E3779B97F4A7C15u);
  }
  return h;
}

/* The place of head h in the table of variants: that of an equal one, or a free place. Heads are
 * equal when they lower to the same nodes. */
ATTN_COLD_ int32_t *attn_build_find_(attn_build_call_ *c, const attn_pattern *p, int64_t h,
                                     uint64_t *hash) {
  const int64_t count = attn_build_lower_(c, p, 0, h);
  const int64_t bytes = count * (int64_t)sizeof(attn_node_);
  int32_t *table = (int32_t *)c->table.data;
  *hash = attn_hash_(c->nodes[0].data, bytes);
  for (int64_t k = (int64_t)(*hash % (uint64_t)c->table.count);; k = (k + 1) % c->table.count) {
    if (table[k] < 0) return &table[k];
    if (((uint64_t *)c->hash.data)[table[k]] != *hash) continue;
    if (attn_build_lower_(c, p, 1, ((int32_t *)c->whose.data)[table[k]]) == count &&
        memcmp(c->nodes[0].data, c->nodes[1].data, (size_t)bytes) == 0)
      return &table[k];
  }
}

/* Every variant's tiles, and the variant of each head. 0 = no memory. */
ATTN_COLD_ int attn_build_heads_(attn_build_call_ *c, const attn_pattern *p, int64_t heads) {
  int32_t *head = (int32_t *)attn_zeros_(&c->head, heads, sizeof *head);
  const int64_t different = c->tree.depends ? heads : attn_min64_(heads, 1);
  int32_t *table = (int32_t *)attn_vec_room_(&c->table, 2 * different + 1, sizeof *table);
  if (!head || !table) return 0;
  c->table.count = 2 * different + 1;
  memset(table, 0xff, (size_t)c->table.count * sizeof *table);
  for (int64_t h = 0; h < different; h++) {
    uint64_t hash;
    int32_t *place = attn_build_find_(c, p, h, &hash);
    if (*place < 0) {
      uint64_t *hashes = (uint64_t *)attn_vec_room_(&c->hash, 1, sizeof *hashes);
      int32_t *whose = (int32_t *)attn_vec_room_(&c->whose, 1, sizeof *whose);
      if (!hashes || !whose || !attn_build_variant_(&c->b)) return 0;
      *hashes = hash, *whose = (int32_t)h, *place = (int32_t)c->hash.count;
      c->hash.count++, c->whose.count++;
    }
    head[h] = *place;
  }
  return 1;
}

/* Memory of the size of the tree, and bits of the rows. */
ATTN_COLD_ int attn_build_memory_(attn_build_call_ *c) {
  const int64_t nodes = c->tree.nodes;
  c->b.heavy = (uint64_t *)attn_zeros_(&c->heavy, c->b.f.q_len / 64 + 1, sizeof(uint64_t));
  c->b.node = (attn_node_ *)attn_zeros_(&c->nodes[0], nodes, sizeof(attn_node_));
  c->b.term = (attn_term_ *)attn_zeros_(&c->terms, nodes, sizeof(attn_term_));
  return c->b.heavy && c->b.node && c->b.term &&
         attn_zeros_(&c->nodes[1], nodes, sizeof(attn_node_)) != NULL;
}

/* Checks, and builds all but the bytes. */
ATTN_COLD_ int attn_build_run_(attn_build_call_ *c, const attn_pattern *p, int64_t heads,
                               int64_t q_len, int64_t k_len, const attn_schedule_params *params) {
  attn_error_ *e = &c->e;
  if (!p) return attn_reject_(e, ATTN_E_NULL, "pattern must not be null");
  if (heads < 0 || q_len < 0 || k_len < 0)
    return attn_reject_(e, ATTN_E_SHAPE, "heads, q_len and k_len must not be negative");
  if (heads > INT32_MAX || q_len > INT32_MAX || k_len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "heads, q_len and k_len must be below 2^31");
  if (params && params->has_q_off && attn_abs64_(params->q_off) > INT32_MAX)
    return attn_reject_(e, ATTN_E_RANGE, "params.q_off must lie within 2^31 of 0");
  if (params && params->memory && (uintptr_t)params->memory % 8)
    return attn_reject_(e, ATTN_E_ALIGN, "params.memory must be aligned to 8 bytes");
  c->b.f.q_len = q_len, c->b.f.k_len = k_len;
  c->b.f.q_off = params && params->has_q_off ? params->q_off : k_len - q_len;
  c->tree.e = e, c->tree.heads = heads;
  if (!attn_check_pattern_(&c->tree, p, &c->b.f, 0)) return 0;
  attn_identity_ identity = attn_identity_open_(heads, q_len, k_len, c->b.f.q_off);
  attn_identity_pattern_(&identity, p);
  c->b.identity = identity.hash;
  if (attn_build_memory_(c) && attn_build_heads_(c, p, heads)) return 1;
  return attn_reject_(e, ATTN_E_MEMORY, "ATTN_MALLOC returned null");
}

ATTN_COLD_ int attn_build_finish_(attn_build_call_ *c, attn_schedule *schedule, int64_t heads,
                                  const attn_schedule_params *params) {
  const int32_t *head = (const int32_t *)c->head.data;
  attn_schedule made;
  attn_plan_ plan;
  attn_plan_header_(&plan, &c->b, heads, head);
  if ((uint64_t)plan.bytes > SIZE_MAX / 2 || plan.bytes == INT64_MAX)
    return attn_reject_(&c->e, ATTN_E_OVERFLOW, "the schedule would not fit the address space");
  made.size = (size_t)plan.bytes, made.owned = NULL;
  if (params && params->memory) {
    if (params->memory_size < made.size)
      return attn_reject_(&c->e, ATTN_E_WORKSPACE,
                          "params.memory_size is less than attn_schedule_bytes returns");
    made.data = params->memory;
  } else {
    made.data = made.owned = ATTN_MALLOC(made.size);
    if (!made.data) return attn_reject_(&c->e, ATTN_E_MEMORY, "ATTN_MALLOC returned null");
  }
  attn_plan_write_((void *)(uintptr_t)made.data, &plan, &c->b, head);
  *schedule = made;
  return 1;
}

ATTN_PUB_COLD_ attn_status attn_schedule_build(attn_schedule *schedule, const attn_pattern *pattern,
                                               int64_t heads, int64_t q_len, int64_t k_len,
                                               const attn_schedule_params *params, attn_ctx *ctx) {
  attn_build_call_ c;
  const attn_table_ *table;
  int workers;
  memset(&c, 0, sizeof c);
  if (attn_check_ctx_(&c.e, ctx, &table, &workers)) {
    if (!schedule)
      attn_reject_(&c.e, ATTN_E_NULL, "schedule must not be null");
    else if (attn_build_run_(&c, pattern, heads, q_len, k_len, params) &&
             attn_build_finish_(&c, schedule, heads, params))
      attn_report_(ctx, table, 1, "schedule", "the only path");
  }
  attn_build_free_(&c);
  return attn_end_(ctx, &c.e);
}

ATTN_PUB_COLD_ size_t attn_schedule_bytes(const attn_pattern *pattern, int64_t heads, int64_t q_len,
                                          int64_t k_len, const attn_schedule_params *params,
                                          attn_ctx *ctx) {
  attn_build_call_ c;
  const attn_table_ *table;
  attn_plan_ plan;
  int workers;
  size_t size = 0;
  memset(&c, 0, sizeof c);
  if (attn_check_ctx_(&c.e, ctx, &table, &workers) &&
      attn_build_run_(&c, pattern, heads, q_len, k_len, params)) {
    attn_plan_header_(&plan, &c.b, heads, (const int32_t *)c.head.data);
    if (plan.bytes == INT64_MAX || (uint64_t)plan.bytes > SIZE_MAX / 2)
      attn_reject_(&c.e, ATTN_E_OVERFLOW, "the schedule would not fit the address space");
    else
      size = (size_t)plan.bytes;
  }
  attn_build_free_(&c);
  attn_end_(ctx, &c.e);
  return size;
}

ATTN_PUB_ void attn_schedule_free(attn_schedule *schedule) {
  if (!schedule) return;
  if (schedule->owned) ATTN_FREE(schedule->owned);
  memset(schedule, 0, sizeof *schedule);
}

ATTN_PUB_COLD_ attn_status attn_schedule_open(attn_schedule *schedule, const void *bytes,
                                              size_t size, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const char *const damaged = "the bytes are no schedule, or a damaged one";
  attn_schedule made;
  attn_vec_ seen = {NULL, 0, 0};
  made.data = bytes, made.size = size, made.owned = NULL;
  if (!schedule || !bytes) {
    attn_reject_(&e, ATTN_E_NULL,
                 schedule ? "bytes must not be null" : "schedule must not be null");
  } else if ((uintptr_t)bytes % 8) {
    attn_reject_(&e, ATTN_E_ALIGN, "bytes must be aligned to 8");
  } else {
    const attn_plan_ *p = attn_plan_of_(&made);
    if (!p || !attn_plan_frame_ok_(p)) {
      attn_reject_(&e, ATTN_E_SCHEDULE, damaged);
    } else if (!attn_vec_room_(&seen, p->q_len / 64 + 1, sizeof(uint64_t))) {
      attn_reject_(&e, ATTN_E_MEMORY, "ATTN_MALLOC returned null");
    } else {
      if (attn_plan_ok_(p, (uint64_t *)seen.data))
        *schedule = made;
      else
        attn_reject_(&e, ATTN_E_SCHEDULE, damaged);
      ATTN_FREE(seen.data);
    }
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_ attn_status attn_schedule_describe(attn_schedule_info *info,
                                             const attn_schedule *schedule) {
  const attn_plan_ *p = attn_plan_of_(schedule);
  if (!info || !schedule) return ATTN_E_NULL;
  if (!p) return ATTN_E_SCHEDULE;
  const int32_t *head = (const int32_t *)attn_plan_at_(p, p->at_head);
  const int64_t *tiles = (const int64_t *)attn_plan_at_(p, p->at_tiles);
  info->heads = p->heads, info->q_len = p->q_len, info->k_len = p->k_len;
  info->q_off = p->q_off, info->pairs = p->pairs, info->computed = p->computed;
  info->full = p->full, info->partial = p->partial, info->lists = p->lists;
  info->phases = p->phases, info->bytes = p->bytes, info->tiles = 0;
  for (int64_t h = 0; h < p->heads; h++)
    info->tiles += tiles[(head[h] + (int64_t)1) * p->phases] - tiles[head[h] * p->phases];
  return ATTN_OK;
}

/* ------------------------------------------------------------------ looking at the pairs */

/* Called for keys key, key + step, .. (n of them) of one row. */
typedef void (*attn_visit_fn_)(void *user, int64_t row, int64_t key, int64_t n, int64_t step);

/* The pairs of rows from .. end - 1, in no order of rows; of one row and phase in that of keys. */
ATTN_COLD_ void attn_visit_(const attn_plan_ *p, int64_t head, int64_t from, int64_t end,
                            attn_visit_fn_ visit, void *user) {
  const int32_t *heads = (const int32_t *)attn_plan_at_(p, p->at_head);
  const int64_t *tiles = (const int64_t *)attn_plan_at_(p, p->at_tiles);
  const attn_plan_tile_ *tile = (const attn_plan_tile_ *)attn_plan_at_(p, p->at_tile);
  const int64_t v = heads[head];
  for (int64_t k = tiles[v * p->phases]; k < tiles[(v + 1) * p->phases]; k++) {
    const attn_plan_tile_ *t = &tile[k];
    const int32_t *row = (const int32_t *)attn_plan_at_(p, p->at_row) + t->row;
    const int64_t r0 = attn_at_least_(row, t->n, from), r1 = attn_at_least_(row, t->n, end);
    if (r0 >= r1) continue;
    if (t->step == 0) {
      const int32_t *at = (const int32_t *)attn_plan_at_(p, p->at_key) + t->at;
      for (int64_t r = r0; r < r1; r++)
        for (int64_t c = at[r]; c < at[r + 1]; c++) visit(user, row[r], at[t->n + 1 + c], 1, 1);
      continue;
    }
    const attn_plan_run_ *run = (const attn_plan_run_ *)attn_plan_at_(p, p->at_run) + t->at;
    for (int64_t x = 0; x < t->count; x++)
      for (uint64_t lanes = run[x].lanes & attn_lane_range_(r0, r1); lanes; lanes &= lanes - 1)
        visit(user, row[attn_lowest_(lanes)], run[x].key, run[x].n, attn_abs64_(t->step));
  }
}

typedef struct attn_csr_job_ {
  int64_t *indptr;
  int32_t *col;
} attn_csr_job_;

ATTN_FUNC_ void attn_csr_count_(void *user, int64_t row, int64_t key, int64_t n, int64_t step) {
  (void)key, (void)step;
  ((attn_csr_job_ *)user)->indptr[row + 1] += n;
}

/* indptr[row] moves from the row's first column to its end. */
ATTN_FUNC_ void attn_csr_fill_(void *user, int64_t row, int64_t key, int64_t n, int64_t step) {
  attn_csr_job_ *j = (attn_csr_job_ *)user;
  int32_t *to = j->col + j->indptr[row];
  j->indptr[row] += n;
  for (int64_t k = 0; k < n; k++) to[k] = (int32_t)(key + k * step);
}

ATTN_COLD_ void attn_sift_(int32_t *a, int64_t at, int64_t n) {
  for (int64_t child; (child = 2 * at + 1) < n; at = child) {
    child += child + 1 < n && a[child + 1] > a[child];
    if (a[at] >= a[child]) return;
    const int32_t x = a[at];
    a[at] = a[child], a[child] = x;
  }
}

/* Columns of several phases: a heap sort needs no memory. */
ATTN_COLD_ void attn_sort_columns_(int32_t *a, int64_t n) {
  if (attn_ascending_(a, n)) return;
  for (int64_t k = n / 2; k-- > 0;) attn_sift_(a, k, n);
  for (int64_t k = n; k-- > 1;) {
    const int32_t x = a[0];
    a[0] = a[k], a[k] = x;
    attn_sift_(a, 0, k);
  }
}

ATTN_PUB_ attn_status attn_schedule_csr(int64_t *indptr, int32_t *col,
                                        const attn_schedule *schedule, int64_t head) {
  const attn_plan_ *p = attn_plan_of_(schedule);
  attn_csr_job_ j;
  if (!indptr || !schedule) return ATTN_E_NULL;
  if (!p) return ATTN_E_SCHEDULE;
  if (head < 0 || head >= p->heads) return ATTN_E_RANGE;
  j.indptr = indptr, j.col = col;
  memset(indptr, 0, (size_t)(p->q_len + 1) * sizeof *indptr);
  attn_visit_(p, head, 0, p->q_len, attn_csr_count_, &j);
  for (int64_t i = 0; i < p->q_len; i++) indptr[i + 1] += indptr[i];
  if (!col) return ATTN_OK;
  attn_visit_(p, head, 0, p->q_len, attn_csr_fill_, &j);
  for (int64_t i = p->q_len; i > 0; i--) indptr[i] = indptr[i - 1];
  indptr[0] = 0;
  for (int64_t i = 0; i < p->q_len; i++)
    attn_sort_columns_(col + indptr[i], indptr[i + 1] - indptr[i]);
  return ATTN_OK;
}

/* A strip of one picture row: how many of the pairs of each pixel exist. */
enum { ATTN_STRIP_ = 256 };
typedef struct attn_strip_ {
  int64_t width, keys;   /* of the whole picture row */
  int64_t first, pixels; /* the strip */
  int64_t row, rows;     /* queries of the picture row */
  int64_t count[ATTN_STRIP_];
} attn_strip_;

/* The first number of cell x when n numbers are cut into cells; a cell has at least one. */
ATTN_FUNC_ int64_t attn_pixel_first_(int64_t x, int64_t cells, int64_t n) { return x * n / cells; }
ATTN_FUNC_ int64_t attn_pixel_end_(int64_t x, int64_t cells, int64_t n) {
  return attn_max64_((x + 1) * n / cells, x * n / cells + 1);
}

ATTN_FUNC_ void attn_strip_add_(void *user, int64_t row, int64_t key, int64_t n, int64_t step) {
  attn_strip_ *s = (attn_strip_ *)user;
  (void)row;
  int64_t x = attn_max64_(key * s->width / s->keys, s->first);
  while (x > s->first && attn_pixel_end_(x - 1, s->width, s->keys) > key) x--;
  for (; x < s->first + s->pixels; x++) {
    const int64_t lo = attn_pixel_first_(x, s->width, s->keys);
    const int64_t hi = attn_pixel_end_(x, s->width, s->keys);
    if (lo > key + (n - 1) * step) break;
    /* members below hi less those below lo */
    const int64_t up = attn_min64_(n, attn_max64_(attn_ceil_(hi - key, step), 0));
    const int64_t down = attn_min64_(n, attn_max64_(attn_ceil_(lo - key, step), 0));
    s->count[x - s->first] += up - down;
  }
}

ATTN_PUB_ attn_status attn_pattern_render(uint8_t *pixels, int64_t width, int64_t height,
                                          int64_t stride, const attn_schedule *schedule,
                                          int64_t head) {
  const attn_plan_ *p = attn_plan_of_(schedule);
  attn_strip_ s;
  if (!pixels || !schedule) return ATTN_E_NULL;
  if (!p) return ATTN_E_SCHEDULE;
  if (width < 1 || height < 1 || width > INT32_MAX || height > INT32_MAX || stride < width)
    return ATTN_E_SHAPE;
  if (head < 0 || head >= p->heads) return ATTN_E_RANGE;
  s.width = width, s.keys = p->k_len;
  for (int64_t y = 0; y < height; y++)
    for (s.first = 0; s.first < width; s.first += ATTN_STRIP_) {
      s.pixels = attn_min64_(ATTN_STRIP_, width - s.first);
      s.row = attn_pixel_first_(y, height, p->q_len);
      s.rows = attn_pixel_end_(y, height, p->q_len) - s.row;
      memset(s.count, 0, sizeof s.count);
      if (p->q_len && p->k_len) attn_visit_(p, head, s.row, s.row + s.rows, attn_strip_add_, &s);
      for (int64_t x = 0; x < s.pixels; x++) {
        const int64_t pairs =
            s.rows * (attn_pixel_end_(s.first + x, width, attn_max64_(p->k_len, 1)) -
                      attn_pixel_first_(s.first + x, width, p->k_len));
        pixels[y * stride + s.first + x] =
            (uint8_t)(p->k_len ? (s.count[x] * 255 + pairs - 1) / pairs : 0);
      }
    }
  return ATTN_OK;
}

ATTN_PUB_ attn_status attn_block_permutations(int32_t *permutation, int64_t heads, int64_t blocks,
                                              uint64_t seed) {
  if (heads < 0 || blocks < 1 || blocks > INT32_MAX || attn_mul_(heads, blocks) > INT64_MAX / 4)
    return ATTN_E_SHAPE;
  if (heads == 0) return ATTN_OK;
  if (!permutation) return ATTN_E_NULL;
  if ((uintptr_t)permutation % sizeof *permutation) return ATTN_E_ALIGN;
  for (int64_t h = 0; h < heads; h++)
    attn_permutation_(permutation + h * blocks, attn_stream_(seed, ATTN_DRAW_PERMUTATION_, h, 0),
                      blocks);
  return ATTN_OK;
}
