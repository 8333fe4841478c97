/* tests/golden_sparse.c owns the golden calls of sums of blocks beside a window, and of norms of
 * queries and keys. */

#include "golden_calls.h"

/* 61 tokens: a last block of 13. Keys and values of global rows are such rows of keys and values. */
static attn_status long_t5(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  static const int32_t len[1] = {61};
  const attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 1, T, DK),
                    v = golden_exact(rng, 2, T, DV);
  const attn_tensor side_k = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, T / 8, DK),
                    side_v = test_tensor(ATTN_F32, TEST_BHTD, 1, 2, T / 8, DV);
  attn_global_rows_params rows;
  attn_long_t5_params p;
  memset(&rows, 0, sizeof rows), memset(&p, 0, sizeof p);
  rows.block = 8, rows.len = len;
  attn_status status = attn_global_rows(side_k, k, &rows, ctx);
  if (status == ATTN_OK) status = attn_global_rows(side_v, v, &rows, ctx);
  if (status != ATTN_OK) return status;
  p.scale = 0.125f, p.radius = 9, p.block = 8, p.len = len, p.lse = lse;
  p.table = golden_exact(rng, 1, 32, 2).data, p.side_table = golden_exact(rng, 1, 32, 2).data;
  return attn_long_t5(o, q, k, v, side_k, side_v, &p, ctx);
}

/* Norms of each kind: inside the call, and of rows before it, rotated or not. */
static attn_status normed(attn_tensor o, attn_tensor lse, test_rng *rng, attn_ctx *ctx) {
  attn_reshaped_params p;
  attn_rope_params turn;
  attn_qk_norm norm;
  memset(&p, 0, sizeof p), memset(&turn, 0, sizeof turn), memset(&norm, 0, sizeof norm);
  p.attention.causal = 1, p.attention.lse = lse, p.norm = turn.norm = &norm;
  const attn_tensor q = golden_exact(rng, 2, T, DK), k = golden_exact(rng, 2, T, DK);
  const attn_tensor gain = golden_exact(rng, 1, 2, DK), v = golden_exact(rng, 2, T, DV);
  norm.q_gain = (const float *)gain.data, norm.k_gain = norm.q_gain + 1, norm.gain_less_one = 1;
  for (int kind = 0; kind < ATTN_QK_NORM_KINDS; kind++) {
    norm.kind = (attn_qk_norm_kind)kind, norm.after = kind == ATTN_QK_NORM_L2;
    if (kind == ATTN_QK_NORM_RMS_ALL) norm.k_gain = norm.q_gain;
    turn.has_rotary_dim = kind == ATTN_QK_NORM_LAYER;
    for (turn.keys = 0; turn.keys < 2; turn.keys++) {
      const attn_tensor x = turn.keys ? k : q;
      const attn_status status = attn_rope(x, x, &turn, ctx);
      if (status != ATTN_OK) return status;
    }
  }
  norm.kind = ATTN_QK_NORM_LAYER;
  return attn_reshaped(o, q, k, v, &p, ctx);
}

const golden_call golden_sparse[] = {
    {"long t5", long_t5}, {"norms of queries and keys", normed}, {NULL, NULL}};
