/* api/families/memory/segment.h owns memories of earlier segments: the hidden states that a layer keeps
 * (Transformer-XL, J1), the compressed ones behind them (Compressive Transformer, J2), and the layer that reads both.
 *
 * Rules they share. Rows are [B,1,n,dm], in f32, f16 or bf16, each tensor by itself; memories are
 * oldest first. Memory of a call: attn_<name>_workspace bytes. Aliasing: outputs share memory with
 * nothing unless a call says otherwise. Extents of 0 are legal unless a call says otherwise. NaN in a
 * row reaches the results that read the row. Errors: NULL, DTYPE, SHAPE, HEADS, STRIDE, RANGE, VALUE,
 * OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; outputs and memories untouched.
 * Determinism: the same bits on avx2, avx512 and neon and for any number of workers. */

/* The last rows that one layer has read, in a ring over the caller's memory: {rows} with len = 0 is
 * an empty one, all zero is none. A plain tensor of M rows is {tensor, M, 0}. */
typedef struct attn_memory {
  attn_tensor rows; /* [B,1,room,dm]; room is the memory length of the model */
  int64_t len;      /* rows held, 0 .. room */
  int64_t first;    /* where the oldest lies: row i is rows[(first + i) mod room] */
} attn_memory;

/* The rows of a memory, oldest first, as two dense views; the second is empty while they do not wrap
 * around. Cost: O(1). 0 and nothing written: parts or memory null, len or first out of range,
 * or rows no legal view. */
ATTN_DEF int attn_memory_parts(attn_tensor parts[2], const attn_memory *memory);

/* Puts the rows of h at the end of a memory, whose oldest rows give way: afterwards it holds the last
 * room rows of [memory ; h]. h is the INPUT of the layer; call it after the layer has run.
 *
 * Shapes: h [B,1,L,dm]. Only the last min(L, room) rows are read, and no row moves. A room of 0 is no
 *   memory at all. Memory: none. Cost: O(L dm), whatever the room.
 * Source: Dai et al. 2019, arXiv 1901.02860. */
ATTN_DEF attn_status attn_memory_append(attn_memory *memory, attn_tensor h, attn_ctx *ctx);
ATTN_DEF size_t attn_memory_append_workspace(const attn_memory *memory, attn_tensor h,
                                             const attn_ctx *ctx);

/* The same between tensors: y = the last y.len rows of [memory ; h], y.len <= memory.len + L.
 *
 * Aliasing: y may begin where the memory's oldest row lies, with the same strides and type, if the rows
 *   do not wrap around: the update in place. Memory: none. Cost: O(y.len dm). */
ATTN_DEF attn_status attn_memory_update(attn_tensor y, attn_memory memory, attn_tensor h,
                                        attn_ctx *ctx);
ATTN_DEF size_t attn_memory_update_workspace(attn_tensor y, attn_memory memory, attn_tensor h,
                                             const attn_ctx *ctx);

/* {0} is plain causal attention. */
typedef struct attn_segment_params {
  float scale;    /* 0 = 1/sqrt(dk), ATTN_ZERO = 0 */
  int64_t window; /* keys a query sees, its own among them; 0 = all. The memory's length makes the
                       * "same length" of the source's code */
  int bidirectional; /* 1: a query sees later keys too, whatever the window */
  attn_tensor r;     /* optional [1, 1 or H, n, dk] f32: row t is the projected encoding of distance
                          * t; n >= the keys a query may see. Bidirectional: of distance t - (L-1),
                          * L - 1 rows more */
  const float *u, *v; /* [H, dk] content and distance bias of r; null = 0 */
  attn_tensor lse;    /* out, optional: [B,H,L,1] f32 */
  attn_tensor usage;  /* out, optional: [B,1,1,n] f32, attn_usage of the last n keys */
} attn_segment_params;

/* Attention of a segment over [memory ; segment], everything projected: with M = keys - L,
 *
 *   x_ij = s q_i . k_j, or s ((q_i + u_h) . k_j + (q_i + v_h) . r_{i+M-j}),
 *   i+M-window < j <= i+M, bidirectional j < M+L
 *
 * Shapes: q [B,H,L,dk], k [B,Hk,M+L,dk], v [B,Hv,M+L,dv], o [B,H,L,dv]; Hk and Hv divide H.
 * Errors also: SHAPE: fewer keys than queries. RANGE: window < 0, r too short. NULL: u or v without r.
 * Cost: 2 L (M+L) (dk + dv) flops a head, 2 L (M+L) dk more with r; no L x (M+L) array. Otherwise
 *   as attn_sdpa. Source: Dai et al. 2019, arXiv 1901.02860. */
ATTN_DEF attn_status attn_segment(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                  const attn_segment_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_segment_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                       const attn_segment_params *params, const attn_ctx *ctx);

typedef struct attn_segment_layer_params {
  int64_t heads;          /* H; 0 = 1 */
  int64_t kv_heads;       /* heads of keys and values; 0 = H */
  attn_memory memory;     /* rows this layer has read before */
  attn_memory compressed; /* still older ones, compressed (attn_compressive_update) */
  attn_tensor w_q;        /* [1,1,dm,H dk] */
  attn_tensor w_k;        /* [1,1,dm,kv_heads dk] */
  attn_tensor w_v;        /* [1,1,dm,kv_heads dv] */
  attn_tensor w_o;  /* [1,1,H dv,dm]; optional for ATTN_SUBLAYER_PLAIN, which takes any width */
  attn_tensor b_o;  /* [1,1,1,width of w_o], optional: added to the product with w_o */
  attn_tensor w_r;  /* [1,1,dm,H dk], of the distances; or attention.r; or neither */
  double base;      /* of the sinusoids before w_r; 0 = 10000 */
  int interleaved;  /* their columns, 1: (sin, cos) pairs; 0: sines first, then cosines, as the
                        * source's code */
  int w_transposed; /* 1: all w are [1,1,out,in], as in PyTorch checkpoints */
  attn_sublayer sublayer;
  attn_norm norm;
  attn_segment_params attention;
} attn_segment_layer_params;

/* One attention layer behind a memory: Transformer-XL, bidirectional XLNet's encoder, and with
 * `compressed` the Compressive Transformer. A plain tensor of M earlier rows is the memory
 * {tensor, M, 0}. With c = [compressed ; memory ; h], M = its rows before h:
 *
 *   q = h w_q,  k = c w_k,  v = c w_v   (ATTN_SUBLAYER_PRE: LN(h), LN(c))
 *   r_t = PE(t) w_r   (attn_sinusoid)
 *   O = attn_segment of them,  o = what the sublayer makes of it
 *
 * Shapes: h [B,1,L,dm], o [B,1,L,dm], with ATTN_SUBLAYER_PLAIN [B,1,L,width of w_o] or, without w_o,
 *   [B,H,L,dv]. The memories are read where they lie, wrapped around or not, and neither copied nor
 *   changed: call attn_memory_append or attn_compressive_update next.
 * Errors also: NULL: u or v without w_r or r; both w_r and r. VALUE: base.
 * Memory: q, k, v and r of the call in f32, attn_segment's, and the weights as attn_gemm lays them
 *   out.
 * Cost: attn_segment's, 2 (M+L) dm (dk + dv) kv_heads + 2 L dm H (dk + dv) for the projections and 2
 *   min(M+L, window) dm H dk for r, bidirectional L rows more. A caller who projects each row once
 *   (attn_segment_project) and keeps k and v, in an attn_cache say, has the same results without projecting the
 *   memory again.
 * Source: Dai et al. 2019, arXiv 1901.02860; Rae et al. 2019, arXiv 1911.05507. */
ATTN_DEF attn_status attn_segment_layer(attn_tensor o, attn_tensor h,
                                        const attn_segment_layer_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_segment_layer_workspace(attn_tensor o, attn_tensor h,
                                             const attn_segment_layer_params *params,
                                             const attn_ctx *ctx);

/* The layer's first step alone: q = h w_q, k = h w_k, v = h w_v of normalised rows with
 * ATTN_SUBLAYER_PRE. q [B,H,L,dk], k [B,kv_heads,L,dk], v [B,kv_heads,L,dv], any types; data null:
 * not wanted. Reads heads, kv_heads, w_q, w_k, w_v (those of the outputs), w_transposed, sublayer and norm. */
ATTN_DEF attn_status attn_segment_project(attn_tensor q, attn_tensor k, attn_tensor v,
                                          attn_tensor h, const attn_segment_layer_params *params,
                                          attn_ctx *ctx);
ATTN_DEF size_t attn_segment_project_workspace(attn_tensor q, attn_tensor k, attn_tensor v,
                                               attn_tensor h,
                                               const attn_segment_layer_params *params,
                                               const attn_ctx *ctx);

/* The layer's last step alone: o from the heads x [B,H,L,dv] and the input h [B,1,L,dm]. Reads heads,
 * w_o (required), b_o, sublayer and norm. */
ATTN_DEF attn_status attn_segment_output(attn_tensor o, attn_tensor x, attn_tensor h,
                                         const attn_segment_layer_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_segment_output_workspace(attn_tensor o, attn_tensor x, attn_tensor h,
                                              const attn_segment_layer_params *params,
                                              const attn_ctx *ctx);

/* How much each key is attended to: over all heads and the item's queries,
 *
 *   usage_j = mean over h, i of P_hij,  P_hij = exp(x_hij - LSE_hi), 0 where forbidden
 *
 * Shapes: usage [B,1,1,n] f32, of the last n <= Tk keys; q [B,H,Tq,dk], k [B,Hk,Tk,dk].
 * params: those of the attn_sdpa call, with lse, which it has written and this call reads. schedule,
 *   span, map, ragged, q_offs, align_lengths and keep must be absent (RANGE). No queries: usage is 0. A NaN in lse
 *   may make any usage of its batch entry NaN.
 * Memory: O(tile (dk + keys of a block)) per worker; no Tq x Tk array. Cost: 2 dk flops a pair once
 *   more, and an exponential. Source: Rae et al. 2019, arXiv 1911.05507. */
ATTN_DEF attn_status attn_usage(attn_tensor usage, attn_tensor q, attn_tensor k,
                                const attn_sdpa_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_usage_workspace(attn_tensor usage, attn_tensor q, attn_tensor k,
                                     const attn_sdpa_params *params, const attn_ctx *ctx);

/* How a block of `rate` rows becomes one. */
typedef enum attn_compress_kind {
  ATTN_COMPRESS_MEAN = 0,
  ATTN_COMPRESS_MAX,
  ATTN_COMPRESS_CONV,    /* y_b = bias + sum_t x[b rate + t] w[t], t < rate */
  ATTN_COMPRESS_DILATED, /* y_b = bias + sum_t x[(b+1) rate - 1 - (K-1-t) dilation] w[t], t < K; rows
                           * before x are zero */
  ATTN_COMPRESS_MOST_USED, /* the rows of x with the largest usage, in their order; of equal ones the
                            * older */
  ATTN_COMPRESS_COUNT
} attn_compress_kind;

typedef struct attn_compress_params {
  attn_compress_kind kind;
  int64_t rate;      /* c >= 1 */
  attn_tensor w;     /* CONV [1,rate,dm,dm], DILATED [1,K,dm,dm]: head t is w[t], a tap [in,out] */
  const float *bias; /* CONV and DILATED: [dm]; null = 0 */
  int64_t dilation;  /* DILATED: >= 1; 0 = 1 */
  attn_tensor usage; /* MOST_USED: [B,1,1,rows] f32, one number a row (attn_usage); NaN counts as
                       * least */
} attn_compress_params;

/* y [B,1,n/rate,dm] = compressed x [B,1,n,dm].
 *
 * Errors also: RANGE: rate < 1, dilation < 0, kind. SHAPE: n is no multiple of rate, w is not rate
 *   long (CONV), usage. NULL: w or usage absent where the kind reads it.
 * Memory: O(64 dm) per worker, a number a row for MOST_USED, w as attn_gemm lays it out. Cost: one
 *   pass over x; 2 dm^2 flops a row of x (CONV), 2 K dm^2 a row of y (DILATED). Source: Rae et al.
 *   2019, arXiv 1911.05507; the dilated form, which the paper only names, is defined here. */
ATTN_DEF attn_status attn_compress(attn_tensor y, attn_tensor x, const attn_compress_params *params,
                                   attn_ctx *ctx);
ATTN_DEF size_t attn_compress_workspace(attn_tensor y, attn_tensor x,
                                        const attn_compress_params *params, const attn_ctx *ctx);

typedef struct attn_compressive_params {
  int64_t length;                /* rows the memory keeps uncompressed, n_m >= 0 */
  attn_compress_params compress; /* usage: of the rows of [memory ; h] */
} attn_compressive_params;

/* Rows of [memory ; h] that attn_compressive_update would compress: e - e mod rate, e = the rows
 * beyond params->length; -1 for lengths or a rate it would reject. L: the rows of h. */
ATTN_DEF int64_t attn_compressive_rows(const attn_memory *memory, int64_t L,
                                       const attn_compressive_params *params);

/* What a Compressive Transformer does with its memories after a segment:
 *
 *   old = the first attn_compressive_rows rows of [memory ; h];   memory' = the others
 *   compressed' = the last room rows of [compressed ; attn_compress(old)]
 *
 * so that memory' has at most length + rate - 1 rows; that much room it needs. Both are rings:
 * nothing moves. compressed->rows.len = 0 drops the old rows; length = 0 compresses all.
 * Shapes: h [B,1,L,dm]. Errors also: those of attn_compress, SHAPE: too little room.
 * Memory: attn_compress's. Cost: O(L dm) and attn_compress's, whatever the rooms; reach of a layer:
 *   length + rate * room rows. Source: Rae et al. 2019, arXiv 1911.05507; keeping the remainder of e
 *   in the memory is defined here. */
ATTN_DEF attn_status attn_compressive_update(attn_memory *memory, attn_memory *compressed,
                                             attn_tensor h, const attn_compressive_params *params,
                                             attn_ctx *ctx);
ATTN_DEF size_t attn_compressive_update_workspace(const attn_memory *memory,
                                                  const attn_memory *compressed, attn_tensor h,
                                                  const attn_compressive_params *params,
                                                  const attn_ctx *ctx);

typedef struct attn_attention_loss_params {
  int64_t heads;             /* H; 0 = 1 */
  int64_t kv_heads;          /* 0 = H */
  attn_tensor w_q, w_k, w_v; /* as in attn_segment_layer */
  int w_transposed;          /* likewise */
  float scale;
} attn_attention_loss_params;

/* What compression loses for attention, by batch entry: with D = attn(h, old) - attn(h, made), where
 * attn is multi-head attention of all rows over all rows by content alone, without w_o,
 *
 *   norm[b] = sqrt(sum D^2),   mean[b] = mean of D^2
 *
 * Shapes: norm, mean [B], either may be null; h [B,1,L,dm], old [B,1,n,dm], made [B,1,n',dm]. Sums in
 *   f64. Nothing to sum: 0. Cost: that of two attentions and their projections.
 * Source: Rae et al. 2019, arXiv 1911.05507 (attention-reconstruction loss). */
ATTN_DEF attn_status attn_attention_loss(float *norm, float *mean, attn_tensor h, attn_tensor old,
                                         attn_tensor made, const attn_attention_loss_params *params,
                                         attn_ctx *ctx);
ATTN_DEF size_t attn_attention_loss_workspace(float *norm, float *mean, attn_tensor h,
                                              attn_tensor old, attn_tensor made,
                                              const attn_attention_loss_params *params,
                                              const attn_ctx *ctx);

/* What compression loses of the rows themselves: the same with D = old - rebuilt,
 * rebuilt_{b rate + t} = made_b g[t] + bias.
 *
 * Shapes: g [1,rate,dm,dm], bias [dm] or null, old [B,1,n,dm], made [B,1,n/rate,dm].
 * Source: Rae et al. 2019, arXiv 1911.05507 (auto-encoding loss). */
ATTN_DEF attn_status attn_rebuild_loss(float *norm, float *mean, attn_tensor old, attn_tensor made,
                                       attn_tensor g, const float *bias, attn_ctx *ctx);
ATTN_DEF size_t attn_rebuild_loss_workspace(float *norm, float *mean, attn_tensor old,
                                            attn_tensor made, attn_tensor g, const float *bias,
                                            const attn_ctx *ctx);
