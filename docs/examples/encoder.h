/* encoder.h owns an encoder at work: from tokens to rows, layer by layer, and to one vector a text. All
 * that is heavy is a call of attn.h.
 *
 *   x = LN(word + position + token type), projected where the embeddings are narrower
 *   post-norm, per layer:   x = LN(x + MHA(x)), x = LN(x + FFN(x))
 *   pre-norm, per layer:    x = x + MHA(LN(x)), x = x + FFN(LN(x)), at the end LN(x); the first LN is left out
 *   vector = mean, first or largest of the rows, divided by its length
 *
 * encoder_read.h says which models; its functions and these return null or a sentence. */
#ifndef EXAMPLES_ENCODER_H
#define EXAMPLES_ENCODER_H

#include "encoder_read.h"

/* Texts that are encoded together. */
typedef struct encoder_batch {
  int64_t count, len; /* texts; the most tokens of one, at most m->positions */
  const int32_t
      *ids; /* [count][len], each below m->vocabulary; what lies behind a text is not read */
  const int32_t
      *kinds; /* [count][len] token types, or null: all 0. A model without types reads none */
  const int32_t *length; /* [count] tokens, each 1 .. len */
  float *map; /* out, optional: [count][heads][len][len], the attention in layer map_layer */
  int64_t map_layer;
} encoder_batch;

static const char *encoder_grow_(encoder *m, int i, int64_t rows, int64_t columns) {
  float **x = i ? &m->more_[i - 1] : &m->x;
  const size_t n = (size_t)rows * (size_t)columns;
  if (n <= m->room_[i]) return NULL;
  free(*x);
  *x = (size_t)rows < SIZE_MAX / sizeof(float) / (size_t)columns ? malloc(n * sizeof(float)) : NULL;
  m->room_[i] = *x ? n : 0;
  return *x ? NULL : encoder_fail(m, "out of memory");
}

static attn_tensor encoder_rows_(const encoder_batch *in, float *x, int64_t width) {
  return attn_bhtd(x, ATTN_F32, in->count, 1, in->len, width);
}

static void encoder_add_row_(float *x, attn_tensor table, int64_t i, float *row) {
  safetensors_row(row, table, i);
  for (int64_t c = 0; c < table.dim; c++) x[c] += row[c];
}

/* m->x [count][len][width] before the first layer. */
static const char *encoder_embed(encoder *m, const encoder_batch *in) {
  const encoder_family *f = m->family;
  const int64_t n = in->count * in->len, wide = m->embedding;
  const attn_layer_norm_params norm = {.norm = m->norm};
  const attn_gemm_params project = {.w_transposed = 1, .bias = m->b_project};
  ENCODER_TRY_(encoder_grow_(m, 0, n, m->width > wide ? m->width : wide));
  ENCODER_TRY_(encoder_grow_(m, 1, 1 + (m->w_project.data ? n : 0), wide));
  float *row = m->more_[0], *sum = m->w_project.data ? row + wide : m->x;
  memset(sum, 0, (size_t)(n * wide) * sizeof *sum);
  for (int64_t b = 0; b < in->count; b++)
    for (int64_t i = 0, tokens = 0; i < in->length[b]; i++) {
      const int64_t at = b * in->len + i;
      const int padding = f->after_padding && in->ids[at] == m->padding;
      const int64_t place = padding ? m->padding : tokens + (f->after_padding ? m->padding + 1 : 0);
      safetensors_row(sum + at * wide, m->words, in->ids[at]);
      if (m->places.data) encoder_add_row_(sum + at * wide, m->places, place, row);
      if (m->kinds.data)
        encoder_add_row_(sum + at * wide, m->kinds, in->kinds ? in->kinds[at] : 0, row);
      tokens += !padding;
    }
  const attn_tensor x = encoder_rows_(in, m->x, m->width), narrow = encoder_rows_(in, sum, wide);
  if (!m->w_project.data) {
    ENCODER_CALL_(m, attn_layer_norm, x, x, &norm);
  } else if (f->project_first) {
    ENCODER_CALL_(m, attn_gemm, x, narrow, m->w_project, &project);
    ENCODER_CALL_(m, attn_layer_norm, x, x, &norm);
  } else {
    ENCODER_CALL_(m, attn_layer_norm, narrow, narrow, &norm);
    ENCODER_CALL_(m, attn_gemm, x, narrow, m->w_project, &project);
  }
  return NULL;
}

/* DeBERTa: of a table by buckets the rows for the distances c .. -c, into the rows of m->more_[i]. */
static const char *encoder_spread_(encoder *m, attn_tensor *table, int i, int64_t c) {
  ENCODER_TRY_(encoder_grow_(m, i, 2 * c + 1, m->width));
  for (int64_t e = 0; e <= 2 * c; e++) {
    const int64_t distance = c - e, span = m->span;
    const int64_t b =
        m->buckets > 0 ? attn_deberta_bucket(distance, m->buckets, m->reach) : distance;
    const int64_t row = span + (b < -span ? -span : b >= span ? span - 1 : b);
    memcpy(m->more_[i - 1] + e * m->width, (const float *)table->data + row * m->width,
           (size_t)m->width * sizeof(float));
  }
  *table = attn_bthd(m->more_[i - 1], ATTN_F32, 1, 2 * c + 1, m->heads, m->width / m->heads);
  return NULL;
}

/* m->x after layer l, 0 .. m->layers - 1; the last norm belongs to the last layer. */
static const char *encoder_layer(encoder *m, const encoder_batch *in, int64_t l) {
  const attn_tensor x = encoder_rows_(in, m->x, m->width);
  attn_block_params block = m->blocks[l];
  attn_sdpa_params *attention = &block.self.attention;
  if (in->map && in->map_layer == l)
    attention->map = attn_bhtd(in->map, ATTN_F32, in->count, m->heads, in->len, in->len);
  const int64_t c = m->reach < in->len - 1 ? m->reach : in->len - 1;
  if (attention->relative.keys.data)
    ENCODER_TRY_(encoder_spread_(m, &attention->relative.keys, 2, c));
  if (attention->relative.queries.data)
    ENCODER_TRY_(encoder_spread_(m, &attention->relative.queries, 3, c));
  block.x_len = in->length;
  ENCODER_CALL_(m, attn_encoder, x, x, &block);
  if (!m->last.gain || l + 1 < m->layers) return NULL;
  const attn_layer_norm_params last = {.norm = m->last};
  ENCODER_CALL_(m, attn_layer_norm, x, x, &last);
  return NULL;
}

/* ---- one vector a text */

typedef enum encoder_pool {
  ENCODER_POOL_MEAN,
  ENCODER_POOL_CLS,
  ENCODER_POOL_MAX,
  ENCODER_POOLS
} encoder_pool;

static const char *const encoder_pool_names[] = {"mean", "cls", "max"};

/* The rows of text b in one, of length 1: dot products of two such vectors are cosines. */
static void encoder_vector(const encoder *m, const encoder_batch *in, encoder_pool pool, int64_t b,
                           float *vector) {
  const float *x = m->x + b * in->len * m->width;
  const int64_t rows = pool == ENCODER_POOL_CLS ? 1 : in->length[b];
  double square = 0;
  for (int64_t c = 0; c < m->width; c++) {
    double sum = 0, most = -HUGE_VAL;
    for (int64_t i = 0; i < rows; i++) {
      const double number = (double)x[i * m->width + c];
      sum += number;
      most = number > most ? number : most;
    }
    vector[c] = (float)(pool == ENCODER_POOL_MAX && isfinite(sum) ? most : sum / (double)rows);
    square += (double)vector[c] * (double)vector[c];
  }
  const double norm = fmax(sqrt(square), 1e-12);
  for (int64_t c = 0; c < m->width; c++) vector[c] = (float)((double)vector[c] / norm);
}

#endif
