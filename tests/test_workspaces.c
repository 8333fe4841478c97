/* tests/test_workspaces.c owns how the workspaces of mechanisms since 2022 grow with the tokens: by what their
 * comments say, which is nowhere an array of all pairs. */

#include <stdio.h>

#include "compound.h"

enum { HEADS = 4, KV = 2, DK = 64, DV = 48 };

/* A call of t tokens at the hands of its workspace query. */
typedef struct asked {
  int64_t t;
  attn_ctx ctx;
  int at;      /* outputs so far */
  size_t have; /* what the query says */
  double most; /* what the comment says */
} asked;

/* Queries read no numbers: one row anywhere stands for all. */
static attn_tensor in(int64_t heads, int64_t len, int64_t dim) {
  attn_tensor x = attn_bhtd((void *)(uintptr_t)4096, ATTN_F32, 1, heads, len, dim);
  x.stride_batch = x.stride_head = x.stride_len = 0;
  return x;
}

static attn_tensor out(asked *a, int64_t heads, int64_t len, int64_t dim) {
  const uintptr_t at = (uintptr_t)0x60000000u + (uintptr_t)a->at++ * (uintptr_t)0x08000000u;
  return attn_bhtd((void *)at, ATTN_F32, 1, heads, len, dim);
}

/* attn_sdpa with many queries of these widths. */
static double plain(const asked *a, int64_t heads, int64_t dk, int64_t dv) {
  asked b = *a;
  attn_sdpa_params p = {0};
  p.causal = 1, p.one_order = 1;
  const size_t n = attn_sdpa_workspace(out(&b, heads, a->t, dv), in(heads, a->t, dk),
                                       in(heads, a->t, dk), in(heads, a->t, dv), &p, &a->ctx);
  assert_true(n != ATTN_WORKSPACE_REJECTED);
  return (double)n;
}

/* attn_edges with lists of n keys in all. */
static double edges(const asked *a, int64_t n) {
  asked b = *a;
  attn_edges_params p = {0};
  p.indptr = (const int64_t *)(uintptr_t)4096, p.col = (const int32_t *)(uintptr_t)4096;
  p.edges = n, p.slack = 1;
  const size_t bytes = attn_edges_workspace(out(&b, HEADS, a->t, DV), in(HEADS, a->t, DK),
                                            in(KV, a->t, DK), in(KV, a->t, DV), &p, &a->ctx);
  assert_true(bytes != ATTN_WORKSPACE_REJECTED);
  return (double)bytes;
}

/* The widest that a row of latents may be. */
static double wide(int64_t n) { return 4.0 * (double)(n + 47); }

static void reshaped(asked *a, int which) {
  const int64_t t = a->t, blocks = (t + 127) / 128;
  const double w = a->ctx.workers;
  static const float one[HEADS] = {1, 1, 1, 1};
  static attn_qk_norm norm;
  attn_reshaped_params p = {0};
  p.attention.causal = 1;
  a->most = plain(a, HEADS, DK, DV);
  if (which < 5) p.kind = (attn_reshape_kind)which;
  if (which == ATTN_RESHAPE_ENTMAX) a->most += w * 256 * (double)t;
  if (which == 5)
    p.ssmax.scale = one,
    p.attention.bias = attn_mask_add((void *)(uintptr_t)4096, ATTN_F32, 1, 1, 1, t);
  if (which == 5) a->most += 12.0 * HEADS * (double)t;
  if (which == 6) p.forget.log_f = in(KV, t, 1), a->most += 16.0 * KV * (double)t;
  if (which == 7) p.norm = &norm, a->most += 12.0 * KV * (double)t + w * 768 * DK;
  if (which == 8) p.cope.table = in(1, 100, DK), a->most += w * 256 * (DK + 100 + 31);
  if (which == 9) p.selective.on = 1, a->most += 264.0 * (double)t + w * 32768;
  if (which == 10) {
    p.path.w = in(KV, t, DK), p.path.beta = in(KV, t, 1);
    a->most += 4.0 * (DK * DK + 128 * DK + 16400) * KV * (double)blocks + w * (1536 * DK + 65664);
  }
  a->have = attn_reshaped_workspace(out(a, HEADS, t, DV), in(HEADS, t, DK), in(KV, t, DK),
                                    in(KV, t, DV), &p, &a->ctx);
}

static void recurrent(asked *a, attn_recurrent_rule rule, int levels) {
  static const float log[HEADS];
  const int64_t t = a->t;
  const double w = a->ctx.workers, state = DK * DV;
  attn_recurrent_params p = {0};
  attn_tensor k = in(HEADS, t, DK), no = absent();
  p.rule = rule;
  if (rule == ATTN_RECURRENT_GLA || rule == ATTN_RECURRENT_KDA || rule == ATTN_RECURRENT_HGRN2)
    p.decay = in(HEADS, t, DK);
  if (rule == ATTN_RECURRENT_GATED_DELTA || rule == ATTN_RECURRENT_MLSTM) p.decay = in(HEADS, t, 1);
  if (rule == ATTN_RECURRENT_RWKV6 || rule == ATTN_RECURRENT_RWKV7) p.decay = in(HEADS, t, DK);
  if (rule == ATTN_RECURRENT_DPLR || rule == ATTN_RECURRENT_RWKV7) p.a = p.b = in(HEADS, t, DK);
  if (rule == ATTN_RECURRENT_RWKV6) p.bonus = in(HEADS, 1, DK);
  if (rule == ATTN_RECURRENT_MLSTM) p.gate = in(HEADS, t, 1);
  if (rule == ATTN_RECURRENT_MAMBA2) p.dt = in(HEADS, t, 1), p.a_log = log;
  a->most = w * (8 * state + 2600 * DK + 800 * DV + 70 * 1024);
  if (levels) p.lambda = in(HEADS, t, levels);
  if (levels) a->most += w * ((8 * levels + 4) * state + 256 * DV + 50 * 1024);
  a->have = attn_recurrent_workspace(out(a, HEADS, t, DV), k, rule == ATTN_RECURRENT_HGRN2 ? no : k,
                                     in(HEADS, t, DV), &p, &a->ctx);
}

static void chosen(asked *a, int which) {
  enum { BLOCK = 64, K = 8, DI = 16, HI = 4, L = 32, D = 16 };
  const int64_t t = a->t, blocks = t / BLOCK, compressed = (t - L) / D + 1;
  const double w = a->ctx.workers, rows = (double)t, tile = plain(a, HEADS, DK, DV);
  const double visit = tile + w * (1024 * (8 * (DV + 4) + 4 * K) + 16 * (double)blocks);
  const attn_tensor q = in(HEADS, t, DK), k = in(KV, t, DK), v = in(KV, t, DV);
  const attn_tensor o = out(a, HEADS, t, DV);
  attn_moba_params moba = {0};
  attn_quest_params quest = {0};
  attn_dsa_params dsa = {0};
  attn_nsa_params nsa = {0};
  moba.block = BLOCK, moba.k = K, quest.page = 16, quest.pages = K, dsa.k = K;
  dsa.qi = in(HI, t, DI), dsa.ki = in(1, t, DI), dsa.wi = in(1, t, HI);
  nsa.block = L, nsa.stride = D, nsa.select = BLOCK, nsa.blocks = K, nsa.window = 128;
  nsa.gate = in(HEADS, t, 3);
  if (which == 0) {
    a->have = attn_moba_workspace(o, q, k, v, &moba, &a->ctx);
    a->most = 4.0 * K * HEADS * rows + 4.0 * DK * KV * (double)blocks + visit;
  } else if (which == 1) {
    a->have = attn_quest_workspace(o, q, k, v, &quest, &a->ctx);
    a->most = (4.0 * K * 17 + 8) * HEADS * rows + 8.0 * DK * KV * rows / 16 + edges(a, K * t);
  } else if (which == 2) {
    a->have = attn_dsa_workspace(o, q, k, v, &dsa, &a->ctx);
    a->most =
        (4.0 * K + 8) * rows + edges(a, K * t) + w * (65 * (2 * K + 48) * 8 + 256 * DI * (HI + 1));
  } else {
    a->have = attn_nsa_workspace(o, q, k, v, &nsa, &a->ctx);
    a->most = 3 * 4.0 * DV * HEADS * rows + 4.0 * K * KV * rows +
              4.0 * (DK + DV) * KV * (double)compressed + w * 4 * 64 * rows / D + visit;
  }
}

static void estimated(asked *a, int which) {
  const int64_t t = a->t;
  const double w = a->ctx.workers, rows = (double)t;
  const attn_tensor q = in(HEADS, t, DK), k = in(KV, t, DK);
  uint8_t *mask = (uint8_t *)(uintptr_t)0x60000000u;
  if (which == 0) {
    const double blocks = rows / 128;
    a->have = attn_xattention_workspace(mask, q, k, NULL, &a->ctx);
    a->most = w * (256 * rows / 16 + (532 + 8 * 8) * blocks + 460 * DK + 13 * 1024);
  } else if (which == 1) {
    a->have = attn_vertical_slash_workspace(mask, q, k, NULL, &a->ctx);
    a->most = w * (282 * rows + 460 * DK + 1024);
  } else {
    a->have = which == 2 ? attn_snapkv_workspace(out(a, KV, t, 1), q, k, NULL, &a->ctx)
                         : attn_h2o_workspace(out(a, KV, t, 2), q, k, NULL, &a->ctx);
    a->most = w * (264 * rows + 460 * DK + 1024);
  }
}

static void latent(asked *a, int which) {
  enum { DM = 96, DQ = 32, DC = 40, DR = 8, DN = 24, RQ = 6, RK = 2 };
  const int64_t t = a->t;
  const double w = a->ctx.workers, rows = (double)t;
  if (which == 0) {
    attn_infini_params p = {0};
    asked segment = *a;
    p.segment = segment.t = 512;
    a->have = attn_infini_workspace(out(a, HEADS, t, DV), in(HEADS, t, DK), in(KV, t, DK),
                                    in(KV, t, DV), &p, &a->ctx);
    a->most = w * (24 * DK * DV + 512 * (DK + DV)) + plain(&segment, HEADS, DK, DV);
  } else if (which < 3) {
    const int absorbed = which == 1;
    attn_mla_params p = {0};
    p.heads = 16, p.rope_dim = DR, p.form = absorbed ? ATTN_MLA_ABSORBED : ATTN_MLA_EXPANDED;
    p.w_dq = in(1, DM, DQ), p.w_uq = in(1, DQ, 16 * (DN + DR)), p.w_dkv = in(1, DM, DC + DR);
    p.w_ukv = in(1, DC, 16 * (DN + DV)), p.w_o = in(1, 16 * DV, DM);
    a->have = attn_mla_workspace(out(a, 1, t, DM), in(1, t, DM), &p, &a->ctx);
    a->most = rows * (4 * DQ + wide(16 * (DN + DR)) + 4 * (DC + DR) + wide(16 * DV)) +
              4.0 * 2 * (DM * 64 + DQ * 512 + DM * 64 + DC * 1152 + 16 * DV * 128);
    a->most += absorbed ? rows * (wide(8 * (DC + DR)) + wide(8 * DC)) + plain(a, 8, DC + DR, DC)
                        : rows * 8 * (wide(DN + DR) + wide(DV)) + plain(a, 8, DN + DR, DV);
  } else {
    attn_tpa_params p = {0};
    const attn_factors q = {in(RQ, t, 16), in(RQ, t, DK)}, k = {in(RK, t, 16), in(RK, t, DK)},
                       v = {in(RK, t, 16), in(RK, t, DV)};
    const double kv = RK * (16 + DK) + RK * (16 + DV);
    a->have = attn_tpa_workspace(out(a, 16, t, DV), &q, &k, &v, &p, &a->ctx);
    a->most = rows * (4 * RQ * (16 + DK) + 4 * kv + wide(16 * DK) + wide((int64_t)kv) +
                      wide(16 * DK) + wide(16 * DV)) +
              plain(a, 16, DK, DV);
  }
}

static void others(asked *a, int which) {
  const int64_t t = a->t, blocks = t / 32;
  const double w = a->ctx.workers, rows = (double)t, n = (double)blocks;
  const attn_tensor q = in(HEADS, t, DK), k = in(KV, t, DK), v = in(KV, t, DV);
  attn_tensor o = out(a, HEADS, t, DV);
  attn_differential_params two = {0};
  attn_ngram_params gram = {0};
  attn_yoso_params hash = {0};
  static const float table[32 * HEADS];
  attn_long_t5_params t5 = {0};
  a->most = plain(a, HEADS, DK, DV);
  switch (which) {
    case 0:
    case 1:
      if (which) o.dtype = ATTN_F16, a->most += 4.0 * DV * HEADS * rows;
      two.attention.causal = 1, two.has_lambda = 1;
      a->have =
          attn_differential_workspace(o, in(2 * HEADS, t, DK), in(2 * KV, t, DK), v, &two, &a->ctx);
      break;
    case 2:
      t5.table = t5.side_table = table;
      a->have =
          attn_long_t5_workspace(o, q, k, v, in(KV, t / 16, DK), in(KV, t / 16, DV), &t5, &a->ctx);
      a->most += 4.0 * (DV + 2) * HEADS * rows + 8.0 * HEADS * (rows + rows / 16);
      break;
    case 3:
      gram.relative = in(HEADS, t, 32);
      a->have = attn_ngram_workspace(o, q, k, v, k, v, &gram, &a->ctx);
      a->most += 8.0 * HEADS * rows + 4 * 128 + 4;
      break;
    case 4:
    case 5:
      hash.unit = which == 5;
      a->have = attn_yoso_workspace(o, q, k, v, &hash, &a->ctx);
      if (!hash.unit) a->most += 4.0 * DK * (HEADS + KV) * rows;
      break;
    default:
      a->have = attn_mra_workspace(o, q, k, v, NULL, &a->ctx);
      a->most += HEADS * (4 * n * (DK + DV) + 4 * n * n + 4 * n * (DV + 1)) +
                 w * (16 * n * n + 64 * 4 * (DK + DV) + 64 * n);
      break;
  }
}

/* The name of case n, null behind the last. */
static const char *ask(int n, asked *a) {
  static const char *const choices[] = {"attn_moba", "attn_quest", "attn_dsa", "attn_nsa"};
  static const char *const estimates[] = {"attn_xattention", "attn_vertical_slash", "attn_snapkv",
                                          "attn_h2o"};
  static const char *const latents[] = {"attn_infini", "attn_mla, absorbed", "attn_mla, expanded",
                                        "attn_tpa"};
  static const char *const more[] = {
      "attn_differential", "attn_differential to f16", "attn_long_t5", "attn_ngram",
      "attn_yoso",         "attn_yoso of unit rows",   "attn_mra"};
  a->at = 0;
  if (n < 11) return reshaped(a, n), "attn_reshaped";
  if ((n -= 11) < 4) return chosen(a, n), choices[n];
  if ((n -= 4) < 4) return estimated(a, n), estimates[n];
  if ((n -= 4) < 4) return latent(a, n), latents[n];
  if ((n -= 4) < 7) return others(a, n), more[n];
  n -= 7;
  if (n < ATTN_RECURRENT_COUNT) return recurrent(a, (attn_recurrent_rule)n, 0), "attn_recurrent";
  n -= ATTN_RECURRENT_COUNT;
  if (n < ATTN_RECURRENT_COUNT) {
    const attn_recurrent_rule rule = (attn_recurrent_rule)n;
    if (rule == ATTN_RECURRENT_RWKV6 || rule == ATTN_RECURRENT_MLSTM)
      a->have = 0, a->most = 0;
    else
      recurrent(a, rule, 20);
    return "attn_recurrent with lambda";
  }
  return NULL;
}

/* With 16 times the tokens a workspace grows by what its comment says, which holds no array of all pairs; that of a state
 * does not grow. Pieces that are the same for any number of tokens may have some room more. */
void api_modern_workspaces(void **state) {
  (void)state;
  static const double tokens[2] = {2048, 32768};
  for (int workers = 1; workers <= 4; workers += 3)
    for (int n = 0, more = 1; more; n++) {
      asked a[2];
      const char *name = NULL;
      for (int x = 0; x < 2; x++) {
        memset(&a[x], 0, sizeof a[x]);
        a[x].t = (int64_t)tokens[x], a[x].ctx = test_ctx();
        a[x].ctx.workers = workers, a[x].ctx.parallel_for = test_parallel_forward;
        name = ask(n, &a[x]);
      }
      more = name != NULL;
      if (!more || a[1].most == 0) continue;
      const double grown = (double)a[1].have - (double)a[0].have, room = 1024 + 256.0 * workers;
      if (a[0].have == ATTN_WORKSPACE_REJECTED || a[1].have == ATTN_WORKSPACE_REJECTED)
        fail_msg("%s: its workspace is refused", name);
      if (!(grown <= a[1].most - a[0].most + room))
        fail_msg("%s, %d workers, grows by %.0f bytes, not %.0f", name, workers, grown,
                 a[1].most - a[0].most);
      if (!(a[0].have > 0 && (double)a[0].have <= a[0].most + room + workers * 160e3))
        fail_msg("%s, %d workers, has %zu bytes, not %.0f", name, workers, a[0].have, a[0].most);
    }
}
