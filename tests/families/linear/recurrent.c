/* tests/families/linear/recurrent.c owns the scene of attn_recurrent and its recurrences in float64. */

#include "recurrent.h"

recurrent_shape recurrent_plain(attn_recurrent_rule rule, int64_t heads, int64_t len, int64_t dk,
                                int64_t dv) {
  recurrent_shape x;
  memset(&x, 0, sizeof x);
  x.rule = rule, x.batch = 1, x.len = len, x.dk = dk, x.dv = dv;
  x.q_heads = x.k_heads = x.v_heads = x.more_heads = heads;
  x.slow = 1.0;
  switch (rule) {
    case ATTN_RECURRENT_RETENTION:
    case ATTN_RECURRENT_LIGHTNING:
    case ATTN_RECURRENT_MAMBA2:
    case ATTN_RECURRENT_DELTA: x.decay = 0; break;
    case ATTN_RECURRENT_GATED_DELTA:
    case ATTN_RECURRENT_MLSTM: x.decay = 2; break;
    default: x.decay = 3;
  }
  return x;
}

int64_t recurrent_heads(const recurrent_scene *s) {
  int64_t h = s->q.heads > s->v.heads ? s->q.heads : s->v.heads;
  return s->k.data && s->k.heads > h ? s->k.heads : h;
}

static attn_status call(void *at, attn_ctx *ctx) {
  recurrent_scene *s = at;
  return attn_recurrent(s->o, s->q, s->k, s->v, &s->p, ctx);
}
static size_t ask(void *at, const attn_ctx *ctx) {
  recurrent_scene *s = at;
  return attn_recurrent_workspace(s->o, s->q, s->k, s->v, &s->p, ctx);
}

/* Logs of decays, or factors. */
static attn_tensor decays(const recurrent_shape *x, test_rng *rng) {
  const int factor = x->form == ATTN_RECURRENT_FACTOR;
  attn_tensor t = test_tensor(x->type, x->layout > TEST_NEGATIVE ? TEST_PADDED : x->layout,
                              x->shared ? 1 : x->batch, x->more_heads, x->decay == 1 ? 1 : x->len,
                              x->decay == 3 ? x->dk : 1);
  for (int64_t b = 0; b < t.batch; b++)
    for (int64_t h = 0; h < t.heads; h++)
      for (int64_t i = 0; i < t.len; i++)
        for (int64_t c = 0; c < t.dim; c++) {
          const int64_t pick = test_range(rng, 0, 60);
          const double u = -x->slow * (double)test_range(rng, 0, 1024) / 1024;
          const double g = pick == 0 ? -(double)INFINITY : pick < 4 ? 0 : pick < 7 ? 80 * u : u;
          if (x->form == ATTN_RECURRENT_LOGIT)
            oracle_set(&t, b, h, i, c, 3 * test_normal(rng));
          else
            oracle_set(&t, b, h, i, c, factor ? exp(g) : g);
        }
  return t;
}

/* Rows of one length, so that delta rules contract. */
static void unit_rows(attn_tensor t) {
  for (int64_t b = 0; b < t.batch; b++)
    for (int64_t h = 0; h < t.heads; h++)
      for (int64_t i = 0; i < t.len; i++) {
        double sum = 0;
        for (int64_t c = 0; c < t.dim; c++)
          sum += oracle_get(&t, b, h, i, c) * oracle_get(&t, b, h, i, c);
        for (int64_t c = 0; c < t.dim && sum > 0; c++)
          oracle_set(&t, b, h, i, c, oracle_get(&t, b, h, i, c) / sqrt(sum));
      }
}

static attn_tensor uniform(const recurrent_shape *x, int64_t dim, double low, double high,
                           test_rng *rng) {
  attn_tensor t =
      test_tensor(x->type, TEST_PADDED, x->shared ? 1 : x->batch, x->more_heads, x->len, dim);
  for (int64_t b = 0; b < t.batch; b++)
    for (int64_t h = 0; h < t.heads; h++)
      for (int64_t i = 0; i < t.len; i++)
        for (int64_t c = 0; c < dim; c++)
          oracle_set(&t, b, h, i, c, low + (high - low) * (double)test_range(rng, 0, 256) / 256);
  return t;
}

recurrent_scene *recurrent_build(const recurrent_shape *x, test_rng *rng) {
  recurrent_scene *s = test_mem(sizeof *s);
  memset(s, 0, sizeof *s);
  attn_recurrent_params *p = &s->p;
  const int delta = x->rule == ATTN_RECURRENT_DELTA || x->rule == ATTN_RECURRENT_GATED_DELTA ||
                    x->rule == ATTN_RECURRENT_KDA;
  p->rule = x->rule, p->form = x->decay ? x->form : ATTN_RECURRENT_LOG;
  s->q = drawn(x->type, x->layout, x->batch, x->q_heads, x->len, x->dk, 1, rng);
  if (x->rule == ATTN_RECURRENT_HGRN2)
    s->k = absent();
  else
    s->k = drawn(x->type, x->layout, x->batch, x->k_heads, x->len, x->dk, 1, rng);
  if (delta && x->layout < TEST_SHARED) unit_rows(s->k);
  if (delta && x->layout >= TEST_SHARED) p->l2norm_qk = 1;
  s->v = drawn(x->type, x->layout, x->batch, x->v_heads, x->len, x->dv, 1, rng);
  for (int64_t b = 0; x->mean != 0 && b < s->v.batch; b++)
    for (int64_t h = 0; h < s->v.heads; h++)
      for (int64_t i = 0; i < s->v.len; i++)
        for (int64_t c = 0; c < x->dv; c++)
          oracle_set(&s->v, b, h, i, c, oracle_get(&s->v, b, h, i, c) + x->mean);
  const int64_t heads = recurrent_heads(s), n = x->sequences ? x->sequences : x->batch;
  if (x->levels) {
    int64_t *position = test_mem((size_t)n * sizeof *position);
    p->lambda = uniform(x, x->levels, -1, 2, rng);
    for (int64_t i = 0; i < n; i++) position[i] = i % 2 ? x->position / 2 : x->position;
    p->position = position;
  }
  if (x->decay) p->decay = decays(x, rng);
  if (delta) p->beta = uniform(x, 1, 0, 1.5, rng);
  if (x->rule == ATTN_RECURRENT_RWKV6)
    p->bonus = drawn(x->type, TEST_BHTD, 1, x->more_heads, 1, x->dk, 1, rng);
  if (x->rule == ATTN_RECURRENT_RWKV7 || x->rule == ATTN_RECURRENT_DPLR) {
    p->a =
        drawn(x->type, TEST_PADDED, x->shared ? 1 : x->batch, x->more_heads, x->len, x->dk, 1, rng);
    unit_rows(p->a);
    p->b = uniform(x, x->dk, x->rule == ATTN_RECURRENT_DPLR ? -0.3 : 0,
                   x->rule == ATTN_RECURRENT_DPLR ? 0.3 : 1, rng);
    if (x->rule == ATTN_RECURRENT_DPLR) /* b = -rate a is a contraction */
      for (int64_t b = 0; b < p->a.batch; b++)
        for (int64_t h = 0; h < p->a.heads; h++)
          for (int64_t i = 0; i < p->a.len; i++)
            for (int64_t c = 0; c < x->dk; c++)
              oracle_set(&p->b, b, h, i, c, -0.7 * oracle_get(&p->a, b, h, i, c));
  }
  if (x->rule == ATTN_RECURRENT_MAMBA2) {
    float *a_log = test_floats(heads, 0.7, rng), *bias = test_floats(heads, 1, rng);
    p->dt = uniform(x, 1, -4, 1, rng);
    p->a_log = a_log, p->dt_bias = bias, p->skip = test_floats(heads, 1, rng);
    if (x->len % 2) p->dt_min = 0.125f, p->dt_max = 0.5f;
  }
  if (x->rule == ATTN_RECURRENT_LIGHTNING) p->layers = 4, p->layer = x->len % 4;
  if (x->rule == ATTN_RECURRENT_MLSTM) p->gate = uniform(x, 1, -6, 6, rng);
  s->o = output(x->o_type, x->layout > TEST_NEGATIVE ? TEST_PADDED : x->layout, x->batch, heads,
                x->len, x->dv, &s->does.block[0]);
  s->does.out[0] = &s->o;
  if (x->keep) {
    const int64_t rows = (x->levels ? x->levels : 1) * x->dk, cols = x->dv;
    p->initial_state = drawn(ATTN_F32, TEST_PADDED, n, heads, rows, cols, 1, rng);
    p->final_state = output(ATTN_F32, TEST_PADDED, n, heads, rows, cols, &s->does.block[1]);
    s->does.out[1] = &p->final_state;
    if (x->rule == ATTN_RECURRENT_MLSTM) {
      p->initial_n = drawn(ATTN_F32, TEST_PADDED, n, heads, 1, x->dk, 1, rng);
      p->initial_m = drawn(ATTN_F32, TEST_PADDED, n, heads, 1, 1, 1, rng);
      p->final_n = output(ATTN_F32, TEST_PADDED, n, heads, 1, x->dk, &s->does.block[2]);
      p->final_m = output(ATTN_F32, TEST_PADDED, n, heads, 1, 1, &s->does.block[3]);
      s->does.out[2] = &p->final_n, s->does.out[3] = &p->final_m;
    }
  }
  s->does.call = call, s->does.ask = ask, s->does.scene = s;
  return s;
}

/* ---- the recurrence -------------------------------------------------------------------------*/

/* Element of an argument for head h of all, token i: what is broadcast is read there. */
static double of(const attn_tensor *t, int64_t heads, int64_t b, int64_t h, int64_t i, int64_t c) {
  return oracle_get(t, t->batch > 1 ? b : 0, h * t->heads / heads, t->len > 1 ? i : 0,
                    t->dim > 1 ? c : 0);
}

static double log_sigmoid(double x) { return x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x)); }

/* w of channel c. */
static double left(const recurrent_scene *s, int64_t heads, int64_t b, int64_t h, int64_t i,
                   int64_t c) {
  const attn_recurrent_params *p = &s->p;
  if (p->rule == ATTN_RECURRENT_MAMBA2) {
    double d = log1p(exp(of(&p->dt, heads, b, h, i, 0) + (p->dt_bias ? (double)p->dt_bias[h] : 0)));
    d = fmax(d, (double)p->dt_min);
    if (p->dt_max > 0) d = fmin(d, (double)p->dt_max);
    return exp(-exp((double)p->a_log[h]) * d);
  }
  if (!p->decay.data && p->rule == ATTN_RECURRENT_RETENTION) return 1 - pow(2, -5 - (double)h);
  if (!p->decay.data && p->rule == ATTN_RECURRENT_LIGHTNING)
    return exp(-pow(2, -8.0 * (double)(h + 1) / (double)heads) *
               (1 - (double)p->layer / ((double)(p->layers ? p->layers : 1) - 1 + 1e-5) + 1e-5));
  if (!p->decay.data) return 1;
  const double x = of(&p->decay, heads, b, h, i, c);
  return p->form == ATTN_RECURRENT_LOG      ? exp(x)
         : p->form == ATTN_RECURRENT_FACTOR ? x
                                            : 1 / (1 + exp(-x));
}

static void normed(double *x, int64_t n) {
  double sum = 0;
  for (int64_t c = 0; c < n; c++) sum += x[c] * x[c];
  for (int64_t c = 0; c < n; c++) x[c] /= sqrt(sum + 1e-6);
}

/* What a token does to each level, after those below its trailing zeros have become one. */
static recurrent_truth levels_oracle(const recurrent_scene *s) {
  const attn_recurrent_params *p = &s->p;
  const int64_t heads = recurrent_heads(s), dk = s->q.dim, dv = s->v.dim, t_all = s->q.len;
  const int64_t units = p->cu_seqlens ? p->sequences : s->q.batch, levels = p->lambda.dim;
  const double scale = p->scale != 0 || signbit(p->scale) ? (double)p->scale : 1;
  const int delta = p->rule == ATTN_RECURRENT_DELTA || p->rule == ATTN_RECURRENT_GATED_DELTA ||
                    p->rule == ATTN_RECURRENT_KDA;
  recurrent_truth y;
  y.o = cube_of(s->q.batch, heads, t_all, dv), y.size = cube_of(s->q.batch, heads, t_all, dv);
  y.s = cube_of(units, heads, levels * dk, dv), y.n = cube_of(units, heads, 1, dk),
  y.m = cube_of(units, heads, 1, 1);
  for (int64_t i = 0; i < s->q.batch * heads * t_all * dv; i++) y.o.data[i] = y.size.data[i] = 0;
  for (int64_t unit = 0; unit < units; unit++)
    for (int64_t h = 0; h < heads; h++) {
      const int64_t b = p->cu_seqlens ? 0 : unit, p0 = p->position ? p->position[unit] : 0;
      const int64_t t0 = p->cu_seqlens ? p->cu_seqlens[unit] : 0;
      const int64_t t1 = p->cu_seqlens ? p->cu_seqlens[unit + 1] : p->len ? p->len[b] : t_all;
      double *st = cube_at(&y.s, unit, h, 0);
      for (int64_t n = 0; n < levels * dk * dv; n++) {
        const int64_t r = n / dv, c = n % dv, level = r / dk;
        const int has = p0 > 0 && (level == 0 || (level < 60 && (p0 - 1) >> (level - 1) & 1));
        st[n] = p->initial_state.data && (has || t1 == t0)
                    ? p->state_transposed
                          ? oracle_get(&p->initial_state, unit, h, level * dv + c, r % dk)
                          : oracle_get(&p->initial_state, unit, h, r, c)
                    : 0;
      }
      for (int64_t i = t0; i < t1; i++) {
        const int64_t t = p0 + i - t0;
        double *o = cube_at(&y.o, b, h, i), *size = cube_at(&y.size, b, h, i);
        double q[80], k[80], w[80], norm[2] = {1e-6, 1e-6}, step = 1;
        int64_t zeros = 0;
        while (t > 0 && !(t >> zeros & 1)) zeros++;
        for (int64_t n = 0; t > 0 && n < dk * dv; n++)
          for (int64_t level = 0; level <= zeros; level++)
            st[(zeros + 1) * dk * dv + n] += st[level * dk * dv + n], st[level * dk * dv + n] = 0;
        for (int64_t n = 0; p->reset && p->reset[b * t_all + i] && n < levels * dk * dv; n++)
          st[n] = 0;
        for (int64_t r = 0; r < dk; r++) {
          q[r] = of(&s->q, heads, b, h, i, r);
          k[r] = p->rule != ATTN_RECURRENT_HGRN2 ? of(&s->k, heads, b, h, i, r)
                 : p->form == ATTN_RECURRENT_LOG ? -expm1(of(&p->decay, heads, b, h, i, r))
                                                 : 1 - left(s, heads, b, h, i, r);
          w[r] = left(s, heads, b, h, i, r);
          norm[0] += q[r] * q[r], norm[1] += k[r] * k[r];
        }
        for (int64_t r = 0; p->l2norm_qk && r < dk; r++)
          q[r] /= sqrt(norm[0]), k[r] /= sqrt(norm[1]);
        if (delta && p->beta.data) step = of(&p->beta, heads, b, h, i, 0);
        if (p->rule == ATTN_RECURRENT_MAMBA2) {
          step =
              log1p(exp(of(&p->dt, heads, b, h, i, 0) + (p->dt_bias ? (double)p->dt_bias[h] : 0)));
          step = fmax(step, (double)p->dt_min);
          if (p->dt_max > 0) step = fmin(step, (double)p->dt_max);
        }
        for (int64_t level = 0; level < levels; level++)
          for (int64_t c = 0; c < dv; c++) {
            const double by = of(&p->lambda, heads, b, h, i, level);
            double *at = st + level * dk * dv + c, read = 0;
            for (int64_t r = 0; r < dk; r++) {
              if (delta) read += k[r] * w[r] * at[r * dv];
              if (p->a.data) read += of(&p->a, heads, b, h, i, r) * at[r * dv];
            }
            for (int64_t r = 0; r < dk; r++) {
              double more = level ? 0 : k[r] * step * of(&s->v, heads, b, h, i, c);
              if (delta) more -= k[r] * step * read;
              if (p->rule == ATTN_RECURRENT_RWKV7)
                more -= of(&p->a, heads, b, h, i, r) * of(&p->b, heads, b, h, i, r) * read;
              else if (p->a.data)
                more += of(&p->b, heads, b, h, i, r) * read;
              at[r * dv] = w[r] * at[r * dv] + more;
              o[c] += scale * by * q[r] * at[r * dv];
              size[c] += fabs(scale * by * q[r]) * (fabs(at[r * dv]) + fabs(more));
            }
          }
        for (int64_t c = 0; p->skip && c < dv; c++) {
          const double x = (double)p->skip[h] * of(&s->v, heads, b, h, i, c);
          o[c] += x, size[c] += fabs(x);
        }
      }
    }
  return y;
}

recurrent_truth recurrent_oracle(const recurrent_scene *s) {
  const attn_recurrent_params *p = &s->p;
  if (p->lambda.data) return levels_oracle(s);
  const int64_t heads = recurrent_heads(s), dk = s->q.dim, dv = s->v.dim, t_all = s->q.len;
  const int64_t units = p->cu_seqlens ? p->sequences : s->q.batch;
  const int mlstm = p->rule == ATTN_RECURRENT_MLSTM;
  const int plain = p->rule == ATTN_RECURRENT_LIGHTNING || p->rule == ATTN_RECURRENT_MAMBA2 ||
                    p->rule == ATTN_RECURRENT_RWKV6 || p->rule == ATTN_RECURRENT_RWKV7;
  const double scale = p->scale != 0 || signbit(p->scale) || !plain ? scale_of(p->scale, dk) : 1;
  const double eps = p->eps != 0 || signbit(p->eps) ? (double)p->eps : 1e-6;
  recurrent_truth y;
  y.o = cube_of(s->q.batch, heads, t_all, dv), y.size = cube_of(s->q.batch, heads, t_all, dv);
  y.s = cube_of(units, heads, dk, dv), y.n = cube_of(units, heads, 1, dk),
  y.m = cube_of(units, heads, 1, 1);
  for (int64_t i = 0; i < s->q.batch * heads * t_all * dv; i++) y.o.data[i] = y.size.data[i] = 0;
  double *q = test_mem((size_t)dk * 8), *k = test_mem((size_t)dk * 8),
         *v = test_mem((size_t)dv * 8);
  double *w = test_mem((size_t)dk * 8), *mine = test_mem((size_t)dv * 8);
  for (int64_t unit = 0; unit < units; unit++)
    for (int64_t h = 0; h < heads; h++) {
      const int64_t b = p->cu_seqlens ? 0 : unit;
      const int64_t t0 = p->cu_seqlens ? p->cu_seqlens[unit] : 0;
      const int64_t t1 = p->cu_seqlens ? p->cu_seqlens[unit + 1] : p->len ? p->len[b] : t_all;
      double *st = cube_at(&y.s, unit, h, 0), *n = cube_at(&y.n, unit, h, 0),
             *m = cube_at(&y.m, unit, h, 0);
      for (int64_t r = 0; r < dk; r++) {
        for (int64_t c = 0; c < dv; c++)
          st[r * dv + c] = !p->initial_state.data ? 0
                           : p->state_transposed  ? oracle_get(&p->initial_state, unit, h, c, r)
                                                  : oracle_get(&p->initial_state, unit, h, r, c);
        n[r] = p->initial_n.data ? oracle_get(&p->initial_n, unit, h, 0, r) : 0;
      }
      *m = p->initial_m.data ? oracle_get(&p->initial_m, unit, h, 0, 0) : 0;
      for (int64_t i = t0; i < t1; i++) {
        double *o = cube_at(&y.o, b, h, i), *size = cube_at(&y.size, b, h, i), den = 1, blur = 0;
        if (p->reset && p->reset[b * t_all + i]) {
          for (int64_t r = 0; r < dk * dv; r++) st[r] = 0;
          for (int64_t r = 0; r < dk; r++) n[r] = 0;
          *m = 0;
        }
        for (int64_t c = 0; c < dk; c++) {
          w[c] = left(s, heads, b, h, i, c);
          q[c] = of(&s->q, heads, b, h, i, c);
          if (p->rule == ATTN_RECURRENT_HGRN2)
            k[c] = 1 - w[c];
          else
            k[c] = of(&s->k, heads, b, h, i, c);
        }
        if (p->rule == ATTN_RECURRENT_HGRN2 && p->form == ATTN_RECURRENT_LOG)
          for (int64_t c = 0; c < dk; c++) k[c] = -expm1(of(&p->decay, heads, b, h, i, c));
        for (int64_t c = 0; c < dv; c++) v[c] = of(&s->v, heads, b, h, i, c);
        if (p->l2norm_qk) normed(q, dk), normed(k, dk);
        if (mlstm) {
          const double x = of(&p->decay, heads, b, h, i, 0), in = of(&p->gate, heads, b, h, i, 0);
          const double f = p->form == ATTN_RECURRENT_LOG      ? x
                           : p->form == ATTN_RECURRENT_FACTOR ? log(x)
                                                              : log_sigmoid(x);
          const double now = fmax(f + *m, in);
          const double keep = now == -(double)INFINITY ? 0 : exp(f + *m - now);
          const double take = now == -(double)INFINITY ? 0 : exp(in - now);
          double sum = 0;
          *m = now;
          for (int64_t r = 0; r < dk; r++) {
            n[r] = keep * n[r] + take * k[r], w[r] = keep, sum += scale * q[r] * n[r];
            blur += fabs(scale * q[r] * n[r]);
            k[r] *= take;
          }
          den = fmax(fabs(sum), now == -(double)INFINITY ? 1 : exp(-now)) + eps;
        }
        if (p->rule == ATTN_RECURRENT_MAMBA2) {
          double d =
              log1p(exp(of(&p->dt, heads, b, h, i, 0) + (p->dt_bias ? (double)p->dt_bias[h] : 0)));
          d = fmax(d, (double)p->dt_min);
          if (p->dt_max > 0) d = fmin(d, (double)p->dt_max);
          for (int64_t c = 0; c < dv; c++) v[c] *= d;
        }
        for (int64_t c = 0; c < dv; c++) {
          double read = 0, before = 0, before_size = 0;
          for (int64_t r = 0; r < dk; r++) {
            const double at = st[r * dv + c];
            before += q[r] * at, before_size += fabs(q[r] * at);
            if (p->rule == ATTN_RECURRENT_RWKV7) read -= of(&p->a, heads, b, h, i, r) * at;
            if (p->rule == ATTN_RECURRENT_DPLR && p->a.data)
              read += of(&p->a, heads, b, h, i, r) * at;
            if (p->rule == ATTN_RECURRENT_DELTA || p->rule == ATTN_RECURRENT_GATED_DELTA ||
                p->rule == ATTN_RECURRENT_KDA)
              read += k[r] * (w[r] * at); /* the decayed state */
          }
          mine[c] = v[c];
          if (p->rule == ATTN_RECURRENT_DELTA || p->rule == ATTN_RECURRENT_GATED_DELTA ||
              p->rule == ATTN_RECURRENT_KDA)
            mine[c] = (p->beta.data ? of(&p->beta, heads, b, h, i, 0) : 1) * (v[c] - read);
          double bonus = 0;
          for (int64_t r = 0; p->rule == ATTN_RECURRENT_RWKV6 && r < dk; r++)
            bonus += q[r] * of(&p->bonus, heads, 0, h, 0, r) * k[r];
          o[c] = p->rule == ATTN_RECURRENT_RWKV6 ? scale * (before + bonus * v[c]) : 0;
          size[c] = fabs(scale) * (before_size + fabs(bonus * v[c]));
          for (int64_t r = 0; r < dk; r++) {
            double *at = st + r * dv + c;
            double more = k[r] * mine[c];
            if (p->rule == ATTN_RECURRENT_RWKV7)
              more += of(&p->a, heads, b, h, i, r) * of(&p->b, heads, b, h, i, r) * read;
            if (p->rule == ATTN_RECURRENT_DPLR && p->a.data)
              more += of(&p->b, heads, b, h, i, r) * read;
            *at = w[r] * *at + more;
            if (p->rule != ATTN_RECURRENT_RWKV6) o[c] += scale * q[r] * *at / den;
            size[c] += fabs(scale * q[r] * *at / den) + fabs(scale * q[r] * k[r] * mine[c] / den);
          }
          if (mlstm)
            size[c] += fabs(o[c]) * blur / den; /* what a difference loses in the denominator */
          if (p->skip) {
            const double x = (double)p->skip[h] * of(&s->v, heads, b, h, i, c);
            o[c] += x, size[c] += fabs(x);
          }
        }
      }
    }
  return y;
}

static void compare(const recurrent_scene *s, const recurrent_truth *want, double tolerance,
                    const char *what) {
  for (int64_t n = 0; n < want->o.batch * want->o.heads * want->o.len; n++) {
    const int64_t b = n / want->o.len / want->o.heads, h = n / want->o.len % want->o.heads,
                  i = n % want->o.len;
    double row = 0;
    for (int64_t c = 0; c < want->o.dim; c++) row = fmax(row, cube_at(&want->size, b, h, i)[c]);
    for (int64_t c = 0; c < want->o.dim; c++)
      value_check(oracle_get(&s->o, b, h, i, c), cube_at(&want->o, b, h, i)[c],
                  tolerance * row + 1e-30, s->o.dtype, what, b, h, i, c);
  }
  const attn_tensor *t = &s->p.final_state;
  if (!t->data) return;
  for (int64_t u = 0; u < want->s.batch; u++)
    for (int64_t h = 0; h < want->s.heads; h++) {
      double most = 0, unit = 1; /* S and n are in units of e^m, whatever that is */
      if (s->p.final_m.data) {
        const double m = *cube_at(&want->m, u, h, 0), got = oracle_get(&s->p.final_m, u, h, 0, 0);
        value_check(got, m, 1e-5 * (1 + fabs(m)), ATTN_F32, what, u, h, -1, -1);
        unit = got == m ? 1 : exp(m - got);
      }
      for (int64_t r = 0; r < want->s.len * want->s.dim; r++)
        most = fmax(most, fabs(cube_at(&want->s, u, h, 0)[r]));
      const int64_t dk = s->q.dim; /* levels lie one behind the other */
      for (int64_t r = 0; r < want->s.len; r++)
        for (int64_t c = 0; c < want->s.dim; c++)
          value_check(s->p.state_transposed ? oracle_get(t, u, h, r / dk * want->s.dim + c, r % dk)
                                            : oracle_get(t, u, h, r, c),
                      unit * cube_at(&want->s, u, h, r)[c], tolerance * most, ATTN_F32, what, u, h,
                      -r - 1, c);
      most = 0;
      for (int64_t r = 0; r < want->n.dim; r++)
        most = fmax(most, fabs(cube_at(&want->n, u, h, 0)[r]));
      for (int64_t r = 0; s->p.final_n.data && r < want->s.len; r++)
        value_check(oracle_get(&s->p.final_n, u, h, 0, r), unit * cube_at(&want->n, u, h, 0)[r],
                    tolerance * most, ATTN_F32, what, u, h, -1, r);
    }
}

void recurrent_check(recurrent_scene *s, double tolerance, const char *what) {
  const recurrent_truth want = recurrent_oracle(s);
  promise_run(&s->does);
  compare(s, &want, tolerance, what);
}

attn_tensor recurrent_rows(attn_tensor t, int64_t i0, int64_t len) {
  return t.data && t.len > 1 ? test_rows(t, i0, len) : t;
}

void recurrent_check_steps(recurrent_scene *s, int64_t step, double tolerance, const char *what) {
  const recurrent_truth want = recurrent_oracle(s);
  const int64_t t = s->q.len;
  if (s->p.final_state.data && s->p.initial_state.data)
    test_copy(s->p.final_state, s->p.initial_state);
  for (int64_t u = 0; s->p.lambda.data && u < s->p.final_state.batch; u++)
    for (int64_t r = 0; r < s->p.final_state.len; r++) { /* in place they stay */
      const int64_t level = r / s->q.dim, last = s->p.position ? s->p.position[u] - 1 : -1;
      if (last >= 0 && (!level || last >> (level - 1) & 1)) continue;
      for (int64_t h = 0; h < s->p.final_state.heads; h++)
        test_fill_row(s->p.final_state, u, h, r, 0);
    }
  if (s->p.final_n.data)
    test_copy(s->p.final_n, s->p.initial_n), test_copy(s->p.final_m, s->p.initial_m);
  for (int64_t i = 0, n; i < t; i += n) {
    attn_recurrent_params p = s->p;
    attn_ctx ctx = test_ctx();
    n = t - i < step ? t - i : step;
    p.initial_state = p.final_state, p.initial_n = p.final_n, p.initial_m = p.final_m;
    p.decay = recurrent_rows(p.decay, i, n), p.a = recurrent_rows(p.a, i, n),
    p.b = recurrent_rows(p.b, i, n);
    p.beta = recurrent_rows(p.beta, i, n), p.gate = recurrent_rows(p.gate, i, n);
    p.dt = recurrent_rows(p.dt, i, n);
    int64_t at[4] = {0};
    for (int64_t u = 0; p.position && u < s->q.batch; u++) at[u] = p.position[u] + i;
    if (p.lambda.data) p.lambda = test_rows(p.lambda, i, n), p.position = at;
    if (attn_recurrent(test_rows(s->o, i, n), test_rows(s->q, i, n), recurrent_rows(s->k, i, n),
                       test_rows(s->v, i, n), &p, &ctx) != ATTN_OK)
      fail_msg("%s: %s", what, ctx.reason);
    assert_int_equal(ctx.report.isa, test_isa);
  }
  compare(s, &want, tolerance, what);
}

int64_t recurrent_levels(int64_t tokens) {
  int64_t n = 1;
  while (tokens > 1 && (tokens - 1) >> (n - 1)) n++;
  return n;
}
