/* map.c owns the atom mapper: which atom of a chemical reaction's left side each atom of its product is,
 * read off one attention head of an ALBERT that was trained on reactions (README.md says where it is from).
 *
 *   map [options] FOLDER "CC(=O)O.OCC>>CC(=O)OCC" ...    FOLDER: what map_weights.py has written
 *     --file PATH     reactions, one a line up to a tab (- = standard input)
 *     --pairs         a line for each atom of the product, with its confidence
 *     --svg PATH      a picture of the last reaction's attention and map
 *     --layer N, --head N, --multiplier X    10, 5 and 90, as published
 *     --attention     the head's attention between all tokens, a row a line, and no map
 *     --time          measure reactions a second on every tier
 *
 * It prints each reaction with the numbers of its map, a tab, and the map's confidence; for one that
 * cannot be read ">>" and 0, with the reason on stderr and exit status 1 at the end. */
#define _POSIX_C_SOURCE 200809L /* progress.h */
#define ATTN_IMPLEMENTATION     /* in exactly one file of a program */
#include "attn.h"

#include "atom_map.h"
#include "encoder.h"
#include "map_picture.h"
#include "progress.h"
#include "smiles.h"
#include "wordpiece.h"

#ifdef _OPENMP
#include <omp.h>
#endif

typedef struct options {
  int64_t layer, head;
  double multiplier;
  const char *file, *svg;
  int pairs, attention, time;
} options;

/* The reactions to map; text holds them where they come from a file. */
typedef struct reactions {
  char **text;
  int64_t count;
  char *bytes;
} reactions;

/* The model, and room for what it reads and answers. */
typedef struct mapper {
  encoder model;
  wordpiece words;
  int32_t *ids;     /* [positions] */
  float *attention; /* [heads][n][n] of the last reaction */
} mapper;

static void stop(const char *what, const char *why) {
  fprintf(stderr, "map: %s: %s\n", what, why);
  exit(1);
}

/* Zeroed, and never null. */
static void *take(int64_t count, size_t size) {
  if ((uint64_t)count >= PTRDIFF_MAX / size) stop("memory", "too much of it would be needed");
  void *memory = calloc((size_t)count + 1, size);
  if (!memory) stop("memory", "there is not enough");
  return memory;
}

/* ---- what is asked for */

static int64_t whole_number(const char *option, const char *text) {
  char *end;
  errno = 0;
  const long n = text ? strtol(text, &end, 10) : 0;
  if (!text || end == text || *end || errno || n < 0)
    stop(option, "a number of 0 or more must follow");
  return n;
}

static double factor(const char *option, const char *text) {
  char *end;
  const double x = text ? strtod(text, &end) : 0;
  if (!text || end == text || *end || !(x >= 1 && x <= 1e6))
    stop(option, "a number of 1 to 1000000 must follow");
  return x;
}

static char *read_all(const char *path) {
  FILE *file = strcmp(path, "-") ? fopen(path, "rb") : stdin;
  if (!file) stop(path, strerror(errno));
  size_t room = 1 << 16, used = 0, got;
  char *bytes = take((int64_t)room, 1);
  while ((got = fread(bytes + used, 1, room - used, file)) > 0) {
    used += got;
    if (used < room) continue;
    char *more = room <= PTRDIFF_MAX / 2 ? realloc(bytes, 2 * room + 1) : NULL;
    if (!more) stop("memory", "there is not enough");
    bytes = more;
    room *= 2;
  }
  if (ferror(file)) stop(path, strerror(errno));
  if (file != stdin) fclose(file);
  bytes[used] = 0;
  if (strlen(bytes) != used) stop(path, "it has a zero byte, so it is no text");
  return bytes;
}

/* The lines of a file, each up to a tab; empty ones are left out. */
static reactions read_lines(const char *path) {
  reactions in = {NULL, 0, read_all(path)};
  int64_t lines = 1;
  for (const char *c = in.bytes; *c; c++) lines += *c == '\n';
  in.text = take(lines, sizeof *in.text);
  for (char *line = in.bytes, *next; line; line = next) {
    next = strchr(line, '\n');
    if (next) *next++ = 0;
    line[strcspn(line, "\t\r")] = 0;
    if (*line) in.text[in.count++] = line;
  }
  return in;
}

/* ---- the model */

static void open_model(mapper *map, const char *folder, const options *set) {
  char *path = take((int64_t)strlen(folder) + 16, 1);
  const char *error = encoder_read(&map->model, folder, NULL);
  if (error) stop(folder, error);
  sprintf(path, "%s/vocab.txt", folder);
  if ((error = wordpiece_read(&map->words, path)) != NULL) stop(path, error);
  free(path);
  const encoder *m = &map->model;
  if (map->words.count > m->vocabulary)
    stop(folder, "vocab.txt is longer than the model's vocabulary");
  if (set->layer >= m->layers) stop("--layer", "the model has fewer layers; they count from 0");
  if (set->head >= m->heads) stop("--head", "the model has fewer heads; they count from 0");
  if (m->positions > SMILES_MAX_LENGTH) stop(folder, "the model has too many positions");
  map->ids = take(m->positions, sizeof *map->ids);
#ifdef _OPENMP
  map->model.ctx.parallel_for = attn_parallel_openmp;
  map->model.ctx.workers = omp_get_max_threads();
#else
  map->model.ctx.workers = 1;
#endif
}

static void close_model(mapper *map) {
  encoder_free(&map->model);
  wordpiece_free(&map->words);
  free(map->ids);
  free(map->attention);
}

/* One reaction: its tokens, and the attention [n][n] between them and the two marks around them. */
typedef struct job {
  smiles s;
  int64_t n;
  int unknown; /* tokens that the vocabulary lacks */
  const float *attention;
} job;

/* The numbers of a reaction's tokens. */
static void number_tokens(mapper *map, job *j) {
  smiles *s = &j->s;
  int32_t *ids = map->ids;
  *ids++ = map->words.cls;
  for (int i = 0; i < s->token_count; i++) {
    char *end = s->text + s->tokens[i].at + s->tokens[i].length, kept = *end;
    *end = 0;
    const int32_t id = wordpiece_find(&map->words, s->text + s->tokens[i].at);
    *end = kept;
    *ids++ = id < 0 ? map->words.unk : id;
    j->unknown += id < 0;
  }
  *ids = map->words.sep;
}

/* Reads a reaction and runs the model on it, as far as the layer that is asked for. */
static const char *attend(mapper *map, job *j, const char *text, const options *set) {
  encoder *m = &map->model;
  *j = (job){.unknown = 0};
  const char *error = smiles_read(&j->s, text);
  if (error) return error;
  const int64_t n = j->n = j->s.token_count + 2;
  if (n > m->positions)
    return smiles_fail_(&j->s, "it has %d tokens with [CLS] and [SEP]; the model reads %d", (int)n,
                        (int)m->positions);
  number_tokens(map, j);
  free(map->attention);
  map->attention = take(m->heads * n * n, sizeof *map->attention);
  j->attention = map->attention + set->head * n * n;
  const int32_t length = (int32_t)n;
  const encoder_batch in = {.count = 1,
                            .len = n,
                            .ids = map->ids,
                            .length = &length,
                            .map = map->attention,
                            .map_layer = set->layer};
  error = encoder_embed(m, &in);
  for (int64_t l = 0; l <= set->layer && !error; l++) error = encoder_layer(m, &in, l);
  return error;
}

/* ---- what is printed */

static void print_attention(const float *attention, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    for (int64_t c = 0; c < n; c++)
      printf("%.9g%c", (double)attention[i * n + c], c < n - 1 ? ' ' : '\n');
}

static void print_pairs(const smiles *s, const atom_map *map) {
  printf("\n  product     left side   confidence\n");
  for (int i = 0; i < map->products; i++) {
    const smiles_atom *p = &s->atoms[s->left + i];
    printf("  %3d %-3.*s", i + 1, p->symbol_length, s->text + p->symbol);
    if (map->from[i] < 0) {
      printf("     none\n");
      continue;
    }
    const smiles_atom *r = &s->atoms[map->from[i]];
    printf("  <-   %3d %-3.*s   %.4f\n", map->from[i] + 1, r->symbol_length, s->text + r->symbol,
           map->sure[i]);
  }
}

/* Maps one reaction and prints it; null, or why it cannot be mapped. j is to be released. */
static const char *answer(mapper *m, job *j, const char *text, const options *set, int draw) {
  const smiles *s = &j->s;
  atom_map map;
  const char *error = attend(m, j, text, set), *failed = NULL;
  if (error) return error;
  if (j->unknown)
    fprintf(stderr, "map: %.60s: tokens that become [UNK], as the vocabulary lacks them: %d\n",
            text, j->unknown);
  if (set->attention) {
    print_attention(j->attention, j->n);
    return NULL;
  }
  error = atom_map_make(&map, s, j->attention, set->multiplier);
  if (error) return error;
  int *number = take(s->atom_count, sizeof *number);
  atom_map_numbers(&map, number);
  smiles_print(s, number, stdout);
  printf("\t%.9g\n", map.confidence);
  if (set->pairs) print_pairs(s, &map);
  if (draw) failed = map_picture_write(set->svg, s, &map, number);
  if (failed) stop(set->svg, failed);
  free(number);
  atom_map_free(&map);
  return NULL;
}

/* 1 if a reaction could not be mapped. */
static int answer_all(mapper *m, const reactions *in, const options *set) {
  int failed = 0;
  progress bar = progress_begin("mapping", "reactions", in->count);
  for (int64_t i = 0; i < in->count; i++) {
    job j;
    progress_to(&bar, i);
    const char *error = answer(m, &j, in->text[i], set, set->svg && i == in->count - 1);
    if (error) {
      progress_end(&bar);
      fprintf(stderr, "map: reaction %ld: %s\n", (long)i + 1, error);
      if (!set->attention) printf(">>\t0\n");
      failed = 1;
    }
    smiles_free(&j.s);
  }
  progress_end(&bar);
  return failed;
}

/* Reactions a second of each tier that runs here, the best of passes that take three seconds. */
static void measure(mapper *m, const reactions *in, const options *set) {
  for (int isa = 1; isa < ATTN_ISA_COUNT; isa++) {
    if (attn_isa_status((attn_isa)isa) != ATTN_ISA_OK) continue;
    m->model.ctx.isa = (attn_isa)isa;
    double best = 1e30, tokens = 0;
    for (double start = progress_now(), last = start; last - start < 3;) {
      const double before = last;
      tokens = 0;
      for (int64_t i = 0; i < in->count; i++) {
        job j;
        atom_map map;
        const char *error = attend(m, &j, in->text[i], set);
        if (!error) error = atom_map_make(&map, &j.s, j.attention, set->multiplier);
        if (error) stop(in->text[i], error);
        tokens += (double)j.n;
        atom_map_free(&map);
        smiles_free(&j.s);
      }
      last = progress_now();
      best = fmin(best, last - before);
    }
    printf("%-7s %7.1f reactions/s, %8.0f tokens/s, workers: %d\n", attn_isa_name((attn_isa)isa),
           (double)in->count / best, tokens / best, m->model.ctx.workers);
  }
}

int main(int argc, char **argv) {
  options set = {.layer = 10, .head = 5, .multiplier = 90};
  int at = 1;
  for (; at < argc && !strncmp(argv[at], "--", 2); at++) {
    const char *option = argv[at];
    if (!strcmp(option, "--layer"))
      set.layer = whole_number(option, argv[++at]);
    else if (!strcmp(option, "--head"))
      set.head = whole_number(option, argv[++at]);
    else if (!strcmp(option, "--multiplier"))
      set.multiplier = factor(option, argv[++at]);
    else if (!strcmp(option, "--file") || !strcmp(option, "--svg")) {
      if (!argv[++at]) stop(option, "a path must follow");
      *(option[2] == 'f' ? &set.file : &set.svg) = argv[at];
    } else if (!strcmp(option, "--pairs"))
      set.pairs = 1;
    else if (!strcmp(option, "--attention"))
      set.attention = 1;
    else if (!strcmp(option, "--time"))
      set.time = 1;
    else
      stop(option, "no such option");
  }
  if (argc - at < 1 || (argc - at < 2) != (set.file != NULL)) {
    fprintf(stderr,
            "map: usage: map [options] FOLDER REACTION ..., or --file PATH for the reactions\n");
    return 1;
  }
  reactions in = {argv + at + 1, argc - at - 1, NULL};
  if (set.file) in = read_lines(set.file);
  if (!in.count) stop(set.file, "there is no reaction in it");
  mapper m = {.ids = NULL};
  open_model(&m, argv[at], &set);
  int failed = 0;
  if (set.time)
    measure(&m, &in, &set);
  else
    failed = answer_all(&m, &in, &set);
  if (fflush(stdout) || ferror(stdout)) stop("the output", "it could not be written");
  if (set.file) free(in.text);
  free(in.bytes);
  close_model(&m);
  return failed;
}
