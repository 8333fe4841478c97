/* node.h owns one node test of the ONNX package: its attributes, inputs and expected outputs as
 * cases.py writes them, and how an output is compared. */
#ifndef NODE_H
#define NODE_H

#include "attn.h"

#include <stdio.h>

enum { NODE_RANK = 6, NODE_LIST = 12 };

typedef enum node_type {
  NODE_FLOAT,
  NODE_HALF,
  NODE_BFLOAT,
  NODE_BOOL,
  NODE_INT64,
  NODE_UINT64
} node_type;

typedef struct node_array {
  char name[64];
  node_type type; /* float64 becomes NODE_FLOAT: nothing here stores doubles */
  int rank;
  int64_t extent[NODE_RANK], count;
  void *data;
} node_array;

typedef struct node_attribute {
  char name[64], text[64];
  double number;
} node_attribute;

/* A subgraph: its operators, but those that only make indices, and its constants. */
typedef struct node_graph {
  char name[64], operators[128];
  double number[4];
} node_graph;

typedef struct node_case {
  char name[128], operator_[64];
  double rtol, atol;
  int attributes, graphs, inputs, outputs;
  node_attribute attribute[NODE_LIST];
  node_graph graph[2];
  node_array input[NODE_LIST], output[NODE_LIST];
  /* what a mapping says of itself */
  char why[256]; /* why it failed, or cannot be expressed */
} node_case;

typedef enum node_result { NODE_PASSED, NODE_FAILED, NODE_NOT_EXPRESSED } node_result;

/* 1 for a case, 0 at the end of the file; ends the program where the file is not understood. */
int node_read(FILE *file, node_case *node);
void node_free(node_case *node);

/* The number of an attribute, or what holds without it. */
double node_number(const node_case *node, const char *name, double otherwise);
/* Null where there is none. */
const char *node_text(const node_case *node, const char *name);
const node_graph *node_subgraph(const node_case *node, const char *name);
const node_array *node_input(const node_case *node, const char *name);
const node_array *node_output(const node_case *node, const char *name);

/* The storage type of an array of numbers, and a new block of `count` of them, full of NaN. */
attn_dtype node_dtype(const node_array *array);
void *node_new(attn_dtype dtype, int64_t count);

/* Compares `got`, dense and in the order of the expected output, by the package's own rule:
 * |got - want| <= atol + rtol |want|, NaN equal to NaN, bfloat16 with two units in its last place.
 * 1 if all are close; else 0 with why in the case. */
int node_close(node_case *node, const node_array *want, const void *got, attn_dtype dtype);

/* 1 if the call succeeded; else 0 with why in the case. */
int node_called(node_case *node, attn_status status, const attn_ctx *ctx);

/* The mappings, one a family of operators. */
node_result node_attention(node_case *node, attn_ctx *ctx);
node_result node_linear(node_case *node, attn_ctx *ctx);
node_result node_product(node_case *node, attn_ctx *ctx);
node_result node_convolution(node_case *node, attn_ctx *ctx);
node_result node_selection(node_case *node, attn_ctx *ctx);
node_result node_rows(node_case *node, attn_ctx *ctx);

#endif
