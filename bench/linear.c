/* linear.c owns what attention of less than quadratic cost is worth: the time of every method of
 * approximations.c beside that of dense attention, measured in turn with it, for sequences from 512 to
 * 65536, and how far its outputs are from exact attention's. One thread; rates are the best turn's.
 * Usage: linear CSV [tier ...], default avx512 avx2 neon; LINEAR_ONLY=part of a name. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "approximations.h"
#include "clock.h"
#include "peak.h"

#define SECONDS_PER_CASE 0.25
#define SECONDS_PER_TURN 2e-3
/* Pairs that the dense side computes at once: of longer sequences it takes some of the rows. */
#define DENSE_PAIRS ((int64_t)1 << 24)
#define LONGEST_ERROR 16384

enum { FIRST = 512, LENGTHS = 8, INPUTS = 3 };

/* What q, k, v hold. normal: numbers without any relation. image: patches of a picture along a path,
 * so that neighbours are alike, through random projections. peaked: q and k are the patches. */
static const char *const input_names[INPUTS] = {"normal", "image", "peaked"};

static struct {
  float *q, *k, *v, *o, *exact; /* [MAX_LENGTH][WIDTH] */
  float *cache;                 /* keys and values of a step */
  float *w;                     /* [WIDTH][WIDTH] */
} data;

static attn_tensor rows(float *x, int64_t len) { return attn_bhtd(x, ATTN_F32, 1, 1, len, WIDTH); }

static int make_data(void) {
  const size_t n = (size_t)MAX_LENGTH * WIDTH * sizeof(float);
  float **all[] = {&data.q, &data.k, &data.v, &data.o, &data.exact};
  for (int i = 0; i < 5; i++)
    if (!(*all[i] = aligned_alloc(64, n))) return 0;
  data.cache = aligned_alloc(64, 2 * STEP_HEADS * n);
  data.w = aligned_alloc(64, WIDTH * WIDTH * sizeof(float));
  for (size_t i = 0; data.cache && i < 2 * STEP_HEADS * n / sizeof(float); i++)
    data.cache[i] = (float)(i % 251) * 0.01f - 1.25f;
  return data.cache && data.w;
}

/* --- inputs of the errors ------------------------------------------------------------------------*/

/* Patches of 8 x 8 points, 4 points from one to the next, back and forth over docs/ascent.pgm; each
 * of the 64 numbers of a patch has mean 0 and square 1 over the sequence. 0 without the picture. */
static int image_fill(float *x, int64_t len) {
  static unsigned char picture[512 * 512];
  static int have;
  enum { SIDE = 126 }; /* patches a row */
  if (!have) {
    FILE *f = fopen("docs/ascent.pgm", "rb");
    have = f && fscanf(f, "P5 512 512 255") == 0 && fgetc(f) != EOF &&
           fread(picture, 1, sizeof picture, f) == sizeof picture;
    if (f) fclose(f);
    if (!have) return 0;
  }
  for (int64_t t = 0; t < len; t++) {
    const int64_t row = t / SIDE % SIDE, turn = t / SIDE % 2, at = t % SIDE;
    const int64_t column = turn ? SIDE - 1 - at : at;
    for (int c = 0; c < WIDTH; c++)
      x[t * WIDTH + c] = picture[(row * 4 + c / 8) * 512 + column * 4 + c % 8];
  }
  for (int c = 0; c < WIDTH; c++) {
    double sum = 0, square = 0;
    for (int64_t t = 0; t < len; t++) sum += (double)x[t * WIDTH + c];
    for (int64_t t = 0; t < len; t++)
      square += pow((double)x[t * WIDTH + c] - sum / (double)len, 2);
    for (int64_t t = 0; t < len; t++)
      x[t * WIDTH + c] = (float)(((double)x[t * WIDTH + c] - sum / (double)len) /
                                 sqrt(square / (double)len + 1e-9));
  }
  return 1;
}

static int inputs_fill(int input, int64_t len) {
  float *const to[3] = {data.q, data.k, data.v};
  if (input == 0) {
    for (int i = 0; i < 3; i++) normal_fill(to[i], len * WIDTH, 1, (uint64_t)(1 + i));
    return 1;
  }
  if (!image_fill(data.o, len)) return 0;
  for (int i = 0; i < 3; i++) {
    if (input == 2 && i < 2) {
      memcpy(to[i], data.o, (size_t)len * WIDTH * sizeof(float));
      continue;
    }
    normal_fill(data.w, WIDTH * WIDTH, 1 / sqrt((double)WIDTH), (uint64_t)(11 + i));
    if (attn_gemm(rows(to[i], len), rows(data.o, len), rows(data.w, WIDTH), NULL, NULL) != ATTN_OK)
      return 0;
  }
  return 1;
}

/* --- calls ---------------------------------------------------------------------------------------*/

static int open_call(call *c, const method *m, int64_t len, attn_isa isa, attn_ctx *ctx) {
  memset(c, 0, sizeof *c);
  memset(ctx, 0, sizeof *ctx);
  c->len = len;
  c->q = rows(data.q, len), c->k = rows(data.k, len), c->v = rows(data.v, len);
  c->o = rows(data.o, len);
  if (m->dense == STEP) {
    float *at = data.cache;
    c->q = attn_bhtd(data.q, ATTN_F32, 1, STEP_HEADS, 1, WIDTH), c->o = c->q;
    c->o.data = data.o;
    c->k = attn_bhtd(at, ATTN_F32, 1, STEP_HEADS, len, WIDTH);
    c->v = attn_bhtd(at + STEP_HEADS * len * WIDTH, ATTN_F32, 1, STEP_HEADS, len, WIDTH);
  }
  ctx->isa = isa;
  if (!m->open(c)) return 0;
  ctx->workspace_size = m->workspace(c, ctx);
  ctx->workspace =
      ctx->workspace_size ? aligned_alloc(64, (ctx->workspace_size + 63) / 64 * 64) : NULL;
  return !ctx->workspace_size || ctx->workspace;
}

static void close_call(call *c, attn_ctx *ctx) {
  for (int i = 0; i < c->extras; i++) free(c->extra[i]);
  free(c->state), free(ctx->workspace);
}

/* The dense side: rows of the middle of a long sequence, whose causal rows see half the keys. */
typedef struct peer {
  attn_tensor q, k, v, o, w;
  attn_sdpa_params params;
  attn_ctx ctx;
  int products;
  double scale;           /* of its time, for all rows */
  double flops;           /* of all rows */
  double attention, rest; /* best seconds */
} peer;

static int open_peer(peer *p, const method *m, int64_t len, attn_isa isa) {
  memset(p, 0, sizeof *p);
  p->ctx.isa = isa;
  p->products = m->products;
  if (m->dense == STEP) {
    p->q = attn_bhtd(data.q, ATTN_F32, 1, STEP_HEADS, 1, WIDTH), p->o = p->q;
    p->o.data = data.exact;
    p->k = attn_bhtd(data.cache, ATTN_F32, 1, STEP_HEADS, len, WIDTH), p->v = p->k;
    p->v.data = data.cache + STEP_HEADS * len * WIDTH;
    p->scale = 1;
    p->flops = 4.0 * STEP_HEADS * WIDTH * (double)len;
  } else {
    int64_t some = DENSE_PAIRS / len, first;
    if (some > len) some = len;
    first = (len - some) / 2;
    p->q = rows(data.q + first * WIDTH, some), p->o = rows(data.exact, some);
    p->k = rows(data.k, len), p->v = rows(data.v, len);
    p->params.causal = m->dense == CAUSAL;
    p->params.has_q_off = 1, p->params.q_off = first;
    p->w = rows(data.w, WIDTH);
    p->scale = (double)len / (double)some;
    p->flops = 4.0 * WIDTH * (double)len * (double)len / (m->dense == CAUSAL ? 2 : 1) +
               p->products * 2.0 * WIDTH * WIDTH * (double)len;
  }
  p->attention = p->rest = 1e30;
  p->ctx.workspace_size = attn_sdpa_workspace(p->o, p->q, p->k, p->v, &p->params, &p->ctx);
  p->ctx.workspace = malloc(p->ctx.workspace_size + 1);
  return p->ctx.workspace != NULL;
}

/* Its turn; 0 on failure. */
static int peer_turn(peer *p, int calls) {
  double t = clock_busy();
  for (int i = 0; i < calls; i++)
    if (attn_sdpa(p->o, p->q, p->k, p->v, &p->params, &p->ctx) != ATTN_OK) return 0;
  t = (clock_busy() - t) / calls;
  if (t < p->attention) p->attention = t;
  if (!p->products) return p->rest = 0, 1;
  attn_ctx ctx;
  memset(&ctx, 0, sizeof ctx);
  ctx.isa = p->ctx.isa;
  t = clock_busy();
  for (int i = 0; i < calls; i++)
    if (attn_gemm(rows(data.o, p->k.len), rows(data.q, p->k.len), p->w, NULL, &ctx) != ATTN_OK)
      return 0;
  t = (clock_busy() - t) / calls;
  if (t < p->rest) p->rest = t;
  return 1;
}

typedef struct result {
  double seconds, dense; /* of a call */
  double flops, dense_flops, peak;
  double error[INPUTS]; /* NaN: none */
} result;

static int measure(result *r, const method *m, int64_t len, attn_isa isa) {
  call c;
  peer p;
  attn_ctx ctx;
  int good = open_call(&c, m, len, isa, &ctx) && open_peer(&p, m, len, isa), calls = 1, others = 1;
  const double start = clock_now();
  r->seconds = 1e30, r->peak = 0;
  for (int turn = 0; good && (turn < 4 || clock_now() - start < SECONDS_PER_CASE); turn++) {
    double t = clock_busy();
    for (int i = 0; good && i < calls; i++) good = m->run(&c, &ctx) == ATTN_OK;
    t = (clock_busy() - t) / calls;
    if (turn && t < r->seconds) r->seconds = t;
    if (!turn && t < SECONDS_PER_TURN) calls = (int)(SECONDS_PER_TURN / t) + 1;
    good = good && peer_turn(&p, others);
    if (!turn && p.attention < SECONDS_PER_TURN) others = (int)(SECONDS_PER_TURN / p.attention) + 1;
    const double rate = peak_probe(isa);
    if (rate > r->peak) r->peak = rate;
  }
  if (!good) printf("%s: %s\n", m->name, ctx.reason ? ctx.reason : "out of memory");
  r->flops = c.flops;
  r->dense = p.attention * p.scale + p.rest * p.products, r->dense_flops = p.flops;
  close_call(&c, &ctx), free(p.ctx.workspace);
  return good;
}

/* The norm of the difference to exact attention over that of exact attention; data.exact holds it. */
static double error_of(const method *m, int64_t len, attn_isa isa) {
  call c;
  attn_ctx ctx;
  double off = 0, size = 0;
  int good = open_call(&c, m, len, isa, &ctx);
  if (good && c.times > 0) {
    good = m->run(&c, &ctx) == ATTN_OK;
    for (int64_t i = 0; i < len * WIDTH; i++) {
      const double want = (double)data.exact[i];
      off += pow((double)data.o[i] * c.times - want, 2), size += want * want;
    }
  }
  const int none = !good || c.times <= 0;
  close_call(&c, &ctx);
  return none ? (double)NAN : sqrt(off / size);
}

/* Errors of all methods for one length, which do not depend on the tier. */
static int errors(result *at, int stride, int64_t len, attn_isa isa, const char *only) {
  for (int input = 0; input < INPUTS; input++)
    for (int dense = FULL; dense <= CAUSAL; dense++) {
      attn_sdpa_params p;
      memset(&p, 0, sizeof p);
      p.causal = dense == CAUSAL;
      if (!inputs_fill(input, len)) return 0;
      if (attn_sdpa(rows(data.exact, len), rows(data.q, len), rows(data.k, len), rows(data.v, len),
                    &p, NULL) != ATTN_OK)
        return 0;
      for (int i = 0; i < method_count; i++)
        if (methods[i].dense == dense && (!only || strstr(methods[i].name, only)))
          at[i * stride].error[input] = error_of(&methods[i], len, isa);
    }
  return 1;
}

static const char *unit(double seconds, char *text, size_t size) {
  snprintf(text, size, seconds < 1e-3 ? "%.1f us" : "%.2f ms",
           seconds * (seconds < 1e-3 ? 1e6 : 1e3));
  return text;
}

static int tier(FILE *csv, attn_isa isa, result *table, const char *only) {
  int bad = 0;
  char a[24], b[24];
  printf("%s\n%-22s %6s %11s %11s %9s %8s %7s   %s\n", attn_isa_name(isa), "", "T", "time", "dense",
         "faster", "reached", "growth", "error: normal, image, peaked");
  for (int i = 0; i < method_count; i++) {
    if (only && !strstr(methods[i].name, only)) continue;
    for (int l = 0; l < LENGTHS; l++) {
      const int64_t len = (int64_t)FIRST << l;
      result *r = &table[i * LENGTHS + l];
      if (!measure(r, &methods[i], len, isa)) {
        bad = 1;
        break;
      }
      const double faster = r->dense / r->seconds;
      printf("%-22s %6d %11s %11s %9.2f %8.2f", l ? "" : methods[i].name, (int)len,
             unit(r->seconds, a, sizeof a), unit(r->dense, b, sizeof b), faster,
             faster / (r->dense_flops / r->flops));
      if (l)
        printf(" %7.2f  ", r->seconds / (r - 1)->seconds);
      else
        printf(" %7s  ", "");
      fprintf(csv, "%s,%s,%d,%d,%.9g,%.9g,%.9g,%.9g,%.5g", attn_isa_name(isa), methods[i].name,
              methods[i].dense, (int)len, r->seconds, r->dense, r->flops, r->dense_flops, r->peak);
      for (int e = 0; e < INPUTS; e++) {
        if (r->error[e] == r->error[e]) printf(" %.4f", r->error[e]);
        fprintf(csv, r->error[e] == r->error[e] ? ",%.5g" : ",", r->error[e]);
      }
      printf("\n"), fprintf(csv, "\n");
      fflush(stdout);
    }
  }
  printf("\n");
  return bad;
}

int main(int argc, char **argv) {
  static const attn_isa usual[] = {ATTN_ISA_AVX512, ATTN_ISA_AVX2, ATTN_ISA_NEON};
  const char *only = getenv("LINEAR_ONLY");
  result *table = calloc((size_t)(method_count * LENGTHS), sizeof *table);
  FILE *csv = argc > 1 ? fopen(argv[1], "w") : NULL;
  int bad = 0;
  if (!csv || !table || !make_data()) {
    printf("usage: linear CSV [tier ...]\n");
    return 1;
  }
  clock_pin(clock_cores() - 1);
  for (int i = 0; i < method_count * LENGTHS; i++)
    for (int e = 0; e < INPUTS; e++) table[i].error[e] = (double)NAN;
  for (int l = 0; l < LENGTHS && (int64_t)FIRST << l <= LONGEST_ERROR; l++)
    if (!errors(table + l, LENGTHS, (int64_t)FIRST << l, ATTN_ISA_AUTO, only)) {
      printf("no errors: run it where docs/ascent.pgm is\n");
      return 1;
    }
  inputs_fill(0, MAX_LENGTH);
  fprintf(csv, "tier,method,dense,T,seconds,dense_seconds,flops,dense_flops,peak_gflops");
  for (int e = 0; e < INPUTS; e++) fprintf(csv, ",error_%s", input_names[e]);
  fprintf(csv, "\n");
  printf(
      "faster: time of dense attention over that of the method; reached: that over the ratio of "
      "their\n"
      "flops; growth: time over that of half the sequence. Dense attention of more than 4096 keys "
      "is\n"
      "measured on some of the rows.\n\n");
  for (int i = 2; i < argc; i++)
    for (int isa = ATTN_ISA_SCALAR; isa < ATTN_ISA_COUNT; isa++)
      if (!strcmp(argv[i], attn_isa_name((attn_isa)isa)) &&
          attn_isa_status((attn_isa)isa) == ATTN_ISA_OK)
        bad |= tier(csv, (attn_isa)isa, table, only);
  for (int i = 0; argc == 2 && i < 3; i++)
    if (attn_isa_status(usual[i]) == ATTN_ISA_OK) bad |= tier(csv, usual[i], table, only);
  fclose(csv);
  return bad;
}
