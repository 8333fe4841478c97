/* causal_sparse.c owns the causal calls of patterns and keys chosen by content. */

#include "causal.h"
#include "golden_calls.h"

static attn_status longformer_call(play *s, attn_ctx *ctx) {
  return attn_longformer(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int longformer(play *s) {
  static const int32_t window[1] = {20}, dilation[1] = {3}, global[2] = {0, 70};
  if (s->n >= 3) return 0;
  attn_longformer_params *p = play_params(s, sizeof *p);
  (void)play_trio(s, N, 1, ATTN_F32);
  p->window = window, p->causal = 1;
  if (s->n) p->dilation = dilation;
  if (s->n == 2) p->global = global, p->globals = 2;
  s->call = longformer_call;
  return 1;
}

/* d_q of a row, local or of a global token. */
static attn_status longformer_backward_call(play *s, attn_ctx *ctx) {
  attn_longformer_params p = *(attn_longformer_params *)s->p;
  attn_tensor none;
  memset(&none, 0, sizeof none);
  p.lse = s->w[1];
  attn_status status = attn_longformer(s->w[0], s->in[0], s->in[1], s->in[2], &p, ctx);
  if (status != ATTN_OK) return status;
  return attn_longformer_backward(s->out[0], none, none, s->in[3], s->in[0], s->in[1], s->in[2],
                                  s->w[0], s->w[1], s->p, NULL, ctx);
}
static int longformer_backward(play *s) {
  if (!longformer(s)) return 0;
  (void)play_token(s, ATTN_F32, 1, N, E);
  s->outs = 0;
  (void)play_out(s, ATTN_F32, 1, N, D);
  s->w[0] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, N, E);
  s->w[1] = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, N, 1);
  s->call = longformer_backward_call;
  return 1;
}

static attn_status segmented_call(play *s, attn_ctx *ctx) {
  return attn_segmented(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int segmented(play *s) {
  if (s->n >= 3) return 0;
  attn_segmented_params *p = play_params(s, sizeof *p);
  (void)play_trio(s, N, 1, ATTN_F32);
  p->length = 12, p->causal = 1;
  p->integrate = s->n == 1 ? ATTN_INTEGRATE_TOKEN : (attn_integrate)0;
  s->call = segmented_call;
  return 1;
}

/* Three streams of one head, or the main one. */
static attn_status ngram_call(play *s, attn_ctx *ctx) {
  attn_tensor t[5] = {s->in[0], s->in[3], s->in[4], s->in[5], s->out[0]};
  attn_ngram_params *p = s->p;
  for (int i = 0; i < 5; i++)
    t[i].batch = t[i].heads, t[i].stride_batch = t[i].stride_head, t[i].heads = 1;
  p->relative = t[3];
  return attn_ngram(t[4], t[0], s->in[1], s->in[2], s->n == 3 ? absent() : t[1],
                    s->n == 3 ? absent() : t[2], p, ctx);
}
static int ngram(play *s) {
  if (s->n >= 4) return 0;
  const int64_t n = s->n == 3 ? 1 : 3, rows = s->n == 2 ? 7 : N;
  attn_ngram_params *p = play_params(s, sizeof *p);
  (void)play_token(s, ATTN_F32, n, rows, D);
  (void)play_token(s, ATTN_F32, 1, N, D), (void)play_token(s, ATTN_F32, 1, N, E);
  (void)play_token(s, ATTN_F32, n, rows, D), (void)play_token(s, ATTN_F32, n, rows, E);
  (void)play_token(s, ATTN_F32, n, rows, 8), (void)play_out(s, ATTN_F32, n, rows, E);
  p->together = s->n == 1, p->max_distance = 30;
  s->call = ngram_call;
  return 1;
}

/* Nodes are as late as the last of their tokens. */
static attn_status tree_call(play *s, attn_ctx *ctx) {
  return attn_tree(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int tree(play *s) {
  if (s->n >= 4) return 0;
  attn_tree_params *p = play_params(s, sizeof *p);
  const int64_t nodes = attn_tree_nodes(N);
  int32_t *when = test_mem((size_t)nodes * sizeof *when);
  for (int64_t at = 0, level = 0, len = N; at < nodes; at += len, len = (len + 1) / 2, level++)
    for (int64_t m = 0; m < len; m++) {
      const int64_t last = ((m + 1) << level) - 1;
      when[at + m] = (int32_t)(last < N ? last : N - 1);
    }
  for (int i = 0; i < 3; i++) (void)play_token(s, ATTN_F32, 1, nodes, i < 2 ? D : E);
  (void)play_out(s, ATTN_F32, 1, nodes, E);
  p->tokens = N, p->k = 2, p->causal = 1, p->overlap = s->n & 1, p->include_self = s->n >> 1;
  s->when = when, s->call = tree_call;
  return 1;
}

/* Units of nine tokens: what a row reads of higher levels are units that ended before it. */
static attn_status hierarchy_call(play *s, attn_ctx *ctx) {
  return attn_hierarchy(s->out[0], s->in[0], s->p, ctx);
}
static int hierarchy(play *s) {
  if (s->n) return 0;
  attn_hierarchy_params *p = play_params(s, sizeof *p);
  static int32_t offsets[1 + (N + 8) / 9];
  static const int32_t *const all[1] = {offsets};
  static const int64_t units[2] = {N, (N + 8) / 9};
  for (int i = 0; i <= (N + 8) / 9; i++) offsets[i] = 9 * i < N ? 9 * i : N;
  (void)play_token(s, ATTN_F32, 1, N, E), (void)play_out(s, ATTN_F32, 1, N, E);
  p->levels = 2, p->units = units, p->indptr = all, p->causal = 1;
  s->call = hierarchy_call;
  return 1;
}

static attn_status sinkhorn_call(play *s, attn_ctx *ctx) {
  return attn_sinkhorn(s->out[0], s->in[0], s->in[1], s->in[2], absent(), s->p, ctx);
}
static int sinkhorn(play *s) {
  if (s->n >= 8) return 0;
  attn_sinkhorn_params *p = play_params(s, sizeof *p);
  enum { WHOLE = 140 };
  for (int i = 0; i < 3; i++)
    (void)play_token(s, ATTN_F32, 1, WHOLE, i < 2 ? D : E), s->in_first[i] = 0;
  (void)play_out(s, ATTN_F32, 1, WHOLE, E), s->out_first[0] = 0;
  p->block = 10, p->causal = 1, p->diag = s->n & 1, p->hard = s->n >> 1 & 1;
  p->balance = s->n & 4 ? ATTN_BALANCE_CUMULATIVE : ATTN_BALANCE_DEFAULT;
  p->w_1 = play_fixed(s, 1, D, 6), p->w_2 = play_fixed(s, 1, 6, 14);
  s->call = sinkhorn_call;
  return 1;
}

static attn_status sac_call(play *s, attn_ctx *ctx) {
  return attn_sac(s->out[0], s->in[0], s->in[1], s->in[2], NULL, NULL, 0, s->in[3], s->p, ctx);
}
static int sac(play *s) { /* forced: a free choice of sources looks at all nodes */
  if (s->n >= 2) return 0;
  attn_sac_params *p = play_params(s, sizeof *p);
  (void)play_trio(s, N, 1, ATTN_F32), (void)play_token(s, ATTN_F32, 1, N, 6);
  p->lstm.w_ih = play_fixed(s, 1, 20, 6), p->lstm.w_hh = play_fixed(s, 1, 20, 5);
  p->w_p = play_fixed(s, 1, 6, 5), p->heads = 1, p->alpha = 1 + s->n % 2, p->causal = 1,
  p->forced = 1;
  s->call = sac_call;
  return 1;
}

static attn_status lsh_call(play *s, attn_ctx *ctx) {
  return s->n % 2 ? attn_lsh_qk(s->out[0], s->in[0], s->in[1], s->in[2], NULL, NULL, s->p, ctx)
                  : attn_lsh(s->out[0], s->in[0], s->in[1], NULL, s->p, ctx);
}
static int lsh(play *s) { /* whole buckets: chunks of sorted tokens are cut by all of them */
  s->near = 1;
  static const int32_t factors[1] = {4};
  if (s->n >= 4) return 0;
  attn_lsh_params *p = play_params(s, sizeof *p);
  (void)play_token(s, ATTN_F32, 1, N, D);
  if (s->n % 2) (void)play_token(s, ATTN_F32, 1, N, D);
  (void)play_token(s, ATTN_F32, 1, N, E), (void)play_out(s, ATTN_F32, 1, N, E);
  p->rounds = 2, p->factors = factors, p->factor_count = 1, p->seed = 5, p->causal = 1;
  p->chunk = s->n % 2 ? 0 : N, p->has_chunk = 1, p->keep_duplicates = s->n / 2;
  s->call = lsh_call;
  return 1;
}

static attn_status yoso_call(play *s, attn_ctx *ctx) {
  return s->n % 2 ? attn_yoso_sample(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx)
                  : attn_yoso(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int yoso(play *s) {
  if (s->n >= 6) return 0;
  attn_yoso_params *p = play_params(s, sizeof *p);
  (void)play_trio(s, s->n / 2 == 1 ? 9 : N, s->n / 2 == 2 ? 2 : 1,
                  s->n == 4 ? ATTN_BF16 : ATTN_F32);
  p->code_len = 4, p->draws = 3, p->raw = s->n / 2 == 1, p->attention.causal = 1;
  s->call = yoso_call;
  return 1;
}

static attn_status mixture_call(play *s, attn_ctx *ctx) {
  attn_sdpa_params causal;
  attn_expert path[2];
  memset(&causal, 0, sizeof causal), memset(path, 0, sizeof path);
  causal.causal = 1;
  for (int i = 0; i < 2; i++)
    path[i].q = s->in[0], path[i].k = s->in[1], path[i].v = s->in[2 + i], path[i].params = &causal;
  return attn_mixture(s->out[0], path, 2, s->in[4], ctx);
}
static int mixture(play *s) {
  if (s->n) return 0;
  (void)play_trio(s, N, 1, ATTN_F32), (void)play_token(s, ATTN_F32, 1, N, E),
      (void)play_token(s, ATTN_F32, 1, N, 2);
  s->call = mixture_call;
  return 1;
}

static attn_status gated_call(play *s, attn_ctx *ctx) {
  attn_sdpa_params causal;
  attn_mixture_params p;
  attn_expert path[2];
  memset(&causal, 0, sizeof causal), memset(path, 0, sizeof path), memset(&p, 0, sizeof p);
  causal.causal = 1, p.k = s->n;
  for (int i = 0; i < 2; i++)
    path[i].q = s->in[0], path[i].k = s->in[1], path[i].v = s->in[2 + i], path[i].params = &causal;
  return attn_gated(s->out[0], path, 2, s->in[4], s->w[0], &p, ctx);
}
static int gated(play *s) {
  if (s->n >= 2) return 0;
  (void)play_trio(s, N, 1, ATTN_F32), (void)play_token(s, ATTN_F32, 1, N, E),
      (void)play_token(s, ATTN_F32, 1, N, 5);
  s->w[0] = play_fixed(s, 1, 5, 2);
  s->call = gated_call;
  return 1;
}

const causal_entry causal_sparse[] = {
    {"attn_longformer ", longformer, NULL},
    {"attn_longformer_backward ", longformer_backward, NULL},
    {"attn_ngram ", ngram, NULL},
    {"attn_segmented ", segmented, NULL},
    {"attn_tree ", tree, NULL},
    {"attn_hierarchy ", hierarchy, NULL},
    {"attn_sinkhorn attn_sinkhorn_blocks attn_sinkhorn_logits attn_sinkhorn_balance "
     "attn_sinkhorn_choose ",
     sinkhorn, NULL},
    {"attn_sac attn_sac_edges attn_sac_csr attn_pointer_logits attn_choose ", sac, NULL},
    {"attn_lsh attn_lsh_qk ", lsh, NULL},
    {"attn_yoso attn_yoso_sample ", yoso, NULL},
    {"attn_gated ", gated, NULL},
    {"attn_mixture ", mixture, NULL},
    {NULL, NULL, NULL}};
