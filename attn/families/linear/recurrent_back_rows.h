/* families/linear/recurrent_back_rows.h owns the way back through a decaying state: tokens of a chunk as rows of one
 * transition, the states before them made again, and their gradients as those of what the caller gave.
 *
 * With lambda a level is a state by itself: tokens in blocks of 2^(l-1), of which one writes, the next reads with its
 * lambda, and the next begins anew; level 0 is a token that does all three. All that goes back is a sum over levels. */

/* What a caller may want the gradients of, in the order of their checks. */
enum {
  ATTN_UNFADE_Q_,
  ATTN_UNFADE_K_,
  ATTN_UNFADE_V_,
  ATTN_UNFADE_W_,
  ATTN_UNFADE_A_,
  ATTN_UNFADE_B_,
  ATTN_UNFADE_BETA_,
  ATTN_UNFADE_U_,
  ATTN_UNFADE_DT_,
  ATTN_UNFADE_I_,
  ATTN_UNFADE_LAMBDA_,
  ATTN_UNFADE_OUT_
};

enum { ATTN_UNFADE_CACHE_ = 1024 }; /* channels times columns */

/* What a token is to a level. */
enum { ATTN_UNFADE_BEGINS_ = 1, ATTN_UNFADE_WRITES_ = 2, ATTN_UNFADE_READS_ = 4 };

typedef struct attn_unfade_ {
  attn_recurrent_ f; /* forward's problem; own: also of this */
  attn_tensor d_o, d_end, d_begin;
  attn_tensor d_n[2], d_m[2]; /* MLSTM's, as d_begin and d_end */
  attn_tensor
      to[ATTN_UNFADE_OUT_]; /* f32, of what forward reads, added to; data null: not asked for */
  float *a_log, *dt_bias, *skip; /* [H] */
  int accumulate;                /* of arrays and d_begin */
  int64_t dk, wide;              /* in whole 16s */
  int64_t chunks, groups, units; /* of all tokens; of heads that share nothing; of a group */
  int64_t at, heads;             /* of a worker's memory; of a group */
  int64_t part; /* columns of the values whose states of a chunk are at hand together */
} attn_unfade_;

/* A worker's memory, and the head at hand. */
typedef struct attn_unfade_chain_ {
  const attn_unfade_ *x;
  attn_recurrent_chain_ c;
  int64_t n;             /* tokens of the chunk */
  float *states, *marks; /* [65][part][dk] of a chunk, [chunks + 1][wide][dk] before each */
  float *none, *d;       /* [part][dk] of 0; [wide][dk]: what reaches the state */
  float *q, *k, *left, *near, *a, *b, *v;       /* [64] rows */
  float *o, *d_v, *d_q, *d_k, *d_w, *d_a, *d_b; /* [64] rows: d_o, and what reaches the above */
  float *room, *y, *d_y;
  double *w_sum, *u_sum, *bonus; /* [dk] */
  double a_log, dt_bias, skip;
  /* MLSTM: m before each chunk; what reaches m of the token at hand, and of a token by itself */
  double *m, d_m, own_m[ATTN_RECURRENT_CHUNK_], keep[ATTN_RECURRENT_CHUNK_];
  float gain[ATTN_RECURRENT_CHUNK_], top[ATTN_RECURRENT_CHUNK_];
  unsigned char cut[ATTN_RECURRENT_CHUNK_], gone[ATTN_RECURRENT_CHUNK_];
  float beta[ATTN_RECURRENT_CHUNK_];
  /* the level at hand, -1: there are none; tokens before the call; rows of q times lambda */
  int level;
  int64_t position;
  float *read, lambda[ATTN_RECURRENT_CHUNK_];
  unsigned char role[ATTN_RECURRENT_CHUNK_];
} attn_unfade_chain_;

/* The pieces of a worker's memory behind forward's; its bytes. */
ATTN_FUNC_ int64_t attn_unfade_cut_(const attn_unfade_ *x, char *memory, attn_unfade_chain_ *y) {
  const int64_t n = ATTN_RECURRENT_CHUNK_, state = attn_mul_(x->dk, x->wide);
  int64_t at = 0;
#define ATTN_CUT_(member, type, count)                                 \
  {                                                                    \
    const int64_t from = attn_cut_(&at, count, (int64_t)sizeof(type)); \
    if (memory) y->member = (type *)(void *)(memory + from);           \
  }
  ATTN_CUT_(states, float, attn_mul_(n + 1, attn_mul_(x->part, x->dk)))
  ATTN_CUT_(marks, float, attn_mul_(attn_add_(x->chunks, 1), state))
  ATTN_CUT_(none, float, attn_mul_(x->part, x->dk))
  ATTN_CUT_(d, float, state)
  ATTN_CUT_(q, float, attn_mul_(n, x->dk))
  ATTN_CUT_(k, float, attn_mul_(n, x->dk))
  ATTN_CUT_(left, float, attn_mul_(n, x->dk))
  ATTN_CUT_(near, float, attn_mul_(n, x->dk))
  ATTN_CUT_(a, float, attn_mul_(n, x->dk))
  ATTN_CUT_(b, float, attn_mul_(n, x->dk))
  ATTN_CUT_(v, float, attn_mul_(n, x->wide))
  ATTN_CUT_(o, float, attn_mul_(n, x->wide))
  ATTN_CUT_(d_v, float, attn_mul_(n, x->wide))
  ATTN_CUT_(d_q, float, attn_mul_(n, x->dk))
  ATTN_CUT_(d_k, float, attn_mul_(n, x->dk))
  ATTN_CUT_(d_w, float, attn_mul_(n, x->dk))
  ATTN_CUT_(d_a, float, attn_mul_(n, x->dk))
  ATTN_CUT_(d_b, float, attn_mul_(n, x->dk))
  ATTN_CUT_(room, float, attn_add_(x->wide, x->dk))
  ATTN_CUT_(y, float, x->part)
  ATTN_CUT_(d_y, float, x->part)
  ATTN_CUT_(w_sum, double, x->dk)
  ATTN_CUT_(u_sum, double, x->dk)
  ATTN_CUT_(bonus, double, x->dk)
  ATTN_CUT_(m, double, x->chunks)
  ATTN_CUT_(read, float, x->f.levels ? attn_mul_(n, x->dk) : 0)
#undef ATTN_CUT_
  return at;
}

/* ---- rows -----------------------------------------------------------------------------------*/

/* w of channel r of token j of what was loaded, as left + near: near 1 what it lacks to 1 is exact. */
ATTN_FUNC_ void attn_unfade_rate_(const attn_recurrent_chain_ *c, int j, int64_t r, float *left,
                                  float *near) {
  const attn_recurrent_ *a = c->a;
  *left = 0.0f, *near = 1.0f;
  if (a->decay == ATTN_RECURRENT_TOKEN_) {
    const int close = c->keep[j] > 0.75;
    *left = (float)(close ? c->keep[j] - 1.0 : c->keep[j]), *near = close ? 1.0f : 0.0f;
  } else if (a->decay == ATTN_RECURRENT_EACH_) {
    const float w = c->rates[j * a->dk + r];
    const int logs = a->p->form == ATTN_RECURRENT_LOG;
    const float g = logs ? c->logs[j * a->dk + r] : 0.0f;
    const int close = logs ? g > -0.25f : w > 0.75f;
    *left = !close ? w : logs ? attn_recurrent_less_(g) : w - 1.0f, *near = close ? 1.0f : 0.0f;
  }
}

/* What the tokens that are loaded, from i on, are to the level at hand. */
ATTN_FUNC_ void attn_unfade_roles_(attn_unfade_chain_ *y, int64_t i) {
  const attn_unfade_ *x = y->x;
  const attn_tensor *t = &x->f.more[ATTN_RECURRENT_LAMBDA_];
  const uint64_t size = (uint64_t)1 << (y->level < 0 ? 0 : y->level);
  for (int64_t at = 0; y->level >= 0 && at < y->n; at++) {
    const uint64_t p = (uint64_t)(y->position + i + at - y->c.t0) & (size - 1);
    const int writes = p < size - size / 2, reads = p >= size / 2; /* both of level 0 */
    y->role[at] = (unsigned char)((p ? 0 : (int)ATTN_UNFADE_BEGINS_) |
                                  (writes ? (int)ATTN_UNFADE_WRITES_ : 0) |
                                  (reads ? (int)ATTN_UNFADE_READS_ : 0));
    y->lambda[at] = attn_number_(attn_recurrent_at_(&y->c, t, i + at), y->level, t->dtype, NULL);
    if (!p) y->cut[at] = 1;
    for (int64_t r = at * x->dk; r < (at + 1) * x->dk; r++)
      y->read[r] = reads ? y->lambda[at] * y->q[r] : 0.0f;
  }
}

/* Tokens i .. i + n - 1 of the head. */
ATTN_OUTLINE_ void attn_unfade_load_(attn_unfade_chain_ *y, int64_t i, int64_t n) {
  const attn_unfade_ *x = y->x;
  const attn_recurrent_ *f = &x->f;
  attn_recurrent_chain_ *c = &y->c;
  y->n = n;
  for (int64_t at = 0; at < n; at += c->n) {
    attn_recurrent_decays_(c, i + at, (int)(n - at));
    attn_recurrent_load_(c, i + at);
    for (int j = 0; j < c->n; j++) {
      const int64_t t = at + j, row = t * x->dk;
      y->cut[t] = j == 0 && c->clears, y->gone[t] = (unsigned char)(c->ends != 0);
      y->beta[t] = c->beta[j], y->gain[t] = c->gain[j];
      if (f->counts) y->keep[t] = c->keep[j], y->top[t] = c->top[j];
      for (int64_t r = 0; r < x->dk; r++) {
        const int there = r < f->dk;
        const float k = there ? c->k[j * c->k_stride + r] : 0.0f;
        y->q[row + r] = there ? c->w.q[j * f->dk + r] : 0.0f, y->k[row + r] = k;
        if (there)
          attn_unfade_rate_(c, j, r, &y->left[row + r], &y->near[row + r]);
        else
          y->left[row + r] = y->near[row + r] = 0.0f;
        if (f->low) {
          y->a[row + r] = there ? c->w.a[j * f->dk + r] : 0.0f;
          y->b[row + r] = there ? c->b_rows[j * c->b_stride + r] : 0.0f;
        } else if (f->delta) {
          y->a[row + r] = k * y->near[row + r] + k * y->left[row + r];
          y->b[row + r] = -(c->beta[j] * k);
        }
      }
      for (int64_t r = 0; r < x->wide; r++)
        y->v[t * x->wide + r] = r < f->all ? c->v[j * c->v_stride + r] : 0.0f;
    }
  }
  attn_unfade_roles_(y, i);
}

/* The columns behind those from c0 on that are worked on together; MLSTM's n is a last one by itself. */
ATTN_FUNC_ int64_t attn_unfade_next_(const attn_unfade_ *x, int64_t c0) {
  return c0 < x->f.dv ? attn_min64_(c0 + x->part, x->f.dv) : x->f.all;
}

/* Token t of the chunk, columns c0 .. of the values; from: the state before it. */
ATTN_FUNC_ attn_fade_token_ attn_unfade_token_(const attn_unfade_chain_ *y, int64_t t, int64_t c0,
                                               const float *from) {
  const attn_unfade_ *x = y->x;
  const int reads = x->f.low || x->f.delta;
  attn_fade_token_ p;
  attn_clear_(&p, sizeof p);
  p.from = from, p.dk = x->dk, p.cols = attn_unfade_next_(x, c0) - c0, p.before = x->f.before;
  p.q = y->q + t * x->dk, p.k = y->k + t * x->dk, p.v = y->v + t * x->wide + c0;
  p.left = y->left + t * x->dk, p.near = y->near + t * x->dk;
  if (reads) p.a = y->a + t * x->dk, p.b = y->b + t * x->dk;
  p.d_o = y->o + t * x->wide + c0;
  if (y->level < 0) return p;
  if (y->role[t] & (int)ATTN_UNFADE_BEGINS_) p.a = NULL; /* of nothing */
  if (!(y->role[t] & (int)ATTN_UNFADE_WRITES_)) p.k = p.v = y->none;
  p.q = y->read + t * x->dk;
  return p;
}

/* Columns c0 .. through a chunk: from the mark before it to the one behind, or, with keep, a state before each token. */
ATTN_FUNC_ void attn_unfade_forth_(attn_unfade_chain_ *y, const float *mark, float *next,
                                   int64_t c0, int keep) {
  const attn_unfade_ *x = y->x;
  const int64_t part = x->part * x->dk;
  const size_t bytes = (size_t)((attn_unfade_next_(x, c0) - c0) * x->dk) * sizeof(float);
  const float *from = mark + c0 * x->dk;
  if (keep) memcpy(y->states, from, bytes), from = y->states;
  for (int64_t t = 0; t < y->n; t++) {
    if (keep && y->cut[t]) memset(y->states + t * part, 0, bytes);
    if (y->cut[t] || y->gone[t]) from = y->none; /* a product by 0 would leave NaN */
    attn_fade_token_ p = attn_unfade_token_(y, t, c0, from);
    p.y = y->y;
    p.to = keep ? y->states + (t + 1) * part : next + c0 * x->dk;
    attn_on_(fading, x->f.table)->fade_on(&p);
    from = p.to;
  }
}

/* A caller's state, or MLSTM's n, is added to the one that lies turned, which is 0; out: the other way. */
ATTN_OUTLINE_ void attn_unfade_turn_(const attn_unfade_chain_ *y, const attn_tensor *t,
                                     float *state, int transposed, int out) {
  for (int64_t r = 0; r < t->len; r++) {
    float *row = (float *)(void *)attn_at_(t, y->c.unit, y->c.h, r);
    for (int64_t i = 0; i < t->dim; i++) {
      const int64_t x = transposed ? r : i, c = transposed ? i : r;
      float *s = &state[x * y->x->dk + c];
      if (out)
        row[i] = attn_one_nan_(*s + (y->x->accumulate || y->level >= 0 ? row[i] : 0.0f));
      else
        *s += row[i];
    }
  }
}

/* ---- gradients of a token -------------------------------------------------------------------*/

/* Its row of an output, or null. */
ATTN_FUNC_ float *attn_unfade_row_(const attn_unfade_chain_ *y, int which, int64_t i) {
  const attn_tensor *t = &y->x->to[which];
  return t->data ? (float *)(void *)attn_recurrent_at_(&y->c, t, i) : NULL;
}

/* By a row that was divided by its length first, raw: d becomes by (d - z (z . d)) / length, z the unit row. */
ATTN_FUNC_ void attn_unfade_unnorm_(const attn_unfade_chain_ *y, const float *raw, float *d,
                                    double by) {
  const attn_recurrent_ *f = &y->x->f;
  double sum = 0, dot = 0;
  for (int64_t r = 0; f->p->l2norm_qk && r < f->dk; r++) {
    sum += (double)raw[r] * (double)raw[r];
    dot += (double)raw[r] * (double)d[r];
  }
  const double length = f->p->l2norm_qk ? sqrt(sum + 1e-6) : 1.0;
  const double along = f->p->l2norm_qk ? dot / (sum + 1e-6) : 0.0;
  for (int64_t r = 0; r < f->dk; r++)
    d[r] = f->p->l2norm_qk ? (float)(by * ((double)d[r] - (double)raw[r] * along) / length)
                           : (float)(by * (double)d[r]);
}

/* Row i of q or k as the caller gave it. */
ATTN_FUNC_ const float *attn_unfade_raw_(const attn_unfade_chain_ *y, const attn_tensor *t,
                                         int64_t i) {
  const attn_recurrent_ *f = &y->x->f;
  if (f->p->l2norm_qk)
    f->table->widen(y->room, attn_recurrent_at_(&y->c, t, i), 0, NULL, 1, f->dk, t->dtype, NULL);
  return y->room;
}

/* MAMBA2's D of token i; and what reaches dt and a_log, d_log being that of log w, d_gain of the factor of values. */
ATTN_FUNC_ double attn_unfade_step_(attn_unfade_chain_ *y, int64_t i, double d_log, double d_gain) {
  const attn_recurrent_ *f = &y->x->f;
  const attn_recurrent_params *p = f->p;
  float dt;
  double step;
  attn_recurrent_numbers_(&y->c, &dt, &f->more[ATTN_RECURRENT_DT_], i, 1);
  attn_recurrent_steps_of_(f, y->c.h, &step, &dt, 1);
  const double rate = attn_exp_f64_((double)p->a_log[y->c.h]);
  const double z = (double)dt + (p->dt_bias ? (double)p->dt_bias[y->c.h] : 0.0);
  const int held = (p->dt_min > 0.0f && step <= (double)p->dt_min) ||
                   (p->dt_max > 0.0f && step >= (double)p->dt_max);
  const double d_z = held ? 0.0 : (d_gain - rate * d_log) / (1.0 + attn_exp_f64_(-z));
  float *to = attn_unfade_row_(y, ATTN_UNFADE_DT_, i);
  if (to) *to = (float)((double)*to + d_z);
  y->dt_bias += d_z;
  y->a_log -= rate * step * d_log;
  return step;
}

/* MLSTM's maximum of log f + m before and the input gate at token t: what reaches it goes to the greater, the first of
 * equals. d_log is added to by what log f gets of it; returned: what the gate gets. */
ATTN_FUNC_ double attn_unfade_top_(attn_unfade_chain_ *y, int64_t t, double *d_log) {
  const double d = y->d_m + y->own_m[t];
  y->d_m = 0.0;
  if ((double)y->gain[t] > y->keep[t]) return d;
  if (y->keep[t] == 0.0) return 0.0; /* m is of nothing */
  if (!y->cut[t]) y->d_m = d;
  *d_log += d;
  return 0.0;
}

/* d_log of token i's log f as the gradient of the number that stands there. */
ATTN_FUNC_ double attn_unfade_forget_(const attn_unfade_chain_ *y, int64_t i, double d_log) {
  const attn_recurrent_ *f = &y->x->f;
  const attn_tensor *w = &f->more[ATTN_RECURRENT_W_];
  float g;
  if (f->p->form == ATTN_RECURRENT_LOG || d_log == 0.0) return d_log;
  attn_recurrent_numbers_(&y->c, &g, w, w->len > 1 ? i : 0, 1);
  return f->p->form == ATTN_RECURRENT_LOGIT ? d_log / (1.0 + attn_exp_f64_((double)g))
                                            : d_log / (double)g;
}

/* What the fading sent to token t's rows goes on to what the caller gave. */
ATTN_FUNC_ void attn_unfade_give_(attn_unfade_chain_ *y, int64_t i, int64_t t) {
  const attn_unfade_ *x = y->x;
  const attn_recurrent_ *f = &x->f;
  const attn_recurrent_params *p = f->p;
  const float *k = y->k + t * x->dk, *q = y->q + t * x->dk, *v = y->v + t * x->wide;
  const float *left = y->left + t * x->dk, *near = y->near + t * x->dk, *d_o = y->o + t * x->wide;
  float *d_q = y->d_q + t * x->dk, *d_k = y->d_k + t * x->dk, *d_v = y->d_v + t * x->wide;
  float *d_w = y->d_w + t * x->dk, *d_a = y->d_a + t * x->dk, *d_b = y->d_b + t * x->dk;
  const int skips = p->skip && y->level <= 0;
  const float beta = y->beta[t], skip = skips ? p->skip[y->c.h] : 0.0f;
  double own = 0, d_beta = 0, d_gain = 0, d_log = 0, d_m = 0;
  float *to;
  /* a delta rule reads w k and writes -beta k */
  for (int64_t r = 0; f->delta && r < f->dk; r++) {
    d_beta -= (double)d_b[r] * (double)k[r];
    d_w[r] += d_a[r] * k[r];
    d_k[r] += d_a[r] * left[r] + d_a[r] * near[r] - beta * d_b[r];
  }
  /* RWKV6's own key: o += (q . (u o k)) v */
  if (f->before) {
    double meets = 0;
    for (int64_t c = 0; c < f->dv; c++) own += (double)d_o[c] * (double)v[c];
    for (int64_t r = 0; r < f->dk; r++) {
      meets += (double)q[r] * (double)k[r] * y->bonus[r];
      d_q[r] += (float)(own * y->bonus[r] * (double)k[r]);
      d_k[r] += (float)(own * y->bonus[r] * (double)q[r]);
      y->u_sum[r] += own * (double)q[r] * (double)k[r];
    }
    for (int64_t c = 0; c < f->dv; c++) d_v[c] += (float)(meets * (double)d_o[c]);
  }
  if (p->rule == ATTN_RECURRENT_HGRN2) { /* its key is 1 - w */
    for (int64_t r = 0; r < f->dk; r++) y->room[r] = near[r] > 0.0f ? -left[r] : 1.0f - left[r];
    attn_unfade_unnorm_(y, y->room, d_k, 1.0);
    for (int64_t r = 0; r < f->dk; r++) d_w[r] -= d_k[r];
  }
  for (int64_t r = 0; r < f->dk; r++) {
    const double w = (double)left[r] + (double)near[r];
    d_log += w == 0.0 ? 0.0 : (double)d_w[r] * w;
  }
  if (f->counts) d_m = attn_unfade_top_(y, t, &d_log);
  if ((to = attn_unfade_row_(y, ATTN_UNFADE_W_, i)) != NULL) {
    const attn_tensor *t_w = &x->to[ATTN_UNFADE_W_];
    const int logs = p->form == ATTN_RECURRENT_LOG,
              whole = t_w->dim == 1 && f->decay != ATTN_RECURRENT_EACH_;
    double sum = f->counts ? attn_unfade_forget_(y, i, d_log) : 0.0;
    for (int64_t r = 0; !f->counts && r < f->dk; r++) {
      const double w = (double)left[r] + (double)near[r];
      const double d = !logs ? (double)d_w[r] : w == 0.0 ? 0.0 : (double)d_w[r] * w;
      if (whole)
        sum += d;
      else if (t_w->len > 1)
        to[r] = (float)((double)to[r] + d);
      else
        y->w_sum[r] += d;
    }
    if (whole && t_w->len > 1)
      *to = (float)((double)*to + sum);
    else if (whole)
      y->w_sum[0] += sum;
  }
  if ((to = attn_unfade_row_(y, ATTN_UNFADE_Q_, i)) != NULL) {
    attn_unfade_unnorm_(y, attn_unfade_raw_(y, &f->q, i), d_q, (double)f->scale);
    for (int64_t r = 0; r < f->dk; r++) to[r] += d_q[r];
  }
  if ((to = attn_unfade_row_(y, ATTN_UNFADE_K_, i)) != NULL) {
    attn_unfade_unnorm_(y, attn_unfade_raw_(y, &f->k, i), d_k, 1.0);
    for (int64_t r = 0; r < f->dk; r++) to[r] += d_k[r];
  }
  if (p->rule == ATTN_RECURRENT_RWKV7) { /* a = -r, b = r o e */
    const float *a = y->a + t * x->dk;
    f->table->widen(y->room, attn_recurrent_at_(&y->c, &f->more[ATTN_RECURRENT_B_], i), 0, NULL, 1,
                    f->dk, f->more[ATTN_RECURRENT_B_].dtype, NULL);
    for (int64_t r = 0; r < f->dk; r++) {
      const float d_r = d_b[r] * y->room[r] - d_a[r], d_e = -(d_b[r] * a[r]);
      d_a[r] = d_r, d_b[r] = d_e;
    }
  }
  if ((to = attn_unfade_row_(y, ATTN_UNFADE_A_, i)) != NULL)
    for (int64_t r = 0; r < f->dk; r++) to[r] += d_a[r];
  if ((to = attn_unfade_row_(y, ATTN_UNFADE_B_, i)) != NULL)
    for (int64_t r = 0; r < f->dk; r++) to[r] += d_b[r];
  /* values, their factor and what skips the state; v is the factor's product, so the row is read again */
  const int gains = f->delta || f->counts || p->rule == ATTN_RECURRENT_MAMBA2;
  const float gain = f->delta ? beta : f->counts ? y->gain[t] : 1.0f;
  double step = 1.0;
  if (gains || skips) {
    f->table->widen(y->room, attn_recurrent_at_(&y->c, &f->v, i), 0, NULL, 1, f->dv, f->v.dtype,
                    NULL);
    for (int64_t c = 0; c < f->dv; c++) d_gain += (double)d_v[c] * (double)y->room[c];
    for (int64_t c = 0; skips && c < f->dv; c++) y->skip += (double)d_o[c] * (double)y->room[c];
  }
  if ((to = attn_unfade_row_(y, ATTN_UNFADE_I_, i)) != NULL)
    *to = (float)((double)*to + (d_gain + (double)d_v[f->dv]) * (double)gain + d_m);
  if (p->rule == ATTN_RECURRENT_MAMBA2) step = attn_unfade_step_(y, i, d_log, d_gain);
  if ((to = attn_unfade_row_(y, ATTN_UNFADE_V_, i)) != NULL)
    for (int64_t c = 0; c < f->dv; c++)
      to[c] = (float)((double)to[c] + (double)d_v[c] * (double)gain * step +
                      (double)skip * (double)d_o[c]);
  if ((to = attn_unfade_row_(y, ATTN_UNFADE_BETA_, i)) != NULL)
    *to = (float)((double)*to + d_beta + d_gain);
}

/* Columns c0 .. back through the chunk, whose states are there. */
ATTN_FUNC_ void attn_unfade_back_(attn_unfade_chain_ *y, int64_t c0) {
  const attn_unfade_ *x = y->x;
  float *d = y->d + c0 * x->dk;
  for (int64_t t = y->n - 1; t >= 0; t--) {
    attn_fade_token_ p = attn_unfade_token_(y, t, c0, y->states + t * x->part * x->dk);
    p.d = d, p.y = y->y, p.d_y = y->d_y;
    p.d_v = y->d_v + t * x->wide + c0, p.d_q = y->d_q + t * x->dk, p.d_k = y->d_k + t * x->dk;
    p.d_w = y->d_w + t * x->dk, p.d_a = y->d_a + t * x->dk, p.d_b = y->d_b + t * x->dk;
    attn_on_(fading, x->f.table)->fade_off(&p);
    if (!y->cut[t] && !y->gone[t]) continue;
    memset(d, 0, (size_t)(p.cols * x->dk) * sizeof(float));
    for (int64_t c = 0; !y->cut[t] && c < p.cols; c++)
      for (int64_t r = 0; r < x->dk; r++) d[c * x->dk + r] = p.q[r] * p.d_o[c];
  }
}

/* MLSTM's quotient: columns of d_o become those of what queries read, of the chunk whose n begins at mark; den: by what
 * o was divided, its sign that of q . n where that counts, else den is behind it. */
ATTN_FUNC_ void attn_unfade_divide_(attn_unfade_chain_ *y, const float *mark, double *den,
                                    signed char *sign) {
  const attn_unfade_ *x = y->x;
  attn_unfade_forth_(y, mark, NULL, x->f.dv, 1);
  for (int64_t t = 0; t < y->n; t++) {
    /* from the state before: that behind is cleared where the next token cuts */
    const float *n = y->states + t * x->part * x->dk;
    const int64_t row = t * x->dk;
    const double top = (double)y->top[t], gain = (double)y->gain[t];
    double size = 0;
    for (int64_t r = 0; r < x->f.dk; r++)
      size += (double)y->q[row + r] *
              (((double)y->left[row + r] + (double)y->near[row + r]) * (double)n[r] +
               (double)y->k[row + r] * gain);
    sign[t] = (signed char)(fabs(size) < top ? 0 : size < 0 ? -1 : 1);
    den[t] = (sign[t] ? fabs(size) : top) + (double)x->f.eps;
    float *o = y->o + t * x->wide;
    for (int64_t c = 0; c < x->f.dv; c++) o[c] = (float)((double)o[c] / den[t]);
  }
}

/* What the quotient sends to n's column and to m; q . d_q is d_o . o while d_q is of the values alone. */
ATTN_FUNC_ void attn_unfade_quotient_(attn_unfade_chain_ *y, const double *den,
                                      const signed char *sign) {
  const attn_unfade_ *x = y->x;
  for (int64_t t = 0; t < y->n; t++) {
    const float *q = y->q + t * x->dk, *d_q = y->d_q + t * x->dk;
    double dot = 0;
    for (int64_t r = 0; r < x->f.dk; r++) dot += (double)q[r] * (double)d_q[r];
    y->o[t * x->wide + x->f.dv] = sign[t] ? (float)(-sign[t] * dot / den[t]) : 0.0f;
    y->own_m[t] = -dot * (double)x->f.eps / den[t];
  }
}

/* The sum of products of a state and what reaches it, of columns c0 .. c1 - 1; 0 meets nothing. */
ATTN_FUNC_ double attn_unfade_meets_(const attn_unfade_chain_ *y, const float *state, int64_t c0,
                                     int64_t c1) {
  const float *d = y->d + c0 * y->x->dk;
  double sum = 0;
  for (int64_t e = 0; e < (c1 - c0) * y->x->dk; e++)
    sum += d[e] == 0.0f ? 0.0 : (double)d[e] * (double)state[e];
  return sum;
}

/* Lambda's gradients, and those of queries by the level at hand. */
ATTN_FUNC_ void attn_unfade_level_(attn_unfade_chain_ *y, int64_t i) {
  const attn_unfade_ *x = y->x;
  for (int64_t t = 0; y->level >= 0 && t < y->n; t++) {
    const int64_t row = t * x->dk;
    const int reads = y->role[t] & (int)ATTN_UNFADE_READS_;
    float *to = reads ? attn_unfade_row_(y, ATTN_UNFADE_LAMBDA_, i + t) : NULL;
    double dot = 0;
    for (int64_t r = row; r < row + x->f.dk; r++) {
      dot += (double)y->q[r] * (double)y->d_q[r];
      y->d_q[r] = reads ? y->lambda[t] * y->d_q[r] : 0.0f;
    }
    if (to) to[y->level] = (float)((double)to[y->level] + dot);
  }
}

/* A chunk that is loaded, tokens from i on; the last of a sequence has what reaches the caller's state. */
ATTN_FUNC_ void attn_unfade_chunk_(attn_unfade_chain_ *y, int64_t i, const float *mark, int last) {
  const attn_unfade_ *x = y->x;
  const size_t rows = (size_t)(y->n * x->dk) * sizeof(float);
  float *const sums[] = {y->d_q, y->d_k, y->d_w, y->d_a, y->d_b};
  for (int n = 0; n < 5; n++) memset(sums[n], 0, rows);
  x->f.table->widen(y->o, attn_at_(&x->d_o, y->c.b, y->c.h, i), x->d_o.stride_len, NULL, y->n,
                    x->f.dv, x->d_o.dtype, NULL);
  for (int64_t t = y->n; x->wide != x->f.dv && t-- > 0;) /* rows so far apart as those of v */
    memmove(y->o + t * x->wide, y->o + t * x->f.dv, (size_t)x->f.dv * sizeof(float));
  double den[ATTN_RECURRENT_CHUNK_];
  signed char sign[ATTN_RECURRENT_CHUNK_];
  if (x->f.counts) attn_unfade_divide_(y, mark, den, sign);
  for (int64_t c0 = 0, c1; c0 < x->f.all; c0 = c1) {
    c1 = attn_unfade_next_(x, c0);
    if (c0 == x->f.dv) attn_unfade_quotient_(y, den, sign);
    attn_unfade_forth_(y, mark, NULL, c0, 1);
    if (x->f.counts && last) /* a state is in units of e^m */
      y->d_m -= attn_unfade_meets_(y, y->states + y->n * x->part * x->dk, c0, c1);
    attn_unfade_back_(y, c0);
  }
  attn_unfade_level_(y, i);
  for (int64_t t = y->n - 1; t >= 0; t--) attn_unfade_give_(y, i + t, t);
  for (int o = 0; o < (int)ATTN_UNFADE_OUT_; o++)
    for (int64_t t = 0; x->to[o].data && o != ATTN_UNFADE_U_ && t < y->n; t++)
      attn_row_one_nan_(x->f.table, attn_unfade_row_(y, o, i + t), x->to[o].dim);
}

/* ---- a sequence -----------------------------------------------------------------------------*/

/* Numbers that all tokens of a sequence share. */
ATTN_FUNC_ void attn_unfade_sums_(attn_unfade_chain_ *y) {
  const attn_tensor *w = &y->x->to[ATTN_UNFADE_W_], *u = &y->x->to[ATTN_UNFADE_U_];
  float *row = w->data && w->len == 1 ? attn_unfade_row_(y, ATTN_UNFADE_W_, 0) : NULL;
  for (int64_t r = 0; row && r < w->dim; r++)
    row[r] = attn_one_nan_((float)((double)row[r] + y->w_sum[r]));
  row = u->data ? (float *)(void *)attn_at_(u, 0, attn_recurrent_head_(&y->x->f, u, y->c.h), 0)
                : NULL;
  for (int64_t r = 0; row && r < u->dim; r++)
    row[r] = attn_one_nan_((float)((double)row[r] + y->u_sum[r]));
}

/* MLSTM's m of the sequence and head. */
ATTN_FUNC_ float *attn_unfade_m_(const attn_unfade_chain_ *y, const attn_tensor *t) {
  return (float *)(void *)attn_at_(t, y->c.unit, y->c.h, 0);
}

/* The rows of a caller's states that are those of a level. */
ATTN_FUNC_ attn_tensor attn_unfade_slice_(const attn_unfade_ *x, const attn_tensor *t,
                                          int64_t level) {
  attn_tensor y = *t;
  if (!x->f.levels || !t->data) return y;
  y.len = x->f.p->state_transposed ? x->f.dv : x->f.dk;
  y.data = attn_at_(t, 0, 0, level * y.len);
  return y;
}

/* Whether the state that the caller had of level `of` is a part of what the first token finds in the level at hand: those of
 * the token before it that are in the same block, which counts for nothing where the first token begins one. */
ATTN_FUNC_ int attn_unfade_begins_(const attn_unfade_chain_ *y, int64_t of) {
  const int64_t last = y->position - 1;
  if (y->c.t1 == y->c.t0) return of == y->level; /* passes through */
  if (last < 0) return 0;
  if (y->level > 0 && last >> (y->level - 1) & 1) return of == y->level;
  return of < y->level && (of == 0 || (last >> (of - 1) & 1));
}

/* The caller's states of a level, or of the only one, and what is at hand. */
ATTN_OUTLINE_ void attn_unfade_begin_(const attn_unfade_chain_ *y, const attn_tensor *t,
                                      float *state, int out) {
  const attn_unfade_ *x = y->x;
  const int64_t most = y->level < 0 ? 0 : y->level;
  for (int64_t of = y->c.t1 == y->c.t0 ? most : 0; t->data && of <= most; of++) {
    const attn_tensor some = attn_unfade_slice_(x, t, of);
    if (y->level < 0 || attn_unfade_begins_(y, of))
      attn_unfade_turn_(y, &some, state, x->f.p->state_transposed, out);
  }
}

/* The level at hand, or the only one, of a sequence there and back. */
ATTN_FUNC_ void attn_unfade_run_(attn_unfade_chain_ *y) {
  const attn_unfade_ *x = y->x;
  const attn_recurrent_ *f = &x->f;
  attn_recurrent_chain_ *c = &y->c;
  const int64_t state = x->dk * x->wide, step = ATTN_RECURRENT_CHUNK_;
  const int64_t n_at = f->dv * x->dk, last = y->position + c->t1 - c->t0 - 1;
  const attn_tensor end = attn_unfade_slice_(x, &x->d_end, y->level);
  memset(y->d, 0, (size_t)state * sizeof(float));
  memset(y->marks, 0, (size_t)state * sizeof(float));
  /* a level without tokens of its own is not handed on */
  if (end.data && (y->level <= 0 || c->t1 == c->t0 || (last >> (y->level - 1) & 1)))
    attn_unfade_turn_(y, &end, y->d, f->p->state_transposed, 0);
  if (x->d_n[1].data) attn_unfade_turn_(y, &x->d_n[1], y->d + n_at, 1, 0);
  attn_unfade_begin_(y, &f->state[0], y->marks, 0);
  if (f->n[0].data) attn_unfade_turn_(y, &f->n[0], y->marks + n_at, 1, 0);
  y->d_m = x->d_m[1].data ? (double)*attn_unfade_m_(y, &x->d_m[1]) : 0.0;
  c->m = f->m[0].data ? (double)*attn_unfade_m_(y, &f->m[0]) : 0.0;
  const int64_t chunks = attn_runs_of_(c->t1 - c->t0, step);
  for (int64_t n = 0; n + 1 < chunks; n++) {
    y->m[n] = c->m;
    attn_unfade_load_(y, c->t0 + n * step, step);
    for (int64_t c0 = 0; c0 < f->all; c0 = attn_unfade_next_(x, c0))
      attn_unfade_forth_(y, y->marks + n * state, y->marks + (n + 1) * state, c0, 0);
  }
  if (chunks > 0) y->m[chunks - 1] = c->m;
  for (int64_t n = chunks; n-- > 0;) {
    const int64_t i = c->t0 + n * step;
    c->m = y->m[n];
    attn_unfade_load_(y, i, attn_min64_(step, c->t1 - i));
    attn_unfade_chunk_(y, i, y->marks + n * state, n + 1 == chunks);
  }
  attn_unfade_begin_(y, &x->d_begin, y->d, 1);
  if (x->d_n[0].data) attn_unfade_turn_(y, &x->d_n[0], y->d + n_at, 1, 1);
  if (x->d_m[0].data) {
    const double units = chunks > 0 ? attn_unfade_meets_(y, y->marks, 0, f->all) : 0.0;
    attn_terms_put_(attn_unfade_m_(y, &x->d_m[0]), y->d_m + units, x->accumulate);
  }
}

/* Sequence `unit` of head h. */
ATTN_FUNC_ void attn_unfade_sequence_(attn_unfade_chain_ *y, int64_t unit, int64_t h) {
  const attn_unfade_ *x = y->x;
  const attn_recurrent_ *f = &x->f;
  attn_recurrent_chain_ *c = &y->c;
  const attn_tensor *u = &f->more[ATTN_RECURRENT_U_];
  c->unit = unit, c->h = h, c->b = f->p->cu_seqlens ? 0 : unit;
  c->t0 = f->p->cu_seqlens ? f->p->cu_seqlens[unit] : 0;
  c->t1 = f->p->cu_seqlens ? f->p->cu_seqlens[unit + 1] : f->p->len ? f->p->len[c->b] : f->len;
  for (int64_t r = 0; r < x->dk; r++) y->w_sum[r] = y->u_sum[r] = y->bonus[r] = 0;
  if (f->before) {
    f->table->widen(y->room, attn_at_(u, 0, attn_recurrent_head_(f, u, h), 0), 0, NULL, 1, f->dk,
                    u->dtype, NULL);
    for (int64_t r = 0; r < f->dk; r++) y->bonus[r] = (double)y->room[r];
  }
  y->level = f->levels ? 0 : -1, y->position = f->p->position ? f->p->position[unit] : 0;
  if (f->levels && !x->accumulate) attn_zero_rows_(&x->d_begin, unit, h, 1, 0);
  const int64_t levels = !f->levels       ? 1
                         : c->t1 == c->t0 ? f->levels
                                          : attn_level_of_(y->position + c->t1 - c->t0 - 1) + 1;
  for (int64_t n = 0; n < levels; n++, y->level++) attn_unfade_run_(y);
  attn_unfade_sums_(y);
}

/* A group of heads that share what they read with no others, of one sequence or of all. */
ATTN_FUNC_ void attn_unfade_item_(void *job, int worker, int64_t index) {
  const attn_unfade_ *x = (const attn_unfade_ *)job;
  const attn_recurrent_ *f = &x->f;
  const int64_t group = index / x->units;
  attn_unfade_chain_ y;
  y.x = x;
  attn_clear_(&y.c, sizeof y.c);
  y.c.a = f, y.c.cols = f->all;
  attn_recurrent_cut_(f, worker, &y.c.w);
  attn_unfade_cut_(x, f->own + worker * f->own_bytes + x->at, &y);
  memset(y.none, 0, (size_t)(x->dk * x->part) * sizeof(float));
  for (int64_t h = group * x->heads; h < (group + 1) * x->heads; h++) {
    y.a_log = y.dt_bias = y.skip = 0;
    if (x->units == f->sequences)
      attn_unfade_sequence_(&y, index % x->units, h);
    else
      for (int64_t n = 0; n < f->sequences; n++) attn_unfade_sequence_(&y, n, h);
    attn_terms_put_(x->a_log ? &x->a_log[h] : NULL, y.a_log, x->accumulate);
    attn_terms_put_(x->dt_bias ? &x->dt_bias[h] : NULL, y.dt_bias, x->accumulate);
    attn_terms_put_(x->skip ? &x->skip[h] : NULL, y.skip, x->accumulate);
  }
}
