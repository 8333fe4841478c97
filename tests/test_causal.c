/* tests/test_causal.c owns one promise of every causal call: no bit of a row depends on a later token. All
 * that belongs to tokens after t changes, to numbers of any size, NaN and infinity, and the rows up to t
 * must stay as they are. Functions that can be causal stand in the list at the end, or say why not. */

#include <stdio.h>
#include <stdlib.h>

#include "compound.h"
#include "golden_calls.h"

enum { N = 141, D = 12, E = 10, MOST = 8 }; /* tokens, widths of keys and values */

/* A call over tokens: row i of in[x] is of token in_first[x] + i, or when[i]; out likewise. */
typedef struct play {
  attn_tensor in[MOST], out[3];
  int64_t in_first[MOST], out_first[3];
  const int32_t *when;
  int ins, outs, n; /* n: the form of the call, from 0 on */
  int near;         /* rows go together as their keys fall: sums may round otherwise */
  test_rng rng;
  attn_status (*call)(struct play *s, attn_ctx *ctx);
  attn_tensor w[24]; /* what belongs to no token */
  void *p;           /* parameters */
} play;

static attn_tensor token(play *s, attn_dtype type, int64_t heads, int64_t len, int64_t dim) {
  s->in_first[s->ins] = N - len;
  return s->in[s->ins++] = drawn(type, TEST_BHTD, 1, heads, len, dim, 1, &s->rng);
}
static attn_tensor rows_out(play *s, attn_dtype type, int64_t heads, int64_t len, int64_t dim) {
  s->out_first[s->outs] = N - len;
  return s->out[s->outs++] = test_tensor(type, TEST_BHTD, 1, heads, len, dim);
}
static attn_tensor fixed(play *s, int64_t heads, int64_t len, int64_t dim) {
  return drawn(ATTN_F32, TEST_BHTD, 1, heads, len, dim, 0.3, &s->rng);
}
static void *params(play *s, size_t size) {
  s->p = test_mem(size);
  return memset(s->p, 0, size);
}

/* Rows of tokens after t become others. */
static void change(play *s, int64_t t, int how) {
  for (int x = 0; x < s->ins; x++) {
    const attn_tensor *a = &s->in[x];
    for (int64_t i = 0; i < a->len; i++) {
      if ((s->when ? s->when[i] : s->in_first[x] + i) <= t) continue;
      for (int64_t h = 0; h < a->heads; h++)
        for (int64_t c = 0; c < a->dim; c++) {
          const double u = test_normal(&s->rng);
          oracle_set(a, 0, h, i, c,
                     how == 0   ? 9 * u
                     : how == 1 ? (u < 0 ? -1e30 : 1e30)
                     : how == 2 ? (double)NAN
                                : (u < 0 ? -(double)INFINITY : (double)INFINITY));
        }
    }
  }
}

static attn_tensor dense(attn_tensor a) {
  const attn_tensor to = test_tensor(a.dtype, TEST_BHTD, a.batch, a.heads, a.len, a.dim);
  test_copy(to, a);
  return to;
}

static int near_rows(attn_tensor a, attn_tensor b) {
  for (int64_t h = 0; h < a.heads; h++)
    for (int64_t c = 0; c < a.dim; c++) {
      const double x = oracle_get(&a, 0, h, 0, c), y = oracle_get(&b, 0, h, 0, c);
      if (!(fabs(x - y) <= 1e-6 * (1 + fabs(y)))) return 0;
    }
  return 1;
}

/* The leaks of one form of a call. */
static int leaks(play *s, const char *name) {
  static const int64_t marks[] = {0,  1,  2,  7,   15,  16,  31,  62,  63,  64,
                                  65, 95, 96, 126, 127, 128, 129, 137, 138, 139};
  static const char *const hows[] = {"others", "huge", "NaN", "infinite"};
  attn_tensor in[MOST], want[3];
  attn_ctx ctx = test_ctx();
  int found = 0, moved = 0;
  for (int x = 0; x < s->ins; x++) in[x] = dense(s->in[x]);
  if (s->call(s, &ctx) != ATTN_OK) {
    print_error("%s %d: %s\n", name, s->n, ctx.reason);
    return 1;
  }
  assert_int_equal(ctx.report.isa, test_isa);
  for (int x = 0; x < s->outs; x++) want[x] = dense(s->out[x]);
  for (int m = 0; m < (int)(sizeof marks / sizeof *marks); m++) {
    const int how = (m + s->n) % 4;
    change(s, marks[m], how);
    if (s->call(s, &ctx) != ATTN_OK) {
      print_error("%s %d, changed: %s\n", name, s->n, ctx.reason);
      return 1;
    }
    for (int x = 0; x < s->outs; x++)
      for (int64_t i = 0; i < s->out[x].len; i++) {
        const attn_tensor is = test_rows(s->out[x], i, 1), was = test_rows(want[x], i, 1);
        if ((s->when ? s->when[i] : s->out_first[x] + i) > marks[m]) {
          moved |= !test_same(is, was);
          continue;
        }
        if (s->near ? near_rows(is, was) : test_same(is, was)) continue;
        if (found++ < 2)
          print_error("%s %d: tokens after %d, %s, change row %d of output %d\n", name, s->n,
                      (int)marks[m], hows[how], (int)i, x);
      }
    for (int x = 0; x < s->ins; x++) test_copy(s->in[x], in[x]);
  }
  if (!moved) print_error("%s %d: no token changes anything\n", name, s->n);
  return found + !moved;
}

/* ---- exact softmax ------------------------------------------------------------------------------*/

typedef struct trio_of_tokens {
  attn_tensor o, q, k, v;
} trio_of_tokens;

static trio_of_tokens trio(play *s, int64_t rows, int64_t group, attn_dtype type) {
  trio_of_tokens x;
  x.q = token(s, ATTN_F32, group, rows, D), x.k = token(s, type, 1, N, D);
  x.v = token(s, type, 1, N, E), x.o = rows_out(s, ATTN_F32, group, rows, E);
  return x;
}

/* Options of scores that many calls take. */
static void scores(play *s, attn_sdpa_params *p, int n, int64_t heads) {
  p->causal = 1;
  if (n == 1) test_left(p, 20), p->softcap = 5;
  if (n == 2) p->alibi = test_floats(heads, 0.1, &s->rng), p->softmax_one = 1;
  if (n == 3) p->sinks = test_floats(heads, 1, &s->rng), p->one_order = 1;
}

static attn_status sdpa_call(play *s, attn_ctx *ctx) {
  return attn_sdpa(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int sdpa(play *s) {
  static const int64_t rows[] = {N, 3, 12, 40};
  static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
  if (s->n >= 23) return 0;
  const int64_t r = rows[s->n % 4], group = 1 + s->n / 4 % 2;
  trio_of_tokens x = trio(s, r, group, types[s->n % 3]);
  attn_sdpa_params *p = params(s, sizeof *p);
  scores(s, p, s->n / 4 % 4, group);
  p->lse = rows_out(s, ATTN_F32, group, r, 1);
  if (s->n % 3 == 2) p->map = rows_out(s, ATTN_F32, group, r, N);
  if (s->n >= 20) p->mask = test_mask(ATTN_MASK_BOOL, ATTN_F32, 1, 1, r, N, &s->rng);
  (void)x;
  s->call = sdpa_call;
  return 1;
}

static attn_status scheduled_call(play *s, attn_ctx *ctx) {
  attn_sdpa_params p;
  memset(&p, 0, sizeof p);
  p.schedule = s->p, p.causal = s->n & 1;
  return attn_sdpa(s->out[0], s->in[0], s->in[1], s->in[2], &p, ctx);
}
static int scheduled(play *s) {
  attn_pattern p;
  static attn_schedule made;
  if (s->n > 0) attn_schedule_free(&made);
  if (s->n >= 8) return 0;
  memset(&p, 0, sizeof p);
  (void)trio(s, N, 1, ATTN_F32);
  p.kind = s->n < 4 ? ATTN_PATTERN_BAND : ATTN_PATTERN_DILATED;
  p.left = 20, p.right = 20, p.step = 3, p.causal = !(s->n & 1);
  if (s->n / 2 == 1) p.kind = ATTN_PATTERN_RANDOM, p.count = 9;
  if (s->n / 2 == 3) p.kind = ATTN_PATTERN_BLOCKS, p.block = 24, p.before = 1;
  attn_ctx ctx = test_ctx();
  if (attn_schedule_build(&made, &p, 1, N, N, NULL, &ctx) != ATTN_OK)
    fail_msg("schedule %d: %s", s->n, ctx.reason);
  s->p = &made, s->call = scheduled_call;
  return 1;
}

static attn_status relu_call(play *s, attn_ctx *ctx) {
  return attn_relu(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int relu(play *s) {
  if (s->n >= 6) return 0;
  attn_relu_params *p = params(s, sizeof *p);
  (void)trio(s, s->n % 2 ? 5 : N, 1, ATTN_F32);
  p->kind = (attn_relu_kind)(s->n / 2 % 3);
  p->attention.causal = 1;
  s->call = relu_call;
  return 1;
}

static attn_status topk_call(play *s, attn_ctx *ctx) {
  return attn_topk_sdpa(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int topk(play *s) {
  if (s->n >= 4) return 0;
  attn_topk_params *p = params(s, sizeof *p);
  (void)trio(s, s->n % 2 ? 9 : N, 1, ATTN_F32);
  p->k = 5, p->attention.causal = 1;
  if (s->n > 1) p->mode = ATTN_TOPK_REL, p->bound = 1;
  s->call = topk_call;
  return 1;
}

static attn_status edges_call(play *s, attn_ctx *ctx) {
  return attn_edges(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int edges(play *s) {
  if (s->n) return 0;
  attn_edges_params *p = params(s, sizeof *p);
  int64_t *row = test_mem((N + 1) * sizeof *row);
  int32_t *col = test_mem(N * 8 * sizeof *col);
  for (int i = 0; i <= N; i++) row[i] = 8 * i;
  for (int i = 0; i < N * 8; i++) col[i] = i % 8 * 17 + i / 8 % 17; /* many of them later ones */
  (void)trio(s, N, 1, ATTN_F32);
  p->indptr = row, p->col = col, p->edges = N * 8, p->causal = 1;
  s->call = edges_call;
  return 1;
}

static attn_status talking_call(play *s, attn_ctx *ctx) {
  return attn_talking(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int talking(play *s) {
  if (s->n >= 2) return 0;
  attn_talking_params *p = params(s, sizeof *p);
  s->in[0] = token(s, ATTN_F32, 2, N, D), (void)token(s, ATTN_F32, 2, N, D);
  (void)token(s, ATTN_F32, 2, N, E), (void)rows_out(s, ATTN_F32, 2, N, E);
  p->attention.causal = 1;
  p->w_l = fixed(s, 1, 2, 2), p->w_w = fixed(s, 1, 2, 2);
  if (s->n) p->attention.alibi = test_floats(2, 0.1, &s->rng);
  s->call = talking_call;
  return 1;
}

static attn_status score_mix_call(play *s, attn_ctx *ctx) {
  return s->n ? attn_realformer(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx)
              : attn_score_mix(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int score_mix(play *s) { /* previous: rows of tokens; what stands behind them is forbidden */
  if (s->n >= 2) return 0;
  (void)trio(s, N, 1, ATTN_F32);
  const attn_tensor before = token(s, ATTN_F32, 1, N, N);
  if (s->n) {
    attn_realformer_params *p = params(s, sizeof *p);
    p->previous = before, p->attention.causal = 1;
  } else {
    attn_score_mix_params *p = params(s, sizeof *p);
    p->previous = before, p->fresh_weight = p->previous_weight = 0.5f, p->attention.causal = 1;
  }
  s->call = score_mix_call;
  return 1;
}

static attn_status predictive_call(play *s, attn_ctx *ctx) {
  return attn_predictive(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int predictive(play *s) {
  if (s->n >= 2) return 0;
  attn_predictive_params *p = params(s, sizeof *p);
  (void)trio(s, N, 1, ATTN_F32);
  p->previous = token(s, ATTN_F32, 1, N, N);
  p->kernel = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 3, 3);
  test_fill(p->kernel, &s->rng, test_normal);
  p->alpha = 0.75f, p->rule = ATTN_PREDICTIVE_CAUSAL, p->attention.causal = 1;
  p->evolving = s->n;
  s->call = predictive_call;
  return 1;
}

static attn_status map_apply_call(play *s, attn_ctx *ctx) {
  return attn_map_apply(s->out[0], s->in[0], s->in[1], s->p, ctx);
}
static int map_apply(play *s) {
  if (s->n) return 0;
  attn_map_apply_params *p = params(s, sizeof *p);
  (void)token(s, ATTN_F32, 1, N, N), (void)token(s, ATTN_F32, 1, N, E);
  (void)rows_out(s, ATTN_F32, 1, N, E);
  p->causal = 1;
  s->call = map_apply_call;
  return 1;
}

static attn_status lazyformer_call(play *s, attn_ctx *ctx) {
  return attn_lazyformer(s->out, s->in, s->in + 1, s->in + 2, 1, s->p, ctx);
}
static int lazyformer(play *s) {
  if (s->n) return 0;
  attn_lazyformer_params *p = params(s, sizeof *p);
  (void)trio(s, N, 1, ATTN_F32);
  p->attention.causal = 1;
  s->call = lazyformer_call;
  return 1;
}

static attn_status synthesizer_call(play *s, attn_ctx *ctx) {
  return attn_synthesizer(s->out[0], s->in[0], s->p, ctx);
}
static int synthesizer(play *s) {
  if (s->n >= 3) return 0;
  attn_synthesizer_params *p = params(s, sizeof *p);
  attn_synthesizer_source *of = test_mem(sizeof *of);
  memset(of, 0, sizeof *of);
  (void)token(s, ATTN_F32, 1, N, E), (void)rows_out(s, ATTN_F32, 1, N, E);
  of->kind = s->n == 0   ? ATTN_SYNTHESIZER_DENSE
             : s->n == 1 ? ATTN_SYNTHESIZER_DOT
                         : ATTN_SYNTHESIZER_RANDOM;
  if (s->n == 0) of->x = token(s, ATTN_F32, 1, N, 9);
  of->net.w_1 = fixed(s, 1, 9, 5), of->net.w_2 = fixed(s, 1, 5, N);
  if (s->n == 1) of->q = token(s, ATTN_F32, 1, N, D), of->k = token(s, ATTN_F32, 1, N, D);
  if (s->n == 2) of->r = fixed(s, 1, N, N);
  p->sources = of, p->count = 1, p->causal = 1;
  s->call = synthesizer_call;
  return 1;
}

static attn_status hard_gaussian_call(play *s, attn_ctx *ctx) {
  return attn_hard_gaussian(s->out[0], s->in[0], s->p, ctx);
}
static int hard_gaussian(play *s) {
  if (s->n >= 2) return 0;
  attn_hard_gaussian_params *p = params(s, sizeof *p);
  static const float sigma[1] = {30}, offset[1] = {-1};
  (void)token(s, ATTN_F32, 1, N, E), (void)rows_out(s, ATTN_F32, 1, N, E);
  p->causal = 1, p->sigma = sigma, p->offset = offset, p->renormalize = s->n;
  s->call = hard_gaussian_call;
  return 1;
}

static attn_status camtl_call(play *s, attn_ctx *ctx) {
  return attn_camtl(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int camtl(play *s) {
  if (s->n) return 0;
  attn_camtl_params *p = params(s, sizeof *p);
  (void)trio(s, N, 1, ATTN_F32);
  p->blocks = test_tensor(ATTN_F32, TEST_BHTD, 1, 3, 47, 47); /* three blocks of the diagonal */
  test_fill(p->blocks, &s->rng, test_normal);
  p->attention.causal = 1;
  s->call = camtl_call;
  return 1;
}

/* ---- sparse -------------------------------------------------------------------------------------*/

static attn_status longformer_call(play *s, attn_ctx *ctx) {
  return attn_longformer(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int longformer(play *s) {
  static const int32_t window[1] = {20}, dilation[1] = {3}, global[2] = {0, 70};
  if (s->n >= 3) return 0;
  attn_longformer_params *p = params(s, sizeof *p);
  (void)trio(s, N, 1, ATTN_F32);
  p->window = window, p->causal = 1;
  if (s->n) p->dilation = dilation;
  if (s->n == 2) p->global = global, p->globals = 2;
  s->call = longformer_call;
  return 1;
}

static attn_status segmented_call(play *s, attn_ctx *ctx) {
  return attn_segmented(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int segmented(play *s) {
  if (s->n >= 3) return 0;
  attn_segmented_params *p = params(s, sizeof *p);
  (void)trio(s, N, 1, ATTN_F32);
  p->length = 12, p->causal = 1;
  p->integrate = s->n == 1 ? ATTN_INTEGRATE_TOKEN : (attn_integrate)0;
  s->call = segmented_call;
  return 1;
}

/* Nodes are as late as the last of their tokens. */
static attn_status tree_call(play *s, attn_ctx *ctx) {
  return attn_tree(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int tree(play *s) {
  if (s->n >= 4) return 0;
  attn_tree_params *p = params(s, sizeof *p);
  const int64_t nodes = attn_tree_nodes(N);
  int32_t *when = test_mem((size_t)nodes * sizeof *when);
  for (int64_t at = 0, level = 0, len = N; at < nodes; at += len, len = (len + 1) / 2, level++)
    for (int64_t m = 0; m < len; m++) {
      const int64_t last = ((m + 1) << level) - 1;
      when[at + m] = (int32_t)(last < N ? last : N - 1);
    }
  for (int i = 0; i < 3; i++) (void)token(s, ATTN_F32, 1, nodes, i < 2 ? D : E);
  (void)rows_out(s, ATTN_F32, 1, nodes, E);
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
  attn_hierarchy_params *p = params(s, sizeof *p);
  static int32_t offsets[1 + (N + 8) / 9];
  static const int32_t *const all[1] = {offsets};
  static const int64_t units[2] = {N, (N + 8) / 9};
  for (int i = 0; i <= (N + 8) / 9; i++) offsets[i] = 9 * i < N ? 9 * i : N;
  (void)token(s, ATTN_F32, 1, N, E), (void)rows_out(s, ATTN_F32, 1, N, E);
  p->levels = 2, p->units = units, p->indptr = all, p->causal = 1;
  s->call = hierarchy_call;
  return 1;
}

static attn_status sinkhorn_call(play *s, attn_ctx *ctx) {
  return attn_sinkhorn(s->out[0], s->in[0], s->in[1], s->in[2], absent(), s->p, ctx);
}
static int sinkhorn(play *s) {
  if (s->n >= 8) return 0;
  attn_sinkhorn_params *p = params(s, sizeof *p);
  enum { WHOLE = 140 };
  for (int i = 0; i < 3; i++) (void)token(s, ATTN_F32, 1, WHOLE, i < 2 ? D : E), s->in_first[i] = 0;
  (void)rows_out(s, ATTN_F32, 1, WHOLE, E), s->out_first[0] = 0;
  p->block = 10, p->causal = 1, p->diag = s->n & 1, p->hard = s->n >> 1 & 1;
  p->balance = s->n & 4 ? ATTN_BALANCE_CUMULATIVE : ATTN_BALANCE_DEFAULT;
  p->w_1 = fixed(s, 1, D, 6), p->w_2 = fixed(s, 1, 6, 14);
  s->call = sinkhorn_call;
  return 1;
}

static attn_status sac_call(play *s, attn_ctx *ctx) {
  return attn_sac(s->out[0], s->in[0], s->in[1], s->in[2], NULL, NULL, 0, s->in[3], s->p, ctx);
}
static int sac(play *s) { /* forced: a free choice of sources looks at all nodes */
  if (s->n >= 2) return 0;
  attn_sac_params *p = params(s, sizeof *p);
  (void)trio(s, N, 1, ATTN_F32), (void)token(s, ATTN_F32, 1, N, 6);
  p->lstm.w_ih = fixed(s, 1, 20, 6), p->lstm.w_hh = fixed(s, 1, 20, 5);
  p->w_p = fixed(s, 1, 6, 5), p->heads = 1, p->alpha = 1 + s->n % 2, p->causal = 1, p->forced = 1;
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
  attn_lsh_params *p = params(s, sizeof *p);
  (void)token(s, ATTN_F32, 1, N, D);
  if (s->n % 2) (void)token(s, ATTN_F32, 1, N, D);
  (void)token(s, ATTN_F32, 1, N, E), (void)rows_out(s, ATTN_F32, 1, N, E);
  p->rounds = 2, p->factors = factors, p->factor_count = 1, p->seed = 5, p->causal = 1;
  p->chunk = s->n % 2 ? 0 : N, p->has_chunk = 1, p->keep_duplicates = s->n / 2;
  s->call = lsh_call;
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
  (void)trio(s, N, 1, ATTN_F32), (void)token(s, ATTN_F32, 1, N, E),
      (void)token(s, ATTN_F32, 1, N, 2);
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
  (void)trio(s, N, 1, ATTN_F32), (void)token(s, ATTN_F32, 1, N, E),
      (void)token(s, ATTN_F32, 1, N, 5);
  s->w[0] = fixed(s, 1, 5, 2);
  s->call = gated_call;
  return 1;
}

/* ---- fewer keys ---------------------------------------------------------------------------------*/

static attn_status memory_compressed_call(play *s, attn_ctx *ctx) {
  return attn_memory_compressed(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int memory_compressed(play *s) {
  if (s->n >= 4) return 0;
  attn_memory_compressed_params *p = params(s, sizeof *p);
  (void)trio(s, N, 1, ATTN_F32);
  p->kernel = 3, p->causal = 1, p->strict = s->n & 1;
  p->w_k = fixed(s, 1, 3 * D, D), p->w_v = fixed(s, 1, 3 * E, E);
  if (s->n & 2) p->has_q_off = 1;
  s->call = memory_compressed_call;
  return 1;
}

static attn_status local_call(play *s, attn_ctx *ctx) {
  return attn_local(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int local(play *s) {
  if (s->n) return 0;
  attn_local_params *p = params(s, sizeof *p);
  (void)trio(s, N, 1, ATTN_F32);
  p->block = 33, p->causal = 1;
  s->call = local_call;
  return 1;
}

static attn_status poolingformer_call(play *s, attn_ctx *ctx) {
  return attn_poolingformer(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int poolingformer(play *s) {
  if (s->n >= 4) return 0;
  attn_poolingformer_params *p = params(s, sizeof *p);
  s->in[0] = token(s, ATTN_F32, 1, N, E), (void)token(s, ATTN_F32, 1, N, E);
  (void)token(s, ATTN_F32, 1, N, E), (void)rows_out(s, ATTN_F32, 1, N, E);
  p->window_1 = attn_window_of(9, 9), p->window_2 = attn_window_of(40, 40), p->kernel = 5,
  p->stride = 4, p->causal = 1;
  p->pool = s->n & 1 ? ATTN_POOL_MAX : ATTN_POOL_MEAN;
  p->align = (attn_poolingformer_align)(s->n >> 1);
  s->call = poolingformer_call;
  return 1;
}

static attn_status low_rank_band_call(play *s, attn_ctx *ctx) {
  return attn_low_rank_band(s->out[0], s->in[0], s->in[1], s->in[2], s->in[3], s->in[4], s->p, ctx);
}
static int low_rank_band(play *s) {
  if (s->n >= 2) return 0;
  attn_low_rank_band_params *p = params(s, sizeof *p);
  for (int i = 0; i < 4; i++) (void)token(s, ATTN_F32, 1, N, D);
  (void)token(s, ATTN_F32, 1, N, E), (void)rows_out(s, ATTN_F32, 1, N, (s->n ? 2 : 1) * E);
  p->half_width = 11, p->causal = 1, p->concat = s->n;
  s->call = low_rank_band_call;
  return 1;
}

static attn_status luna_call(play *s, attn_ctx *ctx) {
  return attn_luna_causal(s->out[0], s->in[0], s->in[1], s->in[2], s->w[0], s->p, ctx);
}
static int luna(play *s) {
  if (s->n >= 2) return 0;
  attn_luna_causal_params *p = params(s, sizeof *p);
  (void)trio(s, N, 1, ATTN_F32);
  s->w[0] = fixed(s, 1, 7, D), p->omega = (attn_luna_omega)s->n;
  s->call = luna_call;
  return 1;
}

/* ---- the linear state ---------------------------------------------------------------------------*/

static attn_status linear_call(play *s, attn_ctx *ctx) {
  return attn_linear(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int linear(play *s) {
  static const int64_t chunks[] = {0, 1, 13, 64}, lens[] = {N, 100, 6, 4};
  enum { FORMS = 5 * 5 * 4 };
  if (s->n >= FORMS) return 0;
  attn_linear_params *p = params(s, sizeof *p);
  attn_feature_map *f = &p->map;
  const int kind = s->n / 4 % 5, rule = s->n / 20;
  (void)trio(s, lens[s->n % 4], 1 + s->n % 2, s->n % 3 ? ATTN_F32 : ATTN_F16);
  if (s->n % 4 == 3) { /* key by key */
    for (int i = 1; i < 3; i++) s->in[i] = test_rows(s->in[i], N - 4, 4), s->in_first[i] = N - 4;
  }
  static const attn_feature_kind kinds[] = {ATTN_FEATURES_ELU1, ATTN_FEATURES_SOFTMAX,
                                            ATTN_FEATURES_HYPERBOLIC, ATTN_FEATURES_RFA,
                                            ATTN_FEATURES_ACT};
  f->kind = kinds[kind];
  if (kind) f->w = fixed(s, 1, 9, D);
  p->causal = 1, p->rule = (attn_linear_rule)rule, p->chunk = chunks[(s->n + s->n / 4) % 4];
  const int delta = rule >= ATTN_LINEAR_DELTA;
  f->keep_norm = kind == 3 && !delta && s->n % 3 != 1;
  if (kind == 1 || kind == 2) {
    p->eps = s->n % 3 ? 1e-3f : 0;
    if (s->n % 5 == 2) f->key_stab = ATTN_STAB_CONST, f->eps = 1e-3f, f->key_const = 2;
    if (s->n % 5 == 3) f->norm = ATTN_FEATURE_NORM_SUM;
  }
  if (rule) p->rate_const = 0.9f;
  s->call = linear_call;
  return 1;
}

/* ---- layers -------------------------------------------------------------------------------------*/

static attn_multihead_params heads_of(play *s) {
  attn_multihead_params p;
  memset(&p, 0, sizeof p);
  p.heads = 2, p.kv_heads = 1;
  p.w_q = fixed(s, 1, E, 2 * D), p.w_k = fixed(s, 1, E, D), p.w_v = fixed(s, 1, E, E);
  p.w_o = fixed(s, 1, 2 * E, E);
  return p;
}
static attn_block_params block_of(play *s, attn_sublayer sublayer) {
  attn_block_params p;
  memset(&p, 0, sizeof p);
  p.sublayer = sublayer, p.chunks = 3, p.self = heads_of(s), p.self.attention.causal = 1;
  p.ff.w_1 = fixed(s, 1, E, 17), p.ff.w_2 = fixed(s, 1, 17, E), p.ff.activation = ATTN_ACT_GELU;
  return p;
}

/* One tensor of rows in, one out. */
static void rows_to_rows(play *s) {
  (void)token(s, ATTN_F32, 1, N, E), (void)rows_out(s, ATTN_F32, 1, N, E);
}

static attn_status multihead_call(play *s, attn_ctx *ctx) {
  return attn_multihead(s->out[0], s->in[0], absent(), absent(), s->p, ctx);
}
static int multihead(play *s) {
  if (s->n >= 4) return 0;
  attn_multihead_params *p = params(s, sizeof *p);
  rows_to_rows(s);
  *p = heads_of(s);
  scores(s, &p->attention, s->n, 2);
  s->call = multihead_call;
  return 1;
}

static attn_status collaborative_call(play *s, attn_ctx *ctx) {
  return attn_collaborative(s->out[0], s->in[0], absent(), s->p, ctx);
}
static int collaborative(play *s) {
  if (s->n) return 0;
  attn_collaborative_params *p = params(s, sizeof *p);
  rows_to_rows(s);
  p->heads = 2, p->attention.causal = 1;
  p->w_q = fixed(s, 1, E, 9), p->w_k = fixed(s, 1, E, 9), p->mix = fixed(s, 1, 2, 9);
  p->w_v = fixed(s, 1, E, 2 * E), p->w_o = fixed(s, 1, 2 * E, E);
  s->call = collaborative_call;
  return 1;
}

static attn_status block_call(play *s, attn_ctx *ctx) {
  return s->n < 2 ? attn_encoder(s->out[0], s->in[0], s->p, ctx)
                  : attn_decoder(s->out[0], s->in[0], absent(), s->p, ctx);
}
static int block(play *s) {
  if (s->n >= 4) return 0;
  attn_block_params *p = params(s, sizeof *p);
  rows_to_rows(s);
  *p = block_of(s, s->n % 2 ? ATTN_SUBLAYER_PRE : ATTN_SUBLAYER_POST);
  s->call = block_call;
  return 1;
}

static attn_status universal_call(play *s, attn_ctx *ctx) {
  return attn_universal(s->out[0], s->in[0], s->p, ctx);
}
static int universal(play *s) {
  if (s->n >= 4) return 0;
  attn_universal_params *p = params(s, sizeof *p);
  rows_to_rows(s);
  p->block = block_of(s, ATTN_SUBLAYER_POST), p->steps = 4, p->eps = 0.125f;
  p->w_p = fixed(s, 1, 1, E), p->b_p = -0.5f;
  p->output = s->n % 2 ? ATTN_UNIVERSAL_ACCUM : (attn_universal_output)0;
  p->block.self.attention.one_order = s->n / 2; /* few rows may still run */
  s->call = universal_call;
  return 1;
}

static attn_status gmlp_call(play *s, attn_ctx *ctx) {
  return attn_gmlp(s->out[0], s->in[0], s->p, ctx);
}
static int gmlp(play *s) {
  if (s->n >= 2) return 0;
  attn_gmlp_params *p = params(s, sizeof *p);
  rows_to_rows(s);
  p->w_1 = fixed(s, 1, E, 24), p->w_2 = fixed(s, 1, 12, E), p->w_s = fixed(s, 1, N, N);
  p->b_s = fixed(s, 1, 1, N), p->causal = 1;
  if (s->n) p->w_qkv = fixed(s, 1, E, 15), p->w_o = fixed(s, 1, 5, 12);
  s->call = gmlp_call;
  return 1;
}

static attn_status average_call(play *s, attn_ctx *ctx) {
  return attn_average(s->out[0], s->in[0], s->p, ctx);
}
static int average(play *s) {
  if (s->n >= 2) return 0;
  attn_average_params *p = params(s, sizeof *p);
  rows_to_rows(s);
  if (s->n) p->w_g = fixed(s, 1, 2 * E, 2 * E);
  s->call = average_call;
  return 1;
}

static void segment_params(play *s, attn_segment_layer_params *p) {
  p->heads = 2, p->memory.rows = fixed(s, 1, 20, E), p->memory.len = 20;
  p->w_q = fixed(s, 1, E, E), p->w_k = fixed(s, 1, E, E), p->w_v = fixed(s, 1, E, E);
  p->w_o = fixed(s, 1, E, E);
}
static attn_status segment_call(play *s, attn_ctx *ctx) {
  return s->n ? attn_gtrxl(s->out[0], s->in[0], s->p, ctx)
              : attn_segment_layer(s->out[0], s->in[0], s->p, ctx);
}
static int segment(play *s) {
  if (s->n >= 2) return 0;
  attn_gtrxl_params *p = params(s, sizeof *p); /* begins with those of the layer */
  rows_to_rows(s);
  segment_params(s, &p->attention);
  p->gate_1.kind = p->gate_2.kind = ATTN_GTRXL_HIGHWAY;
  attn_gtrxl_gate_params *g[2] = {&p->gate_1, &p->gate_2};
  for (int i = 0; i < 2; i++) {
    attn_tensor *w[6] = {&g[i]->w_r, &g[i]->u_r, &g[i]->w_z, &g[i]->u_z, &g[i]->w_g, &g[i]->u_g};
    for (int x = 0; x < 6; x++) *w[x] = fixed(s, 1, E, E);
  }
  p->ff.w_1 = fixed(s, 1, E, 17), p->ff.w_2 = fixed(s, 1, 17, E);
  s->call = segment_call;
  return 1;
}

static attn_status recursive_call(play *s, attn_ctx *ctx) {
  return attn_recursive(s->out[0], s->w[1], s->in[0], s->w[0], s->p, ctx);
}
static int recursive(play *s) {
  if (s->n) return 0;
  attn_recursive_params *p = params(s, sizeof *p);
  rows_to_rows(s);
  s->w[0] = fixed(s, 1, 20, E), s->w[1] = fixed(s, 1, 20, E);
  p->heads = 2, p->kv_heads = 1, p->alpha = 0.3f;
  p->w_q = fixed(s, 1, E, 2 * D), p->w_k = fixed(s, 1, E, D), p->w_v = fixed(s, 1, E, E);
  p->w_o = fixed(s, 1, 2 * E, E);
  s->call = recursive_call;
  return 1;
}

static attn_status convolve_call(play *s, attn_ctx *ctx) {
  return s->n % 2 ? attn_convolve_depthwise(s->out[0], s->in[0], s->w[0], s->p, ctx)
                  : attn_convolve(s->out[0], s->in[0], s->w[0], s->p, ctx);
}
static int convolve(play *s) {
  if (s->n >= 4) return 0;
  attn_convolve_params *p = params(s, sizeof *p);
  rows_to_rows(s);
  s->w[0] = s->n % 2 ? fixed(s, 1, 4, E) : fixed(s, 1, 4 * E, E);
  p->pad = ATTN_PAD_LEFT, p->stride = 1, p->dilation = s->n / 2 ? 3 : 0;
  s->call = convolve_call;
  return 1;
}

/* ---- all of them --------------------------------------------------------------------------------*/

typedef struct entry {
  const char *names; /* of functions, each with a blank behind */
  int (*build)(play *s);
  const char *why; /* no rows of tokens that could be compared */
} entry;

static const entry entries[] = {
    {"attn_sdpa ", sdpa, NULL},
    {"attn_schedule_build attn_sdpa ", scheduled, NULL},
    {"attn_relu ", relu, NULL},
    {"attn_topk_sdpa ", topk, NULL},
    {"attn_edges ", edges, NULL},
    {"attn_talking ", talking, NULL},
    {"attn_score_mix attn_realformer ", score_mix, NULL},
    {"attn_predictive ", predictive, NULL},
    {"attn_map_apply ", map_apply, NULL},
    {"attn_lazyformer ", lazyformer, NULL},
    {"attn_synthesizer ", synthesizer, NULL},
    {"attn_hard_gaussian ", hard_gaussian, NULL},
    {"attn_camtl ", camtl, NULL},
    {"attn_longformer ", longformer, NULL},
    {"attn_segmented ", segmented, NULL},
    {"attn_tree ", tree, NULL},
    {"attn_hierarchy ", hierarchy, NULL},
    {"attn_sinkhorn attn_sinkhorn_blocks attn_sinkhorn_logits attn_sinkhorn_balance "
     "attn_sinkhorn_choose ",
     sinkhorn, NULL},
    {"attn_sac attn_sac_edges attn_sac_csr attn_pointer_logits attn_choose ", sac, NULL},
    {"attn_lsh attn_lsh_qk ", lsh, NULL},
    {"attn_gated ", gated, NULL},
    {"attn_mixture ", mixture, NULL},
    {"attn_memory_compressed ", memory_compressed, NULL},
    {"attn_local ", local, NULL},
    {"attn_poolingformer ", poolingformer, NULL},
    {"attn_low_rank_band ", low_rank_band, NULL},
    {"attn_luna_causal ", luna, NULL},
    {"attn_linear ", linear, NULL},
    {"attn_multihead ", multihead, NULL},
    {"attn_collaborative ", collaborative, NULL},
    {"attn_encoder attn_decoder ", block, NULL},
    {"attn_universal ", universal, NULL},
    {"attn_gmlp ", gmlp, NULL},
    {"attn_average ", average, NULL},
    {"attn_segment_layer attn_gtrxl ", segment, NULL},
    {"attn_recursive ", recursive, NULL},
    {"attn_convolve attn_convolve_depthwise ", convolve, NULL},
    {"attn_topk_select attn_longformer_schedule attn_lsh_hash attn_linear_begin ", NULL,
     "makes what a call above reads"},
    {"attn_usage attn_disagreement attn_guided_loss ", NULL, "a number of all rows"},
    {"attn_decoder_start attn_decoder_step attn_exit_decoder attn_cache_sdpa ", NULL,
     "tokens come in calls: later ones are not there"},
    {"attn_dispatch ", NULL, "the paths are given; attn_gated chooses them"},
    {"attn_sortcut ", NULL, "not causal, whatever the field says"},
    {"attn_routing attn_routing_select attn_routing_attend attn_routing_update ", NULL,
     "a cluster takes the nearest of all tokens: Routing Transformer looks ahead by its "
     "definition"},
    {"attn_clustered attn_cluster_queries ", NULL,
     "clusters and their best keys are those of all tokens: clustered attention looks ahead by its "
     "definition"},
    {"attn_probsparse attn_probsparse_measure attn_probsparse_select ", NULL,
     "rows are chosen among all by a measure over all keys: ProbSparse looks ahead by its "
     "definition"},
};

/* Every form of every call. */
void causal_no_later_token(void **state) {
  (void)state;
  int found = 0, forms = 0;
  for (int e = 0; e < (int)(sizeof entries / sizeof *entries); e++)
    for (int n = 0;; n++, test_mem_release()) {
      play s;
      memset(&s, 0, sizeof s);
      s.n = n, s.rng = test_seed(9000 + (uint64_t)(100 * e + n));
      if (!entries[e].build || !entries[e].build(&s)) break;
      found += leaks(&s, entries[e].names), forms++;
    }
  print_message("           %d forms of causal calls\n", forms);
  assert_int_equal(found, 0);
}

/* ---- the list is complete -----------------------------------------------------------------------*/

/* attn.h without its comments, up to the implementation. */
static char *declarations(void) {
  FILE *f = fopen("attn.h", "rb");
  if (!f) fail_msg("%s", "attn.h is not here: run from the root of the project");
  char *text = test_mem((size_t)1 << 23);
  size_t n = 0;
  for (int c, last = 0, inside = 0; (c = fgetc(f)) != EOF && n < ((size_t)1 << 23) - 1; last = c) {
    if (inside && last == '*' && c == '/') {
      inside = 0;
    } else if (!inside && last == '/' && c == '*') {
      inside = 1, text[n - 1] = ' ', c = 0;
    } else if (!inside) {
      text[n++] = (char)c;
    }
  }
  fclose(f);
  text[n] = 0;
  return text;
}

/* Whether a word stands between from and to. */
static int has_word(const char *from, const char *to, const char *word) {
  const size_t n = strlen(word);
  for (const char *at = from; (at = strstr(at, word)) != NULL && at < to; at++) {
    const char before = at[-1], after = at[n];
    if ((before == ' ' || before == '(' || before == '*') && strchr(" ;,)*", after)) return 1;
  }
  return 0;
}

/* Types that have a field `causal`, or one that has. */
static int causal_types(const char *text, char names[][64], int most) {
  int count = 0, before = -1;
  snprintf(names[count++], 64, "causal");
  while (before != count) {
    before = count;
    for (const char *at = text; (at = strstr(at, "typedef struct attn_")) != NULL; at++) {
      const char *open = strchr(at, '{'), *end = open ? strstr(open, "\n} attn_") : NULL;
      char name[64];
      int known = 0;
      if (!end || sscanf(end, "\n} %63[a-z0-9_]", name) != 1) continue;
      for (int n = 0; n < count; n++) known |= strcmp(names[n], name) == 0;
      for (int n = 0; n < before && !known && count < most; n++)
        if (has_word(open, end, names[n])) {
          snprintf(names[count++], 64, "%s", name);
          known = 1;
        }
    }
  }
  return count;
}

/* A public function that can be causal stands in the list. */
void causal_list_is_complete(void **state) {
  (void)state;
  static char names[96][64];
  const char *text = declarations();
  const int types = causal_types(text, names, 96);
  int functions = 0, wrong = 0;
  for (const char *at = text; (at = strstr(at, "ATTN_DEF attn_status attn_")) != NULL; at++) {
    char name[64], quoted[68];
    const char *end = strstr(at, ");");
    int causal = 0, listed = 0;
    if (!end || sscanf(at, "ATTN_DEF attn_status %63[a-z0-9_]", name) != 1) continue;
    for (int n = 1; n < types; n++) causal |= has_word(at, end, names[n]);
    if (!causal) continue;
    functions++;
    snprintf(quoted, sizeof quoted, "%s ", name);
    for (int e = 0; e < (int)(sizeof entries / sizeof *entries); e++) {
      const char *found = strstr(entries[e].names, quoted);
      listed |= found && (found == entries[e].names || found[-1] == ' ');
    }
    if (!listed) print_error("%s can be causal and is not in the list\n", name), wrong++;
  }
  print_message("           %d functions\n", functions);
  assert_true(functions > 50);
  assert_int_equal(wrong, 0);
}
