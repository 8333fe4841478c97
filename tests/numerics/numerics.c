/* tests/numerics/numerics.c owns the measured figures of docs/numerics.md: the worst error of each
 * kind of arithmetic on every tier of this machine, against the float64 oracle.
 *
 *   numerics [STEP]    judge every STEP-th row (default 8) of the attention cases
 *
 * It measures; the limits are tested by the runner. It lies in a folder of its own because every
 * C file in tests/ is part of the runner. */

#define ATTN_IMPLEMENTATION
#include "attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../oracle.h"

/* ---- what all measurements share ------------------------------------------------------------ */

/* The worst error so far, and the argument where it was. */
typedef struct record {
  double worst, at;
} record;

static void note(record *r, double error, double at) {
  if (error <= r->worst) return; /* a NaN is noted */
  r->worst = error;
  r->at = at;
}

static void fail(const char *what, const attn_ctx *ctx) {
  fprintf(stderr, "numerics: %s: %s\n", what, ctx->reason ? ctx->reason : "failed");
  exit(1);
}

static void *memory(int64_t n, size_t size) {
  void *p = calloc((size_t)n, size);
  if (p) return p;
  fprintf(stderr, "numerics: out of memory\n");
  exit(1);
}

static attn_ctx context(attn_isa isa) {
  attn_ctx ctx;
  memset(&ctx, 0, sizeof ctx);
  ctx.isa = isa;
  return ctx;
}

static int runs(int isa) { return attn_isa_status((attn_isa)isa) == ATTN_ISA_OK; }

/* The distance of floats at x; below the normal range that of the subnormals. */
static double unit(double x) {
  int e;
  frexp(x, &e);
  return ldexp(1, e - 24 < -149 ? -149 : e - 24);
}

static double ulps(double got, double want) { return fabs(got - want) / unit(want); }

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* SplitMix64, then two uniform numbers to one normal one (Box and Muller). */
static double uniform(uint64_t *state) {
  uint64_t z = *state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return ((double)((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
}

static double normal(uint64_t *state) {
  double r = sqrt(-2 * log(uniform(state)));
  return r * cos(6.283185307179586 * uniform(state));
}

static attn_tensor tensor(attn_dtype dtype, int64_t len, int64_t dim) {
  return attn_bhtd(memory(len * dim, 4), dtype, 1, 1, len, dim);
}

static attn_tensor normal_tensor(attn_dtype dtype, int64_t len, int64_t dim, uint64_t seed) {
  attn_tensor t = tensor(dtype, len, dim);
  for (int64_t i = 0; i < len; i++)
    for (int64_t c = 0; c < dim; c++) oracle_set(&t, 0, 0, i, c, normal(&seed));
  return t;
}

/* ---- elementary functions ------------------------------------------------------------------- */

enum { CHUNK = 4096 };

/* attn_exp at every 7th float whose result is neither 0 nor infinite by far. */
static record measure_exp(attn_isa isa) {
  const float ends[2] = {88.72283f, -104.0f};
  float x[CHUNK], y[CHUNK];
  record r = {0, 0};
  for (int side = 0; side < 2; side++) {
    const uint32_t sign = (uint32_t)side << 31, end = bits_of(ends[side]);
    for (uint32_t u = sign | bits_of(0x1p-25f); u <= end;) {
      int n = 0;
      for (; n < CHUNK && u <= end; u += 7) x[n++] = float_of(u);
      attn_ctx ctx = context(isa);
      if (attn_exp(y, x, n, &ctx) != ATTN_OK) fail("attn_exp", &ctx);
      for (int i = 0; i < n; i++) note(&r, ulps((double)y[i], exp((double)x[i])), (double)x[i]);
    }
  }
  return r;
}

/* The weight 2^y inside a softmax, seen through a call: with the scale ln 2 and a query q >= 25,
 * keys 0 and -1 have the exact scores 0 and -q in log2 units, the sum of the weights rounds to 1,
 * and the value row (0, 1) lets 2^-q out. Weights below 2^-125.5 are 0 by design. */
static record measure_weight(attn_isa isa) {
  float *q = memory(1 << 16, 4), *o = memory(1 << 16, 4);
  float k[2] = {0, -1}, v[2] = {0, 1};
  record r = {0, 0};
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.scale = 0.693147180559945309f;
  for (uint32_t u = bits_of(25), end = bits_of(125); u <= end;) {
    int64_t n = 0;
    for (; n < 1 << 16 && u <= end; u += 7) q[n++] = float_of(u);
    attn_ctx ctx = context(isa);
    if (attn_sdpa(attn_bhtd(o, ATTN_F32, 1, 1, n, 1), attn_bhtd(q, ATTN_F32, 1, 1, n, 1),
                  attn_bhtd(k, ATTN_F32, 1, 1, 2, 1), attn_bhtd(v, ATTN_F32, 1, 1, 2, 1), &p,
                  &ctx) != ATTN_OK)
      fail("attn_sdpa", &ctx);
    for (int64_t i = 0; i < n; i++)
      note(&r, ulps((double)o[i], exp2(-(double)q[i])), -(double)q[i]);
  }
  free(q);
  free(o);
  return r;
}

/* The score itself, which is the LSE of a row with one key: x = s q k for one column, or
 * c tanh(x / c) when cap > 0. In units of the last place of the exact result. */
static record measure_score(attn_isa isa, float scale, float cap) {
  enum { N = 1 << 20 };
  float *q = memory(N, 4), *lse = memory(N, 4), *o = memory(N, 4), k = 1, v = 0;
  record r = {0, 0};
  uint64_t seed = 5;
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.scale = scale;
  p.softcap = cap;
  p.lse = attn_bhtd(lse, ATTN_F32, 1, 1, N, 1);
  const double most = cap > 0 ? 12 * (double)cap : 100;
  for (int i = 0; i < N; i++) {
    double x = uniform(&seed) - 0.5;
    q[i] = (float)(2 * x * pow(2, -20 * uniform(&seed)) * most / (double)scale);
  }
  attn_ctx ctx = context(isa);
  if (attn_sdpa(attn_bhtd(o, ATTN_F32, 1, 1, N, 1), attn_bhtd(q, ATTN_F32, 1, 1, N, 1),
                attn_bhtd(&k, ATTN_F32, 1, 1, 1, 1), attn_bhtd(&v, ATTN_F32, 1, 1, 1, 1), &p,
                &ctx) != ATTN_OK)
    fail("attn_sdpa", &ctx);
  for (int i = 0; i < N; i++) {
    double x = (double)scale * (double)q[i];
    if (cap > 0) x = (double)cap * tanh(x / (double)cap);
    note(&r, ulps((double)lse[i], x), (double)q[i]);
  }
  free(q);
  free(lse);
  free(o);
  return r;
}

/* attn_rope on normal rows at random positions: |y - exact| over the length of the pair. The exact
 * rotation is in long double, since float64 angles are what is measured. */
static record measure_rope(attn_isa isa, double most, attn_rope_layout layout) {
  enum { ROWS = 2000, D = 128 };
  int64_t at[ROWS];
  uint64_t seed = 7;
  attn_tensor in = normal_tensor(ATTN_F32, ROWS, D, 8), out = tensor(ATTN_F32, ROWS, D);
  record r = {0, 0};
  attn_rope_params p;
  memset(&p, 0, sizeof p);
  p.layout = layout;
  p.positions = at;
  for (int i = 0; i < ROWS; i++) at[i] = (int64_t)(most * uniform(&seed));
  at[0] = (int64_t)most;
  attn_ctx ctx = context(isa);
  if (attn_rope(out, in, &p, &ctx) != ATTN_OK) fail("attn_rope", &ctx);
  for (int m = 0; m < D / 2; m++) {
    const int a = layout == ATTN_ROPE_HALF ? m : 2 * m;
    const int b = layout == ATTN_ROPE_HALF ? m + D / 2 : 2 * m + 1;
    const long double theta = powl(10000, -2.0L * m / D);
    for (int i = 0; i < ROWS; i++) {
      const long double phi = (long double)at[i] * theta, co = cosl(phi), si = sinl(phi);
      const long double x = oracle_get(&in, 0, 0, i, a), y = oracle_get(&in, 0, 0, i, b);
      const double da = (double)fabsl(oracle_get(&out, 0, 0, i, a) - (x * co - y * si));
      const double db = (double)fabsl(oracle_get(&out, 0, 0, i, b) - (x * si + y * co));
      note(&r, (da > db ? da : db) / hypot((double)x, (double)y), (double)at[i]);
    }
  }
  free(in.data);
  free(out.data);
  return r;
}

/* ---- attention rows ------------------------------------------------------------------------- */

enum { T = 4096, PARTS = 16 };

typedef struct row_case {
  const char *name;
  attn_dtype in, out;
  int64_t d;
  float scale;
  int causal, parts; /* parts > 1: so many calls over disjoint keys, merged */
  int queries;       /* of one call; 0 = all of them */
} row_case;

static const row_case cases[] = {
    {"f32", ATTN_F32, ATTN_F32, 64, 0, 0, 1, 0},
    {"f32", ATTN_F32, ATTN_F32, 128, 0, 0, 1, 0},
    {"f32, causal", ATTN_F32, ATTN_F32, 64, 0, 1, 1, 0},
    {"f32, merged from 16 parts", ATTN_F32, ATTN_F32, 64, 0, 0, PARTS, 0},
    {"f32, one query a call", ATTN_F32, ATTN_F32, 64, 0, 0, 1, 1},
    {"f32, one query a call", ATTN_F32, ATTN_F32, 128, 0, 0, 1, 1},
    {"f32, 16 queries a call", ATTN_F32, ATTN_F32, 64, 0, 0, 1, 16},
    {"f32, scale 1, one query", ATTN_F32, ATTN_F32, 64, 1, 0, 1, 1},
    {"f16 in, one query a call", ATTN_F16, ATTN_F32, 64, 0, 0, 1, 1},
    {"f32, scale 1 (sharp rows)", ATTN_F32, ATTN_F32, 64, 1, 0, 1, 0},
    {"f16 in, f32 out", ATTN_F16, ATTN_F32, 64, 0, 0, 1, 0},
    {"f16", ATTN_F16, ATTN_F16, 64, 0, 0, 1, 0},
    {"f16", ATTN_F16, ATTN_F16, 128, 0, 0, 1, 0},
    {"bf16 in, f32 out", ATTN_BF16, ATTN_F32, 64, 0, 0, 1, 0},
    {"bf16", ATTN_BF16, ATTN_BF16, 64, 0, 0, 1, 0},
    {"bf16", ATTN_BF16, ATTN_BF16, 128, 0, 0, 1, 0},
};

static attn_tensor rows(attn_tensor t, int64_t first, int64_t len) {
  t.data = (char *)t.data + first * t.stride_len * oracle_size(t.dtype);
  t.len = len;
  return t;
}

/* One tier's results of a case into o and lse. */
static void attend(const row_case *e, attn_isa isa, attn_tensor o, attn_tensor lse, attn_tensor q,
                   attn_tensor k, attn_tensor v) {
  for (int64_t i = 0; e->queries && i < T; i += e->queries) {
    attn_ctx ctx = context(isa);
    attn_sdpa_params p;
    memset(&p, 0, sizeof p);
    p.scale = e->scale;
    p.lse = rows(lse, i, e->queries);
    if (attn_sdpa(rows(o, i, e->queries), rows(q, i, e->queries), k, v, &p, &ctx) != ATTN_OK)
      fail("attn_sdpa", &ctx);
  }
  if (e->queries) return;
  attn_tensor part = tensor(e->out, T, e->d), part_lse = tensor(ATTN_F32, T, 1);
  for (int n = 0; n < e->parts; n++) {
    attn_ctx ctx = context(isa);
    attn_sdpa_params p;
    memset(&p, 0, sizeof p);
    p.scale = e->scale;
    p.causal = e->causal;
    p.lse = n ? part_lse : lse;
    const int64_t len = T / e->parts;
    if (attn_sdpa(n ? part : o, q, rows(k, n * len, len), rows(v, n * len, len), &p, &ctx) !=
        ATTN_OK)
      fail("attn_sdpa", &ctx);
    if (n && attn_merge(o, lse, o, lse, part, part_lse, &ctx) != ATTN_OK) fail("attn_merge", &ctx);
  }
  free(part.data);
  free(part_lse.data);
}

static void measure_rows(const row_case *e, int step) {
  attn_tensor q = normal_tensor(e->in, T, e->d, 1), k = normal_tensor(e->in, T, e->d, 2);
  attn_tensor v = normal_tensor(e->in, T, e->d, 3), o[ATTN_ISA_COUNT], lse[ATTN_ISA_COUNT];
  double worst[ATTN_ISA_COUNT] = {0}, worst_lse[ATTN_ISA_COUNT] = {0};
  oracle_row row;
  row.o = memory(e->d, sizeof(double));
  row.p = memory(T, sizeof(double));
  row.size = memory(T, sizeof(double));
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.scale = e->scale;
  p.causal = e->causal;
  for (int isa = 1; isa < ATTN_ISA_COUNT; isa++) {
    if (!runs(isa)) continue;
    o[isa] = tensor(e->out, T, e->d);
    lse[isa] = tensor(ATTN_F32, T, 1);
    attend(e, (attn_isa)isa, o[isa], lse[isa], q, k, v);
  }
  for (int64_t i = T - 1; i >= 0; i -= step) {
    oracle_sdpa(&q, &k, &v, &p, 0, 0, i, &row);
    for (int isa = 1; isa < ATTN_ISA_COUNT; isa++) {
      if (!runs(isa)) continue;
      for (int64_t c = 0; c < e->d; c++) {
        double error = fabs(oracle_get(&o[isa], 0, 0, i, c) - row.o[c]) / row.value;
        if (!(error <= worst[isa])) worst[isa] = error;
      }
      double error = fabs(oracle_get(&lse[isa], 0, 0, i, 0) - row.lse);
      if (!(error <= worst_lse[isa])) worst_lse[isa] = error;
    }
  }
  printf("  %-26s %4d", e->name, (int)e->d);
  for (int isa = 1; isa < ATTN_ISA_COUNT; isa++) {
    if (!runs(isa)) continue;
    printf("   %8.1e %8.1e", worst[isa], worst_lse[isa]);
    free(o[isa].data);
    free(lse[isa].data);
  }
  printf("\n");
  fflush(stdout);
  free(q.data);
  free(k.data);
  free(v.data);
  free(row.o);
  free(row.p);
  free(row.size);
}

/* ---- rows of any length -----------------------------------------------------------------------*/

typedef struct long_case {
  const char *name;
  double mean;    /* of the values, whose deviation is 1 */
  double one_row; /* what a third of the way in is not like the others; 0: none */
} long_case;

static const long_case long_cases[] = {
    {"mean 0", 0, 0}, {"mean 1", 1, 0}, {"mean 1, one row of 1e6", 1, 1e6}};

/* The worst |o - exact| of a few rows, in units of sum_j P_j |v_j|, for `queries` in a call. */
static double measure_long(const long_case *e, attn_isa isa, int64_t keys, int64_t queries) {
  attn_tensor q = normal_tensor(ATTN_F32, queries, 64, 1);
  attn_tensor k = normal_tensor(ATTN_F32, keys, 64, 2), v = normal_tensor(ATTN_F32, keys, 64, 3);
  attn_tensor o = tensor(ATTN_F32, queries, 64);
  attn_ctx ctx = context(isa);
  attn_sdpa_params p;
  oracle_row row;
  double worst = 0;
  memset(&p, 0, sizeof p);
  for (int64_t j = 0; j < keys; j++)
    for (int64_t c = 0; c < 64; c++) {
      const double x = oracle_get(&v, 0, 0, j, c) + e->mean;
      oracle_set(&v, 0, 0, j, c, e->one_row != 0 && j == keys / 3 ? e->one_row : x);
    }
  if (attn_sdpa(o, q, k, v, &p, &ctx) != ATTN_OK) fail("attn_sdpa", &ctx);
  row.o = memory(64, sizeof(double));
  row.p = memory(keys, sizeof(double));
  row.size = memory(keys, sizeof(double));
  for (int64_t i = 0; i<queries; i += queries> 8 ? queries / 8 : 1) {
    oracle_sdpa(&q, &k, &v, &p, 0, 0, i, &row);
    for (int64_t c = 0; c < 64; c++) {
      double size = 0;
      for (int64_t j = 0; j < keys; j++) size += row.p[j] * fabs(oracle_get(&v, 0, 0, j, c));
      const double error = fabs(oracle_get(&o, 0, 0, i, c) - row.o[c]) / size;
      if (!(error <= worst)) worst = error;
    }
  }
  free(q.data), free(k.data), free(v.data), free(o.data);
  free(row.o), free(row.p), free(row.size);
  return worst;
}

static void measure_lengths(void) {
  static const int64_t lengths[] = {1024, 4096, 16384, 65536};
  for (size_t n = 0; n < sizeof long_cases / sizeof *long_cases; n++)
    for (int few = 0; few < 2; few++) {
      printf("  %-24s %2d queries", long_cases[n].name, few ? 1 : 64);
      for (int l = 0; l < 4; l++)
        for (int isa = 1; isa < ATTN_ISA_COUNT; isa++)
          if (runs(isa))
            printf(" %8.1e", measure_long(&long_cases[n], (attn_isa)isa, lengths[l], few ? 1 : 64));
      printf("\n");
      fflush(stdout);
    }
}

/* ---- quantised keys and values ---------------------------------------------------------------- */

typedef struct stored_case {
  const char *name;
  attn_dtype dtype;
  int64_t group;
  int zero;
} stored_case;

static const stored_case stored_cases[] = {
    {"int8, a scale a row", ATTN_I8, 0, 0},   {"int8, with zero points", ATTN_I8, 0, 1},
    {"int8, groups of 32", ATTN_I8, 32, 0},   {"int4, a scale a row", ATTN_I4, 0, 0},
    {"int4, groups of 32", ATTN_I4, 32, 0},   {"int4, groups of 32, zeros", ATTN_I4, 32, 1},
    {"e4m3, a scale a row", ATTN_E4M3, 0, 0}, {"e4m3, no scales", ATTN_E4M3, 0, -1},
};

/* x [1, 1, T, d] in the storage of a case, in fresh memory. */
static attn_tensor quantized(const stored_case *e, attn_tensor x, attn_scales *s) {
  attn_tensor y = x;
  attn_ctx ctx = context(ATTN_ISA_AUTO);
  y.dtype = e->dtype;
  y.data = memory(x.len * x.dim, 1);
  int64_t n = x.len * (e->group ? x.dim / e->group : 1);
  *s = attn_scales_dense(e->zero < 0 ? NULL : memory(n, sizeof(float)),
                         e->zero > 0 ? memory(n, sizeof(float)) : NULL, e->group, &y);
  if (attn_quantize(y, *s, x, &ctx) != ATTN_OK) fail("attn_quantize", &ctx);
  return y;
}

/* Rows over quantised k and v against the exact rows of the f32 they were made from, */
static void measure_stored(const stored_case *e, int step, int64_t d) {
  attn_tensor q = normal_tensor(ATTN_F32, T, d, 1), x[2], y[2], o = tensor(ATTN_F32, T, d);
  attn_tensor wide[2];
  double worst = 0, sum = 0, own = 0, count = 0;
  oracle_row row;
  row.o = memory(d, sizeof(double));
  row.p = memory(T, sizeof(double));
  row.size = memory(T, sizeof(double));
  attn_sdpa_params p, plain;
  attn_ctx ctx = context(ATTN_ISA_AUTO);
  memset(&p, 0, sizeof p);
  plain = p;
  for (int i = 0; i < 2; i++) {
    attn_scales *s = i ? &p.v_scales : &p.k_scales;
    x[i] = normal_tensor(ATTN_F32, T, d, 2 + (uint64_t)i);
    y[i] = quantized(e, x[i], s);
    wide[i] = tensor(ATTN_F32, T, d);
    if (attn_dequantize(wide[i], y[i], *s, &ctx) != ATTN_OK) fail("attn_dequantize", &ctx);
  }
  if (attn_sdpa(o, q, y[0], y[1], &p, &ctx) != ATTN_OK) fail("attn_sdpa", &ctx);
  for (int64_t i = T - 1; i >= 0; i -= step)
    for (int stored = 0; stored < 2; stored++) { /* and against those of what is stored */
      oracle_sdpa(&q, stored ? &wide[0] : &x[0], stored ? &wide[1] : &x[1], &plain, 0, 0, i, &row);
      double most = 0;
      for (int64_t c = 0; c < d; c++)
        most = fmax(most, fabs(oracle_get(&o, 0, 0, i, c) - row.o[c]) / row.value);
      if (stored)
        own = fmax(own, most);
      else
        worst = fmax(worst, most), sum += most, count++;
    }
  printf("  %-26s %4d   %8.1e %8.1e   %8.1e\n", e->name, (int)d, worst, sum / count, own);
  fflush(stdout);
  for (int i = 0; i < 2; i++) {
    attn_scales *s = i ? &p.v_scales : &p.k_scales;
    free(x[i].data);
    free(y[i].data);
    free(wide[i].data);
    free(s->scale);
    free(s->zero);
  }
  free(q.data);
  free(o.data);
  free(row.o);
  free(row.p);
  free(row.size);
}

int main(int argc, char **argv) {
  int step = argc > 1 ? atoi(argv[1]) : 8;
  if (step < 1) step = 1;
  for (int isa = 1; isa < ATTN_ISA_COUNT; isa++) {
    const char *name = attn_isa_name((attn_isa)isa);
    if (!runs(isa)) {
      printf("%-7s NOT RUN: %s\n", name, attn_isa_why((attn_isa)isa));
      continue;
    }
    record r = measure_exp((attn_isa)isa);
    printf("%-7s attn_exp                     %6.3f ULP at %.9g\n", name, r.worst, r.at);
    r = measure_weight((attn_isa)isa);
    printf("%-7s weight 2^y of the softmax    %6.3f ULP at %.9g\n", name, r.worst, r.at);
    r = measure_score((attn_isa)isa, 0.125f, 0);
    printf("%-7s score, one column            %6.3f ULP at q = %.9g\n", name, r.worst, r.at);
    r = measure_score((attn_isa)isa, 1, 50);
    printf("%-7s soft-cap 50 tanh(x / 50)     %6.3f ULP at x = %.9g\n", name, r.worst, r.at);
    r = measure_score((attn_isa)isa, 1, 1);
    printf("%-7s soft-cap tanh(x)             %6.3f ULP at x = %.9g\n", name, r.worst, r.at);
    for (double most = 1e3; most < 1e10; most *= 1e3) {
      record half = measure_rope((attn_isa)isa, most, ATTN_ROPE_HALF);
      r = measure_rope((attn_isa)isa, most, ATTN_ROPE_INTERLEAVED);
      if (half.worst > r.worst) r = half;
      printf("%-7s attn_rope to position %.0e  %8.1e of the pair's length\n", name, most, r.worst);
    }
    fflush(stdout);
  }
  printf(
      "\nattention, T = %d, normal inputs, every %d. row: worst |o - exact| / max |v|, then "
      "worst |LSE - exact|\n  %-26s %4s",
      T, step, "storage", "d");
  for (int isa = 1; isa < ATTN_ISA_COUNT; isa++)
    if (runs(isa)) printf("   %-17s", attn_isa_name((attn_isa)isa));
  printf("\n");
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) measure_rows(&cases[n], step);
  printf(
      "\nlong rows, d = 64: worst |o - exact| / sum P|v|, each tier in turn, for T = 1024, 4096, "
      "16384, "
      "65536\n");
  measure_lengths();
  printf(
      "\nquantised k and v: |o - that of f32| / max |v| of the worst row and on average, then the "
      "worst |o - that of what is stored|\n");
  for (size_t n = 0; n < sizeof stored_cases / sizeof *stored_cases; n++)
    measure_stored(&stored_cases[n], 4 * step, 128);
  return 0;
}
