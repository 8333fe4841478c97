/* families/linear/feature_map.h owns feature maps on tiles of up to 64 rows: what a map may be, its directions
 * packed once a call, and the features of queries and keys. Inside, exponents are in log2 units:
 * log2 e is folded into the packed directions. */

typedef struct attn_map_ {
  const attn_table_ *table; /* set by the caller, before or after the check */
  attn_feature_kind kind;
  int64_t dk, m;
  int per_head;   /* w differs from head to head */
  int running;    /* keys carry a stabiliser c: features are in units of e^c */
  int quotients;  /* set by the caller after the check: only quotients of sums matter, so that what
                       * all features of a query share may be left out, and c be any number */
  float late_eps; /* added to every key feature after the last key, in final units; else 0 */
  attn_feature_map p;      /* with every default resolved, scale being the root of the caller's */
  int64_t directions, one; /* rows of w; floats of a packed matrix */
  float root;              /* m^-1/2, of RFA D^-1/2 */
  float key_eps;           /* inside key features */
  attn_span_ w_span, sigmas_span;
  float *packed; /* [1 or H][panels][dk][64] */
} attn_map_;

enum { ATTN_MAP_PANEL_ = 64 };

/* What a worker has: per row |x|^2 and the like, and room for the rest. */
typedef struct attn_map_rows_ {
  float norm[ATTN_TILE_], top[ATTN_TILE_], shift[ATTN_TILE_], factor[ATTN_TILE_];
} attn_map_rows_;

ATTN_FUNC_ int attn_map_finite_(float x) { return x - x == 0.0f; }

/* x, or what 0 stands for; -0 is 0 */
ATTN_COLD_ float attn_map_default_(float x, float otherwise) {
  if (x != 0.0f) return x;
  return attn_to_bits_(x) ? 0.0f : otherwise;
}

ATTN_COLD_ int attn_map_random_(attn_feature_kind kind) {
  return kind == ATTN_FEATURES_RFA || kind == ATTN_FEATURES_SOFTMAX ||
         kind == ATTN_FEATURES_HYPERBOLIC;
}
ATTN_FUNC_ int attn_map_positive_(attn_feature_kind kind) {
  return kind == ATTN_FEATURES_SOFTMAX || kind == ATTN_FEATURES_HYPERBOLIC;
}

ATTN_COLD_ int attn_map_check_w_(attn_error_ *e, attn_map_ *a, int64_t heads) {
  static const char words[] = ATTN_WORDS_("map.w");
  attn_tensor *w = &a->p.w;
  if (!attn_map_random_(a->kind) && !(a->kind == ATTN_FEATURES_ACT && w->data)) return 1;
  if (!w->data) return attn_reject_(e, ATTN_E_NULL, "map.w must not be null for this map.kind");
  if (!attn_check_tensor_(e, w, words, &a->w_span)) return 0;
  if (w->batch != 1 || (w->heads != 1 && w->heads != heads) || w->len < 1 || w->dim != a->dk)
    return attn_reject_(e, ATTN_E_SHAPE, "map.w must be [1, 1 or H, D, dk] with D of 1 or more");
  if (w->heads > 1 && w->stride_head == 0) w->heads = 1;
  a->per_head = w->heads > 1;
  a->directions = w->len;
  a->one = attn_mul_(attn_mul_((w->len - 1) / ATTN_MAP_PANEL_ + 1, ATTN_MAP_PANEL_), a->dk);
  return 1;
}

ATTN_COLD_ int attn_map_check_sigma_(attn_error_ *e, attn_map_ *a) {
  attn_feature_map *p = &a->p;
  if (p->sigma == 0.0f && !attn_to_bits_(p->sigma)) p->sigma = 1.0f;
  if (!(p->sigma > 0.0f) || !attn_map_finite_(p->sigma))
    return attn_reject_(e, ATTN_E_VALUE, "map.sigma must be positive and finite");
  if (!p->sigmas) return 1;
  if (p->keep_norm)
    return attn_reject_(e, ATTN_E_VALUE, "map.sigmas must be null with map.keep_norm");
  if (!attn_check_array_(e, p->sigmas, a->dk, 4, "map.sigmas must be aligned to its elements",
                         &a->sigmas_span))
    return 0;
  for (int64_t c = 0; c < a->dk; c++)
    if (!(p->sigmas[c] > 0.0f) || !attn_map_finite_(p->sigmas[c]))
      return attn_reject_(e, ATTN_E_VALUE, "map.sigmas must be positive and finite");
  return 1;
}

/* The stabiliser of keys. With a norm it cancels, row by row; the delta rules are not linear in
 * the key, so that without a norm it must not move. */
ATTN_COLD_ int attn_map_check_stab_(attn_error_ *e, attn_map_ *a, int causal, int delta) {
  attn_feature_map *p = &a->p;
  const int normed = p->norm != ATTN_FEATURE_NORM_NONE;
  if ((int)p->key_stab < 0 || p->key_stab >= ATTN_STAB_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "map.key_stab must be an attn_key_stab");
  if (!(p->scale > 0.0f)) return attn_reject_(e, ATTN_E_VALUE, "map.scale must be positive");
  if (!attn_map_finite_(p->key_const))
    return attn_reject_(e, ATTN_E_VALUE, "map.key_const must be finite");
  if (!(p->eps >= 0.0f) || !attn_map_finite_(p->eps))
    return attn_reject_(e, ATTN_E_VALUE, "map.eps must be finite and not negative");
  if (p->key_stab == ATTN_STAB_DEFAULT)
    p->key_stab = normed   ? ATTN_STAB_RUNNING
                  : delta  ? ATTN_STAB_CONST
                  : causal ? ATTN_STAB_RUNNING
                           : ATTN_STAB_GLOBAL;
  const int inside = p->key_stab == ATTN_STAB_CONST;
  if (causal && p->key_stab == ATTN_STAB_GLOBAL)
    return attn_reject_(e, ATTN_E_VALUE,
                        "map.key_stab must not be ATTN_STAB_GLOBAL in a causal call: it would show "
                        "the future");
  p->eps = attn_map_default_(p->eps,
                             inside || (p->key_stab == ATTN_STAB_GLOBAL && !normed) ? 1e-4f : 0.0f);
  if (p->eps > 0.0f && p->key_stab == ATTN_STAB_RUNNING)
    return attn_reject_(e, ATTN_E_VALUE, "map.eps must be 0 with ATTN_STAB_RUNNING");
  if (p->eps > 0.0f && normed && !inside)
    return attn_reject_(e, ATTN_E_VALUE, "map.eps with a norm needs ATTN_STAB_CONST");
  if (delta && !normed && !inside)
    return attn_reject_(e, ATTN_E_VALUE,
                        "map.key_stab must be ATTN_STAB_CONST for a delta rule without a norm");
  a->running = !inside && !normed;
  a->key_eps = inside ? p->eps * a->root : 0.0f;
  a->late_eps = inside ? 0.0f : p->eps * a->root;
  return 1;
}

/* Every rule of a map for keys of width dk; heads are those of w. delta: for a delta rule. */
ATTN_COLD_ int attn_map_check_(attn_error_ *e, attn_map_ *a, const attn_feature_map *map,
                               int64_t dk, int64_t heads, int causal, int delta) {
  attn_clear_((char *)a + sizeof a->table, sizeof *a - sizeof a->table);
  if (!map) return attn_reject_(e, ATTN_E_NULL, "map must not be null");
  a->p = *map, a->kind = map->kind, a->dk = dk, a->m = dk, a->root = 1.0f;
  attn_feature_map *p = &a->p;
  if ((int)map->kind < 0 || map->kind >= ATTN_FEATURES_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "map.kind must be an attn_feature_kind");
  if ((int)p->norm < 0 || p->norm >= ATTN_FEATURE_NORM_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "map.norm must be an attn_feature_norm");
  if (p->norm == ATTN_FEATURE_NORM_DEFAULT)
    p->norm = delta ? ATTN_FEATURE_NORM_SUM : ATTN_FEATURE_NORM_NONE;
  if (!(p->scale >= 0.0f) || !attn_map_finite_(p->scale))
    return attn_reject_(e, ATTN_E_VALUE, "map.scale must be finite and not negative");
  const float usual = attn_map_positive_(a->kind) ? (float)(1.0 / sqrt(sqrt((double)dk))) : 1.0f;
  p->scale = p->scale > 0.0f ? (float)sqrt((double)p->scale) : attn_map_default_(p->scale, usual);
  if (!attn_map_finite_(p->query_scale) ||
      (a->kind != ATTN_FEATURES_ELU1 && p->query_scale != 0.0f))
    return attn_reject_(e, ATTN_E_VALUE,
                        "map.query_scale must be finite, and 0 but for ATTN_FEATURES_ELU1");
  p->query_scale = attn_map_default_(p->query_scale, 1.0f);
  if (!attn_map_check_w_(e, a, heads)) return 0;
  switch (a->kind) {
    case ATTN_FEATURES_ACT:
      if (!attn_check_activation_(e, &p->activation, ATTN_ACT_NONE,
                                  "map.activation must be an attn_activation"))
        return 0;
      if (!(p->kernel_eps >= 0.0f) || !attn_map_finite_(p->kernel_eps))
        return attn_reject_(e, ATTN_E_VALUE, "map.kernel_eps must be finite and not negative");
      p->kernel_eps = attn_map_default_(p->kernel_eps, a->directions ? 1e-3f : 0.0f);
      if (a->directions) a->m = a->directions;
      break;
    case ATTN_FEATURES_DPFP:
      if (p->order == 0) p->order = 1;
      if (p->order < 1 || p->order > attn_mul_(2, dk) - 1)
        return attn_reject_(e, ATTN_E_RANGE, "map.order must lie in 1 .. 2 dk - 1");
      a->m = attn_mul_(attn_mul_(2, dk), p->order);
      break;
    case ATTN_FEATURES_RFA:
      a->m = attn_mul_(2, a->directions);
      a->root = (float)(1.0 / sqrt((double)a->directions));
      if (!attn_map_check_sigma_(e, a)) return 0;
      if (delta && p->keep_norm && p->norm == ATTN_FEATURE_NORM_NONE)
        return attn_reject_(e, ATTN_E_VALUE,
                            "map.keep_norm must be 0 for a delta rule without a norm");
      a->running = p->keep_norm && p->norm == ATTN_FEATURE_NORM_NONE;
      break;
    case ATTN_FEATURES_SOFTMAX:
    case ATTN_FEATURES_HYPERBOLIC:
      a->m = a->kind == ATTN_FEATURES_SOFTMAX ? a->directions : attn_mul_(2, a->directions);
      a->root = (float)(1.0 / sqrt((double)a->m));
      if (!attn_map_check_stab_(e, a, causal, delta)) return 0;
      break;
    case ATTN_FEATURES_USER:
      if (!p->fn) return attn_reject_(e, ATTN_E_NULL, "map.fn must not be null");
      if (p->features < 1) return attn_reject_(e, ATTN_E_SHAPE, "map.features must be at least 1");
      a->m = p->features;
      break;
    default: break;
  }
  if (a->m > INT64_MAX / 1024 || a->one > INT64_MAX / 1024)
    return attn_reject_(e, ATTN_E_OVERFLOW,
                        "the features of a row would not fit the address space");
  return 1;
}

/* ---- memory ---------------------------------------------------------------------------------*/

/* Bytes made once a call. */
ATTN_COLD_ int64_t attn_map_shared_(const attn_map_ *a) {
  return attn_piece_(attn_mul_(a->per_head ? a->p.w.heads : 1, a->one), sizeof(float));
}

/* Bytes of a worker. */
ATTN_COLD_ int64_t attn_map_own_(const attn_map_ *a) {
  int64_t more = a->m; /* ones, or kernel_eps */
  if (a->kind == ATTN_FEATURES_USER && a->p.scale != 1.0f)
    more = attn_mul_(ATTN_TILE_, a->dk); /* scaled rows */
  if (attn_map_positive_(a->kind) && more < ATTN_TILE_ * ATTN_MAP_PANEL_)
    more = ATTN_TILE_ * ATTN_MAP_PANEL_; /* a panel of u */
  if (a->m > more) more = a->m;
  if (a->kind == ATTN_FEATURES_RFA && a->dk > more) more = a->dk; /* a row of x */
  return attn_add_(attn_piece_(1, sizeof(attn_map_rows_)), attn_piece_(more, sizeof(float)));
}

ATTN_FUNC_ float *attn_map_more_(char *own) {
  return (float *)(void *)(own + attn_piece_(1, sizeof(attn_map_rows_)));
}

/* What w is multiplied by. */
ATTN_COLD_ double attn_map_factor_(const attn_map_ *a) {
  if (attn_map_positive_(a->kind)) return (double)a->p.scale * ATTN_LOG2E_;
  if (a->kind == ATTN_FEATURES_RFA && !a->p.sigmas) return 1.0 / (double)a->p.sigma;
  return 1.0;
}

ATTN_COLD_ void attn_map_prepare_(attn_map_ *a, char *shared) {
  const double factor = attn_map_factor_(a);
  const float hi = (float)factor, lo = (float)(factor - (double)hi);
  a->packed = (float *)(void *)shared;
  if (!a->directions) return;
  for (int64_t h = 0; h < a->p.w.heads; h++)
    for (int64_t r = 0; r < a->directions; r += ATTN_MAP_PANEL_) {
      const void *rows[ATTN_MAP_PANEL_];
      const int64_t left = a->directions - r;
      const int n = left < ATTN_MAP_PANEL_ ? (int)left : (int)ATTN_MAP_PANEL_;
      float *to = a->packed + h * a->one + r * a->dk;
      for (int i = 0; i < n; i++) rows[i] = attn_at_(&a->p.w, 0, h, r + i);
      a->table->pack(to, rows, n, a->dk, (int)a->p.w.dtype, hi, lo);
      if (!a->p.sigmas || a->kind != ATTN_FEATURES_RFA) continue;
      for (int64_t c = 0; c < a->dk; c++)
        for (int i = 0; i < n; i++) to[c * ATTN_MAP_PANEL_ + i] /= a->p.sigmas[c];
    }
}

/* ---- steps ----------------------------------------------------------------------------------*/

/* y[r][0 .. cols) = u of directions c0 .. c0 + cols - 1 */
ATTN_FUNC_ void attn_map_project_(const attn_map_ *a, float *y, int64_t stride, const float *x,
                                  int64_t n, int64_t head, int64_t c0, int64_t cols) {
  const float *w = a->packed + (a->per_head ? head * a->one : 0);
  for (int64_t c = c0; c < c0 + cols; c += ATTN_MAP_PANEL_) {
    const int64_t left = c0 + cols - c,
                  some = left < ATTN_MAP_PANEL_ ? left : (int64_t)ATTN_MAP_PANEL_;
    attn_on_(dense, a->table)
        ->gemm(y + (c - c0), stride, n, x, a->dk, 1, w + c * a->dk, ATTN_MAP_PANEL_, a->dk, some,
               1);
  }
}

/* norm[r] = |x_r|^2 by */
ATTN_FUNC_ void attn_map_squares_(const attn_map_ *a, float *norm, const float *x, int64_t n,
                                  double by) {
  attn_on_(select, a->table)->squares(norm, NULL, x, a->dk, NULL, n, a->dk);
  for (int64_t r = 0; r < n; r++) norm[r] = (float)((double)norm[r] * by);
}

/* What is subtracted of the exponents, in log2 units; c is -inf as long as no key was finite. */
ATTN_FUNC_ double attn_map_units_(float c) {
  return c == -INFINITY ? 0.0 : (double)c * ATTN_LOG2E_;
}

/* factor[r] = 2^(plus[r] - norm[r]) e^-c[r] root, finite if it is a float; plus, c null = 0 */
ATTN_FUNC_ void attn_map_factors_(const attn_map_ *a, attn_map_rows_ *own, const float *plus,
                                  const float *c, int64_t n) {
  float t[ATTN_TILE_] = {0.0f}, up[ATTN_TILE_];
  for (int64_t r = 0; r < n; r++) {
    double x = (plus ? (double)plus[r] : 0.0) - (double)own->norm[r];
    if (c) x -= attn_map_units_(c[r]);
    up[r] = x > 60.0 ? 1.152921504606846976e18f : 1.0f;
    if (x > 60.0) x -= 60.0;
    t[r] = x > 126.0 ? 126.0f : x < -1000.0 ? -1000.0f : (float)x;
  }
  a->table->weights(own->factor, t, n, 0.0f, a->root);
  for (int64_t r = 0; r < n; r++) own->factor[r] *= up[r];
}

/* |x'|^2 / 2 in log2 units, and the largest u of each row */
ATTN_FUNC_ double attn_map_half_(const attn_map_ *a) {
  return 0.5 * (double)a->p.scale * (double)a->p.scale * ATTN_LOG2E_;
}

/* The largest so far behind each row, from `most` on: natural units. Keys that are not finite have no say
 * in it. Returns the last. */
ATTN_FUNC_ float attn_map_follow_(float *c, const float *top, int64_t n, float most) {
  for (int64_t r = 0; r < n; r++) {
    const float t = top[r] * (float)ATTN_LN2_;
    if (attn_map_finite_(top[r]) && t > most) most = t;
    if (c) c[r] = most;
  }
  return most;
}

/* Rows divided by their sum or length; 0 stays 0. What floats cannot square is done in double. */
ATTN_FUNC_ void attn_map_normalise_(const attn_map_ *a, attn_map_rows_ *own, float *y, int64_t n) {
  const int sum = a->p.norm == ATTN_FEATURE_NORM_SUM;
  float *ones = attn_map_more_((char *)own);
  if (sum) {
    int32_t index[ATTN_TILE_];
    for (int64_t c = 0; c < a->m; c++) ones[c] = 1.0f;
    for (int64_t r = 0; r < n; r++) index[r] = (int32_t)r;
    attn_on_(list, a->table)->dots(own->norm, ones, y, a->m, index, n, a->m, ATTN_F32, 0);
  } else {
    attn_on_(select, a->table)->squares(own->norm, NULL, y, a->m, NULL, n, a->m);
  }
  for (int64_t r = 0; r < n; r++, y += a->m) {
    const float t = own->norm[r], size = t < 0.0f ? -t : t;
    if (size > 1e-20f && size < 1e30f) {
      attn_on_(dense, a->table)
          ->activate(y, a->m, NULL, (float)(1.0 / (sum ? (double)t : sqrt((double)t))),
                     ATTN_ACT_NONE);
      continue;
    }
    double by = 0.0;
    for (int64_t c = 0; c < a->m; c++) by += sum ? (double)y[c] : (double)y[c] * (double)y[c];
    if (!sum) by = sqrt(by);
    for (int64_t c = 0; c < a->m; c++) y[c] = by == 0.0 ? 0.0f : (float)((double)y[c] / by);
  }
}

/* ---- maps -----------------------------------------------------------------------------------*/

ATTN_FUNC_ void attn_map_act_(const attn_map_ *a, attn_map_rows_ *own, float *y, const float *x,
                              int64_t n, int64_t head) {
  const int64_t all = n * a->m;
  if (a->directions)
    attn_map_project_(a, y, a->m, x, n, head, 0, a->directions);
  else
    memcpy(y, x, (size_t)all * sizeof *y);
  if (a->p.activation != ATTN_ACT_NONE || a->p.scale != 1.0f)
    attn_on_(dense, a->table)->activate(y, all, NULL, a->p.scale, (int)a->p.activation);
  if (a->p.kernel_eps == 0.0f) return;
  float *eps = attn_map_more_((char *)own);
  for (int64_t c = 0; c < a->m; c++) eps[c] = a->p.kernel_eps;
  for (int64_t r = 0; r < n; r++)
    attn_on_(dense, a->table)->activate(y + r * a->m, a->m, eps, 1.0f, ATTN_ACT_NONE);
}

/* u = [relu(x), relu(-x)]; feature (r - 1) 2 dk + j is u_j u_(j - r) */
ATTN_FUNC_ void attn_map_dpfp_(const attn_map_ *a, float *y, const float *x, int64_t n) {
  const int64_t dk = a->dk, wide = 2 * dk;
  const float s = a->p.scale;
  for (int64_t i = 0; i < n; i++, x += dk, y += a->m)
    for (int64_t r = a->p.order; r > 0; r--) { /* u lies in the first run, which is made last */
      float *to = y + (r - 1) * wide;
      if (r == a->p.order)
        for (int64_t c = 0; c < dk; c++) {
          const float t = x[c] * s;
          y[c] = t < 0.0f ? 0.0f : t, y[dk + c] = t > 0.0f ? 0.0f : 0.0f - t;
        }
      if (r > 1) {
        for (int64_t j = 0; j < r; j++) to[j] = y[j] * y[j - r + wide];
        for (int64_t j = r; j < wide; j++) to[j] = y[j] * y[j - r];
        continue;
      }
      const float last = y[wide - 1];
      for (int64_t j = wide - 1; j > 0; j--) y[j] *= y[j - 1];
      y[0] *= last;
    }
}

ATTN_FUNC_ void attn_map_user_(const attn_map_ *a, attn_map_rows_ *own, float *y, const float *x,
                               int64_t n, int64_t head, int is_key) {
  if (a->p.scale != 1.0f) {
    float *scaled = attn_map_more_((char *)own);
    memcpy(scaled, x, (size_t)(n * a->dk) * sizeof *x);
    attn_on_(dense, a->table)->activate(scaled, n * a->dk, NULL, a->p.scale, ATTN_ACT_NONE);
    x = scaled;
  }
  a->p.fn(a->p.user, y, x, n, a->m, a->dk, head, is_key);
}

/* |k|^2 / (2 sigma^2) in log2 units, of RFA with keep_norm */
ATTN_FUNC_ double attn_map_rfa_half_(const attn_map_ *a) {
  return 0.5 * (double)a->p.scale * (double)a->p.scale * ATTN_LOG2E_ /
         ((double)a->p.sigma * (double)a->p.sigma);
}

/* A row that floats cannot square. Returns |x|; where it is large its directions are made again, of a row
 * *by times as large. */
ATTN_FUNC_ double attn_map_far_(const attn_map_ *a, attn_map_rows_ *own, float *y, const float *x,
                                int64_t r, int64_t head, double *by) {
  float *row = attn_map_more_((char *)own);
  double size = 0.0;
  for (int64_t c = 0; c < a->dk; c++) size += (double)x[c] * (double)x[c];
  if (size < 1.0) return sqrt(size);
  *by = 1.26217744835361774602e-29; /* 2^-96 */
  for (int64_t c = 0; c < a->dk; c++) row[c] = (float)((double)x[c] * *by);
  attn_map_project_(a, y, a->m, row, 1, head, 0, a->directions);
  attn_on_(feature, a->table)->top_rows(own->top + r, y, a->m, 1, a->directions, 1);
  return sqrt(size);
}

/* Sines and cosines of u; own->factor has what a row is multiplied by. */
ATTN_FUNC_ void attn_map_waves_(const attn_map_ *a, attn_map_rows_ *own, float *y, const float *x,
                                int64_t n, int64_t head) {
  const int64_t d = a->directions;
  float *in = own->shift;
  attn_map_project_(a, y, a->m, x, n, head, 0, d);
  attn_on_(feature, a->table)->top_rows(own->top, y, a->m, n, d, 1);
  if (!a->p.keep_norm)
    attn_on_(select, a->table)->squares(own->norm, NULL, x, a->dk, NULL, n, a->dk);
  for (int64_t r = 0; r < n; r++) {
    double size = sqrt((double)own->norm[r]), by = 1.0;
    in[r] = a->p.scale;
    if (a->p.keep_norm) continue;
    if (!(own->norm[r] < 1e30f && own->norm[r] > 1e-30f))
      size = attn_map_far_(a, own, y + r * a->m, x + r * a->dk, r, head, &by);
    size *= fabs((double)a->p.scale);
    in[r] = (float)((double)a->p.scale / (size > 1e-6 ? size : 1e-6) / by);
  }
  for (int64_t r = 0, run; r < n; r += run) {
    for (run = 0; r + run < n; run++)
      if (!(own->top[r + run] * fabsf(in[r + run]) <= 8192.0f)) break;
    if (run) {
      attn_on_(feature, a->table)->wave_rows(y + r * a->m, a->m, run, d, in + r, own->factor + r);
      continue;
    }
    float *row = y + r * a->m;
    run = 1;
    for (int64_t c = 0; c < d; c++) {
      double sine, cosine;
      attn_sincos_((double)row[c] * (double)in[r], &sine, &cosine);
      row[c] = (float)(sine * (double)own->factor[r]);
      row[d + c] = (float)(cosine * (double)own->factor[r]);
    }
  }
}

/* u and its largest number in each row */
ATTN_FUNC_ void attn_map_exponents_(const attn_map_ *a, attn_map_rows_ *own, float *y,
                                    const float *x, int64_t n, int64_t head) {
  attn_map_project_(a, y, a->m, x, n, head, 0, a->directions);
  attn_on_(feature, a->table)
      ->top_rows(own->top, y, a->m, n, a->directions, a->kind == ATTN_FEATURES_HYPERBOLIC);
  attn_map_squares_(a, own->norm, x, n, attn_map_half_(a));
}

ATTN_FUNC_ void attn_map_powers_(const attn_map_ *a, attn_map_rows_ *own, float *y, int64_t n,
                                 float add) {
  if (a->p.norm != ATTN_FEATURE_NORM_NONE && add == 0.0f) /* factors cancel: none may vanish */
    for (int64_t r = 0; r < n; r++) own->factor[r] = 1.0f;
  attn_on_(feature, a->table)
      ->power_rows(y, a->m, n, a->directions, own->top, own->factor, add,
                   a->kind == ATTN_FEATURES_HYPERBOLIC);
}

/* What queries and keys share. */
ATTN_FUNC_ void attn_map_common_(const attn_map_ *a, attn_map_rows_ *own, float *y, const float *x,
                                 int64_t n, int64_t head, int is_key) {
  switch (a->kind) {
    case ATTN_FEATURES_ELU1:
      attn_on_(feature, a->table)
          ->elu1(y, x, n * a->m, a->p.scale * (is_key ? 1.0f : a->p.query_scale));
      break;
    case ATTN_FEATURES_ACT: attn_map_act_(a, own, y, x, n, head); break;
    case ATTN_FEATURES_DPFP: attn_map_dpfp_(a, y, x, n); break;
    default: attn_map_user_(a, own, y, x, n, head, is_key);
  }
}

/* ---- what callers use -----------------------------------------------------------------------*/

/* y[n][m] = phi of n <= 64 rows x[n][dk], as queries of a head, before map.norm. */
ATTN_FUNC_ void attn_map_raw_queries_(const attn_map_ *a, char *own, float *y, const float *x,
                                      int64_t n, int64_t head) {
  attn_map_rows_ *rows = (attn_map_rows_ *)(void *)own;
  if (attn_map_positive_(a->kind)) {
    attn_map_exponents_(a, rows, y, x, n, head);
    if (a->quotients) memset(rows->norm, 0, sizeof rows->norm); /* or large queries would vanish */
    attn_map_factors_(a, rows, NULL, NULL, n);
    attn_map_powers_(a, rows, y, n, a->p.eps * a->root);
  } else if (a->kind == ATTN_FEATURES_RFA) {
    for (int64_t r = 0; r < n; r++) rows->factor[r] = a->root;
    attn_map_waves_(a, rows, y, x, n, head);
  } else {
    attn_map_common_(a, rows, y, x, n, head, 0);
  }
}

/* The same of keys, each in units of the stabiliser behind it: the largest of `most` and of the keys up to
 * it. Where there is one c[n] receives it; no feature depends on a later key. */
ATTN_FUNC_ void attn_map_raw_keys_(const attn_map_ *a, char *own, float *y, const float *x,
                                   int64_t n, int64_t head, float most, float *c) {
  attn_map_rows_ *rows = (attn_map_rows_ *)(void *)own;
  if (attn_map_positive_(a->kind)) {
    const int fixed = a->p.key_stab == ATTN_STAB_CONST;
    attn_map_exponents_(a, rows, y, x, n, head);
    for (int64_t r = 0; r < n; r++) {
      rows->shift[r] = a->quotients ? rows->top[r] - rows->norm[r] : rows->top[r];
      c[r] = fixed ? a->p.key_const : -INFINITY;
    }
    if (a->running) (void)attn_map_follow_(c, rows->shift, n, most);
    attn_map_factors_(a, rows, rows->top, c, n);
    attn_map_powers_(a, rows, y, n, a->key_eps);
  } else if (a->kind == ATTN_FEATURES_RFA) {
    for (int64_t r = 0; r < n; r++) rows->factor[r] = a->root;
    if (a->running) {
      attn_map_squares_(a, rows->top, x, n, attn_map_rfa_half_(a));
      (void)attn_map_follow_(c, rows->top, n, most);
      memset(rows->norm, 0, sizeof rows->norm);
      attn_map_factors_(a, rows, rows->top, c, n);
    }
    attn_map_waves_(a, rows, y, x, n, head);
  } else {
    attn_map_common_(a, rows, y, x, n, head, 1);
  }
}

/* Features of queries, and of keys. */
ATTN_FUNC_ void attn_map_queries_(const attn_map_ *a, char *own, float *y, const float *x,
                                  int64_t n, int64_t head) {
  attn_map_raw_queries_(a, own, y, x, n, head);
  if (a->p.norm != ATTN_FEATURE_NORM_NONE)
    attn_map_normalise_(a, (attn_map_rows_ *)(void *)own, y, n);
}
ATTN_FUNC_ void attn_map_keys_(const attn_map_ *a, char *own, float *y, const float *x, int64_t n,
                               int64_t head, float most, float *c) {
  attn_map_raw_keys_(a, own, y, x, n, head, most, c);
  if (a->p.norm != ATTN_FEATURE_NORM_NONE)
    attn_map_normalise_(a, (attn_map_rows_ *)(void *)own, y, n);
}

/* The stabiliser of n keys by themselves; -INFINITY of maps without one. */
ATTN_FUNC_ float attn_map_top_(const attn_map_ *a, char *own, const float *x, int64_t n,
                               int64_t head) {
  attn_map_rows_ *rows = (attn_map_rows_ *)(void *)own;
  float c = -INFINITY, *u = attn_map_more_(own);
  if (!a->running) return c;
  if (a->kind == ATTN_FEATURES_RFA) {
    attn_map_squares_(a, rows->top, x, n, attn_map_rfa_half_(a));
    return attn_map_follow_(NULL, rows->top, n, c);
  }
  for (int64_t r = 0; r < a->directions; r += ATTN_MAP_PANEL_) {
    const int64_t left = a->directions - r,
                  some = left < ATTN_MAP_PANEL_ ? left : (int64_t)ATTN_MAP_PANEL_;
    attn_map_project_(a, u, ATTN_MAP_PANEL_, x, n, head, r, some);
    attn_on_(feature, a->table)
        ->top_rows(rows->top, u, ATTN_MAP_PANEL_, n, some, a->kind == ATTN_FEATURES_HYPERBOLIC);
    c = attn_map_follow_(NULL, rows->top, n, c);
  }
  return c;
}
