/* words.c owns the comparison of each emulated word with the real one, bit by bit, on random numbers, NaN, ends and
 * neighbours of the powers of two. For processors that have AVX-512. */
#include "avx512.h"
#include "avxvnni.h"

#define WORDS words_emulated
#include <stdio.h>
#include <string.h>

#include "words.h"

static uint32_t draw(void) {
  static uint64_t s = 88172645463325252u;
  s ^= s << 13, s ^= s >> 7, s ^= s << 17;
  return (uint32_t)(s >> 20);
}

static float number(void) {
  static const uint32_t special[] = {
      0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345, 0x7f812345,
      1,          0x80000001, 0x007fffff, 0x3f800000, 0xbf800000, 0x4b000001, 0x7f7fffff,
      0x43000000, 0xc3160000, 0xc2fc0000, 0x3fc00000, 0x40200000,
  };
  uint32_t bits = special[draw() % (sizeof special / sizeof *special)];
  float x;
  switch (draw() % 4) {
    case 0: break;
    case 1: bits = draw(); break;
    case 2: return (float)((int)(draw() % 1600) - 800) * 0.25f;
    default: bits = 0x3f000000 + (draw() & 0x1ffffff);
  }
  memcpy(&x, &bits, 4);
  return x;
}

/* Which of two NaN a sum or a product keeps, the compiler chooses. */
static int same(const char *word, uint32_t a, uint32_t b) {
  const int nan = (a & 0x7fffffff) > 0x7f800000 && (b & 0x7fffffff) > 0x7f800000;
  return a == b || (nan && (strstr(word, "add_ps") || strstr(word, "mul_ps")));
}

static int dpbusd_differs(void) {
  uint32_t x[3][8], real[8], ours[8];
  for (int l = 0; l < 24; l++) x[l / 8][l % 8] = draw() % 8 ? draw() : 0x80ff7f80u;
  words_dpbusd(real, x[0], x[1], x[2]);
  _mm256_storeu_si256((__m256i *)ours, em_dpbusd(_mm256_loadu_si256((const __m256i *)x[0]),
                                                 _mm256_loadu_si256((const __m256i *)x[1]),
                                                 _mm256_loadu_si256((const __m256i *)x[2])));
  return memcmp(real, ours, sizeof real) != 0;
}

int main(void) {
  words_result real[WORDS_MOST], emulated[WORDS_MOST];
  int words = 0, failed = 0;
  for (int round = 0; round < 100000 && !failed; round++) {
    float x[3][16];
    uint32_t bytes[8];
    for (int l = 0; l < 48; l++) x[l / 16][l % 16] = number();
    for (int l = 0; l < 8; l++) bytes[l] = draw();
    words = words_real(real, x[0], x[1], x[2], bytes);
    failed = words_emulated(emulated, x[0], x[1], x[2], bytes) != words;
    for (int w = 0; w < words; w++) {
      for (int l = 0; l < 16; l++) {
        if (same(real[w].name, real[w].bits[l], emulated[w].bits[l])) continue;
        printf("FAILED %s: lane %d is %08x, not %08x\n", real[w].name, l,
               (unsigned)emulated[w].bits[l], (unsigned)real[w].bits[l]);
        failed = 1;
      }
    }
  }
  if (__builtin_cpu_supports("avx512vnni"))
    for (int round = 0; round < 100000 && !failed; round++)
      if (dpbusd_differs()) failed = 1, puts("FAILED dpbusd");
  printf("emulated AVX-512: %d uses of words, %s\n", words, failed ? "FAILED" : "the same bits");
  return failed;
}
