/* exits.h owns the decoding of bytes into calls about when a model stops: predictors and their targets,
 * confidences, thresholds and their calibration. */

#ifndef FUZZ_EXITS_H
#define FUZZ_EXITS_H

#include "arrays.h"

enum { Q_WORDS, Q_COUNT, Q_Y, Q_X, Q_BEFORE, Q_W, Q_BIAS, Q_TENSORS };
enum { PREDICT, SMOOTH, TARGET, CONFIDENCE, THRESHOLD, CALM_EXIT, CALIBRATE, EXIT_KINDS };

typedef struct exit_args {
  int kind;
  attn_exits_params predict;
  attn_exit_smooth_params smooth;
  attn_exit_target_params target;
  attn_confidence_params confidence;
  attn_calm_threshold_params threshold;
  int64_t count, min_exit, layers; /* layers: the most that an exit may be */
  float lambda, delta, eps;
} exit_args;

/* The call, or with bytes the workspace query. */
static attn_status exit_call(job *j, attn_ctx *ctx, const attn_ctx *query, size_t *bytes) {
  exit_args *a = (exit_args *)j->args;
  const attn_tensor x = j->b[Q_X].view, y = j->b[Q_Y].view;
  int32_t *words = (int32_t *)j->b[Q_WORDS].view.data;
  const float *before = (const float *)j->b[Q_BEFORE].view.data;
  a->predict.w = a->confidence.w = j->b[Q_W].view;
  a->predict.bias = a->confidence.bias = j->b[Q_BIAS].view;
  a->confidence.before = j->b[Q_BEFORE].view;
  switch (a->kind) {
    case PREDICT: return EITHER(attn_exits, words, y, x, &a->predict);
    case SMOOTH: return EITHER(attn_exit_smooth, y, x, &a->smooth);
    case TARGET: return EITHER(attn_exit_target, words, x, &a->target);
    case CONFIDENCE: return EITHER(attn_confidence, y, x, &a->confidence);
    case THRESHOLD:
      return bytes ? ATTN_OK
                   : attn_calm_threshold((float *)j->b[Q_WORDS].view.data, a->count, a->lambda,
                                         &a->threshold, ctx);
    case CALM_EXIT: return EITHER(attn_calm_exit, words, x, before, a->min_exit);
    default:
      return EITHER(attn_calm_calibrate, (float *)j->b[Q_WORDS].view.data,
                    (int64_t *)j->b[Q_COUNT].view.data, x, before, a->delta, a->eps);
  }
}

static attn_status call_exit(job *j, attn_ctx *ctx) { return exit_call(j, ctx, NULL, NULL); }
static size_t workspace_exit(job *j, const attn_ctx *ctx) {
  size_t bytes = 0;
  exit_call(j, NULL, ctx, &bytes);
  return bytes;
}

static void judge_exit(job *j) {
  const exit_args *a = (const exit_args *)j->args;
  const buffer *b = &j->b[Q_WORDS];
  const int32_t *words = (const int32_t *)b->view.data;
  const int integers = a->kind == PREDICT || a->kind == TARGET || a->kind == CALM_EXIT;
  for (int64_t i = 0; integers && buffer_full(b) && i < b->view.dim; i++)
    promise(words[i] >= (a->kind != TARGET) && words[i] <= a->layers, j, "an exit that is none");
  if (integers || !buffer_full(b)) return;
  for (int64_t i = 0; i < b->view.dim; i++) {
    const float x = ((const float *)b->view.data)[i];
    promise(x >= 0.0f && x <= 1.0f, j, "a threshold outside 0..1");
  }
}

/* Losses, from 0 to 1. */
static void fill_losses(const buffer *b, size_t place, void *user) {
  for (int64_t c = 0; c < b->view.dim; c++)
    set_element(b->view.dtype, b->base + place, c,
                (float)(filler_next((filler *)user) % 17) / 16.0f);
}

static void exit_views(input *in, exit_args *a, attn_tensor *view) {
  const int64_t batch = below(in, 3), heads = 1 + below(in, 3), dim = 1 + below(in, 40);
  const int64_t rows = chance(in, 8) ? 250 + below(in, 90) : below(in, 70), n = a->layers;
  const int64_t classes = chance(in, 6) ? 8000 + 5 * below(in, 250) : dim;
  const int with = below(in, 8);
  switch (a->kind) {
    case PREDICT:
      if (a->predict.kind == ATTN_EXIT_GEOMETRIC) {
        const int64_t each = with & 1 ? 1 : n - 1;
        view[Q_X] = any_view(in, batch, n - 1, rows, dim, 0);
        view[Q_W] = any_view(in, 1, each, 1, dim, 0);
        if (with & 2) view[Q_BIAS] = any_view(in, 1, each, 1, 1, 0);
      } else {
        view[Q_X] = any_view(in, batch, 1, rows, dim, 0);
        a->predict.w_transposed = chance(in, 3);
        view[Q_W] = weight_view(in, dim, n, a->predict.w_transposed);
        if (with & 2) view[Q_BIAS] = any_view(in, 1, 1, 1, n, 0);
      }
      if (with & 4)
        view[Q_Y] = any_view(in, batch, 1, a->predict.kind == ATTN_EXIT_SEQUENCE ? 1 : rows, n, 1);
      break;
    case CONFIDENCE:
      view[Q_X] = any_view(in, batch, heads, classes == dim ? rows : rows % 8, classes, 0);
      view[Q_Y] = any_view(in, batch, heads, view[Q_X].len, 1, 1);
      if (a->confidence.kind == ATTN_CONFIDENCE_COSINE)
        view[Q_BEFORE] = any_view(in, batch, heads, view[Q_X].len, classes, 0);
      if (a->confidence.kind == ATTN_CONFIDENCE_CLASSIFIER) {
        view[Q_W] = any_view(in, 1, with & 1 ? 1 : heads, 1, classes, 0);
        if (with & 2) view[Q_BIAS] = any_view(in, 1, with & 1 ? 1 : heads, 1, 1, 0);
      }
      break;
    case SMOOTH: view[Q_Y] = any_view(in, batch, 1, n, rows, 1); /* fall through */
    case TARGET: view[Q_X] = any_view(in, batch, 1, n, rows, 0); break;
    case THRESHOLD: break;
    case CALM_EXIT: view[Q_X] = any_view(in, batch, 1, n - 1, rows, 0); break;
    default: view[Q_X] = any_view(in, 1, 1, rows % 16, dim, 0); break;
  }
}

/* The arrays, as long as what the views have become says. */
static void exit_arrays(input *in, job *j, exit_args *a, store *s) {
  const attn_tensor *x = &j->b[Q_X].view;
  const int sequence = a->kind == PREDICT && a->predict.kind == ATTN_EXIT_SEQUENCE;
  const int layers = a->kind == CALM_EXIT || a->kind == SMOOTH || a->kind == TARGET;
  const int64_t tokens = layers ? x->dim : x->len;
  int64_t n = array_size(x->batch, tokens, 1);
  if (sequence || (a->kind == TARGET && !a->target.tokens)) n = array_size(x->batch, 1, 1);
  if (a->kind == THRESHOLD) n = array_size(a->count, 1, 1);
  if (a->kind == CALIBRATE) n = 1;
  if (a->kind != SMOOTH && a->kind != CONFIDENCE && !chance(in, 12)) make_words(&j->b[Q_WORDS], n);
  if (a->kind == CALM_EXIT || a->kind == CALIBRATE) {
    const int64_t steps = array_size(layers ? tokens : x->len, 1, 1);
    float *to = (float *)make_words(&j->b[Q_BEFORE], steps);
    for (int64_t i = 0; to && i < steps; i++) to[i] = 1.0f - (float)i / 32.0f;
    if (to && steps > 0 && chance(in, 12)) to[take(in) % (uint64_t)steps] = nasty_float(in);
  }
  if (a->kind == CALIBRATE) {
    filler f = {take(in), 0};
    if (!chance(in, 12)) each_row(&j->b[Q_X], fill_losses, &f);
    if (!chance(in, 4)) make_words(&j->b[Q_COUNT], 2);
  }
  if (chance(in, 3)) a->predict.x_len = make_lengths(in, s, x->batch, x->len);
  if (chance(in, 3)) a->smooth.x_len = a->target.x_len = make_lengths(in, s, x->batch, x->dim);
  if (chance(in, 3) && a->predict.layers > 0 && a->predict.layers < 100)
    a->predict.taus = store_floats(in, s, a->predict.layers - 1, 0, 1, &j->tame);
  if (layers) a->layers = x->len + (a->kind == CALM_EXIT);
}

static float some_share(input *in) {
  return chance(in, 8) ? nasty_float(in) : (float)below(in, 17) / 16.0f;
}

static void fuzz_exit(input *in) {
  exit_args a;
  store s = {NULL, 0};
  memset(&a, 0, sizeof a);
  a.kind = below(in, EXIT_KINDS);
  job j = {.name = "exits",
           .outputs = Q_X,
           .runnable = 1,
           .args = &a,
           .call = call_exit,
           .workspace = a.kind == THRESHOLD ? NULL : workspace_exit,
           .judge = judge_exit};
  a.layers = 1 + below(in, 6);
  a.predict.kind = (attn_exit_kind)some(in, ATTN_EXIT_COUNT);
  a.predict.layers = chance(in, 12) ? nasty_int(in) : a.layers;
  a.predict.tau = chance(in, 3) ? some_share(in) : 0.0f;
  a.smooth.sigma = chance(in, 6) ? nasty_float(in) : (float)(1 + take(in)) / 8.0f;
  a.target.tokens = below(in, 2), a.target.lambda = some_share(in);
  a.confidence.kind = (attn_confidence_kind)some(in, ATTN_CONFIDENCE_COUNT);
  a.threshold.kind = (attn_calm_threshold_kind)some(in, ATTN_CALM_COUNT);
  a.threshold.outputs = chance(in, 8) ? nasty_int(in) : 100;
  a.threshold.first = chance(in, 8) ? nasty_int(in) : below(in, 50);
  a.threshold.tau = chance(in, 4) ? nasty_float(in) : 0.0f;
  a.count = some(in, 60), a.min_exit = some(in, 4);
  a.lambda = some_share(in), a.delta = some_share(in), a.eps = some_share(in);
  attn_tensor view[Q_TENSORS];
  memset(view, 0, sizeof view);
  exit_views(in, &a, view);
  make_buffers(in, &j, view, Q_TENSORS);
  exit_arrays(in, &j, &a, &s);
  j.tame = 0;
  job_run(&j, in);
  store_free(&s);
}

#endif
