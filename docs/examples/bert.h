/* bert.h owns an encoder of the BERT family: its weights out of a safetensors file, and the way from
 * tokens to one vector a sentence. Everything that is computed on rows is a call of attn.h.
 *
 *   x = LN(word + position + type 0), then per layer
 *   x = LN(x + MHA(x)), x = LN(x + gelu(x W1 + b1) W2 + b2)
 *   sentence = mean of its rows / length of that mean
 *
 * Functions return null, or a sentence that says what went wrong and lives as long as the model.
 * Sources: Devlin et al. 2019, arXiv 1810.04805; Reimers and Gurevych 2019, arXiv 1908.10084; Wang et
 * al. 2020, arXiv 2002.10957. */
#ifndef EXAMPLES_BERT_H
#define EXAMPLES_BERT_H

#include "attn.h"
#include "safetensors.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bert {
  int64_t width, inner, vocabulary, positions, layers;
  attn_tensor words;         /* [1,1,vocabulary,width], as the file has them */
  attn_tensor place;         /* [1,1,positions,width]: position + type 0 */
  attn_norm norm;            /* of the embeddings */
  attn_block_params *blocks; /* one a layer */
  safetensors file;
  const char *prefix_; /* of every name */
  float *floats_;      /* weights in f32, [out, in] as in the file */
  size_t used_;
} bert;

enum { BERT_MAX_LAYERS = 1000, BERT_MAX_WIDTH = 1 << 20 };

/* ---- weights. The file's numbers fit floats_, whose room is counted from what the file holds. */

static float *bert_take_(bert *model, int64_t n) {
  float *taken = model->floats_ + model->used_;
  model->used_ += (size_t)n;
  return taken;
}

static void bert_name_(const bert *model, char name[128], int64_t layer, const char *rest) {
  if (layer < 0)
    snprintf(name, 128, "%s%s", model->prefix_, rest);
  else
    snprintf(name, 128, "%sencoder.layer.%d.%s", model->prefix_, (int)layer, rest);
}

static const char *bert_vector_(bert *model, const float **x, int64_t layer, const char *rest,
                                int64_t n) {
  char name[128];
  bert_name_(model, name, layer, rest);
  float *next = model->floats_ + model->used_;
  const char *error = safetensors_vector(&model->file, next, name, n);
  if (!error) *x = bert_take_(model, n);
  return error;
}

/* A linear layer: its file has w [out, in]. */
static const char *bert_linear_(bert *model, attn_tensor *w, attn_tensor *b, int64_t layer,
                                const char *rest, int64_t in, int64_t out) {
  char name[128], part[96];
  attn_tensor stored;
  const float *bias;
  snprintf(part, sizeof part, "%s.weight", rest);
  bert_name_(model, name, layer, part);
  const char *error = safetensors_matrix(&model->file, &stored, name, out, in);
  if (error) return error;
  float *rows = bert_take_(model, in * out);
  for (int64_t i = 0; i < out; i++) safetensors_row(rows + i * in, stored, i);
  *w = attn_bhtd(rows, ATTN_F32, 1, 1, out, in);
  snprintf(part, sizeof part, "%s.bias", rest);
  error = bert_vector_(model, &bias, layer, part, out);
  *b = attn_bhtd(bias, ATTN_F32, 1, 1, 1, out);
  return error;
}

static const char *bert_norm_(bert *model, attn_norm *norm, int64_t layer, const char *rest) {
  char part[96], name[128];
  norm->eps = 1e-12f; /* BERT's */
  snprintf(part, sizeof part, "%s.gamma", rest);
  bert_name_(model, name, layer, part);
  const int tf = safetensors_find(&model->file, name) != NULL; /* from TensorFlow: gamma, beta */
  snprintf(part, sizeof part, "%s.%s", rest, tf ? "gamma" : "weight");
  const char *error = bert_vector_(model, &norm->gain, layer, part, model->width);
  if (error) return error;
  snprintf(part, sizeof part, "%s.%s", rest, tf ? "beta" : "bias");
  return bert_vector_(model, &norm->bias, layer, part, model->width);
}

static const char *bert_layer_(bert *model, int64_t l, int64_t heads) {
  const int64_t width = model->width, inner = model->inner;
  attn_block_params *block = &model->blocks[l];
  attn_multihead_params *self = &block->self;
  attn_feed_forward *ff = &block->ff;
  const char *error = NULL;
  self->heads = heads;
  self->w_transposed = ff->w_transposed = 1; /* as linear layers of PyTorch are */
  ff->activation = ATTN_ACT_GELU;
#define BERT_TRY_(call) \
  if ((error = (call)) != NULL) return error
  BERT_TRY_(bert_linear_(model, &self->w_q, &self->b_q, l, "attention.self.query", width, width));
  BERT_TRY_(bert_linear_(model, &self->w_k, &self->b_k, l, "attention.self.key", width, width));
  BERT_TRY_(bert_linear_(model, &self->w_v, &self->b_v, l, "attention.self.value", width, width));
  BERT_TRY_(bert_linear_(model, &self->w_o, &self->b_o, l, "attention.output.dense", width, width));
  BERT_TRY_(bert_norm_(model, &block->norm_self, l, "attention.output.LayerNorm"));
  BERT_TRY_(bert_linear_(model, &ff->w_1, &ff->b_1, l, "intermediate.dense", width, inner));
  BERT_TRY_(bert_linear_(model, &ff->w_2, &ff->b_2, l, "output.dense", inner, width));
  BERT_TRY_(bert_norm_(model, &block->norm_ff, l, "output.LayerNorm"));
#undef BERT_TRY_
  return NULL;
}

/* Both extents of a matrix that must be there, to make the rest of the model's sizes of. */
static const char *bert_extents_(bert *model, int64_t layer, const char *rest, int64_t *rows,
                                 int64_t *columns) {
  char name[128];
  bert_name_(model, name, layer, rest);
  const safetensor *t = safetensors_find(&model->file, name);
  if (!t) return safetensors_fail(&model->file, "there is no tensor '%s'", name);
  if (t->rank != 2 || t->shape[0] < 1 || t->shape[1] < 1 || t->shape[1] > BERT_MAX_WIDTH)
    return safetensors_fail(&model->file, "tensor '%s' is no matrix of a model", name);
  *rows = t->shape[0];
  *columns = t->shape[1];
  return NULL;
}

static const char *bert_load_(bert *model, int64_t heads) {
  char name[128];
  const char *error;
  int64_t columns;
  /* whole models of the family name their encoder */
  model->prefix_ =
      safetensors_find(&model->file, "bert.embeddings.word_embeddings.weight") ? "bert." : "";
  error = bert_extents_(model, -1, "embeddings.word_embeddings.weight", &model->vocabulary,
                        &model->width);
  if (!error)
    error = bert_extents_(model, -1, "embeddings.position_embeddings.weight", &model->positions,
                          &columns);
  if (!error) error = bert_extents_(model, 0, "intermediate.dense.weight", &model->inner, &columns);
  if (error) return error;
  const int64_t width = model->width;
  if (heads < 1 || width % heads)
    return safetensors_fail(
        &model->file, "%" PRId64 " columns cannot be cut into %" PRId64 " heads", width, heads);
  snprintf(name, sizeof name, "%sencoder.layer.", model->prefix_);
  size_t room = 0;
  for (size_t i = 0; i < model->file.count; i++) { /* as many layers as there are numbers */
    const safetensor *t = &model->file.tensors[i];
    room += (size_t)(t->end - t->begin) / (t->dtype == ATTN_F32 ? 4 : 2);
    if (strncmp(t->name, name, strlen(name))) continue;
    const long l = strtol(t->name + strlen(name), NULL, 10);
    if (l < 0 || l >= BERT_MAX_LAYERS)
      return safetensors_fail(&model->file, "tensor '%.*s' is of no layer", SAFETENSORS_SHOWN,
                              t->name);
    if (l >= model->layers) model->layers = l + 1;
  }
  model->floats_ = room < SIZE_MAX / sizeof(float) ? malloc((room + 1) * sizeof(float)) : NULL;
  model->blocks = calloc((size_t)model->layers + 1, sizeof *model->blocks);
  if (!model->floats_ || !model->blocks) return "out of memory";

  attn_tensor positions, types;
  bert_name_(model, name, -1, "embeddings.word_embeddings.weight");
  error = safetensors_matrix(&model->file, &model->words, name, model->vocabulary, width);
  if (error) return error;
  bert_name_(model, name, -1, "embeddings.position_embeddings.weight");
  error = safetensors_matrix(&model->file, &positions, name, model->positions, width);
  if (error) return error;
  bert_name_(model, name, -1, "embeddings.token_type_embeddings.weight");
  error = safetensors_matrix(&model->file, &types, name, 2, width);
  if (error) return error;
  float *place = bert_take_(model, model->positions * width), *type = bert_take_(model, width);
  safetensors_row(type, types, 0);
  for (int64_t i = 0; i < model->positions; i++) {
    safetensors_row(place + i * width, positions, i);
    for (int64_t c = 0; c < width; c++) place[i * width + c] += type[c];
  }
  model->place = attn_bhtd(place, ATTN_F32, 1, 1, model->positions, width);
  error = bert_norm_(model, &model->norm, -1, "embeddings.LayerNorm");
  for (int64_t l = 0; l < model->layers && !error; l++) error = bert_layer_(model, l, heads);
  return error;
}

static void bert_free(bert *model) {
  safetensors_free(&model->file);
  free(model->floats_);
  free(model->blocks);
  model->floats_ = NULL;
  model->blocks = NULL;
}

/* Reads a model. After an error there is nothing to release. */
static const char *bert_read(bert *model, const char *path, int64_t heads) {
  memset(model, 0, sizeof *model);
  const char *error = safetensors_read(&model->file, path);
  if (error) return error;
  error = bert_load_(model, heads);
  if (error) bert_free(model);
  return error;
}

/* ---- a batch of sentences: ids [batch][len], of which length[b] >= 1 are tokens; len <= positions,
 * ids < vocabulary; rows x [batch][len][width]. */

/* x of the tokens, before the first layer. */
static attn_status bert_embed(const bert *model, float *x, const int32_t *ids, int64_t batch,
                              int64_t len, attn_ctx *ctx) {
  for (int64_t i = 0; i < batch * len; i++)
    safetensors_row(x + i * model->width, model->words, ids[i]);
  const attn_tensor rows = attn_bhtd(x, ATTN_F32, batch, 1, len, model->width);
  attn_layer_norm_params params = {.norm = model->norm, .residual = model->place};
  params.residual.len = len;
  return attn_layer_norm(rows, rows, &params, ctx);
}

/* x after layer l. Rows beyond a sentence's tokens become 0. */
static attn_status bert_layer(const bert *model, int64_t l, float *x, const int32_t *length,
                              int64_t batch, int64_t len, attn_ctx *ctx) {
  const attn_tensor rows = attn_bhtd(x, ATTN_F32, batch, 1, len, model->width);
  attn_block_params block = model->blocks[l];
  block.x_len = length;
  return attn_encoder(rows, rows, &block, ctx);
}

/* Bytes that either of them works in. */
static size_t bert_workspace(const bert *model, float *x, int64_t batch, int64_t len,
                             const attn_ctx *ctx) {
  const attn_tensor rows = attn_bhtd(x, ATTN_F32, batch, 1, len, model->width);
  attn_layer_norm_params params = {.norm = model->norm, .residual = model->place};
  params.residual.len = len;
  const size_t embed = attn_layer_norm_workspace(rows, rows, &params, ctx);
  const size_t layer = model->layers ? attn_encoder_workspace(rows, rows, model->blocks, ctx) : 0;
  return embed > layer ? embed : layer;
}

/* The mean of n rows, of length 1: dot products of two such vectors are cosines. */
static void bert_pool(const bert *model, float *vector, const float *x, int64_t n) {
  double square = 0;
  for (int64_t c = 0; c < model->width; c++) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i * model->width + c];
    vector[c] = (float)(sum / (double)n);
    square += (double)vector[c] * (double)vector[c];
  }
  const double norm = fmax(sqrt(square), 1e-12);
  for (int64_t c = 0; c < model->width; c++) vector[c] = (float)((double)vector[c] / norm);
}

#endif
