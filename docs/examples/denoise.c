/* denoise.c owns the demo: a photograph is denoised by attention (non-local means, Buades, Coll and
 * Morel 2005). Every pixel asks: which pixels near me have a neighbourhood like mine? It becomes
 * the softmax-weighted mean of those.
 *
 *   query, key   the 7x7 patch around a pixel, and its place
 *   value        the pixel
 *   score        -|query - key|^2 = 2 query.key - |key|^2 - |query|^2
 *
 * The last term is the same for all keys of a query, so softmax drops it; the one before is a bias
 * per key. Each 16x16 tile of pixels attends to the 36x36 pixels around it: one batch entry with
 * 256 queries and 1296 keys. The picture is mirrored at its borders.
 *
 * Usage: denoise [PICTURE.pgm|ppm [FOLDER]]; writes original, noisy and denoised.png to FOLDER. */
#define ATTN_IMPLEMENTATION
#include "attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fma_peak.h"
#include "image.h"

enum {
  PATCH = 7,
  TILE = 16,
  REACH = 10, /* how far the keys go beyond the tile */
  WINDOW = TILE + 2 * REACH,
  MARGIN = REACH + PATCH / 2,
  QUERIES = TILE * TILE,
  KEYS = WINDOW * WINDOW,
  FEATURES = PATCH * PATCH + 2, /* a patch and its place */
  BATCH = 8                     /* tiles a call: keys and queries fit the L2 or L3 cache */
};

#define SIGMA 25.0 /* of the noise, in grey levels */

/* What makes two pixels alike, tuned on docs/ascent.pgm: a key weighs 1/e when its patch differs by
 * H standard deviations of the noise, and when it lies PLACE pixels away. The patch's numbers have
 * Gaussian weights of deviation MIDDLE pixels. A pixel finds itself at distance 0, but only because
 * both patches hold the same noise: OWN is the fraction of that weight which it keeps. */
#define H 6.0
#define PLACE 6.0
#define MIDDLE 2.0
#define OWN 0.02

/* One call's operands. */
static float query[BATCH][QUERIES][FEATURES], key[BATCH][KEYS][FEATURES], key_bias[BATCH][KEYS];
static float value[BATCH * KEYS * 3], out[BATCH * QUERIES * 3], lse[BATCH][QUERIES];

static float patch_weight[PATCH][PATCH];

/* The key that stands for the same pixel as query i. */
static int own_key(int i) { return (i / TILE + REACH) * WINDOW + i % TILE + REACH; }

static void fail(const char *what, const char *why) {
  fprintf(stderr, "denoise: %s: %s\n", what, why);
  exit(1);
}

static image new_image(int64_t width, int64_t height, int64_t channels) {
  image im = image_new(width, height, channels);
  if (!im.data) fail("picture", "out of memory");
  return im;
}

/* SplitMix64: the same noise on every machine. */
static double uniform(uint64_t *state) {
  uint64_t z = *state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* Gaussian noise (Box and Muller), rounded and clipped as a camera's 8 bits would. */
static image add_noise(image clean) {
  image noisy = new_image(clean.width, clean.height, clean.channels);
  uint64_t state = 1;
  for (int64_t i = 0; i < image_samples(&clean); i++) {
    double radius = sqrt(-2 * log(1 - uniform(&state)));
    double noise = radius * cos(6.283185307179586 * uniform(&state));
    noisy.data[i] = (float)fmin(fmax(floor(clean.data[i] + SIGMA * noise + 0.5), 0), 255);
  }
  return noisy;
}

/* Peak signal-to-noise ratio in decibels. */
static double psnr(image a, image b) {
  double sum = 0;
  for (int64_t i = 0; i < image_samples(&a); i++) {
    double d = (double)a.data[i] - (double)b.data[i];
    sum += d * d;
  }
  return 10 * log10(255.0 * 255.0 * (double)image_samples(&a) / sum);
}

/* Index i reflected into 0..n-1 as often as it takes, without doubling the border pixel. */
static int64_t mirror(int64_t i, int64_t n) {
  if (n == 1) return 0;
  int64_t period = 2 * (n - 1);
  i = (i % period + period) % period;
  return i < n ? i : period - i;
}

/* The picture with mirrored borders, filled up to whole tiles. */
static image pad(image im) {
  int64_t width = (im.width + TILE - 1) / TILE * TILE + 2 * MARGIN;
  int64_t height = (im.height + TILE - 1) / TILE * TILE + 2 * MARGIN;
  image padded = new_image(width, height, im.channels);
  float *to = padded.data;
  for (int64_t y = 0; y < height; y++)
    for (int64_t x = 0; x < width; x++, to += im.channels) {
      int64_t from = mirror(y - MARGIN, im.height) * im.width + mirror(x - MARGIN, im.width);
      memcpy(to, im.data + from * im.channels, sizeof *to * (size_t)im.channels);
    }
  return padded;
}

/* What patches are cut from: the mean of the channels, in units of H standard deviations of its
 * noise. Centred, so that the products stay small and exact. */
static image patch_source(image padded) {
  image source = new_image(padded.width, padded.height, 1);
  double unit = H * SIGMA / sqrt((double)padded.channels);
  for (int64_t i = 0; i < padded.width * padded.height; i++) {
    double sum = 0;
    for (int64_t c = 0; c < padded.channels; c++) sum += padded.data[i * padded.channels + c];
    source.data[i] = (float)((sum / (double)padded.channels - 127.5) / unit);
  }
  return source;
}

/* A factor on query and key alike counts squared, so the Gaussian enters by its square root; the
 * squares sum to PATCH^2. */
static void fill_patch_weight(void) {
  double sum = 0;
  for (int pass = 0; pass < 2; pass++)
    for (int i = 0; i < PATCH * PATCH; i++) {
      int x = i % PATCH - PATCH / 2, y = i / PATCH - PATCH / 2;
      double square = exp(-(x * x + y * y) / (2 * MIDDLE * MIDDLE));
      if (pass == 0)
        sum += square;
      else
        patch_weight[i / PATCH][i % PATCH] = (float)sqrt(square * PATCH * PATCH / sum);
    }
}

/* Fills entry b of the batch with the tile whose window begins at column x0, row y0 of padded. */
static void gather(int b, image padded, image source, int64_t x0, int64_t y0) {
  size_t channels = (size_t)padded.channels;
  for (int j = 0; j < KEYS; j++) {
    int x = j % WINDOW, y = j / WINDOW;
    const float *corner = source.data + (y0 + y) * source.width + x0 + x;
    float *k = key[b][j], square = 0;
    for (int dy = 0; dy < PATCH; dy++)
      for (int dx = 0; dx < PATCH; dx++)
        *k++ = patch_weight[dy][dx] * corner[dy * source.width + dx];
    *k++ = (float)((x - WINDOW / 2) / PLACE);
    *k++ = (float)((y - WINDOW / 2) / PLACE);
    for (int d = 0; d < FEATURES; d++) square += key[b][j][d] * key[b][j][d];
    key_bias[b][j] = -square;
    int64_t pixel = (y0 + y + PATCH / 2) * padded.width + x0 + x + PATCH / 2;
    memcpy(value + ((size_t)b * KEYS + (size_t)j) * channels, padded.data + pixel * padded.channels,
           sizeof *value * channels);
  }
  for (int i = 0; i < QUERIES; i++) memcpy(query[b][i], key[b][own_key(i)], sizeof query[b][i]);
}

/* Softmax attention for the n tiles in the batch. */
static void attend(int n, int64_t channels, attn_isa isa) {
  attn_tensor q = attn_bhtd(query, ATTN_F32, n, 1, QUERIES, FEATURES);
  attn_tensor k = attn_bhtd(key, ATTN_F32, n, 1, KEYS, FEATURES);
  attn_tensor v = attn_bhtd(value, ATTN_F32, n, 1, KEYS, channels);
  attn_tensor o = attn_bhtd(out, ATTN_F32, n, 1, QUERIES, channels);
  attn_sdpa_params params = {
      .scale = 2,
      .bias = attn_mask_add(key_bias, ATTN_F32, n, 1, 1, KEYS), /* the same for all queries */
      .lse = attn_bhtd(lse, ATTN_F32, n, 1, QUERIES, 1)};
  attn_ctx ctx = {.isa = isa};
  attn_status status = attn_sdpa(o, q, k, v, &params, &ctx);
  if (status != ATTN_OK) fail(attn_status_string(status), ctx.reason);
}

/* Takes most of the own pixel out of each mean of tile b. Its share is exp(score - lse), where the
 * score is 2 q.k - |k|^2 = |q|^2 = -key_bias. */
static void weaken_own(int b, int64_t channels) {
  for (int i = 0; i < QUERIES; i++) {
    int own = own_key(i);
    double removed = (1 - OWN) * exp(-(double)key_bias[b][own] - (double)lse[b][i]);
    float *o = out + (b * QUERIES + i) * channels;
    const float *v = value + (b * KEYS + own) * channels;
    for (int64_t c = 0; c < channels; c++)
      o[c] = (float)(((double)o[c] - removed * (double)v[c]) / (1 - removed));
  }
}

/* Copies tile b of the batch into the picture, whose size need not be a multiple of the tile. */
static void scatter(int b, image im, int64_t x0, int64_t y0) {
  for (int64_t i = 0; i < QUERIES; i++) {
    int64_t x = x0 + i % TILE, y = y0 + i / TILE;
    if (x < im.width && y < im.height)
      memcpy(im.data + (y * im.width + x) * im.channels, out + (b * QUERIES + i) * im.channels,
             sizeof *out * (size_t)im.channels);
  }
}

/* Denoises padded into im on one tier and returns the processor seconds spent in attention. After
 * limit seconds (0 = none) the rest of the picture is left out and its time extrapolated. */
static double denoise(image im, image padded, image source, attn_isa isa, double limit) {
  int64_t tiles_x = (im.width + TILE - 1) / TILE, tiles = tiles_x * ((im.height + TILE - 1) / TILE);
  double seconds = 0;
  for (int64_t first = 0; first < tiles; first += BATCH) {
    int n = tiles - first < BATCH ? (int)(tiles - first) : BATCH;
    for (int b = 0; b < n; b++)
      gather(b, padded, source, (first + b) % tiles_x * TILE, (first + b) / tiles_x * TILE);
    clock_t start = clock();
    attend(n, im.channels, isa);
    seconds += (double)(clock() - start) / CLOCKS_PER_SEC;
    for (int b = 0; b < n; b++) {
      weaken_own(b, im.channels);
      scatter(b, im, (first + b) % tiles_x * TILE, (first + b) / tiles_x * TILE);
    }
    if (limit > 0 && seconds > limit) return seconds * (double)tiles / (double)(first + n);
  }
  return seconds;
}

/* One line of the table of speeds: 2 flops for each multiply-add of the two products. */
static void print_speed(image im, attn_isa isa, double seconds) {
  double tiles = ceil((double)im.width / TILE) * ceil((double)im.height / TILE);
  double gflops = 2e-9 * tiles * QUERIES * KEYS * (FEATURES + (double)im.channels) / seconds;
  double peak = fma_peak(isa);
  printf("%-8s%9.3f%12.1f", attn_isa_name(isa), seconds, gflops);
  if (peak > 0)
    printf("%12.1f%10.0f\n", peak, 100 * gflops / peak);
  else
    printf("%12s%10s\n", "n/a", "n/a");
}

static void save(image im, const char *folder, const char *name) {
  char path[4096];
  if (snprintf(path, sizeof path, "%s/%s.png", folder, name) >= (int)sizeof path)
    fail(folder, "the name is too long");
  const char *error = image_write_png(&im, path);
  if (error) fail(path, error);
  printf("wrote %s\n", path);
}

int main(int argc, char **argv) {
  const char *path = argc > 1 ? argv[1] : "docs/ascent.pgm";
  const char *folder = argc > 2 ? argv[2] : "build/demo";
  image clean;
  const char *error = image_read(&clean, path);
  if (error) fail(path, error);

  fill_patch_weight();
  image noisy = add_noise(clean), padded = pad(noisy), source = patch_source(padded);
  image denoised = new_image(clean.width, clean.height, clean.channels);
  attn_isa best = attn_isa_best();
  double best_seconds = denoise(denoised, padded, source, best, 0);
  printf("%s: %lld x %lld, noise of sigma %g\n", path, (long long)clean.width,
         (long long)clean.height, SIGMA);
  printf("PSNR %.2f dB noisy, %.2f dB denoised\n", psnr(clean, noisy), psnr(clean, denoised));
  save(clean, folder, "original");
  save(noisy, folder, "noisy");
  save(denoised, folder, "denoised");

  printf("\none thread, attention alone; peak = multiply-adds in registers, measured now\n");
  printf("%-8s%9s%12s%12s%10s\n", "tier", "seconds", "GFLOP/s", "peak", "% of it");
  for (int i = 1; i < ATTN_ISA_COUNT; i++) {
    attn_isa isa = (attn_isa)i;
    if (attn_isa_status(isa) != ATTN_ISA_OK)
      printf("%-8soff: %s\n", attn_isa_name(isa), attn_isa_why(isa));
    else
      print_speed(clean, isa,
                  isa == best ? best_seconds : denoise(denoised, padded, source, isa, 10));
  }
  free(clean.data), free(noisy.data), free(padded.data), free(source.data), free(denoised.data);
  return 0;
}
