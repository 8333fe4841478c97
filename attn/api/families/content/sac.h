/* api/families/content/sac.h owns attention over edges that a network draws: an LSTM names them node by node, two
 * nodes an edge, and row s then sees the targets of its edges (sparse adaptive connection). Training is no part of
 * it.
 *
 *   e -> attn_sac_edges (attn_lstm_step, attn_pointer_logits, attn_choose) -> edges
 *   edges -> attn_sac_csr -> lists of keys -> attn_sac
 *
 * Where a call is silent: outputs share memory with nothing; errors are NULL, DTYPE, SHAPE, HEADS, STRIDE,
 * RANGE, VALUE, INDEX, OVERLAP, OVERFLOW, ALIGN, WORKSPACE, MEMORY and those of ctx, outputs untouched;
 * results are the same bits on avx2, avx512 and neon, for any number of workers.
 * Source: Li et al. 2020, arXiv 2003.09833, which leaves open what is settled here: no input but the last
 * node, logits as given below, and what happens when nothing is left to choose. */

typedef struct attn_lstm_params {
  attn_tensor w_ih; /* [1, 1 or H, 4 dh, dx], rows of the gates i, f, g, o */
  attn_tensor w_hh; /* [1, 1 or H, 4 dh, dh] */
  attn_tensor bias; /* [1, 1 or H, 1, 4 dh]: the sum of both biases; absent = 0 */
} attn_lstm_params;

/* One step of an LSTM:
 *
 *   a = w_ih x + w_hh h + b,   i, f, o = sigmoid of their rows of a, g = tanh
 *   c_next = f c + i g,        h_next = o tanh(c_next)
 *
 * Shapes: x [B,H,n,dx], h, c, h_next, c_next [B,H,n,dh]; n rows that do not meet; any float types and
 *   strides. h.data or c.data null: zeros.
 * Aliasing: h_next may be h, c_next may be c, with the same strides and type.
 * Memory: attn_lstm_step_workspace bytes, 16 dh, and per worker 4 (dx + 14 dh).
 * NaN: reaches its row. Empty: no rows is a no-op. Cost: 8 dh (dx + dh) flops a row, as products of a row
 *   with rows of the weights. Source: Hochreiter and Schmidhuber 1997, doi 10.1162/neco.1997.9.8.1735. */
ATTN_DEF attn_status attn_lstm_step(attn_tensor h_next, attn_tensor c_next, attn_tensor x,
                                    attn_tensor h, attn_tensor c, const attn_lstm_params *params,
                                    attn_ctx *ctx);
ATTN_DEF size_t attn_lstm_step_workspace(attn_tensor h_next, attn_tensor c_next, attn_tensor x,
                                         attn_tensor h, attn_tensor c,
                                         const attn_lstm_params *params, const attn_ctx *ctx);

typedef struct attn_sac_params {
  attn_lstm_params lstm; /* dx = de */
  attn_tensor w_p;       /* [1, 1 or H, de, dh] */
  attn_tensor dist;      /* [1, 1 or H, 2 D + 1, de]: vectors of distances -D .. D; absent = none */
  attn_tensor sos;       /* [1, 1 or H, 1, de]: the first input; absent = zeros */
  int64_t heads;         /* H of the edges: 1, or that of q; 0 = 1 */
  double alpha;          /* >= 0: edges a node, see attn_sac_count; there is no default */
  int forced;            /* 1: every node is a source, alpha times in turn */
  const int32_t *sources; /* forced: [B,H,n] the sources instead */
  int causal;             /* targets t <= s; rows see no later key */
  int no_self;            /* 1: no edge from a node to itself */
  int repeat;             /* 1: an edge may be drawn again */
  int sampled;            /* 1: choices are drawn, from seed; 0: the likeliest node */
  uint64_t seed;
  const uint8_t *valid; /* [B,T], 0: the node is padding, never chosen; null: none is */
  int symmetric;        /* 1: an edge counts in both directions */
  int no_add_self;      /* 1: a row does not see itself without an edge */
  float scale;          /* 0 = 1/sqrt(dk), ATTN_ZERO = 0 */
  attn_tensor lse;      /* out, optional: [B,H,T,1] f32 */
} attn_sac_params;

/* What a hidden state thinks of every node, u = w_p h:
 *
 *   y_n = u . e_n,   for the target of a source s also  + u . dist[clip(n - s, -D, D) + D]
 *
 * Shapes: y [B,H,m,T], h [B,H,m,dh], e [1 or B, 1 or H, T, de], any float types; source [B,H,m] dense or
 *   null: no source yet, no distances. Reads w_p and dist.
 * Memory: attn_pointer_logits_workspace bytes: 4 max(T, de, 4 dh, 2 D + 1), per worker 17 T + 8 de + 56 dh
 *   + 4 (2 D + 1).
 * Errors: INDEX (a source outside 0..T-1). NaN: as it is added. Cost: 2 (T + 2 D + 1 + dh) de flops a row. */
ATTN_DEF attn_status attn_pointer_logits(attn_tensor y, attn_tensor h, attn_tensor e,
                                         const int32_t *source, const attn_sac_params *params,
                                         attn_ctx *ctx);
ATTN_DEF size_t attn_pointer_logits_workspace(attn_tensor y, attn_tensor h, attn_tensor e,
                                              const int32_t *source, const attn_sac_params *params,
                                              const attn_ctx *ctx);

/* Chooses a node in each row by p = softmax of the logits of permitted nodes:
 *
 *   u null, not sampled: the largest, the lowest index of equal ones
 *   else: the first node n with p_0 + .. + p_n > u, the last permitted one if rounding leaves none
 *
 * Shapes: logits [B,H,m,T] f32; choice [B,H,m], log_p [B,H,m] f32 or null: ln of the chosen p; permitted
 *   [B,H,m,T] bytes or null: all; u [B,H,m], 0 < u < 1, or null: with params->sampled the first uniform
 *   number of the stream (seed, 8, h, row). All dense but logits. params null: not sampled.
 * Memory: attn_choose_workspace bytes: 4 T a worker.
 * Errors: VALUE (u; a row without permitted nodes).
 * NaN: is never the largest; if nothing else is permitted, or a choice is drawn, some permitted node. The
 *   log_p of a row with NaN, +inf or nothing above -inf is NaN.
 * Cost: T exponentials a row. */
ATTN_DEF attn_status attn_choose(int32_t *choice, float *log_p, attn_tensor logits,
                                 const uint8_t *permitted, const double *u,
                                 const attn_sac_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_choose_workspace(int32_t *choice, float *log_p, attn_tensor logits,
                                      const uint8_t *permitted, const double *u,
                                      const attn_sac_params *params, const attn_ctx *ctx);

/* n, the most edges of a head: floor(alpha T); forced without sources floor(alpha) T. -1 if alpha or T are
 * not legal, or n is 2^31 or more. */
ATTN_DEF int64_t attn_sac_count(int64_t nodes, const attn_sac_params *params);

/* Draws edges, h = c = 0 and x = sos to begin with:
 *
 *   for each edge: (h, c) = LSTM(x);    the source s: a choice among valid nodes that still have a
 *                                       permitted target, or the forced one
 *                  (h, c) = LSTM(e_s);  the target t: a choice, with distances, among valid nodes: causal
 *                                       t <= s, no_self t != s, without repeat (s, t) no edge yet
 *                  x = e_t
 *
 * With causal and forced sources (alpha up to 1, or in an order that grows) no edge of a row depends on a
 * later node; sources that are drawn are chosen among all nodes.
 * It ends after n edges or when no source is left. A forced source without permitted target makes no edge:
 * x = e_s. A forced source that is padding is passed over.
 * Shapes: e [B, 1 or H, T, de] any float type; edges [B,H,n,2] (source, target), -1 behind the last; count
 *   [B,H]; log_p [B,H,n,2] f32 or null: ln of the chosen probabilities, 0 for a forced source. All dense.
 * Random: choice number m of a head draws from the stream (seed, 8, h, m); forced sources are no choices.
 * Memory: attn_sac_edges_workspace bytes: 4 max(4 dh, de, T, 2 D + 1), per worker 4 n + 17 T and some rows.
 * Errors: INDEX (sources outside 0..T-1), VALUE (a batch entry without valid node, alpha).
 * Empty: B = 0 or T = 0 does nothing; n = 0 makes counts of 0. NaN: any permitted node is chosen.
 * Cost: 4 n LSTM and pointer products, 4 n T de flops of pointers: the predictor is quadratic in T, the
 *   attention is not. Edges follow one another; heads and batch entries run side by side. */
ATTN_DEF attn_status attn_sac_edges(int32_t *edges, int32_t *count, float *log_p, attn_tensor e,
                                    const attn_sac_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_sac_edges_workspace(int32_t *edges, int32_t *count, float *log_p,
                                         attn_tensor e, const attn_sac_params *params,
                                         const attn_ctx *ctx);

/* Entries that the lists of T nodes and n edges may have: n, twice with symmetric, and T unless
 * no_add_self; -1 if a size is negative or that is 2^31 or more. */
ATTN_DEF int64_t attn_sac_room(int64_t nodes, int64_t n, const attn_sac_params *params);

/* Edges as lists of keys: row i has the targets t of its edges (i, t), with symmetric the sources too, i
 * itself unless no_add_self, none after i with causal; ascending, each once.
 *
 * Shapes: edges [sets, n, 2], of which count[set] are read; indptr [sets, T + 1], col [sets, room], room as
 *   attn_sac_room, -1 behind the last. A set is what attn_edges and attn_pattern_csr take, with
 *   indptr[T] edges. params null: as {0}.
 * Memory: attn_sac_csr_workspace bytes, 4 room + 8 T + 4 a worker.
 * Errors: INDEX (count outside 0..n, ends outside 0..T-1). Cost: O(n + T) a set. The same on every tier. */
ATTN_DEF attn_status attn_sac_csr(int64_t *indptr, int32_t *col, const int32_t *edges,
                                  const int32_t *count, int64_t sets, int64_t n, int64_t nodes,
                                  const attn_sac_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_sac_csr_workspace(int64_t *indptr, int32_t *col, const int32_t *edges,
                                       const int32_t *count, int64_t sets, int64_t n, int64_t nodes,
                                       const attn_sac_params *params, const attn_ctx *ctx);

/* Attention over edges: O_i = softmax over the list of row i that attn_sac_csr makes.
 *
 * Shapes: q [B,H,T,dk], k [B,Hk,T,dk], v [B,Hv,T,dv], o [B,H,T,dv] as attn_sdpa. edges [B, heads, n, 2] and
 *   count [B, heads], heads = params->heads: 1 (shared by all) or H. edges null: drawn by attn_sac_edges
 *   from e; n and count are then ignored, else e is. (For no edges at all pass a count of 0.)
 * Memory: attn_sac_workspace bytes: 4 (room + 2 T) a head of edges, attn_edges's, and when drawn 8 n a head
 *   and attn_sac_edges's. Empty rows: zeros, LSE -inf. NaN: as attn_edges.
 * Cost: 2 (dk + dv) flops an entry of the lists, and their making. */
ATTN_DEF attn_status attn_sac(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                              const int32_t *edges, const int32_t *count, int64_t n, attn_tensor e,
                              const attn_sac_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_sac_workspace(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                   const int32_t *edges, const int32_t *count, int64_t n,
                                   attn_tensor e, const attn_sac_params *params,
                                   const attn_ctx *ctx);
