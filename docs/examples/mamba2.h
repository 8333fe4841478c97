/* mamba2.h owns the mixer of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060) with its states, one a sequence. Of each
 * normed row:
 *
 *   z, u, dt = in_proj row                               u = (x, B, C), of all heads and groups
 *   x, B, C  = silu(conv1d(u) + bias)                    over the last K rows, each column by itself
 *   S        = exp(-exp(A_log) D) S + D B x^T,  o = C^T S + D_skip x     D = clip(softplus(dt + dt_bias))
 *   row      = out_proj (rms(o silu(z)) norm)            the mean over a group of heads */
#ifndef EXAMPLES_MAMBA2_H
#define EXAMPLES_MAMBA2_H

#include "model_config.h"
#include "model_matrix.h"

typedef struct mamba2_layer {
  model_matrix in, out;
  float *kernel, *kernel_bias; /* [K, columns], [columns] or null */
  float *a_log, *dt_bias, *skip, *norm;
  float *rows;   /* [slots, K - 1, columns]: what the convolution still reads */
  float *states; /* [slots, heads, state, head] */
} mamba2_layer;

/* Rows of a call, shared by all layers. */
typedef struct mamba2_rows {
  float *in, *mixed, *o; /* in: in.stride apart */
} mamba2_rows;

static int64_t mamba2_inner_(const model_config *c) { return c->state_heads * c->state_head; }

/* Columns that the convolution has. */
static int64_t mamba2_columns_(const model_config *c) {
  return mamba2_inner_(c) + 2 * c->groups * c->state;
}

static int mamba2_read(work *w, model_files *f, mamba2_layer *l, const model_config *c,
                       model_weights kind, const char *stem) {
  const int64_t inner = mamba2_inner_(c), columns = mamba2_columns_(c), H = c->state_heads;
  const int64_t all = inner + columns + H;
  char name[128];
  safetensors *in;
#define MAMBA2_NAME_(part) (snprintf(name, sizeof name, "%smixer.%s", stem, part), name)
  if (!model_matrix_read(w, f, &l->in, kind, MAMBA2_NAME_("in_proj"), 0, all, all, c->width) ||
      !model_matrix_read(w, f, &l->out, kind, MAMBA2_NAME_("out_proj"), 0, c->width, c->width,
                         inner) ||
      !(l->a_log = model_files_vector(w, f, MAMBA2_NAME_("A_log"), H)) ||
      !(l->dt_bias = model_files_vector(w, f, MAMBA2_NAME_("dt_bias"), H)) ||
      !(l->skip = model_files_vector(w, f, MAMBA2_NAME_("D"), H)) ||
      !(l->norm = model_files_vector(w, f, MAMBA2_NAME_("norm.weight"), inner)) ||
      !(l->kernel = work_floats(w, c->kernel, columns)))
    return 0;
  if (model_files_find(f, MAMBA2_NAME_("conv1d.bias"), &in) &&
      !(l->kernel_bias = model_files_vector(w, f, name, columns)))
    return 0;
  safetensor *t = model_files_fetch(w, f, MAMBA2_NAME_("conv1d.weight"), columns, c->kernel);
  float row[64];
  if (!t) return 0;
  for (int64_t i = 0; i < columns; i++) {
    safetensors_row(row, attn_bhtd(t->data, t->dtype, 1, 1, columns, c->kernel), i);
    for (int64_t k = 0; k < c->kernel; k++) l->kernel[k * columns + i] = row[k];
  }
  safetensors_drop(t);
  return 1;
#undef MAMBA2_NAME_
}

static int mamba2_open(work *w, mamba2_layer *l, const model_config *c, int64_t slots) {
  l->rows = work_floats(w, slots * (c->kernel - 1), mamba2_columns_(c));
  l->states = work_floats(w, slots * c->state, mamba2_inner_(c));
  return l->rows && l->states;
}

static int mamba2_open_rows(work *w, mamba2_rows *r, const mamba2_layer *l, const model_config *c,
                            int64_t batch) {
  r->in = work_floats(w, batch, l->in.stride);
  r->mixed = work_floats(w, batch, mamba2_columns_(c));
  r->o = work_floats(w, batch, mamba2_inner_(c));
  return r->in && r->mixed && r->o;
}

/* A slot's sequence begins anew. */
static void mamba2_clear(const mamba2_layer *l, const model_config *c, int64_t slot) {
  const int64_t rows = (c->kernel - 1) * mamba2_columns_(c), states = c->state * mamba2_inner_(c);
  memset(l->rows + slot * rows, 0, (size_t)rows * sizeof(float));
  memset(l->states + slot * states, 0, (size_t)states * sizeof(float));
}

/* n rows of one slot's sequence, from row `first` of r on; r->in holds in_proj of the rows, r->o gets what out_proj
 * takes. */
static int mamba2_mix(work *w, const mamba2_layer *l, const model_config *c, const mamba2_rows *r,
                      int64_t slot, int64_t first, int64_t n) {
  const int64_t inner = mamba2_inner_(c), columns = mamba2_columns_(c), H = c->state_heads;
  const int64_t shared = c->groups * c->state;
  float *in = r->in + first * l->in.stride, *mixed = r->mixed + first * columns;
  const attn_tensor u = work_rows(in + inner, n, columns, l->in.stride);
  const attn_tensor to = work_rows(mixed, n, columns, columns);
  const attn_tensor kernel = work_rows(l->kernel, c->kernel, columns, columns);
  attn_short_convolve_params convolve = {0};
  if (l->kernel_bias) convolve.bias = work_rows(l->kernel_bias, 1, columns, columns);
  convolve.initial = convolve.final_rows =
      work_rows(l->rows + slot * (c->kernel - 1) * columns, c->kernel - 1, columns, columns);
  if (!WORK_CALL(w, attn_short_convolve, (to, u, kernel, &convolve, &w->ctx))) return 0;

  attn_tensor x = attn_bthd(mixed, ATTN_F32, 1, n, H, c->state_head);
  attn_tensor b = attn_bthd(mixed + inner, ATTN_F32, 1, n, c->groups, c->state), q = b;
  x.stride_len = b.stride_len = q.stride_len = columns;
  q.data = mixed + inner + shared;
  attn_tensor dt = attn_bthd(in + inner + columns, ATTN_F32, 1, n, H, 1), z = x, o = x;
  dt.stride_len = z.stride_len = l->in.stride;
  z.data = in;
  o.data = r->o + first * inner;
  o.stride_len = inner;
  x.stride_batch = b.stride_batch = q.stride_batch = n * columns;
  dt.stride_batch = z.stride_batch = n * l->in.stride;
  const attn_tensor state =
      attn_bhtd(l->states + slot * c->state * inner, ATTN_F32, 1, H, c->state, c->state_head);
  const attn_recurrent_params rule = {.rule = ATTN_RECURRENT_MAMBA2,
                                      .dt = dt,
                                      .a_log = l->a_log,
                                      .dt_bias = l->dt_bias,
                                      .skip = l->skip,
                                      .dt_min = c->dt_min,
                                      .dt_max = c->dt_max,
                                      .initial_state = state,
                                      .final_state = state};
  const attn_gated_norm_params norm = {
      .kind = ATTN_GATED_NORM_BEFORE, .gain = l->norm, .eps = c->eps, .groups = c->groups};
  return WORK_CALL(w, attn_recurrent, (o, q, b, x, &rule, &w->ctx)) &&
         WORK_CALL(w, attn_gated_norm, (o, o, z, &norm, &w->ctx));
}

#endif
