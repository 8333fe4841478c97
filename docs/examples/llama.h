/* llama.h owns a decoder of the Llama family: weights from a safetensors file, keys and values in a
 * cache, and the way from tokens to logits. For each token, with rms(x) = x / sqrt(mean x^2 + eps):
 *
 *   x  = embed_tokens[token]
 *   in each layer:
 *     q, k, v = rms(x) input_layernorm, times q_proj, k_proj, v_proj (and their biases, if any)
 *     x += o_proj attention(rotated q, rotated k of all tokens so far, v)
 *     h  = rms(x) post_attention_layernorm
 *     x += down_proj (silu(gate_proj h) up_proj h)
 *   logits = lm_head (rms(x) norm)
 *
 * All work is attn.h's but the RMS norm, which is written here. Sizes are those of the tensors; what
 * shapes do not tell is in llama_options. Sources: Touvron et al. 2023, arXiv 2302.13971; RMS norm:
 * Zhang and Sennrich 2019, arXiv 1910.07467; gated feed-forward: Shazeer 2020, arXiv 2002.05202.
 *
 * Functions return null, or a sentence that says what went wrong and lives as long as the struct; then
 * nothing but llama_free may follow. */
#ifndef EXAMPLES_LLAMA_H
#define EXAMPLES_LLAMA_H

#include "safetensors.h"

#include <math.h>

enum { LLAMA_PANEL = 64, LLAMA_PAGE = 64 };

typedef struct llama_options {
  int64_t heads;         /* of the queries; required */
  attn_rope_params rope; /* base (0 = 10000) and the fields of rope_scaling */
  float eps;             /* of the norms; 0 = 1e-5 */
  int one_order; /* 1: the same bits however the tokens are split into calls; slower steps */
} llama_options;

/* Weights of y = x w^T + bias as attn_gemm reads them in place: 64 outputs are a head, so that a step
 * walks through memory in order. Rows of y are in whole panels, the last one's rest is 0. */
typedef struct llama_matrix {
  attn_tensor w;    /* [1, panels, inputs, 64] */
  attn_tensor bias; /* [1, panels, 1, 64], or absent */
  int64_t stride;   /* outputs in whole panels: from one row of y to the next */
} llama_matrix;

typedef struct llama_layer {
  const float *input_norm, *post_norm;
  llama_matrix qkv, o, gate, up, down; /* q, k and v are one product */
} llama_layer;

typedef struct llama {
  llama_options options;
  int64_t layers, width, heads, kv_heads, head, hidden, vocabulary;
  attn_tensor embedding; /* [1, 1, vocabulary, width], of the file's type */
  llama_layer *layer;
  const float *norm;
  llama_matrix out; /* rows of logits are out.stride apart */
  /* llama_open: */
  int64_t room, batch, len; /* tokens the cache can hold, a call can take, the cache holds */
  attn_cache cache;
  attn_sequence *sequences;           /* one a layer, all in one cache */
  float *x, *y, *qkv, *o, *gate, *up; /* rows of a call; x and y are stride apart */
  int64_t stride;
  attn_ctx ctx; /* may be set between calls, but for the workspace */
  void *blocks_;
  char error[512];
} llama;

static int llama_fail_(llama *m, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(m->error, sizeof m->error, format, arguments);
  va_end(arguments);
  return 0;
}

/* ---- memory: zeroed, at a multiple of 64 bytes, released with the model */

static void *llama_take_(llama *m, int64_t count, int64_t each) {
  if (count <= (PTRDIFF_MAX - 128) / each) {
    char *block = calloc(1, (size_t)(count * each) + sizeof(void *) + 64);
    if (block) {
      memcpy(block, &m->blocks_, sizeof(void *));
      m->blocks_ = block;
      block += sizeof(void *);
      return block + (64 - (uintptr_t)block % 64) % 64;
    }
  }
  llama_fail_(m, "out of memory");
  return NULL;
}

static float *llama_floats_(llama *m, int64_t rows, int64_t columns) {
  if (rows <= INT64_MAX / columns) return llama_take_(m, rows * columns, sizeof(float));
  llama_fail_(m, "out of memory");
  return NULL;
}

static void llama_free(llama *m) {
  while (m->blocks_) {
    void *block = m->blocks_;
    memcpy(&m->blocks_, block, sizeof(void *));
    free(block);
  }
  free(m->ctx.workspace);
  m->ctx.workspace = NULL;
  m->ctx.workspace_size = 0;
}

/* The workspace holds so many bytes; it grows in the first calls. */
static int llama_room_(llama *m, size_t bytes) {
  if (bytes <= m->ctx.workspace_size || bytes == ATTN_WORKSPACE_REJECTED)
    return 1; /* of what is rejected the call says why */
  free(m->ctx.workspace);
  m->ctx.workspace = malloc(bytes);
  m->ctx.workspace_size = m->ctx.workspace ? bytes : 0;
  return m->ctx.workspace || llama_fail_(m, "out of memory");
}

static int llama_done_(llama *m, attn_status status) {
  if (status == ATTN_OK) return 1;
  return llama_fail_(m, "%s: %s", attn_status_string(status),
                     m->ctx.reason ? m->ctx.reason : "no reason given");
}

/* ---- weights */

static const char *const llama_outside_[] = {"model.embed_tokens.weight", "model.norm.weight",
                                             "lm_head.weight"};
static const char *const llama_inside_[] = {
    "input_layernorm.weight",       "post_attention_layernorm.weight",
    "self_attn.q_proj.weight",      "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",      "self_attn.o_proj.weight",
    "self_attn.q_proj.bias",        "self_attn.k_proj.bias",
    "self_attn.v_proj.bias",        "mlp.gate_proj.weight",
    "mlp.up_proj.weight",           "mlp.down_proj.weight",
    "self_attn.rotary_emb.inv_freq" /* old files have it; it is what --rope-base says */
};

/* The layer of a tensor, -1 for one outside of all layers, -2 for one of some other architecture. */
static int64_t llama_layer_of_(const char *name) {
  for (size_t i = 0; i < sizeof llama_outside_ / sizeof *llama_outside_; i++)
    if (!strcmp(name, llama_outside_[i])) return -1;
  if (strncmp(name, "model.layers.", 13) || name[13] < '0' || name[13] > '9') return -2;
  char *rest;
  const long long layer = strtoll(name + 13, &rest, 10);
  if (name[13] == '0' && rest != name + 14) return -2; /* 01 would be a second name of 1 */
  for (size_t i = 0; *rest == '.' && i < sizeof llama_inside_ / sizeof *llama_inside_; i++)
    if (!strcmp(rest + 1, llama_inside_[i])) return layer;
  return -2;
}

/* Every tensor is one of the model: a stranger would mean another formula. Counts the layers. */
static int llama_count_(llama *m, const safetensors *st) {
  for (size_t i = 0; i < st->count; i++) {
    const int64_t layer = llama_layer_of_(st->tensors[i].name);
    if (layer < -1)
      return llama_fail_(m, "tensor '%.*s' is none of a plain Llama decoder", SAFETENSORS_SHOWN,
                         st->tensors[i].name);
    if (layer >= (int64_t)st->count)
      return llama_fail_(m, "layers before tensor '%.*s' are missing", SAFETENSORS_SHOWN,
                         st->tensors[i].name);
    if (layer >= m->layers) m->layers = layer + 1;
  }
  return 1;
}

/* The extents of a matrix. */
static int llama_shape_(llama *m, const safetensors *st, const char *name, int64_t *rows,
                        int64_t *columns) {
  const safetensor *t = safetensors_find(st, name);
  if (!t) return llama_fail_(m, "there is no tensor '%s'", name);
  if (t->rank != 2 || !t->shape[0] || !t->shape[1])
    return llama_fail_(m, "tensor '%s' must be a matrix", name);
  *rows = t->shape[0];
  *columns = t->shape[1];
  return 1;
}

/* All sizes, from four matrices and the number of heads. */
static int llama_sizes_(llama *m, const safetensors *st) {
  int64_t queries, keys, width;
  if (!llama_shape_(m, st, "model.embed_tokens.weight", &m->vocabulary, &m->width) ||
      !llama_shape_(m, st, "model.layers.0.self_attn.q_proj.weight", &queries, &width) ||
      !llama_shape_(m, st, "model.layers.0.self_attn.k_proj.weight", &keys, &width) ||
      !llama_shape_(m, st, "model.layers.0.mlp.gate_proj.weight", &m->hidden, &width))
    return 0;
  m->heads = m->options.heads;
  if (m->vocabulary > INT32_MAX) return llama_fail_(m, "the vocabulary is too large");
  if (m->heads < 1 || queries % m->heads)
    return llama_fail_(m, "%" PRId64 " heads do not divide the %" PRId64 " rows of q_proj",
                       m->heads, queries);
  m->head = queries / m->heads;
  m->kv_heads = keys / m->head;
  if (m->head % 2)
    return llama_fail_(m,
                       "%" PRId64 " heads would be %" PRId64
                       " numbers wide; pairs are rotated, so the width must be even",
                       m->heads, m->head);
  if (!m->kv_heads || keys % m->head || m->heads % m->kv_heads)
    return llama_fail_(m,
                       "%" PRId64 " heads of width %" PRId64 " do not fit the %" PRId64
                       " rows of k_proj: their heads must divide those of q_proj",
                       m->heads, m->head, keys);
  return 1;
}

static int llama_vector_(llama *m, safetensors *st, const float **x, const char *name, int64_t n) {
  float *to = llama_floats_(m, 1, n);
  *x = to;
  if (!to) return 0;
  const char *error = safetensors_vector(st, to, name, n);
  return !error || llama_fail_(m, "%s", error);
}

static int llama_matrix_(llama *m, llama_matrix *matrix, int64_t outputs, int64_t inputs) {
  const int64_t panels = outputs / LLAMA_PANEL + (outputs % LLAMA_PANEL != 0);
  matrix->stride = panels * LLAMA_PANEL;
  float *w = llama_floats_(m, matrix->stride, inputs);
  matrix->w = attn_bhtd(w, ATTN_F32, 1, panels, inputs, LLAMA_PANEL);
  return w != NULL;
}

/* Outputs from `first` on: rows of tensor 'name.weight'. */
static int llama_fill_(llama *m, safetensors *st, llama_matrix *matrix, int64_t first,
                       const char *name, int64_t rows) {
  attn_tensor from;
  char full[128];
  const int64_t inputs = matrix->w.len;
  snprintf(full, sizeof full, "%s.weight", name);
  const char *error = safetensors_matrix(st, &from, full, rows, inputs);
  if (error) return llama_fail_(m, "%s", error);
  float *wide = malloc((size_t)inputs * LLAMA_PANEL * sizeof *wide);
  if (!wide) return llama_fail_(m, "out of memory");
  int fine = 1;
  for (int64_t i = 0, n; i < rows && fine; i += n) { /* rows of one panel at once */
    const int64_t at = (first + i) % LLAMA_PANEL;
    n = rows - i < LLAMA_PANEL - at ? rows - i : LLAMA_PANEL - at;
    attn_tensor x = from;
    x.data = (char *)from.data + i * inputs * (from.dtype == ATTN_F32 ? 4 : 2);
    x.len = n;
    /* the identity: only the type changes */
    fine =
        llama_done_(m, attn_activate(attn_bhtd(wide, ATTN_F32, 1, 1, n, inputs), x, NULL, &m->ctx));
    float *to = (float *)matrix->w.data + (first + i - at) * inputs + at;
    for (int64_t k = 0; k < inputs; k++)
      for (int64_t r = 0; r < n; r++) to[k * LLAMA_PANEL + r] = wide[r * inputs + k];
  }
  free(wide);
  return fine;
}

/* The bias of the same outputs, if the file has one. */
static int llama_bias_(llama *m, safetensors *st, llama_matrix *matrix, int64_t first,
                       const char *name, int64_t rows) {
  char full[128];
  snprintf(full, sizeof full, "%s.bias", name);
  if (!safetensors_find(st, full)) return 1;
  if (!matrix->bias.data) {
    float *bias = llama_floats_(m, 1, matrix->stride);
    if (!bias) return 0;
    matrix->bias = attn_bhtd(bias, ATTN_F32, 1, matrix->w.heads, 1, LLAMA_PANEL);
  }
  const char *error = safetensors_vector(st, (float *)matrix->bias.data + first, full, rows);
  return !error || llama_fail_(m, "%s", error);
}

/* A matrix that is one tensor. */
static int llama_whole_(llama *m, safetensors *st, llama_matrix *matrix, const char *name,
                        int64_t outputs, int64_t inputs) {
  return llama_matrix_(m, matrix, outputs, inputs) && llama_fill_(m, st, matrix, 0, name, outputs);
}

static int llama_layer_(llama *m, safetensors *st, int64_t index) {
  llama_layer *layer = &m->layer[index];
  const int64_t q = m->heads * m->head, kv = m->kv_heads * m->head;
  const int64_t rows[] = {q, kv, kv}, first[] = {0, q, q + kv};
  static const char *const parts[] = {"q_proj", "k_proj", "v_proj"};
  char name[96];
  const int stem = snprintf(name, sizeof name, "model.layers.%" PRId64 ".", index);
#define LLAMA_NAME_(part) (snprintf(name + stem, sizeof name - (size_t)stem, "%s", part), name)
  if (!llama_vector_(m, st, &layer->input_norm, LLAMA_NAME_("input_layernorm.weight"), m->width) ||
      !llama_vector_(m, st, &layer->post_norm, LLAMA_NAME_("post_attention_layernorm.weight"),
                     m->width) ||
      !llama_matrix_(m, &layer->qkv, q + 2 * kv, m->width))
    return 0;
  for (int i = 0; i < 3; i++) {
    snprintf(name + stem, sizeof name - (size_t)stem, "self_attn.%s", parts[i]);
    if (!llama_fill_(m, st, &layer->qkv, first[i], name, rows[i]) ||
        !llama_bias_(m, st, &layer->qkv, first[i], name, rows[i]))
      return 0;
  }
  return llama_whole_(m, st, &layer->o, LLAMA_NAME_("self_attn.o_proj"), m->width, q) &&
         llama_whole_(m, st, &layer->gate, LLAMA_NAME_("mlp.gate_proj"), m->hidden, m->width) &&
         llama_whole_(m, st, &layer->up, LLAMA_NAME_("mlp.up_proj"), m->hidden, m->width) &&
         llama_whole_(m, st, &layer->down, LLAMA_NAME_("mlp.down_proj"), m->width, m->hidden);
#undef LLAMA_NAME_
}

static int llama_weights_(llama *m, safetensors *st) {
  if (!llama_count_(m, st) || !llama_sizes_(m, st)) return 0;
  const char *error =
      safetensors_matrix(st, &m->embedding, "model.embed_tokens.weight", m->vocabulary, m->width);
  if (error) return llama_fail_(m, "%s", error);
  const size_t bytes =
      (size_t)(m->vocabulary * m->width * (m->embedding.dtype == ATTN_F32 ? 4 : 2));
  void *rows = llama_take_(m, (int64_t)bytes, 1); /* the file is released, rows are still read */
  if (!rows) return 0;
  memcpy(rows, m->embedding.data, bytes);
  m->embedding.data = rows;
  /* without lm_head the embedding is used for both */
  const int tied = !safetensors_find(st, "lm_head.weight");
  m->layer = llama_take_(m, m->layers, sizeof *m->layer);
  if (!m->layer || !llama_vector_(m, st, &m->norm, "model.norm.weight", m->width) ||
      !llama_whole_(m, st, &m->out, tied ? "model.embed_tokens" : "lm_head", m->vocabulary,
                    m->width))
    return 0;
  for (int64_t i = 0; i < m->layers; i++)
    if (!llama_layer_(m, st, i)) return 0;
  return 1;
}

/* Reads the weights; the file is closed and forgotten then. Memory: 4 bytes a weight, the embedding as
 * it is in the file, and while it reads the file itself. */
static const char *llama_load(llama *m, const char *path, const llama_options *options) {
  safetensors st;
  memset(m, 0, sizeof *m);
  m->options = *options;
  m->options.rope.layout = ATTN_ROPE_HALF;
  if (m->options.eps == 0) m->options.eps = 1e-5f;
  const char *error = safetensors_read(&st, path);
  if (error) {
    llama_fail_(m, "%s", error);
    return m->error;
  }
  const int fine = llama_weights_(m, &st);
  safetensors_free(&st);
  if (!fine) llama_free(m);
  return fine ? NULL : m->error;
}

/* ---- tokens to logits */

/* Makes room for `room` tokens in all and `batch` in one call. Memory: 8 kv_heads head layers bytes a
 * token of the first, 8 (width + hidden + (heads + kv_heads) head) one of the second. */
static const char *llama_open(llama *m, int64_t room, int64_t batch) {
  const int64_t pages = room / LLAMA_PAGE + (room % LLAMA_PAGE != 0);
  if (room < 1 || batch < 1 || batch > room || pages > INT32_MAX / m->layers) {
    llama_fail_(m, "a context of %" PRId64 " tokens cannot be held", room);
    return m->error;
  }
  const attn_cache_params sizes = {
      .k_heads = m->kv_heads, .dk = m->head, .pages = pages * m->layers, .page = LLAMA_PAGE};
  const size_t size = attn_cache_size(&sizes);
  const llama_layer *layer = m->layer; /* all are alike */
  void *memory = size && size <= PTRDIFF_MAX ? llama_take_(m, (int64_t)size, 1) : NULL;
  int32_t *tables = llama_take_(m, pages * m->layers, sizeof *tables);
  m->sequences = llama_take_(m, m->layers, sizeof *m->sequences);
  m->stride = layer->down.stride;
  m->x = llama_floats_(m, batch, m->stride);
  m->y = llama_floats_(m, batch, m->stride);
  m->qkv = llama_floats_(m, batch, layer->qkv.stride);
  m->o = llama_floats_(m, batch, m->heads * m->head);
  m->gate = llama_floats_(m, batch, layer->gate.stride);
  m->up = llama_floats_(m, batch, layer->up.stride);
  if (!memory || !tables || !m->sequences || !m->x || !m->y || !m->qkv || !m->o || !m->gate ||
      !m->up) {
    llama_fail_(m, "out of memory for a context of %" PRId64 " tokens", room);
    return m->error;
  }
  if (!llama_done_(m, attn_cache_open(&m->cache, memory, size, &sizes, &m->ctx))) return m->error;
  for (int64_t i = 0; i < m->layers; i++) {
    m->sequences[i].table = tables + i * pages;
    m->sequences[i].table_len = pages;
  }
  m->room = room;
  m->batch = batch;
  return NULL;
}

/* Rows of so many numbers. */
static attn_tensor llama_rows_(float *data, int64_t rows, int64_t columns, int64_t stride) {
  attn_tensor t = attn_bhtd(data, ATTN_F32, 1, 1, rows, columns);
  t.stride_len = stride;
  return t;
}

/* y = f(x w^T + bias) */
static int llama_product_(llama *m, float *y, attn_tensor x, const llama_matrix *w,
                          attn_activation f) {
  const attn_gemm_params params = {.bias = w->bias, .activation = f};
  const attn_tensor to = attn_bthd(y, ATTN_F32, 1, x.len, w->w.heads, LLAMA_PANEL);
  return llama_room_(m, attn_gemm_workspace(to, x, w->w, &params, &m->ctx)) &&
         llama_done_(m, attn_gemm(to, x, w->w, &params, &m->ctx));
}

/* x += f, unless that is null, and y = x / sqrt(mean x^2 + eps) gain. y may be f. */
static void llama_norm_(const llama *m, float *y, float *x, const float *f, const float *gain,
                        int64_t rows) {
  for (int64_t i = 0; i < rows; i++) {
    const int64_t at = i * m->stride;
    double squares = 0;
    for (int64_t c = 0; c < m->width; c++) {
      if (f) x[at + c] += f[at + c];
      squares += (double)x[at + c] * (double)x[at + c];
    }
    const float scale = (float)(1 / sqrt(squares / (double)m->width + (double)m->options.eps));
    for (int64_t c = 0; c < m->width; c++) y[at + c] = x[at + c] * scale * gain[c];
  }
}

/* o = what the n new tokens attend to among all so far. */
static int llama_attend_(llama *m, int64_t index, int64_t n) {
  const int64_t stride = m->layer[index].qkv.stride, width = m->head;
  attn_tensor q = attn_bthd(m->qkv, ATTN_F32, 1, n, m->heads, width), k, v;
  q.stride_len = stride;
  q.stride_batch = n * stride;
  k = v = q;
  k.data = m->qkv + m->heads * width;
  v.data = m->qkv + (m->heads + m->kv_heads) * width;
  k.heads = v.heads = m->kv_heads;
  const attn_tensor to = attn_bthd(m->o, ATTN_F32, 1, n, m->heads, width);
  attn_rope_params rope =
      m->options.rope; /* of queries; keys are rotated as the cache stores them */
  rope.start = m->len;
  const attn_append_params rotated = {.rope = &m->options.rope};
  const attn_sdpa_params causal = {.causal = 1, .one_order = m->options.one_order};
  attn_sequence *sequence = &m->sequences[index];
  return llama_room_(m, attn_rope_workspace(q, q, &rope, &m->ctx)) &&
         llama_done_(m, attn_rope(q, q, &rope, &m->ctx)) &&
         llama_room_(
             m, attn_cache_append_workspace(&m->cache, sequence, 1, k, v, &rotated, &m->ctx)) &&
         llama_done_(m, attn_cache_append(&m->cache, sequence, 1, k, v, &rotated, &m->ctx)) &&
         llama_room_(m,
                     attn_cache_sdpa_workspace(to, q, &m->cache, sequence, 1, &causal, &m->ctx)) &&
         llama_done_(m, attn_cache_sdpa(to, q, &m->cache, sequence, 1, &causal, &m->ctx));
}

/* One layer for n new tokens. y is what is still to be added to x, before and after. */
static int llama_run_(llama *m, int64_t index, int64_t n) {
  const llama_layer *layer = &m->layer[index];
  const int64_t width = m->heads * m->head;
  const attn_tensor y = llama_rows_(m->y, n, m->width, m->stride);
  const attn_tensor o = llama_rows_(m->o, n, width, width);
  const attn_tensor gate = llama_rows_(m->gate, n, m->hidden, layer->gate.stride);
  const attn_activate_params by = {.gate = llama_rows_(m->up, n, m->hidden, layer->up.stride)};
  llama_norm_(m, m->y, m->x, index ? m->y : NULL, layer->input_norm, n);
  if (!llama_product_(m, m->qkv, y, &layer->qkv, ATTN_ACT_NONE) || !llama_attend_(m, index, n) ||
      !llama_product_(m, m->y, o, &layer->o, ATTN_ACT_NONE))
    return 0;
  llama_norm_(m, m->y, m->x, m->y, layer->post_norm, n);
  return llama_product_(m, m->gate, y, &layer->gate, ATTN_ACT_SILU) &&
         llama_product_(m, m->up, y, &layer->up, ATTN_ACT_NONE) &&
         llama_done_(m, attn_activate(gate, gate, &by, &m->ctx)) &&
         llama_product_(m, m->y, gate, &layer->down, ATTN_ACT_NONE);
}

/* n more tokens, 1 .. batch, go in; the logits behind the last `rows` of them come out, out.stride
 * numbers apart: one for each token that may follow. */
static const char *llama_forward(llama *m, const int64_t *tokens, int64_t n, float *logits,
                                 int64_t rows) {
  if (n < 1 || n > m->batch || rows < 0 || rows > n || n > m->room - m->len) {
    llama_fail_(m,
                "%" PRId64 " tokens cannot follow %" PRId64 ": the context holds %" PRId64
                ", a call takes 1 to %" PRId64,
                n, m->len, m->room, m->batch);
    return m->error;
  }
  const attn_learned_params ids = {.positions = tokens};
  const attn_tensor none = {0}, x = llama_rows_(m->x, n, m->width, m->stride);
  if (!llama_done_(m, attn_learned_position(x, none, m->embedding, &ids, &m->ctx))) return m->error;
  for (int64_t i = 0; i < m->layers; i++)
    if (!llama_run_(m, i, n)) return m->error;
  m->len += n;
  if (!rows) return NULL;
  float *last = m->y + (n - rows) * m->stride;
  llama_norm_(m, last, m->x + (n - rows) * m->stride, last, m->norm, rows);
  const attn_tensor y = llama_rows_(last, rows, m->width, m->stride);
  return llama_product_(m, logits, y, &m->out, ATTN_ACT_NONE) ? NULL : m->error;
}

#endif
