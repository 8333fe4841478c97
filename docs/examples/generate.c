/* generate.c owns the example of language models: prompts go through a decoder, then token after token is drawn and fed
 * back, for several texts at once. decoder.h has the model, batch.h the texts, sampling.h the draws.
 *
 *   generate [options] MODEL PROMPT ...
 *
 *   MODEL                 a folder with config.json and model.safetensors, or its index and pieces
 *   --prompts FILE        prompts, one a line, behind those of the command line
 *   --ids                 tokens are numbers, in prompts and in what is printed: "1 15043 3186"
 *   --bos N, --eos N      a token to put before each prompt; the token that ends a text (else those of config.json)
 *   --no-eos              no token does
 *   --tokens N            how many to make at most, 128
 *   --temperature X, --top-k N, --top-p X, --min-p X, --repetition-penalty X: sampling.h; the likeliest token without
 *   --seed N              of the draws, 0; prompt i (from 0) has seed N + i
 *   --batch N             texts that are made at the same time, 8
 *   --piece N             tokens of a prompt that one step takes, 512
 *   --draft MODEL         a smaller model with the same tokens that drafts: batch.h
 *   --draft-tokens N      how far, 4
 *   --draft-width N       likeliest tokens at each place of a draft, 1
 *   --one-order           the same bits however texts are split into steps, with a draft or without; of Mamba-2 up to
 *                         rounding; goes before --bf16
 *   --weights WORD        f32, bf16, int8, int4; without: 16 bits where the file has them, else f32
 *   --bf16                prompts by products of bf16, summed in f32, if the processor has them
 *   --workers N           threads, if compiled with OpenMP; 1
 *   --time                tokens per second, at the end, to stderr
 *   --logits FILE         of the one prompt: the logits behind each of its tokens and of the made ones, as f32
 *
 * Without --ids tokens are those of MODEL/tokenizer.json, if it is there: bpe.h says which of them are read, byte-level
 * pairs. What it puts before a text, if anything, stands before each prompt, unless --bos names another. Without that
 * file tokens are bytes: token 65 is A, for models with 256 tokens, or some more that mark something and end the text
 * when one is drawn. Tokens of other tokenisers go in and out as numbers, with --ids. */
#define _POSIX_C_SOURCE 200809L
#define ATTN_IMPLEMENTATION
#include "batch.h"
#include "bpe.h"
#include "progress.h"

#ifdef _OPENMP
#include <omp.h>
#endif

enum { BYTES = 256, MARKS = 256, MOST_TOKENS = 1 << 24, MOST_LINE = 1 << 26 };

typedef struct settings {
  sampling how;
  int64_t tokens, bos, eos, workers, batch, piece, ahead, width; /* bos and eos: -1 = none */
  int64_t seed;
  int ids, time, no_eos, one_order, bf16;
  model_weights weights;
  const char *model, *draft, *file, *logits;
  char **prompts; /* of the command line, then of the file */
  int64_t count;
  char *lines; /* the file */
  bpe pairs;   /* of tokenizer.json, if has_pairs */
  int has_pairs;
  char *spelt; /* room for a token's bytes */
} settings;

static void fail(const char *format, ...) {
  va_list arguments;
  fputs("generate: ", stderr);
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  putc('\n', stderr);
}

/* ---- the command line */

static int whole(const char *text, int64_t low, int64_t high, int64_t *n) {
  char *end;
  errno = 0;
  const long long value = strtoll(text, &end, 10);
  if (end == text || *end || errno || value < low || value > high) return 0;
  *n = value;
  return 1;
}

static int real(const char *text, double low, double high, double *x) {
  char *end;
  const double value = strtod(text, &end);
  if (end == text || *end || !(value >= low && value <= high)) return 0;
  *x = value;
  return 1;
}

static int weights_of(const char *word, model_weights *weights) {
  static const char *const words[] = {"file", "f32", "bf16", "int8", "int4"};
  for (int i = 0; i < 5; i++)
    if (!strcmp(word, words[i])) return *weights = (model_weights)i, 1;
  return 0;
}

/* One more prompt; 0 after a message. */
static int add_prompt(settings *s, char *prompt) {
  if (s->count % 64 == 0) {
    char **more = realloc(s->prompts, (size_t)(s->count + 64) * sizeof *more);
    if (!more) return fail("out of memory"), 0;
    s->prompts = more;
  }
  s->prompts[s->count++] = prompt;
  return 1;
}

/* The lines of the file of prompts. */
static int read_prompts(settings *s) {
  FILE *file = fopen(s->file, "rb");
  size_t length = 0;
  if (!file) return fail("%s: %s", s->file, strerror(errno)), 0;
  s->lines = malloc(MOST_LINE + 1);
  if (s->lines) length = fread(s->lines, 1, MOST_LINE + 1, file);
  const int bad = !s->lines || ferror(file);
  fclose(file);
  if (bad) return fail("%s: %s", s->file, errno ? strerror(errno) : "it cannot be read"), 0;
  if (length > MOST_LINE) return fail("%s: it has more than %d bytes", s->file, MOST_LINE), 0;
  if (memchr(s->lines, 0, length)) return fail("%s: it has a zero byte", s->file), 0;
  s->lines[length] = 0;
  for (char *line = s->lines, *end; *line; line = end) {
    end = line + strcspn(line, "\n");
    if (*end) *end++ = 0;
    if (!add_prompt(s, line)) return 0;
  }
  return 1;
}

/* 1, or 0 after a message. */
static int read_settings(settings *s, int count, char **words) {
  const struct {
    const char *name;
    int64_t *n, low, high;
  } numbers[] = {
      {"--tokens", &s->tokens, 1, MOST_TOKENS}, {"--seed", &s->seed, 0, INT64_MAX / 2},
      {"--bos", &s->bos, 0, INT32_MAX},         {"--eos", &s->eos, 0, INT32_MAX},
      {"--workers", &s->workers, 1, 1024},      {"--batch", &s->batch, 1, 4096},
      {"--piece", &s->piece, 1, 1 << 16},       {"--draft-tokens", &s->ahead, 1, 64},
      {"--draft-width", &s->width, 1, 16},      {"--top-k", &s->how.top_k, 0, INT32_MAX}};
  const struct {
    const char *name;
    double *x, low, high;
  } reals[] = {{"--temperature", &s->how.temperature, 0, 1e6},
               {"--top-p", &s->how.top_p, 1e-9, 1},
               {"--min-p", &s->how.min_p, 0, 1},
               {"--repetition-penalty", &s->how.repetition, 1e-3, 1e3}};
  const struct {
    const char *name;
    int *flag;
  } flags[] = {{"--ids", &s->ids},
               {"--time", &s->time},
               {"--no-eos", &s->no_eos},
               {"--bf16", &s->bf16},
               {"--one-order", &s->one_order}};
  const struct {
    const char *name, **text;
  } texts[] = {{"--prompts", &s->file}, {"--draft", &s->draft}, {"--logits", &s->logits}};
  int end = 0;
  for (int i = 1; i < count; i++) {
    const char *word = words[i];
    int known = 0;
    if (end || strncmp(word, "--", 2)) {
      if (!s->model)
        s->model = word;
      else if (!add_prompt(s, words[i]))
        return 0;
      continue;
    }
    if (!word[2]) { /* -- ends the options */
      end = 1;
      continue;
    }
    for (size_t j = 0; j < sizeof flags / sizeof *flags; j++)
      if (!strcmp(word, flags[j].name)) known = *flags[j].flag = 1;
    if (known) continue;
    const char *value = i + 1 < count ? words[i + 1] : "";
    int good = 0;
    for (size_t j = 0; j < sizeof numbers / sizeof *numbers; j++)
      if (!strcmp(word, numbers[j].name))
        known = 1, good = whole(value, numbers[j].low, numbers[j].high, numbers[j].n);
    for (size_t j = 0; j < sizeof reals / sizeof *reals; j++)
      if (!strcmp(word, reals[j].name))
        known = 1, good = real(value, reals[j].low, reals[j].high, reals[j].x);
    for (size_t j = 0; j < sizeof texts / sizeof *texts; j++)
      if (!strcmp(word, texts[j].name)) known = 1, good = *value != 0, *texts[j].text = value;
    if (!strcmp(word, "--weights")) known = 1, good = weights_of(value, &s->weights);
    if (!known) return fail("there is no option %s", word), 0;
    if (!good) return fail("%s cannot be '%s'", word, value), 0;
    i++;
  }
  if (!s->model || (!s->count && !s->file))
    return fail("usage: generate [options] MODEL PROMPT ..."), 0;
  if (s->file && !read_prompts(s)) return 0;
  if (!s->count) return fail("%s: there is no prompt", s->file), 0;
  if (s->logits && (s->count > 1 || s->draft))
    return fail("--logits takes one prompt, and no draft"), 0;
  return 1;
}

/* ---- tokens */

/* The tokeniser beside a model, if there is one; 0 after a message. */
static int read_pairs(settings *s, int64_t vocabulary) {
  char path[4096];
  json_document file;
  size_t longest = 0;
  if (s->ids) return 1;
  if ((size_t)snprintf(path, sizeof path, "%s/tokenizer.json", s->model) >= sizeof path) return 1;
  FILE *there = fopen(path, "rb");
  if (!there) return 1;
  fclose(there);
  const char *error = json_read(&file, path);
  if (error) return fail("%s: %s", path, error), 0;
  if ((error = bpe_of(&s->pairs, &file)) != NULL)
    return fail("%s: %s; use --ids, with another tokeniser's numbers", path, error), 0;
  s->has_pairs = 1;
  if (s->pairs.count > vocabulary)
    return fail("%s: it has %d tokens, the model %" PRId64, path, (int)s->pairs.count, vocabulary),
           0;
  for (int32_t i = 0; i < s->pairs.count; i++)
    if (s->pairs.pieces[i] && strlen(s->pairs.pieces[i]) > longest)
      longest = strlen(s->pairs.pieces[i]);
  s->spelt = malloc(longest + 1);
  if (!s->spelt) fail("out of memory");
  return s->spelt != NULL;
}

/* A prompt as tokens in memory of its own, with room for those to be made; their number, 0 after a message. */
static int64_t tokens_of(int64_t **to, int64_t which, settings *s, int64_t vocabulary) {
  const char *prompt = s->prompts[which];
  int64_t n = 0, id, count = (int64_t)strlen(prompt);
  int32_t *ids = NULL;
  const char *error = s->has_pairs ? bpe_encode(&s->pairs, prompt, &ids, &count) : NULL;
  int64_t *tokens = error ? NULL : malloc((size_t)(count + 1 + s->tokens) * sizeof *tokens);
  const int64_t bos = s->bos >= 0 ? s->bos : s->has_pairs ? s->pairs.cls : -1;
  *to = tokens;
  if (tokens && bos >= 0) tokens[n++] = bos;
  for (int64_t i = 0; tokens && ids && i < count; i++) tokens[n++] = ids[i];
  free(ids);
  if (error) return fail("prompt %" PRId64 ": %s", which + 1, error), 0;
  if (!tokens) return fail("out of memory"), 0;
  if (s->bos >= vocabulary || s->eos >= vocabulary)
    return fail("the model has tokens 0 to %" PRId64, vocabulary - 1), 0;
  if (s->has_pairs) {
  } else if (!s->ids) {
    if (vocabulary < BYTES || vocabulary > BYTES + MARKS)
      return fail("there is no tokenizer.json, and the model has %" PRId64
                  " tokens, which are no bytes; use --ids",
                  vocabulary),
             0;
    for (const char *c = prompt; *c; c++) tokens[n++] = (unsigned char)*c;
  } else {
    for (const char *at = prompt; at += strspn(at, " ,\t\r\n"), *at;) {
      char word[32] = "";
      const size_t length = strcspn(at, " ,\t\r\n");
      if (length < sizeof word) memcpy(word, at, length);
      if (!whole(word, 0, vocabulary - 1, &id))
        return fail("prompt %" PRId64 " has '%.*s', which is no number from 0 to %" PRId64,
                    which + 1, (int)(length < 40 ? length : 40), at, vocabulary - 1),
               0;
      tokens[n++] = id;
      at += length;
    }
  }
  if (!n) fail("prompt %" PRId64 " is empty", which + 1);
  return n;
}

/* ---- what is printed */

typedef struct output {
  const settings *s;
  const batch *b;
  int64_t next; /* the text to be printed now */
  int64_t made;
  progress bar;
} output;

static void print_token(const output *o, int64_t token, int first) {
  if (o->s->has_pairs)
    fwrite(o->s->spelt, 1,
           token < o->s->pairs.count ? bpe_bytes(&o->s->pairs, (int32_t)token, o->s->spelt) : 0,
           stdout);
  else if (!o->s->ids)
    putchar((int)token);
  else
    printf("%s%" PRId64, first ? "" : " ", token);
}

/* One text is printed as it is made, several in their order, each when it is done. */
static void made(void *user, int64_t index, int64_t token) {
  output *o = user;
  const batch *b = o->b;
  const batch_text *t = &b->texts[index];
  if (token >= 0) progress_to(&o->bar, ++o->made);
  if (b->count == 1 && token >= 0)
    print_token(o, token, t->len == t->prompt + 1);
  else if (b->count == 1)
    putchar('\n');
  for (; b->count > 1 && o->next < b->count && b->texts[o->next].done; o->next++) {
    t = &b->texts[o->next];
    progress_end(&o->bar);
    if (!o->s->ids) printf("=== %" PRId64 "\n", o->next + 1);
    for (int64_t i = t->prompt; i < t->len; i++) print_token(o, t->tokens[i], i == t->prompt);
    putchar('\n');
  }
  fflush(stdout);
}

static void print_times(const batch *b) {
  const int64_t first = b->prompt_tokens;
  fprintf(stderr, "prefill: %" PRId64 " tokens in %.3f s, %.1f tokens/s\n", first,
          b->prompt_seconds, b->prompt_seconds > 0 ? (double)first / b->prompt_seconds : 0.0);
  const int64_t made_later = b->made_later;
  fprintf(stderr, "decode: %" PRId64 " tokens in %" PRId64 " steps, %.3f s, %.1f tokens/s\n",
          made_later, b->steps, b->step_seconds,
          b->step_seconds > 0 ? (double)made_later / b->step_seconds : 0.0);
  if (b->draft)
    fprintf(stderr, "drafts: %" PRId64 " of %" PRId64 " drafted tokens were right, %.2f a step\n",
            b->accepted, b->drafted, b->verified ? (double)b->accepted / (double)b->verified : 0.0);
}

/* Closes the file. */
static int write_logits(FILE *file, const settings *s, const batch *b) {
  const decoder *m = b->model;
  int fine = 1;
  for (int64_t i = 0; i < b->seen && fine; i++)
    fine = fwrite(b->all + i * m->out.stride, sizeof(float), (size_t)m->config.vocabulary, file) ==
           (size_t)m->config.vocabulary;
  fine = !fclose(file) && fine;
  if (!fine) fail("%s could not be written", s->logits);
  return fine;
}

/* ---- all together */

static int load(decoder *m, const char *folder, const settings *s) {
  const char *error = decoder_load(m, folder, s->weights);
  if (error) return fail("%s: %s", folder, error), 0;
#ifdef _OPENMP
  m->w.ctx.parallel_for = attn_parallel_openmp;
  m->w.ctx.workers = (int)s->workers;
#endif
  m->one_order = s->one_order;
  m->w.bf16 = s->bf16 && !s->one_order; /* how many rows share a step decides what is rounded */
  return 1;
}

/* The prompts as texts; 0 after a message. */
static int read_texts(settings *s, batch_text *texts, const decoder *m, int64_t *longest) {
  const int64_t context = m->config.context;
  for (int64_t i = 0; i < s->count; i++) {
    batch_text *t = &texts[i];
    t->prompt = t->len = tokens_of(&t->tokens, i, s, m->config.vocabulary);
    if (!t->len) return 0;
    if (t->len > context || s->tokens > context - t->len)
      return fail("prompt %" PRId64 " of %" PRId64 " tokens and %" PRId64
                  " more exceed the model's context of %" PRId64 " tokens",
                  i + 1, t->len, s->tokens, context),
             0;
    t->limit = s->tokens;
    t->seed = (uint64_t)(s->seed + i);
    if (t->len + t->limit > *longest) *longest = t->len + t->limit;
  }
  return 1;
}

static int generate(settings *s, decoder *m, decoder *draft, batch_text *texts) {
  int64_t longest = 0;
  if (!read_texts(s, texts, m, &longest)) return 0;
  const int64_t slots = s->count < s->batch ? s->count : s->batch;
  const int64_t nodes = draft ? batch_nodes(s->ahead, s->width) : 1;
  const int64_t piece = s->piece < longest ? s->piece : longest;
  const char *error = decoder_open(m, slots, longest + nodes, piece + slots * nodes);
  if (!error && draft) error = decoder_open(draft, slots, longest + nodes, piece + 2 * slots);
  if (error) return fail("%s", error), 0;
  sampler choice;
  batch b = {.model = m,
             .draft = draft,
             .choice = &choice,
             .piece = piece,
             .ahead = s->ahead,
             .width = s->width,
             .first_mark = s->ids || s->has_pairs ? INT64_MAX : BYTES,
             .texts = texts,
             .count = s->count,
             .made = made,
             .now = progress_now};
  output out = {.s = s, .b = &b, .bar = progress_begin("generate", "tokens", s->tokens * s->count)};
  out.bar.on = out.bar.on && !isatty(fileno(stdout));
  b.user = &out;
  FILE *file = s->logits ? fopen(s->logits, "wb") : NULL;
  if (s->logits && !file) return fail("%s: %s", s->logits, strerror(errno)), 0;
  if (file) b.all = calloc((size_t)longest, (size_t)m->out.stride * sizeof *b.all);
  int fine = sampler_open(&choice, &s->how, m->config.vocabulary) && (b.all || !file);
  if (!fine) fail("out of memory");
  if (fine && (error = batch_run(&b)) != NULL) fail("%s", error), fine = 0;
  progress_end(&out.bar);
  if (fine && s->time) print_times(&b);
  if (file) fine = write_logits(file, s, &b) && fine;
  sampler_free(&choice);
  free(b.all);
  if (fine && (fflush(stdout) || ferror(stdout))) return fail("the text could not be written"), 0;
  return fine;
}

static int load_all(const settings *s, decoder *m, decoder *draft) {
  if (!load(m, s->model, s)) return 0;
  if (s->eos >= 0) m->config.eos[0] = s->eos, m->config.eos_count = 1;
  if (s->no_eos) m->config.eos_count = 0;
  if (!s->draft) return 1;
  if (!load(draft, s->draft, s)) return 0;
  if (!decoder_goes_back(m) || !decoder_goes_back(draft))
    return fail("a model with a state cannot go back, so neither takes nor makes drafts"), 0;
  if (draft->config.vocabulary != m->config.vocabulary)
    return fail("%s has %" PRId64 " tokens, %s %" PRId64 ": they cannot be the same", s->draft,
                draft->config.vocabulary, s->model, m->config.vocabulary),
           0;
  return 1;
}

int main(int count, char **words) {
  settings s = {.tokens = 128,
                .bos = -1,
                .eos = -1,
                .workers = 1,
                .batch = 8,
                .piece = 512,
                .ahead = 4,
                .width = 1};
  decoder m = {0}, draft = {0};
  int fine = read_settings(&s, count, words) && load_all(&s, &m, &draft) &&
             read_pairs(&s, m.config.vocabulary);
  if (fine) {
    batch_text *texts = calloc((size_t)s.count, sizeof *texts);
    if (!texts) fail("out of memory");
    fine = texts && generate(&s, &m, s.draft ? &draft : NULL, texts);
    for (int64_t i = 0; texts && i < s.count; i++) free(texts[i].tokens);
    free(texts);
  }
  decoder_free(&m);
  decoder_free(&draft);
  if (s.has_pairs) bpe_free(&s.pairs);
  free(s.spelt);
  free(s.prompts);
  free(s.lines);
  return !fine;
}
