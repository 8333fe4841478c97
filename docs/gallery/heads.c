/* heads.c owns the pictures of docs/heads.md: what four heads look at before and after they talk, where on
 * the photograph they agree, and how far their maps are from given patterns.
 *
 * Usage: heads FOLDER draws heads.png and capsules.png and prints the distances; `make gallery` runs it. */
#include "photo.h"

enum { SIDE = 32, LEN = SIDE * SIDE, CELL = 8, PANEL = SIDE * CELL, GAP = 8 };
enum { HEADS = 4, KEY = 8, CAPSULES = 2, QUERY_Y = 14, QUERY_X = 17 };

#define SCALE 20.0f

static attn_ctx ctx;
static const grid square = {SIDE, 1};
static float token[LEN * WIDTH], query[HEADS * LEN * KEY], key[HEADS * LEN * KEY];

static attn_tensor heads(const float *x, int64_t n, int64_t width) {
  return attn_bhtd(x, ATTN_F32, 1, HEADS, n, width);
}

/* The heads look at brightness (sums of quarters), upright lines (sums of columns), level lines (sums of
 * rows) and places: q . k = const - distance^2 / 18. */
static void make_heads(void) {
  grid_tokens(square, 2, token);
  for (int64_t t = 0; t < LEN; t++) {
    double part[HEADS - 1][KEY] = {{0}}, mean = 0;
    for (int c = 0; c < WIDTH; c++) {
      const double p = (double)token[t * WIDTH + c];
      part[0][c / 32 * 2 + c % PATCH / 4] += p, part[1][c % PATCH] += p, part[2][c / PATCH] += p;
      mean += p / PATCH;
    }
    for (int h = 0; h < HEADS - 1; h++) {
      double size = h == 0 ? 0 : 0.1;
      for (int c = 0; c < KEY; c++)
        part[h][c] -= h == 0 ? 0 : mean, size += part[h][c] * part[h][c];
      for (int c = 0; c < KEY; c++) {
        const float x = (float)(part[h][c] / sqrt(size));
        key[(h * LEN + t) * KEY + c] = x, query[(h * LEN + t) * KEY + c] = SCALE * x;
      }
    }
    float *q = query + ((HEADS - 1) * LEN + t) * KEY, *k = key + ((HEADS - 1) * LEN + t) * KEY;
    const float y = (float)(t / SIDE) - SIDE / 2, x = (float)(t % SIDE) - SIDE / 2;
    q[0] = y / 9, q[1] = x / 9, q[2] = 1;
    k[0] = y, k[1] = x, k[2] = -(y * y + x * x) / 18;
  }
}

/* ---- talking heads ---- */

/* Values are the unit vectors, so that outputs are the weights. Every head hears half of the head of places
 * before the softmax; afterwards every value head takes a tenth of each other head's weights. */
static void talk(const char *folder) {
  static float before[HEADS * LEN], after[HEADS * LEN], mix[HEADS * HEADS], blend[HEADS * HEADS];
  const int64_t at = QUERY_Y * SIDE + QUERY_X;
  float *one = floats((int64_t)LEN * LEN);
  uint8_t level[LEN];
  for (int64_t t = 0; t < LEN; t++) one[t * LEN + t] = 1;
  for (int h = 0; h < HEADS; h++)
    for (int g = 0; g < HEADS; g++) {
      mix[h * HEADS + g] = h == g ? 1 : h == HEADS - 1 ? 0.5f : 0;
      blend[h * HEADS + g] = h == g ? 0.7f : 0.1f;
    }
  attn_tensor q = heads(query, LEN, KEY);
  q.data = query + at * KEY, q.len = 1;
  const attn_sdpa_params alone = {.scale = 1};
  const attn_talking_params together = {
      .w_l = rows(mix, HEADS, HEADS), .w_w = rows(blend, HEADS, HEADS), .attention = {.scale = 1}};
  MUST(
      attn_sdpa(heads(before, 1, LEN), q, heads(key, LEN, KEY), rows(one, LEN, LEN), &alone, &ctx));
  MUST(attn_talking(heads(after, 1, LEN), q, heads(key, LEN, KEY), rows(one, LEN, LEN), &together,
                    &ctx));
  canvas_open(HEADS * (PANEL + GAP) - GAP, 2 * PANEL + GAP);
  for (int h = 0; h < HEADS; h++) {
    levels(level, before + h * LEN, LEN, 0.02);
    panel(h * (PANEL + GAP), 0, square, CELL, level, DETAIL, at);
    levels(level, after + h * LEN, LEN, 0.02);
    panel(h * (PANEL + GAP), PANEL + GAP, square, CELL, level, DETAIL, at);
  }
  canvas_write(folder, "heads");
  free(one);
}

/* ---- capsules ---- */

/* The lengths of capsule n of all tokens, as levels. */
static void lengths(uint8_t *level, const float *y, int n) {
  static float size[LEN];
  for (int64_t t = 0; t < LEN; t++) {
    double square_sum = 0;
    for (int c = 0; c < WIDTH; c++) {
      const double x = (double)y[(t * CAPSULES + n) * WIDTH + c];
      square_sum += x * x;
    }
    size[t] = (float)square_sum;
  }
  levels(level, size, LEN, 0.05);
}

/* Capsule 0 hears the means of quarters of what the heads have found, capsule 1 what is left. */
static void route(const char *folder) {
  float *each = floats(HEADS * LEN * WIDTH), *w = floats(HEADS * CAPSULES * WIDTH * WIDTH);
  float *y = floats(LEN * CAPSULES * WIDTH);
  uint8_t level[LEN];
  for (int h = 0; h < HEADS; h++)
    for (int i = 0; i < WIDTH; i++)
      for (int j = 0; j < WIDTH; j++) {
        const int quarter = i / 32 == j / 32 && i % PATCH / 4 == j % PATCH / 4;
        float *to = w + ((int64_t)(h * CAPSULES) * WIDTH + i) * WIDTH + j;
        to[0] = quarter ? 1.0f / 16 : 0;
        to[WIDTH * WIDTH] = (i == j) - to[0];
      }
  const attn_sdpa_params plain = {.scale = 1};
  MUST(attn_sdpa(heads(each, LEN, WIDTH), heads(query, LEN, KEY), heads(key, LEN, KEY),
                 rows(token, LEN, WIDTH), &plain, &ctx));
  const attn_tensor votes = attn_bhtd(w, ATTN_F32, HEADS, CAPSULES, WIDTH, WIDTH);
  const attn_capsules_params dynamic = {.w = votes};
  const attn_capsules_em_params em = {.w = votes, .eps = 1e-3f};
  canvas_open(4 * (PANEL + GAP) - GAP, PANEL);
  for (int m = 0; m < 2; m++) {
    if (m == 0)
      MUST(attn_capsules(rows(y, LEN, CAPSULES * WIDTH), heads(each, LEN, WIDTH), &dynamic, &ctx));
    else
      MUST(attn_capsules_em(rows(y, LEN, CAPSULES * WIDTH), heads(each, LEN, WIDTH), &em, &ctx));
    for (int n = 0; n < CAPSULES; n++) {
      lengths(level, y, n);
      panel((2 * m + n) * (PANEL + GAP), 0, square, CELL, level, FLAT, -1);
    }
  }
  canvas_write(folder, "capsules");
  free(each), free(w), free(y);
}

/* ---- losses ---- */

static void losses(void) {
  static const char *const name[HEADS] = {"brightness", "upright lines", "level lines", "places"};
  static int32_t line[LEN];
  for (int32_t t = 0; t < LEN; t++) line[t] = t / SIDE;
  for (int32_t h = 0; h < HEADS; h++) {
    const attn_target target[3] = {
        {.kind = ATTN_TARGET_OFFSET, .weight = 1},
        {.kind = ATTN_TARGET_BLOCK, .weight = 1, .segment = line, .len = LEN},
        {.kind = ATTN_TARGET_UNIFORM, .weight = 1}};
    printf("| %s |", name[h]);
    for (int n = 0; n < 3; n++) {
      const attn_target_group group = {target + n, 1, &h, 1};
      const attn_guided_params p = {.group = &group,
                                    .groups = 1,
                                    .q = heads(query, LEN, KEY),
                                    .k = heads(key, LEN, KEY),
                                    .attention = {.scale = 1}};
      double loss;
      MUST(attn_guided_loss(&loss, &p, &ctx));
      printf(" %.3f |", loss / LEN);
    }
    printf("\n");
  }
  double d[3];
  const attn_disagreement_params p = {.q = heads(query, LEN, KEY),
                                      .k = heads(key, LEN, KEY),
                                      .by_row = 1,
                                      .attention = {.scale = 1}};
  MUST(attn_disagreement(d, &p, &ctx));
  printf("D_pos = %.4f\n", d[2]);
}

int main(int argc, char **argv) {
  program = "heads";
  if (argc != 2) fail("usage", "heads FOLDER");
  photo_read();
  make_heads();
  talk(argv[1]);
  route(argv[1]);
  losses();
  return 0;
}
