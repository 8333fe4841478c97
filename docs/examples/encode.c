/* encode.c owns the sentence encoder: how alike sentences are, by a model of the BERT family such as
 * all-MiniLM-L6-v2 (README.md says where to get it).
 *
 *   encode [options] model.safetensors vocab.txt "A sentence." "Another one." ...
 *     --heads N     attention heads, which the weights do not tell (12)
 *     --max N       tokens of a sentence, the rest is cut off (256)
 *     --tokens      print the tokens, and stop
 *     --vectors     print the sentences' vectors, not their cosines
 *     --layers      print all rows after each layer, layer 0 being the embeddings
 *     --time        measure tokens a second on every tier, without sentences */
#define ATTN_IMPLEMENTATION /* in exactly one file of a program */
#include "attn.h"

#include "bert.h"
#include "fma_peak.h"
#include "wordpiece.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#include <time.h>

typedef struct options {
  int64_t heads, max;
  int tokens, vectors, layers, time;
} options;

static void stop(const char *what, const char *why) {
  fprintf(stderr, "encode: %s: %s\n", what, why);
  exit(1);
}

static void must(attn_status status, const attn_ctx *ctx) {
  if (status != ATTN_OK) stop(attn_status_string(status), ctx->reason);
}

/* Zeroed, and never null. */
static void *take(int64_t count, size_t size) {
  if ((uint64_t)count >= PTRDIFF_MAX / size) stop("memory", "too much of it would be needed");
  void *memory = calloc((size_t)count + 1, size);
  if (!memory) stop("memory", "there is not enough");
  return memory;
}

/* A whole number of 1 or more behind an option. */
static int64_t number(const char *option, const char *text) {
  char *end;
  errno = 0;
  const long n = text ? strtol(text, &end, 10) : 0;
  if (!text || end == text || *end || errno || n < 1)
    stop(option, "a number of 1 or more must follow");
  return n;
}

/* The sentences' tokens, padded to the longest. */
typedef struct batch {
  int64_t count, len;
  int32_t *ids, *length;
} batch;

static batch tokenise(wordpiece *words, char **sentences, int64_t count, int64_t max) {
  batch all = {count, 0, NULL, take(count, sizeof(int32_t))};
  int32_t **ids = take(count, sizeof *ids);
  for (int64_t b = 0; b < count; b++) {
    const size_t enough = strlen(sentences[b]) + 2;
    const int64_t room = (uint64_t)enough < (uint64_t)max ? (int64_t)enough : max;
    int64_t tokens, whole;
    ids[b] = take(room, sizeof **ids);
    const char *error = wordpiece_encode(words, sentences[b], ids[b], room, &tokens, &whole);
    if (error) stop("a sentence", error);
    if (whole > tokens)
      fprintf(stderr, "encode: sentence %ld has %ld tokens, of which %ld are read\n", (long)b + 1,
              (long)whole, (long)tokens);
    all.length[b] = (int32_t)tokens;
    if (tokens > all.len) all.len = tokens;
  }
  all.ids = take(count * all.len, sizeof(int32_t)); /* padded with token 0 */
  for (int64_t b = 0; b < count; b++) {
    memcpy(all.ids + b * all.len, ids[b], (size_t)all.length[b] * sizeof(int32_t));
    free(ids[b]);
  }
  free(ids);
  return all;
}

static void print_row(const char *label, int64_t b, int64_t l, int64_t i, const float *x,
                      int64_t n) {
  printf("%s %ld %ld %ld", label, (long)b, (long)l, (long)i);
  for (int64_t c = 0; c < n; c++) printf(" %.9g", (double)x[c]);
  printf("\n");
}

/* All layers over a batch, in x. */
static void forward(const bert *model, float *x, const batch *in, const options *set,
                    attn_ctx *ctx) {
  for (int64_t l = 0; l <= model->layers; l++) {
    must(l ? bert_layer(model, l - 1, x, in->length, in->count, in->len, ctx)
           : bert_embed(model, x, in->ids, in->count, in->len, ctx),
         ctx);
    for (int64_t b = 0; set->layers && b < in->count; b++)
      for (int64_t i = 0; i < in->length[b]; i++)
        print_row("row", b, l, i, x + (b * in->len + i) * model->width, model->width);
  }
}

static void workspace(attn_ctx *ctx, const bert *model, float *x, const batch *in) {
  ctx->workspace = NULL;
  ctx->workspace_size = bert_workspace(model, x, in->count, in->len, ctx);
  if (ctx->workspace_size == ATTN_WORKSPACE_REJECTED)
    ctx->workspace_size = 0; /* the call says why */
  if (ctx->workspace_size > PTRDIFF_MAX) stop("memory", "too much of it would be needed");
  if (ctx->workspace_size) ctx->workspace = take((int64_t)ctx->workspace_size, 1);
}

static double now(void) {
#ifdef _OPENMP
  return omp_get_wtime();
#else
  return (double)clock() / CLOCKS_PER_SEC;
#endif
}

/* Tokens a second of each tier that runs here, and what part of the multiply-adds that its vectors can do
 * the products of rows, weights and heads are. */
static void measure(const bert *model, attn_ctx *ctx) {
  enum { SENTENCES = 8, TOKENS = 128 };
  batch in = {SENTENCES, TOKENS < model->positions ? TOKENS : model->positions, NULL, NULL};
  const options quiet = {0};
  in.length = take(SENTENCES, sizeof *in.length);
  in.ids = take(SENTENCES * in.len, sizeof *in.ids);
  for (int b = 0; b < SENTENCES; b++) in.length[b] = (int32_t)in.len;
  for (int64_t i = 0; i < SENTENCES * in.len; i++)
    in.ids[i] = (int32_t)(i * 7919 % model->vocabulary);
  float *x = take(SENTENCES * in.len * model->width, sizeof *x);
  printf("%ld layers, %ld wide, inner width %ld; %d sentences of %ld tokens, %d worker(s)\n",
         (long)model->layers, (long)model->width, (long)model->inner, SENTENCES, (long)in.len,
         ctx->workers);
  for (int isa = 1; isa < ATTN_ISA_COUNT; isa++) {
    if (attn_isa_status((attn_isa)isa) != ATTN_ISA_OK) continue;
    ctx->isa = (attn_isa)isa;
    workspace(ctx, model, x, &in);
    double best = 1e30;
    for (double start = now(), last = start; last - start < 1;) {
      const double before = last;
      forward(model, x, &in, &quiet, ctx);
      last = now();
      best = fmin(best, last - before);
    }
    const double tokens = (double)(SENTENCES * in.len) / best, width = (double)model->width;
    const double flops = 4 * (double)model->layers * width *
                         (2 * width + (double)model->inner + (double)in.len); /* a token */
    const double peak = fma_peak(ctx->isa) * ctx->workers;
    printf("%-7s %8.0f tokens/s, %6.1f Gflop/s", attn_isa_name(ctx->isa), tokens,
           1e-9 * tokens * flops);
    if (peak > 0) printf(", %.0f %% of the peak", 1e-7 * tokens * flops / peak);
    printf("\n");
    free(ctx->workspace);
  }
  free(x);
  free(in.ids);
  free(in.length);
}

static void print_cosines(const float *vectors, char **sentences, int64_t count, int64_t width) {
  for (int64_t a = 0; a < count; a++) {
    for (int64_t b = 0; b < count; b++) {
      double cosine = 0;
      for (int64_t c = 0; c < width; c++)
        cosine += (double)vectors[a * width + c] * (double)vectors[b * width + c];
      printf("%7.4f", cosine);
    }
    printf("  %s\n", sentences[a]);
  }
}

static void encode(const bert *model, const batch *in, char **sentences, const options *set,
                   attn_ctx *ctx) {
  const int64_t width = model->width;
  float *x = take(in->count * in->len * width, sizeof *x);
  float *vectors = take(in->count * width, sizeof *vectors);
  workspace(ctx, model, x, in);
  forward(model, x, in, set, ctx);
  for (int64_t b = 0; b < in->count; b++)
    bert_pool(model, vectors + b * width, x + b * in->len * width, in->length[b]);
  for (int64_t i = 0; i < in->count * width; i++)
    if (!isfinite(vectors[i])) stop("a vector", "it is not finite: are these weights of a model?");
  for (int64_t b = 0; b < in->count && (set->vectors || set->layers); b++)
    print_row("vector", b, 0, 0, vectors + b * width, width);
  if (!set->vectors && !set->layers) print_cosines(vectors, sentences, in->count, width);
  free(ctx->workspace);
  free(x);
  free(vectors);
}

int main(int argc, char **argv) {
  options set = {12, 256, 0, 0, 0, 0};
  int at = 1;
  for (; at < argc && !strncmp(argv[at], "--", 2); at++) {
    if (!strcmp(argv[at], "--heads"))
      set.heads = number("--heads", argv[at + 1]), at++;
    else if (!strcmp(argv[at], "--max"))
      set.max = number("--max", argv[at + 1]), at++;
    else if (!strcmp(argv[at], "--tokens"))
      set.tokens = 1;
    else if (!strcmp(argv[at], "--vectors"))
      set.vectors = 1;
    else if (!strcmp(argv[at], "--layers"))
      set.layers = 1;
    else if (!strcmp(argv[at], "--time"))
      set.time = 1;
    else
      stop(argv[at], "no such option");
  }
  if (argc - at < (set.time ? 2 : 3)) {
    fprintf(stderr, "encode: usage: encode [options] model.safetensors vocab.txt sentence ...\n");
    return 1;
  }
  char **sentences = argv + at + 2;
  const int64_t count = argc - at - 2;
  const char *error;
  wordpiece words;
  if ((error = wordpiece_read(&words, argv[at + 1])) != NULL) stop(argv[at + 1], error);
  bert model;
  if ((error = bert_read(&model, argv[at], set.heads)) != NULL) stop(argv[at], error);
  if (words.count > model.vocabulary)
    stop(argv[at + 1], "the vocabulary is longer than the model's");
  if (set.max > model.positions) set.max = model.positions;
  if (set.max < 2) stop("--max", "a sentence has two tokens at least, [CLS] and [SEP]");

  attn_ctx ctx = {.workers = 1};
#ifdef _OPENMP
  ctx.parallel_for = attn_parallel_openmp;
  ctx.workers = omp_get_max_threads();
#endif
  if (set.time) {
    measure(&model, &ctx);
  } else {
    batch in = tokenise(&words, sentences, count, set.max);
    for (int64_t b = 0; b < count && (set.tokens || set.layers); b++) {
      printf("tokens %ld", (long)b);
      for (int64_t i = 0; i < in.length[b]; i++) {
        const int32_t id = in.ids[b * in.len + i];
        if (set.tokens)
          printf(" %s", words.pieces[id]);
        else
          printf(" %ld", (long)id);
      }
      printf("\n");
    }
    if (!set.tokens) encode(&model, &in, sentences, &set, &ctx);
    free(in.ids);
    free(in.length);
  }
  if (fflush(stdout) || ferror(stdout)) stop("the output", "it could not be written");
  bert_free(&model);
  wordpiece_free(&words);
  return 0;
}
