/* pattern.h owns the life of a schedule: built from a random pattern in several ways, described,
 * listed, drawn, saved, damaged, opened and run; and what these must say of each other. */

#ifndef FUZZ_PATTERN_H
#define FUZZ_PATTERN_H

#include "job.h"
#include "tree.h"

/* Schedules with more pairs, allowed or not, are built and looked at but not run. */
#define PAIRS_MAX 200000

typedef struct plan_args {
  const attn_schedule *schedule;
  const int64_t *indptr; /* the pairs of one head; null = not compared */
  const int32_t *col;
  int64_t head;
  attn_sdpa_params params;
} plan_args;

static void expect(int kept, const char *what) {
  static const job none = {.name = "pattern"};
  promise(kept, &none, what);
}

/* ---- the pairs of a schedule -----------------------------------------------------------------*/

typedef struct pairs {
  int64_t *indptr;
  int32_t *col;
  int64_t count;
  int once; /* no pair is there twice */
} pairs;

/* exact: the schedule was built, not found, so no pair is there twice. */
static pairs pairs_of(store *s, const attn_schedule *schedule, int64_t head, int64_t q, int64_t k,
                      int exact) {
  pairs p;
  p.once = 1;
  p.indptr = (int64_t *)store_take(s, (size_t)(q + 1) * sizeof *p.indptr);
  expect(attn_schedule_csr(p.indptr, NULL, schedule, head) == ATTN_OK, "csr: counting failed");
  p.count = p.indptr[q];
  p.col = (int32_t *)store_take(s, (size_t)p.count * sizeof *p.col);
  int64_t *again = (int64_t *)store_take(s, (size_t)(q + 1) * sizeof *again);
  expect(attn_schedule_csr(again, p.col, schedule, head) == ATTN_OK, "csr: filling failed");
  expect(!memcmp(again, p.indptr, (size_t)(q + 1) * sizeof *again), "csr: two answers");
  expect(p.indptr[0] == 0, "csr: the first row");
  for (int64_t i = 0; i < q; i++) {
    expect(p.indptr[i + 1] >= p.indptr[i], "csr: rows decrease");
    for (int64_t e = p.indptr[i]; e < p.indptr[i + 1]; e++) {
      expect(p.col[e] >= 0 && p.col[e] < k, "csr: a column out of range");
      if (e > p.indptr[i] && p.col[e] <= p.col[e - 1]) p.once = 0;
    }
  }
  expect(p.once || !exact, "csr: columns not ascending");
  return p;
}

static int same_pairs(const pairs *a, const pairs *b, int64_t q) {
  return a->count == b->count &&
         !memcmp(a->indptr, b->indptr, (size_t)(q + 1) * sizeof *a->indptr) &&
         !memcmp(a->col, b->col, (size_t)a->count * sizeof *a->col);
}

/* A picture with one pixel a pair, and one of any size. */
static void draw(input *in, store *s, const attn_schedule *schedule, const pairs *p, int64_t head,
                 int64_t q, int64_t k, int exact) {
  if (q > 0 && k > 0 && q * k <= ARRAY_MAX) {
    uint8_t *pixel = (uint8_t *)store_take(s, (size_t)(q * k));
    expect(attn_pattern_render(pixel, k, q, k, schedule, head) == ATTN_OK, "render failed");
    for (int64_t i = 0; i < q && exact; i++) {
      int64_t e = p->indptr[i];
      for (int64_t j = 0; j < k; j++) {
        const int is = e < p->indptr[i + 1] && p->col[e] == j;
        expect(pixel[i * k + j] == 255 * is, "render and csr differ");
        e += is;
      }
    }
  }
  const int64_t width = 1 + below(in, 80), height = 1 + below(in, 80),
                stride = width + below(in, 3);
  uint8_t *picture = (uint8_t *)store_take(s, (size_t)((height - 1) * stride + width));
  expect(attn_pattern_render(picture, width, height, stride, schedule, head) == ATTN_OK,
         "render failed");
}

/* ---- running ---------------------------------------------------------------------------------*/

enum { P_O, P_MAP, P_Q, P_K, P_V };

static attn_status call_plan(job *j, attn_ctx *ctx) {
  plan_args *a = (plan_args *)j->args;
  a->params.schedule = a->schedule, a->params.map = j->b[P_MAP].view;
  return attn_sdpa(j->b[P_O].view, j->b[P_Q].view, j->b[P_K].view, j->b[P_V].view, &a->params, ctx);
}

static size_t workspace_plan(job *j, const attn_ctx *ctx) {
  plan_args *a = (plan_args *)j->args;
  a->params.schedule = a->schedule, a->params.map = j->b[P_MAP].view;
  return attn_sdpa_workspace(j->b[P_O].view, j->b[P_Q].view, j->b[P_K].view, j->b[P_V].view,
                             &a->params, ctx);
}

/* Scores are small, so a weight is 0 for pairs that do not exist and for no other. */
static void judge_map(job *j) {
  const plan_args *a = (const plan_args *)j->args;
  const attn_tensor *t = &j->b[P_MAP].view;
  if (!a->indptr || !t->data) return;
  for (int64_t i = 0; i < t->len; i++) {
    const float *row = (const float *)t->data + (a->head * t->len + i) * t->dim;
    int64_t e = a->indptr[i];
    for (int64_t c = 0; c < t->dim; c++) {
      const int is = e < a->indptr[i + 1] && a->col[e] == c;
      promise((row[c] > 0) == is, j, "the map and csr differ");
      e += is;
    }
  }
}

static void run_plan(input *in, const attn_schedule *schedule, const attn_schedule_info *info,
                     const pairs *p, int64_t head) {
  plan_args a;
  memset(&a, 0, sizeof a);
  a.schedule = schedule, a.head = head;
  if (p) a.indptr = p->indptr, a.col = p->col;
  a.params.has_q_off = 1, a.params.q_off = info->q_off;
  job j = {.name = "attn_sdpa with a schedule",
           .outputs = 2,
           .runnable = 1,
           .tame = 1,
           .args = &a,
           .call = call_plan,
           .workspace = workspace_plan,
           .judge = judge_map};
  const int64_t heads = info->heads, dk = 1 + below(in, 3), dv = 1 + below(in, 3);
  filler f = {take(in), 0};
  buffer_make(&j.b[P_O], attn_bhtd(NULL, ATTN_F32, 1, heads, info->q_len, dv), 0);
  if (p || below(in, 2))
    buffer_make(&j.b[P_MAP], attn_bhtd(NULL, ATTN_F32, 1, heads, info->q_len, info->k_len), 0);
  const attn_dtype type = (attn_dtype)below(in, 3);
  buffer_make(&j.b[P_Q], attn_bhtd(NULL, ATTN_F32, 1, heads, info->q_len, dk), 0);
  buffer_make(&j.b[P_K], attn_bhtd(NULL, type, 1, heads, info->k_len, dk), 0);
  buffer_make(&j.b[P_V], attn_bhtd(NULL, type, 1, heads, info->k_len, dv), 0);
  for (int i = P_Q; i <= P_V; i++) buffer_fill(&j.b[i], &f);
  if (!p) {
    a.params.causal = below(in, 2);
    if (chance(in, 2)) a.params.window = attn_window_of(below(in, 90) - 1, -1);
  }
  job_run(&j, in);
}

static int small(const attn_schedule_info *i) {
  return i->heads >= 0 && i->heads <= 64 && i->q_len <= 2048 && i->k_len <= 2048 &&
         i->heads * (i->q_len + 1) * (i->k_len + 1) <= PAIRS_MAX && i->computed <= 4 * PAIRS_MAX;
}

/* ---- saved and damaged bytes -----------------------------------------------------------------*/

static void fuzz_damaged(input *in, store *s, const attn_schedule *schedule) {
  size_t size = schedule->size;
  if (chance(in, 8)) size = size / 8 * (size_t)below(in, 9);
  uint8_t *bytes = (uint8_t *)store_take(s, size);
  memcpy(bytes, schedule->data, size);
  for (int n = below(in, 4); n > 0 && size >= 8; n--) {
    /* to the header, tiles, runs or keys */
    int64_t section[4];
    fuzz_sections(schedule->data, section);
    const size_t words = size / 8 * 2, from = (size_t)section[below(in, 4)] / 4;
    const size_t at = (from + take(in) % 128) % words * 4;
    int64_t word;
    int32_t half;
    memcpy(&word, bytes + at / 8 * 8, 8);
    memcpy(&half, bytes + at, 4);
    half =
        below(in, 2) ? (int32_t)((uint32_t)half + (uint32_t)(below(in, 5) - 2)) : (int32_t)take(in);
    word = nasty_int(in);
    if (below(in, 3))
      memcpy(bytes + at, &half, 4);
    else if (below(in, 2))
      memcpy(bytes + at / 8 * 8, &word, 8);
    else
      bytes[at + (size_t)below(in, 4)] ^= (uint8_t)(1 << below(in, 8));
  }
  if (size >= sizeof(int64_t) * 2 && chance(in, 2)) { /* make the length right again */
    const int64_t length = (int64_t)size;
    memcpy(bytes + 8, &length, 8);
  }
  if (below(in, 4)) fuzz_mend(bytes, size);
  attn_schedule opened;
  attn_ctx ctx;
  memset(&ctx, 0, sizeof ctx);
  memset(&opened, 0x5A, sizeof opened);
  const attn_schedule before = opened;
  const int blocks = fuzz_malloc_blocks;
  attn_status status = attn_schedule_open(&opened, bytes, size, &ctx);
  expect(fuzz_malloc_blocks == blocks, "open: memory is kept");
  if (status != ATTN_OK) {
    expect(status == ATTN_E_SCHEDULE || status == ATTN_E_MEMORY, "open: another status");
    expect(ctx.reason != NULL, "open: no reason");
    expect(!memcmp(&opened, &before, sizeof opened), "open: a rejected schedule was written");
    return;
  }
  attn_schedule_info info;
  expect(attn_schedule_describe(&info, &opened) == ATTN_OK, "describe failed");
  if (!small(&info)) return;
  const int64_t head = info.heads > 0 ? take(in) % info.heads : 0;
  if (info.heads > 0) {
    pairs p = pairs_of(s, &opened, head, info.q_len, info.k_len, 0);
    draw(in, s, &opened, &p, head, info.q_len, info.k_len, 0);
    run_plan(in, &opened, &info, p.once && below(in, 2) ? &p : NULL, head);
  }
}

/* ---- what must be equal ----------------------------------------------------------------------*/

/* Builds another pattern for the same lengths and compares one head. */
static void same_as(store *s, const attn_pattern *p, const attn_schedule_info *info, int64_t head,
                    const pairs *want, const char *what) {
  attn_schedule other;
  attn_schedule_params params;
  memset(&params, 0, sizeof params);
  params.has_q_off = 1, params.q_off = info->q_off;
  attn_status status =
      attn_schedule_build(&other, p, info->heads, info->q_len, info->k_len, &params, NULL);
  /* one level more may be one too many */
  if (status == ATTN_E_PATTERN || (status == ATTN_E_MEMORY && fuzz_malloc_refused)) return;
  expect(status == ATTN_OK, what);
  pairs have = pairs_of(s, &other, head, info->q_len, info->k_len, 1);
  expect(same_pairs(&have, want, info->q_len), what);
  attn_schedule_free(&other);
}

/* The pattern against the list of its own pairs. */
static void fuzz_identities(input *in, store *s, const attn_pattern *pattern,
                            const attn_schedule_info *info, int64_t head, const pairs *p) {
  attn_pattern part[2], negation;
  part[0] = attn_pattern_csr(p->indptr, p->col, p->count), part[1] = *pattern;
  switch (below(in, 4)) {
    case 0: same_as(s, &part[0], info, head, p, "csr of a csr"); break;
    case 1: {
      const attn_pattern both = attn_pattern_intersect(part, 2);
      same_as(s, &both, info, head, p, "intersection with its own csr");
      break;
    }
    case 2: {
      const attn_pattern either = attn_pattern_union(part, 2);
      same_as(s, &either, info, head, p, "union with its own csr");
      break;
    }
    default: {
      negation = attn_pattern_complement(&part[1]);
      const attn_pattern twice = attn_pattern_complement(&negation);
      same_as(s, &twice, info, head, p, "complement of the complement");
      break;
    }
  }
}

/* ---- building --------------------------------------------------------------------------------*/

static int64_t make_len(input *in) {
  switch (below(in, 8)) {
    case 5: return below(in, 4);
    case 6: return 60 + below(in, 10);
    case 7: return 120 + below(in, 140);
    default: return 1 + below(in, 150);
  }
}

/* Lengths for which the kinds that want a square, a grid or a tree may be sound. */
static void make_lens(input *in, int64_t *heads, int64_t *q, int64_t *k) {
  static const int64_t huge[] = {-1, 1 << 20, INT32_MAX, (int64_t)1 << 31, INT64_MAX, INT64_MIN};
  const int64_t a = 1 + below(in, 16);
  *heads = chance(in, 16) ? 0 : 1 + below(in, 3);
  *q = make_len(in), *k = make_len(in);
  switch (below(in, 8)) {
    case 4:
    case 5: *q = *k; break;
    case 6: *q = *k = a * (1 + below(in, 16)); break;
    case 7: *q = *k = attn_tree_nodes(a * 2); break;
    default: break;
  }
  if (chance(in, 32)) *heads = huge[below(in, 6)], *q = below(in, 3);
  if (chance(in, 32)) *k = huge[below(in, 6)], *q = below(in, 3);
  if (*k == INT32_MAX) *k = 1 << 24; /* legal, and some patterns have a run for each second key */
  /* a function is asked about each key of every head: many of both would take days */
  if (*heads > 3 && *heads <= INT32_MAX && *k > 1 << 16) *heads = 3;
}

/* A schedule that was built: what it says of itself. */
static void judge_schedule(input *in, store *s, const attn_schedule *schedule,
                           const attn_pattern *pattern) {
  attn_schedule_info info;
  attn_schedule opened;
  expect(attn_schedule_describe(&info, schedule) == ATTN_OK, "describe failed");
  expect(info.bytes == (int64_t)schedule->size, "info.bytes");
  expect(info.pairs >= 0 && info.pairs <= info.computed, "info.pairs");
  expect(info.phases >= 1 && info.tiles >= 0 && info.lists <= info.tiles, "info.tiles");
  if ((uintptr_t)schedule->data % 8 == 0)
    expect(attn_schedule_open(&opened, schedule->data, schedule->size, NULL) == ATTN_OK,
           "a schedule that was built cannot be opened");
  if (!small(&info)) return;
  int64_t all = 0, chosen = info.heads > 0 ? take(in) % info.heads : 0;
  for (int64_t h = 0; h < info.heads; h++) {
    pairs p = pairs_of(s, schedule, h, info.q_len, info.k_len, 1);
    all += p.count;
    if (h != chosen) continue;
    draw(in, s, schedule, &p, h, info.q_len, info.k_len, 1);
    if (below(in, 2)) run_plan(in, schedule, &info, &p, h);
    if (pattern && below(in, 2)) fuzz_identities(in, s, pattern, &info, h, &p);
  }
  expect(all == info.pairs, "info.pairs and csr differ");
  for (int n = below(in, 4); n > 0; n--) fuzz_damaged(in, s, schedule);
}

static void fuzz_pattern(input *in) {
  store s;
  attn_schedule schedule;
  attn_schedule_params params;
  attn_ctx ctx;
  int64_t heads, q, k;
  memset(&s, 0, sizeof s);
  memset(&params, 0, sizeof params);
  memset(&ctx, 0, sizeof ctx);
  memset(&schedule, 0x5A, sizeof schedule);
  const attn_schedule before = schedule;
  make_lens(in, &heads, &q, &k);
  forest f = forest_of(in, &s, heads, q, k);
  const attn_pattern pattern = make_pattern(&f);
  const int form = below(in, 8), offset = chance(in, 4);
  if (offset) {
    params.has_q_off = 1;
    params.q_off = chance(in, 8) ? nasty_int(in) : below(in, 200) - 100;
  }

  const int blocks = fuzz_malloc_blocks;
  size_t size = 0;
  fuzz_malloc_refused = 0;
  if (form == 1 || form == 2 || form == 3) {
    size = attn_schedule_bytes(&pattern, heads, q, k, &params, &ctx);
    expect((size == 0) == (ctx.reason != NULL), "attn_schedule_bytes: a size or a reason");
    expect(fuzz_malloc_blocks == blocks, "attn_schedule_bytes: memory is kept");
    if (size > 0 && size <= MALLOC_MAX) {
      params.memory = store_take(&s, size - (form == 2));
      params.memory_size = size - (form == 2);
      if (form == 3) params.memory = (uint8_t *)params.memory + 4;
    }
  }
  if (form == 4) fuzz_malloc_left = below(in, 24);
  const attn_status status = attn_schedule_build(&schedule, &pattern, heads, q, k, &params, &ctx);
  fuzz_malloc_left = -1;
  if (status != ATTN_OK) {
    expect(status < ATTN_STATUS_COUNT && ctx.reason && ctx.reason[0], "a rejection, no reason");
    expect(!memcmp(&schedule, &before, sizeof schedule), "a rejected schedule was written");
    expect(status != ATTN_E_MEMORY || fuzz_malloc_refused, "out of memory, which there was");
    expect(fuzz_malloc_blocks == blocks, "a rejected schedule keeps memory");
    store_free(&s);
    return;
  }
  expect(ctx.reason == NULL, "a success with a reason");
  expect(!params.memory || form == 1, "a memory that does not suit was accepted");
  expect(size == 0 || schedule.size == size, "attn_schedule_bytes: another size");
  expect(fuzz_malloc_blocks == blocks + !params.memory, "memory is kept");
  expect((schedule.owned == NULL) == (params.memory != NULL), "schedule.owned");
  if (params.memory) { /* the same bytes elsewhere */
    attn_schedule other;
    attn_schedule_params elsewhere = params;
    elsewhere.memory = NULL;
    expect(attn_schedule_build(&other, &pattern, heads, q, k, &elsewhere, NULL) == ATTN_OK,
           "cannot be built twice");
    expect(other.size == size && !memcmp(other.data, schedule.data, size), "two schedules of one");
    attn_schedule_free(&other);
  }
  judge_schedule(in, &s, &schedule, &pattern);
  attn_schedule_free(&schedule);
  expect(fuzz_malloc_blocks == blocks, "free left memory");
  store_free(&s);
}

#endif
