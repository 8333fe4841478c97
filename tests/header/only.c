/* only.c owns what plain attention alone must do: print the bits of its results, which are those of the
 * whole header, and refuse what belongs to families that are left out. */

#ifndef WHOLE /* which is an object */
#define ATTN_STATIC
#define ATTN_IMPLEMENTATION
#endif
#include "attn.h"

#include <stdio.h>
#include <string.h>

enum { TQ = 70, TK = 150, D = 24, H = 4 };
static float q[H * TQ * D], k[H * TK * D], v[H * TK * D], o[H * TQ * D], bias[TQ * TK];
static uint16_t k16[H * TK * D], v16[H * TK * D];
static uint8_t mask[TQ * TK];

static void print(const char *name, attn_isa isa, int64_t queries, attn_dtype type, int64_t heads,
                  attn_sdpa_params p) {
  attn_ctx ctx;
  uint64_t hash = 1469598103934665603u;
  memset(&ctx, 0, sizeof ctx), memset(o, 0, sizeof o);
  ctx.isa = isa;
  attn_status status = attn_sdpa(
      attn_bhtd(o, ATTN_F32, 1, H, queries, D), attn_bhtd(q, ATTN_F32, 1, H, queries, D),
      attn_bhtd(type == ATTN_F32 ? (void *)k : (void *)k16, type, 1, heads, TK, D),
      attn_bhtd(type == ATTN_F32 ? (void *)v : (void *)v16, type, 1, heads, TK, D), &p, &ctx);
  for (size_t i = 0; i < sizeof o; i++)
    hash = (hash ^ ((const unsigned char *)o)[i]) * 1099511628211u;
  printf("%s %s %d %016llx\n", name, attn_isa_name(isa), (int)status, (unsigned long long)hash);
}

#ifndef WHOLE
static int refused(const char *family, attn_sdpa_params p, attn_dtype type) {
  attn_ctx ctx;
  memset(&ctx, 0, sizeof ctx), memset(o, 0, sizeof o);
  attn_tensor x = attn_bhtd(k, type, 1, H, TK, D);
  attn_status status = attn_sdpa(attn_bhtd(o, ATTN_F32, 1, H, TQ, D),
                                 attn_bhtd(q, ATTN_F32, 1, H, TQ, D), x, x, &p, &ctx);
  for (size_t i = 0; i < sizeof o / sizeof *o; i++)
    if (o[i] != 0.0f) return 0;
  return status != ATTN_OK && ctx.reason && strstr(ctx.reason, family) != NULL;
}
#endif

int main(void) {
  static const int32_t len[1] = {140};
  static const float slope[H] = {0.5f, 0.25f, 0.125f, 0.0625f};
  for (int i = 0; i < H * TK * D; i++) {
    k[i] = (float)(i * 53 % 64) / 16 - 2, v[i] = (float)(i * 29 % 64) / 32 - 1;
    k16[i] = (uint16_t)(0x3000 + i * 53 % 4096), v16[i] = (uint16_t)(0x3000 + i * 29 % 4096);
  }
  for (int i = 0; i < H * TQ * D; i++) q[i] = (float)(i * 37 % 64) / 16 - 2;
  for (int i = 0; i < TQ * TK; i++) mask[i] = i % 7 != 3, bias[i] = (float)(i % 11) / 8;
  for (int isa = ATTN_ISA_SCALAR; isa < ATTN_ISA_COUNT; isa++) {
    attn_sdpa_params p;
    if (attn_isa_status((attn_isa)isa) != ATTN_ISA_OK) continue;
    for (int n = 0; n < 9; n++) {
      static const char *const name[] = {"plain", "causal", "window", "mask", "bias",
                                         "alibi", "length", "f16",    "bf16"};
      memset(&p, 0, sizeof p);
      p.causal = n == 1, p.window = attn_window_of(n == 2 ? 20 : -1, -1);
      if (n == 3) p.mask = attn_mask_bool(mask, 1, 1, TQ, TK);
      if (n == 4) p.bias = attn_mask_add(bias, ATTN_F32, 1, 1, TQ, TK);
      if (n == 5) p.alibi = slope;
      if (n == 6) p.kv_len = len;
      const attn_dtype type = n < 7 ? ATTN_F32 : n == 7 ? ATTN_F16 : ATTN_BF16;
      print(name[n], (attn_isa)isa, TQ, type, H, p);
      p.mask.q_len = p.bias.q_len = 1;
      print(name[n], (attn_isa)isa, 1, type, H / 2, p);
    }
  }
#ifndef WHOLE
  attn_sdpa_params none, cap, plan;
  attn_schedule schedule = {mask, sizeof mask, NULL};
  memset(&none, 0, sizeof none);
  cap = plan = none;
  cap.softcap = 1.0f, plan.schedule = &schedule;
  if (!refused("ATTN_FAMILY_TERMS", cap, ATTN_F32)) return puts("a soft cap is not refused"), 1;
  if (!refused("ATTN_FAMILY_PATTERN", plan, ATTN_F32)) return puts("a schedule is not refused"), 1;
  if (!refused("ATTN_FAMILY_QUANTIZE", none, ATTN_I8)) return puts("int8 is not refused"), 1;
#endif
  return 0;
}
