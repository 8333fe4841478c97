/* calls/backward/job.h owns what a call for the gradients of attention keeps, and a worker of it. */

/* Tiles whose shares of d_k and d_v, sums over 64 queries, are added one after another. */
enum { ATTN_GRAD_RUN_ = 8 };

/* What is sent to the rows of a tensor of keys: d_k or d_v. near has the sums of a run of tiles, far those of runs; far
 * is the output itself where that is f32 and holds nothing. */
typedef struct attn_sent_rows_ {
  attn_tensor out; /* data null: not asked for */
  float *near, *far;
  int64_t far_stride, dim;
  int64_t batch, head; /* of out, that is being summed */
  int add;             /* to what it holds */
  int folded;          /* far holds something */
  unsigned char *some; /* [blocks of keys]: near holds something there */
} attn_sent_rows_;

/* Rows of a tile as factors of what is sent to keys: in f32, 0 where they are empty. clean has 0 in place of what is not
 * finite, where there is such a number. */
typedef struct attn_factor_rows_ {
  float *raw, *clean;
  int64_t dim;
  int finite;
} attn_factor_rows_;

/* The tables of which a pair reads a row, and the products that the row is in: with the pair's query (KEYS, LABELS, XL),
 * with its d_o (VALUES), with its key (QUERIES). */
enum {
  ATTN_PAIR_KEYS_,
  ATTN_PAIR_LABELS_,
  ATTN_PAIR_XL_,
  ATTN_PAIR_VALUES_,
  ATTN_PAIR_QUERIES_,
  ATTN_PAIR_TABLES_
};

/* What the pairs of a block send to the rows of a table: sum[row][lane] over those that read it, and who they are.
 * Between blocks all is 0. */
typedef struct attn_pair_sums_ {
  float *sum;
  uint64_t *hit;
  float *value_dots; /* [distance][tile]: d_o with each row of relative.values */
  float *
      around; /* of 16 keys: [ATTN_AROUND_][16] sums, [ATTN_AROUND_][dk] rows of a table, [16][dk] of keys */
} attn_pair_sums_;

/* A worker's memory. */
typedef struct attn_backward_memory_ {
  attn_grad_lanes_ *lanes;
  float *d_ot, *dp;      /* [dv][tile], [block][tile] */
  float *sum, *far;      /* [dk][tile] of d_q, and [2] of the stretches before */
  float *keys;           /* [block][dk]: those of a block, 0 in place of what is not finite */
  float *part;           /* [block][dk or dv]: sums of keys that are not consecutive */
  float *d_rows;         /* [Tq][dk] of d_q between the phases of a schedule */
  int32_t *index;        /* [tile] */
  float *capped;         /* [block][tile]: what a soft-cap left */
  float *inner;          /* [block][tile]: scores before it */
  float *before, *after; /* [block][tile]: scores that a function was given and left, natural */
  float *map;            /* [block][tile]: of d_map */
  double *map_sums;      /* [Tq]: sum_j P_ij d_map_ij, of the head at hand */
  double *row_keys, *row_sums, *row_dots; /* [Tq]: what a tally made of its rows */
  float *by;                              /* [tile]: factors of products, of rows that have such */
  uint64_t *reads;                        /* [block]: rows that read a key */
  attn_pair_sums_ pair;
  uint64_t *kept;       /* [block]: rows whose weight dropout leaves */
  attn_plan_run_ *runs; /* of a tile that has lists */
  attn_factor_rows_ q, d_o;
  attn_sent_rows_ k, v;
} attn_backward_memory_;

/* Arrays of gradients of what a call is given. */
enum { ATTN_GRADIENT_ARRAYS_ = 17 };
typedef struct attn_gradient_array_ {
  float *y;
  int64_t n;
} attn_gradient_array_;

struct attn_backward_;

/* Weights that are not those of a softmax; by pointers, so that only who has them carries them. */
typedef struct attn_back_weights_ {
  const attn_reshape_ *reshape;
  const void *user;
  attn_tensor d_sum;               /* in, data null: none; what reaches their sums */
  attn_gradient_array_ gain, gate; /* out, optional; n = 0: there is none */
  int scales;                      /* rows have factors of products */
  /* the rows of a tile, before any gradient: into row_keys, row_sums, row_dots; null: nothing is wanted of them */
  void (*tally)(attn_tile_ *t, const struct attn_backward_ *g, attn_backward_memory_ *m);
  /* and then: into lanes, and by, which queries are multiplied by */
  void (*lanes)(attn_tile_ *t, const struct attn_backward_ *g, const attn_backward_memory_ *m);
  /* in place of grad_block */
  void (*grad)(const attn_tile_ *t, const struct attn_backward_ *g, const attn_backward_memory_ *m,
               const attn_segment_ *seg, float *d, const attn_grad_cap_ *cap);
} attn_back_weights_;

typedef struct attn_backward_ {
  const attn_back_weights_ *weights; /* null: of a softmax */
  attn_tensor d_q, d_k, d_v, d_o, d_lse, d_sum;
  float *d_sinks;
  int accumulate;
  attn_sdpa_gradients asked; /* of terms; d_lse, d_sinks and accumulate are above */
  attn_gradient_array_ array[ATTN_GRADIENT_ARRAYS_];
  int map_dropped;      /* d_map is by weights that dropout has changed */
  int map_scores;       /* or by scores */
  int64_t heads, units; /* of query heads that a unit has; units */
  int64_t lists;        /* the most keys of a tile of lists */
  float scale;
} attn_backward_;

/* A worker's sums for one owner: a head, or all heads where a table serves them all. */
typedef struct attn_term_sums_ {
  double *by_distance; /* [Tq + Tk]: entry Tk - 1 + i - j, of the head and batch entry at hand */
  double *by_factor;   /* the same of dX times the score inside the soft-cap */
  double *by_key;      /* [Tk] */
  double *toeplitz, *t5;
  double *table[ATTN_PAIR_TABLES_], *label_bias, *u, *v;
  double alibi, w, bias, scale, alpha, beta, span;  /* of the head at hand, over the batch */
  double center[ATTN_TILE_], precision[ATTN_TILE_]; /* of the rows of a tile */
  double spans[ATTN_TILE_];
} attn_term_sums_;

/* A tile that is being swept. */
typedef struct attn_backward_tile_ {
  const attn_backward_ *job;
  attn_backward_memory_ *m;
  attn_term_sums_ *sums; /* of terms, or null */
  int started, folded;   /* sum holds something, far does */
  int64_t stretch;
} attn_backward_tile_;
