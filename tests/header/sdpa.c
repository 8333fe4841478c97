/* sdpa.c owns the smallest program: one file, one call. */

#define ATTN_STATIC
#define ATTN_IMPLEMENTATION
#include "attn.h"

int main(void) {
  static float x[2][4 * 16];
  attn_tensor o = attn_bhtd(x[0], ATTN_F32, 1, 1, 4, 16),
              t = attn_bhtd(x[1], ATTN_F32, 1, 1, 4, 16);
  return attn_sdpa(o, t, t, t, NULL, NULL) == ATTN_OK ? 0 : 1;
}
