/* api/families/depth/universal.h owns stacks whose depth is no constant: one block applied again and again, with
 * halting by token (Universal Transformer, K1), and a stack of decoder blocks that tokens may leave early,
 * with the memory of its steps (K2).
 *
 * Rules they share: those of api/families/blocks/coder.h. */

/* ---- Universal Transformer ----------------------------------------------------------------------*/

typedef enum attn_universal_output {
  ATTN_UNIVERSAL_LAST = 0, /* the last state */
  ATTN_UNIVERSAL_INTERP,   /* y = w S' + (1 - w) y at each step: the authors' code */
  ATTN_UNIVERSAL_ACCUM,    /* y = y + w S': the mean field of Graves */
  ATTN_UNIVERSAL_COUNT
} attn_universal_output;

/* A choice whose default depends on others. */
typedef enum attn_switch { ATTN_SWITCH_DEFAULT = 0, ATTN_SWITCH_ON, ATTN_SWITCH_OFF } attn_switch;

typedef struct attn_universal_params {
  /* The block of all steps, as in attn_encoder, ATTN_SUBLAYER_POST; its x_len. Of self.attention: scale,
   * causal, softcap, sinks, softmax_one; no each. */
  attn_block_params block;
  int64_t steps;   /* the most, >= 1 */
  attn_tensor w_p; /* [1,1,1,dm], of the probability to halt; absent: exactly `steps` steps */
  float b_p;
  float eps; /* in (0, 1); 0 = 0.01 */
  attn_universal_output output;
  attn_switch copy_halted; /* the state of a halted token stays; default: on for LAST, else off */
  attn_switch force_last;  /* the last step halts who still runs; default: on for ACCUM, else off */
  int no_coord;            /* 1: no coordinates */
  int has_start;       /* 1: pos0 and step0 hold; 0: both are 1, as in the paper (its code: 0) */
  int64_t pos0, step0; /* coordinates of row 0, and of the first step */
  int32_t *ran;        /* out, optional: [B,T], N: the steps of each token, 0 from x_len on */
  float *remainder;    /* out, optional: [B,T], R: 1 - h of the step that halted it, else 0 */
} attn_universal_params;

/* One block, applied until every token has halted (adaptive computation time), or `steps` times.
 *
 *   P_n[t,c] = f((t + pos0) / 10000^(2 floor(c/2) / dm)) + f((n + step0) / 10000^(2 floor(c/2) / dm)),
 *     f = sin for even c, cos for odd c
 *   done = 0 (1 for rows from x_len on), h = R = N = 0, y = 0, S = x
 *   for n = 0 .. steps-1, while some token of the entry is not done:
 *     U = S + P_n,  p = sigmoid(U . w_p + b_p)
 *     run = not done;  new = run and h + p > 1 - eps, in the last step with force_last: new = run
 *     h += p, w = p where it runs on;  R = 1 - h, w = R where new;  w = 0 elsewhere;  N += 1 where run
 *     A = LN_self(U + MHA(U, U)),  S' = LN_ff(A + FFN(A));   S = S' but where copy_halted and done
 *     INTERP: y = w S' + (1 - w) y;   ACCUM: y += w S';      done = done or new
 *   LAST: y = S
 *
 * Shapes: x, y [B,1,T,dm]; rows of y from x_len on are 0. An entry of the batch is a call of its own.
 * Rows that no result needs are not computed: with copy_halted only tokens that run have queries and a
 *   feed-forward; all remain keys. Entries that are done cost nothing.
 * copy_halted off with LAST is RANGE: the state of a halted token would be that of the last step.
 * Memory: f32 S, U, keys and values, and y for INTERP and ACCUM, of B T rows; queries, heads and two
 *   rows of the block for those that run; what attn_gemm, attn_sdpa and the feed-forward want. Nothing
 *   grows with the steps.
 * Cost: the steps that are run times attn_encoder's. Errors also: RANGE: eps, steps < 1, terms of
 *   self.attention by position; block.sublayer is not POST. Messages call the block params.
 * Halting is decided in f32 products, f64 sums: tiers of different bits may decide differently.
 * A p that is NaN halts nobody: its token runs to the last step.
 * Source: Dehghani et al. 2018, arXiv 1807.03819; Graves 2016, arXiv 1603.08983. */
ATTN_DEF attn_status attn_universal(attn_tensor y, attn_tensor x,
                                    const attn_universal_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_universal_workspace(attn_tensor y, attn_tensor x,
                                         const attn_universal_params *params, const attn_ctx *ctx);

/* ---- decoding with exits ------------------------------------------------------------------------*/

/* Which rows stop after a layer: sets stop[i] for row i of the states h [1,1,count,dm] after layer
 * `layer` (from 1), dense f32; before: their states before it. token[i] = b n + i', of the call's [B,n].
 * Anything but ATTN_OK ends the outer call, which returns it. */
typedef struct attn_exit_rows {
  int64_t layer;
  attn_tensor h, before;
  const int32_t *token;
  unsigned char *stop; /* [count], 0 before the call */
} attn_exit_rows;
typedef attn_status (*attn_exit_fn)(void *user, const attn_exit_rows *rows, attn_ctx *ctx);

/* What a decoder with exits keeps between steps, over the caller's memory. */
typedef struct attn_exit_cache {
  /* [N], begun by attn_decoder_start; len: the tokens that have keys there */
  attn_decoder_cache *layer;
  attn_tensor last; /* [B,1,room,dm]: the last state of each token */
  int64_t len;      /* tokens held, 0 .. room */
} attn_exit_cache;

typedef struct attn_exit_decoder_params {
  const attn_block_params *
      layers; /* [N], as in attn_decoder_step, of sublayer POST or PRE, with weights of float types and
                                    * every norm (RANGE, DTYPE); of self.attention and cross.attention:
                                    * scale, softcap, sinks, softmax_one (RANGE) */
  int64_t count;       /* N >= 1 */
  attn_exit_fn decide; /* null: exits says where each token stops */
  void *user;
} attn_exit_decoder_params;

/* A stack of N decoder blocks for the next n tokens, each of which runs layers 1 .. e only; above, its
 * state is copied: h^m_t = h^e_t for m > e. Later tokens attend, at layer m, to the states m - 1 of
 * earlier ones, copied where they stopped before.
 *
 * exits [B,n]: values 1..N; with decide it is an output (null = not wanted): decide is asked after each
 *   layer below N, once for all rows that run.
 * Shapes: x, y [B,1,n,dm], y being the last states; cache->len + n <= room, and the rooms of all layers.
 * Layers that no token of the call runs are not run. Keys and values of tokens that skipped a layer are
 *   made there when a token first runs it, from the copied states, 256 rows at once; layer[m].len says
 *   how far they are made, cache->len how many tokens there are. To go back, lower cache->len, and each
 *   layer[m].len to it where it is larger.
 * All exits = N: the stack of attn_decoder_step calls (within rounding); all exits = e: a stack of e.
 * Aliasing: y may be x; the cache shares memory with nothing else. On an error y, exits and the tokens
 *   that the cache holds are as they were.
 * Memory: f32 states of B n rows, the block's rows for those that run, and what attn_gemm, attn_sdpa and
 *   the feed-forward want.
 * Cost: the layers that tokens run, as attn_decoder_step; 4 dm Hkv dk flops a token and layer skipped
 *   that a later one runs. Sources: Elbayad et al. 2019, arXiv 1910.10073; Schuster et al. 2022, arXiv
 *   2207.07061. */
ATTN_DEF attn_status attn_exit_decoder(attn_tensor y, int32_t *exits, attn_tensor x,
                                       attn_exit_cache *cache,
                                       const attn_exit_decoder_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_exit_decoder_workspace(attn_tensor y, int32_t *exits, attn_tensor x,
                                            const attn_exit_cache *cache,
                                            const attn_exit_decoder_params *params,
                                            const attn_ctx *ctx);
