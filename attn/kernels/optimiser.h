/* kernels/optimiser.h owns steps of optimisers, an element by itself, and the sum of squares of a gradient. */

/* Products that are added to are FMA as written, so that elements have the same bits wherever they lie. */
ATTN_INLINE_ void ATTN_FN_(adam_step)(float *w, const float *g, float *m, float *v, int64_t i,
                                      int n, const attn_adam_ *r) {
  const ATTN_VF_ zero = ATTN_V_ZERO_();
  const ATTN_VF_ x = ATTN_V_MUL_(ATTN_FN_(load)(g, i, n, ATTN_F32), ATTN_V_SET1_(r->clip));
  const ATTN_VF_ mean = ATTN_V_FMA_(ATTN_V_SET1_(r->beta1), ATTN_FN_(load)(m, i, n, ATTN_F32),
                                    ATTN_V_MUL_(ATTN_V_SET1_(r->rest1), x));
  const ATTN_VF_ square = ATTN_V_FMA_(ATTN_V_SET1_(r->beta2), ATTN_FN_(load)(v, i, n, ATTN_F32),
                                      ATTN_V_MUL_(ATTN_V_MUL_(ATTN_V_SET1_(r->rest2), x), x));
  const ATTN_VF_ root = ATTN_V_SQRT_(ATTN_V_MUL_(ATTN_V_SET1_(r->root), square));
  const ATTN_VF_ by = ATTN_V_DIV_(ATTN_V_MUL_(ATTN_V_SET1_(r->rate), mean),
                                  ATTN_V_ADD_(root, ATTN_V_SET1_(r->eps)));
  const ATTN_VF_ y =
      ATTN_V_FMA_(ATTN_V_SET1_(r->keep), ATTN_FN_(load)(w, i, n, ATTN_F32), ATTN_V_SUB_(zero, by));
  ATTN_FN_(store)(m, i, ATTN_FN_(quiet)(mean), n, ATTN_F32);
  ATTN_FN_(store)(v, i, ATTN_FN_(quiet)(square), n, ATTN_F32);
  ATTN_FN_(store)(w, i, ATTN_FN_(quiet)(y), n, ATTN_F32);
}

ATTN_FUNC_ void ATTN_FN_(adam)(float *w, const float *g, float *m, float *v, int64_t n,
                               const attn_adam_ *rule) {
  const attn_adam_ r = *rule; /* which no store can reach */
  int64_t i = 0;
  for (; i + ATTN_W_ <= n; i += ATTN_W_) ATTN_FN_(adam_step)(w, g, m, v, i, ATTN_W_, &r);
  if (i < n) ATTN_FN_(adam_step)(w, g, m, v, i, (int)(n - i), &r);
}

ATTN_INLINE_ void ATTN_FN_(descend_step)(float *w, const float *g, float *b, int64_t i, int n,
                                         const attn_descent_ *r) {
  const ATTN_VF_ was = ATTN_FN_(load)(w, i, n, ATTN_F32), mu = ATTN_V_SET1_(r->momentum);
  const ATTN_VF_ x =
      ATTN_V_FMA_(ATTN_V_SET1_(r->decay), was,
                  ATTN_V_MUL_(ATTN_FN_(load)(g, i, n, ATTN_F32), ATTN_V_SET1_(r->clip)));
  ATTN_VF_ by = x;
  if (b) {
    if (!r->first) by = ATTN_V_FMA_(mu, ATTN_FN_(load)(b, i, n, ATTN_F32), x);
    ATTN_FN_(store)(b, i, ATTN_FN_(quiet)(by), n, ATTN_F32);
    if (r->nesterov) by = ATTN_V_FMA_(mu, by, x);
  }
  const ATTN_VF_ y = ATTN_V_FMA_(ATTN_V_SET1_(-r->rate), by, was);
  ATTN_FN_(store)(w, i, ATTN_FN_(quiet)(y), n, ATTN_F32);
}

ATTN_FUNC_ void ATTN_FN_(descend)(float *w, const float *g, float *b, int64_t n,
                                  const attn_descent_ *rule) {
  const attn_descent_ r = *rule;
  int64_t i = 0;
  for (; i + ATTN_W_ <= n; i += ATTN_W_) ATTN_FN_(descend_step)(w, g, b, i, ATTN_W_, &r);
  if (i < n) ATTN_FN_(descend_step)(w, g, b, i, (int)(n - i), &r);
}

/* Squares of floats are exact in double, so only the order of the sums is there to be kept. */
ATTN_FUNC_ double ATTN_FN_(square_sum)(const float *x, int64_t n) {
  double s[16] = {0.0};
  int64_t c = 0;
  for (; c + 16 <= n; c += 16) ATTN_UNROLL_
  for (int i = 0; i < 16; i++) {
    const double t = (double)x[c + i];
    s[i] += t * t;
  }
  for (int i = 0; c + i < n; i++) {
    const double t = (double)x[c + i];
    s[i] += t * t;
  }
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; i++) s[i] += s[i + half];
  return s[0];
}
