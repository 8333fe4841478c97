/* gradients.c owns calls of attn_sdpa_backward and attn_relu_backward with each term of a score, and with many: all that
 * they are given and make goes to standard output, for gradients.py to hold against PyTorch's. A case is a line `case
 * NAME`, then arrays: a line `array NAME EXTENTS ...` and floats. What is made of NAME is d_NAME. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef ATTN_IMPLEMENTED
#define ATTN_IMPLEMENTATION
#endif
#include "attn.h"

enum { B = 2, H = 4, HK = 2, T = 150, DK = 24, DV = 20, CLIP = 9, LABELS = 5, MOST = 64 };
enum {
  CAUSAL = 1,
  CAP_FIRST = 2,
  CAP_LAST = 4,
  ALIBI = 8,
  TOEPLITZ = 16,
  INSIDE = 32,
  T5 = 64,
  PARABOLA = 128,
  GAUSSIAN = 256,
  BIAS = 512,
  RELATIVE = 1024,
  XL = 2048,
  LABEL = 4096,
  FACTOR = 8192,
  SPAN = 16384,
  SINKS = 32768,
  ONE = 65536,
  LSE = 131072,
  MAP = 262144,
  DROP = 524288,
  MODIFY = 1048576,
  SPANS = 2097152,
  SCORES = 4194304
};

typedef struct array {
  char name[32];
  int64_t extent[4];
  float *x;
} array;

typedef struct scene {
  array all[MOST];
  int n;
  uint64_t drawn;
} scene;

static float *add(scene *s, const char *name, int64_t a, int64_t b, int64_t c, int64_t d) {
  array *y = &s->all[s->n++];
  snprintf(y->name, sizeof y->name, "%s", name);
  y->extent[0] = a, y->extent[1] = b, y->extent[2] = c, y->extent[3] = d;
  y->x = calloc((size_t)(a * b * c * d), sizeof(float));
  if (!y->x || s->n == MOST) exit(1);
  return y->x;
}

static float *number(scene *s, const char *name, double x) {
  float *y = add(s, name, 1, 1, 1, 1);
  *y = (float)x;
  return y;
}

/* Numbers that are evenly spread over low .. high. */
static float *draw(scene *s, const char *name, int64_t a, int64_t b, int64_t c, int64_t d,
                   double low, double high) {
  float *x = add(s, name, a, b, c, d);
  for (int64_t i = 0; i < a * b * c * d; i++)
    x[i] = (float)(low +
                   (high - low) * (double)attn_random_below(7, 0, s->drawn++, 1 << 20) / (1 << 20));
  return x;
}

static attn_tensor rows(scene *s, const char *name, int64_t a, int64_t b, int64_t c, int64_t d) {
  return attn_bhtd(draw(s, name, a, b, c, d, -1.5, 1.5), ATTN_F32, a, b, c, d);
}
static attn_tensor made(scene *s, const char *name, int64_t a, int64_t b, int64_t c, int64_t d) {
  return attn_bhtd(add(s, name, a, b, c, d), ATTN_F32, a, b, c, d);
}

static void write_case(const scene *s, const char *name) {
  printf("case %s\n", name);
  for (int n = 0; n < s->n; n++) {
    const int64_t *e = s->all[n].extent;
    const size_t count = (size_t)(e[0] * e[1] * e[2] * e[3]);
    printf("array %s %d %d %d %d\n", s->all[n].name, (int)e[0], (int)e[1], (int)e[2], (int)e[3]);
    if (fwrite(s->all[n].x, sizeof(float), count, stdout) != count) exit(1);
    free(s->all[n].x);
  }
}

/* x / (1 + |x| / 4), and its way back. */
static void bend(void *user, const attn_score_tile *t) {
  (void)user;
  for (int64_t c = 0; c < t->keys; c++)
    for (int64_t r = 0; r < t->queries; r++) {
      float *x = t->score + c * t->key_stride + r * t->query_stride;
      *x /= 1 + fabsf(*x) / 4;
    }
}
static void bend_back(void *user, const attn_score_tile *t, const float *before,
                      const float *after) {
  (void)user, (void)after;
  for (int64_t c = 0; c < t->keys; c++)
    for (int64_t r = 0; r < t->queries; r++) {
      const int64_t at = c * t->key_stride + r * t->query_stride;
      const float slope = 1 / (1 + fabsf(before[at]) / 4);
      t->score[at] *= slope * slope;
    }
}

static int64_t label(void *user, int64_t b, int64_t h, int64_t i, int64_t j) {
  (void)user, (void)b, (void)h;
  return (i + 2 * j) % (LABELS + 1) - 1;
}

/* The terms of a mask, and an output for each. */
static void terms(scene *s, int has, attn_sdpa_params *p, attn_sdpa_gradients *g) {
  p->causal = (has & CAUSAL) != 0;
  number(s, "causal", p->causal);
  if (has & (CAP_FIRST | CAP_LAST)) p->softcap = 2;
  if (has & CAP_LAST) p->softcap_at = ATTN_SOFTCAP_BIASED;
  if (has & CAP_FIRST) number(s, "cap_first", 2);
  if (has & CAP_LAST) number(s, "cap_last", 2);
  if (has & ALIBI) {
    p->alibi = draw(s, "alibi", 1, 1, 1, H, 0, 0.1);
    g->d_alibi = add(s, "d_alibi", 1, 1, 1, H);
  }
  if (has & (TOEPLITZ | INSIDE)) {
    p->toeplitz.table = draw(s, "toeplitz", 1, 1, H, 90, -1, 1);
    p->toeplitz.len = 90, p->toeplitz.first = -70, p->toeplitz.heads = H;
    p->toeplitz.inside = (has & INSIDE) != 0;
    number(s, "inside", p->toeplitz.inside);
    g->d_toeplitz = add(s, "d_toeplitz", 1, 1, H, 90);
  }
  if (has & T5) {
    p->t5.table = draw(s, "t5", 1, 1, 32, H, -1, 1), p->t5.bidirectional = 1;
    g->d_t5 = add(s, "d_t5", 1, 1, 32, H);
  }
  if (has & PARABOLA) {
    p->parabola.w = draw(s, "parabola_w", 1, 1, 1, H, 0, 0.001);
    p->parabola.bias = draw(s, "parabola_bias", 1, 1, 1, H, -1, 0);
    g->d_parabola_w = add(s, "d_parabola_w", 1, 1, 1, H);
    g->d_parabola_bias = add(s, "d_parabola_bias", 1, 1, 1, H);
  }
  if (has & GAUSSIAN) {
    p->gaussian.center = draw(s, "center", 1, B, H, T, 0, T);
    p->gaussian.precision = draw(s, "precision", 1, B, H, T, 0, 0.001);
    g->d_center = add(s, "d_center", 1, B, H, T);
    g->d_precision = add(s, "d_precision", 1, B, H, T);
  }
  if (has & BIAS) {
    p->bias = attn_mask_add(draw(s, "bias", 1, H, T, T, -1, 1), ATTN_F32, 1, H, T, T);
    g->d_bias = made(s, "d_bias", 1, H, T, T);
  }
  if (has & RELATIVE) {
    p->relative.keys = rows(s, "relative_keys", 1, H, 2 * CLIP + 1, DK);
    p->relative.queries = rows(s, "relative_queries", 1, 1, 2 * CLIP + 1, DK);
    g->d_relative.keys = made(s, "d_relative_keys", 1, H, 2 * CLIP + 1, DK);
    g->d_relative.queries = made(s, "d_relative_queries", 1, 1, 2 * CLIP + 1, DK);
  }
  if (has & XL) {
    p->xl.table = rows(s, "xl_table", 1, 1, 2 * T - 1, DK), p->xl.first = 1 - T;
    p->xl.u = draw(s, "xl_u", 1, 1, H, DK, -1, 1), p->xl.v = draw(s, "xl_v", 1, 1, H, DK, -1, 1);
    g->d_xl_table = made(s, "d_xl_table", 1, 1, 2 * T - 1, DK);
    g->d_xl_u = add(s, "d_xl_u", 1, 1, H, DK), g->d_xl_v = add(s, "d_xl_v", 1, 1, H, DK);
  }
  if (has & LABEL) {
    p->labels.label = label, p->labels.table = rows(s, "label_table", 1, H, LABELS, DK);
    p->labels.bias = draw(s, "label_bias", 1, 1, LABELS, H, -1, 1);
    g->d_label_table = made(s, "d_label_table", 1, H, LABELS, DK);
    g->d_label_bias = add(s, "d_label_bias", 1, 1, LABELS, H);
  }
  if (has & FACTOR) {
    p->factor.alpha = draw(s, "alpha", 1, 1, 1, H, -0.01, 0.05);
    p->factor.beta = draw(s, "beta", 1, 1, 1, H, -1, 1);
    g->d_alpha = add(s, "d_alpha", 1, 1, 1, H), g->d_beta = add(s, "d_beta", 1, 1, 1, H);
  }
  if (has & MODIFY) p->modify = bend, g->modify_back = bend_back, number(s, "modify", 1);
}

static void softmax(const char *name, int has) {
  scene s = {.n = 0};
  attn_sdpa_params p;
  attn_sdpa_gradients g;
  attn_ctx ctx;
  memset(&p, 0, sizeof p), memset(&g, 0, sizeof g), memset(&ctx, 0, sizeof ctx);
  const attn_tensor q = rows(&s, "q", B, H, T, DK), k = rows(&s, "k", B, HK, T, DK);
  const attn_tensor v = rows(&s, "v", B, HK, T, DV), d_o = rows(&s, "given_o", B, H, T, DV);
  const attn_tensor d_q = made(&s, "d_q", B, H, T, DK), d_k = made(&s, "d_k", B, HK, T, DK);
  const attn_tensor d_v = made(&s, "d_v", B, HK, T, DV), o = made(&s, "o", B, H, T, DV);
  float *scale = add(&s, "scale", 1, 1, 1, H);
  p.lse = made(&s, "lse", B, H, T, 1), p.scale = 0.3f;
  for (int h = 0; h < H; h++) scale[h] = p.scale;
  g.d_scale = add(&s, "d_scale", 1, 1, 1, H);
  terms(&s, has, &p, &g);
  if (has & RELATIVE) {
    p.relative.values = rows(&s, "relative_values", 1, 1, 2 * CLIP + 1, DV);
    g.d_relative.values = made(&s, "d_relative_values", 1, 1, 2 * CLIP + 1, DV);
  }
  if (has & (SPAN | SPANS)) {
    p.span.per_query = (has & SPANS) != 0, p.span.ramp = 20, p.span.include_self = 1;
    p.span.z = p.span.per_query ? draw(&s, "spans", 1, B, H, T, 10, 100)
                                : draw(&s, "span", 1, 1, 1, H, 10, 100);
    g.d_span = p.span.per_query ? add(&s, "d_spans", 1, B, H, T) : add(&s, "d_span", 1, 1, 1, H);
  }
  if (has & SINKS)
    p.sinks = draw(&s, "sinks", 1, 1, 1, H, -1, 1), g.d_sinks = add(&s, "d_sinks", 1, 1, 1, H);
  if (has & ONE) p.softmax_one = 1, number(&s, "one", 1);
  if (has & LSE) g.d_lse = rows(&s, "given_lse", B, H, T, 1);
  if (has & SCORES) p.map_stage = ATTN_MAP_SCORES, number(&s, "of_scores", 1);
  if (has & (MAP | SCORES)) g.d_map = rows(&s, "given_map", B, H, T, T);
  if (has & DROP) p.dropout.p = 0.25, p.dropout.seed = 11, number(&s, "dropout", 0.25);
  if (attn_sdpa(o, q, k, v, &p, &ctx) ||
      attn_sdpa_backward(d_q, d_k, d_v, d_o, q, k, v, o, p.lse, &p, &g, &ctx)) {
    fprintf(stderr, "gradients: %s: %s\n", name, ctx.reason);
    exit(1);
  }
  write_case(&s, name);
}

static void rectified(const char *name, attn_relu_kind kind, int power, int has) {
  scene s = {.n = 0};
  attn_relu_params p;
  attn_relu_gradients g;
  attn_ctx ctx;
  memset(&p, 0, sizeof p), memset(&g, 0, sizeof g), memset(&ctx, 0, sizeof ctx);
  const attn_tensor q = rows(&s, "q", B, H, T, DK), k = rows(&s, "k", B, HK, T, DK);
  const attn_tensor v = rows(&s, "v", B, HK, T, DV), d_o = rows(&s, "given_o", B, H, T, DV);
  const attn_tensor d_q = made(&s, "d_q", B, H, T, DK), d_k = made(&s, "d_k", B, HK, T, DK);
  const attn_tensor d_v = made(&s, "d_v", B, HK, T, DV), o = made(&s, "o", B, H, T, DV);
  p.kind = kind, p.power = power, p.eps = kind == ATTN_RELU_NORM ? 0.5f : 0;
  number(&s, "kind", kind), number(&s, "power", power), number(&s, "eps", (double)p.eps);
  if (kind != ATTN_RELU_GAU) {
    float *scale = add(&s, "scale", 1, 1, 1, H);
    p.attention.scale = 0.3f;
    for (int h = 0; h < H; h++) scale[h] = p.attention.scale;
    g.attention.d_scale = add(&s, "d_scale", 1, 1, 1, H);
  }
  if (kind == ATTN_RELU_RELA) {
    p.gain = draw(&s, "gain", 1, 1, H, DV, -1, 1), p.gate = draw(&s, "gate", 1, 1, H, DV, -1, 1);
    g.d_gain = add(&s, "d_gain", 1, 1, H, DV), g.d_gate = add(&s, "d_gate", 1, 1, H, DV);
  }
  terms(&s, has, &p.attention, &g.attention);
  p.sum = made(&s, "sum", B, H, T, 1), g.d_sum = rows(&s, "given_sum", B, H, T, 1);
  if (attn_relu(o, q, k, v, &p, &ctx) ||
      attn_relu_backward(d_q, d_k, d_v, d_o, q, k, v, &p, &g, &ctx)) {
    fprintf(stderr, "gradients: %s: %s\n", name, ctx.reason);
    exit(1);
  }
  write_case(&s, name);
}

int main(void) {
  static const struct {
    const char *name;
    int has;
  } cases[] = {
      {"plain", 0},
      {"causal", CAUSAL | LSE},
      {"soft-cap", CAP_FIRST},
      {"soft-cap of all", CAP_LAST | ALIBI},
      {"slopes", ALIBI | CAUSAL},
      {"table by distance", TOEPLITZ},
      {"table inside the scale", INSIDE},
      {"T5", T5},
      {"parabola", PARABOLA},
      {"Gaussian", GAUSSIAN},
      {"bias", BIAS},
      {"relative keys, queries, values", RELATIVE},
      {"Transformer-XL", XL},
      {"labels", LABEL},
      {"factor by distance", FACTOR},
      {"adaptive span", SPAN},
      {"adaptive span by query", SPANS},
      {"sinks", SINKS | LSE},
      {"softmax plus one", ONE | LSE},
      {"map", MAP},
      {"map of scores", SCORES | CAP_FIRST | CAUSAL | ALIBI},
      {"map of scores behind a function", SCORES | CAP_LAST | MODIFY | DROP},
      {"dropout", DROP},
      {"dropout and map", DROP | MAP | CAUSAL},
      {"function", MODIFY},
      {"what is added", ALIBI | TOEPLITZ | T5 | PARABOLA | GAUSSIAN | BIAS | CAP_FIRST | CAUSAL},
      {"tables", RELATIVE | XL | LABEL | CAP_LAST | DROP | LSE},
      {"all", CAP_FIRST | ALIBI | INSIDE | T5 | PARABOLA | GAUSSIAN | BIAS | RELATIVE | XL | LABEL |
                  FACTOR | SPAN | SINKS | ONE | LSE | MAP | DROP | MODIFY},
  };
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) softmax(cases[n].name, cases[n].has);
  rectified("rectified", ATTN_RELU_RAW, 1, 0);
  rectified("rectified, squared, causal", ATTN_RELU_RAW, 2, CAUSAL);
  rectified("rectified, by length", ATTN_RELU_LEN, 2, CAUSAL | ALIBI);
  rectified("rectified, by variance", ATTN_RELU_VAR, 1, CAUSAL);
  rectified("gated attention unit", ATTN_RELU_GAU, 2, CAUSAL | T5 | RELATIVE);
  rectified("rectified, normalised", ATTN_RELU_NORM, 1, CAUSAL | CAP_FIRST | XL | LABEL);
  rectified("rectified, gated norm", ATTN_RELU_RELA, 1, TOEPLITZ | FACTOR | BIAS | MODIFY);
  return fflush(stdout) != 0;
}
