/* families/compression/cluster_queries.h owns the clusters of clustered attention: codes of queries by random
 * planes, k-means over the codes by Hamming distance, and the checks of both calls. */

enum { ATTN_HASH_ROWS_ = 64, ATTN_HASH_BITS_ = 64 };

typedef struct attn_cluster_job_ {
  attn_tensor o, q, k, v;
  attn_tensor assignment; /* the caller's numbers as a view [B,H,Tq,1]; data null: made here */
  int attend;             /* 0: only the assignment is wanted */
  attn_cluster_params p;  /* bits and iterations resolved */
  const attn_table_ *table;
  const int32_t *place;     /* [B,H,Tq] the assignment in use */
  float *planes;            /* [dk][64], a column for each bit */
  float *bias;              /* [64] */
  double *norm;             /* [64] of the planes */
  uint64_t *code;           /* [B,H,Tq] */
  int32_t *order;           /* [B,H,Tq] queries, those of a cluster together */
  int32_t *start;           /* [B,H,C+1] where the clusters that have any begin */
  int32_t *used;            /* [B,H] how many these are */
  int32_t *most;            /* [B] the most of a head */
  attn_tensor mean, shared; /* the centroids' queries and outputs */
  attn_topk_ plan;
  float scale_hi, scale_lo; /* of scores in log2 units */
  char *memory;             /* of the workers */
  int64_t each;
} attn_cluster_job_;

ATTN_FUNC_ int64_t attn_cluster_len_(const int32_t *len, int64_t b, int64_t all) {
  return len ? len[b] : all;
}

/* ---- codes ----------------------------------------------------------------------------------*/

/* Plane r, its offset and its norm. */
ATTN_FUNC_ void attn_hash_plane_(void *job, int worker, int64_t r) {
  const attn_cluster_job_ *a = (const attn_cluster_job_ *)job;
  const int64_t dk = a->q.dim;
  const uint64_t stream = ATTN_STREAM(0, 0, 2), first = (uint64_t)(r * (dk + 1));
  double sum = 0.0;
  (void)worker;
  for (int64_t c = 0; c < dk; c++) {
    float x = 0.0f;
    if (r < a->p.bits) x = (float)attn_random_normal(a->p.seed, stream, first + (uint64_t)c);
    a->planes[c * ATTN_HASH_BITS_ + r] = x;
    sum += (double)x * (double)x;
  }
  a->bias[r] = 0.0f;
  if (r < a->p.bits && !a->p.no_hash_bias)
    a->bias[r] = (float)attn_random_normal(a->p.seed, stream, first + (uint64_t)dk);
  a->norm[r] = sqrt(sum);
}

/* A bit as it is defined: each product is exact, the sum is that of binary64 in order. */
ATTN_FUNC_ int attn_hash_exact_(const float *x, const float *plane, int64_t dk, float bias) {
  double sum = 0.0;
  for (int64_t c = 0; c < dk; c++) sum += (double)x[c] * (double)plane[c * ATTN_HASH_BITS_];
  return sum > (double)bias;
}

/* Codes of 64 queries. A product in f32 settles nearly all bits: those that lie further from the plane
 * than it can be wrong by. */
ATTN_FUNC_ void attn_hash_item_(void *job, int worker, int64_t index) {
  const attn_cluster_job_ *a = (const attn_cluster_job_ *)job;
  const attn_tensor *q = &a->q;
  const int64_t tiles = (q->len + ATTN_HASH_ROWS_ - 1) / ATTN_HASH_ROWS_, unit = index / tiles;
  const int64_t b = unit / q->heads, h = unit % q->heads, i0 = index % tiles * ATTN_HASH_ROWS_;
  const int64_t left = attn_cluster_len_(a->p.q_len, b, q->len) - i0, dk = q->dim;
  const int64_t n = left < ATTN_HASH_ROWS_ ? left : (int64_t)ATTN_HASH_ROWS_;
  float *y = (float *)(void *)(a->memory + worker * a->each), *wide = y + 64 * ATTN_HASH_BITS_;
  float square[ATTN_HASH_ROWS_];
  if (n <= 0) return;
  const attn_floats_ x = attn_floats_of_(a->table, q, b, h, i0, n, wide);
  attn_on_(dense, a->table)
      ->gemm(y, ATTN_HASH_BITS_, n, x.p, x.stride, 1, a->planes, ATTN_HASH_BITS_, dk, a->p.bits, 1);
  attn_on_(select, a->table)->squares(square, NULL, x.p, x.stride, NULL, n, dk);
  for (int64_t r = 0; r < n; r++) {
    /* twice what dk + 1 roundings do to the sum of |x| |plane|; nothing under- or overflows here */
    const int sure = square[r] > 1e-30f && square[r] < 1e30f && dk < 65536;
    const double off = sure ? sqrt((double)square[r]) * (double)(dk + 8) / 8388608.0 : 0.0;
    uint64_t code = 0;
    for (int64_t bit = 0; bit < a->p.bits; bit++) {
      const double d = (double)y[r * ATTN_HASH_BITS_ + bit] - (double)a->bias[bit];
      int one = d > 0.0;
      if (!sure || !(fabs(d) > off * a->norm[bit]))
        one = attn_hash_exact_(x.p + r * x.stride, a->planes + bit, dk, a->bias[bit]);
      code |= (uint64_t)one << bit;
    }
    a->code[unit * q->len + i0 + r] = code;
  }
}

/* ---- k-means --------------------------------------------------------------------------------*/

/* What one worker works in; centroids are padded to whole 64s. */
typedef struct attn_kmeans_ {
  int64_t clusters, wide, groups; /* groups of eight hexadecimal digits of a code: 1 or 2 */
  uint64_t *centroid;             /* [C] */
  unsigned char *table;           /* [digit][value][wide]: distances of a digit */
  unsigned char *distance;        /* [wide] */
  int32_t *count;                 /* [C][64] members that have a bit */
  uint64_t *wait;                 /* [C][8] the same in bytes, for up to 255 members */
  int32_t *members, *draw;        /* [C], [Tq] */
} attn_kmeans_;

/* Cuts it from memory; bytes of it. */
ATTN_FUNC_ int64_t attn_kmeans_cut_(attn_kmeans_ *x, char *memory, const attn_cluster_job_ *a) {
  int64_t size[7], at[7], bytes = 0;
  x->clusters = a->p.clusters, x->wide = attn_add_(a->p.clusters, 63) / 64 * 64;
  x->groups = a->p.bits > 32 ? 2 : 1;
  size[0] = attn_piece_(x->clusters, 8), size[1] = attn_mul_(x->groups * 128, x->wide);
  size[2] = x->wide, size[3] = attn_mul_(x->wide, 256), size[4] = attn_mul_(x->wide, 64);
  size[5] = attn_piece_(x->clusters, 4), size[6] = attn_piece_(a->q.len, 4);
  for (int i = 0; i < 7; i++) at[i] = bytes, bytes = attn_add_(bytes, size[i]);
  if (!memory) return bytes;
  x->centroid = (uint64_t *)(void *)(memory + at[0]);
  x->table = (unsigned char *)(memory + at[1]), x->distance = (unsigned char *)(memory + at[2]);
  x->count = (int32_t *)(void *)(memory + at[3]), x->wait = (uint64_t *)(void *)(memory + at[4]);
  x->members = (int32_t *)(void *)(memory + at[5]);
  x->draw = (int32_t *)(void *)(memory + at[6]);
  return bytes;
}

/* Distances of all values of all digits from the centroids. Those from a code are sums of rows, 64
 * centroids at a time in vectors of bytes: loops that any compiler vectorises. */
ATTN_FUNC_ void attn_kmeans_table_(const attn_kmeans_ *x) {
  static const unsigned char ones[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
  for (int64_t digit = 0; digit < 8 * x->groups; digit++)
    for (unsigned value = 0; value < 16; value++) {
      unsigned char *row = x->table + (digit * 16 + value) * x->wide;
      for (int64_t c = 0; c < x->clusters; c++)
        row[c] = ones[value ^ ((unsigned)(x->centroid[c] >> (4 * digit)) & 15u)];
      for (int64_t c = x->clusters; c < x->wide; c++) row[c] = digit ? 0 : 255; /* never nearest */
    }
}

/* sum[j] += rows of eight digits, 64 of them */
ATTN_INLINE_ void attn_hamming_(unsigned char *sum, const unsigned char *const *row, int64_t at) {
  const unsigned char *a = row[0] + at, *b = row[1] + at, *c = row[2] + at, *d = row[3] + at;
  const unsigned char *e = row[4] + at, *f = row[5] + at, *g = row[6] + at, *h = row[7] + at;
  for (int j = 0; j < 64; j++)
    sum[j] = (unsigned char)(sum[j] + a[j] + b[j] + c[j] + d[j] + e[j] + f[j] + g[j] + h[j]);
}

/* The nearest centroid, the first of equal ones. */
ATTN_FUNC_ int32_t attn_kmeans_nearest_(const attn_kmeans_ *x, uint64_t code) {
  const unsigned char *row[16];
  unsigned char least[64], sum[64];
  memset(least, 255, sizeof least);
  for (int64_t digit = 0; digit < 8 * x->groups; digit++)
    row[digit] = x->table + (digit * 16 + (int64_t)(code >> (4 * digit) & 15u)) * x->wide;
  for (int64_t c = 0; c < x->wide; c += 64) {
    memset(sum, 0, sizeof sum);
    attn_hamming_(sum, row, c);
    if (x->groups > 1) attn_hamming_(sum, row + 8, c);
    for (int j = 0; j < 64; j++) least[j] = sum[j] < least[j] ? sum[j] : least[j];
    memcpy(x->distance + c, sum, sizeof sum);
  }
  for (int j = 0; j < 32; j++) least[j] = least[j + 32] < least[j] ? least[j + 32] : least[j];
  for (int j = 0; j < 16; j++) least[j] = least[j + 16] < least[j] ? least[j + 16] : least[j];
  for (int j = 1; j < 16; j++) least[0] = least[j] < least[0] ? least[j] : least[0];
  const void *first = memchr(x->distance, least[0], (size_t)x->clusters);
  return (int32_t)((const unsigned char *)first - x->distance);
}

/* The bits that wait join the counts of a cluster. */
ATTN_FUNC_ void attn_kmeans_flush_(const attn_kmeans_ *x, int64_t c) {
  for (int bit = 0; bit < 64; bit++)
    x->count[c * 64 + bit] += (int32_t)(x->wait[c * 8 + bit / 8] >> (bit % 8 * 8) & 255u);
  memset(x->wait + c * 8, 0, 8 * sizeof *x->wait);
}

/* New centroids. 0 = they are the old ones and stay so. */
ATTN_FUNC_ int attn_kmeans_update_(const attn_kmeans_ *x, const attn_cluster_job_ *a,
                                   const uint64_t *code, const int32_t *place, int64_t n,
                                   int64_t round) {
  const uint64_t each = 0x0101010101010101u, pick = 0x8040201008040201u;
  int moved = 0;
  memset(x->count, 0, (size_t)(x->clusters * 64) * sizeof *x->count);
  memset(x->wait, 0, (size_t)(x->clusters * 8) * sizeof *x->wait);
  memset(x->members, 0, (size_t)x->clusters * sizeof *x->members);
  for (int64_t i = 0; i < n; i++) {
    uint64_t *wait = x->wait + (int64_t)place[i] * 8;
    for (int byte = 0; byte < 4 * x->groups; byte++) /* bit r of it becomes byte r of a word */
      wait[byte] +=
          (((code[i] >> (8 * byte) & 255u) * each & pick) + 0x7f7f7f7f7f7f7f7fu) >> 7 & each;
    if (++x->members[place[i]] % 255 == 0) attn_kmeans_flush_(x, place[i]);
  }
  for (int64_t c = 0; c < x->clusters; c++) {
    uint64_t next = 0;
    attn_kmeans_flush_(x, c);
    for (int64_t bit = 0; bit < a->p.bits; bit++)
      next |= (uint64_t)(2 * (int64_t)x->count[c * 64 + bit] > x->members[c]) << bit;
    if (x->members[c] == 0)
      next =
          attn_random_u64(a->p.seed, ATTN_STREAM(0, 0, 4), (uint64_t)(round * x->clusters + c)) >>
          (64 - a->p.bits);
    moved |= next != x->centroid[c] || x->members[c] == 0;
    x->centroid[c] = next;
  }
  return moved;
}

/* The assignment of one head. */
ATTN_FUNC_ void attn_kmeans_item_(void *job, int worker, int64_t unit) {
  const attn_cluster_job_ *a = (const attn_cluster_job_ *)job;
  const int64_t b = unit / a->q.heads, t = a->q.len, n = attn_cluster_len_(a->p.q_len, b, t);
  const uint64_t *code = a->code + unit * t;
  const uint64_t choice = ATTN_STREAM(0, 0, 3);
  int32_t *place = (int32_t *)(void *)attn_at_(&a->assignment, b, unit % a->q.heads, 0);
  attn_kmeans_ x;
  attn_kmeans_cut_(&x, a->memory + worker * a->each, a);
  for (int64_t i = 0; i < n; i++) x.draw[i] = (int32_t)i;
  for (int64_t i = 0; i < x.clusters; i++) {
    const int64_t j = i + attn_random_below(a->p.seed, choice, (uint64_t)i, n - i);
    const int32_t one = x.draw[j];
    x.draw[j] = x.draw[i], x.draw[i] = one;
    x.centroid[i] = code[one];
  }
  for (int64_t round = 1;; round++) {
    attn_kmeans_table_(&x);
    for (int64_t i = 0; i < n; i++) place[i] = attn_kmeans_nearest_(&x, code[i]);
    if (round >= a->p.iterations) break;
    if (!attn_kmeans_update_(&x, a, code, place, n, round)) break;
  }
  for (int64_t i = n; i < t; i++) place[i] = -1;
}

ATTN_COLD_ int attn_cluster_steps_(attn_stage_ *s, void *job) {
  attn_cluster_job_ *a = (attn_cluster_job_ *)job;
  attn_kmeans_ x;
  const int64_t units = attn_mul_(a->q.batch, a->q.heads), dk = a->q.dim;
  const int64_t tiles = (a->q.len + ATTN_HASH_ROWS_ - 1) / ATTN_HASH_ROWS_;
  a->table = s->table;
  a->code = (uint64_t *)attn_stage_take_(s, attn_mul_(units, a->q.len), 8);
  a->planes = (float *)attn_stage_take_(s, attn_mul_(dk, ATTN_HASH_BITS_), 4);
  a->bias = (float *)attn_stage_take_(s, ATTN_HASH_BITS_, 4);
  a->norm = (double *)attn_stage_take_(s, ATTN_HASH_BITS_, 8);
  if (!attn_stage_for_(s, ATTN_HASH_BITS_, attn_hash_plane_, a, 0, NULL)) return 0;
  const int64_t wide = a->q.dtype == ATTN_F32 ? 0 : attn_mul_(dk, ATTN_HASH_ROWS_);
  a->each = attn_piece_(attn_add_(64 * ATTN_HASH_BITS_, wide), 4);
  if (!attn_stage_for_(s, attn_mul_(units, tiles), attn_hash_item_, a, a->each, &a->memory))
    return 0;
  a->each = attn_kmeans_cut_(&x, NULL, a);
  return attn_stage_for_(s, units, attn_kmeans_item_, a, a->each, &a->memory);
}

/* ---- checks ---------------------------------------------------------------------------------*/

/* Rules that read arrays. */
ATTN_COLD_ int attn_cluster_data_(attn_error_ *e, const attn_cluster_job_ *a) {
  const int64_t t = a->q.len;
  if (!attn_check_lens_(e, a->p.q_len, a->q.batch, t, "params.q_len must lie in 0..q.len"))
    return 0;
  if (a->attend &&
      !attn_check_lens_(e, a->p.kv_len, a->q.batch, a->k.len, "params.kv_len must lie in 0..k.len"))
    return 0;
  for (int64_t b = 0; b < a->q.batch; b++) {
    const int64_t n = attn_cluster_len_(a->p.q_len, b, t);
    if (t > 0 && a->p.clusters > n)
      return attn_reject_(e, ATTN_E_RANGE,
                          "params.clusters must not exceed the queries of any item");
    if (a->attend && a->assignment.data)
      for (int64_t h = 0; h < a->q.heads; h++) {
        const int32_t *place = (const int32_t *)(const void *)attn_at_(&a->assignment, b, h, 0);
        for (int64_t i = 0; i < n; i++)
          if (place[i] < 0 || place[i] >= a->p.clusters)
            return attn_reject_(e, ATTN_E_INDEX, "assignment must lie in 0..params.clusters-1");
      }
  }
  return 1;
}

/* Every rule of both calls; data = 0: without those that read arrays. */
ATTN_COLD_ int attn_cluster_check_(attn_error_ *e, attn_cluster_job_ *a,
                                   const attn_cluster_params *params, const attn_ctx *ctx,
                                   const attn_table_ **table, int *workers, int data) {
  const int64_t any = ATTN_ANY_, in = ATTN_DIVIDES_;
  const int64_t b = a->q.batch, h = a->q.heads, t = a->q.len;
  const int role = a->attend ? ATTN_OPTIONAL_ : ATTN_OUT_;
  attn_cluster_params *p = &a->p;
  attn_span_ more[2];
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  if (!params) return attn_reject_(e, ATTN_E_NULL, "params must not be null: it has the clusters");
  *p = *params;
  attn_operand_ op[] = {ATTN_OPERAND_(&a->q, "q", 0, any, any, any, any, ""),
                        ATTN_OPERAND_(&a->assignment, "assignment", role, b, h, t, 1, ""),
                        ATTN_OPERAND_(&a->k, "k", 0, b, in, any, a->q.dim,
                                      "k must be [q.batch, a divisor of q.heads, ., q.dim]"),
                        ATTN_OPERAND_(&a->v, "v", 0, b, in, a->k.len, any,
                                      "v must be [q.batch, a divisor of q.heads, k.len, .]"),
                        ATTN_OPERAND_(&a->o, "o", ATTN_OUT_, b, h, t, a->v.dim,
                                      "o must be [q.batch, q.heads, q.len, v.dim]")};
  const int count = a->attend ? 5 : 2;
  for (int i = 0; i < count; i++) {
    if (!attn_check_operand_(e, &op[i], h)) return 0;
    if (i > 0) continue;
    if (h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
    if (t > INT32_MAX) return attn_reject_(e, ATTN_E_OVERFLOW, "q.len must be below 2^31");
    /* now that q's extents are known to be legal */
    a->assignment = attn_bhtd(a->assignment.data, ATTN_F32, b, h, t, 1);
  }
  if (a->attend && a->k.len > INT32_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "k.len must be below 2^31");
  if (p->clusters < 1) return attn_reject_(e, ATTN_E_SHAPE, "params.clusters must be at least 1");
  if (b > 0 && t > 0 && p->clusters > t)
    return attn_reject_(e, ATTN_E_RANGE, "params.clusters must not exceed the queries of any item");
  if (p->bits < 0 || p->bits > 63)
    return attn_reject_(e, ATTN_E_RANGE, "params.bits must lie in 1..63, or be 0");
  if (p->iterations < 0)
    return attn_reject_(e, ATTN_E_SHAPE, "params.iterations must not be negative");
  if (p->k < 0) return attn_reject_(e, ATTN_E_SHAPE, "params.k must not be negative");
  if (a->attend && p->causal && p->k == 0)
    return attn_reject_(e, ATTN_E_RANGE, "params.causal needs params.k");
  if (p->bits == 0) p->bits = 32;
  if (p->iterations == 0) p->iterations = 10;
  return attn_check_scale_(e, p->scale) &&
         attn_check_array_(e, p->q_len, b, 4, "params.q_len must be aligned to its elements",
                           &more[0]) &&
         attn_check_array_(e, p->kv_len, b, 4, "params.kv_len must be aligned to its elements",
                           &more[1]) &&
         attn_check_apart_(e, ctx, op, count, more, 2) && (!data || attn_cluster_data_(e, a));
}

/* ---- the call -------------------------------------------------------------------------------*/

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_cluster_call_(attn_cluster_job_ *a, const attn_cluster_params *params,
                                          attn_steps_fn_ steps, const char *path, attn_ctx *ctx,
                                          size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  int workers;
  if (attn_cluster_check_(&e, a, params, ctx, &table, &workers, bytes == NULL)) {
    attn_stage_ s = attn_stage_open_(&e, table, workers, ctx, bytes != NULL);
    if (a->q.batch > 0 && a->q.len > 0)
      attn_stage_call_(&s, ctx, steps, a, path, bytes);
    else if (!bytes)
      attn_report_(ctx, table, 1, "no-op", "no queries");
  }
  return attn_end_(bytes ? NULL : ctx, &e);
}

ATTN_COLD_ attn_cluster_job_ attn_cluster_job_of_(const int32_t *assignment, attn_tensor q) {
  attn_cluster_job_ a;
  memset(&a, 0, sizeof a);
  a.q = q;
  a.assignment.data = (void *)(uintptr_t)assignment;
  return a;
}

ATTN_COLD_ attn_status attn_cluster_queries_call_(int32_t *assignment, attn_tensor q,
                                                  const attn_cluster_params *params, attn_ctx *ctx,
                                                  size_t *bytes) {
  attn_cluster_job_ a = attn_cluster_job_of_(assignment, q);
  return attn_cluster_call_(&a, params, attn_cluster_steps_, "codes and k-means", ctx, bytes);
}
ATTN_CALL_(attn_cluster_queries, (assignment, q, params), int32_t *assignment, attn_tensor q,
           const attn_cluster_params *params)
