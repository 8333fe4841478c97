/* approximations.c owns the calls of approximations.h and their sizes. */
#include "approximations.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void normal_fill(float *x, int64_t n, double size, uint64_t seed) {
  for (int64_t i = 0; i < n; i++) x[i] = (float)(size * attn_random_normal(seed, 0, (uint64_t)i));
}

/* A dense tensor of normal numbers that the call owns. */
static attn_tensor weights(call *c, int64_t rows, int64_t cols, double size) {
  float *x = malloc((size_t)(rows * cols) * sizeof(float));
  if (x) normal_fill(x, rows * cols, size, (uint64_t)(100 + c->extras));
  c->extra[c->extras++] = x;
  return attn_bhtd(x, ATTN_F32, 1, 1, rows, cols);
}

/* --- linear attention over a state --------------------------------------------------------------*/

static attn_status linear_run(call *c, attn_ctx *ctx) {
  return attn_linear(c->o, c->q, c->k, c->v, &c->p.linear, ctx);
}
static size_t linear_workspace(call *c, const attn_ctx *ctx) {
  return attn_linear_workspace(c->o, c->q, c->k, c->v, &c->p.linear, ctx);
}

static int linear_open(call *c) {
  c->flops = 4.0 * WIDTH * WIDTH * (double)c->len;
  c->times = 1;
  return 1;
}
static int linear_causal_open(call *c) {
  c->p.linear.causal = 1;
  return linear_open(c);
}

static int linear_step_open(call *c) {
  attn_linear_params *p = &c->p.linear;
  p->causal = 1;
  p->state_bytes = attn_linear_state_bytes(p, 1, STEP_HEADS, STEP_HEADS, WIDTH, WIDTH);
  p->state = c->state = aligned_alloc(64, (p->state_bytes + 63) / 64 * 64);
  c->k.len = c->v.len = 1;
  c->flops = 4.0 * WIDTH * WIDTH * STEP_HEADS;
  return c->state && attn_linear_begin(c->state, p->state_bytes, p, 1, STEP_HEADS, STEP_HEADS,
                                       WIDTH, WIDTH, NULL) == ATTN_OK;
}

/* So many directions, drawn as the paper draws them. */
static int directions(call *c, int64_t n) {
  attn_random_params r;
  memset(&r, 0, sizeof r);
  r.seed = 1;
  c->p.linear.map.w = weights(c, n, WIDTH, 1);
  return attn_random_features(c->p.linear.map.w, &r, NULL) == ATTN_OK;
}

static int performer_open(call *c) {
  c->p.linear.map.kind = ATTN_FEATURES_SOFTMAX;
  c->flops = (4.0 + 4.0) * 256 * WIDTH * (double)c->len;
  c->times = 1;
  return directions(c, 256);
}
static int performer_causal_open(call *c) {
  c->p.linear.causal = 1;
  return performer_open(c);
}

/* Rows on the unit sphere, as in the paper. */
static int rfa_open(call *c) {
  c->p.linear.map.kind = ATTN_FEATURES_RFA;
  c->flops = (2.0 + 4.0) * 256 * WIDTH * (double)c->len;
  c->times = 1;
  return directions(c, 128);
}

/* --- fewer keys ---------------------------------------------------------------------------------*/

static attn_status linformer_run(call *c, attn_ctx *ctx) {
  return attn_linformer(c->o, c->q, c->k, c->v, &c->p.linformer, ctx);
}
static size_t linformer_workspace(call *c, const attn_ctx *ctx) {
  return attn_linformer_workspace(c->o, c->q, c->k, c->v, &c->p.linformer, ctx);
}
/* A matrix that training would have made: its error says nothing here. */
static int linformer_open(call *c) {
  c->p.linformer.e = weights(c, 256, c->len, 1 / sqrt((double)c->len));
  c->flops = 4.0 * 256 * 2 * WIDTH * (double)c->len;
  return 1;
}
static int linformer_mean_open(call *c) {
  c->p.linformer.kind = ATTN_LINFORMER_MEAN;
  c->flops = 2.0 * 256 * 2 * WIDTH * (double)c->len;
  c->times = 1;
  return 1;
}

static attn_status nystrom_run(call *c, attn_ctx *ctx) {
  return attn_nystrom(c->o, c->q, c->k, c->v, &c->p.nystrom, ctx);
}
static size_t nystrom_workspace(call *c, const attn_ctx *ctx) {
  return attn_nystrom_workspace(c->o, c->q, c->k, c->v, &c->p.nystrom, ctx);
}
static int nystrom_open(call *c) {
  c->flops = 4.0 * 64 * 2 * WIDTH * (double)c->len + 8.0 * 6 * 64 * 64 * 64;
  c->times = 1;
  return 1;
}

static attn_status memory_run(call *c, attn_ctx *ctx) {
  return attn_memory_compressed(c->o, c->q, c->k, c->v, &c->p.memory, ctx);
}
static size_t memory_workspace(call *c, const attn_ctx *ctx) {
  return attn_memory_compressed_workspace(c->o, c->q, c->k, c->v, &c->p.memory, ctx);
}
/* Means of three rows: the convolution that approximates attention without training. */
static int memory_open(call *c) {
  attn_tensor w = weights(c, 3 * WIDTH, WIDTH, 0);
  if (!w.data) return 0;
  for (int i = 0; i < 3 * WIDTH; i++) ((float *)w.data)[i * WIDTH + i % WIDTH] = 1.0f / 3;
  c->p.memory.w_k = c->p.memory.w_v = w;
  c->p.memory.slot = ATTN_SLOT_NONE;
  const double t = (double)c->len, blocks = ceil(t / 3);
  c->flops = 4.0 * WIDTH * WIDTH * t + 4.0 * WIDTH * t * blocks;
  c->times = 1;
  return 1;
}

static attn_status poolingformer_run(call *c, attn_ctx *ctx) {
  return attn_poolingformer(c->o, c->q, c->k, c->v, &c->p.poolingformer, ctx);
}
static size_t poolingformer_workspace(call *c, const attn_ctx *ctx) {
  return attn_poolingformer_workspace(c->o, c->q, c->k, c->v, &c->p.poolingformer, ctx);
}
static int poolingformer_open(call *c) {
  double pairs = 0;
  for (int64_t i = 0; i < c->len; i++) { /* 128 keys on each side, 512 of which every 4th */
    pairs += fmin(128, (double)i) + 1 + fmin(128, (double)(c->len - 1 - i));
    pairs += (fmin(512, (double)i) + 1 + fmin(512, (double)(c->len - 1 - i))) / 4;
  }
  c->flops = 4.0 * WIDTH * pairs;
  c->times = 0.5; /* a sum of two averages */
  return 1;
}

/* --- fewer queries ------------------------------------------------------------------------------*/

static attn_status clustered_run(call *c, attn_ctx *ctx) {
  return attn_clustered(c->o, c->q, c->k, c->v, NULL, &c->p.cluster, ctx);
}
static size_t clustered_workspace(call *c, const attn_ctx *ctx) {
  return attn_clustered_workspace(c->o, c->q, c->k, c->v, NULL, &c->p.cluster, ctx);
}
static int clustered_open(call *c) {
  c->p.cluster.clusters = 256;
  c->p.cluster.k = 32;
  c->flops = 4.0 * WIDTH * (double)c->len * (256 + 32) + 2.0 * 32 * WIDTH * (double)c->len;
  c->times = 1;
  return 1;
}

static attn_status probsparse_run(call *c, attn_ctx *ctx) {
  return attn_probsparse(c->o, c->q, c->k, c->v, NULL, &c->p.probsparse, ctx);
}
static size_t probsparse_workspace(call *c, const attn_ctx *ctx) {
  return attn_probsparse_workspace(c->o, c->q, c->k, c->v, NULL, &c->p.probsparse, ctx);
}
static int probsparse_open(call *c) {
  const double t = (double)c->len, u = 5 * ceil(log(t));
  c->flops = 4.0 * WIDTH * u * t + 2.0 * WIDTH * u * t;
  c->times = 1;
  return 1;
}

/* --- layers with weights: the dense side has its products too ------------------------------------*/

static attn_status luna_run(call *c, attn_ctx *ctx) {
  attn_tensor none;
  memset(&none, 0, sizeof none);
  return attn_luna(c->o, none, c->q, c->points, none, &c->p.luna, ctx);
}
static size_t luna_workspace(call *c, const attn_ctx *ctx) {
  attn_tensor none;
  memset(&none, 0, sizeof none);
  return attn_luna_workspace(c->o, none, c->q, c->points, none, &c->p.luna, ctx);
}
static int luna_open(call *c) {
  attn_luna_params *p = &c->p.luna;
  const double t = (double)c->len, small = 1 / sqrt((double)WIDTH);
  c->points = weights(c, 64, WIDTH, 1);
  p->w_pq = weights(c, WIDTH, WIDTH, small), p->w_pk = weights(c, WIDTH, WIDTH, small);
  p->w_pv = weights(c, WIDTH, WIDTH, small), p->w_q = weights(c, WIDTH, WIDTH, small);
  p->w_k = weights(c, WIDTH, WIDTH, small), p->w_v = weights(c, WIDTH, WIDTH, small);
  p->w_o = weights(c, WIDTH, WIDTH, small);
  c->flops = 2.0 * WIDTH * WIDTH * (4 * t + 3 * 64) + 2 * 4.0 * WIDTH * 64 * t;
  return 1;
}

static attn_status isab_run(call *c, attn_ctx *ctx) {
  return attn_isab(c->o, c->q, c->points, &c->p.isab, ctx);
}
static size_t isab_workspace(call *c, const attn_ctx *ctx) {
  return attn_isab_workspace(c->o, c->q, c->points, &c->p.isab, ctx);
}
static void block_weights(call *c, attn_mab_params *p) {
  const attn_tensor w = weights(c, WIDTH, WIDTH, 1 / sqrt((double)WIDTH));
  p->w_q = p->w_k = p->w_v = p->w_o = p->ff.w_1 = p->ff.w_2 = w;
}
static int isab_open(call *c) {
  const double t = (double)c->len;
  c->points = weights(c, 64, WIDTH, 1);
  block_weights(c, &c->p.isab.induce), block_weights(c, &c->p.isab.restore);
  c->flops = 2.0 * WIDTH * WIDTH * (6 * t + 6 * 64) + 2 * 4.0 * WIDTH * 64 * t;
  return 1;
}

const method methods[] = {
    {"linear", FULL, 0, linear_open, linear_run, linear_workspace},
    {"linear causal", CAUSAL, 0, linear_causal_open, linear_run, linear_workspace},
    {"linear step", STEP, 0, linear_step_open, linear_run, linear_workspace},
    {"Performer 256", FULL, 0, performer_open, linear_run, linear_workspace},
    {"Performer 256 causal", CAUSAL, 0, performer_causal_open, linear_run, linear_workspace},
    {"RFA 128", FULL, 0, rfa_open, linear_run, linear_workspace},
    {"Linformer 256", FULL, 0, linformer_open, linformer_run, linformer_workspace},
    {"Linformer 256 mean", FULL, 0, linformer_mean_open, linformer_run, linformer_workspace},
    {"Nystrom 64", FULL, 0, nystrom_open, nystrom_run, nystrom_workspace},
    {"memory compressed 3", FULL, 0, memory_open, memory_run, memory_workspace},
    {"Poolingformer", FULL, 0, poolingformer_open, poolingformer_run, poolingformer_workspace},
    {"clustered 256/32", FULL, 0, clustered_open, clustered_run, clustered_workspace},
    {"ProbSparse 5", FULL, 0, probsparse_open, probsparse_run, probsparse_workspace},
    {"Luna 64", FULL, 4, luna_open, luna_run, luna_workspace},
    {"ISAB 64", FULL, 6, isab_open, isab_run, isab_workspace},
};
const int method_count = (int)(sizeof methods / sizeof *methods);
