/* composite.c owns the composite peer: for each block of query rows sgemm, row softmax, sgemm, with
 * OpenBLAS on one thread and SLEEF; the memory of both peers; and OpenBLAS's product alone. */
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "peers.h"

int peer_fits(const problem *p) {
  const problem_shape *s = &p->shape;
  return s->dtype == ATTN_F32 && s->kv_heads == s->heads && s->extra == PROBLEM_PLAIN && !s->bthd &&
         (!s->causal || s->tq <= s->tk);
}

enum { MAX_BLOCK = 1024 };

int peer_init(peer *w, const problem *p, attn_isa isa) {
  const problem_shape *s = &p->shape;
  size_t rows = (size_t)(s->tq < MAX_BLOCK ? s->tq : MAX_BLOCK);
  w->p = p;
  w->isa = isa;
  w->block = 64;
  w->out = calloc((size_t)(s->batch * s->heads * s->tq * s->dv), sizeof(float));
  w->scores = aligned_alloc(64, (rows * (size_t)s->tk * sizeof(float) + 63) / 64 * 64);
  openblas_set_num_threads(1);
  if (w->out && w->scores) return 1;
  peer_free(w);
  return 0;
}

void peer_free(peer *w) {
  free(w->out);
  free(w->scores);
  w->out = w->scores = NULL;
}

void peer_gemm(float *y, const float *x, const float *w, int64_t m, int64_t k, int64_t n,
               int transposed) {
  openblas_set_num_threads(1);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, transposed ? CblasTrans : CblasNoTrans, (int)m, (int)n,
              (int)k, 1.0f, x, (int)k, w, (int)(transposed ? k : n), 0.0f, y, (int)n);
}

const char *composite_core(void) { return openblas_get_corename(); }

static const float *head_of(const attn_tensor *t, int64_t head) {
  return (const float *)t->data + head * t->len * t->dim;
}

/* Causal blocks multiply only the keys that their last row may see; earlier rows get zeros there.
 */
static void composite_head(peer *w, int64_t head) {
  const problem *p = w->p;
  const problem_shape *s = &p->shape;
  const float *q = head_of(&p->q, head), *k = head_of(&p->k, head), *v = head_of(&p->v, head);
  float *o = w->out + head * s->tq * s->dv, *scores = w->scores;
  float scale = 1.0f / sqrtf((float)s->dk);
  for (int64_t i = 0; i < s->tq; i += w->block) {
    int64_t rows = s->tq - i < w->block ? s->tq - i : w->block;
    int64_t keys = s->causal ? i + rows + s->tk - s->tq : s->tk;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)keys, (int)s->dk, scale,
                q + i * s->dk, (int)s->dk, k, (int)s->dk, 0.0f, scores, (int)keys);
    float sums[MAX_BLOCK];
    for (int64_t r = 0; r < rows; r++) {
      float *row = scores + r * keys;
      int64_t n = s->causal ? keys - rows + r + 1 : keys;
      sums[r] = peer_softmax(row, n, w->isa);
      memset(row + n, 0, (size_t)(keys - n) * sizeof *row);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)s->dv, (int)keys, 1.0f,
                scores, (int)keys, v, (int)s->dv, 0.0f, o + i * s->dv, (int)s->dv);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t x = 0; x < s->dv; x++) o[(i + r) * s->dv + x] /= sums[r];
  }
}

void composite_tune(peer *w) {
  double best = INFINITY;
  int chosen = w->block;
  for (int block = 16; block <= MAX_BLOCK && (block <= w->p->shape.tq || block == 16); block *= 2) {
    w->block = block;
    composite_head(w, 0);
    double fastest = INFINITY, start = clock_now(), t;
    do {
      t = clock_busy();
      composite_head(w, 0);
      t = clock_busy() - t;
      if (t < fastest) fastest = t;
    } while (clock_now() - start < 5e-3);
    if (fastest < best) best = fastest, chosen = block;
  }
  w->block = chosen;
}

void composite_run(peer *w, int64_t heads) {
  for (int64_t h = 0; h < heads; h++) composite_head(w, h);
}

void naive_run(peer *w, int64_t heads) {
  const problem *p = w->p;
  const problem_shape *s = &p->shape;
  for (int64_t h = 0; h < heads; h++)
    (w->isa == ATTN_ISA_SCALAR ? naive_head_baseline : naive_head)(
        w->out + h * s->tq * s->dv, head_of(&p->q, h), head_of(&p->k, h), head_of(&p->v, h),
        w->scores, s->tq, s->tk, s->dk, s->dv, s->causal);
}

double peer_difference(const peer *w, int64_t heads) {
  const float *ours = w->p->o.data;
  double worst = 0;
  for (int64_t i = 0; i < heads * w->p->shape.tq * w->p->shape.dv; i++) {
    double d = fabs((double)ours[i] - (double)w->out[i]);
    if (!(d <= worst)) worst = d;
  }
  return worst;
}
