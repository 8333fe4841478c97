/* engine/t5.h owns T5's rule of distance buckets. It is exact: no logarithm of a floating
 * point number decides a bucket. */

enum { ATTN_T5_MOST_ = 1024 }; /* buckets, both sides together */

/* The resolved rule: side buckets on each side, the first `exact` of which hold one distance. */
typedef struct attn_t5_rule_ {
  int64_t side, exact, logs, most; /* logs = side - exact; most = max_distance */
  int bidirectional;
} attn_t5_rule_;

/* 0 when the arguments are invalid. */
ATTN_FUNC_ int attn_t5_rule_of_(attn_t5_rule_ *t, int64_t buckets, int64_t max_distance,
                                int bidirectional) {
  if (buckets == 0) buckets = 32;
  if (max_distance == 0) max_distance = 128;
  t->bidirectional = bidirectional != 0;
  t->side = bidirectional ? buckets / 2 : buckets;
  t->exact = t->side / 2;
  t->logs = t->side - t->exact;
  t->most = max_distance;
  return buckets <= ATTN_T5_MOST_ && t->exact >= 1 && max_distance > t->exact &&
         max_distance <= INT32_MAX;
}

/* x *= by; x has n limbs, the lowest first. Returns the limbs it has then. */
ATTN_FUNC_ int attn_big_times_(uint32_t *x, int n, int64_t by) {
  uint64_t carry = 0;
  for (int i = 0; i < n; i++) {
    carry += (uint64_t)x[i] * (uint64_t)by;
    x[i] = (uint32_t)carry;
    carry >>= 32;
  }
  if (carry) x[n++] = (uint32_t)carry;
  return n;
}

/* The sign of a^logs - exact^(logs - k) most^k, for exact <= a <= most: not negative, distance a has reached
 * logarithmic bucket k. The quotient in double settles all but (near) ties, which are settled in
 * whole numbers. */
ATTN_FUNC_ int attn_t5_against_(const attn_t5_rule_ *t, int64_t a, int64_t k) {
  const double up = (double)a / (double)t->exact, down = (double)a / (double)t->most;
  const double slack = (double)t->logs * (1.0 / 1125899906842624.0); /* 4 roundings a factor */
  int64_t ups = t->logs - k, downs = k;
  double r = 1.0;
  while (ups + downs > 0) { /* in an order that keeps r near 1 */
    if (downs > 0 && (r >= 1.0 || ups == 0))
      r *= down, downs--;
    else
      r *= up, ups--;
  }
  if (r > 1.0 + slack) return 1;
  if (r < 1.0 - slack) return -1;
  uint32_t left[ATTN_T5_MOST_ / 2 + 1], right[ATTN_T5_MOST_ / 2 + 1];
  int nl = 1, nr = 1;
  left[0] = right[0] = 1;
  for (int64_t i = 0; i < t->logs; i++) {
    nl = attn_big_times_(left, nl, a);
    nr = attn_big_times_(right, nr, i < k ? t->most : t->exact);
  }
  if (nl != nr) return nl > nr ? 1 : -1;
  while (nl > 0 && left[nl - 1] == right[nl - 1]) nl--;
  return nl == 0 ? 0 : left[nl - 1] > right[nl - 1] ? 1 : -1;
}

ATTN_FUNC_ int attn_t5_reaches_(const attn_t5_rule_ *t, int64_t a, int64_t k) {
  return attn_t5_against_(t, a, k) >= 0;
}

/* edge[n] is the smallest distance of bucket n of a side, n = 0..side-1; nondecreasing, so that a
 * bucket between equal edges has none. edge has ATTN_T5_MOST_ entries. */
ATTN_FUNC_ void attn_t5_edges_(int64_t *edge, const attn_t5_rule_ *t) {
  for (int64_t n = 0; n <= t->exact; n++) edge[n] = n;
  for (int64_t k = 1; k < t->logs; k++) {
    int64_t lo = edge[t->exact + k - 1], hi = t->most; /* lo - 1 does not reach k, most does */
    while (lo < hi) {
      const int64_t mid = lo + (hi - lo) / 2;
      if (attn_t5_reaches_(t, mid, k))
        hi = mid;
      else
        lo = mid + 1;
    }
    edge[t->exact + k] = lo;
  }
}
