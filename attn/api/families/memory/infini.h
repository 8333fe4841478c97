/* api/families/memory/infini.h owns attention to a segment and to a compressive memory of all segments before it
 * (M5). */

typedef struct attn_infini_params {
  int64_t segment;   /* L, at least 1 */
  const float *beta; /* [H] the gate's logits; null = 0: half of each */
  int delta;         /* 1: the memory takes what it does not know yet */
  int open;          /* 1: a last segment that is shorter than L is not taken into the memory */
  float scale;       /* of the scores within a segment; 0 = 1/sqrt(dk), ATTN_ZERO = 0 */
  attn_tensor
      q_plain; /* [B,H,Tq,dk] and [B,Hkv,Tk,dk], optional: what reads and enters the memory in place */
  attn_tensor k_plain; /* of q and k, which positions have rotated */
  attn_tensor
      memory; /* in and out, optional: f32 [B,Hkv,dk,dv], M of the segments before; zeros at first */
  attn_tensor z;      /* the same: f32 [B,Hkv,1,dk]; both or none */
  const int32_t *len; /* [B], 0..Tk: tokens that exist; null = Tk */
} attn_infini_params;

/* Infini-attention: causal softmax within segments of L tokens, and a linear memory of those before. With phi(x) =
 * elu(x) + 1, M and z as the segments before have left them, and row i in its segment:
 *
 *   A_i = phi(q_i) M / (phi(q_i) . z),  0 where that divides by 0
 *   o_i = sigmoid(beta_h) A_i + (1 - sigmoid(beta_h)) attn_sdpa of q_i over the segment's keys up to its own
 *   afterwards  M += phi(K)^T V,  delta: M += phi(K)^T (V - phi(K) M / (phi(K) . z)) with the old M and z;  z += sum
 *   phi(k)
 *
 * Shapes: q [B,H,Tq,dk], k [B,Hkv,Tk,dk], v [B,Hkv,Tk,dv], o [B,H,Tq,dv], Hkv divides H; storage types are free. Key 0
 *   begins a segment; the queries are the last Tq <= Tk of the tokens.
 * Lengths: rows of tokens from len[b] on are 0, their keys and values are not read, and the last segment of an entry
 *   ends there: a padded batch has the bits of its entries cut off.
 * Streams: with memory and z a call goes on from the segments before, and leaves them with its own. Calls of whole
 *   segments are one call. A token at a time: k and v of its segment so far, Tq = 1, open = 1, until the segment is
 *   whole.
 * Aliasing: o, memory and z share memory with nothing; inputs may overlap.
 * Memory: attn_infini_workspace bytes (it reads len): 24 dk dv and 512 (dk + dv) a worker, attn_sdpa's of a segment, o
 *   in f32 if it is of another type.
 * Empty: B = 0 or H = 0, Tk = 0: nothing is done; Tq = 0: the memory alone; len[b] = 0: the memory of b stays.
 *   Denominators below 2^-126 count as 0.
 * NaN: in a key or value reaches the rows of its segment that see it, and the rows of all later segments; M and z
 *   keep it as the one default NaN. A head with beta = -INFINITY reads no memory: its rows are attn_sdpa's, bit for
 *   bit.
 * Errors: those of attn_sdpa; RANGE: segment < 1, len; SHAPE: Tq > Tk; NULL: memory without z, q_plain without k_plain;
 *   VALUE: NaN in beta. Outputs and memory untouched.
 * Determinism: the same bits on avx2, avx512 and neon and for any number of workers. No later token reaches a row.
 * Error: sums of M and z are made of 256 keys and joined with what the joining loses beside them, for the length of
 *   a call.
 * Cost: 4 (dk dv) flops a token and head, delta 2 dk dv a key more, and attn_sdpa of T / L segments.
 * Source: Munkhdalai et al. 2024, arXiv 2404.07143. */
ATTN_DEF attn_status attn_infini(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                 const attn_infini_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_infini_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                      const attn_infini_params *params, const attn_ctx *ctx);
