/* families/content/sac.h owns attention over edges: edges become lists of keys, ascending and each once, which
 * the exact-softmax engine reads. */

/* ---- edges to lists -------------------------------------------------------------------------*/

/* End `side` of entry x of a set: its edges, with symmetric the same turned round, then each node to
 * itself. */
ATTN_FUNC_ int64_t attn_sac_end_(const attn_sac_job_ *a, const int32_t *edges, int64_t count,
                                 int64_t x, int side) {
  if (x < count) return edges[2 * x + side];
  x -= count;
  if (a->p.symmetric && x < count) return edges[2 * x + 1 - side];
  return x - (a->p.symmetric ? count : 0);
}

/* One set. Sources are gathered by target first, then handed out target after target: so every row comes
 * out in order, with doubles side by side. */
ATTN_FUNC_ void attn_sac_csr_item_(void *job, int worker, int64_t set) {
  const attn_sac_job_ *a = (const attn_sac_job_ *)job;
  const int64_t t = a->nodes;
  const int64_t count = ((const int32_t *)a->count.data)[set];
  const int64_t all = count * (a->p.symmetric ? 2 : 1) + (a->p.no_add_self ? 0 : t);
  const int32_t *edges = (const int32_t *)a->edges.data;
  int32_t *source = (int32_t *)(void *)(a->memory + worker * a->each);
  int32_t *end = source + a->room; /* [T + 1] of a target's sources */
  int32_t *fill = end + t + 1;     /* [T] of a row's keys so far */
  int64_t *ptr = a->indptr + set * (t + 1), kept = 0;
  if (a->n > 0) edges += set * a->n * 2;
  int32_t *col = a->room > 0 ? a->col + set * a->room : NULL;
  memset(end, 0, (size_t)(t + 1) * sizeof *end);
  for (int64_t i = 0; i <= t; i++) ptr[i] = 0;
  for (int pass = 0; pass < 2; pass++) {
    for (int64_t x = 0; x < all; x++) {
      const int64_t i = attn_sac_end_(a, edges, count, x, 0);
      const int64_t j = attn_sac_end_(a, edges, count, x, 1);
      if (a->p.causal && j > i) continue;
      if (pass == 0)
        end[j + 1]++, ptr[i + 1]++;
      else
        source[end[j]++] = (int32_t)i; /* in the end they begin where the next one began */
    }
    if (pass == 0)
      for (int64_t i = 0; i < t; i++) end[i + 1] += end[i], ptr[i + 1] += ptr[i];
  }
  for (int64_t i = 0; i < t; i++) fill[i] = (int32_t)ptr[i];
  for (int64_t j = 0, x = 0; j < t; j++)
    for (; x < end[j]; x++) {
      const int32_t i = source[x];
      if (fill[i] > ptr[i] && col[fill[i] - 1] == j) continue;
      col[fill[i]++] = (int32_t)j;
    }
  for (int64_t i = 0; i < t; i++) {
    const int64_t from = ptr[i];
    ptr[i] = kept;
    for (int64_t x = from; x < fill[i]; x++) col[kept++] = col[x];
  }
  ptr[t] = kept;
  for (; kept < a->room; kept++) col[kept] = -1;
}

ATTN_PUB_ int64_t attn_sac_room(int64_t nodes, int64_t n, const attn_sac_params *params) {
  if (nodes < 0 || n < 0 || nodes > INT32_MAX || n > INT32_MAX) return -1;
  const int64_t room =
      n * (params && params->symmetric ? 2 : 1) + (params && params->no_add_self ? 0 : nodes);
  return room <= INT32_MAX ? room : -1;
}

ATTN_COLD_ int attn_sac_csr_(attn_stage_ *s, attn_sac_job_ *a, int64_t sets) {
  a->each = attn_piece_(attn_add_(a->room, attn_add_(attn_mul_(a->nodes, 2), 1)), 4);
  return attn_stage_for_(s, sets, attn_sac_csr_item_, a, a->each, &a->memory);
}
ATTN_COLD_ int attn_sac_csr_steps_(attn_stage_ *s, void *job) {
  attn_sac_job_ *a = (attn_sac_job_ *)job;
  return attn_sac_csr_(s, a, a->batch);
}

/* The edges of some sets, as the caller has them. */
ATTN_FUNC_ int attn_sac_given_(attn_error_ *e, attn_sac_job_ *j, attn_sac_more_ *m, int64_t sets,
                               int data) {
  const int32_t *edges = (const int32_t *)j->edges.data, *count = (const int32_t *)j->count.data;
  if (j->n < 0) return attn_reject_(e, ATTN_E_SHAPE, "n must not be negative");
  j->room = attn_sac_room(j->nodes, j->n, &j->p);
  if (j->room < 0)
    return attn_reject_(e, ATTN_E_OVERFLOW, "there must be fewer than 2^31 nodes and edges");
  if (sets > 0 && !count) return attn_reject_(e, ATTN_E_NULL, "count must not be null");
  if (sets > 0 && j->n > 0 && !edges) return attn_reject_(e, ATTN_E_NULL, "edges must not be null");
  if (!attn_sac_array_(e, m, count, sets, 4, "count must be aligned to its elements") ||
      !attn_sac_array_(e, m, edges, attn_mul_(attn_mul_(sets, j->n), 2), 4,
                       "edges must be aligned to its elements"))
    return 0;
  if (data)
    for (int64_t set = 0; set < sets; set++) {
      if (count[set] < 0 || count[set] > j->n)
        return attn_reject_(e, ATTN_E_INDEX, "count must lie in 0..n");
      for (int64_t x = 0; x < 2 * (int64_t)count[set]; x++)
        if (edges[set * j->n * 2 + x] < 0 || edges[set * j->n * 2 + x] >= j->nodes)
          return attn_reject_(e, ATTN_E_INDEX, "edges must lie in 0..nodes-1");
    }
  return 1;
}

ATTN_COLD_ int attn_sac_csr_check_(attn_error_ *e, attn_sac_job_ *j, attn_arguments_ *l,
                                   attn_sac_more_ *m, int data) {
  (void)l;
  if (j->batch < 0 || j->nodes < 0)
    return attn_reject_(e, ATTN_E_SHAPE, "sets and nodes must not be negative");
  if (!attn_sac_given_(e, j, m, j->batch, data)) return 0;
  const int64_t rows = attn_mul_(j->batch, j->nodes + 1), all = attn_mul_(j->batch, j->room);
  attn_span_ out[2];
  if (j->batch > 0 && !j->indptr) return attn_reject_(e, ATTN_E_NULL, "indptr must not be null");
  if (all > 0 && !j->col) return attn_reject_(e, ATTN_E_NULL, "col must not be null");
  if (!attn_check_array_(e, j->indptr, rows, 8, "indptr must be aligned to its elements",
                         &out[0]) ||
      !attn_check_array_(e, j->col, all, 4, "col must be aligned to its elements", &out[1]))
    return 0;
  for (int i = 0; i < 2; i++)
    if (attn_overlap_(out[0], m->span[i]) || attn_overlap_(out[1], m->span[i]) ||
        attn_overlap_(out[0], out[1]))
      return attn_reject_(e, ATTN_E_OVERLAP,
                          "indptr and col are outputs and must not share memory with another "
                          "argument");
  m->span[m->n++] = out[0], m->span[m->n++] = out[1]; /* the workspace is apart from all */
  j->nothing = j->batch == 0;
  return 1;
}

/* ---- attention ------------------------------------------------------------------------------*/

/* Attention over lists that this call has made, one behind the other in rooms of equal size. */
ATTN_COLD_ int attn_stage_edges_(attn_stage_ *s, const attn_sac_job_ *j,
                                 const attn_edges_params *params) {
  attn_softmax_ a;
  int workers;
  memset(&a, 0, sizeof a);
  a.o = j->o, a.q = j->q, a.k = j->k, a.v = j->v;
  s->ctx.workspace = NULL, s->ctx.workspace_size = 0;
  if (s->run) s->ctx.workspace = attn_stage_spare_(s, 0), s->ctx.workspace_size = (size_t)s->spare;
  if (!attn_edges_plan_(s->e, &a, params, &s->ctx, &workers, 0)) return 0;
  if (!s->run) {
    attn_stage_spare_(s, attn_softmax_bytes_(&a, s->workers));
    return 1;
  }
  if (!attn_softmax_run_(s->e, &a, &s->ctx, workers)) return 0;
  s->pairs += s->ctx.report.pairs;
  return 1;
}

ATTN_COLD_ int attn_sac_steps_(attn_stage_ *s, void *job) {
  attn_sac_job_ *a = (attn_sac_job_ *)job;
  const int64_t sets = attn_mul_(a->q.batch, a->heads);
  attn_sac_job_ own = *a;
  attn_edges_params p;
  memset(&p, 0, sizeof p);
  if (!a->edges.data) {
    own.edges.data = attn_stage_take_(s, attn_mul_(sets, a->n), 8);
    own.count.data = attn_stage_take_(s, sets, 4);
    if (!attn_sac_edges_steps_(s, &own)) return 0;
  }
  own.indptr = (int64_t *)attn_stage_take_(s, attn_mul_(sets, a->nodes + 1), 8);
  own.col = (int32_t *)attn_stage_take_(s, attn_mul_(sets, a->room), 4);
  if (!attn_sac_csr_(s, &own, sets)) return 0;
  p.indptr = own.indptr, p.col = own.col, p.edges = a->room;
  p.per_batch = 1, p.per_head = a->heads > 1;
  p.scale = a->p.scale, p.lse = a->p.lse;
  return attn_stage_edges_(s, &own, &p);
}

ATTN_COLD_ int attn_sac_check_(attn_error_ *e, attn_sac_job_ *j, attn_arguments_ *l,
                               attn_sac_more_ *m, int data) {
  const int64_t any = ATTN_ANY_, in = ATTN_DIVIDES_;
  const attn_tensor *q = &j->q;
  if (!attn_check_argument_(e, l, &j->q, ATTN_WORDS_("q"), 0, any, any, any, any, "q")) return 0;
  const int64_t b = l->batch = q->batch, h = l->heads = q->heads;
  if (h < 1) return attn_reject_(e, ATTN_E_SHAPE, "q.heads must be at least 1");
  if (!attn_check_argument_(e, l, &j->k, ATTN_WORDS_("k"), 0, b, in, q->len, q->dim,
                            "k must be [q.batch, a divisor of q.heads, q.len, q.dim]") ||
      !attn_check_argument_(e, l, &j->v, ATTN_WORDS_("v"), 0, b, in, q->len, any,
                            "v must be [q.batch, a divisor of q.heads, q.len, .]") ||
      !attn_check_argument_(e, l, &j->o, ATTN_WORDS_("o"), ATTN_OUT_, b, h, q->len, j->v.dim,
                            "o must be [q.batch, q.heads, q.len, v.dim]") ||
      !attn_check_argument_(e, l, &j->p.lse, ATTN_WORDS_("params.lse"),
                            ATTN_OUT_ | ATTN_OPTIONAL_ | ATTN_IS_F32_, b, h, q->len, 1,
                            "params.lse must be f32 [q.batch, q.heads, q.len, 1]") ||
      !attn_check_scale_(e, j->p.scale))
    return 0;
  j->heads = j->p.heads ? j->p.heads : 1;
  if (j->heads != 1 && j->heads != h)
    return attn_reject_(e, ATTN_E_HEADS, "params.heads must be 1 or q.heads");
  j->batch = b, j->nodes = q->len;
  j->nothing = b == 0 || q->len == 0;
  if (j->nothing) return 1;
  if (j->edges.data) return attn_sac_given_(e, j, m, attn_mul_(b, j->heads), data);
  l->heads = j->heads;
  if (!attn_sac_network_check_(e, j, l, m, data)) return 0;
  if (j->nodes != q->len) return attn_reject_(e, ATTN_E_SHAPE, "e.len must equal q.len");
  j->room = attn_sac_room(j->nodes, j->n, &j->p);
  return j->room >= 0 ||
         attn_reject_(e, ATTN_E_OVERFLOW, "there must be fewer than 2^31 nodes and edges");
}

/* ---- the calls ------------------------------------------------------------------------------*/

ATTN_COLD_ attn_sac_job_ attn_sac_csr_job_(int64_t *indptr, int32_t *col, const int32_t *edges,
                                           const int32_t *count, int64_t sets, int64_t n,
                                           int64_t nodes) {
  attn_sac_job_ j = attn_sac_edges_job_(edges, count, NULL, attn_sac_view_(NULL));
  j.indptr = indptr, j.col = col, j.batch = sets, j.n = n, j.nodes = nodes;
  return j;
}
ATTN_COLD_ attn_status attn_sac_csr_call_(int64_t *indptr, int32_t *col, const int32_t *edges,
                                          const int32_t *count, int64_t sets, int64_t n,
                                          int64_t nodes, const attn_sac_params *params,
                                          attn_ctx *ctx, size_t *bytes) {
  attn_sac_job_ j = attn_sac_csr_job_(indptr, col, edges, count, sets, n, nodes);
  return attn_sac_run_(&j, params, 0, attn_sac_csr_check_, attn_sac_csr_steps_,
                       "edges to lists of keys", ctx, bytes);
}
ATTN_CALL_(attn_sac_csr, (indptr, col, edges, count, sets, n, nodes, params), int64_t *indptr,
           int32_t *col, const int32_t *edges, const int32_t *count, int64_t sets, int64_t n,
           int64_t nodes, const attn_sac_params *params)

ATTN_COLD_ attn_sac_job_ attn_sac_job_of_(attn_tensor o, attn_tensor q, attn_tensor k,
                                          attn_tensor v, const int32_t *edges, const int32_t *count,
                                          int64_t n, attn_tensor e) {
  attn_sac_job_ j = attn_sac_edges_job_(edges, edges ? count : NULL, NULL, e);
  j.o = o, j.q = q, j.k = k, j.v = v, j.n = n;
  return j;
}
ATTN_COLD_ attn_status attn_sac_call_(attn_tensor o, attn_tensor q, attn_tensor k, attn_tensor v,
                                      const int32_t *edges, const int32_t *count, int64_t n,
                                      attn_tensor e, const attn_sac_params *params, attn_ctx *ctx,
                                      size_t *bytes) {
  attn_sac_job_ j = attn_sac_job_of_(o, q, k, v, edges, count, n, e);
  return attn_sac_run_(&j, params, edges == NULL, attn_sac_check_, attn_sac_steps_,
                       "key lists of edges", ctx, bytes);
}
ATTN_CALL_(attn_sac, (o, q, k, v, edges, count, n, e, params), attn_tensor o, attn_tensor q,
           attn_tensor k, attn_tensor v, const int32_t *edges, const int32_t *count, int64_t n,
           attn_tensor e, const attn_sac_params *params)
