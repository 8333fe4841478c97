/* ulp.c owns the comparison of an exponential with expl. */
#include "ulp.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 4096 };

#define LOWEST -104.0f /* exp(LOWEST) rounds to 0 */
#define HIGHEST 88.72f /* exp(HIGHEST) is finite */

typedef struct chunk {
  float x[CHUNK], y[CHUNK];
  int n;
} chunk;

static void flush(chunk *c, ulp_function f, attn_isa isa, ulp_record *r) {
  if (!f(c->y, c->x, c->n, isa)) r->worst = INFINITY;
  for (int i = 0; i < c->n; i++) {
    long double exact = expl((long double)c->x[i]);
    int exponent;
    frexpl(exact, &exponent);
    if (exponent < -125) exponent = -125;
    double error = (double)(fabsl((long double)c->y[i] - exact) / ldexpl(1.0L, exponent - 24));
    if (!(error <= r->worst)) {
      r->worst = error;
      r->at = c->x[i];
    }
  }
  r->points += c->n;
  c->n = 0;
}

static void add(chunk *c, float x, ulp_function f, attn_isa isa, ulp_record *r) {
  if (!(x >= LOWEST && x <= HIGHEST)) return;
  c->x[c->n++] = x;
  if (c->n == CHUNK) flush(c, f, isa, r);
}

ulp_record ulp_exp(ulp_function f, attn_isa isa) {
  ulp_record r = {0, 0, 0};
  chunk c;
  c.n = 0;
  for (int i = 0; i <= 1 << 22; i++)
    add(&c, LOWEST + (HIGHEST - LOWEST) * (float)i * 0x1p-22f, f, isa, &r);
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 1021) {
    uint32_t u = (uint32_t)bits;
    float x;
    memcpy(&x, &u, 4);
    add(&c, x, f, isa, &r);
  }
  flush(&c, f, isa, &r);
  return r;
}
