/* test_train.c owns the check of trainer.h's gradients: along a random direction in one weight after the other, and in
 * all, the loss changes as the gradient says. Models differ in what trainer.h knows: grouped heads, a head of its own,
 * biases, windows, scaled rotary frequencies, a schedule.
 *
 *   test_train FOLDER    a folder for a config.json
 *   test_train run ...   train.c itself */
#define main train_main
#include "train.c"
#undef main

enum { SEQUENCES = 3, LENGTH = 21, TOKENS = SEQUENCES * LENGTH };

typedef struct kind {
  const char *name, *fields; /* of config.json */
  int64_t window;            /* of a schedule; 0 = none */
} kind;

static const kind kinds[] = {
    {"tied, grouped heads",
     "\"model_type\": \"llama\", \"num_key_value_heads\": 2, \"tie_word_embeddings\": true", 0},
    {"a head of its own, biases",
     "\"model_type\": \"llama\", \"tie_word_embeddings\": false, \"attention_bias\": true, "
     "\"mlp_bias\": true",
     0},
    {"windows", "\"model_type\": \"mistral\", \"sliding_window\": 5, \"tie_word_embeddings\": true",
     0},
    {"biases of q, k and v, gelu",
     "\"model_type\": \"qwen2\", \"head_dim\": 10, \"hidden_act\": \"gelu\"", 0},
    {"yarn, odd sizes",
     "\"model_type\": \"llama\", \"head_dim\": 14, \"num_key_value_heads\": 1, "
     "\"rope_parameters\": {\"rope_type\": "
     "\"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 8, \"rope_theta\": 10000.0}",
     0},
    {"a schedule",
     "\"model_type\": \"llama\", \"num_key_value_heads\": 2, \"tie_word_embeddings\": true", 4}};

static int failures;
static void check(int good, const char *format, ...) {
  va_list arguments;
  if (good) return;
  failures++;
  fputs("FAILED: train: ", stderr);
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  putc('\n', stderr);
}

static void config_of(const kind *k, const char *folder) {
  char path[4096];
  snprintf(path, sizeof path, "%s/config.json", folder);
  FILE *file = fopen(path, "wb");
  if (!file) exit((perror(path), 1));
  fprintf(file,
          "{%s, \"vocab_size\": 61, \"hidden_size\": 36, \"num_hidden_layers\": 2, "
          "\"num_attention_heads\": 6, "
          "\"intermediate_size\": 44, \"max_position_embeddings\": 64}",
          k->fields);
  fclose(file);
}

/* Weights of sizes at which every part matters. */
static void spread(trainer *t) {
  float *to = t->weights;
  for (int i = 0; i < t->parts_count; i++) {
    const safetensors_part *part = &t->parts[i];
    const double size = !part->rows                   ? 0.3
                        : strstr(part->name, "embed") ? 1
                                                      : 1.2 / sqrt((double)part->columns);
    for (int64_t j = 0; j < (part->rows ? part->rows : 1) * part->columns; j++)
      *to++ = (float)(size * attn_random_normal(1, (uint64_t)i, (uint64_t)j) +
                      (!part->rows && strstr(part->name, "norm") ? 1 : 0));
  }
}

/* What the loss changes along a direction in numbers first .. first + n - 1, by its values there and by the gradient. */
static void change(trainer *t, const char *what, int64_t first, int64_t n, const int64_t *tokens,
                   const int32_t *targets, const float *start, const float *gradient) {
  double size = 0, expected = 0, loss[2] = {0}, length = 0;
  for (int64_t j = first; j < first + n; j++) size += (double)start[j] * start[j];
  size = 0.01 * sqrt(size / (double)n); /* of a number's change */
  for (int side = 0; side < 2; side++) {
    expected = length = 0;
    for (int64_t j = first; j < first + n; j++) {
      const float moved =
          (float)(start[j] + (side ? 1 : -1) * size * attn_random_normal(2, 0, (uint64_t)j));
      const double step =
          (side ? 1 : -1) * ((double)moved - start[j]); /* what rounding left of it */
      t->weights[j] = moved;
      expected += 2 * step * gradient[j];
      length += 4 * step * step * gradient[j] * gradient[j];
    }
    if (!trainer_loss(t, &loss[side], tokens, targets, 0))
      exit((fprintf(stderr, "%s\n", t->w.error), 1));
  }
  memcpy(t->weights, start, (size_t)t->numbers * sizeof *start);
  const double got = loss[1] - loss[0], bound = 0.03 * sqrt(length) + 4e-6;
  check(fabs(got - expected) < bound, "%s: the loss changes by %.9g, not by %.9g +- %.2g", what,
        got, expected, bound);
}

static void check_kind(const kind *k, const char *folder) {
  trainer t = {.layers = NULL};
  int64_t tokens[TOKENS];
  int32_t targets[TOKENS];
  int32_t first[] = {0, 1};
  double loss, again;
  attn_schedule schedule = {0};
  config_of(k, folder);
  if (!model_config_read(&t.w, &t.config, folder)) exit((fprintf(stderr, "%s\n", t.w.error), 1));
  if (t.config.tied < 0) t.config.tied = 0;
  if (!trainer_open(&t, SEQUENCES, LENGTH)) exit((fprintf(stderr, "%s\n", t.w.error), 1));
  if (k->window) {
    const attn_pattern parts[] = {attn_pattern_band(k->window, 0), attn_pattern_global(first, 2)};
    attn_pattern both = attn_pattern_union(parts, 2);
    both.causal = 1;
    check(attn_schedule_build(&schedule, &both, t.config.heads, LENGTH, LENGTH, NULL, NULL) ==
              ATTN_OK,
          "no schedule");
    for (int64_t i = 0; i < t.config.layers; i++) t.layers[i].attention.schedule = &schedule;
  }
  spread(&t);
  for (int i = 0; i < TOKENS; i++) { /* some tokens stand often, some never */
    tokens[i] = attn_random_below(3, 0, (uint64_t)i, i % 2 ? 61 : 5);
    targets[i] = (int32_t)attn_random_below(3, 1, (uint64_t)i, 61);
  }
  if (!trainer_loss(&t, &loss, tokens, targets, 1) || !trainer_loss(&t, &again, tokens, targets, 0))
    exit((fprintf(stderr, "%s\n", t.w.error), 1));
  check(loss == again, "%s: the loss is %.17g with gradients and %.17g without", k->name, loss,
        again);
  float *start = malloc((size_t)t.numbers * sizeof *start),
        *gradient = malloc((size_t)t.numbers * sizeof *start);
  if (!start || !gradient) exit(1);
  memcpy(start, t.weights, (size_t)t.numbers * sizeof *start);
  memcpy(gradient, t.gradients, (size_t)t.numbers * sizeof *start);
  for (int64_t i = 0, at = 0; i < t.parts_count; i++) {
    char what[200];
    const int64_t n = (t.parts[i].rows ? t.parts[i].rows : 1) * t.parts[i].columns;
    double all = 0;
    snprintf(what, sizeof what, "%s: %s", k->name, t.parts[i].name);
    for (int64_t j = at; j < at + n; j++) all += fabs((double)gradient[j]);
    check(all > 0 || strstr(what, "k_proj.bias") != NULL, "%s has no gradient", what);
    change(&t, what, at, n, tokens, targets, start, gradient);
    at += n;
  }
  attn_schedule_free(&schedule);
  free(start);
  free(gradient);
  trainer_free(&t);
}

int main(int count, char **words) {
  if (count > 1 && !strcmp(words[1], "run")) return train_main(count - 1, words + 1);
  if (count != 2) return fputs("usage: test_train FOLDER\n", stderr), 1;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) check_kind(&kinds[i], words[1]);
  if (!failures)
    printf("train: %d models' gradients are right\n", (int)(sizeof kinds / sizeof *kinds));
  return failures != 0;
}
