/* engine/reshape.h owns what a mechanism tells the engine of weights that are not those of a softmax. */

struct attn_softmax_;
struct attn_tile_;
struct attn_block_;
struct attn_segment_;

/* Weights in place of scores, of entries s[key * ATTN_TILE_ + lane] of lane groups g0 .. g1 - 1; -inf is no
 * key and becomes 0. Adds to l of the tile what finish needs; a running maximum is the softmax's. */
typedef void (*attn_weigh_fn_)(struct attn_tile_ *t, float *s, int64_t keys, int g0, int g1);

/* What is in place of a softmax, or around it. Null members are absent: of a softmax as it is. The engine
 * calls them by pointers, so that only a program that reshapes carries them. */
typedef struct attn_reshape_ {
  const void *user;     /* theirs */
  int natural;          /* scores are in natural units, else log2 */
  int few;              /* few queries may go their own way (engine/decode.h) */
  int by_head;          /* a tile has rows of one head */
  attn_weigh_fn_ weigh; /* in place of the softmax */
  int shifts;           /* weigh keeps a running maximum in m, and what alpha says of it */
  int backwards;        /* blocks of keys from the last to the first */
  attn_weigh_fn_ tally; /* adds the keys to count; not null: a first pass counts, into state_n */
  int64_t bytes;        /* memory that prepare fills before the first pass */
  int64_t tile_bytes;   /* and of each worker, for the tile at hand */
  int sparse;           /* a weight of 0 reads no value */
  void (*prepare)(const struct attn_softmax_ *a, char *memory, attn_ctx *ctx, int workers);
  void (*pass)(struct attn_softmax_ *a, attn_ctx *ctx,
               int workers);                  /* the tiles, in its own order */
  void (*bound)(struct attn_tile_ *t, int r); /* narrows lo and hi of a row */
  /* what queries and keys become before they meet, rows of floats: q[r] of a tile's rows; k of a block, in w.k */
  void (*queries)(const struct attn_tile_ *t, const void **q);
  void (*keys)(const struct attn_tile_ *t, struct attn_block_ *b);
  int (*open)(struct attn_tile_ *t, float *by); /* rows are known; 1: by[] multiplies queries */
  void (*before)(struct attn_tile_ *t);         /* the sweep */
  void (*start)(struct attn_tile_ *t);          /* of a sweep: queries are packed */
  /* in place of dot products with the block's keys, as score_block has them; with start */
  void (*products)(struct attn_tile_ *t, const struct attn_block_ *b,
                   const struct attn_segment_ *seg, float *s, float *top);
  /* the last change of scores: keys at .. at + n of a block; n = 0: it is complete, top becomes their maximum */
  void (*late)(struct attn_tile_ *t, const struct attn_block_ *b, int at, int n, int g0, int g1);
  void (*late_list)(struct attn_tile_ *t, int32_t *const *index, const int *count); /* top too */
  void (*finish)(struct attn_tile_ *t); /* in place of the division: sets scale, writes the sums */
  void (*gate)(struct attn_tile_ *t, float *o, int64_t width); /* last; o by rows, or null: w.ot */
} attn_reshape_;
