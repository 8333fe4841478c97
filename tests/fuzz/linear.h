/* linear.h owns the decoding of bytes into calls that take q, k, v and cost less than attention does:
 * over a linear state, through landmarks, over clusters, chosen rows or fewer keys. */

#ifndef FUZZ_LINEAR_H
#define FUZZ_LINEAR_H

#include "gradients.h"
#include "params.h"
#include "views.h"

/* The state is an output, so that it is what it was when a call is made again; so are MLSTM's n and m. Behind the tensors
 * of all calls lie the states that a decaying one begins with. */
enum { L_O, L_STATE, L_N, L_M, L_Q, L_K, L_V, L_W, L_W2, L_TENSORS };
enum { L_STATE0 = L_TENSORS, L_N0, L_M0 };
enum {
  LINEAR,
  CLUSTERED,
  PROBSPARSE,
  NYSTROM,
  CSALR,
  LINFORMER,
  POOLINGFORMER,
  MEMORY,
  RECURRENT,
  LINEAR_KINDS
};

typedef struct linear_args {
  int kind;
  attn_linear_params linear;
  attn_cluster_params cluster;
  attn_probsparse_params probsparse;
  attn_nystrom_params nystrom;
  attn_csalr_params csalr;
  attn_linformer_params linformer;
  attn_poolingformer_params poolingformer;
  attn_memory_compressed_params memory;
  attn_recurrent_params recurrent;
  int in_place; /* a decaying state */
} linear_args;

static void fill_logs(const buffer *b, size_t place, void *user) {
  for (int64_t c = 0; c < b->view.dim; c++)
    set_element(b->view.dtype, b->base + place, c, -fabsf(filler_number((filler *)user)));
}

/* The decay is the first of the weights, what else a rule reads for each token the second. */
static void recurrent_tensors(job *j, attn_recurrent_params *p) {
  const attn_tensor more = j->b[L_W2].view;
  const attn_recurrent_rule rule = p->rule;
  if (rule != ATTN_RECURRENT_DELTA && rule != ATTN_RECURRENT_MAMBA2) p->decay = j->b[L_W].view;
  if (rule == ATTN_RECURRENT_DPLR || rule == ATTN_RECURRENT_RWKV7)
    p->a = p->b = more;
  else if (rule == ATTN_RECURRENT_MLSTM)
    p->gate = more;
  else if (rule == ATTN_RECURRENT_MAMBA2)
    p->dt = more;
  else if (rule == ATTN_RECURRENT_RWKV6)
    p->bonus = more;
  else if (rule == ATTN_RECURRENT_DELTA || rule == ATTN_RECURRENT_GATED_DELTA ||
           rule == ATTN_RECURRENT_KDA)
    p->beta = more;
  const int from = ((linear_args *)j->args)->in_place ? L_STATE : L_STATE0;
  const int step = from == L_STATE ? L_N - L_STATE : L_N0 - L_STATE0;
  p->final_state = j->b[L_STATE].view, p->final_n = j->b[L_N].view, p->final_m = j->b[L_M].view;
  p->initial_state = j->b[from].view, p->initial_n = j->b[from + step].view;
  p->initial_m = j->b[from + 2 * step].view;
}

/* A state, the final or the initial one, with MLSTM's n and m. */
static void make_state(input *in, job *j, int at, int64_t heads, int64_t rows, int64_t cols) {
  const attn_recurrent_params *p = &((linear_args *)j->args)->recurrent;
  const int64_t n = p->cu_seqlens ? p->sequences : j->b[L_Q].view.batch, dk = j->b[L_Q].view.dim;
  filler f = {take(in), chance(in, 6) ? 40 : 0};
  attn_tensor view[3] = {make_view(in, ATTN_F32, n, heads, rows, cols, at == L_STATE),
                         make_view(in, ATTN_F32, n, heads, 1, dk, at == L_STATE),
                         make_view(in, ATTN_F32, n, heads, 1, 1, at == L_STATE)};
  if (chance(in, 24)) flaw_view(in, &view[below(in, 3)]);
  for (int i = 0; i < (p->rule == ATTN_RECURRENT_MLSTM ? 3 : 1); i++) {
    j->runnable &= buffer_make(&j->b[at + i], view[i], 0);
    buffer_fill(&j->b[at + i], &f);
  }
}

/* Ascending from 0 to t, seldom not. */
static int32_t *make_marks(input *in, store *s, int64_t n, int64_t t) {
  int32_t *x = (int32_t *)store_take(s, (size_t)(n + 1) * sizeof *x);
  for (int64_t i = 1; i < n; i++) x[i] = x[i - 1] + (int32_t)(take(in) % (t - x[i - 1] + 1));
  x[n] = (int32_t)t;
  if (chance(in, 24)) x[below(in, (int)n + 1)] = (int32_t)nasty_int(in);
  return x;
}

static void make_recurrent(input *in, job *j, store *s, int64_t batch, int64_t heads, int64_t dk,
                           int64_t dv) {
  linear_args *a = (linear_args *)j->args;
  attn_recurrent_params *p = &a->recurrent;
  const int64_t t = j->b[L_Q].view.len;
  const int mamba = p->rule == ATTN_RECURRENT_MAMBA2 && heads > 0 && heads < 64;
  if (mamba) {
    p->a_log = store_floats(in, s, heads, -2, 1, &j->tame);
    if (chance(in, 2)) p->skip = store_floats(in, s, heads, -2, 1, &j->tame);
  }
  p->form = (attn_recurrent_form)(below(in, 3) ? 0 : below(in, ATTN_RECURRENT_FORMS));
  p->scale = chance(in, 16) ? nasty_float(in) : 0;
  p->l2norm_qk = below(in, 2);
  p->chunk = chance(in, 12) ? nasty_int(in) : below(in, 65);
  p->layers = chance(in, 16) ? nasty_int(in) : 0;
  if (chance(in, 12)) p->rule = (attn_recurrent_rule)(nasty_int(in) & 0xff);
  int64_t levels = 0;
  if (chance(in, 3) && t >= 0 && t < 4096) { /* one row of lambda for all tokens */
    levels = 1 + below(in, 14);
    p->lambda = attn_bhtd(store_floats(in, s, levels, -2, 1, &j->tame), ATTN_F32, 1, 1, t, levels);
    p->lambda.stride_len = 0;
  }
  const int keeps = batch >= 0 && chance(in, 2), sound = t >= 0 && t < 4096;
  if (batch == 1 && sound && chance(in, 3)) {
    p->sequences = 1 + below(in, 5), p->cu_seqlens = make_marks(in, s, p->sequences, t);
    if (chance(in, 24)) p->sequences = below(in, 3) - 1;
  }
  const int64_t n = p->cu_seqlens ? p->sequences : batch;
  const int state = below(in, 4), other = chance(in, 24); /* initial, in place */
  p->state_transposed = below(in, 2);
  const int64_t each = (levels ? levels : 1) * (p->state_transposed ? dv : dk);
  if (keeps || other) make_state(in, j, L_STATE, heads, each, p->state_transposed ? dk : dv);
  if (keeps && state == 1) a->in_place = 1;
  if (state > 1) make_state(in, j, L_STATE0, heads, each, p->state_transposed ? dk : dv);
  if (levels && n >= 0 && n <= 16 && chance(in, 2)) {
    int64_t *position = (int64_t *)store_take(s, (size_t)n * sizeof *position);
    for (int64_t i = 0; i < n; i++) position[i] = chance(in, 24) ? nasty_int(in) : below(in, 200);
    p->position = position;
  }
  if (batch >= 0 && batch <= 16 && sound && chance(in, 3)) {
    uint8_t *reset = (uint8_t *)store_take(s, (size_t)(batch * t));
    filler f = {take(in), 0};
    for (int64_t i = 0; i < batch * t; i++) reset[i] = filler_next(&f) % 16 == 0;
    p->reset = reset;
  }
  if (mamba && below(in, 2)) p->dt_bias = store_floats(in, s, heads, -2, 1, &j->tame);
  if (mamba && below(in, 2)) {
    p->dt_min = chance(in, 16) ? nasty_float(in) : (float)below(in, 9) / 16;
    p->dt_max = chance(in, 16) ? nasty_float(in) : (float)below(in, 17) / 8;
  }
  if (p->rule == ATTN_RECURRENT_MLSTM ? chance(in, 3) : chance(in, 48))
    p->eps = below(in, 2) ? ATTN_ZERO : nasty_float(in);
  if (p->rule == ATTN_RECURRENT_LIGHTNING && !p->layers && below(in, 2))
    p->layers = 1 + below(in, 9), p->layer = below(in, 10);
}

/* Tensors of the parameters lie in buffers of the job. */
static const linear_args *linear_tensors(job *j) {
  linear_args *a = (linear_args *)j->args;
  a->linear.map.w = j->b[L_W].view;
  a->linear.rate = a->nystrom.conv = j->b[L_W2].view;
  a->linear.state = j->b[L_STATE].view.data;
  a->linformer.e = a->linformer.w_k = a->memory.w_k = j->b[L_W].view;
  a->linformer.w_v = a->memory.w_v = j->b[L_W2].view;
  if (a->poolingformer.pool == ATTN_POOL_DYNAMIC)
    a->poolingformer.pool_k = j->b[L_W].view, a->poolingformer.pool_v = j->b[L_W2].view;
  recurrent_tensors(j, &a->recurrent);
  return a;
}

/* HGRN2's key is 1 - w. */
static attn_tensor recurrent_key(job *j) {
  attn_tensor none;
  memset(&none, 0, sizeof none);
  return ((linear_args *)j->args)->recurrent.rule == ATTN_RECURRENT_HGRN2 ? none : j->b[L_K].view;
}

static attn_status call_linear(job *j, attn_ctx *ctx) {
  const linear_args *a = linear_tensors(j);
  const attn_tensor o = j->b[L_O].view, q = j->b[L_Q].view, k = j->b[L_K].view, v = j->b[L_V].view;
  switch (a->kind) {
    case CLUSTERED: return attn_clustered(o, q, k, v, NULL, &a->cluster, ctx);
    case PROBSPARSE: return attn_probsparse(o, q, k, v, NULL, &a->probsparse, ctx);
    case NYSTROM: return attn_nystrom(o, q, k, v, &a->nystrom, ctx);
    case CSALR: return attn_csalr(o, q, k, v, &a->csalr, ctx);
    case LINFORMER: return attn_linformer(o, q, k, v, &a->linformer, ctx);
    case POOLINGFORMER: return attn_poolingformer(o, q, k, v, &a->poolingformer, ctx);
    case MEMORY: return attn_memory_compressed(o, q, k, v, &a->memory, ctx);
    case RECURRENT: return attn_recurrent(o, q, recurrent_key(j), v, &a->recurrent, ctx);
    default: return attn_linear(o, q, k, v, &a->linear, ctx);
  }
}

static size_t workspace_linear(job *j, const attn_ctx *ctx) {
  const linear_args *a = linear_tensors(j);
  const attn_tensor o = j->b[L_O].view, q = j->b[L_Q].view, k = j->b[L_K].view, v = j->b[L_V].view;
  switch (a->kind) {
    case CLUSTERED: return attn_clustered_workspace(o, q, k, v, NULL, &a->cluster, ctx);
    case PROBSPARSE: return attn_probsparse_workspace(o, q, k, v, NULL, &a->probsparse, ctx);
    case NYSTROM: return attn_nystrom_workspace(o, q, k, v, &a->nystrom, ctx);
    case CSALR: return attn_csalr_workspace(o, q, k, v, &a->csalr, ctx);
    case LINFORMER: return attn_linformer_workspace(o, q, k, v, &a->linformer, ctx);
    case POOLINGFORMER: return attn_poolingformer_workspace(o, q, k, v, &a->poolingformer, ctx);
    case MEMORY: return attn_memory_compressed_workspace(o, q, k, v, &a->memory, ctx);
    case RECURRENT: return attn_recurrent_workspace(o, q, recurrent_key(j), v, &a->recurrent, ctx);
    default: return attn_linear_workspace(o, q, k, v, &a->linear, ctx);
  }
}

static void user_features(void *user, float *y, const float *x, int64_t n, int64_t m, int64_t dk,
                          int64_t head, int is_key) {
  (void)user, (void)head;
  for (int64_t i = 0; i < n; i++)
    for (int64_t c = 0; c < m; c++) y[i * m + c] = x[i * dk + c % dk] * 0.5f + (float)is_key;
}

static void user_back(void *user, float *d_x, const float *d_y, const float *y, const float *x,
                      int64_t n, int64_t m, int64_t dk, int64_t head, int is_key) {
  (void)user, (void)y, (void)x, (void)head, (void)is_key;
  memset(d_x, 0, (size_t)(n * dk) * sizeof *d_x);
  for (int64_t i = 0; i < n; i++)
    for (int64_t c = 0; c < m; c++) d_x[i * dk + c % dk] += d_y[i * m + c] * 0.5f;
}

/* The same of attn_recurrent, states included. */
static void judge_recurrent(job *j, const attn_recurrent_params *given) {
  enum { COUNT = 9 };
  attn_recurrent_params p = *given;
  const attn_tensor k = recurrent_key(j);
  const attn_tensor *const x[COUNT] = {&j->b[L_Q].view,  &k,      &j->b[L_V].view, &p.decay,
                                       &p.initial_state, &p.gate, &p.initial_n,    &p.initial_m,
                                       &p.lambda};
  attn_tensor y[2][COUNT];
  memset(y, 0, sizeof y), memset(&p.final_state, 0, sizeof p.final_state);
  memset(&p.final_n, 0, sizeof p.final_n), memset(&p.final_m, 0, sizeof p.final_m);
  for (int n = 0; n < 2; n++) {
    attn_recurrent_gradients g;
    attn_ctx ctx;
    memset(&ctx, 0, sizeof ctx), memset(&g, 0, sizeof g);
    if (n) ctx.workers = 3, ctx.parallel_for = backwards;
    for (int i = 0; i < COUNT; i++)
      if (x[i]->data) y[n][i] = gradient_of(x[i]);
    g.d_decay = y[n][3], g.d_initial_state = y[n][4];
    g.d_gate = y[n][5], g.d_initial_n = y[n][6], g.d_initial_m = y[n][7];
    g.d_lambda = y[n][8];
    const attn_status status = attn_recurrent_backward(y[n][0], y[n][1], y[n][2], j->b[L_O].view,
                                                       *x[0], k, *x[2], &p, &g, &ctx);
    promise(status == ATTN_OK, j, "gradients of a call that ran are refused");
  }
  for (int i = 0; i < COUNT; i++) {
    const size_t n = (size_t)(y[0][i].batch * y[0][i].heads * y[0][i].len * y[0][i].dim);
    if (!y[0][i].data) continue;
    promise(!memcmp(y[0][i].data, y[1][i].data, n * sizeof(float)), j,
            "workers change the bits of gradients");
    free(y[0][i].data), free(y[1][i].data);
  }
}

/* Gradients of a call of attn_linear that has run, without its state: the same bits from last to first as alone. */
static void judge_linear(job *j) {
  const linear_args *a = (const linear_args *)j->args;
  const attn_tensor *const x[3] = {&j->b[L_Q].view, &j->b[L_K].view, &j->b[L_V].view};
  attn_linear_params p = a->linear;
  attn_linear_gradients g;
  attn_tensor y[2][3], rate = j->b[L_Q].view;
  memset(&g, 0, sizeof g);
  if (a->kind == RECURRENT) judge_recurrent(j, &a->recurrent);
  if (a->kind != LINEAR) return;
  p.state = NULL, p.state_bytes = 0;
  rate.batch = rate.heads = rate.len = rate.dim = 1;
  if (p.rule != ATTN_LINEAR_SUM && !p.rate.data && !p.rate_head) g.d_rate = gradient_of(&rate);
  for (int n = 0; n < 2; n++) {
    attn_ctx ctx;
    memset(&ctx, 0, sizeof ctx);
    if (n) ctx.workers = 3, ctx.parallel_for = backwards;
    for (int i = 0; i < 3; i++) y[n][i] = gradient_of(x[i]);
    const attn_status status = attn_linear_backward(y[n][0], y[n][1], y[n][2], j->b[L_O].view,
                                                    *x[0], *x[1], *x[2], &p, &g, &ctx);
    promise(status == ATTN_OK || a->linear.state, j, "gradients of a call that ran are refused");
    for (int i = 0; i < 3 && status; i++)
      memset(y[n][i].data, 0, (size_t)(x[i]->batch * x[i]->heads * x[i]->len * x[i]->dim) * 4);
  }
  for (int i = 0; i < 3; i++) {
    const size_t n = (size_t)(x[i]->batch * x[i]->heads * x[i]->len * x[i]->dim);
    promise(!memcmp(y[0][i].data, y[1][i].data, n * sizeof(float)), j,
            "workers change the bits of gradients");
    free(y[0][i].data), free(y[1][i].data);
  }
  free(g.d_rate.data);
}

static attn_feature_map make_map(input *in, store *s, int64_t dk, int *tame) {
  attn_feature_map m;
  memset(&m, 0, sizeof m);
  m.kind = (attn_feature_kind)below(in, ATTN_FEATURES_COUNT);
  m.norm = (attn_feature_norm)(chance(in, 3) ? below(in, ATTN_FEATURE_NORM_COUNT) : 0);
  m.activation = (attn_activation)below(in, ATTN_ACT_COUNT);
  m.scale = chance(in, 16) ? nasty_float(in) : 0;
  if (chance(in, 8)) m.query_scale = chance(in, 2) ? nasty_float(in) : 0.5f;
  m.order = chance(in, 12) ? nasty_int(in) : below(in, 3);
  m.sigma = chance(in, 16) ? nasty_float(in) : (float)below(in, 3);
  if (chance(in, 4)) m.sigmas = store_floats(in, s, dk, 0.5f, 2.0f, tame);
  m.keep_norm = chance(in, 4);
  m.key_stab = (attn_key_stab)(chance(in, 2) ? below(in, ATTN_STAB_COUNT) : 0);
  m.key_const = (float)below(in, 9);
  m.eps = chance(in, 16) ? nasty_float(in) : 0;
  m.features = chance(in, 12) ? nasty_int(in) : 1 + below(in, 40);
  m.fn = user_features, m.back = user_back;
  if (m.kind == ATTN_FEATURES_USER && m.features > 4096) m.features = 4096;
  if (chance(in, 24)) m.kind = (attn_feature_kind)(nasty_int(in) & 0xff);
  return m;
}

static void make_linear(input *in, job *j, store *s, const attn_tensor *q, const attn_tensor *k,
                        const attn_tensor *v) {
  attn_linear_params *p = &((linear_args *)j->args)->linear;
  p->map = make_map(in, s, q->dim, &j->tame);
  p->rule = (attn_linear_rule)below(in, ATTN_LINEAR_COUNT);
  p->causal = below(in, ATTN_LINEAR_CAUSALS + 1);
  p->has_q_off = chance(in, 4);
  p->q_off = chance(in, 16) ? nasty_int(in) : below(in, 40) - 20;
  p->rate_const = (float)below(in, 5) / 4;
  if (chance(in, 6)) p->rate_head = store_floats(in, s, k->heads, 0, 1, &j->tame);
  p->den = (attn_linear_den)below(in, ATTN_LINEAR_DEN_COUNT);
  p->eps = chance(in, 16) ? nasty_float(in) : 0;
  p->out_scale = chance(in, 16) ? nasty_float(in) : 0;
  p->chunk = chance(in, 12) ? nasty_int(in) : below(in, 65);
  if (chance(in, 12)) p->rule = (attn_linear_rule)(nasty_int(in) & 0xff);
  if (!chance(in, 3) || q->batch < 0) return;
  p->map.w = j->b[L_W].view;
  const size_t bytes = attn_linear_state_bytes(p, q->batch, q->heads, k->heads, q->dim, v->dim);
  if (bytes == 0 || bytes > (size_t)SPAN_MAX) return;
  buffer_make(&j->b[L_STATE],
              attn_bhtd(NULL, ATTN_F32, 1, 1, 1, (int64_t)(bytes + sizeof(float) - 1) / 4), 0);
  p->state_bytes = bytes;
  if (attn_linear_begin(j->b[L_STATE].base, bytes, p, q->batch, q->heads, k->heads, q->dim, v->dim,
                        NULL) == ATTN_OK &&
      chance(in, 8))
    j->b[L_STATE].base[take(in) % bytes] ^= (uint8_t)(1 << below(in, 8));
}

static void fuzz_linear(input *in) {
  linear_args a;
  store s = {NULL, 0};
  memset(&a, 0, sizeof a);
  a.kind = below(in, LINEAR_KINDS);
  job j = {.name = "less than attention",
           .outputs = 4,
           .runnable = 1,
           .args = &a,
           .call = call_linear,
           .workspace = workspace_linear,
           .judge = judge_linear};
  const int64_t batch = below(in, 3), kv = 1 + below(in, 2), heads = kv * (1 + below(in, 2));
  const int64_t tq = below(in, 150);
  const int64_t tk = chance(in, 2) || a.kind == RECURRENT ? tq : below(in, 150);
  const int64_t dk = 1 + below(in, 20), dv = 1 + below(in, 40), m = 1 + below(in, 40);
  attn_tensor view[L_TENSORS];
  memset(view, 0, sizeof view);
  view[L_O] = make_view(in, (attn_dtype)below(in, 3), batch, heads, tq, dv, 1);
  view[L_Q] = make_view(in, (attn_dtype)below(in, 3), batch, heads, tq, dk, 0);
  view[L_K] = make_view(in, (attn_dtype)below(in, 3), batch, kv, tk, dk, 0);
  view[L_V] = make_view(in, (attn_dtype)below(in, 3), batch, kv, tk, dv, 0);
  /* the weights of the kind at hand */
  int64_t len[2] = {m, tk}, dim[2] = {dk, 1};
  const int64_t rate = 1 + below(in, 4);
  a.linformer.kind = (attn_linformer_kind)below(in, ATTN_LINFORMER_COUNT);
  if (a.kind == RECURRENT) {
    a.recurrent.rule = (attn_recurrent_rule)below(in, ATTN_RECURRENT_COUNT);
    const attn_recurrent_rule rule = a.recurrent.rule;
    const int vectors = rule == ATTN_RECURRENT_DPLR || rule == ATTN_RECURRENT_RWKV7;
    len[0] = chance(in, 4) ? 1 : tq, dim[0] = below(in, 2) ? dk : 1;
    len[1] = rule == ATTN_RECURRENT_RWKV6 ? 1 : tq;
    dim[1] = vectors || rule == ATTN_RECURRENT_RWKV6 ? dk : 1;
  }
  if (a.kind == NYSTROM) len[1] = 2 * below(in, 5) + 1;
  if (a.kind == LINFORMER && a.linformer.kind == ATTN_LINFORMER_MATRIX) dim[0] = tk + below(in, 3);
  if (a.kind == MEMORY || (a.kind == LINFORMER && a.linformer.kind == ATTN_LINFORMER_CONV))
    len[0] = rate * dk, dim[0] = dk, len[1] = rate * dv, dim[1] = dv;
  if (a.kind == POOLINGFORMER)
    len[0] = dk, len[1] = dv, dim[0] = dim[1] = a.poolingformer.kernel = rate;
  for (int i = 0; i < 2; i++)
    view[L_W + i] = make_view(in, (attn_dtype)below(in, 3), 1,
                              !below(in, 2)                ? 1
                              : a.kind == LINEAR && i == 0 ? heads
                                                           : kv,
                              len[i], dim[i], 0);
  const int flaws = below(in, 8) - 5,
            with = a.kind == LINFORMER || a.kind == MEMORY || chance(in, 2) ? 3 : below(in, 4);
  for (int i = 0; i < flaws; i++) flaw_view(in, &view[L_Q + below(in, L_TENSORS - L_Q)]);
  filler f = {take(in), chance(in, 6) ? 40 : 0};
  for (int i = 0; i < L_TENSORS; i++) {
    if ((i >= L_STATE && i <= L_M) || (i == L_W && !(with & 1)) || (i == L_W2 && !(with & 2)))
      continue;
    j.runnable &= buffer_make(&j.b[i], view[i], below(in, 4));
    buffer_fill(&j.b[i], &f);
  }
  if (flaws > 0 && chance(in, 6)) j.b[L_Q + below(in, 3)].view.data = NULL;
  const float scale = chance(in, 12) ? nasty_float(in) : 0;
  const int32_t *q_len = chance(in, 3) ? make_lengths(in, &s, view[L_Q].batch, tq) : NULL;
  const int32_t *kv_len = chance(in, 3) ? make_lengths(in, &s, view[L_Q].batch, tk) : NULL;
  const int64_t few = chance(in, 12) ? nasty_int(in) : 1 + below(in, 20);
  switch (a.kind) {
    case CLUSTERED:
      a.cluster.clusters = few, a.cluster.bits = chance(in, 12) ? nasty_int(in) : below(in, 64);
      a.cluster.iterations = below(in, 5),
      a.cluster.k = chance(in, 8) ? nasty_int(in) : below(in, 40);
      a.cluster.no_hash_bias = below(in, 2), a.cluster.seed = take(in), a.cluster.scale = scale;
      a.cluster.causal = a.cluster.seed % 3 == 0;
      a.cluster.q_len = q_len, a.cluster.kv_len = kv_len;
      break;
    case PROBSPARSE:
      a.probsparse.factor = chance(in, 8) ? nasty_int(in) : below(in, 9);
      a.probsparse.has_rows = below(in, 2), a.probsparse.rows = few;
      a.probsparse.causal = below(in, 2), a.probsparse.has_q_off = chance(in, 4);
      a.probsparse.q_off = chance(in, 8) ? nasty_int(in) : below(in, 40) - 20;
      a.probsparse.fill_sum = below(in, 2), a.probsparse.by_samples = below(in, 2);
      a.probsparse.seed = take(in), a.probsparse.scale = scale;
      a.probsparse.q_len = q_len, a.probsparse.kv_len = kv_len;
      if (!kv_len && a.probsparse.seed % 5 == 1) { /* one row of samples for all, and one beyond */
        static int32_t samples[4096];
        for (int i = 0; i < 4096; i++) samples[i] = a.probsparse.seed % 2 ? 0 : INT32_MAX;
        if (a.probsparse.factor < 9 && a.probsparse.factor >= 0) a.probsparse.samples = samples;
      }
      break;
    case NYSTROM:
      a.nystrom.landmarks = few, a.nystrom.iterations = below(in, 9) - chance(in, 12);
      a.nystrom.has_iterations = below(in, 2);
      a.nystrom.always = below(in, 2), a.nystrom.scale = scale;
      a.nystrom.by_batch = a.nystrom.always; /* both are options of what follows */
      a.nystrom.q_len = q_len, a.nystrom.kv_len = kv_len;
      if (chance(in, 3))
        a.nystrom.valid =
            store_valid(in, &s, array_size(j.b[L_Q].view.batch, j.b[L_K].view.len, 1));
      break;
    case CSALR:
      a.csalr.landmarks = few,
      a.csalr.lambda = chance(in, 8) ? nasty_float(in) : (float)below(in, 4);
      a.csalr.renormalize = below(in, 2), a.csalr.scale = scale;
      a.csalr.q_len = q_len, a.csalr.kv_len = kv_len;
      break;
    case LINFORMER:
      a.linformer.rank = few, a.linformer.scale = scale;
      a.linformer.q_len = q_len, a.linformer.kv_len = kv_len;
      break;
    case POOLINGFORMER:
      a.poolingformer.window_1.left = chance(in, 12) ? nasty_int(in) : below(in, 40);
      a.poolingformer.window_2.left = chance(in, 12) ? nasty_int(in) : below(in, 80);
      a.poolingformer.window_1.right = a.poolingformer.window_1.left;
      a.poolingformer.window_2.right = a.poolingformer.window_2.left;
      a.poolingformer.window_1.on = !chance(in, 12), a.poolingformer.window_2.on = !chance(in, 12);
      a.poolingformer.stride = chance(in, 12) ? nasty_int(in) : below(in, (int)rate + 1);
      a.poolingformer.pool = (attn_pool_kind)below(in, 3);
      a.poolingformer.align = (attn_poolingformer_align)below(in, ATTN_POOLINGFORMER_COUNT);
      a.poolingformer.causal = below(in, 2), a.poolingformer.scale = scale;
      a.poolingformer.q_len = q_len, a.poolingformer.kv_len = kv_len;
      break;
    case MEMORY:
      a.memory.kernel = rate, a.memory.pad = (attn_pad)below(in, 5);
      a.memory.slot = (attn_slot)below(in, ATTN_SLOT_COUNT);
      a.memory.causal = below(in, 2), a.memory.strict = below(in, 2), a.memory.scale = scale;
      a.memory.q_len = q_len, a.memory.kv_len = kv_len;
      break;
    case RECURRENT:
      if (j.b[L_W].base && below(in, 8)) each_row(&j.b[L_W], fill_logs, &f);
      if (j.runnable) make_recurrent(in, &j, &s, batch, heads, dk, dv);
      if (!a.recurrent.cu_seqlens || chance(in, 24)) a.recurrent.len = q_len;
      break;
    default:
      if (j.runnable) make_linear(in, &j, &s, &view[L_Q], &view[L_K], &view[L_V]);
      a.linear.q_len = q_len, a.linear.kv_len = kv_len;
  }
  if (!j.b[L_STATE].base) a.linear.state_bytes = 0;
  job_run(&j, in);
  store_free(&s);
}

#endif
