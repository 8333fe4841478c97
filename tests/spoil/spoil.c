/* spoil.c owns the trial of every public call with arguments that are nearly right. The tests' own calls are the
 * material: before one runs, its arguments are copied and one field after another is set to what no caller should
 * pass (the ends of the integers, powers of two, NaN, null, an odd address), alone, in pairs, and all fields of
 * one value together, with strides of 0 for what then cannot lie in memory. Judged is what holds for any input:
 *
 *   - nothing overflows and nothing stray is read (the sanitizers say so);
 *   - the workspace query and the call agree on what is rejected, and a rejection has a reason;
 *   - a required tensor that was never set, or is null, is ATTN_E_NULL;
 *   - a pointer that is not aligned is ATTN_E_ALIGN;
 *   - a workspace that lies in an array of the call is ATTN_E_OVERLAP;
 *   - a query with workers wants the same whether parallel_for is set already or not.
 *
 * What a query accepts is not run: legal work may be endless. Nor is a call that has no query, or one whose views
 * grew: it might read memory that is not there. At the end every public call must have been seen. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

#include "spoil.h"

enum { CELLS = 1500, COPIES = 64, PATH = 160 };

/* One field of the arguments, wherever it lies. */
typedef struct cell {
  void *at;
  const spoil_field *field;
  char path[PATH];
  int shape; /* an extent of a tensor or mask: a stride would be 4 */
  attn_tensor *tensor;
} cell;

enum { NO_SHAPE, EXTENT, STRIDE };

typedef struct trial {
  spoil_entry *entry;
  unsigned char *args;
  attn_ctx ctx;
  cell cells[CELLS];
  int count;
  void *copy[COPIES];
  int copies;
  uint64_t random;
} trial;

static int failures, verbose;
static const spoil_entry *busy; /* the call under trial */
static const char *what = "";
static char detail[2 * PATH + 200];

/* ---- the cells -------------------------------------------------------------------------------*/

static void walk(trial *t, unsigned char *base, const spoil_type *type, const char *path,
                 int depth);

static int shape_of(const char *name) {
  static const char *const extents[] = {"batch", "heads", "len", "dim", "q_len", "k_len"};
  for (size_t i = 0; i < sizeof extents / sizeof *extents; i++)
    if (strcmp(name, extents[i]) == 0) return EXTENT;
  return strncmp(name, "stride_", 7) == 0 ? STRIDE : NO_SHAPE;
}

static void add(trial *t, void *at, const spoil_field *f, const char *path,
                const spoil_type *owner) {
  if (t->count == CELLS) return;
  cell *c = &t->cells[t->count++];
  memset(c, 0, sizeof *c);
  c->at = at, c->field = f;
  snprintf(c->path, sizeof c->path, "%s", path);
  const int view = strcmp(owner->name, "attn_tensor") == 0 || strcmp(owner->name, "attn_mask") == 0;
  if (view || strcmp(owner->name, "attn_scales") == 0) c->shape = shape_of(f->name);
}

static void walk_field(trial *t, unsigned char *at, const spoil_field *f, const char *path,
                       const spoil_type *owner, int depth) {
  if (f->kind == SPOIL_STRUCT) {
    if (strcmp(f->type->name, "attn_tensor") == 0) {
      add(t, at, f, path, owner);
      t->cells[t->count - 1].tensor = (attn_tensor *)(void *)at;
    }
    walk(t, at, f->type, path, depth);
    return;
  }
  add(t, at, f, path, owner);
  if (f->kind != SPOIL_ONE) return;
  void *one;
  memcpy(&one, at, sizeof one);
  if (!one || depth > 6) return;
  if (f->constant) {
    if (t->copies == COPIES) return;
    void *copy = malloc(f->type->size);
    memcpy(copy, one, f->type->size);
    t->copy[t->copies++] = copy;
    memcpy(at, &copy, sizeof copy);
    one = copy;
  }
  walk(t, (unsigned char *)one, f->type, path, depth + 1);
}

static void walk(trial *t, unsigned char *base, const spoil_type *type, const char *path,
                 int depth) {
  for (int i = 0; i < type->fields; i++) {
    const spoil_field *f = &type->field[i];
    const size_t size = f->kind == SPOIL_STRUCT                        ? f->type->size
                        : f->kind == SPOIL_I64 || f->kind == SPOIL_U64 ? 8
                        : f->kind == SPOIL_F64                         ? sizeof(double)
                        : f->kind == SPOIL_U8                          ? 1
                        : f->kind == SPOIL_SIZE                        ? sizeof(size_t)
                        : f->kind == SPOIL_CALLBACK                    ? sizeof(attn_task_fn)
                        : f->kind >= SPOIL_DATA                        ? sizeof(void *)
                                                                       : 4;
    for (size_t k = 0; k < f->times; k++) {
      char next[PATH];
      const char *dot = *path ? "." : "";
      if (f->times > 1)
        snprintf(next, sizeof next, "%.100s%s%.40s[%d]", path, dot, f->name, (int)k);
      else
        snprintf(next, sizeof next, "%.100s%s%.40s", path, dot, f->name);
      walk_field(t, base + f->at + k * size, f, next, type, depth);
    }
  }
}

/* ---- judgement -------------------------------------------------------------------------------*/

static void fault(const trial *t, const char *rule, attn_status status, const char *reason) {
  failures++;
  fprintf(stderr, "SPOIL %s: %s: %s: %s; status %d (%s)\n", t->entry->name, what, detail, rule,
          (int)status, reason ? reason : "no reason");
}

static attn_status call(trial *t, const char **reason) {
  attn_ctx ctx = t->ctx;
  ctx.reason = NULL;
  attn_status status = t->entry->call(t->args, &ctx);
  *reason = ctx.reason;
  return status;
}

/* Where to be absent has a meaning of its own, or an array's length is known to the caller alone. */
static int ends(const char *path, const char *const *list) {
  const size_t n = strlen(path);
  for (; *list; list++)
    if (n >= strlen(*list) && strcmp(path + n - strlen(*list), *list) == 0) return 1;
  return 0;
}
static const char *const may_be_absent[] = {
    "c",
    "cache.v",
    "cache.v.data",
    "x_k",
    "x_k.data",
    "x_v",
    "x_v.data",
    "compressed.rows",
    "cross.w_k",
    "map.w",
    "map.w.data",
    "params.w_q",
    "params.w_k",
    "params.w_v",
    "params.target",
    "params.dilation", /* longformer: 1, and one set for all */
    "params.global_indptr",
    "q_global",
    "memory.data",
    "before.w_2",
    "before.w_2.data",
    "params.k2",
    "params.q2",
    "params.v2",
    "params.k2.data",
    "params.q2.data",
    "params.v2.data",
    "params.emb",
    "params.log_p",
    "params.emb.data",
    "params.log_p.data",
    "params.index",
    "lstm.w_hh",
    "params.x",
    "params.x.data",
    "schedule.data",
    "ff.w_2",
    "params.w_o",
    "params.w",
    "memory",
    "memory.rows",
    "factors",
    "params.w.data",
    "ff.w_2.data",
    "experts.w_2",
    "shared.w_2",
    "shared.w_2.data",
    "experts.w_2.data",
    "params.w_o.data",
    NULL};
/* Of these some kinds of their calls say that they do not read them; attn_decoder_start reads one step of a block. */
static const char *const may_be_unread[] = {"norm_cross.bias",
                                            "sequences.table", /* an append to none of them */
                                            "norm_cross.gain",
                                            "after_self.gain", /* but of ATTN_SUBLAYER_SANDWICH */
                                            "after_self.bias",
                                            "after_cross.gain",
                                            "after_cross.bias",
                                            "after_ff.gain",
                                            "after_ff.bias",
                                            "u_g.data",
                                            "u_z.data",
                                            "w_g.data",
                                            "w_z.data",
                                            "b_g.data",
                                            "lstm.bias.data",
                                            "w_hh.data",
                                            "w_ih.data",
                                            "sos.data",
                                            "e.data",
                                            "dist.data",
                                            "w_p.data",
                                            "logits.data",
                                            "noise.data",
                                            "gate_2.w_r.data",
                                            "gate_2.u_r.data",
                                            "gate_2.w_z.data",
                                            "gate_2.u_z.data",
                                            "gate_2.w_g.data",
                                            "gate_2.u_g.data",
                                            "params.u_d",
                                            "params.w_d",
                                            "k_own.data",
                                            "v_own.data",
                                            "null_k.data",
                                            "null_v.data",
                                            "lse.data",
                                            "usage.data",
                                            "r.data",
                                            "attention.u",
                                            "attention.v",
                                            "rows.data",
                                            "w_o.data",
                                            "w_v.data",
                                            "sinks",
                                            "params.indptr",
                                            "params.units",
                                            "params.w_q.data",
                                            "params.w_k.data",
                                            "params.samples",
                                            "params.gain",
                                            "params.gate",
                                            "mem_k.data",
                                            "params.mem_v.data",
                                            NULL};
static const char *const lengths[] = {"params.segments", "params.groups", NULL};

/* Whether a field grew in a way that may be legal but for the memory it claims: then nothing is called, as it
 * would read that memory. */
static int grown;

/* Asks, and calls what is refused; the status, or -1 when the query accepts. */
static int judge(trial *t) {
  const char *reason = NULL;
  if (verbose) fprintf(stderr, "%s: %s: %s\n", t->entry->name, what, detail);
  if (t->entry->ask && t->entry->ask(t->args, &t->ctx) != ATTN_WORKSPACE_REJECTED) return -1;
  if (!t->entry->ask || grown) return -2;
  attn_status status = call(t, &reason);
  if (status == ATTN_OK) fault(t, "the query rejects what the call accepts", status, reason);
  if (status != ATTN_OK && (!reason || !*reason)) fault(t, "no reason", status, reason);
  return (int)status;
}

/* ---- flaws -----------------------------------------------------------------------------------*/

static const int64_t integers[] = {INT64_MIN,
                                   INT64_MIN + 1,
                                   -((int64_t)1 << 62),
                                   -((int64_t)1 << 32),
                                   -2,
                                   -1,
                                   0,
                                   1,
                                   (int64_t)1 << 31,
                                   (int64_t)1 << 32,
                                   ((int64_t)1 << 40) - 1,
                                   (int64_t)1 << 40,
                                   (int64_t)1 << 60,
                                   (int64_t)1 << 61,
                                   INT64_MAX / 4 + 1,
                                   (int64_t)1 << 62,
                                   INT64_MAX / 2 + 1,
                                   INT64_MAX - 63,
                                   INT64_MAX - 1,
                                   INT64_MAX};
static const int small[] = {INT32_MIN, -1, 0, 1, 2, 99, INT32_MAX};
enum { INTEGERS = sizeof integers / sizeof *integers, SMALL = sizeof small / sizeof *small };

static double number(int i) {
  static const double x[] = {0.0, -0.0, 1.0, -1.0, 1e-40, 3e38, -3e38, 0.5};
  const double zero = 0.0 * (double)failures;
  return i < 8 ? x[i] : i == 8 ? 1.0 / zero : i == 9 ? -1.0 / zero : zero / zero;
}
enum { NUMBERS = 11 };

/* Puts flaw number i into a cell; 0 when it has so many no more. */
static int put(const cell *c, int i) {
  const spoil_kind k = c->field->kind;
  char *say = detail + strlen(detail);
  const size_t room = (size_t)(detail + sizeof detail - say);
  if (k == SPOIL_I64 || k == SPOIL_U64 || k == SPOIL_SIZE) {
    int64_t was = 0;
    if (i >= INTEGERS) return 0;
    if (k != SPOIL_SIZE) memcpy(&was, c->at, sizeof was);
    const int64_t far = integers[i] == INT64_MIN ? INT64_MAX
                        : integers[i] < 0        ? -integers[i]
                                                 : integers[i];
    grown |= far > (was < 0 ? -was : was) && far < (int64_t)1 << 61;
    snprintf(say, room, " %s = %lld", c->path, (long long)integers[i]);
    if (k == SPOIL_SIZE) {
      const size_t x = (size_t)integers[i];
      memcpy(c->at, &x, sizeof x);
    } else {
      memcpy(c->at, &integers[i], 8);
    }
    return 1;
  }
  if (k == SPOIL_INT || k == SPOIL_I32) {
    if (i >= SMALL) return 0;
    snprintf(say, room, " %s = %d", c->path, small[i]);
    memcpy(c->at, &small[i], sizeof(int));
    return 1;
  }
  if (k == SPOIL_F32 || k == SPOIL_F64) {
    if (i >= NUMBERS) return 0;
    const double x = number(i);
    const float y = (float)x;
    snprintf(say, room, " %s = %g", c->path, x);
    if (k == SPOIL_F64)
      memcpy(c->at, &x, sizeof x);
    else
      memcpy(c->at, &y, sizeof y);
    return 1;
  }
  return 0;
}

static size_t width(const cell *c) {
  switch (c->field->kind) {
    case SPOIL_I64:
    case SPOIL_U64: return 8;
    case SPOIL_SIZE: return sizeof(size_t);
    case SPOIL_F64: return sizeof(double);
    case SPOIL_STRUCT: return c->field->type->size;
    case SPOIL_CALLBACK: return sizeof(attn_task_fn);
    case SPOIL_DATA:
    case SPOIL_ONE: return sizeof(void *);
    case SPOIL_U8: return 1;
    default: return 4;
  }
}

static unsigned char kept[2][512];
static void keep(const cell *c, int n) { memcpy(kept[n], c->at, width(c)); }
static void restore(const cell *c, int n) { memcpy(c->at, kept[n], width(c)); }

/* Each field alone. */
static void alone(trial *t) {
  what = "one field";
  for (int n = 0; n < t->count; n++) {
    const cell *c = &t->cells[n];
    if (ends(c->path, lengths)) continue;
    keep(c, 0);
    for (int i = 0;; i++) {
      detail[0] = 0;
      if (!put(c, i)) break;
      judge(t), grown = 0;
      restore(c, 0);
    }
    restore(c, 0);
  }
}

/* Without its gate form.gate_add of an activation is out of place, without rates the position that they begin with. */
static int gate_of_form(trial *t, const cell *c, int status) {
  static const char *const gate[] = {"params.gate", "params.gate.data", "w_3", "w_3.data", NULL};
  static const char *const rates[] = {"params.lambda", "params.lambda.data", NULL};
  const char *why = NULL;
  if (status == ATTN_E_RANGE && ends(c->path, gate)) (void)call(t, &why);
  return (why && strstr(why, "form.gate_add")) ||
         (strncmp(t->entry->name, "attn_recurrent", 14) == 0 && ends(c->path, rates));
}

/* Without them a call takes all rows, or those of the table from start on, which may end before, or a batch entry of keys
 * for each sequence, or is one of another kind, beside which something else is out of place. */
static int other_form(const trial *t, const cell *c, int status) {
  static const struct {
    const char *call, *path;
    attn_status status;
  } form[] = {{"attn_segmented", "params.w_v.data", ATTN_E_SHAPE},
              {"attn_nystrom", "params.kv_len", ATTN_E_SHAPE},
              {"attn_nystrom", "params.q_len", ATTN_E_SHAPE},
              {"attn_expert_rows", "params.experts.w_3", ATTN_E_DTYPE},
              {"attn_expert_rows", "params.experts.w_3.data", ATTN_E_DTYPE},
              {"attn_mla", "params.indptr", ATTN_E_RANGE},
              {"attn_linear_backward", "params.rate", ATTN_E_SHAPE},
              {"attn_linear_backward", "params.rate.data", ATTN_E_SHAPE}};
  const char *call = t->entry->name, *field = c->field->name;
  for (size_t i = 0; i < sizeof form / sizeof *form; i++)
    if (!strcmp(call, form[i].call) && !strcmp(c->path, form[i].path) &&
        status == (int)form[i].status)
      return 1;
  if (strcmp(call, "attn_cache_append") == 0)
    return !strcmp(field, "rows") || !strcmp(field, "indptr");
  if (strcmp(field, "kv_indptr") == 0) return status == ATTN_E_SHAPE;
  if (strcmp(call, "attn_tpa") == 0 && strcmp(field, "indptr") == 0) return status == ATTN_E_RANGE;
  return strcmp(call, "attn_learned_position_backward") == 0 && !strcmp(field, "positions") &&
         status == ATTN_E_RANGE;
}

/* A tensor that was never set, a null pointer, an odd address. */
static void absent(trial *t) {
  for (int n = 0; n < t->count; n++) {
    const cell *c = &t->cells[n];
    void *p = NULL;
    const char *reason = NULL;
    snprintf(detail, sizeof detail, "%s", c->path);
    if (c->tensor && c->tensor->data) {
      keep(c, 0);
      memset(c->at, 0, sizeof(attn_tensor));
      what = "a tensor that was never set";
      const int status = judge(t);
      if (status >= 0 && status != ATTN_E_NULL && !ends(c->path, may_be_absent) &&
          !gate_of_form(t, c, status) && !other_form(t, c, status)) {
        (void)call(t, &reason);
        fault(t, "not ATTN_E_NULL", (attn_status)status, reason);
      }
      restore(c, 0);
    }
    if (c->field->kind != SPOIL_DATA) continue;
    memcpy(&p, c->at, sizeof p);
    if (!p || strcmp(c->field->name, "user") == 0) continue;
    keep(c, 0);
    void *null = NULL;
    memcpy(c->at, &null, sizeof null);
    what = "null";
    int status = judge(t);
    if (status >= 0 && status != ATTN_E_NULL && !other_form(t, c, status) &&
        !ends(c->path, may_be_absent) && !gate_of_form(t, c, status)) {
      (void)call(t, &reason);
      fault(t, "not ATTN_E_NULL", (attn_status)status, reason);
    }
    restore(c, 0);
    size_t element = c->field->element;
    const cell *whole = n > 0 ? &t->cells[n - 1] : c;
    if (whole->tensor && whole->at == c->at)
      element = whole->tensor->dtype == ATTN_F32 ? 4 : whole->tensor->dtype < ATTN_I8 ? 2 : 1;
    if (element < 2) continue;
    char *odd = (char *)p + 1;
    memcpy(c->at, &odd, sizeof odd);
    what = "an odd address";
    status = judge(t);
    if (status == -1 && !ends(c->path, may_be_unread) &&
        strcmp(t->entry->name, "attn_decoder_start"))
      fault(t, "accepted", ATTN_OK, "");
    if (status >= 0 && status != ATTN_E_ALIGN) {
      (void)call(t, &reason);
      fault(t, "not ATTN_E_ALIGN", (attn_status)status, reason);
    }
    restore(c, 0);
  }
}

/* Whether what no query reads is wrong already, a length or the contents of a state: then the call may say so before
 * it names a flaw of ours. The workspace of one byte is too small in any case, so that nothing runs. */
static int flawed(trial *t) {
  static char apart;
  if (!t->entry->ask || t->entry->ask(t->args, &t->ctx) == 0) return 0;
  attn_ctx other = t->ctx;
  other.reason = NULL, other.workspace = &apart, other.workspace_size = 1;
  const attn_status status = t->entry->call(t->args, &other);
  return status == ATTN_E_VALUE || status == ATTN_E_RANGE;
}

/* Scales of a tensor without rows are not read. */
static int of_no_rows(const trial *t, const cell *c) {
  const char *at = strstr(c->path, "_scales.");
  for (int n = 0; at && at > c->path && n < t->count; n++) {
    const attn_tensor *x = t->cells[n].tensor;
    if (x && t->cells[n].path[0] == at[-1] && !t->cells[n].path[1])
      return x->batch < 1 || x->heads < 1 || x->len < 1;
  }
  return 0;
}

/* A mask of a piece without rows or keys is not read, nor is what has only a shape to give. */
static int of_no_pairs(const trial *t, const cell *c) {
  const size_t n = strlen(c->path);
  if (!strcmp(t->entry->name, "attn_convolve_backward") && !strcmp(c->path, "params.bias.data"))
    return 1;
  for (int i = 0; n > 5 && i < t->count; i++) {
    const cell *x = &t->cells[i];
    int64_t extent;
    if (strncmp(x->path, c->path, n - 4) || x->field->kind != SPOIL_I64) continue;
    if (strchr(x->path + n - 4, '.') || shape_of(x->path + n - 4) != EXTENT) continue;
    memcpy(&extent, x->at, sizeof extent);
    if (extent < 1) return 1;
  }
  return 0;
}

/* A workspace of one byte in each array: too small in any case, and nothing is ever written there. */
static void covered(trial *t) {
  what = "a workspace in";
  if (!t->entry->ask || t->entry->ask(t->args, &t->ctx) == 0) return;
  if (strcmp(t->entry->name, "attn_decoder_start") == 0) return; /* reads one step of a block */
  for (int n = 0; n < t->count; n++) {
    const cell *c = &t->cells[n];
    void *p = NULL;
    if (c->field->kind != SPOIL_DATA || ends(c->path, may_be_unread) || of_no_rows(t, c)) continue;
    if (of_no_pairs(t, c)) continue;
    memcpy(&p, c->at, sizeof p);
    if (!p || strstr(c->field->name, "user") || strcmp(c->field->name, "owned") == 0) continue;
    if (c->field->element == 0) continue; /* lists of views, as much the call's own as params */
    const cell *whole = n > 0 ? &t->cells[n - 1] : c;
    const attn_tensor *x = whole->at == c->at ? whole->tensor : NULL;
    if (x && (x->batch < 1 || x->heads < 1 || x->len < 1 || x->dim < 1)) continue;
    snprintf(detail, sizeof detail, "%s", c->path);
    attn_ctx ctx = t->ctx;
    ctx.reason = NULL, ctx.workspace = p, ctx.workspace_size = 1;
    const attn_status status = t->entry->call(t->args, &ctx);
    const char *const name = t->entry->name;
    const int lists = strncmp(name, "attn_sac_", 9) == 0; /* of no edges, in some calls */
    if (status != ATTN_E_OVERLAP && !lists) fault(t, "not ATTN_E_OVERLAP", status, ctx.reason);
  }
}

static void in_turn(void *user, int64_t count, attn_task_fn task, void *arg) {
  (void)user;
  for (int64_t i = 0; i < count; i++) task(arg, i);
}
static void asked_early(trial *t) {
  what = "a query with workers";
  if (!t->entry->ask) return;
  attn_ctx ctx = t->ctx;
  ctx.workers = 7, ctx.parallel_for = NULL;
  const size_t early = t->entry->ask(t->args, &ctx);
  ctx.parallel_for = in_turn;
  snprintf(detail, sizeof detail, "%zu bytes before parallel_for is set", early);
  if (t->entry->ask(t->args, &ctx) > early) fault(t, "too few", ATTN_OK, NULL);
}

/* All integers of one value at once, with every stride 0 or as it was. */
static void together(trial *t) {
  static int64_t value[CELLS], before[CELLS];
  int values = 0;
  what = "one value everywhere";
  for (int n = 0; n < t->count; n++) {
    before[n] = 0;
    if (t->cells[n].field->kind != SPOIL_I64 || ends(t->cells[n].path, lengths)) continue;
    memcpy(&before[n], t->cells[n].at, 8);
    int known = before[n] == 0 || t->cells[n].shape == STRIDE;
    for (int k = 0; k < values; k++) known |= value[k] == before[n];
    if (!known && values < 24) value[values++] = before[n];
  }
  for (int k = 0; k < values; k++)
    for (int i = 0; i < INTEGERS; i++)
      for (int flat = 0; flat < 2; flat++) {
        /* a batch in between may be legal, and to measure it as long as to compute it */
        if (integers[i] > 1 && integers[i] < (int64_t)1 << 61) continue;
        for (int n = 0; n < t->count; n++) {
          const cell *c = &t->cells[n];
          const int64_t zero = 0;
          if (c->field->kind != SPOIL_I64) continue;
          if (c->shape == STRIDE && flat) memcpy(c->at, &zero, 8);
          if (c->shape != STRIDE && !ends(c->path, lengths) && before[n] == value[k])
            memcpy(c->at, &integers[i], 8);
        }
        snprintf(detail, sizeof detail, "%lld becomes %lld%s", (long long)value[k],
                 (long long)integers[i], flat ? ", strides 0" : "");
        grown = integers[i] > value[k];
        judge(t), grown = 0;
        for (int n = 0; n < t->count; n++)
          if (t->cells[n].field->kind == SPOIL_I64 && !ends(t->cells[n].path, lengths))
            memcpy(t->cells[n].at, &before[n], 8);
      }
}

/* Two fields at once, drawn. */
static uint64_t draw(trial *t, uint64_t n) {
  t->random = t->random * 6364136223846793005u + 1442695040888963407u;
  return (t->random >> 33) % n;
}
static void pairs(trial *t) {
  what = "two fields";
  for (int n = 0; n < 400; n++) {
    const cell *a = &t->cells[draw(t, (uint64_t)t->count)];
    const cell *b = &t->cells[draw(t, (uint64_t)t->count)];
    if (ends(a->path, lengths) || ends(b->path, lengths)) continue;
    if (a == b || a->field->kind == SPOIL_STRUCT || b->field->kind == SPOIL_STRUCT) continue;
    detail[0] = 0;
    keep(a, 0), keep(b, 1);
    const int one = put(a, (int)draw(t, INTEGERS)), two = put(b, (int)draw(t, INTEGERS));
    if (one || two) judge(t);
    grown = 0;
    restore(b, 1), restore(a, 0);
  }
}

/* ---- the calls -------------------------------------------------------------------------------*/

int spoil_wants(spoil_entry *entry) {
  if (busy) { /* a trial crashed, and cmocka went on with the next test */
    failures++;
    fprintf(stderr, "SPOIL %s: %s: %s: crashed\n", busy->name, what, detail);
    busy = NULL, grown = 0;
  }
  if (test_malloc_fails) return 0;
  const int64_t n = entry->seen++;
  const char *only = getenv("SPOIL_ONLY");
  if (only && strcmp(only, entry->name)) return 0;
  verbose = getenv("SPOIL_VERBOSE") != NULL;
  return n < 3 || (n < 5000 && (n & (n - 1)) == 0);
}

void spoil_call(spoil_entry *entry, const void *args, attn_ctx *ctx) {
  static trial t;
  const int64_t calls = test_malloc_calls;
  busy = entry;
  memset(&t, 0, sizeof t);
  t.entry = entry;
  if (ctx) t.ctx = *ctx;
  t.args = malloc(entry->args->size);
  memcpy(t.args, args, entry->args->size);
  walk(&t, t.args, entry->args, "", 0);
  t.random = 0x9e3779b97f4a7c15u + (uint64_t)entry->seen;
  if (!entry->ask || entry->ask(t.args, &t.ctx) != ATTN_WORKSPACE_REJECTED) {
    entry->spoiled++;
    if (!flawed(&t)) absent(&t), covered(&t);
    asked_early(&t), alone(&t), together(&t), pairs(&t);
  }
  for (int i = 0; i < t.copies; i++) free(t.copy[i]);
  free(t.args);
  test_malloc_calls = calls;
  busy = NULL;
}

__attribute__((destructor)) static void report(void) {
  int missing = 0;
  for (int i = 0; spoil_entries[i]; i++)
    if (spoil_entries[i]->spoiled == 0) {
      missing++;
      fprintf(stderr, "SPOIL %s: never called soundly, of %lld\n", spoil_entries[i]->name,
              (long long)spoil_entries[i]->seen);
    }
  const char *all = getenv("SPOIL_ALL");
  fprintf(stderr, "SPOIL: %d faults, %d calls never seen\n", failures, missing);
  if (failures || (all && missing)) _Exit(1);
}
