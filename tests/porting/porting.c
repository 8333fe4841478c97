/* porting.c owns what the rows of docs/porting.md must give. porting.py makes a function of each row; here is,
 * for each, the definition in the words of the library that is ported, in float64 and independent of
 * attn.h: windows with -1 for unlimited, the alignment by name. Exit status 1 where a row gives something else,
 * has nobody to judge it, or is judged and not there. */
#include "attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  BATCH = 3,
  HEADS = 4,
  KV_HEADS = 2,
  Q_LEN = 5,
  KV_LEN = 7,
  DIM = 8,
  V_DIM = 6,
  EMBED = 16,
  PAST = 2,
  PAGE = 3,
  BLOCKS = 16,
  MAX_BLOCKS = 4,
  NEW = 2,
  ROOM = 4096
};

typedef struct world {
  attn_isa isa;
  int64_t heads, kv_heads, dim, v_dim;
  float query[ROOM], key[ROOM], value[ROOM], output[ROOM], lse[ROOM], weights[ROOM];
  float x[ROOM], in_proj_weight[ROOM], in_proj_bias[3 * EMBED];
  float k_cache[ROOM], v_cache[ROOM], k_append[ROOM], v_append[ROOM];
  float bias[Q_LEN * KV_LEN], slopes[HEADS], sinks[HEADS];
  uint8_t mask[Q_LEN * KV_LEN], ignore[Q_LEN * KV_LEN], allowed[Q_LEN * KV_LEN];
  int32_t lengths[BATCH], cache_seqlens[BATCH], block_table[BATCH * MAX_BLOCKS], holders[BLOCKS];
  int32_t paged_kv_indices[BLOCKS], paged_kv_last_page_len[BATCH];
  int64_t cu_seqlens_q[BATCH + 1], cu_seqlens_k[BATCH + 1], qo_indptr[BATCH + 1],
      paged_kv_indptr[BATCH + 1];
} world;

/* The names that the page uses. */
#define WORLD(w)                                                                               \
  float *query = (w)->query, *key = (w)->key, *value = (w)->value, *output = (w)->output;      \
  float *lse = (w)->lse, *weights = (w)->weights, *x = (w)->x, *bias = (w)->bias;              \
  float *in_proj_weight = (w)->in_proj_weight, *in_proj_bias = (w)->in_proj_bias;              \
  float *k_cache = (w)->k_cache, *v_cache = (w)->v_cache;                                      \
  float *k_append = (w)->k_append, *v_append = (w)->v_append;                                  \
  float *slopes = (w)->slopes, *sinks = (w)->sinks;                                            \
  uint8_t *mask = (w)->mask, *ignore = (w)->ignore, *allowed = (w)->allowed;                   \
  int32_t *lengths = (w)->lengths, *cache_seqlens = (w)->cache_seqlens;                        \
  int32_t *block_table = (w)->block_table, *holders = (w)->holders;                            \
  int32_t *paged_kv_indices = (w)->paged_kv_indices;                                           \
  int32_t *paged_kv_last_page_len = (w)->paged_kv_last_page_len;                               \
  int64_t *cu_seqlens_q = (w)->cu_seqlens_q, *cu_seqlens_k = (w)->cu_seqlens_k;                \
  int64_t *qo_indptr = (w)->qo_indptr, *paged_kv_indptr = (w)->paged_kv_indptr;                \
  int64_t batch = BATCH, heads = (w)->heads, kv_heads = (w)->kv_heads, q_len = Q_LEN;          \
  int64_t kv_len = KV_LEN, dim = (w)->dim, v_dim = (w)->v_dim, embed_dim = EMBED, past = PAST; \
  int64_t num_blocks = BLOCKS, page_size = PAGE, max_blocks = MAX_BLOCKS;                      \
  const int *parent = parents;                                                                 \
  attn_status status = ATTN_OK;                                                                \
  attn_ctx ctx = {0};                                                                          \
  ctx.isa = (w)->isa;

typedef struct row {
  const char *section, *name;
  attn_status (*run)(world *w);
} row;

/* The tree of drafts. */
static const int parents[Q_LEN] = {-1, 0, 0, 1, 2};

#include "rows.h"

/* ---- the definitions -------------------------------------------------------------------------------*/

typedef enum layout { BHTD, BTHD, PACKED } layout;
typedef enum lens { EQUAL, RAGGED, CACHED } lens;
enum { NONE, START, END, LENGTH }; /* how a causal mask is aligned */
enum { OUTPUT, LSE, WEIGHTS };     /* what is compared */
typedef struct section {
  const char *name; /* how it begins */
  layout in, out, lse;
  lens lens;
  int projected; /* q, k and v are projections of x */
  int start;     /* windows count from aligned starts, as causal = START */
  double scale;
} section;

static const section sections[] = {
    {"torch.nn.functional", BHTD, BHTD, BHTD, EQUAL, 0, 0, 0},
    {"torch.nn.MultiheadAttention", BHTD, BTHD, BHTD, EQUAL, 1, 0, 0},
    {"flash_attn_func", BTHD, BTHD, BHTD, EQUAL, 0, 0, 0},
    {"flash_attn_varlen_func", PACKED, PACKED, PACKED, RAGGED, 0, 0, 0},
    {"flash_attn_with_kvcache", BTHD, BTHD, BHTD, CACHED, 0, 0, 0},
    {"FlashInfer", PACKED, PACKED, PACKED, RAGGED, 0, 0, 0},
    {"ONNX", BHTD, BHTD, BHTD, EQUAL, 0, 1, 0},
    {"FlexAttention", BHTD, BHTD, BHTD, EQUAL, 0, 0, 0},
    {"ggml", BHTD, BTHD, BHTD, EQUAL, 0, 0, 0.3},
    {"Speculative", BHTD, BHTD, BHTD, EQUAL, 0, 0, 0},
    {"Split-K", BHTD, BHTD, BHTD, EQUAL, 0, 0, 0},
    {"Streams", BHTD, BHTD, BHTD, EQUAL, 0, 0, 0}};
enum { SECTIONS = sizeof sections / sizeof *sections };

typedef struct want {
  const char *section, *name; /* how the section begins */
  int base;                   /* 1: the block alone */
  int causal, past;
  int window, left, right; /* -1: unlimited */
  double scale, cap;
  int mask, ignore, bias, alibi, sinks, zero_key, lengths, appended, score_mod, mask_mod, tree,
      keep, dropped;
  int compared;
} want;

static const want wants[] = {
    {"torch.nn.functional", "query, key, value", .base = 1},
    {"torch.nn.functional", "enable_gqa=True", .base = 1},
    {"torch.nn.functional", "attn_mask (bool)", .mask = 1},
    {"torch.nn.functional", "attn_mask (float)", .bias = 1},
    {"torch.nn.functional", "is_causal=True", .causal = START},
    {"torch.nn.functional", "attn_mask=causal_lower_right", .causal = END},
    {"torch.nn.functional", "scale=0.3", .scale = 0.3},
    {"torch.nn.functional", "dropout_p=0.1", .dropped = 1},
    {"torch.nn.MultiheadAttention", "in_proj_weight, in_proj_bias", .base = 1},
    {"torch.nn.MultiheadAttention", "key_padding_mask (right padding)", .lengths = 1},
    {"torch.nn.MultiheadAttention", "attn_mask (bool)", .ignore = 1},
    {"torch.nn.MultiheadAttention", "is_causal=True", .causal = START},
    {"torch.nn.MultiheadAttention", "add_zero_attn=True", .zero_key = 1},
    {"torch.nn.MultiheadAttention", "need_weights=True, average_attn_weights=False", .base = 1,
     .compared = WEIGHTS},
    {"flash_attn_func", "q, k, v", .base = 1},
    {"flash_attn_func", "softmax_scale=0.3", .scale = 0.3},
    {"flash_attn_func", "causal=True", .causal = END},
    {"flash_attn_func", "window_size=(-1, -1)", .base = 1, .window = 1, .left = -1, .right = -1},
    {"flash_attn_func", "window_size=(2, 1)", .window = 1, .left = 2, .right = 1},
    {"flash_attn_func", "window_size=(0, 1)", .window = 1, .left = 0, .right = 1},
    {"flash_attn_func", "causal=True, window_size=(2, 0)", .causal = END, .window = 1, .left = 2},
    {"flash_attn_func", "softcap=0.7", .cap = 0.7},
    {"flash_attn_func", "dropout_p=0.1", .dropped = 1},
    {"flash_attn_func", "alibi_slopes [heads]", .alibi = 1},
    {"flash_attn_func", "return_attn_probs=True (softmax_lse)", .base = 1, .compared = LSE},
    {"flash_attn_varlen_func", "cu_seqlens_q, cu_seqlens_k", .base = 1},
    {"flash_attn_varlen_func", "causal=True", .causal = END},
    {"flash_attn_varlen_func", "window_size=(2, 1)", .window = 1, .left = 2, .right = 1},
    {"flash_attn_varlen_func", "softmax_scale=0.3", .scale = 0.3},
    {"flash_attn_with_kvcache", "k_cache, v_cache, cache_seqlens, block_table", .base = 1},
    {"flash_attn_with_kvcache", "causal=True", .causal = END},
    {"flash_attn_with_kvcache", "k, v (appended first)", .appended = 1},
    {"flash_attn_with_kvcache", "window_size=(2, 0)", .window = 1, .left = 2, .right = 0},
    {"flash_attn_with_kvcache", "softcap=0.7", .cap = 0.7},
    {"FlashInfer", "qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len",
     .base = 1},
    {"FlashInfer", "causal=True", .causal = END},
    {"FlashInfer", "sm_scale=0.3", .scale = 0.3},
    {"FlashInfer", "logits_soft_cap=0.7", .cap = 0.7},
    {"FlashInfer", "window_left=2", .causal = END, .window = 1, .left = 2, .right = -1},
    {"FlashInfer", "return_lse=True", .base = 1, .compared = LSE},
    {"FlashInfer", "causal=True, pos_encoding_mode=\"ALIBI\"", .causal = END, .alibi = 1},
    {"ONNX", "Q, K, V", .base = 1},
    {"ONNX", "is_causal=1", .causal = START},
    {"ONNX", "is_causal=1 with past_key", .causal = START, .past = PAST},
    {"ONNX", "attn_mask (bool)", .mask = 1},
    {"ONNX", "attn_mask (float)", .bias = 1},
    {"ONNX", "nonpad_kv_seqlen", .lengths = 1},
    {"ONNX", "nonpad_kv_seqlen with is_causal=1", .causal = LENGTH, .lengths = 1},
    {"ONNX", "scale=0.3", .scale = 0.3},
    {"ONNX", "softcap=0.7", .cap = 0.7},
    {"ONNX", "left_window_size=2, right_window_size=1", .window = 1, .left = 2, .right = 1},
    {"ONNX", "qk_matmul_output_mode=3", .base = 1, .compared = WEIGHTS},
    {"FlexAttention", "query, key, value", .base = 1},
    {"FlexAttention", "score_mod", .score_mod = 1},
    {"FlexAttention", "block_mask=create_block_mask(mask_mod, ..)", .mask_mod = 1},
    {"FlexAttention", "scale=0.3", .scale = 0.3},
    {"FlexAttention", "return_lse=True", .base = 1, .compared = LSE},
    {"ggml", "q, k, v, scale", .base = 1},
    {"ggml", "mask", .bias = 1},
    {"ggml", "max_bias=8", .alibi = 1},
    {"ggml", "logit_softcap=0.7", .cap = 0.7},
    {"ggml", "ggml_flash_attn_ext_add_sinks", .sinks = 1},
    {"Speculative", "the block", .tree = 1},
    {"Split-K", "the block", .base = 1},
    {"Streams", "StreamingLLM: a sliding window and attention sinks", .causal = END, .window = 1,
     .left = 2, .keep = 1},
    {"Streams", "softmax off by one", .zero_key = 1},
};
enum { WANTS = sizeof wants / sizeof *wants, ROWS = sizeof rows / sizeof *rows };

static const int ragged_q[BATCH] = {2, 5, 1}, ragged_k[BATCH] = {3, 7, 4},
                 cached[BATCH] = {6, 5, 9};
static const int lengths_of[BATCH] = {3, 5, 1};
enum { QUERY, KEY, VALUE, X, WEIGHT, BIAS, MASK_BIAS };

/* Any number has one value, a float between -1 and 1, wherever it is stored. */
static float number(int what, int64_t b, int64_t h, int64_t i, int64_t c) {
  uint64_t z =
      (uint64_t)(((((what * 8 + b) * 64 + h) * 64 + i) * 64 + c) + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (float)((double)((z ^ (z >> 31)) >> 40) / 8388608 - 1);
}

static int64_t q_len_of(const section *s, int64_t b) {
  return s->lens == RAGGED ? ragged_q[b] : Q_LEN;
}

static int64_t kv_len_of(const section *s, const want *t, int64_t b) {
  if (s->projected) return Q_LEN;
  return s->lens == EQUAL    ? KV_LEN
         : s->lens == RAGGED ? ragged_k[b]
                             : cached[b] + t->appended * NEW;
}

/* One number of q, k or v. */
static double operand(const section *s, int what, int64_t b, int64_t h, int64_t i, int64_t c) {
  if (!s->projected) return number(what, b, h, i, c) * (what == QUERY ? 3.0f : 1.0f);
  int64_t out = what * EMBED + h * (EMBED / HEADS) + c;
  double sum = number(BIAS, 0, 0, 0, out);
  for (int64_t e = 0; e < EMBED; e++)
    sum += (double)number(X, b, 0, i, e) * number(WEIGHT, 0, 0, out, e);
  return sum;
}

/* 1 if node a is node i of the tree, or before it. */
static int leads_to(int64_t a, int64_t i) {
  return a == i || (i >= 0 && parents[i] >= 0 && leads_to(a, parents[i]));
}

static int is_masked(int64_t i, int64_t j) { return (i * 3 + j * 5) % 4 == 1; }
static double slope(int64_t h) { return pow(2, -8.0 * (double)(h + 1) / HEADS); }

static int sees(const section *s, const want *t, int64_t b, int64_t h, int64_t i, int64_t j) {
  int64_t ends = kv_len_of(s, t, b) - q_len_of(s, b);
  int64_t own = lengths_of[b] - q_len_of(s, b);
  int64_t causal_at = i + (t->causal == END ? ends : t->causal == LENGTH ? own : t->past);
  int64_t window_at = i + (s->start ? t->past : ends);
  if (t->causal != NONE && j > causal_at) return 0;
  if (t->window && t->left >= 0 && j < window_at - t->left && j >= t->keep) return 0;
  if (t->window && t->right >= 0 && j > window_at + t->right) return 0;
  if ((t->mask || t->ignore) && is_masked(i, j)) return 0;
  if (t->tree && j >= PAST && !leads_to(j - PAST, i)) return 0;
  if (t->lengths && j >= lengths_of[b]) return 0;
  return !t->mask_mod || (i + j + h) % 3 != 0;
}

/* What dropout of p = 0.1 with offset 7 makes of 1: Philox4x32-10, as its paper has it. */
static double dropped(int64_t b, int64_t h, int64_t i, int64_t j) {
  uint32_t w[4] = {(uint32_t)(j / 4), (uint32_t)i, (uint32_t)h, (uint32_t)b}, k0 = 7, k1 = 0;
  for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const uint64_t x = (uint64_t)w[0] * 0xD2511F53u, y = (uint64_t)w[2] * 0xCD9E8D57u;
    w[0] = (uint32_t)(y >> 32) ^ w[1] ^ k0, w[1] = (uint32_t)y;
    w[2] = (uint32_t)(x >> 32) ^ w[3] ^ k1, w[3] = (uint32_t)x;
  }
  return (double)(w[j % 4] >> 8) < 0.1 * 16777216 ? 0 : 1 / 0.9;
}

/* Row (b, h, i): out [v_dim], weights [kv_len]; returns the log of the denominator. */
static double define(const section *s, const want *t, int64_t b, int64_t h, int64_t i, double *out,
                     double *weight) {
  int64_t group = s->projected ? h : h * KV_HEADS / HEADS, n = kv_len_of(s, t, b);
  int64_t dk = s->projected ? EMBED / HEADS : DIM, dv = s->projected ? dk : V_DIM;
  double scale = t->scale > 0 ? t->scale : s->scale > 0 ? s->scale : 1 / sqrt((double)dk), sum = 0;
  for (int64_t j = 0; j < n; j++) {
    double score = 0;
    for (int64_t c = 0; c < dk; c++)
      score += operand(s, QUERY, b, h, i, c) * operand(s, KEY, b, group, j, c);
    score *= scale;
    if (t->cap > 0) score = t->cap * tanh(score / t->cap);
    if (t->bias) score += number(MASK_BIAS, 0, 0, i, j);
    if (t->alibi) score -= slope(h) * fabs((double)(j - i - (n - q_len_of(s, b))));
    if (t->score_mod) score += 0.1 * (double)(j - i);
    weight[j] = sees(s, t, b, h, i, j) ? exp(score) : 0;
    sum += weight[j];
  }
  if (t->zero_key) sum += 1;
  if (t->sinks) sum += exp(0.5 * (double)h);
  for (int64_t c = 0; c < dv; c++) out[c] = 0;
  for (int64_t j = 0; j < n; j++) {
    weight[j] = sum > 0 ? weight[j] / sum : 0;
    const double stays = t->dropped ? dropped(b, h, i, j) : 1;
    for (int64_t c = 0; c < dv; c++)
      out[c] += weight[j] * stays * operand(s, VALUE, b, group, j, c);
  }
  return log(sum);
}

/* ---- the run -----------------------------------------------------------------------------------------*/

/* Where (b, h, i, c) of a tensor lies; first: tokens before entry b, if packed. */
static int64_t place(layout l, int64_t first, int64_t heads, int64_t len, int64_t d,
                     const int64_t at[4]) {
  int64_t b = at[0], h = at[1], i = at[2], c = at[3];
  if (l == BHTD) return ((b * heads + h) * len + i) * d + c;
  return (((l == PACKED ? first : b * len) + i) * heads + h) * d + c;
}

static void fill(world *w, const section *s, const want *t) {
  memset(w, 0xff, sizeof *w); /* NaN where nothing is */
  memset(w->holders, 0, sizeof w->holders);
  w->heads = HEADS, w->kv_heads = s->projected ? HEADS : KV_HEADS;
  w->dim = DIM, w->v_dim = V_DIM;
  w->cu_seqlens_q[0] = w->cu_seqlens_k[0] = w->qo_indptr[0] = w->paged_kv_indptr[0] = 0;
  int32_t block = 5; /* blocks in no order: 5, 12, 3, 10, .. */
  for (int64_t b = 0; b < BATCH; b++) {
    int64_t nq = q_len_of(s, b), nk = s->lens == CACHED ? cached[b] : kv_len_of(s, t, b),
            at[4] = {b, 0, 0, 0};
    int64_t pages = (nk + PAGE - 1) / PAGE;
    w->cu_seqlens_q[b + 1] = w->qo_indptr[b + 1] = w->cu_seqlens_q[b] + nq;
    w->cu_seqlens_k[b + 1] = w->cu_seqlens_k[b] + nk;
    w->paged_kv_indptr[b + 1] = w->paged_kv_indptr[b] + pages;
    w->paged_kv_last_page_len[b] = (int32_t)(nk - (pages - 1) * PAGE);
    w->cache_seqlens[b] = (int32_t)nk;
    w->lengths[b] = lengths_of[b];
    for (int64_t p = 0; p < pages; p++, block = (block + 7) % BLOCKS) {
      w->block_table[b * MAX_BLOCKS + p] = w->paged_kv_indices[w->paged_kv_indptr[b] + p] = block;
      w->holders[block] = 1;
    }
    for (int64_t h = 0; h < HEADS; h++)
      for (int64_t i = 0; i < nq; i++)
        for (int64_t c = 0; c < DIM; c++) {
          at[1] = h, at[2] = i, at[3] = c;
          w->query[place(s->in, w->cu_seqlens_q[b], HEADS, Q_LEN, DIM, at)] =
              (float)operand(s, QUERY, b, h, i, c);
        }
    for (int64_t h = 0; h < KV_HEADS; h++)
      for (int64_t j = 0; j < nk + NEW; j++)
        for (int64_t c = 0; c < DIM; c++) {
          float k = number(KEY, b, h, j, c), v = number(VALUE, b, h, j, c);
          at[1] = h, at[2] = j, at[3] = c;
          if (j >= nk) {
            at[2] = j - nk;
            w->k_append[place(BTHD, 0, KV_HEADS, NEW, DIM, at)] = k;
            if (c < V_DIM) w->v_append[place(BTHD, 0, KV_HEADS, NEW, V_DIM, at)] = v;
            continue;
          }
          if (s->lens != CACHED) {
            w->key[place(s->in, w->cu_seqlens_k[b], KV_HEADS, KV_LEN, DIM, at)] = k;
            if (c < V_DIM)
              w->value[place(s->in, w->cu_seqlens_k[b], KV_HEADS, KV_LEN, V_DIM, at)] = v;
          }
          at[0] = w->block_table[b * MAX_BLOCKS + j / PAGE], at[2] = j % PAGE;
          w->k_cache[place(BTHD, 0, KV_HEADS, PAGE, DIM, at)] = k;
          if (c < V_DIM) w->v_cache[place(BTHD, 0, KV_HEADS, PAGE, V_DIM, at)] = v;
          at[0] = b;
        }
    for (int64_t i = 0; i < Q_LEN * EMBED; i++)
      w->x[b * Q_LEN * EMBED + i] = number(X, b, 0, i / EMBED, i % EMBED);
  }
  for (int64_t i = 0; i < 3 * EMBED * EMBED; i++)
    w->in_proj_weight[i] = number(WEIGHT, 0, 0, i / EMBED, i % EMBED);
  for (int64_t i = 0; i < 3 * EMBED; i++) w->in_proj_bias[i] = number(BIAS, 0, 0, 0, i);
  for (int64_t h = 0; h < HEADS; h++) {
    w->slopes[h] = (float)slope(h);
    w->sinks[h] = 0.5f * (float)h;
  }
  int64_t columns = s->projected ? Q_LEN : KV_LEN;
  for (int64_t i = 0; i < Q_LEN; i++)
    for (int64_t j = 0; j < columns; j++) {
      w->mask[i * columns + j] = !is_masked(i, j);
      w->ignore[i * columns + j] = (uint8_t)is_masked(i, j);
      w->bias[i * columns + j] = number(MASK_BIAS, 0, 0, i, j);
    }
}

/* The larger; a NaN is larger than anything. */
static double larger(double worst, double error) {
  error = isnan(error) ? (double)INFINITY : fabs(error);
  return error > worst ? error : worst;
}

static int check(const row *r, const section *s, const want *t, attn_isa isa) {
  static world w;
  want block = {0};
  double worst = 0, apart = 0, out[DIM], weight[KV_LEN + 8], plain[DIM], plain_weight[KV_LEN + 8];
  fill(&w, s, t);
  w.isa = isa;
  attn_status status = r->run(&w);
  if (status != ATTN_OK) {
    printf("FAIL     %s, %s: %s\n", r->section, r->name, attn_status_string(status));
    return 1;
  }
  int64_t dv = s->projected ? EMBED / HEADS : V_DIM;
  for (int64_t b = 0; b < BATCH; b++)
    for (int64_t h = 0; h < HEADS; h++)
      for (int64_t i = 0; i < q_len_of(s, b); i++) {
        int64_t at[4] = {b, h, i, 0}, n = kv_len_of(s, t, b), first = w.cu_seqlens_q[b];
        double lse = define(s, t, b, h, i, out, weight);
        define(s, &block, b, h, i, plain, plain_weight);
        for (int64_t c = 0; c < dv; c++) {
          at[3] = c;
          worst = larger(worst, w.output[place(s->out, first, HEADS, Q_LEN, dv, at)] - out[c]);
          apart = fmax(apart, fabs(out[c] - plain[c]));
        }
        at[3] = 0;
        if (t->compared == LSE)
          worst = larger(worst, w.lse[place(s->lse, first, HEADS, Q_LEN, 1, at)] - lse);
        for (int64_t j = 0; t->compared == WEIGHTS && j < n; j++) {
          at[3] = j;
          worst = larger(worst, w.weights[place(BHTD, 0, HEADS, Q_LEN, n, at)] - weight[j]);
        }
      }
  if (worst > 5e-6) printf("FAIL     %s, %s: off by %g\n", r->section, r->name, worst);
  /* a row that changed nothing would be judged by nothing */
  if (!t->base && apart < 1e-3) printf("FAIL     %s, %s: as the block\n", r->section, r->name);
  return worst > 5e-6 || (!t->base && apart < 1e-3);
}

static int begins(const char *text, const char *with) { return !strncmp(text, with, strlen(with)); }

int main(void) {
  int bad = 0, judged[WANTS] = {0};
  for (int isa = ATTN_ISA_SCALAR; isa < ATTN_ISA_COUNT; isa++) {
    int count = 0;
    if (attn_isa_status((attn_isa)isa) != ATTN_ISA_OK) continue;
    for (int r = 0; r < ROWS; r++) {
      int s = 0, t = 0;
      while (s < SECTIONS && !begins(rows[r].section, sections[s].name)) s++;
      while (t < WANTS &&
             (!begins(rows[r].section, wants[t].section) || strcmp(rows[r].name, wants[t].name)))
        t++;
      if (s == SECTIONS || t == WANTS) {
        printf("FAIL     %s, %s: nobody judges it\n", rows[r].section, rows[r].name);
        bad++;
        continue;
      }
      judged[t] = 1;
      count++;
      bad += check(&rows[r], &sections[s], &wants[t], (attn_isa)isa);
    }
    printf("porting: %d rows on %s\n", count, attn_isa_name((attn_isa)isa));
  }
  for (int t = 0; t < WANTS; t++)
    if (!judged[t])
      printf("FAIL     %s, %s: not on the page\n", wants[t].section, wants[t].name), bad++;
  return bad != 0;
}
