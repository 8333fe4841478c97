/* test_encode.c owns what encode.c is tested with: a model of random numbers in the format of BERT, and
 * the same model in float64, straight from the papers, which shares nothing with attn.h.
 *
 *   test_encode make FOLDER TYPE SIZES    writes model.safetensors, config.json and vocab.txt; TYPE is F32,
 *                                         F16, BF16
 *   test_encode whole FOLDER TYPE SIZES   the same with the names of a whole model: bert.*
 *   test_encode check SIZES               reads what encode --layers prints, and compares every row
 *   test_encode same A B SIZES            compares two files that encode --vectors has printed
 *
 * SIZES: layers width heads inner positions vocabulary. The weights are functions of their names, and
 * multiples of 2^-8 or 2^-10 that every type holds exactly. */
#include "safetensors_write.h"

#include <math.h>
#include <stdlib.h>

enum { LAYERS, WIDTH, HEADS, INNER, POSITIONS, VOCABULARY, SIZES };

static long size[SIZES];

static void stop(const char *what, const char *why) {
  fprintf(stderr, "test_encode: %s: %s\n", what, why);
  exit(1);
}

static void *take(size_t count, size_t each) {
  void *memory = calloc(count + 1, each);
  if (!memory) stop("memory", "there is not enough");
  return memory;
}

/* ---- the weights */

static uint64_t mix(uint64_t x) { /* splitmix64's finaliser */
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

static uint64_t seed_of(const char *name) {
  uint64_t seed = 14695981039346656037u;
  while (*name) seed = (seed ^ (unsigned char)*name++) * 1099511628211u;
  return seed;
}

static int ends(const char *name, const char *tail) {
  const size_t n = strlen(name), t = strlen(tail);
  return n >= t && !strcmp(name + n - t, tail);
}

/* Number i of a tensor: gains in 1 .. 1.5, all others in -1/2 .. 1/2, those of wide matrices smaller. */
static double weight_of(const char *name, uint64_t seed, int64_t i) {
  const int k = (int)(mix(seed + (uint64_t)i * 0x9E3779B97F4A7C15u) >> 56) - 128;
  if (ends(name, "LayerNorm.weight")) return 1 + (k & 63) / 128.0;
  if (ends(name, ".bias") || strstr(name, "embeddings")) return k / 256.0;
  return k / (size[WIDTH] < 100 ? 256.0 : 1024.0);
}

/* The 16-bit form of x, which holds it exactly. */
static uint16_t narrow(float x, int brain) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (brain) return (uint16_t)(bits >> 16);
  if (!(bits << 1)) return 0;
  return (uint16_t)((bits >> 16 & 0x8000) | (((bits & 0x7FFFFFFF) - (112u << 23)) >> 13));
}

static safetensors_part *parts;
static int count;
static const char *prefix = "";
static int gamma_beta; /* norms have the names of TensorFlow */

static void add(const char *type, const char *name, int64_t rows, int64_t columns) {
  safetensors_part *part = &parts[count++];
  const int64_t n = rows ? rows * columns : columns;
  const uint64_t seed = seed_of(name);
  const int wide = !strcmp(type, "F32");
  void *data = take((size_t)n, wide ? 4 : 2);
  for (int64_t i = 0; i < n; i++) {
    const float x = (float)weight_of(name, seed, i);
    if (wide)
      ((float *)data)[i] = x;
    else
      ((uint16_t *)data)[i] = narrow(x, !strcmp(type, "BF16"));
  }
  snprintf(part->name, sizeof part->name, "%s%s", prefix, name);
  if (gamma_beta && ends(name, "LayerNorm.weight"))
    strcpy(part->name + strlen(part->name) - strlen("weight"), "gamma");
  if (gamma_beta && ends(name, "LayerNorm.bias"))
    strcpy(part->name + strlen(part->name) - strlen("bias"), "beta");
  part->type = type;
  part->rows = rows;
  part->columns = columns;
  part->data = data;
}

static void add_layer(const char *type, long l, const char *what, int64_t out, int64_t in) {
  char name[96];
  snprintf(name, sizeof name, "encoder.layer.%ld.%s.weight", l, what);
  add(type, name, in ? out : 0, in ? in : out);
  snprintf(name, sizeof name, "encoder.layer.%ld.%s.bias", l, what);
  add(type, name, 0, out);
}

static const char *const vocabulary[] = {"[PAD]",
                                         "[unused0]",
                                         "[UNK]",
                                         "[CLS]",
                                         "[SEP]",
                                         "[MASK]",
                                         "!",
                                         "\"",
                                         "$",
                                         "'",
                                         ",",
                                         "-",
                                         ".",
                                         "?",
                                         "[",
                                         "]",
                                         "a",
                                         "b",
                                         "c",
                                         "d",
                                         "i",
                                         "s",
                                         "the",
                                         "un",
                                         "##aff",
                                         "##able",
                                         "cafe",
                                         "want",
                                         "##want",
                                         "##ed",
                                         "runn",
                                         "##ing",
                                         "low",
                                         "##er",
                                         "lowest",
                                         "cat",
                                         "##s",
                                         "sat",
                                         "on",
                                         "mat",
                                         "dog",
                                         "mask",
                                         "##a",
                                         "##b",
                                         "uber",
                                         "strasse",
                                         "\xCF\x83\xCE\xBF\xCF\x86\xCE\xBF\xCF\x83", /* sofos */
                                         "\xD0\xBC\xD0\xB8\xD1\x80",                 /* mir */
                                         "\xE4\xB8\xAD",
                                         "\xE6\x96\x87",
                                         "\xE3\x80\x82", /* two ideographs and their full stop */
                                         "\xE1\x84\x92",
                                         "##\xE1\x85\xA1",
                                         "##\xE1\x86\xAB", /* the letters of a Hangul syllable */
                                         "\xE2\x82\xAC",
                                         "\xE2\x80\x94",
                                         "\xF0\x9F\x98\x80"}; /* euro, dash, a face */

static void make(const char *folder, const char *type) {
  const int64_t width = size[WIDTH], inner = size[INNER];
  char path[4096];
  parts = take(5 + 16 * (size_t)size[LAYERS], sizeof *parts);
  add(type, "embeddings.word_embeddings.weight", size[VOCABULARY], width);
  add(type, "embeddings.position_embeddings.weight", size[POSITIONS], width);
  add(type, "embeddings.token_type_embeddings.weight", 2, width);
  add(type, "embeddings.LayerNorm.weight", 0, width);
  add(type, "embeddings.LayerNorm.bias", 0, width);
  for (long l = 0; l < size[LAYERS]; l++) {
    add_layer(type, l, "attention.self.query", width, width);
    add_layer(type, l, "attention.self.key", width, width);
    add_layer(type, l, "attention.self.value", width, width);
    add_layer(type, l, "attention.output.dense", width, width);
    add_layer(type, l, "attention.output.LayerNorm", width, 0);
    add_layer(type, l, "intermediate.dense", inner, width);
    add_layer(type, l, "output.dense", width, inner);
    add_layer(type, l, "output.LayerNorm", width, 0);
  }
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  const char *error = safetensors_write(path, parts, count);
  if (error) stop(path, error);
  for (int i = 0; i < count; i++) free((void *)parts[i].data);
  free(parts);
  snprintf(path, sizeof path, "%s/config.json", folder);
  FILE *file = fopen(path, "wb");
  if (!file) stop(path, "cannot be written");
  fprintf(
      file,
      "{\n\"model_type\": \"bert\",\n\"hidden_act\": \"gelu\",\n\"hidden_size\": %ld,\n"
      "\"intermediate_size\": %ld,\n\"layer_norm_eps\": 1e-12,\n\"max_position_embeddings\": %ld,\n"
      "\"num_attention_heads\": %ld,\n\"num_hidden_layers\": %ld,\n\"pad_token_id\": 0,\n"
      "\"type_vocab_size\": 2,\n\"vocab_size\": %ld\n}\n",
      size[WIDTH], size[INNER], size[POSITIONS], size[HEADS], size[LAYERS], size[VOCABULARY]);
  if (fclose(file)) stop(path, "cannot be written");
  snprintf(path, sizeof path, "%s/vocab.txt", folder);
  file = fopen(path, "wb");
  if (!file) stop(path, "cannot be written");
  for (size_t i = 0; i < sizeof vocabulary / sizeof *vocabulary; i++)
    fprintf(file, "%s\n", vocabulary[i]);
  if (fclose(file)) stop(path, "cannot be written");
}

/* ---- the reference */

static double at(const char *name, int64_t i) { return weight_of(name, seed_of(name), i); }

static const char *named(long l, const char *what) {
  static char name[160];
  snprintf(name, sizeof name, "encoder.layer.%ld.%s", l, what);
  return name;
}

/* y [n][out] = x [n][in] W^T + b */
static void linear(double *y, const double *x, long n, long l, const char *what, long in,
                   long out) {
  char part[96];
  for (int bias = 0; bias < 2; bias++) {
    snprintf(part, sizeof part, "%s.%s", what, bias ? "bias" : "weight");
    const char *name = named(l, part);
    for (long i = 0; i < n; i++)
      for (long o = 0; o < out; o++) {
        double sum = 0;
        if (bias)
          sum = y[i * out + o] + at(name, o);
        else
          for (long c = 0; c < in; c++) sum += x[i * in + c] * at(name, o * in + c);
        y[i * out + o] = sum;
      }
  }
}

static void normalise(double *x, long n, const char *what) {
  const long width = size[WIDTH];
  char gain[96], bias[96];
  snprintf(gain, sizeof gain, "%s.weight", what);
  snprintf(bias, sizeof bias, "%s.bias", what);
  for (long i = 0; i < n; i++) {
    double mean = 0, variance = 0, *row = x + i * width;
    for (long c = 0; c < width; c++) mean += row[c] / (double)width;
    for (long c = 0; c < width; c++) variance += (row[c] - mean) * (row[c] - mean) / (double)width;
    for (long c = 0; c < width; c++)
      row[c] = (row[c] - mean) / sqrt(variance + 1e-12) * at(gain, c) + at(bias, c);
  }
}

static void attend(double *o, const double *q, const double *k, const double *v, long n) {
  const long width = size[WIDTH], d = width / size[HEADS];
  double *p = take((size_t)n, sizeof *p);
  for (long h = 0; h < size[HEADS]; h++)
    for (long i = 0; i < n; i++) {
      double most = -INFINITY, sum = 0;
      for (long j = 0; j < n; j++) {
        p[j] = 0;
        for (long c = h * d; c < (h + 1) * d; c++) p[j] += q[i * width + c] * k[j * width + c];
        p[j] /= sqrt((double)d);
        most = fmax(most, p[j]);
      }
      for (long j = 0; j < n; j++) sum += p[j] = exp(p[j] - most);
      for (long c = h * d; c < (h + 1) * d; c++) {
        o[i * width + c] = 0;
        for (long j = 0; j < n; j++) o[i * width + c] += p[j] / sum * v[j * width + c];
      }
    }
  free(p);
}

static void layer(double *x, long n, long l) {
  const long width = size[WIDTH], inner = size[INNER];
  double *memory = take((size_t)(n * (5 * width + inner)), sizeof *memory), *q = memory;
  double *k = q + n * width, *v = k + n * width, *o = v + n * width, *y = o + n * width;
  double *hidden = y + n * width;
  linear(q, x, n, l, "attention.self.query", width, width);
  linear(k, x, n, l, "attention.self.key", width, width);
  linear(v, x, n, l, "attention.self.value", width, width);
  attend(o, q, k, v, n);
  linear(y, o, n, l, "attention.output.dense", width, width);
  for (long i = 0; i < n * width; i++) x[i] += y[i];
  char norm[160];
  strcpy(norm, named(l, "attention.output.LayerNorm"));
  normalise(x, n, norm);
  linear(hidden, x, n, l, "intermediate.dense", width, inner);
  for (long i = 0; i < n * inner; i++) hidden[i] *= (1 + erf(hidden[i] / sqrt(2.0))) / 2;
  linear(y, hidden, n, l, "output.dense", inner, width);
  for (long i = 0; i < n * width; i++) x[i] += y[i];
  strcpy(norm, named(l, "output.LayerNorm"));
  normalise(x, n, norm);
  free(memory);
}

/* ---- what encode prints */

static double next_number(char **text) {
  char *end;
  const double x = strtod(*text, &end);
  if (end == *text) stop("a line", "it has too few numbers");
  *text = end;
  return x;
}

/* A line without its word, null at the end of the file or for another word. */
static char *line_of(FILE *file, const char *word) {
  static char text[1 << 20];
  const size_t n = strlen(word);
  if (!fgets(text, sizeof text, file) || strncmp(text, word, n) || text[n] != ' ') return NULL;
  return text + n;
}

/* The larger error; one that is NaN counts as infinite, which no later one hides. */
static double larger(double a, double b) { return isnan(b) ? INFINITY : fmax(a, b); }

enum { MAX_SENTENCES = 64, MAX_TOKENS = 512 };

static void check(void) {
  static double *x[MAX_SENTENCES];
  static long tokens[MAX_SENTENCES];
  const long width = size[WIDTH];
  long sentences = 0, rows = 0;
  double worst = 0;
  char *text;
  while ((text = line_of(stdin, "tokens")) != NULL && sentences < MAX_SENTENCES) {
    double *row = x[sentences] = take((size_t)(MAX_TOKENS * width), sizeof *row);
    next_number(&text);
    for (int64_t kind = 0; *text != '\n' && tokens[sentences] < MAX_TOKENS; tokens[sentences]++) {
      if (!strncmp(text, " | ", 3)) { /* a second text begins */
        kind = 1;
        text += 2;
      }
      const int64_t id = (int64_t)next_number(&text), i = tokens[sentences];
      for (int64_t c = 0; c < width; c++)
        row[i * width + c] = at("embeddings.word_embeddings.weight", id * width + c) +
                             at("embeddings.position_embeddings.weight", i * width + c) +
                             at("embeddings.token_type_embeddings.weight", kind * width + c);
    }
    normalise(row, tokens[sentences], "embeddings.LayerNorm");
    sentences++;
    /* the first line of another word is looked at again below */
    const int c = getc(stdin);
    if (c != EOF) ungetc(c, stdin);
    if (c != 't') break;
  }
  for (long l = 0; l <= size[LAYERS]; l++)
    for (long b = 0; b < sentences; b++) {
      if (l) layer(x[b], tokens[b], l - 1);
      for (long i = 0; i < tokens[b]; i++, rows++) {
        if ((text = line_of(stdin, "row")) == NULL) stop("the rows", "there are too few");
        if ((long)next_number(&text) != b || (long)next_number(&text) != l ||
            (long)next_number(&text) != i)
          stop("a row", "it is out of order");
        for (long c = 0; c < width; c++)
          worst = larger(worst, fabs(next_number(&text) - x[b][i * width + c]));
      }
    }
  double apart = 0;
  for (long b = 0; b < sentences; b++) {
    if ((text = line_of(stdin, "vector")) == NULL) stop("the vectors", "there are too few");
    double *mean = take((size_t)width, sizeof *mean), square = 0;
    for (int i = 0; i < 3; i++) next_number(&text);
    for (long c = 0; c < width; c++) {
      for (long i = 0; i < tokens[b]; i++) mean[c] += x[b][i * width + c] / (double)tokens[b];
      square += mean[c] * mean[c];
    }
    for (long c = 0; c < width; c++)
      apart = larger(apart, fabs(next_number(&text) - mean[c] / sqrt(square)));
    free(mean);
    free(x[b]);
  }
  printf("%ld sentences, %ld rows: largest error %.1e, of the vectors %.1e\n", sentences, rows,
         worst, apart);
  if (sentences < 1 || !(worst < 2e-5) || !(apart < 1e-6))
    stop("the model", "the errors are too large");
}

static void same(const char *a, const char *b) {
  FILE *files[2] = {fopen(a, "r"), fopen(b, "r")};
  long vectors = 0;
  if (!files[0] || !files[1]) stop(a, "cannot be read");
  for (char *text; (text = line_of(files[0], "vector")) != NULL; vectors++) {
    double x[4096];
    for (int i = 0; i < 3; i++) next_number(&text);
    for (long c = 0; c < size[WIDTH]; c++) x[c] = next_number(&text);
    if ((text = line_of(files[1], "vector")) == NULL) stop(b, "it has too few vectors");
    for (int i = 0; i < 3; i++) next_number(&text);
    for (long c = 0; c < size[WIDTH]; c++)
      if (!(fabs(next_number(&text) - x[c]) < 1e-6)) stop(b, "another vector");
  }
  fclose(files[0]);
  fclose(files[1]);
  if (!vectors) stop(a, "it has no vectors");
}

int main(int argc, char **argv) {
  const int words = argc > 1 && !strcmp(argv[1], "check") ? 2 : 4;
  if (argc != words + SIZES)
    stop("usage", "make|whole|gamma FOLDER TYPE SIZES, check SIZES, same A B SIZES");
  for (int i = 0; i < SIZES; i++) size[i] = strtol(argv[words + i], NULL, 10);
  if (size[WIDTH] < 1 || size[WIDTH] > 4096 || size[HEADS] < 1) stop("sizes", "out of range");
  if (!strcmp(argv[1], "whole")) prefix = "bert.";
  gamma_beta = !strcmp(argv[1], "gamma");
  if (*prefix || gamma_beta || !strcmp(argv[1], "make"))
    make(argv[2], argv[3]);
  else if (!strcmp(argv[1], "check"))
    check();
  else
    same(argv[2], argv[3]);
  return 0;
}
