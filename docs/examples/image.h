/* image.h owns pictures on disk for the examples: it reads PGM and PPM (ASCII and binary, 8 and 16
 * bit) and writes PNG. Nothing here knows attention. Functions return null, or a sentence that says
 * what went wrong. */
#ifndef EXAMPLES_IMAGE_H
#define EXAMPLES_IMAGE_H

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Far above any camera, and small enough that no size below can overflow. */
enum { IMAGE_MAX_SIDE = 65535, IMAGE_MAX_PIXELS = 1 << 26 };

/* Row after row, channels interleaved, 0 = black and 255 = white whatever the file's depth. */
typedef struct image {
  int64_t width, height, channels; /* channels: 1 = grey, 3 = red, green, blue */
  float *data;
} image;

static int64_t image_samples(const image *im) { return im->width * im->height * im->channels; }

/* An image with room for its samples; data is null when memory is short. */
static image image_new(int64_t width, int64_t height, int64_t channels) {
  image im = {width, height, channels, NULL};
  im.data = malloc(sizeof *im.data * (size_t)image_samples(&im));
  return im;
}

/* The next number of a header or of an ASCII picture, and the one character behind it. A comment
 * runs from # to the end of its line. -1 at the end of the file, -2 for no number of 0..limit. */
static int64_t image_number_(FILE *file, int64_t limit) {
  int c = getc(file);
  while (isspace(c) || c == '#') {
    if (c == '#') do
        c = getc(file);
      while (c != '\n' && c != EOF);
    else
      c = getc(file);
  }
  if (c == EOF) return -1;
  if (!isdigit(c)) return -2;
  int64_t n = 0;
  for (; isdigit(c); c = getc(file)) {
    n = 10 * n + (c - '0');
    if (n > limit) return -2;
  }
  if (c == '#')
    ungetc(c, file);
  else if (c != EOF && !isspace(c))
    return -2;
  return n;
}

static int64_t image_binary_(FILE *file, int bytes) {
  int high = bytes == 2 ? getc(file) : 0, low = getc(file);
  return high == EOF || low == EOF ? -1 : 256 * high + low;
}

static const char *image_parse_(image *im, FILE *file) {
  const char *format = "it is no PGM or PPM picture: it must begin with P2, P3, P5 or P6";
  int first = getc(file), second = getc(file);
  if (first == EOF) return ferror(file) ? strerror(errno) : "the file is empty";
  if (first != 'P' || second <= 0 || !strchr("2356", second)) return format;
  int c = getc(file);
  if (!isspace(c) && c != '#') return c == EOF ? "the header is cut short" : format;
  ungetc(c, file);

  int64_t width = image_number_(file, IMAGE_MAX_SIDE);
  int64_t height = width < 1 ? width : image_number_(file, IMAGE_MAX_SIDE);
  if (width == -1 || height == -1) return "the header is cut short";
  if (width < 1 || height < 1 || width * height > IMAGE_MAX_PIXELS)
    return "width and height must be numbers of 1..65535 whose product is at most 2^26";
  int64_t maximum = image_number_(file, 65535);
  if (maximum == -1) return "the header is cut short";
  if (maximum < 1) return "the largest sample value must be a number of 1..65535";

  *im = image_new(width, height, second == '3' || second == '6' ? 3 : 1);
  if (!im->data) return "out of memory";
  for (int64_t i = 0; i < image_samples(im); i++) {
    int64_t sample =
        second < '5' ? image_number_(file, maximum) : image_binary_(file, maximum < 256 ? 1 : 2);
    if (sample == -1)
      return ferror(file) ? strerror(errno) : "the file ends before its last sample";
    if (sample < 0 || sample > maximum) return "a sample is no number or exceeds the largest value";
    im->data[i] = (float)sample * 255.0f / (float)maximum;
  }
  return NULL;
}

/* Reads a PGM or PPM picture; on success free(im->data) releases it. */
static const char *image_read(image *im, const char *path) {
  *im = (image){0, 0, 0, NULL};
  FILE *file = fopen(path, "rb");
  if (!file) return strerror(errno);
  const char *error = image_parse_(im, file);
  fclose(file);
  if (error) {
    free(im->data);
    im->data = NULL;
  }
  return error;
}

/* The two checksums of PNG: CRC-32 over each chunk, Adler-32 over the uncompressed samples. */
static uint32_t image_crc_(uint32_t crc, const uint8_t *bytes, size_t n) {
  static uint32_t table[256];
  for (uint32_t i = 0; !table[255] && i < 256; i++) {
    uint32_t r = i;
    for (int bit = 0; bit < 8; bit++) r = r & 1 ? r >> 1 ^ 0xEDB88320u : r >> 1;
    table[i] = r;
  }
  crc = ~crc;
  while (n--) crc = table[(crc ^ *bytes++) & 255] ^ crc >> 8;
  return ~crc;
}

static uint32_t image_adler_(const uint8_t *bytes, size_t n) {
  uint32_t a = 1, b = 0;
  while (n--) {
    a = (a + *bytes++) % 65521;
    b = (b + a) % 65521;
  }
  return b << 16 | a;
}

static uint8_t *image_be32_(uint8_t *at, uint32_t n) {
  for (int shift = 24; shift >= 0; shift -= 8) *at++ = (uint8_t)(n >> shift);
  return at;
}

static void image_chunk_(FILE *file, const char *type, const uint8_t *body, size_t n) {
  uint8_t head[8], tail[4];
  memcpy(image_be32_(head, (uint32_t)n), type, 4);
  image_be32_(tail, image_crc_(image_crc_(0, head + 4, 4), body, n));
  fwrite(head, 1, 8, file);
  fwrite(body, 1, n, file);
  fwrite(tail, 1, 4, file);
}

/* Writes an 8-bit PNG. The samples go into stored deflate blocks: a larger file, but no
 * compressor to read or to trust. */
static const char *image_write_png(const image *im, const char *path) {
  enum { BLOCK = 65535 };
  size_t row = (size_t)(im->width * im->channels), height = (size_t)im->height;
  size_t raw_size = height * (row + 1), blocks = (raw_size + BLOCK - 1) / BLOCK;
  uint8_t *raw = malloc(raw_size), *body = malloc(2 + 5 * blocks + raw_size + 4);
  FILE *file = raw && body ? fopen(path, "wb") : NULL;
  const char *error = NULL;
  if (!raw || !body) {
    error = "out of memory";
  } else if (!file) {
    error = strerror(errno);
  } else {
    uint8_t *at = raw;
    const float *sample = im->data;
    for (size_t y = 0; y < height; y++) {
      *at++ = 0; /* no row filter */
      for (size_t x = 0; x < row; x++, sample++)
        *at++ = (uint8_t)(fminf(fmaxf(*sample, 0.0f), 255.0f) + 0.5f);
    }
    at = body;
    *at++ = 0x78; /* zlib header: deflate, no dictionary */
    *at++ = 0x01;
    for (size_t done = 0; done < raw_size; done += BLOCK) {
      size_t n = raw_size - done < BLOCK ? raw_size - done : BLOCK;
      *at++ = done + n == raw_size; /* last block? */
      *at++ = (uint8_t)n;
      *at++ = (uint8_t)(n >> 8);
      *at++ = (uint8_t)~n;
      *at++ = (uint8_t)(~n >> 8);
      memcpy(at, raw + done, n);
      at += n;
    }
    at = image_be32_(at, image_adler_(raw, raw_size));

    uint8_t header[13] = {0};
    image_be32_(image_be32_(header, (uint32_t)im->width), (uint32_t)im->height);
    header[8] = 8; /* bits a sample */
    header[9] = im->channels == 3 ? 2 : 0;
    fwrite("\x89PNG\r\n\x1a\n", 1, 8, file);
    image_chunk_(file, "IHDR", header, sizeof header);
    image_chunk_(file, "IDAT", body, (size_t)(at - body));
    image_chunk_(file, "IEND", body, 0);
    int failed = ferror(file);
    if (fclose(file) || failed) error = "the file could not be written in full";
  }
  free(raw);
  free(body);
  return error;
}

#endif
