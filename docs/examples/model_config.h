/* model_config.h owns what a model is: the config.json of a checkpoint as transformers writes it, in the forms of
 * its versions 4 and 5, turned into sizes and formulas. A family is a row of a table. What a configuration asks for
 * and decoder.h does not have is refused, never left out. Sources: Llama arXiv 2302.13971 and 2407.21783, Mistral
 * 2310.06825, Qwen2 2407.10671, Qwen3 2505.09388, Gemma 2 2408.00118, Gemma 3 2503.19786, gpt-oss 2508.10925,
 * Mamba-2 2405.21060. */
#ifndef EXAMPLES_MODEL_CONFIG_H
#define EXAMPLES_MODEL_CONFIG_H

#include "json.h"
#include "work.h"

#include <math.h>

enum { MODEL_MAX_LAYERS = 1024, MODEL_MAX_EOS = 16 };

/* Which layers see a window only, where the configuration has no layer_types. */
typedef enum model_windows {
  MODEL_WINDOWS_NONE,
  MODEL_WINDOWS_ALL,
  MODEL_WINDOWS_EVEN,    /* layers 0, 2, 4, ... */
  MODEL_WINDOWS_PATTERN, /* all but each sixth */
  MODEL_WINDOWS_LATE,    /* from max_window_layers on, with use_sliding_window */
  MODEL_WINDOWS_ASKED    /* all, with use_sliding_window */
} model_windows;

typedef struct model_family {
  const char *type; /* model_type */
  model_windows windows;
  int gemma; /* gains less one, scaled embeddings, norms behind the parts too, query_pre_attn_scalar */
  int qk_norm; /* norms of queries and keys, by head */
  int sinks;   /* a logit a head that joins the denominator */
  int mamba2;  /* layers are one Mamba-2 mixer */
  const char *router, *experts,
      *parts[3]; /* names in a layer with experts; parts: gate, up, down; without
                                        * parts all experts are in two tensors, as gpt-oss has them */
  /* where config.json says nothing, as transformers has it: rope_theta, rms_norm_eps, sliding_window, caps of scores
   * and logits; 0 = 10^4, 1e-6, none */
  double theta, eps;
  int64_t window;
  float cap, final_cap;
} model_family;

static const model_family model_families_[] = {
    {.type = "llama"},
    {.type = "mistral", .windows = MODEL_WINDOWS_ALL, .window = 4096},
    {.type = "qwen2", .windows = MODEL_WINDOWS_LATE, .window = 4096},
    {.type = "qwen3", .windows = MODEL_WINDOWS_LATE, .qk_norm = 1, .window = 4096},
    {.type = "gemma2",
     .windows = MODEL_WINDOWS_EVEN,
     .gemma = 1,
     .window = 4096,
     .cap = 50,
     .final_cap = 30},
    {.type = "gemma3_text",
     .windows = MODEL_WINDOWS_PATTERN,
     .gemma = 1,
     .qk_norm = 1,
     .theta = 1e6,
     .window = 4096},
    {.type = "mixtral",
     .windows = MODEL_WINDOWS_ALL,
     .router = "block_sparse_moe.gate",
     .experts = "block_sparse_moe.experts",
     .parts = {"w1", "w3", "w2"},
     .theta = 1e6,
     .eps = 1e-5},
    {.type = "qwen3_moe",
     .windows = MODEL_WINDOWS_ASKED,
     .qk_norm = 1,
     .router = "mlp.gate",
     .experts = "mlp.experts",
     .parts = {"gate_proj", "up_proj", "down_proj"},
     .window = 4096},
    {.type = "gpt_oss",
     .windows = MODEL_WINDOWS_EVEN,
     .sinks = 1,
     .router = "mlp.router",
     .experts = "mlp.experts",
     .theta = 150000,
     .eps = 1e-5,
     .window = 128},
    {.type = "mamba2", .mamba2 = 1}};

typedef struct model_config {
  const model_family *family;
  int64_t layers, width, vocabulary;
  int64_t context; /* max_position_embeddings; of a state space that knows none, 2^24 */
  float eps;       /* of all norms */
  int tied;        /* tie_word_embeddings: 1 or 0; -1: not said */
  float final_softcap, embedding_scale; /* 0 = none */
  int64_t eos[MODEL_MAX_EOS];
  int eos_count;
  int attention_bias, mlp_bias; /* 0: left out, whatever the file has; -1: not said */
  /* attention and feed-forward */
  int64_t heads, kv_heads, head, hidden;
  attn_activation activation;
  float scale, softcap;              /* of scores; 0 = head^-1/2, none */
  attn_rope_params rope, local_rope; /* the second one of layers with a window */
  int64_t window;                    /* tokens that such a layer sees, its own among them */
  unsigned char windowed[MODEL_MAX_LAYERS];
  /* experts, in layers that have some */
  int64_t experts, experts_used, expert_hidden;
  int renormalise;    /* weights of the experts used sum to 1 */
  attn_act_form form; /* of their gate */
  unsigned char sparse[MODEL_MAX_LAYERS];
  /* Mamba-2 */
  int64_t state_heads, state_head, state, groups, kernel;
  float dt_min, dt_max; /* 0 = none above */
} model_config;

/* ---- fields: null counts as absent */

static const json *config_field_(const json *object, const char *name) {
  const json *field = json_get(object, name);
  return field && field->kind != JSON_NULL ? field : NULL;
}

static const int64_t CONFIG_REQUIRED = INT64_MIN;

static int config_whole_(work *w, const json *object, const char *name, int64_t low, int64_t high,
                         int64_t absent, int64_t *n) {
  const json *field = config_field_(object, name);
  *n = absent;
  if (!field)
    return absent != CONFIG_REQUIRED || work_fail(w, "config.json: '%s' is missing", name);
  if (field->kind != JSON_NUMBER || !field->whole || field->integer < low || field->integer > high)
    return work_fail(
        w, "config.json: '%s', at byte %zu, must be a whole number from %" PRId64 " to %" PRId64,
        name, field->at, low, high);
  *n = field->integer;
  return 1;
}

static int config_real_(work *w, const json *object, const char *name, double low, double high,
                        double absent, double *x) {
  const json *field = config_field_(object, name);
  *x = absent;
  if (!field) return 1;
  if (field->kind != JSON_NUMBER || !(field->number >= low && field->number <= high))
    return work_fail(w, "config.json: '%s', at byte %zu, must be a number from %g to %g", name,
                     field->at, low, high);
  *x = field->number;
  return 1;
}

static int config_float_(work *w, const json *object, const char *name, double low, double high,
                         double absent, float *x) {
  double wide;
  if (!config_real_(w, object, name, low, high, absent, &wide)) return 0;
  *x = (float)wide;
  return 1;
}

static int config_flag_(work *w, const json *object, const char *name, int absent, int *flag) {
  const json *field = config_field_(object, name);
  *flag = absent;
  if (!field) return 1;
  if (field->kind != JSON_BOOL)
    return work_fail(w, "config.json: '%s', at byte %zu, must be true or false", name, field->at);
  *flag = field->truth;
  return 1;
}

/* A word, which must be there unless `absent` is given. */
static int config_word_(work *w, const json *object, const char *name, const char *absent,
                        const char **word) {
  const json *field = config_field_(object, name);
  *word = absent;
  if (!field) return absent || work_fail(w, "config.json: '%s' is missing", name);
  if (field->kind != JSON_STRING || field->length != strlen(field->string) || field->length > 60)
    return work_fail(w, "config.json: '%s', at byte %zu, must be a word", name, field->at);
  for (const char *c = field->string; *c; c++)
    if ((unsigned char)*c < ' ' || (unsigned char)*c > '~')
      return work_fail(w, "config.json: '%s', at byte %zu, must be a word", name, field->at);
  *word = field->string;
  return 1;
}

/* What counts where a field is absent: null says that there is none. */
static double config_unsaid_(const json *root, const char *name, double usual) {
  return json_get(root, name) ? 0 : usual;
}

/* ---- parts */

/* rope_parameters or rope_scaling; base is rope_theta where those have none. */
static int config_rope_(work *w, const model_config *c, const json *root, const json *o,
                        double base, attn_rope_params *rope) {
  const char *type;
  double part;
  int truncate;
  memset(rope, 0, sizeof *rope);
  rope->layout = ATTN_ROPE_HALF;
  if (o && o->kind != JSON_OBJECT)
    return work_fail(w, "config.json: the rope parameters at byte %zu must be an object", o->at);
  if (!config_word_(w, o, "type", "default", &type) ||
      !config_word_(w, o, "rope_type", type, &type))
    return 0;
  rope->type = attn_rope_type_of(type);
  if (rope->type != ATTN_ROPE_DEFAULT && rope->type != ATTN_ROPE_LINEAR &&
      rope->type != ATTN_ROPE_LLAMA3 && rope->type != ATTN_ROPE_YARN)
    return work_fail(
        w, "config.json: rope_type '%s' is not served: default, linear, llama3, yarn are", type);
  if (!config_real_(w, o, "rope_theta", 1, 1e15, base, &rope->base) ||
      !config_real_(w, o, "factor", 1, 1e9, 0, &rope->factor) ||
      !config_real_(w, o, "low_freq_factor", 1e-9, 1e9, 0, &rope->low_freq_factor) ||
      !config_real_(w, o, "high_freq_factor", 1e-9, 1e9, 0, &rope->high_freq_factor) ||
      !config_real_(w, o, "beta_fast", 1e-9, 1e9, 0, &rope->beta_fast) ||
      !config_real_(w, o, "beta_slow", 1e-9, 1e9, 0, &rope->beta_slow) ||
      !config_real_(w, o, "mscale", 0, 1e3, 0, &rope->mscale) ||
      !config_real_(w, o, "mscale_all_dim", 0, 1e3, 0, &rope->mscale_all_dim) ||
      !config_real_(w, o, "attention_factor", 1e-3, 1e3, 0, &rope->attention_factor) ||
      !config_whole_(w, o, "original_max_position_embeddings", 1, INT32_MAX,
                     rope->factor > 0 ? c->context : 0, &rope->original_max_position_embeddings) ||
      !config_whole_(w, root, "original_max_position_embeddings", 1, INT32_MAX,
                     rope->original_max_position_embeddings,
                     &rope->original_max_position_embeddings) ||
      !config_flag_(w, o, "truncate", 1, &truncate) ||
      !config_real_(w, root, "partial_rotary_factor", 0, 1, 1, &part) ||
      !config_real_(w, o, "partial_rotary_factor", 0, 1, part, &part))
    return 0;
  if (part != 1)
    return work_fail(
        w, "config.json: partial_rotary_factor %g is not served: these families rotate all", part);
  if (rope->type != ATTN_ROPE_YARN) rope->attention_factor = 0; /* as transformers */
  rope->no_truncate = !truncate;
  rope->max_position_embeddings = c->context;
  rope->rotary_dim = c->head;
  if (rope->rotary_dim % 2)
    return work_fail(w, "config.json: pairs rotate, but %" PRId64 " columns would",
                     rope->rotary_dim);
  return 1;
}

static int config_ropes_(work *w, model_config *c, const json *root) {
  const json *new_form = config_field_(root, "rope_parameters"),
             *scaling = config_field_(root, "rope_scaling");
  const json *full = config_field_(new_form, "full_attention"),
             *local = config_field_(new_form, "sliding_attention");
  double base, local_base;
  const double usual = c->family->theta > 0 ? c->family->theta : 1e4;
  if (c->family->sinks && !new_form && !scaling)
    return work_fail(w, "config.json: 'rope_parameters' is missing");
  if (!config_real_(w, root, "rope_theta", 1, 1e15, usual, &base) ||
      !config_real_(w, root, "rope_local_base_freq", 1, 1e15, 1e4, &local_base))
    return 0;
  if (full || local)
    return config_rope_(w, c, root, full, base, &c->rope) &&
           config_rope_(w, c, root, local, local_base, &c->local_rope);
  const int old = scaling && (scaling->kind != JSON_OBJECT || scaling->count); /* {} says nothing */
  if (!config_rope_(w, c, root, old ? scaling : new_form, base, &c->rope)) return 0;
  c->local_rope = c->rope;
  return !(c->family->gemma && c->family->qk_norm) ||
         config_rope_(w, c, root, NULL, local_base, &c->local_rope);
}

/* Which layers have a window. */
static int config_windows_(work *w, model_config *c, const json *root) {
  const model_windows how = c->family->windows;
  const int listed = how != MODEL_WINDOWS_NONE && how != MODEL_WINDOWS_ASKED;
  const json *types = config_field_(root, "layer_types");
  int64_t late, period;
  int use, any = 0;
  if (!config_whole_(w, root, "sliding_window", 1, INT32_MAX,
                     (int64_t)config_unsaid_(root, "sliding_window", (double)c->family->window),
                     &c->window) ||
      !config_whole_(w, root, "max_window_layers", 0, INT32_MAX, 28, &late) ||
      !config_flag_(w, root, "use_sliding_window", 0, &use) ||
      !config_whole_(w, root, "sliding_window_pattern", 1, MODEL_MAX_LAYERS, 6, &period))
    return 0;
  use |= how < MODEL_WINDOWS_LATE; /* only Qwen asks */
  const json *type = types ? types->first : NULL;
  if (types && (types->kind != JSON_ARRAY || types->count != (size_t)c->layers))
    return work_fail(w, "config.json: layer_types must list the %" PRId64 " layers", c->layers);
  for (int64_t i = 0; i < c->layers; i++) {
    const int usual = c->window && use &&
                      (how == MODEL_WINDOWS_ALL || how == MODEL_WINDOWS_ASKED ||
                       (how == MODEL_WINDOWS_EVEN && i % 2 == 0) ||
                       (how == MODEL_WINDOWS_PATTERN && (i + 1) % period != 0) ||
                       (how == MODEL_WINDOWS_LATE && i >= late));
    int windowed = usual;
    if (type) {
      const char *word = type->kind == JSON_STRING ? type->string : "";
      windowed = !strcmp(word, "sliding_attention");
      if ((!windowed && strcmp(word, "full_attention")) || (!listed && windowed != usual))
        return work_fail(w, "config.json: layer_types, at byte %zu, has a layer that is not served",
                         type->at);
      type = type->next;
    }
    c->windowed[i] = (unsigned char)windowed;
    any |= windowed;
  }
  return !any || c->window || work_fail(w, "config.json: 'sliding_window' is missing");
}

/* Which layers have experts, and how many. */
static int config_experts_(work *w, model_config *c, const json *root) {
  const json *plain = config_field_(root, "mlp_only_layers");
  int64_t step;
  if (!config_whole_(w, root, "num_experts", 1, 1 << 16, 0, &c->experts) ||
      !config_whole_(w, root, "num_local_experts", 1, 1 << 16,
                     c->experts ? c->experts : CONFIG_REQUIRED, &c->experts) ||
      !config_whole_(w, root, "num_experts_per_tok", 1, c->experts, CONFIG_REQUIRED,
                     &c->experts_used) ||
      !config_whole_(w, root, "moe_intermediate_size", 1, 1 << 24, c->hidden, &c->expert_hidden) ||
      !config_flag_(w, root, "norm_topk_prob", 0, &c->renormalise) ||
      !config_whole_(w, root, "decoder_sparse_step", 1, INT32_MAX, 1, &step))
    return 0;
  c->renormalise |= strcmp(c->family->type, "qwen3_moe") != 0; /* the others always do */
  if (!c->family->parts[0]) {
    c->activation = ATTN_ACT_SILU; /* whatever hidden_act says */
    c->form.gate_add = 1;
    if (!config_float_(w, root, "swiglu_alpha", 1e-3, 1e3, 1.702, &c->form.slope) ||
        !config_float_(w, root, "swiglu_limit", 1e-3, 1e6, 7, &c->form.limit))
      return 0;
  }
  for (int64_t i = 0; i < c->layers; i++) c->sparse[i] = (i + 1) % step == 0;
  for (const json *layer = plain ? plain->first : NULL; layer; layer = layer->next)
    if (layer->kind != JSON_NUMBER || !layer->whole || layer->integer < 0 ||
        layer->integer >= c->layers)
      return work_fail(w, "config.json: mlp_only_layers, at byte %zu, must list layers", layer->at);
    else
      c->sparse[layer->integer] = 0;
  return 1;
}

static int config_attention_(work *w, model_config *c, const json *root) {
  static const struct {
    const char *word;
    attn_activation activation;
  } known[] = {{"silu", ATTN_ACT_SILU},          {"swish", ATTN_ACT_SILU},
               {"gelu", ATTN_ACT_GELU},          {"gelu_pytorch_tanh", ATTN_ACT_GELU_TANH},
               {"gelu_new", ATTN_ACT_GELU_TANH}, {"relu", ATTN_ACT_RELU}};
  const char *word;
  double pre;
  int both, causal;
  const int gemma = c->family->gemma;
  if (!config_whole_(w, root, "num_attention_heads", 1, 1 << 16, CONFIG_REQUIRED, &c->heads) ||
      !config_whole_(w, root, "num_key_value_heads", 1, 1 << 16, c->heads, &c->kv_heads) ||
      !config_whole_(w, root, "head_dim", 1, 1 << 16, c->width / c->heads, &c->head) ||
      !config_whole_(w, root, "intermediate_size", 1, 1 << 24, CONFIG_REQUIRED, &c->hidden) ||
      !config_whole_(w, root, "max_position_embeddings", 1, INT32_MAX, CONFIG_REQUIRED,
                     &c->context) ||
      !config_word_(w, root, gemma ? "hidden_activation" : "hidden_act",
                    gemma ? "gelu_pytorch_tanh" : "silu", &word) ||
      !config_float_(w, root, "attn_logit_softcapping", 1e-3, 1e6,
                     config_unsaid_(root, "attn_logit_softcapping", c->family->cap), &c->softcap) ||
      !config_float_(w, root, "final_logit_softcapping", 1e-3, 1e6,
                     config_unsaid_(root, "final_logit_softcapping", c->family->final_cap),
                     &c->final_softcap) ||
      !config_real_(w, root, "query_pre_attn_scalar", 1e-6, 1e9, 256, &pre) ||
      !config_flag_(w, root, "is_causal", 1, &causal) ||
      !config_flag_(w, root, "use_bidirectional_attention", 0, &both))
    return 0;
  if (both || !causal)
    return work_fail(w, "config.json: attention in both directions generates no text");
  if (c->family->cap == 0) c->softcap = 0; /* only Gemma 2 caps scores, only Gemma logits */
  if (!gemma) c->final_softcap = 0;
  if (c->heads % c->kv_heads)
    return work_fail(w, "config.json: %" PRId64 " heads of keys do not divide %" PRId64 " heads",
                     c->kv_heads, c->heads);
  if (c->head < 1 || (int64_t)c->heads * c->head > 1 << 24)
    return work_fail(w, "config.json: %" PRId64 " heads do not fit a width of %" PRId64, c->heads,
                     c->width);
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(word, known[i].word)) c->activation = known[i].activation;
  if (!c->activation) return work_fail(w, "config.json: the activation '%s' is not served", word);
  if (c->family->gemma) {
    c->embedding_scale = (float)sqrt((double)c->width);
    c->scale = (float)(1 / sqrt(pre));
  }
  return config_ropes_(w, c, root) && config_windows_(w, c, root) &&
         (!c->family->router || config_experts_(w, c, root));
}

static int config_mamba2_(work *w, model_config *c, const json *root) {
  double expand;
  const char *word;
  c->context = 1 << 24;
  if (!config_whole_(w, root, "num_heads", 1, 1 << 16, CONFIG_REQUIRED, &c->state_heads) ||
      !config_whole_(w, root, "head_dim", 1, 1 << 16, CONFIG_REQUIRED, &c->state_head) ||
      !config_whole_(w, root, "state_size", 1, 1 << 16, CONFIG_REQUIRED, &c->state) ||
      !config_whole_(w, root, "n_groups", 1, 1 << 16, 8, &c->groups) ||
      !config_whole_(w, root, "conv_kernel", 2, 64, 4, &c->kernel) ||
      !config_real_(w, root, "expand", 1e-3, 1e3, 2, &expand) ||
      !config_word_(w, root, "hidden_act", "silu", &word))
    return 0;
  if (strcmp(word, "silu"))
    return work_fail(w, "config.json: the activation '%s' is not served", word);
  if (c->state_heads % c->groups)
    return work_fail(w, "config.json: %" PRId64 " groups do not divide %" PRId64 " heads",
                     c->groups, c->state_heads);
  if ((int64_t)(expand * (double)c->width) != c->state_heads * c->state_head)
    return work_fail(w,
                     "config.json: %" PRId64 " heads of %" PRId64 " are not expand x hidden_size",
                     c->state_heads, c->state_head);
  const json *limit = config_field_(root, "time_step_limit");
  if (!limit) return 1;
  if (limit->kind != JSON_ARRAY || limit->count != 2 || limit->first->kind != JSON_NUMBER ||
      !(limit->first->number >= 0 && limit->first->number < 1e6))
    return work_fail(w, "config.json: time_step_limit must have two numbers");
  c->dt_min = (float)limit->first->number;
  /* infinity is a number here and an object in some files */
  if (limit->first->next->kind == JSON_NUMBER && limit->first->next->number < 1e6)
    c->dt_max = (float)limit->first->next->number;
  if (limit->first->next->kind == JSON_NUMBER && !(limit->first->next->number > 0))
    return work_fail(w, "config.json: time_step_limit must end above 0");
  return 1;
}

/* eos_token_id is a number or a list of them. */
static int config_ends_(work *w, model_config *c, const json *root, const char *file) {
  const json *eos = config_field_(root, "eos_token_id");
  if (!eos) return 1;
  c->eos_count = 0;
  for (const json *id = eos->kind == JSON_ARRAY ? eos->first : eos; id;
       id = eos->kind == JSON_ARRAY ? id->next : NULL) {
    if (id->kind != JSON_NUMBER || !id->whole || c->eos_count == MODEL_MAX_EOS)
      return work_fail(w, "%s: 'eos_token_id', at byte %zu, must be up to %d tokens", file, id->at,
                       MODEL_MAX_EOS);
    c->eos[c->eos_count++] = id->integer;
  }
  return 1;
}

static int config_all_(work *w, model_config *c, const json *root) {
  const char *type;
  if (root->kind != JSON_OBJECT) return work_fail(w, "config.json must be an object");
  if (!config_word_(w, root, "model_type", NULL, &type)) return 0;
  for (size_t i = 0; i < sizeof model_families_ / sizeof *model_families_; i++)
    if (!strcmp(type, model_families_[i].type)) c->family = &model_families_[i];
  if (!c->family) {
    char all[200] = "";
    for (size_t i = 0; i < sizeof model_families_ / sizeof *model_families_; i++)
      snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "",
               model_families_[i].type);
    return work_fail(w, "config.json: model_type '%s' is none of %s", type, all);
  }
  if (config_field_(root, "quantization_config"))
    return work_fail(w, "config.json: quantised checkpoints are not read");
  const char *eps = c->family->mamba2 ? "layer_norm_epsilon" : "rms_norm_eps";
  if (!config_whole_(w, root, "num_hidden_layers", 1, MODEL_MAX_LAYERS, CONFIG_REQUIRED,
                     &c->layers) ||
      !config_whole_(w, root, "hidden_size", 1, 1 << 20, CONFIG_REQUIRED, &c->width) ||
      !config_whole_(w, root, "vocab_size", 1, INT32_MAX, CONFIG_REQUIRED, &c->vocabulary) ||
      !config_float_(w, root, eps, 1e-30, 1,
                     c->family->mamba2    ? 1e-5
                     : c->family->eps > 0 ? c->family->eps
                                          : 1e-6,
                     &c->eps) ||
      !config_flag_(w, root, "tie_word_embeddings", -1, &c->tied) ||
      !config_flag_(w, root, "attention_bias", -1, &c->attention_bias) ||
      !config_flag_(w, root, "mlp_bias", -1, &c->mlp_bias) ||
      !config_ends_(w, c, root, "config.json"))
    return 0;
  return c->family->mamba2 ? config_mamba2_(w, c, root) : config_attention_(w, c, root);
}

/* What ends a text, of FOLDER/generation_config.json if there is one, in place of config.json's. */
static int config_generation_(work *w, model_config *c, const char *folder) {
  char path[4096];
  json_document d;
  snprintf(path, sizeof path, "%s/generation_config.json", folder);
  FILE *there = fopen(path, "rb");
  if (!there) return 1;
  fclose(there);
  const char *error = json_read(&d, path);
  if (error) return work_fail(w, "generation_config.json: %s", error);
  const int fine = d.root->kind != JSON_OBJECT
                       ? work_fail(w, "generation_config.json must be an object")
                       : config_ends_(w, c, d.root, "generation_config.json");
  json_free(&d);
  return fine;
}

/* Reads FOLDER/config.json. */
static int model_config_read(work *w, model_config *c, const char *folder) {
  char path[4096];
  json_document d;
  memset(c, 0, sizeof *c);
  if ((size_t)snprintf(path, sizeof path, "%s/config.json", folder) >= sizeof path - 16)
    return work_fail(w, "the folder's name is too long");
  const char *error = json_read(&d, path);
  if (error) return work_fail(w, "config.json: %s", error);
  const int fine = config_all_(w, c, d.root);
  json_free(&d);
  return fine && config_generation_(w, c, folder);
}

#endif
