/* encoder_read.h owns how an encoder gets into memory: config.json and model.safetensors of one folder, as
 * HuggingFace checkpoints have them, become the blocks of attn.h, by the table in encoder_family.h. A
 * BERT may also be a .safetensors file alone: its sizes follow from the tensors, the heads are told.
 *
 * Whatever the files say is checked: a size that contradicts a tensor, a tensor that is missing, one that
 * no formula here reads, an option of config.json that means another formula. Functions return null, or a
 * sentence that says what is wrong and lives as long as the model. */
#ifndef EXAMPLES_ENCODER_READ_H
#define EXAMPLES_ENCODER_READ_H

#include "attn.h"
#include "encoder_family.h"
#include "json.h"
#include "safetensors.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENCODER_MAX_LAYERS = 1000, ENCODER_MAX_WIDTH = 1 << 20, ENCODER_NAME = 160 };

/* What is told in place of config.json; 0 and null: as it says. */
typedef struct encoder_options {
  int64_t heads; /* 12 for a file without config.json */
  double eps;
  const char *activation;
} encoder_options;

typedef struct encoder {
  const encoder_family *family;
  int64_t vocabulary, width, inner, heads, layers;
  int64_t embedding;         /* the width of the embeddings, which may be another */
  int64_t positions;         /* tokens that a text may have */
  int64_t padding;           /* pad_token_id */
  int64_t groups, in_group;  /* ALBERT: sets of shared layers, and layers of one, run in turn */
  attn_tensor words;         /* [1,1,vocabulary,embedding], as the file has them */
  attn_tensor places, kinds; /* likewise, or absent */
  attn_norm norm, last;      /* last.gain is null without such a norm */
  attn_tensor w_project, b_project;
  attn_block_params *blocks; /* one a layer; layers that share weights have the same addresses */
  attn_rope_params rope[2];  /* of layers that see all, of those with a window */
  int64_t reach, buckets,
      span; /* DeBERTa's max_relative_positions, position_buckets, half a table */

  attn_ctx ctx;    /* may be set between calls, but for the workspace */
  float *x;        /* encoder.h: the rows */
  float *more_[3]; /* rows of a step */
  size_t room_[4]; /* numbers of x and of those */
  safetensors file;
  json_document config; /* root is null without */
  const char *prefix_;
  char *read_;    /* one a tensor of the file: 1 if something was made of it */
  float *floats_; /* of what is not f32 in the file, and of vectors */
  size_t used_;
  float *tables_; /* DeBERTa's distances, projected for each layer */
  char error[320];
} encoder;

static const char *encoder_fail(encoder *m, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(m->error, sizeof m->error, format, arguments);
  va_end(arguments);
  return m->error;
}

#define ENCODER_TRY_(call)       \
  do {                           \
    const char *error_ = (call); \
    if (error_) return error_;   \
  } while (0)

static void encoder_free(encoder *m) {
  safetensors_free(&m->file);
  json_free(&m->config);
  free(m->blocks);
  free(m->read_);
  free(m->floats_);
  free(m->tables_);
  free(m->x);
  for (int i = 0; i < 3; i++) free(m->more_[i]);
  free(m->ctx.workspace);
}

/* ---- calls of attn.h, in a workspace that grows */

static const char *encoder_done_(encoder *m, attn_status status) {
  if (status == ATTN_OK) return NULL;
  return encoder_fail(m, "%s: %s", attn_status_string(status),
                      m->ctx.reason ? m->ctx.reason : "no reason given");
}

static const char *encoder_room_(encoder *m, size_t bytes) {
  if (bytes <= m->ctx.workspace_size || bytes == ATTN_WORKSPACE_REJECTED)
    return NULL; /* of what is rejected the call says why */
  free(m->ctx.workspace);
  m->ctx.workspace = malloc(bytes);
  m->ctx.workspace_size = m->ctx.workspace ? bytes : 0;
  return m->ctx.workspace ? NULL : encoder_fail(m, "out of memory");
}

#define ENCODER_CALL_(m, call, ...)                                           \
  do {                                                                        \
    ENCODER_TRY_(encoder_room_(m, call##_workspace(__VA_ARGS__, &(m)->ctx))); \
    ENCODER_TRY_(encoder_done_(m, call(__VA_ARGS__, &(m)->ctx)));             \
  } while (0)

/* ---- config.json. Absent members and null are `otherwise`. */

static const char *encoder_wrong_(encoder *m, const char *key, const char *what) {
  return encoder_fail(m, "config.json: %s must be %s", key, what);
}

static const json *encoder_value_(const json *object, const char *key) {
  const json *value = key ? json_get(object, key) : NULL;
  return value && value->kind != JSON_NULL ? value : NULL;
}

static const char *encoder_whole_(encoder *m, int64_t *n, const char *key, int64_t otherwise) {
  const json *value = encoder_value_(m->config.root, key);
  *n = value ? value->integer : otherwise;
  return !value || value->whole ? NULL : encoder_wrong_(m, key, "a whole number");
}

static const char *encoder_real_(encoder *m, double *x, const json *object, const char *key,
                                 double otherwise) {
  const json *value = encoder_value_(object, key);
  *x = value ? value->number : otherwise;
  return !value || (value->kind == JSON_NUMBER && isfinite(*x) && *x > 0)
             ? NULL
             : encoder_wrong_(m, key, "a number above 0");
}

static const char *encoder_truth_(encoder *m, int *truth, const char *key, int otherwise) {
  const json *value = encoder_value_(m->config.root, key);
  *truth = value ? value->truth : otherwise;
  return !value || value->kind == JSON_BOOL ? NULL : encoder_wrong_(m, key, "true or false");
}

static const char *encoder_word_(encoder *m, const char **word, const json *object, const char *key,
                                 const char *otherwise) {
  const json *value = encoder_value_(object, key);
  *word = value ? value->string : otherwise;
  return !value || value->kind == JSON_STRING ? NULL : encoder_wrong_(m, key, "a string");
}

/* What would be computed wrongly, were it not refused. */
static const char *encoder_foreign_(encoder *m) {
  static const char *const never[] = {"is_decoder", "add_cross_attention"};
  const char *place;
  int truth;
  for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
    ENCODER_TRY_(encoder_truth_(m, &truth, never[i], 0));
    if (truth)
      return encoder_fail(m, "config.json: %s is true: this is no encoder alone", never[i]);
  }
  ENCODER_TRY_(encoder_word_(m, &place, m->config.root, "position_embedding_type", "absolute"));
  if (strcmp(place, "absolute"))
    return encoder_fail(m, "config.json: position_embedding_type '%.40s' is not computed here",
                        place);
  return NULL;
}

static const char *encoder_activation_(encoder *m, const char *word) {
  static const struct {
    const char *word;
    attn_activation activation;
  } known[] = {{"gelu", ATTN_ACT_GELU},           {"gelu_new", ATTN_ACT_GELU_TANH},
               {"gelu_fast", ATTN_ACT_GELU_TANH}, {"gelu_pytorch_tanh", ATTN_ACT_GELU_TANH},
               {"relu", ATTN_ACT_RELU},           {"silu", ATTN_ACT_SILU},
               {"swish", ATTN_ACT_SILU},          {"tanh", ATTN_ACT_TANH}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(word, known[i].word)) {
      for (int64_t l = 0; l < m->layers; l++) m->blocks[l].ff.activation = known[i].activation;
      return NULL;
    }
  return encoder_fail(m, "the activation '%.40s' is not one of gelu, gelu_new, relu, silu, tanh",
                      word);
}

/* ---- tensors */

/* Which of ALBERT's groups a layer shares: l / (layers / groups), in doubles as published weights were run. */
static int64_t encoder_group_(const encoder *m, int64_t l) {
  const double each = (double)(m->layers / m->in_group) / (double)m->groups;
  return (int64_t)((double)(l / m->in_group) / each);
}

/* "<prefix><part><tail>", of a layer with its number before. */
static void encoder_name_(const encoder *m, char name[ENCODER_NAME], int64_t l, const char *part,
                          const char *tail) {
  const encoder_family *f = m->family;
  if (l < 0)
    snprintf(name, ENCODER_NAME, "%s%s%s", m->prefix_, part, tail);
  else if (f->shared)
    snprintf(name, ENCODER_NAME, "%s%s%d%s%d.%s%s", m->prefix_, f->layer, (int)encoder_group_(m, l),
             f->shared, (int)(l % m->in_group), part, tail);
  else
    snprintf(name, ENCODER_NAME, "%s%s%d.%s%s", m->prefix_, f->layer, (int)l, part, tail);
}

static int encoder_has_(const encoder *m, int64_t l, const char *part, const char *tail) {
  char name[ENCODER_NAME];
  encoder_name_(m, name, l, part, tail);
  return safetensors_find(&m->file, name) != NULL;
}

/* A matrix as the file has it. */
static const char *encoder_matrix_(encoder *m, attn_tensor *view, const char *name, int64_t rows,
                                   int64_t columns) {
  ENCODER_TRY_(safetensors_matrix(&m->file, view, name, rows, columns));
  m->read_[safetensors_find(&m->file, name) - m->file.tensors] = 1;
  return NULL;
}

/* The same as floats: where they lie, or in floats_, whose room is counted from what the file holds, each
 * tensor once. */
static const char *encoder_weight_(encoder *m, attn_tensor *w, const char *name, int64_t rows,
                                   int64_t columns) {
  ENCODER_TRY_(encoder_matrix_(m, w, name, rows, columns));
  if (w->dtype == ATTN_F32) return NULL;
  float *x = m->floats_ + m->used_;
  m->used_ += (size_t)(rows * columns);
  for (int64_t i = 0; i < rows; i++) safetensors_row(x + i * columns, *w, i);
  *w = attn_bhtd(x, ATTN_F32, 1, 1, rows, columns);
  return NULL;
}

static const char *encoder_vector_(encoder *m, const float **x, const char *name, int64_t n) {
  float *next = m->floats_ + m->used_;
  ENCODER_TRY_(safetensors_vector(&m->file, next, name, n));
  m->read_[safetensors_find(&m->file, name) - m->file.tensors] = 1;
  m->used_ += (size_t)n;
  *x = next;
  return NULL;
}

/* A linear layer, w [out, in]; without b it has no bias. */
static const char *encoder_linear_(encoder *m, attn_tensor *w, attn_tensor *b, int64_t l,
                                   const char *part, int64_t out, int64_t in) {
  char name[ENCODER_NAME];
  const float *bias;
  encoder_name_(m, name, l, part, ".weight");
  ENCODER_TRY_(encoder_weight_(m, w, name, out, in));
  if (!b || (m->family->biases_may_lack && !encoder_has_(m, l, part, ".bias"))) return NULL;
  encoder_name_(m, name, l, part, ".bias");
  ENCODER_TRY_(encoder_vector_(m, &bias, name, out));
  *b = attn_bhtd(bias, ATTN_F32, 1, 1, 1, out);
  return NULL;
}

static const char *encoder_norm_(encoder *m, attn_norm *norm, int64_t l, const char *part,
                                 int64_t n) {
  char name[ENCODER_NAME];
  const int old = encoder_has_(m, l, part, ".gamma"); /* from TensorFlow: gamma, beta */
  encoder_name_(m, name, l, part, old ? ".gamma" : ".weight");
  ENCODER_TRY_(encoder_vector_(m, &norm->gain, name, n));
  if (m->family->biases_may_lack && !encoder_has_(m, l, part, ".bias")) return NULL;
  encoder_name_(m, name, l, part, old ? ".beta" : ".bias");
  return encoder_vector_(m, &norm->bias, name, n);
}

/* Outputs first .. first + n - 1 of a linear layer. */
static void encoder_outputs_(attn_tensor *w, attn_tensor *b, int64_t first, int64_t n) {
  w->data = (float *)w->data + first * w->stride_len;
  w->len = n;
  if (!b->data) return;
  b->data = (float *)b->data + first;
  b->dim = n;
}

static const char *encoder_block_(encoder *m, int64_t l) {
  const encoder_family *f = m->family;
  const int64_t width = m->width, inner = m->inner;
  attn_block_params *block = &m->blocks[l];
  attn_multihead_params *self = &block->self;
  attn_feed_forward *ff = &block->ff;
  self->heads = m->heads;
  self->w_transposed = ff->w_transposed = 1; /* as linear layers of PyTorch are */
  if (f->qkv) {
    ENCODER_TRY_(encoder_linear_(m, &self->w_q, &self->b_q, l, f->qkv, 3 * width, width));
    self->w_k = self->w_v = self->w_q;
    self->b_k = self->b_v = self->b_q;
    encoder_outputs_(&self->w_q, &self->b_q, 0, width);
    encoder_outputs_(&self->w_k, &self->b_k, width, width);
    encoder_outputs_(&self->w_v, &self->b_v, 2 * width, width);
  } else {
    ENCODER_TRY_(encoder_linear_(m, &self->w_q, &self->b_q, l, f->q, width, width));
    ENCODER_TRY_(encoder_linear_(m, &self->w_k, &self->b_k, l, f->k, width, width));
    ENCODER_TRY_(encoder_linear_(m, &self->w_v, &self->b_v, l, f->v, width, width));
  }
  ENCODER_TRY_(encoder_linear_(m, &self->w_o, &self->b_o, l, f->o, width, width));
  ENCODER_TRY_(encoder_linear_(m, &ff->w_1, &ff->b_1, l, f->w_1, (1 + f->gated) * inner, width));
  if (f->gated) {
    ff->w_3 = ff->w_1;
    ff->b_3 = ff->b_1;
    encoder_outputs_(&ff->w_1, &ff->b_1, 0, inner);
    encoder_outputs_(&ff->w_3, &ff->b_3, inner, inner);
  }
  ENCODER_TRY_(encoder_linear_(m, &ff->w_2, &ff->b_2, l, f->w_2, width, inner));
  block->sublayer = f->pre_norm ? ATTN_SUBLAYER_PRE : ATTN_SUBLAYER_POST;
  if (f->pre_norm && !l)
    block->norm_self.kind = ATTN_NORM_NONE; /* the embeddings are normed already */
  else
    ENCODER_TRY_(encoder_norm_(m, &block->norm_self, l, f->norm_self, width));
  return encoder_norm_(m, &block->norm_ff, l, f->norm_ff, width);
}

/* ---- what only some have */

/* ModernBERT: the layers with a window, and how each kind is rotated. */
static const char *encoder_rotary_(encoder *m) {
  static const char *const kinds[] = {"full_attention", "sliding_attention"};
  static const char *const old[] = {"global_rope_theta", "local_rope_theta"};
  static const double theta[] = {160000, 10000};
  const json *root = m->config.root, *types = encoder_value_(root, "layer_types");
  const json *type = types ? types->first : NULL;
  const char *word;
  int64_t every, around;
  ENCODER_TRY_(encoder_whole_(m, &every, "global_attn_every_n_layers", 3));
  ENCODER_TRY_(encoder_whole_(m, &around, "local_attention", 128));
  if (every < 1 || around < 0) return encoder_fail(m, "config.json: a window is impossible");
  if (types && (types->kind != JSON_ARRAY || types->count != (size_t)m->layers))
    return encoder_wrong_(m, "layer_types", "a list of one word a layer");
  for (int kind = 0; kind < 2; kind++) {
    /* of each kind, or the same for both; no local theta is the global one */
    const json *all = encoder_value_(root, "rope_parameters"),
               *own = encoder_value_(all, kinds[kind]);
    const json *rope = own ? own : encoder_value_(all, "rope_theta") ? all : NULL;
    const json *said = json_get(root, old[kind]);
    const int same = kind && said && said->kind == JSON_NULL;
    ENCODER_TRY_(encoder_real_(m, &m->rope[kind].base, root, old[kind],
                               same ? m->rope[0].base : theta[kind]));
    ENCODER_TRY_(encoder_real_(m, &m->rope[kind].base, rope, "rope_theta", m->rope[kind].base));
    ENCODER_TRY_(encoder_word_(m, &word, rope, "rope_type", "default"));
    const char *type_word;
    ENCODER_TRY_(encoder_word_(m, &type_word, rope, "type", word)); /* its name of old */
    if (strcmp(word, "default") || strcmp(type_word, "default") ||
        encoder_value_(root, "rope_scaling"))
      return encoder_fail(m, "config.json: rotary positions that are scaled are not computed here");
    m->rope[kind].layout = ATTN_ROPE_HALF;
  }
  for (int64_t l = 0; l < m->layers; l++, type = type ? type->next : NULL) {
    int local = l % every != 0;
    if (type) {
      if (type->kind != JSON_STRING ||
          (strcmp(type->string, kinds[0]) && strcmp(type->string, kinds[1])))
        return encoder_wrong_(m, "layer_types", "of full_attention and sliding_attention");
      local = !strcmp(type->string, kinds[1]);
    }
    m->blocks[l].self.rope = &m->rope[local];
    if (local) m->blocks[l].self.attention.window = attn_window_of(around / 2, around / 2);
  }
  return NULL;
}

/* Whether config.json has the word in key, a list or "one|two". */
static int encoder_lists_(const encoder *m, const char *key, const char *word) {
  const json *value = encoder_value_(m->config.root, key);
  for (const char *at = value && value->kind == JSON_STRING ? value->string : ""; *at;
       at += *at == '|') { /* in any case, with spaces around it */
    at += strspn(at, " \t");
    size_t n = 0, end = strcspn(at, "|");
    while (word[n] && n < end && (at[n] | 32) == (word[n] | 32)) n++;
    if (!word[n] && n + strspn(at + n, " \t") == end) return 1;
    at += end;
  }
  for (value = value ? value->first : NULL; value; value = value->next)
    if (value->kind == JSON_STRING && !strcmp(value->string, word)) return 1;
  return 0;
}

/* DeBERTa: embeddings of distances, which are projected here once for each layer: keys that meet its
 * queries (c2p), queries that meet its keys (p2c), [1, heads, 2 span, width / heads]. */
static const char *encoder_distances_(encoder *m) {
  const encoder_family *f = m->family;
  const int64_t width = m->width, d = width / m->heads;
  const int c2p = encoder_lists_(m, "pos_att_type", "c2p");
  const int p2c = encoder_lists_(m, "pos_att_type", "p2c");
  attn_tensor table;
  attn_norm norm = {0};
  char name[ENCODER_NAME];
  int relative, shared;
  ENCODER_TRY_(encoder_truth_(m, &relative, "relative_attention", 0));
  ENCODER_TRY_(encoder_truth_(m, &shared, "share_att_key", 0));
  ENCODER_TRY_(encoder_whole_(m, &m->reach, "max_relative_positions", -1));
  ENCODER_TRY_(encoder_whole_(m, &m->buckets, "position_buckets", -1));
  for (int64_t l = 0; l < m->layers; l++) /* without distances, too */
    m->blocks[l].self.attention.scale = (float)(1 / sqrt((double)d * (1 + c2p + p2c)));
  if (!relative) return NULL;
  if (m->reach < 1) m->reach = m->positions;
  m->span = m->buckets > 0 ? m->buckets : m->reach;
  if (m->buckets > 0 && attn_deberta_bucket(0, m->buckets, m->reach) == INT64_MIN)
    return encoder_fail(m, "config.json: position_buckets and max_relative_positions do not agree");
  if (m->buckets > 0 && m->buckets % 2 && m->positions > m->reach)
    return encoder_wrong_(m, "position_buckets", "even");
  if (m->span > ENCODER_MAX_WIDTH) return encoder_wrong_(m, "max_relative_positions", "smaller");
  encoder_name_(m, name, -1, f->distances, ".weight");
  ENCODER_TRY_(encoder_weight_(m, &table, name, 2 * m->span, width));
  const size_t n =
      (size_t)(2 * m->span * width); /* as the file holds as many, it cannot overflow */
  m->tables_ = (size_t)m->layers < SIZE_MAX / 16 / n
                   ? malloc((2 * (size_t)m->layers + 1) * n * sizeof(float))
                   : NULL;
  if (!m->tables_) return encoder_fail(m, "out of memory");
  if (encoder_lists_(m, "norm_rel_ebd", "layer_norm")) {
    attn_layer_norm_params params = {0};
    ENCODER_TRY_(encoder_norm_(m, &norm, -1, f->distances_norm, width));
    params.norm = norm;
    params.norm.eps = m->norm.eps;
    const attn_tensor normed = attn_bhtd(m->tables_, ATTN_F32, 1, 1, 2 * m->span, width);
    ENCODER_CALL_(m, attn_layer_norm, normed, table, &params);
    table = normed;
  }
  for (int64_t l = 0; l < m->layers; l++) {
    attn_multihead_params *self = &m->blocks[l].self;
    for (int side = 0; side < 2; side++) { /* 0: keys, 1: queries */
      if (!(side ? p2c : c2p)) continue;
      float *made = m->tables_ + (1 + 2 * (size_t)l + (size_t)side) * n;
      attn_tensor w = side ? self->w_q : self->w_k;
      attn_gemm_params params = {.w_transposed = 1, .bias = side ? self->b_q : self->b_k};
      if (!shared)
        ENCODER_TRY_(encoder_linear_(m, &w, &params.bias, l, side ? f->distances_q : f->distances_k,
                                     width, width));
      const attn_tensor rows = attn_bhtd(made, ATTN_F32, 1, 1, 2 * m->span, width);
      ENCODER_CALL_(m, attn_gemm, rows, table, w, &params);
      const attn_tensor heads = attn_bthd(made, ATTN_F32, 1, 2 * m->span, m->heads, d);
      if (side)
        self->attention.relative.queries = heads;
      else
        self->attention.relative.keys = heads;
    }
  }
  return NULL;
}

/* ---- the whole */

/* Both extents of a matrix that must be there, to make the rest of the model's sizes of. */
static const char *encoder_extents_(encoder *m, int64_t l, const char *part, int64_t *rows,
                                    int64_t *columns) {
  char name[ENCODER_NAME];
  encoder_name_(m, name, l, part, ".weight");
  const safetensor *t = safetensors_find(&m->file, name);
  if (!t) return encoder_fail(m, "there is no tensor '%s'", name);
  if (t->rank != 2 || t->shape[0] < 1 || t->shape[1] < 1 || t->shape[1] > ENCODER_MAX_WIDTH)
    return encoder_fail(m, "tensor '%s' is no matrix of a model", name);
  *rows = t->shape[0];
  *columns = t->shape[1];
  return NULL;
}

/* config.json must not say another size than the tensors have. */
static const char *encoder_agree_(encoder *m, const char *key, int64_t n) {
  int64_t said;
  ENCODER_TRY_(encoder_whole_(m, &said, key, n));
  if (said == n) return NULL;
  return encoder_fail(m, "config.json: %s is %" PRId64 ", but the tensors have %" PRId64, key, said,
                      n);
}

/* How many layers: as config.json says, else as many as there are numbers. */
static const char *encoder_count_(encoder *m) {
  const encoder_family *f = m->family;
  char name[ENCODER_NAME];
  snprintf(name, sizeof name, "%s%s", m->prefix_, f->layer);
  m->groups = m->in_group = 1;
  if (m->config.root) {
    ENCODER_TRY_(encoder_whole_(m, &m->layers, f->layers, 0));
    if (f->shared) ENCODER_TRY_(encoder_whole_(m, &m->groups, "num_hidden_groups", 1));
    if (f->shared) ENCODER_TRY_(encoder_whole_(m, &m->in_group, "inner_group_num", 1));
    if (m->layers < 1 || m->layers > ENCODER_MAX_LAYERS || m->groups < 1 || m->groups > m->layers ||
        m->in_group < 1 || m->in_group > ENCODER_MAX_LAYERS / m->layers)
      return encoder_fail(m, "config.json: %s is missing or no number of layers", f->layers);
    m->layers *= m->in_group;
    return NULL;
  }
  for (size_t i = 0; i < m->file.count; i++) {
    const safetensor *t = &m->file.tensors[i];
    if (strncmp(t->name, name, strlen(name))) continue;
    const long l = strtol(t->name + strlen(name), NULL, 10);
    if (l < 0 || l >= ENCODER_MAX_LAYERS)
      return encoder_fail(m, "tensor '%.*s' is of no layer", SAFETENSORS_SHOWN, t->name);
    if (l >= m->layers) m->layers = l + 1;
  }
  return m->layers ? NULL : encoder_fail(m, "there is no tensor '%s0'", name);
}

/* A tensor of the embeddings or layers that nothing was made of would mean another formula. */
static const char *encoder_strangers_(encoder *m) {
  static const char *const fine[] = {"position_ids", "token_type_ids",
                                     "position_embeddings.weight"};
  const encoder_family *f = m->family;
  const size_t prefix = strlen(m->prefix_), stem = (size_t)(strchr(f->layer, '.') - f->layer) + 1;
  for (size_t i = 0; i < m->file.count; i++) {
    const char *name = m->file.tensors[i].name, *rest = name + prefix;
    if (m->read_[i] || strncmp(name, m->prefix_, prefix)) continue;
    if (strncmp(rest, f->layer, stem) && strncmp(rest, "embeddings.", 11)) continue;
    int known = 0; /* counters that old files have, and a table that DeBERTa's have unused */
    for (int k = 0; k < 2 + !m->places.data; k++)
      known |=
          strlen(rest) > strlen(fine[k]) && !strcmp(rest + strlen(rest) - strlen(fine[k]), fine[k]);
    if (!known)
      return encoder_fail(m, "tensor '%.*s' belongs to no %s of these sizes", SAFETENSORS_SHOWN,
                          name, f->type);
  }
  return NULL;
}

static const char *encoder_embeddings_(encoder *m) {
  const encoder_family *f = m->family;
  char name[ENCODER_NAME];
  int64_t kinds = 0, columns;
  int placed = f->places != NULL;
  encoder_name_(m, name, -1, f->words, ".weight");
  ENCODER_TRY_(encoder_matrix_(m, &m->words, name, m->vocabulary, m->embedding));
  if (f->kinds) ENCODER_TRY_(encoder_whole_(m, &kinds, "type_vocab_size", f->distances ? 0 : 2));
  if (kinds) {
    encoder_name_(m, name, -1, f->kinds, ".weight");
    ENCODER_TRY_(encoder_matrix_(m, &m->kinds, name, kinds, m->embedding));
  }
  if (f->distances) ENCODER_TRY_(encoder_truth_(m, &placed, "position_biased_input", 1));
  if (placed) {
    ENCODER_TRY_(encoder_extents_(m, -1, f->places, &m->positions, &columns));
    encoder_name_(m, name, -1, f->places, ".weight");
    ENCODER_TRY_(encoder_matrix_(m, &m->places, name, m->positions, m->embedding));
    ENCODER_TRY_(encoder_agree_(m, "max_position_embeddings", m->positions));
  } else {
    ENCODER_TRY_(
        encoder_whole_(m, &m->positions, "max_position_embeddings", f->rotary ? 8192 : 512));
  }
  ENCODER_TRY_(encoder_whole_(m, &m->padding, "pad_token_id", f->after_padding));
  if (f->after_padding && m->padding >= m->positions)
    return encoder_wrong_(m, "pad_token_id", "below max_position_embeddings");
  if (f->after_padding && m->padding >= 0) m->positions -= m->padding + 1;
  if (m->positions < 1 || (f->after_padding && m->padding < 0))
    return encoder_fail(m, "config.json: no token has a position");
  ENCODER_TRY_(encoder_norm_(m, &m->norm, -1, f->norm, f->project_first ? m->width : m->embedding));
  if (!f->project || (f->project_first && m->embedding == m->width)) return NULL;
  return encoder_linear_(m, &m->w_project, f->project_first ? NULL : &m->b_project, -1, f->project,
                         m->width, m->embedding);
}

static const char *encoder_load_(encoder *m, const encoder_options *options) {
  const encoder_family *f = m->family;
  char name[ENCODER_NAME];
  const char *activation;
  double eps;
  int64_t rows, columns;
  m->prefix_ = f->prefix; /* whole models of the family name their encoder */
  if (!encoder_has_(m, -1, f->words, ".weight")) m->prefix_ = "";
  ENCODER_TRY_(encoder_foreign_(m));
  ENCODER_TRY_(encoder_count_(m));
  ENCODER_TRY_(encoder_extents_(m, -1, f->words, &m->vocabulary, &m->embedding));
  ENCODER_TRY_(encoder_extents_(m, 0, f->w_1, &m->inner, &m->width));
  if (f->gated) m->inner /= 2;
  ENCODER_TRY_(encoder_extents_(m, 0, f->o, &rows, &columns));
  ENCODER_TRY_(encoder_agree_(m, "vocab_size", m->vocabulary));
  ENCODER_TRY_(encoder_agree_(m, f->width, m->width));
  ENCODER_TRY_(encoder_agree_(m, f->inner, m->inner));
  if (!f->project && m->embedding != m->width)
    return encoder_fail(m, "the embeddings have %" PRId64 " columns, the layers %" PRId64,
                        m->embedding, m->width);
  m->heads = options->heads;
  if (!m->heads) ENCODER_TRY_(encoder_whole_(m, &m->heads, f->heads, m->config.root ? 0 : 12));
  if (m->heads < 1 || m->width % m->heads)
    return encoder_fail(m, "%" PRId64 " columns cannot be cut into %" PRId64 " heads", m->width,
                        m->heads);

  size_t room = 1;
  for (size_t i = 0; i < m->file.count; i++) {
    const safetensor *t = &m->file.tensors[i];
    const size_t bytes = (size_t)(t->end - t->begin);
    if (t->dtype != ATTN_F32)
      room += bytes / 2;
    else if (t->rank == 1)
      room += bytes / 4;
  }
  m->floats_ = room < SIZE_MAX / sizeof(float) ? malloc(room * sizeof(float)) : NULL;
  m->read_ = calloc(m->file.count, 1);
  m->blocks = calloc((size_t)m->layers, sizeof *m->blocks);
  if (!m->floats_ || !m->read_ || !m->blocks) return encoder_fail(m, "out of memory");

  ENCODER_TRY_(encoder_embeddings_(m));
  for (int64_t l = 0; l < m->layers; l++) {
    char last[ENCODER_NAME];
    encoder_name_(m, name, l, f->o, "");
    if (l >= m->in_group) encoder_name_(m, last, l - m->in_group, f->o, "");
    if (l >= m->in_group && !strcmp(name, last))
      m->blocks[l] = m->blocks[l - m->in_group];
    else
      ENCODER_TRY_(encoder_block_(m, l));
  }
  if (f->last) ENCODER_TRY_(encoder_norm_(m, &m->last, -1, f->last, m->width));
  eps = options->eps;
  if (!(eps > 0)) ENCODER_TRY_(encoder_real_(m, &eps, m->config.root, f->eps, (double)f->eps_else));
  m->norm.eps = m->last.eps = (float)eps;
  for (int64_t l = 0; l < m->layers; l++)
    m->blocks[l].norm_self.eps = m->blocks[l].norm_ff.eps = (float)eps;
  activation = options->activation;
  if (!activation)
    ENCODER_TRY_(encoder_word_(m, &activation, m->config.root, f->activation, f->activation_else));
  ENCODER_TRY_(encoder_activation_(m, activation));
  if (f->rotary) ENCODER_TRY_(encoder_rotary_(m));
  if (f->distances) ENCODER_TRY_(encoder_distances_(m));
  return encoder_strangers_(m);
}

/* The kind of model that config.json describes. */
static const char *encoder_describe_(encoder *m, const char *path) {
  const char *error = json_read(&m->config, path), *type;
  if (error) return encoder_fail(m, "config.json: %s", error);
  if (m->config.root->kind != JSON_OBJECT)
    return encoder_fail(m, "config.json: it holds no object");
  ENCODER_TRY_(encoder_word_(m, &type, m->config.root, "model_type", ""));
  m->family = encoder_family_of(type);
  if (m->family) return NULL;
  return encoder_fail(m, "config.json: the model_type '%.40s' is not one that is read here", type);
}

/* Reads a model: a folder, or the weights of a BERT. After an error only encoder_free may follow. */
static const char *encoder_read(encoder *m, const char *path, const encoder_options *options) {
  const encoder_options none = {0};
  const size_t length = strlen(path);
  memset(m, 0, sizeof *m);
  m->prefix_ = "";
  m->family = encoder_family_of("bert");
  if (length > 12 && !strcmp(path + length - 12, ".safetensors")) {
    ENCODER_TRY_(safetensors_read(&m->file, path));
  } else {
    char *whole = malloc(length + 32);
    if (!whole) return encoder_fail(m, "out of memory");
    sprintf(whole, "%s/config.json", path);
    const char *error = encoder_describe_(m, whole);
    sprintf(whole, "%s/model.safetensors", path);
    if (!error) error = safetensors_read(&m->file, whole);
    if (error && error != m->error) error = encoder_fail(m, "model.safetensors: %s", error);
    free(whole);
    if (error) return error;
  }
  return encoder_load_(m, options ? options : &none);
}

#endif
