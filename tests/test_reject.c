/* tests/test_reject.c owns bad input to attn_sdpa: each rule has its status, a reason that names
 * the argument, and outputs whose every byte stays. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "list.h"

enum { B = 2, H = 4, HK = 2, TQ = 6, TK = 9, DK = 8, DV = 10 };

/* The legal call that every rule spoils, and what a rule may use to do so. */
typedef struct scene {
  test_call call;
  attn_ctx ctx;
  int32_t kv_len[B], q_len[B];
  float alibi[H], sinks[H];
  uint8_t allowed[TQ * TK];
  float bias[TQ * TK];
} scene;

typedef struct rule {
  attn_status status;
  const char *word; /* must stand in the reason */
  void (*spoil)(scene *s);
} rule;

#define RULE(name, body) \
  static void name(scene *s) { body }

RULE(q_null, s->call.q.data = NULL;)
RULE(k_null, s->call.k.data = NULL;)
RULE(v_null, s->call.v.data = NULL;)
RULE(o_null, s->call.o.data = NULL;)
RULE(q_dtype, s->call.q.dtype = (attn_dtype)3;)
RULE(k_dtype, s->call.k.dtype = (attn_dtype)-1;)
RULE(v_dtype, s->call.v.dtype = (attn_dtype)99;)
RULE(o_dtype, s->call.o.dtype = ATTN_DTYPE_COUNT;)
RULE(lse_dtype, s->call.params.lse.dtype = ATTN_F16;)
RULE(map_dtype, s->call.params.map.dtype = ATTN_BF16;)
RULE(q_len_negative, s->call.q.len = -1;)
RULE(batch_negative, s->call.q.batch = -2;)
RULE(dk_zero, s->call.q.dim = s->call.k.dim = 0;)
RULE(dv_zero, s->call.v.dim = s->call.o.dim = 0;)
RULE(k_width, s->call.k.dim = DK - 1;)
RULE(v_length, s->call.v.len = TK - 1;)
RULE(o_length, s->call.o.len = TQ - 1;)
RULE(o_width, s->call.o.dim = DV - 1;)
RULE(o_heads, s->call.o.heads = H - 1;)
RULE(o_batch, s->call.o.batch = B - 1;)
RULE(k_batch, s->call.k.batch = 1;)
RULE(v_batch, s->call.v.batch = 1;)
RULE(k_heads, s->call.k.heads = 3;)
RULE(v_heads, s->call.v.heads = 3;)
RULE(k_heads_more, s->call.k.heads = 8;)
RULE(k_heads_none, s->call.k.heads = 0;)
RULE(v_heads_none, s->call.v.heads = 0;)
RULE(lse_shape, s->call.params.lse.len = TQ - 1;)
RULE(lse_width, s->call.params.lse.dim = 2;)
RULE(map_shape, s->call.params.map.dim = TK - 1;)
RULE(map_heads, s->call.params.map.heads = 1;)
RULE(o_rows_meet, s->call.o.stride_len = DV - 1;)
RULE(o_broadcast, s->call.o.stride_head = 0;)
RULE(lse_broadcast, s->call.params.lse.stride_len = 0;)
RULE(map_stage_beyond, s->call.params.map_stage = ATTN_MAP_STAGES;)
RULE(map_stage_below, s->call.params.map_stage = (attn_map_stage)-1;)
static const float one_per_head[H];
RULE(map_capped_factor, s->call.params.map_stage = ATTN_MAP_CAPPED; s->call.params.softcap = 1;
     s->call.params.factor.alpha = s->call.params.factor.beta = one_per_head;)
static void no_change(void *user, const attn_score_tile *tile) { (void)user, (void)tile; }
RULE(weights_of_scores, s->call.params.map_stage = ATTN_MAP_SCORES;
     s->call.params.modify_weights = no_change;)
RULE(weights_of_raw, s->call.params.map_stage = ATTN_MAP_RAW;
     s->call.params.modify_weights = no_change;)
RULE(map_broadcast, s->call.params.map.stride_batch = 0;)
RULE(q_misaligned, s->call.q.data = (char *)s->call.q.data + 1;)
RULE(o_misaligned, s->call.o.data = (char *)s->call.o.data + 2;)
RULE(q_off_far, s->call.params.has_q_off = 1; s->call.params.q_off = (int64_t)1 << 40;)
RULE(q_off_alone, s->call.params.q_off = 3;)
RULE(q_off_min, s->call.params.has_q_off = 1; s->call.params.q_off = INT64_MIN;)
RULE(left_negative, s->call.params.window = attn_window_of(-2, 0);)
RULE(right_negative, s->call.params.window = attn_window_of(0, INT64_MIN);)
RULE(left_off, s->call.params.window.left = 3;)
RULE(right_off, s->call.params.window.right = -1;)
RULE(causal_value, s->call.params.causal = 3;)
RULE(causal_negative, s->call.params.causal = -1;)
RULE(kv_len_negative, s->kv_len[1] = -1;)
RULE(kv_len_large, s->kv_len[1] = TK + 1;)
RULE(q_length_negative, s->q_len[0] = -1;)
RULE(q_length_large, s->q_len[1] = TQ + 1;)
RULE(scale_nan, s->call.params.scale = NAN;)
RULE(scale_inf, s->call.params.scale = INFINITY;)
RULE(softcap_negative, s->call.params.softcap = -1;)
RULE(softcap_nan, s->call.params.softcap = NAN;)
RULE(softcap_inf, s->call.params.softcap = INFINITY;)
RULE(softcap_at_beyond, s->call.params.softcap_at = ATTN_SOFTCAP_COUNT;)
RULE(softcap_at_below, s->call.params.softcap_at = (attn_softcap_at)-1;)
RULE(capped_modified, s->call.params.map_stage = ATTN_MAP_CAPPED;
     s->call.params.softcap_at = ATTN_SOFTCAP_BIASED; s->call.params.modify = no_change;)
RULE(capped_spanned, s->call.params.map_stage = ATTN_MAP_CAPPED;
     s->call.params.softcap_at = ATTN_SOFTCAP_BIASED; s->call.params.span.z = one_per_head;)
RULE(alibi_nan, s->alibi[2] = NAN;)
RULE(alibi_inf, s->alibi[3] = INFINITY;)
RULE(sinks_nan, s->sinks[0] = NAN;)
RULE(sinks_inf, s->sinks[3] = INFINITY;)
RULE(mask_kind, s->call.params.mask.kind = ATTN_MASK_ADD;)
RULE(mask_unknown, s->call.params.mask.kind = (attn_mask_kind)17;)
RULE(bias_kind, s->call.params.bias.kind = ATTN_MASK_BOOL;)
RULE(mask_q, s->call.params.mask.q_len = TQ - 1;)
RULE(mask_k, s->call.params.mask.k_len = TK + 1;)
RULE(mask_heads, s->call.params.mask.heads = 2;)
RULE(bias_batch, s->call.params.bias.batch = 3;)
RULE(bias_zero, s->call.params.bias.k_len = 0;)
RULE(mask_null, s->call.params.mask.data = NULL;)
RULE(bias_null, s->call.params.bias.data = NULL;)
RULE(bias_dtype, s->call.params.bias.dtype = (attn_dtype)7;)
RULE(bias_nan, s->ctx.validate = 1; s->bias[20] = NAN;)
RULE(bias_inf, s->ctx.validate = 1; s->bias[TQ * TK - 1] = INFINITY;)
RULE(o_is_q, s->call.o.data = s->call.q.data;)
RULE(o_is_v, s->call.o.data = (float *)s->call.v.data + 5;)
RULE(o_is_k, s->call.o.data = (float *)s->call.k.data + 7;)
RULE(o_is_mask, s->call.params.mask.data = s->call.o.data;)
RULE(o_is_bias, s->call.params.bias.data = s->call.o.data;)
RULE(o_is_alibi, s->call.params.alibi = s->call.o.data;)
RULE(o_is_sinks, s->call.params.sinks = s->call.o.data;)
RULE(o_is_kv_len, memset(s->call.o.data, 0, 8); s->call.params.kv_len = s->call.o.data;)
RULE(lse_is_o, s->call.params.lse.data = (float *)s->call.o.data + 3;)
RULE(lse_is_map, s->call.params.lse.data = (float *)s->call.params.map.data + 9;)
RULE(map_is_q, s->call.params.map.data = s->call.q.data;)
RULE(workspace_is_o, s->ctx.workspace = s->call.o.data; s->ctx.workspace_size = 1u << 30;)
RULE(workspace_is_q, s->ctx.workspace = s->call.q.data; s->ctx.workspace_size = 1u << 30;)
RULE(huge_len, s->call.q.len = s->call.o.len = INT64_MAX / 2;)
RULE(huge_dim, s->call.q.dim = s->call.k.dim = INT64_MAX;)
RULE(huge_batch, s->call.v.stride_batch = INT64_MAX / 3;)
RULE(huge_stride, s->call.k.stride_len = INT64_MIN;)
RULE(huge_width, s->call.v.dim = s->call.o.dim = INT64_MAX / 16;)
RULE(workspace_small, s->ctx.workspace = test_mem(8); s->ctx.workspace_size = 8;)
RULE(workspace_null, s->ctx.workspace_size = 8;)
RULE(no_memory, (void)s; test_malloc_fails = 1;)
RULE(workers_negative, s->ctx.workers = -1;)
RULE(isa_unknown, s->ctx.isa = (attn_isa)77;)
RULE(isa_negative, s->ctx.isa = (attn_isa)-1;)
#if defined(__arm__) || defined(__aarch64__)
RULE(isa_foreign, s->ctx.isa = ATTN_ISA_AVX2;)
#else
RULE(isa_foreign, s->ctx.isa = ATTN_ISA_NEON;)
#endif

/* The word is checked against the sentence, so that a wrong argument is never blamed. */
static const rule rules[] = {
    {ATTN_E_NULL, "q.data", q_null},
    {ATTN_E_NULL, "k.data", k_null},
    {ATTN_E_NULL, "v.data", v_null},
    {ATTN_E_NULL, "o.data", o_null},
    {ATTN_E_DTYPE, "q.dtype", q_dtype},
    {ATTN_E_DTYPE, "k.dtype", k_dtype},
    {ATTN_E_DTYPE, "v.dtype", v_dtype},
    {ATTN_E_DTYPE, "o.dtype", o_dtype},
    {ATTN_E_DTYPE, "lse", lse_dtype},
    {ATTN_E_DTYPE, "map", map_dtype},
    {ATTN_E_SHAPE, "q", q_len_negative},
    {ATTN_E_SHAPE, "q", batch_negative},
    {ATTN_E_SHAPE, ".dim", dk_zero},
    {ATTN_E_SHAPE, ".dim", dv_zero},
    {ATTN_E_SHAPE, "k.dim", k_width},
    {ATTN_E_SHAPE, "v.len", v_length},
    {ATTN_E_SHAPE, "o", o_length},
    {ATTN_E_SHAPE, "o.dim", o_width},
    {ATTN_E_SHAPE, "o", o_heads},
    {ATTN_E_SHAPE, "batch", o_batch},
    {ATTN_E_SHAPE, "batch", k_batch},
    {ATTN_E_SHAPE, "batch", v_batch},
    {ATTN_E_HEADS, "k.heads", k_heads},
    {ATTN_E_HEADS, "v.heads", v_heads},
    {ATTN_E_HEADS, "k.heads", k_heads_more},
    {ATTN_E_HEADS, "k.heads", k_heads_none},
    {ATTN_E_HEADS, "v.heads", v_heads_none},
    {ATTN_E_SHAPE, "lse", lse_shape},
    {ATTN_E_SHAPE, "lse", lse_width},
    {ATTN_E_SHAPE, "map", map_shape},
    {ATTN_E_SHAPE, "map", map_heads},
    {ATTN_E_STRIDE, "o ", o_rows_meet},
    {ATTN_E_STRIDE, "o ", o_broadcast},
    {ATTN_E_STRIDE, "lse", lse_broadcast},
    {ATTN_E_STRIDE, "map", map_broadcast},
    {ATTN_E_RANGE, "map_stage", map_stage_beyond},
    {ATTN_E_RANGE, "map_stage", map_stage_below},
    {ATTN_E_RANGE, "map_stage", map_capped_factor},
    {ATTN_E_RANGE, "modify_weights", weights_of_scores},
    {ATTN_E_RANGE, "modify_weights", weights_of_raw},
    {ATTN_E_ALIGN, "q.data", q_misaligned},
    {ATTN_E_ALIGN, "o.data", o_misaligned},
    {ATTN_E_RANGE, "q_off", q_off_far},
    {ATTN_E_RANGE, "q_off", q_off_min},
    {ATTN_E_RANGE, "has_q_off", q_off_alone},
    {ATTN_E_RANGE, "window", left_negative},
    {ATTN_E_RANGE, "window", right_negative},
    {ATTN_E_RANGE, "attn_window_of", left_off},
    {ATTN_E_RANGE, "attn_window_of", right_off},
    {ATTN_E_RANGE, "causal", causal_value},
    {ATTN_E_RANGE, "causal", causal_negative},
    {ATTN_E_RANGE, "kv_len", kv_len_negative},
    {ATTN_E_RANGE, "kv_len", kv_len_large},
    {ATTN_E_RANGE, "q_len", q_length_negative},
    {ATTN_E_RANGE, "q_len", q_length_large},
    {ATTN_E_VALUE, "scale", scale_nan},
    {ATTN_E_VALUE, "scale", scale_inf},
    {ATTN_E_VALUE, "softcap", softcap_negative},
    {ATTN_E_VALUE, "softcap", softcap_nan},
    {ATTN_E_VALUE, "softcap", softcap_inf},
    {ATTN_E_RANGE, "softcap_at", softcap_at_beyond},
    {ATTN_E_RANGE, "softcap_at", softcap_at_below},
    {ATTN_E_RANGE, "map_stage", capped_modified},
    {ATTN_E_RANGE, "map_stage", capped_spanned},
    {ATTN_E_VALUE, "alibi", alibi_nan},
    {ATTN_E_VALUE, "alibi", alibi_inf},
    {ATTN_E_VALUE, "sinks", sinks_nan},
    {ATTN_E_VALUE, "sinks", sinks_inf},
    {ATTN_E_MASK, "mask", mask_kind},
    {ATTN_E_MASK, "mask", mask_unknown},
    {ATTN_E_MASK, "bias", bias_kind},
    {ATTN_E_MASK, "mask", mask_q},
    {ATTN_E_MASK, "mask", mask_k},
    {ATTN_E_MASK, "mask", mask_heads},
    {ATTN_E_MASK, "bias", bias_batch},
    {ATTN_E_MASK, "bias", bias_zero},
    {ATTN_E_NULL, "mask", mask_null},
    {ATTN_E_NULL, "bias", bias_null},
    {ATTN_E_DTYPE, "bias", bias_dtype},
    {ATTN_E_VALUE, "bias", bias_nan},
    {ATTN_E_VALUE, "bias", bias_inf},
    {ATTN_E_OVERLAP, "o ", o_is_q},
    {ATTN_E_OVERLAP, "o ", o_is_v},
    {ATTN_E_OVERLAP, "o ", o_is_k},
    {ATTN_E_OVERLAP, "o ", o_is_mask},
    {ATTN_E_OVERLAP, "o ", o_is_bias},
    {ATTN_E_OVERLAP, "o ", o_is_alibi},
    {ATTN_E_OVERLAP, "o ", o_is_sinks},
    {ATTN_E_OVERLAP, "o ", o_is_kv_len},
    {ATTN_E_OVERLAP, "o ", lse_is_o},
    {ATTN_E_OVERLAP, "lse", lse_is_map},
    {ATTN_E_OVERLAP, "map", map_is_q},
    {ATTN_E_OVERLAP, "workspace", workspace_is_o},
    {ATTN_E_OVERLAP, "workspace", workspace_is_q},
    {ATTN_E_OVERFLOW, "q", huge_len},
    {ATTN_E_OVERFLOW, "q", huge_dim},
    {ATTN_E_OVERFLOW, "v", huge_batch},
    {ATTN_E_OVERFLOW, "k", huge_stride},
    {ATTN_E_OVERFLOW, "", huge_width},
    {ATTN_E_WORKSPACE, "workspace", workspace_small},
    {ATTN_E_CTX, "workspace", workspace_null},
    {ATTN_E_MEMORY, "ATTN_MALLOC", no_memory},
    {ATTN_E_CTX, "workers", workers_negative},
    {ATTN_E_ISA, "ctx.isa", isa_unknown},
    {ATTN_E_ISA, "ctx.isa", isa_negative},
    {ATTN_E_ISA, "ctx.isa", isa_foreign},
};

static scene *make_scene(test_block out[3]) {
  scene *s = test_mem(sizeof *s);
  test_rng rng = test_seed(90);
  memset(s, 0, sizeof *s);
  test_spec spec = test_plain(H, TQ, TK, DK, DV);
  spec.batch = B;
  spec.k_heads = spec.v_heads = HK;
  s->call = test_build(&spec, &rng);
  attn_tensor *outputs[3] = {&s->call.o, &s->call.params.lse, &s->call.params.map};
  int64_t widths[3] = {DV, 1, TK};
  for (int n = 0; n < 3; n++) {
    *outputs[n] = test_tensor(ATTN_F32, TEST_BHTD, B, H, TQ, widths[n]);
    out[n] = test_last_block;
  }
  for (int n = 0; n < TQ * TK; n++) s->allowed[n] = (uint8_t)(n % 3);
  for (int b = 0; b < B; b++) {
    s->kv_len[b] = TK;
    s->q_len[b] = TQ;
  }
  attn_sdpa_params *p = &s->call.params;
  p->kv_len = s->kv_len;
  p->q_len = s->q_len;
  p->alibi = s->alibi;
  p->sinks = s->sinks;
  p->mask = attn_mask_bool(s->allowed, 1, 1, TQ, TK);
  p->bias = attn_mask_add(s->bias, ATTN_F32, 1, 1, TQ, TK);
  s->ctx = test_ctx();
  return s;
}

void api_rejects(void **state) {
  (void)state;
  int wrong = 0;
  const int count = sizeof rules / sizeof *rules;
  for (int n = 0; n < count; n++) {
    test_block out[3];
    scene *s = make_scene(out);
    rules[n].spoil(s);
    unsigned char *before[3];
    for (int t = 0; t < 3; t++) {
      before[t] = test_mem(out[t].size);
      memcpy(before[t], out[t].data, out[t].size);
    }
    test_call *c = &s->call;
    attn_status got = attn_sdpa(c->o, c->q, c->k, c->v, &c->params, &s->ctx);
    const char *reason = s->ctx.reason ? s->ctx.reason : "(no reason)";
    test_malloc_fails = 0;
    if (got != rules[n].status || !strstr(reason, rules[n].word)) {
      print_error("rule %d: got \"%s\" because \"%s\"; want \"%s\" naming \"%s\"\n", n,
                  attn_status_string(got), reason, attn_status_string(rules[n].status),
                  rules[n].word);
      wrong++;
    }
    for (int t = 0; t < 3; t++) {
      if (memcmp(before[t], out[t].data, out[t].size) == 0) continue;
      print_error("rule %d: output %d was touched\n", n, t);
      wrong++;
    }
    /* A query about a call that would be rejected says so, apart from what it cannot see. */
    size_t size = attn_sdpa_workspace(c->o, c->q, c->k, c->v, &c->params, &s->ctx);
    int blind = got == ATTN_E_MEMORY || got == ATTN_E_WORKSPACE || got == ATTN_E_VALUE ||
                got == ATTN_E_RANGE || got == ATTN_E_OVERLAP || got == ATTN_E_CTX;
    if (size != ATTN_WORKSPACE_REJECTED && !blind) {
      print_error("rule %d: the workspace query gives %zu\n", n, size);
      wrong++;
    }
  }
  print_message("           %d rules\n", count);
  assert_int_equal(wrong, 0);
}

/* The unspoilt call succeeds, so that each rule above is what rejects. */
void api_accepts_the_unspoilt_call(void **state) {
  (void)state;
  test_block out[3];
  scene *s = make_scene(out);
  test_check(&s->call, "the legal call");
  s->ctx.validate = 1;
  test_call *c = &s->call;
  assert_int_equal(attn_sdpa(c->o, c->q, c->k, c->v, &c->params, &s->ctx), ATTN_OK);
}

/* -inf in a mask is a value, not an error, and NaN is one only when asked. */
void api_validation_is_optional(void **state) {
  (void)state;
  test_block out[3];
  scene *s = make_scene(out);
  test_call *c = &s->call;
  s->bias[3] = -INFINITY;
  s->ctx.validate = 1;
  assert_int_equal(attn_sdpa(c->o, c->q, c->k, c->v, &c->params, &s->ctx), ATTN_OK);
  s->bias[3] = NAN;
  s->ctx.validate = 0;
  assert_int_equal(attn_sdpa(c->o, c->q, c->k, c->v, &c->params, &s->ctx), ATTN_OK);
}

/* What calls without a long list of rules refuse: lists that are null or not aligned, and the ends of int64. */
void api_rejects_lists(void **state) {
  (void)state;
  attn_ctx ctx = test_ctx();
  int32_t list[8] = {0}, *odd = (int32_t *)(void *)((char *)list + 1);
  const attn_pattern bare = attn_pattern_multiscale(NULL, 2);
  assert_int_equal(attn_schedule_bytes(&bare, 2, 4, 4, NULL, &ctx), 0);
  assert_non_null(strstr(ctx.reason, "null"));
  assert_int_equal(attn_block_permutations(odd, 1, 4, 7), ATTN_E_ALIGN);

  attn_longformer_params lp;
  attn_schedule schedule;
  memset(&lp, 0, sizeof lp);
  lp.window = odd;
  assert_int_equal(attn_longformer_schedule(&schedule, &lp, 1, 4, 0, &ctx), ATTN_E_ALIGN);

  attn_etc_structure es;
  uint8_t mask[64];
  memset(&es, 0, sizeof es);
  es.longs = 4, es.globals = 1, es.radius = 1;
  assert_int_equal(attn_etc_labels(odd, NULL, NULL, NULL, &es, &ctx), ATTN_E_ALIGN);
  es.sentence = odd;
  assert_int_equal(attn_etc_masks(mask, NULL, NULL, NULL, &es, &ctx), ATTN_E_ALIGN);

  float x[8] = {0};
  attn_memory m;
  memset(&m, 0, sizeof m);
  m.rows = attn_bhtd(x, ATTN_F32, 1, 1, 4, 1), m.len = 4;
  attn_tensor h = attn_bhtd(x + 4, ATTN_F32, 1, 1, INT64_MAX, 1),
              y = attn_bhtd(x + 5, ATTN_F32, 1, 1, 2, 1);
  h.stride_len = 0;
  assert_int_equal(attn_memory_update_workspace(y, m, h, &ctx), ATTN_WORKSPACE_REJECTED);
  assert_int_equal(attn_memory_update(y, m, h, &ctx), ATTN_E_OVERFLOW);
  assert_non_null(strstr(ctx.reason, "h.len"));

  int32_t exits[2];
  int64_t ids[2] = {-1, 99};
  const float threshold[2] = {0};
  assert_int_equal(
      attn_calm_exit(exits, attn_bhtd(x, ATTN_F32, 1, 1, 2, 2), threshold, INT64_MIN, &ctx),
      ATTN_E_RANGE);
  attn_learned_params ep;
  memset(&ep, 0, sizeof ep);
  ep.positions = ids, h = attn_bhtd(NULL, ATTN_F32, 0, 0, 0, 0);
  assert_int_equal(attn_learned_position(attn_bhtd(NULL, ATTN_F32, 0, 1, 2, 1), h,
                                         attn_bhtd(x, ATTN_F32, 1, 1, 4, 1), &ep, &ctx),
                   ATTN_OK);
  y.stride_len = INT64_MAX;
  y = attn_trajectory_rows(y, ATTN_TRAJECTORY_ACTION);
  assert_true(y.stride_len == INT64_MAX);
}
