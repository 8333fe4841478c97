/* families/blocks/encoder.h owns the call of an encoder block. */

ATTN_COLD_ attn_status attn_encoder_call_(attn_tensor y, attn_tensor x,
                                          const attn_block_params *params, attn_ctx *ctx,
                                          size_t *bytes) {
  attn_coder_job_ j = attn_coder_open_(y, x);
  return attn_coder_call_(&j, params, 0, NULL, "encoder block", ctx, bytes);
}
ATTN_CALL_(attn_encoder, (y, x, params), attn_tensor y, attn_tensor x,
           const attn_block_params *params)
