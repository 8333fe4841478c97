/* kernels/fourier.h owns the butterflies of Fourier transforms of many columns at once, and the fold
 * that goes before. A row has `half` real parts and as many imaginary ones, of which the first
 * `lanes`, whole groups, are in use; columns never meet, so that no number depends on the width of a
 * vector. */

/* (re, im) times e^(-i a), with w = cos a, sin a. */
#define ATTN_TURN_(re, im, w)                                                       \
  {                                                                                 \
    const ATTN_VF_ c_ = ATTN_V_SET1_((w)[0]);                                       \
    const ATTN_VF_ t_ = ATTN_V_FMA_(im, ATTN_V_SET1_((w)[1]), ATTN_V_MUL_(re, c_)); \
    im = ATTN_V_FMA_(re, ATTN_V_SET1_(-(w)[1]), ATTN_V_MUL_(im, c_)), re = t_;      \
  }

/* Radix 4, or 2; at: the first of its rows, which are `step` floats apart; turn = 0: w is 1. */
ATTN_INLINE_ void ATTN_FN_(butterfly4)(float *at, int64_t step, int64_t half, int lanes,
                                       const float *w1, const float *w2, const float *w3,
                                       const int turn) {
  for (int64_t l = 0; l < lanes; l += ATTN_W_) {
    float *p0 = at + l, *p1 = p0 + step, *p2 = p1 + step, *p3 = p2 + step;
    const ATTN_VF_ a0 = ATTN_V_LOAD_(p0), b0 = ATTN_V_LOAD_(p0 + half);
    const ATTN_VF_ a1 = ATTN_V_LOAD_(p1), b1 = ATTN_V_LOAD_(p1 + half);
    const ATTN_VF_ a2 = ATTN_V_LOAD_(p2), b2 = ATTN_V_LOAD_(p2 + half);
    const ATTN_VF_ a3 = ATTN_V_LOAD_(p3), b3 = ATTN_V_LOAD_(p3 + half);
    const ATTN_VF_ s = ATTN_V_ADD_(a0, a2), t = ATTN_V_ADD_(b0, b2);
    const ATTN_VF_ d = ATTN_V_SUB_(a0, a2), e = ATTN_V_SUB_(b0, b2);
    const ATTN_VF_ u = ATTN_V_ADD_(a1, a3), v = ATTN_V_ADD_(b1, b3);
    const ATTN_VF_ f = ATTN_V_SUB_(a1, a3), g = ATTN_V_SUB_(b1, b3);
    ATTN_VF_ re1 = ATTN_V_ADD_(d, g), im1 = ATTN_V_SUB_(e, f);
    ATTN_VF_ re2 = ATTN_V_SUB_(s, u), im2 = ATTN_V_SUB_(t, v);
    ATTN_VF_ re3 = ATTN_V_SUB_(d, g), im3 = ATTN_V_ADD_(e, f);
    ATTN_V_STORE_(p0, ATTN_V_ADD_(s, u));
    ATTN_V_STORE_(p0 + half, ATTN_V_ADD_(t, v));
    if (turn) {
      ATTN_TURN_(re1, im1, w1)
      ATTN_TURN_(re2, im2, w2)
      ATTN_TURN_(re3, im3, w3)
    }
    ATTN_V_STORE_(p1, re1);
    ATTN_V_STORE_(p1 + half, im1);
    ATTN_V_STORE_(p2, re2);
    ATTN_V_STORE_(p2 + half, im2);
    ATTN_V_STORE_(p3, re3);
    ATTN_V_STORE_(p3 + half, im3);
  }
}

ATTN_INLINE_ void ATTN_FN_(butterfly2)(float *at, int64_t step, int64_t half, int lanes,
                                       const float *w1) {
  for (int64_t l = 0; l < lanes; l += ATTN_W_) {
    float *p0 = at + l, *p1 = p0 + step;
    const ATTN_VF_ a0 = ATTN_V_LOAD_(p0), b0 = ATTN_V_LOAD_(p0 + half);
    const ATTN_VF_ a1 = ATTN_V_LOAD_(p1), b1 = ATTN_V_LOAD_(p1 + half);
    ATTN_VF_ re = ATTN_V_SUB_(a0, a1), im = ATTN_V_SUB_(b0, b1);
    ATTN_TURN_(re, im, w1)
    ATTN_V_STORE_(p0, ATTN_V_ADD_(a0, a1));
    ATTN_V_STORE_(p0 + half, ATTN_V_ADD_(b0, b1));
    ATTN_V_STORE_(p1, re);
    ATTN_V_STORE_(p1 + half, im);
  }
}

/* An odd radix: rows k and r - k enter by their sum a and difference b, and leave as a sum of cosines
 * of a, plus or minus -i times a sum of sines of b. root: w_r^k is root + k root_step; output k is turned
 * by w^k, w^k at w + k w_step. */
ATTN_INLINE_ void ATTN_FN_(butterfly_odd)(const int r, float *at, int64_t step, int64_t half,
                                          int lanes, const float *root, int64_t root_step,
                                          const float *w, int64_t w_step) {
  enum { MOST = ATTN_RADIX_ / 2 };
  const int h = r / 2;
  ATTN_VF_ ar[MOST], ai[MOST], br[MOST], bi[MOST];
  for (int64_t l = 0; l < lanes; l += ATTN_W_) {
    float *p = at + l;
    const ATTN_VF_ re0 = ATTN_V_LOAD_(p), im0 = ATTN_V_LOAD_(p + half);
    ATTN_VF_ re = re0, im = im0;
    for (int k = 0; k < h; k++) {
      const float *x = p + (k + 1) * step, *y = p + (r - k - 1) * step;
      const ATTN_VF_ xr = ATTN_V_LOAD_(x), xi = ATTN_V_LOAD_(x + half);
      const ATTN_VF_ yr = ATTN_V_LOAD_(y), yi = ATTN_V_LOAD_(y + half);
      ar[k] = ATTN_V_ADD_(xr, yr), ai[k] = ATTN_V_ADD_(xi, yi);
      br[k] = ATTN_V_SUB_(xr, yr), bi[k] = ATTN_V_SUB_(xi, yi);
      re = ATTN_V_ADD_(re, ar[k]), im = ATTN_V_ADD_(im, ai[k]);
    }
    ATTN_V_STORE_(p, re);
    ATTN_V_STORE_(p + half, im);
    for (int q = 1; q <= h; q++) {
      ATTN_VF_ ur = re0, ui = im0, vr = ATTN_V_ZERO_(), vi = vr;
      for (int k = 0; k < h; k++) {
        const float *t = root + q * (k + 1) % r * root_step;
        const ATTN_VF_ c = ATTN_V_SET1_(t[0]), s = ATTN_V_SET1_(t[1]);
        ur = ATTN_V_FMA_(ar[k], c, ur), ui = ATTN_V_FMA_(ai[k], c, ui);
        vr = ATTN_V_FMA_(br[k], s, vr), vi = ATTN_V_FMA_(bi[k], s, vi);
      }
      ATTN_VF_ re1 = ATTN_V_ADD_(ur, vi), im1 = ATTN_V_SUB_(ui, vr);
      ATTN_VF_ re2 = ATTN_V_SUB_(ur, vi), im2 = ATTN_V_ADD_(ui, vr);
      const float *w1 = w + q * w_step, *w2 = w + (r - q) * w_step;
      ATTN_TURN_(re1, im1, w1)
      ATTN_TURN_(re2, im2, w2)
      ATTN_V_STORE_(p + q * step, re1);
      ATTN_V_STORE_(p + q * step + half, im1);
      ATTN_V_STORE_(p + (r - q) * step, re2);
      ATTN_V_STORE_(p + (r - q) * step + half, im2);
    }
  }
}

/* The first step of `count` transforms of r m rows each, which lie end to end: the r rows j, j + m, ..
 * become their Fourier transform, output k turned by w[k j n / (r m)], for all j < m; w: the n roots of
 * unity. r = 1: row j turned by w[j]. */
ATTN_FUNC_ void ATTN_FN_(butterflies)(float *x, int64_t half, int lanes, int64_t count, int64_t m,
                                      int r, const float *w, int64_t n) {
  const int64_t row = 2 * half, step = m * row, each = 2 * (n / (r * m)), root = 2 * (n / r);
  for (int64_t b = 0; b < count; b++) {
    for (int64_t j = 0; j < m; j++) {
      float *at = x + (b * r * m + j) * row;
      const float *by = w + j * each;
      if (r == 4 && m == 1) {
        ATTN_FN_(butterfly4)(at, step, half, lanes, w, w, w, 0);
      } else if (r == 4) {
        ATTN_FN_(butterfly4)(at, step, half, lanes, by, w + 2 * j * each, w + 3 * j * each, 1);
      } else if (r == 2) {
        ATTN_FN_(butterfly2)(at, step, half, lanes, by);
      } else if (r == 3) {
        ATTN_FN_(butterfly_odd)(3, at, step, half, lanes, w, root, w, j * each);
      } else if (r == 5) {
        ATTN_FN_(butterfly_odd)(5, at, step, half, lanes, w, root, w, j * each);
      } else if (r > 1) {
        ATTN_FN_(butterfly_odd)(r, at, step, half, lanes, w, root, w, j * each);
      } else {
        for (int64_t l = 0; l < lanes; l += ATTN_W_) {
          ATTN_VF_ re = ATTN_V_LOAD_(at + l), im = ATTN_V_LOAD_(at + l + half);
          ATTN_TURN_(re, im, w + 2 * j)
          ATTN_V_STORE_(at + l, re);
          ATTN_V_STORE_(at + l + half, im);
        }
      }
    }
  }
}
#undef ATTN_TURN_

ATTN_FUNC_ void ATTN_FN_(mirror)(float *y, const float *a, const float *b, int64_t n) {
  int64_t c = 0;
  for (; c + ATTN_W_ <= n; c += ATTN_W_) {
    const ATTN_VF_ back = ATTN_V_LOAD_(b - c - (ATTN_W_ - 1));
    ATTN_V_STORE_(y + c, ATTN_V_ADD_(ATTN_V_LOAD_(a + c), ATTN_V_REVERSE_(back)));
  }
  for (; c < n; c++) y[c] = a[c] + b[-c];
}
