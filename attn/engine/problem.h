/* engine/problem.h owns the problem of the exact-softmax engine (attn_softmax_): its arguments, and what belongs to
 * them once a call. */

/* The pieces of a worker's memory. */
enum {
  ATTN_P_QT_,
  ATTN_P_S_,
  ATTN_P_OT_,
  ATTN_P_FAR_,
  ATTN_P_K_,
  ATTN_P_V_,
  ATTN_P_BIAS_,
  ATTN_P_DOT_,
  ATTN_P_HIT_,
  ATTN_P_ROWS_,
  ATTN_P_INDEX_,
  ATTN_P_Q_ROWS_,
  ATTN_P_O_ROWS_,
  ATTN_P_XL_QT_,
  ATTN_P_XL_DOTS_,
  ATTN_P_REL_KEYS_,
  ATTN_P_REL_QUERIES_,
  ATTN_P_REL_VALUES_,
  ATTN_P_REL_FAR_,
  ATTN_P_REL_HIT_,
  ATTN_P_LABELS_,
  ATTN_P_HELD_,
  ATTN_P_PAIRS_,
  ATTN_P_ROW_Q_,
  ATTN_P_ROW_S_,
  ATTN_P_ROW_O_,
  ATTN_P_MERGE_O_,
  ATTN_P_MERGE_W_,
  ATTN_P_MERGE_I_,
  ATTN_P_BEST_,
  ATTN_P_BEST_LIST_,
  ATTN_P_BEST_SPARE_,
  ATTN_P_LOW_,
  ATTN_P_CODES_,
  ATTN_P_CODE_Q_,
  ATTN_P_CODE_K_,
  ATTN_P_CODE_S_,
  ATTN_P_CODE_CENTER_,
  ATTN_P_RESHAPE_,
  ATTN_P_FACTORS_,
  ATTN_P_OWN_,
  ATTN_PIECES_
};

/* The keys *lo .. *hi - 1 that a row may see beside what windows and lengths say, any numbers: of a
 * list of keys that stand for others, which no window can tell. */
typedef void (*attn_range_fn_)(const void *user, int64_t batch, int64_t row, int64_t *lo,
                               int64_t *hi);

struct attn_softmax_;
struct attn_tile_;
struct attn_block_;

#define ATTN_HAS_WEIGHTS_ (ATTN_HAS_RELU || ATTN_HAS_RESHAPED || ATTN_HAS_COMPOSED)

/* Score terms that depend on head and distance alone. */
typedef struct attn_distance_terms_ {
  attn_toeplitz toeplitz;
  attn_t5 t5;
  attn_parabola parabola;
  attn_distance_factor factor;
} attn_distance_terms_;

/* Sequences that are not alike: rows end to end, or keys in the pages of a cache (engine/storage.h). The
 * extents of q and k in the problem are then those of the longest. */
typedef struct attn_sequences_ {
  int64_t n;
  int64_t rows;                /* of q: what the last query of all is below */
  const int64_t *q, *kv;       /* [n + 1] where their rows begin; null: each has a batch entry */
  int aligned;                 /* each has its own q_off: the ends meet, */
  int by_lengths;              /* those that kv_len and q_len say; */
  const int64_t *offs;         /* or it is given */
  int64_t off_lo, off_hi;      /* of these, the least and the greatest */
  const attn_sequence *cached; /* null: no pages */
  int coming; /* the tokens of the queries are not in them yet: what that will take is measured */
  int64_t page, window, sinks; /* rows of a page; of a ring, else 0 */
  int64_t items, parts;        /* of all: work items, rows of parts (engine/decode.h) */
  int64_t *first, *part;       /* [n + 1] those before each */
} attn_sequences_;

/* Attention to the best keys of a row (families/content/choice.h). The engine calls it by pointers, so
 * that only a program that chooses carries it. */
typedef struct attn_choice_calls_ {
  int (*passes)(attn_error_ *e, struct attn_softmax_ *a, attn_ctx *ctx, int workers);
  int (*skips)(struct attn_tile_ *t); /* 1: the tile has nothing to do */
  void (*open)(struct attn_tile_ *t);
  int (*block)(struct attn_tile_ *t, struct attn_block_ *b); /* 1: something of it has a weight */
  int (*lists)(struct attn_tile_ *t, int32_t *const *index, const int *count, int most);
  void (*tile)(struct attn_tile_ *t, int last); /* a pass that leaves the accumulators alone */
} attn_choice_calls_;

typedef struct attn_choice_ {
  const attn_choice_calls_ *on;
  attn_topk_mode mode;
  int stage;   /* what a pass over the tiles does */
  int values;  /* 0: only the selection is wanted */
  int at_once; /* COLLECT attends to the lists that are complete */
  int64_t k;   /* length of a list; TIES: one more than asked for; 0: bounds alone */
  float bound; /* score units */
  float
      factor; /* 0, or what scores are multiplied by when they are there: equal products stay equal */
  int64_t *indptr; /* out, see attn_topk_params */
  int32_t *col;
  int64_t edges;
  attn_span_ span[2]; /* of indptr and col */
  float *least;       /* [B,H,Tq]: the lowest score that is selected; REL: the maximum */
  int64_t *count;     /* [B,H,Tq]: keys selected; while col is filled, where the next one goes */
  unsigned char
      *done; /* [B,H,Tq], TIES in one phase: no score ties with the k-th, the list is all */
  /* with several phases: [B,H,Tq][k] candidates and how many there are */
  uint64_t *kept;
  int64_t *kept_count;
} attn_choice_;

/* Scores that are added to those of the queries and keys, which may be all zero (engine/addend.h). */
enum { ATTN_ADD_ROWS_, ATTN_ADD_KEYS_, ATTN_ADD_OUTER_, ATTN_ADD_TILE_ };
typedef struct attn_addend_ {
  int kind;
  attn_tensor x; /* ROWS: row i + row0 has the scores of query i; KEYS: one row for all queries */
  int64_t row0;
  double weight;  /* of these: positive, in score units */
  attn_tensor y;  /* OUTER, TILE: x and y are factors, [.., tile of queries * na or nb, lane] */
  int64_t na, nb; /* key j has the factors j mod na, and j / na or j mod nb */
} attn_addend_;

/* Keys and values that are sums over ranks r of numbers a_r, one for each head, times vectors b_r of all heads
 * (engine/factored.h): rows [a_1 .. a_R | b_1 .. b_R], the problem's k and v being their b_1. A call has one query
 * a sequence, so that its rows see the same keys. */
typedef struct attn_factored_ {
  attn_tensor k, v; /* the whole rows */
  int64_t k_rank, v_rank, heads;
  /* of keys at .. at + n of a block, and of all; by pointers, so that only who has factors carries them */
  void (*scores)(const struct attn_tile_ *t, const struct attn_block_ *b, int at, int n, float *s,
                 float *top);
  void (*values)(const struct attn_tile_ *t, const struct attn_block_ *b, const float *alpha,
                 int start);
} attn_factored_;

/* Chosen keys, one by one (families/selection/listed.h), by pointers as above. */
struct attn_cursor_;
typedef struct attn_listed_calls_ {
  int (*take)(struct attn_block_ *b,
              struct attn_cursor_ *c); /* the next keys; 0 = there are none */
  void (*ahead)(const struct attn_tile_ *t,
                struct attn_cursor_ *c); /* asks for keys of the next block */
  /* n rows of pages, as f32 */
  void (*pages)(const struct attn_tile_ *t, const attn_tensor *x, const attn_scales *scales,
                int64_t head, float *copy, const int32_t *index, int n);
} attn_listed_calls_;

typedef struct attn_softmax_ {
  const attn_table_ *table;
  const attn_low_table_ *low;    /* products of bf16 or f16 (engine/low.h); null: of f32 */
  const attn_code_table_ *codes; /* scores from codes (engine/codes.h), or null; low: of values */
  attn_feature feature;          /* that has them */
  int takes_low;                 /* the call has other modes than ATTN_COMPUTE_F32 */
  attn_tensor o, q, k, v, lse, map; /* lse and map: data null = absent */
  int map_scores;                   /* the map stays what entered the softmax */
  attn_tensor raw;                  /* a map of scores without terms: engine/raw.h */
  float raw_cap;                    /* but a soft-cap, natural; 0 = none */
  attn_mask mask, bias;
  int mask_new; /* the mask's columns begin with key q_off */
  const int32_t *kv_len, *q_len;
  attn_scales k_scales, v_scales; /* of quantised k and v */
  const float *alibi, *sinks;
  int softmax_one;
  double unit;                    /* of a score: log2 e, or 1 for rectified weights */
  double scale;                   /* the caller's, natural */
  float softcap;                  /* score units, 0 = off */
  int cap_last;                   /* it comes after the additive terms */
  float scale_hi, scale_lo;       /* scale * unit, folded into the packed queries (E3) */
  int64_t q_off, left, right;     /* row i sees keys i+q_off-left .. i+q_off+right */
  int64_t keep;                   /* and those before `keep`; 0 with left unlimited */
  attn_range_fn_ range;           /* of these, those of a row; null: all */
  const void *range_user;         /* its first argument */
  attn_sequences_ sequences;      /* what seq points at */
  const attn_sequences_ *seq;     /* null: all batch entries have the same extents */
  const attn_plan_ *plan;         /* a schedule, or null */
  const attn_edges_params *edges; /* key lists of the call, or null */
  int terms; /* a bit for each of the score terms that are there: engine/score_terms.h */
  attn_relative relative;
  attn_xl xl;
  attn_labels labels;
  attn_gaussian gaussian;
  attn_span span;
  const float *mix; /* E0: [H][dk] factors of each head's queries, or null; one head a tile */
  const attn_addend_ *addends; /* or null */
  int addend_count;
  attn_score_fn modify;
  void *modify_user;
  attn_score_fn modify_weights;
  void *modify_weights_user;
  attn_drop drop;  /* of weights */
  int o_stands_in; /* o is no memory, but a shape */
  int takes_drop;  /* the call has rows, heads and keys of its own, that counters may count */
  int map_dropped; /* the map is that of the weights after it */
  attn_distance_terms_ by_distance;
  const float *factor, *distance; /* [distance_heads][distances], see engine/distance.h */
  int64_t distances, distance_heads, distance_zero;
  const attn_factored_ *factored; /* or null */
  const attn_listed_calls_ *listed;
  const struct attn_reshape_ *reshape; /* what is in place of a softmax, or around it */
  attn_choice_ *choice;                /* of each row's keys, or null */
  const attn_span_ *outer;  /* two outputs of a call around this one, which is only checked: q, k, v
                            * and o are not there yet */
  const attn_span_ *beside; /* outputs of a call that reads o and lse as it reads the others */
  int besides;
  int64_t group; /* query heads that share key and value heads */
  int64_t tiles; /* per (batch, group) */
  /* A mechanism's own work items in place of tiles: job is this problem. own_items of them, or with a
   * schedule its tiles unless own_whole; they have so many bytes of a worker. */
  attn_item_fn_ own;
  void *own_job;
  int64_t own_items, own_bytes;
  int own_whole;
  int64_t bytes; /* memory of one worker, cut at `offset` */
  char *workspace;
  /* Few queries: engine/decode.h. Parts are [B][head group][split][row], part_o [..][dv]. */
  int few, by_row, one_order;
  const char *why;       /* not */
  int64_t splits, part0; /* part0: what the numbers of a sequence's parts begin with */
  int64_t kept, skip;    /* after so many splits come so many that no row sees: not counted */
  float *part_m, *part_l, *part_o;
  /* With several phases the state of every row waits here between them. */
  int phase, phases, counting;
  float *state_m, *state_l, *state_n,
      *state_o;                 /* [B,H,Tq], state_o [B,H,Tq,dv] or null: o itself */
  int64_t offset[ATTN_PIECES_]; /* last: not before memory is planned */
} attn_softmax_;

/* A problem of nothing. */
ATTN_FUNC_ void attn_problem_clear_(attn_softmax_ *a) {
  attn_clear_(a, offsetof(attn_softmax_, offset));
}

/* What a pass over the tiles does. */
enum {
  ATTN_STAGE_APPLY_,   /* the softmax over what is chosen, and its lists */
  ATTN_STAGE_FILL_,    /* the lists */
  ATTN_STAGE_COUNT_,   /* their lengths */
  ATTN_STAGE_AGAIN_,   /* COLLECT when lists are being written */
  ATTN_STAGE_COLLECT_, /* the best keys: EXACT attends to them at once, TIES and REL get bounds */
};

/* Whether a pass looks for the best keys. */
ATTN_FUNC_ int attn_choice_collects_(const attn_choice_ *c) {
  return c->stage == ATTN_STAGE_COLLECT_ || c->stage == ATTN_STAGE_AGAIN_;
}

/* Whether a pass leaves the accumulators alone. */
ATTN_FUNC_ int attn_choice_blind_(const attn_softmax_ *a) {
  return ATTN_PART_(CONTENT, a->choice) && a->choice->stage != ATTN_STAGE_APPLY_;
}

/* What is read of a key: its row of x, k or v of the problem, or its factors. */
ATTN_INLINE_ const attn_tensor *attn_rows_of_(const attn_softmax_ *a, const attn_tensor *x) {
  const attn_factored_ *f = ATTN_PART_(LATENT, a->factored);
  return !f ? x : x == &a->k ? &f->k : &f->v;
}

/* Whether weights need no maximum. */
ATTN_INLINE_ int attn_shiftless_(const attn_softmax_ *a) {
  const attn_reshape_ *r = ATTN_PART_(WEIGHTS_, a->reshape);
  return r && r->weigh && !r->shifts;
}

/* Whether a weight of 0 reads no value. */
ATTN_INLINE_ int attn_sparse_(const attn_softmax_ *a) {
  const attn_reshape_ *r = ATTN_PART_(WEIGHTS_, a->reshape);
  return r && r->sparse;
}

/* Whether a first pass counts keys. */
ATTN_INLINE_ int attn_tallies_(const attn_softmax_ *a) {
  const attn_reshape_ *r = ATTN_PART_(WEIGHTS_, a->reshape);
  return r && r->tally;
}

/* Whether scores change once more when all is there. */
ATTN_INLINE_ int attn_late_(const attn_softmax_ *a) {
  const attn_reshape_ *r = ATTN_PART_(WEIGHTS_, a->reshape);
  return r && r->late && !a->counting;
}
