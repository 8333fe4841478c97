/* tests/calls/rope.c owns the definition of rotations in double, and random descriptions of them. */

#include <math.h>
#include <string.h>

#include "rope.h"

/* ---- the definition ---------------------------------------------------------------------------*/

static const double turn = 6.283185307179586476925;

static double ms(double factor, double x) { return factor <= 1 ? 1 : 0.1 * x * log(factor) + 1; }

static double yarn_dim(const attn_rope_params *p, double r, double base, double turns) {
  double orig = (double)p->original_max_position_embeddings;
  return r * log(orig / (turn * turns)) / (2 * log(base));
}

/* f_m of rows whose rotated width is r. */
double rope_frequency(const attn_rope_params *p, double r, int64_t m) {
  double base = p->base > 0 ? p->base : 10000, s = p->factor, e = 2.0 * (double)m / r;
  double orig = (double)p->original_max_position_embeddings;
  double most = (double)p->max_position_embeddings, len = (double)p->sequence_len;
  if (p->type == ATTN_ROPE_NTK && m > 0) base *= pow(s, r / (r - 2));
  if (p->type == ATTN_ROPE_DYNAMIC && m > 0 && len > most)
    base *= pow(s * len / most - (s - 1), r / (r - 2));
  double f = 1 / pow(base, e);
  if (p->type == ATTN_ROPE_LINEAR) return f / s;
  if (p->type == ATTN_ROPE_LLAMA3) {
    double wave = turn / f, lo = p->low_freq_factor, hi = p->high_freq_factor;
    if (wave > orig / lo) return f / s;
    if (wave < orig / hi) return f;
    double y = (orig / wave - lo) / (hi - lo);
    return (1 - y) * f / s + y * f;
  }
  if (p->type == ATTN_ROPE_YARN) {
    if (s == 0) s = most / orig;
    double low = yarn_dim(p, r, base, p->beta_fast > 0 ? p->beta_fast : 32);
    double high = yarn_dim(p, r, base, p->beta_slow > 0 ? p->beta_slow : 1);
    if (!p->no_truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, r - 1);
    if (low == high) high += 0.001;
    double ramp = fmin(fmax(((double)m - low) / (high - low), 0), 1);
    return f * (1 - ramp) + f / s * ramp;
  }
  if (p->type == ATTN_ROPE_LONGROPE)
    return f / (len > orig ? p->long_factor[m] : p->short_factor[m]);
  return f;
}

double rope_factor(const attn_rope_params *p) {
  double orig = (double)p->original_max_position_embeddings;
  double most = (double)p->max_position_embeddings, s = p->factor;
  if (p->attention_factor > 0) return p->attention_factor;
  if (p->type == ATTN_ROPE_YARN) {
    if (s == 0) s = most / orig;
    if (p->mscale > 0 && p->mscale_all_dim > 0) return ms(s, p->mscale) / ms(s, p->mscale_all_dim);
    return ms(s, 1);
  }
  if (p->type == ATTN_ROPE_LONGROPE) {
    double by = p->max_position_embeddings ? most / orig : s;
    return by <= 1 ? 1 : sqrt(1 + log(by) / log(orig));
  }
  return 1;
}

static int sections(const attn_rope_params *p) {
  return p->mrope_section[0] || p->mrope_section[1] || p->mrope_section[2];
}

/* Which of a row's positions turns pair m of `pairs`. */
static int axis_of(const attn_rope_params *p, int64_t pairs, int64_t m) {
  const int64_t *s = p->mrope_section;
  if (p->axial) return m < pairs / 2 ? 0 : 1;
  if (!sections(p)) return 0;
  if (!p->mrope_interleaved) return m < s[0] ? 0 : m < s[0] + s[1] ? 1 : 2;
  if (m % 3 == 1 && m < 3 * s[1]) return 1;
  if (m % 3 == 2 && m < 3 * s[2]) return 2;
  return 0;
}

/* Position of row i of entry b on an axis. */
double rope_place(const attn_rope_params *p, const attn_tensor *x, int axis, int64_t b, int64_t i) {
  int64_t sets = p->positions_per_batch ? x->batch : 1, set = p->positions_per_batch ? b : 0;
  int64_t at = (axis * sets + set) * x->len + i;
  if (p->positions) return (double)p->positions[at];
  if (p->real_positions) return p->real_positions[at];
  return (double)(p->start + i);
}

/* Cosine and sine of pair m of a row, factors in them; *size what they are times. */
static void pair_of(const attn_rope_params *p, const attn_tensor *x, int64_t rot, int64_t m,
                    int64_t b, int64_t i, double *cosine, double *sine, double *size) {
  int64_t pairs = rot / 2;
  double at = rope_place(p, x, axis_of(p, pairs, m), b, i);
  if (p->cos.data) {
    *cosine = oracle_get(&p->cos, 0, 0, (int64_t)at, m);
    *sine = oracle_get(&p->sin, 0, 0, (int64_t)at, m);
    *size = hypot(*cosine, *sine);
  } else {
    double r = (double)rot, own = p->axial ? r / 2 : r;
    int64_t n = p->axial && m >= pairs / 2 ? m - pairs / 2 : m;
    double phi = at * rope_frequency(p, own, n);
    *size = rope_factor(p);
    if (p->xpos > 0) *size *= pow((2 * (double)m / r + 0.4) / 1.4, (p->keys ? -at : at) / p->xpos);
    *cosine = *size * cos(phi), *sine = *size * sin(phi);
  }
  if (p->inverse) *sine = -*sine;
}

void rope_compare(attn_tensor y, attn_tensor x, const attn_rope_params *p) {
  int64_t rot = p->has_rotary_dim || p->rotary_dim ? p->rotary_dim : x.dim;
  for (int64_t b = 0; b < x.batch; b++)
    for (int64_t i = 0; i < x.len; i++)
      for (int64_t c = 0; c < x.dim; c++) {
        int half = p->layout == ATTN_ROPE_HALF, second = half ? c >= rot / 2 : (int)(c & 1);
        int64_t m = half ? c % (rot / 2 + !rot) : c / 2;
        int64_t mate = half ? (second ? c - rot / 2 : c + rot / 2) : c ^ 1;
        double co = 1, si = 0, size = 0;
        if (c < rot) pair_of(p, &x, rot, m, b, i, &co, &si, &size);
        for (int64_t h = 0; h < x.heads; h++) {
          double own = oracle_get(&x, b, h, i, c), want = own, unit = 0;
          double other = c < rot ? oracle_get(&x, b, h, i, mate) : 0;
          if (c < rot) want = second ? other * si + own * co : own * co - other * si;
          double got = oracle_get(&y, b, h, i, c);
          if (y.dtype == ATTN_F16) unit = fabs(want) * 4.9e-4 + 3e-8;
          if (y.dtype == ATTN_BF16) unit = fabs(want) * 3.92e-3;
          if (fabs(got - want) <= hypot(own, other) * size * 5e-7 + unit) continue;
          fail_msg("type %d, row %d, column %d of %d (rot %d): %.9g, not %.9g", (int)p->type,
                   (int)i, (int)c, (int)x.dim, (int)rot, got, want);
        }
      }
}

/* ---- cases ------------------------------------------------------------------------------------*/

void rope_turns(attn_tensor y, attn_tensor x, const attn_rope_params *p) {
  attn_ctx ctx = test_ctx();
  attn_status status = attn_rope(y, x, p, &ctx);
  if (status != ATTN_OK) fail_msg("attn_rope: %s", ctx.reason ? ctx.reason : "(null)");
  assert_int_equal(ctx.report.isa, test_isa);
}

/* A legal description of each type for width r, which must be even. */
attn_rope_params rope_described(test_rng *rng, int type, int64_t r) {
  attn_rope_params p;
  memset(&p, 0, sizeof p);
  p.type = (attn_rope_type)type;
  p.base = type % 2 ? 0 : 500000;
  p.factor = 1 + (double)test_range(rng, 0, 40) / 4;
  p.max_position_embeddings = test_range(rng, 1, 9) * 1024;
  p.original_max_position_embeddings = test_range(rng, 2, 64) * 64;
  p.low_freq_factor = 1 + (double)test_range(rng, 0, 3) / 2;
  p.high_freq_factor = p.low_freq_factor + (double)test_range(rng, 1, 9) / 2;
  p.sequence_len = test_range(rng, 1, 20000);
  if (type == ATTN_ROPE_YARN) {
    const int64_t ends = test_range(rng, 0, 5); /* the ramp may leave the pairs, or have no width */
    if (ends == 0) p.base = 3, p.original_max_position_embeddings = 1 << 20;
    if (ends == 1) p.original_max_position_embeddings = test_range(rng, 2, 12);
    p.no_truncate = (int)test_range(rng, 0, 1);
    if (test_range(rng, 0, 1)) p.beta_fast = 24, p.beta_slow = 2;
    if (test_range(rng, 0, 1)) p.mscale = 0.707, p.mscale_all_dim = test_range(rng, 0, 1) ? 0.5 : 0;
    if (test_range(rng, 0, 2) == 0)
      p.factor = 0, p.max_position_embeddings = 3 * p.original_max_position_embeddings;
  }
  if (type == ATTN_ROPE_LONGROPE) {
    double *by = test_mem((size_t)(2 * r + 2) * sizeof *by);
    for (int64_t m = 0; m < r; m++) by[m] = 1 + (double)test_range(rng, 0, 99) / 8;
    p.short_factor = by, p.long_factor = by + r / 2, p.factors = r / 2;
    if (test_range(rng, 0, 1)) p.max_position_embeddings = 0;
  }
  if (test_range(rng, 0, 4) == 0) p.attention_factor = 1.25;
  return p;
}

void rope_take_positions(attn_rope_params *p, test_rng *rng, int64_t batch, int64_t len, int axes,
                         int64_t most) {
  p->positions_per_batch = (int)test_range(rng, 0, 1);
  int64_t n = axes * (p->positions_per_batch ? batch : 1) * len;
  int64_t *whole = test_mem((size_t)n * sizeof *whole + 1);
  double *real = test_mem((size_t)n * sizeof *real + 1);
  for (int64_t i = 0; i < n; i++) {
    whole[i] = test_range(rng, -most, most);
    real[i] = (double)test_range(rng, -4 * most, 4 * most) / 4;
  }
  if (test_range(rng, 0, 1))
    p->positions = whole;
  else
    p->real_positions = real;
}
