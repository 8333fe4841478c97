/* kernels/ema.h owns moving averages of columns: several states a column, which fade at rates of their own. */

/* Rows through `dims` states of the columns from c on. Of a state that fades slowly what a sum rounds off goes into
 * the next one. */
ATTN_INLINE_ void ATTN_FN_(ema_some)(const int dims, const attn_ema_ *p, int64_t d, int64_t c) {
  ATTN_VF_ h[4], low[4], write[4], fade[4], keep[4], read[4];
  const ATTN_VF_ by = p->by ? ATTN_V_LOAD_(p->by + c) : ATTN_V_ZERO_();
  ATTN_UNROLL_
  for (int i = 0; i < dims; i++) {
    const int64_t at = (d + i) * p->width + c;
    h[i] = ATTN_V_LOAD_(p->h + at), low[i] = ATTN_V_LOAD_(p->low + at);
    write[i] = ATTN_V_LOAD_(p->write + at), fade[i] = ATTN_V_LOAD_(p->fade + at);
    keep[i] = ATTN_V_LOAD_(p->keep + at), read[i] = ATTN_V_LOAD_(p->read + at);
  }
  for (int64_t t = 0; t < p->n; t++) {
    const ATTN_VF_ x = ATTN_V_LOAD_(p->x + t * p->step + c);
    float *to = p->y + t * p->step + c;
    ATTN_VF_ y = d || p->add ? ATTN_V_LOAD_(to) : p->by ? ATTN_V_MUL_(by, x) : ATTN_V_ZERO_();
    ATTN_UNROLL_
    for (int i = 0; i < dims; i++) {
      const ATTN_VF_ old = ATTN_V_MUL_(h[i], keep[i]);
      const ATTN_VF_ more = ATTN_V_FMA_(fade[i], h[i], ATTN_V_FMA_(write[i], x, low[i]));
      h[i] = ATTN_V_ADD_(old, more);
      low[i] = ATTN_V_SUB_(more, ATTN_V_SUB_(h[i], old));
      y = ATTN_V_FMA_(read[i], h[i], y);
    }
    ATTN_V_STORE_(to, y);
  }
  ATTN_UNROLL_
  for (int i = 0; i < dims; i++) {
    const int64_t at = (d + i) * p->width + c;
    ATTN_V_STORE_(p->h + at, h[i]);
    ATTN_V_STORE_(p->low + at, low[i]);
  }
}

ATTN_FUNC_ void ATTN_FN_(ema)(const attn_ema_ *p) {
  for (int64_t c = 0; c < p->cols; c += ATTN_W_) {
    int64_t d = 0;
    for (; d + 4 <= p->dims; d += 4) ATTN_FN_(ema_some)(4, p, d, c);
    for (; d < p->dims; d++) ATTN_FN_(ema_some)(1, p, d, c);
  }
}
