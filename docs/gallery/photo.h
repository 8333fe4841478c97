/* photo.h owns what the pages' programs share: the patches of docs/ascent.pgm as tokens, calls that end the
 * program when they fail, and panels that show a number for each token on top of the photograph.
 *
 * Nothing is rounded on the way to a token but by single operations in double, and a panel has few
 * levels: the same files on every machine. */
#ifndef GALLERY_PHOTO_H
#define GALLERY_PHOTO_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "png.h"

enum { PHOTO = 512, PATCH = 8, WIDTH = PATCH * PATCH };

static const char *program;

static void fail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s: %s\n", program, what, why ? why : "");
  exit(1);
}

/* Runs a call whose last argument is &ctx. */
#define MUST(call)                                  \
  do {                                              \
    if ((call) != ATTN_OK) fail(#call, ctx.reason); \
  } while (0)

static void *room(int64_t n, size_t size) {
  void *p = calloc((size_t)n, size);
  if (!p) fail("memory", NULL);
  return p;
}

static inline float *floats(int64_t n) { return room(n, sizeof(float)); }

/* One head of n rows. */
static attn_tensor rows(const float *x, int64_t n, int64_t width) {
  return attn_bhtd(x, ATTN_F32, 1, 1, n, width);
}

/* ---- tokens ---- */

static float photo[PHOTO * PHOTO]; /* whole numbers */

static void photo_read(void) {
  static uint8_t pixel[PHOTO * PHOTO];
  int width = 0, height = 0;
  FILE *file = fopen("docs/ascent.pgm", "rb");
  if (!file || fscanf(file, "P5 %d %d 255", &width, &height) != 2 || width != PHOTO ||
      height != PHOTO || fgetc(file) == EOF || fread(pixel, 1, sizeof pixel, file) != sizeof pixel)
    fail("docs/ascent.pgm", "not the photograph; run this in the root of the project");
  fclose(file);
  for (int n = 0; n < PHOTO * PHOTO; n++) photo[n] = pixel[n];
}

/* The sum of size x size pixels; pixels beyond the edge are those of the edge. */
static double photo_sum(int64_t y0, int64_t x0, int64_t size) {
  double sum = 0;
  for (int64_t y = y0; y < y0 + size; y++)
    for (int64_t x = x0; x < x0 + size; x++)
      sum += (double)photo[(y < PHOTO ? y : PHOTO - 1) * PHOTO + (x < PHOTO ? x : PHOTO - 1)];
  return sum;
}

/* side x side tokens, in blocks of block x block, which Sinkhorn attention moves as a whole. */
typedef struct grid {
  int64_t side, block;
} grid;

/* Where token t lies, as y * side + x. */
static int64_t grid_place(grid g, int64_t t) {
  const int64_t b = g.block, in = t % (b * b), at = t / (b * b), n = g.side / b;
  return (at / n * b + in / b) * g.side + at % n * b + in % b;
}

/* Token t at place (y, x): 8 x 8 numbers, each the sum of pixel x pixel pixels, PHOTO / side pixels from
 * patch to patch. Its mean counts by half of what it differs from the photograph's; then length 1. */
static inline void grid_tokens(grid g, int64_t pixel, float *out) {
  const int64_t apart = PHOTO / g.side;
  const double all = photo_sum(0, 0, PHOTO) * (double)(pixel * pixel) / (PHOTO * PHOTO);
  for (int64_t t = 0; t < g.side * g.side; t++) {
    const int64_t place = grid_place(g, t);
    double p[WIDTH], mean = 0, square = 0;
    for (int64_t c = 0; c < WIDTH; c++) {
      p[c] = photo_sum(place / g.side * apart + c / PATCH * pixel,
                       place % g.side * apart + c % PATCH * pixel, pixel);
      mean += p[c] / WIDTH;
    }
    for (int64_t c = 0; c < WIDTH; c++) {
      p[c] -= (mean + all) / 2;
      square += p[c] * p[c];
    }
    for (int64_t c = 0; c < WIDTH; c++) out[t * WIDTH + c] = (float)(p[c] / sqrt(square));
  }
}

/* ---- panels ---- */

/* A colour is grey level + GREYS * tint level: pale without a tint, and the photograph itself after all
 * tints. */
enum { GREYS = 10, TINTS = 9, MARK = GREYS * (TINTS + 1), PAPER, COLOURS };

static uint8_t *canvas;
static int64_t canvas_width, canvas_height;

static void canvas_open(int64_t width, int64_t height) {
  canvas = room(width, (size_t)height);
  canvas_width = width, canvas_height = height;
  memset(canvas, PAPER, (size_t)(width * height));
}

static void canvas_write(const char *folder, const char *name) {
  static const double tint[3] = {214, 60, 0};
  uint8_t palette[COLOURS * 3];
  char path[4096];
  for (int g = 0; g < GREYS; g++)
    for (int l = 0; l <= TINTS; l++)
      for (int c = 0; c < 3; c++) {
        const double own = 255.0 * g / (GREYS - 1), pale = 190 + 65.0 * g / (GREYS - 1);
        const double by = l == 0 ? 0 : l == TINTS ? 1 : 0.35 + 0.65 * l / (TINTS - 1);
        const double full = l == TINTS ? own : 0.3 * own + 0.7 * tint[c];
        palette[3 * (l * GREYS + g) + c] = (uint8_t)(pale * (1 - by) + full * by + 0.5);
      }
  static const uint8_t rest[6] = {0, 90, 220, 255, 255, 255};
  memcpy(palette + 3 * MARK, rest, sizeof rest);
  if (snprintf(path, sizeof path, "%s/%s.png", folder, name) >= (int)sizeof path)
    fail(folder, "the name is too long");
  if (png_write(path, canvas, (uint32_t)canvas_width, (uint32_t)canvas_height, palette, COLOURS))
    fail(path, "cannot be written");
  free(canvas);
}

static uint8_t grey(double sum, int64_t size) {
  const int level = (int)(sum * GREYS / (256.0 * (double)(size * size)));
  return (uint8_t)(level < GREYS ? level : GREYS - 1);
}

/* The levels of weights: 1 .. TINTS - 1 by the root of the share of the largest; 0 below `least` of it. */
static inline void levels(uint8_t *level, const float *w, int64_t n, double least) {
  double most = 0;
  for (int64_t j = 0; j < n; j++) most = (double)w[j] > most ? (double)w[j] : most;
  for (int64_t j = 0; j < n; j++) {
    const double share = most > 0 ? (double)w[j] / most : 0;
    level[j] = (uint8_t)(share > least ? 1 + (int)(sqrt(share) * (TINTS - 2) + 0.5) : 0);
  }
}

/* What a panel shows of a token: its pixels if it has a level, else their mean; its mean in any case. */
typedef enum panel_kind { DETAIL, FLAT } panel_kind;

/* The photograph, `cell` pixels a token. level null: as it is. Token `mark` gets a frame, if it is one. */
static void panel(int64_t left, int64_t top, grid g, int64_t cell, const uint8_t *level,
                  panel_kind kind, int64_t mark) {
  const int64_t apart = PHOTO / g.side, pixel = apart / cell;
  for (int64_t t = 0; t < g.side * g.side; t++) {
    const int64_t place = grid_place(g, t), y0 = place / g.side, x0 = place % g.side;
    const uint8_t flat = grey(photo_sum(y0 * apart, x0 * apart, apart), apart);
    const int tint = level ? level[t] : TINTS;
    for (int64_t y = 0; y < cell; y++)
      for (int64_t x = 0; x < cell; x++) {
        const int64_t py = y0 * apart + y * pixel, px = x0 * apart + x * pixel;
        const uint8_t own =
            tint == 0 || kind == FLAT ? flat : grey(photo_sum(py, px, pixel), pixel);
        canvas[(top + y0 * cell + y) * canvas_width + left + x0 * cell + x] =
            (uint8_t)(own + GREYS * tint);
      }
  }
  if (mark < 0) return;
  const int64_t place = grid_place(g, mark), y0 = place / g.side * cell, x0 = place % g.side * cell;
  for (int64_t y = -2; y < cell + 2; y++)
    for (int64_t x = -2; x < cell + 2; x++)
      if (y < 0 || y >= cell || x < 0 || x >= cell) {
        const int64_t py = y0 + y, px = x0 + x;
        if (py >= 0 && py < g.side * cell && px >= 0 && px < g.side * cell)
          canvas[(top + py) * canvas_width + left + px] = MARK;
      }
}

#endif
