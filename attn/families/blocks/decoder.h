/* families/blocks/decoder.h owns the calls of a decoder: the block over all rows, and its step behind a cache. */

ATTN_COLD_ attn_status attn_decoder_call_(attn_tensor y, attn_tensor x, attn_tensor e,
                                          const attn_block_params *params, attn_ctx *ctx,
                                          size_t *bytes) {
  attn_error_ error = {ATTN_OK, NULL};
  attn_coder_job_ j = attn_coder_open_(y, x);
  if (!attn_decoder_pair_(&error, params, e.data != NULL))
    return attn_end_(bytes ? NULL : ctx, &error);
  j.e = e;
  return attn_coder_call_(&j, params, 1, NULL, "decoder block", ctx, bytes);
}
ATTN_CALL_(attn_decoder, (y, x, e, params), attn_tensor y, attn_tensor x, attn_tensor e,
           const attn_block_params *params)

/* ---- one step -------------------------------------------------------------------------------*/

ATTN_COLD_ attn_status attn_decoder_step_call_(attn_tensor y, attn_tensor x,
                                               const attn_decoder_cache *cache,
                                               const attn_block_params *params, attn_ctx *ctx,
                                               size_t *bytes) {
  const void *there = (const void *)(uintptr_t)ATTN_ALIGN_;
  attn_error_ e = {ATTN_OK, NULL};
  attn_coder_job_ j = attn_coder_open_(y, x);
  attn_decoder_cache own;
  if (!cache)
    attn_reject_(&e, ATTN_E_NULL, "cache must not be null");
  else
    attn_decoder_pair_(&e, params, cache->e_k.data != NULL);
  if (e.status != ATTN_OK) return attn_end_(bytes ? NULL : ctx, &e);
  own = *cache;
  if (own.e_k.data && params) /* of what cross attention has read, extents alone are left */
    j.e = attn_bhtd(there, ATTN_F32, x.batch, 1, own.e_k.len,
                    attn_inputs_(&params->cross.w_k, params->cross.w_transposed));
  return attn_coder_call_(&j, params, 1, &own, "decoder step", ctx, bytes);
}
ATTN_PUB_COLD_ attn_status attn_decoder_step(attn_tensor y, attn_tensor x,
                                             attn_decoder_cache *cache,
                                             const attn_block_params *params, attn_ctx *ctx) {
  attn_status status = attn_decoder_step_call_(y, x, cache, params, ctx, NULL);
  if (status == ATTN_OK) cache->len += x.len;
  return status;
}
ATTN_PUB_COLD_ size_t attn_decoder_step_workspace(attn_tensor y, attn_tensor x,
                                                  const attn_decoder_cache *cache,
                                                  const attn_block_params *params,
                                                  const attn_ctx *ctx) {
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  const attn_status status = attn_decoder_step_call_(y, x, cache, params, &plain, &bytes);
  return attn_answer_(status, (int64_t)bytes);
}

/* ---- the beginning --------------------------------------------------------------------------*/

typedef struct attn_start_job_ {
  attn_tensor e, e_k, e_v;
  attn_multihead_params cross;
} attn_start_job_;

/* The norm of the keys. */
ATTN_COLD_ int attn_start_norm_ok_(attn_error_ *e, const attn_start_job_ *j,
                                   const attn_span_ outer[2], const attn_ctx *ctx) {
  const attn_tensor *k = &j->e_k;
  attn_span_ work;
  attn_rope_ g;
  if (!j->cross.rope) return 1;
  const attn_rope_params rope = attn_multihead_rope_(&j->cross, 1);
  if (!attn_check_workspace_(e, ctx, &work) ||
      !attn_rope_open_(e, &g, &rope, k->batch, k->heads, k->len, 0, k->len, k->dim, 1))
    return 0;
  if (attn_rope_shares_(&g, work) || attn_rope_shares_(&g, outer[0]) ||
      attn_rope_shares_(&g, outer[1]))
    return attn_reject_(e, ATTN_E_OVERLAP,
                        "arrays of params.cross.rope must not share memory with an output or "
                        "ctx.workspace");
  return 1;
}

ATTN_COLD_ int attn_start_check_(attn_error_ *e, attn_start_job_ *j, const attn_ctx *ctx,
                                 const attn_table_ **table, int *workers) {
  const int64_t b = j->e.batch, t = j->e.len, d = j->e.dim, any = ATTN_ANY_;
  const int64_t h = j->e_k.heads, k = attn_mul_(h, j->e_k.dim), v = attn_mul_(h, j->e_v.dim);
  attn_multihead_params *p = &j->cross;
  const int matrix = ATTN_MATRIX_ | ATTN_CODES_;
  attn_turn_(&p->w_k, p->w_transposed), attn_turn_(&p->w_v, p->w_transposed);
  attn_operand_ op[] = {ATTN_OPERAND_(&j->e_k, "cache.e_k", ATTN_OUT_, b, any, t, any,
                                      "cache.e_k must be [e.batch, kv_heads, e.len, dk]"),
                        ATTN_OPERAND_(&j->e_v, "cache.e_v", ATTN_OUT_, b, h, t, any,
                                      "cache.e_v must be [e.batch, kv_heads, e.len, dv]"),
                        ATTN_OPERAND_(&j->e, "e", 0, any, 1, any, any, "e must have one head"),
                        ATTN_OPERAND_(&p->w_k, "params.cross.w_k", matrix, 1, 1, d, k,
                                      ATTN_IN_OUT_("params.cross.w_k", "e.dim", "kv_heads * dk")),
                        ATTN_OPERAND_(&p->w_v, "params.cross.w_v", matrix, 1, 1, d, v,
                                      ATTN_IN_OUT_("params.cross.w_v", "e.dim", "kv_heads * dv")),
                        ATTN_OPERAND_(&p->b_k, "params.cross.b_k", ATTN_OPTIONAL_, 1, 1, 1, k,
                                      "params.cross.b_k must be [1, 1, 1, the width of w_k]"),
                        ATTN_OPERAND_(&p->b_v, "params.cross.b_v", ATTN_OPTIONAL_, 1, 1, 1, v,
                                      "params.cross.b_v must be [1, 1, 1, the width of w_v]")};
  const int n = (int)(sizeof op / sizeof *op);
  const int64_t kv = p->kv_heads ? p->kv_heads : p->heads ? p->heads : 1;
  if (!attn_check_ctx_(e, ctx, table, workers)) return 0;
  for (int i = 0; i < n; i++)
    if (!attn_check_operand_(e, &op[i], 1)) return 0;
  if (h != kv)
    return attn_reject_(e, ATTN_E_HEADS, "cache.e_k.heads must be the kv_heads of params.cross");
  attn_operand_ scales[4];
  memset(scales, 0, sizeof scales);
  if (!attn_multihead_scales_(e, p, ATTN_W_K_, scales) ||
      !attn_multihead_scales_(e, p, ATTN_W_V_, scales + 2))
    return 0;
  attn_span_ more[4];
  for (int i = 0; i < 4; i++) more[i] = scales[i].span;
  if (!attn_check_apart_(e, ctx, op, n, more, 4)) return 0;
  p->kv_heads = kv;
  const attn_span_ outer[2] = {op[0].span, op[1].span};
  return attn_start_norm_ok_(e, j, outer, ctx);
}

ATTN_COLD_ int attn_start_steps_(attn_stage_ *s, void *job) {
  const attn_start_job_ *j = (const attn_start_job_ *)job;
  const attn_multihead_params *p = &j->cross;
  attn_multihead_job_ keys;
  memset(&keys, 0, sizeof keys);
  keys.p = *p;
  return attn_stage_fresh_keys_(s, &keys, j->e_k, j->e, 0) &&
         attn_stage_to_heads_(s, p, ATTN_W_V_, j->e_v, j->e);
}

ATTN_COLD_ attn_status attn_decoder_start_call_(const attn_decoder_cache *cache, attn_tensor e,
                                                const attn_block_params *params, attn_ctx *ctx,
                                                size_t *bytes) {
  attn_error_ error = {ATTN_OK, NULL};
  attn_start_job_ j;
  const attn_table_ *table;
  int workers;
  memset(&j, 0, sizeof j);
  if (!cache || !params) {
    attn_reject_(&error, ATTN_E_NULL, "cache and params must not be null");
  } else if (!attn_decoder_pair_(&error, params, e.data != NULL) || !e.data) {
    if (error.status == ATTN_OK && attn_check_ctx_(&error, ctx, &table, &workers) && !bytes)
      attn_report_(ctx, table, 1, "no-op", "no cross attention");
  } else if (attn_check_unturned_(&error, params)) {
    j.e = e, j.e_k = cache->e_k, j.e_v = cache->e_v, j.cross = params->cross;
    if (attn_start_check_(&error, &j, ctx, &table, &workers)) {
      attn_stage_ s = attn_stage_open_(&error, table, workers, ctx, bytes != NULL);
      attn_stage_call_(&s, ctx, attn_start_steps_, &j, "keys and values of cross attention", bytes);
    }
  }
  return attn_end_(bytes ? NULL : ctx, &error);
}
ATTN_PUB_COLD_ attn_status attn_decoder_start(attn_decoder_cache *cache, attn_tensor e,
                                              const attn_block_params *params, attn_ctx *ctx) {
  attn_status status = attn_decoder_start_call_(cache, e, params, ctx, NULL);
  if (status == ATTN_OK) cache->len = 0;
  return status;
}
ATTN_PUB_COLD_ size_t attn_decoder_start_workspace(const attn_decoder_cache *cache, attn_tensor e,
                                                   const attn_block_params *params,
                                                   const attn_ctx *ctx) {
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  const attn_status status = attn_decoder_start_call_(cache, e, params, &plain, &bytes);
  return attn_answer_(status, (int64_t)bytes);
}
