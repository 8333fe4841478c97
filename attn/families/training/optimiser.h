/* families/training/optimiser.h owns steps of optimisers on flat arrays: their checks, what belongs to a step,
 * and its runs. */

/* Elements that a worker takes at a time. */
enum { ATTN_STEP_RUN_ = 16384 };

/* A number whose 0 is the usual one, unless it is ATTN_ZERO. Of floats, as not every C library has signbit of doubles
 * without a warning. */
ATTN_FUNC_ double attn_usual_f64_(double x, double usual) {
  return x != 0.0 ? x : signbit((float)x) ? 0.0 : usual;
}

/* b^t, by squares. */
ATTN_FUNC_ double attn_raised_f64_(double b, int64_t t) {
  double y = 1.0;
  for (; t > 0; t >>= 1, b *= b)
    if (t & 1) y *= b;
  return y;
}

ATTN_FUNC_ float attn_narrow_f64_(double x) { return (float)attn_clamp_f64_(x); }

ATTN_FUNC_ int attn_positive_f64_(double x) { return x >= 0.0 && x - x == 0.0; }

/* An array of a step, by what there is to say of it. */
typedef struct attn_flat_ {
  const void *data;
  const char *null, *align, *overlap;
} attn_flat_;

#define ATTN_FLAT_(p, name)                                               \
  {                                                                       \
    p, name " must not be null", name " must be aligned to its elements", \
        name " must share no memory with another argument"                \
  }

/* `count` arrays of n floats, apart from each other and from the workspace; null: one that may be. */
ATTN_COLD_ int attn_check_flat_(attn_error_ *e, const attn_ctx *ctx, const attn_flat_ *a, int count,
                                int64_t n) {
  attn_span_ span[4], work;
  if (n < 0) return attn_reject_(e, ATTN_E_SHAPE, "n must not be negative");
  for (int i = 0; i < count; i++) {
    if (n > 0 && !a[i].data && a[i].null) return attn_reject_(e, ATTN_E_NULL, a[i].null);
    if (!attn_check_array_(e, a[i].data, n, 4, a[i].align, &span[i])) return 0;
  }
  if (!attn_check_workspace_(e, ctx, &work)) return 0;
  for (int i = 0; i < count; i++)
    for (int j = 0; j < i; j++)
      if (attn_overlap_(span[i], span[j])) return attn_reject_(e, ATTN_E_OVERLAP, a[i].overlap);
  for (int i = 0; i < count; i++)
    if (attn_overlap_(span[i], work))
      return attn_reject_(e, ATTN_E_OVERLAP, "ctx.workspace must not share memory with an array");
  return 1;
}

/* Either step: v null, it is descent. */
typedef struct attn_flat_step_ {
  const attn_table_ *table;
  float *w, *m, *v;
  const float *g;
  int64_t n;
  attn_adam_ adam;
  attn_descent_ descent;
} attn_flat_step_;

ATTN_FUNC_ void attn_flat_item_(void *job, int worker, int64_t index) {
  const attn_flat_step_ *a = (const attn_flat_step_ *)job;
  const int64_t i = index * ATTN_STEP_RUN_, left = a->n - i;
  const int64_t n = left < ATTN_STEP_RUN_ ? left : (int64_t)ATTN_STEP_RUN_;
  const attn_optimiser_table_ *f = attn_on_(optimiser, a->table);
  (void)worker;
  if (a->v)
    f->adam(a->w + i, a->g + i, a->m + i, a->v + i, n, &a->adam);
  else
    f->descend(a->w + i, a->g + i, a->m ? a->m + i : NULL, n, &a->descent);
}

ATTN_COLD_ void attn_flat_run_(attn_flat_step_ *a, attn_ctx *ctx, int workers, const char *path) {
  const int64_t items = attn_runs_of_(a->n, ATTN_STEP_RUN_);
  workers = attn_pieces_(workers, items);
  if (items > 0) attn_for_(ctx, workers, items, attn_flat_item_, a);
  attn_report_(ctx, a->table, workers, items > 0 ? path : "no-op",
               items > 0 ? "the only path" : "no elements");
}

ATTN_PUB_COLD_ attn_status attn_adamw(float *w, const float *g, float *m, float *v, int64_t n,
                                      const attn_adamw_params *params, attn_ctx *ctx) {
  const attn_flat_ arrays[] = {ATTN_FLAT_(w, "w"), ATTN_FLAT_(g, "g"), ATTN_FLAT_(m, "m"),
                               ATTN_FLAT_(v, "v")};
  attn_error_ e = {ATTN_OK, NULL};
  attn_adamw_params p;
  attn_flat_step_ a;
  int workers;
  memset(&p, 0, sizeof p), memset(&a, 0, sizeof a);
  if (params) p = *params;
  a.w = w, a.g = g, a.m = m, a.v = v, a.n = n;
  const double lr = attn_usual_f64_(p.lr, 1e-3), eps = attn_usual_f64_(p.eps, 1e-8);
  const double beta1 = attn_usual_f64_(p.beta1, 0.9), beta2 = attn_usual_f64_(p.beta2, 0.999);
  const double clip = attn_usual_f64_(p.clip, 1.0);
  if (!attn_check_ctx_(&e, ctx, &a.table, &workers) || !attn_check_flat_(&e, ctx, arrays, 4, n))
    return attn_end_(ctx, &e);
  if (p.step < 1) {
    attn_reject_(&e, ATTN_E_RANGE, "params.step must be at least 1");
  } else if (!attn_positive_f64_(lr)) {
    attn_reject_(&e, ATTN_E_VALUE, "params.lr must be finite and not negative");
  } else if (!(beta1 >= 0.0 && beta1 < 1.0)) {
    attn_reject_(&e, ATTN_E_RANGE, "params.beta1 must be in [0, 1)");
  } else if (!(beta2 >= 0.0 && beta2 < 1.0)) {
    attn_reject_(&e, ATTN_E_RANGE, "params.beta2 must be in [0, 1)");
  } else if (!attn_positive_f64_(eps)) {
    attn_reject_(&e, ATTN_E_VALUE, "params.eps must be finite and not negative");
  } else if (!attn_positive_f64_(p.decay)) {
    attn_reject_(&e, ATTN_E_VALUE, "params.decay must be finite and not negative");
  } else if (!(clip - clip == 0.0)) {
    attn_reject_(&e, ATTN_E_VALUE, "params.clip must be finite");
  } else {
    a.adam.clip = attn_narrow_f64_(clip), a.adam.eps = attn_narrow_f64_(eps);
    a.adam.beta1 = (float)beta1, a.adam.rest1 = (float)(1.0 - beta1);
    a.adam.beta2 = (float)beta2, a.adam.rest2 = (float)(1.0 - beta2);
    a.adam.keep = attn_narrow_f64_(1.0 - lr * p.decay);
    a.adam.rate = attn_narrow_f64_(lr / (1.0 - attn_raised_f64_(beta1, p.step)));
    a.adam.root = attn_narrow_f64_(1.0 / (1.0 - attn_raised_f64_(beta2, p.step)));
    attn_flat_run_(&a, ctx, workers, "adamw, elements in lanes");
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_COLD_ attn_status attn_sgd(float *w, const float *g, float *b, int64_t n,
                                    const attn_sgd_params *params, attn_ctx *ctx) {
  attn_flat_ arrays[] = {ATTN_FLAT_(w, "w"), ATTN_FLAT_(g, "g"), ATTN_FLAT_(b, "b")};
  attn_error_ e = {ATTN_OK, NULL};
  attn_sgd_params p;
  attn_flat_step_ a;
  int workers;
  memset(&p, 0, sizeof p), memset(&a, 0, sizeof a);
  if (params) p = *params;
  a.w = w, a.g = g, a.m = b, a.n = n;
  const double lr = attn_usual_f64_(p.lr, 1e-3), clip = attn_usual_f64_(p.clip, 1.0);
  if (p.momentum == 0.0) arrays[2].null = NULL;
  if (!attn_check_ctx_(&e, ctx, &a.table, &workers) || !attn_check_flat_(&e, ctx, arrays, 3, n))
    return attn_end_(ctx, &e);
  if (!attn_positive_f64_(lr)) {
    attn_reject_(&e, ATTN_E_VALUE, "params.lr must be finite and not negative");
  } else if (!(p.momentum >= 0.0 && p.momentum < 1.0)) {
    attn_reject_(&e, ATTN_E_RANGE, "params.momentum must be in [0, 1)");
  } else if (!attn_positive_f64_(p.decay)) {
    attn_reject_(&e, ATTN_E_VALUE, "params.decay must be finite and not negative");
  } else if (!(clip - clip == 0.0)) {
    attn_reject_(&e, ATTN_E_VALUE, "params.clip must be finite");
  } else if ((p.first != 0 && p.first != 1) || (p.nesterov != 0 && p.nesterov != 1)) {
    attn_reject_(&e, ATTN_E_RANGE, "params.first and params.nesterov must be 0 or 1");
  } else {
    a.descent.clip = attn_narrow_f64_(clip), a.descent.rate = attn_narrow_f64_(lr);
    a.descent.decay = attn_narrow_f64_(p.decay), a.descent.momentum = (float)p.momentum;
    a.descent.first = p.first, a.descent.nesterov = p.nesterov;
    attn_flat_run_(&a, ctx, workers, "gradient descent, elements in lanes");
  }
  return attn_end_(ctx, &e);
}

#undef ATTN_FLAT_
