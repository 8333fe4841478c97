/* api/compose/block.h owns the parts of a block: the weights of its feed-forward and attentions, and what a
 * decoder keeps between steps. */

/* h w_2 + b_2, without w_2: h; h = f(x w_1 + b_1), or gated, element by element, f(x w_1 + b_1) (x w_3 + b_3); row by
 * row. The names of Llama's models: w_1 is gate_proj, w_3 up_proj, w_2 down_proj. */
typedef struct attn_feed_forward {
  attn_tensor w_1, b_1; /* [1,1,din,dff], [1,1,1,dff]; biases are optional, as everywhere here */
  attn_tensor w_2, b_2; /* optional: [1,1,dff,dout], [1,1,1,dout] */
  attn_activation activation; /* f; 0 = ATTN_ACT_RELU, with w_3 ATTN_ACT_SILU */
  int w_transposed;           /* 1: the weights are [1,1,out,in], as in PyTorch checkpoints */
  attn_compute compute;       /* of all products, as in attn_gemm (not I8) */
  int compute_prefer;
  attn_tensor w_3, b_3; /* optional: [1,1,din,dff], [1,1,1,dff]; not in attn_mixer */
  attn_act_form form;   /* of f and the gate x w_3 + b_3; not in attn_mixer */
  /* of matrices of ATTN_I8 or ATTN_I4, as attn_gemm_params.w_scales; not in attn_mixer and where rows stop early */
  attn_scales w_1_scales, w_2_scales, w_3_scales;
} attn_feed_forward;

/* What stands around the attention of a layer. */
typedef enum attn_sublayer {
  ATTN_SUBLAYER_POST = 0, /* o = LN(h + O w_o) */
  ATTN_SUBLAYER_PRE,      /* o = h + O w_o, and the rows are normalised before w_q, w_k, w_v */
  ATTN_SUBLAYER_PLAIN,    /* o = O w_o; without w_o the heads themselves */
  ATTN_SUBLAYER_SANDWICH, /* blocks: o = h + LN'(O w_o), the rows normalised before too */
  ATTN_SUBLAYER_PARALLEL, /* blocks: attention and feed-forward both read normalised h, o = h + their sum */
  ATTN_SUBLAYER_COUNT
} attn_sublayer;

/* The weights of one block, {0} beside them is the paper's. In self and cross: heads, kv_heads, w_q .. w_o
 * (w_o.dim = dm), biases, and `attention` with everything attn_sdpa takes but quantised rows (map and lse are
 * outputs of the call, `each` too; with ragged x and e have batch 1, each sequence is a call of its own,
 * rows that none has attend to nothing, x_len and e_len are absent). Messages call a weight of either params.w_q
 * and so on, one of the feed-forward ff.w_1 and so on. */
typedef struct attn_block_params {
  attn_multihead_params self;
  attn_multihead_params cross; /* decoder only; all zero: no cross attention */
  attn_feed_forward ff;        /* dm to dm */
  int64_t chunks;              /* of the feed-forward, as in attn_feed_forward_rows */
  attn_sublayer sublayer;      /* any but ATTN_SUBLAYER_PLAIN */
  attn_norm norm_self, norm_cross, norm_ff;
  attn_norm after_self, after_cross, after_ff; /* of ATTN_SUBLAYER_SANDWICH, behind each part */
  /* [B], 0..T: rows of x from there on do not exist; no one sees them, their rows of y are 0 */
  const int32_t *x_len;
  const int32_t *e_len; /* [B], 0..Te: rows of e from there on do not exist; decoder only */
} attn_block_params;

/* What one decoder block keeps between steps, a plain struct over the caller's memory. Types are f32, f16
 * or bf16, strides free; heads side by side (attn_bthd) are written by one product, heads apart
 * (attn_bhtd) read fastest. */
typedef struct attn_decoder_cache {
  attn_tensor k, v;     /* [B,Hkv,room,dk], [B,Hkv,room,dv]: of self attention */
  attn_tensor e_k, e_v; /* [B,Hkv,Te,dk], [B,Hkv,Te,dv]: of cross attention, absent without it */
  int64_t len;          /* tokens held, 0 .. room */
} attn_decoder_cache;
