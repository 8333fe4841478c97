/* cache.c owns the example of memory across calls: a prompt goes into a cache of pages, tokens are
 * decoded one by one, two continuations share what came before, and one of them goes back. What each
 * step attends to is checked against attention over all tokens at once. */
#define ATTN_IMPLEMENTATION /* in exactly one file of a program */
#include "attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { H = 8, KV_HEADS = 2, D = 64, PROMPT = 50, STEPS = 20, T = PROMPT + STEPS };
enum { PAGE = 16, PAGES = 12, TABLE = 6 }; /* room for 192 tokens in all, 96 a sequence */

/* What a model would compute for its tokens: queries, keys and values. */
static float q_data[H * T * D], k_data[KV_HEADS * T * D], v_data[KV_HEADS * T * D];
static float o_data[H * T * D], whole[H * T * D];

static void fill(float *x, int n) {
  for (int i = 0; i < n; i++) x[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
}

static void must(attn_status status, const attn_ctx *ctx) {
  if (status == ATTN_OK) return;
  fprintf(stderr, "cache: %s: %s\n", attn_status_string(status), ctx->reason);
  exit(1);
}

/* Rows i .. i + n - 1 of x. */
static attn_tensor rows(attn_tensor x, int64_t i, int64_t n) {
  x.data = (float *)x.data + i * x.stride_len;
  x.len = n;
  return x;
}

/* The largest difference to attention over everything, rows i .. i + n - 1. */
static double error_of(int i, int n) {
  double worst = 0;
  for (int h = 0; h < H; h++)
    for (int c = (h * T + i) * D; c < (h * T + i + n) * D; c++)
      worst = fmax(worst, fabs((double)o_data[c] - (double)whole[c]));
  return worst;
}

int main(void) {
  fill(q_data, H * T * D);
  fill(k_data, KV_HEADS * T * D);
  fill(v_data, KV_HEADS * T * D);
  const attn_tensor q = attn_bhtd(q_data, ATTN_F32, 1, H, T, D);
  const attn_tensor k = attn_bhtd(k_data, ATTN_F32, 1, KV_HEADS, T, D);
  const attn_tensor v = attn_bhtd(v_data, ATTN_F32, 1, KV_HEADS, T, D);
  const attn_tensor o = attn_bhtd(o_data, ATTN_F32, 1, H, T, D);
  const attn_sdpa_params causal = {.causal = 1};
  attn_ctx ctx = {0};
  must(attn_sdpa(attn_bhtd(whole, ATTN_F32, 1, H, T, D), q, k, v, &causal, &ctx), &ctx);

  /* a cache of pages in memory of ours; k_dtype = ATTN_I8 would quantise its rows */
  const attn_cache_params sizes = {.k_dtype = ATTN_F32,
                                   .v_dtype = ATTN_F32,
                                   .k_heads = KV_HEADS,
                                   .dk = D,
                                   .pages = PAGES,
                                   .page = PAGE};
  const size_t size = attn_cache_size(&sizes);
  void *memory = malloc(size);
  attn_cache cache;
  if (!memory) return 1;
  must(attn_cache_open(&cache, memory, size, &sizes, &ctx), &ctx);
  int32_t table[2][TABLE];
  attn_sequence first = {.table = table[0], .table_len = TABLE};
  attn_sequence second = {.table = table[1], .table_len = TABLE};

  /* the prompt: append, then attend */
  must(attn_cache_append(&cache, &first, 1, rows(k, 0, PROMPT), rows(v, 0, PROMPT), NULL, &ctx),
       &ctx);
  must(attn_cache_sdpa(rows(o, 0, PROMPT), rows(q, 0, PROMPT), &cache, &first, 1, &causal, &ctx),
       &ctx);
  double worst = error_of(0, PROMPT);

  /* then token by token, in pages taken as they are needed */
  for (int i = PROMPT; i < T; i++) {
    must(attn_cache_append(&cache, &first, 1, rows(k, i, 1), rows(v, i, 1), NULL, &ctx), &ctx);
    must(attn_cache_sdpa(rows(o, i, 1), rows(q, i, 1), &cache, &first, 1, NULL, &ctx), &ctx);
    worst = fmax(worst, error_of(i, 1));
  }
  printf("%d tokens in pages of %d: largest error %.1e\n", T, PAGE, worst);

  /* another continuation of the prompt: the pages are shared until one of the two writes */
  must(attn_cache_fork(&cache, &second, &first, &ctx), &ctx);
  must(attn_cache_rollback(&cache, &second, PROMPT, &ctx), &ctx);
  must(attn_cache_append(&cache, &second, 1, rows(k, 0, 1), rows(v, 0, 1), NULL, &ctx), &ctx);
  int shared = 0;
  for (int p = 0; p < PAGES; p++) shared += cache.holders[p] > 1;
  printf("a second continuation shares %d pages of the first\n", shared);

  /* it is thrown away: back to the prompt, and on as the first did */
  must(attn_cache_rollback(&cache, &second, PROMPT, &ctx), &ctx);
  for (int i = PROMPT; i < T; i++) {
    must(attn_cache_append(&cache, &second, 1, rows(k, i, 1), rows(v, i, 1), NULL, &ctx), &ctx);
    must(attn_cache_sdpa(rows(o, i, 1), rows(q, i, 1), &cache, &second, 1, NULL, &ctx), &ctx);
    worst = fmax(worst, error_of(i, 1));
  }
  printf("rolled back and on again: largest error %.1e\n", worst);

  must(attn_cache_release(&cache, &first, &ctx), &ctx);
  must(attn_cache_release(&cache, &second, &ctx), &ctx);
  for (int p = 0; p < PAGES; p++)
    if (cache.holders[p]) return 1;
  free(memory);
  return shared == PROMPT / PAGE && worst < 1e-5 ? 0 : 1; /* also 1 for NaN */
}
