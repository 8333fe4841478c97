/* families/linear/recurrent_rows.h owns what the engine of decaying states is told: a rule as one transition a
 * token, and the rows of a chunk. A rule becomes w (none, one number, one a channel), what is read before the write
 * (a delta rule: the key itself, behind w; else a, before w, written to b), keys and values as they are written. */

enum {
  ATTN_RECURRENT_CHUNK_ = 64, /* tokens worked on at once */
  ATTN_RECURRENT_PART_ = 16,  /* tokens between two of which channels fade pair by pair */
  ATTN_RECURRENT_FEW_ = 4,    /* tokens that go one by one */
  ATTN_RECURRENT_PIECES_ = 23
};

typedef enum attn_recurrent_decay_ {
  ATTN_RECURRENT_NONE_,  /* w = 1 */
  ATTN_RECURRENT_TOKEN_, /* a number */
  ATTN_RECURRENT_EACH_   /* one a channel */
} attn_recurrent_decay_;

/* Inputs beside q, k, v, in the order of their checks. */
enum {
  ATTN_RECURRENT_W_,
  ATTN_RECURRENT_A_,
  ATTN_RECURRENT_B_,
  ATTN_RECURRENT_BETA_,
  ATTN_RECURRENT_U_,
  ATTN_RECURRENT_I_,
  ATTN_RECURRENT_DT_,
  ATTN_RECURRENT_LAMBDA_,
  ATTN_RECURRENT_MORE_
};

/* The bits of x: of t ^ j, the level of token j at token t. */
ATTN_FUNC_ int attn_level_of_(int64_t x) {
  int n = 0;
  for (uint64_t y = (uint64_t)x; y; y >>= 1) n++;
  return n;
}

typedef struct attn_recurrent_ {
  const attn_table_ *table;
  attn_tensor o, q, k, v, more[ATTN_RECURRENT_MORE_];
  attn_tensor state[2], n[2], m[2]; /* initial, final */
  const attn_recurrent_params *p;
  attn_recurrent_decay_ decay;
  int delta, low, before, counts; /* reads k behind w; a and b; reads the old state; MLSTM's n */
  int64_t heads, len, dk, dv, all, wide; /* all: dv, and n; wide: in whole 16s */
  int64_t sequences, slices, chunk;
  int64_t levels, slots; /* 0: one state; of them those that may hold tokens */
  float scale, eps;
  char *own; /* of the workers */
  int64_t own_bytes, at[ATTN_RECURRENT_PIECES_], levels_at;
} attn_recurrent_;

/* What a worker has; square: [64][64], turned: [dk][64], rows: [64][dk], values: [64][wide], state: [dk][wide] */
typedef struct attn_recurrent_own_ {
  float *kt, *bt;                  /* writers, turned */
  float *q, *k, *a, *b, *w, *fade; /* rows */
  float *near;                     /* [64][dk]: of one-by-one tokens */
  float *qk, *qb, *ak, *ab;        /* square */
  float *v, *u, *y;                /* values */
  float *s, *rest;                 /* state */
  float *sum;                      /* [12][64]: what joins it */
  float *left, *over;              /* [dk]: products of decays */
  double *keep;                    /* [dk]: what is left of S behind the chunk */
  float *m;                        /* MLSTM's n and values of a token, [2][wide + dk] */
  attn_linear_ask_ *ask;
} attn_recurrent_own_;

/* Where the pieces of a worker's memory begin, in floats; its bytes. */
ATTN_FUNC_ int64_t attn_recurrent_lay_(attn_recurrent_ *a) {
  const int64_t n = ATTN_RECURRENT_CHUNK_, rows = attn_mul_(n, a->dk), square = n * n;
  const int64_t each = a->decay == ATTN_RECURRENT_EACH_, low = a->low, reads = a->delta || low;
  const int64_t values = attn_mul_(n, a->wide), state = attn_mul_(a->dk, a->wide);
  const int64_t floats[ATTN_RECURRENT_PIECES_] = {rows,
                                                  low * rows,
                                                  rows,
                                                  rows,
                                                  reads * rows,
                                                  low * rows,
                                                  each * rows,
                                                  each * rows,
                                                  rows,
                                                  square,
                                                  low * square,
                                                  reads * square,
                                                  low * square,
                                                  values,
                                                  low * values,
                                                  values,
                                                  state,
                                                  state,
                                                  12 * n,
                                                  a->dk,
                                                  a->dk,
                                                  attn_mul_(2, a->dk),
                                                  attn_mul_(2, attn_add_(a->wide, a->dk))};
  int64_t at = attn_piece_(1, sizeof(attn_linear_ask_)) / (int64_t)sizeof(float);
  for (int i = 0; i < ATTN_RECURRENT_PIECES_; i++) {
    a->at[i] = at;
    at = attn_add_(at, attn_add_(floats[i], 15) & ~(int64_t)15); /* whole cache lines */
  }
  return attn_mul_(at, sizeof(float));
}

ATTN_FUNC_ void attn_recurrent_cut_(const attn_recurrent_ *a, int worker, attn_recurrent_own_ *w) {
  char *base = a->own + worker * a->own_bytes;
  float *p = (float *)(void *)base;
  const int64_t *at = a->at;
  w->ask = (attn_linear_ask_ *)(void *)base;
  w->ask->rows = 0;
  w->kt = p + at[0], w->bt = p + at[1], w->q = p + at[2], w->k = p + at[3], w->a = p + at[4],
  w->b = p + at[5], w->w = p + at[6], w->fade = p + at[7], w->near = p + at[8], w->qk = p + at[9],
  w->qb = p + at[10], w->ak = p + at[11], w->ab = p + at[12], w->v = p + at[13], w->u = p + at[14],
  w->y = p + at[15], w->s = p + at[16], w->rest = p + at[17], w->sum = p + at[18],
  w->left = p + at[19], w->over = p + at[20], w->keep = (double *)(void *)(p + at[21]),
  w->m = p + at[22];
}

/* A head's tokens on their way into a state, and the chunk at hand. */
typedef struct attn_recurrent_chain_ {
  const attn_recurrent_ *a;
  attn_recurrent_own_ w;
  int64_t b, unit, h; /* of the tensors, of the states */
  int64_t t0, t1;     /* the sequence */
  int64_t row;        /* of the caller's state: where a level begins */
  int64_t col, cols;  /* of the values */
  int n;              /* tokens of the chunk */
  int clears;         /* nothing is left of S before it */
  int ends;           /* nothing is left of S behind it: it is one token, which reads S */
  double m;           /* MLSTM's running maximum */
  /* rows of the chunk: where they are, or in w.k, w.b, w.v; without col */
  const float *k, *b_rows, *v;
  int64_t k_stride, b_stride, v_stride;
  const float *rates, *logs; /* [64][dk]: decays by channel, and what they are exponentials of */
  float *y;                  /* what queries read: in o itself, or w.y; without col */
  int64_t y_stride;
  double keep[ATTN_RECURRENT_CHUNK_]; /* w of a token, where it is one number */
  float gain[ATTN_RECURRENT_CHUNK_];  /* what values are multiplied by */
  float beta[ATTN_RECURRENT_CHUNK_];
  float top[ATTN_RECURRENT_CHUNK_]; /* MLSTM: exp(-m) */
  float left[ATTN_RECURRENT_CHUNK_],
      last[ATTN_RECURRENT_CHUNK_]; /* of S at a token; of a token at the end */
} attn_recurrent_chain_;

ATTN_FUNC_ int64_t attn_recurrent_head_(const attn_recurrent_ *a, const attn_tensor *t, int64_t h) {
  return t->heads == a->heads ? h : h * t->heads / a->heads;
}
ATTN_FUNC_ char *attn_recurrent_at_(const attn_recurrent_chain_ *c, const attn_tensor *t,
                                    int64_t i) {
  return attn_at_(t, t->batch > 1 ? c->b : 0, attn_recurrent_head_(c->a, t, c->h),
                  t->len > 1 ? i : 0);
}

/* Tokens i .. of a tensor of one number a token. */
ATTN_FUNC_ void attn_recurrent_numbers_(const attn_recurrent_chain_ *c, float *to,
                                        const attn_tensor *t, int64_t i, int n) {
  c->a->table->widen(to, attn_recurrent_at_(c, t, i), t->stride_len, NULL, n, 1, t->dtype, NULL);
}

/* Rows i .. of a tensor as floats: where they are if they are so. */
ATTN_FUNC_ attn_floats_ attn_recurrent_rows_(const attn_recurrent_chain_ *c, float *room,
                                             const attn_tensor *t, int64_t i, int n) {
  const char *at = attn_recurrent_at_(c, t, i);
  if (t->dtype == ATTN_F32)
    return attn_floats_at_((const float *)(const void *)at, t->stride_len, n);
  c->a->table->widen(room, at, t->stride_len, NULL, n, t->dim, t->dtype, NULL);
  return attn_floats_at_(room, t->dim, n);
}

/* The rate of a head that has no array. */
ATTN_FUNC_ double attn_recurrent_usual_(const attn_recurrent_ *a, int64_t h) {
  if (a->p->rule == ATTN_RECURRENT_RETENTION)
    return 1.0 - attn_exp_f64_(-(5.0 + (double)h) * ATTN_LN2_);
  const double l = (double)a->p->layer, most = (double)(a->p->layers ? a->p->layers : 1);
  return attn_exp_f64_(-attn_exp_f64_(-8.0 * (double)(h + 1) / (double)a->heads * ATTN_LN2_) *
                       (1.0 - l / (most - 1.0 + 1e-5) + 1e-5));
}

/* MAMBA2's D of tokens, from their dt. */
ATTN_FUNC_ void attn_recurrent_steps_of_(const attn_recurrent_ *a, int64_t h, double *d,
                                         const float *dt, int n) {
  const attn_recurrent_params *p = a->p;
  for (int j = 0; j < n; j++) d[j] = (double)dt[j] + (p->dt_bias ? (double)p->dt_bias[h] : 0.0);
  attn_softplus_row_f64_(d, d, n);
  for (int j = 0; j < n; j++) {
    if (d[j] < (double)p->dt_min) d[j] = (double)p->dt_min;
    if (p->dt_max > 0.0f && d[j] > (double)p->dt_max) d[j] = (double)p->dt_max;
  }
}

/* log of a factor */
ATTN_FUNC_ double attn_recurrent_log_(float w) {
  if (!(w > 0.0f)) return w == 0.0f ? -(double)INFINITY : (double)w;
  return (w < FLT_MIN ? attn_log2_(w * 4294967296.0f) - 32.0 : attn_log2_(w)) * ATTN_LN2_;
}

/* e^g - 1 for -0.25 <= g <= 0 */
ATTN_FUNC_ float attn_recurrent_less_(float g) {
  float p = 1.0f / 5040;
  p = p * g + 1.0f / 720, p = p * g + 1.0f / 120, p = p * g + 1.0f / 24;
  p = p * g + 1.0f / 6, p = p * g + 0.5f;
  return p * g * g + g;
}

/* e^g beside its float: near 1 what it lacks to 1 is as exact, for that is what many tokens multiply. */
ATTN_FUNC_ double attn_recurrent_exp_(float g, float rounded) {
  return g > -0.25f ? 1.0 + (double)attn_recurrent_less_(g) : (double)rounded;
}

/* What tokens i .. leave of S, and the factors of their values. */
ATTN_FUNC_ void attn_recurrent_rates_(attn_recurrent_chain_ *c, int64_t i, int n) {
  const attn_recurrent_ *a = c->a;
  const attn_tensor *w = &a->more[ATTN_RECURRENT_W_];
  float x[ATTN_RECURRENT_CHUNK_], y[ATTN_RECURRENT_CHUNK_];
  if (a->p->rule == ATTN_RECURRENT_MAMBA2) {
    const double rate = attn_exp_f64_((double)a->p->a_log[c->h]);
    attn_recurrent_numbers_(c, x, &a->more[ATTN_RECURRENT_DT_], i, n);
    attn_recurrent_steps_of_(a, c->h, c->keep, x, n);
    for (int j = 0; j < n; j++) { /* a step of 0 leaves all, whatever the rate */
      x[j] = c->keep[j] == 0.0 ? 0.0f : (float)(-rate * c->keep[j]);
      c->gain[j] = (float)c->keep[j];
    }
    a->table->exp(y, x, n);
    for (int j = 0; j < n; j++) c->keep[j] = attn_recurrent_exp_(x[j], y[j]);
  } else if (!w->data) {
    const double rate = attn_recurrent_usual_(a, c->h);
    for (int j = 0; j < n; j++) c->keep[j] = rate;
  } else {
    if (w->len > 1)
      attn_recurrent_numbers_(c, x, w, i, n);
    else
      attn_recurrent_numbers_(c, x, w, 0, 1);
    const int logs = a->p->form == ATTN_RECURRENT_LOG && !a->counts;
    if (logs) a->table->exp(y, x, w->len > 1 ? n : 1);
    for (int j = 0; j < n; j++) {
      const double g = (double)x[w->len > 1 ? j : 0];
      if (a->counts) /* the log, which meets the maximum first */
        c->keep[j] = a->p->form == ATTN_RECURRENT_LOG     ? g
                     : a->p->form == ATTN_RECURRENT_LOGIT ? -g
                                                          : attn_recurrent_log_((float)g);
      else
        c->keep[j] = logs ? attn_recurrent_exp_((float)g, y[w->len > 1 ? j : 0]) : g;
    }
  }
  if (!a->counts) return;
  if (a->p->form == ATTN_RECURRENT_LOGIT) {
    attn_softplus_row_f64_(c->keep, c->keep, n);
    for (int j = 0; j < n; j++) c->keep[j] = -c->keep[j];
  }
  double in[ATTN_RECURRENT_CHUNK_], out[ATTN_RECURRENT_CHUNK_];
  attn_recurrent_numbers_(c, x, &a->more[ATTN_RECURRENT_I_], i, n);
  in[0] = out[0] = 0.0; /* n is at least 1, which compilers do not see */
  for (int j = 0; j < n; j++) {
    /* where nothing is left m was of no use, whatever it is */
    const double f = c->keep[j] == -(double)INFINITY ? c->keep[j] : c->keep[j] + c->m;
    const double g = (double)x[j];
    const double m =
        (double)(float)(g > f || g != g ? g : f); /* as a state keeps it: any m is right */
    c->keep[j] = f - m, in[j] = g - m, out[j] = -m;
    c->last[j] = (float)m; /* for the cut below */
    c->m = m;
  }
  attn_exp_row_f64_(c->keep, c->keep, n);
  attn_exp_row_f64_(in, in, n);
  attn_exp_row_f64_(out, out, n);
  for (int j = 0; j < n; j++) {
    const int none = c->last[j] == -INFINITY;
    if (none) c->keep[j] = 0.0;
    c->gain[j] = none ? 0.0f : (float)in[j], c->top[j] = none ? 1.0f : (float)out[j];
  }
}

/* Whether token j leaves nothing of the state before it. */
ATTN_FUNC_ int attn_recurrent_gone_(const attn_recurrent_chain_ *c, int j) {
  const attn_recurrent_ *a = c->a;
  if (a->low || a->decay == ATTN_RECURRENT_NONE_) return 0;
  if (a->decay == ATTN_RECURRENT_TOKEN_) return c->keep[j] == 0.0;
  const float *w = c->rates + j * a->dk;
  for (int64_t r = 0; r < a->dk; r++)
    if (w[r] != 0.0f) return 0;
  return 1;
}

/* Whether nothing before token j reaches it. */
ATTN_FUNC_ int attn_recurrent_cuts_(const attn_recurrent_chain_ *c, int64_t i, int j) {
  const attn_recurrent_ *a = c->a;
  if (a->p->reset && a->p->reset[c->b * a->len + i + j]) return 1;
  return !a->before && attn_recurrent_gone_(c, j);
}

/* Decays of up to n tokens from i on; cut before a token that nothing before it reaches. One that reads the state and
 * then leaves nothing of it is a chunk of its own. */
ATTN_FUNC_ void attn_recurrent_decays_(attn_recurrent_chain_ *c, int64_t i, int n) {
  const attn_recurrent_ *a = c->a;
  const attn_recurrent_own_ *w = &c->w;
  const int64_t dk = a->dk;
  if (a->counts && a->p->reset && a->p->reset[c->b * a->len + i]) c->m = 0.0;
  for (int j = 0; j < n; j++) c->gain[j] = c->beta[j] = 1.0f;
  if (a->decay == ATTN_RECURRENT_TOKEN_) attn_recurrent_rates_(c, i, n);
  if (a->decay == ATTN_RECURRENT_EACH_) {
    const attn_tensor *t = &a->more[ATTN_RECURRENT_W_];
    const char *at = attn_recurrent_at_(c, t, i);
    const int logs = a->p->form == ATTN_RECURRENT_LOG;
    const int dense = t->dtype == ATTN_F32 && t->len > 1 && t->stride_len == dk;
    float *to = logs ? w->near : w->w;
    if (!dense)
      a->table->widen(to, at, t->len > 1 ? t->stride_len : 0, NULL, n, dk, t->dtype, NULL);
    c->rates = c->logs = dense ? (const float *)(const void *)at : to;
    if (logs) a->table->exp(w->w, c->logs, n * dk), c->rates = w->w;
  }
  c->clears = attn_recurrent_cuts_(c, i, 0);
  c->ends = a->before && attn_recurrent_gone_(c, 0);
  c->n = c->ends ? 1 : n;
  for (int j = 1; j < c->n; j++)
    if (attn_recurrent_cuts_(c, i, j) || (a->before && attn_recurrent_gone_(c, j))) c->n = j;
  if (a->counts) c->m = (double)c->last[c->n - 1];
  if (a->delta && a->more[ATTN_RECURRENT_BETA_].data)
    attn_recurrent_numbers_(c, c->beta, &a->more[ATTN_RECURRENT_BETA_], i, c->n);
  if (a->delta) memcpy(c->gain, c->beta, sizeof c->gain);
}

/* factor[j] = 1 / sqrt(sum x_j^2 + 1e-6) times by, in double where floats cannot square. */
ATTN_FUNC_ void attn_recurrent_norms_(const attn_recurrent_ *a, float *factor, attn_floats_ x,
                                      float by) {
  for (int64_t j = 0; j < x.rows; j++) factor[j] = by;
  if (!a->p->l2norm_qk) return;
  float sum[ATTN_RECURRENT_CHUNK_];
  attn_on_(select, a->table)->squares(sum, NULL, x.p, x.stride, NULL, x.rows, a->dk);
  for (int64_t j = 0; j < x.rows; j++) {
    double t = (double)sum[j];
    if (!(t > 1e-20 && t < 1e30)) {
      t = 0.0;
      for (int64_t r = 0; r < a->dk; r++) {
        const double y = (double)x.p[j * x.stride + r];
        t += y * y;
      }
    }
    factor[j] = (float)((double)by / sqrt(t + 1e-6));
  }
}

/* Queries (scaled), keys, values (with their factors) of the chunk's tokens as floats; a and b of their rule. */
ATTN_FUNC_ void attn_recurrent_load_(attn_recurrent_chain_ *c, int64_t i) {
  const attn_recurrent_ *a = c->a;
  const attn_table_ *f = a->table;
  const attn_recurrent_own_ *w = &c->w;
  const int64_t dk = a->dk, n = c->n;
  float by[ATTN_RECURRENT_CHUNK_];
  attn_floats_ x = attn_recurrent_rows_(c, w->q, &a->q, i, c->n);
  attn_recurrent_norms_(a, by, x, a->scale);
  f->scale_rows(w->q, dk, x.p, x.stride, n, dk, by);
  if (a->p->rule == ATTN_RECURRENT_HGRN2) {
    for (int64_t r = 0; r < n * dk; r++) w->k[r] = 1.0f - c->rates[r];
    if (a->p->form == ATTN_RECURRENT_LOG) /* 1 - e^g where e^g is near 1 */
      for (int64_t r = 0; r < n * dk; r++)
        if (c->logs[r] > -0.25f) w->k[r] = -attn_recurrent_less_(c->logs[r]);
    x = attn_floats_at_(w->k, dk, n);
  } else {
    x = attn_recurrent_rows_(c, w->k, &a->k, i, c->n);
  }
  if (a->p->l2norm_qk) {
    attn_recurrent_norms_(a, by, x, 1.0f);
    f->scale_rows(w->k, dk, x.p, x.stride, n, dk, by);
    x = attn_floats_at_(w->k, dk, n);
  }
  c->k = x.p, c->k_stride = x.stride;
  if (a->low) {
    x = attn_recurrent_rows_(c, w->a, &a->more[ATTN_RECURRENT_A_], i, c->n);
    const attn_floats_ y = attn_recurrent_rows_(c, w->b, &a->more[ATTN_RECURRENT_B_], i, c->n);
    const int rate = a->p->rule == ATTN_RECURRENT_RWKV7;
    for (int64_t j = 0; j < n; j++) by[j] = rate ? -1.0f : 1.0f;
    c->b_rows = y.p, c->b_stride = y.stride;
    if (rate) {
      attn_on_(recurrent, f)->fade_by(w->b, y.p, y.stride, x.p, x.stride, n, dk);
      c->b_rows = w->b, c->b_stride = dk;
    }
    f->scale_rows(w->a, dk, x.p, x.stride, n, dk, by);
  }
  /* whole vectors, n beside the values */
  const int64_t cols = c->cols < a->dv - c->col ? c->cols : a->dv - c->col;
  const int gains = a->delta || a->counts || a->p->rule == ATTN_RECURRENT_MAMBA2;
  const char *v = attn_recurrent_at_(c, &a->v, i);
  c->v = w->v, c->v_stride = a->wide;
  if (!gains && a->v.dtype == ATTN_F32 && a->wide == a->dv) {
    c->v = (const float *)(const void *)v, c->v_stride = a->v.stride_len;
    return;
  }
  for (int64_t j = 0; a->wide > a->dv && j < n; j++) {
    memset(w->v + j * a->wide + a->dv, 0, (size_t)(a->wide - a->dv) * sizeof(float));
    if (a->counts) w->v[j * a->wide + a->dv] = c->gain[j];
  }
  if (a->v.dtype == ATTN_F32) {
    f->scale_rows(w->v + c->col, a->wide, (const float *)(const void *)v + c->col, a->v.stride_len,
                  n, cols, c->gain);
    return;
  }
  for (int64_t j = 0; j < n; j++)
    f->blend(w->v + j * a->wide + c->col, v + attn_bytes_(a->v.dtype, j * a->v.stride_len + c->col),
             NULL, ATTN_F32, a->v.dtype, ATTN_F32, cols, c->gain[j], 0.0f);
}

/* Where what queries read is summed. */
ATTN_FUNC_ void attn_recurrent_into_(attn_recurrent_chain_ *c, int64_t i) {
  const attn_recurrent_ *a = c->a;
  c->y = c->w.y, c->y_stride = a->wide;
  if (a->counts || a->p->skip || a->o.dtype != ATTN_F32) return;
  c->y = (float *)(void *)attn_at_(&a->o, c->b, c->h, i), c->y_stride = a->o.stride_len;
}

/* Tokens i .. of o from their sums: times what their rule divides by, and what it adds. */
ATTN_FUNC_ void attn_recurrent_store_(const attn_recurrent_chain_ *c, int64_t i, int n) {
  const attn_recurrent_ *a = c->a;
  float *y = c->w.y;
  const int64_t cols = c->cols < a->dv - c->col ? c->cols : a->dv - c->col;
  const float skip = a->p->skip ? a->p->skip[c->h] : 0.0f;
  if (c->y != y) return;
  for (int j = 0; j < n; j++, y += a->wide) {
    const int64_t at = attn_bytes_(a->v.dtype, c->col);
    float by = 1.0f;
    if (a->counts) {
      const double size = fabs((double)y[a->dv]), top = (double)c->top[j];
      const double den = (size > top || size != size ? size : top) + (double)a->eps;
      by = (float)(1.0 / den);
      for (int64_t x = 0; den < 1e-30 && x < a->dv; x++) /* what no float divides */
        if (y[x] != 0.0f && attn_map_finite_(y[x]))
          y[x] = (float)attn_clamp_f64_((double)y[x] / den);
      if (den < 1e-30) by = 1.0f;
    }
    a->table->blend(attn_at_(&a->o, c->b, c->h, i + j) + attn_bytes_(a->o.dtype, c->col),
                    y + c->col, a->p->skip ? attn_recurrent_at_(c, &a->v, i + j) + at : NULL,
                    a->o.dtype, ATTN_F32, a->v.dtype, cols, by, skip);
  }
}
