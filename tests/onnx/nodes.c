/* nodes.c owns the run of ONNX's node tests: every case on every tier of this machine, and what is said of
 * them. Usage: nodes FILE, as cases.py writes it. Exit status 1 for a case that failed, or for fewer cases
 * than there were. */
#include "node.h"

#include <string.h>

/* least: how many the package has, so that none gets lost. gaps: how many attn.h cannot say, so that
 * neither one more nor one less goes unseen. */
static const struct {
  const char *name;
  node_result (*run)(node_case *node, attn_ctx *ctx);
  int least, gaps;
} operators[] = {{"Attention", node_attention, 93, 0},
                 {"FlexAttention", node_attention, 11, 0},
                 {"LinearAttention", node_linear, 14, 10},
                 {"LayerNormalization", node_rows, 19, 0},
                 {"Gelu", node_rows, 4, 0},
                 {"Relu", node_rows, 1, 0},
                 {"Sigmoid", node_rows, 2, 0},
                 {"Swish", node_rows, 1, 0},
                 {"SwiGLU", node_rows, 3, 1},
                 {"Tanh", node_rows, 2, 0},
                 {"CausalConvWithState", node_convolution, 13, 0},
                 {"MatMul", node_product, 7, 0},
                 {"Gemm", node_product, 11, 6},
                 {"TopK", node_selection, 7, 4}};
enum { OPERATORS = sizeof operators / sizeof *operators };

static int run_tier(FILE *file, attn_isa isa, int loud) {
  int count[OPERATORS][3] = {{0}}, bad = 0;
  node_case node;
  rewind(file);
  while (node_read(file, &node)) {
    int which = 0;
    while (which < OPERATORS && strcmp(operators[which].name, node.operator_)) which++;
    if (which == OPERATORS) {
      printf("FAIL %s: nobody runs %s\n", node.name, node.operator_);
      bad++;
    } else {
      attn_ctx ctx = {0};
      ctx.isa = isa;
      node_result result = operators[which].run(&node, &ctx);
      count[which][result]++;
      if (result == NODE_FAILED)
        printf("FAIL %s on %s: %s\n", node.name, attn_isa_name(isa), node.why);
      if (result == NODE_NOT_EXPRESSED && loud)
        printf("not expressed: %s: %s\n", node.name, node.why);
    }
    node_free(&node);
  }
  printf("onnx %-6s", attn_isa_name(isa));
  for (int i = 0; i < OPERATORS; i++) {
    int *c = count[i], all = c[0] + c[1] + c[2];
    printf(" %s %d of %d%s", operators[i].name, c[NODE_PASSED], all,
           i + 1 < OPERATORS ? "," : "\n");
    bad += c[NODE_FAILED];
    if (all >= operators[i].least && c[NODE_NOT_EXPRESSED] == operators[i].gaps) continue;
    printf("FAIL %s: %d cases and %d not expressed, known are %d and %d\n", operators[i].name, all,
           c[NODE_NOT_EXPRESSED], operators[i].least, operators[i].gaps);
    bad++;
  }
  return bad;
}

int main(int argc, char **argv) {
  FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
  if (!file) {
    fprintf(stderr, "usage: nodes FILE\n");
    return 2;
  }
  int bad = 0, tiers = 0;
  for (int i = ATTN_ISA_SCALAR; i < ATTN_ISA_COUNT; i++)
    if (attn_isa_status((attn_isa)i) == ATTN_ISA_OK)
      bad += run_tier(file, (attn_isa)i, tiers++ == 0);
  fclose(file);
  return bad != 0 || !tiers;
}
