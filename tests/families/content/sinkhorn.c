/* tests/families/content/sinkhorn.c owns the oracle of attention over sorted blocks. */

#include "sinkhorn.h"

#include "oracle_pattern.h"

cube sinkhorn_blocks(const attn_tensor *x, const attn_sinkhorn_params *p) {
  int64_t nb = x->len / p->block;
  cube y = cube_of(x->batch, x->heads, nb, x->dim);
  for (int64_t n = 0; n < x->batch * x->heads * nb; n++) {
    int64_t b = n / nb / x->heads, h = n / nb % x->heads, i = n % nb;
    int64_t from = p->causal ? 0 : i * p->block;
    int64_t to = p->causal ? i * p->block + 1 : (i + 1) * p->block;
    for (int64_t c = 0; c < x->dim; c++) {
      double sum = 0;
      for (int64_t t = from; t < to; t++) sum += oracle_get(x, b, h, t, c);
      cube_at(&y, b, h, i)[c] = sum;
    }
  }
  return y;
}

/* relu(x w + bias) of `heads` heads. */
static cube layer(const cube *x, int64_t heads, const attn_tensor *w, const attn_tensor *bias) {
  cube y = cube_of(x->batch, heads, x->len, w->dim);
  for (int64_t n = 0; n < x->batch * heads * x->len; n++) {
    int64_t b = n / x->len / heads, h = n / x->len % heads, i = n % x->len;
    const double *row = cube_at(x, b, h * x->heads / heads, i);
    for (int64_t c = 0; c < w->dim; c++) {
      double sum = bias->data ? oracle_get(bias, 0, bias->heads > 1 ? h : 0, 0, c) : 0;
      for (int64_t d = 0; d < x->dim; d++)
        sum += row[d] * oracle_get(w, 0, w->heads > 1 ? h : 0, d, c);
      cube_at(&y, b, h, i)[c] = fmax(sum, 0);
    }
  }
  return y;
}

cube sinkhorn_logits(const cube *y, int64_t heads, const attn_sinkhorn_params *p) {
  cube hidden = layer(y, heads, &p->w_1, &p->b_1);
  return layer(&hidden, heads, &p->w_2, &p->b_2);
}

/* log of the sum of the exponentials of n numbers, `step` apart */
static double log_sum(const double *x, int64_t n, int64_t step) {
  double top = -(double)INFINITY, sum = 0;
  for (int64_t i = 0; i < n; i++) top = fmax(top, x[i * step]);
  if (top == -(double)INFINITY) return top;
  for (int64_t i = 0; i < n; i++) sum += exp(x[i * step] - top);
  return top + log(sum);
}

static void balance(double *l, int64_t n, const attn_sinkhorn_params *p) {
  attn_sinkhorn_balancing kind = p->balance;
  if (kind == ATTN_BALANCE_DEFAULT) kind = p->causal ? ATTN_BALANCE_ROWS : ATTN_BALANCE_SINKHORN;
  int64_t iterations = kind == ATTN_BALANCE_ROWS            ? 1
                       : p->has_iterations || p->iterations ? p->iterations
                                                            : 8;
  double *old = test_mem((size_t)(n * n + 1) * sizeof *old);
  for (int64_t it = 0; it < iterations; it++) {
    for (int64_t i = 0; i < n; i++) {
      double s = log_sum(l + i * n, n, 1);
      for (int64_t j = 0; j < n && s > -(double)INFINITY; j++) l[i * n + j] -= s;
    }
    if (kind == ATTN_BALANCE_ROWS) break;
    memcpy(old, l, (size_t)(n * n) * sizeof *old);
    for (int64_t j = 0; j < n; j++)
      for (int64_t i = 0; i < n; i++) {
        double s = log_sum(old + j, kind == ATTN_BALANCE_SINKHORN ? n : i + 1, n);
        if (s > -(double)INFINITY) l[i * n + j] -= s;
      }
  }
  for (int64_t e = 0; e < n * n; e++) l[e] = exp(l[e]);
}

cube sinkhorn_balance(const cube *r, int64_t batch, int64_t heads, const attn_sinkhorn_params *p) {
  int64_t n = r->len;
  cube y = cube_of(batch, heads, n, n);
  double tau = p->tau == 0 ? 0.75 : (double)p->tau;
  for (int64_t b = 0; b < batch; b++)
    for (int64_t h = 0; h < heads; h++) {
      for (int64_t i = 0; i < n; i++) {
        oracle_stream s = oracle_stream_of(p->seed, 5, (uint64_t)h, (uint64_t)i);
        double *to = cube_at(&y, b, h, i);
        for (int64_t j = 0; j < n; j++) {
          double g = 0;
          if (p->gumbel) {
            double u = ((double)(oracle_next64(&s) >> 12) + 0.5) / 4503599627370496.0;
            g = -log(-log(u));
          } else if (p->noise.data) {
            g = oracle_get(&p->noise, p->noise.batch > 1 ? b : 0, p->noise.heads > 1 ? h : 0, i, j);
          }
          to[j] = (cube_at(r, r->batch > 1 ? b : 0, r->heads > 1 ? h : 0, i)[j] + g) / tau;
          if (p->causal && (p->diag ? j > i : j >= i)) to[j] = -(double)INFINITY;
        }
      }
      balance(cube_at(&y, b, h, 0), n, p);
    }
  return y;
}

int64_t sinkhorn_choice(const double *row, int64_t i, int64_t blocks,
                        const attn_sinkhorn_params *p) {
  int64_t best = -1;
  for (int64_t j = 0; j < blocks; j++) {
    if (p->causal && (p->diag ? j > i : j >= i)) continue;
    if (row[j] > 0 && (best < 0 || row[j] > row[best])) best = j;
  }
  return best;
}

/* The keys of one query: scores and values. */
typedef struct row_keys {
  int64_t n, dv;
  double *x, *v;
} row_keys;

static void add(row_keys *a, double score, const double *value) {
  a->x[a->n] = score;
  memcpy(a->v + a->n * a->dv, value, (size_t)a->dv * sizeof *value);
  a->n++;
}

/* o += weight softmax; the LSE */
static double close(const row_keys *a, double *o, double weight) {
  double lse = log_sum(a->x, a->n, 1);
  for (int64_t e = 0; e < a->n; e++)
    for (int64_t c = 0; c < a->dv; c++) o[c] += weight * exp(a->x[e] - lse) * a->v[e * a->dv + c];
  return lse;
}

static double dot(const double *x, const double *y, int64_t n) {
  double sum = 0;
  for (int64_t c = 0; c < n; c++) sum += x[c] * y[c];
  return sum;
}

/* Row t of place i: soft a mixture, hard a copy. 0 = the place has no keys. */
static int sorted_row(double *to, const cube *x, int64_t b, int64_t h, const double *row, int64_t i,
                      int64_t t, int64_t blocks, const attn_sinkhorn_params *p) {
  int some = 0;
  int64_t pick = sinkhorn_choice(row, i, blocks, p);
  for (int64_t c = 0; c < x->dim; c++) to[c] = 0;
  if (p->hard && pick < 0) return 0;
  if (p->hard) {
    memcpy(to, cube_at(x, b, h, pick * p->block + t), (size_t)x->dim * sizeof *to);
    return 1;
  }
  for (int64_t j = 0; j < blocks; j++) {
    if (p->causal && (p->diag ? j > i : j >= i)) continue;
    some |= row[j] != 0;
    for (int64_t c = 0; c < x->dim; c++) to[c] += row[j] * cube_at(x, b, h, j * p->block + t)[c];
  }
  return some;
}

void sinkhorn_attend(cube *o, cube *lse, const attn_tensor *q, const attn_tensor *k,
                     const attn_tensor *v, const cube *sort, const attn_sinkhorn_params *p,
                     int cut) {
  int64_t size = p->block, nb = k->len / size, dk = q->dim, dv = v->dim;
  double scale = scale_of(p->scale, dk);
  cube qs = cube_from(q), ks = cube_from(k), vs = cube_from(v);
  *o = cube_of(q->batch, q->heads, q->len, dv), *lse = cube_of(q->batch, q->heads, q->len, 1);
  row_keys keys = {0, dv, NULL, NULL};
  keys.x = test_mem((size_t)(k->len + 2 * size + 1) * sizeof(double));
  keys.v = test_mem((size_t)((k->len + 2 * size + 1) * dv) * sizeof(double));
  /* rows of all places of a head */
  double *sk = test_mem((size_t)(k->len * dk + 1) * sizeof(double));
  double *sv = test_mem((size_t)(k->len * dv + 1) * sizeof(double));
  cube nk, nv;
  if (p->null_k.data) nk = cube_from(&p->null_k), nv = cube_from(&p->null_v);
  int *has = test_mem((size_t)(nb + 1) * sizeof(int));
  int64_t *pick = test_mem((size_t)(nb + 1) * sizeof(int64_t));
  for (int64_t b = 0; b < q->batch; b++)
    for (int64_t h = 0; h < q->heads; h++) {
      int64_t hk = head_of(k, h, q->heads), hv = head_of(v, h, q->heads);
      for (int64_t i = 0; i < nb; i++) {
        const double *row = cube_at(sort, b, h, i);
        pick[i] = p->hard ? sinkhorn_choice(row, i, nb, p) : -1;
        for (int64_t t = 0; t < size; t++) {
          has[i] = sorted_row(sk + (i * size + t) * dk, &ks, b, hk, row, i, t, nb, p);
          sorted_row(sv + (i * size + t) * dv, &vs, b, hv, row, i, t, nb, p);
        }
        for (int64_t t = 0; t < size && !has[i] && p->null_k.data; t++) {
          memcpy(sk + (i * size + t) * dk, cube_at(&nk, 0, nk.heads > 1 ? h : 0, 0),
                 (size_t)dk * sizeof *sk);
          memcpy(sv + (i * size + t) * dv, cube_at(&nv, 0, nv.heads > 1 ? h : 0, 0),
                 (size_t)dv * sizeof *sv);
        }
        has[i] |= p->null_k.data != NULL;
      }
      for (int64_t n = 0; n < q->len; n++) {
        const double *query = cube_at(&qs, b, h, n);
        double *out = cube_at(o, b, h, n), sum = -(double)INFINITY;
        int64_t i = n / size, at = n % size;
        int concat = p->combine == ATTN_SINKHORN_CONCAT, own = 0;
        for (int64_t c = 0; c < dv; c++) out[c] = 0;
        keys.n = 0;
        if (cut) {
          for (int64_t x = 0; x < p->cut; x++) {
            int seen = !has[x];
            for (int64_t y = 0; y < x && p->hard; y++) seen |= has[y] && pick[y] == pick[x];
            if (p->hard && has[x] && p->local && pick[x] == i) own = 1;
            for (int64_t t = 0; t < size && !seen; t++)
              add(&keys, scale * dot(query, sk + (x * size + t) * dk, dk),
                  sv + (x * size + t) * dv);
          }
          for (int64_t t = 0; t < size && p->local && !own; t++)
            add(&keys, scale * dot(query, cube_at(&ks, b, hk, i * size + t), dk),
                cube_at(&vs, b, hv, i * size + t));
        } else {
          int all = !p->causal || (!p->diag && p->combine != ATTN_SINKHORN_SUM);
          own = p->hard && pick[i] == i && concat;
          for (int64_t t = 0; t < size && has[i] && !own; t++) {
            double x = dot(query, sk + (i * size + t) * dk, dk);
            if (!all && t > at) continue;
            if (p->combine == ATTN_SINKHORN_SUM)
              x += dot(query, cube_at(&ks, b, hk, i * size + t), dk);
            add(&keys, scale * x, sv + (i * size + t) * dv);
          }
          if (p->combine == ATTN_SINKHORN_MIXTURE) {
            double a = p->alpha_sorted != 0       ? (double)p->alpha_sorted
                       : signbit(p->alpha_sorted) ? 0
                                                  : 1;
            close(&keys, out, a);
            keys.n = 0;
          }
          for (int64_t t = 0; t < size && (concat || p->combine == ATTN_SINKHORN_MIXTURE); t++)
            if (!p->causal || t <= at)
              add(&keys, scale * dot(query, cube_at(&ks, b, hk, i * size + t), dk),
                  cube_at(&vs, b, hv, i * size + t));
        }
        double weight = 1;
        if (!cut && p->combine == ATTN_SINKHORN_MIXTURE)
          weight = p->alpha_local != 0 ? (double)p->alpha_local : signbit(p->alpha_local) ? 0 : 1;
        sum = close(&keys, out, weight);
        *cube_at(lse, b, h, n) = sum;
      }
    }
}
