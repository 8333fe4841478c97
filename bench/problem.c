/* problem.c owns the data of an attention problem, what each extra switches on, and the count of
 * the allowed pairs. */
#include "problem.h"

#include <stdlib.h>
#include <string.h>

/* Keys back of window and span; its ramp; Shaw's largest distance; labels. */
enum { WINDOW = 256, RAMP = 32, CLIP = 16, FAR = 256, LABELS = 32 };

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
  if (s->extra == PROBLEM_WINDOW || s->extra == PROBLEM_SPAN) first = at > WINDOW ? at - WINDOW : 0;
  if (last > s->tk - 1) last = s->tk - 1;
  return last >= first ? last - first + 1 : 0;
}

const char *problem_extra_name(problem_extra extra) {
  static const char *const names[PROBLEM_EXTRAS] = {
      "",       "/alibi",       "/softcap:50",  "/window:256", "/mask:bool", "/mask:additive",
      "/sinks", "/toeplitz",    "/t5",          "/parabola",   "/gaussian",  "/factor",
      "/span",  "/relative:16", "/deberta:256", "/xl",         "/labels:32", "/modify"};
  return names[extra];
}

/* Bytes of what the extra reads, or a little more. */
static size_t extra_bytes(const problem_shape *s) {
  size_t rows = (size_t)(s->batch * s->heads * s->tq), maps = (size_t)(s->tq * s->tk);
  size_t heads = (size_t)s->heads, wide = (size_t)(s->dk + s->dv);
  switch (s->extra) {
    case PROBLEM_BOOL: return maps;
    case PROBLEM_ADD: return 4 * maps;
    case PROBLEM_TOEPLITZ: return 4 * (size_t)(s->tq + s->tk);
    case PROBLEM_GAUSSIAN: return 8 * rows;
    case PROBLEM_SHAW: return 4 * (2 * CLIP + 1) * wide;
    case PROBLEM_DEBERTA: return 8 * (2 * FAR + 1) * (size_t)s->dk;
    case PROBLEM_XL: return 4 * ((size_t)(s->tq + s->tk) + 2 * heads) * wide;
    case PROBLEM_LABELS: return 4 * LABELS * (wide + heads);
    default: return 4 * 32 * heads; /* T5's table is the largest of the rest */
  }
}

static float *numbers(char **at, size_t n, float factor, float offset, uint64_t *seed) {
  float *x = take(at, 4 * n);
  for (size_t i = 0; i < n; i++) x[i] = factor * draw(seed) + offset;
  return x;
}

static int64_t label_of(void *user, int64_t batch, int64_t head, int64_t i, int64_t j) {
  (void)user, (void)batch, (void)head;
  return (i ^ j) & (LABELS - 1);
}

static void change_nothing(void *user, const attn_score_tile *tile) { (void)user, (void)tile; }

/* Switches the extra on, and forbids as many pairs as it returns. */
static double extra_set(problem *p, char **at, uint64_t *seed) {
  const problem_shape *s = &p->shape;
  attn_sdpa_params *a = &p->params;
  size_t maps = (size_t)(s->tq * s->tk), heads = (size_t)s->heads;
  int64_t distances = s->causal ? s->tk : s->tq + s->tk - 1; /* from the oldest key on */
  double masked = 0;
  switch (s->extra) {
    case PROBLEM_WINDOW: a->window = attn_window_of(WINDOW, -1); break;
    case PROBLEM_ALIBI: {
      float *slopes = numbers(at, heads, 0, 0, seed);
      attn_alibi_slopes(slopes, s->heads);
      a->alibi = slopes;
      break;
    }
    case PROBLEM_SOFTCAP: a->softcap = 50; break;
    case PROBLEM_SINKS: a->sinks = numbers(at, heads, 1, 0, seed); break;
    case PROBLEM_BOOL: {
      uint8_t *m = take(at, maps);
      for (size_t i = 0; i < maps; i++) {
        m[i] = (mix(seed) & 15) != 0;
        masked += !m[i];
      }
      a->mask = attn_mask_bool(m, 1, 1, s->tq, s->tk);
      break;
    }
    case PROBLEM_ADD:
      a->bias = attn_mask_add(numbers(at, maps, 1, 0, seed), ATTN_F32, 1, 1, s->tq, s->tk);
      break;
    case PROBLEM_TOEPLITZ:
      a->toeplitz.table = numbers(at, (size_t)distances, 1, 0, seed);
      a->toeplitz.len = distances;
      a->toeplitz.first = 1 - s->tk;
      break;
    case PROBLEM_T5:
      a->t5.table = numbers(at, 32 * heads, 1, 0, seed);
      a->t5.bidirectional = !s->causal;
      break;
    case PROBLEM_PARABOLA:
      a->parabola.w = numbers(at, heads, 0, 1e-5f, seed);
      a->parabola.bias = numbers(at, heads, 0, -0.1f, seed);
      break;
    case PROBLEM_GAUSSIAN: {
      size_t rows = (size_t)(s->batch * s->heads * s->tq);
      a->gaussian.center = numbers(at, rows, 0.25f * (float)s->tk, 0.5f * (float)s->tk, seed);
      a->gaussian.precision = numbers(at, rows, 0, 1e-5f, seed);
      break;
    }
    case PROBLEM_FACTOR:
      a->factor.alpha = numbers(at, heads, 0, -0.01f, seed);
      a->factor.beta = numbers(at, heads, 0, 1, seed);
      break;
    case PROBLEM_SPAN: /* the weight of distance WINDOW is the last that is not 0 */
      a->span.z = numbers(at, heads, 0, WINDOW + 1 - RAMP, seed);
      a->span.ramp = RAMP;
      a->span.include_self = 1;
      break;
    case PROBLEM_SHAW: {
      size_t n = 2 * CLIP + 1;
      float *k = numbers(at, n * (size_t)s->dk, 0.1f, 0, seed);
      float *v = numbers(at, n * (size_t)s->dv, 0.1f, 0, seed);
      a->relative.keys = attn_bhtd(k, ATTN_F32, 1, 1, (int64_t)n, s->dk);
      a->relative.values = attn_bhtd(v, ATTN_F32, 1, 1, (int64_t)n, s->dv);
      break;
    }
    case PROBLEM_DEBERTA: {
      size_t n = 2 * FAR + 1;
      float *k = numbers(at, n * (size_t)s->dk, 0.1f, 0, seed);
      float *q = numbers(at, n * (size_t)s->dk, 0.1f, 0, seed);
      a->relative.keys = attn_bhtd(k, ATTN_F32, 1, 1, (int64_t)n, s->dk);
      a->relative.queries = attn_bhtd(q, ATTN_F32, 1, 1, (int64_t)n, s->dk);
      break;
    }
    case PROBLEM_XL: {
      float *table = numbers(at, (size_t)(distances * s->dk), 1, 0, seed);
      a->xl.table = attn_bhtd(table, ATTN_F32, 1, 1, distances, s->dk);
      a->xl.first = 1 - s->tk;
      a->xl.u = numbers(at, heads * (size_t)s->dk, 0.1f, 0, seed);
      a->xl.v = numbers(at, heads * (size_t)s->dk, 0.1f, 0, seed);
      break;
    }
    case PROBLEM_LABELS: {
      float *table = numbers(at, LABELS * (size_t)s->dk, 0.1f, 0, seed);
      a->labels.label = label_of;
      a->labels.table = attn_bhtd(table, ATTN_F32, 1, 1, LABELS, s->dk);
      a->labels.bias = numbers(at, LABELS * heads, 1, 0, seed);
      break;
    }
    case PROBLEM_MODIFY: a->modify = change_nothing; break;
    default: break;
  }
  return masked;
}

/* The work of so many pairs, and memory for it. */
static int prepare(problem *p, double pairs, const attn_ctx *ctx) {
  p->pairs = pairs;
  p->flops = 2 * pairs * (double)(p->shape.dk + p->shape.dv);
  free(p->workspace);
  p->workspace_size = attn_sdpa_workspace(p->o, p->q, p->k, p->v, &p->params, ctx);
  return (p->workspace = malloc(p->workspace_size + 1)) != NULL;
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
  if (s->extra == PROBLEM_WINDOW || s->extra == PROBLEM_SPAN) s->causal = 1;

  size_t floats = (size_t)(s->batch * (s->heads * s->tq + s->kv_heads * s->tk) * (s->dk + s->dv));
  if (!(p->data = malloc(floats * 4 + extra_bytes(s) + 10 * 64))) return 0;
  char *at = (char *)p->data + (64 - (uintptr_t)p->data % 64);
  p->q = tensor(&at, s, s->heads, s->tq, s->dk, &seed);
  p->k = tensor(&at, s, s->kv_heads, s->tk, s->dk, &seed);
  p->v = tensor(&at, s, s->kv_heads, s->tk, s->dv, &seed);
  p->o = tensor(&at, s, s->heads, s->tq, s->dv, NULL);

  p->params.causal = s->causal;
  p->params.compute = s->compute;
  double masked = extra_set(p, &at, &seed), pairs = 0;
  for (int64_t i = 0; i < s->tq; i++) pairs += (double)row_pairs(p, i);
  if (prepare(p, (pairs - masked) * (double)(s->batch * s->heads), ctx)) return 1;
  problem_free(p);
  return 0;
}

int problem_schedule(problem *p, const attn_schedule *schedule, const attn_ctx *ctx) {
  attn_schedule_info info;
  if (attn_schedule_describe(&info, schedule) != ATTN_OK) return 0;
  p->params.schedule = schedule;
  return prepare(p, (double)info.pairs * (double)p->shape.batch, ctx);
}

int problem_mask(problem *p, const attn_mask *mask, double pairs, const attn_ctx *ctx) {
  p->params.mask = *mask;
  return prepare(p, pairs, ctx);
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
