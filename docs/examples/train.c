/* train.c owns the example of training: a small language model learns from texts, shows how it goes, and writes a
 * paragraph; or a model that there is goes on learning. trainer.h has the model, its gradients and the step.
 *
 *   train [options] FOLDER TEXT ...
 *
 *   FOLDER              where the model goes, as generate.c and transformers read it: config.json, model.safetensors;
 *                       and loss.svg, and checkpoint.safetensors while it learns
 *   --from MODEL        begins with this model (llama, mistral, qwen2; tokens are its tokenizer.json's, or bytes)
 *   --resume            goes on with the checkpoint in FOLDER: bit for bit as if it had not been interrupted
 *   --width N, --layers N, --heads N, --kv-heads N, --hidden N: of a model to begin with, 128, 5, 4, 2, 344; one that
 *                       there is must have them
 *   --steps N           640; --batch N sequences each, 8, of --length N tokens, 256
 *   --rate X            0.003, reached after a twentieth of the steps, a tenth of it at the end, by a cosine
 *   --decay X           of matrices, 0.1
 *   --seed N            of weights and batches, 0
 *   --window N          sparse attention, as Longformer's: each token sees the N before it,
 *   --globals N           and the first N of all
 *   --every N           steps between two looks at what is held out and two checkpoints, 50
 *   --workers N         threads; as many as there are cores
 *   --prompt TEXT       what the paragraph begins with; --write N: its tokens, 400
 *   --stop N            stops after step N, as ^C would
 *   --gradients         only writes FOLDER/gradients.safetensors, of the first batch
 *
 * Steps, losses and weights are functions of the texts and the options, but for --workers, on every processor with
 * AVX2, AVX-512 or NEON. */
#define _GNU_SOURCE /* pool.h */
#define ATTN_IMPLEMENTATION
#include "batch.h"
#include "pool.h"

#include "corpus.h"
#include "loss_plot.h"
#include "progress.h"
#include "trainer_files.h"

#include <signal.h>
#include <sys/stat.h>

enum { HELD_OUT_BATCHES = 4 };

typedef struct settings {
  int64_t width, layers, heads, kv_heads, hidden, steps, batch, length, seed, window, globals,
      every, workers, write, stop;
  double rate, decay;
  int resume, gradients;
  const char *from, *prompt, *folder;
  char **texts;
  int64_t count;
} settings;

static volatile sig_atomic_t interrupted;
static void interrupt(int number) {
  interrupted = number;
  signal(number, SIG_DFL); /* the second one ends it at once */
}

static int fail(const char *format, ...) {
  va_list arguments;
  fputs("train: ", stderr);
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  putc('\n', stderr);
  return 0;
}

/* ---- the command line; 1, or 0 after a message */

/* 0: not asked for. */
static int64_t size_of(int64_t asked, int64_t usual) { return asked ? asked : usual; }

static int number_of(const char *text, double low, double high, int whole, double *x) {
  char *end;
  *x = strtod(text, &end);
  return end != text && !*end && *x >= low && *x <= high && (!whole || *x == floor(*x));
}

static int read_settings(settings *s, int count, char **words) {
  const struct {
    const char *name;
    int64_t *n;
    double *x;
    const char **text;
    int *flag;
    double low, high;
  } options[] = {{"--width", .n = &s->width, .low = 2, .high = 8192},
                 {"--layers", .n = &s->layers, .low = 1, .high = MODEL_MAX_LAYERS},
                 {"--heads", .n = &s->heads, .low = 1, .high = 1024},
                 {"--kv-heads", .n = &s->kv_heads, .low = 1, .high = 1024},
                 {"--hidden", .n = &s->hidden, .low = 1, .high = 1 << 20},
                 {"--steps", .n = &s->steps, .low = 1, .high = 1 << 24},
                 {"--batch", .n = &s->batch, .low = 1, .high = 4096},
                 {"--length", .n = &s->length, .low = 1, .high = 1 << 20},
                 {"--seed", .n = &s->seed, .low = 0, .high = INT32_MAX},
                 {"--window", .n = &s->window, .low = 1, .high = INT32_MAX},
                 {"--globals", .n = &s->globals, .low = 0, .high = 4096},
                 {"--every", .n = &s->every, .low = 1, .high = INT32_MAX},
                 {"--workers", .n = &s->workers, .low = 1, .high = POOL_THREADS},
                 {"--write", .n = &s->write, .low = 0, .high = 1 << 20},
                 {"--stop", .n = &s->stop, .low = 1, .high = 1 << 24},
                 {"--rate", .x = &s->rate, .low = 1e-9, .high = 10},
                 {"--decay", .x = &s->decay, .low = 0, .high = 10},
                 {"--from", .text = &s->from},
                 {"--prompt", .text = &s->prompt},
                 {"--resume", .flag = &s->resume},
                 {"--gradients", .flag = &s->gradients}};
  for (int i = 1; i < count; i++) {
    const size_t all = sizeof options / sizeof *options;
    size_t which = 0;
    if (strncmp(words[i], "--", 2)) {
      if (s->folder)
        s->texts[s->count++] = words[i];
      else
        s->folder = words[i];
      continue;
    }
    while (which < all && strcmp(words[i], options[which].name)) which++;
    if (which == all) return fail("there is no option %s", words[i]);
    if (options[which].flag) {
      *options[which].flag = 1;
      continue;
    }
    const char *value = i + 1 < count ? words[i + 1] : "";
    double x = 0;
    const int good = options[which].text ? *value != 0
                                         : number_of(value, options[which].low, options[which].high,
                                                     options[which].n != NULL, &x);
    if (!good) return fail("%s cannot be '%s'", words[i], value);
    if (options[which].text) *options[which].text = value;
    if (options[which].n) *options[which].n = (int64_t)x;
    if (options[which].x) *options[which].x = x;
    i++;
  }
  if (!s->folder || !s->count) return fail("usage: train [options] FOLDER TEXT ...");
  const int64_t heads = size_of(s->heads, 4), width = size_of(s->width, 128);
  if (!s->from && !s->resume &&
      (width % heads || width / heads % 2 || heads % size_of(s->kv_heads, 2)))
    return fail("--heads must divide --width into even numbers, and --kv-heads --heads");
  return s->globals < s->length || fail("--globals must be less than --length");
}

/* ---- what the training is of */

/* A window and tokens that all see, and that see all that is before them, as a schedule for every layer. */
static int open_schedule(trainer *t, attn_schedule *schedule, const settings *s) {
  static int32_t first[4096];
  for (int32_t i = 0; i < s->globals; i++) first[i] = i;
  const attn_pattern parts[] = {attn_pattern_band(s->window, 0),
                                attn_pattern_global(first, s->globals)};
  attn_pattern both = attn_pattern_union(parts, s->globals ? 2 : 1);
  both.causal = 1;
  if (!work_done(&t->w, attn_schedule_build(schedule, &both, t->config.heads, s->length, s->length,
                                            NULL, &t->w.ctx)))
    return 0;
  for (int64_t i = 0; i < t->config.layers; i++) t->layers[i].attention.schedule = schedule;
  return 1;
}

static int64_t bits_of(double x) {
  int64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static int64_t hash_of(const corpus *c) {
  uint64_t hash = 14695981039346656037u; /* FNV-1a over tokens */
  for (int part = 0; part < 2; part++)
    for (int64_t i = 0; i < c->count[part]; i++)
      hash = (hash ^ (uint32_t)c->tokens[part][i]) * 1099511628211u;
  return (int64_t)hash;
}

/* ---- learning */

typedef struct training {
  trainer t;
  corpus text;
  trainer_run run;
  attn_schedule schedule; /* of sparse attention */
  int64_t *tokens;        /* of a batch */
  int32_t *targets;
} training;

/* What was asked for is what the model that there is has. */
static int same_sizes(work *w, const settings *s, const model_config *c, const char *source) {
  const struct {
    const char *name;
    int64_t asked, has;
  } sizes[] = {{"--width", s->width, c->width},
               {"--layers", s->layers, c->layers},
               {"--heads", s->heads, c->heads},
               {"--kv-heads", s->kv_heads, c->kv_heads},
               {"--hidden", s->hidden, c->hidden}};
  for (int i = 0; i < 5; i++)
    if (sizes[i].asked && sizes[i].asked != sizes[i].has)
      return work_fail(w, "%s has another %s: %" PRId64, source, sizes[i].name, sizes[i].has);
  return 1;
}

static int make_folder(work *w, const settings *s) {
  return !mkdir(s->folder, 0777) || errno == EEXIST ||
         work_fail(w, "%s: %s", s->folder, strerror(errno));
}

/* The model and the texts: FOLDER's own to go on with, MODEL's, or random weights. FOLDER is changed when all else is
 * right. */
static int open_model(training *g, const settings *s, model_files *files) {
  trainer *t = &g->t;
  work *w = &t->w;
  model_config *c = &t->config;
  const char *source = s->resume ? s->folder : s->from;
  if (source) {
    if (!model_config_read(w, c, source) || !same_sizes(w, s, c, source) ||
        !model_files_open(w, files, source))
      return 0;
    c->tied = !trainer_has_head(files);
  }
  if (!corpus_read(w, &g->text, s->texts, s->count, source, source ? c->vocabulary : CORPUS_BYTES,
                   s->length))
    return 0;
  if (source)
    return trainer_open(t, s->batch, s->length) && trainer_load(t, files) &&
           (s->resume || (make_folder(w, s) && trainer_copy(w, source, s->folder, "config.json") &&
                          trainer_copy(w, source, s->folder, "tokenizer.json")));
  if (!make_folder(w, s) ||
      !trainer_new_config(w, s->folder, size_of(s->width, 128), size_of(s->layers, 5),
                          size_of(s->heads, 4), size_of(s->kv_heads, 2), size_of(s->hidden, 344),
                          s->length > 1024 ? s->length : 1024) ||
      !model_config_read(w, c, s->folder) || !trainer_open(t, s->batch, s->length))
    return 0;
  trainer_random(t, (uint64_t)s->seed);
  return 1;
}

static int judge(training *g, double *loss) {
  const trainer *t = &g->t;
  *loss = 0;
  for (int64_t i = 0; i < HELD_OUT_BATCHES; i++) {
    double part;
    corpus_batch(&g->text, CORPUS_HELD_OUT, 0, i, HELD_OUT_BATCHES, t->batch, t->length, g->tokens,
                 g->targets);
    if (!trainer_loss(&g->t, &part, g->tokens, g->targets, 0)) return 0;
    *loss += part / HELD_OUT_BATCHES;
  }
  return 1;
}

static double rate_of(const settings *s, int64_t step) {
  const double warm = ceil((double)s->steps / 20), x = (double)step;
  if (x < warm) return s->rate * x / warm;
  const double part = (x - warm) / ((double)s->steps - warm + 1);
  return s->rate * (0.1 + 0.9 * 0.5 * (1 + cos(3.14159265358979323846 * part)));
}

static int save(training *g, const settings *s) {
  char path[4096];
  snprintf(path, sizeof path, "%s/loss.svg", s->folder);
  const char *error = loss_plot_write(path, g->run.learned, g->run.held_out, g->run.steps);
  if (error) return work_fail(&g->t.w, "%s: %s", path, error);
  return trainer_save(&g->t, s->folder) && trainer_checkpoint(&g->t, &g->run, s->folder);
}

static int learn(training *g, const settings *s) {
  trainer *t = &g->t;
  trainer_run *run = &g->run;
  const int64_t N = t->batch * t->length, begun = run->step;
  const double start = progress_now();
  char doing[64];
  progress bar = progress_begin(doing, "tokens", (s->steps - begun) * N);
  while (run->step < s->steps && !interrupted && (run->step == begun || run->step != s->stop)) {
    const int64_t step = ++run->step;
    double loss, norm, held_out = NAN;
    corpus_batch(&g->text, CORPUS_LEARNED, (uint64_t)s->seed, step, s->steps, t->batch, t->length,
                 g->tokens, g->targets);
    if (!trainer_loss(t, &loss, g->tokens, g->targets, 1) ||
        !trainer_step(t, step, rate_of(s, step), s->decay, &norm))
      return 0;
    const int look = step % s->every == 0 || step == s->steps;
    if (look && !judge(g, &held_out)) return 0;
    run->learned[step - 1] = (float)loss;
    run->held_out[step - 1] = (float)held_out;
    snprintf(doing, sizeof doing, "step %" PRId64 ", loss %.3f", step, loss);
    progress_to(&bar, (step - begun) * N);
    if (!look) continue;
    const double rate = (double)((step - begun) * N) / (progress_now() - start);
    progress_end(&bar);
    printf("step %5" PRId64 " of %" PRId64
           "  loss %.4f  held out %.4f  %.0f tokens/s  %.0f s left\n",
           step, s->steps, loss, held_out, rate, (double)((s->steps - step) * N) / rate);
    fflush(stdout);
    if (!save(g, s)) return 0;
  }
  progress_end(&bar);
  return 1;
}

/* ---- writing */

typedef struct pen {
  const bpe *pairs; /* null: tokens are bytes */
} pen;

static void put(void *user, int64_t text, int64_t token) {
  const bpe *pairs = ((const pen *)user)->pairs;
  char bytes[1024];
  (void)text;
  if (token < 0)
    putchar('\n');
  else if (!pairs)
    putchar((int)token);
  else if (pairs->pieces[token] && strlen(pairs->pieces[token]) < sizeof bytes)
    fwrite(bytes, 1, bpe_bytes(pairs, (int32_t)token, bytes), stdout);
  fflush(stdout);
}

/* The model that was saved goes on from the prompt: the decoder of generate.c. */
static int write_text(training *g, const settings *s) {
  decoder m;
  sampler choice;
  pen hand = {g->text.has_pairs ? &g->text.pairs : NULL};
  int32_t *ids = NULL;
  int64_t n = (int64_t)strlen(s->prompt);
  const char *error = hand.pairs ? bpe_encode(&g->text.pairs, s->prompt, &ids, &n) : NULL;
  if (error || (error = decoder_load(&m, s->folder, MODEL_WEIGHTS_F32)) != NULL)
    return free(ids), work_fail(&g->t.w, "%s", error);
  const int64_t room = m.config.context - n;
  batch_text text = {.limit = s->write < room ? s->write : room, .prompt = n, .len = n, .seed = 1};
  batch b = {.model = &m,
             .choice = &choice,
             .piece = n,
             .width = 1,
             .texts = &text,
             .count = 1,
             .made = put,
             .user = &hand,
             .now = progress_now,
             .first_mark = hand.pairs ? INT64_MAX : CORPUS_BYTES};
  m.w.ctx = g->t.w.ctx;
  m.w.ctx.workspace = NULL;
  m.w.ctx.workspace_size = 0;
  text.tokens = text.limit > 0 && n ? malloc((size_t)(n + s->write) * sizeof *text.tokens) : NULL;
  for (int64_t i = 0; text.tokens && i < n; i++)
    text.tokens[i] = ids ? ids[i] : (unsigned char)s->prompt[i];
  const sampling how = {.temperature = 0.6, .top_p = 0.9};
  if (!text.tokens || !sampler_open(&choice, &how, m.config.vocabulary))
    error = "there is no room for a paragraph";
  if (!error) {
    printf("%s", s->prompt);
    error = decoder_open(&m, 1, n + text.limit + 1, n + 1);
    if (!error) error = batch_run(&b);
    sampler_free(&choice);
  }
  if (error) work_fail(&g->t.w, "%s", error);
  free(text.tokens);
  free(ids);
  decoder_free(&m);
  return !error;
}

/* ---- all together */

static int train(training *g, const settings *s) {
  static const char *const names[TRAINER_SETTINGS] = {
      "--steps", "--batch",  "--length",  "--rate",  "--decay",
      "--seed",  "--window", "--globals", "--every", "the texts"};
  trainer *t = &g->t;
  trainer_run *run = &g->run;
  model_files files = {0};
  const int opened = open_model(g, s, &files);
  model_files_free(&files);
  if (!opened || (s->window && !open_schedule(t, &g->schedule, s))) return 0;
  const int64_t N = s->batch * s->length;
  const int64_t now[TRAINER_SETTINGS] = {
      s->steps, s->batch,  s->length,  bits_of(s->rate), bits_of(s->decay),
      s->seed,  s->window, s->globals, s->every,         hash_of(&g->text)};
  memcpy(run->settings, now, sizeof now);
  run->steps = s->steps;
  run->learned = work_floats(&t->w, 1, s->steps);
  run->held_out = work_floats(&t->w, 1, s->steps);
  g->tokens = work_take(&t->w, N, sizeof *g->tokens);
  g->targets = work_take(&t->w, N, sizeof *g->targets);
  if (!run->learned || !run->held_out || !g->tokens || !g->targets) return 0;
  for (int64_t i = 0; i < s->steps; i++) run->learned[i] = run->held_out[i] = NAN;
  if (s->resume && !trainer_resume(t, run, s->folder, names)) return 0;
  printf("%" PRId64 " weights, %" PRId64 " tokens to learn from, %" PRId64 " held out, %" PRId64
         " a step\n",
         t->numbers, g->text.count[0], g->text.count[1], N);
  if (s->gradients) {
    double loss;
    corpus_batch(&g->text, CORPUS_LEARNED, (uint64_t)s->seed, 1, s->steps, s->batch, s->length,
                 g->tokens, g->targets);
    return trainer_loss(t, &loss, g->tokens, g->targets, 1) && printf("loss %.9g\n", loss) > 0 &&
           trainer_save_gradients(t, s->folder) && trainer_save(t, s->folder);
  }
  double loss;
  if (!judge(g, &loss)) return 0;
  printf("step %5" PRId64 " of %" PRId64 "  held out %.4f\n", run->step, s->steps, loss);
  if (!learn(g, s)) return 0;
  if (run->step < s->steps && !save(g, s)) return 0;
  if (run->step < s->steps)
    return printf("stopped after step %" PRId64 "; --resume goes on\n", run->step);
  printf("the model is in %s, its losses in %s/loss.svg\n", s->folder, s->folder);
  return !s->write || (puts("it writes:\n") >= 0 && write_text(g, s));
}

int main(int count, char **words) {
  settings s = {.steps = 640,
                .batch = 8,
                .length = 256,
                .every = 50,
                .write = 400,
                .rate = 0.003,
                .decay = 0.1,
                .prompt = "The "};
  training g = {.run = {.step = 0}};
  pool threads;
  s.workers = sysconf(_SC_NPROCESSORS_ONLN);
  s.texts = calloc((size_t)count, sizeof *s.texts);
  if (!s.texts || !read_settings(&s, count, words)) return free(s.texts), 1;
  signal(SIGINT, interrupt);
  signal(SIGTERM, interrupt);
  pool_open(&threads, (int)s.workers);
  g.t.w.ctx =
      (attn_ctx){.parallel_for = pool_run, .parallel_user = &threads, .workers = (int)s.workers};
  int fine = train(&g, &s);
  if (!fine) fail("%s", g.t.w.error);
  if (fine && (fflush(stdout) || ferror(stdout))) fine = fail("the text could not be written");
  pool_close(&threads);
  attn_schedule_free(&g.schedule);
  corpus_free(&g.text);
  trainer_free(&g.t);
  free(s.texts);
  return !fine;
}
