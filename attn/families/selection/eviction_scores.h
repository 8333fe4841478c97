/* families/selection/eviction_scores.h owns the scores of keys by the weights they get: those of the last queries,
 * pooled (SnapKV), and sums over all queries so far (H2O). */

typedef struct attn_weighed_ {
  attn_glance_ g;
  const attn_cache *cache;
  const attn_sequence *sequences;
  attn_tensor to;         /* [B,Hk,Tk,1] scores or [B,Hk,Tk,2] sums */
  int64_t window, kernel; /* 0: H2O */
  int maximum;
  float scale;
  int64_t at_sum, each;
  char *own;
} attn_weighed_;

/* Joins the weights of rows from .. of one query head to sum[key], tile after tile. */
ATTN_FUNC_ void attn_weighed_head_(const attn_weighed_ *a, char *own, int64_t b, int64_t h,
                                   int64_t from, double *sum) {
  const int64_t rows = attn_glance_rows_(&a->g, b);
  double lanes[ATTN_TILE_];
  float part[ATTN_BLOCK_];
  attn_glanced_ t;
  for (int64_t i = from; i < rows; i += ATTN_TILE_) {
    attn_glance_open_(&a->g, &t, own, b, h, i, attn_min64_(rows - i, ATTN_TILE_));
    for (int64_t j = 0; j < t.keys; j += ATTN_BLOCK_)
      attn_glance_weigh_(&a->g, &t, j, attn_min64_(t.keys - j, ATTN_BLOCK_), lanes);
    attn_glance_close_(&t);
    attn_glance_spoilt_(&t);
    for (int64_t j = 0; j < t.keys; j += ATTN_BLOCK_) {
      const int64_t n = attn_min64_(t.keys - j, ATTN_BLOCK_);
      attn_glance_columns_(&a->g, &t, j, n, part);
      for (int64_t x = 0; x < n; x++) sum[j + x] += (double)part[x];
    }
  }
}

/* The pooled sum of key j of n; what is outside is no key. */
ATTN_FUNC_ double attn_weighed_pooled_(const attn_weighed_ *a, const double *sum, int64_t n,
                                       int64_t j) {
  const int64_t lo = attn_max64_(j - a->kernel / 2, 0), hi = attn_min64_(j + a->kernel / 2, n - 1);
  double x = a->maximum ? sum[j] : 0.0;
  for (int64_t i = lo; i <= hi; i++) {
    if (!a->maximum)
      x += sum[i];
    else if (!(sum[i] <= x)) /* NaN too, and it stays */
      x = x != x ? x : sum[i];
  }
  return a->maximum ? x : x / (double)a->kernel;
}

ATTN_FUNC_ void attn_weighed_item_(void *job, int worker, int64_t index) {
  const attn_weighed_ *a = (const attn_weighed_ *)job;
  const int64_t b = index / a->g.k.heads, hk = index % a->g.k.heads;
  const int64_t group = a->g.q.heads / a->g.k.heads, keys = attn_glance_keys_(&a->g, b);
  const int64_t rows = attn_glance_rows_(&a->g, b);
  const int64_t from = a->window ? attn_max64_(rows - a->window, 0) : 0;
  const int64_t judged = attn_max64_(keys - a->window, 0);
  char *own = a->own + worker * a->each;
  double *sum = (double *)(void *)(own + a->at_sum);
  memset(sum, 0, (size_t)keys * sizeof *sum);
  for (int64_t h = hk * group; h < (hk + 1) * group; h++)
    attn_weighed_head_(a, own, b, h, from, sum);
  for (int64_t j = 0; j < a->g.k.len; j++) {
    float *to = (float *)(void *)attn_at_(&a->to, b, hk, j);
    if (a->window) {
      *to = attn_one_nan_(j < judged ? (float)attn_weighed_pooled_(a, sum, judged, j) : 0.0f);
    } else if (j < keys) {
      const double x = (double)to[0] + (double)to[1] + sum[j];
      const float rest = (float)(x - (double)(float)x);
      to[0] = attn_one_nan_((float)x), to[1] = rest == rest ? rest : 0.0f;
    }
  }
}

ATTN_COLD_ int attn_weighed_steps_(attn_stage_ *s, void *job) {
  attn_weighed_ *a = (attn_weighed_ *)job;
  attn_glance_plan_(&a->g, s->table, a->scale, 1.0);
  a->at_sum = a->g.bytes;
  a->each = attn_add_(a->at_sum, attn_piece_(a->g.k.len, 8));
  for (int64_t b = 0; s->run && b < a->g.q.batch; b++) {
    const int64_t rows = attn_glance_rows_(&a->g, b);
    s->pairs += attn_glance_pairs_(&a->g, b, a->window ? attn_max64_(rows - a->window, 0) : 0);
  }
  return attn_stage_for_(s, attn_mul_(a->g.k.batch, a->g.k.heads), attn_weighed_item_, a, a->each,
                         &a->own);
}

/* Keys in the pages of a cache: as many rows as `to` has. */
ATTN_COLD_ int attn_weighed_pages_(attn_error_ *e, attn_weighed_ *a, const char *w, int data) {
  attn_glance_ *g = &a->g;
  if (g->k.data) return attn_reject_(e, ATTN_E_SHAPE, "k.data must be null with params.cache");
  if (g->kv_len || g->k_scales.scale || g->k_scales.zero)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.kv_len and .k_scales must be absent with params.cache");
  if (!attn_paged_check_(e, &g->pages, a->cache, a->sequences, g->q.batch, NULL, 0, data)) return 0;
  if (!attn_check_set_(e, &a->to, w)) return 0;
  if (attn_paged_longest_(a->sequences, g->q.batch) > a->to.len)
    return attn_reject_(e, ATTN_E_SHAPE, "the output must have a row for each token");
  g->k = g->pages.x, g->k.batch = g->q.batch, g->k.len = a->to.len;
  return 1;
}

/* What is written lies apart from them. */
ATTN_COLD_ int attn_weighed_apart_(attn_error_ *e, attn_weighed_ *a, const attn_arguments_ *l,
                                   const attn_ctx *ctx) {
  attn_span_ out[2];
  out[0] = l->op[l->n - 1].span;
  return !a->cache ||
         (attn_check_workspace_(e, ctx, &out[1]) &&
          attn_paged_check_(e, &a->g.pages, a->cache, a->sequences, a->g.q.batch, out, 2, 0));
}

/* The rest of both calls; width: of a row of `to`. */
ATTN_COLD_ attn_status attn_weighed_call_(attn_weighed_ *a, const char *w, const char *rule,
                                          int64_t width, float scale, attn_ctx *ctx,
                                          size_t *bytes) {
  static const attn_scales_words_ words = ATTN_SCALES_WORDS_("params.k_scales", "k");
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_arguments_ l;
  attn_span_ more[4];
  int workers = 1;
  attn_clear_(&l, sizeof l), memset(more, 0, sizeof more);
  a->g.aligned = 1, a->g.cell = 1, a->scale = scale;
  if (attn_check_ctx_(&e, ctx, &table, &workers) &&
      ((!a->cache && !a->sequences) || attn_weighed_pages_(&e, a, w, !bytes)) &&
      attn_glance_check_(&e, &a->g, &l, more, scale) &&
      (a->cache || attn_check_scales_(&e, &a->g.k_scales, &a->g.k, &words, 0, more + 2)) &&
      attn_check_argument_(&e, &l, &a->to, w, ATTN_OUT_ | ATTN_IS_F32_, l.batch, a->g.k.heads,
                           a->g.k.len, width, rule)) {
    if (a->window < 0)
      attn_reject_(&e, ATTN_E_SHAPE, "params.window must not be negative");
    else if (a->window && (a->kernel < 1 || a->kernel % 2 == 0))
      attn_reject_(&e, ATTN_E_SHAPE, "params.kernel must be positive and odd");
    else if (attn_check_apart_(&e, ctx, l.op, l.n, more, 4) &&
             attn_weighed_apart_(&e, a, &l, ctx) && !bytes)
      attn_glance_lens_(&e, &a->g);
  }
  return attn_step_call_or_(&e, table, workers, ctx, attn_weighed_steps_, a,
                            "sums of weights by key",
                            a->g.k.len == 0 || a->g.q.batch == 0 ? "no keys" : NULL, bytes);
}

ATTN_COLD_ attn_status attn_snapkv_call_(attn_tensor scores, attn_tensor q, attn_tensor k,
                                         const attn_snapkv_params *params, attn_ctx *ctx,
                                         size_t *bytes) {
  attn_snapkv_params p;
  attn_weighed_ a;
  attn_clear_(&a, sizeof a), attn_clear_(&p, sizeof p);
  if (params) p = *params;
  a.to = scores, a.g.q = q, a.g.k = k, a.g.k_scales = p.k_scales;
  a.cache = p.cache, a.sequences = p.sequences;
  a.g.q_len = p.q_len, a.g.kv_len = p.kv_len, a.maximum = p.maximum;
  a.window = p.window ? p.window : 64, a.kernel = p.kernel ? p.kernel : 5;
  return attn_weighed_call_(&a, ATTN_WORDS_("scores"),
                            "scores must be f32 [q.batch, k.heads, k.len, 1]", 1, p.scale, ctx,
                            bytes);
}
ATTN_CALL_(attn_snapkv, (scores, q, k, params), attn_tensor scores, attn_tensor q, attn_tensor k,
           const attn_snapkv_params *params)

ATTN_COLD_ attn_status attn_h2o_call_(attn_tensor sums, attn_tensor q, attn_tensor k,
                                      const attn_h2o_params *params, attn_ctx *ctx, size_t *bytes) {
  attn_h2o_params p;
  attn_weighed_ a;
  attn_clear_(&a, sizeof a), attn_clear_(&p, sizeof p);
  if (params) p = *params;
  a.to = sums, a.g.q = q, a.g.k = k, a.g.k_scales = p.k_scales;
  a.cache = p.cache, a.sequences = p.sequences;
  a.g.q_len = p.q_len, a.g.kv_len = p.kv_len;
  return attn_weighed_call_(&a, ATTN_WORDS_("sums"),
                            "sums must be f32 [q.batch, k.heads, k.len, 2]", 2, p.scale, ctx,
                            bytes);
}
ATTN_CALL_(attn_h2o, (sums, q, k, params), attn_tensor sums, attn_tensor q, attn_tensor k,
           const attn_h2o_params *params)
