/* generate.c owns the example of a language model: a prompt goes through a decoder of the Llama family
 * in one call, then token after token is drawn and fed back. llama.h has the model.
 *
 *   generate --heads N [options] MODEL.safetensors PROMPT
 *
 *   --heads N         query heads; the tensors do not tell
 *   --rope-base X     rope_theta of the model, 10000
 *   --rope-type WORD  rope_type of its rope_scaling: llama3, yarn, linear; and that one's numbers:
 *   --rope-factor X, --rope-low X, --rope-high X (low_freq_factor, high_freq_factor) and
 *   --rope-original N (original_max_position_embeddings)
 *   --eps X           rms_norm_eps of the model, 1e-5
 *   --tokens N        how many to make at most, 128
 *   --context N       the most tokens the model was trained for, 2048
 *   --temperature X   0: always the likeliest token (the default); 1: as the model says
 *   --seed N          of the draws, 0
 *   --ids             tokens are numbers, in the prompt and in what is printed: "1 15043 3186"
 *   --bos N           a token to put before the prompt
 *   --eos N           the token that ends the text
 *   --workers N       threads, if compiled with OpenMP; 1
 *   --time            tokens per second, at the end, to stderr
 *
 * Without --ids tokens are bytes: token 65 is A, for models with 256 tokens, or some more that mark
 * something and end the text when one is drawn. Real vocabularies want a tokeniser of their own, whose
 * numbers go in and out with --ids. */
#define _POSIX_C_SOURCE 200809L
#define ATTN_IMPLEMENTATION
#include "llama.h"

#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { BYTES = 256, MARKS = 256, MOST_TOKENS = 1 << 24 };

typedef struct settings {
  llama_options model;
  int64_t tokens, context, bos, eos, workers; /* bos and eos: -1 = none */
  uint64_t seed;
  double temperature;
  int ids, time;
  const char *path, *prompt;
} settings;

static void fail(const char *format, ...) {
  va_list arguments;
  fputs("generate: ", stderr);
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  putc('\n', stderr);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
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

/* 1, or 0 after a message. */
static int read_settings(settings *s, int count, char **words) {
  double eps = 1e-5;
  int64_t seed = 0;
  const struct {
    const char *name;
    int64_t *n, low, high;
  } numbers[] = {
      {"--heads", &s->model.heads, 1, INT32_MAX},
      {"--tokens", &s->tokens, 1, MOST_TOKENS},
      {"--context", &s->context, 1, MOST_TOKENS},
      {"--seed", &seed, 0, INT64_MAX},
      {"--bos", &s->bos, 0, INT32_MAX},
      {"--eos", &s->eos, 0, INT32_MAX},
      {"--workers", &s->workers, 1, 1024},
      {"--rope-original", &s->model.rope.original_max_position_embeddings, 1, MOST_TOKENS}};
  const struct {
    const char *name;
    double *x, low, high;
  } reals[] = {{"--rope-base", &s->model.rope.base, 1, 1e12},
               {"--rope-factor", &s->model.rope.factor, 1, 1e6},
               {"--rope-low", &s->model.rope.low_freq_factor, 1e-6, 1e6},
               {"--rope-high", &s->model.rope.high_freq_factor, 1e-6, 1e6},
               {"--eps", &eps, 1e-30, 1},
               {"--temperature", &s->temperature, 0, 1e6}};
  const struct {
    const char *name;
    int *flag;
  } flags[] = {{"--ids", &s->ids}, {"--time", &s->time}};
  const char *plain[2];
  int plains = 0, end = 0;
  for (int i = 1; i < count; i++) {
    const char *word = words[i];
    int known = 0;
    if (end || strncmp(word, "--", 2)) {
      if (plains < 2) plain[plains] = word;
      plains++;
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
    if (!strcmp(word, "--rope-type")) {
      const attn_rope_type type = attn_rope_type_of(value);
      known = 1, good = type == ATTN_ROPE_DEFAULT || type == ATTN_ROPE_LLAMA3 ||
                        type == ATTN_ROPE_YARN || type == ATTN_ROPE_LINEAR;
      s->model.rope.type = type;
    }
    if (!known) return fail("there is no option %s", word), 0;
    if (!good) return fail("%s cannot be '%s'", word, value), 0;
    i++;
  }
  if (plains != 2) return fail("usage: generate --heads N [options] MODEL.safetensors PROMPT"), 0;
  if (!s->model.heads) return fail("--heads is missing: the tensors do not tell it"), 0;
  s->model.eps = (float)eps;
  s->seed = (uint64_t)seed;
  s->path = plain[0];
  s->prompt = plain[1];
  return 1;
}

/* ---- tokens */

/* The prompt as tokens, room for strlen(prompt) + 1 of them; their number, 0 after a message. */
static int64_t tokens_of(int64_t *tokens, const settings *s, int64_t vocabulary) {
  int64_t n = 0, id;
  if (s->bos >= vocabulary || s->eos >= vocabulary)
    return fail("the model has tokens 0 to %" PRId64, vocabulary - 1), 0;
  if (s->bos >= 0) tokens[n++] = s->bos;
  if (!s->ids) {
    if (vocabulary < BYTES || vocabulary > BYTES + MARKS)
      return fail("the model has %" PRId64 " tokens, which are no bytes; use --ids", vocabulary), 0;
    for (const char *c = s->prompt; *c; c++) tokens[n++] = (unsigned char)*c;
  } else {
    for (const char *at = s->prompt; at += strspn(at, " ,\n"), *at;) {
      char word[32] = "";
      const size_t length = strcspn(at, " ,\n");
      if (length < sizeof word) memcpy(word, at, length);
      if (!whole(word, 0, vocabulary - 1, &id))
        return fail("the prompt has '%.*s', which is no number from 0 to %" PRId64,
                    (int)(length < 40 ? length : 40), at, vocabulary - 1),
               0;
      tokens[n++] = id;
      at += length;
    }
  }
  if (!n) fail("the prompt is empty");
  return n;
}

/* The next token: the likeliest, or by chance with probabilities exp(logits / temperature), from draw
 * `step` of the seed; -1 if the logits are not finite. */
static int64_t choose(const float *logits, int64_t count, const settings *s, int64_t step) {
  int64_t best = 0, i;
  double sum = 0;
  for (i = 0; i < count; i++) {
    if (!isfinite(logits[i])) return -1;
    if (logits[i] > logits[best]) best = i;
  }
  if (s->temperature == 0) return best;
#define WEIGHT(i) exp(((double)logits[i] - (double)logits[best]) / s->temperature)
  for (i = 0; i < count; i++) sum += WEIGHT(i);
  sum *= (double)(attn_random_u64(s->seed, 0, (uint64_t)step) >> 11) * 0x1p-53;
  for (i = 0; i < count - 1 && (sum -= WEIGHT(i)) >= 0;) i++;
#undef WEIGHT
  return i;
}

/* ---- prompt and steps */

/* 1, or 0 after a message. tokens has the prompt, logits room for a row. */
static int generate(llama *m, const settings *s, const int64_t *tokens, int64_t n, float *logits) {
  const double start = now();
  const char *error = llama_forward(m, tokens, n, logits, 1);
  if (error) return fail("%s", error), 0;
  const double between = now();
  int64_t made = 0;
  for (;;) {
    const int64_t token = choose(logits, m->vocabulary, s, made);
    if (token < 0) return fail("the logits are not finite: are these weights of a model?"), 0;
    if (token == s->eos || (!s->ids && token >= BYTES)) break;
    if (!s->ids)
      putchar((int)token);
    else
      printf("%s%" PRId64, made ? " " : "", token);
    fflush(stdout);
    if (++made == s->tokens) break;
    error = llama_forward(m, &token, 1, logits, 1);
    if (error) return fail("%s", error), 0;
  }
  putchar('\n');
  const int64_t steps = m->len - n;
  const double first = between - start, rest = now() - between;
  if (s->time)
    fprintf(stderr,
            "prefill: %" PRId64
            " tokens in %.3f s, %.1f tokens/s\n"
            "decode: %" PRId64 " steps in %.3f s, %.1f tokens/s\n",
            n, first, (double)n / first, steps, rest, steps ? (double)steps / rest : 0.0);
  if (fflush(stdout) || ferror(stdout)) return fail("the text could not be written"), 0;
  return 1;
}

int main(int count, char **words) {
  settings s = {.tokens = 128, .context = 2048, .bos = -1, .eos = -1, .workers = 1};
  if (!read_settings(&s, count, words)) return 1;
  llama m;
  const char *error = llama_load(&m, s.path, &s.model);
  if (error) return fail("%s: %s", s.path, error), 1;
  int fine = 0;
  int64_t *tokens = malloc((strlen(s.prompt) + 1) * sizeof *tokens);
  float *logits = malloc((size_t)m.out.stride * sizeof *logits);
  const int64_t n = tokens && logits ? tokens_of(tokens, &s, m.vocabulary) : 0;
  if (!tokens || !logits) fail("out of memory");
#ifdef _OPENMP
  m.ctx.parallel_for = attn_parallel_openmp;
  m.ctx.workers = (int)s.workers;
#endif
  if (n > s.context || (n && s.tokens > s.context - n))
    fail("a prompt of %" PRId64 " tokens and %" PRId64 " more exceed the context of %" PRId64
         " tokens (--context)",
         n, s.tokens, s.context);
  else if (n && (error = llama_open(&m, n + s.tokens, n)) != NULL)
    fail("%s", error);
  else if (n)
    fine = generate(&m, &s, tokens, n, logits);
  free(tokens);
  free(logits);
  llama_free(&m);
  return !fine;
}
