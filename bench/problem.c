/* problem.c owns the data of an attention problem and the count of its allowed pairs. */
#include "problem.h"

#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t *state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* Uniform with unit variance: +-sqrt(3). */
static float draw(uint64_t *state) {
  return ((float)(mix(state) >> 40) * 0x1p-23f - 1.0f) * 1.7320508f;
}

/* Truncation is good enough for random data; numbers too small for f16 become zero. */
static uint16_t narrow(float x, attn_dtype dtype) {
  uint32_t u;
  memcpy(&u, &x, 4);
  if (dtype == ATTN_BF16) return (uint16_t)(u >> 16);
  uint32_t magnitude = (u & 0x7fffffffu) >> 13;
  return (uint16_t)((u >> 16 & 0x8000u) | (magnitude > 114688 ? magnitude - 114688 : 0));
}

static size_t width(attn_dtype dtype) { return dtype == ATTN_F32 ? 4 : 2; }

/* Memory in 64-byte steps, so that no run owes its speed to where the last one left off. */
static void *take(char **at, size_t bytes) {
  void *p = *at;
  *at += (bytes + 63) / 64 * 64;
  return p;
}

static attn_tensor tensor(char **at, const problem_shape *s, int64_t heads, int64_t len,
                          int64_t dim, uint64_t *seed) {
  size_t n = (size_t)(s->batch * heads * len * dim);
  void *data = take(at, n * width(s->dtype));
  for (size_t i = 0; seed && i < n; i++) {
    float x = draw(seed);
    if (s->dtype == ATTN_F32)
      ((float *)data)[i] = x;
    else
      ((uint16_t *)data)[i] = narrow(x, s->dtype);
  }
  return s->bthd ? attn_bthd(data, s->dtype, s->batch, len, heads, dim)
                 : attn_bhtd(data, s->dtype, s->batch, heads, len, dim);
}

/* Allowed keys of one query row, masks aside. */
static int64_t row_pairs(const problem *p, int64_t i) {
  const problem_shape *s = &p->shape;
  int64_t at = i + s->tk - s->tq, last = s->causal ? at : s->tk - 1, first = 0;
  if (p->params.window_left > 0 && at - p->params.window_left > 0)
    first = at - p->params.window_left;
  if (last > s->tk - 1) last = s->tk - 1;
  return last >= first ? last - first + 1 : 0;
}

int problem_init(problem *p, const problem_shape *shape, const attn_ctx *ctx) {
  problem zero = {0};
  uint64_t seed = 1;
  *p = zero;
  p->shape = *shape;
  problem_shape *s = &p->shape;
  if (!s->batch) s->batch = 1;
  if (!s->kv_heads) s->kv_heads = s->heads;
  if (!s->tk) s->tk = s->tq;
  if (!s->dv) s->dv = s->dk;
  if (s->extra == PROBLEM_WINDOW) s->causal = 1;

  size_t maps = (size_t)(s->tq * s->tk);
  size_t floats = (size_t)(s->batch * (s->heads * s->tq + s->kv_heads * s->tk) * (s->dk + s->dv));
  size_t extra = s->extra == PROBLEM_BOOL ? maps : s->extra == PROBLEM_ADD ? 4 * maps : 0;
  size_t total = floats * 4 + extra + (size_t)s->heads * 4 + 8 * 64;
  if (!(p->data = malloc(total + 64))) return 0;
  char *at = (char *)p->data + (64 - (uintptr_t)p->data % 64);
  p->q = tensor(&at, s, s->heads, s->tq, s->dk, &seed);
  p->k = tensor(&at, s, s->kv_heads, s->tk, s->dk, &seed);
  p->v = tensor(&at, s, s->kv_heads, s->tk, s->dv, &seed);
  p->o = tensor(&at, s, s->heads, s->tq, s->dv, NULL);

  float *per_head = take(&at, (size_t)s->heads * 4);
  p->params.causal = s->causal;
  if (s->extra == PROBLEM_WINDOW) p->params.window_left = 256;
  double masked = 0;
  for (int64_t i = 0; i < s->tq; i++) p->pairs += (double)row_pairs(p, i);
  switch (s->extra) {
    case PROBLEM_ALIBI:
      attn_alibi_slopes(per_head, s->heads);
      p->params.alibi = per_head;
      break;
    case PROBLEM_SOFTCAP: p->params.softcap = 50; break;
    case PROBLEM_SINKS:
      for (int64_t h = 0; h < s->heads; h++) per_head[h] = draw(&seed);
      p->params.sinks = per_head;
      break;
    case PROBLEM_BOOL: {
      uint8_t *m = take(&at, maps);
      for (size_t i = 0; i < maps; i++) {
        m[i] = (mix(&seed) & 15) != 0;
        masked += !m[i];
      }
      p->params.mask = attn_mask_bool(m, 1, 1, s->tq, s->tk);
      break;
    }
    case PROBLEM_ADD: {
      float *m = take(&at, 4 * maps);
      for (size_t i = 0; i < maps; i++) m[i] = draw(&seed);
      p->params.bias = attn_mask_add(m, ATTN_F32, 1, 1, s->tq, s->tk);
      break;
    }
    default: break;
  }
  p->pairs = (p->pairs - masked) * (double)(s->batch * s->heads);
  p->flops = 2 * p->pairs * (double)(s->dk + s->dv);

  p->workspace_size = attn_sdpa_workspace(p->o, p->q, p->k, p->v, &p->params, ctx);
  if (!(p->workspace = malloc(p->workspace_size + 1))) {
    problem_free(p);
    return 0;
  }
  return 1;
}

void problem_free(problem *p) {
  free(p->data);
  free(p->workspace);
  p->data = p->workspace = NULL;
}

attn_status problem_run(problem *p, attn_isa isa, attn_ctx *ctx) {
  ctx->isa = isa;
  ctx->workspace = p->workspace;
  ctx->workspace_size = p->workspace_size;
  return attn_sdpa(p->o, p->q, p->k, p->v, &p->params, ctx);
}

int problem_calls(const problem *p, double seconds, double gflops) {
  double n = seconds * gflops * 1e9 / (p->flops > 0 ? p->flops : 1);
  return n < 1 ? 1 : n > 1e6 ? 1000000 : (int)n;
}
