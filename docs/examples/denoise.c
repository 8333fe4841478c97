/* denoise.c owns the demo: a photograph is denoised by attention (non-local means, Buades, Coll and
 * Morel 2005). Every pixel asks: which pixels near me have a neighbourhood like mine? It becomes
 * the softmax-weighted mean of those.
 *
 *   query, key   the patch around a pixel, and its place
 *   value        the pixel
 *   score        -|query - key|^2 = 2 query.key - |key|^2 - |query|^2
 *
 * The last term is the same for all keys of a query, so softmax drops it; the one before is a bias
 * per key. A pattern says who may see whom: each block of 8x8 pixels sees the 20x20 pixels around
 * it. One call does the whole picture. A second layer compares patches of what the first one made.
 *
 * Usage: denoise [PICTURE.pgm|ppm [FOLDER]]; writes original, noisy and denoised.png to FOLDER.
 * Memory: about 250 bytes a pixel. */
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
  BLOCK = 8, /* pixels that see the same keys: BLOCK x BLOCK */
  REACH = 6, /* how far the keys go beyond the block */
  PLACES = 4 /* numbers that say where a pixel is */
};

#define SIGMA 25.0 /* of the noise, in grey levels */

/* What makes two pixels alike, tuned on docs/ascent.pgm. The patch's numbers have Gaussian weights
 * of deviation MIDDLE pixels; a key PLACE pixels away weighs 1/e. */
#define MIDDLE 2.0
#define PLACE 6.0

/* A pixel finds itself at distance 0, but only because both patches hold the same noise. */
static const struct layer {
  int patch;    /* patches of patch x patch pixels, an odd number */
  double h;     /* a key weighs 1/e when its patch differs by h deviations of the noise */
  double own;   /* the fraction of its own weight that a pixel keeps */
  double noisy; /* the share of the noisy picture where patches are cut; the rest: last layer's */
} layers[] = {{7, 5.75, 0.01, 1}, {3, 2, 0.1, 0.25}};
enum { LAYERS = sizeof layers / sizeof *layers };

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

/* What patches are cut from: the mean of the channels, centred so that the products stay small and
 * exact, in units of h deviations of its noise. */
static image patch_source(image noisy, image last, const struct layer *layer) {
  image source = new_image(noisy.width, noisy.height, 1);
  double channels = (double)noisy.channels, unit = layer->h * SIGMA / sqrt(channels);
  for (int64_t i = 0; i < noisy.width * noisy.height; i++) {
    double sum = 0;
    for (int64_t c = i * noisy.channels; c < (i + 1) * noisy.channels; c++)
      sum += layer->noisy * (double)noisy.data[c] + (1 - layer->noisy) * (double)last.data[c];
    source.data[i] = (float)((sum / channels - 127.5) / unit);
  }
  return source;
}

/* A factor on query and key alike counts squared, so the Gaussian enters by its square root; the
 * squares sum to patch^2. */
static void fill_patch_weight(float *weight, int patch) {
  double sum = 0;
  for (int pass = 0; pass < 2; pass++)
    for (int i = 0; i < patch * patch; i++) {
      int x = i % patch - patch / 2, y = i / patch - patch / 2;
      double square = exp(-(x * x + y * y) / (2 * MIDDLE * MIDDLE));
      if (pass == 0)
        sum += square;
      else
        weight[i] = (float)sqrt(square * patch * patch / sum);
    }
}

/* Where a pixel is, along one axis, on a wide circle: 2 p.q falls by (distance / PLACE)^2 nearby,
 * and no number is large however large the picture. */
static float *put_place(float *f, int64_t at) {
  const double turn = 3.141592653589793 / (2 * (BLOCK + REACH)), radius = 1 / (PLACE * turn);
  *f++ = (float)(radius * cos(turn * (double)at));
  *f++ = (float)(radius * sin(turn * (double)at));
  return f;
}

/* The features of every pixel, its patch (mirrored at the borders) and its place, and the bias of
 * the key they are. */
static void fill_features(float *f, float *key_bias, image source, int patch) {
  float weight[16 * 16];
  fill_patch_weight(weight, patch);
  for (int64_t y = 0; y < source.height; y++)
    for (int64_t x = 0; x < source.width; x++) {
      float *from = f;
      for (int i = 0; i < patch * patch; i++) {
        int64_t row = mirror(y + i / patch - patch / 2, source.height);
        int64_t column = mirror(x + i % patch - patch / 2, source.width);
        *f++ = weight[i] * source.data[row * source.width + column];
      }
      f = put_place(put_place(f, x), y);
      double square = 0;
      while (from < f) square += (double)*from * (double)*from, from++;
      *key_bias++ = (float)-square;
    }
}

/* Takes most of each pixel's own weight out of its mean. The weight is exp(score - lse), where the
 * score is 2 q.k - |k|^2 = |q|^2 = -key_bias. */
static void weaken_own(image out, image noisy, const float *key_bias, const float *lse,
                       double own) {
  int64_t channels = noisy.channels;
  for (int64_t i = 0; i < noisy.width * noisy.height; i++) {
    double removed = (1 - own) * exp(-(double)key_bias[i] - (double)lse[i]);
    for (int64_t c = i * channels; c < (i + 1) * channels; c++)
      out.data[c] =
          (float)(((double)out.data[c] - removed * (double)noisy.data[c]) / (1 - removed));
  }
}

/* One layer of attention, from the noisy picture to out; last is the layer before. Returns the
 * processor seconds spent in attention. */
static double attend(image out, image noisy, image last, const struct layer *layer,
                     const attn_schedule *schedule, attn_isa isa) {
  int64_t pixels = noisy.width * noisy.height, dim = layer->patch * layer->patch + PLACES;
  float *features = malloc(sizeof *features * (size_t)(pixels * dim));
  float *key_bias = malloc(sizeof *key_bias * (size_t)pixels);
  float *lse = malloc(sizeof *lse * (size_t)pixels);
  if (!features || !key_bias || !lse) fail("picture", "out of memory");
  image source = patch_source(noisy, last, layer);
  fill_features(features, key_bias, source, layer->patch);

  attn_tensor q = attn_bhtd(features, ATTN_F32, 1, 1, pixels, dim), k = q;
  attn_tensor v = attn_bhtd(noisy.data, ATTN_F32, 1, 1, pixels, noisy.channels);
  attn_tensor o = attn_bhtd(out.data, ATTN_F32, 1, 1, pixels, noisy.channels);
  attn_sdpa_params params = {.scale = 2,
                             .schedule = schedule,
                             .bias = attn_mask_add(key_bias, ATTN_F32, 1, 1, 1, pixels),
                             .lse = attn_bhtd(lse, ATTN_F32, 1, 1, pixels, 1)};
  attn_ctx ctx = {.isa = isa};
  clock_t start = clock();
  attn_status status = attn_sdpa(o, q, k, v, &params, &ctx);
  double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
  if (status != ATTN_OK) fail(attn_status_string(status), ctx.reason);
  weaken_own(out, noisy, key_bias, lse, layer->own);
  free(features), free(key_bias), free(lse), free(source.data);
  return seconds;
}

/* Which pixels see which: a block sees the pixels up to REACH away from it. */
static attn_schedule build_schedule(image im) {
  attn_pattern near =
      attn_pattern_image_2d(im.height, im.width, BLOCK, BLOCK, /* top, sides */ REACH, REACH);
  near.bottom = REACH;
  near.order = ATTN_IMAGE_NONE;
  attn_schedule schedule;
  attn_ctx ctx = {0};
  int64_t pixels = im.width * im.height;
  attn_status status = attn_schedule_build(&schedule, &near, 1, pixels, pixels, NULL, &ctx);
  if (status != ATTN_OK) fail(attn_status_string(status), ctx.reason);
  return schedule;
}

/* All layers on one tier; the seconds of their attention. */
static double denoise(image out, image noisy, const attn_schedule *schedule, attn_isa isa) {
  image last = new_image(noisy.width, noisy.height, noisy.channels);
  double seconds = 0;
  for (int n = 0; n < LAYERS; n++) {
    memcpy(last.data, n == 0 ? noisy.data : out.data,
           sizeof *last.data * (size_t)image_samples(&last));
    seconds += attend(out, noisy, last, &layers[n], schedule, isa);
  }
  free(last.data);
  return seconds;
}

/* One line of the table of speeds: 2 flops for each multiply-add of the two products. */
static void print_speed(image im, attn_isa isa, int64_t pairs, double seconds) {
  double numbers = 0; /* of a key and its value */
  for (int n = 0; n < LAYERS; n++)
    numbers += layers[n].patch * layers[n].patch + PLACES + (double)im.channels;
  double gflops = 2e-9 * (double)pairs * numbers / seconds;
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

  image noisy = add_noise(clean), denoised = new_image(clean.width, clean.height, clean.channels);
  attn_schedule schedule = build_schedule(clean);
  attn_schedule_info info;
  if (attn_schedule_describe(&info, &schedule) != ATTN_OK) fail("schedule", "cannot be described");
  attn_isa best = attn_isa_best();
  double best_seconds = denoise(denoised, noisy, &schedule, best);
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
      print_speed(clean, isa, info.pairs,
                  isa == best ? best_seconds : denoise(denoised, noisy, &schedule, isa));
  }
  attn_schedule_free(&schedule);
  free(clean.data), free(noisy.data), free(denoised.data);
  return 0;
}
