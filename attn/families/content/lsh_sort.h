/* families/content/lsh_sort.h owns the ranks of LSH attention: who is sorted where in a round, and which
 * range of ranks each row sees. Since ranks follow buckets, buckets, chunks and, within a bucket, the
 * causal mask are all one range. */

enum { ATTN_LSH_DIGIT_ = 11 };

/* Rows of a unit by (bucket, position) into to; their number. Radix sort, stable; temp is as long,
 * count has 2^11. */
ATTN_FUNC_ int64_t attn_lsh_sort_rows_(int32_t *to, int32_t *temp, int32_t *count,
                                       const int32_t *bucket, int64_t len, const uint8_t *valid) {
  const int64_t digits = (int64_t)1 << ATTN_LSH_DIGIT_;
  int32_t all = 0;
  int passes = 1;
  int64_t n = 0;
  for (int64_t i = 0; i < len; i++)
    if (!valid || valid[i]) all |= bucket[i];
  while (passes < 3 && all >> (passes * ATTN_LSH_DIGIT_)) passes++;
  int32_t *from = passes % 2 ? temp : to, *next = passes % 2 ? to : temp;
  for (int64_t i = 0; i < len; i++)
    if (!valid || valid[i]) from[n++] = (int32_t)i;
  for (int p = 0; p < passes; p++) {
    const int shift = p * ATTN_LSH_DIGIT_;
    int32_t sum = 0;
    memset(count, 0, (size_t)digits * sizeof *count);
    for (int64_t s = 0; s < n; s++) count[(bucket[from[s]] >> shift) & (int32_t)(digits - 1)]++;
    for (int64_t d = 0; d < digits; d++) sum += count[d], count[d] = sum - count[d];
    for (int64_t s = 0; s < n; s++)
      next[count[(bucket[from[s]] >> shift) & (int32_t)(digits - 1)]++] = from[s];
    int32_t *swap = from;
    from = next, next = swap;
  }
  return n;
}

/* The end of the bucket that begins at rank s. */
ATTN_FUNC_ int64_t attn_lsh_run_(const int32_t *order, const int32_t *bucket, int64_t s,
                                 int64_t n) {
  const int32_t own = bucket[order[s]];
  while (s < n && bucket[order[s]] == own) s++;
  return s;
}

/* Ranges of a unit's rows in one round; n rows, sorted, and as many keys. A range round the end of the
 * ring, lo .. n - 1 and 0 .. hi - 1, is one of hi - lo + 2^32 numbers: those between n and 2^32 are no ranks,
 * and unsigned differences go round there by themselves. */
ATTN_FUNC_ void attn_lsh_ranges_(const attn_lsh_job_ *a, const int32_t *order,
                                 const int32_t *bucket, uint32_t *bound, int64_t n) {
  const attn_lsh_params *p = &a->p;
  const int64_t m = p->chunk, step = 2 * p->rounds;
  const int alone = p->self == ATTN_LSH_SELF_ALONE;
  for (int64_t s = 0, from = 0, end = 0; s < n; s++) {
    int64_t lo = 0, hi = n;
    if (!p->across) {
      if (s == end) from = s, end = attn_lsh_run_(order, bucket, s, n);
      lo = from, hi = p->causal ? s + !alone : end;
    }
    const int64_t chunks = m > 0 ? attn_ceil_(n, m) : 0, c = m > 0 ? s / m : 0;
    const int64_t back = c - p->before, ahead = c + p->after + 1;
    if (p->wrap && p->before + p->after + 1 >= chunks) {
      lo = 0, hi = n; /* all of the ring */
    } else if (p->wrap && (back < 0 || ahead > chunks)) {
      lo = (back < 0 ? back + chunks : back) * m;
      hi = (ahead > chunks ? ahead - chunks : ahead) * m; /* below lo: round the end, see there */
    } else if (m > 0) {
      lo = attn_max64_(lo, (s / m - p->before) * m);
      hi = attn_min64_(hi, (s / m + p->after + 1) * m);
    }
    uint32_t *to = bound + order[s] * step;
    to[0] = (uint32_t)lo, to[1] = (uint32_t)(p->wrap ? hi - lo : attn_max64_(hi - lo, 0));
  }
}

/* The same when queries have an order of their own: the run of keys of equal bucket. */
ATTN_FUNC_ void attn_lsh_meet_(const attn_lsh_job_ *a, const int32_t *q_order,
                               const int32_t *q_place, int64_t nq, const int32_t *k_order,
                               const int32_t *k_place, int64_t nk, uint32_t *bound) {
  int64_t lo = 0, hi = 0;
  for (int64_t s = 0; s < nq; s++) {
    const int32_t own = q_place[q_order[s]];
    if (s == 0 || own != q_place[q_order[s - 1]]) {
      for (lo = hi; lo < nk && k_place[k_order[lo]] < own;) lo++;
      hi = lo < nk && k_place[k_order[lo]] == own ? attn_lsh_run_(k_order, k_place, lo, nk) : lo;
    }
    uint32_t *to = bound + 2 * a->p.rounds * q_order[s];
    to[0] = (uint32_t)lo, to[1] = (uint32_t)(hi - lo);
  }
}

/* 1 / max(|x|, 1e-6) of one head. */
ATTN_FUNC_ void attn_lsh_norms_(const attn_lsh_job_ *a, int64_t b, int64_t h, float *inverse,
                                float *row) {
  const attn_tensor *x = &a->k;
  for (int64_t j = 0; j < x->len; j++) {
    const float *at = (const float *)(const void *)attn_at_(x, b, h, j);
    float square;
    if (x->dtype != ATTN_F32) {
      a->table->widen(row, at, 0, NULL, 1, x->dim, x->dtype, NULL);
      at = row;
    }
    attn_on_(select, a->table)->squares(&square, NULL, at, 0, NULL, 1, x->dim);
    double norm = sqrt((double)square);
    if (!(square > 1e-30f && square < 1e30f)) { /* not by f32 */
      double sum = 0.0;
      for (int64_t c = 0; c < x->dim; c++) sum += (double)at[c] * (double)at[c];
      norm = sqrt(sum);
    }
    inverse[j] = (float)(1.0 / (norm > 1e-6 ? norm : 1e-6));
  }
}

/* Rows that do not exist are zeros. */
ATTN_FUNC_ void attn_lsh_nothing_(const attn_lsh_job_ *a, int64_t b, int64_t h, int64_t i) {
  const float none = -INFINITY;
  a->table->blend(attn_at_(&a->o, b, h, i), NULL, NULL, a->o.dtype, ATTN_F32, ATTN_F32, a->o.dim,
                  0.0f, 0.0f);
  if (a->p.lse.data) memcpy(attn_at_(&a->p.lse, b, h, i), &none, sizeof none);
}

/* One round of one unit of the wave; with round 0, what is to be done once. */
ATTN_FUNC_ void attn_lsh_sort_(void *job, int worker, int64_t index) {
  const attn_lsh_job_ *a = (const attn_lsh_job_ *)job;
  const int64_t rounds = a->p.rounds, u = index / rounds, r = index % rounds;
  const int64_t unit = a->first + u, b = unit / a->heads, h = unit % a->heads;
  const int64_t tq = a->q.len, tk = a->k.len, nk = attn_lsh_len_(a->p.kv_len, b, tk);
  const uint8_t *valid = a->p.valid ? a->p.valid + b * tk : NULL;
  const int apart = a->kind == ATTN_LSH_APART_;
  const int64_t known = a->has_k ? unit : u;
  const int32_t *k_place = a->k_place + (known * rounds + r) * tk;
  const int32_t *q_place = apart ? a->q_place + (known * rounds + r) * tq : k_place;
  int32_t *k_order = a->k_order + (u * rounds + r) * tk;
  int32_t *q_order = a->q_order + (u * rounds + r) * tq;
  int32_t *count = (int32_t *)(void *)(a->memory + worker * a->each);
  int32_t *temp = count + ((int64_t)1 << ATTN_LSH_DIGIT_);
  uint32_t *rank = a->rank + u * tk * rounds + r, *bound = a->bound + (u * tq * rounds + r) * 2;
  const int64_t keys = attn_lsh_sort_rows_(k_order, temp, count, k_place, nk, valid);
  int64_t rows = keys;
  for (int64_t s = 0; s < keys; s++) rank[k_order[s] * rounds] = (uint32_t)s;
  if (apart) {
    rows =
        attn_lsh_sort_rows_(q_order, temp, count, q_place, attn_lsh_len_(a->p.q_len, b, tq), NULL);
    attn_lsh_meet_(a, q_order, q_place, rows, k_order, k_place, keys, bound);
  } else {
    attn_lsh_ranges_(a, k_order, k_place, bound, keys);
  }
  if (r > 0) return;
  a->count[2 * u] = (int32_t)rows, a->count[2 * u + 1] = (int32_t)keys;
  if (!apart) attn_lsh_norms_(a, b, h, a->inverse + u * tk, (float *)(void *)temp);
  for (int64_t i = 0; i < tq; i++)
    if (apart ? i >= rows : i >= nk || (valid && !valid[i])) attn_lsh_nothing_(a, b, h, i);
}
