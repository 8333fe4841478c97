/* families/blocks/encoder.h owns the call of an encoder block. */

ATTN_COLD_ attn_status attn_encoder_call_(attn_tensor y, attn_tensor x,
                                          const attn_block_params *params, attn_ctx *ctx,
                                          size_t *bytes) {
  attn_coder_job_ j = attn_coder_open_(y, x);
  return attn_coder_call_(&j, params, 0, NULL, "encoder block", ctx, bytes);
}
ATTN_PUB_COLD_ attn_status attn_encoder(attn_tensor y, attn_tensor x,
                                        const attn_block_params *params, attn_ctx *ctx) {
  return attn_encoder_call_(y, x, params, ctx, NULL);
}
ATTN_PUB_COLD_ size_t attn_encoder_workspace(attn_tensor y, attn_tensor x,
                                             const attn_block_params *params, const attn_ctx *ctx) {
  attn_ctx plain = attn_before_workspace_(ctx);
  size_t bytes = 0;
  attn_encoder_call_(y, x, params, &plain, &bytes);
  return bytes;
}
