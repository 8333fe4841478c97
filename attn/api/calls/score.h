/* api/calls/score.h owns the terms that a score may have beyond the scaled dot product. Each is a field
 * of attn_sdpa_params; all zero is absent. Terms of several mechanisms may be combined: the order
 * in which they apply is that of attn_sdpa_params.
 *
 * Query i sits at key position p_i = i + q_off; d = j - p_i is the signed distance of all of them: 0 for
 * the query's own position, negative for the past, positive for keys ahead. Arrays per head are [H],
 * H the query heads. */

/* Relative position vectors, by clipped d (row 0 is the furthest past): with c = (len - 1)/2 and
 * e = clip(d, -c, c) + c
 *   x_ij = s (q_i . (k_j + keys[e]) + k_j . queries[e]),   O_i = sum_j P_ij (v_j + values[e])
 * keys and queries [1, 1 or H, 2c+1, dk], values [1, 1 or H, 2c+1, dv], f32, of one len; each may be absent.
 * Keys and values cost one short row of dot products per query and an addition per pair. Queries cost a dot
 * product for each key and each distance at which a query of its tile of 64 sees it: one for all beyond
 * c, 79/64 a pair before, dk + 80 rows of 256 bytes a worker, and with a schedule one a pair. In every mode of
 * params.compute they are products in f32. A forbidden key's product reaches nothing.
 * BERT's relative_key_query is keys = queries. DeBERTa's disentangled attention, as the code that published weights
 * run on has it: content to position is keys, position to content queries, both with the row of i - j, clipped; s =
 * scale = 1/sqrt(dk (1 + the number of them)). Of its tables kr and qr of 2 n rows, n = position_buckets or else
 * max_relative_positions, row e here is row n + clip(b, -n, n - 1) there, b = c - e or, with buckets,
 * attn_deberta_bucket(c - e, position_buckets, max_relative_positions); c >= max_relative_positions is enough.
 * Sources: keys and values: Shaw et al. 2018, arXiv 1803.02155; keys = queries: Huang et al. 2020, arXiv 2009.13658;
 * DeBERTa: He et al. 2020, arXiv 2006.03654, 2021, arXiv 2111.09543. */
typedef struct attn_relative {
  attn_tensor keys, values;
  attn_tensor queries;
} attn_relative;

/* Transformer-XL scores: x_ij = s ((q_i + u_h) . k_j + (q_i + v_h) . table[d - first])
 * table [1, 1 or H, n, dk] f32 holds the projected encodings of the distances first ..
 * first + n - 1 and must cover every pair that causal, window and lengths allow: from the furthest
 * past on (first = 1 - n where the last row is the query's own position), the order in which
 * Transformer-XL and XLNet make them. d is negative for the past, theirs is -d: the encoding of
 * their distance t stands in row -t - first. u and v may be null. Source: Dai et al. 2019, arXiv
 * 1901.02860. */
typedef struct attn_xl {
  attn_tensor table;
  int64_t first;
  const float *u; /* u [H, dk] */
  const float *v; /* v [H, dk] */
} attn_xl;

/* Relative labels: the label of a pair chooses a vector that is added to the key and a number that
 * is added to the dot product, both inside the scale:
 *   x_ij = s (q_i . (k_j + table[label]) + bias[label, h])
 * label(user, batch, head, i, j) returns 0 .. table.len - 1 or a negative number for none; it must
 * depend on its arguments alone. Anything else counts as none. i and j are indices: a label by
 * distance is one of d = j - i - q_off. table [1, 1 or H, n, dk] f32, bias
 * [n, H] or null. Sources: Ainslie et al. 2020, arXiv 2004.08483; Ye et al. 2019, arXiv
 * 1911.04070. */
typedef int64_t (*attn_label_fn)(void *user, int64_t batch, int64_t head, int64_t i, int64_t j);
typedef struct attn_labels {
  attn_label_fn label;
  void *user;
  attn_tensor table;
  const float *bias;
} attn_labels;

/* Distance-aware factor: x = relu(x) f_h(|d|), f_h(t) = (1 + exp(beta_h))/(1 + exp(beta_h -
 * alpha_h t)). Needs s > 0. alpha, beta [H]. Source: Wu et al. 2020, arXiv 2010.06925. */
typedef struct attn_distance_factor {
  const float *alpha, *beta;
} attn_distance_factor;

/* A number for each distance d (entry 0 is the furthest past): x += T_h[d], T_h[d] =
 * table[h][d - first]. Outside the table its nearest end holds, or, with reject, no allowed pair may lie there
 * (ATTN_E_RANGE; judged by causal, window, q_off and the extents). inside = 1 multiplies the term by s as well.
 * Sources: Raffel et al. 2019, arXiv 1910.10683; Huang et al. 2018, arXiv 1809.04281 (inside). */
typedef struct attn_toeplitz {
  const float *table; /* [heads, len] */
  int64_t len, first;
  int64_t heads; /* 0 or 1: shared; H: one row each */
  int reject, inside;
} attn_toeplitz;

/* T5's bucketed distances: x += table[bucket(d), h] with attn_t5_bucket, where d > 0 is a key ahead.
 * The T5 models do not scale their scores: scale = 1 goes with their tables (0 is 1/sqrt(dk) here as
 * anywhere). Source: Raffel et al. 2019, arXiv 1910.10683. */
typedef struct attn_t5 {
  const float *table;   /* [buckets, H] */
  int64_t buckets;      /* 0 = 32 */
  int64_t max_distance; /* 0 = 128 */
  int bidirectional;    /* 0: the past only, future keys share bucket 0 */
} attn_t5;

/* A parabola of the distance: x -= |w_h d^2 + b_h|, w >= 0, b <= 0. Source: Guo et al. 2019, doi
 * 10.1609/aaai.v33i01.33016489. */
typedef struct attn_parabola {
  const float *w;    /* [H]; null = absent */
  const float *bias; /* [H]; null = 0 */
} attn_parabola;

/* A Gaussian bump per query: x -= precision_i (j - center_i)^2. Both [B, H, Tq]; see
 * attn_gaussian_window. Source: Yang et al. 2018, arXiv 1810.10182. */
typedef struct attn_gaussian {
  const float *center, *precision;
} attn_gaussian;

/* Adaptive span: weights are multiplied by m(t) = clip((ramp + z - t - shift)/ramp, 0, 1) and
 * renormalised, t = p_i - j >= 1 (>= 0 with include_self). Keys with m = 0 or t > max_span are not
 * visited. Source: Sukhbaatar et al. 2019, arXiv 1905.07799. */
typedef struct attn_span {
  const float *z;   /* [H], or [B, H, Tq] when per_query; 0 <= z, z <= max_span if that is given */
  int per_query;    /* 1: the dynamic span of attn_span_predict */
  float ramp;       /* R > 0; 0 = 32 */
  int64_t max_span; /* S; 0 = none */
  int include_self; /* 0: strictly earlier keys, as in the paper */
  int64_t shift;    /* 0: the paper; -1: its released code */
} attn_span;

/* A tile of scores as a user's modifier sees it. The score of key c and query r is
 * score[c * key_stride + r * query_stride], in natural units, after every other term (but an
 * adaptive span, which multiplies weights) and before the allowed set: entries of forbidden pairs may hold anything
 * and are ignored. */
typedef struct attn_score_tile {
  float *score;
  int64_t key_stride, query_stride;
  int64_t batch, keys, queries;
  const int64_t *key;      /* [keys] their indices */
  const int64_t *query;    /* [queries] their indices i */
  const int64_t *position; /* [queries] p_i */
  const int64_t *head;     /* [queries] query heads */
} attn_score_tile;

/* Changes scores in place. -inf forbids a pair; NaN makes its row NaN; +inf does too. Any pair is
 * handed over once or, near non-finite values, twice; in any order, from any worker. */
typedef void (*attn_score_fn)(void *user, const attn_score_tile *tile);

/* params.modify_weights is given the same tiles with normalised weights in place of scores: score[..]
 * holds P_ij, which include sinks, softmax_one and an adaptive span, and what it leaves there multiplies
 * the values, and is what a map of weights holds: O_i = sum_j P'_ij v_j, not normalised again. The LSE is
 * that of P. A pair that is not allowed, or whose score is -inf, keeps weight 0 whatever is written.
 * It is called as modify is. Costs: the scores twice, 12 bytes a row, and a class of many rows. For
 * attn_sdpa, with ragged and schedules too, attn_cache_sdpa, and calls that are one attn_sdpa inside
 * (attn_multihead, attn_collaborative, blocks, attn_lazyformer, attn_camtl); with a map of another stage than
 * ATTN_MAP_WEIGHTS, and in calls whose weights are others, ATTN_E_RANGE. */

/* Dropout by counters: an element stays, times 1/(1 - p), or becomes 0, as a random number of its own says. Of element
 * (b, h, i, j), with c = j / 4 rounded down,
 *
 *   w[0..3] = Philox4x32-10(counter = (c, i, h + head0, b + batch0), key = the halves of seed + offset, low first)
 *   M = 1/(1 - p) if the upper 24 bits of w[j mod 4] are at least ceil(p 2^24), else 0
 *
 * so that the same elements stay on every tier and for any workers, batch and division of a call that batch0 and head0
 * name. Layers and steps must differ in seed + offset. 1/(1 - p) is formed in double and rounded once. b, h, i, j and
 * what is added to them are below 2^32 (RANGE, OVERFLOW). Weights are dropped by attn_sdpa, attn_sdpa_backward, attn_edges
 * and calls that are one attn_sdpa inside (attn_multihead without bias_k, blocks, attn_camtl); others refuse it (RANGE).
 * Source: Srivastava et al. 2014, JMLR 15; Salmon et al. 2011,
 * doi 10.1145/2063384.2063405. */
typedef struct attn_drop {
  double p; /* in [0, 1); 0: none */
  uint64_t seed, offset;
  int64_t batch0, head0;
} attn_drop;

/* Which keys of a row's allowed set R_i are selected. x_ij is the score that enters the softmax. */
typedef enum attn_topk_mode {
  ATTN_TOPK_EXACT = 0, /* the first min(k, |R_i|) in the order (x descending, j ascending); Gupta et
                        * al. 2021, arXiv 2106.06899 */
  ATTN_TOPK_TIES, /* x_ij >= the min(k, |R_i|)-th largest: more than k where scores tie; Zhao et
                        * al. 2019, arXiv 1912.11637 */
  ATTN_TOPK_ABS,  /* x_ij >= bound */
  ATTN_TOPK_REL,  /* x_ij >= max_j x_ij - bound */
  ATTN_TOPK_MODES
} attn_topk_mode;
