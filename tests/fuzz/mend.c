/* mend.c owns what the fuzzer knows of the inside of a schedule's bytes: it has a private copy of the functions that
 * judge them. */

#define ATTN_STATIC
#define ATTN_IMPLEMENTATION
#include "attn.h"
#include "mend.h"

void fuzz_mend(uint8_t *bytes, size_t size) {
  attn_plan_ *p = (attn_plan_ *)(void *)bytes;
  if (size < sizeof *p || p->bytes != (int64_t)size) return;
  if (!attn_plan_frame_ok_(p)) return;
  const int32_t *head = (const int32_t *)attn_plan_at_(p, p->at_head);
  const int64_t *tiles = (const int64_t *)attn_plan_at_(p, p->at_tiles);
  const attn_plan_tile_ *tile = (const attn_plan_tile_ *)attn_plan_at_(p, p->at_tile);
  attn_counts_ sum;
  memset(&sum, 0, sizeof sum);
  for (int64_t h = 0; h < p->heads; h++)
    for (int64_t t = tiles[head[h] * p->phases]; t < tiles[(head[h] + 1) * p->phases]; t++)
      if (!attn_plan_tile_ok_(p, &tile[t], &sum)) return;
  p->pairs = sum.pairs, p->computed = sum.computed, p->full = sum.full;
  p->partial = sum.partial, p->lists = sum.lists;
}

void fuzz_sections(const void *bytes, int64_t section[4]) {
  const attn_plan_ *p = (const attn_plan_ *)bytes;
  section[0] = 0, section[1] = p->at_tile, section[2] = p->at_run, section[3] = p->at_key;
}
