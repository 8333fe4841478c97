/* test_generate.c owns the check of generate.c against the formulas of Llama in decoder.h, written out here in double
 * precision over models of random numbers that it makes itself. The other families are those of tests/models/.
 *
 *   test_generate FOLDER                     all checks, with models in FOLDER
 *   test_generate make MODEL KIND [HOW NAME] writes a model; HOW spoils tensor NAME: drop, add, widen, nan
 *   test_generate greedy KIND N IDS          the N likeliest tokens behind IDS by the reference
 *   test_generate run ARGUMENTS              generate.c itself */
#define main generate_main
#include "generate.c"
#undef main

#include "safetensors_write.h"

#include <sys/stat.h>

typedef struct kind {
  const char *name, *type;
  int64_t layers, width, heads, kv_heads, head, hidden, vocabulary, tokens;
  int tied, bias;
  double base, eps;
  int llama3; /* rope_scaling with factor 8, 1 and 4, 64 tokens */
} kind;

static const kind kinds[] = {
    /* grouped queries, bytes and two marks, enough tokens for several pages and packed weights */
    {"grouped", "F32", 2, 24, 4, 2, 6, 40, 258, 200, 0, 0, 10000, 1e-5, 0},
    /* one key head, biases, no lm_head */
    {"tied", "BF16", 3, 32, 3, 1, 8, 70, 90, 70, 1, 1, 500000, 1e-6, 1},
    /* a head for each query head, heads that are wider than the model together */
    {"half", "F16", 1, 20, 5, 5, 66, 64, 64, 50, 0, 0, 100, 1e-3, 0},
    /* a small one with the tokens of the first */
    {"draft", "F32", 1, 16, 2, 1, 8, 24, 258, 0, 1, 0, 10000, 1e-5, 0},
    /* to look at */
    {"tiny", "BF16", 4, 128, 4, 2, 32, 320, 1000, 0, 1, 0, 10000, 1e-5, 0},
    /* as large as small models are, for --time */
    {"135m", "BF16", 30, 576, 9, 3, 64, 1536, 49152, 0, 1, 0, 10000, 1e-5, 0},
    {"1.1b", "BF16", 22, 2048, 32, 4, 64, 5632, 32000, 0, 0, 0, 10000, 1e-5, 0}};

enum { MOST_PARTS = 300 };

typedef struct model {
  const kind *kind;
  safetensors_part parts[MOST_PARTS];
  double *numbers[MOST_PARTS]; /* of the small ones */
  int count;
} model;

static void *take(size_t count, size_t each) {
  void *memory = calloc(count, each);
  if (!memory) {
    fprintf(stderr, "test_generate: out of memory\n");
    exit(2);
  }
  return memory;
}

/* ---- a model of random numbers */

static uint64_t noise = 1;

/* -1 .. 1 */
static double random_number(void) {
  noise = noise * 6364136223846793005u + 1442695040888963407u;
  return (double)(int64_t)(noise >> 11) * 0x1p-52 - 1;
}

/* x in 16 bits, cut after `digits` binary digits, with what these bits stand for in *x; tiny numbers
 * become 0. */
static uint16_t sixteen(double *x, int digits, int bias) {
  int e;
  const double whole = floor(ldexp(frexp(fabs(*x), &e), digits));
  if (whole == 0 || e - 1 + bias < 1) return (uint16_t)(*x = 0);
  const int sign = *x < 0;
  *x = (sign ? -1 : 1) * ldexp(whole, e - digits);
  const int fraction = (int)whole - (1 << (digits - 1));
  return (uint16_t)(sign << 15 | (e - 1 + bias) << (digits - 1) | fraction);
}

/* A tensor middle +- spread; rows = 0: a vector. */
static void add(model *m, const char *name, int64_t rows, int64_t columns, double middle,
                double spread) {
  const size_t n = (size_t)((rows ? rows : 1) * columns);
  const char *type = m->kind->type;
  safetensors_part *part = &m->parts[m->count];
  double *numbers = m->kind->tokens ? take(n, sizeof *numbers) : NULL;
  float *floats = *type == 'F' && type[1] == '3' ? take(n, sizeof *floats) : NULL;
  uint16_t *halves = floats ? NULL : take(n, sizeof *halves);
  for (size_t i = 0; i < n; i++) {
    double x = middle + spread * random_number();
    if (floats)
      x = (double)(floats[i] = (float)x);
    else
      halves[i] = *type == 'B' ? sixteen(&x, 8, 127) : sixteen(&x, 11, 15);
    if (numbers) numbers[i] = x;
  }
  *part = (safetensors_part){
      .type = type, .rows = rows, .columns = columns, .data = floats ? (void *)floats : halves};
  snprintf(part->name, sizeof part->name, "%s", name);
  m->numbers[m->count++] = numbers;
}

static void add_inside(model *m, int64_t layer, const char *part, int64_t rows, int64_t columns,
                       double middle, double spread) {
  char name[96];
  snprintf(name, sizeof name, "model.layers.%d.%s", (int)layer, part);
  add(m, name, rows, columns, middle, spread);
}

static model *make(const char *name) {
  model *m = take(1, sizeof *m);
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (!strcmp(name, kinds[i].name)) m->kind = &kinds[i];
  const kind *k = m->kind;
  if (!k) exit(2);
  const int64_t q = k->heads * k->head, kv = k->kv_heads * k->head;
  const double in = sqrt(3.0 / (double)k->width), back = sqrt(3.0 / (double)q),
               down = sqrt(3.0 / (double)k->hidden); /* rows keep their size */
  noise = 1;
  for (int64_t i = 0; i < k->layers; i++) {
    add_inside(m, i, "input_layernorm.weight", 0, k->width, 1, 0.5);
    add_inside(m, i, "post_attention_layernorm.weight", 0, k->width, 1, 0.5);
    add_inside(m, i, "self_attn.q_proj.weight", q, k->width, 0, 2 * in);
    add_inside(m, i, "self_attn.k_proj.weight", kv, k->width, 0, 2 * in);
    add_inside(m, i, "self_attn.v_proj.weight", kv, k->width, 0, in);
    if (k->bias) {
      add_inside(m, i, "self_attn.q_proj.bias", 0, q, 0, 1);
      add_inside(m, i, "self_attn.k_proj.bias", 0, kv, 0, 1);
      add_inside(m, i, "self_attn.v_proj.bias", 0, kv, 0, 1);
    }
    add_inside(m, i, "self_attn.o_proj.weight", k->width, q, 0, back);
    add_inside(m, i, "mlp.gate_proj.weight", k->hidden, k->width, 0, in);
    add_inside(m, i, "mlp.up_proj.weight", k->hidden, k->width, 0, in);
    add_inside(m, i, "mlp.down_proj.weight", k->width, k->hidden, 0, down);
  }
  add(m, "model.embed_tokens.weight", k->vocabulary, k->width, 0, 1);
  add(m, "model.norm.weight", 0, k->width, 1, 0.5);
  if (!k->tied) add(m, "lm_head.weight", k->vocabulary, k->width, 0, in);
  return m;
}

static void forget(model *m) {
  for (int i = 0; i < m->count; i++) {
    free(m->numbers[i]);
    free((void *)(uintptr_t)m->parts[i].data);
  }
  free(m);
}

/* The folder of a model. */
static void save(const model *m, const char *folder) {
  const kind *k = m->kind;
  char path[4096];
  mkdir(folder, 0777); /* may be there */
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  const char *error = safetensors_write(path, m->parts, m->count);
  snprintf(path, sizeof path, "%s/config.json", folder);
  FILE *file = error ? NULL : fopen(path, "w");
  if (file) {
    fprintf(file,
            "{\"model_type\": \"llama\", \"num_hidden_layers\": %d, \"hidden_size\": %d,\n"
            " \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d,\n"
            " \"intermediate_size\": %d, \"vocab_size\": %d, \"max_position_embeddings\": 2048,\n"
            " \"rms_norm_eps\": %g, \"rope_theta\": %g, \"tie_word_embeddings\": %s",
            (int)k->layers, (int)k->width, (int)k->heads, (int)k->kv_heads, (int)k->head,
            (int)k->hidden, (int)k->vocabulary, k->eps, k->base, k->tied ? "true" : "false");
    if (k->llama3)
      fputs(
          ",\n \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": "
          "1.0,\n"
          "  \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 64}",
          file);
    fputs("}\n", file);
  }
  if (file && !fclose(file)) return;
  fprintf(stderr, "test_generate: %s: %s\n", folder, error ? error : strerror(errno));
  exit(2);
}

/* drop, add, widen by a column, or make the first number NaN. */
static void spoil(model *m, const char *how, const char *name) {
  if (!strcmp(how, "add")) {
    add(m, name, 0, 4, 0, 1);
    return;
  }
  for (int i = 0; i < m->count; i++) {
    safetensors_part *part = &m->parts[i];
    if (strcmp(part->name, name)) continue;
    if (!strcmp(how, "drop")) {
      free((void *)(uintptr_t)part->data);
      free(m->numbers[i]);
      *part = m->parts[--m->count];
      m->numbers[i] = m->numbers[m->count];
    } else if (!strcmp(how, "widen")) {
      free((void *)(uintptr_t)part->data);
      part->data = take((size_t)((part->rows + 1) * (part->columns + 1)), 4);
      part->columns++;
    } else {
      memset((void *)(uintptr_t)part->data, 255, 2 * (size_t)part->columns);
    }
    return;
  }
  exit(2);
}

/* ---- the reference */

static const double *part_of(const model *m, const char *name) {
  for (int i = 0; i < m->count; i++)
    if (!strcmp(m->parts[i].name, name)) return m->numbers[i];
  return NULL;
}

static const double *inside(const model *m, int64_t layer, const char *part) {
  char name[96];
  snprintf(name, sizeof name, "model.layers.%d.%s", (int)layer, part);
  return part_of(m, name);
}

static void norm(double *y, const double *x, const double *gain, const kind *k) {
  double mean = 0;
  for (int64_t c = 0; c < k->width; c++) mean += x[c] * x[c] / (double)k->width;
  for (int64_t c = 0; c < k->width; c++) y[c] = x[c] / sqrt(mean + k->eps) * gain[c];
}

static void times(double *y, const double *w, const double *bias, const double *x, int64_t rows,
                  int64_t columns) {
  for (int64_t i = 0; i < rows; i++) {
    y[i] = bias ? bias[i] : 0;
    for (int64_t c = 0; c < columns; c++) y[i] += w[i * columns + c] * x[c];
  }
}

static void rotate(double *x, int64_t heads, int64_t position, const kind *k) {
  const int64_t half = k->head / 2;
  for (int64_t h = 0; h < heads; h++, x += k->head)
    for (int64_t i = 0; i < half; i++) {
      double f = pow(k->base, -(double)i / (double)half);
      const double waves = 64 * f / (2 * acos(-1)), share = fmin(fmax((waves - 1) / 3, 0), 1);
      if (k->llama3) f = (1 - share) * f / 8 + share * f;
      const double angle = (double)position * f;
      const double a = x[i], b = x[i + half];
      x[i] = a * cos(angle) - b * sin(angle);
      x[i + half] = a * sin(angle) + b * cos(angle);
    }
}

/* What head h of token t sees: keys and values of tokens 0 .. t. */
static void attend(double *o, const double *q, const double *keys, const double *values, int64_t h,
                   int64_t t, const kind *k) {
  const int64_t width = k->kv_heads * k->head, at = h / (k->heads / k->kv_heads) * k->head;
  double most = -INFINITY, sum = 0, *p = take((size_t)t + 1, sizeof *p);
  for (int64_t j = 0; j <= t; j++) {
    for (int64_t c = 0; c < k->head; c++) p[j] += q[c] * keys[j * width + at + c];
    p[j] /= sqrt((double)k->head);
    most = fmax(most, p[j]);
  }
  for (int64_t j = 0; j <= t; j++) sum += p[j] = exp(p[j] - most);
  for (int64_t c = 0; c < k->head; c++) {
    o[c] = 0;
    for (int64_t j = 0; j <= t; j++) o[c] += p[j] / sum * values[j * width + at + c];
  }
  free(p);
}

/* logits [n][vocabulary] of a causal pass over all tokens: layer after layer, token after token. */
static double *reference(const model *m, const int64_t *tokens, int64_t n) {
  const kind *k = m->kind;
  const int64_t D = k->width, F = k->hidden, q = k->heads * k->head, kv = k->kv_heads * k->head;
  double *x = take((size_t)(n * D), sizeof *x), *a = take((size_t)D, sizeof *a);
  double *keys = take((size_t)(n * kv), sizeof *keys),
         *values = take((size_t)(n * kv), sizeof *keys);
  double *queries = take((size_t)q, sizeof *queries), *o = take((size_t)q, sizeof *o);
  double *gate = take((size_t)F, sizeof *gate), *up = take((size_t)F, sizeof *up);
  double *logits = take((size_t)(n * k->vocabulary), sizeof *logits);
  const double *embedding = part_of(m, "model.embed_tokens.weight"),
               *head = part_of(m, "lm_head.weight");
  for (int64_t t = 0; t < n; t++)
    memcpy(x + t * D, embedding + tokens[t] * D, (size_t)D * sizeof *x);
  for (int64_t l = 0; l < k->layers; l++)
    for (int64_t t = 0; t < n; t++) {
      double *row = x + t * D;
      norm(a, row, inside(m, l, "input_layernorm.weight"), k);
      times(queries, inside(m, l, "self_attn.q_proj.weight"), inside(m, l, "self_attn.q_proj.bias"),
            a, q, D);
      times(keys + t * kv, inside(m, l, "self_attn.k_proj.weight"),
            inside(m, l, "self_attn.k_proj.bias"), a, kv, D);
      times(values + t * kv, inside(m, l, "self_attn.v_proj.weight"),
            inside(m, l, "self_attn.v_proj.bias"), a, kv, D);
      rotate(queries, k->heads, t, k);
      rotate(keys + t * kv, k->kv_heads, t, k);
      for (int64_t h = 0; h < k->heads; h++)
        attend(o + h * k->head, queries + h * k->head, keys, values, h, t, k);
      times(a, inside(m, l, "self_attn.o_proj.weight"), NULL, o, D, q);
      for (int64_t c = 0; c < D; c++) row[c] += a[c];
      norm(a, row, inside(m, l, "post_attention_layernorm.weight"), k);
      times(gate, inside(m, l, "mlp.gate_proj.weight"), NULL, a, F, D);
      times(up, inside(m, l, "mlp.up_proj.weight"), NULL, a, F, D);
      for (int64_t c = 0; c < F; c++) gate[c] *= up[c] / (1 + exp(-gate[c]));
      times(a, inside(m, l, "mlp.down_proj.weight"), NULL, gate, D, F);
      for (int64_t c = 0; c < D; c++) row[c] += a[c];
    }
  for (int64_t t = 0; t < n; t++) {
    norm(a, x + t * D, part_of(m, "model.norm.weight"), k);
    times(logits + t * k->vocabulary, head ? head : embedding, NULL, a, k->vocabulary, D);
  }
  free(x), free(a), free(keys), free(values), free(queries), free(o), free(gate), free(up);
  return logits;
}

/* ---- checks */

static int failures;

static void check(int good, const char *format, ...) {
  if (good) return;
  va_list arguments;
  va_start(arguments, format);
  fputs("test_generate: ", stderr);
  vfprintf(stderr, format, arguments);
  putc('\n', stderr);
  va_end(arguments);
  failures++;
}

static void open_model(decoder *d, const model *m, const char *folder, attn_isa isa, int one_order,
                       int64_t slots) {
  const char *error = decoder_load(d, folder, MODEL_WEIGHTS_FILE);
  if (!error) {
    d->w.ctx.isa = isa;
    d->one_order = one_order;
    error = decoder_open(d, slots, m->kind->tokens, m->kind->tokens * slots);
  }
  check(!error, "%s: %s", m->kind->name, error);
  if (error) exit(1);
}

/* Logits [tokens][stride] of one way to split the tokens: `first` at once, then `step` at a time; row t is that of
 * token t, each asked for in its step. With other > 0 a second sequence goes in beside it, so many tokens a step, in
 * the slot before. */
static float *run_split(const model *m, const char *folder, attn_isa isa, int one_order,
                        int64_t first, int64_t step, int64_t other, const int64_t *tokens,
                        int64_t *stride) {
  const kind *k = m->kind;
  decoder d;
  open_model(&d, m, folder, isa, one_order, 2);
  *stride = d.out.stride;
  float *logits = take((size_t)(k->tokens * d.out.stride), sizeof *logits);
  const char *error = NULL;
  for (int64_t t = 0, n = first; !error && t < k->tokens; t += n, n = step) {
    if (n > k->tokens - t) n = k->tokens - t;
    if (d.len[0] + other > k->tokens && decoder_back(&d, 0, 0)) break;
    const decoder_part parts[] = {{.slot = 1, .n = n, .rows = n, .tokens = tokens + t},
                                  {.slot = 0, .n = other, .tokens = tokens}};
    error = decoder_step(&d, parts, other ? 2 : 1, logits + t * d.out.stride);
  }
  check(!error, "%s: %s", k->name, error);
  const decoder_part more = {.slot = 1, .n = 1, .tokens = tokens};
  check(decoder_step(&d, &more, 1, NULL) != NULL, "%s: a full sequence took a token", k->name);
  decoder_free(&d);
  return logits;
}

/* The largest difference of a row's logits, over their largest; infinite if one is NaN. */
static double apart(const float *x, const double *y, int64_t n) {
  double worst = 0, most = 0;
  for (int64_t i = 0; i < n; i++) {
    const double d = fabs((double)x[i] - y[i]);
    worst = isnan(d) ? INFINITY : fmax(worst, d);
    most = fmax(most, fabs(y[i]));
  }
  return worst / most;
}

/* apart sees a NaN wherever it stands. */
static void check_edges(void) {
  const double expected[3] = {1, 2, 3};
  for (int i = 0; i < 3; i++) {
    float row[3] = {1, 2, 3};
    check(apart(row, expected, 3) == 0, "equal rows are apart");
    row[i] = NAN;
    check(apart(row, expected, 3) > 1, "NaN at %d is not seen", i);
  }
}

static void check_kind(const char *name, const char *folder, attn_isa isa) {
  model *m = make(name);
  const kind *k = m->kind;
  char path[4096];
  int64_t tokens[256];
  const int64_t splits[][2] = {{1, 1}, {5, 1}, {k->tokens - 3, 1}, {17, 9}};
  double worst = 0, between = 0;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  save(m, path);
  for (int64_t t = 0; t < k->tokens; t++)
    tokens[t] = (int64_t)((random_number() + 1) / 2 * (double)k->vocabulary);
  double *expected = reference(m, tokens, k->tokens);
  for (int one_order = 0; one_order < 2; one_order++) {
    int64_t stride;
    float *whole = run_split(m, path, isa, one_order, k->tokens, 1, 0, tokens, &stride);
    for (int64_t t = 0; t < k->tokens; t++)
      worst = fmax(worst, apart(whole + t * stride, expected + t * k->vocabulary, k->vocabulary));
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
      float *parts =
          run_split(m, path, isa, one_order, splits[i][0], splits[i][1], 0, tokens, &stride);
      for (int64_t t = 0; t < k->tokens; t++) {
        const float *row = parts + t * stride, *same = whole + t * stride;
        const size_t bytes = (size_t)k->vocabulary * sizeof *row;
        worst = fmax(worst, apart(row, expected + t * k->vocabulary, k->vocabulary));
        for (int64_t c = 0; c < k->vocabulary; c++)
          between = fmax(between, fabs((double)row[c] - (double)same[c]));
        check(!one_order || !memcmp(row, same, bytes), "%s, %s: other bits at token %d", name,
              attn_isa_name(isa), (int)t);
      }
      /* beside another text the bits are those alone */
      for (int64_t other = 1; other <= 3; other += 2) {
        float *both =
            run_split(m, path, isa, one_order, splits[i][0], splits[i][1], other, tokens, &stride);
        check(!memcmp(parts, both, (size_t)(k->tokens * stride) * sizeof *both),
              "%s, %s: other bits beside another text", name, attn_isa_name(isa));
        free(both);
      }
      free(parts);
    }
    free(whole);
  }
  check(worst < 2e-5, "%s, %s: error %.1e", name, attn_isa_name(isa), worst);
  printf("%s, %s: error %.1e, between splits %.1e\n", name, attn_isa_name(isa), worst, between);
  free(expected);
  forget(m);
}

/* The likeliest tokens behind a prompt. */
static int greedy(const char *name, int64_t count, const char *ids) {
  model *m = make(name);
  const int64_t vocabulary = m->kind->vocabulary;
  int64_t tokens[256];
  char *rest = (char *)(uintptr_t)ids;
  int64_t n = 0;
  for (; *rest; n++) tokens[n] = strtol(rest, &rest, 10);
  for (int64_t i = 0; i < count; i++, n++) {
    double *logits = reference(m, tokens, n), *last = logits + (n - 1) * vocabulary;
    tokens[n] = 0;
    for (int64_t t = 1; t < vocabulary; t++)
      if (last[t] > last[tokens[n]]) tokens[n] = t;
    printf("%s%d", i ? " " : "", (int)tokens[n]);
    free(logits);
  }
  putchar('\n');
  forget(m);
  return 0;
}

int main(int count, char **words) {
  if (count >= 2 && !strcmp(words[1], "run")) return generate_main(count - 1, words + 1);
  if (count == 5 && !strcmp(words[1], "greedy"))
    return greedy(words[2], strtol(words[3], NULL, 10), words[4]);
  if ((count == 4 || count == 6) && !strcmp(words[1], "make")) {
    model *m = make(words[3]);
    if (count == 6) spoil(m, words[4], words[5]);
    save(m, words[2]);
    forget(m);
    return 0;
  }
  if (count != 2) return 2;
  for (int isa = ATTN_ISA_SCALAR; isa < ATTN_ISA_COUNT; isa++)
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
      if (kinds[i].tokens && attn_isa_status((attn_isa)isa) == ATTN_ISA_OK)
        check_kind(kinds[i].name, words[1], (attn_isa)isa);
  check_edges();
  return failures != 0;
}
