/* api/families/latent/mla.h owns multi-head latent attention (M5): all heads read one short row a token. */

/* How the heads are computed; the results agree to rounding. */
typedef enum attn_mla_form {
  ATTN_MLA_AUTO =
      0, /* whichever takes fewer multiply-adds for the call's lengths; ABSORBED of a ring */
  ATTN_MLA_ABSORBED, /* queries go into the latent space and read the rows as they are */
  ATTN_MLA_EXPANDED, /* keys and values of each head are made from the rows, 8 heads at a time */
  ATTN_MLA_FORMS
} attn_mla_form;

/* The weights, and {0} beside them is the paper's layer. dq, dc, dn, dr, dv are q_lora_rank, kv_lora_rank,
 * qk_nope_head_dim, qk_rope_head_dim and v_head_dim of a configuration. */
typedef struct attn_mla_params {
  int64_t heads;                /* H, up to 65536; 0 = 1 */
  int64_t rope_dim;             /* dr; 0 = no rotated part */
  attn_tensor w_dq;             /* [1,1,dm,dq], optional: without it w_uq reads x */
  attn_tensor w_uq;             /* [1,1,dq or dm,H (dn + dr)] */
  attn_tensor w_dkv;            /* [1,1,dm,dc + dr] */
  attn_tensor w_ukv;            /* [1,1,dc,H (dn + dv)] */
  attn_tensor w_o;              /* [1,1,H dv,dmo] */
  int w_transposed;             /* 1: these five are [1,1,out,in], as in PyTorch checkpoints */
  const float *q_gain;          /* [dq] of the norm behind w_dq, null = 1 */
  const float *kv_gain;         /* [dc] of the norm of latents, null = 1 */
  float eps;                    /* of both norms; 0 = 1e-6, ATTN_ZERO = 0 */
  const attn_rope_params *rope; /* of the dr columns; null = the default, interleaved */
  float scale;                  /* 0: see below; ATTN_ZERO = 0 */
  int bidirectional;            /* 1: a token sees those after it in its sequence too */
  attn_window window;           /* attn_window_of(left, right); {0} = none */
  const int64_t
      *indptr; /* [sequences + 1]: x has batch 1, sequence b its rows indptr[b] .. indptr[b+1]-1 */
  int64_t sequences;   /* with indptr */
  attn_cache *cache;   /* optional, latent: k of one head and dc + dr columns, v.dim = dc */
  attn_sequence *held; /* [x.batch, or sequences] of the cache */
  attn_mla_form form;
  attn_tensor lse; /* out, optional: [B,H,T,1] f32 */
} attn_mla_params;

/* Multi-head latent attention of DeepSeek-V2, V3 and R1, from model rows to model rows:
 *
 *   [q_nope_h | q_rope_h] = head h of rms(x w_dq) w_uq, or of x w_uq
 *   [c | r] = x w_dkv,  c = rms(c) kv_gain,  q_rope and r rotated
 *   k_h = [c Wk_h | r],  v_h = c Wv_h,  [Wk_h | Wv_h] head h of w_ukv
 *   y = [O_0 .. O_{H-1}] w_o,  O_h = attn_sdpa of [q_nope_h | q_rope_h], k_h, v_h
 *
 * rms(x) = x / sqrt(mean x^2 + eps) times the gain; a row of zeros gives zeros. ABSORBED: q'_h = [q_nope_h Wk_h^T |
 *   q_rope_h] meets the rows [c | r] themselves, whose first dc columns are the values, and Wv_h follows. scale 0 is
 *   (dn + dr)^-1/2, not from dc; with rope of type YARN and its mscale_all_dim it has the factor
 *   attn_rope_mscale(factor, mscale_all_dim)^2.
 * Cache: the rows [c | r], dc + dr numbers a token, are appended (attn_cache_append), rounded once to the cache's type,
 *   f32, f16 or bf16; then the tokens of x see all of their sequence: prefill, decoding of any number of tokens, in
 *   any pieces. In a ring the window and keep of the cache hold (RANGE: window.left, bidirectional, EXPANDED).
 *   Without a cache a sequence is what x has of it. Positions: rope.start + the token's number in its sequence, or
 *   rope.positions, one a row of x.
 * Shapes: x [B,1,T,dm], y [B,1,T,dmo]; storage types are free. Rows of x beyond the last sequence: y = 0, lse is not
 *   written.
 * Aliasing: y and lse share memory with nothing, the cache, its sequences and tables with no argument.
 * Memory: attn_mla_workspace bytes (it reads indptr and lengths): f32 q, rows, the heads' outputs; ABSORBED 2 dc +
 *   dr, of 8 heads where T > 64, else of all, for each row of x; EXPANDED dn + dr + dv of 8 heads for each token of
 *   the longest sequence; each of these rows, or of a head of them, up to 47 numbers wider; weights as attn_gemm lays
 *   them out. No T x T array.
 * Empty: B = 0 or T = 0 is a no-op. A window may leave rows without keys: their heads are 0.
 * NaN: in a row of x reaches its y, and those that see it; it is stored as the one default NaN.
 * Errors: those of attn_gemm, attn_rope, attn_cache_append and attn_cache_sdpa; RANGE: rope->norm; HEADS: H does not
 *   divide a width; SHAPE: widths that leave no dn, dv or dc, a cache of other rows; RANGE: q_gain without w_dq,
 *   sequences without indptr, form; y, the cache and its sequences untouched.
 * Determinism: of one form the same bits on avx2, avx512 and neon and for any number of workers; a token's row for any
 *   division into calls as attn_sdpa says of a group of H heads. AUTO goes by the lengths of all sequences of the
 *   call: ask for a form where a batch must not matter. The forms differ by 1e-5 of the largest value.
 * Cost: the products with w_dq, w_uq, w_dkv, w_o; a pair and head 2 (2 dc + dr) flops ABSORBED, and 2 dc (dn + dv) a
 *   query and head; 2 (dn + dr + dv) EXPANDED, and 2 dc (dn + dv) a key and head, of the whole sequence.
 * Source: DeepSeek-AI 2024, arXiv 2405.04434. */
ATTN_DEF attn_status attn_mla(attn_tensor y, attn_tensor x, const attn_mla_params *params,
                              attn_ctx *ctx);
ATTN_DEF size_t attn_mla_workspace(attn_tensor y, attn_tensor x, const attn_mla_params *params,
                                   const attn_ctx *ctx);
