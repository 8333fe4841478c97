/* maps.c owns the picture of docs/maps.md: score maps of a line of patches across the photograph, alone,
 * with the scores of the layer below, behind a convolution, and made without dot products.
 *
 * Usage: maps FOLDER draws maps.png; `make gallery` runs it. */
#include "photo.h"

enum { LINE = 330, LEFT = 96, LEN = 64, APART = 4, RANK = 4, BLOCKS = 4, CELL = 4, GAP = 8 };
enum { PANEL = LEN * CELL, EDGE = LEN / BLOCKS };

#define SCALE 7.0f

static attn_ctx ctx;
static float below[LEN * WIDTH], here[LEN * WIDTH]; /* what the two layers see of the patches */
static float scores[LEN * LEN], map[LEN * LEN], out[LEN * WIDTH];

/* Length 1, or less where a patch is nearly flat. */
static void unit(float *x, const double *p, double floor) {
  double square = floor;
  for (int c = 0; c < WIDTH; c++) square += p[c] * p[c];
  for (int c = 0; c < WIDTH; c++) x[c] = (float)(p[c] / sqrt(square));
}

/* Patches of 8 x 8 pixels, 4 pixels apart: with half of their mean for the layer below, without it here. */
static void read_line(void) {
  const double all = photo_sum(0, 0, PHOTO) / (PHOTO * PHOTO);
  for (int64_t t = 0; t < LEN; t++) {
    const double mean = photo_sum(LINE, LEFT + t * APART, PATCH) / WIDTH;
    double p[WIDTH];
    for (int64_t c = 0; c < WIDTH; c++)
      p[c] = photo_sum(LINE + c / PATCH, LEFT + t * APART + c % PATCH, 1) - (mean + all) / 2;
    unit(below + t * WIDTH, p, 0);
    for (int64_t c = 0; c < WIDTH; c++) p[c] -= (mean - all) / 2;
    unit(here + t * WIDTH, p, 500);
  }
}

static attn_tensor square(float *x) { return rows(x, LEN, LEN); }
static attn_sdpa_params asked(void) {
  return (attn_sdpa_params){.scale = SCALE, .map = square(map)};
}

/* Panel n: black is the largest weight of a row. */
static void draw_map(int n) {
  for (int64_t i = 0; i < LEN; i++) {
    uint8_t *to =
        canvas + (n / 4 * (PANEL + GAP) + i * CELL) * canvas_width + n % 4 * (PANEL + GAP);
    float most = 0;
    for (int64_t j = 0; j < LEN; j++) most = map[i * LEN + j] > most ? map[i * LEN + j] : most;
    for (int64_t j = 0; j < LEN; j++) {
      const int level = (int)(sqrt((double)map[i * LEN + j] / (double)most) * (GREYS - 1) + 0.5);
      memset(to + j * CELL, TINTS * GREYS + GREYS - 1 - level, CELL);
    }
    for (int64_t y = 1; y < CELL; y++) memcpy(to + y * canvas_width, to, PANEL);
  }
}

/* ---- the maps ---- */

static void layers(void) {
  attn_tensor o = rows(out, LEN, WIDTH), x = rows(below, LEN, WIDTH), y = rows(here, LEN, WIDTH);
  float diagonal[25] = {0}; /* what a patch's neighbours look at, moved along with them */
  for (int n = 0; n < 5; n++) diagonal[6 * n] = 0.2f;
  const attn_tensor kernel = attn_bhtd(diagonal, ATTN_F32, 1, 1, 5, 5);

  attn_realformer_params first = {.scores = square(scores), .attention = asked()};
  MUST(attn_realformer(o, x, x, y, &first, &ctx));
  draw_map(1);
  attn_realformer_params second = {.attention = asked()};
  MUST(attn_realformer(o, y, y, y, &second, &ctx));
  draw_map(2);
  second.previous = square(scores);
  MUST(attn_realformer(o, y, y, y, &second, &ctx));
  draw_map(3);
  attn_predictive_params p = {.previous = square(scores), .kernel = kernel, .attention = asked()};
  MUST(attn_predictive(o, y, y, y, &p, &ctx));
  draw_map(4);
  p.evolving = 1;
  MUST(attn_predictive(o, y, y, y, &p, &ctx));
  draw_map(5);
}

/* The first axes of the layer below's patches, by powers of their products: no other factors of this width
 * come nearer to its scores. */
static void axes(double v[RANK][WIDTH]) {
  for (int r = 0; r < RANK; r++)
    for (int c = 0; c < WIDTH; c++) v[r][c] = (c + 1) * (r + 2) % 7 - 3;
  for (int round = 0; round < 200; round++)
    for (int r = 0; r < RANK; r++) {
      double next[WIDTH] = {0}, size = 0;
      for (int t = 0; t < LEN; t++) {
        double dot = 0;
        for (int c = 0; c < WIDTH; c++) dot += (double)below[t * WIDTH + c] * v[r][c];
        for (int c = 0; c < WIDTH; c++) next[c] += (double)below[t * WIDTH + c] * dot;
      }
      for (int other = 0; other < r; other++) {
        double dot = 0;
        for (int c = 0; c < WIDTH; c++) dot += next[c] * v[other][c];
        for (int c = 0; c < WIDTH; c++) next[c] -= dot * v[other][c];
      }
      for (int c = 0; c < WIDTH; c++) size += next[c] * next[c];
      for (int c = 0; c < WIDTH; c++) v[r][c] = next[c] / sqrt(size);
    }
}

static void factored(void) {
  static float r1[LEN * RANK], r2[LEN * RANK];
  double v[RANK][WIDTH];
  axes(v);
  for (int t = 0; t < LEN; t++)
    for (int r = 0; r < RANK; r++) {
      double dot = 0;
      for (int c = 0; c < WIDTH; c++) dot += (double)below[t * WIDTH + c] * v[r][c];
      r1[t * RANK + r] = (float)(dot * (double)SCALE), r2[t * RANK + r] = (float)dot;
    }
  const attn_synthesizer_source source = {.kind = ATTN_SYNTHESIZER_RANDOM_FACTORED,
                                          .r1 = rows(r1, LEN, RANK),
                                          .r2 = rows(r2, LEN, RANK)};
  const attn_synthesizer_params p = {.sources = &source, .count = 1, .map = square(map)};
  MUST(attn_synthesizer(rows(out, LEN, WIDTH), rows(here, LEN, WIDTH), &p, &ctx));
  draw_map(6);
}

static void prior(void) {
  static float blocks[BLOCKS * EDGE * EDGE];
  for (int n = 0; n < BLOCKS * EDGE * EDGE; n++) blocks[n] = 2;
  const attn_tensor y = rows(here, LEN, WIDTH);
  const attn_camtl_params p = {.blocks = attn_bhtd(blocks, ATTN_F32, 1, BLOCKS, EDGE, EDGE),
                               .attention = asked()};
  MUST(attn_camtl(rows(out, LEN, WIDTH), y, y, y, &p, &ctx));
  draw_map(7);
}

int main(int argc, char **argv) {
  program = "maps";
  if (argc != 2) fail("usage", "maps FOLDER");
  photo_read();
  read_line();
  canvas_open(4 * PANEL + 3 * GAP, 2 * PANEL + GAP);
  panel(0, 0, (grid){64, 1}, PANEL / 64, NULL, DETAIL, -1);
  for (int64_t y = -1; y <= PATCH / 2; y += PATCH / 2 + 1)
    memset(canvas + (LINE / 2 + y) * canvas_width + LEFT / 2, MARK, (LEN * APART + PATCH) / 2);
  layers();
  factored();
  prior();
  canvas_write(argv[1], "maps");
  return 0;
}
