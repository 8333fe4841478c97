#include "node.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void broken(const char *what) {
  fprintf(stderr, "the file of cases is not understood: %s\n", what);
  exit(2);
}

static const struct {
  const char *name;
  node_type type;
  size_t size;
} types[] = {{"float32", NODE_FLOAT, 4},   {"float64", NODE_FLOAT, 8}, {"float16", NODE_HALF, 2},
             {"bfloat16", NODE_BFLOAT, 2}, {"bool", NODE_BOOL, 1},     {"int64", NODE_INT64, 8},
             {"uint64", NODE_UINT64, 8}};

static void read_array(FILE *file, char *line, node_array *array) {
  char type[32] = "";
  int used = 0;
  if (sscanf(line, "%63s %31s %d%n", array->name, type, &array->rank, &used) != 3 ||
      array->rank < 0 || array->rank > NODE_RANK)
    broken(line);
  array->count = 1;
  for (int i = 0; i < array->rank; i++) {
    long long n = 0;
    int more = 0;
    if (sscanf(line += used, "%lld%n", &n, &more) != 1) broken(line);
    used = more;
    array->count *= array->extent[i] = n;
  }
  size_t which = 0;
  while (which < sizeof types / sizeof *types && strcmp(types[which].name, type)) which++;
  if (which == sizeof types / sizeof *types) broken(type);
  array->type = types[which].type;
  size_t size = types[which].size, count = (size_t)array->count;
  array->data = malloc(count * size + 1);
  if (!array->data || fread(array->data, size, count, file) != count || fgetc(file) != '\n')
    broken(array->name);
  if (array->type == NODE_FLOAT && size == 8) {
    const double *from = array->data;
    float *to = malloc(count * sizeof *to + 1);
    if (!to) broken("memory");
    for (size_t i = 0; i < count; i++) to[i] = (float)from[i];
    free(array->data);
    array->data = to;
  }
}

int node_read(FILE *file, node_case *node) {
  char line[512];
  memset(node, 0, sizeof *node);
  if (!fgets(line, sizeof line, file)) broken("it ends early");
  long long cases = 0;
  if (sscanf(line, "cases %lld", &cases) == 1) return 0;
  if (sscanf(line, "case %127s %63s %lf %lf", node->name, node->operator_, &node->rtol,
             &node->atol) != 4)
    broken(line);
  while (fgets(line, sizeof line, file)) {
    if (!strcmp(line, "end\n")) return 1;
    if (!strncmp(line, "attr ", 5) && node->attributes < NODE_LIST) {
      node_attribute *a = &node->attribute[node->attributes++];
      if (sscanf(line + 5, "%63s %63s", a->name, a->text) != 2) broken(line);
      a->number = strtod(a->text, NULL);
    } else if (!strncmp(line, "graph ", 6) && node->graphs < 2) {
      node_graph *g = &node->graph[node->graphs++];
      if (sscanf(line + 6, "%63s %127s %lf %lf %lf %lf", g->name, g->operators, &g->number[0],
                 &g->number[1], &g->number[2], &g->number[3]) < 2)
        broken(line);
    } else if (!strncmp(line, "input ", 6) && node->inputs < NODE_LIST) {
      read_array(file, line + 6, &node->input[node->inputs++]);
    } else if (!strncmp(line, "output ", 7) && node->outputs < NODE_LIST) {
      read_array(file, line + 7, &node->output[node->outputs++]);
    } else {
      broken(line);
    }
  }
  broken(node->name);
  return 0;
}

void node_free(node_case *node) {
  for (int i = 0; i < node->inputs; i++) free(node->input[i].data);
  for (int i = 0; i < node->outputs; i++) free(node->output[i].data);
}

const char *node_text(const node_case *node, const char *name) {
  for (int i = 0; i < node->attributes; i++)
    if (!strcmp(node->attribute[i].name, name)) return node->attribute[i].text;
  return NULL;
}

double node_number(const node_case *node, const char *name, double otherwise) {
  const char *text = node_text(node, name);
  return text ? strtod(text, NULL) : otherwise;
}

const node_graph *node_subgraph(const node_case *node, const char *name) {
  for (int i = 0; i < node->graphs; i++)
    if (!strcmp(node->graph[i].name, name)) return &node->graph[i];
  return NULL;
}

static const node_array *find(const node_array *list, int n, const char *name) {
  for (int i = 0; i < n; i++)
    if (!strcmp(list[i].name, name)) return &list[i];
  return NULL;
}

const node_array *node_input(const node_case *node, const char *name) {
  return find(node->input, node->inputs, name);
}

const node_array *node_output(const node_case *node, const char *name) {
  return find(node->output, node->outputs, name);
}

attn_dtype node_dtype(const node_array *array) {
  return array->type == NODE_HALF ? ATTN_F16 : array->type == NODE_BFLOAT ? ATTN_BF16 : ATTN_F32;
}

void *node_new(attn_dtype dtype, int64_t count) {
  size_t bytes = (size_t)count * (dtype == ATTN_F32 ? 4 : 2);
  void *data = malloc(bytes + 1);
  if (!data) broken("memory");
  return memset(data, 0xff, bytes); /* a NaN in every type */
}

static double value(const void *data, attn_dtype dtype, int64_t i) {
  if (dtype == ATTN_F32) return ((const float *)data)[i];
  unsigned bits = ((const uint16_t *)data)[i], magnitude = bits & 0x7fff;
  if (dtype == ATTN_BF16) {
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, 4);
    return x;
  }
  int exponent = (int)(magnitude >> 10);
  double fraction = magnitude & 0x3ff;
  double size = exponent == 31  ? (fraction > 0 ? (double)NAN : (double)INFINITY)
                : exponent == 0 ? ldexp(fraction, -24)
                                : ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -size : size;
}

int node_close(node_case *node, const node_array *want, const void *got, attn_dtype dtype) {
  /* two units of bfloat16 in its last place: the package's own runner allows them */
  double rtol = want->type == NODE_BFLOAT ? fmax(node->rtol, ldexp(1, -6)) : node->rtol;
  for (int64_t i = 0; i < want->count; i++) {
    double w = value(want->data, node_dtype(want), i), g = value(got, dtype, i);
    int same = isnan(w) || isnan(g) || isinf(w) || isinf(g)
                   ? (isnan(w) && isnan(g)) || w == g
                   : fabs(g - w) <= node->atol + rtol * fabs(w);
    if (same) continue;
    snprintf(node->why, sizeof node->why, "%s[%lld] is %.9g, expected %.9g", want->name,
             (long long)i, g, w);
    return 0;
  }
  return 1;
}

int node_called(node_case *node, attn_status status, const attn_ctx *ctx) {
  if (status == ATTN_OK) return 1;
  snprintf(node->why, sizeof node->why, "rejected: %s", ctx->reason ? ctx->reason : "?");
  return 0;
}
