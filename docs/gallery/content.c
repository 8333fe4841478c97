/* content.c owns the pictures and the numbers of docs/content.md: which keys the methods of family D choose
 * for a patch of the photograph, how much of dense attention's weight these keys have, and what it costs.
 *
 * Usage: content FOLDER draws content_*.png, and prints the shares; content --time prints the times.
 * `make gallery` does the first, `make content-time` the second. */
#include <time.h>

#include "photo.h"

/* exp(SCALE cos): a key at an angle of 37 degrees weighs exp(-SCALE / 5) of one at 0. */
#define SCALE 20.0f

static attn_ctx ctx;

/* What all methods see: T tokens as queries, keys and, in the table, values. */
static struct {
  grid g;
  int64_t n, block;
  float *x, *v, *o, *lse, *dense;
  int64_t dv;
  attn_tensor centroids;
  int32_t *choice;
  attn_tensor gate, gate_w;
  int64_t pairs; /* that the last method has computed scores of */
} in;

static attn_tensor tokens(void) { return rows(in.x, in.n, WIDTH); }
static attn_tensor values(void) { return rows(in.v, in.n, in.dv); }
static attn_tensor output(void) { return rows(in.o, in.n, in.dv); }
static attn_tensor sums(void) { return rows(in.lse, in.n, 1); }

/* ---- the methods ---- */

static void dense(void) {
  const attn_sdpa_params p = {.scale = SCALE, .lse = sums()};
  MUST(attn_sdpa(output(), tokens(), tokens(), values(), &p, &ctx));
}

static void topk(void) {
  const attn_topk_params p = {.k = in.n / 32, .attention = {.scale = SCALE, .lse = sums()}};
  MUST(attn_topk_sdpa(output(), tokens(), tokens(), values(), &p, &ctx));
}

static void lsh(void) {
  const int64_t chunk = in.g.side / 2;
  const int32_t buckets = (int32_t)(2 * in.n / chunk);
  const attn_lsh_params p = {.rounds = 4,
                             .factors = &buckets,
                             .factor_count = 1,
                             .chunk = chunk,
                             .before = 1,
                             .self = ATTN_LSH_SELF_PENALTY,
                             .penalty = ATTN_ZERO,
                             .scale = SCALE,
                             .seed = 1,
                             .lse = sums()};
  MUST(attn_lsh(output(), tokens(), values(), NULL, &p, &ctx));
}

static attn_routing_params routing_params(void) {
  return (attn_routing_params){.norm = ATTN_ROUTING_NONE,
                               .combine = ATTN_ROUTING_UNION,
                               .shared = 1,
                               .w = 2 * (in.n / in.g.side),
                               .wk = 2 * (in.n / in.g.side),
                               .scale = SCALE};
}

static void routing(void) {
  attn_routing_params p = routing_params();
  p.lse = sums();
  MUST(attn_routing(output(), tokens(), (attn_tensor){0}, values(), in.centroids, &p, &ctx));
}

static void sinkhorn(void) {
  const attn_sinkhorn_params p = {
      .block = in.block, .hard = 1, .choice = in.choice, .scale = SCALE, .lse = sums()};
  MUST(attn_sinkhorn(output(), tokens(), tokens(), values(), (attn_tensor){0}, &p, &ctx));
}

/* A network of zeros draws every node alike, T / 32 edges for each. */
static void sac(void) {
  static float zero[4], one;
  const attn_sac_params p = {.lstm = {.w_ih = rows(zero, 4, 1), .w_hh = rows(zero, 4, 1)},
                             .w_p = rows(zero, 1, 1),
                             .alpha = (double)in.n / 32,
                             .forced = 1,
                             .sampled = 1,
                             .seed = 1,
                             .scale = SCALE,
                             .lse = sums()};
  attn_tensor e = rows(&one, in.n, 1);
  e.stride_len = 0;
  MUST(attn_sac(output(), tokens(), tokens(), values(), NULL, NULL, 0, e, &p, &ctx));
}

static void mixture(void) {
  attn_schedule near;
  const attn_pattern p = attn_pattern_blocks(in.block, 0, 0);
  MUST(attn_schedule_build(&near, &p, 1, in.n, in.n, NULL, &ctx));
  float *near_lse = floats(in.n);
  const attn_sdpa_params local = {
      .scale = SCALE, .schedule = &near, .lse = rows(near_lse, in.n, 1)};
  const attn_sdpa_params all = {.scale = SCALE, .lse = sums()};
  const attn_expert path[2] = {{tokens(), tokens(), values(), &local},
                               {tokens(), tokens(), values(), &all}};
  const attn_mixture_params gate = {.k = 1};
  MUST(attn_gated(output(), path, 2, in.gate, in.gate_w, &gate, &ctx));
  for (int64_t t = 0; t < in.n; t++)
    if (near_lse[t] > in.lse[t]) in.lse[t] = near_lse[t]; /* the other is -inf */
  attn_schedule_free(&near);
  free(near_lse);
}

typedef struct method {
  const char *name;
  void (*run)(void);
} method;

static const method methods[] = {
    {"dense", dense},       {"top-k", topk},         {"LSH", lsh},        {"routing", routing},
    {"Sinkhorn", sinkhorn}, {"SAC, untrained", sac}, {"mixture", mixture}};
enum { METHODS = sizeof methods / sizeof *methods };

/* ---- what a trained model would bring ---- */

/* Centroids: tokens to begin with, then where their tokens are, ten times over. */
static void learn_centroids(int64_t count) {
  in.centroids = rows(floats(count * WIDTH), count, WIDTH);
  const attn_routing_params p = routing_params();
  const attn_routing_update_params move = {
      .rule = ATTN_ROUTING_DIRECTION, .decay = ATTN_ZERO, .renormalize = 1};
  MUST(attn_routing_start(in.centroids, tokens(), p.norm, 1, &ctx));
  for (int round = 0; round < 10; round++)
    MUST(attn_routing_update(in.centroids, tokens(), (attn_tensor){0}, in.centroids, &p, &move,
                             &ctx));
}

/* Sorting of blocks: logits are the products of the blocks' sums; a block does not go to its own place. */
static void learn_sorting(void) {
  const int64_t blocks = in.n / in.block;
  float *sum = floats(blocks * WIDTH), *logit = floats(blocks * blocks),
        *p = floats(blocks * blocks);
  const attn_sinkhorn_params sort = {.block = in.block, .tau = 0.1f};
  MUST(attn_sinkhorn_blocks(rows(sum, blocks, WIDTH), tokens(), &sort, &ctx));
  for (int64_t i = 0; i < blocks; i++) {
    double square = 0;
    for (int64_t c = 0; c < WIDTH; c++)
      square += (double)sum[i * WIDTH + c] * (double)sum[i * WIDTH + c];
    for (int64_t c = 0; c < WIDTH; c++)
      sum[i * WIDTH + c] = (float)((double)sum[i * WIDTH + c] / sqrt(square));
  }
  const attn_tensor y = rows(sum, blocks, WIDTH);
  MUST(attn_gemm(rows(logit, blocks, blocks), y, y, &(attn_gemm_params){.w_transposed = 1}, &ctx));
  for (int64_t i = 0; i < blocks; i++) logit[i * blocks + i] = -INFINITY;
  MUST(attn_sinkhorn_balance(rows(p, blocks, blocks), rows(logit, blocks, blocks), &sort, &ctx));
  in.choice = room(blocks, sizeof(int32_t));
  MUST(attn_sinkhorn_choose(in.choice, rows(p, blocks, blocks), &sort, &ctx));
  free(sum), free(logit), free(p);
}

/* The gate sees how much a patch varies: flat ones go to their own block, the others to all keys. */
static void learn_gate(void) {
  static float w[4] = {-1, 1, 0, 0};
  float *x = floats(2 * in.n);
  for (int64_t t = 0; t < in.n; t++) {
    double mean = 0, square = 0;
    for (int64_t c = 0; c < WIDTH; c++) mean += (double)in.x[t * WIDTH + c] / WIDTH;
    for (int64_t c = 0; c < WIDTH; c++) {
      const double d = (double)in.x[t * WIDTH + c] - mean;
      square += d * d; /* of 1 in all */
    }
    x[2 * t] = (float)(square - 0.05), x[2 * t + 1] = 1;
  }
  in.gate = rows(x, in.n, 2), in.gate_w = rows(w, 2, 2);
}

static void begin(int64_t side) {
  in.g = (grid){side, side / 8};
  in.n = side * side, in.block = in.g.block * in.g.block;
  in.x = floats(in.n * WIDTH);
  grid_tokens(in.g, side < 64 ? 64 / side : 1, in.x);
  in.lse = floats(in.n);
  learn_centroids(side);
  learn_sorting();
  learn_gate();
}

static void end(void) {
  free(in.x), free(in.lse), free(in.centroids.data), free(in.choice), free(in.gate.data);
}

/* ---- what is measured ---- */

/* Of the weight that dense attention gives to other patches than the query's own, the share that the last
 * method's keys have: exp(LSE - LSE of dense) is that of all its keys. */
static double caught(void) {
  double got = 0, all = 0;
  for (int64_t t = 0; t < in.n; t++) {
    const double own = exp((double)SCALE - (double)in.dense[t]);
    const double sum = exp((double)in.lse[t] - (double)in.dense[t]);
    got += sum > own ? sum - own : 0, all += 1 - own;
  }
  return got / all;
}

static double computed(void) { return (double)ctx.report.pairs / ((double)in.n * (double)in.n); }

/* ---- the pictures ---- */

enum { SIDE = 32, CELL = 8, PANEL = SIDE * CELL, GAP = 8, TURNS = 9 };

/* Values are the unit vectors, so that outputs are the weights themselves. Prints how many keys a query has
 * a weight for, the share of dense attention's weight they have, and that of all scores computed. */
static void draw(const char *folder) {
  static const struct {
    const char *name;
    int64_t y, x;
  } query[] = {{"content_light", 14, 17}, {"content_rail", 27, 26}, {"content_back", 17, 26}};
  enum { QUERIES = sizeof query / sizeof *query };
  begin(SIDE);
  in.dv = in.n;
  in.v = floats(in.n * in.n), in.dense = floats(in.n);
  for (int64_t t = 0; t < in.n; t++) in.v[t * in.n + t] = 1;
  float *map = floats(METHODS * in.n * in.n);
  for (int m = 0; m < METHODS; m++) {
    int64_t keys = 0;
    in.o = map + m * in.n * in.n;
    methods[m].run();
    if (m == 0) memcpy(in.dense, in.lse, (size_t)in.n * sizeof(float));
    for (int64_t e = 0; e < in.n * in.n; e++) keys += in.o[e] > 0;
    printf("| %s | %.0f | %.2f | %.3f |\n", methods[m].name, (double)keys / (double)in.n, caught(),
           computed());
  }
  uint8_t *level = room(in.n, 1);
  for (int q = 0; q < QUERIES; q++) {
    int64_t t = 0;
    while (grid_place(in.g, t) != query[q].y * SIDE + query[q].x) t++;
    canvas_open(4 * PANEL + 3 * GAP, 2 * PANEL + GAP);
    panel(0, 0, in.g, CELL, NULL, DETAIL, t);
    for (int m = 0; m < METHODS; m++) {
      const double least = methods[m].run == dense || methods[m].run == mixture ? 1e-3 : 0;
      levels(level, map + (m * in.n + t) * in.n, in.n, least);
      panel((m + 1) % 4 * (PANEL + GAP), (m + 1) / 4 * (PANEL + GAP), in.g, CELL, level, DETAIL, t);
    }
    canvas_write(folder, query[q].name);
  }
  free(level), free(map), free(in.v), free(in.dense);
  end();
}

/* ---- the tables ---- */

/* The least processor time of each method, which take turns. */
static void time_all(double *least) {
  for (int turn = 0; turn < TURNS; turn++)
    for (int m = 0; m < METHODS; m++) {
      if (methods[m].run == sac) continue;
      const clock_t from = clock();
      methods[m].run();
      const double t = (double)(clock() - from) / CLOCKS_PER_SEC;
      if (turn == 0 || t < least[m]) least[m] = t;
    }
}

/* A row of the page for each method, of two lengths side by side. */
static void table(int timed) {
  static char row[METHODS][256];
  double least[METHODS] = {0};
  for (int m = 0; m < METHODS; m++) strcpy(row[m], methods[m].name);
  for (int64_t side = 64; side <= (timed ? 128 : 64); side *= 2) {
    begin(side);
    in.dv = WIDTH, in.v = in.x;
    in.o = floats(in.n * WIDTH), in.dense = floats(in.n);
    if (timed) time_all(least);
    for (int m = 0; m < METHODS; m++) {
      char *to = row[m] + strlen(row[m]);
      if (methods[m].run == sac) continue;
      methods[m].run();
      if (m == 0) memcpy(in.dense, in.lse, (size_t)in.n * sizeof(float));
      to += sprintf(to, " | %.2f | %.3f", caught(), computed());
      if (timed) sprintf(to, " | %.1f ms | %.1f", 1e3 * least[m], least[0] / least[m]);
    }
    free(in.o), free(in.dense);
    end();
  }
  for (int m = 0; m < METHODS; m++)
    if (methods[m].run != sac) printf("| %s |\n", row[m]);
}

int main(int argc, char **argv) {
  program = "content";
  if (argc != 2) fail("usage", "content FOLDER, or content --time");
  photo_read();
  const int timed = strcmp(argv[1], "--time") == 0;
  if (!timed) draw(argv[1]);
  table(timed);
  return 0;
}
