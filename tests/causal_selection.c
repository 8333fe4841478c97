/* causal_selection.c owns the causal calls of learned selections of keys. */

#include "causal.h"

static attn_status moba_call(play *s, attn_ctx *ctx) {
  return attn_moba(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int moba(play *s) {
  if (s->n >= 3) return 0;
  attn_moba_params *p = play_params(s, sizeof *p);
  (void)play_trio(s, s->n == 1 ? 9 : N, s->n == 2 ? 2 : 1, s->n == 2 ? ATTN_BF16 : ATTN_F32);
  p->block = s->n ? 11 : 16, p->k = 3;
  s->call = moba_call;
  return 1;
}

static attn_status quest_call(play *s, attn_ctx *ctx) {
  return attn_quest(s->out[0], s->in[0], s->in[1], s->in[2], s->p, ctx);
}
static int quest(play *s) {
  if (s->n >= 4) return 0;
  attn_quest_params *p = play_params(s, sizeof *p);
  (void)play_trio(s, s->n == 1 ? 9 : N, s->n == 2 ? 2 : 1, s->n == 2 ? ATTN_BF16 : ATTN_F32);
  p->page = s->n ? 5 : 8, p->pages = 4, p->last_competes = s->n > 1;
  s->call = quest_call;
  return 1;
}

static attn_status dsa_call(play *s, attn_ctx *ctx) {
  attn_dsa_params p;
  memset(&p, 0, sizeof p);
  p.k = 12, p.qi = s->in[3], p.ki = s->in[4], p.wi = s->in[5];
  return attn_dsa(s->out[0], s->in[0], s->in[1], s->in[2], &p, ctx);
}
static int dsa(play *s) {
  if (s->n >= 3) return 0;
  const int64_t rows = s->n == 1 ? 9 : N;
  (void)play_trio(s, rows, s->n == 2 ? 4 : 1, ATTN_F32);
  (void)play_token(s, ATTN_F32, 3, rows, 5), (void)play_token(s, ATTN_F32, 1, N, 5);
  (void)play_token(s, ATTN_F32, 1, rows, 3);
  s->call = dsa_call;
  return 1;
}

static attn_status nsa_call(play *s, attn_ctx *ctx) {
  attn_nsa_params p;
  memset(&p, 0, sizeof p);
  p.block = 8, p.stride = 4, p.select = 12, p.blocks = 4, p.window = 10, p.gate = s->in[3];
  return attn_nsa(s->out[0], s->in[0], s->in[1], s->in[2], &p, ctx);
}
static int nsa(play *s) {
  if (s->n >= 3) return 0;
  const int64_t rows = s->n == 1 ? 9 : N;
  const play_trio_of t = play_trio(s, rows, s->n == 2 ? 2 : 1, ATTN_F32);
  (void)play_token(s, ATTN_F32, t.q.heads, rows, 3);
  s->call = nsa_call;
  return 1;
}

const causal_entry causal_selection[] = {{"attn_moba ", moba, NULL},
                                         {"attn_quest ", quest, NULL},
                                         {"attn_dsa ", dsa, NULL},
                                         {"attn_nsa ", nsa, NULL},
                                         {NULL, NULL, NULL}};
