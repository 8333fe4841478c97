/* engine/pattern.h owns the working form of a pattern: a tree of nodes, and for a few query rows
 * the runs of keys they see. engine/atoms.h has the leaves; what a tile is for, engine/schedule.h.
 *
 * Rows are lanes, keys are numbers. A leaf says where a lane begins or ceases to see (toggles);
 * swept in ascending order, toggles become runs; operators merge runs of two operands. */

/* A node. kind is that of the pattern; of compound kinds one piece remains:
 *   ETC           rows and columns before `first`
 *   SPARSE_FIXED  the columns of a block: `count` from `first` on
 *   AXIAL         lines of `count` keys `step` apart
 *   BLOCKS        the own block, `before` and `after` positions
 *   RING          first = 1: node 0 is a relay (Star)
 * Numbers are clamped to where they still mean the same. Unused fields are 0, so that equal nodes
 * have equal bytes. */
typedef struct attn_node_ {
  int64_t kind;
  int64_t cut;        /* only keys up to p */
  int64_t causal;     /* draws and trees: causal by themselves */
  int64_t part, next; /* first part and next part of the same node; 0 = none */
  int64_t head;       /* 0 where it does not matter */
  int64_t left, right, step, block, before, after, first, last, count, extra;
  int64_t rows, columns, ring, overlap, self;
  int64_t height, width, tile_height, tile_width, top, bottom, order;
  uint64_t seed;
  int64_t indices, query_count, stride;
  const int32_t *index, *queries;
  const int64_t *indptr;
  const uint8_t *bits;
  attn_pair_fn pair;
  attn_rectangle_fn rectangle;
  void *user;
  const attn_axis *axes;
} attn_node_;

typedef struct attn_field_ {
  int64_t q_len, k_len, q_off;
} attn_field_;

/* Up to ATTN_TILE_ rows, ascending, and the keys that are looked at: first, first + step, ..,
 * `keys` of them. Runs count those by ordinals. */
typedef struct attn_rows_ {
  const attn_field_ *f;
  int64_t n, step, first, keys;
  int64_t i[ATTN_TILE_], p[ATTN_TILE_]; /* indices and positions */
} attn_rows_;

typedef struct attn_runs_ {
  attn_plan_run_ *run;
  int64_t count, capacity;
} attn_runs_;

enum { ATTN_DEPTH_ = 32, ATTN_PARTS_ = 1024, ATTN_LISTS_ = 4 * ATTN_DEPTH_ };

/* From this key on these lanes begin to see, or cease. */
typedef struct attn_toggle_ {
  int64_t key;
  uint64_t lanes;
} attn_toggle_;

/* What sees: the nodes, and memory for toggles, drawn numbers and runs. */
typedef struct attn_sight_ {
  const attn_node_ *node;
  attn_toggle_ *toggle, *spare; /* two of the same size: sorting goes from one to the other */
  int64_t toggles, room, spare_room;
  uint64_t *change; /* all 0 between sweeps */
  int64_t change_room;
  attn_drawn_ drawn;
  int full;                     /* 1: memory was missing since the last sweep */
  attn_runs_ runs[ATTN_LISTS_]; /* one per depth of the tree, and a spare */
} attn_sight_;

ATTN_COLD_ int attn_runs_room_(attn_runs_ *r, int64_t more) {
  void *data = r->run;
  const int fits =
      attn_room_(&data, &r->capacity, r->count, r->count + more, (int64_t)sizeof(attn_plan_run_));
  r->run = (attn_plan_run_ *)data;
  return fits;
}

ATTN_INLINE_ void attn_run_put_(attn_runs_ *r, int64_t key, int64_t n, uint64_t lanes) {
  attn_plan_run_ *x = &r->run[r->count++];
  x->key = (int32_t)key, x->n = (int32_t)n, x->lanes = lanes;
}

/* Appends keys behind all others; equal neighbours become one run. */
ATTN_INLINE_ int attn_run_add_(attn_runs_ *r, int64_t key, int64_t n, uint64_t lanes) {
  if (!lanes || n <= 0) return 1;
  if (r->count) {
    attn_plan_run_ *x = &r->run[r->count - 1];
    if (x->lanes == lanes && x->key + (int64_t)x->n == key) {
      x->n += (int32_t)n;
      return 1;
    }
  }
  if (r->count == r->capacity && !attn_runs_room_(r, 1)) return 0;
  attn_run_put_(r, key, n, lanes);
  return 1;
}

ATTN_COLD_ int attn_toggle_room_(attn_sight_ *s) {
  void *a = s->toggle, *b = s->spare;
  const int fits = attn_room_(&a, &s->room, s->toggles, s->toggles + 2, sizeof *s->toggle) &&
                   attn_room_(&b, &s->spare_room, 0, s->room, sizeof *s->toggle);
  s->toggle = (attn_toggle_ *)a, s->spare = (attn_toggle_ *)b;
  s->full |= !fits;
  return fits;
}

/* lanes see the ordinals lo .. hi - 1, or see them no longer */
ATTN_INLINE_ void attn_put_toggles_(attn_sight_ *s, uint64_t lanes, int64_t lo, int64_t hi) {
  if (lo >= hi || (s->toggles + 2 > s->spare_room && !attn_toggle_room_(s))) return;
  attn_toggle_ *x = &s->toggle[s->toggles];
  x[0].key = lo, x[1].key = hi, x[0].lanes = x[1].lanes = lanes;
  s->toggles += 2;
}

/* Sorts by keys: stretches that ascend already are merged, two by two. */
ATTN_FUNC_ void attn_sort_toggles_(attn_sight_ *s) {
  const int64_t n = s->toggles;
  while (n > 1) {
    const attn_toggle_ *a = s->toggle;
    for (int64_t at = 0, mid, end; at < n; at = end) {
      attn_toggle_ *to = s->spare + at;
      for (mid = at + 1; mid < n && a[mid - 1].key <= a[mid].key;) mid++;
      if (at == 0 && mid == n) return;
      for (end = mid + 1; end < n && a[end - 1].key <= a[end].key;) end++;
      if (end > n) end = n;
      for (int64_t x = at, y = mid; x < mid || y < end;)
        *to++ = y == end || (x < mid && a[x].key <= a[y].key) ? a[x++] : a[y++];
    }
    s->toggle = s->spare, s->spare = (attn_toggle_ *)(uintptr_t)a;
    const int64_t room = s->room;
    s->room = s->spare_room, s->spare_room = room;
  }
}

/* The same for keys, which must lie in 0 .. k_len. */
ATTN_INLINE_ void attn_toggle_keys_(attn_sight_ *s, const attn_rows_ *t, uint64_t lanes, int64_t lo,
                                    int64_t hi) {
  if (t->step > 1) { /* the first ordinals at or after lo and hi */
    lo = (lo - t->first + t->step - 1) / t->step;
    hi = (hi - t->first + t->step - 1) / t->step;
  }
  attn_put_toggles_(s, lanes, lo, hi);
}

/* The keys lo .. hi - 1, wherever they lie; with cut no lane sees past its position. */
ATTN_FUNC_ void attn_see_(attn_sight_ *s, const attn_rows_ *t, int64_t cut, uint64_t lanes,
                          int64_t lo, int64_t hi) {
  if (lo < 0) lo = 0;
  if (hi > t->f->k_len) hi = t->f->k_len;
  if (lo >= hi) return;
  if (cut) { /* positions ascend: the later lanes see all */
    while (lanes && t->p[attn_lowest_(lanes)] < lo) lanes &= lanes - 1;
    uint64_t some = lanes;
    while (lanes && t->p[attn_lowest_(lanes)] + 1 < hi) lanes &= lanes - 1;
    for (some &= ~lanes; some; some &= some - 1) {
      const int r = attn_lowest_(some);
      attn_toggle_keys_(s, t, attn_bit_(r), lo, t->p[r] + 1);
    }
  }
  if (lanes) attn_toggle_keys_(s, t, lanes, lo, hi);
}

/* Sweeps toggles of the keys first .. first + n - 1, which are so near to each other that looking at each key
 * costs less than sorting. 0 = no memory. */
ATTN_FUNC_ int attn_sweep_near_(attn_sight_ *s, attn_runs_ *out, int64_t first, int64_t n) {
  const int64_t had = s->change_room;
  void *room = s->change;
  const int fits = attn_room_(&room, &s->change_room, 0, n, sizeof *s->change);
  s->change = (uint64_t *)room;
  if (!fits) return 0;
  if (s->change_room > had) memset(room, 0, (size_t)s->change_room * sizeof *s->change);
  uint64_t *change = s->change, lanes = 0;
  int64_t from = 0;
  for (int64_t k = 0; k < s->toggles; k++) change[s->toggle[k].key - first] ^= s->toggle[k].lanes;
  for (int64_t k = 0; k < n; k++) {
    if (!change[k]) continue;
    if (lanes) attn_run_put_(out, first + from, k - from, lanes);
    lanes ^= change[k], from = k, change[k] = 0;
  }
  return 1;
}

ATTN_FUNC_ void attn_sweep_sorted_(attn_sight_ *s, attn_runs_ *out) {
  uint64_t lanes = 0;
  int64_t from = 0;
  attn_sort_toggles_(s);
  for (int64_t k = 0; k < s->toggles;) {
    const int64_t key = s->toggle[k].key;
    uint64_t change = 0;
    for (; k < s->toggles && s->toggle[k].key == key; k++) change ^= s->toggle[k].lanes;
    if (!change) continue;
    if (lanes) attn_run_put_(out, from, key - from, lanes);
    lanes ^= change, from = key;
  }
}

/* Turns all toggles into runs. 0 = no memory. */
ATTN_FUNC_ int attn_sweep_(attn_sight_ *s, attn_runs_ *out) {
  const int64_t near = 16; /* keys to a toggle */
  int64_t lo = INT64_MAX, hi = 0;
  out->count = 0;
  int fits = !s->full && attn_runs_room_(out, s->toggles);
  for (int64_t k = 0; k < s->toggles; k++) {
    lo = attn_min64_(lo, s->toggle[k].key);
    hi = attn_max64_(hi, s->toggle[k].key);
  }
  if (fits && s->toggles && hi - lo < near * s->toggles)
    fits = attn_sweep_near_(s, out, lo, hi - lo + 1);
  else if (fits)
    attn_sweep_sorted_(s, out);
  s->toggles = 0, s->full = 0;
  return fits;
}

/* Takes the drawn keys of a single row, which looks at all keys, as runs; those from end on are
 * dropped. */
ATTN_FUNC_ int attn_drain_(attn_sight_ *s, attn_runs_ *out, int64_t end) {
  int fits = !s->full;
  for (int64_t k = 0; fits && k < s->drawn.count && s->drawn.list[k] < end; k++)
    fits = attn_run_add_(out, s->drawn.list[k], 1, 1);
  s->full = 0;
  return fits;
}

/* out = a op b, for UNION, INTERSECT and DIFF */
ATTN_FUNC_ int attn_combine_(attn_runs_ *out, int64_t op, const attn_runs_ *a,
                             const attn_runs_ *b) {
  int64_t x = 0, y = 0, key = 0;
  out->count = 0;
  while (x < a->count || (op == ATTN_PATTERN_UNION && y < b->count)) {
    /* the lanes of both at key, and how far they hold */
    int64_t end = INT64_MAX;
    uint64_t in_a = 0, in_b = 0;
    if (x < a->count) {
      const attn_plan_run_ *r = &a->run[x];
      if (r->key > key)
        end = r->key;
      else
        end = r->key + (int64_t)r->n, in_a = r->lanes;
    }
    if (y < b->count) {
      const attn_plan_run_ *r = &b->run[y];
      if (r->key > key)
        end = attn_min64_(end, r->key);
      else
        end = attn_min64_(end, r->key + (int64_t)r->n), in_b = r->lanes;
    }
    const uint64_t lanes = op == ATTN_PATTERN_UNION       ? in_a | in_b
                           : op == ATTN_PATTERN_INTERSECT ? in_a & in_b
                                                          : in_a & ~in_b;
    if (!attn_run_add_(out, key, end - key, lanes)) return 0;
    key = end;
    while (x < a->count && a->run[x].key + (int64_t)a->run[x].n <= key) x++;
    while (y < b->count && b->run[y].key + (int64_t)b->run[y].n <= key) y++;
  }
  return 1;
}

ATTN_COLD_ int attn_invert_(attn_runs_ *out, const attn_runs_ *a, uint64_t all, int64_t keys) {
  int64_t key = 0;
  out->count = 0;
  for (int64_t x = 0; x < a->count; x++) {
    const attn_plan_run_ *r = &a->run[x];
    if (!attn_run_add_(out, key, r->key - key, all) ||
        !attn_run_add_(out, r->key, r->n, all & ~r->lanes))
      return 0;
    key = r->key + (int64_t)r->n;
  }
  return attn_run_add_(out, key, keys - key, all);
}

/* Row r of t, with all keys. */
ATTN_COLD_ void attn_rows_one_(attn_rows_ *one, const attn_field_ *f, int64_t i) {
  one->f = f, one->n = 1;
  one->step = 1, one->first = 0, one->keys = f->k_len;
  one->i[0] = i, one->p[0] = i + f->q_off;
}

ATTN_COLD_ int attn_leaf_(attn_sight_ *s, const attn_node_ *x, const attn_rows_ *t,
                          attn_runs_ *out);

/* Leaves the runs of a node in s->runs[d]. 0 = no memory. */
ATTN_COLD_ int attn_eval_(attn_sight_ *s, int64_t at, const attn_rows_ *t, int d);

/* (i, j) for the (j, i) of a part, which sees the other way: 64 of our keys are its rows. */
ATTN_COLD_ int attn_eval_transposed_(attn_sight_ *s, int64_t part, const attn_rows_ *t, int d) {
  attn_field_ f;
  attn_rows_ u;
  uint64_t a[64];
  f.q_len = t->f->k_len, f.k_len = t->f->q_len, f.q_off = -t->f->q_off;
  u.f = &f, u.step = 1, u.first = 0, u.keys = f.k_len;
  s->runs[d].count = 0;
  for (int64_t k = 0; k < t->keys; k += 64) {
    u.n = attn_min64_(64, t->keys - k);
    for (int64_t r = 0; r < u.n; r++) {
      u.i[r] = t->first + (k + r) * t->step;
      u.p[r] = u.i[r] + f.q_off;
    }
    if (!attn_eval_(s, part, &u, d + 1)) return 0;
    const attn_runs_ *in = &s->runs[d + 1];
    uint64_t any = 0;
    memset(a, 0, sizeof a);
    for (int64_t r = 0, x = 0; r < t->n; r++) {
      while (x < in->count && in->run[x].key + (int64_t)in->run[x].n <= t->i[r]) x++;
      if (x < in->count && in->run[x].key <= t->i[r]) a[r] = in->run[x].lanes;
      any |= a[r];
    }
    if (!any) continue;
    attn_transpose_bits_(a);
    for (int64_t r = 0; r < u.n; r++)
      if (!attn_run_add_(&s->runs[d], k + r, 1, a[r])) return 0;
  }
  return 1;
}

ATTN_COLD_ void attn_swap_runs_(attn_runs_ *a, attn_runs_ *b) {
  const attn_runs_ x = *a;
  *a = *b, *b = x;
}

/* s->runs[d] = s->runs[d] op node `at`. */
ATTN_COLD_ int attn_eval_onto_(attn_sight_ *s, int64_t op, int64_t at, const attn_rows_ *t, int d) {
  attn_runs_ *spare = &s->runs[ATTN_LISTS_ - 1];
  if (op != ATTN_PATTERN_UNION && s->runs[d].count == 0) return 1;
  if (!attn_eval_(s, at, t, d + 1) || !attn_combine_(spare, op, &s->runs[d], &s->runs[d + 1]))
    return 0;
  attn_swap_runs_(spare, &s->runs[d]);
  return 1;
}

ATTN_COLD_ int attn_eval_cut_(attn_sight_ *s, const attn_rows_ *t, int d) {
  attn_runs_ *spare = &s->runs[ATTN_LISTS_ - 1];
  attn_see_(s, t, 1, attn_low_bits_(t->n), 0, t->f->k_len);
  if (!attn_sweep_(s, &s->runs[d + 1]) ||
      !attn_combine_(spare, ATTN_PATTERN_INTERSECT, &s->runs[d], &s->runs[d + 1]))
    return 0;
  attn_swap_runs_(spare, &s->runs[d]);
  return 1;
}

ATTN_COLD_ int attn_eval_(attn_sight_ *s, int64_t at, const attn_rows_ *t, int d) {
  const attn_node_ *x = &s->node[at];
  attn_runs_ *out = &s->runs[d], *spare = &s->runs[ATTN_LISTS_ - 1];
  if (x->kind < ATTN_PATTERN_UNION) { /* all but one cut by themselves */
    if (!attn_leaf_(s, x, t, out)) return 0;
    if (x->kind != ATTN_PATTERN_PREDICATE) return 1;
  } else if (x->kind == ATTN_PATTERN_TRANSPOSE) {
    if (!attn_eval_transposed_(s, x->part, t, d)) return 0;
  } else if (x->kind == ATTN_PATTERN_COMPLEMENT) {
    if (!attn_eval_(s, x->part, t, d) || !attn_invert_(spare, out, attn_low_bits_(t->n), t->keys))
      return 0;
    attn_swap_runs_(spare, out);
  } else {
    out->count = 0;
    if (x->part && !attn_eval_(s, x->part, t, d)) return 0;
    if (!x->part && x->kind == ATTN_PATTERN_INTERSECT && /* of nothing: every pair */
        !attn_run_add_(out, 0, t->keys, attn_low_bits_(t->n)))
      return 0;
    for (int64_t y = x->part ? s->node[x->part].next : 0; y; y = s->node[y].next)
      if (!attn_eval_onto_(s, x->kind, y, t, d)) return 0;
  }
  return !x->cut || attn_eval_cut_(s, t, d);
}
