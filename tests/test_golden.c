/* tests/test_golden.c owns the golden hashes: cases made of integers, so that every machine has the
 * same inputs, and the bits that every tier with fused multiply-add must produce. The scalar tier
 * is held to the oracle alone. `make golden` rewrites tests/golden.h. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "golden.h"
#include "compound.h"
#include "harness.h"
#include "list.h"
#include "modes.h"
#include "patterns.h"
#include "terms.h"

/* Features of a case. */
enum {
  CAUSAL = 1,
  OFFSET = 2,
  WINDOW = 4,
  MASK = 8,
  BITS = 16,
  BIAS = 32,
  LENGTHS = 64,
  ALIBI = 128,
  CAP = 256,
  SINKS = 512,
  ONE = 1024,
  MAP = 2048,
  TIES = 4096,   /* scores half-way between powers of two, where roundings may part */
  TERMS = 8192,  /* times the terms of tests/terms.h */
  RAW = 1 << 26, /* stages of the map */
  SCORED = 1 << 27,
  START = 1 << 28, /* starts aligned; an offset each; ends aligned to lengths */
  EACH = 1 << 29,
  ALIGNED = 1 << 30
};

typedef struct golden_case {
  const char *name;
  int64_t batch, heads, k_heads, v_heads, q_len, k_len, dk, dv;
  attn_dtype type, o_type;
  int features;
} golden_case;

static const golden_case cases[] = {
    {"plain", 1, 2, 2, 2, 130, 150, 64, 64, ATTN_F32, ATTN_F32, 0},
    {"causal", 1, 2, 2, 2, 200, 200, 64, 64, ATTN_F32, ATTN_F32, CAUSAL},
    {"wide", 1, 1, 1, 1, 70, 300, 128, 128, ATTN_F32, ATTN_F32, CAUSAL},
    {"odd", 2, 3, 3, 3, 77, 101, 72, 40, ATTN_F32, ATTN_F32, 0},
    {"tiny", 1, 1, 1, 1, 1, 1, 1, 1, ATTN_F32, ATTN_F32, 0},
    {"decode", 2, 8, 2, 2, 1, 333, 64, 64, ATTN_F32, ATTN_F32, CAUSAL},
    {"grouped", 1, 6, 2, 3, 65, 129, 33, 17, ATTN_F32, ATTN_F32, CAUSAL},
    {"offset", 1, 2, 2, 2, 90, 140, 24, 24, ATTN_F32, ATTN_F32, CAUSAL | OFFSET},
    {"window", 1, 2, 2, 2, 256, 256, 32, 32, ATTN_F32, ATTN_F32, WINDOW},
    {"boolean", 2, 2, 2, 2, 67, 131, 16, 16, ATTN_F32, ATTN_F32, MASK},
    {"bits", 2, 2, 2, 2, 67, 131, 16, 16, ATTN_F32, ATTN_F32, BITS | CAUSAL},
    {"bias", 2, 2, 2, 2, 67, 131, 16, 16, ATTN_F32, ATTN_F32, BIAS},
    {"lengths", 3, 2, 2, 2, 100, 131, 16, 16, ATTN_F32, ATTN_F32, LENGTHS | CAUSAL},
    {"alibi", 1, 4, 4, 4, 100, 131, 16, 16, ATTN_F32, ATTN_F32, ALIBI | CAUSAL},
    {"softcap", 1, 2, 2, 2, 100, 131, 16, 16, ATTN_F32, ATTN_F32, CAP},
    {"sinks", 1, 4, 2, 2, 100, 131, 16, 16, ATTN_F32, ATTN_F32, SINKS | CAUSAL | OFFSET},
    {"one", 1, 2, 2, 2, 100, 131, 16, 16, ATTN_F32, ATTN_F32, ONE},
    {"f16", 1, 2, 2, 2, 100, 131, 64, 48, ATTN_F16, ATTN_F16, CAUSAL},
    {"bf16", 1, 2, 2, 2, 100, 131, 64, 48, ATTN_BF16, ATTN_BF16, CAUSAL},
    {"mixed", 1, 2, 2, 2, 100, 131, 64, 48, ATTN_F16, ATTN_F32, BIAS},
    {"map", 1, 2, 2, 2, 66, 131, 16, 16, ATTN_F32, ATTN_F32, MAP | CAUSAL},
    {"ties", 1, 1, 1, 1, 80, 131, 1, 16, ATTN_F32, ATTN_F32, TIES},
    {"all", 2, 4, 2, 1, 100, 131, 40, 24, ATTN_F32, ATTN_BF16,
     CAUSAL | OFFSET | WINDOW | MASK | BIAS | LENGTHS | ALIBI | CAP | SINKS | ONE | MAP},
    {"keys", 1, 2, 2, 2, 100, 141, 40, 24, ATTN_F32, ATTN_F32, TERMS *TERM_KEYS | CAUSAL},
    {"values", 1, 2, 1, 1, 100, 141, 40, 24, ATTN_F32, ATTN_F32, TERMS *TERM_VALUES},
    {"xl", 1, 2, 2, 2, 100, 141, 40, 24, ATTN_F32, ATTN_F32, TERMS *TERM_XL | CAUSAL},
    {"labels", 1, 2, 2, 2, 70, 141, 40, 24, ATTN_F32, ATTN_F32, TERMS *TERM_LABELS},
    {"factor", 1, 4, 2, 2, 100, 141, 40, 24, ATTN_F32, ATTN_F32, TERMS *TERM_FACTOR},
    {"toeplitz", 1, 2, 2, 2, 100, 141, 40, 24, ATTN_F32, ATTN_F32, TERMS *TERM_TOEPLITZ},
    {"t5", 1, 2, 2, 2, 100, 141, 40, 24, ATTN_F32, ATTN_F32, TERMS *TERM_T5 | CAUSAL},
    {"parabola", 1, 2, 2, 2, 100, 141, 40, 24, ATTN_F32, ATTN_F32, TERMS *TERM_PARABOLA},
    {"gaussian", 2, 2, 2, 2, 100, 141, 40, 24, ATTN_F32, ATTN_F32, TERMS *TERM_GAUSSIAN},
    {"span", 1, 4, 2, 2, 200, 241, 40, 24, ATTN_F32, ATTN_F32, TERMS *TERM_SPAN},
    {"modify", 1, 2, 2, 2, 100, 141, 40, 24, ATTN_F32, ATTN_F32, TERMS *TERM_MODIFY | CAUSAL},
    {"terms", 2, 4, 2, 1, 100, 131, 40, 24, ATTN_BF16, ATTN_F32,
     TERMS *TERM_ALL | CAUSAL | MASK | BIAS | LENGTHS | ALIBI | CAP | SINKS | MAP},
    {"rows", 1, 8, 2, 2, 2, 2500, 40, 24, ATTN_F32, ATTN_F32, CAUSAL | WINDOW},
    {"rows terms", 2, 3, 1, 1, 2, 1300, 33, 17, ATTN_F16, ATTN_F32,
     CAUSAL | BIAS | ALIBI | CAP | SINKS | LENGTHS | TERMS *TERM_GAUSSIAN},
    {"splits", 1, 16, 1, 1, 3, 2300, 24, 20, ATTN_BF16, ATTN_F32, CAUSAL | MASK},
    {"weights", 1, 4, 2, 2, 100, 141, 40, 24, ATTN_F32, ATTN_F32,
     TERMS *TERM_WEIGHTS | CAUSAL | MAP | SINKS},
    {"map raw", 1, 4, 2, 2, 70, 141, 40, 24, ATTN_BF16, ATTN_F32, RAW | CAUSAL | MAP | CAP},
    {"map scores", 1, 4, 2, 2, 70, 141, 40, 24, ATTN_F32, ATTN_F32,
     SCORED | CAUSAL | MAP | CAP | ALIBI},
    {"start", 1, 2, 2, 2, 90, 140, 24, 24, ATTN_F32, ATTN_F32, START | WINDOW | ALIBI},
    {"offsets", 3, 2, 2, 2, 90, 140, 24, 24, ATTN_F32, ATTN_F32,
     CAUSAL | EACH | WINDOW | ALIBI | MAP | TERMS *TERM_T5},
    {"aligned", 3, 4, 2, 2, 3, 1400, 24, 24, ATTN_F32, ATTN_F32,
     CAUSAL | ALIGNED | LENGTHS | ALIBI},
};
enum { CASES = sizeof cases / sizeof *cases, EXTRAS = 16, GRAPHS = 5 };
static const char *const extras[EXTRAS] = {"rope",      "merge",        "exp",      "relu raw",
                                           "relu len",  "relu var",     "relu gau", "relu norm",
                                           "relu rela", "edges",        "sinusoid", "signal",
                                           "window",    "bells renorm", "bells",    "span"};

/* Calls over schedules: wedges, residue classes, lists, gathered tiles, and phases that merge. */
static const char *const graphs[GRAPHS] = {"schedule band", "schedule dilated", "schedule lists",
                                           "schedule image", "schedule sparse"};

static test_call build(const golden_case *g, int n) {
  test_rng rng = test_seed(1000 + (uint64_t)n);
  test_spec spec = test_plain(g->heads, g->q_len, g->k_len, g->dk, g->dv);
  spec.batch = g->batch;
  spec.k_heads = g->k_heads;
  spec.v_heads = g->v_heads;
  spec.q_type = spec.k_type = spec.v_type = g->type;
  spec.o_type = g->o_type;
  spec.map = (g->features & MAP) != 0;
  test_call call = test_build(&spec, &rng);
  test_fill(call.q, &rng, test_exact);
  test_fill(call.k, &rng, test_exact);
  test_fill(call.v, &rng, test_exact);
  attn_sdpa_params *p = &call.params;
  for (int64_t i = 0; g->features & TIES && i < g->q_len; i++) {
    oracle_set(&call.q, 0, 0, i, 0, (double)test_range(&rng, -3, 3) / 2);
  }
  for (int64_t j = 0; g->features & TIES && j < g->k_len; j++) {
    oracle_set(&call.k, 0, 0, j, 0, (double)test_range(&rng, -9, 9));
  }
  if (g->features & TIES) p->scale = 0.693147182f; /* ln 2: one unit of score is one power of 2 */
  int64_t cells = g->q_len * g->k_len, row = (g->k_len + 7) / 8;
  static const int64_t offs[3] = {40, -5, 200};
  p->causal = g->features & START ? (int)ATTN_CAUSAL_START : g->features & CAUSAL;
  if (g->features & EACH) p->q_offs = offs;
  p->align_lengths = (g->features & ALIGNED) != 0;
  p->has_q_off = (g->features & OFFSET) != 0;
  p->q_off = p->has_q_off ? 17 : 0;
  if (g->features & WINDOW) {
    p->window = attn_window_of(60, 9);
  }
  uint8_t *bytes = test_mem((size_t)cells);
  for (int64_t c = 0; c < cells; c++) bytes[c] = (uint8_t)(test_u64(&rng) & 3);
  if (g->features & MASK) p->mask = attn_mask_bool(bytes, 1, 1, g->q_len, g->k_len);
  if (g->features & BITS) {
    assert_true(row * g->q_len <= cells);
    p->mask = attn_mask_bits(bytes, 1, 1, g->q_len, g->k_len);
  }
  attn_tensor bias = test_tensor(g->type, TEST_BHTD, 1, 1, g->q_len, g->k_len);
  test_fill(bias, &rng, test_exact);
  for (int64_t i = 0; i < g->q_len; i++) {
    oracle_set(&bias, 0, 0, i, i % g->k_len, -(double)INFINITY);
  }
  if (g->features & BIAS) p->bias = attn_mask_add(bias.data, g->type, 1, 1, g->q_len, g->k_len);
  float *numbers = test_mem((size_t)(2 * g->heads) * sizeof *numbers);
  for (int64_t h = 0; h < g->heads; h++) {
    numbers[h] = 0.125f / (float)(1 << h);
    numbers[g->heads + h] = (float)test_exact(&rng);
  }
  if (g->features & ALIBI) p->alibi = numbers;
  if (g->features & SINKS) p->sinks = numbers + g->heads;
  if (g->features & LENGTHS) {
    p->kv_len = test_lengths(g->batch, g->k_len, &rng);
    p->q_len = test_lengths(g->batch, g->q_len, &rng);
  }
  if (g->features & CAP) p->softcap = 3;
  if (g->features & RAW) p->map_stage = ATTN_MAP_RAW;
  if (g->features & SCORED) p->map_stage = ATTN_MAP_SCORES;
  test_add_terms(&call, g->features / TERMS & (2 * TERM_WEIGHTS - 1), &rng);
  p->softmax_one = g->features & ONE;
  return call;
}

/* FNV-1a of the elements in order. */
static uint64_t hash(uint64_t h, attn_tensor t) {
  for (int64_t b = 0; b < t.batch; b++) {
    for (int64_t head = 0; head < t.heads; head++) {
      for (int64_t i = 0; i < t.len; i++) {
        const unsigned char *row = oracle_address(&t, b, head, i, 0);
        for (int64_t n = 0; n < t.dim * oracle_size(t.dtype); n++) {
          h = (h ^ row[n]) * 0x100000001B3u;
        }
      }
    }
  }
  return h;
}
#define HASH_START 0xCBF29CE484222325u

static uint64_t hash_call(int n) {
  test_call call = build(&cases[n], n);
  test_run(&call);
  uint64_t h = hash(hash(HASH_START, call.o), call.params.lse);
  return call.params.map.data ? hash(h, call.params.map) : h;
}

/* Functions of positions, from t[0] into t[4] [2,2,50,46] and t[5] [2,2,50,1]. */
static attn_status function_of_positions(int n, attn_tensor *t, attn_ctx *ctx) {
  attn_universal_signal_params u;
  attn_gaussian_params g;
  attn_hard_gaussian_params h;
  float offset[2] = {-0.75f, 60}, sigma[2] = {1.5f, 5};
  float *z = t[5].data, *w = t[1].data, *b = t[3].data; /* 200 numbers each */
  attn_tensor x = attn_bthd(t[0].data, ATTN_F32, 2, 50, 1, 92), q = t[0];
  memset(&u, 0, sizeof u);
  memset(&g, 0, sizeof g);
  memset(&h, 0, sizeof h);
  u.step = 5;
  u.position.start = 990;
  u.position.layout = ATTN_SINUSOID_HALVES;
  q.heads = 1;
  q.dim = 4;
  g.w_p = w; /* 4 columns, 10 hidden units */
  g.u_p = g.u_d = b;
  g.hidden = 10;
  h.offset = offset;
  h.sigma = sigma;
  h.renormalize = n == 3;
  switch (n) {
    case 0: return attn_sinusoid(t[4], t[0], NULL, ctx);
    case 1: return attn_universal_signal(t[4], t[0], &u, ctx);
    case 2: return attn_gaussian_window(z, z + 100, q, q, &g, ctx);
    case 5: return attn_span_predict(z, x, w, b, 2, 77, ctx);
    default: return attn_hard_gaussian(t[4], t[0], &h, ctx);
  }
}

static uint64_t hash_extra(int n) {
  test_rng rng = test_seed(2000 + (uint64_t)n);
  attn_tensor t[6];
  attn_ctx ctx = test_ctx();
  for (int k = 0; k < 6; k++) {
    t[k] = test_tensor(ATTN_F32, TEST_BHTD, 2, 2, 50, k % 2 ? 1 : 46);
    test_fill(t[k], &rng, test_exact);
  }
  attn_rope_params p;
  memset(&p, 0, sizeof p);
  p.rotary_dim = 40;
  p.start = 1000;
  attn_status status = ATTN_OK;
  if (n == 0) status = attn_rope(t[4], t[0], &p, &ctx);
  if (n == 1) status = attn_merge(t[4], t[5], t[0], t[1], t[2], t[3], &ctx);
  if (n == 2) status = attn_exp(t[4].data, t[0].data, 2 * 2 * 50 * 46, &ctx);
  if (n >= 3 && n < 9) {
    attn_relu_params relu;
    memset(&relu, 0, sizeof relu);
    relu.kind = (attn_relu_kind)(n - 3);
    relu.attention.causal = 1;
    relu.gain = t[1].data;
    relu.gate = t[3].data;
    relu.sum = t[5];
    status = attn_relu(t[4], t[0], t[2], t[0], &relu, &ctx);
  }
  if (n > 9) status = function_of_positions(n - 10, t, &ctx);
  if (n == 9) {
    attn_edges_params edges;
    int64_t indptr[51];
    int32_t col[51 * 25];
    memset(&edges, 0, sizeof edges);
    for (int64_t i = 0; i <= 50; i++) indptr[i] = i * (i - 1) / 2;
    for (int64_t i = 0; i < 50; i++) { /* row i sees i keys */
      for (int64_t e = 0; e < i; e++) col[indptr[i] + e] = (int32_t)((7 * e + i) % 50);
    }
    edges.indptr = indptr;
    edges.col = col;
    edges.edges = indptr[50];
    edges.lse = t[5];
    status = attn_edges(t[4], t[0], t[2], t[0], &edges, &ctx);
  }
  assert_int_equal(status, ATTN_OK);
  return hash(hash(HASH_START, t[4]), t[5]);
}

static test_graph golden_graph(int n) {
  attn_pattern p = n == 0   ? attn_pattern_band(40, 9)
                   : n == 1 ? attn_pattern_dilated(9, 3, 7)
                   : n == 2 ? attn_pattern_random(21, 5)
                   : n == 3 ? attn_pattern_image_2d(12, 15, 4, 4, 3, 2)
                            : attn_pattern_sparse_strided(11, ATTN_SPARSE_MERGED);
  return test_graph_of(p, 2, n == 3 ? 180 : 150, n == 3 ? 180 : 333);
}

static test_call build_graph(int n) {
  test_graph g = golden_graph(n);
  test_rng rng = test_seed(3000 + (uint64_t)n);
  test_spec spec = test_plain(2, 0, 0, 24, 20);
  spec.k_heads = n % 2 ? 1 : 2;
  test_call call = test_graph_call(&g, &spec, &rng);
  test_fill(call.q, &rng, test_exact);
  test_fill(call.k, &rng, test_exact);
  test_fill(call.v, &rng, test_exact);
  return call;
}

static uint64_t hash_graph(int n) {
  test_call call = build_graph(n);
  test_run(&call);
  return hash(hash(HASH_START, call.o), call.params.lse);
}

static uint64_t hash_compound(int n) {
  attn_tensor o, lse;
  golden_compound(n, &o, &lse);
  return hash(hash(HASH_START, o), lse);
}

void api_bits_golden(void **state) {
  (void)state;
  for (int n = 0; n < CASES; n++) {
    int by_bound = test_isa == ATTN_ISA_SCALAR;
#ifdef __arm__ /* flushes the subnormal weights that a span's ramp leaves in the map */
    by_bound |= (cases[n].features & (TERMS * TERM_SPAN)) && (cases[n].features & MAP);
#endif
    if (by_bound) {
      test_call call = build(&cases[n], n);
      test_check(&call, cases[n].name);
      test_mem_release();
      continue;
    }
    uint64_t got = hash_call(n);
    if (got != golden[n]) {
      print_error("%s: hash %016llx, not %016llx\n", cases[n].name, (unsigned long long)got,
                  (unsigned long long)golden[n]);
      test_call call = build(&cases[n], n);
      test_check(&call, cases[n].name);
      fail_msg("%s: other bits than the golden ones, within the error bound", cases[n].name);
    }
    test_mem_release();
  }
  for (int n = 0; n < EXTRAS && test_isa != ATTN_ISA_SCALAR; n++) {
    uint64_t got = hash_extra(n);
    if (got != golden[CASES + n]) {
      fail_msg("%s: hash %016llx, not the golden one", extras[n], (unsigned long long)got);
    }
  }
  for (int n = 0; n < GRAPHS; n++, test_mem_release()) {
    if (test_isa != ATTN_ISA_SCALAR && hash_graph(n) == golden[CASES + EXTRAS + n]) continue;
    test_graph g = golden_graph(n);
    test_call call = build_graph(n);
    test_graph_run(&call, &g, graphs[n]);
    if (test_isa != ATTN_ISA_SCALAR) {
      fail_msg("%s: other bits than the golden ones, within the error bound", graphs[n]);
    }
  }
  const char *name;
  for (int n = 0; (name = golden_compound(n, NULL, NULL)) && test_isa != ATTN_ISA_SCALAR; n++) {
    if (hash_compound(n) != golden[CASES + EXTRAS + GRAPHS + n])
      fail_msg("%s: other bits than the golden ones", name);
    test_mem_release();
  }
}

int golden_print(void) {
  test_isa = attn_isa_best();
  if (test_isa == ATTN_ISA_SCALAR) {
    fprintf(stderr, "golden: the scalar tier makes no golden hashes\n");
    return 1;
  }
  printf("/* tests/golden.h owns the hashes of tests/test_golden.c. Made by `make golden`. */\n\n");
  printf("static const uint64_t golden[] = {\n");
  for (int n = 0; n < CASES + EXTRAS + GRAPHS; n++) {
    const int graph = n - CASES - EXTRAS;
    uint64_t h = n < CASES ? hash_call(n) : graph < 0 ? hash_extra(n - CASES) : hash_graph(graph);
    printf("    0x%016llxu, /* %s */\n", (unsigned long long)h,
           n < CASES   ? cases[n].name
           : graph < 0 ? extras[n - CASES]
                       : graphs[graph]);
    test_mem_release();
  }
  const char *name;
  for (int n = 0; (name = golden_compound(n, NULL, NULL)); n++) {
    printf("    0x%016llxu, /* %s */\n", (unsigned long long)hash_compound(n), name);
    test_mem_release();
  }
  printf("};\n");
  return 0;
}
