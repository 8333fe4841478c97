/* families/linear/features_backward.h owns gradients through feature maps: of a tile of rows, and of whole tensors.
 * Directions, eps and stabilisers are constants. */

typedef struct attn_map_back_ {
  attn_map_ map;
  float *turned; /* [1 or H][directions][width]: w, times what stands before it */
  int64_t width, one;
} attn_map_back_;

/* Bytes made once a call, behind those of the map. */
ATTN_COLD_ int64_t attn_map_back_shared_(attn_map_back_ *g) {
  const int64_t heads = g->map.per_head ? g->map.p.w.heads : 1;
  g->width = attn_round_up_(g->map.dk, 16), g->one = attn_mul_(g->map.directions, g->width);
  return attn_piece_(attn_mul_(heads, g->one), sizeof(float));
}

ATTN_COLD_ void attn_map_back_prepare_(attn_map_back_ *g, char *shared) {
  const attn_map_ *a = &g->map;
  const int waves = a->kind == ATTN_FEATURES_RFA;
  g->turned = (float *)(void *)shared;
  for (int64_t h = 0; a->directions && h < a->p.w.heads; h++)
    for (int64_t r = 0; r < a->directions; r++) {
      float *to = g->turned + h * g->one + r * g->width;
      a->table->widen(to, attn_at_(&a->p.w, 0, h, r), 0, NULL, 1, a->dk, a->p.w.dtype, NULL);
      for (int64_t c = 0; c < a->dk; c++)
        to[c] = !waves        ? to[c] * a->p.scale
                : a->p.sigmas ? to[c] / a->p.sigmas[c]
                              : to[c] / a->p.sigma;
      memset(to + a->dk, 0, (size_t)(g->width - a->dk) * sizeof *to);
    }
}

/* d becomes the gradient by y, whose sum or length 0 stands for rows of 0: with t = d . y
 * SUM (d - t / size) / size,  L2 (d - y t / size^2) / size. */
ATTN_FUNC_ void attn_map_back_norm_(const attn_map_ *a, float *d, const float *y, int64_t n) {
  const int sum = a->p.norm == ATTN_FEATURE_NORM_SUM;
  for (int64_t r = 0; r < n; r++, d += a->m, y += a->m) {
    double size = 0.0, t = 0.0;
    for (int64_t c = 0; c < a->m; c++) {
      size += sum ? (double)y[c] : (double)y[c] * (double)y[c];
      t += (double)d[c] * (double)y[c];
    }
    if (!sum) size = sqrt(size);
    if (size == 0.0) {
      memset(d, 0, (size_t)a->m * sizeof *d);
      continue;
    }
    t /= sum ? size : size * size;
    for (int64_t c = 0; c < a->m; c++)
      d[c] = (float)(((double)d[c] - (sum ? t : (double)y[c] * t)) / size);
  }
}

/* y = x by */
ATTN_FUNC_ void attn_map_back_times_(const attn_map_ *a, float *y, const float *x, int64_t n,
                                     float by) {
  attn_on_(dense, a->table)->act(y, x, NULL, n, NULL, by, ATTN_ACT_NONE);
}

/* d_x of d, whose rows lie in the first m numbers, by the directions. */
ATTN_FUNC_ void attn_map_back_turn_(const attn_map_back_ *g, float *d_x, const float *d, int64_t n,
                                    int64_t head) {
  const attn_map_ *a = &g->map;
  attn_on_(dense, a->table)
      ->gemm(d_x, a->dk, n, d, a->m, 1, g->turned + (a->per_head ? head * g->one : 0), g->width,
             a->directions, a->dk, 1);
}

/* d[c] = d[c] y[m / 2 + c] - d[m / 2 + c] y[c] of waves; of other pairs d[c] y[c] - d[m / 2 + c] y[m / 2 + c]. The
 * result lies in the second half. */
ATTN_FUNC_ void attn_map_back_pairs_(const attn_map_ *a, float *d, const float *y, int64_t n,
                                     int waves) {
  const int64_t half = a->m / 2;
  for (int64_t r = 0; r < n; r++, d += a->m, y += a->m) {
    attn_on_(gradient, a->table)->slope(d, d, y, waves ? y + half : y, half, ATTN_ACT_NONE);
    attn_on_(gradient, a->table)
        ->slope(d + half, d + half, y, waves ? y : y + half, half, ATTN_ACT_NONE);
    attn_on_(dense, a->table)->activate(d + half, half, d, -1.0f, ATTN_ACT_NONE);
  }
}

/* SOFTMAX and HYPERBOLIC: with T = d (y - add), d_x = T w - (sum of T) x', but for what the sum of T is 0 for. */
ATTN_FUNC_ void attn_map_back_powers_(const attn_map_back_ *g, float *d_x, float *d, float *y,
                                      const float *x, int64_t n, int64_t head, int is_key) {
  const attn_map_ *a = &g->map;
  const int both = a->kind == ATTN_FEATURES_HYPERBOLIC;
  const float add = is_key ? a->key_eps : a->p.eps * a->root;
  const float own = a->quotients && !is_key ? 0.0f : a->p.scale * a->p.scale;
  float all[ATTN_TILE_];
  for (int64_t i = 0; add != 0.0f && i < n * a->m; i++) y[i] -= add;
  attn_on_(gradient, a->table)->row_dots(all, d, y, n, a->m);
  if (both)
    attn_map_back_pairs_(a, d, y, n, 0);
  else
    attn_on_(gradient, a->table)->slope(d, d, y, y, n * a->m, ATTN_ACT_NONE);
  attn_map_back_turn_(g, d_x, both ? d + a->m / 2 : d, n, head);
  for (int64_t r = 0; r < n; r++) {
    const float by = all[r] * own;
    for (int64_t c = 0; c < a->dk; c++) d_x[r * a->dk + c] -= by * x[r * a->dk + c];
  }
}

/* RFA: d_x of the row on the unit sphere, then of the row; with keep_norm of x', and of its factor as a key. */
ATTN_FUNC_ void attn_map_back_waves_(const attn_map_back_ *g, float *d_x, float *d, const float *y,
                                     const float *x, int64_t n, int64_t head, int is_key) {
  const attn_map_ *a = &g->map;
  const double s = (double)a->p.scale, sigma = (double)a->p.sigma;
  float all[ATTN_TILE_];
  attn_on_(gradient, a->table)->row_dots(all, d, y, n, a->m);
  attn_map_back_pairs_(a, d, y, n, 1);
  attn_map_back_turn_(g, d_x, d + a->m / 2, n, head);
  for (int64_t r = 0; r < n; r++, x += a->dk, d_x += a->dk) {
    double size = 0.0, t = 0.0, by = s;
    if (a->p.keep_norm) {
      if (is_key && a->running) t = (double)all[r] * s / (sigma * sigma);
    } else {
      for (int64_t c = 0; c < a->dk; c++) {
        size += (double)x[c] * (double)x[c];
        t += (double)d_x[c] * (double)x[c];
      }
      const double far = sqrt(size) * s;
      by = s / (far > 1e-6 ? far : 1e-6);
      t = far > 1e-6 ? -t / size : 0.0;
    }
    for (int64_t c = 0; c < a->dk; c++) d_x[c] = (float)(((double)d_x[c] + t * (double)x[c]) * by);
  }
}

/* y: room for u = [relu(x'), relu(-x')] of a row, du for its gradient. */
ATTN_FUNC_ void attn_map_back_dpfp_(const attn_map_ *a, float *d_x, const float *d, float *u,
                                    float *du, const float *x, int64_t n) {
  const int64_t dk = a->dk, wide = 2 * dk;
  const float s = a->p.scale;
  for (int64_t i = 0; i < n; i++, x += dk, d_x += dk) {
    for (int64_t c = 0; c < dk; c++) {
      const float t = x[c] * s;
      u[c] = t < 0.0f ? 0.0f : t, u[dk + c] = t > 0.0f ? 0.0f : 0.0f - t;
    }
    memset(du, 0, (size_t)wide * sizeof *du);
    for (int64_t r = 1; r <= a->p.order; r++, d += wide)
      for (int64_t j = 0; j < wide; j++) {
        const int64_t k = j < r ? j - r + wide : j - r;
        du[j] += d[j] * u[k], du[k] += d[j] * u[j];
      }
    for (int64_t c = 0; c < dk; c++)
      d_x[c] = ((u[c] == 0.0f ? 0.0f : du[c]) - (u[dk + c] == 0.0f ? 0.0f : du[dk + c])) * s;
  }
}

/* d_x[n][dk] of d[n][m], which is lost; n <= 64 rows x[n][dk] of a head, y[n][m] room. Keys: `most` as attn_map_keys_. */
ATTN_FUNC_ void attn_map_back_tile_(const attn_map_back_ *g, char *own, float *d_x, float *d,
                                    float *y, const float *x, int64_t n, int64_t head, int is_key,
                                    float most) {
  const attn_map_ *a = &g->map;
  const int64_t all = n * a->m, xs = n * a->dk;
  const int normed = a->p.norm != ATTN_FEATURE_NORM_NONE, by_x = a->kind <= ATTN_FEATURES_DPFP;
  const int act = a->kind == ATTN_FEATURES_ELU1 ? (int)ATTN_ACT_ELU1 : (int)a->p.activation;
  const float s = a->p.scale * (is_key ? 1.0f : a->p.query_scale);
  float c[ATTN_TILE_];
  if (normed || !by_x) {
    if (is_key)
      attn_map_raw_keys_(a, own, y, x, n, head, most, c);
    else
      attn_map_raw_queries_(a, own, y, x, n, head);
    if (normed) attn_map_back_norm_(a, d, y, n);
  }
  switch (a->kind) {
    case ATTN_FEATURES_ELU1:
    case ATTN_FEATURES_ACT:
      if (!a->directions) {
        attn_map_back_times_(a, y, x, xs, s);
        attn_on_(gradient, a->table)->slope(d_x, d, y, NULL, xs, act);
        attn_map_back_times_(a, d_x, d_x, xs, s);
        break;
      }
      if (act != ATTN_ACT_NONE) {
        attn_map_project_(a, y, a->m, x, n, head, 0, a->m);
        attn_map_back_times_(a, y, y, all, s);
        attn_on_(gradient, a->table)->slope(d, d, y, NULL, all, act);
      }
      attn_map_back_turn_(g, d_x, d, n, head);
      break;
    case ATTN_FEATURES_DPFP: attn_map_back_dpfp_(a, d_x, d, y, attn_map_more_(own), x, n); break;
    case ATTN_FEATURES_RFA: attn_map_back_waves_(g, d_x, d, y, x, n, head, is_key); break;
    case ATTN_FEATURES_USER:
      a->p.back(a->p.user, d_x, d, y, s == 1.0f ? x : attn_map_more_(own), n, a->m, a->dk, head,
                is_key);
      attn_map_back_times_(a, d_x, d_x, xs, s);
      break;
    default: attn_map_back_powers_(g, d_x, d, y, x, n, head, is_key);
  }
}

/* ---- the call -------------------------------------------------------------------------------*/

typedef struct attn_features_back_ {
  attn_features_job_ f; /* its y is the gradient that comes in */
  attn_map_back_ map;
  attn_tensor d_x;
  int accumulate;
  int64_t at_d_x, at_d;
} attn_features_back_;

ATTN_FUNC_ void attn_features_back_item_(void *job, int worker, int64_t index) {
  const attn_features_back_ *a = (const attn_features_back_ *)job;
  const attn_features_job_ *j = &a->f;
  const attn_table_ *f = j->map.table;
  const attn_tensor *d_y = &j->y, *d_x = &a->d_x;
  const int64_t unit = index / j->tiles, b = unit / j->x.heads, h = unit % j->x.heads;
  const int64_t i = index % j->tiles * ATTN_TILE_;
  char *own = j->own + worker * j->each;
  float *d = (float *)(void *)(own + a->at_d), *made = (float *)(void *)(own + a->at_d_x);
  int64_t n;
  const float *x = attn_features_rows_(j, own, index, &n);
  f->widen(d, attn_at_(d_y, b, h, i), d_y->stride_len, NULL, n, d_y->dim, d_y->dtype, NULL);
  attn_map_back_tile_(&a->map, own, made, d, (float *)(void *)(own + j->at_y), x, n, h, j->is_key,
                      j->c ? j->c[unit * j->tiles] : -INFINITY);
  for (int64_t r = 0; r < n; r++) {
    char *to = attn_at_(d_x, b, h, i + r);
    f->blend(to, made + r * d_x->dim, a->accumulate ? to : NULL, d_x->dtype, ATTN_F32, d_x->dtype,
             d_x->dim, 1.0f, 1.0f);
  }
}

ATTN_COLD_ int attn_features_back_steps_(attn_stage_ *s, void *job) {
  const attn_features_back_ *all = (const attn_features_back_ *)job;
  attn_features_back_ a = *all;
  attn_features_job_ *j = &a.f;
  const int sums = !attn_gradient_whole_(&a.d_x, &j->x);
  if (sums) a.accumulate = 0, a.d_x = attn_stage_make_(s, &all->d_x, &j->x, all->accumulate);
  j->map.table = s->table;
  j->tiles = attn_tiles_of_(j->x.len);
  const int64_t units = attn_mul_(j->x.batch, j->x.heads), items = attn_mul_(units, j->tiles);
  const int stabilised = j->is_key && j->map.running;
  const int pieces = items > 0 ? attn_pieces_(s->workers, items) : 0;
  const int64_t rows = attn_piece_(attn_mul_(ATTN_TILE_, j->map.dk), sizeof(float));
  const int64_t wide = attn_piece_(attn_mul_(ATTN_TILE_, j->map.m), sizeof(float));
  j->at_x = attn_map_own_(&j->map), j->at_y = attn_add_(j->at_x, rows);
  a.at_d = attn_add_(j->at_y, wide), a.at_d_x = attn_add_(a.at_d, wide);
  j->each = attn_add_(a.at_d_x, rows);
  a.map.map = j->map;
  const int64_t packed = attn_map_shared_(&j->map), turned = attn_map_back_shared_(&a.map);
  const int64_t tops = stabilised ? attn_piece_(items, sizeof(float)) : 0;
  const int64_t fixed = attn_add_(attn_add_(packed, turned), tops);
  char *memory = attn_stage_spare_(s, pieces ? attn_add_(fixed, attn_mul_(j->each, pieces)) : 0);
  if (s->run && pieces) {
    attn_map_prepare_(&j->map, memory);
    j->map.key_eps += j->map.late_eps;
    a.map.map = j->map;
    attn_map_back_prepare_(&a.map, memory + packed);
    j->own = memory + fixed;
    if (stabilised)
      attn_features_tops_(j, &s->ctx, pieces, (float *)(void *)(memory + packed + turned));
    attn_for_(&s->ctx, pieces, items, attn_features_back_item_, &a);
  }
  return !sums || attn_stage_made_(s, &all->d_x, a.d_x, all->accumulate);
}

ATTN_COLD_ int attn_features_back_check_(attn_error_ *e, attn_features_back_ *a,
                                         const attn_feature_map *map, const attn_ctx *ctx) {
  attn_features_job_ *j = &a->f;
  const int64_t any = ATTN_ANY_;
  attn_operand_ op[] = {
      ATTN_OPERAND_(&a->d_x, "d_x", ATTN_OUT_ | ATTN_OPTIONAL_, any, any, any, any, ""),
      ATTN_OPERAND_(&j->y, "d_y", 0, any, any, any, any, ""),
      ATTN_OPERAND_(&j->x, "x", 0, any, any, any, any, "")};
  enum { N = sizeof op / sizeof *op };
  if (!attn_check_given_(e, op, N)) return 0;
  for (int i = 0; i < (int)N; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (!attn_map_check_(e, &j->map, map, j->x.dim, j->x.heads, 0, 0)) return 0;
  if (j->map.kind == ATTN_FEATURES_USER && !j->map.p.back)
    return attn_reject_(e, ATTN_E_NULL, "map.back must not be null");
  if (!attn_gradient_whole_(&j->y, &j->x))
    return attn_reject_(e, ATTN_E_SHAPE, "d_y must have the batch, heads and len of x");
  if (j->y.dim != j->map.m)
    return attn_reject_(e, ATTN_E_SHAPE, "d_y.dim must be attn_feature_count(map, x.dim)");
  if (a->d_x.data && !attn_gradient_fits_(&a->d_x, &j->x))
    return attn_reject_(e, ATTN_E_SHAPE,
                        "d_x must have the shape of x, or 1 where x has a stride of 0");
  if (a->accumulate != 0 && a->accumulate != 1)
    return attn_reject_(e, ATTN_E_RANGE, "gradients.accumulate must be 0 or 1");
  const attn_span_ more[2] = {j->map.w_span, j->map.sigmas_span};
  return attn_check_apart_(e, ctx, op, N, more, 2);
}

ATTN_COLD_ attn_status attn_features_backward_call_(attn_tensor d_x, attn_tensor d_y, attn_tensor x,
                                                    const attn_feature_map *map, int is_key,
                                                    const attn_features_gradients *gradients,
                                                    attn_ctx *ctx, size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_features_back_ a;
  int workers = 1;
  attn_clear_(&a, sizeof a);
  a.d_x = d_x, a.f.y = d_y, a.f.x = x, a.f.is_key = is_key;
  if (gradients) a.accumulate = gradients->accumulate;
  if (attn_check_ctx_(&e, ctx, &a.f.map.table, &workers))
    (void)attn_features_back_check_(&e, &a, map, ctx);
  return attn_step_call_or_(&e, a.f.map.table, workers, ctx, attn_features_back_steps_, &a,
                            "feature map and its gradient",
                            d_x.data ? NULL : "no output is asked for", bytes);
}
ATTN_CALL_(attn_features_backward, (d_x, d_y, x, map, is_key, gradients), attn_tensor d_x,
           attn_tensor d_y, attn_tensor x, const attn_feature_map *map, int is_key,
           const attn_features_gradients *gradients)
