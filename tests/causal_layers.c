/* causal_layers.c owns the causal calls of layers and blocks. */

#include "causal.h"
#include "golden_calls.h"

static attn_multihead_params heads_of(play *s) {
  attn_multihead_params p;
  memset(&p, 0, sizeof p);
  p.heads = 2, p.kv_heads = 1;
  p.w_q = play_fixed(s, 1, E, 2 * D), p.w_k = play_fixed(s, 1, E, D),
  p.w_v = play_fixed(s, 1, E, E);
  p.w_o = play_fixed(s, 1, 2 * E, E);
  return p;
}
static attn_block_params block_of(play *s, attn_sublayer sublayer) {
  attn_block_params p;
  memset(&p, 0, sizeof p);
  p.sublayer = sublayer, p.chunks = 3, p.self = heads_of(s), p.self.attention.causal = 1;
  p.ff.w_1 = play_fixed(s, 1, E, 17), p.ff.w_2 = play_fixed(s, 1, 17, E),
  p.ff.activation = ATTN_ACT_GELU;
  return p;
}

/* One tensor of rows in, one out. */
static void rows_to_rows(play *s) {
  (void)play_token(s, ATTN_F32, 1, N, E), (void)play_out(s, ATTN_F32, 1, N, E);
}

static attn_status multihead_call(play *s, attn_ctx *ctx) {
  return attn_multihead(s->out[0], s->in[0], absent(), absent(), s->p, ctx);
}
static int multihead(play *s) {
  static attn_rope_params rope;
  static const attn_qk_norm norm = {.kind = ATTN_QK_NORM_RMS_ALL};
  if (s->n >= 7) return 0;
  attn_multihead_params *p = play_params(s, sizeof *p);
  rows_to_rows(s);
  *p = heads_of(s);
  play_scores(s, &p->attention, s->n % 4, 2);
  memset(&rope, 0, sizeof rope);
  rope.xpos = s->n == 5 ? 512 : 0, rope.norm = s->n == 6 ? &norm : NULL;
  if (s->n >= 4) p->rope = &rope;
  s->call = multihead_call;
  return 1;
}

static attn_status collaborative_call(play *s, attn_ctx *ctx) {
  return attn_collaborative(s->out[0], s->in[0], absent(), s->p, ctx);
}
static int collaborative(play *s) {
  if (s->n) return 0;
  attn_collaborative_params *p = play_params(s, sizeof *p);
  rows_to_rows(s);
  p->heads = 2, p->attention.causal = 1;
  p->w_q = play_fixed(s, 1, E, 9), p->w_k = play_fixed(s, 1, E, 9), p->mix = play_fixed(s, 1, 2, 9);
  p->w_v = play_fixed(s, 1, E, 2 * E), p->w_o = play_fixed(s, 1, 2 * E, E);
  s->call = collaborative_call;
  return 1;
}

static attn_status block_call(play *s, attn_ctx *ctx) {
  return s->n < 2 ? attn_encoder(s->out[0], s->in[0], s->p, ctx)
                  : attn_decoder(s->out[0], s->in[0], absent(), s->p, ctx);
}
static int block(play *s) {
  if (s->n >= 4) return 0;
  attn_block_params *p = play_params(s, sizeof *p);
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
  attn_universal_params *p = play_params(s, sizeof *p);
  rows_to_rows(s);
  p->block = block_of(s, ATTN_SUBLAYER_POST), p->steps = 4, p->eps = 0.125f;
  p->w_p = play_fixed(s, 1, 1, E), p->b_p = -0.5f;
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
  attn_gmlp_params *p = play_params(s, sizeof *p);
  rows_to_rows(s);
  p->w_1 = play_fixed(s, 1, E, 24), p->w_2 = play_fixed(s, 1, 12, E),
  p->w_s = play_fixed(s, 1, N, N);
  p->b_s = play_fixed(s, 1, 1, N), p->causal = 1;
  if (s->n) p->w_qkv = play_fixed(s, 1, E, 15), p->w_o = play_fixed(s, 1, 5, 12);
  s->call = gmlp_call;
  return 1;
}

static attn_status average_call(play *s, attn_ctx *ctx) {
  return attn_average(s->out[0], s->in[0], s->p, ctx);
}
static int average(play *s) {
  if (s->n >= 2) return 0;
  attn_average_params *p = play_params(s, sizeof *p);
  rows_to_rows(s);
  if (s->n) p->w_g = play_fixed(s, 1, 2 * E, 2 * E);
  s->call = average_call;
  return 1;
}

static void segment_params(play *s, attn_segment_layer_params *p) {
  p->heads = 2, p->memory.rows = play_fixed(s, 1, 20, E), p->memory.len = 20;
  p->w_q = play_fixed(s, 1, E, E), p->w_k = play_fixed(s, 1, E, E), p->w_v = play_fixed(s, 1, E, E);
  p->w_o = play_fixed(s, 1, E, E);
}
static attn_status segment_call(play *s, attn_ctx *ctx) {
  return s->n ? attn_gtrxl(s->out[0], s->in[0], s->p, ctx)
              : attn_segment_layer(s->out[0], s->in[0], s->p, ctx);
}
static int segment(play *s) {
  if (s->n >= 2) return 0;
  attn_gtrxl_params *p = play_params(s, sizeof *p); /* begins with those of the layer */
  rows_to_rows(s);
  segment_params(s, &p->attention);
  p->gate_1.kind = p->gate_2.kind = ATTN_GTRXL_HIGHWAY;
  attn_gtrxl_gate_params *g[2] = {&p->gate_1, &p->gate_2};
  for (int i = 0; i < 2; i++) {
    attn_tensor *w[6] = {&g[i]->w_r, &g[i]->u_r, &g[i]->w_z, &g[i]->u_z, &g[i]->w_g, &g[i]->u_g};
    for (int x = 0; x < 6; x++) *w[x] = play_fixed(s, 1, E, E);
  }
  p->ff.w_1 = play_fixed(s, 1, E, 17), p->ff.w_2 = play_fixed(s, 1, 17, E);
  s->call = segment_call;
  return 1;
}

static attn_status recursive_call(play *s, attn_ctx *ctx) {
  return attn_recursive(s->out[0], s->w[1], s->in[0], s->w[0], s->p, ctx);
}
static int recursive(play *s) {
  if (s->n) return 0;
  attn_recursive_params *p = play_params(s, sizeof *p);
  rows_to_rows(s);
  s->w[0] = play_fixed(s, 1, 20, E), s->w[1] = play_fixed(s, 1, 20, E);
  p->heads = 2, p->kv_heads = 1, p->alpha = 0.3f;
  p->w_q = play_fixed(s, 1, E, 2 * D), p->w_k = play_fixed(s, 1, E, D),
  p->w_v = play_fixed(s, 1, E, E);
  p->w_o = play_fixed(s, 1, 2 * E, E);
  s->call = recursive_call;
  return 1;
}

static attn_status convolve_call(play *s, attn_ctx *ctx) {
  return s->n % 2 ? attn_convolve_depthwise(s->out[0], s->in[0], s->w[0], s->p, ctx)
                  : attn_convolve(s->out[0], s->in[0], s->w[0], s->p, ctx);
}
static int convolve(play *s) {
  if (s->n >= 4) return 0;
  attn_convolve_params *p = play_params(s, sizeof *p);
  rows_to_rows(s);
  s->w[0] = s->n % 2 ? play_fixed(s, 1, 4, E) : play_fixed(s, 1, 4 * E, E);
  p->pad = ATTN_PAD_LEFT, p->stride = 1, p->dilation = s->n / 2 ? 3 : 0;
  s->call = convolve_call;
  return 1;
}

/* Both forms, behind a cache and without, where windows are. */
static attn_status mla_call(play *s, attn_ctx *ctx) {
  attn_mla_params *p = s->p;
  if (p->held) attn_cache_release(p->cache, p->held, NULL);
  return attn_mla(s->out[0], s->in[0], p, ctx);
}
static int mla(play *s) {
  static attn_cache cache;
  static attn_sequence held;
  if (s->n >= 5) return 0;
  attn_mla_params *p = play_params(s, sizeof *p);
  rows_to_rows(s);
  p->heads = s->n == 3 ? 9 : 2, p->rope_dim = 4;
  p->w_uq = play_fixed(s, 1, E, p->heads * 7), p->w_dkv = play_fixed(s, 1, E, 12);
  p->w_ukv = play_fixed(s, 1, 8, p->heads * 8), p->w_o = play_fixed(s, 1, p->heads * 5, E);
  p->form = s->n % 2 ? ATTN_MLA_EXPANDED : ATTN_MLA_ABSORBED;
  if (s->n == 4) p->window = attn_window_of(20, -1);
  if (s->n >= 2 && s->n < 4) {
    const attn_cache_params c = {
        .k_heads = 1, .dk = 12, .dv = 8, .latent = 1, .pages = 10, .page = 16};
    const size_t size = attn_cache_size(&c);
    assert_int_equal(attn_cache_open(&cache, test_mem(size), size, &c, NULL), ATTN_OK);
    assert_int_equal(attn_sequence_init(&held, test_mem(40), 10, NULL), ATTN_OK);
    p->cache = &cache, p->held = &held;
  }
  s->call = mla_call;
  return 1;
}

/* Heads made from factors. */
static attn_status tpa_call(play *s, attn_ctx *ctx) {
  const attn_factors x[3] = {{s->in[0], s->in[1]}, {s->in[2], s->in[3]}, {s->in[4], s->in[5]}};
  return attn_tpa(s->out[0], &x[0], &x[1], &x[2], s->p, ctx);
}
static int tpa(play *s) {
  static attn_rope_params rope;
  if (s->n >= 3) return 0;
  attn_tpa_params *p = play_params(s, sizeof *p);
  for (int i = 0; i < 3; i++) {
    (void)play_token(s, i == s->n ? ATTN_F16 : ATTN_F32, 1 + i, N, 3);
    (void)play_token(s, ATTN_F32, 1 + i, N, i < 2 ? D : E);
  }
  (void)play_out(s, ATTN_F32, 3, N, E);
  if (s->n == 1) p->window = attn_window_of(20, -1);
  memset(&rope, 0, sizeof rope);
  if (s->n) p->rope = &rope;
  s->call = tpa_call;
  return 1;
}

/* Segments, and the memory of those before. */
static attn_status infini_call(play *s, attn_ctx *ctx) {
  return attn_infini(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int infini(play *s) {
  if (s->n >= 4) return 0;
  attn_infini_params *p = play_params(s, sizeof *p);
  const play_trio_of x = play_trio(s, s->n == 1 ? 40 : N, 2, ATTN_F32);
  (void)x;
  p->segment = s->n == 2 ? 64 : 31, p->delta = s->n & 1;
  s->call = infini_call;
  return 1;
}

const causal_entry causal_layers[] = {{"attn_multihead ", multihead, NULL},
                                      {"attn_collaborative ", collaborative, NULL},
                                      {"attn_encoder attn_decoder ", block, NULL},
                                      {"attn_universal ", universal, NULL},
                                      {"attn_gmlp ", gmlp, NULL},
                                      {"attn_average ", average, NULL},
                                      {"attn_segment_layer attn_gtrxl ", segment, NULL},
                                      {"attn_recursive ", recursive, NULL},
                                      {"attn_convolve attn_convolve_depthwise ", convolve, NULL},
                                      {"attn_mla ", mla, NULL},
                                      {"attn_tpa ", tpa, NULL},
                                      {"attn_infini ", infini, NULL},
                                      {NULL, NULL, NULL}};
