/* api/families/sparse/sparse.h owns mechanisms that need more than one softmax, or one over several sources of
 * keys. They are compositions of attn_sdpa and attn_merge, and share these rules:
 *
 * Memory: attn_<name>_workspace bytes; what passes between two steps is f32, O(B H T dv). A call
 *   that needs a schedule builds one each time with ATTN_MALLOC, even when it has a workspace, and
 *   so does its workspace query, unless params hold one: then nothing is allocated.
 * Aliasing, empty rows, NaN, errors, determinism: as attn_sdpa. Storage types of all tensors are
 *   independent, except that lse is f32. Heads of keys and values divide those of queries; dk, dv
 *   >= 1; extents of 0 are legal unless a call says otherwise. lse is optional everywhere: of the
 *   whole softmax of a row. scale: 0 = 1/sqrt(dk), ATTN_ZERO = 0. */

typedef struct attn_star_params {
  int64_t width;            /* satellites seen to each side; 0 = 1 */
  int has_width;            /* 1: width holds, 0 included: itself only */
  int no_ring;              /* 1: the ends are not neighbours */
  attn_tensor k_own, v_own; /* optional [B,Hk,T,dk], [B,Hv,T,dv]: a private key per satellite */
  float scale;
  attn_tensor lse; /* out, optional: [B,H,T,1], of the relay [B,H,1,1] */
} attn_star_params;

/* Star-Transformer, first half of a step: T satellites on a ring see their neighbours, themselves,
 * the relay and their private key, in one softmax:
 *
 *   keys of satellite i: { k_j : j = i + d mod T, |d| <= width }, k_relay, k_own[i]
 *
 * A neighbour reached from both sides counts once; a private key is a key of its own.
 * Shapes: o, q [B,H,T,.], k, v [B,Hk,T,.], k_relay, v_relay [B,Hk,1,.]; T >= 1. width, no_ring,
 *   k_own and v_own are of this half.
 * Cost: T (2 width + 3) pairs a head. Source: Guo et al. 2019, arXiv 1902.09113 (rings; zero keys
 *   at the ends, as in one implementation, are not imitated). */
ATTN_DEF attn_status attn_star_satellites(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, attn_tensor k_relay, attn_tensor v_relay,
                                          const attn_star_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_star_satellites_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                               attn_tensor v, attn_tensor k_relay,
                                               attn_tensor v_relay, const attn_star_params *params,
                                               const attn_ctx *ctx);

/* Second half: the relay sees itself and the keys of the UPDATED satellites. o, q_relay [B,H,1,.],
 * k_relay, v_relay [B,Hk,1,.], k, v [B,Hk,T,.], T >= 0. Cost: T + 1 pairs a head. */
ATTN_DEF attn_status attn_star_relay(attn_tensor o, attn_tensor q_relay, attn_tensor k_relay,
                                     attn_tensor v_relay, attn_tensor k, attn_tensor v,
                                     const attn_star_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_star_relay_workspace(attn_tensor o, attn_tensor q_relay, attn_tensor k_relay,
                                          attn_tensor v_relay, attn_tensor k, attn_tensor v,
                                          const attn_star_params *params, const attn_ctx *ctx);

typedef struct attn_longformer_params {
  const int32_t *window;   /* [H] steps to each side, >= 0; required */
  const int32_t *dilation; /* [H] distance of a step, >= 1; null = 1 */
  const int32_t *global;   /* global tokens, each list strictly ascending */
  int64_t globals;         /* entries of `global` */
  const int64_t
      *global_indptr;   /* [B + 1] list of entry b: global[ptr[b]..ptr[b+1]); null = one for all */
  attn_tensor q_global; /* [B,H,n,dk] rows in the order of the list, n the longest list; */
  attn_tensor k_global, v_global; /* [B,Hk,T,.]; all three, or none: then q, k, v serve */
  int causal;
  attn_mask valid; /* optional [B or 1,1,1,T], ATTN_MASK_BOOL or _BITS: tokens that are there */
  float scale;
  attn_tensor lse; /* out, optional: [B,H,T,1] */
  const attn_schedule
      *schedules; /* optional: [1], or [B] with global_indptr; attn_longformer_schedule */
} attn_longformer_params;

/* Longformer: a dilated window for all tokens, and global tokens that see all and are seen by all.
 *
 *   row i not global: keys { i + t dilation : |t| <= window } and the global ones, by q, k, v
 *   row i global:     all keys, by q_global, k_global, v_global
 *
 * A pair counts once; causal removes j > i everywhere. A token that is not valid is no key, and its
 * row is empty. Released models give the two-sided window: half of it goes here.
 * Shapes: o, q [B,H,T,.], k, v [B,Hk,T,.]. Memory: schedules are built with ATTN_MALLOC, one per
 *   different list, unless given. Errors also: NULL (window; one or two of the global tensors),
 *   RANGE (window, dilation), INDEX (lists), SCHEDULE.
 * Cost: (T - n)(2 window + 1 + n) + n T pairs a head; rows of global tokens are computed once.
 * Source: Beltagy et al. 2020, arXiv 2004.05150. */
ATTN_DEF attn_status attn_longformer(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                     const attn_longformer_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_longformer_workspace(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, const attn_longformer_params *params,
                                          const attn_ctx *ctx);
/* The schedule attn_longformer wants for batch entry b, for params->schedules. Free it with
 * attn_schedule_free. Reads window, dilation, the lists, causal, and whether q_global is there. */
ATTN_DEF attn_status attn_longformer_schedule(attn_schedule *schedule,
                                              const attn_longformer_params *params, int64_t heads,
                                              int64_t tokens, int64_t b, attn_ctx *ctx);

/* The four pieces of ETC, in the order long-long, long-global, global-global, global-long; the
 * first word is the query's side. */
typedef enum attn_etc_piece {
  ATTN_ETC_L2L = 0,
  ATTN_ETC_L2G,
  ATTN_ETC_G2G,
  ATTN_ETC_G2L,
  ATTN_ETC_PIECES
} attn_etc_piece;

typedef struct attn_etc_params {
  int64_t radius; /* long tokens see this many to each side, >= 1 */
  /* Masks [B or 1, H or 1, queries or 1, keys or 1], ATTN_MASK_BOOL or _BITS. That of L2L is
   * [.., n_l, 2 radius + 1]: its column t is key i + t - radius. */
  attn_mask mask[ATTN_ETC_PIECES];
  /* Relative labels, int32 in the shapes of the masks (queries x keys, dense); null = none. The
   * two pieces of a side, L2L and L2G or G2G and G2L, have them together. */
  const int32_t *label[ATTN_ETC_PIECES];
  int labels_per_batch; /* 1: [B] of them, one after another */
  /* Or labels by clipped distance without arrays: attn_etc_structure says which. */
  int by_distance;
  int64_t clip;
  const int32_t *sentence; /* optional, [n_l], or [B, n_l] when labels_per_batch; negative = none */
  attn_tensor table_long, table_global; /* [1, 1 or H, labels, dk] f32: of L2L, L2G and G2G, G2L */
  const float *bias_long, *bias_global; /* optional [labels, H] */
  float scale;
  attn_tensor lse_long, lse_global; /* out, optional: [B,H,n_l,1], [B,H,n_g,1] */
} attn_etc_params;

/* Extended Transformer Construction: a long input with a local window and a short global one.
 *
 *   long row i:   keys { g : mask L2G } and { j : |i - j| <= radius, mask L2L }, one softmax
 *   global row g: keys { g' : mask G2G } and { j : mask G2L }, one softmax
 *   x = s (q . (k + table[label]) + bias[label, h])
 *
 * Shapes: o_long, q_long [B,H,n_l,.], o_global, q_global [B,H,n_g,.]; k[piece], v[piece] of the
 *   four pieces, of n_l, n_g, n_g, n_l rows (they may coincide).
 * Errors also: RANGE (radius < 1, clip < 0, a label outside its table, a sentence of n_g or more),
 *   NULL (labels of one piece of a side only, labels without a table, k or v null).
 * Cost: n_l (2 radius + 1 + n_g) + n_g (n_g + n_l) pairs a head, and a short row of label scores
 *   per query. Source: Ainslie et al. 2020, arXiv 2004.08483; forbidden pairs are absent here,
 *   where its program subtracts 10000. */
ATTN_DEF attn_status attn_etc(attn_tensor o_long, attn_tensor o_global, attn_tensor q_long,
                              attn_tensor q_global, const attn_tensor k[ATTN_ETC_PIECES],
                              const attn_tensor v[ATTN_ETC_PIECES], const attn_etc_params *params,
                              attn_ctx *ctx);
ATTN_DEF size_t attn_etc_workspace(attn_tensor o_long, attn_tensor o_global, attn_tensor q_long,
                                   attn_tensor q_global, const attn_tensor k[ATTN_ETC_PIECES],
                                   const attn_tensor v[ATTN_ETC_PIECES],
                                   const attn_etc_params *params, const attn_ctx *ctx);

/* A structured input of ETC: long tokens in sentences, each of which has a global token. */
typedef struct attn_etc_structure {
  int64_t longs, globals;
  int64_t radius, clip;          /* >= 1; >= 0 */
  const int32_t *sentence;       /* optional [longs]: the global token of each long one */
  const int32_t *example_long;   /* optional [longs], [globals]: tokens of different examples do */
  const int32_t *example_global; /* not see each other; a negative one is padding */
  int hard_g2l, hard_l2g; /* global tokens see their sentence only; and the other way round */
} attn_etc_structure;

/* The masks and labels of a structure, arrays in the shapes of attn_etc_params (1 = allowed; any
 * may be null = not wanted):
 *   l2l: same example and |i-j| <= radius;   g2g: same example
 *   l2g and g2l: same example, and own sentence if hard
 *   labels of l2l, g2g: min(d, clip) for d >= 0, clip + min(-d, clip) for d < 0, d = key - query;
 *   of l2g, g2l: 2 clip + 2 for the own sentence, 2 clip + 1 otherwise; 2 clip + 3 labels in all.
 * Entries of l2l outside the input are 0. Errors: NULL (structure; hard without sentence; one of
 * the example arrays), SHAPE, RANGE (radius, clip, a sentence of a token that is no padding), CTX,
 * ISA, ENV. */
ATTN_DEF attn_status attn_etc_masks(uint8_t *l2l, uint8_t *l2g, uint8_t *g2g, uint8_t *g2l,
                                    const attn_etc_structure *structure, attn_ctx *ctx);
ATTN_DEF attn_status attn_etc_labels(int32_t *l2l, int32_t *l2g, int32_t *g2g, int32_t *g2l,
                                     const attn_etc_structure *structure, attn_ctx *ctx);

typedef struct attn_tree_params {
  int64_t tokens; /* T >= 1 */
  int64_t k;      /* nodes per level and side, >= 1 */
  int causal;
  int overlap;       /* 0: the nodes of a token are disjoint; 1: the recursion of the paper */
  int include_self;  /* 1: span nodes see themselves too */
  int64_t clip;      /* levels from this one on share labels; 0 = none do */
  int has_clip;      /* 1: clip holds, 0 included: all share those of their affiliated edge */
  attn_tensor table; /* optional [1, 1 or H, (2k+1)(clip+1) or more, dk] f32, added to keys */
  float scale;
  attn_tensor lse; /* out, optional: [B,H,N,1] */
  const attn_schedule
      *schedule; /* optional, of attn_pattern_tree with the same fields; another: SCHEDULE */
} attn_tree_params;

/* Nodes of the binary tree over T tokens: levels of T, ceil(T/2), .. 1 nodes; node m of a level
 * stands behind all nodes of the levels below. 0 for T < 1, or when they pass INT32_MAX. */
ATTN_DEF int64_t attn_tree_nodes(int64_t tokens);

/* The label of the edge from node i to key node j, or -1 when i does not see j:
 *   itself 0; left node t of level l: (2k+1) min(l, clip) + 2t + 1, right: + 2t + 2; a span node of
 *   level l to its tokens (and itself): (2k+1) min(l, clip)
 * where l counts the steps outwards: a finer node that aligns level l has the label of level l.
 * -1 for params that attn_tree would reject. Cost: O(log T). */
ATTN_DEF int64_t attn_tree_label(const attn_tree_params *params, int64_t i, int64_t j);

/* BP-Transformer: a token sees near tokens and, further away, coarser and coarser spans of a binary
 * tree; a span node sees its tokens.
 *
 *   x_ij = s q_i . (k_j + table[label(i, j)])
 *
 * Shapes: o, q [B,H,N,.], k, v [B,Hk,N,.], rows in the order of the nodes, N =
 *   attn_tree_nodes(tokens). Errors also: RANGE (tokens, k, clip), SHAPE (N, table), SCHEDULE.
 * Cost: at most 1 + 2k(L+1) pairs a token, T L for all spans, L = ceil(log2 T); with a table
 *   O(log T) more per pair. Source: Ye et al. 2019, arXiv 1911.04070. */
ATTN_DEF attn_status attn_tree(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                               const attn_tree_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_tree_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                    const attn_tree_params *params, const attn_ctx *ctx);

/* How rows of a group become one. */
typedef enum attn_aggregate_kind {
  ATTN_AGGREGATE_MEAN = 0,
  ATTN_AGGREGATE_MAX,
  ATTN_AGGREGATE_SUM,
  ATTN_AGGREGATE_FIRST,
  ATTN_AGGREGATE_LAST,
  ATTN_AGGREGATE_ATTENTION, /* softmax weights of u . tanh(y w + b); Yang et al. 2016 */
  ATTN_AGGREGATE_COUNT
} attn_aggregate_kind;

typedef struct attn_aggregate {
  attn_aggregate_kind kind;
  attn_tensor w;     /* of ATTENTION: [1, 1 or H, dv, dh] */
  int w_transposed;  /* 1: w is [1, 1 or H, dh, dv], as in PyTorch checkpoints */
  const float *bias; /* [dh]; null = 0 */
  const float *u;    /* [dh] */
} attn_aggregate;

typedef enum attn_integrate {
  ATTN_INTEGRATE_NONE = 0,
  ATTN_INTEGRATE_TOKEN,   /* each row sees the summaries */
  ATTN_INTEGRATE_SUMMARY, /* each segment's summary sees the summaries, for all its rows */
  ATTN_INTEGRATE_POOL,    /* mean of the summaries */
  ATTN_INTEGRATE_COUNT
} attn_integrate;

typedef struct attn_segmented_params {
  const int32_t *indptr; /* [segments + 1], 0 .. T, not descending; empty segments are legal */
  int64_t segments;
  int64_t length; /* or, with indptr null, segments of this length */
  int causal;     /* rows see the past of their segment, and summaries of earlier segments */
  attn_integrate integrate;
  attn_aggregate aggregate;
  attn_tensor w_q, w_k; /* optional [1, 1 or H, dv, d']; identity by default */
  attn_tensor w_v;      /* optional [1, 1 or H, dv, d''] */
  int w_transposed;     /* 1: these three are [.., out, in], as in PyTorch checkpoints */
  int concat;           /* 0: o = y + gain u; 1: o = [y ; u] */
  float gain;           /* 0 = 1, ATTN_ZERO = 0 */
  float scale;
  attn_tensor lse; /* out, optional: [B,H,T,1], of the segments */
  const attn_schedule *
      schedule; /* optional: of attn_pattern_segments(indptr), without indptr of _blocks(length, 0, 0) */
} attn_segmented_params;

/* Attention inside segments, then optionally an exchange between them.
 *
 *   y_i = attention of row i over its own segment;   z_a = aggregate of the y of segment a
 *   TOKEN:   u_i = attention of y_i w_q over keys z_b w_k, values z_b w_v, scale 1/sqrt(d')
 *   SUMMARY: the same with query z_a w_q, for every row of segment a (not with causal)
 *   POOL:    u_i = mean of z_b w_v
 *
 * over the segments b that are not empty and, if causal, lie before row i's; none: u = 0.
 * Shapes: q [B,H,T,dk], k, v [B,Hk,T,.], o [B,H,T,dv], with concat [B,H,T,dv + d'']. Adding needs
 *   d'' = dv. Errors also: RANGE (length; SUMMARY with causal), INDEX (indptr), SCHEDULE.
 * Cost: squares of the segments, and T S or S^2 pairs of the exchange.
 * Source: a common form of segmented models; the exchange is defined here. */
ATTN_DEF attn_status attn_segmented(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                    const attn_segmented_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_segmented_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                         const attn_segmented_params *params, const attn_ctx *ctx);

/* The most levels of attn_hierarchy. */
#define ATTN_HIERARCHY_LEVELS 16

typedef struct attn_hierarchy_params {
  int64_t levels;               /* 1..ATTN_HIERARCHY_LEVELS; 0 = 1 */
  const int64_t *units;         /* [levels] units of each level, units[0] = T; null if 1 level */
  const int32_t *const *indptr; /* [levels - 1]: indptr[l] [units[l+1] + 1], strictly ascending,
                                  * groups the units of level l */
  const attn_tensor *w_q,
      *w_k;               /* optional [levels] of [1, 1 or H, d_l, d'_l]; data null = identity */
  const attn_tensor *w_v; /* optional [levels] of [1, 1 or H, d_l, d_{l+1}] */
  int w_transposed;       /* 1: all of these are [.., out, in], as in PyTorch checkpoints */
  const attn_aggregate *aggregates; /* optional [levels - 1]; null = means */
  int causal;
  const float *gains; /* optional [levels], finite; null = 1 */
  float scale;        /* of every level; 0 = 1/sqrt(d'_l) */
  attn_tensor *y; /* out, optional: [levels] of [B,H,units[l],d_{l+1}]; data null = not wanted */
  const attn_schedule *schedules; /* optional [levels - 1], of attn_pattern_segments(indptr[l]) */
} attn_hierarchy_params;

/* Hierarchical attention: tokens inside their sentences, sentences inside their paragraphs, ..
 *
 *   h_0 = x;   y_l = attention of h_l w_q, h_l w_k, h_l w_v inside the groups of level l (top: all)
 *   h_{l+1}[g] = aggregate of y_l over group g
 *   o_i = sum_l gain_l y_l[unit of level l that holds i]
 *
 * causal: units see earlier units of their group and themselves; and o_i takes the unit BEFORE the
 * one that holds i for l >= 1, nothing if there is none, so that nothing before i depends on i.
 * Shapes: x [B,H,T,d_0], o [B,H,T,d] (data null: not wanted) where all y_l have width d. The
 *   groups are those of every batch entry. Errors also: RANGE (levels), INDEX (indptr), SCHEDULE,
 *   VALUE (gains). Cost: squares of the groups, and the projections.
 * Source: after Yang et al. 2016 (hierarchical attention networks) and Zhang et al. 2019, arXiv
 *   1905.06566; the form is defined here. */
ATTN_DEF attn_status attn_hierarchy(attn_tensor o, attn_tensor x,
                                    const attn_hierarchy_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_hierarchy_workspace(attn_tensor o, attn_tensor x,
                                         const attn_hierarchy_params *params, const attn_ctx *ctx);
