/* calls/path_turn.h owns attn_path_turn: keys, 64 in lanes, carried past tokens that come after them. */

typedef struct attn_path_turning_ {
  const attn_table_ *table;
  attn_tensor k, w, beta;
  attn_path_turn_params p;
  char *memory;
  int64_t each; /* bytes of a worker */
} attn_path_turning_;

/* Lanes before `some` of keys in kt past the transition of one token; a w that is no unit vector by far leaves
 * nothing of them. */
ATTN_FUNC_ void attn_path_turn_lanes_(const attn_path_turning_ *a, float *kt, float *row, int64_t b,
                                      int64_t h, int64_t token, int some) {
  const int64_t dk = a->k.dim;
  const int groups = (some + ATTN_GROUP_ - 1) / ATTN_GROUP_;
  const float by = attn_number_(attn_at_(&a->beta, b, h, token), 0, a->beta.dtype, NULL);
  float z[ATTN_TILE_], top[ATTN_TILE_] = {0}, square = 0.0f;
  a->table->widen(row, attn_at_(&a->w, b, h, token), 0, NULL, 1, dk, a->w.dtype, NULL);
  for (int64_t c = 0; c < dk; c++) square += row[c] * row[c];
  if (!(square <= ATTN_PATH_LONG_)) {
    for (int64_t c = 0; c < dk; c++)
      for (int r = 0; r < some; r++) kt[c * ATTN_TILE_ + r] = attn_from_bits_(0x7fc00000u);
    return;
  }
  attn_on_(tile, a->table)->score_block(z, kt, row, dk, 1, dk, 0, groups, top);
  for (int r = 0; r < groups * ATTN_GROUP_; r++) z[r] = r < some ? -by * z[r] : 0.0f;
  attn_on_(tile, a->table)->value_block(kt, z, row, dk, 1, dk, 0, groups, NULL, 0);
}

ATTN_FUNC_ void attn_path_turn_item_(void *job, int worker, int64_t index) {
  const attn_path_turning_ *a = (const attn_path_turning_ *)job;
  const int64_t tiles = attn_runs_of_(a->k.len, ATTN_TILE_), unit = index / tiles;
  const int64_t b = unit / a->k.heads, h = unit % a->k.heads, at = index % tiles * ATTN_TILE_;
  const int64_t len = attn_len_of_(a->p.kv_len, b, a->k.len), tokens = a->w.len;
  const int64_t left = len - at;
  const int n = left < ATTN_TILE_ ? (int)left : ATTN_TILE_;
  float *kt = (float *)(void *)(a->memory + worker * a->each), *row = kt + a->k.dim * ATTN_TILE_;
  const void *from[ATTN_TILE_];
  void *to[ATTN_TILE_];
  if (left <= 0 || !tokens) return;
  for (int r = 0; r < n; r++) to[r] = attn_at_(&a->k, b, h, at + r), from[r] = to[r];
  a->table->pack(kt, from, n, a->k.dim, (int)a->k.dtype, 1.0f, attn_least_(1.0f));
  for (int64_t i = 0; i < tokens; i++) {
    const int64_t before = a->p.stored ? len - tokens + i - at : n;
    if (before > 0) attn_path_turn_lanes_(a, kt, row, b, h, i, before < n ? (int)before : n);
  }
  a->table->unpack(to, kt, n, a->k.dim, a->k.dtype, NULL);
}

ATTN_COLD_ int attn_path_turn_steps_(attn_stage_ *s, void *job) {
  attn_path_turning_ *a = (attn_path_turning_ *)job;
  const int64_t items =
      attn_mul_(attn_mul_(a->k.batch, a->k.heads), attn_runs_of_(a->k.len, ATTN_TILE_));
  a->each = attn_piece_(attn_mul_(a->k.dim, ATTN_TILE_ + 1), (int64_t)sizeof(float));
  return attn_stage_for_(s, items, attn_path_turn_item_, a, a->each, &a->memory);
}

ATTN_COLD_ int attn_path_turn_check_(attn_error_ *e, attn_path_turning_ *a, const attn_ctx *ctx,
                                     int data) {
  enum { K, W, BETA, COUNT };
  const int64_t any = ATTN_ANY_, batch = a->k.batch, heads = a->k.heads;
  attn_span_ len;
  attn_operand_ op[COUNT] = {ATTN_OPERAND_(&a->k, "k", ATTN_OUT_, any, any, any, any, ""),
                             ATTN_OPERAND_(&a->w, "w", 0, batch, heads, any, a->k.dim,
                                           "w must be [k.batch, k.heads, tokens, k.dim]"),
                             ATTN_OPERAND_(&a->beta, "beta", 0, batch, heads, a->w.len, 1,
                                           "beta must be [k.batch, k.heads, w.len, 1]")};
  if (!attn_check_given_(e, op, COUNT)) return 0;
  for (int i = 0; i < COUNT; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (!attn_check_array_(e, a->p.kv_len, batch, 4, "params.kv_len must be aligned to its elements",
                         &len) ||
      !attn_check_apart_(e, ctx, op, COUNT, &len, 1))
    return 0;
  if (!data) return 1;
  if (!attn_check_lens_(e, a->p.kv_len, batch, a->k.len, "params.kv_len must lie in 0..k.len"))
    return 0;
  for (int64_t b = 0; a->p.stored && b < batch; b++)
    if (a->w.len > attn_len_of_(a->p.kv_len, b, a->k.len))
      return attn_reject_(e, ATTN_E_RANGE,
                          "params.stored: w.len must be at most k.len and params.kv_len");
  return attn_check_strength_(e, &a->beta, NULL, "beta must lie in 0..2 and not be NaN");
}

/* The call, or with bytes the workspace query. */
ATTN_COLD_ attn_status attn_path_turn_call_(attn_tensor k, attn_tensor w, attn_tensor beta,
                                            const attn_path_turn_params *params, attn_ctx *ctx,
                                            size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_path_turning_ a;
  int workers = 1;
  memset(&a, 0, sizeof a);
  if (params) a.p = *params;
  a.k = k, a.w = w, a.beta = beta;
  if (attn_check_ctx_(&e, ctx, &a.table, &workers))
    (void)attn_path_turn_check_(&e, &a, ctx, bytes == NULL);
  return attn_step_call_(&e, a.table, workers, ctx, attn_path_turn_steps_, &a, "keys in lanes",
                         bytes);
}
ATTN_CALL_(attn_path_turn, (k, w, beta, params), attn_tensor k, attn_tensor w, attn_tensor beta,
           const attn_path_turn_params *params)
