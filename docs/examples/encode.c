/* encode.c owns the encoder as a program: texts to vectors, and how alike they are, by a BERT, ALBERT,
 * RoBERTa, DistilBERT, MiniLM, ModernBERT or DeBERTa v2 or v3 (README.md says which files).
 *
 *   encode [options] MODEL "A sentence." "Another one." ...
 *
 * MODEL is a folder with config.json, model.safetensors and a vocabulary: vocab.txt (WordPiece), spiece.model,
 * spm.model or sentencepiece.bpe.model (SentencePiece), or tokenizer.json (byte pairs, WordPiece); or the
 * .safetensors file of a BERT with vocab.txt beside it.
 * Without sentences they are the lines of the standard input.
 *     --vocab FILE  another vocabulary than the one in the model's folder
 *     --ids         texts are numbers of tokens, marks included: "2 17 3", of a pair "2 17 3 | 5 3"
 *     --pairs       two texts each are one
 *     --pool HOW    mean (the default), cls or max: what makes one vector of the rows
 *     --max N       tokens of a text, the rest is cut off (256, or what the model takes if that is less)
 *     --heads N, --eps X, --activation NAME   in place of what config.json says
 *     --tokens      print the tokens, and stop
 *     --vectors     print the vectors, not their cosines
 *     --layers      print all rows after each layer, layer 0 being the embeddings
 *     --map L       print the attention of layer L, from 1: text, head, query, then a weight a key
 *     --bf16        products of bf16, summed in f32, where the processor has them
 *     --time        measure tokens a second on every tier, without texts
 *     --families    print the model_types of config.json that are read, without MODEL */
#define _POSIX_C_SOURCE 200809L
#define ATTN_IMPLEMENTATION /* in exactly one file of a program */
#include "attn.h"

#include "encoder.h"
#include "fma_peak.h"
#include "progress.h"
#include "texts.h"

#ifdef _OPENMP
#include <omp.h>
#endif

enum { TOGETHER = 32 /* texts of a batch */ };

typedef struct options {
  encoder_options model;
  const char *vocab;
  int64_t max, map;
  encoder_pool pool;
  int ids, pairs, tokens, vectors, layers, time, families, bf16;
} options;

static void stop(const char *what, const char *why) {
  fprintf(stderr, "encode: %s: %s\n", what, why);
  exit(1);
}

static void must(const char *error, const char *what) {
  if (error) stop(what, error);
}

/* Zeroed, and never null. */
static void *take(int64_t count, size_t size) {
  if ((uint64_t)count >= PTRDIFF_MAX / size) stop("memory", "too much of it would be needed");
  void *memory = calloc((size_t)count + 1, size);
  if (!memory) stop("memory", "there is not enough");
  return memory;
}

/* ---- texts */

/* The lines of the standard input. */
static char **read_lines(int64_t *count) {
  char **lines = NULL, *line = NULL;
  size_t room = 0;
  ssize_t length;
  for (*count = 0; (length = getline(&line, &room, stdin)) >= 0; line = NULL, room = 0) {
    if (memchr(line, 0, (size_t)length)) stop("the standard input", "it has a zero byte");
    line[strcspn(line, "\r\n")] = 0;
    if (!(*count & (*count - 1))) lines = realloc(lines, (size_t)(2 * *count + 1) * sizeof *lines);
    if (!lines) stop("memory", "there is not enough");
    lines[(*count)++] = line;
  }
  free(line);
  if (ferror(stdin)) stop("the standard input", "it cannot be read");
  return lines;
}

/* One of n texts: the tokens of an argument or line, or with --pairs of two. */
static texts_tokens *tokenise(texts *reader, char **lines, int64_t n, const options *set) {
  texts_tokens *all = take(n, sizeof *all);
  for (int64_t b = 0; b < n; b++) {
    const char *a = lines[b << set->pairs], *second = set->pairs ? lines[2 * b + 1] : NULL;
    must(set->ids ? texts_numbers_of(reader, &all[b], a)
                  : texts_tokens_of(reader, &all[b], a, second),
         "a sentence");
    if (all[b].whole > all[b].count)
      fprintf(stderr, "encode: sentence %ld has %ld tokens, of which %ld are read\n", (long)b + 1,
              (long)all[b].whole, (long)all[b].count);
  }
  return all;
}

/* ---- batches */

/* Texts order[0 .. count-1], padded to the longest; apart: second texts have the other token type. */
static encoder_batch gather(const encoder *model, const texts_tokens *all, const int64_t *order,
                            int64_t count, int apart) {
  int64_t len = 0;
  for (int64_t b = 0; b < count; b++)
    if (all[order[b]].count > len) len = all[order[b]].count;
  int32_t *ids = take(count * len, sizeof *ids), *kinds = take(count * len, sizeof *kinds);
  int32_t *length = take(count, sizeof *length);
  for (int64_t b = 0; b < count; b++) {
    const texts_tokens *text = &all[order[b]];
    length[b] = (int32_t)text->count;
    memcpy(ids + b * len, text->ids, (size_t)text->count * sizeof *ids);
    for (int64_t i = text->second; i < text->count; i++)
      kinds[b * len + i] = apart && model->kinds.len > 1;
  }
  return (encoder_batch){.count = count, .len = len, .ids = ids, .kinds = kinds, .length = length};
}

static void release(encoder_batch *in) {
  free((void *)in->ids);
  free((void *)in->kinds);
  free((void *)in->length);
  free(in->map);
}

static void print_row(const char *label, int64_t b, int64_t l, int64_t i, const float *x,
                      int64_t n) {
  printf("%s %ld %ld %ld", label, (long)b, (long)l, (long)i);
  for (int64_t c = 0; c < n; c++) printf(" %.9g", (double)x[c]);
  printf("\n");
}

/* All layers over a batch. */
static void forward(encoder *model, const encoder_batch *in, int print) {
  for (int64_t l = 0; l <= model->layers; l++) {
    must(l ? encoder_layer(model, in, l - 1) : encoder_embed(model, in), "the model");
    for (int64_t b = 0; print && b < in->count; b++)
      for (int64_t i = 0; i < in->length[b]; i++)
        print_row("row", b, l, i, model->x + (b * in->len + i) * model->width, model->width);
  }
}

/* ---- what is done with them */

/* Multiply-adds that a token costs in the products of rows, weights and heads, times 2. */
static double flops(const encoder *model, int64_t len) {
  const double width = (double)model->width, inner = (double)model->inner;
  double sum = 0;
  for (int64_t l = 0; l < model->layers; l++) {
    const attn_window *window = &model->blocks[l].self.attention.window;
    const int64_t seen = window->on ? window->left + window->right + 1 : len;
    sum += width * (8 * width + (model->family->gated ? 6 : 4) * inner +
                    4 * (double)(seen < len ? seen : len));
  }
  return sum;
}

/* Tokens a second of each tier that runs here, and what part of the multiply-adds that its vectors can do. */
static void measure(encoder *model, int64_t max) {
  enum { SENTENCES = 8 };
  encoder_batch in = {.count = SENTENCES, .len = max};
  int32_t *ids = take(SENTENCES * max, sizeof *ids), *length = take(SENTENCES, sizeof *length);
  for (int b = 0; b < SENTENCES; b++) length[b] = (int32_t)max;
  for (int64_t i = 0; i < SENTENCES * max; i++) ids[i] = (int32_t)(i * 7919 % model->vocabulary);
  in.ids = ids;
  in.length = length;
  printf("%s, %ld layers, %ld wide, inner width %ld; %d sentences of %ld tokens, %d worker(s)\n",
         model->family->type, (long)model->layers, (long)model->width, (long)model->inner,
         SENTENCES, (long)max, model->ctx.workers);
  for (int isa = 1; isa < ATTN_ISA_COUNT; isa++) {
    if (attn_isa_status((attn_isa)isa) != ATTN_ISA_OK) continue;
    model->ctx.isa = (attn_isa)isa;
    double best = 1e30;
    for (double start = progress_now(), last = start; last - start < 1;) {
      const double before = last;
      forward(model, &in, 0);
      last = progress_now();
      best = fmin(best, last - before);
    }
    const double tokens = (double)(SENTENCES * max) / best, rate = tokens * flops(model, max);
    const double peak = fma_peak(model->ctx.isa) * model->ctx.workers;
    printf("%-7s %8.0f tokens/s, %6.1f Gflop/s", attn_isa_name(model->ctx.isa), tokens,
           1e-9 * rate);
    if (peak > 0) printf(", %.0f %% of the peak", 1e-7 * rate / peak);
    printf("\n");
  }
  release(&in);
}

static void print_cosines(const float *vectors, char **lines, int64_t count, int pairs,
                          int64_t width) {
  for (int64_t a = 0; a < count; a++) {
    for (int64_t b = 0; b < count; b++) {
      double cosine = 0;
      for (int64_t c = 0; c < width; c++)
        cosine += (double)vectors[a * width + c] * (double)vectors[b * width + c];
      printf("%7.4f", cosine);
    }
    printf("  %s%s%s\n", lines[a << pairs], pairs ? " | " : "", pairs ? lines[2 * a + 1] : "");
  }
}

static const texts_tokens *by_length;
static int shorter(const void *a, const void *b) {
  const int64_t x = by_length[*(const int64_t *)a].count, y = by_length[*(const int64_t *)b].count;
  return (x > y) - (x < y);
}

/* Vectors of n texts [n][width]. Texts of like length go together, but with --layers and --map, where all do. */
static void encode(encoder *model, const texts_tokens *all, int64_t n, const options *set,
                   float *vectors) {
  const int64_t width = model->width, together = set->layers || set->map ? n : TOGETHER;
  int64_t *order = take(n, sizeof *order), total = 0, done = 0;
  for (int64_t b = 0; b < n; b++) {
    order[b] = b;
    total += all[b].count;
  }
  by_length = all;
  if (together < n) qsort(order, (size_t)n, sizeof *order, shorter);
  progress bar = progress_begin("encode", "tokens", total);
  for (int64_t first = 0; first < n; first += together) {
    const int64_t count = n - first < together ? n - first : together;
    encoder_batch in =
        gather(model, all, order + first, count, set->ids || !model->family->after_padding);
    const int64_t heads = model->heads, len = in.len;
    if (set->map) {
      in.map = take(count * heads * len * len, sizeof *in.map);
      in.map_layer = set->map - 1;
    }
    forward(model, &in, set->layers);
    for (int64_t b = 0; b < count; b++) {
      float *vector = vectors + order[first + b] * width;
      encoder_vector(model, &in, set->pool, b, vector);
      for (int64_t c = 0; c < width; c++)
        if (!isfinite(vector[c]))
          stop("a vector", "it is not finite: are these weights of a model?");
      for (int64_t h = 0; set->map && h < heads; h++)
        for (int64_t i = 0; i < in.length[b]; i++)
          print_row("map", b, h, i, in.map + ((b * heads + h) * len + i) * len, in.length[b]);
      done += in.length[b];
    }
    release(&in);
    progress_to(&bar, done);
  }
  progress_end(&bar);
  free(order);
}

static void run(encoder *model, texts *reader, char **lines, int64_t count, const options *set) {
  char **read = NULL;
  if (!count) lines = read = read_lines(&count);
  if (set->pairs && count % 2) stop("--pairs", "an even number of texts must follow");
  const int64_t n = count >> set->pairs;
  if (!n) stop("usage", "encode [options] MODEL sentence ...");
  texts_tokens *all = tokenise(reader, lines, n, set);
  for (int64_t b = 0; b < n && set->ids; b++)
    if (all[b].second < all[b].count && model->kinds.len < 2)
      stop("a sentence", "the model has no second token type");
  for (int64_t b = 0; b < n && (set->tokens || set->layers); b++) {
    printf("tokens %ld", (long)b);
    for (int64_t i = 0; i < all[b].count; i++) {
      if (i == all[b].second) printf(" |");
      if (set->tokens && !set->ids)
        printf(" %s", texts_piece(reader, all[b].ids[i]));
      else
        printf(" %ld", (long)all[b].ids[i]);
    }
    printf("\n");
  }
  if (!set->tokens) {
    float *vectors = take(n * model->width, sizeof *vectors);
    encode(model, all, n, set, vectors);
    for (int64_t b = 0; b < n && (set->vectors || set->layers); b++)
      print_row("vector", b, 0, 0, vectors + b * model->width, model->width);
    if (!set->vectors && !set->layers && !set->map)
      print_cosines(vectors, lines, n, set->pairs, model->width);
    free(vectors);
  }
  for (int64_t b = 0; b < n; b++) free(all[b].ids);
  for (int64_t i = 0; read && i < count; i++) free(read[i]);
  free(read);
  free(all);
}

/* ---- options */

/* A whole number of 1 or more behind an option. */
static int64_t number(const char *option, const char *text) {
  char *end;
  errno = 0;
  const long n = text ? strtol(text, &end, 10) : 0;
  if (!text || end == text || *end || errno || n < 1)
    stop(option, "a number of 1 or more must follow");
  return n;
}

static double positive(const char *option, const char *text) {
  char *end;
  const double x = text ? strtod(text, &end) : 0;
  if (!text || end == text || *end || !isfinite(x) || x <= 0)
    stop(option, "a number above 0 must follow");
  return x;
}

static const char *word(const char *option, const char *text) {
  if (!text) stop(option, "a word must follow");
  return text;
}

static encoder_pool pool(const char *text) {
  for (int i = 0; text && i < ENCODER_POOLS; i++)
    if (!strcmp(text, encoder_pool_names[i])) return (encoder_pool)i;
  stop("--pool", "mean, cls or max must follow");
  return ENCODER_POOLS;
}

/* Reads one option, and says how many words it took. */
static int option(options *set, char **at) {
  static const struct {
    const char *name;
    size_t field;
  } flags[] = {
      {"--ids", offsetof(options, ids)},           {"--pairs", offsetof(options, pairs)},
      {"--tokens", offsetof(options, tokens)},     {"--vectors", offsetof(options, vectors)},
      {"--layers", offsetof(options, layers)},     {"--time", offsetof(options, time)},
      {"--families", offsetof(options, families)}, {"--bf16", offsetof(options, bf16)}};
  for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
    if (!strcmp(at[0], flags[i].name)) {
      *(int *)((char *)set + flags[i].field) = 1;
      return 1;
    }
  if (!strcmp(at[0], "--vocab"))
    set->vocab = word(at[0], at[1]);
  else if (!strcmp(at[0], "--pool"))
    set->pool = pool(at[1]);
  else if (!strcmp(at[0], "--max"))
    set->max = number(at[0], at[1]);
  else if (!strcmp(at[0], "--map"))
    set->map = number(at[0], at[1]);
  else if (!strcmp(at[0], "--heads"))
    set->model.heads = number(at[0], at[1]);
  else if (!strcmp(at[0], "--eps"))
    set->model.eps = positive(at[0], at[1]);
  else if (!strcmp(at[0], "--activation"))
    set->model.activation = word(at[0], at[1]);
  else
    stop(at[0], "no such option");
  return 2;
}

/* A vocabulary where the model lies: the first of these names that is there. */
static char *beside(const char *model) {
  static const char *const names[] = {"vocab.txt", "spiece.model", "spm.model",
                                      "sentencepiece.bpe.model", "tokenizer.json"};
  enum { NAMES = sizeof names / sizeof *names };
  const size_t length = strlen(model);
  const int file = length > 12 && !strcmp(model + length - 12, ".safetensors");
  const char *slash = file ? strrchr(model, '/') : model + length;
  const size_t folder = slash ? (size_t)(slash - model) : 0;
  char *path = take((int64_t)folder + 32, 1);
  memcpy(path, model, folder);
  for (int i = 0; i <= NAMES; i++) { /* the last time the first again, to be missed */
    sprintf(path + folder, "%s%s", slash ? "/" : "", names[i % NAMES]);
    FILE *there = fopen(path, "rb");
    if (!there) continue;
    fclose(there);
    break;
  }
  return path;
}

static void low(attn_block_params *block) {
  block->self.compute = block->self.attention.compute = block->ff.compute = ATTN_COMPUTE_BF16;
  block->self.compute_prefer = block->self.attention.compute_prefer = block->ff.compute_prefer = 1;
}

int main(int argc, char **argv) {
  options set = {.max = 0};
  encoder model;
  int at = 1;
  while (at < argc && !strncmp(argv[at], "--", 2)) at += option(&set, argv + at);
  if (set.families) {
    for (int i = 0; i < ENCODER_FAMILIES; i++)
      printf("  %-12s %s\n", encoder_families[i].type, encoder_families[i].models);
    return fflush(stdout) || ferror(stdout) ? 1 : 0;
  }
  if (at >= argc) stop("usage", "encode [options] MODEL sentence ...");
  if (set.ids && set.pairs) stop("--ids", "a bar in the numbers makes a pair, not --pairs");
  const char *path = argv[at++];
  must(encoder_read(&model, path, &set.model), path);
  for (int64_t l = 0; set.bf16 && l < model.layers; l++) low(&model.blocks[l]);
  if (!set.max) set.max = set.time ? 128 : 256;
  if (set.max > model.positions) set.max = model.positions;
  if (set.map > model.layers) stop("--map", "the model has fewer layers");
#ifdef _OPENMP
  model.ctx.parallel_for = attn_parallel_openmp;
  model.ctx.workers = omp_get_max_threads();
#endif
  if (set.time) {
    measure(&model, set.max);
  } else {
    texts reader = {.family = model.family, .max = set.max, .vocabulary = model.vocabulary};
    char *vocab = beside(path);
    const char *from = set.vocab ? set.vocab : vocab;
    if (!set.ids) must(texts_read(&reader, from), from);
    run(&model, &reader, argv + at, argc - at, &set);
    texts_free(&reader);
    free(vocab);
  }
  if (fflush(stdout) || ferror(stdout)) stop("the output", "it could not be written");
  encoder_free(&model);
  return 0;
}
