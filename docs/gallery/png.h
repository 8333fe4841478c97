/* png.h owns small pictures of few colours: one byte a pixel, an index into a palette, written as a
 * PNG. The compressor is the least that serves drawings: it looks for repetitions one pixel back
 * and one row up, and writes them in deflate's fixed code. The same pixels give the same file. */
#ifndef GALLERY_PNG_H
#define GALLERY_PNG_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct png_bits {
  uint8_t *at; /* the next whole byte */
  uint32_t bits;
  int count; /* of the bits not yet written, below 8 between calls */
} png_bits;

/* Appends the low n <= 16 bits of value, the lowest first. */
static void png_put_(png_bits *out, uint32_t value, int n) {
  out->bits |= value << out->count;
  for (out->count += n; out->count >= 8; out->count -= 8) {
    *out->at++ = (uint8_t)out->bits;
    out->bits >>= 8;
  }
}

/* Appends a code word, whose highest bit comes first. */
static void png_code_(png_bits *out, uint32_t code, int n) {
  while (n-- > 0) png_put_(out, code >> n & 1, 1);
}

/* A literal below 144, the end of the block (256) or a length code. */
static void png_symbol_(png_bits *out, uint32_t symbol) {
  if (symbol < 144)
    png_code_(out, 0x30 + symbol, 8);
  else if (symbol < 280)
    png_code_(out, symbol - 256, 7);
  else
    png_code_(out, 0xC0 + symbol - 280, 8);
}

/* Repeats `length` bytes, 3..258, from `distance` bytes back. */
static void png_repeat_(png_bits *out, uint32_t length, uint32_t distance) {
  uint32_t l = length - 3, d = distance - 1;
  int extra = 0;
  while (l >> extra >= 8) extra++;
  if (length == 258) {
    png_symbol_(out, 285);
  } else {
    png_symbol_(out, 257 + 4 * (uint32_t)extra + (l >> extra));
    png_put_(out, l & ((1u << extra) - 1), extra);
  }
  for (extra = 0; d >> extra >= 4;) extra++;
  png_code_(out, 2 * (uint32_t)extra + (d >> extra), 5);
  png_put_(out, d & ((1u << extra) - 1), extra);
}

/* How many bytes from `at` repeat those `distance` back. */
static uint32_t png_match_(const uint8_t *raw, size_t at, size_t size, size_t distance) {
  uint32_t n = 0;
  if (distance > at) return 0;
  while (n < 258 && at + n < size && raw[at + n] == raw[at + n - distance]) n++;
  return n;
}

static uint32_t png_crc_(uint32_t crc, const uint8_t *bytes, size_t n) {
  crc = ~crc;
  while (n--) {
    crc ^= *bytes++;
    for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
  }
  return ~crc;
}

static uint8_t *png_be32_(uint8_t *at, uint32_t n) {
  for (int shift = 24; shift >= 0; shift -= 8) *at++ = (uint8_t)(n >> shift);
  return at;
}

static void png_chunk_(FILE *file, const char *type, const uint8_t *body, size_t n) {
  uint8_t head[8], tail[4];
  memcpy(png_be32_(head, (uint32_t)n), type, 4);
  png_be32_(tail, png_crc_(png_crc_(0, head + 4, 4), body, n));
  fwrite(head, 1, 8, file);
  fwrite(body, 1, n, file);
  fwrite(tail, 1, 4, file);
}

/* Writes width x height pixels, each an index below `colours` <= 144 into palette [colours][3].
 * width < 32768. 0, or -1 when memory or the file fails. */
static int png_write(const char *path, const uint8_t *pixels, uint32_t width, uint32_t height,
                     const uint8_t *palette, uint32_t colours) {
  size_t row = (size_t)width + 1, size = row * height;
  uint8_t *raw = malloc(size), *body = malloc(size + size / 8 + 64);
  FILE *file = raw && body ? fopen(path, "wb") : NULL;
  int failed = !file;
  if (file) {
    for (uint32_t y = 0; y < height; y++) {
      raw[y * row] = 0; /* no row filter */
      memcpy(raw + y * row + 1, pixels + (size_t)y * width, width);
    }
    uint32_t a = 1, b = 0; /* Adler's checksum */
    for (size_t i = 0; i < size; i++) a = (a + raw[i]) % 65521, b = (b + a) % 65521;

    png_bits out = {body, 0, 0};
    png_put_(&out, 0x0178, 16);    /* zlib header */
    png_put_(&out, 1 | 1 << 1, 3); /* the last block, in the fixed code */
    for (size_t at = 0; at < size;) {
      uint32_t left = png_match_(raw, at, size, 1), up = png_match_(raw, at, size, row);
      uint32_t n = left > up ? left : up;
      if (n < 3)
        png_symbol_(&out, raw[at++]);
      else
        png_repeat_(&out, n, left > up ? 1 : (uint32_t)row), at += n;
    }
    png_symbol_(&out, 256);
    png_put_(&out, 0, (8 - out.count) % 8);
    out.at = png_be32_(out.at, b << 16 | a);

    uint8_t header[13] = {0};
    png_be32_(png_be32_(header, width), height);
    header[8] = 8, header[9] = 3; /* bits a pixel, palette */
    fwrite("\x89PNG\r\n\x1a\n", 1, 8, file);
    png_chunk_(file, "IHDR", header, sizeof header);
    png_chunk_(file, "PLTE", palette, 3 * colours);
    png_chunk_(file, "IDAT", body, (size_t)(out.at - body));
    png_chunk_(file, "IEND", body, 0);
    failed = ferror(file);
    failed |= fclose(file);
  }
  free(raw);
  free(body);
  return failed ? -1 : 0;
}

#endif
