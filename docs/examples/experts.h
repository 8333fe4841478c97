/* experts.h owns the feed-forward of mixtures of experts: weights of all experts of a layer in one array for each
 * matrix, [experts, outputs, inputs] as files have them, and the call that sends each row to its experts
 * (attn_expert_rows). Shazeer et al. 2017, arXiv 1701.06538; Jiang et al. 2024, arXiv 2401.04088. */
#ifndef EXAMPLES_EXPERTS_H
#define EXAMPLES_EXPERTS_H

#include "model_config.h"
#include "model_matrix.h"

/* Space for E matrices [outputs, inputs]. */
static int experts_make_(work *w, attn_tensor *m, attn_scales *scales, model_weights kind,
                         attn_dtype file, int64_t E, int64_t outputs, int64_t inputs) {
  const attn_dtype dtype = model_weights_type(kind, file);
  const int64_t stride = inputs + (dtype == ATTN_I4 && inputs % 2); /* a row begins on a byte */
  const int64_t group = model_weights_group(dtype);
  void *data = stride <= INT64_MAX / 32 / E / outputs
                   ? work_take(w, E * outputs * stride / 2 + 1, model_weights_bits(dtype) / 4)
                   : NULL;
  if (!data) return work_fail(w, "out of memory for experts");
  *m = attn_bhtd(data, dtype, 1, E, outputs, inputs);
  m->stride_len = stride;
  m->stride_head = outputs * stride;
  m->stride_batch = E * m->stride_head;
  if (!group) return 1;
  *scales = attn_scales_dense(work_floats(w, E * outputs, inputs / group + !!(inputs % group)),
                              NULL, group, m);
  return scales->scale != NULL;
}

/* Expert e's matrix, from rows x of the file's type. */
static int experts_put_(work *w, const attn_tensor *m, const attn_scales *scales, int64_t e,
                        attn_tensor x) {
  attn_tensor to = *m;
  to.heads = 1;
  to.data = (char *)m->data + e * m->stride_head * model_weights_bits(m->dtype) / 8;
  if (!model_weights_group(m->dtype)) return WORK_CALL(w, attn_activate, (to, x, NULL, &w->ctx));
  attn_scales by_row = *scales;
  by_row.scale += e * scales->stride_head;
  return WORK_CALL(w, attn_quantize, (to, by_row, x, &w->ctx));
}

/* One matrix of all experts, each a tensor of its own: STEM.E.PART.weight. */
static int experts_read_each_(work *w, model_files *f, attn_tensor *m, attn_scales *scales,
                              model_weights kind, const char *stem, const char *part, int64_t E,
                              int64_t outputs, int64_t inputs) {
  char name[160];
  for (int64_t e = 0; e < E; e++) {
    snprintf(name, sizeof name, "%s.%" PRId64 ".%s.weight", stem, e, part);
    safetensor *t = model_files_fetch(w, f, name, outputs, inputs);
    if (!t) return 0;
    if (m->data && kind == MODEL_WEIGHTS_FILE && m->dtype != t->dtype) {
      safetensors_drop(t);
      return work_fail(w, "'%s' has another type than the experts before: use --weights f32", name);
    }
    const int fine =
        (m->data || experts_make_(w, m, scales, kind, t->dtype, E, outputs, inputs)) &&
        experts_put_(w, m, scales, e, attn_bhtd(t->data, t->dtype, 1, 1, outputs, inputs));
    safetensors_drop(t);
    if (!fine) return 0;
  }
  return 1;
}

/* One bias of all experts. */
static int experts_bias_(work *w, attn_tensor *bias, int64_t E, int64_t n) {
  float *data = work_floats(w, E, n);
  *bias = attn_bhtd(data, ATTN_F32, 1, E, 1, n);
  return data != NULL;
}

/* Two tensors have all experts: gate_up_proj [E, width, 2 hidden], where columns of gate and up alternate, and
 * down_proj [E, hidden, width]; each with a bias. */
static int experts_read_packed_(work *w, model_files *f, attn_expert_rows_params *p,
                                model_weights kind, const char *stem, int64_t E, int64_t D,
                                int64_t F) {
  attn_feed_forward *ff = &p->experts;
  attn_tensor *const m[] = {&ff->w_1, &ff->w_3, &ff->w_2}, *const b[] = {&ff->b_1, &ff->b_3,
                                                                         &ff->b_2};
  attn_scales *const scales[] = {&ff->w_1_scales, &ff->w_3_scales, &ff->w_2_scales};
  float *turned = malloc((size_t)D * (size_t)F * sizeof *turned);
  float *row = malloc(2 * (size_t)(D + F) * sizeof *row);
  int fine = turned && row ? 1 : work_fail(w, "out of memory for experts");
  char name[160];
  for (int i = 0; i < 3 && fine;
       i++) { /* every step-th column from `first` on of rows [inputs, all] */
    const int64_t inputs = i < 2 ? D : F, outputs = i < 2 ? F : D, step = i < 2 ? 2 : 1;
    const int64_t all = outputs * step, first = i & 1;
    snprintf(name, sizeof name, "%s.%s", stem, i < 2 ? "gate_up_proj" : "down_proj");
    safetensor *t = model_files_fetch(w, f, name, E * inputs, all);
    fine = t && experts_make_(w, m[i], scales[i], kind, t->dtype, E, outputs, inputs) &&
           experts_bias_(w, b[i], E, outputs);
    for (int64_t e = 0; e < E && fine; e++) {
      for (int64_t k = 0; k < inputs; k++) {
        safetensors_row(row, attn_bhtd(t->data, t->dtype, 1, 1, E * inputs, all), e * inputs + k);
        for (int64_t j = 0; j < outputs; j++) turned[j * inputs + k] = row[j * step + first];
      }
      fine = experts_put_(w, m[i], scales[i], e, work_rows(turned, outputs, inputs, inputs));
    }
    if (t) safetensors_drop(t);
    snprintf(name, sizeof name, "%s.%s_bias", stem, i < 2 ? "gate_up_proj" : "down_proj");
    t = fine ? model_files_fetch(w, f, name, E, all) : NULL;
    fine = t != NULL;
    for (int64_t e = 0; e < E && fine; e++) {
      safetensors_row(row, attn_bhtd(t->data, t->dtype, 1, 1, E, all), e);
      for (int64_t j = 0; j < outputs; j++)
        ((float *)b[i]->data)[e * outputs + j] = row[j * step + first];
    }
    if (t) safetensors_drop(t);
  }
  free(turned);
  free(row);
  return fine;
}

/* The router, and all experts of a layer. stem ends with a point. */
static int experts_read(work *w, model_files *f, attn_expert_rows_params *p, const model_config *c,
                        model_weights kind, const char *stem) {
  const int64_t E = c->experts, D = c->width, F = c->expert_hidden;
  const model_family *family = c->family;
  char name[128];
  float *gate = work_floats(w, E, D);
  memset(p, 0, sizeof *p);
  snprintf(name, sizeof name, "%s%s.weight", stem, family->router);
  safetensor *t = gate ? model_files_fetch(w, f, name, E, D) : NULL;
  if (!t) return 0;
  for (int64_t e = 0; e < E; e++)
    safetensors_row(gate + e * D, attn_bhtd(t->data, t->dtype, 1, 1, E, D), e);
  safetensors_drop(t);
  p->w_gate = attn_bhtd(gate, ATTN_F32, 1, 1, E, D);
  p->w_transposed = p->experts.w_transposed = 1;
  p->k = c->experts_used;
  p->no_renormalize = !c->renormalise;
  p->experts.activation = c->activation;
  p->experts.form = c->form;
  snprintf(name, sizeof name, "%s%s.bias", stem, family->router);
  safetensors *in;
  if (model_files_find(f, name, &in)) {
    float *bias = model_files_vector(w, f, name, E);
    if (!bias) return 0;
    p->b_gate = attn_bhtd(bias, ATTN_F32, 1, 1, 1, E);
  }
  snprintf(name, sizeof name, "%s%s", stem, family->experts);
  if (!family->parts[0]) return experts_read_packed_(w, f, p, kind, name, E, D, F);
  return experts_read_each_(w, f, &p->experts.w_1, &p->experts.w_1_scales, kind, name,
                            family->parts[0], E, F, D) &&
         experts_read_each_(w, f, &p->experts.w_3, &p->experts.w_3_scales, kind, name,
                            family->parts[1], E, F, D) &&
         experts_read_each_(w, f, &p->experts.w_2, &p->experts.w_2_scales, kind, name,
                            family->parts[2], E, D, F);
}

#endif
