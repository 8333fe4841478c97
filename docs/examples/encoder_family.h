/* encoder_family.h owns what tells one family of encoders from another: how config.json calls it and its
 * sizes, how the tensors of its checkpoints are named, and which forms its layers have. A name that is
 * null is a thing that the family has not. Sources: BERT, Devlin et al. 2019, arXiv 1810.04805; RoBERTa,
 * Liu et al. 2019, arXiv 1907.11692; DistilBERT, Sanh et al. 2019, arXiv 1910.01108; ALBERT, Lan et al.
 * 2020, arXiv 1909.11942; ModernBERT, Warner et al. 2024, arXiv 2412.13663; DeBERTa, He et al. 2020, 2021,
 * arXiv 2006.03654, 2111.09543. MiniLM (Wang et al. 2020, arXiv 2002.10957) is a BERT. */
#ifndef EXAMPLES_ENCODER_FAMILY_H
#define EXAMPLES_ENCODER_FAMILY_H

#include <stddef.h>
#include <string.h>

typedef struct encoder_family {
  const char *type;   /* model_type of config.json */
  const char *models; /* what is known by that name */
  const char *prefix; /* of all names below, in checkpoints of models with a head */

  /* Tensors outside of layers: "X.weight", and "X.bias" of norms and projections. */
  const char *words, *places, *kinds; /* embeddings of tokens, positions, token types */
  const char *norm;                   /* of the embeddings */
  const char *project;                /* from their width to that of the rows */
  int project_first;                  /* 1: that comes before the norm, and has no bias */
  const char *last;                   /* norm of the rows after the last layer */

  /* Tensors of layer n: "LAYERn.X.weight", where layers are shared "LAYERgSHAREDi.X.weight". */
  const char *layer, *shared;
  const char *q, *k, *v, *o;
  const char *qkv; /* in place of q, k and v */
  const char *norm_self, *w_1, *w_2, *norm_ff;
  int pre_norm; /* norms before attention (none in layer 0) and feed-forward, not behind */
  int gated;    /* w_1 holds the activated half of the hidden numbers, then the other factor */
  int biases_may_lack;

  /* Positions. */
  int after_padding;          /* 1: token i that is no padding has place pad_token_id + 1 + i */
  int rotary;                 /* 1: queries and keys are rotated, in most layers within a window */
  const char *distances;      /* embeddings of distances, which queries and keys meet ... */
  const char *distances_norm; /* ... normed, and projected by these or else by q and k */
  const char *distances_q, *distances_k;

  /* config.json: the names of sizes, and what holds where it does not say. */
  const char *width, *inner, *layers, *heads, *activation, *eps;
  const char *activation_else;
  float eps_else;

  int ends; /* [SEP] tokens between the texts of a pair */
} encoder_family;

/* What most have in common. */
#define ENCODER_TABLES_ .words = "embeddings.word_embeddings", .norm = "embeddings.LayerNorm"
#define ENCODER_BERT_LAYER_                                                                      \
  .layer = "encoder.layer.", .o = "attention.output.dense",                                      \
  .norm_self = "attention.output.LayerNorm", .w_1 = "intermediate.dense", .w_2 = "output.dense", \
  .norm_ff = "output.LayerNorm"
#define ENCODER_BERT_                                                                          \
  ENCODER_TABLES_, ENCODER_BERT_LAYER_,                                                        \
      .places = "embeddings.position_embeddings", .kinds = "embeddings.token_type_embeddings", \
      .q = "attention.self.query", .k = "attention.self.key", .v = "attention.self.value"
#define ENCODER_SIZES_                                                                 \
  .width = "hidden_size", .inner = "intermediate_size", .layers = "num_hidden_layers", \
  .heads = "num_attention_heads"
#define ENCODER_BERT_CONFIG_ \
  ENCODER_SIZES_, .activation = "hidden_act", .activation_else = "gelu", .eps = "layer_norm_eps"

static const encoder_family encoder_families[] = {
    {.type = "bert",
     .models = "BERT, MiniLM, and what sentence-transformers makes of them",
     .prefix = "bert.",
     ENCODER_BERT_,
     ENCODER_BERT_CONFIG_,
     .eps_else = 1e-12f,
     .ends = 1},
    {.type = "roberta",
     .models = "RoBERTa",
     .prefix = "roberta.",
     ENCODER_BERT_,
     ENCODER_BERT_CONFIG_,
     .eps_else = 1e-12f,
     .after_padding = 1,
     .ends = 2},
    {.type = "xlm-roberta",
     .models = "XLM-R",
     .prefix = "roberta.",
     ENCODER_BERT_,
     ENCODER_BERT_CONFIG_,
     .eps_else = 1e-12f,
     .after_padding = 1,
     .ends = 2},
    {.type = "distilbert",
     .models = "DistilBERT",
     .prefix = "distilbert.",
     ENCODER_TABLES_,
     .places = "embeddings.position_embeddings",
     .layer = "transformer.layer.",
     .q = "attention.q_lin",
     .k = "attention.k_lin",
     .v = "attention.v_lin",
     .o = "attention.out_lin",
     .norm_self = "sa_layer_norm",
     .w_1 = "ffn.lin1",
     .w_2 = "ffn.lin2",
     .norm_ff = "output_layer_norm",
     .width = "dim",
     .inner = "hidden_dim",
     .layers = "n_layers",
     .heads = "n_heads",
     .activation = "activation",
     .activation_else = "gelu",
     .eps_else = 1e-12f,
     .ends = 1},
    {.type = "albert",
     .models = "ALBERT",
     .prefix = "albert.",
     ENCODER_TABLES_,
     .places = "embeddings.position_embeddings",
     .kinds = "embeddings.token_type_embeddings",
     .project = "encoder.embedding_hidden_mapping_in",
     .layer = "encoder.albert_layer_groups.",
     .shared = ".albert_layers.",
     .q = "attention.query",
     .k = "attention.key",
     .v = "attention.value",
     .o = "attention.dense",
     .norm_self = "attention.LayerNorm",
     .w_1 = "ffn",
     .w_2 = "ffn_output",
     .norm_ff = "full_layer_layer_norm",
     ENCODER_SIZES_,
     .activation = "hidden_act",
     .activation_else = "gelu_new",
     .eps = "layer_norm_eps",
     .eps_else = 1e-12f,
     .ends = 1},
    {.type = "modernbert",
     .models = "ModernBERT",
     .prefix = "model.",
     .words = "embeddings.tok_embeddings",
     .norm = "embeddings.norm",
     .last = "final_norm",
     .layer = "layers.",
     .qkv = "attn.Wqkv",
     .o = "attn.Wo",
     .norm_self = "attn_norm",
     .w_1 = "mlp.Wi",
     .w_2 = "mlp.Wo",
     .norm_ff = "mlp_norm",
     .pre_norm = 1,
     .gated = 1,
     .biases_may_lack = 1,
     .rotary = 1,
     ENCODER_SIZES_,
     .activation = "hidden_activation",
     .activation_else = "gelu",
     .eps = "norm_eps",
     .eps_else = 1e-5f,
     .ends = 1},
    {.type = "deberta-v2",
     .models = "DeBERTa v2 and v3",
     .prefix = "deberta.",
     ENCODER_TABLES_,
     ENCODER_BERT_LAYER_, /* v3 too */
     .places = "embeddings.position_embeddings",
     .kinds = "embeddings.token_type_embeddings",
     .project = "embeddings.embed_proj",
     .project_first = 1,
     .q = "attention.self.query_proj",
     .k = "attention.self.key_proj",
     .v = "attention.self.value_proj",
     .distances = "encoder.rel_embeddings",
     .distances_norm = "encoder.LayerNorm",
     .distances_q = "attention.self.pos_query_proj",
     .distances_k = "attention.self.pos_key_proj",
     ENCODER_BERT_CONFIG_,
     .eps_else = 1e-7f,
     .ends = 1},
};

enum { ENCODER_FAMILIES = (int)(sizeof encoder_families / sizeof *encoder_families) };

/* The family of that name; null if it is none of these. */
static const encoder_family *encoder_family_of(const char *type) {
  for (int i = 0; i < ENCODER_FAMILIES; i++)
    if (!strcmp(type, encoder_families[i].type)) return &encoder_families[i];
  return NULL;
}

#endif
