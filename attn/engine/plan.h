/* engine/plan.h owns the form of a schedule's bytes: what the builder writes and the softmax
 * driver reads. Offsets count bytes from the start and are multiples of 8.
 *
 * Rows of a head are cut into tiles, phase after phase. In each of its phases every row of a
 * variant is in exactly one tile, and the keys of a row in different phases are disjoint. A tile
 * either has runs of keys, each with the set of rows that see it, or a list of keys for each row.
 */

#define ATTN_PLAN_MAGIC_ 0x3248435354545441u /* "ATTSCH2" and the byte order */

typedef struct attn_plan_ {
  uint64_t magic;
  uint64_t identity; /* of the pattern */
  int64_t bytes;
  int64_t heads, q_len, k_len, q_off;
  int64_t variants;                /* different sets of tiles */
  int64_t phases;                  /* the most phases a variant has, at least 1 */
  int64_t tiles, runs, rows, keys; /* entries of the sections */
  int64_t pairs, computed, full, partial, lists;
  int64_t at_head;  /* int32 [heads]: the variant of each head */
  int64_t at_phase; /* int32 [variants]: its phases, 1 .. phases */
  int64_t at_tiles; /* int64 [variants * phases + 1]: tiles of (variant, phase) start here */
  int64_t at_tile;  /* attn_plan_tile_ [tiles] */
  int64_t at_run;   /* attn_plan_run_ [runs] */
  int64_t at_row;   /* int32 [rows] */
  int64_t at_key;   /* int32 [keys] */
} attn_plan_;

typedef struct attn_plan_tile_ {
  int32_t n; /* rows, 1 .. ATTN_TILE_ */
  int32_t
      step;    /* distance between the keys of a run; 0: lists; negative: runs, less often many than
                  * long, that are computed as lists */
  int64_t row; /* its rows are row[row .. row + n), ascending */
  int64_t at;  /* runs: run[at .. at + count); step = 0: key[at .. at + n] are n + 1 offsets
                 * into the keys that follow them, the first 0; row r sees those from its own
                 * offset to the next, ascending */
  int64_t count; /* runs, or keys of all lists */
} attn_plan_tile_;

/* Keys key, key + step, .. (n of them), seen by the rows whose bit is set; ascending and disjoint
 * within a tile, lanes is never 0. */
typedef struct attn_plan_run_ {
  int32_t key, n;
  uint64_t lanes;
} attn_plan_run_;

ATTN_FUNC_ const void *attn_plan_at_(const attn_plan_ *p, int64_t at) {
  return (const char *)p + at;
}

/* The bytes of a schedule if they look like one, else null. Nothing more is tested in every call:
 * attn_schedule_open has looked at bytes from elsewhere. */
ATTN_FUNC_ const attn_plan_ *attn_plan_of_(const attn_schedule *s) {
  const attn_plan_ *p = (const attn_plan_ *)(s ? s->data : NULL);
  if (!p || (uintptr_t)s->data % 8 != 0 || s->size < sizeof *p) return NULL;
  return p->magic == ATTN_PLAN_MAGIC_ && p->bytes >= 0 && (uint64_t)p->bytes == s->size ? p : NULL;
}
