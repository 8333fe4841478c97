/* tests/test_causal.c owns one promise of every causal call: no bit of a row depends on a later token. All
 * that belongs to tokens after t changes, to numbers of any size, NaN and infinity, and the rows up to t
 * must stay as they are. Functions that can be causal stand in the lists of causal_*.c, or below with the reason why not. */

#include <stdio.h>
#include <stdlib.h>

#include "causal.h"

attn_tensor play_token(play *s, attn_dtype type, int64_t heads, int64_t len, int64_t dim) {
  s->in_first[s->ins] = N - len;
  return s->in[s->ins++] = drawn(type, TEST_BHTD, 1, heads, len, dim, 1, &s->rng);
}
attn_tensor play_out(play *s, attn_dtype type, int64_t heads, int64_t len, int64_t dim) {
  s->out_first[s->outs] = N - len;
  return s->out[s->outs++] = test_tensor(type, TEST_BHTD, 1, heads, len, dim);
}
attn_tensor play_fixed(play *s, int64_t heads, int64_t len, int64_t dim) {
  return drawn(ATTN_F32, TEST_BHTD, 1, heads, len, dim, 0.3, &s->rng);
}
void *play_params(play *s, size_t size) {
  s->p = test_mem(size);
  return memset(s->p, 0, size);
}

play_trio_of play_trio(play *s, int64_t rows, int64_t group, attn_dtype type) {
  play_trio_of x;
  x.q = play_token(s, ATTN_F32, group, rows, D), x.k = play_token(s, type, 1, N, D);
  x.v = play_token(s, type, 1, N, E), x.o = play_out(s, ATTN_F32, group, rows, E);
  return x;
}

/* Options of scores that many calls take. */
void play_scores(play *s, attn_sdpa_params *p, int n, int64_t heads) {
  p->causal = 1;
  if (n == 1) test_left(p, 20), p->softcap = 5;
  if (n == 2) p->alibi = test_floats(heads, 0.1, &s->rng), p->softmax_one = 1;
  if (n == 3) p->sinks = test_floats(heads, 1, &s->rng), p->one_order = 1;
}

/* Rows of tokens after t become others. */
static void change(play *s, int64_t t, int how) {
  for (int x = 0; x < s->ins; x++) {
    const attn_tensor *a = &s->in[x];
    for (int64_t i = 0; i < a->len; i++) {
      if ((s->when ? s->when[i] : s->in_first[x] + i) <= t) continue;
      for (int64_t h = 0; h < a->heads; h++)
        for (int64_t c = 0; c < a->dim; c++) {
          const double u = test_normal(&s->rng);
          oracle_set(a, 0, h, i, c,
                     how == 0   ? 9 * u
                     : how == 1 ? (u < 0 ? -1e30 : 1e30)
                     : how == 2 ? (double)NAN
                                : (u < 0 ? -(double)INFINITY : (double)INFINITY));
        }
    }
  }
}

static attn_tensor dense(attn_tensor a) {
  const attn_tensor to = test_tensor(a.dtype, TEST_BHTD, a.batch, a.heads, a.len, a.dim);
  test_copy(to, a);
  return to;
}

static int near_rows(attn_tensor a, attn_tensor b) {
  for (int64_t h = 0; h < a.heads; h++)
    for (int64_t c = 0; c < a.dim; c++) {
      const double x = oracle_get(&a, 0, h, 0, c), y = oracle_get(&b, 0, h, 0, c);
      if (!(fabs(x - y) <= 1e-6 * (1 + fabs(y)))) return 0;
    }
  return 1;
}

/* The leaks of one form of a call. */
static int leaks(play *s, const char *name) {
  static const int64_t marks[] = {0,  1,  2,  7,   15,  16,  31,  62,  63,  64,
                                  65, 95, 96, 126, 127, 128, 129, 137, 138, 139};
  static const char *const hows[] = {"others", "huge", "NaN", "infinite"};
  attn_tensor in[MOST], want[3];
  attn_ctx ctx = test_ctx();
  int found = 0, moved = 0;
  for (int x = 0; x < s->ins; x++) in[x] = dense(s->in[x]);
  if (s->call(s, &ctx) != ATTN_OK) {
    print_error("%s %d: %s\n", name, s->n, ctx.reason);
    return 1;
  }
  assert_int_equal(ctx.report.isa, test_isa);
  for (int x = 0; x < s->outs; x++) want[x] = dense(s->out[x]);
  for (int m = 0; m < (int)(sizeof marks / sizeof *marks); m++) {
    if (test_fast && (m + s->n) % (test_fast > 1 ? 5 : 3))
      continue; /* other forms take the others */
    const int how = (m + s->n) % 4;
    change(s, marks[m], how);
    if (s->call(s, &ctx) != ATTN_OK) {
      print_error("%s %d, changed: %s\n", name, s->n, ctx.reason);
      return 1;
    }
    for (int x = 0; x < s->outs; x++)
      for (int64_t i = 0; i < s->out[x].len; i++) {
        const attn_tensor is = test_rows(s->out[x], i, 1), was = test_rows(want[x], i, 1);
        if ((s->when ? s->when[i] : s->out_first[x] + i) > marks[m]) {
          moved |= !test_same(is, was);
          continue;
        }
        if (s->near ? near_rows(is, was) : test_same(is, was)) continue;
        if (found++ < 2)
          print_error("%s %d: tokens after %d, %s, change row %d of output %d\n", name, s->n,
                      (int)marks[m], hows[how], (int)i, x);
      }
    for (int x = 0; x < s->ins; x++) test_copy(s->in[x], in[x]);
  }
  if (!moved) print_error("%s %d: no token changes anything\n", name, s->n);
  return found + !moved;
}

/* ---- all of them --------------------------------------------------------------------------------*/

/* Not tried, and why. */
static const causal_entry exempt[] = {
    {"attn_topk_select attn_longformer_schedule attn_lsh_hash attn_linear_begin attn_key_blocks "
     "attn_nsa_compress ",
     NULL, "makes what a call above reads"},
    {"attn_usage attn_disagreement attn_guided_loss ", NULL, "a number of all rows"},
    {"attn_decoder_start attn_decoder_step attn_exit_decoder attn_cache_sdpa ", NULL,
     "tokens come in calls: later ones are not there"},
    {"attn_dispatch ", NULL, "the paths are given; attn_gated chooses them"},
    {"attn_sortcut ", NULL, "not causal, whatever the field says"},
    {"attn_routing attn_routing_select attn_routing_attend attn_routing_update ", NULL,
     "a cluster takes the nearest of all tokens: Routing Transformer looks ahead by its "
     "definition"},
    {"attn_clustered attn_cluster_queries ", NULL,
     "clusters and their best keys are those of all tokens: clustered attention looks ahead by its "
     "definition"},
    {"attn_probsparse attn_probsparse_measure attn_probsparse_select ", NULL,
     "rows are chosen among all by a measure over all keys: ProbSparse looks ahead by its "
     "definition"},
    {NULL, NULL, NULL}};

static const causal_entry *const lists[] = {causal_exact,  causal_sparse,    causal_fewer,
                                            causal_layers, causal_selection, exempt};
enum { LISTS = sizeof lists / sizeof *lists };

/* Every form of every call. */
void causal_no_later_token(void **state) {
  (void)state;
  int found = 0, forms = 0;
  for (int l = 0; l < LISTS; l++)
    for (const causal_entry *e = lists[l]; e->names; e++)
      for (int n = 0;; n++, test_mem_release()) {
        play s;
        memset(&s, 0, sizeof s);
        s.n = n, s.rng = test_seed(9000 + (uint64_t)(1000 * l + 100 * (int)(e - lists[l]) + n));
        if (!e->build || !e->build(&s)) break;
        found += leaks(&s, e->names), forms++;
      }
  print_message("           %d forms of causal calls\n", forms);
  assert_int_equal(found, 0);
}
/* ---- the list is complete -----------------------------------------------------------------------*/

/* attn.h without its comments, up to the implementation. */
static char *declarations(void) {
  FILE *f = fopen("attn.h", "rb");
  if (!f) fail_msg("%s", "attn.h is not here: run from the root of the project");
  char *text = test_mem((size_t)1 << 23);
  size_t n = 0;
  for (int c, last = 0, inside = 0; (c = fgetc(f)) != EOF && n < ((size_t)1 << 23) - 1; last = c) {
    if (inside && last == '*' && c == '/') {
      inside = 0;
    } else if (!inside && last == '/' && c == '*') {
      inside = 1, text[n - 1] = ' ', c = 0;
    } else if (!inside) {
      text[n++] = (char)c;
    }
  }
  fclose(f);
  text[n] = 0;
  char *implementation = strstr(text, "#if defined(ATTN_IMPLEMENTATION)");
  if (!implementation) fail_msg("%s", "attn.h has no implementation");
  *implementation = 0;
  return text;
}

/* Whether a word stands between from and to. */
static int has_word(const char *from, const char *to, const char *word) {
  const size_t n = strlen(word);
  for (const char *at = from; (at = strstr(at, word)) != NULL && at < to; at++) {
    const char before = at[-1], after = at[n];
    if ((before == ' ' || before == '(' || before == '*') && strchr(" ;,)*", after)) return 1;
  }
  return 0;
}

/* Types that have a field `causal`, or one that has. */
static int causal_types(const char *text, char names[][64], int most) {
  int count = 0, before = -1;
  snprintf(names[count++], 64, "causal");
  while (before != count) {
    before = count;
    for (const char *at = text; (at = strstr(at, "typedef struct attn_")) != NULL; at++) {
      const char *open = strchr(at, '{'), *end = open ? strstr(open, "\n} attn_") : NULL;
      char name[64];
      int known = 0;
      if (!end || sscanf(end, "\n} %63[a-z0-9_]", name) != 1) continue;
      for (int n = 0; n < count; n++) known |= strcmp(names[n], name) == 0;
      for (int n = 0; n < before && !known && count < most; n++)
        if (has_word(open, end, names[n])) {
          snprintf(names[count++], 64, "%s", name);
          known = 1;
        }
    }
  }
  return count;
}

/* A public function that can be causal stands in the list. */
void causal_list_is_complete(void **state) {
  (void)state;
  static char names[96][64];
  const char *text = declarations();
  const int types = causal_types(text, names, 96);
  int functions = 0, wrong = 0;
  for (const char *at = text; (at = strstr(at, "ATTN_DEF attn_status attn_")) != NULL; at++) {
    char name[64], quoted[68];
    const char *end = strstr(at, ");");
    int causal = 0, listed = 0;
    if (!end || sscanf(at, "ATTN_DEF attn_status %63[a-z0-9_]", name) != 1) continue;
    for (int n = 1; n < types; n++) causal |= has_word(at, end, names[n]);
    if (!causal) continue;
    functions++;
    snprintf(quoted, sizeof quoted, "%s ", name);
    for (int l = 0; l < LISTS; l++)
      for (const causal_entry *e = lists[l]; e->names; e++) {
        const char *found = strstr(e->names, quoted);
        listed |= found && (found == e->names || found[-1] == ' ');
      }
    if (!listed) print_error("%s can be causal and is not in the list\n", name), wrong++;
  }
  print_message("           %d functions\n", functions);
  assert_true(functions > 50);
  assert_int_equal(wrong, 0);
}
