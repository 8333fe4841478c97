/* model_matrix.h owns the weights of dense products, y = f(x w^T + bias), and the products. They lie in panels of
 * 64 outputs, so that a step walks through memory in order, as f32, in the 16 bits of the file, or as codes of 8 and 4
 * bits with a scale for each output and each 128 or 32 inputs; attn_gemm reads them there. */
#ifndef EXAMPLES_MODEL_MATRIX_H
#define EXAMPLES_MODEL_MATRIX_H

#include "model_files.h"

enum { MODEL_PANEL = 64, MODEL_FEW = 8 };

/* How weights are kept. */
typedef enum model_weights {
  MODEL_WEIGHTS_FILE, /* 16 bits where the file has them, else f32 */
  MODEL_WEIGHTS_F32,
  MODEL_WEIGHTS_BF16,
  MODEL_WEIGHTS_INT8,
  MODEL_WEIGHTS_INT4
} model_weights;

static attn_dtype model_weights_type(model_weights kind, attn_dtype file) {
  return kind == MODEL_WEIGHTS_FILE   ? file
         : kind == MODEL_WEIGHTS_F32  ? ATTN_F32
         : kind == MODEL_WEIGHTS_BF16 ? ATTN_BF16
         : kind == MODEL_WEIGHTS_INT8 ? ATTN_I8
                                      : ATTN_I4;
}

static int model_weights_bits(attn_dtype dtype) {
  return dtype == ATTN_F32 ? 32 : dtype == ATTN_I8 ? 8 : dtype == ATTN_I4 ? 4 : 16;
}

/* Inputs that share a scale; 0 where there is none. */
static int64_t model_weights_group(attn_dtype dtype) {
  return dtype == ATTN_I8 ? 128 : dtype == ATTN_I4 ? 32 : 0;
}

typedef struct model_matrix {
  attn_tensor w;      /* [1, panels, inputs, 64] */
  attn_scales scales; /* of codes: [panels, groups, 64] */
  attn_tensor bias;   /* [1, panels, 1, 64], or absent */
  int64_t outputs,
      stride; /* outputs in whole panels: from one row of y to the next; the rest is 0 */
} model_matrix;

/* Space for a matrix that is filled by rows. */
static int model_matrix_make(work *w, model_matrix *m, model_weights kind, attn_dtype file,
                             int64_t outputs, int64_t inputs) {
  const int64_t panels = outputs / MODEL_PANEL + (outputs % MODEL_PANEL != 0);
  const attn_dtype dtype = model_weights_type(kind, file);
  const int64_t group = model_weights_group(dtype);
  const int bits = model_weights_bits(dtype);
  memset(m, 0, sizeof *m);
  m->outputs = outputs;
  m->stride = panels * MODEL_PANEL;
  void *data =
      m->stride <= INT64_MAX / inputs / 32 ? work_take(w, m->stride * inputs / 8, bits) : NULL;
  if (!data) return work_fail(w, "out of memory for weights");
  m->w = attn_bhtd(data, dtype, 1, panels, inputs, MODEL_PANEL);
  if (!group) return 1;
  const int64_t groups = inputs / group + !!(inputs % group);
  float *scale = work_floats(w, panels * groups, MODEL_PANEL);
  for (int64_t i = 0; scale && i < panels * groups * MODEL_PANEL; i++) scale[i] = 1;
  m->scales = (attn_scales){.scale = scale,
                            .group = group,
                            .stride_head = groups * MODEL_PANEL,
                            .stride_len = MODEL_PANEL};
  return scale != NULL;
}

/* Outputs first .. first + n - 1, all in one panel, from rows x [n, inputs]; buffer has room for 64 rows of f32, scale
 * for their groups. */
static int matrix_panel_(work *w, model_matrix *m, int64_t first, attn_tensor x, void *buffer,
                         float *scale) {
  const int64_t at = first % MODEL_PANEL, panel = first / MODEL_PANEL, inputs = x.dim, n = x.len;
  attn_tensor rows = attn_bhtd(buffer, m->w.dtype, 1, 1, n, inputs);
  rows.stride_len += m->w.dtype == ATTN_I4 ? inputs % 2 : 0; /* a row of codes begins on a byte */
  const int64_t stride = rows.stride_len;
  if (m->scales.scale) {
    const attn_scales by_row = attn_scales_dense(scale, NULL, m->scales.group, &rows);
    const int64_t groups = m->scales.stride_head / MODEL_PANEL;
    if (!WORK_CALL(w, attn_quantize, (rows, by_row, x, &w->ctx))) return 0;
    for (int64_t r = 0; r < n; r++)
      for (int64_t g = 0; g < groups; g++)
        m->scales.scale[(panel * groups + g) * MODEL_PANEL + at + r] = scale[r * groups + g];
  } else if (!WORK_CALL(w, attn_activate, (rows, x, NULL, &w->ctx))) { /* only the type changes */
    return 0;
  }
  const int64_t begin = panel * inputs * MODEL_PANEL + at;
#define MODEL_TURN_(type)                                                             \
  do {                                                                                \
    type *to = (type *)m->w.data + begin;                                             \
    const type *from = buffer;                                                        \
    for (int64_t k = 0; k < inputs; k++)                                              \
      for (int64_t r = 0; r < n; r++) to[k * MODEL_PANEL + r] = from[r * stride + k]; \
  } while (0)
  if (m->w.dtype == ATTN_F32)
    MODEL_TURN_(float);
  else if (m->w.dtype == ATTN_I8)
    MODEL_TURN_(int8_t);
  else if (m->w.dtype != ATTN_I4)
    MODEL_TURN_(uint16_t);
#undef MODEL_TURN_
  if (m->w.dtype != ATTN_I4) return 1;
  uint8_t *to = m->w.data;
  const uint8_t *from = buffer;
  for (int64_t k = 0; k < inputs; k++)
    for (int64_t r = 0; r < n; r++) {
      const int64_t i = begin + k * MODEL_PANEL + r, j = r * stride + k;
      const int code = from[j / 2] >> 4 * (j & 1) & 15;
      to[i / 2] = (uint8_t)((to[i / 2] & (i & 1 ? 0x0F : 0xF0)) | code << 4 * (i & 1));
    }
  return 1;
}

/* Outputs from `first` on, from x [rows, inputs]. */
static int model_matrix_fill(work *w, model_matrix *m, int64_t first, attn_tensor x) {
  const int64_t rows = x.len, inputs = x.dim;
  void *buffer = malloc((size_t)(inputs + 1) * MODEL_PANEL * sizeof(float));
  float *scale = malloc((size_t)(inputs / 32 + 1) * MODEL_PANEL * sizeof *scale);
  int fine = buffer && scale ? 1 : work_fail(w, "out of memory for weights");
  for (int64_t i = 0, n; i < rows && fine; i += n) { /* rows of one panel at once */
    const int64_t at = (first + i) % MODEL_PANEL;
    n = rows - i < MODEL_PANEL - at ? rows - i : MODEL_PANEL - at;
    attn_tensor part = x;
    part.data = (char *)x.data + i * x.stride_len * (x.dtype == ATTN_F32 ? 4 : 2);
    part.len = n;
    fine = matrix_panel_(w, m, first + i, part, buffer, scale);
  }
  free(buffer);
  free(scale);
  return fine;
}

/* Fills outputs from `first` on with tensor NAME.weight [rows, inputs], and their bias with NAME.bias if there is
 * one. The matrix is made if it is empty, for `outputs` in all. */
static int model_matrix_read(work *w, model_files *f, model_matrix *m, model_weights kind,
                             const char *name, int64_t first, int64_t rows, int64_t outputs,
                             int64_t inputs) {
  char full[160];
  safetensors *in;
  snprintf(full, sizeof full, "%s.weight", name);
  safetensor *t = model_files_fetch(w, f, full, rows, inputs);
  if (!t) return 0;
  if (m->w.data && kind == MODEL_WEIGHTS_FILE && m->w.dtype != t->dtype) {
    safetensors_drop(t);
    return work_fail(w, "'%s' has another type than what it is joined with: use --weights f32",
                     full);
  }
  const int fine = (m->w.data || model_matrix_make(w, m, kind, t->dtype, outputs, inputs)) &&
                   model_matrix_fill(w, m, first, attn_bhtd(t->data, t->dtype, 1, 1, rows, inputs));
  safetensors_drop(t);
  snprintf(full, sizeof full, "%s.bias", name);
  if (!fine || !model_files_find(f, full, &in)) return fine;
  for (int i = 0; i < 2; i++)
    if (f->without_bias[i] && strstr(full, f->without_bias[i])) return 1;
  if (!m->bias.data) {
    float *bias = work_floats(w, 1, m->stride);
    if (!bias) return 0;
    m->bias = attn_bhtd(bias, ATTN_F32, 1, m->w.heads, 1, MODEL_PANEL);
  }
  t = model_files_fetch(w, f, full, 0, rows);
  if (!t) return 0;
  safetensors_row((float *)m->bias.data + first, attn_bhtd(t->data, t->dtype, 1, 1, 1, rows), 0);
  safetensors_drop(t);
  return 1;
}

/* y = f(x w^T + bias), rows of y m->stride apart; with cap > 0 f(cap tanh(. / cap)). */
static int model_product(work *w, float *y, attn_tensor x, const model_matrix *m, attn_activation f,
                         float cap) {
  /* fewer rows are bound by memory, where w is read as it is stored */
  const int low = w->bf16 && x.len > MODEL_FEW && m->w.dtype <= ATTN_BF16;
  const attn_gemm_params params = {.bias = m->bias,
                                   .activation = f,
                                   .softcap = cap,
                                   .w_scales = m->scales,
                                   .compute = low ? ATTN_COMPUTE_BF16 : ATTN_COMPUTE_F32,
                                   .compute_prefer = low};
  const attn_tensor to = attn_bthd(y, ATTN_F32, 1, x.len, m->w.heads, MODEL_PANEL);
  return WORK_CALL(w, attn_gemm, (to, x, m->w, &params, &w->ctx));
}

#endif
