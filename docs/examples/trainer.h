/* trainer.h owns a language model that learns: a Llama, from tokens to the loss of the tokens behind them, back from
 * the loss to the gradient of every weight, and the step that follows. For N = batch x length tokens, rms(x) = x /
 * sqrt(mean x^2 + eps) gain, each layer is
 *
 *   y  = rms(x),  q, k, v = y W_q^T, y W_k^T, y W_v^T,  o = attention(rotated q, rotated k, v),  x' = x + o W_o^T
 *   y' = rms(x'),  h = silu(y' W_gate^T) (y' W_up^T),  x = x' + h W_down^T
 *
 * Forward keeps the rows that backward asks for: what went into each call, and of attention its output and the
 * logarithms of its denominators. Backward is the same calls in the opposite order, each by its gradient:
 *
 *   attn_learned_position   attn_learned_position_backward   rows of the embedding
 *   attn_rms_norm           attn_rms_norm_backward           with what the residual stream brings (d_sum)
 *   attn_gemm               attn_gemm_backward               by rows and by weights
 *   attn_rope               attn_rope, inverse               a rotation's transpose turns back
 *   attn_sdpa               attn_sdpa_backward               no T x T array
 *   attn_activate           attn_activate_backward           of the gate, too
 *   the loss                attn_cross_entropy_head          loss and gradient at once, never all logits
 *
 * Weights and gradients are one flat array each, so that the optimiser is two calls: matrices, which decay, then vectors,
 * which do not. All bits are the same for any number of workers, and on AVX2, AVX-512 and NEON. Functions return 1, or
 * 0 after leaving a sentence in t->w.error. */
#ifndef EXAMPLES_TRAINER_H
#define EXAMPLES_TRAINER_H

#include "model_config.h"
#include "safetensors_write.h"

typedef struct trainer_layer {
  /* where weights begin, and their gradients: q, k and v are one matrix, gate and up another */
  int64_t qkv, o, gate_up, down, before_mix, before_ff;
  int64_t qkv_bias, o_bias, gate_up_bias, down_bias; /* -1 = none */
  attn_sdpa_params attention;
  /* rows of forward: x and y are as above, after the layer is in the next one's x */
  float *x, *y, *qkv_rows, *mixed, *lse, *x2, *y2, *gate_up_rows, *h;
} trainer_layer;

typedef struct trainer {
  work w; /* w.ctx may be set between calls, but for the workspace */
  model_config config;
  int64_t batch, length;   /* sequences, tokens of each */
  safetensors_part *parts; /* names, shapes and places in `weights`, those of transformers */
  int parts_count;
  float *weights, *gradients, *mean, *square; /* [numbers]; the last two are AdamW's m and v */
  int64_t numbers, decayed;                   /* of all; of those that are in matrices */
  trainer_layer *layers;
  int64_t embedding, head, norm;
  float *x, *y;                                         /* rows behind the last layer */
  float *out;                                           /* what is still to be added to x */
  float *d_x, *d_y, *d_qkv, *d_mixed, *d_gate_up, *d_h; /* gradients of rows */
} trainer;

static void trainer_free(trainer *t) { work_free(&t->w); }

/* ---- weights */

/* One more weight; rows = 0: a vector. Its place, once there is a list to write it to. */
static int64_t trainer_part_(trainer *t, int64_t layer, const char *name, int64_t rows,
                             int64_t columns) {
  const int64_t at = t->numbers;
  if (t->parts) {
    safetensors_part *part = &t->parts[t->parts_count];
    *part = (safetensors_part){.type = "F32", .rows = rows, .columns = columns};
    if (layer < 0)
      snprintf(part->name, sizeof part->name, "%s.weight", name);
    else
      snprintf(part->name, sizeof part->name, "model.layers.%" PRId64 ".%s", layer, name);
  }
  t->parts_count++;
  t->numbers += (rows ? rows : 1) * columns;
  return at;
}

/* All weights: matrices before vectors, and next to each other what is one product. */
static void trainer_parts_(trainer *t) {
  const model_config *c = &t->config;
  const int64_t D = c->width, q = c->heads * c->head, kv = c->kv_heads * c->head, F = c->hidden;
  t->numbers = t->parts_count = 0;
  t->embedding = t->head = trainer_part_(t, -1, "model.embed_tokens", c->vocabulary, D);
  if (c->tied != 1) t->head = trainer_part_(t, -1, "lm_head", c->vocabulary, D);
  for (int64_t i = 0; i < c->layers; i++) {
    trainer_layer *l = &t->layers[i];
    l->qkv = trainer_part_(t, i, "self_attn.q_proj.weight", q, D);
    trainer_part_(t, i, "self_attn.k_proj.weight", kv, D);
    trainer_part_(t, i, "self_attn.v_proj.weight", kv, D);
    l->o = trainer_part_(t, i, "self_attn.o_proj.weight", D, q);
    l->gate_up = trainer_part_(t, i, "mlp.gate_proj.weight", F, D);
    trainer_part_(t, i, "mlp.up_proj.weight", F, D);
    l->down = trainer_part_(t, i, "mlp.down_proj.weight", D, F);
  }
  t->decayed = t->numbers;
  for (int64_t i = 0; i < c->layers; i++) {
    trainer_layer *l = &t->layers[i];
    l->before_mix = trainer_part_(t, i, "input_layernorm.weight", 0, D);
    l->before_ff = trainer_part_(t, i, "post_attention_layernorm.weight", 0, D);
    l->qkv_bias = l->o_bias = l->gate_up_bias = l->down_bias = -1;
    if (c->attention_bias == 1 || !strcmp(c->family->type, "qwen2")) {
      l->qkv_bias = trainer_part_(t, i, "self_attn.q_proj.bias", 0, q);
      trainer_part_(t, i, "self_attn.k_proj.bias", 0, kv);
      trainer_part_(t, i, "self_attn.v_proj.bias", 0, kv);
    }
    if (c->attention_bias == 1) l->o_bias = trainer_part_(t, i, "self_attn.o_proj.bias", 0, D);
    if (c->mlp_bias != 1) continue;
    l->gate_up_bias = trainer_part_(t, i, "mlp.gate_proj.bias", 0, F);
    trainer_part_(t, i, "mlp.up_proj.bias", 0, F);
    l->down_bias = trainer_part_(t, i, "mlp.down_proj.bias", 0, D);
  }
  t->norm = trainer_part_(t, -1, "model.norm", 0, D);
}

/* Weights to begin with: normal of deviation 0.02, what is added to x smaller by sqrt(2 layers), gains 1. */
static void trainer_random(trainer *t, uint64_t seed) {
  float *to = t->weights;
  for (int i = 0; i < t->parts_count; i++) {
    const safetensors_part *part = &t->parts[i];
    const int adds = strstr(part->name, "o_proj") || strstr(part->name, "down_proj");
    const double deviation = adds ? 0.02 / sqrt(2.0 * (double)t->config.layers) : 0.02;
    const int64_t n = (part->rows ? part->rows : 1) * part->columns;
    for (int64_t j = 0; j < n; j++)
      *to++ = part->rows ? (float)(deviation * attn_random_normal(seed, (uint64_t)i, (uint64_t)j))
                         : (float)!strstr(part->name, ".bias");
  }
}

static int trainer_knows_(work *w, const model_config *c) {
  const model_family *f = c->family;
  if (f->gemma || f->qk_norm || f->sinks || f->mamba2 || f->router || c->softcap > 0 ||
      c->scale > 0)
    return work_fail(w, "model_type '%s' is not trained here: llama, mistral and qwen2 are",
                     f->type);
  return 1;
}

/* Makes room for a model of t->config and for batches of sequences x length tokens; weights are 0. Memory: 16 bytes a
 * weight, and a token 4 layers (4 width + 3 hidden + 2 heads head + 2 kv_heads head). */
static int trainer_open(trainer *t, int64_t sequences, int64_t length) {
  work *w = &t->w;
  const model_config *c = &t->config;
  if (!trainer_knows_(w, c)) return 0;
  const int64_t N = sequences * length, D = c->width, q = c->heads * c->head, F = c->hidden;
  const int64_t all = q + 2 * c->kv_heads * c->head;
  if (length > c->context)
    return work_fail(w, "the model's context is %" PRId64 " tokens, not %" PRId64, c->context,
                     length);
  t->batch = sequences;
  t->length = length;
  if (!(t->layers = work_take(w, c->layers, sizeof *t->layers))) return 0;
  trainer_parts_(t); /* counts */
  if (!(t->parts = work_take(w, t->parts_count, sizeof *t->parts))) return 0;
  trainer_parts_(t);
  float **const whole[] = {&t->weights, &t->gradients, &t->mean, &t->square};
  for (int i = 0; i < 4; i++)
    if (!(*whole[i] = work_floats(w, 1, t->numbers))) return 0;
  for (int64_t i = 0, at = 0; i < t->parts_count; i++) {
    safetensors_part *part = &t->parts[i];
    part->data = t->weights + at;
    at += (part->rows ? part->rows : 1) * part->columns;
  }
  for (int64_t i = 0; i < c->layers; i++) {
    trainer_layer *l = &t->layers[i];
    l->attention.causal = 1;
    if (c->windowed[i]) l->attention.window = attn_window_of(c->window - 1, -1);
    if (!(l->x = work_floats(w, N, D)) || !(l->y = work_floats(w, N, D)) ||
        !(l->qkv_rows = work_floats(w, N, all)) || !(l->mixed = work_floats(w, N, q)) ||
        !(l->lse = work_floats(w, N, c->heads)) || !(l->x2 = work_floats(w, N, D)) ||
        !(l->y2 = work_floats(w, N, D)) || !(l->gate_up_rows = work_floats(w, N, 2 * F)) ||
        !(l->h = work_floats(w, N, F)))
      return 0;
  }
  return (t->x = work_floats(w, N, D)) && (t->y = work_floats(w, N, D)) &&
         (t->out = work_floats(w, N, D)) && (t->d_x = work_floats(w, N, D)) &&
         (t->d_y = work_floats(w, N, D)) && (t->d_qkv = work_floats(w, N, all)) &&
         (t->d_mixed = work_floats(w, N, q)) && (t->d_gate_up = work_floats(w, N, 2 * F)) &&
         (t->d_h = work_floats(w, N, F));
}

/* ---- views */

/* Rows of all tokens. */
static attn_tensor trainer_rows_(const trainer *t, const float *data, int64_t columns) {
  return work_rows(data, t->batch * t->length, columns, columns);
}

static attn_tensor trainer_matrix_(const float *data, int64_t rows, int64_t columns) {
  return work_rows(data, rows, columns, columns);
}

/* Heads of attention, which lie in rows `stride` apart. */
static attn_tensor trainer_heads_(const trainer *t, const float *data, int64_t heads,
                                  int64_t stride) {
  attn_tensor x = attn_bthd(data, ATTN_F32, t->batch, t->length, heads, t->config.head);
  x.stride_len = stride;
  x.stride_batch = t->length * stride;
  return x;
}

typedef struct trainer_qkv {
  attn_tensor q, k, v;
} trainer_qkv;

static trainer_qkv trainer_qkv_(const trainer *t, const float *data) {
  const model_config *c = &t->config;
  const int64_t q = c->heads * c->head, kv = c->kv_heads * c->head, stride = q + 2 * kv;
  return (trainer_qkv){trainer_heads_(t, data, c->heads, stride),
                       trainer_heads_(t, data + q, c->kv_heads, stride),
                       trainer_heads_(t, data + q + kv, c->kv_heads, stride)};
}

/* Columns first .. first + F - 1 of rows of 2 F: the gate, or what it is multiplied by. */
static attn_tensor trainer_half_(const trainer *t, const float *data, int half) {
  const int64_t F = t->config.hidden;
  return work_rows(data + half * F, t->batch * t->length, F, 2 * F);
}

/* ---- forward */

/* With residual: sum = x + residual, y = rms(sum); without: y = rms(x). */
static int trainer_norm_(trainer *t, float *y, const float *x, const float *residual, float *sum,
                         int64_t gain) {
  const int64_t D = t->config.width;
  attn_layer_norm_params p = {.norm = {.gain = t->weights + gain, .eps = t->config.eps}};
  if (residual) {
    p.residual = trainer_rows_(t, residual, D);
    p.sum = trainer_rows_(t, sum, D);
  }
  return WORK_CALL(&t->w, attn_rms_norm,
                   (trainer_rows_(t, y, D), trainer_rows_(t, x, D), &p, &t->w.ctx));
}

/* y = x w^T + bias; bias -1: none. */
static int trainer_product_(trainer *t, float *y, int64_t outputs, const float *x, int64_t inputs,
                            int64_t w, int64_t bias) {
  attn_gemm_params p = {.w_transposed = 1};
  if (bias >= 0) p.bias = trainer_matrix_(t->weights + bias, 1, outputs);
  return WORK_CALL(&t->w, attn_gemm,
                   (trainer_rows_(t, y, outputs), trainer_rows_(t, x, inputs),
                    trainer_matrix_(t->weights + w, outputs, inputs), &p, &t->w.ctx));
}

/* Rotates queries and keys by their positions, or their gradients back. */
static int trainer_rotate_(trainer *t, trainer_qkv rows, int inverse) {
  attn_rope_params p = t->config.rope;
  p.inverse = inverse;
  return WORK_CALL(&t->w, attn_rope, (rows.q, rows.q, &p, &t->w.ctx)) &&
         WORK_CALL(&t->w, attn_rope, (rows.k, rows.k, &p, &t->w.ctx));
}

static int trainer_layer_(trainer *t, trainer_layer *l, const float *residual) {
  const model_config *c = &t->config;
  const int64_t D = c->width, q = c->heads * c->head, all = q + 2 * c->kv_heads * c->head;
  const trainer_qkv rows = trainer_qkv_(t, l->qkv_rows);
  attn_sdpa_params attention = l->attention;
  attention.lse = attn_bthd(l->lse, ATTN_F32, t->batch, t->length, c->heads, 1);
  const attn_activate_params by = {.activation = c->activation,
                                   .gate = trainer_half_(t, l->gate_up_rows, 1)};
  return trainer_norm_(t, l->y, residual ? t->out : l->x, residual, l->x, l->before_mix) &&
         trainer_product_(t, l->qkv_rows, all, l->y, D, l->qkv, l->qkv_bias) &&
         trainer_rotate_(t, rows, 0) &&
         WORK_CALL(&t->w, attn_sdpa,
                   (trainer_heads_(t, l->mixed, c->heads, q), rows.q, rows.k, rows.v, &attention,
                    &t->w.ctx)) &&
         trainer_product_(t, t->out, D, l->mixed, q, l->o, l->o_bias) &&
         trainer_norm_(t, l->y2, t->out, l->x, l->x2, l->before_ff) &&
         trainer_product_(t, l->gate_up_rows, 2 * c->hidden, l->y2, D, l->gate_up,
                          l->gate_up_bias) &&
         WORK_CALL(&t->w, attn_activate,
                   (trainer_rows_(t, l->h, c->hidden), trainer_half_(t, l->gate_up_rows, 0), &by,
                    &t->w.ctx)) &&
         trainer_product_(t, t->out, D, l->h, c->hidden, l->down, l->down_bias);
}

/* From tokens to y, the rows that logits are made of. */
static int trainer_forward_(trainer *t, const int64_t *tokens) {
  const model_config *c = &t->config;
  const attn_learned_params ids = {.positions = tokens};
  const attn_tensor none = {0},
                    table = trainer_matrix_(t->weights + t->embedding, c->vocabulary, c->width);
  if (!work_done(&t->w, attn_learned_position(trainer_rows_(t, t->layers->x, c->width), none, table,
                                              &ids, &t->w.ctx)))
    return 0;
  const float *residual = NULL;
  for (int64_t i = 0; i < c->layers; i++) {
    if (!trainer_layer_(t, &t->layers[i], residual)) return 0;
    residual = t->layers[i].x2;
  }
  return trainer_norm_(t, t->y, t->out, residual, t->x, t->norm);
}

/* ---- backward: d_<name> is the gradient of the loss by it */

/* d_x = what reaches x through y = rms(x), and d_x, what reaches it otherwise; first: nothing does. */
static int trainer_norm_back_(trainer *t, const float *x, int64_t gain, int first) {
  const int64_t D = t->config.width;
  const attn_tensor d_y = trainer_rows_(t, t->d_y, D);
  const attn_layer_norm_params p = {.norm = {.gain = t->weights + gain, .eps = t->config.eps}};
  attn_layer_norm_gradients d = {.d_gain = t->gradients + gain};
  if (!first) d.d_sum = trainer_rows_(t, t->d_x, D);
  if (!WORK_CALL(&t->w, attn_rms_norm_backward,
                 (d_y, d_y, trainer_rows_(t, x, D), &p, &d, &t->w.ctx)))
    return 0;
  float *const swap = t->d_x; /* d_y was overwritten by it */
  t->d_x = t->d_y;
  t->d_y = swap;
  return 1;
}

/* d_x and the gradients of w and bias, of y = x w^T + bias. */
static int trainer_product_back_(trainer *t, float *d_x, const float *d_y, int64_t outputs,
                                 const float *x, int64_t inputs, int64_t w, int64_t bias) {
  attn_gemm_params p = {.w_transposed = 1};
  attn_gemm_gradients d = {0};
  if (bias >= 0) {
    p.bias = trainer_matrix_(t->weights + bias, 1, outputs);
    d.d_bias = trainer_matrix_(t->gradients + bias, 1, outputs);
  }
  return WORK_CALL(
      &t->w, attn_gemm_backward,
      (trainer_rows_(t, d_x, inputs), trainer_matrix_(t->gradients + w, outputs, inputs),
       trainer_rows_(t, d_y, outputs), trainer_rows_(t, x, inputs),
       trainer_matrix_(t->weights + w, outputs, inputs), &p, &d, &t->w.ctx));
}

static int trainer_layer_back_(trainer *t, const trainer_layer *l) {
  const model_config *c = &t->config;
  const int64_t D = c->width, q = c->heads * c->head, all = q + 2 * c->kv_heads * c->head;
  const trainer_qkv rows = trainer_qkv_(t, l->qkv_rows), d = trainer_qkv_(t, t->d_qkv);
  const attn_tensor lse = attn_bthd(l->lse, ATTN_F32, t->batch, t->length, c->heads, 1);
  const attn_activate_params by = {.activation = c->activation,
                                   .gate = trainer_half_(t, l->gate_up_rows, 1)};
  const attn_activate_gradients up = {.d_gate = trainer_half_(t, t->d_gate_up, 1)};
  return trainer_product_back_(t, t->d_h, t->d_x, D, l->h, c->hidden, l->down, l->down_bias) &&
         WORK_CALL(&t->w, attn_activate_backward,
                   (trainer_half_(t, t->d_gate_up, 0), trainer_rows_(t, t->d_h, c->hidden),
                    trainer_half_(t, l->gate_up_rows, 0), &by, &up, &t->w.ctx)) &&
         trainer_product_back_(t, t->d_y, t->d_gate_up, 2 * c->hidden, l->y2, D, l->gate_up,
                               l->gate_up_bias) &&
         trainer_norm_back_(t, l->x2, l->before_ff, 0) &&
         trainer_product_back_(t, t->d_mixed, t->d_x, D, l->mixed, q, l->o, l->o_bias) &&
         WORK_CALL(
             &t->w, attn_sdpa_backward,
             (d.q, d.k, d.v, trainer_heads_(t, t->d_mixed, c->heads, q), rows.q, rows.k, rows.v,
              trainer_heads_(t, l->mixed, c->heads, q), lse, &l->attention, NULL, &t->w.ctx)) &&
         trainer_rotate_(t, d, 1) &&
         trainer_product_back_(t, t->d_y, t->d_qkv, all, l->y, D, l->qkv, l->qkv_bias) &&
         trainer_norm_back_(t, l->x, l->before_mix, 0);
}

/* The mean loss of targets behind tokens, both [batch * length]; with learn all gradients, too. */
static int trainer_loss(trainer *t, double *loss, const int64_t *tokens, const int32_t *targets,
                        int learn) {
  const model_config *c = &t->config;
  const int64_t D = c->width, V = c->vocabulary;
  const attn_cross_entropy_head_params p = {.w_transposed = 1};
  attn_cross_entropy_head_gradients d = {0};
  attn_tensor d_y = {0};
  if (learn) {
    d.d_w = trainer_matrix_(t->gradients + t->head, V, D);
    d_y = trainer_rows_(t, t->d_y, D);
  }
  if (!trainer_forward_(t, tokens) ||
      !WORK_CALL(&t->w, attn_cross_entropy_head,
                 (loss, d_y, trainer_rows_(t, t->y, D), trainer_matrix_(t->weights + t->head, V, D),
                  targets, &p, &d, &t->w.ctx)))
    return 0;
  if (!learn) return 1;
  if (!trainer_norm_back_(t, t->x, t->norm, 1)) return 0;
  for (int64_t i = c->layers - 1; i >= 0; i--)
    if (!trainer_layer_back_(t, &t->layers[i])) return 0;
  const attn_learned_params ids = {.positions = tokens};
  const attn_learned_gradients more = {.accumulate = t->embedding == t->head}; /* to the head's */
  return WORK_CALL(&t->w, attn_learned_position_backward,
                   (trainer_matrix_(t->gradients + t->embedding, V, D), trainer_rows_(t, t->d_x, D),
                    &ids, &more, &t->w.ctx));
}

/* ---- the step */

/* AdamW of step 1, 2, ... by the gradients, which are clipped to a norm of 1; *norm is what it was. */
static int trainer_step(trainer *t, int64_t step, double rate, double decay, double *norm) {
  const attn_flat_array all = {t->gradients, t->numbers};
  attn_adamw_params p = {.step = step, .lr = rate, .beta2 = 0.95, .decay = decay};
  const int64_t n = t->decayed;
  if (!WORK_CALL(&t->w, attn_global_norm, (norm, &p.clip, &all, 1, 1.0, &t->w.ctx)) ||
      !work_done(&t->w, attn_adamw(t->weights, t->gradients, t->mean, t->square, n, &p, &t->w.ctx)))
    return 0;
  p.decay = 0;
  return work_done(&t->w, attn_adamw(t->weights + n, t->gradients + n, t->mean + n, t->square + n,
                                     t->numbers - n, &p, &t->w.ctx));
}

#endif
