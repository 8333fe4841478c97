/* tests/test_catalogue.c owns docs/catalogue.md as a promise: the functions, tests and benchmarks
 * it names exist, and no mechanism is tested without standing in it. Also the oracle's own
 * conversions, which must be right before anything else is judged by them. */

#include <dirent.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "list.h"
#include "modes.h"

/* A whole file as a string; "" when it is not there. */
static char *slurp(const char *path) {
  FILE *f = fopen(path, "rb");
  if (!f) return memset(test_mem(1), 0, 1);
  fseek(f, 0, SEEK_END);
  long size = ftell(f);
  if (size < 0) size = 0;
  rewind(f);
  char *text = test_mem((size_t)size + 1);
  size_t got = fread(text, 1, (size_t)size, f);
  text[got] = 0;
  fclose(f);
  return text;
}

/* Whether a file, or one in a folder and its subfolders, has `quoted` before a slash or a quote. */
static int stands_in(const char *path, const char *quoted) {
  int found = 0;
  DIR *dir = opendir(path);
  if (!dir) {
    for (const char *at = slurp(path); (at = strstr(at, quoted)); at++) {
      char next = at[strlen(quoted)];
      found |= next == '/' || next == '"';
    }
    return found;
  }
  for (struct dirent *entry; !found && (entry = readdir(dir));) {
    char inner[600];
    if (entry->d_name[0] == '.') continue;
    snprintf(inner, sizeof inner, "%.300s/%s", path, entry->d_name);
    found = stands_in(inner, quoted);
  }
  closedir(dir);
  return found;
}

/* Whether some source file under bench/ names the benchmark. */
static int benchmark_exists(const char *name) {
  char quoted[80];
  snprintf(quoted, sizeof quoted, "\"%s", name);
  return stands_in("bench", quoted);
}

static int test_exists(const char *pattern) {
  for (int n = 0; test_name(n); n++) {
    if (fnmatch(pattern, test_name(n), 0) == 0) return 1;
  }
  return 0;
}

/* Declared, that is: the name stands before a parenthesis in a line with ATTN_DEF. */
static int function_exists(const char *header, const char *name) {
  char call[80];
  snprintf(call, sizeof call, " %s(", name);
  for (const char *at = header; (at = strstr(at, call)); at++) {
    const char *line = at;
    while (line > header && line[-1] != '\n') line--;
    if (strncmp(line, "ATTN_DEF", 8) == 0) return 1;
  }
  return 0;
}

enum { COLUMNS = 8, ID = 0, FUNCTION = 2, TEST = 5, BENCHMARK = 6, GRADIENT = 7 };

/* "yes:" and calls that there are, "by parts", "no:" and why, or "-" for what is a gradient or learns nothing. */
static int gradient_holds(const char *header, char *cell) {
  char *bar = strchr(cell, '|');
  if (bar) *bar = 0;
  const char *said = cell + strspn(cell, " ");
  const int yes = strncmp(said, "yes: ", 5) == 0, plain = strncmp(said, "- ", 2) == 0;
  if (!yes && !plain && strncmp(said, "by parts", 8) && strncmp(said, "no: ", 4)) return 0;
  int calls = 0;
  for (char *word = strtok(cell, " ,:;`()"); word; word = strtok(NULL, " ,:;`()"))
    if (strncmp(word, "attn_", 5) == 0) {
      if (!function_exists(header, word)) return 0;
      calls++;
    }
  return !yes || calls;
}

void api_catalogue(void **state) {
  (void)state;
  char *text = slurp("docs/catalogue.md"), *header = slurp("attn.h");
  char ids[256][8];
  int rows = 0, wrong = 0;
  if (!*text) fail_msg("%s", "docs/catalogue.md is not here: run from the root of the project");
  char *rest = text;
  while (rest && *rest) {
    char *line = rest;
    rest = strchr(rest, '\n');
    if (rest) *rest++ = 0;
    if (line[0] != '|' || strchr("-: ", line[1]) == NULL) continue;
    char *cells[COLUMNS + 1] = {0};
    int count = 0;
    for (char *bar = line; bar && count < COLUMNS; bar = strchr(bar, '|')) {
      *bar++ = 0;
      cells[count++] = bar;
    }
    if (count < COLUMNS || strstr(cells[ID], "id") || strstr(cells[ID], "--")) continue;
    assert_true(rows < 256);
    sscanf(cells[ID], "%7s", ids[rows++]);
    if (!gradient_holds(header, cells[GRADIENT])) {
      print_error("catalogue, row %s: what it says of gradients does not hold\n", ids[rows - 1]);
      wrong++;
    }
    for (int column = FUNCTION; column < GRADIENT; column++) {
      if (column != FUNCTION && column != TEST && column != BENCHMARK) continue;
      int names = 0;
      for (char *word = strtok(cells[column], " ,`|"); word; word = strtok(NULL, " ,`|")) {
        int ok = column == FUNCTION ? function_exists(header, word)
                 : column == TEST   ? test_exists(word)
                                    : benchmark_exists(word);
        names++;
        if (ok) continue;
        print_error("catalogue, row %s: no such %s: %s\n", ids[rows - 1],
                    column == FUNCTION ? "function"
                    : column == TEST   ? "test"
                                       : "benchmark",
                    word);
        wrong++;
      }
      if (names) continue;
      print_error("catalogue, row %s: column %d is empty\n", ids[rows - 1], column);
      wrong++;
    }
  }
  for (int n = 0; test_name(n); n++) {
    const char *name = test_name(n);
    if (name[0] < 'A' || name[0] > 'L') continue;
    int known = 0;
    for (int r = 0; r < rows; r++) {
      size_t length = strlen(ids[r]);
      known |= strncmp(name, ids[r], length) == 0 && name[length] == '_';
    }
    if (known) continue;
    print_error("catalogue: no row for the test %s\n", name);
    wrong++;
  }
  print_message("           %d rows\n", rows);
  assert_true(rows > 0);
  assert_int_equal(wrong, 0);
}

void api_oracle_conversions(void **state) {
  (void)state;
  static const struct {
    double x;
    uint16_t f16, bf16;
  } known[] = {
      {0, 0x0000, 0x0000},
      {-0.0, 0x8000, 0x8000},
      {1, 0x3C00, 0x3F80},
      {-2, 0xC000, 0xC000},
      {65504, 0x7BFF, 0x4780},
      {65519.99, 0x7BFF, 0x4780},
      {65520, 0x7C00, 0x4780},
      {1.0009765625, 0x3C01, 0x3F80},
      {1.00048828125, 0x3C00, 0x3F80},
      {1.00146484375, 0x3C02, 0x3F80},
      {1.00390625, 0x3C04, 0x3F80},
      {1.01171875, 0x3C0C, 0x3F82},
      {1e-8, 0x0000, 0x322C},
      {5.9604644775390625e-8, 0x0001, 0x3380},
      {2.98023223876953125e-8, 0x0000, 0x3300},
      {8.94069671630859375e-8, 0x0002, 0x33C0},
      {6.097555160522461e-5, 0x03FF, 0x3880},
      {6.103515625e-5, 0x0400, 0x3880},
      {3.4e38, 0x7C00, 0x7F80},
      {3.38e38, 0x7C00, 0x7F7E},
  };
  for (size_t n = 0; n < sizeof known / sizeof *known; n++) {
    if (oracle_to_f16(known[n].x) != known[n].f16 || oracle_to_bf16(known[n].x) != known[n].bf16) {
      fail_msg("%.12g: %04x %04x, not %04x %04x", known[n].x, oracle_to_f16(known[n].x),
               oracle_to_bf16(known[n].x), known[n].f16, known[n].bf16);
    }
  }
  for (int bits = 0; bits < 65536; bits++) {
    double h = oracle_from_f16((uint16_t)bits), b = oracle_from_bf16((uint16_t)bits);
    if (!isnan(h)) assert_int_equal(oracle_to_f16(h), bits);
    if (!isnan(b)) assert_int_equal(oracle_to_bf16(b), bits);
    if (isnan(h)) assert_true(isnan(oracle_from_f16(oracle_to_f16(h))));
    if (isnan(b)) assert_true(isnan(oracle_from_bf16(oracle_to_bf16(b))));
  }
}
