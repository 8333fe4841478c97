/* decode.c owns the speed of few queries against a long cache: every figure beside the limit it is
 * held against, read bandwidth or multiply-adds, measured in turn with it. Usage: decode [tier ...],
 * default avx512 avx2 neon; DECODE_ONLY=part of a name. Rates are the best turn's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "header.h"
#include "peak.h"
#include "docs/examples/pool.h"

#define SECONDS_PER_CASE 0.6
#define SECONDS_PER_TURN 2e-3

/* What a figure is judged by. */
enum { BANDWIDTH, PEAK, LARGER, EIGHT_BITS };

typedef struct entry {
  const char *name;
  attn_dtype dtype;
  int64_t heads, kv_heads, dk, dv, keys;
  int latent; /* v is the first columns of k */
  int workers;
  int against;
  double wanted;
} entry;

static const entry entries[] = {
    {"decode/f32/Tk:32768/group:4", ATTN_F32, 32, 8, 128, 128, 32768, 0, 1, BANDWIDTH, 0.9},
    {"decode/f32/Tk:32768/group:1", ATTN_F32, 8, 8, 128, 128, 32768, 0, 1, BANDWIDTH, 0.9},
    {"decode/f16/Tk:32768/group:4", ATTN_F16, 32, 8, 128, 128, 32768, 0, 1, BANDWIDTH, 0.9},
    {"decode/bf16/Tk:32768/group:4", ATTN_BF16, 32, 8, 128, 128, 32768, 0, 1, BANDWIDTH, 0.9},
    {"decode/f32/Tk:8192/group:4", ATTN_F32, 32, 8, 128, 128, 8192, 0, 1, BANDWIDTH, 0.9},
    {"decode/f16/Tk:8192/group:4", ATTN_F16, 32, 8, 128, 128, 8192, 0, 1, BANDWIDTH, 0.9},
    {"decode/bf16/Tk:8192/group:4", ATTN_BF16, 32, 8, 128, 128, 8192, 0, 1, BANDWIDTH, 0.9},
    {"decode/f32/Tk:32768/group:4/workers:2", ATTN_F32, 32, 8, 128, 128, 32768, 0, 2, BANDWIDTH,
     0.9},
    {"decode/f16/Tk:32768/group:4/workers:2", ATTN_F16, 32, 8, 128, 128, 32768, 0, 2, BANDWIDTH,
     0.9},
    {"decode/int8/Tk:32768/group:1", ATTN_I8, 8, 8, 128, 128, 32768, 0, 1, BANDWIDTH, 0.8},
    {"decode/int8/Tk:32768/group:4", ATTN_I8, 32, 8, 128, 128, 32768, 0, 1, BANDWIDTH, 0.65},
    {"decode/int4/Tk:32768/group:1", ATTN_I4, 8, 8, 128, 128, 32768, 0, 1, EIGHT_BITS, 1.3},
    {"decode/int4/Tk:32768/group:4", ATTN_I4, 32, 8, 128, 128, 32768, 0, 1, EIGHT_BITS, 1.0},
    {"decode/f32/Tk:128/group:4", ATTN_F32, 32, 8, 128, 128, 128, 0, 1, PEAK, 0.4},
    {"decode/f16/Tk:128/group:4", ATTN_F16, 32, 8, 128, 128, 128, 0, 1, PEAK, 0.4},
    {"decode/bf16/Tk:8192/latent:64", ATTN_BF16, 64, 1, 576, 512, 8192, 1, 1, LARGER, 0.85},
    {"decode/bf16/Tk:8192/latent:16", ATTN_BF16, 16, 1, 576, 512, 8192, 1, 1, LARGER, 0.85},
};

typedef struct call {
  attn_tensor q, k, v, o;
  attn_sdpa_params params;
  attn_ctx ctx;
  double bytes, flops;
  float *memory; /* q, o, scales */
  char *cache;
} call;

static int64_t bytes_of(attn_dtype d, int64_t n) {
  return d == ATTN_F32 ? 4 * n : d == ATTN_I4 ? n / 2 : d == ATTN_I8 ? n : 2 * n;
}

/* Small finite numbers of any type: bytes of a 16-bit one keep its exponent low. */
static void fill(char *p, attn_dtype d, int64_t bytes) {
  uint32_t x = 1;
  for (int64_t i = 0; i < bytes; i++) {
    x = x * 1664525u + 1013904223u;
    p[i] = (char)(x >> 24);
    if (d <= ATTN_BF16 && i % (d == ATTN_F32 ? 4 : 2) == (d == ATTN_F32 ? 3 : 1))
      p[i] = (char)((p[i] & 0x81) | 0x38);
  }
}

static int open_call(call *c, const entry *e, attn_isa isa, pool *workers) {
  memset(c, 0, sizeof *c);
  const int64_t kb = bytes_of(e->dtype, e->kv_heads * e->keys * e->dk);
  const int64_t vb = e->latent ? 0 : bytes_of(e->dtype, e->kv_heads * e->keys * e->dv);
  const int64_t q = e->heads * e->dk, o = e->heads * e->dv, s = e->kv_heads * e->keys;
  c->cache = malloc((size_t)(kb + vb) + 64);
  c->memory = malloc((size_t)(q + o + s) * sizeof(float));
  if (!c->cache || !c->memory) return 0;
  fill(c->cache, e->dtype, kb + vb);
  for (int64_t i = 0; i < q + o + s; i++) c->memory[i] = 0.01f;
  c->q = attn_bhtd(c->memory, ATTN_F32, 1, e->heads, 1, e->dk);
  c->o = attn_bhtd(c->memory + q, ATTN_F32, 1, e->heads, 1, e->dv);
  c->k = attn_bhtd(c->cache, e->dtype, 1, e->kv_heads, e->keys, e->dk);
  c->v = e->latent ? c->k : attn_bhtd(c->cache + kb, e->dtype, 1, e->kv_heads, e->keys, e->dv);
  c->v.dim = e->dv;
  c->params.causal = 1;
  if (e->dtype == ATTN_I8 || e->dtype == ATTN_I4) {
    c->params.k_scales = attn_scales_dense(c->memory + q + o, NULL, 0, &c->k);
    c->params.v_scales = c->params.k_scales;
  }
  c->ctx.isa = isa;
  c->ctx.workers = e->workers;
  c->ctx.parallel_for = workers ? pool_run : NULL;
  c->ctx.parallel_user = workers;
  c->ctx.workspace_size = attn_sdpa_workspace(c->o, c->q, c->k, c->v, &c->params, &c->ctx);
  c->ctx.workspace = malloc(c->ctx.workspace_size);
  c->bytes = (double)(kb + vb);
  c->flops = 2.0 * (double)(e->heads * e->keys * (e->dk + e->dv));
  return c->ctx.workspace != NULL;
}

static void close_call(call *c) { free(c->cache), free(c->memory), free(c->ctx.workspace); }

/* Best seconds of a call; the limits are measured between the turns. */
static double measure(call *c, attn_isa isa, int workers, double *bandwidth, double *peak) {
  double best = 1e30, start = clock_now(), (*clock)(void) = workers > 1 ? clock_now : clock_busy;
  int calls = 1;
  for (int turn = 0; turn < 5 || clock_now() - start < SECONDS_PER_CASE; turn++) {
    double t = clock();
    for (int i = 0; i < calls; i++)
      if (attn_sdpa(c->o, c->q, c->k, c->v, &c->params, &c->ctx) != ATTN_OK) {
        printf("  %s\n", c->ctx.reason);
        return 0;
      }
    t = (clock() - t) / calls;
    if (turn && t < best) best = t;
    if (!turn && t < SECONDS_PER_TURN) calls = (int)(SECONDS_PER_TURN / t) + 1;
    double rate = peak_probe(isa);
    if (rate > *peak) *peak = rate;
    if (turn % 64 == 1) {
      rate = peak_read_bandwidth(peak_level_bytes(4, workers), workers);
      if (rate > *bandwidth) *bandwidth = rate;
    }
  }
  return best;
}

static int tier(attn_isa isa) {
  double bandwidth[3] = {0}, peak = 0;
  int bad = 0;
  if (attn_isa_status(isa) != ATTN_ISA_OK) {
    printf("%s: not run, %s\n\n", attn_isa_name(isa), attn_isa_why(isa));
    return 0;
  }
  for (int i = 0; i < 6; i++) {
    const double rate = peak_read_bandwidth(peak_level_bytes(4, i % 2 + 1), i % 2 + 1);
    if (rate > bandwidth[i % 2 + 1]) bandwidth[i % 2 + 1] = rate;
  }
  printf("%-44s %9s %7s %7s %7s %7s\n", attn_isa_name(isa), "us", "GB/s", "figure", "wanted",
         "short");
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
    const entry *e = &entries[i];
    const char *only = getenv("DECODE_ONLY");
    if (only && !strstr(e->name, only)) continue;
    pool threads, *workers = e->workers > 1 ? &threads : NULL;
    clock_pin(-1);
    pool_open(&threads, e->workers);
    clock_pin(clock_cores() - 1);
    call c;
    double seconds = 0, other = 0, figure, bytes, flops;
    if (open_call(&c, e, isa, workers))
      seconds = measure(&c, isa, e->workers, &bandwidth[e->workers], &peak);
    bytes = c.bytes, flops = c.flops;
    close_call(&c);
    if (seconds > 0 && e->against == EIGHT_BITS) {
      entry eight = *e;
      eight.dtype = ATTN_I8;
      if (open_call(&c, &eight, isa, workers))
        other = measure(&c, isa, e->workers, &bandwidth[e->workers], &peak);
      close_call(&c);
    }
    pool_close(&threads);
    const double by_bandwidth = bytes / seconds * 1e-9 / bandwidth[e->workers];
    const double by_peak = flops / seconds * 1e-9 / (peak * e->workers);
    figure = e->against == BANDWIDTH    ? by_bandwidth
             : e->against == PEAK       ? by_peak
             : e->against == EIGHT_BITS ? other / seconds
             : by_peak > by_bandwidth   ? by_peak
                                        : by_bandwidth;
    if (!(seconds > 0)) figure = 0, bad = 1;
    printf("%-44s %9.1f %7.1f %7.2f %7.2f %7s\n", e->name, seconds * 1e6, bytes / seconds * 1e-9,
           figure, e->wanted, figure < e->wanted ? "short" : "");
    fflush(stdout);
  }
  printf("read bandwidth %.1f GB/s, of two %.1f; peak %.1f GFLOP/s\n\n", bandwidth[1], bandwidth[2],
         peak);
  return bad;
}

int main(int argc, char **argv) {
  static const attn_isa usual[] = {ATTN_ISA_AVX512, ATTN_ISA_AVX2, ATTN_ISA_NEON};
  int bad = 0;
  clock_pin(clock_cores() - 1);
  for (int i = 1; i < argc; i++)
    for (int isa = ATTN_ISA_SCALAR; isa < ATTN_ISA_COUNT; isa++)
      if (!strcmp(argv[i], attn_isa_name((attn_isa)isa))) bad |= tier((attn_isa)isa);
  for (int i = 0; argc == 1 && i < 3; i++)
    if (attn_isa_status(usual[i]) == ATTN_ISA_OK) bad |= tier(usual[i]);
  return bad;
}
