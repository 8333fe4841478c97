/* engine/qk_norm.h owns the norm of rows of queries or of keys: the rules of its description, and the rows. */

/* One side of a norm: the gain of queries, or that of keys. */
typedef struct attn_qk_rows_ {
  int on, all; /* all: over the columns of all heads */
  attn_norm norm;
  const float *temperature; /* [heads], or null = 1 */
  float by;                 /* factor of every row */
  int64_t heads, dim, step; /* floats from the gain of a head to that of the next; 0: one for all */
} attn_qk_rows_;

/* Judges a norm of heads of width dim. span: of the gain, of the temperature; data: it may be read. */
ATTN_COLD_ int attn_qk_norm_open_(attn_error_ *e, attn_qk_rows_ *g, const attn_qk_norm *p, int keys,
                                  int64_t heads, int64_t dim, int data, attn_span_ span[2]) {
  const float least = attn_from_bits_(1u); /* 2^-149 */
  memset(g, 0, sizeof *g);
  if ((int)p->kind < 0 || p->kind >= ATTN_QK_NORM_KINDS)
    return attn_reject_(e, ATTN_E_RANGE, "params.norm.kind must be an attn_qk_norm_kind");
  if (!(p->eps >= 0.0f && p->eps < INFINITY))
    return attn_reject_(e, ATTN_E_VALUE, "params.norm.eps must be finite and not negative");
  if ((p->gain_by_head | p->gain_less_one | p->after) & ~1)
    return attn_reject_(e, ATTN_E_RANGE,
                        "params.norm.gain_by_head, gain_less_one and after must be 0 or 1");
  if (p->temperature && p->kind != ATTN_QK_NORM_L2)
    return attn_reject_(e, ATTN_E_RANGE, "params.norm.temperature is for ATTN_QK_NORM_L2");
  const int l2 = p->kind == ATTN_QK_NORM_L2;
  const double eps = p->eps == 0.0f && !attn_to_bits_(p->eps) ? 1e-6 : (double)p->eps;
  g->on = 1, g->all = p->kind == ATTN_QK_NORM_RMS_ALL, g->heads = heads, g->dim = dim;
  g->norm.kind = p->kind == ATTN_QK_NORM_LAYER ? ATTN_NORM_LAYER : ATTN_NORM_RMS;
  g->norm.gain = keys ? p->k_gain : p->q_gain, g->norm.gain_less_one = p->gain_less_one;
  g->norm.eps = (float)(l2 ? eps / (double)dim : eps); /* x / |x| is x / rms(x) / sqrt(dim) */
  if (!(g->norm.eps > 0.0f)) g->norm.eps = least;
  g->by = l2 ? (float)(1.0 / sqrt((double)dim)) : 1.0f;
  if (p->gain_by_head && !g->all && g->norm.gain) g->step = dim;
  if (!keys) g->temperature = p->temperature;
  const int64_t gains = p->gain_by_head || g->all ? attn_mul_(heads, dim) : dim;
  if (!attn_check_array_(e, g->norm.gain, gains, 4,
                         "the gains of params.norm must be aligned to their elements", &span[0]) ||
      !attn_check_array_(e, g->temperature, heads, 4,
                         "params.norm.temperature must be aligned to its elements", &span[1]))
    return 0;
  for (int64_t h = 0; data && g->temperature && h < heads; h++)
    if (!(g->temperature[h] - g->temperature[h] == 0.0f))
      return attn_reject_(e, ATTN_E_VALUE, "params.norm.temperature must be finite");
  return 1;
}

/* Rows that are normed at once, unless they are one norm. */
enum { ATTN_QK_ROWS_ = 16 };

/* What n rows of heads h, or (each) of heads h .. h + n - 1, are divided by: 3 numbers a row, of which the second is
 * NaN where floats cannot do the row. */
ATTN_FUNC_ void attn_qk_sizes_(const attn_qk_rows_ *g, const attn_table_ *f, float *size,
                               const float *x, int64_t x_stride, int64_t width, int64_t n,
                               int64_t h, int each) {
  attn_norm_rows_ a = {NULL, NULL, x, NULL, 0, 0, x_stride, 0, width};
  for (int64_t r = 0; r < n; r += ATTN_TILE_, a.x += ATTN_TILE_ * x_stride) {
    const int some = n - r < ATTN_TILE_ ? (int)(n - r) : ATTN_TILE_;
    float *to = size + 3 * r;
    uint64_t hard =
        attn_on_(norm, f)->sizes(to, &a, some, g->norm.eps, g->norm.kind == ATTN_NORM_RMS);
    for (int64_t i = 0; i < some; i++) {
      if (hard >> i & 1) to[3 * i + 1] = attn_from_bits_(0x7fc00000u);
      if (g->temperature)
        to[3 * i + 1] *= g->by * g->temperature[each ? h + r + i : h];
      else if (g->by != 1.0f)
        to[3 * i + 1] *= g->by;
    }
  }
}

/* n rows, divided by their sizes; y may be x. */
ATTN_FUNC_ void attn_qk_resize_(const attn_qk_rows_ *g, const attn_table_ *f,
                                const attn_norm_rows_ *rows, int64_t n, const float *size,
                                int64_t h, int each) {
  attn_norm_rows_ a = *rows;
  attn_norm norm = g->norm;
  for (int64_t r = 0, run; r < n; r += run, a.x += run * a.x_stride, a.y += run * a.y_stride) {
    const int64_t most = each && g->step ? r + 1 : n; /* one gain for all */
    if (g->step) norm.gain = g->norm.gain + (each ? h + r : h) * g->step;
    for (run = 0; r + run < most && size[3 * (r + run) + 1] == size[3 * (r + run) + 1];) run++;
    if (run > 0) {
      attn_on_(norm, f)->resize(&a, (int)run, size + 3 * r, norm.gain,
                                norm.gain_less_one ? 1.0f : -0.0f);
      continue;
    }
    run = 1;
    attn_norm_exact_(a.y, a.x, a.n, &norm);
    const float by = g->temperature ? g->by * g->temperature[each ? h + r : h] : g->by;
    if (by != 1.0f) f->blend(a.y, a.y, NULL, ATTN_F32, ATTN_F32, ATTN_F32, a.n, by, 0.0f);
  }
}

/* The same of rows x_step elements apart, to floats, dense. y may be x. */
ATTN_FUNC_ void attn_qk_norm_rows_(const attn_qk_rows_ *g, const attn_table_ *f, float *y,
                                   const void *x, int64_t x_step, attn_dtype tx, int64_t n,
                                   int64_t h, int each) {
  attn_norm_rows_ a = {y, NULL, (const float *)x, NULL, g->dim, 0, x_step, 0, g->dim};
  float size[3 * ATTN_TILE_];
  if (tx != ATTN_F32 || (g->all && x_step != g->dim)) {
    f->widen(y, x, x_step, NULL, n, g->dim, tx, NULL);
    a.x = y, a.x_stride = g->dim;
  }
  if (g->all) a.n = n * g->dim, n = 1;
  for (int64_t r = 0, run; r < n; r += run, a.x += run * a.x_stride, a.y += run * a.y_stride) {
    run = n - r < ATTN_TILE_ ? n - r : (int64_t)ATTN_TILE_;
    attn_qk_sizes_(g, f, size, a.x, a.x_stride, a.n, run, each ? h + r : h, each);
    attn_qk_resize_(g, f, &a, run, size, each ? h + r : h, each);
  }
}
