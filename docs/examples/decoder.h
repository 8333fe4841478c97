/* decoder.h owns a language model: its layers, the memory of several sequences (slots), and the way from tokens to
 * logits. For each token, with rms(x) = x / sqrt(mean x^2 + eps):
 *
 *   x  = embed_tokens[token], of Gemma times sqrt(width)
 *   in each layer:
 *     q, k, v = rms(x) input_layernorm, times q_proj, k_proj, v_proj; q and k normed by head where the family does
 *     x += o_proj attention(rotated q, rotated k of the tokens that it sees, v)
 *     h  = rms(x) post_attention_layernorm
 *     x += down_proj (act(gate_proj h) up_proj h)
 *   logits = lm_head (rms(x) norm), of Gemma 2 capped
 *
 * Gemma norms what is added, too; layers with experts have experts.h's feed-forward; Mamba-2 has the mixer of
  * mamba2.h alone. model_config.h says what differs between
 * families, and everything here follows it. Functions return null, or a sentence that says what went wrong and lives
 * as long as the struct; then nothing but decoder_free may follow. Sources: model_config.h; RMS norm: arXiv 1910.07467,
 * gated feed-forward: 2002.05202, pages: 2309.06180, trees of drafts: 2305.09781. */
#ifndef EXAMPLES_DECODER_H
#define EXAMPLES_DECODER_H

#include "experts.h"
#include "mamba2.h"

enum { DECODER_PAGE = 64 };

typedef struct decoder_layer {
  float *before_mix, *after_mix, *before_ff, *after_ff; /* gains of norms; null = no such norm */
  model_matrix qkv, o, gate, up, down;                  /* q, k and v are one product */
  attn_qk_norm qk_norm;
  attn_rope_params rope;
  attn_sdpa_params attention;      /* but for the mask */
  attn_expert_rows_params experts; /* in place of gate, up and down, where experts.k is not 0 */
  mamba2_layer mamba2;
} decoder_layer;

typedef struct decoder {
  work w; /* w.ctx may be set between calls, but for the workspace */
  model_config config;
  attn_tensor embedding; /* [1, 1, vocabulary, width], of the file's type */
  decoder_layer *layers;
  float *norm;
  model_matrix out; /* rows of logits are out.stride apart */
  int one_order; /* 1: the same bits however tokens are split into steps: attn_sdpa, Determinism */
  /* decoder_open: */
  int64_t slots, room, batch; /* sequences, tokens each can have, tokens a step can take */
  int64_t *len;               /* [slots] tokens of each sequence */
  attn_cache cache;
  attn_sequence *sequences, *run;     /* [layers, slots], all in one cache; those of one call */
  int64_t *positions;                 /* [batch] */
  uint8_t *mask;                      /* of a tree, from the first one on */
  float *x, *y, *qkv, *o, *gate, *up; /* rows of a call; x and y are stride apart */
  float *last;                        /* rows that logits are made of */
  mamba2_rows state_rows;
  int64_t stride;
} decoder;

static void decoder_free(decoder *m) { work_free(&m->w); }

/* ---- weights */

/* Norms, attention and feed-forward of a layer; stem ends with a point. */
static int decoder_read_attention_(decoder *m, model_files *f, decoder_layer *l, int64_t index,
                                   model_weights kind, const char *stem) {
  const model_config *c = &m->config;
  work *w = &m->w;
  const int64_t q = c->heads * c->head, kv = c->kv_heads * c->head;
  const int64_t rows[] = {q, kv, kv}, first[] = {0, q, q + kv};
  static const char *const parts[] = {"q_proj", "k_proj", "v_proj"};
  char name[128];
#define DECODER_NAME_(part) (snprintf(name, sizeof name, "%s%s", stem, part), name)
#define DECODER_GAIN_(gain, part, n) \
  ((gain) = model_files_vector(w, f, DECODER_NAME_(part ".weight"), n))
  const int gemma = c->family->gemma;
  if (!DECODER_GAIN_(l->before_mix, "input_layernorm", c->width) ||
      !DECODER_GAIN_(*(gemma ? &l->after_mix : &l->before_ff), "post_attention_layernorm",
                     c->width) ||
      (gemma && (!DECODER_GAIN_(l->before_ff, "pre_feedforward_layernorm", c->width) ||
                 !DECODER_GAIN_(l->after_ff, "post_feedforward_layernorm", c->width))))
    return 0;
  for (int i = 0; i < 3; i++) {
    snprintf(name, sizeof name, "%sself_attn.%s", stem, parts[i]);
    if (!model_matrix_read(w, f, &l->qkv, kind, name, first[i], rows[i], q + 2 * kv, c->width))
      return 0;
  }
  l->rope = c->windowed[index] ? c->local_rope : c->rope;
  if (c->family->qk_norm) {
    l->qk_norm.eps = c->eps;
    l->qk_norm.gain_less_one = gemma;
    if (!DECODER_GAIN_(l->qk_norm.q_gain, "self_attn.q_norm", c->head) ||
        !DECODER_GAIN_(l->qk_norm.k_gain, "self_attn.k_norm", c->head))
      return 0;
    l->rope.norm = &l->qk_norm;
  }
  if (c->family->sinks &&
      !(l->attention.sinks = model_files_vector(w, f, DECODER_NAME_("self_attn.sinks"), c->heads)))
    return 0;
  l->attention.causal = 1;
  l->attention.scale = c->scale;
  l->attention.softcap = c->softcap;
  if (c->windowed[index]) l->attention.window = attn_window_of(c->window - 1, -1);
  if (!model_matrix_read(w, f, &l->o, kind, DECODER_NAME_("self_attn.o_proj"), 0, c->width,
                         c->width, q))
    return 0;
  if (c->sparse[index]) return experts_read(w, f, &l->experts, c, kind, stem);
  return model_matrix_read(w, f, &l->gate, kind, DECODER_NAME_("mlp.gate_proj"), 0, c->hidden,
                           c->hidden, c->width) &&
         model_matrix_read(w, f, &l->up, kind, DECODER_NAME_("mlp.up_proj"), 0, c->hidden,
                           c->hidden, c->width) &&
         model_matrix_read(w, f, &l->down, kind, DECODER_NAME_("mlp.down_proj"), 0, c->width,
                           c->width, c->hidden);
}

static int decoder_read_layer_(decoder *m, model_files *f, int64_t index, model_weights kind,
                               const char *prefix) {
  decoder_layer *l = &m->layers[index];
  char stem[64], name[96];
  snprintf(stem, sizeof stem, "%slayers.%" PRId64 ".", prefix, index);
  if (!m->config.family->mamba2) return decoder_read_attention_(m, f, l, index, kind, stem);
  snprintf(name, sizeof name, "%snorm.weight", stem);
  return (l->before_mix = model_files_vector(&m->w, f, name, m->config.width)) &&
         mamba2_read(&m->w, f, &l->mamba2, &m->config, kind, stem);
}

/* The embedding, in the type it has, and the product that makes logits. */
static int decoder_read_ends_(decoder *m, model_files *f, model_weights kind, const char *prefix) {
  const model_config *c = &m->config;
  const int64_t V = c->vocabulary, D = c->width;
  char name[64];
  safetensors *in;
  snprintf(name, sizeof name, "%s%s.weight", prefix,
           c->family->mamba2 ? "embeddings" : "embed_tokens");
  safetensor *t = model_files_fetch(&m->w, f, name, V, D);
  if (!t) return 0;
  m->embedding = attn_bhtd(NULL, t->dtype, 1, 1, V, D);
  const int64_t size = t->dtype == ATTN_F32 ? 4 : 2;
  m->embedding.data = work_take(&m->w, V * D, size);
  int fine = m->embedding.data != NULL;
  if (fine) memcpy(m->embedding.data, t->data, (size_t)(V * D * size));
  safetensors_drop(t);
  /* what config.json calls tied may be in the file, too: then it counts */
  const int has = model_files_find(f, "lm_head.weight", &in) != NULL;
  if (fine && c->tied && !has)
    fine = model_matrix_make(&m->w, &m->out, kind, m->embedding.dtype, V, D) &&
           model_matrix_fill(&m->w, &m->out, 0, m->embedding);
  else if (fine)
    fine = model_matrix_read(&m->w, f, &m->out, kind, "lm_head", 0, V, V, D);
  snprintf(name, sizeof name, "%s%s.weight", prefix, c->family->mamba2 ? "norm_f" : "norm");
  return fine && (m->norm = model_files_vector(&m->w, f, name, D)) != NULL;
}

/* What attn_rope will be asked for is legal. */
static int decoder_check_rope_(decoder *m, const attn_rope_params *rope) {
  return work_done(&m->w, attn_rope_frequencies(NULL, NULL, rope, m->config.head)) ||
         work_fail(&m->w, "config.json: the rope parameters of rope_type number %d cannot be used",
                   (int)rope->type);
}

static int decoder_read_(decoder *m, model_files *f, const char *folder, model_weights kind) {
  const char *prefix;
  if (!model_config_read(&m->w, &m->config, folder)) return 0;
  if (!m->config.family->mamba2 &&
      (!decoder_check_rope_(m, &m->config.rope) || !decoder_check_rope_(m, &m->config.local_rope)))
    return 0;
  prefix = m->config.family->mamba2 ? "backbone." : "model.";
  m->layers = work_take(&m->w, m->config.layers, sizeof *m->layers);
  if (!m->layers || !model_files_open(&m->w, f, folder)) return 0;
  if (!m->config.attention_bias) f->without_bias[0] = "self_attn.";
  if (!m->config.mlp_bias) f->without_bias[1] = "mlp.";
  if (!decoder_read_ends_(m, f, kind, prefix)) return 0;
  for (int64_t i = 0; i < m->config.layers; i++)
    if (!decoder_read_layer_(m, f, i, kind, prefix)) return 0;
  return model_files_known(&m->w, f);
}

/* Reads a model: FOLDER/config.json and its .safetensors. Memory: the weights as `kind` says, the embedding as it is in
 * the file, and while it reads one tensor of the file. */
static const char *decoder_load(decoder *m, const char *folder, model_weights kind) {
  model_files files = {0};
  memset(m, 0, sizeof *m);
  const int fine = decoder_read_(m, &files, folder, kind);
  model_files_free(&files);
  if (!fine) decoder_free(m);
  return fine ? NULL : m->w.error;
}

/* ---- sequences */

/* Numbers of a row in whole panels, as products write them. */
static int64_t decoder_panels_(int64_t n) {
  return (n + MODEL_PANEL - 1) / MODEL_PANEL * MODEL_PANEL;
}

/* Makes room for `slots` sequences of up to `room` tokens, and `batch` tokens in one step. Memory: 8 kv_heads head
 * layers bytes a token of the first two, 4 (3 width + 2 hidden + (2 heads + 2 kv_heads) head) one of the last. */
static const char *decoder_open(decoder *m, int64_t slots, int64_t room, int64_t batch) {
  const model_config *c = &m->config;
  const decoder_layer *first = m->layers; /* all are alike */
  const int64_t pages = room / DECODER_PAGE + (room % DECODER_PAGE != 0);
  work *w = &m->w;
  if (slots < 1 || room < 1 || batch < 1 || pages > INT32_MAX / c->layers / slots) {
    work_fail(w, "%" PRId64 " sequences of %" PRId64 " tokens cannot be held", slots, room);
    return w->error;
  }
  m->slots = slots;
  m->room = room;
  m->batch = batch;
  m->stride = decoder_panels_(c->width);
  m->len = work_take(w, slots, sizeof *m->len);
  m->x = work_floats(w, batch, m->stride);
  m->y = work_floats(w, batch, m->stride);
  m->last = work_floats(w, batch, m->stride);
  if (!m->len || !m->x || !m->y || !m->last) return w->error;
  if (c->family->mamba2) {
    for (int64_t i = 0; i < c->layers; i++)
      if (!mamba2_open(w, &m->layers[i].mamba2, c, slots)) return w->error;
    return mamba2_open_rows(w, &m->state_rows, &first->mamba2, c, batch) ? NULL : w->error;
  }
  const attn_cache_params sizes = {.k_heads = c->kv_heads,
                                   .dk = c->head,
                                   .pages = pages * c->layers * slots,
                                   .page = DECODER_PAGE};
  const size_t size = attn_cache_size(&sizes);
  void *memory = size && size <= PTRDIFF_MAX ? work_take(w, (int64_t)size, 1) : NULL;
  int32_t *tables = work_take(w, pages * c->layers * slots, sizeof *tables);
  m->sequences = work_take(w, c->layers * slots, sizeof *m->sequences);
  m->run = work_take(w, slots, sizeof *m->run);
  m->positions = work_take(w, batch, sizeof *m->positions);
  m->qkv = work_floats(w, batch, first->qkv.stride);
  m->o = work_floats(w, batch, c->heads * c->head);
  m->gate = work_floats(w, batch, decoder_panels_(c->hidden));
  m->up = work_floats(w, batch, decoder_panels_(c->hidden));
  if (!memory || !tables || !m->sequences || !m->run || !m->positions || !m->qkv || !m->o ||
      !m->gate || !m->up) {
    work_fail(w, "out of memory for %" PRId64 " sequences of %" PRId64 " tokens", slots, room);
    return w->error;
  }
  if (!work_done(w, attn_cache_open(&m->cache, memory, size, &sizes, &w->ctx))) return w->error;
  for (int64_t i = 0; i < c->layers * slots; i++)
    if (!work_done(w, attn_sequence_init(&m->sequences[i], tables + i * pages, pages, &w->ctx)))
      return w->error;
  return NULL;
}

/* Whether a sequence can be taken back: a state cannot. */
static int decoder_goes_back(const decoder *m) { return !m->config.family->mamba2; }

/* Whether some layer's window ends within so many tokens. */
static int decoder_windowed(const decoder *m, int64_t len) {
  for (int64_t i = 0; i < m->config.layers; i++)
    if (m->config.windowed[i] && len > m->config.window) return 1;
  return 0;
}

/* A slot's sequence goes back to len tokens; 0 frees what it holds. */
static const char *decoder_back(decoder *m, int64_t slot, int64_t len) {
  const model_config *c = &m->config;
  for (int64_t i = 0; i < c->layers; i++)
    if (c->family->mamba2) {
      if (!len)
        mamba2_clear(&m->layers[i].mamba2, c, slot);
      else if (len != m->len[slot])
        return work_fail(&m->w, "a state cannot go back"), m->w.error;
    } else if (!work_done(&m->w, attn_cache_rollback(&m->cache, &m->sequences[i * m->slots + slot],
                                                     len, &m->w.ctx))) {
      return m->w.error;
    }
  m->len[slot] = len;
  return NULL;
}

/* Of the last n tokens, a tree, the path to `leaf` stays: attn_cache_accept. */
static const char *decoder_accept(decoder *m, int64_t slot, const int32_t *parent, int64_t n,
                                  int64_t leaf) {
  for (int64_t i = 0; i < m->config.layers; i++)
    if (!work_done(&m->w, attn_cache_accept(&m->cache, &m->sequences[i * m->slots + slot], parent,
                                            n, leaf, &m->w.ctx)))
      return m->w.error;
  m->len[slot] = m->sequences[slot].len;
  return NULL;
}

/* ---- tokens to logits */

/* What one sequence has in a step: n tokens behind those of its slot. They follow each other, or with parent they are
 * a tree (attn_draft_mask). Logits are made of the last `rows` of them. */
typedef struct decoder_part {
  int64_t slot, n, rows;
  const int64_t *tokens;
  const int32_t *parent;
} decoder_part;

/* y = rms(y), in place; with x that is x += y, y = rms(x). */
static int decoder_norm_(decoder *m, attn_tensor y, const attn_tensor *x, const float *gain) {
  const model_config *c = &m->config;
  attn_layer_norm_params norm = {
      .norm = {
          .gain = gain, .eps = c->eps, .kind = ATTN_NORM_RMS, .gain_less_one = c->family->gemma}};
  if (x) norm.residual = norm.sum = *x;
  return WORK_CALL(&m->w, attn_rms_norm, (y, y, &norm, &m->w.ctx));
}

/* Keys and values of `n` sequences with T tokens each into the cache, and o = what their tokens attend to. The rows
 * begin at `row`; parts are alike: T = 1, or n = 1. */
static int decoder_run_(decoder *m, int64_t index, const decoder_part *parts, int64_t n, int64_t T,
                        int64_t row) {
  const model_config *c = &m->config;
  const decoder_layer *l = &m->layers[index];
  const int64_t stride = l->qkv.stride, width = c->heads * c->head;
  attn_tensor q = attn_bthd(m->qkv + row * stride, ATTN_F32, n, T, c->heads, c->head), k, v;
  q.stride_len = stride;
  q.stride_batch = T * stride;
  k = v = q;
  k.data = (float *)q.data + width;
  v.data = (float *)q.data + width + c->kv_heads * c->head;
  k.heads = v.heads = c->kv_heads;
  const attn_tensor o = attn_bthd(m->o + row * width, ATTN_F32, n, T, c->heads, c->head);
  attn_rope_params rope = l->rope; /* keys are rotated as the cache stores them */
  attn_sdpa_params attention = l->attention;
  const attn_append_params rotated = {.rope = &rope};
  rope.keys = 1;
  attention.one_order = m->one_order;
  if (parts->parent) {
    rope.positions = m->positions + row;
    attention.mask_new = 1;
    if (!m->mask) m->mask = work_take(&m->w, m->batch, (m->batch + 7) / 8);
    if (!m->mask) return work_fail(&m->w, "out of memory for a tree of drafts");
    attention.mask = attn_mask_bits(m->mask, 1, 1, T, T);
    if (!work_done(&m->w, attn_draft_mask(m->mask, (T + 7) / 8, parts->parent, T))) return 0;
  }
  attn_sequence *all = m->sequences + index * m->slots;
  for (int64_t i = 0; i < n; i++) m->run[i] = all[parts[i].slot];
  attn_ctx *ctx = &m->w.ctx;
  if (!WORK_CALL(&m->w, attn_cache_append, (&m->cache, m->run, n, k, v, &rotated, ctx))) return 0;
  for (int64_t i = 0; i < n; i++) all[parts[i].slot] = m->run[i];
  return WORK_CALL(&m->w, attn_cache_sdpa, (o, q, &m->cache, m->run, n, &attention, ctx));
}

/* o = what all tokens of a step attend to. Sequences with one token each are one call: its bits are those that each has
 * alone. */
static int decoder_attend_(decoder *m, int64_t index, const decoder_part *parts, int64_t count,
                           int64_t rows) {
  const model_config *c = &m->config;
  const decoder_layer *l = &m->layers[index];
  attn_tensor q = attn_bthd(m->qkv, ATTN_F32, 1, rows, c->heads, c->head);
  q.stride_len = l->qkv.stride;
  q.stride_batch = rows * q.stride_len;
  attn_rope_params rope = l->rope;
  rope.positions = m->positions;
  if (!WORK_CALL(&m->w, attn_rope, (q, q, &rope, &m->w.ctx))) return 0;
  for (int64_t i = 0, row = 0, n; i < count; i += n) {
    for (n = 1; parts[i].n == 1 && i + n < count && parts[i + n].n == 1;) n++;
    if (!decoder_run_(m, index, parts + i, n, parts[i].n, row)) return 0;
    row += n * parts[i].n;
  }
  return 1;
}

/* y = what the mixer of a layer makes of the normed rows y. */
static int decoder_mix_(decoder *m, int64_t index, const decoder_part *parts, int64_t count,
                        int64_t rows) {
  const decoder_layer *l = &m->layers[index];
  const model_config *c = &m->config;
  const attn_tensor y = work_rows(m->y, rows, c->width, m->stride);
  if (!c->family->mamba2) {
    const int64_t width = c->heads * c->head;
    return model_product(&m->w, m->qkv, y, &l->qkv, ATTN_ACT_NONE, 0) &&
           decoder_attend_(m, index, parts, count, rows) &&
           model_product(&m->w, m->y, work_rows(m->o, rows, width, width), &l->o, ATTN_ACT_NONE, 0);
  }
  const mamba2_rows *r = &m->state_rows;
  const int64_t inner = l->mamba2.out.w.len;
  if (!model_product(&m->w, r->in, y, &l->mamba2.in, ATTN_ACT_NONE, 0)) return 0;
  for (int64_t i = 0, row = 0; i < count; row += parts[i++].n)
    if (!mamba2_mix(&m->w, &l->mamba2, c, r, parts[i].slot, row, parts[i].n)) return 0;
  return model_product(&m->w, m->y, work_rows(r->o, rows, inner, inner), &l->mamba2.out,
                       ATTN_ACT_NONE, 0);
}

/* One layer. y is what is still to be added to x, before (but for the first layer) and after. */
static int decoder_layer_(decoder *m, int64_t index, const decoder_part *parts, int64_t count,
                          int64_t rows) {
  const decoder_layer *l = &m->layers[index];
  const model_config *c = &m->config;
  work *w = &m->w;
  const attn_tensor x = work_rows(m->x, rows, c->width, m->stride);
  const attn_tensor y = work_rows(m->y, rows, c->width, m->stride);
  if (!decoder_norm_(m, y, index ? &x : NULL, l->before_mix) ||
      !decoder_mix_(m, index, parts, count, rows) ||
      (l->after_mix && !decoder_norm_(m, y, NULL, l->after_mix)))
    return 0;
  if (!l->before_ff) return 1;
  if (l->experts.k)
    return decoder_norm_(m, y, &x, l->before_ff) &&
           WORK_CALL(w, attn_expert_rows, (y, y, &l->experts, &w->ctx));
  const attn_tensor gate = work_rows(m->gate, rows, c->hidden, l->gate.stride);
  const attn_activate_params by = {.gate = work_rows(m->up, rows, c->hidden, l->up.stride)};
  return decoder_norm_(m, y, &x, l->before_ff) &&
         model_product(w, m->gate, y, &l->gate, c->activation, 0) &&
         model_product(w, m->up, y, &l->up, ATTN_ACT_NONE, 0) &&
         WORK_CALL(w, attn_activate, (gate, gate, &by, &w->ctx)) &&
         model_product(w, m->y, gate, &l->down, ATTN_ACT_NONE, 0) &&
         (!l->after_ff || decoder_norm_(m, y, NULL, l->after_ff));
}

/* x = y = the vectors of the tokens, and the positions of these; 0 after a sentence. */
static int decoder_embed_(decoder *m, const decoder_part *parts, int64_t count) {
  const model_config *c = &m->config;
  const attn_tensor none = {0};
  for (int64_t i = 0, row = 0; i < count; row += parts[i++].n) {
    const decoder_part *p = &parts[i];
    const attn_learned_params ids = {.positions = p->tokens};
    float *x = m->x + row * m->stride;
    if (!work_done(&m->w, attn_learned_position(work_rows(x, p->n, c->width, m->stride), none,
                                                m->embedding, &ids, &m->w.ctx)))
      return 0;
    for (int64_t j = 0; c->embedding_scale != 0 && j < p->n * m->stride; j++)
      x[j] *= c->embedding_scale;
    memcpy(m->y + row * m->stride, x, (size_t)(p->n * m->stride) * sizeof *x);
    if (!m->positions) continue;
    for (int64_t j = 0; j < p->n; j++) m->positions[row + j] = m->len[p->slot] + j;
    if (p->parent && !work_done(&m->w, attn_draft_positions(m->positions + row, p->parent, p->n,
                                                            m->len[p->slot])))
      return 0;
  }
  return 1;
}

static int decoder_logits_(decoder *m, const decoder_part *parts, int64_t count, float *logits) {
  const model_config *c = &m->config;
  int64_t rows = 0;
  for (int64_t i = 0, row = 0; i < count; row += parts[i++].n) {
    const int64_t n = parts[i].rows, at = (row + parts[i].n - n) * m->stride;
    if (!n) continue;
    const attn_tensor x = work_rows(m->x + at, n, c->width, m->stride);
    const attn_tensor y = work_rows(m->y + at, n, c->width, m->stride);
    if (!decoder_norm_(m, y, &x, m->norm)) return 0;
    memcpy(m->last + rows * m->stride, m->y + at, (size_t)(n * m->stride) * sizeof *m->y);
    rows += n;
  }
  if (!rows) return 1;
  const attn_tensor y = work_rows(m->last, rows, c->width, m->stride);
  return model_product(&m->w, logits, y, &m->out, ATTN_ACT_NONE, c->final_softcap);
}

/* Tokens of `count` sequences go in, each of another slot; the logits that parts ask for come out, row after row,
 * m->out.stride numbers apart: one for each token that may follow. */
static const char *decoder_step(decoder *m, const decoder_part *parts, int64_t count,
                                float *logits) {
  work *w = &m->w;
  int64_t rows = 0;
  if (count < 1 || count > m->slots) return work_fail(w, "a step of no sequence"), w->error;
  for (int64_t i = 0; i < count; i++) {
    const decoder_part *p = &parts[i];
    if (p->slot < 0 || p->slot >= m->slots || p->n < 1 || p->n > m->batch - rows || p->rows < 0 ||
        p->rows > p->n || p->n > m->room - m->len[p->slot] ||
        (p->parent && !decoder_goes_back(m))) {
      work_fail(w,
                "%" PRId64 " tokens cannot go in here: a sequence has room for %" PRId64
                ", a step takes up to %" PRId64,
                p->n, m->room, m->batch);
      return w->error;
    }
    rows += p->n;
  }
  if (!decoder_embed_(m, parts, count)) return w->error;
  for (int64_t i = 0; i < m->config.layers; i++)
    if (!decoder_layer_(m, i, parts, count, rows)) return w->error;
  for (int64_t i = 0; i < count; i++) m->len[parts[i].slot] += parts[i].n;
  return decoder_logits_(m, parts, count, logits) ? NULL : w->error;
}

#endif
