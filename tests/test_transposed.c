/* tests/test_transposed.c owns the promise of every w_transposed: weights as checkpoints have them give the bits of the
 * same weights [in, out], a wrong shape is named, and a stride that nothing reads may hold anything. */

#include "layers.h"

enum { MOST = 24, B = 2, DM = 12, H = 2, E = 10, TK = 9 };

/* A call, its matrices and its flags. */
typedef struct subject {
  attn_status (*call)(int64_t rows, attn_ctx *ctx);
  int64_t rows;
  attn_tensor *w[MOST];
  int *flag[4];
  int weights, flags;
  attn_tensor o, more; /* more: another output, or absent */
  promise does;
} subject;

static subject s;
static test_rng rng;
static attn_dtype type;

static attn_status run(void *at, attn_ctx *ctx) {
  (void)at;
  return s.call(s.rows, ctx);
}

static attn_tensor rows(int64_t len, int64_t dim) {
  return drawn(ATTN_F32, TEST_BHTD, B, 1, len, dim, 1, &rng);
}
static attn_tensor room(int64_t len, int64_t dim) {
  return output(ATTN_F32, TEST_BHTD, B, 1, len, dim, &s.does.block[0]);
}
static attn_tensor also(int64_t len, int64_t dim) {
  return s.more = output(ATTN_F32, TEST_BHTD, B, 1, len, dim, &s.does.block[1]);
}
static void weights(attn_tensor *w, int64_t heads, int64_t in, int64_t out) {
  *w = drawn(type, s.weights % 2 ? TEST_PADDED : TEST_BHTD, 1, heads, in, out, 1 / sqrt((double)in),
             &rng);
  s.w[s.weights++] = w;
}
static void weight(attn_tensor *w, int64_t in, int64_t out) { weights(w, 1, in, out); }
static attn_tensor bias(int64_t out) { return drawn(type, TEST_BHTD, 1, 1, 1, out, 1, &rng); }
static void flag(int *at) { s.flag[s.flags++] = at; }

/* w [in, out] -> [out, in] */
static attn_tensor turned(attn_tensor w) {
  attn_tensor t = test_tensor(w.dtype, TEST_PADDED, 1, w.heads, w.dim, w.len);
  for (int64_t h = 0; h < w.heads; h++)
    for (int64_t i = 0; i < w.len; i++)
      for (int64_t c = 0; c < w.dim; c++) oracle_set(&t, 0, h, c, i, oracle_get(&w, 0, h, i, c));
  return t;
}

/* ---- the calls ------------------------------------------------------------------------------*/

static void plain_feed(attn_feed_forward *ff, int64_t din, int64_t dff, int64_t dout) {
  weight(&ff->w_1, din, dff), ff->b_1 = bias(dff);
  if (dff != dout) weight(&ff->w_2, dff, dout), ff->b_2 = bias(dout);
  flag(&ff->w_transposed);
}
static void feed(attn_feed_forward *ff, int64_t din, int64_t dff, int64_t dout) {
  plain_feed(ff, din, dff, dout);
  weight(&ff->w_3, din, dff), ff->b_3 = bias(dff);
}
static void heads_of(attn_multihead_params *p, int64_t dm, int64_t dk) {
  p->heads = H, p->kv_heads = 1;
  weight(&p->w_q, DM, H * 8), weight(&p->w_k, dk, 8), weight(&p->w_v, dk, 6);
  weight(&p->w_o, H * 6, dm), p->b_q = bias(H * 8), p->b_v = bias(6), p->b_o = bias(dm);
  flag(&p->w_transposed);
}

static attn_tensor x, x2, e;

static attn_multihead_params multihead_p;
static attn_status multihead(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_multihead(s.o, x, e, absent(), &multihead_p, ctx);
}
static void of_multihead(int64_t n) {
  memset(&multihead_p, 0, sizeof multihead_p);
  heads_of(&multihead_p, E, E), x = rows(n, DM), e = rows(TK, E);
  s.o = room(n, E);
}

static attn_feed_forward feed_p;
static attn_status feed_forward(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_feed_forward_rows(s.o, x, &feed_p, 0, ctx);
}
static void of_feed_forward(int64_t n) {
  memset(&feed_p, 0, sizeof feed_p);
  feed(&feed_p, DM, 70, E), x = rows(n, DM), s.o = room(n, E);
}

static attn_expert_rows_params experts_p;
static attn_status experts(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_expert_rows(s.o, x, &experts_p, ctx);
}
static void of_experts(int64_t n) {
  attn_feed_forward *ff = &experts_p.experts;
  memset(&experts_p, 0, sizeof experts_p);
  weight(&experts_p.w_gate, DM, 4), weight(&experts_p.w_shared, DM, 1);
  flag(&experts_p.w_transposed), experts_p.k = 2;
  weights(&ff->w_1, 4, DM, 70), weights(&ff->w_2, 4, 70, E), weights(&ff->w_3, 4, DM, 70);
  flag(&ff->w_transposed), feed(&experts_p.shared, DM, 20, E);
  x = rows(n, DM), s.o = room(n, E);
}

static attn_block_params block_p;
static void block(int cross) {
  memset(&block_p, 0, sizeof block_p);
  heads_of(&block_p.self, DM, DM), feed(&block_p.ff, DM, 20, DM);
  if (cross) heads_of(&block_p.cross, DM, E);
}
static attn_status decoder(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_decoder(s.o, x, e, &block_p, ctx);
}
static void of_decoder(int64_t n) { block(1), x = rows(n, DM), e = rows(TK, E), s.o = room(n, DM); }

static attn_decoder_cache cache;
static int apart; /* heads of the cache */
static attn_status decoder_step(int64_t n, attn_ctx *ctx) {
  (void)n;
  attn_status status = attn_decoder_start(&cache, e, &block_p, ctx);
  return status ? status : attn_decoder_step(s.o, x, &cache, &block_p, ctx);
}
static void of_decoder_step(int64_t n) {
  of_decoder(n);
  block_p.self.kv_heads = block_p.cross.kv_heads = apart ? H : 1;
  if (apart) { /* w_k and w_v of two heads */
    attn_multihead_params *const p[] = {&block_p.self, &block_p.cross};
    s.weights = 0;
    for (int i = 0; i < 2; i++) {
      weight(&p[i]->w_k, i ? E : DM, H * 8), weight(&p[i]->w_v, i ? E : DM, H * 6);
      weight(&p[i]->w_q, DM, H * 8), weight(&p[i]->w_o, H * 6, DM), p[i]->b_v = bias(H * 6);
    }
    weight(&block_p.ff.w_1, DM, 20), weight(&block_p.ff.w_2, 20, DM);
    weight(&block_p.ff.w_3, DM, 20);
  }
  const int64_t kv = apart ? H : 1;
  cache.k = drawn(ATTN_F32, TEST_BHTD, B, kv, n, 8, 0, &rng);
  cache.v = drawn(ATTN_F32, TEST_BHTD, B, kv, n, 6, 0, &rng);
  cache.e_k = drawn(ATTN_F32, TEST_BHTD, B, kv, TK, 8, 0, &rng);
  cache.e_v = drawn(ATTN_F32, TEST_BHTD, B, kv, TK, 6, 0, &rng);
}

static attn_universal_params universal_p;
static attn_status universal(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_universal(s.o, x, &universal_p, ctx);
}
static void of_universal(int64_t n) {
  block(0), x = rows(n, DM), s.o = room(n, DM);
  memset(&universal_p, 0, sizeof universal_p);
  universal_p.block = block_p, universal_p.steps = 3, universal_p.w_p = bias(DM);
  for (int i = 0; i < s.weights; i++)
    s.w[i] =
        (attn_tensor *)(void *)((char *)s.w[i] - (char *)&block_p + (char *)&universal_p.block);
  s.flag[0] = &universal_p.block.self.w_transposed, s.flag[1] = &universal_p.block.ff.w_transposed;
}

static void mab(attn_mab_params *p, int64_t dx, int64_t dy, int64_t dm) {
  p->heads = H, p->form = dx == dm ? ATTN_SET_PAPER : ATTN_SET_REFERENCE;
  weight(&p->w_q, dx, dm), weight(&p->w_k, dy, dm), weight(&p->w_v, dy, dm), p->b_k = bias(dm);
  if (dx == dm) weight(&p->w_o, dm, dm);
  flag(&p->w_transposed);
  feed(&p->ff, dm, dx == dm ? 20 : dm, dm);
}
static attn_pma_params pma_p;
static attn_status pma(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_pma(s.o, e, x, &pma_p, ctx);
}
static void of_pma(int64_t n) {
  memset(&pma_p, 0, sizeof pma_p);
  mab(&pma_p.block, DM, 14, DM), feed(&pma_p.before, E, 20, 14);
  x = rows(n, DM), e = rows(TK, E), s.o = room(n, DM);
}
static attn_isab_params isab_p;
static attn_status isab(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_isab(s.o, x, e, &isab_p, ctx);
}
static void of_isab(int64_t n) {
  memset(&isab_p, 0, sizeof isab_p);
  mab(&isab_p.induce, DM, E, DM), mab(&isab_p.restore, E, DM, DM);
  x = rows(n, E), e = rows(TK, DM), s.o = room(n, DM);
}

static attn_luna_layer_params luna_p;
static attn_status luna(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_luna_layer(s.o, s.more, x, x2, e, &luna_p, ctx);
}
static void of_luna(int64_t n) {
  attn_luna_params *p = &luna_p.attention;
  memset(&luna_p, 0, sizeof luna_p);
  p->heads = H;
  weight(&p->w_pq, DM, DM), weight(&p->w_pk, E, DM), weight(&p->w_pv, E, DM);
  weight(&p->w_q, DM, DM), weight(&p->w_k, DM, DM), weight(&p->w_v, DM, DM);
  weight(&p->w_o, DM, DM), flag(&p->w_transposed), feed(&luna_p.ff, DM, 20, DM);
  x = rows(n, DM), x2 = rows(5, DM), e = rows(TK, E), s.o = room(n, DM), also(5, DM);
}

static attn_collaborative_params collaborative_p;
static attn_status collaborative(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_collaborative(s.o, x, e, &collaborative_p, ctx);
}
static void of_collaborative(int64_t n) {
  attn_collaborative_params *p = &collaborative_p;
  memset(p, 0, sizeof *p);
  p->heads = H;
  weight(&p->w_q, DM, 14), weight(&p->w_k, E, 14), weight(&p->w_v, E, H * 6);
  weight(&p->w_o, H * 6, E), weight(&p->w_c, E, H), flag(&p->w_transposed);
  p->mix = drawn(type, TEST_BHTD, 1, 1, H, 14, 1, &rng), p->b_v = bias(H * 6);
  x = rows(n, DM), e = rows(TK, E), s.o = room(n, E);
}

static float *content, *distance;
static attn_segment_layer_params segment_p;
static void segment(attn_segment_layer_params *p, int64_t dm_o) {
  memset(p, 0, sizeof *p);
  p->heads = H, p->kv_heads = 1, p->sublayer = ATTN_SUBLAYER_PLAIN;
  weight(&p->w_q, DM, H * 8), weight(&p->w_k, DM, 8), weight(&p->w_v, DM, 6);
  weight(&p->w_o, H * 6, dm_o), weight(&p->w_r, DM, H * 8), flag(&p->w_transposed);
  content = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, H * 8, 1, &rng).data;
  distance = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, H * 8, 1, &rng).data;
  p->attention.u = content, p->attention.v = distance;
}
static attn_status segment_layer(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_segment_layer(s.o, x, &segment_p, ctx);
}
static void of_segment_layer(int64_t n) {
  segment(&segment_p, E), x = rows(n, DM), s.o = room(n, E);
}

static attn_gtrxl_params gtrxl_p;
static attn_status gtrxl(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_gtrxl(s.o, x, &gtrxl_p, ctx);
}
static void of_gtrxl(int64_t n) {
  memset(&gtrxl_p, 0, sizeof gtrxl_p);
  segment(&gtrxl_p.attention, DM);
  attn_gtrxl_gate_params *const g[] = {&gtrxl_p.gate_1, &gtrxl_p.gate_2};
  for (int i = 0; i < 2; i++) {
    attn_tensor *const w[] = {&g[i]->w_g, &g[i]->u_g, &g[i]->w_r,
                              &g[i]->u_r, &g[i]->w_z, &g[i]->u_z};
    g[i]->kind = i ? ATTN_GTRXL_SIGTANH : ATTN_GTRXL_GRU;
    for (int k = 0; k < (i ? 2 : 6); k++) weight(w[k], DM, DM);
    flag(&g[i]->w_transposed);
  }
  feed(&gtrxl_p.ff, DM, 20, DM), x = rows(n, DM), s.o = room(n, DM);
}

static attn_attention_loss_params loss_p;
static attn_status attention_loss(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_attention_loss(s.o.data, NULL, x, e, x2, &loss_p, ctx);
}
static void of_attention_loss(int64_t n) {
  memset(&loss_p, 0, sizeof loss_p);
  loss_p.heads = H, loss_p.kv_heads = 1;
  weight(&loss_p.w_q, DM, H * 8), weight(&loss_p.w_k, DM, 8), weight(&loss_p.w_v, DM, 6);
  flag(&loss_p.w_transposed), x = rows(n, DM), e = rows(TK, DM), x2 = rows(4, DM);
  s.o = room(1, 1); /* a number an entry */
}

static attn_recursive_params recursive_p;
static attn_status recursive(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_recursive(s.o, s.more, x, x2, &recursive_p, ctx);
}
static void of_recursive(int64_t n) {
  attn_recursive_params *p = &recursive_p;
  memset(p, 0, sizeof *p);
  p->heads = H, p->kv_heads = 1, p->rule = ATTN_RECURSIVE_ATTEND;
  weight(&p->w_q, DM, H * 8), weight(&p->w_k, DM, 8), weight(&p->w_v, DM, 6);
  weight(&p->w_o, H * 6, DM), flag(&p->w_transposed);
  x = rows(n, DM), x2 = rows(4, DM), s.o = room(n, DM), also(4, DM);
}

static attn_gmlp_params gmlp_p;
static attn_status gmlp(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_gmlp(s.o, x, &gmlp_p, ctx);
}
static void of_gmlp(int64_t n) {
  attn_gmlp_params *p = &gmlp_p;
  memset(p, 0, sizeof *p);
  weight(&p->w_1, DM, 2 * 14), weight(&p->w_2, 14, DM), weight(&p->w_qkv, DM, 3 * 5);
  weight(&p->w_o, 5, 14), flag(&p->w_transposed);
  p->w_s = drawn(type, TEST_BHTD, 1, 2, n + 1, n + 1, 0.3, &rng), p->b_o = bias(14);
  x = rows(n, DM), s.o = room(n, DM);
}

static attn_mixer_params mixer_p;
static attn_status mixer(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_mixer(s.o, x, &mixer_p, ctx);
}
static void of_mixer(int64_t n) {
  memset(&mixer_p, 0, sizeof mixer_p);
  plain_feed(&mixer_p.token, n, n + 9, n), plain_feed(&mixer_p.channel, DM, 20, DM);
  x = rows(n, DM), s.o = room(n, DM);
}

static attn_trajectory_params trajectory_p;
static int32_t *times;
static attn_tensor returns;
static attn_status trajectory(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_trajectory_tokens(s.o, returns, x, e, &trajectory_p, ctx);
}
static void of_trajectory(int64_t n) {
  attn_trajectory_params *p = &trajectory_p;
  memset(p, 0, sizeof *p);
  weight(&p->w_return, 1, DM), weight(&p->w_state, 5, DM), weight(&p->w_action, 70, DM);
  flag(&p->w_transposed), p->b_state = bias(DM);
  p->times = drawn(type, TEST_BHTD, 1, 1, 4, DM, 1, &rng);
  times = test_mem((size_t)(B * n) * sizeof *times);
  for (int64_t i = 0; i < B * n; i++) times[i] = (int32_t)(i % 4);
  p->timesteps = times;
  returns = rows(n, 1), x = rows(n, 5), e = rows(n, 70), s.o = room(3 * n, DM);
}

static attn_trajectory_predict_params predict_p;
static attn_status predict(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_trajectory_predict(s.o, x, &predict_p, ctx);
}
static void of_predict(int64_t n) {
  memset(&predict_p, 0, sizeof predict_p);
  weight(&predict_p.w, DM, 5), flag(&predict_p.w_transposed), predict_p.bias = bias(5);
  x = rows(3 * n, DM), s.o = room(n, 5);
}

static attn_exits_params exits_p;
static attn_status exits(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_exits(NULL, s.o, x, &exits_p, ctx);
}
static void of_exits(int64_t n) {
  memset(&exits_p, 0, sizeof exits_p);
  exits_p.kind = ATTN_EXIT_MULTINOMIAL, exits_p.layers = 7;
  weight(&exits_p.w, DM, 7), flag(&exits_p.w_transposed), x = rows(n, DM), s.o = room(n, 7);
}

static attn_average_params average_p;
static attn_status average(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_average(s.o, x, &average_p, ctx);
}
static void of_average(int64_t n) {
  attn_average_params *p = &average_p;
  memset(p, 0, sizeof *p);
  weight(&p->w_g, 2 * DM, 2 * DM), weight(&p->w_1, DM, 20), weight(&p->w_2, 20, DM);
  flag(&p->w_transposed), x = rows(n, DM), s.o = room(n, DM);
}

static attn_film_params film_p;
static attn_status film(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_film_blocks(s.o, x, &film_p, ctx);
}
static void of_film(int64_t n) {
  memset(&film_p, 0, sizeof film_p);
  weight(&film_p.w_f, 5, 2 * n), flag(&film_p.w_transposed), film_p.b_f = bias(2 * n);
  film_p.z = rows(1, 5), x = drawn(type, TEST_BHTD, 1, 1, n, n, 1, &rng), s.o = room(n, n);
}

static attn_poolingformer_params pooling_p;
static attn_status pooling(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_poolingformer(s.o, x, x, x, &pooling_p, ctx);
}
static void of_pooling(int64_t n) {
  attn_poolingformer_params *p = &pooling_p;
  memset(p, 0, sizeof *p);
  weight(&p->w_q, H * 6, H * 8), weight(&p->w_k, H * 6, 8), weight(&p->w_v, H * 6, H * 6);
  flag(&p->w_transposed), p->b_q = bias(H * 8);
  x = drawn(ATTN_F32, TEST_BHTD, B, H, n, 6, 1, &rng);
  s.o = output(ATTN_F32, TEST_BHTD, B, H, n, 6, &s.does.block[0]);
}

static attn_segmented_params segmented_p;
static float *query;
static attn_status segmented(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_segmented(s.o, x, x, x, &segmented_p, ctx);
}
static void of_segmented(int64_t n) {
  attn_segmented_params *p = &segmented_p;
  memset(p, 0, sizeof *p);
  p->length = 2, p->integrate = ATTN_INTEGRATE_TOKEN, p->concat = 1;
  p->aggregate.kind = ATTN_AGGREGATE_ATTENTION;
  weights(&p->w_q, H, 6, 8), weight(&p->w_k, 6, 8), weights(&p->w_v, H, 6, 5);
  weights(&p->aggregate.w, H, 6, 7), flag(&p->w_transposed), flag(&p->aggregate.w_transposed);
  query = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, 7, 1, &rng).data, p->aggregate.u = query;
  x = drawn(ATTN_F32, TEST_BHTD, B, H, n, 6, 1, &rng);
  s.o = output(ATTN_F32, TEST_BHTD, B, H, n, 6 + 5, &s.does.block[0]);
}

static attn_hierarchy_params hierarchy_p;
static attn_tensor levels[3][1];
static attn_status hierarchy(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_hierarchy(s.o, x, &hierarchy_p, ctx);
}
static void of_hierarchy(int64_t n) {
  attn_hierarchy_params *p = &hierarchy_p;
  memset(p, 0, sizeof *p);
  weights(&levels[0][0], H, 6, 8), weights(&levels[1][0], 1, 6, 8), weights(&levels[2][0], H, 6, 5);
  p->w_q = levels[0], p->w_k = levels[1], p->w_v = levels[2], flag(&p->w_transposed);
  x = drawn(ATTN_F32, TEST_BHTD, B, H, n, 6, 1, &rng);
  s.o = output(ATTN_F32, TEST_BHTD, B, H, n, 5, &s.does.block[0]);
}

static attn_sinkhorn_params sinkhorn_p;
static attn_status sinkhorn(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_sinkhorn_logits(s.o, x, &sinkhorn_p, ctx);
}
static void of_sinkhorn(int64_t n) {
  attn_sinkhorn_params *p = &sinkhorn_p;
  memset(p, 0, sizeof *p);
  p->block = 2;
  weights(&p->w_1, H, 6, 8), weights(&p->w_2, H, 8, n), flag(&p->w_transposed);
  x = drawn(ATTN_F32, TEST_BHTD, B, H, n, 6, 1, &rng);
  s.o = output(ATTN_F32, TEST_BHTD, B, H, n, n, &s.does.block[0]);
}

static attn_mixture_params gate_p;
static attn_tensor gate_w;
static attn_status gate(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_gate(s.o, x, gate_w, &gate_p, ctx);
}
static void of_gate(int64_t n) {
  memset(&gate_p, 0, sizeof gate_p);
  weights(&gate_w, H, 6, 5), flag(&gate_p.w_transposed);
  x = drawn(ATTN_F32, TEST_BHTD, B, H, n, 6, 1, &rng);
  s.o = output(ATTN_F32, TEST_BHTD, B, H, n, 5, &s.does.block[0]);
}

static attn_talking_params talking_p;
static attn_status talking(int64_t n, attn_ctx *ctx) {
  (void)n;
  return attn_talking(s.o, x, e, e, &talking_p, ctx);
}
static void of_talking(int64_t n) {
  memset(&talking_p, 0, sizeof talking_p);
  weight(&talking_p.w_l, H, 3), weight(&talking_p.w_w, 3, 4), flag(&talking_p.w_transposed);
  x = drawn(ATTN_F32, TEST_BHTD, B, H, n, 6, 1, &rng);
  e = drawn(ATTN_F32, TEST_BHTD, B, H, TK, 6, 1, &rng);
  s.o = output(ATTN_F32, TEST_BHTD, B, 4, n, 6, &s.does.block[0]);
}

/* ---- the promise ----------------------------------------------------------------------------*/

static const struct {
  const char *name;
  void (*make)(int64_t n);
  attn_status (*call)(int64_t n, attn_ctx *ctx);
} subjects[] = {{"multihead", of_multihead, multihead},
                {"feed_forward", of_feed_forward, feed_forward},
                {"decoder", of_decoder, decoder},
                {"decoder_step", of_decoder_step, decoder_step},
                {"universal", of_universal, universal},
                {"pma", of_pma, pma},
                {"isab", of_isab, isab},
                {"luna", of_luna, luna},
                {"collaborative", of_collaborative, collaborative},
                {"segment_layer", of_segment_layer, segment_layer},
                {"gtrxl", of_gtrxl, gtrxl},
                {"attention_loss", of_attention_loss, attention_loss},
                {"recursive", of_recursive, recursive},
                {"gmlp", of_gmlp, gmlp},
                {"mixer", of_mixer, mixer},
                {"trajectory", of_trajectory, trajectory},
                {"predict", of_predict, predict},
                {"exits", of_exits, exits},
                {"average", of_average, average},
                {"film", of_film, film},
                {"pooling", of_pooling, pooling},
                {"segmented", of_segmented, segmented},
                {"hierarchy", of_hierarchy, hierarchy},
                {"sinkhorn", of_sinkhorn, sinkhorn},
                {"gate", of_gate, gate},
                {"talking", of_talking, talking},
                {"experts", of_experts, experts}};
enum { SUBJECTS = sizeof subjects / sizeof *subjects };

/* Subject n with so many rows, by weights [in, out]. */
static void make(int n, int64_t count) {
  memset(&s, 0, sizeof s);
  s.call = subjects[n].call, s.rows = count;
  subjects[n].make(count);
  assert_true(s.weights <= MOST && s.flags <= 4);
  s.does.call = run, s.does.out[0] = &s.o;
  if (s.more.data) s.does.out[1] = &s.more;
}

/* Junk where nothing reads. */
static void junk(void) {
  for (int i = 0; i < s.weights; i++) s.w[i]->stride_batch = INT64_MIN;
}

void MM_gemm_transposed_everywhere(void **state) {
  (void)state;
  static const int64_t counts[] = {3, 40, 200};
  for (int n = 0; n < SUBJECTS; n++)
    for (int k = 0; k < (test_fast ? 2 : 3); k++) {
      rng = test_seed(4010 + (uint64_t)n);
      type = k == 1 ? ATTN_BF16 : ATTN_F32, apart = k == 1;
      make(n, counts[k]);
      promise_run(&s.does);
      attn_tensor was = test_tensor(ATTN_F32, TEST_BHTD, s.o.batch, s.o.heads, s.o.len, s.o.dim);
      attn_tensor more = was;
      test_copy(was, s.o);
      if (s.more.data) {
        more = test_tensor(ATTN_F32, TEST_BHTD, s.more.batch, s.more.heads, s.more.len, s.more.dim);
        test_copy(more, s.more);
      }
      for (int way = 0; way < 3; way++) { /* as it was, turned, turned with junk */
        if (way == 1) {
          for (int i = 0; i < s.weights; i++) *s.w[i] = turned(*s.w[i]);
          for (int i = 0; i < s.flags; i++) *s.flag[i] = 1;
        }
        if (way != 1) junk();
        test_fill_value(s.o, 7);
        promise_run(&s.does);
        test_assert_same(s.o, was, subjects[n].name);
        if (s.more.data) test_assert_same(s.more, more, subjects[n].name);
      }
      test_mem_release();
    }
}

/* Each weight with one input less than it wants. */
void MM_gemm_transposed_rejects(void **state) {
  (void)state;
  type = ATTN_F32, apart = 0;
  for (int n = 0; n < SUBJECTS; n++) {
    rng = test_seed(4050 + (uint64_t)n);
    make(n, 6);
    for (int i = 0; i < s.weights; i++) *s.w[i] = turned(*s.w[i]);
    for (int i = 0; i < s.flags; i++) *s.flag[i] = 1;
    for (int i = 0; i < s.weights; i++) {
      attn_tensor whole = *s.w[i];
      if (whole.dim < 2) continue;
      s.w[i]->dim--;
      promise_reject(&s.does, ATTN_E_SHAPE, "w_transposed");
      *s.w[i] = whole;
    }
    test_mem_release();
  }
}
